/*
 * bags view: show a dataset in a browser.
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
#include "command.h"
#include "system.h"

#include "files.h"
#include "text.h"

static option_number port = {0, 1, 65535, false};
static bool no_browser, live;

static const option options[] = {
    {"port", OPTION_NUMBER, &port, "P", "listen on this port (default: any free one)"},
    {"no-browser", OPTION_FLAG, &no_browser, NULL, "only print the address"},
    {"live", OPTION_FLAG, &live, NULL,
        "follow a running writer: show the datapoints that were flushed, and whether a "
        "writer holds the lock"},
    OPTIONS_END,
};

#if defined(COMMAND_WITH_LIBMICROHTTPD) && defined(__linux__)

#include <arpa/inet.h>
#include <dlfcn.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

#define TOKEN_BYTES 16
#define CONNECTIONS_MOST 256
#define IDLE_SECONDS 10

/* Loading this library and its dependencies takes as long as the entire command. The
 * main thread is the first to call this. */
static void *library_find(const char *symbol) {
    static void *library;
    if (!library)
        library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, symbol) : NULL;
    if (!found)
        fail(BAGS_ERROR_MISSING, "view: cannot open libmicrohttpd: %s", dlerror());
    return found;
}

#define MHD(symbol) (__extension__(__typeof__(&symbol)) library_find(#symbol))

static const char *token, *name; /* the dataset's, in addresses; NULL: it is remote */
static int directory = -1;       /* of the dataset, or of the parent of the file */
static const char *file;         /* an archive or a Bag; NULL: a directory */
static bags_view page;
static char hosts[2][32];

/* ---- the page ---- */

/* Find the page: at BAGS_VIEWER, or next to the command, where `make install` and `make
 * viewer` put it. */
static void page_find(void) {
    static bags_buffer memory;
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    program[size < 0 ? 0 : size] = '\0';
    const char *parent = path_parent(program), *path = getenv("BAGS_VIEWER");
    if (!path || !*path) {
        path = string_format("%s/../share/bags/viewer.html", parent);
        if (!path_exists(path))
            path = string_format("%s/../viewer.html", parent);
    }
    if (!path_exists(path))
        fail(BAGS_ERROR_MISSING,
            "%s: not found; build it with `make viewer`, or set BAGS_VIEWER to its "
            "path",
            path);
    page = file_read(path, &memory);
}

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
static int open_path(const char *path, struct stat *info) {
    size_t size = strlen(name);
    if (file) {
        /* The checksums and the journal of a Bag are next to it. */
        bool bag = has_ending(file, ".bag");
        bool beside = bag && strlen(path) == size &&
                      !strncmp(path, name, size - strlen(".bag")) &&
                      (has_ending(path, ".crc") || has_ending(path, ".idx"));
        if (strcmp(path, name) != 0 && !beside)
            return -1;
        return open_file(directory, beside ? path : file, info);
    }
    if (strncmp(path, name, size) != 0 || path[size] != '/')
        return -1;
    char *words = string_format("%s", path + size + 1), *word = words, *slash;
    int parent = directory;
    while ((slash = strchr(word, '/')) && parent >= 0) {
        *slash = '\0';
        bool known = !strcmp(word, "index") || (word == words && is_number(word));
        int below =
            known ? openat(parent, word, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                  : -1;
        if (parent != directory)
            close(parent);
        parent = below;
        word = slash + 1;
    }
    int opened = parent >= 0 && is_served(word) ? open_file(parent, word, info) : -1;
    if (parent >= 0 && parent != directory)
        close(parent);
    free(words);
    return opened;
}

/* A page that links to the shards, so that the viewer learns their names. */
static struct MHD_Response *index_page(void) {
    text out = {0};
    int listed = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = listed < 0 ? NULL : fdopendir(listed);
    text_puts(&out, "<!doctype html>\n");
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (is_number(entry->d_name))
            text_format(&out, "<a href=\"%s/\">%s</a>\n", entry->d_name, entry->d_name);
    if (entries)
        closedir(entries);
    return MHD(MHD_create_response_from_buffer)(
        out.size, (void *)(uintptr_t)text_string(&out), MHD_RESPMEM_MUST_FREE);
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
        MHD(MHD_add_response_header)(response, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD(MHD_add_response_header)(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD(MHD_queue_response)(to, status, response);
    MHD(MHD_destroy_response)(response);
    return result;
}

static enum MHD_Result refuse(
    struct MHD_Connection *to, unsigned status, const char *why) {
    return answer(to, status,
        MHD(MHD_create_response_from_buffer)(
            strlen(why), (void *)(uintptr_t)why, MHD_RESPMEM_PERSISTENT),
        "text/plain; charset=utf-8");
}

typedef struct host_header {
    unsigned count;
    bool valid;
} host_header;

static enum MHD_Result count_host(
    void *user, enum MHD_ValueKind kind, const char *key, const char *value) {
    host_header *host = (host_header *)user;
    (void)kind;
    if (!strcasecmp(key, "Host")) {
        host->count++;
        host->valid = value && (!strcmp(value, hosts[0]) || !strcmp(value, hosts[1]));
    }
    return MHD_YES;
}

/* Takes the same time for every token. */
static bool is_token(const char *word) {
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

static enum MHD_Result send_file(struct MHD_Connection *to, const char *path) {
    struct stat info;
    struct tm when;
    char words[96];
    int opened = open_path(path, &info);
    if (opened < 0)
        return refuse(to, MHD_HTTP_NOT_FOUND, "no such file of the dataset\n");
    uint64_t size = (uint64_t)info.st_size, start = 0, stop = size;
    bool part =
        parse_range(MHD(MHD_lookup_connection_value)(to, MHD_HEADER_KIND, "Range"),
            size, &start, &stop);
    if (part && start >= size) {
        close(opened);
        return refuse(to, MHD_HTTP_RANGE_NOT_SATISFIABLE, "the file is shorter\n");
    }
    struct MHD_Response *response =
        MHD(MHD_create_response_from_fd_at_offset64)(stop - start, opened, start);
    if (!response) {
        close(opened);
        return MHD_NO;
    }
    MHD(MHD_add_response_header)(response, "Accept-Ranges", "bytes");
    if (gmtime_r(&info.st_mtime, &when) &&
        strftime(words, sizeof words, "%a, %d %b %Y %H:%M:%S GMT", &when))
        MHD(MHD_add_response_header)(response, "Last-Modified", words);
    if (part) {
        (void)snprintf(words, sizeof words, "bytes %ju-%ju/%ju", (uintmax_t)start,
            (uintmax_t)stop - 1, (uintmax_t)size);
        MHD(MHD_add_response_header)(response, "Content-Range", words);
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
        MHD(MHD_create_response_from_buffer)(
            view.size, (void *)(uintptr_t)view.data, MHD_RESPMEM_MUST_COPY),
        "application/octet-stream");
}

/* Respond to a request for datapoints: `path` follows "live". The server has one
 * thread. */
static enum MHD_Result send_live(struct MHD_Connection *to, const char *path) {
    static text out;
    uint64_t numbers[5], items = 0;
    bags_view view = {NULL, 0};
    const char *rest;
    size_t count = parse_numbers(path, numbers, &rest);
    bool good = false;
    out.size = 0;
    bags_fail(&failure, BAGS_ERROR_ARGUMENT, "not an address of `bags view --live`");
    if (!*path) {
        live_state(&out, name);
        good = true;
    } else if (!*rest && count == 2) {
        good = live_items(numbers[0], (size_t)numbers[1], &items);
        text_format(&out, "%ju", (uintmax_t)items);
    } else if (!*rest && count == 3) {
        good = live_blob(numbers[0], (size_t)numbers[1], numbers[2], &view);
    } else if (!*rest && count == 5) {
        good = live_curve(
            numbers[0], (size_t)numbers[1], numbers[2], numbers[3], numbers[4], &view);
    }
    if (!good) { /* refuse() keeps no copy of this text */
        bags_view why = {
            (const unsigned char *)failure.message, strlen(failure.message)};
        return answer(to, MHD_HTTP_NOT_FOUND,
            MHD(MHD_create_response_from_buffer)(
                why.size, (void *)(uintptr_t)why.data, MHD_RESPMEM_MUST_COPY),
            "text/plain; charset=utf-8");
    }
    if (out.size) {
        view.data = out.buffer.data;
        view.size = out.size;
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
    host_header host = {0, false};
    (void)user, (void)version, (void)upload, (void)state;
    if (*upload_size) { /* the body of a refused request */
        *upload_size = 0;
        return MHD_YES;
    }
    (void)MHD(MHD_get_connection_values)(to, MHD_HEADER_KIND, count_host, &host);
    if (host.count != 1 || !host.valid)
        return refuse(to, MHD_HTTP_FORBIDDEN, "wrong Host header\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(to, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    if (url[0] != '/' || !is_token(url + 1))
        return refuse(to, MHD_HTTP_NOT_FOUND, "not an address of `bags view`\n");
    const char *path = url + 1 + strlen(token) + 1;
    if (!*path)
        return answer(to, MHD_HTTP_OK,
            MHD(MHD_create_response_from_buffer)(
                page.size, (void *)(uintptr_t)page.data, MHD_RESPMEM_PERSISTENT),
            "text/html; charset=utf-8");
    if (live)
        return strncmp(path, "live", 4)
                   ? refuse(to, MHD_HTTP_NOT_FOUND, "no such file\n")
                   : send_live(to, path + 4);
    size_t size = name ? strlen(name) : 0;
    if (name && !file && !strncmp(path, name, size) && !strcmp(path + size, "/"))
        return answer(to, MHD_HTTP_OK, index_page(), "text/html; charset=utf-8");
    return name ? send_file(to, path)
                : refuse(to, MHD_HTTP_NOT_FOUND, "no such file\n");
}

/* ---- start ---- */

/* Listen on 127.0.0.1 only. Sets the port. */
static int listen_locally(void) {
    struct sockaddr_in here = {0};
    socklen_t size = sizeof here;
    int yes = 1,
        opened = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    here.sin_family = AF_INET;
    here.sin_port = htons((uint16_t)port.value);
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (opened >= 0)
        (void)setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (opened < 0 || bind(opened, (struct sockaddr *)&here, sizeof here) ||
        listen(opened, 64) || getsockname(opened, (struct sockaddr *)&here, &size))
        fail(BAGS_ERROR_IO, "view: cannot listen on 127.0.0.1 port %ju: %s%s",
            (uintmax_t)port.value, strerror(errno),
            errno == EADDRINUSE ? "; choose another with --port, or leave it out" : "");
    port.value = ntohs(here.sin_port);
    return opened;
}

static const char *make_token(void) {
    unsigned char random[TOKEN_BYTES];
    text out = {0};
    if (!secret_fill(random, sizeof random))
        fail_system(errno, "/dev/urandom", "read");
    for (size_t i = 0; i < sizeof random; i++)
        text_format(&out, "%02x", random[i]);
    return text_string(&out);
}

/* Check the dataset, and open its directory. The last component of its path is its name
 * in addresses. */
static void open_dataset(const char *path) {
    struct stat info;
    char *real = realpath(path, NULL);
    if (!real || stat(real, &info))
        fail_system(errno, path, "open");
    const char *last = strrchr(real, '/');
    name = *++last ? last : "dataset";
    if (!S_ISDIR(info.st_mode)) {
        if (!has_ending(real, ".zip") && !has_ending(real, ".tar") &&
            !has_ending(real, ".bag"))
            fail(BAGS_ERROR_MISSING,
                "%s: neither a dataset nor a file that ends in .zip, .tar or .bag",
                path);
        file = last;
    } else if (!live) {
        bags_reader *reader = bags_reader_open(path, NULL, &failure);
        if (!reader && failure.code == BAGS_ERROR_MISSING)
            die();
        if (!reader) /* the page shows as much as can be read */
            note_failure();
        bags_reader_close(reader);
    }
    directory = open(file ? path_parent(real) : real, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        fail_system(errno, path, "open");
}

/* Open the address in a child process, and discard its output. */
static void open_browser(const char *address) {
    if (no_browser || !(getenv("DISPLAY") || getenv("WAYLAND_DISPLAY")))
        return;
    pid_t child = fork();
    if (child != 0)
        return;
    int null = open("/dev/null", O_RDWR);
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(null, STDOUT_FILENO);
    (void)dup2(null, STDERR_FILENO);
    struct rlimit open_files; /* programs may close every descriptor below the limit */
    if (!getrlimit(RLIMIT_NOFILE, &open_files) && open_files.rlim_cur > 1024) {
        open_files.rlim_cur = 1024;
        setrlimit(RLIMIT_NOFILE, &open_files);
    }
    execlp("xdg-open", "xdg-open", address, (char *)NULL);
    _exit(127);
}

static int run(char **operands) {
    const char *path = operands[0];
    bool remote = path_is_remote(path);
    (void)MHD(MHD_start_daemon);
    page_find();
    if (remote && strncmp(path, "http://", 7) != 0 && strncmp(path, "https://", 8) != 0)
        usage("%s: a browser needs an http:// or https:// address; for S3, use the "
              "address of the bucket",
            path_without_secrets(operands[0]));
    if (live && (remote || path_kind(path) != BAGS_PATH_DIRECTORY))
        usage(
            "--live: %s is not a local directory; its writer must run on this computer",
            path_without_secrets(operands[0]));
    if (!remote)
        open_dataset(path);
    if (live)
        live_open(path);
    token = make_token();
    int opened = listen_locally();
    for (size_t i = 0; i < 2; i++)
        (void)snprintf(hosts[i], sizeof hosts[i], "%s:%ju",
            i ? "localhost" : "127.0.0.1", (uintmax_t)port.value);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (!MHD(MHD_start_daemon)(MHD_USE_POLL_INTERNAL_THREAD, 0, NULL, NULL, handle,
            NULL, MHD_OPTION_LISTEN_SOCKET, opened, MHD_OPTION_UNESCAPE_CALLBACK,
            unescape, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MOST,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END))
        fail(BAGS_ERROR_IO, "view: cannot start the server on port %ju",
            (uintmax_t)port.value);
    const char *shown = remote ? path : format_url(name, "", NULL);
    if (!shown)
        bags_fail(&failure, BAGS_ERROR_MEMORY, "out of memory");
    must_open(shown);
    const char *address =
        live ? string_format("http://%s/%s/#live", hosts[0], token)
             : string_format("http://%s/%s/#ds=%s", hosts[0], token, shown);
    interrupt_leaves("", NULL, NULL);
    print("%s\n", address);
    if (fflush(stdout))
        fail_system(errno, "standard output", "write");
    open_browser(address);
    for (;;)
        pause();
}

#else

static int run(char **operands) {
    (void)operands;
    fail(BAGS_ERROR_MISSING,
        "view: this bags was built without libmicrohttpd; install it and build again, "
        "or "
        "open viewer.html (`make viewer`) in a browser and drop the dataset there");
}

#endif

const command command_view = {"view", "show a dataset in a browser", "PATH|URL",
    {ARGUMENT_PATH}, 1, 1, options, NULL,
    "Serves a dataset, a zip or tar file or a Bag, and the page that shows it, to the "
    "browser of this computer, and prints the address. It is new each time, and others "
    "cannot read the dataset without it. Nothing is written, and symbolic links are "
    "not followed. Ctrl-C ends it. A dataset at a URL is read by the browser itself, "
    "if the server allows it (the header Access-Control-Allow-Origin).\n",
    "  bags view pets\n  bags view pets.zip --port 8000 --no-browser\n", run};
