/*
 * objects.h - the state http.c keeps per URL, shared by its parts: objects and their
 * bytes (objects.c), files known from a catalogue (known.c), change detection
 * (version.c), lookups (lookup.c) and listings (listing.c). Each file uses only the
 * files listed before it. Programs do not include this header.
 *
 * The first request for an object fetches its last bytes. The response states its size
 * and ETag and, for a Bag, contains most of the table. All of this is remembered, and
 * later ranges must have the same ETag. Received bytes are kept in parts, up to a
 * limit; then the least recently used part is dropped. Reads, read-ahead and requests
 * in advance all take this path.
 *
 * The mutex of the engine guards everything here.
 */
#ifndef BAGS_FORMATS_OBJECTS_H
#define BAGS_FORMATS_OBJECTS_H

#include "transfer.h"

#include "catalogue.h"

#define HTTP_TAIL ((uint64_t)32 << 10) /* bytes fetched when an object is looked up */
#define HTTP_FORGET 10.0               /* seconds before a failed lookup is retried */
#define HTTP_FILES ".bag .idx .crc .dict .json .partial .zip .tar "
#define HTTP_CONTROL "no.such.file" /* sits next to a dataset's files */

/* Bytes of an object, either in memory or being fetched. */
typedef struct http_part {
    struct http_object *object;
    struct http_part *newer, *older; /* in the list of all parts */
    uint64_t start, stop;
    bags_buffer data;
    unsigned users; /* calls that wait for this part or copy from it */
    http_state state;
} http_part;

/* The state of a URL; also serves as the handle of an open file. Lives until
 * bags_http_close, unless bagi_http_release frees it: see `uses`. */
typedef struct http_object {
    struct http_object *next; /* in the same hash bucket */
    char *path;
    http_state state;
    int error; /* errno of a failed lookup */
    char *why; /* why the last failed request failed */
    int why_error;
    double when;
    uint64_t size;
    char *tag;                   /* ETag, or else Last-Modified; NULL: neither */
    bags_identity identity;      /* its ETag, Last-Modified and size */
    struct http_object *record;  /* the spec.json next to it; NULL: this is a
                                    spec.json */
    struct http_object *sibling; /* the next file with the same record */
    bool in_dataset; /* spec.json was already found or requested, so this is a field's
                        file */
    bool early;      /* requested before spec.json was found */
    /* If a catalogue describes it: */
    struct http_known *known;
    uint64_t shard;
    size_t bag;   /* index of the field; for refs, their number */
    bool adopted; /* `tag` is from the first answer */
    size_t uses;  /* open handles, waiting calls, and objects whose record this is */
    bool is_html;
    bool is_real;      /* not the page that bagi_http_refuse_page refuses */
    bool is_directory; /* the server redirects to the path plus a slash */
    uint64_t asked; /* `looked` + 1 at its lookup; for a spec.json, at its last check */
    bags_buffer parts; /* pointers to http_part, sorted by start */
    size_t count;      /* number of parts */
    uint64_t longest;  /* size of the longest part ever held */
    bags_buffer names; /* of a directory: NUL-terminated names, one after the other;
                          after a failure, links on a page that may not be a listing */
    size_t names_size;
    /* For a spec.json: */
    bool used;                 /* a file next to it was opened, so a check can be due */
    bool grown;                /* the shard after it was missing and now exists */
    struct http_object *files; /* the files next to it that were looked up */
    uint64_t answered;         /* `looked` after the last of these lookups */
    size_t checks;             /* running requests that check these files */
    bool cut; /* of a directory: the listing ended early, because of a catalogue */
    /* For sequential reads: */
    uint64_t last;   /* where the last read ended */
    uint64_t ahead;  /* where the read-ahead ends */
    uint64_t window; /* how far to read ahead; 0: reads are not sequential */
} http_object;

/* The catalogue of a dataset. */
typedef struct http_known {
    struct http_known *next;
    char *path; /* of the dataset, with a slash */
    size_t path_size;
    unsigned char *data; /* the catalogue's bytes */
    catalogue_view catalogue;
    uint64_t hash;   /* identifies them */
    unsigned checks; /* running requests that decide if it is used */
    bool begun;      /* they were started */
    bool wrong;      /* it differs from the dataset, and is ignored */
    bool used;
} http_known;

struct bags_http {
    bags_io io;
    http_engine engine;
    uint64_t cache_size, part_size;
    bool no_read_ahead, no_catalogue;
    http_object **objects; /* hash table; grows with object_count */
    size_t buckets, object_count;
    http_part *newest, *oldest;
    uint64_t cached;
    uint64_t looked; /* count of answered lookups of files next to a spec.json */
    http_known *known;
    bool unversioned; /* some object has neither an ETag nor a Last-Modified */
};

/* ---- objects and their bytes: objects.c ---- */

static inline http_part **http_parts(const http_object *object) {
    return (http_part **)(void *)object->parts.data;
}

/* The first part of an object, or NULL. */
static inline const http_part *http_first_part(const http_object *object) {
    return object->count ? http_parts(object)[0] : NULL;
}

/* A part's cost in the cache. Small parts cost more than their bytes, because many of
 * them would be slow to search. */
static inline uint64_t http_cost(uint64_t start, uint64_t stop) {
    return stop - start + HTTP_TAIL;
}

/* Make a part for bytes that a request will fetch. NULL: out of memory. */
http_part *bagi_http_part_new(
    bags_http *http, http_object *object, uint64_t start, uint64_t stop);

/* Move a response's body into its part. */
void bagi_http_part_fill(http_part *part, http_request *request);

void bagi_http_part_free(bags_http *http, http_part *part);

/* Find the part that holds the byte at `offset`, preferring a complete part. */
http_part *bagi_http_part_find(const http_object *object, uint64_t offset);

/* Mark a part as the most recently used. */
void bagi_http_part_use(bags_http *http, http_part *part);

/* Drop parts until `size` more bytes fit; false if the remaining parts are all in
 * use. */
bool bagi_http_make_room(bags_http *http, uint64_t size);

/* Find the object for the first `size` bytes of a path. NULL: none exists or, with
 * `create`, out of memory. */
http_object *bagi_http_find(
    bags_http *http, const char *path, size_t size, bool create);

/* Find or create the object for a printf-formatted path. NULL: out of memory. */
BAGI_PRINTF(2, 3)
http_object *bagi_http_find_printed(bags_http *http, const char *format, ...);

/* The spec.json next to a file, whether or not it exists. NULL for spec.json itself and
 * for directories. */
http_object *bagi_http_record(bags_http *http, const http_object *object);

/* Record why and when an object failed. Failures are retried later, unless the object
 * is missing. */
void bagi_http_fail(http_object *object, int error, const char *why);

/* True if a failure is not to be retried yet, because it is permanent or recent. */
bool bagi_http_rests(const http_object *object, double seconds);

/* True if the server listed the path's directory without this name. */
bool bagi_http_is_unlisted(bags_http *http, const char *path, size_t size);

/* The errno for a path that no hook can handle, or 0. The mutex need not be held. */
int bagi_http_refuse_path(const bags_http *http, const char *path);

/* Find or create a path's object, and start a use of it: see bagi_http_release. NULL:
 * out of memory. */
http_object *bagi_http_use(bags_http *http, const char *path);

/* Remove an object that nothing refers to. */
void bagi_http_forget(bags_http *http, http_object *object);

/* Free all objects. */
void bagi_http_free_objects(bags_http *http);

/* ---- files known from a catalogue: known.c ---- */

static inline bool http_is_catalogue(const char *path) {
    size_t size = strlen(path), end = sizeof "/" CATALOGUE_NAME - 1;
    return size > end && strcmp(path + size - end, "/" CATALOGUE_NAME) == 0;
}

/* Find the catalogue of a dataset. NULL: none was added. */
http_known *bagi_http_known(const bags_http *http, const char *path);

/* Parse and add the catalogue of a dataset, and take the bytes over. NULL: damaged, or
 * out of memory; the bytes are still the caller's. */
http_known *bagi_http_add_known(
    bags_http *http, const char *path, unsigned char *data, size_t size);

/* Request the end of a shard's refs.crc, to compare the shard with its catalogue.
 * `record` is the shard's spec.json: it fails if the shard differs. NULL: the result is
 * for the catalogue itself. Returns false if out of memory. */
bool bagi_http_check_bound(
    bags_http *http, http_known *known, uint64_t shard, http_object *record);

/* Check the shard of this spec.json, known from a catalogue, if one of its files was
 * answered for the first time since the last check was requested. */
void bagi_http_check_known(bags_http *http, http_object *record);

/* If a catalogue describes a new object, set its size and its identity, as if it was
 * looked up. Returns false otherwise. */
bool bagi_http_find_known(bags_http *http, http_object *object);

/* End a use of an object. NULL is accepted. Objects that only repeat a catalogue are
 * then forgotten, so that a reader of many shards needs no memory for them. */
void bagi_http_release(bags_http *http, http_object *object);

/* Read bytes that follow from a catalogue. Returns false if they do not. */
bool bagi_http_read_known(bags_io_read *read);

/* Call when a range has arrived: the first answer decides the ETag of an object that is
 * known from a catalogue. Returns false, with the request's error set, if a later
 * answer has another one. */
bool bagi_http_adopt(bags_http *http, http_object *object, http_request *request);

/* Record why an object failed; if its first answer contradicts the catalogue, as a
 * change. */
void bagi_http_fail_known(http_object *object, int error, const char *why);

/* Free all catalogues. */
void bagi_http_free_known(bags_http *http);

/* ---- versions: version.c ---- */

/* Call before looking up an object: records its spec.json, and whether that was
 * found. */
void bagi_http_begin_version(bags_http *http, http_object *object);

/* Call after requesting the lookup: checks its shard again. */
void bagi_http_asked(bags_http *http, http_object *object);

/* Call after the lookup was answered. */
void bagi_http_answered(bags_http *http, http_object *object);

/* Check a spec.json again, and the files next to it if necessary, unless a check has
 * been requested since the last lookup was answered. */
void bagi_http_check(bags_http *http, http_object *record);

/* Check an object again on behalf of this spec.json. */
void bagi_http_check_object(bags_http *http, http_object *record, http_object *object);

/* Wait until all checks of a shard have ended. Returns an errno. */
int bagi_http_wait_checks(bags_http *http, http_object *record);

/* Record that a shard is no longer the version that was opened. */
void bagi_http_changed(http_object *record);

/* ---- lookups: lookup.c ---- */

/* Start looking up an object, unless that was already done. */
void bagi_http_look(bags_http *http, http_object *object);

/* Start looking up DIRECTORY/NAME, and a use of its object: see bagi_http_release.
 * Callers that do not wait need not end the use. NULL: out of memory. */
http_object *bagi_http_look_in(
    bags_http *http, const char *directory, const char *name);

/* Look up an object and wait for the result. Returns 0 if it exists, otherwise an
 * errno; ENOMEM if `object` is NULL. */
int bagi_http_wait(bags_http *http, http_object *object);

/* ---- listings: listing.c ---- */

/* Start looking up the control for a path: a name that cannot exist. NULL: out of
 * memory. */
http_object *bagi_http_control(bags_http *http, const char *path);

/* True for an optional file next to Bags. */
bool bagi_http_is_extra(const char *path);

/* True for an optional file that counts as missing although the server answers 403. */
bool bagi_http_is_optional(bags_http *http, const char *path);

/* Treat an object as missing if the response is the page this server sends for every
 * path. Returns an errno. */
int bagi_http_refuse_page(bags_http *http, http_object *object);

/* The hooks `kind` and `list`. The mutex is not held. */
int bagi_http_kind(void *user, const char *path, bags_path_kind *kind);
int bagi_http_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user);

#endif /* BAGS_FORMATS_OBJECTS_H */
