/*
 * known.c - files that are known from a catalogue, without a request: catalogue.h
 * describes its bytes. All functions expect the mutex to be held.
 *
 *     listing.c: bagi_http_add_known     parses 000000/catalogue
 *         |      bagi_http_check_bound   compares the first and the last shard
 *         v      bagi_http_know          from now on
 *     lookup.c:  bagi_http_find_known    "finds" an object: its size, no ETag
 *         |
 *         v
 *     http.c:    bagi_http_read_known    reads spec.json, a plain refs.bag, and the
 *         |                              offset of a table
 *         v
 *     http.c:    bagi_http_adopt         the first answer: its ETag is now the object's
 *         |
 *         v
 *                bagi_http_check_known   after it: the end of the shard's refs.crc
 *
 * An object's identity stays the catalogue's, because it was returned before the first
 * answer.
 */
#include "objects.h"

#define HTTP_OUTDATED                                                                  \
    "differs from " CATALOGUE_NAME ": the dataset was replaced, or the catalogue is "  \
    "outdated; open the dataset again, or run bags_catalogue"

/* The index of the Bag with this name, or SIZE_MAX. */
static size_t http_bag_index(const catalogue_view *of, const char *name) {
    const char *field = of->names;
    size_t size = strlen(name);
    if (size < 4 || strcmp(name + size - 4, ".bag") != 0)
        return SIZE_MAX;
    size -= 4;
    for (size_t i = 0; i < of->fields; i++, field += strlen(field) + 1)
        if (strlen(field) == size && memcmp(field, name, size) == 0)
            return i;
    return size == 4 && memcmp(name, "refs", 4) == 0 ? of->fields : SIZE_MAX;
}

/* Find the catalogue and the shard of a path DATASET/SHARD/NAME. NULL: unknown. */
static http_known *http_known_shard(
    const bags_http *http, const char *path, uint64_t *shard) {
    const char *name = strrchr(path, '/');
    for (http_known *known = http->known; known; known = known->next) {
        char number[32];
        size_t front = known->path_size;
        if (!known->used || strncmp(path, known->path, front) != 0)
            continue;
        *shard = strtoull(path + front, NULL, 10);
        (void)snprintf(number, sizeof number, "%06" PRIu64, *shard);
        if (*shard < known->catalogue.shards && name == path + front + strlen(number) &&
            strncmp(path + front, number, strlen(number)) == 0)
            return known;
    }
    return NULL;
}

bool bagi_http_find_known(bags_http *http, http_object *object) {
    uint64_t shard = 0;
    http_known *known = http_known_shard(http, object->path, &shard);
    if (!known)
        return false;
    const catalogue_view *of = &known->catalogue;
    bool is_spec = strcmp(strrchr(object->path, '/'), "/spec.json") == 0;
    size_t bag = is_spec ? 0 : http_bag_index(of, strrchr(object->path, '/') + 1);
    http_object *record = is_spec ? NULL : bagi_http_record(http, object);
    if (record && record->state == HTTP_NEW)
        (void)bagi_http_find_known(http, record);
    if (bag == SIZE_MAX || (!is_spec && (!record || !record->known)))
        return false;
    object->state = HTTP_DONE;
    object->known = known;
    object->shard = shard;
    object->bag = bag;
    object->record = record;
    if (record)
        record->uses++;
    object->in_dataset = object->is_real = true;
    object->answered = object->asked = 0;
    object->size = is_spec ? of->spec_size : catalogue_size(of, shard, bag);
    object->identity.device = http_hash(known->path);
    object->identity.inode = known->hash;
    object->identity.time = catalogue_bound(of, shard);
    object->identity.size = object->size;
    return true;
}

void bagi_http_release(bags_http *http, http_object *object) {
    if (object)
        object->uses--;
    while (object && object->known && !object->uses && !object->adopted &&
           !object->error && !object->count && !object->checks && !object->answered &&
           !object->files) {
        http_object *record = object->record;
        bagi_http_forget(http, object);
        object = record;
        if (object)
            object->uses--;
    }
}

/* Copy the requested part of `from`, the bytes at offset `at` in the file. Returns true
 * if that is the entire read. */
static bool http_copy_known(
    bags_io_read *read, uint64_t at, const unsigned char *from, size_t size) {
    if (read->offset < at || read->offset - at > size ||
        read->size > size - (size_t)(read->offset - at))
        return false;
    if (read->data && read->size > 0)
        memcpy(read->data, from + (read->offset - at), read->size);
    read->done = read->data ? read->size : 0;
    return true;
}

bool bagi_http_read_known(bags_io_read *read) {
    const http_object *object = (const http_object *)read->file;
    unsigned char number[8];
    if (!object->known || read->offset >= object->size)
        return false;
    const catalogue_view *of = &object->known->catalogue;
    uint64_t left = object->size - read->offset;
    bags_io_read part = *read;
    part.size = read->size < left ? read->size : (size_t)left;
    bool found = false;
    if (!object->record) {
        found = http_copy_known(&part, 0, of->spec, of->spec_size);
    } else if (object->bag == of->fields && catalogue_is_plain(of, object->shard)) {
        if (part.data)
            catalogue_read_plain(of->fields,
                catalogue_length(of, object->shard, of->fields), part.offset,
                (unsigned char *)part.data, part.size);
        part.done = part.data ? part.size : 0;
        found = true;
    } else {
        uint64_t table = catalogue_table(of, object->shard, object->bag);
        catalogue_store(number, table, 8);
        found = http_copy_known(&part, object->size - 8, number, 8);
        memset(number, 0, sizeof number);
        found = found || http_copy_known(&part, table, number, 8);
    }
    if (found)
        read->done = part.done;
    return found;
}

bool bagi_http_adopt(bags_http *http, http_object *object, http_request *request) {
    const char *tag = bagi_http_tag(request);
    if (!object->known)
        return true;
    if (object->adopted &&
        strcmp(bagi_http_strong(tag), bagi_http_strong(object->tag)) != 0) {
        request->error = ESTALE;
        (void)snprintf(request->why, sizeof request->why, "%s",
            "changed while open (its ETag differs)");
        return false;
    }
    if (object->adopted)
        return true;
    object->tag = http_copy(tag);
    if (*tag && !object->tag) {
        request->error = ENOMEM;
        return false;
    }
    http->unversioned = http->unversioned || !object->tag;
    object->adopted = true;
    return true;
}

void bagi_http_fail_known(http_object *object, int error, const char *why) {
    bool changed =
        object->known && !object->adopted && (error == ESTALE || error == ENOENT);
    bagi_http_fail(object, changed ? ESTALE : error, changed ? HTTP_OUTDATED : why);
}

/* ---- the CRC that binds a shard together ---- */

/* Called when the end of a refs.crc has arrived, or not. `user` is the shard's
 * spec.json or, before the catalogue is used, NULL. */
static void http_bound_arrived(http_request *request, bool good) {
    http_known *known = (http_known *)request->also;
    http_object *record = (http_object *)request->user;
    uint64_t length = (request->object_size - BAGS_TRAILER_SIZE) / 4;
    uint64_t shard = request->number;
    bags_trailer trailer;
    int error = request->error;
    bool same = good &&
                bags_trailer_load(request->body.data, request->size, &trailer) &&
                trailer.binds_shard && trailer.length == length &&
                trailer.shard == catalogue_bound(&known->catalogue, shard);
    bool changed = good || error == ENOENT || error == ESTALE;
    known->checks -= !record;
    known->wrong = known->wrong || (!record && !same);
    if (!record)
        return;
    record->checks--;
    if (same) { /* files may have been answered meanwhile */
        bagi_http_check_known((bags_http *)request->engine->user, record);
        bagi_http_wake(request->engine);
    } else if (changed) {
        record->identity.device++;
        bagi_http_fail(record, ESTALE, HTTP_OUTDATED);
    } else if (record->error != ESTALE) {
        record->asked = 0;
        bagi_http_fail(record, error, request->why);
    }
}

bool bagi_http_check_bound(
    bags_http *http, http_known *known, uint64_t shard, http_object *record) {
    const catalogue_view *of = &known->catalogue;
    char *path = bagi_http_format("%s%06" PRIu64 "/refs.crc", known->path, shard);
    http_request *request =
        path ? bagi_http_request_new(&http->engine, path, false, true, NULL) : NULL;
    free(path);
    if (!request)
        return false;
    uint64_t size = 4 * catalogue_length(of, shard, of->fields) + BAGS_TRAILER_SIZE;
    request->bytes = HTTP_RANGE;
    request->start = size - BAGS_TRAILER_SIZE;
    request->stop = request->object_size = size;
    request->any_tag = true;
    request->fresh = true;
    request->ended = http_bound_arrived;
    request->user = record;
    request->also = known;
    request->number = shard;
    bagi_http_queue(request);
    if (record)
        record->checks++;
    else
        known->checks++;
    return true;
}

void bagi_http_check_known(bags_http *http, http_object *record) {
    if (!record->answered || record->checks || bagi_http_rests(record, 1) ||
        record->asked > record->answered)
        return;
    record->error = 0;
    record->asked = http->looked + 1;
    if (bagi_http_check_bound(http, record->known, record->shard, record))
        return;
    record->asked = 0;
    bagi_http_fail(record, ENOMEM, "out of memory");
}

/* ---- catalogues ---- */

http_known *bagi_http_known(const bags_http *http, const char *path) {
    size_t size = http_path_size(path);
    http_known *known = http->known;
    while (known &&
           (known->path_size != size + 1 || strncmp(known->path, path, size) != 0))
        known = known->next;
    return known;
}

http_known *bagi_http_add_known(
    bags_http *http, const char *path, unsigned char *data, size_t size) {
    http_known *known = (http_known *)calloc(1, sizeof *known);
    if (known)
        known->path = bagi_http_format("%.*s/", (int)http_path_size(path), path);
    if (!known || !known->path || !catalogue_parse(data, size, &known->catalogue)) {
        free(known ? known->path : NULL);
        free(known);
        return NULL;
    }
    known->data = data;
    known->path_size = strlen(known->path);
    known->hash = format_hash(0, data, CATALOGUE_HEAD); /* with the CRC of the rest */
    known->next = http->known;
    http->known = known;
    return known;
}

void bagi_http_free_known(bags_http *http) {
    for (http_known *known = http->known, *next; known; known = next) {
        next = known->next;
        free(known->path);
        free(known->data);
        free(known);
    }
}
