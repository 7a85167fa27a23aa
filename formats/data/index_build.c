/*
 * index_build.c - builds the index of a field; index_find.c reads it. See index.h.
 *
 * Building is an external merge sort in the directory index/FIELD.partial: sorted runs
 * of `memory` bytes are appended to runs.bag, then merged into keys.bag, to be renamed
 * at the end. Meanwhile, the dataset's FIELD.bag is locked.
 *
 *     add:  memory full?  -> sort it, append it to runs.bag    (index_write_run)
 *     end:  no run        -> sort it, append it to keys.bag    (index_write_sorted)
 *           runs          -> merge them to keys.bag            (index_write_merged)
 *     then: the dataset is unchanged?  -> keys.bag becomes FIELD.bag  (index_publish)
 */
#include "blocks.h"
#include "files.h"
#include "index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

#define INDEX_CHUNK 1024 /* maximum number of datapoints or entries read at once */
#define INDEX_MEMORY ((size_t)64 << 20)

static int index_compare_entries(const void *a, const void *b) {
    bags_view x = *(const bags_view *)a, y = *(const bags_view *)b;
    int order = index_compare_keys(index_key_of(x), index_key_of(y));
    return order ? order
                 : memcmp(x.data + x.size - INDEX_NUMBER,
                       y.data + y.size - INDEX_NUMBER, INDEX_NUMBER);
}

/* Allocated on the heap, since a thread's stack may be small. */
typedef struct index_builder {
    bags_buffer memory; /* see format_state */
    const bags_index_options *options;
    const bags_io *io;
    const char *path;
    const bags_field *field;
    bags_reader *reader;
    size_t number; /* number of the field */
    index_key_type type;
    char directory[FORMAT_PATH], partial[FORMAT_PATH];
    char from[FORMAT_PATH], to[FORMAT_PATH]; /* shared buffers for paths */
    bag_writer *sorted;                      /* runs.bag */
    bags_buffer stops; /* uint64_t: the end of each run, as an entry number */
    size_t runs;
    bags_buffer entries, bytes;
    size_t count, used, capacity; /* of both */
} index_builder;

/* Remove the directory of this build, or one left by a killed build. */
static void index_remove_partial(index_builder *b) {
    static const char *const names[] = {
        "keys.bag", "keys.idx", "keys.crc", "runs.bag", "runs.idx"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!format_path(b->from, b->partial, names[i], "", NULL))
            b->io->remove(b->io->user, b->from);
    b->io->remove_dir(b->io->user, b->partial);
}

static bags_code index_create(
    index_builder *b, const char *name, bool last, bag_writer **out, bags_error *err) {
    bag_writer_options options;
    memset(&options, 0, sizeof options);
    options.checksum = last;
    options.no_sync = !last;
    options.env = b->options->env;
    FORMAT_TRY(format_path(b->to, b->partial, name, ".bag", err));
    *out = bag_writer_open(b->to, &options, err);
    return *out ? BAGS_OK : err->code;
}

/* Sort the entries in memory and write them. */
static bags_code index_write_sorted(
    index_builder *b, bag_writer *out, bags_error *err) {
    bags_view *entries = (bags_view *)(void *)b->entries.data;
    if (b->count)
        qsort(entries, b->count, sizeof *entries, index_compare_entries);
    for (size_t i = 0; i < b->count; i++)
        FORMAT_TRY(bag_writer_append(out, entries[i].data, entries[i].size, NULL, err));
    b->count = b->used = 0;
    return BAGS_OK;
}

static bags_code index_write_run(index_builder *b, bags_error *err) {
    if (!b->sorted)
        FORMAT_TRY(index_create(b, "runs", false, &b->sorted, err));
    FORMAT_TRY(bags_buffer_reserve(&b->stops, (b->runs + 1) * sizeof(uint64_t), err));
    FORMAT_TRY(index_write_sorted(b, b->sorted, err));
    ((uint64_t *)(void *)b->stops.data)[b->runs++] = bag_writer_length(b->sorted);
    return BAGS_OK;
}

static bags_code index_add(
    index_builder *b, bags_view key, uint64_t datapoint, bags_error *err) {
    size_t size = key.size + INDEX_NUMBER;
    if (key.size > b->bytes.capacity / 2)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: field \"%.200s\": datapoint %" PRIu64 ": key too large (%" PRIu64
            " bytes, maximum %" PRIu64 ")",
            bags_path_tail(b->path), b->field->name, datapoint, (uint64_t)key.size,
            (uint64_t)b->bytes.capacity / 2);
    if (b->count == b->capacity || size > b->bytes.capacity - b->used)
        FORMAT_TRY(index_write_run(b, err));
    bags_view *entry = (bags_view *)(void *)b->entries.data + b->count++;
    unsigned char *to = b->bytes.data + b->used;
    if (key.size)
        memcpy(to, key.data, key.size);
    bags_store_bytes(to + key.size, INDEX_NUMBER, true, datapoint);
    entry->data = to;
    entry->size = size;
    b->used += size;
    return BAGS_OK;
}

/* The number of blobs of this size that fit in memory: at least one, and at most
 * `most`. */
static uint64_t index_chunk_of(size_t memory, uint64_t size, uint64_t most) {
    uint64_t chunk = memory / (size + 1);
    if (most > INDEX_CHUNK)
        most = INDEX_CHUNK;
    return chunk > most ? most : chunk + (chunk == 0);
}

/* Add the keys of the values in a row that starts with datapoint `start`. *bytes
 * receives the size of these values plus 1. */
static bags_code index_add_row(
    index_builder *b, bags_row *row, uint64_t start, uint64_t *bytes, bags_error *err) {
    size_t count = bags_row_length(row, 0);
    *bytes = 1;
    for (size_t i = 0; i < count; i++) {
        unsigned char number[INDEX_NUMBER];
        bags_value value;
        bags_view key = {NULL, 0};
        *bytes += bags_row_bytes(row, 0, i).size;
        FORMAT_TRY(bags_row_value(row, 0, i, NULL, &value, err));
        bags_code code = index_key_make(&b->type, &value, false, number, &key, err);
        if (code)
            return bags_prefix(err, code,
                "%s: field \"%.200s\": datapoint %" PRIu64 ": ",
                bags_path_tail(b->path), b->field->name, start + i);
        FORMAT_TRY(index_add(b, key, start + i, err));
    }
    return BAGS_OK;
}

static bags_code index_read_keys(index_builder *b, bags_row *row, bags_error *err) {
    uint64_t length = bags_reader_length(b->reader), chunk = 1;
    for (uint64_t i = 0; i < length;) {
        uint64_t bytes = 1;
        FORMAT_TRY(bags_reader_get_range(b->reader, i, i + chunk, b->number, row, err));
        FORMAT_TRY(index_add_row(b, row, i, &bytes, err));
        size_t count = bags_row_length(row, 0);
        i += count;
        if (b->options->progress)
            b->options->progress(b->options->user, i, length);
        chunk = index_chunk_of(b->bytes.capacity / 2, bytes / (count + 1), 4 * chunk);
    }
    return BAGS_OK;
}

/* The next entry of a run, and the entries read along with it. The runs form a heap,
 * ordered by their next entries. */
typedef struct index_run {
    bags_view entry;     /* no data: the run is finished */
    uint64_t next, stop; /* unread entries in runs.bag */
    bag_blobs range;
    size_t at; /* position in the range */
    bags_buffer scratch;
} index_run;

static bags_code index_run_next(
    index_run *r, const bag_reader *bag, uint64_t chunk, bags_error *err) {
    static const char changed[] = "another process changed a sorted run";
    if (r->at == r->range.length) {
        uint64_t stop = r->stop - r->next < chunk ? r->stop : r->next + chunk;
        FORMAT_TRY(
            bag_reader_get_range(bag, r->next, stop, &r->scratch, &r->range, err));
        if (r->range.length != stop - r->next)
            return bags_fail(err, BAGS_ERROR_CORRUPT, "%s", changed);
        r->next = stop;
        r->at = 0;
    }
    r->entry = bag_blobs_get(&r->range, r->at);
    r->at += r->entry.data != NULL;
    if (r->entry.data && r->entry.size < INDEX_NUMBER)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "%s", changed);
    return BAGS_OK;
}

static void index_sift_down(index_run *runs, size_t count, size_t i) {
    for (;;) {
        size_t least = 2 * i + 1;
        if (least >= count)
            return;
        if (least + 1 < count &&
            index_compare_entries(&runs[least + 1].entry, &runs[least].entry) < 0)
            least++;
        if (index_compare_entries(&runs[i].entry, &runs[least].entry) <= 0)
            return;
        index_run moved = runs[i];
        runs[i] = runs[least];
        runs[least] = moved;
        i = least;
    }
}

static bags_code index_merge_runs(index_builder *b, const bag_reader *bag,
    index_run *runs, bag_writer *out, bags_error *err) {
    const uint64_t *stops = (const uint64_t *)(const void *)b->stops.data;
    uint64_t chunk = index_chunk_of(b->bytes.capacity / b->runs,
        bag_reader_size(bag) / (bag_reader_length(bag) + 1), INDEX_CHUNK);
    size_t count = b->runs;
    for (size_t i = 0; i < count; i++) {
        runs[i].next = i ? stops[i - 1] : 0;
        runs[i].stop = stops[i];
        FORMAT_TRY(index_run_next(&runs[i], bag, chunk, err));
    }
    for (size_t i = count; i > 0; i--)
        index_sift_down(runs, count, i - 1);
    while (count > 0) {
        FORMAT_TRY(
            bag_writer_append(out, runs[0].entry.data, runs[0].entry.size, NULL, err));
        FORMAT_TRY(index_run_next(&runs[0], bag, chunk, err));
        if (!runs[0].entry.data) {
            index_run ended = runs[0];
            runs[0] = runs[--count];
            runs[count] = ended;
        }
        index_sift_down(runs, count, 0);
    }
    return BAGS_OK;
}

/* Write the last run, and close runs.bag. */
static bags_code index_close_runs(index_builder *b, bags_error *err) {
    bags_code code = index_write_run(b, err);
    bags_code closed = bag_writer_close(b->sorted, code ? NULL : err);
    b->sorted = NULL;
    return code ? code : closed;
}

/* Merge the runs in runs.bag. */
static bags_code index_write_merged(
    index_builder *b, bag_writer *out, bags_error *err) {
    const bags_allocator *allocator = b->options->env.allocator;
    bag_reader_options options;
    format_block *blocks = NULL;
    memset(&options, 0, sizeof options);
    options.no_mmap = true; /* mapping would not bound the memory used */
    options.env = b->options->env;
    FORMAT_TRY(index_close_runs(b, err));
    FORMAT_TRY(format_path(b->from, b->partial, "runs", ".bag", err));
    index_run *runs =
        (index_run *)format_block_add(&blocks, allocator, b->runs, sizeof *runs, err);
    bag_reader *bag = runs ? bag_reader_open(b->from, &options, err) : NULL;
    for (size_t i = 0; runs && i < b->runs; i++)
        runs[i].scratch = bags_buffer_of(allocator);
    bags_code code = bag ? index_merge_runs(b, bag, runs, out, err) : err->code;
    for (size_t i = 0; runs && i < b->runs; i++)
        bags_buffer_free(&runs[i].scratch);
    bag_reader_close(bag);
    format_blocks_free(blocks);
    return code;
}

/* Write the header and the keys. */
static bags_code index_write_keys(
    index_builder *b, const index_stamp *now, bag_writer *out, bags_error *err) {
    unsigned char header[INDEX_HEADER + 256] = INDEX_MAGIC;
    const uint64_t numbers[] = {
        bags_reader_length(b->reader), now->content, now->times};
    size_t type = strlen(b->field->type);
    if (type > sizeof header - INDEX_HEADER)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: type too long", bags_path_tail(b->path));
    for (size_t i = 0; i < 3; i++)
        bags_store_bytes(header + 8 + 8 * i, 8, false, numbers[i]);
    memcpy(header + INDEX_HEADER, b->field->type, type);
    FORMAT_TRY(bag_writer_append(out, header, INDEX_HEADER + type, NULL, err));
    return b->runs ? index_write_merged(b, out, err) : index_write_sorted(b, out, err);
}

static bags_code index_write(
    index_builder *b, const index_stamp *now, bags_error *err) {
    bag_writer *out = NULL;
    FORMAT_TRY(index_create(b, "keys", true, &out, err));
    bags_code code = index_write_keys(b, now, out, err);
    if (!code)
        return bag_writer_close(out, err);
    bag_writer_abort(out);
    return code;
}

/* Rename the index into place. A build interrupted here leaves no index. */
static bags_code index_publish(index_builder *b, bags_error *err) {
    static const char *const endings[] = {".bag", ".crc"};
    for (int i = 0; i < 2; i++) {
        FORMAT_TRY(format_path(b->to, b->directory, b->field->name, endings[i], err));
        int error = b->io->remove(b->io->user, b->to);
        if (error != ENOENT)
            FORMAT_TRY(bags_fail_io(b->io, error, b->to, "remove", err));
    }
    for (int i = 1; i >= 0; i--) {
        format_path(b->from, b->partial, "keys", endings[i], err);
        format_path(b->to, b->directory, b->field->name, endings[i], err);
        int error = b->io->rename(b->io->user, b->from, b->to);
        FORMAT_TRY(bags_fail_io(b->io, error, b->from, "rename", err));
    }
    return bags_fail_io(
        b->io, b->io->sync_dir(b->io->user, b->directory), b->directory, "sync", err);
}

/* Make the directories of a build. */
static bags_code index_make_dirs(index_builder *b, bags_error *err) {
    int error = b->io->make_dir(b->io->user, b->directory);
    if (error != EEXIST)
        FORMAT_TRY(bags_fail_io(b->io, error, b->directory, "create directory", err));
    return bags_fail_io(b->io, b->io->make_dir(b->io->user, b->partial), b->partial,
        "create directory", err);
}

/* Sort, write and publish an index of the dataset identified by `before`. */
static bags_code index_build_new(
    index_builder *b, const index_stamp *before, bags_row *row, bags_error *err) {
    size_t memory = b->options->memory ? b->options->memory : INDEX_MEMORY;
    index_stamp after;
    /* Half is for the bytes of small keys, half for the array to be sorted. */
    memory = memory < 4096 ? 2048 : memory / 2;
    b->capacity = memory / sizeof(bags_view);
    FORMAT_TRY(bags_buffer_reserve(&b->bytes, memory, err));
    FORMAT_TRY(bags_buffer_reserve(&b->entries, memory, err));
    FORMAT_TRY(index_read_keys(b, row, err));
    FORMAT_TRY(index_write(b, before, err));
    FORMAT_TRY(bagi_index_stamp(
        b->reader, &b->options->env, b->path, b->field->name, &after, err));
    if (memcmp(before, &after, sizeof after) != 0)
        return bags_fail(err, BAGS_ERROR_CHANGED,
            "%s: the dataset changed while its index was built",
            bags_path_tail(b->path));
    return index_publish(b, err);
}

/* Build the index, holding the lock. */
static bags_code index_build_locked(index_builder *b, bags_error *err) {
    index_stamp before;
    bags_row row;
    memset(&row, 0, sizeof row);
    FORMAT_TRY(bagi_index_stamp(
        b->reader, &b->options->env, b->path, b->field->name, &before, err));
    index_remove_partial(b);
    FORMAT_TRY(index_make_dirs(b, err));
    bags_code code = index_build_new(b, &before, &row, err);
    bags_row_free(&row);
    bag_writer_abort(b->sorted);
    index_remove_partial(b);
    return code;
}

/* Locking the field's first Bag locks the index. */
static bags_code index_build(index_builder *b, bags_error *err) {
    void *file = NULL;
    bags_code code = BAGS_OK;
    FORMAT_TRY(bagi_index_place(
        b->reader, b->io, b->path, b->field->name, b->directory, b->from, err));
    FORMAT_TRY(format_path(b->partial, b->directory, b->field->name, ".partial", err));
    FORMAT_TRY(index_check_no_link(b->io, b->partial, err));
    int error = b->io->lock && b->io->make_dir
                    ? b->io->open(b->io->user, b->from, BAGS_IO_READ, &file)
                    : EROFS;
    if (error)
        return bags_fail_io(b->io, error, b->from, "open", err);
    error = b->io->lock(b->io->user, file);
    if (error == EWOULDBLOCK)
        code = bags_fail(err, BAGS_ERROR_LOCKED,
            "%s: field \"%.200s\": another process is building its index",
            bags_path_tail(b->path), b->field->name);
    else if (error)
        code = bags_fail_io(b->io, error, b->from, "lock", err);
    else
        code = index_build_locked(b, err);
    b->io->close(b->io->user, file);
    return code;
}

static bags_code index_build_field(
    index_builder *b, const char *field, bags_error *err) {
    bags_reader_options reading;
    size_t count = 0;
    memset(&reading, 0, sizeof reading);
    reading.env = b->options->env;
    reading.registry = b->options->registry;
    reading.no_mmap = true;
    b->reader = bags_reader_open(b->path, &reading, err);
    if (!b->reader)
        return err->code;
    FORMAT_TRY(bags_reader_field(b->reader, field, &b->number, err));
    FORMAT_TRY(index_find_field(b->reader, b->number, b->path, &b->type, err));
    b->field = &bags_reader_fields(b->reader, &count)[b->number];
    return index_build(b, err);
}

bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err) {
    bags_error ignored;
    bags_index_options none;
    memset(&none, 0, sizeof none);
    if (!err)
        err = &ignored;
    if (!path || !field)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the path or the field is NULL");
    if (!options)
        options = &none;
    index_builder *b =
        (index_builder *)format_state(options->env.allocator, sizeof *b, err);
    if (!b)
        return err->code;
    b->options = options;
    b->io = index_io(&options->env);
    b->path = path;
    b->entries = b->bytes = b->stops = bags_buffer_of(options->env.allocator);
    bags_code code = index_build_field(b, field, err);
    bags_reader_close(b->reader);
    bags_buffer_free(&b->entries);
    bags_buffer_free(&b->bytes);
    bags_buffer_free(&b->stops);
    format_state_close(b);
    return code;
}

#endif /* BAGS_NO_WRITER */
