/*
 * msgpack.c - the types msgpack and tree, on msgpack-c (libmsgpackc 3 or later;
 * Debian: libmsgpack-dev; pkg-config msgpack or msgpack-c).
 *
 * Arguments: none. A value is a BAGS_KIND_OBJECT with a msgpack_object. A tree is
 * msgpack in which an array is ["_", dtype, [dimensions], bin], with NumPy's name
 * of the dtype, such as "<f4".
 *
 * The object definitions and the encoder come from the library. The decoder does not:
 * the library's unpacker keeps objects in a zone that must be freed, allocates memory
 * for a claimed length before checking that the data exist, and stops at 32 levels
 * where Python's package allows 511. Here, all objects of a blob are counted first,
 * then stored in one piece in the caller's scratch.
 *
 * Rejected: anything but exactly one complete value, the byte 0xC1, more than 512
 * levels.
 */
#include "codecs.h"
#include "text.h"

#include <msgpack.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MP_MAX_DEPTH 512

/* ---- decoding ---- */

/* Input bytes, consumed from the front. */
typedef struct mp_input {
    const unsigned char *at, *end;
} mp_input;

static bool mp_has(const mp_input *in, uint64_t size) {
    return (uint64_t)(in->end - in->at) >= size;
}

/* A big-endian number of 1, 2, 4 or 8 bytes. The caller has checked that the bytes
 * exist. */
static uint64_t mp_load(mp_input *in, unsigned size) {
    const unsigned char *at = in->at;
    in->at += size;
    return bags_load_bytes(at, size, true);
}

static void mp_set_signed(msgpack_object *item, int64_t number) {
    item->type =
        number < 0 ? MSGPACK_OBJECT_NEGATIVE_INTEGER : MSGPACK_OBJECT_POSITIVE_INTEGER;
    item->via.i64 = number;
}

/* uint8 to uint64 (0xCC to 0xCF), int8 to int64 (0xD0 to 0xD3). */
static bool mp_integer(mp_input *in, unsigned char tag, msgpack_object *item) {
    unsigned size = 1u << (tag & 3);
    if (!mp_has(in, size))
        return false;
    uint64_t number = mp_load(in, size);
    if (tag < 0xD0) {
        item->type = MSGPACK_OBJECT_POSITIVE_INTEGER;
        item->via.u64 = number;
        return true;
    }
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    number = (number ^ sign) - sign; /* sign extension */
    int64_t wide;
    memcpy(&wide, &number, sizeof wide);
    mp_set_signed(item, wide);
    return true;
}

static bool mp_float(mp_input *in, msgpack_object *item) {
    if (!mp_has(in, 4))
        return false;
    uint32_t bits = (uint32_t)mp_load(in, 4);
    float number = 0;
    memcpy(&number, &bits, sizeof number);
    item->type = MSGPACK_OBJECT_FLOAT32;
    item->via.f64 = (double)number;
    return true;
}

static inline bool mp_double(mp_input *in, msgpack_object *item) {
    if (!mp_has(in, 8))
        return false;
    uint64_t bits = mp_load(in, 8);
    item->type = MSGPACK_OBJECT_FLOAT64;
    memcpy(&item->via.f64, &bits, sizeof bits);
    return true;
}

/* Read a string, binary or extension of `size` bytes. */
static bool mp_bytes(
    mp_input *in, msgpack_object_type type, uint64_t size, msgpack_object *item) {
    bool extension = type == MSGPACK_OBJECT_EXT;
    if (!mp_has(in, size + extension))
        return false;
    item->type = type;
    if (extension) {
        unsigned char kind = *in->at++;
        item->via.ext.type = (int8_t)(kind < 128 ? kind : kind - 256);
        item->via.ext.size = (uint32_t)size;
        item->via.ext.ptr = (const char *)in->at;
    } else {
        item->via.str.size = (uint32_t)size;
        item->via.str.ptr = (const char *)in->at;
    }
    in->at += size;
    return true;
}

/* Like mp_bytes, but the size precedes the bytes, in 1, 2 or 4 bytes. */
static bool mp_sized(
    mp_input *in, msgpack_object_type type, unsigned width, msgpack_object *item) {
    if (!mp_has(in, width))
        return false;
    return mp_bytes(in, type, mp_load(in, width), item);
}

/* Read the header of an array or map; its items are placed later. Each item takes at
 * least one byte, so a count above the number of bytes left is rejected. */
static bool mp_container(mp_input *in, msgpack_object_type type, uint64_t count,
    msgpack_object *item, uint64_t *items) {
    *items = type == MSGPACK_OBJECT_MAP ? 2 * count : count;
    item->type = type;
    item->via.array.size = (uint32_t)count;
    item->via.array.ptr = NULL;
    return mp_has(in, *items);
}

static bool mp_sized_container(mp_input *in, msgpack_object_type type, unsigned width,
    msgpack_object *item, uint64_t *items) {
    if (!mp_has(in, width))
        return false;
    return mp_container(in, type, mp_load(in, width), item, items);
}

/* Read a value with a tag from 0xC0 to 0xDF, except 0xCB. */
static bool mp_tagged(
    mp_input *in, unsigned char tag, msgpack_object *item, uint64_t *items) {
    switch (tag) {
    case 0xC0:
        item->type = MSGPACK_OBJECT_NIL;
        return true;
    case 0xC2:
    case 0xC3:
        item->type = MSGPACK_OBJECT_BOOLEAN;
        item->via.boolean = tag == 0xC3;
        return true;
    case 0xC4:
    case 0xC5:
    case 0xC6:
        return mp_sized(in, MSGPACK_OBJECT_BIN, 1u << (tag - 0xC4), item);
    case 0xC7:
    case 0xC8:
    case 0xC9:
        return mp_sized(in, MSGPACK_OBJECT_EXT, 1u << (tag - 0xC7), item);
    case 0xCA:
        return mp_float(in, item);
    case 0xD4:
    case 0xD5:
    case 0xD6:
    case 0xD7:
    case 0xD8:
        return mp_bytes(in, MSGPACK_OBJECT_EXT, 1u << (tag - 0xD4), item);
    case 0xD9:
    case 0xDA:
    case 0xDB:
        return mp_sized(in, MSGPACK_OBJECT_STR, 1u << (tag - 0xD9), item);
    case 0xDC:
    case 0xDD:
        return mp_sized_container(
            in, MSGPACK_OBJECT_ARRAY, 2u << (tag - 0xDC), item, items);
    case 0xDE:
    case 0xDF:
        return mp_sized_container(
            in, MSGPACK_OBJECT_MAP, 2u << (tag - 0xDE), item, items);
    default:
        return tag != 0xC1 && mp_integer(in, tag, item);
    }
}

/* Consume one value, but not the *items it contains. */
static inline bool mp_item(mp_input *in, msgpack_object *item, uint64_t *items) {
    *items = 0;
    if (in->at == in->end)
        return false;
    unsigned char tag = *in->at++;
    if (tag < 0x80 || tag >= 0xE0) {
        mp_set_signed(item, tag < 0x80 ? tag : tag - 256);
        return true;
    }
    if (tag == 0xCB) /* the most frequent of these tags, so it bypasses the table */
        return mp_double(in, item);
    if (tag >= 0xC0)
        return mp_tagged(in, tag, item, items);
    if (tag >= 0xA0)
        return mp_bytes(in, MSGPACK_OBJECT_STR, tag & 31, item);
    return mp_container(in, tag < 0x90 ? MSGPACK_OBJECT_MAP : MSGPACK_OBJECT_ARRAY,
        tag & 15, item, items);
}

/* Skip one value, but not the *items it contains. The table holds the number of bytes
 * after each tag from 0xC0, if the tag determines it, as it does for most values. */
static inline bool mp_skip(mp_input *in, uint64_t *items) {
    static const unsigned char after[32] = {0, 99, 0, 0, 99, 99, 99, 99, 99, 99, 4, 8,
        1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 99, 99, 99, 99, 99, 99, 99};
    msgpack_object unused;
    *items = 0;
    if (in->at == in->end)
        return false;
    unsigned char tag = *in->at;
    size_t size = tag < 0x80 || tag >= 0xE0 ? 0 : tag >= 0xC0 ? after[tag - 0xC0] : 99;
    if (size == 99)
        return mp_item(in, &unused, items);
    if (!mp_has(in, size + 1))
        return false;
    in->at += size + 1;
    return true;
}

/* Check a blob and count its values. No memory is needed: each value still expected
 * takes at least one byte. */
static bags_code mp_count(bags_view blob, size_t *count, bags_error *err) {
    mp_input in = {blob.data, blob.data + blob.size};
    uint64_t expected = 1, items = 0;
    for (*count = 0; expected > 0; ++*count) {
        const unsigned char *before = in.at;
        if (!mp_skip(&in, &items) || !mp_has(&in, items + expected - 1))
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "invalid or truncated msgpack at byte %" PRIu64 " of %" PRIu64,
                (uint64_t)(before - blob.data), (uint64_t)blob.size);
        expected += items - 1;
    }
    if (in.at != in.end)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes after the msgpack value", (uint64_t)(in.end - in.at));
    return BAGS_OK;
}

/* The items of an open array or map that remain to be filled. */
typedef struct mp_frame {
    msgpack_object *next, *end;
} mp_frame;

/*
 * Place the values of a blob already checked by mp_count: the items of each array or
 * map are contiguous, and arrays and maps follow in the order they begin. A key and its
 * value are two items, like a msgpack_object_kv. `frames` has room for MP_MAX_DEPTH or
 * for the number of values.
 */
static bags_code mp_place(
    bags_view blob, msgpack_object *objects, mp_frame *frames, bags_error *err) {
    mp_input in = {blob.data, blob.data + blob.size};
    mp_frame top = {objects, objects + 1};
    size_t depth = 0; /* number of frames below the top */
    objects++;
    for (;;) {
        while (top.next == top.end) {
            if (depth == 0)
                return BAGS_OK;
            top = frames[--depth];
        }
        msgpack_object *item = top.next++;
        uint64_t items = 0;
        mp_item(&in, item, &items);
        if (items == 0)
            continue;
        if (depth == MP_MAX_DEPTH)
            return bags_fail(
                err, BAGS_ERROR_LIMIT, "msgpack nested above %d levels", MP_MAX_DEPTH);
        if (item->type == MSGPACK_OBJECT_MAP)
            item->via.map.ptr = (msgpack_object_kv *)(void *)objects;
        else
            item->via.array.ptr = objects;
        frames[depth++] = top;
        top.next = objects;
        top.end = objects + items;
        objects = top.end;
    }
}

static bags_code mp_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    size_t count = 0;
    bags_code code = mp_count(blob, &count, err);
    if (code)
        return code;
    size_t depth = count < MP_MAX_DEPTH ? count : MP_MAX_DEPTH;
    size_t frames = depth * sizeof(mp_frame);
    if (count > (SIZE_MAX - frames) / sizeof(msgpack_object))
        return bags_fail(err, BAGS_ERROR_MEMORY,
            "msgpack of %" PRIu64 " values too large for the address space",
            (uint64_t)count);
    code = bags_buffer_reserve(scratch, count * sizeof(msgpack_object) + frames, err);
    if (code)
        return code;
    msgpack_object *objects = (msgpack_object *)(void *)scratch->data;
    code = mp_place(blob, objects, (mp_frame *)(void *)(objects + count), err);
    if (code)
        return code;
    memset(value, 0, sizeof *value);
    value->kind = BAGS_KIND_OBJECT;
    value->object = objects;
    return BAGS_OK;
}

/* ---- encoding and printing ---- */

typedef struct mp_output {
    unsigned char *data; /* a copy of the buffer's pointer: most writes are short */
    size_t size, capacity;
    bags_buffer *buffer;
    bags_code code; /* the first failure; nothing is written afterwards */
    bags_error *err;
} mp_output;

static void mp_begin(mp_output *out, bags_buffer *buffer, bags_error *err) {
    memset(out, 0, sizeof *out);
    out->buffer = buffer;
    out->data = buffer->data;
    out->capacity = buffer->capacity;
    out->err = err;
}

static void mp_refuse(mp_output *out, bags_code code, const char *problem) {
    if (!out->code)
        out->code = bags_fail(out->err, code, "%s", problem);
    out->capacity = out->size;
}

static bool mp_grow(mp_output *out, size_t size) {
    if (size > SIZE_MAX - out->size)
        mp_refuse(out, BAGS_ERROR_MEMORY, "msgpack too large for the address space");
    if (!out->code)
        out->code = bags_buffer_reserve(out->buffer, out->size + size, out->err);
    if (out->code) {
        out->capacity = out->size;
        return false;
    }
    out->data = out->buffer->data;
    out->capacity = out->buffer->capacity;
    return true;
}

static int mp_put(void *output, const char *data, size_t size);

static int mp_grow_and_put(mp_output *out, const char *data, size_t size) {
    return mp_grow(out, size) ? mp_put(out, data, size) : -1;
}

/* Also serves as the library's callback: returns 0 for success. */
static int mp_put(void *output, const char *data, size_t size) {
    mp_output *out = (mp_output *)output;
    if (size > out->capacity - out->size)
        return mp_grow_and_put(out, data, size);
    if (size)
        memcpy(out->data + out->size, data, size);
    out->size += size;
    return 0;
}

static const char mp_unknown[] = "msgpack_object of unknown type";

static bags_code mp_end(const mp_output *out, bags_view *view) {
    if (out->code)
        return out->code;
    view->data = out->data;
    view->size = out->size;
    return BAGS_OK;
}

static bags_code mp_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    mp_output output;
    msgpack_packer packer;
    (void)state;
    if (value->kind != BAGS_KIND_OBJECT || !value->object)
        return bags_fail(err, BAGS_ERROR_VALUE, "expected a msgpack_object");
    mp_begin(&output, scratch, err);
    msgpack_packer_init(&packer, &output, mp_put);
    if (msgpack_pack_object(&packer, *(const msgpack_object *)value->object))
        mp_refuse(&output, BAGS_ERROR_VALUE, mp_unknown);
    return mp_end(&output, blob);
}

/* ---- JSON ---- */

static void mp_text(mp_output *out, const char *text) {
    mp_put(out, text, strlen(text));
}

static void mp_base64(mp_output *out, const char *data, size_t size) {
    char four[4];
    mp_text(out, "\"");
    for (size_t i = 0; i < size && !out->code; i += 3) {
        format_base64_encode((const unsigned char *)data + i, size - i, four);
        mp_put(out, four, sizeof four);
    }
    mp_text(out, "\"");
}

static bool mp_is_text(const msgpack_object *object) {
    return object->type == MSGPACK_OBJECT_STR &&
           bags_utf8_valid(object->via.str.ptr, object->via.str.size, NULL);
}

/* Write a character that JSON strings must escape. */
static void mp_escaped(mp_output *out, unsigned char c) {
    char escape[8];
    const char *short_form = c ? strchr("\"\"\\\\\bb\ff\nn\rr\tt", c) : NULL;
    if (short_form)
        (void)snprintf(escape, sizeof escape, "\\%c", short_form[1]);
    else
        (void)snprintf(escape, sizeof escape, "\\u%04x", c);
    mp_text(out, escape);
}

static void mp_string(mp_output *out, const msgpack_object *object) {
    const char *text = object->via.str.ptr;
    size_t size = object->via.str.size, done = 0;
    if (!mp_is_text(object)) {
        mp_text(out, "{\"str\": {\"base64\": ");
        mp_base64(out, text, size);
        mp_text(out, "}}");
        return;
    }
    mp_text(out, "\"");
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        mp_put(out, text + done, i - done);
        mp_escaped(out, c);
        done = i + 1;
    }
    mp_put(out, text + done, size - done);
    mp_text(out, "\"");
}

/* Print the fewest digits that read back as the same number, with a point or an
 * exponent so that it remains a float. snprintf and strtod use the locale's decimal
 * point. */
static void mp_double_text(mp_output *out, double number) {
    char digits[40], text[48];
    if (isnan(number) || isinf(number)) {
        mp_text(out, isnan(number) ? "{\"float\": \"NaN\"}"
                     : number > 0  ? "{\"float\": \"Infinity\"}"
                                   : "{\"float\": \"-Infinity\"}");
        return;
    }
    format_digits(digits, number, false);
    size_t size = 0;
    bool integer = true, point = false;
    for (const char *at = digits; *at; at++) {
        bool before = point;
        point = !strchr("0123456789+-e", *at);
        if (!point || !before)
            text[size++] = (char)(point ? '.' : *at);
        integer = integer && !point && *at != 'e';
    }
    mp_put(out, text, size);
    if (integer)
        mp_text(out, ".0");
}

static void mp_integer_text(mp_output *out, const msgpack_object *object) {
    char text[24];
    if (object->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        (void)snprintf(text, sizeof text, "%" PRId64, object->via.i64);
    else
        (void)snprintf(text, sizeof text, "%" PRIu64, object->via.u64);
    mp_text(out, text);
}

static void mp_extension(mp_output *out, const msgpack_object *object) {
    char text[40];
    (void)snprintf(
        text, sizeof text, "{\"ext\": %d, \"base64\": ", (int)object->via.ext.type);
    mp_text(out, text);
    mp_base64(out, object->via.ext.ptr, object->via.ext.size);
    mp_text(out, "}");
}

static void mp_any(mp_output *out, const msgpack_object *object, int depth);

static void mp_array(mp_output *out, const msgpack_object *object, int depth) {
    const msgpack_object_array *array = &object->via.array;
    mp_text(out, "[");
    for (uint32_t i = 0; i < array->size && !out->code; i++) {
        mp_text(out, i ? ", " : "");
        mp_any(out, &array->ptr[i], depth);
    }
    mp_text(out, "]");
}

static void mp_map(mp_output *out, const msgpack_object *object, int depth) {
    const msgpack_object_map *map = &object->via.map;
    bool named = true;
    for (uint32_t i = 0; i < map->size && named; i++)
        named = mp_is_text(&map->ptr[i].key);
    mp_text(out, named ? "{" : "{\"map\": [");
    for (uint32_t i = 0; i < map->size && !out->code; i++) {
        mp_text(out, i ? ", " : "");
        mp_text(out, named ? "" : "[");
        mp_any(out, &map->ptr[i].key, depth);
        mp_text(out, named ? ": " : ", ");
        mp_any(out, &map->ptr[i].val, depth);
        mp_text(out, named ? "" : "]");
    }
    mp_text(out, named ? "}" : "]}");
}

/* `depth` is the number of arrays and maps around the object. */
static void mp_any(mp_output *out, const msgpack_object *object, int depth) {
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        mp_text(out, "null");
        break;
    case MSGPACK_OBJECT_BOOLEAN:
        mp_text(out, object->via.boolean ? "true" : "false");
        break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        mp_integer_text(out, object);
        break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        mp_double_text(out, object->via.f64);
        break;
    case MSGPACK_OBJECT_STR:
        mp_string(out, object);
        break;
    case MSGPACK_OBJECT_BIN:
        mp_text(out, "{\"base64\": ");
        mp_base64(out, object->via.bin.ptr, object->via.bin.size);
        mp_text(out, "}");
        break;
    case MSGPACK_OBJECT_EXT:
        mp_extension(out, object);
        break;
    case MSGPACK_OBJECT_ARRAY:
    case MSGPACK_OBJECT_MAP:
        if (depth >= MP_MAX_DEPTH && object->via.array.size)
            mp_refuse(out, BAGS_ERROR_LIMIT, "msgpack nested above 512 levels");
        else if (object->type == MSGPACK_OBJECT_ARRAY)
            mp_array(out, object, depth + 1);
        else
            mp_map(out, object, depth + 1);
        break;
    default:
        mp_refuse(out, BAGS_ERROR_VALUE, mp_unknown);
    }
}

bags_code bags_msgpack_print(const msgpack_object *object, bags_buffer *scratch,
    bags_view *json, bags_error *err) {
    mp_output out;
    mp_begin(&out, scratch, err);
    mp_any(&out, object, 0);
    return mp_end(&out, json);
}

/* ---- arrays in trees ---- */

bool bags_tree_is_array(const msgpack_object *object) {
    if (object->type != MSGPACK_OBJECT_ARRAY || object->via.array.size != 4)
        return false;
    const msgpack_object *parts = object->via.array.ptr;
    return parts[0].type == MSGPACK_OBJECT_STR && parts[0].via.str.size == 1 &&
           parts[0].via.str.ptr[0] == '_' && parts[1].type == MSGPACK_OBJECT_STR &&
           parts[2].type == MSGPACK_OBJECT_ARRAY && parts[3].type == MSGPACK_OBJECT_BIN;
}

static bags_code mp_shape(
    const msgpack_object *numbers, uint64_t *shape, bags_error *err) {
    if (numbers->via.array.size > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "too many dimensions (%" PRIu32 ", maximum %d)", numbers->via.array.size,
            BAGS_MAX_DIMS);
    for (uint32_t i = 0; i < numbers->via.array.size; i++) {
        const msgpack_object *number = &numbers->via.array.ptr[i];
        if (number->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return bags_fail(
                err, BAGS_ERROR_CORRUPT, "invalid shape (expected numbers from 0)");
        shape[i] = number->via.u64;
    }
    return BAGS_OK;
}

bags_code bags_tree_array(const msgpack_object *object, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    if (!bags_tree_is_array(object))
        return bags_fail(err, BAGS_ERROR_VALUE, "not an array in a tree");
    const msgpack_object *parts = object->via.array.ptr;
    const msgpack_object_str *name = &parts[1].via.str;
    const msgpack_object_bin *bin = &parts[3].via.bin;
    uint64_t shape[BAGS_MAX_DIMS];
    bags_code code = mp_shape(&parts[2], shape, err);
    if (code)
        return code;
    bool big = false;
    bags_dtype dtype = bags_dtype_parse(name->ptr, name->size, &big);
    if (dtype == BAGS_DTYPE_NONE)
        return bags_fail(err, BAGS_ERROR_LIMIT, "unsupported dtype \"%.*s\"",
            (int)(name->size < 80 ? name->size : 80), name->ptr);
    size_t dims = parts[2].via.array.size, size = 0;
    size_t front = dims * sizeof *shape, element = bags_dtype_size(dtype);
    if (!bags_array_size(dtype, dims, shape, &size) || size != bin->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "shape contradicts the size of an array (%" PRIu32 " bytes)", bin->size);
    bool swap = element > 1 && big == bags_little_endian();
    bool copy = swap || (uintptr_t)bin->ptr % element != 0;
    if (size > SIZE_MAX - front)
        return bags_fail(
            err, BAGS_ERROR_MEMORY, "array too large for the address space");
    code = bags_buffer_reserve(scratch, front + (copy ? size : 0), err);
    if (code)
        return code;
    if (front)
        memcpy(scratch->data, shape, front);
    const void *elements = bin->ptr;
    if (copy) {
        if (swap)
            bags_swap_bytes(
                scratch->data + front, bin->ptr, size, bags_dtype_swap(dtype));
        else if (size)
            memcpy(scratch->data + front, bin->ptr, size);
        elements = scratch->data + front;
    }
    *value = bags_array(dtype, dims, (const uint64_t *)(void *)scratch->data, elements);
    return BAGS_OK;
}

/* ---- the codecs ---- */

const bags_codec bags_codec_msgpack = {
    "msgpack", NULL, mp_encode, mp_decode, NULL, NULL, NULL};

const bags_codec bags_codec_tree = {
    "tree", NULL, mp_encode, mp_decode, NULL, NULL, NULL};
