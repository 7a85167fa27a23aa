/*
 * warp.c - transforms images and changes their colours exactly as Pillow and
 * torchvision do, bit for bit. It needs no library except libm.
 *
 * Each result pixel is the colour at one point of the image. Filters are not widened
 * when the image shrinks; resample.c does that. A row's points are computed in chunks,
 * then sampled. Arithmetic follows Pillow step by step, in double, on four channels at
 * once: two in each SSE2 register.
 */
#include "load.h"
#include "pixels.h"
#include "random.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Inlining lets each call with constants become its own specialized loop. */
#ifdef __GNUC__
#define WARP_INLINE static inline __attribute__((always_inline))
#else
#define WARP_INLINE static inline
#endif

#define WARP_CHUNK 64
#define WARP_MOST_SIDE ((uint32_t)1 << 30)
#define WARP_FIXED 65536.0 /* steps per pixel in Pillow's nearest-neighbour code */
#define WARP_MARGIN 4      /* pixels around a point that a filter may need */
#define WARP_MOST_FACTOR 1000

/* ---- four numbers ---- */

#ifdef __SSE2__

typedef struct warp_quad {
    __m128d low, high;
} warp_quad;

/* With three channels, the preceding byte is loaded as well, except for the first
 * pixel, because three separate loads cost more than everything that follows. */
WARP_INLINE warp_quad warp_load(
    const unsigned char *first, size_t at, size_t channels) {
    const unsigned char *from = first + at;
    int bytes = from[0];
    warp_quad q;
    if (channels == 2)
        bytes |= from[1] << 8;
    else if (channels == 3 && at == 0)
        bytes |= from[1] << 8 | from[2] << 16;
    else if (channels > 2)
        memcpy(&bytes, channels == 3 ? from - 1 : from, sizeof bytes);
    if (channels == 3 && at > 0)
        bytes = (int)((unsigned)bytes >> 8);
    __m128i zero = _mm_setzero_si128();
    __m128i words = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero);
    __m128i numbers = _mm_unpacklo_epi16(words, zero);
    q.low = _mm_cvtepi32_pd(numbers);
    q.high = _mm_cvtepi32_pd(_mm_shuffle_epi32(numbers, 0xEE));
    return q;
}

WARP_INLINE warp_quad warp_add(warp_quad a, warp_quad b) {
    a.low = _mm_add_pd(a.low, b.low);
    a.high = _mm_add_pd(a.high, b.high);
    return a;
}

WARP_INLINE warp_quad warp_subtract(warp_quad a, warp_quad b) {
    a.low = _mm_sub_pd(a.low, b.low);
    a.high = _mm_sub_pd(a.high, b.high);
    return a;
}

WARP_INLINE warp_quad warp_times(warp_quad a, double factor) {
    a.low = _mm_mul_pd(a.low, _mm_set1_pd(factor));
    a.high = _mm_mul_pd(a.high, _mm_set1_pd(factor));
    return a;
}

/* Store the channels, rounded towards 0 and clamped to 0 .. 255. */
WARP_INLINE void warp_store(warp_quad q, unsigned char *to, size_t channels) {
    __m128i numbers =
        _mm_unpacklo_epi64(_mm_cvttpd_epi32(q.low), _mm_cvttpd_epi32(q.high));
    __m128i words = _mm_packs_epi32(numbers, numbers);
    unsigned bytes = (unsigned)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    for (size_t i = 0; i < channels; i++)
        to[i] = (unsigned char)(bytes >> 8 * i);
}

#else

/* The same in plain C. */
typedef struct warp_quad {
    double at[4];
} warp_quad;

WARP_INLINE warp_quad warp_load(
    const unsigned char *first, size_t at, size_t channels) {
    warp_quad q = {{0, 0, 0, 0}};
    for (size_t i = 0; i < channels; i++)
        q.at[i] = first[at + i];
    return q;
}

WARP_INLINE warp_quad warp_add(warp_quad a, warp_quad b) {
    for (int i = 0; i < 4; i++)
        a.at[i] += b.at[i];
    return a;
}

WARP_INLINE warp_quad warp_subtract(warp_quad a, warp_quad b) {
    for (int i = 0; i < 4; i++)
        a.at[i] -= b.at[i];
    return a;
}

WARP_INLINE warp_quad warp_times(warp_quad a, double factor) {
    for (int i = 0; i < 4; i++)
        a.at[i] *= factor;
    return a;
}

WARP_INLINE void warp_store(warp_quad q, unsigned char *to, size_t channels) {
    for (size_t i = 0; i < channels; i++)
        to[i] = (unsigned char)(q.at[i] <= 0 ? 0 : q.at[i] >= 255 ? 255 : (int)q.at[i]);
}

#endif

/* ---- sampling ---- */

/* The state of one call. */
typedef struct warp_state {
    double m[9];
    bool flat;    /* the last row is 0 0 1 */
    bool stepped; /* points are sums of steps, as for Pillow's nearest neighbours */
    double width, height;   /* of the entire image */
    int32_t left, top;      /* where the pixels lie in the entire image */
    int32_t last_x, last_y; /* the pixels' last column and row, relative to left and
                               top */
    const unsigned char *pixels;
    size_t stride, channels;
    bags_filter filter;
    unsigned char fill[4];
} warp_state;

/* The points for some pixels in a row, starting at pixel x. Stepped points continue
 * from the existing ones. */
typedef struct warp_points {
    double u[WARP_CHUNK + 1], v[WARP_CHUNK + 1];
} warp_points;

static void warp_find_points(
    const warp_state *s, uint32_t x, uint32_t y, size_t count, warp_points *p) {
    const double *m = s->m;
    double down = y + 0.5;
    for (size_t i = 0; i < count; i++) {
        double across = (double)(x + i) + 0.5;
        if (s->stepped) {
            p->u[i + 1] = p->u[i] + m[0];
            p->v[i + 1] = p->v[i] + m[3];
            continue;
        }
        p->u[i] = m[0] * across + m[1] * down + m[2];
        p->v[i] = m[3] * across + m[4] * down + m[5];
        if (!s->flat) {
            double w = m[6] * across + m[7] * down + m[8];
            p->u[i] /= w;
            p->v[i] /= w;
        }
    }
}

/* Also false for NaN. */
WARP_INLINE bool warp_is_inside(const warp_state *s, double u, double v) {
    return u >= 0 && u < s->width && v >= 0 && v < s->height;
}

/* Round down. The library's floor is a function call unless the processor has an
 * instruction. */
WARP_INLINE int32_t warp_floor(double x) {
    int32_t whole = (int32_t)x;
    return whole - (x < whole);
}

WARP_INLINE int32_t warp_clamp(int32_t i, int32_t last) {
    return i < 0 ? 0 : i > last ? last : i;
}

/* Offsets of pixels x to x + count - 1 in rows y to y + count - 1; count is 2 or 4. */
typedef struct warp_offsets {
    size_t columns[4], rows[4];
} warp_offsets;

WARP_INLINE void warp_find_offsets(const warp_state *s, int32_t x, int32_t y,
    int32_t count, size_t channels, warp_offsets *o) {
    x -= s->left;
    y -= s->top;
    for (int32_t i = 0; i < count; i++) {
        o->columns[i] = (size_t)warp_clamp(x + i, s->last_x) * channels;
        o->rows[i] = (size_t)warp_clamp(y + i, s->last_y) * s->stride;
    }
}

WARP_INLINE warp_quad warp_between(warp_quad a, warp_quad b, double part) {
    return warp_add(a, warp_times(warp_subtract(b, a), part));
}

WARP_INLINE void warp_bilinear(
    const warp_state *s, double u, double v, unsigned char *out, size_t channels) {
    int32_t x = warp_floor(u - 0.5), y = warp_floor(v - 0.5);
    double right = u - 0.5 - x, down = v - 0.5 - y;
    warp_offsets o;
    warp_find_offsets(s, x, y, 2, channels, &o);
    const unsigned char *from = s->pixels;
    warp_quad upper = warp_between(warp_load(from, o.rows[0] + o.columns[0], channels),
        warp_load(from, o.rows[0] + o.columns[1], channels), right);
    warp_quad lower = warp_between(warp_load(from, o.rows[1] + o.columns[0], channels),
        warp_load(from, o.rows[1] + o.columns[1], channels), right);
    warp_store(warp_between(upper, lower, down), out, channels);
}

WARP_INLINE warp_quad warp_cubic(
    warp_quad a, warp_quad b, warp_quad c, warp_quad d, double part) {
    warp_quad one = warp_subtract(c, a);
    warp_quad two = warp_times(warp_subtract(a, b), 2);
    two = warp_subtract(warp_add(two, c), d);
    warp_quad three = warp_add(warp_subtract(warp_subtract(b, a), c), d);
    warp_quad sum = warp_add(two, warp_times(three, part));
    sum = warp_add(one, warp_times(sum, part));
    return warp_add(b, warp_times(sum, part));
}

WARP_INLINE void warp_bicubic(
    const warp_state *s, double u, double v, unsigned char *out, size_t channels) {
    int32_t x = warp_floor(u - 0.5), y = warp_floor(v - 0.5);
    double right = u - 0.5 - x, down = v - 0.5 - y;
    warp_offsets o;
    warp_quad lines[4];
    warp_find_offsets(s, x - 1, y - 1, 4, channels, &o);
    for (int i = 0; i < 4; i++)
        lines[i] = warp_cubic(warp_load(s->pixels, o.rows[i] + o.columns[0], channels),
            warp_load(s->pixels, o.rows[i] + o.columns[1], channels),
            warp_load(s->pixels, o.rows[i] + o.columns[2], channels),
            warp_load(s->pixels, o.rows[i] + o.columns[3], channels), right);
    warp_store(warp_cubic(lines[0], lines[1], lines[2], lines[3], down), out, channels);
}

WARP_INLINE void warp_sample(const warp_state *state, const warp_points *p,
    size_t count, unsigned char *out, size_t channels, bags_filter filter) {
    const warp_state copy = *state, *s = &copy; /* `out` cannot alias this copy */
    for (size_t i = 0; i < count; i++, out += channels) {
        double u = p->u[i], v = p->v[i];
        if (!warp_is_inside(s, u, v))
            memcpy(out, s->fill, channels);
        else if (filter == BAGS_FILTER_BILINEAR)
            warp_bilinear(s, u, v, out, channels);
        else if (filter == BAGS_FILTER_BICUBIC)
            warp_bicubic(s, u, v, out, channels);
        else
            memcpy(out,
                s->pixels +
                    (size_t)warp_clamp((int32_t)v - s->top, s->last_y) * s->stride +
                    (size_t)warp_clamp((int32_t)u - s->left, s->last_x) * channels,
                channels);
    }
}

WARP_INLINE void warp_sample_as(const warp_state *s, const warp_points *p, size_t count,
    unsigned char *out, bags_filter filter) {
    if (s->channels == 3)
        warp_sample(s, p, count, out, 3, filter);
    else if (s->channels == 1)
        warp_sample(s, p, count, out, 1, filter);
    else if (s->channels == 2)
        warp_sample(s, p, count, out, 2, filter);
    else
        warp_sample(s, p, count, out, 4, filter);
}

/* For nearest neighbours, Pillow accumulates steps, in units of 2^-16 pixels if the
 * image is turned and no corner of the result is 2^15 pixels away. */
static void warp_start_steps(warp_state *s, uint32_t width, uint32_t height) {
    double *m = s->m;
    bool fixed = m[1] < 0 || m[1] > 0 || m[3] < 0 || m[3] > 0;
    for (int i = 0; i < 4; i++) {
        double x = i % 2 ? width : 0, y = i / 2 ? height : 0;
        fixed = fixed && fabs(x * m[0] + y * m[1] + m[2]) < 32768 &&
                fabs(x * m[3] + y * m[4] + m[5]) < 32768;
    }
    m[2] = fixed ? m[2] + m[0] * 0.5 + m[1] * 0.5 : m[2] + m[1] * 0.5 + m[0] * 0.5;
    m[5] = fixed ? m[5] + m[3] * 0.5 + m[4] * 0.5 : m[5] + m[4] * 0.5 + m[3] * 0.5;
    for (int i = 0; i < 6 && fixed; i++)
        m[i] = floor(m[i] * WARP_FIXED + 0.5) / WARP_FIXED;
    s->stepped = true;
}

static void warp_all(
    warp_state *s, uint32_t width, uint32_t height, unsigned char *out, size_t stride) {
    warp_points p;
    size_t channels = s->channels;
    if (s->flat && s->filter == BAGS_FILTER_NEAREST)
        warp_start_steps(s, width, height);
    double u = s->m[2], v = s->m[5];
    for (uint32_t y = 0; y < height; y++, out += stride) {
        p.u[0] = u;
        p.v[0] = v;
        for (uint32_t x = 0; x < width; x += WARP_CHUNK) {
            size_t count = width - x < WARP_CHUNK ? width - x : WARP_CHUNK;
            unsigned char *to = out + x * channels;
            warp_find_points(s, x, y, count, &p);
            if (s->filter == BAGS_FILTER_BILINEAR)
                warp_sample_as(s, &p, count, to, BAGS_FILTER_BILINEAR);
            else if (s->filter == BAGS_FILTER_BICUBIC)
                warp_sample_as(s, &p, count, to, BAGS_FILTER_BICUBIC);
            else
                warp_sample_as(s, &p, count, to, BAGS_FILTER_NEAREST);
            p.u[0] = p.u[count];
            p.v[0] = p.v[count];
        }
        u += s->m[1];
        v += s->m[4];
    }
}

/* ---- arguments ---- */

/* Check the matrix. If its last row is 0 0 x, scale it so that the last element is
 * 1. */
static bags_code warp_check_matrix(
    warp_state *s, const double matrix[9], bags_error *err) {
    s->flat = !(matrix[6] < 0 || matrix[6] > 0 || matrix[7] < 0 || matrix[7] > 0);
    for (int i = 0; i < 9; i++) {
        s->m[i] = s->flat ? matrix[i] / matrix[8] : matrix[i];
        if (!(fabs(s->m[i]) <= DBL_MAX))
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "matrix with a number that is not finite, or a last row of 0");
    }
    return BAGS_OK;
}

bags_code bags_warp(const bags_image *image, const bags_part *part, const void *pixels,
    size_t stride, const double matrix[9], bags_filter filter,
    const unsigned char *fill, uint32_t width, uint32_t height, void *out,
    size_t out_stride, bags_error *err) {
    warp_state s;
    bags_part all = {0, 0, image->width, image->height};
    bags_image given = *image, made = *image;
    size_t whole_stride = 0;
    if (!part)
        part = &all;
    given.width = part->width;
    given.height = part->height;
    made.width = width;
    made.height = height;
    memset(&s, 0, sizeof s);
    bags_code code = format_check_pixels(image, WARP_MOST_SIDE, &whole_stride, err);
    if (!code)
        code = format_check_pixels(&given, WARP_MOST_SIDE, &stride, err);
    if (!code)
        code = format_check_pixels(&made, WARP_MOST_SIDE, &out_stride, err);
    if (!code && (part->left > image->width - part->width ||
                     part->top > image->height - part->height ||
                     part->width > image->width || part->height > image->height))
        code = bags_fail(err, BAGS_ERROR_RANGE,
            "part out of range (left %u, top %u, %u x %u; image %u x %u)",
            (unsigned)part->left, (unsigned)part->top, (unsigned)part->width,
            (unsigned)part->height, (unsigned)image->width, (unsigned)image->height);
    if (!code && (unsigned)filter > BAGS_FILTER_NEAREST)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT, "unknown filter (%d)", (int)filter);
    if (!code)
        code = warp_check_matrix(&s, matrix, err);
    if (code)
        return code;
    s.width = image->width;
    s.height = image->height;
    s.left = (int32_t)part->left;
    s.top = (int32_t)part->top;
    s.last_x = (int32_t)part->width - 1;
    s.last_y = (int32_t)part->height - 1;
    s.pixels = (const unsigned char *)pixels;
    s.stride = stride;
    s.channels = image->channels;
    s.filter = filter;
    if (fill)
        memcpy(s.fill, fill, image->channels);
    warp_all(&s, width, height, (unsigned char *)out, out_stride);
    return BAGS_OK;
}

/* The span of whole pixels from low to high, plus the neighbours that a filter may
 * need. */
static void warp_span(
    double low, double high, uint32_t size, uint32_t *first, uint32_t *count) {
    low = floor(low) - WARP_MARGIN;
    high = floor(high) + WARP_MARGIN + 1;
    low = low < 0 ? 0 : low > size - 1.0 ? size - 1.0 : low;
    high = high > size ? size : high < low + 1 ? low + 1 : high;
    *first = (uint32_t)low;
    *count = (uint32_t)high - *first;
}

/* The corners' points enclose all others, unless a line of points at infinity lies
 * between them. */
bags_part bags_warp_part(
    const bags_image *image, const double matrix[9], uint32_t width, uint32_t height) {
    bags_part part = {0, 0, image->width, image->height};
    double low[2] = {DBL_MAX, DBL_MAX}, high[2] = {-DBL_MAX, -DBL_MAX};
    for (int i = 0; i < 4; i++) {
        double x = i % 2 ? width - 0.5 : 0.5, y = i / 2 ? height - 0.5 : 0.5;
        double w = matrix[6] * x + matrix[7] * y + matrix[8];
        for (int k = 0; k < 2; k++) {
            const double *row = matrix + 3 * k;
            double at = (row[0] * x + row[1] * y + row[2]) / w;
            if (!(w > 0) || !(fabs(at) <= DBL_MAX))
                return part;
            low[k] = at < low[k] ? at : low[k];
            high[k] = at > high[k] ? at : high[k];
        }
    }
    warp_span(low[0], high[0], image->width, &part.left, &part.width);
    warp_span(low[1], high[1], image->height, &part.top, &part.height);
    return part;
}

/* ---- random matrices ---- */

static double warp_draw(uint64_t *state, bags_interval range) {
    return range.low + (range.high - range.low) * format_uniform(state);
}

void bags_matrix_times(const double a[9], const double b[9], double out[9]) {
    double product[9];
    for (int i = 0; i < 9; i++)
        product[i] = a[i / 3 * 3] * b[i % 3] + a[i / 3 * 3 + 1] * b[i % 3 + 3] +
                     a[i / 3 * 3 + 2] * b[i % 3 + 6];
    memcpy(out, product, sizeof product);
}

/* Undo an image's turn, scale and shear around its centre, and then its shift, with the
 * same steps as torchvision's affine. */
static void warp_undo_affine(double turn, double scale, double shear_x, double shear_y,
    double shift_x, double shift_y, double width, double height, double out[9]) {
    const double degree = 3.141592653589793 / 180;
    double angle = turn * degree, x = shear_x * degree, y = shear_y * degree;
    double centre_x = width * 0.5, centre_y = height * 0.5;
    double a = cos(angle - y) / cos(y);
    double b = -cos(angle - y) * tan(x) / cos(y) - sin(angle);
    double c = sin(angle - y) / cos(y);
    double d = -sin(angle - y) * tan(x) / cos(y) + cos(angle);
    out[0] = d / scale;
    out[1] = -b / scale;
    out[3] = -c / scale;
    out[4] = a / scale;
    out[2] = out[0] * (-centre_x - shift_x) + out[1] * (-centre_y - shift_y) + centre_x;
    out[5] = out[3] * (-centre_x - shift_x) + out[4] * (-centre_y - shift_y) + centre_y;
    out[6] = out[7] = 0;
    out[8] = 1;
}

/* Compute the transformation from a quadrilateral (clockwise from its upper left
 * corner) to the image's rectangle: the scaled inverse of the transformation from the
 * unit square to the quadrilateral. */
static void warp_undo_perspective(
    const double x[4], const double y[4], double width, double height, double out[9]) {
    double x1 = x[1] - x[2], x2 = x[3] - x[2], x3 = x[0] - x[1] + x[2] - x[3];
    double y1 = y[1] - y[2], y2 = y[3] - y[2], y3 = y[0] - y[1] + y[2] - y[3];
    double area = x1 * y2 - x2 * y1;
    double g = (x3 * y2 - x2 * y3) / area, h = (x1 * y3 - x3 * y1) / area;
    double a = x[1] - x[0] + g * x[1], b = x[3] - x[0] + h * x[3], c = x[0];
    double d = y[1] - y[0] + g * y[1], e = y[3] - y[0] + h * y[3], f = y[0];
    out[0] = (e - f * h) * width;
    out[1] = (c * h - b) * width;
    out[2] = (b * f - c * e) * width;
    out[3] = (f * g - d) * height;
    out[4] = (a - c * g) * height;
    out[5] = (c * d - a * f) * height;
    out[6] = d * h - e * g;
    out[7] = b * g - a * h;
    out[8] = a * e - b * d;
}

/* Draw all numbers, even unused ones, so that one range's numbers do not depend on the
 * other ranges. */
void bags_warp_draw(const bags_warp_options *o, uint64_t random, uint32_t width,
    uint32_t height, double matrix[9]) {
    uint64_t state = random;
    double corner[4], other[4], quad[9];
    double turn = warp_draw(&state, o->degrees), scale = warp_draw(&state, o->scale);
    double shift_x = warp_draw(&state, o->translate_x) * width;
    double shift_y = warp_draw(&state, o->translate_y) * height;
    double shear_x = warp_draw(&state, o->shear_x);
    double shear_y = warp_draw(&state, o->shear_y);
    warp_undo_affine(turn, scale > 0 ? scale : 1, shear_x, shear_y, shift_x, shift_y,
        width, height, matrix);
    for (int i = 0; i < 4; i++) {
        double x = format_uniform(&state) * o->perspective * width * 0.5;
        double y = format_uniform(&state) * o->perspective * height * 0.5;
        corner[i] = i == 1 || i == 2 ? width - x : x;
        other[i] = i >= 2 ? height - y : y;
    }
    if (!(o->perspective > 0))
        return;
    warp_undo_perspective(corner, other, width, height, quad);
    bags_matrix_times(matrix, quad, matrix);
}

/* ---- colours ---- */

static inline unsigned char warp_byte(int value) {
    return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Blend from one colour towards another, or beyond it, in float like Pillow's blend. */
static inline unsigned char warp_blend(int from, int to, float part) {
    return warp_byte((int)((float)from + part * (float)(to - from)));
}

/* Brightness and contrast: blend from 0, or from the mean, towards the colour. */
static void warp_blend_all(const bags_image *image, unsigned char *pixels,
    size_t stride, int from, float part) {
    unsigned char table[256];
    size_t row = (size_t)image->width * image->channels;
    for (int i = 0; i < 256; i++)
        table[i] = warp_blend(from, i, part);
    for (uint32_t y = 0; y < image->height; y++, pixels += stride)
        for (size_t i = 0; i < row; i++)
            pixels[i] = table[pixels[i]];
}

static inline int warp_gray(const unsigned char *pixel) {
    return (
        int)((pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 32768) >> 16);
}

/* The gray image's mean, rounded. */
static int warp_mean(
    const bags_image *image, const unsigned char *pixels, size_t stride) {
    uint64_t sum = 0;
    for (uint32_t y = 0; y < image->height; y++, pixels += stride)
        for (size_t x = 0; x < image->width; x++)
            sum +=
                image->channels == 1 ? pixels[x] : (unsigned)warp_gray(pixels + 3 * x);
    return (int)((double)sum / ((double)image->width * image->height) + 0.5);
}

static void warp_saturate(
    const bags_image *image, unsigned char *pixels, size_t stride, float part) {
    for (uint32_t y = 0; y < image->height; y++, pixels += stride)
        for (size_t x = 0; x < image->width; x++) {
            unsigned char *at = pixels + 3 * x;
            int gray = warp_gray(at);
            for (int c = 0; c < 3; c++)
                at[c] = warp_blend(gray, at[c], part);
        }
}

/* Tables for hues: the sixth of the circle, the position within it, and the saturations
 * at s. */
typedef struct warp_hues {
    unsigned char sixth[256];
    float into[256], saturation[256];
} warp_hues;

/* Convert red, green and blue to hue, saturation and value (each 0 .. 255, rounded
 * down), turn the hue by `turn`, and convert back, rounding to nearest. Each term has
 * the same type as in Pillow. */
static inline void warp_turn_hue(const warp_hues *t, unsigned turn, unsigned char *at) {
    int r = at[0], g = at[1], b = at[2];
    int most = r > g ? r : g, least = r < g ? r : g;
    most = b > most ? b : most;
    least = b < least ? b : least;
    if (most == least)
        return;
    float range = (float)(most - least), red = (float)(most - r) / range;
    float green = (float)(most - g) / range, blue = (float)(most - b) / range;
    float hue = r == most   ? blue - green
                : g == most ? (float)(2.0 + (double)red - (double)blue)
                            : (float)(4.0 + (double)green - (double)red);
    double circle = (double)hue / 6.0 + 1.0;
    hue = (float)(circle >= 1 ? circle - 1 : circle);
    int full = (int)((double)(range / (float)most) * 255.0);
    unsigned h = ((unsigned)(int)((double)hue * 255.0) + turn) & 255;
    unsigned char v = (unsigned char)most;
    if (full == 0) {
        at[0] = at[1] = at[2] = v;
        return;
    }
    double s = (double)t->saturation[full];
    double part = t->sixth[h] % 2 ? (double)(t->saturation[full] * t->into[h])
                                  : s * (1.0 - (double)t->into[h]);
    unsigned char low = (unsigned char)(int)(most * (1.0 - s) + 0.5);
    unsigned char mid = (unsigned char)(int)(most * (1.0 - part) + 0.5);
    static const unsigned char order[6][3] = {
        {2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {0, 1, 2}, {1, 0, 2}, {2, 0, 1}};
    const unsigned char *where = order[t->sixth[h]];
    unsigned char levels[3] = {low, mid, v};
    at[0] = levels[where[0]];
    at[1] = levels[where[1]];
    at[2] = levels[where[2]];
}

static void warp_turn_hues(
    const bags_image *image, unsigned char *pixels, size_t stride, double turn) {
    warp_hues t;
    for (int i = 0; i < 256; i++) {
        double at = (double)(float)i * 6.0 / 255.0;
        t.sixth[i] = (unsigned char)((int)at % 6);
        t.into[i] = (float)(at - (double)(float)(int)at);
        t.saturation[i] = (float)((double)(float)i / 255.0);
    }
    for (uint32_t y = 0; y < image->height; y++, pixels += stride)
        for (size_t x = 0; x < image->width; x++)
            warp_turn_hue(&t, (unsigned)(int)(turn * 255.0), pixels + 3 * x);
}

void bags_jitter_draw(
    const bags_jitter_options *o, uint64_t random, bags_jitter *jitter) {
    uint64_t state = random;
    bags_interval ranges[4] = {o->brightness, o->contrast, o->saturation, o->hue};
    double drawn[4];
    for (int i = 0; i < 4; i++) {
        bool set = ranges[i].low < 0 || ranges[i].low > 0 || ranges[i].high > 0;
        drawn[i] = warp_draw(&state, ranges[i]);
        if (!set)
            drawn[i] = i < 3;
        jitter->order[i] = (unsigned char)i;
    }
    jitter->brightness = drawn[0];
    jitter->contrast = drawn[1];
    jitter->saturation = drawn[2];
    jitter->hue = drawn[3];
    for (int i = 3; i > 0; i--) {
        int k = (int)(format_uniform(&state) * (i + 1));
        unsigned char one = jitter->order[i];
        jitter->order[i] = jitter->order[k];
        jitter->order[k] = one;
    }
}

static bags_code warp_check_jitter(const bags_jitter *j, bags_error *err) {
    unsigned found = 0;
    for (int i = 0; i < 4; i++)
        found |= j->order[i] < 4 ? 1u << j->order[i] : 0;
    double most = j->brightness > j->contrast ? j->brightness : j->contrast;
    bool good = j->brightness >= 0 && j->contrast >= 0 && j->saturation >= 0 &&
                most <= WARP_MOST_FACTOR && j->saturation <= WARP_MOST_FACTOR &&
                j->hue >= -0.5 && j->hue <= 0.5;
    if (good && found == 15)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_ARGUMENT,
        found == 15
            ? "jitter out of range (brightness %g, contrast %g, saturation %g, 0 "
              "to 1000; hue %g, -0.5 to 0.5)"
            : "the order of the jitter is not 0, 1, 2 and 3",
        j->brightness, j->contrast, j->saturation, j->hue);
}

bags_code bags_jitter_apply(const bags_image *image, void *pixels, size_t stride,
    const bags_jitter *jitter, bags_error *err) {
    unsigned char *at = (unsigned char *)pixels;
    bool colours = image->channels == 3;
    bags_code code = format_check_pixels(image, WARP_MOST_SIDE, &stride, err);
    if (!code && !colours && image->channels != 1)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "image of %u channels (1 and 3 can be changed)", (unsigned)image->channels);
    if (!code)
        code = warp_check_jitter(jitter, err);
    for (int i = 0; i < 4 && !code; i++) {
        int what = jitter->order[i];
        double factor = what == 0   ? jitter->brightness
                        : what == 1 ? jitter->contrast
                        : what == 2 ? jitter->saturation
                                    : jitter->hue;
        bool changes = what < 3 ? factor < 1 || factor > 1 : factor < 0 || factor > 0;
        if (!changes)
            continue;
        if (what < 2)
            warp_blend_all(image, at, stride, what ? warp_mean(image, at, stride) : 0,
                (float)factor);
        else if (colours && what == 2)
            warp_saturate(image, at, stride, (float)factor);
        else if (colours)
            warp_turn_hues(image, at, stride, factor);
    }
    return code;
}
