/*
 * pack.h - convert JSON to msgpack, for the importers and the command. Private.
 */
#ifndef BAGS_IMPORT_PACK_H
#define BAGS_IMPORT_PACK_H

#include <json-c/json.h>
#include <msgpack.h>
#include <string.h>

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

#endif /* BAGS_IMPORT_PACK_H */
