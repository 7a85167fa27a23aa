/*
 * index.h - declarations shared by index_build.c, index_find.c and keys.c: the index
 * file, its location, and keys. Programs do not include it.
 *
 * An index is a Bag with checksums, index/FIELD.bag, in the dataset's directory or, if
 * the dataset is sharded, in its first shard's. Other readers ignore it.
 *
 *     blob 0      "BAGSKEY2" | number of keys | content | times | the field's type
 *     blob 1..N   key | datapoint; one per datapoint, sorted
 *
 * Numbers in the header are 8 bytes, little-endian; a datapoint number is 8 bytes,
 * big-endian. Keys are compared as bytes, with a prefix before any longer key. Text is
 * its own key. The key of a number is 8 big-endian bytes with the sign bit inverted
 * (for negative floats, all bits).
 *
 * `content` and `times` identify the indexed dataset. They are hashes over FIELD.bag,
 * FIELD.crc and refs.bag of every shard: `content` of the sizes and last bytes (where
 * tables and checksums end), `times` of the modification times. `times` is 0 if files
 * have no times, and is not compared if the files were copied. Opening the index also
 * compares some of its keys. FIELD.dict is not included: FIELD.crc has its checksum,
 * and frames that need another dictionary have another dictionary id.
 */
#ifndef BAGS_FORMATS_INDEX_H
#define BAGS_FORMATS_INDEX_H

#include "datasets.h"
#include "files.h"
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define INDEX_MAGIC "BAGSKEY2"
#define INDEX_HEADER 32 /* bytes before the type */
#define INDEX_NUMBER 8  /* bytes of a datapoint number, and of a numeric key */
#define INDEX_LAST 64   /* bytes compared at the end of a file */

/* How values become keys. */
typedef enum index_key_class {
    INDEX_NONE,
    INDEX_BYTES,
    INDEX_UINT,
    INDEX_INT,
    INDEX_FLOAT
} index_key_class;

typedef struct index_key_type {
    index_key_class order;
    bool single; /* float32: keys to search for are rounded to it */
} index_key_type;

/* ---- keys ---- */

/* Arrays have keys only if they have one element. */
static inline index_key_type index_key_type_of(const bags_type *type) {
    index_key_type out = {INDEX_NONE, false};
    bags_type inside;
    if (type->sequence)
        return out;
    if (format_type_inside(type, &inside))
        type = &inside;
    if (bags_view_is(type->name, "utf8") || bags_view_is(type->name, "bytes"))
        out.order = INDEX_BYTES;
    else if (bags_view_is(type->name, "int") || bags_view_is(type->name, "u64"))
        out.order = INDEX_UINT;
    else if (bags_view_is(type->name, "i64"))
        out.order = INDEX_INT;
    if (out.order != INDEX_NONE || !bags_view_is(type->name, "array"))
        return out;
    for (size_t i = 1; i < type->count; i++) {
        uint64_t dim = 0;
        if (!bags_type_number(type, i, &dim) || dim != 1)
            return out;
    }
    bags_view name = bags_type_argument(type, 0);
    bags_dtype dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    char code = *bags_dtype_code(dtype); /* "u2", "f4", ... */
    out.single = dtype == BAGS_DTYPE_FLOAT32;
    out.order = code == 'u' || code == 'b'                  ? INDEX_UINT
                : code == 'i'                               ? INDEX_INT
                : out.single || dtype == BAGS_DTYPE_FLOAT64 ? INDEX_FLOAT
                                                            : INDEX_NONE;
    return out;
}

/* Get an array's only element as a number: bags_int or bags_uint; or *real for
 * floats. */
static inline bags_value index_key_element(const bags_value *array, double *real) {
    size_t size = bags_dtype_size(array->dtype);
    char code = *bags_dtype_code(array->dtype);
    bags_value out;
    memset(&out, 0, sizeof out);
    if (array->size != size || size > 8)
        return out;
    uint64_t number = bags_load_bytes(array->data, size, !bags_little_endian());
    if (code == 'f') {
        *real = format_real(number, size);
        return size == 2 ? out : *array;
    }
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    if (code != 'i')
        return code == 'u' || code == 'b' ? bags_uint(number) : out;
    return bags_int((int64_t)((number ^ sign) - sign));
}

/* Make the key for a value. Numbers are stored in `number`; text is not copied. The end
 * of a range may be `beyond` the type's range, and is then before or after all keys. */
static inline bags_code index_key_make(const index_key_type *type,
    const bags_value *value, bool is_end, unsigned char number[INDEX_NUMBER],
    bags_view *key, bags_error *err) {
    static const unsigned char after[INDEX_NUMBER + 1] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t bits = 0;
    double real = 0;
    const char *wrong = NULL, *beyond = NULL;
    bool above = false;
    bags_value element = *value;
    if (type->order == INDEX_BYTES) {
        if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
            return bags_fail(err, BAGS_ERROR_VALUE, "a key of this field is text");
        key->data = (const unsigned char *)value->data;
        key->size = value->size;
        return BAGS_OK;
    }
    if (value->kind == BAGS_KIND_ARRAY)
        element = index_key_element(value, &real);
    bool is_int = element.kind == BAGS_KIND_INT;
    bool is_uint = element.kind == BAGS_KIND_UINT;
    bool is_whole = is_int || is_uint;
    bits = is_uint ? element.uint : (uint64_t)element.sint;
    if (!is_whole && element.kind != BAGS_KIND_ARRAY) {
        wrong = "a key of this field is a number";
    } else if (type->order == INDEX_FLOAT) {
        if (is_whole)
            real = is_int ? (double)element.sint : (double)element.uint;
        if (is_whole && (real >= 9007199254740992.0 || real <= -9007199254740992.0))
            wrong = "number out of range (2^53 or above)";
        if (real != real)
            wrong = "NaN has no order";
        real += 0.0; /* -0 equals 0 */
        memcpy(&bits, &real, sizeof bits);
        bits = bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
    } else if (!is_whole) {
        above = real >= 18446744073709551616.0;
        if (above || real < -9223372036854775808.0)
            beyond = "number out of range";
        else
            wrong = "a key of this field is a whole number";
    } else if (type->order == INDEX_INT) {
        above = is_uint && element.uint > INT64_MAX;
        beyond = above ? "number out of range (above 2^63-1)" : NULL;
        bits ^= (uint64_t)1 << 63;
    } else if (is_int && element.sint < 0) {
        beyond = "number out of range (below 0)";
    }
    if (beyond && !is_end)
        wrong = beyond;
    if (wrong)
        return bags_fail(err, BAGS_ERROR_VALUE, "%s", wrong);
    bags_store_bytes(number, INDEX_NUMBER, true, bits);
    key->data = above ? after : number;
    key->size = above ? sizeof after : beyond ? 0 : INDEX_NUMBER;
    return BAGS_OK;
}

static inline int index_compare_keys(bags_view a, bags_view b) {
    size_t size = a.size < b.size ? a.size : b.size;
    int order = size ? memcmp(a.data, b.data, size) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Get the key in a blob of the index. */
static inline bags_view index_key_of(bags_view entry) {
    entry.size -= INDEX_NUMBER;
    return entry;
}

/* A datapoint's key, in memory. */
typedef struct index_key {
    uint64_t prefix; /* the first 8 bytes, in big-endian order */
    const unsigned char *data;
    size_t size;
    uint64_t number; /* number of the datapoint */
} index_key;

/* Compare two index_key as bytes. In keys.c. */
int bagi_keys_compare(const void *a, const void *b);

/* Make the index_key of bytes, without a copy. In keys.c. */
index_key bagi_keys_make(bags_view bytes, uint64_t number);

/* Read the keys of all datapoints, and sort them by key, then by number. `keys` has room
 * for them; their bytes are in `text`, grown as needed. In keys.c. */
bags_code bagi_keys_read(const bags_reader *reader, size_t field,
    const index_key_type *type, index_key *keys, bags_buffer *text, bags_row *row,
    bags_error *err);

/* ---- files ---- */

static inline const bags_io *index_io(const bags_env *env) {
    return env->io ? env->io : bags_io_local();
}

/* True for remote files: they have no links, and their times are the times of
 * copying. */
static inline bool index_is_far(const bags_io *io) { return io->read_many != NULL; }

/* Refuse a link, since it points outside the dataset. */
static inline bags_code index_check_no_link(
    const bags_io *io, const char *path, bags_error *err) {
    bags_identity found;
    if (!io->identify || index_is_far(io))
        return BAGS_OK;
    int error = io->identify(io->user, NULL, path, &found);
    if (!error && found.link)
        error = ELOOP;
    return error == ENOENT ? BAGS_OK : bags_fail_io(io, error, path, "open", err);
}

static inline void index_mix(uint64_t *hash, uint64_t number) {
    *hash = (*hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    *hash ^= *hash >> 29;
}

/* The identity of an indexed dataset; see the top of this file. */
typedef struct index_stamp {
    uint64_t content, times;
} index_stamp;

/* Get the paths for a field's index: the dataset's index directory, and the field's
 * first Bag, locked while the index is built. In index_find.c. */
bags_code bagi_index_place(const bags_reader *reader, const bags_io *io,
    const char *path, const char *field, char directory[FORMAT_PATH],
    char bag[FORMAT_PATH], bags_error *err);

/* Compute the identity of a dataset. In index_find.c. */
bags_code bagi_index_stamp(const bags_reader *reader, const bags_env *env,
    const char *path, const char *field, index_stamp *out, bags_error *err);

/* Find a field. Types that cannot be keys are refused with a message that names the
 * type. */
static inline bags_code index_find_field(const bags_reader *reader, size_t field,
    const char *path, index_key_type *type, bags_error *err) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (field >= count)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%s: field number %" PRIu64 " out of range (%" PRIu64 " fields)",
            bags_path_tail(path), (uint64_t)field, (uint64_t)count);
    *type = index_key_type_of(bags_reader_type(reader, field));
    if (type->order != INDEX_NONE)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%.200s\": values of type %.100s cannot be keys (only "
        "numbers, utf8 and bytes)",
        bags_path_tail(path), fields[field].name, fields[field].type);
}

/* ---- the files of an index ---- */

#define FORMAT_INDEX_NAME 600

/* Write the name of the file of an index, or of its checksums, relative to the
 * dataset's directory: "index/id.bag", "000000/index/id.crc". */
static inline void format_index_name(const bags_reader *reader, size_t field,
    bool checksums, char name[FORMAT_INDEX_NAME]) {
    size_t count;
    char directory[255 + 1 + 1] = ""; /* the longest file name and a slash */
    const bags_shard *shards = bags_reader_shards(reader, &count);
    if (count && shards[0].digits)
        (void)snprintf(directory, sizeof directory, "%0*d/", (int)shards[0].digits, 0);
    (void)snprintf(name, FORMAT_INDEX_NAME, "%sindex/%s%s", directory,
        bags_reader_fields(reader, &count)[field].name, checksums ? ".crc" : ".bag");
}

#endif /* BAGS_FORMATS_INDEX_H */
