/*
 * Functions that append specs, base64 and tables to growing text (growing.c); numbers in
 * text; suggestions for misspelt words; and functions that keep foreign text from
 * controlling a terminal.
 */
#include "command.h"

#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <strings.h>

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
    text_list(&made, format, arguments);
    va_end(arguments);
    made.size -= ends;
    text_clean(&out, text_string(&made));
    text_puts(&out, ends ? "\n" : "");
    text_output(&out);
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

/* ---- specs ---- */

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
