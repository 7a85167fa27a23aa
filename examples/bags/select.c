/*
 * Select datapoints by numbers in a file (--rows, --exclude), by an expression
 * (--where; bags_sql_rows in sql.c passes it to SQLite), by a range (--range), and in
 * random order (--shuffle). Ranges are also used for the INDEX of `bags get` and for
 * sequence items.
 */
#include "command.h"

#include "formats.h"
#include "modules.h"
#include "text.h"

#include <errno.h>

select_options selecting;

/* ---- ranges ---- */

/* Parse the number at *at, and move *at past it. strtoll clamps it to 64 bits, beyond
 * any length. */
static bool parse_integer(const char **at, int64_t *out) {
    char *end, digit = (*at)[**at == '-'];
    if (digit < '0' || digit > '9')
        return false;
    *out = strtoll(*at, &end, 10);
    *at = end;
    return true;
}

/* Parse a list that continues as in 3,1,4] */
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

/* Returns a number below 0 if there is no such index. */
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

/* Convert a number to an index. It must exist. */
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

/* ---- files of numbers: one per line, or a JSON list ---- */

static bags_buffer buffer;
static const char *name, *at, *end;
static uint64_t line;

/* Read the entire file; a pipe works too. */
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
    if (size >= 3 && !memcmp(at, "\xEF\xBB\xBF", 3)) /* UTF-8 byte order mark */
        at += 3;
}

static void skip_spaces(bool lines) {
    while (at < end &&
           (*at == ' ' || *at == '\t' || *at == '\r' || (lines && *at == '\n')))
        line += *at++ == '\n';
}

ENDS static void fail_word(const char *expected) {
    size_t size = at < end; /* at least one character, even one of these */
    while (at + size < end && !strchr(" \t\r\n,]", at[size]))
        size++;
    fail(BAGS_ERROR_VALUE, "%s: line %ju: \"%.*s\" is not %s", name, (uintmax_t)line,
        size > 60 ? 60 : (int)size, at, expected);
}

/* Parse the number at the current position. */
static uint64_t read_number(uint64_t length) {
    const char *word = at;
    bags_value number;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    bool ends = at == end || strchr(" \t\r\n,]", *at);
    if (!ends || !format_number(word, (size_t)(at - word), &number)) {
        at = word;
        fail_word("the number of a datapoint");
    }
    if (number.uint >= length)
        fail(BAGS_ERROR_RANGE, "%s: line %ju: index %ju out of range (length %ju)",
            name, (uintmax_t)line, (uintmax_t)number.uint, (uintmax_t)length);
    return number.uint;
}

/* Read the *count numbers in a file, all below `length`. Free the result. */
static uint64_t *read_numbers(const char *path, uint64_t length, size_t *count) {
    static uint64_t *numbers; /* static, so it stays reachable on failure */
    numbers = (uint64_t *)allocate(1, sizeof *numbers);
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

/* ---- expressions ---- */

#ifdef BAGS_WITH_SQL

void sql_hint(const bags_reader *reader) {
    static const char no_column[] = "no such column: ";
    const char *found = strstr(failure.message, no_column);
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (found) {
        const char *word = found + strlen(no_column), *dot = strrchr(word, '.');
        const char *hint = field_guess(dot ? dot + 1 : word, fields, count);
        bool guessed = !strncmp(hint, "; did", 5);
        failure_suffix("%s%s", hint, guessed ? "" : "; text needs 'single quotes'");
    } else if (strstr(failure.message, "no such table: ")) {
        failure_suffix("; the dataset is the table data");
    }
}

/* The datapoints for which --where is true, as *count numbers, to be freed. They and
 * rowid start at `start`. */
static uint64_t *find_where(const bags_reader *reader, uint64_t start, size_t *count) {
    bags_buffer numbers = {0};
    must(bags_buffer_reserve(&numbers, sizeof(uint64_t), &failure));
    bags_code code =
        bags_sql_rows(reader, start, selecting.where, &numbers, count, &failure);
    if (code) {
        sql_hint(reader);
        if (strstr(failure.message, "syntax error") ||
            strstr(failure.message, "not one expression"))
            failure_suffix("; --where takes one expression, such as \"label = 3 AND "
                           "name = 'x'\"");
    }
    must(code);
    return (uint64_t *)(void *)numbers.data;
}

#else

void sql_missing(void) {
    fail(BAGS_ERROR_TYPE, "this build has no SQL: SQLite was not found; install "
                          "libsqlite3-dev and build again");
}

static uint64_t *find_where(const bags_reader *reader, uint64_t start, size_t *count) {
    (void)reader;
    (void)start;
    (void)count;
    sql_missing();
}

#endif

/* ---- the options ---- */

static uint64_t *chosen; /* NULL: all, in order */
static size_t chosen_count;
static bool *found; /* for each datapoint: it is in a list, or --where is true */

uint64_t *select_all(uint64_t length) {
    uint64_t *numbers = (uint64_t *)allocate((size_t)length + 1, sizeof *numbers);
    for (size_t i = 0; i < length; i++)
        numbers[i] = i;
    return numbers;
}

static void list_chosen(uint64_t length) {
    if (chosen)
        return;
    chosen = select_all(length);
    chosen_count = (size_t)length;
}

/* Mark the numbers as found. Frees them. */
static void mark_found(uint64_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        found[numbers[i]] = true;
    free(numbers);
}

/* Keep either the datapoints that were found, or all others. */
static void keep_found(bool which) {
    size_t left = 0;
    for (size_t i = 0; i < chosen_count; i++)
        if (found[chosen[i]] == which)
            chosen[left++] = chosen[i];
    chosen_count = left;
    free(found);
    found = NULL;
}

static void choose_where(
    const bags_reader *const *readers, size_t readers_count, uint64_t length) {
    uint64_t start = 0;
    size_t count;
    if (!chosen && readers_count == 1) { /* no list of all datapoints is needed */
        chosen = find_where(readers[0], 0, &chosen_count);
        return;
    }
    list_chosen(length);
    found = (bool *)allocate((size_t)length + 1, sizeof *found);
    for (size_t i = 0; i < readers_count; i++) {
        uint64_t *numbers = find_where(readers[i], start, &count);
        mark_found(numbers, count);
        start += bags_reader_length(readers[i]);
    }
    keep_found(true);
}

static void choose_others(uint64_t length) {
    size_t count;
    list_chosen(length);
    found = (bool *)allocate((size_t)length + 1, sizeof *found);
    uint64_t *numbers = read_numbers(selecting.exclude, length, &count);
    mark_found(numbers, count);
    keep_found(false);
}

/* Reorder the chosen datapoints: position i gets the number at order(i). */
static void reorder(size_t count, uint64_t (*order)(uint64_t i)) {
    uint64_t *ordered = (uint64_t *)allocate(count + 1, sizeof *ordered);
    for (size_t i = 0; i < count; i++)
        ordered[i] = chosen[order(i)];
    free(chosen);
    chosen = ordered;
    chosen_count = count;
}

static range_word range;

static uint64_t range_order(uint64_t i) { return indices_at(&range, chosen_count, i); }

static uint64_t random_order(uint64_t i) {
    return bags_permute(selecting.shuffle.value, 0, chosen_count, i);
}

uint64_t *select_datapoints(const bags_reader *const *readers, size_t readers_count,
    uint64_t length, size_t *count) {
    chosen = NULL;
    chosen_count = 0;
    if (selecting.rows)
        chosen = read_numbers(selecting.rows, length, &chosen_count);
    if (selecting.where)
        choose_where(readers, readers_count, length);
    if (selecting.exclude)
        choose_others(length);
    if (selecting.range || selecting.shuffle.given)
        list_chosen(length);
    if (selecting.range) {
        range = indices_parse(selecting.range);
        reorder((size_t)indices_count(&range, "--range: ", chosen_count), range_order);
    }
    if (selecting.shuffle.given)
        reorder(chosen_count, random_order);
    *count = chosen_count;
    return chosen;
}
