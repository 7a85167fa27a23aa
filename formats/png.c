/*
 * png.c - the type png, on libpng 1.6.
 *
 *     png         libpng's default compression
 *     png(LEVEL)  zlib's level, 0 to 9
 *
 * A value is an array of uint8 or uint16, H x W for gray and H x W x C else,
 * C being 2 (gray and alpha), 3 (RGB) or 4 (RGBA); written from H x W x 1 too.
 * Refused are other arrays and empty pictures when writing; damaged and
 * truncated files when reading. What is read and how: formats.h.
 *
 * libpng reports an error by not returning. Each direction therefore has one
 * structure, which holds everything that changes, and one function that calls
 * setjmp and does nothing else: no local variable is alive across a jump.
 */
#include "formats.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#define DEFAULT_LEVEL (-1) /* zlib's own */

/* ------------------------------------------------------------ errors */

/* Where an error of libpng goes. The first member of both directions. */
typedef struct failure {
    jmp_buf back;
    bags_code code;      /* what the direction's function returns */
    bags_code otherwise; /* for an error of libpng but a lack of memory */
    bool memory;         /* an allocation failed */
    bags_error *err;
} failure;

static void leave(failure *f, bags_code code) {
    f->code = code;
    longjmp(f->back, 1);
}

/* Write the error and leave. The rest is a printf format and its arguments. */
#define REFUSE(f, code, ...) leave(f, bags_fail((f)->err, code, __VA_ARGS__))

static void fail_library(png_structp library, png_const_charp text) {
    failure *f = (failure *)png_get_error_ptr(library);
    REFUSE(f, f->memory ? BAGS_ERROR_MEMORY : f->otherwise, "libpng says: %s",
        text);
}

/* Where a warning is of damage, libpng is told to make it an error. */
static void ignore_warning(png_structp library, png_const_charp text) {
    (void)library;
    (void)text;
}

/* libpng does not tell a lack of memory from other errors. */
static png_voidp allocate(png_structp library, png_alloc_size_t size) {
    failure *f = (failure *)png_get_mem_ptr(library);
    void *memory = malloc(size);
    if (!memory)
        f->memory = true;
    return memory;
}

static void release(png_structp library, png_voidp memory) {
    (void)library;
    free(memory);
}

static void failure_start(failure *f, bags_code otherwise, bags_error *err) {
    f->code = BAGS_OK;
    f->otherwise = otherwise;
    f->memory = false;
    f->err = err;
}

/* PNG's samples of 16 bits are big-endian. */
static void set_byte_order(png_structp library, uint32_t depth) {
    const uint16_t one = 1;
    if (depth == 16 && *(const unsigned char *)&one == 1)
        png_set_swap(library);
}

/* ------------------------------------------------------------ arguments */

typedef struct png_state {
    int level;
    bags_png_options options;
    bags_allocator memory;
} png_state;

static bags_code png_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    uint64_t level = 0;
    bool right = type->count == 0 ||
                 (type->count == 1 && bags_type_number(type, 0, &level));
    if (!right || level > 9)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "png takes one argument, the compression, 0 to 9, not \"%.*s\"",
            (int)(type->arguments.size < 80 ? type->arguments.size : 80),
            (const char *)type->arguments.data);
    png_state *made =
        (png_state *)allocator->resize(allocator->user, NULL, 0, sizeof *made);
    if (!made)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    memset(made, 0, sizeof *made);
    made->level = type->count ? (int)level : DEFAULT_LEVEL;
    made->memory = *allocator;
    if (codec->user)
        made->options = *(const bags_png_options *)codec->user;
    *state = made;
    return BAGS_OK;
}

static void png_close(void *state) {
    png_state *made = (png_state *)state;
    bags_allocator memory = made->memory;
    memory.resize(memory.user, made, sizeof *made, 0);
}

/* ------------------------------------------------------------ encode */

typedef struct encoder {
    failure failed;
    png_structp library;
    png_infop info;
    bags_buffer *scratch;
    const unsigned char *pixels;
    bags_image image;
    int level;
    size_t size; /* of what was written */
} encoder;

static void output_bytes(png_structp library, png_bytep data, size_t size) {
    encoder *e = (encoder *)png_get_io_ptr(library);
    if (size > SIZE_MAX - e->size)
        REFUSE(&e->failed, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code =
        bags_buffer_reserve(e->scratch, e->size + size, e->failed.err);
    if (code)
        leave(&e->failed, code);
    memcpy(e->scratch->data + e->size, data, size);
    e->size += size;
}

static void output_flush(png_structp library) { (void)library; }

static void encode_picture(encoder *e) {
    static const int colours[] = {PNG_COLOR_TYPE_GRAY,
        PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
    e->library = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, &e->failed,
        fail_library, ignore_warning, &e->failed, allocate, release);
    if (e->library)
        e->info = png_create_info_struct(e->library);
    if (!e->info)
        REFUSE(&e->failed, BAGS_ERROR_MEMORY, "out of memory");
    png_set_write_fn(e->library, e, output_bytes, output_flush);
    png_set_user_limits(e->library, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    if (e->level != DEFAULT_LEVEL)
        png_set_compression_level(e->library, e->level);
    png_set_IHDR(e->library, e->info, e->image.width, e->image.height,
        (int)e->image.depth, colours[e->image.channels - 1], PNG_INTERLACE_NONE,
        PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
    png_write_info(e->library, e->info);
    set_byte_order(e->library, e->image.depth);
    size_t row = png_get_rowbytes(e->library, e->info);
    for (size_t i = 0; i < e->image.height; i++)
        png_write_row(e->library, e->pixels + i * row);
    png_write_end(e->library, NULL);
}

static bags_code encoder_run(encoder *e) {
    if (!setjmp(e->failed.back))
        encode_picture(e);
    png_destroy_write_struct(&e->library, &e->info);
    return e->failed.code;
}

/* The shape of a value that can be written. */
static bags_code image_of(
    const bags_value *value, bags_image *out, bags_error *err) {
    bool array = value->kind == BAGS_KIND_ARRAY &&
                 (value->dtype == BAGS_DTYPE_UINT8 || value->dtype == BAGS_DTYPE_UINT16) &&
                 (value->dims == 2 || value->dims == 3);
    uint64_t channels = array && value->dims == 3 ? value->shape[2] : 1;
    if (!array || channels < 1 || channels > 4)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "png takes an array of uint8 or uint16, H x W or H x W x 1 to 4");
    for (size_t i = 0; i < 2; i++)
        if (value->shape[i] < 1 || value->shape[i] > PNG_UINT_31_MAX)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "png takes 1 to 2^31-1 pixels a side, not %" PRIu64,
                value->shape[i]);
    out->height = (uint32_t)value->shape[0];
    out->width = (uint32_t)value->shape[1];
    out->channels = (uint32_t)channels;
    out->depth = value->dtype == BAGS_DTYPE_UINT8 ? 8 : 16;
    return BAGS_OK;
}

static bags_code png_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    encoder e;
    memset(&e, 0, sizeof e);
    bags_code code = image_of(value, &e.image, err);
    if (code)
        return code;
    failure_start(&e.failed, BAGS_ERROR_VALUE, err);
    e.scratch = scratch;
    e.pixels = (const unsigned char *)value->data;
    e.level = ((const png_state *)state)->level;
    code = encoder_run(&e);
    if (code)
        return code;
    blob->data = scratch->data;
    blob->size = e.size;
    return BAGS_OK;
}

/* ------------------------------------------------------------ decode */

/* The bytes of a decoded value that stand before its pixels: its shape. A
 * multiple of 64, so that the pixels are aligned for vector units. */
#define SHAPE_SIZE 64

typedef struct decoder {
    failure failed;
    png_structp library;
    png_infop info;
    bags_view blob;
    size_t at; /* how much of the blob has been read */
    bags_png_options options;
    bags_image image; /* what comes out */
    unsigned char *pixels;
    size_t size, stride;
    bags_buffer *scratch; /* NULL: the pixels are the caller's */
} decoder;

static void input_bytes(png_structp library, png_bytep data, size_t size) {
    decoder *d = (decoder *)png_get_io_ptr(library);
    if (size > d->blob.size - d->at)
        REFUSE(&d->failed, BAGS_ERROR_CORRUPT,
            "the PNG is truncated: %" PRIu64 " bytes do not hold it",
            (uint64_t)d->blob.size);
    memcpy(data, d->blob.data + d->at, size);
    d->at += size;
}

/* Make libpng strict, and blind to all chunks but those that pixels are made
 * of: the others cannot be damaged in ways that matter, nor be bombs. */
static void connect(decoder *d) {
    d->library = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &d->failed,
        fail_library, ignore_warning, &d->failed, allocate, release);
    if (d->library)
        d->info = png_create_info_struct(d->library);
    if (!d->info)
        REFUSE(&d->failed, BAGS_ERROR_MEMORY, "out of memory");
    png_set_read_fn(d->library, d, input_bytes);
    png_set_benign_errors(d->library, 0);
    png_set_crc_action(d->library, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_keep_unknown_chunks(d->library, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(d->library, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
}

/*
 * Whether the file can be as large as it says, before memory is taken: deflate
 * makes at most 1032 bytes of one.
 */
static void check_pixels(decoder *d) {
    uint64_t width = d->image.width, height = d->image.height;
    uint64_t bits = (uint64_t)png_get_channels(d->library, d->info) *
                    png_get_bit_depth(d->library, d->info);
    if (width * height > d->options.max_pixels)
        REFUSE(&d->failed, BAGS_ERROR_LIMIT,
            "the PNG has %" PRIu64 " x %" PRIu64 " pixels; %" PRIu64
            " are allowed",
            width, height, d->options.max_pixels);
    if (width * height / (UINT64_C(8) * 1032) * bits > d->blob.size)
        REFUSE(&d->failed, BAGS_ERROR_CORRUPT,
            "the PNG says %" PRIu64 " x %" PRIu64 " pixels, which %" PRIu64
            " bytes cannot hold",
            width, height, (uint64_t)d->blob.size);
}

static void read_header(decoder *d) {
    connect(d);
    png_read_info(d->library, d->info);
    int colour = png_get_color_type(d->library, d->info);
    bool alpha = (colour & PNG_COLOR_MASK_ALPHA) ||
                 png_get_valid(d->library, d->info, PNG_INFO_tRNS);
    d->image.width = png_get_image_width(d->library, d->info);
    d->image.height = png_get_image_height(d->library, d->info);
    d->image.channels = (colour & PNG_COLOR_MASK_COLOR ? 3U : 1U) + alpha;
    d->image.depth = png_get_bit_depth(d->library, d->info) == 16 ? 16 : 8;
    check_pixels(d);
}

/* Whether the caller's memory takes the picture. */
static void check_room(decoder *d, size_t row) {
    uint64_t steps = d->image.height - 1;
    if (d->stride == 0)
        d->stride = row;
    if (d->stride < row)
        REFUSE(&d->failed, BAGS_ERROR_ARGUMENT,
            "a stride of %" PRIu64 " bytes; a row has %" PRIu64,
            (uint64_t)d->stride, (uint64_t)row);
    if (d->size < row || (d->size - row) / d->stride < steps)
        REFUSE(&d->failed, BAGS_ERROR_ARGUMENT,
            "%" PRIu64 " bytes do not hold %u rows of %" PRIu64
            " bytes, %" PRIu64 " apart",
            (uint64_t)d->size, (unsigned)d->image.height, (uint64_t)row,
            (uint64_t)d->stride);
}

/* Put the shape and room for the pixels into the scratch. */
static void make_room(decoder *d, size_t row) {
    uint64_t shape[3];
    shape[0] = d->image.height;
    shape[1] = d->image.width;
    shape[2] = d->image.channels;
    if (row > (SIZE_MAX - SHAPE_SIZE) / d->image.height)
        REFUSE(&d->failed, BAGS_ERROR_LIMIT, "the PNG is larger than memory");
    bags_code code = bags_buffer_reserve(
        d->scratch, SHAPE_SIZE + row * d->image.height, d->failed.err);
    if (code)
        leave(&d->failed, code);
    memcpy(d->scratch->data, shape, sizeof shape);
    d->pixels = d->scratch->data + SHAPE_SIZE;
    d->stride = row;
}

static void decode_picture(decoder *d) {
    png_set_expand(d->library);
    set_byte_order(d->library, d->image.depth);
    int passes = png_set_interlace_handling(d->library);
    png_read_update_info(d->library, d->info);
    size_t row = png_get_rowbytes(d->library, d->info);
    if (d->scratch)
        make_room(d, row);
    else
        check_room(d, row);
    for (int pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < d->image.height; i++)
            png_read_row(d->library, d->pixels + i * d->stride, NULL);
    png_read_end(d->library, NULL);
    if (d->at < d->blob.size && !d->options.allow_trailing)
        REFUSE(&d->failed, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes stand behind the end of the PNG",
            (uint64_t)(d->blob.size - d->at));
}

static bags_code decoder_run(decoder *d, bool pixels) {
    if (!setjmp(d->failed.back)) {
        read_header(d);
        if (pixels)
            decode_picture(d);
    }
    png_destroy_read_struct(&d->library, &d->info, NULL);
    return d->failed.code;
}

static void decoder_start(decoder *d, bags_view blob,
    const bags_png_options *options, bags_error *err) {
    memset(d, 0, sizeof *d);
    failure_start(&d->failed, BAGS_ERROR_CORRUPT, err);
    d->blob = blob;
    if (options)
        d->options = *options;
    if (d->options.max_pixels == 0)
        d->options.max_pixels = BAGS_IMAGE_MAX_PIXELS;
}

static bags_code png_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    decoder d;
    decoder_start(&d, blob, &((const png_state *)state)->options, err);
    d.scratch = scratch;
    bags_code code = decoder_run(&d, true);
    if (!code)
        *value = bags_array(d.image.depth == 8 ? BAGS_DTYPE_UINT8 : BAGS_DTYPE_UINT16,
            d.image.channels == 1 ? 2 : 3,
            (const uint64_t *)(const void *)scratch->data, d.pixels);
    return code;
}

bags_code bags_png_probe(bags_view blob, const bags_png_options *options,
    bags_image *out, bags_error *err) {
    decoder d;
    decoder_start(&d, blob, options, err);
    bags_code code = decoder_run(&d, false);
    if (!code)
        *out = d.image;
    return code;
}

bags_code bags_png_decode(bags_view blob, const bags_png_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err) {
    decoder d;
    decoder_start(&d, blob, options, err);
    d.pixels = (unsigned char *)pixels;
    d.size = size;
    d.stride = stride;
    return decoder_run(&d, true);
}

/* ------------------------------------------------------------ table */

const bags_codec bags_codec_png = {
    "png", png_open, png_encode, png_decode, png_close, NULL};
