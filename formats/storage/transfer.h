/*
 * transfer.h - the engine of http.c: requests and their answers (request.c), and the queue
 * and the threads that run them (transfer.c). It knows URLs, ranges and retries, and nothing
 * of datasets. Programs do not include it.
 *
 * Threads run the transfers, each in a multi handle with connections of its own. Callers
 * queue requests and wake the threads; a request is in one of these states, and the function
 * that makes each transition is named at its arrow:
 *
 *             bagi_http_queue        http_begin           http_finish
 *     (caller) -----------> queued -------------> running -------------> done
 *                             ^                      |                   failed
 *                             |      http_retry      |
 *                             +----------------------+
 *
 * The mutex guards everything but running requests. A running request belongs to its
 * thread.
 */
#ifndef BAGS_FORMATS_TRANSFER_H
#define BAGS_FORMATS_TRANSFER_H

#include "url.h"

#include <curl/curl.h>

#include <errno.h>
#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#define HTTP_THREADS 4 /* at most */

#ifndef ESTALE
#define ESTALE EIO
#endif

typedef enum http_state {
    HTTP_NEW,
    HTTP_WAITING, /* a request is queued or running */
    HTTP_DONE,
    HTTP_FAILED
} http_state;

/* The bytes that a request asks for. */
typedef enum http_bytes {
    HTTP_ALL, /* all of them, in one answer */
    HTTP_ENDS, /* the last bytes, or the first where the server cannot count from the end */
    HTTP_RANGE, /* a range of an object whose size and ETag are known */
    HTTP_NONE   /* none: only what identifies the object */
} http_bytes;

typedef struct http_request {
    struct http_request *next; /* in the queue, or in the list of running requests */
    struct http_engine *engine;
    struct http_thread *thread; /* whose queue it is in; NULL: none yet */
    /* Called with the mutex held when it has ended, before it is freed. NULL: the caller of
     * bagi_http_run reads the answer and frees it. */
    void (*ended)(struct http_request *request, bool good);
    void *user, *also; /* of `ended` */
    http_state state;
    char *url;
    bool is_s3;
    http_bytes bytes;
    uint64_t last_size,
        first_size;         /* HTTP_ENDS: bytes from the end, or from the start */
    uint64_t start, stop;   /* HTTP_RANGE */
    uint64_t object_size;   /* HTTP_RANGE */
    const char *object_tag; /* HTTP_RANGE: ETag or time of the object, or NULL */
    const char *path;       /* what an answer is remembered under, or NULL */
    bool from_start;        /* HTTP_ENDS, HTTP_NONE: the first bytes */
    bags_http_answer known; /* with its ETag for If-None-Match, or "" */
    bool timed;             /* it has a Last-Modified */
    bool unconditional;     /* the answer 304 stated too little */
    unsigned unsettled;     /* answers that may change without a new ETag */
    const char *method;     /* of uploads */
    const char *send;
    size_t send_size;
    char md5[32]; /* of what is sent, in base64; "": not passed */
    /* The answer: */
    bags_buffer body;
    size_t size; /* of the body */
    long status;
    char tag[512], modified[64], date[64], range[96]; /* headers */
    char encoding[32], transfer[32];
    uint64_t first, last, total; /* of a valid Content-Range */
    uint64_t length;             /* UINT64_MAX: unknown */
    uint64_t skip;         /* bytes before the range, of a server that ignores it */
    uint64_t most;         /* bytes of the body that are read */
    const char *final_url; /* after redirects; only for `ended`, or NULL */
    bool is_html;
    bool has_head;   /* all of it */
    bool checked;    /* its head, before the first byte of its body */
    char text[1024]; /* the start of an error's body */
    size_t text_size, headers_size;
    double begun;
    bool cut; /* the rest of its body is not read */
    /* Its life: */
    CURL *easy;
    struct curl_slist *headers;
    char curl_why[CURL_ERROR_SIZE];
    bool abandoned; /* the caller of bagi_http_run gave up: it is freed when it ends */
    int tries;
    double since; /* the first try, or its failure after some bytes had arrived */
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
    int wake[2];        /* a pipe: what is written to it wakes the thread */
    bags_buffer memory; /* of the sockets: a pollfd for every file descriptor */
    size_t sockets;
    http_request *queue, **queue_end;
    http_request *active; /* running requests; used only by the thread */
    size_t running, load; /* load: the queued ones and the running ones */
} http_thread;

typedef struct http_engine {
    void *user; /* of `ended` */
    http_settings settings;
    double retry_seconds, stall_seconds;
    size_t connections, connections_each; /* of each thread */
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
    bool from_start;    /* the server does not know ranges from the end */
    bool answered[256]; /* by the hash of a server: it has answered a request */
    bool is_openssl;    /* libcurl uses the libssl that transfer.c uses */
} http_engine;

static inline double http_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the engine: transfer.c ---- */

/* Start the threads of a zeroed engine. Returns false if out of memory or threads; it must be
 * stopped then, too. */
bool bagi_http_start(http_engine *engine, const bags_http_options *options);

/* Stop all transfers, and free the engine's memory. In the child of a fork, only memory
 * is freed. */
void bagi_http_stop(http_engine *engine);

/* In the child of a fork the threads are missing, and the mutex may be locked: false. */
bool bagi_http_alive(const http_engine *engine);

/* Queue a request. The mutex is held. The threads must be woken afterwards. */
void bagi_http_queue(http_request *request);

/* Wake the threads with something to do, once, however many requests are queued. The
 * mutex is held. */
void bagi_http_wake(http_engine *engine);

/* Wait until something has changed. Returns 0; EINTR: the caller must give up. *due starts
 * as 0. The mutex is held, except while it waits. */
int bagi_http_pause(http_engine *engine, double *due);

/* Run a request without `ended`. Returns errno. EINTR: the request no longer belongs to
 * the caller. This does not happen to a request that sends the caller's data. */
int bagi_http_run(http_request *request);

/* ---- requests: request.c ---- */

/* A request for all bytes. The caller may change it before it is queued. `bucket`,
 * `field` and `query`: see bagi_http_url. NULL: out of memory. */
http_request *bagi_http_request_new(
    http_engine *engine, const char *path, bool bucket, bool field, const char *query);

void bagi_http_request_free(http_request *request);

/* The identity of an object that an answer states. */
bags_identity bagi_http_identity(const http_request *request);

/* The ETag of an answer or, without one, the time of the last change. */
const char *bagi_http_tag(const http_request *request);

/* Make the handle of a request that begins. Returns false, with its error, if it cannot. */
bool bagi_http_prepare(http_request *request);

/* Check the answer to a request that has ended: returns true if it is good. *repeat: it must
 * be sent again, whether it is good or not. */
bool bagi_http_complete(http_request *request, CURLcode *result, bool *repeat);

/* The failure of an answer in words, and as errno. */
void bagi_http_describe(http_request *request, CURLcode result);

#endif /* BAGS_FORMATS_TRANSFER_H */
