/*
 * zarr.c - imports Zarr 2 groups and arrays, and L5Kit datasets, using json-c, libblosc
 * 1.16, libzip 1.5, zlib, zstd and lz4 (Debian: libjson-c-dev libblosc-dev libzip-dev
 * zlib1g-dev libzstd-dev liblz4-dev).
 *
 * A source is a directory or a .zip file. Its arrays must have the same length:
 * datapoint i is row i of each. An array of shape [] is repeated in every datapoint. A
 * field is named after its array; groups and members of a structured dtype are joined
 * by dots. If the source itself is an array, the fields are its members, or "data".
 *
 *     scalar      integers: i64, u64; dates and times: i64, their number of units
 *                 since 1970, and the field's name ends in the unit: "time_ns"; NaT is
 *                 -2^63; others: array(DTYPE)
 *     array       array(DTYPE,shape of a row and of the member)
 *     <U          utf8;  |S and |V: bytes (|S without its trailing NULs)
 *
 * An L5Kit dataset has one datapoint per frame. Members of frames are plain fields;
 * members of agents and traffic light faces are sequences ("agents.centroid"); members
 * of the frame's scene are repeated ("scenes.host"), and scene_index is the scene's
 * number. Attributes and agents_mask (derived by L5Kit from other arrays) are left out.
 *
 * A missing chunk consists of the fill value; the dtype must represent this value
 * exactly. An array that has files, but no chunk under the names implied by .zarray, is
 * an error.
 *
 * Rejected: Zarr 3, filters, order F, other compressors, objects, and arrays of strings
 * or structures in a row or member.
 */
#include "detect.h"
#include "json.h"
#include "text.h"
#include "try.h"
#include "unzip.h"
#include "values.h"

#include <blosc.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ZR_BAND ((uint64_t)64 << 20)    /* bytes in memory per array, or one row */
#define ZR_VALUES ((uint64_t)1 << 30)   /* maximum bytes of an array per datapoint */
#define ZR_CHUNK ((uint64_t)INT32_MAX)  /* maximum bytes of a chunk, as in Blosc */
#define ZR_RATIO ((uint64_t)1 << 16)    /* no codec expands a byte to more */
#define ZR_METADATA ((uint64_t)1 << 20) /* maximum bytes of .zarray */
#define ZR_ACROSS ((uint64_t)1 << 20)   /* maximum number of chunks that a row spans */
#define ZR_DEPTH 16 /* maximum depth of groups and of nested structures */

/* A member of a dtype; a plain dtype has a single member. */
typedef struct zr_member {
    const char *name; /* "" in a plain dtype; NULL: padding */
    char kind;        /* NumPy's kind letter */
    bags_dtype dtype; /* dtype of numbers */
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
    size_t offset;    /* within a record */
    size_t size;      /* within a record */
    size_t swap;      /* number of bytes to reverse at a time; 1: none */
    bool number;      /* an integer that becomes i64 or u64 */
    const char *unit; /* unit of dates and times; NULL: none */
} zr_member;

typedef struct zr_array {
    const char *key; /* "" or "group/array/" */
    const char *name;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS], chunks[BAGS_MAX_DIMS];
    const char *separator; /* static: "." or "/" */
    const char *codec;     /* static; NULL: stored uncompressed */
    size_t item, row;      /* bytes of a record; bytes of a row of records */
    size_t chunk_size;
    unsigned char *fill; /* a record; NULL: none */
    zr_member *members;
    size_t count; /* number of members */
    size_t first; /* number of its first field */
    /* Found in the array's directory: whether any file is a chunk; and the key of some
     * other file, preferably a chunk with the other separator, or NULL. */
    bool has_chunk, other_is_chunk;
    const char *other;
    /* The rows in memory: band_start to band_stop. */
    uint64_t band_start, band_stop;
    bags_buffer *band;
} zr_array;

/* A member of a .zip. */
typedef struct zr_entry {
    const char *name;
    uint64_t index;
} zr_entry;

typedef struct zr_state {
    zip_t *zip;        /* NULL: a directory */
    zr_entry *entries; /* sorted by name, each once */
    size_t entry_count;
    const char *root;
    bags_buffer *file, *chunk, *path;
    const char **keys; /* keys of arrays */
    size_t key_count;
    const char **attributes; /* keys of .zattrs, without the name .zattrs */
    size_t attributes_count;
    zr_array *arrays;
    size_t count;
    /* L5Kit's arrays; scenes is NULL for any other source. */
    zr_array *scenes, *frames, *agents, *lights;
    uint64_t scene, scene_start, scene_stop;
} zr_state;

/* ---- keys and bytes ---- */

static int zr_compare_entries(const void *a, const void *b) {
    const zr_entry *x = (const zr_entry *)a, *y = (const zr_entry *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* List the members. zarr-python adds a member again when it changes a chunk, so the
 * last member with a name counts. */
static bags_code zr_list_zip(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    zip_int64_t count = zip_get_num_entries(z->zip, 0);
    size_t length = 0;
    z->entries = (zr_entry *)bags_source_alloc(s, (size_t)count, sizeof(zr_entry));
    if (!z->entries)
        return BAGS_ERROR_MEMORY;
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(z->zip, (zip_uint64_t)i, 0);
        z->entries[length].index = (uint64_t)i;
        z->entries[length].name = name;
        length += name != NULL;
    }
    if (length)
        qsort(z->entries, length, sizeof(zr_entry), zr_compare_entries);
    for (size_t i = 0; i < length; i++)
        if (i + 1 == length || strcmp(z->entries[i].name, z->entries[i + 1].name) != 0)
            z->entries[z->entry_count++] = z->entries[i];
    return BAGS_OK;
}

static int zr_compare_name(const void *name, const void *entry) {
    return strcmp((const char *)name, ((const zr_entry *)entry)->name);
}

static bags_code zr_read_zip(
    bags_source *s, const char *key, uint64_t limit, bags_view *out) {
    zr_state *z = (zr_state *)s->state;
    const zr_entry *entry = (const zr_entry *)bsearch(
        key, z->entries, z->entry_count, sizeof *entry, zr_compare_name);
    if (!entry)
        return BAGS_ERROR_MISSING;
    const char *name = bags_source_format(s, "%s: %s", s->where, key);
    bags_code code = name ? bags_source_reserve(s, &z->file, 0) : BAGS_ERROR_MEMORY;
    return code ? code
                : format_unzip(z->zip, entry->index, name, limit, z->file, out, s->err);
}

/* Read the bytes of a key. BAGS_ERROR_MISSING if the key does not exist. */
static bags_code zr_read(
    bags_source *s, const char *key, uint64_t limit, bags_view *out) {
    if (((zr_state *)s->state)->zip)
        return zr_read_zip(s, key, limit, out);
    const char *path = bags_source_format(s, "%s/%s", s->path, key);
    return path ? bags_source_load(s, path, limit, out) : BAGS_ERROR_MEMORY;
}

/* ---- .zarray ---- */

static bags_code zr_bad(bags_source *s, const zr_array *a, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "%s.zarray: %s", a->key, what);
}

static bags_code zr_refuse(
    bags_source *s, const zr_array *a, const char *what, const char *name) {
    return bags_source_fail(
        s, BAGS_ERROR_TYPE, "%s.zarray: %s not supported (%.200s)", a->key, what, name);
}

static json_object *zr_get(json_object *object, const char *name) {
    json_object *value = NULL;
    return json_object_object_get_ex(object, name, &value) ? value : NULL;
}

/* Parse a shape: numbers of at least `least`. False if it is invalid. */
static bool zr_shape(json_object *list, int64_t least, uint64_t *shape, size_t *dims) {
    if (!json_object_is_type(list, json_type_array) ||
        json_object_array_length(list) > BAGS_MAX_DIMS)
        return false;
    *dims = json_object_array_length(list);
    for (size_t i = 0; i < *dims; i++) {
        json_object *number = json_object_array_get_idx(list, i);
        if (!json_object_is_type(number, json_type_int) ||
            json_object_get_int64(number) < least)
            return false;
        shape[i] = (uint64_t)json_object_get_int64(number);
    }
    return true;
}

/* *a *= b. False if the product exceeds the limit. */
static bool zr_times(size_t *a, uint64_t b, uint64_t limit) {
    if (b && *a > limit / b)
        return false;
    *a = (size_t)(*a * b);
    return true;
}

/* Append a member with a simple dtype such as "<f4"; its name and shape are already
 * set. */
static bags_code zr_add_member(
    bags_source *s, zr_array *a, zr_member member, const char *dtype) {
    size_t length = strlen(dtype);
    bool big = dtype[0] == '>';
    member.kind = length > 2 && strchr("<>|=", dtype[0]) ? dtype[1] : '?';
    member.offset = a->item;
    member.swap = 1;
    uint64_t unit = length > 2 ? strtoull(dtype + 2, NULL, 10) : 0;
    if (strchr("SUV", member.kind) && unit <= ZR_CHUNK / 4) {
        unit *= member.kind == 'U' ? 4 : 1;
        member.swap = member.kind == 'U' && big ? 4 : 1;
        if (member.dims > 0)
            return zr_refuse(s, a, "a shape of strings", dtype);
    } else {
        if (strchr("mM", member.kind) && unit == 8) {
            const char *in = strchr(dtype, '[');
            member.dtype = BAGS_DTYPE_INT64;
            if (in)
                member.unit = bags_source_text(s, in + 1, strcspn(in + 1, "]"));
            if (in && !member.unit)
                return BAGS_ERROR_MEMORY;
        } else
            member.dtype = bags_dtype_parse(dtype, length, &big);
        if (!member.dtype)
            return zr_refuse(s, a, "dtype", dtype);
        unit = bags_dtype_size(member.dtype);
        member.swap = big ? bags_dtype_swap(member.dtype) : 1;
    }
    member.size = (size_t)unit;
    for (size_t i = 0; i < member.dims; i++)
        if (!zr_times(&member.size, member.shape[i], ZR_CHUNK))
            return zr_refuse(s, a, "a record of 2 GiB", dtype);
    if (member.size > ZR_CHUNK - a->item)
        return zr_refuse(s, a, "a record of 2 GiB", dtype);
    a->item += member.size;
    if (!member.name)
        return BAGS_OK; /* padding */
    a->members = (zr_member *)bags_source_grow(s, a->members, a->count, sizeof member);
    if (!a->members)
        return BAGS_ERROR_MEMORY;
    a->members[a->count++] = member;
    return BAGS_OK;
}

/* Parse a JSON dtype: text, or a list of members, each [name, dtype] or [name, dtype,
 * shape]. */
static bags_code zr_dtype(
    bags_source *s, zr_array *a, json_object *dtype, const char *prefix, int depth) {
    zr_member member;
    memset(&member, 0, sizeof member);
    member.name = prefix;
    if (json_object_is_type(dtype, json_type_string))
        return zr_add_member(s, a, member, json_object_get_string(dtype));
    if (!json_object_is_type(dtype, json_type_array) || depth > ZR_DEPTH)
        return zr_bad(s, a, "invalid dtype");
    for (size_t i = 0; i < json_object_array_length(dtype); i++) {
        json_object *parts = json_object_array_get_idx(dtype, i);
        size_t count = json_object_is_type(parts, json_type_array)
                           ? json_object_array_length(parts)
                           : 0;
        json_object *key = count ? json_object_array_get_idx(parts, 0) : NULL;
        member.dims = 0;
        if (count < 2 || count > 3 || !json_object_is_type(key, json_type_string) ||
            (count == 3 && !zr_shape(json_object_array_get_idx(parts, 2), 1,
                               member.shape, &member.dims)))
            return zr_bad(s, a, "invalid member of the dtype");
        const char *text = json_object_get_string(key);
        member.name =
            bags_source_format(s, "%s%s%s", prefix, *prefix && *text ? "." : "", text);
        if (!member.name)
            return BAGS_ERROR_MEMORY;
        if (!*text)
            member.name = NULL; /* padding */
        json_object *type = json_object_array_get_idx(parts, 1);
        bool simple = json_object_is_type(type, json_type_string);
        if (!simple && (member.dims > 0 || !member.name))
            return zr_refuse(s, a, "an array of structures", text);
        FORMAT_TRY(simple ? zr_add_member(s, a, member, json_object_get_string(type))
                          : zr_dtype(s, a, type, member.name, depth + 1));
    }
    return BAGS_OK;
}

/* Convert a JSON number, or one of three words, to a little-endian float. */
static bool zr_float(json_object *value, size_t size, unsigned char *out) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    const double numbers[] = {(double)NAN, HUGE_VAL, -HUGE_VAL};
    bool is_int = json_object_is_type(value, json_type_int);
    bool is_double = json_object_is_type(value, json_type_double);
    const char *text = json_object_get_string(value);
    size_t word = 0;
    if (!is_int && !is_double && !json_object_is_type(value, json_type_string))
        return false;
    while (word < 3 && strcmp(text, words[word]) != 0)
        word++;
    if (word == 3 && !is_int && !is_double)
        return false;
    uint64_t whole = json_object_get_uint64(value);
    double number = word < 3                    ? numbers[word]
                    : is_double || *text == '-' ? json_object_get_double(value)
                                                : (double)whole;
    uint64_t bits;
    bool fits = format_real_bits(number, size, &bits);
    double held = format_real(bits, size);
    bags_store_bytes(out, size, false, bits);
    if (word < 3 || !fits || isinf(number))
        return word < 3;
    if (is_double)
        return format_is_decimal(text, number, held);
    return *text == '-' ? held >= -9223372036854775808.0 &&
                              (int64_t)held == json_object_get_int64(value)
                        : held < 18446744073709551616.0 &&
                              (uint64_t)held == json_object_get_uint64(value);
}

/* Convert a JSON number (2.0 is accepted) to a little-endian integer. */
static bool zr_integer(
    json_object *value, bool is_signed, size_t size, unsigned char *out) {
    const char *text = json_object_get_string(value);
    double number = json_object_get_double(value);
    bool is_double = json_object_is_type(value, json_type_double);
    if (is_double && !(number > -9e15 && number < 9e15))
        return false;
    if (!is_double && !json_object_is_type(value, json_type_int))
        return false;
    bool negative = is_double ? number < 0 : *text == '-';
    uint64_t bits = is_double  ? (uint64_t)(int64_t)number
                    : negative ? (uint64_t)json_object_get_int64(value)
                               : json_object_get_uint64(value);
    double whole = (double)(int64_t)bits;
    if (is_double && (whole < number || whole > number))
        return false;
    bags_store_bytes(out, size, false, bits);
    uint64_t most = UINT64_MAX >> (64 - 8 * size + is_signed);
    negative = negative && bits != 0; /* -0 */
    return negative ? is_signed && ~bits <= most : bits <= most;
}

/* Convert text to little-endian UCS-4. */
static bool zr_text(json_object *value, unsigned char *out, size_t size) {
    const unsigned char *text = (const unsigned char *)json_object_get_string(value);
    size_t length = (size_t)json_object_get_string_len(value), made = 0;
    for (size_t i = 0; i < length;) {
        unsigned char c = text[i++];
        size_t more = c < 0xC0 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        uint32_t point = more ? c & (0x3FU >> more) : c;
        for (; more > 0 && i < length; more--)
            point = point << 6 | (text[i++] & 0x3F);
        if (size - made < 4 || (point == 0 && i == length))
            return false; /* a trailing NUL would be padding */
        bags_store_bytes(out + made, 4, false, point);
        made += 4;
    }
    return true;
}

/* Write a fill value as an element. False unless the dtype can hold it exactly. Floats
 * and complex numbers have zarr-python's format; |S and |V are in Base64. */
static bool zr_element(const zr_array *a, json_object *value) {
    const zr_member *member = &a->members[0];
    bool plain = a->count == 1 && !*member->name;
    bool text = json_object_is_type(value, json_type_string);
    size_t size = member->size;
    unsigned char *fill = a->fill;
    char kind = plain ? member->kind : 'V';
    size_t bytes = SIZE_MAX; /* not text */
    if (text && strchr("SV", kind)) {
        const char *from = json_object_get_string(value);
        if (format_base64_decode(from, strlen(from), fill, a->item, &bytes))
            bytes = SIZE_MAX;
    }
    switch (kind) {
    case 'S':
        return bytes != SIZE_MAX;
    case 'V': /* older versions of zarr-python wrote 0 for zeros */
        return bytes == a->item || (json_object_is_type(value, json_type_int) &&
                                       json_object_get_int64(value) == 0);
    case 'U':
        return text && zr_text(value, fill, size);
    case 'f':
        return zr_float(value, size, fill);
    case 'c':
        if (!json_object_is_type(value, json_type_array))
            return !text && zr_float(value, size / 2, fill);
        return json_object_array_length(value) == 2 &&
               zr_float(json_object_array_get_idx(value, 0), size / 2, fill) &&
               zr_float(json_object_array_get_idx(value, 1), size / 2, fill + size / 2);
    case 'b':
        *fill = json_object_get_int64(value) != 0;
        return json_object_is_type(value, json_type_boolean) ||
               (json_object_is_type(value, json_type_int) &&
                   json_object_get_uint64(value) <= 1);
    default:
        return zr_integer(value, kind != 'u', size, fill);
    }
}

/* Parse the fill value. Without one, no chunk may be missing. */
static bags_code zr_fill(bags_source *s, zr_array *a, json_object *value) {
    if (!value)
        return BAGS_OK;
    a->fill = (unsigned char *)bags_source_alloc(s, a->item, 1);
    if (!a->fill)
        return BAGS_ERROR_MEMORY;
    if (!zr_element(a, value))
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "%s.zarray: fill_value: not a value of its dtype (%.200s)", a->key,
            json_object_get_string(value));
    if (a->count == 1 && a->members[0].swap > 1 && !*a->members[0].name)
        bags_swap_bytes(a->fill, a->fill, a->item, a->members[0].swap);
    return BAGS_OK;
}

/* Check that the metadata are supported, and set codec and separator. */
static bags_code zr_storage(bags_source *s, zr_array *a, json_object *about) {
    static const char *const codecs[] = {"blosc", "zlib", "gzip", "zstd", "lz4"};
    json_object *version = zr_get(about, "zarr_format");
    json_object *filters = zr_get(about, "filters");
    json_object *codec = zr_get(about, "compressor");
    const char *order = bags_import_json_text(about, "order");
    const char *separator = bags_import_json_text(about, "dimension_separator");
    if (json_object_get_int64(version) != 2)
        return zr_refuse(
            s, a, "zarr_format", version ? json_object_get_string(version) : "none");
    if (filters && (!json_object_is_type(filters, json_type_array) ||
                       json_object_array_length(filters) > 0))
        return zr_refuse(s, a, "filters", json_object_get_string(filters));
    if (strcmp(order, "C") != 0)
        return zr_refuse(s, a, "order", order);
    if (strlen(separator) > 1 || !strchr("./", *separator))
        return zr_refuse(s, a, "dimension_separator", separator);
    a->separator = *separator == '/' ? "/" : ".";
    if (!codec)
        return BAGS_OK;
    const char *id = bags_import_json_text(codec, "id");
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (strcmp(id, codecs[i]) == 0)
            a->codec = codecs[i];
    return a->codec ? BAGS_OK : zr_refuse(s, a, "compressor", id);
}

/* Compute the sizes of an array whose shape and members are known. */
static bags_code zr_sizes(bags_source *s, zr_array *a) {
    size_t across = 1;
    if (a->item == 0)
        return zr_bad(s, a, "a dtype of 0 bytes");
    a->row = a->chunk_size = a->item;
    for (size_t d = 0; d < a->dims; d++)
        if (!zr_times(&a->chunk_size, a->chunks[d], ZR_CHUNK) ||
            (d > 0 && !zr_times(&a->row, a->shape[d], ZR_VALUES)) ||
            (d > 0 && a->shape[d] > 0 &&
                !zr_times(&across, (a->shape[d] - 1) / a->chunks[d] + 1, ZR_ACROSS)))
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "%s.zarray: too large: a chunk of 2 GiB, a row of 1 GiB, or of "
                "%" PRIu64 " chunks",
                a->key, ZR_ACROSS);
    if (a->row == 0)
        return zr_refuse(s, a, "shape", "0 elements in a row");
    return BAGS_OK;
}

/* Read the metadata of the array at this key. The key ends in / or is empty. */
static bags_code zr_open_array(bags_source *s, zr_array *a, const char *key) {
    zr_state *z = (zr_state *)s->state;
    bags_view text;
    json_object *about = NULL;
    size_t chunk_dims = 0, size = strlen(key), root = strlen(z->root);
    char *name = bags_source_text(s, key + root, size - root);
    const char *file = bags_source_format(s, "%s.zarray", key);
    const char *path = file ? bags_source_format(s, "%s: %s", s->path, file) : NULL;
    a->key = key;
    a->name = name;
    if (!name || !path)
        return BAGS_ERROR_MEMORY;
    for (char *c = name; *c; c++)
        if (*c == '/')
            *c = c[1] ? '.' : 0;
    bags_code code = zr_read(s, file, ZR_METADATA, &text);
    if (code == BAGS_ERROR_MISSING)
        return bags_source_fail(s, code, "%s is missing", file);
    if (!code)
        code = bags_source_parse_json(s, path, text, &about);
    if (!code)
        code = zr_storage(s, a, about);
    if (!code && (!zr_shape(zr_get(about, "shape"), 0, a->shape, &a->dims) ||
                     !zr_shape(zr_get(about, "chunks"), 1, a->chunks, &chunk_dims) ||
                     a->dims != chunk_dims))
        code = zr_bad(s, a, "invalid shape or chunks");
    if (!code)
        code = zr_dtype(s, a, zr_get(about, "dtype"), "", 0);
    if (!code)
        code = zr_sizes(s, a);
    if (!code && a->count > 0)
        code = zr_fill(s, a, zr_get(about, "fill_value"));
    json_object_put(about);
    return code;
}

/* ---- chunks ---- */

/* Decompress a chunk into chunk_size bytes. */
static bool zr_decompress(const zr_array *a, bags_view in, unsigned char *out) {
    size_t size = a->chunk_size;
    if (strcmp(a->codec, "blosc") == 0) {
        size_t states;
        return blosc_cbuffer_validate(in.data, in.size, &states) == 0 &&
               states == size &&
               blosc_decompress_ctx(in.data, out, size, 1) == (int)size;
    }
    if (strcmp(a->codec, "zstd") == 0)
        return ZSTD_decompress(out, size, in.data, in.size) == size;
    if (strcmp(a->codec, "lz4") == 0) /* after the size */
        return in.size >= 4 &&
               LZ4_decompress_safe((const char *)in.data + 4, (char *)out,
                   (int)in.size - 4, (int)size) == (int)size;
    z_stream z;
    memset(&z, 0, sizeof z);
    z.next_in = (unsigned char *)(uintptr_t)in.data;
    z.avail_in = (uInt)in.size;
    z.next_out = out;
    z.avail_out = (uInt)size;
    if (inflateInit2(&z, 15 + 32) != Z_OK) /* zlib or gzip */
        return false;
    int end = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return end == Z_STREAM_END && z.avail_out == 0 && z.avail_in == 0;
}

/* Get the elements of a chunk. Data NULL: the chunk is missing, and all elements are
 * the fill value. */
static bags_code zr_chunk(
    bags_source *s, zr_array *a, const uint64_t *at, const unsigned char **data) {
    zr_state *z = (zr_state *)s->state;
    bags_view in;
    uint64_t limit =
        a->codec ? a->chunk_size + a->chunk_size / 8 + 4096 : a->chunk_size;
    const char *key = a->key;
    for (size_t d = 0; key && d < a->dims; d++)
        key = bags_source_format(s, "%s%s%" PRIu64, key, d ? a->separator : "", at[d]);
    if (key && a->dims == 0)
        key = bags_source_format(s, "%s0", key);
    if (!key)
        return BAGS_ERROR_MEMORY;
    bags_code code = zr_read(s, key, limit, &in);
    *data = NULL;
    if (code == BAGS_ERROR_MISSING && !a->fill)
        return bags_source_fail(
            s, BAGS_ERROR_GAP, "%s: is missing, and the array has no fill_value", key);
    if (code)
        return code == BAGS_ERROR_MISSING ? BAGS_OK : code;
    if (a->codec ? a->chunk_size / ZR_RATIO > in.size : in.size != a->chunk_size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%s: size of the chunk is wrong (%" PRIu64 " bytes for %" PRIu64 ")", key,
            (uint64_t)in.size, (uint64_t)a->chunk_size);
    *data = in.data;
    if (!a->codec)
        return BAGS_OK;
    FORMAT_TRY(bags_source_reserve(s, &z->chunk, a->chunk_size));
    *data = z->chunk->data;
    return zr_decompress(a, in, z->chunk->data)
               ? BAGS_OK
               : bags_source_fail(s, BAGS_ERROR_CORRUPT,
                     "%s: not a chunk of %" PRIu64 " bytes compressed by %s", key,
                     (uint64_t)a->chunk_size, a->codec);
}

/* Copy the part of a chunk in dimension d and later ones. `from` points into the chunk,
 * `to` into the band. Steps refer to the previous dimension. */
static void zr_copy(const zr_array *a, const uint64_t *at, size_t d,
    const unsigned char *from, unsigned char *to, size_t from_step, size_t to_step) {
    if (d == a->dims) {
        memcpy(to, from ? from : a->fill, a->item);
        return;
    }
    uint64_t start = at[d] * a->chunks[d], count = a->chunks[d];
    if (count > a->shape[d] - start)
        count = a->shape[d] - start;
    from_step /= (size_t)a->chunks[d];
    to_step /= (size_t)a->shape[d];
    to += start * to_step;
    if (d + 1 == a->dims && from) {
        memcpy(to, from, (size_t)count * a->item);
        return;
    }
    for (uint64_t i = 0; i < count; i++, to += to_step) {
        zr_copy(a, at, d + 1, from, to, from_step, to_step);
        from = from ? from + from_step : NULL;
    }
}

/* Load the band that contains this row; it covers at most one row of chunks. */
static bags_code zr_load(bags_source *s, zr_array *a, uint64_t row) {
    uint64_t at[BAGS_MAX_DIMS] = {0};
    uint64_t height = a->dims ? a->chunks[0] : 1, most = ZR_BAND / a->row;
    size_t step = a->chunk_size / (size_t)height, d;
    if (most == 0)
        most = 1;
    at[0] = row / height;
    uint64_t first = at[0] * height;
    uint64_t start = first + (row - first) / most * most;
    uint64_t stop = height - (start - first) < most ? first + height : start + most;
    if (a->dims && stop > a->shape[0])
        stop = a->shape[0];
    a->band_start = a->band_stop = 0;
    FORMAT_TRY(bags_source_reserve(s, &a->band, (size_t)(stop - start) * a->row));
    do {
        const unsigned char *chunk = NULL;
        FORMAT_TRY(zr_chunk(s, a, at, &chunk));
        for (uint64_t r = start; r < stop; r++)
            zr_copy(a, at, a->dims ? 1 : 0, chunk ? chunk + (r - first) * step : NULL,
                a->band->data + (r - start) * a->row, step, a->row);
        for (d = a->dims; d > 1; d--) { /* advance to the next chunk across */
            if (++at[d - 1] <= (a->shape[d - 1] - 1) / a->chunks[d - 1])
                break;
            at[d - 1] = 0;
        }
    } while (d > 1);
    a->band_start = start;
    a->band_stop = stop;
    return BAGS_OK;
}

/* ---- values ---- */

/* Convert UCS-4 to UTF-8 without trailing NULs; the result is not larger. Surrogates
 * and numbers above U+10FFFF become invalid UTF-8, and writers refuse that. */
static size_t zr_utf8(
    const unsigned char *from, size_t size, bool big, unsigned char *out) {
    size_t made = 0;
    while (size >= 4 && !memcmp(from + size - 4, "\0\0\0\0", 4))
        size -= 4;
    for (size_t i = 0; i + 4 <= size; i += 4) {
        uint32_t c = (uint32_t)bags_load_bytes(from + i, 4, big);
        if (c > 0x10FFFF)
            out[made++] = 0xFF;
        else
            made = (size_t)(format_utf8(out + made, c) - out);
    }
    return made;
}

/* Get the value of a member in a row; its bytes are written to `out`. */
static bags_value zr_value(const zr_array *a, const zr_member *member,
    const unsigned char *row, unsigned char *out) {
    const unsigned char *from = row + member->offset;
    size_t size = member->size, count = a->row / a->item;
    if (member->kind == 'U') {
        size = zr_utf8(from, size, member->swap > 1, out);
        return bags_utf8_sized((const char *)out, size);
    }
    for (size_t i = 0; i < count; i++)
        bags_swap_bytes(out + i * size, from + i * a->item, size, member->swap);
    if (member->number)
        return bags_import_integer(member->dtype, out);
    if (member->kind == 'S')
        while (size > 0 && out[size - 1] == 0)
            size--;
    return bags_blob(out, member->dtype ? count * size : size);
}

/* Set the entries of the array's fields to the values of rows start to stop. */
static bags_code zr_rows(bags_source *s, zr_array *a, uint64_t start, uint64_t stop) {
    uint64_t count = stop - start;
    if (a->count == 0)
        return BAGS_OK; /* only padding */
    if (count > ZR_VALUES / (a->row + a->count * sizeof(bags_value)))
        return bags_source_fail(s, BAGS_ERROR_LIMIT,
            "%s: rows %" PRIu64 " to %" PRIu64 " are too large", a->key, start, stop);
    unsigned char *out = (unsigned char *)bags_source_alloc(s, (size_t)count, a->row);
    bags_value *values =
        (bags_value *)bags_source_alloc(s, (size_t)count * a->count, sizeof *values);
    if (!out || !values)
        return BAGS_ERROR_MEMORY;
    for (uint64_t r = start; r < stop; r++) {
        FORMAT_TRY(r < a->band_start || r >= a->band_stop ? zr_load(s, a, r) : BAGS_OK);
        const unsigned char *row = a->band->data + (r - a->band_start) * a->row;
        for (size_t m = 0; m < a->count; m++) {
            const zr_member *member = &a->members[m];
            values[m * count + (r - start)] = zr_value(a, member, row, out);
            out += a->row / a->item * member->size;
        }
    }
    for (size_t m = 0; m < a->count; m++) {
        s->entries[a->first + m].values = values + m * count;
        s->entries[a->first + m].count = (size_t)count;
    }
    return BAGS_OK;
}

/* ---- L5Kit ---- */

static zr_array *zr_find(const zr_state *z, const char *name) {
    for (size_t i = 0; i < z->count; i++)
        if (strcmp(z->arrays[i].name, name) == 0)
            return &z->arrays[i];
    return NULL;
}

/* Find the member with this name, if it is two 64-bit integers: a start and a stop. */
static const zr_member *zr_interval(const zr_array *a, const char *name) {
    for (size_t i = 0; a && a->dims == 1 && i < a->count; i++)
        if (strcmp(a->members[i].name, name) == 0 && strchr("iu", a->members[i].kind) &&
            a->members[i].size == 16 && a->members[i].dims == 1 &&
            a->members[i].shape[0] == 2)
            return &a->members[i];
    return NULL;
}

/* Find the arrays of an L5Kit dataset, if the source is one. */
static bags_code zr_l5kit(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    zr_array *scenes = zr_find(z, "scenes"), *frames = zr_find(z, "frames");
    zr_array *agents = zr_find(z, "agents");
    zr_array *lights = zr_find(z, "traffic_light_faces");
    if (!lights)
        lights = zr_find(z, "tl_faces");
    if (!agents || agents->dims != 1 || !zr_interval(scenes, "frame_index_interval") ||
        !zr_interval(frames, "agent_index_interval"))
        return BAGS_OK;
    if (lights && (lights->dims != 1 ||
                      !zr_interval(frames, "traffic_light_faces_index_interval")))
        lights = NULL;
    for (size_t i = 0; i < z->count; i++) {
        zr_array *a = &z->arrays[i];
        bool known = a == scenes || a == frames || a == agents || a == lights;
        if (!known && strncmp(a->key, "agents_mask", 11) != 0)
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "%s: not an array of an L5Kit dataset; import it by itself", a->key);
        if (!known) {
            a->count = 0;
            bags_source_leave_out(s, "array", 1, "%s", a->name);
        }
    }
    z->scenes = scenes;
    z->frames = frames;
    z->agents = agents;
    z->lights = lights;
    return BAGS_OK;
}

/* Read the interval stored in a member of a row. */
static bags_code zr_refers(bags_source *s, zr_array *a, const char *name,
    const zr_array *to, uint64_t row, uint64_t *start, uint64_t *stop) {
    const zr_member *member = zr_interval(a, name);
    unsigned char bytes[16];
    FORMAT_TRY(
        row < a->band_start || row >= a->band_stop ? zr_load(s, a, row) : BAGS_OK);
    bags_swap_bytes(bytes,
        a->band->data + (row - a->band_start) * a->row + member->offset, 16,
        member->swap);
    *start = bags_load_bytes(bytes, 8, false);
    *stop = bags_load_bytes(bytes + 8, 8, false);
    if (*start <= *stop && *stop <= to->shape[0])
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "field \"%s.%s\": row %" PRIu64 ": invalid interval (%" PRId64 " to %" PRId64
        ", length %" PRIu64 ")",
        a->name, name, row, (int64_t)*start, (int64_t)*stop, to->shape[0]);
}

/* Rows that other rows refer to, as merged intervals. */
typedef struct zr_span {
    uint64_t start, stop;
} zr_span;

static int zr_compare_spans(const void *left, const void *right) {
    const zr_span *a = (const zr_span *)left, *b = (const zr_span *)right;
    return (a->start > b->start) - (a->start < b->start);
}

/* Report rows of `to` not referenced by any row of an array as left out. */
static bags_code zr_unused(bags_source *s, zr_array *a, const char *name,
    const zr_array *to, const char *what) {
    zr_span *spans = NULL;
    size_t count = 0;
    for (uint64_t row = 0; row < a->shape[0]; row++) {
        zr_span span;
        FORMAT_TRY(zr_refers(s, a, name, to, row, &span.start, &span.stop));
        if (span.start == span.stop)
            continue;
        if (count > 0 && spans[count - 1].stop == span.start) {
            spans[count - 1].stop = span.stop;
            continue;
        }
        spans = (zr_span *)bags_source_grow(s, spans, count, sizeof span);
        if (!spans)
            return BAGS_ERROR_MEMORY;
        spans[count++] = span;
    }
    if (count)
        qsort(spans, count, sizeof *spans, zr_compare_spans);
    uint64_t next = 0;
    for (size_t i = 0; i <= count; i++) {
        uint64_t start = i < count ? spans[i].start : to->shape[0];
        if (start > next)
            bags_source_leave_out(
                s, what, start - next, "%" PRIu64 " to %" PRIu64, next, start - 1);
        if (i < count && spans[i].stop > next)
            next = spans[i].stop;
    }
    return BAGS_OK;
}

/* Report the rows of an L5Kit dataset that belong to no frame. */
static bags_code zr_unused_rows(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    for (uint64_t row = 0; row < z->scenes->shape[0]; row++) {
        uint64_t start, stop;
        FORMAT_TRY(zr_refers(
            s, z->scenes, "frame_index_interval", z->frames, row, &start, &stop));
        if (start == stop)
            bags_source_leave_out(s, "empty scene", 1, "%" PRIu64, row);
    }
    FORMAT_TRY(
        zr_unused(s, z->frames, "agent_index_interval", z->agents, "unused agent"));
    if (z->lights)
        FORMAT_TRY(zr_unused(s, z->frames, "traffic_light_faces_index_interval",
            z->lights, "unused traffic light face"));
    return BAGS_OK;
}

/* Find the scene of a frame; scenes without frames are skipped. */
static bags_code zr_find_scene(bags_source *s, uint64_t frame) {
    zr_state *z = (zr_state *)s->state;
    while (frame >= z->scene_stop && z->scene < z->scenes->shape[0]) {
        uint64_t end = z->scene_stop;
        FORMAT_TRY(zr_rows(s, z->scenes, z->scene, z->scene + 1));
        FORMAT_TRY(zr_refers(s, z->scenes, "frame_index_interval", z->frames, z->scene,
            &z->scene_start, &z->scene_stop));
        if (z->scene_start < end && z->scene_start < z->scene_stop)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "field \"scenes.frame_index_interval\": row %" PRIu64
                ": overlaps an earlier scene",
                z->scene);
        if (z->scene_stop < end)
            z->scene_stop = end; /* empty */
        z->scene++;
    }
    if (frame < z->scene_start || frame >= z->scene_stop)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "frames: row %" PRIu64 ": not in a scene", frame);
    s->values[s->count - 1] = bags_int((int64_t)(z->scene - 1));
    return zr_rows(s, z->scenes, z->scene - 1, z->scene);
}

static bags_code zr_read_frame(bags_source *s, uint64_t frame) {
    zr_state *z = (zr_state *)s->state;
    uint64_t start = 0, stop = 0;
    FORMAT_TRY(zr_find_scene(s, frame));
    FORMAT_TRY(zr_rows(s, z->frames, frame, frame + 1));
    FORMAT_TRY(zr_refers(
        s, z->frames, "agent_index_interval", z->agents, frame, &start, &stop));
    FORMAT_TRY(zr_rows(s, z->agents, start, stop));
    if (!z->lights)
        return BAGS_OK;
    FORMAT_TRY(zr_refers(s, z->frames, "traffic_light_faces_index_interval", z->lights,
        frame, &start, &stop));
    return zr_rows(s, z->lights, start, stop);
}

/* ---- open ---- */

/* Add a field for each member of an array; see the top of this file. */
static bags_code zr_add_fields(bags_source *s, zr_array *a) {
    zr_state *z = (zr_state *)s->state;
    bool sequence = z->agents && (a == z->agents || a == z->lights);
    bool prefix = *a->name && a != z->frames;
    a->first = s->count;
    for (size_t m = 0; m < a->count; m++) {
        zr_member *member = &a->members[m];
        uint64_t shape[2 * BAGS_MAX_DIMS];
        size_t dims = a->dims > 1 ? a->dims - 1 : 0;
        const char *type = member->kind == 'U' ? "utf8" : "bytes";
        if (!member->dtype && dims > 0)
            return zr_refuse(s, a, "rows of strings", member->name);
        if (dims)
            memcpy(shape, a->shape + 1, dims * sizeof *shape);
        memcpy(shape + dims, member->shape, member->dims * sizeof *shape);
        dims += member->dims;
        if (dims > BAGS_MAX_DIMS)
            return zr_refuse(s, a, "number of dimensions", member->name);
        member->number = bags_import_is_integer(member->dtype) && dims == 0;
        type = member->dtype
                   ? bags_source_number_type(s, member->dtype, dims, shape, sequence)
                   : bags_source_format(s, "%s%s", type, sequence ? "[]" : "");
        const char *name = bags_source_format(s, "%s%s%s", prefix ? a->name : "",
            prefix && *member->name ? "." : "",
            !prefix && !*member->name ? "data" : member->name);
        if (member->unit)
            name = bags_source_unit(s, name, member->unit);
        bags_source_field(s, name, type);
    }
    return BAGS_OK;
}

static int zr_add_key(
    bags_source *s, const char ***keys, size_t *count, const char *key, size_t size) {
    const char *copy = bags_source_text(s, key, size);
    const char **grown =
        copy ? (const char **)bags_source_grow(s, *keys, *count, sizeof copy) : NULL;
    if (!grown)
        return ENOMEM;
    *keys = grown;
    grown[(*count)++] = copy;
    return 0;
}

/* Report attributes as left out. */
static bags_code zr_attributes(bags_source *s, const char *key) {
    zr_state *z = (zr_state *)s->state;
    const char *file = bags_source_format(s, "%s.zattrs", key);
    const char *path = file ? bags_source_format(s, "%s: %s", s->path, file) : NULL;
    json_object *about = NULL;
    bags_view text = {NULL, 0};
    FORMAT_TRY(path ? zr_read(s, file, ZR_METADATA, &text) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(bags_source_parse_json(s, path, text, &about));
    json_object_iter at;
    json_object_object_foreachC(about, at) {
        bags_source_leave_out(
            s, "attribute", 1, "%s@%s", key + strlen(z->root), at.key);
    }
    json_object_put(about);
    return BAGS_OK;
}

/* ---- files ---- */

/* True if a name in the array's directory is the name of one of its chunks. */
static bool zr_is_chunk(const zr_array *a, const char *name, char separator) {
    size_t dims = a->dims ? a->dims : 1;
    for (size_t d = 0; d < dims; d++) {
        size_t digits = strspn(name, "0123456789");
        uint64_t length = a->dims ? a->shape[d] : 1, chunk = a->dims ? a->chunks[d] : 1;
        if (digits == 0 || digits > 19 || (digits > 1 && *name == '0') || !length ||
            strtoull(name, NULL, 10) > (length - 1) / chunk)
            return false;
        name += digits;
        if (d + 1 < dims && *name++ != separator)
            return false;
    }
    return *name == 0;
}

/* Report a file not stored in any field; it may belong to an array or to none. */
static int zr_other_file(bags_source *s, zr_array *a, const char *key) {
    const char *root = ((const zr_state *)s->state)->root;
    size_t size = strlen(root);
    bags_source_leave_out(
        s, "other file", 1, "%s", key + (strncmp(key, root, size) ? 0 : size));
    if (!a)
        return 0;
    bool is_chunk =
        zr_is_chunk(a, key + strlen(a->key), *a->separator == '.' ? '/' : '.');
    if (a->other &&
        (is_chunk != a->other_is_chunk ? a->other_is_chunk : strcmp(a->other, key) < 0))
        return 0;
    a->other_is_chunk = is_chunk;
    a->other = bags_source_text(s, key, strlen(key));
    return a->other ? 0 : ENOMEM;
}

/* A directory of the source, and its array. */
typedef struct zr_directory {
    bags_source *s;
    zr_array *array;
    const char *key;
    int depth;
} zr_directory;

/* Find the files of an array in a directory, and below. For chunks, only names are
 * checked, since there may be millions. */
static int zr_walk_array(void *user, const char *name) {
    const zr_directory *in = (const zr_directory *)user;
    const bags_io *io = bags_io_local();
    bags_source *s = in->s;
    zr_state *z = (zr_state *)s->state;
    bags_path_kind kind = BAGS_PATH_NONE;
    zr_directory below = {s, in->array, NULL, in->depth + 1};
    size_t size = strlen(in->key), more = strlen(name);
    if (name[0] == '.')
        return 0;
    if (bags_source_reserve(s, &z->path, size + more))
        return ENOMEM;
    char *key = (char *)memcpy(z->path->data, in->key, size);
    memcpy(key + size, name, more + 1);
    if (zr_is_chunk(in->array, key + strlen(in->array->key), *in->array->separator)) {
        in->array->has_chunk = true;
        return 0;
    }
    below.key = bags_source_format(s, "%s/", key);
    const char *path =
        below.key ? bags_source_format(s, "%s/%s", s->path, below.key) : NULL;
    int error = path ? io->kind(io->user, path, &kind) : ENOMEM;
    if (error || kind != BAGS_PATH_DIRECTORY)
        return error ? error : zr_other_file(s, in->array, key);
    return below.depth > BAGS_MAX_DIMS
               ? ELOOP
               : io->list(io->user, path, zr_walk_array, &below);
}

/* Find the files of the arrays in a .zip; both lists are sorted. */
static int zr_walk_members(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    size_t next = 0;
    int error = 0;
    for (size_t i = 0; !error && i < z->entry_count; i++) {
        const char *name = z->entries[i].name;
        size_t size = strlen(name);
        if (name[0] == '.' || strstr(name, "/.") || size == 0 || name[size - 1] == '/')
            continue;
        while (next < z->count && strcmp(z->arrays[next].key, name) <= 0)
            next++;
        zr_array *a = next ? &z->arrays[next - 1] : NULL;
        if (a && strncmp(name, a->key, strlen(a->key)) != 0)
            a = NULL;
        if (a && zr_is_chunk(a, name + strlen(a->key), *a->separator))
            a->has_chunk = true;
        else
            error = zr_other_file(s, a, name);
    }
    return error;
}

/* Find the files of the arrays. An array without chunks consists of fill values, but if
 * it has files, they may be chunks under unexpected names. */
static bags_code zr_check_files(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    const bags_io *io = bags_io_local();
    int error = z->zip ? zr_walk_members(s) : 0;
    for (size_t i = 0; !error && !z->zip && i < z->count; i++) {
        zr_directory top = {s, &z->arrays[i], z->arrays[i].key, 0};
        const char *path = bags_source_format(s, "%s/%s", s->path, top.key);
        error = path ? io->list(io->user, path, zr_walk_array, &top) : ENOMEM;
    }
    if (error)
        return error == ENOMEM
                   ? bags_source_no_memory(s)
                   : bags_source_fail(s, BAGS_ERROR_IO, "%s", strerror(error));
    for (size_t i = 0; i < z->count; i++) {
        const zr_array *a = &z->arrays[i];
        const char *first = a->key;
        if (a->has_chunk || !a->other || (a->dims && a->shape[0] == 0))
            continue;
        for (size_t d = 0; first && d < (a->dims ? a->dims : 1); d++)
            first = bags_source_format(s, "%s%s0", first, d ? a->separator : "");
        if (!first)
            return BAGS_ERROR_MEMORY;
        const char *remedy =
            a->other_is_chunk
                ? bags_source_format(s,
                      "; set \"dimension_separator\": \"%s\" in %s.zarray",
                      *a->separator == '.' ? "/" : ".", a->key)
                : "";
        return bags_source_fail(s, BAGS_ERROR_MISSING,
            "no chunk has a name that %s.zarray states (found %s, expected %s)%s",
            a->key, a->other, first, remedy ? remedy : "");
    }
    return BAGS_OK;
}

/* Find the arrays in a directory, and below. */
static int zr_walk(void *user, const char *name) {
    const zr_directory *in = (const zr_directory *)user;
    const bags_io *io = bags_io_local();
    bags_source *s = in->s;
    bags_path_kind kind = BAGS_PATH_NONE;
    zr_directory below = {s, NULL, NULL, in->depth + 1};
    below.key = *name ? bags_source_format(s, "%s%s/", in->key, name) : "";
    const char *path =
        below.key ? bags_source_format(s, "%s/%s", s->path, below.key) : NULL;
    if (!path)
        return ENOMEM;
    zr_state *z = (zr_state *)s->state;
    int error = name[0] == '.' ? 0 : io->kind(io->user, path, &kind);
    if (!error && kind == BAGS_PATH_NONE && name[0] != '.')
        bags_source_leave_out(s, "other file", 1, "%s%s", in->key, name);
    if (error || kind != BAGS_PATH_DIRECTORY)
        return error;
    if (bags_import_kind(path, ".zattrs") == BAGS_PATH_FILE)
        error = zr_add_key(
            s, &z->attributes, &z->attributes_count, below.key, strlen(below.key));
    if (!error && bags_import_kind(path, ".zarray") != BAGS_PATH_NONE)
        return zr_add_key(s, &z->keys, &z->key_count, below.key, strlen(below.key));
    if (error)
        return error;
    return below.depth > ZR_DEPTH ? ELOOP : io->list(io->user, path, zr_walk, &below);
}

/* A .zip may contain the directory itself, so its root is the shortest key. */
static int zr_walk_zip(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    size_t root = SIZE_MAX;
    for (size_t i = 0; i < z->entry_count; i++) {
        const char *name = z->entries[i].name;
        size_t size = strlen(name);
        bool array = size >= 7 && !strcmp(name + size - 7, ".zarray");
        bool group = size >= 7 && !strcmp(name + size - 7, ".zgroup");
        bool about = size >= 7 && !strcmp(name + size - 7, ".zattrs");
        if (size > 7 && name[size - 8] != '/')
            continue;
        if (about &&
            zr_add_key(s, &z->attributes, &z->attributes_count, name, size - 7))
            return ENOMEM;
        if (!array && !group)
            continue;
        if (size - 7 < root) {
            root = size - 7;
            z->root = bags_source_text(s, name, root);
            if (!z->root)
                return ENOMEM;
        }
        if (array && zr_add_key(s, &z->keys, &z->key_count, name, size - 7))
            return ENOMEM;
    }
    return 0;
}

static int zr_compare(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Find the source's arrays, ordered by name, and read their metadata. */
static bags_code zr_open_arrays(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    bags_path_kind kind = bags_import_kind(s->path, NULL);
    zr_directory top = {s, NULL, "", 0};
    if (kind == BAGS_PATH_NONE)
        return bags_source_fail(
            s, BAGS_ERROR_MISSING, "cannot open: No such file or directory");
    if (kind == BAGS_PATH_FILE) {
        zip_error_t why;
        int error = 0;
        z->zip = zip_open(s->path, ZIP_RDONLY | ZIP_CHECKCONS, &error);
        if (error == ZIP_ER_EXISTS) /* two arrays with the same name */
            z->zip = zip_open(s->path, ZIP_RDONLY, &error);
        zip_error_init_with_code(&why, error);
        if (!z->zip)
            bags_source_fail(s, BAGS_ERROR_CORRUPT, "cannot open as .zip: %s",
                zip_error_strerror(&why));
        zip_error_fini(&why);
        if (!z->zip)
            return BAGS_ERROR_CORRUPT;
    }
    bags_view unused;
    bags_code code = z->zip ? zr_list_zip(s) : BAGS_OK;
    if (!code)
        code = zr_read(s, "zarr.json", ZR_METADATA, &unused);
    if (code == BAGS_ERROR_MEMORY)
        return code;
    if (code != BAGS_ERROR_MISSING)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "zarr.json: Zarr version 3 is not supported");
    int error = z->zip ? zr_walk_zip(s) : zr_walk(&top, "");
    if (error == ENOMEM)
        return bags_source_no_memory(s);
    if (error || z->key_count == 0)
        return bags_source_fail(s, error ? BAGS_ERROR_IO : BAGS_ERROR_MISSING, "%s",
            error ? strerror(error) : "no Zarr array in it");
    qsort(z->keys, z->key_count, sizeof *z->keys, zr_compare);
    z->arrays = (zr_array *)bags_source_alloc(s, z->key_count, sizeof *z->arrays);
    code = z->arrays ? BAGS_OK : BAGS_ERROR_MEMORY;
    for (; !code && z->count < z->key_count; z->count++)
        code = zr_open_array(s, &z->arrays[z->count], z->keys[z->count]);
    if (!code)
        code = zr_check_files(s);
    for (size_t i = 0; !code && i < z->attributes_count; i++)
        code = zr_attributes(s, z->attributes[i]);
    return code;
}

static void zr_close(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    if (z->zip)
        zip_discard(z->zip);
}

static bags_code zr_open(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    z->root = "";
    FORMAT_TRY(zr_open_arrays(s));
    FORMAT_TRY(zr_l5kit(s));
    const zr_array *first = z->frames;
    for (size_t i = 0; !first && i < z->count; i++)
        first = z->arrays[i].dims ? &z->arrays[i] : NULL;
    s->length = first ? first->shape[0] : 1;
    for (size_t i = 0; i < z->count; i++) {
        zr_array *a = &z->arrays[i];
        if (!z->scenes && a->dims && a->shape[0] != s->length)
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "the arrays differ in length (%s %" PRIu64 ", %s %" PRIu64
                "); import a group or an array of it",
                first->name, s->length, a->name, a->shape[0]);
        FORMAT_TRY(zr_add_fields(s, a));
    }
    if (z->scenes)
        bags_source_field(s, "scene_index", "i64");
    return z->scenes ? zr_unused_rows(s) : BAGS_OK;
}

static bags_code zr_read_row(bags_source *s, uint64_t index) {
    zr_state *z = (zr_state *)s->state;
    if (s->ended)
        return BAGS_OK;
    if (z->scenes)
        return zr_read_frame(s, index);
    for (size_t i = 0; i < z->count; i++) {
        uint64_t row = z->arrays[i].dims ? index : 0;
        FORMAT_TRY(zr_rows(s, &z->arrays[i], row, row + 1));
    }
    return BAGS_OK;
}

const bags_importer bags_import_zarr = {
    "zarr", bags_import_is_zarr, sizeof(zr_state), zr_open, zr_read_row, zr_close};
