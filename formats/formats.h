/*
 * formats.h - codecs for bags.h on the libraries of their fields.
 *
 * Each format is one file, on one library, and stands alone: copy bags.h and
 * the directory formats/ beside it, and compile the files that you need with
 * your program. None needs another.
 *
 *     formats/jpeg.c     jpeg jpg          libjpeg-turbo    -ljpeg
 *     formats/png.c      png               libpng           -lpng
 *     formats/numpy.c    npy               none
 *     formats/npz.c      (.npz files)      libzip           -lzip
 *     formats/msgpack.c  msgpack tree      msgpack-c        -lmsgpackc
 *     formats/mp4.c      mp4 webm          FFmpeg           -lavformat
 *                                          -lavcodec -lswscale -lavutil
 *
 * A codec serves its types once it is in the registry that a reader or a writer
 * was opened with:
 *
 *     bags_registry *codecs = bags_registry_create(NULL, &err);
 *     bags_registry_add(codecs, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.registry = codecs;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h says of errors, ownership, threads and untrusted files holds here
 * too. No function prints, ends the program or keeps anything between calls;
 * all may be called from several threads at once.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "bags.h"

#ifndef BAGS_HAVE_ARRAY_HELPERS /* until bags.h has them */
#include <string.h>
static inline bool bags_little_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 1;
}
static inline size_t bags_dtype_swap(bags_dtype dtype) {
    return bags_dtype_size(dtype);
}
static inline const char *bags_dtype_code(bags_dtype dtype) {
    static const char *const codes[] = {"", "b1", "u1", "u2", "u4", "u8", "i1",
        "i2", "i4", "i8", "f2", "f4", "f8"};
    return codes[dtype];
}
static inline bool bags_utf8_valid(const void *text, size_t size, size_t *bad) {
    const bags_view name = {(const unsigned char *)"utf8", 4};
    bags_view view;
    bags_value value;
    (void)bad;
    view.data = (const unsigned char *)text;
    view.size = size;
    return bags_registry_find(NULL, name)->decode(
               NULL, view, NULL, &value, NULL) == BAGS_OK;
}
static inline bool bags_array_size(
    bags_dtype dtype, size_t dims, const uint64_t *shape, size_t *size) {
    size_t total = bags_dtype_size(dtype);
    for (size_t i = 0; i < dims; i++)
        if (shape[i] == 0)
            total = 0;
    for (size_t i = 0; i < dims && total; i++) {
        if (shape[i] > SIZE_MAX / total)
            return false;
        total *= (size_t)shape[i];
    }
    *size = total;
    return true;
}
static inline void bags_swap_bytes(
    void *to, const void *from, size_t size, size_t element) {
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    for (size_t i = 0; i < size; i += element)
        for (size_t j = 0; j < element / 2 + element % 2; j++) {
            unsigned char c = f[i + j];
            t[i + j] = f[i + element - 1 - j];
            t[i + element - 1 - j] = c;
        }
}
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share. A codec's value is a BAGS_KIND_ARRAY, H x W if it is gray
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
 *     bags_registry_add(codecs, &codec, &err);
 *
 * The options are copied when a reader or a writer opens the codec for a field,
 * at the latest when it first needs it; they must live as long as the registry.
 */
extern const bags_codec bags_codec_jpeg;

typedef struct bags_jpeg_options {
    uint32_t scale;      /* 2, 4 or 8: decode to 1/2, 1/4, 1/8 of width and
                          height, rounded up, which is faster; 0 or 1:
                          full size */
    uint32_t channels;   /* 1: gray, 3: RGB; 0: as the file has it */
    uint32_t left;       /* decode only a rectangle, in pixels of the scaled */
    uint32_t top;        /* picture ... */
    uint32_t width;      /* 0: as far as the right edge */
    uint32_t height;     /* 0: as far as the lower edge */
    uint64_t max_pixels; /* refuse a file with more, before any memory is taken
                            for them; 0: BAGS_IMAGE_MAX_PIXELS */
    uint32_t max_scans;  /* refuse a progressive file with more passes over the
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
extern bags_code bags_jpeg_probe(bags_view blob,
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
extern bags_code bags_jpeg_decode(bags_view blob,
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
extern bags_code bags_png_probe(bags_view blob,
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
extern bags_code bags_png_decode(bags_view blob,
    const bags_png_options *options, void *pixels, size_t size, size_t stride,
    bags_error *err);

/* end of >>png */

/* ========================================================================
 * >>numpy
 * NumPy's .npy files: the type npy, and arrays from and to them. No library.
 * ====================================================================== */

/*
 * A value is a BAGS_KIND_ARRAY for elements that bags_dtype names. For all others
 * (complex, long double, text, dates, structures) it is a BAGS_KIND_OBJECT, whose
 * `object` points to a bags_npy. Both are taken for writing.
 */
extern const bags_codec bags_codec_npy;

/*
 * What an element is made of. A structure has fields, which are such types too,
 * each with its place in the structure.
 */
typedef struct bags_npy_type {
    char kind;         /* NumPy's letter: b bool, i int, u unsigned, f float,
                          c complex, S bytes, U UTF-32 text, V raw bytes,
                          M date, m time span. A structure is V */
    bool structure;    /* it has fields (or might: they can be none) */
    bool big_endian;   /* always false if the order makes no difference */
    bags_dtype dtype;  /* what it is in bags.h, or BAGS_DTYPE_NONE */
    const char *unit;  /* of M and m: "ns"; "" for none, and for others */
    uint32_t step;     /* units that one step of M and m has, as 25 in
                          "25s"; else 0 */
    const char *name;  /* of a field, in UTF-8; else "" */
    const char *title; /* a field's second name, or NULL */
    size_t offset;     /* where it starts in the structure around it */
    size_t item_size;  /* bytes of one of it: for f 2, 4, 8, 12 or 16 */
    size_t dims;       /* a field can be an array, in C order: its shape, and */
    const uint64_t *shape;
    size_t size;       /* the bytes of all of it */
    size_t count;      /* fields of a structure, in the order of offsets, */
    const struct bags_npy_type *fields; /* which never overlap */
} bags_npy_type;

/*
 * An array of any dtype. Row i (the i-th element in C order) is at
 * rows + i * stride, and a field of it at its `offset` from there. The bytes
 * are as in the file: not aligned, so copy a number out with memcpy, and in the
 * byte order that the type says.
 */
typedef struct bags_npy {
    const char *descr;
    bags_npy_type type;
    size_t dims;
    const uint64_t *shape;
    uint64_t length; /* the number of rows: the product of shape */
    size_t stride;   /* bytes from one row to the next: type.item_size */
    const unsigned char *rows;
    size_t size; /* bytes of all rows */
} bags_npy;

/* A field by its name, or else by its title; NULL if there is none. */
const bags_npy_type *bags_npy_field(const bags_npy_type *type,
    const char *name);

/*
 * Decode a .npy file of version 1, 2 or 3, as the codec does.
 *
 * *value borrows the file and the scratch: valid until one of them is gone or
 * the scratch is used again. Elements are not copied, but for arrays that are
 * in Fortran order, not aligned for their dtype or of the other byte order. The
 * result is always in C order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a .npy file, or one whose header and size disagree
 *   BAGS_ERROR_VALUE    an array of Python objects: only Python can read it
 *   BAGS_ERROR_LIMIT    a header above 1 MiB, above 4,096 fields, fields nested
 *                       above 32 levels, above BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_MEMORY
 */
bags_code bags_npy_read(bags_view file, bags_buffer *scratch,
    bags_value *value, bags_error *err);

/* The same for every dtype alike: the rows as they are in the file. Only an
 * array in Fortran order is copied. */
bags_code bags_npy_view(bags_view file, bags_buffer *scratch,
    const bags_npy **out, bags_error *err);

/*
 * Encode a value as numpy.save does, to the byte: a BAGS_KIND_ARRAY, or a
 * BAGS_KIND_OBJECT with a bags_npy. The header alone, behind which the elements
 * belong as they are (value->data, value->size; npy->rows, npy->size); or a
 * whole file, with a copy of the elements. Version 1, or 2 or 3 where the
 * fields' names need it. Numbers are in this machine's byte order.
 *
 * *out borrows `scratch`: valid until it is used again or freed. Returns
 * BAGS_OK, BAGS_ERROR_VALUE (not an array; a type that contradicts itself),
 * BAGS_ERROR_LIMIT (as above) or BAGS_ERROR_MEMORY.
 */
bags_code bags_npy_header(const bags_value *value, bags_buffer *scratch,
    bags_view *out, bags_error *err);
bags_code bags_npy_write(const bags_value *value, bags_buffer *scratch,
    bags_view *out, bags_error *err);

/* ========================================================================
 * >>npz
 * NumPy's .npz files: several .npy files in one ZIP archive. On libzip.
 * ====================================================================== */

typedef struct bags_npz bags_npz;

/*
 * Open a .npz file in memory, which must stay there until it is closed.
 * Returns the archive, to be closed by bags_npz_close, or NULL:
 * BAGS_ERROR_CORRUPT, BAGS_ERROR_MEMORY. Threads: one at a time.
 */
bags_npz *bags_npz_open(bags_view file, bags_error *err);

/* Release an archive. NULL is accepted. */
void bags_npz_close(bags_npz *npz);

/* Number of arrays, and the name of each, without its ".npy": valid until the
 * archive is closed. */
size_t bags_npz_length(const bags_npz *npz);
bags_view bags_npz_name(const bags_npz *npz, size_t i);

/*
 * Take the i-th .npy file out, for bags_npy_read. *out borrows the scratch:
 * valid until it is used again or freed. `limit` is the most bytes that it may
 * have, 0 for no limit; what it claims is checked before memory is taken, and
 * it can be no more than 1,032 times what it has in the archive.
 *
 * Returns BAGS_OK, BAGS_ERROR_RANGE (there is no i-th), BAGS_ERROR_CORRUPT,
 * BAGS_ERROR_VALUE (encrypted, or compressed by other than deflate),
 * BAGS_ERROR_LIMIT or BAGS_ERROR_MEMORY.
 */
bags_code bags_npz_read(bags_npz *npz, size_t i, uint64_t limit,
    bags_buffer *scratch, bags_view *out, bags_error *err);

/* ========================================================================
 * >>msgpack
 * MessagePack: the types msgpack and tree. On msgpack-c; a program that looks
 * into values includes <msgpack.h> as well.
 * ====================================================================== */

struct msgpack_object;

/*
 * A value is a BAGS_KIND_OBJECT, whose `object` points to a msgpack_object. A tree,
 * as granular writes it, is the same with arrays as leaves: see
 * bags_tree_array.
 *
 * Decoded strings, binaries and extensions view the blob, the rest stands in
 * the scratch: there is nothing to free, and what bags.h says of a value's life
 * holds for all of it.
 */
extern const bags_codec bags_codec_msgpack;
extern const bags_codec bags_codec_tree;

/*
 * Decode one msgpack value, as the codec does. *out borrows the blob and the
 * scratch: valid until one of them is gone or the scratch is used again.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not msgpack, or something follows the value
 *   BAGS_ERROR_LIMIT    arrays and maps nested above 512 levels (Python's
 *                       package writes up to 511)
 *   BAGS_ERROR_MEMORY
 *
 * Cost: O(blob), one allocation at the most: a msgpack_object for each value in
 * it, which are counted before memory is taken.
 */
bags_code bags_msgpack_read(bags_view blob, bags_buffer *scratch,
    const struct msgpack_object **out, bags_error *err);

/*
 * Encode an object in the shortest form of every number, text and length, as
 * Python's package does by default. *out borrows `scratch`: valid until it is
 * used again or freed. BAGS_OK, BAGS_ERROR_VALUE (of no known type) or
 * BAGS_ERROR_MEMORY.
 */
bags_code bags_msgpack_write(const struct msgpack_object *object,
    bags_buffer *scratch, bags_view *out, bags_error *err);

/*
 * An object, or a blob, as JSON in UTF-8 on one line, with ", " and ": " as
 * Python writes it. What JSON does not have becomes an object:
 *
 *   bin                    {"base64": "AAEC"}
 *   ext                    {"ext": 5, "base64": "AAEC"}
 *   str that is no UTF-8   {"str": {"base64": "AAEC"}}
 *   NaN, infinities        {"float": "NaN"}, "Infinity", "-Infinity"
 *   a map with a key that is no text   {"map": [[key, value], ...]}
 *
 * Integers have all their digits, and a double as many as it takes to read back
 * the same. Keys that a map has twice stand there twice.
 *
 * *json borrows `scratch`: valid until it is used again or freed. It is not
 * ended by 0. Returns BAGS_OK, an error of bags_msgpack_read or
 * BAGS_ERROR_LIMIT or BAGS_ERROR_VALUE (an object nested above 512 levels, or
 * of no known type).
 */
bags_code bags_msgpack_print(const struct msgpack_object *object,
    bags_buffer *scratch, bags_view *json, bags_error *err);
bags_code bags_msgpack_to_json(bags_view blob, bags_buffer *scratch,
    bags_view *json, bags_error *err);

/* Is this an array in a tree: ["_", dtype, [dimensions], bin]? */
bool bags_tree_is_array(const struct msgpack_object *object);

/*
 * An array of a tree as a BAGS_KIND_ARRAY. *value borrows what the object does, and
 * the scratch: valid until one of them is gone or the scratch is used again.
 * Elements are not copied if they are aligned and in this machine's order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not an array
 *   BAGS_ERROR_LIMIT    a dtype that bags_dtype does not have; too many
 *                       dimensions
 *   BAGS_ERROR_CORRUPT  its shape does not give its size
 *   BAGS_ERROR_MEMORY
 */
bags_code bags_tree_array(const struct msgpack_object *object,
    bags_buffer *scratch, bags_value *value, bags_error *err);

/*
 * The reverse: make *object an array of a tree, to be put into one that is
 * written. It borrows the value's elements and the scratch. BAGS_OK,
 * BAGS_ERROR_VALUE (not an array; above 2^32-1 bytes) or BAGS_ERROR_MEMORY.
 */
bags_code bags_tree_leaf(const bags_value *value, bags_buffer *scratch,
    struct msgpack_object *object, bags_error *err);

/* ========================================================================
 * >>mp4
 * Video in memory, on FFmpeg's libavformat, libavcodec and libswscale:
 * formats/mp4.c. Frames are uint8, T x H x W x 3, RGB. No temporary files.
 * ====================================================================== */

/*
 * Types mp4, mp4(FPS), mp4(FPS,CODEC), webm, webm(FPS), webm(FPS,CODEC).
 *
 *   FPS    frames a second, as 15 or 12.5; 29.97 and its kin are the rates of
 *          television, 30000/1001. Default: mp4 15, webm 20.
 *   CODEC  h264, hevc, mpeg4, vp9 or av1, as the build of FFmpeg offers; webm:
 *          vp9, av1. Default: mp4 mpeg4, webm vp9.
 *
 * Values are BAGS_KIND_ARRAY of BAGS_DTYPE_UINT8, T x H x W x 3. No frames make a blob of
 * no bytes, and such a blob is 0 x 0 x 0 x 3. Reading takes whatever container
 * and codec the blob has, also vp8, whatever its type says. Sound is left out;
 * marks that ask a player to rotate the picture are left alone.
 *
 * For other options, or limits of your own, copy the codec and let its `user`
 * point to a bags_mp4_options that lives as long as the registry. Where a type
 * has arguments, they come before the options.
 */
extern const bags_codec bags_codec_mp4;

typedef struct bags_mp4_options {
    /* To write. */
    const char *codec;     /* as CODEC above; NULL: its default */
    uint32_t fps_num;      /* frames a second are fps_num / fps_den; */
    uint32_t fps_den;      /* both 0: the default; fps_den 0: 1 */
    bool webm;             /* a WebM file, not MP4 */
    uint64_t bit_rate;     /* bits a second; 0: 1,024,000, as Python's bags */
    uint32_t key_interval; /* frames from one keyframe to the next, at most;
                              0: the encoder's default */
    /* To read. */
    uint64_t max_pixels; /* H x W of what is read; 0: 2^26 */
    uint64_t max_size;   /* bytes of the frames of one call; 0: 2^32 */
    /* Both. */
    uint32_t threads; /* that one video uses; 0: 1 */
} bags_mp4_options;

typedef struct bags_mp4_info {
    uint64_t frames; /* counted, not what the header says */
    uint64_t height;
    uint64_t width;
    uint32_t fps_num; /* frames a second on average, fps_num / fps_den; */
    uint32_t fps_den; /* both 0 if it does not say */
    char codec[16];   /* "mpeg4" */
} bags_mp4_info;

/*
 * What a video is, without decoding a picture. A blob of no bytes has no
 * frames. options may be NULL.
 *
 * Frames are counted as they are shown: those that an edit list hides, and
 * those before the first keyframe, which nobody can decode, are none.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  no MP4 or WebM file, or one that contradicts itself
 *   BAGS_ERROR_TYPE     a codec that is not read, or no video in it
 *   BAGS_ERROR_LIMIT    more pixels than max_pixels
 *   BAGS_ERROR_MEMORY
 *
 * Cost: reads the blob once.
 */
bags_code bags_mp4_probe(bags_view blob,
    const bags_mp4_options *options, bags_mp4_info *info, bags_error *err);

typedef struct bags_mp4_reader bags_mp4_reader;

/*
 * Open a video, to read some of its frames or all. The blob is borrowed: it
 * must stay as it is until the reader is closed. options may be NULL and are
 * copied. NULL on failure, as bags_mp4_probe.
 *
 * Threads: one at a time for each reader; any number of readers, also of one
 * blob. Cost: that of bags_mp4_probe.
 */
bags_mp4_reader *bags_mp4_reader_open(bags_view blob,
    const bags_mp4_options *options, bags_error *err);

/* Release a reader. NULL is accepted. */
void bags_mp4_reader_close(bags_mp4_reader *reader);

/* What the video is. Borrowed: valid until the reader is closed. */
const bags_mp4_info *bags_mp4_reader_info(
    const bags_mp4_reader *reader);

/*
 * Read the frames start, start + step, ... below stop, in the order in which
 * they are shown. Ranges are as everywhere: see the top of bags.h. step 0: 1.
 *
 * *out borrows the scratch: valid until it is used again or freed.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    start > stop
 *   BAGS_ERROR_CORRUPT  a frame cannot be decoded, or has another size than
 *                       the video; err names it
 *   BAGS_ERROR_LIMIT    more bytes than max_size
 *   BAGS_ERROR_TYPE     no decoder for it in this build of FFmpeg
 *   BAGS_ERROR_MEMORY
 *
 * Cost: decodes from the keyframe before, or goes on where the last call
 * stopped, whichever is nearer.
 */
bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, bags_buffer *scratch, bags_value *out,
    bags_error *err);

/*
 * The same into memory of the caller's, `size` bytes at `data`. *frames, which
 * may be NULL, receives how many were read. BAGS_ERROR_ARGUMENT if they do not
 * fit. After another failure the memory's content is undefined.
 */
bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader,
    uint64_t start, uint64_t stop, uint64_t step, void *data, size_t size,
    uint64_t *frames, bags_error *err);

typedef struct bags_mp4_writer bags_mp4_writer;

/*
 * Begin a video that is made frame by frame. It grows in `buffer`, which is
 * borrowed and must not be touched until the writer is closed; more memory than
 * the encoded video and a few frames is not taken. options may be NULL.
 *
 * Returns the writer, to be ended by bags_mp4_writer_close or _abort, or NULL:
 *   BAGS_ERROR_TYPE   no such encoder in this build of FFmpeg; err names those
 *                     that it has
 *   BAGS_ERROR_VALUE  the encoder cannot do this size or rate (hevc by x265:
 *                     from 16 x 16)
 *   BAGS_ERROR_MEMORY
 *
 * Odd sizes are right: h264 and hevc, whose usual 4:2:0 pictures are even, then
 * store 4:4:4. Threads: one at a time.
 */
bags_mp4_writer *bags_mp4_writer_open(uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_buffer *buffer, bags_error *err);

/* Add a frame, height x width x 3 bytes of RGB, which are used up before the
 * call returns. BAGS_OK, BAGS_ERROR_VALUE or BAGS_ERROR_MEMORY; after a failure
 * the writer keeps it, and every later call repeats it. */
bags_code bags_mp4_writer_add(bags_mp4_writer *writer,
    const void *frame, bags_error *err);

/*
 * Finish the video and release the writer, also on failure. *blob views the
 * buffer; without a frame it has no bytes. Repeats the first failure. NULL is
 * accepted, and is BAGS_OK.
 */
bags_code bags_mp4_writer_close(bags_mp4_writer *writer,
    bags_view *blob, bags_error *err);

/* Release a writer without finishing. NULL is accepted. */
void bags_mp4_writer_abort(bags_mp4_writer *writer);

/*
 * Let FFmpeg print nothing more, in the whole program. Without it, what is
 * wrong with a video is only in the bags_error, but for a few complaints about
 * hostile files that some of FFmpeg's helpers print by themselves. For a
 * program that owns its standard error; a library leaves this to its users.
 */
void bags_mp4_silence(void);

/* end of >>mp4 */

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */
