/*
 * loader.c - batches of tensors from datasets, shuffled, by several threads.
 *
 * It needs no library but the threads of POSIX or Windows, and libm; which datapoints
 * are in a batch is order.c's answer, and warp.c transforms images.
 *
 * A thread makes entire batches. They are in a ring of slots, of which batch number
 * t, counted from the start without those that a seek dropped, has slot t % slots:
 *
 *       released         delivered               claimed
 *          |                 |                      |
 *     free | held: the last  | ready, or being      | free
 *          | hold + 1 of     | made by a thread     |
 *          | bags_loader_next| (loader_load_batch)  |
 *
 *     free -> claimed    loader_run, while claimed < released + slots
 *     claimed -> ready   loader_run, after loader_load_batch
 *     ready -> held      bags_loader_next, in the order of t
 *     held -> free       bags_loader_next, hold + 1 calls later
 *
 * One lock guards these three numbers, `ready` of every slot, and `stopping`. A
 * claimed slot belongs to its thread, a ready or held one to the caller.
 */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE 1 /* _SC_NPROCESSORS_ONLN */
#define _NETBSD_SOURCE 1
#endif

#include "blocks.h"
#include "load.h"
#include "order.h"
#include "random.h"
#include "tokens.h"
#include "values.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(_MSC_VER)
#define LOADER_OF_THREAD __declspec(thread)
#else
#define LOADER_OF_THREAD __thread
#endif

/* ---- threads ---- */

/* The few functions of threads that the ring needs, for both systems. A gate is a lock, and
 * a signal for everything that waits: wakes are a few per batch. */
#ifdef _WIN32
typedef struct loader_gate {
    SRWLOCK lock;
    CONDITION_VARIABLE changed;
} loader_gate;
typedef HANDLE loader_thread;
typedef DWORD loader_thread_result;
#define LOADER_CALL WINAPI

static bool loader_gate_start(loader_gate *g) {
    InitializeSRWLock(&g->lock);
    InitializeConditionVariable(&g->changed);
    return true;
}

static void loader_gate_end(loader_gate *g) { (void)g; }
static void loader_lock(loader_gate *g) { AcquireSRWLockExclusive(&g->lock); }
static void loader_unlock(loader_gate *g) { ReleaseSRWLockExclusive(&g->lock); }
static void loader_wake(loader_gate *g) { WakeAllConditionVariable(&g->changed); }
static void loader_wait(loader_gate *g) {
    SleepConditionVariableSRW(&g->changed, &g->lock, INFINITE, 0);
}

/* At most this long. */
static void loader_wait_seconds(loader_gate *g, double seconds) {
    SleepConditionVariableSRW(&g->changed, &g->lock, (DWORD)(seconds * 1000), 0);
}

static double loader_now(void) { return (double)GetTickCount64() / 1000; }

static bool loader_thread_start(
    loader_thread *t, loader_thread_result(LOADER_CALL *run)(void *), void *user) {
    *t = CreateThread(NULL, 0, run, user, 0, NULL);
    return *t != NULL;
}

static void loader_thread_join(loader_thread t) {
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}

static uint64_t loader_process(void) { return GetCurrentProcessId(); }

static uint32_t loader_processors(void) {
    SYSTEM_INFO about;
    GetSystemInfo(&about);
    return (uint32_t)about.dwNumberOfProcessors;
}
#else
typedef struct loader_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} loader_gate;
typedef pthread_t loader_thread;
typedef void *loader_thread_result;
#define LOADER_CALL

static bool loader_gate_start(loader_gate *g) {
    if (pthread_mutex_init(&g->lock, NULL))
        return false;
    if (!pthread_cond_init(&g->changed, NULL))
        return true;
    pthread_mutex_destroy(&g->lock);
    return false;
}

static void loader_gate_end(loader_gate *g) {
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

static void loader_lock(loader_gate *g) { pthread_mutex_lock(&g->lock); }
static void loader_unlock(loader_gate *g) { pthread_mutex_unlock(&g->lock); }
static void loader_wake(loader_gate *g) { pthread_cond_broadcast(&g->changed); }
static void loader_wait(loader_gate *g) { pthread_cond_wait(&g->changed, &g->lock); }

/* At most this long, unless the clock is set back. */
static void loader_wait_seconds(loader_gate *g, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t nanoseconds = (uint64_t)until.tv_nsec + (uint64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

static double loader_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool loader_thread_start(
    loader_thread *t, loader_thread_result (*run)(void *), void *user) {
    return !pthread_create(t, NULL, run, user);
}

static void loader_thread_join(loader_thread t) { pthread_join(t, NULL); }

static uint64_t loader_process(void) { return (uint64_t)getpid(); }

static uint32_t loader_processors(void) {
    long count = 1;
#ifdef _SC_NPROCESSORS_ONLN
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return count > 0 ? (uint32_t)count : 1;
}
#endif

/* ---- the loader's parts ---- */

#define LOADER_MAX_DIMS 6 /* of an item */
#define LOADER_MAX_THREADS 1024
#define LOADER_TOUCHED 64     /* datapoints announced to the processor at once */
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
    loader_thread id;
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
    size_t worker_count, running;
    loader_gate monitor;
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

static void *loader_allocate(
    bags_loader *l, size_t count, size_t size, bags_error *err) {
    return format_block_add(&l->blocks, l->options.allocator, count, size, err);
}

/* ---- values ---- */

/* What may become what:
 *
 *     bool, integers   <->  bool, integers      if the value fits
 *     bool, integers    ->  float32, float64    if it is exactly representable
 *     float32          <->  float64             rounded, but not to infinity
 */
static bool loader_is_whole(bags_dtype dtype) {
    return dtype >= BAGS_DTYPE_BOOL && dtype <= BAGS_DTYPE_INT64;
}

static bool loader_is_signed(bags_dtype dtype) {
    return dtype >= BAGS_DTYPE_INT8 && dtype <= BAGS_DTYPE_INT64;
}

static bool loader_is_number(bags_dtype dtype) {
    return loader_is_whole(dtype) || dtype == BAGS_DTYPE_FLOAT32 ||
           dtype == BAGS_DTYPE_FLOAT64;
}

/* An integer in 64 bits, two's complement. */
static uint64_t loader_load_whole(bags_dtype dtype, const unsigned char *from) {
    uint16_t two;
    uint32_t four;
    uint64_t eight = from[0];
    size_t size = bags_dtype_size(dtype);
    if (size == 2) {
        memcpy(&two, from, sizeof two);
        eight = two;
    } else if (size == 4) {
        memcpy(&four, from, sizeof four);
        eight = four;
    } else if (size == 8)
        memcpy(&eight, from, sizeof eight);
    uint64_t sign = loader_is_signed(dtype) ? UINT64_C(1) << (8 * size - 1) : 0;
    return (eight ^ sign) - sign;
}

/* False if the dtype cannot hold it. */
static bool loader_store_whole(
    bags_dtype dtype, unsigned char *to, uint64_t whole, bool negative) {
    size_t size = bags_dtype_size(dtype);
    uint64_t most = dtype == BAGS_DTYPE_BOOL
                        ? 1
                        : UINT64_MAX >> (64 - 8 * size + loader_is_signed(dtype));
    uint8_t one = (uint8_t)whole;
    uint16_t two = (uint16_t)whole;
    uint32_t four = (uint32_t)whole;
    if (negative ? !loader_is_signed(dtype) || ~whole > most : whole > most)
        return false;
    memcpy(to,
        size == 1   ? (const void *)&one
        : size == 2 ? (const void *)&two
        : size == 4 ? (const void *)&four
                    : (const void *)&whole,
        size);
    return true;
}

/* True if a float can hold this integer, or its negative. */
static bool loader_is_exact(bags_dtype dtype, uint64_t whole) {
    int digits = dtype == BAGS_DTYPE_FLOAT32 ? 24 : 53;
    while (whole >> digits && whole % 2 == 0)
        whole /= 2;
    return whole >> digits == 0;
}

/* False if the dtype cannot hold it. */
static bool loader_store_real(bags_dtype dtype, unsigned char *to, double value) {
    float narrow = (float)value;
    if (dtype == BAGS_DTYPE_FLOAT64)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &narrow, sizeof narrow);
    return dtype == BAGS_DTYPE_FLOAT64 || !isinf(narrow) || isinf(value);
}

/* True if some elements can be converted. */
static bool loader_is_convertible(bags_dtype to, bags_dtype from) {
    return to == from || (loader_is_number(to) && loader_is_number(from) &&
                             (loader_is_whole(from) || !loader_is_whole(to)));
}

/* Convert elements. */
static bags_code loader_convert(bags_dtype to_dtype, unsigned char *to,
    bags_dtype from_dtype, const unsigned char *from, size_t count, bags_error *err) {
    size_t to_size = bags_dtype_size(to_dtype);
    size_t from_size = bags_dtype_size(from_dtype);
    bool fits = true, whole = loader_is_whole(from_dtype);
    if (to_dtype == from_dtype) {
        if (count)
            memcpy(to, from, count * to_size);
        return BAGS_OK;
    }
    if (!loader_is_convertible(to_dtype, from_dtype))
        return bags_fail(err, BAGS_ERROR_TYPE, "%s cannot become %s",
            bags_dtype_name(from_dtype), bags_dtype_name(to_dtype));
    for (size_t i = 0; i < count && fits; i++) {
        uint64_t bits = whole ? loader_load_whole(from_dtype, from) : 0;
        bool negative = loader_is_signed(from_dtype) && bits >> 63;
        uint64_t magnitude = negative ? 0 - bits : bits;
        double value = negative ? -(double)magnitude : (double)magnitude;
        float narrow;
        if (from_dtype == BAGS_DTYPE_FLOAT64)
            memcpy(&value, from, sizeof value);
        if (from_dtype == BAGS_DTYPE_FLOAT32) {
            memcpy(&narrow, from, sizeof narrow);
            value = (double)narrow;
        }
        fits = loader_is_whole(to_dtype)
                   ? loader_store_whole(to_dtype, to, bits, negative)
                   : loader_is_exact(to_dtype, magnitude) &&
                         loader_store_real(to_dtype, to, value);
        if (!fits && whole)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "element %" PRIu64 ": %s %s (%s%" PRIu64 ")", (uint64_t)i,
                loader_is_whole(to_dtype) ? "value out of range for"
                                          : "not exactly representable as",
                bags_dtype_name(to_dtype), negative ? "-" : "", magnitude);
        if (!fits)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "element %" PRIu64 ": value out of range for %s (%.17g)", (uint64_t)i,
                bags_dtype_name(to_dtype), value);
        from += from_size;
        to += to_size;
    }
    return BAGS_OK;
}

/* The elements of a value that is a number or an array. NONE: it is neither. */
static bags_dtype loader_elements(const bags_value *value, const unsigned char **data) {
    *data = (const unsigned char *)value->data;
    if (value->kind == BAGS_KIND_UINT)
        *data = (const unsigned char *)&value->uint;
    if (value->kind == BAGS_KIND_INT)
        *data = (const unsigned char *)&value->sint;
    return value->kind == BAGS_KIND_ARRAY  ? value->dtype
           : value->kind == BAGS_KIND_UINT ? BAGS_DTYPE_UINT64
           : value->kind == BAGS_KIND_INT  ? BAGS_DTYPE_INT64
                                           : BAGS_DTYPE_NONE;
}

/* A shape in words. */
static const char *loader_shape_text(
    size_t dims, const uint64_t *shape, char text[200]) {
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < dims && used >= 0 && used < 160; i++)
        used += snprintf(
            text + used, 200 - (size_t)used, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return dims ? text : "one element";
}

/* Make an item of a stacked field of a value. */
static bags_code loader_store_stacked(const loader_column *c, const bags_value *value,
    unsigned char *to, bags_error *err) {
    const unsigned char *from;
    bags_dtype dtype = loader_elements(value, &from);
    size_t dims = value->kind == BAGS_KIND_ARRAY ? value->dims : 0;
    bool same = dims == c->dims;
    char has[200], needs[200];
    if (!dtype)
        return bags_fail(err, BAGS_ERROR_TYPE, "not a number or an array of numbers");
    for (size_t i = 0; i < dims && same; i++)
        same = value->shape[i] == c->shape[i];
    if (!same)
        return bags_fail(err, BAGS_ERROR_VALUE, "shape mismatch (%s, expected %s)",
            loader_shape_text(dims, value->shape, has),
            loader_shape_text(c->dims, c->shape, needs));
    return loader_convert(
        c->dtype, to, dtype, from, c->item_size / bags_dtype_size(c->dtype), err);
}

/* Reserve the next bytes of a buffer. */
static bags_code loader_part_reserve(
    bags_buffer *buffer, size_t used, size_t more, bags_error *err) {
    if (more > SIZE_MAX / 2 - used)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    return bags_buffer_reserve(buffer, used + more, err);
}

/* Write number `at` of a list in a buffer, which grows by one. */
static bags_code loader_part_push(
    bags_buffer *buffer, uint64_t at, uint64_t value, bags_error *err) {
    if (at >= SIZE_MAX / 16)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many items in a batch");
    bags_code code = bags_buffer_reserve(buffer, ((size_t)at + 1) * sizeof value, err);
    if (!code)
        memcpy(buffer->data + (size_t)at * sizeof value, &value, sizeof value);
    return code;
}

/* Append an item of any kind. Its pointers are set when the batch is complete:
 * until then its data is at ends[item]. */
static bags_code loader_store_value(const loader_column *c, loader_part *p,
    const bags_value *value, bags_view blob, bags_error *err) {
    const unsigned char *from;
    bags_value copy = *value;
    bags_dtype dtype = loader_elements(value, &from);
    bool converted = dtype && c->given.dtype;
    if (value->kind == BAGS_KIND_OBJECT) {
        copy = bags_blob(blob.data, blob.size);
        from = blob.data;
    } else if (converted) {
        copy = bags_array(c->given.dtype,
            value->kind == BAGS_KIND_ARRAY ? value->dims : 0, value->shape, NULL);
        if (!bags_array_size(copy.dtype, copy.dims, copy.shape, &copy.size))
            return bags_fail(
                err, BAGS_ERROR_LIMIT, "array too large for the address space");
    }
    size_t pad = (0 - p->used.size) % 16;
    bags_code code = loader_part_reserve(&p->data, p->used.size, pad + copy.size, err);
    if (!code)
        code = loader_part_push(&p->ends, p->used.items, p->used.size + pad, err);
    if (!code)
        code = loader_part_reserve(
            &p->values, (size_t)p->used.items * sizeof copy, sizeof copy, err);
    if (!code && pad)
        memset(p->data.data + p->used.size, 0, pad);
    for (size_t i = 0; i < copy.dims && !code; i++)
        code = loader_part_push(&p->shapes, p->used.dims + i, copy.shape[i], err);
    if (!code && converted)
        code = loader_convert(copy.dtype, p->data.data + p->used.size + pad, dtype,
            from, copy.size / bags_dtype_size(copy.dtype), err);
    else if (!code && copy.size)
        memcpy(p->data.data + p->used.size + pad, from, copy.size);
    if (code)
        return code;
    memcpy(p->values.data + (size_t)p->used.items * sizeof copy, &copy, sizeof copy);
    p->used.size += pad + copy.size;
    p->used.dims += copy.dims;
    return BAGS_OK;
}

/* Append an item of bytes or text, and where it starts. */
static bags_code loader_store_bytes(
    loader_part *p, const bags_value *value, bags_error *err) {
    if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not bytes or text");
    bags_code code = loader_part_reserve(&p->data, p->used.size, value->size, err);
    if (!code)
        code = loader_part_push(&p->ends, p->used.items, p->used.size, err);
    if (code)
        return code;
    if (value->size)
        memcpy(p->data.data + p->used.size, value->data, value->size);
    p->used.size += value->size;
    return BAGS_OK;
}

/* ---- images ---- */

/* True unless it is 0, also if it is NaN. */
static bool loader_is_set(float x) { return !(x >= 0 && x <= 0); }

/* 0 .. most. */
static uint64_t loader_below(uint64_t *state, uint64_t most) {
    uint64_t random = format_random(state);
    if (most < UINT32_MAX)
        return ((random >> 32) * (most + 1)) >> 32;
    return most == UINT64_MAX ? random : random % (most + 1);
}

/* What RandomResizedCrop of torchvision does. */
static bags_part loader_crop_random(
    const loader_column *c, uint64_t *state, const bags_image *image) {
    const double least = c->given.aspect.low, most = c->given.aspect.high;
    const double part = c->given.area.high - c->given.area.low;
    double width = (double)image->width, height = (double)image->height;
    bags_part r = {0, 0, image->width, image->height};
    for (int i = 0; i < 10; i++) {
        double area =
            width * height * (c->given.area.low + part * format_uniform(state));
        double aspect =
            exp(log(least) + (log(most) - log(least)) * format_uniform(state));
        double w = rint(sqrt(area * aspect)), h = rint(sqrt(area / aspect));
        if (w >= 1 && w <= width && h >= 1 && h <= height) {
            r.width = (uint32_t)w;
            r.height = (uint32_t)h;
            r.top = (uint32_t)loader_below(state, image->height - r.height);
            r.left = (uint32_t)loader_below(state, image->width - r.width);
            return r;
        }
    }
    if (width / height < least)
        height = fmax(rint(width / least), 1);
    else if (width / height > most)
        width = fmax(rint(height * most), 1);
    r.height = (uint32_t)height;
    r.width = (uint32_t)width;
    r.top = (image->height - r.height) / 2;
    r.left = (image->width - r.width) / 2;
    return r;
}

/* Half of it, rounded to even as Python's round does. */
static uint32_t loader_half_even(uint32_t x) { return x / 2 + (x % 4 == 3); }

/* An image on its way to a tensor. */
typedef struct loader_image {
    bags_image image; /* of the pixels */
    const unsigned char *pixels;
    size_t stride;
    bool owned;       /* the pixels are in the worker's memory, and may be changed */
    bags_image whole; /* the entire image, */
    bags_part crop;   /* the rectangle that is loaded, */
    bags_part part;   /* and, of an image to be transformed, what the pixels are of */
    uint32_t width, height; /* of the crop when resized, before its middle is cut out */
    bool flip_x, flip_y;
    bags_load_draw draw;
} loader_image;

/* Memory for an image of uint8. Each step has a buffer of its own, which grows to the
 * largest image and is used again: no allocation per image. */
static bags_code loader_reserve_pixels(
    bags_buffer *buffer, const bags_image *image, bags_error *err) {
    uint64_t shape[3];
    size_t size;
    shape[0] = image->height;
    shape[1] = image->width;
    shape[2] = image->channels;
    if (!bags_array_size(BAGS_DTYPE_UINT8, 3, shape, &size))
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    return bags_buffer_reserve(buffer, size, err);
}

static bool loader_is_scale(const float *mean, const float *std) {
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = good && mean[i] >= -FLT_MAX && mean[i] <= FLT_MAX && std[i] >= 0 &&
               std[i] <= FLT_MAX;
    return good;
}

/* What a float image has for each of the 256 values of each channel, with the
 * arithmetic of NumPy and torchvision in float32. */
static void loader_make_scale(
    size_t channels, const float *mean, const float *std, float *out) {
    for (size_t i = 0; i < 256 * channels; i++) {
        float deviation = std[i / 256];
        volatile float value = (float)(i % 256) / 255.0f;
        value = value - mean[i / 256];
        out[i] = loader_is_set(deviation) ? value / deviation : value;
    }
}

/* From the result to the entire image: mirrored, scaled and moved to the crop, and then
 * to what the warp transforms to it. */
static void loader_make_matrix(
    const loader_column *c, const bags_load_item *item, loader_image *p) {
    double *m = p->draw.matrix;
    uint32_t sides[2] = {c->given.width, c->given.height};
    double scale[2] = {
        (double)p->crop.width / p->width, (double)p->crop.height / p->height};
    double start[2] = {p->crop.left + loader_half_even(p->width - sides[0]) * scale[0],
        p->crop.top + loader_half_even(p->height - sides[1]) * scale[1]};
    bool flip[2] = {p->flip_x, p->flip_y};
    double crop[9] = {0, 0, 0, 0, 0, 0, 0, 0, 1};
    for (int i = 0; i < 2; i++) {
        crop[4 * i] = flip[i] ? -scale[i] : scale[i];
        crop[3 * i + 2] = flip[i] ? start[i] + sides[i] * scale[i] : start[i];
    }
    memcpy(m, crop, sizeof crop);
    if (!c->given.warp)
        return;
    bags_warp_draw(
        &c->warp, format_key(item->random, 1), p->whole.width, p->whole.height, m);
    bags_matrix_times(m, crop, m);
    double last = m[8];
    for (int i = 0; i < 9; i++)
        m[i] /= last;
}

/* Choose everything about an image whose size is known. */
static bags_code loader_plan(const loader_column *c, const bags_load_item *item,
    uint64_t *random, loader_image *p, bags_error *err) {
    static const bags_jitter none = {1, 1, 1, 0, {0, 1, 2, 3}};
    const bags_load_field *g = &c->given;
    bool wide = p->whole.width > p->whole.height;
    p->crop.width = p->whole.width;
    p->crop.height = p->whole.height;
    p->width = g->width;
    p->height = g->height;
    if (g->crop == BAGS_CROP_RANDOM)
        p->crop = loader_crop_random(c, random, &p->whole);
    if (g->crop == BAGS_CROP_CENTER) {
        uint64_t side = g->resize;
        uint64_t longer = wide ? side * p->whole.width / p->whole.height
                               : side * p->whole.height / p->whole.width;
        if (longer > INT32_MAX)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "image too narrow (%" PRIu32 " x %" PRIu32 ")", p->whole.width,
                p->whole.height);
        p->width = (uint32_t)(wide ? longer : side);
        p->height = (uint32_t)(wide ? side : longer);
    }
    memcpy(p->draw.mean, g->mean, sizeof g->mean);
    memcpy(p->draw.std, g->std, sizeof g->std);
    p->draw.jitter = none;
    if (g->jitter)
        bags_jitter_draw(&c->jitter, format_key(item->random, 2), &p->draw.jitter);
    if (c->by_matrix)
        loader_make_matrix(c, item, p);
    bags_code code =
        g->draw ? g->draw(g->user, item, &p->whole, &p->draw, err) : BAGS_OK;
    if (!code && !loader_is_scale(p->draw.mean, p->draw.std))
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "mean and std must be finite, and std at least 0");
    return code;
}

/* Of a JPEG, decode only a rectangle; with `scaled` to a fraction of the size that
 * is still as large as requested. */
static bags_code loader_decode_jpeg(loader_worker *w, const loader_column *c,
    const bags_load_item *item, uint64_t *random, loader_image *p, bags_error *err) {
    const bags_loader_images *images = &w->loader->images;
    bags_jpeg_options options;
    memset(&options, 0, sizeof options);
    options.orient = c->given.orient;
    options.allow_trailing = true;
    bags_code code = images->jpeg_probe(item->blob, &options, &p->whole, err);
    if (!code)
        code = loader_plan(c, item, random, p, err);
    if (code)
        return code;
    p->part = p->crop;
    if (c->by_matrix)
        p->part =
            bags_warp_part(&p->whole, p->draw.matrix, c->given.width, c->given.height);
    uint32_t scale = 1;
    while (c->given.scaled && scale < 8 &&
           p->crop.width / (2 * scale) >= c->given.width &&
           p->crop.height / (2 * scale) >= c->given.height)
        scale *= 2;
    options.scale = scale;
    options.left = p->part.left / scale;
    options.top = p->part.top / scale;
    options.width = p->part.width / scale;
    options.height = p->part.height / scale;
    code = images->jpeg_probe(item->blob, &options, &p->image, err);
    if (!code)
        code = loader_reserve_pixels(&w->pixels, &p->image, err);
    if (!code)
        code = images->jpeg_decode(
            item->blob, &options, w->pixels.data, w->pixels.capacity, 0, err);
    p->pixels = w->pixels.data;
    return code;
}

/* Palettes become colours, since indices cannot be resized. */
static bags_code loader_decode_png(loader_worker *w, const loader_column *c,
    bags_view blob, loader_image *p, bags_error *err) {
    const bags_loader_images *images = &w->loader->images;
    bags_png_options options;
    memset(&options, 0, sizeof options);
    options.expand = options.allow_trailing = true;
    options.orient = c->given.orient;
    bags_code code = images->png_probe(blob, &options, &p->image, err);
    if (!code && p->image.depth != 8)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "image has %" PRIu32 " bits per channel (8 are supported)", p->image.depth);
    if (!code)
        code = loader_reserve_pixels(&w->pixels, &p->image, err);
    if (!code)
        code = images->png_decode(
            blob, &options, w->pixels.data, w->pixels.capacity, 0, err);
    p->pixels = w->pixels.data;
    return code;
}

/* The image that a codec, or a callback, has decoded. */
static bags_code loader_image_of(
    const bags_value *value, loader_image *p, bags_error *err) {
    uint64_t channels = value->dims == 3 ? value->shape[2] : 1;
    char has[200];
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != BAGS_DTYPE_UINT8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image of 8 bits per channel");
    if (value->dims < 2 || value->dims > 3 || channels < 1 || channels > 4 ||
        value->shape[0] < 1 || value->shape[0] > INT32_MAX || value->shape[1] < 1 ||
        value->shape[1] > INT32_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image (%s)",
            loader_shape_text(value->dims, value->shape, has));
    p->image.height = (uint32_t)value->shape[0];
    p->image.width = (uint32_t)value->shape[1];
    p->image.channels = (uint32_t)channels;
    p->pixels = (const unsigned char *)value->data;
    return BAGS_OK;
}

/* Convert to gray or RGB as Pillow does: alpha is dropped. */
static bags_code loader_convert_channels(
    loader_worker *w, loader_image *p, uint32_t channels, bags_error *err) {
    bags_image image = p->image;
    uint32_t from = image.channels;
    if (from == channels)
        return BAGS_OK;
    image.channels = channels;
    bags_code code = loader_reserve_pixels(&w->converted, &image, err);
    if (code)
        return code;
    unsigned char *to = w->converted.data;
    for (uint32_t y = 0; y < image.height; y++) {
        const unsigned char *at = p->pixels + y * p->stride;
        for (uint32_t x = 0; x < image.width; x++, at += from) {
            if (channels == 3) {
                *to++ = at[0];
                *to++ = at[from > 2 ? 1 : 0];
                *to++ = at[from > 2 ? 2 : 0];
            } else
                *to++ = from < 3 ? at[0]
                                 : (unsigned char)((at[0] * 19595u + at[1] * 38470u +
                                                       at[2] * 7471u + 32768) >>
                                                   16);
        }
    }
    p->image = image;
    p->pixels = w->converted.data;
    p->stride = (size_t)image.width * channels;
    return BAGS_OK;
}

/* Resize, unless it has this size. */
static bags_code loader_resize(
    loader_worker *w, const loader_column *c, loader_image *p, bags_error *err) {
    bags_image image = p->image;
    if (!c->by_matrix && image.width == p->width && image.height == p->height)
        return BAGS_OK;
    image.width = c->by_matrix ? c->given.width : p->width;
    image.height = c->by_matrix ? c->given.height : p->height;
    size_t stride = (size_t)image.width * image.channels;
    bags_code code = loader_reserve_pixels(&w->resized, &image, err);
    p->whole.channels = image.channels;
    if (!code && c->by_matrix)
        code = bags_warp(&p->whole, &p->part, p->pixels, p->stride, p->draw.matrix,
            c->given.filter, c->warp.fill, image.width, image.height, w->resized.data,
            stride, err);
    else if (!code)
        code = w->loader->images.resample(&p->image, p->pixels, p->stride, NULL,
            c->given.filter, image.width, image.height, &w->resampling, w->resized.data,
            stride, err);
    p->image = image;
    p->pixels = w->resized.data;
    p->stride = stride;
    p->owned = true;
    return code;
}

/* Change the colours of the image, which has its final size. */
static bags_code loader_jitter(
    loader_worker *w, const loader_column *c, loader_image *p, bags_error *err) {
    size_t row = (size_t)c->given.width * p->image.channels;
    p->image.width = c->given.width;
    p->image.height = c->given.height;
    if (!p->owned) {
        bags_code code = loader_reserve_pixels(&w->resized, &p->image, err);
        if (code)
            return code;
        for (uint32_t y = 0; y < p->image.height; y++)
            memcpy(w->resized.data + y * row, p->pixels + y * p->stride, row);
        p->pixels = w->resized.data;
        p->stride = row;
    }
    unsigned char *pixels = w->resized.data + (p->pixels - w->resized.data);
    return bags_jitter_apply(&p->image, pixels, p->stride, &p->draw.jitter, err);
}

/* Write pixels mirrored, normalised, or channels first. */
static void loader_store_pixels(const loader_column *c, const loader_image *p,
    const float *scales, unsigned char *to) {
    size_t width = c->given.width, height = c->given.height;
    size_t channels = p->image.channels;
    size_t step_x = c->given.nchw ? 1 : channels;
    size_t step_y = step_x * width;
    size_t step_c = c->given.nchw ? width * height : 1;
    bool flip_x = p->flip_x && !c->by_matrix, flip_y = p->flip_y && !c->by_matrix;
    float *real = (float *)(void *)to;
    for (size_t y = 0; y < height; y++)
        for (size_t k = 0; k < channels; k++) {
            const unsigned char *from =
                p->pixels + (flip_y ? height - 1 - y : y) * p->stride + k;
            size_t at = y * step_y + k * step_c;
            const float *scale = scales ? scales + 256 * k : NULL;
            if (flip_x)
                from += (width - 1) * channels;
            for (size_t x = 0; x < width; x++, at += step_x) {
                if (scale)
                    real[at] = scale[*from];
                else
                    to[at] = *from;
                from = flip_x ? from - channels : from + channels;
            }
        }
}

/* True with this probability. 0 draws no number. */
static bool loader_chance(uint64_t *random, double probability) {
    return probability > 0 && format_uniform(random) >= 1 - probability;
}

/* Make an image of the requested size of a blob, or of the value that it was
 * decoded to. */
static bags_code loader_store_image(loader_worker *w, const loader_column *c,
    loader_blob_kind kind, const bags_load_item *item, const bags_value *value,
    unsigned char *to, bags_error *err) {
    loader_image p;
    const float *scale = c->scale;
    uint64_t random = item->random;
    memset(&p, 0, sizeof p);
    p.image.depth = 8;
    p.image.dtype = BAGS_DTYPE_UINT8;
    p.flip_x = loader_chance(&random, c->given.flip_x);
    p.flip_y = loader_chance(&random, c->given.flip_y);
    bags_code code =
        kind == LOADER_BLOB_JPEG  ? loader_decode_jpeg(w, c, item, &random, &p, err)
        : kind == LOADER_BLOB_PNG ? loader_decode_png(w, c, item->blob, &p, err)
                                  : loader_image_of(value, &p, err);
    if (code)
        return code;
    p.stride = (size_t)p.image.width * p.image.channels;
    if (kind != LOADER_BLOB_JPEG) {
        p.whole = p.image;
        code = loader_plan(c, item, &random, &p, err);
        p.part.width = p.image.width;
        p.part.height = p.image.height;
    }
    if (kind != LOADER_BLOB_JPEG && !c->by_matrix) {
        p.pixels += p.crop.top * p.stride + (size_t)p.crop.left * p.image.channels;
        p.image.width = p.crop.width;
        p.image.height = p.crop.height;
    }
    if (!code)
        code = loader_convert_channels(w, &p, c->given.channels, err);
    if (!code)
        code = loader_resize(w, c, &p, err);
    if (code)
        return code;
    if (!c->by_matrix)
        p.pixels +=
            loader_half_even(p.height - c->given.height) * p.stride +
            (size_t)loader_half_even(p.width - c->given.width) * p.image.channels;
    if (c->given.jitter || c->given.draw)
        code = loader_jitter(w, c, &p, err);
    if (scale && c->given.draw) {
        loader_make_scale(p.image.channels, p.draw.mean, p.draw.std, w->scale);
        scale = w->scale;
    }
    if (!code)
        loader_store_pixels(c, &p, scale, to);
    return code;
}

/* ---- batches ---- */

/* Damage, which skip_damaged leaves out; all else may succeed another time. */
static bool loader_is_damage(bags_code code) {
    return code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_VALUE ||
           code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_RANGE;
}

/* A codec may be the program's own: what its value refers to is copied only if its
 * size, dtype and shape agree. */
static bags_code loader_check_value(const bags_value *value, bags_error *err) {
    if (value->kind == BAGS_KIND_ARRAY &&
        (value->dims > BAGS_MAX_DIMS || (value->dims && !value->shape)))
        return bags_fail(
            err, BAGS_ERROR_VALUE, "the codec returned an array without a shape");
    bags_code code =
        value->kind == BAGS_KIND_ARRAY ? format_array_check(value, err) : BAGS_OK;
    if (code)
        return code;
    if (value->size && !value->data && value->kind != BAGS_KIND_OBJECT)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "the codec returned a value without data");
    return BAGS_OK;
}

static const char loader_needs_blobs[] =
    "needs the blob inside of zstd, which is the value with the option `blobs` of "
    "bags_zstd_options";

/* Decode an item of the row by the field's own function, which gets the blob inside of
 * zstd. */
static bags_code loader_call_decode(loader_worker *w, const loader_column *c,
    bags_load_item *item, size_t field, bags_value *value, bags_error *err) {
    bags_value inside;
    bags_code code = BAGS_OK;
    if (c->sources[item->pick.dataset].compressed) {
        code = bags_row_value(
            &w->row, field, (size_t)item->item, &w->inside, &inside, err);
        if (code)
            return code; /* its message is complete */
        item->blob.data = (const unsigned char *)inside.data;
        item->blob.size = inside.size;
        if (inside.kind != BAGS_KIND_BYTES && inside.kind != BAGS_KIND_UTF8)
            code = bags_fail(err, BAGS_ERROR_TYPE, "%s", loader_needs_blobs);
    }
    if (!code)
        code = c->given.decode(c->given.user, item, &w->value, value, err);
    return code ? format_fail_at(item->reader, c->given.name, item->pick.index,
                      c->sequence ? item->item : UINT64_MAX, code, err)
                : BAGS_OK;
}

/* Read an item of the row and append it to a tensor. */
static bags_code loader_load_item(loader_worker *w, const loader_column *c,
    loader_part *p, bags_load_item *item, size_t field, bags_error *err) {
    const loader_source *from = &c->sources[item->pick.dataset];
    bags_value value;
    bags_code code = BAGS_OK;
    memset(&value, 0, sizeof value);
    item->blob = bags_row_bytes(&w->row, field, (size_t)item->item);
    item->field = from->field;
    w->unwatched += item->blob.size;
    if (c->given.decode) {
        code = loader_call_decode(w, c, item, field, &value, err);
        if (code)
            return code;
    } else if (!c->image || from->kind == LOADER_BLOB_OTHER) {
        code =
            bags_row_value(&w->row, field, (size_t)item->item, &w->value, &value, err);
        if (code == BAGS_ERROR_TYPE && c->form == LOADER_FORM_VALUES) {
            value = bags_blob(item->blob.data, item->blob.size);
            code = BAGS_OK;
        }
        if (code)
            return code; /* its message is complete */
        if ((value.kind == BAGS_KIND_BLOB || value.kind == BAGS_KIND_OBJECT) &&
            format_needs_dictionary(
                bags_reader_type(item->reader, from->field), item->blob))
            code = bags_fail(err, BAGS_ERROR_TYPE, "%s", loader_needs_blobs);
    }
    if (!code)
        code = loader_check_value(&value, err);
    if (!code && c->form == LOADER_FORM_BYTES)
        code = loader_store_bytes(p, &value, err);
    else if (!code && c->form == LOADER_FORM_VALUES)
        code = loader_store_value(c, p, &value, item->blob, err);
    else if (!code) {
        code = loader_part_reserve(&p->data, p->used.size, c->item_size, err);
        unsigned char *to = p->data.data + p->used.size;
        if (!code && c->image)
            code = loader_store_image(w, c,
                c->given.decode ? LOADER_BLOB_OTHER : from->kind, item, &value, to,
                err);
        else if (!code)
            code = loader_store_stacked(c, &value, to, err);
        p->used.size += code ? 0 : c->item_size;
    }
    p->used.items += code ? 0 : 1;
    return code ? format_fail_at(item->reader, c->given.name, item->pick.index,
                      c->sequence ? item->item : UINT64_MAX, code, err)
                : BAGS_OK;
}

/* Where the windows of a datapoint start. */
static bags_code loader_find_window(loader_worker *w, const bags_pick *pick,
    uint64_t *random, uint64_t *start, bags_error *err) {
    const bags_loader *l = w->loader;
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        uint64_t items = 0;
        if (!c->span)
            continue;
        uint64_t first = l->options.random_window ? 0 : l->options.window_start;
        bags_code code = bags_reader_items(l->readers[pick->dataset], pick->index,
            c->sources[pick->dataset].field, &w->row, &items, err);
        if (code)
            return code;
        if (items < c->span || items - c->span < first) {
            bags_fail(err, BAGS_ERROR_RANGE,
                "too short for the window (%" PRIu64 " items, needs %" PRIu64 ")",
                items, first + c->span);
            return format_fail_at(l->readers[pick->dataset], c->given.name, pick->index,
                UINT64_MAX, BAGS_ERROR_RANGE, err);
        }
        last = items - c->span < last ? items - c->span : last;
    }
    *start =
        l->options.random_window ? loader_below(random, last) : l->options.window_start;
    return BAGS_OK;
}

/* All fields of a datapoint are read by one call, and their items appended to the
 * tensors. If one fails, loader_load_batch restores what was used before. */
static bags_code loader_load_datapoint(loader_worker *w, loader_slot *s,
    const bags_pick *pick, uint64_t random, bags_error *err) {
    const bags_loader *l = w->loader;
    const bags_reader *reader = l->readers[pick->dataset];
    uint64_t start = 0;
    bags_load_item item;
    bags_code code = BAGS_OK;
    memset(&item, 0, sizeof item);
    item.reader = reader;
    item.pick = *pick;
    if (l->windowed)
        code = loader_find_window(w, pick, &random, &start, err);
    item.random = random;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        const loader_column *c = &l->columns[i];
        size_t field = c->sources[pick->dataset].field;
        w->selects[i] = c->span
                            ? bags_slice(field, start, start + c->span, c->given.stride)
                            : bags_whole(field);
    }
    if (!code)
        code = bags_reader_get(
            reader, pick->index, w->selects, l->column_count, &w->row, err);
    for (size_t i = 0; i < l->column_count && !code; i++) {
        size_t items = bags_row_length(&w->row, i);
        for (size_t k = 0; k < items && !code; k++) {
            item.item = k;
            code = loader_load_item(w, &l->columns[i], &s->parts[i], &item, i, err);
        }
        if (!code && s->parts[i].offsets.capacity)
            code = loader_part_push(
                &s->parts[i].offsets, s->batch.length + 1, s->parts[i].used.items, err);
    }
    return code;
}

/* Append a window of tokens to the tensors. */
static bags_code loader_load_window(
    loader_worker *w, loader_slot *s, const bags_pick *pick, bags_error *err) {
    const bags_loader *l = w->loader;
    for (size_t i = 0; i < l->column_count; i++)
        w->targets[i] = s->parts[i].data.data + s->parts[i].used.size;
    bags_code code =
        l->tokens->window(l->options.tokens, &w->row, pick, w->targets, err);
    for (size_t i = 0; i < l->column_count && !code; i++) {
        s->parts[i].used.size += l->columns[i].item_size;
        s->parts[i].used.items++;
        w->unwatched += l->columns[i].item_size;
    }
    return code;
}

/* Append packed row number `at` of the batch to the tensors. */
static bags_code loader_load_row(
    loader_worker *w, loader_slot *s, size_t at, bags_error *err) {
    const bags_loader *l = w->loader;
    const uint64_t *rows = (const uint64_t *)(const void *)s->rows.data;
    const bags_piece *pieces = (const bags_piece *)(const void *)s->pieces.data;
    size_t fields = l->tokens->field_count;
    loader_part *ends = &s->parts[fields];
    bags_code code = BAGS_OK;
    int32_t end = 0;
    for (uint64_t k = rows[at]; k <= rows[at + 1] && !code; k++) {
        code = loader_part_reserve(&ends->data, ends->used.size, sizeof end, err);
        if (code)
            return code;
        memcpy(ends->data.data + ends->used.size, &end, sizeof end);
        ends->used.size += sizeof end;
        ends->used.items++;
        if (k == rows[at + 1])
            break;
        for (size_t i = 0; i < fields && !code; i++) {
            loader_part *p = &s->parts[i];
            size_t size = (size_t)pieces[k].length * l->columns[i].item_size;
            code = loader_part_reserve(&p->data, p->used.size, size, err);
            w->targets[i] = p->data.data + p->used.size;
            p->used.size += size;
            p->used.items += pieces[k].length;
            w->unwatched += size;
        }
        if (!code)
            code = l->tokens->piece(
                l->options.tokens, &w->row, &pieces[k], w->targets, err);
        end += (int32_t)pieces[k].length;
    }
    for (size_t i = 0; i < l->column_count && !code; i++)
        code = loader_part_push(
            &s->parts[i].offsets, s->batch.length + 1, s->parts[i].used.items, err);
    return code;
}

/* Announce datapoints to the disk, or to the processor. Failures show when they are
 * read. */
static void loader_announce(
    loader_worker *w, const bags_pick *picks, size_t count, bool to_disk) {
    const bags_loader *l = w->loader;
    if (bags_buffer_reserve(&w->indices, count * sizeof(uint64_t), NULL))
        return;
    uint64_t *indices = (uint64_t *)(void *)w->indices.data;
    for (size_t d = 0; d < l->count; d++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++)
            if (picks[i].dataset == d)
                indices[found++] = picks[i].index;
        for (size_t i = 0; found && i < l->column_count; i++)
            w->selects[i] = bags_whole(l->columns[i].sources[d].field);
        if (found && to_disk)
            (void)bags_reader_prefetch(l->readers[d], indices, found, w->selects,
                l->column_count, &w->row, NULL);
        else if (found)
            bags_reader_touch(
                l->readers[d], indices, found, w->selects, l->column_count);
    }
}

static bool loader_is_stopping(bags_loader *l) {
    loader_lock(&l->monitor);
    bool stop = l->stopping;
    loader_unlock(&l->monitor);
    return stop;
}

/* True if the loader is being closed, or moved. Checked before a function of the caller is
 * called, otherwise after every 64 datapoints or 4 KiB, since a lock costs as much as reading
 * a small datapoint. */
static bool loader_must_stop(loader_worker *w, size_t i) {
    bags_loader *l = w->loader;
    if (!l->running || (!l->calls && i % 64 && w->unwatched < 4096))
        return false;
    w->unwatched = 0;
    return loader_is_stopping(l);
}

/* Start the tensors of a batch of at most `count` datapoints. */
static bags_code loader_start_parts(
    const bags_loader *l, loader_slot *s, size_t count, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        const loader_column *c = &l->columns[i];
        loader_part *p = &s->parts[i];
        size_t each = c->given.window ? (size_t)c->given.window : 1;
        memset(&p->used, 0, sizeof p->used);
        if (c->form == LOADER_FORM_STACKED && (!c->sequence || c->given.window))
            code = bags_buffer_reserve(&p->data, count * each * c->item_size, err);
        if (!code && c->sequence && !c->given.window)
            code = loader_part_push(&p->offsets, 0, 0, err);
    }
    return code;
}

/* Describe the tensors. */
static bags_code loader_finish_parts(
    const bags_loader *l, loader_slot *s, bags_error *err) {
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        loader_part *p = &s->parts[i];
        bags_tensor *t = &s->tensors[i];
        bags_value *values = (bags_value *)(void *)p->values.data;
        uint64_t *shapes = (uint64_t *)(void *)p->shapes.data;
        if (c->form != LOADER_FORM_STACKED) {
            bags_code code =
                loader_part_push(&p->ends, p->used.items, p->used.size, err);
            if (code)
                return code;
        }
        memset(t, 0, sizeof *t);
        t->name = c->given.name;
        t->dtype = c->dtype;
        t->data = p->data.data;
        t->size = p->used.size;
        t->items = p->used.items;
        t->offsets = (const uint64_t *)(const void *)p->offsets.data;
        t->ends = (const uint64_t *)(const void *)p->ends.data;
        t->shape[t->dims++] = t->offsets ? t->items : s->batch.length;
        if (c->given.window)
            t->shape[t->dims++] = c->given.window;
        for (size_t k = 0; k < c->dims; k++)
            t->shape[t->dims++] = c->shape[k];
        if (c->form != LOADER_FORM_VALUES)
            continue;
        t->values = values;
        for (uint64_t k = 0; k < t->items; k++) {
            values[k].data = values[k].size ? p->data.data + t->ends[k] : NULL;
            values[k].shape = shapes;
            shapes += values[k].dims;
        }
    }
    return BAGS_OK;
}

/* Describe this rank's packed rows. */
static void loader_show_rows(loader_slot *s, size_t first, size_t count) {
    const uint64_t *rows = (const uint64_t *)(const void *)s->rows.data;
    s->batch.pieces = (const bags_piece *)(const void *)s->pieces.data;
    s->batch.rows = rows + first;
    s->batch.dropped = s->dropped;
    for (size_t i = 0; i < count; i++) {
        s->picks[i].dataset = s->batch.pieces[rows[first + i]].dataset;
        s->picks[i].index = s->batch.pieces[rows[first + i]].document;
    }
}

/* The datapoints at some positions: of the caller's order they may be any, so that they are
 * checked. */
static bags_code loader_pick(const bags_loader *l, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks, bags_error *err) {
    const bags_loader_options *o = &l->options;
    if (!o->sampler)
        return bags_order_get(&l->order, epoch, start, count, picks, err);
    bags_code code =
        count ? o->sampler(o->sampler_user, epoch, start, count, picks, err) : BAGS_OK;
    for (size_t i = 0; i < count && !code; i++) {
        size_t d = picks[i].dataset;
        uint64_t length = d >= l->count ? 0
                          : l->tokens   ? l->tokens->units[d]
                                        : bags_reader_length(l->readers[d]);
        if (picks[i].index >= length)
            code = bags_fail(err, BAGS_ERROR_ARGUMENT,
                "the sampler returned index %" PRIu64 " of dataset %" PRIu64
                " for position %" PRIu64 " (length %" PRIu64 ")",
                picks[i].index, (uint64_t)d, start + i, length);
    }
    return code;
}

/* Make the batch that a slot is for. */
static bags_code loader_load_batch(loader_worker *w, loader_slot *s, bags_error *err) {
    const bags_loader *l = w->loader;
    const loader_cursor *at = &s->at;
    const bags_loader_options *o = &l->options;
    bool packed = l->tokens && l->tokens->packed;
    uint64_t start = at->batch * o->batch, left = l->order.length - start;
    uint64_t size = packed ? s->row_count : left < o->batch ? left : o->batch;
    uint64_t first = o->rank * size / o->ranks;
    size_t count = (size_t)((o->rank + UINT64_C(1)) * size / o->ranks - first);
    uint64_t key = format_key(~o->order.seed, at->epoch);
    memset(&s->batch, 0, sizeof s->batch);
    s->batch.epoch = at->epoch;
    s->batch.batch = at->batch;
    s->batch.position = start + first;
    s->batch.picks = s->picks;
    bags_code code =
        packed ? BAGS_OK
               : loader_pick(l, at->epoch, start + first, count, s->picks, err);
    if (!code && packed)
        loader_show_rows(s, (size_t)first, count);
    if (!code)
        code = loader_start_parts(l, s, count, err);
    if (!code && o->prefetch && !l->tokens)
        loader_announce(w, s->picks, count, true);
    for (size_t i = 0; i < count && !code && !loader_must_stop(w, i); i++) {
        size_t unwatched = w->unwatched;
        bags_pick pick = s->picks[i];
        if (i % LOADER_TOUCHED == 0 && l->count <= 8 && !l->tokens)
            loader_announce(w, s->picks + i,
                count - i < LOADER_TOUCHED ? count - i : LOADER_TOUCHED, false);
        for (size_t k = 0; k < l->column_count; k++)
            s->parts[k].mark = s->parts[k].used;
        if (packed)
            code = loader_load_row(w, s, (size_t)first + i, err);
        else if (l->tokens) {
            if (i + 1 < count)
                l->tokens->touch(l->options.tokens, &s->picks[i + 1]);
            code = loader_load_window(w, s, &pick, err);
        } else
            code = loader_load_datapoint(
                w, s, &pick, format_mix(key + s->batch.position + i), err);
        if (!code) {
            s->picks[s->batch.length++] = pick;
            s->batch.bytes += w->unwatched - unwatched;
        } else if (o->skip_damaged && loader_is_damage(code)) {
            code = BAGS_OK;
            s->batch.skipped++;
            for (size_t k = 0; k < l->column_count; k++)
                s->parts[k].used = s->parts[k].mark;
        }
    }
    s->batch.count = l->column_count;
    s->batch.tensors = s->tensors;
    return code ? code : loader_finish_parts(l, s, err);
}

/* True if no batch follows; without datapoints there is none at all. */
static bool loader_is_last(const bags_loader *l, const loader_cursor *at) {
    return l->batches == 0 || (l->options.epochs && at->epoch >= l->options.epochs);
}

/* To the next batch, maybe of the next epoch. */
static void loader_advance(const bags_loader *l, loader_cursor *at) {
    if (++at->batch == l->batches) {
        at->batch = 0;
        at->epoch++;
    }
}

/* Pack the blocks of an epoch until one has the row of the cursor. False: it was the
 * last one. Counts the documents that the blocks before left out. */
static bool loader_find_row(bags_loader *l, loader_cursor *at, uint64_t *dropped,
    bags_code *code, bags_error *err) {
    format_packer *p = l->packer;
    uint64_t blocks = (l->order.length + FORMAT_PACK_BLOCK - 1) / FORMAT_PACK_BLOCK;
    for (; at->block < blocks; at->block++, at->row = 0) {
        if (!p->valid || p->epoch != at->epoch || p->block != at->block) {
            *code = l->tokens->pack(l->options.tokens, p, &l->packer_row, &l->order,
                at->epoch, at->block, err);
            if (*code)
                return true;
        }
        if (at->row < p->row_count)
            return true;
        *dropped += p->dropped;
    }
    return false;
}

/* The next batch of packed rows: those of one block after another. */
static bags_code loader_claim_rows(bags_loader *l, loader_slot *s, bags_error *err) {
    const bags_loader_options *o = &l->options;
    loader_cursor at = l->claim;
    bags_code code = BAGS_OK;
    size_t count = 0, used = 0;
    s->row_count = 0;
    s->dropped = 0;
    while (!code && s->row_count < o->batch) {
        if (!loader_find_row(l, &at, &s->dropped, &code, err) || code)
            break;
        const format_packer *p = l->packer;
        const uint32_t *starts = (const uint32_t *)(const void *)p->rows.data;
        const bags_piece *from =
            (const bags_piece *)(const void *)p->pieces.data + starts[at.row];
        count = starts[at.row + 1] - starts[at.row];
        code = loader_part_reserve(
            &s->pieces, used * sizeof *from, count * sizeof *from, err);
        if (!code)
            code = loader_part_push(&s->rows, s->row_count, used, err);
        if (code)
            return code;
        memcpy(s->pieces.data + used * sizeof *from, from, count * sizeof *from);
        used += count;
        s->row_count++;
        at.row++;
    }
    if (!code)
        code = loader_part_push(&s->rows, s->row_count, used, err);
    /* An epoch ends with its last row, so that a state after it is of the next one. */
    bool last = !code && !loader_find_row(l, &at, &s->dropped, &code, err);
    if (code)
        return code;
    at.batch++;
    if (last) {
        at.epoch++;
        at.batch = at.block = at.row = 0;
    }
    s->after = l->claim = at;
    return BAGS_OK;
}

/* Claim the next batch for a slot. A failure is that of the batch. */
static bags_code loader_claim(bags_loader *l, loader_slot *s, bags_error *err) {
    bags_code code = BAGS_OK;
    s->ends = false;
    s->at = l->claim;
    if (!l->tokens || !l->tokens->packed) {
        loader_advance(l, &l->claim);
        s->after = l->claim;
        return BAGS_OK;
    }
    for (int empty = 0; empty < 2; empty++) {
        s->at = l->claim;
        code = loader_claim_rows(l, s, err);
        bool whole = s->row_count == l->options.batch;
        if (code || (s->row_count && (whole || !l->options.drop_last)))
            return code;
        if (l->options.epochs && l->claim.epoch >= l->options.epochs)
            break;
        if (s->row_count == 0)
            break;
        if (empty)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "drop_last leaves no batch (%" PRIu64 " rows, batches of %" PRIu32 ")",
                (uint64_t)s->row_count, l->options.batch);
    }
    /* Nothing follows: no epoch, or none with a row. */
    s->ends = l->claimed_all = true;
    s->after = l->claim;
    return BAGS_OK;
}

/* Move a cursor at the start of an epoch by this number of packed rows. */
static bags_code loader_skip_rows(
    bags_loader *l, loader_cursor *at, uint64_t count, bags_error *err) {
    uint64_t unused = 0;
    bags_code code = BAGS_OK;
    bool found = loader_find_row(l, at, &unused, &code, err);
    while (!code && found && count > 0) {
        uint64_t left = l->packer->row_count - at->row;
        at->row += count < left ? count : left;
        count -= count < left ? count : left;
        found = loader_find_row(l, at, &unused, &code, err);
    }
    if (!code && !found)
        code =
            bags_fail(err, BAGS_ERROR_RANGE, "batch out of range (after the last row)");
    return code;
}

/* Whose thread this is. */
static LOADER_OF_THREAD bags_loader *loader_of_thread;

bool bags_loader_is_stopping(void) {
    return loader_of_thread && loader_is_stopping(loader_of_thread);
}

/* A thread: claim the next batch, make it without the lock, announce it. A failure is
 * kept in its slot, so that it is reported in the order of the batches. */
static loader_thread_result LOADER_CALL loader_run(void *user) {
    loader_worker *w = (loader_worker *)user;
    bags_loader *l = w->loader;
    loader_of_thread = l;
    loader_lock(&l->monitor);
    while (!l->stopping) {
        if (l->claimed >= l->released + l->slot_count || l->claimed_all ||
            loader_is_last(l, &l->claim)) {
            loader_wait(&l->monitor);
            continue;
        }
        loader_slot *s = &l->slots[l->claimed++ % l->slot_count];
        s->code = loader_claim(l, s, &s->err);
        loader_unlock(&l->monitor);
        if (!s->code && !s->ends)
            s->code = loader_load_batch(w, s, &s->err);
        loader_lock(&l->monitor);
        s->ready = true;
        loader_wake(&l->monitor);
    }
    loader_unlock(&l->monitor);
    return 0;
}

/* ---- opening and closing ---- */

/* What becomes of values of a type without options. Returns the dtype that all of them
 * have, NONE if it states none. */
static bags_dtype loader_classify(const bags_type *type, loader_column *out) {
    bags_type inside;
    if (format_type_inside(type, &inside))
        type = &inside;
    bags_view first = bags_type_argument(type, 0), name = type->name;
    bool array = bags_view_is(name, "array");
    bool bytes = bags_view_is(name, "bytes") || bags_view_is(name, "utf8");
    bags_dtype dtype = BAGS_DTYPE_NONE;
    if (bags_view_is(name, "int") || bags_view_is(name, "i64"))
        dtype = BAGS_DTYPE_INT64;
    else if (bags_view_is(name, "u64"))
        dtype = BAGS_DTYPE_UINT64;
    else if (array)
        dtype = bags_dtype_parse((const char *)first.data, first.size, NULL);
    memset(out, 0, sizeof *out);
    out->form = bytes ? LOADER_FORM_BYTES : LOADER_FORM_VALUES;
    out->dtype = bytes ? BAGS_DTYPE_UINT8 : BAGS_DTYPE_NONE;
    bool stacked = dtype && (!array || type->count <= LOADER_MAX_DIMS + 1);
    for (size_t i = 1; array && i < type->count && stacked; i++) /* -1: any */
        stacked = bags_type_number(type, i, &out->shape[out->dims++]);
    out->dims = stacked ? out->dims : 0;
    if (stacked) {
        out->form = LOADER_FORM_STACKED;
        out->dtype = dtype;
    }
    return dtype;
}

/* True if the values of two types can be in one tensor. */
static bool loader_is_same_form(const loader_column *a, const loader_column *b) {
    return a->form == b->form && a->dtype == b->dtype && a->dims == b->dims &&
           !memcmp(a->shape, b->shape, a->dims * sizeof *a->shape);
}

static bags_code loader_fail_field(
    const loader_column *c, bags_code code, const char *what, bags_error *err) {
    return bags_fail(err, code, "%s: field \"%.200s\": %s", bags_path_tail(c->path),
        c->given.name, what);
}

/* Find a field in all datasets. */
static bags_code loader_find_sources(
    bags_loader *l, loader_column *c, bags_error *err) {
    for (size_t d = 0; d < l->count; d++) {
        loader_source *s = &c->sources[d];
        loader_column other;
        size_t count;
        bags_code code =
            bags_reader_field(l->readers[d], c->given.name, &s->field, err);
        if (code)
            return code;
        const bags_type *type = bags_reader_type(l->readers[d], s->field);
        s->compressed = bags_view_is(type->name, "zstd");
        (void)loader_classify(type, &other);
        if (d == 0) {
            c->sequence = type->sequence;
            c->form = other.form;
            c->dtype = other.dtype;
            c->dims = other.dims;
            memcpy(c->shape, other.shape, sizeof c->shape);
            /* A name that lives as long as the reader. */
            c->given.name = bags_reader_fields(l->readers[0], &count)[s->field].name;
        }
        if (c->sequence != type->sequence ||
            (!c->given.decode && !c->image && !c->given.dtype &&
                !loader_is_same_form(c, &other)))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.60s\": type mismatch (%.60s, expected %.60s as in "
                "%.60s)",
                bags_path_tail(bags_reader_path(l->readers[d])), c->given.name,
                bags_reader_fields(l->readers[d], &count)[s->field].type,
                bags_reader_fields(l->readers[0], &count)[c->sources->field].type,
                c->path);
        if (l->images.jpeg_probe && l->images.jpeg_decode &&
            (bags_view_is(type->name, "jpeg") || bags_view_is(type->name, "jpg")))
            s->kind = LOADER_BLOB_JPEG;
        if (l->images.png_probe && l->images.png_decode &&
            bags_view_is(type->name, "png"))
            s->kind = LOADER_BLOB_PNG;
    }
    return BAGS_OK;
}

/* Check what is drawn for an image, and set the defaults. */
static bags_code loader_check_draws(
    loader_column *c, bags_load_field *g, bags_error *err) {
    const bags_interval area = {0.08, 1}, aspect = {3.0 / 4, 4.0 / 3};
    char message[200];
    if (g->warp)
        c->warp = *g->warp;
    if (g->jitter)
        c->jitter = *g->jitter;
    const bags_warp_options *o = &c->warp;
    const struct {
        const char *name;
        bags_interval given;
        double low, high;
    } rules[] = {
        {"area", g->area, 1e-6, 1},
        {"aspect", g->aspect, 0.01, 100},
        {"scale", o->scale, 0.01, 100},
        {"degrees", o->degrees, -360, 360},
        {"shear_x", o->shear_x, -89, 89},
        {"shear_y", o->shear_y, -89, 89},
        {"translate_x", o->translate_x, -1, 1},
        {"translate_y", o->translate_y, -1, 1},
        {"perspective", {0, o->perspective}, 0, 0.65},
        {"flip_x", {0, g->flip_x}, 0, 1},
        {"flip_y", {0, g->flip_y}, 0, 1},
        {"brightness", c->jitter.brightness, 0, 1000},
        {"contrast", c->jitter.contrast, 0, 1000},
        {"saturation", c->jitter.saturation, 0, 1000},
        {"hue", c->jitter.hue, -0.5, 0.5},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        double low = rules[i].given.low, high = rules[i].given.high;
        bool empty = low >= 0 && low <= 0 && high >= 0 && high <= 0;
        if (empty || (low >= rules[i].low && low <= high && high <= rules[i].high))
            continue;
        if (low > high && low <= rules[i].high && high >= rules[i].low)
            (void)snprintf(message, sizeof message,
                "invalid range of %s (low %g > high %g)", rules[i].name, low, high);
        else
            (void)snprintf(message, sizeof message,
                "%s out of range (%g to %g, allowed %g to %g)", rules[i].name, low,
                high, rules[i].low, rules[i].high);
        return loader_fail_field(c, BAGS_ERROR_ARGUMENT, message, err);
    }
    if (!(g->area.high > 0))
        g->area = area;
    if (!(g->aspect.high > 0))
        g->aspect = aspect;
    return BAGS_OK;
}

/* Check the options of a field, and set the defaults. */
static bags_code loader_check_field(
    const bags_loader *l, loader_column *c, bags_load_field *g, bags_error *err) {
    bool image = c->image, is_float = g->dtype == BAGS_DTYPE_FLOAT32;
    bool has_side = g->width && g->height && g->width <= LOADER_MAX_SIDE &&
                    g->height <= LOADER_MAX_SIDE;
    bool has_scale = false, is_center = g->crop == BAGS_CROP_CENTER;
    bool has_exif = !g->decode, has_ranges = g->area.high > 0 || g->aspect.high > 0;
    c->by_matrix = g->warp || g->filter == BAGS_FILTER_NEAREST;
    c->draws = g->warp || g->jitter || has_ranges || g->flip_x > 0 || g->flip_y > 0;
    for (size_t i = 0; i < l->count; i++)
        has_exif = has_exif && c->sources[i].kind != LOADER_BLOB_OTHER;
    for (size_t i = 0; i < 3; i++)
        has_scale = has_scale || loader_is_set(g->mean[i]) || loader_is_set(g->std[i]);
    const format_rule rules[] = {
        {!image && (has_scale || has_ranges || g->channels || g->crop || g->resize ||
                       g->filter || g->flip_x > 0 || g->flip_y > 0 || g->warp ||
                       g->jitter || g->draw || g->nchw || g->scaled || g->orient),
            "options of images without width and height"},
        {g->dims > LOADER_MAX_DIMS || !g->dims != !g->shape || (g->dims && !g->dtype),
            "dims, at most 6, shape and dtype must be set together"},
        {g->dtype && !bags_dtype_size(g->dtype), "no such dtype"},
        {image && !c->by_matrix && !l->images.resample,
            "width and height need options.images with resample"},
        {image && !has_side, "width and height must both be 1 to 65535"},
        {g->channels > 0 && g->channels != 1 && g->channels != 3,
            "channels must be 1 or 3"},
        {image && g->dims > 0, "dims and width are mutually exclusive"},
        {g->crop > BAGS_CROP_RANDOM || g->filter > BAGS_FILTER_NEAREST,
            "no such crop or filter"},
        {g->resize && !is_center, "resize needs crop BAGS_CROP_CENTER"},
        {is_center && g->resize &&
                (g->resize < g->width || g->resize < g->height ||
                    g->resize > LOADER_MAX_SIDE),
            "resize must be at least width and height"},
        {(g->scaled || has_ranges) && g->crop != BAGS_CROP_RANDOM,
            "scaled, area and aspect need crop BAGS_CROP_RANDOM"},
        {g->scaled && c->by_matrix, "scaled excludes warp and BAGS_FILTER_NEAREST"},
        {g->orient && !has_exif,
            "orient needs fields of JPEG or PNG, and options.images with their "
            "functions"},
        {image && g->dtype && g->dtype != BAGS_DTYPE_UINT8 && !is_float,
            "the dtype of an image must be uint8 or float32"},
        {has_scale && !is_float, "mean and std need float32"},
        {!loader_is_scale(g->mean, g->std),
            "mean and std must be finite, and std at least 0"},
        {(g->stride || g->window) && !c->sequence, "a window needs a sequence"},
        {g->stride && !g->window, "stride without window"},
        {g->window > UINT32_MAX || g->stride > UINT32_MAX, "window too large"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return loader_fail_field(c, BAGS_ERROR_ARGUMENT, rules[i].what, err);
    g->stride = g->stride ? g->stride : 1;
    if (!image)
        return BAGS_OK;
    g->channels = g->channels ? g->channels : 3;
    g->dtype = g->dtype ? g->dtype : BAGS_DTYPE_UINT8;
    if (!g->resize)
        g->resize = g->width > g->height ? g->width : g->height;
    return loader_check_draws(c, g, err);
}

/* Refuse what no value of a field's type can become. */
static bags_code loader_check_types(
    const bags_loader *l, const loader_column *c, bags_error *err) {
    bags_dtype dtype = c->given.dtype;
    for (size_t d = 0; d < l->count && dtype && !c->given.decode; d++) {
        size_t count, field = c->sources[d].field;
        const bags_type *type = bags_reader_type(l->readers[d], field);
        loader_column other;
        bags_dtype stored = loader_classify(type, &other);
        other.dtype = c->dtype;
        bool possible = !stored    ? other.form != LOADER_FORM_BYTES
                        : c->image ? stored == BAGS_DTYPE_UINT8
                                   : loader_is_convertible(dtype, stored);
        bool fits = c->image || other.form != c->form || loader_is_same_form(c, &other);
        if (!possible || !fits)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.100s\": values of type %.80s cannot become %s%s",
                bags_path_tail(bags_reader_path(l->readers[d])), c->given.name,
                bags_reader_fields(l->readers[d], &count)[field].type,
                c->image ? "images" : bags_dtype_name(dtype),
                possible ? " of that shape" : "");
    }
    return BAGS_OK;
}

/* Plan a field: what its tensors are, and where its values are in each dataset. */
static bags_code loader_column_open(
    bags_loader *l, loader_column *c, const bags_load_field *given, bags_error *err) {
    bags_load_field *g = &c->given;
    *g = *given;
    c->path = bags_reader_path(l->readers[0]);
    if (!given->name)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a field without a name");
    c->sources = (loader_source *)loader_allocate(l, l->count, sizeof *c->sources, err);
    if (!c->sources)
        return BAGS_ERROR_MEMORY;
    c->image = given->width || given->height;
    bags_code code = loader_find_sources(l, c, err);
    for (loader_column *before = l->columns; before < c && !code; before++)
        if (!strcmp(before->given.name, g->name))
            code = loader_fail_field(c, BAGS_ERROR_FIELD, "listed twice", err);
    if (!code)
        code = loader_check_field(l, c, g, err);
    if (code)
        return code;
    if (c->image) {
        c->form = LOADER_FORM_STACKED;
        c->dims = 3;
        c->shape[0] = g->nchw ? g->channels : g->height;
        c->shape[1] = g->nchw ? g->height : g->width;
        c->shape[2] = g->nchw ? g->width : g->channels;
    } else if (g->decode || g->dims) {
        c->form = g->dtype ? LOADER_FORM_STACKED : LOADER_FORM_VALUES;
        c->dtype = BAGS_DTYPE_NONE;
        c->dims = g->dims;
        for (size_t i = 0; i < g->dims; i++)
            c->shape[i] = g->shape[i];
    }
    if (g->dtype && c->form == LOADER_FORM_STACKED)
        c->dtype = g->dtype;
    code = loader_check_types(l, c, err);
    if (code)
        return code;
    if (c->image && g->dtype == BAGS_DTYPE_FLOAT32) {
        c->scale = (float *)loader_allocate(l, 256 * g->channels, sizeof(float), err);
        if (!c->scale)
            return BAGS_ERROR_MEMORY;
        loader_make_scale(g->channels, g->mean, g->std, c->scale);
    }
    uint64_t most = g->window ? g->window : 1;
    c->span = g->window ? (g->window - 1) * g->stride + 1 : 0;
    l->windowed = l->windowed || g->window;
    l->calls = l->calls || g->decode || g->draw;
    if (c->form == LOADER_FORM_STACKED &&
        (!bags_array_size(c->dtype, c->dims, c->shape, &c->item_size) ||
            (c->item_size && (SIZE_MAX >> 1) / c->item_size / most <
                                 (l->slice_most ? l->slice_most : 1))))
        return loader_fail_field(
            c, BAGS_ERROR_LIMIT, "batch too large for the address space", err);
    return BAGS_OK;
}

/* Conflicts are errors, never repaired silently. A thread needs a slot to work in, and
 * the caller those that it holds: otherwise no thread could claim one. */
static bags_code loader_check_options(bags_loader *l, bags_error *err) {
    bags_loader_options *o = &l->options;
    const format_rule rules[] = {
        {l->count == 0, "no dataset"},
        {o->threads > LOADER_MAX_THREADS || o->ahead > LOADER_MAX_THREADS ||
                o->hold > LOADER_MAX_THREADS,
            "threads, ahead or hold out of range (at most 1024)"},
        {o->no_threads && (o->threads || o->ahead),
            "no_threads excludes threads and ahead"},
        {o->random_window && o->window_start,
            "random_window and window_start are mutually exclusive"},
        {!o->fields && o->field_count, "field_count without fields"},
        {o->fields && !o->field_count, "fields without field_count"},
        {o->tokens &&
                (o->fields || o->field_count || o->random_window || o->window_start),
            "tokens and fields are mutually exclusive"},
    };
    bags_code code = FORMAT_CHECK(rules, "", err);
    if (code)
        return code;
    if (o->ranks ? o->rank >= o->ranks : o->rank)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "rank out of range (%" PRIu32 ", ranks %" PRIu32 ")", o->rank, o->ranks);
    o->batch = o->batch ? o->batch : 32;
    o->ranks = o->ranks ? o->ranks : 1;
    o->ahead = o->ahead ? o->ahead : 2;
    if (!o->threads)
        o->threads = loader_processors();
    if (o->threads > LOADER_MAX_THREADS)
        o->threads = LOADER_MAX_THREADS;
    if (o->no_threads)
        o->threads = o->ahead = 0;
    l->worker_count = o->threads ? o->threads : 1;
    l->slot_count = (size_t)o->threads + o->ahead + o->hold + 1;
    return BAGS_OK;
}

/* Weights and selections need not live as long as the loader: the order has shares of
 * the former, and a copy of the latter. */
static bags_code loader_open_order(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    uint64_t *lengths = (uint64_t *)loader_allocate(l, l->count, sizeof *lengths, err);
    if (!lengths)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->count; i++)
        lengths[i] =
            l->tokens ? l->tokens->units[i] : bags_reader_length(l->readers[i]);
    bags_code code =
        bags_order_init(&l->order, lengths, l->count, &o->order, o->allocator, err);
    const format_rule rules[] = {
        {o->order.in_order, "sampler and in_order are mutually exclusive"},
        {o->order.chunk > 0, "sampler and chunk are mutually exclusive"},
        {o->order.weights != NULL, "sampler and weights are mutually exclusive"},
        {o->order.take > 0, "sampler and take are mutually exclusive"},
        {o->order.selections != NULL, "sampler and selections are mutually exclusive"},
        {o->order.replacement, "sampler and replacement are mutually exclusive"},
        {l->tokens && l->tokens->packed,
            "sampler and packed rows are mutually exclusive"},
        {!o->sampler_length || o->sampler_length > UINT64_MAX >> 1,
            "sampler_length must be 1 to 2^63-1"},
    };
    if (!code && o->sampler)
        code = FORMAT_CHECK(rules, "", err);
    if (o->sampler)
        l->order.length = o->sampler_length;
    l->options.order.weights = NULL;
    l->options.order.selections = NULL;
    l->batches = l->order.length / o->batch;
    if (!o->drop_last && l->order.length % o->batch)
        l->batches++;
    uint64_t most = l->order.length < o->batch ? l->order.length : o->batch;
    if (l->tokens && l->tokens->packed) {
        l->batches = l->order.length ? UINT64_MAX : 0; /* unknown */
        most = o->batch;
        if (!code && l->order.length / FORMAT_PACK_BLOCK > UINT32_MAX)
            code = bags_fail(err, BAGS_ERROR_LIMIT, "too many documents to be packed");
    }
    most = (most + o->ranks - 1) / o->ranks;
    if (!code && most > SIZE_MAX / sizeof(bags_pick))
        code =
            bags_fail(err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    l->slice_most = (size_t)most;
    if (!code && l->batches == 0 && l->order.length)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "drop_last leaves no batch (%" PRIu64 " datapoints, batches of "
            "%" PRIu32 ")",
            l->order.length, o->batch);
    return code;
}

/* Of tokens, the tensors are known; what is refused makes no sense for them. */
static bags_code loader_open_tokens(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    const format_tokens *t = l->tokens;
    if (t->packed && o->skip_damaged)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "skip_damaged and packed rows are mutually exclusive");
    l->columns = (loader_column *)loader_allocate(l, t->count, sizeof *l->columns, err);
    if (!l->columns)
        return BAGS_ERROR_MEMORY;
    l->column_count = t->count;
    for (size_t i = 0; i < t->count; i++) {
        loader_column *c = &l->columns[i];
        c->given.name = t->tensors[i].name;
        c->path = bags_reader_path(l->readers[0]);
        c->form = LOADER_FORM_STACKED;
        c->dtype = t->tensors[i].dtype;
        c->sequence = t->tensors[i].length == 0;
        c->dims = !c->sequence;
        c->shape[0] = t->tensors[i].length;
        c->item_size = bags_dtype_size(c->dtype) *
                       (c->sequence ? 1 : (size_t)t->tensors[i].length);
        if ((SIZE_MAX >> 1) / c->item_size < (l->slice_most ? l->slice_most : 1))
            return loader_fail_field(
                c, BAGS_ERROR_LIMIT, "batch too large for the address space", err);
    }
    if (t->packed) {
        l->packer = (format_packer *)loader_allocate(l, 1, sizeof *l->packer, err);
        if (!l->packer)
            return BAGS_ERROR_MEMORY;
        l->packer->pieces = l->packer->rows = bags_buffer_of(o->allocator);
    }
    return BAGS_OK;
}

/* Without a list, all fields of the first dataset, which the others must have. */
static bags_code loader_open_columns(bags_loader *l, bags_error *err) {
    size_t count = l->options.field_count;
    const bags_field *fields = bags_reader_fields(l->readers[0], &count);
    const bags_load_field *given = l->options.fields;
    bags_code code = BAGS_OK;
    if (given)
        count = l->options.field_count;
    l->columns = (loader_column *)loader_allocate(l, count, sizeof *l->columns, err);
    l->column_count = l->columns ? count : 0;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        bags_load_field whole;
        memset(&whole, 0, sizeof whole);
        if (!given)
            whole.name = fields[i].name;
        code = loader_column_open(l, &l->columns[i], given ? &given[i] : &whole, err);
    }
    if (l->columns && !code && !l->windowed &&
        (l->options.random_window || l->options.window_start))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "random_window and window_start need a field with a window");
    return l->columns ? code : BAGS_ERROR_MEMORY;
}

/* Allocate slots and workers. */
static bags_code loader_open_slots(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    size_t columns = l->column_count;
    bags_buffer empty = bags_buffer_of(o->allocator);
    l->slots =
        (loader_slot *)loader_allocate(l, l->slot_count, sizeof(loader_slot), err);
    l->workers = (loader_worker *)loader_allocate(
        l, l->worker_count, sizeof(loader_worker), err);
    for (size_t i = 0; l->slots && i < l->slot_count; i++) {
        loader_slot *s = &l->slots[i];
        s->picks =
            (bags_pick *)loader_allocate(l, l->slice_most, sizeof *s->picks, err);
        s->tensors =
            (bags_tensor *)loader_allocate(l, columns, sizeof *s->tensors, err);
        s->parts = (loader_part *)loader_allocate(l, columns, sizeof *s->parts, err);
        if (!s->picks || !s->tensors || !s->parts)
            return BAGS_ERROR_MEMORY;
        s->pieces = s->rows = empty;
        for (size_t k = 0; k < columns; k++) {
            loader_part *p = &s->parts[k];
            p->offsets = p->ends = p->values = p->shapes = empty;
            p->data = bags_buffer_of(o->tensors ? o->tensors : o->allocator);
        }
    }
    for (size_t i = 0; l->workers && i < l->worker_count; i++) {
        loader_worker *w = &l->workers[i];
        w->value = w->inside = w->pixels = w->converted = empty;
        w->resized = w->resampling = w->indices = empty;
        w->loader = l;
        w->selects =
            (bags_select *)loader_allocate(l, columns, sizeof *w->selects, err);
        w->targets =
            (unsigned char **)loader_allocate(l, columns, sizeof *w->targets, err);
        if (!w->selects || !w->targets)
            return BAGS_ERROR_MEMORY;
    }
    return l->slots && l->workers ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Everything that can fail without reading: datasets, order, fields, memory. */
static bags_code loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err) {
    bags_code code = loader_check_options(l, err);
    if (code)
        return code;
    l->readers =
        (const bags_reader **)loader_allocate(l, l->count, sizeof(void *), err);
    if (!l->readers)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->count; i++)
        l->readers[i] = readers[i];
    l->tokens = (const format_tokens *)(const void *)l->options.tokens;
    for (size_t i = 0; l->tokens && i < l->count; i++)
        if (l->count != l->tokens->dataset_count || l->tokens->readers[i] != readers[i])
            return bags_fail(
                err, BAGS_ERROR_ARGUMENT, "the tokens are of other readers");
    code = loader_open_order(l, err);
    if (!code)
        code = l->tokens ? loader_open_tokens(l, err) : loader_open_columns(l, err);
    return code ? code : loader_open_slots(l, err);
}

/* The threads start with the first batch, so that a loader may first be moved. */
bags_loader *bags_loader_open(const bags_reader *const *readers, size_t count,
    const bags_loader_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_loader *l = (bags_loader *)format_state(
        options ? options->allocator : NULL, sizeof *l, err);
    if (!l)
        return NULL;
    if (!loader_gate_start(&l->monitor)) {
        bags_fail(err, BAGS_ERROR_MEMORY, "cannot make a lock");
        format_state_close(l);
        return NULL;
    }
    if (options)
        l->options = *options;
    if (l->options.images)
        l->images = *l->options.images;
    l->count = readers ? count : 0;
    if (!loader_prepare(l, readers, err))
        return l;
    bags_loader_close(l);
    return NULL;
}

/* True in a child made by fork(), which does not have the threads. The memory that these
 * were writing is as it was then. */
static bool loader_is_forked(const bags_loader *l) {
    return l->running && l->process != loader_process();
}

/* Stop the threads, and forget the batches that they made. */
static void loader_stop(bags_loader *l) {
    if (l->running) {
        loader_lock(&l->monitor);
        l->stopping = true;
        loader_wake(&l->monitor);
        loader_unlock(&l->monitor);
        for (size_t i = 0; i < l->running; i++)
            loader_thread_join(l->workers[i].id);
    }
    l->running = 0;
    l->stopping = l->started = l->claimed_all = l->finished = false;
    /* The slots of the batches that are held stay theirs. */
    uint64_t held = l->options.hold + UINT64_C(1);
    l->claimed = l->delivered;
    l->released = l->delivered > held ? l->delivered - held : 0;
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        l->slots[i].ready = l->slots[i].checked = false;
}

/* Those that the system refuses are missed; without any, bags_loader_next does the
 * work. */
static void loader_start(bags_loader *l) {
    size_t started = 0, count = l->options.threads;
    l->started = true;
    l->process = loader_process();
    l->claim = l->next;
    loader_lock(&l->monitor); /* `running` is read by the threads */
    while (started < count && loader_thread_start(&l->workers[started].id, loader_run,
                                  &l->workers[started]))
        started++;
    l->running = started;
    loader_unlock(&l->monitor);
}

/* What loader_allocate made is freed last: the buffers are in it. */
void bags_loader_close(bags_loader *l) {
    if (!l || loader_is_forked(l))
        return;
    loader_stop(l);
    loader_gate_end(&l->monitor);
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        for (size_t k = 0; l->slots[i].parts && k < l->column_count; k++) {
            loader_part *p = &l->slots[i].parts[k];
            bags_buffer_free(&p->data);
            bags_buffer_free(&p->offsets);
            bags_buffer_free(&p->ends);
            bags_buffer_free(&p->values);
            bags_buffer_free(&p->shapes);
        }
    for (size_t i = 0; l->slots && i < l->slot_count; i++) {
        bags_buffer_free(&l->slots[i].pieces);
        bags_buffer_free(&l->slots[i].rows);
    }
    if (l->packer) {
        bags_buffer_free(&l->packer->pieces);
        bags_buffer_free(&l->packer->rows);
    }
    bags_row_free(&l->packer_row);
    for (size_t i = 0; l->workers && i < l->worker_count; i++) {
        loader_worker *w = &l->workers[i];
        bags_row_free(&w->row);
        bags_buffer_free(&w->value);
        bags_buffer_free(&w->inside);
        bags_buffer_free(&w->pixels);
        bags_buffer_free(&w->converted);
        bags_buffer_free(&w->resized);
        bags_buffer_free(&w->resampling);
        bags_buffer_free(&w->indices);
    }
    bags_order_free(&l->order);
    format_blocks_free(l->blocks);
    format_state_close(l);
}

/* ---- using it ---- */

/* Keep the first failure, and repeat it. */
static bags_code loader_fail(
    bags_loader *l, bags_code code, const bags_error *why, bags_error *err) {
    l->error = *why;
    l->error.code = code;
    if (err)
        *err = l->error;
    return code;
}

static bags_code loader_check_usable(bags_loader *l, bags_error *err) {
    if (loader_is_forked(l))
        return bags_fail(err, BAGS_ERROR_STATE,
            "a loader that has begun cannot be used in a child made by fork(); open it "
            "in the child");
    return l->error.code ? loader_fail(l, l->error.code, &l->error, err) : BAGS_OK;
}

/* Make the next batch in this thread. If a hook gives up, the next call tries again. */
static void loader_work(bags_loader *l, loader_slot *s) {
    s->code = loader_claim(l, s, &s->err);
    if (!s->code && !s->ends)
        s->code = loader_load_batch(&l->workers[0], s, &s->err);
    s->ready = !s->code || s->err.system != EINTR;
    if (!s->ready)
        l->claim = s->at;
}

/* Wait for the next batch, at most this long; seconds < 0: for ever. *slot is NULL if there
 * is none, or none yet: *late. */
static bags_code loader_await(
    bags_loader *l, double seconds, loader_slot **slot, bool *late, bags_error *err) {
    *slot = NULL;
    *late = false;
    bags_code code = loader_check_usable(l, err);
    if (code)
        return code;
    if (l->finished || loader_is_last(l, &l->next))
        return BAGS_OK;
    if (!l->started)
        loader_start(l);
    loader_slot *s = &l->slots[l->delivered % l->slot_count];
    if (!l->running) {
        if (!s->ready)
            loader_work(l, s);
    } else {
        double until = loader_now() + seconds, left = seconds;
        loader_lock(&l->monitor);
        if (l->delivered > l->options.hold)
            l->released = l->delivered - l->options.hold;
        loader_wake(&l->monitor);
        while (!s->ready && (seconds < 0 || left > 0)) {
            if (seconds < 0)
                loader_wait(&l->monitor);
            else
                loader_wait_seconds(&l->monitor, left < 1 ? left : 1);
            left = until - loader_now();
        }
        *late = !s->ready;
        loader_unlock(&l->monitor);
        if (*late)
            return BAGS_OK;
    }
    code = s->code;
    bags_error *why = &s->err, of_check;
    /* The batches of an epoch are of one version. */
    bool check = !s->checked && s->after.epoch != s->at.epoch;
    for (size_t i = 0; !code && i < l->count && check; i++)
        code = bags_reader_check(l->readers[i], why = &of_check);
    s->checked = !code;
    if (code && why->system == EINTR && (!l->running || why == &of_check)) {
        if (err)
            *err = *why;
        return code;
    }
    if (code)
        return loader_fail(l, code, why, err);
    *slot = s;
    return BAGS_OK;
}

bags_code bags_loader_peek(bags_loader *l, double seconds, const bags_batch **batch,
    bool *late, bags_error *err) {
    loader_slot *s = NULL;
    bool unused;
    bags_code code =
        loader_await(l, seconds >= 0 ? seconds : 0, &s, late ? late : &unused, err);
    *batch = s && !s->ends ? &s->batch : NULL;
    return code;
}

bags_code bags_loader_next(bags_loader *l, const bags_batch **batch, bags_error *err) {
    loader_slot *s = NULL;
    bool late;
    *batch = NULL;
    bags_code code = loader_await(l, -1, &s, &late, err);
    if (!s)
        return code;
    s->ready = s->checked = false;
    l->next = s->after;
    l->finished = s->ends;
    if (s->ends)
        return BAGS_OK;
    l->delivered++;
    *batch = &s->batch;
    return BAGS_OK;
}

uint64_t bags_loader_batches(const bags_loader *l) {
    return l->packer ? 0 : l->batches;
}

/* What was made ahead is dropped, since making it again costs less than keeping track
 * of batches out of order. */
bags_code bags_loader_seek(
    bags_loader *l, uint64_t epoch, uint64_t batch, bags_error *err) {
    bags_code code = loader_check_usable(l, err);
    if (code)
        return code;
    if (batch && batch >= l->batches)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "batch out of range (%" PRIu64 ", %" PRIu64 " per epoch)", batch,
            l->batches);
    loader_stop(l);
    loader_cursor to = {epoch, batch, 0, 0};
    if (l->packer && batch) {
        uint64_t each = l->options.batch, most = UINT64_MAX / each;
        code = loader_skip_rows(l, &to, (batch < most ? batch : most) * each, err);
        if (code)
            return code;
    }
    l->next = to;
    return BAGS_OK;
}

bags_view bags_tensor_get(const bags_batch *batch, const bags_tensor *t, size_t i,
    uint64_t *first, uint64_t *count) {
    bags_view bytes = {NULL, 0};
    uint64_t start = 0, stop = 0;
    if (i < batch->length) {
        start = t->offsets ? t->offsets[i] : t->items / batch->length * i;
        stop = t->offsets ? t->offsets[i + 1] : start + t->items / batch->length;
    }
    if (start < stop) {
        uint64_t each = t->size / t->items;
        uint64_t from = t->ends ? t->ends[start] : start * each;
        uint64_t to = !t->ends    ? stop * each
                      : t->values ? t->ends[stop - 1] + t->values[stop - 1].size
                                  : t->ends[stop];
        bytes.data = (const unsigned char *)t->data + from;
        bytes.size = (size_t)(to - from);
    }
    if (first)
        *first = start;
    if (count)
        *count = stop - start;
    return bytes;
}

/* ---- digests and states ---- */

/* Not cryptographic: it is to notice mistakes. States contain its results, so it must
 * stay as it is. */
static uint64_t loader_hash_number(uint64_t hash, uint64_t number) {
    return format_mix(hash ^ number) + FORMAT_GOLDEN;
}

static uint64_t loader_hash_bytes(uint64_t hash, const void *data, size_t size) {
    const unsigned char *from = (const unsigned char *)data;
    hash = loader_hash_number(hash, size);
    for (; size >= 8; size -= 8, from += 8) {
        hash = (hash ^ bagi_load_u64(from)) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    return loader_hash_number(hash, bags_load(from, size, false));
}

/* The number that a value is, if it is one. */
static uint64_t loader_number_of(const bags_value *value) {
    return value->kind == BAGS_KIND_UINT  ? value->uint
           : value->kind == BAGS_KIND_INT ? (uint64_t)value->sint
                                          : 0;
}

/* Everything that a training program can see of a datapoint, and nothing that depends
 * on threads or memory: no pointers, no padding. */
uint64_t bags_batch_digest(const bags_batch *batch) {
    uint64_t digest = 0;
    for (size_t i = 0; i < batch->length; i++) {
        uint64_t hash =
            loader_hash_number(batch->picks[i].dataset, batch->picks[i].index);
        for (size_t k = 0; k < batch->count; k++) {
            const bags_tensor *t = &batch->tensors[k];
            uint64_t first, count;
            bags_view bytes = bags_tensor_get(batch, t, i, &first, &count);
            hash = loader_hash_bytes(hash, t->name, strlen(t->name));
            hash = loader_hash_number(hash, (uint64_t)t->dtype);
            hash = loader_hash_number(hash, count);
            for (size_t d = 1; d < t->dims; d++)
                hash = loader_hash_number(hash, t->shape[d]);
            if (!t->ends)
                hash = loader_hash_bytes(hash, bytes.data, bytes.size);
            for (uint64_t j = first; t->ends && j < first + count; j++) {
                const bags_value *v = t->values ? &t->values[j] : NULL;
                bytes.data = (const unsigned char *)t->data + t->ends[j];
                bytes.size = v ? v->size : (size_t)(t->ends[j + 1] - t->ends[j]);
                hash = loader_hash_bytes(hash, bytes.data, bytes.size);
                hash = loader_hash_number(hash, v ? loader_number_of(v) : 0);
                hash = loader_hash_number(
                    hash, v ? (uint64_t)v->kind << 8 | (uint64_t)v->dtype : 0);
                for (size_t d = 0; v && d < v->dims; d++)
                    hash = loader_hash_number(hash, v->shape[d]);
            }
        }
        digest += format_mix(hash);
    }
    return digest;
}

#define LOADER_SAMPLE 4096 /* bytes of a blob that identify it */

/* Hash what a dataset is: its fields, its length, and three of its datapoints. */
static bags_code loader_hash_dataset(
    const bags_reader *reader, bags_row *row, uint64_t *hash, bags_error *err) {
    uint64_t length = bags_reader_length(reader);
    bags_error why;
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    *hash = loader_hash_number(*hash, length);
    for (size_t i = 0; i < count; i++) {
        *hash = loader_hash_bytes(*hash, fields[i].name, strlen(fields[i].name));
        *hash = loader_hash_bytes(*hash, fields[i].type, strlen(fields[i].type));
    }
    for (uint64_t i = 0; i < 3 && length; i++) {
        uint64_t index = i == 0 ? 0 : i == 1 ? length / 2 : length - 1;
        for (size_t k = 0; k < count; k++) {
            bags_view blob;
            bags_code code =
                bags_reader_get_blob(reader, index, k, 0, row, &blob, &why);
            if (code && !loader_is_damage(code)) { /* such as no item 0 */
                if (err)
                    *err = why;
                return code;
            }
            *hash = loader_hash_number(*hash, blob.size);
            *hash = loader_hash_bytes(*hash, blob.data,
                blob.size < LOADER_SAMPLE ? blob.size : LOADER_SAMPLE);
        }
    }
    return BAGS_OK;
}

/* Hash what is drawn for the images of a field. */
static uint64_t loader_hash_draws(uint64_t hash, const loader_column *c) {
    const bags_load_field *g = &c->given;
    const bags_warp_options *o = &c->warp;
    const bags_jitter_options *j = &c->jitter;
    const bags_interval all[] = {g->area, g->aspect, {g->flip_x, g->flip_y}, o->degrees,
        o->scale, o->shear_x, o->shear_y, o->translate_x, o->translate_y,
        {o->perspective, 0}, j->brightness, j->contrast, j->saturation, j->hue};
    hash = loader_hash_bytes(hash, g->name, strlen(g->name));
    hash = loader_hash_number(hash, (uint64_t)g->crop);
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        double number = i % 2 ? all[i / 2].high : all[i / 2].low;
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        hash = loader_hash_number(hash, bits);
    }
    return hash;
}

/* Hash the datasets, and the options that determine the order. */
static bags_code loader_hash_all(bags_loader *l, bags_error *err) {
    const bags_order *o = &l->order;
    const uint32_t *shares = format_order_tables_of(o).shares;
    uint64_t data = 0, order = 0;
    bags_code code = BAGS_OK;
    bags_row row;
    if (l->hashed)
        return BAGS_OK;
    memset(&row, 0, sizeof row);
    for (size_t i = 0; i < l->count && !code; i++)
        code = loader_hash_dataset(l->readers[i], &row, &data, err);
    bags_row_free(&row);
    if (code)
        return code;
    order = loader_hash_number(order, o->chunk);
    order = loader_hash_number(order, o->window);
    order = loader_hash_number(order, (uint64_t)o->replacement << 2 |
                                          (uint64_t)o->in_order << 1 |
                                          (uint64_t)l->options.drop_last);
    for (size_t i = 0; o->weighted && i < o->count; i++)
        order = loader_hash_number(order, shares[i] + UINT64_C(1));
    if (o->selection)
        order = loader_hash_number(order, o->selection);
    if (l->tokens)
        order = loader_hash_number(order, l->tokens->hash);
    if (l->packer || l->options.sampler)
        order = loader_hash_number(order, o->length);
    if (l->options.sampler)
        order = loader_hash_number(order, l->options.sampler_hash);
    for (size_t i = 0; i < l->column_count; i++)
        if (l->columns[i].draws)
            order = loader_hash_draws(order, &l->columns[i]);
    l->data_hash = (uint32_t)(data >> 32);
    l->order_hash = (uint32_t)(order >> 32);
    l->hashed = true;
    return BAGS_OK;
}

#define LOADER_STATE_MAGIC "BAGSLD\1\0"
#define LOADER_STATE_PACKED "BAGSPK\1\0" /* of packed rows */

/* What differs if a number of a state does; NULL: it may. */
static const char *const loader_state_members[] = {
    "the seed differs",
    NULL,
    NULL,
    "the number of datapoints differs",
    "the batch size differs",
    "the number of datasets differs",
    "the datasets differ in length, fields, types or content",
    "tokens, sampler, selections, replacement, chunk, window, weights, in_order, "
    "drop_last, or what is drawn for images differ",
};

enum {
    LOADER_STATE_MEMBERS = 8,
    LOADER_STATE_EPOCH = 1,
    LOADER_STATE_BATCH = 2,
    LOADER_STATE_LENGTH = 3, /* or of packed rows block and row */
    LOADER_STATE_HASHES = 6
};

/* Write the numbers of a state, or else read them. */
static void loader_state_move(
    unsigned char *state, uint64_t numbers[LOADER_STATE_MEMBERS], bool write) {
    size_t at = 8;
    for (size_t i = 0, size = 8; i < LOADER_STATE_MEMBERS; i++, at += size) {
        size = i < 4 ? 8 : 4;
        if (write)
            bags_store(state + at, size, false, numbers[i]);
        else
            numbers[i] = bags_load(state + at, size, false);
    }
}

/* The position is that of the caller, not that of the threads, which are ahead. */
bags_code bags_loader_save(
    bags_loader *l, unsigned char state[BAGS_LOADER_STATE], bags_error *err) {
    uint64_t numbers[LOADER_STATE_MEMBERS];
    bags_code code = loader_hash_all(l, err);
    if (code)
        return code;
    numbers[0] = l->order.seed;
    numbers[LOADER_STATE_EPOCH] = l->next.epoch;
    numbers[LOADER_STATE_BATCH] = l->next.batch;
    numbers[LOADER_STATE_LENGTH] =
        l->packer ? l->next.block << 32 | l->next.row
                  : format_order_tables_of(&l->order).starts[l->count];
    numbers[4] = l->options.batch;
    numbers[5] = l->count;
    numbers[LOADER_STATE_HASHES] = l->data_hash;
    numbers[LOADER_STATE_HASHES + 1] = l->order_hash;
    memcpy(state, l->packer ? LOADER_STATE_PACKED : LOADER_STATE_MAGIC, 8);
    loader_state_move(state, numbers, true);
    bags_store(state + 56, 8, false, loader_hash_bytes(0, state, 56));
    return BAGS_OK;
}

/* The state that this loader would save now is compared number by number, so that the
 * message can name what differs. */
bags_code bags_loader_restore(
    bags_loader *l, const void *state, size_t size, bags_error *err) {
    unsigned char saved[BAGS_LOADER_STATE], here[BAGS_LOADER_STATE];
    uint64_t numbers[LOADER_STATE_MEMBERS], needs[LOADER_STATE_MEMBERS];
    if (size != sizeof saved)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "not a loader's state (%" PRIu64 " bytes, expected 64)", (uint64_t)size);
    memcpy(saved, state, sizeof saved);
    if (memcmp(saved, LOADER_STATE_MAGIC, 8) != 0 &&
        memcmp(saved, LOADER_STATE_PACKED, 8) != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a loader's state of version 1");
    if (bags_load(saved + 56, 8, false) != loader_hash_bytes(0, saved, 56))
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "a damaged loader's state (checksum mismatch)");
    bags_code code = bags_loader_save(l, here, err);
    if (code)
        return code;
    if (memcmp(saved, here, 8) != 0)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a state of other datasets or options: it is %sof packed rows",
            l->packer ? "not " : "");
    loader_state_move(saved, numbers, false);
    loader_state_move(here, needs, false);
    for (size_t i = 0; i < LOADER_STATE_MEMBERS; i++) {
        char values[64] = "";
        if (!loader_state_members[i] || numbers[i] == needs[i] ||
            (l->packer && i == LOADER_STATE_LENGTH))
            continue;
        if (i < LOADER_STATE_HASHES)
            (void)snprintf(values, sizeof values, " (%" PRIu64 ", here %" PRIu64 ")",
                numbers[i], needs[i]);
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a state of other datasets or options: %s%s", loader_state_members[i],
            values);
    }
    if (!l->packer)
        return bags_loader_seek(
            l, numbers[LOADER_STATE_EPOCH], numbers[LOADER_STATE_BATCH], err);
    loader_cursor before = l->next;
    code = bags_loader_seek(l, 0, 0, err);
    if (code)
        return code;
    loader_cursor to = {numbers[LOADER_STATE_EPOCH], numbers[LOADER_STATE_BATCH],
        numbers[LOADER_STATE_LENGTH] >> 32, numbers[LOADER_STATE_LENGTH] & UINT32_MAX};
    loader_cursor at = to;
    uint64_t unused = 0;
    bool found = loader_find_row(l, &at, &unused, &code, err);
    if (!code && (to.block || to.row) &&
        (!found || at.block != to.block || at.row != to.row))
        code = bags_fail(
            err, BAGS_ERROR_CORRUPT, "a damaged loader's state (no such row)");
    l->next = code ? before : to;
    return code;
}
