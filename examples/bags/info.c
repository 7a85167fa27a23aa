/*
 * bags info: what a Bag or a dataset holds, for people or as JSON.
 */
#include "command.h"

#include <string.h>

/* Numbers of missing shards are listed one by one; a lying directory name must
 * not make that endless. */
#define MISSING_MOST 1000000

static bags_code put_missing(const source *from, text *out, bags_error *err) {
    size_t count = 0;
    uint64_t listed = 0;
    const bags_gap *gaps =
        from->bag ? NULL : bags_reader_gaps(from->dataset, &count);
    text_puts(out, "\"missing\": [");
    for (size_t i = 0; i < count; i++) {
        uint64_t step = gaps[i].step ? gaps[i].step : 1;
        for (uint64_t at = gaps[i].start; at < gaps[i].stop; at += step) {
            if (++listed > MISSING_MOST)
                return bags_fail(err, BAGS_ERROR_LIMIT,
                    "%s: more than %d shards are missing, too many to list",
                    from->path, MISSING_MOST);
            text_format(out, "%s%ju", listed > 1 ? ", " : "", (uintmax_t)at);
            if (gaps[i].stop - at <= step)
                break;
        }
    }
    text_puts(out, "]");
    return BAGS_OK;
}

static bags_code source_size(const source *from, uint64_t *size,
    bags_error *err) {
    if (!from->bag)
        return bags_reader_size(from->dataset, size, err);
    *size = bag_reader_size(from->bag);
    return BAGS_OK;
}

/* How many shards have checksums; a Bag counts as one. */
static bags_code source_summed(const source *from, uint64_t *shards,
    bags_error *err) {
    bool summed = false;
    if (!from->bag)
        return bags_reader_summed(from->dataset, shards, err);
    bags_code code = bag_reader_summed(from->bag, &summed, err);
    *shards = summed;
    return code;
}

static uint64_t source_shards(const source *from) {
    return from->bag ? 1 : bags_reader_shards(from->dataset);
}

/* Shards that are still being written, or whose writer died: with --live. */
static uint64_t source_unfinished(const source *from) {
    uint64_t count = 0;
    for (uint64_t i = 0; !from->bag && i < source_shards(from); i++)
        count += bags_reader_shard(from->dataset, i).unfinished;
    return count;
}

static uint64_t source_skipped(const source *from) {
    return from->bag ? 0 : bags_reader_skipped(from->dataset);
}

/* The fields with names and types; of a Bag none. */
static const bags_field *info_fields(const source *from, size_t *count) {
    *count = 0;
    return from->bag ? NULL : bags_reader_fields(from->dataset, count);
}

static bags_code put_fields(const source *from, text *out, bags_error *err) {
    size_t count;
    const bags_field *fields = info_fields(from, &count);
    text_puts(out, "\"fields\": {");
    for (size_t i = 0; i < count; i++) {
        bags_stat stat;
        bags_code code = bags_reader_stat(from->dataset, i, &stat, err);
        if (code)
            return code;
        text_puts(out, i ? ", " : "");
        text_json(out, fields[i].name, strlen(fields[i].name), false);
        text_format(out, ": {\"blobs\": %ju, \"bytes\": %ju}",
            (uintmax_t)stat.blobs, (uintmax_t)stat.bytes);
    }
    text_puts(out, "}");
    return BAGS_OK;
}

static bags_code show_json(const source *from, text *out, bags_error *err) {
    uint64_t size = 0, summed = 0;
    size_t count;
    const bags_field *fields = info_fields(from, &count);
    bags_code code = source_size(from, &size, err);
    if (!code)
        code = source_summed(from, &summed, err);
    if (code)
        return code;
    text_puts(out, "{\"path\": ");
    text_json(out, from->path, strlen(from->path), false);
    text_format(out, ", \"length\": %ju, \"shards\": %ju, \"skipped\": %ju, "
        "\"unfinished\": %ju, ",
        (uintmax_t)source_length(from), (uintmax_t)source_shards(from),
        (uintmax_t)source_skipped(from), (uintmax_t)source_unfinished(from));
    code = put_missing(from, out, err);
    text_format(out, ", \"size\": %ju, \"checksums\": %ju, \"spec\": ",
        (uintmax_t)size, (uintmax_t)summed);
    text_spec(out, fields, count);
    text_puts(out, ", ");
    if (!code)
        code = put_fields(from, out, err);
    text_puts(out, "}\n");
    return code;
}

/* ---- for people ---- */

static void put_size(text *out, uint64_t size) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB",
        "EiB"};
    double shown = (double)size;
    size_t unit = 0;
    if (size < 1024) {
        text_format(out, "%ju bytes", (uintmax_t)size);
        return;
    }
    for (shown /= 1024; shown >= 1024 && unit < 5; unit++)
        shown /= 1024;
    text_format(out, "%.1f %s", shown, units[unit]);
}

/* Names come from strangers: as JSON strings nothing in them is special to a
 * terminal, but plain ones need no quotes. */
static size_t put_name(text *out, const char *name) {
    size_t before = out->size;
    size_t size = strlen(name);
    bool plain = size > 0;
    for (size_t i = 0; i < size; i++)
        plain = plain && name[i] > ' ' && name[i] < 0x7F && name[i] != '"';
    if (plain)
        text_put(out, name, size);
    else
        text_json(out, name, size, true);
    return out->size - before;
}

static void put_gaps(const source *from, text *out) {
    size_t count;
    const bags_gap *gaps = bags_reader_gaps(from->dataset, &count);
    for (size_t i = 0; i < count; i++) {
        text_format(out, "%s%06ju", i ? ", " : "missing    ",
            (uintmax_t)gaps[i].start);
        if (gaps[i].stop - gaps[i].start > (gaps[i].step ? gaps[i].step : 1))
            text_format(out, ", ... below %06ju (every %ju)",
                (uintmax_t)gaps[i].stop, (uintmax_t)gaps[i].step);
    }
    text_puts(out, count ? "\n" : "");
}

static void put_padding(text *out, size_t done, size_t wanted) {
    for (; done < wanted; done++)
        text_puts(out, " ");
    text_puts(out, "  ");
}

static bags_code put_table(const source *from, text *out, bags_error *err) {
    size_t count, name_most = 5, type_most = 4;
    const bags_field *fields = bags_reader_fields(from->dataset, &count);
    for (size_t i = 0; i < count; i++) {
        text measure = {0};
        size_t size = put_name(&measure, fields[i].name);
        text_free(&measure);
        name_most = size > name_most && size <= 40 ? size : name_most;
        size = strlen(fields[i].type);
        type_most = size > type_most && size <= 40 ? size : type_most;
    }
    put_padding(out, (text_puts(out, "field"), 5), name_most);
    put_padding(out, (text_puts(out, "type"), 4), type_most);
    text_puts(out, "       blobs  bytes\n");
    for (size_t i = 0; i < count; i++) {
        bags_stat stat;
        bags_code code = bags_reader_stat(from->dataset, i, &stat, err);
        if (code)
            return code;
        put_padding(out, put_name(out, fields[i].name), name_most);
        text_puts(out, fields[i].type);
        put_padding(out, strlen(fields[i].type), type_most);
        text_format(out, "%12ju  ", (uintmax_t)stat.blobs);
        put_size(out, stat.bytes);
        text_puts(out, "\n");
    }
    return BAGS_OK;
}

static bags_code show_people(const source *from, text *out, bags_error *err) {
    uint64_t size = 0, summed = 0;
    bags_code code = source_size(from, &size, err);
    if (!code)
        code = source_summed(from, &summed, err);
    if (code)
        return code;
    bool sharded = from->dataset && bags_reader_sharded(from->dataset);
    text_format(out, "kind       %s\n", from->bag ? "Bag"
                                        : sharded ? "sharded dataset"
                                                  : "dataset");
    text_format(out, "length     %ju %s%s\n", (uintmax_t)source_length(from),
        from->bag ? "blob" : "datapoint", source_length(from) == 1 ? "" : "s");
    text_puts(out, "size       ");
    put_size(out, size);
    text_puts(out, "\n");
    if (summed == source_shards(from) && summed)
        text_puts(out, "checksums  yes\n");
    else if (summed)
        text_format(out, "checksums  in %ju shards of %ju\n",
            (uintmax_t)summed, (uintmax_t)source_shards(from));
    if (from->bag)
        return BAGS_OK;
    if (sharded)
        text_format(out, "shards     %ju\n", (uintmax_t)source_shards(from));
    if (source_skipped(from))
        text_format(out, "skipped    %ju unfinished\n",
            (uintmax_t)source_skipped(from));
    if (source_unfinished(from))
        text_format(out, "unfinished %ju, as far as flushed\n",
            (uintmax_t)source_unfinished(from));
    put_gaps(from, out);
    text_puts(out, "\n");
    return put_table(from, out, err);
}

static int run(int count, char **words) {
    source_options reading = {0};
    bool json = false;
    option options[SOURCE_OPTIONS + 1] = {{"json", &json, NULL}};
    source_options_describe(&reading, options + 1);
    int exit_code;
    if (!options_parse(&command_info, &count, words, options,
            SOURCE_OPTIONS + 1, &exit_code))
        return exit_code;
    if (count != 1)
        return fail_usage(&command_info, "takes one PATH");
    source from;
    text out = {0};
    bags_error err;
    bags_code code = source_open(&from, words[0], &reading, &err);
    if (code)
        return fail(&err);
    code = json ? show_json(&from, &out, &err) : show_people(&from, &out, &err);
    if (!code)
        code = text_check(&out, &err);
    if (!code)
        code = output(out.buffer.data, out.size, &err);
    source_close(&from);
    text_free(&out);
    return code ? fail(&err) : 0;
}

const command command_info = {"info", "what a Bag or a dataset holds",
    "usage: bags info PATH [--json]\n"
    "                 [--check] [--allow-gaps] [--skip-unfinished] [--live]\n"
    "\n"
    "Says how many datapoints and shards PATH has, its size, and its fields\n"
    "with their types. PATH is a Bag, a dataset, or a directory of shards.\n"
    "\n"
    "  --json             one JSON object: path, length, shards, skipped\n"
    "                     (left out), unfinished (shards read with --live),\n"
    "                     missing (shards' numbers), size (bytes of all\n"
    "                     Bags), checksums (shards with them), spec, and\n"
    "                     fields (blobs and bytes of each). A Bag has an\n"
    "                     empty spec and no fields\n"
    "  --check            fail where there are no checksums; bags verify\n"
    "                     compares them\n"
    "  --allow-gaps       read on although shards are missing\n"
    "  --skip-unfinished  leave out shards that are not finished\n"
    "  --live             read what has been flushed of them, while they are\n"
    "                     written or after their writer died\n"
    "\n"
    "example:\n"
    "  bags info pets --json\n",
    run};
