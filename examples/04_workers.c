/*
 * Workers: four processes write one dataset at the same time. Worker 1 of 4 writes
 * shards 1, 5, 9, ..., so workers share no files, and never wait for each other. A
 * reader presents all shards as one list.
 *
 *     cc 04_workers.c -o 04_workers && ./04_workers squares
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <stdio.h>
#include <sys/wait.h>

enum { WORKERS = 4, NUMBERS = 1000 };

/* Worker w writes every fourth number, starting with w, and its square. */
static bags_code work(const char *path, uint64_t w, bags_error *err) {
    const bags_field fields[] = {{"root", "int"}, {"square", "int(8)"}};
    bags_writer_options options = {0};
    options.shard_length = 50;
    options.shard_start = w;
    options.shard_stop = WORKERS;
    bags_writer *writer = bags_writer_open(path, fields, 2, &options, err);
    if (!writer)
        return err->code;
    for (uint64_t i = w; i < NUMBERS; i += WORKERS) {
        bags_value root = bags_uint(i);
        bags_value square = bags_uint(i * i);
        bags_entry datapoint[] = {{"root", &root, 1}, {"square", &square, 1}};
        bags_writer_append(writer, datapoint, 2, NULL);
    }
    return bags_writer_close(writer, err);
}

static int start_workers(const char *path) {
    int failed = 0, status;
    for (uint64_t w = 0; w < WORKERS; w++) {
        bags_error err;
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child > 0)
            continue;
        if (!work(path, w, &err))
            _exit(0);
        fprintf(stderr, "worker %d: %s\n", (int)w, err.message);
        _exit(1);
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

static bags_code add_up(const char *path, bags_error *err) {
    uint64_t sum = 0;
    size_t shards = 0;
    bags_row row = {0};
    bags_value square;
    bags_code code = BAGS_OK;
    bags_reader *reader = bags_reader_open(path, NULL, err);
    if (!reader)
        return err->code;
    for (uint64_t i = 0; !code && i < bags_reader_length(reader); i++) {
        code = bags_reader_get(reader, i, NULL, 0, &row, err);
        if (!code)
            code = bags_row_value(&row, 1, 0, NULL, &square, err);
        if (!code)
            sum += square.uint;
    }
    bags_reader_shards(reader, &shards);
    if (!code)
        printf("%d datapoints in %d shards, sum %d\n", (int)bags_reader_length(reader),
            (int)shards, (int)sum);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "squares";
    bags_error err;
    if (start_workers(path))
        return 1;
    if (add_up(path, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    return 0;
}

/* Output:
1000 datapoints in 20 shards, sum 332833500
*/
