/*
 * Text that grows, and what the command writes into it: JSON strings, base64,
 * and the spec as Python writes it. Output is written by hand rather than from
 * a tree of objects, so that a line costs no more than its bytes.
 */
#include "command.h"

#include <stdarg.h>
#include <string.h>

static unsigned char *text_grow(text *out, size_t more) {
    if (out->failed || more > SIZE_MAX - out->size ||
        bags_buffer_reserve(&out->buffer, out->size + more, NULL)) {
        out->failed = true;
        return NULL;
    }
    unsigned char *room = out->buffer.data + out->size;
    out->size += more;
    return room;
}

void text_put(text *out, const void *data, size_t size) {
    unsigned char *room = text_grow(out, size);
    if (room && size)
        memcpy(room, data, size);
}

void text_puts(text *out, const char *string) {
    text_put(out, string, strlen(string));
}

void text_format(text *out, const char *format, ...) {
    char room[256];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(room, sizeof room, format, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= sizeof room)
        out->failed = true;
    else
        text_put(out, room, (size_t)size);
}

bags_code text_check(const text *out, bags_error *err) {
    return out->failed ? fail_memory(err) : BAGS_OK;
}

void text_free(text *out) {
    bags_buffer_free(&out->buffer);
    out->size = 0;
    out->failed = false;
}

/* ---- UTF-8 ---- */

/* Bytes of the character that begins here, or 0 if none does. */
static size_t utf8_step(const unsigned char *at, size_t size, uint32_t *out) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = at[0];
    size_t length = first < 0x80                   ? 1
                    : first >= 0xC2 && first < 0xE0 ? 2
                    : first >= 0xE0 && first < 0xF0 ? 3
                    : first >= 0xF0 && first < 0xF5 ? 4
                                                    : 0;
    if (length == 0 || length > size)
        return 0;
    uint32_t code = length == 1 ? first : first & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3Fu);
    }
    if (code < least[length] || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
        return 0;
    *out = code;
    return length;
}

size_t utf8_valid(const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    size_t good = 0;
    uint32_t code;
    while (good < size) {
        size_t length = utf8_step(at + good, size - good, &code);
        if (length == 0)
            return good;
        good += length;
    }
    return good;
}

/* ---- JSON ---- */

static void put_escape(text *out, uint32_t code) {
    const char *names = "\"\\\b\f\n\r\t";
    const char *letters = "\"\\bfnrt";
    const char *found = code && code < 0x80 ? strchr(names, (int)code) : NULL;
    if (found)
        text_format(out, "\\%c", letters[found - names]);
    else if (code >= 0x10000)
        text_format(out, "\\u%04x\\u%04x",
            (unsigned)(0xD800 + ((code - 0x10000) >> 10)),
            (unsigned)(0xDC00 + ((code - 0x10000) & 0x3FF)));
    else
        text_format(out, "\\u%04x", (unsigned)code);
}

void text_json(text *out, const void *data, size_t size, bool ascii) {
    const unsigned char *at = (const unsigned char *)data;
    size_t plain = 0; /* bytes before `i` that go as they are */
    text_puts(out, "\"");
    for (size_t i = 0; i < size;) {
        uint32_t code = 0xFFFD; /* what is no character becomes this one */
        size_t length = utf8_step(at + i, size - i, &code);
        bool escape = length == 0 || code < 0x20 || code == '"' ||
                      code == '\\' || (ascii && code > 0x7E);
        if (length == 0)
            length = 1;
        i += length;
        plain += length;
        if (escape) {
            text_put(out, at + i - plain, plain - length);
            plain = 0;
            put_escape(out, code);
        }
    }
    text_put(out, at + size - plain, plain);
    text_puts(out, "\"");
}

void text_spec(text *out, const bags_field *fields, size_t count) {
    text_puts(out, "{");
    for (size_t i = 0; i < count; i++) {
        text_puts(out, i ? ", " : "");
        text_json(out, fields[i].name, strlen(fields[i].name), true);
        text_puts(out, ": ");
        text_json(out, fields[i].type, strlen(fields[i].type), true);
    }
    text_puts(out, "}");
}

/* ---- base64 ---- */

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void text_base64(text *out, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    for (size_t i = 0; i < size; i += 3) {
        size_t here = size - i < 3 ? size - i : 3;
        uint32_t bits = (uint32_t)at[i] << 16;
        if (here > 1)
            bits |= (uint32_t)at[i + 1] << 8;
        if (here > 2)
            bits |= at[i + 2];
        char four[4];
        for (unsigned j = 0; j < 4; j++)
            four[j] = j > here ? '=' : base64_digits[bits >> (18 - 6 * j) & 63];
        text_put(out, four, 4);
    }
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bags_code base64_decode(const char *from, size_t size, bags_buffer *out,
    size_t *out_size, bags_error *err) {
    if (size % 4)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "base64 of %zu characters, which is no multiple of 4", size);
    size_t padding = size && from[size - 1] == '=' ? 1 : 0;
    padding += padding && from[size - 2] == '=' ? 1 : 0;
    bags_code code = bags_buffer_reserve(out, size / 4 * 3 + 1, err);
    if (code)
        return code;
    unsigned char *to = out->data;
    uint32_t bits = 0;
    for (size_t i = 0; i < size; i++) {
        int value = i >= size - padding ? 0 : base64_value(from[i]);
        if (value < 0)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "base64 has a wrong character at %zu", i);
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 < 3)
            continue;
        *to++ = (unsigned char)(bits >> 16);
        *to++ = (unsigned char)(bits >> 8);
        *to++ = (unsigned char)bits;
    }
    /* A last digit that has more than the bytes need would be lost. */
    if (padding && (bits & (padding == 2 ? 0xFFFFu : 0xFFu)))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "base64 ends in bits that belong to no byte");
    *out_size = size / 4 * 3 - padding;
    return BAGS_OK;
}
