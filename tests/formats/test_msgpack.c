/* The types msgpack and tree: what Python's msgpack wrote, decoded, printed and
 * encoded again; bad blobs; arrays in trees. The data:
 * tests/data/arrays/make.py. */
// flavours: test: asan; check: release
#include "check.h"

#include "../../formats/formats.h"

#include <msgpack.h>

#include <locale.h>
#include <math.h>

#define DATA "tests/data/arrays/"
#define GOLDEN "tests/data/golden/"

static bags_view view(const void *data, size_t size) {
    bags_view out = {(const unsigned char *)data, size};
    return out;
}

static bags_code read_object(
    bags_view blob, bags_buffer *scratch, const msgpack_object **out, bags_error *err) {
    bags_value value;
    bags_code code = bags_codec_msgpack.decode(NULL, blob, scratch, &value, err);
    if (!code)
        *out = (const msgpack_object *)value.object;
    return code;
}

static bags_code write_object(const msgpack_object *object, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    bags_value value = bags_int(0);
    value.kind = BAGS_KIND_OBJECT;
    value.object = object;
    return bags_codec_msgpack.encode(NULL, &value, scratch, out, err);
}

static bags_code to_json(bags_view blob, bags_buffer *scratch, bags_view *json) {
    const msgpack_object *object;
    bags_buffer objects = {0};
    objects.resize = scratch->resize;
    objects.user = scratch->user;
    bags_code code = read_object(blob, &objects, &object, &said);
    if (!code)
        code = bags_msgpack_print(object, scratch, json, &said);
    bags_buffer_free(&objects);
    return code;
}

/* A blob printed as JSON is this text. */
static void assert_prints(const void *data, size_t size, const char *json) {
    bags_buffer scratch = {0};
    bags_view printed;
    assert_ok(to_json(view(data, size), &scratch, &printed));
    assert_text(printed, json);
    bags_buffer_free(&scratch);
}

static void assert_bad(bags_code code, const void *data, size_t size) {
    bags_buffer scratch = {0};
    bags_value value = bags_int(1);
    /* A copy of just this size, so that reading beyond it is noticed. */
    void *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    assert_fails(code,
        bags_codec_msgpack.decode(NULL, view(copy, size), &scratch, &value, &said));
    assert_int_equal(value.kind, BAGS_KIND_INT);
    assert_true(scratch.capacity < 100000);
    free(copy);
    bags_buffer_free(&scratch);
}

/* ------------------------------------------------ what Python wrote */

static void check_document(const char *name) {
    char path[256];
    snprintf(path, sizeof path, DATA "msgpack/%s.msgpack", name);
    bytes blob = load(path);
    snprintf(path, sizeof path, DATA "msgpack/%s.json", name);
    bytes json = load(path);
    bags_buffer decoded = {0}, encoded = {0}, text = {0};
    bags_view again, printed;
    bags_value value;
    assert_ok(bags_codec_msgpack.decode(
        NULL, view(blob.data, blob.size), &decoded, &value, &said));
    assert_int_equal(value.kind, BAGS_KIND_OBJECT);
    assert_ok(bags_codec_msgpack.encode(NULL, &value, &encoded, &again, &said));
    assert_bytes(again, blob.data, blob.size);
    assert_ok(bags_msgpack_print(
        (const msgpack_object *)value.object, &text, &printed, &said));
    if (printed.size != json.size || memcmp(printed.data, json.data, json.size) != 0)
        fail_msg("%s is printed as %.*s", name, (int)printed.size,
            (const char *)printed.data);
    bytes_free(&blob);
    bytes_free(&json);
    bags_buffer_free(&decoded);
    bags_buffer_free(&encoded);
    bags_buffer_free(&text);
}

static void what_python_wrote_is_printed_and_encoded_again_to_the_byte(void **state) {
    static const char *const names[] = {"nothing", "document", "numbers", "floats",
        "not-finite", "texts", "bytes", "extensions", "keys", "lengths", "deep"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_document(names[i]);
}

/* Every msgpack or tree of a golden Bag, a line each. */
static void check_golden(const char *set, const char *field) {
    char path[256];
    snprintf(path, sizeof path, GOLDEN "%s/data/%s.bag", set, field);
    bag_reader *bag = bag_reader_open(path, NULL, &said);
    assert_non_null(bag);
    snprintf(path, sizeof path, DATA "golden/%s.%s.json", set, field);
    *strchr(path + strlen(DATA "golden/"), '/') = '.';
    bytes expected = load(path);
    size_t done = 0;
    bags_buffer scratch = {0}, text = {0}, decoded = {0}, encoded = {0};
    for (uint64_t i = 0; i < bag_reader_length(bag); i++) {
        bags_view blob, printed, again;
        bags_value value;
        assert_ok(bag_reader_get(bag, i, &scratch, &blob, &said));
        assert_ok(to_json(blob, &text, &printed));
        assert_true(printed.size < expected.size - done);
        assert_memory_equal(printed.data, expected.data + done, printed.size);
        assert_int_equal(expected.data[done + printed.size], '\n');
        done += printed.size + 1;
        assert_ok(bags_codec_tree.decode(NULL, blob, &decoded, &value, &said));
        assert_ok(bags_codec_tree.encode(NULL, &value, &encoded, &again, &said));
        assert_bytes(again, blob.data, blob.size);
    }
    assert_int_equal(done, expected.size);
    bag_reader_close(bag);
    bytes_free(&expected);
    bags_buffer_free(&scratch);
    bags_buffer_free(&text);
    bags_buffer_free(&decoded);
    bags_buffer_free(&encoded);
}

static void every_golden_value_decodes_to_what_python_gives(void **state) {
    static const char *const rows[][2] = {{"bags-0.5.1/ds-lists", "packs"},
        {"bags-0.5.1/ds-types", "pack"}, {"bags-0.5.1/ds-readme", "baz"},
        {"granular-0.16.1/ds-lists", "packs"}, {"granular-0.16.1/ds-types", "pack"},
        {"granular-0.16.1/ds-types", "tree"}, {"granular-0.21.0/ds-lists", "packs"},
        {"granular-0.21.0/ds-types", "pack"}, {"granular-0.21.0/ds-types", "tree"},
        {"granular-0.22.0a1/ds-types", "pack"}, {"granular-0.22.0a1/ds-types", "tree"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_golden(rows[i][0], rows[i][1]);
}

/* ------------------------------------------------ forms */

/* Lengths around every border, with the forms that other writers choose. */
static void lengths_of_every_width_survive(void **state) {
    static const uint32_t sizes[] = {0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536};
    static char text[65536];
    static msgpack_object items[2 * 65536];
    (void)state;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        items[i].type = MSGPACK_OBJECT_NIL;
    memset(text, 'x', sizeof text);
    for (int kind = 0; kind < 5; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            static const msgpack_object_type types[] = {MSGPACK_OBJECT_STR,
                MSGPACK_OBJECT_BIN, MSGPACK_OBJECT_EXT, MSGPACK_OBJECT_ARRAY,
                MSGPACK_OBJECT_MAP};
            msgpack_object object;
            bags_buffer scratch = {0}, encoded = {0}, again = {0};
            const msgpack_object *out = NULL;
            bags_view blob, second;
            memset(&object, 0, sizeof object);
            object.type = types[kind];
            if (kind < 2) {
                object.via.str.size = sizes[i];
                object.via.str.ptr = text;
            } else if (kind == 2) {
                object.via.ext.type = -7;
                object.via.ext.size = sizes[i];
                object.via.ext.ptr = text;
            } else if (kind == 3) {
                object.via.array.size = sizes[i];
                object.via.array.ptr = items;
            } else {
                object.via.map.size = sizes[i];
                object.via.map.ptr = (msgpack_object_kv *)(void *)items;
            }
            assert_ok(write_object(&object, &encoded, &blob, &said));
            assert_ok(read_object(blob, &scratch, &out, &said));
            assert_true(msgpack_object_equal(*out, object));
            assert_ok(write_object(out, &again, &second, &said));
            assert_bytes(second, blob.data, blob.size);
            bags_buffer_free(&scratch);
            bags_buffer_free(&encoded);
            bags_buffer_free(&again);
        }
}

static void longer_forms_are_read_too(void **state) {
    (void)state;
    assert_prints("\xcd\0\5", 3, "5");
    assert_prints("\xd3\0\0\0\0\0\0\0\5", 9, "5");
    assert_prints("\xd1\xff\xff", 3, "-1");
    assert_prints("\xd3\x80\0\0\0\0\0\0\0", 9, "-9223372036854775808");
    assert_prints("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9, "18446744073709551615");
    assert_prints("\xdb\0\0\0\1a", 6, "\"a\"");
    assert_prints("\xdf\0\0\0\1\xa1k\xdc\0\1\xc3", 11, "{\"k\": [true]}");
    assert_prints("\xca\x3d\xcc\xcc\xcd", 5, "0.10000000149011612");
}

static void the_library_decodes_the_same_objects(void **state) {
    static const char *const names[] = {"document", "numbers", "floats", "texts",
        "bytes", "extensions", "keys", "lengths"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, DATA "msgpack/%s.msgpack", names[i]);
        bytes blob = load(path);
        bags_buffer scratch = {0};
        const msgpack_object *object = NULL;
        msgpack_unpacked theirs;
        msgpack_unpacked_init(&theirs);
        assert_int_equal(
            msgpack_unpack_next(&theirs, (const char *)blob.data, blob.size, NULL),
            MSGPACK_UNPACK_SUCCESS);
        assert_ok(read_object(view(blob.data, blob.size), &scratch, &object, &said));
        assert_true(msgpack_object_equal(*object, theirs.data));
        msgpack_unpacked_destroy(&theirs);
        bags_buffer_free(&scratch);
        bytes_free(&blob);
    }
}

/* ------------------------------------------------ JSON */

static void what_json_does_not_have_is_still_valid_json(void **state) {
    (void)state;
    assert_prints("\xc4\3\0\1\2", 5, "{\"base64\": \"AAEC\"}");
    assert_prints("\xc4\1\xff", 3, "{\"base64\": \"/w==\"}");
    assert_prints("\xd4\x85\xff", 3, "{\"ext\": -123, \"base64\": \"/w==\"}");
    assert_prints("\xa2\xff\xfe", 3, "{\"str\": {\"base64\": \"//4=\"}}");
    assert_prints("\xa3\xed\xa0\x80", 4, "{\"str\": {\"base64\": \"7aCA\"}}");
    assert_prints("\xcb\x7f\xf8\0\0\0\0\0\0", 9, "{\"float\": \"NaN\"}");
    assert_prints("\xca\xff\x80\0\0", 5, "{\"float\": \"-Infinity\"}");
    assert_prints("\x81\1\2", 3, "{\"map\": [[1, 2]]}");
    assert_prints("\x82\xa1"
                  "a\1\xa1\xff\2",
        7, "{\"map\": [[\"a\", 1], [{\"str\": {\"base64\": \"/w==\"}}, 2]]}");
    assert_prints("\x81\x80\x80", 3, "{\"map\": [[{}, {}]]}");
    assert_prints("\xa4\0\"\\\n", 5, "\"\\u0000\\\"\\\\\\n\"");
}

/* A locale that writes 0,5: the text must not change. */
static void numbers_do_not_depend_on_the_locale(void **state) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8"};
    bool found = false;
    (void)state;
    for (size_t i = 0; i < 3 && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) != NULL;
    assert_prints("\xcb\x3f\xe0\0\0\0\0\0\0", 9, "0.5");
    assert_prints("\xcb\x3f\xd5\x55\x55\x55\x55\x55\x55", 9, "0.3333333333333333");
    setlocale(LC_NUMERIC, "C");
}

/* ------------------------------------------------ bad blobs */

static void what_is_not_one_complete_value_is_rejected(void **state) {
    (void)state;
    assert_bad(BAGS_ERROR_CORRUPT, "", 0);
    assert_bad(BAGS_ERROR_CORRUPT, "\xc1", 1);
    assert_bad(BAGS_ERROR_CORRUPT, "\x91\xc1", 2);
    assert_bad(BAGS_ERROR_CORRUPT, "\1\2", 2);
    assert_says("1 bytes after");
    for (unsigned tag = 0x81; tag <= 0xdf; tag++) {
        char one[1] = {(char)tag};
        bool whole =
            tag == 0x90 || tag == 0xa0 || tag == 0xc0 || tag == 0xc2 || tag == 0xc3;
        if (!whole)
            assert_bad(BAGS_ERROR_CORRUPT, one, 1);
    }
}

static void every_truncation_is_rejected(void **state) {
    static const char *const names[] = {"document", "numbers", "extensions", "keys"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, DATA "msgpack/%s.msgpack", names[i]);
        bytes blob = load(path);
        for (size_t size = 0; size < blob.size; size++)
            assert_bad(BAGS_ERROR_CORRUPT, blob.data, size);
        bytes_free(&blob);
    }
}

static void false_lengths_are_rejected_before_memory_is_allocated(void **state) {
    (void)state;
    assert_bad(BAGS_ERROR_CORRUPT, "\xdd\xff\xff\xff\xff\xc0", 6);
    assert_bad(BAGS_ERROR_CORRUPT, "\xdf\xff\xff\xff\xff\xc0", 6);
    assert_bad(BAGS_ERROR_CORRUPT, "\xc6\xff\xff\xff\xff\xc0", 6);
    assert_bad(BAGS_ERROR_CORRUPT, "\xdb\xff\xff\xff\xff\xc0", 6);
    assert_bad(BAGS_ERROR_CORRUPT, "\xc9\xff\xff\xff\xff\5\xc0", 7);
    /* 3 arrays of 15, each of which alone would have room. */
    assert_bad(BAGS_ERROR_CORRUPT,
        "\x9f\x9f\x9f\1\2\3\4\5\6\7\10\11\12\13\14"
        "\15\16\17\20\21\22\23\24\25\26\27",
        26);
}

static void nesting_has_a_limit(void **state) {
    unsigned char deep[2000];
    bags_buffer scratch = {0}, text = {0};
    const msgpack_object *object = NULL;
    bags_view json;
    (void)state;
    memset(deep, 0x91, sizeof deep);
    deep[512] = 0x90;
    assert_ok(read_object(view(deep, 513), &scratch, &object, &said));
    assert_ok(bags_msgpack_print(object, &text, &json, &said));
    assert_int_equal(json.size, 2 * 513);
    deep[512] = 0x91;
    deep[513] = 0xc0;
    assert_fails(
        BAGS_ERROR_LIMIT, read_object(view(deep, 514), &scratch, &object, &said));
    msgpack_object nested[514];
    for (int i = 0; i < 514; i++) {
        nested[i].type = MSGPACK_OBJECT_ARRAY;
        nested[i].via.array.size = i < 513;
        nested[i].via.array.ptr = i < 513 ? &nested[i + 1] : NULL;
    }
    assert_fails(BAGS_ERROR_LIMIT, bags_msgpack_print(nested, &text, &json, &said));
    deep[513] = 0x91;
    deep[1999] = 0xc0;
    assert_bad(BAGS_ERROR_LIMIT, deep, sizeof deep);
    bags_buffer_free(&scratch);
    bags_buffer_free(&text);
}

static void values_other_than_objects_are_not_encoded(void **state) {
    bags_buffer scratch = {0};
    bags_view blob;
    msgpack_object object;
    (void)state;
    bags_value value = bags_int(1);
    assert_fails(BAGS_ERROR_VALUE,
        bags_codec_msgpack.encode(NULL, &value, &scratch, &blob, &said));
    memset(&object, 0, sizeof object);
    object.type = (msgpack_object_type)99;
    assert_fails(BAGS_ERROR_VALUE, write_object(&object, &scratch, &blob, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_msgpack_print(&object, &scratch, &blob, &said));
    bags_buffer_free(&scratch);
}

static void out_of_memory_is_an_error(void **state) {
    (void)state;
    bytes blob = load(DATA "msgpack/document.msgpack");
    for (uint64_t n = 1;; n++) {
        tally heap;
        bags_buffer decoded = {0}, out = {0};
        bags_value value;
        bags_view view_out;
        tally_start(&heap);
        heap.fail_at = n;
        decoded.resize = out.resize = heap.allocator.resize;
        decoded.user = out.user = heap.allocator.user;
        bags_code code = bags_codec_msgpack.decode(
            NULL, view(blob.data, blob.size), &decoded, &value, &said);
        if (!code)
            code = bags_codec_msgpack.encode(NULL, &value, &out, &view_out, &said);
        if (!code)
            code = to_json(view(blob.data, blob.size), &out, &view_out);
        bags_buffer_free(&decoded);
        bags_buffer_free(&out);
        assert_int_equal(heap.live, 0);
        assert_int_equal(code, heap.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        if (!heap.failed)
            break;
    }
    bytes_free(&blob);
}

/* ------------------------------------------------ trees */

/* The array under the key "x" of a golden tree, beside what NumPy saved. */
static void arrays_in_golden_trees_are_what_numpy_gives(void **state) {
    static const char *const sets[] = {
        "granular-0.16.1", "granular-0.21.0", "granular-0.22.0a1"};
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        char path[256];
        snprintf(path, sizeof path, GOLDEN "%s/ds-types/data/tree.bag", sets[s]);
        bag_reader *bag = bag_reader_open(path, NULL, &said);
        assert_non_null(bag);
        snprintf(path, sizeof path, DATA "golden/%s.ds-types.tree.npys", sets[s]);
        bytes expected = load(path);
        size_t done = 0;
        bags_buffer scratch = {0}, decoded = {0}, array = {0};
        for (uint64_t i = 0; i < bag_reader_length(bag); i++) {
            bags_view blob;
            bags_value tree, value;
            assert_ok(bag_reader_get(bag, i, &scratch, &blob, &said));
            assert_ok(bags_codec_tree.decode(NULL, blob, &decoded, &tree, &said));
            const msgpack_object *root = (const msgpack_object *)tree.object;
            assert_int_equal(root->type, MSGPACK_OBJECT_MAP);
            const msgpack_object *leaf = &root->via.map.ptr[0].val;
            assert_false(bags_tree_is_array(root));
            assert_true(bags_tree_is_array(leaf));
            assert_ok(bags_tree_array(leaf, &array, &value, &said));
            assert_int_equal(value.dtype, BAGS_DTYPE_INT16);
            assert_int_equal(value.dims, 2);
            assert_int_equal(value.shape[0], 2);
            assert_int_equal(value.shape[1], 3);
            /* A header of 128 bytes and 12 bytes of elements. */
            assert_true(expected.size - done >= 140);
            assert_int_equal(value.size, 12);
            assert_memory_equal(value.data, expected.data + done + 128, 12);
            done += 140;
        }
        assert_int_equal(done, expected.size);
        bag_reader_close(bag);
        bytes_free(&expected);
        bags_buffer_free(&scratch);
        bags_buffer_free(&decoded);
        bags_buffer_free(&array);
    }
}

static void check_tree(bags_code expected, const char *blob, size_t size) {
    bags_buffer decoded = {0}, array = {0};
    const msgpack_object *object = NULL;
    bags_value value;
    assert_ok(read_object(view(blob, size), &decoded, &object, &said));
    if (expected)
        assert_fails(expected, bags_tree_array(object, &array, &value, &said));
    else
        assert_ok(bags_tree_array(object, &array, &value, &said));
    if (!expected && value.size == 4)
        assert_int_equal(((const int16_t *)value.data)[1], 2);
    bags_buffer_free(&decoded);
    bags_buffer_free(&array);
}

#define CHECK_TREE(code, blob) check_tree(code, blob, sizeof blob - 1)

static void bad_arrays_in_trees_are_rejected(void **state) {
    (void)state;
    CHECK_TREE(BAGS_OK, "\x94\xa1_\xa3>i2\x91\2\xc4\4\0\1\0\2");
    CHECK_TREE(BAGS_OK, "\x94\xa1_\xa3<i2\x91\2\xc4\4\1\0\2\0");
    CHECK_TREE(BAGS_OK, "\x94\xa1_\xa3|u1\x90\xc4\1\7");
    CHECK_TREE(BAGS_OK, "\x94\xa1_\xa3<i2\x92\0\3\xc4\0");
    CHECK_TREE(BAGS_ERROR_LIMIT,
        "\x94\xa1_\xa3<i2\xdc\0\x41"
        "\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1"
        "\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1"
        "\1\xc4\2\0\0");
    CHECK_TREE(BAGS_ERROR_CORRUPT, "\x94\xa1_\xa3<i2\x91\3\xc4\4\1\0\2\0");
    CHECK_TREE(BAGS_ERROR_CORRUPT, "\x94\xa1_\xa3<i2\x91\xff\xc4\0");
    CHECK_TREE(
        BAGS_ERROR_CORRUPT, "\x94\xa1_\xa3<i2\x92\xcf\x80\0\0\0\0\0\0\0\2\xc4\0");
    CHECK_TREE(BAGS_ERROR_LIMIT, "\x94\xa1_\xa0\x90\xc4\0");
    CHECK_TREE(BAGS_ERROR_VALUE, "\x94\xa1-\xa3<i2\x90\xc4\0");
    CHECK_TREE(BAGS_ERROR_VALUE, "\x93\xa1_\xa3<i2\x90");
    CHECK_TREE(BAGS_ERROR_VALUE, "\xc0");
}

/* What else NumPy's tostr may be in a tree that Python wrote. */
static void dtypes_that_bags_lacks_are_rejected_by_name(void **state) {
    static const char *const names[] = {
        "<M8[ns]", "<m8[s]", "|O", "<U5", "|S3", "|V7", "<f16", "<c32", "bfloat16"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bags_buffer decoded = {0}, array = {0};
        const msgpack_object *object = NULL;
        bags_value value;
        char blob[64] = "\x94\xa1_", quoted[32];
        size_t size = strlen(names[i]);
        blob[3] = (char)(0xA0 | size);
        memcpy(blob + 4, names[i], size);
        memcpy(blob + 4 + size, "\x90\xc4\0", 3);
        assert_ok(read_object(view(blob, size + 7), &decoded, &object, &said));
        assert_fails(BAGS_ERROR_LIMIT, bags_tree_array(object, &array, &value, &said));
        snprintf(quoted, sizeof quoted, "\"%s\"", names[i]);
        assert_says(quoted);
        bags_buffer_free(&decoded);
        bags_buffer_free(&array);
    }
}

static void complex_arrays_in_trees_are_arrays(void **state) {
    /* 1+2j as complex64, big-endian and little-endian. */
    static const char *const blobs[] = {
        "\x94\xa1_\xa3>c8\x91\1\xc4\x08\x3f\x80\0\0\x40\0\0\0",
        "\x94\xa1_\xa3<c8\x91\1\xc4\x08\0\0\x80\x3f\0\0\0\x40"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        bags_buffer decoded = {0}, array = {0};
        const msgpack_object *object = NULL;
        bags_value value;
        assert_ok(read_object(view(blobs[i], 19), &decoded, &object, &said));
        assert_ok(bags_tree_array(object, &array, &value, &said));
        assert_int_equal(value.dtype, BAGS_DTYPE_COMPLEX64);
        assert_int_equal(value.size, 8);
        const float *parts = (const float *)value.data;
        assert_true(parts[0] >= 1 && parts[0] <= 1);
        assert_true(parts[1] >= 2 && parts[1] <= 2);
        bags_buffer_free(&decoded);
        bags_buffer_free(&array);
    }
}

/* ------------------------------------------------ datasets */

static void the_types_msgpack_and_tree_work_in_a_dataset(void **state) {
    bags_field fields[] = {{"meta", "msgpack"}, {"trees", "tree[]"}};
    bags_registry *codecs = bags_registry_create(NULL, &said);
    bags_buffer scratch = {0};
    bags_value value, items[2], out;
    (void)state;
    bytes blob = load(DATA "msgpack/document.msgpack");
    assert_ok(bags_registry_add(codecs, &bags_codec_msgpack, &said));
    assert_ok(bags_registry_add(codecs, &bags_codec_tree, &said));
    bags_writer_options options = {0};
    options.registry = codecs;
    bags_writer *writer = bags_writer_open(at("set"), fields, 2, &options, &said);
    assert_non_null(writer);
    assert_ok(bags_codec_msgpack.decode(
        NULL, view(blob.data, blob.size), &scratch, &value, &said));
    items[0] = items[1] = value;
    bags_entry entries[] = {{"meta", &value, 1}, {"trees", items, 2}};
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_close(writer, &said));

    bags_reader_options reading = {0};
    reading.registry = codecs;
    bags_reader *reader = bags_reader_open(at("set"), &reading, &said);
    assert_non_null(reader);
    bags_row row = {0};
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_bytes(bags_row_bytes(&row, 0, 0), blob.data, blob.size);
    assert_ok(bags_row_value(&row, 1, 1, NULL, &out, &said));
    assert_true(msgpack_object_equal(
        *(const msgpack_object *)out.object, *(const msgpack_object *)value.object));
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_registry_free(codecs);
    bags_buffer_free(&scratch);
    bytes_free(&blob);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_python_wrote_is_printed_and_encoded_again_to_the_byte),
        TEST(every_golden_value_decodes_to_what_python_gives),
        TEST(lengths_of_every_width_survive),
        TEST(longer_forms_are_read_too),
        TEST(the_library_decodes_the_same_objects),
        TEST(what_json_does_not_have_is_still_valid_json),
        TEST(numbers_do_not_depend_on_the_locale),
        TEST(what_is_not_one_complete_value_is_rejected),
        TEST(every_truncation_is_rejected),
        TEST(false_lengths_are_rejected_before_memory_is_allocated),
        TEST(nesting_has_a_limit),
        TEST(values_other_than_objects_are_not_encoded),
        TEST(out_of_memory_is_an_error),
        TEST(arrays_in_golden_trees_are_what_numpy_gives),
        TEST(bad_arrays_in_trees_are_rejected),
        TEST(dtypes_that_bags_lacks_are_rejected_by_name),
        TEST(complex_arrays_in_trees_are_arrays),
        TEST(the_types_msgpack_and_tree_work_in_a_dataset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
