/*
 * ring.h - declarations shared by the parts of the loader: its columns, the slots of
 * its ring and its threads, and the functions by which one part calls another. Programs
 * do not include it.
 *
 *     loader.c    the ring, its threads, and the batches
 *     opening.c   options and fields: checked, planned, their memory
 *     convert.c   an item of a datapoint becomes a part of a tensor
 *     crop.c      ... if it is an image
 *     frames.c    frames of episodes: counted, found, and their windows
 *     state.c     digests and states
 */
#ifndef BAGS_FORMATS_RING_H
#define BAGS_FORMATS_RING_H

#include "gate.h"

#include "blocks.h"
#include "load.h"
#include "tokens.h"

#define LOADER_MAX_DIMS 6     /* of an item */
#define LOADER_MAX_SIDE 65535 /* pixels per side of a requested image */

typedef enum loader_form {
    LOADER_FORM_STACKED, /* items of one dtype and shape */
    LOADER_FORM_BYTES,   /* bytes and text */
    LOADER_FORM_VALUES   /* anything else: a bags_value each */
} loader_form;

typedef enum loader_blob_kind {
    LOADER_BLOB_OTHER,
    LOADER_BLOB_JPEG,
    LOADER_BLOB_PNG,
    LOADER_BLOB_VIDEO
} loader_blob_kind;

/* A field in one dataset. */
typedef struct loader_source {
    size_t field;
    size_t times; /* of seconds: the field of times */
    loader_blob_kind kind;
    bool compressed; /* zstd(TYPE) */
    bool raw;        /* blobs are an item of the tensor, byte for byte */
} loader_source;

/* How the items of a field have times. */
typedef struct loader_times {
    const char *name; /* of the field of times; NULL: by the rate */
    double rate;      /* 0 and no name: they have none */
    size_t bit;       /* of an episode whose times were checked */
} loader_times;

/* The plan for a field. */
typedef struct loader_column {
    bags_load_field given;
    const char *path;       /* of the first dataset */
    loader_source *sources; /* one per dataset */
    bool sequence, image;
    bool video;  /* with frames: items are the frames of a video */
    bool ragged; /* all items of each datapoint */
    loader_form form;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[LOADER_MAX_DIMS];
    size_t item_size;       /* bytes, if stacked */
    uint64_t span;          /* of a window: items from its first to its last */
    float *scale;           /* of float images: 256 values for each channel */
    double *center;         /* of arrays: mean, deviation of each element */
    bool by_matrix;         /* images are transformed, not resized */
    bool draws;             /* other things than the default are drawn for them */
    bags_warp_options warp; /* copies */
    bags_jitter_options jitter;

    /* With frames: */
    size_t items; /* in the window of a sample, or 1; 0: a plain field, or a mask */
    size_t mask;  /* the column with the mask of the window; 0: none */
    loader_times times; /* of a window by seconds */
    uint64_t salt;      /* of its random numbers; 0: as the sample */
} loader_column;

/* The frames that are loaded in place of datapoints. */
typedef struct loader_frames {
    bags_frames_options given;
    bags_order episodes;   /* selected, one after the other */
    uint64_t *before;      /* frames before each episode of that order, and all */
    loader_source *clocks; /* the clock, in each dataset */
    loader_times times;    /* of the clock */
    bool timed;            /* the time of each frame is needed */
    size_t bits;           /* for each episode: fields of times */
    size_t items;          /* in all windows of a sample */
    uint64_t hash;         /* of what determines the frames */
} loader_frames;

/* A frame. */
typedef struct loader_frame {
    size_t dataset;
    uint64_t episode, number;
    uint64_t count; /* items of the clock */
    uint64_t place; /* of the episode in the order of the episodes */
} loader_frame;

/* How much of a tensor's memory is used. */
typedef struct loader_extent {
    size_t size, dims; /* bytes of data; numbers in shapes */
    uint64_t items;
} loader_extent;

/* The memory of a tensor. */
typedef struct loader_part {
    bags_buffer data, offsets, ends, values, shapes;
    loader_extent used, mark; /* now, and before the datapoint being loaded */
} loader_part;

/* Where the next batch is. */
typedef struct loader_cursor {
    uint64_t epoch, batch;
    uint64_t block, row; /* of packed rows: the next one */
} loader_cursor;

typedef struct loader_slot {
    bags_batch batch;
    loader_cursor at, after; /* this batch, and the next one */
    bool ends;               /* there is no such batch */
    bags_buffer pieces;      /* of packed rows: all of the batch, */
    bags_buffer rows;        /* uint64_t: where each row starts, and all end */
    size_t row_count;
    uint64_t dropped;
    bags_code code;
    bags_error err;
    bool ready;
    bool checked; /* at the end of an epoch: its datasets are the same */
    bags_pick *picks;
    uint64_t *frames; /* NULL: none */
    bags_tensor *tensors;
    loader_part *parts;
} loader_slot;

/* A thread, and its scratch memory. */
typedef struct loader_worker {
    bags_loader *loader;
    bags_row row;
    bags_buffer value, inside, pixels, converted, resized, resampling, indices;
    bags_select *selects;
    unsigned char **targets; /* for a window or a piece, in each tensor */
    bags_mp4_cache *videos;  /* NULL: none was used */
    bags_row times;          /* of frames: a field of times */
    unsigned char *checked;  /* a bit for each field of times of an episode */
    uint64_t *chosen;        /* the items of all windows of a sample, */
    bool *outside;           /* and their masks */
    bags_buffer announced;   /* what is selected of the samples of a batch */
    gate_thread id;
    float scale[3 * 256]; /* of an image whose mean or std a callback chose */
    size_t unwatched;     /* bytes decoded since it last checked `stopping` */
} loader_worker;

struct bags_loader {
    bags_buffer memory; /* of the loader itself; see format_state */
    bags_loader_options options;
    format_block *blocks;
    const bags_reader **readers;
    size_t count;
    bags_order order;
    uint64_t batches;  /* per epoch */
    size_t slice_most; /* datapoints in the largest slice of this rank */
    loader_column *columns;
    size_t column_count;         /* including the masks of frames, at the end */
    size_t field_count;          /* columns of fields */
    bool windowed;               /* some column has a window */
    bool calls;                  /* some column has a function of the caller */
    const format_tokens *tokens; /* what is loaded in place of datapoints; or NULL */
    loader_frames *frames;       /* the same */
    bags_loader_images images;
    uint32_t data_hash, order_hash;
    bool hashed;
    loader_slot *slots;
    size_t slot_count;
    loader_worker *workers;
    size_t thread_count, worker_count, running;
    gate monitor;
    uint64_t process; /* that has the threads */
    bool started;
    format_packer *packer; /* the block of the last claim, under the lock */
    bags_row packer_row;
    loader_cursor next; /* of bags_loader_next */
    bool finished;      /* a slot without a batch was reached */
    bags_error error;   /* the first failure; it stays */

    /* Under the lock: */
    uint64_t released, claimed;
    uint64_t delivered;  /* written only by the caller's thread */
    loader_cursor claim; /* the batch that is claimed next */
    bool claimed_all;    /* none is: of packed rows, only packing shows it */
    bool stopping;
};

/* ---- the memory of a tensor ---- */

/* Reserve the next bytes of a buffer. */
static inline bags_code loader_part_reserve(
    bags_buffer *buffer, size_t used, size_t more, bags_error *err) {
    if (more > SIZE_MAX / 2 - used)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    return bags_buffer_reserve(buffer, used + more, err);
}

/* Write element `at` of a list in a buffer. The list grows by one. */
static inline bags_code loader_part_push(
    bags_buffer *buffer, uint64_t at, uint64_t value, bags_error *err) {
    if (at >= SIZE_MAX / 16)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many items in a batch");
    bags_code code = bags_buffer_reserve(buffer, ((size_t)at + 1) * sizeof value, err);
    if (!code)
        memcpy(buffer->data + (size_t)at * sizeof value, &value, sizeof value);
    return code;
}

/* ---- small functions of several parts ---- */

/* True unless it is 0, also if it is NaN. */
static inline bool loader_is_set(float x) { return !(x >= 0 && x <= 0); }

/* A shape in words. */
static inline const char *loader_shape_text(
    size_t dims, const uint64_t *shape, char text[200]) {
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < dims && used >= 0 && used < 160; i++)
        used += snprintf(
            text + used, 200 - (size_t)used, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return dims ? text : "one element";
}

/* True for damage: skip_damaged skips it. Other errors may be temporary. */
static inline bool loader_is_damage(bags_code code) {
    return code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_VALUE ||
           code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_RANGE;
}

/* ---- what one part calls of another ---- */

/* opening.c: check the arguments and plan everything, without reading; and free it. */
bags_code bagi_loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err);
void bagi_loader_free(bags_loader *l);

/* opening.c: memory until the loader is closed, zeroed; and a failure because of a field. */
void *bagi_loader_allocate(bags_loader *l, size_t count, size_t size, bags_error *err);
bags_code bagi_loader_fail_field(
    const loader_column *c, bags_code code, const char *what, bags_error *err);

/* opening.c: true for a type of videos whose frames can be read. */
bool bagi_loader_is_video(const bags_loader *l, const bags_type *type);

/* opening.c: the number of datapoints of a dataset, or of windows or frames loaded in
 * their place. */
uint64_t bagi_loader_units(const bags_loader *l, size_t dataset);

/* frames.c, in this order: find the clock; check and copy the window of each field; add the
 * masks; and count the frames of all episodes. */
bags_code bagi_frames_start(bags_loader *l, bags_error *err);
bags_code bagi_frames_plan(bags_loader *l, loader_column *c, bags_error *err);
bags_code bagi_frames_add_masks(bags_loader *l, bags_error *err);
bags_code bagi_frames_open(bags_loader *l, bags_error *err);
uint64_t bagi_frames_length(const loader_frames *frames, size_t dataset);
size_t bagi_frames_checked_size(const loader_frames *frames); /* of `checked` */

/* frames.c: request the samples of a batch. A failure shows when they are read. */
void bagi_frames_announce(loader_worker *w, const bags_pick *picks, size_t count);

/* frames.c: the frame that is number `pick->index` of its dataset; and append its sample
 * to the tensors. */
bags_code bagi_frames_find(
    loader_worker *w, const bags_pick *pick, loader_frame *out, bags_error *err);
bags_code bagi_frames_load(loader_worker *w, loader_slot *s, const loader_frame *frame,
    uint64_t random, bags_error *err);

/* convert.c: append an item, the blob `at` in slot `place` of the row, to a tensor. */
bags_code bagi_loader_load_item(loader_worker *w, const loader_column *c,
    loader_part *p, bags_load_item *item, size_t place, size_t at, bags_error *err);
bags_code bagi_loader_load_value(loader_worker *w, const loader_column *c,
    loader_part *p, const bags_load_item *item, const bags_value *value,
    bags_error *err);
bool bagi_loader_is_convertible(bags_dtype to, bags_dtype from);

/* crop.c: make an image of the requested size of the item's blob, or of the value that it
 * was decoded to. */
bags_code bagi_loader_store_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, const bags_value *value, unsigned char *to,
    bags_error *err);
bool bagi_loader_is_scale(const float *mean, const float *std);
void bagi_loader_make_scale(
    size_t channels, const float *mean, const float *std, float *out);

/* loader.c: continue with this packed row. */
bags_code bagi_loader_seek_row(
    bags_loader *l, const loader_cursor *to, bags_error *err);

#endif /* BAGS_FORMATS_RING_H */
