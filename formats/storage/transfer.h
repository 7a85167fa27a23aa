/*
 * transfer.h - the engine of http.c: requests and their answers (request.c), and the
 * queue and the threads that run them (transfer.c). It handles URLs, ranges and
 * retries, but knows nothing about datasets. Programs do not include it.
 *
 * Threads run the transfers; each thread has its own multi handle and connections.
 * Callers queue requests and wake the threads. A request is in one of these states;
 * each arrow is labelled with the function that makes the transition:
 *
 *             bagi_http_queue        http_begin           http_finish
 *     (caller) -----------> queued -------------> running -------------> done
 *                             ^                      |                   failed
 *                             |      http_retry      |
 *                             +----------------------+
 *
 * The mutex guards everything except running requests, each of which belongs to its
 * thread.
 */
#ifndef BAGS_FORMATS_TRANSFER_H
#define BAGS_FORMATS_TRANSFER_H

#include "credentials.h"
#include "pace.h"

#include <curl/curl.h>

#include <errno.h>
#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#define HTTP_THREADS 4 /* most threads */

#ifndef ESTALE
#define ESTALE EIO
#endif

typedef enum http_state {
    HTTP_NEW,
    HTTP_WAITING, /* a request is queued or running */
    HTTP_DONE,
    HTTP_FAILED
} http_state;

/* Which bytes a request asks for. */
typedef enum http_bytes {
    HTTP_ALL,   /* the entire object, in one response */
    HTTP_ENDS,  /* the last bytes, or the first if the server cannot count from the
                   end */
    HTTP_RANGE, /* a range of an object with known size and ETag */
    HTTP_NONE   /* no bytes: only what identifies the object */
} http_bytes;

typedef struct http_request {
    struct http_request *next; /* in the queue, or in the thread's list of running
                                  requests */
    struct http_engine *engine;
    struct http_thread *thread; /* the thread whose queue it is in; NULL: none yet */
    /* Called when the request has ended, before it is freed, with the mutex held. NULL:
     * the caller of bagi_http_run reads the response and frees the request. */
    void (*ended)(struct http_request *request, bool good);
    void *user, *also; /* for `ended` */
    uint64_t number;   /* likewise */
    http_state state;
    char *url;
    uint64_t server; /* hash of its name and port */
    bool is_s3;
    uint64_t keys; /* number of the temporary credentials that signed it */
    http_bytes bytes;
    uint64_t last_size,
        first_size;         /* HTTP_ENDS: bytes from the end, or from the start */
    uint64_t start, stop;   /* HTTP_RANGE */
    uint64_t object_size;   /* HTTP_RANGE */
    const char *object_tag; /* HTTP_RANGE: the object's ETag or time, or NULL */
    bool any_tag;           /* HTTP_RANGE: only the size is known */
    bool fresh;             /* not from a cache on the way to the server */
    const char *path;       /* the key for remembering the answer, or NULL */
    bool from_start;        /* HTTP_ENDS, HTTP_NONE: the first bytes */
    bags_http_answer known; /* with its ETag for If-None-Match, or "" */
    bool timed;             /* the known answer has a Last-Modified */
    bool unconditional;     /* a 304 response said too little, so ask without
                               conditions */
    unsigned unsettled;     /* responses so far that may change without a new ETag */
    const char *method;     /* for uploads */
    const char *send;
    size_t send_size;
    char md5[32]; /* of the data sent, in base64; "": not sent */
    /* The response: */
    bags_buffer body;
    size_t size; /* bytes in the body */
    long status;
    char tag[512], modified[64], date[64], range[96]; /* headers */
    char encoding[32], transfer[32];
    uint64_t first, last, total; /* from a valid Content-Range */
    uint64_t length;             /* UINT64_MAX: unknown */
    uint64_t skip;               /* body bytes before the range, if the server ignores
                                    ranges */
    uint64_t most;               /* most body bytes to read */
    const char *final_url;       /* after redirects; set only for `ended`, or NULL */
    bool is_html;
    bool has_head;   /* the head is complete */
    bool checked;    /* the head was checked, before the first body byte */
    char text[1024]; /* the start of an error's body */
    size_t text_size, headers_size;
    double begun;
    bool cut; /* the rest of the body is not read */
    /* Its progress: */
    CURL *easy;
    struct curl_slist *headers;
    char curl_why[CURL_ERROR_SIZE];
    bool abandoned; /* the caller of bagi_http_run gave up: free it when it ends */
    int tries;
    double since; /* time of the first try, or of its failure after some bytes had
                     arrived */
    double not_before;
    int error; /* errno */
    char why[256];
} http_request;

/* A thread that runs transfers. */
typedef struct http_thread {
    struct http_engine *engine;
    pthread_t id;
    CURLM *multi;
    CURLSH *share;
    bool started, woken;
    int wake[2];        /* a pipe; writing to it wakes the thread */
    bags_buffer memory; /* for the sockets: a pollfd for each file descriptor */
    size_t sockets;
    http_request *queue, **queue_end;
    http_request *active; /* running requests; only the thread uses this list */
    size_t running, load; /* load: queued plus running */
} http_thread;

typedef struct http_engine {
    void *user; /* for `ended` */
    http_settings settings;
    double retry_seconds, stall_seconds;
    size_t connections, connections_each; /* total, and per thread */
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
    uint64_t requests, received;
    uint32_t random;
    bool from_start;    /* the server does not support ranges from the end */
    bool answered[256]; /* by server hash: it has answered a request */
    http_pace pace;
    bool is_openssl; /* libcurl uses the same libssl as transfer.c */
} http_engine;

static inline double http_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the engine: transfer.c ---- */

/* Start the threads of a zeroed engine. Returns false if out of memory or threads; the
 * engine must be stopped even then. */
bool bagi_http_start(http_engine *engine, const bags_http_options *options);

/* Stop all transfers, and free the engine's memory. In the child of a fork, only memory
 * is freed. */
void bagi_http_stop(http_engine *engine);

/* False in the child of a fork: the threads are missing, and the mutex may be
 * locked. */
bool bagi_http_alive(const http_engine *engine);

/* Queue a request. The mutex is held. Wake the threads afterwards. */
void bagi_http_queue(http_request *request);

/* Wake each thread that has work, once, no matter how many requests are queued. The
 * mutex is held. */
void bagi_http_wake(http_engine *engine);

/* Wait until something has changed. Returns 0, or EINTR if the caller must give up.
 * *due must start as 0. The mutex is held, except during the wait. */
int bagi_http_pause(http_engine *engine, double *due);

/* Run a request that has no `ended`. Returns an errno. EINTR: the request no longer
 * belongs to the caller (never returned if the request sends the caller's data). */
int bagi_http_run(http_request *request);

/* ---- requests: request.c ---- */

/* Make a request for all bytes. The caller may modify it before queuing it. `bucket`,
 * `field` and `query`: see bagi_http_url. NULL: out of memory. */
http_request *bagi_http_request_new(
    http_engine *engine, const char *path, bool bucket, bool field, const char *query);

void bagi_http_request_free(http_request *request);

/* The object's identity as stated by a response. */
bags_identity bagi_http_identity(const http_request *request);

/* A response's ETag or, if it has none, its Last-Modified. */
const char *bagi_http_tag(const http_request *request);

/* Make the handle for a request that begins. On failure, returns false with the
 * request's error set. */
bool bagi_http_prepare(http_request *request);

/* Check the response to a request that has ended. Returns true if it is good. *repeat:
 * the request must be sent again, good or not. */
bool bagi_http_complete(http_request *request, CURLcode *result, bool *repeat);

/* Describe a failed response in words and as an errno. */
void bagi_http_describe(http_request *request, CURLcode result);

#endif /* BAGS_FORMATS_TRANSFER_H */
