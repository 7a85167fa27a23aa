/*
 * An index, a range or a list of numbers in a word of the command line.
 */
#include "command.h"

/* A number at the start of `at`, which becomes the end of the number. strtoll clamps
 * it to 64 bits, which is past the end of everything. */
static bool parse_integer(const char **at, int64_t *out) {
    char *end, digit = (*at)[**at == '-'];
    if (digit < '0' || digit > '9')
        return false;
    *out = strtoll(*at, &end, 10);
    *at = end;
    return true;
}

/* 3,1,4] */
static void parse_list(range_word *out, const char *at) {
    int64_t ignored;
    for (bool more = true; more;) {
        at += strspn(at, " ");
        const char *number = at;
        if (!parse_integer(&at, &ignored))
            break;
        out->list = (const char **)grow(out->list, out->count, sizeof *out->list);
        out->list[out->count++] = number;
        at += strspn(at, " ");
        if (!strcmp(at, "]"))
            return;
        more = *at++ == ',';
    }
    usage("a list of indices must be like [3,1,4]");
}

range_word indices_parse(const char *word) {
    range_word out = {word, false, NULL, 0, 0, INT64_MAX, 1};
    int64_t parts[3] = {0, INT64_MAX, 1};
    size_t part = 0;
    if (*word == '[') {
        parse_list(&out, word + 1);
        return out;
    }
    for (const char *at = word;; part++, at++) {
        bool found = parse_integer(&at, &parts[part]);
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

/* Below 0: none. */
static int64_t from_start(int64_t index, uint64_t length) {
    return index < 0 ? index + (int64_t)length : index;
}

void indices_range(
    const range_word *items, uint64_t length, uint64_t *start, uint64_t *stop) {
    int64_t first = from_start(items->start, length);
    int64_t last = from_start(items->stop, length);
    *start = first < 0 ? 0 : (uint64_t)first;
    *stop = last < 0 ? 0 : (uint64_t)last;
    if (items->one)
        *stop = *start + (first >= 0);
    else if (*start > *stop)
        *stop = *start;
}

/* The index that a number means, which must exist. */
static uint64_t find_index(const char *number, const char *where, uint64_t length) {
    const char *end = number;
    int64_t index = 0;
    parse_integer(&end, &index);
    index = from_start(index, length);
    if (index < 0 || (uint64_t)index >= length)
        fail(BAGS_ERROR_RANGE, "%s%.*s out of range (length %ju)", where,
            (int)(end - number), number, (uintmax_t)length);
    return (uint64_t)index;
}

uint64_t indices_count(const range_word *all, const char *where, uint64_t length) {
    uint64_t start, stop;
    for (size_t i = 0; i < all->count; i++)
        find_index(all->list[i], where, length);
    if (all->list)
        return all->count;
    if (all->one)
        find_index(all->word, where, length);
    indices_range(all, length, &start, &stop);
    stop = stop < length ? stop : length;
    return start < stop ? (stop - start - 1) / all->step + 1 : 0;
}

uint64_t indices_at(const range_word *all, uint64_t length, uint64_t i) {
    uint64_t start, stop;
    if (all->list)
        return find_index(all->list[i], "", length);
    indices_range(all, length, &start, &stop);
    return start + i * all->step;
}
