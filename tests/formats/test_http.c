/* The hooks of formats/http.c, from a server of this program: threads, what is read
 * with how many requests, and what ends them. tests/command/remote.py tests what
 * servers do wrong. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include "../../formats/formats.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the server: a thread per connection; files are read when requested ---- */

/* What differs between two versions of a file. */
enum { BY_VERSION, BY_TIME, BY_CONTENT, BY_NOTHING };

static struct {
    int socket, port;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t arrived;
    unsigned requests, delay /* ms */, version /* of ETags */;
    unsigned together; /* nothing is answered before this number of requests came */
    unsigned changed;  /* after this many requests the version is the next; 0: never */
    bool silent;       /* do not answer */
    int versions;      /* not 0: they are in old/ and in new/ */
    int identified;
    char root[2048];
} server = {-1, 0, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0,
    0, false, 0, BY_VERSION, ""};

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

static void answer(int to, char *request) {
    char path[512] = "", head[512], local[2600];
    unsigned long first = 0, last = 0;
    pthread_mutex_lock(&server.lock);
    server.requests++;
    pthread_cond_broadcast(&server.arrived);
    while (server.requests < server.together)
        pthread_cond_wait(&server.arrived, &server.lock);
    unsigned delay = server.delay, version = server.version;
    version += server.changed && server.requests > server.changed;
    bool silent = server.silent;
    int identified = server.identified;
    sscanf(request, "GET /%500s HTTP", path);
    snprintf(local, sizeof local, "%s/%s%s", server.root,
        !server.versions ? ""
        : version        ? "new/"
                         : "old/",
        path);
    pthread_mutex_unlock(&server.lock);
    pause_ms(delay);
    if (silent)
        return;
    FILE *file = strchr(path, '.') ? fopen(local, "rb") : NULL;
    if (!file) {
        snprintf(head, sizeof head, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
        send_all(to, head, strlen(head));
        return;
    }
    fclose(file);
    bytes all = load(local);
    char *range = strstr(request, "Range: bytes=");
    char *tag = strstr(request, "If-Match: "), etag[64], identity[128] = "";
    snprintf(etag, sizeof etag, "\"v%u\"", version);
    if (identified == BY_CONTENT) /* as MD5 is printed */
        snprintf(etag, sizeof etag, "\"%032x\"",
            (unsigned)bags_crc32c(0, all.data, all.size));
    if (identified == BY_TIME)
        snprintf(identity, sizeof identity,
            "Last-Modified: Mon, 23 Nov 2026 12:00:0%u GMT\r\n", version);
    else if (identified != BY_NOTHING)
        snprintf(identity, sizeof identity, "ETag: %s\r\n", etag);
    if (tag && strncmp(tag + 10, etag, strlen(etag)) != 0) {
        snprintf(head, sizeof head, "HTTP/1.1 412 X\r\nContent-Length: 0\r\n\r\n");
        send_all(to, head, strlen(head));
        bytes_free(&all);
        return;
    }
    if (range && sscanf(range, "Range: bytes=-%lu", &last) == 1) {
        first = last < all.size ? all.size - last : 0;
        last = all.size - 1;
    } else if (!range || sscanf(range, "Range: bytes=%lu-%lu", &first, &last) != 2) {
        last = all.size - 1;
    }
    last = last < all.size ? last : all.size - 1;
    snprintf(head, sizeof head,
        "HTTP/1.1 206 X\r\n%sContent-Range: bytes %lu-%lu/%lu\r\n"
        "Content-Length: %lu\r\n\r\n",
        identity, first, last, (unsigned long)all.size, last - first + 1);
    send_all(to, head, strlen(head));
    send_all(to, all.data + first, last - first + 1);
    bytes_free(&all);
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
        if (pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)from) ==
            0)
            pthread_detach(thread);
    }
}

static int server_start(void **state) {
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    (void)state;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server.socket = socket(AF_INET, SOCK_STREAM, 0);
    if (server.socket < 0 || bind(server.socket, (struct sockaddr *)&address, size) ||
        listen(server.socket, 512) ||
        getsockname(server.socket, (struct sockaddr *)&address, &size))
        return 1;
    server.port = ntohs(address.sin_port);
    return pthread_create(&server.thread, NULL, serve, NULL);
}

static void server_set(unsigned delay, unsigned version, bool silent) {
    pthread_mutex_lock(&server.lock);
    server.delay = delay;
    server.version = version;
    server.silent = silent;
    server.changed = 0;
    server.together = 0;
    server.versions = 0;
    server.identified = BY_VERSION;
    snprintf(server.root, sizeof server.root, "%s", at("."));
    server.requests = 0;
    pthread_mutex_unlock(&server.lock);
}

/* After `changed` requests it has the next version; 0: never. `versions` is not 0: what
 * it has is in old/ and in new/, and `identified` is how it identifies them. */
static void server_change(unsigned changed, int versions, int identified) {
    pthread_mutex_lock(&server.lock);
    server.changed = changed;
    server.versions = versions;
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
    bags_select data = bags_whole(0);
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
    assert_fails(BAGS_ERROR_STATE,
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
        assert_fails(BAGS_ERROR_STATE,
            bags_reader_get_many(reader, some + 1, 1, 0, &row, &said));
        assert_int_equal(said.system, ESTALE);
        assert_says("http://127.0.0.1:*/ds/*: cannot read: *while open");
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_http_close(http);
}

#define SHARD 4

/* A dataset of two shards whose rows, of two fields, state a version and the row. */
static void make_version(const char *path, uint64_t version, size_t size) {
    bags_field fields[] = {{"data", "bytes"}, {"n", "int(4)"}};
    bags_writer_options options;
    bags_writer *writer;
    unsigned char blob[SIZE];
    memset(&options, 0, sizeof options);
    options.shard_length = SHARD;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < 2 * SHARD; i++) {
        uint64_t number = 100 * version + i;
        fill(blob, sizeof blob, number);
        bags_value data = bags_bytes(blob, size), n = bags_int((int64_t)number);
        bags_entry entries[] = {{"data", &data, 1}, {"n", &n, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bags_code read_field(
    const bags_reader *reader, size_t field, bags_row *row, uint64_t seen[2]) {
    bags_select select = bags_whole(field);
    for (uint64_t i = 0; i < 2 * SHARD; i++) {
        unsigned char expected[SIZE];
        if (bags_reader_get(reader, i, &select, 1, row, &said))
            return said.code;
        bags_view blob = bags_row_bytes(row, 0, 0);
        for (uint64_t version = 0; version < 2; version++) {
            uint64_t number = 100 * version + i;
            fill(expected, sizeof expected, number);
            seen[version] += field == 1 ? blob.data[0] == number
                                        : !memcmp(blob.data, expected, blob.size);
        }
    }
    return BAGS_OK;
}

/* One field after the other, so that files are opened in between. */
static bags_code read_versions(uint64_t seen[2]) {
    bags_http_options options;
    bags_reader_options reading;
    bags_row row = {0};
    memset(&options, 0, sizeof options);
    memset(&reading, 0, sizeof reading);
    assert_opens(http, bags_http_open(&options, &said));
    reading.env.io = bags_http_io(http);
    bags_reader *reader = bags_reader_open(url("ds"), &reading, &said);
    bags_code code = reader ? BAGS_OK : said.code;
    for (size_t field = 0; field < 2 && !code; field++)
        code = read_field(reader, field, &row, seen);
    if (!code)
        code = bags_reader_check(reader, &said);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

static void what_is_read_is_of_one_version_or_an_error(void **state) {
    (void)state;
    for (int size = 10; size <= SIZE; size += SIZE - 10) {
        make_dir(at("old"));
        make_dir(at("new"));
        make_version(at("old/ds"), 0, (size_t)size);
        make_version(at("new/ds"), 1, (size_t)size);
        for (int by = BY_VERSION; by <= BY_CONTENT; by++) {
            unsigned errors = 0, complete = 0, n = 1;
            for (unsigned left = 1; left > 0 && n < 500; n++) {
                uint64_t seen[2] = {0, 0};
                server_set(0, 0, false);
                server_change(n, 2, by);
                bags_code code = read_versions(seen);
                unsigned requests = server_requests();
                left = requests > n;
                bags_http_close(http);
                /* Two shards are compared in the end if all that differs is data. */
                assert_true(!seen[0] || !seen[1] || (code && by == BY_CONTENT));
                if (code) {
                    assert_int_equal(code, BAGS_ERROR_STATE);
                    assert_says("/ds/00000");
                    errors++;
                } else {
                    assert_int_equal(seen[0] + seen[1], 4 * SHARD);
                    complete++;
                }
            }
            assert_true(errors > 5 && complete > 0 && n < 500);
        }
        remove_tree(at("old"));
        remove_tree(at("new"));
    }
}

static void a_server_that_identifies_nothing_is_known(void **state) {
    (void)state;
    make_dir(at("old"));
    make_version(at("old/ds"), 0, 10);
    for (int by = BY_VERSION; by <= BY_NOTHING; by++) {
        uint64_t seen[2] = {0, 0};
        server_set(0, 0, false);
        server_change(0, 2, by);
        assert_ok(read_versions(seen));
        assert_int_equal(bags_http_is_versioned(http), by != BY_NOTHING);
        bags_http_close(http);
    }
    remove_tree(at("old"));
}

static void closing_ends_requests_that_run(void **state) {
    static const uint64_t other = 1;
    bags_row row = {0};
    bags_select data = bags_whole(0);
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
        TEST(what_is_read_is_of_one_version_or_an_error),
        TEST(a_server_that_identifies_nothing_is_known),
        TEST(closing_ends_requests_that_run),
        TEST(a_silent_server_is_an_error),
        TEST(the_child_of_a_fork_is_refused),
        TEST(invalid_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("http", tests, server_start, NULL);
}
