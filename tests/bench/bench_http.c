/*
 * Reading a dataset from a web server, by requests, bytes and round trips:
 *
 *     bench_http URL FIELD ROUND_TRIP_MS [CA_FILE]    batches of random blobs
 *     bench_http --open URL ROUND_TRIP_MS [CA_FILE]   only opening, of many shards
 *
 * It fails if a batch needs more than 1.25 requests per datapoint. Of five runs the
 * fastest counts: on an idle machine a batch of 32 takes 1.1 round trips, one of 256 1.5,
 * and 1,000 shards are open after 9. tests/formats/storage/http.sh runs it with a server whose
 * answers take a round trip, and counts round trips there.
 */
#include "../../bags.h"

#include <stdio.h>
#include <stdlib.h>

#include "../../formats/formats.h"

#include <time.h>

#define RUNS 5

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

static bags_error err;
static double trip;
static int failures;

static void must(bags_code code) {
    if (!code)
        return;
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

typedef struct measure {
    double ms, requests, bytes;
} measure;

static void show(const char *what, const measure *best, size_t count, double wanted,
    double most_requests) {
    double trips = trip > 0 ? best->ms / trip : 0;
    double each = best->requests / (double)count;
    bool bad = most_requests > 0 && each > most_requests;
    failures += bad;
    printf("| %s | %.1f | %.2f | %.2f | %.2f |%s\n", what, best->ms, trips, each,
        wanted > 0 ? best->bytes / wanted : 0, bad ? " MORE THAN REQUIRED" : "");
}

static bags_http *http;
static bags_reader *reader;
static bags_row row;

static void open_all(const char *url, const char *ca_file) {
    bags_http_options options = {0};
    bags_reader_options reading = {0};
    options.ca_file = ca_file;
    http = bags_http_open(&options, &err);
    must(http ? BAGS_OK : err.code);
    reading.env.io = bags_http_io(http);
    reader = bags_reader_open(url, &reading, &err);
    must(reader ? BAGS_OK : err.code);
}

static void close_all(void) {
    bags_reader_close(reader);
    bags_http_close(http);
}

static measure count_since(double start, uint64_t requests, uint64_t bytes) {
    measure out = {now_ms() - start, 0, 0};
    uint64_t r, b;
    bags_http_counts(http, &r, &b);
    out.requests = (double)(r - requests);
    out.bytes = (double)(b - bytes);
    return out;
}

/* `count` random blobs, all with one call, or each with its own. */
static void batches(const char *what, const char *url, const char *ca_file,
    const char *name, size_t count, bool single) {
    measure best = {1e300, 0, 0};
    uint64_t indices[256], requests, bytes;
    double wanted = 0;
    size_t field;
    srand(1);
    for (int run = 0; run < (single ? 1 : RUNS); run++) {
        open_all(url, ca_file);
        must(bags_reader_field(reader, name, &field, &err));
        /* A first batch opens the connections and the Bags. */
        for (size_t i = 0; i < count; i++)
            indices[i] = (uint64_t)rand() % bags_reader_length(reader);
        must(bags_reader_get_many(reader, indices, count, field, &row, &err));
        for (size_t i = 0; i < count; i++)
            indices[i] = (uint64_t)rand() % bags_reader_length(reader);
        bags_http_counts(http, &requests, &bytes);
        double start = now_ms(), size = 0;
        for (size_t i = 0; i < (single ? count : 1); i++)
            must(bags_reader_get_many(
                reader, indices + i, single ? 1 : count, field, &row, &err));
        measure one = count_since(start, requests, bytes);
        for (size_t i = 0; i < count && !single; i++)
            size += (double)bags_row_bytes(&row, 0, i).size;
        if (one.ms < best.ms) {
            best = one;
            wanted = single ? one.bytes : size;
        }
        close_all();
    }
    show(what, &best, count, wanted, single ? 0 : 1.25);
}

/* What a program does that downloads whole shards, for 32 blobs. */
static void whole(const char *url, const char *ca_file) {
    uint64_t requests = 0, bytes = 0, size = 0;
    char *path;
    void *file = NULL;
    open_all(url, ca_file);
    size_t field = 0, length = strlen(url) + 64;
    const bags_field *fields = bags_reader_fields(reader, &field);
    const bags_io *io = bags_http_io(http);
    path = (char *)malloc(length);
    double start = now_ms();
    bags_http_counts(http, &requests, &bytes);
    for (size_t i = 0; path && i < field; i++) {
        snprintf(path, length, "%s/%.40s.bag", url, fields[i].name);
        if (io->open(io->user, path, BAGS_IO_READ, &file) ||
            io->size(io->user, file, &size))
            exit(1);
        unsigned char *data = (unsigned char *)malloc((size_t)size);
        size_t done = 0;
        if (!data || io->read_at(io->user, file, 0, data, (size_t)size, &done))
            exit(1);
        free(data);
        io->close(io->user, file);
    }
    measure all = count_since(start, requests, bytes);
    show("whole files, for 32 blobs", &all, 32, 32 * 30000.0, 0);
    free(path);
    close_all();
}

int main(int count, char **words) {
    bool only_open = count > 1 && strcmp(words[1], "--open") == 0;
    if (count < 4) {
        fprintf(stderr, "usage: bench_http URL FIELD ROUND_TRIP_MS [CA_FILE]\n");
        return 2;
    }
    const char *url = words[1 + only_open];
    const char *ca_file = count > 4 ? words[4] : NULL;
    trip = atof(words[3]);
    printf("| %s | ms | round trips | requests per datapoint | bytes fetched "
           "per byte wanted |\n| --- | ---: | ---: | ---: | ---: |\n",
        strncmp(url, "https", 5) == 0 ? "TLS" : "plain");
    measure best = {1e300, 0, 0};
    size_t shards = 1;
    for (int run = 0; run < RUNS; run++) {
        double start = now_ms();
        open_all(url, ca_file);
        measure one = count_since(start, 0, 0);
        best = one.ms < best.ms ? one : best;
        bags_reader_shards(reader, &shards);
        close_all();
    }
    char what[64];
    snprintf(
        what, sizeof what, "open %u shard%s", (unsigned)shards, shards == 1 ? "" : "s");
    show(what, &best, shards, 0, 0);
    if (!only_open) {
        batches("1 random blob", url, ca_file, words[2], 1, false);
        batches("32 random blobs", url, ca_file, words[2], 32, false);
        batches("256 random blobs", url, ca_file, words[2], 256, false);
        batches("32, one after the other", url, ca_file, words[2], 32, true);
        whole(url, ca_file);
    }
    bags_row_free(&row);
    return failures > 0;
}
