/*
 * derive.c - versions of datasets that share their Bags by hard links; see datasets.h.
 *
 * A shard is made from the bottom up, and no reader accepts it before the last step:
 *
 *     make the directory, which claims it                 (derive_claim)
 *     write spec.json.derived, which states whose it is   (derive_shard)
 *     link the Bags and dictionaries, and see what they are (derive_link)
 *     write refs.bag, in their layout                     (derive_write_refs)
 *     copy the checksums, with new trailers               (derive_write_checksums)
 *     the source is as it was?                            (derive_check_records)
 *     when all shards are made: it becomes spec.json      (derive_publish)
 *
 * There is no spec.json.partial: with it a recovery would treat the links as files that
 * it may truncate.
 *
 * A copy is written by a bags_writer to TO.derived, which becomes TO when it is complete
 * (derive_copy): the writer finishes one shard after the other, and a reader would accept
 * the first ones as a dataset. Workers, of whom none is the last, write to TO itself.
 */
#include "blocks.h"
#include "datasets.h"
#include "files.h"
#include "place.h"
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

#define DERIVE_BUFFER ((size_t)256 << 10)
#define DERIVE_AHEAD 64 /* datapoints that are requested from a server at once */
#define DERIVE_STORED ((size_t)1 << 21) /* blobs that a copy remembers, twice */
#define DERIVE_TRAILER 44               /* see >>crc in bags.h */
#define DERIVE_MAGIC "BAGSCRC2"

/* A dataset that fields come from. The first is the source, those that are concatenated
 * with it follow. */
typedef struct derive_source {
    const char *path;
    const bags_io *io;
    bags_reader *reader;
    uint64_t start; /* of its datapoints among those that are concatenated */
    const bags_shard *shards;
    size_t count;
    bags_buffer refs;    /* bags_ref, one per field */
    bags_buffer records; /* bags_identity, of each shard's spec.json */
    size_t identified;   /* shards that have a record */
    bags_buffer selects; /* bags_select, of what is copied */
    size_t selects_count;
    bags_row row;
    size_t row_shard; /* of the datapoint in `row` */
} derive_source;

/* A field of the derived dataset, and its Bag in the shard that is made. */
typedef struct derive_field {
    const char *name, *from;
    size_t source, number; /* of the field there */
    size_t slot;           /* of those that are copied from there */
    uint64_t length;       /* blobs */
    uint64_t size;         /* bytes */
    bool empty;            /* a new file without blobs, not a link */
    bool has_dictionary;
    uint32_t dictionary; /* its CRC */
    unsigned char trailer[DERIVE_TRAILER];
} derive_field;

/* Blobs of a source that the shard being copied to has, and the first one there. */
typedef struct derive_stored {
    uint64_t first, count; /* count 0: none */
    size_t field, part, shard;
    uint64_t blob;
} derive_stored;

typedef struct derive {
    bags_buffer memory; /* see format_state */
    const bags_derive_options *options;
    const bags_io *io;
    const char *to;
    bags_derive_report *report;
    derive_source *sources;
    size_t sources_count, parts_count; /* of these, how many are concatenated */
    derive_field *fields;              /* sorted by name */
    size_t fields_count;
    bags_type *types;
    bags_ref *refs; /* of a datapoint */
    bags_row ref_row;
    bags_buffer stored; /* derive_stored: a hash table, at most half full */
    size_t stored_count, stored_capacity;
    bags_buffer arrays[4], spec, row, ends, crcs, buffer, plain;
    size_t spec_size;
    bool checksums, sharded, v2;
    bool open;              /* a copy: the last datapoint did not complete its shard */
    bool made_root;         /* the directory `to` was made by this call */
    uint64_t stop;          /* workers, at least 1 */
    uint64_t claimed, next; /* shards of this worker; number of the next one of all */
    uint64_t complete;      /* of the shards of this worker: they have a spec.json */
    uint64_t all, length;   /* datapoints of the source, and those that are selected */
    char directory[FORMAT_PATH], from[FORMAT_PATH], path[FORMAT_PATH];
    char staging[FORMAT_PATH]; /* of a copy */
    void *file;                /* that is written, at `path` */
    uint64_t written;
    size_t used;
} derive;

/* The path of a file in a shard of a source. */
static bags_code derive_source_path(derive *d, size_t source, size_t shard,
    const char *name, const char *ending, bags_error *err) {
    const derive_source *s = &d->sources[source];
    char directory[FORMAT_PATH];
    bags_code code =
        bags_shard_path(s->path, &s->shards[shard], directory, sizeof directory, err);
    return code ? code : format_path(d->from, directory, name, ending, err);
}

/* ---- files that are written ---- */

static bags_code derive_flush(derive *d, bags_error *err) {
    for (size_t done = 0, step = 0; done < d->used; done += step) {
        step = 0;
        int error = d->io->write_at(d->io->user, d->file, d->written + done,
            d->buffer.data + done, d->used - done, &step);
        if (!error && !step)
            error = EIO;
        if (error)
            return bags_fail_io(d->io, error, d->path, "write", err);
    }
    d->written += d->used;
    d->used = 0;
    return BAGS_OK;
}

static bags_code derive_put(derive *d, const void *data, size_t size, bags_error *err) {
    const unsigned char *from = (const unsigned char *)data;
    bags_code code = BAGS_OK;
    while (size > 0 && !code) {
        size_t part = DERIVE_BUFFER - d->used;
        part = part < size ? part : size;
        memcpy(d->buffer.data + d->used, from, part);
        d->used += part;
        from += part;
        size -= part;
        if (d->used == DERIVE_BUFFER)
            code = derive_flush(d, err);
    }
    return code;
}

static bags_code derive_create(
    derive *d, const char *name, const char *ending, bags_error *err) {
    bags_code code = format_path(d->path, d->directory, name, ending, err);
    if (code)
        return code;
    d->written = d->used = 0;
    int error = d->io->open(d->io->user, d->path, BAGS_IO_CREATE, &d->file);
    if (error)
        d->file = NULL;
    return bags_fail_io(d->io, error, d->path, "create", err);
}

/* Complete the file, after a failure `code` without more than closing it. */
static bags_code derive_close(derive *d, bags_code code, bags_error *err) {
    if (!d->file)
        return code;
    if (!code)
        code = derive_flush(d, err);
    int error = code || d->options->no_sync ? 0 : d->io->sync(d->io->user, d->file);
    int closed = d->io->close(d->io->user, d->file);
    d->file = NULL;
    d->report->made += d->written;
    if (code)
        return code;
    return bags_fail_io(d->io, error ? error : closed, d->path, "write", err);
}

static bags_code derive_sync_dir(derive *d, const char *path, bags_error *err) {
    int error = d->options->no_sync ? 0 : d->io->sync_dir(d->io->user, path);
    return bags_fail_io(d->io, error, path, "sync", err);
}

/* ---- what is selected ---- */

/* Bytes of all Bags of the fields, in proportion to the datapoints that are selected, and
 * of refs.bag. */
static uint64_t derive_copy_size(derive *d) {
    double size = 0;
    for (size_t s = 0; s < d->sources_count; s++) {
        size_t count = 0;
        bags_info info;
        bags_buffer memory = bags_buffer_of(d->options->env.allocator);
        (void)bags_reader_fields(d->sources[s].reader, &count);
        if (bags_buffer_reserve(&memory, (count + 1) * sizeof(bags_field_info), NULL))
            continue;
        bags_field_info *about = (bags_field_info *)(void *)memory.data;
        if (!bags_reader_info(d->sources[s].reader, &info, about, NULL))
            for (size_t i = 0; i < d->fields_count; i++)
                if (d->fields[i].source == (s < d->parts_count ? 0 : s))
                    size += (double)about[d->fields[i].number].size +
                            8 * (double)about[d->fields[i].number].blobs;
        bags_buffer_free(&memory);
    }
    size *= d->all ? (double)d->length / (double)d->all : 0;
    return (uint64_t)(size + (double)d->length * (8 + 4 * (double)d->fields_count)) + 1;
}

/* What only a copy can do. */
static bags_code derive_fail_copy(
    derive *d, const char *path, const char *what, bags_error *err) {
    d->report->copy = derive_copy_size(d);
    return bags_fail(err, BAGS_ERROR_LIMIT,
        "%s: %s; a copy of the data needs about %" PRIu64 " bytes",
        bags_path_tail(path), what, d->report->copy);
}

static uint64_t derive_row(const derive *d, uint64_t i) {
    return d->options->rows ? d->options->rows[i] : i;
}

/* How many of the rows that start at `at` are of a shard. */
static uint64_t derive_run(const derive *d, const bags_shard *shard, uint64_t at) {
    uint64_t stop = at;
    if (!d->options->rows)
        return shard->length;
    while (stop < d->length && d->options->rows[stop] - shard->start < shard->length)
        stop++;
    return stop - at;
}

static bags_code derive_check_rows(derive *d, bags_error *err) {
    const derive_source *source = &d->sources[0];
    uint64_t at = 0;
    for (uint64_t i = 0; i < d->length; i++)
        if (derive_row(d, i) >= d->all)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: datapoint %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(source->path), derive_row(d, i), d->all);
    if (d->options->copy)
        return BAGS_OK;
    for (size_t i = 0; i < source->count; i++)
        at += derive_run(d, &source->shards[i], at);
    if (at < d->length)
        return derive_fail_copy(d, source->path,
            "an order across shards: links keep each datapoint in its shard", err);
    return BAGS_OK;
}

/* ---- the sources ---- */

static bags_code derive_open_source(
    derive *d, derive_source *s, bool checksums, bags_error *err) {
    bags_reader_options reading;
    memset(&reading, 0, sizeof reading);
    reading.env = d->options->env;
    reading.env.io = s->io;
    reading.registry = d->options->registry;
    reading.verify_checksums = checksums;
    bags_reader *reader = bags_reader_open(s->path, &reading, err);
    if (!reader)
        return err->code;
    bags_reader_close(s->reader);
    s->reader = reader;
    s->shards = bags_reader_shards(s->reader, &s->count);
    return BAGS_OK;
}

/* Check that a source is of the version that the caller has read. */
static bags_code derive_check_version(
    const derive_source *s, uint64_t version, bags_error *err) {
    if (!version || bags_reader_version(s->reader) == version)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_STATE,
        "%s: another process replaced it, or added shards, since its datapoints "
        "were selected",
        bags_path_tail(s->path));
}

/* Identify the spec.json of each shard. What is opened afterwards is of this version, or
 * derive_check_records fails. */
static bags_code derive_take_records(derive *d, size_t source, bags_error *err) {
    derive_source *s = &d->sources[source];
    size_t size = (s->count + 1) * sizeof(bags_identity);
    bags_code code = bags_buffer_reserve(&s->records, size, err);
    for (size_t i = 0; i < s->count && !code && d->io->identify; i++) {
        bags_identity *record = (bags_identity *)(void *)s->records.data + i;
        code = derive_source_path(d, source, i, "spec.json", "", err);
        int error = code ? 0 : d->io->identify(d->io->user, NULL, d->from, record);
        if (error)
            code = bags_fail_io(d->io, error, d->from, "identify", err);
        s->identified += !code;
    }
    return code;
}

static bags_code derive_check_records(derive *d, size_t shard, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t s = 0; s < d->sources_count && !code; s++) {
        bags_identity *records = (bags_identity *)(void *)d->sources[s].records.data;
        if (shard >= d->sources[s].identified)
            continue;
        code = derive_source_path(d, s, shard, "spec.json", "", err);
        if (!code)
            code = format_check_identity(d->io, NULL, d->from, &records[shard], err);
        if (code == BAGS_ERROR_CORRUPT)
            code = err->code = BAGS_ERROR_STATE;
    }
    return code;
}

static bags_code derive_check_all_records(derive *d, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t s = 0, i = 0; s < d->sources_count; s++)
        for (; i < d->sources[s].identified && !code; i++)
            code = derive_check_records(d, i, err);
    return code;
}

/* All that was read is of one version: the last step before the result has its name. */
static bags_code derive_check_sources(derive *d, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t s = 0; s < d->sources_count && !code; s++)
        code = bags_reader_check(d->sources[s].reader, err);
    return code ? code : derive_check_all_records(d, err);
}

/* After a failure: what was found in another version, such as checksums that are not of
 * the Bag that was linked, is not a fault of a source, but of its replacement. */
static bags_code derive_explain(derive *d, bags_code code, bags_error *err) {
    bags_error replaced;
    if (code != BAGS_ERROR_STATE &&
        derive_check_all_records(d, &replaced) == BAGS_ERROR_STATE) {
        *err = replaced;
        code = BAGS_ERROR_STATE;
        d->report->copy = 0;
    }
    return code;
}

/* Those that are concatenated have one spec, and the others have as many datapoints. */
static bags_code derive_check_lengths(derive *d, bags_error *err) {
    bags_error why;
    const derive_source *first = &d->sources[0];
    for (size_t s = 0; s < d->parts_count; s++) {
        derive_source *part = &d->sources[s];
        part->start = d->all;
        d->all += bags_reader_length(part->reader);
        size_t count = 0, others = 0;
        const bags_field *fields = bags_reader_fields(part->reader, &count);
        const bags_field *expected = bags_reader_fields(first->reader, &others);
        if (bags_fields_compare(
                fields, count, expected, others, bags_path_tail(first->path), &why))
            return bags_fail(err, BAGS_ERROR_VALUE, "%s: %s",
                bags_path_tail(part->path), why.message);
    }
    d->length = d->options->rows ? d->options->rows_count : d->all;
    for (size_t s = d->parts_count; s < d->sources_count; s++) {
        const derive_source *other = &d->sources[s];
        uint64_t length = bags_reader_length(other->reader);
        if (length != d->all)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: its length differs from that of %s (%" PRIu64
                " datapoints, expected %" PRIu64 ")",
                bags_path_tail(other->path), bags_path_tail(first->path), length,
                d->all);
    }
    return BAGS_OK;
}

/* What cannot be linked. Split shards have no refs.bag: blob n is that of datapoint n,
 * and stays it. */
static bags_code derive_check_links(derive *d, bags_error *err) {
    const derive_source *first = &d->sources[0];
    bags_code code = BAGS_OK;
    if (d->parts_count > 1)
        return derive_fail_copy(d, d->to, "made of several datasets", err);
    for (size_t s = 0; s < d->sources_count; s++)
        if (d->sources[s].io != d->io || !d->io->link)
            return derive_fail_copy(d, d->sources[s].path,
                "on a server or in an archive, where files cannot be linked", err);
    for (size_t s = 0; s < d->sources_count && !code; s++) {
        const derive_source *other = &d->sources[s];
        bool same = other->count == first->count;
        for (size_t i = 0; i < other->count && same; i++)
            same = other->shards[i].length == first->shards[i].length;
        if (!same)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: its shards do not have the lengths of those of %s (%" PRIu64
                " datapoints in %" PRIu64 ", expected %" PRIu64 " in %" PRIu64 ")",
                bags_path_tail(other->path), bags_path_tail(first->path),
                bags_reader_length(other->reader), (uint64_t)other->count,
                bags_reader_length(first->reader), (uint64_t)first->count);
        for (size_t i = 0; i < other->count && !code; i++) {
            bags_path_kind kind = BAGS_PATH_FILE;
            code = derive_source_path(d, s, i, "refs", ".bag", err);
            int error = code ? 0 : d->io->kind(d->io->user, d->from, &kind);
            if (error)
                code = bags_fail_io(d->io, error, d->from, "open", err);
            else if (!code && kind == BAGS_PATH_NONE)
                code = derive_fail_copy(
                    d, d->from, "missing: a split dataset has no refs", err);
        }
    }
    return code;
}

/* ---- the fields ---- */

static int derive_compare_fields(const void *a, const void *b) {
    return strcmp(((const derive_field *)a)->name, ((const derive_field *)b)->name);
}

static bags_code derive_add_source(
    derive *d, const char *path, const bags_io *io, uint64_t version, bags_error *err) {
    derive_source *s = &d->sources[d->sources_count++];
    memset(s, 0, sizeof *s);
    s->refs = s->records = s->selects = bags_buffer_of(d->options->env.allocator);
    s->path = path;
    s->io = io ? io : d->io;
    size_t fields = 0;
    bags_info info;
    bags_code code = derive_open_source(d, s, false, err);
    size_t count = s->count;
    if (!code && s->io == d->io)
        code = derive_take_records(d, d->sources_count - 1, err);
    if (!code)
        code = bags_reader_info(s->reader, &info, NULL, err);
    bool has_checksums = !code && info.checksums == count;
    d->checksums = d->checksums && has_checksums;
    /* Opened again, also to be of the version that was identified. */
    if (!code)
        code = derive_open_source(d, s, has_checksums, err);
    if (!code && s->count != count)
        code = bags_fail(err, BAGS_ERROR_STATE,
            "%s: another process added or removed shards", bags_path_tail(path));
    if (!code)
        code = derive_check_version(s, version, err);
    (void)bags_reader_fields(s->reader, &fields);
    if (!code)
        code = bags_buffer_reserve(&s->refs, (fields + 1) * sizeof(bags_ref), err);
    return code;
}

/* The dataset of a field, which is added unless it is that of an earlier one. */
static bags_code derive_find_source(
    derive *d, const bags_derived_field *given, size_t *source, bags_error *err) {
    *source = 0;
    if (!given->dataset || !strcmp(given->dataset, d->sources[0].path))
        return derive_check_version(&d->sources[0], given->version, err);
    for (*source = d->parts_count; *source < d->sources_count; ++*source)
        if (!strcmp(d->sources[*source].path, given->dataset))
            return derive_check_version(&d->sources[*source], given->version, err);
    return derive_add_source(d, given->dataset, given->io, given->version, err);
}

static void *derive_array(
    derive *d, size_t i, size_t count, size_t size, bags_code *code, bags_error *err) {
    if (!*code)
        *code = bags_buffer_reserve(&d->arrays[i], (count + 1) * size, err);
    if (!*code)
        memset(d->arrays[i].data, 0, (count + 1) * size);
    return d->arrays[i].data;
}

/* The fields of the derived dataset, until the refs of a datapoint take their place. */
static const bags_field *derive_list_fields(
    derive *d, bags_code *code, bags_error *err) {
    bags_field *spec =
        (bags_field *)derive_array(d, 3, d->fields_count, sizeof *spec, code, err);
    for (size_t i = 0; i < d->fields_count && !*code; i++) {
        const derive_field *field = &d->fields[i];
        const bags_reader *reader = d->sources[field->source].reader;
        size_t count = 0;
        spec[i].name = field->name;
        spec[i].type = bags_reader_fields(reader, &count)[field->number].type;
    }
    return spec;
}

/* Find the fields in their datasets, and make the new spec.json. */
static bags_code derive_plan(derive *d, const char *from, bags_error *err) {
    const bags_derive_options *options = d->options;
    const bags_derived_field *given = options->fields;
    bags_code code = BAGS_OK;
    size_t source = 0, count = given ? options->fields_count : 0;
    d->checksums = true;
    d->parts_count = options->more_count + 1;
    d->sources = (derive_source *)derive_array(
        d, 0, count + d->parts_count, sizeof *d->sources, &code, err);
    if (!code)
        code = derive_add_source(d, from, options->from, options->version, err);
    for (size_t i = 0; i < options->more_count && !code; i++) {
        const bags_derive_more *more = &options->more[i];
        code = derive_add_source(d, more->path, more->io, more->version, err);
    }
    if (code)
        return code;
    const bags_field *all = bags_reader_fields(d->sources[0].reader, &source);
    if (!given)
        count = source;
    d->fields =
        (derive_field *)derive_array(d, 1, count, sizeof *d->fields, &code, err);
    d->types = (bags_type *)derive_array(d, 2, count, sizeof *d->types, &code, err);
    for (size_t i = 0; i < count && !code; i++) {
        derive_field *field = &d->fields[i];
        field->name = given ? given[i].name : all[i].name;
        field->from = given && given[i].from ? given[i].from : field->name;
        if (!field->name)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "the name of a field is NULL");
        if (given)
            code = derive_find_source(d, &given[i], &field->source, err);
        if (!code)
            code = bags_reader_field(
                d->sources[field->source].reader, field->from, &field->number, err);
        d->fields_count++;
    }
    if (!code && count > 1)
        qsort(d->fields, count, sizeof *d->fields, derive_compare_fields);
    const bags_field *spec = derive_list_fields(d, &code, err);
    if (!code)
        code = bags_spec_text(
            spec, count, options->registry, &d->spec, &d->spec_size, err);
    for (size_t i = 0; i < count && !code; i++)
        d->types[i] = *bags_reader_type(
            d->sources[d->fields[i].source].reader, d->fields[i].number);
    d->refs = (bags_ref *)derive_array(d, 3, count, sizeof *d->refs, &code, err);
    return code;
}

/* ---- a shard ---- */

/* Make a file of 8 zeros: a Bag without blobs, as v1 has it. */
static bags_code derive_write_empty(derive *d, derive_field *field, bags_error *err) {
    static const unsigned char zeros[8] = {0};
    field->empty = true;
    field->has_dictionary = false;
    field->length = 0;
    field->size = sizeof zeros;
    bags_code code = derive_create(d, field->name, ".bag", err);
    if (!code)
        code = derive_put(d, zeros, sizeof zeros, err);
    return derive_close(d, code, err);
}

/* Make the Bags of a shard without datapoints. */
static bags_code derive_write_no_blobs(derive *d, bags_error *err) {
    const bags_writer_options *copy = d->options->copy;
    bags_code code = BAGS_OK;
    d->v2 = false;
    for (size_t i = 0; i < d->fields_count && !code; i++)
        code = derive_write_empty(d, &d->fields[i], err);
    for (size_t i = 0; i <= d->fields_count && copy && copy->keep_idx && !code; i++) {
        const char *name = i < d->fields_count ? d->fields[i].name : "refs";
        code = derive_close(d, derive_create(d, name, ".idx", err), err);
    }
    return code;
}

static bags_code derive_fail_link(
    derive *d, int error, const char *path, bags_error *err) {
    static const struct {
        int error;
        const char *what;
    } faults[] = {{EXDEV, "cannot link: on another file system"},
        {EMLINK, "cannot link: the file has as many links as the file system allows"},
        {EPERM, "cannot link: the file system has no links, or the file is another "
                "user's"},
        {ENOSYS, "cannot link: the file system has no links"},
        {EOPNOTSUPP, "cannot link: the file system has no links"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        if (faults[i].error == error)
            return derive_fail_copy(d, path, faults[i].what, err);
    return bags_fail_io(d->io, error, path, "link", err);
}

/* Open a linked Bag, which checks its shape, and find its layout: only v1 has an entry of
 * 0 at the start of its table. */
static bags_code derive_examine(
    derive *d, derive_field *field, bool *v1, bool *v2, bags_error *err) {
    unsigned char last[8], first[8];
    bag_reader_options opening;
    void *file = NULL;
    memset(&opening, 0, sizeof opening);
    opening.allow_empty_file = true;
    opening.no_mmap = true;
    opening.env = d->options->env;
    opening.env.io = d->io;
    bag_reader *bag = bag_reader_open(d->path, &opening, err);
    if (!bag)
        return err->code;
    field->length = bag_reader_length(bag);
    field->size = bag_reader_size(bag);
    bag_reader_close(bag);
    if (field->size == 0) {
        *v2 = true;
        return BAGS_OK;
    }
    int error = d->io->open(d->io->user, d->path, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(d->io, error, d->path, "open", err);
    bags_code code =
        bags_read(d->io, file, d->path, field->size - 8, last, sizeof last, err);
    if (!code)
        code = bags_read(
            d->io, file, d->path, bags_load(last, 8, false), first, sizeof first, err);
    d->io->close(d->io->user, file);
    if (!code && bags_load(first, 8, false) == 0)
        *v1 = true;
    else if (!code)
        *v2 = true;
    return code;
}

/* Compute the CRC of the file at d->path. */
static bags_code derive_sum(derive *d, uint32_t *crc, bags_error *err) {
    uint64_t size = 0;
    void *file = NULL;
    int error = d->io->open(d->io->user, d->path, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(d->io, error, d->path, "open", err);
    error = d->io->size(d->io->user, file, &size);
    bags_code code = bags_fail_io(d->io, error, d->path, "read", err);
    if (!code)
        code = bags_buffer_reserve(&d->crcs, DERIVE_BUFFER, err);
    *crc = 0;
    for (uint64_t at = 0; at < size && !code; at += DERIVE_BUFFER) {
        size_t part = size - at < DERIVE_BUFFER ? (size_t)(size - at) : DERIVE_BUFFER;
        code = bags_read(d->io, file, d->path, at, d->crcs.data, part, err);
        if (!code)
            *crc = bags_crc32c(*crc, d->crcs.data, part);
    }
    d->io->close(d->io->user, file);
    return code;
}

/* Link the dictionary of a Bag, if there is one. */
static bags_code derive_link_dictionary(
    derive *d, size_t shard, size_t i, bags_error *err) {
    derive_field *field = &d->fields[i];
    field->has_dictionary = false;
    if (!format_has_dictionary(&d->types[i]))
        return BAGS_OK;
    bags_code code =
        derive_source_path(d, field->source, shard, field->from, ".dict", err);
    if (!code)
        code = format_path(d->path, d->directory, field->name, ".dict", err);
    int error = code ? 0 : d->io->link(d->io->user, d->from, d->path);
    if (error == ENOENT)
        return BAGS_OK;
    if (error)
        return derive_fail_link(d, error, d->from, err);
    field->has_dictionary = true;
    return code || !d->checksums ? code : derive_sum(d, &field->dictionary, err);
}

/* Link the Bags of a shard. Beside v1 Bags an empty file is no Bag, so that one of v1
 * takes its place. */
static bags_code derive_link(derive *d, size_t shard, bags_error *err) {
    bool v1 = false, v2 = false;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        derive_field *field = &d->fields[i];
        field->empty = false;
        code = derive_source_path(d, field->source, shard, field->from, ".bag", err);
        if (!code)
            code = format_path(d->path, d->directory, field->name, ".bag", err);
        int error = code ? 0 : d->io->link(d->io->user, d->from, d->path);
        if (error)
            return derive_fail_link(d, error, d->from, err);
        if (!code)
            code = derive_examine(d, field, &v1, &v2, err);
        if (!code)
            code = derive_link_dictionary(d, shard, i, err);
        d->report->linked += field->size;
    }
    d->v2 = v2 && !v1;
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        derive_field *field = &d->fields[i];
        if (field->size > 0 || d->v2)
            continue;
        code = format_path(d->path, d->directory, field->name, ".bag", err);
        int error = code ? 0 : d->io->remove(d->io->user, d->path);
        if (!code && error)
            code = bags_fail_io(d->io, error, d->path, "remove", err);
        if (!code)
            code = derive_write_empty(d, field, err);
    }
    return code;
}

/* Read the refs of a datapoint of the source into d->refs. */
static bags_code derive_read_refs(derive *d, uint64_t row, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t s = 0; s < d->sources_count && !code; s++)
        code = bags_reader_refs(d->sources[s].reader, row, &d->sources[s].row,
            (bags_ref *)(void *)d->sources[s].refs.data, err);
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        const derive_field *field = &d->fields[i];
        const bags_ref *refs =
            (const bags_ref *)(const void *)d->sources[field->source].refs.data;
        d->refs[i] = refs[field->number];
        if (d->refs[i].count &&
            (d->refs[i].first >= field->length ||
                d->refs[i].count > field->length - d->refs[i].first))
            code = bags_fail(err, BAGS_ERROR_STATE,
                "%s: field \"%.200s\": replaced while it was linked",
                bags_path_tail(d->sources[field->source].path), field->from);
    }
    return code;
}

/* Append an entry of the table. Fills `ends` in memory, since it follows all blobs. */
static bags_code derive_end(derive *d, size_t entry, uint64_t end, bags_error *err) {
    bags_code code = bags_buffer_reserve(&d->ends, 8 * (entry + 1), err);
    if (!code)
        bags_store(d->ends.data + 8 * entry, 8, false, end);
    return code;
}

/* What a trailer contains; see >>crc in bags.h. The last 4 bytes, and the CRC that binds
 * the shard together, follow in derive_seal. */
static void derive_trailer(unsigned char out[DERIVE_TRAILER], uint64_t length,
    uint64_t size, uint32_t table, uint32_t crcs) {
    bags_store(out, 8, false, length);
    bags_store(out + 8, 8, false, size);
    bags_store(out + 16, 4, false, table);
    bags_store(out + 20, 4, false, crcs);
}

static uint32_t derive_trailer_crcs(const unsigned char trailer[DERIVE_TRAILER]) {
    return (uint32_t)bags_load(trailer + 20, 4, false);
}

/* Write refs.bag, for `count` datapoints. */
static bags_code derive_write_refs(derive *d, uint64_t at, uint64_t count,
    unsigned char trailer[DERIVE_TRAILER], bags_error *err) {
    uint64_t end = 0;
    size_t entries = 0, rows = 0;
    bags_code code = derive_create(d, "refs", ".bag", err);
    if (!code && !d->v2)
        code = derive_end(d, entries++, 0, err);
    for (; rows < count && !code; rows++) {
        bags_view blob;
        code = derive_read_refs(d, derive_row(d, at + rows), err);
        if (!code)
            code = bags_refs_encode(
                d->types, d->refs, d->fields_count, &d->row, &blob, err);
        if (!code)
            code = derive_put(d, blob.data, blob.size, err);
        if (!code && d->checksums)
            code = bags_buffer_reserve(&d->crcs, 4 * (rows + 1), err);
        if (code)
            break;
        if (d->checksums)
            bags_store(d->crcs.data + 4 * rows, 4, false,
                bags_crc32c(0, blob.data, blob.size));
        end += blob.size;
        code = derive_end(d, entries++, end, err);
    }
    if (!code)
        code = derive_put(d, d->ends.data, 8 * entries, err);
    code = derive_close(d, code, err);
    if (!code && d->checksums)
        derive_trailer(trailer, count, end + 8 * entries,
            bags_crc32c(0, d->ends.data, 8 * entries),
            bags_crc32c(0, d->crcs.data, 4 * rows));
    return code;
}

/* ---- checksums ---- */

static bags_code derive_fail_checksums(derive *d, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: damaged, or not of the Bag next to it; bags_checksum with `replace` "
        "makes it again",
        bags_path_tail(d->from));
}

/* What a trailer contains of a name and, unless field is NULL, of its dictionary. */
static uint32_t derive_name(const char *name, const derive_field *field) {
    uint32_t crc = bags_crc32c(0, name, strlen(name));
    unsigned char bytes[4];
    if (!field || !field->has_dictionary)
        return crc;
    bags_store(bytes, sizeof bytes, false, field->dictionary);
    return bags_crc32c(crc, bytes, sizeof bytes);
}

/* Read the trailer of a field's checksums, or make one for a Bag without blobs. */
static bags_code derive_read_trailer(
    derive *d, size_t shard, derive_field *field, bags_error *err) {
    static const unsigned char zeros[8] = {0};
    void *file = NULL;
    if (field->empty) {
        derive_trailer(
            field->trailer, 0, sizeof zeros, bags_crc32c(0, zeros, sizeof zeros), 0);
        return BAGS_OK;
    }
    bags_code code =
        derive_source_path(d, field->source, shard, field->from, ".crc", err);
    int error = code ? 0 : d->io->open(d->io->user, d->from, BAGS_IO_READ, &file);
    if (code || error)
        return code ? code : bags_fail_io(d->io, error, d->from, "open", err);
    code = bags_read(
        d->io, file, d->from, 4 * field->length, field->trailer, DERIVE_TRAILER, err);
    d->io->close(d->io->user, file);
    if (!code && (memcmp(field->trailer + 32, DERIVE_MAGIC, 8) != 0 ||
                     bags_load(field->trailer + 40, 4, false) !=
                         bags_crc32c(0, field->trailer, 40) ||
                     bags_load(field->trailer, 8, false) != field->length ||
                     bags_load(field->trailer + 8, 8, false) != field->size ||
                     bags_load(field->trailer + 24, 4, false) !=
                         derive_name(field->from, field)))
        code = derive_fail_checksums(d, err);
    return code;
}

/* Complete a trailer and write it. `name` is of the Bag, `bound` of the shard. */
static bags_code derive_seal(derive *d, uint32_t name, uint32_t bound,
    unsigned char trailer[DERIVE_TRAILER], bags_error *err) {
    bags_store(trailer + 24, 4, false, name);
    bags_store(trailer + 28, 4, false, bound);
    memcpy(trailer + 32, DERIVE_MAGIC, 8);
    bags_store(trailer + 40, 4, false, bags_crc32c(0, trailer, 40));
    return derive_put(d, trailer, DERIVE_TRAILER, err);
}

/* The CRC that binds a shard together, after another Bag. */
static uint32_t derive_bind(
    uint32_t crc, const char *name, const unsigned char trailer[DERIVE_TRAILER]) {
    return bags_crc32c(bags_crc32c(crc, name, strlen(name)), trailer + 20, 4);
}

/* Copy the CRCs of a field's blobs. */
static bags_code derive_copy_crcs(
    derive *d, size_t shard, const derive_field *field, bags_error *err) {
    uint64_t size = field->empty ? 0 : 4 * field->length;
    uint32_t crc = 0;
    void *file = NULL;
    bags_code code =
        derive_source_path(d, field->source, shard, field->from, ".crc", err);
    if (code || !size)
        return code;
    int error = d->io->open(d->io->user, d->from, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(d->io, error, d->from, "open", err);
    code = bags_buffer_reserve(&d->crcs, DERIVE_BUFFER, err);
    for (uint64_t at = 0; at < size && !code; at += DERIVE_BUFFER) {
        size_t part = size - at < DERIVE_BUFFER ? (size_t)(size - at) : DERIVE_BUFFER;
        code = bags_read(d->io, file, d->from, at, d->crcs.data, part, err);
        if (!code)
            code = derive_put(d, d->crcs.data, part, err);
        if (!code)
            crc = bags_crc32c(crc, d->crcs.data, part);
    }
    d->io->close(d->io->user, file);
    return code || crc == derive_trailer_crcs(field->trailer)
               ? code
               : derive_fail_checksums(d, err);
}

/* refs.crc is written first, since its CRCs are in memory. */
static bags_code derive_write_checksums(derive *d, size_t shard, uint64_t length,
    unsigned char refs[DERIVE_TRAILER], bags_error *err) {
    uint32_t bound = bags_crc32c(0, d->spec.data, d->spec_size);
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        derive_field *field = &d->fields[i];
        code = derive_read_trailer(d, shard, field, err);
        bound = derive_bind(bound, field->name, field->trailer);
    }
    bound = derive_bind(bound, "refs", refs);
    if (!code)
        code = derive_create(d, "refs", ".crc", err);
    if (!code)
        code = derive_put(d, d->crcs.data, 4 * (size_t)length, err);
    if (!code)
        code = derive_seal(d, derive_name("refs", NULL), bound, refs, err);
    code = derive_close(d, code, err);
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        derive_field *field = &d->fields[i];
        code = derive_create(d, field->name, ".crc", err);
        if (!code)
            code = derive_copy_crcs(d, shard, field, err);
        if (!code)
            code = derive_seal(
                d, derive_name(field->name, field), bound, field->trailer, err);
        code = derive_close(d, code, err);
    }
    return code;
}

/* ---- the dataset ---- */

/* Write the path of this worker's shard `i` to d->directory. */
static bags_code derive_set_directory(derive *d, uint64_t i, bags_error *err) {
    bags_shard shard;
    memset(&shard, 0, sizeof shard);
    shard.number = d->options->shard_start + i * d->stop;
    shard.digits = d->sharded ? 6 : 0;
    return bags_shard_path(d->to, &shard, d->directory, FORMAT_PATH, err);
}

static bags_code derive_claim(derive *d, bags_error *err) {
    bags_code code = derive_set_directory(d, d->claimed, err);
    if (code)
        return code;
    int error = d->io->make_dir(d->io->user, d->directory);
    if (error == EEXIST)
        return format_fail_exists(d->io, d->directory, false, err);
    if (error)
        return bags_fail_io(d->io, error, d->directory, "create directory", err);
    d->claimed++;
    return BAGS_OK;
}

/* Make a shard, from `count` rows that start at `at`. */
static bags_code derive_shard(
    derive *d, size_t shard, uint64_t at, uint64_t count, bags_error *err) {
    unsigned char trailer[DERIVE_TRAILER];
    bags_code code = derive_claim(d, err);
    if (!code)
        code = derive_create(d, "spec.json", ".derived", err);
    if (!code)
        code = derive_put(d, d->spec.data, d->spec_size, err);
    code = derive_close(d, code, err);
    if (!code)
        code = count ? derive_link(d, shard, err) : derive_write_no_blobs(d, err);
    if (!code)
        code = derive_write_refs(d, at, count, trailer, err);
    if (!code && d->checksums)
        code = derive_write_checksums(d, shard, count, trailer, err);
    if (!code)
        code = derive_check_records(d, shard, err);
    if (!code)
        code = derive_sync_dir(d, d->directory, err);
    d->report->length += count;
    d->report->shards++;
    return code;
}

/* Give the spec.json of all shards their name. */
static bags_code derive_publish(derive *d, bags_error *err) {
    bags_code code = BAGS_OK;
    if (d->sharded)
        code = derive_sync_dir(d, d->to, err);
    if (!code)
        code = derive_check_sources(d, err);
    for (uint64_t i = 0; i < d->claimed && !code; i++) {
        code = derive_set_directory(d, i, err);
        if (!code)
            code = format_path(d->from, d->directory, "spec.json", ".derived", err);
        if (!code)
            code = format_path(d->path, d->directory, "spec.json", "", err);
        int error = code ? 0 : d->io->rename(d->io->user, d->from, d->path);
        if (error)
            code = bags_fail_io(d->io, error, d->path, "rename", err);
        d->complete += !code;
        if (!code)
            code = derive_sync_dir(d, d->directory, err);
    }
    return code;
}

static void derive_remove_file(derive *d, const char *name, const char *ending) {
    if (!format_path(d->path, d->directory, name, ending, NULL))
        d->io->remove(d->io->user, d->path);
}

/* After a failure: remove what was made; first of all each spec.json. One that another
 * process made instead stays, with its shard. */
static void derive_remove(derive *d) {
    for (uint64_t i = 0; i < d->complete; i++)
        if (!derive_set_directory(d, i, NULL))
            derive_remove_file(d, "spec.json", "");
    for (uint64_t i = 0; i < d->claimed; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        if (derive_set_directory(d, i, NULL) ||
            format_path(d->path, d->directory, "spec.json", "", NULL) ||
            d->io->kind(d->io->user, d->path, &kind) || kind != BAGS_PATH_NONE)
            continue;
        derive_remove_file(d, "spec.json", ".derived");
        derive_remove_file(d, "spec.json", ".partial");
        for (size_t k = 0; k <= d->fields_count; k++) {
            const char *name = k < d->fields_count ? d->fields[k].name : "refs";
            for (size_t j = 0; j < FORMAT_SUFFIXES; j++)
                derive_remove_file(d, name, format_suffix(j));
            derive_remove_file(d, name, ".dict.partial");
        }
        d->io->remove_dir(d->io->user, d->directory);
    }
    if (d->made_root)
        d->io->remove_dir(d->io->user, d->to);
}

/* Make the parents of `to`. d->path is then the last one. */
static bags_code derive_make_parents(derive *d, bags_error *err) {
    size_t size = strlen(d->to);
    bags_code code = BAGS_OK;
    while (size > 1 && d->to[size - 1] == '/')
        size--;
    if (size >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(d->to));
    code = format_check_outside(d->io, d->to, err);
    memcpy(d->path, *d->to == '/' ? "/" : ".", 2);
    for (size_t i = 1; i < size && !code; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        if (d->to[i] != '/' || d->to[i - 1] == '/')
            continue;
        memcpy(d->from, d->to, i);
        d->from[i] = 0;
        int error = d->io->kind(d->io->user, d->from, &kind);
        if (!error && kind == BAGS_PATH_NONE)
            error = d->io->make_dir(d->io->user, d->from);
        if (error && error != EEXIST)
            code = bags_fail_io(d->io, error, d->from, "create directory", err);
        memcpy(d->path, d->from, i + 1);
    }
    return code;
}

/* The directory of the shards. Only with several workers it may exist. */
static bags_code derive_make_root(derive *d, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code = derive_make_parents(d, err);
    if (code || !d->sharded)
        return code;
    int error = d->io->make_dir(d->io->user, d->to);
    d->made_root = !error;
    if (error == EEXIST && d->stop > 1) {
        code = format_path(d->path, d->to, "spec.json", "", err);
        error = code ? 0 : d->io->kind(d->io->user, d->path, &kind);
        if (!code && !error && kind != BAGS_PATH_NONE)
            error = EEXIST;
    }
    if (error == EEXIST)
        return format_fail_exists(d->io, d->to, false, err);
    return code ? code : bags_fail_io(d->io, error, d->to, "create directory", err);
}

/* True if a copy has shards. */
static bool derive_copy_is_sharded(const derive *d) {
    const bags_writer_options *copy = d->options->copy;
    return copy->sharded || copy->shard_size || copy->shard_length ||
           d->options->shard_stop;
}

/* Make the shards with links. Without datapoints it is one shard, also of a copy: a writer
 * makes none of them. */
static bags_code derive_make(derive *d, bags_error *err) {
    const derive_source *source = &d->sources[0];
    const bags_writer_options *copy = d->options->copy;
    uint64_t at = 0;
    d->sharded = copy ? derive_copy_is_sharded(d)
                      : source->count != 1 || source->shards[0].digits > 0;
    if (copy)
        d->checksums = copy->checksum;
    bags_code code = derive_make_root(d, err);
    for (size_t i = 0; i < source->count && at < d->length && !code; i++) {
        uint64_t run = derive_run(d, &source->shards[i], at);
        if (run == 0)
            continue;
        if (d->next++ % d->stop == d->options->shard_start)
            code = derive_shard(d, i, at, run, err);
        at += run;
    }
    if (!code && d->length == 0 && d->options->shard_start == 0)
        code = derive_shard(d, 0, 0, 0, err);
    if (!code)
        code = derive_publish(d, err);
    if (!code && d->sharded)
        code = derive_sync_dir(d, d->to, err);
    if (code)
        derive_remove(d);
    else if (d->made_root && !d->claimed) /* as a writer without a datapoint */
        d->io->remove_dir(d->io->user, d->to);
    return code;
}

/* ---- copies ---- */

/* What is read of each source, and where in its row each field is. */
static bags_code derive_select(derive *d, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        derive_source *source = &d->sources[d->fields[i].source];
        size_t slot = d->fields[i].slot = source->selects_count++;
        code = bags_buffer_reserve(
            &source->selects, (slot + 1) * sizeof(bags_select), err);
        if (!code)
            ((bags_select *)(void *)source->selects.data)[slot] =
                bags_whole(d->fields[i].number);
    }
    return code;
}

/* Which of the concatenated sources has a datapoint. */
static size_t derive_part(const derive *d, uint64_t row) {
    return format_last_at_most(
        &d->sources->start, sizeof *d->sources, d->parts_count, row);
}

/* Read datapoints of a part, and of the datasets that are joined: if `ahead`, all at once
 * and far away, otherwise one, into the rows. */
static bags_code derive_read(
    derive *d, size_t part, uint64_t at, size_t count, bool ahead, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t s = 0; s < d->sources_count && !code; s++) {
        bool is_part = s < d->parts_count;
        derive_source *source = &d->sources[s];
        const derive_source *of = &d->sources[is_part ? 0 : s];
        const bags_select *selects =
            (const bags_select *)(const void *)of->selects.data;
        uint64_t rows[DERIVE_AHEAD];
        if ((is_part && s != part) || !of->selects_count ||
            (ahead && !source->io->read_many))
            continue;
        for (size_t i = 0; i < count; i++)
            rows[i] = derive_row(d, at + i) - source->start;
        code = ahead ? bags_reader_prefetch(source->reader, rows, count, selects,
                           of->selects_count, &source->row, err)
                     : bags_reader_get(source->reader, rows[0], selects,
                           of->selects_count, &source->row, err);
        if (!code && !ahead)
            code = bags_reader_refs(source->reader, rows[0], &d->ref_row,
                (bags_ref *)(void *)source->refs.data, err);
        source->row_shard = format_last_at_most(
            &source->shards->start, sizeof *source->shards, source->count, rows[0]);
    }
    return code;
}

/* The place of these blobs in the table, or of the first that is empty. */
static derive_stored *derive_place(const derive *d, const derive_stored *wanted) {
    derive_stored *table = (derive_stored *)(void *)d->stored.data;
    uint64_t hash = wanted->first * 31 + wanted->field;
    hash = (hash * 31 + wanted->shard) * UINT64_C(0x9E3779B97F4A7C15);
    size_t i = (size_t)(hash >> 32);
    for (;; i++) {
        derive_stored *at = &table[i & (d->stored_capacity - 1)];
        if (!at->count || (at->first == wanted->first && at->count == wanted->count &&
                              at->field == wanted->field && at->part == wanted->part &&
                              at->shard == wanted->shard))
            return at;
    }
}

static void derive_forget(derive *d) {
    if (d->stored_count > 0)
        memset(d->stored.data, 0, d->stored_capacity * sizeof(derive_stored));
    d->stored_count = 0;
}

/* Make place in the table for one more. One that is full is emptied. */
static bags_code derive_grow(derive *d, bags_error *err) {
    bags_buffer old = d->stored;
    size_t capacity = d->stored_capacity;
    if (2 * (d->stored_count + 1) <= capacity)
        return BAGS_OK;
    if (capacity == DERIVE_STORED) {
        derive_forget(d);
        return BAGS_OK;
    }
    size_t size = capacity ? 2 * capacity : 1024; /* up to DERIVE_STORED */
    d->stored = bags_buffer_of(d->options->env.allocator);
    bags_code code = bags_buffer_reserve(&d->stored, size * sizeof(derive_stored), err);
    if (code) {
        d->stored = old;
        return code;
    }
    memset(d->stored.data, 0, size * sizeof(derive_stored));
    d->stored_capacity = size;
    for (size_t i = 0; i < capacity; i++) {
        const derive_stored *one = (const derive_stored *)(void *)old.data + i;
        if (one->count)
            *derive_place(d, one) = *one;
    }
    bags_buffer_free(&old);
    return BAGS_OK;
}

/* Find the first of a field's blobs of this datapoint in the shard being written, or add
 * them as those that come next: *again is false. */
static bags_code derive_store(derive *d, bags_writer *writer, size_t i, size_t part,
    uint64_t *blob, bool *again, bags_error *err) {
    const derive_field *field = &d->fields[i];
    const derive_source *source = &d->sources[field->source ? field->source : part];
    const bags_ref *refs = (const bags_ref *)(const void *)source->refs.data;
    derive_stored one = {refs[field->number].first, refs[field->number].count, i, part,
        source->row_shard, 0};
    bags_code code = derive_grow(d, err);
    *again = false;
    if (code || !one.count)
        return code;
    derive_stored *at = derive_place(d, &one);
    *again = at->count > 0;
    if (!*again) {
        one.blob = bags_writer_next(writer, field->name);
        *at = one;
        d->stored_count++;
    }
    *blob = at->blob;
    return BAGS_OK;
}

/* An item as it is written: of whatever type, the blob as it is, unless it needs the
 * dictionary of its Bag, which the new one does not have. */
static bags_code derive_item(derive *d, size_t i, bags_row *row, size_t item,
    bags_value *value, bags_error *err) {
    size_t slot = d->fields[i].slot;
    bags_view bytes = bags_row_bytes(row, slot, item);
    *value = bags_blob(bytes.data, bytes.size);
    if (!format_needs_dictionary(&d->types[i], bytes))
        return BAGS_OK;
    bags_code code = bags_row_value(row, slot, item, &d->plain, value, err);
    if (!code && value->kind != BAGS_KIND_BYTES)
        code = bags_fail(err, BAGS_ERROR_TYPE,
            "%s: field \"%.200s\": its blobs need dictionaries; to copy them, the "
            "codec "
            "of zstd must have the option `blobs`",
            bags_path_tail(d->to), d->fields[i].name);
    return code;
}

/* Write the datapoint that was read; blobs that datapoints share are stored once per
 * shard. */
static bags_code derive_append(
    derive *d, bags_writer *writer, size_t part, bags_error *err) {
    uint64_t shards = bags_writer_shards(writer);
    bags_code code = bags_writer_begin(writer, err);
    for (size_t i = 0; i < d->fields_count && !code; i++) {
        const derive_field *field = &d->fields[i];
        bags_row *row = &d->sources[field->source ? field->source : part].row;
        uint64_t blob = 0;
        bool again = false;
        code = derive_store(d, writer, i, part, &blob, &again, err);
        for (size_t k = 0; k < bags_row_length(row, field->slot) && !code; k++) {
            bags_value value = bags_again(blob + k);
            if (!again)
                code = derive_item(d, i, row, k, &value, err);
            if (!code)
                code = d->types[i].sequence
                           ? bags_writer_push(writer, field->name, &value, err)
                           : bags_writer_set(writer, field->name, &value, err);
        }
    }
    if (!code)
        code = bags_writer_end(writer, err);
    d->open = bags_writer_shards(writer) == shards;
    if (!d->open)
        derive_forget(d);
    return code;
}

/* Copy the datapoints at these positions of the selection. */
static bags_code derive_copy_rows(
    derive *d, bags_writer *writer, uint64_t start, uint64_t stop, bags_error *err) {
    bags_code code = BAGS_OK;
    for (uint64_t at = start; at < stop && !code;) {
        size_t part = derive_part(d, derive_row(d, at)), count = 1;
        while (count < DERIVE_AHEAD && count < stop - at &&
               derive_part(d, derive_row(d, at + count)) == part)
            count++;
        code = derive_read(d, part, at, count, true, err);
        for (size_t i = 0; i < count && !code; i++) {
            code = derive_read(d, part, at + i, 1, false, err);
            if (!code)
                code = derive_append(d, writer, part, err);
        }
        at += count;
        if (!code && d->options->progress &&
            !d->options->progress(d->options->user, at, d->length))
            code =
                bags_fail(err, BAGS_ERROR_IO, "%s: interrupted", bags_path_tail(d->to));
    }
    return code;
}

/* Claim TO.derived, which becomes `to`. A writer creates an unsharded dataset itself. */
static bags_code derive_stage(derive *d, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    size_t size = strlen(d->to);
    while (size > 1 && d->to[size - 1] == '/')
        size--;
    int length = snprintf(d->staging, FORMAT_PATH, "%.*s.derived", (int)size, d->to);
    if (length < 0 || length >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(d->to));
    int error = d->io->kind(d->io->user, d->to, &kind);
    if (!error && kind != BAGS_PATH_NONE)
        return format_fail_exists(d->io, d->to, false, err);
    if (!error && !d->sharded)
        error = d->io->kind(d->io->user, d->staging, &kind);
    if (!error && d->sharded)
        error = d->io->make_dir(d->io->user, d->staging);
    if (error == EEXIST || kind != BAGS_PATH_NONE)
        return format_fail_exists(d->io, d->staging, true, err);
    d->made_root = !error && d->sharded;
    return bags_fail_io(d->io, error, d->staging, "create directory", err);
}

/* The copy is complete: it becomes `to`. */
static bags_code derive_unstage(derive *d, const char *to, bags_error *err) {
    int error = d->io->rename(d->io->user, d->staging, to);
    if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR)
        return bags_fail(
            err, BAGS_ERROR_EXISTS, "%s: already exists", bags_path_tail(to));
    if (error)
        return bags_fail_io(d->io, error, to, "rename", err);
    d->to = to;
    return derive_sync_dir(d, d->path, err); /* of its parent */
}

static bags_code derive_copy(derive *d, bags_error *err) {
    const char *to = d->to;
    bags_writer *writer = NULL;
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_writer_options writing = *d->options->copy;
    bool alone = d->stop == 1;
    uint64_t block = alone ? d->length : writing.shard_length;
    uint64_t shards = block ? d->length / block + (d->length % block > 0) : 0;
    writing.shard_start = d->options->shard_start;
    writing.shard_stop = d->options->shard_stop;
    writing.no_sync = d->options->no_sync;
    writing.registry = d->options->registry;
    writing.any_type = true; /* as the sources have them */
    writing.env = d->options->env;
    d->sharded = derive_copy_is_sharded(d);
    bags_code code = derive_make_parents(d, err);
    if (!code && alone) {
        code = derive_stage(d, err);
        d->to = d->staging;
    }
    if (!code)
        code = derive_select(d, err);
    const bags_field *fields = derive_list_fields(d, &code, err);
    bool ready = !code;
    if (ready)
        writer = bags_writer_open(d->to, fields, d->fields_count, &writing, err);
    if (!code && !writer)
        code = err->code;
    for (uint64_t shard = d->options->shard_start; shard < shards && !code;) {
        uint64_t start = shard * block, left = d->length - start;
        code = derive_copy_rows(
            d, writer, start, start + (left < block ? left : block), err);
        shard += d->stop < shards - shard ? d->stop : shards - shard;
    }
    if (!code)
        code = derive_check_sources(d, err);
    d->claimed = writer ? bags_writer_shards(writer) : 0;
    if (code == BAGS_ERROR_EXISTS && ready &&
        !derive_set_directory(d, d->claimed, NULL) &&
        !d->io->kind(d->io->user, d->directory, &kind) && kind != BAGS_PATH_NONE)
        code = format_fail_exists(d->io, d->directory, false, err);
    if (writer) {
        d->report->length = bags_writer_length(writer);
        d->report->made = bags_writer_size(writer);
        d->report->shards = d->claimed + (d->open || !d->sharded);
    }
    bool is_other = code == BAGS_ERROR_EXISTS;
    if (code)
        bags_writer_abort(writer);
    else
        code = bags_writer_close(writer, err);
    /* After a failure also the shard that was not complete, unless it is another's. */
    d->claimed += writer && !is_other;
    d->complete = d->claimed;
    if (!code && alone)
        code = derive_unstage(d, to, err);
    if (code)
        derive_remove(d);
    return code;
}

static void derive_free(derive *d) {
    bags_buffer *buffers[] = {
        &d->spec, &d->row, &d->ends, &d->crcs, &d->buffer, &d->stored, &d->plain};
    bags_row_free(&d->ref_row);
    for (size_t s = 0; s < d->sources_count; s++) {
        bags_reader_close(d->sources[s].reader);
        bags_buffer_free(&d->sources[s].refs);
        bags_buffer_free(&d->sources[s].records);
        bags_buffer_free(&d->sources[s].selects);
        bags_row_free(&d->sources[s].row);
    }
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        bags_buffer_free(buffers[i]);
    for (size_t i = 0; i < sizeof d->arrays / sizeof *d->arrays; i++)
        bags_buffer_free(&d->arrays[i]);
    format_state_close(d);
}

bags_code bags_derive(const char *from, const char *to,
    const bags_derive_options *options, bags_derive_report *report, bags_error *err) {
    bags_error ignored;
    bags_derive_options none;
    bags_derive_report unseen;
    memset(&none, 0, sizeof none);
    if (!options)
        options = &none;
    if (!report)
        report = &unseen;
    if (!err)
        err = &ignored;
    memset(report, 0, sizeof *report);
    if (!from || !to || !*to)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a path is NULL or empty");
    if (options->env.io && !options->env.io->make_dir) /* hooks that only read */
        return bags_fail_io(options->env.io, EROFS, to, "create directory", err);
    derive *d = (derive *)format_state(options->env.allocator, sizeof *d, err);
    if (!d)
        return err->code;
    d->options = options;
    d->report = report;
    d->to = to;
    d->io = options->env.io ? options->env.io : bags_io_local();
    d->stop = options->shard_stop ? options->shard_stop : 1;
    d->spec = d->row = d->ends = d->crcs = d->buffer = d->stored = d->plain =
        bags_buffer_of(options->env.allocator);
    for (size_t i = 0; i < sizeof d->arrays / sizeof *d->arrays; i++)
        d->arrays[i] = d->spec;
    bags_code code = BAGS_OK;
    if (options->shard_start >= d->stop)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: shard_start out of range (%" PRIu64 ", shard_stop is %" PRIu64 ")",
            bags_path_tail(to), options->shard_start, d->stop);
    if (!code && options->copy && (options->copy->resume || options->copy->append))
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: a copy can neither resume nor append", bags_path_tail(to));
    if (!code && options->copy && d->stop > 1 &&
        (!options->copy->shard_length || options->copy->shard_size))
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: workers copy shards of a given shard_length, without a shard_size",
            bags_path_tail(to));
    if (!code)
        code = bags_buffer_reserve(&d->buffer, DERIVE_BUFFER, err);
    if (!code)
        code = derive_plan(d, from, err);
    if (!code)
        code = derive_check_lengths(d, err);
    if (!code && !options->copy)
        code = derive_check_links(d, err);
    if (!code)
        code = derive_check_rows(d, err);
    if (!code)
        code = options->copy && d->length ? derive_copy(d, err) : derive_make(d, err);
    if (code)
        code = derive_explain(d, code, err);
    derive_free(d);
    return code;
}

#endif /* BAGS_NO_WRITER */
