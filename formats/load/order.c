/*
 * order.c - the order in which datapoints are loaded: an exact shuffle without a list.
 *
 * It reads nothing: arithmetic turns a position in an epoch into a datapoint. Any
 * thread can therefore make any batch of any epoch at any time, and a loader's state is
 * just a few numbers. Three maps are applied in turn:
 *
 *     position -> dataset and number   the slots of a block, if there are weights
 *     number   -> chunk, and in it     a permutation of all chunks, and of a window
 *     number   -> index                without chunks: a permutation of all datapoints
 *
 * A dataset's selection is applied last, to the index. Selections are the only lists.
 */
#include "order.h"
#include "blocks.h"
#include "files.h"
#include "load.h"
#include "random.h"

#include <inttypes.h>
#include <string.h>

/* ---- permutations ---- */

/*
 * A Feistel network in mixed radix: x is split into the halves x >> bits, below `high`,
 * and x & mask, below 2^bits. Each round adds a hash of one half to the other, modulo
 * that half's range. For any hash, this is a bijection on all pairs of halves. Fewer
 * than 2^bits pairs lie outside the list, a negligible share for a long list; these are
 * permuted again until the result is below length. bits is rounded up, so that 2^bits
 * is even and odd permutations occur, too.
 */
typedef struct order_radix {
    uint64_t length, high, mask;
    unsigned bits, rounds;
} order_radix;

static order_radix order_radix_of(uint64_t length) {
    order_radix r;
    unsigned width = 0;
    while (width < 63 && (length - 1) >> width)
        width++;
    r.length = length;
    r.bits = (width + 1) / 2;
    r.mask = (UINT64_C(1) << r.bits) - 1;
    r.high = ((length - 1) >> r.bits) + 1;
    /* The fewer values the halves can take, the more rounds are needed to mix them:
     * with 24 rounds, some orders of 5 and 6 elements are 0.2 % too frequent. See
     * tests/README.md. */
    r.rounds = length < 64 ? 64 : length < 4096 ? 24 : 12;
    return r;
}

/* A 32-bit hash. */
static uint64_t order_hash(uint64_t half, uint64_t key) {
    uint64_t x = (half + key) * UINT64_C(0xD6E8FEB86659FD93);
    x = (x ^ (x >> 32)) * UINT64_C(0xCA9B0C7EBA1DA115);
    return x >> 32;
}

static uint64_t order_permute(const order_radix *r, uint64_t key, uint64_t x) {
    do {
        uint64_t high = x >> r->bits, low = x & r->mask, round = key;
        for (unsigned i = 0; i < r->rounds; i += 2) {
            low = (low + order_hash(high, round += FORMAT_GOLDEN)) & r->mask;
            high += (order_hash(low, round += FORMAT_GOLDEN) * r->high) >> 32;
            high -= high >= r->high ? r->high : 0;
        }
        x = high << r->bits | low;
    } while (x >= r->length);
    return x;
}

static uint64_t order_permute_back(const order_radix *r, uint64_t key, uint64_t x) {
    do {
        uint64_t high = x >> r->bits, low = x & r->mask;
        uint64_t round = key + r->rounds * FORMAT_GOLDEN;
        for (unsigned i = 0; i < r->rounds; i += 2) {
            uint64_t add = (order_hash(low, round) * r->high) >> 32;
            high = high < add ? high + r->high - add : high - add;
            round -= FORMAT_GOLDEN;
            low = (low - order_hash(high, round)) & r->mask;
            round -= FORMAT_GOLDEN;
        }
        x = high << r->bits | low;
    } while (x >= r->length);
    return x;
}

/* Scale a random number to one below length: the upper half of their product. Some
 * results are less frequent than others by one part in 2^64 / length. */
static uint64_t order_scale(uint64_t random, uint64_t length) {
    uint64_t low = (random & UINT32_MAX) * (length & UINT32_MAX);
    uint64_t one = (random >> 32) * (length & UINT32_MAX) + (low >> 32);
    uint64_t two = (random & UINT32_MAX) * (length >> 32) + (one & UINT32_MAX);
    return (random >> 32) * (length >> 32) + (one >> 32) + (two >> 32);
}

#define ORDER_MAX_LENGTH (UINT64_MAX >> 1)

uint64_t bags_permute(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t position) {
    if (position >= length || length > ORDER_MAX_LENGTH)
        return UINT64_MAX;
    order_radix r = order_radix_of(length);
    return order_permute(&r, format_key(seed, epoch), position);
}

uint64_t bags_permute_inverse(
    uint64_t seed, uint64_t epoch, uint64_t length, uint64_t index) {
    if (index >= length || length > ORDER_MAX_LENGTH)
        return UINT64_MAX;
    order_radix r = order_radix_of(length);
    return order_permute_back(&r, format_key(seed, epoch), index);
}

/* ---- orders ---- */

#define ORDER_BLOCK ((size_t)1024) /* weights are exact over this many positions */

/*
 * One epoch of a single list. With chunks:
 *
 *     positions   | window 0      | window 1      | ... shuffled within
 *     chunks      | c0 c1 ... cG-1| cG ...        | ... a permutation of all
 *
 * The list's last chunk may be short by `missing` datapoints. It is number `short_at`
 * in the permutation, and the windows after its own window start `missing` positions
 * earlier.
 */
typedef struct order_walk {
    bool in_order, replacement;
    uint64_t key;
    order_radix all; /* permutes datapoints or, with chunks, chunks */
    uint64_t chunk, chunks, window, missing, short_at;

    /* The window of the last position: */
    uint64_t start, stop; /* positions in the epoch */
    uint64_t first;       /* number of its first chunk */
    uint64_t gap;         /* datapoints in it before the missing ones */
    uint64_t key_within;
    order_radix within;
    uint64_t *found; /* its chunks, ORDER_UNKNOWN until needed; or NULL */
} order_walk;

#define ORDER_FOUND ((size_t)256) /* most chunks in a window with `found` */
#define ORDER_UNKNOWN UINT64_MAX

static order_walk order_walk_start(
    const bags_order *order, uint64_t seed, uint64_t epoch, uint64_t length) {
    order_walk w;
    memset(&w, 0, sizeof w);
    w.in_order = order->in_order;
    w.replacement = order->replacement;
    w.key = format_key(seed, epoch);
    w.chunk = order->chunk < length ? order->chunk : length;
    w.chunks = w.chunk ? (length - 1) / w.chunk + 1 : 0;
    w.all = order_radix_of(w.chunk ? w.chunks : length);
    if (w.chunk) {
        w.window = order->window < w.chunks ? order->window : w.chunks;
        w.missing = w.chunks * w.chunk - length;
        w.short_at = order_permute_back(&w.all, w.key, w.chunks - 1);
    }
    return w;
}

static void order_walk_enter(order_walk *w, uint64_t position) {
    uint64_t short_window = w->short_at / w->window;
    uint64_t end = (short_window + 1) * w->window; /* end of its chunks */
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
    w->within = order_radix_of(size);
    w->key_within = format_key(w->key, window);
    for (uint64_t i = 0; w->found && i < count; i++)
        w->found[i] = ORDER_UNKNOWN;
}

static uint64_t order_walk_get(order_walk *w, uint64_t position) {
    if (w->in_order)
        return position;
    if (w->replacement)
        return order_scale(format_key(w->key, position), w->all.length);
    if (!w->chunk)
        return order_permute(&w->all, w->key, position);
    if (position < w->start || position >= w->stop)
        order_walk_enter(w, position);
    uint64_t at = order_permute(&w->within, w->key_within, position - w->start);
    if (at >= w->gap)
        at += w->missing;
    uint64_t number = at / w->chunk;
    uint64_t chunk = w->found ? w->found[number] : ORDER_UNKNOWN;
    if (chunk == ORDER_UNKNOWN)
        chunk = order_permute(&w->all, w->key, w->first + number);
    if (w->found)
        w->found[number] = chunk;
    return chunk * w->chunk + at % w->chunk;
}

/* Divide a block's slots among the datasets. */
static bags_code order_share_slots(
    bags_order *order, const double *weights, bags_error *err) {
    format_order_tables t = format_order_tables_of(order);
    double sum = 0, left[ORDER_BLOCK];
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
        double exact = (double)ORDER_BLOCK * weights[i] / sum;
        t.shares[i] = (uint32_t)exact;
        left[i] = exact - (double)t.shares[i];
        used += t.shares[i];
    }
    for (; used < ORDER_BLOCK; used++) {
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

static bags_code order_check(
    const bags_order_options *given, size_t count, bags_error *err) {
    const format_rule rules[] = {
        {count == 0, "no dataset"},
        {given->in_order && given->chunk, "in_order and chunk are mutually exclusive"},
        {given->in_order && given->weights,
            "in_order and weights are mutually exclusive"},
        {given->replacement && given->in_order,
            "replacement and in_order are mutually exclusive"},
        {given->replacement && given->chunk,
            "replacement and chunk are mutually exclusive"},
        {given->window && !given->chunk, "window without chunk"},
        {given->weights && count > ORDER_BLOCK,
            "too many datasets for weights (at most 1,024)"},
    };
    return FORMAT_CHECK(rules, "", err);
}

/* ---- selections ---- */

/* A dataset's selection. */
typedef struct order_selection {
    const uint64_t *numbers; /* its indices, or the start of each range; NULL: all
                                datapoints */
    const uint64_t *before;  /* for ranges: the number of datapoints in all earlier
                                ranges */
    size_t count;
} order_selection;

/* Hashes a selection as maximal runs of consecutive indices, so that a range and a list
 * of the same indices have the same hash. */
typedef struct order_runs {
    uint64_t hash, start, stop, count;
} order_runs;

static void order_runs_end(order_runs *r) {
    if (r->stop > r->start) {
        r->hash = format_mix(r->hash ^ r->start) + FORMAT_GOLDEN;
        r->hash = format_mix(r->hash ^ r->stop) + FORMAT_GOLDEN;
        r->count++;
    }
}

static void order_runs_add(order_runs *r, uint64_t start, uint64_t stop) {
    if (start < stop && start != r->stop) {
        order_runs_end(r);
        r->start = start;
    }
    if (start < stop)
        r->stop = stop;
}

/* Process one dataset's selection: check it, copy it to *memory, and hash it. Sets
 * *length to the number of selected datapoints. */
static bags_code order_select(const bags_selection *from, uint64_t take, size_t dataset,
    uint64_t *length, uint64_t **memory, order_selection *out, uint64_t *hash,
    bags_error *err) {
    bool ranges = from->kind == BAGS_SELECTION_RANGES;
    bool copied = from->count && (ranges || !from->borrowed);
    uint64_t has = *length, left = take ? take : UINT64_MAX, found = 0;
    order_runs runs = {0, 0, 0, 0};
    uint64_t *starts = copied ? *memory : NULL;
    uint64_t *before = copied && ranges ? starts + from->count : NULL;
    if (from->kind == BAGS_SELECTION_ALL) {
        found = has < left ? has : left;
        order_runs_add(&runs, 0, found);
    }
    for (size_t i = 0; i < from->count; i++) {
        uint64_t start = from->numbers[ranges ? 2 * i : i];
        uint64_t stop = ranges ? from->numbers[2 * i + 1] : start + 1;
        if (ranges && (start > stop || stop > has))
            return bags_fail(err, BAGS_ERROR_RANGE,
                "selection of dataset %" PRIu64 ": range out of range (%" PRIu64
                ":%" PRIu64 ", length %" PRIu64 ")",
                (uint64_t)dataset, start, stop, has);
        if (!ranges && start >= has)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "selection of dataset %" PRIu64 ": index %" PRIu64
                " out of range (length %" PRIu64 ")",
                (uint64_t)dataset, start, has);
        if (copied)
            starts[i] = start;
        if (before)
            before[i] = found;
        if (stop - start > left - found)
            stop = start + (left - found);
        if (stop - start > ORDER_MAX_LENGTH - found)
            return bags_fail(err, BAGS_ERROR_LIMIT, "2^63 datapoints or more");
        order_runs_add(&runs, start, stop);
        found += stop - start;
    }
    order_runs_end(&runs);
    out->numbers = copied ? starts : from->numbers;
    out->before = before;
    out->count = from->count;
    if (copied)
        *memory += ranges ? 2 * from->count : from->count;
    *length = found;
    if (found != has || runs.count > 1)
        *hash = format_mix(format_mix(*hash + dataset) ^ runs.hash) + FORMAT_GOLDEN;
    return BAGS_OK;
}

/* Process the selections of all datasets. Replaces `lengths` with the selections'
 * lengths. */
static bags_code order_select_all(bags_order *order, const bags_order_options *given,
    uint64_t *lengths, bags_error *err) {
    static const bags_selection all = {BAGS_SELECTION_ALL, NULL, 0, false};
    size_t tables = (order->count * sizeof(order_selection) + 7) / 8 * 8, numbers = 0;
    uint64_t *memory = NULL;
    bags_code code = BAGS_OK;
    for (size_t i = 0; given->selections && i < order->count; i++) {
        const bags_selection *s = &given->selections[i];
        bool is_all = s->kind == BAGS_SELECTION_ALL;
        if (s->kind > BAGS_SELECTION_RANGES || (s->count && !s->numbers) ||
            (is_all && (s->count || s->numbers)))
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "selection of dataset %" PRIu64
                ": kind, numbers and count do not fit together",
                (uint64_t)i);
        if (s->count > SIZE_MAX / 128 - numbers)
            return bags_fail(err, BAGS_ERROR_LIMIT, "too many numbers are selected");
        if (!s->borrowed || s->kind == BAGS_SELECTION_RANGES)
            numbers += s->count;
    }
    if (given->selections) { /* two numbers per range */
        code = bags_buffer_reserve(
            &order->selections, tables + 2 * numbers * sizeof(uint64_t), err);
        if (code)
            return code;
        memory = (uint64_t *)(void *)(order->selections.data + tables);
    }
    for (size_t i = 0; i < order->count && !code; i++) {
        order_selection unused, *out = &unused;
        if (given->selections)
            out = (order_selection *)(void *)order->selections.data + i;
        code = order_select(given->selections ? &given->selections[i] : &all,
            given->take, i, &lengths[i], &memory, out, &order->selection, err);
    }
    return code;
}

/* Convert pick->index from a number in the dataset's selection to an index in the
 * dataset. */
static void order_apply_selection(const bags_order *order, bags_pick *pick) {
    const order_selection *s =
        (const order_selection *)(const void *)order->selections.data + pick->dataset;
    if (!s->numbers)
        return;
    if (!s->before) {
        pick->index = s->numbers[pick->index];
        return;
    }
    /* Several ranges may start at this number; all but the last are empty. */
    size_t range =
        format_last_at_most(s->before, sizeof *s->before, s->count, pick->index);
    pick->index = s->numbers[range] + (pick->index - s->before[range]);
}

/* ---- several datasets ---- */

bags_code bags_order_init(bags_order *order, const uint64_t *lengths, size_t count,
    const bags_order_options *options, const bags_allocator *allocator,
    bags_error *err) {
    bags_order_options given;
    memset(&given, 0, sizeof given);
    memset(order, 0, sizeof *order);
    if (options)
        given = *options;
    bags_code code = order_check(&given, count, err);
    if (code)
        return code;
    order->count = count;
    order->seed = given.seed;
    order->in_order = given.in_order;
    order->weighted = given.weights != NULL;
    order->replacement = given.replacement;
    order->chunk = given.chunk;
    order->window = given.chunk && !given.window ? 256 : given.window;
    order->memory = order->selections = bags_buffer_of(allocator);
    if (count >= SIZE_MAX / 32)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many datasets");
    code = bags_buffer_reserve(&order->memory,
        (count + 1) * sizeof(uint64_t) +
            (order->weighted ? (count + ORDER_BLOCK) * sizeof(uint32_t) : 0),
        err);
    if (code)
        return code;
    uint64_t *starts = format_order_tables_of(order).starts;
    starts[0] = 0;
    for (size_t i = 0; i < count; i++)
        starts[i + 1] = lengths[i];
    if (given.selections || given.take)
        code = order_select_all(order, &given, starts + 1, err);
    if (code)
        return code;
    for (size_t i = 0; i < count; i++) {
        if (given.weights && starts[i + 1] == 0)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "dataset %" PRIu64 " is empty, but has a weight", (uint64_t)i);
        if (starts[i + 1] > ORDER_MAX_LENGTH - order->length)
            return bags_fail(err, BAGS_ERROR_LIMIT, "2^63 datapoints or more");
        starts[i + 1] = order->length += starts[i + 1];
    }
    if (!order->weighted)
        return BAGS_OK;
    order->length = (order->length + ORDER_BLOCK - 1) / ORDER_BLOCK * ORDER_BLOCK;
    return order_share_slots(order, given.weights, err);
}

void bags_order_free(bags_order *order) {
    if (!order)
        return;
    bags_buffer_free(&order->memory);
    bags_buffer_free(&order->selections);
    memset(order, 0, sizeof *order);
}

/* Find the dataset and the index for a place in the list of all datasets. */
static bags_pick order_pick(const bags_order *order, uint64_t place) {
    const uint64_t *starts = format_order_tables_of(order).starts;
    bags_pick pick;
    pick.dataset = format_last_at_most(starts, sizeof *starts, order->count, place);
    pick.index = place - starts[pick.dataset];
    return pick;
}

/* Pick the datapoints for a block, numbered across all epochs. All slots from 0 are
 * visited, although only slots from `from` on are wanted, because a dataset's slots are
 * numbered as they occur, so that each dataset is walked in order. */
static void order_pick_block(const bags_order *order, uint64_t block, size_t from,
    size_t stop, bags_pick *picks) {
    format_order_tables t = format_order_tables_of(order);
    uint16_t seen[ORDER_BLOCK];
    order_radix r = order_radix_of(ORDER_BLOCK);
    uint64_t key = format_key(order->seed ^ FORMAT_GOLDEN, block);
    memset(seen, 0, order->count * sizeof *seen);
    for (size_t i = 0; i < stop; i++) {
        size_t dataset = t.slots[order_permute(&r, key, i)];
        uint64_t number = block * t.shares[dataset] + seen[dataset]++;
        uint64_t length = t.starts[dataset + 1] - t.starts[dataset];
        if (i < from)
            continue;
        order_walk w = order_walk_start(order,
            format_key(order->seed, ~(uint64_t)dataset), number / length, length);
        picks[i - from].dataset = dataset;
        picks[i - from].index = order_walk_get(&w, number % length);
    }
}

static void order_pick_all(const bags_order *order, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks) {
    uint64_t found[ORDER_FOUND];
    order_walk w = order_walk_start(order, order->seed, epoch, order->length);
    w.found = w.window <= ORDER_FOUND ? found : NULL;
    for (size_t i = 0; i < count; i++) {
        uint64_t place = order_walk_get(&w, start + i);
        if (order->count == 1) {
            picks[i].dataset = 0;
            picks[i].index = place;
        } else
            picks[i] = order_pick(order, place);
    }
}

static bags_code order_pick_weighted(const bags_order *order, uint64_t epoch,
    uint64_t start, size_t count, bags_pick *picks, bags_error *err) {
    if (epoch >= ORDER_MAX_LENGTH / order->length)
        return bags_fail(
            err, BAGS_ERROR_RANGE, "epoch out of range (%" PRIu64 ")", epoch);
    uint64_t at = epoch * order->length + start;
    for (size_t i = 0; i < count;) {
        size_t from = (size_t)((at + i) % ORDER_BLOCK);
        size_t stop = count - i < ORDER_BLOCK - from ? from + (count - i) : ORDER_BLOCK;
        order_pick_block(order, (at + i) / ORDER_BLOCK, from, stop, picks + i);
        i += stop - from;
    }
    return BAGS_OK;
}

bags_code bags_order_get(const bags_order *order, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks, bags_error *err) {
    bags_code code = BAGS_OK;
    if (start > order->length || count > order->length - start)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "positions out of range (%" PRIu64 " and %" PRIu64 " more, length %" PRIu64
            ")",
            start, (uint64_t)count, order->length);
    if (count == 0)
        return BAGS_OK;
    if (order->weighted)
        code = order_pick_weighted(order, epoch, start, count, picks, err);
    else
        order_pick_all(order, epoch, start, count, picks);
    for (size_t i = 0; i < count && !code && order->selections.data; i++)
        order_apply_selection(order, &picks[i]);
    return code;
}
