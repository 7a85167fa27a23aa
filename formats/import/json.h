/*
 * json.h - a JSON file by json-c, for the importers that need it. Private.
 */
#ifndef BAGS_IMPORT_JSON_H
#define BAGS_IMPORT_JSON_H

#include "import.h"

#include <inttypes.h>
#include <json-c/json.h>

/* Parse text, which must be one JSON object of at most 128 levels and be followed by
 * a zero byte. *out is owned (json_object_put). Messages begin with `path`. */
static inline bags_code bags_source_parse_json(
    bags_source *source, const char *path, bags_view text, json_object **out) {
    json_tokener *tokener = json_tokener_new_ex(128);
    if (!tokener)
        return bags_source_no_memory(source);
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
    return bags_fail(source->err, BAGS_ERROR_CORRUPT,
        "%s: invalid JSON before byte %" PRIu64 ": %s", path, (uint64_t)end,
        error != json_tokener_success ? json_tokener_error_desc(error)
        : good                        ? "not an object"
                                      : "trailing bytes");
}

/* The same for a file. */
static inline bags_code bags_source_json(
    bags_source *source, const char *path, json_object **out) {
    bags_view text = {NULL, 0};
    bags_code code = bags_source_load(source, path, INT32_MAX - 1, &text);
    return code ? code : bags_source_parse_json(source, path, text, out);
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

/* A member that is text, or "". */
static inline const char *bags_import_json_text(
    json_object *json, const char *name) {
    json_object *member = bags_import_member(json, name, json_type_string);
    return member ? json_object_get_string(member) : "";
}

#endif /* BAGS_IMPORT_JSON_H */
