/*
 * msgpack to JSON and back, if formats/msgpack.c was linked.
 */
#include "command.h"

#include "../../formats/formats.h"

#ifdef BAGS_WITH_MSGPACK
#include <msgpack.h>

bool msgpack_to_json(const void *object, text *out) {
    static bags_buffer scratch;
    bags_view json;
    bags_code code =
        bags_msgpack_print((const msgpack_object *)object, &scratch, &json, &failure);
    if (code == BAGS_ERROR_MEMORY)
        die();
    if (!code)
        text_json_clean(out, json);
    return !code;
}

static int write_packed(void *data, const char *bytes, size_t size) {
    text_put((text *)data, bytes, size);
    return 0;
}

static void pack_text(msgpack_packer *to, const char *string, size_t size) {
    msgpack_pack_str(to, size);
    msgpack_pack_str_body(to, string, size);
}

/* Recursive, as deep as json_read lets JSON be nested. Nothing fails but write_packed,
 * which then ends the program. */
static void pack_json(msgpack_packer *to, json_object *value) {
    int64_t integer;
    size_t length;
    json_object_iter at;
    switch (json_object_get_type(value)) {
    case json_type_null:
        msgpack_pack_nil(to);
        return;
    case json_type_boolean:
        if (json_object_get_boolean(value))
            msgpack_pack_true(to);
        else
            msgpack_pack_false(to);
        return;
    case json_type_double:
        msgpack_pack_double(to, json_object_get_double(value));
        return;
    case json_type_int:
        /* For json-c, integers above 2^63-1 and negative ones are one type. */
        integer = json_object_get_int64(value);
        if (integer < 0)
            msgpack_pack_int64(to, integer);
        else
            msgpack_pack_uint64(to, json_object_get_uint64(value));
        return;
    case json_type_string:
        pack_text(to, json_object_get_string(value),
            (size_t)json_object_get_string_len(value));
        return;
    case json_type_array:
        length = json_object_array_length(value);
        msgpack_pack_array(to, length);
        for (size_t i = 0; i < length; i++)
            pack_json(to, json_object_array_get_idx(value, i));
        return;
    case json_type_object:
        msgpack_pack_map(to, (size_t)json_object_object_length(value));
        json_object_object_foreachC(value, at) {
            pack_text(to, at.key, strlen(at.key));
            pack_json(to, at.val);
        }
        return;
    }
}

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    text into = {*out, 0};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &into, write_packed);
    pack_json(&packer, value);
    *out = into.buffer;
    bags_view blob = {out->data, into.size};
    return blob;
}

#else

bool msgpack_to_json(const void *object, text *out) {
    (void)object;
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
