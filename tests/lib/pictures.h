/*
 * pictures.h - what the tests and benchmarks of JPEG and PNG share: files, the
 * pixels expected of them, codecs as a reader opens them, memory that fails.
 */
#ifndef PICTURES_H
#define PICTURES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dirent.h>
#include <setjmp.h>

/* Benchmarks are linked without cmocka. */
#ifdef PICTURES_WITHOUT_CMOCKA
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), exit(1))
#define assert_true(c) ((c) ? (void)0 : fail_msg("not so: %s\n", #c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#else
#include <cmocka.h>
#define TEST(function) cmocka_unit_test(function)
#endif

#include "../../formats/formats.h"

#define IMAGES "tests/data/images/"
#define PHOTOS "tests/data/photos/"

/* A whole file, to be freed by free((void *)data); size 0 if there is none. */
static inline bags_view load(const char *path) {
    bags_view out = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return out;
    fseek(file, 0, SEEK_END);
    out.size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = (unsigned char *)malloc(out.size + 1);
    if (!data || fread(data, 1, out.size, file) != out.size)
        abort();
    fclose(file);
    data[out.size] = 0;
    out.data = data;
    return out;
}

/* The same of a file that must be there: "DIRECTORY" "NAME" "ENDING". */
static inline bags_view load_part(
    const char *directory, const char *name, const char *ending) {
    char path[512];
    snprintf(path, sizeof path, "%s%s%s", directory, name, ending);
    bags_view out = load(path);
    if (!out.size)
        fail_msg("%s is not there", path);
    return out;
}

static inline void unload(bags_view bytes) { free((void *)bytes.data); }

/* A picture that is expected, and the file's bytes that hold its samples. */
typedef struct picture {
    bags_image image;
    bags_view file;
    const unsigned char *samples;
} picture;

static inline size_t row_size(const bags_image *image) {
    return (size_t)image->width * image->channels * (image->depth / 8);
}

static inline size_t picture_size(const bags_image *image) {
    return row_size(image) * image->height;
}

/* Behind the line that ends at or after `at`. */
static inline const unsigned char *next_line(const unsigned char *at) {
    return (const unsigned char *)strchr((const char *)at, '\n') + 1;
}

/* What djpeg and cjpeg write and read: P5 or P6. */
static inline picture load_ppm(
    const char *directory, const char *name, const char *ending) {
    picture out;
    out.file = load_part(directory, name, ending);
    char kind = 0;
    unsigned width = 0, height = 0;
    sscanf((const char *)out.file.data, "P%c %u %u 255", &kind, &width, &height);
    out.image.width = width;
    out.image.height = height;
    out.image.channels = kind == '5' ? 1 : 3;
    out.image.depth = 8;
    out.samples = out.file.data + out.file.size - picture_size(&out.image);
    return out;
}

/* What make.py writes: "uint8 H W C", and samples. */
static inline picture load_raw(
    const char *directory, const char *name, const char *ending) {
    picture out;
    out.file = load_part(directory, name, ending);
    unsigned depth = 0, height = 0, width = 0, channels = 1;
    sscanf((const char *)out.file.data, "uint%u%*1[ ]%u%*1[ ]%u%*1[ ]%u", &depth,
        &height, &width, &channels);
    out.image.width = width;
    out.image.height = height;
    out.image.channels = channels;
    out.image.depth = depth;
    out.samples = next_line(out.file.data);
    assert_int_equal(out.file.size - (size_t)(out.samples - out.file.data),
        picture_size(&out.image));
    return out;
}

/* The largest difference between samples of 8 bits. */
static inline int distance(
    const unsigned char *a, const unsigned char *b, size_t size) {
    int out = 0;
    for (size_t i = 0; i < size; i++)
        if (abs(a[i] - b[i]) > out)
            out = abs(a[i] - b[i]);
    return out;
}

/* The mean of the squared differences. */
static inline double squares(
    const unsigned char *a, const unsigned char *b, size_t size) {
    double out = 0;
    for (size_t i = 0; i < size; i++)
        out += (a[i] - b[i]) * (a[i] - b[i]);
    return out / (double)size;
}

/* The names in a directory with an ending, cut off; "bad-..." only if asked.
 * each() is called in the directory's order. Returns how many. */
static inline int each_picture(
    const char *ending, const char *start, void (*each)(const char *name)) {
    int count = 0;
    DIR *directory = opendir(IMAGES);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        char name[256];
        size_t length = strlen(entry->d_name), end = strlen(ending);
        if (length <= end || length >= sizeof name ||
            strcmp(entry->d_name + length - end, ending) != 0)
            continue;
        memcpy(name, entry->d_name, length - end);
        name[length - end] = 0;
        bool bad = strncmp(name, "bad-", 4) == 0;
        if (bad != (start != NULL) || strchr(name, '.'))
            continue;
        each(name);
        count++;
    }
    closedir(directory);
    return count;
}

/* Memory that counts, and fails from the `left`-th call on (-1: never). */
typedef struct memory {
    int left;
    int calls;
    size_t held;
} memory;

static inline void *memory_resize(
    void *user, void *data, size_t old_size, size_t new_size) {
    memory *m = (memory *)user;
    if (new_size == 0) {
        m->held -= old_size;
        free(data);
        return NULL;
    }
    m->calls++;
    if (m->left == 0)
        return NULL;
    if (m->left > 0)
        m->left--;
    void *out = realloc(data, new_size);
    if (out)
        m->held += new_size - old_size;
    return out;
}

static inline bags_allocator allocator_of(memory *m) {
    bags_allocator out = {memory_resize, m};
    return out;
}

static inline bags_buffer buffer_of(memory *m) {
    bags_buffer out = {NULL, 0, memory_resize, m};
    return out;
}

/* A codec's state for a type, as the library opens it. */
static inline bags_code open_type(
    const bags_codec *codec, const char *text, void **state, bags_error *err) {
    static memory forever = {-1, 0, 0};
    bags_allocator allocator = allocator_of(&forever);
    bags_type type;
    assert_int_equal(bags_type_parse(text, &type, err), BAGS_OK);
    return codec->open(codec, &type, &allocator, state, err);
}

static inline void *opened(const bags_codec *codec, const char *text) {
    bags_error err;
    void *state = NULL;
    if (open_type(codec, text, &state, &err))
        fail_msg("%s: %s", text, err.message);
    return state;
}

/* A picture as the value that it is written from. */
static inline bags_value value_of(
    const bags_image *image, const void *samples, uint64_t shape[3]) {
    shape[0] = image->height;
    shape[1] = image->width;
    shape[2] = image->channels;
    return bags_array(image->depth == 8 ? BAGS_DTYPE_UINT8 : BAGS_DTYPE_UINT16,
        image->channels == 1 ? 2 : 3, shape, samples);
}

static inline void assert_shape(const bags_value *value, const bags_image *image) {
    assert_int_equal(value->kind, BAGS_KIND_ARRAY);
    assert_int_equal(
        value->dtype, image->depth == 8 ? BAGS_DTYPE_UINT8 : BAGS_DTYPE_UINT16);
    assert_int_equal(value->dims, image->channels == 1 ? 2 : 3);
    assert_int_equal(value->shape[0], image->height);
    assert_int_equal(value->shape[1], image->width);
    if (image->channels > 1)
        assert_int_equal(value->shape[2], image->channels);
    assert_int_equal(value->size, picture_size(image));
    assert_int_equal((uintptr_t)value->data % 16, 0);
}

static inline void assert_image(const bags_image *a, const bags_image *b) {
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->height, b->height);
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->depth, b->depth);
}

/* Whether a tool can be run; the tests that need one skip without it. */
static inline bool have_tool(const char *name) {
    char command[128];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", name);
    return system(command) == 0;
}

/* A file of a test's own, which unlink removes. */
static inline void store(char path[64], bags_view bytes) {
    const char *scratch = getenv("TMPDIR");
    snprintf(path, 64, "%.40s/picture-XXXXXX", scratch ? scratch : "/tmp");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_true(write(file, bytes.data, bytes.size) == (ssize_t)bytes.size);
    close(file);
}

/* ---- EXIF ---- */

enum { EXIF_SIZE = 26 };

/* EXIF data with an orientation, in one entry. */
static inline void exif_of(
    unsigned char to[EXIF_SIZE], unsigned orientation, bool big) {
    /* Sizes and values after "II": 42, offset of the entries, their number; tag, type,
     * count, the orientation. */
    static const uint16_t parts[7][2] = {
        {2, 42}, {4, 8}, {2, 1}, {2, 0x0112}, {2, 3}, {4, 1}, {2, 0}};
    size_t at = 2;
    memset(to, 0, EXIF_SIZE);
    memset(to, big ? 'M' : 'I', 2);
    for (size_t i = 0; i < 7; at += parts[i++][0]) {
        unsigned value = i == 6 ? orientation : parts[i][1];
        size_t end = at + parts[i][0];
        to[big ? end - 1 : at] = (unsigned char)value;
        to[big ? end - 2 : at + 1] = (unsigned char)(value >> 8);
    }
}

/* A file with some bytes inserted; its own are freed. */
static inline bags_view inserted(
    bags_view file, size_t at, const void *bytes, size_t size) {
    unsigned char *data = (unsigned char *)malloc(file.size + size);
    bags_view out = {data, file.size + size};
    memcpy(data, file.data, at);
    memcpy(data + at, bytes, size);
    memcpy(data + at + size, file.data + at, file.size - at);
    unload(file);
    return out;
}

/* An APP1 segment with EXIF data, at an offset of a JPEG. */
static inline bags_view jpeg_with_exif(
    bags_view file, size_t at, const void *exif, size_t size) {
    unsigned char segment[1024] = {0xFF, 0xE1, (unsigned char)((size + 8) >> 8),
        (unsigned char)(size + 8), 'E', 'x', 'i', 'f', 0, 0};
    assert_true(size <= 1000);
    memcpy(segment + 10, exif, size);
    return inserted(file, at, segment, size + 10);
}

/* A chunk of EXIF data, at an offset of a PNG. */
static inline bags_view png_with_exif(
    bags_view file, size_t at, const void *exif, size_t size) {
    unsigned char chunk[1024] = {
        0, 0, (unsigned char)(size >> 8), (unsigned char)size, 'e', 'X', 'I', 'f'};
    uint32_t crc = UINT32_MAX;
    assert_true(size <= 1000);
    memcpy(chunk + 8, exif, size);
    for (size_t i = 4; i < size + 8; i++) {
        crc ^= chunk[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
    }
    for (size_t i = 0; i < 4; i++)
        chunk[size + 8 + i] = (unsigned char)(~crc >> (24 - 8 * i));
    return inserted(file, at, chunk, size + 12);
}

/* What a picture is after it was turned upright, pixel by pixel. */
static inline picture turned(const picture *from, unsigned orientation) {
    picture out = *from;
    uint32_t w = from->image.width, h = from->image.height;
    size_t pixel = from->image.channels * (from->image.depth / 8);
    if (orientation > 4) {
        out.image.width = h;
        out.image.height = w;
    }
    unsigned char *to = (unsigned char *)malloc(picture_size(&out.image));
    out.samples = to;
    out.file.data = to;
    out.file.size = picture_size(&out.image);
    for (uint32_t v = 0; v < out.image.height; v++)
        for (uint32_t u = 0; u < out.image.width; u++, to += pixel) {
            uint32_t at[9][2] = {{0, 0}, {u, v}, {w - 1 - u, v}, {w - 1 - u, h - 1 - v},
                {u, h - 1 - v}, {v, u}, {v, h - 1 - u}, {w - 1 - v, h - 1 - u},
                {w - 1 - v, u}};
            memcpy(to,
                from->samples +
                    ((size_t)at[orientation][1] * w + at[orientation][0]) * pixel,
                pixel);
        }
    return out;
}

#endif /* PICTURES_H */
