/*
 * Files with numbers of datapoints, as --rows reads: one number per line, or a JSON list.
 */
#include "command.h"

#include <errno.h>

static bags_buffer buffer;
static const char *name, *at, *end;
static uint64_t line;

/* Read all of it: also a pipe. */
static void read_text(const char *path) {
    bool standard = !strcmp(path, "-");
    size_t size = 0, got = 1;
    FILE *file = standard ? stdin : fopen(path, "rb");
    name = standard ? "standard input" : path;
    if (!file)
        fail_system(errno, name, "open");
    while (got > 0) {
        must(bags_buffer_reserve(&buffer, size + 65536, &failure));
        got = fread(buffer.data + size, 1, buffer.capacity - size, file);
        size += got;
    }
    if (ferror(file))
        fail_system(errno, name, "read");
    if (!standard)
        fclose(file);
    at = (const char *)buffer.data;
    end = at + size;
    line = 1;
    if (size >= 3 && !memcmp(at, "\xEF\xBB\xBF", 3)) /* the mark of UTF-8 */
        at += 3;
}

static void skip_spaces(bool lines) {
    while (at < end &&
           (*at == ' ' || *at == '\t' || *at == '\r' || (lines && *at == '\n')))
        line += *at++ == '\n';
}

ENDS static void fail_word(const char *expected) {
    size_t size = at < end; /* also one of these */
    while (at + size < end && !strchr(" \t\r\n,]", at[size]))
        size++;
    fail(BAGS_ERROR_VALUE, "%s: line %ju: \"%.*s\" is not %s", name, (uintmax_t)line,
        size > 60 ? 60 : (int)size, at, expected);
}

/* The number at this place. */
static uint64_t read_number(uint64_t length) {
    const char *word = at;
    bags_value number;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    bool ends = at == end || strchr(" \t\r\n,]", *at);
    if (!ends || !number_parse(word, (size_t)(at - word), &number)) {
        at = word;
        fail_word("the number of a datapoint");
    }
    if (number.uint >= length)
        fail(BAGS_ERROR_RANGE, "%s: line %ju: index %ju out of range (length %ju)",
            name, (uintmax_t)line, (uintmax_t)number.uint, (uintmax_t)length);
    return number.uint;
}

uint64_t *rows_read(const char *path, uint64_t length, size_t *count) {
    static uint64_t *numbers; /* not lost where this fails */
    numbers = NULL;
    *count = 0;
    read_text(path);
    skip_spaces(true);
    bool list = at < end && *at == '[', more = at < end;
    if (list) {
        at++;
        skip_spaces(true);
        more = at < end && *at != ']';
    }
    while (more) {
        numbers = (uint64_t *)grow(numbers, *count, sizeof *numbers);
        numbers[(*count)++] = read_number(length);
        skip_spaces(list);
        more = at < end && *at == (list ? ',' : '\n');
        if (more) {
            line += *at++ == '\n';
            skip_spaces(list);
        }
        if (more && !list && (at == end || *at == '\n')) { /* only at the end */
            skip_spaces(true);
            more = false;
        }
    }
    if (list && (at == end || *at++ != ']'))
        fail(BAGS_ERROR_VALUE, "%s: line %ju: a list that is not complete", name,
            (uintmax_t)line);
    skip_spaces(true);
    if (at < end)
        fail_word("expected after the last number; empty lines may only be at the end");
    return numbers;
}
