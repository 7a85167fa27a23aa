/*
 * bags export DATASET X.idx: write the documents in a field as a Megatron-LM pair,
 * X.bin and X.idx (see formats/import/megatron.c). Each datapoint becomes a document,
 * and each of its items a sequence; in a plain field, a document has one sequence.
 *
 * X.bin is named X.bin.partial until it is complete; X.idx is written last.
 */
#include "command.h"
#include "system.h"

/* Megatron's dtype numbers. It has no uint32, so those values must be below 2^31. */
static const struct pair_dtype {
    bags_dtype dtype;
    unsigned char code;
} dtypes[] = {{BAGS_DTYPE_UINT8, 1}, {BAGS_DTYPE_INT8, 2}, {BAGS_DTYPE_INT16, 3},
    {BAGS_DTYPE_INT32, 4}, {BAGS_DTYPE_UINT32, 4}, {BAGS_DTYPE_INT64, 5},
    {BAGS_DTYPE_FLOAT64, 6}, {BAGS_DTYPE_FLOAT32, 7}, {BAGS_DTYPE_UINT16, 8}};

/* The file being written is PATH.partial. It is renamed to PATH at the end. */
static const char *complete;
static char *partial;
static FILE *file;

static void remove_partial(void) { unlink(partial); }

static void file_start(const char *path) {
    complete = path;
    partial = string_format("%s.partial", path);
    int made = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    file = made < 0 ? NULL : fdopen(made, "wb");
    if (!file)
        fail_system(errno, partial, "create");
    on_failure = remove_partial;
    interrupt_removes(partial);
}

static void file_put(const void *data, size_t size) {
    if (size && fwrite(data, 1, size, file) != size)
        fail_system(errno, partial, "write");
}

static void file_put_number(uint64_t number, size_t size) {
    unsigned char bytes[8];
    bags_store_bytes(bytes, size, false, number);
    file_put(bytes, size);
}

static void file_finish(void) {
    if (fclose(file) || rename(partial, complete))
        fail_system(errno, complete, "write");
    interrupt_removes(NULL);
    on_failure = NULL;
    free(partial);
}

/* Find the dtype of a field whose blobs consist of elements. */
static const struct pair_dtype *find_dtype(const bags_field *field) {
    bags_type type;
    uint64_t side;
    size_t i = 0;
    must(bags_type_parse(field->type, &type, &failure));
    bags_dtype dtype = bags_view_is(type.name, "array") && type.count == 2 &&
                               !bags_type_number(&type, 1, &side)
                           ? type_dtype(field->type)
                           : BAGS_DTYPE_NONE;
    while (i < sizeof dtypes / sizeof *dtypes && dtypes[i].dtype != dtype)
        i++;
    if (i == sizeof dtypes / sizeof *dtypes)
        fail(BAGS_ERROR_TYPE,
            "%s: field \"%s\": of type %s, of which Megatron has no tokens (allowed: "
            "array(DTYPE,-1) of integers except uint64, of float32 and float64)",
            source_path(), field->name, field->type);
    return &dtypes[i];
}

/* Write the elements of a sequence without changes. */
static uint64_t put_sequence(
    bags_view blob, bags_dtype dtype, const char *name, uint64_t datapoint) {
    size_t size = bags_dtype_size(dtype);
    uint64_t length = blob.size / size;
    if (blob.size % size || length > INT32_MAX)
        fail(BAGS_ERROR_VALUE,
            "%s: field \"%s\": datapoint %ju: %zu bytes (expected a multiple of %zu, "
            "and "
            "at most %" PRId32 " elements)",
            source_path(), name, (uintmax_t)datapoint, blob.size, size, INT32_MAX);
    for (size_t i = 0; dtype == BAGS_DTYPE_UINT32 && i < length; i++)
        if (blob.data[4 * i + 3] & 0x80)
            fail(BAGS_ERROR_VALUE,
                "%s: field \"%s\": datapoint %ju: [%zu]: %ju is out of range (int32; "
                "Megatron has no uint32)",
                source_path(), name, (uintmax_t)datapoint, i,
                (uintmax_t)bags_load_bytes(blob.data + 4 * i, 4, false));
    file_put(blob.data, blob.size);
    return length;
}

void export_pair(const char *index, const char *name) {
    size_t count;
    const bags_field *fields = source_fields(&count);
    if (!source_dataset())
        fail(BAGS_ERROR_MISSING, "%s: not a dataset", source_path());
    size_t field = field_require(source_path(), name, fields, count);
    const struct pair_dtype *dtype = find_dtype(&fields[field]);
    bags_select select = bags_select_all(field);
    uint64_t length = source_length(), sequences = 0, offset = 0;
    text lengths = {0}, ends = {0}; /* 4 bytes per sequence; 8 per document */
    char *bin = string_format("%.*sbin", (int)strlen(index) - 3, index);
    const char *const paths[] = {index, bin};
    for (size_t i = 0; i < 2; i++)
        if (path_exists(paths[i]))
            fail_system(EEXIST, paths[i], "create");
    interrupt_leaves("nothing is kept", "start again with", NULL);
    file_start(bin);
    for (uint64_t i = 0; i < length; i++) {
        unsigned char bytes[8];
        source_get(i, &select, 1);
        size_t items = source_items(0);
        for (size_t k = 0; k < items; k++) {
            uint64_t elements = put_sequence(source_bytes(0, k), dtype->dtype, name, i);
            bags_store_bytes(bytes, 4, false, elements);
            text_put(&lengths, bytes, 4);
        }
        sequences += items;
        bags_store_bytes(bytes, 8, false, sequences);
        text_put(&ends, bytes, 8);
        progress_show("export", "documents", i + 1, length, i + 1);
    }
    source_check();
    file_finish();
    file_start(index);
    file_put("MMIDIDX\0", 9);
    file_put_number(1, 8);
    file_put_number(dtype->code, 1);
    file_put_number(sequences, 8);
    file_put_number(length + 1, 8);
    file_put(lengths.buffer.data, lengths.size);
    for (uint64_t i = 0; i < sequences; i++) {
        file_put_number(offset, 8);
        offset += bags_load_bytes(lengths.buffer.data + 4 * i, 4, false) *
                  bags_dtype_size(dtype->dtype);
    }
    file_put_number(0, 8);
    file_put(ends.buffer.data, ends.size);
    file_finish();
    progress_end();
    print("%s: wrote %s of %s, with %s\n", index, counted(length, "document"),
        source_path(), counted(sequences, "sequence"));
    bags_buffer_free(&lengths.buffer);
    bags_buffer_free(&ends.buffer);
    free(bin);
}
