/*
 * The server of `bags view` and of bags.view in Python.
 *
 * It serves the page of examples/viewer and the files of one dataset, read-only, on
 * 127.0.0.1, to requests that know a random token:
 *
 *     /TOKEN/            the page
 *     /TOKEN/NAME/...    the dataset's files, or
 *     /TOKEN/NAME        the archive or Bag
 *
 * With --live, the dataset is still being written, and the server returns its
 * datapoints instead of its files. FIELD is the number of a field:
 *
 *     /TOKEN/live                        the state: see live_state
 *     /TOKEN/live/I/FIELD                the number of items
 *     /TOKEN/live/I/FIELD/ITEM           a blob
 *     /TOKEN/live/I/FIELD/START:STOP:STEP
 *                                        float64: elements per item, then all elements
 *
 * Other users of this computer, and other pages in the browser, do not know the token.
 * The Host header is checked, so a request under another name for this address (DNS
 * rebinding) is refused. Only files with the names of dataset files are served,
 * including those in shard and index directories, and links are not followed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64
#endif

#include "serve.h"

#include "live.h"
#include "system.h"

#include "files.h"

#if defined(COMMAND_WITH_LIBMICROHTTPD) && defined(__linux__)

#include <arpa/inet.h>
#include <dlfcn.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

#define TOKEN_BYTES 16
#define CONNECTIONS_MOST 256
#define IDLE_SECONDS 10

/* Loading this library and its dependencies takes as long as an entire command. */
#define FUNCTIONS(each)                                                                \
    each(create_response_from_buffer) each(create_response_from_fd_at_offset64)        \
        each(add_response_header) each(queue_response) each(destroy_response)          \
            each(get_connection_values) each(lookup_connection_value)                  \
                each(start_daemon) each(stop_daemon)

static struct {
#define MEMBER(name) __extension__ __typeof__(&MHD_##name) name;
    FUNCTIONS(MEMBER)
} mhd;
static char missing[BAGS_ERROR_SIZE / 2]; /* why it cannot be opened, or "" */

static void library_open(void) {
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    bool good = library != NULL;
#define FIND(name)                                                                     \
    good = good && (mhd.name = __extension__(__typeof__(mhd.name))                     \
                           dlsym(library, "MHD_" #name)) != NULL;
    FUNCTIONS(FIND)
    if (!good) {
        const char *why = dlerror();
        (void)snprintf(missing, sizeof missing, "%s", why ? why : "unknown");
    }
}

bags_code serve_check(bags_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, library_open);
    return *missing ? bags_fail(err, BAGS_ERROR_MISSING,
                          "view: cannot open libmicrohttpd: %s", missing)
                    : BAGS_OK;
}

struct serve {
    struct MHD_Daemon *daemon;
    char *path;       /* the dataset's, with links resolved; NULL: it is remote */
    const char *name; /* its last component, in addresses */
    const char *file; /* an archive or a Bag; NULL: a directory */
    int directory;    /* of the dataset, or of the parent of the file */
    live *following;  /* NULL unless the dataset is being written */
    bags_view page;
    char token[2 * TOKEN_BYTES + 1], hosts[2][32];
    text address, out; /* `out` is the answer to one request */
};

/* ---- the files ---- */

/* True if a file of a dataset may have this name; nothing else is served. */
static bool is_served(const char *word) {
    return word[0] && word[0] != '.' && !strchr(word, '/') &&
           (!strcmp(word, "spec.json") || !strcmp(word, "spec.json.partial") ||
               format_is_of_bag(word, strlen(word)));
}

static bool is_number(const char *word) {
    return *word && strlen(word) < 20 && !word[strspn(word, "0123456789")];
}

/* Open a regular file below a directory without following links; -1 on failure. */
static int open_file(int parent, const char *word, struct stat *info) {
    int opened = openat(parent, word, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (opened >= 0 && (fstat(opened, info) || !S_ISREG(info->st_mode))) {
        close(opened);
        return -1;
    }
    return opened;
}

/* Open the file for a path below /TOKEN/; -1 on failure. */
static int open_path(const serve *of, const char *path, struct stat *info) {
    size_t size = strlen(of->name);
    if (of->file) {
        /* The checksums and the journal of a Bag are next to it. */
        bool bag = has_ending(of->file, ".bag");
        bool beside = bag && strlen(path) == size &&
                      !strncmp(path, of->name, size - strlen(".bag")) &&
                      (has_ending(path, ".crc") || has_ending(path, ".idx"));
        if (strcmp(path, of->name) != 0 && !beside)
            return -1;
        return open_file(of->directory, beside ? path : of->file, info);
    }
    if (strncmp(path, of->name, size) != 0 || path[size] != '/')
        return -1;
    char *words = strdup(path + size + 1), *word = words, *slash;
    int parent = words ? of->directory : -1;
    while (parent >= 0 && (slash = strchr(word, '/'))) {
        *slash = '\0';
        bool known = !strcmp(word, "index") || (word == words && is_number(word));
        int below =
            known ? openat(parent, word, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                  : -1;
        if (parent != of->directory)
            close(parent);
        parent = below;
        word = slash + 1;
    }
    int opened = parent >= 0 && is_served(word) ? open_file(parent, word, info) : -1;
    if (parent >= 0 && parent != of->directory)
        close(parent);
    free(words);
    return opened;
}

/* A page that links to the shards, so that the viewer learns their names. */
static struct MHD_Response *index_page(const serve *of) {
    text out = {0};
    int listed = openat(of->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = listed < 0 ? NULL : fdopendir(listed);
    text_puts(&out, "<!doctype html>\n");
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (is_number(entry->d_name))
            text_format(&out, "<a href=\"%s/\">%s</a>\n", entry->d_name, entry->d_name);
    if (entries)
        closedir(entries);
    const char *made = text_string(&out);
    struct MHD_Response *response =
        out.failed ? NULL
                   : mhd.create_response_from_buffer(
                         out.size, (void *)(uintptr_t)made, MHD_RESPMEM_MUST_COPY);
    bags_buffer_free(&out.buffer);
    return response;
}

/* ---- requests ---- */

/* Respond, with headers that keep other pages out. */
static enum MHD_Result answer(struct MHD_Connection *to, unsigned status,
    struct MHD_Response *response, const char *type) {
    if (!response)
        return MHD_NO;
    const char *const headers[][2] = {{"Content-Type", type},
        {"X-Content-Type-Options", "nosniff"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Referrer-Policy", "no-referrer"}, {"X-Frame-Options", "DENY"},
        {"Cache-Control", "no-cache"}};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        mhd.add_response_header(response, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        mhd.add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = mhd.queue_response(to, status, response);
    mhd.destroy_response(response);
    return result;
}

static enum MHD_Result refuse(
    struct MHD_Connection *to, unsigned status, const char *why) {
    return answer(to, status,
        mhd.create_response_from_buffer(
            strlen(why), (void *)(uintptr_t)why, MHD_RESPMEM_PERSISTENT),
        "text/plain; charset=utf-8");
}

typedef struct host_header {
    const serve *of;
    unsigned count;
    bool valid;
} host_header;

static enum MHD_Result count_host(
    void *user, enum MHD_ValueKind kind, const char *key, const char *value) {
    host_header *host = (host_header *)user;
    (void)kind;
    if (!strcasecmp(key, "Host")) {
        host->count++;
        host->valid = value && (!strcmp(value, host->of->hosts[0]) ||
                                   !strcmp(value, host->of->hosts[1]));
    }
    return MHD_YES;
}

/* Takes the same time for every token. */
static bool is_token(const char *token, const char *word) {
    size_t size = strlen(token);
    unsigned char differs = 0;
    for (size_t i = 0; i < size; i++) {
        differs |= (unsigned char)(token[i] ^ *word);
        word += *word != '\0';
    }
    return !differs && *word == '/';
}

/* Parse "bytes=N-M" or "bytes=N-". Returns false if the whole file should be sent. */
static bool parse_range(
    const char *words, uint64_t size, uint64_t *start, uint64_t *stop) {
    uint64_t from, to = UINT64_MAX;
    if (!words || strncmp(words, "bytes=", 6))
        return false;
    const char *at = words + 6;
    if (!format_decimal(&at, NULL, &from) || *at++ != '-' ||
        (*at && !format_decimal(&at, NULL, &to)) || *at || to < from)
        return false;
    *start = from;
    *stop = to < size ? to + 1 : size;
    return true;
}

static enum MHD_Result send_file(
    const serve *of, struct MHD_Connection *to, const char *path) {
    struct stat info;
    struct tm when;
    char words[96];
    int opened = open_path(of, path, &info);
    if (opened < 0)
        return refuse(to, MHD_HTTP_NOT_FOUND, "no such file of the dataset\n");
    uint64_t size = (uint64_t)info.st_size, start = 0, stop = size;
    bool part = parse_range(
        mhd.lookup_connection_value(to, MHD_HEADER_KIND, "Range"), size, &start, &stop);
    if (part && start >= size) {
        close(opened);
        return refuse(to, MHD_HTTP_RANGE_NOT_SATISFIABLE, "the file is shorter\n");
    }
    struct MHD_Response *response =
        mhd.create_response_from_fd_at_offset64(stop - start, opened, start);
    if (!response) {
        close(opened);
        return MHD_NO;
    }
    mhd.add_response_header(response, "Accept-Ranges", "bytes");
    if (gmtime_r(&info.st_mtime, &when) &&
        strftime(words, sizeof words, "%a, %d %b %Y %H:%M:%S GMT", &when))
        mhd.add_response_header(response, "Last-Modified", words);
    if (part) {
        (void)snprintf(words, sizeof words, "bytes %ju-%ju/%ju", (uintmax_t)start,
            (uintmax_t)stop - 1, (uintmax_t)size);
        mhd.add_response_header(response, "Content-Range", words);
    }
    return answer(to, part ? MHD_HTTP_PARTIAL_CONTENT : MHD_HTTP_OK, response,
        "application/octet-stream");
}

/* Parse the numbers at the start of a path, each after a slash. The last may be up to
 * three numbers separated by colons. Returns how many there are, and sets *rest to the
 * rest of the path. */
static size_t parse_numbers(const char *at, uint64_t numbers[5], const char **rest) {
    size_t count = 0;
    char before = '/';
    while (count < 5 && *at == before) {
        at++;
        if (!format_decimal(&at, NULL, &numbers[count]))
            break;
        before = ++count < 3 ? '/' : ':';
    }
    *rest = at;
    return count;
}

static enum MHD_Result send_view(struct MHD_Connection *to, bags_view view) {
    return answer(to, MHD_HTTP_OK,
        mhd.create_response_from_buffer(
            view.size, (void *)(uintptr_t)view.data, MHD_RESPMEM_MUST_COPY),
        "application/octet-stream");
}

/* Respond to a request for datapoints: `path` follows "live". The server has one
 * thread. */
static enum MHD_Result send_live(
    serve *of, struct MHD_Connection *to, const char *path) {
    uint64_t numbers[5], items = 0;
    bags_view view = {NULL, 0};
    const char *rest;
    size_t count = parse_numbers(path, numbers, &rest);
    bags_error err;
    bags_code code =
        bags_fail(&err, BAGS_ERROR_ARGUMENT, "not an address of `bags view --live`");
    of->out.size = 0;
    of->out.failed = false;
    if (!*path) {
        code = live_state(of->following, &of->out, of->name, &err);
    } else if (!*rest && count == 2) {
        code = live_items(of->following, numbers[0], (size_t)numbers[1], &items, &err);
        text_format(&of->out, "%ju", (uintmax_t)items);
    } else if (!*rest && count == 3) {
        code = live_blob(
            of->following, numbers[0], (size_t)numbers[1], numbers[2], &view, &err);
    } else if (!*rest && count == 5) {
        code = live_curve(of->following, numbers[0], (size_t)numbers[1], numbers[2],
            numbers[3], numbers[4], &view, &err);
    }
    if (code) { /* refuse() keeps no copy of this text */
        bags_view why = {(const unsigned char *)err.message, strlen(err.message)};
        return answer(to, MHD_HTTP_NOT_FOUND,
            mhd.create_response_from_buffer(
                why.size, (void *)(uintptr_t)why.data, MHD_RESPMEM_MUST_COPY),
            "text/plain; charset=utf-8");
    }
    if (of->out.failed)
        return MHD_NO;
    if (of->out.size) {
        view.data = of->out.buffer.data;
        view.size = of->out.size;
    }
    return send_view(to, view);
}

/* Decode a part of an address in place. %00 stays as it is, since it would end the
 * name. */
static size_t unescape(void *user, struct MHD_Connection *from, char *words) {
    char *to = words;
    (void)user, (void)from;
    for (const char *at = words; *at; at++) {
        int high = *at == '%' ? format_hex(at[1]) : -1;
        int low = high >= 0 ? format_hex(at[2]) : -1;
        if (low < 0 || high + low == 0) {
            *to++ = *at;
            continue;
        }
        *to++ = (char)(16 * high + low);
        at += 2;
    }
    *to = '\0';
    return (size_t)(to - words);
}

static enum MHD_Result handle(void *user, struct MHD_Connection *to, const char *url,
    const char *method, const char *version, const char *upload, size_t *upload_size,
    void **state) {
    serve *of = (serve *)user;
    host_header host = {of, 0, false};
    (void)version, (void)upload, (void)state;
    if (*upload_size) { /* the body of a refused request */
        *upload_size = 0;
        return MHD_YES;
    }
    (void)mhd.get_connection_values(to, MHD_HEADER_KIND, count_host, &host);
    if (host.count != 1 || !host.valid)
        return refuse(to, MHD_HTTP_FORBIDDEN, "wrong Host header\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(to, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    if (url[0] != '/' || !is_token(of->token, url + 1))
        return refuse(to, MHD_HTTP_NOT_FOUND, "not an address of `bags view`\n");
    const char *path = url + 1 + strlen(of->token) + 1;
    if (!*path)
        return answer(to, MHD_HTTP_OK,
            mhd.create_response_from_buffer(of->page.size,
                (void *)(uintptr_t)of->page.data, MHD_RESPMEM_PERSISTENT),
            "text/html; charset=utf-8");
    if (of->following)
        return strncmp(path, "live", 4)
                   ? refuse(to, MHD_HTTP_NOT_FOUND, "no such file\n")
                   : send_live(of, to, path + 4);
    size_t size = of->path ? strlen(of->name) : 0;
    if (of->path && !of->file && !strncmp(path, of->name, size) &&
        !strcmp(path + size, "/"))
        return answer(to, MHD_HTTP_OK, index_page(of), "text/html; charset=utf-8");
    return of->path ? send_file(of, to, path)
                    : refuse(to, MHD_HTTP_NOT_FOUND, "no such file\n");
}

/* ---- start ---- */

/* Listen on 127.0.0.1 only. The port 0 becomes a free one. */
static bags_code listen_locally(uint16_t *port, int *out, bags_error *err) {
    struct sockaddr_in here = {0};
    socklen_t size = sizeof here;
    int yes = 1,
        opened = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    here.sin_family = AF_INET;
    here.sin_port = htons(*port);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (opened >= 0)
        (void)setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (opened < 0 || bind(opened, (struct sockaddr *)&here, sizeof here) ||
        listen(opened, 64) || getsockname(opened, (struct sockaddr *)&here, &size)) {
        int error = errno;
        if (opened >= 0)
            close(opened);
        return bags_fail(err, BAGS_ERROR_IO,
            "view: cannot listen on 127.0.0.1 port %u: %s%s", (unsigned)*port,
            strerror(error),
            error == EADDRINUSE ? "; choose another with --port, or leave it out" : "");
    }
    *port = ntohs(here.sin_port);
    *out = opened;
    return BAGS_OK;
}

static bags_code make_token(char token[2 * TOKEN_BYTES + 1], bags_error *err) {
    unsigned char random[TOKEN_BYTES];
    if (!secret_fill(random, sizeof random))
        return bags_fail_io(NULL, errno, "/dev/urandom", "read", err);
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(token + 2 * i, 3, "%02x", random[i]);
    return BAGS_OK;
}

/* Check the dataset, and open its directory. The last component of its path is its name
 * in addresses. */
static bags_code open_dataset(serve *of, const char *path, const serve_options *options,
    bags_error *remark, bags_error *err) {
    struct stat info;
    char parent[PATH_MAX];
    of->path = realpath(path, NULL);
    if (!of->path || stat(of->path, &info))
        return bags_fail_io(NULL, errno, path, "open", err);
    const char *last = strrchr(of->path, '/') + 1;
    of->name = *last ? last : "dataset";
    if (!S_ISDIR(info.st_mode)) {
        if (!has_ending(of->path, ".zip") && !has_ending(of->path, ".tar") &&
            !has_ending(of->path, ".bag"))
            return bags_fail(err, BAGS_ERROR_MISSING,
                "%s: neither a dataset nor a file that ends in .zip, .tar or .bag",
                path);
        of->file = last;
    } else if (!options->live) {
        bags_reader *reader = bags_reader_open(path, NULL, remark);
        if (reader)
            remark->code = BAGS_OK;
        else if (remark->code == BAGS_ERROR_MISSING) {
            *err = *remark;
            return err->code;
        }
        bags_reader_close(reader);
    }
    (void)snprintf(parent, sizeof parent, "%.*s", (int)(last - of->path), of->path);
    of->directory =
        open(of->file ? parent : of->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return of->directory < 0 ? bags_fail_io(NULL, errno, path, "open", err) : BAGS_OK;
}

/* Start the server. Its thread handles no signals: a program expects them in another
 * thread. */
static bags_code start(serve *of, uint16_t port, bags_error *err) {
    int opened = -1;
    sigset_t all, before;
    FORMAT_TRY(listen_locally(&port, &opened, err));
    for (size_t i = 0; i < 2; i++)
        (void)snprintf(of->hosts[i], sizeof of->hosts[i], "%s:%u",
            i ? "localhost" : "127.0.0.1", (unsigned)port);
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    of->daemon = mhd.start_daemon(MHD_USE_POLL_INTERNAL_THREAD, 0, NULL, NULL, handle,
        of, MHD_OPTION_LISTEN_SOCKET, opened, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
        NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MOST,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (of->daemon)
        return BAGS_OK;
    /* The library has closed the socket after some failures, but not after all. */
    return bags_fail(
        err, BAGS_ERROR_IO, "view: cannot start the server on port %u", (unsigned)port);
}

static bags_code open_all(serve *of, const char *path, const serve_options *options,
    bags_error *remark, bags_error *err) {
    const char *named = options->shown ? options->shown : path;
    size_t scheme = strcspn(path, ":/\\");
    bool remote = scheme > 1 && !strncmp(path + scheme, "://", 3);
    bags_path_kind kind = BAGS_PATH_NONE;
    remark->code = BAGS_OK;
    FORMAT_TRY(serve_check(err));
    if (remote && strncmp(path, "http://", 7) != 0 && strncmp(path, "https://", 8) != 0)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: a browser needs an http:// or https:// address; for S3, use the "
            "address of the bucket",
            named);
    if (options->live && !remote)
        (void)bags_io_local()->kind(NULL, path, &kind);
    if (options->live && kind != BAGS_PATH_DIRECTORY)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "--live: %s is not a local directory; its writer must run on this computer",
            named);
    of->page = options->page;
    if (!remote)
        FORMAT_TRY(open_dataset(of, path, options, remark, err));
    if (options->live) {
        of->following = live_open(path, options->registry, err);
        if (!of->following)
            return err->code;
    }
    FORMAT_TRY(make_token(of->token, err));
    FORMAT_TRY(start(of, options->port, err));
    char *escaped = remote ? NULL : format_url(of->name, "", NULL);
    const char *shown = remote ? path : escaped;
    if (options->live)
        text_format(&of->address, "http://%s/%s/#live", of->hosts[0], of->token);
    else if (shown)
        text_format(
            &of->address, "http://%s/%s/#ds=%s", of->hosts[0], of->token, shown);
    (void)text_string(&of->address);
    free(escaped);
    return !shown || of->address.failed
               ? bags_fail(err, BAGS_ERROR_MEMORY, "out of memory")
               : BAGS_OK;
}

serve *serve_open(const char *path, const serve_options *options, bags_error *remark,
    bags_error *err) {
    serve *of = (serve *)calloc(1, sizeof *of);
    if (!of) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    of->directory = -1;
    if (open_all(of, path, options, remark, err)) {
        serve_close(of);
        return NULL;
    }
    return of;
}

const char *serve_address(const serve *of) {
    return (const char *)of->address.buffer.data;
}

void serve_close(serve *of) {
    if (!of)
        return;
    if (of->daemon)
        mhd.stop_daemon(of->daemon);
    live_close(of->following);
    if (of->directory >= 0)
        close(of->directory);
    bags_buffer_free(&of->address.buffer);
    bags_buffer_free(&of->out.buffer);
    free(of->path);
    free(of);
}

#else

bags_code serve_check(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_MISSING,
        "view: this bags was built without libmicrohttpd; install it and build again, "
        "or "
        "open viewer.html (`make viewer`) in a browser and drop the dataset there");
}

serve *serve_open(const char *path, const serve_options *options, bags_error *remark,
    bags_error *err) {
    (void)path, (void)options, (void)remark;
    (void)serve_check(err);
    return NULL;
}

const char *serve_address(const serve *of) {
    (void)of;
    return "";
}

void serve_close(serve *of) { (void)of; }

#endif
