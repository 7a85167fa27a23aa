/* Photographs decoded from a Bag, from memory, and from a file each. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef BAGS_WITH_JPEG

void bench_pictures(void) { skip("JPEG decoding", "libjpeg-dev"); }

#else

#include "../../formats/formats.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PHOTOS 2
#define COPIES 64

static const char *const names[PHOTOS] = {
    "tests/data/photos/china.jpg", "tests/data/photos/flower.jpg"};

typedef struct album {
    bags_view photos[COPIES]; /* in memory, each in a place of its own */
    bag_reader *bag;
    unsigned char *pixels, *file;
    size_t size;
} album;

static bags_error err;

static void decode(album *a, bags_view blob) {
    if (bags_jpeg_decode(blob, NULL, a->pixels, a->size, 0, &err))
        die("%s", err.message);
    sink += a->pixels[a->size / 2];
}

static void from_memory(album *a, size_t i) { decode(a, a->photos[i]); }

static void from_bag(album *a, size_t i) {
    bags_buffer scratch = {0};
    bags_view blob;
    if (bag_reader_get(a->bag, i, &scratch, &blob, &err))
        die("%s", err.message);
    decode(a, blob);
}

static const char *file_of(size_t i) {
    char name[32];
    snprintf(name, sizeof name, "%zu.jpg", i);
    return place("photographs", name);
}

static void from_file(album *a, size_t i) {
    struct stat info;
    int file = need_open(file_of(i), O_RDONLY);
    if (fstat(file, &info))
        die("%s", file_of(i));
    bags_view blob = {a->file, (size_t)info.st_size};
    need_read(file, a->file, blob.size, 0);
    close(file);
    decode(a, blob);
}

static const struct {
    const char *name;
    void (*run)(album *a, size_t i);
} ways[] = {
    {"memory", from_memory},
    {"bags.h Bag", from_bag},
    {"a file each", from_file},
};

#define WAYS (sizeof ways / sizeof *ways)

static void make_album(album *a) {
    size_t largest = 0;
    bag_writer *writer =
        bag_writer_open(place("photographs", "photos.bag"), NULL, &err);
    if (!writer)
        die("%s", err.message);
    for (size_t i = 0; i < COPIES; i++) {
        bags_view map = map_file(names[i % PHOTOS]);
        unsigned char *copy = (unsigned char *)need_memory(map.size);
        memcpy(copy, map.data, map.size);
        a->photos[i].data = copy;
        a->photos[i].size = map.size;
        bag_writer_append(writer, copy, map.size, NULL, NULL);
        int file = need_open(file_of(i), O_CREAT | O_WRONLY);
        need_write(file, copy, map.size);
        close(file);
        largest = map.size > largest ? map.size : largest;
        bags_image image;
        if (bags_jpeg_probe(map, NULL, &image, &err))
            die("%s", err.message);
        a->size = (size_t)image.width * image.height * image.channels;
        unmap_file(map);
    }
    if (bag_writer_close(writer, &err))
        die("%s", err.message);
    a->bag = bag_reader_open(place("photographs", "photos.bag"), NULL, &err);
    if (!a->bag)
        die("%s", err.message);
    a->pixels = (unsigned char *)need_memory(a->size);
    a->file = (unsigned char *)need_memory(largest);
}

static void free_album(album *a) {
    for (size_t i = 0; i < COPIES; i++)
        free((void *)(uintptr_t)a->photos[i].data);
    bag_reader_close(a->bag);
    free(a->pixels);
    free(a->file);
    remove_place("photographs");
}

static void check_album(album *a) {
    unsigned char *expected = (unsigned char *)need_memory(a->size);
    from_memory(a, 1);
    memcpy(expected, a->pixels, a->size);
    for (size_t way = 1; way < WAYS; way++) {
        memset(a->pixels, 0, a->size);
        ways[way].run(a, 1);
        check(memcmp(a->pixels, expected, a->size) == 0, ways[way].name, "the pixels");
    }
    free(expected);
}

void bench_pictures(void) {
    static const char part[] = "JPEG, 640 x 427";
    size_t count = set.small ? 2 : COPIES;
    album a;
    if (!wanted(part, "bags.h Bag"))
        return;
    memset(&a, 0, sizeof a);
    begin_part(part);
    remove_place("photographs");
    make_album(&a);
    check_album(&a);
    for (int round = 0; round < set.rounds; round++)
        for (size_t i = 0; i < WAYS; i++) {
            size_t way = (i + (size_t)round) % WAYS;
            double start = cpu_time();
            for (size_t k = 0; k < count; k++)
                ways[way].run(&a, k);
            record("decode", ways[way].name, NANOSECONDS,
                (cpu_time() - start) * 1e9 / (double)count);
        }
    free_album(&a);
}
#endif
