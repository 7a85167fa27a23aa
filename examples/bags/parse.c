/*
 * Convert JSON to values. A value in a manifest is a number, text, nested lists for an
 * array, any JSON for msgpack, or one of
 *
 *     {"file": PATH}    a file that contains the encoded value
 *     {"base64": TEXT}  the encoded value
 *     {"from": PATH}    a file to be decoded, then encoded as the field's type; for
 *                       bytes and zstd(bytes), any file: its content is the value
 *
 * Encoded values are decoded once to check them, except images and videos. Only the
 * first bytes of those are checked.
 */
#include "command.h"

#include "text.h"
#include "values.h"

#include <math.h>

#define OBJECTS "{\"file\": PATH}, {\"base64\": TEXT} or {\"from\": PATH}"

/* ---- encoded values, and files ---- */

static const char *kind_of_file(const type_info *info) {
    return info->kind == TYPE_VIDEO        ? "an MP4 or WebM"
           : !strcmp(info->ending, "png")  ? "a PNG"
           : !strcmp(info->ending, "webp") ? "a WebP"
                                           : "a JPEG";
}

/* Fail unless the first bytes of an image or a video are valid. A video without frames
 * has no bytes. */
static void check_media(const char *type, bags_view blob) {
    const type_info *info = type_find(type);
    const char *begins = type_of_bytes(blob);
    const type_info *found = begins ? type_find(begins) : NULL;
    bool is_video = info->kind == TYPE_VIDEO;
    if (is_video ? blob.size == 0 || (found && found->kind == TYPE_VIDEO)
                 : found && !strcmp(found->ending, info->ending))
        return;
    fail(BAGS_ERROR_VALUE,
        "not %s file%s%s; {\"from\": PATH} converts, --unchecked stores any "
        "bytes",
        kind_of_file(info), found ? " but " : "", found ? found->name : "");
}

static void check_encoded(value_reader *with, const char *type, bags_view blob) {
    bags_value ignored;
    type_class kind = type_kind(type);
    if (with->unchecked || (kind == TYPE_OTHER && !type_is_compressed(type)))
        return;
    if (kind == TYPE_IMAGE || kind == TYPE_VIDEO) {
        check_media(type, blob);
        return;
    }
    bags_code code =
        bags_decode(registry_get(), type, blob, &with->scratch, &ignored, &failure);
    /* Numbers above 64 bits, and types without a codec, are not faults. */
    bool too_large = type_is_compressed(type) && kind != TYPE_NUMBER;
    if (!code || (code == BAGS_ERROR_LIMIT && !too_large) || code == BAGS_ERROR_TYPE)
        return;
    failure_prefix("not encoded as %.80s: ", type);
    failure_suffix("; --unchecked stores any bytes");
    die();
}

/* Decode a file so that it can be encoded as a type. The file's first bytes or its name
 * determine its format; an image is turned upright. The value is valid as long as the
 * file's bytes and the scratch buffer. */
static bags_value value_from_file(
    const char *to, const char *path, bags_view file, bags_buffer *scratch) {
    const char *type = type_of_bytes(file);
    bags_value out;
    size_t size = strcspn(to, "["); /* without the [] of a sequence */
    if ((size == 5 && !strncmp(to, "bytes", size)) ||
        (size == 11 && !strncmp(to, "zstd(bytes)", size)))
        return bags_bytes(file.data, file.size);
    if (!type && has_ending(path, ".txt"))
        return bags_utf8_sized((const char *)file.data, file.size);
    if (!type && has_ending(path, ".msgpack"))
        type = "msgpack";
    if (!type)
        fail(BAGS_ERROR_VALUE,
            "%s: not a .npy, JPEG, PNG, WebP, MP4, WebM, .txt or .msgpack file, "
            "which \"from\" accepts",
            path);
    codec_check(type);
    registry_orient(); /* the new image will have no EXIF data */
    /* A JPEG or WebP of palette indices would not show the image; arrays and PNG files may be
     * class masks. */
    registry_expand_palettes(
        !strncmp(to, "jpeg", 4) || !strncmp(to, "jpg", 3) || !strncmp(to, "webp", 4));
    if (bags_decode(registry_get(), type, file, scratch, &out, &failure)) {
        failure_prefix("%s: ", path);
        die();
    }
    return out;
}

bags_value value_from_blob(const char *type, bags_view blob, bags_buffer *scratch) {
    char *inside = type_inside(type);
    bags_value out = bags_blob(blob.data, blob.size);
    if (inside && (type_kind(inside) == TYPE_IMAGE || type_kind(inside) == TYPE_VIDEO))
        fail(BAGS_ERROR_TYPE,
            "%.80s would decode images, encode them again and change them; use %.80s",
            type, inside);
    if (inside)
        must(bags_decode(registry_get(), inside, blob, scratch, &out, &failure));
    free(inside);
    return out;
}

static bags_value parse_file(
    value_reader *with, const char *type, const char *name, size_t size, bool decode) {
    static char *path; /* also needed for failure messages */
    if (size == 0 || strlen(name) != size)
        fail(BAGS_ERROR_VALUE, "a path that is empty or contains U+0000");
    if (path_is_remote(name))
        fail(BAGS_ERROR_VALUE, "the path is a URL; only local files are packed");
    free(path);
    path = path_join(with->directory, name);
    bags_view file = file_read(path, &with->file);
    if (decode)
        return value_from_file(type, path, file, &with->scratch);
    check_encoded(with, type, file);
    return bags_blob(file.data, file.size);
}

static bags_value parse_base64(
    value_reader *with, const char *type, const char *digits, size_t size) {
    bags_view blob = {NULL, 0};
    must(bags_buffer_reserve(&with->file, size / 4 * 3 + 1, &failure));
    const char *fault = format_base64_decode(
        digits, size, with->file.data, with->file.capacity, &blob.size);
    if (fault)
        fail(BAGS_ERROR_VALUE, "base64: %s", fault);
    blob.data = with->file.data;
    check_encoded(with, type, blob);
    return bags_blob(blob.data, blob.size);
}

/* ---- elements of arrays ---- */

/* The low bytes of a number, in native byte order. */
static void put_bits(text *out, uint64_t bits, size_t size) {
    unsigned char bytes[8];
    bags_store_bytes(bytes, size, !bags_little_endian(), bits);
    text_put(out, bytes, size);
}

/* Get a number; "NaN", "Infinity" and "-Infinity" may be strings. */
static bool get_double(json_object *json, double *out) {
    if (json_object_is_type(json, json_type_string)) {
        const char *word = json_object_get_string(json);
        *out = !strcmp(word, "NaN")         ? (double)NAN
               : !strcmp(word, "Infinity")  ? HUGE_VAL
               : !strcmp(word, "-Infinity") ? -HUGE_VAL
                                            : 0;
        return !isfinite(*out);
    }
    if (!json_object_is_type(json, json_type_double) &&
        !json_object_is_type(json, json_type_int))
        return false;
    *out = json_object_get_double(json);
    if (json_object_is_type(json, json_type_int) && json_object_get_int64(json) >= 0)
        *out = (double)json_object_get_uint64(json);
    return true;
}

static const char *put_float(text *out, size_t size, double value) {
    uint64_t bits = 0;
    bool fits = format_real_bits(value, size, &bits);
    put_bits(out, bits, size);
    return fits ? NULL : "is too large";
}

/* Append a complex number, given as a number or as text such as "1.5-2j". */
static const char *put_complex(text *out, size_t size, json_object *json) {
    double parts[2] = {0, 0};
    if (!get_double(json, &parts[0])) {
        const char *word = json_object_is_type(json, json_type_string)
                               ? json_object_get_string(json)
                               : "";
        char *middle, *end;
        parts[0] = strtod(word, &middle);
        parts[1] = strtod(middle, &end);
        if (middle == word || end == middle || strcmp(end, "j"))
            return "is not a complex number";
        if (format_is_too_large(parts[0], word, middle) ||
            format_is_too_large(parts[1], middle, end))
            return "is too large";
    }
    const char *fault = put_float(out, size / 2, parts[0]);
    return fault ? fault : put_float(out, size / 2, parts[1]);
}

/* Get a whole number. */
static bags_value get_integer(json_object *json) {
    int64_t value = json_object_get_int64(json);
    return value < 0 ? bags_int(value) : bags_uint(json_object_get_uint64(json));
}

static const char *put_integer(text *out, bags_dtype dtype, const bags_value *number) {
    unsigned char bytes[8];
    if (!format_store_integer(dtype, number, bytes))
        return "is out of range";
    text_put(out, bytes, bags_dtype_size(dtype));
    return NULL;
}

/* Append an element. Returns NULL, or the reason why it is invalid. */
static const char *put_element(text *out, bags_dtype dtype, json_object *json) {
    size_t size = bags_dtype_size(dtype);
    double value = 0;
    if (dtype == BAGS_DTYPE_BOOL) {
        put_bits(out, json_object_get_boolean(json) != 0, 1);
        return json_object_is_type(json, json_type_boolean) ? NULL
                                                            : "is not true or false";
    }
    if (dtype <= BAGS_DTYPE_INT64) {
        bags_value number = get_integer(json);
        return json_object_is_type(json, json_type_int)
                   ? put_integer(out, dtype, &number)
                   : "is not a whole number";
    }
    if (dtype >= BAGS_DTYPE_COMPLEX64)
        return put_complex(out, size, json);
    return get_double(json, &value) ? put_float(out, size, value) : "is not a number";
}

/* ---- arrays ---- */

/* The first elements determine the shape. All others must match it. */
typedef struct list {
    bags_dtype dtype;
    size_t dims;
    uint64_t *shape;
    size_t at[BAGS_MAX_DIMS]; /* position of the element being read */
    text elements;
} list;

static void read_shape(list *to, json_object *json) {
    while (json_object_is_type(json, json_type_array)) {
        size_t length = json_object_array_length(json);
        if (to->dims == BAGS_MAX_DIMS)
            fail(BAGS_ERROR_VALUE, "lists nested too deeply (maximum %d)",
                BAGS_MAX_DIMS);
        to->shape[to->dims++] = length;
        json = length ? json_object_array_get_idx(json, 0) : NULL;
    }
}

ENDS static void fail_element(
    const list *to, size_t dim, json_object *json, const char *fault) {
    static text where;
    for (size_t i = 0; i < dim; i++)
        text_format(&where, "[%zu]%s", to->at[i], i + 1 < dim ? "" : ": ");
    fail(BAGS_ERROR_VALUE, "%s%.80s %s (%s)", text_string(&where),
        json_object_is_type(json, json_type_array)    ? "a list"
        : json_object_is_type(json, json_type_object) ? "an object"
        : json                                        ? json_object_to_json_string(json)
                                                      : "null",
        fault, bags_dtype_name(to->dtype));
}

static void read_elements(list *to, json_object *json, size_t dim) {
    if (dim == to->dims) {
        const char *fault = put_element(&to->elements, to->dtype, json);
        if (fault)
            fail_element(to, dim, json, fault);
        return;
    }
    if (!json_object_is_type(json, json_type_array) ||
        json_object_array_length(json) != to->shape[dim])
        fail_element(to, dim, json, "is not as long as the lists next to it");
    for (size_t i = 0; i < to->shape[dim]; i++) {
        to->at[dim] = i;
        read_elements(to, json_object_array_get_idx(json, i), dim + 1);
    }
}

/* The dtype that NumPy would choose: bool, int64, or otherwise float64. */
static bags_dtype guess_dtype(json_object *json, bags_dtype before) {
    if (json_object_is_type(json, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(json); i++)
            before = guess_dtype(json_object_array_get_idx(json, i), before);
        return before;
    }
    bags_dtype own = json_object_is_type(json, json_type_boolean) ? BAGS_DTYPE_BOOL
                     : json_object_is_type(json, json_type_int)   ? BAGS_DTYPE_INT64
                                                                  : BAGS_DTYPE_FLOAT64;
    return before == BAGS_DTYPE_NONE || before == own ? own : BAGS_DTYPE_FLOAT64;
}

/* Parse {"dtype": "uint8", "list": [...]}. Returns the list. */
static json_object *read_dtype(list *to, json_object *json) {
    json_object *dtype, *elements;
    if (!json_object_is_type(json, json_type_object)) {
        to->dtype = guess_dtype(json, BAGS_DTYPE_NONE);
        to->dtype = to->dtype ? to->dtype : BAGS_DTYPE_FLOAT64;
        return json;
    }
    if (json_object_object_length(json) != 2 ||
        !json_object_object_get_ex(json, "dtype", &dtype) ||
        !json_object_is_type(dtype, json_type_string) ||
        !json_object_object_get_ex(json, "list", &elements))
        fail(BAGS_ERROR_VALUE,
            "an object must be {\"dtype\": NAME, \"list\": LIST}, " OBJECTS);
    const char *name = json_object_get_string(dtype);
    to->dtype = bags_dtype_parse(name, strlen(name), NULL);
    if (!to->dtype)
        fail(BAGS_ERROR_VALUE, "\"%.80s\" is not a dtype", name);
    return elements;
}

static bags_value parse_array(value_reader *with, const char *type, json_object *json) {
    bags_type parsed, inside;
    list to = {BAGS_DTYPE_NONE, 0, with->shape, {0}, {with->file, 0, false}};
    must(bags_type_parse(type, &parsed, &failure));
    if (format_type_inside(&parsed, &inside))
        parsed = inside;
    to.dtype = type_dtype(type);
    if (parsed.count == 0)
        json = read_dtype(&to, json);
    if (!to.dtype)
        fail(BAGS_ERROR_TYPE,
            "the dtype of %.80s is not supported; pass {\"file\": PATH} or "
            "{\"base64\": TEXT}",
            type);
    read_shape(&to, json);
    read_elements(&to, json, 0);
    /* The type determines all dimensions after one of length 0. */
    while (to.dims > 0 && to.elements.size == 0 && to.dims + 1 < parsed.count &&
           to.dims < BAGS_MAX_DIMS) {
        to.shape[to.dims] = 0;
        bags_type_number(&parsed, to.dims + 1, &to.shape[to.dims]);
        to.dims++;
    }
    with->file = to.elements.buffer;
    return bags_array(to.dtype, to.dims, with->shape, with->file.data);
}

/* ---- all values ---- */

/* The text of {"file": TEXT}, if the object has no other members. */
static const char *only_member(json_object *json, const char *name, size_t *size) {
    json_object *inner;
    if (!json_object_is_type(json, json_type_object) ||
        json_object_object_length(json) != 1 ||
        !json_object_object_get_ex(json, name, &inner) ||
        !json_object_is_type(inner, json_type_string))
        return NULL;
    *size = (size_t)json_object_get_string_len(inner);
    return json_object_get_string(inner);
}

ENDS static void fail_value(const char *type, json_object *json) {
    static const char *const names[] = {"null", "true or false",
        "a number with a point or an exponent", "a number", "an object", "a list",
        "text"};
    json_type kind = json_object_get_type(json);
    if (kind == json_type_object)
        fail(BAGS_ERROR_VALUE, "an object must be " OBJECTS);
    if (kind == json_type_array)
        fail(BAGS_ERROR_VALUE,
            "a list is not a value of type %.80s; a sequence has type %.80s[]", type,
            type);
    fail(BAGS_ERROR_VALUE, "%s is not a value of type %.80s (expected %s)", names[kind],
        type,
        type_kind(type) == TYPE_NUMBER ? "a whole number"
        : type_kind(type) == TYPE_TEXT ? "text"
                                       : OBJECTS);
}

bags_value value_parse(value_reader *with, const char *type, json_object *json) {
    size_t size = 0;
    type_class kind = type_kind(type);
    const char *found = only_member(json, "file", &size);
    if (found)
        return parse_file(with, type, found, size, false);
    found = only_member(json, "base64", &size);
    if (found)
        return parse_base64(with, type, found, size);
    codec_check(type);
    found = only_member(json, "from", &size);
    if (found)
        return parse_file(with, type, found, size, true);
    if (kind == TYPE_MSGPACK) {
        bags_view blob = msgpack_from_json(json, &with->file);
        return value_from_blob(type, blob, &with->scratch);
    }
    if (kind == TYPE_ARRAY)
        return parse_array(with, type, json);
    if (kind == TYPE_TEXT && json_object_is_type(json, json_type_string))
        return bags_utf8_sized(
            json_object_get_string(json), (size_t)json_object_get_string_len(json));
    if (kind != TYPE_NUMBER || !json_object_is_type(json, json_type_int))
        fail_value(type, json);
    return get_integer(json);
}
