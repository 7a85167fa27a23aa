/*
 * crop.c - makes images of one size from blobs: decodes, crops, resizes or warps, and
 * mirrors them, changes their colours, and normalises them. The arithmetic is in
 * resample.c and warp.c.
 *
 * A gray image of 16 bits is moved as one of two channels of 8 bits: the filter is
 * BAGS_FILTER_NEAREST, so pixels are copied, and never mixed.
 */
#include "ring.h"

#include "random.h"

#include <float.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <math.h>

/* An image on its way to a tensor. */
typedef struct loader_image {
    bags_image image; /* describes the pixels */
    const unsigned char *pixels;
    size_t stride;
    unsigned char *to; /* where it goes in the tensor */
    bool owned;        /* the pixels are in the worker's own memory, so they may be
                          changed */
    bags_image whole;  /* describes the entire image, */
    bags_part crop;    /* the rectangle to load, */
    bags_part part;    /* and, for an image to be transformed, the part that `pixels`
                          covers */
    uint32_t width, height; /* the resized crop's size, before its middle is cut out */
    bool flip_x, flip_y;
    bags_load_draw draw;
} loader_image;

/* ---- random draws ---- */

/* True with the given probability. With probability 0, no random number is drawn. */
static bool loader_chance(uint64_t *random, double probability) {
    return probability > 0 && format_uniform(random) >= 1 - probability;
}

/* Like torchvision's RandomResizedCrop. */
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
            r.top = (uint32_t)format_below(state, image->height - r.height);
            r.left = (uint32_t)format_below(state, image->width - r.width);
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

/* Half of x, rounded half to even, like Python's round. */
static uint32_t loader_half_even(uint32_t x) { return x / 2 + (x % 4 == 3); }

/* The matrix that maps result pixels to the entire image: mirror, scale and move to the
 * crop, then undo the warp. */
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

/* The inverse of that matrix, as 2 x 3 numbers: maps the entire image to the result. */
static bags_code loader_invert_matrix(
    const loader_column *c, const loader_image *p, double out[6], bags_error *err) {
    const double *m = p->draw.matrix;
    double size = m[0] * m[4] - m[1] * m[3];
    if (m[6] < 0 || m[6] > 0 || m[7] < 0 || m[7] > 0)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "draw returned a perspective; it and the option matrix are mutually "
            "exclusive");
    out[0] = m[4] * m[8] / size;
    out[1] = -m[1] * m[8] / size;
    out[2] = (m[1] * m[5] - m[4] * m[2]) / size;
    out[3] = -m[3] * m[8] / size;
    out[4] = m[0] * m[8] / size;
    out[5] = (m[3] * m[2] - m[0] * m[5]) / size;
    for (int i = 0; i < 6; i++)
        if (!(out[i] >= -DBL_MAX && out[i] <= DBL_MAX))
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "the matrix of %s has no inverse",
                c->given.draw ? "draw" : "the image");
    return BAGS_OK;
}

bool bagi_loader_is_scale(const float *mean, const float *std) {
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = good && mean[i] >= -FLT_MAX && mean[i] <= FLT_MAX && std[i] >= 0 &&
               std[i] <= FLT_MAX;
    return good;
}

/* Choose all parameters for an image of known size. */
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
    if (g->draw)
        FORMAT_TRY(g->draw(g->user, item, &p->whole, &p->draw, err));
    if (!bagi_loader_is_scale(p->draw.mean, p->draw.std))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "mean and std must be finite, and std at least 0");
    return BAGS_OK;
}

/* ---- decoding ---- */

/* Reserve memory for a uint8 image. Each step has its own buffer. It grows to the
 * largest image and is reused, so nothing is allocated per image. */
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

/* True if an image's decoded pixels are stored in the tensor unchanged. */
static bool loader_is_direct(const loader_column *c, const loader_image *p) {
    const bags_load_field *g = &c->given;
    bool fits = p->image.width == p->width && p->image.height == p->height &&
                p->width == g->width && p->height == g->height &&
                p->image.channels == g->channels;
    return fits && !c->scale && !c->by_matrix && !g->nchw && !p->flip_x && !p->flip_y &&
           !g->jitter && !g->draw;
}

/* Check an image's bits, and describe 16 bits as two channels. */
static bags_code loader_check_depth(
    const loader_column *c, loader_image *p, bags_error *err) {
    if (loader_stored_dtype(c) == BAGS_DTYPE_UINT8) {
        if (p->image.depth == 8)
            return BAGS_OK;
        return bags_fail(err, BAGS_ERROR_VALUE,
            "image has %" PRIu32 " bits per channel (8 are supported)", p->image.depth);
    }
    if (p->image.depth != 16 || p->image.channels != 1)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "image has %" PRIu32 " channels of %" PRIu32
            " bits (dtype uint16 needs 1 of 16)",
            p->image.channels, p->image.depth);
    p->image.channels = 2;
    p->image.depth = 8;
    p->image.dtype = BAGS_DTYPE_UINT8;
    return BAGS_OK;
}

/* Decode only a rectangle of a JPEG. With `scaled`, decode at a reduced size that is
 * still at least as large as requested. */
static bags_code loader_decode_jpeg(loader_worker *w, const loader_column *c,
    const bags_load_item *item, uint64_t *random, loader_image *p, bags_error *err) {
    const bags_loader_images *images = &w->loader->images;
    bags_jpeg_options options;
    memset(&options, 0, sizeof options);
    options.orient = c->given.orient;
    options.allow_trailing = true;
    FORMAT_TRY(images->jpeg_probe(item->blob, &options, &p->whole, err));
    p->image = p->whole;
    FORMAT_TRY(loader_check_depth(c, p, err));
    FORMAT_TRY(loader_plan(c, item, random, p, err));
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
    FORMAT_TRY(images->jpeg_probe(item->blob, &options, &p->image, err));
    if (scale > 1) { /* the rectangle, rounded to the reduced pixels */
        p->crop.left = options.left * scale;
        p->crop.top = options.top * scale;
        p->crop.width = options.width * scale;
        p->crop.height = options.height * scale;
    }
    unsigned char *pixels = p->to;
    size_t size = c->item_size;
    if (!loader_is_direct(c, p)) {
        FORMAT_TRY(loader_reserve_pixels(&w->pixels, &p->image, err));
        pixels = w->pixels.data;
        size = w->pixels.capacity;
    }
    p->pixels = pixels;
    return images->jpeg_decode(item->blob, &options, pixels, size, 0, err);
}

/* Palettes are expanded to colours, since indices cannot be resized. */
static bags_code loader_decode_png(loader_worker *w, const loader_column *c,
    bags_view blob, loader_image *p, bags_error *err) {
    const bags_loader_images *images = &w->loader->images;
    bags_png_options options;
    memset(&options, 0, sizeof options);
    options.expand = options.allow_trailing = true;
    options.orient = c->given.orient;
    FORMAT_TRY(images->png_probe(blob, &options, &p->image, err));
    FORMAT_TRY(loader_check_depth(c, p, err));
    FORMAT_TRY(loader_reserve_pixels(&w->pixels, &p->image, err));
    p->pixels = w->pixels.data;
    return images->png_decode(
        blob, &options, w->pixels.data, w->pixels.capacity, 0, err);
}

/* Use the image decoded by a codec or a callback. */
static bags_code loader_image_of(
    const loader_column *c, const bags_value *value, loader_image *p, bags_error *err) {
    uint64_t channels = value->dims == 3 ? value->shape[2] : 1;
    char has[200];
    bags_dtype dtype = loader_stored_dtype(c);
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != dtype)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image of %d bits per channel",
            dtype == BAGS_DTYPE_UINT16 ? 16 : 8);
    if (value->dims < 2 || value->dims > 3 || channels < 1 || channels > 4 ||
        value->shape[0] < 1 || value->shape[0] > INT32_MAX || value->shape[1] < 1 ||
        value->shape[1] > INT32_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE, "not an image (%s)",
            loader_shape_text(value->dims, value->shape, has));
    p->image.height = (uint32_t)value->shape[0];
    p->image.width = (uint32_t)value->shape[1];
    p->image.channels = (uint32_t)channels;
    p->image.depth = dtype == BAGS_DTYPE_UINT16 ? 16 : 8;
    p->pixels = (const unsigned char *)value->data;
    return loader_check_depth(c, p, err);
}

/* Get an image's pixels, and plan what to do with them. */
static bags_code loader_decode_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, const bags_value *value, uint64_t *random,
    loader_image *p, bags_error *err) {
    loader_blob_kind kind = c->sources[item->pick.dataset].kind;
    kind = c->given.decode ? LOADER_BLOB_OTHER : kind;
    if (kind == LOADER_BLOB_JPEG)
        FORMAT_TRY(loader_decode_jpeg(w, c, item, random, p, err));
    else if (kind == LOADER_BLOB_PNG)
        FORMAT_TRY(loader_decode_png(w, c, item->blob, p, err));
    else
        FORMAT_TRY(loader_image_of(c, value, p, err));
    p->stride = (size_t)p->image.width * p->image.channels;
    if (kind == LOADER_BLOB_JPEG)
        return BAGS_OK;
    p->whole = p->image;
    FORMAT_TRY(loader_plan(c, item, random, p, err));
    p->part.width = p->image.width;
    p->part.height = p->image.height;
    if (c->by_matrix)
        return BAGS_OK;
    p->pixels += p->crop.top * p->stride + (size_t)p->crop.left * p->image.channels;
    p->image.width = p->crop.width;
    p->image.height = p->crop.height;
    return BAGS_OK;
}

/* ---- the tensor's pixels ---- */

/* Convert to gray or RGB as Pillow does: alpha is dropped. */
static bags_code loader_convert_channels(
    loader_worker *w, loader_image *p, uint32_t channels, bags_error *err) {
    bags_image image = p->image;
    uint32_t from = image.channels;
    if (from == channels)
        return BAGS_OK;
    image.channels = channels;
    FORMAT_TRY(loader_reserve_pixels(&w->converted, &image, err));
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

/* Resize, unless the image already has this size. */
static bags_code loader_resize(
    loader_worker *w, const loader_column *c, loader_image *p, bags_error *err) {
    bags_image image = p->image;
    if (!c->by_matrix && image.width == p->width && image.height == p->height)
        return BAGS_OK;
    image.width = c->by_matrix ? c->given.width : p->width;
    image.height = c->by_matrix ? c->given.height : p->height;
    size_t stride = (size_t)image.width * image.channels;
    FORMAT_TRY(loader_reserve_pixels(&w->resized, &image, err));
    p->whole.channels = image.channels;
    if (c->by_matrix)
        FORMAT_TRY(bags_warp(&p->whole, &p->part, p->pixels, p->stride, p->draw.matrix,
            c->given.filter, c->warp.fill, image.width, image.height, w->resized.data,
            stride, err));
    else
        FORMAT_TRY(w->loader->images.resample(&p->image, p->pixels, p->stride, NULL,
            c->given.filter, image.width, image.height, &w->resampling, w->resized.data,
            stride, err));
    p->image = image;
    p->pixels = w->resized.data;
    p->stride = stride;
    p->owned = true;
    return BAGS_OK;
}

/* Change the image's colours; it already has its final size. */
static bags_code loader_jitter(
    loader_worker *w, const loader_column *c, loader_image *p, bags_error *err) {
    size_t row = (size_t)c->given.width * p->image.channels;
    p->image.width = c->given.width;
    p->image.height = c->given.height;
    if (!p->owned) {
        FORMAT_TRY(loader_reserve_pixels(&w->resized, &p->image, err));
        for (uint32_t y = 0; y < p->image.height; y++)
            memcpy(w->resized.data + y * row, p->pixels + y * p->stride, row);
        p->pixels = w->resized.data;
        p->stride = row;
    }
    unsigned char *pixels = w->resized.data + (p->pixels - w->resized.data);
    return bags_jitter_apply(&p->image, pixels, p->stride, &p->draw.jitter, err);
}

/* Write a row of RGB pixels as floats; for planes, four at a time. */
static void loader_scale_row(const unsigned char *from, ptrdiff_t step, size_t width,
    const float *scales, float *to, size_t step_x, size_t step_c) {
    float *red = to, *green = to + step_c, *blue = to + 2 * step_c;
    size_t x = 0;
#ifdef __SSE2__
    for (; step_x == 1 && x + 4 <= width; x += 4) {
        const unsigned char *b = from + step, *c = b + step, *d = c + step;
        const float *g = scales + 256, *e = scales + 512;
        _mm_storeu_ps(red + x,
            _mm_set_ps(scales[d[0]], scales[c[0]], scales[b[0]], scales[from[0]]));
        _mm_storeu_ps(green + x, _mm_set_ps(g[d[1]], g[c[1]], g[b[1]], g[from[1]]));
        _mm_storeu_ps(blue + x, _mm_set_ps(e[d[2]], e[c[2]], e[b[2]], e[from[2]]));
        from = d + step;
    }
#endif
    for (; x < width; x++, from += step) {
        red[x * step_x] = scales[from[0]];
        green[x * step_x] = scales[256 + from[1]];
        blue[x * step_x] = scales[512 + from[2]];
    }
}

/* Write the pixels to the tensor: mirrored, normalised by a table, or channels
 * first. */
static void loader_store_pixels(const loader_column *c, const loader_image *p,
    const void *table, unsigned char *to) {
    size_t width = c->given.width, height = c->given.height;
    size_t channels = p->image.channels;
    bool nchw = c->given.nchw && loader_stored_dtype(c) == BAGS_DTYPE_UINT8;
    size_t step_x = nchw ? 1 : channels;
    size_t step_y = step_x * width;
    size_t step_c = nchw ? width * height : 1;
    bool flip_x = p->flip_x && !c->by_matrix, flip_y = p->flip_y && !c->by_matrix;
    bool halved = c->dtype == BAGS_DTYPE_FLOAT16;
    const float *scales = halved ? NULL : (const float *)table;
    const uint16_t *halves = halved ? (const uint16_t *)table : NULL;
    float *real = (float *)(void *)to;
    uint16_t *half = (uint16_t *)(void *)to;
    if (!table && !nchw && !flip_x) {
        for (size_t y = 0; y < height; y++)
            memcpy(to + y * step_y,
                p->pixels + (flip_y ? height - 1 - y : y) * p->stride, step_y);
        return;
    }
    for (size_t y = 0; y < height; y++) {
        const unsigned char *from =
            p->pixels + (flip_y ? height - 1 - y : y) * p->stride;
        ptrdiff_t step = (ptrdiff_t)channels;
        if (flip_x) {
            from += (width - 1) * channels;
            step = -step;
        }
        if (scales && channels == 3) {
            loader_scale_row(
                from, step, width, scales, real + y * step_y, step_x, step_c);
            continue;
        }
        for (size_t k = 0; k < channels; k++) {
            const unsigned char *one = from + k;
            size_t at = y * step_y + k * step_c;
            for (size_t x = 0; x < width; x++, at += step_x, one += step) {
                if (scales)
                    real[at] = scales[256 * k + *one];
                else if (halves)
                    half[at] = halves[256 * k + *one];
                else
                    to[at] = *one;
            }
        }
    }
}

/* Round a finite number to float16, to nearest even. Too large ones become infinite. */
static uint16_t loader_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size >= 0x47800000) /* 2^16 */
        return (uint16_t)(sign | 0x7C00);
    double units = rint(fabs((double)x) * (1 << 24)); /* of the smallest number */
    if (size < 0x38800000)                            /* 2^-14 */
        return (uint16_t)(sign | (uint32_t)units);
    size += 0xFFF + (size >> 13 & 1);
    return (uint16_t)(sign | (size - 0x38000000) >> 13);
}

/* Tabulate the numbers for each channel's 256 values, with the same float32 arithmetic
 * as NumPy and torchvision. */
bool bagi_loader_make_scale(bags_dtype dtype, size_t channels, const float *mean,
    const float *std, float *out) {
    bool fits = true;
    for (size_t i = 0; i < 256 * channels; i++) {
        float deviation = std[i / 256];
        volatile float value = (float)(i % 256) / 255.0f;
        value = value - mean[i / 256];
        out[i] = loader_is_set((double)deviation) ? value / deviation : value;
    }
    for (size_t i = 0; i < 256 * channels && dtype == BAGS_DTYPE_FLOAT16; i++) {
        uint16_t half = loader_half(out[i]); /* takes the place of earlier floats */
        memcpy((unsigned char *)out + i * sizeof half, &half, sizeof half);
        fits = fits && (half & 0x7C00) != 0x7C00;
    }
    return fits;
}

/* ---- a GPU ---- */

bool bagi_loader_is_for_device(const loader_worker *w, const loader_column *c,
    bags_mp4_reader *video, uint64_t frame, bags_image *out) {
    const bags_loader_options *o = &w->loader->options;
    const bags_loader_device_videos *made = o->device_videos;
    if (!c->by_device || w->on_cpu || !made)
        return false;
    bags_cuda_video of = {video, o->videos->info, made->place, made->packet};
    return made->probe(w->decoder, &of, frame, out);
}

void bagi_loader_start_staged(loader_worker *w) {
    for (size_t i = 0; w->staged && i < w->loader->column_count; i++)
        w->staged[i].used = w->staged[i].frame_count = 0;
}

/* Copy a JPEG for the GPU, since it may only be valid until the next read. */
static bags_code loader_stage_blob(loader_staged *s, bags_cuda_image *image, size_t at,
    bags_view blob, bags_error *err) {
    FORMAT_TRY(bags_buffer_reserve(&s->offsets, (at + 1) * sizeof(size_t), err));
    FORMAT_TRY(loader_part_reserve(&s->blobs, s->used, blob.size, err));
    memcpy(s->blobs.data + s->used, blob.data, blob.size);
    ((size_t *)(void *)s->offsets.data)[at] = s->used;
    s->used += blob.size;
    image->blob = blob;
    return BAGS_OK;
}

/* Record a frame for the GPU, in place of the frames of datapoints that were
 * skipped. */
static bags_code loader_stage_frame(loader_staged *s, bags_cuda_image *image, size_t at,
    const bags_load_item *item, bags_error *err) {
    loader_staged_frame frame = {item->pick.dataset, item->pick.index, at};
    const loader_staged_frame *frames =
        (const loader_staged_frame *)(const void *)s->frames.data;
    while (s->frame_count > 0 && frames[s->frame_count - 1].image >= at)
        s->frame_count--;
    FORMAT_TRY(
        bags_buffer_reserve(&s->frames, (s->frame_count + 1) * sizeof frame, err));
    memcpy(s->frames.data + s->frame_count++ * sizeof frame, &frame, sizeof frame);
    image->is_frame = true;
    image->frame = item->item;
    return BAGS_OK;
}

/* Add item number `at` to the images for a GPU. *staged is true if the GPU decodes
 * it. */
static bags_code loader_stage_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, size_t at, uint64_t *random, loader_image *p,
    bool *staged, bags_error *err) {
    loader_staged *s = &w->staged[c - w->loader->columns];
    FORMAT_TRY(
        bags_buffer_reserve(&s->images, (at + 1) * sizeof(bags_cuda_image), err));
    bags_cuda_image *image = (bags_cuda_image *)(void *)s->images.data + at;
    memset(image, 0, sizeof *image);
    if (w->frame)
        p->whole = *w->frame;
    *staged = w->frame || (c->by_device && !w->on_cpu &&
                              c->sources[item->pick.dataset].kind == LOADER_BLOB_JPEG &&
                              w->loader->options.device->probe(
                                  w->decoder, item->blob, c->given.orient, &p->whole));
    if (!*staged)
        return BAGS_OK;
    FORMAT_TRY(loader_plan(c, item, random, p, err));
    FORMAT_TRY(w->frame ? loader_stage_frame(s, image, at, item, err)
                        : loader_stage_blob(s, image, at, item->blob, err));
    image->image = p->whole;
    image->crop = p->crop;
    image->width = p->width;
    image->height = p->height;
    image->left = loader_half_even(p->width - c->given.width);
    image->top = loader_half_even(p->height - c->given.height);
    image->flip_x = p->flip_x;
    image->flip_y = p->flip_y;
    return BAGS_OK;
}

/* Reserve GPU memory for a tensor: from the start for a full batch, so that it is
 * rarely replaced. */
static bags_code loader_reserve_on_device(
    const loader_worker *w, loader_part *p, size_t size, size_t full, bags_error *err) {
    const bags_loader_device *device = w->loader->options.device;
    if (p->on_device && p->on_device_size >= size)
        return BAGS_OK;
    if (p->on_device)
        device->give(device->cuda, p->on_device);
    p->on_device_size = size > full ? size : full;
    p->on_device = device->take(device->cuda, p->on_device_size, err);
    return p->on_device ? BAGS_OK : err->code;
}

static int loader_compare_frames(const void *a, const void *b) {
    const loader_staged_frame *x = (const loader_staged_frame *)a;
    const loader_staged_frame *y = (const loader_staged_frame *)b;
    if (x->dataset != y->dataset)
        return x->dataset < y->dataset ? -1 : 1;
    if (x->episode != y->episode)
        return x->episode < y->episode ? -1 : 1;
    return x->image < y->image ? -1 : x->image > y->image;
}

/* Make the items that are frames, all frames of a video together. */
static bags_code loader_make_frames(loader_worker *w, const loader_column *c,
    const bags_cuda_form *form, size_t count, void *out, bags_error *err) {
    const bags_loader_options *o = &w->loader->options;
    loader_staged *s = &w->staged[c - w->loader->columns];
    loader_staged_frame *frames = (loader_staged_frame *)(void *)s->frames.data;
    while (s->frame_count > 0 && frames[s->frame_count - 1].image >= count)
        s->frame_count--; /* of datapoints that were skipped */
    if (!s->frame_count)
        return BAGS_OK;
    FORMAT_TRY(bags_buffer_reserve(&s->which, s->frame_count * sizeof(size_t), err));
    size_t *which = (size_t *)(void *)s->which.data;
    qsort(frames, s->frame_count, sizeof *frames, loader_compare_frames);
    for (size_t i = 0, used; i < s->frame_count; i += used) {
        const loader_staged_frame *f = &frames[i];
        for (used = 0; i + used < s->frame_count && f[used].dataset == f->dataset &&
                       f[used].episode == f->episode;
             used++)
            which[used] = f[used].image;
        bags_mp4_reader *video = bagi_frames_video(w, c, f->dataset, f->episode, err);
        if (!video)
            return BAGS_ERROR_CORRUPT; /* the CPU reports the failure */
        bags_cuda_video of = {
            video, o->videos->info, o->device_videos->place, o->device_videos->packet};
        FORMAT_TRY(o->device_videos->make(w->decoder, form, &of,
            (const bags_cuda_image *)(const void *)s->images.data, which, used, out,
            err));
    }
    return BAGS_OK;
}

bags_code bagi_loader_make_on_device(
    loader_worker *w, loader_slot *s, size_t column, bags_error *err) {
    const bags_loader *l = w->loader;
    const loader_column *c = &l->columns[column];
    loader_staged *staged = &w->staged[column];
    loader_part *p = &s->parts[column];
    bags_cuda_image *images = (bags_cuda_image *)(void *)staged->images.data;
    const size_t *offsets = (const size_t *)(const void *)staged->offsets.data;
    size_t count = (size_t)p->used.items;
    size_t window = c->given.window ? (size_t)c->given.window : 1;
    for (size_t i = 0; i < count; i++) {
        if (images[i].blob.data)
            images[i].blob.data = staged->blobs.data + offsets[i];
        else if (!images[i].is_frame)
            images[i].item = p->data.data + i * c->item_size;
        s->batch.on_cpu += images[i].item != NULL;
    }
    FORMAT_TRY(loader_reserve_on_device(
        w, p, p->used.size, l->slice_most * window * c->item_size, err));
    bags_cuda_form form;
    memset(&form, 0, sizeof form);
    form.width = c->given.width;
    form.height = c->given.height;
    form.channels = c->given.channels;
    form.filter = c->by_device ? c->given.filter : BAGS_FILTER_BILINEAR;
    form.nchw = c->given.nchw;
    form.dtype = c->dtype;
    form.table = c->scale;
    bags_code code =
        l->options.device->make(w->decoder, &form, images, count, p->on_device, err);
    if (!code)
        code = loader_make_frames(w, c, &form, count, p->on_device, err);
    w->rejected = code == BAGS_ERROR_CORRUPT;
    return code;
}

void bagi_loader_free_staged(loader_worker *w) {
    for (size_t i = 0; w->staged && i < w->loader->column_count; i++) {
        bags_buffer_free(&w->staged[i].images);
        bags_buffer_free(&w->staged[i].offsets);
        bags_buffer_free(&w->staged[i].blobs);
        bags_buffer_free(&w->staged[i].frames);
        bags_buffer_free(&w->staged[i].which);
    }
    if (w->decoder)
        w->loader->options.device->close(w->decoder);
}

/* ---- an item ---- */

/* Make the item on the CPU. */
static bags_code loader_make_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, const bags_value *value, uint64_t *random,
    loader_image *p, bags_error *err) {
    const float *scale = c->scale;
    FORMAT_TRY(loader_decode_image(w, c, item, value, random, p, err));
    if (loader_stored_dtype(c) == BAGS_DTYPE_UINT8)
        FORMAT_TRY(loader_convert_channels(w, p, c->given.channels, err));
    FORMAT_TRY(loader_resize(w, c, p, err));
    if (!c->by_matrix)
        p->pixels +=
            loader_half_even(p->height - c->given.height) * p->stride +
            (size_t)loader_half_even(p->width - c->given.width) * p->image.channels;
    if (c->given.jitter || c->given.draw)
        FORMAT_TRY(loader_jitter(w, c, p, err));
    if (scale && c->given.draw) {
        if (!bagi_loader_make_scale(
                c->dtype, p->image.channels, p->draw.mean, p->draw.std, w->scale))
            return bags_fail(
                err, BAGS_ERROR_ARGUMENT, "mean and std out of range for float16");
        scale = w->scale;
    }
    if (p->pixels != p->to)
        loader_store_pixels(c, p, scale, p->to);
    return BAGS_OK;
}

bags_code bagi_loader_store_image(loader_worker *w, const loader_column *c,
    const bags_load_item *item, const bags_value *value, loader_part *part,
    bags_error *err) {
    loader_image p;
    bool staged = false;
    uint64_t random = item->random;
    memset(&p, 0, sizeof p);
    p.to = part->data.data + part->used.size;
    p.image.depth = 8;
    p.image.dtype = BAGS_DTYPE_UINT8;
    p.flip_x = loader_chance(&random, c->given.flip_x);
    p.flip_y = loader_chance(&random, c->given.flip_y);
    if (c->on_device)
        FORMAT_TRY(loader_stage_image(
            w, c, item, (size_t)part->used.items, &random, &p, &staged, err));
    if (!staged)
        FORMAT_TRY(loader_make_image(w, c, item, value, &random, &p, err));
    if (!c->matrix)
        return BAGS_OK;
    if (!c->by_matrix)
        loader_make_matrix(c, item, &p);
    return loader_invert_matrix(c, &p, w->matrix, err);
}
