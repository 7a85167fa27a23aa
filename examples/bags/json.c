/*
 * JSON, read by json-c. Even when it is strict, json-c 0.16 silently changes
 * some values: integers outside 64 bits are clamped, an unpaired surrogate
 * becomes U+FFFD, a name ends at U+0000, of duplicate names the last one wins.
 * So the strings and numbers of the text are checked first, and the names are
 * counted. What is JSON and what is not, json-c decides.
 */
#include "command.h"

#include <errno.h>
#include <limits.h>
#include <math.h>

#define MAX_SIZE ((size_t)1 << 30)
#define MAX_DEPTH 500

typedef struct scan {
    const char *text;
    size_t size, at;
    uint64_t names;  /* strings that a colon follows */
    uint64_t tokens; /* about as many as json-c makes objects */
} scan;

ENDS static void fail_at(size_t at, const char *message) {
    fail(BAGS_ERROR_VALUE, "column %zu: %s", at + 1, message);
}

/* The code unit of \uXXXX at this offset, or -1. */
static int code_unit(const scan *s, size_t at) {
    char digits[5] = "";
    if (s->size - at < 6 || s->text[at] != '\\' || s->text[at + 1] != 'u')
        return -1;
    memcpy(digits, s->text + at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4
               ? (int)strtol(digits, NULL, 16)
               : -1;
}

/* A string, at its opening quote. */
static void check_string(scan *s) {
    size_t start = s->at++;
    bool zero = false;
    for (; s->at < s->size && s->text[s->at] != '"'; s->at++) {
        if ((unsigned char)s->text[s->at] < 0x20)
            fail_at(s->at, "a control character in a string");
        if (s->text[s->at] != '\\')
            continue;
        int unit = code_unit(s, s->at);
        bool high = unit >= 0xD800 && unit < 0xDC00;
        int low = high ? code_unit(s, s->at + 6) : -1;
        if ((high && (low < 0xDC00 || low > 0xDFFF)) ||
            (unit >= 0xDC00 && unit <= 0xDFFF))
            fail_at(s->at, "an unpaired surrogate");
        zero = zero || unit == 0;
        s->at += high ? 11 : unit >= 0 ? 5 : 1;
    }
    s->at = s->at < s->size ? s->at + 1 : s->size;
    size_t after = s->at + strspn(s->text + s->at, " \t\r\n");
    if (s->text[after] != ':')
        return;
    s->names++;
    if (zero)
        fail_at(start, "U+0000 in a name");
}

static void check_number(scan *s) {
    const char *start = s->text + s->at;
    size_t size = strspn(start, "+-.0123456789eE");
    bool integer = strcspn(start, ".eE") >= size;
    s->at += size;
    errno = 0;
    if (!integer) {
        if (!isfinite(strtod(start, NULL)))
            fail_at(s->at - size, "a number above 1.8e308");
    } else if (*start == '-') {
        strtoll(start, NULL, 10);
    } else {
        strtoull(start, NULL, 10);
    }
    if (integer && errno == ERANGE)
        fail_at(s->at - size, "an integer outside -2^63 .. 2^64-1");
}

static void check_text(scan *s) {
    size_t bad = 0;
    if (!bags_utf8_valid(s->text, s->size, &bad))
        fail_at(bad, "invalid UTF-8");
    while (s->at < s->size) {
        char c = s->text[s->at];
        s->tokens += strchr(" \t\r\n", c) == NULL;
        if (c == '"')
            check_string(s);
        else if (c && strchr("-0123456789", c) &&
                 strncmp(s->text + s->at, "-Infinity", 9))
            check_number(s);
        else if (c == 0 || c == '\'')
            fail_at(s->at, "this is not JSON");
        else
            s->at++;
    }
}

static uint64_t count_names(json_object *tree) {
    uint64_t count = 0;
    if (json_object_is_type(tree, json_type_object)) {
        json_object_iter at;
        json_object_object_foreachC(tree, at) count += 1 + count_names(at.val);
    } else if (json_object_is_type(tree, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(tree); i++)
            count += count_names(json_object_array_get_idx(tree, i));
    }
    return count;
}

/* json-c 0.16 writes to a null pointer when it gets no memory for a name, so
 * check first whether a tree of this text fits. */
static bool has_memory(const scan *s) {
    uint64_t size = 3 * (uint64_t)s->size + 256 * s->tokens + 65536;
    void *probe = size < SIZE_MAX ? malloc((size_t)size) : NULL;
    free(probe);
    return probe != NULL;
}

json_object *json_read(const char *string, size_t size) {
    scan s = {string, size, 0, 0, 0};
    if (size > MAX_SIZE)
        fail(
            BAGS_ERROR_LIMIT, "JSON too large (%zu bytes, maximum 2^30)", size);
    check_text(&s);
    json_tokener *parser =
        has_memory(&s) ? json_tokener_new_ex(MAX_DEPTH + 1) : NULL;
    if (!parser)
        fail(BAGS_ERROR_MEMORY, "out of memory");
    json_tokener_set_flags(parser, JSON_TOKENER_STRICT);
    /* The zero byte tells the parser that the text ends. */
    json_object *tree = json_tokener_parse_ex(parser, string, (int)size + 1);
    enum json_tokener_error fault = json_tokener_get_error(parser);
    size_t end = json_tokener_get_parse_end(parser);
    json_tokener_free(parser);
    if (fault != json_tokener_success)
        fail_at(end, json_tokener_error_desc(fault));
    if (count_names(tree) != s.names)
        fail(BAGS_ERROR_VALUE, "an object has a duplicate name");
    return tree;
}
