/*
 * What it costs to read a dataset in a zip file instead of a directory: random
 * datapoints, each touched, in turns.
 */
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <string.h>
#include <unistd.h>

#define LENGTH 100000
#define BATCH 1000

typedef struct place {
    bags_archive *archive;
    bags_reader *reader;
    bags_row row;
} place;

static place folder, zip;
static uint64_t seed = 1;
static volatile unsigned seen;

static void must(bool done, const bags_error *err) {
    if (done)
        return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void place_open(place *at, const char *path, bool archive) {
    bags_reader_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    if (archive) {
        at->archive = bags_archive_open(path, NULL, &err);
        must(at->archive != NULL, &err);
        options.env.io = bags_archive_io(at->archive);
    }
    at->reader = bags_reader_open(path, &options, &err);
    must(at->reader != NULL, &err);
}

static void place_close(place *at) {
    bags_row_free(&at->row);
    bags_reader_close(at->reader);
    bags_archive_close(at->archive);
}

/* Read BATCH random datapoints. */
static void get(place *at) {
    bags_error err;
    for (int i = 0; i < BATCH; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        must(!bags_reader_get(
                 at->reader, (seed >> 33) % LENGTH, NULL, 0, &at->row, &err),
            &err);
        for (size_t slot = 0; slot < 2; slot++)
            seen += *bags_row_bytes(&at->row, slot, 0).data;
    }
}

static void get_zip(void *what) {
    (void)what;
    get(&zip);
}

static void get_folder(void *what) {
    (void)what;
    get(&folder);
}

static void open_zip(void *what) {
    place at;
    memset(&at, 0, sizeof at);
    place_open(&at, (const char *)what, true);
    place_close(&at);
}

static void open_folder(void *what) {
    place at;
    (void)what;
    memset(&at, 0, sizeof at);
    place_open(&at, "pets", false);
    place_close(&at);
}

int main(void) {
    static const bags_field fields[] = {{"image", "bytes"}, {"label", "int(4)"}};
    static unsigned char image[300];
    char directory[] = "/tmp/bags-bench-XXXXXX";
    bags_error err;
    if (!mkdtemp(directory) || chdir(directory))
        return 1;
    bags_writer *writer = bags_writer_open("pets", fields, 2, NULL, &err);
    must(writer != NULL, &err);
    for (int i = 0; i < LENGTH; i++) {
        bags_value values[2];
        values[0] = bags_bytes(image, sizeof image);
        values[1] = bags_int(i);
        bags_entry entries[] = {{"image", &values[0], 1}, {"label", &values[1], 1}};
        bags_writer_append(writer, entries, 2, NULL);
    }
    must(!bags_writer_close(writer, &err), &err);
    must(!bags_zip("pets", "pets.zip", NULL, &err), &err);
    place_open(&folder, "pets", false);
    place_open(&zip, "pets.zip", true);
    printf("%-36s %13s %13s   ratio\n", "", "in a zip", "in files");
    compare("1000 random datapoints", get_zip, get_folder, NULL);
    compare("open", open_zip, open_folder, (void *)(uintptr_t) "pets.zip");
    place_close(&folder);
    place_close(&zip);
    return system("rm -r pets pets.zip") || rmdir(directory);
}
