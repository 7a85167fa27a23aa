/* Any bytes as a frame of zstd, in several types, and as a dictionary; and as content that
 * becomes a frame, with and without a dictionary, of which some bytes are then changed, or
 * some of the dictionary. What is accepted must be what the library makes of the frame,
 * and content must come back. */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zdict.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bags_registry *codecs;
static bags_zstd_options options;
static unsigned char dictionary[4096];
static size_t dictionary_size;

static void make_dictionary(void) {
    enum { COUNT = 400 };
    static char samples[COUNT * 80];
    size_t sizes[COUNT], size = 0;
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = (size_t)snprintf(samples + size, 80,
            "{\"id\": %d, \"name\": \"%x\"}", i, (unsigned)i * 2654435761u);
        size += sizes[i];
    }
    dictionary_size =
        ZDICT_trainFromBuffer(dictionary, sizeof dictionary, samples, sizes, COUNT);
    if (ZDICT_isError(dictionary_size))
        abort();
}

static void make_codecs(void) {
    bags_codec codec = bags_codec_zstd;
    make_dictionary();
    codecs = bags_registry_create(NULL, NULL);
    options.registry = codecs;
    options.max_size = 1 << 20;
    codec.user = &options;
    if (!codecs || bags_registry_add(codecs, &bags_codec_npy, NULL) ||
        bags_registry_add(codecs, &codec, NULL))
        abort();
}

/* The bytes that a type gives must be those of the frame. */
static void check(bags_view blob) {
    static const char *const types[] = {
        "zstd(array,float32,-1,2)", "zstd(utf8)", "zstd(int)", "zstd(npy)"};
    bags_buffer scratch = {0};
    bags_value value;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        (void)bags_decode(codecs, types[i], blob, &scratch, &value, NULL);
    if (!bags_decode(codecs, "zstd(bytes)", blob, &scratch, &value, NULL)) {
        unsigned char *again = (unsigned char *)malloc(value.size + 1);
        if (!again ||
            ZSTD_decompress(again, value.size + 1, blob.data, blob.size) !=
                value.size ||
            memcmp(again, value.data, value.size) != 0)
            abort();
        free(again);
    }
    bags_buffer_free(&scratch);
}

/* Change a copy in memory of just its size. Free its data. */
static bags_view changed(bags_view from, bags_view changes) {
    unsigned char *copy = (unsigned char *)malloc(from.size ? from.size : 1);
    bags_view out = {copy, from.size};
    if (!copy)
        abort();
    memcpy(copy, from.data, from.size);
    for (size_t i = 0; i + 2 < changes.size; i += 3)
        copy[bags_load_bytes(changes.data + i, 2, false) % from.size] ^=
            changes.data[i + 2];
    return out;
}

/* Content of floats, compressed; `changes` are pairs of a place and a byte. */
static void change(bags_view content, bags_view changes) {
    bags_buffer scratch = {0}, decoded = {0};
    uint64_t shape[] = {content.size / 8, 2};
    bags_value value = bags_array(BAGS_DTYPE_FLOAT32, 2, shape, content.data), again;
    bags_view blob;
    if (bags_encode(
            codecs, "zstd(array,float32,-1,2)", &value, &scratch, &blob, NULL) ||
        bags_decode(codecs, "zstd(array,float32,-1,2)", blob, &decoded, &again, NULL) ||
        again.size != value.size ||
        (value.size && memcmp(again.data, value.data, value.size) != 0))
        abort();
    for (size_t size = 3; size <= changes.size; size += 3) {
        bags_view some = {changes.data, size}, frame = changed(blob, some);
        check(frame);
        free((void *)(uintptr_t)frame.data);
    }
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded);
}

/* Content of bytes that a writer compresses with the dictionary. */
static void change_with_dictionary(bags_view content, bags_view changes) {
    const bags_codec_dictionary *with = bags_codec_zstd.dictionary;
    bags_codec codec = bags_codec_zstd;
    bags_buffer scratch = {0}, decoded = {0};
    bags_value value = bags_bytes(content.data, content.size), again;
    bags_view bytes = {dictionary, dictionary_size}, blob = {NULL, 0}, found;
    bags_type type;
    bags_error err;
    void *state = NULL, *prepared = NULL;
    bags_allocator allocator = bags_allocator_of(NULL);
    codec.user = &options;
    memset(&again, 0, sizeof again);
    if (bags_type_parse("zstd(bytes)", &type, &err) ||
        codec.open(&codec, &type, &allocator, &state, &err) ||
        with->start(state, bytes, &err) ||
        codec.encode(state, &value, &scratch, &blob, &err) ||
        !with->needed(state, blob) || with->find(state, blob, &found, &err) ||
        found.size != bytes.size || with->prepare(state, bytes, &prepared, &err) ||
        with->decode(state, prepared, blob, &decoded, &again, &err) ||
        again.size != value.size ||
        (value.size && memcmp(again.data, value.data, value.size) != 0))
        abort();
    bags_view frame = changed(blob, changes);
    (void)with->decode(state, prepared, frame, &decoded, &again, &err);
    (void)codec.decode(state, frame, &decoded, &again, &err);
    (void)with->find(state, frame, &found, &err);
    with->discard(state, prepared);
    bags_view other = changed(bytes, changes);
    if (!with->prepare(state, other, &prepared, &err)) {
        (void)with->decode(state, prepared, blob, &decoded, &again, &err);
        with->discard(state, prepared);
    }
    if (!with->prepare(state, content, &prepared, &err))
        with->discard(state, prepared);
    free((void *)(uintptr_t)frame.data);
    free((void *)(uintptr_t)other.data);
    codec.close(state);
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_view blob = {data, size};
    if (!codecs)
        make_codecs();
    check(blob);
    size_t changes = size < 24 ? size / 2 : 12;
    bags_view first = {data, changes}, rest = {data + changes, size - changes};
    change(rest, first);
    change_with_dictionary(rest, first);
    return 0;
}
