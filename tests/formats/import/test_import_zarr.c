/* Sources that zarr-python and L5Kit wrote: tests/data/import/make_arrays.py; replay3.zarr:
 * make_robots.py. */
// flavours: test: release; check: asan
#include "import_check.h"

#define ZARR &bags_import_zarr
#define L5KIT "tests/data/golden/l5kit-zarr/"

static void l5kits_frames_have_their_scene_agents_and_lights(void **state) {
    (void)state;
    check_import(ZARR, L5KIT "chunked-dataset/data.zarr",
        IMPORT_DATA "chunked-dataset.expected");
    check_import(
        ZARR, L5KIT "small-chunks/data.zarr", IMPORT_DATA "small-chunks.expected");
}

static void every_codec_and_shuffle_is_read_from_a_zip(void **state) {
    (void)state;
    check_import(ZARR, IMPORT_DATA "codecs.zip", IMPORT_DATA "codecs.expected");
}

static void every_dtype_is_read_and_missing_chunks_are_the_fill_value(void **state) {
    (void)state;
    check_import(ZARR, IMPORT_DATA "types.zarr", IMPORT_DATA "types.expected");
}

/* An array of this shape and dtype, with 4 elements per chunk. */
static void save_array(const char *path, const char *shape, const char *chunks,
    const char *dtype, const char *more) {
    static const char *const usual[][2] = {{"\"zarr_format\"", "2"},
        {"\"order\"", "\"C\""}, {"\"filters\"", "null"}, {"\"fill_value\"", "0"},
        {"\"compressor\"", "null"}};
    bytes text = {0};
    put_text(&text, "{");
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (!strstr(more, usual[i][0]))
            put_format(&text, "%s:%s,", usual[i][0], usual[i][1]);
    put_format(&text, "\"shape\":%s,\"chunks\":%s,\"dtype\":%s%s}", shape, chunks,
        dtype, more);
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
        {"[4]", "[4]", "\"<i8\"", ",\"order\":\"F\"", "order*(F)", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"filters\":[{\"id\":\"delta\"}]", "filters*delta",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"compressor\":{\"id\":\"bz2\"}", "compressor*bz2",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<i8\"", ",\"zarr_format\":3", "zarr_format*3",
            BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"|O\"", "", "dtype*|O", BAGS_ERROR_TYPE},
        {"[4]", "[4]", "\"<f16\"", "", "dtype*<f16", BAGS_ERROR_TYPE},
        {"[4,2]", "[4,2]", "\"<U3\"", ",\"fill_value\":\"\"", "strings",
            BAGS_ERROR_TYPE},
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
        {"[4,1000000000]", "[4,10]", "\"<i8\"", "", "too large", BAGS_ERROR_LIMIT},
        {"[4,100000000]", "[4,1]", "\"|u1\"", "", "too large", BAGS_ERROR_LIMIT},
        {"[4]", "[4]", "\"|V2147483647\"", "", "not supported", BAGS_ERROR_TYPE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = at("bad%d", (int)i);
        save_array(path, bad[i].shape, bad[i].chunks, bad[i].dtype, bad[i].more);
        check_import_fails(ZARR, bad[i].code, path, bad[i].message);
        assert_int_equal(memory.live, 0);
    }
    make_dir(at("v3"));
    save_text(at("v3/zarr.json"), "{\"zarr_format\":3}");
    assert_true(bags_import_zarr.detect(at("v3")));
    check_import_fails(ZARR, BAGS_ERROR_TYPE, at("v3"), "node_type*(none)");
    check_import_fails(ZARR, BAGS_ERROR_MISSING, at("none"), "No such file");
    make_dir(at("group"));
    save_text(at("group/.zgroup"), "{\"zarr_format\":2}");
    check_import_fails(ZARR, BAGS_ERROR_MISSING, at("group"), "no Zarr array");
    save_array(at("group/a"), "[4]", "[4]", "\"<i8\"", "");
    save_array(at("group/b"), "[5]", "[4]", "\"<i8\"", "");
    check_import_fails(
        ZARR, BAGS_ERROR_TYPE, at("group"), "differ in length (a 4, b 5)");
}

/* What of a fill value becomes an element; bytes NULL: its dtype cannot hold it. */
static void a_fill_value_is_held_exactly_or_an_error(void **state) {
    static const struct {
        const char *dtype, *fill, *bytes;
        size_t size;
    } cases[] = {
        {"|i1", "-128", "\x80", 1},
        {"|i1", "300", NULL, 0},
        {"|i1", "128", NULL, 0},
        {"|i1", "-129", NULL, 0},
        {"|u1", "255", "\xff", 1},
        {"|u1", "-1", NULL, 0},
        {"|u1", "256", NULL, 0},
        {"<i4", "1.9", NULL, 0},
        {"<i4", "2.0", "\2\0\0\0", 4},
        {"<i4", "\"1\"", NULL, 0},
        {"<i4", "true", NULL, 0},
        {"<i4", "1e300", NULL, 0},
        {"<i4", "[1]", NULL, 0},
        {">i4", "-2", "\xff\xff\xff\xfe", 4},
        {"<i4", "NaN", NULL, 0},
        {"<i4", "\"NaN\"", NULL, 0},
        {"<i8", "-9223372036854775808", "\0\0\0\0\0\0\0\x80", 8},
        {"<i8", "9223372036854775808", NULL, 0},
        {"<u8", "18446744073709551615", "\xff\xff\xff\xff\xff\xff\xff\xff", 8},
        {"<u8", "-1", NULL, 0},
        {"<f4", "1e300", NULL, 0},
        {"<f4", "1e-300", NULL, 0},
        {"<f4", "0.1", "\xcd\xcc\xcc\x3d", 4},
        {"<f4", "0.10000000149011612", "\xcd\xcc\xcc\x3d", 4},
        {"<f4", "0.123456789", NULL, 0},
        {"<f4", "16777217", NULL, 0},
        {"<f4", "16777216", "\0\0\x80\x4b", 4},
        {"<f4", "16777217.0", NULL, 0},
        {">f4", "-0.5", "\xbf\0\0\0", 4},
        {"<f4", "-0.0", "\0\0\0\x80", 4},
        {"<f4", "\"NaN\"", "\0\0\xc0\x7f", 4},
        {"<f4", "\"-Infinity\"", "\0\0\x80\xff", 4},
        {"<f4", "\"1\"", NULL, 0},
        {"<f4", "\"0x7fc00000\"", NULL, 0},
        {"<f4", "\"nan\"", NULL, 0},
        {"<f4", "false", NULL, 0},
        {"<f8", "1e400", NULL, 0},
        {"<f8", "1e-400", NULL, 0},
        {"<f8", "5e-324", "\1\0\0\0\0\0\0\0", 8},
        {"<f8", "9007199254740993", NULL, 0},
        {"<f8", "0.1", "\x9a\x99\x99\x99\x99\x99\xb9\x3f", 8},
        {"<f8", "0.1234567890123456789", NULL, 0},
        {"<f8", "\"Infinity\"", "\0\0\0\0\0\0\xf0\x7f", 8},
        {"<f2", "1", "\0\x3c", 2},
        {"<f2", "65504", "\xff\x7b", 2},
        {"<f2", "65505", NULL, 0},
        {"<f2", "65536", NULL, 0},
        {"<f2", "0.1", "\x66\x2e", 2},
        {"<f2", "0.33333", NULL, 0},
        {"<f2", "6e-8", "\1\0", 2},
        {"<f2", "1e-9", NULL, 0},
        {"<f2", "-2.5", "\0\xc1", 2},
        {">f2", "\"NaN\"", "\x7e\0", 2},
        {"<f2", "\"-Infinity\"", "\0\xfc", 2},
        {"<f2", "2049", NULL, 0},
        {"|b1", "true", "\1", 1},
        {"|b1", "1", "\1", 1},
        {"|b1", "2", NULL, 0},
        {"|b1", "\"true\"", NULL, 0},
        {"|b1", "0.5", NULL, 0},
        {"<c8", "[1, \"NaN\"]", "\0\0\x80\x3f\0\0\xc0\x7f", 8},
        {"<c8", "1", "\0\0\x80\x3f\0\0\0\0", 8},
        {"<c8", "[1]", NULL, 0},
        {"<c8", "[1, 1e300]", NULL, 0},
        {"<c8", "\"1\"", NULL, 0},
        {"<M8[ns]", "-9223372036854775808", "\0\0\0\0\0\0\0\x80", 8},
        {"<m8[s]", "1.5", NULL, 0},
        {"<M8[s]", "\"2024-01-01\"", NULL, 0},
        {"|S3", "\"eno=\"", "zz", 2},
        {"|S3", "\"\"", "", 0},
        {"|S3", "\"enp6eg==\"", NULL, 0},
        {"|S1", "\"eno=\"", NULL, 0},
        {"|S3", "\"0\"", NULL, 0},
        {"|S3", "0", NULL, 0},
        {"|S3", "\"en!6\"", NULL, 0},
        {"|S3", "\"eno\"", NULL, 0},
        {"|S3", "\"enp=\"", NULL, 0},
        {"|V2", "\"eno=\"", "zz", 2},
        {"|V3", "\"eno=\"", NULL, 0},
        {"|V2", "0", "\0\0", 2},
        {"|V2", "1", NULL, 0},
        {"<U2", "\"0\"", "0", 1},
        {">U2", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\xc3\xa9\xf0\x9f\x98\x80", 6},
        {"<U2", "\"abc\"", NULL, 0},
        {"<U2", "0", NULL, 0},
        {"<U2", "\"a\\u0000\"", NULL, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = at("fill%d", (int)i), *fill = cases[i].fill;
        char dtype[32], more[128];
        snprintf(dtype, sizeof dtype, "\"%s\"", cases[i].dtype);
        snprintf(more, sizeof more, ",\"fill_value\":%s", fill);
        save_array(path, "[1]", "[1]", dtype, more);
        bags_source *source = bags_source_open(ZARR, path, NULL, &said);
        if ((source != NULL) != (cases[i].bytes != NULL))
            fail_msg("%s of %s", fill, cases[i].dtype);
        if (!source) {
            assert_says(strcmp(fill, "1e400") ? "fill_value: not a value of its dtype"
                                              : "a number above 1.8e308");
            continue;
        }
        const bags_entry *entries;
        bags_buffer scratch = {0};
        bags_view blob = {NULL, 0};
        assert_ok(bags_source_read(source, 0, &entries, &said));
        const bags_value *value = entries->values;
        bool number = value->kind == BAGS_KIND_INT || value->kind == BAGS_KIND_UINT;
        assert_ok(
            bags_encode(NULL, source->fields->type, value, &scratch, &blob, &said));
        bool big = dtype[1] == '>' && dtype[2] != 'U';
        for (size_t k = 0; k < cases[i].size; k++)
            if (blob.data[big ? cases[i].size - 1 - k : k] !=
                (unsigned char)cases[i].bytes[k])
                fail_msg("%s of %s: byte %d", fill, cases[i].dtype, (int)k);
        assert_int_equal(blob.size, number ? 8 : cases[i].size);
        bags_buffer_free(&scratch);
        bags_source_close(source);
    }
}

static void a_missing_chunk_without_a_fill_value_is_an_error(void **state) {
    (void)state;
    save_array(at("none"), "[2]", "[1]", "\"|u1\"", ",\"fill_value\":null");
    save(at("none/0"), "x", 1);
    check_import_fails(ZARR, BAGS_ERROR_GAP, at("none"),
        "none: 1: is missing, and the array has no fill_value");
}

/* Otherwise all values would be the fill value. */
static void an_array_without_chunks_under_the_stated_names_is_an_error(void **state) {
    static const struct {
        const char *shape, *more, *file, *message;
    } bad[] = {
        {"[4,4]", "", "0/1",
            "(found x/0/1, expected x/0.0); set \"dimension_separator\": \"/\" in "
            "x/.zarray"},
        {"[4,4]", ",\"dimension_separator\":\".\"", "1/1",
            "(found x/1/1, expected x/0.0)"},
        {"[4,4]", ",\"dimension_separator\":\"/\"", "0.1",
            "(found x/0.1, expected x/0/0); set \"dimension_separator\": \".\""},
        {"[4,4]", "", "2.0", "(found x/2.0, expected x/0.0)"},
        {"[4,4]", "", "00.1", "(found x/00.1, expected x/0.0)"},
        {"[4,4]", "", "c/0/1", "(found x/c/0/1, expected x/0.0)"},
        {"[4,4]", ",\"dimension_separator\":\"/\"", "0/2",
            "(found x/0/2, expected x/0/0)"},
        {"[4]", "", "README", "(found x/README, expected x/0)"},
        {"[]", "", "0.0", "(found x/0.0, expected x/0)"},
    };
    bags_code code;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char group[512], file[1024];
        snprintf(group, sizeof group, "%s", at("g%d", (int)i));
        make_dir(group);
        snprintf(file, sizeof file, "%s/x", group);
        save_array(file, bad[i].shape,
            strlen(bad[i].shape) == 5   ? "[2,2]"
            : strlen(bad[i].shape) == 3 ? "[2]"
                                        : "[]",
            "\"|u1\"", bad[i].more);
        for (const char *c = bad[i].file; *c; c++)
            if (*c == '/') {
                snprintf(file, sizeof file, "%s/x/%.*s", group, (int)(c - bad[i].file),
                    bad[i].file);
                make_dir(file);
            }
        snprintf(file, sizeof file, "%s/x/%s", group, bad[i].file);
        save(file, "abcd", 4);
        check_import_fails(ZARR, BAGS_ERROR_MISSING, group, bad[i].message);
    }
    /* Next to a chunk under its name other files are counted. */
    save(at("g0/x/1.1"), "abcd", 4);
    bytes text = import_all(ZARR, at("g0"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal(import_left_out, "other file 1 x/0/1;");
    bytes_free(&text);
    /* No files: all are the fill value. No elements: no chunk is expected. */
    remove_tree(at("g0/x/0"));
    remove_tree(at("g0/x/1.1"));
    text = import_all(ZARR, at("g0"), &code);
    assert_int_equal(code, BAGS_OK);
    bytes_free(&text);
    save_array(at("empty"), "[0]", "[2]", "\"|u1\"", "");
    save(at("empty/0"), "ab", 2);
    text = import_all(ZARR, at("empty"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal(import_left_out, "other file 1 0;");
    bytes_free(&text);
    check_out_of_memory(ZARR, at("empty"));
}

static void what_is_left_out_is_counted_and_named(void **state) {
    bags_code code;
    (void)state;
    make_dir(at("g"));
    save_text(at("g/.zgroup"), "{\"zarr_format\":2}");
    save_text(at("g/.zattrs"), "{\"a\":1,\"b\":[2]}");
    save_array(at("g/x"), "[1]", "[1]", "\"|u1\"", "");
    save_text(at("g/x/.zattrs"), "{\"units\":\"m\"}");
    save_text(at("g/README"), "");
    bytes text = import_all(ZARR, at("g"), &code);
    bytes_free(&text);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal(
        import_left_out, "other file 1 README;attribute 3 @a,@b,x/@units;");
    save_text(at("g/.zattrs"), "{");
    check_import_fails(ZARR, BAGS_ERROR_CORRUPT, at("g"), "g: .zattrs: invalid JSON");
}

static void a_scalar_is_repeated_in_every_datapoint(void **state) {
    const bags_entry *entries;
    (void)state;
    make_dir(at("scalar"));
    save_text(at("scalar/.zgroup"), "{\"zarr_format\":2}");
    save_array(at("scalar/a"), "[]", "[]", "\"|u1\"", "");
    save(at("scalar/a/0"), "\x04", 1);
    save_array(at("scalar/b"), "[3]", "[2]", "\"|u1\"", "");
    save(at("scalar/b/0"), "\x01\x02", 2);
    save(at("scalar/b/1"), "\x03\x00", 2);
    bags_source *source = bags_source_open(ZARR, at("scalar"), NULL, &said);
    assert_non_null(source);
    assert_int_equal(source->length, 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(bags_source_read(source, i, &entries, &said));
        assert_non_null(entries);
        assert_int_equal(entries[0].count, 1);
        assert_int_equal(entries[0].values->uint, 4);
        assert_int_equal(entries[1].values->uint, i + 1);
    }
    assert_ok(bags_source_read(source, 3, &entries, &said));
    assert_null(entries);
    bags_source_close(source);
    save_array(at("scalar/c"), "[1]", "[1]", "\"|u1\"", "");
    check_import_fails(
        ZARR, BAGS_ERROR_TYPE, at("scalar"), "differ in length (b 3, c 1)");
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
    save_array(
        at("d/scenes"), "[2]", "[2]", "[[\"frame_index_interval\",\"<i8\",[2]]]", "");
    save_array(
        at("d/frames"), "[2]", "[2]", "[[\"agent_index_interval\",\"<i8\",[2]]]", "");
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
    assert_true(contains((const char *)text.data, "array(float32)[]*agents.yaw"));
    assert_string_equal(import_left_out, "array 1 agents_mask.0.5;");
    bytes_free(&text);
    uint64_t late[4] = {0, 2, 2, 2}, few[4] = {1, 1, 1, 2};
    turn_elements(late, sizeof late, 8);
    turn_elements(few, sizeof few, 8);
    save(at("d/scenes/0"), late, sizeof late);
    save(at("d/frames/0"), few, sizeof few);
    text = import_all(ZARR, at("d"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_string_equal(import_left_out, "array 1 agents_mask.0.5;empty scene "
                                         "1 1;unused agent 2 0 to 0,2 to 2;");
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
    check_damage(ZARR, at("l5kit"), at("l5kit/scenes/0"), false, (uint64_t)16 << 20);
    check_damage(
        ZARR, at("l5kit"), at("l5kit/scenes/.zarray"), false, (uint64_t)1 << 30);
}

/* A .zip has checksums, but a chunk whose name changed is one that is missing. */
static void a_damaged_zip_is_an_error_or_without_effect(void **state) {
    (void)state;
    bytes zip = load(IMPORT_DATA "small.zip");
    save(at("small.zip"), zip.data, zip.size);
    bytes_free(&zip);
    check_damage(ZARR, at("small.zip"), at("small.zip"), false, 16 << 20);
}

static void members_of_a_zip_that_cannot_be_read_are_refused(void **state) {
    static const struct {
        const char *name, *message;
        bags_code code;
    } bad[] = {
        {"claims", "x/0: claims too much (2130706432 bytes, compressed ",
            BAGS_ERROR_CORRUPT},
        {"encrypted", "x/0: encrypted", BAGS_ERROR_VALUE},
        {"method", "x/0: unsupported compression (method 12)", BAGS_ERROR_VALUE},
        {"damaged", "x/0: damaged", BAGS_ERROR_CORRUPT},
        {"large", "x/0: too large (1000 bytes, maximum 500)", BAGS_ERROR_LIMIT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        snprintf(path, sizeof path, IMPORT_DATA "bad-member-%s.zip", bad[i].name);
        check_import_fails(ZARR, bad[i].code, path, bad[i].message);
    }
}

static bool is_float(const void *data, size_t i, float expected) {
    uint32_t bits;
    memcpy(&bits, &expected, sizeof bits);
    return bags_load_bytes((const char *)data + 4 * i, 4, false) == bits;
}

/* Shards, transposed chunks, a missing chunk; tests/command/zarr3.py has every codec. */
static void a_replay_buffer_of_zarr_3_is_its_episodes(void **state) {
    static const uint64_t starts[] = {0, 3, 4, 7};
    static const int64_t rewards[] = {3, 1, 4, 5, 5, 5, 2};
    const bags_entry *entries;
    (void)state;
    bags_source *source =
        bags_source_open(ZARR, IMPORT_DATA "replay3.zarr", NULL, &said);
    assert_non_null(source);
    assert_int_equal(source->length, 3);
    assert_int_equal(source->count, 2);
    assert_string_equal(source->fields[0].name, "action");
    assert_string_equal(source->fields[0].type, "array(float32,3)[]");
    assert_string_equal(source->fields[1].name, "reward");
    assert_string_equal(source->fields[1].type, "i64[]");
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(bags_source_read(source, i, &entries, &said));
        assert_int_equal(entries[0].count, starts[i + 1] - starts[i]);
        assert_int_equal(entries[1].count, starts[i + 1] - starts[i]);
        for (uint64_t row = starts[i]; row < starts[i + 1]; row++) {
            const bags_value *action = &entries[0].values[row - starts[i]];
            const float expected[] = {(float)row / 2, (float)(row + 1), -1};
            for (size_t k = 0; k < 3; k++)
                assert_true(is_float(action->data, k, expected[k]));
            assert_int_equal(entries[1].values[row - starts[i]].sint, rewards[row]);
        }
    }
    bags_source_close(source);
}

static void damage_of_zarr_3_is_an_error_or_without_effect(void **state) {
    (void)state;
    copy_tree(IMPORT_DATA "replay3.zarr", at("replay"));
    check_damage(ZARR, at("replay"), at("replay/data/action/c/1/0"), true, 16 << 20);
    check_damage(ZARR, at("replay"), at("replay/data/reward/c/2"), true, 16 << 20);
    check_damage(
        ZARR, at("replay"), at("replay/meta/episode_ends/c/0"), false, 16 << 20);
    check_damage(ZARR, at("replay"), at("replay/data/action/zarr.json"), false,
        (uint64_t)1 << 30);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(ZARR, L5KIT "chunked-dataset/data.zarr");
    check_out_of_memory(ZARR, IMPORT_DATA "replay3.zarr");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(l5kits_frames_have_their_scene_agents_and_lights),
        TEST(every_codec_and_shuffle_is_read_from_a_zip),
        TEST(every_dtype_is_read_and_missing_chunks_are_the_fill_value),
        TEST(what_is_not_supported_is_refused_by_name),
        TEST(a_fill_value_is_held_exactly_or_an_error),
        TEST(a_missing_chunk_without_a_fill_value_is_an_error),
        TEST(an_array_without_chunks_under_the_stated_names_is_an_error),
        TEST(what_is_left_out_is_counted_and_named),
        TEST(a_scalar_is_repeated_in_every_datapoint),
        TEST(a_chunk_of_another_size_is_an_error_that_names_it),
        TEST(an_interval_out_of_range_is_an_error),
        TEST(a_datapoint_may_be_skipped),
        TEST(damage_is_an_error_or_without_effect),
        TEST(a_damaged_zip_is_an_error_or_without_effect),
        TEST(members_of_a_zip_that_cannot_be_read_are_refused),
        TEST(a_replay_buffer_of_zarr_3_is_its_episodes),
        TEST(damage_of_zarr_3_is_an_error_or_without_effect),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
