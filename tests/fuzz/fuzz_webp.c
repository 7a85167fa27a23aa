/* Any bytes as a WebP, as they are and with valid sizes of the file and of its chunks. An
 * accepted file must be complete, have the shape that was probed, and come back exactly
 * when it is written again. */
// flavours: test: asan
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory of just the size, for AddressSanitizer; NULL if it is no WebP. */
static unsigned char *decode(
    bags_view blob, const bags_webp_options *options, bags_image *image, size_t *size) {
    if (bags_webp_probe(blob, options, image, NULL))
        return NULL;
    *size = (size_t)image->width * image->channels * image->height;
    unsigned char *pixels = (unsigned char *)malloc(*size);
    if (pixels && bags_webp_decode(blob, options, pixels, *size, 0, NULL)) {
        free(pixels);
        return NULL;
    }
    return pixels;
}

static void check_again(
    const bags_image *image, const unsigned char *pixels, size_t size) {
    bags_allocator allocator = bags_allocator_of(NULL);
    bags_type type;
    void *state = NULL;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    uint64_t shape[3] = {image->height, image->width, image->channels};
    bags_value value = bags_array(image->dtype, 3, shape, pixels);
    bags_image again;
    size_t again_size = 0;
    if (bags_type_parse("webp(0)", &type, NULL) ||
        bags_codec_webp.open(&bags_codec_webp, &type, &allocator, &state, NULL) ||
        bags_codec_webp.encode(state, &value, &scratch, &blob, NULL))
        abort();
    unsigned char *back = decode(blob, NULL, &again, &again_size);
    if (!back || again_size != size || again.width != image->width ||
        again.channels != image->channels || memcmp(back, pixels, size) != 0)
        abort();
    free(back);
    bags_codec_webp.close(state);
    bags_buffer_free(&scratch);
}

static void store(uint8_t *at, size_t size) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(size >> 8 * i);
}

static size_t load(const uint8_t *at) {
    return at[0] | (size_t)at[1] << 8 | (size_t)at[2] << 16 | (size_t)at[3] << 24;
}

/* After 12 bytes, a chunk is a name, its data's size, and the data. */
static void repair(uint8_t *data, size_t size) {
    if (size < 20)
        return;
    memcpy(data, "RIFF", 4);
    memcpy(data + 8, "WEBP", 4);
    store(data + 4, size - 8);
    size_t at = 12;
    while (size - at >= 8) {
        size_t left = size - at - 8, length = load(data + at + 4);
        if (length + length % 2 + 8 > left)
            store(data + at + 4, length = left);
        at += 8 + length;
        at += length % 2 && at < size;
    }
}

static void check(const uint8_t *data, size_t size) {
    bags_view blob = {data, size};
    bags_webp_options options;
    memset(&options, 0, sizeof options);
    options.max_pixels = 1 << 14;
    options.allow_trailing = size & 1;
    options.orient = size & 2;
    bags_image image;
    size_t bytes = 0;
    unsigned char *pixels = decode(blob, &options, &image, &bytes);
    if (bags_image_check(blob, NULL) && pixels)
        abort();
    if (pixels)
        check_again(&image, pixels, bytes);
    free(pixels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    uint8_t *copy = (uint8_t *)malloc(size + 1);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    repair(copy, size);
    check(copy, size);
    free(copy);
    return 0;
}
