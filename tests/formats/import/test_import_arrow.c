/* Files that apache-arrow and polars wrote: tests/data/import/make_arrow.mjs. What
 * they contain is checked in tests/command/importing.py. */
// flavours: test: release; check: asan
#include "import_check.h"

#define ARROW &bags_import_arrow
#define FILES IMPORT_DATA "arrow/"

static const char *const files[] = {
    "types.arrow", "polars-lz4.arrow", "category.feather"};

static void a_file_and_a_stream_are_the_same(void **state) {
    bags_code code;
    (void)state;
    bytes file = import_all(ARROW, FILES "types.arrow", &code);
    assert_int_equal(code, BAGS_OK);
    bytes stream = import_all(ARROW, FILES "types.arrows", &code);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal((char *)file.data, (char *)stream.data);
    bytes_free(&file);
    bytes_free(&stream);
    file = import_all(ARROW, FILES "polars-lz4.arrow", &code);
    assert_int_equal(code, BAGS_OK);
    stream = import_all(ARROW, FILES "polars-zstd.arrow", &code);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal((char *)file.data, (char *)stream.data);
    bytes_free(&file);
    bytes_free(&stream);
}

static void the_files_of_a_directory_must_have_the_same_columns(void **state) {
    bags_code code;
    (void)state;
    make_dir(at("in"));
    bytes one = load(FILES "types.arrow"), other = load(FILES "two.arrow");
    save(at("in/0.arrow"), one.data, one.size);
    save(at("in/1.arrow"), other.data, other.size);
    bytes text = import_all(ARROW, at("in"), &code);
    assert_int_equal(code, BAGS_OK); /* with other footers */
    assert_true(contains((const char *)text.data, "12\n"));
    bytes_free(&text);
    save(at("in/1.arrow"), one.data, one.size);
    text = import_all(ARROW, at("in"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "8\n"));
    bytes_free(&text);
    bytes_free(&one);
    one = load(FILES "polars-zstd.arrow");
    save(at("in/1.arrow"), one.data, one.size);
    check_import_fails(ARROW, BAGS_ERROR_TYPE, at("in"),
        "1.arrow: other columns than in *0.arrow (\"a\": float64, expected \"b\": "
        "bool)");
    bytes_free(&one);
    bytes_free(&other);
}

static void damage_is_an_error_or_without_effect(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[256], name[64];
        snprintf(path, sizeof path, FILES "%s", files[i]);
        snprintf(name, sizeof name, "%s", files[i]);
        bytes file = load(path);
        save(at("%s", name), file.data, file.size);
        bytes_free(&file);
        check_damage(ARROW, at("%s", name), at("%s", name), false, (uint64_t)16 << 20);
    }
}

static void what_is_not_supported_is_refused(void **state) {
    (void)state;
    save_text(at("x.arrow"), "");
    check_import_fails(ARROW, BAGS_ERROR_CORRUPT, at("x.arrow"), "no schema");
    save_text(at("x.arrow"), "FEA1 and more than eight bytes");
    check_import_fails(ARROW, BAGS_ERROR_TYPE, at("x.arrow"), "Feather version 1");
    save_text(at("x.arrow"), "ARROW1 and more than ten bytes");
    check_import_fails(ARROW, BAGS_ERROR_CORRUPT, at("x.arrow"), "no footer");
    check_import_fails(ARROW, BAGS_ERROR_MISSING, at("none.arrow"), "No such file");
}

/* Images of Hugging Face's datasets that were not embedded. */
static void a_path_in_place_of_bytes_is_an_error(void **state) {
    static const char *const columns[][2] = {
        {"column", "column x: datapoint 2: its bytes are NULL, and its path is "
                   "\"/data/cat.jpg\""},
        {"list", "column x: datapoint 2: its bytes are NULL"},
        {"member", "column x.i.image: datapoint 2: its bytes are NULL"}};
    (void)state;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        char path[256];
        snprintf(path, sizeof path, FILES "bad-path-%s.arrow", columns[i][0]);
        check_import_fails(ARROW, BAGS_ERROR_VALUE, path, columns[i][1]);
    }
}

static void what_follows_the_end_of_a_stream_is_an_error(void **state) {
    (void)state;
    bytes stream = load(FILES "types.arrows");
    size_t size = stream.size;
    put(&stream, stream.data, size);
    save(at("x.arrows"), stream.data, stream.size);
    bytes_free(&stream);
    check_import_fails(ARROW, BAGS_ERROR_CORRUPT, at("x.arrows"),
        "x.arrows: message at *: the stream ends here, but the file does not");
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(ARROW, FILES "types.arrow");
    check_out_of_memory(ARROW, FILES "category.feather");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_file_and_a_stream_are_the_same),
        TEST(the_files_of_a_directory_must_have_the_same_columns),
        TEST(damage_is_an_error_or_without_effect),
        TEST(what_is_not_supported_is_refused),
        TEST(a_path_in_place_of_bytes_is_an_error),
        TEST(what_follows_the_end_of_a_stream_is_an_error),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
