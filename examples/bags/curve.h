/*
 * curve.h - read numbers of a sequence as float64, for the curves on the page. Used by
 * viewer.c and by `bags view --live`.
 */
#ifndef BAGS_CURVE_H
#define BAGS_CURVE_H

#include "formats/values.h"

#define CURVE_ELEMENTS 64     /* per item */
#define CURVE_NUMBERS 4000000 /* in total */

/* Get the numbers in a value. False if it has none, or too many elements. */
static inline bool curve_numbers(
    const bags_value *value, double out[CURVE_ELEMENTS], size_t *count) {
    bags_dtype dtype = value->kind == BAGS_KIND_ARRAY ? value->dtype : BAGS_DTYPE_NONE;
    size_t size = bags_dtype_size(dtype);
    *count = 1;
    if (value->kind == BAGS_KIND_UINT)
        out[0] = (double)value->uint;
    else if (value->kind == BAGS_KIND_INT)
        out[0] = (double)value->sint;
    if (value->kind == BAGS_KIND_UINT || value->kind == BAGS_KIND_INT)
        return true;
    if (!size || dtype > BAGS_DTYPE_FLOAT64 || value->size / size > CURVE_ELEMENTS)
        return false;
    *count = value->size / size;
    for (size_t i = 0; i < *count; i++) {
        const unsigned char *at = (const unsigned char *)value->data + i * size;
        uint64_t bits = bags_load_bytes(at, size, !bags_little_endian());
        uint64_t sign = dtype >= BAGS_DTYPE_INT8 ? UINT64_C(1) << (8 * size - 1) : 0;
        out[i] = dtype >= BAGS_DTYPE_FLOAT16 ? format_real(bits, size)
                 : sign                      ? (double)(int64_t)((bits ^ sign) - sign)
                                             : (double)bits;
    }
    return true;
}

/*
 * Read the items start, start + step, ... below stop of a sequence. *out grows, and
 * receives the number of elements in each item followed by all elements, everything as
 * float64; *size is how many numbers were stored. Returns the code of bags_reader_get,
 * BAGS_ERROR_TYPE if items are not numbers or vectors of one length, or
 * BAGS_ERROR_LIMIT.
 */
static inline bags_code curve_read(const bags_reader *reader, uint64_t index,
    size_t field, uint64_t start, uint64_t stop, uint64_t step, bags_row *row,
    bags_buffer *scratch, bags_buffer *out, size_t *size, bags_error *err) {
    bags_select select = bags_select_slice(field, start, stop, step);
    size_t elements = 0, used = 1;
    bags_code code = bags_reader_get(reader, index, &select, 1, row, err);
    for (size_t i = 0; !code && i < bags_row_length(row, 0); i++) {
        double numbers[CURVE_ELEMENTS];
        size_t count = 0;
        bags_value value;
        code = bags_row_value(row, 0, i, scratch, &value, err);
        if (code)
            break;
        if (!curve_numbers(&value, numbers, &count) || (i > 0 && count != elements))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "items are not numbers, or vectors of one length up to %d",
                CURVE_ELEMENTS);
        if (used + count > CURVE_NUMBERS)
            return bags_fail(
                err, BAGS_ERROR_LIMIT, "more than %d numbers", CURVE_NUMBERS);
        elements = count;
        code = bags_buffer_reserve(out, (used + count) * sizeof(double), err);
        if (!code)
            memcpy(out->data + used * sizeof(double), numbers, count * sizeof(double));
        used += count;
    }
    if (!code)
        code = bags_buffer_reserve(out, sizeof(double), err);
    if (code)
        return code;
    double first = (double)elements;
    memcpy(out->data, &first, sizeof first);
    *size = used;
    return BAGS_OK;
}

#endif /* BAGS_CURVE_H */
