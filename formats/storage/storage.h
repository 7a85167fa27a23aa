/*
 * storage.h - datasets that are not directories of this computer: hooks (bags_env.io)
 * for every function of bags.h that reads.
 *
 *     file          subject           library
 *     archive.c     zip, tar          none
 *     zip.c         to write a zip    none
 *     http.c        URLs, S3          libcurl, libssl  -lcurl -lssl -lcrypto -pthread
 *                   (storage/README.md lists its other files)
 *     cache.c       what was read     none             -pthread (with cache_files.c)
 */
#ifndef BAGS_STORAGE_H
#define BAGS_STORAGE_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>archive
 * Datasets and Bags inside a zip or tar file, read in place. No library.
 *
 *     bags_archive *archive = bags_archive_open("pets.zip", NULL, &err);
 *     bags_reader_options options = {0};
 *     options.env.io = bags_archive_io(archive);
 *     bags_reader *reader = bags_reader_open("pets.zip/train", &options, &err);
 *     ...
 *     bags_reader_close(reader);
 *     bags_archive_close(archive);
 * ====================================================================== */

typedef struct bags_archive bags_archive;

/* The most members of an archive, unless options allow more: 16 million. */
#define BAGS_ARCHIVE_MAX_MEMBERS ((uint64_t)1 << 24)

typedef struct bags_archive_options {
    uint64_t max_members; /* reject an archive with more; 0:
                             BAGS_ARCHIVE_MAX_MEMBERS */
    bags_env env;         /* env.io: where the archive is. Any hooks that read */
} bags_archive_options;

/*
 * Open an archive: a zip file whose members are stored without compression (zip64
 * too, and with leading bytes), or an uncompressed tar file (GNU, pax or older).
 *
 * Its members are then a read-only tree of files below the archive's path. If the hooks
 * can map files, the archive is mapped once, and readers return pointers into this map.
 * Otherwise it is read with many small reads; hooks for remote files should keep what
 * they read, as http.c does. read_many announces the next reads: the last MiB, the
 * directory, and of each member that is opened its header and its last 4 KiB.
 *
 * Returns the archive, to be closed with bags_archive_close after the readers that
 * use it, or NULL:
 *   BAGS_ERROR_MISSING  no such file
 *   BAGS_ERROR_CORRUPT  neither zip nor tar, or compressed as a unit (.tar.gz);
 *                       damaged or truncated; a member that is outside (an absolute
 *                       name, or one with ..), duplicate, overlaps another, or extends
 *                       past the end. (A local header that contradicts the directory
 *                       is found when the member is opened: EBADMSG)
 *   BAGS_ERROR_VALUE    of several disks; sparse; or a member with the name of a
 *                       dataset's file is compressed, encrypted or a link. (Others of
 *                       that kind cannot be opened: ENOTSUP, or ENXIO for a link)
 *   BAGS_ERROR_LIMIT    more than max_members
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 * The message names the archive and the member.
 *
 * Threads: any. Cost: O(members log members); the directory of a zip is read, or every
 * header of a tar, but no data. Memory: 48 bytes per member, and its name.
 */
BAGS_EXPERIMENTAL bags_archive *bags_archive_open(
    const char *path, const bags_archive_options *options, bags_error *err);

/* The hooks for the members, for bags_env.io: paths begin with the archive's path
 * as it was opened. Writing fails with EROFS. Valid until the archive is closed.
 * Threads: any. */
BAGS_EXPERIMENTAL const bags_io *bags_archive_io(const bags_archive *archive);

/* Close an archive, after everything that uses its hooks. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_archive_close(bags_archive *archive);

/* ========================================================================
 * >>zip
 * A dataset as one file, for bags_archive_open and every unzip. No library.
 * ====================================================================== */

typedef struct bags_zip_options {
    bool no_sync; /* do not wait for stable storage */
    bool whole;   /* also with blobs that no datapoint refers to */
    /* Called from time to time with the bytes copied, and all bytes of the dataset;
     * first with `done` 0, when PATH.partial has been created. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_io *from; /* where the dataset is; NULL: env.io */
    /* Further files to be included, such as indexes: their names in the dataset's
     * directory, "index/id.bag". Those that do not exist are left out. */
    const char *const *files;
    size_t files_count;
    bags_env env; /* env.io: where the zip file will be */
} bags_zip_options;

/*
 * Write a finished dataset as a new zip file. (A file that another process creates in
 * the last moment is replaced.)
 *
 * It contains the files of the dataset (spec.json, the Bags, .crc, .idx, .dict and the
 * mark of bags_finalize), and `files`, under their names in its directory, without
 * compression. Every Bag starts at a multiple of 4,096 bytes. Files of 64 KiB or more
 * are first, then smaller ones, then those named spec.json, each in the order of the
 * shards: what a remote reader needs first is near the end. One dataset always makes
 * the same bytes.
 *
 * It is written as PATH.partial, and renamed when it is complete. Until then that file
 * is locked. After a failure it is removed. The next call overwrites the
 * file of a killed process.
 *
 * A zip file is passed on, and blobs that no datapoint refers to may be what a
 * selection was to leave out: a dataset that has any needs `whole`. bags_derive with
 * `copy` makes one without them.
 *
 * Returns BAGS_OK, what bags_reader_open and bags_unreferenced return for the dataset,
 * or
 *   BAGS_ERROR_VALUE    it has blobs that no datapoint refers to, and `whole` is not
 *                       set
 *   BAGS_ERROR_EXISTS   the zip file exists
 *   BAGS_ERROR_LOCKED   another running process writes it
 *   BAGS_ERROR_CORRUPT  the dataset changed while it was read
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: reads every byte once, and without `whole` calls
 * bags_unreferenced. Memory: 2 MiB, and about 100 bytes per file.
 */
BAGS_EXPERIMENTAL bags_code bags_zip(const char *dataset, const char *path,
    const bags_zip_options *options, bags_error *err);

/* ========================================================================
 * >>http
 * Datasets on web servers and in object stores: hooks whose paths are URLs, for
 * every function of bags.h that reads.
 *
 *     https://host/ds   http://host/ds   s3://bucket/ds
 *
 * S3 is signed with SigV4, and not signed without keys. Azure and Google Cloud are
 * read by signed URLs, whose query belongs in the options.
 *
 * An object is looked up once, by one request for its last 32 KiB. Its size, ETag and
 * Last-Modified are remembered until bags_http_close, and so is that it is missing. An
 * object that is replaced in the meantime is an error, and so is a dataset: its
 * spec.json is looked up again with the first read after a lookup of a file next to it.
 * Where ETags are hashes of the content, or without Last-Modified, that read also looks up
 * all files of the shard that were looked up before. Open another bags_http to read the
 * new version. Caches that return outdated files in spite of "no-cache", and servers that
 * state neither an ETag nor a Last-Modified (see bags_http_is_versioned), can hide a change
 * that leaves the size as it was: then only checksums find it.
 *
 * The shards of a dataset are listed by S3's API (s3://), or from the index page of
 * the directory (nginx's autoindex, Apache, Python's http.server). Where neither
 * exists, 000000, 000001, ... are looked up until four in a row are missing: then a
 * shard after such a gap is not seen. If 999999 exists, the server ignores a folder of the
 * path, and no shard is listed.
 * ====================================================================== */

typedef struct bags_http bags_http;

/* The answer of a server to the lookup of an object. */
typedef struct bags_http_answer {
    uint64_t size;     /* of the object */
    char tag[512];     /* ETag */
    char modified[64]; /* Last-Modified, or "" */
} bags_http_answer;

/* Strings are copied. For S3, NULL means what the environment states:
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; AWS_REGION or
 * AWS_DEFAULT_REGION; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; otherwise what the
 * profile AWS_PROFILE in ~/.aws/credentials and ~/.aws/config does. An empty
 * variable is an unset one. */
typedef struct bags_http_options {
    const char *query; /* appended to every http(s) URL after a "?", encoded: the
                          signature of a signed URL, a version */
    const char *user;  /* NAME:PASSWORD, encoded as in a URL, for http(s) URLs */
    const char *key, *secret, *token; /* of S3 */
    const char *region;               /* of S3; without any, us-east-1 */
    const char *endpoint; /* of S3: https://host[:port], then in path style */
    const char *ca_file;  /* certificates to trust; NULL: the system's */
    double retry_seconds; /* how long a request that fails is repeated: 429, 5xx,
                             truncated, stalled, refused (5 s at most until the
                             server has answered a request). 0: 50 */
    double stall_seconds; /* a transfer that does not move for this time fails,
                             and is repeated. 0: 30 */
    size_t connections;   /* at most; 0: 384 */
    uint64_t part_size;   /* bytes of the parts of an upload, 5 MiB to 5 GiB, as S3
                             demands; 0: 64 MiB */
    bool no_read_ahead;   /* of files that are read in order: up to 8 MiB */
    uint64_t cache_size;  /* bytes of memory for what was looked up, read ahead or
                             requested in advance; 0: 256 MiB */
    /* Where former answers are kept, such as bags_cache_recall: then a lookup asks only
     * whether the object has changed. NULL: nowhere. recall fills in an answer and
     * returns true if there is one; remember copies it. `path` is the URL; with a
     * query, a user or an endpoint it ends in "?" and their hash. Any thread. */
    bool (*recall)(void *user, const char *path, bags_http_answer *answer);
    void (*remember)(void *user, const char *path, const bags_http_answer *answer);
    void *cache; /* their `user` */
    /* Called about every 100 ms by a thread that waits for a server, without a lock of
     * these hooks; true: the hook gives up, with EINTR, and may be called again. NULL:
     * they wait. Uploads do not call it. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
} bags_http_options;

/*
 * Open the hooks. No request is made yet.
 *
 * Returns the object, to be closed with bags_http_close, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_MEMORY    out of memory, or of threads
 *
 * It has threads of its own: one for each core and each 16 connections, at most 4.
 * After a fork only the parent may use it: in the child every hook fails. Initializes
 * libcurl, and libcrypto without its cleanup at exit, so that a program may exit while
 * it is open.
 */
BAGS_EXPERIMENTAL bags_http *bags_http_open(
    const bags_http_options *options, bags_error *err);

/* Stop all transfers and free it. NULL is accepted. Everything that uses its hooks
 * must be closed. */
BAGS_EXPERIMENTAL void bags_http_close(bags_http *http);

/*
 * The hooks, valid until bags_http_close. Threads: any.
 *
 * Memory: cache_size, and about 400 bytes for each object that was looked up, until
 * bags_http_close.
 *
 * An object is identified (the hook identify) by its ETag, Last-Modified and size, and
 * the query and the user, or the endpoint of S3. The parameters of known signatures do
 * not count: X-Amz-*, X-Goog-*, Azure's next to `sig`, those next to `Signature`
 * (CloudFront).
 *
 * A path is an encoded URL; in s3:// it is the key as it is. A missing object is
 * ENOENT, a refused one EACCES, or EPERM if the key or its signature is invalid, a
 * changed one ESTALE, everything else EIO; messages have the status and the server's
 * own code, and never a key, a query or a password. Cost: one round trip for
 * everything that is requested together.
 */
BAGS_EXPERIMENTAL const bags_io *bags_http_io(const bags_http *http);

/* True if a path begins with http://, https:// or s3://. */
BAGS_EXPERIMENTAL bool bags_http_is_url(const char *path);

/* How many requests were made so far, repeated ones included, and how many bytes of
 * bodies were received. */
BAGS_EXPERIMENTAL void bags_http_counts(
    bags_http *http, uint64_t *requests, uint64_t *bytes);

/* False if an object that was found has neither an ETag nor a Last-Modified: its
 * replacement is noticed only if the size differs. Threads: any. */
BAGS_EXPERIMENTAL bool bags_http_is_versioned(bags_http *http);

/*
 * Upload a file that `io` reads to s3://: with one request up to part_size, otherwise
 * in parts. They are discarded after a failure (but not if the process is killed: let a
 * lifecycle rule of the bucket abort incomplete multipart uploads). The object appears
 * when it is complete, and replaces one of the same name. Every request has the MD5 of
 * its body, and the server checks it. These hooks do not learn of the new object.
 *
 *   progress  called with the number of bytes after each request; may be NULL
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  not an s3:// URL
 *   BAGS_ERROR_MISSING, BAGS_ERROR_CORRUPT
 *                        the file is missing, or is truncated while it is read
 *   BAGS_ERROR_IO        it cannot be read, or the server refuses it
 *   BAGS_ERROR_MEMORY    out of memory: a part is held in memory
 *
 * Threads: any.
 */
BAGS_EXPERIMENTAL bags_code bags_http_upload(bags_http *http, const char *url,
    const bags_io *io, const char *path, void (*progress)(void *user, uint64_t bytes),
    void *user, bags_error *err);

/* *same: the object exists, and has the size and the ETag that an upload of this file
 * by bags_http_upload has. Then the file need not be copied, in either direction.
 * Reads the file only if the sizes are equal. Errors and threads as above; a missing
 * object is not a failure. */
BAGS_EXPERIMENTAL bags_code bags_http_same(bags_http *http, const char *url,
    const bags_io *io, const char *path, bool *same, bags_error *err);

/* Call each() with the names in a listing, until it returns nonzero, and return
 * that: the links of an index page, or with `xml` the keys and prefixes of S3's
 * ListObjectsV2. prefix: what precedes a name, not encoded. Names with a slash
 * inside, . and .. are left out. `page` may contain anything. */
BAGS_EXPERIMENTAL int bags_http_names(const void *page, size_t size, bool xml,
    const char *prefix, int (*each)(void *user, const char *name), void *user);

/* ========================================================================
 * >>cache
 * Keep the bytes of remote files in a directory: hooks over other
 * hooks. No library. Not on Windows.
 *
 *     bags_cache *cache = bags_cache_open("/var/tmp/bags", NULL, &err);
 *     bags_http_options far = {0};
 *     far.recall = bags_cache_recall;
 *     far.remember = bags_cache_remember;
 *     far.cache = cache;
 *     bags_http *http = bags_http_open(&far, &err);
 *     options.env.io = bags_cache_io(cache, bags_http_io(http), &err);
 *     ...                                  the readers are closed, then
 *     bags_cache_close(cache);
 *     bags_http_close(http);
 *
 * Bytes are kept in blocks of 16 KiB for a path and the identity of its version (the
 * hook identify): of a server, ETag, Last-Modified, size, query and user. A replaced file
 * is another object; the bytes of two versions are never mixed. Every open asks the server
 * which version it has. Files that nothing identifies are not kept.
 *
 * Any number of processes may share a directory; a block that one is reading, the others
 * wait for. Each block has a checksum: whatever a crash, a full or a failing disk leaves
 * is a block that is read again. The directory may be deleted at any time: then its
 * open caches keep nothing more. Only files in its
 * DIRECTORY/bags-cache-1 are ever deleted.
 * ====================================================================== */

typedef struct bags_cache bags_cache;

#define BAGS_CACHE_LEAST (1 << 18) /* bytes */

typedef struct bags_cache_options {
    /* Bytes on disk, at most, of all processes: what was not used for the longest time
     * is deleted. 0: 10 GiB; at least BAGS_CACHE_LEAST. */
    uint64_t size;
    /* Called at most once, by any thread, if the directory cannot be written, since the
     * disk is full. Reading continues; nothing more is kept. May be NULL. */
    void (*warn)(void *user, const char *message);
    void *user;
    /* As in bags_http_options, by a thread that waits for a block that another one
     * reads. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
} bags_cache_options;

/*
 * Open a directory, or make it.
 *
 * Returns the cache, to be closed with bags_cache_close after everything that uses its
 * hooks, but before the hooks below them; or NULL:
 *   BAGS_ERROR_ARGUMENT  the size is too small
 *   BAGS_ERROR_IO        it cannot be made; or its directory bags-cache-1 is not of
 *                        this file, belongs to another user, or others may write to it
 *   BAGS_ERROR_MEMORY    out of memory
 */
BAGS_EXPERIMENTAL bags_cache *bags_cache_open(
    const char *directory, const bags_cache_options *options, bags_error *err);

/* The hooks that keep what `inner` reads; they only read. Valid until the cache is
 * closed. NULL: out of memory. Threads: any. A child made by fork() reads through them
 * without the cache, and closing the cache there does nothing. */
BAGS_EXPERIMENTAL const bags_io *bags_cache_io(
    bags_cache *cache, const bags_io *inner, bags_error *err);

/* See bags_http_options: lookups then are requests without data (304). */
BAGS_EXPERIMENTAL bool bags_cache_recall(
    void *cache, const char *path, bags_http_answer *answer);
BAGS_EXPERIMENTAL void bags_cache_remember(
    void *cache, const char *path, const bags_http_answer *answer);

/* NULL is accepted. */
BAGS_EXPERIMENTAL void bags_cache_close(bags_cache *cache);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_STORAGE_H */
