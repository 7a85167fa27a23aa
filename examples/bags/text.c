/*
 * Growing text, with functions that append JSON strings, specs and base64; numbers in
 * text; suggestions for misspelt words; and functions that keep foreign text from
 * controlling a terminal.
 */
#include "command.h"

#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <strings.h>

void text_put(text *out, const void *data, size_t size) {
    must(bags_buffer_reserve(&out->buffer, out->size + size, &failure));
    if (size)
        memcpy(out->buffer.data + out->size, data, size);
    out->size += size;
}

void text_puts(text *out, const char *string) { text_put(out, string, strlen(string)); }

BAGI_PRINTF(2, 0)
static void put_list(text *out, const char *format, va_list arguments) {
    for (size_t most = 64;;) {
        must(bags_buffer_reserve(&out->buffer, out->size + most, &failure));
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
    put_list(out, format, arguments);
    va_end(arguments);
}

const char *text_string(text *out) {
    text_put(out, "", 1);
    out->size--;
    return (const char *)out->buffer.data;
}

void text_output(const text *out) { output(out->buffer.data, out->size); }

void text_clean(text *out, const char *string) {
    size_t most = 4 * strlen(string) + 1; /* \x1b takes four bytes */
    must(bags_buffer_reserve(&out->buffer, out->size + most, &failure));
    char *to = (char *)out->buffer.data + out->size;
    clean_copy(to, most, string);
    out->size += strlen(to);
}

void print(const char *format, ...) {
    static text made, out;
    bool ends = format[strlen(format) - 1] == '\n';
    made.size = out.size = 0;
    va_list arguments;
    va_start(arguments, format);
    put_list(&made, format, arguments);
    va_end(arguments);
    made.size -= ends;
    text_clean(&out, text_string(&made));
    text_puts(&out, ends ? "\n" : "");
    text_output(&out);
}

bool has_ending(const char *path, const char *ending) {
    size_t size = strlen(path), length = strlen(ending);
    return size > length && !strcasecmp(path + size - length, ending);
}

const char *counted(uint64_t count, const char *unit) {
    const char *plural = count == 1 ? "" : has_ending(unit, "ch") ? "es" : "s";
    return temp_format("%ju %s%s", (uintmax_t)count, unit, plural);
}

/* ---- tables ---- */

#define MAX_WIDTH 60

static struct cell {
    char *words;
    bool right;
    size_t width; /* in characters */
} * cells;
static size_t cells_count;

void table_add(const char *words, bool right) {
    static text clean;
    struct cell one = {NULL, right, 0};
    clean.size = 0;
    text_clean(&clean, words);
    one.words = string_format("%s", text_string(&clean));
    for (size_t i = 0; i < clean.size; i++)
        one.width += (clean.buffer.data[i] & 0xC0) != 0x80;
    cells = (struct cell *)grow(cells, cells_count, sizeof *cells);
    cells[cells_count++] = one;
}

void table_put(text *out, size_t columns) {
    size_t *widths = (size_t *)allocate(columns, sizeof *widths);
    for (size_t i = 0; i < cells_count; i++)
        if (cells[i].width > widths[i % columns])
            widths[i % columns] =
                cells[i].width < MAX_WIDTH ? cells[i].width : MAX_WIDTH;
    for (size_t i = 0; i < cells_count; i++) {
        size_t width = widths[i % columns];
        int space = cells[i].width < width ? (int)(width - cells[i].width) : 0;
        bool last = (i + 1) % columns == 0;
        text_format(out, "%*s%s%*s%s", cells[i].right ? space : 0, "", cells[i].words,
            last             ? 0
            : cells[i].right ? 2
                             : space + 2,
            "", last ? "\n" : "");
    }
    free(widths);
}

/* ---- JSON ---- */

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

/* ---- misspelt words ---- */

/* Names that other programs use for these commands and options. */
static const struct other_names {
    const char *name, *words;
} other_names[] = {{"info", "ls list show stat"}, {"get", "cat head read print"},
    {"pack", "add create write"}, {"export", "unpack extract dump"},
    {"import", "convert"}, {"sheet", "preview"}, {"load", "train"},
    {"recover", "repair fix"}, {"verify", "check test validate"}, {"copy", "cp upload"},
    {"resume", "continue"}, {"out", "output"}, {"spec", "schema"},
    {"shard-stop", "workers"}, {"jobs", "threads"}, {"threads", "jobs"}};

void guess_name(guess *from, const char *name) {
    bags_view word = {(const unsigned char *)from->word, from->size};
    bags_view view = {(const unsigned char *)name, strlen(name)};
    const char *also = NULL;
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(other_names[i].name, name))
            also = other_names[i].words;
    size_t distance = bags_word_distance(word, view, also);
    if (distance != SIZE_MAX && (!from->name || distance < from->distance)) {
        from->name = name;
        from->distance = distance;
    }
}

const char *guess_words(const guess *from, const char *before, const char *after) {
    return from->name
               ? temp_format("; did you mean \"%s%s%s\"?", before, from->name, after)
               : "";
}

/* ---- base64 ---- */

void text_base64(text *out, const void *data, size_t size) {
    char four[4];
    for (size_t i = 0; i < size; i += 3) {
        format_base64_encode((const unsigned char *)data + i, size - i, four);
        text_put(out, four, sizeof four);
    }
}
