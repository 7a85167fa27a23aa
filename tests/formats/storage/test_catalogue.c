/* Catalogues: their bytes, their writer, and remote readers that use them, from a server
 * of this program. It computes a dataset of 10^9 datapoints, and counts round trips: it
 * answers all requests at once when no other has come for a while. */
// flavours: test: release; check: asan
#include "../../../formats/storage/catalogue.h"

#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- files that are computed ----
 * Field x is int(4), and has the datapoint's number. */

#define LENGTH 100000
#define SPEC "{\"x\": \"int(4)\"}"

static unsigned shards = 10000;
static bool plain = true; /* refs.bag is */
static bytes catalogue_bytes;

enum {
    FILE_NONE,
    FILE_SPEC,
    FILE_REFS,
    FILE_BAG,
    FILE_CRC,
    FILE_CATALOGUE,
    FILE_INDEX
};

typedef struct computed {
    int kind;
    unsigned shard;
    bool refs;
    uint64_t size;
} computed;

static uint64_t refs_table(void) {
    return plain ? catalogue_row_start(1, LENGTH) : (uint64_t)6 * LENGTH;
}

/* PATH/NUMBER/NAME */
static computed computed_find(const char *path) {
    static const char *const names[] = {
        "spec.json", "refs.bag", "x.bag", "refs.crc", "x.crc", "catalogue"};
    static const int kinds[] = {
        FILE_SPEC, FILE_REFS, FILE_BAG, FILE_CRC, FILE_CRC, FILE_CATALOGUE};
    computed found = {FILE_NONE, 0, false, 0};
    char name[64] = "";
    size_t size = strlen(path);
    const char *at = size >= 3 && strstr(path, "ds/") ? strstr(path, "ds/") + 3 : "";
    if (!*at && size >= 3)
        found.kind = FILE_INDEX;
    if (sscanf(at, "%6u/%63s", &found.shard, name) != 2 || found.shard >= shards)
        return found;
    for (size_t i = 0; i < 6; i++)
        if (strcmp(name, names[i]) == 0)
            found.kind = kinds[i];
    found.refs = *name == 'r';
    if (found.kind == FILE_SPEC)
        found.size = strlen(SPEC);
    else if (found.kind == FILE_REFS)
        found.size = refs_table() + 8 * (LENGTH + 1);
    else if (found.kind == FILE_BAG)
        found.size = 4 * LENGTH + 8 * (LENGTH + 1);
    else if (found.kind == FILE_CRC)
        found.size = 4 * LENGTH + BAGS_TRAILER_SIZE;
    else if (found.kind == FILE_CATALOGUE && found.shard == 0 && catalogue_bytes.size)
        found.size = catalogue_bytes.size;
    else
        found.kind = FILE_NONE;
    return found;
}

/* The CRC of the CRCs of a Bag. Only a plain refs.bag has its own. */
static uint32_t crc_of(const computed *file, bool refs) {
    static uint32_t of_plain;
    for (uint64_t i = 0; refs && plain && i < LENGTH; i++) {
        unsigned char row[CATALOGUE_ROW], crc[4];
        if (i == 0 && of_plain)
            break;
        catalogue_store(crc, bags_crc32c(0, row, catalogue_row(1, i, row)), 4);
        of_plain = bags_crc32c(of_plain, crc, 4);
    }
    return refs && plain ? of_plain : file->shard + 1 + refs;
}

static void computed_trailer(const computed *file, unsigned char out[44]) {
    const char *name = file->refs ? "refs" : "x";
    uint32_t bound = bags_crc32c(0, SPEC, strlen(SPEC));
    unsigned char crc[4];
    for (int refs = 0; refs < 2; refs++) {
        catalogue_store(crc, crc_of(file, refs), 4);
        bound = bags_crc32c(bound, refs ? "refs" : "x", refs ? 4 : 1);
        bound = bags_crc32c(bound, crc, 4);
    }
    catalogue_store(out, LENGTH, 8);
    catalogue_store(
        out + 8, (file->refs ? refs_table() : 4 * LENGTH) + 8 * (LENGTH + 1), 8);
    catalogue_store(out + 16, 0, 4);
    catalogue_store(out + 20, crc_of(file, file->refs), 4);
    catalogue_store(out + 24, bags_crc32c(0, name, strlen(name)), 4);
    catalogue_store(out + 28, bound, 4);
    memcpy(out + 32, "BAGSCRC2", 8);
    catalogue_store(out + 40, bags_crc32c(0, out, 40), 4);
}

static unsigned char computed_byte(const computed *file, uint64_t at) {
    unsigned char six[6] = {0x91, 0xCE}, number[8];
    uint64_t table = file->refs ? 6 * LENGTH : 4 * LENGTH;
    if (at >= table) {
        catalogue_store(number, (at - table) / 8 * (file->refs ? 6 : 4), 8);
        return number[(at - table) % 8];
    }
    uint64_t i = at / (file->refs ? 6 : 4);
    catalogue_store(number, (uint64_t)file->shard * LENGTH + i, 8);
    for (int k = 0; k < 4; k++)
        six[2 + k] = (unsigned char)(i >> 8 * (3 - k));
    return file->refs ? six[at % 6] : number[at % 4];
}

static void computed_read(
    const computed *file, uint64_t offset, unsigned char *out, size_t size) {
    unsigned char trailer[44];
    if (file->kind == FILE_REFS && plain) {
        catalogue_read_plain(1, LENGTH, offset, out, size);
        return;
    }
    if (file->kind == FILE_CRC)
        computed_trailer(file, trailer);
    for (size_t i = 0; i < size; i++) {
        uint64_t at = offset + i;
        out[i] = file->kind == FILE_SPEC        ? (unsigned char)SPEC[at]
                 : file->kind == FILE_CATALOGUE ? catalogue_bytes.data[at]
                 : file->kind != FILE_CRC       ? computed_byte(file, at)
                 : at >= 4 * LENGTH             ? trailer[at - 4 * LENGTH]
                                                : 0;
    }
}

/* ---- the same files as hooks, to make the catalogue of them ---- */

static int hook_open(void *user, const char *path, int mode, void **file) {
    computed found = computed_find(path);
    (void)user;
    if (found.kind == FILE_NONE || found.kind == FILE_INDEX || mode != BAGS_IO_READ)
        return ENOENT;
    *file = malloc(sizeof found);
    memcpy(*file, &found, sizeof found);
    return 0;
}

static int hook_close(void *user, void *file) {
    (void)user;
    free(file);
    return 0;
}

static int hook_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((computed *)file)->size;
    return 0;
}

static int hook_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    uint64_t all = ((computed *)file)->size;
    (void)user;
    *done = offset < all ? (size_t)(all - offset < size ? all - offset : size) : 0;
    computed_read((computed *)file, offset, (unsigned char *)data, *done);
    return 0;
}

static int hook_kind(void *user, const char *path, bags_path_kind *kind) {
    computed found = computed_find(path);
    (void)user;
    *kind = !strcmp(path, "ds")       ? BAGS_PATH_DIRECTORY
            : found.kind == FILE_NONE ? BAGS_PATH_NONE
                                      : BAGS_PATH_FILE;
    return 0;
}

static int hook_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    int code = 0;
    (void)user;
    (void)path;
    for (unsigned i = 0; i < shards && !code; i++) {
        char name[16];
        snprintf(name, sizeof name, "%06u", i);
        code = each(each_user, name);
    }
    return code;
}

static void make_computed_catalogue(void) {
    static bags_io io;
    bags_env env = {NULL, &io};
    bags_buffer out = {0};
    size_t size = 0;
    io.open = hook_open;
    io.close = hook_close;
    io.size = hook_size;
    io.read_at = hook_read;
    io.kind = hook_kind;
    io.list = hook_list;
    bytes_free(&catalogue_bytes);
    assert_ok(bags_catalogue_make("ds", &env, &out, &size, &said));
    put(&catalogue_bytes, out.data, size);
    bags_buffer_free(&out);
}

/* ---- the server: one thread of another process ---- */

#define CONNECTIONS 800

typedef struct counted {
    volatile unsigned requests, trips, most; /* most connections at once */
    volatile unsigned
        changed; /* after this many requests, files are in new/; 0: never */
} counted;

static counted *counts; /* shared with the server */

static struct {
    pid_t process;
    int port;
    int quiet; /* ms without a request that end a round trip */
    bool index;
    const char *root; /* NULL: computed */
} server;

typedef struct connection {
    char request[4096];
    size_t size;
    bool held;
} connection;

static void send_all(int to, const void *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(to, data, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        data = (const char *)data + sent;
        size -= (size_t)sent;
    }
}

static void send_answer(
    int to, const char *status, const char *headers, const void *body, size_t size) {
    bytes all = {0};
    put_format(
        &all, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status, headers, size);
    put(&all, body, size);
    send_all(to, all.data, all.size);
    bytes_free(&all);
}

static void send_index(int to) {
    bytes page = {0};
    for (unsigned i = 0; i < shards; i++)
        put_format(&page, "<a href=\"%06u/\">", i);
    send_answer(to, "200 X", "Content-Type: text/html\r\n", page.data, page.size);
    bytes_free(&page);
}

/* A file on the disk, as bytes with an ETag. Returns false if there is none. */
static bool load_file(const char *path, bytes *out, char etag[64]) {
    char local[4096];
    struct stat about;
    bool changed = counts->changed && counts->requests > counts->changed;
    snprintf(local, sizeof local, "%s/%s%s", server.root, changed ? "new/" : "", path);
    if (stat(local, &about) || !S_ISREG(about.st_mode))
        return false;
    *out = load(local);
    snprintf(etag, 64, "\"%jx-%lx-%zx\"", (uintmax_t)about.st_ino,
        about.st_mtim.tv_nsec, out->size);
    return true;
}

static void answer(int to, const char *request) {
    char path[512] = "", etag[64] = "\"1\"", headers[256];
    bytes file = {0};
    unsigned long first = 0, last = 0;
    sscanf(request, "GET /%500[^? ]", path);
    computed found = computed_find(path);
    if (!server.root && found.kind == FILE_INDEX && server.index) {
        send_index(to);
        return;
    }
    bool exists = server.root ? load_file(path, &file, etag)
                              : found.kind != FILE_NONE && found.kind != FILE_INDEX;
    uint64_t size = server.root ? file.size : found.size;
    const char *range = strstr(request, "Range: bytes=");
    const char *tag = strstr(request, "If-Match: ");
    if (range && sscanf(range, "Range: bytes=-%lu", &last) == 1) {
        first = last < size ? size - last : 0;
        last = size - 1;
    } else if (!range || sscanf(range, "Range: bytes=%lu-%lu", &first, &last) != 2) {
        last = size - 1;
    }
    last = last < size ? last : size - 1;
    if (!exists) {
        send_answer(to, "404 X", "", NULL, 0);
    } else if (tag && strncmp(tag + 10, etag, strlen(etag)) != 0) {
        send_answer(to, "412 X", "", NULL, 0);
    } else if (first >= size) {
        snprintf(headers, sizeof headers, "ETag: %s\r\nContent-Range: bytes */%ju\r\n",
            etag, (uintmax_t)size);
        send_answer(to, "416 X", headers, NULL, 0);
    } else {
        unsigned char *data = (unsigned char *)malloc(last - first + 1);
        if (server.root)
            memcpy(data, file.data + first, last - first + 1);
        else
            computed_read(&found, first, data, last - first + 1);
        snprintf(headers, sizeof headers,
            "ETag: %s\r\nContent-Range: bytes %lu-%lu/%ju\r\n", etag, first, last,
            (uintmax_t)size);
        send_answer(to, "206 X", headers, data, last - first + 1);
        free(data);
    }
    bytes_free(&file);
}

/* Read from a connection. Returns 1 for a request, -1 at its end. */
static int receive(int from, connection *c) {
    ssize_t got = recv(from, c->request + c->size, sizeof c->request - 1 - c->size, 0);
    if (got <= 0)
        return -1;
    c->size += (size_t)got;
    c->request[c->size] = '\0';
    return strstr(c->request, "\r\n\r\n") != NULL;
}

static void serve(int listening) {
    static struct pollfd polled[CONNECTIONS + 1];
    static connection connections[CONNECTIONS + 1];
    size_t used = 1, held = 0;
    polled[0].fd = listening;
    polled[0].events = POLLIN;
    for (;;) {
        int ready = poll(polled, (nfds_t)used, held ? server.quiet : -1);
        for (size_t i = 1; ready == 0 && i < used; i++)
            if (connections[i].held) {
                connections[i].held = false;
                connections[i].size = 0;
                answer(polled[i].fd, connections[i].request);
            }
        if (ready == 0) {
            counts->trips++;
            held = 0;
        }
        for (size_t i = used - 1; ready > 0 && i > 0; i--) {
            int got = polled[i].revents ? receive(polled[i].fd, &connections[i]) : 0;
            counts->requests += got > 0;
            held += got > 0;
            connections[i].held = connections[i].held || got > 0;
            if (got < 0) {
                close(polled[i].fd);
                held -= connections[i].held;
                polled[i] = polled[--used];
                connections[i] = connections[used];
            }
        }
        if (ready > 0 && polled[0].revents && used <= CONNECTIONS) {
            int one = 1, from = accept(listening, NULL, NULL);
            setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            memset(&connections[used], 0, sizeof connections[used]);
            polled[used].fd = from;
            polled[used].events = POLLIN;
            polled[used++].revents = 0;
            counts->most = used - 1 > counts->most ? (unsigned)used - 1 : counts->most;
        }
    }
}

static void server_stop(void) {
    if (server.process) {
        kill(server.process, SIGKILL);
        waitpid(server.process, NULL, 0);
    }
    server.process = 0;
}

static void server_start(int quiet, bool index, const char *root) {
    struct sockaddr_in address = {0};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    server_stop();
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listening, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listening, 512), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &size), 0);
    server.port = ntohs(address.sin_port);
    server.quiet = quiet;
    server.index = index;
    server.root = root;
    if (!counts)
        counts = (counted *)mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    counts->requests = counts->trips = counts->changed = counts->most = 0;
    server.process = fork();
    assert_true(server.process >= 0);
    if (server.process == 0)
        serve(listening);
    close(listening);
}

static bags_http *http;

static bags_reader *open_remote(bags_error *err) {
    char url[64];
    bags_reader_options options = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d/ds", server.port);
    http = bags_http_open(NULL, err);
    if (!http)
        return NULL;
    options.env.io = bags_http_io(http);
    return bags_reader_open(url, &options, err);
}

static void close_remote(bags_reader *reader) {
    bags_reader_close(reader);
    bags_http_close(http);
    http = NULL;
}

/* ---- 10^9 datapoints ---- */

static unsigned number_of(bags_view blob) {
    return blob.size == 4 ? (unsigned)bags_load_bytes(blob.data, 4, false) : UINT_MAX;
}

/* In a process of its own, whose memory is measured. Prints, and returns 1, if it reads
 * something wrong. */
static int read_computed(unsigned opened[1], size_t batch, size_t *kilobytes) {
    static uint64_t indices[256];
    bags_error err;
    bags_row row = {0};
    struct rusage usage;
    uint64_t random = 7;
    bags_reader *reader = open_remote(&err);
    if (!reader || bags_reader_length(reader) != (uint64_t)shards * LENGTH) {
        fprintf(stderr, "%s\n", reader ? "another length" : err.message);
        return 1;
    }
    *opened = counts->trips;
    for (size_t i = 0; i < batch; i++)
        indices[i] = next_random(&random) % ((uint64_t)shards * LENGTH);
    if (batch && bags_reader_get_many(reader, indices, batch, 0, &row, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int wrong = 0;
    for (size_t i = 0; i < batch; i++)
        wrong |= number_of(bags_row_bytes(&row, 0, i)) != (unsigned)indices[i];
    bags_row_free(&row);
    close_remote(reader);
    getrusage(RUSAGE_SELF, &usage);
    *kilobytes = (size_t)usage.ru_maxrss;
    return wrong;
}

/* A limit for that process. 0: none */
static struct rlimit descriptors;

typedef struct report {
    unsigned opened;
    size_t kilobytes;
} report;

/* Count the round trips again, with longer pauses, if there are too many: a slow machine
 * may send the requests of one with pauses in between. */
static void check_computed(
    bool index, size_t batch, unsigned open_most, unsigned most) {
    static const int quiet[] = {60, 300, 1500};
    report *out = (report *)mmap(
        NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool good = false;
    make_computed_catalogue();
    for (size_t i = 0; i < 3 && !good; i++) {
        int status = 0;
        server_start(quiet[i], index, NULL);
        pid_t child = fork();
        if (child == 0 && descriptors.rlim_cur)
            setrlimit(RLIMIT_NOFILE, &descriptors);
        if (child == 0)
            _exit(read_computed(&out->opened, batch, &out->kilobytes));
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_int_equal(status, 0);
        unsigned trips = counts->trips;
        server_stop();
        print_message("%s, %s refs: opened in %u round trips, %zu datapoints in %u "
                      "(%u requests), %zu MiB\n",
            index ? "listed" : "probed", plain ? "plain" : "other", out->opened, batch,
            trips, counts->requests, out->kilobytes >> 10);
        good = out->opened <= open_most && trips <= most;
    }
    assert_true(good);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(out->kilobytes <= (64 << 10));
#endif
    munmap(out, sizeof *out);
}

static void a_billion_datapoints_are_opened_in_three_round_trips(void **state) {
    (void)state;
    plain = true;
    check_computed(false, 0, 3, 3);
    check_computed(true, 0, 3, 3);
}

static void the_first_batch_takes_five_round_trips(void **state) {
    (void)state;
    plain = true;
    check_computed(false, 256, 3, 5);
    check_computed(true, 256, 3, 5);
}

/* Refs that are not plain are requested as well. */
static void other_refs_take_five_round_trips(void **state) {
    (void)state;
    plain = false;
    check_computed(true, 256, 3, 5);
    plain = true;
}

static void a_third_of_the_descriptors_is_left(void **state) {
    (void)state;
    descriptors.rlim_cur = descriptors.rlim_max = 96;
    check_computed(true, 256, UINT_MAX, UINT_MAX);
    descriptors.rlim_cur = 0;
    assert_in_range(counts->most, 32, 64);
}

/* All that a reader keeps of a shard is its record in the catalogue, and about 200
 * bytes. */
static void a_hundred_thousand_shards_fit_in_memory(void **state) {
    (void)state;
    if (support_stride() > 1)
        skip();
    shards = 100000;
    check_computed(true, 256, 3, 5);
    shards = 10000;
}

/* ---- datasets on the disk ---- */

#define ROWS 30
#define SIZE 3000

static void make_dataset(const char *path, unsigned version, uint64_t shard_length) {
    bags_field fields[] = {{"data", "bytes"}, {"n", "int(4)"}, {"words", "utf8[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.shard_length = shard_length;
    options.checksum = true;
    options.no_sync = true;
    assert_opens(
        writer, bags_writer_open(path, fields, version < 2 ? 2 : 3, &options, &said));
    for (unsigned i = 0; i < ROWS; i++) {
        static unsigned char blob[SIZE];
        fill(blob, sizeof blob, version % 2 * ROWS + i);
        bags_value data = bags_bytes(blob, sizeof blob);
        bags_value n = bags_int(version % 2 * ROWS + i), word = bags_utf8("word");
        bags_entry entries[] = {
            {"data", &data, 1}, {"n", &n, 1}, {"words", &word, i % 2}};
        assert_ok(bags_writer_append(writer, entries, version < 2 ? 2 : 3, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* The version of a row, or -1 if it is of none: its fields are of two. */
static int version_of(const bags_row *row, uint64_t index) {
    unsigned char expected[SIZE];
    bags_view data = bags_row_bytes(row, 0, 0);
    unsigned n = number_of(bags_row_bytes(row, 1, 0));
    fill(expected, SIZE, n);
    if (data.size != SIZE || memcmp(data.data, expected, SIZE) != 0 ||
        n % ROWS != index || n / ROWS > 1)
        return -1;
    return (int)(n / ROWS);
}

/* Read all rows. Returns their version; -1 after an error (see `said`); -2 if something
 * wrong was read. */
static int read_remote(void) {
    bags_row row = {0};
    int version = -1;
    bags_reader *reader = open_remote(&said);
    uint64_t length = bags_reader_length(reader);
    for (uint64_t i = 0; i < length && version != -2; i++) {
        uint64_t index = (i * 7 + 15) % length;
        if (bags_reader_get(reader, index, NULL, 0, &row, &said)) {
            version = -1;
            break;
        }
        int own = version_of(&row, index);
        version = own < 0 || (version >= 0 && own != version) ? -2 : own;
    }
    if (version >= 0 && length != ROWS)
        version = -2;
    bags_row_free(&row);
    close_remote(reader);
    return version;
}

static bytes load_catalogue(const char *dataset) {
    return load(at("%s/000000/catalogue", dataset));
}

/* Change bytes of a catalogue, and correct its CRC. */
static void save_catalogue(const char *dataset, bytes *b) {
    catalogue_store(b->data + 8, bags_crc32c(0, b->data + 12, b->size - 12), 4);
    save(at("%s/000000/catalogue", dataset), b->data, b->size);
}

static void plain_refs_are_as_a_writer_writes_them(void **state) {
    static const size_t counts_of[] = {1, 2, 15, 16, 40};
    static const unsigned lengths[] = {70000, 0, 1, 300, 257};
    (void)state;
    for (size_t k = 0; k < 5; k++) {
        size_t count = counts_of[k];
        unsigned length = lengths[k];
        bags_field fields[40];
        bags_entry entries[40];
        char names[40][24];
        bags_writer_options options = {0};
        bags_value value = bags_int(1);
        bags_writer *writer;
        uint64_t random = k;
        options.no_sync = true;
        for (size_t i = 0; i < count; i++) {
            snprintf(names[i], sizeof names[i], "f%02zu", i);
            fields[i].name = entries[i].field = names[i];
            fields[i].type = "int(1)";
            entries[i].values = &value;
            entries[i].count = 1;
        }
        assert_opens(
            writer, bags_writer_open(at("p%zu", k), fields, count, &options, &said));
        for (unsigned i = 0; i < length; i++)
            assert_ok(bags_writer_append(writer, entries, count, &said));
        assert_ok(bags_writer_close(writer, &said));
        bytes refs = load(at("p%zu/refs.bag", k));
        unsigned char *out = (unsigned char *)malloc(refs.size);
        assert_int_equal(
            refs.size, catalogue_row_start(count, length) + 8 * (length + 1));
        catalogue_read_plain(count, length, 0, out, refs.size);
        assert_memory_equal(out, refs.data, refs.size);
        for (int i = 0; i < 300; i++) {
            size_t start = (size_t)(next_random(&random) % refs.size);
            size_t size = (size_t)(next_random(&random) % (refs.size - start)) % 999;
            memset(out, 7, size);
            catalogue_read_plain(count, length, start, out, size);
            assert_memory_equal(out, refs.data + start, size);
        }
        free(out);
        bytes_free(&refs);
    }
    assert_int_equal(
        catalogue_row_at(3, catalogue_row_start(3, 1ull << 33) + 5), 1ull << 33);
}

/* Sequences of 0 to 4 words, and a plain field: two widths of numbers change within the
 * shard, at different rows. */
static void guesses_contain_the_rows(void **state) {
    bags_field fields[] = {{"n", "int(4)"}, {"words", "utf8[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    catalogue_view of;
    uint64_t random = 5, length = 90000, start, stop;
    (void)state;
    options.shard_length = length;
    options.checksum = options.no_sync = true;
    assert_opens(writer, bags_writer_open(at("ds"), fields, 2, &options, &said));
    for (unsigned i = 0; i < length; i++) {
        bags_value n = bags_int(i), words[4];
        for (int k = 0; k < 4; k++)
            words[k] = bags_utf8("word");
        bags_entry entries[] = {
            {"n", &n, 1}, {"words", words, next_random(&random) % 5}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    bytes b = load_catalogue("ds"), refs = load(at("ds/000000/refs.bag"));
    assert_true(catalogue_parse(b.data, b.size, &of));
    assert_false(catalogue_is_plain(&of, 0));
    uint64_t table = catalogue_table(&of, 0, 2);
    for (uint64_t i = 0; i < length; i++) {
        catalogue_guess_row(&of, 0, i, &start, &stop);
        assert_true(start <= bags_load_bytes(refs.data + table + 8 * i, 8, false));
        assert_true(stop >= bags_load_bytes(refs.data + table + 8 * i + 8, 8, false));
        assert_true(stop - start <= 64 << 10 && stop <= table);
    }
    bytes_free(&b);
    bytes_free(&refs);
    /* Any record makes a range within the rows. */
    static unsigned char record[8 + 16 * 2];
    catalogue_view any = {1, 1, 0, sizeof record, record, "x", record};
    for (unsigned i = 0; i < 20000; i++) {
        for (int k = 0; k < 2; k++) {
            uint64_t blobs = next_random(&random) >> (4 + next_random(&random) % 60);
            uint64_t sizes = next_random(&random) >> (4 + next_random(&random) % 60);
            catalogue_store(record + 8 + 16 * k, sizes / 2 + 8 * (blobs / 16 + 1), 8);
            catalogue_store(record + 16 + 16 * k, sizes / 2, 8);
        }
        uint64_t rows = catalogue_length(&any, 0, 1);
        if (rows == 0 || !catalogue_is_valid(&any, 0))
            continue;
        catalogue_guess_row(&any, 0, next_random(&random) % rows, &start, &stop);
        assert_true(start <= stop && stop <= catalogue_table(&any, 0, 1));
    }
}

static void a_catalogue_has_the_sizes_of_all_bags(void **state) {
    bags_reader_options reading = {0};
    catalogue_view of;
    (void)state;
    make_dataset(at("ds"), 0, 10);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    bytes b = load_catalogue("ds");
    assert_true(catalogue_parse(b.data, b.size, &of));
    assert_int_equal(of.shards, 3);
    assert_int_equal(of.fields, 2);
    assert_string_equal(of.names, "data");
    for (unsigned i = 0; i < 3; i++) {
        assert_true(catalogue_is_plain(&of, i));
        assert_int_equal(
            catalogue_size(&of, i, 0), file_size(at("ds/%06u/data.bag", i)));
        assert_int_equal(
            catalogue_size(&of, i, 2), file_size(at("ds/%06u/refs.bag", i)));
        assert_int_equal(catalogue_length(&of, i, 2), 10);
        assert_int_equal(catalogue_table(&of, i, 0), 10 * SIZE);
    }
    /* Any other byte, or fewer, is damage. */
    for (size_t i = 0; i < b.size; i++) {
        b.data[i] ^= (unsigned char)(1 << i % 8);
        assert_false(catalogue_parse(b.data, b.size, &of));
        b.data[i] ^= (unsigned char)(1 << i % 8);
        assert_false(catalogue_parse(b.data, i, &of));
    }
    /* Sequences are not plain. */
    make_dataset(at("words"), 2, 10);
    bytes_free(&b);
    assert_ok(bags_catalogue(at("words"), NULL, &said));
    b = load_catalogue("words");
    assert_true(catalogue_parse(b.data, b.size, &of));
    assert_false(catalogue_is_plain(&of, 1));
    bytes_free(&b);
    /* Another tool than a server reads the dataset as before. */
    assert_ok(verify_path(at("ds"), NULL, &said));
    assert_ok(read_dataset(at("ds"), &reading));
}

static void datasets_without_a_catalogue_are_refused(void **state) {
    bags_writer_options options = {0};
    bags_field field = {"x", "int(4)"};
    bags_value value = bags_int(1);
    bags_entry entry = {"x", &value, 1};
    bags_writer *writer;
    hand_set set = {0};
    (void)state;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_catalogue("", NULL, &said));
    assert_fails(BAGS_ERROR_MISSING, bags_catalogue(at("none"), NULL, &said));
    make_dataset(at("one"), 0, 0);
    assert_fails(BAGS_ERROR_MISSING, bags_catalogue(at("one"), NULL, &said));
    assert_says("no shards");
    options.shard_length = 1;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(at("bare"), &field, 1, &options, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_fails(BAGS_ERROR_MISSING, bags_catalogue(at("bare"), NULL, &said));
    assert_says("no checksums");
    make_dataset(at("gap"), 0, 10);
    assert_int_equal(rename(at("gap/000002"), at("gap/000003")), 0);
    assert_fails(BAGS_ERROR_GAP, bags_catalogue(at("gap"), NULL, &said));
    assert_int_equal(rename(at("gap/000000"), at("gap/000007")), 0);
    bags_finalize_options finalizing = {0};
    assert_ok(bags_finalize(at("gap"), &finalizing, NULL, &said));
    assert_ok(bags_catalogue(at("gap"), NULL, &said));
    /* An empty Bag of granular 0.20. */
    set_field(&set, "x", "bytes[]");
    make_dir(at("new"));
    set_save(&set, V2, at("new/000000"));
    bags_checksum_options summing = {0};
    assert_ok(bags_checksum(at("new"), &summing, NULL, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_catalogue(at("new"), NULL, &said));
    assert_false(exists(at("new/000000/catalogue")));
    set_free(&set);
}

static void writing_and_renumbering_remove_it(void **state) {
    bags_writer_options options = {0};
    bags_finalize_options finalizing = {0};
    bags_writer *writer;
    (void)state;
    make_dataset(at("ds"), 0, 10);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    bags_field fields[] = {{"data", "bytes"}, {"n", "int(4)"}};
    bags_value data = bags_bytes("x", 1), n = bags_int(3);
    bags_entry entries[] = {{"data", &data, 1}, {"n", &n, 1}};
    options.shard_length = 10;
    options.checksum = options.no_sync = true;
    options.existing = BAGS_EXISTING_APPEND;
    assert_opens(writer, bags_writer_open(at("ds"), fields, 2, &options, &said));
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_false(exists(at("ds/000000/catalogue")));
    assert_fails(BAGS_ERROR_UNFINISHED, bags_catalogue(at("ds"), NULL, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    assert_true(exists(at("ds/000000/catalogue")));
    assert_int_equal(rename(at("ds/000001"), at("ds/000009")), 0);
    assert_ok(bags_finalize(at("ds"), &finalizing, NULL, &said));
    assert_false(exists(at("ds/000000/catalogue")));
}

static uint64_t kill_at;

static void kill_before(void *user) {
    if (++*(uint64_t *)user == kill_at)
        raise(SIGKILL);
}

/* After a failure or a kill at any call, there is no catalogue, or a valid one. */
static void a_failed_or_killed_write_leaves_no_damage(void **state) {
    bags_catalogue_options options = {0};
    catalogue_view of;
    (void)state;
    make_dataset(at("ds"), 0, 10);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    uint64_t before = disk.calls, allocated = memory.calls;
    assert_ok(bags_catalogue(at("ds"), &options, &said));
    uint64_t calls = disk.calls - before, step = support_stride();
    allocated = memory.calls - allocated;
    for (int round = 0; round < 3; round++) {
        uint64_t most = round == 1 ? allocated : calls;
        for (uint64_t i = 1; i <= most; i += step) {
            bool old = exists(at("ds/000000/catalogue"));
            int status = 0;
            if (round == 0) {
                disk.fail_at = disk.calls + i;
                disk.fail_with = EIO;
                (void)bags_catalogue(at("ds"), &options, &said);
                disk.fail_at = 0;
            } else if (round == 1) {
                memory.fail_at = memory.calls + i;
                assert_fails(
                    BAGS_ERROR_MEMORY, bags_catalogue(at("ds"), &options, &said));
                memory.fail_at = 0;
            } else {
                pid_t child = fork();
                uint64_t count = 0;
                if (child == 0) {
                    kill_at = i;
                    disk.before = kill_before;
                    disk.user = &count;
                    _exit(bags_catalogue(at("ds"), &options, &said) != BAGS_OK);
                }
                assert_true(waitpid(child, &status, 0) == child);
                assert_true(WIFSIGNALED(status) || status == 0);
            }
            assert_true(!old || exists(at("ds/000000/catalogue")));
            if (exists(at("ds/000000/catalogue"))) {
                bytes b = load_catalogue("ds");
                assert_true(catalogue_parse(b.data, b.size, &of));
                bytes_free(&b);
            }
            if (i % 2)
                remove(at("ds/000000/catalogue"));
        }
    }
    assert_ok(bags_catalogue(at("ds"), &options, &said));
    assert_false(exists(at("ds/000000/catalogue.partial")));
    assert_ok(verify_path(at("ds"), NULL, &said));
}

/* ---- catalogues that do not match ---- */

static void a_damaged_catalogue_is_ignored(void **state) {
    (void)state;
    for (unsigned version = 0; version < 3; version += 2) {
        if (version)
            remove_tree(at("ds"));
        make_dataset(at("ds"), version, 10);
        assert_ok(bags_catalogue(at("ds"), NULL, &said));
        server_start(0, false, at("."));
        assert_int_equal(read_remote(), 0);
        bytes b = load_catalogue("ds");
        for (size_t i = 0; i < b.size; i += b.size / 16) {
            b.data[i] ^= 16;
            save(at("ds/000000/catalogue"), b.data, b.size);
            b.data[i] ^= 16;
            assert_int_equal(read_remote(), 0);
        }
        save(at("ds/000000/catalogue"), b.data, b.size / 2);
        assert_int_equal(read_remote(), 0);
        save(at("ds/000000/catalogue"), "", 0);
        assert_int_equal(read_remote(), 0);
        bytes_free(&b);
        server_stop();
    }
}

/* With other sizes or shard CRCs, and a right CRC: an error, or what the dataset has. Any
 * other bytes may be the catalogue of another dataset, and must do no harm. */
static void a_wrong_catalogue_is_an_error_or_ignored(void **state) {
    uint64_t random = 3;
    unsigned errors = 0;
    (void)state;
    for (unsigned version = 0; version < 3; version += 2) {
        catalogue_view of;
        if (version)
            remove_tree(at("ds"));
        make_dataset(at("ds"), version, 10);
        assert_ok(bags_catalogue(at("ds"), NULL, &said));
        server_start(0, false, at("."));
        bytes b = load_catalogue("ds");
        assert_true(catalogue_parse(b.data, b.size, &of));
        size_t records = (size_t)(of.records - b.data), record = of.record_size;
        unsigned char *right = (unsigned char *)malloc(b.size);
        memcpy(right, b.data, b.size);
        for (int i = 0; i < 160; i += (int)support_stride()) {
            bool any = i % 2;
            memcpy(b.data, right, b.size);
            for (int k = i % 3; k >= 0; k--) {
                size_t number = (size_t)next_random(&random);
                size_t bag = number / 64 % (of.fields + 2), byte = number % 4;
                size_t place = records + number / 4096 % 3 * record +
                               (bag ? 16 * bag - 8 : 0) + byte;
                if (any)
                    place = 12 + number % (b.size - 12);
                b.data[place] = number & 2048 ? (unsigned char)(b.data[place] + 8)
                                              : (unsigned char)(number >> 20);
            }
            save_catalogue("ds", &b);
            int found = read_remote();
            assert_true(any || found == 0 || found == -1);
            errors += found < 0;
        }
        free(right);
        bytes_free(&b);
        server_stop();
    }
    assert_true(errors > 0 || support_stride() > 1);
}

/* Change the catalogue of the dataset of three shards to one of `count`, whose others
 * are as long as a file can be. */
static void save_long_catalogue(const bytes *from, uint64_t count) {
    catalogue_view of;
    bytes b = {0};
    unsigned char number[16];
    assert_true(catalogue_parse(from->data, from->size, &of));
    put(&b, from->data, (size_t)(of.records - from->data));
    for (uint64_t i = 0; i < count; i++) {
        if (i == 0 || i == count - 1) {
            put(&b, of.records, of.record_size);
            continue;
        }
        catalogue_store(number, 7, 8);
        put(&b, number, 8);
        catalogue_store(number, INT64_MAX - 7, 8);
        catalogue_store(number + 8, 0, 8);
        for (size_t k = 0; k <= of.fields; k++)
            put(&b, number, 16);
    }
    catalogue_store(b.data + 16, count, 8);
    assert_int_equal(catalogue_parse(b.data, b.size, &of), false); /* the CRC differs */
    save_catalogue("ds", &b);
    bytes_free(&b);
}

/* The sum of its lengths may be 2^64 or more, and it has at most 1,000,000 shards. */
static void a_catalogue_of_huge_counts_costs_no_memory(void **state) {
    static const uint64_t counts_of[] = {4, 14, 18, 19, 40, CATALOGUE_SHARDS + 1};
    (void)state;
    make_dataset(at("ds"), 0, 10);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    bytes b = load_catalogue("ds");
    server_start(0, false, at("."));
    for (size_t i = 0; i < 6; i++) {
        uint64_t count = counts_of[i];
        char last[32];
        snprintf(last, sizeof last, "ds/%06u", (unsigned)count - 1);
        copy_tree(at("ds/000000"), at("%s", last));
        save_long_catalogue(&b, count);
        bags_row row = {0};
        bags_reader *reader = open_remote(&said);
        if (count > CATALOGUE_SHARDS) { /* ignored: the three shards are found */
            assert_non_null(reader);
            assert_int_equal(bags_reader_length(reader), ROWS);
        } else if (count > 18) {
            assert_null(reader);
            assert_says("more than 2^64 datapoints");
        } else {
            assert_non_null(reader);
            assert_int_equal(
                bags_reader_length(reader), 20 + (count - 2) * ((1ull << 60) - 2));
            assert_fails(BAGS_ERROR_CHANGED,
                bags_reader_get(reader, 1ull << 59, NULL, 0, &row, &said));
            assert_says("000000/catalogue");
        }
        bags_row_free(&row);
        close_remote(reader);
        remove_tree(at("%s", last));
    }
    bytes_free(&b);
    server_stop();
}

static void an_outdated_catalogue_is_ignored_or_named(void **state) {
    (void)state;
    make_dataset(at("ds"), 0, 10);
    make_dataset(at("new"), 1, 10);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    bytes b = load_catalogue("ds");
    server_start(0, false, at("."));
    /* All shards are of another version. */
    assert_int_equal(rename(at("ds"), at("old")), 0);
    copy_tree(at("new"), at("ds"));
    save(at("ds/000000/catalogue"), b.data, b.size);
    assert_int_equal(read_remote(), 1);
    /* A shard that is not the first or the last. */
    remove_tree(at("ds"));
    copy_tree(at("old"), at("ds"));
    assert_int_equal(read_remote(), 0);
    remove_tree(at("ds/000001"));
    copy_tree(at("new/000001"), at("ds/000001"));
    assert_int_equal(read_remote(), -1);
    assert_int_equal(said.code, BAGS_ERROR_CHANGED);
    assert_says("000000/catalogue");
    remove_tree(at("ds/000001"));
    assert_int_equal(read_remote(), -1);
    assert_says("000000/catalogue");
    /* A shard was added: it is found next to the others. */
    remove_tree(at("ds"));
    make_dataset(at("ds"), 0, 10);
    assert_int_equal(rename(at("ds/000002"), at("last")), 0);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    assert_int_equal(rename(at("last"), at("ds/000002")), 0);
    assert_int_equal(read_remote(), 0);
    bytes_free(&b);
    server_stop();
}

/* Opens readers of all rows, and closes them. */
static void *read_shared(void *user) {
    char url[64];
    bags_row row = {0};
    bags_error err;
    uint64_t random = (uintptr_t)user;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/ds", server.port);
    for (uint64_t k = 0; k < 1 + 12 / support_stride(); k++) {
        bags_reader_options options = {0};
        options.env.io = bags_http_io(http);
        bags_reader *reader = bags_reader_open(url, &options, &err);
        for (int i = 0; reader && i < 9; i++) {
            uint64_t index = next_random(&random) % ROWS;
            if (bags_reader_get(reader, index, NULL, 0, &row, &err) ||
                version_of(&row, index) != 0)
                return user;
        }
        bags_reader_close(reader);
        if (!reader)
            return user;
    }
    bags_row_free(&row);
    return NULL;
}

static void threads_share_what_is_known(void **state) {
    pthread_t threads[4];
    (void)state;
    make_dataset(at("ds"), 0, 1);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    server_start(0, false, at("."));
    http = bags_http_open(NULL, &said);
    assert_non_null(http);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, read_shared, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    close_remote(NULL);
    server_stop();
}

/* The server has another version after any number of requests. */
static void data_is_of_one_version(void **state) {
    unsigned requests, read[3] = {0};
    (void)state;
    make_dir(at("new"));
    make_dataset(at("ds"), 0, 10);
    make_dataset(at("new/ds"), 1, 10);
    assert_ok(bags_catalogue(at("ds"), NULL, &said));
    for (int round = 0; round < 2; round++) {
        server_start(0, false, at("."));
        assert_int_equal(read_remote(), 0);
        requests = counts->requests;
        for (unsigned i = 1; i < requests; i += (unsigned)support_stride()) {
            counts->requests = 0;
            counts->changed = i;
            int found = read_remote();
            assert_true(found >= -1);
            read[found + 1]++;
        }
        counts->changed = 0;
        server_stop();
        assert_ok(bags_catalogue(at("new/ds"), NULL, &said));
    }
    assert_true(read[0] > 0 || support_stride() > 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* First: a process inherits the memory of this one, and their memory is
         * measured. */
        TEST(a_billion_datapoints_are_opened_in_three_round_trips),
        TEST(the_first_batch_takes_five_round_trips),
        TEST(other_refs_take_five_round_trips),
        TEST(a_third_of_the_descriptors_is_left),
        TEST(a_hundred_thousand_shards_fit_in_memory),
        TEST(plain_refs_are_as_a_writer_writes_them),
        TEST(guesses_contain_the_rows),
        TEST(a_catalogue_has_the_sizes_of_all_bags),
        TEST(datasets_without_a_catalogue_are_refused),
        TEST(writing_and_renumbering_remove_it),
        TEST(a_failed_or_killed_write_leaves_no_damage),
        TEST(a_damaged_catalogue_is_ignored),
        TEST(a_wrong_catalogue_is_an_error_or_ignored),
        TEST(a_catalogue_of_huge_counts_costs_no_memory),
        TEST(an_outdated_catalogue_is_ignored_or_named),
        TEST(threads_share_what_is_known),
        TEST(data_is_of_one_version),
    };
    int failed = cmocka_run_group_tests_name("catalogue", tests, NULL, NULL);
    server_stop();
    return failed;
}
