/*
 * What it costs to read the agents of a frame in random order: from L5Kit's arrays
 * by zarr-python, which decompresses the chunk that they are in, and from the dataset
 * that the importer makes of them, where they are one range of each Bag. Also what
 * the import costs. Files are in build/.
 */
#include "../../bags.h"
#include "../../formats/import/import.h"

#include <stdio.h>

#ifdef BAGS_WITH_IMPORT_ZARR

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SOURCE "build/l5kit.zarr"
#define DATASET "build/l5kit"
#define PYTHON "/usr/bin/python3 tests/bench/l5kit.py "
#define READS 100000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int failed(const bags_error *err) {
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

static bags_code import_all(uint64_t *length, bags_error *err) {
    const bags_entry *entries;
    bags_source *source = bags_source_open(&bags_import_zarr, SOURCE, NULL, err);
    if (!source)
        return err->code;
    bags_writer *writer =
        bags_writer_open(DATASET, source->fields, source->count, NULL, err);
    bags_code code = writer ? BAGS_OK : err->code;
    for (uint64_t i = 0; !code; i++) {
        code = bags_source_read(source, i, &entries, err);
        if (code || !entries)
            break;
        code = bags_writer_append(writer, entries, source->count, err);
    }
    *length = source->length;
    bags_source_close(source);
    if (code) {
        bags_writer_abort(writer);
        return code;
    }
    return bags_writer_close(writer, err);
}

int main(void) {
    bags_error err;
    uint64_t length = 0, state = 1;
    const char *const names[] = {"agents.centroid", "agents.extent", "agents.yaw",
        "agents.velocity", "agents.track_id", "agents.label_probabilities"};
    bags_select selects[6];
    double sum = 0;
    if (system(PYTHON "make " SOURCE " 2>/dev/null && rm -rf " DATASET)) {
        printf("skipped: zarr-python not found\n");
        return 0;
    }
    double start = now();
    if (import_all(&length, &err))
        return failed(&err);
    printf("import                       %8.2f us per frame\n",
        (now() - start) / (double)length * 1e6);
    bags_reader *reader = bags_reader_open(DATASET, NULL, &err);
    if (!reader)
        return failed(&err);
    memset(selects, 0, sizeof selects);
    for (size_t i = 0; i < 6; i++)
        if (bags_reader_field(reader, names[i], &selects[i].field, &err))
            return failed(&err);
    bags_row row = {0};
    for (size_t fields = 1; fields <= 6; fields += 5) {
        start = now();
        for (size_t i = 0; i < READS; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            if (bags_reader_get(
                    reader, (state >> 33) % length, selects, fields, &row, &err))
                return failed(&err);
            for (size_t k = 0; k < bags_row_length(&row, 0); k++) {
                double x[2];
                memcpy(x, bags_row_bytes(&row, 0, k).data, sizeof x);
                sum += x[0] + x[1];
            }
        }
        printf("bags.h, %d field%s of agents %s %8.2f us per frame\n", (int)fields,
            fields > 1 ? "s" : "", fields > 1 ? "" : " ",
            (now() - start) / READS * 1e6);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    printf("zarr-python, all members     %s", sum > 0 ? "" : "(nothing) ");
    fflush(stdout);
    return system(PYTHON "time " SOURCE) != 0;
}

#else

int main(void) {
    printf("skipped: libblosc or libzip not found\n");
    return 0;
}

#endif
