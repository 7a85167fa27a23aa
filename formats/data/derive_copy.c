/*
 * derive_copy.c - copying datasets: bags_derive with `copy`; see datasets.h.
 *
 * Datapoints are read from the sources and appended to a bags_writer. A blob that the
 * shard being written already has is passed as bags_stored.
 *
 * The writer finishes one shard after another, and a reader would accept the first
 * shards as a dataset. So it writes to TO.derived, renamed to TO when complete. Workers
 * write to TO itself, because no worker knows whether it is the last.
 */
#include "derived.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

#define DERIVE_AHEAD 64               /* datapoints requested at once */
#define COPY_STORED ((size_t)1 << 21) /* capacity of the largest table */

/* The fields read from a source, and the current datapoint. */
typedef struct copy_source {
    bags_select *selects; /* the same in all concatenated sources */
    size_t count;
    uint64_t shards; /* number of shards in earlier sources */
    uint64_t shard;  /* shard of the datapoint, counted across all sources */
    bags_row row;
} copy_source;

/* A run of source blobs already in the shard being written. */
typedef struct copy_stored {
    uint64_t first, count, shard; /* there */
    uint64_t blob;                /* number of the first blob in the shard being
                                   * written */
    uint32_t field;
    uint32_t round; /* entries of earlier rounds are empty */
} copy_stored;

typedef struct copier {
    bags_buffer memory; /* see format_state */
    derive *d;
    bags_writer *writer;
    copy_source *sources;
    size_t *slots;      /* slot of each field in its source's row */
    copy_stored *table; /* a hash table, at most half full */
    size_t stored, capacity;
    uint32_t round;
    bags_buffer plain;
    bool single;    /* the writer writes one shard, or an unsharded dataset */
    bool described; /* info.json is written, if there is one */
    bool open;      /* the last datapoint did not complete its shard */
    char staging[FORMAT_PATH];
} copier;

/* ---- stored blobs ---- */

static void copy_forget(copier *c) {
    c->round++;
    c->stored = 0;
}

/* Allocate the table, with room for all blobs of a shard but at most COPY_STORED. */
static bags_code copy_make_table(
    copier *c, const bags_writer_options *copy, bags_error *err) {
    const derive *d = c->d;
    uint64_t most = d->length < COPY_STORED ? d->length : COPY_STORED;
    if (copy->shard_length && copy->shard_length < most)
        most = copy->shard_length;
    most *= d->fields_count;
    for (c->capacity = 16; c->capacity < COPY_STORED && c->capacity / 2 <= most;)
        c->capacity *= 2;
    c->table =
        (copy_stored *)bagi_derived_array(c->d, c->capacity, sizeof *c->table, err);
    copy_forget(c);
    return c->table ? BAGS_OK : err->code;
}

/* True if the shard being written already has this datapoint's blobs of a field,
 * starting with number *blob. Otherwise they are added to the table, since they are
 * written next. A full table is emptied first. */
static bool copy_is_stored(copier *c, size_t field, size_t s, uint64_t *blob) {
    const bags_ref ref = c->d->sources[s].refs[c->d->fields[field].number];
    copy_stored one = {
        ref.first, ref.count, c->sources[s].shard, 0, (uint32_t)field, 0};
    uint64_t hash = (one.first * 31 + field) * 31 + one.shard;
    if (2 * (c->stored + 1) > c->capacity)
        copy_forget(c);
    copy_stored *at = NULL;
    for (size_t i = (size_t)(hash * UINT64_C(0x9E3779B97F4A7C15) >> 32);; i++) {
        at = &c->table[i & (c->capacity - 1)];
        if (at->round != c->round)
            break;
        *blob = at->blob;
        if (at->first == one.first && at->count == one.count &&
            at->shard == one.shard && at->field == one.field)
            return true;
    }
    one.blob = *blob = bags_writer_next(c->writer, c->d->fields[field].name);
    one.round = c->round;
    *at = one;
    c->stored++;
    return false;
}

/* ---- datapoints ---- */

/* Request datapoints of a part and of the joined datasets from servers, or read one
 * datapoint with its refs. */
static bags_code derive_copy_read(
    copier *c, size_t part, uint64_t at, size_t count, bool request, bags_error *err) {
    uint64_t rows[DERIVE_AHEAD];
    for (size_t s = 0; s < c->d->sources_count; s++) {
        derive_source *source = &c->d->sources[s];
        copy_source *own = &c->sources[s];
        if ((s < c->d->parts_count && s != part) || !own->count ||
            (request && !source->io->read_many))
            continue;
        for (size_t i = 0; i < count; i++)
            rows[i] = derive_row_in(c->d, source, at + i);
        if (request) {
            FORMAT_TRY(bags_reader_prefetch(
                source->reader, rows, count, own->selects, own->count, &own->row, err));
            continue;
        }
        FORMAT_TRY(bags_reader_get(
            source->reader, *rows, own->selects, own->count, &own->row, err));
        FORMAT_TRY(
            bags_reader_refs(source->reader, *rows, &source->row, source->refs, err));
        own->shard = own->shards + derive_shard_of(source, *rows);
    }
    return BAGS_OK;
}

/* Get an item in the form to be written: the stored blob, whatever its type. A blob
 * that needs its Bag's dictionary is decoded, since the new Bag does not have that
 * dictionary. */
static bags_code copy_item(copier *c, size_t field, bags_row *row, size_t item,
    bags_value *value, bags_error *err) {
    bags_view bytes = bags_row_bytes(row, c->slots[field], item);
    *value = bags_blob(bytes.data, bytes.size);
    if (!format_needs_dictionary(&c->d->fields[field].type, bytes))
        return BAGS_OK;
    FORMAT_TRY(bags_row_value(row, c->slots[field], item, &c->plain, value, err));
    if (value->kind == BAGS_KIND_BYTES)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%.200s\": its blobs need dictionaries; to copy them, the codec "
        "of zstd must have the option `blobs`",
        bags_path_tail(c->d->to), c->d->fields[field].name);
}

static bags_code copy_field(copier *c, size_t part, size_t i, bags_error *err) {
    const derive_field *field = &c->d->fields[i];
    size_t source = field->source ? field->source : part;
    bags_row *row = &c->sources[source].row;
    size_t count = bags_row_length(row, c->slots[i]);
    uint64_t blob = 0;
    bool stored = count && copy_is_stored(c, i, source, &blob);
    for (size_t k = 0; k < count; k++) {
        bags_value value = bags_stored(blob + k);
        if (!stored)
            FORMAT_TRY(copy_item(c, i, row, k, &value, err));
        FORMAT_TRY(field->type.sequence
                       ? bags_writer_push(c->writer, field->name, &value, err)
                       : bags_writer_set(c->writer, field->name, &value, err));
    }
    return BAGS_OK;
}

/* Write the datapoint just read. */
static bags_code copy_append(copier *c, size_t part, bags_error *err) {
    uint64_t shards = bags_writer_shards(c->writer);
    FORMAT_TRY(bags_writer_begin(c->writer, err));
    if (!c->described)
        FORMAT_TRY(bagi_derived_put_metadata(c->d, err));
    c->described = true;
    for (size_t i = 0; i < c->d->fields_count; i++)
        FORMAT_TRY(copy_field(c, part, i, err));
    FORMAT_TRY(bags_writer_end(c->writer, err));
    c->open = bags_writer_shards(c->writer) == shards;
    if (!c->open)
        copy_forget(c);
    return BAGS_OK;
}

/* Copy the datapoints at these positions of the selection. */
static bags_code copy_rows(copier *c, uint64_t at, uint64_t stop, bags_error *err) {
    const derive *d = c->d;
    const bags_derive_options *options = d->options;
    while (at < stop) {
        size_t part = derive_part_of(d, derive_row(d, at)), count = 1;
        while (count < DERIVE_AHEAD && count < stop - at &&
               derive_part_of(d, derive_row(d, at + count)) == part)
            count++;
        FORMAT_TRY(derive_copy_read(c, part, at, count, true, err));
        for (; count > 0; count--, at++) {
            FORMAT_TRY(derive_copy_read(c, part, at, 1, false, err));
            FORMAT_TRY(copy_append(c, part, err));
        }
        if (options->progress && !options->progress(options->user, at, d->length))
            return bags_fail(
                err, BAGS_ERROR_IO, "%s: interrupted", bags_path_tail(d->to));
    }
    return BAGS_OK;
}

/* ---- the dataset ---- */

/* Claim TO.derived, later renamed to `to`. A writer creates an unsharded dataset
 * itself. */
static bags_code copy_stage(copier *c, bags_error *err) {
    derive *d = c->d;
    bags_path_kind kind = BAGS_PATH_NONE;
    int length = snprintf(
        c->staging, FORMAT_PATH, "%.*s.derived", (int)format_path_size(d->to), d->to);
    if (length < 0 || length >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(d->to));
    int error = d->io->kind(d->io->user, d->to, &kind);
    if (!error && kind != BAGS_PATH_NONE)
        return format_fail_exists(d->io, d->to, false, err);
    if (!error && !d->sharded)
        error = d->io->kind(d->io->user, c->staging, &kind);
    if (!error && d->sharded)
        error = d->io->make_dir(d->io->user, c->staging);
    if (error == EEXIST || kind != BAGS_PATH_NONE)
        return format_fail_exists(d->io, c->staging, true, err);
    d->made_root = !error && d->sharded;
    d->to = c->staging;
    return bags_fail_io(d->io, error, c->staging, "create directory", err);
}

/* Rename the complete copy to `to`. d->path is the parent of both. */
static bags_code copy_unstage(copier *c, const char *to, bags_error *err) {
    derive *d = c->d;
    int error = d->io->rename(d->io->user, c->staging, to);
    if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR)
        return bags_fail(
            err, BAGS_ERROR_EXISTS, "%s: already exists", bags_path_tail(to));
    FORMAT_TRY(bags_fail_io(d->io, error, to, "rename", err));
    d->to = to;
    return bagi_derived_sync_dir(d, d->path, err);
}

/* Plan the reads of each source. */
static bags_code copy_plan(
    copier *c, const bags_writer_options *copy, bags_error *err) {
    derive *d = c->d;
    uint64_t shards = 0;
    c->sources =
        (copy_source *)bagi_derived_array(d, d->sources_count, sizeof *c->sources, err);
    c->slots = (size_t *)bagi_derived_array(d, d->fields_count, sizeof *c->slots, err);
    if (!c->sources || !c->slots)
        return err->code;
    for (size_t s = 0; s < d->sources_count; s++) {
        c->sources[s].shards = shards;
        shards += d->sources[s].count;
        c->sources[s].selects = (bags_select *)bagi_derived_array(
            d, d->fields_count, sizeof(bags_select), err);
        if (!c->sources[s].selects)
            return err->code;
        for (size_t i = 0; i < d->fields_count; i++) {
            if (d->fields[i].source != (s < d->parts_count ? 0 : s))
                continue;
            c->slots[i] = c->sources[s].count++;
            c->sources[s].selects[c->slots[i]] = bags_select_all(d->fields[i].number);
        }
    }
    return copy_make_table(c, copy, err);
}

/* Open the writer. Without datapoints it makes a single shard, in the form of an
 * unsharded dataset. */
static bags_code copy_open(
    copier *c, const bags_writer_options *copy, bags_error *err) {
    derive *d = c->d;
    bags_writer_options writing = *copy;
    writing.shard_start = d->options->shard_start;
    writing.shard_stop = d->sharded ? d->stop : 0;
    writing.no_sync = d->options->no_sync;
    writing.registry = d->options->registry;
    writing.any_type = true; /* keep the sources' types */
    writing.env = d->options->env;
    c->single = !d->sharded || !d->length;
    if (!d->length)
        writing.shard_size = writing.shard_length = writing.shard_stop = 0;
    FORMAT_TRY(bagi_derived_directory(d, 0, err));
    c->writer = bags_writer_open(
        d->length ? d->to : d->directory, d->list, d->fields_count, &writing, err);
    return c->writer ? BAGS_OK : err->code;
}

/* Copy all datapoints of this worker. */
static bags_code derive_copy_shards(
    copier *c, const bags_writer_options *copy, bags_error *err) {
    const derive *d = c->d;
    uint64_t block = d->stop == 1 ? d->length : copy->shard_length;
    uint64_t shards = block ? d->length / block + (d->length % block > 0) : 0;
    FORMAT_TRY(copy_open(c, copy, err));
    for (uint64_t shard = d->options->shard_start; shard < shards;) {
        uint64_t start = shard * block, left = d->length - start;
        FORMAT_TRY(copy_rows(c, start, start + (left < block ? left : block), err));
        shard += d->stop < shards - shard ? d->stop : shards - shard;
    }
    return bagi_derived_check(d, err);
}

/* Close the writer. After a failure, the incomplete shard belongs to this call as well,
 * unless another process created it: then the message states which shard it is, and
 * what to do. */
static bags_code copy_end(copier *c, bags_code code, bags_error *err) {
    derive *d = c->d;
    bags_path_kind kind = BAGS_PATH_NONE;
    bool is_other = code == BAGS_ERROR_EXISTS;
    d->claimed = bags_writer_shards(c->writer);
    if (is_other && !bagi_derived_directory(d, d->claimed, NULL) &&
        !d->io->kind(d->io->user, d->directory, &kind) && kind != BAGS_PATH_NONE)
        format_fail_exists(d->io, d->directory, false, err);
    if (!c->writer)
        return code;
    d->report->length = bags_writer_length(c->writer);
    d->report->made = bags_writer_size(c->writer);
    d->report->shards = d->claimed + (c->open || c->single);
    d->claimed += !is_other;
    d->complete = d->claimed;
    if (!code)
        return bags_writer_close(c->writer, err);
    bags_writer_abort(c->writer);
    return code;
}

static bags_code copy_all(copier *c, const bags_writer_options *copy, bags_error *err) {
    derive *d = c->d;
    const char *to = d->to;
    FORMAT_TRY(bagi_derived_parents(d, err));
    if (!d->length && d->options->shard_start > 0)
        return BAGS_OK; /* the first worker makes the only shard */
    if (d->stop == 1)
        FORMAT_TRY(copy_stage(c, err));
    FORMAT_TRY(copy_plan(c, copy, err));
    FORMAT_TRY(copy_end(c, derive_copy_shards(c, copy, err), err));
    if (!d->length)
        FORMAT_TRY(bagi_derived_put_metadata(d, err));
    return d->stop == 1 ? copy_unstage(c, to, err) : BAGS_OK;
}

bags_code bagi_derive_copy(derive *d, bags_error *err) {
    const bags_writer_options *copy = d->options->copy;
    bags_writer_options links;
    copier *c = (copier *)format_state(d->options->env.allocator, sizeof *c, err);
    if (!c)
        return err->code;
    memset(&links, 0, sizeof links);
    links.checksum = d->checksums;
    links.shard_stop = d->sources[0].count != 1 || d->sources[0].shards[0].digits > 0;
    c->d = d;
    c->plain = bags_buffer_of(d->options->env.allocator);
    d->sharded = copy ? copy->shard_size || copy->shard_length || copy->shard_stop ||
                            d->options->shard_stop
                      : links.shard_stop > 0;
    bags_code code = copy_all(c, copy ? copy : &links, err);
    if (code)
        bagi_derived_remove(d);
    for (size_t s = 0; c->sources && s < d->sources_count; s++)
        bags_row_free(&c->sources[s].row);
    bags_buffer_free(&c->plain);
    format_state_close(c);
    return code;
}

#endif /* BAGS_NO_WRITER */
