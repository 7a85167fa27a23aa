/* What pillow.py calls. Each function returns false if it failed, with the
 * reason in `message`, which has 1,024 bytes. */
#define BAGS_IMPLEMENTATION
#include "../../../bags.h"
#include "../../../formats/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool resize_image(const void *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *box, int filter, uint32_t new_width,
    uint32_t new_height, void *out, char *message);

bool resize_image(const void *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *box, int filter, uint32_t new_width,
    uint32_t new_height, void *out, char *message) {
    bags_image image = {width, height, channels, 8, BAGS_DTYPE_UINT8};
    bags_box part = {0, 0, width, height};
    bags_buffer scratch = {0};
    bags_error err;
    if (box)
        memcpy(&part, box, sizeof part);
    bags_code code = bags_resample(&image, pixels, 0, box ? &part : NULL,
        (bags_filter)filter, new_width, new_height, &scratch, out, 0, &err);
    if (code)
        snprintf(message, 1024, "%s", err.message);
    bags_buffer_free(&scratch);
    return code == BAGS_OK;
}

/* Only the part that is needed is passed, in memory of exactly its size. */
bool warp_image(const unsigned char *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *matrix, int filter, const unsigned char *fill,
    uint32_t new_width, uint32_t new_height, void *out, char *message);

bool warp_image(const unsigned char *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *matrix, int filter, const unsigned char *fill,
    uint32_t new_width, uint32_t new_height, void *out, char *message) {
    bags_image image = {width, height, channels, 8, BAGS_DTYPE_UINT8};
    bags_part part = bags_warp_part(&image, matrix, new_width, new_height);
    size_t row = (size_t)part.width * channels;
    unsigned char *copy = malloc(row * part.height);
    bags_error err;
    for (size_t y = 0; copy && y < part.height; y++)
        memcpy(copy + y * row, pixels + ((part.top + y) * width + part.left) * channels,
            row);
    bags_code code = bags_warp(&image, &part, copy, 0, matrix, (bags_filter)filter,
        fill, new_width, new_height, out, 0, &err);
    if (code)
        snprintf(message, 1024, "%s", err.message);
    free(copy);
    return code == BAGS_OK;
}

bool jitter_image(void *pixels, uint32_t width, uint32_t height, uint32_t channels,
    const double factors[4], const unsigned char order[4], char *message);

bool jitter_image(void *pixels, uint32_t width, uint32_t height, uint32_t channels,
    const double factors[4], const unsigned char order[4], char *message) {
    bags_image image = {width, height, channels, 8, BAGS_DTYPE_UINT8};
    bags_jitter jitter = {factors[0], factors[1], factors[2], factors[3], {0}};
    bags_error err;
    memcpy(jitter.order, order, 4);
    bags_code code = bags_jitter_apply(&image, pixels, 0, &jitter, &err);
    if (code)
        snprintf(message, 1024, "%s", err.message);
    return code == BAGS_OK;
}

#ifdef WITH_IMAGES

/* Write a dataset with a field "image". */
bool write_images(const char *path, const char *type, const void **blobs,
    const size_t *sizes, size_t count, char *message);

bool write_images(const char *path, const char *type, const void **blobs,
    const size_t *sizes, size_t count, char *message) {
    bags_error err;
    bags_field field = {"image", type};
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, &err);
    bool good = writer != NULL;
    for (size_t i = 0; i < count && good; i++) {
        bags_value value = bags_blob(blobs[i], sizes[i]);
        bags_entry entry = {"image", &value, 1};
        good = bags_writer_append(writer, &entry, 1, &err) == BAGS_OK;
    }
    if (writer && bags_writer_close(writer, good ? &err : NULL))
        good = false;
    if (!good)
        snprintf(message, 1024, "%s", err.message);
    return good;
}

/* Decode an upright image of at most `size` bytes; its height, width and channels. */
bool decode_upright(const void *blob, size_t blob_size, bool png, void *out,
    size_t size, uint32_t shape[3], char *message);

bool decode_upright(const void *blob, size_t blob_size, bool png, void *out,
    size_t size, uint32_t shape[3], char *message) {
    bags_view file = {(const unsigned char *)blob, blob_size};
    bags_jpeg_options jpeg = {0};
    bags_png_options plain = {0};
    bags_image image;
    bags_error err;
    jpeg.orient = plain.orient = true;
    bags_code code = png ? bags_png_probe(file, &plain, &image, &err)
                         : bags_jpeg_probe(file, &jpeg, &image, &err);
    if (!code)
        code = png ? bags_png_decode(file, &plain, out, size, 0, &err)
                   : bags_jpeg_decode(file, &jpeg, out, size, 0, &err);
    if (code) {
        snprintf(message, 1024, "%s", err.message);
        return false;
    }
    shape[0] = image.height;
    shape[1] = image.width;
    shape[2] = image.channels;
    return true;
}

/* What the loader is asked for. pillow.py has the same structure. */
typedef struct request {
    uint64_t seed, epoch, batch;
    uint32_t length, width, height, channels, resize;
    int32_t crop, filter, nchw, real, orient, warp;
    float mean[3], std[3];
    double area[2], aspect[2], flips[2];
    bags_warp_options warping;
    bags_jitter_options jitter;
} request;

static bags_code load_next(bags_loader *loader, const request *r, void *out,
    uint64_t *indices, bags_error *err) {
    const bags_batch *batch;
    bags_code code = bags_loader_seek(loader, r->epoch, r->batch, err);
    if (!code)
        code = bags_loader_next(loader, &batch, err);
    if (code)
        return code;
    if (!batch || batch->length != r->length)
        return bags_fail(err, BAGS_ERROR_RANGE, "the batch is shorter");
    memcpy(out, batch->tensors[0].data, batch->tensors[0].size);
    for (size_t i = 0; i < batch->length; i++)
        indices[i] = batch->picks[i].index;
    return BAGS_OK;
}

bool load_batch(
    const char *path, const request *r, void *out, uint64_t *indices, char *message);

bool load_batch(
    const char *path, const request *r, void *out, uint64_t *indices, char *message) {
    static const bags_loader_images images = {bags_resample, bags_jpeg_probe,
        bags_jpeg_decode, bags_png_probe, bags_png_decode};
    bags_error err;
    bags_load_field field = {0};
    field.name = "image";
    field.dtype = r->real ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_UINT8;
    field.width = r->width;
    field.height = r->height;
    field.channels = r->channels;
    field.crop = (bags_crop)r->crop;
    field.resize = r->resize;
    field.filter = (bags_filter)r->filter;
    field.area.low = r->area[0];
    field.area.high = r->area[1];
    field.aspect.low = r->aspect[0];
    field.aspect.high = r->aspect[1];
    field.flip_x = r->flips[0];
    field.flip_y = r->flips[1];
    field.warp = r->warp ? &r->warping : NULL;
    field.jitter = &r->jitter;
    field.nchw = r->nchw;
    field.orient = r->orient;
    memcpy(field.mean, r->mean, sizeof field.mean);
    memcpy(field.std, r->std, sizeof field.std);
    bags_loader_options options = {0};
    options.order.seed = r->seed;
    options.batch = r->length;
    options.threads = 2;
    options.fields = &field;
    options.field_count = 1;
    options.images = &images;
    bags_reader *reader = bags_reader_open(path, NULL, &err);
    bags_loader *loader = reader ? bags_loader_open((const bags_reader *const *)&reader,
                                       1, &options, &err)
                                 : NULL;
    bags_code code = loader ? load_next(loader, r, out, indices, &err) : err.code;
    if (code)
        snprintf(message, 1024, "%s", err.message);
    bags_loader_close(loader);
    bags_reader_close(reader);
    return code == BAGS_OK;
}

#endif
