/*
 * import.h - read the formats that datasets come from, one datapoint at a time.
 *
 * Each format is one file on one library: compile the files that you need, and
 * import.c, with your program. They need bags.h and this header in the include
 * path. README.md in this directory states how each format becomes fields.
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
extern const bags_importer bags_import_gulp;       /* json-c, msgpack-c */
extern const bags_importer bags_import_zarr;       /* json-c, libblosc, libzip,
                                                      zlib, libzstd, liblz4 */
extern const bags_importer bags_import_benzina;    /* none */
extern const bags_importer bags_import_webdataset; /* libarchive, zlib */
extern const bags_importer bags_import_tfrecord;   /* none */
extern const bags_importer bags_import_mds;        /* json-c, libzstd,
                                                      libcrypto, libxxhash */
extern const bags_importer bags_import_hdf5;       /* libhdf5 */
extern const bags_importer bags_import_mcap;       /* libzstd, liblz4, zlib */
/* duckdb.c: libduckdb, at run time. */
extern const bags_importer bags_import_parquet;
extern const bags_importer bags_import_csv;
extern const bags_importer bags_import_sql;

/* ========================================================================
 * What importers share: import.c, which needs no library.
 * ====================================================================== */

/* Memory that is freed together. Start it as {0}; `allocator` may be set before
 * the first use. */
typedef struct bags_import_arena {
    bags_allocator allocator; /* resize NULL: malloc, realloc and free */
    void *blocks;             /* private, as is: */
    size_t used;
} bags_import_arena;

/* Set the allocator of an arena or a buffer, which may be NULL: malloc. */
bags_import_arena bags_import_arena_start(const bags_allocator *allocator);
bags_buffer bags_import_buffer_start(const bags_allocator *allocator);

/* `count` elements of `size` bytes, zeroed, aligned for any type, valid until the
 * arena is reset or freed. NULL if out of memory, with *err written. */
void *bags_import_alloc(
    bags_import_arena *arena, size_t count, size_t size, bags_error *err);
/* A copy of text with a zero byte after it; text as printf makes it. */
char *bags_import_text(
    bags_import_arena *arena, const void *text, size_t size, bags_error *err);
char *bags_import_format(bags_import_arena *arena, bags_error *err,
    const char *format, ...) BAGI_PRINTF(3, 4);
/* Free all that was allocated; reset keeps one block for what follows. */
void bags_import_reset(bags_import_arena *arena);
void bags_import_free(bags_import_arena *arena);

/* A regular file that is read at explicit offsets. Start it as {0}. `path` must
 * stay valid. */
typedef struct bags_import_file {
    const char *path;
    void *handle; /* NULL: not open */
    uint64_t size;
} bags_import_file;

bags_code bags_import_file_open(
    bags_import_file *file, const char *path, bags_error *err);
/* Exactly `size` bytes: BAGS_ERROR_CORRUPT if the file ends before them. */
bags_code bags_import_file_read(const bags_import_file *file, uint64_t offset,
    void *data, size_t size, bags_error *err);
/* All of a file, which has at most `limit` bytes (otherwise BAGS_ERROR_LIMIT),
 * with a zero byte after it. */
bags_code bags_import_file_load(const char *path, uint64_t limit,
    bags_buffer *buffer, bags_view *out, bags_error *err);
void bags_import_file_close(bags_import_file *file); /* may be closed already */

/* The first bytes of a file, at most `size`; returns their number, 0 if it cannot
 * be read. For detect. */
size_t bags_import_peek(const char *path, void *data, size_t size);

/* What a path is; BAGS_PATH_NONE also if that is unknown. */
bags_path_kind bags_import_kind(const char *path);

/*
 * The files that a path means: a file itself; of a directory, the files in it for
 * whose names `accept` returns true, in the order of their names, numbers in names
 * by value. The last part of a path may contain *, as in train-*.tar: then these
 * files. Names that begin with a dot are left out. If a name has a part such as
 * -00003-of-00010, the files must be one complete set.
 *
 * Paths and their array live in the arena. There is at least one, otherwise it
 * fails with BAGS_ERROR_MISSING.
 */
bags_code bags_import_files(const char *path, bool (*accept)(const char *name),
    bags_import_arena *arena, char ***paths, size_t *count, bags_error *err);

/* True if the path names at least one such file. For detect. */
bool bags_import_has_files(const char *path, bool (*accept)(const char *name));

/* The last part of a path. */
const char *bags_import_base(const char *path);

/* For qsort of an array of names: numbers in them by value. */
int bags_import_compare(const void *left, const void *right);

/* True if the name ends like this, whatever the case of its letters. */
bool bags_import_ends(const char *name, const char *ending);

/* The field name that a name in a source becomes: bytes that file names cannot
 * have on every system (control characters, / \ : * ? " < > |, a first '.', bytes
 * that are not UTF-8) are replaced by '_'; an empty name becomes "_". It lives in
 * the arena. NULL if out of memory. */
char *bags_import_name(
    bags_import_arena *arena, const void *name, size_t size, bags_error *err);

/* Give all fields the names that bags_import_name returns: at the end of every
 * importer's open. Returns BAGS_OK, BAGS_ERROR_FIELD (two fields of the source at
 * `path` become equal; the message has both names) or BAGS_ERROR_MEMORY. */
bags_code bags_import_names(bags_field *fields, size_t count, const char *path,
    bags_import_arena *arena, bags_error *err);

/* The type of encoded files, by their first bytes: "jpeg", "png", "npy", "mp4" or
 * "webm"; NULL if unknown. Static. */
const char *bags_import_magic(const void *data, size_t size);

/* Finds the type of encoded values by what they contain: that of bags_import_magic,
 * if every value begins so; utf8, if all are UTF-8 without control characters
 * except tab, newline and carriage return; otherwise bytes. Start it as {0}. */
typedef struct bags_import_guess {
    bool started, not_text;
    const char *magic;
} bags_import_guess;

/* Add a value, of which only the first `size` bytes, at least 8 if it has as many,
 * are given if not `all`: then it is not text. */
void bags_import_guess_add(
    bags_import_guess *guess, const void *data, size_t size, bool all);
/* "jpeg", "utf8", "bytes", ...; static. */
const char *bags_import_guess_type(const bags_import_guess *guess);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_IMPORT_H */
