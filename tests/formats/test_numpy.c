/* .npy files: what NumPy wrote, read and written again; structures in place;
 * bad files; the codec in a dataset. The data: tests/data/arrays/make.py. */
// flavours: test: asan; check: release
#include "check.h"

#include "../../formats/formats.h"

#define DATA "tests/data/arrays/"
#define GOLDEN "tests/data/golden/"

static bags_view view(const bytes *file) {
    bags_view out = {file->data, file->size};
    return out;
}

static bytes load_format(const char *format, const char *name) {
    char path[256];
    snprintf(path, sizeof path, format, name);
    return load(path);
}

/* Call `check` with every name in a directory, and say how many there were. */
static size_t each_name(const char *directory, void (*check)(const char *)) {
    char *names = names_in(directory), *state = NULL;
    size_t count = 0;
    for (char *name = strtok_r(names, " ", &state); name;
         name = strtok_r(NULL, " ", &state), count++)
        check(name);
    free(names);
    return count;
}

/* ------------------------------------------------ what NumPy wrote */

/* Make a file of NumPy's on a little-endian machine what it would have written
 * on this one. */
static void turn_npy(const bags_value *value, unsigned char *npy, size_t size) {
    size_t element = bags_dtype_size(value->dtype);
    unsigned char *order = (unsigned char *)memchr(npy, '<', size);
    if (value->kind != BAGS_KIND_ARRAY || element == 1 || little_endian())
        return;
    assert_non_null(order);
    *order = '>';
    turn_elements(npy + size - value->size, value->size, bags_dtype_swap(value->dtype));
}

/* A file whose dtype bags_dtype lacks. */
static const bags_npy *read_npy(
    bags_view file, bags_buffer *scratch, bags_value *value) {
    assert_ok(bags_npy_read(file, scratch, value, &said));
    assert_int_equal(value->kind, BAGS_KIND_OBJECT);
    return (const bags_npy *)value->object;
}

/* A structure whose dtype is spelled in another way than NumPy's keeps that. */
static void check_same_structure(const bags_value *value, bags_view file) {
    bags_buffer scratch = {0};
    bags_value again;
    const bags_npy *was = (const bags_npy *)value->object;
    const bags_npy *npy = read_npy(file, &scratch, &again);
    assert_int_equal(npy->type.count, was->type.count);
    for (size_t i = 0; i < npy->type.count; i++) {
        assert_string_equal(npy->type.fields[i].name, was->type.fields[i].name);
        assert_int_equal(npy->type.fields[i].kind, was->type.fields[i].kind);
        assert_int_equal(npy->type.fields[i].size, was->type.fields[i].size);
    }
    assert_int_equal(npy->size, was->size);
    assert_memory_equal(npy->rows, was->rows, npy->size);
    bags_buffer_free(&scratch);
}

/* "int16.big.npy" is another form of "int16.npy". */
static void check_written_again(const char *name) {
    bags_buffer read = {0}, written = {0};
    bags_value value;
    bags_view again;
    char plain[128];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(name, "."), name);
    bytes file = load_format(DATA "npy/%s", name);
    bytes expected = load_format(DATA "npy/%s.npy", plain);
    assert_ok(bags_npy_read(view(&file), &read, &value, &said));
    turn_npy(&value, expected.data, expected.size);
    assert_ok(bags_npy_write(&value, &written, &again, &said));
    if (strstr(name, ".escaped.") || strcmp(name, "escapes.python2.npy") == 0 ||
        strcmp(name, "array-in-array.nested.npy") == 0) {
        check_same_structure(&value, again);
    } else {
        if (again.size != expected.size ||
            memcmp(again.data, expected.data, again.size) != 0)
            fail_msg("%s is not written again as %s.npy", name, plain);
    }
    bytes_free(&file);
    bytes_free(&expected);
    bags_buffer_free(&read);
    bags_buffer_free(&written);
}

static void every_dtype_order_and_version_is_written_as_numpy_does(void **state) {
    (void)state;
    assert_true(each_name(DATA "npy", check_written_again) >= 90);
}

/* The file at every alignment: what comes out is aligned and equal. */
static void elements_are_viewed_where_alignment_permits_and_copied_elsewhere(
    void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "npy/float64.npy");
    unsigned char *room = (unsigned char *)malloc(file.size + 16);
    for (size_t shift = 0; shift < 16; shift++) {
        bags_view moved = {room + shift, file.size};
        memcpy(room + shift, file.data, file.size);
        assert_ok(bags_npy_read(moved, &scratch, &value, &said));
        bool inside = (const unsigned char *)value.data >= room &&
                      (const unsigned char *)value.data < room + file.size + 16;
        assert_int_equal(inside, shift % 8 == 0 && little_endian());
        assert_int_equal((uintptr_t)value.data % 8, 0);
        assert_int_equal(value.kind, BAGS_KIND_ARRAY);
        assert_int_equal(value.dtype, BAGS_DTYPE_FLOAT64);
        assert_int_equal(value.dims, 3);
        assert_int_equal(value.shape[0], 2);
        assert_int_equal(value.shape[1], 3);
        assert_int_equal(value.shape[2], 4);
        assert_int_equal(value.size, 24 * sizeof(double));
        for (int i = 0; i < 24; i++)
            assert_true(((const double *)value.data)[i] >= i &&
                        ((const double *)value.data)[i] <= i);
    }
    free(room);
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

/* ------------------------------------------------ structures */

static const bags_npy_type *field_named(const bags_npy_type *type, const char *name) {
    for (size_t i = 0; i < type->count; i++)
        if (strcmp(type->fields[i].name, name) == 0)
            return &type->fields[i];
    fail_msg("no field %s", name);
    return NULL;
}

static void a_structure_has_its_fields(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "npy/structure-nested.npy");
    const bags_npy *npy = read_npy(view(&file), &scratch, &value);
    assert_int_equal(npy->dims, 1);
    assert_int_equal(npy->length, 2);
    assert_int_equal(npy->stride, 2 + 2 * 20 + 8);
    assert_int_equal(npy->size, 2 * npy->stride);
    assert_ptr_equal(npy->rows, file.data + file.size - npy->size);
    assert_true(npy->type.structure);
    assert_int_equal(npy->type.count, 3);

    const bags_npy_type *field = field_named(&npy->type, "name");
    assert_string_equal(field->title, "a title");
    assert_int_equal(field->kind, 'i');
    assert_true(field->big_endian);
    assert_int_equal(field->dtype, BAGS_DTYPE_INT16);
    assert_int_equal(field->offset, 0);

    const bags_npy_type *inner = field_named(&npy->type, "inner");
    assert_int_equal(inner->offset, 2);
    assert_int_equal(inner->item_size, 20);
    assert_int_equal(inner->size, 40);
    assert_int_equal(inner->dims, 1);
    assert_int_equal(inner->shape[0], 2);
    const bags_npy_type *deep = field_named(inner, "deep");
    assert_int_equal(deep->offset, 8);
    const bags_npy_type *y = field_named(deep, "y");
    assert_int_equal(y->dims, 2);
    assert_int_equal(y->size, 4);
    const bags_npy_type *z = field_named(deep, "z");
    assert_int_equal(z->kind, 'M');
    assert_string_equal(z->unit, "us");
    assert_int_equal(z->step, 1);
    assert_int_equal(z->offset, 4);
    assert_int_equal(z->dtype, BAGS_DTYPE_NONE);

    const bags_npy_type *last = field_named(&npy->type, "last");
    assert_int_equal(last->kind, 'c');
    assert_int_equal(last->item_size, 8);
    assert_int_equal(last->offset, 42);
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

static void padding_between_fields_is_not_a_field(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "npy/structure-offsets.npy");
    const bags_npy *npy = read_npy(view(&file), &scratch, &value);
    assert_int_equal(npy->type.count, 2);
    assert_int_equal(npy->type.fields[0].offset, 5);
    assert_int_equal(npy->type.fields[1].offset, 20);
    assert_string_equal(npy->type.fields[1].title, "the second");
    assert_int_equal(npy->stride, 32);
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

static void kinds_that_bags_lacks_are_described(void **state) {
    static const struct {
        const char *name;
        char kind;
        size_t item_size;
        const char *unit;
        uint32_t step;
        bool big;
    } rows[] = {{"bytes", 'S', 5, "", 0, false}, {"text", 'U', 12, "", 0, false},
        {"text-big", 'U', 8, "", 0, true}, {"raw", 'V', 7, "", 0, false},
        {"date", 'M', 8, "D", 1, false}, {"date-25s", 'M', 8, "s", 25, false},
        {"date-generic", 'M', 8, "", 0, false}, {"span", 'm', 8, "ns", 1, false},
        {"longdouble", 'f', 16, "", 0, false}, {"clongdouble", 'c', 32, "", 0, false},
        {"bytes-0", 'S', 0, "", 0, false}};
    bags_buffer scratch = {0};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bags_value value;
        bytes file = load_format(DATA "npy/%s.npy", rows[i].name);
        const bags_npy *npy = read_npy(view(&file), &scratch, &value);
        assert_int_equal(npy->type.kind, rows[i].kind);
        assert_int_equal(npy->type.item_size, rows[i].item_size);
        assert_string_equal(npy->type.unit, rows[i].unit);
        assert_int_equal(npy->type.step, rows[i].step);
        assert_int_equal(npy->type.big_endian, rows[i].big);
        assert_false(npy->type.structure);
        bytes_free(&file);
    }
    bags_buffer_free(&scratch);
}

static void reading_makes_the_byte_order_native(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "npy/int16.big.npy");
    assert_ok(bags_npy_read(view(&file), &scratch, &value, &said));
    assert_int_equal(((const int16_t *)value.data)[23], 23);
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

/* ------------------------------------------------ writing */

static void values_other_than_arrays_are_not_written(void **state) {
    const uint64_t huge[] = {(uint64_t)1 << 40, (uint64_t)1 << 40}, rows[] = {2};
    const float elements[] = {1, 2};
    bags_buffer scratch = {0};
    bags_view out;
    (void)state;
    bags_value value = bags_utf8("text");
    assert_fails(BAGS_ERROR_VALUE, bags_npy_write(&value, &scratch, &out, &said));
    value = bags_array(BAGS_DTYPE_FLOAT32, 2, huge, NULL);
    assert_fails(BAGS_ERROR_VALUE, bags_npy_write(&value, &scratch, &out, &said));
    value = bags_array(BAGS_DTYPE_FLOAT32, 1, huge, NULL);
    value.dims = BAGS_MAX_DIMS + 1;
    assert_fails(BAGS_ERROR_VALUE, bags_npy_write(&value, &scratch, &out, &said));
    value = bags_array(BAGS_DTYPE_FLOAT32, 1, rows, elements);
    value.size = 4;
    assert_fails(BAGS_ERROR_VALUE, bags_npy_write(&value, &scratch, &out, &said));
    assert_says("(4 bytes, expected 8)");
    bags_buffer_free(&scratch);
}

/* A value of one row with a dtype of the caller's. */
static bags_code write_descr(
    const char *descr, size_t size, bags_buffer *scratch, bags_view *out) {
    static const unsigned char row[16] = {1, 2, 3, 4};
    bags_npy npy;
    bags_value value = bags_int(0);
    memset(&npy, 0, sizeof npy);
    npy.descr = descr;
    npy.rows = row;
    npy.size = size;
    value.kind = BAGS_KIND_OBJECT;
    value.object = &npy;
    return bags_npy_write(&value, scratch, out, &said);
}

static void a_structure_is_written_from_the_text_of_its_dtype(void **state) {
    bags_buffer scratch = {0}, read = {0};
    bags_view out;
    bags_value value;
    (void)state;
    assert_ok(write_descr(
        "[('x', '<i2'), ('\xe6\x97\xa5', '|u1', (2,))]", 4, &scratch, &out));
    assert_int_equal(out.data[6], 3); /* not Latin-1 */
    const bags_npy *npy = read_npy(out, &read, &value);
    assert_int_equal(npy->type.count, 2);
    assert_string_equal(npy->type.fields[1].name, "\xe6\x97\xa5");
    assert_int_equal(npy->rows[3], 4);
    bags_buffer_free(&scratch);
    bags_buffer_free(&read);
}

static void a_dtype_that_cannot_be_read_is_not_written(void **state) {
    static const struct {
        const char *descr;
        size_t size;
        const char *says;
    } rows[] = {{"'<f3'", 3, "unknown dtype \"<f3\""}, {"'|O'", 8, "dtype object"},
        {"'<M8[ns]'", 4, "contradicts"},
        {"'<M8[ns]', 'shape': (), 'descr': '<M8[ns]'", 8, "each once"},
        {"[('a', '|u1'), ('a', '|u1')]", 2, "the same name"},
        {"[('\xff', '|u1')]", 1, "UTF-8"}, {"", 1, "expected a string"}};
    bags_buffer scratch = {0};
    bags_view out;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_fails(
            BAGS_ERROR_VALUE, write_descr(rows[i].descr, rows[i].size, &scratch, &out));
        assert_says(rows[i].says);
    }
    assert_fails(BAGS_ERROR_VALUE, write_descr(NULL, 1, &scratch, &out));
    char nested[80];
    memset(nested, '[', sizeof nested - 1);
    nested[sizeof nested - 1] = 0;
    for (size_t i = 1; i + 5 < sizeof nested; i += 6)
        memcpy(nested + i, "('a',[", 6);
    assert_fails(BAGS_ERROR_VALUE, write_descr(nested, 1, &scratch, &out));
    bags_buffer_free(&scratch);
}

/* "|V8[...]" is how NumPy stores bfloat16 and other types of extensions. */
static void arrays_of_python_objects_are_rejected_by_name(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "bad/objects.npy");
    assert_fails(BAGS_ERROR_VALUE, bags_npy_read(view(&file), &scratch, &value, &said));
    assert_says("array of Python objects (dtype object); only numpy.load");
    bytes_free(&file);
    file = load(DATA "bad/unknown-dtype.npy");
    assert_fails(
        BAGS_ERROR_CORRUPT, bags_npy_read(view(&file), &scratch, &value, &said));
    assert_says("unknown dtype \"");
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

static void complex_numbers_are_an_array(void **state) {
    static const struct {
        const char *name;
        bags_dtype dtype;
        size_t size;
    } rows[] = {{"complex64", BAGS_DTYPE_COMPLEX64, 8},
        {"complex64.big", BAGS_DTYPE_COMPLEX64, 8},
        {"complex128", BAGS_DTYPE_COMPLEX128, 16}};
    bags_buffer scratch = {0};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bags_value value;
        bytes file = load_format(DATA "npy/%s.npy", rows[i].name);
        assert_ok(bags_npy_read(view(&file), &scratch, &value, &said));
        assert_int_equal(value.kind, BAGS_KIND_ARRAY);
        assert_int_equal(value.dtype, rows[i].dtype);
        assert_int_equal(value.size, 6 * rows[i].size);
        double real = 0, imaginary = 0;
        if (rows[i].size == 8) {
            real = (double)((const float *)value.data)[2];
            imaginary = (double)((const float *)value.data)[3];
        } else {
            real = ((const double *)value.data)[2];
            imaginary = ((const double *)value.data)[3];
        }
        assert_true(real >= 1 && real <= 1);
        assert_true(imaginary >= 0 && imaginary <= 0);
        bytes_free(&file);
    }
    bags_buffer_free(&scratch);
}

/* ------------------------------------------------ bad files */

static void check_refused(const char *name) {
    bags_buffer scratch = {0};
    bags_value value;
    bytes file = load_format(DATA "bad/%s", name);
    bags_code code = bags_npy_read(view(&file), &scratch, &value, &said);
    bool object = !strncmp(name, "objects", 7);
    static const char *const limits[] = {"nested-40", "nested-tuples", "fields-4097",
        "shape-product-overflows", "shape-overflows-but-for-0",
        "shape-of-65-dimensions", "field-too-large", "field-shape-of-65",
        "array-in-array-of-66", "fields-too-large"};
    bool limit = false;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        limit = limit || !strncmp(name, limits[i], strlen(limits[i]));
    bags_code expected = object  ? BAGS_ERROR_VALUE
                         : limit ? BAGS_ERROR_LIMIT
                                 : BAGS_ERROR_CORRUPT;
    if (code != expected)
        fail_msg("%s: code %d, %s", name, (int)code, code ? said.message : "read");
    if (scratch.capacity >= 4096 + 32 * file.size)
        fail_msg("%s: takes %zu bytes", name, scratch.capacity);
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

static void every_bad_file_is_rejected_with_little_memory(void **state) {
    (void)state;
    assert_true(each_name(DATA "bad", check_refused) >= 58);
}

static void a_header_above_a_mebibyte_is_rejected(void **state) {
    size_t size = ((size_t)1 << 20) + 64;
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    unsigned char *file = (unsigned char *)calloc(1, size + 12);
    memcpy(file, "\x93NUMPY\2\0", 8);
    for (int i = 0; i < 4; i++)
        file[8 + i] = (unsigned char)(size >> 8 * i);
    bags_view all = {file, size + 12};
    assert_fails(BAGS_ERROR_LIMIT, bags_npy_read(all, &scratch, &value, &said));
    free(file);
    bags_buffer_free(&scratch);
}

/* Cut at every length and changed at every byte: rejected, or an array. */
static void no_damage_to_a_header_is_worse_than_an_error(void **state) {
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    bytes file = load(DATA "npy/structure-nested.npy");
    for (size_t size = 0; size < file.size; size++) {
        bags_view cut = {file.data, size};
        assert_int_not_equal(bags_npy_read(cut, &scratch, &value, &said), BAGS_OK);
    }
    for (size_t i = 0; i < file.size; i++)
        for (unsigned change = 1; change < 256; change <<= 1) {
            file.data[i] ^= (unsigned char)change;
            bags_npy_read(view(&file), &scratch, &value, &said);
            file.data[i] ^= (unsigned char)change;
        }
    bytes_free(&file);
    bags_buffer_free(&scratch);
}

static void out_of_memory_is_an_error(void **state) {
    tally heap;
    (void)state;
    bytes file = load(DATA "npy/structure.fortran.npy");
    for (uint64_t n = 1;; n++) {
        bags_buffer read = {0}, written = {0};
        bags_value value;
        bags_view out;
        tally_start(&heap);
        heap.fail_at = n;
        read.resize = written.resize = heap.allocator.resize;
        read.user = written.user = heap.allocator.user;
        bags_code code = bags_npy_read(view(&file), &read, &value, &said);
        if (!code)
            code = bags_npy_write(&value, &written, &out, &said);
        bags_buffer_free(&read);
        bags_buffer_free(&written);
        assert_int_equal(heap.live, 0);
        assert_int_equal(code, heap.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        if (!heap.failed)
            break;
    }
    bytes_free(&file);
}

/* ------------------------------------------------ datasets */

static void the_type_npy_works_in_a_dataset(void **state) {
    bags_field fields[] = {{"any", "npy"}, {"many", "npy[]"}};
    bags_registry *codecs = bags_registry_create(NULL, &said);
    bags_buffer scratch = {0};
    bags_value values[2], out;
    (void)state;
    bytes structure = load(DATA "npy/structure.npy");
    bytes plain = load(DATA "npy/ordinary.npy");
    assert_ok(bags_registry_add(codecs, &bags_codec_npy, &said));
    bags_writer_options options = {0};
    options.registry = codecs;
    bags_writer *writer = bags_writer_open(at("set"), fields, 2, &options, &said);
    assert_non_null(writer);
    assert_ok(bags_npy_read(view(&structure), &scratch, &values[0], &said));
    values[1] = bags_blob(plain.data, plain.size);
    bags_entry entries[] = {{"any", values, 1}, {"many", values, 2}};
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_close(writer, &said));

    bags_reader_options reading = {0};
    reading.registry = codecs;
    bags_reader *reader = bags_reader_open(at("set"), &reading, &said);
    assert_non_null(reader);
    bags_row row = {0};
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_bytes(bags_row_bytes(&row, 0, 0), structure.data, structure.size);
    assert_bytes(bags_row_bytes(&row, 1, 1), plain.data, plain.size);
    assert_ok(bags_row_value(&row, 1, 1, NULL, &out, &said));
    assert_int_equal(out.kind, BAGS_KIND_ARRAY);
    assert_int_equal(out.size, 24);
    assert_ok(bags_row_value(&row, 1, 0, NULL, &out, &said));
    assert_int_equal(out.kind, BAGS_KIND_OBJECT);
    assert_int_equal(((const bags_npy *)out.object)->length, 6);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_registry_free(codecs);
    bags_buffer_free(&scratch);
    bytes_free(&structure);
    bytes_free(&plain);
}

/* Every array of a golden Bag, written as .npy files, which are contiguous. */
static void check_golden(const char *set, const char *field, const char *type) {
    char path[256];
    bags_type parsed;
    void *codec_state = NULL;
    tally heap;
    tally_start(&heap);
    assert_ok(bags_type_parse(type, &parsed, &said));
    const bags_codec *codec = bags_registry_find(NULL, parsed.name);
    assert_ok(codec->open(codec, &parsed, &heap.allocator, &codec_state, &said));
    snprintf(path, sizeof path, GOLDEN "%s/data/%s.bag", set, field);
    bag_reader *bag = bag_reader_open(path, NULL, &said);
    assert_non_null(bag);
    snprintf(path, sizeof path, DATA "golden/%s.%s.npys", set, field);
    *strchr(path + strlen(DATA "golden/"), '/') = '.';
    bytes expected = load(path);
    size_t done = 0;
    bags_buffer scratch = {0}, decoded = {0}, written = {0};
    for (uint64_t i = 0; i < bag_reader_length(bag); i++) {
        bags_view blob, npy;
        bags_value value;
        assert_ok(bag_reader_get(bag, i, &scratch, &blob, &said));
        assert_ok(codec->decode(codec_state, blob, &decoded, &value, &said));
        assert_ok(bags_npy_write(&value, &written, &npy, &said));
        assert_true(npy.size <= expected.size - done);
        turn_npy(&value, expected.data + done, npy.size);
        assert_memory_equal(npy.data, expected.data + done, npy.size);
        done += npy.size;
    }
    assert_int_equal(done, expected.size);
    codec->close(codec_state);
    bag_reader_close(bag);
    bytes_free(&expected);
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded);
    bags_buffer_free(&written);
}

static void every_golden_array_decodes_to_what_numpy_gives(void **state) {
    static const char *const rows[][3] = {
        {"bags-0.5.1/ds-lists", "arrs", "array(float32,10,4)"},
        {"bags-0.5.1/ds-types", "arr", "array(float32,10,4)"},
        {"granular-0.16.1/ds-lists", "arrs", "array"},
        {"granular-0.16.1/ds-types", "arr", "array"},
        {"granular-0.21.0/ds-lists", "arrs", "array"},
        {"granular-0.21.0/ds-types", "arr", "array"},
        {"granular-0.22.0a1/ds-types", "arr", "array"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_golden(rows[i][0], rows[i][1], rows[i][2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_dtype_order_and_version_is_written_as_numpy_does),
        TEST(elements_are_viewed_where_alignment_permits_and_copied_elsewhere),
        TEST(a_structure_has_its_fields),
        TEST(padding_between_fields_is_not_a_field),
        TEST(kinds_that_bags_lacks_are_described),
        TEST(reading_makes_the_byte_order_native),
        TEST(values_other_than_arrays_are_not_written),
        TEST(a_structure_is_written_from_the_text_of_its_dtype),
        TEST(a_dtype_that_cannot_be_read_is_not_written),
        TEST(arrays_of_python_objects_are_rejected_by_name),
        TEST(complex_numbers_are_an_array),
        TEST(every_bad_file_is_rejected_with_little_memory),
        TEST(a_header_above_a_mebibyte_is_rejected),
        TEST(no_damage_to_a_header_is_worse_than_an_error),
        TEST(out_of_memory_is_an_error),
        TEST(the_type_npy_works_in_a_dataset),
        TEST(every_golden_array_decodes_to_what_numpy_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
