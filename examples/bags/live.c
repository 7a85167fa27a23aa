/*
 * Read a dataset while it is being written, for the server. Flushed datapoints
 * get numbers that never change.
 *
 * Datapoints are numbered in the order in which they are first seen: by shard at first,
 * later as writers flush them. A shard is recognized by the identity of its spec.json,
 * even if the shard's number changes. If a shard disappears, because its writer removed
 * it or the dataset was replaced, its numbers are not used again.
 *
 *     seen[]    shards, and how many of their datapoints are numbered runs[]
 *     datapoints start, start + 1, ... are first, first + 1, ... of seen[shard]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include "live.h"

#include "curve.h"
#include "files.h"

typedef struct live_shard {
    bags_identity identity; /* of spec.json */
    uint64_t length;
    uint64_t start; /* first index in the reader; UINT64_MAX: the shard is gone */
} live_shard;

typedef struct live_run {
    uint64_t start, first;
    size_t shard;
} live_run;

struct live {
    char *path;
    const bags_io *io;
    const bags_registry *registry;
    bags_reader *reader;
    live_shard *seen;
    live_run *runs;
    size_t seen_count, runs_count;
    uint64_t length, signature;
    bags_error trouble; /* why the last look failed, or BAGS_OK */
    bags_row row;
    bags_buffer scratch, curve;
};

/* ---- looking for new datapoints ---- */

/* A shard has more datapoints when its refs.idx has grown or its spec.json exists. */
static uint64_t sign(const bags_io *io, const char *directory) {
    static const char *const names[] = {"refs.idx", "spec.json", "spec.json.partial"};
    uint64_t hash = format_hash(0, directory, strlen(directory));
    for (size_t i = 0; i < 3; i++) {
        bags_identity found;
        char file[FORMAT_PATH];
        if (format_path(file, directory, names[i], "", NULL) ||
            io->identify(io->user, NULL, file, &found))
            memset(&found, 0, sizeof found);
        /* For refs.idx, the time changes only together with the size. */
        uint64_t numbers[] = {
            found.device, found.inode, i ? found.time : 0, found.size};
        hash = format_hash(hash, numbers, sizeof numbers);
    }
    return hash;
}

typedef struct signing {
    const live *of;
    uint64_t sum;
} signing;

static int sign_entry(void *user, const char *name) {
    signing *all = (signing *)user;
    char directory[FORMAT_PATH];
    if (!name[strspn(name, "0123456789")] &&
        !format_path(directory, all->of->path, name, "", NULL))
        all->sum += sign(all->of->io, directory);
    return 0;
}

/* A hash that changes whenever another look may find more. */
static uint64_t make_signature(const live *of) {
    signing all = {of, sign(of->io, of->path)};
    (void)of->io->list(of->io->user, of->path, sign_entry, &all);
    return all.sum ? all.sum : 1;
}

/* Identify an open shard, even if its spec.json was renamed in the meantime. */
static bags_code identify(const live *of, const bags_reader *opened,
    const bags_shard *shards, size_t i, bags_identity *out, bags_error *err) {
    static const char *const names[] = {"spec.json", "spec.json.partial", "spec.json"};
    char directory[FORMAT_PATH], file[FORMAT_PATH];
    int error = 0;
    FORMAT_TRY(bags_shard_path(of->path, &shards[i], directory, sizeof directory, err));
    for (size_t k = 0; k < 3; k++) {
        FORMAT_TRY(format_path(file, directory, names[k], "", err));
        error = of->io->identify(of->io->user, NULL, file, out);
        if (!error)
            return bags_reader_check_shard(opened, i, err);
    }
    return bags_fail_io(of->io, error, file, "identify", err);
}

/* Number those datapoints of a shard that have no number yet. */
static void number_shard(
    live *of, const bags_identity *identity, const bags_shard *shard) {
    size_t i = 0;
    while (i < of->seen_count && !format_is_same(&of->seen[i].identity, identity))
        i++;
    live_shard *one = &of->seen[i];
    if (i == of->seen_count) {
        of->seen_count++;
        one->identity = *identity;
        one->length = 0;
    }
    one->start = shard->start;
    if (shard->length <= one->length)
        return;
    const live_run *last = of->runs_count ? &of->runs[of->runs_count - 1] : NULL;
    if (!last || last->shard != i ||
        last->first + (of->length - last->start) != one->length) {
        live_run run = {of->length, one->length, i};
        of->runs[of->runs_count++] = run;
    }
    of->length += shard->length - one->length;
    one->length = shard->length;
}

/* Make space for this many more shards and runs. */
static bool reserve(live *of, size_t more) {
    live_shard *seen =
        (live_shard *)realloc(of->seen, (of->seen_count + more + 1) * sizeof *seen);
    of->seen = seen ? seen : of->seen;
    live_run *runs =
        (live_run *)realloc(of->runs, (of->runs_count + more + 1) * sizeof *runs);
    of->runs = runs ? runs : of->runs;
    return seen && runs;
}

/* Number the new datapoints of an open dataset. Changes nothing on failure. */
static bags_code take(
    live *of, const bags_reader *opened, bags_identity *identities, bags_error *err) {
    size_t count, shard_count, before;
    const bags_shard *shards = bags_reader_shards(opened, &shard_count);
    const bags_field *fields = bags_reader_fields(opened, &count);
    if (of->reader) {
        const bags_field *old = bags_reader_fields(of->reader, &before);
        FORMAT_TRY(bags_fields_compare(fields, count, old, before, "before", err));
    }
    for (size_t i = 0; i < shard_count; i++)
        FORMAT_TRY(identify(of, opened, shards, i, &identities[i], err));
    if (!reserve(of, shard_count))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    for (size_t i = 0; i < of->seen_count; i++)
        of->seen[i].start = UINT64_MAX;
    for (size_t i = 0; i < shard_count; i++)
        number_shard(of, &identities[i], &shards[i]);
    return BAGS_OK;
}

/* Open the dataset again. Changes nothing on failure. A process that truncates a file
 * must not end this one, so no file is mapped. */
static bags_code look(live *of, bags_error *err) {
    size_t shard_count;
    bags_reader_options reading = {0};
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.allow_gaps = true;
    reading.no_mmap = true;
    reading.registry = of->registry;
    bags_reader *opened = bags_reader_open(of->path, &reading, err);
    if (!opened)
        return err->code;
    (void)bags_reader_shards(opened, &shard_count);
    bags_identity *identities =
        (bags_identity *)calloc(shard_count + 1, sizeof *identities);
    bags_code code = identities ? take(of, opened, identities, err)
                                : bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    free(identities);
    bags_reader *last = code ? opened : of->reader;
    if (!code) {
        bags_row_free(&of->row);
        of->reader = opened;
    }
    bags_reader_close(last);
    return code;
}

static void look_again(live *of) {
    uint64_t now = make_signature(of);
    if (now == of->signature)
        return;
    of->trouble.code = BAGS_OK;
    if (!look(of, &of->trouble))
        of->signature = now;
}

live *live_open(const char *path, const bags_registry *registry, bags_error *err) {
    live *of = (live *)calloc(1, sizeof *of);
    if (!of || !(of->path = strdup(path))) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        free(of);
        return NULL;
    }
    of->io = bags_io_local();
    of->registry = registry;
    if (look(of, err)) {
        live_close(of);
        return NULL;
    }
    of->signature = make_signature(of) + 1; /* forces another look */
    return of;
}

void live_close(live *of) {
    if (!of)
        return;
    bags_row_free(&of->row);
    bags_reader_close(of->reader);
    bags_buffer_free(&of->scratch);
    bags_buffer_free(&of->curve);
    free(of->seen);
    free(of->runs);
    free(of->path);
    free(of);
}

/* ---- requests from the page ---- */

/* Count the unfinished shards, and how many of them have a writer that holds the lock.
 * Each lock is tried for a moment, just as readers that refuse unfinished shards do. */
static void count_writers(const live *of, uint64_t *unfinished, uint64_t *running) {
    size_t count;
    const bags_io *io = of->io;
    const bags_shard *shards = bags_reader_shards(of->reader, &count);
    *unfinished = *running = 0;
    for (size_t i = 0; i < count; i++) {
        char directory[FORMAT_PATH], file[FORMAT_PATH];
        void *opened;
        if (!shards[i].unfinished ||
            bags_shard_path(of->path, &shards[i], directory, sizeof directory, NULL) ||
            format_path(file, directory, "spec.json.partial", "", NULL) ||
            io->open(io->user, file, BAGS_IO_READ, &opened))
            continue;
        ++*unfinished;
        *running += io->lock(io->user, opened) == EWOULDBLOCK;
        io->close(io->user, opened);
    }
}

bags_code live_state(live *of, text *out, const char *name, bags_error *err) {
    size_t count;
    uint64_t unfinished, running, gone = 0;
    look_again(of);
    const bags_field *fields = bags_reader_fields(of->reader, &count);
    count_writers(of, &unfinished, &running);
    for (size_t i = 0; i < of->seen_count; i++)
        gone += of->seen[i].start == UINT64_MAX ? of->seen[i].length : 0;
    text_puts(out, "{");
    text_member_string(out, "name", name);
    text_member_number(out, "length", of->length);
    text_member_number(out, "shards", of->seen_count);
    text_member_number(out, "unfinished", unfinished);
    text_member_number(out, "writers", running);
    text_member_number(out, "gone", gone);
    text_member_string(out, "trouble", of->trouble.code ? of->trouble.message : NULL);
    text_member(out, "fields");
    text_puts(out, "[");
    for (size_t i = 0; i < count; i++) {
        text_next(out);
        text_puts(out, "{");
        text_member_string(out, "name", fields[i].name);
        text_member_string(out, "type", fields[i].type);
        text_puts(out, "}");
    }
    text_puts(out, "]}\n");
    return out->failed ? bags_fail(err, BAGS_ERROR_MEMORY, "out of memory") : BAGS_OK;
}

/* Find the index in the reader of a datapoint's number. */
static bags_code locate(
    const live *of, uint64_t number, uint64_t *index, bags_error *err) {
    if (number >= of->length)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: datapoint %ju out of range (length %ju)", of->path, (uintmax_t)number,
            (uintmax_t)of->length);
    const live_run *run = &of->runs[format_last_at_most(
        &of->runs->start, sizeof *of->runs, of->runs_count, number)];
    const live_shard *shard = &of->seen[run->shard];
    if (shard->start == UINT64_MAX)
        return bags_fail(err, BAGS_ERROR_CHANGED,
            "%s: datapoint %ju is gone: its shard was removed or replaced", of->path,
            (uintmax_t)number);
    *index = shard->start + run->first + (number - run->start);
    return BAGS_OK;
}

bags_code live_items(
    live *of, uint64_t number, size_t field, uint64_t *count, bags_error *err) {
    uint64_t index;
    FORMAT_TRY(locate(of, number, &index, err));
    return bags_reader_items(of->reader, index, field, &of->row, count, err);
}

bags_code live_blob(live *of, uint64_t number, size_t field, uint64_t item,
    bags_view *blob, bags_error *err) {
    uint64_t index;
    FORMAT_TRY(locate(of, number, &index, err));
    const bags_type *type = bags_reader_type(of->reader, field);
    if (!type || !bags_view_is(type->name, "zstd"))
        return bags_reader_get_blob(
            of->reader, index, field, item, &of->row, blob, err);
    bags_value value;
    bags_select one = type->sequence ? bags_select_slice(field, item, item + 1, 1)
                                     : bags_select_all(field);
    FORMAT_TRY(bags_reader_get(of->reader, index, &one, 1, &of->row, err));
    if (bags_row_length(&of->row, 0) == 0)
        return bags_fail(
            err, BAGS_ERROR_RANGE, "item %ju out of range", (uintmax_t)item);
    FORMAT_TRY(bags_row_value(&of->row, 0, 0, &of->scratch, &value, err));
    blob->data = (const unsigned char *)value.data;
    blob->size = value.size;
    return BAGS_OK;
}

bags_code live_curve(live *of, uint64_t number, size_t field, uint64_t start,
    uint64_t stop, uint64_t step, bags_view *numbers, bags_error *err) {
    uint64_t index;
    size_t size = 0;
    FORMAT_TRY(locate(of, number, &index, err));
    FORMAT_TRY(curve_read(of->reader, index, field, start, stop, step, &of->row,
        &of->scratch, &of->curve, &size, err));
    numbers->data = of->curve.data;
    numbers->size = size * sizeof(double);
    return BAGS_OK;
}
