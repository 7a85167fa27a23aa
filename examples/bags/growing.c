/*
 * Text that grows, with functions that append JSON strings and members.
 */
#include "growing.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

void (*text_fails)(const bags_error *err);

static bool reserve(text *out, size_t size) {
    bags_error err;
    if (out->failed)
        return false;
    if (!bags_buffer_reserve(&out->buffer, out->size + size, &err))
        return true;
    if (text_fails)
        text_fails(&err);
    out->failed = true;
    return false;
}

void text_put(text *out, const void *data, size_t size) {
    if (!reserve(out, size) || size == 0)
        return;
    memcpy(out->buffer.data + out->size, data, size);
    out->size += size;
}

void text_puts(text *out, const char *string) { text_put(out, string, strlen(string)); }

void text_list(text *out, const char *format, va_list arguments) {
    for (size_t most = 64; reserve(out, most);) {
        va_list again;
        va_copy(again, arguments);
        size_t size = (size_t)vsnprintf(
            (char *)out->buffer.data + out->size, most, format, again);
        va_end(again);
        if (size < most) {
            out->size += size;
            return;
        }
        most = size + 1;
    }
}

void text_format(text *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_list(out, format, arguments);
    va_end(arguments);
}

const char *text_string(text *out) {
    if (!reserve(out, 1))
        return "";
    out->buffer.data[out->size] = '\0';
    return (const char *)out->buffer.data;
}

bool has_ending(const char *path, const char *ending) {
    size_t size = strlen(path), length = strlen(ending);
    return size > length && !strcasecmp(path + size - length, ending);
}

/* ---- JSON ---- */

/* Recognizes control characters (below U+0020, U+007F to U+009F), line and paragraph
 * separators, and marks that change the text direction. */
size_t control_size(const unsigned char *at, size_t size, unsigned *code) {
    if (at[0] < 0x20 || at[0] == 0x7F) {
        *code = at[0];
        return 1;
    }
    if (size >= 2 && at[0] >= 0xC2 && at[0] <= 0xDF) {
        *code = (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
        return *code <= 0x9F || *code == 0x61C ? 2 : 0;
    }
    if (size < 3 || at[0] != 0xE2)
        return 0;
    *code = 0x2000 | (at[1] & 0x3Fu) << 6 | (at[2] & 0x3Fu);
    bool marks = (*code >= 0x200E && *code <= 0x200F) ||
                 (*code >= 0x2028 && *code <= 0x202E) ||
                 (*code >= 0x2066 && *code <= 0x2069);
    return marks ? 3 : 0;
}

/* Append valid UTF-8, to the content of a JSON string or, if `quote` is false, as part
 * of JSON itself. */
static void put_escaped(text *out, const unsigned char *at, size_t size, bool quote) {
    static const char bytes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t done = 0;
    for (size_t i = 0, length; i < size; i += length) {
        unsigned code;
        const char *found = quote && at[i] ? strchr(bytes, at[i]) : NULL;
        length = found ? 1 : control_size(at + i, size - i, &code);
        if (!length) {
            length = 1;
            continue;
        }
        text_put(out, at + done, i - done);
        done = i + length;
        if (found)
            text_format(out, "\\%c", letters[found - bytes]);
        else
            text_format(out, "\\u%04x", code);
    }
    text_put(out, at + done, size - done);
}

void text_json_clean(text *out, bags_view json) {
    put_escaped(out, json.data, json.size, false);
}

/* Each byte that is not valid UTF-8 becomes one U+FFFD, since JSON allows no other
 * bytes. */
void text_json(text *out, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    text_puts(out, "\"");
    while (size > 0) {
        size_t valid = size;
        bags_utf8_valid(at, size, &valid);
        put_escaped(out, at, valid, true);
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

/* The preceding character tells whether this is the first element. */
void text_next(text *out) {
    char last = out->size ? (char)out->buffer.data[out->size - 1] : '{';
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
