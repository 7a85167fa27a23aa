/*
 * codecs.h - codecs for the blobs of a dataset: images, arrays, messages, videos.
 *
 *     file        types         library
 *     jpeg.c      jpeg jpg      libjpeg-turbo  -ljpeg
 *     png.c       png           libpng         -lpng
 *     webp.c      webp          libwebp        -lwebp
 *     image.c     (images)      none
 *     numpy.c     npy           none
 *     msgpack.c   msgpack tree  msgpack-c      -lmsgpackc
 *     mp4.c       mp4 webm      FFmpeg         -lavformat -lavcodec -lswscale
 *                                              -lavutil
 *     zstd.c      zstd(...)     zstd           -lzstd, threads
 *
 * A codec handles its types once it is in the registry that a reader or writer is
 * opened with:
 *
 *     bags_registry *registry = bags_registry_create(NULL, &err);
 *     bags_registry_add(registry, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.registry = registry;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 */
#ifndef BAGS_CODECS_H
#define BAGS_CODECS_H

#include "bags.h"

#include <inttypes.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * Shared by JPEG, PNG and WebP.
 * ====================================================================== */

/* The shape of an image. A row is width * channels elements of the dtype. */
typedef struct bags_image {
    uint32_t width;
    uint32_t height;
    uint32_t channels; /* 1: gray, 2: gray and alpha, 3: RGB, 4: RGBA */
    uint32_t depth;    /* bits per element in memory: 8 or 16 */
    bags_dtype dtype;  /* BAGS_DTYPE_UINT8, _UINT16 or _BOOL */
} bags_image;

/* The maximum number of pixels in an image unless options allow more: 268 million. */
#define BAGS_IMAGE_MAX_PIXELS ((uint64_t)1 << 28)

/*
 * The orientation stated by the EXIF data of a JPEG, PNG or WebP file, 1 to 8. To
 * appear upright, the stored image must be
 *
 *     1  left as it is             5  mirrored at the diagonal from the upper left
 *     2  mirrored left to right    6  turned clockwise by 90 degrees
 *     3  turned by 180 degrees     7  mirrored at the diagonal from the upper right
 *     4  mirrored top to bottom    8  turned counterclockwise by 90 degrees
 *
 * Like Pillow, this reads the first APP1 segment with EXIF of a JPEG, the eXIf chunk of
 * a PNG, or the EXIF chunk of a WebP. Returns 1 if there is no orientation or it is
 * invalid, and for all other files. Orientations in XMP or in PNG text are ignored.
 *
 * In image.c. Threads: any. Cost: O(segments or chunks), without decoding.
 */
uint32_t bags_image_orientation(bags_view file);

/*
 * Check that a JPEG, PNG or WebP file is complete, without decoding it. A JPEG must
 * have a header, scans of all components and an end marker, with nothing between its
 * segments; a PNG must have a header, pixels and an end, with valid checksums on the
 * chunks needed for the pixels; a WebP must have all its chunks, and pixels among them.
 * Bytes after the end are accepted. Damage to the pixels of a JPEG or WebP is not
 * detected.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  err states the problem and its position
 *   BAGS_ERROR_LIMIT    an animated WebP
 *
 * In image.c. Threads: any. Cost: reads the file once.
 */
bags_code bags_image_check(bags_view file, bags_error *err);

/* ========================================================================
 * >>jpeg
 * Types: jpeg, jpg, each with or without (QUALITY), 1 to 100.
 *
 * Values are uint8, H x W for gray and H x W x 3 for RGB. The writer uses Pillow's
 * defaults: baseline, colour with 4:2:0 subsampling, quality 75. It honours a quality
 * in the type; the Python package ignores it.
 *
 * The reader accepts any JPEG with 8 bits per channel in gray, YCbCr or RGB, including
 * progressive files. Pixels are identical to those from `djpeg -dct int`: libjpeg's
 * exact integer transform with smooth upsampling. It rejects CMYK and YCCK, and
 * truncated or damaged files: where libjpeg warns and continues, this reader fails. The
 * EXIF orientation is ignored, as in PyTorch's decoders: pixels stay as stored unless
 * the option `orient` turns them.
 * ====================================================================== */

/*
 * The codec. Its `user` is NULL, or, in your own copy, points to the bags_jpeg_options
 * used to decode every blob:
 *
 *     bags_jpeg_options half = {0};
 *     half.scale = 2;
 *     bags_codec codec = bags_codec_jpeg;
 *     codec.user = &half;
 *     bags_registry_add(registry, &codec, &err);
 *
 * The options are copied when a reader or writer opens the codec for a field, at the
 * latest on first use; they must outlive the registry.
 */
extern const bags_codec bags_codec_jpeg;

typedef struct bags_jpeg_options {
    uint32_t scale;      /* 2, 4 or 8: decode faster, to 1/2, 1/4 or 1/8 of width and
                          * height, rounded up; 0 or 1: full size */
    uint32_t channels;   /* 1: gray, 3: RGB; 0: as in the file */
    uint32_t left;       /* decode only a rectangle, in pixels of the scaled */
    uint32_t top;        /* image ... */
    uint32_t width;      /* 0: to the right edge */
    uint32_t height;     /* 0: to the lower edge */
    uint64_t max_pixels; /* reject a file with more, before memory is allocated
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    uint32_t max_scans;  /* reject a progressive file that has more scans; 0: 100 */
    bool allow_trailing; /* ignore bytes after the image, as written by some cameras;
                          * otherwise they are an error */
    bool orient;         /* turn the image upright according to its EXIF orientation
                          * (see bags_image_orientation), exactly as Pillow's
                          * ImageOps.exif_transpose does. Shapes and the rectangle refer
                          * to the upright image */
} bags_jpeg_options;

/*
 * Determine from a file's header what bags_jpeg_decode will return.
 *
 *   blob     a JPEG file
 *   options  those for bags_jpeg_decode; NULL: the defaults
 *   out      receives the shape
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_RANGE     the rectangle is not within the image
 *   BAGS_ERROR_CORRUPT   not a JPEG; a damaged header; a file too short for the
 *                        pixels that it states
 *   BAGS_ERROR_LIMIT     more than max_pixels; CMYK, YCCK, 12 bits
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Threads: any. Cost: about a microsecond, and a few KB allocated by libjpeg.
 */
bags_code bags_jpeg_probe(
    bags_view blob, const bags_jpeg_options *options, bags_image *out, bags_error *err);

/*
 * Decode a JPEG file into the caller's memory.
 *
 *   blob, options  as above
 *   pixels         receives the rows; undefined after a failure
 *   size           bytes at pixels: at least (height - 1) * stride and a row
 *   stride         bytes from one row to the next, at least a row; 0: one row
 *
 * A rectangle's pixels are identical to the same part of the full image. If it does not
 * reach the lower edge, the data below it are not checked.
 *
 * Returns what bags_jpeg_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size too small
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or trailing bytes
 *   BAGS_ERROR_LIMIT     more than max_scans
 *
 * Threads: any. Cost: the time and memory that libjpeg-turbo takes: about 2 bytes per
 * sample for a progressive file, otherwise a few rows.
 */
bags_code bags_jpeg_decode(bags_view blob, const bags_jpeg_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err);

/* ========================================================================
 * >>png
 * Types: png, or png(LEVEL) with zlib's compression level, 0 (none) to 9 (most). The
 * default is libpng's, 6.
 *
 * Every PNG is decoded to the array that numpy.asarray(PIL.Image.open(file))
 * returns, with one exception: 16 bits are always uint16.
 *
 *     gray, 1 bit                    bool    H x W
 *     gray, 2, 4 and 8 bits          uint8   H x W, scaled to 0 .. 255
 *     palette, 1 to 8 bits           uint8   H x W, indices into the palette
 *     gray and alpha, RGB, RGBA      uint8   H x W x 2, 3, 4
 *     16 bits                        uint16  as for 8 bits, native byte order
 *
 * (Pillow returns 16-bit gray as int32 or uint16, depending on its version, and reduces
 * 16-bit colour to 8 bits.) With the option `expand`, palettes become RGB or RGBA, a
 * transparent colour becomes alpha, and 1-bit samples become 0 and 255. Interlaced
 * files are supported. Gamma, colour profiles, the orientation in EXIF (unless `orient`
 * is set) and all other extra chunks are ignored. Truncated and damaged files are
 * rejected; chunk checksums are verified.
 * ====================================================================== */

/* The codec. Its `user` is NULL, or, in your own copy, points to a bags_png_options:
 * see bags_codec_jpeg. */
extern const bags_codec bags_codec_png;

typedef struct bags_png_options {
    uint64_t max_pixels; /* reject a file with more, before memory is allocated
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    bool allow_trailing; /* ignore bytes after the image; otherwise they are an
                            error */
    bool expand;         /* decode to colours: see above */
    bool orient;         /* turn the image upright: see bags_jpeg_options */
} bags_png_options;

/*
 * Determine what bags_png_decode will return, from the chunks before the pixels.
 *
 *   blob     a PNG file
 *   options  those for bags_png_decode; NULL: the defaults
 *   out      receives the shape
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a PNG; a damaged header; a file too short for the
 *                       pixels that it states
 *   BAGS_ERROR_LIMIT    more than max_pixels
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any. Cost: about a microsecond, and a few KB allocated by libpng.
 */
bags_code bags_png_probe(
    bags_view blob, const bags_png_options *options, bags_image *out, bags_error *err);

/*
 * Decode a PNG file into the caller's memory. It need not be aligned. The
 * parameters are as for bags_jpeg_decode.
 *
 * Returns what bags_png_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size too small
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or trailing bytes
 *
 * Threads: any. Cost: the time and memory that libpng takes: a few rows, or the whole
 * image if it is interlaced and turned.
 */
bags_code bags_png_decode(bags_view blob, const bags_png_options *options, void *pixels,
    size_t size, size_t stride, bags_error *err);

/* ========================================================================
 * >>webp
 * Types: webp, or webp(LEVEL) with the effort of the compression, 0 (fastest) to 9
 * (smallest). The default is 6, as in cwebp -lossless.
 *
 * Values are uint8, H x W x 3 for RGB and H x W x 4 for RGBA; the format has no gray
 * images, and H and W are at most 16,383. The writer is lossless: the decoded array
 * equals the encoded one, including the colours of transparent pixels. The reader
 * accepts lossy and lossless files, and returns the array of
 * numpy.asarray(PIL.Image.open(file)). Animated files are rejected. Colour profiles,
 * the orientation in EXIF (unless `orient` is set) and other metadata are ignored.
 * Truncated files are rejected; other damage is not always detected.
 * ====================================================================== */

/* The codec. Its `user` is NULL, or, in your own copy, points to a bags_webp_options:
 * see bags_codec_jpeg. */
extern const bags_codec bags_codec_webp;

typedef struct bags_webp_options {
    uint64_t max_pixels; /* reject a file with more, before memory is allocated
                            for them; 0: BAGS_IMAGE_MAX_PIXELS. A few bytes can state
                            any number of pixels up to 16,383 x 16,383 */
    bool allow_trailing; /* ignore bytes after the image; otherwise they are an
                            error */
    bool orient;         /* turn the image upright: see bags_jpeg_options */
} bags_webp_options;

/*
 * Determine what bags_webp_decode will return, from the header of the file.
 *
 *   blob     a WebP file
 *   options  those for bags_webp_decode; NULL: the defaults
 *   out      receives the shape
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a WebP; truncated; a damaged header
 *   BAGS_ERROR_LIMIT    more than max_pixels; animated
 *
 * Threads: any. Cost: less than a microsecond.
 */
bags_code bags_webp_probe(
    bags_view blob, const bags_webp_options *options, bags_image *out, bags_error *err);

/*
 * Decode a WebP file into the caller's memory. The parameters are as for
 * bags_jpeg_decode; stride is at most INT_MAX.
 *
 * Returns what bags_webp_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size too small, or stride too large
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or trailing bytes
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Threads: any. Cost: the time and memory that libwebp takes: 4 bytes per pixel for a
 * lossless file, otherwise a few rows; and the whole image if it is turned.
 */
bags_code bags_webp_decode(bags_view blob, const bags_webp_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err);

/* ========================================================================
 * >>numpy
 * NumPy's .npy files: the type npy, and arrays from and to files. No library.
 * ====================================================================== */

/*
 * The codec. A value is a BAGS_KIND_ARRAY if bags_dtype has the element type. For all
 * other types (long double, text, dates, structures) it is a BAGS_KIND_OBJECT whose
 * `object` points to a bags_npy. The codec encodes both kinds.
 */
extern const bags_codec bags_codec_npy;

/*
 * The type of an element. A structure has fields, each with its own bags_npy_type and
 * its offset in the structure.
 */
typedef struct bags_npy_type {
    char kind;         /* NumPy's letter: b bool, i int, u unsigned, f float, c complex,
                        * S bytes, U UTF-32 text, V raw bytes, M date, m time span. V
                        * for structures */
    bool structure;    /* a structure with fields (possibly none) */
    bool big_endian;   /* false if byte order does not apply */
    bags_dtype dtype;  /* or BAGS_DTYPE_NONE */
    const char *unit;  /* unit of M and m, such as "ns"; otherwise "" */
    uint32_t step;     /* units per step of M and m, such as 25 for "25s"; otherwise
                        * 0 */
    const char *name;  /* the field's name, in UTF-8; otherwise "" */
    const char *title; /* a field's second name, or NULL */
    size_t offset;     /* within the enclosing structure */
    size_t item_size;  /* bytes of one element */
    size_t dims;       /* if a field is an array, in C order: its shape, and */
    const uint64_t *shape;
    size_t size;                        /* its size in bytes */
    size_t count;                       /* the structure's fields, ordered by offset; */
    const struct bags_npy_type *fields; /* they never overlap */
} bags_npy_type;

/*
 * An array of any dtype. Row i (the i-th element in C order) is at rows + i * stride,
 * and each of its fields at `offset` from there. The bytes are as in the file:
 * unaligned, so copy numbers with memcpy, and in the type's byte order.
 *
 * To write an array of such a dtype, set descr, dims, shape, rows and size; the other
 * members are set only by reading.
 */
typedef struct bags_npy {
    const char *descr; /* the dtype as Python text in UTF-8: "'<M8[ns]'",
                          "[('x', '<f8'), ('id', '<i4', (2,))]" */
    bags_npy_type type;
    size_t dims;
    const uint64_t *shape;
    uint64_t length; /* the number of rows: the product of shape */
    size_t stride;   /* bytes from one row to the next: type.item_size */
    const unsigned char *rows;
    size_t size; /* bytes of all rows */
} bags_npy;

/*
 * Decode a .npy file of version 1, 2 or 3, as the codec does. *value is valid until the
 * scratch is reused or freed, and while the file's bytes remain valid. The array is in
 * C order. Elements of a bags_dtype type are aligned and in native byte order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a .npy file; an invalid header or an unknown dtype;
 *                       a size that contradicts the header
 *   BAGS_ERROR_VALUE    an array of Python objects, readable only by Python
 *   BAGS_ERROR_LIMIT    a header above 1 MiB, more than 4,096 fields, fields
 *                       nested above 32 levels, more than BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(header), at most about 30 bytes of
 * memory per header byte. Elements are copied only if they are in Fortran order,
 * misaligned or byte-swapped.
 */
bags_code bags_npy_read(
    bags_view file, bags_buffer *scratch, bags_value *value, bags_error *err);

/*
 * Encode an array, byte for byte as numpy.save does. *out is valid until the scratch is
 * reused or freed.
 *
 *   value  a BAGS_KIND_ARRAY, or a BAGS_KIND_OBJECT with a bags_npy, whose descr is
 *          written unchanged
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE   not an array; an invalid descr; a size that contradicts it
 *   BAGS_ERROR_LIMIT   as above
 *   BAGS_ERROR_MEMORY  out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(file).
 */
bags_code bags_npy_write(
    const bags_value *value, bags_buffer *scratch, bags_view *out, bags_error *err);

/* ========================================================================
 * >>zstd
 * Types: zstd(TYPE), zstd(TYPE,ARGUMENTS), where TYPE(ARGUMENTS) is any other type that
 * has a codec: zstd(utf8), zstd(msgpack), zstd(array,float32,64), zstd(bytes)[].
 *
 * A blob is one zstd frame containing a blob of the inner type; values are values of
 * the inner type. Each blob is compressed separately. Arrays whose type states the
 * dtype are byte-transposed by element size, because numbers then compress better.
 *
 * Small values compress poorly one by one, so a writer trains a dictionary on the first
 * values. It holds them until it has 1 MiB or 32,768 of them. A flush (including one
 * after flush_seconds), a full buffer or the end of the shard trains the dictionary on
 * the values held so far. All values of the field use it if it saves at least 5 % of
 * their compressed size, counting its own bytes. Fewer than 64 values are stored
 * without a dictionary, and training is retried later with these and the following
 * values. The dictionary is stored in each of the writer's shards as NAME.dict, at most
 * 64 KiB in size, and readers use it automatically.
 *
 * Training happens once and takes up to a third of a second and 12 MB. Until then each
 * field needs up to 1 MiB in addition to its buffer. A dictionary trained on few values
 * saves less and is never retrained: flush later, or pass one in the options. It
 * contains a CRC, but only the dataset's checksums detect all damage to NAME.dict.
 * ====================================================================== */

/*
 * The codec. If `user` is NULL, inner types use the built-in codecs; otherwise it
 * points to options whose registry provides them:
 *
 *     bags_zstd_options options = {0};
 *     options.registry = registry;
 *     bags_codec codec = bags_codec_zstd;
 *     codec.user = &options;
 *     bags_registry_add(registry, &codec, &err);
 *
 * The options are copied when a reader or writer opens the codec for a field; they must
 * outlive the registry.
 *
 * Any number of threads may decode at the same time. Each needs a libzstd context of
 * about 160 KB, allocated once and freed when the codec is closed. Once the scratch has
 * grown, decoding makes no further allocations.
 *
 * Decoding fails with
 *   BAGS_ERROR_CORRUPT  not one frame; a frame that is damaged, does not state the size
 *                       of its content, or needs a damaged or different dictionary (in
 *                       bags_decode: any dictionary except the one in the options);
 *                       trailing bytes; an error of the inner codec
 *   BAGS_ERROR_LIMIT    content above max_size
 *   BAGS_ERROR_MEMORY   out of memory
 * Before memory is allocated for the content, its size is checked against max_size and
 * against the largest size that the frame's bytes can expand to.
 */
extern const bags_codec bags_codec_zstd;

/* The maximum size of a blob's content unless options allow more: 1 GiB. */
#define BAGS_ZSTD_MAX_SIZE ((uint64_t)1 << 30)

typedef struct bags_zstd_options {
    const bags_registry *registry; /* codecs for the inner types; NULL: built-in */
    uint64_t max_size;             /* refuse larger content, even when writing; 0:
                                    * BAGS_ZSTD_MAX_SIZE */
    int level;                     /* compression level, up to 22; 0: 3 */
    /* Experimental. The dictionary that writers use from their first value, and that
     * bags_decode uses. Borrowed; must outlive the registry. It must have an id, as
     * trained dictionaries do. With RESUME or APPEND, a writer whose shards have a
     * different one refuses it (BAGS_ERROR_VALUE). size 0: none. */
    bags_view dictionary;
    bool no_dictionary; /* writers neither train nor use a dictionary; excludes
                         * `dictionary` */
    bool blobs; /* values are encoded blobs of TYPE, as bytes, for programs that copy
                 * them: TYPE needs no codec, and the blobs are not checked */
} bags_zstd_options;

/* ========================================================================
 * >>msgpack
 * MessagePack: the types msgpack and tree. Uses msgpack-c; a program that inspects
 * values must also include <msgpack.h>.
 * ====================================================================== */

struct msgpack_object;

/*
 * The codecs. A value is a BAGS_KIND_OBJECT whose `object` points to a msgpack_object.
 * A tree, as written by granular, is the same but may have arrays as leaves: see
 * bags_tree_array.
 *
 * Decoded strings, binaries and extensions point into the blob, everything else into
 * the scratch. There is nothing to free, and all parts of a value have the same
 * lifetime. Encoding writes the shortest form of every number, text and length, as
 * Python's package does by default.
 *
 * Decoding fails with
 *   BAGS_ERROR_CORRUPT  not msgpack, truncated, or trailing bytes
 *   BAGS_ERROR_LIMIT    arrays and maps nested above 512 levels (Python's package
 *                       writes up to 511)
 *   BAGS_ERROR_MEMORY   out of memory
 * and encoding with BAGS_ERROR_VALUE (an object of unknown type) or BAGS_ERROR_MEMORY.
 * Threads: any, each with its own scratch. Cost: O(blob). Decoding counts the values
 * first, then makes at most one allocation, with one msgpack_object per value.
 */
extern const bags_codec bags_codec_msgpack;
extern const bags_codec bags_codec_tree;

/*
 * Print an object as JSON in UTF-8 on one line, with ", " and ": " as Python does.
 * Values that JSON cannot express become an object:
 *
 *     bin                               {"base64": "AAEC"}
 *     ext                               {"ext": 5, "base64": "AAEC"}
 *     str of invalid UTF-8              {"str": {"base64": "AAEC"}}
 *     NaN, infinities                   {"float": "NaN"}, "Infinity", "-Infinity"
 *     a map with a key that is not text {"map": [[key, value], ...]}
 *
 * Integers are printed in full, doubles with as many digits as are needed to read back
 * the same number. Duplicate keys are kept. *json is valid until the scratch is reused
 * or freed, and not NUL-terminated.
 *
 * Returns BAGS_OK, BAGS_ERROR_VALUE (an object of unknown type), BAGS_ERROR_LIMIT
 * (nested above 512 levels) or BAGS_ERROR_MEMORY. Threads: any, each
 * with its own scratch. Cost: O(output).
 */
bags_code bags_msgpack_print(const struct msgpack_object *object, bags_buffer *scratch,
    bags_view *json, bags_error *err);

/* Returns true if the object is an array in a tree: ["_", dtype, [dimensions], bin]. */
bool bags_tree_is_array(const struct msgpack_object *object);

/*
 * Decode an array in a tree to a BAGS_KIND_ARRAY. *value is valid until the scratch is
 * reused or freed, and while the object remains valid.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not an array
 *   BAGS_ERROR_LIMIT    a dtype missing from bags_dtype (err names it); more than
 *                       BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_CORRUPT  a shape that contradicts the size
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(1); elements are copied only if they
 * are misaligned or byte-swapped.
 */
bags_code bags_tree_array(const struct msgpack_object *object, bags_buffer *scratch,
    bags_value *value, bags_error *err);

/* ========================================================================
 * >>mp4
 * Video in memory, using FFmpeg's libavformat, libavcodec and libswscale. No temporary
 * files are created.
 * ====================================================================== */

/*
 * The codec. Types: mp4, mp4(FPS), mp4(FPS,CODEC), webm, webm(FPS), webm(FPS,CODEC).
 *
 *   FPS    frames per second, such as 15 or 12.5; 29.97 and similar values mean the
 *          television rates, such as 30000/1001. Default: mp4 15, webm 20.
 *   CODEC  h264, hevc, mpeg4, vp9 or av1, if this build of FFmpeg has an encoder; for
 *          webm, vp9 or av1. Default: mp4 mpeg4, webm vp9.
 *
 * Values are uint8 arrays, T x H x W x 3, RGB. A video without frames is stored as an
 * empty blob and decodes to 0 x 0 x 0 x 3. Whatever the field's type, the reader
 * accepts the containers and codecs of both types, and also vp8. Frames equal PyAV's
 * to_ndarray(format="rgb24"): converted by bilinear scaling with the BT.601
 * coefficients, even if the video specifies others. Sound and rotation metadata are
 * ignored.
 *
 * An encoded video is at most 2 GiB in size, and its frames are 1 to 32767 pixels high
 * and wide. The usual 4:2:0 frames of h264 and hevc require even sizes, so odd sizes
 * are stored as 4:4:4. Encoding fails with
 *   BAGS_ERROR_TYPE    this build of FFmpeg lacks the encoder; err lists the available
 *                      ones
 *   BAGS_ERROR_VALUE   the encoder rejects this size or rate (hevc by x265: from
 *                      16 x 16)
 *   BAGS_ERROR_MEMORY  out of memory
 *
 * For other options, copy the codec and let its `user` point to a bags_mp4_options that
 * outlives the registry. Arguments in the type take precedence over options.
 */
extern const bags_codec bags_codec_mp4;

typedef struct bags_mp4_options {
    /* For writing. */
    const char *codec;     /* CODEC above; NULL: the default */
    uint32_t fps_num;      /* frames per second are fps_num / fps_den; */
    uint32_t fps_den;      /* both 0: the default; fps_den 0: 1 */
    bool webm;             /* a WebM file, not MP4 */
    uint64_t bit_rate;     /* bits per second; 0: 1,024,000, as in Python's bags */
    uint32_t key_interval; /* the maximum distance between keyframes, in frames; 0: the
                            * encoder's default */
    /* For reading. */
    uint64_t max_pixels; /* H x W; 0: 2^26 */
    uint64_t max_size;   /* maximum bytes of frames per call; 0: 2^32 */
    /* For both. */
    uint32_t threads; /* per video; 0: 1. If the decoder refuses H.264, a reader retries
                       * with one thread: only that decodes a video cut in an open
                       * GOP */
} bags_mp4_options;

typedef struct bags_mp4_info {
    uint64_t frames; /* actual count, whatever the header states */
    uint64_t height;
    uint64_t width;
    uint32_t fps_num; /* frames per second on average, fps_num / fps_den; */
    uint32_t fps_den; /* both 0 if the container does not state them */
    char codec[16];   /* "mpeg4" */
} bags_mp4_info;

/*
 * Get the properties of a video without decoding it. An empty blob has no frames. Only
 * displayed frames are counted: frames hidden by an edit list are excluded, and so are
 * frames before the first keyframe, because they cannot be decoded.
 *
 *   blob     an MP4, WebM or Matroska file
 *   options  NULL: the defaults
 *   info     receives the result
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not such a file; truncated; a header that claims more than the
 *                       file can hold
 *   BAGS_ERROR_TYPE     an unsupported codec, or no video track
 *   BAGS_ERROR_LIMIT    more than max_pixels
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any. Cost: reads the blob once, and copies its packets.
 */
bags_code bags_mp4_probe(bags_view blob, const bags_mp4_options *options,
    bags_mp4_info *info, bags_error *err);

typedef struct bags_mp4_reader bags_mp4_reader;

/*
 * Open a video to read some or all of its frames. options may be NULL, and are copied;
 * the blob is not needed after the call.
 *
 * Returns the reader, or NULL with one of bags_mp4_probe's errors.
 *
 * Threads: one at a time per reader; any number of readers. Cost: as for
 * bags_mp4_probe.
 */
BAGS_EXPERIMENTAL bags_mp4_reader *bags_mp4_reader_open(
    bags_view blob, const bags_mp4_options *options, bags_error *err);

/*
 * Open a video stored as a blob of a dataset, to read some of its frames without
 * reading the rest. An MP4 file has a table, moov, that locates each frame. This
 * function reads it from the start of the blob or from after the frames; the packets of
 * a GOP are read when one of its frames is requested. All other videos are read
 * completely by this call, like a blob in memory: WebM, vp8 and vp9, fragmented files,
 * edit lists that join or repeat parts, and all videos of a reader with
 * verify_checksums.
 *
 *   dataset  an open reader. It must outlive the video reader; any number of these may
 *            share it
 *   index, field, item  as for bags_reader_get_part
 *   options  NULL: the defaults; they are copied
 *
 * Returns the reader, or NULL with an error from bags_reader_get_blob or
 * bags_mp4_probe. A packet missing from the blob makes only the reads that need it
 * fail. For a remote dataset, info has the frame size stated in the header, and reading
 * a frame of a different size fails.
 *
 * Threads: one at a time per reader; any number of readers. Cost: O(frames) time and 80
 * bytes per frame. If the dataset is not mapped, opening reads one range of 16 KiB, and
 * a second one if moov is longer or at the end; a frame then costs one range covering
 * its GOP.
 */
BAGS_EXPERIMENTAL bags_mp4_reader *bags_mp4_reader_open_blob(const bags_reader *dataset,
    uint64_t index, size_t field, uint64_t item, const bags_mp4_options *options,
    bags_error *err);

/* Release a reader. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_mp4_reader_close(bags_mp4_reader *reader);

/* Free a reader's decoder and buffered data. The index stays, and the next read reopens
 * the decoder. Useful for programs that keep many videos open. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_mp4_reader_idle(bags_mp4_reader *reader);

/* The memory used by a reader's index, in bytes, including the packets if they are in
 * memory. The decoder is not counted; it holds several frames. */
BAGS_EXPERIMENTAL size_t bags_mp4_reader_memory(const bags_mp4_reader *reader);

/* The properties of the video; valid until the reader is closed. */
BAGS_EXPERIMENTAL const bags_mp4_info *bags_mp4_reader_info(
    const bags_mp4_reader *reader);

/*
 * Read the frames start, start + step, ... below stop, in display order. *out is
 * valid until the scratch is reused or freed.
 *
 *   start, stop  a range, as in the other functions: clamped to the length, start <=
 *                stop
 *   step         0: 1
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    start > stop
 *   BAGS_ERROR_CORRUPT  a frame cannot be decoded, may depend on a damaged one, or
 *                       differs in size from the video; err names it
 *   BAGS_ERROR_LIMIT    more bytes than max_size
 *   BAGS_ERROR_TYPE     this build of FFmpeg has no decoder for it
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: one at a time per reader. Cost: decodes from the preceding keyframe, or from
 * where the last call stopped, whichever is nearer. In an open GOP, a frame shown
 * before its keyframe needs the previous keyframe.
 */
BAGS_EXPERIMENTAL bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, bags_buffer *scratch, bags_value *out,
    bags_error *err);

/* The part of the blob that must be read for this frame and is not yet in memory:
 * `size` bytes from `offset`. The size is 0 if the video was opened from memory or the
 * frame does not exist. Pass the result to bags_reader_prefetch_parts. */
BAGS_EXPERIMENTAL bags_extent bags_mp4_reader_part(
    const bags_mp4_reader *reader, uint64_t frame);

/*
 * Like bags_mp4_reader_get, but into the caller's memory.
 *
 *   data, size  receives the frames; undefined after a failure
 *   frames      receives the number of frames read; may be NULL
 *
 * Returns what bags_mp4_reader_get does, or BAGS_ERROR_ARGUMENT (size too small).
 */
BAGS_EXPERIMENTAL bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader,
    uint64_t start, uint64_t stop, uint64_t step, void *data, size_t size,
    uint64_t *frames, bags_error *err);

/* Where a decoder finds a frame. A packet is a compressed frame. Packets are numbered
 * in decoding order. */
typedef struct bags_mp4_place {
    uint64_t first;     /* the keyframe where decoding must start, */
    uint64_t packet;    /* and the packet that shows the frame */
    bags_view settings; /* the content of the box avcC, hvcC or av1C, or its equivalent;
                           empty if the container states another frame size than the
                           stream. Valid until the reader is closed */
    bool full_range;    /* the container states that values are 0 to 255 */
} bags_mp4_place;

/* Locate a frame for a decoder of the program. All members are 0 if it does not exist.
 * Threads: one at a time per reader. Cost: O(1); nothing is read. */
BAGS_EXPERIMENTAL bags_mp4_place bags_mp4_reader_place(
    const bags_mp4_reader *reader, uint64_t frame);

typedef struct bags_mp4_packet {
    bags_view data; /* valid until the reader's next call */
    int64_t time;   /* when its frame is shown, in the track's units */
} bags_mp4_packet;

/*
 * Get a packet as the file contains it: h264 and hevc with the length before each unit.
 *
 *   number  of the packet
 *   last    packets up to this one are needed next: they may be read together
 *
 * Returns BAGS_OK, an error of bags_reader_get_part, or
 *   BAGS_ERROR_RANGE    no such packet
 *   BAGS_ERROR_CORRUPT  the blob ends before it
 *
 * Threads: one at a time per reader. Cost: as for bags_mp4_reader_open_blob; nothing is
 * copied or decoded.
 */
BAGS_EXPERIMENTAL bags_code bags_mp4_reader_packet(bags_mp4_reader *reader,
    uint64_t number, uint64_t last, bags_mp4_packet *out, bags_error *err);

typedef struct bags_mp4_cache bags_mp4_cache;

typedef struct bags_mp4_cache_options {
    bags_mp4_options video; /* options for all videos */
    size_t max_size;        /* maximum bytes of indexes; 0: 64 MiB. A single video may
                             * exceed it */
    size_t decoders;        /* number of videos that keep their decoders; 0: 16 */
} bags_mp4_cache_options;

/*
 * Create a cache of recently used videos in datasets. It keeps their indexes, so that
 * moov is read once, and some decoders, so that sequential reads continue without
 * seeking. Free it with bags_mp4_cache_close before the datasets are closed.
 *
 *   options  NULL: the defaults; they are copied
 *
 * Returns the cache, or NULL: BAGS_ERROR_MEMORY. Threads: one at a time per cache.
 * Memory: up to max_size, plus each decoder's frames, about 10 times H x W x 3 bytes.
 */
BAGS_EXPERIMENTAL bags_mp4_cache *bags_mp4_cache_open(
    const bags_mp4_cache_options *options, bags_error *err);

/* Release a cache and its videos. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_mp4_cache_close(bags_mp4_cache *cache);

/*
 * Return the video reader for this blob, opening it if necessary. Parameters and errors
 * are as for bags_mp4_reader_open_blob; NULL after a failure. The result is valid until
 * the next call with this cache. Cost: if the video is in the cache, O(1).
 */
BAGS_EXPERIMENTAL bags_mp4_reader *bags_mp4_cache_get(bags_mp4_cache *cache,
    const bags_reader *dataset, uint64_t index, size_t field, uint64_t item,
    bags_error *err);

#ifdef __cplusplus
}
#endif

/* ======================================================================== >>private
 * State, arrays and checksums, for the files of formats/. Programs do not call these
 * functions. ====================================================================== */

/* Allocate the zeroed state of an open codec or file. Its first member must be the
 * buffer that holds it. NULL if out of memory. */
static inline void *format_state(
    const bags_allocator *allocator, size_t size, bags_error *err) {
    bags_buffer own = bags_buffer_of(allocator);
    if (bags_buffer_reserve(&own, size, err))
        return BAGI_NULL;
    memset(own.data, 0, size);
    memcpy(own.data, &own, sizeof own);
    return own.data;
}

static inline void format_state_close(void *state) {
    bags_buffer own;
    if (!state)
        return;
    memcpy(&own, state, sizeof own);
    bags_buffer_free(&own);
}

/* Check that an array to be encoded has the number of bytes implied by its dtype and
 * shape. */
static inline bags_code format_array_check(const bags_value *value, bags_error *err) {
    size_t size = 0;
    if (!bags_array_size(value->dtype, value->dims, value->shape, &size))
        return bags_fail(
            err, BAGS_ERROR_VALUE, "array too large for the address space");
    uint64_t has = value->size, expected = size;
    if (has == expected)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE,
        "size differs from that of the dtype and shape (%" PRIu64
        " bytes, expected %" PRIu64 ")",
        has, expected);
}

/* The CRC-32 used by zip and PNG. The tables process eight bytes at once: table[k][i]
 * is the CRC of byte i followed by k zero bytes. */
static inline void format_crc_tables(uint32_t (*table)[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = table[k - 1][i];
            table[k][i] = crc >> 8 ^ table[0][crc & 255];
        }
}

/* Start with UINT32_MAX; the CRC is the complement of the last result. */
static inline uint32_t format_crc_add(
    uint32_t (*table)[256], uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= BAGI_CAST(uint32_t, bags_load_bytes(data, 4, false));
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^
              table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^ table[3][data[4]] ^
              table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

#endif /* BAGS_CODECS_H */
