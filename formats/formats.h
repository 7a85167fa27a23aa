/*
 * formats.h - codecs for bags.h on the libraries of their fields.
 *
 * Each format is one file, on one library, and stands alone: copy bags.h and
 * the directory formats/ beside it, and compile the files that you need with
 * your program. None needs another.
 *
 *     formats/jpeg.c     jpeg jpg          libjpeg-turbo    -ljpeg
 *     formats/png.c      png               libpng           -lpng
 *
 * A codec serves its types once it is in the registry that a reader or a writer
 * was opened with:
 *
 *     bags_codecs *codecs = bags_codecs_create(NULL, &err);
 *     bags_codecs_add(codecs, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.codecs = codecs;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h says of errors, ownership, threads and untrusted files holds here
 * too. No function prints, ends the program or keeps anything between calls;
 * all may be called from several threads at once.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "../bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share. A codec's value is a BAGS_ARRAY, H x W if it is gray
 * and H x W x channels otherwise; the first row is the top one. Writers take
 * H x W x 1 for gray too.
 * ====================================================================== */

/* A picture's shape. A row is width * channels * depth / 8 bytes. */
typedef struct bags_image {
    uint32_t width;
    uint32_t height;
    uint32_t channels; /* 1: gray, 2: gray and alpha, 3: RGB, 4: RGBA */
    uint32_t depth;    /* bits a channel: 8, or 16 in this machine's order */
} bags_image;

/* The most pixels that a picture may have, unless options say otherwise:
 * 134 million, as many as the largest cameras make. */
#define BAGS_IMAGE_MAX_PIXELS ((uint64_t)1 << 27)

/* ========================================================================
 * >>jpeg
 * Types: jpeg, jpg, each with or without (QUALITY), 1 to 100.
 *
 * Values are uint8. Written is what Pillow writes by default: baseline, colour
 * with 4:2:0 subsampling, quality 75. A quality in the type is honoured; the
 * Python package takes it and ignores it.
 *
 * Read is any JPEG of 8 bits a channel in gray, YCbCr or RGB, progressive ones
 * too. Pixels are those of libjpeg's exact integer transform and smooth
 * upsampling, as of `djpeg -dct int`. Refused are CMYK and YCCK, and what is
 * truncated or damaged: where libjpeg warns and goes on, this is an error. The
 * orientation that a camera notes in EXIF is left alone: pixels come as they
 * are stored.
 * ====================================================================== */

/*
 * The codec. Its `user` is NULL, or in a copy of yours points to a
 * bags_jpeg_options with which every blob is decoded:
 *
 *     bags_jpeg_options half = {0};
 *     half.scale = 2;
 *     bags_codec codec = bags_codec_jpeg;
 *     codec.user = &half;
 *     bags_codecs_add(codecs, &codec, &err);
 *
 * The options are copied when a reader or a writer opens the codec for a field,
 * at the latest when it first needs it; they must live as long as the registry.
 */
extern const bags_codec bags_codec_jpeg;

typedef struct bags_jpeg_options {
    uint32_t scale;    /* 2, 4 or 8: decode to 1/2, 1/4, 1/8 of width and
                          height, rounded up, at a fraction of the cost;
                          0 or 1: full size */
    uint32_t channels; /* 1: gray, 3: RGB; 0: as the file has it */
    uint32_t left;     /* decode only a rectangle, in pixels of the scaled */
    uint32_t top;      /* picture ... */
    uint32_t width;    /* 0: as far as the right edge */
    uint32_t height;   /* 0: as far as the lower edge */
    uint64_t max_pixels; /* refuse a file with more, before any memory is taken
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    uint32_t max_scans; /* refuse a progressive file with more passes over the
                           picture; 0: 100 */
    bool allow_trailing; /* ignore bytes behind the picture, as some cameras
                            leave; else they are an error */
} bags_jpeg_options;

/*
 * What bags_jpeg_decode will give, from the file's header.
 *
 *   blob     a JPEG file
 *   options  as they will be given to decode. NULL: all of the picture
 *   out      receives the shape; with NULL options, that of the file
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  options that make no sense
 *   BAGS_ERROR_RANGE     the rectangle is not within the picture
 *   BAGS_ERROR_CORRUPT   not a JPEG; its header is damaged; or so short that it
 *                        cannot hold as many pixels as it says
 *   BAGS_ERROR_LIMIT     more than max_pixels; CMYK, YCCK, 12 bits
 *   BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: a microsecond or so; some KB of libjpeg's own memory.
 */
extern bags_code bags_jpeg_probe(bags_bytes blob,
    const bags_jpeg_options *options, bags_image *out, bags_error *err);

/*
 * Decode into memory of the caller's.
 *
 *   pixels  receives the rows; what is there after a failure is undefined
 *   size    bytes at pixels: at least (height - 1) * stride and a row
 *   stride  bytes from a row to the next, at least a row's; 0: just a row's
 *
 * The pixels of a rectangle are those of the same place in the whole picture.
 * Of a rectangle that does not reach the lower edge, the data below it are not
 * looked at, nor checked.
 *
 * Returns what bags_jpeg_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size is too small; err says what is needed
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or bytes behind the end
 *   BAGS_ERROR_LIMIT     more than max_scans
 *
 * Threads: any. Cost: libjpeg-turbo's; no memory besides its own, which for a
 * progressive file is about 2 bytes a sample, else some rows.
 */
extern bags_code bags_jpeg_decode(bags_bytes blob,
    const bags_jpeg_options *options, void *pixels, size_t size, size_t stride,
    bags_error *err);

/* ========================================================================
 * >>png
 * Types: png, or png(LEVEL): zlib's compression level, 0 (none) to 9 (most);
 * without it libpng's own default, 6.
 *
 * Values are uint8 or uint16, with 1 to 4 channels. Every PNG is read: palettes
 * are expanded to RGB, gray of 1, 2 or 4 bits to 8, a transparent colour to an
 * alpha channel, interlaced pictures to whole ones. Samples come as they are
 * stored: gamma, colour profiles and all other extra chunks are ignored.
 * Refused is what is truncated or damaged, by its checksums too.
 * ====================================================================== */

/* The codec. Its `user` is NULL, or in a copy of yours points to a
 * bags_png_options: see bags_codec_jpeg. */
extern const bags_codec bags_codec_png;

typedef struct bags_png_options {
    uint64_t max_pixels; /* refuse a file with more, before any memory is taken
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    bool allow_trailing; /* ignore bytes behind the picture; else they are an
                            error */
} bags_png_options;

/*
 * What bags_png_decode will give, from what stands before the pixels.
 *
 *   blob     a PNG file
 *   options  NULL: the defaults
 *   out      receives the shape
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a PNG; its header is damaged; or so short that it
 *                       cannot hold as many pixels as it says
 *   BAGS_ERROR_LIMIT    more than max_pixels
 *   BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: a microsecond or so; some KB of libpng's own memory.
 */
extern bags_code bags_png_probe(bags_bytes blob,
    const bags_png_options *options, bags_image *out, bags_error *err);

/*
 * Decode into memory of the caller's. pixels, size and stride are as for
 * bags_jpeg_decode; the memory need not be aligned.
 *
 * Returns what bags_png_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size is too small; err says what is needed
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or bytes behind the end
 *
 * Threads: any. Cost: libpng's; no memory besides its own, some rows.
 */
extern bags_code bags_png_decode(bags_bytes blob,
    const bags_png_options *options, void *pixels, size_t size, size_t stride,
    bags_error *err);

/* end of >>png */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */
