/*
 * transfer.c - the engine of http.c: the request queue and the threads that run it.
 * Requires libcurl 7.75 or later (Debian: libcurl4-openssl-dev), libssl (libssl-dev;
 * for TLS session tickets) and POSIX threads. transfer.h shows the states of a request.
 */
#include "transfer.h"

#include <openssl/ssl.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#define HTTP_STEP 16      /* requests per thread before another thread is used */
#define HTTP_PATIENCE 0.1 /* seconds between calls of `interrupted` */
#define HTTP_SLOWEST 10.0 /* seconds that a source of credentials may take */
#define HTTP_STARTS 5.0   /* seconds that a starting server may refuse connections */

/* ---- the queue: all with the mutex held ---- */

void bagi_http_wake(http_engine *engine) {
    for (size_t i = 0; i < engine->thread_count; i++) {
        http_thread *thread = &engine->threads[i];
        if ((thread->queue || engine->stop) && !thread->woken)
            thread->woken = write(thread->wake[1], "", 1) == 1;
    }
}

/* Queue for the least busy thread, counting load in steps of HTTP_STEP, so that a few
 * requests always reuse the same connections. */
void bagi_http_queue(http_request *request) {
    http_engine *engine = request->engine;
    if (!request->thread) {
        http_thread *thread = engine->threads;
        for (size_t i = 1; i < engine->thread_count; i++)
            if (engine->threads[i].load / HTTP_STEP < thread->load / HTTP_STEP)
                thread = &engine->threads[i];
        request->thread = thread;
        thread->load++;
    }
    request->state = HTTP_WAITING;
    request->next = NULL;
    *request->thread->queue_end = request;
    request->thread->queue_end = &request->next;
}

/* If the clock is set back, only an interruption is noticed late. */
int bagi_http_pause(http_engine *engine, double *due) {
    struct timespec until;
    if (!engine->interrupted) {
        pthread_cond_wait(&engine->changed, &engine->mutex);
        return 0;
    }
    double now = http_now();
    *due = *due > 0 ? *due : now + HTTP_PATIENCE;
    if (now < *due) {
        clock_gettime(CLOCK_REALTIME, &until);
        long more = until.tv_nsec + (long)((*due - now) * 1e9);
        until.tv_sec += more / 1000000000;
        until.tv_nsec = more % 1000000000;
        pthread_cond_timedwait(&engine->changed, &engine->mutex, &until);
        return 0;
    }
    *due = now + HTTP_PATIENCE;
    pthread_mutex_unlock(&engine->mutex);
    bool interrupted = engine->interrupted(engine->interrupted_user);
    pthread_mutex_lock(&engine->mutex);
    return interrupted ? EINTR : 0;
}

int bagi_http_run(http_request *request) {
    http_engine *engine = request->engine;
    double due = 0;
    pthread_mutex_lock(&engine->mutex);
    bagi_http_queue(request);
    bagi_http_wake(engine);
    while (request->state == HTTP_WAITING && !request->abandoned) {
        if (request->send)
            pthread_cond_wait(&engine->changed, &engine->mutex);
        else
            request->abandoned = bagi_http_pause(engine, &due) != 0;
    }
    bool abandoned = request->state == HTTP_WAITING;
    int code = abandoned ? EINTR : request->state == HTTP_DONE ? 0 : request->error;
    pthread_mutex_unlock(&engine->mutex);
    return code;
}

/* ---- retries ---- */

/* True if the request's server has ever answered a request, so it is known to exist.
 * Servers whose hashes collide count as one, at worst delaying an error. */
static bool *http_has_answered(const http_request *request) {
    return &request->engine->answered[request->server >> 56];
}

/* True if the server refuses requests because there are too many: the other requests of
 * all processes then rest, too. */
static bool http_is_throttled(const http_request *request, bool states_time) {
    if (request->status != 503 || states_time)
        return request->status == 429 || request->status == 503;
    char *code = bagi_http_code(request->text, request->text_size);
    bool slow = code && (strcmp(code, "SlowDown") == 0 ||
                            strcmp(code, "ServerBusy") == 0); /* S3, Azure */
    free(code);
    return slow;
}

/* True if the server refuses temporary credentials because they have ended. They are
 * then renewed. */
static bool http_keys_have_ended(const http_request *request) {
    aws_credentials *credentials = request->engine->settings.s3.credentials;
    if (!request->is_s3 || !credentials || !request->keys ||
        (request->status != 400 && request->status != 403))
        return false;
    char *code = bagi_http_code(request->text, request->text_size);
    bool ended = code && strcmp(code, "ExpiredToken") == 0;
    free(code);
    if (ended)
        bagi_aws_ended(credentials, request->keys);
    return ended;
}

/* True for a failure that a retry may avoid. `refused`: no connection was made. */
static bool http_may_retry(
    const http_request *request, CURLcode result, bool *refused) {
    long status = request->status;
    *refused = result == CURLE_COULDNT_CONNECT ||
               result == CURLE_COULDNT_RESOLVE_HOST ||
               result == CURLE_SSL_CONNECT_ERROR;
    if (request->error)
        return request->error == EAGAIN;
    if (http_keys_have_ended(request))
        return true;
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

/* Some servers, such as Azure's, do not support ranges from the end: they ignore or
 * refuse them, or fail. Request the first bytes instead. */
static bool http_retry_from_start(http_request *request) {
    long status = request->status;
    if (request->from_start ||
        (request->bytes != HTTP_ENDS && request->bytes != HTTP_NONE))
        return false;
    request->from_start = status == 200 || status == 400 || status == 416 ||
                          status == 501 || (status >= 500 && request->tries > 2);
    if (request->from_start)
        bagi_http_queue(request);
    return request->from_start;
}

/* Queue a failed request again, unless its time is up. A server that has not answered
 * yet may still be starting; waiting does not fix wrong names or certificates. */
static bool http_retry(http_request *request, CURLcode result) {
    http_engine *engine = request->engine;
    bool refused = false;
    double now = http_now(), longest = 6.4, patience = engine->retry_seconds;
    curl_off_t retry_after = 0;
    if (!http_keys_have_ended(request) && http_retry_from_start(request))
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
    engine->random = engine->random * 1664525u + 1013904223u;
    delay *= 0.5 + (double)(engine->random >> 8) / (double)(1u << 25);
    curl_easy_getinfo(request->easy, CURLINFO_RETRY_AFTER, &retry_after);
    if (delay < (double)retry_after)
        delay = (double)retry_after;
    if (now + delay - request->since > patience)
        return false;
    request->not_before = now + delay;
    if (result == CURLE_OK && http_is_throttled(request, retry_after > 0))
        bagi_pace_rest(&engine->pace, request->server, now, delay);
    bagi_http_queue(request);
    return true;
}

/* ---- transfers ---- */

/* Start a queued request. */
static bool http_begin(http_request *request) {
    http_thread *thread = request->thread;
    request->next = thread->active;
    thread->active = request;
    if (!bagi_http_prepare(request))
        return false;
    if (curl_multi_add_handle(thread->multi, request->easy) == CURLM_OK)
        return true;
    request->error = ENOMEM;
    (void)snprintf(request->why, sizeof request->why, "out of memory");
    return false;
}

/* Report that a request has ended and will not be retried. The mutex is held. */
static void http_end(http_request *request, CURLcode result, bool good) {
    if (!good) {
        bagi_http_describe(request, result);
        size_t used = strlen(request->why);
        if (request->tries > 1)
            (void)snprintf(request->why + used, sizeof request->why - used,
                " (%d attempts in %.0f s)", request->tries + 1,
                http_now() - request->since);
    }
    request->engine->ended = true;
    request->state = good ? HTTP_DONE : HTTP_FAILED;
    request->thread->load--;
    if (request->easy)
        curl_easy_getinfo(request->easy, CURLINFO_EFFECTIVE_URL, &request->final_url);
    if (request->ended)
        request->ended(request, good);
}

/* Handle the end of a transfer. */
static void http_finish(http_request *request, CURLcode result) {
    http_engine *engine = request->engine;
    http_thread *thread = request->thread;
    http_request **at = &thread->active;
    curl_off_t received = 0;
    bool repeat = false;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    thread->running--;
    if (request->easy) {
        curl_multi_remove_handle(thread->multi, request->easy);
        curl_easy_getinfo(request->easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
    }
    bool good = bagi_http_complete(request, &result, &repeat);
    pthread_mutex_lock(&engine->mutex);
    engine->requests++;
    engine->received += (uint64_t)received;
    if (request->status)
        *http_has_answered(request) = true;
    bool again = repeat || (!good && http_retry(request, result));
    if (repeat)
        bagi_http_queue(request);
    else if (!again)
        http_end(request, result, good);
    curl_easy_cleanup(request->easy);
    request->easy = NULL;
    if (!again && (request->ended || request->abandoned))
        bagi_http_request_free(request);
    pthread_mutex_unlock(&engine->mutex);
}

/* True if requests to S3 may be signed now. Otherwise the threads are woken later. */
static bool http_can_sign(http_engine *engine) {
    aws_credentials *credentials = engine->settings.s3.credentials;
    return !credentials || bagi_aws_is_ready(credentials);
}

/* Take up to HTTP_STEP due requests from the queue, in order. Returns the milliseconds
 * until the next request is due. The mutex is held. */
static int http_take(http_thread *thread, http_request **taken) {
    size_t most = thread->running + HTTP_STEP;
    double now = http_now(), wait = 1;
    http_request *last = thread->queue, *request = NULL;
    bool asked = false, can_sign = false;
    while (last && last->next)
        last = last->next;
    while (thread->queue && request != last &&
           thread->running < thread->engine->connections_each) {
        if (thread->running == most)
            return 0;
        request = thread->queue;
        thread->queue = request->next;
        if (!thread->queue)
            thread->queue_end = &thread->queue;
        double due = request->not_before - now;
        if (due <= 0 && request->is_s3 && !asked) {
            asked = true;
            can_sign = http_can_sign(thread->engine);
        }
        if (due <= 0 && request->is_s3 && !can_sign)
            due = 1;
        if (due <= 0)
            due = bagi_pace_due(&thread->engine->pace, request->server, now);
        if (due > 0) {
            bagi_http_queue(request);
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

/* libcurl's callback for changes to the socket events that it waits for. Tracking
 * changes avoids collecting hundreds of open sockets each time. */
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

/* Wait up to `wait` ms for sockets, libcurl's timers or the pipe. Then let libcurl
 * continue the transfers that are ready. */
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
        /* Some servers wait for an acknowledgement before they send the end of a
         * response (TCP_CORK, 64 KB packets). Without this they would get it 40 ms
         * later. */
        int on = 1;
        (void)setsockopt(one.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
#endif
        curl_multi_socket_action(thread->multi, one.fd,
            (one.revents & POLLOUT ? CURL_CSELECT_OUT : 0) |
                (one.revents & ~POLLOUT ? CURL_CSELECT_IN : 0),
            &running);
    }
}

/* A thread's main function. It wakes all waiting callers once per round, no matter how
 * many transfers ended in that round. */
static void *http_work(void *user) {
    http_thread *thread = (http_thread *)user;
    http_engine *engine = thread->engine;
    pthread_mutex_lock(&engine->mutex);
    while (!engine->stop) {
        thread->woken = false;
        int left = 0;
        http_request *taken = NULL, *next = NULL;
        CURLMsg *message = NULL;
        int wait = http_take(thread, &taken);
        pthread_mutex_unlock(&engine->mutex);
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
        pthread_mutex_lock(&engine->mutex);
        if (engine->ended)
            pthread_cond_broadcast(&engine->changed);
        engine->ended = false;
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

/* ---- starting and stopping ---- */

bool bagi_http_alive(const http_engine *engine) { return engine->process == getpid(); }

/* Returns false if out of memory. */
static bool http_thread_start(http_engine *engine, http_thread *thread) {
    thread->engine = engine;
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
            (long)engine->connections_each) == CURLM_OK &&
        pthread_create(&thread->id, NULL, http_work, thread) == 0;
    return thread->started;
}

/* Drops requests made in advance that no caller waits for. */
static void http_thread_stop(http_thread *thread) {
    if (thread->started && bagi_http_alive(thread->engine))
        pthread_join(thread->id, NULL);
    while (thread->active || thread->queue) { /* these were requested in advance */
        http_request **list = thread->active ? &thread->active : &thread->queue;
        http_request *request = *list;
        *list = request->next;
        if (request->easy)
            curl_multi_remove_handle(thread->multi, request->easy);
        curl_easy_cleanup(request->easy);
        bagi_http_request_free(request);
    }
    curl_multi_cleanup(thread->multi);
    curl_share_cleanup(thread->share);
    for (int i = 0; i < 2; i++)
        if (thread->wake[i] >= 0)
            close(thread->wake[i]);
    bags_buffer_free(&thread->memory);
}

/* Called when new credentials may be used. */
static void http_keys_changed(void *user) {
    http_engine *engine = (http_engine *)user;
    pthread_mutex_lock(&engine->mutex);
    bagi_http_wake(engine);
    pthread_mutex_unlock(&engine->mutex);
}

/* The most connections by default: for two requests in each of 256 shards, and others
 * next to them. A third of the descriptors that the process may open is left to the
 * program. */
static size_t http_default_connections(void) {
    struct rlimit files;
    const size_t most = 576;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur / 3 * 2 >= most)
        return most;
    return files.rlim_cur < 3 ? 1 : (size_t)(files.rlim_cur / 3 * 2);
}

/* Returns false if out of memory. */
static bool http_set_up(http_engine *engine, const bags_http_options *options) {
    http_settings *settings = &engine->settings;
    char *user =
        options->user ? curl_easy_unescape(NULL, options->user, 0, NULL) : NULL;
    settings->user = http_copy(user);
    curl_free(user);
    settings->query = http_copy(options->query);
    settings->ca_file = http_copy(options->ca_file);
    bagi_s3_settings(&settings->s3, options);
    bagi_http_find_places(settings);
    engine->retry_seconds = options->retry_seconds > 0 ? options->retry_seconds : 50;
    engine->stall_seconds = options->stall_seconds > 0 ? options->stall_seconds : 30;
    if (!bagi_pace_open(&engine->pace, options->requests_per_second))
        return false;
    if (!settings->s3.key && settings->s3.region)
        settings->s3.credentials = bagi_aws_open(settings->s3.region, settings->ca_file,
            engine->stall_seconds < HTTP_SLOWEST ? engine->stall_seconds : HTTP_SLOWEST,
            http_keys_changed, engine);
    engine->connections =
        options->connections ? options->connections : http_default_connections();
    engine->recall = options->recall;
    engine->remember = options->remember;
    engine->cache = options->cache;
    engine->interrupted = options->interrupted;
    engine->interrupted_user = options->interrupted_user;
    /* A program may exit while transfers are running. libcrypto signs them and must not
     * be cleaned up before. */
    if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL) ||
        curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return false;
    const char *tls = curl_version_info(CURLVERSION_NOW)->ssl_version;
    const char *ours = OpenSSL_version(OPENSSL_VERSION); /* "OpenSSL 3.0.1 ..." */
    size_t size = tls ? strlen(tls) : 0;
    engine->is_openssl = size > 8 && strncmp(tls, "OpenSSL/", 8) == 0 &&
                         strncmp(tls + 8, ours + 8, size - 8) == 0 && ours[size] == ' ';
    return settings->s3.region && (settings->s3.key || settings->s3.credentials) &&
           (!options->query || !*options->query || settings->query) &&
           (!options->user || !*options->user || settings->user) &&
           (!options->ca_file || !*options->ca_file || settings->ca_file);
}

bool bagi_http_start(http_engine *engine, const bags_http_options *options) {
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->changed, NULL);
    engine->process = getpid();
    engine->random = (uint32_t)engine->process * 2654435761u;
    if (!http_set_up(engine, options))
        return false;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t count = engine->connections / HTTP_STEP;
    count = count < HTTP_THREADS ? count : HTTP_THREADS;
    count = cores > 0 && (size_t)cores < count ? (size_t)cores : count;
    count = count ? count : 1;
    engine->connections_each = engine->connections / count;
    while (engine->thread_count < count)
        if (!http_thread_start(engine, &engine->threads[engine->thread_count++]))
            return false;
    return true;
}

void bagi_http_stop(http_engine *engine) {
    http_settings *settings = &engine->settings;
    if (bagi_http_alive(engine)) {
        pthread_mutex_lock(&engine->mutex);
        engine->stop = true;
        bagi_http_wake(engine);
        pthread_mutex_unlock(&engine->mutex);
        bagi_aws_stop(settings->s3.credentials);
    }
    for (size_t i = 0; i < engine->thread_count; i++)
        http_thread_stop(&engine->threads[i]);
    pthread_mutex_destroy(&engine->mutex);
    pthread_cond_destroy(&engine->changed);
    char *texts[] = {settings->query, settings->user, settings->ca_file,
        settings->s3.key, settings->s3.secret, settings->s3.token, settings->s3.region,
        settings->s3.endpoint};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    bagi_aws_free(settings->s3.credentials);
    bagi_pace_close(&engine->pace);
}
