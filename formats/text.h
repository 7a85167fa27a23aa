/*
 * text.h - shared text functions: base64, numbers, URLs, UTF-8. Programs do not include
 * it.
 */
#ifndef BAGS_FORMATS_TEXT_H
#define BAGS_FORMATS_TEXT_H

#include "bags.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True if a name ends with this suffix. */
static inline bool format_ends(const char *name, size_t size, const char *ending) {
    size_t length = strlen(ending);
    return size >= length && !memcmp(name + size - length, ending, length);
}

/* Order texts, or structs whose first member is one, by their bytes: for qsort. */
static inline int format_compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The size of a path without trailing slashes. "/" keeps its slash. */
static inline size_t format_path_size(const char *path) {
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    return size;
}

#define FORMAT_BASE64 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

/* Encode the first three of `size` bytes, or all of them if there are fewer. */
static inline void format_base64_encode(
    const unsigned char *data, size_t size, char four[4]) {
    uint64_t bits = size < 3 ? bags_load_bytes(data, size, true) << 8 * (3 - size)
                             : bags_load_bytes(data, 3, true);
    for (size_t i = 0; i < 4; i++)
        four[i] = i > size ? '=' : FORMAT_BASE64[bits >> (18 - 6 * i) & 63];
}

/* Decode standard padded base64 to `out` (`capacity` bytes). Returns NULL, or the
 * reason for the failure. */
static inline const char *format_base64_decode(const char *from, size_t size,
    unsigned char *out, size_t capacity, size_t *out_size) {
    size_t padding = size && from[size - 1] == '=';
    padding += padding && size > 1 && from[size - 2] == '=';
    size_t digits = size - padding, made = 0;
    uint32_t bits = 0;
    if (size % 4)
        return "its length is not a multiple of 4";
    if (size / 4 * 3 - padding > capacity)
        return "too long";
    for (size_t i = 0; i < digits; i++) {
        const char *digit =
            from[i] ? strchr(FORMAT_BASE64, from[i]) : NULL; /* strchr would match the
                                                              * terminating NUL */
        if (!digit)
            return "an invalid character";
        bits = bits << 6 | (uint32_t)(digit - FORMAT_BASE64);
        if (i % 4 > 0)
            out[made++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    *out_size = made;
    /* Unused bits in the last digit must be zero, since decoding would lose them. */
    return bits & ((1U << 2 * padding) - 1) ? "the last digit has unused bits" : NULL;
}

/* True if the float `held`, printed with as many digits as `word`, gives the same
 * decimal (its nearest float64 is `number`): 0.1 fits a float32, 16777217 does not. */
static inline bool format_is_decimal(const char *word, double number, double held) {
    char again[64];
    int digits = 0, zeros = 0; /* significant digits, and trailing zeros among them */
    for (; *word && *word != 'e' && *word != 'E'; word++) {
        if (*word < '0' || *word > '9' || (*word == '0' && digits == 0))
            continue;
        digits++;
        zeros = *word == '0' ? zeros + 1 : 0;
    }
    digits -= zeros;
    bool is_zero = number <= 0 && number >= 0;
    if (digits == 0 || is_zero)
        return digits == 0;
    snprintf(again, sizeof again, "%.*e", digits > 17 ? 16 : digits - 1, held);
    double same = strtod(again, NULL);
    return digits <= 17 && same <= number && same >= number;
}

/* The value of a hexadecimal digit; -1 for any other character. */
static inline int format_hex(char c) {
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

#define FORMAT_PLAIN                                                                   \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~"

/* Escape text for a URL: all bytes except FORMAT_PLAIN and `keep`. Existing escapes
 * before `plain` (may be NULL) are kept. The caller frees the result. NULL: out of
 * memory. */
static inline char *format_url(const char *from, const char *keep, const char *plain) {
    char *out = (char *)malloc(3 * strlen(from) + 1);
    size_t size = 0;
    if (!out)
        return NULL;
    for (const char *at = from; *at; at++) {
        bool encoded = plain && at < plain && *at == '%' && format_hex(at[1]) >= 0 &&
                       format_hex(at[2]) >= 0;
        if (encoded || strchr(FORMAT_PLAIN, *at) || strchr(keep, *at))
            out[size++] = *at;
        else
            size +=
                (size_t)snprintf(out + size, 4, "%%%02X", (unsigned)(unsigned char)*at);
    }
    out[size] = '\0';
    return out;
}

/* Parse the decimal number at *at, and move *at past its digits. They end before `end`
 * (NULL: at the first non-digit). False if there are no digits, or the number exceeds
 * 2^64-1. */
static inline bool format_decimal(const char **at, const char *end, uint64_t *out) {
    const char *start = *at;
    bool fits = true;
    for (*out = 0; *at != end && **at >= '0' && **at <= '9'; ++*at) {
        unsigned digit = (unsigned)(**at - '0');
        fits = fits && *out <= (UINT64_MAX - digit) / 10;
        *out = *out * 10 + digit;
    }
    return fits && *at > start;
}

/* Parse all of a text as a number: digits, and a minus sign for BAGS_KIND_INT. False if it
 * is not one, or exceeds 64 bits. */
static inline bool format_number(const char *word, size_t size, bags_value *out) {
    bool negative = size > 0 && *word == '-';
    const char *at = word + negative;
    uint64_t bits;
    if (size == 0 || !format_decimal(&at, word + size, &bits) || at != word + size)
        return false;
    if (negative && bits > (uint64_t)1 << 63)
        return false;
    *out = negative ? bags_int((int64_t)(0 - bits)) : bags_uint(bits);
    return true;
}

/* ---- JSON, checked without a tree ---- */

#define FORMAT_JSON_DEPTH 500
#define FORMAT_METADATA_MOST ((size_t)16 << 20) /* BAGS_METADATA_MOST of datasets.h */

static inline const char *format_json_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n'))
        at++;
    return at;
}

/* Each of these functions returns the end of what starts at `at`, or NULL if that is not
 * JSON. */
static inline const char *format_json_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at != '\\')
            continue;
        if (++at == end || !*at || !strchr("\"\\/bfnrtu", *at))
            return NULL;
        for (int i = 1; *at == 'u' && i <= 4; i++)
            if (end - at <= i || format_hex(at[i]) < 0)
                return NULL;
    }
    return at < end ? at + 1 : NULL;
}

static inline const char *format_json_digits(const char *at, const char *end) {
    const char *start = at;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > start ? at : NULL;
}

static inline const char *format_json_number(const char *at, const char *end) {
    at += *at == '-';
    at = at < end && *at == '0' ? at + 1 : format_json_digits(at, end);
    if (at && at < end && *at == '.')
        at = format_json_digits(at + 1, end);
    if (!at || at == end || (*at != 'e' && *at != 'E'))
        return at;
    at++;
    at += at < end && (*at == '+' || *at == '-');
    return format_json_digits(at, end);
}

static inline const char *format_json_word(const char *at, const char *end) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t size = strlen(words[i]);
        if ((size_t)(end - at) >= size && !memcmp(at, words[i], size))
            return at + size;
    }
    return format_json_number(at, end);
}

/* The name of a member and its colon. */
static inline const char *format_json_name(const char *at, const char *end) {
    at = at < end && *at == '"' ? format_json_string(at, end) : NULL;
    at = at ? format_json_space(at, end) : end;
    return at < end && *at == ':' ? at + 1 : NULL;
}

static inline const char *format_json_value(
    const char *at, const char *end, int depth) {
    at = format_json_space(at, end);
    if (at == end || depth > FORMAT_JSON_DEPTH)
        return NULL;
    if (*at != '{' && *at != '[')
        return *at == '"' ? format_json_string(at, end) : format_json_word(at, end);
    char close = *at == '{' ? '}' : ']';
    at = format_json_space(at + 1, end);
    if (at < end && *at == close)
        return at + 1;
    for (;;) {
        at = close == '}' ? format_json_name(at, end) : at;
        at = at ? format_json_value(at, end, depth + 1) : NULL;
        at = at ? format_json_space(at, end) : end;
        if (at == end || (*at != ',' && *at != close))
            return NULL;
        if (*at++ == close)
            return at;
        at = format_json_space(at, end);
    }
}

/* True if bytes may be an info.json: a JSON object, at most 16 MiB of UTF-8. Names may be
 * duplicate, and numbers exceed 64 bits. */
static inline bool format_is_metadata(bags_view bytes) {
    if (!bytes.data || bytes.size > FORMAT_METADATA_MOST ||
        !bags_utf8_valid(bytes.data, bytes.size, NULL))
        return false;
    const char *start = (const char *)bytes.data, *end = start + bytes.size;
    const char *at = format_json_space(start, end);
    at = at < end && *at == '{' ? format_json_value(at, end, 1) : NULL;
    return at && format_json_space(at, end) == end;
}

/* True if the digits from `at` to `end` are a number too large for a double, `value`. */
static inline bool format_is_too_large(double value, const char *at, const char *end) {
    return (value > DBL_MAX || value < -DBL_MAX) &&
           strcspn(at, "0123456789") < (size_t)(end - at);
}

/* Print the fewest digits that read back as the same float or double. */
static inline void format_digits(char out[40], double number, bool is_single) {
    double least = is_single ? 1.2e-38 : 2.3e-308;
    bool is_tiny = number > -least && number < least; /* has fewer digits */
    int digits = is_tiny ? 1 : is_single ? 6 : 15;
    for (bool differs = true; differs && digits < 18; digits++) {
        (void)snprintf(out, 40, "%.*g", digits, number);
        double back = strtod(out, NULL);
        back = is_single ? (double)(float)back : back;
        differs = back < number || back > number;
    }
    char *comma = strchr(out, ','); /* from the program's locale */
    if (comma)
        *comma = '.';
}

/* Print a number (not NaN) as JSON that reads back as the same double and never as an
 * integer. JSON cannot express infinity, so print a number too large for a double. */
static inline void format_json_real(char out[40], double number) {
    format_digits(out, number, false);
    if (out[strspn(out, "-")] == 'i')
        (void)snprintf(out, 40, number < 0 ? "-9e999" : "9e999");
    else if (!out[strspn(out, "-0123456789")])
        strcat(out, ".0");
}

/* Write a code point as UTF-8. Returns the end of the written bytes. */
static inline unsigned char *format_utf8(unsigned char *to, uint32_t point) {
    int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    uint32_t mark = more ? 0xFF00U >> (more + 1) & 0xFF : 0;
    *to++ = (unsigned char)(mark | point >> 6 * more);
    while (more-- > 0)
        *to++ = (unsigned char)(0x80 | (point >> 6 * more & 0x3F));
    return to;
}

/* Hash bytes with FNV-1a. `before` is the hash of preceding bytes to continue from, or
 * 0. */
static inline uint64_t format_hash(uint64_t before, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = before ? before : UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

#endif /* BAGS_FORMATS_TEXT_H */
