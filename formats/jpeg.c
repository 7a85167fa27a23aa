/*
 * jpeg.c - the types jpeg and jpg, on libjpeg-turbo 1.5 or later (Debian:
 * libjpeg-dev).
 *
 *     jpeg, jpg                    quality 75, as Pillow writes by default
 *     jpeg(QUALITY), jpg(QUALITY)  1 to 100
 *
 * A value is an array of uint8 with the top row first: H x W for gray, H x W x 3
 * for RGB. Writers accept H x W x 1, too.
 *
 * Rejected: sides above 65,500 and empty images when writing; CMYK, YCCK, 12 bits
 * per channel, damaged and truncated files, trailing bytes and too many pixels
 * when reading.
 *
 * This file uses libjpeg-turbo's libjpeg API, since the TurboJPEG API of the supported
 * versions can neither decode a rectangle nor distinguish warnings from errors.
 *
 * libjpeg reports errors with longjmp: see images.h.
 */
#include "images.h"

#include <limits.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

#ifndef LIBJPEG_TURBO_VERSION
#error "jpeg.c needs libjpeg-turbo: other libjpegs cannot decode a rectangle"
#endif

#define JPEG_QUALITY 75
#define JPEG_MAX_SCANS 100

/* ---- errors ---- */

/* The first member of the encoder and the decoder, with `library` as its own first
 * member, so that libjpeg's pointers lead back to them. */
typedef struct jpeg_failure {
    struct jpeg_error_mgr library;
    format_jump jump;
} jpeg_failure;

/* Map a libjpeg error to our code. */
static bags_code jpeg_code(const jpeg_failure *f) {
    switch (f->library.msg_code) {
    case JERR_OUT_OF_MEMORY:
        return BAGS_ERROR_MEMORY;
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
    case JERR_WIDTH_OVERFLOW:
        return BAGS_ERROR_LIMIT;
    default:
        return f->jump.otherwise;
    }
}

static void jpeg_fail(j_common_ptr library) {
    jpeg_failure *f = (jpeg_failure *)library->err;
    char text[JMSG_LENGTH_MAX];
    f->library.format_message(library, text);
    FORMAT_REFUSE(&f->jump, jpeg_code(f), "libjpeg: %s", text);
}

/* Level -1 is a warning: libjpeg found damage, and would continue with invented pixels.
 * Two of the warnings concern only headers. */
static void jpeg_check_warning(j_common_ptr library, int level) {
    int message = library->err->msg_code;
    if (level < 0 && message != JWRN_JFIF_MAJOR && message != JWRN_ADOBE_XFORM)
        jpeg_fail(library);
}

static void jpeg_ignore_output(j_common_ptr library) { (void)library; }

static struct jpeg_error_mgr *jpeg_failure_start(
    jpeg_failure *f, bags_code otherwise, bags_error *err) {
    f->jump.otherwise = otherwise;
    f->jump.err = err;
    jpeg_std_error(&f->library);
    f->library.error_exit = jpeg_fail;
    f->library.emit_message = jpeg_check_warning;
    f->library.output_message = jpeg_ignore_output;
    return &f->library;
}

/* ---- arguments ---- */

typedef struct jpeg_state {
    bags_buffer memory; /* the memory holding this structure */
    int quality;
    bags_jpeg_options options;
} jpeg_state;

static bags_code jpeg_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    uint64_t quality = JPEG_QUALITY;
    if (format_argument(type, "quality", 1, 100, &quality, err))
        return BAGS_ERROR_TYPE;
    jpeg_state *made = (jpeg_state *)format_state(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->quality = (int)quality;
    if (codec->user)
        made->options = *(const bags_jpeg_options *)codec->user;
    *state = made;
    return BAGS_OK;
}

/* ---- encode ---- */

typedef struct jpeg_encoder {
    jpeg_failure failed;
    struct jpeg_compress_struct library;
    struct jpeg_destination_mgr destination;
    bags_buffer *scratch;
    const unsigned char *pixels;
    bags_image image;
    int quality;
    size_t size; /* size of the blob */
} jpeg_encoder;

/* Grow the scratch to at least `capacity`, and let libjpeg write after its first `used`
 * bytes. */
static void jpeg_output_to(jpeg_encoder *e, size_t used, size_t capacity) {
    bags_code code = bags_buffer_reserve(e->scratch, capacity, e->failed.jump.err);
    if (code)
        format_leave(&e->failed.jump, code);
    e->destination.next_output_byte = e->scratch->data + used;
    e->destination.free_in_buffer = e->scratch->capacity - used;
}

/* One byte per eight pixels is more than most images need. */
static void jpeg_output_start(j_compress_ptr library) {
    jpeg_encoder *e = (jpeg_encoder *)library->err;
    size_t pixels = (size_t)e->image.width * e->image.height;
    jpeg_output_to(e, 0, 4096 + pixels / 8 * e->image.channels);
}

static boolean jpeg_output_more(j_compress_ptr library) {
    jpeg_encoder *e = (jpeg_encoder *)library->err;
    size_t used = e->scratch->capacity;
    if (used == SIZE_MAX)
        FORMAT_REFUSE(&e->failed.jump, BAGS_ERROR_MEMORY, "out of memory");
    jpeg_output_to(e, used, used + 1);
    return TRUE;
}

static void jpeg_output_end(j_compress_ptr library) {
    jpeg_encoder *e = (jpeg_encoder *)library->err;
    e->size = e->scratch->capacity - e->destination.free_in_buffer;
}

static void jpeg_encode_image(jpeg_encoder *e) {
    struct jpeg_compress_struct *library = &e->library;
    jpeg_create_compress(library);
    e->destination.init_destination = jpeg_output_start;
    e->destination.empty_output_buffer = jpeg_output_more;
    e->destination.term_destination = jpeg_output_end;
    library->dest = &e->destination;
    library->image_width = e->image.width;
    library->image_height = e->image.height;
    library->input_components = (int)e->image.channels;
    library->in_color_space = e->image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(library); /* these include 4:2:0 */
    jpeg_set_quality(library, e->quality, TRUE);
    jpeg_start_compress(library, TRUE);
    size_t row = (size_t)e->image.width * e->image.channels;
    while (library->next_scanline < library->image_height) {
        const unsigned char *line = e->pixels + row * library->next_scanline;
        JSAMPROW at = (JSAMPROW)(uintptr_t)line;
        jpeg_write_scanlines(library, &at, 1);
    }
    jpeg_finish_compress(library);
}

static bags_code jpeg_encoder_run(jpeg_encoder *e) {
    if (!setjmp(e->failed.jump.back))
        jpeg_encode_image(e);
    jpeg_destroy_compress(&e->library);
    return e->failed.jump.code;
}

/* Get the image to encode from a value. */
static bags_code jpeg_image_of(
    const bags_value *value, bags_image *out, bags_error *err) {
    bool array = value->kind == BAGS_KIND_ARRAY && value->dtype == BAGS_DTYPE_UINT8 &&
                 (value->dims == 2 || value->dims == 3);
    uint64_t channels = array && value->dims == 3 ? value->shape[2] : 1;
    if (!array || (channels != 1 && channels != 3))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "expected an array of uint8, H x W, H x W x 1 or H x W x 3");
    return format_image_of(value, channels, 8, JPEG_MAX_DIMENSION, out, err);
}

static bags_code jpeg_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    jpeg_encoder e;
    memset(&e, 0, sizeof e);
    bags_code code = jpeg_image_of(value, &e.image, err);
    if (code)
        return code;
    e.library.err = jpeg_failure_start(&e.failed, BAGS_ERROR_VALUE, err);
    e.scratch = scratch;
    e.pixels = (const unsigned char *)value->data;
    e.quality = ((const jpeg_state *)state)->quality;
    code = jpeg_encoder_run(&e);
    if (code)
        return code;
    blob->data = scratch->data;
    blob->size = e.size;
    return BAGS_OK;
}

/* ---- decode ---- */

/* libjpeg makes up the columns and rows next to a rectangle, and these affect its
 * edges. So decode a margin on all four sides and drop it. The margin is also wide
 * enough for libjpeg to choose the same upsampling method. */
#define JPEG_MARGIN 16

typedef struct jpeg_decoder {
    jpeg_failure failed;
    struct jpeg_decompress_struct library;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    bags_view blob;
    bags_jpeg_options options; /* with defaults filled in; the rectangle refers to the
                                * stored image */
    uint32_t orientation;
    bags_image image;  /* the image to return, */
    bags_image stored; /* and the image before turning */
    format_pixels to;
} jpeg_decoder;

static void jpeg_source_ignore(j_decompress_ptr library) { (void)library; }

/* libjpeg's own source manager inserts a fake end marker here. */
static boolean jpeg_source_more(j_decompress_ptr library) {
    jpeg_decoder *d = (jpeg_decoder *)library->err;
    FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
        "truncated JPEG (%" PRIu64 " bytes)", (uint64_t)d->blob.size);
    return FALSE;
}

static void jpeg_source_skip(j_decompress_ptr library, long size) {
    struct jpeg_source_mgr *source = library->src;
    if (size <= 0)
        return;
    if ((size_t)size > source->bytes_in_buffer)
        jpeg_source_more(library);
    source->next_input_byte += size;
    source->bytes_in_buffer -= (size_t)size;
}

/* Called for each row of blocks in each scan: a small file can have any number of
 * scans, and each one walks the entire image. */
static void jpeg_watch_scans(j_common_ptr library) {
    jpeg_decoder *d = (jpeg_decoder *)library->err;
    if (d->library.input_scan_number > (int)d->options.max_scans)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_LIMIT,
            "too many scans in a JPEG (maximum %u)", (unsigned)d->options.max_scans);
}

static void jpeg_check_colour(jpeg_decoder *d) {
    J_COLOR_SPACE space = d->library.jpeg_color_space;
    if (space != JCS_GRAYSCALE && space != JCS_YCbCr && space != JCS_RGB)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_LIMIT,
            "unsupported colors of a JPEG (%s, %d channels; expected gray or "
            "RGB)",
            space == JCS_CMYK   ? "CMYK"
            : space == JCS_YCCK ? "YCCK"
                                : "unknown",
            d->library.num_components);
    if (d->library.data_precision != 8)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_LIMIT,
            "unsupported depth of a JPEG (%d bits per channel, expected 8)",
            d->library.data_precision);
}

/*
 * Check the size before memory is allocated. Each block of 8 x 8 samples takes at least
 * one bit, except with arithmetic coding, and subsampling leaves at least half a block
 * per 8 x 8 pixels.
 */
static void jpeg_check_pixels(jpeg_decoder *d) {
    uint64_t width = d->library.image_width;
    uint64_t height = d->library.image_height;
    if (width * height > d->options.max_pixels)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_LIMIT,
            "too many pixels (%" PRIu64 " x %" PRIu64 ", maximum %" PRIu64 ")", height,
            width, d->options.max_pixels);
    if (!d->library.arith_code && width * height / 1024 > d->blob.size)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
            "JPEG of %" PRIu64 " bytes cannot contain %" PRIu64 " x %" PRIu64 " pixels",
            (uint64_t)d->blob.size, height, width);
}

/* Check that the requested rectangle lies within the upright scaled image. */
static void jpeg_check_rectangle(jpeg_decoder *d) {
    bags_image whole = d->image;
    whole.width = d->library.output_width;
    whole.height = d->library.output_height;
    format_turn_size(&whole, d->orientation);
    uint32_t width = whole.width, height = whole.height;
    const bags_jpeg_options *o = &d->options;
    bool inside = o->left < width && o->width <= width - o->left && o->top < height &&
                  o->height <= height - o->top;
    if (!inside)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_RANGE,
            "rectangle out of range (%u x %u at row %u, column %u; image %u x "
            "%u)",
            (unsigned)o->height, (unsigned)o->width, (unsigned)o->top,
            (unsigned)o->left, (unsigned)height, (unsigned)width);
    d->image.width = o->width ? o->width : width - o->left;
    d->image.height = o->height ? o->height : height - o->top;
}

/* Map the rectangle to coordinates of the stored image. */
static void jpeg_turn_rectangle(jpeg_decoder *d) {
    bags_jpeg_options *o = &d->options;
    uint32_t left = o->left, top = o->top;
    d->stored = d->image;
    format_turn_size(&d->stored, d->orientation);
    if (format_turn_swaps(d->orientation)) {
        left = o->top;
        top = o->left;
    }
    o->left = format_turn_mirrors(d->orientation)
                  ? d->library.output_width - d->stored.width - left
                  : left;
    o->top = format_turn_flips(d->orientation)
                 ? d->library.output_height - d->stored.height - top
                 : top;
}

static void jpeg_connect(jpeg_decoder *d) {
    jpeg_create_decompress(&d->library);
    d->source.init_source = jpeg_source_ignore;
    d->source.fill_input_buffer = jpeg_source_more;
    d->source.skip_input_data = jpeg_source_skip;
    d->source.resync_to_restart = jpeg_resync_to_restart;
    d->source.term_source = jpeg_source_ignore;
    d->source.next_input_byte = d->blob.data;
    d->source.bytes_in_buffer = d->blob.size;
    d->library.src = &d->source;
    d->progress.progress_monitor = jpeg_watch_scans;
    d->library.progress = &d->progress;
}

static void jpeg_open_header(jpeg_decoder *d) {
    struct jpeg_decompress_struct *library = &d->library;
    const unsigned char *start = d->blob.data;
    if (d->blob.size < 2 || start[0] != 0xFF || start[1] != 0xD8)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT, "not a JPEG");
    jpeg_connect(d);
    jpeg_read_header(library, TRUE);
    jpeg_check_colour(d);
    jpeg_check_pixels(d);
    d->image.channels = library->jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (d->options.channels)
        d->image.channels = d->options.channels;
    d->image.depth = 8;
    d->image.dtype = BAGS_DTYPE_UINT8;
    library->out_color_space = d->image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    library->dct_method = JDCT_ISLOW;
    library->scale_num = 1;
    library->scale_denom = d->options.scale;
    jpeg_calc_output_dimensions(library);
    d->orientation = d->options.orient ? format_orientation(d->blob) : 1;
    jpeg_check_rectangle(d);
    jpeg_turn_rectangle(d);
}

/* Read the next rows, each as wide as libjpeg's output. */
static void jpeg_read_rows(
    jpeg_decoder *d, unsigned char *to, size_t stride, uint32_t count) {
    JSAMPROW rows[16];
    while (count > 0) {
        JDIMENSION some = count < 16 ? count : 16;
        for (JDIMENSION i = 0; i < some; i++)
            rows[i] = to + i * stride;
        some = jpeg_read_scanlines(&d->library, rows, some);
        if (some == 0)
            jpeg_source_more(&d->library);
        to += some * stride;
        count -= some;
    }
}

/*
 * Returns true if libjpeg must decode the whole image for the rectangle to be correct.
 * In a progressive file that ends before its finest scans, libjpeg estimates the
 * missing data from blocks farther away than JPEG_MARGIN. And where chroma is scaled by
 * only part of the subsampling (for example 4 x 2 at scale 1/2), jpeg_crop_scanline of
 * version 2.1 computes the wrong chroma width and leaves columns unwritten.
 */
static bool jpeg_needs_everything(const jpeg_decoder *d) {
    const struct jpeg_decompress_struct *library = &d->library;
    int sampling = library->max_h_samp_factor * library->max_v_samp_factor;
    if (d->options.scale > 1 && sampling > 4)
        return true;
    if (!library->coef_bits)
        return false;
    for (int i = 0; i < library->num_components; i++)
        for (int j = 0; j < DCTSIZE2; j++)
            if (library->coef_bits[i][j] != 0)
                return true;
    return false;
}

/* Make libjpeg output only the rectangle's columns plus a margin, and skip the rows
 * above. Returns the number of columns before the rectangle. */
static uint32_t jpeg_crop(jpeg_decoder *d) {
    struct jpeg_decompress_struct *library = &d->library;
    uint32_t left = d->options.left, top = d->options.top;
    if (jpeg_needs_everything(d))
        return left;
    uint32_t right = left + d->stored.width + JPEG_MARGIN;
    if (right > library->output_width)
        right = library->output_width;
    JDIMENSION first = left > JPEG_MARGIN ? left - JPEG_MARGIN : 0;
    JDIMENSION width = right - first;
    if (width < library->output_width)
        jpeg_crop_scanline(library, &first, &width);
    if (top > JPEG_MARGIN)
        jpeg_skip_scanlines(library, top - JPEG_MARGIN);
    return left - first;
}

/* Read a rectangle's rows out of a wider rectangle, and turn them. */
static void jpeg_read_rectangle(jpeg_decoder *d) {
    struct jpeg_decompress_struct *library = &d->library;
    size_t pixel = d->image.channels, row = format_image_row(&d->stored);
    size_t before = jpeg_crop(d) * pixel;
    unsigned char *wide = (unsigned char *)library->mem->alloc_large(
        (j_common_ptr)library, JPOOL_IMAGE, (size_t)library->output_width * pixel);
    jpeg_read_rows(d, wide, 0, d->options.top - library->output_scanline);
    for (uint32_t i = 0; i < d->stored.height; i++) {
        jpeg_read_rows(d, wide, 0, 1);
        if (d->orientation == 1)
            memcpy(d->to.pixels + i * d->to.stride, wide + before, row);
        else
            format_turn_row(d->orientation, wide + before, i, d->stored.width,
                d->stored.height, pixel, d->to.pixels, d->to.stride);
    }
}

/* Only the end marker may follow the last row of the image. */
static void jpeg_check_end(jpeg_decoder *d) {
    jpeg_finish_decompress(&d->library);
    if (d->source.bytes_in_buffer && !d->options.allow_trailing)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes after the end of the JPEG",
            (uint64_t)d->source.bytes_in_buffer);
}

static void jpeg_decode_image(jpeg_decoder *d) {
    bags_code code = format_image_prepare(&d->image, &d->to, d->failed.jump.err);
    if (code)
        format_leave(&d->failed.jump, code);
    jpeg_start_decompress(&d->library);
    uint32_t bottom = d->options.top + d->stored.height;
    if (d->stored.width < d->library.output_width || d->options.top > 0 ||
        d->orientation > 1)
        jpeg_read_rectangle(d);
    else
        jpeg_read_rows(d, d->to.pixels, d->to.stride, bottom);
    if (bottom == d->library.output_height)
        jpeg_check_end(d);
}

static bags_code jpeg_decoder_run(jpeg_decoder *d, bool pixels) {
    if (!setjmp(d->failed.jump.back)) {
        jpeg_open_header(d);
        if (pixels)
            jpeg_decode_image(d);
    }
    jpeg_destroy_decompress(&d->library);
    return d->failed.jump.code;
}

static bags_code jpeg_decoder_start(jpeg_decoder *d, bags_view blob,
    const bags_jpeg_options *options, bags_error *err) {
    memset(d, 0, sizeof *d);
    d->library.err = jpeg_failure_start(&d->failed, BAGS_ERROR_CORRUPT, err);
    d->blob = blob;
    if (options)
        d->options = *options;
    bags_jpeg_options *o = &d->options;
    if (o->scale == 0)
        o->scale = 1;
    if (o->max_pixels == 0)
        o->max_pixels = BAGS_IMAGE_MAX_PIXELS;
    if (o->max_scans == 0)
        o->max_scans = JPEG_MAX_SCANS;
    if (o->max_scans > INT_MAX)
        o->max_scans = INT_MAX;
    if (o->scale != 1 && o->scale != 2 && o->scale != 4 && o->scale != 8)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "invalid scale of a JPEG (%u, expected 1, 2, 4 or 8)", (unsigned)o->scale);
    if (o->channels != 0 && o->channels != 1 && o->channels != 3)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "invalid channels of a JPEG (%u, expected 1 or 3)", (unsigned)o->channels);
    return BAGS_OK;
}

static bags_code jpeg_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    jpeg_decoder d;
    bags_code code =
        jpeg_decoder_start(&d, blob, &((const jpeg_state *)state)->options, err);
    d.to.scratch = scratch;
    if (!code)
        code = jpeg_decoder_run(&d, true);
    if (!code)
        *value = format_image_value(&d.image, &d.to);
    return code;
}

bags_code bags_jpeg_probe(bags_view blob, const bags_jpeg_options *options,
    bags_image *out, bags_error *err) {
    jpeg_decoder d;
    bags_code code = jpeg_decoder_start(&d, blob, options, err);
    if (!code)
        code = jpeg_decoder_run(&d, false);
    if (!code)
        *out = d.image;
    return code;
}

bags_code bags_jpeg_decode(bags_view blob, const bags_jpeg_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err) {
    jpeg_decoder d;
    bags_code code = jpeg_decoder_start(&d, blob, options, err);
    d.to.pixels = (unsigned char *)pixels;
    d.to.size = size;
    d.to.stride = stride;
    return code ? code : jpeg_decoder_run(&d, true);
}

/* ---- table ---- */

const bags_codec bags_codec_jpeg = {
    "jpeg jpg", jpeg_open, jpeg_encode, jpeg_decode, format_state_close, NULL, NULL};
