/* glue.c - bags.h for lib.rs, using numbers and structs that stay the same when bags.h
 * changes. */
#define BAGS_STATIC
#define BAGS_IMPLEMENTATION
#include "bags.h"

#include <stdlib.h>

/* Mirrored in lib.rs. */
typedef struct glue_error {
    int kind;
    char message[BAGS_ERROR_SIZE];
} glue_error;

typedef struct glue_value {
    int kind; /* 0 blob, 1 bytes, 2 text, 3 uint, 4 int, 5 real, 6 bool, 7 array */
    int dtype;
    uint64_t uint;
    int64_t sint;
    double real;
    const void *data;
    size_t size;
    size_t dims;
    const uint64_t *shape;
} glue_value;

typedef struct glue_entry {
    const char *field;
    const glue_value *values;
    size_t count;
} glue_entry;

/* Scratch memory for datasets and Bags. */
typedef struct glue_row {
    bags_row row;
    bags_buffer buffer;
} glue_row;

typedef struct glue_reader_options {
    uint64_t shard_start, shard_stop;
    int unfinished; /* 0 refuse, 1 skip, 2 read */
    bool allow_gaps, verify_checksums, no_mmap, allow_empty_file;
} glue_reader_options;

typedef struct glue_writer_options {
    uint64_t shard_size, shard_length, shard_start, shard_stop;
    double flush_seconds;
    bool checksum, any_type;
} glue_writer_options;

_Static_assert(BAGS_ERROR_SIZE == 1024, "the size of lib.rs");

/* Returns true on success; otherwise stores the error in *out. */
static bool done(bags_code code, const bags_error *err, glue_error *out) {
    if (!code)
        return true;
    out->kind = (int)code;
    memcpy(out->message, err->message, sizeof out->message);
    return false;
}

const char *glue_version(void) { return bags_version(); }
const char *glue_dtype_name(int dtype) { return bags_dtype_name((bags_dtype)dtype); }
size_t glue_dtype_size(int dtype) { return bags_dtype_size((bags_dtype)dtype); }
int glue_dtype_parse(const char *name, size_t size) {
    return (int)bags_dtype_parse(name, size, NULL);
}

/* ---- reading ---- */

bags_reader *glue_reader_open(
    const char *path, const glue_reader_options *given, glue_error *error) {
    bags_error err;
    bags_reader_options options = {0};
    options.shard_start = given->shard_start;
    options.shard_stop = given->shard_stop;
    options.unfinished = given->unfinished == 2   ? BAGS_UNFINISHED_READ
                         : given->unfinished == 1 ? BAGS_UNFINISHED_SKIP
                                                  : BAGS_UNFINISHED_REFUSE;
    options.allow_gaps = given->allow_gaps;
    options.verify_checksums = given->verify_checksums;
    options.no_mmap = given->no_mmap;
    bags_reader *reader = bags_reader_open(path, &options, &err);
    if (!reader)
        (void)done(err.code, &err, error);
    return reader;
}

void glue_reader_close(bags_reader *reader) { bags_reader_close(reader); }
uint64_t glue_reader_length(const bags_reader *reader) {
    return bags_reader_length(reader);
}

size_t glue_reader_fields(const bags_reader *reader) {
    size_t count;
    bags_reader_fields(reader, &count);
    return count;
}

void glue_reader_field(
    const bags_reader *reader, size_t i, const char **name, const char **type) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    *name = fields[i].name;
    *type = fields[i].type;
}

glue_row *glue_row_create(void) { return (glue_row *)calloc(1, sizeof(glue_row)); }

void glue_row_free(glue_row *scratch) {
    bags_row_free(&scratch->row);
    bags_buffer_free(&scratch->buffer);
    free(scratch);
}

bool glue_reader_get(
    const bags_reader *reader, uint64_t index, glue_row *scratch, glue_error *error) {
    bags_error err;
    return done(
        bags_reader_get(reader, index, NULL, 0, &scratch->row, &err), &err, error);
}

bool glue_reader_view(const bags_reader *reader, uint64_t index, size_t field,
    uint64_t item, glue_row *scratch, const void **data, size_t *size,
    glue_error *error) {
    bags_error err;
    bags_view view;
    if (!done(bags_reader_get_blob(
                  reader, index, field, item, &scratch->row, &view, &err),
            &err, error))
        return false;
    *data = view.data;
    *size = view.size;
    return true;
}

bool glue_reader_items(const bags_reader *reader, uint64_t index, size_t field,
    glue_row *scratch, uint64_t *count, glue_error *error) {
    bags_error err;
    return done(bags_reader_items(reader, index, field, &scratch->row, count, &err),
        &err, error);
}

size_t glue_row_length(const glue_row *scratch, size_t slot) {
    return bags_row_length(&scratch->row, slot);
}

void glue_row_bytes(const glue_row *scratch, size_t slot, size_t item,
    const void **data, size_t *size) {
    bags_view view = bags_row_bytes(&scratch->row, slot, item);
    *data = view.data;
    *size = view.size;
}

bool glue_row_value(
    glue_row *scratch, size_t slot, size_t item, glue_value *out, glue_error *error) {
    bags_error err;
    bags_value value;
    if (!done(
            bags_row_value(&scratch->row, slot, item, NULL, &value, &err), &err, error))
        return false;
    glue_value found = {0};
    found.kind = value.kind == BAGS_KIND_BYTES   ? 1
                 : value.kind == BAGS_KIND_UTF8  ? 2
                 : value.kind == BAGS_KIND_UINT  ? 3
                 : value.kind == BAGS_KIND_INT   ? 4
                 : value.kind == BAGS_KIND_ARRAY ? 7
                                                 : 0;
    found.dtype = (int)value.dtype;
    found.uint = value.uint;
    found.sint = value.sint;
    found.data = value.data;
    found.size = value.size;
    found.dims = value.dims;
    found.shape = value.shape;
    *out = found;
    return true;
}

/* ---- one file ---- */

bag_reader *glue_bag_open(
    const char *path, const glue_reader_options *given, glue_error *error) {
    bags_error err;
    bag_reader_options options = {0};
    options.verify_checksums = given->verify_checksums;
    options.no_mmap = given->no_mmap;
    options.allow_empty_file = given->allow_empty_file;
    bag_reader *bag = bag_reader_open(path, &options, &err);
    if (!bag)
        (void)done(err.code, &err, error);
    return bag;
}

void glue_bag_close(bag_reader *bag) { bag_reader_close(bag); }
uint64_t glue_bag_length(const bag_reader *bag) { return bag_reader_length(bag); }

bool glue_bag_get(const bag_reader *bag, uint64_t index, glue_row *scratch,
    const void **data, size_t *size, glue_error *error) {
    bags_error err;
    bags_view view;
    if (!done(bag_reader_get(bag, index, &scratch->buffer, &view, &err), &err, error))
        return false;
    *data = view.data;
    *size = view.size;
    return true;
}

/* ---- writing ---- */

bags_writer *glue_writer_open(const char *path, const bags_field *fields, size_t count,
    const glue_writer_options *given, glue_error *error) {
    bags_error err;
    bags_writer_options options = {0};
    options.shard_size = given->shard_size;
    options.shard_length = given->shard_length;
    options.shard_start = given->shard_start;
    options.shard_stop = given->shard_stop;
    options.flush_seconds = given->flush_seconds;
    options.checksum = given->checksum;
    options.any_type = given->any_type;
    bags_writer *writer = bags_writer_open(path, fields, count, &options, &err);
    if (!writer)
        (void)done(err.code, &err, error);
    return writer;
}

static bags_value value_of(const glue_value *from) {
    switch (from->kind) {
    case 1:
        return bags_bytes(from->data, from->size);
    case 2:
        return bags_utf8_sized((const char *)from->data, from->size);
    case 3:
        return bags_uint(from->uint);
    case 4:
        return bags_int(from->sint);
    case 5:
        return bags_real(from->real);
    case 6:
        return bags_bool(from->uint != 0);
    case 7:
        return bags_array((bags_dtype)from->dtype, from->dims, from->shape, from->data);
    default:
        return bags_blob(from->data, from->size);
    }
}

bool glue_writer_append(
    bags_writer *writer, const glue_entry *entries, size_t count, glue_error *error) {
    bags_error err;
    size_t values = 0, next = 0;
    for (size_t i = 0; i < count; i++)
        values += entries[i].count;
    bags_entry *made = (bags_entry *)calloc(count + 1, sizeof *made);
    bags_value *all = (bags_value *)calloc(values + 1, sizeof *all);
    bags_code code = BAGS_ERROR_MEMORY;
    if (made && all) {
        for (size_t i = 0; i < count; i++) {
            made[i].field = entries[i].field;
            made[i].values = all + next;
            made[i].count = entries[i].count;
            for (size_t j = 0; j < entries[i].count; j++)
                all[next++] = value_of(&entries[i].values[j]);
        }
        code = bags_writer_append(writer, made, count, &err);
    } else {
        bags_fail(&err, code, "out of memory");
    }
    free(all);
    free(made);
    return done(code, &err, error);
}

bool glue_writer_flush(bags_writer *writer, glue_error *error) {
    bags_error err;
    return done(bags_writer_flush(writer, &err), &err, error);
}

bool glue_writer_sync(bags_writer *writer, glue_error *error) {
    bags_error err;
    return done(bags_writer_sync(writer, &err), &err, error);
}

void glue_writer_clear(bags_writer *writer) { bags_writer_clear(writer); }
uint64_t glue_writer_length(const bags_writer *writer) {
    return bags_writer_length(writer);
}

bool glue_writer_close(bags_writer *writer, glue_error *error) {
    bags_error err;
    return done(bags_writer_close(writer, &err), &err, error);
}

/* Close the writer but leave the shard unfinished, by beginning a datapoint that is not
 * ended. */
void glue_writer_leave(bags_writer *writer) {
    bags_writer_flush(writer, NULL);
    bags_writer_begin(writer, NULL);
    bags_writer_close(writer, NULL);
}

void glue_writer_abort(bags_writer *writer) { bags_writer_abort(writer); }
