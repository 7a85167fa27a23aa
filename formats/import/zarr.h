/*
 * zarr.h - the arrays of a Zarr source: reading keys, and parsing the metadata of
 * versions 2 and 3. For zarr.c. Private.
 *
 *     version 2                              version 3
 *     x/.zgroup, x/.zattrs                   x/zarr.json   node_type "group"
 *     x/a/.zarray, x/a/.zattrs               x/a/zarr.json node_type "array"
 *     x/a/0.1 or x/a/0/1                     x/a/c/0/1, x/a/c.0.1, x/a/0.1 or x/a/0/1
 *
 * A file of an array contains a chunk or, in version 3, a shard: an index, and several
 * chunks that were compressed one by one.
 */
#ifndef BAGS_IMPORT_ZARR_H
#define BAGS_IMPORT_ZARR_H

#include "json.h"
#include "text.h"
#include "try.h"
#include "unzip.h"
#include "values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ZR_BAND ((uint64_t)64 << 20)    /* bytes in memory per array, or one row */
#define ZR_VALUES ((uint64_t)1 << 30)   /* maximum bytes of an array per datapoint */
#define ZR_CHUNK ((uint64_t)INT32_MAX)  /* maximum bytes of a chunk, as in Blosc */
#define ZR_RATIO ((uint64_t)1 << 16)    /* no codec expands a byte to more */
#define ZR_METADATA ((uint64_t)1 << 20) /* maximum bytes of .zarray */
#define ZR_NODE ((uint64_t)16 << 20)    /* maximum bytes of zarr.json */
#define ZR_INNER ((uint64_t)1 << 22)    /* maximum number of chunks in a shard */
#define ZR_CODECS 8                     /* maximum number of codecs of bytes */
#define ZR_ACROSS ((uint64_t)1 << 20)   /* maximum number of chunks that a row spans */
#define ZR_SHARD ((uint64_t)16 << 30)   /* bytes of a shard that may be sparse */
#define ZR_FILL 100 /* maximum bytes of fill values per byte of stored chunks, */
#define ZR_FILL_LEAST ((uint64_t)1 << 30) /* if they are more than these */
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
    int version;       /* 2 or 3 */
    const char *about; /* static: the name of its metadata: ".zarray", "zarr.json" */
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS], chunks[BAGS_MAX_DIMS];
    uint64_t
        grid[BAGS_MAX_DIMS]; /* elements of a file: a chunk, or a shard of several */
    const char *prefix;      /* static: precedes the numbers in names of files */
    const char *separator;   /* static: "." or "/" */
    const char *codecs[ZR_CODECS]; /* static names of `codec_count` codecs of bytes, in
                                    * the order in which they were applied */
    size_t codec_count;
    bool transposed; /* dimension i of stored chunks is dimension order[i]. */
    size_t order[BAGS_MAX_DIMS];
    size_t item, row; /* bytes of a record; bytes of a row of records */
    size_t chunk_size;
    unsigned char *fill; /* a record; NULL: none */
    zr_member *members;
    size_t count; /* number of members */
    size_t first; /* number of its first field */
    /* Shards: the layout of their indexes, and the shard whose index was read last. */
    bool sharded, index_first, index_crc, index_big;
    bool shard_known, shard_missing;
    uint64_t shard[BAGS_MAX_DIMS];
    bags_buffer *index, *whole; /* whole: the shard, if it is in a .zip */
    size_t whole_size;
    /* Found in the array's directory: the number of files that are chunks; and the key of
     * some other file, preferably a chunk with the other separator, or NULL. */
    uint64_t chunk_count;
    bool other_is_chunk;
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
    bags_buffer *file, *chunk, *other, *path;
    bags_code failed;     /* the failure of a walk, if it is not an errno */
    const char *found[4]; /* by version: the key of some node, or NULL */
    const char **keys;    /* keys of arrays */
    size_t key_count;
    const char **attributes; /* keys of .zattrs, without the name .zattrs */
    size_t attributes_count;
    zr_array *arrays;
    size_t count;
    /* L5Kit's arrays; scenes is NULL for any other source. */
    zr_array *scenes, *frames, *agents, *lights;
    uint64_t scene, scene_start, scene_stop;
    /* A replay buffer: the array of the ends of its episodes, and its values; NULL for
     * any other source. */
    zr_array *ends;
    uint64_t *stops;
} zr_state;

/* ---- keys and bytes ---- */

static inline int zr_compare_entries(const void *a, const void *b) {
    const zr_entry *x = (const zr_entry *)a, *y = (const zr_entry *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* List the members. zarr-python adds a member again when it changes a chunk, so the
 * last member with a name counts. */
static inline bags_code zr_list_zip(bags_source *s) {
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

static inline int zr_compare_name(const void *name, const void *entry) {
    return strcmp((const char *)name, ((const zr_entry *)entry)->name);
}

static inline bags_code zr_read_zip(bags_source *s, const char *key, uint64_t limit,
    bags_buffer **buffer, bags_view *out) {
    zr_state *z = (zr_state *)s->state;
    const zr_entry *entry = (const zr_entry *)bsearch(
        key, z->entries, z->entry_count, sizeof *entry, zr_compare_name);
    if (!entry)
        return BAGS_ERROR_MISSING;
    const char *name = bags_source_format(s, "%s: %s", s->where, key);
    bags_code code = name ? bags_source_reserve(s, buffer, 0) : BAGS_ERROR_MEMORY;
    return code ? code
                : format_unzip(z->zip, entry->index, name, limit, *buffer, out, s->err);
}

/* Read the bytes of a key. BAGS_ERROR_MISSING if the key does not exist. */
static inline bags_code zr_read(
    bags_source *s, const char *key, uint64_t limit, bags_view *out) {
    zr_state *z = (zr_state *)s->state;
    if (z->zip)
        return zr_read_zip(s, key, limit, &z->file, out);
    const char *path = bags_source_format(s, "%s/%s", s->path, key);
    return path ? bags_source_load(s, path, limit, out) : BAGS_ERROR_MEMORY;
}

/* ---- metadata ---- */

static inline bags_code zr_bad(bags_source *s, const zr_array *a, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "%s%s: %s", a->key, a->about, what);
}

static inline bags_code zr_refuse(
    bags_source *s, const zr_array *a, const char *what, const char *name) {
    return bags_source_fail(s, BAGS_ERROR_TYPE, "%s%s: %s not supported (%.200s)",
        a->key, a->about, what, name);
}

static inline json_object *zr_get(json_object *object, const char *name) {
    json_object *value = NULL;
    return json_object_object_get_ex(object, name, &value) ? value : NULL;
}

/* Parse a shape: numbers of at least `least`. False if it is invalid. */
static inline bool zr_shape(
    json_object *list, int64_t least, uint64_t *shape, size_t *dims) {
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
static inline bool zr_times(size_t *a, uint64_t b, uint64_t limit) {
    if (b && *a > limit / b)
        return false;
    *a = (size_t)(*a * b);
    return true;
}

/* Append a member with a simple dtype such as "<f4"; its name and shape are already
 * set. */
static inline bags_code zr_add_member(
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
static inline bags_code zr_dtype(
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
static inline bool zr_float(json_object *value, size_t size, unsigned char *out) {
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

/* The same for an array; in Zarr 3, also the bits in hexadecimal: "0x7fc00000". */
static inline bool zr_real(
    const zr_array *a, json_object *value, size_t size, unsigned char *out) {
    const char *text = json_object_is_type(value, json_type_string)
                           ? json_object_get_string(value)
                           : "";
    if (a->version != 3 || strncmp(text, "0x", 2) != 0)
        return zr_float(value, size, out);
    if (strlen(text) != 2 + 2 * size ||
        strspn(text + 2, "0123456789abcdefABCDEF") != 2 * size)
        return false;
    bags_store_bytes(out, size, false, strtoull(text + 2, NULL, 16));
    return true;
}

/* Convert a JSON list of `size` numbers below 256 to bytes. */
static inline bool zr_byte_list(json_object *list, unsigned char *out, size_t size) {
    if (json_object_array_length(list) != size)
        return false;
    for (size_t i = 0; i < size; i++) {
        json_object *byte = json_object_array_get_idx(list, i);
        if (!json_object_is_type(byte, json_type_int) ||
            json_object_get_uint64(byte) > 255 || json_object_get_int64(byte) < 0)
            return false;
        out[i] = (unsigned char)json_object_get_int64(byte);
    }
    return true;
}

/* Convert a JSON number (2.0 is accepted) to a little-endian integer. */
static inline bool zr_integer(
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
static inline bool zr_text(json_object *value, unsigned char *out, size_t size) {
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
static inline bool zr_element(const zr_array *a, json_object *value) {
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
        if (json_object_is_type(value, json_type_array))
            return a->version == 3 && zr_byte_list(value, fill, a->item);
        return bytes == a->item || (json_object_is_type(value, json_type_int) &&
                                       json_object_get_int64(value) == 0);
    case 'U':
        return text && zr_text(value, fill, size);
    case 'f':
        return zr_real(a, value, size, fill);
    case 'c':
        if (!json_object_is_type(value, json_type_array))
            return !text && zr_float(value, size / 2, fill);
        return json_object_array_length(value) == 2 &&
               zr_real(a, json_object_array_get_idx(value, 0), size / 2, fill) &&
               zr_real(
                   a, json_object_array_get_idx(value, 1), size / 2, fill + size / 2);
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
static inline bags_code zr_fill(bags_source *s, zr_array *a, json_object *value) {
    if (!value)
        return BAGS_OK;
    a->fill = (unsigned char *)bags_source_alloc(s, a->item, 1);
    if (!a->fill)
        return BAGS_ERROR_MEMORY;
    if (!zr_element(a, value))
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "%s%s: fill_value: not a value of its dtype (%.200s)", a->key, a->about,
            json_object_get_string(value));
    if (a->count == 1 && a->members[0].swap > 1 && !*a->members[0].name)
        bags_swap_bytes(a->fill, a->fill, a->item, a->members[0].swap);
    return BAGS_OK;
}

/* Check that the metadata are supported, and set codec and separator. */
static inline bags_code zr_storage(bags_source *s, zr_array *a, json_object *about) {
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
    a->prefix = "";
    if (!codec)
        return BAGS_OK;
    const char *id = bags_import_json_text(codec, "id");
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (strcmp(id, codecs[i]) == 0)
            a->codecs[a->codec_count++] = codecs[i];
    return a->codec_count ? BAGS_OK : zr_refuse(s, a, "compressor", id);
}

/* Compute the sizes of an array whose shape and members are known. */
static inline bags_code zr_sizes(bags_source *s, zr_array *a) {
    size_t across = 1, inner = 1;
    if (a->item == 0)
        return zr_bad(s, a, "a dtype of 0 bytes");
    a->row = a->chunk_size = a->item;
    for (size_t d = 0; d < a->dims; d++)
        if (!zr_times(&a->chunk_size, a->chunks[d], ZR_CHUNK) ||
            !zr_times(&inner, a->grid[d] / a->chunks[d], ZR_INNER) ||
            (d > 0 && !zr_times(&a->row, a->shape[d], ZR_VALUES)) ||
            (d > 0 && a->shape[d] > 0 &&
                !zr_times(&across, (a->shape[d] - 1) / a->chunks[d] + 1, ZR_ACROSS)))
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "%s%s: too large: a chunk of 2 GiB, a row of 1 GiB, or of "
                "%" PRIu64 " chunks%s",
                a->key, a->about, ZR_ACROSS,
                a->sharded ? ", or a shard of 4194304 chunks" : "");
    if (a->row == 0)
        return zr_refuse(s, a, "shape", "0 elements in a row");
    return BAGS_OK;
}

/* ---- zarr.json ---- */

/* Get the name of {"name": NAME, "configuration": {...}}, or of the short form NAME; ""
 * if it is neither. *configuration is NULL if there is none. */
static const char *zr_named(json_object *value, json_object **configuration) {
    *configuration = NULL;
    if (json_object_is_type(value, json_type_string))
        return json_object_get_string(value);
    *configuration = bags_import_member(value, "configuration", json_type_object);
    return bags_import_json_text(value, "name");
}

/* Parse a data type: set the only member of the array. Numbers are little-endian until
 * the codec `bytes` is known. */
static inline bags_code zr_data_type(bags_source *s, zr_array *a, json_object *type) {
    static const char *const known[][2] = {{"bool", "|b1"}, {"int8", "|i1"},
        {"int16", "<i2"}, {"int32", "<i4"}, {"int64", "<i8"}, {"uint8", "|u1"},
        {"uint16", "<u2"}, {"uint32", "<u4"}, {"uint64", "<u8"}, {"float16", "<f2"},
        {"float32", "<f4"}, {"float64", "<f8"}, {"complex64", "<c8"},
        {"complex128", "<c16"}};
    static const char *const sized[][2] = {{"fixed_length_utf32", "<U"},
        {"null_terminated_bytes", "|S"}, {"raw_bytes", "|V"}};
    json_object *how;
    const char *name = zr_named(type, &how);
    const char *dtype = NULL;
    int64_t size = json_object_get_int64(zr_get(how, "length_bytes"));
    size_t digits = *name == 'r' ? strspn(name + 1, "0123456789") : 0;
    zr_member member;
    memset(&member, 0, sizeof member);
    member.name = "";
    bool plain = !how || json_object_object_length(how) == 0;
    for (size_t i = 0; plain && i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i][0]) == 0)
            dtype = known[i][1];
    for (size_t i = 0; size > 0 && i < sizeof sized / sizeof *sized; i++)
        if (strcmp(name, sized[i][0]) == 0 && (i > 0 || size % 4 == 0))
            dtype = bags_source_format(
                s, "%s%" PRId64, sized[i][1], i > 0 ? size : size / 4);
    if (digits > 0 && digits < 10 && name[digits + 1] == 0 && atoi(name + 1) % 8 == 0)
        dtype = bags_source_format(s, "|V%d", atoi(name + 1) / 8);
    if (strcmp(name, "numpy.datetime64") == 0 ||
        strcmp(name, "numpy.timedelta64") == 0) {
        const char *unit = bags_import_json_text(how, "unit");
        json_object *factor = zr_get(how, "scale_factor");
        size = factor ? json_object_get_int64(factor) : 1;
        if (!*unit || strlen(unit) > 7 || size < 1 || size > INT32_MAX)
            return zr_refuse(s, a, "data_type", json_object_get_string(type));
        char count[24] = "";
        if (size > 1)
            snprintf(count, sizeof count, "%" PRId64, size);
        dtype = strcmp(unit, "generic") == 0
                    ? bags_source_format(s, "<%c8", name[6] == 'd' ? 'M' : 'm')
                    : bags_source_format(
                          s, "<%c8[%s%s]", name[6] == 'd' ? 'M' : 'm', count, unit);
    }
    if (!dtype)
        return zr_refuse(
            s, a, "data_type", type ? json_object_get_string(type) : "none");
    return zr_add_member(s, a, member, dtype);
}

/* Check that an object of the metadata has no member that a reader must understand. */
static inline bags_code zr_check_members(
    bags_source *s, const zr_array *a, json_object *about, const char *const *known) {
    json_object_iter at;
    json_object_object_foreachC(about, at) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], at.key) != 0)
            i++;
        json_object *must =
            bags_import_member(at.val, "must_understand", json_type_boolean);
        if (!known[i] && (!must || json_object_get_boolean(must)))
            return zr_refuse(s, a, "member", at.key);
    }
    return BAGS_OK;
}

/* Parse the codec `transpose`: an order of the dimensions. */
static inline bags_code zr_transpose(bags_source *s, zr_array *a, json_object *how) {
    json_object *list = zr_get(how, "order");
    uint64_t next[BAGS_MAX_DIMS];
    size_t dims = 0, order[BAGS_MAX_DIMS];
    bool seen[BAGS_MAX_DIMS] = {false};
    if (!zr_shape(list, 0, next, &dims) || dims != a->dims)
        return zr_refuse(s, a, "codec transpose of order",
            list ? json_object_get_string(list) : "none");
    for (size_t i = 0; i < dims; i++) {
        if (next[i] >= dims || seen[next[i]])
            return zr_bad(s, a, "codec transpose: not an order of the dimensions");
        seen[next[i]] = true;
        order[i] = a->order[next[i]];
    }
    memcpy(a->order, order, dims * sizeof *order);
    a->transposed = true;
    return BAGS_OK;
}

/* Parse the codec `bytes`: the byte order. */
static inline bags_code zr_endian(
    bags_source *s, const zr_array *a, json_object *how, bool needed, bool *big) {
    json_object *endian = zr_get(how, "endian");
    const char *word = bags_import_json_text(how, "endian");
    *big = strcmp(word, "big") == 0;
    if (endian ? !*big && strcmp(word, "little") != 0 : needed)
        return zr_refuse(s, a, "codec bytes of endian",
            endian ? json_object_get_string(endian) : "none");
    return BAGS_OK;
}

/* Parse the codecs of a shard's index. They must not change its size. */
static inline bags_code zr_index_codecs(
    bags_source *s, zr_array *a, json_object *list) {
    size_t count =
        json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (count == 0)
        return zr_bad(s, a, "codec sharding_indexed: no index_codecs");
    for (size_t i = 0; i < count; i++) {
        json_object *how, *codec = json_object_array_get_idx(list, i);
        const char *name = zr_named(codec, &how);
        if (i == 0 && strcmp(name, "bytes") == 0)
            FORMAT_TRY(zr_endian(s, a, how, true, &a->index_big));
        else if (i == 1 && count == 2 && strcmp(name, "crc32c") == 0)
            a->index_crc = true;
        else
            return zr_refuse(s, a, "codec of a shard's index",
                *name ? name : json_object_get_string(codec));
    }
    return BAGS_OK;
}

static inline bags_code zr_codecs(
    bags_source *s, zr_array *a, json_object *list, bool inner);

/* Parse the codec `sharding_indexed`: the file of a chunk of the grid is a shard. */
static inline bags_code zr_sharding(bags_source *s, zr_array *a, json_object *how) {
    const char *place = bags_import_json_text(how, "index_location");
    size_t dims = 0;
    if (!zr_shape(zr_get(how, "chunk_shape"), 1, a->chunks, &dims) || dims != a->dims)
        return zr_bad(s, a, "codec sharding_indexed: invalid chunk_shape");
    for (size_t d = 0; d < dims; d++)
        if (a->grid[d] % a->chunks[d])
            return zr_bad(
                s, a, "codec sharding_indexed: its chunks do not divide the shards");
    a->sharded = true;
    a->index_first = strcmp(place, "start") == 0;
    if (zr_get(how, "index_location") && !a->index_first && strcmp(place, "end") != 0)
        return zr_refuse(s, a, "codec sharding_indexed of index_location",
            json_object_get_string(zr_get(how, "index_location")));
    FORMAT_TRY(zr_index_codecs(s, a, zr_get(how, "index_codecs")));
    return zr_codecs(s, a, zr_get(how, "codecs"), true);
}

/* Parse the codecs of an array, or of the chunks in its shards (`inner`): any number of
 * `transpose`, then `bytes` or `sharding_indexed`, then codecs of bytes. */
static inline bags_code zr_codecs(
    bags_source *s, zr_array *a, json_object *list, bool inner) {
    static const char *const known[] = {"gzip", "zstd", "blosc", "crc32c"};
    bool big = false, has_bytes = false;
    size_t count =
        json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    for (size_t i = 0; i < count; i++) {
        json_object *how, *codec = json_object_array_get_idx(list, i);
        const char *name = zr_named(codec, &how);
        size_t k = 0;
        while (k < 4 && strcmp(name, known[k]) != 0)
            k++;
        if (!has_bytes && strcmp(name, "transpose") == 0) {
            FORMAT_TRY(zr_transpose(s, a, how));
        } else if (!has_bytes && strcmp(name, "bytes") == 0) {
            zr_member *member = &a->members[0];
            bool ordered = member->dtype || member->kind == 'U';
            FORMAT_TRY(zr_endian(
                s, a, how, ordered && bags_dtype_size(member->dtype) != 1, &big));
            if (big && ordered)
                member->swap = member->dtype ? bags_dtype_swap(member->dtype) : 4;
            has_bytes = true;
        } else if (!has_bytes && !inner && !a->transposed && count == 1 &&
                   strcmp(name, "sharding_indexed") == 0) {
            return zr_sharding(s, a, how);
        } else if (has_bytes && k < 4 && a->codec_count < ZR_CODECS) {
            a->codecs[a->codec_count++] = known[k];
        } else {
            bool misplaced = k < 4 || strcmp(name, "transpose") == 0 ||
                             strcmp(name, "bytes") == 0 ||
                             strcmp(name, "sharding_indexed") == 0;
            return zr_refuse(s, a,
                misplaced ? "codec at this position of its list" : "codec",
                *name ? name : json_object_get_string(codec));
        }
    }
    return has_bytes ? BAGS_OK
                     : zr_bad(s, a, "codecs: neither bytes nor sharding_indexed");
}

/* Parse the names of chunks: c/0/1, c.0.1, 0.1 or 0/1. */
static inline bags_code zr_chunk_names(
    bags_source *s, zr_array *a, json_object *encoding) {
    json_object *how;
    const char *name = zr_named(encoding, &how);
    bool usual = strcmp(name, "default") == 0;
    json_object *given = zr_get(how, "separator");
    const char *separator = given   ? bags_import_json_text(how, "separator")
                            : usual ? "/"
                                    : ".";
    if (!usual && strcmp(name, "v2") != 0)
        return zr_refuse(s, a, "chunk_key_encoding",
            encoding ? json_object_get_string(encoding) : "none");
    if (strcmp(separator, "/") != 0 && strcmp(separator, ".") != 0)
        return zr_refuse(s, a, "separator", json_object_get_string(given));
    a->prefix = usual ? "c" : "";
    a->separator = *separator == '/' ? "/" : ".";
    return BAGS_OK;
}

/* Parse the zarr.json of an array. */
static inline bags_code zr_open_3(bags_source *s, zr_array *a, json_object *about) {
    static const char *const known[] = {"zarr_format", "node_type", "shape",
        "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
        "attributes", "storage_transformers", "dimension_names", NULL};
    json_object *how, *fill, *transformers = zr_get(about, "storage_transformers");
    size_t dims = 0;
    FORMAT_TRY(zr_check_members(s, a, about, known));
    if (transformers && (!json_object_is_type(transformers, json_type_array) ||
                            json_object_array_length(transformers) > 0))
        return zr_refuse(
            s, a, "storage_transformers", json_object_get_string(transformers));
    const char *grid = zr_named(zr_get(about, "chunk_grid"), &how);
    if (strcmp(grid, "regular") != 0)
        return zr_refuse(s, a, "chunk_grid", *grid ? grid : "none");
    if (!zr_shape(zr_get(about, "shape"), 0, a->shape, &a->dims) ||
        !zr_shape(zr_get(how, "chunk_shape"), 1, a->grid, &dims) || a->dims != dims)
        return zr_bad(s, a, "invalid shape or chunk_shape");
    memcpy(a->chunks, a->grid, sizeof a->chunks);
    for (size_t d = 0; d < dims; d++)
        a->order[d] = d;
    FORMAT_TRY(zr_chunk_names(s, a, zr_get(about, "chunk_key_encoding")));
    FORMAT_TRY(zr_data_type(s, a, zr_get(about, "data_type")));
    FORMAT_TRY(zr_codecs(s, a, zr_get(about, "codecs"), false));
    FORMAT_TRY(zr_sizes(s, a));
    if (!json_object_object_get_ex(about, "fill_value", &fill) || !fill)
        return zr_bad(s, a, "no fill_value");
    return zr_fill(s, a, fill);
}

/* Parse .zarray. */
static inline bags_code zr_open_2(bags_source *s, zr_array *a, json_object *about) {
    size_t chunk_dims = 0;
    FORMAT_TRY(zr_storage(s, a, about));
    if (!zr_shape(zr_get(about, "shape"), 0, a->shape, &a->dims) ||
        !zr_shape(zr_get(about, "chunks"), 1, a->chunks, &chunk_dims) ||
        a->dims != chunk_dims)
        return zr_bad(s, a, "invalid shape or chunks");
    memcpy(a->grid, a->chunks, sizeof a->grid);
    FORMAT_TRY(zr_dtype(s, a, zr_get(about, "dtype"), "", 0));
    FORMAT_TRY(zr_sizes(s, a));
    return a->count > 0 ? zr_fill(s, a, zr_get(about, "fill_value")) : BAGS_OK;
}

/* Read the metadata of a node of the source; `name` is .zattrs, .zarray or
 * zarr.json. The caller frees *about. */
static inline bags_code zr_read_json(
    bags_source *s, const char *key, const char *name, json_object **about) {
    bags_view text = {NULL, 0};
    const char *file = bags_source_format(s, "%s%s", key, name);
    const char *path = file ? bags_source_format(s, "%s: %s", s->path, file) : NULL;
    *about = NULL;
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code =
        zr_read(s, file, strcmp(name, "zarr.json") ? ZR_METADATA : ZR_NODE, &text);
    if (code == BAGS_ERROR_MISSING)
        return bags_source_fail(s, code, "%s is missing", file);
    return code ? code : bags_source_parse_json(s, path, text, about);
}

/* Read the metadata of the array at this key. The key ends in / or is empty. */
static inline bags_code zr_open_array(bags_source *s, zr_array *a, const char *key) {
    zr_state *z = (zr_state *)s->state;
    json_object *about = NULL;
    size_t size = strlen(key), root = strlen(z->root);
    char *name = bags_source_text(s, key + root, size - root);
    a->key = key;
    a->name = name;
    a->version = z->found[3] ? 3 : 2;
    a->about = a->version == 3 ? "zarr.json" : ".zarray";
    if (!name)
        return BAGS_ERROR_MEMORY;
    for (char *c = name; *c; c++)
        if (*c == '/')
            *c = c[1] ? '.' : 0;
    bags_code code = zr_read_json(s, key, a->about, &about);
    if (!code)
        code = a->version == 3 ? zr_open_3(s, a, about) : zr_open_2(s, a, about);
    json_object_put(about);
    return code;
}

#endif /* BAGS_IMPORT_ZARR_H */
