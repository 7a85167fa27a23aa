/*
 * datasets.h - operations on datasets: derived versions that copy no data, differences,
 * key indexes, queries.
 *
 *     file              subject                 library
 *     derive.c          derived datasets        none, with derive_copy.c, derived.c,
 *                                               join.c, keys.c, metadata.c
 *     split.c           random parts            none, with load/order.c
 *     unreferenced.c    blobs without datapoint none
 *     diff.c            differences             none, with keys.c
 *     index_build.c     building an index       none
 *     index_find.c      datapoints by key       none
 *     sql.c             queries                 SQLite  -lsqlite3
 *     stats.c           statistics              none, with threads  -lm -pthread
 *     metadata.c        info.json               none
 *     verify.c          bags_verify in threads  none, with threads  -pthread
 */
#ifndef BAGS_DATASETS_H
#define BAGS_DATASETS_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>metadata
 * Facts about a dataset that do not belong to a field: class names, rates, the licence,
 * statistics. They are a JSON object in the file info.json, next to spec.json or, in a
 * sharded dataset, in the first shard. Every reader ignores this file. bags_derive,
 * bags_zip and `bags copy` carry it. No library.
 * ====================================================================== */

#define BAGS_METADATA_MOST                                                             \
    ((size_t)16 << 20) /* size in bytes of the largest info.json */

/* Write the path of info.json to out, whether the file exists or not. `reader` is opened
 * on the dataset at `path`. Returns BAGS_OK, or BAGS_ERROR_LIMIT: the path, with its
 * terminating NUL, has more than `size` bytes. Threads: any. Cost: O(1). */
BAGS_EXPERIMENTAL bags_code bags_metadata_path(const char *path,
    const bags_reader *reader, char *out, size_t size, bags_error *err);

/*
 * Read info.json. The bytes are not checked to be JSON.
 *
 *   path     the dataset
 *   reader   opened on it, with the same hooks
 *   env      env->io: hooks to access the dataset. NULL: local files
 *   scratch  grown as needed
 *   json     receives the bytes, followed by a NUL that json->size excludes. Valid until
 *            the scratch is reused or freed. json->data is NULL if there is no info.json
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_LIMIT    it has more than BAGS_METADATA_MOST bytes
 *   BAGS_ERROR_IO       also: it is not a file
 *   BAGS_ERROR_MEMORY
 *
 * Threads: any, each with its own buffer. Cost: a lookup and a read.
 */
BAGS_EXPERIMENTAL bags_code bags_metadata_read(const char *path,
    const bags_reader *reader, const bags_env *env, bags_buffer *scratch,
    bags_view *json, bags_error *err);

#ifndef BAGS_NO_WRITER

/*
 * Write info.json, atomically: other processes see the previous file or the new one.
 *
 *   path     a dataset, finished or being written, whose first shard exists
 *   json     a JSON object. It is not checked
 *   no_sync  do not wait until the file is on stable storage
 *   env      NULL: local files
 *
 * Returns BAGS_OK, what bags_reader_open returns with BAGS_UNFINISHED_READ, or
 * BAGS_ERROR_LIMIT, BAGS_ERROR_IO. Threads: any, but one call per dataset at a time.
 */
BAGS_EXPERIMENTAL bags_code bags_metadata_write(const char *path, bags_view json,
    bool no_sync, const bags_env *env, bags_error *err);

/* ========================================================================
 * >>derive
 * Another version of a dataset: selected datapoints, reordered within their shard;
 * fewer or renamed fields; fields from another dataset. No library.
 *
 *     SOURCE/000003/              DERIVED/000002/
 *         spec.json                   spec.json    new
 *         refs.bag                    refs.bag     new: the datapoints
 *         image.bag   <------------   image.bag    a hard link: the same file
 *         label.bag   <------------   class.bag    a hard link, another name
 *         score.bag
 *
 * A finished Bag never changes, so two datasets may share it. The derived dataset is an
 * ordinary dataset for every reader, including Python's, and stays complete if the
 * source is removed.
 * ====================================================================== */

/* A field of the derived dataset. */
typedef struct bags_derived_field {
    const char *name;    /* there */
    const char *from;    /* its name in the source dataset; NULL: the same name */
    const char *dataset; /* path of another dataset. Unless `joins` has it, its shards
                          * must have the same lengths as the source's; a copy only
                          * needs the same number of datapoints. NULL: the source */
    const bags_io *io;   /* hooks to access `dataset`; NULL: env.io */
    uint64_t version;    /* version of `dataset`: see bags_derive_options */
} bags_derived_field;

/*
 * A dataset whose datapoints are matched by key, not by position: the datapoint of
 * `dataset` with an equal key provides the fields that bags_derived_field takes from it.
 * Keys are whole numbers (int, u64, i64, arrays of one element) or bytes (utf8, bytes);
 * numbers of different types match by value.
 */
typedef struct bags_derive_join {
    const char *dataset; /* its path, exactly as in bags_derived_field */
    const char *on;      /* name of the key in the source */
    const char *from;    /* name of the key in `dataset`; NULL: the same */
    bool drop;           /* drop datapoints whose key `dataset` lacks; false: fail */
    bool first;          /* if several datapoints of `dataset` have equal keys, use the
                          * first; false: fail */
    const bags_io *io;   /* hooks to access `dataset`; NULL: env.io */
    uint64_t version;    /* version of `dataset`: see bags_derive_options */
} bags_derive_join;

/* A dataset whose datapoints are appended to the source's. */
typedef struct bags_derive_more {
    const char *path;
    const bags_io *io; /* where it is; NULL: env.io */
    uint64_t version;  /* see bags_derive_options */
} bags_derive_more;

typedef struct bags_derive_options {
    const bags_derived_field *fields; /* NULL: all fields of the source */
    size_t fields_count;
    /* Numbers of the source's datapoints, in the order of the derived dataset; a number
     * may occur several times. Without `copy`, the numbers of each shard must be
     * contiguous and the shards in order. NULL: all. */
    const uint64_t *rows;
    size_t rows_count;
    /* bags_reader_version of the source at the time `rows` were selected: any other
     * version fails with BAGS_ERROR_CHANGED. 0: accept any version, even if the source
     * was replaced between the selection and this call. */
    uint64_t version;
    /* Make only this worker's shards. Workers do not compare the versions of their
     * sources: if a source is replaced while they run, shards of both versions are
     * made. */
    uint64_t shard_start, shard_stop;
    bool no_sync; /* do not wait until data are on stable storage */
    /* NULL: link. Otherwise copy the blobs with a writer that uses these shard limits,
     * `checksum`, `keep_idx` and `buffer_size`. Its other members are ignored, since
     * bags_derive_options has these settings, but `existing` must be 0. */
    const bags_writer_options *copy;
    /* Without `copy`, the datapoints of each derived shard must match datapoints in one
     * shard of the joined dataset; an unsharded one always fits. */
    const bags_derive_join *joins;
    size_t joins_count;
    const bags_derive_more *more; /* copies only; must have the source's spec */
    size_t more_count;
    /* Called from time to time while datapoints are copied. If it returns false, the
     * copy fails with BAGS_ERROR_IO. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    /* Used to check types, as in a writer. To copy zstd blobs that need a dictionary,
     * the registry must have the zstd codec with the option `blobs`; the copy then gets
     * its own dictionary. */
    const bags_registry *registry;
    const bags_io *from; /* hooks to access the source; NULL: env.io */
    bags_env env;        /* env.io: hooks to write the derived dataset */
} bags_derive_options;

typedef struct bags_derive_report {
    /* Path of a dataset whose info.json differs from the source's and is not kept; NULL:
     * none. As passed by the caller. */
    const char *metadata;
    uint64_t missing; /* selected datapoints without a match in `joins`: dropped, or the
                       * reason for the failure */
    uint64_t shards;  /* shards made */
    uint64_t length;  /* datapoints in these shards */
    uint64_t linked;  /* bytes of the shared Bags */
    uint64_t made;    /* bytes of the files written; for a copy, of its Bags */
    uint64_t copy;    /* if `copy` would avoid the failure: its estimated size in bytes,
                      * the size of the fields in proportion to the datapoints;
                      * otherwise 0 */
} bags_derive_report;

/*
 * Derive a dataset from a finished one. Without `copy`, no blob is read. Each shard
 * receives hard links to its Bags, a new refs.bag, a new spec.json and, if all shards
 * of all datasets have checksums, the checksums of the Bags with new trailers that bind
 * them together. Each derived shard has datapoints from a single source shard; shards
 * without datapoints are omitted, and the remaining ones renumbered. An unsharded
 * source gives an unsharded dataset. If there are no datapoints at all, the first
 * worker makes one shard with empty Bags, with or without `copy`. Indexes and .idx
 * files are not derived. The source's info.json is copied to the first shard.
 *
 * With `copy`, a writer copies the referenced blobs without decoding them (but zstd
 * blobs that need a dictionary are recompressed: see `registry`), in any order, to
 * shards of any size. Blobs shared by datapoints, including a datapoint that occurs
 * several times, are stored once per shard, unless a million others were stored in
 * between. The sources may be split datasets, on a server or in an archive, and `more`
 * appends datasets. If all shards of the sources have checksums, every blob is
 * verified.
 *
 * `to` must not exist; parent directories are created. With shard_stop above 1, several
 * workers make one dataset, with all other options equal; `to` may then exist, but the
 * worker's shards must not. A copy made by workers has shards of shard_length
 * datapoints; shard_size is not allowed.
 *
 * Readers accept no shard without spec.json. It is renamed into place last, once all
 * shards of this call are complete. A copy, or a dataset without datapoints, is written
 * to the directory TO.derived and renamed when complete, except by workers. After a
 * failure, everything is removed. A killed process leaves directories without
 * spec.json, or TO.derived: the next call names them, and you can remove them without
 * affecting the source. The source is never changed.
 *
 * Returns BAGS_OK, what bags_reader_open and bags_reader_refs return for the datasets,
 * or
 *   BAGS_ERROR_EXISTS    the path exists, or with workers one of the shards
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE
 *                        no such field; a name or type not accepted by writers
 *   BAGS_ERROR_RANGE     a number in `rows` is not below the source's length
 *   BAGS_ERROR_MISSING   also: a joined dataset lacks a key
 *   BAGS_ERROR_VALUE     two datapoints of a joined dataset have the same key; the other
 *                        dataset differs in shard lengths, or for a copy in
 *                        total length; a dataset in `more` has different fields or
 *                        types
 *   BAGS_ERROR_CHANGED   a dataset was replaced, removed or finalized in the meantime,
 *                        or differs from its `version`. All sources are checked before
 *                        the result gets its final name
 *   BAGS_ERROR_LIMIT     without `copy`: an order that mixes shards, matches in several
 *                        shards of a joined dataset, `more`, or files
 *                        that cannot be linked: another file system, or one without
 *                        links; too many links to a file; a server or an archive; a
 *                        split dataset. report->copy is set
 *   BAGS_ERROR_ARGUMENT  `to` is inside the directory of a dataset, even through links;
 *                        also with BAGS_NO_CHECKSUM, if all shards of a dataset have
 *                        checksums
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY; with `copy`, what bags_reader_get and
 *   bags_writer_append return
 *
 * *report (may be NULL) is always written. Threads: any. Cost: reads the datapoints'
 * entries in refs.bag and, with checksums, the tables of the Bags; a few system calls
 * per field and shard; with `joins`, reads the keys of both datasets and sorts one.
 * Memory: 1 MiB; for each joined dataset 8 bytes per selected datapoint, 32 bytes per
 * datapoint of its own and, for a time, the keys; for a copy, a writer's memory, up to 100 MiB to
 * track shared blobs, and one datapoint if it is not mapped.
 */
BAGS_EXPERIMENTAL bags_code bags_derive(const char *from, const char *to,
    const bags_derive_options *options, bags_derive_report *report, bags_error *err);

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>split
 * Random parts of a dataset, such as train and val. No library.
 * ====================================================================== */

typedef struct bags_split_options {
    const double *parts; /* the fraction of each, above 0; the sum is at most 1 */
    size_t parts_count;
    uint64_t seed;
    /* NULL, or the name of a field: datapoints with equal values are in one part. */
    const char *by;
    /* NULL, or the name of a field: each of its values has its share in each part, as far
     * as its number of datapoints allows. */
    const char *stratify;
    const uint64_t *rows; /* the datapoints to split; NULL: all */
    size_t rows_count;
    /* Called from time to time while values are read. If it returns false, the call
     * fails with BAGS_ERROR_IO. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env; /* the allocator */
} bags_split_options;

/*
 * Assign each datapoint to a part, at random. The parts have the requested sizes, rounded
 * to whole numbers, as far as groups with equal values of `by` allow. With `stratify`,
 * fractions are carried from each of its values to the next: without groups, each part
 * differs by less than 1 from its share, of every value and in total. The result depends
 * on the seed, the order of the datapoints and the values, not on shards.
 *
 *   readers  one or several datasets; numbers of datapoints continue from each to the
 *            next. If `by` or `stratify` is a field of type zstd(TYPE), the registry must
 *            have the zstd codec with the option `blobs`
 *   out      receives, for each selected datapoint in order, its part as a uint32_t; the
 *            number of parts if it is in none. Grown as needed
 *
 * Values are equal if their blobs are; values with equal 64-bit hashes count as equal,
 * too.
 *
 * Returns BAGS_OK, what bags_reader_get returns, or
 *   BAGS_ERROR_ARGUMENT  parts out of range; a datapoint is selected twice
 *   BAGS_ERROR_FIELD     no such field
 *   BAGS_ERROR_RANGE     a number in `rows` is not below the length
 *   BAGS_ERROR_TYPE      the values of `stratify` are not whole numbers, utf8 or bytes
 *   BAGS_ERROR_VALUE     datapoints with equal values of `by` differ in `stratify`
 *   BAGS_ERROR_LIMIT, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: reads both fields once, and sorts. Memory: 52 bytes per selected
 * datapoint, and 1 byte per datapoint.
 */
BAGS_EXPERIMENTAL bags_code bags_split(const bags_reader *const *readers,
    size_t readers_count, const bags_split_options *options, bags_buffer *out,
    bags_error *err);

/* ========================================================================
 * >>unreferenced
 * Blobs not referenced by any datapoint. A derived dataset keeps the blobs of
 * unselected datapoints; Python's writer leaves some when an encoder fails. No library.
 * ====================================================================== */

/*
 * Count the blobs of a finished dataset that no datapoint refers to.
 *
 *   env     has the reader's hooks; NULL: local files
 *   sizes   also count their bytes
 *   fields  receives an element for each field; `size` is 0 without `sizes`.
 *           Unspecified after a failure
 *
 * Returns BAGS_OK, or what bags_reader_info and bags_reader_refs return. Threads: any.
 * Cost: opens every Bag and reads all refs, but no blobs. If a field's datapoints skip
 * blobs or are not in blob order, the shard's refs are read again: once, or several
 * times with more than 134 million blobs. With `sizes`, fields with unreferenced blobs
 * are read again: every table entry or, if files are not mapped, every blob. Memory: 64
 * bytes per field, plus at most 16 MiB.
 */
BAGS_EXPERIMENTAL bags_code bags_unreferenced(const bags_reader *reader,
    const bags_env *env, bool sizes, bags_field_info *fields, bags_error *err);

/* ========================================================================
 * >>diff
 * The differences between two datasets or two versions of a dataset. No library.
 * ====================================================================== */

typedef enum bags_difference_kind {
    BAGS_DIFFERENCE_ADDED,         /* a datapoint of B missing from A */
    BAGS_DIFFERENCE_REMOVED,       /* a datapoint of A missing from B */
    BAGS_DIFFERENCE_MOVED,         /* a datapoint at another position; only with a key:
                                    * see bags_diff */
    BAGS_DIFFERENCE_CHANGED,       /* blobs of `fields` differ */
    BAGS_DIFFERENCE_FIELD_ADDED,   /* a field of B missing from A */
    BAGS_DIFFERENCE_FIELD_REMOVED, /* a field of A missing from B */
    BAGS_DIFFERENCE_FIELD_TYPE     /* a field whose type differs in B */
} bags_difference_kind;

/* A difference; valid until the callback returns. */
typedef struct bags_difference {
    bags_difference_kind kind;
    uint64_t a, b;             /* the datapoint's number in each; UINT64_MAX: none */
    const bags_value *key;     /* its key; NULL without `key` */
    const char *key_type;      /* the key's type */
    const char *const *fields; /* names: one or more for CHANGED, one for FIELD_* */
    size_t fields_count;
} bags_difference;

typedef struct bags_diff_options {
    /* The field whose value matches datapoints of A and B; each datapoint must have
     * exactly one. NULL: match by datapoint number. */
    const char *key;
    bool exact;      /* compare bytes even if both have checksums */
    bool allow_gaps; /* if some shards are missing, read the others */
    void (*each)(void *user, const bags_difference *found);
    /* Called from time to time; if it returns false, bags_diff fails with
     * BAGS_ERROR_IO. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_registry *registry; /* used to decode keys */
    const bags_io *a, *b;          /* hooks to access each dataset; NULL: env.io */
    bags_env env;
} bags_diff_options;

typedef struct bags_diff_report {
    uint64_t added, removed, moved, changed; /* datapoints */
    uint64_t fields; /* fields missing from one dataset, or with different types */
    bool probable;   /* equality was decided by checksums */
} bags_diff_report;

/*
 * Compare two finished datasets. Datapoints are matched by number or, with `key`, by
 * the value of a field whose type bags_index_build accepts. For fields in both
 * datasets, the stored blobs are compared: equal values encoded differently count as
 * different. A dictionary counts as part of every blob in its field and shard.
 *
 * If all shards of both datasets have checksums, two blobs are considered equal if
 * their CRC-32C and size match, and no blob is read. Equality is then only probable:
 * different blobs of the same size are taken for equal with a probability of 1 in 4
 * billion, or if they were crafted to collide. Otherwise, or with `exact`, the bytes
 * are compared.
 *
 * With `key`, a datapoint has moved if its position among the datapoints common to both
 * datasets differs: adding or removing a datapoint does not move the ones after it.
 *
 *   a, b     paths
 *   report   may be NULL; also written on failure
 *
 * `each` is called first for fields, then for removed, moved or changed datapoints in
 * the order of A (twice if both moved and changed), then for added ones in the order of
 * B.
 *
 * Returns BAGS_OK, whether there are differences or not; what bags_reader_open,
 * bags_reader_refs and bags_reader_get return for the datasets, or
 *   BAGS_ERROR_FIELD    a dataset lacks the field `key`
 *   BAGS_ERROR_TYPE     values of the key's type cannot be keys, or cannot match
 *   BAGS_ERROR_VALUE    two datapoints of a dataset have the same key, or a key is NaN
 *   BAGS_ERROR_CORRUPT  also: checksums from a different version than their Bags
 *   BAGS_ERROR_CHANGED  a dataset was replaced in the meantime
 *
 * Threads: any. Memory: 600 bytes per field and shard, plus 12 bytes per blob if files
 * are not mapped; with `key`, also 42 bytes and the key for each datapoint. Cost: reads
 * refs once and, for the common fields, either the tables and .crc files or the blobs
 * once; with `key`, sorts.
 */
BAGS_EXPERIMENTAL bags_code bags_diff(const char *a, const char *b,
    const bags_diff_options *options, bags_diff_report *report, bags_error *err);

/* ========================================================================
 * >>index
 * Find datapoints by the value of a field: index_build.c and index_find.c. No library.
 *
 * An index is a sorted list of a field's values, stored in the dataset's directory (in
 * the first shard's). Python and other readers ignore it. Supported field types are
 * numbers (int, u64, i64, arrays of one real number), utf8 and bytes. Text is ordered
 * by its bytes.
 * ====================================================================== */

typedef struct bags_index_options {
    size_t memory; /* building: bytes of memory for sorting; 0: 64 MiB */
    bool no_mmap;  /* finding: read files instead of mapping them */
    /* Building: the codecs; NULL: the built-in ones. Compressed fields, such as
     * zstd(utf8), need a registry. */
    const bags_registry *registry;
    /* Building: called from time to time with the number of datapoints read so far. May
     * be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env;
} bags_index_options;

#ifndef BAGS_NO_WRITER

/*
 * Build the index of a field, replacing any previous index. The dataset must be
 * complete, and must not change during the call.
 *
 *   path   the dataset
 *   field  a field's name
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD   no such field
 *   BAGS_ERROR_TYPE    the field is a sequence, or its values cannot be keys
 *   BAGS_ERROR_VALUE   a value is NaN
 *   BAGS_ERROR_LOCKED  another process is building it
 *   BAGS_ERROR_CHANGED the dataset changed in the meantime
 *   BAGS_ERROR_LIMIT   a key larger than a quarter of `memory`; a path of 4,096
 *                      bytes or more
 *   or what bags_reader_open, bags_reader_get_range and bag_writer_open return. After a
 *   failure there is no index, or still the previous one.
 *
 * Threads: any. Memory: `memory`, plus 200 bytes and a key for each time the keys fill
 * it. Cost: reads the field once, sorts, and writes the keys once, or twice if they
 * exceed `memory`.
 */
BAGS_EXPERIMENTAL bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err);

#endif /* BAGS_NO_WRITER */

typedef struct bags_index bags_index;

/*
 * Open the index of a field.
 *
 *   path    the dataset
 *   reader  opened on the same dataset, with all its shards, finished. Must outlive the
 *           index
 *   field   the field's number
 *
 * Returns the index, to be closed with bags_index_close, or NULL:
 *   BAGS_ERROR_MISSING   the field has no index
 *   BAGS_ERROR_ARGUMENT  the reader has unfinished shards
 *   BAGS_ERROR_CORRUPT   the reader lacks some shards; or the index is damaged or older
 *                        than the dataset: the time, size or last bytes of a Bag of the
 *                        field, its .crc or refs.bag differ, or one of 16 sampled keys
 *                        does. Build the index again. (Changing a few keys while
 *                        keeping sizes and times is not detected if the field has no
 *                        checksums. In archives and remote datasets, whose hooks have
 *                        read_many, times are not compared)
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Cost: about 15 system calls per shard and 16 key reads; for remote datasets, about 12
 * round trips.
 */
BAGS_EXPERIMENTAL bags_index *bags_index_open(const char *path,
    const bags_reader *reader, size_t field, const bags_index_options *options,
    bags_error *err);

/* NULL is accepted. */
BAGS_EXPERIMENTAL void bags_index_close(bags_index *index);

/*
 * Find the datapoints with a key: they are at positions *start <= i < *stop of the
 * index, ordered by datapoint number. If no datapoint has the key, *start equals *stop.
 *
 *   key      for a numeric field a number: bags_int, bags_uint or an array of one
 *            element (a float64 is rounded if the field is float32); otherwise
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

/* Like bags_index_find, for the keys `from` <= key < `to`, in key order. The bounds are
 * not rounded, and numbers outside the range of the type sort before or after all keys.
 * NULL: from the first key, or through the last one. BAGS_ERROR_RANGE: from > to. */
BAGS_EXPERIMENTAL bags_code bags_index_find_range(const bags_index *index,
    const bags_value *from, const bags_value *to, bags_buffer *scratch, uint64_t *start,
    uint64_t *stop, bags_error *err);

/* Like bags_index_find, for the keys that begin with the bytes of `prefix`, in key
 * order. An empty prefix matches all keys. BAGS_ERROR_VALUE: the field is numeric. */
BAGS_EXPERIMENTAL bags_code bags_index_find_prefix(const bags_index *index,
    const bags_value *prefix, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/* Like bags_index_find, for the largest key not above `key`. `key` may be a number
 * outside the range of the type, and is not rounded. If several datapoints have the key
 * found, the last of them is returned: *stop is *start + 1. If no such key exists,
 * *stop is *start. */
BAGS_EXPERIMENTAL bags_code bags_index_find_at_or_before(const bags_index *index,
    const bags_value *key, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/*
 * Get the datapoint at a position, 0 <= position < the length of the dataset. Its key
 * is read from the dataset and compared with the index.
 *
 * Returns BAGS_OK, what bags_index_find and bags_reader_get return, or
 *   BAGS_ERROR_RANGE    position out of range
 *   BAGS_ERROR_CORRUPT  also: the datapoint's key differs
 *
 * Threads: any, each with its own scratch and row. Cost: two reads.
 */
BAGS_EXPERIMENTAL bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err);

/* Like bags_index_get, for several positions: datapoints[i] is set to the datapoint at
 * positions[i], 0 <= i < count. After a failure, `datapoints` is unspecified. Cost:
 * positions are read in batches of 256. */
BAGS_EXPERIMENTAL bags_code bags_index_get_many(const bags_index *index,
    const uint64_t *positions, size_t count, bags_buffer *scratch, bags_row *row,
    uint64_t *datapoints, bags_error *err);

/* ========================================================================
 * >>sql
 * A dataset as a table of SQLite.
 *
 *     rowid            the number of the datapoint
 *     int, u64, i64    INTEGER; a number above 2^63-1 is an error when it is read, also
 *                      inside a sequence or array
 *     utf8             TEXT; invalid UTF-8 is an error when it is read
 *     array            with one element: INTEGER or REAL, and NULL for NaN
 *     sequences        TEXT: a JSON list of such numbers and texts, of nested lists for
 *                      arrays of several elements, otherwise of {"base64": TEXT}.
 *                      NaN is null, infinity 9e999: SQLite reads it as infinity
 *     zstd(TYPE)       the same as TYPE, if it is one of these or bytes. The reader's
 *                      registry must have the codec; the extension includes it if make
 *                      found libzstd
 *     everything else  BLOB: the bytes; length(image) is their number
 *
 * `FIELD = VALUE` uses the field's index (bags_index_build), if there is one and the
 * reader's path is local; EXPLAIN QUERY PLAN then shows INDEX 1. An index that is
 * damaged or older than the dataset is not used.
 *
 * SQLite limits the number of columns of a table, by default to 2,000; a dataset with
 * more fields fails with an error that states the limit.
 *
 * width(image) and height(image) return the size of a JPEG, PNG or WebP, and NULL for
 * anything else. A column is read only if a query uses it. SQLite compares names
 * case-insensitively: if two fields differ only in case, the second in field order
 * (capitals first) becomes NAME_2. For example, with fields `A` and `a`, the column a_2
 * is the field `a`. A field called rowid hides the datapoint number; use _rowid_ or oid
 * instead.
 *
 * sql.c is also a loadable extension of SQLite, if it is compiled with
 * BAGS_SQL_EXTENSION; make builds bags-sql.so next to the command:
 *
 *     .load build/release/bags-sql.so
 *     CREATE VIRTUAL TABLE pets USING bags('PATH');
 * ====================================================================== */

struct sqlite3;
struct sqlite3_stmt;

/* Open a read-only in-memory database whose table `data` is the dataset; statements
 * that write are refused. Close it with sqlite3_close, before the reader. Returns NULL
 * on failure: BAGS_ERROR_VALUE with SQLite's message, or BAGS_ERROR_MEMORY. */
BAGS_EXPERIMENTAL struct sqlite3 *bags_sql_open(
    const bags_reader *reader, bags_error *err);

/* Fail with BAGS_ERROR_VALUE if a query compiled by sqlite3_prepare_v2 has a parameter,
 * such as ? or :name, since an unbound parameter would be NULL. */
BAGS_EXPERIMENTAL bags_code bags_sql_check(struct sqlite3_stmt *query, bags_error *err);

/* Select the datapoints for which an expression such as "label = 3 AND score > 0.5" is
 * true. Their numbers (uint64_t) are stored in ascending order in `numbers`, grown as
 * needed; *count receives how many there are. The numbers, and rowid, begin with
 * `start`. Returns BAGS_OK, BAGS_ERROR_VALUE (not a single expression, a parameter, or
 * a failure during evaluation), BAGS_ERROR_FIELD (fields hide all names of the rowid)
 * or BAGS_ERROR_MEMORY. Cost: reads the columns used by the expression. */
BAGS_EXPERIMENTAL bags_code bags_sql_rows(const bags_reader *reader, uint64_t start,
    const char *where, bags_buffer *numbers, size_t *count, bags_error *err);

/* Like bags_sql_rows, but calls progress(user, done, 0) every few thousand instructions
 * of SQLite, on the calling thread, if `progress` is not NULL. `done` is the number of
 * datapoints selected so far. If it returns false, the call fails with
 * BAGS_ERROR_VALUE. */
BAGS_EXPERIMENTAL bags_code bags_sql_select(const bags_reader *reader, uint64_t start,
    const char *where, bool (*progress)(void *user, uint64_t done, uint64_t total),
    void *user, bags_buffer *numbers, size_t *count, bags_error *err);

/* ========================================================================
 * >>stats
 * Statistics of the numbers in fields, for normalisation; in stats.c.
 *
 *     numbers                one element
 *     arrays of one shape    one statistics element per array element, in C order
 *     array(DTYPE,-1,3)      3 elements: the free dimension counts as several values
 *     images, videos         an element for each channel; 8-bit channels count from 0
 *                            to 255
 *     sequences              items count as several values
 *
 * The results depend only on the numbers, not on their order, shards or threads.
 * ====================================================================== */

#define BAGS_QUANTILES 5 /* at 0.01, 0.1, 0.5, 0.9 and 0.99 */

/* Statistics of one element. NaNs are ignored. If all of its numbers are NaN, all
 * members are 0. */
typedef struct bags_statistics {
    uint64_t count;      /* number of values counted */
    double mean, std;    /* as in NumPy: std divides by the count */
    bags_value min, max; /* bags_uint, bags_int or, for floats, bags_real */
    /* Interpolated linearly, as in numpy.quantile. */
    double quantiles[BAGS_QUANTILES];
    double error; /* maximum distance of a quantile from the exact value; 0: exact */
} bags_statistics;

typedef struct bags_stats_options {
    const uint64_t *rows; /* numbers of datapoints; NULL: all */
    size_t rows_count;
    uint32_t threads; /* 0: the number of processors */
    /* Called from time to time; if it returns false, the call fails with BAGS_ERROR_IO.
     * May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env; /* env.io: the reader's hooks */
} bags_stats_options;

/*
 * Compute the statistics of fields in one pass. The sums for mean and std are exact, so
 * each result is rounded only once. The quantiles are exact if an element has at most
 * 786,432 distinct numbers or, in a field with E elements, at most 3 * 2^20 / E rounded
 * down to 3 times a power of 2, whichever is less. Otherwise, numbers are grouped by as
 * many leading bits as keep the number of groups below this limit, and the numbers in a
 * group are treated as evenly spread.
 *
 *   fields    the names of `count` fields
 *   out       receives a bags_statistics for each element of fields[0], then for each
 *             of fields[1] and so on; grown as needed
 *   elements  receives the number of elements of each field
 *
 * If a field also has colour images, gray images count in each channel, matching the
 * loader's conversion. Numbers of type `int` are unsigned. For PNG files with palettes,
 * set the codec's option `expand` in the registry; otherwise their values are indices.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD    no such field; a field is listed twice
 *   BAGS_ERROR_TYPE     values of this type are not real numbers; no codec for it
 *   BAGS_ERROR_VALUE    an infinite number; a value that differs from the first in
 *                       dtype, shape or number of channels; a field without values
 *   BAGS_ERROR_LIMIT    more than 16,384 elements
 *   what bags_reader_get and bags_row_value return for the first datapoint that fails
 *
 * Threads: any. Cost: decodes each value once, plus about 20 ns per number, or 1 ns if
 * it has 8 bits. Memory: for each thread, up to 64 MiB per field and one decoded
 * datapoint.
 */
BAGS_EXPERIMENTAL bags_code bags_stats(const bags_reader *reader,
    const char *const *fields, size_t count, const bags_stats_options *options,
    bags_buffer *out, size_t *elements, bags_error *err);

#ifndef BAGS_NO_VERIFY

/* ========================================================================
 * >>verify-all
 * bags_verify with several threads, and of data that a writer has flushed. No library;
 * needs threads.
 * ====================================================================== */

typedef struct bags_verify_all_options {
    /* part and parts must be 0. max_faults limits the sum of all threads. Only one
     * thread at a time calls each, progress and undecoded, possibly not the calling
     * thread. */
    bags_verify_options verify;
    uint32_t threads; /* 0: the number of processors */
    /* Check the datapoints that were flushed to unfinished shards, instead of reporting
     * these shards. Missing shards are not a fault. The path must be local, otherwise
     * unfinished shards are skipped. Excludes quick and unfinished. */
    bool live;
} bags_verify_all_options;

/*
 * Find every fault, like bags_verify.
 *
 *   report  receives the counts of all threads, also on failure. May be NULL
 *
 * Returns BAGS_OK, even if there are faults (see report->faults), or the error that ended
 * the verification: see bags_verify.
 *
 * Threads: any. Cost: as bags_verify. With live, each flushed datapoint is read once
 * more.
 */
BAGS_EXPERIMENTAL bags_code bags_verify_all(const char *path,
    const bags_verify_all_options *options, bags_verify_report *report,
    bags_error *err);

#endif /* BAGS_NO_VERIFY */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_DATASETS_H */
