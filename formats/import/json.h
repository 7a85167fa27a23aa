/*
 * json.h - JSON using json-c, for the importers and the command. Private.
 *
 * Even in strict mode, json-c 0.16 silently changes some values: integers outside 64
 * bits are clamped, unpaired surrogates become U+FFFD, names are cut at U+0000, and the
 * last of duplicate names wins. It also accepts numbers that are not JSON, such as 00,
 * 1. and -.5. So the strings and numbers in the text are checked first, and the names
 * are counted. json-c checks the rest.
 */
#ifndef BAGS_IMPORT_JSON_H
#define BAGS_IMPORT_JSON_H

#include "import.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#define BAGS_IMPORT_JSON_DEPTH 500

typedef struct bags_import_scan {
    const char *text;
    size_t size, at;
    uint64_t names;  /* strings followed by a colon */
    uint64_t tokens; /* approximate number of objects json-c makes */
} bags_import_scan;

/* Get the code unit of \uXXXX at this offset, or -1. */
static inline int bags_import_code_unit(const bags_import_scan *s, size_t at) {
    char digits[5] = "";
    if (s->size - at < 6 || s->text[at] != '\\' || s->text[at + 1] != 'u')
        return -1;
    memcpy(digits, s->text + at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16)
                                                         : -1;
}

/* Move past a string, starting at its opening quote. Returns NULL or the error at
 * s->at, like the next function. */
static inline const char *bags_import_check_string(bags_import_scan *s) {
    size_t start = s->at++;
    bool zero = false;
    for (; s->at < s->size && s->text[s->at] != '"'; s->at++) {
        if ((unsigned char)s->text[s->at] < 0x20)
            return "a control character in a string";
        if (s->text[s->at] != '\\')
            continue;
        int unit = bags_import_code_unit(s, s->at);
        bool high = unit >= 0xD800 && unit < 0xDC00;
        int low = high ? bags_import_code_unit(s, s->at + 6) : -1;
        if ((high && (low < 0xDC00 || low > 0xDFFF)) ||
            (unit >= 0xDC00 && unit <= 0xDFFF))
            return "an unpaired surrogate";
        zero = zero || unit == 0;
        s->at += high ? 11 : unit >= 0 ? 5 : 1;
    }
    s->at = s->at < s->size ? s->at + 1 : s->size;
    size_t after = s->at + strspn(s->text + s->at, " \t\r\n");
    if (s->text[after] != ':')
        return NULL;
    s->names++;
    if (zero)
        s->at = start;
    return zero ? "U+0000 in a name" : NULL;
}

/* The end of the JSON number that starts here; `at` itself if there is none. */
static inline const char *bags_import_number_end(const char *at) {
    static const char digits[] = "0123456789";
    const char *start = at;
    at += *at == '-';
    size_t whole = strspn(at, digits), fraction = 1, exponent = 1;
    bool valid = whole == 1 || (whole > 1 && *at != '0');
    at += whole;
    if (*at == '.') {
        fraction = strspn(++at, digits);
        at += fraction;
    }
    if (*at == 'e' || *at == 'E') {
        at += at[1] == '-' || at[1] == '+' ? 2 : 1;
        exponent = strspn(at, digits);
        at += exponent;
    }
    return valid && fraction && exponent ? at : start;
}

static inline const char *bags_import_check_number(bags_import_scan *s) {
    const char *start = s->text + s->at;
    size_t size = strspn(start, "+-.0123456789eE");
    bool integer = strcspn(start, ".eE") >= size;
    if (bags_import_number_end(start) != start + size)
        return "not a JSON number";
    errno = 0;
    if (!integer && !isfinite(strtod(start, NULL)))
        return "a number above 1.8e308";
    if (integer && *start == '-')
        strtoll(start, NULL, 10);
    else if (integer)
        strtoull(start, NULL, 10);
    if (integer && errno == ERANGE)
        return "an integer outside -2^63 .. 2^64-1";
    s->at += size;
    return NULL;
}

static inline const char *bags_import_check_json(bags_import_scan *s) {
    const char *what = NULL;
    if (!bags_utf8_valid(s->text, s->size, &s->at))
        return "invalid UTF-8";
    for (s->at = 0; !what && s->at < s->size;) {
        char c = s->text[s->at];
        s->tokens += strchr(" \t\r\n", c) == NULL;
        if (c == '"')
            what = bags_import_check_string(s);
        else if (c && strchr("-0123456789", c) &&
                 strncmp(s->text + s->at, "-Infinity", 9))
            what = bags_import_check_number(s);
        else if (c == 0 || c == '\'')
            what = "this is not JSON";
        else
            s->at++;
    }
    return what;
}

static inline uint64_t bags_import_count_names(json_object *tree) {
    uint64_t count = 0;
    if (json_object_is_type(tree, json_type_object)) {
        json_object_iter at;
        json_object_object_foreachC(tree, at) count +=
            1 + bags_import_count_names(at.val);
    } else if (json_object_is_type(tree, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(tree); i++)
            count += bags_import_count_names(json_object_array_get_idx(tree, i));
    }
    return count;
}

/* json-c 0.16 writes to a null pointer if allocating a name fails, so check first
 * whether the tree for this text fits in memory. */
static inline bool bags_import_json_fits(const bags_import_scan *s) {
    uint64_t size = 3 * (uint64_t)s->size + 256 * s->tokens + 65536;
    void *probe = size < SIZE_MAX ? malloc((size_t)size) : NULL;
    free(probe);
    return probe != NULL;
}

/* Parse text of less than 2 GiB, followed by a zero byte. The caller frees *out with
 * json_object_put; it is NULL for null. Returns BAGS_OK, BAGS_ERROR_MEMORY, or
 * BAGS_ERROR_VALUE with the reason and the position. */
static inline bags_code bags_import_json(
    bags_view bytes, json_object **out, const char **what, size_t *at) {
    bags_import_scan s = {(const char *)bytes.data, bytes.size, 0, 0, 0};
    *out = NULL;
    *what = bags_import_check_json(&s);
    *at = s.at;
    if (*what)
        return BAGS_ERROR_VALUE;
    json_tokener *parser = bags_import_json_fits(&s)
                               ? json_tokener_new_ex(BAGS_IMPORT_JSON_DEPTH + 1)
                               : NULL;
    if (!parser)
        return BAGS_ERROR_MEMORY;
    json_tokener_set_flags(parser, JSON_TOKENER_STRICT);
    /* The zero byte tells the parser that the text ends. */
    json_object *tree = json_tokener_parse_ex(parser, s.text, (int)s.size + 1);
    enum json_tokener_error fault = json_tokener_get_error(parser);
    *at = json_tokener_get_parse_end(parser);
    json_tokener_free(parser);
    if (fault != json_tokener_success)
        *what = json_tokener_error_desc(fault);
    else if (bags_import_count_names(tree) != s.names)
        *what = "an object has a duplicate name";
    if (!*what) {
        *out = tree;
        return BAGS_OK;
    }
    json_object_put(tree);
    return BAGS_ERROR_VALUE;
}

/* Like bags_import_json, for a part of a source that must be an object. Messages begin
 * with `path`. */
static inline bags_code bags_source_parse_json(
    bags_source *source, const char *path, bags_view bytes, json_object **out) {
    const char *what = NULL;
    size_t at = 0;
    bags_code code = bags_import_json(bytes, out, &what, &at);
    if (code == BAGS_ERROR_MEMORY)
        return bags_source_no_memory(source);
    if (!code && json_object_is_type(*out, json_type_object))
        return BAGS_OK;
    json_object_put(*out);
    *out = NULL;
    return bags_fail(source->err, BAGS_ERROR_CORRUPT,
        "%s: invalid JSON before byte %" PRIu64 ": %s", path, (uint64_t)at,
        code ? what : "not an object");
}

/* The same for a file. */
static inline bags_code bags_source_json(
    bags_source *source, const char *path, json_object **out) {
    bags_view file = {NULL, 0};
    bags_code code = bags_source_load(source, path, INT32_MAX - 1, &file);
    return code ? code : bags_source_parse_json(source, path, file, out);
}

/* Write JSON as text that is valid until the source is closed. NULL, with the error set,
 * if out of memory. */
static inline char *bags_source_print_json(bags_source *source, json_object *json) {
    const char *made = json_object_to_json_string_ext(
        json, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (made)
        return bags_source_text(source, made, strlen(made));
    bags_source_no_memory(source);
    return NULL;
}

/* Get a member of this type; NULL if there is none. */
static inline json_object *bags_import_member(
    json_object *json, const char *name, enum json_type type) {
    json_object *member = NULL;
    if (!json_object_is_type(json, json_type_object) ||
        !json_object_object_get_ex(json, name, &member) ||
        !json_object_is_type(member, type))
        return NULL;
    return member;
}

/* Get the text of a member, or "" if it is not text. */
static inline const char *bags_import_json_text(json_object *json, const char *name) {
    json_object *member = bags_import_member(json, name, json_type_string);
    return member ? json_object_get_string(member) : "";
}

#endif /* BAGS_IMPORT_JSON_H */
