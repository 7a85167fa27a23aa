/*
 * resample.c - resize images, bit for bit as Pillow does. It needs no library.
 *
 * Each pixel of the result is a weighted mean of a window of pixels, first along the
 * rows and then along the columns, rounded to 8 bits after each. The window is as wide
 * as the filter, which is stretched by the ratio of the sizes if the image becomes
 * smaller. The weights are integers in units of 2^-22, so that the result depends on no
 * compiler. Colours with alpha are multiplied by it before and divided after.
 *
 *     source rows ---------> band -----------------> ring ----------> result
 *              weave two rows      weights along x        weights along y
 *
 * A band holds two rows, with the bytes of both in one word of 64 bits, so that one
 * multiplication serves two rows:
 *
 *     word = upper row's byte + 2^32 * lower row's byte
 *
 * A sum of weighted bytes stays within -128 << 22 and 384 << 22. Each half starts at
 * OFFSET, which makes it positive, and no carry leaves it.
 *
 * The ring holds the rows that the next row of the result needs: row r is in its place
 * r modulo the number of places.
 */
#include "formats.h"

#include <inttypes.h>
#include <string.h>

#define PRECISION 22
#define ZERO 128 /* what a sum of 0 is after the shift by PRECISION */
#define OFFSET                                                                 \
    (((uint32_t)ZERO << PRECISION) + ((uint32_t)1 << (PRECISION - 1)))
/* Sides are exact in float, and no window begins after the image. */
#define MOST_SIDE ((uint32_t)1 << 23)
#define BLOCK 32 /* bytes of a row that are summed at once */
#define ALIGN ((size_t)64)

/* The windows along one axis. */
typedef struct axis {
    uint32_t size;   /* of the source, in pixels */
    uint32_t length; /* of the result */
    float start;     /* of the box */
    float stop;
    double scale;    /* source pixels per pixel of the result */
    double support;  /* half the width of a window */
    uint32_t most;   /* pixels in a window */
    uint32_t *first; /* of each window */
    uint32_t *count;
    int32_t *weights; /* `most` for each window */
} axis;

/* All that one call has. */
typedef struct resampler {
    axis x, y;
    bags_filter filter;
    size_t channels;
    const unsigned char *pixels;
    size_t stride;
    double *terms;               /* one window before rounding */
    uint64_t *band;              /* see above */
    unsigned char *ring;         /* of `places` rows, each `pitch` bytes */
    const unsigned char **lines; /* the rows of one window */
    size_t places;
    size_t pitch; /* a row of the result, rounded up to BLOCK */
} resampler;

/* ------------------------------------------------------------ weights */

static double bilinear(double x) {
    x = x < 0 ? -x : x;
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void axis_shape(axis *a, bags_filter filter) {
    a->scale = (double)(a->stop - a->start) / a->length;
    double widened = a->scale < 1 ? 1 : a->scale;
    a->support = (filter == BAGS_FILTER_BICUBIC ? 2 : 1) * widened;
    a->most = 2 * (uint32_t)a->support + 3;
    if (a->most > a->size)
        a->most = a->size;
}

/* Each step of this is rounded as in Pillow, whose compiler sees the same terms. */
static void axis_weigh(axis *a, bags_filter filter, double *terms) {
    double shrink = 1 / (a->scale < 1 ? 1 : a->scale);
    for (uint32_t i = 0; i < a->length; i++) {
        double centre = a->start + (i + 0.5) * a->scale;
        double low = centre - a->support + 0.5,
               high = centre + a->support + 0.5;
        uint32_t first = low < 0 ? 0 : (uint32_t)low;
        uint32_t stop = high > a->size ? a->size : (uint32_t)high;
        double total = 0;
        for (uint32_t j = first; j < stop; j++) {
            double at = (j - centre + 0.5) * shrink;
            terms[j - first] =
                filter == BAGS_FILTER_BICUBIC ? bicubic(at) : bilinear(at);
            total += terms[j - first];
        }
        int32_t *weights = a->weights + (size_t)i * a->most;
        for (uint32_t j = 0; j < stop - first; j++) {
            double term = terms[j] / total * (1 << PRECISION);
            weights[j] = (int32_t)(term < 0 ? term - 0.5 : term + 0.5);
        }
        a->first[i] = first;
        a->count[i] = stop - first;
    }
}

/* ------------------------------------------------------------ rows */

static unsigned char byte_of(uint32_t sum) {
    int32_t value = (int32_t)(sum >> PRECISION) - ZERO;
    value = value < 0 ? 0 : value;
    return (unsigned char)(value > 255 ? 255 : value);
}

/* colour * alpha / 255, rounded. */
static uint32_t times_alpha(uint32_t colour, uint32_t alpha) {
    uint32_t product = colour * alpha + 128;
    return ((product >> 8) + product) >> 8;
}

/* The two rows from `row` on; the last row twice if there is no other. */
static void weave(const resampler *r, uint32_t row, uint32_t rows) {
    const unsigned char *upper = r->pixels + (size_t)row * r->stride;
    const unsigned char *lower = row + 1 < rows ? upper + r->stride : upper;
    size_t channels = r->channels, size = r->x.size * channels;
    uint64_t *band = r->band;
    if (channels % 2) {
        size_t i = 0;
        for (; size - i >= BLOCK; i += BLOCK) {
            unsigned char a[BLOCK], b[BLOCK];
            memcpy(a, upper + i, BLOCK);
            memcpy(b, lower + i, BLOCK);
            for (size_t j = 0; j < BLOCK; j++)
                band[i + j] = a[j] | (uint64_t)b[j] << 32;
        }
        for (; i < size; i++)
            band[i] = upper[i] | (uint64_t)lower[i] << 32;
        return;
    }
    for (size_t i = 0; i < size; i += channels) {
        uint32_t a = upper[i + channels - 1], b = lower[i + channels - 1];
        for (size_t c = 0; c + 1 < channels; c++)
            band[i + c] = times_alpha(upper[i + c], a) |
                          (uint64_t)times_alpha(lower[i + c], b) << 32;
        band[i + channels - 1] = a | (uint64_t)b << 32;
    }
}

/* Store the two halves of a sum at the same place of two rows of the ring. */
static void unweave(uint64_t sum, unsigned char *upper, unsigned char *lower) {
    *upper = byte_of((uint32_t)sum);
    *lower = byte_of((uint32_t)(sum >> 32));
}

/* Resize the band along x into two rows. */
static void resize_band(
    const resampler *r, unsigned char *upper, unsigned char *lower) {
    const uint64_t offset = OFFSET | (uint64_t)OFFSET << 32;
    const size_t channels = r->channels;
    for (uint32_t i = 0; i < r->x.length; i++) {
        const int32_t *weights = r->x.weights + (size_t)i * r->x.most;
        const uint64_t *at = r->band + r->x.first[i] * channels;
        uint32_t count = r->x.count[i];
        if (channels == 3) {
            uint64_t red = offset, green = offset, blue = offset;
            for (uint32_t j = 0; j < count; j++, at += 3) {
                uint64_t weight = (uint64_t)(int64_t)weights[j];
                red += at[0] * weight;
                green += at[1] * weight;
                blue += at[2] * weight;
            }
            unweave(red, upper++, lower++);
            unweave(green, upper++, lower++);
            unweave(blue, upper++, lower++);
            continue;
        }
        for (size_t c = 0; c < channels; c++) {
            uint64_t sum = offset;
            for (uint32_t j = 0; j < count; j++)
                sum += at[j * channels + c] * (uint64_t)(int64_t)weights[j];
            unweave(sum, upper++, lower++);
        }
    }
}

/* Colours divided by their alpha. */
static void divide_alpha(unsigned char *row, size_t size, size_t channels) {
    for (size_t i = 0; i < size; i += channels) {
        uint32_t alpha = row[i + channels - 1];
        for (size_t c = 0; alpha && c + 1 < channels; c++) {
            uint32_t colour = 255u * row[i + c] / alpha;
            row[i + c] = (unsigned char)(colour > 255 ? 255 : colour);
        }
    }
}

/* Row i of the result, from r->lines. */
static void resize_lines(const resampler *r, uint32_t i, unsigned char *out) {
    const int32_t *weights = r->y.weights + (size_t)i * r->y.most;
    size_t row = r->x.length * r->channels;
    uint32_t count = r->y.count[i];
    for (size_t at = 0; at < row; at += BLOCK) {
        uint32_t sums[BLOCK];
        unsigned char bytes[BLOCK];
        for (size_t j = 0; j < BLOCK; j++)
            sums[j] = OFFSET;
        for (uint32_t k = 0; k < count; k++) {
            const unsigned char *line = r->lines[k] + at;
            uint32_t weight = (uint32_t)weights[k];
            for (size_t j = 0; j < BLOCK; j++)
                sums[j] += line[j] * weight;
        }
        for (size_t j = 0; j < BLOCK; j++)
            bytes[j] = byte_of(sums[j]);
        memcpy(out + at, bytes, row - at < BLOCK ? row - at : BLOCK);
    }
    if (r->channels % 2 == 0)
        divide_alpha(out, row, r->channels);
}

/* Returns true if pixels need only be copied. Colours with alpha lose precision even in
 * a copy of their box, except in one of the entire image. */
static bool is_copy(const resampler *r) {
    const axis *x = &r->x, *y = &r->y;
    return x->start == (float)(uint32_t)x->start &&
           y->start == (float)(uint32_t)y->start &&
           x->stop - x->start == (float)x->length &&
           y->stop - y->start == (float)y->length &&
           (r->channels % 2 || (x->length == x->size && y->length == y->size));
}

static void copy(const resampler *r, unsigned char *out, size_t out_stride) {
    const unsigned char *from = r->pixels + (size_t)r->y.start * r->stride +
                                (size_t)r->x.start * r->channels;
    for (uint32_t i = 0; i < r->y.length; i++)
        memcpy(out + i * out_stride, from + i * r->stride,
            r->x.length * r->channels);
}

static void resize(resampler *r, unsigned char *out, size_t out_stride) {
    uint32_t last = r->y.length - 1;
    uint32_t rows = r->y.first[last] + r->y.count[last];
    uint32_t made = r->y.first[0];
    for (uint32_t i = 0; i <= last; i++, out += out_stride) {
        uint32_t first = r->y.first[i], stop = first + r->y.count[i];
        for (; made < stop; made += 2) {
            weave(r, made, rows);
            resize_band(r, r->ring + made % r->places * r->pitch,
                r->ring + (made + 1) % r->places * r->pitch);
        }
        for (uint32_t j = first; j < stop; j++)
            r->lines[j - first] = r->ring + j % r->places * r->pitch;
        resize_lines(r, i, out);
    }
}

/* ------------------------------------------------------------ memory */

/* Memory that is handed out piece by piece. The first pass, in which data is NULL, finds
 * out how much it is; SIZE_MAX if it does not fit the address space. */
typedef struct arena {
    unsigned char *data;
    size_t used;
} arena;

/* count elements of some size, aligned for vector units. */
static void *carve(arena *a, uint64_t count, size_t size) {
    size_t start = a->used;
    if (start > SIZE_MAX - ALIGN || count > (SIZE_MAX - ALIGN - start) / size)
        a->used = SIZE_MAX;
    else
        a->used += ((size_t)count * size + ALIGN - 1) / ALIGN * ALIGN;
    return a->data ? a->data + start : NULL;
}

static void carve_axis(arena *from, axis *a) {
    a->first = (uint32_t *)carve(from, a->length, sizeof *a->first);
    a->count = (uint32_t *)carve(from, a->length, sizeof *a->count);
    a->weights = (int32_t *)carve(
        from, (uint64_t)a->length * a->most, sizeof *a->weights);
}

static void carve_all(arena *from, resampler *r) {
    uint32_t most = r->x.most > r->y.most ? r->x.most : r->y.most;
    carve_axis(from, &r->x);
    carve_axis(from, &r->y);
    r->terms = (double *)carve(from, most, sizeof *r->terms);
    r->band = (uint64_t *)carve(
        from, (uint64_t)r->x.size * r->channels, sizeof *r->band);
    r->lines = (const unsigned char **)carve(from, r->places, sizeof *r->lines);
    r->ring = (unsigned char *)carve(from, (uint64_t)r->places * r->pitch, 1);
}

static bags_code prepare(resampler *r, bags_buffer *scratch, bags_error *err) {
    arena memory = {NULL, 0};
    axis_shape(&r->x, r->filter);
    axis_shape(&r->y, r->filter);
    r->places = (size_t)r->y.most + 1; /* bands are two rows */
    r->pitch = ((size_t)r->x.length * r->channels + BLOCK - 1) / BLOCK * BLOCK;
    carve_all(&memory, r);
    if (memory.used == SIZE_MAX)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    bags_code code = bags_buffer_reserve(scratch, memory.used, err);
    if (code)
        return code;
    memory.data = scratch->data;
    memory.used = 0;
    carve_all(&memory, r);
    axis_weigh(&r->x, r->filter, r->terms);
    axis_weigh(&r->y, r->filter, r->terms);
    return BAGS_OK;
}

/* ------------------------------------------------------------ arguments */

static bags_code check_sides(
    const bags_image *image, uint32_t width, uint32_t height, bags_error *err) {
    if (image->dtype != BAGS_DTYPE_UINT8 || image->channels < 1 ||
        image->channels > 4)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "image cannot be resized (%s, %u channels; expected uint8, 1 to 4)",
            bags_dtype_name(image->dtype), (unsigned)image->channels);
    uint32_t sides[4] = {image->width, image->height, width, height};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MOST_SIDE)
            return bags_fail(err,
                sides[i] ? BAGS_ERROR_LIMIT : BAGS_ERROR_ARGUMENT,
                "side of an image out of range (%u pixels, maximum %u)",
                (unsigned)sides[i], (unsigned)MOST_SIDE);
    return BAGS_OK;
}

/* *stride 0: a row. */
static bags_code check_stride(size_t *stride, uint32_t width, uint32_t height,
    uint32_t channels, bags_error *err) {
    size_t row = (size_t)width * channels;
    if (*stride == 0)
        *stride = row;
    if (*stride < row)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "stride too small (%" PRIu64 " bytes, row %" PRIu64 ")",
            (uint64_t)*stride, (uint64_t)row);
    if (*stride > SIZE_MAX / height)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    return BAGS_OK;
}

/* Set the box of both axes. A comparison with NaN is false. */
static bags_code check_box(resampler *r, const bags_box *box, bags_error *err) {
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

bags_code bags_resample(const bags_image *image, const void *pixels,
    size_t stride, const bags_box *box, bags_filter filter, uint32_t width,
    uint32_t height, bags_buffer *scratch, void *out, size_t out_stride,
    bags_error *err) {
    resampler r;
    memset(&r, 0, sizeof r);
    bags_code code = check_sides(image, width, height, err);
    if (code)
        return code;
    if (filter != BAGS_FILTER_BILINEAR && filter != BAGS_FILTER_BICUBIC)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "unknown filter (%d)", (int)filter);
    r.x.size = image->width;
    r.y.size = image->height;
    r.x.length = width;
    r.y.length = height;
    r.filter = filter;
    r.channels = image->channels;
    r.pixels = (const unsigned char *)pixels;
    code = check_box(&r, box, err);
    if (!code)
        code = check_stride(
            &stride, image->width, image->height, image->channels, err);
    if (!code)
        code = check_stride(&out_stride, width, height, image->channels, err);
    if (code)
        return code;
    r.stride = stride;
    if (is_copy(&r)) {
        copy(&r, (unsigned char *)out, out_stride);
        return BAGS_OK;
    }
    code = prepare(&r, scratch, err);
    if (code)
        return code;
    resize(&r, (unsigned char *)out, out_stride);
    return BAGS_OK;
}
