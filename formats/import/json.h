/*
 * json.h - a JSON file by json-c, for the importers that need it. Private.
 */
#ifndef BAGS_IMPORT_JSON_H
#define BAGS_IMPORT_JSON_H

#include "import.h"

#include <inttypes.h>
#include <json-c/json.h>

/* Parse a file, which must contain one JSON object of at most 128 levels. *out is
 * owned (json_object_put). The buffer is scratch. */
static inline bags_code bags_import_json(
    const char *path, bags_buffer *buffer, json_object **out, bags_error *err) {
    bags_view text = {NULL, 0};
    bags_code code =
        bags_import_file_load(path, INT32_MAX - 1, buffer, &text, err);
    if (code)
        return code;
    json_tokener *tokener = json_tokener_new_ex(128);
    if (!tokener)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    json_tokener_set_flags(tokener, JSON_TOKENER_VALIDATE_UTF8);
    /* With its zero byte, so that a number at the end is complete. */
    json_object *json = json_tokener_parse_ex(
        tokener, (const char *)text.data, (int)text.size + 1);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    size_t end = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);
    while (
        end < text.size && text.data[end] && strchr(" \t\r\n", text.data[end]))
        end++;
    bool good = error == json_tokener_success && end >= text.size;
    if (good && json_object_is_type(json, json_type_object)) {
        *out = json;
        return BAGS_OK;
    }
    json_object_put(json);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: invalid JSON before byte %" PRIu64 ": %s", path, (uint64_t)end,
        error != json_tokener_success ? json_tokener_error_desc(error)
        : good                        ? "not an object"
                                      : "trailing bytes");
}

/* The member of a type; NULL if there is none. */
static inline json_object *bags_import_member(
    json_object *json, const char *name, enum json_type type) {
    json_object *member = NULL;
    if (!json_object_is_type(json, json_type_object) ||
        !json_object_object_get_ex(json, name, &member) ||
        !json_object_is_type(member, type))
        return NULL;
    return member;
}

#endif /* BAGS_IMPORT_JSON_H */
