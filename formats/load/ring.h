/*
 * ring.h - declarations shared by the loader's parts: its columns, ring slots and
 * threads, and the functions through which the parts call each other. Programs do not
 * include it.
 *
 *     loader.c    the ring, its threads, and the batches
 *     opening.c   checks and plans options and fields, and allocates memory
 *     convert.c   converts a datapoint's item to part of a tensor
 *     crop.c      the same for images
 *     frames.c    counts and finds frames of episodes; chooses their windows
 *     state.c     digests and states
 */
#ifndef BAGS_FORMATS_RING_H
#define BAGS_FORMATS_RING_H

#include "gate.h"

#include "blocks.h"
#include "load.h"
#include "tokens.h"

#define LOADER_MAX_DIMS 6     /* most dimensions of an item */
#define LOADER_MAX_SIDE 65535 /* most pixels per side of a requested image */

typedef enum loader_form {
    LOADER_FORM_STACKED, /* items of one dtype and shape */
    LOADER_FORM_BYTES,   /* bytes and text */
    LOADER_FORM_VALUES   /* anything else: a bags_value per item */
} loader_form;

typedef enum loader_blob_kind {
    LOADER_BLOB_OTHER,
    LOADER_BLOB_JPEG,
    LOADER_BLOB_PNG,
    LOADER_BLOB_VIDEO
} loader_blob_kind;

/* A field's source in one dataset. */
typedef struct loader_source {
    size_t field;
    size_t times; /* for windows by seconds: the field of times */
    loader_blob_kind kind;
    bool compressed; /* the type is zstd(TYPE) */
    bool raw;        /* a blob equals an item of the tensor, byte for byte */
} loader_source;

/* How a field's items get their times. */
typedef struct loader_times {
    const char *name; /* name of the field of times; NULL: use the rate */
    double rate;      /* 0 without a name: items have no times */
    size_t bit;       /* the bit that marks an episode's times as checked */
} loader_times;

/* The plan for one field. */
typedef struct loader_column {
    bags_load_field given;
    const char *path;       /* the first dataset's path */
    loader_source *sources; /* one per dataset */
    bool sequence, image;
    bool video;  /* with frames: items are the frames of a video */
    bool ragged; /* holds all items of each datapoint */
    loader_form form;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[LOADER_MAX_DIMS];
    size_t item_size;       /* in bytes, if stacked */
    uint64_t span;          /* items from a window's first to its last */
    float *scale;           /* for float images: 256 values per channel; as float16
                               they use half of the memory */
    double *center;         /* for arrays: each element's mean and deviation */
    size_t matrix;          /* the column with the images' matrices; 0: none */
    bool by_matrix;         /* images are transformed by a matrix, not resized */
    bool draws;             /* random ranges differ from the defaults */
    bool on_device;         /* the tensor is made in the memory of a GPU, */
    bool by_device;         /* which can also decode its JPEGs */
    bags_warp_options warp; /* copies of the options */
    bags_jitter_options jitter;

    /* With frames: */
    size_t items;       /* in a sample's window, or 1; 0: a plain field, or a mask */
    size_t mask;        /* the column that holds the window's mask; 0: none */
    loader_times times; /* for a window by seconds */
    uint64_t salt;      /* mixed into its random numbers; 0: same numbers as the
                           sample */
} loader_column;

/* The frames loaded in place of datapoints. */
typedef struct loader_frames {
    bags_frames_options given;
    bags_order episodes;   /* the selected episodes of all datasets, one after the
                              other */
    uint64_t *before;      /* number of frames before each episode of that order; then
                              the total */
    loader_source *clocks; /* each dataset's clock */
    loader_times times;    /* of the clock */
    bool timed;            /* every frame's time is needed */
    size_t bits;           /* per episode: for each field of times, and `opened` */
    size_t opened;         /* the bit that marks an episode's videos as announced */
    size_t items;          /* in all windows of a sample together */
    uint64_t hash;         /* of the options that determine the frames */
} loader_frames;

/* A frame. */
typedef struct loader_frame {
    size_t dataset;
    uint64_t episode, number;
    uint64_t count; /* number of items in the clock */
    uint64_t place; /* the episode's position in the order of episodes */
} loader_frame;

/* How much of a tensor's memory is in use. */
typedef struct loader_extent {
    size_t size, dims; /* bytes of data; numbers in `shapes` */
    uint64_t items;
} loader_extent;

/* A tensor's memory. */
typedef struct loader_part {
    bags_buffer data, offsets, ends, values, shapes;
    void *on_device; /* for columns on a GPU: its memory, */
    size_t on_device_size;
    loader_extent used, mark; /* current, and before the datapoint being loaded */
} loader_part;

/* Locates the next batch. */
typedef struct loader_cursor {
    uint64_t epoch, batch;
    uint64_t block, row; /* for packed rows: the next row */
} loader_cursor;

typedef struct loader_slot {
    bags_batch batch;
    loader_cursor at, after; /* this batch, and the next one */
    bool ends;               /* no batch exists here */
    bags_buffer pieces;      /* for packed rows: the batch's pieces, */
    bags_buffer rows;        /* uint64_t: where each row starts; then the end */
    size_t row_count;
    uint64_t dropped;
    bags_code code;
    bags_error err;
    bool ready;
    bool checked; /* at an epoch's end: the datasets were found unchanged */
    bags_pick *picks;
    uint64_t *frames; /* NULL: none */
    bags_tensor *tensors;
    loader_part *parts;
} loader_slot;

/* A frame that a GPU decodes. */
typedef struct loader_staged_frame {
    size_t dataset;
    uint64_t episode;
    size_t image; /* its number among the column's images */
} loader_staged_frame;

/* A column's images of the batch being made, for a GPU. */
typedef struct loader_staged {
    bags_buffer images;  /* bags_cuda_image, one per item */
    bags_buffer offsets; /* size_t: where each image's blob starts in `blobs` */
    bags_buffer blobs;
    size_t used;        /* bytes of `blobs` */
    bags_buffer frames; /* loader_staged_frame, for `frame_count` images */
    size_t frame_count;
    bags_buffer which; /* size_t: images that are frames of one video */
} loader_staged;

/* A thread and its scratch memory. */
typedef struct loader_worker {
    bags_loader *loader;
    bags_row row;
    bags_buffer value, inside, pixels, converted, resized, resampling, indices;
    bags_select *selects;
    unsigned char **targets;    /* where a window or a piece goes in each tensor */
    bags_mp4_cache *videos;     /* NULL: none used yet */
    bags_row times;             /* for frames: a field of times */
    unsigned char *checked;     /* frames->bits bits per episode */
    uint64_t *chosen;           /* the items chosen for all windows of a sample, */
    bool *outside;              /* and their masks */
    bags_buffer announced;      /* selections announced for a batch's samples */
    bags_cuda_decoder *decoder; /* with a device; its images, one per column; */
    loader_staged *staged;
    const bags_image *frame; /* describes the frame being staged; NULL: none */
    bool rejected;           /* the device rejected an image of the batch, */
    bool on_cpu;             /* so the CPU makes all of them */
    gate_thread id;
    double matrix[6];     /* maps the last image to its tensor */
    float scale[3 * 256]; /* for an image whose mean or std was chosen by a callback */
    size_t unwatched;     /* bytes decoded since `stopping` was last checked */
} loader_worker;

struct bags_loader {
    bags_buffer memory; /* holds the loader itself; see format_state */
    bags_loader_options options;
    format_block *blocks;
    const bags_reader **readers;
    size_t count;
    bags_order order;
    uint64_t batches;  /* batches per epoch */
    size_t slice_most; /* datapoints in this rank's largest slice */
    loader_column *columns;
    size_t column_count;         /* including matrices and frames' masks, at the end */
    size_t field_count;          /* columns that belong to fields */
    bool windowed;               /* some column has a window */
    bool calls;                  /* some column has a caller's function */
    const format_tokens *tokens; /* loaded in place of datapoints; or NULL */
    loader_frames *frames;       /* likewise */
    bags_loader_images images;
    uint32_t data_hash, order_hash;
    bool hashed;
    loader_slot *slots;
    size_t slot_count;
    loader_worker *workers;
    size_t thread_count, worker_count, running;
    gate monitor;
    uint64_t process; /* the process that owns the threads */
    bool started;
    format_packer *packer; /* packs the last claimed block; under the lock */
    bags_row packer_row;
    loader_cursor next; /* for bags_loader_next */
    bool finished;      /* a slot without a batch was reached */
    bags_error error;   /* the first failure; never cleared */

    /* Under the lock: */
    uint64_t released, claimed;
    uint64_t delivered;  /* written only by the caller's thread */
    loader_cursor claim; /* the next batch to claim */
    bool claimed_all;    /* no batch is left: for packed rows, only packing reveals
                            it */
    bool stopping;
};

/* ---- tensor memory ---- */

/* Reserve the next bytes in a buffer. */
static inline bags_code loader_part_reserve(
    bags_buffer *buffer, size_t used, size_t more, bags_error *err) {
    if (more > SIZE_MAX / 2 - used)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    return bags_buffer_reserve(buffer, used + more, err);
}

/* Append element `at` to a list in a buffer. */
static inline bags_code loader_part_push(
    bags_buffer *buffer, uint64_t at, uint64_t value, bags_error *err) {
    if (at >= SIZE_MAX / 16)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many items in a batch");
    bags_code code = bags_buffer_reserve(buffer, ((size_t)at + 1) * sizeof value, err);
    if (!code)
        memcpy(buffer->data + (size_t)at * sizeof value, &value, sizeof value);
    return code;
}

/* ---- small shared functions ---- */

/* True if nonzero, including NaN. */
static inline bool loader_is_set(double x) { return !(x >= 0 && x <= 0); }

/* The dtype that an image field needs: pixels of uint16 are not converted. */
static inline bags_dtype loader_stored_dtype(const loader_column *c) {
    return c->given.dtype == BAGS_DTYPE_UINT16 ? BAGS_DTYPE_UINT16 : BAGS_DTYPE_UINT8;
}

/* Format a shape as text. */
static inline const char *loader_shape_text(
    size_t dims, const uint64_t *shape, char text[200]) {
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < dims && used >= 0 && used < 160; i++)
        used += snprintf(
            text + used, 200 - (size_t)used, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return dims ? text : "one element";
}

/* True for damage that skip_damaged skips. Other errors may be temporary. */
static inline bool loader_is_damage(bags_code code) {
    return code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_VALUE ||
           code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_RANGE;
}

/* ---- functions called across parts ---- */

/* opening.c: check the arguments and plan everything without reading; and free the
 * plan. */
bags_code bagi_loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err);
void bagi_loader_free(bags_loader *l);

/* opening.c: allocate zeroed memory that lives until the loader is closed; and report a
 * field's failure. */
void *bagi_loader_allocate(bags_loader *l, size_t count, size_t size, bags_error *err);
bags_code bagi_loader_fail_field(
    const loader_column *c, bags_code code, const char *what, bags_error *err);

/* opening.c: add a column after the fields', named NAME plus the suffix, with one item
 * for each item of field c. Returns its number; 0 on failure. */
size_t bagi_loader_add_column(bags_loader *l, const loader_column *c,
    const char *suffix, bags_dtype dtype, bags_error *err);

/* opening.c: true for a video type whose frames can be read. */
bool bagi_loader_is_video(const bags_loader *l, const bags_type *type);

/* opening.c: the number of datapoints in a dataset, or of the windows or frames loaded
 * in their place. */
uint64_t bagi_loader_units(const bags_loader *l, size_t dataset);

/* frames.c, called in this order: find the clock; check and copy each field's window;
 * add the masks; and count the frames of all episodes. */
bags_code bagi_frames_start(bags_loader *l, bags_error *err);
bags_code bagi_frames_plan(bags_loader *l, loader_column *c, bags_error *err);
bags_code bagi_frames_add_masks(bags_loader *l, bags_error *err);
bags_code bagi_frames_open(bags_loader *l, bags_error *err);
uint64_t bagi_frames_length(const loader_frames *frames, size_t dataset);
size_t bagi_frames_checked_size(const loader_frames *frames); /* size of `checked` */

/* frames.c: announce the samples of a batch. A failure shows up when they are read. */
void bagi_frames_announce(loader_worker *w, const bags_pick *picks, size_t count);

/* frames.c: find frame number `pick->index` of its dataset; and append its sample to
 * the tensors. */
bags_code bagi_frames_find(
    loader_worker *w, const bags_pick *pick, loader_frame *out, bags_error *err);
bags_code bagi_frames_load(loader_worker *w, loader_slot *s, const loader_frame *frame,
    uint64_t random, bags_error *err);

/* frames.c: the video of a column in an episode. NULL: failed, see err. */
bags_mp4_reader *bagi_frames_video(loader_worker *w, const loader_column *c,
    size_t dataset, uint64_t episode, bags_error *err);

/* convert.c: append an item (blob `at` in the row's slot `place`) to a tensor. */
bags_code bagi_loader_load_item(loader_worker *w, const loader_column *c,
    loader_part *p, bags_load_item *item, size_t place, size_t at, bags_error *err);
bags_code bagi_loader_load_value(loader_worker *w, const loader_column *c,
    loader_part *p, const bags_load_item *item, const bags_value *value,
    bags_error *err);

/* convert.c: append the last image's matrix, if column c has matrices. p is c's
 * part. */
bags_code bagi_loader_append_matrix(
    loader_worker *w, const loader_column *c, loader_part *p, bags_error *err);
bool bagi_loader_is_convertible(bags_dtype to, bags_dtype from);

/* convert.c: convert elements. An error states the first element that does not fit. */
bags_code bagi_loader_convert(bags_dtype to_dtype, unsigned char *to,
    bags_dtype from_dtype, const unsigned char *from, size_t count, bags_error *err);

/* crop.c: make an image of the requested size from the item's blob, or from its decoded
 * value. */
bags_code bagi_loader_store_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, const bags_value *value, loader_part *p,
    bags_error *err);

/* crop.c: true if a device decodes a frame, described by *out; and forget the images of
 * the last batch. */
bool bagi_loader_is_for_device(const loader_worker *w, const loader_column *c,
    bags_mp4_reader *video, uint64_t frame, bags_image *out);
void bagi_loader_start_staged(loader_worker *w);

/* crop.c: with a device, make a column's tensor from all images of the batch; and free
 * what a thread keeps for this. */
bags_code bagi_loader_make_on_device(
    loader_worker *w, loader_slot *s, size_t column, bags_error *err);
void bagi_loader_free_staged(loader_worker *w);
bool bagi_loader_is_scale(const float *mean, const float *std);
/* False if a number is too large for float16. */
bool bagi_loader_make_scale(
    bags_dtype dtype, size_t channels, const float *mean, const float *std, float *out);

/* loader.c: continue at this packed row. */
bags_code bagi_loader_seek_row(
    bags_loader *l, const loader_cursor *to, bags_error *err);

#endif /* BAGS_FORMATS_RING_H */
