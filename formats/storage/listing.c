/*
 * listing.c - finds the names in a server's directory, from S3's listing or an index
 * page or by probing shard numbers; and decides which responses are real files.
 */
#include "objects.h"

#define HTTP_LISTING ((size_t)64 << 20) /* most bytes in all pages of a listing */
#define HTTP_PAGES 2000                 /* most pages of a listing */
#define HTTP_MISSING 4     /* this many missing shards in a row end the search */
#define HTTP_AHEAD 90      /* most shards looked up at once */
#define HTTP_SHARDS 999999 /* this shard never exists where shards must be probed */

/* ---- servers that answer every path ----
 * For a name that does not exist, some servers answer 200 with a page, or 403. Such a
 * response is compared with the response to the control, a name that cannot exist. The
 * control is looked up once per dataset. */

http_object *bagi_http_control(bags_http *http, const char *path) {
    const char *host = strstr(path, "://") + 3;
    const char *name = strrchr(host, '/');
    size_t size = name ? (size_t)(name - path) : strlen(path), digits = size;
    while (digits > 0 && path[digits - 1] >= '0' && path[digits - 1] <= '9')
        digits--; /* a shard */
    if (digits < size && path[digits - 1] == '/' && path + digits > host)
        size = digits - 1;
    http_object *object =
        bagi_http_find_printed(http, "%.*s/" HTTP_CONTROL, (int)size, path);
    if (object)
        bagi_http_look(http, object);
    return object;
}

bool bagi_http_is_extra(const char *path) {
    return bagi_http_ends_in(path, ".idx .crc .dict .partial ") ||
           strcmp(strrchr(path, '/'), "/finalized") == 0 ||
           strcmp(strrchr(path, '/'), "/info.json") == 0 || http_is_catalogue(path);
}

/* True if this server answers 403 for missing names. */
static bool http_is_missing(bags_http *http, const char *path) {
    http_object *control = bagi_http_control(http, path);
    return bagi_http_wait(http, control) == EACCES;
}

/* True if the first or last bytes of a lookup look like a dataset's file, so that no
 * further request is needed. */
static bool http_is_plausible(const http_object *object) {
    const http_part *part = http_first_part(object);
    if (object->is_html)
        return false;
    if (bagi_http_ends_in(object->path, ".zip .tar "))
        return true;
    if (!part || part->state != HTTP_DONE || part->stop - part->start < 8)
        return false;
    if (strcmp(strrchr(object->path, '/'), "/spec.json") == 0)
        return part->start > 0 || part->data.data[0] == '{';
    size_t end = (size_t)(part->stop - part->start - 8);
    return bagi_http_ends_in(object->path, ".bag ") &&
           (part->stop < object->size ||
               bags_load_bytes(part->data.data + end, 8, false) <= object->size - 8);
}

/* True if two responses are the same. An object known from a cache has only an ETag to
 * compare, not bytes. */
static bool http_is_equal(const http_object *a, const http_object *b) {
    const http_part *x = http_first_part(a), *y = http_first_part(b);
    if (!x || !y)
        return a->size == b->size && a->identity.inode == b->identity.inode;
    return a->size == b->size && x->state == HTTP_DONE && y->state == HTTP_DONE &&
           x->start == y->start && x->stop == y->stop &&
           memcmp(x->data.data, y->data.data, (size_t)(x->stop - x->start)) == 0;
}

/* The first bytes of a response as one line of text. */
static void http_show(const http_object *object, char out[41]) {
    const http_part *part = http_first_part(object);
    size_t size = 0;
    for (; part && size < 40 && size < part->stop - part->start; size++) {
        unsigned char c = part->data.data[size];
        out[size] = c < ' ' || c > '~' ? ' ' : (char)c;
    }
    out[size] = '\0';
}

/* True for a response that starts like a JSON object. */
static bool http_is_json(const http_object *object) {
    const http_part *part = http_first_part(object);
    return part && part->start == 0 && part->stop > 0 && part->data.data[0] == '{';
}

int bagi_http_refuse_page(bags_http *http, http_object *object) {
    char start[41], why[128];
    if (http_is_s3(object->path) || object->is_real ||
        (object->is_real = http_is_plausible(object)))
        return 0;
    http_object *control = bagi_http_control(http, object->path);
    int none = bagi_http_wait(http, control);
    if (none == EINTR)
        return EINTR;
    bool page = !none && (object->is_html || http_is_equal(object, control));
    /* Two JSON objects may be the same error message with different paths in it. */
    object->is_real =
        none || !(page || (http_is_json(object) && http_is_json(control)));
    if (object->is_real)
        return 0;
    http_show(control, start);
    (void)snprintf(why, sizeof why,
        "the server answers names that do not exist, too (HTTP 200: %s)", start);
    object->state = HTTP_FAILED;
    bagi_http_fail(object, page ? ENOENT : EIO, why);
    return object->error;
}

/* ---- catalogues ---- */

/* Start looking up a dataset's catalogue. With recorded answers, none is used: every
 * file's version is asked for once, so that its bytes can be kept. NULL: none, or out
 * of memory. */
static http_object *http_look_catalogue(bags_http *http, const char *path) {
    return http->engine.recall || http->no_catalogue
               ? NULL
               : bagi_http_look_in(http, path, CATALOGUE_NAME);
}

/* Get bytes of an object that its lookup did not return. The mutex is not held.
 * Returns false on failure. */
static bool http_get_range(bags_http *http, const http_object *object, uint64_t start,
    uint64_t stop, unsigned char *out) {
    if (start == stop)
        return true;
    http_request *request =
        bagi_http_request_new(&http->engine, object->path, false, true, NULL);
    if (!request)
        return false;
    request->bytes = HTTP_RANGE;
    request->start = start;
    request->stop = stop;
    request->object_size = object->size;
    request->object_tag = object->tag;
    int code = bagi_http_run(request);
    if (code == EINTR)
        return false;
    if (!code)
        memcpy(out, request->body.data, (size_t)(stop - start));
    bagi_http_request_free(request);
    return !code;
}

/* Find the catalogue of a dataset, and parse it. NULL: none, damaged, or known to be
 * outdated. The mutex is held, except while it waits. */
static http_known *http_find_catalogue(bags_http *http, const char *path) {
    http_known *known = bagi_http_known(http, path);
    if (known)
        return known->wrong ? NULL : known;
    http_object *object = http_look_catalogue(http, path);
    if (!object || bagi_http_wait(http, object) || object->is_html ||
        object->size < CATALOGUE_HEAD || object->size > CATALOGUE_SIZE)
        return NULL;
    const http_part *part = http_first_part(object);
    uint64_t start = part ? part->start : 0, stop = part ? part->stop : 0;
    unsigned char *data = (unsigned char *)malloc((size_t)object->size);
    if (!data)
        return NULL;
    if (part)
        memcpy(data + start, part->data.data, (size_t)(stop - start));
    pthread_mutex_unlock(&http->engine.mutex);
    bool good = http_get_range(http, object, 0, start, data) &&
                http_get_range(http, object, stop, object->size, data + stop);
    pthread_mutex_lock(&http->engine.mutex);
    known = bagi_http_known(http, path); /* another thread may have been faster */
    if (known || !good ||
        !(known = bagi_http_add_known(http, path, data, (size_t)object->size)))
        free(data);
    while (known && object->count > 0 && http_parts(object)[0]->users == 0)
        bagi_http_part_free(http, http_parts(object)[0]); /* `data` is enough */
    return known && !known->wrong ? known : NULL;
}

/* ---- lists ---- */

typedef struct http_names {
    bags_buffer text;
    size_t size;
    bool dataset; /* a spec.json or a shard number was listed */
    size_t read;  /* bytes of pages read so far */
    bool cut;     /* the other pages were not requested */
} http_names;

/* Add one name from a listing. */
static int http_names_add(void *user, const char *name) {
    http_names *names = (http_names *)user;
    size_t size = strlen(name) + 1;
    if (bags_buffer_reserve(&names->text, names->size + size, NULL))
        return ENOMEM;
    memcpy(names->text.data + names->size, name, size);
    names->size += size;
    names->dataset = names->dataset || strcmp(name, "spec.json") == 0 ||
                     name[strspn(name, "0123456789")] == '\0';
    return 0;
}

/* The names' part of a path, not encoded. To be freed. NULL: out of memory. */
static char *http_plain_prefix(http_store store, const char *name) {
    char *plain = store == HTTP_S3 ? NULL : curl_easy_unescape(NULL, name, 0, NULL);
    char *out = bagi_http_format("%s", plain ? plain : name);
    curl_free(plain);
    return out;
}

/* Make the request for one page of PATH's listing, given the page's token. NULL: out of
 * memory. */
static http_request *http_list_request(
    bags_http *http, const char *path, const char *token) {
    const char *name = NULL;
    http_store store = bagi_http_store(path, &name);
    if (store == HTTP_INDEX)
        return bagi_http_request_new(&http->engine, path, false, false, NULL);
    char *plain = http_plain_prefix(store, name);
    char *prefix = plain ? format_url(plain, "", NULL) : NULL;
    char *encoded = format_url(token ? token : "", "", NULL);
    char *query = NULL;
    if (prefix && encoded && store == HTTP_AZURE)
        query =
            bagi_http_format("comp=list&delimiter=%%2F%s%s&prefix=%s&restype=container",
                token ? "&marker=" : "", encoded, prefix);
    else if (prefix && encoded)
        query = bagi_http_format("%s%s%sdelimiter=%%2F&list-type=2&prefix=%s",
            token ? "continuation-token=" : "", encoded, token ? "&" : "", prefix);
    http_request *request =
        query ? bagi_http_request_new(&http->engine, path, true, false, query) : NULL;
    free(plain);
    free(prefix);
    free(encoded);
    free(query);
    return request;
}

/* Add the names in a response. Sets *more to the next page's token. Returns an errno;
 * `why` has 256 bytes. */
static int http_read_page(const http_request *request, const char *path, char **more,
    http_names *names, char *why) {
    const void *page = request->body.data;
    size_t size = request->size;
    const char *name = NULL;
    http_store store = bagi_http_store(path, &name);
    names->read += size;
    if (!page || (store == HTTP_INDEX && !request->is_html))
        return 0;
    if (store == HTTP_INDEX)
        name = strchr(path + 8, '/');
    char *prefix = http_plain_prefix(store, name);
    int code = prefix ? bags_http_names(page, size, store != HTTP_INDEX, prefix,
                            http_names_add, names)
                      : ENOMEM;
    free(prefix);
    if (code || store == HTTP_INDEX)
        return code;
    *more = bagi_http_xml(
        page, size, store == HTTP_AZURE ? "<NextMarker>" : "<NextContinuationToken>");
    if (*more && !**more) { /* Azure's last page */
        free(*more);
        *more = NULL;
    }
    if (*more)
        return 0;
    char *truncated = bagi_http_xml(page, size, "<IsTruncated>");
    if (truncated && strcmp(truncated, "true") == 0) {
        code = EIO;
        strcpy(why, "a truncated list without a NextContinuationToken");
    }
    free(truncated);
    return code;
}

/* Request one page of the listing of PATH (it ends in a slash). *more holds this page's
 * token, and receives the next one's. Returns an errno. */
static int http_list_page(
    bags_http *http, const char *path, char **more, http_names *names, char *why) {
    char *token = *more;
    http_request *request = http_list_request(http, path, token);
    *more = NULL;
    int code = request ? bagi_http_run(request) : ENOMEM;
    if (!request || code == EINTR) {
        free(token);
        return code;
    }
    /* A signature of Azure or Google Cloud may allow only to read. */
    bool refused = !request->is_s3 && request->status / 100 == 4;
    if (code)
        memcpy(why, request->why, sizeof request->why);
    if (code == EPERM && refused)
        code = EACCES;
    if (!code)
        code = http_read_page(request, path, more, names, why);
    if (!code && *more && token && strcmp(*more, token) == 0) {
        code = EIO;
        strcpy(why, "the list repeats a page");
    }
    bagi_http_request_free(request);
    free(token);
    return code;
}

/* Add the names on all pages. Returns an errno: also ENOENT for a page that does not
 * list a dataset. Other failures leave no names. */
static int http_list_pages(
    bags_http *http, const char *path, http_names *names, char *why) {
    char *more = NULL;
    for (int i = 0; i == 0 || more; i++) {
        int code = http_list_page(http, path, &more, names, why);
        if (!code && more && (i == HTTP_PAGES || names->read > HTTP_LISTING)) {
            code = EFBIG;
            strcpy(why, "the listing does not end");
        }
        if (!code && more) { /* a catalogue makes the other pages unnecessary */
            pthread_mutex_lock(&http->engine.mutex);
            names->cut = http_find_catalogue(http, path) != NULL;
            pthread_mutex_unlock(&http->engine.mutex);
            code = names->cut ? ENOENT : 0;
        }
        if (code) {
            free(more);
            bags_buffer_free(&names->text);
            names->size = 0;
            return code;
        }
    }
    const char *name = NULL;
    bool pages = bagi_http_store(path, &name) == HTTP_INDEX;
    return (pages ? names->dataset : names->size > 0) ? 0 : ENOENT;
}

/* Get the names in a directory as listed by the server. They are remembered under the
 * path plus a slash. Returns an errno: ENOENT if there is no listing. */
static int http_listing(bags_http *http, const char *path, http_object **out) {
    http_names names;
    char why[256] = "";
    memset(&names, 0, sizeof names);
    pthread_mutex_lock(&http->engine.mutex);
    http_object *object =
        bagi_http_find_printed(http, "%.*s/", (int)http_path_size(path), path);
    bool known = object && (object->names.data || bagi_http_rests(object, HTTP_FORGET));
    int code = !object ? ENOMEM : known ? object->error : 0;
    pthread_mutex_unlock(&http->engine.mutex);
    *out = object;
    if (!object || known)
        return code;
    code = http_list_pages(http, object->path, &names, why);
    pthread_mutex_lock(&http->engine.mutex);
    if (code != EINTR && !object->names.data) {
        object->state = code ? HTTP_FAILED : HTTP_DONE;
        object->error = 0;
        object->cut = names.cut;
        if (code)
            bagi_http_fail(object, code, why);
        if (!code || code == ENOENT) {
            object->names = names.text;
            object->names_size = names.size;
            memset(&names.text, 0, sizeof names.text);
        }
    }
    pthread_mutex_unlock(&http->engine.mutex);
    bags_buffer_free(&names.text);
    return code;
}

/* ---- hooks ---- */

/* Some servers, and S3 without the permission to list, answer 403 for a missing name.
 * Each shard has a spec.json, but the directory that holds the shards has none. */
bool bagi_http_is_optional(bags_http *http, const char *path) {
    const char *name = strrchr(path, '/') + 1;
    if (!http_is_missing(http, path))
        return false;
    if (strcmp(name, "spec.json") != 0)
        return bagi_http_is_extra(path);
    return !bagi_http_wait(http,
        bagi_http_find_printed(http, "%.*s000000/spec.json", (int)(name - path), path));
}

/* Wait for the lookups of a dataset's files. Returns an errno: 0 if one exists, ENOENT
 * if none does. The path's object then holds the server's failure, if any. */
static int http_look_inside(
    bags_http *http, http_object *const inside[3], http_object *object) {
    const http_object *broken = NULL;
    for (int i = 0; i < 3; i++) {
        int error = bagi_http_wait(http, inside[i]);
        if (!error)
            error = bagi_http_refuse_page(http, inside[i]);
        if (!error || error == EINTR)
            return error;
        if (error != ENOENT && error != EACCES && inside[i])
            broken = inside[i];
    }
    if (object && broken && object->state == HTTP_NEW) {
        object->state = HTTP_FAILED; /* do not wait for this server again */
        bagi_http_fail(object, broken->error, broken->why);
    }
    return ENOENT;
}

/* Classify a path that is not a dataset. `listed` is the errno from listing it. */
static int http_other_kind(bags_http *http, const char *path, http_object *object,
    int listed, bags_path_kind *kind) {
    int code = bagi_http_wait(http, object);
    if (!code)
        code = bagi_http_refuse_page(http, object);
    bool missing = code == ENOENT || code == EACCES;
    if (!code || (missing && object->is_directory)) {
        *kind = code ? BAGS_PATH_DIRECTORY : BAGS_PATH_FILE;
        return 0;
    }
    if (!missing || (code == EACCES && !bagi_http_is_optional(http, path)))
        return code;
    return listed == ENOENT || listed == EACCES ? 0 : listed;
}

/* The object, a dataset's files, and the listing are requested together, so this takes
 * one round trip even if nothing exists. */
int bagi_http_kind(void *user, const char *path, bags_path_kind *kind) {
    bags_http *http = (bags_http *)user;
    http_object *inside[3] = {NULL, NULL, NULL}, *listing = NULL;
    static const char *const names[] = {"spec.json", "refs.bag", "000000/spec.json"};
    bool file = bagi_http_ends_in(path, HTTP_FILES);
    int code = bagi_http_refuse_path(http, path);
    *kind = BAGS_PATH_NONE;
    if (code)
        return code;
    pthread_mutex_lock(&http->engine.mutex);
    http_object *object = bagi_http_use(http, path);
    if (object && file) /* other paths are usually directories */
        bagi_http_look(http, object);
    for (int i = 0; i < 3 && !file; i++)
        inside[i] = bagi_http_look_in(http, path, names[i]);
    if (!file)
        (void)http_look_catalogue(http, path);
    /* A file known from a cache is compared with the control: look up both in one round
     * trip. */
    if (http->engine.recall && inside[0] && !http_is_s3(path))
        (void)bagi_http_control(http, inside[0]->path);
    bagi_http_wake(&http->engine);
    pthread_mutex_unlock(&http->engine.mutex);
    int listed = file ? ENOENT : http_listing(http, path, &listing);
    pthread_mutex_lock(&http->engine.mutex);
    code = listed && !file ? http_look_inside(http, inside, object) : listed;
    if (!code)
        *kind = BAGS_PATH_DIRECTORY;
    else if (code != EINTR)
        code = http_other_kind(http, path, object, listed, kind);
    for (int i = 0; i < 3; i++)
        bagi_http_release(http, inside[i]);
    bagi_http_release(http, object);
    pthread_mutex_unlock(&http->engine.mutex);
    return code;
}

/* Use the spec.json of a shard. It is never released: without a list, every name that
 * was looked up is kept. */
static http_object *http_look_in_shard(
    bags_http *http, const char *path, uint64_t number) {
    char name[40];
    (void)snprintf(name, sizeof name, "%06" PRIu64 "/spec.json", number);
    return bagi_http_look_in(http, path, name);
}

/* Detect a server that ignores a folder of the path, and so appears to have every
 * shard. Next to a spec.json such shards are ignored; without a spec.json this is an
 * error. If true, *code is the result. The mutex is held. */
static bool http_ignores_folder(bags_http *http, const char *path, int *code) {
    http_object *last = http_look_in_shard(http, path, HTTP_SHARDS);
    http_object *own = bagi_http_look_in(http, path, "spec.json");
    http_object *directory = bagi_http_find(http, path, http_path_size(path), true);
    if (bagi_http_wait(http, last) || bagi_http_refuse_page(http, last))
        return false;
    int none = bagi_http_wait(http, own);
    *code = none && none != EINTR ? EIO : none;
    if (*code == EIO && directory)
        bagi_http_fail(directory, EIO,
            "the server has every shard up to 999999 (HTTP 200): it ignores a "
            "folder of the path");
    return true;
}

/* Find out whether a shard exists. Returns an errno: ENOENT if it does not. *first is
 * the first shard's spec.json; if the server answers every path, only shards with an
 * identical spec.json exist. The mutex is held. */
static int http_probe_shard(
    bags_http *http, const char *path, uint64_t number, http_object **first) {
    http_object *object = http_look_in_shard(http, path, number);
    http_object *control = object ? bagi_http_control(http, object->path) : NULL;
    http_object *directory = bagi_http_find(http, path, http_path_size(path), true);
    int code = bagi_http_wait(http, object), none = bagi_http_wait(http, control);
    if (none == EINTR)
        return none;
    if (!code)
        code = bagi_http_refuse_page(http, object);
    if (code == EACCES && none == EACCES)
        return ENOENT;
    if (!code && !none &&
        (http_is_equal(object, control) || (*first && !http_is_equal(object, *first))))
        return ENOENT;
    if (!code && !*first)
        *first = object;
    if (code && code != ENOENT && code != EINTR && directory && object && object->why)
        bagi_http_fail(directory, code, object->why);
    return code;
}

/* Start looking up these shards, and the control in the same round trip. */
static void http_look_ahead(
    bags_http *http, const char *path, uint64_t start, uint64_t stop) {
    for (; start < stop; start++) {
        const http_object *next = http_look_in_shard(http, path, start);
        if (next)
            (void)bagi_http_control(http, next->path);
    }
}

/* Find shards by probing `from`, `from` + 1, ... when the server lists nothing. */
static int http_probe(bags_http *http, const char *path, uint64_t from,
    int (*each)(void *each_user, const char *name), void *each_user) {
    uint64_t ahead = from, missing = 0;
    http_object *first = NULL;
    for (uint64_t i = from; missing < HTTP_MISSING && i < HTTP_SHARDS; i++) {
        char name[32];
        int code = 0;
        pthread_mutex_lock(&http->engine.mutex);
        /* The more shards have been found in a row, the more are looked up at once. */
        uint64_t more =
            missing ? HTTP_MISSING - missing : 3 * (i - from) + HTTP_MISSING;
        uint64_t stop =
            i == ahead ? i + (more < HTTP_AHEAD ? more : HTTP_AHEAD) : ahead;
        http_look_ahead(http, path, ahead, stop);
        ahead = stop;
        bool ignored = i == from && http_ignores_folder(http, path, &code);
        if (!ignored)
            code = http_probe_shard(http, path, i, &first);
        pthread_mutex_unlock(&http->engine.mutex);
        missing = code == ENOENT ? missing + 1 : 0;
        if (ignored || (code && !missing))
            return code;
        (void)snprintf(name, sizeof name, "%06" PRIu64, i);
        code = missing ? 0 : each(each_user, name);
        if (code)
            return code;
    }
    return 0;
}

/* Begin to use a catalogue, unless it differs from the first or last shard. Unless the
 * server lists the shards, those after the last one are looked up in the same round
 * trip. Returns an errno. *out: NULL if there is no catalogue to use. The mutex is
 * held. */
static int http_use_catalogue(
    bags_http *http, const char *path, bool listed, http_known **out) {
    http_known *known = http_find_catalogue(http, path);
    double due = 0;
    *out = known;
    if (!known || known->used)
        return 0;
    uint64_t shards = known->catalogue.shards;
    if (!known->begun)
        for (uint64_t i = 0; i<shards; i += shards> 1 ? shards - 1 : 1)
            known->wrong |= !bagi_http_check_bound(http, known, i, NULL);
    known->begun = true;
    http_object *record = http_look_in_shard(http, path, 0);
    if (!listed && shards < HTTP_SHARDS) {
        http_look_ahead(http, path, shards, shards + HTTP_MISSING);
        (void)http_look_in_shard(http, path, HTTP_SHARDS);
    }
    bagi_http_wake(&http->engine);
    while (known->checks)
        if (bagi_http_pause(&http->engine, &due))
            return EINTR;
    if (bagi_http_wait(http, record) == EINTR)
        return EINTR;
    if (known->wrong || known->used) {
        *out = known->wrong ? NULL : known;
        return 0;
    }
    known->used = true;
    if (record && record->state == HTTP_DONE && !record->used)
        (void)bagi_http_find_known(http, record);
    return 0;
}

/* If the server has no listing, name the shards of the catalogue, if there is one, and
 * probe for others by number. */
int bagi_http_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    bags_http *http = (bags_http *)user;
    http_object *listing = NULL;
    int code = bagi_http_refuse_path(http, path);
    if (code)
        return code;
    code = http_listing(http, path, &listing);
    pthread_mutex_lock(&http->engine.mutex);
    http_known *known = NULL;
    int interrupted = http_use_catalogue(http, path, !code, &known);
    bool again = !known && listing && listing->cut && !interrupted;
    if (again)
        listing->error = 0;
    pthread_mutex_unlock(&http->engine.mutex);
    if (interrupted)
        return interrupted;
    if (again)
        code = http_listing(http, path, &listing);
    pthread_mutex_lock(&http->engine.mutex);
    const http_object *object = bagi_http_find(http, path, http_path_size(path), false);
    if (code == ENOENT && object && object->is_directory && listing->names.data)
        code = 0; /* a listing is acceptable because it belongs to a directory */
    pthread_mutex_unlock(&http->engine.mutex);
    if (code == ENOENT || code == EACCES) {
        uint64_t shards = known ? known->catalogue.shards : 0;
        code = 0;
        for (uint64_t i = 0; i < shards && !code; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "%06" PRIu64, i);
            code = each(each_user, name);
        }
        return code ? code : http_probe(http, path, shards, each, each_user);
    }
    for (size_t at = 0; !code && at < listing->names_size;
         at += strlen((const char *)listing->names.data + at) + 1)
        code = each(each_user, (const char *)listing->names.data + at);
    return code;
}
