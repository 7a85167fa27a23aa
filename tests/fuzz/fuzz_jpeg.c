/* Any bytes as a JPEG. What is accepted must be complete, and have the shape that was
 * probed, and a rectangle of it the pixels of that part. */
// flavours: test: asan
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory of just the size, for AddressSanitizer; NULL if it is no JPEG. */
static unsigned char *decode(
    bags_view blob, const bags_jpeg_options *options, bags_image *image) {
    if (bags_jpeg_probe(blob, options, image, NULL))
        return NULL;
    size_t size = (size_t)image->width * image->channels * image->height;
    unsigned char *pixels = (unsigned char *)malloc(size);
    if (pixels && bags_jpeg_decode(blob, options, pixels, size, 0, NULL)) {
        free(pixels);
        return NULL;
    }
    return pixels;
}

static void check_rectangle(bags_view blob, bags_jpeg_options *options,
    const bags_image *whole, const unsigned char *pixels, uint32_t seed) {
    options->left = seed % whole->width;
    options->top = (seed >> 4) % whole->height;
    options->width = 1 + (seed >> 8) % (whole->width - options->left);
    options->height = 1 + (seed >> 12) % (whole->height - options->top);
    bags_image image;
    unsigned char *part = decode(blob, options, &image);
    if (!part)
        abort();
    size_t row = (size_t)image.width * image.channels;
    for (size_t i = 0; i < image.height; i++) {
        size_t at =
            ((options->top + i) * whole->width + options->left) * whole->channels;
        if (memcmp(part + i * row, pixels + at, row) != 0)
            abort();
    }
    free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_view blob = {data, size};
    uint32_t seed = 2166136261U;
    for (size_t i = 0; i < size; i++)
        seed = (seed ^ data[i]) * 16777619U;
    bags_jpeg_options options;
    memset(&options, 0, sizeof options);
    options.max_pixels = 1 << 16;
    options.max_scans = 20;
    options.allow_trailing = seed >> 31;
    options.orient = seed >> 26 & 1;
    options.scale = 1U << (seed >> 29 & 3);
    options.channels = (seed >> 27 & 3) % 2 ? 3 - (seed >> 27 & 2) : 0;
    bags_image image;
    unsigned char *pixels = decode(blob, &options, &image);
    bags_error err;
    /* libjpeg makes components without a scan gray. */
    if (pixels && bags_image_check(blob, &err) && !strstr(err.message, "scans"))
        abort();
    if (pixels)
        check_rectangle(blob, &options, &image, pixels, seed);
    free(pixels);
    return 0;
}
