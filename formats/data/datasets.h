/*
 * datasets.h - what is done with datasets: versions that copy no data, differences,
 * keys, queries.
 *
 *     file              subject                 library
 *     derive.c          derived datasets        none, with derive_copy.c, derived.c
 *     unreferenced.c    blobs without datapoint none
 *     diff.c            differences             none
 *     index_build.c     to build an index       none
 *     index_find.c      datapoints by key       none
 *     sql.c             queries                 SQLite  -lsqlite3
 *     stats.c           statistics              none, with threads  -lm -pthread
 */
#ifndef BAGS_DATASETS_H
#define BAGS_DATASETS_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef BAGS_NO_WRITER

/* ========================================================================
 * >>derive
 * Another version of a dataset: some of its datapoints, in another order within their
 * shard; fewer fields, other names, fields of another dataset. No library.
 *
 *     SOURCE/000003/              DERIVED/000002/
 *         spec.json                   spec.json    new
 *         refs.bag                    refs.bag     new: the datapoints
 *         image.bag   <------------   image.bag    a hard link: the same file
 *         label.bag   <------------   class.bag    a hard link, another name
 *         score.bag
 *
 * A finished Bag never changes, so two datasets may share it. The derived one is a
 * dataset like any other, for every reader, Python's too, and stays whole when the
 * source is removed.
 * ====================================================================== */

/* A field of the derived dataset. */
typedef struct bags_derived_field {
    const char *name;    /* there */
    const char *from;    /* in the dataset that has it; NULL: the same name */
    const char *dataset; /* path of another dataset, whose shards have the same lengths
                            as the source's; a copy needs the same number of datapoints.
                            NULL: the source */
    const bags_io *io;   /* where that is; NULL: env.io */
    uint64_t version;    /* of that: see bags_derive_options */
} bags_derived_field;

/* A dataset whose datapoints follow the source's. */
typedef struct bags_derive_more {
    const char *path;
    const bags_io *io; /* where it is; NULL: env.io */
    uint64_t version;  /* see bags_derive_options */
} bags_derive_more;

typedef struct bags_derive_options {
    const bags_derived_field *fields; /* NULL: all fields of the source */
    size_t fields_count;
    /* Numbers of datapoints of the source, in the order of the derived dataset; each
     * may come several times. Without `copy`, numbers of one shard must be next to each
     * other, and the shards in order. NULL: all. */
    const uint64_t *rows;
    size_t rows_count;
    /* bags_reader_version of the source as `rows` were selected: another version is
     * BAGS_ERROR_CHANGED. 0: any, also if it is replaced between the selection and this
     * call. */
    uint64_t version;
    /* Make only the shards of this worker. Workers do not compare the versions of their
     * sources: if one is replaced between them, shards of both versions are made. */
    uint64_t shard_start, shard_stop;
    bool no_sync; /* do not wait for stable storage */
    /* NULL: link. Otherwise copy the blobs, by a writer with these limits of shards,
     * `checksum`, `keep_idx` and `buffer_size`. This struct replaces the other
     * members, and `existing` must be 0. */
    const bags_writer_options *copy;
    const bags_derive_more *more; /* a copy only: with the spec of the source */
    size_t more_count;
    /* Called from time to time while datapoints are copied; if it returns false, the
     * copy fails, with BAGS_ERROR_IO. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    /* It checks types, as for a writer. To copy blobs of zstd that need a dictionary,
     * it has that codec with the option `blobs`, and the copy a dictionary of its
     * own. */
    const bags_registry *registry;
    const bags_io *from; /* where the source is; NULL: env.io */
    bags_env env;        /* env.io: where the derived dataset will be */
} bags_derive_options;

typedef struct bags_derive_report {
    uint64_t shards; /* that were made */
    uint64_t length; /* their datapoints */
    uint64_t linked; /* bytes of the Bags that are shared */
    uint64_t made;   /* bytes of the files that were written; of a copy, of its Bags */
    uint64_t copy;   /* if `copy` avoids the failure: about the bytes that it needs,
                        the size of the fields in proportion to the
                        datapoints; otherwise 0 */
} bags_derive_report;

/*
 * Derive a dataset from a finished one. Without `copy`, no blob is read: each shard
 * receives hard links to its Bags, a new refs.bag and a new spec.json and, if all
 * shards of all datasets have them, the checksums of the Bags, bound together anew.
 * Shard i has datapoints of one shard; shards without datapoints are left out, and the
 * numbers closed. An unsharded source makes an unsharded dataset. Without any
 * datapoint, the first worker makes one shard, whose Bags are empty, with and without
 * `copy`. Indexes and .idx files are not derived.
 *
 * With `copy`, a writer copies the blobs that are referred to, without decoding them
 * (but blobs of zstd that need a dictionary are compressed again: see `registry`), in
 * any order, to shards of any size; blobs that datapoints share are stored once per
 * shard (if no million others were stored since), also if a datapoint comes several
 * times. The sources may be split datasets, or on a server or in an archive, and `more`
 * appends datasets. If all shards of the sources have checksums, every blob is compared
 * with its own.
 *
 * `to` must not exist; parent directories are created. With shard_stop above 1, several
 * workers make one dataset, each with the same other options; `to` may then exist, and
 * each shard must not. A copy by workers has shards of shard_length datapoints, and no
 * shard_size.
 *
 * spec.json, without which no reader accepts a shard, is given its name last, when all
 * shards of this call are complete. A copy, or a dataset without datapoints, is written
 * to the directory TO.derived, and renamed when it is complete, except by workers.
 * After a failure everything is removed. A process that is killed leaves directories
 * without spec.json, or TO.derived: remove them. The source does not notice that. The
 * next call names them. The source is never changed.
 *
 * Returns BAGS_OK, what bags_reader_open and bags_reader_refs return for the datasets,
 * or
 *   BAGS_ERROR_EXISTS    the path exists, or with workers one of the shards
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE
 *                        no such field; a name, or a type, that no writer accepts
 *   BAGS_ERROR_RANGE     a number of `rows` that is not below the source's length
 *   BAGS_ERROR_VALUE     the other dataset has shards of other lengths, or for a copy
 *                        another length; one of `more` has other fields or types
 *   BAGS_ERROR_CHANGED   a dataset was replaced, removed or finalized meanwhile, or is
 *                        not of its `version`. Every source is checked before the
 *                        result is given its name
 *   BAGS_ERROR_LIMIT     without `copy`: an order across shards, `more`, or files that
 *                        cannot be linked: another file system, or one without links;
 *                        too many links of a file; a server or an archive; a split
 *                        dataset. report->copy is set
 *   BAGS_ERROR_ARGUMENT  `to` is in the directory of a dataset, by whatever links; also
 *                        with BAGS_NO_CHECKSUM, if all shards of a dataset have
 *                        checksums
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY; with `copy`, what bags_reader_get and
 *   bags_writer_append return
 *
 * *report (may be NULL) is always written. Threads: any. Cost: reads refs.bag of the
 * datapoints and, with checksums, the tables of the Bags; a few system calls per field
 * and shard. Memory: 1 MiB; of a copy, a writer's, up to 100 MiB for blobs that are
 * shared, and one datapoint that is not mapped.
 */
BAGS_EXPERIMENTAL bags_code bags_derive(const char *from, const char *to,
    const bags_derive_options *options, bags_derive_report *report, bags_error *err);

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>unreferenced
 * Blobs that no datapoint refers to. A derived dataset has the blobs of datapoints that
 * were not selected; Python's writer leaves some when an encoder fails. No library.
 * ====================================================================== */

/*
 * Count the blobs of a finished dataset that no datapoint refers to.
 *
 *   env     with the hooks of the reader; NULL: local files
 *   sizes   count their bytes, too
 *   fields  an element for each field, to be filled; `size` is 0 without `sizes`. After
 *           a failure it is unspecified
 *
 * Returns BAGS_OK, or what bags_reader_info and bags_reader_refs return. Threads: any.
 * Cost: opens every Bag and reads all refs, but no blob. The refs of a shard are read
 * again where the datapoints of a field are not in the order of its blobs, or leave
 * some out: once, or with more than 134 million blobs several times. With `sizes`,
 * fields that have such blobs are read again, with each entry of their tables; where
 * files are not mapped, with each blob. Memory: 64 bytes per field; at most 16 MiB.
 */
BAGS_EXPERIMENTAL bags_code bags_unreferenced(const bags_reader *reader,
    const bags_env *env, bool sizes, bags_field_info *fields, bags_error *err);

/* ========================================================================
 * >>diff
 * The differences of two datasets, or of two versions of one. No library.
 * ====================================================================== */

typedef enum bags_difference_kind {
    BAGS_DIFFERENCE_ADDED,         /* a datapoint of B that A does not have */
    BAGS_DIFFERENCE_REMOVED,       /* a datapoint of A that B does not have */
    BAGS_DIFFERENCE_MOVED,         /* only with a key: see bags_diff */
    BAGS_DIFFERENCE_CHANGED,       /* blobs of `fields` differ */
    BAGS_DIFFERENCE_FIELD_ADDED,   /* a field of B that A does not have */
    BAGS_DIFFERENCE_FIELD_REMOVED, /* a field of A that B does not have */
    BAGS_DIFFERENCE_FIELD_TYPE     /* a field with another type in B */
} bags_difference_kind;

/* A difference; valid until the callback returns. */
typedef struct bags_difference {
    bags_difference_kind kind;
    uint64_t a, b;             /* the datapoint's number in each; UINT64_MAX: none */
    const bags_value *key;     /* its key; NULL without `key` */
    const char *key_type;      /* the type of that */
    const char *const *fields; /* names; of CHANGED one or more, of FIELD_* one */
    size_t fields_count;
} bags_difference;

typedef struct bags_diff_options {
    /* A field with one value for each datapoint, by which the datapoints of A and B
     * correspond. NULL: by their numbers. */
    const char *key;
    bool exact;      /* compare bytes, also where both have checksums */
    bool allow_gaps; /* read the other shards if some are missing */
    void (*each)(void *user, const bags_difference *found);
    /* From time to time; if it returns false, bags_diff fails, with BAGS_ERROR_IO. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_registry *registry; /* decodes keys */
    const bags_io *a, *b;          /* where each dataset is; NULL: env.io */
    bags_env env;
} bags_diff_options;

typedef struct bags_diff_report {
    uint64_t added, removed, moved, changed; /* datapoints */
    uint64_t fields; /* fields that one of both lacks, or whose types differ */
    bool probable;   /* equality was decided by checksums */
} bags_diff_report;

/*
 * Compare two finished datasets. Datapoints correspond by their numbers or, with `key`,
 * by the value of a field, of a type that bags_index_build accepts. The blobs of the
 * fields that both have are compared as they are stored: equal values that were encoded
 * differently differ. A dictionary counts as a part of each blob of its field and
 * shard.
 *
 * If all shards of both datasets have checksums, a blob equals another if the CRC-32C
 * and the size are the same, and no blob is read: equality is probable. Two different
 * blobs of one size are taken for equal with a probability of 1 in 4 billion, or if
 * they were made to be. Otherwise, and with `exact`, the bytes are compared.
 *
 * With `key`, a datapoint has moved if its place among the datapoints that both
 * datasets have differs: an added or a removed datapoint does not move those after it.
 *
 *   a, b     paths
 *   report   may be NULL; written on failure too
 *
 * `each` receives the fields, then, in the order of A, the datapoints that are removed,
 * moved or changed (twice if both), then, in the order of B, the added ones.
 *
 * Returns BAGS_OK, whether there are differences or not; what bags_reader_open,
 * bags_reader_refs and bags_reader_get return for the datasets, or
 *   BAGS_ERROR_FIELD    a dataset has no field `key`
 *   BAGS_ERROR_TYPE     values of that type cannot be keys, or not be equal
 *   BAGS_ERROR_VALUE    two datapoints of a dataset have one key, or a key is NaN
 *   BAGS_ERROR_CORRUPT  also: checksums of another version than their Bags
 *   BAGS_ERROR_CHANGED  a dataset was replaced meanwhile
 *
 * Threads: any. Memory: 600 bytes per field and shard, where files are not mapped with
 * 12 bytes per blob; with `key`, for each datapoint 42 bytes and its key. Cost: reads
 * refs, and the tables and .crc files or the blobs of the common fields, once; with
 * `key`, sorts.
 */
BAGS_EXPERIMENTAL bags_code bags_diff(const char *a, const char *b,
    const bags_diff_options *options, bags_diff_report *report, bags_error *err);

/* ========================================================================
 * >>index
 * Find datapoints by the value of a field: index_build.c and index_find.c. No library.
 *
 * An index is a sorted list of a field's values, stored in the dataset's directory
 * (in the first shard's). Python and other readers ignore it. Fields of numbers
 * (int, u64, i64, arrays of one real number), utf8 and bytes can have one. Text is
 * ordered by its bytes.
 * ====================================================================== */

typedef struct bags_index_options {
    size_t memory; /* building: bytes for sorting; 0: 64 MiB */
    bool no_mmap;  /* finding: read instead of mapping */
    /* Building: the codecs; NULL: the built-in ones. A field that is compressed,
     * zstd(utf8), needs them. */
    const bags_registry *registry;
    /* Building: called from time to time with the datapoints read so far. May be
     * NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env;
} bags_index_options;

#ifndef BAGS_NO_WRITER

/*
 * Build the index of a field, and replace the former one. The dataset must be
 * complete, and must not change meanwhile.
 *
 *   path   the dataset
 *   field  a field's name
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD   no such field
 *   BAGS_ERROR_TYPE    a sequence, or a type whose values cannot be keys
 *   BAGS_ERROR_VALUE   a NaN
 *   BAGS_ERROR_LOCKED  another process is building it
 *   BAGS_ERROR_CHANGED the dataset was changed meanwhile
 *   BAGS_ERROR_LIMIT   a key larger than a quarter of `memory`; a path of 4,096
 *                      bytes or more
 *   or what bags_reader_open, bags_reader_get_range and bag_writer_open return.
 *   There is then no index, or still the former one.
 *
 * Threads: any. Memory: `memory`, and 200 bytes and a key for each time that the keys
 * fill it. Cost: reads the field once; sorts; writes the keys once, or twice if they
 * are larger than `memory`.
 */
BAGS_EXPERIMENTAL bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err);

#endif /* BAGS_NO_WRITER */

typedef struct bags_index bags_index;

/*
 * Open the index of a field.
 *
 *   path    the dataset
 *   reader  the same dataset, all of its shards, finished. Must outlive the index
 *   field   the field's number
 *
 * Returns the index, to be closed with bags_index_close, or NULL:
 *   BAGS_ERROR_MISSING   the field has no index
 *   BAGS_ERROR_ARGUMENT  the reader has unfinished shards
 *   BAGS_ERROR_CORRUPT   the reader has not all shards; or the index is damaged, or
 *                        older than the dataset: the time, size or last bytes of one
 *                        of the field's Bags, of its .crc or of refs.bag differ, or
 *                        one of 16 keys. Build it again. (Not noticed: a change of a
 *                        few keys that keeps sizes and times, if the field has no
 *                        checksums. In archives and far away, where hooks have
 *                        read_many, times are not compared)
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Cost: about 15 system calls per shard, and 16 reads of keys; far away, about 12 round
 * trips.
 */
BAGS_EXPERIMENTAL bags_index *bags_index_open(const char *path,
    const bags_reader *reader, size_t field, const bags_index_options *options,
    bags_error *err);

/* NULL is accepted. */
BAGS_EXPERIMENTAL void bags_index_close(bags_index *index);

/*
 * Find the datapoints with a key: those at the positions *start <= i < *stop of the
 * index, in order of their numbers. None has it if both are equal.
 *
 *   key      a number, for a field of numbers: bags_int, bags_uint or an array of
 *            one element (a float64 is rounded if the field is float32); otherwise
 *            bags_utf8 or bags_bytes
 *   scratch  grown as needed
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not a key of this field
 *   BAGS_ERROR_CORRUPT  the index is damaged
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any, each with its own scratch. Cost: O(log N) reads of the index.
 */
BAGS_EXPERIMENTAL bags_code bags_index_find(const bags_index *index,
    const bags_value *key, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/* Like bags_index_find, for the keys `from` <= key < `to`, in their order; neither is
 * rounded, and numbers that the type cannot hold are before or after all keys. NULL:
 * from the first key, or to the last one. BAGS_ERROR_RANGE: from > to. */
BAGS_EXPERIMENTAL bags_code bags_index_find_range(const bags_index *index,
    const bags_value *from, const bags_value *to, bags_buffer *scratch, uint64_t *start,
    uint64_t *stop, bags_error *err);

/* Like bags_index_find, for the keys that begin with the bytes of `prefix`, in the
 * order of the keys. An empty prefix finds all. BAGS_ERROR_VALUE: it is a field of
 * numbers. */
BAGS_EXPERIMENTAL bags_code bags_index_find_prefix(const bags_index *index,
    const bags_value *prefix, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/* Like bags_index_find, for the largest key that is not above `key`. `key` may be a
 * number that the type cannot hold; it is not rounded. If several datapoints have the
 * key that is found, the one with the highest number is returned: *stop is *start + 1.
 * If no such key exists, *stop is *start. */
BAGS_EXPERIMENTAL bags_code bags_index_find_at_or_before(const bags_index *index,
    const bags_value *key, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/*
 * The datapoint at a position, 0 <= position < the length of the dataset. Its key is
 * read from the dataset and compared.
 *
 * Returns BAGS_OK, what bags_index_find and bags_reader_get return, or
 *   BAGS_ERROR_RANGE    position out of range
 *   BAGS_ERROR_CORRUPT  also: the datapoint has another key
 *
 * Threads: any, each with its own scratch and row. Cost: two reads.
 */
BAGS_EXPERIMENTAL bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err);

/* Like bags_index_get, for several positions: datapoints[i] is set to the datapoint at
 * positions[i], 0 <= i < count. After a failure, `datapoints` is unspecified. Cost: 256
 * positions are read at once. */
BAGS_EXPERIMENTAL bags_code bags_index_get_many(const bags_index *index,
    const uint64_t *positions, size_t count, bags_buffer *scratch, bags_row *row,
    uint64_t *datapoints, bags_error *err);

/* ========================================================================
 * >>sql
 * A dataset as a table of SQLite.
 *
 *     rowid            the number of the datapoint
 *     int, u64, i64    INTEGER; a number above 2^63-1 is an error when it is read, in a
 *                      sequence or an array, too
 *     utf8             TEXT; invalid UTF-8 is an error when it is read
 *     array            of one element: INTEGER or REAL, and NULL for NaN
 *     sequences        TEXT: a JSON list of such numbers and texts, of nested lists for
 *                      arrays of several elements, otherwise of {"base64": TEXT}.
 *                      NaN is null, infinity 9e999: SQLite reads it as infinity
 *     zstd(TYPE)       what TYPE is, if it is one of these or bytes. The reader's registry
 *                      must have the codec; the extension has it if make found libzstd
 *     everything else  BLOB: the bytes; length(image) is their number
 *
 * `FIELD = VALUE` of a field that has an index (bags_index_build) is looked up in it, if
 * the reader's path leads to local files; an index that is damaged, or older than the
 * dataset, is not used. EXPLAIN QUERY PLAN then shows INDEX 1.
 *
 * SQLite limits the columns of a table, by default to 2,000: a dataset of more fields is an
 * error that states the limit.
 *
 * width(image) and height(image) describe a JPEG or PNG, otherwise they are NULL. A column
 * is read when a query uses it. SQLite compares names without the case of letters: of two
 * fields that differ only in case, the second in the order of fields (capitals first) is
 * called NAME_2: of `A` and `a`, the column a_2 is the field `a`. A field called rowid
 * hides the number; use _rowid_ or oid.
 *
 * sql.c is also a loadable extension of SQLite, if it is compiled with
 * BAGS_SQL_EXTENSION; make builds bags-sql.so next to the command:
 *
 *     .load build/release/bags-sql.so
 *     CREATE VIRTUAL TABLE pets USING bags('PATH');
 * ====================================================================== */

struct sqlite3;
struct sqlite3_stmt;

/* Open a database in memory whose table `data` is the dataset, for queries: whatever
 * writes is refused. Close it with sqlite3_close, before the reader. Returns NULL:
 * BAGS_ERROR_VALUE with SQLite's message, or BAGS_ERROR_MEMORY. */
BAGS_EXPERIMENTAL struct sqlite3 *bags_sql_open(
    const bags_reader *reader, bags_error *err);

/* Fail with BAGS_ERROR_VALUE if a query that sqlite3_prepare_v2 has compiled has a
 * parameter, such as ? or :name: without a value it would be NULL. */
BAGS_EXPERIMENTAL bags_code bags_sql_check(struct sqlite3_stmt *query, bags_error *err);

/* The datapoints for which an expression such as "label = 3 AND score > 0.5" is true:
 * their numbers (uint64_t), in ascending order, in `numbers`, grown as needed; *count
 * of them. The numbers, and rowid, begin with `start`. Returns BAGS_OK,
 * BAGS_ERROR_VALUE (not one expression, one with a parameter, or what fails while it is
 * computed), BAGS_ERROR_FIELD (fields hide all names of the rowid) or
 * BAGS_ERROR_MEMORY. Cost: reads the columns that it uses. */
BAGS_EXPERIMENTAL bags_code bags_sql_rows(const bags_reader *reader, uint64_t start,
    const char *where, bags_buffer *numbers, size_t *count, bags_error *err);

/* ========================================================================
 * >>stats
 * Statistics of the numbers in fields, for normalisation: stats.c.
 *
 *     numbers                one element
 *     arrays of one shape    an element for each of theirs, in C order
 *     array(DTYPE,-1,3)      3 elements: the free dimension is like several values
 *     images, videos         an element for each channel; of 8 bits, 0 to 255
 *     sequences              all items are like several values
 *
 * They depend only on the numbers: not on their order, on shards, or on threads.
 * ====================================================================== */

#define BAGS_QUANTILES 5 /* of 0.01, 0.1, 0.5, 0.9 and 0.99 */

/* Of one element. NaN is not counted. If all of its numbers are NaN, everything is
 * 0. */
typedef struct bags_statistics {
    uint64_t count;      /* of numbers */
    double mean, std;    /* as of NumPy: std divides by the count */
    bags_value min, max; /* bags_uint, bags_int or, of floats, bags_real */
    /* Interpolated linearly, as by numpy.quantile. */
    double quantiles[BAGS_QUANTILES];
    double error; /* no quantile is farther from the exact one; 0: they are exact */
} bags_statistics;

typedef struct bags_stats_options {
    const uint64_t *rows; /* numbers of datapoints; NULL: all */
    size_t rows_count;
    uint32_t threads; /* 0: the number of processors */
    /* Called from time to time; if it returns false, the call fails with BAGS_ERROR_IO.
     * May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env; /* env.io: the hooks of the reader */
} bags_stats_options;

/*
 * Compute the statistics of fields in one pass. The sums behind mean and std are exact;
 * each is rounded only at its end. The quantiles are exact if an element has at most
 * 786,432 different numbers, or, of a field with E elements, 3 * 2^20 / E rounded down to 3
 * times a power of 2, if that is less. Otherwise, numbers are grouped by as many of their
 * leading bits as leave fewer groups, and a group counts as spread evenly.
 *
 *   fields    names of `count` fields
 *   out       receives a bags_statistics for each element of fields[0], then for each
 *             of fields[1] and so on; grown as needed
 *   elements  receives the number of elements of each field
 *
 * Gray images are counted in each channel if the field also has colour images, as the
 * loader converts them. Numbers of the type `int` are unsigned. Palettes of PNG files
 * need the option `expand` of the registry's codec, or they are indices.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD    no such field; a field is listed twice
 *   BAGS_ERROR_TYPE     values of this type are no real numbers; no codec for it
 *   BAGS_ERROR_VALUE    an infinite number; a value of another dtype, shape or number
 *                       of channels than the first one; a field without any value
 *   BAGS_ERROR_LIMIT    more than 16,384 elements
 *   what bags_reader_get and bags_row_value return, of the first datapoint that fails
 *
 * Threads: any. Cost: decodes each value once, and about 20 ns per number, of 8 bits 1
 * ns. Memory: for each thread, of each field up to 64 MiB, and a decoded datapoint.
 */
BAGS_EXPERIMENTAL bags_code bags_stats(const bags_reader *reader,
    const char *const *fields, size_t count, const bags_stats_options *options,
    bags_buffer *out, size_t *elements, bags_error *err);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_DATASETS_H */
