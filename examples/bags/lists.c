/*
 * Arrays as JSON, both ways: nested lists, of which the innermost are the
 * elements along the last dimension; an array without dimensions is one number.
 * Types that say their dtype, as array(float32,2), are lists alone; of the others
 * the dtype stands beside: {"dtype": "float32", "list": [1, 2]}.
 */
#include "command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Larger arrays are not for people to read, nor for lines. */
#define ELEMENTS_MOST 1024

/* ---- one element as JSON ---- */

static double half_to_double(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023;
    double size = exponent == 31  ? (fraction > 0 ? (double)NAN : HUGE_VAL)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(fraction + 1024, exponent - 25);
    return bits >> 15 ? -size : size;
}

/* The shortest digits that read back as the same number. JSON has no infinities
 * and no NaN: those become strings. */
static void put_double(text *out, double number, bool is_single) {
    char room[40];
    if (!isfinite(number)) {
        text_puts(out, isnan(number) ? "\"NaN\""
                       : number > 0  ? "\"Infinity\""
                                     : "\"-Infinity\"");
        return;
    }
    for (int digits = is_single ? 6 : 15; digits < 18; digits++) {
        snprintf(room, sizeof room, "%.*g", digits, number);
        double back = strtod(room, NULL);
        if (is_single ? (float)back == (float)number
                      : !(back < number || back > number))
            break;
    }
    /* Without a point it would read as the integer 0. */
    text_puts(out, strcmp(room, "-0") ? room : "-0.0");
}

void element_to_json(text *out, bags_dtype dtype, const void *data, size_t i) {
    const unsigned char *at =
        (const unsigned char *)data + i * bags_dtype_size(dtype);
    union {
        uint8_t u1; uint16_t u2; uint32_t u4; uint64_t u8;
        int8_t i1; int16_t i2; int32_t i4; int64_t i8;
        float f4; double f8;
    } x;
    memcpy(&x, at, bags_dtype_size(dtype));
    switch (dtype) {
    case BAGS_DTYPE_BOOL: text_puts(out, x.u1 ? "true" : "false"); break;
    case BAGS_DTYPE_UINT8: text_format(out, "%u", (unsigned)x.u1); break;
    case BAGS_DTYPE_UINT16: text_format(out, "%u", (unsigned)x.u2); break;
    case BAGS_DTYPE_UINT32: text_format(out, "%u", (unsigned)x.u4); break;
    case BAGS_DTYPE_UINT64: text_format(out, "%ju", (uintmax_t)x.u8); break;
    case BAGS_DTYPE_INT8: text_format(out, "%d", (int)x.i1); break;
    case BAGS_DTYPE_INT16: text_format(out, "%d", (int)x.i2); break;
    case BAGS_DTYPE_INT32: text_format(out, "%d", (int)x.i4); break;
    case BAGS_DTYPE_INT64: text_format(out, "%jd", (intmax_t)x.i8); break;
    case BAGS_DTYPE_FLOAT16: put_double(out, half_to_double(x.u2), true); break;
    case BAGS_DTYPE_FLOAT32: put_double(out, (double)x.f4, true); break;
    case BAGS_DTYPE_FLOAT64: put_double(out, x.f8, false); break;
    case BAGS_DTYPE_NONE: break;
    }
}

/* ---- arrays as lists ---- */

static void put_nested(text *out, const bags_value *array, size_t dim,
    size_t *at) {
    if (dim == array->dims) {
        element_to_json(out, array->dtype, array->data, (*at)++);
        return;
    }
    text_puts(out, "[");
    for (uint64_t i = 0; i < array->shape[dim]; i++) {
        text_puts(out, i ? ", " : "");
        put_nested(out, array, dim + 1, at);
    }
    text_puts(out, "]");
}

static bool says_dtype(const char *type) {
    bags_type parsed;
    return !bags_type_parse(type, &parsed, NULL) && parsed.count > 0;
}

/* Of an array without elements a list tells the last dimension alone. */
bool list_from_array(text *out, const char *type, const bags_value *array) {
    size_t width = bags_dtype_size(array->dtype), at = 0;
    size_t count = width ? array->size / width : 0;
    if (!width || count > ELEMENTS_MOST || (!count && array->dims != 1))
        return false;
    bool bare = says_dtype(type);
    if (!bare)
        text_format(out, "{\"dtype\": \"%s\", \"list\": ",
            bags_dtype_name(array->dtype));
    put_nested(out, array, 0, &at);
    text_puts(out, bare ? "" : "}");
    return true;
}

/* ---- one element of JSON ---- */

/* Rounded to the nearest, of two to the even one. False if it is too large. */
static bool double_to_half(double number, uint16_t *out) {
    int exponent = 0;
    double size = fabs(number);
    uint16_t sign = signbit(number) ? 0x8000 : 0;
    if (!isfinite(number)) {
        *out = (uint16_t)(sign | (isnan(number) ? 0x7E00 : 0x7C00));
        return true;
    }
    (void)frexp(size, &exponent); /* size < 2^exponent */
    exponent = exponent < -13 || size < 1e-7 ? -13 : exponent;
    if (exponent > 16)
        return false;
    /* The fraction's bits; 1024 stands for the bit that is not written. */
    unsigned bits = (unsigned)rint(ldexp(size, 11 - exponent));
    bits += (unsigned)(exponent + 13) << 10;
    *out = (uint16_t)(sign | bits);
    return bits < 0x7C00;
}

/* What is no number in JSON stands there as text. */
static bool get_double(json_object *json, double *out) {
    if (json_object_is_type(json, json_type_string)) {
        const char *word = json_object_get_string(json);
        *out = !strcmp(word, "NaN")         ? (double)NAN
               : !strcmp(word, "Infinity")  ? HUGE_VAL
               : !strcmp(word, "-Infinity") ? -HUGE_VAL
                                            : 0;
        return isnan(*out) || isinf(*out);
    }
    if (!json_object_is_type(json, json_type_double) &&
        !json_object_is_type(json, json_type_int))
        return false;
    *out = json_object_get_double(json);
    if (json_object_is_type(json, json_type_int) &&
        json_object_get_int64(json) >= 0)
        *out = (double)json_object_get_uint64(json);
    return true;
}

static const char *put_float(text *out, bags_dtype dtype, json_object *json) {
    double number = 0;
    if (!get_double(json, &number))
        return "is no number";
    float single = (float)number;
    uint16_t half = 0;
    if (dtype == BAGS_DTYPE_FLOAT64)
        text_put(out, &number, sizeof number);
    else if (dtype == BAGS_DTYPE_FLOAT32)
        text_put(out, &single, sizeof single);
    else if (double_to_half(number, &half))
        text_put(out, &half, sizeof half);
    else
        return "is too large";
    return dtype == BAGS_DTYPE_FLOAT32 && isinf(single) && isfinite(number)
               ? "is too large"
               : NULL;
}

static void put_bytes(text *out, uint64_t bits, size_t width) {
    uint8_t u1 = (uint8_t)bits;
    uint16_t u2 = (uint16_t)bits;
    uint32_t u4 = (uint32_t)bits;
    const void *all[] = {NULL, &u1, &u2, NULL, &u4, NULL, NULL, NULL, &bits};
    text_put(out, all[width], width);
}

static const char *put_integer(text *out, bags_dtype dtype, json_object *json) {
    size_t width = bags_dtype_size(dtype);
    bool is_signed = dtype >= BAGS_DTYPE_INT8 && dtype <= BAGS_DTYPE_INT64;
    uint64_t most = UINT64_MAX >> (64 - 8 * width + is_signed);
    if (!json_object_is_type(json, json_type_int))
        return "is no whole number";
    int64_t number = json_object_get_int64(json);
    bool fits = number < 0 ? is_signed && (uint64_t)-(number + 1) <= most
                           : json_object_get_uint64(json) <= most;
    if (!fits)
        return "does not fit";
    put_bytes(out, number < 0 ? (uint64_t)number : json_object_get_uint64(json),
        width);
    return NULL;
}

/* Put an element behind the others, or say what is wrong with it. */
static const char *put_json(text *out, bags_dtype dtype, json_object *json) {
    if (dtype == BAGS_DTYPE_BOOL) {
        if (!json_object_is_type(json, json_type_boolean))
            return "is not true or false";
        put_bytes(out, json_object_get_boolean(json) ? 1 : 0, 1);
        return NULL;
    }
    return dtype >= BAGS_DTYPE_FLOAT16 ? put_float(out, dtype, json)
                                 : put_integer(out, dtype, json);
}

/* ---- lists as arrays ---- */

/* A list that is read: its shape is that of its first elements, which all others
 * must have. */
typedef struct reading {
    bags_dtype dtype;
    size_t dims;
    uint64_t *shape;
    text elements;
} reading;

static bags_code read_shape(reading *from, json_object *json,
    bags_error *err) {
    from->dims = 0;
    while (json_object_is_type(json, json_type_array)) {
        size_t length = json_object_array_length(json);
        if (from->dims == BAGS_MAX_DIMS)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "lists in lists, more than %d deep", BAGS_MAX_DIMS);
        from->shape[from->dims++] = length;
        json = length ? json_object_array_get_idx(json, 0) : NULL;
    }
    return BAGS_OK;
}

static bags_code read_element(reading *from, json_object *json,
    bags_error *err) {
    const char *fault = put_json(&from->elements, from->dtype, json);
    const char *what = json_object_is_type(json, json_type_array) ? "a list"
                       : json_object_is_type(json, json_type_object)
                           ? "an object"
                       : json ? json_object_to_json_string(json)
                              : "null";
    return fault ? bags_fail(err, BAGS_ERROR_VALUE, "%.80s %s (%s)", what, fault,
                       bags_dtype_name(from->dtype))
                 : BAGS_OK;
}

static bags_code read_elements(reading *from, json_object *json, size_t dim,
    bags_error *err) {
    if (dim == from->dims)
        return read_element(from, json, err);
    bool list = json_object_is_type(json, json_type_array);
    size_t length = list ? json_object_array_length(json) : 0;
    if (!list || length != from->shape[dim])
        return bags_fail(err, BAGS_ERROR_VALUE,
            "not a list of %ju, as its neighbours are",
            (uintmax_t)from->shape[dim]);
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < length && !code; i++) {
        code = read_elements(from, json_object_array_get_idx(json, i), dim + 1,
            err);
        if (code)
            fail_prefix(err, "[%zu]%s", i, err->message[0] == '[' ? "" : ": ");
    }
    return code;
}

/* The dtype that NumPy would give the list: that of truths, of whole numbers, or
 * else float64. */
static bags_dtype find_dtype(json_object *json, bags_dtype before) {
    if (json_object_is_type(json, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(json); i++)
            before = find_dtype(json_object_array_get_idx(json, i), before);
        return before;
    }
    bags_dtype own = json_object_is_type(json, json_type_boolean) ? BAGS_DTYPE_BOOL
                     : json_object_is_type(json, json_type_int)   ? BAGS_DTYPE_INT64
                                                                  : BAGS_DTYPE_FLOAT64;
    return before == BAGS_DTYPE_NONE || before == own ? own : BAGS_DTYPE_FLOAT64;
}

/* {"dtype": "uint8", "list": [...]}: *json becomes the list. */
static bags_code read_dtype(reading *from, json_object **json,
    bags_error *err) {
    json_object *dtype, *list;
    if (!json_object_is_type(*json, json_type_object)) {
        from->dtype = find_dtype(*json, BAGS_DTYPE_NONE);
        from->dtype = from->dtype ? from->dtype : BAGS_DTYPE_FLOAT64;
        return BAGS_OK;
    }
    if (json_object_object_length(*json) == 2 &&
        json_object_object_get_ex(*json, "dtype", &dtype) &&
        json_object_is_type(dtype, json_type_string) &&
        json_object_object_get_ex(*json, "list", &list)) {
        const char *name = json_object_get_string(dtype);
        from->dtype = bags_dtype_parse(name, strlen(name), NULL);
        *json = list;
        return from->dtype ? BAGS_OK
                           : bags_fail(err, BAGS_ERROR_VALUE,
                                 "\"%.80s\" is no dtype", name);
    }
    return bags_fail(err, BAGS_ERROR_VALUE,
        "an object must be {\"dtype\": NAME, \"list\": LIST}, {\"file\": PATH}, "
        "{\"base64\": TEXT} or {\"from\": PATH}");
}

/* The dimensions behind one of length 0 are the type's. */
static void add_dims(reading *from, const bags_type *type) {
    if (from->dims == 0 || from->shape[from->dims - 1] > 0)
        return;
    while (from->dims + 1 < type->count && from->dims < BAGS_MAX_DIMS) {
        from->shape[from->dims] = 0;
        bags_type_number(type, from->dims + 1, &from->shape[from->dims]);
        from->dims++;
    }
}

bags_code array_from_list(value_reader *with, const char *type,
    json_object *json, bags_value *out, bags_error *err) {
    bags_type parsed;
    bags_code code = bags_type_parse(type, &parsed, err);
    if (code)
        return code;
    reading from = {BAGS_DTYPE_NONE, 0, with->shape, {with->file, 0, false}};
    bags_view name = bags_type_argument(&parsed, 0);
    if (parsed.count == 0)
        code = read_dtype(&from, &json, err);
    else
        from.dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    if (!code && !from.dtype)
        code = bags_fail(err, BAGS_ERROR_TYPE,
            "the dtype of %.80s is not built in: give {\"file\": PATH} or "
            "{\"base64\": TEXT}", type);
    if (!code)
        code = read_shape(&from, json, err);
    if (!code)
        code = read_elements(&from, json, 0, err);
    add_dims(&from, &parsed);
    with->file = from.elements.buffer;
    if (!code && from.elements.failed)
        code = fail_memory(err);
    if (!code)
        *out = bags_array(from.dtype, from.dims, with->shape, with->file.data);
    return code;
}
