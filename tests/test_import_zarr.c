/* Sources that zarr-python and L5Kit wrote: tests/data/import/make_arrays.py. */
#include "import_check.h"

#ifdef BAGS_WITH_IMPORT_ZARR

#define ZARR &bags_import_zarr
#define L5KIT "tests/data/golden/l5kit-zarr/"

static void l5kits_frames_have_their_scene_agents_and_lights(void **state) {
    (void)state;
    check_import(ZARR, L5KIT "chunked-dataset/data.zarr",
        IMPORT_DATA "chunked-dataset.expected");
    check_import(ZARR, L5KIT "small-chunks/data.zarr",
        IMPORT_DATA "small-chunks.expected");
}

static void every_codec_and_shuffle_is_read_from_a_zip(void **state) {
    (void)state;
    check_import(ZARR, IMPORT_DATA "codecs.zip", IMPORT_DATA "codecs.expected");
}

static void every_dtype_is_read_and_missing_chunks_are_the_fill_value(
    void **state) {
    (void)state;
    check_import(ZARR, IMPORT_DATA "types.zarr", IMPORT_DATA "types.expected");
}

/* An array of this shape and dtype, with 4 elements per chunk. */
static void save_array(const char *path, const char *shape, const char *chunks,
    const char *dtype, const char *more) {
    static const char *const usual[][2] = {{"\"zarr_format\"", "2"},
        {"\"order\"", "\"C\""}, {"\"filters\"", "null"},
        {"\"fill_value\"", "0"}, {"\"compressor\"", "null"}};
    bytes text = {0};
    put_text(&text, "{");
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!strstr(more, usual[i][0]))
            put_format(&text, "%s:%s,", usual[i][0], usual[i][1]);
    put_format(&text, "\"shape\":%s,\"chunks\":%s,\"dtype\":%s%s}", shape,
        chunks, dtype, more);
    make_dir(path);
    char file[512];
    snprintf(file, sizeof file, "%s/.zarray", path);
    save(file, text.data, text.size);
    bytes_free(&text);
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    static const struct {
        const char *shape, *chunks, *dtype, *more, *message;
        bags_code code;
    } bad[] = {
        {"[4]", "[4]", "\"<i8\"", ",\"order\":\"F\"", "order*(F)",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"filters\":[{\"id\":\"delta\"}]",
            "filters*delta", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"compressor\":{\"id\":\"bz2\"}",
            "compressor*bz2", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"zarr_format\":3", "zarr_format*3",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"|O\"", "", "dtype*|O", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<f16\"", "", "dtype*<f16", BAGS_ERROR_TYPE},
        {"[4,2]", "[4,2]", "\"<U3\"", "", "strings", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "[[\"a\",[[\"b\",\"<i2\"]],[2]]]", "", "structures",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"fill_value\":\"x\"", "fill_value",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"dimension_separator\":\"..\"",
            "dimension_separator", BAGS_ERROR_TYPE},
        {"[4]", "[0]", "\"<i8\"", "", "shape", BAGS_ERROR_CORRUPT},
        {"[4]", "[4,4]", "\"<i8\"", "", "shape", BAGS_ERROR_CORRUPT},
        {"[-4]", "[4]", "\"<i8\"", "", "shape", BAGS_ERROR_CORRUPT},
        {"[4]", "[4]", "[[\"a\"]]", "", "member", BAGS_ERROR_CORRUPT},
        {"[4]", "[4]", "[]", "", "0 bytes", BAGS_ERROR_CORRUPT},
        {"[1000000000000]", "[1000000000]", "\"<i8\"", "", "too large",
            BAGS_ERROR_LIMIT},
        {"[4,1000000000]", "[4,10]", "\"<i8\"", "", "too large",
            BAGS_ERROR_LIMIT},
        {"[4,100000000]", "[4,1]", "\"|u1\"", "", "too large",
            BAGS_ERROR_LIMIT},
        {"[4]", "[4]", "\"|V2147483647\"", "", "not supported",
            BAGS_ERROR_TYPE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = at("bad%d", (int)i);
        save_array(
            path, bad[i].shape, bad[i].chunks, bad[i].dtype, bad[i].more);
        check_import_fails(ZARR, bad[i].code, path, bad[i].message);
        assert_int_equal(memory.live, 0);
    }
    make_dir(at("v3"));
    save_text(at("v3/zarr.json"), "{\"zarr_format\":3}");
    assert_true(bags_import_zarr.detect(at("v3")));
    check_import_fails(ZARR, BAGS_ERROR_TYPE, at("v3"), "Zarr version 3");
    check_import_fails(ZARR, BAGS_ERROR_MISSING, at("none"), "No such file");
    make_dir(at("group"));
    save_text(at("group/.zgroup"), "{\"zarr_format\":2}");
    check_import_fails(ZARR, BAGS_ERROR_MISSING, at("group"), "no Zarr array");
    save_array(at("group/a"), "[4]", "[4]", "\"<i8\"", "");
    save_array(at("group/b"), "[5]", "[4]", "\"<i8\"", "");
    check_import_fails(
        ZARR, BAGS_ERROR_TYPE, at("group"), "differ in length (a 4, b 5)");
}

static void a_chunk_of_another_size_is_an_error_that_names_it(void **state) {
    (void)state;
    save_array(at("raw"), "[6]", "[4]", "\"<i8\"", "");
    save(at("raw/1"), "0123456789", 10);
    check_import_fails(
        ZARR, BAGS_ERROR_CORRUPT, at("raw"), "/raw: 1: *(10 bytes for 32)");
    save_array(at("huge"), "[6]", "[200000000]", "\"<i8\"",
        ",\"compressor\":{\"id\":\"zstd\",\"level\":1}");
    save(at("huge/0"), "0123456789", 10);
    check_import_fails(ZARR, BAGS_ERROR_CORRUPT, at("huge"), "/huge: 0: ");
    assert_true(memory.peak < 1 << 20);
}

/* L5Kit's data refer to rows by numbers: those of others are an error. */
static void an_interval_out_of_range_is_an_error(void **state) {
    static const struct {
        uint64_t scene[4], agents[4];
        const char *message;
    } bad[] = {
        {{0, 1, 1, 2}, {0, 2, 2, 9}, "agent_index_interval*row 1*2 to 9"},
        {{0, 1, 1, 2}, {0, 2, 2, 1}, "agent_index_interval*row 1*2 to 1"},
        {{0, 1, 1, 3}, {0, 2, 2, 3}, "frame_index_interval*row 1*1 to 3"},
        {{0, 1, 0, 2}, {0, 2, 2, 3}, "row 1*overlaps"},
        {{0, 1, 1, 1}, {0, 2, 2, 3}, "row 1*not in a scene"},
        {{1, 2, 0, 1}, {0, 2, 2, 3}, "row 0*not in a scene"},
    };
    (void)state;
    make_dir(at("d"));
    save_array(at("d/scenes"), "[2]", "[2]",
        "[[\"frame_index_interval\",\"<i8\",[2]]]", "");
    save_array(at("d/frames"), "[2]", "[2]",
        "[[\"agent_index_interval\",\"<i8\",[2]]]", "");
    save_array(at("d/agents"), "[3]", "[3]", "[[\"yaw\",\"<f4\"]]", "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bytes scenes = {0}, agents = {0};
        for (size_t k = 0; k < 4; k++) {
            put_u64(&scenes, bad[i].scene[k]);
            put_u64(&agents, bad[i].agents[k]);
        }
        save(at("d/scenes/0"), scenes.data, scenes.size);
        save(at("d/frames/0"), agents.data, agents.size);
        check_import_fails(ZARR, BAGS_ERROR_CORRUPT, at("d"), bad[i].message);
        bytes_free(&scenes);
        bytes_free(&agents);
    }
    save_array(at("d/other"), "[3]", "[3]", "\"<f4\"", "");
    check_import_fails(ZARR, BAGS_ERROR_TYPE, at("d"), "other/");
    remove_tree(at("d/other"));
    make_dir(at("d/agents_mask"));
    save_array(at("d/agents_mask/0.5"), "[3]", "[3]", "\"<f4\"", "");
    uint64_t scene[4] = {0, 1, 1, 2}, good[4] = {0, 2, 2, 3};
    turn_elements(scene, sizeof scene, 8);
    turn_elements(good, sizeof good, 8);
    save(at("d/scenes/0"), scene, sizeof scene);
    save(at("d/frames/0"), good, sizeof good);
    bags_code code;
    bytes text = import_all(ZARR, at("d"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(
        contains((const char *)text.data, "array(float32)[]*agents.yaw"));
    bytes_free(&text);
}

static void a_datapoint_may_be_skipped(void **state) {
    const bags_entry *entries;
    (void)state;
    bags_source *source =
        bags_source_open(ZARR, L5KIT "small-chunks/data.zarr", NULL, &said);
    assert_non_null(source);
    assert_int_equal(source->length, 32);
    assert_ok(bags_source_read(source, 30, &entries, &said));
    for (size_t i = 0; i < source->count; i++)
        if (strcmp(source->fields[i].name, "scene_index") == 0)
            assert_int_equal(entries[i].values->sint, 3);
        else if (strcmp(source->fields[i].name, "agents.yaw") == 0)
            assert_int_equal(entries[i].count, 2);
    assert_ok(bags_source_read(source, 32, &entries, &said));
    assert_null(entries);
    bags_source_close(source);
    bags_source_close(NULL);
}

static void damage_is_an_error_or_without_effect(void **state) {
    (void)state;
    copy_tree(L5KIT "chunked-dataset/data.zarr", at("l5kit"));
    check_damage(
        ZARR, at("l5kit"), at("l5kit/scenes/0"), false, (uint64_t)16 << 20);
    check_damage(ZARR, at("l5kit"), at("l5kit/scenes/.zarray"), false,
        (uint64_t)1 << 30);
}

/* A .zip has checksums, but a chunk whose name changed is one that is missing. */
static void a_damaged_zip_is_an_error_or_without_effect(void **state) {
    (void)state;
    bytes zip = load(IMPORT_DATA "small.zip");
    save(at("small.zip"), zip.data, zip.size);
    bytes_free(&zip);
    check_damage(ZARR, at("small.zip"), at("small.zip"), false, 16 << 20);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(ZARR, L5KIT "chunked-dataset/data.zarr");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(l5kits_frames_have_their_scene_agents_and_lights),
        TEST(every_codec_and_shuffle_is_read_from_a_zip),
        TEST(every_dtype_is_read_and_missing_chunks_are_the_fill_value),
        TEST(what_is_not_supported_is_refused_by_name),
        TEST(a_chunk_of_another_size_is_an_error_that_names_it),
        TEST(an_interval_out_of_range_is_an_error),
        TEST(a_datapoint_may_be_skipped),
        TEST(damage_is_an_error_or_without_effect),
        TEST(a_damaged_zip_is_an_error_or_without_effect),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    printf("skipped: json-c, blosc, libzip, zstd or lz4 not found\n");
    return 0;
}

#endif
