/* Any bytes as a frame of zstd, in several types; and as content that becomes a frame,
 * of which some bytes are then changed. What is accepted must be what the library makes
 * of the frame, and content must come back. */
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bags_registry *codecs;

static void make_codecs(void) {
    static bags_zstd_options options;
    bags_codec codec = bags_codec_zstd;
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
    for (size_t i = 0; i + 2 < changes.size; i += 3) {
        size_t at = (size_t)bags_load(changes.data + i, 2, false) % blob.size;
        scratch.data[at] ^= changes.data[i + 2];
        void *copy = malloc(blob.size);
        if (!copy)
            abort();
        memcpy(copy, blob.data, blob.size);
        bags_view changed = {(const unsigned char *)copy, blob.size};
        check(changed);
        free(copy);
    }
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
    return 0;
}
