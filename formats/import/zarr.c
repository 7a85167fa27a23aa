/*
 * zarr.c - imports Zarr 2 groups and arrays, and L5Kit's datasets, on json-c,
 * libblosc 1.16, libzip 1.5, zlib, zstd and lz4 (Debian: libjson-c-dev
 * libblosc-dev libzip-dev zlib1g-dev libzstd-dev liblz4-dev).
 *
 * A source is a directory or a .zip file. Its arrays must have the same length:
 * datapoint i is row i of each. A field has the name of its array, groups and
 * members of a structured dtype being joined by dots. Of a source that is itself
 * an array, the fields are its members, or "data".
 *
 *     scalar      integers: i64, u64; dates: i64, their number of units;
 *                 others: array(DTYPE)
 *     array       array(DTYPE,shape of a row and of the member)
 *     <U          utf8;  |S and |V: bytes (|S without its trailing NULs)
 *
 * An L5Kit dataset has a datapoint per frame. Members of frames are plain fields;
 * those of agents and of traffic light faces are sequences, "agents.centroid";
 * those of its scene are repeated, "scenes.host", and scene_index is its number.
 * agents_mask, which L5Kit derives from the others, is left out.
 *
 * Rejected: Zarr 3, filters, order F, other compressors, objects, and arrays of
 * strings or of structures in a row or member.
 */
#include "import.h"

#include <blosc.h>
#include <json-c/json.h>
#include <lz4.h>
#include <zip.h>
#include <zlib.h>
#include <zstd.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define ZR_BAND ((uint64_t)64 << 20) /* bytes in memory per array, or one row */
#define ZR_VALUES ((uint64_t)1 << 30) /* most bytes of an array per datapoint */
#define ZR_CHUNK ((uint64_t)INT32_MAX)  /* most bytes of a chunk, as in Blosc */
#define ZR_RATIO ((uint64_t)1 << 16)    /* no codec makes more bytes of one */
#define ZR_METADATA ((uint64_t)1 << 20) /* most bytes of .zarray */
#define ZR_ACROSS ((uint64_t)1 << 20)   /* most chunks that a row is in */
#define ZR_DEPTH 16 /* of groups, and of nested structures */

/* A member of a dtype; a plain dtype has one. */
typedef struct zr_member {
    const char *name;  /* "" of a plain dtype; NULL: padding */
    const char *shape; /* as in a type: ",2,3" */
    char kind;         /* NumPy's */
    bags_dtype dtype;  /* of numbers */
    size_t offset;     /* in a record */
    size_t size;       /* in a record */
    size_t swap;       /* bytes to be reversed at a time; 1: none */
    bool number;       /* an integer that becomes i64 or u64 */
    size_t made;       /* most bytes of its value */
} zr_member;

typedef struct zr_array {
    const char *key; /* "" or "group/array/" */
    const char *name;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS], chunks[BAGS_MAX_DIMS];
    const char *separator; /* static: "." or "/" */
    const char *codec;     /* static; NULL: stored as they are */
    size_t item, row;      /* bytes of a record, of a row of them */
    size_t chunk_size;
    const unsigned char *fill; /* a record */
    zr_member *members;
    size_t count; /* of them */
    size_t made;  /* bytes of the values of a row */
    size_t first; /* its first field */
    /* Rows band_start to band_stop; the values of this datapoint. */
    uint64_t band_start, band_stop;
    bags_buffer band, data, values;
} zr_array;

typedef struct zr_source {
    bags_import_arena arena, paths;
    const char *path;
    zip_t *zip; /* NULL: a directory */
    const char *root;
    bags_buffer file, chunk, list;
    zr_array *arrays;
    size_t count;
    bags_field *fields;
    bags_entry *entries;
    size_t field_count;
    uint64_t length;
    /* L5Kit's arrays; scenes is NULL if it is another source. */
    zr_array *scenes, *frames, *agents, *lights;
    uint64_t scene, scene_start, scene_stop;
    bags_value scene_value;
} zr_source;

/* ---- keys and bytes ---- */

static bags_code zr_bad_zip(zr_source *s, const char *key, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: %s: damaged: %s", s->path,
        key, zip_strerror(s->zip));
}

static bags_code zr_read_zip(zr_source *s, const char *key, uint64_t limit,
    bags_view *out, bags_error *err) {
    zip_int64_t index = zip_name_locate(s->zip, key, 0);
    zip_stat_t about;
    if (index < 0)
        return BAGS_ERROR_MISSING;
    zip_stat_init(&about);
    if (zip_stat_index(s->zip, (zip_uint64_t)index, 0, &about) ||
        (about.valid & (ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE)) !=
            (ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE))
        return zr_bad_zip(s, key, err);
    if (about.size > limit || about.size / ZR_RATIO > about.comp_size)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: %s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            s->path, key, (uint64_t)about.size, limit);
    size_t size = (size_t)about.size, done = 0;
    bags_code code = bags_buffer_reserve(&s->file, size + 1, err);
    if (code)
        return code;
    zip_file_t *member = zip_fopen_index(s->zip, (zip_uint64_t)index, 0);
    if (!member)
        return zr_bad_zip(s, key, err);
    /* One more byte: the library compares the checksum at the end. */
    zip_int64_t part = 1;
    while (part > 0 && done <= size) {
        part = zip_fread(member, s->file.data + done, size - done + 1);
        done += part > 0 ? (size_t)part : 0;
    }
    zip_fclose(member);
    if (part < 0 || done != size)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "%s: %s: damaged", s->path, key);
    s->file.data[size] = 0; /* as bags_import_file_load does */
    out->data = s->file.data;
    out->size = size;
    return BAGS_OK;
}

/* The bytes of a key. BAGS_ERROR_MISSING, without a message, if there is none. */
static bags_code zr_read(zr_source *s, const char *key, uint64_t limit,
    bags_view *out, bags_error *err) {
    if (s->zip)
        return zr_read_zip(s, key, limit, out, err);
    const char *path =
        bags_import_format(&s->paths, err, "%s/%s", s->path, key);
    if (!path)
        return BAGS_ERROR_MEMORY;
    /* Only a file that does not exist is missing, not one that cannot be read. */
    const bags_io *io = bags_io_local();
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = io->kind(io->user, path, &kind);
    if (!error && kind == BAGS_PATH_NONE)
        return BAGS_ERROR_MISSING;
    return bags_import_file_load(path, limit, &s->file, out, err);
}

/* ---- .zarray ---- */

static bags_code zr_bad(
    zr_source *s, const zr_array *a, bags_error *err, const char *what) {
    return bags_fail(
        err, BAGS_ERROR_CORRUPT, "%s: %s.zarray: %s", s->path, a->key, what);
}

static bags_code zr_refuse(zr_source *s, const zr_array *a, bags_error *err,
    const char *what, const char *name) {
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: %s.zarray: %s not supported (%.200s)", s->path, a->key, what,
        name);
}

static json_object *zr_get(json_object *object, const char *name) {
    json_object *value = NULL;
    return json_object_object_get_ex(object, name, &value) ? value : NULL;
}

static const char *zr_text(json_object *object, const char *name) {
    json_object *value = zr_get(object, name);
    return json_object_is_type(value, json_type_string)
               ? json_object_get_string(value)
               : "";
}

/* A shape: numbers of at least `least`. False if it is none. */
static bool zr_shape(
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

/* a times b, at most the limit. */
static bool zr_times(size_t *a, uint64_t b, uint64_t limit) {
    if (b && *a > limit / b)
        return false;
    *a = (size_t)(*a * b);
    return true;
}

/* Append a member of a simple dtype such as "<f4", of this shape. */
static bags_code zr_add_member(zr_source *s, zr_array *a, const char *name,
    const char *dtype, const uint64_t *shape, size_t dims, bags_error *err) {
    size_t length = strlen(dtype), used = (a->count + 1) * sizeof(zr_member);
    zr_member member;
    bool big = dtype[0] == '>';
    memset(&member, 0, sizeof member);
    member.name = name;
    member.kind = length > 2 && strchr("<>|=", dtype[0]) ? dtype[1] : '?';
    member.offset = a->item;
    uint64_t unit = length > 2 ? strtoull(dtype + 2, NULL, 10) : 0;
    if (strchr("mM", member.kind) && unit == 8) {
        member.dtype = BAGS_DTYPE_INT64;
    } else if (strchr("SUV", member.kind) && unit <= ZR_CHUNK / 4) {
        unit *= member.kind == 'U' ? 4 : 1;
        member.swap = member.kind == 'U' && big ? 4 : 1;
    } else {
        member.dtype = bags_dtype_parse(dtype, length, &big);
        if (!member.dtype)
            return zr_refuse(s, a, err, "dtype", dtype);
        unit = bags_dtype_size(member.dtype);
    }
    if (member.dtype)
        member.swap = big ? bags_dtype_swap(member.dtype) : 1;
    if (!member.dtype && dims > 0)
        return zr_refuse(s, a, err, "a shape of strings", dtype);
    member.size = (size_t)unit;
    member.shape = "";
    for (size_t i = 0; i < dims; i++) {
        if (!zr_times(&member.size, shape[i], ZR_CHUNK))
            return zr_refuse(s, a, err, "a record of 2 GiB", dtype);
        member.shape = bags_import_format(
            &s->arena, err, "%s,%" PRIu64, member.shape, shape[i]);
        if (!member.shape)
            return BAGS_ERROR_MEMORY;
    }
    if (member.size > ZR_CHUNK - a->item)
        return zr_refuse(s, a, err, "a record of 2 GiB", dtype);
    bags_code code = bags_buffer_reserve(&s->list, used, err);
    if (code)
        return code;
    ((zr_member *)(void *)s->list.data)[a->count++] = member;
    a->item += member.size;
    return BAGS_OK;
}

/* A dtype in JSON: text, or a list of members: [name, dtype] or [name, dtype,
 * shape]. */
static bags_code zr_dtype(zr_source *s, zr_array *a, json_object *dtype,
    const char *prefix, int depth, bags_error *err) {
    if (json_object_is_type(dtype, json_type_string))
        return zr_add_member(
            s, a, prefix, json_object_get_string(dtype), NULL, 0, err);
    if (!json_object_is_type(dtype, json_type_array) || depth > ZR_DEPTH)
        return zr_bad(s, a, err, "invalid dtype");
    for (size_t i = 0; i < json_object_array_length(dtype); i++) {
        json_object *member = json_object_array_get_idx(dtype, i);
        uint64_t shape[BAGS_MAX_DIMS];
        size_t dims = 0, parts = 0;
        if (json_object_is_type(member, json_type_array))
            parts = json_object_array_length(member);
        json_object *key = parts ? json_object_array_get_idx(member, 0) : NULL;
        if (parts < 2 || parts > 3 ||
            !json_object_is_type(key, json_type_string) ||
            (parts == 3 && !zr_shape(json_object_array_get_idx(member, 2), 1,
                               shape, &dims)))
            return zr_bad(s, a, err, "invalid member of the dtype");
        const char *text = json_object_get_string(key);
        const char *name = bags_import_format(&s->arena, err, "%s%s%s", prefix,
            *prefix && *text ? "." : "", text);
        json_object *type = json_object_array_get_idx(member, 1);
        if (!name)
            return BAGS_ERROR_MEMORY;
        if (!*text)
            name = NULL; /* padding */
        bool simple = json_object_is_type(type, json_type_string);
        if (!simple && (dims > 0 || !name))
            return zr_refuse(s, a, err, "an array of structures", text);
        bags_code code =
            simple ? zr_add_member(s, a, name, json_object_get_string(type),
                         shape, dims, err)
                   : zr_dtype(s, a, type, name, depth + 1, err);
        if (code)
            return code;
    }
    return BAGS_OK;
}

/* The bytes that base64 stands for: false unless they are `size`, or fewer. */
static bool zr_base64(const char *text, unsigned char *out, size_t size) {
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = strcspn(text, "="), made = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < length; i++) {
        const char *digit = strchr(digits, text[i]);
        if (!digit)
            return false;
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 == 0)
            continue;
        if (made == size)
            return false;
        out[made++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    return true;
}

/* A number, true, "NaN", "Infinity" or "-Infinity" as a little-endian element;
 * of complex numbers, [real, imaginary]. Of float16, only 0 is accepted. */
static bool zr_number(
    json_object *value, char kind, size_t size, unsigned char *out) {
    bool list = json_object_is_type(value, json_type_array);
    if (kind == 'c' && list)
        return json_object_array_length(value) == 2 &&
               zr_number(
                   json_object_array_get_idx(value, 0), 'f', size / 2, out) &&
               zr_number(json_object_array_get_idx(value, 1), 'f', size / 2,
                   out + size / 2);
    if (kind == 'c')
        return zr_number(value, 'f', size / 2, out);
    bool text = json_object_is_type(value, json_type_string);
    const char *word = text ? json_object_get_string(value) : "";
    if (list || json_object_is_type(value, json_type_object) ||
        (text &&
            (kind != 'f' || (strcmp(word, "NaN") && strcmp(word, "Infinity") &&
                                strcmp(word, "-Infinity")))))
        return false;
    double number = text ? strtod(word, NULL) : json_object_get_double(value);
    float single = (float)number;
    uint64_t bits = kind == 'u' ? json_object_get_uint64(value)
                                : (uint64_t)json_object_get_int64(value);
    uint32_t low;
    memcpy(&low, &single, sizeof low);
    if (kind == 'f' && size == 8)
        memcpy(&bits, &number, sizeof bits);
    else if (kind == 'f')
        bits = low;
    for (size_t i = 0; i < size; i++)
        out[i] = (unsigned char)(bits >> 8 * i);
    return kind != 'f' || size > 2 || low == 0;
}

static bags_code zr_fill(
    zr_source *s, zr_array *a, json_object *value, bags_error *err) {
    unsigned char *fill =
        (unsigned char *)bags_import_alloc(&s->arena, a->item, 1, err);
    const zr_member *member = &a->members[0];
    bool good = true, zero;
    if (!fill)
        return BAGS_ERROR_MEMORY;
    a->fill = fill;
    zero = !value || (json_object_is_type(value, json_type_int) &&
                         json_object_get_int64(value) == 0);
    if (zero)
        return BAGS_OK;
    if (a->count == 1 && member->dtype) {
        good = zr_number(value, member->kind, member->size, fill);
        bags_swap_bytes(fill, fill, a->item, member->swap);
    } else if (!json_object_is_type(value, json_type_string)) {
        good = false;
    } else if (a->count == 1 && member->kind == 'U') {
        good = *json_object_get_string(value) == 0;
    } else {
        good = zr_base64(json_object_get_string(value), fill, a->item);
    }
    return good ? BAGS_OK
                : zr_refuse(
                      s, a, err, "fill_value", json_object_get_string(value));
}

/* What of the metadata can be read; sets codec and separator. */
static bags_code zr_storage(
    zr_source *s, zr_array *a, json_object *about, bags_error *err) {
    static const char *const codecs[] = {
        "blosc", "zlib", "gzip", "zstd", "lz4"};
    json_object *version = zr_get(about, "zarr_format");
    json_object *filters = zr_get(about, "filters");
    json_object *codec = zr_get(about, "compressor");
    const char *order = zr_text(about, "order");
    const char *separator = zr_text(about, "dimension_separator");
    if (json_object_get_int64(version) != 2)
        return zr_refuse(s, a, err, "zarr_format",
            version ? json_object_get_string(version) : "none");
    if (filters && (!json_object_is_type(filters, json_type_array) ||
                       json_object_array_length(filters) > 0))
        return zr_refuse(s, a, err, "filters", json_object_get_string(filters));
    if (strcmp(order, "C") != 0)
        return zr_refuse(s, a, err, "order", order);
    if (strlen(separator) > 1 || !strchr("./", *separator))
        return zr_refuse(s, a, err, "dimension_separator", separator);
    a->separator = *separator == '/' ? "/" : ".";
    if (!codec)
        return BAGS_OK;
    const char *id = zr_text(codec, "id");
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (strcmp(id, codecs[i]) == 0)
            a->codec = codecs[i];
    return a->codec ? BAGS_OK : zr_refuse(s, a, err, "compressor", id);
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

/* The elements of a chunk; data NULL: it is missing, all are the fill value. */
static bags_code zr_chunk(zr_source *s, zr_array *a, const uint64_t *at,
    const unsigned char **data, bags_error *err) {
    bags_view in;
    uint64_t limit =
        a->codec ? a->chunk_size + a->chunk_size / 8 + 4096 : a->chunk_size;
    bags_import_reset(&s->paths);
    const char *key = a->key;
    for (size_t d = 0; key && d < a->dims; d++)
        key = bags_import_format(
            &s->paths, err, "%s%s%" PRIu64, key, d ? a->separator : "", at[d]);
    if (key && a->dims == 0)
        key = bags_import_format(&s->paths, err, "%s0", key);
    if (!key)
        return BAGS_ERROR_MEMORY;
    bags_code code = zr_read(s, key, limit, &in, err);
    *data = NULL;
    if (code)
        return code == BAGS_ERROR_MISSING ? BAGS_OK : code;
    if (a->codec ? a->chunk_size / ZR_RATIO > in.size
                 : in.size != a->chunk_size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: %s: size of the chunk is wrong (%" PRIu64 " bytes for %" PRIu64
            ")",
            s->path, key, (uint64_t)in.size, (uint64_t)a->chunk_size);
    *data = in.data;
    if (!a->codec)
        return BAGS_OK;
    code = bags_buffer_reserve(&s->chunk, a->chunk_size, err);
    if (code)
        return code;
    *data = s->chunk.data;
    return zr_decompress(a, in, s->chunk.data)
               ? BAGS_OK
               : bags_fail(err, BAGS_ERROR_CORRUPT,
                     "%s: %s: not a chunk of %" PRIu64
                     " bytes compressed by %s",
                     s->path, key, (uint64_t)a->chunk_size, a->codec);
}

/* Copy what a chunk has of dimension d and later ones. `from` is within the chunk,
 * `to` within the band; steps are those of the dimension before. */
static void zr_copy(const zr_array *a, const uint64_t *at, size_t d,
    const unsigned char *from, unsigned char *to, size_t from_step,
    size_t to_step) {
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

/* Make the band contain this row: at most a row of chunks. */
static bags_code zr_load(
    zr_source *s, zr_array *a, uint64_t row, bags_error *err) {
    uint64_t at[BAGS_MAX_DIMS] = {0};
    uint64_t height = a->dims ? a->chunks[0] : 1, most = ZR_BAND / a->row;
    size_t step = a->chunk_size / (size_t)height, d;
    if (most == 0)
        most = 1;
    at[0] = row / height;
    uint64_t first = at[0] * height;
    uint64_t start = first + (row - first) / most * most;
    uint64_t stop =
        height - (start - first) < most ? first + height : start + most;
    if (a->dims && stop > a->shape[0])
        stop = a->shape[0];
    a->band_start = a->band_stop = 0;
    bags_code code =
        bags_buffer_reserve(&a->band, (size_t)(stop - start) * a->row, err);
    do {
        const unsigned char *chunk = NULL;
        if (!code)
            code = zr_chunk(s, a, at, &chunk, err);
        if (code)
            return code;
        for (uint64_t r = start; r < stop; r++)
            zr_copy(a, at, a->dims ? 1 : 0,
                chunk ? chunk + (r - first) * step : NULL,
                a->band.data + (r - start) * a->row, step, a->row);
        for (d = a->dims; d > 1; d--) { /* the next chunk across */
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

/* UCS-4 to UTF-8, without trailing NULs; the result is not larger. Surrogates
 * and numbers above U+10FFFF become invalid UTF-8, which writers refuse. */
static size_t zr_utf8(
    const unsigned char *from, size_t size, bool big, unsigned char *out) {
    size_t made = 0;
    while (size >= 4 && !memcmp(from + size - 4, "\0\0\0\0", 4))
        size -= 4;
    for (size_t i = 0; i + 4 <= size; i += 4) {
        uint32_t c = 0;
        for (size_t b = 0; b < 4; b++)
            c |= (uint32_t)from[i + (big ? 3 - b : b)] << 8 * b;
        unsigned extra = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const unsigned char marks[] = {0, 0xC0, 0xE0, 0xF0};
        if (c > 0x10FFFF) {
            out[made++] = 0xFF;
            continue;
        }
        out[made++] = (unsigned char)(marks[extra] | c >> 6 * extra);
        while (extra-- > 0)
            out[made++] = (unsigned char)(0x80 | (c >> 6 * extra & 0x3F));
    }
    return made;
}

/* The value of a member in a row, whose bytes are written to `out`. */
static bags_value zr_value(const zr_array *a, const zr_member *member,
    const unsigned char *row, unsigned char *out) {
    const unsigned char *from = row + member->offset;
    size_t size = member->size;
    if (member->kind == 'U') {
        size = zr_utf8(from, size, member->swap > 1, out);
        return bags_utf8_sized((const char *)out, size);
    }
    for (size_t i = 0; i < a->row / a->item; i++)
        bags_swap_bytes(out + i * size, from + i * a->item, size, member->swap);
    if (member->kind == 'S')
        while (size > 0 && out[size - 1] == 0)
            size--;
    if (!member->number)
        return bags_blob(out, member->dtype ? member->made : size);
    bool negative = member->kind != 'u' && out[size - 1] & 0x80;
    memset(out + size, negative ? 0xFF : 0, 8 - size);
    return bags_blob(out, 8);
}

/* Make the values of rows start to stop: entries of the array's fields. */
static bags_code zr_rows(
    zr_source *s, zr_array *a, uint64_t start, uint64_t stop, bags_error *err) {
    uint64_t count = stop - start;
    if (count > ZR_VALUES / (a->made + a->count * sizeof(bags_value)))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: %.*s: rows %" PRIu64 " to %" PRIu64 " are too large", s->path,
            (int)strlen(a->key), a->key, start, stop);
    bags_code code =
        bags_buffer_reserve(&a->data, (size_t)count * a->made, err);
    if (!code)
        code = bags_buffer_reserve(
            &a->values, (size_t)count * a->count * sizeof(bags_value), err);
    if (code)
        return code;
    bags_value *values = (bags_value *)(void *)a->values.data;
    unsigned char *out = a->data.data;
    for (uint64_t r = start; r < stop; r++) {
        if (r < a->band_start || r >= a->band_stop)
            code = zr_load(s, a, r, err);
        if (code)
            return code;
        const unsigned char *row = a->band.data + (r - a->band_start) * a->row;
        for (size_t m = 0; m < a->count; m++) {
            values[m * count + (r - start)] =
                zr_value(a, &a->members[m], row, out);
            out += a->members[m].made;
        }
    }
    for (size_t m = 0; m < a->count; m++) {
        s->entries[a->first + m].values = values + m * count;
        s->entries[a->first + m].count = (size_t)count;
    }
    return BAGS_OK;
}

/* ---- L5Kit ---- */

static zr_array *zr_find(zr_source *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->arrays[i].name, name) == 0)
            return &s->arrays[i];
    return NULL;
}

/* The member of this name, if it is two 64-bit integers: a start and a stop. */
static const zr_member *zr_interval(const zr_array *a, const char *name) {
    for (size_t i = 0; a && i < a->count; i++)
        if (strcmp(a->members[i].name, name) == 0 &&
            strchr("iu", a->members[i].kind) && a->members[i].size == 16 &&
            !strcmp(a->members[i].shape, ",2") && a->dims == 1)
            return &a->members[i];
    return NULL;
}

/* The arrays of an L5Kit dataset, if it is one. */
static bags_code zr_l5kit(zr_source *s, bags_error *err) {
    zr_array *scenes = zr_find(s, "scenes"), *frames = zr_find(s, "frames");
    zr_array *agents = zr_find(s, "agents");
    zr_array *lights = zr_find(s, "traffic_light_faces");
    size_t kept = 0;
    if (!lights)
        lights = zr_find(s, "tl_faces");
    if (!agents || agents->dims != 1 ||
        !zr_interval(scenes, "frame_index_interval") ||
        !zr_interval(frames, "agent_index_interval"))
        return BAGS_OK;
    if (lights &&
        (lights->dims != 1 ||
            !zr_interval(frames, "traffic_light_faces_index_interval")))
        lights = NULL;
    zr_array *found[4];
    found[kept++] = scenes;
    found[kept++] = frames;
    found[kept++] = agents;
    if (lights)
        found[kept++] = lights;
    for (size_t i = 0; i < s->count; i++) {
        zr_array *a = &s->arrays[i];
        bool known = a == scenes || a == frames || a == agents || a == lights;
        if (!known && strncmp(a->key, "agents_mask", 11) != 0)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: %s: not an array of an L5Kit dataset; import it by itself",
                s->path, a->key);
    }
    zr_array *arrays =
        (zr_array *)bags_import_alloc(&s->arena, 4, sizeof *arrays, err);
    if (!arrays)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < kept; i++)
        arrays[i] = *found[i];
    s->arrays = arrays;
    s->count = kept;
    s->scenes = &arrays[0];
    s->frames = &arrays[1];
    s->agents = &arrays[2];
    s->lights = lights ? &arrays[3] : NULL;
    return BAGS_OK;
}

/* The interval in this member of the row that was read last. */
static bags_code zr_refers(zr_source *s, const zr_array *a, const char *name,
    const zr_array *to, uint64_t row, uint64_t *start, uint64_t *stop,
    bags_error *err) {
    const zr_member *member = zr_interval(a, name);
    const bags_value *value =
        s->entries[a->first + (size_t)(member - a->members)].values;
    const unsigned char *bytes = (const unsigned char *)value->data;
    uint64_t ends[2] = {0, 0};
    for (size_t i = 0; i < 16; i++)
        ends[i / 8] |= (uint64_t)bytes[i] << 8 * (i % 8);
    *start = ends[0];
    *stop = ends[1];
    if (*start <= *stop && *stop <= to->shape[0])
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: field \"%s.%s\": row %" PRIu64 ": invalid interval (%" PRId64
        " to %" PRId64 ", length %" PRIu64 ")",
        s->path, a->name, name, row, (int64_t)*start, (int64_t)*stop,
        to->shape[0]);
}

static bags_code zr_read_frame(zr_source *s, uint64_t frame, bags_error *err) {
    uint64_t start = 0, stop = 0;
    bags_code code = BAGS_OK;
    /* The scene; those without frames are skipped. */
    while (!code && frame >= s->scene_stop) {
        uint64_t end = s->scene_stop;
        if (s->scene == s->scenes->shape[0])
            break;
        code = zr_rows(s, s->scenes, s->scene, s->scene + 1, err);
        if (!code)
            code = zr_refers(s, s->scenes, "frame_index_interval", s->frames,
                s->scene, &s->scene_start, &s->scene_stop, err);
        s->scene++;
        if (!code && s->scene_start < end && s->scene_start < s->scene_stop)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: field \"scenes.frame_index_interval\": row %" PRIu64
                ": overlaps an earlier scene",
                s->path, s->scene - 1);
        if (!code && s->scene_stop < end)
            s->scene_stop = end; /* empty */
    }
    if (code)
        return code;
    if (frame < s->scene_start || frame >= s->scene_stop)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: frames: row %" PRIu64 ": not in a scene", s->path, frame);
    s->scene_value = bags_int((int64_t)(s->scene - 1));
    code = zr_rows(s, s->frames, frame, frame + 1, err);
    if (!code)
        code = zr_refers(s, s->frames, "agent_index_interval", s->agents, frame,
            &start, &stop, err);
    if (!code)
        code = zr_rows(s, s->agents, start, stop, err);
    if (!code && s->lights)
        code = zr_refers(s, s->frames, "traffic_light_faces_index_interval",
            s->lights, frame, &start, &stop, err);
    if (!code && s->lights)
        code = zr_rows(s, s->lights, start, stop, err);
    return code;
}

/* ---- open ---- */

/* The type of a member's values; see the top of this file. */
static const char *zr_type(
    zr_source *s, zr_array *a, zr_member *member, bags_error *err) {
    const char *type = member->kind == 'U' ? "utf8" : "bytes", *shape = "";
    member->made = a->row / a->item * member->size;
    for (size_t d = 1; shape && d < a->dims; d++)
        shape = bags_import_format(
            &s->arena, err, "%s,%" PRIu64, shape, a->shape[d]);
    if (!member->dtype && shape && *shape) {
        zr_refuse(s, a, err, "rows of strings", member->name);
        return NULL;
    }
    if (member->dtype && shape) {
        member->number =
            strchr("iumM", member->kind) && !*shape && !*member->shape;
        if (member->number)
            member->made = 8;
        type = member->number && member->kind == 'u' ? "u64" : "i64";
        if (!member->number)
            type = bags_import_format(&s->arena, err, "array(%s%s%s)",
                bags_dtype_name(member->dtype), shape, member->shape);
    }
    if (type && (a == s->agents || a == s->lights))
        type = bags_import_format(&s->arena, err, "%s[]", type);
    return shape ? type : NULL;
}

static bags_code zr_add_fields(zr_source *s, zr_array *a, bags_error *err) {
    a->first = s->field_count;
    a->made = 1;
    for (size_t m = 0; m < a->count; m++) {
        zr_member *member = &a->members[m];
        bags_field *field = &s->fields[s->field_count++];
        bool prefix = *a->name && a != s->frames;
        field->type = zr_type(s, a, member, err);
        field->name = bags_import_format(&s->arena, err, "%s%s%s",
            prefix ? a->name : "", prefix && *member->name ? "." : "",
            !prefix && !*member->name ? "data" : member->name);
        if (!field->type || !field->name)
            return err ? err->code : BAGS_ERROR_MEMORY;
        a->made += member->made;
    }
    return BAGS_OK;
}

/* The sizes of an array whose shape and members are known. */
static bags_code zr_sizes(zr_source *s, zr_array *a, bags_error *err) {
    size_t across = 1;
    if (a->item == 0)
        return zr_bad(s, a, err, "a dtype of 0 bytes");
    a->row = a->chunk_size = a->item;
    for (size_t d = 0; d < a->dims; d++)
        if (!zr_times(&a->chunk_size, a->chunks[d], ZR_CHUNK) ||
            (d > 0 && !zr_times(&a->row, a->shape[d], ZR_VALUES)) ||
            (d > 0 && a->shape[d] > 0 &&
                !zr_times(
                    &across, (a->shape[d] - 1) / a->chunks[d] + 1, ZR_ACROSS)))
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "%s: %s.zarray: too large: a chunk of 2 GiB, a row of 1 GiB, "
                "or "
                "of %" PRIu64 " chunks",
                s->path, a->key, ZR_ACROSS);
    if (a->row == 0)
        return zr_refuse(s, a, err, "shape", "0 elements in a row");
    return BAGS_OK;
}

/* Read the metadata of the array at this key, which ends in / or is empty. */
static bags_code zr_open_array(
    zr_source *s, zr_array *a, const char *key, bags_error *err) {
    bags_view text;
    size_t chunk_dims = 0, size = strlen(key), root = strlen(s->root);
    char *name = bags_import_text(&s->arena, key + root, size - root, err);
    const char *file = bags_import_format(&s->arena, err, "%s.zarray", key);
    a->key = key;
    a->name = name;
    if (!name || !file)
        return BAGS_ERROR_MEMORY;
    for (char *c = name; *c; c++)
        if (*c == '/')
            *c = c[1] ? '.' : 0;
    bags_code code = zr_read(s, file, ZR_METADATA, &text, err);
    if (code)
        return code == BAGS_ERROR_MISSING
                   ? bags_fail(err, code, "%s: %s is missing", s->path, file)
                   : code;
    struct json_tokener *tokener = json_tokener_new_ex(64);
    if (!tokener)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    json_object *about = json_tokener_parse_ex(
        tokener, (const char *)text.data, (int)text.size + 1);
    if (!json_object_is_type(about, json_type_object) ||
        memchr(text.data, 0, text.size))
        code = zr_bad(s, a, err, "not a JSON object");
    if (!code)
        code = zr_storage(s, a, about, err);
    if (!code &&
        (!zr_shape(zr_get(about, "shape"), 0, a->shape, &a->dims) ||
            !zr_shape(zr_get(about, "chunks"), 1, a->chunks, &chunk_dims) ||
            a->dims != chunk_dims))
        code = zr_bad(s, a, err, "invalid shape or chunks");
    if (!code)
        code = zr_dtype(s, a, zr_get(about, "dtype"), "", 0, err);
    if (!code)
        code = zr_sizes(s, a, err);
    if (!code) {
        /* Padding is no member: the others remain. */
        zr_member *found = (zr_member *)(void *)s->list.data;
        size_t count = a->count;
        a->members = (zr_member *)bags_import_alloc(
            &s->arena, count + 1, sizeof *found, err);
        a->count = 0;
        for (size_t i = 0; a->members && i < count; i++)
            if (found[i].name)
                a->members[a->count++] = found[i];
        code = a->members ? zr_fill(s, a, zr_get(about, "fill_value"), err)
                          : BAGS_ERROR_MEMORY;
    }
    json_object_put(about);
    json_tokener_free(tokener);
    return code;
}

/* The keys of the arrays in a source. */
typedef struct zr_keys {
    zr_source *s;
    bags_buffer keys; /* const char * */
    size_t count;
    int depth;
    const char *at; /* the directory that is listed */
    bags_error *err;
} zr_keys;

static int zr_add_key(zr_keys *keys, const char *key, size_t size) {
    const char *copy = bags_import_text(&keys->s->arena, key, size, keys->err);
    if (!copy || bags_buffer_reserve(
                     &keys->keys, (keys->count + 1) * sizeof copy, keys->err))
        return ENOMEM;
    ((const char **)(void *)keys->keys.data)[keys->count++] = copy;
    return 0;
}

static int zr_walk(void *user, const char *name) {
    zr_keys *keys = (zr_keys *)user;
    const bags_io *io = bags_io_local();
    const char *before = keys->at;
    bags_import_arena *arena = &keys->s->arena;
    const char *key =
        *name ? bags_import_format(arena, keys->err, "%s%s/", before, name)
              : before;
    const char *path =
        key ? bags_import_format(arena, keys->err, "%s/%s", keys->s->path, key)
            : NULL;
    const char *file = path ? bags_import_format(arena, keys->err,
                                  "%s%s.zarray", path, *key ? "" : "/")
                            : NULL;
    if (!file)
        return ENOMEM;
    bags_path_kind kind = BAGS_PATH_NONE, array = BAGS_PATH_NONE;
    int error = name[0] == '.' ? 0 : io->kind(io->user, path, &kind);
    if (!error && kind == BAGS_PATH_DIRECTORY)
        error = io->kind(io->user, file, &array);
    if (error || kind != BAGS_PATH_DIRECTORY)
        return error;
    if (array != BAGS_PATH_NONE)
        return zr_add_key(keys, key, strlen(key));
    if (keys->depth == ZR_DEPTH)
        return ELOOP;
    keys->at = key;
    keys->depth++;
    error = io->list(io->user, path, zr_walk, keys);
    keys->depth--;
    keys->at = before;
    return error;
}

/* A .zip may contain the directory itself: its root is the shortest key. */
static int zr_walk_zip(zr_keys *keys) {
    zr_source *s = keys->s;
    zip_int64_t count = zip_get_num_entries(s->zip, 0);
    size_t root = SIZE_MAX;
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(s->zip, (zip_uint64_t)i, 0);
        size_t size = name ? strlen(name) : 0;
        bool array = size >= 7 && !strcmp(name + size - 7, ".zarray");
        bool group = size >= 7 && !strcmp(name + size - 7, ".zgroup");
        if ((!array && !group) || (size > 7 && name[size - 8] != '/'))
            continue;
        if (size - 7 < root) {
            root = size - 7;
            s->root = bags_import_text(&s->arena, name, root, keys->err);
            if (!s->root)
                return ENOMEM;
        }
        if (array && zr_add_key(keys, name, size - 7))
            return ENOMEM;
    }
    return 0;
}

static int zr_compare(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Find the arrays of the source, in the order of their names, and read their
 * metadata. */
static bags_code zr_open_arrays(zr_source *s, zr_keys *keys, bags_error *err) {
    bags_path_kind kind = bags_import_kind(s->path);
    bags_code code = BAGS_OK;
    if (kind == BAGS_PATH_FILE) {
        zip_error_t why;
        int error = 0;
        s->zip = zip_open(s->path, ZIP_RDONLY | ZIP_CHECKCONS, &error);
        zip_error_init_with_code(&why, error);
        if (!s->zip)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: cannot open as .zip: %s", s->path,
                zip_error_strerror(&why));
        zip_error_fini(&why);
        if (code)
            return code;
    }
    if (kind == BAGS_PATH_NONE)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: cannot open: No such file or directory", s->path);
    bags_view unused;
    code = zr_read(s, "zarr.json", ZR_METADATA, &unused, err);
    if (code == BAGS_ERROR_MEMORY)
        return code;
    if (code != BAGS_ERROR_MISSING)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: zarr.json: Zarr version 3 is not supported", s->path);
    int error = s->zip ? zr_walk_zip(keys) : zr_walk(keys, "");
    if (error == ENOMEM)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    if (error || keys->count == 0)
        return bags_fail(err, error ? BAGS_ERROR_IO : BAGS_ERROR_MISSING,
            "%s: %s", s->path, error ? strerror(error) : "no Zarr array in it");
    const char **names = (const char **)(void *)keys->keys.data;
    code = BAGS_OK;
    qsort(names, keys->count, sizeof *names, zr_compare);
    s->arrays = (zr_array *)bags_import_alloc(
        &s->arena, keys->count, sizeof *s->arrays, err);
    if (!s->arrays)
        return BAGS_ERROR_MEMORY;
    for (s->count = 0; !code && s->count < keys->count; s->count++)
        code = zr_open_array(s, &s->arrays[s->count], names[s->count], err);
    return code;
}

static bags_code zr_open_fields(
    zr_source *s, const bags_allocator *allocator, bags_error *err) {
    bags_code code = zr_l5kit(s, err);
    size_t total = s->scenes ? 1 : 0;
    for (size_t i = 0; !code && i < s->count; i++) {
        const zr_array *a = &s->arrays[i],
                       *first = s->frames ? s->frames : s->arrays;
        total += a->count;
        s->length = first->dims ? first->shape[0] : 1;
        if (!s->scenes && (a->dims ? a->shape[0] : 1) != s->length)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: the arrays differ in length (%s %" PRIu64 ", %s %" PRIu64
                "); import a group or an array of it",
                s->path, first->name, s->length, a->name,
                a->dims ? a->shape[0] : 1);
    }
    if (code)
        return code;
    s->fields = (bags_field *)bags_import_alloc(
        &s->arena, total, sizeof *s->fields, err);
    s->entries = (bags_entry *)bags_import_alloc(
        &s->arena, total, sizeof *s->entries, err);
    if (!s->fields || !s->entries)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; !code && i < s->count; i++) {
        zr_array *a = &s->arrays[i];
        a->band = a->data = a->values = bags_import_buffer_start(allocator);
        code = zr_add_fields(s, a, err);
    }
    if (s->scenes) {
        s->fields[total - 1].name = "scene_index";
        s->fields[total - 1].type = "i64";
        s->entries[total - 1].values = &s->scene_value;
        s->entries[total - 1].count = 1;
    }
    s->field_count = total;
    if (!code)
        code = bags_import_names(s->fields, total, s->path, &s->arena, err);
    for (size_t i = 0; !code && i < total; i++)
        s->entries[i].field = s->fields[i].name;
    return code;
}

static void zarr_close(void *source) {
    zr_source *s = (zr_source *)source;
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        bags_buffer_free(&s->arrays[i].band);
        bags_buffer_free(&s->arrays[i].data);
        bags_buffer_free(&s->arrays[i].values);
    }
    bags_buffer_free(&s->file);
    bags_buffer_free(&s->chunk);
    bags_buffer_free(&s->list);
    if (s->zip)
        zip_discard(s->zip);
    bags_import_free(&s->paths);
    bags_import_arena arena = s->arena;
    bags_import_free(&arena);
}

static bags_code zarr_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    zr_source *s = (zr_source *)bags_import_alloc(&arena, 1, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    zr_keys keys;
    memset(&keys, 0, sizeof keys);
    s->path = bags_import_text(&arena, path, strlen(path), err);
    s->arena = arena;
    s->paths = bags_import_arena_start(allocator);
    s->root = "";
    s->file = s->chunk = s->list = bags_import_buffer_start(allocator);
    keys.s = s;
    keys.keys = bags_import_buffer_start(allocator);
    keys.at = "";
    keys.err = err;
    bags_code code =
        s->path ? zr_open_arrays(s, &keys, err) : BAGS_ERROR_MEMORY;
    bags_buffer_free(&keys.keys);
    if (!code)
        code = zr_open_fields(s, allocator, err);
    if (code) {
        zarr_close(s);
        return code;
    }
    info->fields = s->fields;
    info->count = s->field_count;
    info->length = s->length;
    *source = s;
    return BAGS_OK;
}

static bags_code zarr_read(
    void *source, uint64_t index, const bags_entry **entries, bags_error *err) {
    zr_source *s = (zr_source *)source;
    bags_code code = BAGS_OK;
    *entries = NULL;
    if (index >= s->length)
        return BAGS_OK;
    if (s->scenes)
        code = zr_read_frame(s, index, err);
    for (size_t i = 0; !s->scenes && !code && i < s->count; i++)
        code = zr_rows(s, &s->arrays[i], index, index + 1, err);
    if (!code)
        *entries = s->entries;
    return code;
}

static bool zarr_detect(const char *path) {
    static const char *const names[] = {".zgroup", ".zarray", "zarr.json"};
    bags_import_arena arena = bags_import_arena_start(NULL);
    bool found = false;
    unsigned char magic[2];
    if (bags_import_ends(path, ".zip"))
        found =
            bags_import_peek(path, magic, 2) == 2 && !memcmp(magic, "PK", 2);
    for (size_t i = 0; !found && i < sizeof names / sizeof *names; i++) {
        char *file = bags_import_format(&arena, NULL, "%s/%s", path, names[i]);
        found = file && bags_import_kind(file) == BAGS_PATH_FILE;
    }
    bags_import_free(&arena);
    return found;
}

const bags_importer bags_import_zarr = {
    "zarr", zarr_detect, zarr_open, zarr_read, zarr_close};
