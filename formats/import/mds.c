/*
 * mds.c - shards that MosaicML's streaming wrote (MDS), raw or compressed by zstd. On
 * json-c, libzstd, and for the hashes libcrypto and libxxhash.
 *
 * The source is a directory with index.json, which lists shards and columns, or that
 * file. Each column is a field:
 *
 *     str, json, str_int, str_float, str_decimal   utf8, as stored
 *     bytes, pkl                                   bytes, as stored
 *     int, int64; uint64                           i64; u64
 *     int8 .. int32, uint8 .. uint32, float16 .. float64
 *                                                  array(int8), ...: one number
 *     ndarray:DTYPE:SHAPE                          array(DTYPE,SHAPE)
 *     ndarray, ndarray:DTYPE; pil                  array
 *     jpeg; png                                    jpeg; png, as stored
 *     jpeg_array, jpegarray, list[jpeg]; list[png]; list[pil]
 *                                                  jpeg[]; png[]; array[]
 *
 * Sizes of files and all hashes in index.json are checked. Other compressions are
 * rejected, and images of mode 1, whose pixels are bits.
 */
#include "json.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <xxhash.h>
#include <zstd.h>

#define MD_BLOCK ((size_t)1 << 20)

typedef enum md_kind { MD_BLOB, MD_IMAGE, MD_ARRAY, MD_PIL } md_kind;

/* An encoding: what values are, and the type of the field. */
typedef struct md_encoding {
    const char *name, *type;
    md_kind kind;
    unsigned size; /* of every value; 0: any */
    unsigned list; /* of a list, bytes before the number of items; 0: no list */
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
    bags_dtype dtype; /* of an ndarray; BAGS_DTYPE_NONE: each states its own */
    uint64_t size;    /* of every value; 0: each states its own */
} md_column;

typedef struct md_source {
    bags_import_arena arena;   /* which contains this */
    bags_import_arena scratch; /* of one datapoint */
    const char *path, *directory;
    bags_buffer text, data, sample;
    json_object *index, *shards;
    size_t count, columns;
    uint64_t *stops; /* the index after the last datapoint of each shard */
    size_t at;       /* the shard that is open, count: none */
    bags_import_file file; /* it, or */
    uint64_t size;         /* its bytes, */
    bool in_memory;        /* all of which are in `data` */
    const char *shard_path;
    md_column *column;
    bags_field *fields;
    bags_entry *entries;
} md_source;

static uint64_t md_load(const unsigned char *data, unsigned bytes) {
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++)
        number |= (uint64_t)data[i] << (8 * i);
    return number;
}

/* ---- index.json ---- */

static bags_code md_fail_index(
    const md_source *source, size_t shard, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: shard %" PRIu64 ": %s",
        source->path, (uint64_t)shard, what);
}

/* The members that describe the columns. */
static const char *const md_lists[3] = {
    "column_names", "column_encodings", "column_sizes"};

static bool md_same_columns(json_object *a, json_object *b) {
    for (size_t i = 0; i < 3; i++)
        if (!json_object_equal(
                bags_import_member(a, md_lists[i], json_type_array),
                bags_import_member(b, md_lists[i], json_type_array)))
            return false;
    return true;
}

/* A member that is a number from 0. */
static bool md_number(json_object *json, const char *name, uint64_t *out) {
    json_object *number = bags_import_member(json, name, json_type_int);
    if (!number || json_object_get_int64(number) < 0)
        return false;
    *out = json_object_get_uint64(number);
    return true;
}

/* ndarray:uint8:28,28 as a column, and its type. */
static const char *md_ndarray(
    md_source *source, const char *text, md_column *column, bags_error *err) {
    size_t dtype_size = strcspn(text, ":");
    const char *shape = text[dtype_size] ? text + dtype_size + 1 : "";
    column->dtype = bags_dtype_parse(text, dtype_size, NULL);
    const char *name = bags_dtype_name(column->dtype);
    if (strlen(name) != dtype_size || memcmp(name, text, dtype_size) ||
        strspn(shape, "0123456789,") != strlen(shape))
        return NULL;
    if (!*shape)
        return "array";
    char *type =
        bags_import_format(&source->arena, err, "array(%s,%s)", name, shape);
    bags_type parsed;
    uint64_t sizes[BAGS_MAX_DIMS];
    size_t bytes, dims = 0;
    if (!type || bags_type_parse(type, &parsed, NULL) ||
        parsed.count > BAGS_MAX_DIMS)
        return NULL;
    while (dims + 1 < parsed.count &&
           bags_type_number(&parsed, dims + 1, &sizes[dims]))
        dims++;
    if (dims + 1 < parsed.count ||
        !bags_array_size(column->dtype, dims, sizes, &bytes) ||
        bytes != column->size)
        return NULL;
    column->encoding.kind = MD_BLOB;
    return type;
}

static bags_code md_make_column(md_source *source, size_t i, const char *name,
    const char *encoding, json_object *size, bags_error *err) {
    md_column *column = &source->column[i];
    const char *arguments =
        !strncmp(encoding, "ndarray:", 8) ? encoding + 8 : "";
    size_t length = *arguments ? 7 : strlen(encoding);
    const char *type = NULL;
    for (size_t j = 0; j < sizeof md_encodings / sizeof *md_encodings; j++)
        if (strlen(md_encodings[j].name) == length &&
            !memcmp(md_encodings[j].name, encoding, length)) {
            column->encoding = md_encodings[j];
            type = column->encoding.type;
        }
    if (json_object_is_type(size, json_type_int))
        column->size = json_object_get_uint64(size);
    if (type && *arguments)
        type = md_ndarray(source, arguments, column, err);
    if (!type)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: column \"%.100s\": unknown encoding \"%.100s\" (size %" PRIu64
            ")",
            source->path, name, encoding, column->size);
    if (column->encoding.size && column->size != column->encoding.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: column \"%.100s\": size %" PRIu64 " for %.100s", source->path,
            name, column->size, encoding);
    source->fields[i].type = type;
    source->fields[i].name = name;
    source->entries[i].count = 1;
    return BAGS_OK;
}

/* The columns of the first shard. */
static bags_code md_make_columns(md_source *source, bags_error *err) {
    json_object *first = json_object_array_get_idx(source->shards, 0), *list[3];
    for (size_t j = 0; j < 3; j++) {
        list[j] = bags_import_member(first, md_lists[j], json_type_array);
        if (!list[j] || json_object_array_length(list[j]) !=
                            json_object_array_length(list[0]))
            return md_fail_index(source, 0, "invalid lists of columns", err);
    }
    size_t count = source->columns = json_object_array_length(list[0]);
    source->fields = (bags_field *)bags_import_alloc(
        &source->arena, count, sizeof *source->fields, err);
    source->entries = (bags_entry *)bags_import_alloc(
        &source->arena, count, sizeof *source->entries, err);
    source->column = (md_column *)bags_import_alloc(
        &source->arena, count, sizeof *source->column, err);
    if (!source->fields || !source->entries || !source->column)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    for (size_t i = 0; !code && i < count; i++) {
        json_object *name = json_object_array_get_idx(list[0], i);
        json_object *encoding = json_object_array_get_idx(list[1], i);
        if (!json_object_is_type(name, json_type_string) ||
            !json_object_is_type(encoding, json_type_string))
            return md_fail_index(source, 0, "invalid lists of columns", err);
        code = md_make_column(source, i, json_object_get_string(name),
            json_object_get_string(encoding),
            json_object_array_get_idx(list[2], i), err);
    }
    if (!code)
        code = bags_import_names(
            source->fields, count, source->path, &source->arena, err);
    for (size_t i = 0; !code && i < count; i++)
        source->entries[i].field = source->fields[i].name;
    return code;
}

/* Check the shards, and count the datapoints. */
static bags_code md_check_shards(md_source *source, bags_error *err) {
    json_object *first = json_object_array_get_idx(source->shards, 0);
    uint64_t total = 0, samples, version;
    for (size_t i = 0; i < source->count; i++) {
        json_object *shard = json_object_array_get_idx(source->shards, i);
        json_object *format =
            bags_import_member(shard, "format", json_type_string);
        if (!format || strcmp(json_object_get_string(format), "mds") != 0 ||
            !md_number(shard, "version", &version) || version != 2)
            return md_fail_index(
                source, i, "not of format mds, version 2", err);
        if (!md_same_columns(shard, first))
            return md_fail_index(
                source, i, "other columns than the first shard", err);
        if (!md_number(shard, "samples", &samples) || samples > UINT32_MAX)
            return md_fail_index(source, i, "invalid \"samples\"", err);
        source->stops[i] = total += samples;
    }
    return BAGS_OK;
}

/* ---- hashes ---- */

static void md_hex(const unsigned char *data, size_t size, char *out) {
    for (size_t i = 0; i < size; i++)
        snprintf(out + 2 * i, 3, "%02x", data[i]);
}

/* A hash that is computed from parts. */
typedef struct md_hash {
    EVP_MD_CTX *evp;
    XXH32_state_t *xxh32;
    XXH64_state_t *xxh64;
    XXH3_state_t *xxh3_64, *xxh3_128;
} md_hash;

/* False if there is no such hash, or no memory. */
static bool md_hash_start(md_hash *hash, const char *name) {
    memset(hash, 0, sizeof *hash);
    if (!strcmp(name, "xxh32"))
        return (hash->xxh32 = XXH32_createState()) != NULL &&
               XXH32_reset(hash->xxh32, 0) == XXH_OK;
    if (!strcmp(name, "xxh64"))
        return (hash->xxh64 = XXH64_createState()) != NULL &&
               XXH64_reset(hash->xxh64, 0) == XXH_OK;
    if (!strcmp(name, "xxh3_64"))
        return (hash->xxh3_64 = XXH3_createState()) != NULL &&
               XXH3_64bits_reset(hash->xxh3_64) == XXH_OK;
    if (!strcmp(name, "xxh128") || !strcmp(name, "xxh3_128"))
        return (hash->xxh3_128 = XXH3_createState()) != NULL &&
               XXH3_128bits_reset(hash->xxh3_128) == XXH_OK;
    /* Python's names have _ for -: sha3_256. */
    char plain[32] = "";
    strncat(plain, name, sizeof plain - 1);
    for (char *c = plain; *c; c++)
        *c = (char)(*c == '_' ? '-' : *c);
    const char *known = !strcmp(plain, "blake2b")   ? "blake2b512"
                        : !strcmp(plain, "blake2s") ? "blake2s256"
                                                    : plain;
    const EVP_MD *algorithm = EVP_get_digestbyname(known);
    return algorithm && (hash->evp = EVP_MD_CTX_new()) != NULL &&
           EVP_DigestInit_ex(hash->evp, algorithm, NULL) == 1;
}

static void md_hash_add(md_hash *hash, const void *data, size_t size) {
    if (hash->xxh32)
        XXH32_update(hash->xxh32, data, size);
    if (hash->xxh64)
        XXH64_update(hash->xxh64, data, size);
    if (hash->xxh3_64)
        XXH3_64bits_update(hash->xxh3_64, data, size);
    if (hash->xxh3_128)
        XXH3_128bits_update(hash->xxh3_128, data, size);
    if (hash->evp)
        EVP_DigestUpdate(hash->evp, data, size);
}

static void md_hash_end(md_hash *hash, char hex[2 * EVP_MAX_MD_SIZE + 1]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (hash->xxh32) {
        XXH32_canonicalFromHash(
            (XXH32_canonical_t *)digest, XXH32_digest(hash->xxh32));
        size = 4;
    } else if (hash->xxh64 || hash->xxh3_64) {
        XXH64_canonicalFromHash((XXH64_canonical_t *)digest,
            hash->xxh64 ? XXH64_digest(hash->xxh64)
                        : XXH3_64bits_digest(hash->xxh3_64));
        size = 8;
    } else if (hash->xxh3_128) {
        XXH128_canonicalFromHash(
            (XXH128_canonical_t *)digest, XXH3_128bits_digest(hash->xxh3_128));
        size = 16;
    } else if (EVP_DigestFinal_ex(hash->evp, digest, &size) != 1) {
        size = 0;
    }
    hex[0] = 0;
    md_hex(digest, size, hex);
}

static void md_hash_free(md_hash *hash) {
    EVP_MD_CTX_free(hash->evp);
    XXH32_freeState(hash->xxh32);
    XXH64_freeState(hash->xxh64);
    XXH3_freeState(hash->xxh3_64);
    XXH3_freeState(hash->xxh3_128);
}

/* Bytes of a shard, in memory or in its file; the view is valid until `to` is used
 * again. */
static bags_code md_bytes(md_source *source, uint64_t offset, size_t size,
    bags_buffer *to, bags_view *out, bags_error *err) {
    bags_code code = BAGS_OK;
    out->size = size;
    if (source->in_memory) {
        out->data = source->data.data + offset;
        return BAGS_OK;
    }
    code = bags_buffer_reserve(to, size, err);
    if (!code)
        code =
            bags_import_file_read(&source->file, offset, to->data, size, err);
    out->data = to->data;
    return code;
}

/* Compare the open file with the hashes that `info`, its part of index.json, has. */
static bags_code md_check_hashes(
    md_source *source, json_object *info, bags_error *err) {
    json_object *hashes = bags_import_member(info, "hashes", json_type_object);
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    bags_code code = BAGS_OK;
    if (!hashes)
        return BAGS_OK;
    struct json_object_iterator at = json_object_iter_begin(hashes);
    struct json_object_iterator end = json_object_iter_end(hashes);
    for (; !code && !json_object_iter_equal(&at, &end);
         json_object_iter_next(&at)) {
        const char *name = json_object_iter_peek_name(&at);
        json_object *stored = json_object_iter_peek_value(&at);
        md_hash hash;
        if (!md_hash_start(&hash, name)) {
            md_hash_free(&hash);
            return bags_fail(err, BAGS_ERROR_TYPE, "%s: unknown hash \"%.60s\"",
                source->path, name);
        }
        for (uint64_t offset = 0; !code && offset < source->size;) {
            uint64_t left = source->size - offset;
            bags_view part = {NULL, 0};
            code = md_bytes(source, offset,
                left < MD_BLOCK ? (size_t)left : MD_BLOCK, &source->sample,
                &part, err);
            if (!code)
                md_hash_add(&hash, part.data, part.size);
            offset += part.size;
        }
        md_hash_end(&hash, hex);
        md_hash_free(&hash);
        const char *expected = json_object_is_type(stored, json_type_string)
                                   ? json_object_get_string(stored)
                                   : "";
        if (!code && strcmp(hex, expected) != 0)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: checksum mismatch of its %s (computed %s, stored %.128s)",
                source->shard_path, name, hex, expected);
    }
    return code;
}

/* ---- shards ---- */

static void md_close_shard(md_source *source) {
    bags_import_file_close(&source->file);
    source->in_memory = false;
    source->at = source->count;
}

/* Open the file that `info` names and check it. It may not exist if `optional`; then
 * it is not open. */
static bags_code md_open_file(
    md_source *source, json_object *info, bool optional, bags_error *err) {
    json_object *base = bags_import_member(info, "basename", json_type_string);
    const char *name = base ? json_object_get_string(base) : "";
    uint64_t size;
    if (!*name || name[0] == '/' || strchr(name, '\\') || strchr(name, ':') ||
        strstr(name, "..") || !md_number(info, "bytes", &size))
        return md_fail_index(
            source, source->at, "invalid \"basename\" or \"bytes\"", err);
    char *path = bags_import_format(
        &source->arena, err, "%s/%s", source->directory, name);
    if (!path)
        return BAGS_ERROR_MEMORY;
    source->shard_path = path;
    if (optional && bags_import_kind(path) == BAGS_PATH_NONE)
        return BAGS_OK;
    bags_code code = bags_import_file_open(&source->file, path, err);
    if (!code && source->file.size != size)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: %" PRIu64 " bytes (expected %" PRIu64 ")", path,
            source->file.size, size);
    source->size = source->file.size;
    return code ? code : md_check_hashes(source, info, err);
}

/* Decompress the open file to `data`, to exactly `size` bytes. */
static bags_code md_decompress(
    md_source *source, uint64_t size, bags_error *err) {
    ZSTD_DCtx *context = ZSTD_createDCtx();
    uint64_t offset = 0;
    size_t done = 0, result = 1;
    bags_view part = {NULL, 0};
    bags_code code =
        context ? BAGS_OK : bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    ZSTD_inBuffer in = {NULL, 0, 0};
    while (
        !code && (result != 0 || in.pos < in.size || offset < source->size)) {
        if (in.pos == in.size) {
            uint64_t left = source->size - offset;
            code = md_bytes(source, offset,
                left < MD_BLOCK ? (size_t)left : MD_BLOCK, &source->sample,
                &part, err);
            offset += part.size;
            in.src = part.data;
            in.size = part.size;
            in.pos = 0;
        }
        size_t least = done < SIZE_MAX - MD_BLOCK ? done + MD_BLOCK : SIZE_MAX;
        if (!code)
            code = bags_buffer_reserve(&source->data, least, err);
        if (code)
            break;
        ZSTD_outBuffer out = {source->data.data, source->data.capacity, done};
        result = ZSTD_decompressStream(context, &out, &in);
        bool stuck = in.size == 0 && out.pos == done && result != 0;
        done = out.pos;
        if (ZSTD_isError(result) || stuck)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: before byte %" PRIu64 ": zstd: %s", source->shard_path,
                offset - in.size + in.pos,
                stuck ? "truncated" : ZSTD_getErrorName(result));
        else if (done > size)
            break;
    }
    ZSTD_freeDCtx(context);
    if (!code && done != size)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: %s %" PRIu64 " bytes when decompressed (expected %" PRIu64 ")",
            source->shard_path, done > size ? "more than" : "only",
            done > size ? size : (uint64_t)done, size);
    return code;
}

/* The columns are in the shard, too, which has hashes where index.json has none:
 * between the offsets of its samples and the first of them. */
static bags_code md_check_config(
    md_source *source, uint64_t samples, bags_error *err) {
    bags_view text = {NULL, 0};
    uint64_t start = 8 + 4 * samples;
    bags_code code = md_bytes(source, 4, 4, &source->sample, &text, err);
    if (code)
        return code;
    uint64_t stop = md_load(text.data, 4);
    if (stop <= start || stop > source->size)
        return BAGS_OK;
    code = md_bytes(
        source, start, (size_t)(stop - start), &source->sample, &text, err);
    char *copy =
        code ? NULL
             : bags_import_text(&source->scratch, text.data, text.size, err);
    if (!copy)
        return code ? code : BAGS_ERROR_MEMORY;
    json_object *config = json_tokener_parse(copy);
    bool same =
        md_same_columns(config, json_object_array_get_idx(source->shards, 0));
    json_object_put(config);
    bags_import_reset(&source->scratch);
    if (same)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: other columns than in %s",
        source->shard_path, source->path);
}

static bags_code md_open_shard(md_source *source, size_t at, bags_error *err) {
    json_object *shard = json_object_array_get_idx(source->shards, at);
    json_object *raw = bags_import_member(shard, "raw_data", json_type_object);
    json_object *zip = bags_import_member(shard, "zip_data", json_type_object);
    json_object *method =
        bags_import_member(shard, "compression", json_type_string);
    uint64_t size;
    md_close_shard(source);
    source->at = at;
    if (!raw || !md_number(raw, "bytes", &size))
        return md_fail_index(source, at, "invalid \"raw_data\"", err);
    bags_code code = md_open_file(source, raw, zip != NULL, err);
    if (!code && !source->file.handle) {
        if (!method || strncmp(json_object_get_string(method), "zstd", 4) != 0)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: shard %" PRIu64 ": compression \"%.40s\" (only zstd is "
                "read)",
                source->path, (uint64_t)at,
                method ? json_object_get_string(method) : "");
        code = md_open_file(source, zip, false, err);
        if (!code)
            code = md_decompress(source, size, err);
        bags_import_file_close(&source->file);
        source->in_memory = true;
        source->size = size;
        if (!code)
            code = md_check_hashes(source, raw, err);
    }
    uint64_t samples = source->stops[at] - (at ? source->stops[at - 1] : 0);
    bags_view head = {NULL, 0};
    if (!code && source->size < 8 + 4 * samples)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: too short for %" PRIu64 " samples", source->shard_path,
            samples);
    if (!code)
        code = md_bytes(source, 0, 4, &source->sample, &head, err);
    if (!code && md_load(head.data, 4) != samples)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " samples (expected %" PRIu64 ")",
            source->shard_path, md_load(head.data, 4), samples);
    return code ? code : md_check_config(source, samples, err);
}

/* ---- values ---- */

/* What is wrong with a value; NULL: nothing. */
static const char *md_decode_array(md_source *source, bags_view blob,
    bags_dtype dtype, bags_value *out, bags_error *err) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_UINT8, BAGS_DTYPE_INT8,
        BAGS_DTYPE_NONE, BAGS_DTYPE_UINT16, BAGS_DTYPE_INT16,
        BAGS_DTYPE_FLOAT16, BAGS_DTYPE_UINT32, BAGS_DTYPE_INT32,
        BAGS_DTYPE_FLOAT32, BAGS_DTYPE_UINT64, BAGS_DTYPE_INT64,
        BAGS_DTYPE_FLOAT64};
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
    uint64_t *shape = (uint64_t *)bags_import_alloc(
        &source->scratch, dims, sizeof *shape, err);
    if (!shape)
        return "out of memory";
    for (size_t i = 0; i < dims; i++)
        shape[i] = md_load(blob.data + 1 + i * width, (unsigned)width);
    blob.data += 1 + dims * width;
    blob.size -= 1 + dims * width;
    size_t size;
    if (!bags_array_size(dtype, dims, shape, &size) || size != blob.size)
        return "its shape contradicts its size";
    *out = bags_array(dtype, dims, shape, blob.data);
    return NULL;
}

static const char *md_decode_image(
    md_source *source, bags_view blob, bags_value *out, bags_error *err) {
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
    uint64_t *shape =
        (uint64_t *)bags_import_alloc(&source->scratch, 3, sizeof *shape, err);
    uint64_t length = blob.size < 12 ? 0 : md_load(blob.data + 8, 4);
    size_t size;
    if (!shape)
        return "out of memory";
    if (blob.size < 12 || length > blob.size - 12)
        return "truncated";
    shape[0] = md_load(blob.data + 4, 4);
    shape[1] = md_load(blob.data, 4);
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

/* One value, or one item of a list. */
static const char *md_decode(md_source *source, const md_column *column,
    bags_view blob, bags_value *out, bags_error *err) {
    const char *magic = bags_import_magic(blob.data, blob.size);
    *out = bags_blob(blob.data, blob.size);
    if (column->encoding.kind == MD_IMAGE &&
        (!magic || strncmp(column->encoding.type, magic, strlen(magic)) != 0))
        return "it does not begin like an image of its encoding";
    if (column->encoding.kind == MD_ARRAY)
        return md_decode_array(source, blob, column->dtype, out, err);
    if (column->encoding.kind == MD_PIL)
        return md_decode_image(source, blob, out, err);
    /* Bits as stored, but text is checked when it is encoded. */
    if (!strcmp(column->encoding.type, "utf8"))
        *out = bags_utf8_sized((const char *)blob.data, blob.size);
    return NULL;
}

static const char *md_decode_list(md_source *source, const md_column *column,
    bags_view blob, bags_entry *entry, bags_error *err) {
    size_t front = column->encoding.list;
    uint64_t count = blob.size < front ? 0 : md_load(blob.data + front - 4, 4);
    if (blob.size < front || count > (blob.size - front) / 4)
        return "truncated";
    bags_value *values = (bags_value *)bags_import_alloc(
        &source->scratch, (size_t)count, sizeof *values, err);
    if (!values)
        return "out of memory";
    bags_view item = {blob.data + front + 4 * count, 0};
    size_t left = blob.size - front - 4 * (size_t)count;
    for (size_t i = 0; i < count; i++) {
        uint64_t size = md_load(blob.data + front + 4 * i, 4);
        if (size > left)
            return "truncated";
        item.size = (size_t)size;
        const char *fault = md_decode(source, column, item, &values[i], err);
        if (fault)
            return fault;
        item.data += item.size;
        left -= item.size;
    }
    entry->values = values;
    entry->count = (size_t)count;
    return left ? "trailing bytes" : NULL;
}

/* Split a sample into its columns: the sizes of those that have no fixed one, then
 * the values. */
static bags_code md_split(
    md_source *source, uint64_t sample, bags_view bytes, bags_error *err) {
    size_t head = 0;
    for (size_t i = 0; i < source->columns; i++)
        head += source->column[i].size ? 0 : 4;
    bags_import_reset(&source->scratch);
    bags_value *values = (bags_value *)bags_import_alloc(
        &source->scratch, source->columns, sizeof *values, err);
    if (!values)
        return BAGS_ERROR_MEMORY;
    const unsigned char *sizes = bytes.data;
    size_t left = bytes.size < head ? 0 : bytes.size - head, i = 0;
    const char *fault = bytes.size < head ? "truncated" : NULL;
    bags_view blob = {fault ? NULL : bytes.data + head, 0};
    for (; !fault && i < source->columns; i++) {
        const md_column *column = &source->column[i];
        bags_entry *entry = &source->entries[i];
        uint64_t size = column->size;
        if (size == 0) {
            size = md_load(sizes, 4);
            sizes += 4;
        }
        if (size > left) {
            fault = "truncated";
            break;
        }
        blob.size = (size_t)size;
        entry->values = &values[i];
        if (column->encoding.list)
            fault = md_decode_list(source, column, blob, entry, err);
        else
            fault = md_decode(source, column, blob, &values[i], err);
        if (fault)
            break;
        blob.data += blob.size;
        left -= blob.size;
    }
    if (!fault && left)
        fault = "trailing bytes";
    if (!fault)
        return BAGS_OK;
    return bags_fail(err,
        strcmp(fault, "out of memory") ? BAGS_ERROR_CORRUPT : BAGS_ERROR_MEMORY,
        "%s: sample %" PRIu64 ": column \"%.100s\": %s", source->shard_path,
        sample, i < source->columns ? source->fields[i].name : "", fault);
}

/* ---- the source ---- */

static void md_close(void *state) {
    md_source *source = (md_source *)state;
    if (!source)
        return;
    md_close_shard(source);
    json_object_put(source->index);
    bags_buffer_free(&source->text);
    bags_buffer_free(&source->data);
    bags_buffer_free(&source->sample);
    bags_import_free(&source->scratch);
    bags_import_arena arena = source->arena;
    bags_import_free(&arena);
}

static bags_code md_load_index(
    md_source *source, const char *path, bags_error *err) {
    bool is_directory = bags_import_kind(path) == BAGS_PATH_DIRECTORY;
    const char *base = bags_import_base(path);
    source->path = bags_import_format(
        &source->arena, err, is_directory ? "%s/index.json" : "%s", path);
    source->directory =
        is_directory   ? bags_import_format(&source->arena, err, "%s", path)
        : base == path ? "."
                       : bags_import_text(
                             &source->arena, path, (size_t)(base - path), err);
    if (!source->path || !source->directory)
        return BAGS_ERROR_MEMORY;
    bags_code code =
        bags_import_json(source->path, &source->text, &source->index, err);
    if (code)
        return code;
    source->shards =
        bags_import_member(source->index, "shards", json_type_array);
    source->count =
        source->shards ? json_object_array_length(source->shards) : 0;
    source->at = source->count;
    if (source->count == 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: no list of \"shards\", or an empty one", source->path);
    source->stops = (uint64_t *)bags_import_alloc(
        &source->arena, source->count, sizeof *source->stops, err);
    if (!source->stops)
        return BAGS_ERROR_MEMORY;
    code = md_check_shards(source, err);
    return code ? code : md_make_columns(source, err);
}

static bags_code md_open(const char *path, const bags_allocator *allocator,
    void **out, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    md_source *source =
        (md_source *)bags_import_alloc(&arena, 1, sizeof *source, err);
    if (!source)
        return BAGS_ERROR_MEMORY;
    source->arena = arena;
    source->scratch = bags_import_arena_start(allocator);
    source->text = source->data = source->sample =
        bags_import_buffer_start(allocator);
    bags_code code = md_load_index(source, path, err);
    if (code) {
        md_close(source);
        return code;
    }
    info->fields = source->fields;
    info->count = source->columns;
    info->length = source->stops[source->count - 1];
    *out = source;
    return BAGS_OK;
}

static bags_code md_read(
    void *state, uint64_t index, const bags_entry **entries, bags_error *err) {
    md_source *source = (md_source *)state;
    bags_code code = BAGS_OK;
    size_t at = source->at < source->count ? source->at : 0;
    bags_view bytes = {NULL, 0};
    *entries = NULL;
    if (index >= source->stops[source->count - 1])
        return BAGS_OK;
    while (index >= source->stops[at])
        at++;
    if (at != source->at)
        code = md_open_shard(source, at, err);
    if (code)
        return code;
    uint64_t sample = index - (at ? source->stops[at - 1] : 0);
    code = md_bytes(source, 4 + 4 * sample, 8, &source->sample, &bytes, err);
    if (code)
        return code;
    uint64_t start = md_load(bytes.data, 4), stop = md_load(bytes.data + 4, 4);
    if (start > stop || stop > source->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: sample %" PRIu64 ": out of range (bytes %" PRIu64
            " to %" PRIu64 " of %" PRIu64 ")",
            source->shard_path, sample, start, stop, source->size);
    code = md_bytes(
        source, start, (size_t)(stop - start), &source->sample, &bytes, err);
    if (!code)
        code = md_split(source, sample, bytes, err);
    if (!code)
        *entries = source->entries;
    return code;
}

static bool md_detect(const char *path) {
    bags_import_arena arena = bags_import_arena_start(NULL);
    bool is_directory = bags_import_kind(path) == BAGS_PATH_DIRECTORY;
    char *index = bags_import_format(
        &arena, NULL, is_directory ? "%s/index.json" : "%s", path);
    bool found = index && !strcmp(bags_import_base(index), "index.json") &&
                 bags_import_kind(index) == BAGS_PATH_FILE;
    bags_import_free(&arena);
    return found;
}

const bags_importer bags_import_mds = {
    "mds", md_detect, md_open, md_read, md_close};
