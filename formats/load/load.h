/*
 * load.h - what becomes of the datapoints that are read: shuffled orders, batches of
 * tensors, images of other sizes; and which of them are this worker's.
 *
 *     file           subject                 library
 *     resample.c     images of another size  none
 *     warp.c         images transformed      none  -lm
 *     order.c        shuffled orders         none
 *     loader.c       batches; with the files none  -lm -pthread
 *                    that README.md lists
 *     worker.c       workers on clusters     none
 *     tokens.c       windows and packing     none
 */
#ifndef BAGS_LOAD_H
#define BAGS_LOAD_H

#include "bags.h"
#include "codecs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>resample
 * Resize images as Pillow does. No library.
 * ====================================================================== */

typedef enum bags_filter {
    BAGS_FILTER_BILINEAR,
    BAGS_FILTER_BICUBIC,
    BAGS_FILTER_NEAREST /* of bags_warp, and of the loader: for masks of classes */
} bags_filter;

/* A part of an image, in pixels from its upper left corner; pixel (x, y) is the
 * square from (x, y) to (x + 1, y + 1). Fractions are allowed. */
typedef struct bags_box {
    double left, top, right, bottom;
} bags_box;

/*
 * Resize a box of an image to width x height. The result equals, bit for bit,
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
 *   scratch     memory for the call; it grows to the needs of the largest call
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
BAGS_EXPERIMENTAL bags_code bags_resample(const bags_image *image, const void *pixels,
    size_t stride, const bags_box *box, bags_filter filter, uint32_t width,
    uint32_t height, bags_buffer *scratch, void *out, size_t out_stride,
    bags_error *err);

/* ========================================================================
 * >>warp
 * Transform images, and change their colours, as Pillow and torchvision do. No library.
 * ====================================================================== */

/* Whole pixels of an image. */
typedef struct bags_part {
    uint32_t left, top, width, height;
} bags_part;

/*
 * Transform an image by a matrix of 3 x 3 numbers, row by row. The pixel (x, y) of the
 * result is the image's colour at (u / w, v / w), or the fill colour if that is
 * outside:
 *
 *     u = matrix[0] * (x + 0.5) + matrix[1] * (y + 0.5) + matrix[2]
 *     v = matrix[3] * (x + 0.5) + matrix[4] * (y + 0.5) + matrix[5]
 *     w = matrix[6] * (x + 0.5) + matrix[7] * (y + 0.5) + matrix[8]
 *
 * The result equals, bit for bit, Pillow's image.transform for the modes L and RGB,
 * with AFFINE and the first six numbers if the last row is 0 0 1, and PERSPECTIVE and
 * the first eight if only its last number is 1. Where u / w is not a number, Pillow's
 * result is undefined; here it is the fill colour. Nothing is averaged where the image
 * becomes smaller. (Where a compiler fuses multiplications and additions, a pixel may
 * differ by one.)
 *
 *   image   the shape of the entire image: uint8, 1 to 4 channels, each on its own
 *   part    what the pixels are of; NULL: all. Where more is needed, its edge is
 *           repeated
 *   matrix  finite; a last row of 0 0 x divides all by x
 *   fill    one byte per channel; NULL: 0
 *
 * The other parameters are as for bags_resample. Returns the same codes, except
 * BAGS_ERROR_MEMORY; also
 *   BAGS_ERROR_ARGUMENT  a matrix that is not finite or whose last row is 0
 *   BAGS_ERROR_RANGE     the part is not within the image
 *   BAGS_ERROR_LIMIT     a side above 2^30 pixels
 *
 * Threads: any. Cost: per pixel of the result 4 (bicubic: 16) pixels of the image. No
 * memory.
 */
BAGS_EXPERIMENTAL bags_code bags_warp(const bags_image *image, const bags_part *part,
    const void *pixels, size_t stride, const double matrix[9], bags_filter filter,
    const unsigned char *fill, uint32_t width, uint32_t height, void *out,
    size_t out_stride, bags_error *err);

/* The part of an image that bags_warp needs; at least a pixel. */
BAGS_EXPERIMENTAL bags_part bags_warp_part(
    const bags_image *image, const double matrix[9], uint32_t width, uint32_t height);

/* Numbers from low to high, each as likely as the others. {0, 0} means the default of
 * the option, maybe another number: a factor that is always 0 is {1e-9, 1e-9}. */
typedef struct bags_interval {
    double low, high;
} bags_interval;

/* Ranges of the numbers that are drawn for each image. {0} changes nothing. */
typedef struct bags_warp_options {
    bags_interval degrees; /* turn clockwise around the centre; within -360 and 360 */
    bags_interval scale;   /* from 0.01 to 100, above 1: larger; {0, 0}: 1 */
    bags_interval shear_x, shear_y; /* degrees, within -89 and 89 */
    bags_interval translate_x;      /* to the right, as a part of the width, and */
    bags_interval translate_y;      /* down, of the height; within -1 and 1 */
    double perspective;    /* move each corner inwards, by up to half this part of
                              each side; 0 to 0.65 */
    unsigned char fill[3]; /* colour of what is outside of the image */
} bags_warp_options;

/*
 * Draw the matrix of an image for a bags_warp to the image's size. Without
 * perspective, it equals torchvision's affine with these degrees, shifts, scale and
 * shears, bit for bit if sine and cosine are.
 *
 *   options  in range, as bags_loader_open requires
 *   random   a random number; equal ones draw equal numbers
 */
BAGS_EXPERIMENTAL void bags_warp_draw(const bags_warp_options *options, uint64_t random,
    uint32_t width, uint32_t height, double matrix[9]);

/* out = a * b; it may be one of them. As transformations of pixels of the result, b
 * comes first. */
BAGS_EXPERIMENTAL void bags_matrix_times(
    const double a[9], const double b[9], double out[9]);

/* How colours are changed: factors, where 1 changes nothing, and a part of the circle
 * of hues, where 0 does not; and in which order: each of 0, 1, 2, 3 once. */
typedef struct bags_jitter {
    double brightness, contrast, saturation; /* 0 to 1000 */
    double hue;                              /* -0.5 to 0.5 */
    unsigned char order[4];
} bags_jitter;

/* Ranges of the factors that are drawn for each image, in an order that is drawn, too,
 * as ColorJitter of torchvision does. {0, 0}: not changed. */
typedef struct bags_jitter_options {
    bags_interval brightness, contrast, saturation; /* within 0 and 1000 */
    bags_interval hue;                              /* within -0.5 and 0.5 */
} bags_jitter_options;

/* Draw how the colours of an image are changed; equal random numbers draw equal
 * ones. */
BAGS_EXPERIMENTAL void bags_jitter_draw(
    const bags_jitter_options *options, uint64_t random, bags_jitter *jitter);

/*
 * Change the colours of an image in its memory. The result equals, bit for bit,
 * torchvision's adjust_brightness, adjust_contrast, adjust_saturation and adjust_hue
 * for images of Pillow, applied in this order.
 *
 *   image   the shape of the pixels: uint8, 1 or 3 channels
 *   stride  as for bags_resample
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  not such an image; a number out of range; an invalid order
 *   BAGS_ERROR_LIMIT     a side above 2^30 pixels; too large for the address space
 *
 * Threads: any. Cost: each pixel once for each number that changes something, for the
 * contrast twice. No memory.
 */
BAGS_EXPERIMENTAL bags_code bags_jitter_apply(const bags_image *image, void *pixels,
    size_t stride, const bags_jitter *jitter, bags_error *err);

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
BAGS_EXPERIMENTAL uint64_t bags_permute(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t position);
BAGS_EXPERIMENTAL uint64_t bags_permute_inverse(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t index);

typedef enum bags_selection_kind {
    BAGS_SELECTION_ALL = 0,
    BAGS_SELECTION_INDICES, /* numbers[0] ... numbers[count - 1] */
    BAGS_SELECTION_RANGES   /* numbers[2 * i] <= index < numbers[2 * i + 1], for i below
                               count */
} bags_selection_kind;

/* Which datapoints of a dataset are loaded, as if it had only these, in this order.
 * Those that are listed several times are loaded as often. */
typedef struct bags_selection {
    bags_selection_kind kind;
    const uint64_t *numbers;
    size_t count; /* 0: none */
    /* Indices are not copied: they must stay as they are until the order, or the
     * loader, is freed. Ranges always are. */
    bool borrowed;
} bags_selection;

/*
 * The order in which datapoints are loaded: every epoch has positions 0 ..
 * length - 1, and each position has a datapoint of one of the datasets.
 *
 * By default position p of epoch e of a single dataset is datapoint
 * bags_permute(seed, e, length, p). Several datasets are treated as one, appended
 * to each other, so that shuffling interleaves them.
 *
 * With `chunk`, chunks of neighbouring datapoints come together, for disks and
 * networks: the chunks are shuffled, every `window` of them, in this new
 * order, are a window, and the datapoints of a window are shuffled. An epoch still
 * has each datapoint once.
 *
 * With `weights`, dataset d has n[d] of every 1,024 consecutive positions, starting at
 * position 0: 1,024 w rounded down, or up for those with the largest remainders (of
 * equal ones, the first), so that the sum is 1,024. They are shuffled within these
 * 1,024. Each dataset is walked in epochs of its own. They have each of its datapoints
 * once, and continue where the last epoch of the order ended. The length of an epoch is
 * the sum of the datasets' lengths, rounded up to a multiple of 1,024: it then contains
 * n[d] * length / 1024 datapoints of dataset d.
 *
 * With `selections` and `take`, a dataset has only the datapoints that are selected:
 * its length is their number, "datapoint p" is number p of the selection, and
 * neighbours are next to each other in the selection.
 */
typedef struct bags_order_options {
    uint64_t seed;
    bool in_order;         /* position p is datapoint p. Not with chunk or weights */
    uint64_t chunk;        /* datapoints per chunk; 0: a complete shuffle */
    uint64_t window;       /* chunks per window; 0: 256. Only with chunk */
    const double *weights; /* one for each dataset, relative; NULL: none */
    const bags_selection *selections; /* one for each dataset; NULL: all of each */
    uint64_t take;    /* of each dataset, the first of its selection; 0: all of it */
    bool replacement; /* each position draws any datapoint, so that an epoch may have
                         one several times, and lacks others. Not with in_order or
                         chunk */
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
    uint64_t selection; /* a hash of what is selected; 0: everything */
    bool in_order, weighted, replacement;
    bags_buffer memory, selections;
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
 *   BAGS_ERROR_RANGE     a selection has an index that is not below the dataset's
 *                        length; a range whose start is above its stop
 *   BAGS_ERROR_LIMIT     2^63 datapoints or more
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Cost: 8 bytes per dataset; with weights 8 KiB more; 8 bytes for each selected index
 * that is not borrowed, 16 for each range. Selections are read once.
 */
BAGS_EXPERIMENTAL bags_code bags_order_init(bags_order *order, const uint64_t *lengths,
    size_t count, const bags_order_options *options, const bags_allocator *allocator,
    bags_error *err);
BAGS_EXPERIMENTAL void bags_order_free(bags_order *order);

/*
 * The datapoints at the positions start .. start + count - 1 of an epoch.
 *
 * Returns BAGS_OK, or BAGS_ERROR_RANGE: a position is not below length; with
 * weights: 2^63 positions of all epochs so far.
 *
 * Threads: any. Cost: about 40 ns per position and, with several datasets or ranges, the
 * logarithm of their number; with chunk 40 in a call for thousands, 120 in one for few;
 * with weights 100 for each position from the multiple of 1,024 before `start`.
 */
BAGS_EXPERIMENTAL bags_code bags_order_get(const bags_order *order, uint64_t epoch,
    uint64_t start, size_t count, bags_pick *picks, bags_error *err);

/* ---- what becomes of a field ---- */

/* The functions of the other files with which the loader makes tensors of images.
 * A program names the functions that it is linked with:
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
     * of the reader decodes, and returns the indices of a palette */
    bags_code (*png_probe)(bags_view blob, const bags_png_options *options,
        bags_image *out, bags_error *err);
    bags_code (*png_decode)(bags_view blob, const bags_png_options *options,
        void *pixels, size_t size, size_t stride, bags_error *err);
} bags_loader_images;

/* The functions of mp4.c with which the frames of videos become items of frames. A program
 * that is linked with mp4.c:
 *
 *     static const bags_loader_videos videos = {bags_mp4_cache_open, bags_mp4_cache_close,
 *         bags_mp4_cache_get, bags_mp4_reader_info, bags_mp4_reader_get_into,
 *         bags_mp4_reader_part};
 */
typedef struct bags_loader_videos {
    bags_mp4_cache *(*open)(const bags_mp4_cache_options *options, bags_error *err);
    void (*close)(bags_mp4_cache *cache);
    bags_mp4_reader *(*get)(bags_mp4_cache *cache, const bags_reader *dataset,
        uint64_t index, size_t field, uint64_t item, bags_error *err);
    const bags_mp4_info *(*info)(const bags_mp4_reader *video);
    bags_code (*read)(bags_mp4_reader *video, uint64_t start, uint64_t stop,
        uint64_t step, void *data, size_t size, uint64_t *frames, bags_error *err);
    /* To request the parts of a batch at once. NULL: they are not */
    bags_extent (*part)(const bags_mp4_reader *video, uint64_t frame);
} bags_loader_videos;

typedef enum bags_crop {
    BAGS_CROP_NONE = 0, /* all of it is resized to width x height */
    BAGS_CROP_CENTER,   /* the shorter side is resized to `resize`, then the middle is
                           cut out: Resize and CenterCrop of torchvision */
    BAGS_CROP_RANDOM    /* a random rectangle of 0.08 to 1 of the area and an aspect
                           ratio of 3/4 to 4/3 is resized: RandomResizedCrop of
                           torchvision */
} bags_crop;

/* The arguments of a callback that decodes a blob. */
typedef struct bags_load_item {
    const bags_reader *reader;
    bags_pick pick;
    size_t field;  /* its number in this reader */
    uint64_t item; /* of a sequence; otherwise 0 */
    bags_view blob;
    uint64_t random; /* a number that depends only on seed, epoch and position:
                        the same for all fields and items of a datapoint. Of frames it
                        also depends on the name of the field, without same_draw */
} bags_load_item;

/* The arguments of a callback that changes images: the numbers drawn for one. */
typedef struct bags_load_draw {
    double matrix[9];      /* see bags_warp */
    bags_jitter jitter;    /* see bags_jitter_apply */
    float mean[3], std[3]; /* of the field; of float32. std 0: 1 */
} bags_load_draw;

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
 * Numbers of the types int and i64 become int64, of u64 uint64.
 *
 * bags_loader_open refuses options that have no effect, such as options of images
 * without width and height, or exclude each other.
 */
typedef struct bags_load_field {
    const char *name;
    /* Convert numbers and elements: integers and bool to each other, float32 and
     * float64, these to each other. A number that the dtype cannot hold, integers
     * exactly, is an error. NONE: as they are */
    bags_dtype dtype;
    /* Stack arrays that all have this shape, of up to 6 dimensions; needs a dtype, and
     * excludes width */
    size_t dims;
    const uint64_t *shape;

    /* For images: width and height set request a tensor of this size, uint8, or
     * float32 with the value (x / 255 - mean) / std. */
    uint32_t width, height;
    uint32_t channels; /* 1: gray, 3: RGB, as Pillow converts; 0: 3 */
    bags_crop crop;
    bags_interval area;   /* part of the area, of BAGS_CROP_RANDOM; {0, 0}: 0.08 to 1 */
    bags_interval aspect; /* its width / height; {0, 0}: 3/4 to 4/3 */
    uint32_t resize;      /* of BAGS_CROP_CENTER; 0: the larger of width, height */
    bags_filter filter;
    double flip_x; /* the probability that left and right are mirrored, */
    double flip_y; /* and top and bottom */
    /* Instead of resizing the crop, transform the image by a matrix that is drawn, and
     * crop the transformed image. Pixels outside of the crop, but within the image,
     * contribute to its edge. NULL: resize */
    const bags_warp_options *warp;
    const bags_jitter_options *jitter; /* then change the colours. NULL: do not */
    /* Called for each image with the numbers that were drawn. It may change them. *draw has
     * the matrix from the result to the image; only `warp` uses it. It is called by
     * several threads, must do the same each time for equal item->random, and fails as
     * `decode` does. NULL: none */
    bags_code (*draw)(void *user, const bags_load_item *item, const bags_image *image,
        bags_load_draw *draw, bags_error *err);
    bool nchw; /* channels first: [n, c, h, w]; false: [n, h, w, c] */
    /* BAGS_CROP_RANDOM of a JPEG, without warp: decode to 1/2, 1/4 or 1/8 if that still
     * has the size: faster, other pixels */
    bool scaled;
    /* JPEG and PNG, decoded by options.images: turn images upright as their EXIF
     * orientation states, before they are cropped and resized. false: pixels as they
     * are stored, as by the decoders of PyTorch. (Without width and height the reader's
     * codec decodes: set its option `orient`) */
    bool orient;
    float mean[3]; /* of float32, per channel; finite, as std is */
    float std[3];  /* at least 0; 0: 1 */

    /* For numbers and arrays of one shape, with dtype float32 or float64: each element
     * becomes (x - mean) / std, computed in float64. `elements` numbers each, for the
     * elements of an item in C order; they are copied. NULL: 0; 1 */
    const double *element_mean; /* finite */
    const double *element_std;  /* finite, at least 0; 0: 1 */
    size_t elements;            /* 0: values stay as they are */

    /* For sequences: take a window of this many items, each `stride` after the one
     * before. It starts at the same item in all fields that have one, see
     * options.window_start. 0: all items, ragged. */
    uint64_t window;
    uint64_t stride; /* 0: 1 */

    /* With options.frames, of a sequence: the window of each sample, of offset_count or
     * second_count items. Without either it is the item with the number of the frame.
     * See bags_frames_options. */
    const int64_t
        *offsets; /* item offsets[k] + the number of the frame. The sequence has as many
                     items as the clock, in each episode */
    size_t offset_count;
    const double *seconds; /* the item nearest to the time of the frame + seconds[k]; of
                              two as near, the first */
    size_t second_count;
    /* Of seconds: when the items are. The name of a field of times: a sequence of
     * float64 (its type is array(float64)[]) with a time in seconds for each item, none
     * below the one before; or a rate, and item i is at i / rate. For the clock, set
     * both in bags_frames_options, not here. */
    const char *times;
    double rate; /* items per second, above 0 */
    /* Of seconds: how far the item may be from its time, in seconds, from 0. Without it
     * an item between two others may be at any distance, and a time before the first
     * item or after the last one is outside. */
    bool has_tolerance;
    double tolerance;

    /* Decode with this instead of the reader's codec. It gets the blob; of zstd(TYPE)
     * the blob of TYPE. The codec must make it: with the option `blobs` of
     * bags_zstd_options, unless TYPE is bytes or utf8. *value may view the scratch. It
     * is called by several threads. On failure it writes err (see bags_fail), whose
     * `system` is kept, and returns the code. */
    bags_code (*decode)(void *user, const bags_load_item *item, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void *user;
} bags_load_field;

/* ---- frames ---- */

typedef enum bags_pad {
    BAGS_PAD_EDGE = 0, /* repeat the first or last item, and set the mask */
    BAGS_PAD_DROP      /* leave samples whose windows are not inside out of the order */
} bags_pad;

/*
 * Load frames in place of datapoints. A datapoint is an episode; each item of its field
 * `clock`, a sequence, is a frame. The order has all frames of all episodes: shuffles,
 * chunks and weights apply to frames, `selections` and `take` to episodes. Episodes
 * without items count 0.
 *
 * A sample is a frame, and a window of each field around it:
 *
 *     field                     tensor                   items
 *     plain                     as without frames        the episode's only one
 *     sequence                  [n, shape...]            the one with the frame's number
 *     sequence with offsets     [n, count, shape...]     frame + offsets[k]
 *     sequence with seconds     [n, count, shape...]     nearest to the frame's time +
 *                                                        seconds[k]
 *
 * A window's mask is the tensor NAME_pad, bool, [n, count]: true if there is no such
 * item and the first or last one is repeated in its place. The masks follow the tensors
 * of the fields, in their order. A time is outside if it is before the first item or
 * after the last one by more than the tolerance. A time inside without an item within
 * the tolerance is BAGS_ERROR_VALUE, and the message names the episode and the time.
 *
 * With options.videos, a plain field of videos (mp4, webm) counts as a sequence of their
 * frames. These are decoded without the rest of the video. Their number is checked when a
 * sample is loaded. Each thread keeps the tables of the videos that it used last.
 *
 * All images of a field in a sample are cropped, mirrored, warped and jittered alike:
 * one draw. Two fields draw different numbers unless `same_draw` is set.
 * (bags_load_item.random is then the same for all fields.)
 */
typedef struct bags_frames_options {
    const char *clock; /* a field that is a sequence */
    /* When its items are, as in bags_load_field. Needed by fields with seconds */
    const char *times;
    double rate;
    bags_pad pad;
    bool same_draw; /* one draw for all fields: cameras see the same crop */
} bags_frames_options;

/* ---- tokens ---- */

typedef enum bags_long { BAGS_LONG_SPLIT = 0, BAGS_LONG_DROP } bags_long;

/*
 * Sequences of a fixed length S out of documents of any length: the datapoints
 * of a field of type array(DTYPE,-1) with DTYPE uint16, uint32 or int32; or bytes.
 *
 * Windows: the documents of a shard, in their order, are a stream. Window k of a shard
 * is its tokens k * stride ... k * stride + S: S inputs, and the label of the last one.
 * The windows of a dataset are counted through its shards, as the datapoints of the
 * loader's order are: selections, weights and chunks are of windows. Tokens after the
 * last window of a shard are not used.
 *
 * Packing: each row has entire documents, together at most S tokens. The loader's order
 * is an order of documents (so are selections). Of 4,096 at a time, documents of equal
 * length or shorter fill up the rows of the longer ones (first-fit decreasing). Which
 * documents share a row depends only on seed, epoch and the order. Documents without
 * tokens are in no row.
 */
typedef struct bags_tokens_options {
    const char *field;
    bags_dtype dtype; /* of a field of type bytes: uint8, uint16, uint32 or int32,
                         little-endian; otherwise NONE, or its type's */
    uint64_t length;  /* S, 1 to 2^28 */
    uint64_t stride;  /* of windows; 0: S */
    bool pack;
    /* Packing: documents above S tokens become pieces of S and the rest, or are
     * dropped. */
    bags_long long_documents;
    bool has_bos, has_eos; /* add these tokens before and after each document */
    uint32_t bos, eos;
    bool places; /* windows: also the tensors "documents" and "positions" */
    /* Fields with an element for each token, such as masks of the loss: array(DTYPE,-1)
     * of any dtype, or bytes. At most 15; they have 0 for BOS and EOS. */
    const char *const *parallel;
    size_t parallel_count;
    const bags_allocator *allocator; /* NULL: malloc */
} bags_tokens_options;

typedef struct bags_tokens bags_tokens;

/*
 * Open the tokens of datasets, for bags_loader_options.tokens. The loader's fields must
 * then not be set. Its tensors are
 *
 *     windows   FIELD [n, S + 1], each parallel field [n, S + 1]; with `places`
 *               documents and positions [n, S], int32: for each input the datapoint in
 *               the dataset, and the place in the document, where BOS is 0
 *     packing   FIELD and each parallel field, ragged: offsets; cu_seqlens, int32,
 *               ragged: 0, and the end of each document in the row, as attention
 *               kernels for sequences of variable length expect
 *
 * bags_tokens_close must be called after the loader is closed, and before the readers
 * are.
 *
 * Returns the tokens, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_FIELD     no such field, or it is listed twice
 *   BAGS_ERROR_TYPE      a field whose blobs are not elements of one dtype
 *   BAGS_ERROR_VALUE     a document whose bytes are no multiple of the dtype's; bos or
 *                        eos out of range
 *   BAGS_ERROR_LIMIT     2^31 documents; one of 2^31 tokens
 *   BAGS_ERROR_CORRUPT, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: one. Cost: about 1 ns per document, and no memory that grows with the data.
 * Where documents are not in the order of their Bag (derived datasets), or are not
 * mapped (no_mmap, URLs), 8 bytes of memory per document; each document that is not
 * mapped is read once.
 */
BAGS_EXPERIMENTAL bags_tokens *bags_tokens_open(const bags_reader *const *readers,
    size_t count, const bags_tokens_options *options, bags_error *err);

/* NULL is accepted. */
BAGS_EXPERIMENTAL void bags_tokens_close(bags_tokens *tokens);

typedef struct bags_tokens_info {
    uint64_t documents;
    uint64_t tokens;  /* with BOS and EOS */
    uint64_t windows; /* packing: as if it were not set */
    uint64_t longer;  /* documents of more than S tokens */
    uint64_t unused;  /* tokens that are the input of no window: at the end of each
                         shard, and between windows if stride is above S */
} bags_tokens_info;

/* The counts of dataset number `dataset`. Zeros if there is no such dataset. */
BAGS_EXPERIMENTAL bags_tokens_info bags_tokens_count(
    const bags_tokens *tokens, size_t dataset);

/* A document in a packed row, or a part of it: tokens first ... first + length - 1. */
typedef struct bags_piece {
    size_t dataset;
    uint64_t document; /* the datapoint */
    uint64_t first, length;
} bags_piece;

/* ---- the loader ---- */

typedef struct bags_loader bags_loader;

#define BAGS_THREADS_NONE (-1)  /* of bags_loader_options.threads */
#define BAGS_WINDOW_RANDOM (-1) /* of bags_loader_options.window_start */

typedef struct bags_loader_options {
    bags_order_options order;
    /* A caller's own order, for example to prefer hard examples: write the datapoints
     * at the positions start .. start + count - 1 of an epoch to picks. It must return
     * the same each time, for any positions below sampler_length. It is called by
     * several threads. On failure it writes err and returns the code. Of `order`, only
     * seed, for random crops, is then used. Not with packed rows. NULL: none */
    bags_code (*sampler)(void *sampler_user, uint64_t epoch, uint64_t start,
        size_t count, bags_pick *picks, bags_error *err);
    void *sampler_user;
    uint64_t sampler_length; /* positions of an epoch, below 2^63 */
    uint64_t sampler_hash;   /* states with another hash are refused */
    uint32_t batch;          /* datapoints per batch, of all ranks together; 0: 32 */
    bool drop_last;          /* drop a short batch at the end of an epoch */
    uint64_t epochs;         /* end after epoch epochs - 1; 0: never */
    /* Load slice `rank` of `ranks` of each batch; 0, 0: all. Slices differ in size by
     * at most one, and may be empty: of 101 datapoints, batches of 100 and 2 ranks, the
     * last batch of rank 0 is. drop_last drops it for all ranks. */
    uint32_t rank, ranks;
    /* 0: the number of processors. BAGS_THREADS_NONE: bags_loader_next does the work in
     * the thread that calls it; not with ahead */
    int32_t threads;
    uint32_t ahead; /* batches that may wait, besides one per thread; 0: 2 */
    uint32_t hold; /* more calls of bags_loader_next during which a batch stays valid */
    /* Leave out and count datapoints that are damaged or do not fit the fields'
     * options: whose reading or decoding returns BAGS_ERROR_CORRUPT, _VALUE, _LIMIT or
     * _RANGE. Other codes, such as of failed reads, are always an error; so a field's
     * `decode` chooses. */
    bool skip_damaged;
    /* Announce a batch to the disk before it is read, see bags_reader_prefetch; from a
     * server, a batch then takes a round trip and not one per datapoint. */
    bool prefetch;
    /* The item at which windows of sequences start. BAGS_WINDOW_RANDOM: anywhere where
     * the windows of all fields fit. Other than 0 needs a field with a window. */
    int64_t window_start;
    /* NULL: all fields of the first dataset, as they are; field_count is then 0. With
     * frames: the clock, and all fields that are not sequences or videos. */
    const bags_load_field *fields;
    size_t field_count;
    /* Load frames in place of datapoints. NULL: none. Not with tokens, window_start, or
     * the option `window` of fields. A sampler returns numbers of frames, counted
     * through all episodes of a dataset. */
    const bags_frames_options *frames;
    /* Load its windows or rows in place of datapoints; of the same readers. NULL:
     * none. */
    const bags_tokens *tokens;
    const bags_loader_images *images; /* NULL: none */
    const bags_loader_videos *videos; /* NULL: videos have no frames */
    /* Of batches, such as pinned memory; NULL: like everything else. Both must be
     * thread-safe. */
    const bags_allocator *tensors;
    const bags_allocator *allocator; /* of everything else; NULL: malloc */
} bags_loader_options;

/*
 * Open a loader of datasets. They must stay open until it is closed. Everything that
 * the options point to is copied, except `images`, `videos`, hooks and `user`.
 *
 * Returns the loader, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_FIELD     a dataset has no such field, or it is listed twice
 *   BAGS_ERROR_TYPE      no value of a field's type can become what its options
 *                        request; the clock is not a sequence; a field of times is not
 *                        one
 *   BAGS_ERROR_VALUE     frames: the items of two fields of an episode differ in number;
 *                        with BAGS_PAD_DROP, times that decrease
 *   BAGS_ERROR_LIMIT     2^63 datapoints; a tensor above the address space
 *   BAGS_ERROR_MEMORY    out of memory
 *   or, of frames, what bags_reader_get returns
 *
 * Threads: one at a time per loader. Threads start with the first batch. A child made
 * by fork() after that has none: there the loader's functions return BAGS_ERROR_STATE,
 * and closing it frees nothing. Cost: nothing is read. Of frames, the refs of all
 * episodes are read, and with seconds and BAGS_PAD_DROP their times; 8 bytes of memory
 * per episode, and for each field of times a bit per episode and thread.
 */
BAGS_EXPERIMENTAL bags_loader *bags_loader_open(const bags_reader *const *readers,
    size_t count, const bags_loader_options *options, bags_error *err);

/* Stop the threads, as soon as each has finished its datapoint (see
 * bags_loader_is_stopping), and free everything. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_loader_close(bags_loader *loader);

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
    size_t dims;      /* of shape; it starts with n, or with the items */
    uint64_t shape[8];
    void *data;     /* aligned to 64 bytes, as far as its allocator aligns to 16 */
    size_t size;    /* bytes of data */
    uint64_t items; /* of all datapoints */
    const uint64_t *offsets;  /* of a ragged sequence: datapoint i has the items
                                 offsets[i] .. offsets[i + 1]. Otherwise NULL: all have
                                 the same number */
    const uint64_t *ends;     /* items + 1 offsets in data; or NULL */
    const bags_value *values; /* one per item; or NULL */
} bags_tensor;

typedef struct bags_batch {
    uint64_t epoch, batch;    /* batch counts from 0 in each epoch */
    uint64_t position;        /* in the epoch, of the first datapoint of the slice */
    size_t length;            /* datapoints in the tensors */
    const bags_pick *picks;   /* `length` of them. Of windows, index is the window; of
                                 packed rows, it is the first document; of frames, it is
                                 the episode, */
    const uint64_t *frames;   /* and this is the frame in it. Otherwise NULL */
    const bags_piece *pieces; /* of packed rows, otherwise NULL: row i has the */
    const uint64_t *rows;     /* pieces rows[i] .. rows[i + 1] */
    uint64_t dropped;         /* documents that packing left out, since they were longer
                                 than a row, in the blocks that this batch ends */
    uint64_t skipped;         /* datapoints that were left out */
    uint64_t bytes;           /* of the blobs that were decoded */
    size_t count; /* tensors, in the order of the options' fields; then masks */
    const bags_tensor *tensors;
} bags_batch;

/*
 * The next batch, or this rank's slice of it, in *batch; NULL after the last. It is
 * valid until the next call (see `hold`), or until the loader is closed.
 *
 * Returns BAGS_OK, or what reading and decoding return, or BAGS_ERROR_TYPE for a blob
 * of a dtype that cannot be converted to the field's; the message names dataset, field
 * and datapoint. It is the first failure in the order of the batches; those before were
 * returned, and every later call repeats it. At the end of an epoch, it also returns
 * the failures of bags_reader_check for each reader. (A hook that gives up with EINTR
 * in the caller's thread is a failure of this call only: call again.)
 *
 * Threads: one at a time per loader. Cost: waits for the batch; no allocation once
 * its memory has grown.
 */
BAGS_EXPERIMENTAL bags_code bags_loader_next(
    bags_loader *loader, const bags_batch **batch, bags_error *err);

/* The batch that the next call of bags_loader_next returns, without going on to the one
 * after it: for programs that must do other things while they wait. *batch is NULL if
 * there is none, or if it is not loaded within `seconds` (0: do not wait); then *late
 * (may be NULL) is true. The batch of the last bags_loader_next is not valid any more
 * (see `hold`). Returns what bags_loader_next does. Without threads it is never
 * late. */
BAGS_EXPERIMENTAL bags_code bags_loader_peek(bags_loader *loader, double seconds,
    const bags_batch **batch, bool *late, bags_error *err);

/* True in a thread of a loader that is being closed, or moved: what waits there, such
 * as a hook or a callback, may give up, since nothing of its batch is used. */
BAGS_EXPERIMENTAL bool bags_loader_is_stopping(void);

/* The bytes of datapoint i in a tensor, from its first item to the end of its last, and
 * in *first and *count (may be NULL) its items. Empty if there is no such datapoint. */
BAGS_EXPERIMENTAL bags_view bags_tensor_get(const bags_batch *batch,
    const bags_tensor *tensor, size_t i, uint64_t *first, uint64_t *count);

/* A checksum of a batch: for each datapoint of its dataset, index and tensors,
 * added modulo 2^64. So the digests of all ranks' slices add up to the digest of
 * the entire batch, whatever the order. */
BAGS_EXPERIMENTAL uint64_t bags_batch_digest(const bags_batch *batch);

/* Batches per epoch; 0: there is none or, of packed rows, unknown. */
BAGS_EXPERIMENTAL uint64_t bags_loader_batches(const bags_loader *loader);

/* Continue with this batch of this epoch. Returns BAGS_OK, BAGS_ERROR_RANGE or the
 * failure of the loader. Cost: O(1), with packed rows unless batch is 0 all rows before
 * it are packed; waits until the threads have finished their datapoints, and drops the
 * batches that they made ahead. */
BAGS_EXPERIMENTAL bags_code bags_loader_seek(
    bags_loader *loader, uint64_t epoch, uint64_t batch, bags_error *err);

#define BAGS_LOADER_STATE 64

/*
 * Save where the loader is: after the last batch that bags_loader_next returned.
 * It does not depend on rank, ranks, threads and the other options of fields, so
 * that the state of any rank serves every other one, also when their number changes.
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
 *    52  4  hash of the options that determine the order, and drop_last; and of
 *           what is drawn for images: area, aspect, flips, warp, jitter
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
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY, BAGS_ERROR_MISSING, BAGS_ERROR_CHANGED; or the
 *   failure of the loader, in restore
 */
BAGS_EXPERIMENTAL bags_code bags_loader_save(
    bags_loader *loader, unsigned char state[BAGS_LOADER_STATE], bags_error *err);
BAGS_EXPERIMENTAL bags_code bags_loader_restore(
    bags_loader *loader, const void *state, size_t size, bags_error *err);

/* ========================================================================
 * >>worker
 * Which worker of a cluster's job this process is. No library.
 *
 *     bags_worker me;
 *     if (!bags_worker_find(0, &me, &err)) {
 *         writing.shard_start = me.number;    or loading.rank
 *         writing.shard_stop = me.count;      or loading.ranks
 *     }
 * ====================================================================== */

typedef struct bags_worker {
    uint64_t number;            /* from 0 */
    uint64_t count;             /* of all workers */
    const char *variable;       /* of the environment, with the number. Static */
    const char *count_variable; /* with the count, or its last number; NULL: passed */
} bags_worker;

/*
 * Find the number of this worker in the environment:
 *
 *     engine                  number                 number of workers
 *     Slurm, an array         SLURM_ARRAY_TASK_ID    SLURM_ARRAY_TASK_COUNT
 *     Slurm, srun             SLURM_PROCID           SLURM_NTASKS
 *     Open MPI                OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE
 *     MPICH, Hydra            PMI_RANK               PMI_SIZE
 *     torchrun and others     RANK                   WORLD_SIZE
 *     Kubernetes Indexed Job  JOB_COMPLETION_INDEX   must be passed
 *     Grid Engine, from 1     SGE_TASK_ID            SGE_TASK_LAST
 *     PBS                     PBS_ARRAY_INDEX        must be passed
 *     LSF, from 1             LSB_JOBINDEX           LSB_JOBINDEX_END
 *
 * A variable that is empty is not set; of engines that are not running an array, the
 * variables are ignored. Several engines must agree, except that one with one worker
 * contradicts none: a job of an array may be started by a batch script: for Slurm
 * it is task 0 of 1. The script of a batch job of several tasks is none of them.
 *
 *   count  number of workers; 0: the environment must state it
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_MISSING  no number, or no number of workers
 *   BAGS_ERROR_VALUE    not a number; not below the number of workers; two engines, or
 *                       an engine and `count`, contradict each other; an array does not
 *                       start at 0 (SGE and LSF: 1), has gaps or a step. The message
 *                       names the variables
 *
 * Threads: any, while none changes the environment.
 */
BAGS_EXPERIMENTAL bags_code bags_worker_find(
    uint64_t count, bags_worker *out, bags_error *err);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_LOAD_H */
