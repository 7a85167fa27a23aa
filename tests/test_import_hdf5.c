/* Files that h5py wrote: tests/data/import/make_arrays.py. */
#include "import_check.h"

#ifdef BAGS_WITH_IMPORT_HDF5

#define HDF5 &bags_import_hdf5

/* libhdf5 1.10 does not free all of its memory after it met a damaged file. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libhdf5"; }

static void datasets_of_equal_length_are_rows(void **state) {
    (void)state;
    check_import(HDF5, IMPORT_DATA "rows.h5", IMPORT_DATA "rows.expected");
}

static void groups_are_episodes_in_the_order_of_their_numbers(void **state) {
    (void)state;
    check_import(
        HDF5, IMPORT_DATA "episodes.h5", IMPORT_DATA "episodes.expected");
    check_import(
        HDF5, IMPORT_DATA "episodes.h5/data", IMPORT_DATA "episodes.expected");
}

static void a_group_of_a_file_can_be_imported(void **state) {
    bags_code code;
    (void)state;
    bytes text = import_all(HDF5, IMPORT_DATA "bad-lengths.h5/train", &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "3\ni64 * x\n"));
    bytes_free(&text);
    check_import_fails(HDF5, BAGS_ERROR_MISSING,
        IMPORT_DATA "bad-lengths.h5/none", "no group /none");
    check_import_fails(
        HDF5, BAGS_ERROR_MISSING, IMPORT_DATA "none/x", "No such file");
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    static const struct {
        const char *name, *message;
        bags_code code;
    } bad[] = {
        {"reference", "dataset r: references", BAGS_ERROR_TYPE},
        {"link", "x: links", BAGS_ERROR_TYPE},
        {"external", "dataset x: its data are in other files", BAGS_ERROR_TYPE},
        {"large", "dataset x: too large", BAGS_ERROR_LIMIT},
        {"lengths", "differ in length (test/x 2, train/x 3)", BAGS_ERROR_TYPE},
        {"episode", "group ep2: dataset x differs", BAGS_ERROR_TYPE},
        {"empty", "dataset x: it has no shape", BAGS_ERROR_TYPE},
        /* Damaged: libhdf5 1.10 crashes when it reads them. */
        {"member", "dataset x: a member is not within its compound",
            BAGS_ERROR_CORRUPT},
        {"layout", "dataset x: fewer bytes than its shape requires",
            BAGS_ERROR_CORRUPT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        snprintf(path, sizeof path, IMPORT_DATA "bad-%s.h5", bad[i].name);
        check_import_fails(HDF5, bad[i].code, path, bad[i].message);
    }
    save(at("x.h5"), "\x89HDF\r\n\x1A\nxxxxxxxx", 16);
    check_import_fails(HDF5, BAGS_ERROR_CORRUPT, at("x.h5"), "cannot read");
}

static void a_truncated_file_is_refused_with_the_reason(void **state) {
    (void)state;
    bytes file = load(IMPORT_DATA "rows.h5");
    save(at("t.h5"), file.data, file.size - 1);
    bytes_free(&file);
    check_import_fails(HDF5, BAGS_ERROR_CORRUPT, at("t.h5"),
        "cannot read: truncated file: eof = 17479");
}

static void damage_is_an_error_or_without_effect(void **state) {
    (void)state;
    bytes file = load(IMPORT_DATA "small.h5");
    save(at("y.h5"), file.data, file.size);
    bytes_free(&file);
    check_damage(HDF5, at("y.h5"), at("y.h5"), false, (uint64_t)256 << 20);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(HDF5, IMPORT_DATA "rows.h5");
    check_out_of_memory(HDF5, IMPORT_DATA "episodes.h5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datasets_of_equal_length_are_rows),
        TEST(groups_are_episodes_in_the_order_of_their_numbers),
        TEST(a_group_of_a_file_can_be_imported),
        TEST(what_is_not_supported_is_refused_by_name),
        TEST(a_truncated_file_is_refused_with_the_reason),
        TEST(damage_is_an_error_or_without_effect),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("skipped: libhdf5 not found\n");
    return 0;
}

#endif
