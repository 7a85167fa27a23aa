/*
 * derive.c - derived datasets that share Bags through hard links; see datasets.h.
 *
 * A shard is made from the bottom up, and no reader accepts it before the last step:
 *     make the directory, to claim it                     (derive_claim)
 *     write spec.json.derived: it names the owner         (derive_write_record)
 *     write info.json to the first shard                  (bagi_derived_put_metadata)
 *     link the Bags and dictionaries                      (derive_link)
 *     write refs.bag and the checksums                    (bags_shard_complete)
 *     when all shards are made: check the sources         (bagi_derived_check)
 *     rename spec.json.derived to spec.json               (derive_publish)
 *
 * There is no spec.json.partial, because recovery would then treat the links as files
 * that it may truncate. Copies are made in derive_copy.c.
 */
#include "derived.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

/* A shard being made, with datapoints from one source shard. */
typedef struct derive_part {
    derive *d;
    uint64_t at, count;   /* its datapoints, a range of the selection */
    const char **linked;  /* for each field, the path of the linked Bag */
    format_block *blocks; /* memory for these paths */
} derive_part;

/* ---- datasets that cannot be linked ---- */

/* Estimate the size of a copy: all Bags of the fields, in proportion to the selected
 * datapoints, and refs.bag. */
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

/* Fail because this requires a copy. */
static bags_code derive_fail_copy(
    derive *d, const char *path, const char *what, bags_error *err) {
    d->report->copy = derive_copy_size(d);
    return bags_fail(err, BAGS_ERROR_LIMIT,
        "%s: %s; a copy of the data needs about %" PRIu64 " bytes",
        bags_path_tail(path), what, d->report->copy);
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

static bags_code derive_check_shapes(derive *d, size_t source, bags_error *err) {
    const derive_source *first = &d->sources[0], *other = &d->sources[source];
    bool same = other->count == first->count;
    for (size_t i = 0; i < other->count && same; i++)
        same = other->shards[i].length == first->shards[i].length;
    if (same)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE,
        "%s: its shards have other lengths than the shards of %s (%" PRIu64
        " datapoints in %" PRIu64 ", expected %" PRIu64 " in %" PRIu64 ")",
        bags_path_tail(other->path), bags_path_tail(first->path),
        bags_reader_length(other->reader), (uint64_t)other->count,
        bags_reader_length(first->reader), (uint64_t)first->count);
}

/* Split shards have no refs.bag: blob n always belongs to datapoint n. */
static bags_code derive_check_links(derive *d, bags_error *err) {
    if (d->parts_count > 1)
        return derive_fail_copy(d, d->to, "made of several datasets", err);
    for (size_t s = 0; s < d->sources_count; s++)
        if (d->sources[s].io != d->io || !d->io->link)
            return derive_fail_copy(d, d->sources[s].path,
                "on a server or in an archive, where files cannot be linked", err);
    for (size_t s = 0; s < d->sources_count; s++) {
        if (!d->sources[s].join)
            FORMAT_TRY(derive_check_shapes(d, s, err));
        for (size_t i = 0; i < d->sources[s].count; i++) {
            bags_path_kind kind = BAGS_PATH_FILE;
            FORMAT_TRY(bagi_derived_path(d, s, i, "refs", ".bag", err));
            int error = d->io->kind(d->io->user, d->from, &kind);
            FORMAT_TRY(bags_fail_io(d->io, error, d->from, "open", err));
            if (kind == BAGS_PATH_NONE)
                return derive_fail_copy(
                    d, d->from, "missing: a split dataset has no refs", err);
        }
    }
    return BAGS_OK;
}

/* Count the selected datapoints from `at` on that belong to a shard. */
static uint64_t derive_run(const derive *d, const bags_shard *shard, uint64_t at) {
    uint64_t stop = at;
    if (!d->rows)
        return shard->length;
    while (stop < d->length && d->rows[stop] - shard->start < shard->length)
        stop++;
    return stop - at;
}

/* The datapoints of a shard must match datapoints in one shard of each joined
 * dataset. */
static bags_code derive_check_matches(
    derive *d, uint64_t at, uint64_t count, bags_error *err) {
    for (size_t s = 1; s < d->sources_count; s++) {
        const derive_source *other = &d->sources[s];
        for (uint64_t i = 1; i < count && other->matches; i++)
            if (derive_shard_of(other, other->matches[at + i]) !=
                derive_shard_of(other, other->matches[at]))
                return derive_fail_copy(d, other->path,
                    "one shard's datapoints match datapoints in several shards", err);
    }
    return BAGS_OK;
}

static bags_code derive_check_order(derive *d, bags_error *err) {
    const derive_source *source = &d->sources[0];
    uint64_t at = 0;
    for (size_t i = 0; i < source->count; i++) {
        uint64_t count = derive_run(d, &source->shards[i], at);
        FORMAT_TRY(derive_check_matches(d, at, count, err));
        at += count;
    }
    if (at == d->length)
        return BAGS_OK;
    return derive_fail_copy(d, source->path,
        "an order across shards: links keep each datapoint in its shard", err);
}

/* ---- a shard ---- */

static bags_code derive_claim(derive *d, bags_error *err) {
    FORMAT_TRY(bagi_derived_directory(d, d->claimed, err));
    int error = d->io->make_dir(d->io->user, d->directory);
    if (error == EEXIST)
        return format_fail_exists(d->io, d->directory, false, err);
    FORMAT_TRY(bags_fail_io(d->io, error, d->directory, "create directory", err));
    d->claimed++;
    return BAGS_OK;
}

static bags_code derive_write_record(derive *d, bags_error *err) {
    void *file = NULL;
    FORMAT_TRY(format_path(d->path, d->directory, "spec.json", ".derived", err));
    int error = d->io->open(d->io->user, d->path, BAGS_IO_CREATE, &file);
    FORMAT_TRY(bags_fail_io(d->io, error, d->path, "create", err));
    error = format_write_all(d->io, file, 0, d->spec.data, d->spec_size);
    if (!error && !d->options->no_sync)
        error = d->io->sync(d->io->user, file);
    int closed = d->io->close(d->io->user, file);
    d->report->made += d->spec_size;
    return bags_fail_io(d->io, error ? error : closed, d->path, "write", err);
}

/* Link the file of a field, at d->from, unless it is missing and `optional`. */
static bags_code derive_link_file(derive *d, size_t shard, const derive_field *field,
    const char *ending, bool optional, bags_error *err) {
    FORMAT_TRY(bagi_derived_path(d, field->source, shard, field->from, ending, err));
    FORMAT_TRY(format_path(d->path, d->directory, field->name, ending, err));
    int error = d->io->link(d->io->user, d->from, d->path);
    if (!error || (error == ENOENT && optional))
        return BAGS_OK;
    return derive_fail_link(d, error, d->from, err);
}

/* Link the files of all fields to the part of the source's shard `own`. */
static bags_code derive_link(derive_part *part, size_t own, bags_error *err) {
    derive *d = part->d;
    for (size_t i = 0; i < d->fields_count; i++) {
        const derive_field *field = &d->fields[i];
        const derive_source *source = &d->sources[field->source];
        size_t shard =
            source->matches ? derive_shard_of(source, source->matches[part->at]) : own;
        FORMAT_TRY(derive_link_file(d, shard, field, ".bag", false, err));
        char *path = (char *)format_block_add(
            &part->blocks, d->options->env.allocator, strlen(d->from) + 1, 1, err);
        if (!path)
            return err->code;
        part->linked[i] = strcpy(path, d->from);
        if (format_has_dictionary(&field->type))
            FORMAT_TRY(derive_link_file(d, shard, field, ".dict", true, err));
    }
    return BAGS_OK;
}

/* Get a datapoint's refs in the sources. */
static bags_code derive_refs(
    void *user, uint64_t datapoint, bags_ref *refs, bags_error *err) {
    const derive_part *part = (const derive_part *)user;
    derive *d = part->d;
    for (size_t s = 0; s < d->sources_count; s++) {
        derive_source *source = &d->sources[s];
        uint64_t row = derive_row_in(d, source, part->at + datapoint);
        FORMAT_TRY(
            bags_reader_refs(source->reader, row, &source->row, source->refs, err));
    }
    for (size_t i = 0; i < d->fields_count; i++)
        refs[i] = d->sources[d->fields[i].source].refs[d->fields[i].number];
    return BAGS_OK;
}

/* The reader has checked the refs. If they exceed a linked Bag, the file was
 * replaced. */
static bags_code derive_complete(derive_part *part, bags_error *err) {
    derive *d = part->d;
    bags_complete_options options;
    bags_complete_report report = {0, 0};
    bags_view spec = {d->spec.data, d->spec_size};
    memset(&options, 0, sizeof options);
    options.checksums = d->checksums ? part->linked : NULL;
    options.no_sync = d->options->no_sync;
    options.user = part;
    options.env = d->options->env;
    bags_code code = bags_shard_complete(
        d->directory, spec, part->count, derive_refs, &options, &report, err);
    d->report->linked += report.existing;
    d->report->made += report.written;
    if (code == BAGS_ERROR_RANGE)
        return bags_fail(err, BAGS_ERROR_CHANGED, "%s: replaced while it was linked",
            bags_path_tail(d->sources->path));
    return code;
}

static bags_code derive_shard(derive_part *part, size_t shard, bags_error *err) {
    derive *d = part->d;
    FORMAT_TRY(derive_claim(d, err));
    FORMAT_TRY(derive_write_record(d, err));
    if (d->claimed == 1)
        FORMAT_TRY(bagi_derived_put_metadata(d, err));
    FORMAT_TRY(derive_link(part, shard, err));
    FORMAT_TRY(derive_complete(part, err));
    d->report->length += part->count;
    d->report->shards++;
    return BAGS_OK;
}

/* ---- the dataset ---- */

/* Make the directory for the shards. It may exist only if there are several workers. */
static bags_code derive_make_root(derive *d, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    FORMAT_TRY(bagi_derived_parents(d, err));
    if (!d->sharded)
        return BAGS_OK;
    int error = d->io->make_dir(d->io->user, d->to);
    d->made_root = !error;
    if (error == EEXIST && d->stop > 1) {
        FORMAT_TRY(format_path(d->path, d->to, "spec.json", "", err));
        error = d->io->kind(d->io->user, d->path, &kind);
        if (!error && kind != BAGS_PATH_NONE)
            error = EEXIST;
    }
    if (error == EEXIST)
        return format_fail_exists(d->io, d->to, false, err);
    return bags_fail_io(d->io, error, d->to, "create directory", err);
}

/* Rename spec.json into place in all shards. */
static bags_code derive_publish(derive *d, bags_error *err) {
    if (d->sharded)
        FORMAT_TRY(bagi_derived_sync_dir(d, d->to, err));
    FORMAT_TRY(bagi_derived_check(d, err));
    for (uint64_t i = 0; i < d->claimed; i++) {
        FORMAT_TRY(bagi_derived_directory(d, i, err));
        FORMAT_TRY(format_path(d->from, d->directory, "spec.json", ".derived", err));
        FORMAT_TRY(format_path(d->path, d->directory, "spec.json", "", err));
        int error = d->io->rename(d->io->user, d->from, d->path);
        FORMAT_TRY(bags_fail_io(d->io, error, d->path, "rename", err));
        d->complete++;
        FORMAT_TRY(bagi_derived_sync_dir(d, d->directory, err));
    }
    return d->sharded ? bagi_derived_sync_dir(d, d->to, err) : BAGS_OK;
}

static bags_code derive_make(derive *d, bags_error *err) {
    const derive_source *source = &d->sources[0];
    derive_part part = {d, 0, 0, NULL, NULL};
    uint64_t number = 0; /* number of the next shard */
    d->sharded = source->count != 1 || source->shards[0].digits > 0;
    part.linked =
        (const char **)bagi_derived_array(d, d->fields_count, sizeof *part.linked, err);
    if (!part.linked)
        return err->code;
    FORMAT_TRY(derive_make_root(d, err));
    for (size_t i = 0; i < source->count && part.at < d->length; i++) {
        part.count = derive_run(d, &source->shards[i], part.at);
        if (part.count > 0 && number++ % d->stop == d->options->shard_start) {
            bags_code code = derive_shard(&part, i, err);
            format_blocks_free(part.blocks);
            part.blocks = NULL;
            FORMAT_TRY(code);
        }
        part.at += part.count;
    }
    FORMAT_TRY(derive_publish(d, err));
    if (d->made_root && !d->claimed) /* as a writer without datapoints does */
        d->io->remove_dir(d->io->user, d->to);
    return BAGS_OK;
}

static bags_code derive_all(derive *d, const char *from, bags_error *err) {
    const bags_derive_options *options = d->options;
    const bags_writer_options *copy = options->copy;
    if (options->shard_start >= d->stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: shard_start out of range (%" PRIu64 ", shard_stop is %" PRIu64 ")",
            bags_path_tail(d->to), options->shard_start, d->stop);
    if (copy && copy->existing)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: a copy can neither resume nor append", bags_path_tail(d->to));
    if (copy && d->stop > 1 && (!copy->shard_length || copy->shard_size))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: workers copy shards of a given shard_length, without a shard_size",
            bags_path_tail(d->to));
    FORMAT_TRY(bagi_derived_open(d, from, err));
    if (!copy)
        FORMAT_TRY(derive_check_links(d, err));
    FORMAT_TRY(bagi_derived_check_rows(d, err));
    FORMAT_TRY(bagi_derived_join(d, err));
    if (copy || !d->length)
        return bagi_derive_copy(d, err);
    FORMAT_TRY(derive_check_order(d, err));
    bags_code code = derive_make(d, err);
    if (code)
        bagi_derived_remove(d);
    return code;
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
    bags_code code = derive_all(d, from, err);
    if (code)
        code = bagi_derived_explain(d, code, err);
    bagi_derived_close(d);
    return code;
}

#endif /* BAGS_NO_WRITER */
