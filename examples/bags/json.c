/*
 * Read JSON with json-c, as the importers do. Input that json-c would silently change
 * is an error.
 */
#include "command.h"

#include "formats.h"
#include "json.h"

#define MAX_SIZE ((size_t)1 << 30)

/* Errors state only the column, since a manifest has one object per line. */
json_object *json_read(const char *string, size_t size) {
    bags_view view = {(const unsigned char *)string, size};
    json_object *tree = NULL;
    const char *what = NULL;
    size_t at = 0;
    if (size > MAX_SIZE)
        fail(BAGS_ERROR_LIMIT, "JSON too large (%zu bytes, maximum 2^30)", size);
    bags_code code = bags_import_json(view, &tree, &what, &at);
    if (code == BAGS_ERROR_MEMORY)
        fail(code, "out of memory");
    if (code)
        fail(code, "column %zu: %s", at + 1, what);
    return tree;
}

/* Parse the content of the file at `path`. */
static bags_code metadata_parse(
    const char *path, bags_view content, json_object **out) {
    const char *what = NULL;
    size_t at = 0;
    bags_code code = bags_import_json(content, out, &what, &at);
    if (code == BAGS_ERROR_MEMORY)
        return bags_fail(&failure, code, "out of memory");
    if (code)
        return bags_fail(&failure, code, "%s: column %zu: %s", path, at + 1, what);
    if (json_object_is_type(*out, json_type_object))
        return BAGS_OK;
    json_object_put(*out);
    *out = NULL;
    return bags_fail(&failure, BAGS_ERROR_VALUE, "%s: not a JSON object", path);
}

bags_code metadata_read(
    const char *path, const bags_reader *reader, json_object **out) {
    bags_buffer buffer = {0};
    bags_env env = {NULL, io_for_path(path)};
    bags_view content = {NULL, 0};
    char file[4096];
    *out = NULL;
    bags_code code = bags_metadata_path(path, reader, file, sizeof file, &failure);
    if (!code)
        code = bags_metadata_read(path, reader, &env, &buffer, &content, &failure);
    if (!code && content.data)
        code = metadata_parse(file, content, out);
    bags_buffer_free(&buffer);
    return code;
}
