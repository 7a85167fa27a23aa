/*
 * export.h - write datasets in the formats of other programs.
 *
 * Each format is one file: compile the files that you need, and export.c, with your
 * program. They need bags.h, this header and the headers of formats/ in the include path.
 * README.md in this directory states how fields become each format.
 *
 *     bags_export_options options = {0};
 *     bags_export_report report;
 *     bags_export(reader, &bags_export_webdataset, "train.tar", &options, &report, &err);
 *
 * An export is deterministic: the same dataset and options make the same bytes. To
 * resume, it is repeated, and what exists is compared with what would be written.
 *
 *     OUT.unfinished    exists, and is locked, until the export is complete
 *     NAME.partial      a file of the export that is not complete
 */
#ifndef BAGS_EXPORT_H
#define BAGS_EXPORT_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The meaning of a dataset's datapoints in HDF5. */
typedef enum bags_export_layout {
    BAGS_EXPORT_ROWS,    /* a dataset per field, a row per datapoint */
    BAGS_EXPORT_EPISODES /* a group per datapoint, a dataset per field */
} bags_export_layout;

typedef struct bags_export_options {
    const uint64_t *rows; /* `rows_count` datapoints, in their order. NULL: all */
    size_t rows_count;
    const bags_field *fields; /* `fields_count`: the name in the dataset, and (as type)
                                 the name in the export. NULL: all, by their names */
    size_t fields_count;
    const char *key;       /* field of the samples' keys, or NULL */
    const char *label;     /* field of the images' folders, or NULL */
    uint64_t shard_size;   /* bytes of values per file; 0: no limit */
    uint64_t shard_length; /* datapoints per file; 0: no limit */
    uint64_t shard_start;  /* this worker, below shard_stop */
    uint64_t shard_stop; /* the number of workers; 0: one, and no shards unless another
                              of these is nonzero. Workers need no shard_length: without
                              it each makes one file. With shard_size they do */
    bags_export_layout layout; /* HDF5 only */
    double fps;         /* LeRobot only: frames per second. 0: found in the dataset */
    bags_view metadata; /* the dataset's info.json, otherwise BAGS_ERROR_CORRUPT: not a
                           JSON object. data NULL: none. Exporters without
                           has_metadata ignore it */
    bool resume;        /* continue an interrupted export */
    bool no_sync;       /* do not wait for stable storage */
    bool prefetch; /* read ahead, for datasets whose hooks read many ranges at once */
    /* Called after each datapoint. If it returns false, the export stops with
     * BAGS_ERROR_IO. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_allocator *allocator; /* NULL: malloc, realloc and free */
} bags_export_options;

typedef struct bags_export_report {
    uint64_t datapoints; /* of this worker */
    uint64_t files;      /* that it wrote, or compared */
    bool existed;        /* all of them were complete before */
} bags_export_report;

typedef struct bags_target bags_target;

/*
 * A format that can be exported.
 *   name        its name on a command line: "webdataset"
 *   endings     of its files, separated by spaces, the first for shards: ".tar". "": the
 *               export is a directory whose files the exporter names
 *   always_sharded  the export is a directory with numbered files; without endings, the
 *               exporter names them
 *   has_names   it uses the key or the label of the options: their fields are read even if
 *               they are not exported (`hidden`)
 *   has_metadata  the format has a place for the dataset's info.json
 *   state_size  bytes of target->state, zeroed before open
 *   open        checks the fields and whatever else can be refused before anything is
 *               written. Returns BAGS_OK, BAGS_ERROR_TYPE (a field without a
 *               counterpart), BAGS_ERROR_FIELD (a name), BAGS_ERROR_ARGUMENT (an option),
 *               or the error of a read
 *   shard       writes a shard: the datapoints of bags_target_next, up to its end
 *   finish      writes what follows all shards. NULL: nothing
 *   close       frees memory, also after a failure. NULL: nothing
 */
typedef struct bags_exporter {
    const char *name, *endings;
    bool always_sharded, has_names, has_metadata;
    size_t state_size;
    bags_code (*open)(bags_target *target);
    bags_code (*shard)(bags_target *target);
    bags_code (*finish)(bags_target *target);
    void (*close)(bags_target *target);
} bags_exporter;

extern const bags_exporter bags_export_webdataset; /* none; formats/numpy.c */
extern const bags_exporter bags_export_tfrecord;   /* none; formats/numpy.c */
extern const bags_exporter bags_export_mds;        /* none */
extern const bags_exporter bags_export_images;     /* none */
/* duckdb.c: libduckdb, at run time; formats/import/import.c. */
extern const bags_exporter bags_export_csv;
extern const bags_exporter bags_export_parquet;
extern const bags_exporter bags_export_hdf5; /* libhdf5 */
/* json-c; libduckdb, at run time; formats/import/import.c, formats/image.c. */
extern const bags_exporter bags_export_lerobot;

/*
 * Export a dataset. Its reader decodes zstd(TYPE) to the blobs of TYPE: a registry with
 * such a codec of zstd (bags_zstd_options.blobs) is needed for fields of these types.
 *
 *   path     OUT. Without shards it is the file. With shards it is a directory, of
 *            000000.tar and others; or, if its name has an ending of the format,
 *            x.tar becomes x-000000.tar and others. Parents are created
 *   options  NULL: the defaults
 *   report   set on success. NULL: not needed
 *
 * A failure before the first file is complete removes what was written, unless reading or
 * writing failed (BAGS_ERROR_IO): then, and later, it stays, and `resume` continues.
 *
 * Returns BAGS_OK, or
 *   BAGS_ERROR_TYPE, BAGS_ERROR_FIELD  the format cannot hold a field; nothing is written
 *   BAGS_ERROR_VALUE     it cannot hold a value; what exists differs from the export
 *   BAGS_ERROR_EXISTS    OUT exists, and `resume` is not set
 *   BAGS_ERROR_LOCKED    another process exports to it
 *   BAGS_ERROR_ARGUMENT  options that contradict each other
 *   BAGS_ERROR_MISSING   a library is not found
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY, or the error of a read
 *
 * Threads: any, for different OUT. Cost: one read of the selected datapoints; formats that
 * check all values before (their README says which) read these fields twice.
 */
BAGS_EXPERIMENTAL bags_code bags_export(const bags_reader *reader,
    const bags_exporter *exporter, const char *path, const bags_export_options *options,
    bags_export_report *report, bags_error *err);

/* ========================================================================
 * Functions for exporters.
 * ====================================================================== */

typedef enum bags_form {
    BAGS_FORM_INTEGER, /* whole numbers */
    BAGS_FORM_TEXT,    /* UTF-8 */
    BAGS_FORM_ARRAY,   /* arrays */
    BAGS_FORM_BLOB     /* blobs that are not decoded: images, bytes */
} bags_form;

/* A field of the export. */
typedef struct bags_target_field {
    const char *name; /* in the export */
    const char *type; /* of an item, without zstd: "array(float32,3)" */
    const char *word; /* its name, without arguments: "array" */
    size_t number;    /* in the dataset */
    size_t slot;      /* in the row */
    bags_form form;
    bool sequence;
    bool hidden;           /* only read: see has_names */
    bool apart;            /* its bytes do not count for the size of a shard */
    bool may_exceed_int64; /* u64, int and int(8); arrays of uint64 */
    /* Arrays: NONE if each states its own; UINT64_MAX is any length. */
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
    const char *ending; /* of files with such a blob, "jpg"; "" for bytes */
    /* The items of the datapoint that was read. BLOB: data, size. */
    bags_value *values;
    size_t length;
    /* For exporters. */
    unsigned kind;
    const char *text;
    size_t size;
    /* Private. */
    bool compressed;
    bags_buffer values_buffer, *scratch;
    size_t scratch_count;
} bags_target_field;

/* Bytes that grow, in memory that is valid until the export ends. Zero is empty. */
typedef struct bags_export_bytes {
    bags_buffer buffer;
    size_t size;
    struct bags_export_bytes *next; /* private: all bytes of the export */
    bool listed;
} bags_export_bytes;

/* A file of the export that is open. */
typedef struct bags_export_file {
    struct bags_export_file *next;
    char path[4096], partial[4096];
    void *file;
    bool complete; /* it existed */
    uint64_t at, existing;
    bags_export_bytes bytes;
} bags_export_file;

struct bags_target {
    const bags_exporter *exporter;
    const char *path;          /* OUT */
    bags_target_field *fields; /* `count`, sorted by name */
    size_t count;
    uint64_t length;    /* number of datapoints of the export, of all workers */
    uint64_t index;     /* of the datapoint that was read, among them */
    uint64_t datapoint; /* its number in the dataset */
    uint64_t shard;     /* number of the shard that is written */
    bags_export_options options;
    void *state;
    bags_error *err;     /* of the call in progress; not NULL */
    bags_buffer scratch; /* for exporters */
    /* Private. */
    const bags_reader *reader;
    bags_row row;
    bags_select *selects;
    bool pending; /* it was read, for the next shard */
    uint64_t next, stop, shard_bytes, pending_bytes, shard_count;
    bool sharded, ended, wrote;
    bags_export_report report;
    void *marker;
    const char *marker_path;
    bags_export_file own, *to; /* all files; the current one */
    bags_buffer compare;
    bags_export_bytes *bytes;
    void *blocks;
};

/* Fail with "OUT: " or 'DATASET: field "NAME": ' (and with the datapoint that was read)
 * and this text. Returns `code`. */
BAGS_EXPERIMENTAL bags_code bags_target_fail(
    bags_target *target, bags_code code, const char *format, ...) BAGI_PRINTF(3, 4);
BAGS_EXPERIMENTAL bags_code bags_target_fail_field(bags_target *target,
    const bags_target_field *field, bags_code code, const char *format, ...)
    BAGI_PRINTF(4, 5);
BAGS_EXPERIMENTAL bags_code bags_target_fail_value(bags_target *target,
    const bags_target_field *field, const char *format, ...) BAGI_PRINTF(3, 4);

/* Memory that is zeroed, and valid until the export ends; text as printf makes it. NULL,
 * with the error set, if out of memory. */
BAGS_EXPERIMENTAL void *bags_target_alloc(
    bags_target *target, size_t count, size_t size);
BAGS_EXPERIMENTAL char *bags_target_format(bags_target *target, const char *format, ...)
    BAGI_PRINTF(2, 3);

/* Append bytes, or NUL-terminated text, or an item of a field (text, or a whole number as
 * decimal digits), or the number of the datapoint in the export, with at least 6 digits and
 * as many for all, or a JSON string, or a field's items as a JSON list (numbers and text).
 * A zero byte follows them; the size does not count it. BAGS_ERROR_MEMORY. */
BAGS_EXPERIMENTAL bags_code bags_target_put(
    bags_target *target, bags_export_bytes *to, const void *data, size_t size);
BAGS_EXPERIMENTAL bags_code bags_target_put_text(
    bags_target *target, bags_export_bytes *to, const char *text);
BAGS_EXPERIMENTAL bags_code bags_target_put_item(bags_target *target,
    bags_export_bytes *to, const bags_target_field *field, size_t item);
BAGS_EXPERIMENTAL bags_code bags_target_put_number(
    bags_target *target, bags_export_bytes *to);
BAGS_EXPERIMENTAL bags_code bags_target_put_json(
    bags_target *target, bags_export_bytes *to, const void *text, size_t size);
BAGS_EXPERIMENTAL bags_code bags_target_put_list(
    bags_target *target, bags_export_bytes *to, const bags_target_field *field);

/* The bits of an integer, or of an element of an array. The sign of an element is extended
 * to 64 bits. */
BAGS_EXPERIMENTAL uint64_t bags_target_bits(const bags_value *value, size_t element);

/* Find two equal texts among `count` texts, each with its NUL. With `paths`, find also two
 * paths that cannot both exist on every system: parts of them differ only in the case of
 * ASCII letters, or one is a directory of the other. Sets twice[0] to NULL if there are
 * none. BAGS_ERROR_MEMORY. */
BAGS_EXPERIMENTAL bags_code bags_target_find_twice(bags_target *target,
    const bags_export_bytes *texts, size_t count, bool paths, const char *twice[2]);

/* Read the next datapoint of the shard: sets the values of all fields. *more is false at
 * the end of the shard. */
BAGS_EXPERIMENTAL bags_code bags_target_next(bags_target *target, bool *more);
/* Open the file of the shard, and call `put` for each of its datapoints. The caller closes
 * the file. */
BAGS_EXPERIMENTAL bags_code bags_target_put_shard(
    bags_target *target, bags_code (*put)(bags_target *target));

/* Call `check` for all datapoints of the export, of all workers, with the values of
 * `count` fields (at most 2): before anything is written. */
BAGS_EXPERIMENTAL bags_code bags_target_scan(bags_target *target,
    bags_target_field *const *fields, size_t count,
    bags_code (*check)(bags_target *target, bags_target_field *field, void *user),
    void *user);
/* Read the first datapoint of the export, of at least one: sets the values of all fields.
 * For open. */
BAGS_EXPERIMENTAL bags_code bags_target_first(bags_target *target);
/* The most items of a field in a datapoint, without reading them. */
BAGS_EXPERIMENTAL bags_code bags_target_most(
    bags_target *target, const bags_target_field *field, uint64_t *most);
/* Fail if a number of 64 bits is above 2^63-1: by the type if it is u64 or an array of
 * uint64, else by the values. `format` completes the message: "TFRecord". */
BAGS_EXPERIMENTAL bags_code bags_target_refuse_unsigned(
    bags_target *target, bags_target_field *field, const char *format);
/* The field with this name in the dataset, or in the export; NULL: none. */
BAGS_EXPERIMENTAL bags_target_field *bags_target_find(
    bags_target *target, const char *name);

/* The path of the shard that is written. NULL if out of memory. */
BAGS_EXPERIMENTAL char *bags_target_shard_path(bags_target *target);
/* The range of datapoints of a shard of workers, or with shard_length. False if there
 * is no such shard. */
BAGS_EXPERIMENTAL bool bags_target_range(
    const bags_target *target, uint64_t shard, uint64_t *start, uint64_t *stop);

/* Select the file of the next functions: *file, or the usual file for NULL. If *file is NULL,
 * it is created, and valid until the export ends. BAGS_ERROR_MEMORY. */
BAGS_EXPERIMENTAL bags_code bags_target_use(
    bags_target *target, bags_export_file **file);
/* Write a file of the export from its start to its end, or compare it. Its directory is
 * created. */
BAGS_EXPERIMENTAL bags_code bags_target_file_open(
    bags_target *target, const char *path);
BAGS_EXPERIMENTAL bags_code bags_target_write(
    bags_target *target, const void *data, size_t size);
BAGS_EXPERIMENTAL bags_code bags_target_file_close(bags_target *target);
/* Write a file NAME in the directory OUT. With `several`, other workers may write the same
 * bytes at the same time. */
BAGS_EXPERIMENTAL bags_code bags_target_put_file(
    bags_target *target, const char *name, bags_view content, bool several);
/* The same for a file that a library writes, to *partial. It does not exist. */
BAGS_EXPERIMENTAL bags_code bags_target_made_open(
    bags_target *target, const char *path, const char **partial);
BAGS_EXPERIMENTAL bags_code bags_target_made_close(bags_target *target);
/* Fail unless OUT and its directories have this number of files. */
BAGS_EXPERIMENTAL bags_code bags_target_check_files(
    bags_target *target, uint64_t expected);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_EXPORT_H */
