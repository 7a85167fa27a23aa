/*
 * ring.h - what the parts of the loader share: its columns, the slots of its ring and its
 * threads, and the functions by which one part calls another.
 * Programs do not include it.
 *
 *     loader.c    the ring, its threads, and the batches
 *     opening.c   options and fields: checked, planned, their memory
 *     convert.c   an item of a datapoint becomes a part of a tensor
 *     crop.c      ... if it is an image
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
    LOADER_BLOB_PNG
} loader_blob_kind;

/* A field in one dataset. */
typedef struct loader_source {
    size_t field;
    loader_blob_kind kind;
    bool compressed; /* zstd(TYPE) */
} loader_source;

/* What becomes of a field. */
typedef struct loader_column {
    bags_load_field given;
    const char *path;       /* of the first dataset */
    loader_source *sources; /* one per dataset */
    bool sequence, image;
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
} loader_column;

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
    size_t column_count;
    bool windowed;               /* some column has a window */
    bool calls;                  /* some column has a function of the caller */
    const format_tokens *tokens; /* what is loaded in place of datapoints; or NULL */
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
    bags_error error;   /* the first failure, which stays */

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

/* Write number `at` of a list in a buffer, which grows by one. */
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

/* Damage, which skip_damaged leaves out; all else may succeed another time. */
static inline bool loader_is_damage(bags_code code) {
    return code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_VALUE ||
           code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_RANGE;
}

/* ---- what one part calls of another ---- */

/* opening.c: check what was passed and plan everything, without reading; and free it. */
bags_code bagi_loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err);
void bagi_loader_free(bags_loader *l);

/* convert.c: append an item of a row, which has this place in it, to a tensor. */
bags_code bagi_loader_load_item(loader_worker *w, const loader_column *c,
    loader_part *p, bags_load_item *item, size_t place, bags_error *err);
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
