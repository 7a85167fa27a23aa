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

/* The layout is decided by where the datasets are, and their lengths. */
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

static void check_layout_fails(
    const char *name, bags_source_layout layout, const char *message) {
    char path[256];
    snprintf(path, sizeof path, IMPORT_DATA "%s", name);
    import_layout = layout;
    check_import_fails(HDF5, BAGS_ERROR_TYPE, path, message);
    import_layout = BAGS_LAYOUT_DETECT;
}

static void groups_are_episodes_in_the_order_of_their_numbers(void **state) {
    static const char robot[] = "3\narray(float64,2)[] * actions\n"
                                "array(float32,3)[] * obs.joints\nutf8 * group\n";
    (void)state;
    check_import(HDF5, IMPORT_DATA "episodes.h5/data", IMPORT_DATA "episodes.expected");
    check_layout("robot.h5", BAGS_LAYOUT_DETECT, robot);
    check_layout("robot.h5", BAGS_LAYOUT_EPISODES, robot);
    check_layout("robot.h5/data", BAGS_LAYOUT_DETECT, robot);
    check_layout_fails("robot.h5", BAGS_LAYOUT_ROWS,
        "the datasets differ in length (data/demo_0/actions 2, data/demo_1/actions 3); "
        "import a group of it, such as FILE/data/demo_0");
}

static void rows_may_have_groups(void **state) {
    static const char steps[] = "5\narray(float32,2) * action\narray(bool) * is_first\n"
                                "array(uint8,4,4,3) * observation.image\n"
                                "array(float32,7) * observation.state\n";
    (void)state;
    check_layout("steps.h5", BAGS_LAYOUT_DETECT, steps);
    check_layout("steps.h5", BAGS_LAYOUT_ROWS, steps);
    check_layout_fails("steps.h5", BAGS_LAYOUT_EPISODES,
        "not episodes: no groups that have the same datasets, and all of them; import "
        "a group of it, such as FILE/observation");
    check_layout("cameras.h5", BAGS_LAYOUT_DETECT,
        "4\ni64 * cameras.cam_0.x\ni64 * cameras.cam_1.x\ni64 * time\n");
}

static void one_group_is_rows_unless_the_layout_is_stated(void **state) {
    (void)state;
    check_layout("single.h5", BAGS_LAYOUT_DETECT,
        "3\narray(float64,2) * data.demo_0.actions\n"
        "array(float32,3) * data.demo_0.obs.joints\n");
    check_layout("single.h5", BAGS_LAYOUT_EPISODES,
        "1\narray(float64,2)[] * actions\narray(float32,3)[] * obs.joints\n"
        "utf8 * group\n");
}

static void groups_of_equal_length_need_a_layout(void **state) {
    (void)state;
    check_layout_fails("equal.h5", BAGS_LAYOUT_DETECT,
        "equal.h5: ambiguous: a datapoint may be a row of all 2 datasets (3 of each), "
        "or one of 2 groups (0, ...); pass --layout rows or --layout episodes");
    check_layout("equal.h5", BAGS_LAYOUT_ROWS, "3\ni64 * 0.x\ni64 * 1.x\n");
    check_layout("equal.h5", BAGS_LAYOUT_EPISODES, "2\ni64[] * x\nutf8 * group\n");
    check_layout_fails("cameras.h5/cameras", BAGS_LAYOUT_DETECT,
        "ambiguous: *row of all 2 datasets (4 of each), or one of 2 groups (cam_0, ");
    check_layout("demos.h5/data", BAGS_LAYOUT_EPISODES, "2\ni64[] * x\nutf8 * group\n");
}

/* Nothing is left out to make a layout possible. */
static void neither_rows_nor_episodes_is_an_error(void **state) {
    (void)state;
    check_layout_fails("demos.h5", BAGS_LAYOUT_DETECT,
        "demos.h5: the datasets differ in length (data/demo_0/x 3, mask/train 2); "
        "import a group of it, such as FILE/data");
    check_layout_fails("demos.h5", BAGS_LAYOUT_EPISODES, "not episodes: ");
    check_layout_fails("rates.h5", BAGS_LAYOUT_DETECT,
        "differ in length (cameras/cam_0/x 4, cameras/cam_1/x 2); import a group of "
        "it, such as FILE/cameras");
    check_layout("rates.h5/cameras", BAGS_LAYOUT_DETECT, "2\ni64[] * x\n");
}

static void what_is_left_out_is_counted_and_named(void **state) {
    (void)state;
    check_layout("steps.h5", BAGS_LAYOUT_DETECT, "5\n");
    assert_string_equal(import_left_out, "attribute 1 action@unit;named type 1 kind;");
    check_layout("robot.h5", BAGS_LAYOUT_DETECT, "3\n");
    assert_string_equal(import_left_out,
        "attribute 3 data/demo_0@num_samples,data/demo_1@num_samples,"
        "data/demo_10@num_samples;");
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
    check_out_of_memory(HDF5, IMPORT_DATA "episodes.h5/data");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datasets_of_equal_length_are_rows),
        TEST(groups_are_episodes_in_the_order_of_their_numbers),
        TEST(rows_may_have_groups),
        TEST(one_group_is_rows_unless_the_layout_is_stated),
        TEST(groups_of_equal_length_need_a_layout),
        TEST(neither_rows_nor_episodes_is_an_error),
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
