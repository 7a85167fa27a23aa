/*
 * objects.c - the state of each URL that http.c uses, and its bytes in memory. All
 * functions expect the mutex to be held.
 */
#include "objects.h"

#include "files.h"

#include <stdarg.h>

/* ---- parts ---- */

/*
 * Parts are kept in two orders: per object, sorted by start, to find a byte; and in one
 * list of all parts, sorted by last use. The oldest parts are dropped:
 *
 *     newest <-> ... <-> oldest      part->older, part->newer
 *
 * A part is never dropped while a request is fetching it (HTTP_WAITING) or a call is
 * counted in `users`.
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

void bagi_http_part_use(bags_http *http, http_part *part) {
    http_part_unlink(http, part);
    http_part_link(http, part);
}

/* Count the object's parts that start before `offset`. */
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

void bagi_http_part_free(bags_http *http, http_part *part) {
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

bool bagi_http_make_room(bags_http *http, uint64_t size) {
    uint64_t most = size < http->cache_size ? http->cache_size - size : 0;
    for (http_part *part = http->oldest, *newer; part && http->cached > most;
         part = newer) {
        newer = part->newer;
        if (part->users == 0 && part->state != HTTP_WAITING)
            bagi_http_part_free(http, part);
    }
    return http->cached <= most;
}

http_part *bagi_http_part_new(
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
    bagi_http_make_room(http, http_cost(start, stop));
    http_part **at = http_parts(object) + http_parts_before(object, start);
    memmove(at + 1, at, (size_t)(http_parts(object) + object->count - at) * sizeof *at);
    *at = part;
    object->count++;
    http->cached += http_cost(start, stop);
    http_part_link(http, part);
    return part;
}

http_part *bagi_http_part_find(const http_object *object, uint64_t offset) {
    http_part *found = NULL;
    for (size_t i = http_parts_before(object, offset + 1); i > 0; i--) {
        http_part *part = http_parts(object)[i - 1];
        if (offset - part->start >= object->longest)
            break; /* earlier parts end before the offset, too */
        if (offset >= part->stop || part->state == HTTP_FAILED)
            continue;
        if (part->state == HTTP_DONE)
            return part;
        found = part;
    }
    return found;
}

void bagi_http_part_fill(http_part *part, http_request *request) {
    part->data = request->body;
    part->state = HTTP_DONE;
    memset(&request->body, 0, sizeof request->body);
}

/* ---- objects ---- */

/* Double the number of buckets, a power of two. If out of memory, the lists get
 * longer. */
static void http_grow(bags_http *http) {
    size_t count = http->buckets ? 2 * http->buckets : 1024;
    http_object **grown = (http_object **)calloc(count, sizeof *grown);
    if (!grown)
        return;
    for (size_t i = 0; i < http->buckets; i++)
        for (http_object *object = http->objects[i], *next; object; object = next) {
            uint64_t hash = format_hash(0, object->path, strlen(object->path));
            http_object **first = &grown[hash & (count - 1)];
            next = object->next;
            object->next = *first;
            *first = object;
        }
    free(http->objects);
    http->objects = grown;
    http->buckets = count;
}

/* An object that was requested is never freed before bags_http_close: hooks keep
 * pointers to it, and a name that was found or missing must not be requested again. */
http_object *bagi_http_find(
    bags_http *http, const char *path, size_t size, bool create) {
    if (create && http->object_count >= http->buckets)
        http_grow(http);
    if (http->buckets == 0)
        return NULL;
    uint64_t hash = format_hash(0, path, size);
    http_object **first = &http->objects[hash & (http->buckets - 1)];
    for (http_object *object = *first; object; object = object->next)
        if (strncmp(object->path, path, size) == 0 && !object->path[size])
            return object;
    http_object *object = create ? (http_object *)calloc(1, sizeof *object) : NULL;
    if (object)
        object->path = bagi_http_format("%.*s", (int)size, path);
    if (!object || !object->path) {
        free(object);
        return NULL;
    }
    object->next = *first;
    *first = object;
    http->object_count++;
    return object;
}

http_object *bagi_http_use(bags_http *http, const char *path) {
    http_object *object = bagi_http_find(http, path, http_path_size(path), true);
    if (object)
        object->uses++;
    return object;
}

http_object *bagi_http_find_printed(bags_http *http, const char *format, ...) {
    char *path = NULL;
    va_list arguments;
    va_start(arguments, format);
    int size = vasprintf(&path, format, arguments);
    va_end(arguments);
    http_object *object =
        size < 0 ? NULL : bagi_http_find(http, path, (size_t)size, true);
    free(size < 0 ? NULL : path);
    return object;
}

http_object *bagi_http_record(bags_http *http, const http_object *object) {
    const char *name = strrchr(object->path, '/') + 1;
    if (!*name || !strcmp(name, "spec.json") || !strcmp(name, HTTP_CONTROL))
        return NULL;
    return bagi_http_find_printed(
        http, "%.*sspec.json", (int)(name - object->path), object->path);
}

void bagi_http_fail(http_object *object, int error, const char *why) {
    free(object->why);
    object->why = http_copy(why);
    object->why_error = error;
    object->error = error;
    object->when = http_now();
}

bool bagi_http_rests(const http_object *object, double seconds) {
    return object->error == ESTALE ||
           (object->error && http_now() - object->when < seconds);
}

/* Only plain names are decided here: others may be listed in an unknown encoding. */
bool bagi_http_is_unlisted(bags_http *http, const char *path, size_t size) {
    size_t start = size;
    while (path[start - 1] != '/')
        start--;
    const char *name = path + start;
    const http_object *listing = bagi_http_find(http, path, start, false);
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

int bagi_http_refuse_path(const bags_http *http, const char *path) {
    return !bags_http_is_url(path) ? EINVAL : bagi_http_alive(&http->engine) ? 0 : EIO;
}

static void http_object_free(http_object *object) {
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

void bagi_http_forget(bags_http *http, http_object *object) {
    uint64_t hash = format_hash(0, object->path, strlen(object->path));
    http_object **at = &http->objects[hash & (http->buckets - 1)];
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
    http->object_count--;
    http_object_free(object);
}

void bagi_http_free_objects(bags_http *http) {
    for (size_t i = 0; i < http->buckets; i++)
        for (http_object *object = http->objects[i], *next; object; object = next) {
            next = object->next;
            http_object_free(object);
        }
    free(http->objects);
}
