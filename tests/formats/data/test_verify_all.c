/* bags_verify in threads, and of flushed data: formats/data/verify.c. The tests of the
 * command cover more faults. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include "../../../formats/formats.h"

#define SHARDS 5

static bags_writer *begin(const char *path) {
    static const bags_field fields[] = {{"n", "u64"}, {"s", "strange"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.shard_length = 2;
    options.no_sync = true;
    options.checksum = true;
    options.any_type = true;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < 2 * SHARDS - 1; i++) {
        bags_value values[] = {bags_uint(i), bags_blob("abc", 3)};
        bags_entry entries[] = {{"n", &values[0], 1}, {"s", &values[1], 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    return writer;
}

typedef struct counts {
    uint64_t faults, undecoded, bytes;
} counts;

static void add_fault(void *user, const bags_fault *fault) {
    assert_true(contains(fault->path, "d"));
    ((counts *)user)->faults++;
}

static void add_undecoded(void *user, const bags_field *field, uint64_t blobs) {
    assert_string_equal(field->name, "s");
    ((counts *)user)->undecoded += blobs;
}

static void add_bytes(void *user, uint64_t read) { ((counts *)user)->bytes += read; }

static bags_verify_all_options options_of(counts *to) {
    bags_verify_all_options how = {0};
    memset(to, 0, sizeof *to);
    how.verify.decode = true;
    how.verify.each = add_fault;
    how.verify.undecoded = add_undecoded;
    how.verify.progress = add_bytes;
    how.verify.user = to;
    return how;
}

static void any_number_of_threads_finds_the_same_faults(void **state) {
    (void)state;
    bags_verify_report one, all;
    counts found;
    assert_ok(bags_writer_close(begin(at("d")), &said));
    for (int shard = 0; shard < SHARDS - 1; shard++)
        save_text(at("d/%06d/s.bag", shard), "damaged");
    bags_verify_all_options how = options_of(&found);
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("d"), &how.verify, &one, &said));
    const counts expected = found;
    assert_true(expected.faults >= SHARDS - 1 && expected.faults == one.faults);
    for (uint32_t threads = 0; threads < 300; threads = 2 * threads + 1) {
        how = options_of(&found);
        how.threads = threads;
        assert_ok(bags_verify_all(at("d"), &how, &all, &said));
        assert_memory_equal(&one, &all, sizeof one);
        assert_memory_equal(&expected, &found, sizeof found);
        how = options_of(&found);
        how.threads = threads;
        how.verify.max_faults = 3;
        assert_ok(bags_verify_all(at("d"), &how, &all, NULL));
        assert_true(found.faults == 3 && all.faults == one.faults);
    }
    remove_tree(at("d"));
}

static void flushed_datapoints_are_checked_and_counted(void **state) {
    (void)state;
    bags_verify_report report;
    counts found;
    bags_writer *writer = begin(at("d"));
    assert_ok(bags_writer_flush(writer, &said));
    bags_verify_all_options how = options_of(&found);
    assert_ok(bags_verify_all(at("d"), &how, &report, &said));
    assert_true(report.faults == 1 && found.faults == 1); /* an unfinished shard */
    for (uint64_t n = 0;; n++) {
        how = options_of(&found);
        how.live = true;
        how.threads = 1;
        how.verify.env.allocator = &memory.allocator;
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_code code = bags_verify_all(at("d"), &how, &report, &said);
        memory.fail_at = 0;
        if (memory.failed)
            assert_int_equal(code, BAGS_ERROR_MEMORY);
        if (memory.failed)
            continue;
        assert_ok(code);
        assert_true(report.faults == 0 && found.faults == 0);
        assert_true(report.datapoints == 2 * SHARDS - 1);
        if (n == 0)
            continue;
        assert_true(n > 5);
        break;
    }
    assert_ok(bags_writer_close(writer, &said));
    remove_tree(at("d"));
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    counts found;
    bags_verify_all_options how = options_of(&found);
    assert_fails(BAGS_ERROR_MISSING, bags_verify_all(at("none"), &how, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify_all(NULL, &how, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify_all(at("d"), NULL, NULL, &said));
    how.verify.parts = 2;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify_all(at("d"), &how, NULL, &said));
    how = options_of(&found);
    how.live = true;
    how.verify.unfinished = BAGS_UNFINISHED_SKIP;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify_all(at("d"), &how, NULL, &said));
    assert_says("live excludes quick and unfinished");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_number_of_threads_finds_the_same_faults),
        TEST(flushed_datapoints_are_checked_and_counted),
        TEST(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
