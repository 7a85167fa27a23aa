/*
 * load.h - prepares datapoints for training: shuffled orders, batches of tensors,
 * resized images; and divides the work among workers.
 *
 *     file           subject                 library
 *     resample.c     resizes images          none
 *     warp.c         transforms images       none  -lm
 *     cuda.c         decodes images on GPUs  none  -ldl -pthread
 *     cuda_video.c   and frames of videos    none
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
    BAGS_FILTER_NEAREST /* for bags_warp and the loader: for masks of classes */
} bags_filter;

/* A rectangle in an image, in pixels from the upper left corner. Pixel (x, y) is the
 * square from (x, y) to (x + 1, y + 1). Fractions are allowed. */
typedef struct bags_box {
    double left, top, right, bottom;
} bags_box;

/*
 * Resize a box of an image to width x height. The result equals, bit for bit, Pillow's
 * image.resize((width, height), filter, (left, top, right, bottom)) for the modes L,
 * LA, RGB and RGBA: filters are widened when the image shrinks (antialiasing), pixels
 * outside the box but within the image contribute to the box's edges, and colours are
 * weighted by their alpha. To resize as if nothing existed outside the box, pass a
 * pointer to its first pixel and an image of the box's size. (If doubles have excess
 * precision, as on the x87, a pixel may differ by one.)
 *
 *   image       the shape of the pixels: uint8, 1 to 4 channels
 *   pixels      the first row of the image
 *   stride      bytes from one row to the next, at least a row; 0: one row
 *   box         not empty, and within the image; NULL: the entire image. Coordinates
 *               are rounded to float, as Pillow does
 *   width       of the result, in pixels, from 1
 *   height      of the result
 *   scratch     memory for the call; grows to fit the largest call
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
 * Threads: any, each with its own scratch. Cost: about 2 arithmetic steps (bicubic: 4)
 * per pixel of the box, and as many per pixel of the result or, where that is larger, 2
 * (4). Memory: the weights, plus the few rows needed for one result row.
 */
BAGS_EXPERIMENTAL bags_code bags_resample(const bags_image *image, const void *pixels,
    size_t stride, const bags_box *box, bags_filter filter, uint32_t width,
    uint32_t height, bags_buffer *scratch, void *out, size_t out_stride,
    bags_error *err);

/* ========================================================================
 * >>warp
 * Transform images, and change their colours, as Pillow and torchvision do. No library.
 * ====================================================================== */

/* A rectangle of whole pixels in an image. */
typedef struct bags_part {
    uint32_t left, top, width, height;
} bags_part;

/*
 * Transform an image by a 3 x 3 matrix, stored row by row. Pixel (x, y) of the result
 * is the image's colour at (u / w, v / w), or the fill colour if that point lies
 * outside:
 *
 *     u = matrix[0] * (x + 0.5) + matrix[1] * (y + 0.5) + matrix[2]
 *     v = matrix[3] * (x + 0.5) + matrix[4] * (y + 0.5) + matrix[5]
 *     w = matrix[6] * (x + 0.5) + matrix[7] * (y + 0.5) + matrix[8]
 *
 * The result equals, bit for bit, Pillow's image.transform for the modes L and RGB,
 * using AFFINE with the first six numbers if the last row is 0 0 1, and PERSPECTIVE
 * with the first eight if only the last number is 1. Where u / w is NaN, Pillow's
 * result is undefined; here it is the fill colour. Nothing is averaged when the image
 * shrinks. (If the compiler fuses multiplications and additions, a pixel may differ by
 * one.)
 *
 *   image   the shape of the entire image: uint8, 1 to 4 channels, transformed
 *           independently
 *   part    the part of the image that the pixels cover; NULL: all of it. Where more is
 *           needed, the part's edge is repeated
 *   matrix  finite; if the last row is 0 0 x, all numbers are divided by x
 *   fill    one byte per channel; NULL: 0
 *
 * The other parameters are as for bags_resample. Returns the same codes, except
 * BAGS_ERROR_MEMORY; also
 *   BAGS_ERROR_ARGUMENT  a matrix that is not finite or whose last row is 0
 *   BAGS_ERROR_RANGE     the part is not within the image
 *   BAGS_ERROR_LIMIT     a side above 2^30 pixels
 *
 * Threads: any. Cost: reads 4 image pixels (bicubic: 16) per result pixel. No memory.
 */
BAGS_EXPERIMENTAL bags_code bags_warp(const bags_image *image, const bags_part *part,
    const void *pixels, size_t stride, const double matrix[9], bags_filter filter,
    const unsigned char *fill, uint32_t width, uint32_t height, void *out,
    size_t out_stride, bags_error *err);

/* The part of an image that bags_warp needs; at least one pixel. */
BAGS_EXPERIMENTAL bags_part bags_warp_part(
    const bags_image *image, const double matrix[9], uint32_t width, uint32_t height);

/* A uniform distribution from low to high. {0, 0} means the option's default, not
 * necessarily 0; for a factor that is always 0, pass {1e-9, 1e-9}. */
typedef struct bags_interval {
    double low, high;
} bags_interval;

/* Ranges of the random numbers drawn for each image. {0} changes nothing. */
typedef struct bags_warp_options {
    bags_interval degrees; /* turn clockwise around the centre; within -360 and 360 */
    bags_interval scale;   /* from 0.01 to 100, above 1: larger; {0, 0}: 1 */
    bags_interval shear_x, shear_y; /* degrees, within -89 and 89 */
    bags_interval translate_x;      /* shift to the right, as a fraction of the width,
                                       and */
    bags_interval translate_y;      /* down, as a fraction of the height; within -1 and
                                       1 */
    double perspective;    /* move each corner inwards by up to half this fraction of
                              each side; 0 to 0.65 */
    unsigned char fill[3]; /* colour for points outside the image */
} bags_warp_options;

/*
 * Draw a random matrix for a bags_warp to the image's own size. Without perspective, it
 * equals torchvision's affine with these degrees, shifts, scale and shears, bit for bit
 * if sine and cosine agree.
 *
 *   options  within the ranges that bags_loader_open accepts
 *   random   a random number; equal values give equal results
 */
BAGS_EXPERIMENTAL void bags_warp_draw(const bags_warp_options *options, uint64_t random,
    uint32_t width, uint32_t height, double matrix[9]);

/* out = a * b. `out` may be a or b. Applied to a result pixel, b acts first. */
BAGS_EXPERIMENTAL void bags_matrix_times(
    const double a[9], const double b[9], double out[9]);

/* How to change colours: factors (1 changes nothing); a hue shift as a fraction of the
 * colour circle (0 changes nothing); and the order of these steps: each of 0, 1, 2, 3
 * once. */
typedef struct bags_jitter {
    double brightness, contrast, saturation; /* 0 to 1000 */
    double hue;                              /* -0.5 to 0.5 */
    unsigned char order[4];
} bags_jitter;

/* Ranges of the random factors drawn for each image. Their order is random, too, as in
 * torchvision's ColorJitter. {0, 0}: unchanged. */
typedef struct bags_jitter_options {
    bags_interval brightness, contrast, saturation; /* within 0 and 1000 */
    bags_interval hue;                              /* within -0.5 and 0.5 */
} bags_jitter_options;

/* Draw random colour changes for an image. Equal values of `random` give equal
 * results. */
BAGS_EXPERIMENTAL void bags_jitter_draw(
    const bags_jitter_options *options, uint64_t random, bags_jitter *jitter);

/*
 * Change an image's colours in place. The result equals, bit for bit, torchvision's
 * adjust_brightness, adjust_contrast, adjust_saturation and adjust_hue for Pillow
 * images, applied in the jitter's order.
 *
 *   image   the shape of the pixels: uint8, 1 or 3 channels
 *   stride  as for bags_resample
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  an unsupported image; a number out of range; an invalid order
 *   BAGS_ERROR_LIMIT     a side above 2^30 pixels; too large for the address space
 *
 * Threads: any. Cost: one pass over the pixels for each number that changes something,
 * two for the contrast. No memory.
 */
BAGS_EXPERIMENTAL bags_code bags_jitter_apply(const bags_image *image, void *pixels,
    size_t stride, const bags_jitter *jitter, bags_error *err);

/* ========================================================================
 * >>cuda
 * Decode images and frames of videos on an NVIDIA GPU. Needs only the driver, whose
 * libraries are opened at run time: libcuda.so.1; to decode JPEG, libnvjpeg.so; and to
 * decode videos, libnvcuvid.so.1. Without one of the last two, the CPU decodes its
 * images.
 * ====================================================================== */

typedef struct bags_cuda bags_cuda;
typedef struct bags_cuda_decoder bags_cuda_decoder;

typedef struct bags_cuda_options {
    uint32_t device; /* number of the GPU */
    size_t memory;   /* bytes of GPU memory for the intermediate images of each decoder;
                        larger images are left to the CPU. 0: 256 MiB */
    void *stream;    /* the CUstream in which the program uses the tensors: their memory
                        is only reused after the work queued there. NULL: the default
                        stream */
    const bags_allocator *allocator; /* NULL: malloc. Must be thread-safe */
} bags_cuda_options;

/*
 * Open a GPU, in its primary context, as PyTorch does.
 *
 *   options  NULL: {0}
 *
 * Returns the GPU, or NULL:
 *   BAGS_ERROR_MISSING  no libcuda.so.1, an older one without a function, or no such GPU
 *   BAGS_ERROR_IO       a call of the driver failed; the message names it and its code
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any. A decoder is used by one thread at a time. Cost:
 * creating the context takes about a second if the process has none.
 */
BAGS_EXPERIMENTAL bags_cuda *bags_cuda_open(
    const bags_cuda_options *options, bags_error *err);

/* Close the GPU once its loaders and decoders are closed. Memory from bags_cuda_take
 * stays valid until bags_cuda_give. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_cuda_close(bags_cuda *cuda);

BAGS_EXPERIMENTAL uint32_t bags_cuda_device(const bags_cuda *cuda);

/* Take GPU memory, preferably memory that was given back. NULL on failure, with
 * BAGS_ERROR_MEMORY or BAGS_ERROR_IO. */
BAGS_EXPERIMENTAL void *bags_cuda_take(bags_cuda *cuda, size_t size, bags_error *err);

/* Give memory back. It is reused for later requests, and freed when the GPU is
 * closed. */
BAGS_EXPERIMENTAL void bags_cuda_give(bags_cuda *cuda, void *memory);

/* The items of a tensor: images of one size. */
typedef struct bags_cuda_form {
    uint32_t width, height;
    uint32_t channels;  /* 1: gray, 3: RGB */
    bags_filter filter; /* BAGS_FILTER_BILINEAR or BAGS_FILTER_BICUBIC */
    bool nchw;          /* channels first */
    bags_dtype dtype;   /* of 1, 2 or 4 bytes */
    const void *table; /* 256 numbers of the dtype for each channel: the number for each
                           value of a pixel. NULL: none, for uint8 */
} bags_cuda_form;

/* An image for a tensor. */
typedef struct bags_cuda_image {
    bags_view blob;         /* a JPEG that bags_cuda_probe accepted; or */
    const void *item;       /* an item that the CPU made, to be copied. NULL: none */
    bags_image image;       /* from bags_cuda_probe or bags_cuda_probe_video */
    bags_part crop;         /* the part of the image to use, */
    uint32_t width, height; /* the size to which it is resized, */
    uint32_t left, top;     /* and where the item starts in the resized crop */
    bool flip_x, flip_y;
    bool is_frame;  /* made by bags_cuda_make_frames: bags_cuda_make skips it, */
    uint64_t frame; /* and this is its number in the video */
} bags_cuda_image;

/* Open a decoder, with memory of its own. Returns NULL with the codes of
 * bags_cuda_open. */
BAGS_EXPERIMENTAL bags_cuda_decoder *bags_cuda_decoder_open(
    bags_cuda *cuda, bags_error *err);
BAGS_EXPERIMENTAL void bags_cuda_decoder_close(bags_cuda_decoder *decoder);

/* True if the GPU can decode a blob: a JPEG of 8 bits per channel, gray or YCbCr, that
 * nvJPEG accepts. *out describes it. Only its headers are read.
 *
 *   orient  false for images that EXIF data would turn */
BAGS_EXPERIMENTAL bool bags_cuda_probe(
    bags_cuda_decoder *decoder, bags_view blob, bool orient, bags_image *out);

/*
 * Make a tensor: decode, crop, resize, mirror and normalise images. Pixels are resized
 * as by bags_resample. Only the decoder of the GPU may round differently from libjpeg.
 *
 *   images  `count` images; item i is images[i]
 *   out     GPU memory for the items
 *
 * The tensor is complete when the call returns: no stream needs to wait for it. Damage
 * within the pixels of a JPEG may be decoded to wrong pixels without an error.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  a form or an image that contradicts itself
 *   BAGS_ERROR_CORRUPT   nvJPEG rejects an image
 *   BAGS_ERROR_IO        a call failed; the message names it and its code
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Cost: the calling thread sleeps while the GPU works. Memory: see
 * bags_cuda_options.memory. Larger batches are decoded in several steps.
 */
BAGS_EXPERIMENTAL bags_code bags_cuda_make(bags_cuda_decoder *decoder,
    const bags_cuda_form *form, const bags_cuda_image *images, size_t count, void *out,
    bags_error *err);

/* A video, and the functions of mp4.c that find its packets: bags_mp4_reader_info,
 * bags_mp4_reader_place and bags_mp4_reader_packet. */
typedef struct bags_cuda_video {
    bags_mp4_reader *reader;
    const bags_mp4_info *(*info)(const bags_mp4_reader *video);
    bags_mp4_place (*place)(const bags_mp4_reader *video, uint64_t frame);
    bags_code (*packet)(bags_mp4_reader *video, uint64_t number, uint64_t last,
        bags_mp4_packet *out, bags_error *err);
} bags_cuda_video;

/* True if the GPU is likely to decode a frame of a video: h264, hevc or av1, 4:2:0, 8
 * bits per channel, of even width and height, and of a profile and size that
 * cuvidGetDecoderCaps accepts. *out describes the frame. False, too, after
 * bags_cuda_make_frames has found that the GPU does not support the video. Nothing is
 * read. */
BAGS_EXPERIMENTAL bool bags_cuda_probe_video(bags_cuda_decoder *decoder,
    const bags_cuda_video *video, uint64_t frame, bags_image *out);

/*
 * Make items of a tensor: decode frames of a video; crop, resize, mirror and normalise
 * them. Frames are converted to RGB like bags_mp4_reader_get converts them on x86: by
 * the coefficients of BT.601 and, for h264 and hevc, the range that the video states.
 *
 *   images  images of the tensor. Those with these numbers are frames: `is_frame` is
 *           set, and `frame` is the number of the frame
 *   which   the numbers of `count` images, in any order
 *   out     GPU memory for all items; item i is images[i]
 *
 * Decoding starts at the keyframe before each frame. A decoded picture is used only if
 * its time stamp is the number of the frame's packet, and if the driver has called back
 * for that packet: no picture is identified by counting. Damage that the driver reports
 * makes all frames from that keyframe fail. (It reports none for av1. There, damage may
 * be decoded to wrong pixels without an error.)
 *
 * The items are complete when the call returns, as for bags_cuda_make.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  a form or an image that contradicts itself
 *   BAGS_ERROR_CORRUPT   the GPU did not decode all of the frames: damage, a feature
 *                        that it does not support, a blob that cannot be read. The CPU
 *                        may decode them, or finds the reason
 *   BAGS_ERROR_IO        a call failed; the message names it and its code
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Threads: one at a time per decoder and per video. Cost: decodes each needed part of a
 * video once, from its keyframe to the last of its frames. The calling thread sleeps
 * while the GPU works. Memory: a decoder keeps up to 4 decoders of the driver, for
 * different videos, each with about 10 frames of 1.5 bytes per pixel; besides
 * bags_cuda_options.memory.
 */
BAGS_EXPERIMENTAL bags_code bags_cuda_make_frames(bags_cuda_decoder *decoder,
    const bags_cuda_form *form, const bags_cuda_video *video,
    const bags_cuda_image *images, const size_t *which, size_t count, void *out,
    bags_error *err);

/* ========================================================================
 * >>loader
 * Batches of tensors from datasets: exactly shuffled, made by several threads, and
 * resumable. No library except the system's threads; the functions needed for images
 * are passed in (bags_loader_images).
 * ====================================================================== */

/*
 * Map a position in a shuffled list to an index, and an index back to its position: a
 * bijection of 0 .. length - 1 chosen by seed and epoch.
 *
 *   length    1 to 2^63 - 1
 *   position  below length, as is the index
 *
 * Returns UINT64_MAX if an argument is out of range. The result is the same on every
 * platform and will not change in later versions. Not cryptographically secure.
 * Threads: any. Cost: no memory; about 50 ns at any length, 100 ns below 4,096, 300 ns
 * below 64. bags_order_get is cheaper per position.
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

/* The datapoints to load from a dataset, as if it contained only these, in this order.
 * Datapoints listed several times are loaded that many times. */
typedef struct bags_selection {
    bags_selection_kind kind;
    const uint64_t *numbers;
    size_t count; /* 0: selects nothing */
    /* Do not copy the indices: they must stay unchanged until the order, or the loader,
     * is freed. Ranges are always copied. */
    bool borrowed;
} bags_selection;

/*
 * The order in which datapoints are loaded. Every epoch has positions 0 .. length - 1,
 * each of which holds a datapoint from one of the datasets.
 *
 * By default, position p of epoch e in a single dataset is datapoint bags_permute(seed,
 * e, length, p). Several datasets are treated as one concatenated dataset, so that
 * shuffling interleaves them.
 *
 * With `chunk`, chunks of neighbouring datapoints stay together, to suit disks and
 * networks: the chunks are shuffled, each group of `window` consecutive chunks in this
 * new order forms a window, and the datapoints within a window are shuffled. An epoch
 * still contains each datapoint once.
 *
 * With `weights`, dataset d gets n[d] of every 1,024 consecutive positions, starting at
 * position 0. n[d] is 1,024 w, with w its share of the weights, rounded down, or
 * rounded up for the datasets with the largest remainders (the first ones in case of
 * ties), so that the sum is 1,024. The positions are shuffled within each 1,024. Each
 * dataset is walked in epochs of its own. Such an epoch contains each of its datapoints
 * once, and continues where the order's last epoch ended. The length of the order's
 * epochs is the sum of the datasets' lengths, rounded up to a multiple of 1,024, so
 * that each contains n[d] * length / 1024 datapoints of dataset d.
 *
 * With `selections` and `take`, a dataset has only the selected datapoints: its length
 * is their number, "datapoint p" is number p of the selection, and neighbours are
 * datapoints adjacent in the selection.
 */
typedef struct bags_order_options {
    uint64_t seed;
    bool in_order;         /* position p is datapoint p. Not with chunk or weights */
    uint64_t chunk;        /* datapoints per chunk; 0: a complete shuffle */
    uint64_t window;       /* chunks per window; 0: 256. Only with chunk */
    const double *weights; /* relative weight of each dataset; NULL: none */
    const bags_selection *selections; /* one per dataset; NULL: select everything */
    uint64_t take;    /* use only the first `take` datapoints of each dataset or
                         selection; 0: all */
    bool replacement; /* draw any datapoint at each position, so that an epoch may
                         contain some several times and others never. Not with in_order
                         or chunk */
} bags_order_options;

/* A datapoint: the dataset's position in the list, and the index within the dataset. */
typedef struct bags_pick {
    size_t dataset;
    uint64_t index;
} bags_pick;

/* An order. Only `length` and `count` are public. */
typedef struct bags_order {
    uint64_t length; /* positions per epoch */
    size_t count;    /* number of datasets */
    uint64_t seed, chunk, window;
    uint64_t selection; /* a hash of the selection; 0: everything */
    bool in_order, weighted, replacement;
    bags_buffer memory, selections;
} bags_order;

/*
 * Make an order. Free it with bags_order_free, even on failure.
 *
 *   lengths    of `count` datasets; a length may be 0, except with weights
 *   options    NULL: {0}
 *   allocator  NULL: malloc
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  no dataset; options that contradict each other; a weight that
 *                        is not positive, or too small for one slot in 1,024
 *   BAGS_ERROR_RANGE     a selected index is not below the dataset's length; a range's
 *                        start is above its stop
 *   BAGS_ERROR_LIMIT     2^63 datapoints or more
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Cost: 8 bytes per dataset; with weights, 8 KiB more; 8 bytes for each selected index
 * that is not borrowed, and 16 for each range. Selections are read once.
 */
BAGS_EXPERIMENTAL bags_code bags_order_init(bags_order *order, const uint64_t *lengths,
    size_t count, const bags_order_options *options, const bags_allocator *allocator,
    bags_error *err);
BAGS_EXPERIMENTAL void bags_order_free(bags_order *order);

/*
 * Get the datapoints at positions start .. start + count - 1 of an epoch.
 *
 * Returns BAGS_OK, or BAGS_ERROR_RANGE: a position is not below length; or, with
 * weights, 2^63 positions in all epochs so far.
 *
 * Threads: any. Cost: about 40 ns per position plus, with several datasets or ranges,
 * the logarithm of their number. With chunk, 40 ns in a call for thousands of
 * positions, 120 ns in a call for a few. With weights, 100 ns for each position,
 * counted from the multiple of 1,024 before `start`.
 */
BAGS_EXPERIMENTAL bags_code bags_order_get(const bags_order *order, uint64_t epoch,
    uint64_t start, size_t count, bags_pick *picks, bags_error *err);

/* ---- fields ---- */

/* Functions from other files that the loader uses to make image tensors. A program
 * lists the functions that it links:
 *
 *     static const bags_loader_images images = {bags_resample, bags_jpeg_probe,
 *         bags_jpeg_decode, bags_png_probe, bags_png_decode};
 */
typedef struct bags_loader_images {
    /* bags_resample. NULL: images keep their size */
    bags_code (*resample)(const bags_image *image, const void *pixels, size_t stride,
        const bags_box *box, bags_filter filter, uint32_t width, uint32_t height,
        bags_buffer *scratch, void *out, size_t out_stride, bags_error *err);
    /* bags_jpeg_probe and bags_jpeg_decode: decode only the crop of a JPEG, and ignore
     * bytes after the image. NULL: the reader's codec decodes the entire image */
    bags_code (*jpeg_probe)(bags_view blob, const bags_jpeg_options *options,
        bags_image *out, bags_error *err);
    bags_code (*jpeg_decode)(bags_view blob, const bags_jpeg_options *options,
        void *pixels, size_t size, size_t stride, bags_error *err);
    /* bags_png_probe and bags_png_decode: palettes become colours. NULL: the reader's
     * codec decodes, and returns palette indices */
    bags_code (*png_probe)(bags_view blob, const bags_png_options *options,
        bags_image *out, bags_error *err);
    bags_code (*png_decode)(bags_view blob, const bags_png_options *options,
        void *pixels, size_t size, size_t stride, bags_error *err);
} bags_loader_images;

/* Functions from mp4.c that turn video frames into items of frames. A program that
 * links mp4.c defines:
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
    /* Used to request all parts of a batch at once. NULL: do not */
    bags_extent (*part)(const bags_mp4_reader *video, uint64_t frame);
} bags_loader_videos;

/* Functions from cuda.c that make image tensors on a GPU. A program that links cuda.c
 * defines, for an open GPU:
 *
 *     bags_loader_device device = {cuda, bags_cuda_take, bags_cuda_give,
 *         bags_cuda_decoder_open, bags_cuda_decoder_close, bags_cuda_probe,
 *         bags_cuda_make};
 */
typedef struct bags_loader_device {
    bags_cuda *cuda;
    void *(*take)(bags_cuda *cuda, size_t size, bags_error *err);
    void (*give)(bags_cuda *cuda, void *memory);
    bags_cuda_decoder *(*open)(bags_cuda *cuda, bags_error *err);
    void (*close)(bags_cuda_decoder *decoder);
    bool (*probe)(
        bags_cuda_decoder *decoder, bags_view blob, bool orient, bags_image *out);
    bags_code (*make)(bags_cuda_decoder *decoder, const bags_cuda_form *form,
        const bags_cuda_image *images, size_t count, void *out, bags_error *err);
} bags_loader_device;

/* Functions from cuda_video.c and mp4_packets.c that decode frames of videos on that
 * GPU. A program that links both, and mp4.c, defines:
 *
 *     static const bags_loader_device_videos device_videos = {bags_cuda_probe_video,
 *         bags_cuda_make_frames, bags_mp4_reader_place, bags_mp4_reader_packet};
 */
typedef struct bags_loader_device_videos {
    bool (*probe)(bags_cuda_decoder *decoder, const bags_cuda_video *video,
        uint64_t frame, bags_image *out);
    bags_code (*make)(bags_cuda_decoder *decoder, const bags_cuda_form *form,
        const bags_cuda_video *video, const bags_cuda_image *images,
        const size_t *which, size_t count, void *out, bags_error *err);
    bags_mp4_place (*place)(const bags_mp4_reader *video, uint64_t frame);
    bags_code (*packet)(bags_mp4_reader *video, uint64_t number, uint64_t last,
        bags_mp4_packet *out, bags_error *err);
} bags_loader_device_videos;

typedef enum bags_crop {
    BAGS_CROP_NONE = 0, /* the entire image is resized to width x height */
    BAGS_CROP_CENTER,   /* the shorter side is resized to `resize`, then the middle is
                           cut out, like torchvision's Resize and CenterCrop */
    BAGS_CROP_RANDOM    /* a random rectangle of 0.08 to 1 of the area and an aspect
                           ratio of 3/4 to 4/3 is resized, like torchvision's
                           RandomResizedCrop */
} bags_crop;

/* The arguments of a callback that decodes a blob. */
typedef struct bags_load_item {
    const bags_reader *reader;
    bags_pick pick;
    size_t field;  /* the field's number in this reader */
    uint64_t item; /* index in a sequence; otherwise 0 */
    bags_view blob;
    uint64_t random; /* a number that depends only on seed, epoch and position: the same
                        for all fields and items of a datapoint. For frames it also
                        depends on the field's name, unless same_draw is set */
} bags_load_item;

/* The arguments of a callback that changes images: the numbers drawn for one image. */
typedef struct bags_load_draw {
    double matrix[9];      /* see bags_warp */
    bags_jitter jitter;    /* see bags_jitter_apply */
    float mean[3], std[3]; /* the field's, for floats. A std of 0 means 1 */
} bags_load_draw;

/*
 * How a field becomes a tensor. {0} plus a name keeps values unchanged:
 *
 *   numbers, arrays whose type states their shape     stacked: [n, shape...]
 *   sequences of these                                ragged: offsets
 *   bytes, utf8                                       bytes, with ends
 *   everything else, images among it                  one bags_value each; of
 *                                                     objects, and of types
 *                                                     without a codec, the blob
 *
 * Numbers of type int and i64 become int64; u64 becomes uint64.
 *
 * bags_loader_open rejects options that have no effect (such as image options without
 * width and height) or exclude each other.
 */
typedef struct bags_load_field {
    const char *name;
    /* Convert numbers and elements: integers and bool to each other and to float32 and
     * float64, and float32 and float64 to each other. A number that does not fit, or an
     * integer that a float cannot represent exactly, is an error. NONE: unchanged */
    bags_dtype dtype;
    /* Stack arrays that all have this shape, with up to 6 dimensions. Needs a dtype,
     * and excludes width */
    size_t dims;
    const uint64_t *shape;

    /* For images: set both to request a tensor of this size, as uint8, or as float32 or
     * float16 with the value (x / 255 - mean) / std. With dtype uint16: gray images of
     * 16 bits, such as depth, whose values are unchanged; they need
     * BAGS_FILTER_NEAREST. (Without width and height, dtype and shape stack 16-bit
     * images of one size, as uint16 or as float32 of the same values.) */
    uint32_t width, height;
    uint32_t channels; /* 1: gray, 3: RGB, converted as in Pillow; 0: 3 */
    bags_crop crop;
    bags_interval area;   /* fraction of the area for BAGS_CROP_RANDOM; {0, 0}: 0.08 to
                             1 */
    bags_interval aspect; /* the crop's width / height; {0, 0}: 3/4 to 4/3 */
    uint32_t resize;      /* for BAGS_CROP_CENTER; 0: the larger of width and height */
    bags_filter filter;
    double flip_x; /* the probability of swapping left and right, */
    double flip_y; /* and top and bottom */
    /* Instead of resizing the crop, transform the image by a random matrix, and crop
     * the transformed image. Pixels outside the crop but within the image contribute to
     * the crop's edge. NULL: resize */
    const bags_warp_options *warp;
    const bags_jitter_options *jitter; /* then change the colours at random. NULL: do
                                          not */
    /* Called for each image with the numbers drawn. It may change them. The matrix in
     * *draw maps the result to the image; only `warp` uses it. The callback is called
     * by several threads, must act the same for equal item->random, and fails as
     * `decode` does. NULL: none */
    bags_code (*draw)(void *user, const bags_load_item *item, const bags_image *image,
        bags_load_draw *draw, bags_error *err);
    bool nchw; /* channels first: [n, c, h, w]; false: [n, h, w, c] */
    /* For BAGS_CROP_RANDOM of a JPEG, without warp: decode at 1/2, 1/4 or 1/8 of the
     * size if that is still large enough. Faster, but gives different pixels */
    bool scaled;
    /* For JPEG and PNG decoded by options.images: turn images upright by their EXIF
     * orientation before cropping and resizing. false: keep pixels as stored, like
     * PyTorch's decoders. (Without width and height, the reader's codec decodes: set
     * its option `orient`) */
    bool orient;
    /* Add the tensor NAME_matrix, float64, [n, 2, 3], with a matrix for each image:
     * point (x, y) of the image becomes (m[0] x + m[1] y + m[2], m[3] x + m[4] y +
     * m[5]) in the tensor, in pixels as in bags_box. Fractions of `scaled` are
     * included. With orient, (x, y) is a point of the upright image. Not with
     * perspective */
    bool matrix;
    float mean[3]; /* for float32 and float16, per channel; finite, like std */
    float std[3];  /* at least 0; 0: 1 */

    /* For numbers and arrays of one shape, with dtype float32 or float64: each element
     * becomes (x - mean) / std, computed in float64. Each list has `elements` numbers,
     * for an item's elements in C order, and is copied. NULL: 0; 1 */
    const double *element_mean; /* finite */
    const double *element_std;  /* finite, at least 0; 0: 1 */
    size_t elements;            /* 0: no normalization */

    /* For sequences: take a window of this many items, spaced `stride` apart. It starts
     * at the same item in all fields with a window, see options.window_start. 0: all
     * items, ragged. */
    uint64_t window;
    uint64_t stride; /* 0: 1 */

    /* For sequences, with options.frames: each sample's window, with offset_count or
     * second_count items. Without either, only the item with the frame's number. See
     * bags_frames_options. */
    const int64_t
        *offsets; /* item number: the frame's number + offsets[k]. The sequence must
                     have as many items as the clock in each episode */
    size_t offset_count;
    const double *seconds; /* the item nearest to the frame's time + seconds[k]; the
                              first one in case of ties */
    size_t second_count;
    /* For seconds: the items' times. Either the name of a field of times, a sequence of
     * float64 (of type array(float64)[]) that holds a time in seconds for each item,
     * never decreasing; or a rate, so that item i is at i / rate. For the clock, set
     * them in bags_frames_options, not here. */
    const char *times;
    double rate; /* items per second, above 0 */
    /* For seconds: how far an item may be from its time, in seconds, at least 0.
     * Without a tolerance, the nearest item may be at any distance if the time lies
     * between two items, and a time before the first item or after the last item is
     * outside. */
    bool has_tolerance;
    double tolerance;

    /* A callback that decodes instead of the reader's codec. It receives the blob or,
     * for zstd(TYPE), the blob of TYPE; the codec must then provide it: set the option
     * `blobs` of bags_zstd_options, unless TYPE is bytes or utf8. *value may point into
     * the scratch. Called by several threads. On failure the callback writes err (see
     * bags_fail), whose `system` is kept, and returns the code. */
    bags_code (*decode)(void *user, const bags_load_item *item, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void *user;
} bags_load_field;

/* ---- frames ---- */

typedef enum bags_pad {
    BAGS_PAD_EDGE = 0, /* repeat the first or last item, and set the mask */
    BAGS_PAD_DROP      /* leave out samples whose windows do not lie inside */
} bags_pad;

/*
 * Load frames in place of datapoints. A datapoint is an episode; each item in its field
 * `clock`, a sequence, is a frame. The order covers all frames in all episodes:
 * shuffles, chunks and weights apply to frames; `selections` and `take` apply to
 * episodes. Episodes without items contribute no frames.
 *
 * A sample is a frame together with a window of each field around it:
 *
 *     field                     tensor                   items
 *     plain                     as without frames        the episode's only one
 *     sequence                  [n, shape...]            the one with the frame's number
 *     sequence with offsets     [n, count, shape...]     frame + offsets[k]
 *     sequence with seconds     [n, count, shape...]     nearest to the frame's time +
 *                                                        seconds[k]
 *
 * A window's mask is the tensor NAME_pad, bool, [n, count]: true where an item does not
 * exist, so that the first or last item is repeated instead. The masks follow the
 * fields' tensors, in the same order. A time is outside if it lies before the first
 * item or after the last item by more than the tolerance. If a time is inside but no
 * item lies within the tolerance, this is BAGS_ERROR_VALUE, and the message names the
 * episode and the time.
 *
 * With options.videos, a plain field of videos (mp4, webm) counts as a sequence of
 * video frames. Frames are decoded without the rest of the video. Their number is
 * checked when a sample is loaded. Each thread keeps the tables of its most recently
 * used videos.
 *
 * All images of a field in one sample are cropped, mirrored, warped and jittered alike,
 * with a single draw. Different fields draw different numbers unless `same_draw` is
 * set. (bags_load_item.random is then the same for all fields.)
 */
typedef struct bags_frames_options {
    const char *clock; /* the name of a field that is a sequence */
    /* The times of the clock's items, as in bags_load_field. Needed by fields with
     * seconds */
    const char *times;
    double rate;
    bags_pad pad;
    bool same_draw; /* one draw for all fields: cameras see the same crop */
} bags_frames_options;

/* ---- tokens ---- */

typedef enum bags_long { BAGS_LONG_SPLIT = 0, BAGS_LONG_DROP } bags_long;

/*
 * Sequences of fixed length S, made from documents of any length. The documents are the
 * datapoints of a field of type array(DTYPE,-1), where DTYPE is uint16, uint32 or
 * int32, or of type bytes.
 *
 * Windows: a shard's documents, in order, form a stream. Window k of a shard consists
 * of tokens k * stride ... k * stride + S: S inputs, and the label of the last input. A
 * dataset's windows are numbered across its shards, and take the place of datapoints in
 * the loader's order: selections, weights and chunks apply to windows. Tokens after a
 * shard's last window are not used.
 *
 * Packing: each row holds entire documents, at most S tokens in total. The loader's
 * order and selections apply to documents. In blocks of 4,096 documents, rows started
 * by longer documents are filled up with documents of equal or shorter length
 * (first-fit decreasing). Which documents share a row depends only on seed, epoch and
 * the order. Documents without tokens are in no row.
 */
typedef struct bags_tokens_options {
    const char *field;
    bags_dtype stored; /* for a field of type bytes: uint8, uint16, uint32 or int32,
                          little-endian; otherwise NONE, or the type's dtype */
    bags_dtype dtype;  /* of the field's tensor, as in bags_load_field; parallel fields
                          keep their dtype. NONE: as stored */
    uint64_t length;   /* S, 1 to 2^28 */
    uint64_t stride;   /* for windows; 0: S */
    bool pack;
    /* Packing: documents above S tokens are split into pieces of S tokens plus a
     * remainder, or are dropped. */
    bags_long long_documents;
    bool has_bos, has_eos; /* add these tokens before and after each document */
    uint32_t bos, eos;
    bool places; /* windows: add the tensors "documents" and "positions" */
    /* Fields with one element per token, such as loss masks: array(DTYPE,-1) of any
     * dtype, or bytes. At most 15. They contain 0 for BOS and EOS. */
    const char *const *parallel;
    size_t parallel_count;
    const bags_allocator *allocator; /* NULL: malloc */
} bags_tokens_options;

typedef struct bags_tokens bags_tokens;

/*
 * Open the tokens of datasets, for bags_loader_options.tokens. The loader's fields must
 * not be set. Its tensors are
 *
 *     windows   FIELD [n, S + 1], each parallel field [n, S + 1]; with `places`
 *               documents and positions [n, S], int32: for each input the datapoint in
 *               the dataset, and the place in the document, where BOS is 0
 *     packing   FIELD and each parallel field, ragged: offsets; cu_seqlens, int32,
 *               ragged: 0, and the end of each document in the row, as attention
 *               kernels for sequences of variable length expect
 *
 * Call bags_tokens_close after closing the loader and before closing the readers.
 *
 * Returns the tokens, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_FIELD     no such field, or it is listed twice
 *   BAGS_ERROR_TYPE      a field whose blobs are not elements of one dtype
 *   BAGS_ERROR_VALUE     a document's size is not a multiple of the dtype's size; bos
 *                        or eos is out of range; a window is longer than the tokens
 *                        of every shard, unless there are none
 *   BAGS_ERROR_LIMIT     2^31 documents; a document with 2^31 tokens
 *   BAGS_ERROR_CORRUPT, BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: one. Cost: about 1 ns per document, and no memory that grows with the data.
 * If documents are not in the order of their Bag (derived datasets) or not mapped
 * (no_mmap, URLs), 8 bytes of memory per document; each unmapped document is read once.
 */
BAGS_EXPERIMENTAL bags_tokens *bags_tokens_open(const bags_reader *const *readers,
    size_t count, const bags_tokens_options *options, bags_error *err);

/* NULL is accepted. */
BAGS_EXPERIMENTAL void bags_tokens_close(bags_tokens *tokens);

typedef struct bags_tokens_info {
    uint64_t documents;
    uint64_t tokens;  /* including BOS and EOS */
    uint64_t windows; /* if packed, as if packing were not set */
    uint64_t longer;  /* documents of more than S tokens */
    uint64_t unused;  /* tokens that are not an input of any window: at the end of each
                         shard, and between windows if stride is above S */
} bags_tokens_info;

/* The counts for dataset number `dataset`. Zeros if there is no such dataset. */
BAGS_EXPERIMENTAL bags_tokens_info bags_tokens_count(
    const bags_tokens *tokens, size_t dataset);

/* A document, or part of one, in a packed row: tokens first ... first + length - 1. */
typedef struct bags_piece {
    size_t dataset;
    uint64_t document; /* the datapoint */
    uint64_t first, length;
} bags_piece;

/* ---- the loader ---- */

typedef struct bags_loader bags_loader;

#define BAGS_THREADS_NONE (-1)  /* for bags_loader_options.threads */
#define BAGS_WINDOW_RANDOM (-1) /* for bags_loader_options.window_start */

typedef struct bags_loader_options {
    bags_order_options order;
    /* The caller's own order, for example to prefer hard examples. It writes the
     * datapoints at positions start .. start + count - 1 of an epoch to picks. It must
     * always return the same picks for the same positions, in any range below
     * sampler_length. Called by several threads. On failure it writes err and returns
     * the code. With a sampler, only seed of `order` is used, for random crops. Not
     * with packed rows. NULL: none */
    bags_code (*sampler)(void *sampler_user, uint64_t epoch, uint64_t start,
        size_t count, bags_pick *picks, bags_error *err);
    void *sampler_user;
    uint64_t sampler_length; /* positions per epoch, below 2^63 */
    uint64_t sampler_hash;   /* states with another hash are refused */
    uint32_t batch;          /* datapoints per batch, for all ranks together; 0: 32 */
    bool drop_last;          /* drop a short batch at the end of an epoch */
    uint64_t epochs;         /* stop after epoch epochs - 1; 0: never */
    /* Load slice `rank` out of `ranks` of each batch; 0, 0: all of it. Slices differ in
     * size by at most one, and may be empty: with 101 datapoints, batches of 100 and 2
     * ranks, rank 0's last batch is empty. drop_last drops such a batch for all
     * ranks. */
    uint32_t rank, ranks;
    /* 0: the number of processors. BAGS_THREADS_NONE: bags_loader_next does the work in
     * the calling thread; not with ahead */
    int32_t threads;
    uint32_t ahead; /* finished batches that may wait, besides one per thread; 0: 2 */
    uint32_t hold;  /* a batch stays valid during this many more calls of
                       bags_loader_next */
    /* Skip and count datapoints that are damaged or do not fit the fields' options:
     * those for which reading or decoding returns BAGS_ERROR_CORRUPT, _VALUE, _LIMIT or
     * _RANGE. Other codes, such as for failed reads, are always an error, so a field's
     * `decode` can choose by its code. */
    bool skip_damaged;
    /* Announce each batch to the disk before reading it, see bags_reader_prefetch. With
     * a server, a batch then costs one round trip instead of one per datapoint. */
    bool prefetch;
    /* The item at which sequence windows start. BAGS_WINDOW_RANDOM: anywhere that the
     * windows of all fields fit. A nonzero value requires a field with a window. */
    int64_t window_start;
    /* NULL: all fields of the first dataset, unchanged; field_count must then be 0.
     * With frames, NULL means the clock and all fields that are neither sequences nor
     * videos. */
    const bags_load_field *fields;
    size_t field_count;
    /* Load frames instead of datapoints. NULL: do not. Not with tokens, window_start,
     * or the fields' option `window`. A sampler then returns frame numbers, counted
     * across all episodes of a dataset. */
    const bags_frames_options *frames;
    /* Load these tokens' windows or rows instead of datapoints; they must come from the
     * same readers. NULL: do not. */
    const bags_tokens *tokens;
    const bags_loader_images *images; /* NULL: no image functions */
    const bags_loader_videos *videos; /* NULL: videos are not read as frames */
    /* Make the tensors of fields with width and height in the memory of a GPU. All
     * others stay in the program's memory. The GPU decodes JPEGs that are only cropped,
     * resized, mirrored and normalised. The CPU makes all other images (options warp,
     * jitter, draw, decode, scaled, BAGS_FILTER_NEAREST; other formats; JPEGs that the
     * GPU cannot decode), and batch.on_cpu counts them. If the GPU rejects a JPEG or a
     * frame while decoding it, the CPU makes the entire batch. The GPU must stay open
     * until the loader is closed. NULL: none */
    const bags_loader_device *device;
    /* Decode frames of videos on the device, too, with the same limits: see
     * bags_cuda_probe_video. Needs `device` and `videos`. NULL: the CPU decodes them */
    const bags_loader_device_videos *device_videos;
    /* Allocates the batches' tensors, for example as pinned memory; NULL: use
     * `allocator`. Both allocators must be thread-safe. */
    const bags_allocator *tensors;
    const bags_allocator *allocator; /* for everything else; NULL: malloc */
} bags_loader_options;

/*
 * Open a loader of datasets, given by readers that must stay open until the loader is
 * closed. Everything that the options point to is copied, except `images`, `videos`,
 * `device`, `device_videos`, hooks and `user`.
 *
 * Returns the loader, or NULL:
 *   BAGS_ERROR_ARGUMENT  invalid options
 *   BAGS_ERROR_FIELD     a dataset lacks a field, or a field is listed twice
 *   BAGS_ERROR_TYPE      no value of a field's type can become what its options
 *                        request; the clock is not a sequence; a field of times is not
 *                        one
 *   BAGS_ERROR_VALUE     frames: two fields of an episode differ in their number of
 *                        items; with BAGS_PAD_DROP, times decrease
 *   BAGS_ERROR_LIMIT     2^63 datapoints; a tensor exceeds the address space
 *   BAGS_ERROR_MEMORY    out of memory
 *   or, with frames, an error from bags_reader_get; or, with a device, from
 *   bags_cuda_decoder_open
 *
 * Threads: one at a time per loader. The loader's threads start with the first batch. A
 * child made by fork() after that lacks them: there the loader's functions return
 * BAGS_ERROR_STATE, and closing the loader frees nothing. Cost: nothing is read. With
 * frames, the refs of all episodes are read, and with seconds and BAGS_PAD_DROP their
 * times, too; 8 bytes of memory per episode, plus, for each field of times, one bit per
 * episode and thread.
 */
BAGS_EXPERIMENTAL bags_loader *bags_loader_open(const bags_reader *const *readers,
    size_t count, const bags_loader_options *options, bags_error *err);

/* Stop the threads, each as soon as it has finished its current datapoint (see
 * bags_loader_is_stopping), and free everything. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_loader_close(bags_loader *loader);

/*
 * A field of a batch. `data` has one of three forms:
 *
 *   elements of `dtype`: [n, L, shape...] or, for ragged sequences (`offsets` is set),
 *       [items, shape...]
 *   bytes: item i is the bytes ends[i] .. ends[i + 1]; dtype is uint8
 *   `values` is set: item i is values[i], whose data is at ends[i], padded with zeros
 *       up to the next item
 */
typedef struct bags_tensor {
    const char *name;
    bags_dtype dtype; /* NONE if `values` is set */
    size_t dims;      /* length of shape; shape[0] is n, or the number of items */
    uint64_t shape[8];
    void *data;     /* aligned to 64 bytes, if its allocator aligns to at least 16 */
    size_t size;    /* size of data in bytes */
    uint64_t items; /* total number of items of all datapoints */
    const uint64_t *offsets;  /* for ragged sequences: datapoint i has the items
                                 offsets[i] .. offsets[i + 1]. Otherwise NULL: all
                                 datapoints have the same number */
    const uint64_t *ends;     /* items + 1 offsets in data; or NULL */
    const bags_value *values; /* one per item; or NULL */
    bool on_device;           /* data is an address of the GPU; see bags_loader_take */
} bags_tensor;

typedef struct bags_batch {
    uint64_t epoch, batch;    /* batch counts from 0 in each epoch */
    uint64_t position;        /* position in the epoch of the slice's first datapoint */
    size_t length;            /* datapoints in the tensors */
    const bags_pick *picks;   /* `length` picks. For windows, index is the window; for
                                 packed rows, it is the first document; for frames, it
                                 is the episode, */
    const uint64_t *frames;   /* and this is the frame within it. Otherwise NULL */
    const bags_piece *pieces; /* for packed rows, otherwise NULL: row i has the */
    const uint64_t *rows;     /* pieces rows[i] .. rows[i + 1] */
    uint64_t dropped;         /* documents left out by packing, because they are longer
                                 than a row, in the blocks that end with this batch */
    uint64_t skipped;         /* number of datapoints left out */
    uint64_t bytes;           /* size of the blobs decoded */
    uint64_t on_cpu;          /* with a device: number of images that the CPU made */
    size_t count; /* number of tensors: the options' fields in order, then masks */
    const bags_tensor *tensors;
} bags_batch;

/*
 * Get the next batch, or this rank's slice of it, in *batch; NULL after the last batch.
 * It is valid until the next call (see `hold`), or until the loader is closed.
 *
 * Returns BAGS_OK, an error from reading or decoding, or BAGS_ERROR_TYPE for a blob
 * whose dtype cannot be converted to the field's; the message names dataset, field and
 * datapoint. The error is the first failure in batch order: earlier batches were
 * returned, and every later call repeats the error. At the end of an epoch, failures of
 * bags_reader_check for each reader are also returned. (If a hook gives up with EINTR
 * in the caller's thread, only this call fails: call again.)
 *
 * Threads: one at a time per loader. Cost: waits for the batch; no allocation once the
 * batches' memory has grown.
 */
BAGS_EXPERIMENTAL bags_code bags_loader_next(
    bags_loader *loader, const bags_batch **batch, bags_error *err);

/* Get the batch that the next call of bags_loader_next will return, without consuming
 * it, for programs that must do other things while they wait. *batch is NULL if there
 * is none, or if it is not loaded within `seconds` (0: do not wait); *late (may be
 * NULL) is true in the latter case. The batch from the last bags_loader_next is no
 * longer valid (see `hold`). Returns the same codes as bags_loader_next. Without
 * threads, a batch is never late. */
BAGS_EXPERIMENTAL bags_code bags_loader_peek(bags_loader *loader, double seconds,
    const bags_batch **batch, bool *late, bags_error *err);

/* True in a thread of a loader that is being closed or moved. A hook or callback that
 * waits there may give up, since its batch will not be used. */
BAGS_EXPERIMENTAL bool bags_loader_is_stopping(void);

/* Take over the GPU memory of tensor number `tensor` of a batch that is still valid: it
 * then stays valid until it is passed to bags_cuda_give, even after the loader is
 * closed. The GPU then stays open, too. Returns the memory; NULL if the tensor is not
 * on a GPU, or was taken before. Threads: as for bags_loader_next. */
BAGS_EXPERIMENTAL void *bags_loader_take(
    bags_loader *loader, const bags_batch *batch, size_t tensor);

/* Get the bytes of datapoint i in a tensor, from its first item to the end of its last
 * item; *first and *count (may be NULL) receive its range of items. Empty if there is
 * no such datapoint. */
BAGS_EXPERIMENTAL bags_view bags_tensor_get(const bags_batch *batch,
    const bags_tensor *tensor, size_t i, uint64_t *first, uint64_t *count);

/* A batch's checksum, without tensors on a GPU: the sum, modulo 2^64, of one hash per
 * datapoint, computed over its dataset, index and tensors. The digests of all ranks'
 * slices therefore add up to the entire batch's digest, in any order. */
BAGS_EXPERIMENTAL uint64_t bags_batch_digest(const bags_batch *batch);

/* Batches per epoch; 0: there are none or, for packed rows, the number is unknown. */
BAGS_EXPERIMENTAL uint64_t bags_loader_batches(const bags_loader *loader);

/* Continue with the given batch of the given epoch. Returns BAGS_OK, BAGS_ERROR_RANGE
 * or the loader's failure. Cost: O(1), except that with packed rows and a nonzero
 * batch, all earlier rows of the epoch are packed. Waits until the threads have
 * finished their current datapoints, and drops the batches that they made ahead. */
BAGS_EXPERIMENTAL bags_code bags_loader_seek(
    bags_loader *loader, uint64_t epoch, uint64_t batch, bags_error *err);

#define BAGS_LOADER_STATE 64

/*
 * Save the loader's position: after the last batch returned by bags_loader_next. The
 * state does not depend on rank, ranks, threads or the fields' other options, so any
 * rank's state works for every other rank, even if the number of ranks changes.
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
 * Numbers are little-endian. bags_loader_restore continues at the saved position.
 *
 * The first call of either function reads the three datapoints of each dataset. Later
 * calls read nothing, so saving can no longer fail: call it once before the first
 * batch, so that the position can be saved even after bags_loader_next has failed.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a state: truncated, or damaged
 *   BAGS_ERROR_VALUE    a state for other datasets or options; the message names the
 *                       difference
 *   or an error from bags_reader_get_blob for the three datapoints, except damage:
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY, BAGS_ERROR_MISSING, BAGS_ERROR_CHANGED; or, in
 *   bags_loader_restore, the loader's failure
 */
BAGS_EXPERIMENTAL bags_code bags_loader_save(
    bags_loader *loader, unsigned char state[BAGS_LOADER_STATE], bags_error *err);
BAGS_EXPERIMENTAL bags_code bags_loader_restore(
    bags_loader *loader, const void *state, size_t size, bags_error *err);

/* ========================================================================
 * >>resized
 * Store images as pixels of one size, so that later epochs decode nothing. No library
 * except the system's threads; the functions needed for images are passed in
 * (bags_loader_images).
 * ====================================================================== */

/* A field of images, and the size of its pixels: both 1 to 65535. */
typedef struct bags_resized_field {
    const char *name;
    uint32_t width, height;
} bags_resized_field;

typedef struct bags_resize_options {
    const bags_resized_field *fields; /* at least one */
    size_t field_count;
    /* The datapoints whose images are needed, numbered across all readers, in any
     * order. NULL: all */
    const uint64_t *rows;
    size_t rows_count;
    /* Only the images that this worker of a bags_derive with the same rows needs; 0, 0:
     * all of them. */
    uint64_t shard_start, shard_stop;
    uint64_t shard_length; /* of a copy by workers; 0: the derived dataset has links */
    bool checksum;         /* write checksums */
    bool no_sync;
    int32_t threads;                  /* as in bags_loader_options */
    const bags_loader_images *images; /* with `resample` */
    /* Called after each batch with the images' datapoints done so far. Returns false to
     * stop: BAGS_ERROR_IO. NULL: not called. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    bags_env env; /* to write */
} bags_resize_options;

/*
 * Write a dataset of resized images that bags_derive can join by position: its shards
 * have the lengths of the readers' shards. Each field has the type
 * array(uint8,HEIGHT,WIDTH,3), or a sequence of it for a sequence.
 *
 * The pixels equal the tensor of a loader with the field's width and height and no
 * other option: RGB, the entire image resized by BAGS_FILTER_BILINEAR, not turned by
 * EXIF data. So a loader of the stored pixels and a loader of the images give the same
 * tensors if the images are not cropped and have this width and height; flips, jitter,
 * mean and std may be set. Random crops draw the same fractions but cut them out of the
 * resized pixels, so their pixels differ.
 *
 * A plain field of a datapoint that is not needed refers to the blob of another
 * datapoint of its shard; a sequence has no items. If no datapoint of a shard is
 * needed, plain fields refer to an empty blob. It is not an image.
 *
 *   out  an existing, empty directory. After a failure it contains incomplete files:
 *        remove it
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_ARGUMENT  no field; a side out of range
 *   BAGS_ERROR_TYPE      no value of a field's type is an image
 *   BAGS_ERROR_VALUE     a blob that is not an image; the message names dataset, field
 *                        and datapoint
 *   BAGS_ERROR_RANGE     a row that does not exist
 *   or an error from bags_loader_open, bags_loader_next or a writer
 *
 * Threads: any, if no other thread writes to `out`. Cost: decodes each image once; 1
 * byte of memory per datapoint, 8 per datapoint needed, and a few batches of at most 16
 * MiB, or of one datapoint.
 */
BAGS_EXPERIMENTAL bags_code bags_resize(const bags_reader *const *readers, size_t count,
    const char *out, const bags_resize_options *options, bags_error *err);

/* ========================================================================
 * >>worker
 * Find out which worker of a cluster job this process is. No library.
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
    const char *variable;       /* the environment variable with the number. Static */
    const char *count_variable; /* the variable with the count or the last number; NULL:
                                   `count` was passed */
} bags_worker;

/*
 * Find this worker's number in the environment:
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
 * An empty variable counts as unset. The variables of an engine that is not running an
 * array are ignored. Several engines must agree, except that an engine with a single
 * worker never contradicts another: an array's job may be started by a batch script,
 * and then Slurm calls it task 0 of 1. The script of a batch job with several tasks is
 * not one of these tasks.
 *
 *   count  number of workers; 0: taken from the environment
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_MISSING  no number, or no number of workers
 *   BAGS_ERROR_VALUE    not a number; not below the number of workers; two engines, or
 *                       an engine and `count`, contradict each other; an array that
 *                       does not start at 0 (SGE and LSF: 1), or has gaps or a step.
 *                       The message names the variables
 *
 * Threads: any, as long as no thread changes the environment.
 */
BAGS_EXPERIMENTAL bags_code bags_worker_find(
    uint64_t count, bags_worker *out, bags_error *err);

/*
 * Find this process's rank in a training, for bags_loader_options: like
 * bags_worker_find, but only from the variables of srun, Open MPI, MPICH and torchrun.
 * The tasks of an array are independent trainings. If none of these variables is set,
 * the process is number 0 of 1, and out->variable is NULL.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_MISSING  a number without the number of processes, or the reverse
 *   BAGS_ERROR_VALUE    as for bags_worker_find
 *
 * Threads: as for bags_worker_find.
 */
BAGS_EXPERIMENTAL bags_code bags_rank_find(bags_worker *out, bags_error *err);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_LOAD_H */
