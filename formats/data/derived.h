/*
 * derived.h - code in derived.c shared by derive.c and derive_copy.c: the sources and
 * directories of a derived dataset. Programs do not include it.
 */
#ifndef BAGS_FORMATS_DERIVED_H
#define BAGS_FORMATS_DERIVED_H

#include "blocks.h"
#include "datasets.h"
#include "files.h"
#include "place.h"

#ifndef BAGS_NO_WRITER

/* A dataset that provides fields. The first is the source, followed by concatenated
 * datasets, then joined ones. */
typedef struct derive_source {
    const char *path;
    const bags_io *io;
    bags_reader *reader;
    uint64_t start; /* number of its first datapoint, if concatenated */
    const bags_shard *shards;
    size_t count;
    const bags_derive_join
        *join;         /* how its datapoints are matched; NULL: by position */
    uint64_t *matches; /* for each selected datapoint, the number of its match */
    bags_row row;      /* used to read a datapoint's refs, */
    bags_ref *refs;    /* one per field */
} derive_source;

/* A field of the derived dataset. */
typedef struct derive_field {
    const char *name, *from;
    size_t source, number; /* source, and the field's number in it */
    bags_type type;
} derive_field;

typedef struct derive {
    bags_buffer memory;   /* see format_state */
    format_block *blocks; /* freed at the end */
    const bags_derive_options *options;
    const bags_io *io;
    const char *to;
    bags_derive_report *report;
    derive_source *sources;
    size_t sources_count, parts_count; /* number of all sources; of concatenated ones */
    derive_field *fields;              /* sorted by name */
    bags_field *list;                  /* their names and types */
    size_t fields_count;
    bags_buffer spec; /* spec.json: spec_size bytes */
    size_t spec_size;
    bags_buffer metadata_buffer;
    bags_view metadata;         /* the source's info.json, if this worker writes one */
    bool checksums;             /* all shards of all sources have checksums */
    bool sharded;               /* the result is sharded */
    bool made_root;             /* this call created the directory `to` */
    uint64_t stop;              /* number of workers, at least 1 */
    uint64_t claimed, complete; /* shards claimed by this worker; shards with a
                                 * spec.json */
    const uint64_t *rows;       /* the selection; NULL: all */
    uint64_t all, length;       /* number of datapoints in the source; in the
                                 * selection */
    char directory[FORMAT_PATH], from[FORMAT_PATH], path[FORMAT_PATH];
} derive;

#define DERIVE_NONE UINT64_MAX

/* The source's number for a selected datapoint. */
static inline uint64_t derive_row(const derive *d, uint64_t i) {
    return d->rows ? d->rows[i] : i;
}

/* The number of a selected datapoint in any of the sources. */
static inline uint64_t derive_row_in(
    const derive *d, const derive_source *s, uint64_t i) {
    return s->matches ? s->matches[i] : derive_row(d, i) - s->start;
}

/* The index of the concatenated source that contains a datapoint. */
static inline size_t derive_part_of(const derive *d, uint64_t row) {
    return format_last_at_most(
        &d->sources->start, sizeof *d->sources, d->parts_count, row);
}

/* The index of the shard of a source that contains a datapoint. */
static inline size_t derive_shard_of(const derive_source *s, uint64_t row) {
    return format_last_at_most(&s->shards->start, sizeof *s->shards, s->count, row);
}

/* ---- the sources ---- */

/* Allocate zeroed memory; bagi_derived_close frees it. NULL: out of memory. */
void *bagi_derived_array(derive *d, size_t count, size_t size, bags_error *err);

/* Open the sources and find their fields. */
bags_code bagi_derived_open(derive *d, const char *from, bags_error *err);

/* Check that all selected datapoints exist. */
bags_code bagi_derived_check_rows(const derive *d, bags_error *err);

/* Match the selected datapoints with the datasets joined by key, and drop those without
 * a match. In join.c. */
bags_code bagi_derived_join(derive *d, bags_error *err);

/* Check that all reads saw a single version. This is the last step before the result is
 * renamed. */
bags_code bagi_derived_check(const derive *d, bags_error *err);

/* If a source was replaced, return that failure instead of `code`, since mixing files
 * of two versions causes misleading errors. */
bags_code bagi_derived_explain(const derive *d, bags_code code, bags_error *err);

/* Write the path of a file in a shard of a source to d->from. */
bags_code bagi_derived_path(derive *d, size_t source, size_t shard, const char *name,
    const char *ending, bags_error *err);

void bagi_derived_close(derive *d);

/* ---- output ---- */

/* Create the parent directories of `to`. d->path is then the innermost one. */
bags_code bagi_derived_parents(derive *d, bags_error *err);

/* Write the path of this worker's shard `i` to d->directory. */
bags_code bagi_derived_directory(derive *d, uint64_t i, bags_error *err);

/* Write the source's info.json, if it has one, to this worker's first shard. */
bags_code bagi_derived_put_metadata(derive *d, bags_error *err);

/* Wait until a directory's entries are on stable storage. */
bags_code bagi_derived_sync_dir(const derive *d, const char *path, bags_error *err);

/* After a failure, remove all created files, each spec.json first. Keep a shard whose
 * spec.json was written by another process. */
void bagi_derived_remove(derive *d);

/* Make a copy, or a dataset without datapoints. In derive_copy.c. */
bags_code bagi_derive_copy(derive *d, bags_error *err);

/* Write info.json to a directory. In metadata.c. */
bags_code bagi_metadata_put(const bags_io *io, const char *directory, bags_view json,
    bool no_sync, bags_error *err);

#endif /* BAGS_NO_WRITER */

#endif /* BAGS_FORMATS_DERIVED_H */
