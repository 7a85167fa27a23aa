/* Any bytes as a PNG, as they are and with the checksums of all chunks put
 * right: few others come past libpng's front door. What is accepted must be complete,
 * have the shape that was probed, and come back exactly when it is written again. */
// flavours: test: asan
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory of just the size, for AddressSanitizer; NULL if it is no PNG. */
static unsigned char *decode(
    bags_view blob, const bags_png_options *options, bags_image *image, size_t *size) {
    if (bags_png_probe(blob, options, image, NULL))
        return NULL;
    *size = (size_t)image->width * image->channels * (image->depth / 8) * image->height;
    unsigned char *pixels = (unsigned char *)malloc(*size);
    if (pixels && bags_png_decode(blob, options, pixels, *size, 0, NULL)) {
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
    bags_value value =
        bags_array(image->dtype, image->channels == 1 ? 2 : 3, shape, pixels);
    bags_image again;
    size_t again_size = 0;
    if (bags_type_parse("png(1)", &type, NULL) ||
        bags_codec_png.open(&bags_codec_png, &type, &allocator, &state, NULL) ||
        bags_codec_png.encode(state, &value, &scratch, &blob, NULL))
        abort();
    unsigned char *back = decode(blob, NULL, &again, &again_size);
    if (!back || again_size != size || again.width != image->width ||
        again.channels != image->channels || again.dtype != image->dtype ||
        memcmp(back, pixels, size) != 0)
        abort();
    free(back);
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
}

static uint32_t checksum(const uint8_t *data, size_t size) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
    }
    return ~crc;
}

static uint32_t load(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A chunk is its data's length, a name, the data and a checksum. */
static void repair(uint8_t *data, size_t size) {
    size_t at = 8;
    while (size >= 12 && at <= size - 12 && load(data + at) <= size - 12 - at) {
        size_t length = load(data + at);
        uint32_t crc = checksum(data + at + 4, length + 4);
        at += length + 8;
        for (int i = 0; i < 4; i++)
            data[at++] = (uint8_t)(crc >> (24 - 8 * i));
    }
}

static void check(const uint8_t *data, size_t size) {
    bags_view blob = {data, size};
    bags_png_options options;
    memset(&options, 0, sizeof options);
    options.max_pixels = 1 << 16;
    options.allow_trailing = size & 1;
    options.expand = size & 2;
    options.orient = size & 4;
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
