/* What opening costs where there are many shards, and where there are more
 * datapoints than memory has bytes. */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHO "bags.h dataset"

static bags_error err;
static size_t in_use;

/* malloc, counting. */
static void *resize(void *user, void *data, size_t old_size, size_t new_size) {
    void *fresh = NULL;
    (void)user;
    if (new_size && !(fresh = realloc(data, new_size)))
        return NULL;
    if (!new_size)
        free(data);
    in_use += new_size - old_size;
    return fresh;
}

static bags_reader *open_counted(const char *path) {
    static const bags_allocator counting = {resize, NULL};
    bags_reader_options options = {0};
    options.env.allocator = &counting;
    bags_reader *reader = bags_reader_open(path, &options, &err);
    if (!reader)
        die("%s", err.message);
    return reader;
}

static uint64_t first_byte(const bags_reader *reader, uint64_t index, bags_row *row) {
    bags_view blob;
    if (bags_reader_get_blob(reader, index, 0, 0, row, &blob, &err))
        die("%s", err.message);
    return blob.size ? blob.data[0] : 0;
}

/* ---------------------------------------------------------------- many shards */

/* Datapoint i is one byte, in a shard of its own. */
static void write_shards(const char *path, uint64_t count) {
    bags_writer_options options = {0};
    bags_field field = {"blob", "bytes"};
    options.no_sync = true;
    options.shard_length = 1;
    bags_writer *writer = bags_writer_open(path, &field, 1, &options, &err);
    if (!writer)
        die("%s", err.message);
    for (uint64_t i = 0; i < count; i++) {
        unsigned char byte = (unsigned char)i;
        bags_value value = bags_bytes(&byte, 1);
        bags_entry entry = {"blob", &value, 1};
        bags_writer_append(writer, &entry, 1, NULL);
    }
    if (bags_writer_close(writer, &err))
        die("%s", err.message);
}

static void time_shards(const char *path, uint64_t count) {
    bags_row row = {0};
    double start = wall_time();
    bags_reader *reader = open_counted(path);
    record("memory a shard", WHO, BYTES, (double)in_use / (double)count);
    uint64_t first = first_byte(reader, 0, &row);
    record("open, first get", WHO, NANOSECONDS, (wall_time() - start) * 1e9);
    check(first == 0 && bags_reader_length(reader) == count, WHO,
        "the first of many shards");
    check(first_byte(reader, count - 1, &row) == (count - 1) % 256, WHO,
        "the last of many shards");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void bench_shards(void) {
    static const char part[] = "100,000 shards";
    uint64_t count = set.small ? 300 : 100000;
    if (!wanted(part, WHO))
        return;
    begin_part(part);
    remove_place("shards");
    write_shards(place("shards", "data"), count);
    for (int round = 0; round < set.rounds; round++)
        time_shards(place("shards", "data"), count);
    remove_place("shards");
}

/* ------------------------------------------------------------ many datapoints */

/* A dataset without refs, all of whose blobs have no byte but the last one: its
 * index is a hole. */
static void write_sparse(const char *folder, uint64_t count) {
    static const char spec[] = "{\"blob\": \"bytes\"}";
    unsigned char end[8] = {1};
    char path[4096];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/spec.json", folder);
    int file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    need_write(file, spec, sizeof spec - 1);
    close(file);
    snprintf(path, sizeof path, "%s/blob.bag", folder);
    file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    need_write(file, "\7", 1);
    close(file);
    snprintf(path, sizeof path, "%s/blob.idx", folder);
    file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    if (pwrite(file, end, 8, (off_t)(8 * (count - 1))) != 8)
        die("%s", path);
    close(file);
}

static void time_sparse(const char *folder, uint64_t count) {
    bags_row row = {0};
    double start = wall_time();
    bags_reader *reader = open_counted(folder);
    uint64_t first = first_byte(reader, 0, &row);
    uint64_t last = first_byte(reader, count - 1, &row);
    record("open, both ends", WHO, NANOSECONDS, (wall_time() - start) * 1e9);
    check(bags_reader_length(reader) == count && first == 0 && last == 7, WHO,
        "both ends of a sparse dataset");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void bench_sparse(void) {
    static const char part[] = "10,000,000,000 datapoints";
    uint64_t count = set.small ? 1000 : 10000000000u;
    if (!wanted(part, WHO))
        return;
    begin_part(part);
    remove_place("sparse");
    write_sparse(place("sparse", "data"), count);
    for (int round = 0; round < set.rounds; round++)
        time_sparse(place("sparse", "data"), count);
    remove_place("sparse");
}

void bench_opening(void) {
    bench_shards();
    bench_sparse();
}
