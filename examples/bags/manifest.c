/*
 * What stands in a manifest, as values: numbers, text, {"file"}, {"base64"} and
 * {"from"}; for arrays nested lists; and for the types msgpack and tree any JSON.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

static bags_code fail_kind(bags_error *err, const char *type,
    json_object *json) {
    static const char *const kinds[] = {"null", "true or false",
        "a number with a fraction", "a number", "an object", "a list", "text"};
    json_type kind = json_object_get_type(json);
    if (kind == json_type_object)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an object must be {\"file\": PATH}, {\"base64\": TEXT} or "
            "{\"from\": PATH}");
    if (kind == json_type_array)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a list is no value of the type %.80s: a sequence of it is %.80s[]",
            type, type);
    const char *takes = type_shown_as(type) == SHOWN_NUMBER ? "a whole number"
                        : type_shown_as(type) == SHOWN_TEXT
                            ? "text"
                            : "a file, as {\"from\": PATH} or, encoded already, "
                              "{\"file\": PATH}";
    return bags_fail(err, BAGS_ERROR_VALUE,
        "%s is no value of the type %.80s, which takes %s", kinds[kind], type,
        takes);
}

/* The text in {"file": TEXT}, if it is this and nothing else. */
static const char *single(json_object *json, const char *name, size_t *size) {
    json_object *inner;
    if (!json_object_is_type(json, json_type_object) ||
        json_object_object_length(json) != 1 ||
        !json_object_object_get_ex(json, name, &inner) ||
        !json_object_is_type(inner, json_type_string))
        return NULL;
    *size = (size_t)json_object_get_string_len(inner);
    return json_object_get_string(inner);
}

static bags_code read_file(value_reader *with, const char *name,
    size_t name_size, char **path, size_t *size, bags_error *err) {
    if (name_size == 0 || strlen(name) != name_size)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an empty path, or one with U+0000");
    *path = path_join(with->directory, name, err);
    if (!*path)
        return BAGS_ERROR_MEMORY;
    return file_read(*path, &with->file, size, err);
}

static bags_code value_file(value_reader *with, const char *name,
    size_t name_size, bool decode, bags_value *out, bags_error *err) {
    char *path = NULL;
    size_t size = 0;
    bags_code code = read_file(with, name, name_size, &path, &size, err);
    if (!code && decode) {
        bags_view file = {with->file.data, size};
        code = value_from_file(with->codecs, path, file, &with->scratch, out,
            err);
    } else if (!code) {
        *out = bags_blob(with->file.data, size);
    }
    free(path);
    return code;
}

static bags_code value_base64(value_reader *with, const char *digits,
    size_t size, bags_value *out, bags_error *err) {
    size_t bytes = 0;
    bags_code code = base64_decode(digits, size, &with->file, &bytes, err);
    if (!code)
        *out = bags_blob(with->file.data, bytes);
    return code;
}

static bags_code value_msgpack(value_reader *with, json_object *json,
    bags_value *out, bags_error *err) {
    size_t size = 0;
    bags_code code = msgpack_from_json(json, &with->file, &size, err);
    if (!code)
        *out = bags_blob(with->file.data, size);
    return code;
}

bags_code value_from_json(value_reader *with, const char *type,
    json_object *json, bags_value *out, bags_error *err) {
    size_t size = 0;
    const char *found = single(json, "file", &size);
    if (found)
        return value_file(with, found, size, false, out, err);
    found = single(json, "base64", &size);
    if (found)
        return value_base64(with, found, size, out, err);
    found = type ? single(json, "from", &size) : NULL;
    if (found)
        return value_file(with, found, size, true, out, err);
    if (!type)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a blob must be {\"file\": PATH} or {\"base64\": TEXT}");
    if (type_shown_as(type) == SHOWN_MSGPACK)
        return value_msgpack(with, json, out, err);
    if (type_shown_as(type) == SHOWN_ARRAY)
        return array_from_list(with, type, json, out, err);
    if (json_object_is_type(json, json_type_string)) {
        *out = bags_utf8_sized(json_object_get_string(json),
            (size_t)json_object_get_string_len(json));
        return BAGS_OK;
    }
    if (!json_object_is_type(json, json_type_int))
        return fail_kind(err, type, json);
    int64_t number = json_object_get_int64(json);
    *out = number < 0 ? bags_int(number)
                      : bags_uint(json_object_get_uint64(json));
    return BAGS_OK;
}

void values_free(value_reader *with) {
    bags_buffer_free(&with->file);
    bags_buffer_free(&with->scratch);
}
