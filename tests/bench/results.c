/* What was measured: kept by part, operation and peer, printed as tables, and
 * written as JSON. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>

#define ROUNDS 64
#define RESULTS 2048

typedef struct result {
    const char *part, *operation, *who;
    bench_unit unit;
    size_t count;
    double values[ROUNDS];
} result;

static result results[RESULTS];
static size_t result_count;
static const char *part_now;

int checks_passed, checks_failed;

void begin_part(const char *name) {
    part_now = name;
    busy_at_most();
    if (!set.small)
        fprintf(stderr, "measuring: %s\n", name);
}

static bool same(const char *a, const char *b) { return strcmp(a, b) == 0; }

static result *find(const char *part, const char *operation, const char *who) {
    for (size_t i = 0; i < result_count; i++)
        if (same(results[i].part, part) && same(results[i].who, who) &&
            same(results[i].operation, operation))
            return &results[i];
    return NULL;
}

void record(const char *operation, const char *who, bench_unit unit, double value) {
    result *to = find(part_now, operation, who);
    if (!to) {
        if (result_count == RESULTS)
            die("more than %d results", RESULTS);
        to = &results[result_count++];
        to->part = part_now;
        to->operation = operation;
        to->who = who;
        to->unit = unit;
    }
    if (to->count < ROUNDS)
        to->values[to->count++] = value;
}

static double least(const double *values, size_t count) {
    double found = values[0];
    for (size_t i = 1; i < count; i++)
        found = values[i] < found ? values[i] : found;
    return found;
}

/* What the processor did only grows by what the machine adds, for memory that it
 * has lent to others by half: there the least is nearest to the truth. */
static bool takes_least(const result *r) { return same(r->operation, CPU_TIME); }

static double figure(const result *r) {
    return takes_least(r) ? least(r->values, r->count) : median(r->values, r->count);
}

double result_of(const char *part, const char *operation, const char *who) {
    const result *r = find(part, operation, who);
    return r ? figure(r) : NAN;
}

double ratio_of(const char *part, const char *operation, const char *who,
    const char *other_operation, const char *other) {
    const result *a = find(part, operation, who);
    const result *b = find(part, other_operation, other);
    double ratios[ROUNDS];
    if (!a || !b)
        return NAN;
    if (takes_least(a))
        return figure(a) / figure(b);
    size_t count = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < count; i++)
        ratios[i] = a->values[i] / b->values[i];
    return median(ratios, count);
}

void check(bool good, const char *who, const char *what) {
    checks_passed += good;
    checks_failed += !good;
    if (!good)
        printf("FAILED  %s, %s: %s\n", part_now, who, what);
}

/* ------------------------------------------------------------------- tables */

/* Three digits and a unit. */
static void show(char *to, size_t room, bench_unit unit, double value) {
    static const char *const times[] = {"ns", "us", "ms", "s"};
    static const char *const sizes[] = {"B", "kB", "MB", "GB"};
    size_t i = 0;
    while (value >= 999.5 && i < 3) {
        value /= 1000;
        i++;
    }
    snprintf(to, room, "%.*f %s",
        value < 9.95   ? 2
        : value < 99.5 ? 1
                       : 0,
        value, unit == BYTES ? sizes[i] : times[i]);
}

/* The distinct names of a part, in the order in which they came. */
static size_t names(const char *part, bool operations, const char **to, size_t most) {
    size_t count = 0;
    for (size_t i = 0; i < result_count; i++) {
        const char *name = operations ? results[i].operation : results[i].who;
        bool known = !same(results[i].part, part);
        for (size_t j = 0; j < count && !known; j++)
            known = same(to[j], name);
        if (!known && count < most)
            to[count++] = name;
    }
    return count;
}

static void print_cell(const result *r, const result *base) {
    char text[32];
    if (!r) {
        printf(" %10s %7s", "-", "");
        return;
    }
    show(text, sizeof text, r->unit, figure(r));
    printf(" %10s", text);
    double ratio =
        base ? ratio_of(r->part, r->operation, r->who, base->operation, base->who)
             : NAN;
    if (isnan(ratio) || isinf(ratio))
        printf(" %7s", "");
    else
        printf(" %6.*fx", ratio < 9.95 ? 2 : ratio < 99.5 ? 1 : 0, ratio);
}

#define COLUMNS 5

/* With whom the others are compared: the hand-made, or who comes first. */
static const result *base_of(
    const char *part, const char *operation, const char **rows, size_t row_count) {
    static const char *const bases[] = {"ideal Bag", "by hand"};
    const result *base = NULL;
    for (size_t i = 0; i < 2 && !base; i++)
        base = find(part, operation, bases[i]);
    for (size_t i = 0; i < row_count && !base; i++)
        base = find(part, operation, rows[i]);
    return base;
}

/* Some columns of a part's table. Beside each figure stands how many times the
 * base's it is. */
static void print_columns(const char *part, const char **columns, size_t count,
    const char **rows, size_t row_count) {
    printf("\n%-24s", part);
    for (size_t j = 0; j < count; j++)
        printf(" %18s", columns[j]);
    printf("\n");
    for (size_t i = 0; i < row_count; i++) {
        bool any = false;
        for (size_t j = 0; j < count; j++)
            any = any || find(part, columns[j], rows[i]);
        if (!any)
            continue;
        printf("%-24s", rows[i]);
        for (size_t j = 0; j < count; j++)
            print_cell(find(part, columns[j], rows[i]),
                base_of(part, columns[j], rows, row_count));
        printf("\n");
    }
}

static void print_part(const char *part) {
    const char *rows[64], *columns[64];
    size_t row_count = names(part, false, rows, 64);
    size_t column_count = names(part, true, columns, 64);
    for (size_t at = 0; at < column_count; at += COLUMNS)
        print_columns(part, columns + at,
            column_count - at < COLUMNS ? column_count - at : COLUMNS, rows, row_count);
}

void print_results(void) {
    for (size_t i = 0; i < result_count; i++) {
        bool first = true;
        for (size_t j = 0; j < i && first; j++)
            first = !same(results[j].part, results[i].part);
        if (first)
            print_part(results[i].part);
    }
}

/* --------------------------------------------------------------------- JSON */

/* Names are ours: nothing in them needs to be escaped. */
static void write_result(FILE *file, const result *r) {
    fprintf(file,
        "    {\"part\": \"%s\", \"operation\": \"%s\", \"who\": \"%s\", "
        "\"unit\": \"%s\", \"figure\": %.6g, \"rounds\": [",
        r->part, r->operation, r->who, r->unit == BYTES ? "B" : "ns", figure(r));
    for (size_t i = 0; i < r->count; i++)
        fprintf(file, "%s%.6g", i ? ", " : "", r->values[i]);
    double ratio = ratio_of(r->part, r->operation, r->who, r->operation, "ideal Bag");
    if (isnan(ratio) || isinf(ratio))
        fprintf(file, "]}");
    else
        fprintf(file, "], \"to_ideal\": %.6g}", ratio);
}

bool write_json(const char *path, void (*more)(void *file)) {
    struct utsname machine;
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    uname(&machine);
    fprintf(file,
        "{\n  \"system\": \"%s %s %s\",\n  \"compiler\": \"%s\",\n"
        "  \"rounds\": %d,\n  \"load\": %.1f,\n  \"results\": [\n",
        machine.sysname, machine.release, machine.machine, __VERSION__, set.rounds,
        busy_at_most());
    for (size_t i = 0; i < result_count; i++) {
        write_result(file, &results[i]);
        fputs(i + 1 < result_count ? ",\n" : "\n  ],\n", file);
    }
    more(file);
    fprintf(file, "}\n");
    return fclose(file) == 0;
}
