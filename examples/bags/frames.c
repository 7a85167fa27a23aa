/*
 * The options of `bags load --frames`: the window of each field in a sample.
 */
#include "frames.h"

#include "text.h"

#include <math.h>

static const char *const pad_names[] = {"edge", "drop", NULL};
framing_options framing = {.pad = CHOICE(pad_names)};

static bags_frames_options frames;

/* The options whose value is a list of FIELD=VALUE pairs. */
static const struct {
    const char *name, **given, *expected;
} lists[] = {
    {"offsets", &framing.offsets, "FIELD=START:STOP, as action=0:16"},
    {"seconds", &framing.seconds, "FIELD=START:STOP:STEP, as camera=-0.1:0.1:0.1"},
    {"times", &framing.times, "FIELD=TIMES"},
    {"rate", &framing.rate, "FIELD=HZ, as camera=29.97"},
    {"tolerance", &framing.tolerance, "FIELD=SECONDS, as camera=0.02"},
};
enum { OFFSETS, SECONDS, TIMES, RATE, TOLERANCE, LISTS };
#define MOST 1048576 /* items in a window */

/* ---- values ---- */

ENDS static void fail_value(int list, const char *field, const char *value) {
    usage("--%s: \"%s=%s\": expected %s", lists[list].name, field, value,
        lists[list].expected);
}

/* Parse a number that must end at `end`. Moves *at there. */
static double parse_real(
    int list, const char *field, const char *value, const char **at, char end) {
    char *stop = NULL;
    size_t size = strspn(*at, "+-.0123456789eE");
    double out = strtod(*at, &stop);
    if (!size || stop != *at + size || *stop != end || !isfinite(out))
        fail_value(list, field, value);
    *at = stop + (*stop != 0);
    return out;
}

static double parse_only(int list, const char *field, const char *value) {
    const char *at = value;
    return parse_real(list, field, value, &at, 0);
}

static int64_t parse_offset(
    const char *field, const char *value, const char *from, size_t size) {
    bags_value number;
    if (size > 16 ||
        !format_number(from, size, &number)) /* differences fit in 64 bits */
        fail_value(OFFSETS, field, value);
    return *from == '-' ? number.sint : (int64_t)number.uint;
}

/* START:STOP */
static void parse_offsets(bags_load_field *field, const char *value) {
    const char *colon = strchr(value, ':');
    if (!colon)
        fail_value(OFFSETS, field->name, value);
    int64_t start = parse_offset(field->name, value, value, (size_t)(colon - value));
    int64_t stop = parse_offset(field->name, value, colon + 1, strlen(colon + 1));
    if (start >= stop || stop - start > MOST)
        usage("--offsets: \"%s=%s\" is %s", field->name, value,
            start >= stop ? "empty: START must be below STOP"
                          : "too large (at most 1,048,576 items)");
    size_t count = (size_t)(stop - start);
    int64_t *offsets = (int64_t *)allocate(count, sizeof *offsets);
    for (size_t i = 0; i < count; i++)
        offsets[i] = start + (int64_t)i;
    field->offsets = offsets;
    field->offset_count = count;
}

/* START:STOP:STEP means START + k * STEP while below STOP. A product that differs from
 * STOP by less than 10^-9 of a step counts as STOP because of rounding. */
static void parse_seconds(bags_load_field *field, const char *value) {
    const char *at = value;
    double start = parse_real(SECONDS, field->name, value, &at, ':');
    double stop = parse_real(SECONDS, field->name, value, &at, ':');
    double step = parse_real(SECONDS, field->name, value, &at, 0);
    if (!(step > 0) || !(start < stop))
        usage(
            "--seconds: \"%s=%s\" is empty: START must be below STOP, and STEP above 0",
            field->name, value);
    double exact = ceil((stop - start) / step - 1e-9);
    if (!(exact <= MOST))
        usage("--seconds: \"%s=%s\" is too large (at most 1,048,576 items)",
            field->name, value);
    size_t count = exact < 1 ? 1 : (size_t)exact;
    double *seconds = (double *)allocate(count, sizeof *seconds);
    for (size_t i = 0; i < count; i++)
        seconds[i] = start + (double)i * step;
    field->seconds = seconds;
    field->second_count = count;
}

/* Set one option of a field. For the clock, the times and the rate are options of the
 * loader. */
static void set_value(int list, bags_load_field *field, bool is_clock, char *value) {
    if (list == OFFSETS)
        parse_offsets(field, value);
    if (list == SECONDS)
        parse_seconds(field, value);
    if (list == TIMES)
        *(is_clock ? &frames.times : &field->times) = value;
    if (list == RATE)
        *(is_clock ? &frames.rate : &field->rate) =
            parse_only(list, field->name, value);
    if (list == TOLERANCE) {
        field->tolerance = parse_only(list, field->name, value);
        field->has_tolerance = true;
    }
    if (list == RATE && !(*(is_clock ? &frames.rate : &field->rate) > 0))
        usage("--rate: \"%s=%s\" is not above 0", field->name, value);
    if (list == TOLERANCE && field->tolerance < 0)
        usage("--tolerance: \"%s=%s\" is below 0", field->name, value);
}

/* ---- fields ---- */

static bags_load_field *find_loaded(
    const char *name, bags_load_field *fields, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

/* Apply one of the lists to the loaded fields. They keep parts of its text. */
static void apply_list(int list, const char *of, const bags_field *all,
    size_t all_count, bags_load_field *fields, size_t count) {
    static char *words[LISTS];
    static bool *seen;
    words[list] = string_format("%s", *lists[list].given);
    char *at = words[list], *name, *value;
    free(seen);
    seen = (bool *)allocate(all_count, sizeof *seen);
    while (list_next(&at, &name, &value)) {
        if (!value || !*value || !*name)
            usage("--%s: expected %s", lists[list].name, lists[list].expected);
        size_t i = field_require(of, name, all, all_count);
        bool is_clock = !strcmp(name, framing.clock);
        bags_load_field *to = find_loaded(name, fields, count), clock = {.name = name};
        if (seen[i])
            usage("--%s: field \"%s\" is listed twice", lists[list].name, name);
        seen[i] = true;
        if (!to && is_clock && (list == TIMES || list == RATE))
            to = &clock;
        if (!to)
            usage("--%s: field \"%s\" is not loaded; --fields does not name it",
                lists[list].name, name);
        if (list == TIMES)
            (void)field_require(of, value, all, all_count);
        set_value(list, to, is_clock, value);
    }
}

bool frames_names(size_t field, const char *of, const bags_field *all, size_t count) {
    bool plain =
        !has_ending(all[field].type, "[]") && type_kind(all[field].type) != TYPE_VIDEO;
    bool found = plain || !strcmp(all[field].name, framing.clock);
    for (int list = 0; list <= SECONDS && !found; list++) {
        char *words =
            *lists[list].given ? string_format("%s", *lists[list].given) : NULL;
        char *at = words, *name, *value;
        while (list_next(&at, &name, &value))
            found = found || field_require(of, name, all, count) == field;
        free(words);
    }
    return found;
}

const bags_frames_options *frames_apply(const char *of, const bags_field *all,
    size_t all_count, bags_load_field *fields, size_t count) {
    (void)field_require(of, framing.clock, all, all_count);
    frames.clock = framing.clock;
    frames.pad = (bags_pad)framing.pad.value;
    frames.same_draw = framing.same_draw;
    for (int list = 0; list < LISTS; list++)
        if (*lists[list].given)
            apply_list(list, of, all, all_count, fields, count);
    return &frames;
}
