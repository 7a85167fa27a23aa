/*
 * stats.c - statistics of the numbers in fields; see datasets.h. No library except
 * threads.
 *
 * The state of an element depends only on the multiset of its numbers, not on their
 * order. Each thread has its own state, merged at the end:
 *
 *     sum, squares   exact: fixed-point numbers wide enough for any sum
 *     least, most    keys: numbers mapped to 64-bit integers that sort the same way
 *     table          key >> shift, with a count of numbers. `shift` is the smallest for
 *                    which at most `limit` entries are distinct, so a subset of the
 *                    numbers never needs a larger shift than the whole
 *     counts         used instead of all that for 8 bits: how often each of the 256
 *                    values occurs
 */
#include "gate.h"

#include "blocks.h"
#include "datasets.h"
#include "values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STATS_ELEMENTS 16384            /* of a field */
#define STATS_COUNTED 4096              /* 8-bit elements whose values are counted */
#define STATS_TABLES ((size_t)1 << 22)  /* entries of a field */
#define STATS_TABLE ((size_t)1 << 20)   /* entries of an element */
#define STATS_CHUNK 64                  /* datapoints claimed by a thread at a time */
#define STATS_THREADS 1024              /* at most */
#define STATS_ADDED ((uint32_t)1 << 28) /* additions before carries are propagated */

/* ---- exact sums ---- */

/* A number is the sum of digit[i] * 2^(32 * i + low). The digits are signed 64-bit
 * integers, so that carries are propagated only once for many additions. */
typedef struct stats_exact {
    int64_t *digits;
    size_t count;
} stats_exact;

static void exact_carry(const stats_exact *x) {
    for (size_t i = 0; i + 1 < x->count; i++) {
        int64_t low = x->digits[i] & INT64_C(0xFFFFFFFF);
        x->digits[i + 1] += (x->digits[i] - low) / ((int64_t)1 << 32);
        x->digits[i] = low;
    }
}

/* Add or subtract m * 2^at, where `at` counts from the lowest bit. */
static inline void exact_add(
    const stats_exact *x, uint64_t m, unsigned at, bool negative) {
    int64_t *to = x->digits + at / 32;
    unsigned by = at % 32;
    uint64_t mask = 0xFFFFFFFF, high = by ? m >> (64 - by) : 0;
    int64_t parts[3] = {
        (int64_t)(m << by & mask), (int64_t)(m >> (32 - by) & mask), (int64_t)high};
    for (size_t i = 0; i < 3; i++)
        to[i] += negative ? -parts[i] : parts[i];
}

/* Get the magnitude in 32-bit digits; returns true if the number is negative. */
static bool exact_magnitude(const stats_exact *x, uint32_t *out) {
    exact_carry(x);
    bool negative = x->digits[x->count - 1] < 0;
    for (size_t i = 0; negative && i < x->count; i++)
        x->digits[i] = -x->digits[i];
    exact_carry(x);
    for (size_t i = 0; i < x->count; i++)
        out[i] = (uint32_t)x->digits[i];
    return negative;
}

/* Get the float64 nearest to a number of `count` digits: the result * 2^*exponent. */
static double digits_real(const uint32_t *digits, size_t count, int *exponent) {
    while (count && !digits[count - 1])
        count--;
    *exponent = 0;
    if (count < 3)
        return count ? (double)(digits[0] | (uint64_t)(count > 1 ? digits[1] : 0) << 32)
                     : 0;
    unsigned by = 0;
    while (!(digits[count - 1] << by >> 31))
        by++;
    uint64_t top = (uint64_t)digits[count - 1] << 32 | digits[count - 2];
    top = by ? top << by | digits[count - 3] >> (32 - by) : top;
    bool rest = (uint32_t)(digits[count - 3] << by) > 0;
    for (size_t i = 0; i + 3 < count && !rest; i++)
        rest = digits[i] > 0;
    *exponent = (int)(32 * (count - 2)) - (int)by;
    return (double)(top | rest);
}

/* ---- elements ---- */

typedef enum stats_class { STATS_UNSIGNED, STATS_SIGNED, STATS_REAL } stats_class;

typedef struct stats_entry {
    uint64_t key, count; /* count 0: free */
} stats_entry;

typedef struct stats_element {
    uint64_t count, least, most;
    stats_exact sum, squares;
    uint32_t added; /* additions since the last carry */
    uint32_t shift;
    bags_buffer table;
    size_t capacity, used; /* table size and use in entries; capacity is a power of
                            * two */
} stats_element;

/* How the elements of a field are stored. Fixed by the first value. */
typedef struct stats_layout {
    bool known, image;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
    size_t
        free_dim; /* a dimension that may vary, whose items belong to the same elements;
                   * SIZE_MAX: none */
    size_t elements;
    size_t free_inner; /* number of elements after that dimension */
    stats_class kind;
    int low; /* exponent of a sum's lowest bit; for a sum of squares, twice that */
    size_t sum_digits, square_digits;
    size_t limit; /* maximum number of keys in a table */
    bool counted;
} stats_layout;

/* A thread's state of a field. */
typedef struct stats_field {
    stats_layout layout;
    stats_element *elements; /* `elements` of them, and one more for gray images */
    uint64_t *counts;        /* 256 each, or NULL */
    format_block *blocks;
} stats_field;

static uint64_t stats_hash(uint64_t key, size_t capacity) {
    return (key * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (capacity - 1);
}

static void table_put(stats_element *e, uint64_t key, uint64_t count) {
    stats_entry *table = (stats_entry *)(void *)e->table.data;
    uint64_t at = stats_hash(key, e->capacity);
    while (table[at].count && table[at].key != key)
        at = (at + 1) & (e->capacity - 1);
    e->used += !table[at].count;
    table[at].key = key;
    table[at].count += count;
}

/* Move all entries to a table of this capacity, shifting keys by more bits. */
static bags_code table_rebuild(
    stats_element *e, size_t capacity, uint32_t shift, bags_error *err) {
    bags_buffer old = e->table;
    size_t old_capacity = e->capacity;
    bags_buffer made = {NULL, 0, old.resize, old.user};
    FORMAT_TRY(bags_buffer_reserve(&made, capacity * sizeof(stats_entry), err));
    memset(made.data, 0, capacity * sizeof(stats_entry));
    e->table = made;
    e->capacity = capacity;
    e->used = 0;
    for (size_t i = 0; i < old_capacity; i++) {
        const stats_entry *entry = (const stats_entry *)(const void *)old.data + i;
        if (entry->count)
            table_put(e, entry->key >> (shift - e->shift), entry->count);
    }
    e->shift = shift;
    bags_buffer_free(&old);
    return BAGS_OK;
}

static int compare_entries(const void *a, const void *b) {
    uint64_t one = ((const stats_entry *)a)->key, two = ((const stats_entry *)b)->key;
    return one < two ? -1 : one > two;
}

/* Move the entries to the front of the table's memory, in ascending order. It is not a
 * valid table until rebuilt or freed. */
static stats_entry *table_sort(stats_element *e) {
    stats_entry *table = (stats_entry *)(void *)e->table.data;
    size_t used = 0;
    for (size_t i = 0; i < e->capacity; i++)
        if (table[i].count)
            table[used++] = table[i];
    for (size_t i = used; i < e->capacity; i++)
        table[i].count = 0;
    if (used)
        qsort(table, used, sizeof *table, compare_entries);
    return table;
}

/* Keep at most `limit` keys: drop as few of their low bits as needed. */
static bags_code table_shrink(stats_element *e, size_t limit, bags_error *err) {
    const stats_entry *sorted = table_sort(e);
    size_t used = e->used, differ = used;
    uint32_t by = 0;
    while (differ > limit && by < 63) {
        by++;
        differ = 1;
        for (size_t i = 1; i < used; i++)
            differ += sorted[i].key >> by != sorted[i - 1].key >> by;
    }
    return table_rebuild(e, e->capacity, e->shift + by, err);
}

static bags_code table_add(
    stats_element *e, uint64_t key, uint64_t count, size_t limit, bags_error *err) {
    if (e->used >= e->capacity / 4 * 3 && e->used < limit)
        FORMAT_TRY(table_rebuild(e, e->capacity ? 2 * e->capacity : 64, e->shift, err));
    table_put(e, key >> e->shift, count);
    return e->used > limit ? table_shrink(e, limit, err) : BAGS_OK;
}

/* A number, as m * 2^exponent, and its key. */
typedef struct stats_number {
    uint64_t m, key;
    int exponent;
    bool negative;
} stats_number;

static inline stats_number number_of_whole(uint64_t bits, bool is_signed) {
    stats_number n = {bits, bits, 0, is_signed && bits >> 63};
    n.m = n.negative ? 0 - bits : bits;
    n.key = is_signed ? bits ^ UINT64_C(1) << 63 : bits;
    return n;
}

/* Convert a float. `single`: a float32 or float16, for which the 29 low bits of m are
 * 0. */
static inline stats_number number_of_real(double value, bool single) {
    stats_number n;
    uint64_t bits;
    value = value + 0.0; /* -0 is 0 */
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 2047);
    n.negative = bits >> 63;
    n.key = n.negative ? ~bits : bits | UINT64_C(1) << 63;
    n.m = (bits & (UINT64_MAX >> 12)) | (uint64_t)(exponent > 0) << 52;
    n.m = single ? n.m >> 29 : n.m;
    n.exponent = (exponent ? exponent - 1075 : -1074) + (single ? 29 : 0);
    return n;
}

static double key_real(uint64_t key, stats_class kind) {
    double real;
    if (kind == STATS_UNSIGNED)
        return (double)key;
    if (kind == STATS_SIGNED)
        return (double)(int64_t)(key ^ UINT64_C(1) << 63);
    key = key >> 63 ? key ^ UINT64_C(1) << 63 : ~key;
    memcpy(&real, &key, sizeof real);
    return real;
}

/* Add a number that occurs `times` times; more than once only for 8-bit numbers. */
static bags_code element_add(stats_element *e, const stats_layout *l,
    const stats_number *n, uint64_t times, bags_error *err) {
    unsigned at = (unsigned)(n->exponent - l->low);
    uint64_t high = n->m >> 32, low = n->m & 0xFFFFFFFF;
    if (n->m) {
        exact_add(&e->sum, n->m * times, at, n->negative);
        exact_add(&e->squares, low * low * times, 2 * at, false);
    }
    if (high) {
        exact_add(&e->squares, high * low, 2 * at + 33, false);
        exact_add(&e->squares, high * high, 2 * at + 64, false);
    }
    if (++e->added == STATS_ADDED) {
        exact_carry(&e->sum);
        exact_carry(&e->squares);
        e->added = 0;
    }
    e->count += times;
    e->least = n->key < e->least ? n->key : e->least;
    e->most = n->key > e->most ? n->key : e->most;
    return table_add(e, n->key, times, l->limit, err);
}

static bags_code element_merge(
    stats_element *to, stats_element *from, const stats_layout *l, bags_error *err) {
    exact_carry(&from->sum);
    exact_carry(&from->squares);
    exact_carry(&to->sum);
    exact_carry(&to->squares);
    to->added = 1;
    for (size_t i = 0; i < l->sum_digits; i++)
        to->sum.digits[i] += from->sum.digits[i];
    for (size_t i = 0; i < l->square_digits; i++)
        to->squares.digits[i] += from->squares.digits[i];
    to->count += from->count;
    to->least = from->least < to->least ? from->least : to->least;
    to->most = from->most > to->most ? from->most : to->most;
    if (from->shift > to->shift && to->capacity)
        FORMAT_TRY(table_rebuild(to, to->capacity, from->shift, err));
    else if (from->shift > to->shift)
        to->shift = from->shift;
    for (size_t i = 0; i < from->capacity; i++) {
        const stats_entry *entry =
            (const stats_entry *)(const void *)from->table.data + i;
        if (entry->count)
            FORMAT_TRY(
                table_add(to, entry->key << from->shift, entry->count, l->limit, err));
    }
    return BAGS_OK;
}

/* ---- results ---- */

/* The number of rank `i`, from 0, in ascending order. Numbers in a group are assumed to
 * be evenly spread; *error is raised to the maximum possible error. */
static double element_ranked(const stats_element *e, const stats_entry *sorted,
    stats_class kind, uint64_t i, double *error) {
    while (i >= sorted->count)
        i -= sorted++->count;
    uint64_t first = sorted->key << e->shift;
    uint64_t last = first | ((UINT64_C(1) << e->shift) - 1);
    first = first > e->least ? first : e->least;
    last = last < e->most ? last : e->most;
    double low = key_real(first, kind), high = key_real(last, kind);
    if (high - low > *error)
        *error = high - low;
    return low + (high - low) * (((double)i + 0.5) / (double)sorted->count);
}

/* As numpy.quantile, but numbers that are more than the largest float64 apart do not
 * become infinite. */
static double element_quantile(const stats_element *e, const stats_entry *sorted,
    stats_class kind, double q, double *error) {
    double at = (double)(e->count - 1) * q, down = floor(at), part = at - down;
    uint64_t i = (uint64_t)down;
    double a = element_ranked(e, sorted, kind, i, error), b = a;
    if (i + 1 < e->count)
        b = element_ranked(e, sorted, kind, i + 1, error);
    if (isinf(b - a))
        return a * (1 - part) + b * part;
    return part < 0.5 ? a + (b - a) * part : b - (b - a) * (1 - part);
}

/* Compute the mean, and the square root of (count * squares - sum^2) / count^2. The
 * terms are exact. */
static void element_moments(
    const stats_element *e, const stats_layout *l, bags_statistics *out) {
    uint32_t scratch[512]; /* at most 5 * 70 + 138 + 8 are needed */
    size_t size = l->sum_digits, wide = l->square_digits, digits = 2 * size + 4;
    uint32_t *sum = scratch, *squares = sum + size, *square = squares + wide;
    uint32_t *all = square + digits;
    int exponent;
    memset(square, 0, 2 * digits * sizeof *square);
    bool negative = exact_magnitude(&e->sum, sum);
    (void)exact_magnitude(&e->squares, squares);
    double real = digits_real(sum, size, &exponent) / (double)e->count;
    out->mean = ldexp(negative ? -real : real, exponent + l->low);
    double least = key_real(e->least, l->kind), most = key_real(e->most, l->kind);
    out->mean = out->mean < least ? least : out->mean > most ? most : out->mean;
    for (size_t i = 0; i < size; i++) {
        uint64_t carry = 0;
        for (size_t k = 0; k < size; k++) {
            carry += square[i + k] + (uint64_t)sum[i] * sum[k];
            square[i + k] = (uint32_t)carry;
            carry >>= 32;
        }
        square[i + size] = (uint32_t)carry;
    }
    for (size_t half = 0; half < 2; half++) {
        uint64_t carry = 0, by = half ? e->count >> 32 : e->count & 0xFFFFFFFF;
        for (size_t k = 0; k + half < digits; k++) {
            carry += all[k + half] + (k < wide ? by * squares[k] : 0);
            all[k + half] = (uint32_t)carry;
            carry >>= 32;
        }
    }
    int64_t borrow = 0;
    for (size_t k = 0; k < digits; k++) {
        borrow += (int64_t)all[k] - square[k];
        all[k] = (uint32_t)borrow;
        borrow = borrow < 0 ? -1 : 0;
    }
    real = digits_real(all, digits, &exponent);
    exponent += 2 * l->low;
    real = exponent % 2 ? 2 * real : real;
    exponent -= exponent % 2 ? 1 : 0;
    out->std = ldexp(sqrt(real) / (double)e->count, exponent / 2);
}

static bags_value key_value(uint64_t key, stats_class kind) {
    return kind == STATS_UNSIGNED ? bags_uint(key)
           : kind == STATS_SIGNED ? bags_int((int64_t)(key ^ UINT64_C(1) << 63))
                                  : bags_real(key_real(key, kind));
}

static void element_result(
    stats_element *e, const stats_layout *l, bags_statistics *out) {
    static const double quantiles[] = {0.01, 0.1, 0.5, 0.9, 0.99};
    memset(out, 0, sizeof *out);
    out->count = e->count;
    if (!e->count)
        return;
    element_moments(e, l, out);
    out->min = key_value(e->least, l->kind);
    out->max = key_value(e->most, l->kind);
    const stats_entry *sorted = table_sort(e);
    for (size_t i = 0; i < BAGS_QUANTILES; i++)
        out->quantiles[i] =
            element_quantile(e, sorted, l->kind, quantiles[i], &out->error);
}

/* ---- fields ---- */

/* Fill in the parts of a layout given by the type. */
static bags_code layout_of_type(
    const bags_reader *reader, size_t field, stats_layout *l, bags_error *err) {
    static const char *const images[] = {"jpeg", "jpg", "png", "webp", "mp4", "webm"};
    static const char *const others[] = {"bytes", "utf8", "msgpack", "tree"};
    size_t count;
    const bags_type *type = bags_reader_type(reader, field);
    bags_type inside;
    if (format_type_inside(type, &inside))
        type = &inside;
    bags_view first = bags_type_argument(type, 0);
    bool refused = false;
    l->free_dim = SIZE_MAX;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        l->image = l->image || bags_view_is(type->name, images[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        refused = refused || bags_view_is(type->name, others[i]);
    if (bags_view_is(type->name, "array") && type->count > 0) {
        bags_dtype dtype = bags_dtype_parse((const char *)first.data, first.size, NULL);
        uint64_t number;
        refused = dtype == BAGS_DTYPE_COMPLEX64 || dtype == BAGS_DTYPE_COMPLEX128;
        for (size_t i = 1; i < type->count; i++) /* -1: any */
            if (!bags_type_number(type, i, &number))
                l->free_dim = i - 1;
    }
    if (refused)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: field \"%.200s\": values of type %.80s have no statistics",
            bags_path_tail(bags_reader_path(reader)),
            bags_reader_fields(reader, &count)[field].name,
            bags_reader_fields(reader, &count)[field].type);
    return BAGS_OK;
}

static bags_dtype dtype_of(const bags_value *value) {
    return value->kind == BAGS_KIND_ARRAY  ? value->dtype
           : value->kind == BAGS_KIND_UINT ? BAGS_DTYPE_UINT64
           : value->kind == BAGS_KIND_INT  ? BAGS_DTYPE_INT64
                                           : BAGS_DTYPE_NONE;
}

/* The number of channels in an image H x W or H x W x C, or in a video T x H x W x
 * C. */
static uint64_t channels_of(const bags_value *value) {
    return value->dims > 2 ? value->shape[value->dims - 1] : 1;
}

/* Fix the layout with the first value. A field may mix gray and colour images: gray
 * ones are kept in the element after the three channels. */
static bags_code layout_complete(
    stats_layout *l, const bags_value *value, bags_error *err) {
    uint64_t elements = l->image ? channels_of(value) : 1;
    elements = l->image && elements == 1 ? 3 : elements;
    size_t dims = value->kind == BAGS_KIND_ARRAY ? value->dims : 0;
    l->dtype = dtype_of(value);
    l->dims = dims;
    l->free_inner = 1;
    for (size_t i = 0; i < dims; i++) {
        l->shape[i] = value->shape[i];
        if (l->image || i == l->free_dim)
            continue;
        if (l->free_dim != SIZE_MAX && i > l->free_dim)
            l->free_inner *= (size_t)value->shape[i];
        elements *=
            value->shape[i] < STATS_ELEMENTS ? value->shape[i] : STATS_ELEMENTS + 1;
        if (elements > STATS_ELEMENTS)
            break;
    }
    if (elements > STATS_ELEMENTS)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "too many elements for statistics of each (maximum %d)", STATS_ELEMENTS);
    bags_dtype d = l->dtype;
    bool single = d == BAGS_DTYPE_FLOAT16 || d == BAGS_DTYPE_FLOAT32;
    l->elements = (size_t)elements;
    l->kind = single || d == BAGS_DTYPE_FLOAT64               ? STATS_REAL
              : d >= BAGS_DTYPE_INT8 && d <= BAGS_DTYPE_INT64 ? STATS_SIGNED
                                                              : STATS_UNSIGNED;
    /* Room for 2^64 numbers as wide as the widest, and a digit for carries. */
    l->low = l->kind != STATS_REAL ? 0 : single ? -192 : -1088;
    l->sum_digits = l->kind != STATS_REAL ? 6 : single ? 14 : 70;
    l->square_digits = l->kind != STATS_REAL ? 8 : single ? 24 : 138;
    l->counted = bags_dtype_size(d) == 1 && elements <= STATS_COUNTED;
    size_t table = STATS_TABLE;
    while (table > 256 && table * l->elements > STATS_TABLES)
        table /= 2;
    l->limit = table / 4 * 3;
    l->known = true;
    return BAGS_OK;
}

/* Allocate the elements. */
static bags_code field_allocate(
    stats_field *f, const bags_allocator *allocator, bags_error *err) {
    const stats_layout *l = &f->layout;
    size_t count = l->elements + 1, digits = l->sum_digits + l->square_digits;
    f->elements = (stats_element *)format_block_add(
        &f->blocks, allocator, count, sizeof *f->elements, err);
    int64_t *all = (int64_t *)format_block_add(
        &f->blocks, allocator, count, digits * sizeof *all, err);
    if (l->counted)
        f->counts = (uint64_t *)format_block_add(
            &f->blocks, allocator, count, 256 * sizeof(uint64_t), err);
    if (!f->elements || !all || (l->counted && !f->counts))
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++, all += digits) {
        stats_element *e = &f->elements[i];
        e->least = UINT64_MAX;
        e->sum.digits = all;
        e->sum.count = l->sum_digits;
        e->squares.digits = all + l->sum_digits;
        e->squares.count = l->square_digits;
        e->table = bags_buffer_of(allocator);
    }
    return BAGS_OK;
}

static void field_free(stats_field *f) {
    for (size_t i = 0; f->elements && i <= f->layout.elements; i++)
        bags_buffer_free(&f->elements[i].table);
    format_blocks_free(f->blocks);
}

/* Fail unless a value has the same dtype and shape as the first one. */
static bags_code layout_check(
    const stats_layout *l, const bags_value *value, bags_error *err) {
    size_t dims = value->kind == BAGS_KIND_ARRAY ? value->dims : 0;
    if (dtype_of(value) != l->dtype)
        return bags_fail(err, BAGS_ERROR_VALUE, "dtype mismatch (%s, expected %s)",
            bags_dtype_name(dtype_of(value)), bags_dtype_name(l->dtype));
    if (l->image) {
        uint64_t channels = channels_of(value), expected = l->elements;
        if (channels == expected || (channels == 1 && expected == 3))
            return BAGS_OK;
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%" PRIu64 " channels (expected %" PRIu64 ")", channels, expected);
    }
    bool same = dims == l->dims;
    for (size_t i = 0; same && i < dims; i++)
        same = value->shape[i] == l->shape[i] || i == l->free_dim;
    return same
               ? BAGS_OK
               : bags_fail(err, BAGS_ERROR_VALUE, "another shape than the first value");
}

/* Load element i of an array as a number. False if it is NaN. */
static inline bool load_number(
    bags_dtype dtype, const unsigned char *data, size_t i, stats_number *n) {
    size_t size = bags_dtype_size(dtype);
    uint64_t bits = bags_load_bytes(data + i * size, size, !bags_little_endian());
    if (dtype >= BAGS_DTYPE_FLOAT16) {
        double value = format_real(bits, size);
        *n = number_of_real(value, size < 8);
        return !isnan(value);
    }
    bool is_signed = dtype >= BAGS_DTYPE_INT8;
    uint64_t sign = is_signed ? UINT64_C(1) << (8 * size - 1) : 0;
    *n = number_of_whole((bits ^ sign) - sign, is_signed);
    return true;
}

/* Add a number. */
static inline bags_code field_add_number(
    stats_field *f, size_t to, const unsigned char *data, size_t i, bags_error *err) {
    const stats_layout *l = &f->layout;
    stats_number n;
    if (l->counted) {
        f->counts[256 * to + data[i]]++;
        return BAGS_OK;
    }
    if (!load_number(l->dtype, data, i, &n))
        return BAGS_OK;
    if (l->kind == STATS_REAL && isinf(key_real(n.key, STATS_REAL)))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "element %" PRIu64 ": statistics need finite numbers (%sinf)", (uint64_t)i,
            n.negative ? "-" : "");
    return element_add(&f->elements[to], l, &n, 1, err);
}

/* Add a value: its numbers are [count / free / inner][free][inner], the elements [count
 * / free / inner][inner], starting at the first. */
static bags_code field_add(stats_field *f, const bags_value *value,
    const bags_allocator *allocator, bags_error *err) {
    stats_layout *l = &f->layout;
    const unsigned char *data = (const unsigned char *)value->data;
    bags_dtype dtype = dtype_of(value);
    size_t count = 1;
    if (!dtype || dtype > BAGS_DTYPE_FLOAT64)
        return bags_fail(err, BAGS_ERROR_TYPE, "not a real number or an array of them");
    if (value->kind == BAGS_KIND_ARRAY) {
        FORMAT_TRY(format_array_check(value, err));
        count = value->size / bags_dtype_size(dtype);
    } else {
        data = value->kind == BAGS_KIND_UINT ? (const unsigned char *)&value->uint
                                             : (const unsigned char *)&value->sint;
    }
    if (!l->known)
        FORMAT_TRY(layout_complete(l, value, err));
    FORMAT_TRY(layout_check(l, value, err));
    if (!f->elements)
        FORMAT_TRY(field_allocate(f, allocator, err));
    size_t inner = l->elements, free_length = 1, first = 0;
    if (l->image) {
        inner = (size_t)channels_of(value);
        first = inner < l->elements ? l->elements : 0;
        free_length = inner ? count / inner : 0;
    } else if (l->free_dim < l->dims) {
        inner = l->free_inner;
        free_length = (size_t)value->shape[l->free_dim];
    }
    for (size_t i = 0, to = first; i < count; to += inner)
        for (size_t k = 0; k < free_length; k++)
            for (size_t j = 0; j < inner; j++)
                FORMAT_TRY(field_add_number(f, to + j, data, i++, err));
    return BAGS_OK;
}

/* Merge another thread's state. */
static bags_code field_merge(stats_field *to, stats_field *from,
    const bags_allocator *allocator, bags_error *err) {
    if (!from->elements)
        return BAGS_OK;
    if (!to->elements)
        FORMAT_TRY(field_allocate(to, allocator, err));
    for (size_t i = 0; i <= to->layout.elements; i++)
        FORMAT_TRY(
            element_merge(&to->elements[i], &from->elements[i], &to->layout, err));
    for (size_t i = 0; from->counts && i < 256 * (to->layout.elements + 1); i++)
        to->counts[i] += from->counts[i];
    return BAGS_OK;
}

/* Add the counts to the elements. If there are colour images, add gray ones to each
 * channel; if all images are gray, keep only their element. */
static bags_code field_finish(stats_field *f, bags_error *err) {
    stats_layout *l = &f->layout;
    for (size_t i = 0; f->counts && i < 256 * (l->elements + 1); i++) {
        uint64_t bits = i % 256;
        bool is_signed = l->kind == STATS_SIGNED;
        stats_number n =
            number_of_whole(is_signed ? (bits ^ 128) - 128 : bits, is_signed);
        if (f->counts[i])
            FORMAT_TRY(element_add(&f->elements[i / 256], l, &n, f->counts[i], err));
    }
    stats_element *gray = &f->elements[l->elements];
    if (!l->image || !gray->count)
        return BAGS_OK;
    if (!f->elements[0].count) {
        f->elements[0] = *gray;
        l->elements = 1;
        return BAGS_OK;
    }
    for (size_t i = 0; i < l->elements; i++)
        FORMAT_TRY(element_merge(&f->elements[i], gray, l, err));
    return BAGS_OK;
}

/* ---- datapoints ---- */

typedef struct stats_worker {
    struct stats_job *job;
    stats_field *fields;
    bags_row row;
    bags_buffer value;
    gate_thread id;
} stats_worker;

typedef struct stats_job {
    const bags_reader *reader;
    bags_stats_options options;
    const size_t *fields;
    bags_select *selects;
    size_t count;
    uint64_t length, chunk; /* datapoints */
    stats_worker *workers;
    size_t worker_count, started;
    format_block *blocks;
    gate monitor;
    /* Under the lock: */
    uint64_t next, done;
    uint64_t reported; /* part of `done` reported to the progress callback */
    uint64_t failed;   /* the first datapoint of a failed chunk; UINT64_MAX: none */
    bags_error error;
} stats_job;

static uint64_t stats_row(const stats_job *job, uint64_t i) {
    return job->options.rows ? job->options.rows[i] : i;
}

static bags_code stats_add_row(stats_worker *w, uint64_t index, bags_error *err) {
    const stats_job *job = w->job;
    size_t count;
    const bags_field *fields = bags_reader_fields(job->reader, &count);
    FORMAT_TRY(
        bags_reader_get(job->reader, index, job->selects, job->count, &w->row, err));
    for (size_t k = 0; k < job->count; k++) {
        size_t field = job->fields[k], items = bags_row_length(&w->row, k);
        bool sequence = bags_reader_type(job->reader, field)->sequence;
        for (size_t i = 0; i < items; i++) {
            bags_value value;
            FORMAT_TRY(bags_row_value(&w->row, k, i, &w->value, &value, err));
            bags_code code =
                field_add(&w->fields[k], &value, job->options.env.allocator, err);
            if (code)
                return format_fail_at(job->reader, fields[field].name, index,
                    sequence ? i : UINT64_MAX, code, err);
        }
    }
    return BAGS_OK;
}

static bags_code stats_add_rows(
    stats_worker *w, uint64_t start, uint64_t stop, bags_error *err) {
    const stats_job *job = w->job;
    uint64_t indices[STATS_CHUNK];
    const bags_io *io = job->options.env.io;
    for (uint64_t i = start; i < stop; i++)
        indices[i - start] = stats_row(job, i);
    if (io && io->read_many)
        FORMAT_TRY(bags_reader_prefetch(job->reader, indices, (size_t)(stop - start),
            job->selects, job->count, &w->row, err));
    for (uint64_t i = start; i < stop; i++)
        FORMAT_TRY(stats_add_row(w, indices[i - start], err));
    return BAGS_OK;
}

/* Report the datapoints added since the last report; main thread only. */
static void stats_report(stats_job *job) {
    gate_lock(&job->monitor);
    uint64_t done = job->done;
    gate_unlock(&job->monitor);
    if (!job->options.progress || done == job->reported)
        return;
    job->reported = done;
    if (job->options.progress(job->options.user, done, job->length))
        return;
    gate_lock(&job->monitor);
    if (job->failed > 0) {
        job->failed = 0;
        (void)bags_fail(&job->error, BAGS_ERROR_IO, "%s: interrupted",
            bags_path_tail(bags_reader_path(job->reader)));
    }
    gate_unlock(&job->monitor);
}

/* Claim datapoints and add them until none are left or one fails. If several threads
 * fail, the error for the first datapoint is reported; all datapoints before it were
 * claimed. */
static void stats_work(stats_worker *w, bool main_thread, bool once) {
    stats_job *job = w->job;
    bags_error err;
    gate_lock(&job->monitor);
    while (job->failed == UINT64_MAX && job->next < job->length) {
        uint64_t start = job->next, left = job->length - start;
        uint64_t stop = start + (left < job->chunk ? left : job->chunk);
        job->next = stop;
        gate_unlock(&job->monitor);
        bags_code code = stats_add_rows(w, start, stop, &err);
        gate_lock(&job->monitor);
        job->done += stop - start;
        if (code && start < job->failed) {
            job->failed = start;
            job->error = err;
        }
        gate_unlock(&job->monitor);
        if (main_thread)
            stats_report(job);
        gate_lock(&job->monitor);
        if (once)
            break;
    }
    gate_unlock(&job->monitor);
}

static gate_result GATE_CALL stats_thread(void *user) {
    stats_work((stats_worker *)user, false, false);
    return 0;
}

/* Choose the number of threads, and the number of datapoints claimed at a time. */
static void stats_plan(stats_job *job) {
    uint64_t threads = job->options.threads ? job->options.threads : gate_processors();
    threads = threads < STATS_THREADS ? threads : STATS_THREADS;
    threads = threads < job->length ? threads : job->length;
    threads = threads ? threads : 1;
    job->chunk = job->length / (4 * threads);
    job->chunk = job->chunk < 1             ? 1
                 : job->chunk > STATS_CHUNK ? STATS_CHUNK
                                            : job->chunk;
    job->worker_count = (size_t)threads;
}

/* A single thread works until the layouts of all fields are known, so that the first
 * values determine them whatever the number of threads. */
static bags_code stats_run(stats_job *job, bags_error *err) {
    stats_worker *first = &job->workers[0];
    bool known = false;
    while (!known && job->next < job->length && job->failed == UINT64_MAX) {
        stats_work(first, true, true);
        known = true;
        for (size_t k = 0; k < job->count; k++)
            known = known && first->fields[k].layout.known;
    }
    for (size_t i = 1; i < job->worker_count; i++)
        for (size_t k = 0; k < job->count; k++)
            job->workers[i].fields[k].layout = first->fields[k].layout;
    while (known && job->started + 1 < job->worker_count &&
           gate_thread_start(&job->workers[job->started + 1].id, stats_thread,
               &job->workers[job->started + 1]))
        job->started++;
    stats_work(first, true, false);
    for (size_t i = 1; i <= job->started; i++)
        gate_thread_join(job->workers[i].id);
    stats_report(job); /* other threads may have finished last */
    if (job->failed != UINT64_MAX) {
        if (err)
            *err = job->error;
        return job->error.code;
    }
    for (size_t i = 1; i <= job->started; i++)
        for (size_t k = 0; k < job->count; k++)
            FORMAT_TRY(field_merge(&first->fields[k], &job->workers[i].fields[k],
                job->options.env.allocator, err));
    return bags_reader_check(job->reader, err);
}

static bags_code stats_open(
    stats_job *job, const char *const *names, size_t *numbers, bags_error *err) {
    const bags_allocator *allocator = job->options.env.allocator;
    job->selects = (bags_select *)format_block_add(
        &job->blocks, allocator, job->count, sizeof *job->selects, err);
    job->workers = (stats_worker *)format_block_add(
        &job->blocks, allocator, job->worker_count, sizeof *job->workers, err);
    if (!job->selects || !job->workers)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < job->worker_count; i++) {
        stats_worker *w = &job->workers[i];
        w->job = job;
        w->value = bags_buffer_of(allocator);
        w->fields = (stats_field *)format_block_add(
            &job->blocks, allocator, job->count, sizeof *w->fields, err);
        if (!w->fields)
            return BAGS_ERROR_MEMORY;
    }
    for (size_t k = 0; k < job->count; k++) {
        FORMAT_TRY(bags_reader_field(job->reader, names[k], &numbers[k], err));
        for (size_t i = 0; i < k; i++)
            if (numbers[i] == numbers[k])
                return bags_fail(err, BAGS_ERROR_FIELD,
                    "%s: field \"%.200s\": listed twice",
                    bags_path_tail(bags_reader_path(job->reader)), names[k]);
        job->selects[k] = bags_select_all(numbers[k]);
        FORMAT_TRY(layout_of_type(
            job->reader, numbers[k], &job->workers[0].fields[k].layout, err));
    }
    return BAGS_OK;
}

static bags_code stats_results(stats_job *job, const char *const *names,
    bags_buffer *out, size_t *elements, bags_error *err) {
    stats_field *fields = job->workers[0].fields;
    size_t all = 0;
    for (size_t k = 0; k < job->count; k++) {
        if (!fields[k].elements)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: field \"%.200s\": no values (%" PRIu64 " datapoints)",
                bags_path_tail(bags_reader_path(job->reader)), names[k], job->length);
        FORMAT_TRY(field_finish(&fields[k], err));
        elements[k] = fields[k].layout.elements;
        FORMAT_TRY(bags_buffer_reserve(
            out, (all + elements[k]) * sizeof(bags_statistics), err));
        for (size_t i = 0; i < elements[k]; i++)
            element_result(&fields[k].elements[i], &fields[k].layout,
                (bags_statistics *)(void *)out->data + all + i);
        all += elements[k];
    }
    return BAGS_OK;
}

bags_code bags_stats(const bags_reader *reader, const char *const *fields, size_t count,
    const bags_stats_options *options, bags_buffer *out, size_t *elements,
    bags_error *err) {
    stats_job job;
    memset(&job, 0, sizeof job);
    if (!reader || !fields || !count || !out || !elements)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL, or no field");
    if (options)
        job.options = *options;
    job.reader = reader;
    job.count = count;
    job.length = job.options.rows ? job.options.rows_count : bags_reader_length(reader);
    job.failed = UINT64_MAX;
    stats_plan(&job);
    if (!gate_start(&job.monitor))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    size_t *numbers = (size_t *)format_block_add(
        &job.blocks, job.options.env.allocator, count, sizeof *numbers, err);
    job.fields = numbers;
    bags_code code =
        numbers ? stats_open(&job, fields, numbers, err) : BAGS_ERROR_MEMORY;
    if (!code)
        code = stats_run(&job, err);
    if (!code)
        code = stats_results(&job, fields, out, elements, err);
    for (size_t i = 0; job.workers && i < job.worker_count; i++) {
        stats_worker *w = &job.workers[i];
        bags_row_free(&w->row);
        bags_buffer_free(&w->value);
        for (size_t k = 0; w->fields && k < count; k++)
            field_free(&w->fields[k]);
    }
    format_blocks_free(job.blocks);
    gate_end(&job.monitor);
    return code;
}
