/*
 * mds.c - imports shards written by MosaicML's streaming (MDS), raw or zstd-compressed.
 * Uses json-c, libzstd, and for hashes libcrypto and libxxhash.
 *
 * The source is a directory with index.json, or index.json itself. This file lists
 * shards and columns. Each column is a field:
 *
 *     str, json, str_int, str_float, str_decimal   utf8, as stored
 *     bytes, pkl                                   bytes, as stored
 *     int, int64; uint64                           i64; u64
 *     int8 .. int32, uint8 .. uint32, float16 .. float64
 *                                                  array(int8), ...: one number
 *     ndarray:DTYPE:SHAPE                          array(DTYPE,SHAPE)
 *     ndarray, ndarray:DTYPE; pil                  array
 *     jpeg, jpeg:QUALITY; png                      jpeg; png, as stored
 *     jpeg_array, jpegarray, list[jpeg]; list[png]; list[pil]
 *                                                  jpeg[]; png[]; array[]
 *
 * File sizes and all hashes in index.json are checked. Shards that are compressed or
 * have hashes are read into memory. Other compression methods are rejected, and so are
 * images of mode 1 (one bit per pixel).
 */
#include "detect.h"
#include "json.h"
#include "try.h"

#include <openssl/evp.h>
#include <xxhash.h>
#include <zstd.h>

/* No compression expands a byte to more. */
#define MD_RATIO ((uint64_t)1 << 16)

typedef enum md_kind { MD_BLOB, MD_IMAGE, MD_ARRAY, MD_PIL } md_kind;

/* An encoding: the form of values, and the type of the field. */
typedef struct md_encoding {
    const char *name, *type;
    md_kind kind;
    unsigned size; /* size of every value; 0: variable */
    unsigned list; /* for a list, bytes up to and including the number of items; 0: not
                    * a list */
} md_encoding;

/* list[...] has 4 unused bytes before its number of items, jpeg_array has none. */
static const md_encoding md_encodings[] = {
    {"str", "utf8", MD_BLOB, 0, 0},
    {"json", "utf8", MD_BLOB, 0, 0},
    {"str_int", "utf8", MD_BLOB, 0, 0},
    {"str_float", "utf8", MD_BLOB, 0, 0},
    {"str_decimal", "utf8", MD_BLOB, 0, 0},
    {"bytes", "bytes", MD_BLOB, 0, 0},
    {"pkl", "bytes", MD_BLOB, 0, 0},
    {"int", "i64", MD_BLOB, 8, 0},
    {"int64", "i64", MD_BLOB, 8, 0},
    {"uint64", "u64", MD_BLOB, 8, 0},
    {"int8", "array(int8)", MD_BLOB, 1, 0},
    {"int16", "array(int16)", MD_BLOB, 2, 0},
    {"int32", "array(int32)", MD_BLOB, 4, 0},
    {"uint8", "array(uint8)", MD_BLOB, 1, 0},
    {"uint16", "array(uint16)", MD_BLOB, 2, 0},
    {"uint32", "array(uint32)", MD_BLOB, 4, 0},
    {"float16", "array(float16)", MD_BLOB, 2, 0},
    {"float32", "array(float32)", MD_BLOB, 4, 0},
    {"float64", "array(float64)", MD_BLOB, 8, 0},
    {"jpeg", "jpeg", MD_IMAGE, 0, 0},
    {"png", "png", MD_IMAGE, 0, 0},
    {"pil", "array", MD_PIL, 0, 0},
    {"jpeg_array", "jpeg[]", MD_IMAGE, 0, 4},
    {"jpegarray", "jpeg[]", MD_IMAGE, 0, 4},
    {"list[jpeg]", "jpeg[]", MD_IMAGE, 0, 8},
    {"list[png]", "png[]", MD_IMAGE, 0, 8},
    {"list[pil]", "array[]", MD_PIL, 0, 8},
    {"ndarray", "array", MD_ARRAY, 0, 0},
};

typedef struct md_column {
    md_encoding encoding;
    bags_dtype dtype; /* dtype of an ndarray; BAGS_DTYPE_NONE: each value states its
                       * own */
    uint64_t size;    /* size of every value; 0: each value states its own */
} md_column;

typedef struct md_state {
    const char *index_path, *directory;
    json_object *index, *shards;
    size_t count;
    uint64_t *stops;   /* the index after the last datapoint of each shard */
    size_t at;         /* the open shard; count: none */
    bags_buffer *data; /* the shard's content, if decompressed */
    md_column *columns;
} md_state;

/* ---- index.json ---- */

static bags_code md_fail_index(bags_source *s, size_t shard, const char *what) {
    return bags_fail(s->err, BAGS_ERROR_CORRUPT, "%s: shard %" PRIu64 ": %s",
        ((md_state *)s->state)->index_path, (uint64_t)shard, what);
}

/* The members of index.json that describe the columns. */
static const char *const md_lists[3] = {
    "column_names", "column_encodings", "column_sizes"};

static bool md_same_columns(json_object *a, json_object *b) {
    for (size_t i = 0; i < 3; i++)
        if (!json_object_equal(bags_import_member(a, md_lists[i], json_type_array),
                bags_import_member(b, md_lists[i], json_type_array)))
            return false;
    return true;
}

/* Get a member that is a nonnegative integer. */
static bool md_number(json_object *json, const char *name, uint64_t *out) {
    json_object *number = bags_import_member(json, name, json_type_int);
    if (!number || json_object_get_int64(number) < 0)
        return false;
    *out = json_object_get_uint64(number);
    return true;
}

/* Parse an encoding such as ndarray:uint8:28,28 into a column, and return its type. */
static const char *md_ndarray(bags_source *s, const char *text, md_column *column) {
    size_t dtype_size = strcspn(text, ":");
    const char *shape = text[dtype_size] ? text + dtype_size + 1 : "";
    column->dtype = bags_dtype_parse(text, dtype_size, NULL);
    const char *name = bags_dtype_name(column->dtype);
    if (strlen(name) != dtype_size || memcmp(name, text, dtype_size) ||
        strspn(shape, "0123456789,") != strlen(shape))
        return NULL;
    if (!*shape)
        return "array";
    char *type = bags_source_format(s, "array(%s,%s)", name, shape);
    bags_type parsed;
    uint64_t sizes[BAGS_MAX_DIMS];
    size_t bytes, dims = 0;
    if (!type || bags_type_parse(type, &parsed, NULL) || parsed.count > BAGS_MAX_DIMS)
        return NULL;
    while (dims + 1 < parsed.count && bags_type_number(&parsed, dims + 1, &sizes[dims]))
        dims++;
    if (dims + 1 < parsed.count ||
        !bags_array_size(column->dtype, dims, sizes, &bytes) || bytes != column->size)
        return NULL;
    column->encoding.kind = MD_BLOB;
    return type;
}

static bags_code md_make_column(bags_source *s, md_column *column, const char *name,
    const char *encoding, json_object *size) {
    const char *path = ((md_state *)s->state)->index_path;
    size_t length = strcspn(encoding, ":");
    const char *arguments = encoding[length] ? encoding + length + 1 : "";
    const char *type = NULL;
    for (size_t j = 0; j < sizeof md_encodings / sizeof *md_encodings; j++)
        if (strlen(md_encodings[j].name) == length &&
            !memcmp(md_encodings[j].name, encoding, length)) {
            column->encoding = md_encodings[j];
            type = column->encoding.type;
        }
    if (json_object_is_type(size, json_type_int))
        column->size = json_object_get_uint64(size);
    if (type && *arguments && column->encoding.kind == MD_ARRAY)
        type = md_ndarray(s, arguments, column);
    else if (type && *arguments &&
             (strncmp(type, "jpeg", 4) != 0 ||
                 strspn(arguments, "0123456789") != strlen(arguments)))
        type = NULL; /* the quality of a JPEG is not needed here */
    if (!type)
        return bags_fail(s->err, BAGS_ERROR_TYPE,
            "%s: column \"%.100s\": unknown encoding \"%.100s\" (size %" PRIu64 ")",
            path, name, encoding, column->size);
    if (column->encoding.size && column->size != column->encoding.size)
        return bags_fail(s->err, BAGS_ERROR_CORRUPT,
            "%s: column \"%.100s\": size %" PRIu64 " for %.100s", path, name,
            column->size, encoding);
    bags_source_field(s, name, type);
    return BAGS_OK;
}

/* Make the columns from the first shard. */
static bags_code md_make_columns(bags_source *s) {
    md_state *m = (md_state *)s->state;
    json_object *first = json_object_array_get_idx(m->shards, 0), *list[3];
    for (size_t j = 0; j < 3; j++) {
        list[j] = bags_import_member(first, md_lists[j], json_type_array);
        if (!list[j] ||
            json_object_array_length(list[j]) != json_object_array_length(list[0]))
            return md_fail_index(s, 0, "invalid lists of columns");
    }
    size_t count = json_object_array_length(list[0]);
    m->columns = (md_column *)bags_source_alloc(s, count, sizeof *m->columns);
    if (!m->columns)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        json_object *name = json_object_array_get_idx(list[0], i);
        json_object *encoding = json_object_array_get_idx(list[1], i);
        if (!json_object_is_type(name, json_type_string) ||
            !json_object_is_type(encoding, json_type_string))
            return md_fail_index(s, 0, "invalid lists of columns");
        FORMAT_TRY(md_make_column(s, &m->columns[i], json_object_get_string(name),
            json_object_get_string(encoding), json_object_array_get_idx(list[2], i)));
    }
    return BAGS_OK;
}

/* Check the shards, and count the datapoints. */
static bags_code md_check_shards(bags_source *s) {
    md_state *m = (md_state *)s->state;
    json_object *first = json_object_array_get_idx(m->shards, 0);
    uint64_t samples, version;
    for (size_t i = 0; i < m->count; i++) {
        json_object *shard = json_object_array_get_idx(m->shards, i);
        if (strcmp(bags_import_json_text(shard, "format"), "mds") != 0 ||
            !md_number(shard, "version", &version) || version != 2)
            return md_fail_index(s, i, "not of format mds, version 2");
        if (!md_same_columns(shard, first))
            return md_fail_index(s, i, "other columns than the first shard");
        if (!md_number(shard, "samples", &samples) || samples > UINT32_MAX)
            return md_fail_index(s, i, "invalid \"samples\"");
        m->stops[i] = s->length += samples;
    }
    return BAGS_OK;
}

/* ---- shards ---- */

/* Compute a hash by the named algorithm, in hexadecimal. False if it is unknown. */
static bool md_hash(
    const char *name, bags_view data, char hex[2 * EVP_MAX_MD_SIZE + 1]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!strcmp(name, "xxh32")) {
        XXH32_canonicalFromHash(
            (XXH32_canonical_t *)digest, XXH32(data.data, data.size, 0));
        size = 4;
    } else if (!strcmp(name, "xxh64") || !strcmp(name, "xxh3_64")) {
        XXH64_canonicalFromHash((XXH64_canonical_t *)digest,
            name[3] == '6' ? XXH64(data.data, data.size, 0)
                           : XXH3_64bits(data.data, data.size));
        size = 8;
    } else if (!strcmp(name, "xxh128") || !strcmp(name, "xxh3_128")) {
        XXH128_canonicalFromHash(
            (XXH128_canonical_t *)digest, XXH3_128bits(data.data, data.size));
        size = 16;
    } else {
        /* Python's names use _ for -: sha3_256. */
        char plain[32] = "";
        strncat(plain, name, sizeof plain - 1);
        for (char *c = plain; *c; c++)
            *c = (char)(*c == '_' ? '-' : *c);
        const EVP_MD *algorithm =
            EVP_get_digestbyname(!strcmp(plain, "blake2b")   ? "blake2b512"
                                 : !strcmp(plain, "blake2s") ? "blake2s256"
                                                             : plain);
        if (!algorithm ||
            EVP_Digest(data.data, data.size, digest, &size, algorithm, NULL) != 1)
            return false;
    }
    for (unsigned i = 0; i < size; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return true;
}

/* Verify the open file against the hashes in `info`, its part of index.json. */
static bags_code md_check_hashes(bags_source *s, json_object *info) {
    json_object *hashes = bags_import_member(info, "hashes", json_type_object);
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    bags_view data;
    if (!hashes || json_object_object_length(hashes) == 0)
        return BAGS_OK;
    FORMAT_TRY(bags_source_view(s, 0, s->file.size, &data));
    json_object_object_foreach(hashes, name, stored) {
        const char *expected = json_object_get_string(stored);
        if (!md_hash(name, data, hex))
            return bags_fail(s->err, BAGS_ERROR_TYPE, "%s: unknown hash \"%.60s\"",
                ((md_state *)s->state)->index_path, name);
        if (!expected || strcmp(hex, expected) != 0)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "checksum mismatch of its %s (computed %s, stored %.128s)", name, hex,
                expected ? expected : "null");
    }
    return BAGS_OK;
}

/* Open the file named by `info` and check it. If `optional`, it may be missing, and
 * then is not open. */
static bags_code md_open_file(bags_source *s, json_object *info, bool optional) {
    md_state *m = (md_state *)s->state;
    const char *name = bags_import_json_text(info, "basename");
    uint64_t size;
    if (!*name || name[0] == '/' || strchr(name, '\\') || strchr(name, ':') ||
        strstr(name, "..") || !md_number(info, "bytes", &size))
        return md_fail_index(s, m->at, "invalid \"basename\" or \"bytes\"");
    if (optional && bags_import_kind(m->directory, name) == BAGS_PATH_NONE)
        return BAGS_OK;
    char *path = bags_source_format(s, "%s/%s", m->directory, name);
    FORMAT_TRY(path ? bags_source_open_file(s, path) : BAGS_ERROR_MEMORY);
    if (s->file.size != size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes (expected %" PRIu64 ")", s->file.size, size);
    return md_check_hashes(s, info);
}

/* Replace the open file with its content, decompressed to exactly `size` bytes. */
static bags_code md_decompress(bags_source *s, uint64_t size) {
    md_state *m = (md_state *)s->state;
    bags_view in;
    if (size > UINT32_MAX || size / MD_RATIO > s->file.size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes cannot be %" PRIu64 " when decompressed", s->file.size,
            size);
    FORMAT_TRY(bags_source_view(s, 0, s->file.size, &in));
    FORMAT_TRY(bags_source_reserve(s, &m->data, (size_t)size));
    size_t made = ZSTD_decompress(m->data->data, (size_t)size, in.data, in.size);
    if (ZSTD_isError(made) || made != size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "zstd: not %" PRIu64 " bytes when decompressed: %s", size,
            ZSTD_isError(made) ? ZSTD_getErrorName(made) : "fewer");
    s->file.data = m->data->data;
    s->file.size = size;
    return BAGS_OK;
}

/* Compare index.json with the columns stored in the shard, since hashes protect the
 * shard but not index.json. The columns are stored between the sample offsets and the
 * first sample. */
static bags_code md_check_config(bags_source *s, uint64_t samples) {
    md_state *m = (md_state *)s->state;
    bags_view text;
    uint64_t start = 8 + 4 * samples;
    FORMAT_TRY(bags_source_view(s, 4, 4, &text));
    uint64_t stop = bags_load_bytes(text.data, 4, false);
    if (stop <= start || stop > s->file.size)
        return BAGS_OK;
    bags_code code = bags_source_view(s, start, stop - start, &text);
    char *copy = code ? NULL : bags_source_text(s, text.data, text.size);
    if (!copy)
        return code ? code : BAGS_ERROR_MEMORY;
    json_object *config = json_tokener_parse(copy);
    bool same = md_same_columns(config, json_object_array_get_idx(m->shards, 0));
    json_object_put(config);
    return same ? BAGS_OK
                : bags_source_fail(
                      s, BAGS_ERROR_CORRUPT, "other columns than in %s", m->index_path);
}

static bags_code md_open_shard(bags_source *s, size_t at) {
    md_state *m = (md_state *)s->state;
    json_object *shard = json_object_array_get_idx(m->shards, at);
    json_object *raw = bags_import_member(shard, "raw_data", json_type_object);
    json_object *zip = bags_import_member(shard, "zip_data", json_type_object);
    const char *method = bags_import_json_text(shard, "compression");
    uint64_t size, samples = m->stops[at] - (at ? m->stops[at - 1] : 0);
    bags_view head;
    bags_source_close_file(s);
    m->at = at;
    if (!raw || !md_number(raw, "bytes", &size))
        return md_fail_index(s, at, "invalid \"raw_data\"");
    FORMAT_TRY(md_open_file(s, raw, zip != NULL));
    if (!s->file.handle) {
        if (strncmp(method, "zstd", 4) != 0)
            return bags_fail(s->err, BAGS_ERROR_TYPE,
                "%s: shard %" PRIu64 ": compression \"%.40s\" (only zstd is "
                "read)",
                m->index_path, (uint64_t)at, method);
        FORMAT_TRY(md_open_file(s, zip, false));
        FORMAT_TRY(md_decompress(s, size));
        FORMAT_TRY(md_check_hashes(s, raw));
    }
    if (s->file.size < 8 + 4 * samples)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "too short for %" PRIu64 " samples", samples);
    FORMAT_TRY(bags_source_view(s, 0, 4, &head));
    if (bags_load_bytes(head.data, 4, false) != samples)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "has %" PRIu64 " samples (expected %" PRIu64 ")",
            bags_load_bytes(head.data, 4, false), samples);
    return md_check_config(s, samples);
}

/* ---- values ---- */

/* Decode a value. Returns the reason if it is invalid, or NULL. */
static const char *md_decode_array(
    bags_source *s, bags_view blob, bags_dtype dtype, bags_value *out) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_UINT8, BAGS_DTYPE_INT8,
        BAGS_DTYPE_NONE, BAGS_DTYPE_UINT16, BAGS_DTYPE_INT16, BAGS_DTYPE_FLOAT16,
        BAGS_DTYPE_UINT32, BAGS_DTYPE_INT32, BAGS_DTYPE_FLOAT32, BAGS_DTYPE_UINT64,
        BAGS_DTYPE_INT64, BAGS_DTYPE_FLOAT64};
    if (!dtype && blob.size > 0) {
        /* 8, 16, 32 or 64 bits, plus 0: unsigned, 1: signed, 2: float. */
        unsigned bits = *blob.data & 0xF8U, kind = *blob.data & 7U;
        unsigned row = bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : 3;
        if (kind < 3 && bits == 8U << row)
            dtype = dtypes[3 * row + kind];
        blob.data++;
        blob.size--;
    }
    if (!dtype || blob.size == 0)
        return "invalid dtype";
    size_t dims = *blob.data >> 2, width = (size_t)1 << (*blob.data & 3);
    if (blob.size - 1 < dims * width)
        return "truncated";
    uint64_t *shape = (uint64_t *)bags_source_alloc(s, dims, sizeof *shape);
    if (!shape)
        return "out of memory";
    for (size_t i = 0; i < dims; i++)
        shape[i] = bags_load_bytes(blob.data + 1 + i * width, (unsigned)width, false);
    blob.data += 1 + dims * width;
    blob.size -= 1 + dims * width;
    size_t size;
    if (!bags_array_size(dtype, dims, shape, &size) || size != blob.size)
        return "its shape contradicts its size";
    *out = bags_array(dtype, dims, shape, blob.data);
    return NULL;
}

static const char *md_decode_image(bags_source *s, bags_view blob, bags_value *out) {
    static const struct md_mode {
        const char *name;
        bags_dtype dtype;
        uint64_t channels;
    } modes[] = {{"L", BAGS_DTYPE_UINT8, 1}, {"P", BAGS_DTYPE_UINT8, 1},
        {"RGB", BAGS_DTYPE_UINT8, 3}, {"RGBA", BAGS_DTYPE_UINT8, 4},
        {"CMYK", BAGS_DTYPE_UINT8, 4}, {"YCbCr", BAGS_DTYPE_UINT8, 3},
        {"LAB", BAGS_DTYPE_UINT8, 3}, {"HSV", BAGS_DTYPE_UINT8, 3},
        {"LA", BAGS_DTYPE_UINT8, 2}, {"PA", BAGS_DTYPE_UINT8, 2},
        {"RGBX", BAGS_DTYPE_UINT8, 4}, {"I;16", BAGS_DTYPE_UINT16, 1},
        {"I", BAGS_DTYPE_INT32, 1}, {"F", BAGS_DTYPE_FLOAT32, 1}};
    uint64_t *shape = (uint64_t *)bags_source_alloc(s, 3, sizeof *shape);
    uint64_t length = blob.size < 12 ? 0 : bags_load_bytes(blob.data + 8, 4, false);
    size_t size;
    if (!shape)
        return "out of memory";
    if (blob.size < 12 || length > blob.size - 12)
        return "truncated";
    shape[0] = bags_load_bytes(blob.data + 4, 4, false);
    shape[1] = bags_load_bytes(blob.data, 4, false);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strlen(modes[i].name) != length ||
            memcmp(modes[i].name, blob.data + 12, (size_t)length) != 0)
            continue;
        size_t dims = modes[i].channels > 1 ? 3 : 2;
        shape[2] = modes[i].channels;
        if (!bags_array_size(modes[i].dtype, dims, shape, &size) ||
            size != blob.size - 12 - (size_t)length)
            return "its width and height contradict its size";
        *out = bags_array(modes[i].dtype, dims, shape, blob.data + 12 + length);
        return NULL;
    }
    return "an image of a mode that is not supported";
}

/* Decode a value, or an item of a list. */
static const char *md_decode(
    bags_source *s, const md_column *column, bags_view blob, bags_value *out) {
    const char *magic = bags_import_magic(blob.data, blob.size);
    *out = bags_blob(blob.data, blob.size);
    if (column->encoding.kind == MD_IMAGE &&
        (!magic || strncmp(column->encoding.type, magic, strlen(magic)) != 0))
        return "it does not begin like an image of its encoding";
    if (column->encoding.kind == MD_ARRAY)
        return md_decode_array(s, blob, column->dtype, out);
    if (column->encoding.kind == MD_PIL)
        return md_decode_image(s, blob, out);
    /* Blobs are stored unchanged, but text is checked when it is encoded. */
    if (!strcmp(column->encoding.type, "utf8"))
        *out = bags_utf8_sized((const char *)blob.data, blob.size);
    return NULL;
}

static const char *md_decode_list(
    bags_source *s, const md_column *column, bags_view blob, bags_entry *entry) {
    size_t front = column->encoding.list;
    uint64_t count =
        blob.size < front ? 0 : bags_load_bytes(blob.data + front - 4, 4, false);
    if (blob.size < front || count > (blob.size - front) / 4)
        return "truncated";
    bags_value *values =
        (bags_value *)bags_source_alloc(s, (size_t)count, sizeof *values);
    if (!values)
        return "out of memory";
    bags_view item = {blob.data + front + 4 * count, 0};
    size_t left = blob.size - front - 4 * (size_t)count;
    for (size_t i = 0; i < count; i++) {
        uint64_t size = bags_load_bytes(blob.data + front + 4 * i, 4, false);
        if (size > left)
            return "truncated";
        item.size = (size_t)size;
        const char *fault = md_decode(s, column, item, &values[i]);
        if (fault)
            return fault;
        item.data += item.size;
        left -= item.size;
    }
    entry->values = values;
    entry->count = (size_t)count;
    return left ? "trailing bytes" : NULL;
}

/* Split a sample into its columns. It has the sizes of columns without a fixed size,
 * then the values. */
static bags_code md_split(bags_source *s, uint64_t sample, bags_view bytes) {
    const md_column *columns = ((md_state *)s->state)->columns;
    size_t head = 0, i = 0;
    for (size_t k = 0; k < s->count; k++)
        head += columns[k].size ? 0 : 4;
    const unsigned char *sizes = bytes.data;
    const char *fault = bytes.size < head ? "truncated" : NULL;
    bags_view blob = {fault ? NULL : bytes.data + head, 0};
    size_t left = fault ? 0 : bytes.size - head;
    for (; !fault && i < s->count; i++) {
        uint64_t size = columns[i].size;
        if (size == 0) {
            size = bags_load_bytes(sizes, 4, false);
            sizes += 4;
        }
        if (size > left) {
            fault = "truncated";
            break;
        }
        blob.size = (size_t)size;
        fault = columns[i].encoding.list
                    ? md_decode_list(s, &columns[i], blob, &s->entries[i])
                    : md_decode(s, &columns[i], blob, &s->values[i]);
        if (fault)
            break;
        blob.data += blob.size;
        left -= blob.size;
    }
    if (!fault && left)
        fault = "trailing bytes";
    if (!fault)
        return BAGS_OK;
    return bags_source_fail(s,
        strcmp(fault, "out of memory") ? BAGS_ERROR_CORRUPT : BAGS_ERROR_MEMORY,
        "sample %" PRIu64 ": column \"%.100s\": %s", sample,
        i < s->count ? s->fields[i].name : "", fault);
}

/* ---- the source ---- */

static void md_close(bags_source *s) { json_object_put(((md_state *)s->state)->index); }

static bags_code md_open(bags_source *s) {
    md_state *m = (md_state *)s->state;
    bool is_directory = bags_import_kind(s->path, NULL) == BAGS_PATH_DIRECTORY;
    const char *base = bags_import_base(s->path);
    m->index_path =
        is_directory ? bags_source_format(s, "%s/index.json", s->path) : s->path;
    m->directory = is_directory ? s->path
                   : base == s->path
                       ? "."
                       : bags_source_text(s, s->path, (size_t)(base - s->path - 1));
    if (!m->index_path || !m->directory)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_source_json(s, m->index_path, &m->index));
    m->shards = bags_import_member(m->index, "shards", json_type_array);
    m->at = m->count = m->shards ? json_object_array_length(m->shards) : 0;
    if (m->count == 0)
        return bags_fail(s->err, BAGS_ERROR_CORRUPT,
            "%s: no list of \"shards\", or an empty one", m->index_path);
    m->stops = (uint64_t *)bags_source_alloc(s, m->count, sizeof *m->stops);
    FORMAT_TRY(m->stops ? md_check_shards(s) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(md_make_columns(s));
    return bags_source_metadata_file(s, m->directory);
}

static bags_code md_read(bags_source *s, uint64_t index) {
    md_state *m = (md_state *)s->state;
    size_t at = m->at < m->count ? m->at : 0;
    bags_view bytes;
    if (s->ended)
        return BAGS_OK;
    while (index >= m->stops[at])
        at++;
    FORMAT_TRY(at != m->at ? md_open_shard(s, at) : BAGS_OK);
    uint64_t sample = index - (at ? m->stops[at - 1] : 0);
    FORMAT_TRY(bags_source_view(s, 4 + 4 * sample, 8, &bytes));
    uint64_t start = bags_load_bytes(bytes.data, 4, false);
    uint64_t stop = bags_load_bytes(bytes.data + 4, 4, false);
    if (start > stop || stop > s->file.size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "sample %" PRIu64 ": out of range (bytes %" PRIu64 " to %" PRIu64
            " of %" PRIu64 ")",
            sample, start, stop, s->file.size);
    bags_code code = bags_source_view(s, start, stop - start, &bytes);
    return code ? code : md_split(s, sample, bytes);
}

const bags_importer bags_import_mds = {
    "mds", bags_import_is_mds, sizeof(md_state), md_open, md_read, md_close};
