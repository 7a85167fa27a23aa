/* The type zstd: values of every type inside, what is in a frame, frames that other
 * programs made, hostile ones, threads and memory. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include "../../formats/formats.h"

#include <zdict.h>
#include <zstd.h>

static bags_registry *codecs;
static bags_zstd_options options;

static bags_view view(const void *data, size_t size) {
    bags_view out = {(const unsigned char *)data, size};
    return out;
}

static int start(void **state) {
    bags_codec codec = bags_codec_zstd;
    (void)state;
    memset(&options, 0, sizeof options);
    codec.user = &options;
    codecs = bags_registry_create(NULL, NULL);
    options.registry = codecs;
    return support_setup(state) || !codecs ||
           bags_registry_add(codecs, &bags_codec_npy, NULL) ||
#ifdef BAGS_WITH_MSGPACK
           bags_registry_add(codecs, &bags_codec_msgpack, NULL) ||
#endif
           bags_registry_add(codecs, &codec, NULL);
}

static int stop(void **state) {
    bags_registry_free(codecs);
    return support_teardown(state);
}

/* A blob decodes to what `value` is, in memory of just its size. */
static void check_decodes(const char *type, bags_view blob, const bags_value *value) {
    bags_buffer scratch = {0};
    bags_value out;
    void *copy = malloc(blob.size);
    memcpy(copy, blob.data, blob.size);
    assert_ok(bags_decode(codecs, type, view(copy, blob.size), &scratch, &out, &said));
    assert_int_equal(out.kind, value->kind);
    assert_int_equal(out.uint, value->uint);
    assert_int_equal(out.sint, value->sint);
    assert_int_equal(out.size, value->size);
    if (value->size)
        assert_memory_equal(out.data, value->data, value->size);
    assert_int_equal(out.dtype, value->dtype);
    assert_int_equal(out.dims, value->dims);
    for (size_t i = 0; i < value->dims; i++)
        assert_int_equal(out.shape[i], value->shape[i]);
    if (value->dtype)
        assert_int_equal((uintptr_t)out.data % bags_dtype_size(value->dtype), 0);
    free(copy);
    bags_buffer_free(&scratch);
}

static void check_survives(const char *type, bags_value value) {
    bags_buffer scratch = {0};
    bags_view blob;
    assert_ok(bags_encode(codecs, type, &value, &scratch, &blob, &said));
    assert_true(ZSTD_findFrameCompressedSize(blob.data, blob.size) == blob.size);
    assert_true(ZSTD_getFrameContentSize(blob.data, blob.size) < 1 << 30);
    check_decodes(type, blob, &value);
    bags_buffer_free(&scratch);
}

static void values_of_every_type_survive(void **state) {
    static unsigned char large[300000];
    double numbers[15];
    uint64_t shape[] = {3, 5}, none[] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (unsigned char)(i * i / 1000);
    for (int i = 0; i < 15; i++)
        numbers[i] = 1.5 * i - 4;
    check_survives("zstd(bytes)", bags_bytes("", 0));
    check_survives("zstd(bytes)", bags_bytes("\0\1", 2));
    check_survives("zstd(bytes)[]", bags_bytes(large, sizeof large));
    check_survives("zstd(utf8)", bags_utf8("a word, a word, a word"));
    check_survives("zstd(int)", bags_uint(300));
    check_survives("zstd(int)", bags_uint(0));
    check_survives("zstd(int,4,big)", bags_uint(70000));
    check_survives("zstd(i64)", bags_int(-5));
    check_survives("zstd(u64)", bags_uint(UINT64_MAX));
    check_survives(
        "zstd(array,float64,3,5)", bags_array(BAGS_DTYPE_FLOAT64, 2, shape, numbers));
    check_survives(
        "zstd(array,float64,-1,5)", bags_array(BAGS_DTYPE_FLOAT64, 2, shape, numbers));
    check_survives(
        "zstd(array,uint8,3,5)", bags_array(BAGS_DTYPE_UINT8, 2, shape, numbers));
    check_survives("zstd(array,int16,-1)", bags_array(BAGS_DTYPE_INT16, 1, none, NULL));
    check_survives("zstd(array,complex64,3,5)",
        bags_array(BAGS_DTYPE_COMPLEX64, 2, shape, numbers));
    check_survives("zstd(array)", bags_array(BAGS_DTYPE_FLOAT32, 2, shape, numbers));
    check_survives("zstd(npy)", bags_array(BAGS_DTYPE_FLOAT64, 2, shape, numbers));
}

/* Byte 0 of every element, then byte 1, and so on; nothing of other types. */
static void an_array_is_transposed_by_its_elements(void **state) {
    static const unsigned char elements[] = {
        0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24};
    static const unsigned char rows[] = {
        0x01, 0x11, 0x21, 0x02, 0x12, 0x22, 0x03, 0x13, 0x23, 0x04, 0x14, 0x24};
    unsigned char native[sizeof elements], content[64];
    uint64_t shape[] = {3};
    bags_buffer scratch = {0};
    bags_view blob;
    (void)state;
    memcpy(native, elements, sizeof native);
    if (!little_endian())
        turn_elements(native, sizeof native, 4);
    bags_value value = bags_array(BAGS_DTYPE_UINT32, 1, shape, native);
    assert_ok(
        bags_encode(codecs, "zstd(array,uint32,3)", &value, &scratch, &blob, &said));
    assert_int_equal(
        ZSTD_decompress(content, sizeof content, blob.data, blob.size), sizeof rows);
    assert_memory_equal(content, rows, sizeof rows);
    value = bags_bytes(elements, sizeof elements);
    assert_ok(bags_encode(codecs, "zstd(bytes)", &value, &scratch, &blob, &said));
    assert_int_equal(ZSTD_decompress(content, sizeof content, blob.data, blob.size),
        sizeof elements);
    assert_memory_equal(content, elements, sizeof elements);
    bags_buffer_free(&scratch);
}

static size_t compress(void *out, size_t size, const char *text, int level,
    bool checksum, bool content_size) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, content_size);
    size_t made = ZSTD_compress2(context, out, size, text, strlen(text));
    ZSTD_freeCCtx(context);
    assert_false(ZSTD_isError(made));
    return made;
}

static const char words[] = "the same words, the same words, the same words, again";

static void frames_of_other_programs_are_read(void **state) {
    unsigned char frame[200];
    bags_value value = bags_utf8(words);
    (void)state;
    for (int level = -5; level <= 19; level += 6)
        for (int checksum = 0; checksum < 2; checksum++) {
            size_t size = compress(frame, sizeof frame, words, level, checksum, true);
            check_decodes("zstd(utf8)", view(frame, size), &value);
        }
}

static void check_refused(
    const char *type, bags_code code, const void *data, size_t size, const char *says) {
    bags_buffer scratch = {0};
    bags_value value = bags_int(7);
    void *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    assert_fails(
        code, bags_decode(codecs, type, view(copy, size), &scratch, &value, &said));
    assert_says(says);
    assert_int_equal(value.sint, 7);
    assert_true(scratch.capacity < 100000);
    free(copy);
    bags_buffer_free(&scratch);
}

static void what_is_not_one_frame_is_refused(void **state) {
    static const unsigned char skippable[] = {0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 9};
    static const unsigned char with_dictionary[] = {
        0x28, 0xB5, 0x2F, 0xFD, 0x23, 77, 0, 0, 0, 1, 9, 0, 0, 'x'};
    unsigned char frame[400];
    (void)state;
    size_t size = compress(frame, sizeof frame, words, 3, false, true);
    for (size_t part = 0; part < size; part++)
        check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, frame, part, "zstd frame");
    memcpy(frame + size, frame, size);
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, frame, size + 1, "1 bytes after");
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, frame, 2 * size, "bytes after");
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, words, 20, "not a zstd frame");
    check_refused(
        "zstd(utf8)", BAGS_ERROR_CORRUPT, skippable, sizeof skippable, "not a zstd");
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, with_dictionary,
        sizeof with_dictionary, "needs a dictionary (id 77)");
    size = compress(frame, sizeof frame, words, 3, false, false);
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, frame, size,
        "without the size of its content");
    /* What the type inside refuses. */
    size = compress(frame, sizeof frame, "\xFF", 3, false, true);
    check_refused("zstd(utf8)", BAGS_ERROR_CORRUPT, frame, size, "UTF-8");
    size = compress(frame, sizeof frame, "12345", 3, false, true);
    check_refused("zstd(array,float32,-1)", BAGS_ERROR_CORRUPT, frame, size,
        "5 bytes are not a multiple");
    check_refused("zstd(array,uint8,4)", BAGS_ERROR_CORRUPT, frame, size, "");
}

/* A header of 8 bytes for the size, then one block that repeats one byte. */
static size_t forge(unsigned char *frame, uint64_t content, uint32_t repeated) {
    static const unsigned char front[] = {0x28, 0xB5, 0x2F, 0xFD, 0xC0, 0x98};
    uint32_t block = repeated << 3 | 1 << 1 | 1;
    memcpy(frame, front, sizeof front);
    bags_store_bytes(frame + 6, 8, false, content);
    bags_store_bytes(frame + 14, 3, false, block);
    frame[17] = 'x';
    return 18;
}

static void sizes_that_are_not_true_are_refused(void **state) {
    unsigned char frame[64], content[1000];
    (void)state;
    memset(content, 'x', sizeof content);
    bags_value value = bags_bytes(content, sizeof content);
    check_decodes("zstd(bytes)", view(frame, forge(frame, 1000, 1000)), &value);
    check_refused(
        "zstd(bytes)", BAGS_ERROR_CORRUPT, frame, forge(frame, 1001, 1000), "zstd");
    check_refused(
        "zstd(bytes)", BAGS_ERROR_CORRUPT, frame, forge(frame, 999, 1000), "zstd");
    /* Before memory is allocated for it. */
    check_refused("zstd(bytes)", BAGS_ERROR_CORRUPT, frame,
        forge(frame, UINT64_C(1) << 40, 1000), "claims too much");
    options.max_size = 1000;
    check_decodes("zstd(bytes)", view(frame, forge(frame, 1000, 1000)), &value);
    options.max_size = 999;
    check_refused("zstd(bytes)", BAGS_ERROR_LIMIT, frame, forge(frame, 1000, 1000),
        "1000 bytes, maximum 999");
    bags_buffer scratch = {0};
    bags_view blob = {NULL, 0};
    assert_fails(BAGS_ERROR_VALUE,
        bags_encode(codecs, "zstd(bytes)", &value, &scratch, &blob, &said));
    assert_says("1000 bytes, maximum 999");
    bags_buffer_free(&scratch);
}

/* Any change is an error, or decodes to a value. */
static void every_changed_byte_is_survived(void **state) {
    unsigned char frame[200];
    bags_buffer scratch = {0};
    uint64_t refused = 0;
    (void)state;
    size_t size = compress(frame, sizeof frame, words, 3, false, true);
    for (size_t i = 0; i < size; i++)
        for (int change = 1; change < 256; change++) {
            unsigned char *copy = (unsigned char *)malloc(size);
            bags_value value;
            memcpy(copy, frame, size);
            copy[i] ^= (unsigned char)change;
            refused += bags_decode(codecs, "zstd(bytes)", view(copy, size), &scratch,
                           &value, &said) != BAGS_OK;
            free(copy);
        }
    assert_true(refused > size * 20);
    assert_true(scratch.capacity < (size_t)64 << 20);
    bags_buffer_free(&scratch);
}

static void types_that_cannot_be_compressed_are_refused(void **state) {
    static const struct {
        const char *type, *says;
    } rows[] = {{"zstd", "expected zstd(TYPE)"}, {"zstd()", ""},
        {"zstd(zstd,utf8)", "inside of zstd"}, {"zstd(nonsense)", "\"nonsense\""},
        {"zstd(utf8,1)", "accepts no arguments"}, {"zstd(npy,1)", "no arguments"},
        {"zstd(array,float31,2)", "float31"}, {"zstd(array,float32,)", "dimension"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bags_buffer scratch = {0};
        bags_value value = bags_utf8("x");
        bags_view blob;
        assert_fails(BAGS_ERROR_TYPE,
            bags_encode(codecs, rows[i].type, &value, &scratch, &blob, &said));
        assert_says(rows[i].says);
        bags_buffer_free(&scratch);
    }
}

/* Without options, only the built-in types are inside. */
static void the_registry_has_the_types_inside(void **state) {
    bags_registry *plain = bags_registry_create(NULL, &said);
    bags_buffer scratch = {0};
    bags_value value = bags_utf8("x");
    bags_view blob;
    (void)state;
    assert_ok(bags_registry_add(plain, &bags_codec_npy, &said));
    assert_ok(bags_registry_add(plain, &bags_codec_zstd, &said));
    assert_ok(bags_encode(plain, "zstd(utf8)", &value, &scratch, &blob, &said));
    assert_fails(BAGS_ERROR_TYPE,
        bags_encode(plain, "zstd(npy)", &value, &scratch, &blob, &said));
    options.level = 23;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_encode(codecs, "zstd(utf8)", &value, &scratch, &blob, &said));
    assert_says("level");
    bags_buffer_free(&scratch);
    bags_registry_free(plain);
}

/* A codec that needs its scratch in steps, reads the blob after each, and keeps memory
 * of its own meanwhile. The value is the blob and its copy. */
static bags_code grow_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    bags_buffer other = {NULL, 0, scratch->resize, scratch->user};
    bags_code code = BAGS_OK;
    (void)state;
    for (size_t size = 1; size <= blob.size && !code; size *= 2) {
        code = bags_buffer_reserve(scratch, 3 * size, err);
        if (!code)
            code = bags_buffer_reserve(&other, 5 * size, err);
        if (!code)
            memcpy(scratch->data, blob.data, size);
    }
    bags_buffer_free(&other);
    if (!code)
        code = bags_buffer_reserve(scratch, 3 * blob.size + 1, err);
    if (code)
        return code;
    memcpy(scratch->data, blob.data, blob.size);
    *value = bags_bytes(scratch->data, blob.size);
    value->object = blob.data;
    return BAGS_OK;
}

static void a_codec_inside_may_grow_the_scratch(void **state) {
    static unsigned char content[10000];
    bags_codec grow = {"grow", NULL, NULL, grow_decode, NULL, NULL, NULL};
    bags_buffer scratch = {0}, frame = {0};
    bags_value value, out;
    bags_view blob;
    (void)state;
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (unsigned char)(i % 251);
    assert_ok(bags_registry_add(codecs, &grow, &said));
    for (size_t size = 0; size <= sizeof content; size += size / 3 + 1) {
        value = bags_bytes(content, size);
        assert_ok(bags_encode(codecs, "zstd(bytes)", &value, &frame, &blob, &said));
        assert_ok(bags_decode(codecs, "zstd(grow)", blob, &scratch, &out, &said));
        assert_int_equal(out.size, size);
        if (size) {
            assert_memory_equal(out.data, content, size);
            assert_memory_equal(out.object, content, size);
        }
    }
    assert_fails(BAGS_ERROR_TYPE,
        bags_encode(codecs, "zstd(grow)", &value, &frame, &blob, &said));
    bags_buffer_free(&scratch);
    bags_buffer_free(&frame);
}

static void out_of_memory_is_an_error(void **state) {
    double numbers[100] = {0};
    uint64_t shape[] = {100};
    bags_value value = bags_array(BAGS_DTYPE_FLOAT64, 1, shape, numbers), again;
    (void)state;
    for (uint64_t n = 1;; n++) {
        tally heap;
        bags_type type;
        void *codec = NULL;
        bags_view blob = {NULL, 0};
        bags_codec zstd = bags_codec_zstd;
        zstd.user = &options;
        tally_start(&heap);
        heap.fail_at = n;
        bags_buffer encoded = bags_buffer_of(&heap.allocator), decoded = encoded;
        assert_ok(bags_type_parse("zstd(array,float64,100)", &type, &said));
        bags_code code = zstd.open(&zstd, &type, &heap.allocator, &codec, &said);
        if (!code)
            code = zstd.encode(codec, &value, &encoded, &blob, &said);
        if (!code)
            code = zstd.decode(codec, blob, &decoded, &again, &said);
        if (codec)
            zstd.close(codec);
        bags_buffer_free(&encoded);
        bags_buffer_free(&decoded);
        assert_int_equal(heap.live, 0);
        assert_int_equal(code, heap.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        if (!heap.failed)
            break;
    }
}

/* ------------------------------------------------ datasets */

#define LENGTH 500

static void write_set(const char *path) {
    bags_field fields[] = {{"numbers", "zstd(array,float32,8)"}, {"other", "zstd(npy)"},
        {"plain", "utf8"}, {"words", "zstd(utf8)"}, {"list", "zstd(bytes)[]"}};
    bags_writer_options writing = {0};
    bags_writer *writer;
    float numbers[8];
    uint64_t shape[] = {8};
    char text[400];
    writing.registry = codecs;
    assert_opens(writer, bags_writer_open(path, fields, 5, &writing, &said));
    for (int i = 0; i < LENGTH; i++) {
        for (int j = 0; j < 8; j++)
            numbers[j] = (float)(i + j);
        for (int j = 0; j < i % 300 + 1; j++)
            snprintf(text + j, 8, "%d", i);
        bags_value array = bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers);
        bags_value word = bags_utf8(text);
        bags_value list[] = {bags_bytes(text, 1), bags_bytes(text, 2)};
        bags_entry entries[] = {{"numbers", &array, 1}, {"other", &array, 1},
            {"plain", &word, 1}, {"words", &word, 1}, {"list", list, (size_t)(i % 3)}};
        assert_ok(bags_writer_append(writer, entries, 5, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bags_reader *open_set(const char *path, const bags_allocator *allocator) {
    bags_reader_options reading = {0};
    bags_reader *reader;
    reading.registry = codecs;
    reading.env.allocator = allocator;
    assert_opens(reader, bags_reader_open(path, &reading, &said));
    return reader;
}

/* All values of a datapoint. False if one is wrong. */
static bool is_right(
    const bags_reader *reader, uint64_t i, bags_row *row, bags_buffer *scratch) {
    bags_value word, value;
    float first = 0;
    if (bags_reader_get(reader, i, NULL, 0, row, NULL) ||
        bags_row_value(row, 3, 0, &scratch[0], &word, NULL) ||
        bags_row_value(row, 4, 0, &scratch[1], &value, NULL) ||
        value.size != word.size || memcmp(value.data, word.data, word.size) ||
        bags_row_length(row, 0) != i % 3)
        return false;
    for (size_t field = 1; field < 3; field++) {
        if (bags_row_value(row, field, 0, &scratch[1], &value, NULL) ||
            value.size != 32)
            return false;
        memcpy(&first, value.data, sizeof first);
        if (first < (float)i || first > (float)i)
            return false;
    }
    for (size_t j = 0; j < i % 3; j++)
        if (bags_row_value(row, 0, j, &scratch[1], &value, NULL) ||
            value.size != j + 1 || memcmp(value.data, word.data, j + 1))
            return false;
    return true;
}

static void reading_allocates_nothing_once_scratch_has_grown(void **state) {
    tally heap;
    bags_row row = {0};
    bags_buffer scratch[2] = {{0}, {0}};
    (void)state;
    write_set(at("set"));
    tally_start(&heap);
    bags_reader *reader = open_set(at("set"), &heap.allocator);
    for (uint64_t i = 0; i < LENGTH; i++)
        assert_true(is_right(reader, i, &row, scratch));
    uint64_t calls = heap.calls;
    for (uint64_t i = LENGTH; i-- > 0;)
        assert_true(is_right(reader, i, &row, scratch));
    assert_int_equal(heap.calls, calls);
    bags_row_free(&row);
    bags_buffer_free(&scratch[0]);
    bags_buffer_free(&scratch[1]);
    bags_reader_close(reader);
    assert_int_equal(heap.live, 0);
}

static bool wrong;

static void *read_all_values(void *user) {
    const bags_reader *reader = (const bags_reader *)user;
    bags_row row = {0};
    bags_buffer scratch[2] = {{0}, {0}};
    bool good = true;
    for (int round = 0; round < 4; round++)
        for (uint64_t i = 0; i < LENGTH; i++)
            good = good && is_right(reader, i, &row, scratch);
    if (!good)
        wrong = true;
    bags_row_free(&row);
    bags_buffer_free(&scratch[0]);
    bags_buffer_free(&scratch[1]);
    return NULL;
}

static void threads_share_a_reader(void **state) {
    pthread_t threads[4];
    (void)state;
    write_set(at("set"));
    bags_reader *reader = open_set(at("set"), NULL);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all_values, reader), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_false(wrong);
    bags_reader_close(reader);
}

/* Without the codec the blobs are as they were written. */
static void blobs_are_read_without_the_codec(void **state) {
    bags_row row = {0};
    bags_value value;
    bag_blobs blobs;
    bags_reader *reader;
    bags_buffer scratch = {0};
    (void)state;
    write_set(at("set"));
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_ok(bags_reader_blobs(reader, 0, 4, true, &row, &blobs, &said));
    assert_int_equal(blobs.length, LENGTH);
    bags_view last = bag_blobs_get(&blobs, LENGTH - 1);
    assert_ok(bags_decode(codecs, "zstd(utf8)", last, &scratch, &value, &said));
    assert_true(value.size > 3 && !memcmp(value.data, "4444", 4));
    assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
    assert_fails(BAGS_ERROR_TYPE, bags_row_value(&row, 4, 0, NULL, &value, &said));
    assert_says("no codec");
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
}

static void the_loader_stacks_what_is_compressed(void **state) {
    bags_loader_options loading = {0};
    bags_load_field fields[2];
    const bags_batch *batch;
    (void)state;
    write_set(at("set"));
    const bags_reader *reader = open_set(at("set"), NULL);
    memset(fields, 0, sizeof fields);
    fields[0].name = "numbers";
    fields[1].name = "words";
    loading.batch = 7;
    loading.order.in_order = true;
    loading.fields = fields;
    loading.field_count = 2;
    bags_loader *loader;
    assert_opens(loader, bags_loader_open(&reader, 1, &loading, &said));
    assert_ok(bags_loader_next(loader, &batch, &said));
    assert_int_equal(batch->tensors[0].dtype, BAGS_DTYPE_FLOAT32);
    assert_int_equal(batch->tensors[0].dims, 2);
    assert_int_equal(batch->tensors[0].shape[1], 8);
    assert_true(((const float *)batch->tensors[0].data)[8 * 6] == 6.0f);
    assert_int_equal(batch->tensors[1].ends[7], 28);
    assert_memory_equal(batch->tensors[1].data, "0112223333444445", 16);
    bags_loader_close(loader);
    bags_reader_close((bags_reader *)(uintptr_t)reader);
}

/* ------------------------------------------------ dictionaries */

#define RECORDS 24000
#define SHARD 7000

/* A record of about 180 bytes, always the same for a number. */
static size_t record_of(uint64_t i, char text[400]) {
    static const char *const names[] = {"alice", "bob", "carol", "dave", "eve", "erin"};
    static const char *const cities[] = {
        "Zurich", "Berlin", "Toronto", "Oslo", "Kyoto"};
    uint64_t random = i;
    uint64_t r = next_random(&random), q = next_random(&random);
    return (size_t)snprintf(text, 400,
        "{\"id\": %d, \"name\": \"%s_%d\", \"email\": \"%s%d@example.com\", \"score\": "
        "0.%04d, \"tags\": [\"t%d\", \"t%d\"], \"city\": \"%s\", \"active\": %s, "
        "\"comment\": \"\", \"ts\": %d}",
        (int)i, names[r % 6], (int)(r >> 8 & 0xFFF), names[q % 6],
        (int)(r >> 20 & 0x3FF), (int)(q >> 8 & 0x1FFF), (int)(q >> 22 & 31),
        (int)(q >> 27 & 31), cities[r >> 30 & 3], r >> 40 & 1 ? "true" : "false",
        1700000000 + (int)(r >> 41 & 0xFFFFF));
}

/* Shards of SHARD records; the bytes of all. */
static uint64_t write_records(
    const char *path, bags_writer_options writing, uint64_t from, uint64_t to) {
    bags_field field = {"text", "zstd(utf8)"};
    bags_writer *writer;
    char text[400];
    uint64_t size = 0;
    writing.registry = codecs;
    writing.shard_length = SHARD;
    writing.no_sync = true;
    assert_opens(writer, bags_writer_open(path, &field, 1, &writing, &said));
    for (uint64_t i = from; i < to; i++) {
        size_t one = record_of(i, text);
        bags_value value = bags_utf8_sized(text, one);
        bags_entry entry = {"text", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
        size += one;
    }
    assert_ok(bags_writer_close(writer, &said));
    return size;
}

static bool is_record(
    const bags_reader *reader, uint64_t i, bags_row *row, bags_buffer *scratch) {
    char text[400];
    bags_value value;
    return !bags_reader_get(reader, i, NULL, 0, row, NULL) &&
           !bags_row_value(row, 0, 0, scratch, &value, NULL) &&
           value.size == record_of(i, text) && !memcmp(value.data, text, value.size);
}

static unsigned number_of(const char *path) {
    bytes file = load(path);
    unsigned number = ZSTD_getDictID_fromDict(file.data, file.size);
    bytes_free(&file);
    return number;
}

static void small_records_are_compressed_with_a_dictionary(void **state) {
    bags_writer_options writing = {0};
    bags_row row = {0};
    bags_buffer scratch = {0};
    bags_view blob;
    tally heap;
    (void)state;
    uint64_t size = write_records(at("set"), writing, 0, RECORDS);
    assert_names(at("set/000000"), "refs.bag spec.json text.bag text.dict");
    assert_names(at("set/000003"), "refs.bag spec.json text.bag text.dict");
    unsigned number = number_of(at("set/000000/text.dict"));
    assert_true(number >= 32768);
    assert_int_equal(number, number_of(at("set/000003/text.dict")));
    uint64_t length = file_size(at("set/000000/text.dict"));
    assert_true(length >= 1 << 10 && length <= 64 << 10);
    tally_start(&heap);
    bags_reader *reader = open_set(at("set"), &heap.allocator);
    /* The first, of which it was made, say that they need it as all others. */
    for (uint64_t i = 0; i < RECORDS; i++) {
        assert_ok(bags_reader_get_blob(reader, i, 0, 0, &row, &blob, &said));
        assert_int_equal(ZSTD_getDictID_fromFrame(blob.data, blob.size), number);
    }
    assert_true(ZSTD_getFrameContentSize(blob.data, blob.size) < 400);
    assert_true(ZSTD_findFrameCompressedSize(blob.data, blob.size) == blob.size);
    uint64_t stored = file_size(at("set/000002/text.bag")) - 8 * (SHARD + 1);
    assert_true((double)size / RECORDS * SHARD > 2.5 * (double)stored);
    uint64_t calls = 0;
    for (int round = 0; round < 2; round++) {
        calls = heap.calls;
        for (uint64_t i = 0; i < RECORDS; i++)
            assert_true(is_record(reader, i * 7919 % RECORDS, &row, &scratch));
    }
    assert_int_equal(heap.calls, calls); /* it allocates nothing once all has grown */
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
    assert_int_equal(heap.live, 0);
    options.no_dictionary = true;
    uint64_t plain = write_records(at("plain"), writing, 0, RECORDS);
    assert_int_equal(plain, size);
    assert_names(at("plain/000000"), "refs.bag spec.json text.bag");
    assert_true(file_size(at("plain/000002/text.bag")) > 2 * stored);
}

/* Records in shards of so many; a flush after some, if not 0. Returns how many times
 * smaller the field is, with its dictionaries. */
static double shrink_records(
    const char *name, uint64_t count, uint64_t shard, uint64_t flush) {
    bags_field field = {"text", "zstd(utf8)"};
    bags_writer_options writing = {0};
    bags_writer *writer;
    uint64_t size = 0, stored = 0;
    char text[400];
    writing.registry = codecs;
    writing.shard_length = shard;
    writing.checksum = true;
    assert_opens(writer, bags_writer_open(at("%s", name), &field, 1, &writing, &said));
    for (uint64_t i = 0; i < count; i++) {
        size_t one = record_of(i, text);
        bags_value value = bags_utf8_sized(text, one);
        bags_entry entry = {"text", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
        size += one;
        if (i + 1 == flush)
            assert_ok(bags_writer_flush(writer, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    for (uint64_t i = 0; i * shard < count; i++) {
        uint64_t length = count - i * shard < shard ? count - i * shard : shard;
        stored += file_size(at("%s/00000%d/text.bag", name, (int)i)) - 8 * (length + 1);
        if (exists(at("%s/00000%d/text.dict", name, (int)i)))
            stored += file_size(at("%s/00000%d/text.dict", name, (int)i));
    }
    bags_reader *reader = open_set(at("%s", name), NULL);
    bags_row row = {0};
    bags_buffer scratch = {0};
    for (uint64_t i = 0; i < count; i++)
        assert_true(is_record(reader, i, &row, &scratch));
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
    assert_ok(verify_path(at("%s", name), NULL, &said));
    return (double)size / (double)stored;
}

/* The frames of the first datapoints that need a dictionary. */
static uint64_t count_with(const char *name, uint64_t count) {
    bags_reader *reader = open_set(at("%s", name), NULL);
    bags_row row = {0};
    bags_view blob;
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(bags_reader_get_blob(reader, i, 0, 0, &row, &blob, &said));
        found += ZSTD_getDictID_fromFrame(blob.data, blob.size) != 0;
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return found;
}

/* Before there is as much as a writer collects. */
static void small_shards_have_dictionaries_that_pay(void **state) {
    static const struct {
        uint64_t count, shard, flush;
        double smaller;
    } rows[] = {{1000, 1000, 0, 2}, {5000, 1000, 0, 2}, {6000, 2500, 0, 2},
        {300, 1000, 0, 1.7}, {3000, 1000, 100, 1.7}, {65, 1000, 0, 1.5}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[] = {(char)('0' + i), 0};
        double smaller =
            shrink_records(name, rows[i].count, rows[i].shard, rows[i].flush);
        print_message("%d in shards of %d: %.2f\n", (int)rows[i].count,
            (int)rows[i].shard, smaller);
        assert_true(smaller >= rows[i].smaller);
        assert_int_equal(count_with(name, rows[i].count), rows[i].count);
    }
    /* Too few when they are flushed; more are tried later, together. */
    options.no_dictionary = true;
    double alone = shrink_records("alone", 30, 1000, 0);
    options.no_dictionary = false;
    assert_true(shrink_records("few", 30, 1000, 10) == alone);
    assert_int_equal(count_with("few", 30), 0);
    (void)shrink_records("flushed", 1000, 1000, 50);
    assert_int_equal(count_with("flushed", 50), 0);
    assert_int_equal(count_with("flushed", 1000), 950);
}

/* No blob is held; the codec makes the dictionary when it has 1 MiB. */
static void values_larger_than_a_buffer_have_one(void **state) {
    bags_field field = {"text", "zstd(bytes)"};
    bags_writer_options writing = {0};
    bags_writer *writer;
    static unsigned char large[7000], common[2000];
    (void)state;
    fill(common, sizeof common, 12345);
    writing.registry = codecs;
    writing.buffer_size = 4096;
    assert_opens(writer, bags_writer_open(at("set"), &field, 1, &writing, &said));
    for (uint64_t i = 0; i < 300; i++) {
        fill(large, sizeof large, i);
        memcpy(large + 100 * (i % 10), common, sizeof common);
        bags_value value = bags_bytes(large, sizeof large);
        bags_entry entry = {"text", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
        assert_int_equal(exists(at("set/text.dict")), i >= 150);
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(verify_path(at("set"), NULL, &said));
}

static void writing_allocates_nothing_once_the_dictionary_is_made(void **state) {
    bags_field field = {"text", "zstd(utf8)"};
    bags_writer_options writing = {0};
    bags_writer *writer;
    char text[400];
    uint64_t calls = 0;
    tally heap;
    (void)state;
    tally_start(&heap);
    writing.registry = codecs;
    writing.env.allocator = &heap.allocator;
    assert_opens(writer, bags_writer_open(at("set"), &field, 1, &writing, &said));
    for (uint64_t i = 0; i < RECORDS; i++) {
        bags_value value = bags_utf8_sized(text, record_of(i, text));
        bags_entry entry = {"text", &value, 1};
        if (i == RECORDS / 2)
            calls = heap.calls;
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_int_equal(heap.calls, calls);
    assert_true(exists(at("set/text.dict")));
    /* The values that it was made of are gone. */
    assert_true(heap.used < heap.peak - (1 << 20));
    assert_ok(bags_writer_close(writer, &said));
    assert_int_equal(heap.live, 0);
}

static void a_dictionary_may_be_given(void **state) {
    bags_writer_options writing = {0};
    bags_row row = {0};
    bags_buffer scratch = {0};
    bags_value value;
    bags_view blob;
    char text[400];
    (void)state;
    write_records(at("first"), writing, 0, RECORDS);
    bytes file = load(at("first/000000/text.dict"));
    options.dictionary = view(file.data, file.size);
    write_records(at("set"), writing, 0, 3);
    assert_file(at("set/000000/text.dict"), file.data, file.size);
    bags_reader *reader = open_set(at("set"), NULL);
    assert_true(is_record(reader, 0, &row, &scratch));
    /* bags_decode needs it from the options; what bags_encode makes needs none. */
    assert_ok(bags_reader_get_blob(reader, 2, 0, 0, &row, &blob, &said));
    assert_true(ZSTD_getDictID_fromFrame(blob.data, blob.size) > 0);
    assert_ok(bags_decode(codecs, "zstd(utf8)", blob, &scratch, &value, &said));
    assert_int_equal(value.size, record_of(2, text));
    assert_memory_equal(value.data, text, value.size);
    options.dictionary = view(NULL, 0);
    assert_fails(BAGS_ERROR_CORRUPT,
        bags_decode(codecs, "zstd(utf8)", blob, &scratch, &value, &said));
    assert_says("needs a dictionary (id ");
    /* Others that continue must not ask for another one. */
    writing.existing = BAGS_EXISTING_APPEND;
    write_records(at("set"), writing, 3, 5);
    assert_file(at("set/000001/text.dict"), file.data, file.size);
    file.data[4] ^= 1;
    options.dictionary = view(file.data, file.size);
    bags_field field = {"text", "zstd(utf8)"};
    writing.registry = codecs;
    writing.shard_stop = 1;
    assert_refused(
        BAGS_ERROR_VALUE, bags_writer_open(at("set"), &field, 1, &writing, &said));
    assert_says("set: field \"text\": existing frames have another dictionary");
    options.no_dictionary = true;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open(at("other"), &field, 1, &writing, &said));
    assert_says("mutually exclusive");
    options.no_dictionary = false;
    options.dictionary = view("not a dictionary", 16);
    writing.existing = BAGS_EXISTING_REFUSE;
    for (int sharded = 0; sharded < 2; sharded++) {
        writing.shard_stop = (uint64_t)sharded;
        assert_refused(BAGS_ERROR_CORRUPT,
            bags_writer_open(at("other"), &field, 1, &writing, &said));
        assert_says("other: field \"text\": not a dictionary of zstd");
        assert_false(exists(at("other")));
    }
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
    bytes_free(&file);
}

static void values_without_much_in_common_get_none(void **state) {
    bags_field list[] = {
        {"large", "zstd(bytes)"}, {"noise", "zstd(bytes)"}, {"tiny", "zstd(int)"}};
    bags_writer_options writing = {0};
    bags_writer *writer;
    static unsigned char large[40000], noise[200];
    (void)state;
    writing.registry = codecs;
    assert_opens(writer, bags_writer_open(at("set"), list, 3, &writing, &said));
    for (uint64_t i = 0; i < 8500; i++) {
        size_t size = i < 40 ? sizeof large : 1; /* 1 MiB of them is few */
        fill(noise, sizeof noise, i);
        memcpy(large, noise, 100);
        bags_value values[] = {bags_bytes(large, size), bags_bytes(noise, sizeof noise),
            bags_uint(i % 100)};
        bags_entry entries[] = {{"large", &values[0], 1}, {"noise", &values[1], 1},
            {"tiny", &values[2], 1}};
        assert_ok(bags_writer_append(writer, entries, 3, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("set"), "large.bag noise.bag refs.bag spec.json tiny.bag");
}

static void check_wrong(bags_code code, const char *says) {
    bags_reader *reader = open_set(at("set"), NULL);
    bags_row row = {0};
    bags_value value;
    assert_ok(bags_reader_get(reader, RECORDS - 1, NULL, 0, &row, &said));
    assert_fails(code, bags_row_value(&row, 0, 0, NULL, &value, &said));
    assert_says("set: field \"text\": datapoint 23999: ");
    assert_says(says);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_dictionary_that_is_wrong_is_refused(void **state) {
    bags_writer_options writing = {0};
    (void)state;
    write_records(at("set"), writing, 0, RECORDS);
    bytes file = load(at("set/000003/text.dict"));
    remove(at("set/000003/text.dict"));
    check_wrong(BAGS_ERROR_MISSING, "set/000003/text.dict: cannot open");
    save_text(at("set/000003/text.dict"), "of something else");
    check_wrong(BAGS_ERROR_CORRUPT, "set/000003/text.dict: not a dictionary of zstd");
    save(at("set/000003/text.dict"), file.data, 30);
    check_wrong(BAGS_ERROR_CORRUPT, "set/000003/text.dict: damaged dictionary");
    file.data[5] ^= 1;
    save(at("set/000003/text.dict"), file.data, file.size);
    check_wrong(BAGS_ERROR_CORRUPT, "needs another dictionary (id ");
    file.data[5] ^= 1;
    /* Every byte of its tables and its mark: an error, or any bytes; of the rest, and if
     * it is truncated, always an error. */
    size_t front = ZDICT_getDictHeaderSize(file.data, file.size) + 4;
    uint64_t refused = 0;
    for (size_t i = 0; i < file.size; i += i < front ? 1 : 1777)
        for (int cut = i >= front; cut >= 0; cut--) {
            bags_reader *reader = NULL;
            bags_row row = {0};
            bags_value value;
            file.data[i] ^= 0x55;
            save(at("set/000003/text.dict"), file.data, cut ? i : file.size);
            file.data[i] ^= 0x55;
            reader = open_set(at("set"), NULL);
            assert_ok(bags_reader_get(reader, RECORDS - 1, NULL, 0, &row, &said));
            bags_code code = bags_row_value(&row, 0, 0, NULL, &value, &said);
            if (i >= front) {
                assert_int_equal(code, BAGS_ERROR_CORRUPT);
                assert_says("set/000003/text.dict: damaged dictionary");
            }
            refused += code != BAGS_OK;
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    assert_true(refused > 20);
    bytes_free(&file);
}

static bool records_wrong;

static void *read_records(void *user) {
    const bags_reader *reader = (const bags_reader *)user;
    bags_row row = {0};
    bags_buffer scratch = {0};
    for (uint64_t i = 0; i < RECORDS; i += 3)
        if (!is_record(reader, i * 7919 % RECORDS, &row, &scratch))
            records_wrong = true;
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    return NULL;
}

static void threads_share_a_dictionary(void **state) {
    bags_writer_options writing = {0};
    pthread_t threads[4];
    (void)state;
    write_records(at("set"), writing, 0, RECORDS);
    bags_reader *reader = open_set(at("set"), NULL);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_records, reader), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_false(records_wrong);
    bags_reader_close(reader);
}

/* Arrays are sampled as they are compressed: transposed. */
static void arrays_and_sequences_have_dictionaries_too(void **state) {
    bags_field list[] = {
        {"pose", "zstd(array,float32,-1)[]"}, {"text", "zstd(utf8)[]"}};
    bags_writer_options writing = {0};
    bags_writer *writer;
    bags_row row = {0};
    bags_value value;
    float numbers[20];
    uint64_t shape[] = {20};
    char text[400];
    (void)state;
    writing.registry = codecs;
    assert_opens(writer, bags_writer_open(at("set"), list, 2, &writing, &said));
    for (int round = 0; round < 2; round++) {
        bags_reader *reader = round ? open_set(at("set"), NULL) : NULL;
        for (uint64_t i = 0; i < 4500; i++) {
            bags_value poses[2], texts[2];
            for (int j = 0; j < 20; j++)
                numbers[j] = (float)(i % 50) + (float)j / 4;
            size_t size = record_of(i, text);
            poses[0] = poses[1] = bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers);
            texts[0] = texts[1] = bags_utf8_sized(text, size);
            bags_entry entries[] = {{"pose", poses, 2}, {"text", texts, 2}};
            if (!round) {
                assert_ok(bags_writer_append(writer, entries, 2, &said));
                continue;
            }
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_ok(bags_row_value(&row, 0, 1, NULL, &value, &said));
            assert_int_equal(value.size, sizeof numbers);
            assert_memory_equal(value.data, numbers, sizeof numbers);
            assert_ok(bags_row_value(&row, 1, 1, NULL, &value, &said));
            assert_int_equal(value.size, size);
            assert_memory_equal(value.data, text, size);
        }
        if (!round)
            assert_ok(bags_writer_close(writer, &said));
        bags_reader_close(reader);
    }
    assert_names(at("set"), "pose.bag pose.dict refs.bag spec.json text.bag text.dict");
    bags_row_free(&row);
}

/* A frame that the caller compressed with another dictionary is refused. */
static void frames_of_another_dictionary_are_not_stored(void **state) {
    bags_writer_options writing = {0};
    bags_row row = {0};
    bags_view blob;
    (void)state;
    write_records(at("set"), writing, 0, RECORDS);
    bags_reader *reader = open_set(at("set"), NULL);
    assert_ok(bags_reader_get_blob(reader, RECORDS - 1, 0, 0, &row, &blob, &said));
    bags_field field = {"text", "zstd(utf8)"};
    bags_writer *writer;
    writing.registry = codecs;
    bags_value value = bags_blob(blob.data, blob.size);
    bags_entry entry = {"text", &value, 1};
    assert_opens(writer, bags_writer_open(at("to"), &field, 1, &writing, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &entry, 1, &said));
    assert_says("to: field \"text\": datapoint 0: zstd frame that needs a dictionary");
    assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said));
    /* With the same one it is. */
    bytes file = load(at("set/000000/text.dict"));
    options.dictionary = view(file.data, file.size);
    assert_opens(writer, bags_writer_open(at("same"), &field, 1, &writing, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_file(at("same/text.dict"), file.data, file.size);
    bytes_free(&file);
    bags_row_free(&row);
    bags_reader_close(reader);
}

#ifdef BAGS_WITH_MSGPACK
static void msgpack_survives(void **state) {
    static const char packed[] = "\x82\xA1k\xA5value\xA1m\x93\1\2\3";
    bags_buffer scratch[4] = {{0}, {0}, {0}, {0}};
    bags_value value, again;
    bags_view blob, json;
    (void)state;
    assert_ok(bags_decode(codecs, "msgpack", view(packed, sizeof packed - 1),
        &scratch[0], &value, &said));
    assert_ok(bags_encode(codecs, "zstd(msgpack)", &value, &scratch[1], &blob, &said));
    assert_ok(bags_decode(codecs, "zstd(msgpack)", blob, &scratch[2], &again, &said));
    assert_ok(bags_msgpack_print(
        (const struct msgpack_object *)again.object, &scratch[3], &json, &said));
    assert_text(json, "{\"k\": \"value\", \"m\": [1, 2, 3]}");
    for (size_t i = 0; i < 4; i++)
        bags_buffer_free(&scratch[i]);
}
#endif

/* ------------------------------------------------ values that are blobs of TYPE */

static void values_may_be_the_blobs_of_the_type(void **state) {
    static const unsigned char pair[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
    static const char *const types[] = {"zstd(utf8)", "zstd(nonsense)", "zstd(int,4)",
        "zstd(array,float32,2)", "zstd(npy)[]", "zstd(jpeg,90)"};
    bags_buffer scratch = {0}, decoded = {0};
    bags_value value = bags_bytes(pair, sizeof pair), text = bags_utf8("text"), out;
    bags_view blob;
    (void)state;
    options.blobs = true;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check_survives(types[i], value);
    assert_fails(BAGS_ERROR_VALUE,
        bags_encode(codecs, "zstd(utf8)", &text, &scratch, &blob, &said));
    value.size = 7;
    assert_fails(BAGS_ERROR_VALUE,
        bags_encode(codecs, "zstd(array,float32,2)", &value, &scratch, &blob, &said));
    assert_says("7 bytes are not a multiple");
    assert_fails(BAGS_ERROR_TYPE,
        bags_encode(codecs, "zstd(array,float31)", &value, &scratch, &blob, &said));
    assert_says("float31");
    assert_fails(BAGS_ERROR_TYPE,
        bags_encode(codecs, "zstd(zstd,utf8)", &value, &scratch, &blob, &said));
    /* What one mode has written, the other reads. */
    value.size = sizeof pair;
    assert_ok(
        bags_encode(codecs, "zstd(array,float32,2)", &value, &scratch, &blob, &said));
    options.blobs = false;
    assert_ok(
        bags_decode(codecs, "zstd(array,float32,2)", blob, &decoded, &out, &said));
    assert_int_equal(out.dtype, BAGS_DTYPE_FLOAT32);
    assert_true(((const float *)out.data)[1] == 2.0f);
    assert_ok(
        bags_encode(codecs, "zstd(array,float32,2)", &out, &scratch, &blob, &said));
    options.blobs = true;
    check_decodes("zstd(array,float32,2)", blob, &value);
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded);
}

/* A copy has a dictionary of its own. */
static void a_copy_compresses_with_another_dictionary(void **state) {
    bags_derive_options how = {0};
    bags_writer_options writing = {0};
    bags_row row = {0};
    bags_buffer scratch = {0};
    bags_reader *reader;
    uint64_t rows[RECORDS];
    (void)state;
    write_records(at("set"), writing, 0, RECORDS);
    for (uint64_t i = 0; i < RECORDS; i++)
        rows[i] = RECORDS - 1 - i;
    writing.shard_length = SHARD;
    writing.checksum = true;
    how.copy = &writing;
    how.rows = rows;
    how.rows_count = RECORDS;
    how.no_sync = true;
    assert_fails(BAGS_ERROR_TYPE, bags_derive(at("set"), at("out"), &how, NULL, &said));
    assert_says("no codec");
    how.registry = codecs;
    assert_fails(BAGS_ERROR_TYPE, bags_derive(at("set"), at("out"), &how, NULL, &said));
    assert_says("field \"text\": its blobs need dictionaries;*`blobs`");
    assert_false(exists(at("out")));
    assert_false(exists(at("out.derived")));
    options.blobs = true;
    assert_ok(bags_derive(at("set"), at("out"), &how, NULL, &said));
    assert_true(
        number_of(at("set/000000/text.dict")) != number_of(at("out/000002/text.dict")));
    options.blobs = false;
    remove_tree(at("set"));
    assert_opens(reader, open_set(at("out"), NULL));
    for (uint64_t i = 0; i < RECORDS; i++) {
        char text[400];
        bags_value value;
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_ok(bags_row_value(&row, 0, 0, &scratch, &value, &said));
        assert_int_equal(value.size, record_of(rows[i], text));
        assert_memory_equal(value.data, text, value.size);
    }
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
}

static bags_code decode_bytes(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)user;
    (void)scratch;
    (void)err;
    *value = bags_bytes(item->blob.data, item->blob.size);
    return BAGS_OK;
}

/* Whether the frame needs a dictionary or not. */
static void a_callback_of_the_loader_gets_the_blob_inside(void **state) {
    bags_writer_options writing = {0};
    bags_loader_options loading = {0};
    bags_load_field field = {0};
    const bags_batch *batch;
    char text[400];
    (void)state;
    field.name = "text";
    field.decode = decode_bytes;
    loading.fields = &field;
    loading.field_count = 1;
    loading.batch = RECORDS;
    loading.order.in_order = true;
    for (int plain = 0; plain < 2; plain++)
        for (int blobs = 0; blobs < 2; blobs++) {
            options.no_dictionary = plain != 0;
            options.blobs = false;
            write_records(at("set%d", plain), writing, 0, RECORDS);
            options.blobs = blobs != 0;
            const bags_reader *reader = open_set(at("set%d", plain), NULL);
            bags_loader *loader;
            assert_opens(loader, bags_loader_open(&reader, 1, &loading, &said));
            assert_ok(bags_loader_next(loader, &batch, &said));
            for (uint64_t i = 0; i < RECORDS; i++) {
                size_t size = record_of(i, text);
                assert_bytes(
                    bags_tensor_get(batch, batch->tensors, i, NULL, NULL), text, size);
            }
            bags_loader_close(loader);
            bags_reader_close((bags_reader *)(uintptr_t)reader);
            remove_tree(at("set%d", plain));
        }
    /* A value that is not the blob. */
    bags_field number = {"text", "zstd(int)"};
    bags_value value = bags_int(5);
    bags_entry entry = {"text", &value, 1};
    bags_writer *writer;
    options.blobs = options.no_dictionary = false;
    writing.registry = codecs;
    assert_opens(writer, bags_writer_open(at("set"), &number, 1, &writing, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    const bags_reader *reader = open_set(at("set"), NULL);
    bags_loader *loader;
    assert_opens(loader, bags_loader_open(&reader, 1, &loading, &said));
    assert_fails(BAGS_ERROR_TYPE, bags_loader_next(loader, &batch, &said));
    assert_says("set: field \"text\": datapoint 0: needs the blob inside zstd");
    bags_loader_close(loader);
    bags_reader_close((bags_reader *)(uintptr_t)reader);
}

#ifdef BAGS_WITH_MSGPACK
/* A message has no tensor; what the loader passes on must be readable alone. */
static void the_loader_passes_on_no_frame_that_needs_a_dictionary(void **state) {
    bags_writer_options writing = {0};
    bags_loader_options loading = {0};
    bags_field field = {"m", "zstd(msgpack)"};
    const bags_batch *batch;
    bags_writer *writer;
    (void)state;
    write_records(at("set"), writing, 0, RECORDS);
    bytes file = load(at("set/000000/text.dict"));
    options.dictionary = view(file.data, file.size);
    options.blobs = true;
    writing.registry = codecs;
    assert_opens(writer, bags_writer_open(at("messages"), &field, 1, &writing, &said));
    for (int i = 0; i < 9; i++) {
        unsigned char text[] = {0xa4, 't', 'e', 'x', (unsigned char)('0' + i)};
        bags_value value = bags_bytes(text, sizeof text);
        bags_entry entry = {"m", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    loading.batch = 3;
    loading.order.in_order = true;
    for (int blobs = 0; blobs < 2; blobs++) {
        options.blobs = blobs != 0;
        const bags_reader *reader = open_set(at("messages"), NULL);
        bags_loader *loader;
        assert_opens(loader, bags_loader_open(&reader, 1, &loading, &said));
        bags_code code = bags_loader_next(loader, &batch, &said);
        assert_int_equal(code, blobs ? BAGS_OK : BAGS_ERROR_TYPE);
        if (blobs)
            assert_memory_equal(batch->tensors[0].values[2].data, "\xa4tex2", 5);
        else
            assert_says(
                "messages: field \"m\": datapoint 0: needs the blob inside zstd");
        bags_loader_close(loader);
        bags_reader_close((bags_reader *)(uintptr_t)reader);
    }
    bytes_free(&file);
}
#endif

#define CASE(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(values_of_every_type_survive),
        CASE(an_array_is_transposed_by_its_elements),
        CASE(frames_of_other_programs_are_read),
        CASE(what_is_not_one_frame_is_refused),
        CASE(sizes_that_are_not_true_are_refused),
        CASE(every_changed_byte_is_survived),
        CASE(types_that_cannot_be_compressed_are_refused),
        CASE(the_registry_has_the_types_inside),
        CASE(a_codec_inside_may_grow_the_scratch),
        CASE(out_of_memory_is_an_error),
        CASE(reading_allocates_nothing_once_scratch_has_grown),
        CASE(threads_share_a_reader),
        CASE(blobs_are_read_without_the_codec),
        CASE(the_loader_stacks_what_is_compressed),
        CASE(a_callback_of_the_loader_gets_the_blob_inside),
        CASE(small_records_are_compressed_with_a_dictionary),
        CASE(small_shards_have_dictionaries_that_pay),
        CASE(values_larger_than_a_buffer_have_one),
        CASE(writing_allocates_nothing_once_the_dictionary_is_made),
        CASE(a_dictionary_may_be_given),
        CASE(values_without_much_in_common_get_none),
        CASE(a_dictionary_that_is_wrong_is_refused),
        CASE(threads_share_a_dictionary),
        CASE(arrays_and_sequences_have_dictionaries_too),
        CASE(frames_of_another_dictionary_are_not_stored),
        CASE(values_may_be_the_blobs_of_the_type),
        CASE(a_copy_compresses_with_another_dictionary),
#ifdef BAGS_WITH_MSGPACK
        CASE(the_loader_passes_on_no_frame_that_needs_a_dictionary),
        CASE(msgpack_survives),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
