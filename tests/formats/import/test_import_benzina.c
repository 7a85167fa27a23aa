/* The golden .bzna, and its damage: tests/data/import/make_arrays.py. */
// flavours: test: release; check: asan
#include "import_check.h"

#define BENZINA &bags_import_benzina
#define GOLDEN "tests/data/golden/benzina/data.bzna"

static void images_targets_and_names_are_as_the_manifest_states(void **state) {
    (void)state;
    check_import(BENZINA, GOLDEN, IMPORT_DATA "benzina.expected");
}

/* A copy of the golden file with these bytes `offset` after the text, where it
 * last is before the track of thumbnails, which is the last one. */
static const char *changed(
    const char *text, int offset, const char *with, size_t size) {
    bytes file = load(GOLDEN);
    size_t place = file.size - 2900;
    while (place > 0 && memcmp(file.data + place, text, strlen(text)) != 0)
        place--;
    memcpy(file.data + place + offset, with, size);
    save(at("x.bzna"), file.data, file.size);
    bytes_free(&file);
    return at("x.bzna");
}

static void what_cannot_be_true_is_an_error(void **state) {
    (void)state;
    check_import_fails(BENZINA, BAGS_ERROR_CORRUPT, changed("stsz", 12, "\0\0\0\2", 4),
        "differ in length (bzna_input 3, bzna_fname 2)");
    check_import_fails(BENZINA, BAGS_ERROR_CORRUPT,
        changed("stco", 12, "\0\0\x6e\x2f", 4),
        "track bzna_fname: sample 0 out of range (12 bytes at 28207");
    check_import_fails(
        BENZINA, BAGS_ERROR_CORRUPT, changed("stco", 8, "\0\0\0\0", 4), "bzna_fname");
    check_import_fails(
        BENZINA, BAGS_ERROR_CORRUPT, changed("stsc", 8, "\1\0\0\0", 4), "bzna_fname");
    check_import_fails(
        BENZINA, BAGS_ERROR_CORRUPT, changed("moov", 0, "free", 4), "no moov box");
    check_import_fails(BENZINA, BAGS_ERROR_CORRUPT,
        changed("moov", -4, "\x7f\xff\xff\xff", 4), "invalid box at ");
    save(at("empty.bzna"), "", 0);
    check_import_fails(BENZINA, BAGS_ERROR_CORRUPT, at("empty.bzna"), "no moov box");
    check_import_fails(BENZINA, BAGS_ERROR_MISSING, at("none.bzna"), "No such file");
    assert_false(bags_import_benzina.detect("tests/data/video/video.mp4"));
}

/* The index is changed byte by byte, and truncated; images have no checksums. */
static void damage_of_the_index_is_an_error_or_changes_bytes(void **state) {
    (void)state;
    bytes file = load(GOLDEN);
    const char *path = at("y.bzna");
    bags_code code;
    size_t refused = 0;
    memory.peak = memory.used;
    for (size_t i = file.size - 4341; i < file.size - 2400; i++) {
        file.data[i] ^= 0xFF;
        save(path, file.data, file.size);
        bytes text = import_all(BENZINA, path, &code);
        if (code)
            assert_true(strncmp(said.message, path, strlen(path)) == 0 ||
                        code == BAGS_ERROR_VALUE);
        refused += code != BAGS_OK;
        bytes_free(&text);
        file.data[i] ^= 0xFF;
        save(path, file.data, i);
        text = import_all(BENZINA, path, &code);
        assert_int_equal(code, BAGS_ERROR_CORRUPT);
        bytes_free(&text);
    }
    assert_true(refused > 300);
    assert_true(memory.peak < (uint64_t)1 << 20);
    bytes_free(&file);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(BENZINA, GOLDEN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(images_targets_and_names_are_as_the_manifest_states),
        TEST(what_cannot_be_true_is_an_error),
        TEST(damage_of_the_index_is_an_error_or_changes_bytes),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
