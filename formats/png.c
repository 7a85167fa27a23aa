/*
 * png.c - the type png, using libpng 1.6 (Debian: libpng-dev).
 *
 *     png         libpng's default compression
 *     png(LEVEL)  zlib's level, 0 (none) to 9 (most)
 *
 * A value is an array, H x W for one channel and H x W x C otherwise, with the top row
 * first: bool for 1 bit per pixel, uint8, or uint16 for 16 bits. It equals
 * numpy.asarray(PIL.Image.open(file)), so a palette image becomes its indices. Only
 * 16-bit samples differ: they are always uint16, while Pillow converts them to other
 * types. Writers accept the same arrays, and also H x W x 1.
 *
 * Rejected: other arrays and empty images when writing; damaged and truncated
 * files, trailing bytes and too many pixels when reading.
 *
 * libpng reports errors with longjmp: see images.h.
 */
#include "images.h"

#include <stdlib.h>

#include <png.h>

#define PNG_DEFAULT_LEVEL (-1) /* zlib's default */

/* ---- errors ---- */

/* The first member of the encoder and the decoder. */
typedef struct png_failure {
    format_jump jump;
    bool memory; /* an allocation failed */
} png_failure;

static void png_fail(png_structp library, png_const_charp text) {
    png_failure *f = (png_failure *)png_get_error_ptr(library);
    FORMAT_REFUSE(&f->jump, f->memory ? BAGS_ERROR_MEMORY : f->jump.otherwise,
        "libpng: %s", text);
}

/* Ignore warnings, since libpng is set up to report damage as an error. */
static void png_ignore_warning(png_structp library, png_const_charp text) {
    (void)library;
    (void)text;
}

/* libpng does not distinguish running out of memory from other errors. */
static png_voidp png_allocate(png_structp library, png_alloc_size_t size) {
    png_failure *f = (png_failure *)png_get_mem_ptr(library);
    void *memory = malloc(size);
    if (!memory)
        f->memory = true;
    return memory;
}

static void png_release(png_structp library, png_voidp memory) {
    (void)library;
    free(memory);
}

/* PNG's 16-bit samples are big-endian. */
static void png_set_byte_order(png_structp library, bags_dtype dtype) {
    if (dtype == BAGS_DTYPE_UINT16 && bags_little_endian())
        png_set_swap(library);
}

/* ---- arguments ---- */

typedef struct png_state {
    bags_buffer memory; /* the memory holding this structure */
    int level;
    bags_png_options options;
} png_state;

static bags_code png_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    uint64_t level = 0;
    if (format_argument(type, "level", 0, 9, &level, err))
        return BAGS_ERROR_TYPE;
    png_state *made = (png_state *)format_state(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->level = type->count ? (int)level : PNG_DEFAULT_LEVEL;
    if (codec->user)
        made->options = *(const bags_png_options *)codec->user;
    *state = made;
    return BAGS_OK;
}

/* ---- encode ---- */

typedef struct png_encoder {
    png_failure failed;
    png_structp library;
    png_infop info;
    bags_buffer *scratch;
    const unsigned char *pixels;
    bags_image image;
    int level;
    size_t size; /* bytes written */
} png_encoder;

static void png_output(png_structp library, png_bytep data, size_t size) {
    png_encoder *e = (png_encoder *)png_get_io_ptr(library);
    if (size > SIZE_MAX - e->size)
        FORMAT_REFUSE(&e->failed.jump, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code =
        bags_buffer_reserve(e->scratch, e->size + size, e->failed.jump.err);
    if (code)
        format_leave(&e->failed.jump, code);
    memcpy(e->scratch->data + e->size, data, size);
    e->size += size;
}

static void png_output_flush(png_structp library) { (void)library; }

static void png_encode_image(png_encoder *e) {
    static const int colours[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
        PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
    e->library = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &e->failed, png_fail,
        png_ignore_warning, &e->failed, png_allocate, png_release);
    if (e->library)
        e->info = png_create_info_struct(e->library);
    if (!e->info)
        FORMAT_REFUSE(&e->failed.jump, BAGS_ERROR_MEMORY, "out of memory");
    png_set_write_fn(e->library, e, png_output, png_output_flush);
    png_set_user_limits(e->library, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    if (e->level != PNG_DEFAULT_LEVEL)
        png_set_compression_level(e->library, e->level);
    int depth = e->image.dtype == BAGS_DTYPE_BOOL ? 1 : (int)e->image.depth;
    png_set_IHDR(e->library, e->info, e->image.width, e->image.height, depth,
        colours[e->image.channels - 1], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
        PNG_FILTER_TYPE_BASE);
    png_write_info(e->library, e->info);
    png_set_packing(e->library);
    png_set_byte_order(e->library, e->image.dtype);
    size_t row = format_image_row(&e->image);
    for (size_t i = 0; i < e->image.height; i++)
        png_write_row(e->library, e->pixels + i * row);
    png_write_end(e->library, NULL);
}

static bags_code png_encoder_run(png_encoder *e) {
    if (!setjmp(e->failed.jump.back))
        png_encode_image(e);
    png_destroy_write_struct(&e->library, &e->info);
    return e->failed.jump.code;
}

/* Get the image to encode from a value. */
static bags_code png_image_of(
    const bags_value *value, bags_image *out, bags_error *err) {
    bool flat = value->dtype == BAGS_DTYPE_BOOL;
    bool deep = value->dtype == BAGS_DTYPE_UINT16;
    bool array = value->kind == BAGS_KIND_ARRAY &&
                 (value->dims == 2 || value->dims == 3) &&
                 (value->dtype == BAGS_DTYPE_UINT8 || deep || flat);
    uint64_t channels = array && value->dims == 3 ? value->shape[2] : 1;
    if (!array || channels < 1 || channels > (flat ? 1 : 4))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "expected an array of uint8 or uint16, H x W or H x W x 1 to 4, or "
            "of bool, H x W");
    return format_image_of(value, channels, deep ? 16 : 8, PNG_UINT_31_MAX, out, err);
}

static bags_code png_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    png_encoder e;
    memset(&e, 0, sizeof e);
    bags_code code = png_image_of(value, &e.image, err);
    if (code)
        return code;
    e.failed.jump.otherwise = BAGS_ERROR_VALUE;
    e.failed.jump.err = err;
    e.scratch = scratch;
    e.pixels = (const unsigned char *)value->data;
    e.level = ((const png_state *)state)->level;
    code = png_encoder_run(&e);
    if (code)
        return code;
    blob->data = scratch->data;
    blob->size = e.size;
    return BAGS_OK;
}

/* ---- decode ---- */

typedef struct png_decoder {
    png_failure failed;
    png_structp library;
    png_infop info;
    bags_view blob;
    size_t at; /* bytes of the blob read so far */
    bags_png_options options;
    uint32_t orientation;
    bags_image image;      /* the image to return, */
    bags_image stored;     /* and the image before turning */
    unsigned char *memory; /* memory for its rows */
    format_pixels to;
} png_decoder;

static void png_input(png_structp library, png_bytep data, size_t size) {
    png_decoder *d = (png_decoder *)png_get_io_ptr(library);
    if (size > d->blob.size - d->at)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
            "truncated PNG (%" PRIu64 " bytes)", (uint64_t)d->blob.size);
    memcpy(data, d->blob.data + d->at, size);
    d->at += size;
}

/* Make libpng strict, and ignore all chunks not needed for pixels: damage in them does
 * not matter, and they cannot be decompression bombs. */
static void png_connect(png_decoder *d) {
    d->library = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &d->failed, png_fail,
        png_ignore_warning, &d->failed, png_allocate, png_release);
    if (d->library)
        d->info = png_create_info_struct(d->library);
    if (!d->info)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_MEMORY, "out of memory");
    png_set_read_fn(d->library, d, png_input);
    png_set_benign_errors(d->library, 0);
    png_set_crc_action(d->library, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_keep_unknown_chunks(d->library, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(d->library, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
}

/* Check the size before memory is allocated: deflate expands one byte to at most
 * 1032. */
static void png_check_pixels(png_decoder *d) {
    uint64_t width = d->image.width, height = d->image.height;
    uint64_t bits = (uint64_t)png_get_channels(d->library, d->info) *
                    png_get_bit_depth(d->library, d->info);
    if (width * height > d->options.max_pixels)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_LIMIT,
            "too many pixels (%" PRIu64 " x %" PRIu64 ", maximum %" PRIu64 ")", height,
            width, d->options.max_pixels);
    if (width * height / (UINT64_C(8) * 1032) * bits > d->blob.size)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
            "PNG of %" PRIu64 " bytes cannot contain %" PRIu64 " x %" PRIu64 " pixels",
            (uint64_t)d->blob.size, height, width);
}

static void png_open_header(png_decoder *d) {
    if (d->blob.size < 8 || png_sig_cmp(d->blob.data, 0, 8))
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT, "not a PNG");
    png_connect(d);
    png_read_info(d->library, d->info);
    int colour = png_get_color_type(d->library, d->info);
    int bits = png_get_bit_depth(d->library, d->info);
    bool expand = d->options.expand;
    bool rgb =
        (colour & PNG_COLOR_MASK_COLOR) && (expand || colour != PNG_COLOR_TYPE_PALETTE);
    bool alpha = (colour & PNG_COLOR_MASK_ALPHA) ||
                 (expand && png_get_valid(d->library, d->info, PNG_INFO_tRNS));
    bool flat = bits == 1 && colour == PNG_COLOR_TYPE_GRAY && !expand;
    d->image.width = png_get_image_width(d->library, d->info);
    d->image.height = png_get_image_height(d->library, d->info);
    d->image.channels = (rgb ? 3U : 1U) + alpha;
    d->image.depth = bits == 16 ? 16 : 8;
    d->image.dtype = flat         ? BAGS_DTYPE_BOOL
                     : bits == 16 ? BAGS_DTYPE_UINT16
                                  : BAGS_DTYPE_UINT8;
    png_check_pixels(d);
    d->stored = d->image;
    d->orientation = d->options.orient ? format_orientation(d->blob) : 1;
    format_turn_size(&d->image, d->orientation);
}

static void png_read_pixels(png_decoder *d, int passes) {
    for (int pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < d->image.height; i++)
            png_read_row(d->library, d->to.pixels + i * d->to.stride, NULL);
}

/* Read the rows into memory and turn them from there: all rows if the image is
 * interlaced, otherwise one at a time. */
static void png_read_turned(png_decoder *d, int passes) {
    uint32_t height = d->stored.height;
    size_t row = format_image_row(&d->stored);
    size_t pixel = d->stored.channels * (d->stored.depth / 8);
    size_t rows = passes > 1 ? height : 1;
    d->memory = (unsigned char *)png_malloc(d->library, rows * row);
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t i = 0; i < height; i++) {
            unsigned char *at = d->memory + (rows > 1 ? i * row : 0);
            png_read_row(d->library, at, NULL);
            if (pass == passes - 1)
                format_turn_row(d->orientation, at, i, d->stored.width, height, pixel,
                    d->to.pixels, d->to.stride);
        }
}

static void png_decode_image(png_decoder *d) {
    if (d->options.expand)
        png_set_expand(d->library);
    else if (png_get_color_type(d->library, d->info) == PNG_COLOR_TYPE_GRAY &&
             d->image.dtype != BAGS_DTYPE_BOOL)
        png_set_expand_gray_1_2_4_to_8(d->library);
    png_set_packing(d->library);
    png_set_byte_order(d->library, d->image.dtype);
    int passes = png_set_interlace_handling(d->library);
    png_read_update_info(d->library, d->info);
    bags_code code = format_image_prepare(&d->image, &d->to, d->failed.jump.err);
    if (code)
        format_leave(&d->failed.jump, code);
    if (d->orientation == 1)
        png_read_pixels(d, passes);
    else
        png_read_turned(d, passes);
    png_read_end(d->library, NULL);
    if (d->at < d->blob.size && !d->options.allow_trailing)
        FORMAT_REFUSE(&d->failed.jump, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes after the end of the PNG",
            (uint64_t)(d->blob.size - d->at));
}

static bags_code png_decoder_run(png_decoder *d, bool pixels) {
    if (!setjmp(d->failed.jump.back)) {
        png_open_header(d);
        if (pixels)
            png_decode_image(d);
    }
    free(d->memory);
    png_destroy_read_struct(&d->library, &d->info, NULL);
    return d->failed.jump.code;
}

static void png_decoder_start(
    png_decoder *d, bags_view blob, const bags_png_options *options, bags_error *err) {
    memset(d, 0, sizeof *d);
    d->failed.jump.otherwise = BAGS_ERROR_CORRUPT;
    d->failed.jump.err = err;
    d->blob = blob;
    if (options)
        d->options = *options;
    if (d->options.max_pixels == 0)
        d->options.max_pixels = BAGS_IMAGE_MAX_PIXELS;
}

static bags_code png_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    png_decoder d;
    png_decoder_start(&d, blob, &((const png_state *)state)->options, err);
    d.to.scratch = scratch;
    bags_code code = png_decoder_run(&d, true);
    if (!code)
        *value = format_image_value(&d.image, &d.to);
    return code;
}

bags_code bags_png_probe(
    bags_view blob, const bags_png_options *options, bags_image *out, bags_error *err) {
    png_decoder d;
    png_decoder_start(&d, blob, options, err);
    bags_code code = png_decoder_run(&d, false);
    if (!code)
        *out = d.image;
    return code;
}

bags_code bags_png_decode(bags_view blob, const bags_png_options *options, void *pixels,
    size_t size, size_t stride, bags_error *err) {
    png_decoder d;
    png_decoder_start(&d, blob, options, err);
    d.to.pixels = (unsigned char *)pixels;
    d.to.size = size;
    d.to.stride = stride;
    return png_decoder_run(&d, true);
}

/* ---- table ---- */

const bags_codec bags_codec_png = {
    "png", png_open, png_encode, png_decode, format_state_close, NULL, NULL};
