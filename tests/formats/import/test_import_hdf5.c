/* Files that h5py wrote: tests/data/import/make_arrays.py. */
// flavours: test: release; check: asan
#include "import_check.h"

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
    check_import(HDF5, IMPORT_DATA "episodes.h5", IMPORT_DATA "episodes.expected");
    check_import(HDF5, IMPORT_DATA "episodes.h5/data", IMPORT_DATA "episodes.expected");
}

static void check_layout(
    const char *name, bags_source_layout layout, const char *pattern) {
    bags_code code;
    char path[256];
    snprintf(path, sizeof path, IMPORT_DATA "%s", name);
    import_layout = layout;
    bytes text = import_all(HDF5, path, &code);
    import_layout = BAGS_LAYOUT_DETECT;
    CHECK(is_code(BAGS_OK, (int)code, path));
    CHECK(contains((const char *)text.data, pattern));
    bytes_free(&text);
}

static void a_file_that_is_rows_or_episodes_is_an_error_unless_a_layout_is_stated(
    void **state) {
    (void)state;
    check_import_fails(HDF5, BAGS_ERROR_TYPE, IMPORT_DATA "cameras.h5",
        "cameras.h5: ambiguous: *row of all 3 datasets (4 of each), or a group "
        "in "
        "\"/cameras\" (cam_0, ...; 2 in all) without 1 datasets elsewhere "
        "(time); pass --layout rows or --layout episodes");
    check_layout("cameras.h5", BAGS_LAYOUT_ROWS,
        "4\ni64 * cameras.cam_0.x\ni64 * cameras.cam_1.x\ni64 * time\n");
    assert_string_equal(import_left_out, "");
    check_layout("cameras.h5", BAGS_LAYOUT_EPISODES, "2\ni64[] * x\nutf8 * group\n");
    assert_string_equal(import_left_out, "dataset 1 time;");
    /* Neither reading has all. */
    check_import_fails(HDF5, BAGS_ERROR_TYPE, IMPORT_DATA "rates.h5",
        "ambiguous: *which differ in length: cameras/cam_0/x 4, "
        "cameras/cam_1/x 2*"
        "without 1 datasets elsewhere (time)");
    check_layout("rates.h5/cameras", BAGS_LAYOUT_DETECT, "2\ni64[] * x\n");
    check_import_fails(HDF5, BAGS_ERROR_TYPE, IMPORT_DATA "equal.h5",
        "ambiguous: *row of all 2 datasets (3 of each), or a group in \"/\" "
        "(0, ");
    check_import_fails(HDF5, BAGS_ERROR_TYPE, IMPORT_DATA "twins.h5",
        "ambiguous: *row of all 3 datasets (3 of each), or a group in "
        "\"/data\"");
    check_layout("equal.h5", BAGS_LAYOUT_EPISODES, "2\ni64[] * x\n");
    import_layout = BAGS_LAYOUT_EPISODES;
    check_import_fails(HDF5, BAGS_ERROR_TYPE, IMPORT_DATA "rows.h5",
        "no group of groups with the same datasets");
    import_layout = BAGS_LAYOUT_DETECT;
}

static void what_is_left_out_is_counted_and_named(void **state) {
    (void)state;
    /* Names such as demo_0 decide. */
    check_layout("demos.h5", BAGS_LAYOUT_DETECT, "2\ni64[] * x\nutf8 * group\n");
    assert_string_equal(import_left_out,
        "attribute 3 data/demo_0@num_samples,data/demo_1@num_samples,mask@a;"
        "named type 1 kind;dataset 1 mask/train;");
}

static void types_are_what_they_are_and_not_what_they_look_like(void **state) {
    (void)state;
    check_import(HDF5, IMPORT_DATA "members.h5", IMPORT_DATA "members.expected");
    assert_string_equal(
        import_left_out, "enum name 4 color: BLUE,color: RED,not: FALSE,not: TRUE;");
}

static void a_group_of_a_file_can_be_imported(void **state) {
    bags_code code;
    (void)state;
    bytes text = import_all(HDF5, IMPORT_DATA "bad-lengths.h5/train", &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "3\ni64 * x\n"));
    bytes_free(&text);
    check_import_fails(
        HDF5, BAGS_ERROR_MISSING, IMPORT_DATA "bad-lengths.h5/none", "no group /none");
    check_import_fails(HDF5, BAGS_ERROR_MISSING, IMPORT_DATA "none/x", "No such file");
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
        {"filter", "x: cannot read: required filter 'lzf' is not registered",
            BAGS_ERROR_CORRUPT},
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
        TEST(a_file_that_is_rows_or_episodes_is_an_error_unless_a_layout_is_stated),
        TEST(what_is_left_out_is_counted_and_named),
        TEST(types_are_what_they_are_and_not_what_they_look_like),
        TEST(a_group_of_a_file_can_be_imported),
        TEST(what_is_not_supported_is_refused_by_name),
        TEST(a_truncated_file_is_refused_with_the_reason),
        TEST(damage_is_an_error_or_without_effect),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
