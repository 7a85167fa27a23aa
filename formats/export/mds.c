/*
 * mds.c - writes shards that MosaicML's streaming reads (MDS, version 2). No library.
 *
 *     OUT/shard.00000.mds   u32 samples | u32 offsets, samples + 1 | config | samples
 *     sample                u32 size of each value without a fixed size | values
 *     OUT/info.json         the metadata of the dataset, if it has any
 *     OUT/index.json        the shards; written last
 *
 * A field is a column, in the order of their names:
 *
 *     utf8                        str
 *     i64; int(1) to int(7)       int
 *     int, int(8), u64            uint64
 *     array(DTYPE)                int8 .. uint64, float16 .. float64
 *     array(DTYPE,SHAPE)          ndarray:DTYPE:SHAPE
 *     array(DTYPE,-1), array      ndarray:DTYPE, ndarray
 *     jpeg; png                   jpeg; png
 *     jpeg[]; png[]               list[jpeg]; list[png]
 *     sequences of numbers        ndarray:DTYPE
 *     utf8[]                      json
 *     other blobs                 bytes
 *
 * A shard ends before 64 MiB of values, or as the options state. Several workers need
 * shards of one length; the last of them to end writes index.json.
 *
 * Rejected: arrays of bool or complex numbers, or with a dimension of 0; sequences of other
 * blobs, of text and of arrays that state no dtype.
 */
#include "export.h"

#include "files.h"
#include "try.h"

#include <string.h>

#define MX_SHARD ((uint64_t)1 << 26)
#define MX_MOST UINT32_MAX /* bytes of a shard */

enum { MX_BLOB, MX_NUMBER, MX_SCALAR, MX_FIXED, MX_SHAPED, MX_ANY, MX_IMAGES, MX_JSON };

typedef struct mx_state {
    bags_export_bytes columns; /* of the config and of index.json */
    bags_export_bytes samples, offsets, value, index;
    uint64_t count; /* of the shard */
} mx_state;

/* ---- columns ---- */

static bool mx_has_dtype(bags_dtype dtype) {
    const char *name = bags_dtype_name(dtype);
    return dtype != BAGS_DTYPE_NONE && dtype != BAGS_DTYPE_BOOL &&
           (strstr(name, "int") || !strncmp(name, "float", 5));
}

static bags_code mx_refuse(bags_target *t, bags_target_field *field) {
    return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
        "MDS has no encoding for %s%s", field->type, field->sequence ? "[]" : "");
}

static bags_code mx_prepare_array(bags_target *t, bags_target_field *field) {
    const char *dtype = bags_dtype_name(field->dtype);
    size_t size = 0;
    bool fixed = true;
    if (field->dtype != BAGS_DTYPE_NONE && !mx_has_dtype(field->dtype))
        return mx_refuse(t, field);
    for (size_t i = 0; i < field->dims; i++)
        fixed = fixed && field->shape[i] != UINT64_MAX;
    if (field->sequence) { /* one more dimension */
        if (field->dtype == BAGS_DTYPE_NONE || !fixed)
            return mx_refuse(t, field);
        field->kind = MX_SHAPED;
        field->text = bags_target_format(t, "ndarray:%s", dtype);
    } else if (field->dtype == BAGS_DTYPE_NONE) {
        field->kind = MX_ANY;
        field->text = "ndarray";
    } else if (!fixed) {
        field->kind = MX_SHAPED;
        field->text = bags_target_format(t, "ndarray:%s", dtype);
    } else if (!bags_array_size(field->dtype, field->dims, field->shape, &size) ||
               !size) {
        return mx_refuse(t, field);
    } else {
        bags_type type;
        field->kind = field->dims ? MX_FIXED : MX_SCALAR;
        field->size = size;
        FORMAT_TRY(bags_type_parse(field->type, &type, t->err));
        size_t front = type.count > 1 ? bags_type_argument(&type, 0).size + 1 : 0;
        field->text = field->dims ? bags_target_format(t, "ndarray:%s:%.*s", dtype,
                                        (int)(type.arguments.size - front),
                                        (const char *)type.arguments.data + front)
                                  : dtype;
    }
    return field->text ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code mx_prepare_field(bags_target *t, bags_target_field *field) {
    bool image = !strcmp(field->ending, "jpg") || !strcmp(field->ending, "png");
    const char *format = !strcmp(field->ending, "jpg") ? "jpeg" : "png";
    if (field->form == BAGS_FORM_ARRAY)
        return mx_prepare_array(t, field);
    if (field->form == BAGS_FORM_INTEGER) {
        const char *name = field->may_exceed_int64 ? "uint64" : "int";
        field->kind = field->sequence ? MX_SHAPED : MX_NUMBER;
        field->size = field->sequence ? 0 : 8;
        field->dtype = field->may_exceed_int64 ? BAGS_DTYPE_UINT64 : BAGS_DTYPE_INT64;
        field->text = !field->sequence ? name
                                       : bags_target_format(t, "ndarray:%s",
                                             bags_dtype_name(field->dtype));
        return field->text ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    if (field->sequence && !image && field->form != BAGS_FORM_TEXT)
        return mx_refuse(t, field);
    field->kind = !field->sequence ? MX_BLOB : image ? MX_IMAGES : MX_JSON;
    field->text = field->kind == MX_JSON          ? "json"
                  : field->form == BAGS_FORM_TEXT ? "str"
                  : !image                        ? "bytes"
                  : field->kind != MX_IMAGES      ? format
                  : !strcmp(format, "jpeg")       ? "list[jpeg]"
                                                  : "list[png]";
    return BAGS_OK;
}

/* "column_encodings": [...], "column_names": [...], "column_sizes": [...] */
static bags_code mx_put_columns(bags_target *t, bags_export_bytes *to) {
    static const char *const lists[3] = {
        "column_encodings", "column_names", "column_sizes"};
    for (size_t list = 0; list < 3; list++) {
        char word[40];
        (void)snprintf(
            word, sizeof word, "%s\"%s\": [", list ? "], " : "", lists[list]);
        FORMAT_TRY(bags_target_put_text(t, to, word));
        for (size_t i = 0; i < t->count; i++) {
            const bags_target_field *field = &t->fields[i];
            const char *text = list ? field->name : field->text;
            FORMAT_TRY(bags_target_put(t, to, ", ", i ? 2 : 0));
            (void)snprintf(word, sizeof word, "%zu", field->size);
            const char *size = field->size ? word : "null";
            FORMAT_TRY(list == 2 ? bags_target_put_text(t, to, size)
                                 : bags_target_put_json(t, to, text, strlen(text)));
        }
    }
    return bags_target_put(t, to, "], ", 3);
}

static bags_code mx_open(bags_target *t) {
    if (!t->options.shard_size && !t->options.shard_length && t->options.shard_stop < 2)
        t->options.shard_size = MX_SHARD;
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(mx_prepare_field(t, &t->fields[i]));
    return mx_put_columns(t, &((mx_state *)t->state)->columns);
}

/* ---- samples ---- */

static bags_code mx_put_u32(bags_target *t, bags_export_bytes *to, uint64_t number) {
    unsigned char bytes[4];
    bags_store_bytes(bytes, 4, false, number);
    return bags_target_put(t, to, bytes, 4);
}

/* Elements, in little-endian order. */
static bags_code mx_put_elements(
    bags_target *t, bags_export_bytes *to, const bags_value *value) {
    size_t start = to->size, unit = bags_dtype_swap(value->dtype);
    FORMAT_TRY(bags_target_put(t, to, value->data, value->size));
    if (!bags_little_endian() && value->size)
        bags_swap_bytes(
            to->buffer.data + start, to->buffer.data + start, value->size, unit);
    return BAGS_OK;
}

/* The dimensions: their number and the width of each as one byte, then they. */
static bags_code mx_put_shape(bags_target *t, bags_export_bytes *to, uint64_t first,
    bool has_first, const bags_value *value) {
    size_t dims = (value ? value->dims : 0) + has_first;
    uint64_t most = has_first ? first : 0;
    for (size_t i = 0; value && i < value->dims; i++)
        most = value->shape[i] > most ? value->shape[i] : most;
    unsigned width = most < 0x100 ? 0 : most < 0x10000 ? 1 : most < UINT32_MAX ? 2 : 3;
    unsigned char byte = (unsigned char)(dims << 2 | width), bytes[8];
    FORMAT_TRY(bags_target_put(t, to, &byte, 1));
    for (size_t i = 0; i < dims; i++) {
        uint64_t one = has_first ? (i ? value->shape[i - 1] : first) : value->shape[i];
        bags_store_bytes(bytes, (size_t)1 << width, false, one);
        FORMAT_TRY(bags_target_put(t, to, bytes, (size_t)1 << width));
    }
    return BAGS_OK;
}

/* 8, 16, 32 or 64 bits, plus 0: unsigned, 1: signed, 2: float. */
static unsigned char mx_dtype_byte(bags_dtype dtype) {
    const char *name = bags_dtype_name(dtype);
    unsigned kind = name[0] == 'u' ? 0 : name[0] == 'i' ? 1 : 2;
    return (unsigned char)(8 * bags_dtype_size(dtype) + kind);
}

/* A sequence of numbers, or of arrays of one shape, as one array. */
static bags_code mx_put_sequence(
    bags_target *t, bags_export_bytes *to, const bags_target_field *field) {
    bags_value item = {
        BAGS_KIND_NONE, BAGS_DTYPE_NONE, 0, 0, 0, NULL, 0, 0, NULL, NULL};
    item.dims = field->dims;
    item.shape = field->shape;
    FORMAT_TRY(mx_put_shape(t, to, field->length, true, &item));
    for (size_t i = 0; i < field->length; i++) {
        const bags_value *value = &field->values[i];
        unsigned char bytes[8];
        if (field->form == BAGS_FORM_ARRAY) {
            FORMAT_TRY(mx_put_elements(t, to, value));
            continue;
        }
        bags_store_bytes(bytes, 8, false, bags_target_bits(value, 0));
        FORMAT_TRY(bags_target_put(t, to, bytes, 8));
    }
    return BAGS_OK;
}

/* Four unused bytes, the number of images, the size of each, and the images. */
static bags_code mx_put_images(
    bags_target *t, bags_export_bytes *to, const bags_target_field *field) {
    FORMAT_TRY(mx_put_u32(t, to, 0));
    FORMAT_TRY(mx_put_u32(t, to, field->length));
    for (size_t i = 0; i < field->length; i++)
        FORMAT_TRY(mx_put_u32(t, to, field->values[i].size));
    for (size_t i = 0; i < field->length; i++)
        FORMAT_TRY(
            bags_target_put(t, to, field->values[i].data, field->values[i].size));
    return BAGS_OK;
}

static bags_code mx_put_value(
    bags_target *t, bags_export_bytes *to, const bags_target_field *field) {
    const bags_value *value = field->values;
    unsigned char bytes[8];
    if (field->kind == MX_IMAGES)
        return mx_put_images(t, to, field);
    if (field->kind == MX_JSON)
        return bags_target_put_list(t, to, field);
    if (field->kind == MX_BLOB)
        return bags_target_put(t, to, value->data, value->size);
    if (field->sequence)
        return mx_put_sequence(t, to, field);
    if (field->kind == MX_NUMBER) {
        bags_store_bytes(bytes, 8, false, bags_target_bits(value, 0));
        return bags_target_put(t, to, bytes, 8);
    }
    if (field->kind == MX_ANY) {
        if (!mx_has_dtype(value->dtype))
            return bags_target_fail_value(
                t, field, "MDS has no arrays of %s", bags_dtype_name(value->dtype));
        unsigned char byte = mx_dtype_byte(value->dtype);
        FORMAT_TRY(bags_target_put(t, to, &byte, 1));
    }
    if (field->kind == MX_ANY || field->kind == MX_SHAPED)
        FORMAT_TRY(mx_put_shape(t, to, 0, false, value));
    return mx_put_elements(t, to, value);
}

static bags_code mx_put_sample(bags_target *t) {
    mx_state *m = (mx_state *)t->state;
    m->value.size = 0;
    FORMAT_TRY(mx_put_u32(t, &m->offsets, m->samples.size));
    for (size_t i = 0; i < t->count; i++) {
        size_t before = m->value.size;
        FORMAT_TRY(mx_put_value(t, &m->value, &t->fields[i]));
        if (!t->fields[i].size)
            FORMAT_TRY(mx_put_u32(t, &m->samples, m->value.size - before));
    }
    FORMAT_TRY(bags_target_put(t, &m->samples, m->value.buffer.data, m->value.size));
    m->count++;
    if (m->samples.size > MX_MOST / 2)
        return bags_target_fail(t, BAGS_ERROR_LIMIT,
            "shard %" PRIu64 " has more than 2 GiB: use a smaller shard size",
            t->shard);
    return BAGS_OK;
}

/* ---- shards ---- */

/* The config that a shard contains. */
static bags_code mx_put_config(bags_target *t, bags_export_bytes *to) {
    const mx_state *m = (const mx_state *)t->state;
    FORMAT_TRY(bags_target_put_text(t, to, "{"));
    FORMAT_TRY(bags_target_put(t, to, m->columns.buffer.data, m->columns.size));
    return bags_target_put_text(t, to,
        "\"compression\": null, \"format\": \"mds\", \"hashes\": [], \"size_limit\": "
        "null, \"version\": 2}");
}

static bags_code mx_shard(bags_target *t) {
    mx_state *m = (mx_state *)t->state;
    char *path = bags_target_shard_path(t);
    m->samples.size = m->offsets.size = 0;
    m->count = 0;
    for (bool more = true;;) {
        FORMAT_TRY(bags_target_next(t, &more));
        if (!more)
            break;
        FORMAT_TRY(mx_put_sample(t));
    }
    FORMAT_TRY(mx_put_u32(t, &m->offsets, m->samples.size));
    m->value.size = 0;
    FORMAT_TRY(mx_put_u32(t, &m->value, m->count));
    size_t head = 4 + m->offsets.size;
    m->index.size = 0;
    FORMAT_TRY(mx_put_config(t, &m->index));
    for (size_t i = 0; i < m->offsets.size; i += 4) {
        unsigned char *at = m->offsets.buffer.data + i;
        uint64_t offset = bags_load_bytes(at, 4, false) + head + m->index.size;
        if (offset > MX_MOST)
            return bags_target_fail(t, BAGS_ERROR_LIMIT,
                "shard %" PRIu64 " is too large: use a smaller shard size", t->shard);
        bags_store_bytes(at, 4, false, offset);
    }
    FORMAT_TRY(path ? bags_target_file_open(t, path) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(bags_target_write(t, m->value.buffer.data, 4));
    FORMAT_TRY(bags_target_write(t, m->offsets.buffer.data, m->offsets.size));
    FORMAT_TRY(bags_target_write(t, m->index.buffer.data, m->index.size));
    FORMAT_TRY(bags_target_write(t, m->samples.buffer.data, m->samples.size));
    return bags_target_file_close(t);
}

/* ---- index.json ---- */

/* The entry of a complete shard; *found is false if it does not exist yet. */
static bags_code mx_put_entry(bags_target *t, bags_export_bytes *to, bool *found) {
    const mx_state *m = (const mx_state *)t->state;
    const bags_io *io = bags_io_local();
    const char *path = bags_target_shard_path(t);
    unsigned char samples[4];
    uint64_t size = 0;
    void *file = NULL;
    char text[300];
    if (!path)
        return BAGS_ERROR_MEMORY;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    *found = error != ENOENT;
    if (error == ENOENT)
        return BAGS_OK;
    bags_code code = BAGS_OK;
    if (!error) {
        error = io->size(io->user, file, &size);
        code = bags_read(io, file, path, 0, samples, 4, t->err);
        io->close(io->user, file);
    }
    if (code || error)
        return code ? code : bags_fail_io(io, error, path, "read", t->err);
    FORMAT_TRY(bags_target_put_text(t, to, t->shard ? ", {" : "{"));
    FORMAT_TRY(bags_target_put(t, to, m->columns.buffer.data, m->columns.size));
    (void)snprintf(text, sizeof text,
        "\"compression\": null, \"format\": \"mds\", \"hashes\": [], \"raw_data\": "
        "{\"basename\": \"%.60s\", \"bytes\": %" PRIu64
        ", \"hashes\": {}}, \"samples\": "
        "%" PRIu64 ", \"size_limit\": null, \"version\": 2, \"zip_data\": null}",
        strrchr(path, '/') ? strrchr(path, '/') + 1 : path, size,
        bags_load_bytes(samples, 4, false));
    return bags_target_put_text(t, to, text);
}

/* Write index.json, unless other workers have not ended: the last one does. */
static bags_code mx_finish(bags_target *t) {
    mx_state *m = (mx_state *)t->state;
    bool found = true;
    m->index.size = 0;
    FORMAT_TRY(bags_target_put_text(t, &m->index, "{\"shards\": ["));
    for (t->shard = 0; t->shard < t->shard_count; t->shard++) {
        FORMAT_TRY(mx_put_entry(t, &m->index, &found));
        if (!found)
            return BAGS_OK;
    }
    FORMAT_TRY(bags_target_put_text(t, &m->index, "], \"version\": 2}"));
    bool several = t->options.shard_stop > 1;
    const bags_view index = {m->index.buffer.data, m->index.size};
    if (t->options.metadata.data)
        FORMAT_TRY(bags_target_put_file(t, "info.json", t->options.metadata, several));
    return bags_target_put_file(t, "index.json", index, several);
}

const bags_exporter bags_export_mds = {"mds", ".mds", true, false, true,
    sizeof(mx_state), mx_open, mx_shard, mx_finish, NULL};
