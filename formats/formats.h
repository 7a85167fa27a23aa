/*
 * formats.h - codecs, a data loader, and other storage for bags.h.
 *
 * Each format is one file on one library: compile the files that you need with
 * your program. They need bags.h and this header in the include path, but not
 * each other.
 *
 *     file        types         library
 *     jpeg.c      jpeg jpg      libjpeg-turbo  -ljpeg
 *     png.c       png           libpng         -lpng
 *     numpy.c     npy           none
 *     npz.c       (.npz files)  libzip         -lzip
 *     msgpack.c   msgpack tree  msgpack-c      -lmsgpackc
 *     mp4.c       mp4 webm      FFmpeg         -lavformat -lavcodec -lswscale
 *                                              -lavutil
 *     image.c     (images)      none
 *     resample.c  (images)      none
 *     loader.c    (batches)     none           -lm -pthread
 *     index.c     (keys)        none
 *     archive.c   (zip, tar)    none
 *     zip.c       (zip)         none
 *     http.c      (URLs)        libcurl, libssl  -lcurl -lssl -lcrypto -pthread
 *
 * A codec serves its types once it is in the registry with which a reader or a
 * writer is opened:
 *
 *     bags_registry *registry = bags_registry_create(NULL, &err);
 *     bags_registry_add(registry, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.registry = registry;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h states about errors, ownership, threads and untrusted files holds
 * here, too. No function prints, ends the program or keeps anything between
 * calls; all may be called from several threads at once. README.md in this
 * directory is the reference of types, values and limits.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share.
 * ====================================================================== */

/* The shape of an image. A row is width * channels elements of the dtype. */
typedef struct bags_image {
    uint32_t width;
    uint32_t height;
    uint32_t channels; /* 1: gray, 2: gray and alpha, 3: RGB, 4: RGBA */
    uint32_t depth;    /* bits per element in memory: 8 or 16 */
    bags_dtype dtype;  /* BAGS_DTYPE_UINT8, _UINT16 or _BOOL */
} bags_image;

/* The most pixels of an image, unless options allow more: 268 million. */
#define BAGS_IMAGE_MAX_PIXELS ((uint64_t)1 << 28)

/*
 * The orientation that the EXIF data of a JPEG or PNG file state, 1 to 8. To be upright,
 * the stored image must be
 *
 *     1  left as it is             5  mirrored at the diagonal from the upper left
 *     2  mirrored left to right    6  turned clockwise by 90 degrees
 *     3  turned by 180 degrees     7  mirrored at the diagonal from the upper right
 *     4  mirrored top to bottom    8  turned counterclockwise by 90 degrees
 *
 * It is read as Pillow does: from the first APP1 segment of a JPEG with EXIF, or the
 * chunk eXIf of a PNG. Returns 1 if none exists or it is invalid, and for all other
 * files. Orientations in XMP or in PNG text are ignored.
 *
 * In image.c. Threads: any. Cost: O(segments or chunks), without decoding.
 */
uint32_t bags_image_orientation(bags_view file);

/*
 * Check that a JPEG or PNG file is complete, without decoding it. A JPEG has a header,
 * scans of all components and an end marker, and nothing between its segments; a PNG has
 * a header, pixels and an end, and valid checksums of the chunks that pixels need. Bytes
 * after the end are accepted. Damaged pixels of a JPEG are not found.
 *
 * Returns BAGS_OK or BAGS_ERROR_CORRUPT: err states what is wrong, and where.
 *
 * In image.c. Threads: any. Cost: reads the file once.
 */
bags_code bags_image_check(bags_view file, bags_error *err);

/* ========================================================================
 * >>jpeg
 * Types: jpeg, jpg, each with or without (QUALITY), 1 to 100.
 *
 * Values are uint8, H x W for gray and H x W x 3 for RGB. The writer makes what
 * Pillow makes by default: baseline, colour with 4:2:0 subsampling, quality 75.
 * It honours a quality in the type, which the Python package ignores.
 *
 * The reader accepts any JPEG of 8 bits per channel in gray, YCbCr or RGB,
 * progressive ones too. Pixels are those of libjpeg's exact integer transform and
 * smooth upsampling, as of `djpeg -dct int`. It rejects CMYK and YCCK, and what
 * is truncated or damaged: where libjpeg warns and continues, this is an error.
 * The orientation in EXIF is ignored, as by the decoders of PyTorch: pixels are as they
 * are stored, unless the option `orient` turns them.
 * ====================================================================== */

/*
 * The codec. Its `user` is NULL, or in a copy of yours points to the
 * bags_jpeg_options with which every blob is decoded:
 *
 *     bags_jpeg_options half = {0};
 *     half.scale = 2;
 *     bags_codec codec = bags_codec_jpeg;
 *     codec.user = &half;
 *     bags_registry_add(registry, &codec, &err);
 *
 * The options are copied when a reader or a writer opens the codec for a field,
 * at the latest when it first needs it; they must live as long as the registry.
 */
extern const bags_codec bags_codec_jpeg;

typedef struct bags_jpeg_options {
    uint32_t scale;      /* 2, 4 or 8: decode to 1/2, 1/4, 1/8 of width and
                          height, rounded up, which is faster; 0 or 1:
                          full size */
    uint32_t channels;   /* 1: gray, 3: RGB; 0: as in the file */
    uint32_t left;       /* decode only a rectangle, in pixels of the scaled */
    uint32_t top;        /* image ... */
    uint32_t width;      /* 0: to the right edge */
    uint32_t height;     /* 0: to the lower edge */
    uint64_t max_pixels; /* reject a file with more, before memory is allocated
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    uint32_t max_scans;  /* reject a progressive file with more passes over the
                            image; 0: 100 */
    bool allow_trailing; /* ignore bytes after the image, which some cameras
                            write; otherwise they are an error */
    bool orient;         /* turn the image upright as its EXIF orientation states (see
                    bags_image_orientation), exactly as exif_transpose of
                    Pillow's ImageOps does. Shapes and the rectangle are those of
                    the upright image */
} bags_jpeg_options;

/*
 * Find out what bags_jpeg_decode will return, from the header of a file.
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
 * Threads: any. Cost: about a microsecond; some KB of libjpeg's own memory.
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
 * The pixels of a rectangle equal those of the same place in the entire image. If
 * it does not reach the lower edge, the data below it are not checked.
 *
 * Returns what bags_jpeg_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size too small
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or trailing bytes
 *   BAGS_ERROR_LIMIT     more than max_scans
 *
 * Threads: any. Cost: that of libjpeg-turbo; memory only of its own, which for a
 * progressive file is about 2 bytes per sample, otherwise a few rows.
 */
bags_code bags_jpeg_decode(bags_view blob, const bags_jpeg_options *options,
    void *pixels, size_t size, size_t stride, bags_error *err);

/* ========================================================================
 * >>png
 * Types: png, or png(LEVEL): zlib's compression level, 0 (none) to 9 (most);
 * otherwise libpng's default, 6.
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
 * (Pillow returns gray of 16 bits as int32 or uint16, depending on its version,
 * and reduces colour of 16 bits to 8.) With the option `expand`, palettes become
 * RGB or RGBA, a transparent colour becomes alpha, and 1 bit 0 and 255. Interlaced
 * files are read, too. Gamma, colour profiles, the orientation in EXIF (unless `orient`
 * is set) and all other extra chunks are ignored. Truncated and damaged files are
 * rejected, also by their checksums.
 * ====================================================================== */

/* The codec. Its `user` is NULL, or in a copy of yours points to a
 * bags_png_options: see bags_codec_jpeg. */
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
 * Find out what bags_png_decode will return, from what precedes the pixels.
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
 * Threads: any. Cost: about a microsecond; some KB of libpng's own memory.
 */
bags_code bags_png_probe(
    bags_view blob, const bags_png_options *options, bags_image *out, bags_error *err);

/*
 * Decode a PNG file into the caller's memory, which need not be aligned. Its
 * parameters are those of bags_jpeg_decode.
 *
 * Returns what bags_png_probe does, or
 *   BAGS_ERROR_ARGUMENT  stride or size too small
 *   BAGS_ERROR_CORRUPT   truncated, damaged, or trailing bytes
 *
 * Threads: any. Cost: that of libpng; memory only of its own, a few rows, or the image
 * if it is interlaced and turned.
 */
bags_code bags_png_decode(bags_view blob, const bags_png_options *options, void *pixels,
    size_t size, size_t stride, bags_error *err);

/* ========================================================================
 * >>numpy
 * NumPy's .npy files: the type npy, and arrays from and to files. No library.
 * ====================================================================== */

/*
 * The codec. A value is a BAGS_KIND_ARRAY for elements of a bags_dtype. For all
 * others (long double, text, dates, structures) it is a BAGS_KIND_OBJECT whose
 * `object` points to a bags_npy. It encodes both.
 */
extern const bags_codec bags_codec_npy;

/*
 * What an element consists of. A structure has fields, which are such types too,
 * each at its offset in the structure.
 */
typedef struct bags_npy_type {
    char kind;         /* NumPy's letter: b bool, i int, u unsigned, f float,
                          c complex, S bytes, U UTF-32 text, V raw bytes,
                          M date, m time span. A structure is V */
    bool structure;    /* it has fields (possibly none) */
    bool big_endian;   /* false if the order makes no difference */
    bags_dtype dtype;  /* or BAGS_DTYPE_NONE */
    const char *unit;  /* of M and m: "ns"; "" for none, and for others */
    uint32_t step;     /* units in one step of M and m, such as 25 in "25s";
                          otherwise 0 */
    const char *name;  /* of a field, in UTF-8; otherwise "" */
    const char *title; /* a field's second name, or NULL */
    size_t offset;     /* in the structure around it */
    size_t item_size;  /* bytes of one element */
    size_t dims;       /* a field can be an array, in C order: its shape, and */
    const uint64_t *shape;
    size_t size;  /* all its bytes */
    size_t count; /* fields of a structure, in the order of offsets, */
    const struct bags_npy_type *fields; /* which never overlap */
} bags_npy_type;

/*
 * An array of any dtype. Row i (the i-th element in C order) is at
 * rows + i * stride, and a field of it at its `offset` from there. The bytes are
 * as in the file: not aligned, so copy numbers with memcpy, and in the byte order
 * that the type states.
 *
 * To write an array of such a dtype, set descr, dims, shape, rows and size; the
 * other members are only read.
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

/* A field of a structure by its name, or else by its title; NULL if there is
 * none. Threads: any. Cost: O(fields). */
const bags_npy_type *bags_npy_field(const bags_npy_type *type, const char *name);

/*
 * Decode a .npy file of version 1, 2 or 3, as the codec does. *value is valid
 * until the scratch is reused or freed, and as long as the file's bytes. The array
 * is in C order; elements of a bags_dtype are aligned and in native byte order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a .npy file; an invalid header or an unknown dtype;
 *                       a size that contradicts the header
 *   BAGS_ERROR_VALUE    an array of Python objects, which only Python reads
 *   BAGS_ERROR_LIMIT    a header above 1 MiB, more than 4,096 fields, fields
 *                       nested above 32 levels, more than BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(header), at most about 30 bytes
 * of memory per byte of it; elements are copied only if they are in Fortran
 * order, misaligned or in the other byte order.
 */
bags_code bags_npy_read(
    bags_view file, bags_buffer *scratch, bags_value *value, bags_error *err);

/* Like bags_npy_read, but the same for every dtype: rows as they are in the file.
 * Only arrays in Fortran order are copied. */
bags_code bags_npy_view(
    bags_view file, bags_buffer *scratch, const bags_npy **out, bags_error *err);

/*
 * Encode an array as numpy.save does, to the byte. bags_npy_header makes only the
 * header, after which the elements (value->data, or npy->rows) belong as they are;
 * bags_npy_write makes a complete file with a copy of them. *out is valid until the
 * scratch is reused or freed.
 *
 *   value  a BAGS_KIND_ARRAY, or a BAGS_KIND_OBJECT with a bags_npy, whose descr
 *          is written as it is
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE   not an array; an invalid descr; a size that contradicts it
 *   BAGS_ERROR_LIMIT   as above
 *   BAGS_ERROR_MEMORY  out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(header), or O(file).
 */
bags_code bags_npy_header(
    const bags_value *value, bags_buffer *scratch, bags_view *out, bags_error *err);
bags_code bags_npy_write(
    const bags_value *value, bags_buffer *scratch, bags_view *out, bags_error *err);

/* ========================================================================
 * >>npz
 * NumPy's .npz files: several .npy files in a ZIP archive. On libzip.
 * ====================================================================== */

typedef struct bags_npz bags_npz;

/*
 * Open a .npz file in memory, which must not change until the archive is closed.
 *
 * Returns the archive, or NULL: BAGS_ERROR_CORRUPT (not a ZIP archive, or an
 * inconsistent one), BAGS_ERROR_MEMORY.
 *
 * Threads: one at a time per archive. Cost: O(members).
 */
bags_npz *bags_npz_open(bags_view file, bags_error *err);

/* Release an archive. NULL is accepted. */
void bags_npz_close(bags_npz *npz);

/* The number of arrays, and the name of array i without its ".npy", valid until
 * the archive is closed; an empty view if there is no array i. */
size_t bags_npz_length(const bags_npz *npz);
bags_view bags_npz_name(const bags_npz *npz, size_t i);

/*
 * Extract the .npy file of array i, for bags_npy_read. *out is valid until the
 * scratch is reused or freed.
 *
 *   limit  the most bytes that it may have; 0: no limit. The size that the archive
 *          claims is checked before memory is allocated, and cannot be more than
 *          1,032 times the compressed size.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    i is out of range
 *   BAGS_ERROR_CORRUPT  damaged, or a size that cannot be true
 *   BAGS_ERROR_VALUE    encrypted, or compressed by other methods than deflate
 *   BAGS_ERROR_LIMIT    more than `limit` bytes
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: one at a time per archive. Cost: that of inflating it.
 */
bags_code bags_npz_read(bags_npz *npz, size_t i, uint64_t limit, bags_buffer *scratch,
    bags_view *out, bags_error *err);

/* ========================================================================
 * >>msgpack
 * MessagePack: the types msgpack and tree. On msgpack-c; a program that looks
 * into values includes <msgpack.h> as well.
 * ====================================================================== */

struct msgpack_object;

/*
 * The codecs. A value is a BAGS_KIND_OBJECT whose `object` points to a
 * msgpack_object. A tree, as granular writes it, is the same with arrays as
 * leaves: see bags_tree_array.
 *
 * Decoded strings, binaries and extensions point into the blob, everything else
 * into the scratch: there is nothing to free, and the lifetime of the value is
 * that of all its parts.
 */
extern const bags_codec bags_codec_msgpack;
extern const bags_codec bags_codec_tree;

/*
 * Decode one msgpack value, as the codecs do. *out is valid until the scratch is
 * reused or freed, and as long as the blob.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not msgpack, truncated, or trailing bytes
 *   BAGS_ERROR_LIMIT    arrays and maps nested above 512 levels (Python's package
 *                       writes up to 511)
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(blob), at most one allocation:
 * a msgpack_object per value, which are counted first.
 */
bags_code bags_msgpack_read(bags_view blob, bags_buffer *scratch,
    const struct msgpack_object **out, bags_error *err);

/*
 * Encode an object with the shortest form of every number, text and length, as
 * Python's package does by default. *out is valid until the scratch is reused or
 * freed.
 *
 * Returns BAGS_OK, BAGS_ERROR_VALUE (an object of unknown type) or
 * BAGS_ERROR_MEMORY. Threads: any, each with its own scratch. Cost: O(output).
 */
bags_code bags_msgpack_write(const struct msgpack_object *object, bags_buffer *scratch,
    bags_view *out, bags_error *err);

/*
 * Print an object, or a blob, as JSON in UTF-8 on one line, with ", " and ": " as
 * Python does. What JSON lacks becomes an object:
 *
 *     bin                               {"base64": "AAEC"}
 *     ext                               {"ext": 5, "base64": "AAEC"}
 *     str of invalid UTF-8              {"str": {"base64": "AAEC"}}
 *     NaN, infinities                   {"float": "NaN"}, "Infinity", "-Infinity"
 *     a map with a key that is not text {"map": [[key, value], ...]}
 *
 * Integers have all their digits, doubles as many as read back the same. Duplicate
 * keys are printed as they are. *json is valid until the scratch is reused or freed, and
 * not NUL-terminated.
 *
 * Returns BAGS_OK, an error of bags_msgpack_read, BAGS_ERROR_VALUE (an object of
 * unknown type) or BAGS_ERROR_LIMIT (nested above 512 levels). Threads: any, each
 * with its own scratch. Cost: O(output).
 */
bags_code bags_msgpack_print(const struct msgpack_object *object, bags_buffer *scratch,
    bags_view *json, bags_error *err);
bags_code bags_msgpack_to_json(
    bags_view blob, bags_buffer *scratch, bags_view *json, bags_error *err);

/* Returns true if this is an array in a tree: ["_", dtype, [dimensions], bin]. */
bool bags_tree_is_array(const struct msgpack_object *object);

/*
 * Decode an array in a tree to a BAGS_KIND_ARRAY. *value is valid until the scratch
 * is reused or freed, and as long as the object.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not an array
 *   BAGS_ERROR_LIMIT    a dtype that bags_dtype lacks, which err names; more than
 *                       BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_CORRUPT  a shape that contradicts the size
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch. Cost: O(1); elements are copied only if
 * they are misaligned or in the other byte order.
 */
bags_code bags_tree_array(const struct msgpack_object *object, bags_buffer *scratch,
    bags_value *value, bags_error *err);

/*
 * Make *object an array in a tree, to be part of one that is written. It is valid
 * until the scratch is reused or freed, and as long as the value's elements.
 *
 * Returns BAGS_OK, BAGS_ERROR_VALUE (not an array; above 2^32-1 bytes) or
 * BAGS_ERROR_MEMORY. Threads: any, each with its own scratch. Cost: O(1).
 */
bags_code bags_tree_leaf(const bags_value *value, bags_buffer *scratch,
    struct msgpack_object *object, bags_error *err);

/* ========================================================================
 * >>mp4
 * Video in memory, on FFmpeg's libavformat, libavcodec and libswscale. There are
 * no temporary files.
 * ====================================================================== */

/*
 * The codec. Types: mp4, mp4(FPS), mp4(FPS,CODEC), webm, webm(FPS),
 * webm(FPS,CODEC).
 *
 *   FPS    frames per second, such as 15 or 12.5; 29.97 and the like are the rates
 *          of television, 30000/1001. Default: mp4 15, webm 20.
 *   CODEC  h264, hevc, mpeg4, vp9 or av1, if the build of FFmpeg has an encoder;
 *          webm: vp9, av1. Default: mp4 mpeg4, webm vp9.
 *
 * Values are arrays of uint8, T x H x W x 3, RGB. No frames make a blob of no
 * bytes, which is decoded to 0 x 0 x 0 x 3. The reader accepts the containers and
 * codecs of both types, and vp8, whatever the type of the field is. Frames are
 * those of PyAV's to_ndarray(format="rgb24"): converted by bilinear scaling with
 * the coefficients of BT.601, also where the video states others. Sound and
 * rotation marks are ignored.
 *
 * For other options, copy the codec and let its `user` point to a bags_mp4_options
 * that lives as long as the registry. Arguments of the type come before options.
 */
extern const bags_codec bags_codec_mp4;

typedef struct bags_mp4_options {
    /* For writing. */
    const char *codec;     /* CODEC above; NULL: the default */
    uint32_t fps_num;      /* frames per second are fps_num / fps_den; */
    uint32_t fps_den;      /* both 0: the default; fps_den 0: 1 */
    bool webm;             /* a WebM file, not MP4 */
    uint64_t bit_rate;     /* bits per second; 0: 1,024,000, as Python's bags */
    uint32_t key_interval; /* the most frames from one keyframe to the next;
                              0: the encoder's default */
    /* For reading. */
    uint64_t max_pixels; /* H x W; 0: 2^26 */
    uint64_t max_size;   /* bytes of the frames that one call returns; 0: 2^32 */
    /* For both. */
    uint32_t threads; /* per video; 0: 1 */
} bags_mp4_options;

typedef struct bags_mp4_info {
    uint64_t frames; /* counted, whatever the header states */
    uint64_t height;
    uint64_t width;
    uint32_t fps_num; /* frames per second on average, fps_num / fps_den; */
    uint32_t fps_den; /* both 0 if the container does not state it */
    char codec[16];   /* "mpeg4" */
} bags_mp4_info;

/*
 * Find out what a video is without decoding it. A blob of no bytes has no frames.
 * Frames are counted as they are shown: those that an edit list hides are not, nor
 * those before the first keyframe, which cannot be decoded.
 *
 *   blob     an MP4, WebM or Matroska file
 *   options  NULL: the defaults
 *   info     receives the result
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not such a file; truncated; a header that claims more than
 *                       the file can contain
 *   BAGS_ERROR_TYPE     an unsupported codec, or no video track
 *   BAGS_ERROR_LIMIT    more than max_pixels
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any. Cost: reads the blob once, with a copy of its packets.
 */
bags_code bags_mp4_probe(bags_view blob, const bags_mp4_options *options,
    bags_mp4_info *info, bags_error *err);

typedef struct bags_mp4_reader bags_mp4_reader;

/*
 * Open a video to read some of its frames, or all. options may be NULL, and are
 * copied; the blob is not needed after the call.
 *
 * Returns the reader, or NULL with an error of bags_mp4_probe.
 *
 * Threads: one at a time per reader; any number of readers. Cost: that of
 * bags_mp4_probe.
 */
bags_mp4_reader *bags_mp4_reader_open(
    bags_view blob, const bags_mp4_options *options, bags_error *err);

/* Release a reader. NULL is accepted. */
void bags_mp4_reader_close(bags_mp4_reader *reader);

/* What the video is; valid until the reader is closed. */
const bags_mp4_info *bags_mp4_reader_info(const bags_mp4_reader *reader);

/*
 * Read the frames start, start + step, ... below stop, in display order. *out is
 * valid until the scratch is reused or freed.
 *
 *   start, stop  a range as everywhere: clamped to the length, start <= stop
 *   step         0: 1
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    start > stop
 *   BAGS_ERROR_CORRUPT  a frame cannot be decoded or has another size than the
 *                       video; err names it
 *   BAGS_ERROR_LIMIT    more bytes than max_size
 *   BAGS_ERROR_TYPE     no decoder for it in this build of FFmpeg
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: one at a time per reader. Cost: decodes from the preceding keyframe, or
 * from where the last call stopped, whichever is nearer.
 */
bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start, uint64_t stop,
    uint64_t step, bags_buffer *scratch, bags_value *out, bags_error *err);

/*
 * Like bags_mp4_reader_get, but into the caller's memory.
 *
 *   data, size  receives the frames; undefined after a failure
 *   frames      receives how many were read; may be NULL
 *
 * Returns what bags_mp4_reader_get does, or BAGS_ERROR_ARGUMENT (size too small).
 */
bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, void *data, size_t size, uint64_t *frames,
    bags_error *err);

typedef struct bags_mp4_writer bags_mp4_writer;

/*
 * Begin a video that is made frame by frame, of at most 2 GiB. `buffer` receives it
 * when the writer is closed.
 *
 *   height, width  of every frame, 1 to 32767. In h264 and hevc, whose usual 4:2:0
 *                  frames are even, odd sizes are stored as 4:4:4.
 *   options        NULL: the defaults
 *
 * Returns the writer, which bags_mp4_writer_close or _abort releases, or NULL:
 *   BAGS_ERROR_TYPE    no such encoder in this build of FFmpeg; err lists those
 *                      that it has
 *   BAGS_ERROR_VALUE   the encoder rejects this size or rate (hevc by x265: from
 *                      16 x 16)
 *   BAGS_ERROR_MEMORY  out of memory
 *
 * Threads: one at a time per writer. Cost: memory for the encoded video and a few
 * frames.
 */
bags_mp4_writer *bags_mp4_writer_open(uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_buffer *buffer, bags_error *err);

/*
 * Add a frame: height x width x 3 bytes of RGB, which are not needed after the
 * call. Returns BAGS_OK, BAGS_ERROR_VALUE or BAGS_ERROR_MEMORY; the writer keeps
 * its first failure, and every later call repeats it.
 */
bags_code bags_mp4_writer_add(
    bags_mp4_writer *writer, const void *frame, bags_error *err);

/*
 * Finish the video and release the writer, also on failure. *blob, which is empty
 * without a frame, is valid until the buffer is reused or freed. Returns BAGS_OK or
 * the first failure. NULL is accepted, and is BAGS_OK.
 */
bags_code bags_mp4_writer_close(
    bags_mp4_writer *writer, bags_view *blob, bags_error *err);

/* Release a writer without finishing the video. NULL is accepted. */
void bags_mp4_writer_abort(bags_mp4_writer *writer);

/*
 * Stop FFmpeg from printing, in the entire program. Without it, faults of a video
 * are only in the bags_error, except for a few messages about hostile files that
 * FFmpeg's helpers print. For programs that own their standard error; libraries
 * should leave this to their users.
 */
void bags_mp4_silence(void);

/* ========================================================================
 * >>index
 * Find datapoints by the value of a field: index.c, which needs no library.
 *
 * An index is a sorted list of a field's values, stored in the dataset's directory
 * (in the first shard's). Python and other readers ignore it. Fields of numbers
 * (int, u64, i64, arrays of one real number), utf8 and bytes can have one. Text is
 * ordered by its bytes.
 * ====================================================================== */

typedef struct bags_index_options {
    size_t memory; /* building: bytes for sorting; 0: 64 MiB */
    bool no_mmap;  /* finding: read instead of mapping */
    /* Building: called from time to time with the datapoints read so far. May be
     * NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env;
} bags_index_options;

#ifndef BAGS_NO_WRITER

/*
 * Build the index of a field, and replace the former one. The dataset must be
 * complete, and must not change meanwhile.
 *
 *   path   the dataset
 *   field  a field's name
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD   no such field
 *   BAGS_ERROR_TYPE    a sequence, or a type whose values cannot be keys
 *   BAGS_ERROR_VALUE   a NaN
 *   BAGS_ERROR_LOCKED  another process is building it
 *   BAGS_ERROR_STATE   the dataset was changed meanwhile
 *   BAGS_ERROR_LIMIT   a key larger than a quarter of `memory`; a path of 4,096
 *                      bytes or more
 *   or what bags_reader_open, bags_reader_get_range and bag_writer_open return.
 *   There is then no index, or still the former one.
 *
 * Threads: any. Memory: `memory`, and 200 bytes and a key for each time that the keys
 * fill it. Cost: reads the field once; sorts; writes the keys once, or twice if they
 * are larger than `memory`.
 */
bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err);

#endif /* BAGS_NO_WRITER */

typedef struct bags_index bags_index;

/*
 * Open the index of a field.
 *
 *   path    the dataset
 *   reader  the same dataset, all of its shards, finished. Must outlive the index
 *   field   the field's number
 *
 * Returns the index, to be closed with bags_index_close, or NULL:
 *   BAGS_ERROR_MISSING   the field has no index
 *   BAGS_ERROR_ARGUMENT  the reader has unfinished shards
 *   BAGS_ERROR_CORRUPT   the reader has not all shards; or the index is damaged, or
 *                        older than the dataset: the time, size or last bytes of one
 *                        of the field's Bags, of its .crc or of refs.bag differ, or
 *                        one of 16 keys. Build it again. (Not noticed: a change of a
 *                        few keys that keeps sizes and times, if the field has no
 *                        checksums. In archives and far away, where hooks have
 *                        read_many, times are not compared)
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Cost: about 15 system calls per shard, and 16 reads of keys; far away, about 12 round
 * trips.
 */
bags_index *bags_index_open(const char *path, const bags_reader *reader, size_t field,
    const bags_index_options *options, bags_error *err);

/* NULL is accepted. */
void bags_index_close(bags_index *index);

/*
 * Find the datapoints with a key: those at the positions *start <= i < *stop of the
 * index, in order of their numbers. None has it if both are equal.
 *
 *   key      a number, for a field of numbers: bags_int, bags_uint or an array of
 *            one element (a float64 is rounded if the field is float32); otherwise
 *            bags_utf8 or bags_bytes
 *   scratch  grown as needed
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not a key of this field
 *   BAGS_ERROR_CORRUPT  the index is damaged
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any, each with its own scratch. Cost: O(log N) reads of the index.
 */
bags_code bags_index_find(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err);

/* Like bags_index_find, for the keys `from` <= key < `to`, in their order; neither is
 * rounded, and numbers that the type cannot hold are before or after all keys. NULL:
 * from the first key, or to the last one. BAGS_ERROR_RANGE: from > to. */
bags_code bags_index_find_range(const bags_index *index, const bags_value *from,
    const bags_value *to, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err);

/* Like bags_index_find, for the keys that begin with the bytes of `prefix`, in the order
 * of the keys. An empty prefix finds all. BAGS_ERROR_VALUE: it is a field of numbers. */
bags_code bags_index_find_prefix(const bags_index *index, const bags_value *prefix,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err);

/* Like bags_index_find, for the largest key that is not above `key`. `key` may be a
 * number that the type cannot hold; it is not rounded. If several datapoints have the key
 * that is found, the one with the highest number is returned: *stop is *start + 1. If no
 * such key exists, *stop is *start. */
bags_code bags_index_find_at_or_before(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err);

/*
 * The datapoint at a position, 0 <= position < the length of the dataset. Its key is
 * read from the dataset and compared.
 *
 * Returns BAGS_OK, what bags_index_find and bags_reader_get return, or
 *   BAGS_ERROR_RANGE    position out of range
 *   BAGS_ERROR_CORRUPT  also: the datapoint has another key
 *
 * Threads: any, each with its own scratch and row. Cost: two reads.
 */
bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err);

/* Like bags_index_get, for several positions: datapoints[i] is set to the datapoint at
 * positions[i], 0 <= i < count. After a failure, `datapoints` is unspecified. Cost: 256
 * positions are read at once. */
bags_code bags_index_get_many(const bags_index *index, const uint64_t *positions,
    size_t count, bags_buffer *scratch, bags_row *row, uint64_t *datapoints,
    bags_error *err);

/* ========================================================================
 * >>archive
 * Datasets and Bags inside a zip or tar file, read in place. No library.
 *
 *     bags_archive *archive = bags_archive_open("pets.zip", NULL, &err);
 *     bags_reader_options options = {0};
 *     options.env.io = bags_archive_io(archive);
 *     bags_reader *reader = bags_reader_open("pets.zip/train", &options, &err);
 *     ...
 *     bags_reader_close(reader);
 *     bags_archive_close(archive);
 * ====================================================================== */

typedef struct bags_archive bags_archive;

/* The most members of an archive, unless options allow more: 16 million. */
#define BAGS_ARCHIVE_MAX_MEMBERS ((uint64_t)1 << 24)

typedef struct bags_archive_options {
    uint64_t max_members; /* reject an archive with more; 0:
                             BAGS_ARCHIVE_MAX_MEMBERS */
    bags_env env;         /* env.io: where the archive is. Any hooks that read */
} bags_archive_options;

/*
 * Open an archive: a zip file whose members are stored without compression (zip64
 * too, and with leading bytes), or an uncompressed tar file (GNU, pax or older).
 *
 * Its members are then a read-only tree of files below the archive's path. If the
 * hooks can map files, the archive is mapped once, and readers return pointers into
 * this map. Otherwise it is read with many small reads; hooks for files that are far
 * away should keep what they read, as http.c does. What will be read is announced with
 * read_many: the last MiB, the directory, and of each member that is opened its header
 * and its last 4 KiB.
 *
 * Returns the archive, to be closed with bags_archive_close after the readers that
 * use it, or NULL:
 *   BAGS_ERROR_MISSING  no such file
 *   BAGS_ERROR_CORRUPT  neither zip nor tar; damaged or truncated; a member that is
 *                       outside (an absolute name, or one with ..), duplicate,
 *                       overlaps another, or extends past the end. (A local header
 *                       that contradicts the directory is found when the member is
 *                       opened: EBADMSG)
 *   BAGS_ERROR_VALUE    compressed as a unit (.tar.gz); of several disks; sparse; or
 *                       a member with the name of a dataset's file is compressed,
 *                       encrypted or a link. (Others of that kind cannot be opened:
 *                       ENOTSUP, or ENXIO for a link)
 *   BAGS_ERROR_LIMIT    more than max_members
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 * The message names the archive and the member.
 *
 * Threads: any. Cost: O(members log members); the directory of a zip is read, or every
 * header of a tar, but no data. Memory: 48 bytes per member, and its name.
 */
bags_archive *bags_archive_open(
    const char *path, const bags_archive_options *options, bags_error *err);

/* The hooks for the members, for bags_env.io: paths begin with the archive's path
 * as it was opened. Writing fails with EROFS. Valid until the archive is closed.
 * Threads: any. */
const bags_io *bags_archive_io(const bags_archive *archive);

/* Close an archive, after everything that uses its hooks. NULL is accepted. */
void bags_archive_close(bags_archive *archive);

/* ========================================================================
 * >>zip
 * A dataset as one file, which bags_archive_open and every unzip read. No library.
 * ====================================================================== */

typedef struct bags_zip_options {
    bool no_sync; /* do not wait for stable storage */
    /* Called from time to time with the bytes copied, and those of the dataset; first
     * with `done` 0, when PATH.partial has been created. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    const bags_io *from; /* where the dataset is; NULL: env.io */
    /* Further files to be included, such as indexes: their names in the dataset's
     * directory, "index/id.bag". Those that do not exist are left out. */
    const char *const *files;
    size_t files_count;
    bags_env env; /* env.io: where the zip file will be */
} bags_zip_options;

/*
 * Write a finished dataset as a zip file, which must not exist. (One that another
 * process creates in the last moment is replaced.)
 *
 * It contains the files of the dataset (spec.json, the Bags, .crc, .idx and the mark
 * of bags_finalize), and `files`, under their names in its directory, without
 * compression. Every Bag starts at a multiple of 4,096 bytes. Files of 64 KiB or more
 * are first, then smaller ones, then those named spec.json, each in the order of the
 * shards: what a remote reader needs first is near the end. One dataset always makes
 * the same bytes.
 *
 * It is written as PATH.partial, and renamed when it is complete. Until then that file
 * is locked. After a failure it is removed; one that a killed process left is
 * overwritten by the next call.
 *
 * Returns BAGS_OK, what bags_reader_open returns for the dataset, or
 *   BAGS_ERROR_EXISTS   the zip file exists
 *   BAGS_ERROR_LOCKED   another running process writes it
 *   BAGS_ERROR_CORRUPT  the dataset changed while it was read
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: any. Cost: reads every byte once. Memory: 2 MiB, and about 100 bytes per
 * file.
 */
bags_code bags_zip(const char *dataset, const char *path,
    const bags_zip_options *options, bags_error *err);

/* ========================================================================
 * >>resample
 * Resize images as Pillow does. No library.
 * ====================================================================== */

typedef enum bags_filter { BAGS_FILTER_BILINEAR, BAGS_FILTER_BICUBIC } bags_filter;

/* A part of an image, in pixels from its upper left corner; pixel (x, y) is the
 * square from (x, y) to (x + 1, y + 1). Fractions are allowed. */
typedef struct bags_box {
    double left, top, right, bottom;
} bags_box;

/*
 * Resize a box of an image to width x height. The result is, bit for bit, that of
 * Pillow's image.resize((width, height), filter, (left, top, right, bottom)) for the
 * modes L, LA, RGB and RGBA: filters are widened when the image becomes smaller
 * (antialiasing), pixels outside the box but within the image contribute to the box's
 * edges, and colours are weighted by their alpha. To resize as if nothing existed
 * outside the box, pass a pointer to its first pixel and an image of its size. (Where
 * doubles have more precision, as of the x87, a pixel may differ by one.)
 *
 *   image       the shape of the pixels: uint8, 1 to 4 channels
 *   pixels      the first row of the image
 *   stride      bytes from one row to the next, at least a row; 0: one row
 *   box         not empty, and within the image; NULL: the entire image. Coordinates
 *               are rounded to float, as Pillow does
 *   width       of the result, in pixels, from 1
 *   height      of the result
 *   scratch     memory for the call, which grows to what the largest call needs
 *   out         receives height rows of width * channels bytes, and must not overlap
 *               the pixels; undefined after a failure
 *   out_stride  like stride
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  not uint8; 0 or more than 4 channels; an unknown filter; a
 *                        width or height of 0; a stride smaller than a row
 *   BAGS_ERROR_RANGE     the box is empty, not within the image, or not finite
 *   BAGS_ERROR_LIMIT     a side above 2^23 pixels; too large for the address space
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Threads: any, each with its own scratch. Cost: per pixel of the box about 2 steps of
 * arithmetic (bicubic: 4), and per pixel of the result as many or, where it is larger,
 * 2 (4). Memory: the weights, and the few rows that one row of the result is made of.
 */
bags_code bags_resample(const bags_image *image, const void *pixels, size_t stride,
    const bags_box *box, bags_filter filter, uint32_t width, uint32_t height,
    bags_buffer *scratch, void *out, size_t out_stride, bags_error *err);

/* ========================================================================
 * >>loader
 * Batches of tensors from datasets, in an order that is shuffled exactly, by
 * several threads, resumable. No library but the system's threads; what images
 * need is passed in (bags_loader_images).
 * ====================================================================== */

/*
 * The index at a position of a shuffled list, and the position of an index: a
 * bijection of 0 .. length - 1 that seed and epoch choose.
 *
 *   length    1 to 2^63 - 1
 *   position  below length; so is the index
 *
 * Returns UINT64_MAX if an argument is out of range. The result is the same on
 * every platform, and stays the same in later versions. Not for cryptography.
 * Threads: any. Cost: no memory; about 50 ns at any length, 100 below 4,096, 300
 * below 64. bags_order_get costs less per position.
 */
uint64_t bags_permute(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t position);
uint64_t bags_permute_inverse(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t index);

/*
 * The order in which datapoints are loaded: every epoch has positions 0 ..
 * length - 1, and each position has a datapoint of one of the datasets.
 *
 * By default position p of epoch e of a single dataset is datapoint
 * bags_permute(seed, e, length, p). Several datasets are treated as one, appended
 * to each other, so that shuffling interleaves them.
 *
 * With `chunk`, chunks of neighbouring datapoints come together, which disks and
 * networks need: the chunks are shuffled, every `window` of them, in this new
 * order, are a window, and the datapoints of a window are shuffled. An epoch still
 * has each datapoint once.
 *
 * With `weights`, dataset d has n[d] of every 1,024 consecutive positions,
 * starting at position 0: 1,024 w rounded down, or up for those with the largest
 * remainders (of equal ones, the first), so that the sum is 1,024. They are
 * shuffled within these 1,024. Each dataset is walked in epochs of its own, which
 * have each of its datapoints once, and continue where the last epoch of the order
 * ended. The length of an epoch is the sum of the datasets' lengths, rounded up to
 * a multiple of 1,024: it then contains n[d] * length / 1024 datapoints of dataset
 * d.
 */
typedef struct bags_order_options {
    uint64_t seed;
    bool in_order;         /* position p is datapoint p. Not with chunk or weights */
    uint64_t chunk;        /* datapoints per chunk; 0: a complete shuffle */
    uint64_t window;       /* chunks per window; 0: 256. Only with chunk */
    const double *weights; /* one for each dataset, relative; NULL: none */
} bags_order_options;

/* A datapoint: the dataset by its place in the list, and the index in it. */
typedef struct bags_pick {
    size_t dataset;
    uint64_t index;
} bags_pick;

/* An order. Only `length` and `count` are public. */
typedef struct bags_order {
    uint64_t length; /* positions of an epoch */
    size_t count;    /* datasets */
    uint64_t seed, chunk, window;
    bool in_order, weighted;
    bags_buffer memory;
} bags_order;

/*
 * Make an order, to be freed with bags_order_free, also on failure.
 *
 *   lengths    of `count` datasets; a length may be 0, except with weights
 *   options    NULL: {0}
 *   allocator  NULL: malloc
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  no dataset; options that contradict each other; a weight
 *                        that is not positive, or too small for one slot of 1,024
 *   BAGS_ERROR_LIMIT     2^63 datapoints or more
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Cost: 8 bytes per dataset; with weights 8 KiB more.
 */
bags_code bags_order_init(bags_order *order, const uint64_t *lengths, size_t count,
    const bags_order_options *options, const bags_allocator *allocator,
    bags_error *err);
void bags_order_free(bags_order *order);

/*
 * The datapoints at the positions start .. start + count - 1 of an epoch.
 *
 * Returns BAGS_OK, or BAGS_ERROR_RANGE: a position is not below length; with
 * weights: 2^63 positions of all epochs so far.
 *
 * Threads: any. Cost: about 40 ns per position and, with several datasets, the
 * logarithm of their number; with chunk 40 in a call for thousands, 120 in one for
 * few; with weights 100 for each position from the multiple of 1,024 before `start`.
 */
bags_code bags_order_get(const bags_order *order, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks, bags_error *err);

/* ---- what becomes of a field ---- */

/* The functions of the other files with which the loader makes tensors of images.
 * A program names those that it is linked with:
 *
 *     static const bags_loader_images images = {bags_resample, bags_jpeg_probe,
 *         bags_jpeg_decode, bags_png_probe, bags_png_decode};
 */
typedef struct bags_loader_images {
    /* bags_resample. NULL: images keep their size */
    bags_code (*resample)(const bags_image *image, const void *pixels, size_t stride,
        const bags_box *box, bags_filter filter, uint32_t width, uint32_t height,
        bags_buffer *scratch, void *out, size_t out_stride, bags_error *err);
    /* bags_jpeg_probe and bags_jpeg_decode: of JPEG files only the crop is
     * decoded, and bytes after the image are ignored. NULL: the codec of the reader
     * decodes all of it */
    bags_code (*jpeg_probe)(bags_view blob, const bags_jpeg_options *options,
        bags_image *out, bags_error *err);
    bags_code (*jpeg_decode)(bags_view blob, const bags_jpeg_options *options,
        void *pixels, size_t size, size_t stride, bags_error *err);
    /* bags_png_probe and bags_png_decode: palettes become colours. NULL: the codec
     * of the reader decodes, which returns the indices of a palette */
    bags_code (*png_probe)(bags_view blob, const bags_png_options *options,
        bags_image *out, bags_error *err);
    bags_code (*png_decode)(bags_view blob, const bags_png_options *options,
        void *pixels, size_t size, size_t stride, bags_error *err);
} bags_loader_images;

typedef enum bags_crop {
    BAGS_CROP_NONE = 0, /* all of it is resized to width x height */
    BAGS_CROP_CENTER,   /* the shorter side is resized to `resize`, then the middle
                         is cut out: Resize and CenterCrop of torchvision */
    BAGS_CROP_RANDOM    /* a random rectangle of 0.08 to 1 of the area and an aspect
                         ratio of 3/4 to 4/3 is resized: RandomResizedCrop of
                         torchvision */
} bags_crop;

/* What a callback that decodes a blob receives. */
typedef struct bags_load_item {
    const bags_reader *reader;
    bags_pick pick;
    size_t field;  /* its number in this reader */
    uint64_t item; /* of a sequence; otherwise 0 */
    bags_view blob;
    uint64_t random; /* a number that depends only on seed, epoch and position:
                        the same for all fields and items of a datapoint */
} bags_load_item;

/*
 * How a field becomes a tensor. {0} with a name keeps values as they are:
 *
 *   numbers, arrays whose type states their shape     stacked: [n, shape...]
 *   a sequence of them                                ragged: offsets
 *   bytes, utf8                                       bytes, with ends
 *   everything else, images among it                  one bags_value each; of
 *                                                     objects, and of types
 *                                                     without a codec, the blob
 *
 * Numbers of the types int and i64 become int64, those of u64 uint64.
 *
 * bags_loader_open refuses options that have no effect or exclude each other: dims,
 * shape and dtype are set together; everything of images needs width and height,
 * `resize` BAGS_CROP_CENTER, `scaled` BAGS_CROP_RANDOM, `mean` and `std` float32;
 * `orient` fields of JPEG or PNG, which options.images decodes; `stride` needs a window;
 * and dims and width exclude each other.
 */
typedef struct bags_load_field {
    const char *name;
    bags_dtype dtype;      /* convert numbers and elements: integers and bool to
                              each other, float32 and float64, these to each other.
                              A number that the dtype cannot hold, integers exactly,
                              is an error. NONE: as they are */
    size_t dims;           /* stack arrays that all have this shape, up to 6; needs
                              a dtype */
    const uint64_t *shape; /* dimensions */

    /* For images: width and height set request a tensor of this size, uint8, or
     * float32 with the value (x / 255 - mean) / std. */
    uint32_t width, height;
    uint32_t channels; /* 1: gray, 3: RGB, as Pillow converts; 0: 3 */
    bags_crop crop;
    uint32_t resize; /* of BAGS_CROP_CENTER; 0: the larger of width, height */
    bags_filter filter;
    bool flip;     /* mirror left and right, in every second datapoint */
    bool nchw;     /* channels first: [n, c, h, w]; false: [n, h, w, c] */
    bool scaled;   /* BAGS_CROP_RANDOM of a JPEG: decode to 1/2, 1/4 or 1/8 if
                          that still has the size: faster, other pixels */
    bool orient;   /* JPEG and PNG: turn images upright as their EXIF orientation
                      states, before they are cropped and resized. false: pixels
                      as they are stored, as by the decoders of PyTorch. (Without
                      width and height the reader's codec decodes: set its option
                      `orient`) */
    float mean[3]; /* per channel */
    float std[3];  /* 0: 1 */

    /* For sequences: take a window of this many items, each `stride` after the one
     * before. It starts at the same item in all fields that have one: at random,
     * anywhere where all of them fit, or at options.window_start. 0: all items,
     * ragged. */
    uint64_t window;
    uint64_t stride; /* 0: 1 */

    /* Decode with this instead of the reader's codec. *value may view the scratch.
     * It is called by several threads. On failure it writes err (see bags_fail) and
     * returns the code. */
    bags_code (*decode)(void *user, const bags_load_item *item, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void *user;
} bags_load_field;

/* ---- the loader ---- */

typedef struct bags_loader bags_loader;

typedef struct bags_loader_options {
    bags_order_options order;
    uint32_t batch;        /* datapoints per batch, of all ranks together; 0: 32 */
    bool drop_last;        /* drop a short batch at the end of an epoch */
    uint64_t epochs;       /* end after epoch epochs - 1; 0: never */
    uint32_t rank, ranks;  /* load slice `rank` of `ranks` of each batch; 0, 0: all.
                             Slices differ in size by at most one, and may be
                             empty */
    uint32_t threads;      /* 0: the number of processors */
    bool no_threads;       /* bags_loader_next does the work itself. Not with threads
                         or ahead */
    uint32_t ahead;        /* batches that may wait, besides one per thread; 0: 2 */
    uint32_t hold;         /* a batch stays valid for this many more calls of
                      bags_loader_next */
    bool skip_damaged;     /* leave out and count datapoints that are damaged or do not
                          fit the fields' options; otherwise they are an error.
                          Failed reads are an error in any case */
    bool prefetch;         /* announce a batch to the disk before it is read, see
                          bags_reader_prefetch; from a server, a batch then takes a
                          round trip and not one per datapoint */
    bool random_window;    /* windows of sequences start at random */
    uint64_t window_start; /* otherwise here. Both need a field with a
                                      window, and exclude each other */
    const bags_load_field *fields; /* NULL: all fields of the first dataset, as
                                      they are; field_count is then 0 */
    size_t field_count;
    const bags_loader_images *images; /* NULL: none */
    const bags_allocator *tensors;    /* of batches, such as pinned memory; NULL:
                                         that of everything else */
    const bags_allocator *allocator;  /* of everything else; NULL: malloc. Both
                                         must be thread-safe */
} bags_loader_options;

/*
 * Open a loader of datasets, which must stay open until it is closed. What the
 * options point to is copied, except `images`, hooks and `user`.
 *
 * Returns the loader, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_FIELD     a dataset has no such field, or it is listed twice
 *   BAGS_ERROR_TYPE      no value of a field's type can become what its options
 *                        request
 *   BAGS_ERROR_LIMIT     2^63 datapoints; a tensor above the address space
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Threads: one at a time per loader. Threads start with the first batch. Cost:
 * nothing is read.
 */
bags_loader *bags_loader_open(const bags_reader *const *readers, size_t count,
    const bags_loader_options *options, bags_error *err);

/* Stop the threads, as soon as each has finished its datapoint, and free
 * everything. NULL is accepted. */
void bags_loader_close(bags_loader *loader);

/*
 * A field of a batch. `data` has one of three forms:
 *
 *   elements of `dtype`: [n, L, shape...] or, of ragged sequences, where `offsets`
 *       is set, [items, shape...]
 *   bytes: item i is the bytes ends[i] .. ends[i + 1]; dtype is uint8
 *   `values` is set: item i is values[i], whose data is at ends[i]; zeros fill up to
 *       the next
 */
typedef struct bags_tensor {
    const char *name;
    bags_dtype dtype; /* NONE if `values` is set */
    size_t dims;      /* of shape, which starts with n, or with the items */
    uint64_t shape[8];
    void *data;     /* aligned to 64 bytes, as far as its allocator aligns to 16 */
    size_t size;    /* bytes of data */
    uint64_t items; /* of all datapoints */
    const uint64_t *offsets;  /* of a ragged sequence: datapoint i has the items
                                offsets[i] .. offsets[i + 1]. Otherwise NULL: all
                                have the same number */
    const uint64_t *ends;     /* items + 1 offsets in data; or NULL */
    const bags_value *values; /* one per item; or NULL */
} bags_tensor;

typedef struct bags_batch {
    uint64_t epoch, batch;  /* batch counts from 0 in each epoch */
    uint64_t position;      /* in the epoch, of the first datapoint of the slice */
    size_t length;          /* datapoints in the tensors */
    const bags_pick *picks; /* `length` of them */
    uint64_t skipped;       /* datapoints that were left out */
    uint64_t bytes;         /* of the blobs that were decoded */
    size_t count;           /* tensors, in the order of the options' fields */
    const bags_tensor *tensors;
} bags_batch;

/*
 * The next batch, or this rank's slice of it, in *batch; NULL after the last. It is
 * valid until the next call (see `hold`), or until the loader is closed.
 *
 * Returns BAGS_OK, or what reading and decoding return, or BAGS_ERROR_TYPE for a blob
 * of a dtype that cannot be converted to the field's; the message names dataset, field
 * and datapoint. It is the first failure in the order of the batches; those
 * before were returned, and every later call repeats it. At the end of an epoch, it also
 * returns the failures of bags_reader_check for each reader.
 *
 * Threads: one at a time per loader. Cost: waits for the batch; no allocation once
 * its memory has grown.
 */
bags_code bags_loader_next(
    bags_loader *loader, const bags_batch **batch, bags_error *err);

/* The bytes of datapoint i in a tensor, from its first item to the end of its last,
 * and in *first and *count, which may be NULL, its items. Empty if there is no such
 * datapoint. */
bags_view bags_tensor_get(const bags_batch *batch, const bags_tensor *tensor, size_t i,
    uint64_t *first, uint64_t *count);

/* A checksum of a batch: for each datapoint of its dataset, index and tensors; these
 * are added modulo 2^64. So the digests of all ranks' slices add up to that of the
 * entire batch, whatever the order. */
uint64_t bags_batch_digest(const bags_batch *batch);

/* Batches per epoch. */
uint64_t bags_loader_batches(const bags_loader *loader);

/* Continue with this batch of this epoch. Returns BAGS_OK, BAGS_ERROR_RANGE or the
 * failure of the loader. Cost: O(1); waits until the threads have finished their
 * datapoints, and drops the batches that they made ahead. */
bags_code bags_loader_seek(
    bags_loader *loader, uint64_t epoch, uint64_t batch, bags_error *err);

#define BAGS_LOADER_STATE 64

/*
 * Save where the loader is: after the last batch that bags_loader_next returned.
 * It does not depend on rank, ranks, threads and fields, so that the state of any
 * rank serves every other one, also when their number changes.
 *
 *     0  8  "BAGSLD", the version 1 in two bytes
 *     8  8  seed
 *    16  8  epoch
 *    24  8  batch in the epoch
 *    32  8  datapoints of all datasets
 *    40  4  datapoints per batch
 *    44  4  number of datasets
 *    48  4  hash of the datasets: lengths, fields, types, and the beginnings of
 *           the blobs of three datapoints of each
 *    52  4  hash of the options that determine the order, and drop_last
 *    56  8  hash of the bytes before
 *
 * Numbers are little-endian. restore continues there.
 *
 * The first call of either reads the three datapoints of each dataset. Later ones read
 * nothing, and then saving cannot fail: call it once before the first batch, so that a
 * position can be saved after bags_loader_next has failed, too.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a state: truncated, or damaged
 *   BAGS_ERROR_VALUE    of other datasets or other options; the message names what
 *                       differs
 *   or, of the three datapoints, what bags_reader_get_blob returns, except for damage:
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY, BAGS_ERROR_MISSING, BAGS_ERROR_STATE; or the
 *   failure of the loader, in restore
 */
bags_code bags_loader_save(
    bags_loader *loader, unsigned char state[BAGS_LOADER_STATE], bags_error *err);
bags_code bags_loader_restore(
    bags_loader *loader, const void *state, size_t size, bags_error *err);

/* ========================================================================
 * >>http
 * Datasets on web servers and in object stores: hooks whose paths are URLs, for
 * every function of bags.h that reads.
 *
 *     https://host/ds   http://host/ds   s3://bucket/ds
 *
 * S3 is signed with SigV4, and not signed without keys. Azure and Google Cloud are
 * read by signed URLs, whose query belongs in the options.
 *
 * An object is looked up once, by one request for its last 32 KiB. Its size, ETag and
 * Last-Modified are remembered until bags_http_close, and so is that it is missing. An
 * object that is replaced in the meantime is an error, and so is a dataset: its
 * spec.json is looked up again with every lookup of a file next to it, and with the
 * first read after one. Where ETags are hashes of the content, or without Last-Modified,
 * that read also looks up all files of the shard that were looked up before. Open another bags_http to read the
 * new version. Caches that return outdated files in spite of "no-cache", and servers that state
 * neither an ETag nor a Last-Modified (see bags_http_is_versioned), can hide a change
 * that leaves the size as it was: then only checksums find it.
 *
 * The shards of a dataset are listed by S3's API (s3://), or from the index page of
 * the directory (nginx's autoindex, Apache, Python's http.server). Where neither
 * exists, 000000, 000001, ... are looked up until four in a row are missing: then a
 * shard after such a gap is not seen.
 * ====================================================================== */

typedef struct bags_http bags_http;

/* Strings are copied. For S3, NULL means what the environment states:
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; AWS_REGION or
 * AWS_DEFAULT_REGION; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; otherwise what the
 * profile AWS_PROFILE in ~/.aws/credentials and ~/.aws/config does. An empty
 * variable is an unset one. */
typedef struct bags_http_options {
    const char *query; /* appended to every http(s) URL after a "?", encoded: the
                          signature of a signed URL */
    const char *user;  /* NAME:PASSWORD, encoded as in a URL, for http(s) URLs */
    const char *key, *secret, *token; /* of S3 */
    const char *region;               /* of S3; without any, us-east-1 */
    const char *endpoint; /* of S3: https://host[:port], then in path style */
    const char *ca_file;  /* certificates to trust; NULL: the system's */
    double retry_seconds; /* how long a request that fails is repeated: 429, 5xx,
                             truncated, stalled, refused (5 s at most until the
                             server has answered a request). 0: 50 */
    double stall_seconds; /* a transfer that does not move for this time fails,
                             and is repeated. 0: 30 */
    size_t connections;   /* at most; 0: 384 */
    uint64_t gap;         /* bytes between two ranges that are at most read over to save
                     a request, where requests are more than a third of the
                     connections; 0: 1 MiB. Never more than is wanted */
    uint64_t read_ahead;  /* bytes of a file that is read in order, at most; 0: 8 MiB */
    uint64_t cache_size;  /* bytes of memory for what was looked up, read ahead or
                            requested in advance; 0: 256 MiB */
} bags_http_options;

/*
 * Open the hooks. No request is made yet.
 *
 * Returns the object, to be closed with bags_http_close, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_MEMORY    out of memory, or of threads
 *
 * It has threads of its own: one for each core and each 16 connections, at most 4.
 * After a fork only the parent may use it: in the child every hook fails. Initializes
 * libcurl, and libcrypto without its cleanup at exit, so that a program may exit while
 * it is open.
 */
bags_http *bags_http_open(const bags_http_options *options, bags_error *err);

/* Stop all transfers and free it. NULL is accepted. Everything that uses its hooks
 * must be closed. */
void bags_http_close(bags_http *http);

/*
 * The hooks, valid until bags_http_close. Threads: any.
 *
 * A path is an encoded URL; in s3:// it is the key as it is. A missing object is
 * ENOENT, a refused one EACCES, or EPERM if the key or its signature is invalid, a
 * changed one ESTALE, everything else EIO; messages have the status and the server's
 * own code, and never a key, a query or a password. Cost: one round trip for
 * everything that is requested together.
 */
const bags_io *bags_http_io(const bags_http *http);

/* True if a path begins with http://, https:// or s3://. */
bool bags_http_is_url(const char *path);

/* How many requests were made so far, repeated ones included, and how many bytes of
 * bodies were received. */
void bags_http_counts(bags_http *http, uint64_t *requests, uint64_t *bytes);

/* False if an object that was found has neither an ETag nor a Last-Modified: its
 * replacement is noticed only if the size differs. Threads: any. */
bool bags_http_is_versioned(bags_http *http);

/*
 * Upload a file that `io` reads to s3://: with one request up to 64 MiB, otherwise in
 * parts, which are discarded after a failure (but not if the process is killed: let a
 * lifecycle rule of the bucket abort incomplete multipart uploads). The object appears
 * when it is complete, and replaces one of the same name. Every request has the MD5 of
 * its body, which the server checks. What these hooks know of the object is not updated.
 *
 *   progress  called with the number of bytes after each request; may be NULL
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  not an s3:// URL
 *   BAGS_ERROR_MISSING, BAGS_ERROR_CORRUPT
 *                        the file is missing, or is truncated while it is read
 *   BAGS_ERROR_IO        it cannot be read, or the server refuses it
 *   BAGS_ERROR_MEMORY    out of memory: a part is held in memory
 *
 * Threads: any.
 */
bags_code bags_http_upload(bags_http *http, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *user, uint64_t bytes), void *user,
    bags_error *err);

/* *same: the object exists, and has the size and the ETag that an upload of this file
 * by bags_http_upload has. Then the file need not be copied, in either direction.
 * Reads the file only if the sizes are equal. Errors and threads as above; a missing
 * object is not a failure. */
bags_code bags_http_same(bags_http *http, const char *url, const bags_io *io,
    const char *path, bool *same, bags_error *err);

/* Call each() with the names in a listing, until it returns nonzero, and return
 * that: the links of an index page, or with `xml` the keys and prefixes of S3's
 * ListObjectsV2. prefix: what precedes a name, not encoded. Names with a slash
 * inside, . and .. are left out. `page` may contain anything. */
int bags_http_names(const void *page, size_t size, bool xml, const char *prefix,
    int (*each)(void *user, const char *name), void *user);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */

/* ========================================================================
 * Private: what several of the files next to this one share.
 * ====================================================================== */

#if defined(FORMAT_PRIVATE) && !defined(FORMAT_SHAPE)

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Allocate the zeroed state of an open codec or file, whose first member is the
 * buffer that holds it. NULL if out of memory. */
static inline void *format_state(
    const bags_allocator *allocator, size_t size, bags_error *err) {
    bags_buffer memory = bags_buffer_of(allocator);
    if (bags_buffer_reserve(&memory, size, err))
        return NULL;
    memset(memory.data, 0, size);
    memcpy(memory.data, &memory, sizeof memory);
    return memory.data;
}

static inline void format_state_close(void *state) {
    bags_buffer memory;
    if (!state)
        return;
    memcpy(&memory, state, sizeof memory);
    bags_buffer_free(&memory);
}

/* Check that an open file or, if it is NULL, what a path leads to is what had this
 * identity when it was found: that the files of a dataset are of one version. Without
 * the hook, it is not noticed. */
static inline bags_code format_check_identity(const bags_io *io, void *file,
    const char *path, const bags_identity *was, bags_error *err) {
    bags_identity now;
    if (!io->identify)
        return BAGS_OK;
    int error = io->identify(io->user, file, path, &now);
    if (error && error != ENOENT)
        return bags_fail_io(io, error, path, "identify", err);
    if (!error && now.device == was->device && now.inode == was->inode &&
        now.time == was->time && now.size == was->size)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: changed while it was read: another process replaced, renamed, "
        "removed or wrote it",
        path);
}

/* The CRC-32 of zip and PNG. Its tables are of eight bytes at once: table[k][i] is the
 * CRC of byte i and k zeros. */
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
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
               (uint32_t)data[3] << 24;
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^
              table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^ table[3][data[4]] ^
              table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

/* ---- image files, without decoding them ---- */

/* The marker of a JPEG at *at, which moves to what follows its segment, in *data: 0xD8
 * is the first. Returns 0 if there is none, or its segment is truncated. */
static inline unsigned format_jpeg_marker(bags_view file, size_t *at, bags_view *data) {
    const unsigned char *bytes = file.data;
    size_t i = *at;
    data->data = NULL;
    data->size = 0;
    if (i >= file.size || bytes[i] != 0xFF)
        return 0;
    while (i < file.size && bytes[i] == 0xFF) /* any number may precede it */
        i++;
    unsigned marker = i < file.size ? bytes[i++] : 0;
    *at = i;
    if (marker <= 1 || (marker >= 0xD0 && marker <= 0xD9))
        return marker;
    size_t size = file.size - i < 2 ? 0 : (size_t)bytes[i] << 8 | (size_t)bytes[i + 1];
    if (size < 2 || size > file.size - i)
        return 0;
    data->data = bytes + i + 2;
    data->size = size - 2;
    *at = i + size;
    return marker;
}

#define FORMAT_PNG_START "\x89PNG\r\n\x1a\n" /* 8 bytes */

/* The chunk of a PNG at *at, which moves to the next one: its name, which its data and
 * four bytes of checksum follow. NULL if it is truncated. */
static inline const unsigned char *format_png_chunk(
    bags_view file, size_t *at, bags_view *data) {
    size_t left = file.size - *at;
    const unsigned char *bytes = file.data + *at;
    if (left < 12)
        return NULL;
    data->data = bytes + 8;
    data->size = (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 |
                 (size_t)bytes[2] << 8 | (size_t)bytes[3];
    if (data->size > left - 12)
        return NULL;
    *at += data->size + 12;
    return bytes + 4;
}

/* Where the EXIF data of an image file are; empty if there are none. */
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

static inline uint64_t format_exif_number(
    const unsigned char *at, size_t size, bool little) {
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++)
        number = number << 8 | at[little ? size - 1 - i : i];
    return number;
}

/*
 * The orientation that a file's EXIF data state, or 1. They are a TIFF file:
 *
 *     0  2  "II" (little-endian) or "MM"        an entry  0  2  tag
 *     2  2  42                                            2  2  type of its numbers
 *     4  4  where the entries are: their                  4  4  how many
 *           number in 2 bytes, then each                  8  4  these, or if they are
 *           in 12                                               larger, where they are
 *
 * As Pillow reads it: entries up to the first whose numbers are outside of the data; of
 * several orientations, the last; numbers of any type except BYTE, which Pillow returns
 * as bytes, and fractions.
 */
static inline uint32_t format_orientation(bags_view file) {
    static const unsigned char sizes[17] = {
        0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    const uint32_t whole = 1U << 3 | 1U << 4 | 1U << 6 | 1U << 8 | 1U << 9 | 1U << 13 |
                           1U << 16; /* types of whole numbers */
    bags_view exif = format_exif_find(file);
    const unsigned char *from = exif.data;
    uint32_t orientation = 1;
    if (exif.size < 10)
        return 1;
    bool little = from[0] == 'I', swapped = from[2] == 42;
    uint64_t at = format_exif_number(from + 4, 4, little);
    if ((from[0] != 'I' && from[0] != 'M') || from[1] != from[0] ||
        format_exif_number(from + 2, 2, swapped) != 42 || at > exif.size - 2)
        return 1;
    uint64_t count = format_exif_number(from + at, 2, little);
    for (at += 2; count && exif.size - at >= 12; count--, at += 12) {
        const unsigned char *entry = from + at, *value = entry + 8;
        uint64_t type = format_exif_number(entry + 2, 2, little);
        uint64_t numbers = format_exif_number(entry + 4, 4, little);
        size_t each = type < sizeof sizes ? sizes[type] : 0;
        uint64_t size = numbers * each;
        if (size > 4) {
            uint64_t place = format_exif_number(value, 4, little);
            if (place > exif.size || size > exif.size - place)
                break;
            value = from + place;
        }
        if (format_exif_number(entry, 2, little) == 0x0112 && size > 0) {
            uint64_t stated = format_exif_number(value, each, little);
            bool valid = (whole >> type & 1) && stated >= 1 && stated <= 8;
            orientation = valid ? (uint32_t)stated : 1;
        }
    }
    return orientation;
}

/* What turning an image upright does to its stored rows: a row becomes a column; its
 * pixels are reversed; the order of the rows is reversed. */
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

/* Write row y of a stored image, of this width and height, to where it is in the upright
 * one. */
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

/* Where pixels go: the caller's memory, or a scratch. */
typedef struct format_pixels {
    unsigned char *pixels;
    size_t size, stride;
    bags_buffer *scratch; /* NULL: the caller's memory */
} format_pixels;

/* Bytes per row. */
static inline size_t format_image_row(const bags_image *image) {
    return (size_t)image->width * image->channels * (image->depth / 8);
}

/* An array to be encoded has as many bytes as its dtype and shape state. */
static inline bags_code format_array_check(const bags_value *value, bags_error *err) {
    size_t size = 0;
    if (!bags_array_size(value->dtype, value->dims, value->shape, &size))
        return bags_fail(
            err, BAGS_ERROR_VALUE, "array too large for the address space");
    if (value->size == size)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE,
        "size differs from that of the dtype and shape (%" PRIu64
        " bytes, expected %" PRIu64 ")",
        (uint64_t)value->size, (uint64_t)size);
}

/* The image that a value to be encoded is; `most` pixels per side. */
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

/* Allocate memory for an image in the scratch, or check the caller's. */
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

/* The value of an image that was decoded to a scratch. */
static inline bags_value format_image_value(
    const bags_image *image, const format_pixels *to) {
    return bags_array(image->dtype, image->channels == 1 ? 2 : 3,
        (const uint64_t *)(const void *)to->scratch->data, to->pixels);
}

#endif /* FORMAT_PRIVATE */
