/* Items of one size as one array: in every mode of access the numbers that were written, a
 * view where that is possible, and an error for items of another size. */
// flavours: test: asan; check: release
#include "check.h"

#define LENGTH 9

typedef struct kind {
    const char *name, *type;
    bags_dtype dtype; /* of the array */
    size_t dims;
    uint64_t shape[3];
    size_t size; /* of an item */
    bool swapped;
} kind;

/* In the order of their names. */
static const kind kinds[] = {
    {"a", "array(float32,3)[]", BAGS_DTYPE_FLOAT32, 1, {3}, 12, false},
    {"b", "array(float64,2,2)[]", BAGS_DTYPE_FLOAT64, 2, {2, 2}, 32, false},
    {"c", "array(uint8)[]", BAGS_DTYPE_UINT8, 0, {0}, 1, false},
    {"d", "i64[]", BAGS_DTYPE_INT64, 0, {0}, 8, false},
    {"e", "int(2)[]", BAGS_DTYPE_UINT16, 0, {0}, 2, false},
    {"f", "int(4,big)[]", BAGS_DTYPE_UINT32, 0, {0}, 4, true},
    {"g", "array(int16,2,0)[]", BAGS_DTYPE_INT16, 2, {2, 0}, 0, false},
    {"h", "array(float32,2)", BAGS_DTYPE_FLOAT32, 1, {2}, 8, false},
};
#define KINDS (sizeof kinds / sizeof *kinds)
#define PLAIN (KINDS - 1)

/* The bytes of an item as they are stored. */
static void item_of(size_t k, uint64_t i, uint64_t item, unsigned char *out) {
    fill(out, kinds[k].size, i * 1000 + item * 10 + k);
}

static uint64_t items_of(uint64_t i) { return i * 5 % 7; }

static void write_arrays(const char *path, uint64_t shard_length) {
    bags_field fields[KINDS];
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.shard_length = shard_length;
    for (size_t k = 0; k < KINDS; k++) {
        fields[k].name = kinds[k].name;
        fields[k].type = kinds[k].type;
    }
    assert_opens(writer, bags_writer_open(path, fields, KINDS, &options, &said));
    for (uint64_t i = 0; i < LENGTH; i++) {
        unsigned char stored[KINDS][8][32];
        bags_value values[KINDS][8];
        bags_entry entries[KINDS];
        for (size_t k = 0; k < KINDS; k++) {
            for (uint64_t item = 0; item < 8; item++) {
                item_of(k, i, item, stored[k][item]);
                values[k][item] = bags_blob(stored[k][item], kinds[k].size);
            }
            entries[k].field = kinds[k].name;
            entries[k].values = values[k];
            entries[k].count = k == PLAIN ? 1 : (size_t)items_of(i);
        }
        assert_ok(bags_writer_append(writer, entries, KINDS, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bags_reader *open_with(const char *path, bool no_mmap) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.no_mmap = no_mmap;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

/* Compare item `at` of an array with what was written. */
static void check_item(
    size_t k, const bags_value *array, size_t at, uint64_t i, uint64_t item) {
    unsigned char stored[32], native[32];
    size_t size = kinds[k].size;
    item_of(k, i, item, stored);
    memcpy(native, stored, size);
    if (kinds[k].swapped == little_endian())
        bags_swap_bytes(native, stored, size, bags_dtype_size(kinds[k].dtype));
    assert_memory_equal((const char *)array->data + at * size, native, size);
}

static void check_shape(size_t k, const bags_value *array, uint64_t count) {
    assert_int_equal(array->kind, BAGS_KIND_ARRAY);
    assert_int_equal(array->dtype, kinds[k].dtype);
    assert_int_equal(array->dims, kinds[k].dims + 1);
    assert_true(array->shape[0] == count);
    for (size_t d = 0; d < kinds[k].dims; d++)
        assert_true(array->shape[d + 1] == kinds[k].shape[d]);
    assert_true(array->size == count * kinds[k].size);
    assert_non_null(array->data);
    assert_int_equal((uintptr_t)array->data % bags_dtype_swap(kinds[k].dtype), 0);
}

static void check_slice(bags_row *row, size_t k, const bags_value *array, uint64_t i,
    uint64_t start, uint64_t stop, uint64_t step, bool is_mapped) {
    uint64_t items = items_of(i), end = stop < items ? stop : items, count = 0;
    for (uint64_t item = start; item < end; item += step)
        check_item(k, array, (size_t)count++, i, item);
    check_shape(k, array, count);
    if (count == 0 || kinds[k].size == 0)
        return;
    const unsigned char *first = bags_row_bytes(row, 0, 0).data;
    bool aligned = (uintptr_t)first % bags_dtype_swap(kinds[k].dtype) == 0;
    bool view = (step == 1 || count == 1) && aligned && !kinds[k].swapped;
    if (step == 1 || is_mapped) /* others may be read one after the other */
        assert_int_equal(array->data == (const void *)first, view);
    assert_int_equal(bags_row_owns(row, first), !is_mapped);
}

static void every_slice_is_an_array(void **state) {
    bags_row row = {0};
    bags_buffer scratch = {0};
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        bool no_mmap = variant % 2;
        if (ON_WINDOWS && !no_mmap)
            continue;
        write_arrays(at("%d", variant), variant / 2 ? 4 : 0);
        bags_reader *reader = open_with(at("%d", variant), no_mmap);
        for (uint64_t i = 0; i < LENGTH; i++)
            for (size_t k = 0; k < PLAIN; k++)
                for (uint64_t part = 0; part < 5 * 6 * 3; part++) {
                    uint64_t start = part % 5, stop = start + part / 5 % 6;
                    uint64_t step = 1 + part / 30;
                    bags_select select = bags_select_slice(k, start, stop, step);
                    bags_value array;
                    if (start > items_of(i))
                        continue;
                    assert_ok(bags_reader_get(reader, i, &select, 1, &row, &said));
                    assert_ok(bags_row_array(
                        &row, 0, part % 2 ? &scratch : NULL, &array, &said));
                    check_slice(&row, k, &array, i, start, stop, step, !no_mmap);
                }
        bags_reader_close(reader);
    }
    bags_row_free(&row);
    bags_buffer_free(&scratch);
}

static void datapoints_of_a_plain_field_are_an_array(void **state) {
    static const uint64_t some[] = {7, 0, 3, 3};
    bags_row row = {0};
    bags_value array;
    (void)state;
    write_arrays(at("x"), 4);
    bags_reader *reader = open_with(at("x"), true);
    assert_ok(bags_reader_get_range(reader, 1, 7, PLAIN, &row, &said));
    assert_ok(bags_row_array(&row, 0, NULL, &array, &said));
    check_shape(PLAIN, &array, 6);
    for (uint64_t i = 1; i < 7; i++)
        check_item(PLAIN, &array, (size_t)i - 1, i, 0);
    assert_ok(bags_reader_get_many(reader, some, 4, PLAIN, &row, &said));
    assert_ok(bags_row_array(&row, 0, NULL, &array, &said));
    check_shape(PLAIN, &array, 4);
    for (size_t n = 0; n < 4; n++)
        check_item(PLAIN, &array, n, some[n], 0);
    /* All fields of a datapoint at once; values of a row live together. */
    bags_value all[KINDS];
    assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
    for (size_t k = 0; k < KINDS; k++)
        assert_ok(bags_row_array(&row, k, NULL, &all[k], &said));
    for (size_t k = 0; k < KINDS; k++) {
        check_shape(k, &all[k], k == PLAIN ? 1 : items_of(5));
        check_item(k, &all[k], 0, 5, 0);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* A dataset of these items in a field. */
static bags_reader *open_items(const char *type, const size_t *sizes, size_t count) {
    static const unsigned char zeros[64] = {0};
    bags_field field = {"v", type};
    bags_writer_options options;
    bags_writer *writer;
    bags_value values[8];
    bags_entry entry = {"v", values, count};
    memset(&options, 0, sizeof options);
    options.any_type = true;
    if (exists(at("x")))
        remove_tree(at("x"));
    for (size_t i = 0; i < count; i++)
        values[i] = bags_blob(zeros, sizes[i]);
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, &options, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    return open_with(at("x"), true);
}

static void other_items_are_refused(void **state) {
    static const char *const types[] = {"bytes[]", "utf8[]", "int[]", "int(3)[]",
        "array[]", "array(uint8,-1)[]", "array(uint8,2,-1)[]", "jpeg[]"};
    static const size_t sizes[] = {2, 2, 3}, equal[] = {2, 2, 2};
    bags_row row = {0};
    bags_value array = bags_int(7);
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bags_reader *reader = open_items(types[i], equal, 3);
        assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
        assert_fails(BAGS_ERROR_TYPE, bags_row_array(&row, 0, NULL, &array, &said));
        assert_says("x: field \"v\": *no size in common");
        bags_reader_close(reader);
    }
    bags_reader *reader = open_items("array(uint8,2)[]", sizes, 3);
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_row_array(&row, 0, NULL, &array, &said));
    assert_says("x: field \"v\": datapoint 0: item 2: size mismatch (3*expected 2)");
    assert_fails(BAGS_ERROR_RANGE, bags_row_array(&row, 1, NULL, &array, &said));
    assert_says("slot index 1*length 1");
    assert_int_equal(array.kind, BAGS_KIND_INT); /* unchanged by a failure */
    assert_int_equal(bags_row_array(NULL, 0, NULL, &array, &said), BAGS_ERROR_ARGUMENT);
    assert_int_equal(bags_row_array(&row, 0, NULL, NULL, &said), BAGS_ERROR_ARGUMENT);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void running_out_of_memory_is_an_error(void **state) {
    (void)state;
    write_arrays(at("x"), 0);
    bags_reader *reader = open_with(at("x"), true);
    bags_select select = bags_select_slice(5, 0, 4, 1); /* a copy */
    bags_row row = {0};
    bags_value array;
    assert_ok(bags_reader_get(reader, 1, &select, 1, &row, &said));
    memory.calls = 0;
    memory.fail_at = 1;
    assert_fails(BAGS_ERROR_MEMORY, bags_row_array(&row, 0, NULL, &array, &said));
    memory.fail_at = 0;
    assert_ok(bags_row_array(&row, 0, NULL, &array, &said));
    check_shape(5, &array, 4);
    bags_row_free(&row);
    bags_reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_slice_is_an_array),
        TEST(datapoints_of_a_plain_field_are_an_array),
        TEST(other_items_are_refused),
        TEST(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests_name("array", tests, NULL, NULL);
}
