/*
 * msgpack to JSON and back, if formats/msgpack.c was linked.
 */
#include "command.h"

#include "../../formats/formats.h"

#ifdef BAGS_WITH_MSGPACK
#include <msgpack.h>

bool msgpack_to_json(bags_view blob, text *out) {
    static bags_buffer scratch;
    bags_view json;
    bags_code code = bags_msgpack_to_json(blob, &scratch, &json, &failure);
    if (code == BAGS_ERROR_MEMORY)
        die();
    if (!code)
        text_put(out, json.data, json.size);
    return !code;
}

static int write_packed(void *data, const char *bytes, size_t size) {
    text_put((text *)data, bytes, size);
    return 0;
}

static int pack_json(msgpack_packer *to, json_object *value);

static int pack_text(msgpack_packer *to, const char *string, size_t size) {
    int bad = msgpack_pack_str(to, size);
    return bad ? bad : msgpack_pack_str_body(to, string, size);
}

static int pack_object(msgpack_packer *to, json_object *value) {
    int bad = msgpack_pack_map(to, (size_t)json_object_object_length(value));
    json_object_iter at;
    json_object_object_foreachC(value, at) {
        if (!bad)
            bad = pack_text(to, at.key, strlen(at.key));
        if (!bad)
            bad = pack_json(to, at.val);
    }
    return bad;
}

static int pack_list(msgpack_packer *to, json_object *value) {
    size_t count = json_object_array_length(value);
    int bad = msgpack_pack_array(to, count);
    for (size_t i = 0; i < count && !bad; i++)
        bad = pack_json(to, json_object_array_get_idx(value, i));
    return bad;
}

/* For json-c, integers above 2^63-1 and negative ones are one type. */
static int pack_integer(msgpack_packer *to, json_object *value) {
    int64_t integer = json_object_get_int64(value);
    if (integer < 0)
        return msgpack_pack_int64(to, integer);
    return msgpack_pack_uint64(to, json_object_get_uint64(value));
}

/* Recursive, as deep as json_read lets JSON be nested. */
static int pack_json(msgpack_packer *to, json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null:
        return msgpack_pack_nil(to);
    case json_type_boolean:
        return json_object_get_boolean(value) ? msgpack_pack_true(to)
                                              : msgpack_pack_false(to);
    case json_type_double:
        return msgpack_pack_double(to, json_object_get_double(value));
    case json_type_int:
        return pack_integer(to, value);
    case json_type_string:
        return pack_text(to, json_object_get_string(value),
            (size_t)json_object_get_string_len(value));
    case json_type_array:
        return pack_list(to, value);
    case json_type_object:
        return pack_object(to, value);
    }
    return -1;
}

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    text into = {*out, 0};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &into, write_packed);
    if (pack_json(&packer, value))
        fail(BAGS_ERROR_MEMORY, "out of memory");
    *out = into.buffer;
    bags_view blob = {out->data, into.size};
    return blob;
}

#else

bool msgpack_to_json(bags_view blob, text *out) {
    (void)blob;
    (void)out;
    failure.code = BAGS_ERROR_TYPE;
    return false;
}

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    bags_view none = {NULL, 0};
    (void)value;
    (void)out;
    codec_check("msgpack");
    return none;
}

#endif
