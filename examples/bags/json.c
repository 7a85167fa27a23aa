/*
 * Read JSON with json-c, as the importers do. Input that json-c would silently change
 * is an error.
 */
#include "command.h"

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
