/*
 * credentials.c - keeps temporary AWS credentials, and renews them before they end.
 * credentials.h draws the states. One thread searches, while requests use the old
 * credentials as long as these are valid; if none are, requests wait in their queue.
 */
#include "credentials.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#define AWS_EARLY 300.0 /* seconds before their end, credentials are renewed, */
#define AWS_ATTEMPTS 3  /* how often a search is tried while failures may pass */
#define AWS_REST 1.0    /* seconds between a failed search and the next */

struct aws_credentials {
    char *variables[AWS_VARIABLES];
    const char *region, *ca_file;
    double slowest;
    void (*changed)(void *user);
    void *user;
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t wake;
    pthread_t thread;
    bool started, wanted, stop;
    bool found; /* `keys` are from a search */
    aws_keys keys;
    uint64_t number;       /* of `keys`: 1, 2, ... */
    double until, renewed; /* when they end, and when to renew them: http_now's clock */
    bool failed;           /* the last search */
    double rests;          /* then no other starts before this time */
    char why[256];
};

void bagi_aws_keys_free(aws_keys *keys) {
    free(keys->key);
    free(keys->secret);
    free(keys->token);
    memset(keys, 0, sizeof *keys);
}

static double aws_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool aws_is_stopped(void *user) {
    aws_credentials *all = (aws_credentials *)user;
    pthread_mutex_lock(&all->mutex);
    bool stop = all->stop;
    pthread_mutex_unlock(&all->mutex);
    return stop;
}

/* Wait for some seconds, unless the search is stopped. */
static void aws_rest(aws_credentials *all, double seconds) {
    double until = aws_clock(CLOCK_REALTIME) + seconds;
    struct timespec due;
    due.tv_sec = (time_t)until;
    due.tv_nsec = (long)((until - (double)due.tv_sec) * 1e9);
    pthread_mutex_lock(&all->mutex);
    int code = 0;
    while (!all->stop && !code)
        code = pthread_cond_timedwait(&all->wake, &all->mutex, &due);
    pthread_mutex_unlock(&all->mutex);
}

/* Use the result of a search. The service decides if credentials are valid, since the
 * clocks may differ, so new ones are used for at least a second. The mutex is held. */
static void aws_install(aws_credentials *all, aws_search *search, bool good) {
    double now = aws_clock(CLOCK_MONOTONIC);
    all->failed = !good;
    all->rests = now + AWS_REST;
    if (!good) {
        memcpy(all->why, search->why, sizeof all->why);
        return;
    }
    double left = search->keys.ends - aws_clock(CLOCK_REALTIME);
    bool ends = search->keys.key && search->keys.ends > 0;
    bagi_aws_keys_free(&all->keys);
    all->keys = search->keys;
    memset(&search->keys, 0, sizeof search->keys);
    all->found = true;
    all->number++;
    left = left > 1 ? left : 1;
    all->until = ends ? now + left : HUGE_VAL;
    all->renewed =
        ends ? now + (left > 2 * AWS_EARLY ? left - AWS_EARLY : left / 2) : HUGE_VAL;
}

/* The main function of the thread that searches. */
static void *aws_work(void *user) {
    aws_credentials *all = (aws_credentials *)user;
    pthread_mutex_lock(&all->mutex);
    while (!all->stop) {
        if (!all->wanted) {
            pthread_cond_wait(&all->wake, &all->mutex);
            continue;
        }
        pthread_mutex_unlock(&all->mutex);
        aws_search search;
        bool good = false, again = true;
        for (int i = 0; again && i < AWS_ATTEMPTS; i++) {
            memset(&search, 0, sizeof search);
            search.variables = all->variables;
            search.region = all->region;
            search.ca_file = all->ca_file;
            search.slowest = all->slowest;
            search.stopped = aws_is_stopped;
            search.user = all;
            if (i > 0)
                aws_rest(all, i * 0.3);
            good = bagi_aws_search(&search);
            again = !good && search.temporary && !aws_is_stopped(all);
        }
        pthread_mutex_lock(&all->mutex);
        aws_install(all, &search, good);
        all->wanted = false;
        pthread_mutex_unlock(&all->mutex);
        bagi_aws_keys_free(&search.keys);
        all->changed(all->user);
        pthread_mutex_lock(&all->mutex);
    }
    pthread_mutex_unlock(&all->mutex);
    return NULL;
}

static bool aws_is_usable(const aws_credentials *all, double now) {
    return all->found && now < all->until;
}

bool bagi_aws_is_ready(aws_credentials *all) {
    pthread_mutex_lock(&all->mutex);
    double now = aws_clock(CLOCK_MONOTONIC);
    bool usable = aws_is_usable(all, now), ready = true;
    bool rests = (all->failed && now < all->rests) || all->stop;
    if ((!usable || now >= all->renewed) && !rests) {
        if (!all->started)
            all->started = pthread_create(&all->thread, NULL, aws_work, all) == 0;
        ready = usable;
        if (all->started) {
            all->wanted = true;
            pthread_cond_signal(&all->wake);
        } else {
            all->failed = ready = true;
            all->rests = now + AWS_REST;
            (void)snprintf(
                all->why, sizeof all->why, "no thread to search for AWS credentials");
        }
    }
    pthread_mutex_unlock(&all->mutex);
    return ready;
}

bool bagi_aws_get(aws_credentials *all, aws_keys *out, uint64_t *number, char *why) {
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&all->mutex);
    const aws_keys *keys = &all->keys;
    bool failed = all->failed && !aws_is_usable(all, aws_clock(CLOCK_MONOTONIC));
    bool good = all->found && !failed;
    if (!good)
        memcpy(why, all->why, sizeof all->why);
    if (good && keys->key) {
        *number = all->number;
        out->key = http_copy(keys->key);
        out->secret = http_copy(keys->secret);
        out->token = http_copy(keys->token);
        good = out->key && out->secret && (out->token || !keys->token);
        if (!good)
            (void)snprintf(why, sizeof all->why, "out of memory");
    }
    pthread_mutex_unlock(&all->mutex);
    if (!good)
        bagi_aws_keys_free(out);
    return good;
}

void bagi_aws_ended(aws_credentials *all, uint64_t number) {
    pthread_mutex_lock(&all->mutex);
    if (all->number == number)
        all->until = all->renewed = 0;
    pthread_mutex_unlock(&all->mutex);
}

/* ---- opening and closing ---- */

/* Copy the variables. Returns false if out of memory. */
static bool aws_copy_variables(char *out[AWS_VARIABLES]) {
    static const char *const names[AWS_VARIABLES] = {"HOME", "AWS_PROFILE",
        "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"};
    for (int i = 0; i < AWS_VARIABLES; i++) {
        const char *value = getenv(names[i]);
        out[i] = http_copy(value);
        if (value && *value && !out[i])
            return false;
    }
    return true;
}

aws_credentials *bagi_aws_open(const char *region, const char *ca_file, double slowest,
    void (*changed)(void *user), void *user) {
    aws_credentials *all = (aws_credentials *)calloc(1, sizeof *all);
    if (!all)
        return NULL;
    pthread_mutex_init(&all->mutex, NULL);
    pthread_cond_init(&all->wake, NULL);
    all->region = region;
    all->ca_file = ca_file;
    all->slowest = slowest;
    all->changed = changed;
    all->user = user;
    if (aws_copy_variables(all->variables))
        return all;
    bagi_aws_free(all);
    return NULL;
}

void bagi_aws_stop(aws_credentials *all) {
    if (!all)
        return;
    pthread_mutex_lock(&all->mutex);
    all->stop = true;
    bool started = all->started;
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->mutex);
    if (started)
        pthread_join(all->thread, NULL);
}

void bagi_aws_free(aws_credentials *all) {
    if (!all)
        return;
    bagi_aws_keys_free(&all->keys);
    for (int i = 0; i < AWS_VARIABLES; i++)
        free(all->variables[i]);
    pthread_mutex_destroy(&all->mutex);
    pthread_cond_destroy(&all->wake);
    free(all);
}
