/*
 * Random values of a table of Lance, taken by its JavaScript binding, and of a dataset,
 * through the Python package and from C: one by one, and in batches of 32 and 1,000. The three
 * take turns. Lance's binding returns an Arrow table that it copies from another thread;
 * the Python package copies each value into bytes; C returns pointers and touches every
 * cache line. All files are in memory. They are in build/bench-lance.
 *
 *     npm install --prefix build/lance @lancedb/lancedb@0.31 apache-arrow
 *     make python
 */
#include "../../bags.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FOLDER "build/bench-lance"
#define ROUNDS 5
#define BATCHES 3
#define WAYS 3

static const char *const ways[WAYS] = {
    "Lance, JavaScript", "bags.h, Python", "bags.h, C"};
static bool usable[WAYS] = {true, true, true};
static uint64_t sink;

static void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "bench_lance: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t random_below(uint64_t count) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % count;
}

/* Microseconds per value, by the clock and of the processor. */
typedef struct figures {
    double clock[BATCHES], processor[BATCHES];
} figures;

/* ---- bags.h ---- */

static void write_dataset(size_t size, uint32_t count) {
    bags_error err;
    bags_field field = {"v", "bytes"};
    bags_writer *writer = bags_writer_open(FOLDER "/bags", &field, 1, NULL, &err);
    unsigned char *value = (unsigned char *)malloc(size);
    must(writer && value, FOLDER "/bags");
    for (size_t i = 0; i < size; i++)
        value[i] = (unsigned char)random_below(256);
    for (uint32_t i = 0; i < count; i++) {
        for (size_t k = 0; k < 4; k++)
            value[k] = (unsigned char)(i >> 8 * k);
        bags_value blob = bags_bytes(value, size);
        bags_entry entry = {"v", &blob, 1};
        must(!bags_writer_append(writer, &entry, 1, &err), "append");
    }
    must(!bags_writer_close(writer, &err), "close");
    free(value);
}

/* The loop is the same for all batch sizes: the batch size does not matter. */
static void read_dataset(uint32_t count, figures *to) {
    bags_error err;
    bags_row row = {0};
    bags_reader *reader = bags_reader_open(FOLDER "/bags", NULL, &err);
    must(reader != NULL, FOLDER "/bags");
    for (size_t b = 0; b < BATCHES; b++) {
        enum { VALUES = 20000 };
        double start = seconds(CLOCK_MONOTONIC);
        double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < VALUES; i++) {
            uint64_t index = random_below(count);
            must(!bags_reader_get(reader, index, NULL, 0, &row, &err), "get");
            bags_view value = bags_row_bytes(&row, 0, 0);
            for (size_t at = 0; at < value.size; at += 64)
                sink += value.data[at];
            must(value.data[0] == (index & 255), "value");
        }
        to->processor[b] = (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) * 1e6 / VALUES;
        to->clock[b] = (seconds(CLOCK_MONOTONIC) - start) * 1e6 / VALUES;
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- the others ---- */

static bool run_peer(const char *command, figures *to) {
    FILE *from = popen(command, "r");
    bool good = from != NULL;
    for (size_t b = 0; good && b < BATCHES; b++)
        good = fscanf(from, "%lf %lf", &to->clock[b], &to->processor[b]) == 2;
    return from && pclose(from) == 0 && good;
}

static bool run_way(size_t way, size_t size, uint32_t count, figures *to) {
    char command[256];
    if (way == 2) {
        read_dataset(count, to);
        return true;
    }
    if (way == 1)
        return run_peer(
            "/usr/bin/python3 tests/bench/peer_lance.py " FOLDER "/bags", to);
    snprintf(command, sizeof command,
        "node tests/bench/peer_lance.js read " FOLDER "/lance %zu %u", size, count);
    return run_peer(command, to);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static void print_way(size_t way, const figures *rounds) {
    printf("%-20s", ways[way]);
    for (size_t b = 0; b < BATCHES; b++) {
        double clock[ROUNDS], processor[ROUNDS];
        for (size_t r = 0; r < ROUNDS; r++) {
            clock[r] = rounds[r].clock[b];
            processor[r] = rounds[r].processor[b];
        }
        printf(" %10.2f %10.2f", median_of(clock), median_of(processor));
    }
    printf("\n");
}

static void measure(size_t size, uint32_t count) {
    static figures found[WAYS][ROUNDS];
    char command[256];
    must(system("rm -rf " FOLDER " && mkdir -p " FOLDER) == 0, FOLDER);
    write_dataset(size, count);
    snprintf(command, sizeof command,
        "node tests/bench/peer_lance.js write " FOLDER "/lance %zu %u 2>/dev/null",
        size, count);
    usable[0] = usable[0] && system(command) == 0;
    for (size_t r = 0; r < ROUNDS; r++)
        for (size_t i = 0; i < WAYS; i++) {
            size_t way = (i + r) % WAYS;
            usable[way] = usable[way] && run_way(way, size, count, &found[way][r]);
        }
    printf("\n%u values of %zu bytes; us per value by the clock, and of the "
           "processor\n%-20s",
        count, size, "");
    for (size_t b = 0; b < BATCHES; b++)
        printf(" %10s %10s", b == 0 ? "single" : b == 1 ? "of 32" : "of 1,000", "");
    printf("\n");
    for (size_t way = 0; way < WAYS; way++)
        if (usable[way])
            print_way(way, found[way]);
        else
            printf("%-20s skipped: %s\n", ways[way],
                way ? "make python"
                    : "npm install --prefix build/lance @lancedb/lancedb@0.31 "
                      "apache-arrow");
    fflush(stdout);
}

int main(void) {
    measure(100, 1000000);
    measure(30000, 20000);
    return sink == 0 || system("rm -rf " FOLDER) != 0;
}
