/*
 * opening.c - opens a loader: checks options and fields, plans each field, and
 * allocates memory. It reads nothing.
 */
#include "ring.h"

#include "order.h"
#include "values.h"

#include <float.h>
#include <string.h>

#define LOADER_MAX_THREADS 1024

void *bagi_loader_allocate(bags_loader *l, size_t count, size_t size, bags_error *err) {
    return format_block_add(&l->blocks, l->options.allocator, count, size, err);
}

/* ---- fields ---- */

/* Choose the tensor for a type's values when no options are set. Returns the type's
 * dtype, or NONE if it states none. */
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
    for (size_t i = 1; array && i < type->count && stacked; i++) /* -1: any length */
        stacked = bags_type_number(type, i, &out->shape[out->dims++]);
    out->dims = stacked ? out->dims : 0;
    if (stacked) {
        out->form = LOADER_FORM_STACKED;
        out->dtype = dtype;
    }
    return dtype;
}

/* True if values of both types can share one tensor. */
static bool loader_is_same_form(const loader_column *a, const loader_column *b) {
    return a->form == b->form && a->dtype == b->dtype && a->dims == b->dims &&
           !memcmp(a->shape, b->shape, a->dims * sizeof *a->shape);
}

bags_code bagi_loader_fail_field(
    const loader_column *c, bags_code code, const char *what, bags_error *err) {
    return bags_fail(err, code, "%s: field \"%.200s\": %s", bags_path_tail(c->path),
        c->given.name, what);
}

bool bagi_loader_is_video(const bags_loader *l, const bags_type *type) {
    return l->options.videos && !type->sequence &&
           (bags_view_is(type->name, "mp4") || bags_view_is(type->name, "webm"));
}

/* Find a field in all datasets. */
static bags_code loader_find_sources(
    bags_loader *l, loader_column *c, bags_error *err) {
    for (size_t d = 0; d < l->count; d++) {
        loader_source *s = &c->sources[d];
        loader_column other;
        size_t count;
        FORMAT_TRY(bags_reader_field(l->readers[d], c->given.name, &s->field, err));
        const bags_type *type = bags_reader_type(l->readers[d], s->field);
        s->compressed = bags_view_is(type->name, "zstd");
        (void)loader_classify(type, &other);
        if (d == 0) {
            c->sequence = type->sequence;
            c->form = other.form;
            c->dtype = other.dtype;
            c->dims = other.dims;
            memcpy(c->shape, other.shape, sizeof c->shape);
            /* This name lives as long as the reader. */
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
        if (bagi_loader_is_video(l, type))
            s->kind = LOADER_BLOB_VIDEO;
    }
    return BAGS_OK;
}

/* Find the sources whose blobs can be copied verbatim into a planned column's
 * tensor. */
static void loader_find_raw(const bags_loader *l, loader_column *c) {
    for (size_t d = 0; d < l->count; d++) {
        const bags_type *type = bags_reader_type(l->readers[d], c->sources[d].field);
        loader_column stored;
        (void)loader_classify(type, &stored);
        c->sources[d].raw = bags_view_is(type->name, "array") && !c->given.decode &&
                            !c->image && !c->center && bags_little_endian() &&
                            stored.form == LOADER_FORM_STACKED &&
                            loader_is_same_form(&stored, c);
    }
}

/* Check an image field's random ranges, and set the defaults. */
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
        return bagi_loader_fail_field(c, BAGS_ERROR_ARGUMENT, message, err);
    }
    if (!(g->area.high > 0))
        g->area = area;
    if (!(g->aspect.high > 0))
        g->aspect = aspect;
    return BAGS_OK;
}

static bool loader_is_range(bags_interval of) {
    return loader_is_set(of.low) || loader_is_set(of.high);
}

/* Check a field's options, and set the defaults. */
static bags_code loader_check_field(
    const bags_loader *l, loader_column *c, bags_load_field *g, bags_error *err) {
    bool image = c->image, is_half = image && g->dtype == BAGS_DTYPE_FLOAT16;
    bool is_float = g->dtype == BAGS_DTYPE_FLOAT32 || is_half;
    bool is_deep = image && g->dtype == BAGS_DTYPE_UINT16;
    bool has_fill =
        g->warp && (g->warp->fill[0] || g->warp->fill[1] || g->warp->fill[2]);
    bool has_side = g->width && g->height && g->width <= LOADER_MAX_SIDE &&
                    g->height <= LOADER_MAX_SIDE;
    bool has_scale = false, is_center = g->crop == BAGS_CROP_CENTER;
    bool has_exif = !g->decode,
         has_ranges = loader_is_range(g->area) || loader_is_range(g->aspect);
    bool has_flip = loader_is_set(g->flip_x) || loader_is_set(g->flip_y);
    c->by_matrix = g->warp || g->filter == BAGS_FILTER_NEAREST;
    c->draws = g->warp || g->jitter || has_ranges || g->flip_x > 0 || g->flip_y > 0;
    for (size_t i = 0; i < l->count; i++)
        has_exif = has_exif && c->sources[i].kind != LOADER_BLOB_OTHER;
    for (size_t i = 0; i < 3; i++)
        has_scale = has_scale || loader_is_set((double)g->mean[i]) ||
                    loader_is_set((double)g->std[i]);
    const format_rule rules[] = {
        {!image && (has_scale || has_ranges || g->channels || g->crop || g->resize ||
                       g->filter || has_flip || g->warp || g->jitter || g->draw ||
                       g->nchw || g->scaled || g->orient || g->matrix),
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
        {g->matrix && g->warp && g->warp->perspective > 0,
            "matrix and perspective are mutually exclusive"},
        {g->scaled && c->by_matrix, "scaled excludes warp and BAGS_FILTER_NEAREST"},
        {g->orient && !has_exif,
            "orient needs fields of JPEG or PNG, and options.images with their "
            "functions"},
        {image && g->dtype && g->dtype != BAGS_DTYPE_UINT8 && !is_float && !is_deep,
            "the dtype of an image must be uint8, uint16, float16 or float32"},
        {is_deep && (g->filter != BAGS_FILTER_NEAREST || g->channels > 1),
            "images of uint16 need BAGS_FILTER_NEAREST and channels 1"},
        {is_deep && (g->jitter || g->draw || has_fill),
            "images of uint16 exclude jitter, draw and a fill colour"},
        {has_scale && !is_float, "mean and std need float32 or, for images, float16"},
        {!bagi_loader_is_scale(g->mean, g->std),
            "mean and std must be finite, and std at least 0"},
        {!g->elements != !(g->element_mean || g->element_std),
            "elements and element_mean or element_std must be set together"},
        {image && g->elements, "element_mean and element_std are not of images"},
        {g->elements && !is_float && g->dtype != BAGS_DTYPE_FLOAT64,
            "mean and std need dtype float32 or float64"},
        {(g->stride || g->window) && !c->sequence, "a window needs a sequence"},
        {g->stride && !g->window, "stride without window"},
        {g->window > UINT32_MAX || g->stride > UINT32_MAX, "window too large"},
        {g->window > 0 && l->options.frames,
            "window and frames are mutually exclusive; use offsets"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return bagi_loader_fail_field(c, BAGS_ERROR_ARGUMENT, rules[i].what, err);
    g->stride = g->stride ? g->stride : 1;
    if (!image)
        return BAGS_OK;
    if (!g->channels)
        g->channels = is_deep ? 1 : 3;
    g->dtype = g->dtype ? g->dtype : BAGS_DTYPE_UINT8;
    if (!g->resize)
        g->resize = g->width > g->height ? g->width : g->height;
    return loader_check_draws(c, g, err);
}

/* Reject options that no value of the field's type can satisfy. */
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
                        : c->image ? stored == loader_stored_dtype(c)
                                   : bagi_loader_is_convertible(dtype, stored);
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

/* Plan a field's tensors. Its options are valid. */
static void loader_plan_column(const bags_loader *l, loader_column *c) {
    const bags_load_field *g = &c->given;
    if (c->image) {
        c->on_device = l->options.device != NULL && g->dtype != BAGS_DTYPE_UINT16;
        c->by_device = c->on_device && !c->by_matrix && !g->jitter && !g->draw &&
                       !g->decode && !g->scaled;
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
    c->span = g->window && !c->items ? (g->window - 1) * g->stride + 1 : 0;
    c->ragged = c->sequence && !g->window && !c->items;
}

/* Copy each element's mean and standard deviation. */
static bags_code loader_plan_center(bags_loader *l, loader_column *c, bags_error *err) {
    const bags_load_field *g = &c->given;
    size_t count =
        c->form == LOADER_FORM_STACKED ? c->item_size / bags_dtype_size(c->dtype) : 0;
    char message[120];
    if (count != g->elements) {
        (void)snprintf(message, sizeof message,
            count ? "mean and std have %" PRIu64 " elements (a value has %" PRIu64 ")"
                  : "mean and std need numbers, or arrays of one shape",
            (uint64_t)g->elements, (uint64_t)count);
        return bagi_loader_fail_field(c, BAGS_ERROR_ARGUMENT, message, err);
    }
    c->center = (double *)bagi_loader_allocate(l, count, 2 * sizeof *c->center, err);
    if (!c->center)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        double mean = g->element_mean ? g->element_mean[i] : 0;
        double std = g->element_std ? g->element_std[i] : 1;
        if (!(mean >= -DBL_MAX && mean <= DBL_MAX && std >= 0 && std <= DBL_MAX))
            return bagi_loader_fail_field(c, BAGS_ERROR_ARGUMENT,
                "mean and std must be finite, and std at least 0", err);
        c->center[2 * i] = mean;
        c->center[2 * i + 1] = std > 0 ? std : 1;
    }
    return BAGS_OK;
}

/* Plan a field: its tensors, and where to find its values in each dataset. */
static bags_code loader_column_open(
    bags_loader *l, loader_column *c, const bags_load_field *given, bags_error *err) {
    bags_load_field *g = &c->given;
    *g = *given;
    c->path = bags_reader_path(l->readers[0]);
    if (!given->name)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a field without a name");
    c->sources =
        (loader_source *)bagi_loader_allocate(l, l->count, sizeof *c->sources, err);
    if (!c->sources)
        return BAGS_ERROR_MEMORY;
    c->image = given->width || given->height;
    FORMAT_TRY(loader_find_sources(l, c, err));
    for (loader_column *before = l->columns; before < c; before++)
        if (!strcmp(before->given.name, g->name))
            return bagi_loader_fail_field(c, BAGS_ERROR_FIELD, "listed twice", err);
    FORMAT_TRY(loader_check_field(l, c, g, err));
    FORMAT_TRY(bagi_frames_plan(l, c, err));
    loader_plan_column(l, c);
    FORMAT_TRY(loader_check_types(l, c, err));
    if (c->image && g->dtype != BAGS_DTYPE_UINT8 && g->dtype != BAGS_DTYPE_UINT16) {
        c->scale =
            (float *)bagi_loader_allocate(l, 256 * g->channels, sizeof(float), err);
        if (!c->scale)
            return BAGS_ERROR_MEMORY;
        if (!bagi_loader_make_scale(g->dtype, g->channels, g->mean, g->std, c->scale))
            return bagi_loader_fail_field(
                c, BAGS_ERROR_ARGUMENT, "mean and std out of range for float16", err);
    }
    l->windowed = l->windowed || c->span;
    l->calls = l->calls || c->video || g->decode || g->draw;
    if (c->form == LOADER_FORM_STACKED &&
        !bags_array_size(c->dtype, c->dims, c->shape, &c->item_size))
        return bagi_loader_fail_field(
            c, BAGS_ERROR_LIMIT, "batch too large for the address space", err);
    if (g->elements)
        FORMAT_TRY(loader_plan_center(l, c, err));
    loader_find_raw(l, c);
    return BAGS_OK;
}

size_t bagi_loader_add_column(bags_loader *l, const loader_column *c,
    const char *suffix, bags_dtype dtype, bags_error *err) {
    loader_column *out = &l->columns[l->column_count];
    size_t size = strlen(c->given.name) + strlen(suffix) + 1;
    char *name = (char *)bagi_loader_allocate(l, size, 1, err);
    if (!name)
        return 0;
    (void)snprintf(name, size, "%s%s", c->given.name, suffix);
    for (size_t k = 0; k < l->field_count; k++)
        if (!strcmp(l->columns[k].given.name, name)) {
            bagi_loader_fail_field(&l->columns[k], BAGS_ERROR_FIELD,
                "has the name of a mask or matrix", err);
            return 0;
        }
    out->given.name = name;
    out->given.window = c->given.window;
    out->path = c->path;
    out->ragged = c->ragged;
    out->form = LOADER_FORM_STACKED;
    out->dtype = dtype;
    out->item_size = bags_dtype_size(dtype);
    return l->column_count++;
}

static bags_code loader_add_matrices(bags_loader *l, bags_error *err) {
    for (size_t i = 0; i < l->field_count; i++) {
        loader_column *c = &l->columns[i];
        if (!c->given.matrix)
            continue;
        c->matrix = bagi_loader_add_column(l, c, "_matrix", BAGS_DTYPE_FLOAT64, err);
        if (!c->matrix)
            return err->code;
        loader_column *out = &l->columns[c->matrix];
        out->dims = 2;
        out->shape[0] = 2;
        out->shape[1] = 3;
        out->item_size *= 6;
    }
    return BAGS_OK;
}

/* Without a list, load all fields of the first dataset. The others must have them, too.
 * With frames, the clock is the only sequence. */
static bags_code loader_open_columns(bags_loader *l, bags_error *err) {
    size_t count;
    const bags_field *fields = bags_reader_fields(l->readers[0], &count);
    const bags_load_field *given = l->options.fields;
    count = given ? l->options.field_count : count;
    l->columns = (loader_column *)bagi_loader_allocate(
        l, 3 * count, sizeof *l->columns, err); /* including masks and matrices */
    if (!l->columns)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        loader_column *c = &l->columns[l->field_count];
        bags_load_field whole;
        memset(&whole, 0, sizeof whole);
        if (!given)
            whole.name = fields[i].name;
        const bags_type *type = given ? NULL : bags_reader_type(l->readers[0], i);
        if (type && l->frames && (type->sequence || bagi_loader_is_video(l, type)) &&
            strcmp(whole.name, l->frames->given.clock))
            continue;
        FORMAT_TRY(loader_column_open(l, c, given ? &given[i] : &whole, err));
        l->column_count = ++l->field_count;
    }
    if (l->frames)
        FORMAT_TRY(bagi_frames_add_masks(l, err));
    FORMAT_TRY(loader_add_matrices(l, err));
    bool on_device = !l->options.device;
    for (size_t i = 0; i < l->field_count; i++)
        on_device = on_device || l->columns[i].on_device;
    if (!on_device)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "device needs a field with width and height");
    if (l->options.window_start && !l->windowed)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "window_start needs a field with a window");
    return BAGS_OK;
}

/* Add the tensors that bags_tokens_open has determined. */
static bags_code loader_open_tokens(bags_loader *l, bags_error *err) {
    const format_tokens *t = l->tokens;
    if (t->packed && l->options.skip_damaged)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "skip_damaged and packed rows are mutually exclusive");
    l->columns =
        (loader_column *)bagi_loader_allocate(l, t->count, sizeof *l->columns, err);
    if (!l->columns)
        return BAGS_ERROR_MEMORY;
    l->column_count = t->count;
    for (size_t i = 0; i < t->count; i++) {
        loader_column *c = &l->columns[i];
        c->given.name = t->tensors[i].name;
        c->path = bags_reader_path(l->readers[0]);
        c->form = LOADER_FORM_STACKED;
        c->dtype = t->tensors[i].dtype;
        if (!bagi_loader_is_convertible(c->dtype, t->tensors[i].stored))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.100s\": tokens of %s cannot become %s",
                bags_path_tail(c->path), c->given.name,
                bags_dtype_name(t->tensors[i].stored), bags_dtype_name(c->dtype));
        c->ragged = t->tensors[i].length == 0;
        c->dims = !c->ragged;
        c->shape[0] = t->tensors[i].length;
        c->item_size =
            bags_dtype_size(c->dtype) * (c->ragged ? 1 : (size_t)t->tensors[i].length);
    }
    if (!t->packed)
        return BAGS_OK;
    l->packer = (format_packer *)bagi_loader_allocate(l, 1, sizeof *l->packer, err);
    if (!l->packer)
        return BAGS_ERROR_MEMORY;
    l->packer->pieces = l->packer->rows = bags_buffer_of(l->options.allocator);
    return BAGS_OK;
}

/* ---- options ---- */

/* Conflicting options are errors, never repaired silently. Each thread needs a slot in
 * addition to the slots that the caller holds; otherwise no thread could claim one. */
static bags_code loader_check_options(bags_loader *l, bags_error *err) {
    bags_loader_options *o = &l->options;
    const format_rule rules[] = {
        {l->count == 0, "no dataset"},
        {o->threads < BAGS_THREADS_NONE || o->threads > LOADER_MAX_THREADS,
            "threads out of range (-1 to 1024)"},
        {o->ahead > LOADER_MAX_THREADS || o->hold > LOADER_MAX_THREADS,
            "ahead or hold out of range (at most 1024)"},
        {o->threads == BAGS_THREADS_NONE && o->ahead,
            "BAGS_THREADS_NONE and ahead are mutually exclusive"},
        {o->window_start < BAGS_WINDOW_RANDOM,
            "window_start out of range (-1 to 2^63-1)"},
        {!o->fields && o->field_count, "field_count without fields"},
        {o->fields && !o->field_count, "fields without field_count"},
        {o->tokens && (o->fields || o->window_start),
            "tokens and fields are mutually exclusive"},
        {o->frames && o->tokens, "frames and tokens are mutually exclusive"},
        {o->tokens && o->device, "tokens and device are mutually exclusive"},
        {o->device_videos && (!o->device || !o->videos),
            "device_videos needs device and videos"},
        {o->frames && o->window_start,
            "frames and window_start are mutually exclusive"},
    };
    FORMAT_TRY(FORMAT_CHECK(rules, "", err));
    if (o->ranks ? o->rank >= o->ranks : o->rank)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "rank out of range (%" PRIu32 ", ranks %" PRIu32 ")", o->rank, o->ranks);
    o->batch = o->batch ? o->batch : 32;
    o->ranks = o->ranks ? o->ranks : 1;
    size_t ahead = o->ahead ? o->ahead : 2;
    l->thread_count = o->threads > 0 ? (size_t)o->threads : gate_processors();
    if (l->thread_count > LOADER_MAX_THREADS)
        l->thread_count = LOADER_MAX_THREADS;
    if (o->threads == BAGS_THREADS_NONE)
        l->thread_count = ahead = 0;
    l->worker_count = l->thread_count ? l->thread_count : 1;
    l->slot_count = l->thread_count + ahead + o->hold + 1;
    return BAGS_OK;
}

/* A sampler defines its own order: only order.seed is used. */
static bags_code loader_check_sampler(const bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
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
    return FORMAT_CHECK(rules, "", err);
}

/* Compute the number of batches per epoch, and of datapoints in this rank's slice. */
static bags_code loader_count_batches(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    uint64_t most = l->order.length < o->batch ? l->order.length : o->batch;
    l->batches = l->order.length / o->batch;
    if (!o->drop_last && l->order.length % o->batch)
        l->batches++;
    if (l->tokens && l->tokens->packed) {
        l->batches = l->order.length ? UINT64_MAX : 0; /* unknown */
        most = o->batch;
        if (l->order.length / FORMAT_PACK_BLOCK > UINT32_MAX)
            return bags_fail(err, BAGS_ERROR_LIMIT, "too many documents to be packed");
    }
    most = (most + o->ranks - 1) / o->ranks;
    if (most > SIZE_MAX / sizeof(bags_pick))
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "batch too large for the address space");
    l->slice_most = (size_t)most;
    if (l->batches == 0 && l->order.length)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "drop_last leaves no batch (%" PRIu64 " datapoints, batches of "
            "%" PRIu32 ")",
            l->order.length, o->batch);
    return BAGS_OK;
}

uint64_t bagi_loader_units(const bags_loader *l, size_t dataset) {
    return l->tokens   ? l->tokens->units[dataset]
           : l->frames ? bagi_frames_length(l->frames, dataset)
                       : bags_reader_length(l->readers[dataset]);
}

/* Weights and selections need not outlive this call: the order keeps shares computed
 * from the weights, and a copy of the selections. With frames, selections choose
 * episodes. */
static bags_code loader_open_order(bags_loader *l, bags_error *err) {
    const bags_loader_options *o = &l->options;
    bags_order_options order = o->order;
    uint64_t *lengths =
        (uint64_t *)bagi_loader_allocate(l, l->count, sizeof *lengths, err);
    if (!lengths)
        return BAGS_ERROR_MEMORY;
    if (l->frames) {
        FORMAT_TRY(bagi_frames_open(l, err));
        order.selections = NULL;
        order.take = 0;
    }
    for (size_t i = 0; i < l->count; i++)
        lengths[i] = bagi_loader_units(l, i);
    FORMAT_TRY(
        bags_order_init(&l->order, lengths, l->count, &order, o->allocator, err));
    if (o->sampler) {
        FORMAT_TRY(loader_check_sampler(l, err));
        l->order.length = o->sampler_length;
    }
    l->options.order.weights = NULL;
    l->options.order.selections = NULL;
    return loader_count_batches(l, err);
}

/* Fail if a full batch's tensor exceeds the address space. */
static bags_code loader_check_sizes(const bags_loader *l, bags_error *err) {
    size_t most = l->slice_most ? l->slice_most : 1;
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        uint64_t items = c->given.window ? c->given.window : 1;
        if (c->item_size && (SIZE_MAX >> 1) / c->item_size / items < most)
            return bagi_loader_fail_field(
                c, BAGS_ERROR_LIMIT, "batch too large for the address space", err);
    }
    return BAGS_OK;
}

/* ---- memory ---- */

static bags_code loader_open_slot(bags_loader *l, loader_slot *s, bags_error *err) {
    const bags_loader_options *o = &l->options;
    size_t columns = l->column_count;
    bags_buffer empty = bags_buffer_of(o->allocator);
    s->picks =
        (bags_pick *)bagi_loader_allocate(l, l->slice_most, sizeof *s->picks, err);
    s->tensors =
        (bags_tensor *)bagi_loader_allocate(l, columns, sizeof *s->tensors, err);
    s->parts = (loader_part *)bagi_loader_allocate(l, columns, sizeof *s->parts, err);
    if (l->frames)
        s->frames =
            (uint64_t *)bagi_loader_allocate(l, l->slice_most, sizeof *s->frames, err);
    if (!s->picks || !s->tensors || !s->parts || (l->frames && !s->frames))
        return BAGS_ERROR_MEMORY;
    s->pieces = s->rows = empty;
    for (size_t i = 0; i < columns; i++) {
        loader_part *p = &s->parts[i];
        p->offsets = p->ends = p->values = p->shapes = empty;
        p->data = bags_buffer_of(o->tensors ? o->tensors : o->allocator);
    }
    return BAGS_OK;
}

/* Prepare a thread's part of making tensors on a GPU. */
static bags_code loader_open_device(bags_loader *l, loader_worker *w, bags_error *err) {
    w->staged = (loader_staged *)bagi_loader_allocate(
        l, l->column_count, sizeof *w->staged, err);
    if (!w->staged)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->column_count; i++)
        w->staged[i].images = w->staged[i].offsets = w->staged[i].blobs =
            w->staged[i].frames = w->staged[i].which =
                bags_buffer_of(l->options.allocator);
    w->decoder = l->options.device->open(l->options.device->cuda, err);
    return w->decoder ? BAGS_OK : err->code;
}

static bags_code loader_open_worker(bags_loader *l, loader_worker *w, bags_error *err) {
    size_t columns = l->column_count;
    bags_buffer empty = bags_buffer_of(l->options.allocator);
    w->value = w->inside = w->pixels = w->converted = empty;
    w->resized = w->resampling = w->indices = w->announced = empty;
    size_t items = l->frames ? l->frames->items : 0;
    w->loader = l;
    w->selects = (bags_select *)bagi_loader_allocate(
        l, columns + items, sizeof *w->selects, err);
    w->targets =
        (unsigned char **)bagi_loader_allocate(l, columns, sizeof *w->targets, err);
    if (!w->selects || !w->targets)
        return BAGS_ERROR_MEMORY;
    if (l->options.device)
        FORMAT_TRY(loader_open_device(l, w, err));
    if (!l->frames)
        return BAGS_OK;
    w->chosen = (uint64_t *)bagi_loader_allocate(l, items, sizeof *w->chosen, err);
    w->outside = (bool *)bagi_loader_allocate(l, items, sizeof *w->outside, err);
    w->checked = (unsigned char *)bagi_loader_allocate(
        l, bagi_frames_checked_size(l->frames), 1, err);
    return w->chosen && w->outside && w->checked ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code loader_open_ring(bags_loader *l, bags_error *err) {
    l->slots =
        (loader_slot *)bagi_loader_allocate(l, l->slot_count, sizeof *l->slots, err);
    l->workers = (loader_worker *)bagi_loader_allocate(
        l, l->worker_count, sizeof *l->workers, err);
    if (!l->slots || !l->workers)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->slot_count; i++)
        FORMAT_TRY(loader_open_slot(l, &l->slots[i], err));
    for (size_t i = 0; i < l->worker_count; i++)
        FORMAT_TRY(loader_open_worker(l, &l->workers[i], err));
    return BAGS_OK;
}

/* Prepare, in this order: datasets, fields, datapoint order, memory. */
bags_code bagi_loader_prepare(
    bags_loader *l, const bags_reader *const *readers, bags_error *err) {
    FORMAT_TRY(loader_check_options(l, err));
    l->readers =
        (const bags_reader **)bagi_loader_allocate(l, l->count, sizeof(void *), err);
    if (!l->readers)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < l->count; i++)
        l->readers[i] = readers[i];
    l->tokens = (const format_tokens *)(const void *)l->options.tokens;
    for (size_t i = 0; l->tokens && i < l->count; i++)
        if (l->count != l->tokens->dataset_count || l->tokens->readers[i] != readers[i])
            return bags_fail(
                err, BAGS_ERROR_ARGUMENT, "the tokens are of other readers");
    if (l->options.frames) {
        l->frames = (loader_frames *)bagi_loader_allocate(l, 1, sizeof *l->frames, err);
        if (!l->frames)
            return BAGS_ERROR_MEMORY;
        l->frames->given = *l->options.frames;
        FORMAT_TRY(bagi_frames_start(l, err));
    }
    FORMAT_TRY(l->tokens ? loader_open_tokens(l, err) : loader_open_columns(l, err));
    FORMAT_TRY(loader_open_order(l, err));
    FORMAT_TRY(loader_check_sizes(l, err));
    return loader_open_ring(l, err);
}

static void loader_free_slot(const bags_loader *l, loader_slot *s) {
    const bags_loader_device *device = l->options.device;
    for (size_t i = 0; s->parts && i < l->column_count; i++) {
        loader_part *p = &s->parts[i];
        if (p->on_device)
            device->give(device->cuda, p->on_device);
        bags_buffer_free(&p->data);
        bags_buffer_free(&p->offsets);
        bags_buffer_free(&p->ends);
        bags_buffer_free(&p->values);
        bags_buffer_free(&p->shapes);
    }
    bags_buffer_free(&s->pieces);
    bags_buffer_free(&s->rows);
}

static void loader_free_worker(loader_worker *w) {
    if (w->videos)
        w->loader->options.videos->close(w->videos);
    bagi_loader_free_staged(w);
    bags_row_free(&w->row);
    bags_row_free(&w->times);
    bags_buffer_free(&w->value);
    bags_buffer_free(&w->inside);
    bags_buffer_free(&w->pixels);
    bags_buffer_free(&w->converted);
    bags_buffer_free(&w->resized);
    bags_buffer_free(&w->resampling);
    bags_buffer_free(&w->indices);
    bags_buffer_free(&w->announced);
}

/* Free the memory of bagi_loader_allocate last, because the buffers live in it. */
void bagi_loader_free(bags_loader *l) {
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        loader_free_slot(l, &l->slots[i]);
    for (size_t i = 0; l->workers && i < l->worker_count; i++)
        loader_free_worker(&l->workers[i]);
    if (l->packer) {
        bags_buffer_free(&l->packer->pieces);
        bags_buffer_free(&l->packer->rows);
    }
    bags_row_free(&l->packer_row);
    bags_order_free(&l->order);
    if (l->frames)
        bags_order_free(&l->frames->episodes);
    format_blocks_free(l->blocks);
    format_state_close(l);
}
