/*
 * Values as JSON. Arrays become nested lists, of which the innermost contain the
 * elements along the last dimension; an array without dimensions is one number.
 * If the type does not state the dtype, it is next to the list:
 * {"dtype": "float32", "list": [1, 2]}. A blob that cannot be shown as a value
 * is {"type", "bytes"}, with "error" if it is not a blob of its type.
 */
#include "command.h"

#include "../../formats/private.h"

#include <math.h>

#define PREVIEW 8

/* ---- elements ---- */

bool single_is_shown(double value) {
    char digits[40];
    format_digits(digits, (double)(float)value, true);
    double back = strtod(digits, NULL);
    return !(back < value || back > value);
}

/* JSON has no infinities and no NaN: they become strings. */
static void put_double(text *out, double value, bool is_single) {
    char digits[40];
    if (!isfinite(value)) {
        text_puts(out, isnan(value) ? "\"NaN\""
                       : value > 0  ? "\"Infinity\""
                                    : "\"-Infinity\"");
        return;
    }
    format_digits(digits, value, is_single);
    /* Without a point it would be read as the integer 0. */
    text_puts(out, strcmp(digits, "-0") ? digits : "-0.0");
}

/* "1.5-2j", as Python's complex() reads it. */
static void put_complex(text *out, double real, double imaginary, bool is_single) {
    char parts[2][40];
    format_digits(parts[0], real, is_single);
    format_digits(parts[1], imaginary, is_single);
    text_format(out, "\"%s%s%sj\"", parts[0], parts[1][0] == '-' ? "" : "+", parts[1]);
}

static uint64_t load_bits(const void *at, size_t size) {
    return bags_load(at, size, !bags_little_endian());
}

static double load_float(const void *at, size_t size) {
    return format_real(load_bits(at, size), size);
}

static void put_element(text *out, bags_dtype dtype, const void *data, size_t i) {
    size_t size = bags_dtype_size(dtype);
    const unsigned char *at = (const unsigned char *)data + i * size;
    if (dtype == BAGS_DTYPE_BOOL) {
        text_puts(out, *at ? "true" : "false");
    } else if (dtype <= BAGS_DTYPE_UINT64) {
        text_format(out, "%ju", (uintmax_t)load_bits(at, size));
    } else if (dtype <= BAGS_DTYPE_INT64) {
        uint64_t sign = (uint64_t)1 << (8 * size - 1);
        uint64_t bits = load_bits(at, size);
        text_format(out, "%jd", (intmax_t)((bits ^ sign) - sign));
    } else if (dtype <= BAGS_DTYPE_FLOAT64) {
        put_double(out, load_float(at, size), size < 8);
    } else {
        put_complex(out, load_float(at, size / 2), load_float(at + size / 2, size / 2),
            size < 16);
    }
}

/* ---- values ---- */

static size_t element_count(const bags_value *array) {
    size_t size = bags_dtype_size(array->dtype);
    return size ? array->size / size : 0;
}

static void put_nested(text *out, const bags_value *array, size_t dim, size_t *at) {
    if (dim == array->dims) {
        put_element(out, array->dtype, array->data, (*at)++);
        return;
    }
    text_puts(out, "[");
    for (uint64_t i = 0; i < array->shape[dim]; i++) {
        text_next(out);
        put_nested(out, array, dim + 1, at);
    }
    text_puts(out, "]");
}

static bool write_array(
    text *out, const char *type, const bags_value *array, size_t most) {
    bool stated = type_dtype(type) != BAGS_DTYPE_NONE;
    size_t count = element_count(array), at = 0;
    bool is_list = array->dims > 0 || !stated;
    /* Of an array without elements, a list shows only the last dimension. */
    if (is_list && (!most || count > most || (!count && array->dims != 1)))
        return false;
    if (!stated)
        text_format(
            out, "{\"dtype\": \"%s\", \"list\": ", bags_dtype_name(array->dtype));
    put_nested(out, array, 0, &at);
    text_puts(out, stated ? "" : "}");
    return true;
}

bool value_write(text *out, const char *type, const bags_value *value, size_t most) {
    if (value->kind == BAGS_KIND_ARRAY)
        return write_array(out, type, value, most);
    if (value->kind == BAGS_KIND_UINT)
        text_format(out, "%ju", (uintmax_t)value->uint);
    else if (value->kind == BAGS_KIND_INT)
        text_format(out, "%jd", (intmax_t)value->sint);
    else if (value->kind == BAGS_KIND_UTF8 &&
             bags_utf8_valid(value->data, value->size, NULL))
        text_json(out, value->data, value->size);
    else
        return false;
    return true;
}

/* ---- what `bags get` shows ---- */

static void summarize_array(text *out, const bags_value *array) {
    size_t count = element_count(array);
    if (array->dims == 0) {
        put_element(out, array->dtype, array->data, 0);
        return;
    }
    text_format(out, "{\"dtype\": \"%s\", \"shape\": [", bags_dtype_name(array->dtype));
    for (size_t i = 0; i < array->dims; i++) {
        text_next(out);
        text_format(out, "%ju", (uintmax_t)array->shape[i]);
    }
    text_puts(out, "], \"preview\": [");
    for (size_t i = 0; i < count && i < PREVIEW; i++) {
        text_next(out);
        put_element(out, array->dtype, array->data, i);
    }
    text_puts(out, "]}");
}

void array_show(const char *type, const bags_value *array, bool lists, text *out) {
    if (!value_write(out, type, array, lists ? MAX_LIST : 0))
        summarize_array(out, array);
}

uint64_t errors_shown;

void blob_show(const char *type, bags_view blob, text *out) {
    text_puts(out, "{\"type\": ");
    text_json(out, type, strcspn(type, "["));
    text_member_number(out, "bytes", blob.size);
    media_members(type, blob, out);
    /* A number above 64 bits, or a format that was not linked, is not a fault. */
    if (failure.code && failure.code != BAGS_ERROR_LIMIT &&
        failure.code != BAGS_ERROR_TYPE) {
        text_member_string(out, "error", failure.message);
        errors_shown++;
    }
    text_puts(out, "}");
}

bool value_is_shown(const char *type) {
    type_class kind = type_kind(type);
    return kind == TYPE_NUMBER || kind == TYPE_TEXT || kind == TYPE_ARRAY ||
           kind == TYPE_MSGPACK;
}

void value_show(
    const char *type, bags_view blob, const bags_value *value, bool lists, text *out) {
    if (value)
        failure.code = BAGS_OK;
    if (value && value->kind == BAGS_KIND_OBJECT && msgpack_to_json(value->object, out))
        return;
    if (value && value->kind == BAGS_KIND_ARRAY)
        array_show(type, value, lists, out);
    else if (!value || !value_write(out, type, value, lists ? MAX_LIST : 0))
        blob_show(type, blob, out);
}

void value_file(text *line, const char *key, const char *name) {
    text_puts(line, "{");
    text_member_string(line, key, name);
    text_puts(line, "}");
}

bags_view npy_encode(const bags_value *array, bags_buffer *scratch) {
    bags_view blob;
    codec_check("npy");
    must(bags_encode(registry_get(), "npy", array, scratch, &blob, &failure));
    return blob;
}
