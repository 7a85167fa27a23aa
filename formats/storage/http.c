/*
 * http.c - the hooks that read datasets from web servers and object stores. transfer.h
 * describes the engine, and objects.h the state kept for each URL. Requires url.c,
 * aws.c, credentials.c, sources.c, pace.c, request.c, transfer.c, objects.c, known.c,
 * version.c, lookup.c and listing.c; uploads are in s3.c.
 *
 * A bags_http is a bags_io whose paths are URLs:
 *
 *     https://host/ds, http://host/ds    any server that serves ranges
 *     s3://bucket/ds                     S3 and what is compatible with it
 */
#include "objects.h"

#include <unistd.h>

#define HTTP_BLOCK ((uint64_t)16 << 10)   /* small reads are widened to this size */
#define HTTP_GAP ((uint64_t)16 << 10)     /* gaps always read over, */
#define HTTP_GAP_MOST ((uint64_t)1 << 20) /* and if there are very many requests */
#define HTTP_CHUNK ((uint64_t)8 << 20)    /* larger reads are split */
#define HTTP_READ ((uint64_t)64 << 20)    /* most bytes of one read in flight */

/* ---- hooks that look up ---- */

static void http_expect(void *user, const char *path) {
    bags_http *http = (bags_http *)user;
    if (!bags_http_is_url(path) || !bagi_http_alive(&http->engine))
        return;
    pthread_mutex_lock(&http->engine.mutex);
    http_object *object = bagi_http_use(http, path);
    if (object && object->state == HTTP_NEW) {
        bagi_http_look(http, object);
        if (object->state == HTTP_WAITING && bagi_http_is_extra(path) &&
            !http_is_s3(path))
            (void)bagi_http_control(http, path);
    } else if (object && object->used) {
        bagi_http_check(http, object);
    }
    bagi_http_release(http, object);
    bagi_http_wake(&http->engine);
    pthread_mutex_unlock(&http->engine.mutex);
}

static void http_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    bags_http *http = (bags_http *)user;
    size_t length = http_path_size(path);
    if (!bagi_http_alive(&http->engine)) {
        (void)snprintf(text, size, "a bags_http cannot be used after fork");
        return;
    }
    char *listed = bagi_http_format("%.*s/", (int)length, path);
    pthread_mutex_lock(&http->engine.mutex);
    http_object *object = bagi_http_find(http, path, length, false);
    http_object *objects[] = {object, object ? object->record : NULL,
        listed ? bagi_http_find(http, listed, length + 1, false) : NULL};
    for (int i = 2; i >= 0; i--)
        if (objects[i] && objects[i]->why && objects[i]->why_error == error &&
            (error != ENOENT || bagi_http_ends_in(path, HTTP_FILES) ||
                strstr(objects[i]->why, "HTTP 200")))
            (void)snprintf(text, size, "%s", objects[i]->why);
    pthread_mutex_unlock(&http->engine.mutex);
    free(listed);
}

/* Lock the mutex and look up a path's object, unless it is already known. Returns an
 * errno. If *object is NULL, the mutex is not held. Otherwise the object is used until
 * bagi_http_release. */
static int http_enter(bags_http *http, const char *path, http_object **object) {
    int code = bagi_http_refuse_path(http, path);
    if (code) {
        *object = NULL;
        return code;
    }
    pthread_mutex_lock(&http->engine.mutex);
    if (*object)
        (*object)->uses++;
    else
        *object = bagi_http_use(http, path);
    code = bagi_http_wait(http, *object);
    if (!*object)
        pthread_mutex_unlock(&http->engine.mutex);
    return code == EACCES && bagi_http_is_optional(http, path) ? ENOENT : code;
}

/* Opening a file only looks it up: the object is the handle. */
static int http_open(void *user, const char *path, int mode, void **file) {
    bags_http *http = (bags_http *)user;
    http_object *object = NULL;
    int code = mode == BAGS_IO_READ ? http_enter(http, path, &object) : EROFS;
    if (!object)
        return code;
    if (!code)
        code = bagi_http_refuse_page(http, object);
    if (!code && object->record)
        object->record->used = true;
    if (!code && !object->tag && !object->known && object->size > 0)
        http->unversioned = true;
    if (code)
        bagi_http_release(http, object);
    pthread_mutex_unlock(&http->engine.mutex);
    if (!code)
        *file = object;
    return code;
}

/* Check again what is at a path, and wait. Returns an errno. */
static int http_check_again(bags_http *http, http_object *object) {
    http_object *record = object->record ? object->record : object;
    double due = 0;
    while (record->state == HTTP_WAITING)
        if (bagi_http_pause(&http->engine, &due))
            return EINTR;
    if (record != object && record->state == HTTP_DONE) {
        bagi_http_check(http, record);
    } else if (record != object) { /* it belongs to no shard */
        record = object;
        if (!object->checks)
            bagi_http_check_object(http, object, object);
    }
    int code = bagi_http_wait_checks(http, record);
    if (code == EINTR || !record->grown)
        return code;
    int none = bagi_http_wait(http, bagi_http_control(http, record->path));
    if (!none || none == EINTR)
        return none ? none : code;
    bagi_http_changed(record);
    return ESTALE;
}

/* An open file is identified by its lookup, a spec.json by its shard's last check. */
static int http_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    bags_http *http = (bags_http *)user;
    http_object *object = (http_object *)file;
    int code = http_enter(http, path, &object);
    if (!object)
        return code;
    if (!code && !file)
        code = http_check_again(http, object);
    if (file && !object->record && object->error == ESTALE)
        code = ESTALE; /* bytes already read are from another version */
    else if (code == ESTALE && !object->record && !object->grown && !object->known)
        code = 0; /* it has changed since the file was opened */
    if (!code)
        *identity = object->identity;
    bagi_http_release(http, object);
    pthread_mutex_unlock(&http->engine.mutex);
    return code;
}

static int http_close(void *user, void *file) {
    bags_http *http = (bags_http *)user;
    if (!bagi_http_alive(&http->engine))
        return 0;
    pthread_mutex_lock(&http->engine.mutex);
    bagi_http_release(http, (http_object *)file);
    pthread_mutex_unlock(&http->engine.mutex);
    return 0;
}

static int http_size(void *user, void *file, uint64_t *size) {
    bags_http *http = (bags_http *)user;
    pthread_mutex_lock(&http->engine.mutex);
    *size = ((http_object *)file)->size;
    pthread_mutex_unlock(&http->engine.mutex);
    return 0;
}

/* ---- hooks that read ---- */

/* Bytes that are neither in memory nor requested. */
typedef struct http_want {
    struct http_object *object;
    uint64_t start, stop;
    bool waits; /* the call waits for these bytes; false: they are read ahead */
} http_want;

/* The parts that a call waits for. They are not dropped before the call ends. */
typedef struct http_call {
    bags_buffer memory;
    http_part **parts;
    size_t count;
} http_call;

/* Register this call as a user of a part, until http_call_end. */
static bool http_call_add(http_call *call, http_part *part) {
    if (bags_buffer_reserve(
            &call->memory, (call->count + 1) * sizeof(http_part *), NULL))
        return false;
    call->parts = (http_part **)(void *)call->memory.data;
    part->users++;
    call->parts[call->count++] = part;
    return true;
}

/* Add the parts that cover the start of this range. Returns where their coverage ends:
 * `stop` if they cover it all. */
static uint64_t http_cover(bags_http *http, http_call *call, const http_object *object,
    uint64_t start, uint64_t stop) {
    while (start < stop) {
        http_part *part = bagi_http_part_find(object, start);
        if (!part || !http_call_add(call, part))
            return start;
        bagi_http_part_use(http, part);
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

/* Called when the request for a part has ended. */
static void http_part_arrived(http_request *request, bool good) {
    http_part *part = (http_part *)request->user;
    http_object *object = part->object;
    bags_http *http = (bags_http *)request->engine->user;
    bool first = object->known && !object->adopted;
    if (good && bagi_http_adopt(http, object, request)) {
        if (first)
            bagi_http_answered(http, object);
        /* Refs are checked together with the Bags they refer to. */
        if (first && object->bag < object->known->catalogue.fields)
            bagi_http_check_known(http, object->record);
        bagi_http_wake(&http->engine);
        bagi_http_part_fill(part, request);
        if (object->error != ESTALE)
            object->error = 0;
    } else {
        part->state = HTTP_FAILED;
        bagi_http_fail_known(object, request->error, request->why);
    }
}

/* Request a part. */
static void http_request_part(bags_http *http, http_part *part) {
    http_object *object = part->object;
    http_request *request = bagi_http_request_new(
        &http->engine, object->path, false, object->in_dataset, NULL);
    if (!request) {
        part->state = HTTP_FAILED;
        bagi_http_fail(object, ENOMEM, "out of memory");
        return;
    }
    request->bytes = HTTP_RANGE;
    request->start = part->start;
    request->stop = part->stop;
    request->object_size = object->size;
    request->object_tag = object->tag;
    request->any_tag = object->known && !object->adopted;
    request->ended = http_part_arrived;
    request->user = part;
    bagi_http_queue(request);
}

/* Request the bytes from the first want's start to `stop`, in pieces that are
 * transferred in parallel. */
static void http_request_bytes(
    bags_http *http, http_call *call, const http_want *first, uint64_t stop) {
    http_object *object = first->object;
    uint64_t at = first->start, size = object->size;
    if (stop - at < HTTP_GAP) { /* the neighbouring bytes are likely to be read soon */
        at -= at % HTTP_BLOCK;
        stop += (HTTP_BLOCK - stop % HTTP_BLOCK) % HTTP_BLOCK;
        stop = stop < size ? stop : size;
    }
    for (uint64_t end; at < stop; at = end) {
        end = stop - at < HTTP_CHUNK ? stop : at + HTTP_CHUNK;
        if (!first->waits && !bagi_http_make_room(http, http_cost(at, end)))
            return;
        http_part *part = bagi_http_part_new(http, object, at, end);
        if (!part)
            return;
        if (first->waits && !http_call_add(call, part)) {
            bagi_http_part_free(http, part);
            return;
        }
        http_request_part(http, part);
    }
}

/* True if a request from the want `at` up to `stop` should include the next want as
 * well. Bytes that are only read ahead must not delay bytes that a call waits for. */
static bool http_joins(
    const http_want *at, const http_want *next, uint64_t stop, uint64_t gap) {
    return next->object == at->object && next->waits == at->waits &&
           (next->start <= stop || next->start - stop <= gap) &&
           next->stop - at->start <= HTTP_CHUNK;
}

/* Choose the largest gap to read over. It is as small as possible while the requests
 * stay within a third of the connections, unless more bytes would be read over than are
 * wanted. */
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
        if (requests <= http->engine.connections / 3)
            return gap;
    }
}

/* Request these bytes, combining neighbours into one request. */
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

/* Copy the bytes that have arrived into a read's buffer. */
static void http_copy_read(bags_io_read *read) {
    const http_object *object = (http_object *)read->file;
    unsigned char *data = (unsigned char *)read->data;
    while (read->done < read->size) {
        uint64_t at = read->offset + read->done;
        const http_part *part = bagi_http_part_find(object, at);
        if (!part || part->state != HTTP_DONE)
            return;
        size_t rest = read->size - read->done;
        size_t step = part->stop - at < rest ? (size_t)(part->stop - at) : rest;
        memcpy(data + read->done, part->data.data + (at - part->start), step);
        read->done += step;
    }
}

/* Drop failed parts, so that the next call requests them again. */
static void http_call_end(bags_http *http, http_call *call) {
    for (size_t i = 0; i < call->count; i++) {
        http_part *part = call->parts[i];
        if (--part->users == 0 && part->state == HTTP_FAILED)
            bagi_http_part_free(http, part);
    }
    bags_buffer_free(&call->memory);
    bagi_http_make_room(http, 0);
}

/* Read ahead of sequential reads, twice as far each time. Returns false if there is
 * nothing to read yet. Small reads elsewhere, such as of a Bag's table, do not end the
 * sequence. */
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
    if (object->window == 0) { /* two reads may be adjacent by chance */
        object->window = 2 * HTTP_TAIL;
        return false;
    }
    uint64_t window = object->window < HTTP_CHUNK ? 2 * object->window : HTTP_CHUNK;
    want->waits = false;
    want->start = object->ahead > stop ? object->ahead : stop;
    want->stop =
        object->size - want->start > window ? want->start + window : object->size;
    /* Wait until half of the read-ahead has been used. */
    if (want->start >= want->stop || want->start - stop > window / 2)
        return false;
    object->window = window;
    object->ahead = want->stop;
    return true;
}

/* For a read of an entry of refs.bag's table: the likely range of its row, to be
 * requested together with the entry. Returns false if there is nothing to request; then
 * *want is unchanged. */
static bool http_guess_row(const bags_io_read *read, http_want *want) {
    const http_object *object = want->object;
    const catalogue_view *of = object->known ? &object->known->catalogue : NULL;
    if (!of || object->bag != of->fields || read->size > 16)
        return false;
    uint64_t table = catalogue_table(of, object->shard, object->bag);
    uint64_t index = read->offset < table ? UINT64_MAX : (read->offset - table) / 8;
    if (index >= catalogue_length(of, object->shard, of->fields))
        return false;
    uint64_t start = 0, stop = 0;
    catalogue_guess_row(of, object->shard, index, &start, &stop);
    if (bagi_http_part_find(object, start + (stop - start) / 2))
        return false;
    want->start = start;
    want->stop = stop;
    want->waits = false;
    return true;
}

/*
 * Every read (single or batched) and every announcement takes this path:
 *     http_cover        find the parts in memory or requested
 *     http_read_ahead   request the expected next reads
 *     http_request_all  request the rest, neighbours together
 *     wait              for the parts that a read needs
 *     http_copy_read    copy from the parts
 *
 * The mutex is held, except while it waits.
 */
static int http_read(bags_http *http, bags_io_read *reads, size_t count) {
    http_call call;
    size_t wanted = 0;
    bool wait = false; /* true if any read must wait */
    int code = 0;
    if (!bagi_http_alive(&http->engine))
        return EIO;
    http_want *wants = (http_want *)malloc((2 * count + 1) * sizeof *wants);
    if (!wants)
        return ENOMEM;
    memset(&call, 0, sizeof call);
    pthread_mutex_lock(&http->engine.mutex);
    for (size_t i = 0; i < count; i++) {
        bags_io_read *read = &reads[i];
        http_object *object = (http_object *)read->file;
        http_want want = {object, read->offset, object->size, read->data != NULL};
        wait = wait || read->data;
        uint64_t most = read->size < HTTP_READ ? read->size : HTTP_READ;
        if (bagi_http_read_known(read))
            continue;
        if (want.start >= want.stop || most == 0)
            continue;
        if (want.stop - want.start > most)
            want.stop = want.start + most;
        bool failed = bagi_http_rests(object, 1);
        want.start = http_cover(http, &call, object, want.start, want.stop);
        bool missing = want.start < want.stop;
        if (missing && !failed)
            wants[wanted++] = want; /* after a failure, do not wait again */
        want.start = read->offset;
        if (want.waits && !failed &&
            ((missing && http_guess_row(read, &want)) || http_read_ahead(http, &want)))
            wants[wanted++] = want;
    }
    http_request_all(http, &call, wants, wanted);
    bagi_http_wake(&http->engine);
    double due = 0;
    for (size_t i = 0; wait && i < call.count; i++)
        while (!code && call.parts[i]->state == HTTP_WAITING)
            code = bagi_http_pause(&http->engine, &due);
    for (size_t i = 0; i < count; i++)
        if (reads[i].data && ((http_object *)reads[i].file)->error != ESTALE)
            http_copy_read(&reads[i]);
    http_call_end(http, &call);
    pthread_mutex_unlock(&http->engine.mutex);
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
    if (!bagi_http_alive(&http->engine))
        return EIO;
    if (offset >= object->size) /* `size` does not change, so no lock is needed */
        return 0;
    int code = http_read(http, &read, 1);
    *done = read.done;
    if (read.done || code)
        return read.done ? 0 : code;
    pthread_mutex_lock(&http->engine.mutex);
    int error = object->error;
    pthread_mutex_unlock(&http->engine.mutex);
    return error ? error : EIO;
}

/* ---- opening and closing ---- */

void bags_http_close(bags_http *http) {
    if (!http)
        return;
    bagi_http_stop(&http->engine);
    bagi_http_free_objects(http);
    bagi_http_free_known(http);
    free(http);
}

bags_http *bags_http_open(const bags_http_options *options, bags_error *err) {
    bags_http_options none;
    memset(&none, 0, sizeof none);
    options = options ? options : &none;
    if (options->retry_seconds < 0 || options->stall_seconds < 0 ||
        options->requests_per_second < 0 || options->connections > 65535 ||
        (options->key && !options->secret) ||
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
    http->io.user = http;
    http->io.open = http_open;
    http->io.close = http_close;
    http->io.size = http_size;
    http->io.read_at = http_read_at;
    http->io.kind = bagi_http_kind;
    http->io.list = bagi_http_list;
    http->io.read_many = http_read_many;
    http->io.expect = http_expect;
    http->io.explain = http_explain;
    http->io.identify = http_identify;
    http->engine.user = http;
    http->no_read_ahead = options->no_read_ahead;
    http->no_catalogue = options->no_catalogue;
    http->cache_size = options->cache_size ? options->cache_size : (uint64_t)256 << 20;
    http->part_size = options->part_size ? options->part_size : (uint64_t)64 << 20;
    if (bagi_http_start(&http->engine, options))
        return http;
    bags_fail(err, BAGS_ERROR_MEMORY, "out of memory, or of threads (bags_http_open)");
    bags_http_close(http);
    return NULL;
}

const bags_io *bags_http_io(const bags_http *http) { return &http->io; }

bool bags_http_is_versioned(bags_http *http) {
    pthread_mutex_lock(&http->engine.mutex);
    bool versioned = !http->unversioned;
    pthread_mutex_unlock(&http->engine.mutex);
    return versioned;
}

void bags_http_counts(bags_http *http, uint64_t *requests, uint64_t *bytes) {
    pthread_mutex_lock(&http->engine.mutex);
    *requests = http->engine.requests;
    *bytes = http->engine.received;
    pthread_mutex_unlock(&http->engine.mutex);
}
