/*
 * objects.h - what http.c knows of URLs, and what its parts share: objects and their bytes
 * (objects.c), whether they changed (version.c), lookups (lookup.c) and lists (listing.c).
 * Each file uses only the files before it. Programs do not include this header.
 *
 * The first request for an object is for its last bytes: the answer has its size, its ETag
 * and, of a Bag, most of its table. All of it is remembered; later ranges must be of the
 * same ETag. All bytes that arrive are kept in parts, up to a limit; then the least recently
 * used part is dropped. Reads, reads ahead and requests in advance take the same way.
 *
 * The mutex of the engine guards everything here.
 */
#ifndef BAGS_FORMATS_OBJECTS_H
#define BAGS_FORMATS_OBJECTS_H

#include "transfer.h"

#define HTTP_TAIL ((uint64_t)32 << 10) /* read when an object is looked up */
#define HTTP_BUCKETS 4096
#define HTTP_FORGET 10.0 /* seconds until a failure is tried again */
#define HTTP_FILES ".bag .idx .crc .dict .json .partial .zip .tar "
#define HTTP_CONTROL "no.such.file" /* next to a dataset's files */

/* Bytes of an object, in memory or on the way. */
typedef struct http_part {
    struct http_object *object;
    struct http_part *newer, *older; /* of all */
    uint64_t start, stop;
    bags_buffer data;
    unsigned users; /* calls that wait for it or copy from it */
    http_state state;
} http_part;

/* A URL and the facts about it; also an open file. It lives until bags_http_close. */
typedef struct http_object {
    struct http_object *next; /* in its bucket */
    char *path;
    http_state state;
    int error; /* errno, if it failed */
    char *why; /* why the last request that failed did */
    int why_error;
    double when;
    uint64_t size;
    char *tag; /* ETag, or the time of the last change; NULL: there is neither */
    bags_identity identity;      /* its ETag, Last-Modified and size */
    struct http_object *record;  /* spec.json next to it; NULL: it is a spec.json */
    struct http_object *sibling; /* the next file of the same record */
    bool in_dataset; /* spec.json was found or requested before: it is a field's */
    bool early;      /* spec.json was not found yet when this was requested */
    bool is_html;
    bool is_real;      /* it is not the page of bagi_http_refuse_page */
    bool is_directory; /* the server redirects to the path with a slash */
    uint64_t asked; /* `looked` + 1 at its lookup; of a spec.json, at its last check */
    bags_buffer parts; /* pointers to http_part, sorted by their start */
    size_t count;      /* of parts */
    uint64_t longest;  /* bytes of the longest part that there ever was */
    bags_buffer names; /* of a directory: NUL-terminated, one after the other; if it
                          failed, the links of a page that may be no list */
    size_t names_size;
    /* Of a spec.json: */
    bool used;                 /* a file next to it was opened: a check can be due */
    bool grown;                /* the shard after it was missing, and exists now */
    struct http_object *files; /* files next to it that were looked up */
    uint64_t answered;         /* `looked` after the last of them */
    size_t checks;             /* requests that look at them again */
    /* Of reads in order: */
    uint64_t last;   /* the end of the last one */
    uint64_t ahead;  /* the end of the read-ahead */
    uint64_t window; /* how much is read ahead; 0: they are not in order */
} http_object;

struct bags_http {
    bags_io io;
    http_engine engine;
    uint64_t cache_size, part_size;
    bool no_read_ahead;
    http_object *objects[HTTP_BUCKETS];
    http_part *newest, *oldest;
    uint64_t cached;
    uint64_t looked;  /* answered lookups of files next to a spec.json */
    bool unversioned; /* an object has neither an ETag nor a Last-Modified */
};

/* ---- objects and their bytes: objects.c ---- */

static inline http_part **http_parts(const http_object *object) {
    return (http_part **)(void *)object->parts.data;
}

/* The first part of an object, or NULL. */
static inline const http_part *http_first_part(const http_object *object) {
    return object->count ? http_parts(object)[0] : NULL;
}

/* The size of a part in the cache. Many small parts would take long to search. */
static inline uint64_t http_cost(uint64_t start, uint64_t stop) {
    return stop - start + HTTP_TAIL;
}

/* A part for bytes of an object that a request will fetch. NULL: out of memory. */
http_part *bagi_http_part_new(
    bags_http *http, http_object *object, uint64_t start, uint64_t stop);

/* Move the body of an answer into its part. */
void bagi_http_part_fill(http_part *part, http_request *request);

void bagi_http_part_free(bags_http *http, http_part *part);

/* The part with the byte at `offset`, preferably a part that is done. */
http_part *bagi_http_part_find(const http_object *object, uint64_t offset);

/* Make a part the most recently used. */
void bagi_http_part_use(bags_http *http, http_part *part);

/* Drop parts until `size` more bytes fit; false if all others are in use. */
bool bagi_http_make_room(bags_http *http, uint64_t size);

/* The object of the first `size` bytes of a path. NULL: there is none or, with `create`, out
 * of memory. */
http_object *bagi_http_find(
    bags_http *http, const char *path, size_t size, bool create);

/* The object of a path that is printed; NULL: out of memory. */
BAGI_PRINTF(2, 3)
http_object *bagi_http_find_printed(bags_http *http, const char *format, ...);

/* The spec.json next to a file, existing or not. NULL for spec.json itself and for
 * directories. */
http_object *bagi_http_record(bags_http *http, const http_object *object);

/* Note why an object failed, and when: other failures than a missing object are tried again
 * later. */
void bagi_http_fail(http_object *object, int error, const char *why);

/* True if a failure is not retried yet: it is permanent, or recent. */
bool bagi_http_rests(const http_object *object, double seconds);

/* True if the server has listed the directory of a path, and not this name. */
bool bagi_http_is_unlisted(bags_http *http, const char *path, size_t size);

/* The errno of a path with which no hook can do anything; 0: they can. The mutex need not
 * be held. */
int bagi_http_refuse_path(const bags_http *http, const char *path);

/* Free all objects. */
void bagi_http_free_objects(bags_http *http);

/* ---- versions: version.c ---- */

/* Before an object is looked up: note its spec.json, and whether that was found. */
void bagi_http_begin_version(bags_http *http, http_object *object);

/* After the lookup was requested: check its shard again. */
void bagi_http_asked(bags_http *http, http_object *object);

/* After the lookup was answered. */
void bagi_http_answered(bags_http *http, http_object *object);

/* Look at a spec.json again, and at the files next to it if necessary, unless that was
 * requested after the last lookup had been answered. */
void bagi_http_check(bags_http *http, http_object *record);

/* Look at an object again, for this spec.json. */
void bagi_http_check_object(bags_http *http, http_object *record, http_object *object);

/* Wait until all checks of a shard have ended. Returns errno. */
int bagi_http_wait_checks(bags_http *http, const http_object *record);

/* A shard is another one than when it was opened. */
void bagi_http_changed(http_object *record);

/* ---- lookups: lookup.c ---- */

/* Start to look an object up, unless that was done. */
void bagi_http_look(bags_http *http, http_object *object);

/* Start to look up DIRECTORY/NAME. NULL: out of memory. */
http_object *bagi_http_look_in(
    bags_http *http, const char *directory, const char *name);

/* Look an object up and wait. Returns errno; 0: it exists. NULL is ENOMEM. */
int bagi_http_wait(bags_http *http, http_object *object);

/* ---- lists, and what exists: listing.c ---- */

/* Start to look up the control of a path: a name that does not exist. NULL: out of
 * memory. */
http_object *bagi_http_control(bags_http *http, const char *path);

/* True for a file next to Bags that need not exist. */
bool bagi_http_is_extra(const char *path);

/* True for a missing file that need not exist, though the server answers 403. */
bool bagi_http_is_optional(bags_http *http, const char *path);

/* Decide that an object is missing if its answer is the page that the server has for
 * everything. Returns errno. */
int bagi_http_refuse_page(bags_http *http, http_object *object);

/* The hooks `kind` and `list`. The mutex is not held. */
int bagi_http_kind(void *user, const char *path, bags_path_kind *kind);
int bagi_http_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user);

#endif /* BAGS_FORMATS_OBJECTS_H */
