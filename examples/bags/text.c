/*
 * Text that grows, and what is written into it: JSON strings, specs, base64; and
 * numbers in text.
 */
#include "command.h"

#include <errno.h>
#include <stdarg.h>

void text_put(text *out, const void *data, size_t size) {
    must(bags_buffer_reserve(&out->buffer, out->size + size, &failure));
    if (size)
        memcpy(out->buffer.data + out->size, data, size);
    out->size += size;
}

void text_puts(text *out, const char *string) {
    text_put(out, string, strlen(string));
}

void text_format(text *out, const char *format, ...) {
    for (size_t most = 64;;) {
        must(bags_buffer_reserve(&out->buffer, out->size + most, &failure));
        va_list arguments;
        va_start(arguments, format);
        size_t size = (size_t)vsnprintf(
            (char *)out->buffer.data + out->size, most, format, arguments);
        va_end(arguments);
        if (size < most) {
            out->size += size;
            return;
        }
        most = size + 1;
    }
}

const char *text_string(text *out) {
    text_put(out, "", 1);
    out->size--;
    return (const char *)out->buffer.data;
}

void text_output(const text *out) { output(out->buffer.data, out->size); }

/* ---- JSON ---- */

/* Valid UTF-8 within a JSON string. */
static void put_escaped(text *out, const unsigned char *at, size_t size) {
    static const char bytes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t done = 0;
    for (size_t i = 0; i < size; i++) {
        const char *found = at[i] ? strchr(bytes, at[i]) : NULL;
        if (!found && at[i] >= 0x20 && at[i] != 0x7F)
            continue;
        text_put(out, at + done, i - done);
        done = i + 1;
        if (found)
            text_format(out, "\\%c", letters[found - bytes]);
        else
            text_format(out, "\\u%04x", at[i]);
    }
    text_put(out, at + done, size - done);
}

void text_json(text *out, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    text_puts(out, "\"");
    while (size > 0) {
        size_t valid = size;
        bags_utf8_valid(at, size, &valid);
        put_escaped(out, at, valid);
        at += valid;
        size -= valid;
        if (size > 0) {
            text_puts(out, "\\ufffd");
            at++;
            size--;
        }
    }
    text_puts(out, "\"");
}

void text_json_string(text *out, const char *string) {
    text_json(out, string, strlen(string));
}

void text_next(text *out) {
    char last = (char)out->buffer.data[out->size - 1];
    if (last != '{' && last != '[')
        text_puts(out, ", ");
}

void text_member(text *out, const char *name) {
    text_next(out);
    text_json_string(out, name);
    text_puts(out, ": ");
}

void text_member_string(text *out, const char *name, const char *value) {
    text_member(out, name);
    if (value)
        text_json_string(out, value);
    else
        text_puts(out, "null");
}

void text_member_number(text *out, const char *name, uint64_t value) {
    text_member(out, name);
    text_format(out, "%ju", (uintmax_t)value);
}

void text_spec(text *out, const bags_field *fields, size_t count) {
    text_puts(out, "{");
    for (size_t i = 0; i < count; i++)
        text_member_string(out, fields[i].name, fields[i].type);
    text_puts(out, "}");
}

/* ---- numbers ---- */

bool number_parse(const char *word, size_t size, bags_value *out) {
    char digits[32] = "";
    bool negative = size > 0 && *word == '-';
    if (size == negative || size >= sizeof digits)
        return false;
    memcpy(digits, word, size);
    errno = 0;
    *out = negative ? bags_int(strtoll(digits, NULL, 10))
                    : bags_uint(strtoull(digits, NULL, 10));
    return strspn(digits + negative, "0123456789") == size - negative && !errno;
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

const char *base64_decode(
    const char *from, size_t size, bags_buffer *out, size_t *out_size) {
    size_t padding = size && from[size - 1] == '=' ? 1 : 0;
    padding += padding && size > 1 && from[size - 2] == '=' ? 1 : 0;
    if (size % 4)
        return "base64: its length is not a multiple of 4";
    must(bags_buffer_reserve(out, size / 4 * 3 + 1, &failure));
    unsigned char *to = out->data;
    uint32_t bits = 0;
    for (size_t i = 0; i < size; i++) {
        char c = i < size - padding ? from[i] : 'A';
        const char *digit = c ? strchr(base64_digits, c) : NULL;
        if (!digit)
            return "base64: an invalid character";
        bits = bits << 6 | (uint32_t)(digit - base64_digits);
        if (i % 4 < 3)
            continue;
        *to++ = (unsigned char)(bits >> 16);
        *to++ = (unsigned char)(bits >> 8);
        *to++ = (unsigned char)bits;
    }
    *out_size = size / 4 * 3 - padding;
    /* Bits of the last digit that belong to no byte would be lost. */
    return padding && (bits & (padding == 2 ? 0xFFFFu : 0xFFu))
               ? "base64: the last digit has unused bits"
               : NULL;
}
