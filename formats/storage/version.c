/*
 * version.c - checks whether a shard's files have changed since they were opened;
 * http_checked decides. All functions expect the mutex to be held.
 *
 * A shard's files belong to one version if its spec.json did not change between the
 * first and the last file lookup. A check requests, in the same round trip as the
 * reads:
 *
 *     spec.json                if a file next to it was looked up since the last check
 *     files requested before   until they match spec.json's version: refs.bag is
 *     spec.json was found      requested together with it
 *     the next shard's         if it was missing: when a longer dataset replaces this
 *     spec.json                one during the open, its end would be missing
 *
 * If ETags are content hashes, or Last-Modified is missing, two versions may have
 * identical spec.json files. A check then requests all files, and is due after a lookup
 * in any shard. It skips the last file looked up if no other lookup was answered after
 * that one began. Not all hashes are recognized, but rewriting a file changes its
 * Last-Modified, if any.
 */
#include "objects.h"

#include "files.h"

/* True if two versions of a spec.json may look identical. */
static bool http_hides_change(const http_object *record) {
    return record->identity.time == http_hash("") ||
           record->identity.time == record->identity.inode ||
           bagi_http_is_hash(record->tag);
}

void bagi_http_changed(http_object *record) {
    record->identity.device++;
    bagi_http_fail(record, ESTALE,
        record->grown ? "a shard was added meanwhile; open the dataset again"
                      : "replaced or removed while open; open the dataset again");
}

/* A check has failed and must be requested again. */
static void http_fail_check(http_object *record, int error, const char *why) {
    record->asked = 0;
    bagi_http_fail(record, error, why);
}

/* True if the object being checked is the spec.json of the next shard. */
static bool http_is_end(const http_object *record, const http_object *object) {
    return object != record && object->record != record;
}

/* Called when a check of an object has ended. */
static void http_checked(http_request *request, bool good) {
    http_object *object = (http_object *)request->user;
    http_object *record = (http_object *)request->also;
    int error = request->error;
    bool changed = good || error == ENOENT || error == ESTALE;
    bool end = http_is_end(record, object);
    record->checks--;
    if (end) {
        record->grown = record->grown || (good && !request->is_html);
        changed = false;
        good = good || error == ENOENT || error == EACCES;
    } else if (good) {
        bags_identity found = bagi_http_identity(request);
        changed = !format_is_same(&found, &object->identity);
        object->early = object->early && changed;
    }
    if (changed) {
        bagi_http_changed(record);
    } else if (!good && record->error != ESTALE) {
        http_fail_check(record, error, request->why);
    }
}

void bagi_http_check_object(bags_http *http, http_object *record, http_object *object) {
    http_request *request = bagi_http_request_new(
        &http->engine, object->path, false, object->in_dataset, NULL);
    if (!request) {
        http_fail_check(record, ENOMEM, "out of memory");
        return;
    }
    request->bytes = HTTP_NONE;
    request->from_start = http->engine.from_start;
    request->ended = http_checked;
    request->user = object;
    object->uses++; /* never released */
    request->also = record;
    if (http->engine.recall && object->tag) {
        (void)snprintf(
            request->known.tag, sizeof request->known.tag, "%s", object->tag);
        request->known.size = object->size;
        request->timed = object->identity.time != http_hash("");
    }
    bagi_http_queue(request);
    record->checks++;
}

/* Check the next shard's spec.json again, if it was missing. */
static void http_check_end(bags_http *http, http_object *record) {
    const char *end = strrchr(record->path, '/'), *start = end;
    while (start[-1] >= '0' && start[-1] <= '9')
        start--;
    if (start == end || end - start > 18 || start[-1] != '/')
        return;
    char *path = bagi_http_format("%.*s%0*llu/spec.json", (int)(start - record->path),
        record->path, (int)(end - start), strtoull(start, NULL, 10) + 1);
    size_t front = path ? (size_t)(strrchr(path, '/') - path) : 0;
    bool unlisted = path && bagi_http_is_unlisted(http, path, front);
    http_object *object =
        path ? bagi_http_find(http, path, strlen(path), unlisted) : NULL;
    if (!path || (unlisted && !object))
        http_fail_check(record, ENOMEM, "out of memory");
    else if (object && (unlisted || object->state == HTTP_FAILED))
        bagi_http_check_object(http, record, object);
    free(path);
}

void bagi_http_check(bags_http *http, http_object *record) {
    if (record->known) {
        bagi_http_check_known(http, record);
        return;
    }
    bool hashes = http_hides_change(record);
    if (record->state != HTTP_DONE || bagi_http_rests(record, 1) ||
        record->asked > (hashes ? http->looked : record->answered))
        return;
    record->error = 0;
    http_check_end(http, record);
    record->asked = http->looked + 1;
    bagi_http_check_object(http, record, record);
    for (http_object *file = record->files; file; file = file->sibling)
        if (file->state == HTTP_DONE &&
            (hashes ? file->asked < http->looked : file->early))
            bagi_http_check_object(http, record, file);
}

int bagi_http_wait_checks(bags_http *http, http_object *record) {
    double due = 0;
    bool again = true;
    while (again) {
        bagi_http_wake(&http->engine);
        while (record->checks)
            if (bagi_http_pause(&http->engine, &due))
                return EINTR;
        /* A file may have been read for the first time after the check was
         * requested. */
        if (record->known && record->asked)
            bagi_http_check_known(http, record);
        again = record->checks > 0;
    }
    return record->state == HTTP_DONE ? record->error : 0;
}

void bagi_http_begin_version(bags_http *http, http_object *object) {
    if (object->record || !(object->record = bagi_http_record(http, object)))
        return;
    object->sibling = object->record->files;
    object->record->files = object;
    object->early = object->record->state != HTTP_DONE;
    object->in_dataset = !object->early || object->record->state == HTTP_WAITING;
}

void bagi_http_asked(bags_http *http, http_object *object) {
    object->asked = http->looked + 1;
    if (object->record)
        bagi_http_check(http, object->record);
}

void bagi_http_answered(bags_http *http, http_object *object) {
    if (object->record)
        object->record->answered = ++http->looked;
}
