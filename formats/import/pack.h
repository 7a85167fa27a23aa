/*
 * pack.h - convert JSON to msgpack, for the importers and the command. Private.
 */
#ifndef BAGS_IMPORT_PACK_H
#define BAGS_IMPORT_PACK_H

#include "json.h"

#include <msgpack.h>
#include <string.h>

#define BAGS_IMPORT_PACK_MOST ((size_t)1 << 30)

static inline int bags_import_pack_text(
    msgpack_packer *to, const char *string, size_t size) {
    int failed = msgpack_pack_str(to, size);
    return failed ? failed : msgpack_pack_str_body(to, string, size);
}

/* Pack an object. It has at most 500 levels: see json.h. Returns 0, or the failed
 * packer function's result. */
static inline int bags_import_pack(msgpack_packer *to, json_object *json) {
    int failed;
    switch (json_object_get_type(json)) {
    case json_type_boolean:
        return json_object_get_boolean(json) ? msgpack_pack_true(to)
                                             : msgpack_pack_false(to);
    case json_type_int:
        return json_object_get_int64(json) < 0
                   ? msgpack_pack_int64(to, json_object_get_int64(json))
                   : msgpack_pack_uint64(to, json_object_get_uint64(json));
    case json_type_double:
        return msgpack_pack_double(to, json_object_get_double(json));
    case json_type_string:
        return bags_import_pack_text(
            to, json_object_get_string(json), (size_t)json_object_get_string_len(json));
    case json_type_array:
        failed = msgpack_pack_array(to, json_object_array_length(json));
        for (size_t i = 0; !failed && i < json_object_array_length(json); i++)
            failed = bags_import_pack(to, json_object_array_get_idx(json, i));
        return failed;
    case json_type_object: {
        failed = msgpack_pack_map(to, (size_t)json_object_object_length(json));
        json_object_object_foreach(json, name, member) {
            failed = failed ? failed : bags_import_pack_text(to, name, strlen(name));
            failed = failed ? failed : bags_import_pack(to, member);
        }
        return failed;
    }
    case json_type_null:
    default:
        return msgpack_pack_nil(to);
    }
}

/* The bytes packed so far. */
typedef struct bags_import_packed {
    bags_buffer *to;
    size_t size;
    bags_error *err;
} bags_import_packed;

static inline int bags_import_packed_write(void *data, const char *bytes, size_t size) {
    bags_import_packed *packed = (bags_import_packed *)data;
    if (bags_buffer_reserve(packed->to, packed->size + size, packed->err))
        return -1;
    memcpy(packed->to->data + packed->size, bytes, size);
    packed->size += size;
    return 0;
}

/* For bags_conversion_options. */
static inline bags_code bags_import_pack_json(
    bags_view json, bags_buffer *scratch, bags_view *msgpack, bags_error *err) {
    bags_import_packed packed = {scratch, 0, err};
    msgpack_packer packer;
    json_object *tree = NULL;
    const char *what = NULL;
    size_t at = 0;
    if (json.size > BAGS_IMPORT_PACK_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "JSON too large (%zu bytes, maximum 2^30)", json.size);
    char *copy = (char *)malloc(json.size + 1);
    if (!copy)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    if (json.size)
        memcpy(copy, json.data, json.size);
    copy[json.size] = '\0';
    json.data = (const unsigned char *)copy;
    bags_code code = bags_import_json(json, &tree, &what, &at);
    free(copy);
    if (code == BAGS_ERROR_MEMORY)
        return bags_fail(err, code, "out of memory");
    if (code)
        return bags_fail(err, code, "column %zu: %s", at + 1, what);
    msgpack_packer_init(&packer, &packed, bags_import_packed_write);
    int failed = bags_import_pack(&packer, tree);
    json_object_put(tree);
    msgpack->data = scratch->data;
    msgpack->size = packed.size;
    return failed ? err->code : BAGS_OK;
}

#endif /* BAGS_IMPORT_PACK_H */
