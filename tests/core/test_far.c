/* Hooks for files that are far away: read_many, expect, explain. Here they are on
 * local files, and count. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>

static bags_io far;
static struct {
    size_t calls, reads, requests, at, expected, shorten;
    int fault;
    char last[256];
} seen;

static int far_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    seen.at++;
    if (seen.fault)
        return seen.fault;
    return bags_io_local()->read_at(user, file, offset, data, size, done);
}

static void far_read_many(void *user, bags_io_read *reads, size_t count) {
    seen.calls++;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(reads[i].done, 0);
        assert_true(reads[i].size > 0);
        seen.reads += reads[i].data != NULL;
        seen.requests += reads[i].data == NULL;
        size_t size = reads[i].size;
        size -= seen.shorten < size ? seen.shorten : size;
        if (reads[i].data && !seen.fault)
            bags_io_local()->read_at(user, reads[i].file, reads[i].offset,
                reads[i].data, size, &reads[i].done);
    }
}

static void far_expect(void *user, const char *path) {
    (void)user;
    seen.expected++;
    if (contains(path, ".bag")) /* the others are records, which are checked */
        snprintf(seen.last, sizeof seen.last, "%s", path);
}

static void far_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    (void)user;
    if (error == EACCES)
        snprintf(text, size, "the server refuses %s", path);
}

/* A dataset of three shards; its reader. */
static bags_reader *open_far(bool cache_index) {
    bags_reader *reader;
    bags_reader_options options;
    bags_writer_options writing;
    bags_field fields[] = {{"data", "bytes"}, {"n", "int(4)"}};
    bags_writer *writer;
    memset(&writing, 0, sizeof writing);
    writing.shard_length = 10;
    assert_opens(writer, bags_writer_open(at("ds"), fields, 2, &writing, &said));
    for (int i = 0; i < 30; i++) {
        unsigned char blob[500];
        fill(blob, sizeof blob, (uint64_t)i);
        bags_value data = bags_bytes(blob, 400 + (size_t)i), n = bags_int(i);
        bags_entry entries[] = {{"data", &data, 1}, {"n", &n, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    far = *bags_io_local();
    far.map = NULL;
    far.read_at = far_read_at;
    far.read_many = far_read_many;
    far.expect = far_expect;
    far.explain = far_explain;
    memset(&seen, 0, sizeof seen);
    memset(&options, 0, sizeof options);
    options.cache_index = cache_index;
    options.env.io = &far;
    assert_opens(reader, bags_reader_open(at("ds"), &options, &said));
    return reader;
}

static void check_many(const bags_row *row, const uint64_t *indices, size_t n) {
    assert_int_equal(bags_row_length(row, 0), n);
    for (size_t i = 0; i < n; i++) {
        unsigned char blob[500];
        fill(blob, sizeof blob, indices[i]);
        assert_bytes(bags_row_bytes(row, 0, i), blob, 400 + (size_t)indices[i]);
    }
}

static const uint64_t some[] = {29, 3, 17, 3, 0, 12, 25};
#define SOME (sizeof some / sizeof *some)

static void a_batch_is_read_in_one_call_per_step(void **state) {
    bags_row row = {0};
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        bags_reader *reader = open_far(cached);
        assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
        check_many(&row, some, SOME);
        memset(&seen, 0, sizeof seen);
        assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
        check_many(&row, some, SOME);
        /* Tables and blobs of refs, tables and blobs of the field. */
        assert_int_equal(seen.calls, cached ? 2 : 4);
        assert_int_equal(seen.at, 0);
        bags_reader_close(reader);
        remove_tree(at("ds"));
    }
    bags_row_free(&row);
}

static void checksums_are_a_step_of_their_own(void **state) {
    bags_row row = {0};
    bags_reader_options options;
    bags_reader *reader = open_far(false);
    (void)state;
    bags_reader_close(reader);
    assert_ok(bags_checksum(at("ds"), NULL, NULL, &said));
    memset(&options, 0, sizeof options);
    options.verify_checksums = true;
    options.env.io = &far;
    assert_opens(reader, bags_reader_open(at("ds"), &options, &said));
    assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
    memset(&seen, 0, sizeof seen);
    assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
    check_many(&row, some, SOME);
    assert_int_equal(seen.calls, 6);
    assert_int_equal(seen.at, 0);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void all_fields_of_a_datapoint_are_read_in_one_call_per_step(void **state) {
    bags_row row = {0};
    bags_reader *reader = open_far(false);
    (void)state;
    assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
    memset(&seen, 0, sizeof seen);
    assert_ok(bags_reader_get(reader, 7, NULL, 0, &row, &said));
    assert_int_equal(seen.calls, 4);
    assert_int_equal(seen.reads, 6);
    assert_int_equal(seen.at, 0);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void what_a_call_left_out_is_read_at_its_place(void **state) {
    bags_row row = {0};
    bags_reader *reader = open_far(false);
    (void)state;
    for (size_t shorten = 0; shorten < 600; shorten += 7) {
        seen.shorten = shorten;
        assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
        check_many(&row, some, SOME);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_failure_is_what_read_at_returns_in_the_hooks_words(void **state) {
    bags_row row = {0};
    bags_reader *reader = open_far(false);
    (void)state;
    assert_ok(bags_reader_get_many(reader, some, SOME, 0, &row, &said));
    seen.fault = EACCES;
    assert_fails(
        BAGS_ERROR_IO, bags_reader_get_many(reader, some, SOME, 0, &row, &said));
    assert_int_equal(said.system, EACCES);
    assert_says("refs.bag: cannot read: the server refuses *ds/00000");
    seen.fault = EIO;
    assert_fails(
        BAGS_ERROR_IO, bags_reader_get_many(reader, some, SOME, 0, &row, &said));
    assert_says(strerror(EIO));
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_prefetch_only_requests_the_blobs(void **state) {
    bags_row row = {0};
    bags_reader *reader = open_far(true);
    (void)state;
    assert_ok(bags_reader_prefetch(reader, some, SOME, NULL, 0, &row, &said));
    memset(&seen, 0, sizeof seen);
    assert_ok(bags_reader_prefetch(reader, some, SOME, NULL, 0, &row, &said));
    assert_true(seen.requests >= 6);
    assert_int_equal(seen.calls, 3);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_prefetch_has_selections_for_each_datapoint(void **state) {
    bags_row row = {0};
    bags_reader *reader = open_far(true);
    bags_select selects[SOME], both[2 * SOME];
    (void)state;
    for (size_t i = 0; i < SOME; i++) {
        selects[i] = bags_select_all(i % 2);
        both[2 * i] = bags_select_all(0);
        both[2 * i + 1] = bags_select_all(1);
    }
    for (int again = 0; again < 2; again++) {
        memset(&seen, 0, sizeof seen);
        assert_ok(
            bags_reader_prefetch_each(reader, some, SOME, selects, 1, &row, &said));
    }
    size_t one = seen.requests;
    assert_int_equal(seen.calls, 3);
    memset(&seen, 0, sizeof seen);
    assert_ok(bags_reader_prefetch_each(reader, some, SOME, both, 2, &row, &said));
    assert_true(seen.calls == 3 && seen.requests > one);
    assert_ok(bags_reader_prefetch_each(reader, some, 0, NULL, 0, &row, &said));
    assert_ok(bags_reader_prefetch_each(reader, some, SOME, both, 0, &row, &said));
    /* The selection of the last datapoint is checked, too. */
    selects[SOME - 1].field = 2;
    assert_fails(BAGS_ERROR_FIELD,
        bags_reader_prefetch_each(reader, some, SOME, selects, 1, &row, &said));
    selects[SOME - 1] = bags_select_slice(0, 1, 2, 1);
    assert_fails(BAGS_ERROR_TYPE,
        bags_reader_prefetch_each(reader, some, SOME, selects, 1, &row, &said));
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void files_are_expected_before_they_are_opened(void **state) {
    bags_row row = {0};
    bags_info info;
    bags_reader *reader = open_far(false);
    (void)state;
    assert_true(seen.expected >= 6); /* two files of each shard */
    seen.expected = 0;
    assert_ok(bags_reader_get_many(reader, some, SOME, 1, &row, &said));
    assert_true(seen.expected >= 3);
    assert_non_null(strstr(seen.last, "/n.bag"));
    seen.expected = 0;
    assert_ok(bags_reader_get_many(reader, some, SOME, 1, &row, &said));
    assert_int_equal(seen.expected, 0); /* they are open */
    uint64_t beyond[] = {some[0], UINT64_MAX, bags_reader_length(reader)};
    assert_fails(
        BAGS_ERROR_RANGE, bags_reader_get_many(reader, beyond, 3, 1, &row, &said));
    assert_ok(bags_reader_info(reader, &info, NULL, &said));
    assert_true(seen.expected >= 9);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_reader_options second;
    memset(&second, 0, sizeof second);
    second.shard_start = 1;
    second.shard_stop = 2;
    second.env.io = &far;
    seen.expected = 0;
    assert_opens(reader, bags_reader_open(at("ds"), &second, &said));
    assert_true(bags_reader_length(reader) < 30);
    assert_true(seen.expected >= 2);
    assert_non_null(strstr(seen.last, "/000001/"));
    bags_reader_close(reader);
}

static void the_failure_of_every_allocation_is_an_error(void **state) {
    (void)state;
    bags_reader *near = open_far(false);
    bags_reader_close(near);
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &far;
    options.env.allocator = &memory.allocator;
    for (uint64_t n = 1; n < 200; n++) {
        bags_row row = {0};
        memory.calls = 0;
        memory.fail_at = n;
        bags_reader *reader = bags_reader_open(at("ds"), &options, &said);
        bags_code code = reader
                             ? bags_reader_get_many(reader, some, SOME, 0, &row, &said)
                             : said.code;
        memory.fail_at = 0;
        if (code)
            assert_int_equal(code, BAGS_ERROR_MEMORY);
        else
            check_many(&row, some, SOME);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_read_in_one_call_per_step),
        TEST(checksums_are_a_step_of_their_own),
        TEST(all_fields_of_a_datapoint_are_read_in_one_call_per_step),
        TEST(what_a_call_left_out_is_read_at_its_place),
        TEST(a_failure_is_what_read_at_returns_in_the_hooks_words),
        TEST(a_prefetch_only_requests_the_blobs),
        TEST(a_prefetch_has_selections_for_each_datapoint),
        TEST(files_are_expected_before_they_are_opened),
        TEST(the_failure_of_every_allocation_is_an_error),
    };
    return cmocka_run_group_tests_name("far", tests, NULL, NULL);
}
