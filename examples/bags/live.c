/*
 * Read a dataset while it is being written, for `bags view --live`. Flushed datapoints
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
#include "command.h"
#include "system.h"

#include "files.h"

#include "curve.h"

typedef struct live_shard {
    bags_identity identity; /* of spec.json */
    uint64_t length;
    uint64_t start; /* first index in the reader; UINT64_MAX: the shard is gone */
} live_shard;

typedef struct live_run {
    uint64_t start, first;
    size_t shard;
} live_run;

static const char *path;
static const bags_io *io;
static bags_reader *reader;
static live_shard *seen;
static live_run *runs;
static size_t seen_count, runs_count;
static uint64_t length, signature;
static char *trouble; /* why the last look failed, or NULL */
static bags_row row;
static bags_buffer scratch, curve;

/* ---- looking for new datapoints ---- */

/* A shard has more datapoints when its refs.idx has grown or its spec.json exists. */
static uint64_t sign(const char *directory) {
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

static int sign_entry(void *user, const char *name) {
    uint64_t *sum = (uint64_t *)user;
    char directory[FORMAT_PATH];
    if (!name[strspn(name, "0123456789")] &&
        !format_path(directory, path, name, "", NULL))
        *sum += sign(directory);
    return 0;
}

/* A hash that changes whenever another look may find more. */
static uint64_t make_signature(void) {
    uint64_t sum = sign(path);
    (void)io->list(io->user, path, sign_entry, &sum);
    return sum ? sum : 1;
}

/* Identify an open shard, even if its spec.json was renamed in the meantime. */
static bool identify(
    const bags_reader *of, const bags_shard *shards, size_t i, bags_identity *out) {
    static const char *const names[] = {"spec.json", "spec.json.partial", "spec.json"};
    char directory[FORMAT_PATH], file[FORMAT_PATH];
    if (bags_shard_path(path, &shards[i], directory, sizeof directory, &failure))
        return false;
    for (size_t k = 0; k < 3; k++)
        if (!format_path(file, directory, names[k], "", &failure) &&
            !io->identify(io->user, NULL, file, out))
            return !bags_reader_check_shard(of, i, &failure);
    return false;
}

/* Number those datapoints of a shard that have no number yet. */
static void number_shard(const bags_identity *identity, const bags_shard *shard) {
    size_t i = 0;
    while (i < seen_count && !format_is_same(&seen[i].identity, identity))
        i++;
    if (i == seen_count) {
        seen = (live_shard *)grow(seen, seen_count++, sizeof *seen);
        seen[i].identity = *identity;
        seen[i].length = 0;
    }
    seen[i].start = shard->start;
    if (shard->length <= seen[i].length)
        return;
    const live_run *last = runs_count ? &runs[runs_count - 1] : NULL;
    if (!last || last->shard != i ||
        last->first + (length - last->start) != seen[i].length) {
        live_run run = {length, seen[i].length, i};
        runs = (live_run *)grow(runs, runs_count, sizeof *runs);
        runs[runs_count++] = run;
    }
    length += shard->length - seen[i].length;
    seen[i].length = shard->length;
}

/* Open the dataset again. On failure, returns false with the reason in `failure`, and
 * changes nothing. */
static bool look(void) {
    size_t count = 0, shard_count = 0;
    bags_reader_options reading = {0};
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.allow_gaps = true;
    reading.registry = registry_blobs();
    bags_reader *opened = bags_reader_open(path, &reading, &failure);
    if (!opened)
        return false;
    const bags_shard *shards = bags_reader_shards(opened, &shard_count);
    const bags_field *fields = bags_reader_fields(opened, &count);
    bags_identity *identities =
        (bags_identity *)allocate(shard_count, sizeof *identities);
    bool good = true;
    if (reader) {
        size_t before;
        const bags_field *old = bags_reader_fields(reader, &before);
        good = !bags_fields_compare(fields, count, old, before, "before", &failure);
    }
    for (size_t i = 0; good && i < shard_count; i++)
        good = identify(opened, shards, i, &identities[i]);
    if (!good) {
        free(identities);
        bags_reader_close(opened);
        return false;
    }
    for (size_t i = 0; i < seen_count; i++)
        seen[i].start = UINT64_MAX;
    for (size_t i = 0; i < shard_count; i++)
        number_shard(&identities[i], &shards[i]);
    free(identities);
    bags_row_free(&row);
    bags_reader_close(reader);
    reader = opened;
    return true;
}

static void look_again(void) {
    uint64_t now = make_signature();
    if (now == signature)
        return;
    free(trouble);
    trouble = NULL;
    if (look())
        signature = now;
    else
        trouble = string_format("%s", failure.message);
}

void live_open(const char *of) {
    path = of;
    io = bags_io_local();
    if (!look())
        die();
    signature = make_signature() + 1; /* forces another look */
}

/* ---- requests from the page ---- */

/* Count the unfinished shards, and how many of them have a writer that holds the lock.
 * Each lock is tried for a moment, just as readers that refuse unfinished shards do. */
static void count_writers(uint64_t *unfinished, uint64_t *running) {
    size_t count;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    *unfinished = *running = 0;
    for (size_t i = 0; i < count; i++) {
        char directory[FORMAT_PATH], file[FORMAT_PATH];
        void *opened;
        if (!shards[i].unfinished ||
            bags_shard_path(path, &shards[i], directory, sizeof directory, NULL) ||
            format_path(file, directory, "spec.json.partial", "", NULL) ||
            io->open(io->user, file, BAGS_IO_READ, &opened))
            continue;
        ++*unfinished;
        *running += io->lock(io->user, opened) == EWOULDBLOCK;
        io->close(io->user, opened);
    }
}

void live_state(text *out, const char *name) {
    size_t count;
    uint64_t unfinished, running, gone = 0;
    look_again();
    const bags_field *fields = bags_reader_fields(reader, &count);
    count_writers(&unfinished, &running);
    for (size_t i = 0; i < seen_count; i++)
        gone += seen[i].start == UINT64_MAX ? seen[i].length : 0;
    text_puts(out, "{");
    text_member_string(out, "name", name);
    text_member_number(out, "length", length);
    text_member_number(out, "shards", seen_count);
    text_member_number(out, "unfinished", unfinished);
    text_member_number(out, "writers", running);
    text_member_number(out, "gone", gone);
    text_member_string(out, "trouble", trouble);
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
}

/* Find the index in the reader of a datapoint's number. */
static bool locate(uint64_t number, uint64_t *index) {
    if (number >= length) {
        bags_fail(&failure, BAGS_ERROR_RANGE,
            "%s: datapoint %ju out of range (length %ju)", path, (uintmax_t)number,
            (uintmax_t)length);
        return false;
    }
    const live_run *run =
        &runs[format_last_at_most(&runs->start, sizeof *runs, runs_count, number)];
    const live_shard *shard = &seen[run->shard];
    if (shard->start == UINT64_MAX) {
        bags_fail(&failure, BAGS_ERROR_CHANGED,
            "%s: datapoint %ju is gone: its shard was removed or replaced", path,
            (uintmax_t)number);
        return false;
    }
    *index = shard->start + run->first + (number - run->start);
    return true;
}

bool live_items(uint64_t number, size_t field, uint64_t *count) {
    uint64_t index;
    return locate(number, &index) &&
           !bags_reader_items(reader, index, field, &row, count, &failure);
}

bool live_blob(uint64_t number, size_t field, uint64_t item, bags_view *blob) {
    uint64_t index;
    if (!locate(number, &index))
        return false;
    const bags_type *type = bags_reader_type(reader, field);
    if (!type || !bags_view_is(type->name, "zstd"))
        return !bags_reader_get_blob(reader, index, field, item, &row, blob, &failure);
    bags_value value;
    bags_select one = type->sequence ? bags_select_slice(field, item, item + 1, 1)
                                     : bags_select_all(field);
    if (bags_reader_get(reader, index, &one, 1, &row, &failure))
        return false;
    if (bags_row_length(&row, 0) == 0) {
        bags_fail(&failure, BAGS_ERROR_RANGE, "item %ju out of range", (uintmax_t)item);
        return false;
    }
    if (bags_row_value(&row, 0, 0, &scratch, &value, &failure))
        return false;
    *blob = value_bytes(&value);
    return true;
}

bool live_curve(uint64_t number, size_t field, uint64_t start, uint64_t stop,
    uint64_t step, bags_view *numbers) {
    uint64_t index;
    size_t size = 0;
    if (!locate(number, &index))
        return false;
    if (curve_read(reader, index, field, start, stop, step, &row, &scratch, &curve,
            &size, &failure))
        return false;
    numbers->data = curve.data;
    numbers->size = size * sizeof(double);
    return true;
}
