/* Shards whose Bags exist already: bags_shard_complete writes their refs and checksums;
 * bags_reader_check_shard notices that another process replaced one. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>

#define SPEC "{\"a\": \"utf8\", \"b\": \"bytes[]\"}"

/* What the callback does. */
typedef struct rows {
    const uint64_t (*refs)[3]; /* of each datapoint: of a, of b, and how many */
    uint64_t calls, fail_at;
} rows;

static bags_code next_refs(
    void *user, uint64_t datapoint, bags_ref *refs, bags_error *err) {
    rows *of = (rows *)user;
    assert_int_equal(datapoint, of->calls++);
    if (of->calls == of->fail_at)
        return bags_fail(err, BAGS_ERROR_VALUE, "no refs today");
    refs[0].first = of->refs[datapoint][0];
    refs[0].count = 77; /* of a plain field: ignored */
    refs[1].first = of->refs[datapoint][1];
    refs[1].count = of->refs[datapoint][2];
    return BAGS_OK;
}

#define ROWS 3
static const uint64_t chosen[ROWS][3] = {{4, 0, 3}, {0, 5, 0}, {4, 2, 1}};

/* The dataset `from` has the fields `clip` and `text`. */
static void save_source(enum variant variant, bool checksums) {
    hand_set set;
    bags_checksum_options options = {0};
    memset(&set, 0, sizeof set);
    set_field(&set, "clip", "bytes[]");
    set_field(&set, "text", "utf8");
    for (int i = 0; i < 5; i++) {
        char text[20];
        snprintf(text, sizeof text, "text %d", i);
        set_begin(&set);
        set_items(&set, 0, "item", 1);
        set_text(&set, 1, text);
        set_end(&set);
    }
    set_save(&set, variant, at("from"));
    set_free(&set);
    options.no_sync = true;
    if (checksums)
        assert_ok(bags_checksum(at("from"), &options, NULL, &said));
}

static void copy_file(const char *from, const char *to) {
    bytes content = load(from);
    save(to, content.data, content.size);
    bytes_free(&content);
}

/* Its Bags become those of the fields `a` and `b` of the shard `to`. */
static void copy_bags(void) {
    make_dir(at("to"));
    copy_file(at("from/text.bag"), at("to/a.bag"));
    copy_file(at("from/clip.bag"), at("to/b.bag"));
}

static const char *sources[2];

static bags_code complete(
    bool checksums, rows *of, bags_complete_report *report, const bags_env *env) {
    bags_complete_options options = {0};
    bags_view spec = {(const unsigned char *)SPEC, strlen(SPEC)};
    options.checksums = checksums ? sources : NULL;
    options.no_sync = true;
    options.user = of;
    if (env)
        options.env = *env;
    return bags_shard_complete(
        at("to"), spec, ROWS, next_refs, &options, report, &said);
}

static void set_sources(void) {
    static char paths[2][4096]; /* at() reuses its memory */
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s",
            at("from/%s", i ? "clip.bag" : "text.bag"));
        sources[i] = paths[i];
    }
}

static void remove_all(void) {
    remove_tree(at("from"));
    remove_tree(at("to"));
}

static void a_shard_of_existing_bags_is_a_version_of_their_dataset(void **state) {
    (void)state;
    static const char *const texts[] = {"text 4", "text 0", "text 4"};
    for (int n = 0; n < 4; n++) {
        enum variant variant = n % 2 ? V2 : V1;
        rows of = {chosen, 0, 0};
        bags_complete_report report;
        bags_reader_options reading = {0};
        bags_reader *reader;
        bags_row row = {0};
        save_source(variant, n > 1);
        copy_bags();
        set_sources();
        assert_ok(complete(n > 1, &of, &report, NULL));
        assert_int_equal(of.calls, ROWS);
        assert_int_equal(
            report.existing, file_size(at("to/a.bag")) + file_size(at("to/b.bag")));
        uint64_t written = file_size(at("to/refs.bag"));
        for (int i = 0; i < 3 && n > 1; i++)
            written += file_size(at("to/%s.crc", i == 0 ? "a" : i == 1 ? "b" : "refs"));
        assert_int_equal(report.written, written);
        assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("to"), NULL, &said));

        save_text(at("to/spec.json"), SPEC);
        assert_names(at("to"), n > 1 ? "a.bag a.crc b.bag b.crc refs.bag refs.crc "
                                       "spec.json"
                                     : "a.bag b.bag refs.bag spec.json");
        /* 92 04 92 00 03, 92 00 90, 92 04 92 02 01: the table follows. */
        bytes refs = load(at("to/refs.bag"));
        assert_int_equal(refs.size, 13 + 8 * (ROWS + (variant == V1)));
        assert_int_equal(load_u64(refs.data + 13), variant == V1 ? 0 : 5);
        bytes_free(&refs);
        assert_ok(verify_path(at("to"), NULL, &said));
        reading.verify_checksums = n > 1;
        assert_int_equal(read_dataset(at("to"), &reading), BAGS_OK);
        assert_opens(reader, bags_reader_open(at("to"), &reading, &said));
        for (uint64_t i = 0; i < ROWS; i++) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_text(bags_row_bytes(&row, 0, 0), texts[i]);
            assert_int_equal(bags_row_length(&row, 1), chosen[i][2]);
        }
        bags_row_free(&row);
        bags_reader_close(reader);

        /* The checksums are those of bags_checksum, which reads the blobs. */
        bags_checksum_options replacing = {0};
        replacing.replace = replacing.no_sync = true;
        copy_tree(at("to"), at("again"));
        if (n > 1) {
            assert_ok(bags_checksum(at("again"), &replacing, NULL, &said));
            assert_same_tree(at("to"), at("again"));
        }
        remove_tree(at("again"));
        remove_all();
    }
}

static void an_empty_bag_of_v2_is_replaced_next_to_one_of_v1(void **state) {
    (void)state;
    static const uint64_t none[ROWS][3] = {{1, 0, 0}, {2, 0, 0}, {3, 0, 0}};
    for (int v1 = 0; v1 < 2; v1++) {
        rows of = {none, 0, 0};
        bags_complete_report report;
        save_source(v1 ? V1 : V2, true);
        copy_bags();
        save_text(at("from/clip.bag"), "");
        save_text(at("to/b.bag"), "");
        set_sources();
        assert_ok(complete(true, &of, &report, NULL));
        assert_file(at("to/b.bag"), "\0\0\0\0\0\0\0\0", v1 ? 8 : 0);
        assert_file(at("from/clip.bag"), "", 0);
        assert_int_equal(report.existing, file_size(at("to/a.bag")));
        save_text(at("to/spec.json"), SPEC);
        assert_ok(verify_path(at("to"), NULL, &said));
        remove_all();
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static const uint64_t beyond_a[ROWS][3] = {{0, 0, 1}, {5, 0, 1}};
    static const uint64_t beyond_b[ROWS][3] = {{0, 0, 1}, {0, 0, 1}, {0, 3, 3}};
    const bags_view spec = {(const unsigned char *)"{\"a\": \"utf8\"", 12};
    bags_complete_options options = {0};
    rows of = {beyond_a, 0, 0};
    save_source(V1, true);
    set_sources();
    make_dir(at("to"));
    assert_fails(BAGS_ERROR_MISSING, complete(true, &of, NULL, NULL));
    assert_says("to/a.bag: cannot open");
    remove_tree(at("to"));
    for (int n = 0; n < 8; n++) {
        bags_code expected = BAGS_ERROR_CORRUPT;
        const char *says = "";
        rows given = {chosen, 0, 0};
        copy_bags();
        if (n == 0) {
            given.refs = beyond_a;
            expected = BAGS_ERROR_RANGE;
            says =
                "to: field \"a\": datapoint 1: *blob index 5 out of range (length 5)";
        } else if (n == 1) {
            given.refs = beyond_b;
            expected = BAGS_ERROR_RANGE;
            says = "field \"b\": datapoint 2: *blobs [3, 3]*out of range (length 5)";
        } else if (n == 2) {
            given.fail_at = 2;
            expected = BAGS_ERROR_VALUE;
            says = "no refs today";
        } else if (n == 3) {
            save_text(at("to/refs.bag"), "other");
            expected = BAGS_ERROR_EXISTS;
            says = "to/refs.bag: cannot create";
        } else if (n == 4) {
            sources[1] = "from/clip";
            expected = BAGS_ERROR_ARGUMENT;
            says = "to/b.bag: the path of the Bag with its checksums";
        } else if (n == 5) { /* the checksums of another Bag, of the same length */
            sources[0] = at("from/refs.bag");
            says = "changed since its checksums were written";
        } else if (n == 6) {
            bytes crcs = load(at("from/text.crc"));
            crcs.data[5] ^= 1;
            save(at("from/text.crc"), crcs.data, crcs.size);
            bytes_free(&crcs);
            says = "from/text.crc: damaged*bags_checksum with `replace`";
        } else {
            assert_int_equal(remove(at("from/text.crc")), 0);
            expected = BAGS_ERROR_MISSING;
            says = "no checksums*from/text.crc is missing";
        }
        assert_fails(expected, complete(true, &given, NULL, NULL));
        assert_says(says);
        set_sources();
        remove_tree(at("to"));
    }
    copy_bags();
    assert_fails(BAGS_ERROR_CORRUPT,
        bags_shard_complete(at("to"), spec, 0, next_refs, NULL, NULL, &said));
    assert_says("to/spec.json: not a JSON object");
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_shard_complete(at("to"), spec, 0, NULL, &options, NULL, &said));
    remove_all();
}

static void a_failure_of_any_call_is_returned(void **state) {
    (void)state;
    const bags_env env = {&memory.allocator, &disk.io};
    save_source(V1, true);
    set_sources();
    for (int allocating = 0; allocating < 2; allocating++)
        for (uint64_t n = 1;; n++) {
            rows of = {chosen, 0, 0};
            copy_bags();
            memory.calls = memory.failed = disk.calls = disk.failed = 0;
            /* A journal that stays, or a file that was only read, does not matter. */
            disk.only =
                ~(1u << HOOK_REMOVE | 1u << HOOK_CLOSE | 1u << HOOK_IDENTIFY |
                    1u << HOOK_ADVISE | 1u << HOOK_RESERVE | 1u << HOOK_WRITE_BACK);
            disk.fail_with = EIO;
            disk.fail_at = allocating ? 0 : n;
            memory.fail_at = allocating ? n : 0;
            bags_code code = complete(true, &of, NULL, &env);
            disk.fail_at = memory.fail_at = disk.only = 0;
            bool failed = allocating ? memory.failed : disk.failed;
            assert_int_equal(disk.files, 0);
            assert_int_equal(code, !failed      ? BAGS_OK
                                   : allocating ? BAGS_ERROR_MEMORY
                                                : BAGS_ERROR_IO);
            remove_tree(at("to"));
            if (!failed)
                break;
        }
    remove_tree(at("from"));
}

static void a_shard_that_was_replaced_is_noticed(void **state) {
    (void)state;
    bags_reader *reader;
    make_dir(at("set"));
    save_source(V1, false);
    copy_tree(at("from"), at("set/000000"));
    copy_tree(at("from"), at("set/000001"));
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_ok(bags_reader_check_shard(reader, 0, &said));
    assert_ok(bags_reader_check_shard(reader, 1, &said));
    assert_fails(BAGS_ERROR_RANGE, bags_reader_check_shard(reader, 2, &said));
    assert_says("shard index 2 out of range (length 2)");
    remove_tree(at("set/000001"));
    copy_tree(at("from"), at("set/000001"));
    assert_ok(bags_reader_check_shard(reader, 0, &said));
    assert_fails(BAGS_ERROR_CHANGED, bags_reader_check_shard(reader, 1, &said));
    assert_says("set/000001/spec.json: its shard was replaced");
    remove_tree(at("set/000001"));
    assert_fails(BAGS_ERROR_CHANGED, bags_reader_check_shard(reader, 1, &said));
    bags_reader_close(reader);
    remove_tree(at("set"));
    remove_tree(at("from"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_shard_of_existing_bags_is_a_version_of_their_dataset),
        TEST(an_empty_bag_of_v2_is_replaced_next_to_one_of_v1),
        TEST(what_does_not_fit_is_refused),
        TEST(a_failure_of_any_call_is_returned),
        TEST(a_shard_that_was_replaced_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
