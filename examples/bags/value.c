/*
 * A blob as JSON, and what its file is called. What cannot be shown as a value
 * is shown as {"type", "bytes"}, with "error" if it is no value of its type.
 */
#include "command.h"

#include <string.h>

typedef struct type_view {
    const char *name;
    shown_as shown;
    const char *ending;
    bool picture;
} type_view;

static const type_view views[] = {
    {"bytes", SHOWN_BYTES, NULL, false}, /* by its first bytes */
    {"int", SHOWN_NUMBER, "bin", false},
    {"i64", SHOWN_NUMBER, "bin", false},
    {"u64", SHOWN_NUMBER, "bin", false},
    {"utf8", SHOWN_TEXT, "txt", false},
    {"array", SHOWN_ARRAY, "bin", false},
    {"npy", SHOWN_ARRAY, "npy", false},
    {"msgpack", SHOWN_MSGPACK, "msgpack", false},
    {"tree", SHOWN_MSGPACK, "msgpack", false},
    {"jpeg", SHOWN_BYTES, "jpg", true},
    {"jpg", SHOWN_BYTES, "jpg", true},
    {"png", SHOWN_BYTES, "png", true},
    {"mp4", SHOWN_BYTES, "mp4", true},
    {"webm", SHOWN_BYTES, "webm", true},
};

static size_t name_size(const char *type) {
    return strcspn(type, "([");
}

static const type_view *find_view(const char *type) {
    size_t size = name_size(type);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (strlen(views[i].name) == size && !memcmp(views[i].name, type, size))
            return &views[i];
    return NULL;
}

shown_as type_shown_as(const char *type) {
    const type_view *view = find_view(type);
    return view ? view->shown : SHOWN_BYTES;
}

bool type_is_picture(const char *type) {
    const type_view *view = find_view(type);
    return view && view->picture;
}

/* A type that is not known may be a kind of file: "flac", "tiff". */
static const char *own_ending(const char *type, char room[16]) {
    size_t size = name_size(type);
    if (size == 0 || size > 8)
        return "bin";
    for (size_t i = 0; i < size; i++) {
        char c = type[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')))
            return "bin";
        room[i] = c;
    }
    room[size] = 0;
    return room;
}

const char *type_ending(const char *type, bags_view blob, char room[16]) {
    const type_view *view = find_view(type);
    if (!view)
        return own_ending(type, room);
    /* The array that describes itself is msgpack; the other one is bare. */
    if (view->shown == SHOWN_ARRAY && type[name_size(type)] != '(' &&
        !strcmp(view->name, "array"))
        return "msgpack";
    if (view->ending)
        return view->ending;
    const char *kind = type_of_bytes(blob);
    view = kind ? find_view(kind) : NULL;
    return view ? view->ending : "bin";
}

/* ---- arrays ---- */

#define PREVIEW_MOST 8

static void put_array(text *out, const bags_value *array) {
    size_t width = bags_dtype_size(array->dtype);
    size_t count = width ? array->size / width : 0;
    text_format(out, "{\"dtype\": \"%s\", \"shape\": [",
        bags_dtype_name(array->dtype));
    for (size_t i = 0; i < array->dims; i++)
        text_format(out, "%s%ju", i ? ", " : "", (uintmax_t)array->shape[i]);
    text_puts(out, "], \"preview\": [");
    for (size_t i = 0; i < count && i < PREVIEW_MOST; i++) {
        text_puts(out, i ? ", " : "");
        element_to_json(out, array->dtype, array->data, i);
    }
    text_puts(out, "]}");
}

/* ---- all kinds ---- */

static void put_unshown(text *out, const char *type, size_t size,
    const char *error) {
    size_t length = strlen(type);
    if (length > 2 && !strcmp(type + length - 2, "[]"))
        length -= 2;
    text_puts(out, "{\"type\": ");
    text_json(out, type, length, false);
    text_format(out, ", \"bytes\": %zu", size);
    if (error) {
        text_puts(out, ", \"error\": ");
        text_json(out, error, strlen(error), false);
    }
    text_puts(out, "}");
}

static bool put_plain(text *out, const bags_value *value) {
    if (value->kind == BAGS_KIND_UINT)
        text_format(out, "%ju", (uintmax_t)value->uint);
    else if (value->kind == BAGS_KIND_INT)
        text_format(out, "%jd", (intmax_t)value->sint);
    else if (value->kind == BAGS_KIND_UTF8 &&
             utf8_valid(value->data, value->size) == value->size)
        text_json(out, value->data, value->size, false);
    else
        return false;
    return true;
}

bags_code value_plain(source *from, size_t slot, size_t item, const char *type,
    text *out, bool *plain, bags_error *err) {
    shown_as shown = type_shown_as(type);
    bags_value value;
    *plain = false;
    if (shown != SHOWN_NUMBER && shown != SHOWN_TEXT)
        return BAGS_OK;
    bags_code code = source_value(from, slot, item, &value, err);
    if (code == BAGS_ERROR_MEMORY)
        return code;
    *plain = !code && put_plain(out, &value);
    return BAGS_OK;
}

bags_code value_list(source *from, size_t slot, size_t item, const char *type,
    text *out, bool *done, bags_error *err) {
    bags_value value;
    *done = false;
    if (type_shown_as(type) != SHOWN_ARRAY)
        return BAGS_OK;
    bags_code code = source_value(from, slot, item, &value, err);
    if (code == BAGS_ERROR_MEMORY)
        return code;
    *done = !code && value.kind == BAGS_KIND_ARRAY && list_from_array(out, type, &value);
    return BAGS_OK;
}

bags_code value_show(source *from, size_t slot, size_t item, const char *type,
    text *out, bags_error *err) {
    shown_as shown = type_shown_as(type);
    bags_view blob = source_bytes(from, slot, item);
    bags_value value;
    bags_code code = BAGS_OK;
    size_t before = out->size;
    bool done = false;
    if (shown == SHOWN_MSGPACK) {
        code = msgpack_to_json(blob, out, err);
        done = !code;
    } else if (shown != SHOWN_BYTES) {
        code = source_value(from, slot, item, &value, err);
        if (!code && value.kind == BAGS_KIND_ARRAY) {
            put_array(out, &value);
            done = true;
        } else if (!code) {
            done = put_plain(out, &value);
        }
    }
    if (code == BAGS_ERROR_MEMORY)
        return code;
    if (done)
        return BAGS_OK;
    out->size = before;
    /* A number above 64 bits, or a format that is not linked, is no fault. */
    bool fault = code && code != BAGS_ERROR_LIMIT && code != BAGS_ERROR_TYPE;
    put_unshown(out, type, blob.size, fault ? err->message : NULL);
    return BAGS_OK;
}
