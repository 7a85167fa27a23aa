/*
 * convert.c - turns blobs into tensors: decodes and checks a datapoint's item (a
 * number, array, text or video), and appends it to its field's tensor as elements,
 * bytes or a value. crop.c does the same for images.
 */
#include "ring.h"

#include "values.h"

#include <math.h>

/* ---- elements ---- */

/* Allowed conversions:
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

/* Load an integer as 64 bits, in two's complement. */
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

/* Store an integer. False if the dtype cannot hold it. */
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

/* True if the float dtype represents this integer, or its negative, exactly. */
static bool loader_is_exact(bags_dtype dtype, uint64_t whole) {
    int digits = dtype == BAGS_DTYPE_FLOAT32 ? 24 : 53;
    while (whole >> digits && whole % 2 == 0)
        whole /= 2;
    return whole >> digits == 0;
}

/* Store a number. False if the dtype cannot hold it. */
static bool loader_store_real(bags_dtype dtype, unsigned char *to, double value) {
    float narrow = (float)value;
    if (dtype == BAGS_DTYPE_FLOAT64)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &narrow, sizeof narrow);
    return dtype == BAGS_DTYPE_FLOAT64 || !isinf(narrow) || isinf(value);
}

/* Convert tokens, uint16 or uint32, to 64 bits, where all of them fit, several times as
 * fast as one by one. False for other dtypes. */
static bool loader_widen(bags_dtype to_dtype, unsigned char *to, bags_dtype from_dtype,
    const unsigned char *from, size_t count) {
    bool wide = to_dtype == BAGS_DTYPE_INT64 || to_dtype == BAGS_DTYPE_UINT64;
    if (wide && from_dtype == BAGS_DTYPE_UINT16)
        for (size_t i = 0; i < count; i++) {
            uint16_t two;
            memcpy(&two, from + 2 * i, sizeof two);
            uint64_t eight = two;
            memcpy(to + 8 * i, &eight, sizeof eight);
        }
    else if (wide && from_dtype == BAGS_DTYPE_UINT32)
        for (size_t i = 0; i < count; i++) {
            uint32_t four;
            memcpy(&four, from + 4 * i, sizeof four);
            uint64_t eight = four;
            memcpy(to + 8 * i, &eight, sizeof eight);
        }
    else
        return false;
    return true;
}

bool bagi_loader_is_convertible(bags_dtype to, bags_dtype from) {
    return to == from || (loader_is_number(to) && loader_is_number(from) &&
                             (loader_is_whole(from) || !loader_is_whole(to)));
}

bags_code bagi_loader_convert(bags_dtype to_dtype, unsigned char *to,
    bags_dtype from_dtype, const unsigned char *from, size_t count, bags_error *err) {
    size_t to_size = bags_dtype_size(to_dtype);
    size_t from_size = bags_dtype_size(from_dtype);
    bool fits = true, whole = loader_is_whole(from_dtype);
    if (to_dtype == from_dtype) {
        if (count)
            memcpy(to, from, count * to_size);
        return BAGS_OK;
    }
    if (!bagi_loader_is_convertible(to_dtype, from_dtype))
        return bags_fail(err, BAGS_ERROR_TYPE, "%s cannot become %s",
            bags_dtype_name(from_dtype), bags_dtype_name(to_dtype));
    if (loader_widen(to_dtype, to, from_dtype, from, count))
        return BAGS_OK;
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

/* Find the elements of a number or an array. NONE: the value is neither. */
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

/* ---- appending ---- */

/* Make an item by computing (x - mean) / std for each element. */
static bags_code loader_store_centered(loader_worker *w, const loader_column *c,
    bags_dtype dtype, const unsigned char *from, unsigned char *to, bags_error *err) {
    size_t count = c->given.elements, size = bags_dtype_size(c->dtype);
    FORMAT_TRY(bags_buffer_reserve(&w->converted, count * sizeof(double), err));
    double *values = (double *)(void *)w->converted.data;
    FORMAT_TRY(bagi_loader_convert(
        BAGS_DTYPE_FLOAT64, w->converted.data, dtype, from, count, err));
    for (size_t i = 0; i < count; i++) {
        double value = (values[i] - c->center[2 * i]) / c->center[2 * i + 1];
        if (!loader_store_real(c->dtype, to + i * size, value))
            return bags_fail(err, BAGS_ERROR_VALUE,
                "element %" PRIu64 ": (x - mean) / std out of range for %s (%.17g)",
                (uint64_t)i, bags_dtype_name(c->dtype), value);
    }
    return BAGS_OK;
}

/* Make a stacked field's item from a value. */
static bags_code loader_store_stacked(loader_worker *w, const loader_column *c,
    const bags_value *value, unsigned char *to, bags_error *err) {
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
    if (c->center)
        return loader_store_centered(w, c, dtype, from, to, err);
    return bagi_loader_convert(
        c->dtype, to, dtype, from, c->item_size / bags_dtype_size(c->dtype), err);
}

/* Append an item of any kind. Its pointers are set when the batch is complete; until
 * then, ends[item] locates its data. */
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
    size_t pad = (0 - p->used.size) % 16, start = p->used.size + pad;
    size_t at = (size_t)p->used.items * sizeof copy;
    FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, pad + copy.size, err));
    FORMAT_TRY(loader_part_push(&p->ends, p->used.items, start, err));
    FORMAT_TRY(loader_part_reserve(&p->values, at, sizeof copy, err));
    for (size_t i = 0; i < copy.dims; i++)
        FORMAT_TRY(loader_part_push(&p->shapes, p->used.dims + i, copy.shape[i], err));
    if (pad)
        memset(p->data.data + p->used.size, 0, pad);
    if (converted)
        FORMAT_TRY(bagi_loader_convert(copy.dtype, p->data.data + start, dtype, from,
            copy.size / bags_dtype_size(copy.dtype), err));
    else if (copy.size)
        memcpy(p->data.data + start, from, copy.size);
    memcpy(p->values.data + at, &copy, sizeof copy);
    p->used.size = start + copy.size;
    p->used.dims += copy.dims;
    return BAGS_OK;
}

/* Append an item of bytes or text, and record where it starts. */
static bags_code loader_store_bytes(
    loader_part *p, const bags_value *value, bags_error *err) {
    if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not bytes or text");
    FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, value->size, err));
    FORMAT_TRY(loader_part_push(&p->ends, p->used.items, p->used.size, err));
    if (value->size)
        memcpy(p->data.data + p->used.size, value->data, value->size);
    p->used.size += value->size;
    return BAGS_OK;
}

/* ---- items ---- */

/* Check a value that may come from the program's own codec: the data it refers to is
 * copied only if size, dtype and shape agree. */
static bags_code loader_check_value(const bags_value *value, bags_error *err) {
    if (value->kind == BAGS_KIND_ARRAY) {
        if (value->dims > BAGS_MAX_DIMS || (value->dims && !value->shape))
            return bags_fail(
                err, BAGS_ERROR_VALUE, "the codec returned an array without a shape");
        FORMAT_TRY(format_array_check(value, err));
    }
    if (value->size && !value->data && value->kind != BAGS_KIND_OBJECT)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "the codec returned a value without data");
    return BAGS_OK;
}

/* Put an item's location in front of an error message. */
FORMAT_COLD static bags_code loader_fail_item(const loader_column *c,
    const bags_load_item *item, bags_code code, bags_error *err) {
    return format_fail_at(item->reader, c->given.name, item->pick.index,
        c->sequence || c->video ? item->item : UINT64_MAX, code, err);
}

static bags_code loader_fail_blobs(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_TYPE,
        "needs the blob inside zstd: set the option `blobs` of "
        "bags_zstd_options");
}

/* Get an item's value from the row. In error messages, the item's position in the slot
 * is replaced by its number in the sequence. */
static bags_code loader_row_value(loader_worker *w, const loader_column *c,
    const bags_load_item *item, size_t place, size_t at, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    bags_code code = bags_row_value(&w->row, place, at, scratch, value, err);
    if (!code || item->item == at)
        return code;
    char front[sizeof err->message];
    int size = snprintf(front, sizeof front,
        "%s: field \"%.200s\": datapoint %" PRIu64 ": item %" PRIu64 ": ",
        bags_path_tail(bags_reader_path(item->reader)), c->given.name, item->pick.index,
        (uint64_t)at);
    if (size < 0 || strncmp(err->message, front, (size_t)size))
        return code;
    memmove(err->message, err->message + size, strlen(err->message) + 1 - (size_t)size);
    return loader_fail_item(c, item, code, err);
}

/* Decode an item of the row with the field's `decode` callback. For zstd fields, the
 * callback receives the inner blob. */
static bags_code loader_call_decode(loader_worker *w, const loader_column *c,
    bags_load_item *item, size_t place, size_t at, bags_value *value, bags_error *err) {
    bags_value inside;
    bags_code code = BAGS_OK;
    if (c->sources[item->pick.dataset].compressed) {
        FORMAT_TRY(loader_row_value(w, c, item, place, at, &w->inside, &inside, err));
        item->blob.data = (const unsigned char *)inside.data;
        item->blob.size = inside.size;
        if (inside.kind != BAGS_KIND_BYTES && inside.kind != BAGS_KIND_UTF8)
            return loader_fail_item(c, item, loader_fail_blobs(err), err);
    }
    code = c->given.decode(c->given.user, item, &w->value, value, err);
    return code ? loader_fail_item(c, item, code, err) : BAGS_OK;
}

/* Get an item's value from the row; zeroed if crop.c decodes the blob. Error messages
 * name the item. */
static bags_code loader_decode_item(loader_worker *w, const loader_column *c,
    bags_load_item *item, size_t place, size_t at, bags_value *value, bags_error *err) {
    memset(value, 0, sizeof *value);
    if (c->given.decode)
        return loader_call_decode(w, c, item, place, at, value, err);
    if (c->image && c->sources[item->pick.dataset].kind != LOADER_BLOB_OTHER)
        return BAGS_OK;
    bags_code code = loader_row_value(w, c, item, place, at, &w->value, value, err);
    if (code == BAGS_ERROR_TYPE && c->form == LOADER_FORM_VALUES)
        *value = bags_blob(item->blob.data, item->blob.size);
    else if (code)
        return code;
    if ((value->kind == BAGS_KIND_BLOB || value->kind == BAGS_KIND_OBJECT) &&
        format_needs_dictionary(
            bags_reader_type(item->reader, item->field), item->blob))
        return loader_fail_item(c, item, loader_fail_blobs(err), err);
    return BAGS_OK;
}

/* Append a value, or the image in a blob, to a tensor. */
static bags_code loader_store(loader_worker *w, const loader_column *c, loader_part *p,
    const bags_load_item *item, const bags_value *value, bags_error *err) {
    FORMAT_TRY(loader_check_value(value, err));
    if (c->form == LOADER_FORM_BYTES)
        return loader_store_bytes(p, value, err);
    if (c->form == LOADER_FORM_VALUES)
        return loader_store_value(c, p, value, item->blob, err);
    FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, c->item_size, err));
    unsigned char *to = p->data.data + p->used.size;
    if (c->image)
        FORMAT_TRY(bagi_loader_store_image(w, c, item, value, p, err));
    else
        FORMAT_TRY(loader_store_stacked(w, c, value, to, err));
    p->used.size += c->item_size;
    return BAGS_OK;
}

bags_code bagi_loader_append_matrix(
    loader_worker *w, const loader_column *c, loader_part *p, bags_error *err) {
    loader_part *to = p - (c - w->loader->columns) + c->matrix;
    if (!c->matrix)
        return BAGS_OK;
    FORMAT_TRY(loader_part_reserve(&to->data, to->used.size, sizeof w->matrix, err));
    memcpy(to->data.data + to->used.size, w->matrix, sizeof w->matrix);
    to->used.size += sizeof w->matrix;
    to->used.items++;
    return BAGS_OK;
}

/* Append a decoded value, or the image in a blob that crop.c decodes. */
bags_code bagi_loader_load_value(loader_worker *w, const loader_column *c,
    loader_part *p, const bags_load_item *item, const bags_value *value,
    bags_error *err) {
    bags_code code = loader_store(w, c, p, item, value, err);
    if (code)
        return loader_fail_item(c, item, code, err);
    p->used.items++;
    return bagi_loader_append_matrix(w, c, p, err);
}

bags_code bagi_loader_load_item(loader_worker *w, const loader_column *c,
    loader_part *p, bags_load_item *item, size_t place, size_t at, bags_error *err) {
    const loader_source *source = &c->sources[item->pick.dataset];
    bags_value value;
    item->blob = bags_row_bytes(&w->row, place, at);
    item->field = source->field;
    w->unwatched += item->blob.size;
    if (source->raw && item->blob.size == c->item_size) {
        FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, c->item_size, err));
        if (c->item_size)
            memcpy(p->data.data + p->used.size, item->blob.data, c->item_size);
        p->used.size += c->item_size;
        p->used.items++;
        return BAGS_OK;
    }
    FORMAT_TRY(loader_decode_item(w, c, item, place, at, &value, err));
    return bagi_loader_load_value(w, c, p, item, &value, err);
}
