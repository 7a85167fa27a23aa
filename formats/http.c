/*
 * http.c - reads datasets from web servers and object stores, and uploads them, on
 * libcurl 7.75 or later (Debian: libcurl4-openssl-dev) and POSIX threads.
 *
 * A bags_http is a bags_io whose paths are URLs:
 *
 *     https://host/ds, http://host/ds    any server that serves ranges
 *     s3://bucket/ds                     S3 and what is compatible with it
 *
 * One thread runs all transfers, in one multi handle. The hooks queue requests,
 * wake it, and wait for them; a request is in one of these states, and the function
 * that makes each transition is named at its arrow:
 *
 *               http_queue            http_begin           http_finish
 *     (caller) -----------> queued -------------> running -------------> done
 *                             ^                      |                   failed
 *                             |      http_retry      |
 *                             +----------------------+
 *
 * A queued, done or failed request and everything else is guarded by the mutex; a
 * running one belongs to the thread.
 *
 * The first request for an object is for its last bytes: the answer has its size,
 * its ETag and, of a Bag, most of its table. All of it is remembered; later ranges
 * must be of the same ETag. What was read in small pieces, read ahead or requested
 * in advance is kept in parts, up to a limit, the least recently used being dropped.
 *
 * Rejected: a range in another place, of another length or of another object than
 * was requested; servers that ignore ranges, for objects above 4 MiB.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "formats.h"

#include <curl/curl.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define HTTP_TAIL ((uint64_t)64 << 10)  /* read when an object is looked up */
#define HTTP_BLOCK ((uint64_t)64 << 10) /* small reads are widened to this */
#define HTTP_CHUNK ((uint64_t)8 << 20)  /* larger reads are several requests */
#define HTTP_WHOLE                                                             \
    ((uint64_t)4 << 20) /* objects that are read without ranges */
#define HTTP_LISTING ((size_t)64 << 20) /* the largest page of a listing */
#define HTTP_PART ((uint64_t)64 << 20)  /* of uploads */
#define HTTP_BUCKETS 4096
#define HTTP_REDIRECTS 5
#define HTTP_FORGET 10.0 /* seconds until a failure is tried again */

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
    struct http_part *next;          /* of the object */
    struct http_part *newer, *older; /* of all that are kept */
    uint64_t start, stop;
    unsigned char *data;
    bool borrowed;  /* the caller's memory: not kept */
    unsigned users; /* calls that wait for it or copy from it */
    http_state state;
} http_part;

/* What is known of a URL. It lives until the end. */
typedef struct http_object {
    struct http_object *next; /* in its bucket */
    char *path;
    http_state state;
    int error; /* errno, if it failed */
    char *why; /* why the last request failed */
    double when;
    uint64_t size;
    char *etag; /* or the time of its last change; NULL: the server has none */
    bool directory; /* the server redirects to a name with a slash */
    http_part *parts;
    char *names; /* of a directory: NUL-terminated, one after the other */
    size_t names_size;
} http_object;

/* An open file. */
typedef struct http_file {
    http_object *object;
    uint64_t next,
        ahead;       /* the end of the last read, and of what is read ahead */
    uint64_t window; /* 0: the reads are not sequential */
} http_file;

typedef struct http_request {
    struct http_request *next; /* in the queue */
    struct bags_http *http;
    http_object *object; /* NULL: the caller reads the body and frees it */
    http_part *part;     /* NULL: look the object up */
    http_state state;
    char *url;
    const char *method;
    bool is_s3;
    const unsigned char *send; /* a body to send */
    size_t send_size, sent;
    const unsigned char *md5; /* of the body; NULL: not sent */
    unsigned char *data;      /* the body */
    size_t size, capacity;
    uint64_t received; /* in all tries */
    bool no_suffix;    /* look up by the first bytes */
    /* the answer */
    long status;
    char *etag;
    uint64_t first, last, total; /* Content-Range */
    bool has_range, has_total, weak, html;
    uint64_t length; /* Content-Length; UINT64_MAX: none */
    uint64_t skip;   /* bytes before the range, of a server that ignores it */
    double retry_after;
    bool checked;    /* its head, before the first byte of its body */
    char text[1024]; /* the start of an error's body */
    size_t text_size;
    /* its life */
    CURL *easy;
    struct curl_slist *headers;
    char curl_why[CURL_ERROR_SIZE];
    int tries;
    double first_failure, not_before, moved; /* when bytes were last passed */
    int error;
    char why[256];
} http_request;

struct bags_http {
    bags_io io;
    char *query, *user, *key, *secret, *token, *region, *endpoint, *ca_file;
    double retry_seconds, stall_seconds;
    size_t connections;
    uint64_t gap, cache_size;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t process;
    CURLM *multi;
    CURLSH *share;
    CURL **idle; /* handles to be used again */
    size_t idle_count;
    bool started, stop, woken;
    http_object *objects[HTTP_BUCKETS];
    http_request *queue, **queue_end;
    http_request *active; /* those that are running */
    size_t running;
    http_part *newest, *oldest;
    uint64_t cached, requests, received;
    uint32_t random;
    bool no_suffix; /* the server does not know ranges from the end */
};

/* ---- text ---- */

static double http_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* printf to new memory. */
static char *http_format(const char *format, ...) BAGI_PRINTF(1, 2);
static char *http_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *out = size < 0 ? NULL : (char *)malloc((size_t)size + 1);
    if (!out)
        return NULL;
    va_start(arguments, format);
    vsnprintf(out, (size_t)size + 1, format, arguments);
    va_end(arguments);
    return out;
}

static char *http_copy(const char *text) {
    return text && *text ? http_format("%s", text) : NULL;
}

static bool http_is_s3(const char *path) {
    return strncmp(path, "s3://", 5) == 0;
}

bool bags_http_is_url(const char *path) {
    const char *host = strstr(path, "://");
    return (http_is_s3(path) || strncmp(path, "http://", 7) == 0 ||
               strncmp(path, "https://", 8) == 0) &&
           host && host[3] && !strchr("/?#@", host[3]);
}

/* A size or an offset at the start of the text, which becomes its end. */
static bool http_number(const char **text, uint64_t *out) {
    const char *at = *text;
    uint64_t number = 0;
    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > (UINT64_MAX - 9) / 10)
            return false;
        number = number * 10 + (uint64_t)(*at - '0');
    }
    *text = at;
    *out = number;
    return true;
}

/* Encode what a URL cannot contain: all but the names' own characters (strict, as
 * signatures need it), or what is not encoded yet. */
static char *http_encode(const char *text, bool strict, bool slashes) {
    static const char hex[] = "0123456789ABCDEF";
    char *out = (char *)malloc(3 * strlen(text) + 1);
    size_t size = 0;
    if (!out)
        return NULL;
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || strchr("-._~", c) != NULL;
        bool encoded = c == '%' && strchr("0123456789abcdefABCDEF", at[1]) &&
                       at[1] && strchr("0123456789abcdefABCDEF", at[2]) &&
                       at[2];
        if (!strict)
            plain = plain || encoded || strchr("!$&'()*+,;=:@[]", c) != NULL;
        if (plain || (slashes && c == '/')) {
            out[size++] = (char)c;
        } else {
            out[size++] = '%';
            out[size++] = hex[c >> 4];
            out[size++] = hex[c & 15];
        }
    }
    out[size] = '\0';
    return out;
}

/* The URL of a path. `query`, encoded and sorted, may be NULL. For S3, `bucket`
 * means the bucket itself. */
static char *http_url(
    const bags_http *http, const char *path, bool bucket, const char *query) {
    char *out = NULL;
    if (!http_is_s3(path)) {
        const char *host = strstr(path, "://") + 3;
        size_t front = (size_t)(host - path) + strcspn(host, "/");
        char *rest = http_encode(path + front, false, true);
        const char *own = http->query ? http->query : "";
        if (rest)
            out = http_format(
                "%.*s%s%s%s", (int)front, path, rest, *own ? "?" : "", own);
        free(rest);
        return out;
    }
    const char *name = path + 5, *region = http->region;
    size_t size = strcspn(name, "/");
    const char *key = name[size] ? name + size + 1 : name + size;
    char *rest = http_encode(bucket ? "" : key, true, true);
    bool dotted = memchr(name, '.', size) != NULL;
    const char *mark = query ? "?" : "";
    query = query ? query : "";
    if (rest && http->endpoint)
        out = http_format("%s/%.*s/%s%s%s", http->endpoint, (int)size, name,
            rest, mark, query);
    else if (rest && dotted)
        out = http_format("https://s3.%s.amazonaws.com/%.*s/%s%s%s", region,
            (int)size, name, rest, mark, query);
    else if (rest)
        out = http_format("https://%.*s.s3.%s.amazonaws.com/%s%s%s", (int)size,
            name, region, rest, mark, query);
    free(rest);
    return out;
}

/* ---- listings ---- */

/* The text between <NAME> and </NAME>, starting at `at`; *next is after it. */
static const char *http_element(const char *at, const char *stop,
    const char *name, size_t *size, const char **next) {
    size_t length = strlen(name);
    for (; at && at < stop; at++) {
        at = (const char *)memchr(at, '<', (size_t)(stop - at));
        if (!at || (size_t)(stop - at) < length + 2)
            return NULL;
        if (memcmp(at + 1, name, length) != 0 || at[length + 1] != '>')
            continue;
        const char *text = at + length + 2;
        const char *end =
            (const char *)memchr(text, '<', (size_t)(stop - text));
        if (!end)
            return NULL;
        *size = (size_t)(end - text);
        *next = end;
        return text;
    }
    return NULL;
}

/* Replace the five entities that names contain; returns the size. */
static size_t http_entities(char *text, size_t size) {
    static const char *const entity[] = {
        "&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#39;", "&#34;"};
    static const char plain[] = "&<>\"''\"";
    size_t to = 0;
    for (size_t i = 0; i < size; to++) {
        size_t k = 0, count = sizeof entity / sizeof *entity;
        while (k < count && (size - i < strlen(entity[k]) ||
                                memcmp(text + i, entity[k], strlen(entity[k]))))
            k++;
        text[to] = k < count ? plain[k] : text[i];
        i += k < count ? strlen(entity[k]) : 1;
    }
    return to;
}

static int http_hex(char c) {
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

static size_t http_decode(char *text, size_t size) {
    size_t to = 0;
    for (size_t i = 0; i < size; i++, to++) {
        bool code = text[i] == '%' && i + 2 < size + 0 &&
                    http_hex(text[i + 1]) >= 0 && http_hex(text[i + 2]) >= 0;
        text[to] =
            code ? (char)(http_hex(text[i + 1]) * 16 + http_hex(text[i + 2]))
                 : text[i];
        i += code ? 2 : 0;
    }
    return to;
}

/* Pass a name on, unless it is not one: empty, with a slash, . or .. */
static int http_name(char *text, size_t size,
    int (*each)(void *user, const char *name), void *user) {
    while (size > 0 && text[size - 1] == '/')
        size--;
    if (size == 0 || size > 4096 || memchr(text, '/', size) ||
        memchr(text, '\0', size) || (size == 1 && text[0] == '.') ||
        (size == 2 && memcmp(text, "..", 2) == 0))
        return 0;
    char name[4097];
    memcpy(name, text, size);
    name[size] = '\0';
    return each(user, name);
}

/* The links of an index page. */
static int http_links(const char *page, size_t size, const char *directory,
    int (*each)(void *user, const char *name), void *user) {
    const char *stop = page + size;
    size_t prefix = strlen(directory);
    int code = 0;
    for (const char *at = page; !code && stop - at > 6; at++) {
        char name[8192];
        if (strncasecmp(at, "href=", 5) != 0 || (at[5] != '"' && at[5] != '\''))
            continue;
        const char *text = at + 6;
        const char *end =
            (const char *)memchr(text, at[5], (size_t)(stop - text));
        if (!end)
            break;
        size_t length = (size_t)(end - text);
        at = end;
        if (length > prefix && prefix && memcmp(text, directory, prefix) == 0) {
            text += prefix;
            length -= prefix;
        }
        if (length > 2 && memcmp(text, "./", 2) == 0) {
            text += 2;
            length -= 2;
        }
        if (length == 0 || length >= sizeof name || *text == '?' ||
            *text == '#' || *text == '/')
            continue;
        memcpy(name, text, length);
        length = http_decode(name, http_entities(name, length));
        code = http_name(name, length, each, user);
    }
    return code;
}

/* The keys and prefixes of S3's XML, without the prefix that was requested. */
static int http_keys(const char *page, size_t size, const char *prefix,
    int (*each)(void *user, const char *name), void *user) {
    static const char *const lists[] = {"Contents", "CommonPrefixes"};
    static const char *const elements[] = {"Key", "Prefix"};
    const char *stop = page + size;
    int code = 0;
    for (int i = 0; i < 2; i++) {
        const char *at = page, *next = NULL;
        size_t length = 0;
        while (!code && http_element(at, stop, lists[i], &length, &next)) {
            char name[8192];
            size_t front = strlen(prefix);
            const char *text =
                http_element(next, stop, elements[i], &length, &next);
            if (!text)
                break;
            at = next;
            if (length >= sizeof name)
                continue;
            memcpy(name, text, length);
            length = http_entities(name, length);
            if (length > front && memcmp(name, prefix, front) == 0)
                code = http_name(name + front, length - front, each, user);
        }
    }
    return code;
}

int bags_http_names(const void *page, size_t size, bool xml, const char *prefix,
    int (*each)(void *user, const char *name), void *user) {
    /* strncasecmp in http_links stops at a zero byte, which ends the text. */
    return (xml ? http_keys : http_links)(
        (const char *)page, size, prefix, each, user);
}

/* ---- parts: all with the mutex held ---- */

static uint64_t http_part_size(const http_part *part) {
    return part->stop - part->start;
}

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

static void http_part_free(bags_http *http, http_part *part) {
    http_part **at = &part->object->parts;
    while (*at != part)
        at = &(*at)->next;
    *at = part->next;
    http_part_unlink(http, part);
    http->cached -= http_part_size(part);
    free(part->data);
    free(part);
}

/* Drop parts until `size` more bytes fit; false if all others are in use. */
static bool http_make_room(bags_http *http, uint64_t size) {
    for (http_part *part = http->oldest, *newer; part; part = newer) {
        if (size <= http->cache_size && http->cached <= http->cache_size - size)
            return true;
        newer = part->newer;
        if (part->users == 0 && part->state != HTTP_WAITING)
            http_part_free(http, part);
    }
    return size <= http->cache_size && http->cached <= http->cache_size - size;
}

/* Keep bytes of an object; data NULL: to be allocated, and read. */
static http_part *http_part_new(bags_http *http, http_object *object,
    uint64_t start, uint64_t stop, unsigned char *data) {
    http_part *part = (http_part *)calloc(1, sizeof *part);
    http_make_room(http, stop - start);
    if (part)
        part->data =
            data ? data : (unsigned char *)malloc((size_t)(stop - start) + 1);
    if (!part || !part->data) {
        free(part);
        return NULL;
    }
    part->object = object;
    part->start = start;
    part->stop = stop;
    part->state = data ? HTTP_DONE : HTTP_WAITING;
    part->next = object->parts;
    object->parts = part;
    http->cached += stop - start;
    http_part_link(http, part);
    return part;
}

/* The part with the byte at `offset`, of all that have it one that is done. */
static http_part *http_part_find(
    const http_object *object, uint64_t offset, bool done) {
    http_part *found = NULL;
    for (http_part *part = object->parts; part; part = part->next)
        if (part->start <= offset && offset < part->stop &&
            (part->state == HTTP_DONE ||
                (!done && part->state == HTTP_WAITING)) &&
            (!found || part->state == HTTP_DONE))
            found = part;
    return found;
}

/* ---- objects: all with the mutex held ---- */

static http_object *http_find(
    bags_http *http, const char *path, size_t size, bool create) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)path[i]) * 16777619u;
    http_object **at = &http->objects[hash % HTTP_BUCKETS];
    for (; *at; at = &(*at)->next)
        if (strncmp((*at)->path, path, size) == 0 && !(*at)->path[size])
            return *at;
    if (!create)
        return NULL;
    http_object *object = (http_object *)calloc(1, sizeof *object);
    if (object)
        object->path = http_format("%.*s", (int)size, path);
    if (!object || !object->path) {
        free(object);
        return NULL;
    }
    *at = object;
    return object;
}

static void http_object_fail(http_object *object, int error, const char *why) {
    free(object->why);
    object->why = http_copy(why);
    object->error = error;
    object->when = http_now();
}

/* ---- requests ---- */

static void http_request_free(http_request *request) {
    if (!request)
        return;
    curl_slist_free_all(request->headers);
    free(request->url);
    free(request->etag);
    free(request->data);
    free(request);
}

/* Wake the thread, once, however many requests are queued. The mutex is held. */
static void http_wake(bags_http *http) {
    if (!http->woken)
        curl_multi_wakeup(http->multi);
    http->woken = true;
}

/* The mutex is held. The thread must be woken afterwards. */
static void http_queue(bags_http *http, http_request *request) {
    request->state = HTTP_WAITING;
    request->next = NULL;
    *http->queue_end = request;
    http->queue_end = &request->next;
}

static http_request *http_request_new(bags_http *http, http_object *object,
    const char *path, bool bucket, const char *query) {
    http_request *request = (http_request *)calloc(1, sizeof *request);
    if (!request)
        return NULL;
    request->http = http;
    request->object = object;
    request->is_s3 = http_is_s3(path);
    request->url = http_url(http, path, bucket, query);
    if (request->url)
        return request;
    http_request_free(request);
    return NULL;
}

/* Start to look an object up, unless that was done. The mutex is held. */
static void http_look(bags_http *http, http_object *object) {
    bool again = object->state == HTTP_FAILED && object->error != ENOENT &&
                 object->error != EACCES && object->error != ESTALE &&
                 http_now() - object->when > HTTP_FORGET;
    if (object->state != HTTP_NEW && !again)
        return;
    http_request *request =
        http_request_new(http, object, object->path, false, NULL);
    if (!request) {
        object->state = HTTP_FAILED;
        http_object_fail(object, ENOMEM, "out of memory");
        return;
    }
    object->state = HTTP_WAITING;
    http_queue(http, request);
}

/* Request a part that was made for this. The mutex is held. */
static void http_part_request(bags_http *http, http_part *part) {
    http_request *request =
        http_request_new(http, part->object, part->object->path, false, NULL);
    part->state = request ? HTTP_WAITING : HTTP_FAILED;
    if (!request) {
        http_object_fail(part->object, ENOMEM, "out of memory");
        return;
    }
    request->part = part;
    http_queue(http, request);
}

static int http_refuse(http_request *request, int error, const char *why) {
    request->error = error;
    snprintf(request->why, sizeof request->why, "%s", why);
    return 0;
}

/* A header line: of a redirect, everything is forgotten when the next answer
 * begins. */
static size_t http_header(char *line, size_t one, size_t size, void *user) {
    http_request *request = (http_request *)user;
    char value[1024];
    (void)one;
    size_t name = 0;
    request->moved = http_now();
    while (name < size && line[name] != ':')
        name++;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) {
        const char *space = (const char *)memchr(line, ' ', size);
        request->status = 0;
        for (const char *at = space ? space + 1 : line;
             at < line + size && *at >= '0' && *at <= '9' &&
             request->status < 1000;
             at++)
            request->status = request->status * 10 + (*at - '0');
        request->has_range = request->has_total = request->html = false;
        request->length = UINT64_MAX;
        free(request->etag);
        request->etag = NULL;
        return size;
    }
    size_t start = name + 1, stop = size;
    while (start < stop && (line[start] == ' ' || line[start] == '\t'))
        start++;
    while (stop > start && (unsigned char)line[stop - 1] <= ' ')
        stop--;
    if (start >= stop || stop - start >= sizeof value)
        return size;
    memcpy(value, line + start, stop - start);
    value[stop - start] = '\0';
    const char *at = value;
    if (name == 4 && strncasecmp(line, "etag", 4) == 0) {
        free(request->etag);
        request->weak = strncmp(value, "W/", 2) == 0;
        request->etag = http_copy(value);
    } else if (name == 13 && strncasecmp(line, "last-modified", 13) == 0) {
        if (!request->etag)
            request->etag = http_copy(value);
        request->weak = true;
    } else if (name == 14 && strncasecmp(line, "content-length", 14) == 0) {
        if (!http_number(&at, &request->length))
            request->length = UINT64_MAX;
    } else if (name == 13 && strncasecmp(line, "content-range", 13) == 0 &&
               strncasecmp(value, "bytes ", 6) == 0) {
        at = value + 6;
        request->has_range = http_number(&at, &request->first) &&
                             *at++ == '-' && http_number(&at, &request->last) &&
                             request->first <= request->last;
        at = strchr(value, '/');
        request->has_total =
            at && *at++ == '/' && http_number(&at, &request->total);
    } else if (name == 11 && strncasecmp(line, "retry-after", 11) == 0) {
        uint64_t seconds = 0;
        if (http_number(&at, &seconds))
            request->retry_after = (double)seconds;
    } else if (name == 12 && strncasecmp(line, "content-type", 12) == 0) {
        request->html = strncasecmp(value, "text/html", 9) == 0;
    }
    return size;
}

/* Make the body's buffer larger. */
static bool http_reserve(http_request *request, size_t size, uint64_t most) {
    if (size <= request->capacity)
        return true;
    size_t capacity =
        request->capacity * 2 > size ? request->capacity * 2 : size;
    unsigned char *data =
        size > most ? NULL : (unsigned char *)realloc(request->data, capacity);
    if (!data)
        return http_refuse(request, size > most ? EFBIG : ENOMEM,
            size > most ? "the answer is too large" : "out of memory");
    request->data = data;
    request->capacity = capacity;
    return true;
}

/* Of an object that is being read: is the answer of the same one? */
static bool http_same(http_request *request, uint64_t total) {
    const http_object *object = request->object;
    if (total == object->size && (!object->etag || !request->etag ||
                                     strcmp(object->etag, request->etag) == 0))
        return true;
    return http_refuse(request, ESTALE,
        total == object->size ? "changed while open (its ETag differs)"
                              : "changed while open (its size differs)");
}

/* Check the head of an answer with bytes of an object, before the first of them. */
static bool http_check_head(http_request *request) {
    const http_part *part = request->part;
    uint64_t length = request->length;
    if (request->status == 200) {
        bool large = length != UINT64_MAX && length > HTTP_WHOLE;
        request->skip = part ? part->start : 0;
        request->size = 0; /* it starts at the front again */
        if (part && (length == UINT64_MAX || !http_same(request, length)))
            return request->error ||
                   http_refuse(request, EIO,
                       "HTTP 200 without a length in place of 206");
        if (large && (!part || part->start > 0 || part->stop != length))
            return http_refuse(request, EIO,
                "the server ignores ranges (HTTP 200 in place of 206)");
        return true;
    }
    if (!request->has_range || !request->has_total ||
        request->last >= request->total)
        return http_refuse(
            request, EIO, "HTTP 206 without a valid Content-Range");
    uint64_t size = request->last - request->first + 1;
    if (length != UINT64_MAX && length != size)
        return http_refuse(request, EIO,
            "HTTP 206 with contradicting Content-Range and Content-Length");
    if (part)
        return http_same(request, request->total) &&
               ((request->first == part->start + request->size &&
                    request->last < part->stop) ||
                   http_refuse(request, EIO,
                       "HTTP 206 with another range than requested"));
    bool right = request->no_suffix ? request->first == 0
                                    : request->last == request->total - 1;
    return (right && size <= HTTP_TAIL) ||
           http_refuse(
               request, EIO, "HTTP 206 with another range than requested");
}

static size_t http_body(char *bytes, size_t one, size_t size, void *user) {
    http_request *request = (http_request *)user;
    const unsigned char *data = (const unsigned char *)bytes;
    size_t all = size, most = sizeof request->text - 1;
    (void)one;
    request->received += size;
    request->moved = http_now();
    if (request->status != 200 && request->status != 206) {
        if (size > most - request->text_size)
            size = most - request->text_size;
        memcpy(request->text + request->text_size, data, size);
        request->text_size += size;
        return all;
    }
    if (!request->object || !request->part) {
        if (request->object && !request->checked && !http_check_head(request))
            return 0;
        request->checked = true;
        if (!http_reserve(request, request->size + size,
                request->object ? HTTP_WHOLE : HTTP_LISTING))
            return 0;
        memcpy(request->data + request->size, data, size);
        request->size += size;
        return all;
    }
    if (!request->checked && !http_check_head(request))
        return 0;
    request->checked = true;
    const http_part *part = request->part;
    if (request->skip > 0) {
        size_t skip = request->skip < size ? (size_t)request->skip : size;
        request->skip -= skip;
        data += skip;
        size -= skip;
    }
    uint64_t rest = http_part_size(part) - request->size;
    if (size > rest) {
        if (request->status == 206) {
            http_refuse(request, EIO, "more bytes than requested");
            return 0;
        }
        size = (size_t)rest;
    }
    memcpy(part->data + request->size, data, size);
    request->size += size;
    return all;
}

static size_t http_send(char *to, size_t one, size_t size, void *user) {
    http_request *request = (http_request *)user;
    size_t rest = request->send_size - request->sent;
    (void)one;
    size = size < rest ? size : rest;
    request->moved = http_now();
    if (size > 0)
        memcpy(to, request->send + request->sent, size);
    request->sent += size;
    return size;
}

static int http_rewind(void *user, curl_off_t offset, int origin) {
    http_request *request = (http_request *)user;
    if (origin != SEEK_SET || offset < 0 ||
        (uint64_t)offset > request->send_size)
        return CURL_SEEKFUNC_FAIL;
    request->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static bool http_add_header(
    http_request *request, const char *name, const char *value) {
    char *line = http_format("%s: %s", name, value);
    struct curl_slist *list =
        line ? curl_slist_append(request->headers, line) : NULL;
    free(line);
    if (list)
        request->headers = list;
    return list != NULL;
}

static bool http_set_headers(http_request *request) {
    const bags_http *http = request->http;
    const http_object *object = request->object;
    bool good = true;
    curl_slist_free_all(request->headers);
    request->headers = NULL;
    if (request->is_s3 && http->key)
        good = http_add_header(
            request, "x-amz-content-sha256", "UNSIGNED-PAYLOAD");
    if (good && request->is_s3 && http->key && http->token)
        good = http_add_header(request, "x-amz-security-token", http->token);
    if (good && request->part && object->etag && object->etag[0] == '"')
        good = http_add_header(request, "If-Match", object->etag);
    if (good && request->md5) {
        static const char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char text[25] = "";
        for (unsigned i = 0; i < 22; i++) {
            unsigned bits = 0;
            for (unsigned at = 6 * i; at < 6 * i + 6; at++)
                bits = bits << 1 | (at < 128 ? (unsigned)request->md5[at / 8] >>
                                                   (7 - at % 8)
                                             : 0u) %
                                       2;
            text[i] = digits[bits];
        }
        text[22] = text[23] = '=';
        good = http_add_header(request, "Content-MD5", text);
    }
    return good;
}

#define HTTP_SET(option, value)                                                \
    (good = good && curl_easy_setopt(easy, option, value) == CURLE_OK)

/* Everything that a request's handle is told. */
static bool http_set(http_request *request, CURL *easy) {
    const bags_http *http = request->http;
    char range[64] = "", sign[128];
    bool good = http_set_headers(request);
    double stall = http->stall_seconds < 1 ? 1 : http->stall_seconds;
    if (request->part)
        snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64,
            request->part->start + request->size, request->part->stop - 1);
    else if (request->object)
        snprintf(range, sizeof range, request->no_suffix ? "0-%u" : "-%u",
            (unsigned)HTTP_TAIL - request->no_suffix);
    HTTP_SET(CURLOPT_URL, request->url);
    HTTP_SET(CURLOPT_HTTPHEADER, request->headers);
    HTTP_SET(CURLOPT_PRIVATE, request);
    HTTP_SET(CURLOPT_ERRORBUFFER, request->curl_why);
    HTTP_SET(CURLOPT_HEADERFUNCTION, http_header);
    HTTP_SET(CURLOPT_HEADERDATA, request);
    HTTP_SET(CURLOPT_WRITEFUNCTION, http_body);
    HTTP_SET(CURLOPT_WRITEDATA, request);
    HTTP_SET(CURLOPT_NOSIGNAL, 1L);
    HTTP_SET(CURLOPT_TCP_KEEPALIVE, 1L);
    HTTP_SET(CURLOPT_BUFFERSIZE, 65536L);
    /* Many connections, as object stores expect; a request never waits for the
     * connection of another one. */
    HTTP_SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    HTTP_SET(CURLOPT_USERAGENT, "bags.h/" BAGS_VERSION);
    HTTP_SET(CURLOPT_SHARE, http->share);
    HTTP_SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(stall * 1000));
    HTTP_SET(CURLOPT_LOW_SPEED_LIMIT, 100L);
    HTTP_SET(CURLOPT_LOW_SPEED_TIME, (long)stall);
#if LIBCURL_VERSION_NUM >= 0x075500
    HTTP_SET(CURLOPT_PROTOCOLS_STR, "http,https");
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS_STR,
        strncmp(request->url, "https", 5) == 0 ? "https" : "http,https");
#else
    HTTP_SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS,
        strncmp(request->url, "https", 5) == 0
            ? (long)CURLPROTO_HTTPS
            : (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (http->ca_file)
        HTTP_SET(CURLOPT_CAINFO, http->ca_file);
    if (*range)
        HTTP_SET(CURLOPT_RANGE, range);
    if (request->method) {
        HTTP_SET(CURLOPT_UPLOAD, 1L);
        HTTP_SET(CURLOPT_CUSTOMREQUEST, request->method);
        HTTP_SET(CURLOPT_READFUNCTION, http_send);
        HTTP_SET(CURLOPT_READDATA, request);
        HTTP_SET(CURLOPT_SEEKFUNCTION, http_rewind);
        HTTP_SET(CURLOPT_SEEKDATA, request);
        HTTP_SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->send_size);
        request->sent = 0;
    }
    if (!request->is_s3) {
        HTTP_SET(CURLOPT_FOLLOWLOCATION, 1L);
        HTTP_SET(CURLOPT_MAXREDIRS, (long)HTTP_REDIRECTS);
        if (http->user)
            HTTP_SET(CURLOPT_USERPWD, http->user);
    } else if (http->key) {
        snprintf(sign, sizeof sign, "aws:amz:%.60s:s3", http->region);
        HTTP_SET(CURLOPT_AWS_SIGV4, sign);
        HTTP_SET(CURLOPT_USERNAME, http->key);
        HTTP_SET(CURLOPT_PASSWORD, http->secret);
    }
    return good;
}

/* Start a queued request. */
static bool http_begin(http_request *request) {
    bags_http *http = request->http;
    request->status = 0;
    request->text_size = 0;
    request->checked = false;
    request->retry_after = 0;
    request->skip = 0;
    request->error = 0;
    request->curl_why[0] = request->why[0] = '\0';
    request->no_suffix = http->no_suffix;
    request->moved = http_now();
    if (!request->part)
        request->size = 0;
    request->easy =
        http->idle_count ? http->idle[--http->idle_count] : curl_easy_init();
    if (request->easy && http_set(request, request->easy) &&
        curl_multi_add_handle(http->multi, request->easy) == CURLM_OK)
        return true;
    http_refuse(request, ENOMEM, "out of memory");
    curl_easy_cleanup(request->easy);
    request->easy = NULL;
    return false;
}

/* True for a failure that another try may not meet. `refused`: only two of them. */
static bool http_may_retry(
    const http_request *request, CURLcode result, bool *refused) {
    *refused = result == CURLE_COULDNT_CONNECT ||
               result == CURLE_COULDNT_RESOLVE_HOST ||
               result == CURLE_SSL_CONNECT_ERROR;
    if (request->error && request->error != EAGAIN)
        return false;
    switch ((int)result) {
    case CURLE_OK:
        return request->error == EAGAIN || request->status == 429 ||
               request->status == 408 ||
               (request->status >= 500 && request->status != 501);
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

/* The body of a 2xx or 416 must be what the head promised. Returns true if it is;
 * EAGAIN is a body that ended early. */
static bool http_complete(http_request *request) {
    const http_part *part = request->part;
    if (!request->object)
        return request->status >= 200 && request->status < 300;
    if (request->status != 200 && request->status != 206)
        return request->status == 416 && !part && request->has_total &&
               request->total == 0;
    if (!request->checked && !http_check_head(request))
        return false; /* there was no body */
    uint64_t size = part ? http_part_size(part)
                    : request->status == 206
                        ? request->last - request->first + 1
                    : request->length != UINT64_MAX ? request->length
                                                    : request->size;
    if (request->size == size)
        return true;
    snprintf(request->why, sizeof request->why,
        "truncated (%" PRIu64 " of %" PRIu64 " bytes)", (uint64_t)request->size,
        size);
    request->error = EAGAIN;
    return false;
}

/* The failure of an answer in words, and as errno. */
static void http_describe(http_request *request, CURLcode result) {
    long status = request->status;
    if (*request->why)
        return;
    if (result) {
        request->error = EIO;
        snprintf(request->why, sizeof request->why, "%s",
            result == CURLE_OPERATION_TIMEDOUT
                ? "the transfer stalled"
                : (*request->curl_why ? request->curl_why
                                      : curl_easy_strerror(result)));
        return;
    }
    const char *next = NULL;
    size_t size = 0;
    const char *code = http_element(request->text,
        request->text + request->text_size, "Code", &size, &next);
    if (!code || size > 64)
        size = 0;
    request->error = status == 404 || status == 410   ? ENOENT
                     : status == 401 || status == 403 ? EACCES
                     : status == 412 || status == 416 ? ESTALE
                                                      : EIO;
    snprintf(request->why, sizeof request->why, "HTTP %ld%s%.*s%s", status,
        size ? " " : "", (int)size, size ? code : "",
        request->error == ESTALE ? ": changed while open" : "");
    if (request->error == EACCES && size > 0 &&
        (size != 12 || memcmp(code, "AccessDenied", 12) != 0))
        request->error = EPERM; /* an invalid key, not a missing object */
}

/* Queue a failed request again, unless the time for it is over. */
static bool http_retry(http_request *request, CURLcode result) {
    bags_http *http = request->http;
    bool refused = false;
    double now = http_now();
    if (!http_may_retry(request, result, &refused) ||
        (refused && request->tries >= 2))
        return false;
    if (request->tries++ == 0)
        request->first_failure = now;
    double delay =
        0.1 * (double)(1u << (request->tries < 7 ? request->tries : 6));
    http->random = http->random * 1664525u + 1013904223u;
    delay *= 0.5 + (double)(http->random >> 8) / (double)(1u << 25);
    if (delay < request->retry_after)
        delay = request->retry_after;
    if (now + delay - request->first_failure > http->retry_seconds)
        return false;
    /* azurite and others: an error for a range from the end */
    if (!request->part && request->object && request->status >= 500 &&
        request->tries == 3)
        http->no_suffix = true;
    request->not_before = now + delay;
    http_queue(http, request);
    return true;
}

/* An object was found: remember it and its last bytes. */
static void http_found(http_request *request) {
    bags_http *http = request->http;
    http_object *object = request->object;
    const char *url = NULL;
    curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &url);
    size_t size = url ? strcspn(url, "?#") : 0;
    if (size && url[size - 1] == '/') {
        object->directory = true;
        object->state = HTTP_FAILED;
        http_object_fail(object, ENOENT, "a directory");
        return;
    }
    free(object->etag);
    object->etag = request->etag;
    request->etag = NULL;
    object->size = request->status == 416   ? 0
                   : request->status == 206 ? request->total
                                            : request->size;
    object->state = HTTP_DONE;
    if (request->size == 0)
        return;
    uint64_t start = request->status == 206 ? request->first : 0;
    if (http_part_new(
            http, object, start, start + request->size, request->data))
        request->data = NULL;
}

/* A transfer has ended. */
static void http_finish(http_request *request, CURLcode result) {
    bags_http *http = request->http;
    http_object *object = request->object;
    if (request->easy)
        curl_multi_remove_handle(http->multi, request->easy);
    pthread_mutex_lock(&http->mutex);
    http_request **at = &http->active;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    http->running--;
    http->requests++;
    http->received += request->received;
    request->received = 0;
    bool good = result == CURLE_OK && http_complete(request);
    bool again = !good && http_retry(request, result);
    if (!good && !again)
        http_describe(request, result);
    if (request->error == EAGAIN)
        request->error = EIO;
    if (!good && !again && request->tries > 1) {
        size_t used = strlen(request->why);
        snprintf(request->why + used, sizeof request->why - used,
            " (%d attempts in %.0f s)", request->tries + 1,
            http_now() - request->first_failure);
    }
    if (good && object && !request->part)
        http_found(request);
    if (!good && !again && object) {
        http_object_fail(object, request->error, request->why);
        if (!request->part)
            object->state = HTTP_FAILED;
    }
    if (!again && request->part)
        request->part->state = good ? HTTP_DONE : HTTP_FAILED;
    if (good && object && object->error && object->error != ESTALE &&
        object->state == HTTP_DONE)
        object->error = 0;
    if (request->easy && !result && http->idle_count < http->connections) {
        curl_easy_reset(request->easy);
        http->idle[http->idle_count++] = request->easy;
    } else {
        curl_easy_cleanup(request->easy);
    }
    request->easy = NULL;
    if (!again)
        request->state = good ? HTTP_DONE : HTTP_FAILED;
    if (!again && object)
        http_request_free(request);
    pthread_mutex_unlock(&http->mutex);
}

/* Start what is due, in order. Returns the milliseconds until the next is. */
static int http_start(bags_http *http) {
    double now = http_now(), wait = 1;
    http_request *last = http->queue, *request = NULL;
    while (last && last->next)
        last = last->next;
    while (request != last && http->running < http->connections) {
        request = http->queue;
        http->queue = request->next;
        http->queue_end = http->queue ? http->queue_end : &http->queue;
        double due = request->not_before - now;
        if (due > 0) {
            http_queue(http, request);
            wait = due < wait ? due : wait;
            continue;
        }
        http->running++;
        request->next = http->active;
        http->active = request;
        if (!http_begin(request)) {
            pthread_mutex_unlock(&http->mutex);
            http_finish(request, CURLE_OUT_OF_MEMORY);
            pthread_mutex_lock(&http->mutex);
        }
    }
    return (int)(wait * 1000) + 1;
}

/* The last resort, should libcurl never report the end of a transfer. */
static http_request *http_find_stuck(bags_http *http) {
    double limit = http_now() - 2 * http->stall_seconds - 2;
    http_request *request = http->active;
    while (request && request->moved > limit)
        request = request->next;
    return request;
}

static void *http_work(void *user) {
    bags_http *http = (bags_http *)user;
    pthread_mutex_lock(&http->mutex);
    while (!http->stop) {
        http->woken = false;
        int running = 0, left = 0, wait = http_start(http);
        bool ended = false;
        CURLMsg *message = NULL;
        pthread_mutex_unlock(&http->mutex);
        curl_multi_perform(http->multi, &running);
        while ((message = curl_multi_info_read(http->multi, &left)) != NULL) {
            char *request = NULL;
            CURLcode result = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &request);
            http_finish((http_request *)(void *)request, result);
            ended = true;
        }
        if (!ended)
            curl_multi_poll(http->multi, NULL, 0, wait, NULL);
        http_request *stuck = ended ? NULL : http_find_stuck(http);
        if (stuck) {
            http_refuse(stuck, ETIMEDOUT, "the transfer stalled");
            http_finish(stuck, CURLE_OPERATION_TIMEDOUT);
        }
        pthread_mutex_lock(&http->mutex);
        pthread_cond_broadcast(&http->changed);
    }
    pthread_mutex_unlock(&http->mutex);
    return NULL;
}

/* After a fork the thread is missing. */
static bool http_alive(const bags_http *http) {
    return http->process == getpid();
}

/* ---- hooks that look up ---- */

/* Look a path up and wait. Returns errno; 0: it exists. The mutex is held. */
static int http_wait(bags_http *http, http_object *object) {
    http_look(http, object);
    if (object->state == HTTP_WAITING)
        http_wake(http);
    while (object->state == HTTP_WAITING)
        pthread_cond_wait(&http->changed, &http->mutex);
    return object->state == HTTP_DONE ? 0 : object->error;
}

static size_t http_path_size(const char *path) {
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] == '/')
        size--;
    return size;
}

/* Start to look up DIRECTORY/NAME. The mutex is held. */
static http_object *http_look_in(
    bags_http *http, const char *directory, const char *name) {
    char *path =
        http_format("%.*s/%s", (int)http_path_size(directory), directory, name);
    http_object *object =
        path ? http_find(http, path, strlen(path), true) : NULL;
    if (object)
        http_look(http, object);
    free(path);
    return object;
}

static void http_expect(void *user, const char *path) {
    bags_http *http = (bags_http *)user;
    if (!bags_http_is_url(path) || !http_alive(http))
        return;
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, http_path_size(path), true);
    if (object && object->state == HTTP_NEW) {
        http_look(http, object);
        http_wake(http);
    }
    pthread_mutex_unlock(&http->mutex);
}

static void http_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    bags_http *http = (bags_http *)user;
    size_t length = http_path_size(path);
    if (!http_alive(http)) {
        snprintf(text, size, "a bags_http cannot be used after fork");
        return;
    }
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, length, false);
    char *listed = http_format("%.*s/", (int)length, path);
    http_object *directory =
        listed ? http_find(http, listed, length + 1, false) : NULL;
    if (object && object->why && object->error == error)
        snprintf(text, size, "%s", object->why);
    else if (directory && directory->why && directory->error == error)
        snprintf(text, size, "%s", directory->why);
    pthread_mutex_unlock(&http->mutex);
    free(listed);
}

/* Run a request whose body the caller reads. */
static bool http_run(bags_http *http, http_request *request) {
    pthread_mutex_lock(&http->mutex);
    http_queue(http, request);
    http_wake(http);
    while (request->state == HTTP_WAITING)
        pthread_cond_wait(&http->changed, &http->mutex);
    pthread_mutex_unlock(&http->mutex);
    return request->state == HTTP_DONE;
}

typedef struct http_names {
    char *text;
    size_t size, capacity;
    bool dataset; /* there is a spec.json, or a number */
    bool failed;
} http_names;

static int http_names_add(void *user, const char *name) {
    http_names *names = (http_names *)user;
    size_t size = strlen(name) + 1;
    if (names->size + size > names->capacity) {
        size_t capacity = 2 * (names->size + size);
        char *text = (char *)realloc(names->text, capacity);
        names->failed = !text;
        if (!text)
            return ENOMEM;
        names->text = text;
        names->capacity = capacity;
    }
    memcpy(names->text + names->size, name, size);
    names->size += size;
    names->dataset = names->dataset || strcmp(name, "spec.json") == 0 ||
                     name[strspn(name, "0123456789")] == '\0';
    return 0;
}

/* One page of a listing. *more: the token of the next one. */
static int http_list_page(bags_http *http, const char *path, char **more,
    http_names *names, char *why, size_t why_size) {
    bool s3 = http_is_s3(path);
    int code = ENOMEM;
    size_t length = http_path_size(path), size = 0;
    char *clean = http_format("%.*s/", (int)length, path);
    const char *slash = clean ? strchr(clean + (s3 ? 5 : 8), '/') : NULL;
    const char *prefix = slash ? slash + s3 : "";
    char *encoded = http_encode(prefix, true, false);
    char *query =
        s3 && encoded
            ? http_format("%s%s%sdelimiter=%%2F&list-type=2&prefix=%s",
                  *more ? "continuation-token=" : "", *more ? *more : "",
                  *more ? "&" : "", encoded)
            : NULL;
    http_request *request = clean && encoded && (query || !s3)
                                ? http_request_new(http, NULL, clean, s3, query)
                                : NULL;
    free(*more);
    *more = NULL;
    if (request && !http_run(http, request)) {
        code = request->error;
        snprintf(why, why_size, "%s", request->why);
    } else if (request) {
        const char *next = NULL, *page = (const char *)request->data;
        code = 0;
        if (request->data && (s3 || request->html))
            code = bags_http_names(
                page, request->size, s3, prefix, http_names_add, names);
        const char *token = s3 && page
                                ? http_element(page, page + request->size,
                                      "NextContinuationToken", &size, &next)
                                : NULL;
        char *plain =
            token && size < 8192 ? http_format("%.*s", (int)size, token) : NULL;
        if (plain) {
            plain[http_entities(plain, size)] = '\0';
            *more = http_encode(plain, true, false);
        }
        free(plain);
    }
    http_request_free(request);
    free(encoded);
    free(query);
    free(clean);
    return code;
}

/* The names in a directory as the server lists them, remembered with the path and a
 * slash. Returns errno: ENOENT if there is no list. */
static int http_listing(bags_http *http, const char *path, http_object **out) {
    http_names names = {NULL, 0, 0, false, false};
    char *more = NULL,
         *key = http_format("%.*s/", (int)http_path_size(path), path);
    char why[256] = "";
    int code = key ? 0 : ENOMEM;
    pthread_mutex_lock(&http->mutex);
    http_object *object = key ? http_find(http, key, strlen(key), true) : NULL;
    bool known = object && object->names;
    if (object && object->state == HTTP_FAILED &&
        http_now() - object->when < HTTP_FORGET) {
        known = true;
        code = object->error;
    }
    pthread_mutex_unlock(&http->mutex);
    *out = object;
    free(key);
    if (!object || known)
        return object ? code : ENOMEM;
    do
        code = http_list_page(http, path, &more, &names, why, sizeof why);
    while (!code && more);
    free(more);
    if (!code && !(http_is_s3(path) ? names.size > 0 : names.dataset))
        code = ENOENT;
    pthread_mutex_lock(&http->mutex);
    if (!code && !object->names) {
        object->names = names.text;
        object->names_size = names.size;
        object->state = HTTP_DONE;
        names.text = NULL;
    } else if (code) {
        object->state = HTTP_FAILED;
        http_object_fail(object, code, why);
    }
    pthread_mutex_unlock(&http->mutex);
    free(names.text);
    return code;
}

/* True for names that only files of datasets have. */
static bool http_is_file_name(const char *path) {
    static const char *const endings[] = {
        ".bag", ".idx", ".crc", ".json", ".partial", ".zip", ".tar"};
    size_t size = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (size > strlen(endings[i]) &&
            strcmp(path + size - strlen(endings[i]), endings[i]) == 0)
            return true;
    return false;
}

/* A file that need not exist, to a server that answers 403 for what is missing. */
static bool http_is_optional(const char *path) {
    size_t size = strlen(path);
    return size > 8 && (strcmp(path + size - 4, ".idx") == 0 ||
                           strcmp(path + size - 4, ".crc") == 0 ||
                           strcmp(path + size - 8, ".partial") == 0);
}

static int http_kind(void *user, const char *path, bags_path_kind *kind) {
    bags_http *http = (bags_http *)user;
    http_object *spec = NULL, *refs = NULL, *shard = NULL, *listing = NULL;
    bool file = http_is_file_name(path);
    *kind = BAGS_PATH_NONE;
    if (!bags_http_is_url(path))
        return EINVAL;
    if (!http_alive(http))
        return EIO;
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, path, http_path_size(path), true);
    if (object)
        http_look(http, object);
    if (!file) {
        spec = http_look_in(http, path, "spec.json");
        refs = http_look_in(http, path, "refs.bag");
        shard = http_look_in(http, path, "000000/spec.json");
    }
    http_wake(http);
    pthread_mutex_unlock(&http->mutex);
    int listed = file ? ENOENT : http_listing(http, path, &listing);
    pthread_mutex_lock(&http->mutex);
    int code = 0;
    if (listed == 0 || (spec && !http_wait(http, spec)) ||
        (shard && !http_wait(http, shard)) || (refs && !http_wait(http, refs)))
        *kind = BAGS_PATH_DIRECTORY;
    else
        code = object ? http_wait(http, object) : ENOMEM;
    if (*kind == BAGS_PATH_NONE && code == 0)
        *kind = BAGS_PATH_FILE;
    if (code == ENOENT || (code == EACCES && http_is_optional(path)))
        code = listed == ENOENT || listed == EACCES ? 0 : listed;
    pthread_mutex_unlock(&http->mutex);
    return code;
}

#define HTTP_MISSING 4 /* this number of missing shards ends the search */

/* Find shards where the server lists nothing: 000000, 000001, ... */
static int http_probe(bags_http *http, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    uint64_t next = 0, window = HTTP_MISSING, missing = 0;
    while (missing < HTTP_MISSING) {
        char name[32];
        int code = 0;
        pthread_mutex_lock(&http->mutex);
        for (uint64_t i = next; i < next + window; i++) {
            snprintf(name, sizeof name, "%06" PRIu64 "/spec.json", i);
            http_look_in(http, path, name);
        }
        http_wake(http);
        for (uint64_t i = next; i < next + window && !code; i++) {
            snprintf(name, sizeof name, "%06" PRIu64 "/spec.json", i);
            http_object *object = http_look_in(http, path, name);
            code = object ? http_wait(http, object) : ENOMEM;
            missing = code == ENOENT || code == EACCES ? missing + 1 : 0;
            if (missing)
                code = 0;
            name[strcspn(name, "/")] = '\0';
            if (!code && !missing) {
                pthread_mutex_unlock(&http->mutex);
                code = each(each_user, name);
                pthread_mutex_lock(&http->mutex);
            }
        }
        pthread_mutex_unlock(&http->mutex);
        if (code)
            return code;
        next += window;
        window = missing        ? HTTP_MISSING - missing
                 : window < 256 ? 4 * window
                                : window;
    }
    return 0;
}

static int http_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    bags_http *http = (bags_http *)user;
    http_object *listing = NULL;
    if (!bags_http_is_url(path))
        return EINVAL;
    if (!http_alive(http))
        return EIO;
    int code = http_listing(http, path, &listing);
    if (code == ENOENT || code == EACCES)
        return http_probe(http, path, each, each_user);
    for (size_t at = 0; !code && at < listing->names_size;
         at += strlen(listing->names + at) + 1)
        code = each(each_user, listing->names + at);
    return code;
}

static int http_open(void *user, const char *path, int mode, void **file) {
    bags_http *http = (bags_http *)user;
    if (mode != BAGS_IO_READ)
        return EROFS;
    if (!bags_http_is_url(path))
        return EINVAL;
    if (!http_alive(http))
        return EIO;
    http_file *opened = (http_file *)calloc(1, sizeof *opened);
    pthread_mutex_lock(&http->mutex);
    http_object *object =
        opened ? http_find(http, path, http_path_size(path), true) : NULL;
    int code = object ? http_wait(http, object) : ENOMEM;
    pthread_mutex_unlock(&http->mutex);
    if (code) {
        free(opened);
        return code;
    }
    opened->object = object;
    *file = opened;
    return 0;
}

static int http_close(void *user, void *file) {
    (void)user;
    free(file);
    return 0;
}

static int http_size(void *user, void *file, uint64_t *size) {
    bags_http *http = (bags_http *)user;
    pthread_mutex_lock(&http->mutex);
    *size = ((http_file *)file)->object->size;
    pthread_mutex_unlock(&http->mutex);
    return 0;
}

/* ---- hooks that read ---- */

/* What a call of read_many reads that is not at hand. */
typedef struct http_want {
    http_object *object;
    uint64_t start, stop;
    size_t index; /* of the read */
} http_want;

/* The parts that a call waits for; those that are kept are pinned. */
typedef struct http_call {
    http_part **parts;
    size_t count, capacity;
} http_call;

static bool http_call_add(http_call *call, http_part *part) {
    if (call->count == call->capacity) {
        size_t capacity = call->capacity ? 2 * call->capacity : 64;
        http_part **parts = (http_part **)realloc(
            (void *)call->parts, capacity * sizeof *parts);
        if (!parts)
            return false;
        call->parts = parts;
        call->capacity = capacity;
    }
    part->users++;
    call->parts[call->count++] = part;
    return true;
}

/* Pin the parts that have all of these bytes, if there are. */
static bool http_cover(bags_http *http, http_call *call,
    const http_object *object, uint64_t start, uint64_t stop) {
    size_t before = call->count;
    while (start < stop) {
        http_part *part = http_part_find(object, start, false);
        if (!part || !http_call_add(call, part)) {
            while (call->count > before)
                call->parts[--call->count]->users--;
            return false;
        }
        http_part_unlink(http, part); /* it is the newest now */
        http_part_link(http, part);
        start = part->stop;
    }
    return true;
}

static int http_want_order(const void *a, const void *b) {
    const http_want *x = (const http_want *)a, *y = (const http_want *)b;
    if (x->object != y->object)
        return (uintptr_t)x->object < (uintptr_t)y->object ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

/* Read one range that nothing else needs directly to where it belongs. */
static void http_read_direct(bags_http *http, http_call *call,
    const http_want *want, unsigned char *data) {
    for (uint64_t at = want->start; at < want->stop; at += HTTP_CHUNK) {
        http_part *part = (http_part *)calloc(1, sizeof *part);
        if (!part || !http_call_add(call, part)) {
            free(part);
            return;
        }
        part->object = want->object;
        part->start = at;
        part->stop =
            want->stop - at < HTTP_CHUNK ? want->stop : at + HTTP_CHUNK;
        part->data = data + (at - want->start);
        part->borrowed = true;
        http_part_request(http, part);
    }
}

/* Read a range to be kept. */
static void http_read_kept(bags_http *http, http_call *call,
    http_object *object, uint64_t start, uint64_t stop, bool wait) {
    if (stop - start < HTTP_BLOCK) {
        start -= start % HTTP_BLOCK;
        stop = stop > UINT64_MAX - HTTP_BLOCK
                   ? stop
                   : (stop + HTTP_BLOCK - 1) / HTTP_BLOCK * HTTP_BLOCK;
        stop = stop < object->size ? stop : object->size;
    }
    if (stop - start > SIZE_MAX / 2 ||
        (!wait && !http_make_room(http, stop - start)))
        return;
    http_part *part = http_part_new(http, object, start, stop, NULL);
    if (!part)
        return;
    http_part_request(http, part);
    if (wait)
        http_call_add(call, part);
}

/* The gap that is read over: as small as lets the requests be at most half as many as
 * connections, and not so large that more is read over than is wanted. */
static uint64_t http_choose_gap(
    const bags_http *http, const http_want *wants, size_t count) {
    uint64_t least = HTTP_BLOCK / 4, most = http->gap, gap = 0;
    for (uint64_t next = least < most ? least : most; gap < most;
         next = next + next / 8 < most ? next + next / 8 : most) {
        size_t requests = count ? 1 : 0;
        uint64_t stop = count ? wants[0].stop : 0, over = 0, wanted = stop;
        wanted -= count ? wants[0].start : 0;
        for (size_t i = 1; i < count; i++) {
            bool other = wants[i].object != wants[i - 1].object;
            uint64_t between =
                !other && wants[i].start > stop ? wants[i].start - stop : 0;
            bool joined = !other && between <= next;
            requests += !joined;
            over += joined ? between : 0;
            wanted += wants[i].stop - wants[i].start;
            stop = joined && wants[i].stop < stop ? stop : wants[i].stop;
        }
        if (next > least && over > wanted)
            break;
        gap = next;
        if (requests <= http->connections / 2)
            break;
    }
    return gap;
}

/* Request what is not at hand, neighbours with one request. */
static void http_request_all(bags_http *http, http_call *call,
    const bags_io_read *reads, http_want *wants, size_t count) {
    if (count > 1)
        qsort(wants, count, sizeof *wants, http_want_order);
    uint64_t gap = http_choose_gap(http, wants, count);
    for (size_t i = 0, next; i < count; i = next) {
        uint64_t start = wants[i].start, stop = wants[i].stop;
        bool wait = reads[wants[i].index].data != NULL;
        for (next = i + 1; next < count; next++) {
            if (wants[next].object != wants[i].object ||
                (wants[next].start > stop && wants[next].start - stop > gap) ||
                wants[next].stop - start > HTTP_CHUNK)
                break;
            stop = wants[next].stop > stop ? wants[next].stop : stop;
            wait = wait || reads[wants[next].index].data;
        }
        if (next == i + 1 && wait && stop - start >= HTTP_BLOCK / 4)
            http_read_direct(http, call, &wants[i],
                (unsigned char *)reads[wants[i].index].data);
        else
            http_read_kept(http, call, wants[i].object, start, stop, wait);
    }
}

/* Wait for a call's parts. */
static void http_call_wait(bags_http *http, const http_call *call) {
    for (size_t i = 0; i < call->count; i++)
        while (call->parts[i]->state == HTTP_WAITING)
            pthread_cond_wait(&http->changed, &http->mutex);
}

/* Copy what has arrived to a read; what was read directly is only counted. */
static void http_copy_read(const http_call *call, bags_io_read *read) {
    const http_object *object = ((http_file *)read->file)->object;
    unsigned char *data = (unsigned char *)read->data;
    uint64_t rest =
        object->size > read->offset ? object->size - read->offset : 0;
    size_t size = read->size < rest ? read->size : (size_t)rest;
    for (size_t i = 0; data && i < call->count; i++) { /* they are in order */
        const http_part *part = call->parts[i];
        if (part->borrowed && part->data == data + read->done &&
            part->state == HTTP_DONE)
            read->done += (size_t)http_part_size(part);
    }
    while (data && read->done < size) {
        uint64_t at = read->offset + read->done;
        const http_part *part = http_part_find(object, at, true);
        if (!part)
            return;
        size_t step = (size_t)(part->stop - at);
        step = step < size - read->done ? step : size - read->done;
        memcpy(data + read->done, part->data + (at - part->start), step);
        read->done += step;
    }
}

static void http_call_end(bags_http *http, http_call *call) {
    for (size_t i = 0; i < call->count; i++) {
        call->parts[i]->users--;
        if (call->parts[i]->borrowed)
            free(call->parts[i]);
        else if (call->parts[i]->state == HTTP_FAILED &&
                 call->parts[i]->users == 0)
            http_part_free(http, call->parts[i]);
    }
    free((void *)call->parts);
    http_make_room(http, 0);
}

static void http_read_many(void *user, bags_io_read *reads, size_t count) {
    bags_http *http = (bags_http *)user;
    http_call call = {NULL, 0, 0};
    size_t wanted = 0;
    if (!http_alive(http))
        return;
    http_want *wants = (http_want *)malloc((count + 1) * sizeof *wants);
    if (!wants)
        return;
    double now = http_now();
    pthread_mutex_lock(&http->mutex);
    for (size_t i = 0; i < count; i++) {
        http_object *object = ((http_file *)reads[i].file)->object;
        uint64_t start = reads[i].offset, stop = object->size;
        if (start >= stop || reads[i].size == 0)
            continue;
        if (stop - start > reads[i].size)
            stop = start + reads[i].size;
        if (http_cover(http, &call, object, start, stop) ||
            (object->error &&
                (object->error == ESTALE || now - object->when < 1)))
            continue; /* it has just failed: do not wait again */
        wants[wanted].object = object;
        wants[wanted].start = start;
        wants[wanted].stop = stop;
        wants[wanted++].index = i;
    }
    http_request_all(http, &call, reads, wants, wanted);
    http_wake(http);
    bool wait = false;
    for (size_t i = 0; i < count; i++)
        wait = wait || reads[i].data;
    if (wait)
        http_call_wait(http, &call);
    for (size_t i = 0; i < count; i++)
        if (((http_file *)reads[i].file)->object->error != ESTALE)
            http_copy_read(&call, &reads[i]);
    http_call_end(http, &call);
    pthread_mutex_unlock(&http->mutex);
    free(wants);
}

/* Where reads are sequential, read ahead of them. */
static void http_read_ahead(
    bags_http *http, http_file *file, uint64_t start, uint64_t stop) {
    const uint64_t least = 4 * HTTP_BLOCK;
    pthread_mutex_lock(&http->mutex);
    bool sequential = start > 0 && start == file->next;
    uint64_t window = !sequential                  ? 0
                      : file->window < least       ? least
                      : file->window >= HTTP_CHUNK ? HTTP_CHUNK
                                                   : 2 * file->window;
    uint64_t size = file->object->size;
    uint64_t from = file->ahead > stop ? file->ahead : stop;
    uint64_t to = size - stop > window ? stop + window : size;
    bool worth = window && stop <= size && to > from &&
                 (to - from >= window / 2 || to == size);
    file->next = stop;
    if (!sequential || worth)
        file->window = window;
    if (!sequential)
        file->ahead = 0;
    if (worth)
        file->ahead = to;
    pthread_mutex_unlock(&http->mutex);
    if (worth) {
        bags_io_read read = {file, from, NULL, (size_t)(to - from), 0};
        http_read_many(http, &read, 1);
    }
}

static int http_read_at(void *user, void *file, uint64_t offset, void *data,
    size_t size, size_t *done) {
    bags_http *http = (bags_http *)user;
    http_file *opened = (http_file *)file;
    bags_io_read read = {file, offset, data, size, 0};
    *done = 0;
    if (!http_alive(http))
        return EIO;
    if (offset >= opened->object->size) /* which does not change */
        return 0;
    http_read_ahead(http, opened, offset, offset + size);
    http_read_many(user, &read, 1);
    *done = read.done;
    if (read.done)
        return 0;
    pthread_mutex_lock(&http->mutex);
    int error = opened->object->error;
    pthread_mutex_unlock(&http->mutex);
    return error ? error : EIO;
}

/* ---- uploading ---- */

/* MD5 (RFC 1321), which S3's ETags are made of. */
typedef struct http_md5 {
    uint32_t state[4];
    uint64_t size;
    unsigned char block[64];
} http_md5;

static void http_md5_block(http_md5 *md5, const unsigned char *block) {
    static const unsigned char shift[16] = {
        7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};
    static const uint32_t sine[64] = {0xd76aa478, 0xe8c7b756, 0x242070db,
        0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8,
        0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e,
        0x49b40821, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d,
        0x02441453, 0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87,
        0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942,
        0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60,
        0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039,
        0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7,
        0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1, 0x6fa87e4f,
        0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb,
        0xeb86d391};
    uint32_t a = md5->state[0], b = md5->state[1], c = md5->state[2];
    uint32_t d = md5->state[3];
    for (unsigned i = 0; i < 64; i++) {
        unsigned round = i / 16;
        unsigned at = round == 0   ? i
                      : round == 1 ? 5 * i + 1
                      : round == 2 ? 3 * i + 5
                                   : 7 * i;
        const unsigned char *word = block + 4 * (at % 16);
        uint32_t mixed = round == 0   ? (b & c) | (~b & d)
                         : round == 1 ? (d & b) | (~d & c)
                         : round == 2 ? b ^ c ^ d
                                      : c ^ (b | ~d);
        uint32_t sum = a + mixed + sine[i] +
                       ((uint32_t)word[0] | (uint32_t)word[1] << 8 |
                           (uint32_t)word[2] << 16 | (uint32_t)word[3] << 24);
        unsigned left = shift[4 * round + i % 4];
        a = d;
        d = c;
        c = b;
        b += sum << left | sum >> (32 - left);
    }
    md5->state[0] += a;
    md5->state[1] += b;
    md5->state[2] += c;
    md5->state[3] += d;
}

static void http_md5_of(
    const unsigned char *data, size_t size, unsigned char out[16]) {
    http_md5 md5 = {{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}, 0, {0}};
    size_t rest = size % 64, last = rest < 56 ? 64 : 128;
    unsigned char end[128] = {0};
    for (size_t at = 0; at + 64 <= size; at += 64)
        http_md5_block(&md5, data + at);
    if (rest)
        memcpy(end, data + size - rest, rest);
    end[rest] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        end[last - 8 + i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
    for (size_t at = 0; at < last; at += 64)
        http_md5_block(&md5, end + at);
    for (unsigned i = 0; i < 16; i++)
        out[i] = (unsigned char)(md5.state[i / 4] >> 8 * (i % 4));
}

/* A file that is uploaded, or compared, part by part. */
typedef struct http_source {
    const bags_io *io;
    const char *path;
    void *file;
    uint64_t size, part; /* bytes: of the file, of each part but the last */
    size_t count;        /* parts; 1: not multipart */
    unsigned char *data; /* one part */
    bags_error *err;
} http_source;

static bags_code http_fail_path(
    bags_error *err, int error, const char *path, const char *doing) {
    bags_code code = error == ENOENT   ? BAGS_ERROR_MISSING
                     : error == ENOMEM ? BAGS_ERROR_MEMORY
                                       : BAGS_ERROR_IO;
    bags_fail(err, code, "%.320s: cannot %s: %s", path, doing, strerror(error));
    if (err)
        err->system = error;
    return code;
}

/* The size of parts is that of most tools if possible, so that ETags can be compared;
 * there are at most 10,000 parts. */
static bags_code http_source_open(
    http_source *from, const bags_io *io, const char *path, bags_error *err) {
    memset(from, 0, sizeof *from);
    from->io = io;
    from->path = path;
    from->err = err;
    int error = io->open(io->user, path, BAGS_IO_READ, &from->file);
    if (error)
        from->file = NULL;
    else
        error = io->size(io->user, from->file, &from->size);
    if (error)
        return http_fail_path(err, error, path, "open");
    from->part = HTTP_PART;
    while (from->size / 10000 >= from->part)
        from->part *= 2;
    from->count = from->size <= from->part
                      ? 1
                      : (size_t)((from->size - 1) / from->part + 1);
    uint64_t size = from->size < from->part ? from->size : from->part;
    from->data =
        size < SIZE_MAX ? (unsigned char *)malloc((size_t)size + 1) : NULL;
    return from->data ? BAGS_OK : http_fail_path(err, ENOMEM, path, "upload");
}

static void http_source_close(http_source *from) {
    if (from->file)
        from->io->close(from->io->user, from->file);
    free(from->data);
}

/* Read part i: *size bytes, and their MD5. */
static bags_code http_source_read(
    http_source *from, size_t i, size_t *size, unsigned char md5[16]) {
    uint64_t start = from->part * i, rest = from->size - start;
    *size = (size_t)(rest < from->part ? rest : from->part);
    for (size_t at = 0; at < *size;) {
        size_t done = 0;
        int error = from->io->read_at(from->io->user, from->file, start + at,
            from->data + at, *size - at, &done);
        if (error)
            return http_fail_path(from->err, error, from->path, "read");
        if (!done)
            return bags_fail(from->err, BAGS_ERROR_CORRUPT,
                "%.320s: truncated while open", from->path);
        at += done;
    }
    http_md5_of(from->data, *size, md5);
    return BAGS_OK;
}

static void http_hex_of(const unsigned char md5[16], char out[33]) {
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", md5[i]);
}

/* The ETag that S3 gives this file, without quotes. */
static bags_code http_source_etag(http_source *from, char out[64]) {
    unsigned char *all = (unsigned char *)malloc(16 * from->count);
    size_t size = 0;
    bags_code code =
        all ? BAGS_OK : http_fail_path(from->err, ENOMEM, from->path, "read");
    for (size_t i = 0; i < from->count && !code; i++)
        code = http_source_read(from, i, &size, all + 16 * i);
    if (!code && from->count > 1) {
        unsigned char md5[16];
        http_md5_of(all, 16 * from->count, md5);
        http_hex_of(md5, out);
        snprintf(out + 32, 32, "-%" PRIu64, (uint64_t)from->count);
    } else if (!code) {
        http_hex_of(all, out);
    }
    free(all);
    return code;
}

static bags_code http_compare(
    bags_http *http, const char *url, http_source *from, bool *same) {
    char etag[64], found[64] = "";
    *same = false;
    pthread_mutex_lock(&http->mutex);
    http_object *object = http_find(http, url, http_path_size(url), true);
    int error = object ? http_wait(http, object) : ENOMEM;
    bool fits = !error && object->size == from->size && object->etag &&
                strlen(object->etag) < sizeof found;
    if (fits)
        strcpy(found, object->etag);
    pthread_mutex_unlock(&http->mutex);
    if (error && error != ENOENT) {
        char why[256] = "";
        http_explain(http, url, error, why, sizeof why);
        return bags_fail(from->err, BAGS_ERROR_IO, "%.320s: cannot open: %s",
            url, *why ? why : strerror(error));
    }
    if (!fits)
        return BAGS_OK;
    bags_code code = http_source_etag(from, etag);
    size_t size = strlen(etag);
    *same = !code && found[0] == '"' && strlen(found) == size + 2 &&
            memcmp(found + 1, etag, size) == 0;
    return code;
}

bags_code bags_http_same(bags_http *http, const char *url, const bags_io *io,
    const char *path, bool *same, bags_error *err) {
    http_source from;
    *same = false;
    if (!http_alive(http))
        return bags_fail(
            err, BAGS_ERROR_STATE, "a bags_http cannot be used after fork");
    bags_code code = http_source_open(&from, io, path, err);
    if (!code)
        code = http_compare(http, url, &from, same);
    http_source_close(&from);
    return code;
}

/* Send a body for a key of S3, and return the request: free it. */
static bags_code http_send_s3(bags_http *http, const char *method,
    const char *url, const char *query, const unsigned char *data, size_t size,
    const unsigned char *md5, http_request **out, bags_error *err) {
    http_request *request = http_request_new(http, NULL, url, false, query);
    *out = request;
    if (!request)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    request->method = method;
    request->send = data;
    request->send_size = size;
    request->md5 = md5;
    if (http_run(http, request))
        return BAGS_OK;
    bags_fail(
        err, BAGS_ERROR_IO, "%.320s: cannot upload: %s", url, request->why);
    if (err)
        err->system = request->error;
    return BAGS_ERROR_IO;
}

/* The text of an element of an answer, encoded for a query; NULL: there is none. */
static char *http_answer(
    const http_request *request, const char *name, bool encode) {
    const char *page = (const char *)request->data, *next = NULL;
    size_t size = 0;
    const char *text =
        page ? http_element(page, page + request->size, name, &size, &next)
             : NULL;
    char *plain = text ? http_format("%.*s", (int)size, text) : NULL;
    if (!plain || !encode)
        return plain;
    plain[http_entities(plain, size)] = '\0';
    char *out = http_encode(plain, true, false);
    free(plain);
    return out;
}

/* Upload the parts, and write the list of them to *xml. */
static bags_code http_upload_parts(bags_http *http, const char *url,
    const char *id, http_source *from, char **xml,
    void (*progress)(void *user, uint64_t bytes), void *user) {
    bags_code code = BAGS_OK;
    *xml = http_format("<CompleteMultipartUpload>");
    for (size_t i = 0; i < from->count && !code; i++) {
        http_request *request = NULL;
        unsigned char md5[16];
        size_t size = 0;
        char *query = http_format(
            "partNumber=%" PRIu64 "&uploadId=%s", (uint64_t)i + 1, id);
        code = query && *xml ? http_source_read(from, i, &size, md5)
                             : http_fail_path(from->err, ENOMEM, url, "upload");
        if (!code)
            code = http_send_s3(http, "PUT", url, query, from->data, size, md5,
                &request, from->err);
        if (!code && progress)
            progress(user, size);
        char *longer = code ? NULL
                            : http_format("%s<Part><PartNumber>%" PRIu64
                                          "</PartNumber><ETag>%s</ETag></Part>",
                                  *xml, (uint64_t)i + 1,
                                  request->etag ? request->etag : "");
        free(*xml);
        *xml = longer;
        free(query);
        http_request_free(request);
    }
    char *done =
        *xml ? http_format("%s</CompleteMultipartUpload>", *xml) : NULL;
    free(*xml);
    *xml = done;
    return code || done ? code
                        : http_fail_path(from->err, ENOMEM, url, "upload");
}

static bags_code http_upload_multipart(bags_http *http, const char *url,
    http_source *from, void (*progress)(void *user, uint64_t bytes),
    void *user) {
    http_request *request = NULL, *abort = NULL;
    char *xml = NULL, *query = NULL;
    bags_code code = http_send_s3(
        http, "POST", url, "uploads=", NULL, 0, NULL, &request, from->err);
    char *id = code ? NULL : http_answer(request, "UploadId", true);
    http_request_free(request);
    request = NULL;
    if (!code && !id)
        code = bags_fail(from->err, BAGS_ERROR_IO,
            "%.320s: cannot upload: the answer has no UploadId", url);
    if (!code)
        code = http_upload_parts(http, url, id, from, &xml, progress, user);
    query = id ? http_format("uploadId=%s", id) : NULL;
    if (!code && query)
        code = http_send_s3(http, "POST", url, query,
            (const unsigned char *)xml, strlen(xml), NULL, &request, from->err);
    /* The status is 200 even if S3 then fails to put the parts together. */
    char *etag = code || !request ? NULL : http_answer(request, "ETag", false);
    char *why = code || !request ? NULL : http_answer(request, "Code", false);
    if (!code && !etag)
        code =
            bags_fail(from->err, BAGS_ERROR_IO, "%.320s: cannot upload: %.100s",
                url, why ? why : "the answer has no ETag");
    if (code && query)
        (void)http_send_s3(
            http, "DELETE", url, query, NULL, 0, NULL, &abort, NULL);
    http_request_free(request);
    http_request_free(abort);
    free(etag);
    free(why);
    free(xml);
    free(query);
    free(id);
    return code;
}

bags_code bags_http_upload(bags_http *http, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *user, uint64_t bytes), void *user,
    bags_error *err) {
    http_source from;
    http_request *request = NULL;
    unsigned char md5[16];
    size_t size = 0;
    if (!http_is_s3(url) || !http_alive(http))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%.320s: only s3:// accepts uploads, and only in the process that "
            "opened it",
            url);
    bags_code code = http_source_open(&from, io, path, err);
    if (!code && from.count > 1) {
        code = http_upload_multipart(http, url, &from, progress, user);
    } else if (!code) {
        code = http_source_read(&from, 0, &size, md5);
        if (!code)
            code = http_send_s3(
                http, "PUT", url, NULL, from.data, size, md5, &request, err);
        http_request_free(request);
        if (!code && progress)
            progress(user, size);
    }
    http_source_close(&from);
    pthread_mutex_lock(&http->mutex); /* what was known is out of date */
    http_object *object = http_find(http, url, http_path_size(url), false);
    if (object && object->state != HTTP_WAITING) {
        object->state = HTTP_NEW;
        object->error = 0;
        for (http_part *part = object->parts, *next; part; part = next) {
            next = part->next;
            if (part->users == 0 && part->state != HTTP_WAITING)
                http_part_free(http, part);
        }
    }
    pthread_mutex_unlock(&http->mutex);
    return code;
}

/* ---- settings ---- */

/* The value of NAME in [section] of an .ini file, or NULL. */
static char *http_ini(const char *path, const char *section, const char *name) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096], *found = NULL;
    bool inside = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *stop = line + strlen(line), *start = line;
        while (stop > start && (unsigned char)stop[-1] <= ' ')
            *--stop = '\0';
        while (*start == ' ' || *start == '\t')
            start++;
        if (*start == '[') {
            size_t size = strlen(section);
            inside = strncmp(start + 1, section, size) == 0 &&
                     strcmp(start + 1 + size, "]") == 0;
        }
        size_t size = strcspn(start, " \t=");
        if (!inside || size != strlen(name) || strncmp(start, name, size) != 0)
            continue;
        start += size;
        start += strspn(start, " \t");
        if (*start++ == '=')
            found = http_copy(start + strspn(start, " \t"));
    }
    if (file)
        fclose(file);
    return found;
}

static char *http_aws_file(const char *variable, const char *name) {
    const char *path = getenv(variable), *home = getenv("HOME");
    if (path && *path)
        return http_copy(path);
    return home ? http_format("%s/.aws/%s", home, name) : NULL;
}

/* The first of an option, one or two variables of the environment. */
static char *http_setting(
    const char *option, const char *variable, const char *other) {
    const char *value = option ? option : getenv(variable);
    if (!option && (!value || !*value) && other)
        value = getenv(other);
    return http_copy(value);
}

/* Keys, region and endpoint of S3: options, then the environment, then the files in
 * ~/.aws. */
static void http_settings(bags_http *http, const bags_http_options *options) {
    const char *profile = getenv("AWS_PROFILE");
    char *keys = http_aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    char *config = http_aws_file("AWS_CONFIG_FILE", "config");
    profile = profile && *profile ? profile : "default";
    char *section = strcmp(profile, "default") == 0
                        ? http_copy(profile)
                        : http_format("profile %s", profile);
    const char *in_config = section ? section : "default";
    http->key = http_setting(options->key, "AWS_ACCESS_KEY_ID", NULL);
    http->secret = http_setting(options->secret, "AWS_SECRET_ACCESS_KEY", NULL);
    http->token = http_setting(options->token, "AWS_SESSION_TOKEN", NULL);
    http->region =
        http_setting(options->region, "AWS_REGION", "AWS_DEFAULT_REGION");
    http->endpoint = http_setting(
        options->endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    if (!http->key) { /* never the key of one place with the secret of another */
        free(http->secret);
        free(http->token);
        http->key = http_ini(keys, profile, "aws_access_key_id");
        http->secret = http_ini(keys, profile, "aws_secret_access_key");
        http->token = http_ini(keys, profile, "aws_session_token");
    }
    if (!http->region)
        http->region = http_ini(config, in_config, "region");
    if (!http->region)
        http->region = http_copy("us-east-1");
    if (!http->endpoint)
        http->endpoint = http_ini(config, in_config, "endpoint_url");
    if (http->endpoint)
        http->endpoint[http_path_size(http->endpoint)] = '\0';
    free(keys);
    free(config);
    free(section);
}

/* ---- opening and closing ---- */

void bags_http_close(bags_http *http) {
    if (!http)
        return;
    if (http->started && http_alive(http)) {
        pthread_mutex_lock(&http->mutex);
        http->stop = true;
        http_wake(http);
        pthread_mutex_unlock(&http->mutex);
        pthread_join(http->thread, NULL);
    }
    while (http->active || http->queue) { /* requested in advance */
        http_request **list = http->active ? &http->active : &http->queue;
        http_request *request = *list;
        *list = request->next;
        if (request->easy)
            curl_multi_remove_handle(http->multi, request->easy);
        curl_easy_cleanup(request->easy);
        http_request_free(request);
    }
    for (size_t i = 0; i < HTTP_BUCKETS; i++)
        for (http_object *object = http->objects[i], *next; object;
             object = next) {
            next = object->next;
            while (object->parts)
                http_part_free(http, object->parts);
            free(object->path);
            free(object->why);
            free(object->etag);
            free(object->names);
            free(object);
        }
    for (size_t i = 0; i < http->idle_count; i++)
        curl_easy_cleanup(http->idle[i]);
    if (http->multi)
        curl_multi_cleanup(http->multi);
    if (http->share)
        curl_share_cleanup(http->share);
    pthread_mutex_destroy(&http->mutex);
    pthread_cond_destroy(&http->changed);
    char *texts[] = {http->query, http->user, http->key, http->secret,
        http->token, http->region, http->endpoint, http->ca_file};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free((void *)http->idle);
    free(http);
}

static bool http_copy_options(
    bags_http *http, const bags_http_options *options) {
    http->query = http_copy(options->query);
    http->user = http_copy(options->user);
    http->ca_file = http_copy(options->ca_file);
    http->retry_seconds =
        options->retry_seconds > 0 ? options->retry_seconds : 50;
    http->stall_seconds =
        options->stall_seconds > 0 ? options->stall_seconds : 30;
    http->connections = options->connections ? options->connections : 384;
    http->gap = options->gap ? options->gap : (uint64_t)1 << 20;
    http->cache_size =
        options->cache_size ? options->cache_size : (uint64_t)256 << 20;
    http_settings(http, options);
    http->idle = http->connections < 65536
                     ? (CURL **)calloc(http->connections, sizeof *http->idle)
                     : NULL;
    return http->idle && http->region && (!options->query || http->query) &&
           (!options->user || http->user) &&
           (!options->ca_file || http->ca_file);
}

static bool http_open_curl(bags_http *http) {
    long most = (long)http->connections;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return false;
    http->multi = curl_multi_init();
    http->share = curl_share_init();
    return http->multi && http->share &&
           curl_share_setopt(http->share, CURLSHOPT_SHARE,
               CURL_LOCK_DATA_SSL_SESSION) == CURLSHE_OK &&
           curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, most) ==
               CURLM_OK;
}

bags_http *bags_http_open(const bags_http_options *options, bags_error *err) {
    bags_http_options none;
    memset(&none, 0, sizeof none);
    options = options ? options : &none;
    bags_http *http = (bags_http *)calloc(1, sizeof *http);
    if (!http) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    if (options->retry_seconds < 0 || options->stall_seconds < 0 ||
        options->connections > 65535 || (options->key && !options->secret)) {
        bags_fail(
            err, BAGS_ERROR_ARGUMENT, "invalid options of bags_http_open");
        free(http);
        return NULL;
    }
    pthread_mutex_init(&http->mutex, NULL);
    pthread_cond_init(&http->changed, NULL);
    http->queue_end = &http->queue;
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
    bool good = http_copy_options(http, options) && http_open_curl(http);
    http->started =
        good && pthread_create(&http->thread, NULL, http_work, http) == 0;
    if (http->started)
        return http;
    bags_fail(err, BAGS_ERROR_MEMORY,
        "out of memory, or of threads (bags_http_open)");
    bags_http_close(http);
    return NULL;
}

const bags_io *bags_http_io(const bags_http *http) { return &http->io; }

void bags_http_counts(bags_http *http, uint64_t *requests, uint64_t *bytes) {
    pthread_mutex_lock(&http->mutex);
    *requests = http->requests;
    *bytes = http->received;
    pthread_mutex_unlock(&http->mutex);
}
