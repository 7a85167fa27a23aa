/*
 * What the tests of JPEG, PNG and WebP share: a codec with memory that fails, on truncated
 * files, in threads, and on the images that the Python packages wrote.
 */
#ifndef BAGS_TESTS_PICTURE_CHECK_H
#define BAGS_TESTS_PICTURE_CHECK_H

#include "pictures.h"

#include <pthread.h>

/* Every allocation fails in turn, of at most this number; opening fails with the first. */
static void check_memory(const bags_codec *codec, const char *type, int most) {
    bags_error err;
    void *state = opened(codec, type), *none = NULL;
    picture input = load_ppm(IMAGES, "input", ".ppm");
    uint64_t shape[3];
    bags_value value = value_of(&input.image, input.samples, shape);
    for (int left = 0;; left++) {
        memory m = {left, 0, 0};
        bags_buffer scratch = buffer_of(&m), pixels = buffer_of(&m);
        bags_view blob;
        bags_code code = codec->encode(state, &value, &scratch, &blob, &err);
        bags_value back;
        if (!code)
            code = codec->decode(state, blob, &pixels, &back, &err);
        bags_buffer_free(&scratch);
        bags_buffer_free(&pixels);
        assert_int_equal(m.held, 0);
        if (!code)
            break;
        assert_int_equal(code, BAGS_ERROR_MEMORY);
        assert_in_range(left, 0, most);
    }
    memory m = {0, 0, 0};
    bags_allocator allocator = allocator_of(&m);
    bags_type parsed;
    assert_int_equal(bags_type_parse(type, &parsed, NULL), BAGS_OK);
    assert_int_equal(
        codec->open(codec, &parsed, &allocator, &none, &err), BAGS_ERROR_MEMORY);
    codec->close(state);
    unload(input.file);
}

typedef struct worker {
    const bags_codec *codec;
    void *state;
    bags_view blob, wanted;
    int wrong;
} worker;

static void *work(void *argument) {
    worker *w = (worker *)argument;
    bags_buffer scratch = {0};
    bags_error mine;
    for (int i = 0; i < 50; i++) {
        bags_value value;
        bags_view blob = w->blob;
        blob.size -= i % 2 ? 1 : 0; /* every other time it is truncated */
        bags_code code = w->codec->decode(w->state, blob, &scratch, &value, &mine);
        if (i % 2)
            w->wrong += code != BAGS_ERROR_CORRUPT;
        else
            w->wrong += code || value.size != w->wanted.size ||
                        memcmp(value.data, w->wanted.data, value.size) != 0;
    }
    bags_buffer_free(&scratch);
    return NULL;
}

/* Three threads decode an image at once, with one state, to these samples. */
static void check_threads(
    const bags_codec *codec, const char *type, bags_view blob, const picture *wanted) {
    worker workers[3];
    pthread_t threads[3];
    void *state = opened(codec, type);
    for (size_t i = 0; i < 3; i++) {
        worker w = {
            codec, state, blob, {wanted->samples, picture_size(&wanted->image)}, 0};
        workers[i] = w;
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    codec->close(state);
}

/* The images of one field of a golden dataset are the stored samples, which may differ
 * by `most`. */
static void check_golden_field(const bags_codec *codec, const char *type,
    const char *writer, const char *dataset, const char *field, int most) {
    char path[256];
    bags_error err;
    snprintf(path, sizeof path, "tests/data/golden/%s/data/%s.bag", dataset, field);
    bag_reader *reader = bag_reader_open(path, NULL, &err);
    if (!reader)
        fail_msg("%s", err.message);
    snprintf(path, sizeof path, "golden-%s-%s", writer, field);
    bags_view wanted = load_part(IMAGES, path, ".raw");
    bags_buffer scratch = {0}, pixels = {0};
    void *state = opened(codec, type);
    size_t at = 0;
    for (uint64_t i = 0; i < bag_reader_length(reader); i++) {
        bags_view blob;
        bags_value got;
        assert_int_equal(bag_reader_get(reader, i, &scratch, &blob, &err), BAGS_OK);
        assert_int_equal(codec->decode(state, blob, &pixels, &got, &err), BAGS_OK);
        assert_true(got.size <= wanted.size - at);
        assert_in_range(
            distance((const unsigned char *)got.data, wanted.data + at, got.size), 0,
            most);
        at += got.size;
    }
    assert_int_equal(at, wanted.size);
    codec->close(state);
    unload(wanted);
    bags_buffer_free(&scratch);
    bags_buffer_free(&pixels);
    bag_reader_close(reader);
}

/* These fields, ended by NULL, of all datasets of plain fields; the field `list` of all of
 * sequences. */
static inline void check_golden(const bags_codec *codec, const char *type,
    const char *const *fields, const char *list, int most) {
    static const char *const sets[][3] = {
        {"bags", "bags-0.5.1/ds-types", "bags-0.5.1/ds-lists"},
        {"granular", "granular-0.16.1/ds-types", "granular-0.16.1/ds-lists"},
        {"granular", "granular-0.21.0/ds-types", "granular-0.21.0/ds-lists"},
        {"granular", "granular-0.22.0a1/ds-types", NULL}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        for (size_t f = 0; fields[f]; f++)
            check_golden_field(codec, type, sets[i][0], sets[i][1], fields[f], most);
        if (sets[i][2])
            check_golden_field(codec, type, sets[i][0], sets[i][2], list, most);
    }
}

/* A file truncated at every length is corrupt. The copy has just so many bytes:
 * AddressSanitizer then sees one more read. */
static void check_truncated(
    const bags_codec *codec, const char *type, const char *name, const char *ending) {
    bags_error err;
    bags_view blob = load_part(IMAGES, name, ending);
    bags_buffer scratch = {0};
    bags_value value;
    void *state = opened(codec, type);
    for (size_t size = 0; size < blob.size; size++) {
        unsigned char *copy = (unsigned char *)malloc(size + !size);
        memcpy(copy, blob.data, size);
        bags_view part = {copy, size};
        if (codec->decode(state, part, &scratch, &value, &err) != BAGS_ERROR_CORRUPT)
            fail_msg("%s, truncated to %u bytes", name, (unsigned)size);
        free(copy);
    }
    codec->close(state);
    bags_buffer_free(&scratch);
    unload(blob);
}

#endif /* BAGS_TESTS_PICTURE_CHECK_H */
