/*
 * bags stats: print statistics about numbers in fields, as JSON.
 */
#include "command.h"

#include "formats.h"
#include "text.h"

static option_number threads = {0, 1, 1024, false};

static const option options[] = {
    {"threads", OPTION_NUMBER, &threads, "T", "threads (the number of processors)"},
    SELECT_OPTIONS,
    OPTION_MAX_PIXELS,
    OPTIONS_END,
};

static void put_number(text *out, const bags_value *number) {
    char real[40];
    if (number->kind == BAGS_KIND_UINT)
        text_format(out, "%ju", (uintmax_t)number->uint);
    else if (number->kind == BAGS_KIND_INT)
        text_format(out, "%jd", (intmax_t)number->sint);
    else {
        format_json_real(real, number->real);
        text_puts(out, real);
    }
}

/* The statistics, in the order in which get_number numbers them. */
static const char *const names[] = {
    "mean", "std", "min", "max", "count", "q01", "q10", "q50", "q90", "q99"};

static bags_value get_number(const bags_statistics *of, size_t which) {
    switch (which) {
    case 0:
        return bags_real(of->mean);
    case 1:
        return bags_real(of->std);
    case 2:
        return of->min;
    case 3:
        return of->max;
    case 4:
        return bags_uint(of->count);
    default:
        return bags_real(of->quantiles[which - 5]);
    }
}

/* Write a list for each statistic, with one number per element: null if it has none. */
static void put_field(text *out, const bags_statistics *of, size_t count) {
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        text_member(out, names[k]);
        text_puts(out, "[");
        for (size_t i = 0; i < count; i++) {
            bags_value number = get_number(&of[i], k);
            text_next(out);
            if (of[i].count || k == 4)
                put_number(out, &number);
            else
                text_puts(out, "null");
        }
        text_puts(out, "]");
    }
}

static int run(char **operands) {
    const char *path = path_without_secrets(operands[0]);
    char **fields = operands + 1;
    size_t count = 0, all_count, at = 0;
    bags_stats_options how = {0};
    static bags_buffer found;
    static text out;
    static size_t *elements;
    mapped_path = path;
    registry_expand_palettes(true);
    bags_reader *reader = dataset_open(path, registry_get());
    const bags_field *all = bags_reader_fields(reader, &all_count);
    for (; fields[count]; count++)
        codec_check(all[field_require(path, fields[count], all, all_count)].type);
    elements = (size_t *)allocate(count, sizeof *elements);
    how.rows = select_datapoints((const bags_reader *const *)&reader, 1,
        bags_reader_length(reader), &how.rows_count);
    how.threads = (uint32_t)threads.value;
    how.progress = progress_datapoints;
    how.user = (void *)(uintptr_t)path;
    how.env.io = io_for_path(path);
    interrupt_leaves("", "start again with", NULL);
    interrupt_defer();
    bags_code code = bags_stats(
        reader, (const char *const *)fields, count, &how, &found, elements, &failure);
    progress_end();
    interrupt_check();
    must(code);
    text_puts(&out, "{");
    for (size_t k = 0; k < count; at += elements[k++]) {
        text_member(&out, fields[k]);
        text_puts(&out, "{");
        put_field(&out, (const bags_statistics *)(void *)found.data + at, elements[k]);
        text_puts(&out, "}");
    }
    text_puts(&out, "}\n");
    text_output(&out);
    bags_reader_close(reader);
    return 0;
}

const command command_stats = {"stats", "mean, deviation and quantiles of fields",
    "DATASET FIELD...", {ARGUMENT_PATH, ARGUMENT_WORD, ARGUMENT_WORD}, 2, 0, options,
    reading_options,
    "Computes statistics of the numbers in fields, in one pass, as training needs them "
    "to normalise its input. It prints an object of JSON: for each FIELD mean, std, "
    "min, max, count, q01, q10, q50, q90 and q99, lists with a number for "
    "each element of the field's arrays; of images and videos, for each channel, 0 to "
    "255; of all items of sequences. NaN is not counted: a number is null if all were "
    "NaN. An infinite number is an error. The result does not depend on the order of "
    "datapoints, on shards or on threads.\n",
    "  bags stats robot state action\n"
    "  bags stats pets image --where 'label = 3'\n",
    run};
