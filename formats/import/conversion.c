/*
 * conversion.c - converts the values of a source to other types; see import.h. No
 * library: the caller passes the function that converts JSON to msgpack.
 */
#include "import.h"

#include "text.h"
#include "try.h"
#include "values.h"

#include <math.h>
#include <stdlib.h>

typedef enum conv_class {
    CONV_OTHER,
    CONV_TEXT,
    CONV_NUMBER,
    CONV_ARRAY,
    CONV_MSGPACK,
    CONV_MEDIA, /* images and videos */
    CONV_CLASSES
} conv_class;

/* The content of the values of the source. */
typedef enum conv_content {
    CONV_OF_TEXT,
    CONV_OF_ELEMENTS, /* array elements */
    CONV_OF_BYTES,    /* array elements of one byte each */
    CONV_OF_OTHER,
    CONV_CONTENTS
} conv_content;

typedef enum conv_how {
    CONV_BLOB = 0, /* the bytes must be a blob of the type */
    CONV_PARSE,    /* parse text as a number */
    CONV_ELEMENT,  /* parse text as one element, never as the bytes of an array */
    CONV_JSON,     /* convert JSON to msgpack */
    CONV_ELEMENTS, /* integers become other integers; a single one becomes a number */
    CONV_SAME      /* unchanged */
} conv_how;

/* In the order of conv_class. Numbers and arrays are checked when they are encoded. */
static const conv_how conv_hows[CONV_CONTENTS][CONV_CLASSES] = {
    {CONV_BLOB, CONV_BLOB, CONV_PARSE, CONV_ELEMENT, CONV_JSON, CONV_BLOB},
    {CONV_BLOB, CONV_ELEMENTS, CONV_ELEMENTS, CONV_ELEMENTS, CONV_ELEMENTS, CONV_BLOB},
    {CONV_BLOB, CONV_BLOB, CONV_BLOB, CONV_ELEMENTS, CONV_BLOB, CONV_BLOB},
    {CONV_BLOB, CONV_BLOB, CONV_BLOB, CONV_BLOB, CONV_BLOB, CONV_BLOB},
};

struct bags_conversion {
    bags_conversion_options options;
    conv_how how;
    bags_dtype dtype; /* of the type, */
    conv_class kind;  /* and its class */
    bool sequence;    /* the type is one */
    bool gather;      /* a sequence of numbers becomes an array */
    bool checked;     /* decode blobs to check them */
    char *from, *to;
    char *inside; /* TYPE if the type is zstd(TYPE), otherwise NULL */
    bags_buffer checking, decoded, elements;
    uint64_t length;
    unsigned char element[8];
};

/* ---- types ---- */

static conv_class conv_class_of(const bags_type *type) {
    static const struct {
        const char *name;
        conv_class kind;
    } names[] = {{"utf8", CONV_TEXT}, {"int", CONV_NUMBER}, {"u64", CONV_NUMBER},
        {"i64", CONV_NUMBER}, {"array", CONV_ARRAY}, {"npy", CONV_ARRAY},
        {"msgpack", CONV_MSGPACK}, {"tree", CONV_MSGPACK}, {"jpeg", CONV_MEDIA},
        {"jpg", CONV_MEDIA}, {"png", CONV_MEDIA}, {"webp", CONV_MEDIA},
        {"mp4", CONV_MEDIA}, {"webm", CONV_MEDIA}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (bags_view_is(type->name, names[i].name))
            return names[i].kind;
    return CONV_OTHER;
}

/* A type's class, its dtype if the type states one, and its inner type if it is
 * compressed. A compressed image is not an image file. */
static conv_class conv_describe(
    const bags_type *type, bags_dtype *dtype, bags_type *inside, bool *compressed) {
    *compressed = format_type_inside(type, inside);
    const bags_type *of = *compressed ? inside : type;
    conv_class kind = conv_class_of(of);
    bags_view name = bags_type_argument(of, 0);
    *dtype = kind == CONV_ARRAY
                 ? bags_dtype_parse((const char *)name.data, name.size, NULL)
                 : BAGS_DTYPE_NONE;
    return *compressed && kind == CONV_MEDIA ? CONV_OTHER : kind;
}

bags_source_want bags_conversion_want(const char *type) {
    bags_type parsed, inside;
    bags_dtype dtype = BAGS_DTYPE_NONE;
    bags_buffer full;
    bool compressed;
    conv_class kind = CONV_OTHER;
    memset(&full, 0, sizeof full);
    if (type && !bags_type_complete(NULL, type, &full, NULL) &&
        !bags_type_parse((const char *)full.data, &parsed, NULL))
        kind = conv_describe(&parsed, &dtype, &inside, &compressed);
    bags_buffer_free(&full);
    if (kind == CONV_NUMBER || dtype)
        return BAGS_WANT_NUMBER;
    return kind == CONV_ARRAY ? BAGS_WANT_NOTHING : BAGS_WANT_TEXT;
}

/* ---- opening ---- */

static char *conv_copy(const char *text, size_t size, const char *ending) {
    char *copy = (char *)malloc(size + strlen(ending) + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    strcpy(copy + size, ending);
    return copy;
}

static bool conv_keep_texts(bags_conversion *c, const char *from, const char *to,
    const bags_type *inside, bool compressed) {
    c->from = conv_copy(from, strlen(from), "");
    c->to = conv_copy(to, strlen(to), "");
    if (!compressed)
        return c->from && c->to;
    char *text = (char *)malloc(inside->name.size + inside->arguments.size + 5);
    if (!text)
        return false;
    (void)sprintf(text, inside->count ? "%.*s(%.*s)%s" : "%.*s%.*s%s",
        (int)inside->name.size, (const char *)inside->name.data,
        (int)inside->arguments.size, (const char *)inside->arguments.data,
        inside->sequence ? "[]" : "");
    c->inside = text;
    return c->from && c->to;
}

static bags_code conv_start(
    bags_conversion *c, const char *from, const char *to, bags_error *err) {
    bags_type parsed, inside, source, source_inside;
    bags_dtype source_dtype;
    bool compressed, source_compressed;
    FORMAT_TRY(
        bags_type_complete(c->options.registry, to ? to : from, &c->decoded, err));
    const char *type = (const char *)c->decoded.data;
    FORMAT_TRY(bags_type_parse(from, &source, err));
    FORMAT_TRY(bags_type_parse(type, &parsed, err));
    conv_class source_kind =
        conv_describe(&source, &source_dtype, &source_inside, &source_compressed);
    c->kind = conv_describe(&parsed, &c->dtype, &inside, &compressed);
    c->sequence = parsed.sequence;
    c->how = CONV_SAME;
    if (!conv_keep_texts(c, from, type, &inside, compressed))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    if (!to)
        return BAGS_OK;
    c->gather = !parsed.sequence && source.sequence && source_kind == CONV_NUMBER &&
                bags_import_is_integer(c->dtype);
    c->checked = !compressed && bags_registry_find(c->options.registry, parsed.name);
    conv_content content = !strncmp(from, "utf8", 4)            ? CONV_OF_TEXT
                           : source_kind != CONV_ARRAY          ? CONV_OF_OTHER
                           : bags_dtype_size(source_dtype) == 1 ? CONV_OF_BYTES
                                                                : CONV_OF_ELEMENTS;
    bool same = source_kind == CONV_ARRAY && c->kind == CONV_ARRAY;
    c->how = same && source_dtype == c->dtype ? CONV_BLOB : conv_hows[content][c->kind];
    return BAGS_OK;
}

bags_conversion *bags_conversion_open(const char *from, const char *to,
    const bags_conversion_options *options, bags_error *err) {
    bags_error ignored;
    err = err ? err : &ignored;
    if (!from) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
        return NULL;
    }
    bags_conversion *c = (bags_conversion *)calloc(1, sizeof *c);
    if (!c) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    if (options)
        c->options = *options;
    if (!conv_start(c, from, to, err))
        return c;
    bags_conversion_close(c);
    return NULL;
}

void bags_conversion_close(bags_conversion *c) {
    if (!c)
        return;
    bags_buffer_free(&c->checking);
    bags_buffer_free(&c->decoded);
    bags_buffer_free(&c->elements);
    free(c->from);
    free(c->to);
    free(c->inside);
    free(c);
}

/* ---- integers ---- */

/* Get an element of an integer array. */
static bags_value conv_integer(const bags_value *array, size_t i) {
    unsigned char bytes[8];
    size_t size = bags_dtype_size(array->dtype);
    bags_swap_bytes(bytes, (const unsigned char *)array->data + i * size, size,
        bags_little_endian() ? 1 : size);
    return bags_import_integer(array->dtype, bytes);
}

/* Store integers as an array of the type's dtype, if that represents each of them:
 * `count` values, or the elements of `array`. */
static bags_code conv_store(bags_conversion *c, const bags_value *values, size_t count,
    const bags_value *array, bags_value *out, bags_error *err) {
    size_t size = bags_dtype_size(c->dtype);
    if (array)
        count = array->size / bags_dtype_size(array->dtype);
    FORMAT_TRY(bags_buffer_reserve(&c->elements, count * size + 1, err));
    for (size_t i = 0; i < count; i++) {
        bags_value number = array ? conv_integer(array, i) : values[i];
        if (format_store_integer(c->dtype, &number, c->elements.data + i * size))
            continue;
        const char *name = bags_dtype_name(c->dtype);
        return number.kind == BAGS_KIND_INT
                   ? bags_fail(err, BAGS_ERROR_VALUE,
                         "[%zu]: %" PRId64 " is out of range (%s)", i, number.sint,
                         name)
                   : bags_fail(err, BAGS_ERROR_VALUE,
                         "[%zu]: %" PRIu64 " is out of range (%s)", i, number.uint,
                         name);
    }
    c->length = count;
    *out = bags_array(c->dtype, array ? array->dims : 1,
        array ? array->shape : &c->length, c->elements.data);
    return BAGS_OK;
}

/* Convert an array, or a blob that decodes to one, to an array of other integers or to
 * a number. */
static bags_code conv_elements(bags_conversion *c, const bags_value *value,
    bags_view blob, bags_value *out, bags_error *err) {
    bags_value array = *value;
    if (value->kind == BAGS_KIND_BLOB)
        FORMAT_TRY(
            bags_decode(c->options.registry, c->from, blob, &c->decoded, &array, err));
    bool integers =
        array.kind == BAGS_KIND_ARRAY && bags_import_is_integer(array.dtype);
    if (integers && bags_import_is_integer(c->dtype))
        return conv_store(c, NULL, 0, &array, out, err);
    bool one = integers && array.size == bags_dtype_size(array.dtype);
    *out = one && c->kind == CONV_NUMBER ? conv_integer(&array, 0) : array;
    return BAGS_OK;
}

/* ---- text ---- */

static bags_code conv_number(bags_view text, bags_value *out, bags_error *err) {
    if (format_number((const char *)text.data, text.size, out))
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE, "\"%.*s\" is not a number of 64 bits",
        (int)(text.size < 40 ? text.size : 40), (const char *)text.data);
}

/* Store the bits of a number. */
static void conv_put(bags_conversion *c, uint64_t bits) {
    bags_store_bytes(
        c->element, bags_dtype_size(c->dtype), !bags_little_endian(), bits);
}

/* Store a float. float16 and float32 must not lose any digit. Returns NULL, or the
 * reason for the failure. */
static const char *conv_decimal(bags_conversion *c, const char *word) {
    char *end;
    double value = strtod(word, &end);
    size_t size = bags_dtype_size(c->dtype);
    bool finite = value > -HUGE_VAL && value < HUGE_VAL;
    uint64_t bits;
    if (end == word || *end || strpbrk(word, "xX"))
        return "is not a number";
    if (format_is_too_large(value, word, end) || !format_real_bits(value, size, &bits))
        return "is too large";
    conv_put(c, bits);
    return size == 8 || !finite ||
                   format_is_decimal(word, value, format_real(bits, size))
               ? NULL
               : "would be rounded";
}

/* Store an element given as text. Returns NULL, or the reason for the failure. */
static const char *conv_put_word(bags_conversion *c, const char *word) {
    bags_value number;
    if (c->dtype == BAGS_DTYPE_BOOL) {
        conv_put(c, !strcmp(word, "true"));
        return !strcmp(word, "true") || !strcmp(word, "false") ? NULL
                                                               : "is not true or false";
    }
    if (c->dtype > BAGS_DTYPE_INT64)
        return c->dtype > BAGS_DTYPE_FLOAT64 ? "is not a number"
                                             : conv_decimal(c, word);
    if (!format_number(word, strlen(word), &number))
        return "is not a whole number";
    return format_store_integer(c->dtype, &number, c->element) ? NULL
                                                               : "is out of range";
}

static bags_code conv_element(
    bags_conversion *c, bags_view text, bags_value *out, bags_error *err) {
    char word[400] = "";
    if (!c->dtype)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "text is not a value of type %s; --type makes only numbers and msgpack "
            "of text",
            c->to);
    if (text.size > 0 && text.size < sizeof word)
        memcpy(word, text.data, text.size);
    const char *fault =
        strlen(word) == text.size ? conv_put_word(c, word) : "is not a number";
    if (fault)
        return bags_fail(err, BAGS_ERROR_VALUE, "\"%.40s\" %s (%s)", word, fault,
            bags_dtype_name(c->dtype));
    *out = bags_array(c->dtype, 0, NULL, c->element);
    return BAGS_OK;
}

/* ---- blobs ---- */

/* The value that encodes as this blob. For zstd(utf8), the blob is of type utf8, and
 * encoding compresses it. */
static bags_code conv_of_blob(
    bags_conversion *c, bags_view blob, bags_value *out, bags_error *err) {
    bags_type inside;
    *out = bags_blob(blob.data, blob.size);
    if (!c->inside)
        return BAGS_OK;
    FORMAT_TRY(bags_type_parse(c->inside, &inside, err));
    if (conv_class_of(&inside) == CONV_MEDIA)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%.80s would decode images, encode them again and change them; use %.80s",
            c->to, c->inside);
    return bags_decode(c->options.registry, c->inside, blob, &c->decoded, out, err);
}

/* Convert JSON to msgpack. */
static bags_code conv_json(
    bags_conversion *c, bags_view text, bags_value *out, bags_error *err) {
    bags_view blob = {NULL, 0};
    if (!c->options.pack)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "this build does not convert JSON to %.80s; json-c and msgpack-c were not "
            "found",
            c->to);
    FORMAT_TRY(c->options.pack(text, &c->checking, &blob, err));
    return conv_of_blob(c, blob, out, err);
}

/* ---- values ---- */

bags_code bags_conversion_count(
    const bags_conversion *c, const bags_entry *entry, size_t *count, bags_error *err) {
    *count = c->gather ? 1 : entry->count;
    if (c->sequence || *count == 1)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE, "%zu items, but the type %s holds one",
        entry->count, c->to);
}

bags_code bags_conversion_get(bags_conversion *c, const bags_entry *entry, size_t item,
    bags_value *out, bags_error *err) {
    bags_value ignored;
    bags_error dropped;
    err = err ? err : &dropped;
    if (c->gather)
        return conv_store(c, entry->values, entry->count, NULL, out, err);
    const bags_value *value = &entry->values[item];
    const bags_view bytes = {(const unsigned char *)value->data, value->size};
    bool is_bytes = value->kind == BAGS_KIND_BLOB || value->kind == BAGS_KIND_BYTES ||
                    value->kind == BAGS_KIND_UTF8;
    *out = *value;
    switch (is_bytes || c->how == CONV_ELEMENTS ? c->how : CONV_SAME) {
    case CONV_SAME:
        return BAGS_OK;
    case CONV_ELEMENTS:
        return conv_elements(c, value, bytes, out, err);
    case CONV_PARSE:
        return conv_number(bytes, out, err);
    case CONV_ELEMENT:
        return conv_element(c, bytes, out, err);
    case CONV_JSON:
        return conv_json(c, bytes, out, err);
    case CONV_BLOB:
    default:
        if (c->checked)
            FORMAT_TRY(bags_decode(
                c->options.registry, c->to, bytes, &c->checking, &ignored, err));
        return conv_of_blob(c, bytes, out, err);
    }
}
