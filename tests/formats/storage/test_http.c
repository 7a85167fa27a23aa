/* The hooks of formats/storage/http.c, from a server of this program: threads, what is read
 * with how many requests, and what ends them. tests/command/remote.py tests what
 * servers do wrong. */
// flavours: test: release; check: asan tsan
#include "../../../formats/storage/transfer.h"

#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the server: a thread per connection; files are read when requested ---- */

/* What differs between two versions of a file: an ETag, the time of the last change, or
 * both; an ETag that is a hash of 32 digits, as MD5, or of eight. */
enum { BY_VERSION, BY_TIME, BY_BOTH, BY_HASH, BY_SHORT_HASH, BY_NOTHING };

/* How the names in a directory are found: not at all, from an index page, or by the API
 * of S3. */
enum { PROBING, INDEX, S3 };

#define NEVER UINT_MAX

static struct {
    struct sockaddr_in address;
    int socket, port;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t arrived, left;
    unsigned connections;
    unsigned requests, delay /* ms */, version;
    unsigned together; /* nothing is answered before this number of requests came */
    unsigned changed;  /* after this many requests the version is the next */
    unsigned busy;     /* this many requests are answered with 503 */
    bool silent;       /* do not answer */
    bool versions;     /* they are in old/ and in new/ */
    int listing, identified;
    char root[2048];
} server = {{0}, -1, 0, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
    PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, 0, NEVER, 0, false, false, PROBING,
    BY_VERSION, ""};

static void pause_ms(unsigned ms) {
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void send_all(int to, const void *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        data = (const char *)data + sent;
        size -= (size_t)sent;
    }
}

/* One call for an answer: every packet wakes a thread. */
static void send_answer(
    int to, const char *status, const char *headers, const void *body, size_t size) {
    bytes all = {0};
    put_format(
        &all, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status, headers, size);
    put(&all, body, size);
    send_all(to, all.data, all.size);
    bytes_free(&all);
}

/* The names in a directory: an index page or, with the `prefix` of a request to S3, what
 * it lists. Those without a dot are directories. */
static void send_names(int to, const char *directory, const char *prefix) {
    bytes page = {0};
    char *names = names_in(directory), *rest = NULL;
    for (char *name = strtok_r(names, " ", &rest); name;
         name = strtok_r(NULL, " ", &rest)) {
        bool file = strchr(name, '.') != NULL;
        if (prefix)
            put_format(&page, file ? "<Key>%s%s</Key>" : "<Prefix>%s%s/</Prefix>",
                prefix, name);
        else
            put_format(&page, "<a href=\"%s%s\">", name, file ? "" : "/");
    }
    send_answer(to, "200 X",
        prefix ? "Content-Type: application/xml\r\n" : "Content-Type: text/html\r\n",
        page.data, page.size);
    bytes_free(&page);
    free(names);
}

/* Not the CRC, which is the same for all bytes that end with their own. */
static unsigned hash_of(const bytes *file) {
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < file->size; i++)
        hash = (hash ^ file->data[i]) * 16777619u;
    return hash;
}

/* The headers that identify this version of a file, and its ETag. */
static void identify(int identified, unsigned version, const bytes *file, char etag[64],
    char headers[256]) {
    snprintf(etag, 64, "\"v%u\"", version);
    if (identified == BY_HASH || identified == BY_SHORT_HASH)
        snprintf(etag, 64, "\"%0*x\"", identified == BY_HASH ? 32 : 8, hash_of(file));
    *headers = '\0';
    if (identified != BY_TIME && identified != BY_NOTHING)
        snprintf(headers, 128, "ETag: %s\r\n", etag);
    if (identified == BY_TIME || identified == BY_BOTH)
        snprintf(headers + strlen(headers), 128,
            "Last-Modified: Mon, 23 Nov 2026 12:00:0%u GMT\r\n", version);
}

/* The range of a file that is requested, or all of it. */
static void send_file(
    int to, const char *request, const char *path, int identified, unsigned version) {
    bytes all = load(path);
    unsigned long first = 0, last = 0;
    const char *range = strstr(request, "Range: bytes=");
    const char *tag = strstr(request, "If-Match: ");
    char etag[64], headers[384];
    identify(identified, version, &all, etag, headers);
    if (range && sscanf(range, "Range: bytes=-%lu", &last) == 1) {
        first = last < all.size ? all.size - last : 0;
        last = all.size - 1;
    } else if (!range || sscanf(range, "Range: bytes=%lu-%lu", &first, &last) != 2) {
        last = all.size - 1;
    }
    last = last < all.size ? last : all.size - 1;
    char *more = headers + strlen(headers);
    if (tag && strncmp(tag + 10, etag, strlen(etag)) != 0) {
        send_answer(to, "412 X", "", NULL, 0);
    } else if (first >= all.size) {
        snprintf(more, 128, "Content-Range: bytes */%zu\r\n", all.size);
        send_answer(to, "416 X", headers, NULL, 0);
    } else {
        snprintf(
            more, 128, "Content-Range: bytes %lu-%lu/%zu\r\n", first, last, all.size);
        send_answer(to, "206 X", headers, all.data + first, last - first + 1);
    }
    bytes_free(&all);
}

static void answer(int to, const char *request) {
    char path[512] = "", encoded[256] = "", prefix[256] = "", local[3000];
    pthread_mutex_lock(&server.lock);
    server.requests++;
    pthread_cond_broadcast(&server.arrived);
    while (server.requests < server.together)
        pthread_cond_wait(&server.arrived, &server.lock);
    unsigned delay = server.delay, version = server.version;
    version += server.requests > server.changed;
    bool silent = server.silent, busy = server.requests <= server.busy;
    int identified = server.identified, listing = server.listing;
    sscanf(request, "GET /%500[^? ]", path);
    const char *query = strstr(request, "&prefix=");
    if (listing == S3 && query)
        sscanf(query, "&prefix=%250[^& ]", encoded);
    for (const char *at = encoded, *slash; *at; at = slash) {
        slash = strstr(at, "%2F");
        strncat(prefix, at, slash ? (size_t)(slash - at) : strlen(at));
        strcat(prefix, slash ? "/" : "");
        slash = slash ? slash + 3 : at + strlen(at);
    }
    snprintf(local, sizeof local, "%s/%s%s%s", server.root,
        !server.versions ? ""
        : version        ? "new/"
                         : "old/",
        path, prefix);
    pthread_mutex_unlock(&server.lock);
    if (delay)
        pause_ms(delay);
    if (silent)
        return;
    if (busy) {
        send_answer(to, "503 X", "", NULL, 0);
        return;
    }
    size_t size = strlen(local);
    bool directory = local[size - 1] == '/';
    if (!exists(local) || (directory ? listing == PROBING : !strchr(path, '.')))
        send_answer(to, "404 X", "", NULL, 0);
    else if (directory)
        send_names(to, local, listing == S3 ? prefix : NULL);
    else
        send_file(to, request, local, identified, version);
}

static void *serve_connection(void *user) {
    int from = (int)(intptr_t)user;
    char request[8192];
    size_t size = 0;
    for (;;) {
        ssize_t got = recv(from, request + size, sizeof request - 1 - size, 0);
        if (got <= 0)
            break;
        size += (size_t)got;
        request[size] = '\0';
        char *end = strstr(request, "\r\n\r\n");
        if (!end)
            continue;
        answer(from, request);
        size = 0;
    }
    close(from);
    pthread_mutex_lock(&server.lock);
    server.connections--;
    pthread_cond_broadcast(&server.left);
    pthread_mutex_unlock(&server.lock);
    return NULL;
}

static void *serve(void *user) {
    (void)user;
    for (;;) {
        int one = 1, from = accept(server.socket, NULL, NULL);
        pthread_t thread;
        if (from < 0)
            return NULL;
        setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_mutex_lock(&server.lock);
        server.connections++;
        pthread_mutex_unlock(&server.lock);
        if (pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)from) ==
            0)
            pthread_detach(thread);
    }
}

static int server_start(void **state) {
    socklen_t size = sizeof server.address;
    struct sockaddr *address = (struct sockaddr *)&server.address;
    (void)state;
    server.address.sin_family = AF_INET;
    server.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server.socket = socket(AF_INET, SOCK_STREAM, 0);
    if (server.socket < 0 || bind(server.socket, address, size) ||
        listen(server.socket, 512) || getsockname(server.socket, address, &size))
        return 1;
    server.port = ntohs(server.address.sin_port);
    return pthread_create(&server.thread, NULL, serve, NULL);
}

static void server_set(unsigned delay, unsigned version, bool silent) {
    pthread_mutex_lock(&server.lock);
    server.delay = delay;
    server.version = version;
    server.silent = silent;
    server.busy = 0;
    server.changed = NEVER;
    server.together = 0;
    server.versions = false;
    server.listing = PROBING;
    server.identified = BY_VERSION;
    snprintf(server.root, sizeof server.root, "%s", at("."));
    server.requests = 0;
    pthread_mutex_unlock(&server.lock);
}

/* After `changed` requests it has the next version: what is in new/ in place of old/. */
static void server_change(unsigned changed, int listing, int identified) {
    server_set(0, 0, false);
    pthread_mutex_lock(&server.lock);
    server.changed = changed;
    server.versions = true;
    server.listing = listing;
    server.identified = identified;
    pthread_mutex_unlock(&server.lock);
}

static unsigned server_requests(void) {
    pthread_mutex_lock(&server.lock);
    unsigned requests = server.requests;
    server.requests = 0;
    pthread_mutex_unlock(&server.lock);
    return requests;
}

/* The number of requests, when all connections that the clients have closed are at their
 * end: they were accepted before a last one. */
static unsigned server_end(void) {
    char request[] = "GET / HTTP/1.1\r\n\r\n";
    int last = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(
        connect(last, (struct sockaddr *)&server.address, sizeof server.address), 0);
    send_all(last, request, strlen(request));
    assert_true(recv(last, request, sizeof request, 0) > 0);
    close(last);
    pthread_mutex_lock(&server.lock);
    while (server.connections)
        pthread_cond_wait(&server.left, &server.lock);
    pthread_mutex_unlock(&server.lock);
    return server_requests() - 1;
}

/* ---- what is read ---- */

#define ROWS 60
#define SIZE 20000

static bags_http *http;

static const char *url(const char *path) {
    static char out[256];
    snprintf(out, sizeof out, "http://127.0.0.1:%d/%s", server.port, path);
    return out;
}

static void make_dataset(uint64_t shard_length) {
    bags_field fields[] = {{"data", "bytes"}, {"n", "int(4)"}};
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.shard_length = shard_length;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(at("ds"), fields, 2, &options, &said));
    for (int i = 0; i < ROWS; i++) {
        static unsigned char blob[SIZE];
        fill(blob, sizeof blob, (uint64_t)i);
        bags_value data = bags_bytes(blob, sizeof blob), n = bags_int(i);
        bags_entry entries[] = {{"data", &data, 1}, {"n", &n, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* A slow machine is no silent server: most tests wait long for an answer. */
static bags_reader *open_remote(int seconds) {
    bags_http_options options;
    bags_reader_options reading;
    bags_reader *reader = NULL;
    memset(&options, 0, sizeof options);
    memset(&reading, 0, sizeof reading);
    options.retry_seconds = seconds;
    options.stall_seconds = seconds;
    for (int i = 0; i < 60 && !reader; i++) {
        bags_http_close(i ? http : NULL);
        assert_opens(http, bags_http_open(&options, &said));
        reading.env.io = bags_http_io(http);
        reader = bags_reader_open(url("ds"), &reading, &said);
        /* A slow machine may take longer than a silent server is waited for. */
        if (!reader && !contains(said.message, "stalled"))
            break;
    }
    CHECK(is_open(reader != NULL, "bags_reader_open"));
    return reader;
}

static bool is_row(bags_view blob, uint64_t i) {
    unsigned char expected[SIZE];
    fill(expected, sizeof expected, i);
    return blob.size == SIZE && !memcmp(blob.data, expected, SIZE);
}

static void *read_all(void *user) {
    const bags_reader *reader = (const bags_reader *)user;
    bags_row row = {0};
    uint64_t indices[8], random = (uint64_t)(uintptr_t)&row;
    size_t wrong = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 8; i++)
            indices[i] = next_random(&random) % ROWS;
        if (round % 3 == 0 &&
            bags_reader_prefetch(reader, indices, 8, NULL, 0, &row, NULL))
            wrong++;
        if (bags_reader_get_many(reader, indices, 8, 0, &row, NULL))
            wrong++;
        for (size_t i = 0; i < 8; i++)
            wrong += !is_row(bags_row_bytes(&row, 0, i), indices[i]);
        if (bags_reader_get(reader, indices[0], NULL, 0, &row, NULL))
            wrong++;
        wrong += !is_row(bags_row_bytes(&row, 0, 0), indices[0]);
    }
    bags_row_free(&row);
    return (void *)(uintptr_t)wrong;
}

static void threads_share_a_reader(void **state) {
    pthread_t threads[3];
    (void)state;
    server_set(0, 0, false);
    make_dataset(7);
    bags_reader *reader = open_remote(100);
    assert_int_equal(bags_reader_length(reader), ROWS);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, reader), 0);
    for (int i = 0; i < 3; i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    bags_reader_close(reader);
    bags_http_close(http);
}

static void a_batch_takes_one_round_trip(void **state) {
    static const uint64_t some[] = {3, 50, 12, 31, 44, 20, 7, 55};
    bags_row row = {0};
    bags_select data = bags_select_all(0);
    uint64_t requests, received;
    (void)state;
    server_set(0, 0, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    assert_ok(bags_reader_get_many(reader, some, 1, 0, &row, &said));
    server_set(0, 0, false);
    pthread_mutex_lock(&server.lock);
    server.together = 7;
    pthread_mutex_unlock(&server.lock);
    assert_ok(bags_reader_get_many(reader, some + 1, 7, 0, &row, &said));
    for (size_t i = 0; i < 7; i++)
        assert_true(is_row(bags_row_bytes(&row, 0, i), some[i + 1]));
    assert_int_equal(server_requests(), 7);
    bags_http_counts(http, &requests, &received);
    assert_true(requests >= 8 && received >= 8 * SIZE);
    /* What was prefetched is not requested again. */
    static const uint64_t others[] = {1, 25, 38};
    server_set(0, 0, false);
    assert_ok(bags_reader_prefetch(reader, others, 3, &data, 1, &row, &said));
    assert_ok(bags_reader_get_many(reader, others, 3, 0, &row, &said));
    assert_true(server_requests() <= 3);
    assert_true(is_row(bags_row_bytes(&row, 0, 2), 38));
    assert_ok(bags_reader_get_many(reader, others, 3, 0, &row, &said));
    assert_int_equal(server_requests(), 0);
    /* A part is one request, of its bytes; less than 16 KiB would be widened. */
    enum { FROM = 1000, PART = 17000 };
    static unsigned char copy[PART];
    bags_view part, blob;
    uint64_t before = 0;
    bags_http_counts(http, &requests, &before);
    assert_ok(bags_reader_get_part(reader, 40, 0, 0, FROM, PART, &row, &part, &said));
    bags_http_counts(http, &requests, &received);
    assert_int_equal(server_requests(), 1);
    assert_int_equal(received - before, PART);
    assert_int_equal(part.size, PART);
    memcpy(copy, part.data, PART);
    assert_ok(bags_reader_get_blob(reader, 40, 0, 0, &row, &blob, &said));
    assert_true(is_row(blob, 40));
    assert_memory_equal(copy, blob.data + FROM, PART);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

/* Every other row: ranges that are too far apart for one request. */
#define APART (ROWS / 2)

static const uint64_t *rows_apart(void) {
    static uint64_t out[APART];
    for (size_t i = 0; i < APART; i++)
        out[i] = ROWS - 2 - 2 * i;
    return out;
}

static void several_threads_read_a_large_batch(void **state) {
    bags_row row = {0};
    (void)state;
    server_set(0, 0, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    static const uint64_t other = 1;
    assert_ok(bags_reader_get_many(reader, &other, 1, 0, &row, &said));
    server_set(20, 0, false);
    assert_ok(bags_reader_get_many(reader, rows_apart(), APART, 0, &row, &said));
    assert_int_equal(server_requests(), APART);
    for (size_t i = 0; i < APART; i++)
        assert_true(is_row(bags_row_bytes(&row, 0, i), rows_apart()[i]));
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

/* What arrived before the change is not returned with what was refused after it. */
static void an_object_that_changes_within_a_batch_is_an_error(void **state) {
    static const uint64_t other = 1;
    bags_row row = {0};
    (void)state;
    server_set(0, 1, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    assert_ok(bags_reader_get_many(reader, &other, 1, 0, &row, &said));
    server_set(0, 1, false);
    pthread_mutex_lock(&server.lock);
    server.changed = APART / 2;
    pthread_mutex_unlock(&server.lock);
    assert_fails(BAGS_ERROR_CHANGED,
        bags_reader_get_many(reader, rows_apart(), APART, 0, &row, &said));
    assert_int_equal(said.system, ESTALE);
    assert_says("data.bag: cannot read: *changed while");
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

static void a_changed_object_is_an_error_until_the_end(void **state) {
    static const uint64_t some[] = {1, 30, 40};
    bags_row row = {0};
    (void)state;
    server_set(0, 1, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    assert_ok(bags_reader_get_many(reader, some, 1, 0, &row, &said));
    server_set(0, 2, false);
    for (int i = 0; i < 2; i++) {
        assert_fails(BAGS_ERROR_CHANGED,
            bags_reader_get_many(reader, some + 1, 1, 0, &row, &said));
        assert_int_equal(said.system, ESTALE);
        assert_says("http://127.0.0.1:*/ds/*: cannot read: *while open");
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

/* ---- the engine alone: without datasets ---- */

/* What `ended` was told of a request. */
typedef struct ending {
    unsigned count;
    bool good;
    int error;
    char why[256], body[64];
    bags_identity identity;
} ending;

static void note_ending(http_request *request, bool good) {
    ending *out = (ending *)request->user;
    out->count++;
    out->good = good;
    out->error = request->error;
    snprintf(out->why, sizeof out->why, "%s", request->why);
    out->identity = bagi_http_identity(request);
    assert_true(request->size < sizeof out->body);
    if (request->body.data)
        memcpy(out->body, request->body.data, request->size);
}

static void start_engine(http_engine *engine) {
    bags_http_options options;
    memset(&options, 0, sizeof options);
    memset(engine, 0, sizeof *engine);
    options.retry_seconds = options.stall_seconds = 100;
    assert_true(bagi_http_start(engine, &options));
}

static http_request *request_as(http_engine *engine, http_bytes what, ending *out) {
    http_request *request =
        bagi_http_request_new(engine, url("x.bag"), false, false, NULL);
    assert_non_null(request);
    memset(out, 0, sizeof *out);
    request->bytes = what;
    request->ended = note_ending;
    request->user = out;
    return request;
}

static void queue_and_wait(http_request *request) {
    http_engine *engine = request->engine;
    const ending *out = (const ending *)request->user;
    double due = 0;
    pthread_mutex_lock(&engine->mutex);
    bagi_http_queue(request);
    bagi_http_wake(engine);
    while (!out->count)
        assert_int_equal(bagi_http_pause(engine, &due), 0);
    pthread_mutex_unlock(&engine->mutex);
    assert_int_equal(out->count, 1);
}

static http_request *request_range(
    http_engine *engine, const char *tag, uint64_t size, ending *out) {
    http_request *request = request_as(engine, HTTP_RANGE, out);
    request->start = 2;
    request->stop = 5;
    request->object_tag = tag;
    request->object_size = size;
    return request;
}

static void a_request_ends_once_with_its_bytes(void **state) {
    http_engine engine;
    ending out;
    (void)state;
    server_set(0, 1, false);
    save(at("x.bag"), "0123456789", 10);
    start_engine(&engine);
    queue_and_wait(request_range(&engine, "\"v1\"", 10, &out));
    assert_true(out.good);
    assert_string_equal(out.body, "234");
    http_request *request = request_as(&engine, HTTP_ENDS, &out);
    request->first_size = request->last_size = 4;
    queue_and_wait(request);
    assert_true(out.good);
    assert_string_equal(out.body, "6789");
    assert_int_equal(out.identity.size, 10);
    queue_and_wait(request_as(&engine, HTTP_NONE, &out));
    assert_true(out.good);
    assert_string_equal(out.body, "");
    assert_int_equal(out.identity.size, 10);
    assert_int_equal(server_requests(), 3);
    bagi_http_stop(&engine);
}

static void a_range_of_another_object_is_refused(void **state) {
    http_engine engine;
    ending out;
    (void)state;
    server_set(0, 1, false);
    save(at("x.bag"), "0123456789", 10);
    start_engine(&engine);
    queue_and_wait(request_range(&engine, "\"v2\"", 10, &out));
    assert_false(out.good);
    assert_int_equal(out.error, ESTALE);
    assert_string_equal(out.why, "HTTP 412: changed while open");
    queue_and_wait(request_range(&engine, "\"v1\"", 11, &out));
    assert_int_equal(out.error, ESTALE);
    assert_string_equal(out.why, "changed while open (its size differs)");
    assert_int_equal(server_requests(), 2);
    bagi_http_stop(&engine);
}

static void a_busy_server_is_asked_again(void **state) {
    http_engine engine;
    ending out;
    (void)state;
    server_set(0, 1, false);
    pthread_mutex_lock(&server.lock);
    server.busy = 2;
    pthread_mutex_unlock(&server.lock);
    save(at("x.bag"), "0123456789", 10);
    start_engine(&engine);
    queue_and_wait(request_range(&engine, "\"v1\"", 10, &out));
    assert_true(out.good);
    assert_string_equal(out.body, "234");
    assert_int_equal(engine.requests, 3);
    assert_int_equal(server_requests(), 3);
    bagi_http_stop(&engine);
}

static void stopping_ends_requests_without_a_word(void **state) {
    http_engine engine;
    ending out;
    (void)state;
    server_set(0, 1, true);
    start_engine(&engine);
    pthread_mutex_lock(&engine.mutex);
    bagi_http_queue(request_range(&engine, "\"v1\"", 10, &out));
    bagi_http_wake(&engine);
    pthread_mutex_unlock(&engine.mutex);
    bagi_http_stop(&engine);
    assert_int_equal(out.count, 0);
}

/* ---- a dataset that is replaced while it is read ---- */

/* What is read: all datapoints in order, or x of all at once; one of the second shard, y of
 * the last one; bags_reader_info; bags_verify, or all in order compared with checksums; or
 * every file, by bags_zip. */
enum {
    IN_ORDER = 1 << 0,
    AT_ONCE = 1 << 1,
    ROW_3 = 1 << 2,
    LAST_Y = 1 << 3,
    INFO = 1 << 4,
    VERIFY = 1 << 5,
    CHECKED = 1 << 6,
    ZIP = 1 << 7
};

/* `rows` datapoints, `shard_length` in a shard, whose values name the version and the
 * index, in `pad` bytes more. With `gap` the third shard has no y; without shards, refs
 * depend on `rows`. */
static void make_version(
    const char *version, const uint64_t rows[2], size_t pad, bool gap, bool checksum) {
    static char text[SIZE + 16];
    bags_field fields[] = {{"x", "utf8"}, {"y", "utf8[]"}};
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.shard_length = rows[1];
    options.checksum = checksum;
    options.no_sync = true;
    make_dir(at("%s", version));
    make_dir(at("%s/bucket", version));
    assert_opens(writer,
        bags_writer_open(at("%s/bucket/ds", version), fields, 2, &options, &said));
    for (uint64_t i = 0; i < rows[0]; i++) {
        size_t size =
            (size_t)snprintf(text, sizeof text, "%s%02u", version, (unsigned)i);
        memset(text + size, 'x', pad);
        bags_value x = bags_utf8_sized(text, size + pad);
        bags_value y[] = {bags_utf8_sized(text, size), bags_utf8_sized(text, size)};
        size_t count = rows[1] ? !gap || i / rows[1] != 2 : 1 + (i + rows[0]) % 2;
        bags_entry entries[] = {{"x", &x, 1}, {"y", y, count}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static void put_row(bytes *to, const bags_row *row, size_t fields) {
    for (size_t field = 0; field < fields; field++)
        for (size_t i = 0; i < bags_row_length(row, field); i++) {
            bags_view blob = bags_row_bytes(row, field, i);
            put_text(to, i ? "," : "|");
            put(to, blob.data, blob.size);
        }
}

static bags_code read_at_once(const bags_reader *reader, bags_row *row, bytes *out) {
    uint64_t length = bags_reader_length(reader), all[32];
    assert_true(length <= 32);
    for (uint64_t i = 0; i < length; i++)
        all[i] = i;
    bags_code code = bags_reader_get_many(reader, all, length, 0, row, &said);
    for (uint64_t i = 0; i < length && !code; i++) {
        bags_view blob = bags_row_bytes(row, 0, i);
        put(out, blob.data, blob.size);
    }
    return code ? code : bags_reader_check(reader, &said);
}

static bags_code read_in_order(const bags_reader *reader, bags_row *row, bytes *out) {
    for (uint64_t i = 0; i < bags_reader_length(reader); i++) {
        if (bags_reader_get(reader, i, NULL, 0, row, &said))
            return said.code;
        put_row(out, row, 2);
    }
    return bags_reader_check(reader, &said);
}

/* One datapoint is of one shard: nothing is checked after it. */
static bags_code read_one(
    const bags_reader *reader, bool last, bags_row *row, bytes *out) {
    uint64_t index = last ? bags_reader_length(reader) - 1 : 3;
    bags_select y = bags_select_all(1);
    bags_code code = bags_reader_get(reader, index, last ? &y : NULL, last, row, &said);
    if (!code)
        put_row(out, row, last ? 1 : 2);
    return code;
}

static bags_code read_info(const bags_reader *reader, bytes *out) {
    bags_field_info sizes[2];
    bags_info info;
    bags_code code = bags_reader_info(reader, &info, sizes, &said);
    if (!code)
        put_format(out, "%llu %zu %llu %llu %llu",
            (unsigned long long)bags_reader_length(reader), shard_count(reader),
            (unsigned long long)info.size, (unsigned long long)sizes[0].blobs,
            (unsigned long long)sizes[1].size);
    return code;
}

static bags_code read_zip(const bags_io *io, const char *path, bytes *out) {
    bags_zip_options options;
    memory_disk to;
    memset(&options, 0, sizeof options);
    memory_disk_start(&to);
    options.from = io;
    options.env.io = &to.io;
    bags_code code = bags_zip(path, "ds.zip", &options, &said);
    bags_view zip = memory_disk_find(&to, "ds.zip");
    put(out, zip.data, zip.size);
    memory_disk_free(&to);
    return code;
}

static bags_code read_verify(const bags_io *io, const char *path) {
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.decode = true;
    return bags_verify(path, &options, NULL, &said);
}

static bags_code read_as(int what, const bags_io *io, const char *path, bytes *out) {
    bags_reader_options options;
    bags_path_kind kind;
    bags_row row = {0};
    int error = io->kind(io->user, path, &kind); /* as most programs do first */
    if (error)
        return bags_fail_io(io, error, path, "open", &said);
    if (what == ZIP || what == VERIFY)
        return what == ZIP ? read_zip(io, path, out) : read_verify(io, path);
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.verify_checksums = what == CHECKED;
    bags_reader *reader = bags_reader_open(path, &options, &said);
    bags_code code = !reader           ? said.code
                     : what == INFO    ? read_info(reader, out)
                     : what == AT_ONCE ? read_at_once(reader, &row, out)
                     : what == ROW_3 || what == LAST_Y
                         ? read_one(reader, what == LAST_Y, &row, out)
                         : read_in_order(reader, &row, out);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

/* The path of the dataset, for hooks that are new. */
static const char *open_replaced(int listing) {
    bags_http_options options;
    char endpoint[64];
    memset(&options, 0, sizeof options);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", server.port);
    options.key = options.secret = options.region = "x";
    options.endpoint = endpoint;
    options.retry_seconds = options.stall_seconds = 100;
    assert_opens(http, bags_http_open(&options, &said));
    return listing == S3 ? "s3://bucket/ds" : url("bucket/ds");
}

static bool is_equal(const bytes *a, const bytes *b) {
    return a->size == b->size && (!a->size || !memcmp(a->data, b->data, a->size));
}

/* Not that it is damaged. */
static bool is_of_replacement(const char *message) {
    return contains(message, "/ds*changed while") ||
           contains(message, "/ds*replaced") ||
           contains(message, "/ds*a shard was added") ||
           contains(message, "/ds*missing shards 2");
}

/* The dataset is replaced before each of the requests that read it, and before one that
 * does not come any more; in `make test` before every third, from BAGS_THIRD on. Returns
 * how often that was an error. */
static unsigned replace_at_every_request(
    int what, int listing, int identified, const bytes *before, const bytes *after) {
    const char *third = getenv("BAGS_THIRD");
    unsigned errors = 0, requests = 0;
    for (unsigned changed = third ? (unsigned)atoi(third) : 0;
         changed <= requests || !requests; changed += third ? 3 : 1) {
        bytes found = {0};
        server_change(changed, listing, identified);
        const char *path = open_replaced(listing);
        bags_code code = read_as(what, bags_http_io(http), path, &found);
        bags_http_close(http);
        requests = server_end();
        bool mixed = changed > 0 && changed < requests;
        bool good = code ? mixed && is_of_replacement(said.message)
                         : (changed > 0 && is_equal(&found, before)) ||
                               (changed < requests && is_equal(&found, after));
        if (!good)
            print_message("what %d, listing %d, identified %d, replaced at %u of %u: "
                          "%.*s\n",
                what, listing, identified, changed, requests,
                code ? 512 : (int)found.size,
                code ? said.message : (const char *)found.data);
        assert_true(good);
        errors += code != BAGS_OK;
        bytes_free(&found);
    }
    return errors;
}

/* Servers. */
enum { PROBED = 1, LISTED = 2, STORE = 4, HASHES = 8, BOTH = 16, TIMES = 32 };

/* How many datapoints it has, and each shard, before and after that. */
typedef struct replacement {
    uint64_t before[2], after[2];
    size_t pad;
    unsigned servers, what; /* bits */
} replacement;

static void replace_dataset(const replacement *one) {
    static const int servers[][2] = {{PROBING, BY_VERSION}, {INDEX, BY_VERSION},
        {S3, BY_HASH}, {PROBING, BY_SHORT_HASH}, {INDEX, BY_BOTH}, {PROBING, BY_TIME}};
    bool checksum = one->what & (VERIFY | CHECKED);
    make_version("old", one->before, one->pad, false, checksum);
    make_version("new", one->after, one->pad, one->after[0] == 12, checksum);
    for (int what = 1; what <= ZIP; what *= 2) {
        bytes before = {0}, after = {0};
        if (!(one->what & (unsigned)what))
            continue;
        assert_ok(read_as(what, bags_io_local(), at("old/bucket/ds"), &before));
        assert_ok(read_as(what, bags_io_local(), at("new/bucket/ds"), &after));
        for (unsigned i = 0; i < sizeof servers / sizeof *servers; i++)
            if (one->servers & 1u << i) {
                unsigned errors = replace_at_every_request(
                    what, servers[i][0], servers[i][1], &before, &after);
                assert_true(errors > 0 || getenv("BAGS_THIRD"));
            }
        bytes_free(&before);
        bytes_free(&after);
    }
    remove_tree(at("old"));
    remove_tree(at("new"));
}

/* By one that is as long: its shards, its blobs that do not fit into the answer of a
 * lookup, its only files; by one with more shards, of which the third has only refs of y;
 * with one more shard and the same refs; and with shorter shards. Where ETags are hashes,
 * two files are equal. */
static void a_dataset_that_is_replaced_is_of_one_version_or_an_error(void **state) {
    static const unsigned most = IN_ORDER | ROW_3 | LAST_Y | INFO;
    static const replacement all[] = {
        {{9, 3}, {9, 3}, 0, LISTED | STORE | BOTH, IN_ORDER | AT_ONCE},
        {{6, 3}, {6, 3}, SIZE, LISTED | STORE | TIMES, IN_ORDER},
        {{9, 0}, {8, 0}, 0, 63, IN_ORDER | ZIP},
        {{6, 3}, {12, 3}, 0, PROBED | LISTED | BOTH, most},
        {{6, 3}, {9, 3}, 0, LISTED | STORE | HASHES | TIMES, most},
        {{6, 3}, {4, 2}, 0, PROBED | LISTED | BOTH, most},
        {{2, 1}, {2, 1}, 0, BOTH, ZIP},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        replace_dataset(&all[i]);
}

static void a_dataset_that_is_replaced_is_not_called_damaged(void **state) {
    static const replacement all[] = {
        {{9, 0}, {9, 0}, 0, PROBED | STORE, VERIFY | CHECKED},
        {{6, 3}, {6, 3}, 0, LISTED, VERIFY | CHECKED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        replace_dataset(&all[i]);
}

static void a_server_that_identifies_nothing_is_known(void **state) {
    (void)state;
    static const uint64_t rows[] = {9, 3};
    make_version("old", rows, 0, false, false);
    for (int by = BY_VERSION; by <= BY_NOTHING; by++) {
        bytes found = {0};
        server_change(NEVER, PROBING, by);
        const char *path = open_replaced(PROBING);
        assert_ok(read_as(IN_ORDER, bags_http_io(http), path, &found));
        assert_int_equal(bags_http_is_versioned(http), by != BY_NOTHING);
        bags_http_close(http);
        bytes_free(&found);
    }
    remove_tree(at("old"));
}

static void closing_ends_requests_that_run(void **state) {
    static const uint64_t other = 1;
    bags_row row = {0};
    bags_select data = bags_select_all(0);
    (void)state;
    server_set(0, 1, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    assert_ok(bags_reader_get_many(reader, &other, 1, 0, &row, &said));
    server_set(0, 1, true);
    assert_ok(bags_reader_prefetch(reader, rows_apart(), APART, &data, 1, &row, &said));
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

static void a_silent_server_is_an_error(void **state) {
    static const uint64_t some[] = {1, 30, 40};
    bags_row row = {0};
    (void)state;
    server_set(0, 1, false);
    make_dataset(0);
    bags_reader *reader = open_remote(1);
    server_set(0, 1, true);
    assert_fails(BAGS_ERROR_IO, bags_reader_get_many(reader, some, 3, 0, &row, &said));
    assert_says("http://127.0.0.1:*/ds/*: cannot *: *stalled");
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

static void the_child_of_a_fork_is_refused(void **state) {
    bags_row row = {0};
    int status = 0;
    (void)state;
    server_set(0, 1, false);
    make_dataset(0);
    bags_reader *reader = open_remote(100);
    pid_t child = fork();
    if (child == 0) {
        bags_code code = bags_reader_get(reader, 3, NULL, 0, &row, &said);
        _exit(code == BAGS_ERROR_IO && contains(said.message, "fork") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

/* Keep the path under which an answer would be found. */
static bool note_recalled(void *user, const char *path, bags_http_answer *answer) {
    (void)answer;
    if (strstr(path, "/x.bag")) /* other files are looked up, too */
        snprintf((char *)user, 512, "%s", path);
    return false;
}

static void forget(void *user, const char *path, const bags_http_answer *answer) {
    (void)user, (void)path, (void)answer;
}

/* What identifies x.bag with a query ("" is none) and a user, and its path in a cache. */
static bags_identity identify_with(
    const char *query, const char *user, char recalled[512]) {
    bags_http_options options;
    bags_identity found;
    void *file = NULL;
    memset(&options, 0, sizeof options);
    options.query = query;
    options.user = user;
    options.recall = note_recalled;
    options.remember = forget;
    options.cache = recalled;
    save(at("x.bag"), "12345678", 8);
    assert_opens(http, bags_http_open(&options, &said));
    const bags_io *io = bags_http_io(http);
    assert_int_equal(io->open(io->user, url("x.bag"), BAGS_IO_READ, &file), 0);
    assert_int_equal(io->identify(io->user, file, url("x.bag"), &found), 0);
    assert_int_equal(io->close(io->user, file), 0);
    bags_http_close(http);
    return found;
}

static void a_query_is_of_the_identity_and_its_signature_is_not(void **state) {
    static const struct {
        bool same;
        const char *one, *two;
    } cases[] = {
        {true, "v=1", "v=1"},
        {false, "v=1", "v=2"},
        {false, "", "v=1"},
        {false, "a=1&v=2", "a=1v&=2"},
        {false, "v=1&v=2", "v=2&v=1"},
        {true, "", "X-Amz-Date=1&X-Amz-Signature=1"},
        {true,
            "X-Amz-Algorithm=A&X-Amz-Credential=1%2F2&X-Amz-Date=1&X-Amz-Expires=1&"
            "X-Amz-SignedHeaders=host&X-Amz-Signature=1&versionId=3",
            "versionId=3&X-Amz-Algorithm=A&X-Amz-Credential=2&X-Amz-Date=2&"
            "X-Amz-Expires=2&X-Amz-Security-Token=2&X-Amz-SignedHeaders=host&"
            "X-Amz-Signature=2"},
        {false, "X-Amz-Date=1&X-Amz-Signature=1&versionId=3",
            "X-Amz-Date=1&X-Amz-Signature=1&versionId=4"},
        {true,
            "X-Goog-Algorithm=A&X-Goog-Credential=1&X-Goog-Date=1&X-Goog-Expires=1&"
            "X-Goog-SignedHeaders=host&X-Goog-Signature=1&generation=3",
            "X-Goog-Signature=2&generation=3"},
        {false, "X-Goog-Signature=1&generation=3", "X-Goog-Signature=1&generation=4"},
        {true, "sv=1&ss=b&srt=o&sp=r&st=1&se=1&spr=https&sip=1&sig=1&snapshot=3",
            "snapshot=3&sv=2&sr=b&si=2&se=2&sig=2"},
        {true, "skoid=1&sktid=1&skt=1&ske=1&sks=b&skv=1&se=1&sig=1", "sig=2"},
        {false, "sv=1&sig=1&snapshot=3", "sv=1&sig=1&snapshot=4"},
        {true, "Expires=1&Signature=1&Key-Pair-Id=1&v=3",
            "Policy=2&Signature=2&Key-Pair-Id=2&v=3"},
        {true, "AWSAccessKeyId=1&Expires=1&Signature=1",
            "GoogleAccessId=2&Expires=2&Signature=2"},
        {false, "Expires=1&Signature=1&v=3", "Expires=1&Signature=1&v=4"},
        /* No signature is next to these. */
        {false, "se=1", "se=2"},
        {false, "Expires=1", "Expires=2"},
        {false, "X-Amz-Date=1&X-Goog-Signature=1", "X-Amz-Date=2&X-Goog-Signature=1"},
        {false, "sig2=1", "sig2=2"},
        {false, "v=sig&se=1", "v=sig&se=2"},
    };
    char one[512], two[512];
    (void)state;
    server_set(0, 1, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bags_identity a = identify_with(cases[i].one, NULL, one);
        bags_identity b = identify_with(cases[i].two, NULL, two);
        assert_true(a.inode == b.inode && a.time == b.time && a.size == b.size);
        if ((a.device == b.device) != cases[i].same ||
            (!strcmp(one, two)) != cases[i].same)
            fail_msg("%s and %s", cases[i].one, cases[i].two);
    }
    bags_identity a = identify_with("", "alice:pw", one);
    bags_identity b = identify_with("", "bob:pw", two);
    assert_true(a.inode == b.inode && a.size == b.size && a.device != b.device);
    assert_string_not_equal(one, two);
    assert_null(strstr(two, "bob"));
    assert_null(strstr(two, "pw"));
}

static void invalid_arguments_are_refused(void **state) {
    bags_http_options options;
    bags_path_kind kind;
    void *file = NULL;
    (void)state;
    memset(&options, 0, sizeof options);
    options.retry_seconds = -1;
    assert_refused(BAGS_ERROR_ARGUMENT, bags_http_open(&options, &said));
    options.retry_seconds = 0;
    options.key = "without a secret";
    assert_refused(BAGS_ERROR_ARGUMENT, bags_http_open(&options, &said));
    assert_opens(http, bags_http_open(NULL, &said));
    const bags_io *io = bags_http_io(http);
    assert_int_equal(io->kind(io->user, "local", &kind), EINVAL);
    assert_int_equal(io->open(io->user, "local", BAGS_IO_READ, &file), EINVAL);
    assert_int_equal(io->open(io->user, url("x.bag"), BAGS_IO_CREATE, &file), EROFS);
    bags_writer_options writing;
    bags_field field = {"f", "utf8"};
    memset(&writing, 0, sizeof writing);
    writing.env.io = io;
    server_set(0, 0, false);
    make_dataset(0);
    assert_refused(
        BAGS_ERROR_IO, bags_writer_open(url("ds/new"), &field, 1, &writing, &said));
    assert_int_equal(said.system, EROFS);
    assert_fails(BAGS_ERROR_ARGUMENT, bags_http_upload(http, url("x.bag"),
                                          bags_io_local(), "x.bag", NULL, NULL, &said));
    bags_http_close(http);
    bags_http_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(threads_share_a_reader),
        TEST(a_batch_takes_one_round_trip),
        TEST(several_threads_read_a_large_batch),
        TEST(an_object_that_changes_within_a_batch_is_an_error),
        TEST(a_changed_object_is_an_error_until_the_end),
        TEST(a_request_ends_once_with_its_bytes),
        TEST(a_range_of_another_object_is_refused),
        TEST(a_busy_server_is_asked_again),
        TEST(stopping_ends_requests_without_a_word),
        TEST(a_dataset_that_is_replaced_is_of_one_version_or_an_error),
        TEST(a_dataset_that_is_replaced_is_not_called_damaged),
        TEST(a_server_that_identifies_nothing_is_known),
        TEST(closing_ends_requests_that_run),
        TEST(a_silent_server_is_an_error),
        TEST(the_child_of_a_fork_is_refused),
        TEST(a_query_is_of_the_identity_and_its_signature_is_not),
        TEST(invalid_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("http", tests, server_start, NULL);
}
