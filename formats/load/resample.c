/*
 * resample.c - resizes images exactly as Pillow does, bit for bit. It needs no library.
 *
 * Each result pixel is a weighted mean of a window of pixels, computed first along rows
 * and then along columns, rounding to 8 bits after each pass. The window is as wide as
 * the filter. When the image shrinks, the filter is stretched by the ratio of the
 * sizes. Weights are integers in units of 2^-22, so that the result does not depend on
 * the compiler. Colours with alpha are multiplied by alpha before and divided by it
 * afterwards.
 *
 *     row of the source ------> row of the ring -----------------> row of the result
 *               weights along x                 weights along y
 *
 * The ring holds the rows needed for the next result row, and one more: row r is stored
 * at r modulo the number of places.
 *
 * Both passes add two weighted pixels at a time to four sums, one per byte: SSE2,
 * available on every x86-64, multiplies and adds pairs of 16-bit numbers. Weights have
 * more bits, so each is split into two parts that are summed separately:
 *
 *     weight = high * 2^11 + low, and low is 0 .. 2^11 - 1
 *
 * Arithmetic is modulo 2^32. The sum over a window stays within -2^29 and 3 * 2^29.
 *
 * With AVX2, if the processor has it, twice as many bytes are summed at once: along x
 * the pixels of two rows, along y 32 bytes. All code gives the same bytes, since it
 * sums integers.
 */
#include "load.h"
#include "pixels.h"

#include <inttypes.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif
#if defined __x86_64__ && defined __GNUC__ && !defined RESAMPLE_NARROW
#define RESAMPLE_WIDE
#include <immintrin.h>
#endif

#define RESAMPLE_PRECISION 22
#define RESAMPLE_HALF 11 /* number of bits in `low` */
/* With this limit, sides are exact as floats, and no window starts past the image. */
#define RESAMPLE_MOST_SIDE ((uint32_t)1 << 23)
#define RESAMPLE_QUAD 4   /* bytes summed at once along x, */
#define RESAMPLE_BLOCK 32 /* and along y */
#define RESAMPLE_ALIGN ((size_t)64)

/* The weights of two neighbouring pixels. */
typedef struct resample_pair {
    int16_t low[2], high[2];
} resample_pair;

/* The source pixels that make up one result pixel. */
typedef struct resample_window {
    uint32_t first, count; /* the last pair may cover one pixel too many */
} resample_window;

/* All windows along one axis. */
typedef struct resample_axis {
    uint32_t size;   /* of the source, in pixels */
    uint32_t length; /* of the result, in pixels */
    float start;     /* where the box starts */
    float stop;
    double scale;   /* source pixels per result pixel */
    double support; /* half the width of a window */
    uint32_t most;  /* most pixels in a window; even */
    resample_window *windows;
    resample_pair *pairs; /* most / 2 pairs per window */
} resample_axis;

/* The state of one call. */
typedef struct resample_state {
    resample_axis x, y;
    bags_filter filter;
    size_t channels;
    bool has_alpha; /* the last channel weights the others */
    const unsigned char *pixels;
    size_t stride;
    double *terms;               /* one window's weights before rounding */
    unsigned char *rows[2];      /* source rows, each with two QUADs to spare */
    unsigned char *ring;         /* `places` rows of `pitch` bytes each */
    const unsigned char **lines; /* the rows in one window */
    size_t places;
    size_t pitch; /* size of a result row plus a QUAD, rounded up to BLOCK */
    bool wide;    /* the processor has AVX2 */
} resample_state;

/* ---- weights ---- */

static double resample_bilinear(double x) {
    x = x < 0 ? -x : x;
    return x < 1 ? 1 - x : 0;
}

static double resample_bicubic(double x) {
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void resample_axis_shape(resample_axis *a, bags_filter filter) {
    a->scale = (double)(a->stop - a->start) / a->length;
    double widened = a->scale < 1 ? 1 : a->scale;
    a->support = (filter == BAGS_FILTER_BICUBIC ? 2 : 1) * widened;
    a->most = 2 * (uint32_t)a->support + 3;
    if (a->most > a->size)
        a->most = a->size;
    a->most += a->most % 2;
}

static int32_t resample_weight_of(double term, double total) {
    double weight = term / total * (1 << RESAMPLE_PRECISION);
    return (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
}

/* Every step is rounded as in Pillow, because the compiler sees the same
 * expressions. */
static void resample_axis_weigh(resample_axis *a, bags_filter filter, double *terms) {
    double shrink = 1 / (a->scale < 1 ? 1 : a->scale);
    for (uint32_t i = 0; i < a->length; i++) {
        double centre = (double)a->start + (i + 0.5) * a->scale;
        double from = centre - a->support + 0.5, to = centre + a->support + 0.5;
        uint32_t first = from < 0 ? 0 : (uint32_t)from;
        uint32_t stop = to > a->size ? a->size : (uint32_t)to;
        double total = 0;
        for (uint32_t j = first; j < stop; j++) {
            double at = (j - centre + 0.5) * shrink;
            terms[j - first] = filter == BAGS_FILTER_BICUBIC ? resample_bicubic(at)
                                                             : resample_bilinear(at);
            total += terms[j - first];
        }
        resample_pair *pairs = a->pairs + (size_t)i * (a->most / 2);
        for (uint32_t j = 0; j < stop - first; j++) {
            int32_t weight = resample_weight_of(terms[j], total);
            int32_t low = weight & ((1 << RESAMPLE_HALF) - 1);
            pairs[j / 2].low[j % 2] = (int16_t)low;
            pairs[j / 2].high[j % 2] = (int16_t)((weight - low) / (1 << RESAMPLE_HALF));
        }
        if ((stop - first) % 2)
            pairs[(stop - first) / 2].low[1] = pairs[(stop - first) / 2].high[1] = 0;
        a->windows[i].first = first;
        a->windows[i].count = stop - first;
    }
}

/* ---- sums ---- */

#ifdef __SSE2__

typedef struct resample_quad {
    __m128i low, high;
} resample_quad;

static inline resample_quad resample_quad_start(void) {
    resample_quad q;
    q.low = _mm_set1_epi32(1 << (RESAMPLE_PRECISION - 1));
    q.high = _mm_setzero_si128();
    return q;
}

/* Add the weighted QUAD bytes at a and at b. */
static inline void resample_quad_add(resample_quad *q, const unsigned char *a,
    const unsigned char *b, const resample_pair *weights) {
    int four_a, four_b;
    memcpy(&four_a, a, sizeof four_a);
    memcpy(&four_b, b, sizeof four_b);
    __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)weights);
    __m128i bytes =
        _mm_unpacklo_epi8(_mm_cvtsi32_si128(four_a), _mm_cvtsi32_si128(four_b));
    __m128i words = _mm_unpacklo_epi8(bytes, _mm_setzero_si128());
    q->low =
        _mm_add_epi32(q->low, _mm_madd_epi16(words, _mm_shuffle_epi32(both, 0x00)));
    q->high =
        _mm_add_epi32(q->high, _mm_madd_epi16(words, _mm_shuffle_epi32(both, 0x55)));
}

/* Store the sums as QUAD bytes, clamped to 0 .. 255. */
static inline void resample_quad_store(const resample_quad *q, unsigned char *to) {
    __m128i sum = _mm_add_epi32(q->low, _mm_slli_epi32(q->high, RESAMPLE_HALF));
    __m128i words = _mm_srai_epi32(sum, RESAMPLE_PRECISION);
    words = _mm_packs_epi32(words, words);
    int four = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    memcpy(to, &four, sizeof four);
}

#elif defined __ARM_NEON

/* The same with NEON, whose 32-bit products need no parts. */
typedef struct resample_quad {
    int32x4_t sum;
} resample_quad;

static inline resample_quad resample_quad_start(void) {
    resample_quad q;
    q.sum = vdupq_n_s32(1 << (RESAMPLE_PRECISION - 1));
    return q;
}

static inline int32x4_t resample_quad_load(const unsigned char *from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    uint16x8_t words = vmovl_u8(vcreate_u8(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}

static inline void resample_quad_add(resample_quad *q, const unsigned char *a,
    const unsigned char *b, const resample_pair *weights) {
    int32_t first = weights->high[0] * (1 << RESAMPLE_HALF) + weights->low[0];
    int32_t second = weights->high[1] * (1 << RESAMPLE_HALF) + weights->low[1];
    q->sum = vmlaq_n_s32(q->sum, resample_quad_load(a), first);
    q->sum = vmlaq_n_s32(q->sum, resample_quad_load(b), second);
}

static inline void resample_quad_store(const resample_quad *q, unsigned char *to) {
    int16x4_t words = vqmovn_s32(vshrq_n_s32(q->sum, RESAMPLE_PRECISION));
    uint8x8_t bytes = vqmovun_s16(vcombine_s16(words, words));
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    memcpy(to, &four, sizeof four);
}

#else

/* The same in plain C. An offset keeps the sums positive. */
typedef struct resample_quad {
    uint32_t a, b, c, d;
} resample_quad;

static inline resample_quad resample_quad_start(void) {
    resample_quad q;
    q.a = ((uint32_t)128 << RESAMPLE_PRECISION) +
          ((uint32_t)1 << (RESAMPLE_PRECISION - 1));
    q.b = q.c = q.d = q.a;
    return q;
}

static inline void resample_quad_add(resample_quad *q, const unsigned char *a,
    const unsigned char *b, const resample_pair *weights) {
    uint32_t first =
        (uint32_t)(weights->high[0] * (1 << RESAMPLE_HALF) + weights->low[0]);
    uint32_t second =
        (uint32_t)(weights->high[1] * (1 << RESAMPLE_HALF) + weights->low[1]);
    q->a += a[0] * first + b[0] * second;
    q->b += a[1] * first + b[1] * second;
    q->c += a[2] * first + b[2] * second;
    q->d += a[3] * first + b[3] * second;
}

static inline unsigned char resample_quad_byte(uint32_t sum) {
    int32_t value = (int32_t)(sum >> RESAMPLE_PRECISION) - 128;
    value = value < 0 ? 0 : value;
    return (unsigned char)(value > 255 ? 255 : value);
}

static inline void resample_quad_store(const resample_quad *q, unsigned char *to) {
    to[0] = resample_quad_byte(q->a);
    to[1] = resample_quad_byte(q->b);
    to[2] = resample_quad_byte(q->c);
    to[3] = resample_quad_byte(q->d);
}

#endif

/* ---- rows ---- */

/* colour * alpha / 255, rounded to nearest. */
static unsigned char resample_times_alpha(uint32_t colour, uint32_t alpha) {
    uint32_t product = colour * alpha + 128;
    return (unsigned char)(((product >> 8) + product) >> 8);
}

/* Copy a source row, multiplying colours by their alpha. The copy also fetches memory
 * faster than the sums would. */
static void resample_copy_row(
    const resample_state *r, uint32_t row, unsigned char *to) {
    const unsigned char *from = r->pixels + row * r->stride;
    size_t channels = r->channels, size = r->x.size * channels;
    memcpy(to, from, size);
    for (size_t i = 0; r->has_alpha && i < size; i += channels)
        for (size_t c = 0; c + 1 < channels; c++)
            to[i + c] = resample_times_alpha(from[i + c], from[i + channels - 1]);
}

/* Resize a row along x. Each store writes garbage after its pixel, overwritten by the
 * next pixel. */
static void resample_row(
    const resample_state *r, const unsigned char *row, unsigned char *to) {
    size_t channels = r->channels;
    for (uint32_t i = 0; i < r->x.length; i++, to += channels) {
        const resample_pair *pairs = r->x.pairs + (size_t)i * (r->x.most / 2);
        const unsigned char *at = row + r->x.windows[i].first * channels;
        uint32_t count = r->x.windows[i].count;
        resample_quad sum = resample_quad_start();
        for (uint32_t j = 0; j < count; j += 2, pairs++, at += 2 * channels)
            resample_quad_add(&sum, at, at + channels, pairs);
        resample_quad_store(&sum, to);
    }
}

/* Sum the blocks from `at` up to `stop` along y. */
static void resample_blocks(const resample_state *r, size_t at, size_t stop,
    const resample_pair *pairs, uint32_t count, unsigned char *to) {
    for (; at < stop; at += RESAMPLE_BLOCK / 2, to += RESAMPLE_BLOCK / 2) {
        resample_quad q = resample_quad_start(), s = q, t = q, u = q;
        for (uint32_t j = 0; j < count; j += 2) {
            const unsigned char *a = r->lines[j] + at, *b = r->lines[j + 1] + at;
            resample_quad_add(&q, a, b, pairs + j / 2);
            resample_quad_add(&s, a + RESAMPLE_QUAD, b + RESAMPLE_QUAD, pairs + j / 2);
            resample_quad_add(
                &t, a + 2 * RESAMPLE_QUAD, b + 2 * RESAMPLE_QUAD, pairs + j / 2);
            resample_quad_add(
                &u, a + 3 * RESAMPLE_QUAD, b + 3 * RESAMPLE_QUAD, pairs + j / 2);
        }
        resample_quad_store(&q, to);
        resample_quad_store(&s, to + RESAMPLE_QUAD);
        resample_quad_store(&t, to + 2 * RESAMPLE_QUAD);
        resample_quad_store(&u, to + 3 * RESAMPLE_QUAD);
    }
}

#ifdef RESAMPLE_WIDE

#define RESAMPLE_AVX2 __attribute__((target("avx2")))

/* The two low or high parts of a pair's weights, in all lanes. */
RESAMPLE_AVX2 static inline __m256i resample_wide_weights(const int16_t parts[2]) {
    int both;
    memcpy(&both, parts, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Two quads. */
typedef struct resample_wide {
    __m256i low, high;
} resample_wide;

RESAMPLE_AVX2 static inline resample_wide resample_wide_start(void) {
    resample_wide w;
    w.low = _mm256_set1_epi32(1 << (RESAMPLE_PRECISION - 1));
    w.high = _mm256_setzero_si256();
    return w;
}

RESAMPLE_AVX2 static inline void resample_wide_add(
    resample_wide *w, __m256i words, __m256i lows, __m256i highs) {
    w->low = _mm256_add_epi32(w->low, _mm256_madd_epi16(words, lows));
    w->high = _mm256_add_epi32(w->high, _mm256_madd_epi16(words, highs));
}

RESAMPLE_AVX2 static inline __m256i resample_wide_result(const resample_wide *w) {
    __m256i high = _mm256_slli_epi32(w->high, RESAMPLE_HALF);
    return _mm256_srai_epi32(_mm256_add_epi32(w->low, high), RESAMPLE_PRECISION);
}

/* Resize both rows along x, like resample_row. */
RESAMPLE_AVX2 static void resample_rows_wide(
    const resample_state *r, unsigned char *first, unsigned char *second) {
    const size_t channels = r->channels;
    const unsigned char *const one = r->rows[0], *const two = r->rows[1];
    unsigned char order[16]; /* byte k of a pixel and of the next one, as two words */
    memset(order, 0x80, sizeof order);
    for (size_t k = 0; k < RESAMPLE_QUAD; k++) {
        order[4 * k] = (unsigned char)k;
        order[4 * k + 2] = (unsigned char)(k + channels);
    }
    const __m256i pick = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)order));
    for (uint32_t i = 0; i < r->x.length; i++) {
        const resample_pair *pairs = r->x.pairs + (size_t)i * (r->x.most / 2);
        size_t at = r->x.windows[i].first * channels;
        resample_wide sum = resample_wide_start();
        for (uint32_t j = 0; j < r->x.windows[i].count; j += 2, pairs++) {
            __m256i bytes = _mm256_inserti128_si256(
                _mm256_castsi128_si256(
                    _mm_loadl_epi64((const __m128i *)(const void *)(one + at))),
                _mm_loadl_epi64((const __m128i *)(const void *)(two + at)), 1);
            resample_wide_add(&sum, _mm256_shuffle_epi8(bytes, pick),
                resample_wide_weights(pairs->low), resample_wide_weights(pairs->high));
            at += 2 * channels;
        }
        __m256i words = resample_wide_result(&sum);
        words = _mm256_packs_epi32(words, words);
        words = _mm256_packus_epi16(words, words);
        int four = _mm_cvtsi128_si32(_mm256_castsi256_si128(words));
        memcpy(first + i * channels, &four, sizeof four);
        four = _mm_cvtsi128_si32(_mm256_extracti128_si256(words, 1));
        memcpy(second + i * channels, &four, sizeof four);
    }
}

/* Like resample_blocks. Unpacking and packing change the order in opposite ways. */
RESAMPLE_AVX2 static void resample_blocks_wide(const resample_state *r, size_t at,
    size_t stop, const resample_pair *pairs, uint32_t count, unsigned char *to) {
    const __m256i zero = _mm256_setzero_si256();
    for (; at < stop; at += RESAMPLE_BLOCK, to += RESAMPLE_BLOCK) {
        resample_wide q = resample_wide_start(), s = q, t = q, u = q;
        for (uint32_t j = 0; j < count; j += 2) {
            const __m256i lows = resample_wide_weights(pairs[j / 2].low);
            const __m256i highs = resample_wide_weights(pairs[j / 2].high);
            const unsigned char *a = r->lines[j] + at, *b = r->lines[j + 1] + at;
            __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)a);
            __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)b);
            __m256i low = _mm256_unpacklo_epi8(first, second);
            __m256i high = _mm256_unpackhi_epi8(first, second);
            resample_wide_add(&q, _mm256_unpacklo_epi8(low, zero), lows, highs);
            resample_wide_add(&s, _mm256_unpackhi_epi8(low, zero), lows, highs);
            resample_wide_add(&t, _mm256_unpacklo_epi8(high, zero), lows, highs);
            resample_wide_add(&u, _mm256_unpackhi_epi8(high, zero), lows, highs);
        }
        __m256i front =
            _mm256_packs_epi32(resample_wide_result(&q), resample_wide_result(&s));
        __m256i back =
            _mm256_packs_epi32(resample_wide_result(&t), resample_wide_result(&u));
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_packus_epi16(front, back));
    }
}

#endif

/* Resize r->rows along x. */
static void resample_rows(
    const resample_state *r, unsigned char *first, unsigned char *second) {
#ifdef RESAMPLE_WIDE
    if (r->wide) {
        resample_rows_wide(r, first, second);
        return;
    }
#endif
    resample_row(r, r->rows[0], first);
    resample_row(r, r->rows[1], second);
}

/* Divide colours by their alpha. */
static void resample_divide_alpha(unsigned char *row, size_t size, size_t channels) {
    for (size_t i = 0; i < size; i += channels) {
        uint32_t alpha = row[i + channels - 1];
        for (size_t c = 0; alpha && c + 1 < channels; c++) {
            uint32_t colour = 255u * row[i + c] / alpha;
            row[i + c] = (unsigned char)(colour > 255 ? 255 : colour);
        }
    }
}

/* Compute row i of the result from r->lines. */
static void resample_lines(const resample_state *r, uint32_t i, unsigned char *out) {
    const resample_pair *pairs = r->y.pairs + (size_t)i * (r->y.most / 2);
    size_t row = r->x.length * r->channels;
    uint32_t count = r->y.windows[i].count;
    void (*blocks)(const resample_state *, size_t, size_t, const resample_pair *,
        uint32_t, unsigned char *) = resample_blocks;
    unsigned char bytes[RESAMPLE_BLOCK];
    size_t whole = row / RESAMPLE_BLOCK * RESAMPLE_BLOCK;
#ifdef RESAMPLE_WIDE
    if (r->wide)
        blocks = resample_blocks_wide;
#endif
    blocks(r, 0, whole, pairs, count, out);
    if (whole < row) {
        blocks(r, whole, whole + RESAMPLE_BLOCK, pairs, count, bytes);
        memcpy(out + whole, bytes, row - whole);
    }
    if (r->has_alpha)
        resample_divide_alpha(out, row, r->channels);
}

static unsigned char *resample_place(const resample_state *r, uint32_t row) {
    return r->ring + row % r->places * r->pitch;
}

/* Rows are resized along x in pairs, the last one twice if it has no other. */
static void resample_resize(resample_state *r, unsigned char *out, size_t out_stride) {
    const resample_window *last = &r->y.windows[r->y.length - 1];
    uint32_t made = r->y.windows[0].first, end = last->first + last->count;
    for (uint32_t i = 0; i < r->y.length; i++, out += out_stride) {
        uint32_t first = r->y.windows[i].first;
        uint32_t stop = first + r->y.windows[i].count;
        for (; made < stop; made += 2) {
            uint32_t other = made + 1 < end ? made + 1 : made;
            resample_copy_row(r, made, r->rows[0]);
            resample_copy_row(r, other, r->rows[1]);
            resample_rows(r, resample_place(r, made), resample_place(r, other));
        }
        for (uint32_t j = first; j < stop; j++)
            r->lines[j - first] = resample_place(r, j);
        r->lines[stop - first] = r->lines[0]; /* has weight 0 */
        resample_lines(r, i, out);
    }
}

/* ---- memory ---- */

/* Memory handed out piece by piece. A first pass with data NULL computes the size
 * needed: SIZE_MAX if it exceeds the address space. */
typedef struct resample_arena {
    unsigned char *data;
    size_t used;
} resample_arena;

/* Take `count` elements of `size` bytes, aligned for vector instructions. */
static void *resample_carve(resample_arena *a, uint64_t count, size_t size) {
    size_t start = a->used;
    if (start > SIZE_MAX - RESAMPLE_ALIGN ||
        count > (SIZE_MAX - RESAMPLE_ALIGN - start) / size)
        a->used = SIZE_MAX;
    else
        a->used += ((size_t)count * size + RESAMPLE_ALIGN - 1) / RESAMPLE_ALIGN *
                   RESAMPLE_ALIGN;
    return a->data ? a->data + start : NULL;
}

static void resample_carve_axis(resample_arena *from, resample_axis *a) {
    a->windows = (resample_window *)resample_carve(from, a->length, sizeof *a->windows);
    a->pairs = (resample_pair *)resample_carve(
        from, (uint64_t)a->length * (a->most / 2), sizeof *a->pairs);
}

static void resample_carve_all(resample_arena *from, resample_state *r) {
    uint32_t most = r->x.most > r->y.most ? r->x.most : r->y.most;
    resample_carve_axis(from, &r->x);
    resample_carve_axis(from, &r->y);
    r->terms = (double *)resample_carve(from, most, sizeof *r->terms);
    for (int i = 0; i < 2; i++)
        r->rows[i] = (unsigned char *)resample_carve(
            from, (uint64_t)r->x.size * r->channels + 2 * RESAMPLE_QUAD, 1);
    r->lines =
        (const unsigned char **)resample_carve(from, r->places + 1, sizeof *r->lines);
    r->ring = (unsigned char *)resample_carve(from, (uint64_t)r->places * r->pitch, 1);
}

/* True if the result covers the entire image at its own size. All weights are then 1,
 * so pixels stay unchanged unless they are multiplied by alpha. */
static bool resample_is_copy(const resample_axis *a) {
    return a->length == a->size && a->start <= 0 && a->stop >= (float)a->size;
}

static bags_code resample_prepare(
    resample_state *r, bags_buffer *scratch, bags_error *err) {
    resample_arena memory = {NULL, 0};
    resample_axis_shape(&r->x, r->filter);
    resample_axis_shape(&r->y, r->filter);
    r->places = (size_t)r->y.most + 1; /* a window, and the second row of a pair */
    r->pitch =
        ((size_t)r->x.length * r->channels + RESAMPLE_QUAD + RESAMPLE_BLOCK - 1) /
        RESAMPLE_BLOCK * RESAMPLE_BLOCK;
    resample_carve_all(&memory, r);
    if (memory.used == SIZE_MAX)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    bags_code code = bags_buffer_reserve(scratch, memory.used, err);
    if (code)
        return code;
    memory.data = scratch->data;
    memory.used = 0;
    resample_carve_all(&memory, r);
    for (int i = 0; i < 2; i++)
        memset(r->rows[i] + r->x.size * r->channels, 0, 2 * RESAMPLE_QUAD);
#ifdef RESAMPLE_WIDE
    r->wide = __builtin_cpu_supports("avx2") != 0;
#endif
    resample_axis_weigh(&r->x, r->filter, r->terms);
    resample_axis_weigh(&r->y, r->filter, r->terms);
    return BAGS_OK;
}

/* ---- arguments ---- */

/* Set both axes' box. Comparisons with NaN are false. */
static bags_code resample_check_box(
    resample_state *r, const bags_box *box, bags_error *err) {
    bags_box all = {0, 0, (double)r->x.size, (double)r->y.size};
    if (!box)
        box = &all;
    r->x.start = (float)box->left;
    r->x.stop = (float)box->right;
    r->y.start = (float)box->top;
    r->y.stop = (float)box->bottom;
    bool inside = r->x.start >= 0 && r->x.start < r->x.stop &&
                  r->x.stop <= (float)r->x.size && r->y.start >= 0 &&
                  r->y.start < r->y.stop && r->y.stop <= (float)r->y.size;
    if (!inside)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "box empty or out of range (left %g, top %g, right %g, bottom %g; "
            "image %u x %u)",
            box->left, box->top, box->right, box->bottom, (unsigned)r->y.size,
            (unsigned)r->x.size);
    return BAGS_OK;
}

bags_code bags_resample(const bags_image *image, const void *pixels, size_t stride,
    const bags_box *box, bags_filter filter, uint32_t width, uint32_t height,
    bags_buffer *scratch, void *out, size_t out_stride, bags_error *err) {
    resample_state r;
    bags_image made = *image;
    made.width = width;
    made.height = height;
    memset(&r, 0, sizeof r);
    bags_code code = format_check_pixels(image, RESAMPLE_MOST_SIDE, &stride, err);
    if (!code)
        code = format_check_pixels(&made, RESAMPLE_MOST_SIDE, &out_stride, err);
    if (code)
        return code;
    if (filter != BAGS_FILTER_BILINEAR && filter != BAGS_FILTER_BICUBIC)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "unknown filter (%d)", (int)filter);
    r.x.size = image->width;
    r.y.size = image->height;
    r.x.length = width;
    r.y.length = height;
    r.filter = filter;
    r.channels = image->channels;
    r.pixels = (const unsigned char *)pixels;
    code = resample_check_box(&r, box, err);
    if (code)
        return code;
    r.stride = stride;
    r.has_alpha =
        r.channels % 2 == 0 && !(resample_is_copy(&r.x) && resample_is_copy(&r.y));
    code = resample_prepare(&r, scratch, err);
    if (!code)
        resample_resize(&r, (unsigned char *)out, out_stride);
    return code;
}
