/*
 * derived.c - the sources and directories of a derived dataset; see derived.h.
 */
#include "derived.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

void *bagi_derived_array(derive *d, size_t count, size_t size, bags_error *err) {
    return format_block_add(
        &d->blocks, d->options->env.allocator, count + 1, size, err);
}

bags_code bagi_derived_path(derive *d, size_t source, size_t shard, const char *name,
    const char *ending, bags_error *err) {
    const derive_source *s = &d->sources[source];
    char directory[FORMAT_PATH];
    FORMAT_TRY(
        bags_shard_path(s->path, &s->shards[shard], directory, sizeof directory, err));
    return format_path(d->from, directory, name, ending, err);
}

/* Check all shards of the sources on the same storage as the derived dataset. */
static bags_code derived_check_near(const derive *d, bags_error *err) {
    for (size_t s = 0; s < d->sources_count; s++)
        for (size_t i = 0; d->sources[s].io == d->io && i < d->sources[s].count; i++)
            FORMAT_TRY(bags_reader_check_shard(d->sources[s].reader, i, err));
    return BAGS_OK;
}

bags_code bagi_derived_check(const derive *d, bags_error *err) {
    for (size_t s = 0; s < d->sources_count; s++)
        FORMAT_TRY(bags_reader_check(d->sources[s].reader, err));
    return derived_check_near(d, err);
}

bags_code bagi_derived_explain(const derive *d, bags_code code, bags_error *err) {
    bags_error replaced;
    if (code == BAGS_ERROR_CHANGED ||
        derived_check_near(d, &replaced) != BAGS_ERROR_CHANGED)
        return code;
    *err = replaced;
    d->report->copy = 0;
    return BAGS_ERROR_CHANGED;
}

/* Check that a source still has the version that the caller read. */
static bags_code derived_check_version(
    const derive_source *s, uint64_t version, bags_error *err) {
    if (!version || bags_reader_version(s->reader) == version)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CHANGED,
        "%s: another process replaced it, or added shards, since its datapoints "
        "were selected",
        bags_path_tail(s->path));
}

/* ---- the sources ---- */

static bags_code derived_open_source(
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

static bags_code derived_add_source(
    derive *d, const char *path, const bags_io *io, uint64_t version, bags_error *err) {
    derive_source *s = &d->sources[d->sources_count++];
    size_t fields = 0;
    bags_info info;
    s->path = path;
    s->io = io ? io : d->io;
    FORMAT_TRY(derived_open_source(d, s, false, err));
    FORMAT_TRY(bags_reader_info(s->reader, &info, NULL, err));
    if (info.checksums == s->count)
        FORMAT_TRY(derived_open_source(d, s, true, err));
    else
        d->checksums = false;
    FORMAT_TRY(derived_check_version(s, version, err));
    (void)bags_reader_fields(s->reader, &fields);
    s->refs = (bags_ref *)bagi_derived_array(d, fields, sizeof *s->refs, err);
    return s->refs ? BAGS_OK : err->code;
}

static bags_code derived_add_joins(derive *d, bags_error *err) {
    for (size_t i = 0; i < d->options->joins_count; i++) {
        const bags_derive_join *join = &d->options->joins[i];
        if (!join->dataset)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "a path is NULL");
        for (size_t s = d->parts_count; s < d->sources_count; s++)
            if (!strcmp(d->sources[s].path, join->dataset))
                return bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: joined twice",
                    bags_path_tail(join->dataset));
        FORMAT_TRY(derived_add_source(d, join->dataset, join->io, join->version, err));
        d->sources[d->sources_count - 1].join = join;
    }
    return BAGS_OK;
}

/* Find the dataset that a field comes from, and add it unless an earlier field already
 * did. */
static bags_code derived_find_source(
    derive *d, const bags_derived_field *given, size_t *source, bags_error *err) {
    *source = d->parts_count;
    for (; given->dataset && *source < d->sources_count; ++*source)
        if (!strcmp(d->sources[*source].path, given->dataset))
            return derived_check_version(&d->sources[*source], given->version, err);
    if (!given->dataset || !strcmp(given->dataset, d->sources[0].path)) {
        *source = 0;
        return derived_check_version(&d->sources[0], given->version, err);
    }
    return derived_add_source(d, given->dataset, given->io, given->version, err);
}

/* Check that concatenated sources have the same spec, and joined ones the same
 * length. */
static bags_code derived_check_lengths(derive *d, bags_error *err) {
    const derive_source *first = &d->sources[0];
    size_t count = 0, others = 0;
    const bags_field *expected = bags_reader_fields(first->reader, &others);
    for (size_t s = 0; s < d->parts_count; s++) {
        derive_source *part = &d->sources[s];
        part->start = d->all;
        d->all += bags_reader_length(part->reader);
        const bags_field *fields = bags_reader_fields(part->reader, &count);
        if (bags_fields_compare(
                fields, count, expected, others, bags_path_tail(first->path), err))
            return bags_prefix(
                err, BAGS_ERROR_VALUE, "%s: ", bags_path_tail(part->path));
    }
    d->rows = d->options->rows;
    d->length = d->rows ? d->options->rows_count : d->all;
    for (size_t s = d->parts_count; s < d->sources_count; s++) {
        const derive_source *other = &d->sources[s];
        uint64_t length = bags_reader_length(other->reader);
        if (length != d->all && !other->join)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: its length differs from %s (%" PRIu64
                " datapoints, expected %" PRIu64 ")",
                bags_path_tail(other->path), bags_path_tail(first->path), length,
                d->all);
    }
    return BAGS_OK;
}

bags_code bagi_derived_check_rows(const derive *d, bags_error *err) {
    for (uint64_t i = 0; i < d->length; i++)
        if (derive_row(d, i) >= d->all)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: datapoint %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(d->sources->path), derive_row(d, i), d->all);
    return BAGS_OK;
}

/* ---- metadata ---- */

static bags_code derived_read_metadata(const derive *d, const derive_source *s,
    bags_buffer *scratch, bags_view *json, bags_error *err) {
    bags_env env = d->options->env;
    env.io = s->io;
    return bags_metadata_read(s->path, s->reader, &env, scratch, json, err);
}

/* Read the source's info.json, and report a different one. Only the worker
 * that makes the first shard does. */
static bags_code derived_find_metadata(derive *d, bags_buffer *other, bags_error *err) {
    const derive_source *s = d->sources, *stop = s + d->sources_count;
    bags_view json;
    if (d->options->shard_start > 0)
        return BAGS_OK;
    FORMAT_TRY(derived_read_metadata(d, s, &d->metadata_buffer, &d->metadata, err));
    while (++s < stop && !d->report->metadata) {
        FORMAT_TRY(derived_read_metadata(d, s, other, &json, err));
        bool same = d->metadata.data && json.size == d->metadata.size &&
                    (!json.size || !memcmp(json.data, d->metadata.data, json.size));
        if (json.data && !same)
            d->report->metadata = s->path;
    }
    return BAGS_OK;
}

bags_code bagi_derived_put_metadata(derive *d, bags_error *err) {
    if (!d->metadata.data)
        return BAGS_OK;
    FORMAT_TRY(bagi_derived_directory(d, 0, err));
    return bagi_metadata_put(
        d->io, d->directory, d->metadata, d->options->no_sync, err);
}

/* ---- the fields ---- */

static int derived_order(const void *a, const void *b) {
    return strcmp(((const derive_field *)a)->name, ((const derive_field *)b)->name);
}

static bags_code derived_fail_clash(
    const derive *d, const derive_field *a, const derive_field *b, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_FIELD,
        "%s: duplicate field \"%.200s\" (\"%.200s\" of %s, \"%.200s\" of %s)",
        bags_path_tail(d->to), a->name, a->from,
        bags_path_tail(d->sources[a->source].path), b->from,
        bags_path_tail(d->sources[b->source].path));
}

/* Find a field given by the caller, or all[i] of the source. */
static bags_code derived_find_field(derive *d, const bags_derived_field *given,
    const char *name, derive_field *field, bags_error *err) {
    field->name = given ? given->name : name;
    field->from = given && given->from ? given->from : field->name;
    if (!field->name)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the name of a field is NULL");
    if (given)
        FORMAT_TRY(derived_find_source(d, given, &field->source, err));
    return bags_reader_field(
        d->sources[field->source].reader, field->from, &field->number, err);
}

bags_code bagi_derived_open(derive *d, const char *from, bags_error *err) {
    const bags_derive_options *options = d->options;
    const bags_derived_field *given = options->fields;
    size_t all_count = 0, count = given ? options->fields_count : 0;
    d->checksums = true;
    d->parts_count = options->more_count + 1;
    d->sources = (derive_source *)bagi_derived_array(
        d, count + d->parts_count + options->joins_count, sizeof *d->sources, err);
    if (!d->sources)
        return err->code;
    FORMAT_TRY(derived_add_source(d, from, options->from, options->version, err));
    for (size_t i = 0; i < options->more_count; i++) {
        const bags_derive_more *more = &options->more[i];
        FORMAT_TRY(derived_add_source(d, more->path, more->io, more->version, err));
    }
    FORMAT_TRY(derived_add_joins(d, err));
    const bags_field *all = bags_reader_fields(d->sources[0].reader, &all_count);
    count = given ? count : all_count;
    d->fields = (derive_field *)bagi_derived_array(d, count, sizeof *d->fields, err);
    d->list = (bags_field *)bagi_derived_array(d, count, sizeof *d->list, err);
    if (!d->fields || !d->list)
        return err->code;
    for (size_t i = 0; i < count; i++) {
        const bags_derived_field *one = given ? &given[i] : NULL;
        FORMAT_TRY(
            derived_find_field(d, one, one ? NULL : all[i].name, &d->fields[i], err));
        d->fields_count++;
    }
    if (count > 1)
        qsort(d->fields, count, sizeof *d->fields, derived_order);
    for (size_t i = 1; i < count; i++)
        if (!strcmp(d->fields[i - 1].name, d->fields[i].name))
            return derived_fail_clash(d, &d->fields[i - 1], &d->fields[i], err);
    for (size_t i = 0; i < count; i++) {
        const bags_reader *reader = d->sources[d->fields[i].source].reader;
        d->fields[i].type = *bags_reader_type(reader, d->fields[i].number);
        d->list[i].name = d->fields[i].name;
        d->list[i].type =
            bags_reader_fields(reader, &all_count)[d->fields[i].number].type;
    }
    d->spec = bags_buffer_of(options->env.allocator);
    FORMAT_TRY(bags_spec_text(
        d->list, count, options->registry, &d->spec, &d->spec_size, err));
    FORMAT_TRY(derived_check_lengths(d, err));
    bags_buffer other = bags_buffer_of(options->env.allocator);
    d->metadata_buffer = bags_buffer_of(options->env.allocator);
    bags_code code = derived_find_metadata(d, &other, err);
    bags_buffer_free(&other);
    return code;
}

void bagi_derived_close(derive *d) {
    for (size_t s = 0; s < d->sources_count; s++) {
        bags_reader_close(d->sources[s].reader);
        bags_row_free(&d->sources[s].row);
    }
    bags_buffer_free(&d->spec);
    bags_buffer_free(&d->metadata_buffer);
    format_blocks_free(d->blocks);
    format_state_close(d);
}

/* ---- output ---- */

bags_code bagi_derived_sync_dir(const derive *d, const char *path, bags_error *err) {
    int error = d->options->no_sync ? 0 : d->io->sync_dir(d->io->user, path);
    return bags_fail_io(d->io, error, path, "sync", err);
}

bags_code bagi_derived_directory(derive *d, uint64_t i, bags_error *err) {
    bags_shard shard;
    memset(&shard, 0, sizeof shard);
    shard.number = d->options->shard_start + i * d->stop;
    shard.digits = d->sharded ? 6 : 0;
    return bags_shard_path(d->to, &shard, d->directory, FORMAT_PATH, err);
}

bags_code bagi_derived_parents(derive *d, bags_error *err) {
    size_t size = format_path_size(d->to);
    if (size >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(d->to));
    FORMAT_TRY(format_check_outside(d->io, d->to, err));
    memcpy(d->path, *d->to == '/' ? "/" : ".", 2);
    for (size_t i = 1; i < size; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        if (d->to[i] != '/' || d->to[i - 1] == '/')
            continue;
        memcpy(d->path, d->to, i);
        d->path[i] = 0;
        int error = d->io->kind(d->io->user, d->path, &kind);
        if (!error && kind == BAGS_PATH_NONE)
            error = d->io->make_dir(d->io->user, d->path);
        if (error != EEXIST)
            FORMAT_TRY(bags_fail_io(d->io, error, d->path, "create directory", err));
    }
    return BAGS_OK;
}

static void derived_remove_file(derive *d, const char *name, const char *ending) {
    if (!format_path(d->path, d->directory, name, ending, NULL))
        d->io->remove(d->io->user, d->path);
}

/* Remove a shard that has no spec.json. */
static void derived_remove_shard(derive *d) {
    static const char *const temporary[] = {".dict.partial", ".crc.partial"};
    bags_path_kind kind = BAGS_PATH_NONE;
    if (format_path(d->path, d->directory, "spec.json", "", NULL) ||
        d->io->kind(d->io->user, d->path, &kind) || kind != BAGS_PATH_NONE)
        return;
    derived_remove_file(d, "spec.json", ".derived");
    derived_remove_file(d, "spec.json", ".partial");
    derived_remove_file(d, "info.json", "");
    for (size_t k = 0; k <= d->fields_count; k++) {
        const char *name = k < d->fields_count ? d->fields[k].name : "refs";
        for (size_t j = 0; j < FORMAT_SUFFIXES; j++)
            derived_remove_file(d, name, format_suffix(j));
        for (size_t j = 0; j < 2; j++)
            derived_remove_file(d, name, temporary[j]);
    }
    d->io->remove_dir(d->io->user, d->directory);
}

void bagi_derived_remove(derive *d) {
    for (uint64_t i = 0; i < d->complete; i++)
        if (!bagi_derived_directory(d, i, NULL))
            derived_remove_file(d, "spec.json", "");
    for (uint64_t i = 0; i < d->claimed; i++)
        if (!bagi_derived_directory(d, i, NULL))
            derived_remove_shard(d);
    if (d->made_root)
        d->io->remove_dir(d->io->user, d->to);
}

#endif /* BAGS_NO_WRITER */
