/*
 * sql.h - names, text and paths as parts of a query of DuckDB, for the importers that
 * query. Private.
 */
#ifndef BAGS_IMPORT_SQL_H
#define BAGS_IMPORT_SQL_H

#include "import.h"

#include <string.h>

/* Quote text for SQL. */
static inline const char *bags_import_quote(
    bags_source *s, const char *text, char quote) {
    char *out = text ? (char *)bags_source_alloc(s, 2 * strlen(text) + 3, 1) : NULL;
    char *to = out;
    if (!out)
        return NULL;
    *to++ = quote;
    for (; *text; text++) {
        *to++ = *text;
        if (*text == quote)
            *to++ = quote;
    }
    *to = quote;
    return out;
}

/* Write a path with brackets around characters that would otherwise make it a
 * pattern. */
static inline const char *bags_import_no_pattern(bags_source *s, const char *path) {
    char *out = path ? (char *)bags_source_alloc(s, 3 * strlen(path) + 1, 1) : NULL;
    char *to = out;
    for (; out && *path; path++) {
        bool special = strchr("*?[", *path) != NULL;
        if (special)
            *to++ = '[';
        *to++ = *path;
        if (special)
            *to++ = ']';
    }
    return out;
}

/* Quote a path that is not a pattern. */
static inline const char *bags_import_quote_path(bags_source *s, const char *path) {
    return bags_import_quote(s, bags_import_no_pattern(s, path), '\'');
}

#endif /* BAGS_IMPORT_SQL_H */
