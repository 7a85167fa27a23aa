/*
 * Reading JSON. json-c builds the tree; but even when told to be strict it lets
 * pass what would change data without a word: integers above 2^64-1 become
 * 2^64-1, half a surrogate becomes U+FFFD, of a name given twice the last one
 * wins, and a name ends at U+0000. So the text is looked through first, token
 * by token, and the names are counted before and after.
 */
#include "command.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JSON_SIZE_MOST ((size_t)1 << 30)
#define JSON_DEPTH_MOST 500

typedef struct scan {
    const char *text;
    size_t size, at;
    size_t depth;
    uint64_t names, tokens;
    bags_error *err;
} scan;

static bool scan_fail(scan *s, size_t at, const char *why) {
    bags_fail(s->err, BAGS_ERROR_VALUE, "column %zu: %s", at + 1, why);
    return false;
}

static char scan_peek(const scan *s) {
    return s->at < s->size ? s->text[s->at] : 0;
}

static void scan_space(scan *s) {
    while (s->at < s->size && strchr(" \t\r\n", s->text[s->at]) &&
           s->text[s->at])
        s->at++;
}

/* Four hexadecimal digits at s->at, or -1. */
static int scan_hex(scan *s) {
    int code = 0;
    for (int i = 0; i < 4; i++) {
        char c = scan_peek(s);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
        s->at++;
    }
    return code;
}

/* A backslash and what belongs to it. */
static bool scan_escape(scan *s, bool *zero) {
    size_t from = s->at++;
    char kind = scan_peek(s);
    s->at++;
    if (kind != 'u')
        return kind && strchr("\"\\/bfnrt", kind)
                   ? true
                   : scan_fail(s, from, "no such escape in a string");
    int code = scan_hex(s);
    if (code < 0)
        return scan_fail(s, from, "\\u needs four hexadecimal digits");
    *zero = *zero || code == 0;
    if (code < 0xD800 || code > 0xDFFF)
        return true;
    bool low = code < 0xDC00 && scan_peek(s) == '\\';
    s->at += 1;
    low = low && scan_peek(s) == 'u';
    s->at += 1;
    code = low ? scan_hex(s) : -1;
    if (code < 0xDC00 || code > 0xDFFF)
        return scan_fail(s, from, "half a surrogate pair");
    return true;
}

/* A string, and whether it is a name, which is what a colon says. */
static bool scan_string(scan *s) {
    size_t from = s->at++;
    bool zero = false;
    for (;;) {
        unsigned char c = (unsigned char)scan_peek(s);
        if (s->at >= s->size)
            return scan_fail(s, from, "a string without an end");
        if (c < 0x20)
            return scan_fail(s, s->at, "a control character in a string");
        if (c == '"')
            break;
        if (c != '\\')
            s->at++;
        else if (!scan_escape(s, &zero))
            return false;
    }
    s->at++;
    scan_space(s);
    if (scan_peek(s) != ':')
        return true;
    s->names++;
    return !zero || scan_fail(s, from, "U+0000 in a name");
}

static bool scan_digits(scan *s) {
    size_t from = s->at;
    while (scan_peek(s) >= '0' && scan_peek(s) <= '9')
        s->at++;
    return s->at > from;
}

/* An integer that fits 64 bits, or a number that a double holds. */
static bool scan_number(scan *s) {
    size_t from = s->at;
    bool minus = scan_peek(s) == '-';
    s->at += minus ? 1 : 0;
    size_t first = s->at;
    bool good = scan_digits(s) && (s->text[first] != '0' || s->at == first + 1);
    bool whole = true;
    if (good && scan_peek(s) == '.') {
        whole = false;
        s->at++;
        good = scan_digits(s);
    }
    if (good && (scan_peek(s) == 'e' || scan_peek(s) == 'E')) {
        whole = false;
        s->at++;
        if (scan_peek(s) == '+' || scan_peek(s) == '-')
            s->at++;
        good = scan_digits(s);
    }
    if (!good)
        return scan_fail(s, from, "not a number as JSON has them");
    if (!whole)
        return isfinite(strtod(s->text + from, NULL)) ||
               scan_fail(s, from, "a number that is too large");
    errno = 0;
    if (minus)
        strtoll(s->text + from, NULL, 10);
    else
        strtoull(s->text + from, NULL, 10);
    return errno != ERANGE ||
           scan_fail(s, from, "an integer outside -2^63 .. 2^64-1");
}

static bool scan_word(scan *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        size_t size = strlen(words[i]);
        if (s->size - s->at >= size &&
            !memcmp(s->text + s->at, words[i], size)) {
            s->at += size;
            return true;
        }
    }
    return scan_fail(s, s->at, "this is not JSON");
}

static bool scan_token(scan *s) {
    char c = scan_peek(s);
    s->tokens++;
    if (c == '"')
        return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9'))
        return scan_number(s);
    if (!c || !strchr("[]{}:,", c))
        return scan_word(s);
    if ((c == '[' || c == '{') && ++s->depth > JSON_DEPTH_MOST)
        return scan_fail(s, s->at, "nested too deeply");
    if ((c == ']' || c == '}') && s->depth-- == 0)
        return scan_fail(s, s->at, "closes what was not opened");
    s->at++;
    return true;
}

/* Look through the whole text. */
static bool scan_text(scan *s) {
    size_t good = utf8_valid(s->text, s->size);
    if (good < s->size)
        return scan_fail(s, good, "not UTF-8");
    for (scan_space(s); s->at < s->size; scan_space(s))
        if (!scan_token(s))
            return false;
    return true;
}

static uint64_t count_names(json_object *tree) {
    uint64_t count = 0;
    if (json_object_is_type(tree, json_type_object)) {
        json_object_iter at;
        json_object_object_foreachC(tree, at)
            count += 1 + count_names(at.val);
    } else if (json_object_is_type(tree, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(tree); i++)
            count += count_names(json_object_array_get_idx(tree, i));
    }
    return count;
}

/* How often the outermost object has this name, as it is written there. */
static unsigned count_outer(const char *string, size_t size, const char *name) {
    scan s = {string, size, 0, 0, 0, 0, NULL};
    size_t length = strlen(name);
    unsigned count = 0;
    for (scan_space(&s); s.at < size; scan_space(&s)) {
        size_t from = s.at, depth = s.depth;
        uint64_t names = s.names;
        if (!scan_token(&s))
            break;
        if (s.names > names && depth == 1 && size - from > length + 1 &&
            !memcmp(string + from + 1, name, length) &&
            string[from + 1 + length] == '"')
            count++;
    }
    return count;
}

static bags_code fail_twice(json_object *tree, const char *string, size_t size,
    bags_error *err) {
    bool short_enough = json_object_is_type(tree, json_type_object) &&
        (size_t)json_object_object_length(tree) < ((size_t)1 << 28) / size;
    if (short_enough) {
        json_object_iter at;
        json_object_object_foreachC(tree, at)
            if (count_outer(string, size, at.key) > 1)
                return bags_fail(err, BAGS_ERROR_FIELD,
                    "field \"%s\": given twice", at.key);
    }
    return bags_fail(err, BAGS_ERROR_VALUE,
        "an object has the same name twice, or memory ran out");
}

/* json-c 0.16 writes where it got no memory for a name. So see first whether
 * there is as much as a tree of this text can take. */
static bool is_memory_enough(const scan *s) {
    uint64_t size = 3 * (uint64_t)s->size + 256 * s->tokens + 65536;
    void *probe = size < SIZE_MAX ? malloc((size_t)size) : NULL;
    free(probe);
    return probe != NULL;
}

static bags_code parse(const scan *s, json_object **out) {
    json_tokener *parser = json_tokener_new_ex(JSON_DEPTH_MOST + 1);
    if (!parser)
        return fail_memory(s->err);
    json_tokener_set_flags(parser, JSON_TOKENER_STRICT);
    /* With the zero byte behind it the parser knows that the text ends. */
    *out = json_tokener_parse_ex(parser, s->text, (int)s->size + 1);
    enum json_tokener_error why = json_tokener_get_error(parser);
    size_t end = json_tokener_get_parse_end(parser);
    json_tokener_free(parser);
    if (why == json_tokener_success)
        return BAGS_OK;
    return bags_fail(s->err, BAGS_ERROR_VALUE, "column %zu: %s", end + 1,
        json_tokener_error_desc(why));
}

bags_code json_read(const char *string, size_t size, json_object **out,
    bags_error *err) {
    scan s = {string, size, 0, 0, 0, 0, err};
    if (size > JSON_SIZE_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%zu bytes of JSON; the most is 2^30", size);
    if (!scan_text(&s))
        return BAGS_ERROR_VALUE;
    if (!is_memory_enough(&s))
        return fail_memory(err);
    json_object *tree = NULL;
    bags_code code = parse(&s, &tree);
    if (!code && count_names(tree) != s.names)
        code = fail_twice(tree, string, size, err);
    if (code)
        json_object_put(tree);
    else
        *out = tree;
    return code;
}
