/*
 * import.h - read the formats that datasets come from, one datapoint at a time.
 *
 * Each format is one file on one library: compile the files that you need with
 * your program. They need bags.h and this header in the include path, but not
 * each other. README.md in this directory states how each format becomes fields.
 *
 *     bags_source_info info;
 *     void *source;
 *     const bags_entry *entries;
 *     bags_importer importer = bags_import_tfrecord;
 *     importer.open("train.tfrecord", NULL, &source, &info, &err);
 *     for (uint64_t i = 0;; i++) {
 *         importer.read(source, i, &entries, &err);
 *         if (!entries)
 *             break;
 *         bags_writer_append(writer, entries, info.count, &err);
 *     }
 *     importer.close(source);
 *
 * What bags.h states about errors, ownership and untrusted files holds here, too:
 * sizes are checked before memory is allocated, and messages name the source's file
 * and the place in it.
 */
#ifndef BAGS_IMPORT_H
#define BAGS_IMPORT_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BAGS_SOURCE_UNKNOWN UINT64_MAX

/* What a source contains. Valid until the source is closed. */
typedef struct bags_source_info {
    const bags_field *fields; /* `count` fields, in the order of the source */
    size_t count;
    uint64_t length; /* number of datapoints, or BAGS_SOURCE_UNKNOWN */
} bags_source_info;

/*
 * A format that can be imported.
 *
 *   name     what it is called on a command line: "tfrecord"
 *   detect   true if a file or directory seems to be of this format, by its name and
 *            first bytes. Reads little, never fails
 *   open     opens a source and fills *info. allocator NULL: malloc. On failure
 *            nothing is left open. Returns BAGS_OK, BAGS_ERROR_MISSING,
 *            BAGS_ERROR_CORRUPT, BAGS_ERROR_TYPE (something that has no counterpart),
 *            BAGS_ERROR_LIMIT, BAGS_ERROR_IO or BAGS_ERROR_MEMORY
 *   read     reads datapoint `index`: *entries becomes an array of info->count
 *            entries, in the order of info->fields, or NULL if `index` is the number
 *            of datapoints or above. Calls have increasing indices, which may skip
 *            datapoints: a source that is a stream reads over them. The entries are
 *            valid until the next call. Values are of the field's type, or blobs
 *            (BAGS_KIND_BLOB) that are stored as they are. After a failure no more
 *            datapoint can be read. Returns what open does, or BAGS_ERROR_VALUE
 *   close    frees the source. NULL is accepted
 *
 * Threads: one at a time per source; different sources, any.
 */
typedef struct bags_importer {
    const char *name;
    bool (*detect)(const char *path);
    bags_code (*open)(const char *path, const bags_allocator *allocator,
        void **source, bags_source_info *info, bags_error *err);
    bags_code (*read)(void *source, uint64_t index, const bags_entry **entries,
        bags_error *err);
    void (*close)(void *source);
} bags_importer;

/* One per file in this directory, with the library that it needs. */
extern const bags_importer bags_import_gulp;    /* json-c */
extern const bags_importer bags_import_zarr;    /* json-c, libblosc, libzip */
extern const bags_importer bags_import_benzina; /* FFmpeg, or none */
extern const bags_importer bags_import_webdataset; /* libarchive */
extern const bags_importer bags_import_tfrecord;   /* none */
extern const bags_importer bags_import_mds;        /* json-c, libzstd */
extern const bags_importer bags_import_hdf5;       /* libhdf5 */
extern const bags_importer bags_import_mcap;       /* libzstd, liblz4 */
extern const bags_importer bags_import_duckdb;     /* libduckdb, at run time:
                                                      Parquet, Arrow, CSV, SQL */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_IMPORT_H */
