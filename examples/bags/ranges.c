/*
 * An index, a range or a list of numbers in a word of the command line.
 */
#include "command.h"

/* A number at the start of `at`, which becomes the end of the number. strtoll clamps
 * it to 64 bits, which is past the end of everything. */
bool integer_parse(const char **at, int64_t *out) {
    char *end, digit = (*at)[**at == '-'];
    if (digit < '0' || digit > '9')
        return false;
    *out = strtoll(*at, &end, 10);
    *at = end;
    return true;
}

/* 3,1,4] */
static void check_list(const char *at) {
    int64_t ignored;
    for (bool more = true; more;) {
        at += strspn(at, " ");
        more = integer_parse(&at, &ignored);
        at += more ? strspn(at, " ") : 0;
        if (more && !strcmp(at, "]"))
            return;
        more = more && *at++ == ',';
    }
    usage("a list of indices must be like [3,1,4]");
}

/* The first number of a valid list that starts at `at`, or after a number of it;
 * NULL after the last one. */
const char *indices_next(const char *at) {
    at += strspn(at, "-0123456789");
    at += strspn(at, "[, ");
    return *at == ']' ? NULL : at;
}

/* i, start:stop, start:stop:step or [i,j,k]; each part of a range may be
 * missing. */
range_word indices_parse(const char *word) {
    range_word out = {word, false, false, 0, INT64_MAX, 1};
    int64_t parts[3] = {0, INT64_MAX, 1};
    size_t part = 0;
    const char *at = word;
    if (*word == '[') {
        check_list(word + 1);
        out.list = true;
        return out;
    }
    for (;; part++, at++) {
        bool found = integer_parse(&at, &parts[part]);
        if ((*at && *at != ':') || (!found && part == 0 && !*at) ||
            (*at == ':' && part == 2))
            usage(
                "\"%s\" is not an index, START:STOP, START:STOP:STEP or a list", word);
        if (!*at)
            break;
    }
    out.one = part == 0;
    out.start = parts[0];
    out.stop = parts[1];
    out.step = (uint64_t)parts[2];
    if (parts[2] < 1)
        usage("%s: the step must be at least 1", word);
    if (!out.one && (out.start < 0) == (out.stop < 0) && out.start > out.stop) {
        const char *stop = strchr(word, ':') + 1;
        usage("%s: invalid range (start %.*s > stop %.*s)", word,
            (int)(stop - word - 1), word, (int)strcspn(stop, ":"), stop);
    }
    return out;
}

/* The index that a number means; below 0: none. */
int64_t index_from_start(int64_t index, uint64_t length) {
    return index < 0 ? index + (int64_t)length : index;
}

/* The start or stop of a range: clamped to 0. */
uint64_t range_end(int64_t index, uint64_t length) {
    index = index_from_start(index, length);
    return index < 0 ? 0 : (uint64_t)index;
}

/* The range start <= i < stop of the items; empty if there is no such one. */
void indices_range(
    const range_word *items, uint64_t length, uint64_t *start, uint64_t *stop) {
    *start = range_end(items->start, length);
    *stop = range_end(items->stop, length);
    if (items->one)
        *stop = *start + (index_from_start(items->start, length) >= 0);
    else if (*start > *stop)
        *stop = *start;
}

uint64_t *rows_of_indices(const range_word *all, uint64_t length, size_t *count) {
    uint64_t *numbers = NULL, start, stop;
    const char *first = all->list ? indices_next(all->word) : NULL;
    *count = 0;
    for (const char *at = first; at; at = indices_next(at)) {
        const char *end = at;
        int64_t index = 0;
        integer_parse(&end, &index);
        index = index_from_start(index, length);
        if (index < 0 || (uint64_t)index >= length)
            fail(BAGS_ERROR_RANGE, "%.*s out of range (length %ju)", (int)(end - at),
                at, (uintmax_t)length);
        numbers = (uint64_t *)grow(numbers, *count, sizeof *numbers);
        numbers[(*count)++] = (uint64_t)index;
    }
    if (all->list)
        return numbers;
    indices_range(all, length, &start, &stop);
    if (all->one && (start >= length || start == stop))
        fail(BAGS_ERROR_RANGE, "%s out of range (length %ju)", all->word,
            (uintmax_t)length);
    stop = stop < length ? stop : length;
    for (uint64_t i = start; i < stop; i += all->step) {
        numbers = (uint64_t *)grow(numbers, *count, sizeof *numbers);
        numbers[(*count)++] = i;
        if (stop - i <= all->step)
            break;
    }
    return numbers;
}
