/*
 * --resume and --append: the part of the dataset that already exists.
 *
 * --resume: the input starts with the existing datapoints. The first, the last and a
 * hundred in between are encoded again and compared, so that another input is refused
 * rather than losing its first datapoints. --append: every datapoint of the input is
 * new. This works after `bags finalize` too, when shard numbers no longer tell which
 * worker wrote a shard. Both options write checksums and .idx files if, and only if,
 * the finished shards have them.
 */
#include "sink.h"

#include <string.h>

#define SAMPLES 101

static sink_target *to;
static bags_reader *before; /* reads the existing datapoints */
static uint64_t existing;   /* how many datapoints exist */
static uint64_t seen;       /* datapoints of the input for this worker */
static bool comparing;      /* the last datapoint seen exists and is being compared */
static bags_row row;

static int field_order(const void *a, const void *b) {
    return strcmp(((const bags_field *)a)->name, ((const bags_field *)b)->name);
}

void existing_open(sink_target *given, const bags_writer *resumed) {
    to = given;
    bags_reader_options options = {0};
    options.registry = registry_blobs();
    options.unfinished = resumed ? BAGS_UNFINISHED_READ : BAGS_UNFINISHED_REFUSE;
    options.shard_start = writing.shard_start.value;
    options.shard_stop = writing.shard_stop.value;
    before = bags_reader_open(to->path, &options, &failure);
    must_open(before);
    size_t length;
    const bags_field *old = bags_reader_fields(before, &length);
    bags_field *sorted = (bags_field *)allocate(to->count, sizeof *sorted);
    for (size_t i = 0; i < to->count; i++)
        sorted[i] = to->fields[i];
    qsort(sorted, to->count, sizeof *sorted, field_order);
    if (bags_fields_compare(sorted, to->count, old, length, to->path, &failure)) {
        failure.code = BAGS_ERROR_VALUE;
        failure_prefix("%s: exists: ", to->path);
        die();
    }
    free(sorted);
    for (size_t i = 0; i < to->count; i++)
        must(bags_reader_field(
            before, to->fields[i].name, &to->states[i].before, &failure));
    existing = resumed ? bags_writer_resumed(resumed) : bags_reader_length(before);
}

/* The path of a finished dataset or of its first finished shard; NULL if nothing is
 * finished. */
static char *find_finished(const char *of) {
    size_t length, i = 0;
    if (path_has(of, "spec.json"))
        return string_format("%s", of);
    bags_shard *all = shards_list(of, &length);
    while (i < length && !path_has(shard_path(of, &all[i]), "spec.json"))
        i++;
    char *found = i < length ? string_format("%s", shard_path(of, &all[i])) : NULL;
    free(all);
    return found;
}

char *existing_spec(const char *out) {
    char *finished = writing.appending ? find_finished(out) : NULL;
    char *spec = finished ? path_join(finished, "spec.json") : NULL;
    free(finished);
    return spec;
}

/* Without refs, a shard has such files for its fields instead. */
static bool finished_has(
    const sink_target *of, const char *finished, const char *ending) {
    return path_has(finished, temp_format("refs.%s", ending)) ||
           (of->count > 0 &&
               path_has(finished, temp_format("%s.%s", of->fields[0].name, ending)));
}

/* bags_writer_open itself follows the .idx files, since another worker may be removing
 * them. */
void existing_follow(const sink_target *of) {
    char *finished = find_finished(of->path);
    if (!finished)
        return;
    bool has_checksums = finished_has(of, finished, "crc");
    bool has_idx = finished_has(of, finished, "idx");
    free(finished);
    if (writing.with_checksums && !has_checksums)
        fail(BAGS_ERROR_VALUE,
            "%s: has no checksums; omit --checksum, or add them first with "
            "`bags checksum`",
            of->path);
    if (writing.without_checksums && has_checksums)
        fail(BAGS_ERROR_VALUE, "%s: has checksums; omit --no-checksum", of->path);
    if (writing.options.keep_idx && !has_idx)
        fail(BAGS_ERROR_VALUE, "%s: has no .idx files; omit %s", of->path,
            writing.version.given ? "--for, whose version needs them" : "--idx");
    writing.options.checksum = has_checksums;
}

/* ---- comparing ---- */

/* Only compare the first, the last and a hundred datapoints in between. */
bool existing_next(void) {
    uint64_t i = seen++, last = existing - 1;
    comparing = i < existing;
    if (!comparing || i == 0 || i == last || last <= SAMPLES)
        return true;
    uint64_t step = last / SAMPLES + 1;
    return i / step != (i - 1) / step;
}

ENDS static void fail_difference(size_t field, const char *what) {
    size_t length, i = 0;
    uint64_t index = seen - 1;
    const bags_shard *all = bags_reader_shards(before, &length);
    while (i + 1 < length && index >= all[i].start + all[i].length)
        i++;
    fail(BAGS_ERROR_VALUE,
        "field \"%s\": %s differs from datapoint %ju of %s; --resume needs the "
        "same input%s as before, --append adds to a dataset",
        to->fields[field].name, what, (uintmax_t)(index - all[i].start),
        shard_path(to->path, &all[i]),
        to->sharded ? ", options and number of workers (--shard-stop)"
                    : " and options");
}

/* The blob of an existing item. For zstd(TYPE), its inner blob of type TYPE. */
static bags_view encoded(size_t field, size_t item) {
    size_t slot = to->states[field].before;
    bags_view blob = bags_row_bytes(&row, slot, item);
    bags_value plain;
    if (to->states[field].inside && item < bags_row_length(&row, slot)) {
        must(bags_row_value(&row, slot, item, NULL, &plain, &failure));
        blob = value_bytes(&plain);
    }
    return blob;
}

void existing_compare(size_t field, size_t item, bags_view blob) {
    bags_view old = encoded(field, item);
    to->states[field].items++;
    if (item >= bags_row_length(&row, to->states[field].before) ||
        old.size != blob.size || (blob.size && memcmp(old.data, blob.data, blob.size)))
        fail_difference(field, "value");
}

void existing_begin(void) {
    for (size_t i = 0; i < to->count; i++)
        to->states[i].items = 0;
    must(bags_reader_get(before, seen - 1, NULL, 0, &row, &failure));
}

void existing_end(void) {
    for (size_t i = 0; i < to->count; i++)
        if (to->states[i].items != bags_row_length(&row, to->states[i].before))
            fail_difference(i, "number of items");
}

bool existing_is_compared(void) { return comparing; }

uint64_t existing_length(void) { return existing; }

void existing_check_all(void) {
    comparing = false;
    if (seen < existing)
        fail(BAGS_ERROR_VALUE,
            "%s: has %s, but %s has only %ju for it; --resume needs the same "
            "input%s as before",
            to->path, counted(existing, "datapoint"), to->input, (uintmax_t)seen,
            to->sharded ? " and number of workers (--shard-stop)" : "");
}

void existing_close(void) {
    bags_reader_close(before);
    before = NULL;
}
