/*
 * csv.c - imports CSV: .csv and .tsv files, optionally gzip-compressed (.csv.gz), using
 * zlib.
 *
 * Lines and values follow RFC 4180: a value in quotes may contain separators, line
 * breaks and doubled quotes. Lines end in LF, CRLF or, if the file has no LF, CR. The
 * text is UTF-8, with or without a BOM.
 *
 * The separator is whichever of comma, tab, ; and | splits the first lines into the
 * same number of values, at least 2. If none does, the separator is taken from the
 * first line; if that line has none either, each line is one value. A first line sep=X,
 * as in Excel, states the separator X.
 *
 * Leading lines that begin with # are comments if they differ from the rest in the
 * number of values, or if the line after them has text above columns of numbers or
 * Booleans. All other lines must have the same number of values. Empty lines are left
 * out, unless there is only one column.
 *
 * A line that begins with # and is not a comment contains the column names. Otherwise,
 * the first line contains the names if none of its values is a number or Boolean, and
 * is data if all of them are and match the types of their columns. Any other first line
 * is an error, unless the caller states its meaning (bags_source_options.header). All
 * values of a column determine its type:
 *
 *     true, false, in any case      array(bool)
 *     integers within 64 bits       i64
 *     other numbers, NaN, Infinity  array(float64)
 *     anything else                 utf8, unchanged
 *
 * A column is text if numbers would lose information: leading zeros (007), a plus sign,
 * integers above 2^64, floats above 1.8e308. Dates, t, f, yes and no are text, too. A
 * missing value turns the column into a sequence of 0 or 1; a quoted "" is empty text
 * in a text column.
 *
 * If the caller converts a column (bags_source_options.want), its values stay text.
 *
 * Rejected: integers between 2^63 and 2^64, unless the caller converts them.
 */
#include "detect.h"
#include "gzip.h"
#include "try.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#define CV_RECORD ((uint64_t)1 << 30) /* maximum bytes of a line */
#define CV_VALUES ((size_t)1 << 20)   /* maximum values of a line */
#define CV_SAMPLE 1000                /* lines used to detect the separator */
#define CV_NUMBER 400                 /* maximum characters of a number */
#define CV_END (-1)

/* The kind of a column's values. */
typedef enum cv_kind { CV_NONE, CV_BOOL, CV_INTEGER, CV_FLOAT, CV_TEXT } cv_kind;

/* A value of the current line. */
typedef struct cv_value {
    size_t at, size; /* relative to the start of the line */
    bool quoted;
} cv_value;

typedef struct cv_column {
    const char *name;
    cv_kind kind;
    bool missing, empty; /* some values are missing; some are a quoted "" */
    bool large, huge;    /* some integers need more than 63 bits; more than 64 */
    bool sequence;
    bags_source_want want;
    uint64_t text_line; /* line of the first text value */
} cv_column;

typedef struct cv_state {
    bool open; /* the file before path_next is open */
    bags_import_stream stream;
    bags_buffer *data; /* bytes start to stop are unparsed */
    size_t start, stop;
    bool ended;       /* no more bytes */
    bags_code failed; /* result of reading or parsing the file */
    char chosen;      /* the separator; 0: none */
    char separator;   /* separator of this file, */
    bool stated;      /* stated in its first line */
    char line_break;
    uint64_t line, first; /* numbers of the next and the current line */
    bags_buffer *cells;
    cv_value *values; /* values of the current line, in `cells` */
    size_t count;
    const char **header; /* the first line, `first_line`; NULL: it is data */
    uint64_t first_line;
    const char **hash; /* the line `hash_line` before it that begins with #, or NULL */
    uint64_t hash_line;
    cv_column *columns;
    size_t column_count;
    uint64_t next; /* index of the next datapoint */
} cv_state;

/* ---- bytes ---- */

/* Read more bytes after the unparsed bytes, or set `ended`. */
static bags_code cv_fill(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    size_t left = c->stop - c->start;
    if (c->start > 0 && left > 0)
        memmove(c->data->data, c->data->data + c->start, left);
    c->start = 0;
    c->stop = left;
    if (left > CV_RECORD)
        return bags_source_fail(s, BAGS_ERROR_LIMIT,
            "line %" PRIu64 ": too long (maximum 1 GiB), or a quote is not closed",
            c->first);
    bags_view part = {NULL, 0};
    FORMAT_TRY(bags_source_reserve(s, &c->data, left + BAGS_IMPORT_PART));
    FORMAT_TRY(bags_import_stream_next(s, &c->stream, &part));
    if (part.size)
        memcpy(c->data->data + left, part.data, part.size);
    c->stop += part.size;
    c->ended = part.size == 0;
    return BAGS_OK;
}

/* The byte at this distance from the start, or CV_END at the end or after a failure. */
static int cv_byte(bags_source *s, size_t at) {
    cv_state *c = (cv_state *)s->state;
    while (at >= c->stop - c->start && !c->ended && !c->failed)
        c->failed = cv_fill(s);
    return c->failed || at >= c->stop - c->start ? CV_END
                                                 : c->data->data[c->start + at];
}

/* True at the end of a line; *size then receives the size of the line break. `byte` is
 * the byte at this position. */
static bool cv_is_end(bags_source *s, size_t at, int byte, size_t *size) {
    const cv_state *c = (const cv_state *)s->state;
    *size = byte != CV_END;
    if (byte == CV_END || byte == c->line_break)
        return true;
    if (byte != '\r')
        return false;
    int next = cv_byte(s, at + 1);
    *size += next == '\n';
    return next == '\n' || next == CV_END;
}

/* Skip a first line sep=X. */
static bags_code cv_read_separator(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    static const char word[] = "sep=";
    size_t i = 0, size = 0;
    while (i < 4 && (cv_byte(s, i) | (i < 3 ? 32 : 0)) == word[i])
        i++;
    int byte = i == 4 ? cv_byte(s, 4) : CV_END;
    c->stated = byte != CV_END && !strchr("\r\n\"", byte) &&
                cv_is_end(s, 5, cv_byte(s, 5), &size);
    if (c->stated) {
        c->separator = (char)byte;
        c->start += 5 + size;
        c->first = ++c->line;
    }
    return c->failed;
}

static void cv_close_file(cv_state *c) {
    bags_import_stream_close(&c->stream);
    c->open = false;
}

/* Open the next file and skip its BOM. Sets `ended` if there are no more. */
static bags_code cv_open_file(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    unsigned char head[3] = {0};
    bags_code code = bags_source_next_file(s);
    if (!code && !s->ended)
        code = bags_import_stream_open(s, &c->stream);
    if (code || s->ended)
        return code;
    c->open = true;
    c->start = c->stop = 0;
    c->ended = false;
    c->failed = BAGS_OK;
    c->line = c->first = 1;
    for (size_t i = 0; i < 3; i++) {
        int byte = cv_byte(s, i);
        head[i] = (unsigned char)(byte == CV_END ? 0 : byte);
    }
    if (c->failed)
        return c->failed;
    if ((!memcmp(head, "\xFF\xFE", 2) || !memcmp(head, "\xFE\xFF", 2)))
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "UTF-16 is not supported; convert it to UTF-8 first");
    if (!memcmp(head, "\xEF\xBB\xBF", 3))
        c->start = 3;
    size_t size = c->stop - c->start;
    const unsigned char *text = c->data->data + c->start;
    c->line_break =
        size && !memchr(text, '\n', size) && memchr(text, '\r', size) ? '\r' : '\n';
    c->separator = c->chosen;
    return cv_read_separator(s);
}

/* ---- lines ---- */

static bags_code cv_bad_line(bags_source *s, uint64_t line, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "line %" PRIu64 ": %s", line, what);
}

/* Parse the value at *at, and move *at past it, to a separator or the end of the line.
 * Quoted text is unquoted in place. Returns BAGS_OK or the error. */
static bags_code cv_parse_value(bags_source *s, size_t *at, cv_value *value) {
    cv_state *c = (cv_state *)s->state;
    size_t to = *at, size;
    int byte = cv_byte(s, *at);
    value->at = *at;
    value->quoted = byte == '"';
    *at += value->quoted;
    while (value->quoted) {
        byte = cv_byte(s, (*at)++);
        if (byte == CV_END && !c->failed)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "lines differ in their number of values, or a quote is not "
                "closed (line %" PRIu64 ": a quote that nothing closes)",
                c->first);
        if (byte == CV_END || (byte == '"' && cv_byte(s, *at) != '"'))
            break;
        *at += byte == '"';
        c->line += byte == c->line_break;
        c->data->data[c->start + to++] = (unsigned char)byte;
    }
    value->size = to - value->at;
    for (;; ++*at, value->size++) {
        byte = cv_byte(s, *at);
        if ((c->separator && byte == c->separator) ||
            (byte < ' ' && cv_is_end(s, *at, byte, &size)))
            return c->failed;
        if (value->quoted)
            return cv_bad_line(s, c->line, "a quote is followed by other text");
    }
}

/* Read a line; its values stay valid until the next line. count 0: there is no line. */
static bags_code cv_line(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    size_t at = 0, size = 0;
    bags_code code = BAGS_OK;
    c->count = 0;
    c->first = c->line;
    if (cv_byte(s, 0) == CV_END)
        return c->failed;
    for (bool end = false; !end;) {
        if (c->count == CV_VALUES)
            return cv_bad_line(s, c->first, "too many values");
        FORMAT_TRY(
            bags_source_reserve(s, &c->cells, (c->count + 1) * sizeof *c->values));
        c->values = (cv_value *)(void *)c->cells->data;
        code = cv_parse_value(s, &at, &c->values[c->count++]);
        end = code || cv_is_end(s, at, cv_byte(s, at), &size);
        at += end ? size : 1;
    }
    code = code ? code : c->failed;
    c->line++;
    /* The values lie before `start`, where no byte is moved until the next line. */
    for (size_t i = 0; i < c->count; i++)
        c->values[i].at += c->start;
    c->start += code ? 0 : at;
    return code;
}

/* Skip lines that begin with # and do not have `count` values. Quotes have no meaning
 * in them. */
static bags_code cv_skip_comments(bags_source *s, size_t count, bool report) {
    cv_state *c = (cv_state *)s->state;
    while (cv_byte(s, 0) == '#') {
        size_t at = 0, size = 0, values = 1;
        for (; !cv_is_end(s, at, cv_byte(s, at), &size); at++)
            values += c->separator && cv_byte(s, at) == c->separator;
        if (c->failed || values == count)
            break;
        if (report)
            bags_source_leave_out(s, "comment line", 1, "line %" PRIu64, c->line);
        c->start += at + size;
        c->line++;
    }
    return c->failed;
}

/* ---- values ---- */

static bool cv_is_word(const char *text, size_t size, const char *word) {
    size_t i = 0;
    for (; i < size && word[i]; i++)
        if ((text[i] | 32) != word[i])
            return false;
    return i == size && !word[i];
}

typedef struct cv_parsed {
    double number;
    int64_t integer;
    bool large, huge; /* see cv_column */
} cv_parsed;

/* Parse text that is a number without loss; CV_TEXT if it is not. */
static cv_kind cv_number(const char *text, size_t size, cv_parsed *out) {
    static const char decimal[] = "0123456789";
    char copy[CV_NUMBER + 1], half[8];
    memset(out, 0, sizeof *out);
    if (size == 0 || size > CV_NUMBER || memchr(text, 0, size))
        return CV_TEXT;
    memcpy(copy, text, size);
    copy[size] = 0;
    bool negative = *copy == '-', zero;
    char *digits = copy + negative;
    if (cv_is_word(digits, size - negative, "nan") ||
        cv_is_word(digits, size - negative, "inf") ||
        cv_is_word(digits, size - negative, "infinity")) {
        out->number = strtod(copy, NULL);
        return CV_FLOAT;
    }
    size_t whole = strspn(digits, decimal), part = 0;
    char *rest = digits + whole, *after = rest;
    if (*rest == '.') {
        part = strspn(rest + 1, decimal);
        after += 1 + part;
    }
    zero = strcspn(digits, "123456789") >= (size_t)(after - digits);
    if (whole + part == 0 || (whole > 1 && *digits == '0'))
        return CV_TEXT;
    if (*after == 'e' || *after == 'E') {
        after += after[1] == '-' || after[1] == '+' ? 2 : 1;
        size_t exponent = strspn(after, decimal);
        after += exponent;
        if (exponent == 0)
            return CV_TEXT;
    }
    if (*after)
        return CV_TEXT;
    bool integer = after == digits + whole && !(negative && zero);
    snprintf(half, sizeof half, "%.1f", 0.5);
    if (*rest == '.')
        *rest = half[1]; /* the locale's decimal point */
    out->number = strtod(copy, NULL);
    if (out->number > DBL_MAX || out->number < -DBL_MAX ||
        (!zero && !(out->number > 0) && !(out->number < 0)))
        return CV_TEXT; /* too large, or too small */
    if (!integer)
        return CV_FLOAT;
    uint64_t value = 0;
    for (size_t i = 0; i < whole; i++) {
        unsigned digit = (unsigned)(digits[i] - '0');
        out->huge = out->huge || value > (UINT64_MAX - digit) / 10;
        value = value * 10 + digit;
    }
    out->large = out->huge || value > (uint64_t)INT64_MAX + negative;
    value = negative ? 0 - value : value;
    memcpy(&out->integer, &value, sizeof value);
    return CV_INTEGER;
}

/* A value without surrounding spaces. */
static bags_value cv_trimmed(const cv_state *c, const cv_value *value) {
    const char *text = (const char *)c->data->data + value->at;
    size_t size = value->size;
    while (size > 0 && *text == ' ') {
        text++;
        size--;
    }
    while (size > 0 && text[size - 1] == ' ')
        size--;
    return bags_utf8_sized(text, size);
}

/* Determine the kind of a value. Spaces around numbers and Booleans are ignored. */
static cv_kind cv_parse(const cv_state *c, const cv_value *value, cv_parsed *out) {
    if (value->size == 0)
        return CV_NONE;
    bags_value trimmed = cv_trimmed(c, value);
    const char *text = (const char *)trimmed.data;
    size_t size = trimmed.size;
    out->integer = cv_is_word(text, size, "true");
    if (out->integer || cv_is_word(text, size, "false"))
        return CV_BOOL;
    return cv_number(text, size, out);
}

/* Update the kind of a column with a value of the current line. */
static bags_code cv_learn(bags_source *s, cv_column *column, size_t i) {
    const cv_state *c = (const cv_state *)s->state;
    const cv_value *value = &c->values[i];
    cv_parsed parsed;
    cv_kind kind = column->kind == CV_TEXT && value->size > 0
                       ? CV_TEXT
                       : cv_parse(c, value, &parsed);
    if (kind == CV_NONE) {
        column->missing = column->missing || !value->quoted;
        column->empty = column->empty || value->quoted;
        return BAGS_OK;
    }
    if (kind == CV_INTEGER) {
        column->large = column->large || parsed.large;
        column->huge = column->huge || parsed.huge;
    }
    if (column->kind == CV_NONE || (kind > column->kind && column->kind != CV_BOOL))
        column->kind = kind;
    else if ((kind == CV_BOOL) != (column->kind == CV_BOOL))
        column->kind = CV_TEXT;
    if (column->kind == CV_TEXT && !column->text_line)
        column->text_line = c->first;
    if (kind != CV_TEXT ||
        bags_utf8_valid(c->data->data + value->at, value->size, NULL))
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "line %" PRIu64 ": not UTF-8; convert the file first, as with iconv", c->first);
}

/* ---- files ---- */

static bool cv_is_blank(const cv_state *c) {
    return c->count == 1 && c->values[0].size == 0 && !c->values[0].quoted;
}

/* Read the next data line across all files. Sets `ended` if there are no more. */
static bags_code cv_next(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    for (;;) {
        bool opens = !c->open;
        bags_code code = opens ? cv_open_file(s) : BAGS_OK;
        bool all = c->header ? **c->header != '#' : c->hash != NULL;
        if (!code && !s->ended && opens)
            code = cv_skip_comments(s, all ? 0 : c->column_count, true);
        if (!code && !s->ended)
            code = cv_line(s);
        if (code || s->ended)
            return code;
        if (c->count == 0) {
            cv_close_file(c);
            continue;
        }
        if (cv_is_blank(c) && c->column_count > 1) {
            if (opens && c->header)
                return cv_bad_line(s, 1, "blank, but it must have the names");
            bags_source_leave_out(s, "blank line", 1, "line %" PRIu64, c->first);
            continue;
        }
        if (c->count != c->column_count)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "lines differ in their number of values, or a quote is not "
                "closed (line %" PRIu64 ": %" PRIu64 ", the first line: %" PRIu64 ")",
                c->first, (uint64_t)c->count, (uint64_t)c->column_count);
        for (size_t i = 0; opens && c->header && i < c->count; i++)
            if (strlen(c->header[i]) != c->values[i].size ||
                memcmp(c->header[i], c->data->data + c->values[i].at,
                    c->values[i].size) != 0)
                return bags_source_fail(s, BAGS_ERROR_TYPE,
                    "other columns than in %s (\"%.*s\", \"%.200s\")", s->paths[0],
                    (int)(c->values[i].size < 200 ? c->values[i].size : 200),
                    (const char *)c->data->data + c->values[i].at, c->header[i]);
        if (!opens || !c->header)
            return BAGS_OK;
    }
}

/* Read the first lines of the first file with a given separator. *first receives the
 * number of values in the first line; *count receives the number in each line, or 0 if
 * they differ. */
static bags_code cv_try(bags_source *s, char separator, size_t *first, size_t *count) {
    cv_state *c = (cv_state *)s->state;
    *first = *count = 0;
    c->chosen = separator;
    s->path_next = 0;
    bags_code code = cv_open_file(s);
    if (code || c->stated)
        return code;
    FORMAT_TRY(cv_skip_comments(s, 0, false));
    if (cv_byte(s, 0) == CV_END) { /* no more lines */
        s->path_next = 0;
        FORMAT_TRY(cv_open_file(s));
    }
    for (size_t line = 0; line < CV_SAMPLE; line++) {
        code = cv_line(s);
        if (code || c->count == 0)
            return code;
        if (line == 0)
            *first = *count = c->count;
        if (c->count != *count && !cv_is_blank(c)) {
            *count = 0;
            break;
        }
    }
    return BAGS_OK;
}

/* Choose the separator from the first lines of the first file. */
static bags_code cv_choose(bags_source *s) {
    static const char separators[] = {',', '\t', ';', '|'};
    cv_state *c = (cv_state *)s->state;
    size_t most = 1, most_first = 1;
    char best = 0, best_first = 0;
    for (size_t i = 0; i < sizeof separators; i++) {
        size_t first, count;
        bags_code code = cv_try(s, separators[i], &first, &count);
        if (code && code != BAGS_ERROR_CORRUPT)
            return code;
        if (!code && c->stated) {
            best = c->separator;
            break;
        }
        if (first > most_first) {
            most_first = first;
            best_first = c->separator;
        }
        if (!code && count > most) {
            most = count;
            best = c->separator;
        }
    }
    c->chosen = best ? best : best_first;
    cv_close_file(c);
    s->path_next = 0;
    return BAGS_OK;
}

/* ---- the source ---- */

static const char *const cv_types[] = {
    "utf8", "array(bool)", "i64", "array(float64)", "utf8"};

/* Fail because the first line may be a header or data, and show it. */
static bags_code cv_ambiguous(bags_source *s, const char **firsts) {
    const cv_state *c = (const cv_state *)s->state;
    const char separator[2] = {c->separator, 0};
    char line[200];
    size_t size = 0;
    for (size_t i = 0; i < c->column_count && size < sizeof line; i++)
        size += (size_t)snprintf(
            line + size, sizeof line - size, "%s%.200s", i ? separator : "", firsts[i]);
    s->where = s->paths[0];
    return bags_source_fail(s, BAGS_ERROR_TYPE,
        "line %" PRIu64 ": header or data? (%s); pass --header yes if it has the names "
        "of the columns, --header no if it is data",
        c->first_line, line);
}

/* Treat the first line as data: its values (`of_first`) also determine the columns. */
static void cv_add_first(bags_source *s, const cv_column *of_first) {
    cv_state *c = (cv_state *)s->state;
    s->length++;
    for (size_t i = 0; i < c->column_count; i++) {
        cv_column *column = &c->columns[i];
        const cv_column *first = &of_first[i];
        column->missing = column->missing || first->missing;
        column->empty = column->empty || first->empty;
        column->large = column->large || first->large;
        column->huge = column->huge || first->huge;
        if (first->kind == CV_NONE || first->kind == column->kind)
            continue;
        column->kind = column->kind == CV_NONE                             ? first->kind
                       : column->kind == CV_BOOL || first->kind == CV_BOOL ? CV_TEXT
                       : first->kind > column->kind                        ? first->kind
                                                    : column->kind;
        if (column->kind == CV_TEXT)
            column->text_line = c->first_line;
    }
}

/* Decide whether the first line of the first file, `firsts`, is the header. The columns
 * are known from the lines after it. A preceding line that begins with # is the header,
 * unless a column of numbers or Booleans begins with text. */
static bags_code cv_decide(
    bags_source *s, const char **firsts, const cv_column *of_first) {
    cv_state *c = (cv_state *)s->state;
    bool numbers = false, all = true, over_numbers = false;
    for (size_t i = 0; i < c->column_count; i++) {
        cv_kind kind = c->columns[i].kind, first = of_first[i].kind;
        bool number = kind == CV_INTEGER || kind == CV_FLOAT;
        bool is_number = first == CV_INTEGER || first == CV_FLOAT;
        bool alike = number ? is_number : first == kind;
        numbers = numbers || is_number || first == CV_BOOL;
        all = all && (is_number || first == CV_BOOL) && (alike || kind == CV_NONE);
        if (number || kind == CV_BOOL)
            over_numbers = over_numbers || (first != CV_NONE && !alike);
    }
    if (c->hash && !over_numbers && s->options.header != BAGS_HEADER_NO) {
        c->header = c->hash;
        cv_add_first(s, of_first);
        return BAGS_OK;
    }
    if (c->hash)
        bags_source_leave_out(s, "comment line", 1, "line %" PRIu64, c->hash_line);
    bags_source_header header = s->options.header;
    if (header == BAGS_HEADER_DETECT && numbers && !all)
        return cv_ambiguous(s, firsts);
    if (header == BAGS_HEADER_YES || (header == BAGS_HEADER_DETECT && !numbers))
        c->header = firsts;
    else
        cv_add_first(s, of_first);
    return BAGS_OK;
}

/* The name of a column: from the header; a duplicate gets a number. */
static const char *cv_name(bags_source *s, size_t i) {
    cv_state *c = (cv_state *)s->state;
    const char *word = c->header ? c->header[i] : "", *name = word;
    bool unique = false;
    if (!*word)
        name = word = bags_source_format(s, "column%" PRIu64, (uint64_t)i);
    for (unsigned again = 1; name && !unique; again++) {
        unique = true;
        for (size_t k = 0; unique && k < i; k++)
            unique = strcmp(c->columns[k].name, name) != 0;
        if (!unique)
            name = bags_source_format(s, "%s_%u", word, again);
    }
    return name;
}

static bags_code cv_add_field(bags_source *s, size_t i) {
    cv_column *column = &((cv_state *)s->state)->columns[i];
    column->name = cv_name(s, i);
    if (!column->name)
        return BAGS_ERROR_MEMORY;
    if (s->options.want)
        column->want = s->options.want(s->options.user, column->name);
    if (column->want == BAGS_WANT_NUMBER && column->kind == CV_TEXT)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "column \"%.200s\": line %" PRIu64
            ": not a number, or it would lose zeros, a sign "
            "or digits; use a type of text, such as utf8",
            column->name, column->text_line);
    if (column->kind == CV_INTEGER && column->large && !column->huge && !column->want)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "column \"%.200s\": integers above 2^63-1 are not an i64; state a type: "
            "--type '%.200s=u64'",
            column->name, column->name);
    if (column->kind == CV_NONE ||
        (column->kind == CV_INTEGER && column->huge && !column->want) ||
        column->want == BAGS_WANT_TEXT)
        column->kind = CV_TEXT;
    column->sequence = column->missing || (column->empty && column->kind != CV_TEXT);
    bags_source_field(s, column->name,
        bags_source_format(s, "%s%s", column->want ? "utf8" : cv_types[column->kind],
            column->sequence ? "[]" : ""));
    return BAGS_OK;
}

/* The text of the current line's values. */
static const char **cv_texts(bags_source *s) {
    const cv_state *c = (const cv_state *)s->state;
    const char **texts =
        (const char **)bags_source_alloc(s, c->count, sizeof(const char *));
    for (size_t i = 0; texts && i < c->count; i++) {
        texts[i] =
            bags_source_text(s, c->data->data + c->values[i].at, c->values[i].size);
        if (!texts[i])
            return NULL;
    }
    return texts;
}

/* Skip the comments before the first line of the first file. The last line that begins
 * with # may be the header, so keep its values. */
static bags_code cv_open_comments(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    if (cv_byte(s, 0) != '#')
        return c->failed;
    FORMAT_TRY(cv_skip_comments(s, 0, false));
    FORMAT_TRY(cv_line(s));
    size_t count = c->count;
    s->path_next = 0;
    bags_code code = cv_open_file(s);
    if (code || count == 0)
        return code; /* all lines begin with # */
    code = cv_skip_comments(s, count, true);
    if (code || cv_byte(s, 0) != '#')
        return code;
    size_t at = 0, size = 0;
    while (!cv_is_end(s, at, cv_byte(s, at), &size))
        at++;
    if (cv_byte(s, at + size) == '#')
        return c->failed;
    code = cv_line(s);
    if (code || c->count != count)
        return code;
    c->hash = cv_texts(s);
    c->hash_line = c->first;
    return c->hash ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Read the first line of the first file, to get the columns and its text. */
static bags_code cv_open_columns(
    bags_source *s, const char ***firsts, cv_column **of_first) {
    cv_state *c = (cv_state *)s->state;
    FORMAT_TRY(cv_open_file(s));
    FORMAT_TRY(cv_open_comments(s));
    FORMAT_TRY(cv_line(s));
    if (c->count == 0)
        return bags_source_fail(s, BAGS_ERROR_MISSING, "it is empty");
    c->first_line = c->first;
    c->column_count = c->count;
    c->columns = (cv_column *)bags_source_alloc(s, c->count, sizeof *c->columns);
    *of_first = (cv_column *)bags_source_alloc(s, c->count, sizeof *c->columns);
    *firsts = cv_texts(s);
    if (!c->columns || !*of_first || !*firsts)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < c->count; i++)
        FORMAT_TRY(cv_learn(s, &(*of_first)[i], i));
    return BAGS_OK;
}

/* Read all lines to determine the columns' kinds. */
static bags_code cv_learn_all(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    const char **firsts = NULL;
    cv_column *of_first = NULL;
    FORMAT_TRY(cv_open_columns(s, &firsts, &of_first));
    s->ended = false;
    for (bool decided = false;;) {
        /* Read the other files only once it is known whether there is a header. */
        size_t count = s->path_count;
        s->path_count = decided ? count : 1;
        bags_code code = cv_next(s);
        s->path_count = count;
        if (code || (s->ended && decided))
            return code;
        if (s->ended) {
            FORMAT_TRY(cv_decide(s, firsts, of_first));
            decided = true;
            continue;
        }
        s->length++;
        for (size_t i = 0; i < c->column_count; i++)
            FORMAT_TRY(cv_learn(s, &c->columns[i], i));
    }
}

static bags_code cv_open(bags_source *s) {
    cv_state *c = (cv_state *)s->state;
    FORMAT_TRY(bags_source_files(s, bags_import_is_csv_name));
    FORMAT_TRY(cv_choose(s));
    FORMAT_TRY(cv_learn_all(s));
    s->where = s->path;
    if (s->length == 0)
        bags_source_note(
            s, s->path, "no lines of values: the types of the columns are not known");
    for (size_t i = 0; i < c->column_count; i++)
        FORMAT_TRY(cv_add_field(s, i));
    cv_close_file(c);
    s->path_next = 0;
    return BAGS_OK;
}

static bags_code cv_read(bags_source *s, uint64_t index) {
    static const unsigned char bits[2] = {0, 1};
    cv_state *c = (cv_state *)s->state;
    s->ended = false;
    while (!s->ended && c->next <= index) {
        FORMAT_TRY(cv_next(s));
        c->next += !s->ended;
    }
    if (s->ended ? c->next != s->length : c->next > s->length)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "the file changed while it was read");
    cv_parsed *all =
        s->ended ? NULL
                 : (cv_parsed *)bags_source_alloc(s, c->column_count, sizeof *all);
    if (!all)
        return s->ended ? BAGS_OK : BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < c->column_count; i++) {
        const cv_column *column = &c->columns[i];
        const cv_value *value = &c->values[i];
        cv_kind kind = column->kind == CV_TEXT
                           ? (value->size || value->quoted ? CV_TEXT : CV_NONE)
                           : cv_parse(c, value, &all[i]);
        bool good = kind == column->kind ||
                    (kind == CV_INTEGER && column->kind == CV_FLOAT) ||
                    (kind == CV_NONE && column->sequence);
        if (!good || (kind == CV_INTEGER && column->kind == CV_INTEGER &&
                         all[i].large && !column->want))
            return bags_source_fail(
                s, BAGS_ERROR_CORRUPT, "the file changed while it was read");
        s->entries[i].count = kind != CV_NONE;
        if (kind == CV_TEXT)
            s->values[i] =
                bags_utf8_sized((const char *)c->data->data + value->at, value->size);
        else if (column->want)
            s->values[i] = kind != CV_BOOL  ? cv_trimmed(c, value)
                           : all[i].integer ? bags_utf8("true")
                                            : bags_utf8("false");
        else if (kind == CV_BOOL)
            s->values[i] = bags_blob(bits + all[i].integer, 1);
        else if (column->kind == CV_INTEGER)
            s->values[i] = bags_int(all[i].integer);
        else
            s->values[i] = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &all[i].number);
    }
    return BAGS_OK;
}

static void cv_close(bags_source *s) { cv_close_file((cv_state *)s->state); }

const bags_importer bags_import_csv = {
    "csv", bags_import_is_csv, sizeof(cv_state), cv_open, cv_read, cv_close};
