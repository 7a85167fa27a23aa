/*
 * derived.h - code shared by derive.c and derive_copy.c, in derived.c: the sources of a
 * derived dataset, and its directories. Programs do not include it.
 */
#ifndef BAGS_FORMATS_DERIVED_H
#define BAGS_FORMATS_DERIVED_H

#include "blocks.h"
#include "datasets.h"
#include "files.h"
#include "place.h"

#ifndef BAGS_NO_WRITER

/* A dataset that fields come from. The first is the source. Concatenated datasets
 * follow, then joined ones. */
typedef struct derive_source {
    const char *path;
    const bags_io *io;
    bags_reader *reader;
    uint64_t start; /* the number of its first datapoint, if it is concatenated */
    const bags_shard *shards;
    size_t count;
    bags_row row;   /* for the refs of a datapoint, */
    bags_ref *refs; /* one per field */
} derive_source;

/* A field of the derived dataset. */
typedef struct derive_field {
    const char *name, *from;
    size_t source, number; /* of the field there */
    bags_type type;
} derive_field;

typedef struct derive {
    bags_buffer memory;   /* see format_state */
    format_block *blocks; /* until the end */
    const bags_derive_options *options;
    const bags_io *io;
    const char *to;
    bags_derive_report *report;
    derive_source *sources;
    size_t sources_count, parts_count; /* all; the concatenated ones */
    derive_field *fields;              /* sorted by name */
    bags_field *list;                  /* their names and types */
    size_t fields_count;
    bags_buffer spec; /* spec.json: spec_size bytes */
    size_t spec_size;
    bool checksums;             /* all shards of all sources have them */
    bool sharded;               /* shards are made, not one dataset */
    bool made_root;             /* the directory `to` was made by this call */
    uint64_t stop;              /* workers, at least 1 */
    uint64_t claimed, complete; /* shards of this worker; shards with a spec.json */
    uint64_t all, length;       /* datapoints of the source, and of the selection */
    char directory[FORMAT_PATH], from[FORMAT_PATH], path[FORMAT_PATH];
} derive;

/* The number in the source of a datapoint that is selected. */
static inline uint64_t derive_row(const derive *d, uint64_t i) {
    return d->options->rows ? d->options->rows[i] : i;
}

/* ---- the sources ---- */

/* Zeroed memory until bagi_derived_close. NULL: out of memory. */
void *bagi_derived_array(derive *d, size_t count, size_t size, bags_error *err);

/* Open the sources and find the fields in them. */
bags_code bagi_derived_open(derive *d, const char *from, bags_error *err);

/* Check that all datapoints that are selected exist. */
bags_code bagi_derived_check_rows(const derive *d, bags_error *err);

/* Check that all reads returned one version. This is the last step before the result is
 * renamed. */
bags_code bagi_derived_check(const derive *d, bags_error *err);

/* If a source was replaced, return that failure instead of `code`: files of two versions
 * contradict each other. */
bags_code bagi_derived_explain(const derive *d, bags_code code, bags_error *err);

/* Write the path of a file in a shard of a source to d->from. */
bags_code bagi_derived_path(derive *d, size_t source, size_t shard, const char *name,
    const char *ending, bags_error *err);

void bagi_derived_close(derive *d);

/* ---- output ---- */

/* Make the parents of `to`. d->path is then the last one. */
bags_code bagi_derived_parents(derive *d, bags_error *err);

/* Write the path of this worker's shard `i` to d->directory. */
bags_code bagi_derived_directory(derive *d, uint64_t i, bags_error *err);

/* Wait until the names in a directory are on stable storage. */
bags_code bagi_derived_sync_dir(const derive *d, const char *path, bags_error *err);

/* After a failure, remove all created files, each spec.json first. Keep a shard whose
 * spec.json another process wrote. */
void bagi_derived_remove(derive *d);

/* Make a copy, or a dataset without datapoints. In derive_copy.c. */
bags_code bagi_derive_copy(derive *d, bags_error *err);

#endif /* BAGS_NO_WRITER */

#endif /* BAGS_FORMATS_DERIVED_H */
