/*
 * lookup.c - finds out whether a URL exists with one request for its last bytes.
 */
#include "objects.h"

#define HTTP_DICT ((size_t)112 << 10)    /* bytes fetched of a dictionary: all of it, */
#define HTTP_ZIP ((size_t)1 << 20)       /* of a zip: usually its entire directory, */
#define HTTP_CATALOGUE ((size_t)8 << 20) /* and of a catalogue: usually all of it */

/* True if the server redirected to the same path plus a slash, so the path is a
 * directory. */
static bool http_is_redirected(const http_request *request) {
    const char *from = request->url, *to = request->final_url;
    if (!to || strlen(to) < 8)
        return false;
    from += 8 + strcspn(from + 8, "/?");
    to += 8 + strcspn(to + 8, "/?");
    size_t size = strcspn(from, "?");
    return strncmp(from, to, size) == 0 && to[size] == '/' &&
           (!to[size + 1] || strchr("?#", to[size + 1]));
}

/* Called when a lookup has succeeded: its bytes are the object's last ones, or its
 * first. */
static void http_found(bags_http *http, http_request *request, http_object *object) {
    size_t size = request->final_url ? strcspn(request->final_url, "?#") : 0;
    if (size && request->final_url[size - 1] == '/') {
        object->state = HTTP_FAILED;
        bagi_http_fail(object, ENOENT, "a directory");
        return;
    }
    object->state = HTTP_DONE;
    free(object->tag);
    object->tag = http_copy(bagi_http_tag(request));
    object->identity = bagi_http_identity(request);
    object->is_html = request->is_html;
    object->size = object->identity.size;
    http->engine.from_start = http->engine.from_start || request->from_start;
    uint64_t start = request->status == 206 ? request->first : 0;
    http_part *part = request->size > 0 ? bagi_http_part_new(http, object, start,
                                              start + request->size)
                                        : NULL;
    if (part)
        bagi_http_part_fill(part, request);
    if (object->error != ESTALE)
        object->error = 0;
}

/* Called when a lookup has ended. */
static void http_looked_up(http_request *request, bool good) {
    bags_http *http = (bags_http *)request->engine->user;
    http_object *object = (http_object *)request->user;
    bagi_http_answered(http, object);
    object->is_directory = http_is_redirected(request);
    if (good) {
        http_found(http, request, object);
    } else {
        object->state = HTTP_FAILED;
        bagi_http_fail(object, request->error, request->why);
    }
}

/* Request an object's last bytes. Returns false if out of memory. */
static bool http_request_lookup(bags_http *http, http_object *object) {
    http_request *request = bagi_http_request_new(
        &http->engine, object->path, false, object->in_dataset, NULL);
    if (!request)
        return false;
    request->bytes = HTTP_ENDS;
    request->first_size = bagi_http_ends_in(object->path, ".dict ") ? HTTP_DICT
                          : http_is_catalogue(object->path)         ? HTTP_CATALOGUE
                                                                    : HTTP_TAIL;
    request->last_size =
        bagi_http_ends_in(object->path, ".zip ") ? HTTP_ZIP : request->first_size;
    request->from_start = http->engine.from_start;
    request->path = object->path;
    request->ended = http_looked_up;
    request->user = object;
    bagi_http_queue(request);
    return true;
}

void bagi_http_look(bags_http *http, http_object *object) {
    bool again = object->state == HTTP_FAILED && object->error != ENOENT &&
                 object->error != EACCES && !bagi_http_rests(object, HTTP_FORGET);
    if (object->state != HTTP_NEW && !again)
        return;
    if (object->state == HTTP_NEW && bagi_http_find_known(http, object))
        return;
    if (object->state == HTTP_NEW &&
        bagi_http_is_unlisted(http, object->path, strlen(object->path))) {
        object->state = HTTP_FAILED;
        bagi_http_fail(object, ENOENT, "not in the server's list");
        return;
    }
    bagi_http_begin_version(http, object);
    object->state = HTTP_WAITING;
    if (!http_request_lookup(http, object)) {
        object->state = HTTP_FAILED;
        bagi_http_fail(object, ENOMEM, "out of memory");
    }
    bagi_http_asked(http, object);
}

http_object *bagi_http_look_in(
    bags_http *http, const char *directory, const char *name) {
    http_object *object = bagi_http_find_printed(
        http, "%.*s/%s", (int)http_path_size(directory), directory, name);
    if (!object)
        return NULL;
    object->uses++;
    bagi_http_look(http, object);
    return object;
}

int bagi_http_wait(bags_http *http, http_object *object) {
    if (!object)
        return ENOMEM;
    bagi_http_look(http, object);
    double due = 0;
    if (object->state == HTTP_WAITING)
        bagi_http_wake(&http->engine);
    while (object->state == HTTP_WAITING)
        if (bagi_http_pause(&http->engine, &due))
            return EINTR;
    return object->state == HTTP_DONE ? 0 : object->error;
}
