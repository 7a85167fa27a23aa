/*
 * Determine where a path leads: to local files, to datasets on web servers or in object
 * stores, or to datasets inside archives in any of these places.
 */
#include "command.h"
#include "system.h"

#include "modules.h"
#include "text.h"

#include <errno.h>

/* ---- URLs ---- */

/* True for a URL with any scheme. A single letter is a Windows drive instead. */
bool path_is_remote(const char *path) {
    size_t size = strcspn(path, ":/\\");
    return size > 1 && !strncmp(path + size, "://", 3);
}

/* True if the text before a URL's path may be a host. Invalid text may be part of a
 * password. Buckets have no user. */
static bool has_host(const char *host, bool s3) {
    const char *end = host + strcspn(host, s3 ? "/" : "/?"), *port = end;
    if (s3)
        return end > host && !memchr(host, '@', (size_t)(end - host)) &&
               !memchr(host, ':', (size_t)(end - host));
    while (port > host && port[-1] != ':' && port[-1] != ']' && port[-1] != '@')
        port--;
    bool has_port = port > host && port[-1] == ':';
    return end > host && (!has_port || port + strspn(port, "0123456789") == end);
}

/* Refuse URLs with other schemes or without a valid host. If the URL contains a user or
 * a query, parts of it may be secret. */
static void check_url(const char *path) {
    const char *host = strstr(path, "://") + 3;
    bool s3 = !strncmp(path, "s3://", 5);
    bool known = s3 || !strncmp(path, "http://", 7) || !strncmp(path, "https://", 8);
    bool hide = strpbrk(host, "@?") != NULL;
    if (!known || !has_host(host, s3))
        usage("%.*s%s: a URL is http://HOST/PATH, https://HOST/PATH or "
              "s3://BUCKET/PATH",
            hide ? (int)(host - path) : (int)strlen(path), path, hide ? "..." : "");
}

bool no_read_ahead, no_catalogue;

#ifdef BAGS_WITH_HTTP

/* An opened place, kept until the program ends. The query and password of a URL apply
 * only to it and to the files in it. */
typedef struct place {
    const char *path;
    const char *query, *user; /* NULL: none */
    bags_http *http;
    const bags_io *io; /* including the cache, if there is one */
} place;

static place *places;
static size_t places_count;

static void count_requests(void) {
    for (size_t i = 0; i < places_count; i++) {
        uint64_t requests = 0, bytes = 0;
        bags_http_counts(places[i].http, &requests, &bytes);
        note("%s: %ju requests, %ju bytes", places[i].path, (uintmax_t)requests,
            (uintmax_t)bytes);
    }
}

/* Without these headers, a dataset that is replaced while being read may go
 * unnoticed. */
static void note_unversioned(void) {
    for (size_t i = 0; i < places_count; i++)
        if (!bags_http_is_versioned(places[i].http)) {
            note("%s: the server states neither an ETag nor a Last-Modified: a "
                 "dataset that is replaced while it is read is noticed only if "
                 "sizes differ",
                places[i].path);
            return;
        }
}

static const char *cache_path;
static option_number cache_size = {0, BAGS_CACHE_LEAST, 0, false};
static bags_cache *cache;
option_number part_size = {0, (uint64_t)5 << 20, (uint64_t)5 << 30, false};

const option cache_options[] = {
    {"cache", OPTION_PATH, &cache_path, "DIR",
        "keep what servers send in DIR (BAGS_CACHE)"},
    {"cache-size", OPTION_SIZE, &cache_size, "N", "up to N bytes (10G)"},
    OPTIONS_END,
};

static void warn_of_cache(void *user, const char *message) {
    (void)user;
    note("%s", message);
}

/* Open the cache given by an option or the environment. If there is none, *out stays
 * unchanged. A full disk is not a failure. */
static void use_cache(bags_http_options *out) {
    static bool tried;
    const char *path = cache_path ? cache_path : getenv("BAGS_CACHE");
    if (cache_path && !*cache_path)
        usage("--cache: the name of the directory is empty");
    if (!tried && path && *path) {
        bags_cache_options options = {0};
        path_must_be_local("BAGS_CACHE", path);
        tried = true;
        options.size = cache_size.value;
        options.warn = warn_of_cache;
        cache = bags_cache_open(path, &options, &failure);
        if (!cache && (failure.system == ENOSPC || failure.system == EDQUOT))
            note("%s; reading continues without it", failure.message);
        else
            must_open(cache);
    }
    if (!cache)
        return;
    out->recall = bags_cache_recall;
    out->remember = bags_cache_remember;
    out->cache = cache;
}

static const place *open_place(const char *path, const char *query, const char *user) {
    bags_http_options options = {0};
    options.query = query;
    options.user = user;
    options.ca_file = getenv("BAGS_CA_FILE");
    options.no_read_ahead = no_read_ahead;
    options.no_catalogue = no_catalogue;
    options.retry_seconds = number_of("BAGS_RETRY_SECONDS", "number of seconds");
    options.stall_seconds = number_of("BAGS_STALL_SECONDS", "number of seconds");
    options.requests_per_second = number_of("BAGS_REQUESTS_PER_SECOND", "number");
    options.part_size = part_size.value;
    use_cache(&options);
    bags_http *http = bags_http_open(&options, &failure);
    must_open(http);
    if (!places_count)
        atexit(note_unversioned);
    if (!places_count && getenv("BAGS_COUNT_REQUESTS"))
        atexit(count_requests);
    places = (place *)grow(places, places_count, sizeof *places);
    /* The checksums and the index of a Bag are next to it. */
    places[places_count].path = has_ending(path, ".bag")
                                    ? string_format("%s", path_parent(path))
                                    : string_format("%s", path);
    places[places_count].query = query ? string_format("%s", query) : NULL;
    places[places_count].user = user ? string_format("%s", user) : NULL;
    places[places_count].http = http;
    places[places_count].io = bags_http_io(http);
    if (cache)
        places[places_count].io = bags_cache_io(cache, bags_http_io(http), &failure);
    must_open(places[places_count].io);
    return &places[places_count++];
}

static bool is_below(const char *path, const char *directory) {
    size_t size = strlen(directory);
    return !strncmp(path, directory, size) && (path[size] == '/' || !path[size]);
}

static const place *place_for_path(const char *path) {
    for (size_t i = 0; i < places_count; i++)
        if (is_below(path, places[i].path))
            return &places[i];
    return open_place(path, NULL, NULL);
}

static bool is_equal(const char *a, const char *b) {
    return !a || !b ? a == b : !strcmp(a, b);
}

/* Open the place of an operand, unless it is already open. From then on, the path
 * without secrets identifies it. */
static void open_operand(const char *path, const char *query, const char *user) {
    bool known = false;
    for (size_t i = 0; i < places_count; i++) {
        const place *one = &places[i];
        bool below = is_below(path, one->path);
        if (!below && !is_below(one->path, path))
            continue;
        if (!is_equal(query, one->query) || !is_equal(user, one->user))
            usage("%s: in one command a path has one query and one user", path);
        known = known || below;
    }
    if (!known)
        (void)open_place(path, query, user);
}

static const bags_io *io_for_url(const char *path) {
    check_url(path);
    return place_for_path(path)->io;
}

bags_code object_upload(const char *url, const bags_io *io, const char *path,
    void (*progress)(void *user, uint64_t bytes), void *user, bags_error *err) {
    return bags_http_upload(
        place_for_path(url)->http, url, io, path, progress, user, err);
}

bags_code object_same(
    const char *url, const bags_io *io, const char *path, bool *same, bags_error *err) {
    return bags_http_same(place_for_path(url)->http, url, io, path, same, err);
}

#else

const option cache_options[] = {OPTIONS_END};
option_number part_size;

static void open_operand(const char *path, const char *query, const char *user) {
    (void)path;
    (void)query;
    (void)user;
}

ENDS static const bags_io *io_for_url(const char *path) {
    check_url(path);
    fail(BAGS_ERROR_TYPE,
        "%s: formats/storage/http.c was not linked: libcurl or libcrypto was not found",
        path);
}

bags_code object_upload(const char *url, const bags_io *io, const char *path,
    void (*progress)(void *user, uint64_t bytes), void *user, bags_error *err) {
    (void)user;
    (void)io;
    (void)path;
    (void)progress;
    (void)err;
    io_for_url(url);
}

bags_code object_same(
    const char *url, const bags_io *io, const char *path, bool *same, bags_error *err) {
    (void)io;
    (void)path;
    (void)same;
    (void)err;
    io_for_url(url);
}

#endif

/* Remove the query and the user from a URL. *query points to the text after the ?, or
 * is NULL; *user must be freed, or is NULL. */
static void split_url(char *url, char **query, char **user) {
    bool s3 = !strncmp(url, "s3:", 3); /* S3 names may contain ? and @ */
    *query = s3 ? NULL : strchr(url, '?');
    *user = NULL;
    if (*query)
        *(*query)++ = '\0';
    char *host = strstr(url, "://") + 3, *at = host + strcspn(host, "/");
    while (at > host && at[-1] != '@')
        at--;
    if (at > host && !s3) { /* the last @ ends the password */
        *user = string_format("%.*s", (int)(at - 1 - host), host);
        memmove(host, at, strlen(at) + 1);
    }
}

char *path_shown(const char *path) {
    char *clean = string_format("%s", path), *query, *user = NULL;
    if (path_is_remote(path))
        split_url(clean, &query, &user);
    free(user);
    return clean;
}

const char *path_without_secrets(const char *path) {
    if (!path_is_remote(path))
        return path;
    check_url(path);
    static char **shown; /* they are never freed */
    static size_t shown_count;
    char *clean = string_format("%s", path), *query, *user;
    shown = (char **)grow(shown, shown_count, sizeof *shown);
    shown[shown_count++] = clean;
    split_url(clean, &query, &user);
    size_t size = strlen(clean);
    while (size > 0 && clean[size - 1] == '/')
        clean[--size] = '\0';
    open_operand(clean, query, user);
    free(user);
    return clean;
}

/* ---- archives ---- */

/* An opened archive, kept until the program ends. */
typedef struct opened {
    const char *path;
    bags_archive *archive;
} opened;

static opened *archives;
static size_t archives_count;

/* True if this part of a path is the name of an archive. This includes compressed
 * archives, so that the error can state the reason. */
static bool has_archive_name(const char *path) {
    static const char *const endings[] = {
        ".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (has_ending(path, endings[i]))
            return true;
    return false;
}

/* The hooks for everything outside archives. */
static const bags_io *base_io(const char *path) {
    return path_is_remote(path) ? io_for_url(path) : bags_io_local();
}

/* Find the archive at the start of a path. The result is valid until the next call.
 * NULL if there is none, or, with the error in *err, if a server failed. */
static const char *find_archive(const char *path, bags_error *err) {
    static text front;
    const bags_io *base = base_io(path);
    size_t size = strlen(path);
    for (size_t i = 1; i <= size; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        if (path[i] && !is_separator(path[i]))
            continue;
        front.size = 0;
        text_put(&front, path, i);
        const char *name = text_string(&front);
        if (!has_archive_name(name))
            continue;
        int error = base->kind(base->user, name, &kind);
        if (!error && kind == BAGS_PATH_FILE)
            return name;
        /* Trying other files on this server would take as long to fail. */
        if (path_is_remote(path) && error && error != EACCES) {
            bags_fail_io(base, error, name, "open", err);
            return NULL;
        }
    }
    return NULL;
}

const bags_io *io_find(const char *path, bags_error *err) {
    bags_archive_options options = {0};
    bags_error why = {BAGS_OK, 0, "", 0};
    const char *front = find_archive(path, &why);
    if (why.code)
        *err = why;
    if (!front)
        return why.code ? NULL : base_io(path);
    for (size_t i = 0; i < archives_count; i++)
        if (!strcmp(archives[i].path, front))
            return bags_archive_io(archives[i].archive);
    options.env.io = base_io(front);
    bags_archive *archive = bags_archive_open(front, &options, err);
    if (!archive)
        return NULL;
    archives = (opened *)grow(archives, archives_count, sizeof *archives);
    archives[archives_count].path = string_format("%s", front);
    archives[archives_count++].archive = archive;
    return bags_archive_io(archive);
}

const bags_io *io_for_path(const char *path) {
    const bags_io *io = io_find(path, &failure);
    must_open(io);
    return io;
}

bags_path_kind path_kind(const char *path) {
    const bags_io *io = io_for_path(path);
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = io->kind(io->user, path, &kind);
    must(bags_fail_io(io, error, path, "open", &failure));
    return kind;
}

bool path_is_archived(const char *path) { return io_for_path(path) != base_io(path); }

bool path_has(const char *directory, const char *name) {
    return path_kind(temp_format("%s/%s", directory, name)) == BAGS_PATH_FILE;
}

void path_must_be_local(const char *what, const char *path) {
    if (!path_is_remote(path))
        return;
    check_url(path);
    usage("%s: a URL, but %s must be a local path; only datasets are read "
          "from servers, and only `bags copy` writes to them",
        path_shown(path), what);
}

void path_must_be_writable(const char *path) {
    if (find_archive(path, &failure))
        fail(BAGS_ERROR_IO,
            "%s: cannot write: an archive is only read; unpack it first", path);
}

/* ---- datasets below the path ---- */

#define MAX_HINTS 5
#define MAX_SEARCHED 100 /* names at a URL; each takes several requests */

typedef struct search {
    const bags_io *io;
    const char *path;
    bool remote;
    char **datasets, *other; /* a directory that is not a dataset, or NULL */
    size_t count, searched;
} search;

static bool is_kind(const bags_io *io, const char *path, bags_path_kind expected) {
    bags_path_kind kind = BAGS_PATH_NONE;
    return !io->kind(io->user, path, &kind) && kind == expected;
}

static bool may_be_dataset(search *in, const char *name) {
    return name[strspn(name, "0123456789")] && /* a shard: the path is a dataset */
           (!in->remote || in->searched++ < MAX_SEARCHED);
}

/* Request in advance what keep_directory will wait for. */
static int expect_directory(void *user, const char *name) {
    search *in = (search *)user;
    char *path = path_join(in->path, name);
    if (may_be_dataset(in, name)) {
        in->io->expect(in->io->user, temp_format("%s/spec.json", path));
        in->io->expect(in->io->user, temp_format("%s/000000/spec.json", path));
    }
    free(path);
    return 0;
}

/* At a URL, finding out the kind of each directory takes several requests. */
static bool is_dataset(const search *in, const char *path) {
    if (is_kind(in->io, temp_format("%s/spec.json", path), BAGS_PATH_FILE))
        return true;
    return in->remote
               ? is_kind(
                     in->io, temp_format("%s/000000/spec.json", path), BAGS_PATH_FILE)
               : is_kind(in->io, temp_format("%s/000000", path), BAGS_PATH_DIRECTORY);
}

static int keep_directory(void *user, const char *name) {
    search *in = (search *)user;
    if (!may_be_dataset(in, name))
        return 0;
    char *path = path_join(in->path, name);
    bool directory = in->remote || is_kind(in->io, path, BAGS_PATH_DIRECTORY);
    if (directory && is_dataset(in, path)) {
        in->datasets = (char **)grow(in->datasets, in->count, sizeof *in->datasets);
        in->datasets[in->count++] = path;
    } else if (directory && !in->other) {
        in->other = path;
    } else {
        free(path);
    }
    return 0;
}

/* Name the parts of a split. Other datasets in a directory are only named inside an
 * archive, where the directories are not visible otherwise. */
void path_hint(const char *path) {
    const bags_io *io = failure.code == BAGS_ERROR_MISSING ? io_for_path(path) : NULL;
    bool in_archive = io && path_is_archived(path);
    search in = {io, path, path_is_remote(path) && !in_archive, NULL, NULL, 0, 0};
    if (!io || !is_kind(io, path, BAGS_PATH_DIRECTORY) ||
        (in.remote && is_dataset(&in, path)))
        return;
    if (in.remote)
        io->list(io->user, path, expect_directory, &in);
    in.searched = 0;
    io->list(io->user, path, keep_directory, &in);
    if (in.count)
        qsort(in.datasets, in.count, sizeof *in.datasets, format_compare_texts);
    for (size_t i = 0; i < in.count; i++) {
        if (i < MAX_HINTS)
            failure_suffix("%s%s",
                i               ? ", "
                : in.count == 1 ? "; it contains the dataset "
                                : "; it contains the datasets ",
                in.datasets[i]);
        free(in.datasets[i]);
    }
    if (in.count > MAX_HINTS)
        failure_suffix(", ...");
    else if (!in.count && in.other && in_archive)
        failure_suffix("; there is a directory %s", in.other);
    free(in.datasets);
    free(in.other);
}
