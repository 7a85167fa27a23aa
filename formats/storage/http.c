/*
 * http.c - reads datasets from web servers and object stores, on libcurl 7.75 or later
 * (Debian: libcurl4-openssl-dev), libssl (libssl-dev; for tickets of TLS) and POSIX
 * threads. It needs s3.c: settings of S3, and uploads.
 *
 * A bags_http is a bags_io whose paths are URLs:
 *
 *     https://host/ds, http://host/ds    any server that serves ranges
 *     s3://bucket/ds                     S3 and what is compatible with it
 *
 * A few threads run the transfers, each in a multi handle with connections of its own.
 * The hooks queue requests, wake the threads, and wait for them; a request is in one of
 * these states, and the function that makes each transition is named at its arrow:
 *
 *               http_queue            http_begin           http_finish
 *     (caller) -----------> queued -------------> running -------------> done
 *                             ^                      |                   failed
 *                             |      http_retry      |
 *                             +----------------------+
 *
 * A queued, done or failed request and everything else is guarded by the mutex; a
 * running one belongs to its thread.
 *
 * The first request for an object is for its last bytes: the answer has its size,
 * its ETag and, of a Bag, most of its table. All of it is remembered; later ranges
 * must be of the same ETag. All bytes that arrive are kept in parts, up to a limit,
 * the least recently used being dropped: what is read, read ahead or requested in
 * advance takes the same way.
 *
 * Rejected: a range in another place, of another length or of another object than
 * was requested; servers that ignore ranges, for objects above 4 MiB.
 */
#include "http.h"
#include "files.h"
#include "random.h"
#include "text.h"

#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define HTTP_TAIL ((uint64_t)32 << 10)    /* read when an object is looked up, */
#define HTTP_DICT ((uint64_t)112 << 10)   /* if it is a dictionary: all of it, */
#define HTTP_ZIP ((uint64_t)1 << 20)      /* or a zip: all its names usually */
#define HTTP_BLOCK ((uint64_t)16 << 10)   /* small reads are widened to this */
#define HTTP_GAP ((uint64_t)16 << 10)     /* is always read over, */
#define HTTP_GAP_MOST ((uint64_t)1 << 20) /* at most, if requests are very many */
#define HTTP_CHUNK ((uint64_t)8 << 20)    /* larger reads are several requests */
#define HTTP_READ ((uint64_t)64 << 20)    /* at most, at once, of one read */
#define HTTP_WHOLE ((uint64_t)4 << 20)    /* at most, without ranges */
#define HTTP_LISTING ((size_t)64 << 20)   /* the largest page of a listing */
#define HTTP_PAGES 2000                   /* of a listing */
#define HTTP_HEADERS ((size_t)1 << 20)    /* of an answer, at most */
#define HTTP_ERROR ((size_t)64 << 10)     /* of the body of an error, at most */
#define HTTP_BUCKETS 4096
#define HTTP_THREADS 4 /* at most */
#define HTTP_STEP 16   /* requests; with more, another thread is used, too */
#define HTTP_REDIRECTS 5
#define HTTP_PATIENCE 0.1 /* seconds between two questions whether to give up */
#define HTTP_FORGET 10.0  /* seconds until a failure is tried again */
#define HTTP_SETTLES 2    /* seconds that clocks of a server and its files may differ */
#define HTTP_STARTS 5.0   /* seconds that a server may take until it accepts */
#define HTTP_MISSING 4    /* this number of missing shards ends the search */
#define HTTP_AHEAD 90     /* shards are looked up at once, at most */
#define HTTP_FILES ".bag .idx .crc .dict .json .partial .zip .tar "
#define HTTP_CONTROL "no.such.file" /* next to a dataset's files */
#define HTTP_SHARDS 999999          /* this one does not exist where none is listed */

#ifndef ESTALE
#define ESTALE EIO
#endif

typedef enum http_state {
    HTTP_NEW,
    HTTP_WAITING, /* a request is queued or running */
    HTTP_DONE,
    HTTP_FAILED
} http_state;

/* Bytes of an object, in memory or on the way. */
typedef struct http_part {
    struct http_object *object;
    struct http_part *newer, *older; /* of all */
    uint64_t start, stop;
    bags_buffer data;
    unsigned users; /* calls that wait for it or copy from it */
    http_state state;
} http_part;

/* Bytes that are not at hand. */
typedef struct http_want {
    struct http_object *object;
    uint64_t start, stop;
    bool waits; /* the call waits for them; false: they are requested in advance */
} http_want;

/* What is known of a URL, and an open file. It lives until the end. */
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
    struct http_object *record;  /* spec.json next to it; NULL: it is that one */
    struct http_object *sibling; /* the next file of the same record */
    bool in_dataset; /* spec.json was found or requested before: it is a field's */
    bool early;      /* spec.json was not found yet when this was requested */
    bool is_html;
    bool is_real;      /* it is not the page of http_refuse_page */
    bool is_directory; /* the server redirects to the path with a slash */
    /* Of a spec.json; points in time are numbers of bags_http.time: */
    bool used;                 /* a file next to it was opened */
    bool end_asked;            /* the shard after it was looked up again, and */
    bool grown;                /* exists now */
    struct http_object *files; /* those next to it that were looked up, ... */
    uint64_t answered;         /* ... and when the last of them was */
    size_t checks;             /* requests that look at them again */
    uint64_t asked;    /* when they were requested; of a file, when its lookup was */
    bags_buffer parts; /* pointers to http_part, sorted by their start */
    size_t count;      /* of parts */
    uint64_t longest;  /* bytes of the longest part that there ever was */
    bags_buffer names; /* of a directory: NUL-terminated, one after the other; if it
                          failed, the links of a page that may be no list */
    size_t names_size;
    /* Of reads in order: */
    uint64_t last;   /* the end of the last one */
    uint64_t ahead;  /* the end of what is read ahead */
    uint64_t window; /* how much is read ahead; 0: they are not in order */
} http_object;

typedef struct http_request {
    struct http_request *next; /* in the queue, or of those that are running */
    struct bags_http *http;
    struct http_thread *thread; /* whose queue it is in; NULL: none yet */
    http_object *object;        /* NULL: the caller reads the body and frees it */
    http_part *part;            /* NULL: look the object up */
    http_object *record;        /* only look whether it is still the same, for this
                                   spec.json */
    http_state state;
    char *url;
    bool is_s3, from_start; /* look up by the first bytes */
    bool unconditional;     /* the answer 304 stated too little */
    bags_http_answer known; /* with its ETag for If-None-Match, or "" */
    unsigned unsettled;     /* answers that may change without a new ETag */
    const char *method;     /* of uploads */
    const char *send;
    size_t send_size;
    char md5[32]; /* of what is sent, in base64; "": not passed */
    bags_buffer body;
    size_t size; /* of the body */
    /* the answer */
    long status;
    char tag[512], modified[64], date[64], range[96]; /* headers */
    char encoding[32], transfer[32];
    uint64_t first, last, total; /* of a valid Content-Range */
    uint64_t length;             /* UINT64_MAX: unknown */
    uint64_t skip; /* bytes before the range, of a server that ignores it */
    uint64_t most; /* bytes of the body that are read */
    bool is_html;
    bool has_head;   /* all of it */
    bool checked;    /* its head, before the first byte of its body */
    char text[1024]; /* the start of an error's body */
    size_t text_size, headers_size;
    double begun;
    bool ended; /* the rest of its body is not read */
    /* its life */
    CURL *easy;
    struct curl_slist *headers;
    char curl_why[CURL_ERROR_SIZE];
    bool abandoned; /* what waited for it gave up: it is freed when it ends */
    int tries;
    double since; /* the first try, or its failure after some bytes had arrived */
    double not_before;
    int error;
    char why[256];
} http_request;

/* A thread that runs transfers. */
typedef struct http_thread {
    struct bags_http *http;
    pthread_t id;
    CURLM *multi;
    CURLSH *share;
    bool started, woken;
    int wake[2];        /* a pipe: what is written to it wakes the thread */
    bags_buffer memory; /* of the sockets: a pollfd for every file descriptor */
    size_t sockets;
    http_request *queue, **queue_end;
    http_request *active; /* those that are running; only the thread's */
    size_t running, load; /* load: the queued ones and the running ones */
} http_thread;

struct bags_http {
    bags_io io;
    char *query, *user, *ca_file;
    s3_settings s3;
    uint32_t place, s3_place; /* hashes of what a path leaves open; 0: nothing */
    double retry_seconds, stall_seconds;
    size_t connections, connections_each; /* of each thread */
    uint64_t cache_size, part_size;
    bool no_read_ahead;
    bool (*recall)(void *user, const char *path, bags_http_answer *answer);
    void (*remember)(void *user, const char *path, const bags_http_answer *answer);
    void *cache;
    bool (*interrupted)(void *user);
    void *interrupted_user;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pid_t process;
    http_thread threads[HTTP_THREADS];
    size_t thread_count;
    bool stop, ended; /* ended: callers must look again */
    http_object *objects[HTTP_BUCKETS];
    http_part *newest, *oldest;
    uint64_t cached, requests, received;
    uint64_t time;   /* counts requested checks and answered lookups */
    uint64_t looked; /* when the last object was looked up */
    /* The last file next to a spec.json that was looked up, when, and the others: */
    http_object *latest;
    uint64_t found, others;
    bool unversioned; /* an object has neither an ETag nor a Last-Modified */
    uint32_t random;
    bool from_start;    /* the server does not know ranges from the end */
    bool answered[256]; /* by the hash of a server: it has answered a request */
    bool is_openssl;    /* libcurl uses the libssl that this file uses */
};

/* ---- text ---- */

static double http_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool bags_http_is_url(const char *path) {
    const char *host = strstr(path, "://");
    return (http_is_s3(path) || strncmp(path, "http://", 7) == 0 ||
               strncmp(path, "https://", 8) == 0) &&
           host && host[3] && !strchr("/?#@", host[3]);
}

static uint64_t http_hash(const char *text) {
    return format_hash(0, text, strlen(text));
}

/* True for a path with one of these endings, of which each has a space after it. */
static bool http_ends_in(const char *path, const char *endings) {
    const char *dot = strrchr(path, '.');
    const char *found = dot ? strstr(endings, dot) : NULL;
    return found && found[strlen(dot)] == ' ';
}

/* The URL of a path. `query`, encoded and sorted, may be NULL. For S3, `bucket`
 * means the bucket itself. The name of a field is not encoded in a path, as the rest of
 * it may be: `field` means that the path ends with one. */
static char *http_url(const bags_http *http, const char *path, bool bucket, bool field,
    const char *query) {
    if (!http_is_s3(path)) {
        size_t front = 8 + strcspn(path + 8, "/");
        char *rest = format_url(path + front, "/!$&'()*+,;=:@[]",
            field ? strrchr(path, '/') : path + strlen(path));
        char *out = rest ? http_format("%.*s%s%s%s", (int)front, path, rest,
                               http->query ? "?" : "", http->query ? http->query : "")
                         : NULL;
        free(rest);
        return out;
    }
    const char *name = path + 5;
    size_t size = strcspn(name, "/");
    const char *key = name + size + (name[size] == '/');
    /* A certificate is for one name before the region: one without dots. */
    bool in_path = http->s3.endpoint || memchr(name, '.', size);
    char *host = http->s3.endpoint ? http_copy(http->s3.endpoint)
                 : in_path ? http_format("https://s3.%s.amazonaws.com", http->s3.region)
                           : http_format("https://%.*s.s3.%s.amazonaws.com", (int)size,
                                 name, http->s3.region);
    char *rest = format_url(bucket ? "" : key, "/", NULL);
    char *out = NULL;
    if (host && rest)
        out = http_format("%s%s%.*s/%s%s%s", host, in_path ? "/" : "",
            in_path ? (int)size : 0, name, rest, query ? "?" : "", query ? query : "");
    free(host);
    free(rest);
    return out;
}

/* ---- what a path leaves open ----
 * The object that a path names also depends on the query and the user, or the endpoint of
 * S3: these belong to its identity. A signature does not: it differs each time. */

/* The parameters of signatures: the first of a scheme must be there for the others to
 * count. */
static const char *const http_schemes[] = {
    "X-Amz-Signature X-Amz-Algorithm X-Amz-Content-Sha256 X-Amz-Credential X-Amz-Date "
    "X-Amz-Expires X-Amz-Security-Token X-Amz-SignedHeaders ",
    "X-Goog-Signature X-Goog-Algorithm X-Goog-Credential X-Goog-Date X-Goog-Expires "
    "X-Goog-SignedHeaders ",
    /* CloudFront; S3 and Google Cloud, version 2 */
    "Signature Expires Hash-Algorithm Key-Pair-Id Policy AWSAccessKeyId GoogleAccessId "
    "X-Amz-Security-Token ",
    /* Azure */
    "sig rscc rscd rsce rscl rsct saoid scid sdd se ses si sip ske skoid sks skt sktid "
    "skv sp spr sr srt ss st suoid sv "};

/* True if the first word, or with `any` any word, is the name of this parameter. */
static bool http_is_named(const char *parameter, const char *words, bool any) {
    size_t size = strcspn(parameter, "=&");
    for (const char *word = words; *word; word += strcspn(word, " ") + 1) {
        if (strcspn(word, " ") == size && strncasecmp(word, parameter, size) == 0)
            return true;
        if (!any)
            return false;
    }
    return false;
}

/* The next parameter of a query; NULL: there is none. */
static const char *http_parameter(const char *at) {
    at += strcspn(at, "&");
    return *at ? at + 1 : NULL;
}

/* True for a parameter that is part of a signature of this query. */
static bool http_signs(const char *query, const char *parameter) {
    for (size_t i = 0; i < sizeof http_schemes / sizeof *http_schemes; i++)
        for (const char *at = query;
             at && http_is_named(parameter, http_schemes[i], true);
             at = http_parameter(at))
            if (http_is_named(at, http_schemes[i], false))
                return true;
    return false;
}

/* Find out what http:// and s3:// leave open. */
static void http_find_places(bags_http *http) {
    uint64_t hash = 0;
    for (const char *at = http->query; at; at = http_parameter(at))
        if (!http_signs(http->query, at))
            hash = format_hash(format_hash(hash, at, strcspn(at, "&")), "&", 1);
    if (http->user)
        hash = format_hash(hash, http->user, strlen(http->user) + 1);
    http->place = format_mix(hash) & UINT32_MAX;
    http->s3_place = http->s3.endpoint ? http_hash(http->s3.endpoint) & UINT32_MAX : 0;
}

static uint32_t http_place(const http_request *request) {
    return request->is_s3 ? request->http->s3_place : request->http->place;
}

/* ---- listings ---- */

/* Pass a name on, unless it is not one: empty, with a slash, . or .. */
static int http_name(
    char *name, size_t size, int (*each)(void *user, const char *name), void *user) {
    while (size > 0 && name[size - 1] == '/')
        size--;
    if (size == 0 || memchr(name, '/', size) || memchr(name, '\0', size))
        return 0;
    name[size] = '\0';
    bool inside = strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return inside ? each(user, name) : 0;
}

int bags_http_names(const void *page, size_t size, bool xml, const char *prefix,
    int (*each)(void *user, const char *name), void *user) {
    static const char *const marks[] = {"href=\"", "href='", "<Key>", "<Prefix>"};
    const char *at = NULL, *stop = (const char *)page + size;
    size_t front = strlen(prefix), length = 0;
    int code = 0;
    for (int i = xml ? 2 : 0; i < (xml ? 4 : 2); i++)
        for (at = (const char *)page;
             !code && (at = http_after(at, stop, marks[i], &length)) != NULL;
             at += length) {
            char name[8192], *plain = NULL;
            if (length == 0 || length >= sizeof name || (!xml && strchr("?#", *at)))
                continue;
            memcpy(name, at, length);
            int used = (int)http_entities(name, length);
            if (!xml) { /* a link, relative or with the directory's own path */
                plain = curl_easy_unescape(NULL, name, used, &used);
                used = plain ? used : 0;
            }
            char *text = plain ? plain : name, *end = text + used;
            bool inside = (size_t)used > front && memcmp(text, prefix, front) == 0;
            if (inside)
                text += front;
            else if (!xml && used > 2 && memcmp(text, "./", 2) == 0)
                text += 2;
            if (inside || !xml)
                code = http_name(text, (size_t)(end - text), each, user);
            curl_free(plain);
        }
    return code;
}

/* ---- objects and their parts: all with the mutex held ---- */

/* What a part counts for in the cache: many small ones would take long to search. */
static uint64_t http_cost(uint64_t start, uint64_t stop) {
    return stop - start + HTTP_TAIL;
}

/*
 * Parts are in two orders: by their start in their object, which finds a byte, and by
 * their last use in a list of all, whose oldest ones are dropped:
 *
 *     newest <-> ... <-> oldest      part->older, part->newer
 *
 * A part is never dropped while a request brings it (HTTP_WAITING) or a call has
 * counted itself in `users`.
 */
static void http_part_unlink(bags_http *http, http_part *part) {
    *(part->newer ? &part->newer->older : &http->newest) = part->older;
    *(part->older ? &part->older->newer : &http->oldest) = part->newer;
    part->newer = part->older = NULL;
}

static void http_part_link(bags_http *http, http_part *part) {
    part->older = http->newest;
    *(http->newest ? &http->newest->newer : &http->oldest) = part;
    http->newest = part;
}

static http_part **http_parts(const http_object *object) {
    return (http_part **)(void *)object->parts.data;
}

/* How many of an object's parts start before `offset`. */
static size_t http_parts_before(const http_object *object, uint64_t offset) {
    http_part **parts = http_parts(object);
    size_t first = 0, last = object->count;
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        if (parts[middle]->start < offset)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

static void http_part_free(bags_http *http, http_part *part) {
    http_object *object = part->object;
    http_part **at = http_parts(object) + http_parts_before(object, part->start);
    while (*at != part)
        at++;
    memmove(
        at, at + 1, (size_t)(http_parts(object) + object->count - at - 1) * sizeof *at);
    object->count--;
    http_part_unlink(http, part);
    http->cached -= http_cost(part->start, part->stop);
    bags_buffer_free(&part->data);
    free(part);
}

/* Drop parts until `size` more bytes fit; false if all others are in use. */
static bool http_make_room(bags_http *http, uint64_t size) {
    uint64_t most = size < http->cache_size ? http->cache_size - size : 0;
    for (http_part *part = http->oldest, *newer; part && http->cached > most;
         part = newer) {
        newer = part->newer;
        if (part->users == 0 && part->state != HTTP_WAITING)
            http_part_free(http, part);
    }
    return http->cached <= most;
}

/* Bytes of an object, which a request brings. */
static http_part *http_part_new(
    bags_http *http, http_object *object, uint64_t start, uint64_t stop) {
    size_t more = (object->count + 1) * sizeof(http_part *);
    if (bags_buffer_reserve(&object->parts, more, NULL))
        return NULL;
    http_part *part = (http_part *)calloc(1, sizeof *part);
    if (!part)
        return NULL;
    part->object = object;
    part->start = start;
    part->stop = stop;
    part->state = HTTP_WAITING;
    if (object->longest < stop - start)
        object->longest = stop - start;
    http_make_room(http, http_cost(start, stop));
    http_part **at = http_parts(object) + http_parts_before(object, start);
    memmove(at + 1, at, (size_t)(http_parts(object) + object->count - at) * sizeof *at);
    *at = part;
    object->count++;
    http->cached += http_cost(start, stop);
    http_part_link(http, part);
    return part;
}

/* The part with the byte at `offset`: if possible one that is done. */
static http_part *http_part_find(const http_object *object, uint64_t offset) {
    http_part *found = NULL;
    for (size_t i = http_parts_before(object, offset + 1); i > 0; i--) {
        http_part *part = http_parts(object)[i - 1];
        if (offset - part->start >= object->longest)
            break; /* those before it end before the offset, too */
        if (offset >= part->stop || part->state == HTTP_FAILED)
            continue;
        if (part->state == HTTP_DONE)
            return part;
        found = part;
    }
    return found;
}

/* An object is never freed before bags_http_close: hooks keep pointers to it, and what
 * was found, or missing, must not be requested again. */
static http_object *http_find(
    bags_http *http, const char *path, size_t size, bool create) {
    http_object **at = &http->objects[format_hash(0, path, size) % HTTP_BUCKETS];
    for (; *at; at = &(*at)->next)
        if (strncmp((*at)->path, path, size) == 0 && !(*at)->path[size])
            return *at;
    http_object *object = create ? (http_object *)calloc(1, sizeof *object) : NULL;
    if (object)
        object->path = http_format("%.*s", (int)size, path);
    if (!object || !object->path) {
        free(object);
        return NULL;
    }
    *at = object;
    return object;
}

/* The object of a path that is printed; NULL: out of memory. */
BAGI_PRINTF(2, 3)
static http_object *http_find_printed(bags_http *http, const char *format, ...) {
    char *path = NULL;
    va_list arguments;
    va_start(arguments, format);
    int size = vasprintf(&path, format, arguments);
    va_end(arguments);
    http_object *object = size < 0 ? NULL : http_find(http, path, (size_t)size, true);
    free(size < 0 ? NULL : path);
    return object;
}

/* The spec.json next to a file, which may not exist; NULL for itself and directories. */
static http_object *http_record(bags_http *http, const http_object *object) {
    const char *name = strrchr(object->path, '/') + 1;
    if (!*name || !strcmp(name, "spec.json") || !strcmp(name, HTTP_CONTROL))
        return NULL;
    return http_find_printed(
        http, "%.*sspec.json", (int)(name - object->path), object->path);
}

/* Why, and when: other failures than a missing object are tried again later. */
static void http_object_fail(http_object *object, int error, const char *why) {
    free(object->why);
    object->why = http_copy(why);
    object->why_error = error;
    object->error = error;
    object->when = http_now();
}

/* True if a failure is not yet tried again: one that lasts, or a recent one. */
static bool http_rests(const http_object *object, double seconds) {
    return object->error == ESTALE ||
           (object->error && http_now() - object->when < seconds);
}

/* ---- requests ---- */

static void http_request_free(http_request *request) {
    if (!request)
        return;
    curl_slist_free_all(request->headers);
    free(request->url);
    bags_buffer_free(&request->body);
    free(request);
}

/* Wake the threads with something to do, once, however many requests are queued. The
 * mutex is held. */
static void http_wake(bags_http *http) {
    for (size_t i = 0; i < http->thread_count; i++) {
        http_thread *thread = &http->threads[i];
        if ((thread->queue || http->stop) && !thread->woken)
            thread->woken = write(thread->wake[1], "", 1) == 1;
    }
}

/* Queue a request for the thread with the least to do, in steps of HTTP_STEP, so that
 * the connections of few requests are always the same. The mutex is held. The threads
 * must be woken afterwards. */
static void http_queue(bags_http *http, http_request *request) {
    if (!request->thread) {
        http_thread *thread = http->threads;
        for (size_t i = 1; i < http->thread_count; i++)
            if (http->threads[i].load / HTTP_STEP < thread->load / HTTP_STEP)
                thread = &http->threads[i];
        request->thread = thread;
        thread->load++;
    }
    request->state = HTTP_WAITING;
    request->next = NULL;
    *request->thread->queue_end = request;
    request->thread->queue_end = &request->next;
}

static http_request *http_request_new(
    bags_http *http, const char *path, bool bucket, bool field, const char *query) {
    http_request *request = (http_request *)calloc(1, sizeof *request);
    if (!request)
        return NULL;
    request->http = http;
    request->is_s3 = http_is_s3(path);
    request->url = http_url(http, path, bucket, field, query);
    if (request->url)
        return request;
    http_request_free(request);
    return NULL;
}

/*
 * The files of a shard are of one version if its spec.json is the same before the first
 * of them was looked up and after the last. So it is looked at again when it is expected to
 * be identified, if a file was looked up since the last time: in the round trip of what is
 * read meanwhile. Where ETags are hashes of the content, an equal spec.json may be of
 * another version: then all files are looked at again, too. Not all hashes are recognized,
 * but a file that was written again has another Last-Modified, if any.
 */

bool bagi_http_is_hash(const char *tag) {
    size_t digits = 0;
    for (; tag && *tag && digits < 32; tag++)
        digits = format_hex(*tag) >= 0 ? digits + 1 : 0;
    return digits == 32;
}

/* True if two versions of a spec.json may be identified alike. */
static bool http_hides_change(const http_object *record) {
    return record->identity.time == http_hash("") ||
           record->identity.time == record->identity.inode ||
           bagi_http_is_hash(record->tag);
}

/* A shard is another one than when it was opened. */
static void http_record_changed(http_object *record) {
    record->identity.device++;
    http_object_fail(record, ESTALE,
        record->grown ? "a shard was added meanwhile; open the dataset again"
                      : "replaced or removed while open; open the dataset again");
}

/* A check has failed, and has to be requested again. */
static void http_fail_check(http_object *record, int error, const char *why) {
    record->asked = 0;
    record->end_asked = false;
    http_object_fail(record, error, why);
}

/* True if an object that is looked at again is the spec.json of the next shard. */
static bool http_is_end(const http_object *record, const http_object *object) {
    return object != record && object->record != record;
}

/* Request a part of an object; with `record`, look at it again for that; otherwise look it
 * up. Returns false if out of memory. The mutex is held. */
static bool http_request_object(
    bags_http *http, http_object *object, http_part *part, http_object *record) {
    http_request *request =
        http_request_new(http, object->path, false, object->in_dataset, NULL);
    if (!request)
        return false;
    request->object = object;
    request->part = part;
    request->record = record;
    request->from_start = http->from_start;
    http_queue(http, request);
    return true;
}

/* Look at an object again. The mutex is held. */
static void http_request_check(
    bags_http *http, http_object *record, http_object *object) {
    if (http_request_object(http, object, NULL, record))
        record->checks++;
    else
        http_fail_check(record, ENOMEM, "out of memory");
}

/* True if the server has listed the directory of a path, and not this name. Names with
 * other characters may be listed in an encoding that is not known here. */
static bool http_is_unlisted(bags_http *http, const char *path, size_t size) {
    size_t start = size;
    while (path[start - 1] != '/')
        start--;
    const char *name = path + start;
    const http_object *listing = http_find(http, path, start, false);
    if (start == size || !listing || listing->state != HTTP_DONE ||
        strspn(name, FORMAT_PLAIN) < size - start)
        return false;
    for (size_t at = 0; at < listing->names_size;) {
        const char *listed = (const char *)listing->names.data + at;
        if (strncmp(listed, name, size - start) == 0 && !listed[size - start])
            return false;
        at += strlen(listed) + 1;
    }
    return true;
}

/* A dataset that is replaced by a longer one while its shards are identified would be
 * read without its end. So with the first check of the last shard, which was identified by
 * then, the number after it is looked up again; with every one where its spec.json may
 * hide that it was replaced later. The mutex is held. */
static void http_check_end(bags_http *http, http_object *record) {
    const char *end = strrchr(record->path, '/'), *start = end;
    while (start[-1] >= '0' && start[-1] <= '9')
        start--;
    if ((record->end_asked && !http_hides_change(record)) || start == end ||
        end - start > 18 || start[-1] != '/')
        return;
    record->end_asked = true;
    char *path = http_format("%.*s%0*llu/spec.json", (int)(start - record->path),
        record->path, (int)(end - start), strtoull(start, NULL, 10) + 1);
    size_t front = path ? (size_t)(strrchr(path, '/') - path) : 0;
    bool unlisted = path && http_is_unlisted(http, path, front);
    http_object *object = path ? http_find(http, path, strlen(path), unlisted) : NULL;
    if (!path || (unlisted && !object))
        http_fail_check(record, ENOMEM, "out of memory");
    else if (object && (unlisted || object->state == HTTP_FAILED))
        http_request_check(http, record, object);
    free(path);
}

/* Look at a spec.json again, unless that was requested after the last lookup had been
 * answered; where they can differ, at the files too: not at the one that was looked up when
 * all others, of all shards, had been. Elsewhere at those that were requested before it
 * was found. The mutex is held. */
static void http_check(bags_http *http, http_object *record) {
    bool hashes = http_hides_change(record);
    if (record->state != HTTP_DONE || http_rests(record, 1) ||
        record->asked > (hashes ? http->looked : record->answered))
        return;
    record->error = 0;
    http_check_end(http, record);
    record->asked = ++http->time;
    http_request_check(http, record, record);
    for (http_object *file = record->files; file; file = file->sibling)
        if (file->state == HTTP_DONE &&
            (hashes ? file != http->latest || file->asked < http->others : file->early))
            http_request_check(http, record, file);
}

/* Wait until something has changed. Returns 0; EINTR: the caller must give up. *due starts
 * as 0. The mutex is held, except while it waits. (Should the clock be set back, only an
 * interruption is noticed later.) */
static int http_pause(bags_http *http, double *due) {
    struct timespec until;
    if (!http->interrupted) {
        pthread_cond_wait(&http->changed, &http->mutex);
        return 0;
    }
    double now = http_now();
    *due = *due > 0 ? *due : now + HTTP_PATIENCE;
    if (now < *due) {
        clock_gettime(CLOCK_REALTIME, &until);
        long more = until.tv_nsec + (long)((*due - now) * 1e9);
        until.tv_sec += more / 1000000000;
        until.tv_nsec = more % 1000000000;
        pthread_cond_timedwait(&http->changed, &http->mutex, &until);
        return 0;
    }
    *due = now + HTTP_PATIENCE;
    pthread_mutex_unlock(&http->mutex);
    bool interrupted = http->interrupted(http->interrupted_user);
    pthread_mutex_lock(&http->mutex);
    return interrupted ? EINTR : 0;
}

/* Wait until all checks of a shard have ended. Returns errno. The mutex is held. */
static int http_wait_checks(bags_http *http, const http_object *record) {
    double due = 0;
    http_wake(http);
    while (record->checks)
        if (http_pause(http, &due))
            return EINTR;
    return record->state == HTTP_DONE ? record->error : 0;
}

/* Start to look an object up, unless that was done. The mutex is held. */
static void http_look(bags_http *http, http_object *object) {
    bool again = object->state == HTTP_FAILED && object->error != ENOENT &&
                 object->error != EACCES && !http_rests(object, HTTP_FORGET);
    if (object->state == HTTP_NEW &&
        http_is_unlisted(http, object->path, strlen(object->path))) {
        object->state = HTTP_FAILED;
        http_object_fail(object, ENOENT, "not in the server's list");
    } else if (object->state == HTTP_NEW || again) {
        if (!object->record && (object->record = http_record(http, object))) {
            object->sibling = object->record->files;
            object->record->files = object;
            object->early = object->record->state != HTTP_DONE;
            object->in_dataset =
                !object->early || object->record->state == HTTP_WAITING;
        }
        object->state = HTTP_WAITING;
        if (!http_request_object(http, object, NULL, NULL)) {
            object->state = HTTP_FAILED;
            http_object_fail(object, ENOMEM, "out of memory");
        }
        object->asked = ++http->time;
        if (object->record)
            http_check(http, object->record);
    }
}

/* Returns false, so that a check can return the result. */
static bool http_refuse(http_request *request, int error, const char *why) {
    request->error = error;
    (void)snprintf(request->why, sizeof request->why, "%s", why);
    return false;
}

/* The number of bytes that look an object up: its last ones, or first. */
static uint64_t http_tail(const http_request *request) {
    if (request->record)
        return 1;
    const char *path = request->object->path;
    return http_ends_in(path, ".dict ")                          ? HTTP_DICT
           : !request->from_start && http_ends_in(path, ".zip ") ? HTTP_ZIP
                                                                 : HTTP_TAIL;
}

/* ---- the answer ---- */

/* The value of a header, if this line is one of that name and it fits. */
static void http_keep(
    char *line, size_t size, const char *name, char *out, size_t capacity) {
    size_t start = strlen(name);
    if (size < start || strncasecmp(line, name, start) != 0)
        return;
    while (start < size && (line[start] == ' ' || line[start] == '\t'))
        start++;
    while (size > start && (unsigned char)line[size - 1] <= ' ')
        size--;
    if (size - start < capacity)
        (void)snprintf(out, capacity, "%.*s", (int)(size - start), line + start);
}

/* A header line. Those of a redirect are forgotten when the next answer begins. */
static size_t http_header(char *line, size_t one, size_t size, void *user) {
    http_request *request = (http_request *)user;
    (void)one;
    request->headers_size += size; /* and of trailers, which need not end */
    if (request->headers_size > HTTP_HEADERS) {
        http_refuse(request, EFBIG, "the headers are too large");
        return 0;
    }
    bool first = size > 5 && memcmp(line, "HTTP/", 5) == 0;
    /* An empty line is the last one; trailers may follow. */
    request->has_head = !first && (request->has_head || *line == '\r' || *line == '\n');
    if (first)
        *request->tag = *request->modified = *request->date = *request->range =
            *request->encoding = *request->transfer = '\0';
    http_keep(line, size, "etag:", request->tag, sizeof request->tag);
    http_keep(
        line, size, "last-modified:", request->modified, sizeof request->modified);
    http_keep(line, size, "date:", request->date, sizeof request->date);
    http_keep(line, size, "content-range:", request->range, sizeof request->range);
    http_keep(
        line, size, "content-encoding:", request->encoding, sizeof request->encoding);
    http_keep(
        line, size, "transfer-encoding:", request->transfer, sizeof request->transfer);
    return size;
}

/* A weak ETag may become strong a second after the last change. */
static const char *http_strong(const char *tag) {
    return tag && strncmp(tag, "W/", 2) == 0 ? tag + 2 : tag ? tag : "";
}

/* Where there is no ETag, the time of the last change identifies a version. */
static const char *http_tag(const http_request *request) {
    return *request->tag ? request->tag : request->modified;
}

/* bytes FIRST-LAST/TOTAL */
static bool http_parse_range(http_request *request) {
    const char *at = request->range + 6;
    return strncasecmp(request->range, "bytes ", 6) == 0 &&
           format_decimal(&at, NULL, &request->first) && *at++ == '-' &&
           format_decimal(&at, NULL, &request->last) && *at++ == '/' &&
           format_decimal(&at, NULL, &request->total) && !*at &&
           request->first <= request->last && request->last < request->total;
}

/* Of an object that is being read: is the answer of the same one? */
static bool http_same(http_request *request, uint64_t total) {
    const http_object *object = request->object;
    if (total != object->size)
        return http_refuse(request, ESTALE, "changed while open (its size differs)");
    return !strcmp(http_strong(object->tag), http_strong(http_tag(request))) ||
           http_refuse(request, ESTALE, "changed while open (its ETag differs)");
}

/* HTTP 200, the whole object: of a lookup, or of a server that ignores ranges. */
static bool http_check_whole(http_request *request) {
    const http_part *part = request->part;
    uint64_t length = request->length;
    bool large = length != UINT64_MAX && length > HTTP_WHOLE;
    request->size = 0; /* it starts at the front again */
    if (request->record) {
        request->most = UINT64_MAX;
        return true;
    }
    if (!part && !request->from_start && length > http_tail(request) &&
        length != UINT64_MAX)
        return http_refuse(request, EAGAIN, "");
    request->most =
        part ? part->stop - part->start : HTTP_WHOLE; /* the rest is dropped */
    request->skip = part ? part->start : 0;
    /* What ends with the connection may be truncated; chunks state their end. */
    if (length == UINT64_MAX && (part || !(*request->transfer || request->is_html)))
        return http_refuse(request, EIO, "HTTP 200 without a length in place of 206");
    if (part && !http_same(request, length))
        return false;
    if (large && (!part || part->start > 0 || part->stop != length))
        return http_refuse(request, EIO,
            "the server ignores ranges (HTTP 200 in place of 206), so "
            "only files of up to 4 MiB can be read; nginx, Apache and S3 serve "
            "ranges");
    return true;
}

/* Check the head of an answer, before the first byte of its body. */
static bool http_check_head(http_request *request) {
    const http_part *part = request->part;
    curl_off_t length = -1;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    curl_easy_getinfo(request->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    const char *type = NULL;
    curl_easy_getinfo(request->easy, CURLINFO_CONTENT_TYPE, &type);
    request->is_html = type && strncasecmp(type, "text/html", 9) == 0;
    request->length = length < 0 ? UINT64_MAX : (uint64_t)length;
    request->checked = true;
    request->most = HTTP_LISTING;
    if (!request->object)
        return true;
    if (request->status / 100 == 2 && *request->encoding &&
        strcasecmp(request->encoding, "identity") != 0) {
        (void)snprintf(request->why, sizeof request->why,
            "Content-Encoding %s: the server must send files as they are",
            request->encoding);
        request->error = EIO;
        return false;
    }
    if (request->status == 200)
        return http_check_whole(request);
    if (request->status != 206)
        return true;
    if (!http_parse_range(request))
        return http_refuse(request, EIO, "HTTP 206 without a valid Content-Range");
    uint64_t size = request->last - request->first + 1;
    if (request->length != UINT64_MAX && request->length != size)
        return http_refuse(request, EIO,
            "HTTP 206 with contradicting Content-Range and Content-Length");
    request->most = part ? part->stop - part->start : http_tail(request);
    if (part && !http_same(request, request->total))
        return false;
    bool right = part ? request->first == part->start + request->size &&
                            request->last < part->stop
                 : request->from_start ? request->first == 0
                                       : request->last == request->total - 1;
    return (right && size <= request->most) ||
           http_refuse(request, EIO, "HTTP 206 with another range than requested");
}

/* Bytes of an answer. Those of an error are kept for its message, up to a limit; those
 * of a range are never more than was requested, whatever the server sends. */
static size_t http_body(char *bytes, size_t one, size_t all, void *user) {
    http_request *request = (http_request *)user;
    size_t size = all;
    (void)one;
    if (!request->checked && !http_check_head(request))
        return 0;
    if (request->status / 100 != 2) {
        size_t most = sizeof request->text - request->text_size;
        size = size < most ? size : most;
        memcpy(request->text + request->text_size, bytes, size);
        request->text_size += size;
        return all;
    }
    size_t skip = request->skip < size ? (size_t)request->skip : size;
    request->skip -= skip;
    bytes += skip;
    size -= skip;
    if (size > request->most - request->size) {
        if (!request->part || request->status != 200) {
            http_refuse(request, EFBIG, "the answer is too large");
            return 0;
        }
        size = (size_t)(request->most - request->size);
    }
    if (request->record) {
        request->size += size;
        return all;
    }
    uint64_t least = request->part ? request->most : request->size + size;
    if (bags_buffer_reserve(&request->body, (size_t)least, NULL)) {
        http_refuse(request, ENOMEM, "out of memory");
        return 0;
    }
    if (size > 0)
        memcpy(request->body.data + request->size, bytes, size);
    request->size += size;
    return all;
}

/* Of an error, or of a redirect, whose body libcurl alone reads, not all is read. */
static int http_progress(void *user, curl_off_t total, curl_off_t received,
    curl_off_t upload, curl_off_t sent) {
    http_request *request = (http_request *)user;
    (void)total, (void)upload, (void)sent;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    long kind = request->status / 100;
    request->ended =
        kind != 2 && (received > (curl_off_t)HTTP_ERROR ||
                         (kind != 3 && received > (curl_off_t)sizeof request->text &&
                             http_now() - request->begun > 2));
    return request->ended;
}

/* The body of a 2xx or 416 must be what the head promised. Returns true if it is;
 * EAGAIN is a body that ended early. */
static bool http_complete(http_request *request) {
    const http_part *part = request->part;
    if (!request->checked && !http_check_head(request))
        return false; /* there was no body */
    if (!request->object)
        return request->status / 100 == 2;
    if (request->status == 416 && !part) /* of an empty object */
        return !strcmp(request->range, "bytes */0") ||
               (request->from_start && !*request->range);
    if (request->status != 200 && request->status != 206)
        return false;
    uint64_t size = part                            ? part->stop - part->start
                    : request->status == 206        ? request->last + 1 - request->first
                    : request->length != UINT64_MAX ? request->length
                                                    : request->size;
    if (request->size == size)
        return true;
    (void)snprintf(request->why, sizeof request->why,
        "truncated (%" PRIu64 " of %" PRIu64 " bytes)", (uint64_t)request->size, size);
    request->error = EAGAIN;
    return false;
}

/* The failure of an answer in words, and as errno. */
static void http_describe(http_request *request, CURLcode result) {
    long status = request->status;
    if (request->error == EAGAIN)
        request->error = EIO;
    if (*request->why)
        return;
    if (result) {
        request->error = EIO;
        (void)snprintf(request->why, sizeof request->why, "%s",
            result == CURLE_OPERATION_TIMEDOUT
                ? "the transfer stalled"
                : (*request->curl_why ? request->curl_why
                                      : curl_easy_strerror(result)));
        return;
    }
    char *code = http_code(request->text, request->text_size);
    bool changed = status == 412 || (status == 416 && request->part);
    request->error = status == 404 || status == 410 ? ENOENT
                     : status == 401                ? EPERM
                     : status == 403                ? EACCES
                     : changed                      ? ESTALE
                                                    : EIO;
    if (request->error == EACCES && code && strcmp(code, "AccessDenied") != 0)
        request->error = EPERM; /* an invalid key, not a missing object */
    (void)snprintf(request->why, sizeof request->why, "HTTP %ld%s%.64s%s", status,
        code ? " " : "", code ? code : "", changed ? ": changed while open" : "");
    free(code);
}

/* ---- the life of a request ---- */

/* A header, unless it has no value. */
static bool http_add_header(
    http_request *request, const char *name, const char *value) {
    char *line = value ? http_format("%s: %s", name, value) : NULL;
    struct curl_slist *list = line ? curl_slist_append(request->headers, line) : NULL;
    free(line);
    if (list)
        request->headers = list;
    return list || !value;
}

/* For libcurl, which forbids the tickets of TLS 1.2 because of servers of 2009: a
 * handshake with one takes half of the processor's time. */
static CURLcode http_allow_tickets(CURL *easy, void *context, void *user) {
    (void)easy;
    (void)user;
    SSL_CTX_clear_options((SSL_CTX *)context, SSL_OP_NO_TICKET);
    return CURLE_OK;
}

#define HTTP_SET(option, value)                                                        \
    (good = good && curl_easy_setopt(easy, option, value) == CURLE_OK)

/* Everything that a request's handle is told. */
static bool http_set(http_request *request, CURL *easy) {
    const bags_http *http = request->http;
    const http_part *part = request->part;
    const char *tag = part && part->object->tag ? part->object->tag : "";
    bool is_signed = request->is_s3 && http->s3.key;
    bool is_tls = strncmp(request->url, "https", 5) == 0;
    double stall = http->stall_seconds < 1 ? 1 : http->stall_seconds;
    char range[64] = "", sign[128];
    bool good = true;
    curl_slist_free_all(request->headers);
    request->headers = NULL;
    good =
        http_add_header(
            request, "x-amz-content-sha256", is_signed ? "UNSIGNED-PAYLOAD" : NULL) &&
        http_add_header(
            request, "x-amz-security-token", is_signed ? http->s3.token : NULL) &&
        /* Weak ones never match. */
        http_add_header(request, "If-Match", *tag == '"' ? tag : NULL) &&
        http_add_header(request, "If-None-Match",
            *request->known.tag ? request->known.tag : NULL) &&
        /* For caches between here and the server. */
        http_add_header(
            request, "Cache-Control", request->record ? "no-cache" : NULL) &&
        http_add_header(request, "Content-MD5", *request->md5 ? request->md5 : NULL) &&
        http_add_header(request, "Content-Type",
            request->method ? "application/octet-stream" : NULL);
    if (part)
        (void)snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64,
            part->start + request->size, part->stop - 1);
    else if (request->object)
        (void)snprintf(range, sizeof range, request->from_start ? "0-%u" : "-%u",
            (unsigned)http_tail(request) - request->from_start);
    HTTP_SET(CURLOPT_URL, request->url);
    HTTP_SET(CURLOPT_PATH_AS_IS, 1L);
    HTTP_SET(CURLOPT_HTTPHEADER, request->headers);
    HTTP_SET(CURLOPT_PRIVATE, request);
    HTTP_SET(CURLOPT_ERRORBUFFER, request->curl_why);
    HTTP_SET(CURLOPT_HEADERFUNCTION, http_header);
    HTTP_SET(CURLOPT_HEADERDATA, request);
    HTTP_SET(CURLOPT_WRITEFUNCTION, http_body);
    HTTP_SET(CURLOPT_WRITEDATA, request);
    HTTP_SET(CURLOPT_XFERINFOFUNCTION, http_progress);
    HTTP_SET(CURLOPT_XFERINFODATA, request);
    HTTP_SET(CURLOPT_NOPROGRESS, 0L);
    HTTP_SET(CURLOPT_NOSIGNAL, 1L);
    HTTP_SET(CURLOPT_TCP_KEEPALIVE, 1L);
    HTTP_SET(CURLOPT_BUFFERSIZE, 65536L);
    /* Many connections, as object stores expect: none starts slowly for all. (Over
     * HTTP/2, libcurl 7.88 also passed answers to other requests.) */
    HTTP_SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    HTTP_SET(CURLOPT_USERAGENT, "bags.h/" BAGS_VERSION);
    HTTP_SET(CURLOPT_SHARE, request->thread->share);
    HTTP_SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(stall * 1000));
    HTTP_SET(CURLOPT_LOW_SPEED_LIMIT, 100L);
    HTTP_SET(CURLOPT_LOW_SPEED_TIME, (long)stall);
#if LIBCURL_VERSION_NUM >= 0x075500
    HTTP_SET(CURLOPT_PROTOCOLS_STR, "http,https");
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS_STR, is_tls ? "https" : "http,https");
#else
    HTTP_SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS,
        (long)((is_tls ? 0 : CURLPROTO_HTTP) | CURLPROTO_HTTPS));
#endif
    /* Every connection would read the certificates again if there were a directory of
     * them, too. */
    if (http->ca_file)
        HTTP_SET(CURLOPT_CAINFO, http->ca_file);
    if (http->ca_file || curl_version_info(CURLVERSION_NOW)->cainfo)
        HTTP_SET(CURLOPT_CAPATH, NULL);
    if (http->is_openssl)
        HTTP_SET(CURLOPT_SSL_CTX_FUNCTION, http_allow_tickets);
    if (request->object)
        HTTP_SET(CURLOPT_RANGE, range);
    if (request->method) {
        HTTP_SET(CURLOPT_POSTFIELDS, request->send);
        HTTP_SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->send_size);
        HTTP_SET(CURLOPT_CUSTOMREQUEST, request->method);
        if (strcmp(request->method, "HEAD") == 0)
            HTTP_SET(CURLOPT_NOBODY, 1L);
    }
    if (!request->is_s3) {
        HTTP_SET(CURLOPT_FOLLOWLOCATION, 1L);
        HTTP_SET(CURLOPT_MAXREDIRS, (long)HTTP_REDIRECTS);
        if (http->user)
            HTTP_SET(CURLOPT_USERPWD, http->user);
    } else if (is_signed) {
        (void)snprintf(sign, sizeof sign, "aws:amz:%.60s:s3", http->s3.region);
        HTTP_SET(CURLOPT_AWS_SIGV4, sign);
        HTTP_SET(CURLOPT_USERNAME, http->s3.key);
        HTTP_SET(CURLOPT_PASSWORD, http->s3.secret);
    }
    return good;
}

/* ---- what is known of an object from another time ----
 * A lookup then asks only whether the ETag is still the same. */

static bool http_is_tag(const char *tag) {
    return *tag == '"' || strncmp(tag, "W/\"", 3) == 0;
}

/* The path of an object with what it leaves open. */
static char *http_key(const http_request *request) {
    uint32_t place = http_place(request);
    const char *path = request->object->path;
    return place ? http_format("%s?%08" PRIx32, path, place) : http_copy(path);
}

/* Find out what a request may ask for. Nothing else uses it yet. */
static void http_recall(http_request *request) {
    const bags_http *http = request->http;
    const http_object *object = request->object;
    bags_http_answer *known = &request->known;
    memset(known, 0, sizeof *known);
    if (!http->recall || !object || request->part || request->unconditional)
        return;
    if (!request->record) {
        char *key = http_key(request);
        if (!key || !http->recall(http->cache, key, known))
            memset(known, 0, sizeof *known);
        free(key);
    } else if (object->tag) {
        (void)snprintf(known->tag, sizeof known->tag, "%s", object->tag);
        known->size = object->size;
    }
    if (!http_is_tag(known->tag))
        *known->tag = '\0';
}

/* The answer 304: the object is as it was. True if it is complete with what is known.
 * The time of the last change may differ where the ETag does not: it must be stated. */
static bool http_unchanged(http_request *request) {
    const http_object *object = request->object;
    const bags_http_answer *known = &request->known;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    if (request->status != 304 || !*known->tag)
        return false;
    bool timed =
        request->record ? object->identity.time != http_hash("") : *known->modified;
    if ((timed && !*request->modified) ||
        (*request->tag &&
            strcmp(http_strong(request->tag), http_strong(known->tag)) != 0)) {
        request->unconditional = true;
        return false;
    }
    if (!*request->tag)
        memcpy(request->tag, known->tag, sizeof request->tag);
    request->status = 206;
    request->total = known->size;
    return true;
}

/* True if the object may be replaced by another one of the same size, ETag and time of
 * the last change, which some servers make of seconds: it was changed in the second of
 * the answer. A later time was not set by a clock: to wait for it is of no use. */
static bool http_is_unsettled(const http_request *request) {
    time_t modified = curl_getdate(request->modified, NULL);
    time_t now = *request->date ? curl_getdate(request->date, NULL) : time(NULL);
    return modified >= 0 && now >= 0 && now <= modified &&
           modified <= now + HTTP_SETTLES && !bagi_http_is_hash(request->tag);
}

/* A lookup has succeeded: remember it. Of an object that is not settled, it is repeated
 * for two seconds: true. */
static bool http_remember(http_request *request) {
    const bags_http *http = request->http;
    if (!http->remember || !request->object || request->part || request->record)
        return false;
    if (http_is_unsettled(request)) {
        request->not_before = http_now() + 0.25;
        return request->unsettled++ < 8;
    }
    if (request->status != 206 || !http_is_tag(request->tag) || request->is_html ||
        request->size == 0)
        return false;
    bags_http_answer answer;
    memset(&answer, 0, sizeof answer);
    answer.size = request->total;
    memcpy(answer.tag, request->tag, sizeof answer.tag);
    memcpy(answer.modified, request->modified, sizeof answer.modified);
    char *key = http_key(request);
    if (key)
        http->remember(http->cache, key, &answer);
    free(key);
    return false;
}

/* Start a request that was queued. */
static bool http_begin(http_request *request) {
    http_thread *thread = request->thread;
    request->next = thread->active;
    thread->active = request;
    request->status = 0;
    request->text_size = request->headers_size = 0;
    request->begun = http_now();
    request->ended = false;
    request->has_head = request->checked = false;
    request->skip = 0;
    request->error = 0;
    request->curl_why[0] = request->why[0] = '\0';
    if (request->tries == 0)
        request->since = http_now();
    if (!request->part)
        request->size = 0;
    http_recall(request);
    if (request->is_s3 && request->http->s3.key && !request->http->s3.secret)
        return http_refuse(
            request, EPERM, "a key without a secret (AWS_SECRET_ACCESS_KEY)");
    request->easy = curl_easy_init();
    return (request->easy && http_set(request, request->easy) &&
               curl_multi_add_handle(thread->multi, request->easy) == CURLM_OK) ||
           http_refuse(request, ENOMEM, "out of memory");
}

/* True if the server of a request has answered one: then it exists. Servers of the same
 * hash count as one, which only makes an error come later. */
static bool *http_has_answered(const http_request *request) {
    const char *at = strstr(request->url, "://");
    at = at ? at + 3 : request->url;
    uint64_t hash = format_hash(0, at, strcspn(at, "/?"));
    return &request->http->answered[hash >> 56];
}

/* True for a failure that another try may not meet. `refused`: there was no
 * connection. */
static bool http_may_retry(
    const http_request *request, CURLcode result, bool *refused) {
    long status = request->status;
    *refused = result == CURLE_COULDNT_CONNECT ||
               result == CURLE_COULDNT_RESOLVE_HOST ||
               result == CURLE_SSL_CONNECT_ERROR;
    if (request->error)
        return request->error == EAGAIN;
    switch ((int)result) {
    case CURLE_OK:
        return status == 429 || status == 408 || (status >= 500 && status != 501);
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return *refused;
    }
}

/* Some servers know no ranges from the end, Azure's for one: they ignore or refuse
 * them, or fail. Then the first bytes are requested. */
static bool http_retry_from_start(http_request *request) {
    long status = request->status;
    if (!request->object || request->part || request->from_start)
        return false;
    request->from_start = status == 200 || status == 400 || status == 416 ||
                          status == 501 || (status >= 500 && request->tries > 2);
    if (request->from_start)
        http_queue(request->http, request);
    return request->from_start;
}

/* Queue a failed request again, unless the time for it is over. A server that has not
 * answered yet may be starting; names and certificates do not change by that. */
static bool http_retry(http_request *request, CURLcode result) {
    bags_http *http = request->http;
    bool refused = false;
    double now = http_now(), longest = 6.4, patience = http->retry_seconds;
    curl_off_t retry_after = 0;
    if (http_retry_from_start(request))
        return true;
    if (!http_may_retry(request, result, &refused))
        return false;
    if (refused && !*http_has_answered(request)) {
        if (result != CURLE_COULDNT_CONNECT && request->tries >= 2)
            return false;
        longest = 0.4;
        patience = patience < HTTP_STARTS ? patience : HTTP_STARTS + longest;
    }
    if (request->tries++ == 0 && request->size > 0)
        request->since = now;
    double delay = 0.1 * (double)(1u << (request->tries < 7 ? request->tries : 6));
    delay = delay < longest ? delay : longest;
    http->random = http->random * 1664525u + 1013904223u;
    delay *= 0.5 + (double)(http->random >> 8) / (double)(1u << 25);
    curl_easy_getinfo(request->easy, CURLINFO_RETRY_AFTER, &retry_after);
    if (delay < (double)retry_after)
        delay = (double)retry_after;
    if (now + delay - request->since > patience)
        return false;
    request->not_before = now + delay;
    http_queue(http, request);
    return true;
}

/* What an answer states of an object. */
static bags_identity http_identity(const http_request *request) {
    bags_identity found;
    memset(&found, 0, sizeof found);
    found.device = http_place(request);
    found.inode = http_hash(http_strong(request->tag));
    /* A weak ETag states only that the content means the same. Alone, it identifies no
     * bytes, as in an object with neither. */
    bool weak = *request->tag == 'W' && !*request->modified;
    found.time = weak ? found.inode : http_hash(request->modified);
    found.size = request->status == 416   ? 0
                 : request->status == 206 ? request->total
                                          : request->size;
    return found;
}

/* An object was looked at again. */
static void http_checked(http_request *request, bool good) {
    http_object *object = request->object;
    http_object *record = request->record;
    int error = request->error;
    bool changed = good || error == ENOENT || error == ESTALE;
    bool end = http_is_end(record, object);
    record->checks--;
    if (end) {
        record->grown = record->grown || (good && !request->is_html);
        changed = false;
        good = good || error == ENOENT || error == EACCES;
    } else if (good) {
        bags_identity found = http_identity(request);
        changed = !format_is_same(&found, &object->identity);
        object->early = object->early && changed;
    }
    if (changed) {
        http_record_changed(record);
    } else if (!good && record->error != ESTALE) {
        http_fail_check(record, error, request->why);
    }
}

/* True if the answer is that to the same path with a slash: then it is a directory. */
static bool http_is_redirected(const http_request *request) {
    const char *from = request->url, *to = NULL;
    curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &to);
    if (!to || strlen(to) < 8)
        return false;
    from += 8 + strcspn(from + 8, "/?");
    to += 8 + strcspn(to + 8, "/?");
    size_t size = strcspn(from, "?");
    return strncmp(from, to, size) == 0 && to[size] == '/' &&
           (!to[size + 1] || strchr("?#", to[size + 1]));
}

/* Bytes of an object have arrived. Of a lookup, they are its last ones, or first. */
static void http_arrived(http_request *request) {
    bags_http *http = request->http;
    http_object *object = request->object;
    http_part *part = request->part;
    if (!part) {
        const char *url = NULL;
        curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &url);
        size_t size = url ? strcspn(url, "?#") : 0;
        object->state = HTTP_DONE;
        if (size && url[size - 1] == '/') {
            object->state = HTTP_FAILED;
            http_object_fail(object, ENOENT, "a directory");
            return;
        }
        free(object->tag);
        object->tag = http_copy(http_tag(request));
        object->identity = http_identity(request);
        object->is_html = request->is_html;
        object->size = object->identity.size;
        http->from_start = http->from_start || request->from_start;
        uint64_t start = request->status == 206 ? request->first : 0;
        if (request->size > 0)
            part = http_part_new(http, object, start, start + request->size);
    }
    if (part) {
        part->data = request->body;
        part->state = HTTP_DONE;
        memset(&request->body, 0, sizeof request->body);
    }
    if (object->error != ESTALE)
        object->error = 0;
}

/* A transfer has ended. */
static void http_finish(http_request *request, CURLcode result) {
    bags_http *http = request->http;
    http_thread *thread = request->thread;
    http_object *object = request->object;
    http_request **at = &thread->active;
    curl_off_t received = 0;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    thread->running--;
    if (request->easy) {
        curl_multi_remove_handle(thread->multi, request->easy);
        curl_easy_getinfo(request->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
    }
    if (request->ended)
        result = CURLE_OK;
    else if (result == CURLE_OK && !request->has_head) /* it ended there */
        result = CURLE_PARTIAL_FILE;
    bool unchanged = result == CURLE_OK && http_unchanged(request);
    bool good = unchanged || (result == CURLE_OK && http_complete(request));
    bool repeat = good ? !unchanged && http_remember(request)
                       : request->status == 304 && request->unconditional;
    pthread_mutex_lock(&http->mutex);
    http->requests++;
    http->received += (uint64_t)received;
    if (request->status)
        *http_has_answered(request) = true;
    good = good && !repeat;
    bool again = repeat || (!good && http_retry(request, result));
    if (repeat)
        http_queue(http, request);
    if (object && !again && !request->part && !request->record) {
        http->looked = ++http->time;
        if (object->record) {
            if (http->latest != object)
                http->others = http->found;
            http->latest = object;
            http->found = object->record->answered = http->time;
        }
    }
    if (object && !request->record && !request->part && request->easy)
        object->is_directory = http_is_redirected(request);
    if (good && object && !request->record)
        http_arrived(request);
    curl_easy_cleanup(request->easy);
    request->easy = NULL;
    if (!good && !again) {
        http_describe(request, result);
        size_t used = strlen(request->why);
        if (request->tries > 1)
            (void)snprintf(request->why + used, sizeof request->why - used,
                " (%d attempts in %.0f s)", request->tries + 1,
                http_now() - request->since);
        if (object && !request->record) {
            http_object_fail(object, request->error, request->why);
            *(request->part ? &request->part->state : &object->state) = HTTP_FAILED;
        }
    }
    http->ended = http->ended || !again;
    if (request->record && !again)
        http_checked(request, good);
    if (!again) {
        request->state = good ? HTTP_DONE : HTTP_FAILED;
        thread->load--;
    }
    if (!again && (object || request->abandoned))
        http_request_free(request);
    pthread_mutex_unlock(&http->mutex);
}

/* Take up to HTTP_STEP requests from the queue that are due, in order. Returns the
 * milliseconds until the next is. The mutex is held. */
static int http_take(http_thread *thread, http_request **taken) {
    size_t most = thread->running + HTTP_STEP;
    double now = http_now(), wait = 1;
    http_request *last = thread->queue, *request = NULL;
    while (last && last->next)
        last = last->next;
    while (thread->queue && request != last &&
           thread->running < thread->http->connections_each) {
        if (thread->running == most)
            return 0;
        request = thread->queue;
        thread->queue = request->next;
        if (!thread->queue)
            thread->queue_end = &thread->queue;
        double due = request->not_before - now;
        if (due > 0) {
            http_queue(thread->http, request);
            wait = due < wait ? due : wait;
            continue;
        }
        thread->running++;
        request->next = NULL;
        *taken = request;
        taken = &request->next;
    }
    return (int)(wait * 1000) + 1;
}

/* What to wait for on a socket, from libcurl. It is called for every change, so that
 * nothing has to be collected where hundreds of connections are open. */
static int http_socket(
    CURL *easy, curl_socket_t socket, int what, void *user, void *own) {
    http_thread *thread = (http_thread *)user;
    size_t i = (size_t)socket, size = (i + 1) * sizeof(struct pollfd);
    (void)easy;
    (void)own;
    if (i >= thread->sockets) {
        if (bags_buffer_reserve(&thread->memory, size, NULL))
            return -1;
        struct pollfd *added = (struct pollfd *)(void *)thread->memory.data;
        for (; thread->sockets <= i; thread->sockets++)
            added[thread->sockets].fd = -1;
    }
    struct pollfd *polled = (struct pollfd *)(void *)thread->memory.data + i;
    polled->fd = what == CURL_POLL_REMOVE ? -1 : socket;
    polled->events = (short)((what & CURL_POLL_IN ? POLLIN : 0) |
                             (what & CURL_POLL_OUT ? POLLOUT : 0));
    polled->revents = 0;
    return 0;
}

/* Wait for sockets, for timers of libcurl and for the pipe; at most `wait` ms. Then let
 * libcurl go on with those transfers that can. */
static void http_transfer(http_thread *thread, int wait) {
    long due = -1;
    int running = 0;
    char bytes[64];
    curl_multi_timeout(thread->multi, &due);
    bool timer = due >= 0 && due <= wait;
    int ready = poll((struct pollfd *)(void *)thread->memory.data,
        (nfds_t)thread->sockets, timer ? (int)due : wait);
    if (timer)
        curl_multi_socket_action(thread->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    for (size_t i = 0; i < thread->sockets && ready > 0; i++) {
        struct pollfd one = ((struct pollfd *)(void *)thread->memory.data)[i];
        if (one.fd < 0 || !one.revents)
            continue;
        ready--;
        if (one.fd == thread->wake[0]) {
            while (read(one.fd, bytes, sizeof bytes) > 0)
                ;
            continue;
        }
#ifdef TCP_QUICKACK
        /* A server that waits for an acknowledgement before it sends the end of an
         * answer (TCP_CORK, packets of 64 KB) would otherwise get it 40 ms later. */
        int on = 1;
        (void)setsockopt(one.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
#endif
        curl_multi_socket_action(thread->multi, one.fd,
            (one.revents & POLLOUT ? CURL_CSELECT_OUT : 0) |
                (one.revents & ~POLLOUT ? CURL_CSELECT_IN : 0),
            &running);
    }
}

/* A thread. Everything that waits is woken once per round, however many transfers have
 * ended in it. */
static void *http_work(void *user) {
    http_thread *thread = (http_thread *)user;
    bags_http *http = thread->http;
    pthread_mutex_lock(&http->mutex);
    while (!http->stop) {
        thread->woken = false;
        int left = 0;
        http_request *taken = NULL, *next = NULL;
        CURLMsg *message = NULL;
        int wait = http_take(thread, &taken);
        pthread_mutex_unlock(&http->mutex);
        for (; taken; taken = next) {
            next = taken->next;
            if (!http_begin(taken))
                http_finish(taken, CURLE_OUT_OF_MEMORY);
        }
        http_transfer(thread, wait);
        while ((message = curl_multi_info_read(thread->multi, &left)) != NULL) {
            char *request = NULL;
            CURLcode result = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &request);
            http_finish((http_request *)(void *)request, result);
        }
        pthread_mutex_lock(&http->mutex);
        if (http->ended)
            pthread_cond_broadcast(&http->changed);
        http->ended = false;
    }
    pthread_mutex_unlock(&http->mutex);
    return NULL;
}

/* In the child of a fork the threads are missing, and the mutex may be locked. */
bool bagi_http_alive(const bags_http *http) { return http->process == getpid(); }

/* ---- hooks that look up ---- */

/* Errno, if a hook cannot do anything with a path. */
static int http_refuse_path(const bags_http *http, const char *path) {
    return !bags_http_is_url(path) ? EINVAL : bagi_http_alive(http) ? 0 : EIO;
}

/* Look a path up and wait. Returns errno; 0: it exists. The mutex is held. */
static int http_wait(bags_http *http, http_object *object) {
    if (!object)
        return ENOMEM;
    http_look(http, object);
    double due = 0;
    if (object->state == HTTP_WAITING)
        http_wake(http);
    while (object->state == HTTP_WAITING)
        if (http_pause(http, &due))
            return EINTR;
    return object->state == HTTP_DONE ? 0 : object->error;
}

/* ---- servers that answer every path ----
 * Some answer names that do not exist with a page and 200, or with 403. What could be
 * such a page, and what is forbidden, is compared with the answer to a name that does
 * not exist either: the control, which is looked up once for each dataset. */

/* Start to look up the control of a path. The mutex is held. */
static http_object *http_control(bags_http *http, const char *path) {
    const char *host = strstr(path, "://") + 3;
    const char *name = strrchr(host, '/');
    size_t size = name ? (size_t)(name - path) : strlen(path), digits = size;
    while (digits > 0 && path[digits - 1] >= '0' && path[digits - 1] <= '9')
        digits--; /* a shard */
    if (digits < size && path[digits - 1] == '/' && path + digits > host)
        size = digits - 1;
    http_object *object =
        http_find_printed(http, "%.*s/" HTTP_CONTROL, (int)size, path);
    if (object)
        http_look(http, object);
    return object;
}

/* True for a file next to Bags that need not exist. */
static bool http_is_extra(const char *path) {
    return http_ends_in(path, ".idx .crc .dict .partial ") ||
           strcmp(strrchr(path, '/'), "/finalized") == 0;
}

/* True if 403 is this server's answer to what is missing. The mutex is held. */
static bool http_is_missing(bags_http *http, const char *path) {
    http_object *control = http_control(http, path);
    return http_wait(http, control) == EACCES;
}

/* A JSON object with strings, and nothing else in it but at least one. */
static bool http_is_spec(const char *at, const char *stop) {
    static const char order[] = "{\":\""; /* then , and the second again */
    size_t next = 0, strings = 0;
    for (; at < stop; at++) {
        if (strchr(" \t\r\n", *at) && *at)
            continue;
        if (next == 4 && *at == '}') {
            while (++at < stop && strchr(" \t\r\n", *at) && *at)
                ;
            return at == stop && strings > 0;
        }
        if (*at != (next == 4 ? ',' : order[next]))
            return false;
        next = next == 4 ? 1 : next + 1;
        if (*at != '"')
            continue;
        strings++;
        while (++at < stop && *at != '"')
            at += *at == '\\';
    }
    return false;
}

/* True if what a lookup found may be the file of a dataset by its first or last bytes,
 * which are at hand. */
static bool http_is_plausible(const http_object *object) {
    const char *name = strrchr(object->path, '/') + 1;
    const http_part *part = object->count ? http_parts(object)[0] : NULL;
    uint64_t size = object->size, table = 0;
    if (object->is_html)
        return false;
    if (part && (part->state != HTTP_DONE || part->stop - part->start < 8))
        part = NULL;
    if (strncmp(name, "spec.json", 9) == 0 && size >= HTTP_TAIL)
        return true;
    if (strcmp(name, "spec.json") == 0 && part && part->start == 0)
        return http_is_spec(
            (const char *)part->data.data, (const char *)part->data.data + part->stop);
    if (part)
        table = bags_load(part->data.data + (part->stop - part->start - 8), 8, false);
    if (http_ends_in(name, ".bag "))
        return part && (part->stop < size || table <= size - 8);
    return http_ends_in(name, ".zip .tar ");
}

/* True if the answers are the same, as far as they are at hand: what is known of another
 * time has an ETag in place of bytes. */
static bool http_is_equal(const http_object *a, const http_object *b) {
    const http_part *x = a->count ? http_parts(a)[0] : NULL;
    const http_part *y = b->count ? http_parts(b)[0] : NULL;
    if (!x || !y)
        return a->size == b->size && a->identity.inode == b->identity.inode;
    return a->size == b->size && x->state == HTTP_DONE && y->state == HTTP_DONE &&
           x->start == y->start && x->stop == y->stop &&
           memcmp(x->data.data, y->data.data, (size_t)(x->stop - x->start)) == 0;
}

/* What was found is missing if it is the page that the server has for everything.
 * Returns errno. The mutex is held. */
static int http_refuse_page(bags_http *http, http_object *object) {
    char start[41] = "", why[128];
    if (http_is_s3(object->path) || object->is_real ||
        (object->is_real = http_is_plausible(object)))
        return 0;
    http_object *control = http_control(http, object->path);
    int none = http_wait(http, control);
    object->is_real = none && none != EINTR;
    if (none)
        return none == EINTR ? EINTR : 0;
    const http_part *part = control->count ? http_parts(control)[0] : NULL;
    for (size_t i = 0; part && i < sizeof start - 1 && i < part->stop - part->start;
         i++) {
        unsigned char c = part->data.data[i];
        start[i] = c < ' ' || c > '~' ? ' ' : (char)c;
    }
    const http_part *own = object->count ? http_parts(object)[0] : NULL;
    bool page = object->is_html || http_is_equal(object, control) ||
                (own && strcmp(strrchr(object->path, '/'), "/spec.json") == 0);
    /* Two objects of JSON may be the same error, with the path in it. */
    object->is_real =
        !page && !(*start == '{' && own && own->start == 0 && own->data.data[0] == '{');
    if (object->is_real)
        return 0;
    (void)snprintf(why, sizeof why,
        "the server answers names that do not exist, too (HTTP 200: %s)", start);
    object->state = HTTP_FAILED;
    http_object_fail(object, page ? ENOENT : EIO, why);
    return object->error;
}

/* Start to look up DIRECTORY/NAME. The mutex is held. */
static http_object *http_look_in(
    bags_http *http, const char *directory, const char *name) {
    http_object *object = http_find_printed(
        http, "%.*s/%s", (int)http_path_size(directory), directory, name);
    if (object)
        http_look(http, object);
    return object;
}

static void http_expect(void *user, const char *path) {
    bags_http *http = (bags_http *)user;
    if (!bags_http_is_url(path) || !bagi_http_alive(http))
        return;
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, http_path_size(path), true);
    if (object && object->state == HTTP_NEW) {
        http_look(http, object);
        if (object->state == HTTP_WAITING && http_is_extra(path) && !http_is_s3(path))
            (void)http_control(http, path);
    } else if (object && object->used) {
        http_check(http, object);
    }
    http_wake(http);
    pthread_mutex_unlock(&http->mutex);
}

static void http_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    bags_http *http = (bags_http *)user;
    size_t length = http_path_size(path);
    if (!bagi_http_alive(http)) {
        (void)snprintf(text, size, "a bags_http cannot be used after fork");
        return;
    }
    char *listed = http_format("%.*s/", (int)length, path);
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, length, false);
    http_object *objects[] = {object, object ? object->record : NULL,
        listed ? http_find(http, listed, length + 1, false) : NULL};
    for (int i = 2; i >= 0; i--)
        if (objects[i] && objects[i]->why && objects[i]->why_error == error &&
            (error != ENOENT || http_ends_in(path, HTTP_FILES) ||
                strstr(objects[i]->why, "HTTP 200")))
            (void)snprintf(text, size, "%s", objects[i]->why);
    pthread_mutex_unlock(&http->mutex);
    free(listed);
}

/* Run a request whose body the caller reads. Returns errno. EINTR: the request is not the
 * caller's any more; this does not happen to one that sends what the caller has. */
static int http_run(bags_http *http, http_request *request) {
    double due = 0;
    pthread_mutex_lock(&http->mutex);
    http_queue(http, request);
    http_wake(http);
    while (request->state == HTTP_WAITING && !request->abandoned) {
        if (request->send)
            pthread_cond_wait(&http->changed, &http->mutex);
        else
            request->abandoned = http_pause(http, &due) != 0;
    }
    bool abandoned = request->state == HTTP_WAITING;
    int code = abandoned ? EINTR : request->state == HTTP_DONE ? 0 : request->error;
    pthread_mutex_unlock(&http->mutex);
    return code;
}

typedef struct http_names {
    bags_buffer text;
    size_t size;
    bool dataset; /* there is a spec.json, or a number */
    size_t read;  /* bytes of the pages */
} http_names;

/* One name of a listing. */
static int http_names_add(void *user, const char *name) {
    http_names *names = (http_names *)user;
    size_t size = strlen(name) + 1;
    if (bags_buffer_reserve(&names->text, names->size + size, NULL))
        return ENOMEM;
    memcpy(names->text.data + names->size, name, size);
    names->size += size;
    names->dataset = names->dataset || strcmp(name, "spec.json") == 0 ||
                     name[strspn(name, "0123456789")] == '\0';
    return 0;
}

/* One page of a listing of PATH, which ends in a slash. *more: the token of the next
 * one. Returns errno; `why` has 256 bytes. */
static int http_list_page(
    bags_http *http, const char *path, char **more, http_names *names, char *why) {
    bool s3 = http_is_s3(path);
    const char *prefix = strchr(path + (s3 ? 5 : 8), '/');
    char *directory = s3 ? NULL : curl_easy_unescape(NULL, prefix, 0, NULL);
    char *encoded = format_url(prefix + s3, "", NULL);
    char *token = *more ? format_url(*more, "", NULL) : NULL;
    char *query = encoded && (token || !*more)
                      ? http_format("%s%s%sdelimiter=%%2F&list-type=2&prefix=%s",
                            token ? "continuation-token=" : "", token ? token : "",
                            token ? "&" : "", encoded)
                      : NULL;
    http_request *request =
        query ? http_request_new(http, path, s3, false, s3 ? query : NULL) : NULL;
    int code = request ? 0 : ENOMEM;
    free(*more);
    *more = NULL;
    if (request)
        code = http_run(http, request);
    if (code == EINTR)
        request = NULL;
    if (code && request) {
        memcpy(why, request->why, sizeof request->why);
    } else if (request && request->body.data) {
        names->read += request->size;
        if (s3 || request->is_html)
            code = bags_http_names(request->body.data, request->size, s3,
                directory ? directory : prefix + s3, http_names_add, names);
        if (s3)
            *more =
                http_xml(request->body.data, request->size, "<NextContinuationToken>");
        char *truncated =
            s3 && !*more ? http_xml(request->body.data, request->size, "<IsTruncated>")
                         : NULL;
        if (!code && truncated && strcmp(truncated, "true") == 0) {
            code = EIO;
            strcpy(why, "a truncated list without a NextContinuationToken");
        }
        free(truncated);
    }
    http_request_free(request);
    curl_free(directory);
    free(encoded);
    free(token);
    free(query);
    return code;
}

/* The names in a directory as the server lists them, remembered with the path and a
 * slash. Returns errno: ENOENT if there is no list. */
static int http_listing(bags_http *http, const char *path, http_object **out) {
    http_names names;
    char *more = NULL, why[256] = "";
    char *key = http_format("%.*s/", (int)http_path_size(path), path);
    int code = 0;
    memset(&names, 0, sizeof names);
    pthread_mutex_lock(&http->mutex);
    http_object *object = key ? http_find(http, key, strlen(key), true) : NULL;
    bool known = !object || object->names.data || http_rests(object, HTTP_FORGET);
    if (known)
        code = object ? object->error : ENOMEM;
    pthread_mutex_unlock(&http->mutex);
    *out = object;
    for (int i = 0; !known && !code && (i == 0 || more); i++) {
        code = http_list_page(http, key, &more, &names, why);
        if (!code && more && (i == HTTP_PAGES || names.read > HTTP_LISTING)) {
            code = EFBIG;
            strcpy(why, "the listing does not end");
        }
    }
    free(more);
    free(key);
    if (known)
        return code;
    if (code == EINTR) {
        bags_buffer_free(&names.text);
        return code;
    }
    bool whole = !code;
    if (whole && !(http_is_s3(path) ? names.size > 0 : names.dataset))
        code = ENOENT;
    pthread_mutex_lock(&http->mutex);
    if (!object->names.data) {
        object->state = code ? HTTP_FAILED : HTTP_DONE;
        object->error = 0;
        if (code)
            http_object_fail(object, code, why);
        if (whole) {
            object->names = names.text;
            object->names_size = names.size;
            memset(&names.text, 0, sizeof names.text);
        }
    }
    pthread_mutex_unlock(&http->mutex);
    bags_buffer_free(&names.text);
    return code;
}

/* Some servers, and S3 for those that may not list, answer 403 for what is missing:
 * true for a file that need not exist. Shards have a spec.json each, and none is next
 * to them. The mutex is held. */
static bool http_is_optional(bags_http *http, const char *path) {
    const char *name = strrchr(path, '/') + 1;
    if (!http_is_missing(http, path))
        return false;
    if (strcmp(name, "spec.json") != 0)
        return http_is_extra(path);
    return !http_wait(http,
        http_find_printed(http, "%.*s000000/spec.json", (int)(name - path), path));
}

/* All that may show what a path is is requested at once: the object, the files that a
 * dataset has, and a listing. So it takes one round trip, also where nothing exists. */
static int http_kind(void *user, const char *path, bags_path_kind *kind) {
    bags_http *http = (bags_http *)user;
    http_object *inside[3] = {NULL, NULL, NULL}, *listing = NULL;
    static const char *const names[] = {"spec.json", "refs.bag", "000000/spec.json"};
    bool file = http_ends_in(path, HTTP_FILES);
    int code = http_refuse_path(http, path);
    *kind = BAGS_PATH_NONE;
    if (code)
        return code;
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, http_path_size(path), true);
    if (object && file) /* others are directories usually */
        http_look(http, object);
    for (int i = 0; i < 3 && !file; i++)
        inside[i] = http_look_in(http, path, names[i]);
    /* What a cache knows is compared with it: both take one round trip. */
    if (http->recall && inside[0] && !http_is_s3(path))
        (void)http_control(http, inside[0]->path);
    http_wake(http);
    pthread_mutex_unlock(&http->mutex);
    int listed = file ? ENOENT : http_listing(http, path, &listing);
    pthread_mutex_lock(&http->mutex);
    bool directory = listed == 0;
    const http_object *broken = NULL;
    for (int i = 0; i < 3 && !file && !directory; i++) {
        int error = http_wait(http, inside[i]);
        if (!error)
            error = http_refuse_page(http, inside[i]);
        directory = !error;
        if (error == EINTR) {
            pthread_mutex_unlock(&http->mutex);
            return error;
        }
        if (error != ENOENT && error != EACCES && inside[i])
            broken = inside[i];
    }
    if (object && broken && !directory && object->state == HTTP_NEW) {
        object->state = HTTP_FAILED; /* do not wait for this server again */
        http_object_fail(object, broken->error, broken->why);
    }
    code = directory ? 0 : http_wait(http, object);
    if (!code && !directory)
        code = http_refuse_page(http, object);
    if ((code == ENOENT || code == EACCES) && object->is_directory) {
        directory = true; /* without a dataset */
        code = 0;
    }
    if (!code)
        *kind = directory ? BAGS_PATH_DIRECTORY : BAGS_PATH_FILE;
    if (code == ENOENT || (code == EACCES && http_is_optional(http, path)))
        code = listed == ENOENT || listed == EACCES ? 0 : listed;
    pthread_mutex_unlock(&http->mutex);
    return code;
}

/* The spec.json of a shard. */
static http_object *http_look_in_shard(
    bags_http *http, const char *path, uint64_t number) {
    char name[40];
    (void)snprintf(name, sizeof name, "%06" PRIu64 "/spec.json", number);
    return http_look_in(http, path, name);
}

/* A server that ignores a folder of the path has every shard: then there are none next to
 * a spec.json, and without that it is an error. True: *code is the result. The mutex is
 * held. */
static bool http_ignores_folder(bags_http *http, const char *path, int *code) {
    http_object *last = http_look_in_shard(http, path, HTTP_SHARDS);
    http_object *own = http_look_in(http, path, "spec.json");
    http_object *directory = http_find(http, path, http_path_size(path), true);
    if (http_wait(http, last) || http_refuse_page(http, last))
        return false;
    int none = http_wait(http, own);
    *code = none && none != EINTR ? EIO : none;
    if (*code == EIO && directory)
        http_object_fail(directory, EIO,
            "the server has every shard up to 999999 (HTTP 200): it ignores a "
            "folder of the path");
    return true;
}

/* Find shards where the server lists nothing: 000000, 000001, ... Of a server that
 * answers every path, those with the spec of the first one. */
static int http_probe(bags_http *http, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    uint64_t ahead = 0, missing = 0;
    http_object *first = NULL;
    for (uint64_t i = 0; missing < HTTP_MISSING && i < HTTP_SHARDS; i++) {
        char name[32];
        pthread_mutex_lock(&http->mutex);
        /* The longer the row is, the more of its rest are looked up at once. */
        uint64_t more = missing ? HTTP_MISSING - missing : 3 * i + HTTP_MISSING;
        uint64_t stop =
            i == ahead ? i + (more < HTTP_AHEAD ? more : HTTP_AHEAD) : ahead;
        for (; ahead < stop; ahead++)
            http_look_in_shard(http, path, ahead);
        http_object *object = http_look_in_shard(http, path, i);
        http_object *control = object ? http_control(http, object->path) : NULL;
        int code = 0;
        if (i == 0 && http_ignores_folder(http, path, &code)) {
            pthread_mutex_unlock(&http->mutex);
            return code;
        }
        code = http_wait(http, object);
        int none = http_wait(http, control);
        if (none == EINTR)
            code = none;
        if (!code)
            code = http_refuse_page(http, object);
        if (!code && !none &&
            (http_is_equal(object, control) ||
                (first && !http_is_equal(object, first))))
            code = ENOENT;
        first = code || first ? first : object;
        pthread_mutex_unlock(&http->mutex);
        (void)snprintf(name, sizeof name, "%06" PRIu64, i);
        missing =
            code == ENOENT || (code == EACCES && none == EACCES) ? missing + 1 : 0;
        if (!code)
            code = each(each_user, name);
        if (code && !missing) {
            pthread_mutex_lock(&http->mutex);
            http_object *directory = http_find(http, path, http_path_size(path), true);
            if (directory && object && object->why && code != EINTR)
                http_object_fail(directory, code, object->why);
            pthread_mutex_unlock(&http->mutex);
            return code;
        }
    }
    return 0;
}

/* Without a list of the server, shards are found by their numbers. */
static int http_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    bags_http *http = (bags_http *)user;
    http_object *listing = NULL;
    int code = http_refuse_path(http, path);
    if (code)
        return code;
    code = http_listing(http, path, &listing);
    pthread_mutex_lock(&http->mutex);
    const http_object *object = http_find(http, path, http_path_size(path), false);
    if (code == ENOENT && object && object->is_directory && listing->names.data)
        code = 0; /* a list, since it is of a directory */
    pthread_mutex_unlock(&http->mutex);
    if (code == ENOENT || code == EACCES)
        return http_probe(http, path, each, each_user);
    for (size_t at = 0; !code && at < listing->names_size;
         at += strlen((const char *)listing->names.data + at) + 1)
        code = each(each_user, (const char *)listing->names.data + at);
    return code;
}

/* Lock the mutex, and look up the object of a path, unless it is known. NULL: it failed,
 * and the mutex is not held. Returns errno. */
static int http_enter(bags_http *http, const char *path, http_object **object) {
    int code = http_refuse_path(http, path);
    if (code) {
        *object = NULL;
        return code;
    }
    pthread_mutex_lock(&http->mutex);
    if (!*object)
        *object = http_find(http, path, http_path_size(path), true);
    code = http_wait(http, *object);
    if (!*object)
        pthread_mutex_unlock(&http->mutex);
    return code == EACCES && http_is_optional(http, path) ? ENOENT : code;
}

/* A file is open once it was looked up: the object is its handle, and close does
 * nothing. */
static int http_open(void *user, const char *path, int mode, void **file) {
    bags_http *http = (bags_http *)user;
    http_object *object = NULL;
    int code = mode == BAGS_IO_READ ? http_enter(http, path, &object) : EROFS;
    if (!object)
        return code;
    if (!code)
        code = http_refuse_page(http, object);
    if (!code && object->record)
        object->record->used = true;
    if (!code && !object->tag && object->size > 0)
        http->unversioned = true;
    pthread_mutex_unlock(&http->mutex);
    if (!code)
        *file = object;
    return code;
}

/* Of an open file, what its lookup found, and of spec.json, what the last check of its
 * shard did. */
static int http_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    bags_http *http = (bags_http *)user;
    http_object *object = (http_object *)file;
    int code = http_enter(http, path, &object);
    if (!object)
        return code;
    if (!code && !file) {
        http_object *record = object->record ? object->record : object;
        double due = 0;
        while (record->state == HTTP_WAITING && !code)
            code = http_pause(http, &due);
        if (code) {
            pthread_mutex_unlock(&http->mutex);
            return code;
        }
        if (record != object && record->state == HTTP_DONE) {
            http_check(http, record);
        } else if (record != object) { /* which is in no shard */
            record = object;
            if (!object->checks)
                http_request_check(http, object, object);
        }
        code = http_wait_checks(http, record);
        int none = record->grown && code != EINTR
                       ? http_wait(http, http_control(http, record->path))
                       : 0;
        if (none == EINTR) {
            code = none;
        } else if (none) {
            http_record_changed(record);
            code = ESTALE;
        }
    }
    if (file && !object->record && object->error == ESTALE)
        code = ESTALE; /* what was read of it is of another version */
    else if (code == ESTALE && !object->record && !object->grown)
        code = 0; /* it differs from what it was when the file was opened */
    if (!code)
        *identity = object->identity;
    pthread_mutex_unlock(&http->mutex);
    return code;
}

static int http_close(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

static int http_size(void *user, void *file, uint64_t *size) {
    bags_http *http = (bags_http *)user;
    pthread_mutex_lock(&http->mutex);
    *size = ((http_object *)file)->size;
    pthread_mutex_unlock(&http->mutex);
    return 0;
}

/* ---- hooks that read ---- */

/* The parts that a call waits for: until its end they are not dropped. */
typedef struct http_call {
    bags_buffer memory;
    http_part **parts;
    size_t count;
} http_call;

/* Count this call among the users of a part, until http_call_end. */
static bool http_call_add(http_call *call, http_part *part) {
    if (bags_buffer_reserve(
            &call->memory, (call->count + 1) * sizeof(http_part *), NULL))
        return false;
    call->parts = (http_part **)(void *)call->memory.data;
    part->users++;
    call->parts[call->count++] = part;
    return true;
}

/* Add the parts that have the first of these bytes. Returns the end of what they have,
 * which is `stop` if they have all. */
static uint64_t http_cover(bags_http *http, http_call *call, const http_object *object,
    uint64_t start, uint64_t stop) {
    while (start < stop) {
        http_part *part = http_part_find(object, start);
        if (!part || !http_call_add(call, part))
            return start;
        http_part_unlink(http, part); /* it is the newest now */
        http_part_link(http, part);
        start = part->stop;
    }
    return stop;
}

static int http_want_order(const void *a, const void *b) {
    const http_want *x = (const http_want *)a, *y = (const http_want *)b;
    if (x->object != y->object)
        return (uintptr_t)x->object < (uintptr_t)y->object ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

/* Request the bytes from the first of these wants to `stop`, in pieces that arrive at
 * the same time. */
static void http_request_bytes(
    bags_http *http, http_call *call, const http_want *first, uint64_t stop) {
    http_object *object = first->object;
    uint64_t at = first->start, size = object->size;
    if (stop - at < HTTP_GAP) { /* their neighbours are read soon */
        at -= at % HTTP_BLOCK;
        stop += (HTTP_BLOCK - stop % HTTP_BLOCK) % HTTP_BLOCK;
        stop = stop < size ? stop : size;
    }
    for (uint64_t end; at < stop; at = end) {
        end = stop - at < HTTP_CHUNK ? stop : at + HTTP_CHUNK;
        if (!first->waits && !http_make_room(http, http_cost(at, end)))
            return;
        http_part *part = http_part_new(http, object, at, end);
        if (!part)
            return;
        if (first->waits && !http_call_add(call, part)) {
            http_part_free(http, part);
            return;
        }
        if (!http_request_object(http, object, part, NULL)) {
            part->state = HTTP_FAILED;
            http_object_fail(object, ENOMEM, "out of memory");
        }
    }
}

/* True if a request that starts `at` a want, and ends at `stop`, includes the next one.
 * What a call waits for is not delayed by what is only read ahead. */
static bool http_joins(
    const http_want *at, const http_want *next, uint64_t stop, uint64_t gap) {
    return next->object == at->object && next->waits == at->waits &&
           (next->start <= stop || next->start - stop <= gap) &&
           next->stop - at->start <= HTTP_CHUNK;
}

/* The gap that is read over: as small as lets the requests be at most a third of the
 * connections, and not so large that more is read over than is wanted. */
static uint64_t http_choose_gap(
    const bags_http *http, const http_want *wants, size_t count) {
    uint64_t gap = HTTP_GAP;
    for (uint64_t last = gap;; last = gap, gap += gap / 8 + 1) {
        uint64_t over = 0, wanted = 0, stop = 0;
        size_t requests = 0;
        for (size_t i = 0, first = 0; i < count; i++) {
            const http_want *want = &wants[i];
            wanted += want->stop - want->start;
            if (i > 0 && http_joins(&wants[first], want, stop, gap)) {
                over += want->start > stop ? want->start - stop : 0;
                stop = want->stop > stop ? want->stop : stop;
            } else {
                requests++;
                first = i;
                stop = want->stop;
            }
        }
        if (over > wanted || gap > HTTP_GAP_MOST)
            return last;
        if (requests <= http->connections / 3)
            return gap;
    }
}

/* Request what is not at hand, neighbours with one request. */
static void http_request_all(
    bags_http *http, http_call *call, http_want *wants, size_t count) {
    if (count > 1)
        qsort(wants, count, sizeof *wants, http_want_order);
    uint64_t gap = http_choose_gap(http, wants, count);
    for (size_t i = 0, next; i < count; i = next) {
        uint64_t stop = wants[i].stop;
        for (next = i + 1;
             next < count && http_joins(&wants[i], &wants[next], stop, gap); next++)
            stop = wants[next].stop > stop ? wants[next].stop : stop;
        http_request_bytes(http, call, &wants[i], stop);
    }
}

/* Copy what has arrived to a read. */
static void http_copy_read(bags_io_read *read) {
    const http_object *object = (http_object *)read->file;
    unsigned char *data = (unsigned char *)read->data;
    while (read->done < read->size) {
        uint64_t at = read->offset + read->done;
        const http_part *part = http_part_find(object, at);
        if (!part || part->state != HTTP_DONE)
            return;
        size_t rest = read->size - read->done;
        size_t step = part->stop - at < rest ? (size_t)(part->stop - at) : rest;
        memcpy(data + read->done, part->data.data + (at - part->start), step);
        read->done += step;
    }
}

/* Parts that failed are dropped, so that the next call requests them again. */
static void http_call_end(bags_http *http, http_call *call) {
    for (size_t i = 0; i < call->count; i++) {
        http_part *part = call->parts[i];
        if (--part->users == 0 && part->state == HTTP_FAILED)
            http_part_free(http, part);
    }
    bags_buffer_free(&call->memory);
    http_make_room(http, 0);
}

/* Where reads are in order, read ahead of them: twice as much each time. Returns false
 * if there is nothing to be read yet. Small reads elsewhere, of a Bag's table, do not
 * end the order. */
static bool http_read_ahead(const bags_http *http, http_want *want) {
    http_object *object = want->object;
    uint64_t start = want->start, stop = want->stop;
    if (http->no_read_ahead)
        return false;
    if (start == 0 || start != object->last) {
        if (start == 0 || stop - start >= HTTP_GAP) {
            object->last = stop;
            object->window = object->ahead = 0;
        }
        return false;
    }
    object->last = stop;
    if (object->window == 0) { /* two may be by chance */
        object->window = 2 * HTTP_TAIL;
        return false;
    }
    uint64_t window = object->window < HTTP_CHUNK ? 2 * object->window : HTTP_CHUNK;
    want->waits = false;
    want->start = object->ahead > stop ? object->ahead : stop;
    want->stop =
        object->size - want->start > window ? want->start + window : object->size;
    /* Not until half of what was read ahead has been used. */
    if (want->start >= want->stop || want->start - stop > window / 2)
        return false;
    object->window = window;
    object->ahead = want->stop;
    return true;
}

/*
 * Every read, alone or in a group, and every announcement take this way:
 *
 *     http_cover        what is at hand, or on its way, of each
 *     http_read_ahead   what will be read next
 *     http_request_all  the rest, neighbours together
 *     wait              for those parts that a read needs
 *     http_copy_read    from the parts
 *
 * The mutex is held, except while it waits.
 */
static int http_read(bags_http *http, bags_io_read *reads, size_t count) {
    http_call call;
    size_t wanted = 0;
    bool wait = false; /* for any of them */
    int code = 0;
    if (!bagi_http_alive(http))
        return EIO;
    http_want *wants = (http_want *)malloc((2 * count + 1) * sizeof *wants);
    if (!wants)
        return ENOMEM;
    memset(&call, 0, sizeof call);
    pthread_mutex_lock(&http->mutex);
    for (size_t i = 0; i < count; i++) {
        bags_io_read *read = &reads[i];
        http_object *object = (http_object *)read->file;
        http_want want = {object, read->offset, object->size, read->data != NULL};
        wait = wait || read->data;
        uint64_t most = read->size < HTTP_READ ? read->size : HTTP_READ;
        if (want.start >= want.stop || most == 0)
            continue;
        if (want.stop - want.start > most)
            want.stop = want.start + most;
        bool failed = http_rests(object, 1);
        want.start = http_cover(http, &call, object, want.start, want.stop);
        if (want.start < want.stop && !failed)
            wants[wanted++] = want; /* after a failure, do not wait again */
        want.start = read->offset;
        if (want.waits && !failed && http_read_ahead(http, &want))
            wants[wanted++] = want;
    }
    http_request_all(http, &call, wants, wanted);
    http_wake(http);
    double due = 0;
    for (size_t i = 0; wait && i < call.count; i++)
        while (!code && call.parts[i]->state == HTTP_WAITING)
            code = http_pause(http, &due);
    for (size_t i = 0; i < count; i++)
        if (reads[i].data && ((http_object *)reads[i].file)->error != ESTALE)
            http_copy_read(&reads[i]);
    http_call_end(http, &call);
    pthread_mutex_unlock(&http->mutex);
    free(wants);
    return code;
}

static void http_read_many(void *user, bags_io_read *reads, size_t count) {
    (void)http_read((bags_http *)user, reads, count);
}

static int http_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    bags_http *http = (bags_http *)user;
    http_object *object = (http_object *)file;
    bags_io_read read = {file, offset, data, size, 0};
    *done = 0;
    if (!bagi_http_alive(http))
        return EIO;
    if (offset >= object->size) /* which does not change */
        return 0;
    int code = http_read(http, &read, 1);
    *done = read.done;
    if (read.done || code)
        return read.done ? 0 : code;
    pthread_mutex_lock(&http->mutex);
    int error = object->error;
    pthread_mutex_unlock(&http->mutex);
    return error ? error : EIO;
}

/* ---- for s3.c ---- */

bags_code bagi_http_send(bags_http *http, const char *method, const char *url,
    const char *query, const void *data, size_t size, const unsigned char *md5,
    http_reply *reply, bags_error *err) {
    http_request *request = http_request_new(http, url, false, false, query);
    memset(reply, 0, sizeof *reply);
    if (!request)
        return bags_fail_io(NULL, ENOMEM, url, "upload", err);
    if (md5)
        EVP_EncodeBlock((unsigned char *)request->md5, md5, 16);
    request->method = method;
    request->send = size ? (const char *)data : "";
    request->send_size = size;
    bags_code code = BAGS_OK;
    if (http_run(http, request)) {
        code = bags_fail(err, BAGS_ERROR_IO, "%s: cannot upload: %s",
            bags_path_tail(url), request->why);
        if (err)
            err->system = request->error;
    }
    memcpy(reply->tag, request->tag, sizeof reply->tag);
    reply->body = request->body;
    reply->size = request->size;
    memset(&request->body, 0, sizeof request->body);
    http_request_free(request);
    return code;
}

const char *bagi_http_tag(const void *file) {
    const char *tag = ((const http_object *)file)->tag;
    return tag ? tag : "";
}

uint64_t bagi_http_part_size(const bags_http *http) { return http->part_size; }

/* ---- opening and closing ---- */

/* Returns false if out of memory. */
static bool http_thread_start(bags_http *http, http_thread *thread) {
    thread->http = http;
    thread->queue_end = &thread->queue;
    thread->multi = curl_multi_init();
    thread->share = curl_share_init();
    if (pipe(thread->wake))
        thread->wake[0] = thread->wake[1] = -1;
    for (int i = 0; i < 2 && thread->wake[i] >= 0; i++)
        if (fcntl(thread->wake[i], F_SETFL, O_NONBLOCK) ||
            fcntl(thread->wake[i], F_SETFD, FD_CLOEXEC))
            return false;
    thread->started =
        thread->multi && thread->share && thread->wake[0] >= 0 &&
        !http_socket(NULL, thread->wake[0], CURL_POLL_IN, thread, NULL) &&
        curl_share_setopt(thread->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) ==
            CURLSHE_OK &&
        curl_multi_setopt(thread->multi, CURLMOPT_SOCKETFUNCTION, http_socket) ==
            CURLM_OK &&
        curl_multi_setopt(thread->multi, CURLMOPT_SOCKETDATA, thread) == CURLM_OK &&
        curl_multi_setopt(thread->multi, CURLMOPT_MAXCONNECTS,
            (long)http->connections_each) == CURLM_OK &&
        pthread_create(&thread->id, NULL, http_work, thread) == 0;
    return thread->started;
}

/* Requests that nobody waits for, since they were made in advance, are dropped. */
static void http_thread_stop(http_thread *thread) {
    if (thread->started && bagi_http_alive(thread->http))
        pthread_join(thread->id, NULL);
    while (thread->active || thread->queue) { /* requested in advance */
        http_request **list = thread->active ? &thread->active : &thread->queue;
        http_request *request = *list;
        *list = request->next;
        if (request->easy)
            curl_multi_remove_handle(thread->multi, request->easy);
        curl_easy_cleanup(request->easy);
        http_request_free(request);
    }
    curl_multi_cleanup(thread->multi);
    curl_share_cleanup(thread->share);
    for (int i = 0; i < 2; i++)
        if (thread->wake[i] >= 0)
            close(thread->wake[i]);
    bags_buffer_free(&thread->memory);
}

/* In the child of a fork, only memory is freed. */
void bags_http_close(bags_http *http) {
    if (!http)
        return;
    if (bagi_http_alive(http)) {
        pthread_mutex_lock(&http->mutex);
        http->stop = true;
        http_wake(http);
        pthread_mutex_unlock(&http->mutex);
    }
    for (size_t i = 0; i < http->thread_count; i++)
        http_thread_stop(&http->threads[i]);
    for (size_t i = 0; i < HTTP_BUCKETS; i++)
        for (http_object *object = http->objects[i], *next; object; object = next) {
            next = object->next;
            for (size_t k = 0; k < object->count; k++) {
                bags_buffer_free(&http_parts(object)[k]->data);
                free(http_parts(object)[k]);
            }
            bags_buffer_free(&object->parts);
            free(object->path);
            free(object->why);
            free(object->tag);
            bags_buffer_free(&object->names);
            free(object);
        }
    pthread_mutex_destroy(&http->mutex);
    pthread_cond_destroy(&http->changed);
    char *texts[] = {http->query, http->user, http->s3.key, http->s3.secret,
        http->s3.token, http->s3.region, http->s3.endpoint, http->ca_file};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free(http);
}

/* Returns false if out of memory. */
static bool http_set_up(bags_http *http, const bags_http_options *options) {
    http->query = http_copy(options->query);
    char *user =
        options->user ? curl_easy_unescape(NULL, options->user, 0, NULL) : NULL;
    http->user = http_copy(user);
    curl_free(user);
    http->ca_file = http_copy(options->ca_file);
    http->retry_seconds = options->retry_seconds > 0 ? options->retry_seconds : 50;
    http->stall_seconds = options->stall_seconds > 0 ? options->stall_seconds : 30;
    http->connections = options->connections ? options->connections : 384;
    http->no_read_ahead = options->no_read_ahead;
    http->cache_size = options->cache_size ? options->cache_size : (uint64_t)256 << 20;
    http->part_size = options->part_size ? options->part_size : (uint64_t)64 << 20;
    http->recall = options->recall;
    http->remember = options->remember;
    http->cache = options->cache;
    http->interrupted = options->interrupted;
    http->interrupted_user = options->interrupted_user;
    bagi_s3_settings(&http->s3, options);
    http_find_places(http);
    /* A program may exit while transfers run: what signs them must not be freed. */
    if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL) ||
        curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return false;
    const char *tls = curl_version_info(CURLVERSION_NOW)->ssl_version;
    const char *ours = OpenSSL_version(OPENSSL_VERSION); /* "OpenSSL 3.0.1 ..." */
    size_t size = tls ? strlen(tls) : 0;
    http->is_openssl = size > 8 && strncmp(tls, "OpenSSL/", 8) == 0 &&
                       strncmp(tls + 8, ours + 8, size - 8) == 0 && ours[size] == ' ';
    return http->s3.region && (!options->query || !*options->query || http->query) &&
           (!options->user || !*options->user || http->user) &&
           (!options->ca_file || !*options->ca_file || http->ca_file);
}

bags_http *bags_http_open(const bags_http_options *options, bags_error *err) {
    bags_http_options none;
    memset(&none, 0, sizeof none);
    options = options ? options : &none;
    if (options->retry_seconds < 0 || options->stall_seconds < 0 ||
        options->connections > 65535 || (options->key && !options->secret) ||
        (options->part_size && (options->part_size < (uint64_t)5 << 20 ||
                                   options->part_size > (uint64_t)5 << 30))) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "invalid options of bags_http_open");
        return NULL;
    }
    bags_http *http = (bags_http *)calloc(1, sizeof *http);
    if (!http) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    pthread_mutex_init(&http->mutex, NULL);
    pthread_cond_init(&http->changed, NULL);
    http->process = getpid();
    http->random = (uint32_t)http->process * 2654435761u;
    http->io.user = http;
    http->io.open = http_open;
    http->io.close = http_close;
    http->io.size = http_size;
    http->io.read_at = http_read_at;
    http->io.kind = http_kind;
    http->io.list = http_list;
    http->io.read_many = http_read_many;
    http->io.expect = http_expect;
    http->io.explain = http_explain;
    http->io.identify = http_identify;
    bool good = http_set_up(http, options);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t count = http->connections / HTTP_STEP;
    count = count < HTTP_THREADS ? count : HTTP_THREADS;
    count = cores > 0 && (size_t)cores < count ? (size_t)cores : count;
    count = count ? count : 1;
    http->connections_each = http->connections / count;
    while (good && http->thread_count < count)
        good = http_thread_start(http, &http->threads[http->thread_count++]);
    if (good)
        return http;
    bags_fail(err, BAGS_ERROR_MEMORY, "out of memory, or of threads (bags_http_open)");
    bags_http_close(http);
    return NULL;
}

const bags_io *bags_http_io(const bags_http *http) { return &http->io; }

bool bags_http_is_versioned(bags_http *http) {
    pthread_mutex_lock(&http->mutex);
    bool versioned = !http->unversioned;
    pthread_mutex_unlock(&http->mutex);
    return versioned;
}

void bags_http_counts(bags_http *http, uint64_t *requests, uint64_t *bytes) {
    pthread_mutex_lock(&http->mutex);
    *requests = http->requests;
    *bytes = http->received;
    pthread_mutex_unlock(&http->mutex);
}
