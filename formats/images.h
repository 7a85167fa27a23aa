/*
 * images.h - code shared by jpeg.c, png.c, webp.c and image.c. Programs do not include
 * it.
 */
#ifndef BAGS_FORMATS_IMAGES_H
#define BAGS_FORMATS_IMAGES_H

#include "codecs.h"

#include <setjmp.h>

/* ---- errors of libjpeg and libpng ---- */

/*
 * These libraries report errors with longjmp. Encoding and decoding therefore each keep
 * all changing state in one structure, with this as a member, and call setjmp in a
 * function that does nothing else: no local variable is live across a jump.
 */
typedef struct format_jump {
    jmp_buf back;
    bags_code code;      /* the result of the encoding or decoding function */
    bags_code otherwise; /* for library errors to which we assigned no code */
    bags_error *err;
} format_jump;

static inline void format_leave(format_jump *jump, bags_code code) {
    jump->code = code;
    longjmp(jump->back, 1);
}

/* Set the error and jump out. The remaining arguments are a printf format and its
 * arguments. */
#define FORMAT_REFUSE(jump, code, ...)                                                 \
    format_leave(jump, bags_fail((jump)->err, code, __VA_ARGS__))

/* Parse the only argument that a type may have: a number within these limits. */
static inline bags_code format_argument(const bags_type *type, const char *what,
    uint64_t least, uint64_t most, uint64_t *out, bags_error *err) {
    if (type->count == 0)
        return BAGS_OK;
    if (type->count == 1 && bags_type_number(type, 0, out) && *out >= least &&
        *out <= most)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "invalid argument (\"%.*s\", expected a %s, %" PRIu64 " to %" PRIu64 ")",
        (int)(type->arguments.size < 80 ? type->arguments.size : 80),
        (const char *)type->arguments.data, what, least, most);
}

/* ---- image files, without decoding them ---- */

/* Read the marker of a JPEG at *at and its segment into *data, and move *at past the
 * segment. The first marker is 0xD8. Returns 0 if there is no marker or its segment is
 * truncated. */
static inline unsigned format_jpeg_marker(bags_view file, size_t *at, bags_view *data) {
    const unsigned char *bytes = file.data;
    size_t i = *at;
    data->data = NULL;
    data->size = 0;
    if (i >= file.size || bytes[i] != 0xFF)
        return 0;
    while (i < file.size && bytes[i] == 0xFF) /* any number of fill bytes is allowed */
        i++;
    unsigned marker = i < file.size ? bytes[i++] : 0;
    *at = i;
    if (marker <= 1 || (marker >= 0xD0 && marker <= 0xD9))
        return marker;
    size_t size = file.size - i < 2 ? 0 : (size_t)bags_load_bytes(bytes + i, 2, true);
    if (size < 2 || size > file.size - i)
        return 0;
    data->data = bytes + i + 2;
    data->size = size - 2;
    *at = i + size;
    return marker;
}

/* Start of frame: SOF0 to SOF15 without DHT, JPG and DAC. */
static inline bool format_jpeg_is_frame(unsigned marker) {
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 &&
           marker != 0xCC;
}

/* The frame header segment of a JPEG: bits per channel, height, width, and number of
 * channels. Empty if there is none, or if the file is not a JPEG. */
static inline bags_view format_jpeg_frame(bags_view file) {
    bags_view data;
    size_t at = 0;
    unsigned marker = format_jpeg_marker(file, &at, &data);
    if (marker != 0xD8)
        marker = 0;
    while (marker && !format_jpeg_is_frame(marker))
        marker = format_jpeg_marker(file, &at, &data);
    if (!marker || data.size < 6)
        data.size = 0;
    return data;
}

#define FORMAT_PNG_START "\x89PNG\r\n\x1a\n" /* 8 bytes */

/* Read the PNG chunk at *at, and move *at to the next chunk. Returns a pointer to the
 * chunk's name, followed by its data and a 4-byte checksum. NULL if it is truncated. */
static inline const unsigned char *format_png_chunk(
    bags_view file, size_t *at, bags_view *data) {
    size_t left = file.size - *at;
    const unsigned char *bytes = file.data + *at;
    if (left < 12)
        return NULL;
    data->data = bytes + 8;
    data->size = (size_t)bags_load_bytes(bytes, 4, true);
    if (data->size > left - 12)
        return NULL;
    *at += data->size + 12;
    return bytes + 4;
}

/*
 * A WebP file consists of chunks, with little-endian sizes:
 *
 *     0  4  "RIFF"                      12  4  name of a chunk
 *     4  4  size of all that follows    16  4  size of its data
 *     8  4  "WEBP"                      20     data, padded to an even size; next chunk
 *
 * Pixels are in the chunk "VP8 " or "VP8L". If "VP8X" is the first chunk, it has flags
 * for the other chunks and the size of the image.
 */
typedef struct format_webp {
    size_t size; /* bytes of the file, as its header states */
    uint32_t width, height;
    bool alpha, pixels;
    unsigned flags; /* of VP8X */
    bags_view exif;
} format_webp;

#define FORMAT_WEBP_ANIMATED 0x02
#define FORMAT_WEBP_EXIF 0x08
#define FORMAT_WEBP_ALPHA 0x10

static inline bool format_is_webp(bags_view file) {
    return file.size >= 12 && !memcmp(file.data, "RIFF", 4) &&
           !memcmp(file.data + 8, "WEBP", 4);
}

/* Get the size of the image from one of its chunks; other chunks are ignored. */
static inline void format_webp_size(
    const unsigned char *name, bags_view data, format_webp *out) {
    const unsigned char *from = data.data;
    if (!memcmp(name, "VP8X", 4) && data.size >= 10) {
        out->flags = from[0];
        out->alpha = (from[0] & FORMAT_WEBP_ALPHA) != 0;
        out->width = (uint32_t)bags_load_bytes(from + 4, 3, false) + 1;
        out->height = (uint32_t)bags_load_bytes(from + 7, 3, false) + 1;
    } else if (!memcmp(name, "VP8L", 4) && data.size >= 5) {
        uint32_t bits = (uint32_t)bags_load_bytes(from + 1, 4, false);
        out->alpha = (bits >> 28 & 1) != 0;
        out->width = (bits & 0x3FFF) + 1;
        out->height = (bits >> 14 & 0x3FFF) + 1;
    } else if (!memcmp(name, "VP8 ", 4) && data.size >= 10) {
        out->width = (uint32_t)bags_load_bytes(from + 6, 2, false) & 0x3FFF;
        out->height = (uint32_t)bags_load_bytes(from + 8, 2, false) & 0x3FFF;
    }
}

/*
 * Scan the chunks of a WebP file, without decoding pixels. *out has the chunks up to
 * the first fault.
 *
 * Returns BAGS_OK, BAGS_ERROR_CORRUPT (no WebP; truncated; without pixels) or
 * BAGS_ERROR_LIMIT (animated).
 */
static inline bags_code format_webp_scan(
    bags_view file, format_webp *out, bags_error *err) {
    memset(out, 0, sizeof *out);
    if (!format_is_webp(file))
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a WebP");
    uint64_t size = bags_load_bytes(file.data + 4, 4, false) + 8;
    if (size > file.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "truncated WebP (%" PRIu64 " bytes)",
            (uint64_t)file.size);
    out->size = (size_t)size;
    for (size_t at = 12; at < out->size;) {
        const unsigned char *name = file.data + at;
        size_t left = out->size - at;
        bags_view data = {name + 8, left < 8 ? 0 : left - 8};
        if (left >= 8)
            data.size = (size_t)bags_load_bytes(name + 4, 4, false);
        if (left < 8 || data.size > left - 8)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "WebP has a truncated chunk (at byte %" PRIu64 ")", (uint64_t)at);
        if (out->width == 0)
            format_webp_size(name, data, out);
        if (out->flags & FORMAT_WEBP_ANIMATED)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "animated WebP (only still images are supported)");
        out->pixels =
            out->pixels || !memcmp(name, "VP8 ", 4) || !memcmp(name, "VP8L", 4);
        if ((out->flags & FORMAT_WEBP_EXIF) && !out->exif.data &&
            !memcmp(name, "EXIF", 4))
            out->exif = data;
        at += 8 + data.size;
        at += data.size % 2 && at < out->size;
    }
    return out->pixels ? BAGS_OK
                       : bags_fail(err, BAGS_ERROR_CORRUPT, "WebP has no pixels");
}

/* Find the EXIF data of an image file; empty if there are none. */
static inline bags_view format_exif_find(bags_view file) {
    bags_view data, found = {NULL, 0};
    size_t at = 0;
    if (file.size >= 8 && !memcmp(file.data, FORMAT_PNG_START, 8)) {
        const unsigned char *name;
        at = 8;
        while ((name = format_png_chunk(file, &at, &data)) &&
               (!found.data || memcmp(name, "IDAT", 4) != 0))
            if (!memcmp(name, "eXIf", 4))
                found = data;
        return found;
    }
    if (format_is_webp(file)) {
        format_webp webp;
        (void)format_webp_scan(file, &webp, NULL);
        found = webp.exif;
        if (found.size >= 6 && !memcmp(found.data, "Exif\0", 6)) { /* by some writers */
            found.data += 6;
            found.size -= 6;
        }
        return found;
    }
    unsigned marker = format_jpeg_marker(file, &at, &data);
    if (marker != 0xD8)
        return found;
    while (marker && marker != 0xDA && marker != 0xD9) { /* the pixels, the end */
        marker = format_jpeg_marker(file, &at, &data);
        if (marker != 0xE1 || data.size < 6 || memcmp(data.data, "Exif", 5) != 0)
            continue;
        if (data.data[5] == 0) {
            found.data = data.data + 6;
            found.size = data.size - 6;
        }
        break;
    }
    return found;
}

/*
 * The orientation stated by a file's EXIF data, or 1. EXIF data are a TIFF file:
 *
 *     0  2  "II" (little-endian) or "MM"        an entry  0  2  tag
 *     2  2  42                                            2  2  type of its numbers
 *     4  4  where the entries are: their                  4  4  how many
 *           number in 2 bytes, then each                  8  4  these, or if they are
 *           in 12                                               larger, where they are
 *
 * This follows Pillow: entries are read up to the first whose numbers lie outside the
 * data; the last of several orientations counts; numbers may have any type except BYTE
 * (Pillow returns it as bytes) and fractions.
 */
static inline uint32_t format_orientation(bags_view file) {
    static const unsigned char sizes[17] = {
        0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    const uint32_t whole = 1U << 3 | 1U << 4 | 1U << 6 | 1U << 8 | 1U << 9 | 1U << 13 |
                           1U << 16; /* integer types */
    bags_view exif = format_exif_find(file);
    const unsigned char *from = exif.data;
    uint32_t orientation = 1;
    if (exif.size < 10)
        return 1;
    bool little = from[0] == 'I', swapped = from[2] == 42;
    uint64_t at = bags_load_bytes(from + 4, 4, !little);
    if ((from[0] != 'I' && from[0] != 'M') || from[1] != from[0] ||
        bags_load_bytes(from + 2, 2, !swapped) != 42 || at > exif.size - 2)
        return 1;
    uint64_t count = bags_load_bytes(from + at, 2, !little);
    for (at += 2; count && exif.size - at >= 12; count--, at += 12) {
        const unsigned char *entry = from + at, *value = entry + 8;
        uint64_t type = bags_load_bytes(entry + 2, 2, !little);
        uint64_t numbers = bags_load_bytes(entry + 4, 4, !little);
        size_t each = type < sizeof sizes ? sizes[type] : 0;
        uint64_t size = numbers * each;
        if (size > 4) {
            uint64_t place = bags_load_bytes(value, 4, !little);
            if (place > exif.size || size > exif.size - place)
                break;
            value = from + place;
        }
        if (bags_load_bytes(entry, 2, !little) == 0x0112 && size > 0) {
            uint64_t stated = bags_load_bytes(value, each, !little);
            bool valid = (whole >> type & 1) && stated >= 1 && stated <= 8;
            orientation = valid ? (uint32_t)stated : 1;
        }
    }
    return orientation;
}

/* How turning an image upright affects its stored rows: whether a row becomes a column,
 * its pixels are reversed, or the order of the rows is reversed. */
static inline bool format_turn_swaps(uint32_t orientation) { return orientation >= 5; }
static inline bool format_turn_mirrors(uint32_t orientation) {
    return orientation == 2 || orientation == 3 || orientation >= 7;
}
static inline bool format_turn_flips(uint32_t orientation) {
    return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

static inline void format_turn_size(bags_image *image, uint32_t orientation) {
    uint32_t width = image->width;
    if (!format_turn_swaps(orientation))
        return;
    image->width = image->height;
    image->height = width;
}

/* Copy row y of a stored image (with this width and height) to its position in the
 * upright image. */
static inline void format_turn_row(uint32_t orientation, const unsigned char *row,
    uint32_t y, uint32_t width, uint32_t height, size_t pixel, unsigned char *to,
    size_t stride) {
    bool swaps = format_turn_swaps(orientation);
    ptrdiff_t step = (ptrdiff_t)(swaps ? stride : pixel);
    if (format_turn_flips(orientation))
        y = height - 1 - y;
    to += y * (swaps ? pixel : stride);
    if (format_turn_mirrors(orientation)) {
        to += (ptrdiff_t)(width - 1) * step;
        step = -step;
    }
    for (uint32_t x = 0; x < width; x++, row += pixel) {
        unsigned char *at = to + (ptrdiff_t)x * step;
        at[0] = row[0];
        for (size_t i = 1; i < pixel; i++)
            at[i] = row[i];
    }
}

/* ---- decoded images ---- */

/* In the scratch, the shape of a value precedes its pixels. A multiple of 64, so
 * that the pixels are aligned for vector units. */
#define FORMAT_SHAPE 64

/* The destination of pixels: the caller's memory, or a scratch. */
typedef struct format_pixels {
    unsigned char *pixels;
    size_t size, stride;
    bags_buffer *scratch; /* NULL: the caller's memory */
} format_pixels;

/* Bytes per row. */
static inline size_t format_image_row(const bags_image *image) {
    return (size_t)image->width * image->channels * (image->depth / 8);
}

/* Get the image to encode from a value; each side may have up to `most` pixels. */
static inline bags_code format_image_of(const bags_value *value, uint64_t channels,
    uint32_t depth, uint64_t most, bags_image *out, bags_error *err) {
    for (size_t i = 0; i < 2; i++)
        if (value->shape[i] < 1 || value->shape[i] > most)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "image size out of range (%" PRIu64 " x %" PRIu64 ", 1 to %" PRIu64 ")",
                value->shape[0], value->shape[1], most);
    out->height = (uint32_t)value->shape[0];
    out->width = (uint32_t)value->shape[1];
    out->channels = (uint32_t)channels;
    out->depth = depth;
    out->dtype = value->dtype;
    return format_array_check(value, err);
}

/* Allocate an image in the scratch, or check the size of the caller's memory. */
static inline bags_code format_image_prepare(
    const bags_image *image, format_pixels *to, bags_error *err) {
    size_t row = format_image_row(image);
    if (!to->scratch) {
        if (to->stride == 0)
            to->stride = row;
        if (to->stride < row)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "stride too small (%" PRIu64 " bytes, row %" PRIu64 ")",
                (uint64_t)to->stride, (uint64_t)row);
        if (to->size < row || (to->size - row) / to->stride < image->height - 1)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "buffer too small (%" PRIu64 " bytes, %" PRIu32 " rows of %" PRIu64 ")",
                (uint64_t)to->size, image->height, (uint64_t)to->stride);
        return BAGS_OK;
    }
    if (row > (SIZE_MAX - FORMAT_SHAPE) / image->height)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    bags_code code =
        bags_buffer_reserve(to->scratch, FORMAT_SHAPE + row * image->height, err);
    if (code)
        return code;
    uint64_t shape[3];
    shape[0] = image->height;
    shape[1] = image->width;
    shape[2] = image->channels;
    memcpy(to->scratch->data, shape, sizeof shape);
    to->pixels = to->scratch->data + FORMAT_SHAPE;
    to->stride = row;
    return BAGS_OK;
}

/* The value for an image decoded into a scratch. */
static inline bags_value format_image_value(
    const bags_image *image, const format_pixels *to) {
    return bags_array(image->dtype, image->channels == 1 ? 2 : 3,
        (const uint64_t *)(const void *)to->scratch->data, to->pixels);
}

#endif /* BAGS_FORMATS_IMAGES_H */
