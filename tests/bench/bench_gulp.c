/*
 * What GulpIO is for: frames of videos in random order, from a Bags dataset, from a
 * .gulp and from one JPEG file per frame. All are decoded by the same library. The
 * .gulp is read as GulpIO reads it, by one read at an offset of the .gmeta, which is
 * in memory; its files stay open, as does the dataset. Cold: the bytes were evicted
 * before, but not the directories and inodes, of which the files have most. Files are
 * in build/bench-gulp.
 */
#define _GNU_SOURCE 1
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdio.h>

#ifdef BAGS_WITH_JPEG

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER "build/bench-gulp"
#define VIDEOS 200
#define FRAMES 50 /* per video */
#define WIDTH 320
#define HEIGHT 240
#define WARM 20000 /* reads */
#define COLD 1000
#define ROUNDS 5

static uint64_t offsets[VIDEOS * FRAMES + 1]; /* in the .gulp */
static int gulp;
static bags_reader *reader;
static bags_registry *registry;
static uint64_t sink;

static void must(bool good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static const char *frame_path(uint64_t video, uint64_t frame) {
    static char path[128];
    snprintf(path, sizeof path, FOLDER "/jpeg/%03d/%05d.jpg", (int)video, (int)frame);
    return path;
}

/* ---- three ways to read `count` frames of a video, starting at `frame` ---- */

typedef void (*use)(bags_view blob);

static void read_bags(uint64_t video, uint64_t frame, uint64_t count, use f) {
    static bags_row row;
    bags_error err;
    bags_select slice = bags_select_slice(0, frame, frame + count, 1);
    must(!bags_reader_get(reader, video, &slice, 1, &row, &err), "bags");
    for (size_t i = 0; i < count; i++)
        f(bags_row_bytes(&row, 0, i));
}

static unsigned char bytes[1 << 20];

static void read_gulp(uint64_t video, uint64_t frame, uint64_t count, use f) {
    const uint64_t *at = offsets + video * FRAMES + frame;
    size_t size = (size_t)(at[count] - at[0]);
    must(
        size <= sizeof bytes && pread(gulp, bytes, size, (off_t)at[0]) == (ssize_t)size,
        "pread");
    for (size_t i = 0; i < count; i++) {
        bags_view blob = {bytes + (at[i] - at[0]), (size_t)(at[i + 1] - at[i])};
        f(blob);
    }
}

static void read_files(uint64_t video, uint64_t frame, uint64_t count, use f) {
    for (size_t i = 0; i < count; i++) {
        int file = open(frame_path(video, frame + i), O_RDONLY | O_CLOEXEC);
        must(file >= 0, "open");
        ssize_t size = read(file, bytes, sizeof bytes);
        close(file);
        must(size > 0, "read");
        bags_view blob = {bytes, (size_t)size};
        f(blob);
    }
}

/* ---- what is done with a frame ---- */

static void touch(bags_view blob) {
    for (size_t i = 0; i < blob.size; i += 64)
        sink += blob.data[i];
}

static void decode(bags_view blob) {
    static bags_buffer scratch;
    bags_value value;
    bags_error err;
    must(!bags_decode(registry, "jpeg", blob, &scratch, &value, &err), "jpeg");
    sink += *(const unsigned char *)value.data;
}

/* ---- files ---- */

static void write_file(const char *path, bags_view blob) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must(file >= 0 && write(file, blob.data, blob.size) == (ssize_t)blob.size, path);
    close(file);
}

/* A window that moves over a photograph, as the frames of a video. */
static void make_files(void) {
    bags_error err;
    bags_buffer scratch = {0}, encoded = {0};
    bags_value photo, frames[FRAMES];
    bags_field field = {"frames", "jpeg[]"};
    static unsigned char file[1 << 20], pixels[WIDTH * HEIGHT * 3];
    static const uint64_t shape[3] = {HEIGHT, WIDTH, 3};
    FILE *in = fopen("tests/data/photos/china.jpg", "rb");
    must(in != NULL, "tests/data/photos/china.jpg");
    bags_view blob = {file, fread(file, 1, sizeof file, in)};
    fclose(in);
    must(!bags_decode(registry, "jpeg", blob, &scratch, &photo, &err), "jpeg");
    must(photo.dims == 3 && photo.shape[2] == 3, "a photograph in colour");
    size_t row = (size_t)photo.shape[1] * 3;
    must(system("rm -rf " FOLDER " && mkdir -p " FOLDER "/jpeg") == 0, "mkdir");
    gulp = open(FOLDER "/data_0.gulp", O_RDWR | O_CREAT, 0644);
    bags_writer *writer = bags_writer_open(FOLDER "/bags", &field, 1, NULL, &err);
    must(gulp >= 0 && writer, FOLDER);
    for (uint64_t v = 0; v < VIDEOS; v++) {
        char path[128];
        snprintf(path, sizeof path, FOLDER "/jpeg/%03d", (int)v);
        must(mkdir(path, 0755) == 0, path);
        for (uint64_t f = 0; f < FRAMES; f++) {
            size_t x = (v * 13 + 2 * f) % (photo.shape[1] - WIDTH);
            size_t y = (v * 7 + f) % (photo.shape[0] - HEIGHT);
            for (size_t i = 0; i < HEIGHT; i++)
                memcpy(pixels + i * WIDTH * 3,
                    (const unsigned char *)photo.data + (y + i) * row + 3 * x,
                    (size_t)WIDTH * 3);
            bags_value image = bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels);
            must(!bags_encode(registry, "jpeg", &image, &encoded, &blob, &err), "jpeg");
            uint64_t *at = offsets + v * FRAMES + f;
            at[1] = at[0] + blob.size;
            must(pwrite(gulp, blob.data, blob.size, (off_t)at[0]) == (ssize_t)blob.size,
                "gulp");
            write_file(frame_path(v, f), blob);
            void *copy = malloc(blob.size);
            must(copy != NULL, "malloc");
            frames[f] = bags_blob(memcpy(copy, blob.data, blob.size), blob.size);
        }
        bags_entry entry = {"frames", frames, FRAMES};
        must(!bags_writer_append(writer, &entry, 1, &err), "append");
        for (uint64_t f = 0; f < FRAMES; f++)
            free((void *)(uintptr_t)frames[f].data);
    }
    must(!bags_writer_close(writer, &err), "close");
    must(fsync(gulp) == 0, "fsync");
    sync();
    bags_buffer_free(&scratch);
    bags_buffer_free(&encoded);
}

static void open_bags(void) {
    bags_error err;
    bags_reader_options options = {0};
    options.registry = registry;
    reader = bags_reader_open(FOLDER "/bags", &options, &err);
    must(reader != NULL, "bags");
}

static void evict(const char *path) {
    int file = open(path, O_RDONLY);
    must(file >= 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, path);
    close(file);
}

/* True if most of a file's bytes left the memory. */
static bool is_cold(const char *path) {
    static unsigned char pages[1 << 20];
    int file = open(path, O_RDONLY);
    struct stat about;
    must(file >= 0 && fstat(file, &about) == 0, path);
    size_t size = (size_t)about.st_size, count = (size + 4095) / 4096, in = 0;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    must(map != MAP_FAILED && count <= sizeof pages && mincore(map, size, pages) == 0,
        "mincore");
    for (size_t i = 0; i < count; i++)
        in += pages[i] & 1;
    munmap(map, size);
    close(file);
    return in < count / 20;
}

static bool evict_all(void) {
    bags_reader_close(reader);
    evict(FOLDER "/bags/frames.bag");
    evict(FOLDER "/data_0.gulp");
    for (uint64_t v = 0; v < VIDEOS; v++)
        for (uint64_t f = 0; f < FRAMES; f++)
            evict(frame_path(v, f));
    open_bags();
    return is_cold(FOLDER "/bags/frames.bag") && is_cold(FOLDER "/data_0.gulp");
}

/* ---- measurements ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The three take turns: the median of a frame's times. */
static void measure(const char *name, int reads, uint64_t count, use f, bool cold) {
    static void (*const ways[3])(uint64_t, uint64_t, uint64_t, use) = {
        read_bags, read_gulp, read_files};
    double times[3][ROUNDS];
    uint64_t state = 1;
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t way = 0; way < 3; way++) {
            if (cold && !evict_all()) {
                printf("%-32s skipped: the system keeps the files in memory\n", name);
                return;
            }
            double start = now();
            for (int i = 0; i < reads; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                uint64_t at = (state >> 33) % (VIDEOS * (FRAMES - count + 1));
                ways[way](at % VIDEOS, at / VIDEOS, count, f);
            }
            times[way][round] = (now() - start) / reads / (double)count * 1e6;
        }
    printf("%-32s", name);
    for (size_t way = 0; way < 3; way++) {
        qsort(times[way], ROUNDS, sizeof(double), by_value);
        printf(" %9.2f", times[way][ROUNDS / 2]);
    }
    printf("\n");
}

int main(void) {
    bags_error err;
    registry = bags_registry_create(NULL, &err);
    must(registry && !bags_registry_add(registry, &bags_codec_jpeg, &err), "registry");
    make_files();
    open_bags();
    printf("%d frames of %d x %d, %.1f KB each; us per frame\n"
           "%-32s %9s %9s %9s\n",
        VIDEOS * FRAMES, WIDTH, HEIGHT,
        (double)offsets[VIDEOS * FRAMES] / (VIDEOS * FRAMES) / 1e3, "", "bags.h",
        ".gulp", "files");
    measure("(first reads)", WARM, 1, touch, false);
    measure("warm, a frame", WARM, 1, touch, false);
    measure("warm, a frame, decoded", WARM / 20, 1, decode, false);
    measure("warm, 16 frames", WARM / 8, 16, touch, false);
    measure("warm, 16 frames, decoded", WARM / 200, 16, decode, false);
    measure("cold, a frame", COLD, 1, touch, true);
    measure("cold, a frame, decoded", COLD, 1, decode, true);
    measure("cold, 16 frames", COLD / 10, 16, touch, true);
    measure("cold, 16 frames, decoded", COLD / 10, 16, decode, true);
    bags_reader_close(reader);
    close(gulp);
    bags_registry_free(registry);
    return sink == 0 || system("rm -rf " FOLDER) != 0;
}

#else

int main(void) {
    printf("skipped: libjpeg not found\n");
    return 0;
}

#endif
