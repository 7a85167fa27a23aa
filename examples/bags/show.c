/*
 * Convert values to JSON. Arrays become nested lists, where the innermost lists contain
 * the elements along the last dimension; an array without dimensions becomes a single
 * number. If the type does not state the dtype, it is written next to the list:
 * {"dtype": "float32", "list": [1, 2]}. A structure becomes an object, a date or time
 * span becomes its number of units, and an element that JSON cannot represent becomes
 * {"bytes": 16}. A blob that cannot be shown as a value becomes {"type", "bytes"}, with
 * "error" if it is invalid for its type.
 */
#include "command.h"

#include "codecs.h"
#include "text.h"
#include "values.h"

#include <math.h>

#define PREVIEW 8
#define MOST_PARTS 65536 /* JSON values in an array shown as a list */

/* ---- elements ---- */

bool single_is_shown(double value) {
    char digits[40];
    format_digits(digits, (double)(float)value, true);
    double back = strtod(digits, NULL);
    return !(back < value || back > value);
}

/* JSON has no infinities or NaN, so they become strings. */
static void put_double(text *out, double value, bool is_single) {
    char digits[40];
    if (!isfinite(value)) {
        text_puts(out, isnan(value) ? "\"NaN\""
                       : value > 0  ? "\"Infinity\""
                                    : "\"-Infinity\"");
        return;
    }
    format_digits(digits, value, is_single);
    /* Without a point, it would be read as the integer 0. */
    text_puts(out, strcmp(digits, "-0") ? digits : "-0.0");
}

/* Write a complex number such as "1.5-2j" in a form that Python's complex() accepts. */
static void put_complex(text *out, double real, double imaginary, bool is_single) {
    char parts[2][40];
    format_digits(parts[0], real, is_single);
    format_digits(parts[1], imaginary, is_single);
    text_format(out, "\"%s%s%sj\"", parts[0], parts[1][0] == '-' ? "" : "+", parts[1]);
}

static double load_float(const unsigned char *at, size_t size, bool big) {
    return format_real(bags_load_bytes(at, size, big), size);
}

static void put_number(text *out, bags_dtype dtype, const unsigned char *at, bool big) {
    size_t size = bags_dtype_size(dtype);
    if (dtype == BAGS_DTYPE_BOOL) {
        text_puts(out, *at ? "true" : "false");
    } else if (dtype <= BAGS_DTYPE_UINT64) {
        text_format(out, "%ju", (uintmax_t)bags_load_bytes(at, size, big));
    } else if (dtype <= BAGS_DTYPE_INT64) {
        uint64_t sign = (uint64_t)1 << (8 * size - 1);
        uint64_t bits = bags_load_bytes(at, size, big);
        text_format(out, "%jd", (intmax_t)((bits ^ sign) - sign));
    } else if (dtype <= BAGS_DTYPE_FLOAT64) {
        put_double(out, load_float(at, size, big), size < 8);
    } else {
        put_complex(out, load_float(at, size / 2, big),
            load_float(at + size / 2, size / 2, big), size < 16);
    }
}

/* Print a NumPy text without its trailing NULs. False if it is not valid. */
static bool put_text(text *out, const bags_npy_type *type, const unsigned char *at) {
    static bags_buffer utf8;
    size_t width = type->kind == 'U' ? 4 : 1, size = type->item_size, used = 0;
    while (size > 0 && bags_load_bytes(at + size - width, width, false) == 0)
        size -= width;
    must(bags_buffer_reserve(&utf8, size + 1, &failure));
    for (size_t i = 0; width == 4 && i < size; i += 4) {
        uint64_t point = bags_load_bytes(at + i, 4, type->big_endian);
        if (point > 0x10FFFF)
            return false;
        used = (size_t)(format_utf8(utf8.data + used, (uint32_t)point) - utf8.data);
    }
    const unsigned char *data = width == 4 ? utf8.data : at;
    used = width == 4 ? used : size;
    if (!bags_utf8_valid(data, used, NULL))
        return false;
    text_json(out, data, used);
    return true;
}

static const unsigned char *put_nested(text *out, const bags_npy_type *type,
    const uint64_t *shape, size_t dims, const unsigned char *at);

/* Write an array element. */
static void put_element(text *out, const bags_npy_type *type, const unsigned char *at) {
    if (type->structure) {
        text_puts(out, "{");
        for (size_t i = 0; i < type->count; i++) {
            const bags_npy_type *field = &type->fields[i];
            text_next(out);
            text_json(out, field->name, strlen(field->name));
            text_puts(out, ": ");
            put_nested(out, field, field->shape, field->dims, at + field->offset);
        }
        text_puts(out, "}");
    } else if (type->dtype) {
        put_number(out, type->dtype, at, type->big_endian);
    } else if (type->kind == 'M' || type->kind == 'm') {
        uint64_t number = bags_load_bytes(at, 8, type->big_endian);
        if (number == (uint64_t)1 << 63)
            text_puts(out, "\"NaT\"");
        else
            put_number(out, BAGS_DTYPE_INT64, at, type->big_endian);
    } else if ((type->kind != 'S' && type->kind != 'U') || !put_text(out, type, at)) {
        text_puts(out, "{");
        text_member_number(out, "bytes", type->item_size);
        text_puts(out, "}");
    }
}

/* Write an array of elements in C order. Returns the end of the elements. */
static const unsigned char *put_nested(text *out, const bags_npy_type *type,
    const uint64_t *shape, size_t dims, const unsigned char *at) {
    if (dims == 0) {
        put_element(out, type, at);
        return at + type->item_size;
    }
    text_puts(out, "[");
    for (uint64_t i = 0; i < *shape; i++) {
        text_next(out);
        at = put_nested(out, type, shape + 1, dims - 1, at);
    }
    text_puts(out, "]");
    return at;
}

/* How many JSON values an array becomes, including lists; at most MOST_PARTS + 1. */
static uint64_t parts_of(
    const bags_npy_type *type, const uint64_t *shape, size_t dims) {
    uint64_t parts = 1;
    for (size_t i = 0; i < type->count && parts <= MOST_PARTS; i++)
        parts +=
            parts_of(&type->fields[i], type->fields[i].shape, type->fields[i].dims);
    for (size_t i = dims; i > 0; i--) {
        bool few = parts <= MOST_PARTS && shape[i - 1] <= MOST_PARTS / parts;
        parts = few ? 1 + shape[i - 1] * parts : MOST_PARTS + 1;
    }
    return parts <= MOST_PARTS ? parts : MOST_PARTS + 1;
}

/* ---- values ---- */

/* Describe either kind of array as a bags_npy. */
static bags_npy npy_of(const bags_value *value) {
    bags_npy npy;
    if (value->kind == BAGS_KIND_OBJECT)
        return *(const bags_npy *)value->object;
    memset(&npy, 0, sizeof npy);
    npy.type.dtype = value->dtype;
    npy.type.item_size = npy.stride = bags_dtype_size(value->dtype);
    npy.type.big_endian = !bags_little_endian();
    npy.dims = value->dims;
    npy.shape = value->shape;
    npy.rows = (const unsigned char *)value->data;
    npy.length = npy.stride ? value->size / npy.stride : 0;
    return npy;
}

/* Write the dtype as a member. Python's text loses its quotes if it is a simple
 * name. */
static void put_dtype(text *out, const bags_npy *npy) {
    const char *name = npy->descr ? npy->descr : bags_dtype_name(npy->type.dtype);
    size_t quote = *name == '\'' || *name == '"';
    text_puts(out, "{\"dtype\": ");
    text_json(out, name + quote, strlen(name) - 2 * quote);
}

static bool write_array(
    text *out, const char *type, const bags_value *array, size_t most) {
    bool stated = type_dtype(type) != BAGS_DTYPE_NONE;
    bags_npy npy = npy_of(array);
    bool is_list = npy.dims > 0 || !stated;
    /* When an array has no elements, its list shows only the last dimension. */
    if (is_list && (!most || npy.length > most || (!npy.length && npy.dims != 1)))
        return false;
    if (npy.descr && parts_of(&npy.type, npy.shape, npy.dims) > MOST_PARTS)
        return false;
    if (!stated) {
        put_dtype(out, &npy);
        text_puts(out, ", \"list\": ");
    }
    put_nested(out, &npy.type, npy.shape, npy.dims, npy.rows);
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

/* ---- output of `bags get` ---- */

static void summarize_array(text *out, const bags_value *array) {
    bags_npy npy = npy_of(array);
    uint64_t parts = parts_of(&npy.type, NULL, 0);
    size_t most = parts <= MOST_PARTS / PREVIEW ? PREVIEW : 0;
    if (npy.dims == 0 && most) {
        put_element(out, &npy.type, npy.rows);
        return;
    }
    put_dtype(out, &npy);
    text_puts(out, ", \"shape\": [");
    for (size_t i = 0; i < npy.dims; i++) {
        text_next(out);
        text_format(out, "%ju", (uintmax_t)npy.shape[i]);
    }
    text_puts(out, "], \"preview\": [");
    for (size_t i = 0; i < npy.length && i < most; i++) {
        text_next(out);
        put_element(out, &npy.type, npy.rows + i * npy.stride);
    }
    text_puts(out, "]}");
}

void array_show(const char *type, const bags_value *array, bool lists, text *out) {
    if (!write_array(out, type, array, lists ? MAX_LIST : 0))
        summarize_array(out, array);
}

uint64_t errors_shown;

/* Show a blob by its size, with the error in `failure`. */
static void blob_show(const char *type, bags_view blob, text *out) {
    text_puts(out, "{\"type\": ");
    text_json(out, type, strcspn(type, "["));
    text_member_number(out, "bytes", blob.size);
    media_members(type, blob, out);
    /* Numbers above 64 bits, and formats that were not linked, are not faults. */
    if (failure.code && failure.code != BAGS_ERROR_LIMIT &&
        failure.code != BAGS_ERROR_TYPE) {
        text_member_string(
            out, "error", message_of_command(failure.message, failure.remedy));
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
    bool is_object = value && value->kind == BAGS_KIND_OBJECT;
    bool is_npy = is_object && type_kind(type) == TYPE_ARRAY;
    if (is_object && !is_npy && msgpack_to_json(value->object, out))
        return;
    if (value && (is_npy || value->kind == BAGS_KIND_ARRAY))
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
