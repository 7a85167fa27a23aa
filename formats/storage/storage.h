/*
 * storage.h - datasets that are not local directories: hooks (bags_env.io) for every
 * function of bags.h that reads.
 *
 *     file          subject           library
 *     archive.c     zip, tar          none
 *     zip.c         to write a zip    none
 *     copy.c        copies            none             -pthread
 *     http.c        URLs, S3          libcurl, libssl  -lcurl -lssl -lcrypto -pthread
 *                   (storage/README.md lists its other files)
 *     cache.c       what was read     none             -pthread (with cache_files.c)
 *     catalogue.c   lists of shards   none
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

/* The default limit on an archive's members: 16 million. */
#define BAGS_ARCHIVE_MAX_MEMBERS ((uint64_t)1 << 24)

typedef struct bags_archive_options {
    uint64_t max_members; /* reject archives with more members; 0:
                             BAGS_ARCHIVE_MAX_MEMBERS */
    bags_env env;         /* env.io: hooks that read the archive; any hooks will do */
} bags_archive_options;

/*
 * Open an archive: a zip file whose members are stored without compression (zip64 and
 * leading bytes are supported), or an uncompressed tar file (GNU, pax or older).
 *
 * Its members then form a read-only tree of files below the archive's path. If the
 * hooks can map files, the archive is mapped once, and readers return pointers into
 * this map. Otherwise it is read with many small reads; hooks for remote files should
 * keep what they read, as http.c does. read_many announces the next reads: the last
 * MiB, the directory, and the header and last 4 KiB of each member that is opened.
 *
 * Returns the archive, to be closed with bags_archive_close after the readers that
 * use it, or NULL:
 *   BAGS_ERROR_MISSING  no such file
 *   BAGS_ERROR_CORRUPT  neither zip nor tar, or compressed as a unit (.tar.gz); damaged
 *                       or truncated; a member that lies outside (its name is absolute
 *                       or contains ..), is a duplicate, overlaps another, or extends
 *                       past the end. (A local header that contradicts the directory is
 *                       found when the member is opened: EBADMSG)
 *   BAGS_ERROR_VALUE    spans several disks; is sparse; or a member named like a
 *                       dataset's file is compressed, encrypted or a link. (Other
 *                       members of this kind cannot be opened: ENOTSUP, or ENXIO for a
 *                       link)
 *   BAGS_ERROR_LIMIT    more than max_members
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 * The message names the archive and the member.
 *
 * Threads: any. Cost: O(members log members); reads a zip's directory or every header
 * of a tar, but no data. Memory: 48 bytes per member, plus its name.
 */
BAGS_EXPERIMENTAL bags_archive *bags_archive_open(
    const char *path, const bags_archive_options *options, bags_error *err);

/* The hooks that read the members, for bags_env.io. Paths begin with the archive's path
 * exactly as it was opened. Writing fails with EROFS. Valid until the archive is
 * closed. Threads: any. */
BAGS_EXPERIMENTAL const bags_io *bags_archive_io(const bags_archive *archive);

/* Close an archive. Everything that uses its hooks must be closed first. NULL is
 * accepted. */
BAGS_EXPERIMENTAL void bags_archive_close(bags_archive *archive);

/* ========================================================================
 * >>zip
 * Pack a dataset into a single file for bags_archive_open and any unzip. No library.
 * ====================================================================== */

typedef struct bags_zip_options {
    bool no_sync; /* do not wait for stable storage */
    bool whole;   /* also accept blobs that no datapoint refers to */
    /* Called from time to time with the bytes copied so far and the dataset's total.
     * The first call has `done` 0, once PATH.partial has been created. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_io *from; /* hooks that read the dataset; NULL: env.io */
    /* Additional files to include, such as indexes, named relative to the dataset's
     * directory: "index/id.bag". Missing files are left out. */
    const char *const *files;
    size_t files_count;
    bags_env env; /* env.io: hooks that write the zip file */
} bags_zip_options;

/*
 * Write a finished dataset as a new zip file. (A file that another process creates at
 * the last moment is replaced.)
 *
 * It contains the files of the dataset (spec.json, the Bags, .crc, .idx, .dict and the
 * mark of bags_finalize), and `files`, under their names in its directory, without
 * compression. Every Bag starts at a multiple of 4,096 bytes. Files of 64 KiB or more
 * come first, then smaller files, then the spec.json files, each in shard order, so
 * that the files a remote reader needs first are near the end. The same dataset always
 * produces the same bytes.
 *
 * The file is written as PATH.partial, and renamed when it is complete. Until then it
 * is locked. After a failure it is removed. The next call overwrites a file left by a
 * killed process.
 *
 * Zip files are passed on to others, and blobs that no datapoint refers to may be ones
 * that a selection was meant to leave out. A dataset with such blobs therefore needs
 * `whole`. bags_derive with `copy` makes a dataset without them.
 *
 * Returns BAGS_OK, an error from bags_reader_open or bags_unreferenced for the dataset,
 * or
 *   BAGS_ERROR_VALUE    it has blobs that no datapoint refers to, and `whole` is not
 *                       set
 *   BAGS_ERROR_EXISTS   the zip file exists
 *   BAGS_ERROR_LOCKED   another running process is writing it
 *   BAGS_ERROR_CORRUPT  the dataset changed while it was being read
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: reads every byte once; without `whole`, also calls
 * bags_unreferenced. Memory: 2 MiB, plus about 100 bytes per file.
 */
BAGS_EXPERIMENTAL bags_code bags_zip(const char *dataset, const char *path,
    const bags_zip_options *options, bags_error *err);

/* ========================================================================
 * >>copy
 * Copy a dataset or a Bag to another directory or to an object store, and continue a
 * copy that was interrupted. No library except the system's threads.
 * ====================================================================== */

/* An object store, as copies use it: bags_http_upload and bags_http_same, whose first
 * argument is `user`. Called by any thread. */
typedef struct bags_copy_objects {
    void *user;
    bags_code (*upload)(void *user, const char *url, const bags_io *io,
        const char *path, void (*progress)(void *progress_user, uint64_t bytes),
        void *progress_user, bags_error *err);
    bags_code (*same)(void *user, const char *url, const bags_io *io, const char *path,
        bool *same, bags_error *err);
} bags_copy_objects;

typedef struct bags_copy_options {
    bool whole;          /* also copy blobs that no datapoint refers to */
    const bags_io *from; /* hooks that read the source; NULL: env.io */
    const bags_io *to;   /* hooks for the copy; NULL: env.io */
    /* The servers of the source and the copy. NULL: the source is not at a URL; the
     * copy is local. */
    const bags_copy_objects *from_objects, *to_objects;
    /* Additional files for a copy in an object store, such as indexes, named relative
     * to the dataset's directory: "index/id.bag". Missing files are left out, and
     * existing ones replaced. */
    const char *const *files;
    size_t files_count;
    /* Called by the caller's thread about every 100 ms with the bytes copied so far and
     * the total. The first call has `done` 0, before anything is written. If it returns
     * false, the copy fails with BAGS_ERROR_IO, once uploads that are in progress have
     * ended. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env; /* the allocator; for env.io, see `from` and `to` */
} bags_copy_options;

typedef struct bags_copy_report {
    uint64_t copied, kept; /* files */
    uint64_t size;         /* bytes of all files */
} bags_copy_report;

/*
 * Copy a finished dataset, or a Bag: first each Bag with its .crc, .idx and .dict
 * files, then each spec.json, so that the copy is unfinished until it is complete.
 *
 *   from  a dataset, or the path of a .bag. (The checksums of a Bag in a dataset are not
 *         copied: they belong to the dataset)
 *   to    a local path whose missing parents are created or, with to_objects, a URL
 *
 * After an interruption, call it again. If the source has not changed, complete files
 * are kept, and an incomplete local file continues at its end, unless the system was
 * restarted. An object is kept if its size and ETag are equal (bags_http_same). If the
 * copy is complete, all files are compared. Finished files that differ are never
 * replaced. A local copy is locked against other copies; run only one at a time to an
 * object store.
 *
 * Returns BAGS_OK, an error from bags_reader_open, bags_unreferenced or the upload, or
 *   BAGS_ERROR_ARGUMENT  `to` is inside a dataset; only one of the paths ends in .bag
 *   BAGS_ERROR_VALUE     blobs that no datapoint refers to, and `whole` is not set
 *   BAGS_ERROR_EXISTS    `to` has another dataset, or a file that differs
 *   BAGS_ERROR_UNFINISHED, BAGS_ERROR_LOCKED
 *                        `to` has an unfinished dataset; another process copies to it
 *   BAGS_ERROR_CORRUPT   the source changed while it was being read
 *   BAGS_ERROR_LIMIT     a path of 4,096 bytes or more
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * *report (may be NULL) is 0 after a failure. Threads: any. Cost: reads every byte
 * once, with 2 threads between local paths, 8 for uploads and 32 from a server; without
 * `whole`, also calls bags_unreferenced. Memory: 2 MiB per thread, and about 400 bytes
 * per file.
 */
BAGS_EXPERIMENTAL bags_code bags_copy(const char *from, const char *to,
    const bags_copy_options *options, bags_copy_report *report, bags_error *err);

/* ========================================================================
 * >>http
 * Datasets on web servers and in object stores: hooks whose paths are URLs, for
 * every function of bags.h that reads.
 *
 *     https://host/ds   http://host/ds   s3://bucket/ds
 *
 * S3 requests are signed with SigV4, or unsigned if there are no keys. Azure and Google
 * Cloud are read through signed URLs; pass their query in the options.
 *
 * An object is looked up once, with a single request for its last 32 KiB. Its size,
 * ETag and Last-Modified, or the fact that it is missing, are remembered until
 * bags_http_close. Replacing an object in the meantime is an error. So is replacing a
 * dataset: its spec.json is looked up again with the first read after a lookup of a
 * file next to it. If ETags are content hashes, or Last-Modified is missing, that read
 * also looks up again all files of the shard that were looked up before. Open another
 * bags_http to read the new version. Caches that return outdated files despite
 * "no-cache", and servers that send neither an ETag nor a Last-Modified (see
 * bags_http_is_versioned), can hide a change that keeps the size. Only checksums detect
 * such a change.
 *
 * A dataset's shards are listed by S3's API (s3://), by Azure's (the host
 * ACCOUNT.blob.core.windows.net) or Google Cloud's (storage.googleapis.com), or from
 * the directory's index page (nginx's autoindex, Apache, Python's http.server). If none
 * answers, 000000, 000001,
 * ... are looked up until four in a row are missing, so a shard after such a gap is not
 * seen. If 999999 exists, the server ignores a folder of the path, and no shard is
 * listed.
 * ====================================================================== */

typedef struct bags_http bags_http;

/* A server's answer to the lookup of an object. */
typedef struct bags_http_answer {
    uint64_t size;     /* of the object, in bytes */
    char tag[512];     /* ETag */
    char modified[64]; /* Last-Modified, or "" */
} bags_http_answer;

/* Strings are copied. For S3 settings, NULL means the value from the environment:
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; AWS_REGION or
 * AWS_DEFAULT_REGION; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; otherwise from the
 * profile AWS_PROFILE in ~/.aws/credentials and ~/.aws/config. An empty variable counts
 * as unset. Without keys, the first S3 request searches for temporary credentials in a
 * thread of its own: the role of a profile, web identity, SSO, credential_process,
 * container and instance roles (storage/README.md). They are renewed before they end.
 * credential_process runs a program. A renewed token of SSO replaces the old one in
 * ~/.aws/sso/cache. */
typedef struct bags_http_options {
    const char *query; /* appended, already encoded, to every http(s) URL after a "?": a
                          signed URL's signature, a version */
    const char *user;  /* NAME:PASSWORD for http(s) URLs, encoded as in a URL */
    const char *key, *secret, *token; /* for S3 */
    const char *region;               /* for S3; if none is set, us-east-1 */
    const char *endpoint; /* for S3: https://host[:port], used in path style */
    const char *ca_file;  /* certificates to trust; NULL: the system's */
    double retry_seconds; /* how long to retry a failed request: 429, 5xx, truncated,
                             stalled, refused (5 s at most until the server has answered
                             a request). 0: 50 */
    double stall_seconds; /* a transfer without progress for this long fails and is
                             retried. 0: 30 */
    size_t connections;   /* most connections; 0: 576, but at most two thirds of the
                             descriptors that the process may open (ulimit -n) */
    /* Most requests that begin per second and server (host and port). The requests of
     * all processes of this user on this machine count. 0: no limit. */
    double requests_per_second;
    uint64_t part_size;  /* bytes per part of an upload, 5 MiB to 5 GiB as S3 requires;
                             0: 64 MiB */
    bool no_read_ahead;  /* no read-ahead (up to 8 MiB) for files read sequentially */
    bool no_catalogue;   /* read every file as the server has it, to verify a dataset */
    uint64_t cache_size; /* memory for bytes looked up, read ahead or requested in
                             advance; 0: 256 MiB */
    /* A store of earlier answers, such as bags_cache_recall, so that a lookup only asks
     * whether the object has changed. NULL: none. recall fills in an answer and returns
     * true if it has one; remember copies the answer. `path` is the URL; with a query,
     * a user or an endpoint it ends in "?" and their hash. Called by any thread. */
    bool (*recall)(void *user, const char *path, bags_http_answer *answer);
    void (*remember)(void *user, const char *path, const bags_http_answer *answer);
    void *cache; /* passed to both as `user` */
    /* Called about every 100 ms by a thread that waits for a server, without holding
     * these hooks' locks. If it returns true, the hook gives up with EINTR and may be
     * called again. NULL: never give up. Uploads do not call it. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
} bags_http_options;

/*
 * Open the hooks. No request is made yet.
 *
 * Returns the object, to be closed with bags_http_close, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_MEMORY    out of memory or threads
 *
 * The object has its own threads: one per core, but at most 4 and at most one per 16
 * connections. After a fork only the parent may use the object; in the child every hook
 * fails. Initializes libcurl, and libcrypto without its cleanup at exit, so that a
 * program may exit while the object is open.
 */
BAGS_EXPERIMENTAL bags_http *bags_http_open(
    const bags_http_options *options, bags_error *err);

/* Stop all transfers and free the object. NULL is accepted. Everything that uses its
 * hooks must be closed first. */
BAGS_EXPERIMENTAL void bags_http_close(bags_http *http);

/*
 * The hooks, valid until bags_http_close. Threads: any.
 *
 * Memory: cache_size, plus about 400 bytes for each object looked up, until
 * bags_http_close.
 *
 * An object is identified (by the hook identify) by its ETag, Last-Modified and size,
 * and by the query and user, or S3's endpoint. Parameters of known signatures are
 * ignored: X-Amz-*, X-Goog-*, Azure's next to `sig`, CloudFront's next to `Signature`.
 *
 * A path is an encoded URL; for s3:// it contains the key verbatim. A missing object is
 * ENOENT; a refused one is EACCES, or EPERM if the key or its signature is invalid; a
 * changed one is ESTALE; everything else is EIO. Messages contain the status and the
 * server's own code, but never a key, a query or a password. Cost: one round trip for
 * all that is requested together.
 */
BAGS_EXPERIMENTAL const bags_io *bags_http_io(const bags_http *http);

/* True if a path begins with http://, https:// or s3://. */
BAGS_EXPERIMENTAL bool bags_http_is_url(const char *path);

/* Count the requests made so far, including retries, and the body bytes received. */
BAGS_EXPERIMENTAL void bags_http_counts(
    bags_http *http, uint64_t *requests, uint64_t *bytes);

/* False if some object was found with neither an ETag nor a Last-Modified: replacing it
 * goes unnoticed unless the size changes. Threads: any. */
BAGS_EXPERIMENTAL bool bags_http_is_versioned(bags_http *http);

/*
 * Upload a file, read through `io`, to s3://: in one request up to part_size, otherwise
 * in parts. The parts are discarded after a failure (but not if the process is killed:
 * let a lifecycle rule of the bucket abort incomplete multipart uploads). The object
 * appears when it is complete, and replaces any object of the same name. Every request
 * carries its body's MD5, checked by the server. These hooks do not notice the new
 * object.
 *
 *   progress  called with the number of bytes after each request; may be NULL
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  not an s3:// URL
 *   BAGS_ERROR_MISSING, BAGS_ERROR_CORRUPT
 *                        the file is missing, or is truncated while it is being read
 *   BAGS_ERROR_IO        the file cannot be read, or the server refuses it
 *   BAGS_ERROR_MEMORY    out of memory: a part is held in memory
 *
 * Threads: any.
 */
BAGS_EXPERIMENTAL bags_code bags_http_upload(bags_http *http, const char *url,
    const bags_io *io, const char *path, void (*progress)(void *user, uint64_t bytes),
    void *user, bags_error *err);

/* *same: the object exists, and has the size and ETag that bags_http_upload would give
 * it for this file, so that no copy is needed in either direction. Reads the file only
 * if the sizes are equal. Errors and threads as above; a missing object is not a
 * failure. */
BAGS_EXPERIMENTAL bags_code bags_http_same(bags_http *http, const char *url,
    const bags_io *io, const char *path, bool *same, bags_error *err);

/* Call each() with every name in a listing until it returns nonzero, and return that
 * value. Names are the links of an index page or, with `xml`, the keys and prefixes of
 * S3's ListObjectsV2, or the names of Azure's List Blobs. prefix: the text that
 * precedes a name, not encoded. Names that contain a slash, . and .. are left out.
 * `page` need not be valid. */
BAGS_EXPERIMENTAL int bags_http_names(const void *page, size_t size, bool xml,
    const char *prefix, int (*each)(void *user, const char *name), void *user);

/* ========================================================================
 * >>catalogue
 * A file in the first shard, 000000/catalogue, that describes the files of all shards.
 * bags_http then opens a dataset with any number of shards in at most three round
 * trips, and requests nothing else from a shard before a datapoint in it is read. Other
 * readers ignore the file. No library.
 *
 * A catalogue contains, for each shard, the size of each Bag, the offset of its table,
 * and the CRC that binds the shard's files together (the same in all NAME.crc). Until a
 * file is read, its size is the catalogue's. The first answer for a file must state
 * this size, and all later answers the same ETag. Before the data of a shard are
 * returned, the CRC at the end of its refs.crc must equal the catalogue's. A difference
 * is an error that names the catalogue. If the CRC of the first or last shard differs
 * when a dataset is opened, or the catalogue is damaged, it is ignored.
 *
 * Writing or renumbering a shard with bags.h removes the catalogue. Copies and other
 * versions of a dataset do not contain it.
 * ====================================================================== */

typedef struct bags_catalogue_options {
    bool no_sync; /* do not wait for stable storage */
    bags_env env;
} bags_catalogue_options;

/*
 * Write the catalogue of a finished dataset, or replace it. The file is written as
 * 000000/catalogue.partial, locked, and renamed when it is complete.
 *
 * Returns BAGS_OK, an error from bags_reader_open with verify_checksums, or
 *   BAGS_ERROR_MISSING  not sharded; or it has no checksums (bags_checksum writes them)
 *   BAGS_ERROR_GAP      the shards are not numbered 000000, 000001, ...
 *   BAGS_ERROR_VALUE    a Bag has no leading 0 in its table (granular 0.20 and later)
 *   BAGS_ERROR_LOCKED   another process is writing the catalogue
 *   BAGS_ERROR_CHANGED  the dataset changed meanwhile
 *   BAGS_ERROR_LIMIT    more than 1,000,000 shards, or 512 MiB
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: three small reads per Bag. Memory: 8 bytes per shard and 16 per
 * Bag, in addition to a reader of the dataset.
 */
BAGS_EXPERIMENTAL bags_code bags_catalogue(
    const char *path, const bags_catalogue_options *options, bags_error *err);

/* Make the same bytes in memory, for a copy of the dataset: *size bytes of an empty
 * buffer. The caller frees it. `env` may be NULL. Errors, threads
 * and cost as for bags_catalogue. */
BAGS_EXPERIMENTAL bags_code bags_catalogue_make(const char *path, const bags_env *env,
    bags_buffer *out, size_t *size, bags_error *err);

/* ========================================================================
 * >>cache
 * Cache the bytes of remote files in a directory: hooks that wrap other hooks. No
 * library. Not on Windows.
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
 * Bytes are kept in 16 KiB blocks, keyed by path and version identity (the hook
 * identify): for a server, the ETag, Last-Modified, size, query and user. A replaced
 * file is a new object, so the bytes of two versions are never mixed. Every open asks
 * the server for its current version. Files without an identity are not cached.
 *
 * Any number of processes may share a directory; if one process is fetching a block,
 * the others wait for it. Each block has a checksum, so anything left by a crash or a
 * full or failing disk is simply fetched again. The directory may be deleted at any
 * time: open caches then store nothing more. Only files in DIRECTORY/bags-cache-1 are
 * ever deleted.
 * ====================================================================== */

typedef struct bags_cache bags_cache;

#define BAGS_CACHE_LEAST (1 << 18) /* bytes */

typedef struct bags_cache_options {
    /* Most bytes on disk, for all processes together; the least recently used data is
     * deleted. 0: 10 GiB; at least BAGS_CACHE_LEAST. */
    uint64_t size;
    /* Called at most once, by any thread, if the directory cannot be written, for
     * example because the disk is full. Reading continues, but nothing more is kept.
     * May be NULL. */
    void (*warn)(void *user, const char *message);
    void *user;
    /* As in bags_http_options; called by a thread that waits for a block that another
     * thread or process is fetching. */
    bool (*interrupted)(void *user);
    void *interrupted_user;
} bags_cache_options;

/*
 * Open a cache directory, or create it.
 *
 * Returns the cache, to be closed with bags_cache_close after everything that uses its
 * hooks, but before the hooks below them; or NULL:
 *   BAGS_ERROR_ARGUMENT  the size is too small
 *   BAGS_ERROR_IO        it cannot be created; or its directory bags-cache-1 was not
 *                        made by cache.c, belongs to another user, or is writable by
 *                        others
 *   BAGS_ERROR_MEMORY    out of memory
 */
BAGS_EXPERIMENTAL bags_cache *bags_cache_open(
    const char *directory, const bags_cache_options *options, bags_error *err);

/* Hooks that read through `inner` and keep the bytes; they cannot write. Valid until
 * the cache is closed. NULL: out of memory. Threads: any. A child made by fork() reads
 * through them without the cache, and closing the cache there does nothing. */
BAGS_EXPERIMENTAL const bags_io *bags_cache_io(
    bags_cache *cache, const bags_io *inner, bags_error *err);

/* For bags_http_options: lookups of known objects then transfer no data (304). */
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
