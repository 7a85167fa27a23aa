/*
 * webp.c - the type webp, using libwebp 1.0 or later (Debian: libwebp-dev).
 *
 *     webp         lossless, with libwebp's usual effort, 6
 *     webp(LEVEL)  lossless, with an effort of 0 (fastest) to 9 (smallest)
 *
 * A value is a uint8 array, H x W x 3 or H x W x 4, with the top row first. It equals
 * numpy.asarray(PIL.Image.open(file)). Lossy and lossless files are read; arrays are
 * written without loss, including the colours of transparent pixels.
 *
 * Rejected: other arrays, empty images and sides above 16,383 when writing; animated,
 * damaged and truncated files, trailing bytes and too many pixels when reading.
 */
#include "images.h"

#include <limits.h>
#include <stdlib.h>

#include <webp/decode.h>
#include <webp/encode.h>

#define WEBP_DEFAULT_LEVEL 6
#define WEBP_ALPHA_AT 24 /* the byte of a lossless file that states "has alpha", */
#define WEBP_ALPHA 0x10  /* and the bit */

/* ---- arguments ---- */

typedef struct webp_state {
    bags_buffer memory; /* the memory holding this structure */
    int level;
    bags_webp_options options;
} webp_state;

static bags_code webp_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    uint64_t level = WEBP_DEFAULT_LEVEL;
    if (format_argument(type, "level", 0, 9, &level, err))
        return BAGS_ERROR_TYPE;
    webp_state *made = (webp_state *)format_state(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->level = (int)level;
    if (codec->user)
        made->options = *(const bags_webp_options *)codec->user;
    *state = made;
    return BAGS_OK;
}

/* ---- encode ---- */

typedef struct webp_encoder {
    bags_buffer *scratch;
    size_t size;    /* bytes written */
    bags_code code; /* the failure of the scratch */
    bags_error *err;
} webp_encoder;

static int webp_output(const uint8_t *data, size_t size, const WebPPicture *picture) {
    webp_encoder *e = (webp_encoder *)picture->custom_ptr;
    e->code = size > SIZE_MAX - e->size
                  ? bags_fail(e->err, BAGS_ERROR_MEMORY, "out of memory")
                  : bags_buffer_reserve(e->scratch, e->size + size, e->err);
    if (e->code)
        return 0;
    memcpy(e->scratch->data + e->size, data, size);
    e->size += size;
    return 1;
}

static bags_code webp_fail_encode(const WebPPicture *picture, bags_error *err) {
    int code = (int)picture->error_code;
    if (code == VP8_ENC_ERROR_OUT_OF_MEMORY ||
        code == VP8_ENC_ERROR_BITSTREAM_OUT_OF_MEMORY)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    return bags_fail(err, BAGS_ERROR_VALUE, "libwebp: encoding failed (%d)", code);
}

/* The picture is freed by the caller. */
static bags_code webp_encode_image(webp_encoder *e, const bags_image *image,
    const uint8_t *pixels, int level, WebPPicture *picture) {
    WebPConfig config;
    int row = (int)format_image_row(image);
    if (!WebPConfigInit(&config) || !WebPConfigLosslessPreset(&config, level))
        return bags_fail(e->err, BAGS_ERROR_VALUE, "libwebp: another version");
    config.exact = 1;
    picture->use_argb = 1;
    picture->width = (int)image->width;
    picture->height = (int)image->height;
    picture->writer = webp_output;
    picture->custom_ptr = e;
    int imported = image->channels == 4 ? WebPPictureImportRGBA(picture, pixels, row)
                                        : WebPPictureImportRGB(picture, pixels, row);
    if (imported && WebPEncode(&config, picture))
        return BAGS_OK;
    return e->code ? e->code : webp_fail_encode(picture, e->err);
}

/* Get the image to encode from a value. */
static bags_code webp_image_of(
    const bags_value *value, bags_image *out, bags_error *err) {
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != BAGS_DTYPE_UINT8 ||
        value->dims != 3 || value->shape[2] < 3 || value->shape[2] > 4)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "expected an array of uint8, H x W x 3 or H x W x 4");
    return format_image_of(value, value->shape[2], 8, WEBP_MAX_DIMENSION, out, err);
}

static bags_code webp_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    webp_encoder e = {scratch, 0, BAGS_OK, err};
    bags_image image;
    memset(&image, 0, sizeof image);
    WebPPicture picture;
    bags_code code = webp_image_of(value, &image, err);
    if (code)
        return code;
    if (!WebPPictureInit(&picture))
        return bags_fail(err, BAGS_ERROR_VALUE, "libwebp: another version");
    code = webp_encode_image(&e, &image, (const uint8_t *)value->data,
        ((const webp_state *)state)->level, &picture);
    WebPPictureFree(&picture);
    if (code)
        return code;
    /* libwebp states that an opaque image has no alpha; the shape must not change. */
    if (image.channels == 4)
        scratch->data[WEBP_ALPHA_AT] |= WEBP_ALPHA;
    blob->data = scratch->data;
    blob->size = e.size;
    return BAGS_OK;
}

/* ---- decode ---- */

typedef struct webp_decoder {
    bags_view blob;
    bags_webp_options options;
    uint32_t orientation;
    bags_image image;  /* the image to return, */
    bags_image stored; /* and the image before turning */
    size_t size;       /* bytes of the file; after them are trailing bytes */
    format_pixels to;
    bags_error *err;
} webp_decoder;

static bags_code webp_fail_decode(VP8StatusCode status, bags_error *err) {
    if (status == VP8_STATUS_OUT_OF_MEMORY)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    return bags_fail(err, BAGS_ERROR_CORRUPT, "libwebp: %s (%d)",
        status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED
            ? "truncated data"
            : "damaged data",
        (int)status);
}

static bags_code webp_open_header(webp_decoder *d) {
    WebPBitstreamFeatures features;
    format_webp found;
    bags_code code = format_webp_scan(d->blob, &found, d->err);
    if (code)
        return code;
    d->size = found.size;
    VP8StatusCode status = WebPGetFeatures(d->blob.data, d->size, &features);
    if (status != VP8_STATUS_OK)
        return webp_fail_decode(status, d->err);
    uint64_t width = (uint64_t)features.width, height = (uint64_t)features.height;
    if (width * height > d->options.max_pixels)
        return bags_fail(d->err, BAGS_ERROR_LIMIT,
            "too many pixels (%" PRIu64 " x %" PRIu64 ", maximum %" PRIu64 ")", height,
            width, d->options.max_pixels);
    d->image.width = (uint32_t)width;
    d->image.height = (uint32_t)height;
    d->image.channels = features.has_alpha ? 4 : 3;
    d->image.depth = 8;
    d->image.dtype = BAGS_DTYPE_UINT8;
    d->stored = d->image;
    d->orientation = d->options.orient ? format_orientation(d->blob) : 1;
    format_turn_size(&d->image, d->orientation);
    return BAGS_OK;
}

static bags_code webp_decode_rows(
    const webp_decoder *d, unsigned char *pixels, size_t size, size_t stride) {
    WebPDecoderConfig config;
    if (stride > INT_MAX)
        return bags_fail(d->err, BAGS_ERROR_ARGUMENT,
            "stride too large (%" PRIu64 " bytes, maximum %d)", (uint64_t)stride,
            INT_MAX);
    if (!WebPInitDecoderConfig(&config))
        return bags_fail(d->err, BAGS_ERROR_CORRUPT, "libwebp: another version");
    config.output.colorspace = d->stored.channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = size;
    VP8StatusCode status = WebPDecode(d->blob.data, d->size, &config);
    WebPFreeDecBuffer(&config.output);
    return status == VP8_STATUS_OK ? BAGS_OK : webp_fail_decode(status, d->err);
}

/* Decode into other memory, and turn the rows from there. */
static bags_code webp_decode_turned(const webp_decoder *d) {
    size_t row = format_image_row(&d->stored), size = row * d->stored.height;
    unsigned char *memory = (unsigned char *)malloc(size);
    if (!memory)
        return bags_fail(d->err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = webp_decode_rows(d, memory, size, row);
    for (uint32_t i = 0; i < d->stored.height && !code; i++)
        format_turn_row(d->orientation, memory + i * row, i, d->stored.width,
            d->stored.height, d->stored.channels, d->to.pixels, d->to.stride);
    free(memory);
    return code;
}

static bags_code webp_decode_image(webp_decoder *d) {
    bags_code code = webp_open_header(d);
    if (code)
        return code;
    if (d->size < d->blob.size && !d->options.allow_trailing)
        return bags_fail(d->err, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes after the end of the WebP",
            (uint64_t)(d->blob.size - d->size));
    code = format_image_prepare(&d->image, &d->to, d->err);
    if (code)
        return code;
    if (d->orientation != 1)
        return webp_decode_turned(d);
    size_t size = d->to.scratch ? d->to.stride * d->image.height : d->to.size;
    return webp_decode_rows(d, d->to.pixels, size, d->to.stride);
}

static void webp_decoder_start(webp_decoder *d, bags_view blob,
    const bags_webp_options *options, bags_error *err) {
    memset(d, 0, sizeof *d);
    d->blob = blob;
    d->err = err;
    if (options)
        d->options = *options;
    if (d->options.max_pixels == 0)
        d->options.max_pixels = BAGS_IMAGE_MAX_PIXELS;
}

static bags_code webp_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    webp_decoder d;
    webp_decoder_start(&d, blob, &((const webp_state *)state)->options, err);
    d.to.scratch = scratch;
    bags_code code = webp_decode_image(&d);
    if (!code)
        *value = format_image_value(&d.image, &d.to);
    return code;
}

bags_code bags_webp_probe(bags_view blob, const bags_webp_options *options,
    bags_image *out, bags_error *err) {
    webp_decoder d;
    webp_decoder_start(&d, blob, options, err);
    bags_code code = webp_open_header(&d);
    if (!code)
        *out = d.image;
    return code;
}

bags_code bags_webp_decode(bags_view blob, const bags_webp_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err) {
    webp_decoder d;
    webp_decoder_start(&d, blob, options, err);
    d.to.pixels = (unsigned char *)pixels;
    d.to.size = size;
    d.to.stride = stride;
    return webp_decode_image(&d);
}

/* ---- table ---- */

const bags_codec bags_codec_webp = {
    "webp", webp_open, webp_encode, webp_decode, format_state_close, NULL, NULL};
