/*
 * loader.c - batches of tensors from datasets, shuffled, by several threads.
 *
 * It needs no library but the threads of POSIX or Windows, and libm. The order of
 * datapoints (bags_permute, bags_order) knows nothing of reading: a position of an
 * epoch becomes an index by arithmetic alone. So any batch of any epoch can be made
 * at any time by any thread, and a state is a few numbers.
 *
 * A thread makes entire batches. They are in a ring of slots, of which batch number
 * t, counted from the start without those that a seek dropped, has slot t % slots:
 *
 *       released         delivered             claimed
 *          |                 |                    |
 *     free | held: the last  | ready, or being    | free
 *          | hold + 1 of     | made by a thread   |
 *          | bags_loader_next| (load_batch)       |
 *
 *     free -> claimed    run_worker, while claimed < released + slots
 *     claimed -> ready   run_worker, after load_batch
 *     ready -> held      bags_loader_next, in the order of t
 *     held -> free       bags_loader_next, hold + 1 calls later
 *
 * One lock guards these three numbers, `ready` of every slot, and `stopping`. A
 * claimed slot belongs to its thread, a ready or held one to the caller.
 *
 * Of the lines, a fifth is the order, which no library has exactly, and a third what
 * becomes of fields: numbers of every dtype, values of any kind, and images with the
 * very pixels that torchvision and Pillow make. The rest is the ring with the threads
 * of two systems, options that are all checked before a thread starts, digests, and
 * states.
 */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE 1 /* _SC_NPROCESSORS_ONLN */
#define _NETBSD_SOURCE 1
#endif

#include "loader.h"
#include "private.h"

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
#include <unistd.h>
#endif

/* ------------------------------------------------------------------------
 * Permutations
 * --------------------------------------------------------------------- */

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / the golden ratio, odd */

/* A bijection of 64 bits in which every bit depends on all. */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t make_key(uint64_t seed, uint64_t number) {
    return mix(mix(seed + GOLDEN) + number);
}

/* The next of a series of random numbers. */
static uint64_t next_random(uint64_t *state) { return mix(*state += GOLDEN); }

/*
 * A Feistel network in mixed radix: x is the pair (x >> bits, x & mask) of numbers
 * below `high` and 2^bits. Each round adds a hash of one to the other, modulo its
 * range, which is a bijection of all pairs whatever the hash is. There are fewer
 * than 2^bits pairs too many, next to none of a long list: those are permuted again
 * until the result is below length. bits is rounded up, so that 2^bits is even and
 * odd permutations exist, too.
 */
typedef struct radix {
    uint64_t length, high, mask;
    unsigned bits, rounds;
} radix;

static radix radix_of(uint64_t length) {
    radix r;
    unsigned width = 0;
    while (width < 63 && (length - 1) >> width)
        width++;
    r.length = length;
    r.bits = (width + 1) / 2;
    r.mask = (UINT64_C(1) << r.bits) - 1;
    r.high = ((length - 1) >> r.bits) + 1;
    /* The fewer values the halves have, the slower rounds mix them: with 24, some
     * orders of 5 and 6 elements are 0.2 % more frequent. See tests/README.md. */
    r.rounds = length < 64 ? 64 : length < 4096 ? 24 : 12;
    return r;
}

/* 32 bits. */
static uint64_t hash_half(uint64_t half, uint64_t key) {
    uint64_t x = (half + key) * UINT64_C(0xD6E8FEB86659FD93);
    x = (x ^ (x >> 32)) * UINT64_C(0xCA9B0C7EBA1DA115);
    return x >> 32;
}

static uint64_t permute(const radix *r, uint64_t key, uint64_t x) {
    do {
        uint64_t high = x >> r->bits, low = x & r->mask, round = key;
        for (unsigned i = 0; i < r->rounds; i += 2) {
            low = (low + hash_half(high, round += GOLDEN)) & r->mask;
            high += (hash_half(low, round += GOLDEN) * r->high) >> 32;
            high -= high >= r->high ? r->high : 0;
        }
        x = high << r->bits | low;
    } while (x >= r->length);
    return x;
}

static uint64_t permute_back(const radix *r, uint64_t key, uint64_t x) {
    do {
        uint64_t high = x >> r->bits, low = x & r->mask;
        uint64_t round = key + r->rounds * GOLDEN;
        for (unsigned i = 0; i < r->rounds; i += 2) {
            uint64_t add = (hash_half(low, round) * r->high) >> 32;
            high = high < add ? high + r->high - add : high - add;
            round -= GOLDEN;
            low = (low - hash_half(high, round)) & r->mask;
            round -= GOLDEN;
        }
        x = high << r->bits | low;
    } while (x >= r->length);
    return x;
}

#define MAX_LENGTH (UINT64_MAX >> 1)

uint64_t bags_permute(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t position) {
    if (position >= length || length > MAX_LENGTH)
        return UINT64_MAX;
    radix r = radix_of(length);
    return permute(&r, make_key(seed, epoch), position);
}

uint64_t bags_permute_inverse(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t index) {
    if (index >= length || length > MAX_LENGTH)
        return UINT64_MAX;
    radix r = radix_of(length);
    return permute_back(&r, make_key(seed, epoch), index);
}

/* ------------------------------------------------------------------------
 * Orders
 * --------------------------------------------------------------------- */

#define BLOCK ((size_t)1024) /* positions in which weights are exact */

/*
 * One epoch of one list. With chunks:
 *
 *     positions   | window 0      | window 1      | ... shuffled within
 *     chunks      | c0 c1 ... cG-1| cG ...        | ... a permutation of all
 *
 * The last chunk of the list can be short, by `missing` datapoints. It is number
 * `short_at` of the permutation, and the windows after its own start that much
 * earlier.
 */
typedef struct walk {
    bool in_order;
    uint64_t key;
    radix all; /* of datapoints; with chunks, of chunks */
    uint64_t chunk, chunks, window, missing, short_at;

    /* The window of the last position: */
    uint64_t start, stop; /* its positions */
    uint64_t first;       /* number of its first chunk */
    uint64_t gap;         /* its datapoints before those that are missing */
    uint64_t key_within;
    radix within;
    uint64_t *found; /* its chunks, UNKNOWN until they are needed; or NULL */
} walk;

#define FOUND ((size_t)256) /* chunks in the largest window with `found` */
#define UNKNOWN UINT64_MAX

static walk walk_start(
    const bags_order *order, uint64_t seed, uint64_t epoch, uint64_t length) {
    walk w;
    memset(&w, 0, sizeof w);
    w.in_order = order->in_order;
    w.key = make_key(seed, epoch);
    w.chunk = order->chunk < length ? order->chunk : length;
    w.chunks = w.chunk ? (length - 1) / w.chunk + 1 : 0;
    w.all = radix_of(w.chunk ? w.chunks : length);
    if (w.chunk) {
        w.window = order->window < w.chunks ? order->window : w.chunks;
        w.missing = w.chunks * w.chunk - length;
        w.short_at = permute_back(&w.all, w.key, w.chunks - 1);
    }
    return w;
}

static void walk_enter(walk *w, uint64_t position) {
    uint64_t short_window = w->short_at / w->window;
    uint64_t end = (short_window + 1) * w->window; /* of its chunks */
    if (end > w->chunks)
        end = w->chunks;
    uint64_t shift = position < end * w->chunk - w->missing ? 0 : w->missing;
    uint64_t window = (position + shift) / (w->window * w->chunk);
    w->first = window * w->window;
    uint64_t count = w->chunks - w->first;
    if (count > w->window)
        count = w->window;
    uint64_t size = count * w->chunk;
    w->gap = size;
    if (window == short_window) {
        size -= w->missing;
        w->gap = (w->short_at - w->first + 1) * w->chunk - w->missing;
    }
    w->start = w->first * w->chunk - shift;
    w->stop = w->start + size;
    w->within = radix_of(size);
    w->key_within = make_key(w->key, window);
    for (uint64_t i = 0; w->found && i < count; i++)
        w->found[i] = UNKNOWN;
}

static uint64_t walk_get(walk *w, uint64_t position) {
    if (w->in_order)
        return position;
    if (!w->chunk)
        return permute(&w->all, w->key, position);
    if (position < w->start || position >= w->stop)
        walk_enter(w, position);
    uint64_t at = permute(&w->within, w->key_within, position - w->start);
    if (at >= w->gap)
        at += w->missing;
    uint64_t number = at / w->chunk;
    uint64_t chunk = w->found ? w->found[number] : UNKNOWN;
    if (chunk == UNKNOWN)
        chunk = permute(&w->all, w->key, w->first + number);
    if (w->found)
        w->found[number] = chunk;
    return chunk * w->chunk + at % w->chunk;
}

/* What the memory of an order contains. */
typedef struct tables {
    uint64_t *starts; /* of the datasets in the list of all, and its length */
    uint32_t *shares; /* with weights: slots of each dataset in a block */
    uint32_t *slots;  /* with weights: the dataset of each slot */
} tables;

static tables tables_of(const bags_order *order) {
    tables t;
    t.starts = (uint64_t *)(void *)order->memory.data;
    t.shares = (uint32_t *)(void *)(t.starts + order->count + 1);
    t.slots = t.shares + order->count;
    return t;
}

/* Divide the slots of a block among the datasets. */
static bags_code share_slots(
    bags_order *order, const double *weights, bags_error *err) {
    tables t = tables_of(order);
    double sum = 0, left[BLOCK];
    size_t used = 0;
    for (size_t i = 0; i < order->count; i++) {
        if (!(weights[i] > 0))
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "weight %" PRIu64 " is not positive (%g)", (uint64_t)i, weights[i]);
        sum += weights[i];
    }
    if (!(sum <= 1e300))
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "weights too large (sum %g)", sum);
    for (size_t i = 0; i < order->count; i++) {
        double exact = (double)BLOCK * weights[i] / sum;
        t.shares[i] = (uint32_t)exact;
        left[i] = exact - (double)t.shares[i];
        used += t.shares[i];
    }
    for (; used < BLOCK; used++) {
        size_t most = 0;
        for (size_t i = 1; i < order->count; i++)
            if (left[i] > left[most])
                most = i;
        t.shares[most]++;
        left[most] = -1;
    }
    for (size_t i = 0, at = 0; i < order->count; i++) {
        if (t.shares[i] == 0)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "weight %" PRIu64 " is too small (%g of %g: less than one of "
                "1,024 positions)",
                (uint64_t)i, weights[i], sum);
        for (uint32_t k = 0; k < t.shares[i]; k++)
            t.slots[at++] = (uint32_t)i;
    }
    return BAGS_OK;
}

static bags_code check_order(const bags_order_options *given, const uint64_t *lengths,
    size_t count, bags_error *err) {
    if (count == 0)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "no dataset");
    if (given->in_order && (given->chunk || given->weights))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "in_order and %s are mutually exclusive",
            given->chunk ? "chunk" : "weights");
    if (given->window && !given->chunk)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "window without chunk");
    if (given->weights && count > BLOCK)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "too many datasets for weights (%" PRIu64 ", at most 1,024)",
            (uint64_t)count);
    for (size_t i = 0; given->weights && i < count; i++)
        if (lengths[i] == 0)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "dataset %" PRIu64 " is empty, but has a weight", (uint64_t)i);
    return BAGS_OK;
}

bags_code bags_order_init(bags_order *order, const uint64_t *lengths, size_t count,
    const bags_order_options *options, const bags_allocator *allocator,
    bags_error *err) {
    bags_order_options given;
    memset(&given, 0, sizeof given);
    memset(order, 0, sizeof *order);
    if (options)
        given = *options;
    bags_code code = check_order(&given, lengths, count, err);
    if (code)
        return code;
    order->count = count;
    order->seed = given.seed;
    order->in_order = given.in_order;
    order->weighted = given.weights != NULL;
    order->chunk = given.chunk;
    order->window = given.chunk && !given.window ? 256 : given.window;
    order->memory = bags_buffer_of(allocator);
    if (count >= SIZE_MAX / 32)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many datasets");
    code = bags_buffer_reserve(&order->memory,
        (count + 1) * sizeof(uint64_t) +
            (order->weighted ? (count + BLOCK) * sizeof(uint32_t) : 0),
        err);
    if (code)
        return code;
    uint64_t *starts = tables_of(order).starts;
    starts[0] = 0;
    for (size_t i = 0; i < count; i++) {
        if (lengths[i] > MAX_LENGTH - order->length)
            return bags_fail(err, BAGS_ERROR_LIMIT, "2^63 datapoints or more");
        starts[i + 1] = order->length += lengths[i];
    }
    if (!order->weighted)
        return BAGS_OK;
    order->length = (order->length + BLOCK - 1) / BLOCK * BLOCK;
    return share_slots(order, given.weights, err);
}

void bags_order_free(bags_order *order) {
    if (!order)
        return;
    bags_buffer_free(&order->memory);
    memset(order, 0, sizeof *order);
}

/* The dataset of a place in the list of all. */
static bags_pick pick_of(const bags_order *order, uint64_t place) {
    const uint64_t *starts = tables_of(order).starts;
    size_t low = 0, high = order->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (starts[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    bags_pick pick;
    pick.dataset = low;
    pick.index = place - starts[low];
    return pick;
}

/* Positions of one block, counted over all epochs: its slots from 0, of which those
 * from `from` on are wanted. A dataset's slots are numbered as they come, so that it
 * is walked in order. */
static void pick_block(const bags_order *order, uint64_t block, size_t from,
    size_t stop, bags_pick *picks) {
    tables t = tables_of(order);
    uint16_t seen[BLOCK];
    radix r = radix_of(BLOCK);
    uint64_t key = make_key(order->seed ^ GOLDEN, block);
    memset(seen, 0, order->count * sizeof *seen);
    for (size_t i = 0; i < stop; i++) {
        size_t dataset = t.slots[permute(&r, key, i)];
        uint64_t number = block * t.shares[dataset] + seen[dataset]++;
        uint64_t length = t.starts[dataset + 1] - t.starts[dataset];
        if (i < from)
            continue;
        walk w = walk_start(
            order, make_key(order->seed, ~(uint64_t)dataset), number / length, length);
        picks[i - from].dataset = dataset;
        picks[i - from].index = walk_get(&w, number % length);
    }
}

bags_code bags_order_get(const bags_order *order, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks, bags_error *err) {
    if (start > order->length || count > order->length - start)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "positions out of range (%" PRIu64 " and %" PRIu64 " more, length %" PRIu64
            ")",
            start, (uint64_t)count, order->length);
    if (count == 0)
        return BAGS_OK;
    if (!order->weighted) {
        uint64_t found[FOUND];
        walk w = walk_start(order, order->seed, epoch, order->length);
        w.found = w.window <= FOUND ? found : NULL;
        for (size_t i = 0; i < count; i++) {
            uint64_t place = walk_get(&w, start + i);
            if (order->count == 1) {
                picks[i].dataset = 0;
                picks[i].index = place;
            } else
                picks[i] = pick_of(order, place);
        }
        return BAGS_OK;
    }
    if (epoch >= MAX_LENGTH / order->length)
        return bags_fail(
            err, BAGS_ERROR_RANGE, "epoch out of range (%" PRIu64 ")", epoch);
    uint64_t at = epoch * order->length + start;
    for (size_t i = 0; i < count;) {
        size_t from = (size_t)((at + i) % BLOCK);
        size_t stop = count - i < BLOCK - from ? from + (count - i) : BLOCK;
        pick_block(order, (at + i) / BLOCK, from, stop, picks + i);
        i += stop - from;
    }
    return BAGS_OK;
}

/* ------------------------------------------------------------------------
 * Threads
 * --------------------------------------------------------------------- */

/* A lock, and a signal for everything that waits. */
#ifdef _WIN32
typedef struct gate {
    SRWLOCK lock;
    CONDITION_VARIABLE changed;
} gate;
typedef HANDLE thread;
typedef DWORD thread_result;
#define THREAD_CALL WINAPI

static bool gate_start(gate *g) {
    InitializeSRWLock(&g->lock);
    InitializeConditionVariable(&g->changed);
    return true;
}

static void gate_end(gate *g) { (void)g; }
static void gate_lock(gate *g) { AcquireSRWLockExclusive(&g->lock); }
static void gate_unlock(gate *g) { ReleaseSRWLockExclusive(&g->lock); }
static void gate_wake(gate *g) { WakeAllConditionVariable(&g->changed); }
static void gate_wait(gate *g) {
    SleepConditionVariableSRW(&g->changed, &g->lock, INFINITE, 0);
}

static bool thread_start(
    thread *t, thread_result(THREAD_CALL *run)(void *), void *user) {
    *t = CreateThread(NULL, 0, run, user, 0, NULL);
    return *t != NULL;
}

static void thread_join(thread t) {
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}

static uint32_t count_processors(void) {
    SYSTEM_INFO about;
    GetSystemInfo(&about);
    return (uint32_t)about.dwNumberOfProcessors;
}
#else
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} gate;
typedef pthread_t thread;
typedef void *thread_result;
#define THREAD_CALL

static bool gate_start(gate *g) {
    if (pthread_mutex_init(&g->lock, NULL))
        return false;
    if (!pthread_cond_init(&g->changed, NULL))
        return true;
    pthread_mutex_destroy(&g->lock);
    return false;
}

static void gate_end(gate *g) {
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

static void gate_lock(gate *g) { pthread_mutex_lock(&g->lock); }
static void gate_unlock(gate *g) { pthread_mutex_unlock(&g->lock); }
static void gate_wake(gate *g) { pthread_cond_broadcast(&g->changed); }
static void gate_wait(gate *g) { pthread_cond_wait(&g->changed, &g->lock); }

static bool thread_start(thread *t, thread_result (*run)(void *), void *user) {
    return !pthread_create(t, NULL, run, user);
}

static void thread_join(thread t) { pthread_join(t, NULL); }

static uint32_t count_processors(void) {
    long count = 1;
#ifdef _SC_NPROCESSORS_ONLN
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return count > 0 ? (uint32_t)count : 1;
}
#endif

/* ------------------------------------------------------------------------
 * The loader's parts
 * --------------------------------------------------------------------- */

#define MAX_DIMS 6 /* of an item */
#define MAX_THREADS 1024
#define TOUCHED 64     /* datapoints announced to the processor at once */
#define MAX_SIDE 65535 /* pixels per side of a requested image */

typedef enum item_form {
    FORM_STACKED, /* items of one dtype and shape */
    FORM_BYTES,   /* bytes and text */
    FORM_VALUES   /* anything else: a bags_value each */
} item_form;

typedef enum blob_kind { BLOB_OTHER, BLOB_JPEG, BLOB_PNG } blob_kind;

/* A field in one dataset. */
typedef struct source {
    size_t field;
    blob_kind kind;
} source;

/* What becomes of a field. */
typedef struct column {
    bags_load_field given;
    const char *path; /* of the first dataset */
    source *sources;  /* one per dataset */
    bool sequence, image;
    item_form form;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[MAX_DIMS];
    size_t item_size; /* bytes, if stacked */
    uint64_t span;    /* of a window: items from its first to its last */
    float *scale;     /* of float images: 256 values for each channel */
} column;

/* How much of a tensor's memory is used. */
typedef struct extent {
    size_t size, dims; /* bytes of data; numbers in shapes */
    uint64_t items;
} extent;

/* The memory of a tensor. */
typedef struct part {
    bags_buffer data, offsets, ends, values, shapes;
    extent used, mark; /* now, and before the datapoint being loaded */
} part;

typedef struct slot {
    bags_batch batch;
    bags_code code;
    bags_error err;
    bool ready;
    bags_pick *picks;
    bags_tensor *tensors;
    part *parts;
} slot;

/* A thread, and its scratch memory. */
typedef struct worker {
    bags_loader *loader;
    bags_row row;
    bags_buffer value, pixels, converted, resized, resampling, indices;
    bags_select *selects;
    thread id;
    size_t unwatched; /* bytes decoded since it last checked `stopping` */
} worker;

/* Memory that is freed with the loader: this, and what was requested. */
typedef struct block {
    bags_buffer memory; /* see format_state */
    struct block *next;
} block;

typedef struct cursor {
    uint64_t epoch, batch;
} cursor;

struct bags_loader {
    bags_buffer memory; /* of the loader itself; see format_state */
    bags_loader_options options;
    block *blocks;
    const bags_reader **readers;
    size_t count;
    bags_order order;
    uint64_t batches;  /* per epoch */
    size_t slice_most; /* datapoints in the largest slice of this rank */
    column *columns;
    size_t column_count;
    bool windowed; /* some column has a window */
    bags_loader_images images;
    uint32_t data_hash, order_hash;
    bool hashed;
    slot *slots;
    size_t slot_count;
    worker *workers;
    size_t worker_count, running;
    gate monitor;
    bool started;
    cursor next;      /* of bags_loader_next */
    bags_error error; /* the first failure, which stays */

    /* Under the lock: */
    uint64_t released, claimed;
    uint64_t delivered; /* written only by the caller's thread */
    cursor claim;       /* the batch that is claimed next */
    bool stopping;
};

/* Zeroed. NULL if out of memory. */
static void *loader_allocate(
    bags_loader *l, size_t count, size_t size, bags_error *err) {
    block *made = NULL;
    if (count > (SIZE_MAX - sizeof *made) / size)
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    else
        made = (block *)format_state(
            l->options.allocator, sizeof *made + count * size, err);
    if (!made)
        return NULL;
    made->next = l->blocks;
    l->blocks = made;
    return made + 1;
}

/* ------------------------------------------------------------------------
 * Values
 * --------------------------------------------------------------------- */

static bool is_whole(bags_dtype dtype) {
    return dtype >= BAGS_DTYPE_BOOL && dtype <= BAGS_DTYPE_INT64;
}

static bool is_signed(bags_dtype dtype) {
    return dtype >= BAGS_DTYPE_INT8 && dtype <= BAGS_DTYPE_INT64;
}

static bool is_number(bags_dtype dtype) {
    return is_whole(dtype) || dtype == BAGS_DTYPE_FLOAT32 ||
           dtype == BAGS_DTYPE_FLOAT64;
}

/* An integer in 64 bits, two's complement. */
static uint64_t whole_load(bags_dtype dtype, const unsigned char *from) {
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
    uint64_t sign = is_signed(dtype) ? UINT64_C(1) << (8 * size - 1) : 0;
    return (eight ^ sign) - sign;
}

/* False if the dtype cannot hold it. */
static bool whole_store(
    bags_dtype dtype, unsigned char *to, uint64_t whole, bool negative) {
    size_t size = bags_dtype_size(dtype);
    uint64_t most =
        dtype == BAGS_DTYPE_BOOL ? 1 : UINT64_MAX >> (64 - 8 * size + is_signed(dtype));
    uint8_t one = (uint8_t)whole;
    uint16_t two = (uint16_t)whole;
    uint32_t four = (uint32_t)whole;
    if (negative ? !is_signed(dtype) || ~whole > most : whole > most)
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
static bool is_exact(bags_dtype dtype, uint64_t whole) {
    int digits = dtype == BAGS_DTYPE_FLOAT32 ? 24 : 53;
    while (whole >> digits && whole % 2 == 0)
        whole /= 2;
    return whole >> digits == 0;
}

/* False if the dtype cannot hold it. */
static bool real_store(bags_dtype dtype, unsigned char *to, double value) {
    float narrow = (float)value;
    if (dtype == BAGS_DTYPE_FLOAT64)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &narrow, sizeof narrow);
    return dtype == BAGS_DTYPE_FLOAT64 || !isinf(narrow) || isinf(value);
}

/* True if some elements can be converted. */
static bool is_convertible(bags_dtype to, bags_dtype from) {
    return to == from ||
           (is_number(to) && is_number(from) && (is_whole(from) || !is_whole(to)));
}

/* Convert elements. */
static bags_code convert(bags_dtype to_dtype, unsigned char *to, bags_dtype from_dtype,
    const unsigned char *from, size_t count, bags_error *err) {
    size_t to_size = bags_dtype_size(to_dtype);
    size_t from_size = bags_dtype_size(from_dtype);
    bool fits = true, whole = is_whole(from_dtype);
    if (to_dtype == from_dtype) {
        if (count)
            memcpy(to, from, count * to_size);
        return BAGS_OK;
    }
    if (!is_convertible(to_dtype, from_dtype))
        return bags_fail(err, BAGS_ERROR_TYPE, "%s cannot become %s",
            bags_dtype_name(from_dtype), bags_dtype_name(to_dtype));
    for (size_t i = 0; i < count && fits; i++) {
        uint64_t bits = whole ? whole_load(from_dtype, from) : 0;
        bool negative = is_signed(from_dtype) && bits >> 63;
        uint64_t magnitude = negative ? 0 - bits : bits;
        double value = negative ? -(double)magnitude : (double)magnitude;
        float narrow;
        if (from_dtype == BAGS_DTYPE_FLOAT64)
            memcpy(&value, from, sizeof value);
        if (from_dtype == BAGS_DTYPE_FLOAT32) {
            memcpy(&narrow, from, sizeof narrow);
            value = (double)narrow;
        }
        fits = is_whole(to_dtype)
                   ? whole_store(to_dtype, to, bits, negative)
                   : is_exact(to_dtype, magnitude) && real_store(to_dtype, to, value);
        if (!fits && whole)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "element %" PRIu64 ": %s %s (%s%" PRIu64 ")", (uint64_t)i,
                is_whole(to_dtype) ? "value out of range for"
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
static bags_dtype value_elements(const bags_value *value, const unsigned char **data) {
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
static const char *shape_text(size_t dims, const uint64_t *shape, char text[200]) {
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < dims && used >= 0 && used < 160; i++)
        used += snprintf(
            text + used, 200 - (size_t)used, "%s%" PRIu64, i ? " x " : "", shape[i]);
    return dims ? text : "one element";
}

/* Make an item of a stacked field of a value. */
static bags_code store_stacked(
    const column *c, const bags_value *value, unsigned char *to, bags_error *err) {
    const unsigned char *from;
    bags_dtype dtype = value_elements(value, &from);
    size_t dims = value->kind == BAGS_KIND_ARRAY ? value->dims : 0;
    bool same = dims == c->dims;
    char has[200], needs[200];
    if (!dtype)
        return bags_fail(err, BAGS_ERROR_TYPE, "not a number or an array of numbers");
    for (size_t i = 0; i < dims && same; i++)
        same = value->shape[i] == c->shape[i];
    if (!same)
        return bags_fail(err, BAGS_ERROR_VALUE, "shape mismatch (%s, expected %s)",
            shape_text(dims, value->shape, has), shape_text(c->dims, c->shape, needs));
    return convert(
        c->dtype, to, dtype, from, c->item_size / bags_dtype_size(c->dtype), err);
}

/* Reserve the next bytes of a buffer. */
static bags_code part_reserve(
    bags_buffer *buffer, size_t used, size_t more, bags_error *err) {
    if (more > SIZE_MAX / 2 - used)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    return bags_buffer_reserve(buffer, used + more, err);
}

static bags_code part_push(
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
static bags_code store_value(const column *c, part *p, const bags_value *value,
    bags_view blob, bags_error *err) {
    const unsigned char *from;
    bags_value copy = *value;
    bags_dtype dtype = value_elements(value, &from);
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
    bags_code code = part_reserve(&p->data, p->used.size, pad + copy.size, err);
    if (!code)
        code = part_push(&p->ends, p->used.items, p->used.size + pad, err);
    if (!code)
        code = part_reserve(
            &p->values, (size_t)p->used.items * sizeof copy, sizeof copy, err);
    if (!code && pad)
        memset(p->data.data + p->used.size, 0, pad);
    for (size_t i = 0; i < copy.dims && !code; i++)
        code = part_push(&p->shapes, p->used.dims + i, copy.shape[i], err);
    if (!code && converted)
        code = convert(copy.dtype, p->data.data + p->used.size + pad, dtype, from,
            copy.size / bags_dtype_size(copy.dtype), err);
    else if (!code && copy.size)
        memcpy(p->data.data + p->used.size + pad, from, copy.size);
    if (code)
        return code;
    memcpy(p->values.data + (size_t)p->used.items * sizeof copy, &copy, sizeof copy);
    p->used.size += pad + copy.size;
    p->used.dims += copy.dims;
    return BAGS_OK;
}

static bags_code store_bytes(part *p, const bags_value *value, bags_error *err) {
    if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not bytes or text");
    bags_code code = part_reserve(&p->data, p->used.size, value->size, err);
    if (!code)
        code = part_push(&p->ends, p->used.items, p->used.size, err);
    if (code)
        return code;
    if (value->size)
        memcpy(p->data.data + p->used.size, value->data, value->size);
    p->used.size += value->size;
    return BAGS_OK;
}

/* ------------------------------------------------------------------------
 * Images
 * --------------------------------------------------------------------- */

typedef struct rectangle {
    uint32_t left, top, width, height;
} rectangle;

/* At least 0 and below 1. */
static double next_uniform(uint64_t *state) {
    return (double)(next_random(state) >> 11) / 9007199254740992.0;
}

/* 0 .. most. */
static uint64_t next_below(uint64_t *state, uint64_t most) {
    uint64_t random = next_random(state);
    if (most < UINT32_MAX)
        return ((random >> 32) * (most + 1)) >> 32;
    return most == UINT64_MAX ? random : random % (most + 1);
}

/* What RandomResizedCrop of torchvision does with its default parameters. */
static rectangle crop_random(uint64_t *state, const bags_image *image) {
    const double least = 3.0 / 4, most = 4.0 / 3;
    double width = (double)image->width, height = (double)image->height;
    rectangle r = {0, 0, image->width, image->height};
    for (int i = 0; i < 10; i++) {
        double area = width * height * (0.08 + 0.92 * next_uniform(state));
        double aspect =
            exp(log(least) + (log(most) - log(least)) * next_uniform(state));
        double w = rint(sqrt(area * aspect)), h = rint(sqrt(area / aspect));
        if (w >= 1 && w <= width && h >= 1 && h <= height) {
            r.width = (uint32_t)w;
            r.height = (uint32_t)h;
            r.top = (uint32_t)next_below(state, image->height - r.height);
            r.left = (uint32_t)next_below(state, image->width - r.width);
            return r;
        }
    }
    if (width / height < least)
        height = rint(width / least);
    else if (width / height > most)
        width = rint(height * most);
    r.height = (uint32_t)height;
    r.width = (uint32_t)width;
    r.top = (image->height - r.height) / 2;
    r.left = (image->width - r.width) / 2;
    return r;
}

/* Half of it, rounded to even as Python's round does. */
static uint32_t half_even(uint32_t x) { return x / 2 + (x % 2 && x / 2 % 2 ? 1 : 0); }

/* Pixels in memory. */
typedef struct picture {
    bags_image image;
    const unsigned char *pixels;
    size_t stride;
} picture;

static bags_code reserve_pixels(
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

/* Of a JPEG, decode only a rectangle; with `scaled` to a fraction of the size that
 * is still as large as requested. */
static bags_code decode_jpeg(worker *w, const column *c, bags_view blob,
    uint64_t *random, picture *p, bags_error *err) {
    const bags_loader_images *images = &w->loader->images;
    bags_jpeg_options options;
    memset(&options, 0, sizeof options);
    options.orient = c->given.orient;
    options.allow_trailing = true;
    bags_code code = images->jpeg_probe(blob, &options, &p->image, err);
    if (code)
        return code;
    if (c->given.crop == BAGS_CROP_RANDOM) {
        rectangle r = crop_random(random, &p->image);
        uint32_t scale = 1;
        while (c->given.scaled && scale < 8 &&
               r.width / (2 * scale) >= c->given.width &&
               r.height / (2 * scale) >= c->given.height)
            scale *= 2;
        options.scale = scale;
        options.left = r.left / scale;
        options.top = r.top / scale;
        options.width = r.width / scale;
        options.height = r.height / scale;
        code = images->jpeg_probe(blob, &options, &p->image, err);
    }
    if (!code)
        code = reserve_pixels(&w->pixels, &p->image, err);
    if (!code)
        code = images->jpeg_decode(
            blob, &options, w->pixels.data, w->pixels.capacity, 0, err);
    p->pixels = w->pixels.data;
    return code;
}

static bags_code decode_png(
    worker *w, const column *c, bags_view blob, picture *p, bags_error *err) {
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
        code = reserve_pixels(&w->pixels, &p->image, err);
    if (!code)
        code = images->png_decode(
            blob, &options, w->pixels.data, w->pixels.capacity, 0, err);
    p->pixels = w->pixels.data;
    return code;
}

static bags_code picture_of(const bags_value *value, picture *p, bags_error *err) {
    uint64_t channels = value->dims == 3 ? value->shape[2] : 1;
    char has[200];
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != BAGS_DTYPE_UINT8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image of 8 bits per channel");
    if (value->dims < 2 || value->dims > 3 || channels < 1 || channels > 4 ||
        value->shape[0] < 1 || value->shape[0] > INT32_MAX || value->shape[1] < 1 ||
        value->shape[1] > INT32_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image (%s)",
            shape_text(value->dims, value->shape, has));
    p->image.height = (uint32_t)value->shape[0];
    p->image.width = (uint32_t)value->shape[1];
    p->image.channels = (uint32_t)channels;
    p->pixels = (const unsigned char *)value->data;
    return BAGS_OK;
}

/* Convert to gray or RGB as Pillow does: alpha is dropped. */
static bags_code convert_channels(
    worker *w, picture *p, uint32_t channels, bags_error *err) {
    bags_image image = p->image;
    uint32_t from = image.channels;
    if (from == channels)
        return BAGS_OK;
    image.channels = channels;
    bags_code code = reserve_pixels(&w->converted, &image, err);
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
static bags_code resize_picture(worker *w, const column *c, picture *p, uint32_t width,
    uint32_t height, bags_error *err) {
    bags_image image = p->image;
    if (image.width == width && image.height == height)
        return BAGS_OK;
    image.width = width;
    image.height = height;
    size_t stride = (size_t)width * image.channels;
    bags_code code = reserve_pixels(&w->resized, &image, err);
    if (!code)
        code = w->loader->images.resample(&p->image, p->pixels, p->stride, NULL,
            c->given.filter, width, height, &w->resampling, w->resized.data, stride,
            err);
    p->image = image;
    p->pixels = w->resized.data;
    p->stride = stride;
    return code;
}

/* Write pixels with left and right mirrored, normalised, or channels first. */
static void store_pixels(
    const column *c, const picture *p, bool flip, unsigned char *to) {
    size_t width = c->given.width, height = c->given.height;
    size_t channels = p->image.channels;
    size_t step_x = c->given.nchw ? 1 : channels;
    size_t step_y = step_x * width;
    size_t step_c = c->given.nchw ? width * height : 1;
    float *real = (float *)(void *)to;
    for (size_t y = 0; y < height; y++)
        for (size_t k = 0; k < channels; k++) {
            const unsigned char *from = p->pixels + y * p->stride + k;
            size_t at = y * step_y + k * step_c;
            const float *scale = c->scale ? c->scale + 256 * k : NULL;
            if (flip)
                from += (width - 1) * channels;
            for (size_t x = 0; x < width; x++, at += step_x) {
                if (scale)
                    real[at] = scale[*from];
                else
                    to[at] = *from;
                from = flip ? from - channels : from + channels;
            }
        }
}

/* Make an image of the requested size of a blob, or of the value that it was
 * decoded to. */
static bags_code store_image(worker *w, const column *c, blob_kind kind, bags_view blob,
    const bags_value *value, uint64_t random, unsigned char *to, bags_error *err) {
    picture p;
    memset(&p, 0, sizeof p);
    p.image.depth = 8;
    p.image.dtype = BAGS_DTYPE_UINT8;
    uint32_t width = c->given.width, height = c->given.height;
    bool flip = c->given.flip && next_random(&random) >> 63;
    bags_code code = kind == BLOB_JPEG  ? decode_jpeg(w, c, blob, &random, &p, err)
                     : kind == BLOB_PNG ? decode_png(w, c, blob, &p, err)
                                        : picture_of(value, &p, err);
    if (code)
        return code;
    p.stride = (size_t)p.image.width * p.image.channels;
    if (c->given.crop == BAGS_CROP_RANDOM && kind != BLOB_JPEG) {
        rectangle r = crop_random(&random, &p.image);
        p.pixels += r.top * p.stride + (size_t)r.left * p.image.channels;
        p.image.width = r.width;
        p.image.height = r.height;
    }
    if (c->given.crop == BAGS_CROP_CENTER) {
        uint64_t side = c->given.resize;
        bool wide = p.image.width > p.image.height;
        uint64_t longer = wide ? side * p.image.width / p.image.height
                               : side * p.image.height / p.image.width;
        if (longer > INT32_MAX)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "image too narrow (%" PRIu32 " x %" PRIu32 ")", p.image.width,
                p.image.height);
        width = (uint32_t)(wide ? longer : side);
        height = (uint32_t)(wide ? side : longer);
    }
    code = convert_channels(w, &p, c->given.channels, err);
    if (!code)
        code = resize_picture(w, c, &p, width, height, err);
    if (code)
        return code;
    p.pixels += half_even(height - c->given.height) * p.stride +
                (size_t)half_even(width - c->given.width) * p.image.channels;
    store_pixels(c, &p, flip, to);
    return BAGS_OK;
}

/* ------------------------------------------------------------------------
 * Batches
 * --------------------------------------------------------------------- */

/* Damage, which skip_damaged leaves out; all else may succeed another time. */
static bool is_damage(bags_code code) {
    return code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_VALUE ||
           code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_RANGE;
}

/* Name dataset, field and datapoint, and of a sequence the item (UINT64_MAX: none),
 * in front of a message. */
static bags_code fail_item(const bags_loader *l, const column *c, const bags_pick *pick,
    uint64_t item, bags_code code, bags_error *err) {
    const char *path = bags_reader_path(l->readers[pick->dataset]);
    char message[600], of[40] = "";
    size_t size = strlen(path);
    (void)snprintf(message, sizeof message, "%.599s", err->message);
    if (c->sequence && item != UINT64_MAX)
        (void)snprintf(of, sizeof of, "item %" PRIu64 ": ", item);
    return bags_fail(err, code, "%s: field \"%.100s\": datapoint %" PRIu64 ": %s%s",
        size > 200 ? path + size - 200 : path, c->given.name, pick->index, of, message);
}

/* A codec may be the program's own: what its value refers to is copied only if its
 * size, dtype and shape agree. */
static bags_code check_value(const bags_value *value, bags_error *err) {
    size_t size = value->size;
    if (value->kind == BAGS_KIND_ARRAY &&
        (value->dims > BAGS_MAX_DIMS || (value->dims && !value->shape) ||
            !bags_array_size(value->dtype, value->dims, value->shape, &size) ||
            size != value->size))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "the codec returned an array of %" PRIu64
            " bytes, which does not fit its dtype and shape",
            (uint64_t)value->size);
    if (size && !value->data && value->kind != BAGS_KIND_OBJECT)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "the codec returned a value without data");
    return BAGS_OK;
}

/* Read an item of the row and append it to a tensor. */
static bags_code load_item(worker *w, const column *c, part *p, bags_load_item *item,
    size_t field, bags_error *err) {
    const bags_loader *l = w->loader;
    const source *from = &c->sources[item->pick.dataset];
    bags_value value;
    bags_code code = BAGS_OK;
    memset(&value, 0, sizeof value);
    item->blob = bags_row_bytes(&w->row, field, (size_t)item->item);
    item->field = from->field;
    w->unwatched += item->blob.size;
    if (c->given.decode)
        code = c->given.decode(c->given.user, item, &w->value, &value, err);
    else if (!c->image || from->kind == BLOB_OTHER) {
        code =
            bags_row_value(&w->row, field, (size_t)item->item, &w->value, &value, err);
        if (code == BAGS_ERROR_TYPE && c->form == FORM_VALUES) {
            value = bags_blob(item->blob.data, item->blob.size);
            code = BAGS_OK;
        }
        if (code)
            return code; /* its message is complete */
    }
    if (!code)
        code = check_value(&value, err);
    if (!code && c->form == FORM_BYTES)
        code = store_bytes(p, &value, err);
    else if (!code && c->form == FORM_VALUES)
        code = store_value(c, p, &value, item->blob, err);
    else if (!code) {
        code = part_reserve(&p->data, p->used.size, c->item_size, err);
        unsigned char *to = p->data.data + p->used.size;
        if (!code && c->image)
            code = store_image(w, c, c->given.decode ? BLOB_OTHER : from->kind,
                item->blob, &value, item->random, to, err);
        else if (!code)
            code = store_stacked(c, &value, to, err);
        p->used.size += code ? 0 : c->item_size;
    }
    p->used.items += code ? 0 : 1;
    return code ? fail_item(l, c, &item->pick, item->item, code, err) : BAGS_OK;
}

/* Where the windows of a datapoint start. */
static bags_code find_window(worker *w, const bags_pick *pick, uint64_t *random,
    uint64_t *start, bags_error *err) {
    const bags_loader *l = w->loader;
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < l->column_count; i++) {
        const column *c = &l->columns[i];
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
            return fail_item(l, c, pick, UINT64_MAX, BAGS_ERROR_RANGE, err);
        }
        last = items - c->span < last ? items - c->span : last;
    }
    *start =
        l->options.random_window ? next_below(random, last) : l->options.window_start;
    return BAGS_OK;
}

static bags_code load_datapoint(
    worker *w, slot *s, const bags_pick *pick, uint64_t random, bags_error *err) {
    const bags_loader *l = w->loader;
    const bags_reader *reader = l->readers[pick->dataset];
    uint64_t start = 0;
    bags_load_item item;
    bags_code code = BAGS_OK;
    memset(&item, 0, sizeof item);
    item.reader = reader;
    item.pick = *pick;
    if (l->windowed)
        code = find_window(w, pick, &random, &start, err);
    item.random = random;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        const column *c = &l->columns[i];
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
            code = load_item(w, &l->columns[i], &s->parts[i], &item, i, err);
        }
        if (!code && s->parts[i].offsets.capacity)
            code = part_push(
                &s->parts[i].offsets, s->batch.length + 1, s->parts[i].used.items, err);
    }
    return code;
}

/* Announce datapoints to the disk, or to the processor. Failures show when they are
 * read. */
static void announce(worker *w, const bags_pick *picks, size_t count, bool to_disk) {
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

/* True if the loader is being closed, or moved. Checked after every 64 datapoints
 * or 4 KiB, since a lock costs as much as reading a small datapoint. */
static bool must_stop(worker *w, size_t i) {
    bags_loader *l = w->loader;
    if (!l->running || (i % 64 && w->unwatched < 4096))
        return false;
    w->unwatched = 0;
    gate_lock(&l->monitor);
    bool stop = l->stopping;
    gate_unlock(&l->monitor);
    return stop;
}

/* Start the tensors of a batch of at most `count` datapoints. */
static bags_code start_parts(
    const bags_loader *l, slot *s, size_t count, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        const column *c = &l->columns[i];
        part *p = &s->parts[i];
        size_t each = c->given.window ? (size_t)c->given.window : 1;
        memset(&p->used, 0, sizeof p->used);
        if (c->form == FORM_STACKED && (!c->sequence || c->given.window))
            code = bags_buffer_reserve(&p->data, count * each * c->item_size, err);
        if (!code && c->sequence && !c->given.window)
            code = part_push(&p->offsets, 0, 0, err);
    }
    return code;
}

/* Describe the tensors. */
static bags_code finish_parts(const bags_loader *l, slot *s, bags_error *err) {
    for (size_t i = 0; i < l->column_count; i++) {
        const column *c = &l->columns[i];
        part *p = &s->parts[i];
        bags_tensor *t = &s->tensors[i];
        bags_value *values = (bags_value *)(void *)p->values.data;
        uint64_t *shapes = (uint64_t *)(void *)p->shapes.data;
        if (c->form != FORM_STACKED) {
            bags_code code = part_push(&p->ends, p->used.items, p->used.size, err);
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
        if (c->form != FORM_VALUES)
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

/* Make batch `at` in a slot. */
static bags_code load_batch(worker *w, slot *s, const cursor *at, bags_error *err) {
    const bags_loader *l = w->loader;
    const bags_loader_options *o = &l->options;
    uint64_t start = at->batch * o->batch, left = l->order.length - start;
    uint64_t size = left < o->batch ? left : o->batch;
    uint64_t first = o->rank * size / o->ranks;
    size_t count = (size_t)((o->rank + UINT64_C(1)) * size / o->ranks - first);
    uint64_t key = make_key(~o->order.seed, at->epoch);
    memset(&s->batch, 0, sizeof s->batch);
    s->batch.epoch = at->epoch;
    s->batch.batch = at->batch;
    s->batch.position = start + first;
    s->batch.picks = s->picks;
    bags_code code =
        bags_order_get(&l->order, at->epoch, start + first, count, s->picks, err);
    if (!code)
        code = start_parts(l, s, count, err);
    if (!code && o->prefetch)
        announce(w, s->picks, count, true);
    for (size_t i = 0; i < count && !code && !must_stop(w, i); i++) {
        size_t unwatched = w->unwatched;
        bags_pick pick = s->picks[i];
        if (i % TOUCHED == 0 && l->count <= 8)
            announce(w, s->picks + i, count - i < TOUCHED ? count - i : TOUCHED, false);
        for (size_t k = 0; k < l->column_count; k++)
            s->parts[k].mark = s->parts[k].used;
        code = load_datapoint(w, s, &pick, mix(key + s->batch.position + i), err);
        if (!code) {
            s->picks[s->batch.length++] = pick;
            s->batch.bytes += w->unwatched - unwatched;
        } else if (o->skip_damaged && is_damage(code)) {
            code = BAGS_OK;
            s->batch.skipped++;
            for (size_t k = 0; k < l->column_count; k++)
                s->parts[k].used = s->parts[k].mark;
        }
    }
    s->batch.count = l->column_count;
    s->batch.tensors = s->tensors;
    return code ? code : finish_parts(l, s, err);
}

static bool is_last(const bags_loader *l, const cursor *at) {
    return l->batches == 0 || (l->options.epochs && at->epoch >= l->options.epochs);
}

static void advance(const bags_loader *l, cursor *at) {
    if (++at->batch == l->batches) {
        at->batch = 0;
        at->epoch++;
    }
}

static thread_result THREAD_CALL run_worker(void *user) {
    worker *w = (worker *)user;
    bags_loader *l = w->loader;
    gate_lock(&l->monitor);
    while (!l->stopping) {
        if (l->claimed >= l->released + l->slot_count || is_last(l, &l->claim)) {
            gate_wait(&l->monitor);
            continue;
        }
        slot *s = &l->slots[l->claimed++ % l->slot_count];
        cursor at = l->claim;
        advance(l, &l->claim);
        gate_unlock(&l->monitor);
        s->code = load_batch(w, s, &at, &s->err);
        gate_lock(&l->monitor);
        s->ready = true;
        gate_wake(&l->monitor);
    }
    gate_unlock(&l->monitor);
    return 0;
}

/* ------------------------------------------------------------------------
 * Opening and closing
 * --------------------------------------------------------------------- */

static bool view_is(bags_view view, const char *text) {
    return view.size == strlen(text) && !memcmp(view.data, text, view.size);
}

/* The dtype of all values of a type; NONE if it states none. */
static bags_dtype dtype_of(const bags_type *type) {
    bags_view first = bags_type_argument(type, 0);
    if (view_is(type->name, "int") || view_is(type->name, "i64"))
        return BAGS_DTYPE_INT64;
    if (view_is(type->name, "u64"))
        return BAGS_DTYPE_UINT64;
    if (view_is(type->name, "array"))
        return bags_dtype_parse((const char *)first.data, first.size, NULL);
    return BAGS_DTYPE_NONE;
}

/* Without options, what becomes of values of a type. */
static void classify(const bags_type *type, column *out) {
    out->form = FORM_VALUES;
    out->dtype = BAGS_DTYPE_NONE;
    out->dims = 0;
    if (view_is(type->name, "bytes") || view_is(type->name, "utf8")) {
        out->form = FORM_BYTES;
        out->dtype = BAGS_DTYPE_UINT8;
    } else if (dtype_of(type)) {
        bool array = view_is(type->name, "array");
        if (array && type->count > MAX_DIMS + 1)
            return;
        for (size_t i = 1; array && i < type->count; i++)
            if (!bags_type_number(type, i, &out->shape[out->dims++])) {
                out->dims = 0;
                return; /* -1: any */
            }
        out->dtype = dtype_of(type);
        out->form = FORM_STACKED;
    }
}

static bool is_same_form(const column *a, const column *b) {
    return a->form == b->form && a->dtype == b->dtype && a->dims == b->dims &&
           !memcmp(a->shape, b->shape, a->dims * sizeof *a->shape);
}

static bags_code fail_field(
    const column *c, bags_code code, const char *what, bags_error *err) {
    return bags_fail(
        err, code, "%.400s: field \"%.200s\": %s", c->path, c->given.name, what);
}

/* Find a field in all datasets. */
static bags_code find_sources(bags_loader *l, column *c, bags_error *err) {
    for (size_t d = 0; d < l->count; d++) {
        source *s = &c->sources[d];
        column other;
        size_t count;
        bags_code code =
            bags_reader_field(l->readers[d], c->given.name, &s->field, err);
        if (code)
            return code;
        const bags_type *type = bags_reader_type(l->readers[d], s->field);
        memset(&other, 0, sizeof other);
        classify(type, &other);
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
                !is_same_form(c, &other)))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%.200s: field \"%.100s\": type mismatch (%.80s, expected "
                "%.80s "
                "as in %.100s)",
                bags_reader_path(l->readers[d]), c->given.name,
                bags_reader_fields(l->readers[d], &count)[s->field].type,
                bags_reader_fields(l->readers[0], &count)[c->sources->field].type,
                c->path);
        if (l->images.jpeg_probe && l->images.jpeg_decode &&
            (view_is(type->name, "jpeg") || view_is(type->name, "jpg")))
            s->kind = BLOB_JPEG;
        if (l->images.png_probe && l->images.png_decode && view_is(type->name, "png"))
            s->kind = BLOB_PNG;
    }
    return BAGS_OK;
}

/* True unless it is 0, also if it is NaN. */
static bool is_set(float x) { return !(x >= 0 && x <= 0); }

/* What a float image has for each of the 256 values of each channel, with the
 * arithmetic of NumPy and torchvision in float32. */
static bool make_scale(bags_loader *l, column *c, bags_error *err) {
    size_t channels = c->given.channels;
    c->scale = (float *)loader_allocate(l, 256 * channels, sizeof(float), err);
    for (size_t i = 0; c->scale && i < 256 * channels; i++) {
        float deviation = c->given.std[i / 256];
        volatile float value = (float)(i % 256) / 255.0f;
        value = value - c->given.mean[i / 256];
        c->scale[i] = is_set(deviation) ? value / deviation : value;
    }
    return c->scale != NULL;
}

/* Check the options of a field, and set the defaults. */
static bags_code check_field(
    const bags_loader *l, const column *c, bags_load_field *g, bags_error *err) {
    bool image = c->image, is_float = g->dtype == BAGS_DTYPE_FLOAT32;
    bool has_side =
        g->width && g->height && g->width <= MAX_SIDE && g->height <= MAX_SIDE;
    bool has_scale = false, is_center = g->crop == BAGS_CROP_CENTER;
    bool has_exif = !g->decode;
    for (size_t i = 0; i < l->count; i++)
        has_exif = has_exif && c->sources[i].kind != BLOB_OTHER;
    for (size_t i = 0; i < 3; i++)
        has_scale = has_scale || is_set(g->mean[i]) || is_set(g->std[i]);
    const struct {
        bool broken;
        const char *what;
    } rules[] = {
        {!image && (has_scale || g->channels || g->crop || g->resize || g->filter ||
                       g->flip || g->nchw || g->scaled || g->orient),
            "options of images without width and height"},
        {g->dims > MAX_DIMS || !g->dims != !g->shape || (g->dims && !g->dtype),
            "dims, at most 6, shape and dtype must be set together"},
        {g->dtype && !bags_dtype_size(g->dtype), "no such dtype"},
        {image && !l->images.resample,
            "width and height need options.images with resample"},
        {image && !has_side, "width and height must both be 1 to 65535"},
        {g->channels > 0 && g->channels != 1 && g->channels != 3,
            "channels must be 1 or 3"},
        {image && g->dims > 0, "dims and width are mutually exclusive"},
        {g->crop > BAGS_CROP_RANDOM || g->filter > BAGS_FILTER_BICUBIC,
            "no such crop or filter"},
        {g->resize && !is_center, "resize needs crop BAGS_CROP_CENTER"},
        {is_center && g->resize &&
                (g->resize < g->width || g->resize < g->height || g->resize > MAX_SIDE),
            "resize must be at least width and height"},
        {g->scaled && g->crop != BAGS_CROP_RANDOM,
            "scaled needs crop BAGS_CROP_RANDOM"},
        {g->orient && !has_exif,
            "orient needs fields of JPEG or PNG, and options.images with their "
            "functions"},
        {image && g->dtype && g->dtype != BAGS_DTYPE_UINT8 && !is_float,
            "the dtype of an image must be uint8 or float32"},
        {has_scale && !is_float, "mean and std need float32"},
        {(g->stride || g->window) && !c->sequence, "a window needs a sequence"},
        {g->stride && !g->window, "stride without window"},
        {g->window > UINT32_MAX || g->stride > UINT32_MAX, "window too large"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return fail_field(c, BAGS_ERROR_ARGUMENT, rules[i].what, err);
    g->stride = g->stride ? g->stride : 1;
    if (!image)
        return BAGS_OK;
    g->channels = g->channels ? g->channels : 3;
    g->dtype = g->dtype ? g->dtype : BAGS_DTYPE_UINT8;
    if (!g->resize)
        g->resize = g->width > g->height ? g->width : g->height;
    return BAGS_OK;
}

/* Refuse what no value of a field's type can become. */
static bags_code check_types(const bags_loader *l, const column *c, bags_error *err) {
    bags_dtype dtype = c->given.dtype;
    for (size_t d = 0; d < l->count && dtype && !c->given.decode; d++) {
        size_t count, field = c->sources[d].field;
        const bags_type *type = bags_reader_type(l->readers[d], field);
        bags_dtype stored = dtype_of(type);
        column other;
        memset(&other, 0, sizeof other);
        classify(type, &other);
        other.dtype = c->dtype;
        bool possible = !stored    ? other.form != FORM_BYTES
                        : c->image ? stored == BAGS_DTYPE_UINT8
                                   : is_convertible(dtype, stored);
        bool fits = c->image || other.form != c->form || is_same_form(c, &other);
        if (!possible || !fits)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%.200s: field \"%.100s\": values of type %.80s cannot become "
                "%s%s",
                bags_reader_path(l->readers[d]), c->given.name,
                bags_reader_fields(l->readers[d], &count)[field].type,
                c->image ? "images" : bags_dtype_name(dtype),
                possible ? " of that shape" : "");
    }
    return BAGS_OK;
}

/* Plan a field: what its tensors are, and where its values are in each dataset. */
static bags_code column_open(
    bags_loader *l, column *c, const bags_load_field *given, bags_error *err) {
    bags_load_field *g = &c->given;
    *g = *given;
    c->path = bags_reader_path(l->readers[0]);
    if (!given->name)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a field without a name");
    c->sources = (source *)loader_allocate(l, l->count, sizeof *c->sources, err);
    if (!c->sources)
        return BAGS_ERROR_MEMORY;
    c->image = given->width || given->height;
    bags_code code = find_sources(l, c, err);
    for (column *before = l->columns; before < c && !code; before++)
        if (!strcmp(before->given.name, g->name))
            code = fail_field(c, BAGS_ERROR_FIELD, "listed twice", err);
    if (!code)
        code = check_field(l, c, g, err);
    if (code)
        return code;
    if (c->image) {
        c->form = FORM_STACKED;
        c->dims = 3;
        c->shape[0] = g->nchw ? g->channels : g->height;
        c->shape[1] = g->nchw ? g->height : g->width;
        c->shape[2] = g->nchw ? g->width : g->channels;
    } else if (g->decode || g->dims) {
        c->form = g->dtype ? FORM_STACKED : FORM_VALUES;
        c->dtype = BAGS_DTYPE_NONE;
        c->dims = g->dims;
        for (size_t i = 0; i < g->dims; i++)
            c->shape[i] = g->shape[i];
    }
    if (g->dtype && c->form == FORM_STACKED)
        c->dtype = g->dtype;
    code = check_types(l, c, err);
    if (code)
        return code;
    if (c->image && g->dtype == BAGS_DTYPE_FLOAT32 && !make_scale(l, c, err))
        return BAGS_ERROR_MEMORY;
    uint64_t most = g->window ? g->window : 1;
    c->span = g->window ? (g->window - 1) * g->stride + 1 : 0;
    l->windowed = l->windowed || g->window;
    if (c->form == FORM_STACKED &&
        (!bags_array_size(c->dtype, c->dims, c->shape, &c->item_size) ||
            (c->item_size && (SIZE_MAX >> 1) / c->item_size / most <
                                 (l->slice_most ? l->slice_most : 1))))
        return fail_field(
            c, BAGS_ERROR_LIMIT, "batch too large for the address space", err);
    return BAGS_OK;
}

static bags_code check_options(bags_loader *l, bags_error *err) {
    bags_loader_options *o = &l->options;
    if (l->count == 0)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "no dataset");
    o->batch = o->batch ? o->batch : 32;
    if (o->ranks ? o->rank >= o->ranks : o->rank)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "rank out of range (%" PRIu32 ", ranks %" PRIu32 ")", o->rank, o->ranks);
    o->ranks = o->ranks ? o->ranks : 1;
    if (o->threads > MAX_THREADS || o->ahead > MAX_THREADS || o->hold > MAX_THREADS)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "threads, ahead or hold out of range (at most 1024)");
    if (o->no_threads && (o->threads || o->ahead))
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "no_threads excludes threads and ahead");
    if (o->random_window && o->window_start)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "random_window and window_start are mutually exclusive");
    o->ahead = o->ahead ? o->ahead : 2;
    if (!o->threads)
        o->threads = count_processors();
    if (o->threads > MAX_THREADS)
        o->threads = MAX_THREADS;
    if (o->no_threads)
        o->threads = o->ahead = 0;
    l->worker_count = o->threads ? o->threads : 1;
    l->slot_count = (size_t)o->threads + o->ahead + o->hold + 1;
    return BAGS_OK;
}

static bags_code open_order(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    uint64_t *lengths = (uint64_t *)loader_allocate(l, l->count, sizeof *lengths, err);
    if (!lengths)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->count; i++)
        lengths[i] = bags_reader_length(l->readers[i]);
    bags_code code =
        bags_order_init(&l->order, lengths, l->count, &o->order, o->allocator, err);
    l->options.order.weights = NULL;
    l->batches = l->order.length / o->batch;
    if (!o->drop_last && l->order.length % o->batch)
        l->batches++;
    uint64_t most = l->order.length < o->batch ? l->order.length : o->batch;
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

static bags_code open_columns(bags_loader *l, bags_error *err) {
    size_t count = l->options.field_count;
    const bags_field *fields = bags_reader_fields(l->readers[0], &count);
    const bags_load_field *given = l->options.fields;
    bags_code code = BAGS_OK;
    if (!given != !l->options.field_count)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            given ? "fields without field_count" : "field_count without fields");
    if (given)
        count = l->options.field_count;
    l->columns = (column *)loader_allocate(l, count, sizeof *l->columns, err);
    l->column_count = l->columns ? count : 0;
    for (size_t i = 0; i < l->column_count && !code; i++) {
        bags_load_field whole;
        memset(&whole, 0, sizeof whole);
        if (!given)
            whole.name = fields[i].name;
        code = column_open(l, &l->columns[i], given ? &given[i] : &whole, err);
    }
    if (l->columns && !code && !l->windowed &&
        (l->options.random_window || l->options.window_start))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "random_window and window_start need a field with a window");
    return l->columns ? code : BAGS_ERROR_MEMORY;
}

/* Allocate slots and workers. */
static bags_code open_slots(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    size_t columns = l->column_count;
    bags_buffer empty = bags_buffer_of(o->allocator);
    l->slots = (slot *)loader_allocate(l, l->slot_count, sizeof(slot), err);
    l->workers = (worker *)loader_allocate(l, l->worker_count, sizeof(worker), err);
    for (size_t i = 0; l->slots && i < l->slot_count; i++) {
        slot *s = &l->slots[i];
        s->picks =
            (bags_pick *)loader_allocate(l, l->slice_most, sizeof *s->picks, err);
        s->tensors =
            (bags_tensor *)loader_allocate(l, columns, sizeof *s->tensors, err);
        s->parts = (part *)loader_allocate(l, columns, sizeof *s->parts, err);
        if (!s->picks || !s->tensors || !s->parts)
            return BAGS_ERROR_MEMORY;
        for (size_t k = 0; k < columns; k++) {
            part *p = &s->parts[k];
            p->offsets = p->ends = p->values = p->shapes = empty;
            p->data = bags_buffer_of(o->tensors ? o->tensors : o->allocator);
        }
    }
    for (size_t i = 0; l->workers && i < l->worker_count; i++) {
        worker *w = &l->workers[i];
        w->value = w->pixels = w->converted = empty;
        w->resized = w->resampling = w->indices = empty;
        w->loader = l;
        w->selects =
            (bags_select *)loader_allocate(l, columns, sizeof *w->selects, err);
        if (!w->selects)
            return BAGS_ERROR_MEMORY;
    }
    return l->slots && l->workers ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err) {
    bags_code code = check_options(l, err);
    if (code)
        return code;
    l->readers =
        (const bags_reader **)loader_allocate(l, l->count, sizeof(void *), err);
    if (!l->readers)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->count; i++)
        l->readers[i] = readers[i];
    code = open_order(l, err);
    if (!code)
        code = open_columns(l, err);
    return code ? code : open_slots(l, err);
}

bags_loader *bags_loader_open(const bags_reader *const *readers, size_t count,
    const bags_loader_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_loader *l = (bags_loader *)format_state(
        options ? options->allocator : NULL, sizeof *l, err);
    if (!l)
        return NULL;
    if (!gate_start(&l->monitor)) {
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

/* Stop the threads, and forget the batches that they made. */
static void loader_stop(bags_loader *l) {
    if (l->running) {
        gate_lock(&l->monitor);
        l->stopping = true;
        gate_wake(&l->monitor);
        gate_unlock(&l->monitor);
        for (size_t i = 0; i < l->running; i++)
            thread_join(l->workers[i].id);
    }
    l->running = 0;
    l->stopping = l->started = false;
    /* The slots of the batches that are held stay theirs. */
    uint64_t held = l->options.hold + UINT64_C(1);
    l->claimed = l->delivered;
    l->released = l->delivered > held ? l->delivered - held : 0;
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        l->slots[i].ready = false;
}

/* Those that the system refuses are missed; without any, bags_loader_next does the
 * work. */
static void loader_start(bags_loader *l) {
    size_t started = 0, count = l->options.threads;
    l->started = true;
    l->claim = l->next;
    gate_lock(&l->monitor); /* `running` is read by the threads */
    while (started < count &&
           thread_start(&l->workers[started].id, run_worker, &l->workers[started]))
        started++;
    l->running = started;
    gate_unlock(&l->monitor);
}

void bags_loader_close(bags_loader *l) {
    if (!l)
        return;
    loader_stop(l);
    gate_end(&l->monitor);
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        for (size_t k = 0; l->slots[i].parts && k < l->column_count; k++) {
            part *p = &l->slots[i].parts[k];
            bags_buffer_free(&p->data);
            bags_buffer_free(&p->offsets);
            bags_buffer_free(&p->ends);
            bags_buffer_free(&p->values);
            bags_buffer_free(&p->shapes);
        }
    for (size_t i = 0; l->workers && i < l->worker_count; i++) {
        worker *w = &l->workers[i];
        bags_row_free(&w->row);
        bags_buffer_free(&w->value);
        bags_buffer_free(&w->pixels);
        bags_buffer_free(&w->converted);
        bags_buffer_free(&w->resized);
        bags_buffer_free(&w->resampling);
        bags_buffer_free(&w->indices);
    }
    bags_order_free(&l->order);
    while (l->blocks) {
        block *first = l->blocks;
        l->blocks = first->next;
        format_state_close(first);
    }
    format_state_close(l);
}

/* ------------------------------------------------------------------------
 * Using it
 * --------------------------------------------------------------------- */

/* Keep the first failure, and repeat it. */
static bags_code loader_fail(
    bags_loader *l, bags_code code, const bags_error *why, bags_error *err) {
    l->error = *why;
    l->error.code = code;
    if (err)
        *err = l->error;
    return code;
}

bags_code bags_loader_next(bags_loader *l, const bags_batch **batch, bags_error *err) {
    *batch = NULL;
    if (l->error.code)
        return loader_fail(l, l->error.code, &l->error, err);
    if (is_last(l, &l->next))
        return BAGS_OK;
    if (!l->started)
        loader_start(l);
    slot *s = &l->slots[l->delivered % l->slot_count];
    if (!l->running)
        s->code = load_batch(&l->workers[0], s, &l->next, &s->err);
    else {
        gate_lock(&l->monitor);
        if (l->delivered > l->options.hold)
            l->released = l->delivered - l->options.hold;
        gate_wake(&l->monitor);
        while (!s->ready)
            gate_wait(&l->monitor);
        s->ready = false;
        gate_unlock(&l->monitor);
    }
    /* The batches of an epoch are of one version. */
    for (size_t i = 0; i < l->count && l->next.batch + 1 == l->batches; i++)
        if (!s->code)
            s->code = bags_reader_check(l->readers[i], &s->err);
    if (s->code)
        return loader_fail(l, s->code, &s->err, err);
    l->delivered++;
    advance(l, &l->next);
    *batch = &s->batch;
    return BAGS_OK;
}

uint64_t bags_loader_batches(const bags_loader *l) { return l->batches; }

bags_code bags_loader_seek(
    bags_loader *l, uint64_t epoch, uint64_t batch, bags_error *err) {
    if (l->error.code)
        return loader_fail(l, l->error.code, &l->error, err);
    if (batch && batch >= l->batches)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "batch out of range (%" PRIu64 ", %" PRIu64 " per epoch)", batch,
            l->batches);
    loader_stop(l);
    l->next.epoch = epoch;
    l->next.batch = batch;
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

/* ------------------------------------------------------------------------
 * Digests and states
 * --------------------------------------------------------------------- */

static void put_number(unsigned char *to, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get_number(const unsigned char *from, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

static uint64_t hash_number(uint64_t hash, uint64_t number) {
    return mix(hash ^ number) + GOLDEN;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size) {
    const unsigned char *from = (const unsigned char *)data;
    uint64_t word;
    bool swap = !bags_little_endian();
    hash = hash_number(hash, size);
    for (; size >= sizeof word; size -= sizeof word, from += sizeof word) {
        memcpy(&word, from, sizeof word);
        if (swap)
            bags_swap_bytes(&word, &word, sizeof word, sizeof word);
        hash = (hash ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    return hash_number(hash, get_number(from, size));
}

/* The number that a value is, if it is one. */
static uint64_t number_of(const bags_value *value) {
    return value->kind == BAGS_KIND_UINT  ? value->uint
           : value->kind == BAGS_KIND_INT ? (uint64_t)value->sint
                                          : 0;
}

uint64_t bags_batch_digest(const bags_batch *batch) {
    uint64_t digest = 0;
    for (size_t i = 0; i < batch->length; i++) {
        uint64_t hash = hash_number(batch->picks[i].dataset, batch->picks[i].index);
        for (size_t k = 0; k < batch->count; k++) {
            const bags_tensor *t = &batch->tensors[k];
            uint64_t first, count;
            bags_view bytes = bags_tensor_get(batch, t, i, &first, &count);
            hash = hash_bytes(hash, t->name, strlen(t->name));
            hash = hash_number(hash, (uint64_t)t->dtype);
            hash = hash_number(hash, count);
            for (size_t d = 1; d < t->dims; d++)
                hash = hash_number(hash, t->shape[d]);
            if (!t->ends)
                hash = hash_bytes(hash, bytes.data, bytes.size);
            for (uint64_t j = first; t->ends && j < first + count; j++) {
                const bags_value *v = t->values ? &t->values[j] : NULL;
                bytes.data = (const unsigned char *)t->data + t->ends[j];
                bytes.size = v ? v->size : (size_t)(t->ends[j + 1] - t->ends[j]);
                hash = hash_bytes(hash, bytes.data, bytes.size);
                hash = hash_number(hash, v ? number_of(v) : 0);
                hash = hash_number(
                    hash, v ? (uint64_t)v->kind << 8 | (uint64_t)v->dtype : 0);
                for (size_t d = 0; v && d < v->dims; d++)
                    hash = hash_number(hash, v->shape[d]);
            }
        }
        digest += mix(hash);
    }
    return digest;
}

#define SAMPLE 4096 /* bytes of a blob that identify it */

/* Hash what a dataset is: its fields, its length, and three of its datapoints. */
static bags_code hash_dataset(
    const bags_reader *reader, bags_row *row, uint64_t *hash, bags_error *err) {
    uint64_t length = bags_reader_length(reader);
    bags_error why;
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    *hash = hash_number(*hash, length);
    for (size_t i = 0; i < count; i++) {
        *hash = hash_bytes(*hash, fields[i].name, strlen(fields[i].name));
        *hash = hash_bytes(*hash, fields[i].type, strlen(fields[i].type));
    }
    for (uint64_t i = 0; i < 3 && length; i++) {
        uint64_t index = i == 0 ? 0 : i == 1 ? length / 2 : length - 1;
        for (size_t k = 0; k < count; k++) {
            bags_view blob;
            bags_code code =
                bags_reader_get_blob(reader, index, k, 0, row, &blob, &why);
            if (code && !is_damage(code)) { /* such as no item 0 */
                if (err)
                    *err = why;
                return code;
            }
            *hash = hash_number(*hash, blob.size);
            *hash =
                hash_bytes(*hash, blob.data, blob.size < SAMPLE ? blob.size : SAMPLE);
        }
    }
    return BAGS_OK;
}

/* Hash the datasets, and the options that determine the order. */
static bags_code hash_all(bags_loader *l, bags_error *err) {
    const bags_order *o = &l->order;
    const uint32_t *shares = tables_of(o).shares;
    uint64_t data = 0, order = 0;
    bags_code code = BAGS_OK;
    bags_row row;
    if (l->hashed)
        return BAGS_OK;
    memset(&row, 0, sizeof row);
    for (size_t i = 0; i < l->count && !code; i++)
        code = hash_dataset(l->readers[i], &row, &data, err);
    bags_row_free(&row);
    if (code)
        return code;
    order = hash_number(order, o->chunk);
    order = hash_number(order, o->window);
    order =
        hash_number(order, (uint64_t)o->in_order << 1 | (uint64_t)l->options.drop_last);
    for (size_t i = 0; o->weighted && i < o->count; i++)
        order = hash_number(order, shares[i] + UINT64_C(1));
    l->data_hash = (uint32_t)(data >> 32);
    l->order_hash = (uint32_t)(order >> 32);
    l->hashed = true;
    return BAGS_OK;
}

#define STATE_MAGIC "BAGSLD\1\0"

/* What differs if a number of a state does; NULL: it may. */
static const char *const state_members[] = {
    "the seed differs",
    NULL,
    NULL,
    "the number of datapoints differs",
    "the batch size differs",
    "the number of datasets differs",
    "the datasets differ in length, fields, types or content",
    "chunk, window, weights, in_order or drop_last differ",
};

enum { STATE_MEMBERS = 8, STATE_EPOCH = 1, STATE_BATCH = 2, STATE_HASHES = 6 };

/* Write the numbers of a state, or else read them. */
static void state_move(
    unsigned char *state, uint64_t numbers[STATE_MEMBERS], bool write) {
    size_t at = 8;
    for (size_t i = 0, size = 8; i < STATE_MEMBERS; i++, at += size) {
        size = i < 4 ? 8 : 4;
        if (write)
            put_number(state + at, numbers[i], size);
        else
            numbers[i] = get_number(state + at, size);
    }
}

bags_code bags_loader_save(
    bags_loader *l, unsigned char state[BAGS_LOADER_STATE], bags_error *err) {
    uint64_t numbers[STATE_MEMBERS];
    bags_code code = hash_all(l, err);
    if (code)
        return code;
    numbers[0] = l->order.seed;
    numbers[STATE_EPOCH] = l->next.epoch;
    numbers[STATE_BATCH] = l->next.batch;
    numbers[3] = tables_of(&l->order).starts[l->count];
    numbers[4] = l->options.batch;
    numbers[5] = l->count;
    numbers[STATE_HASHES] = l->data_hash;
    numbers[STATE_HASHES + 1] = l->order_hash;
    memcpy(state, STATE_MAGIC, 8);
    state_move(state, numbers, true);
    put_number(state + 56, hash_bytes(0, state, 56), 8);
    return BAGS_OK;
}

bags_code bags_loader_restore(
    bags_loader *l, const void *state, size_t size, bags_error *err) {
    unsigned char saved[BAGS_LOADER_STATE], here[BAGS_LOADER_STATE];
    uint64_t numbers[STATE_MEMBERS], needs[STATE_MEMBERS];
    if (size != sizeof saved)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "not a loader's state (%" PRIu64 " bytes, expected 64)", (uint64_t)size);
    memcpy(saved, state, sizeof saved);
    if (memcmp(saved, STATE_MAGIC, 8) != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a loader's state of version 1");
    if (get_number(saved + 56, 8) != hash_bytes(0, saved, 56))
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "a damaged loader's state (checksum mismatch)");
    bags_code code = bags_loader_save(l, here, err);
    if (code)
        return code;
    state_move(saved, numbers, false);
    state_move(here, needs, false);
    for (size_t i = 0; i < STATE_MEMBERS; i++) {
        char values[64] = "";
        if (!state_members[i] || numbers[i] == needs[i])
            continue;
        if (i < STATE_HASHES)
            (void)snprintf(values, sizeof values, " (%" PRIu64 ", here %" PRIu64 ")",
                numbers[i], needs[i]);
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a state of other datasets or options: %s%s", state_members[i], values);
    }
    return bags_loader_seek(l, numbers[STATE_EPOCH], numbers[STATE_BATCH], err);
}
