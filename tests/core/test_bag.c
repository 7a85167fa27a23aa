/* One file: Bags of all variants, read and written in every way. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>
#if !defined(_WIN32)
#include <sys/stat.h>
#endif

/* ---- modes of reading ---- */

enum mode { MAPPED, NO_MMAP, CACHED_INDEX, CANNOT_MAP, HAS_NO_MAP, MODES };

/* A reader of a file in one of the modes, with memory and files counted. */
static bag_reader *try_mode(const char *path, enum mode mode, bool allow_empty) {
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    disk.io.map = NULL;
    if (mode != HAS_NO_MAP) {
        watch complete;
        watch_start(&complete, bags_io_local());
        disk.io.map = complete.io.map;
    }
    disk.only = 1u << HOOK_MAP;
    disk.fail_at = mode == CANNOT_MAP ? 1 : 0;
    disk.stays = true;
    disk.fail_with = ENODEV;
    options.no_mmap = mode == NO_MMAP || mode == CACHED_INDEX;
    options.cache_index = mode == CACHED_INDEX;
    options.allow_empty_file = allow_empty;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    poison();
    return bag_reader_open(path, &options, &said);
}

static bag_reader *open_mode(const char *path, enum mode mode) {
    bag_reader *reader = try_mode(path, mode, false);
    if (!reader)
        fail_msg("mode %d of %s: %s", (int)mode, path, said.message);
    return reader;
}

/* The reader must have these blobs. */
static void check_reader(const bag_reader *reader, const hand_bag *bag) {
    uint64_t length = hand_length(bag);
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    assert_true(bag_reader_length(reader) == length);
    uint64_t start = 0;
    for (uint64_t i = 0; i < length; i++) {
        uint64_t end = load_u64(bag->ends.data + 8 * i);
        bags_view blob;
        assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
        assert_bytes(blob, bag->blobs.data + start, (size_t)(end - start));
        start = end;
    }
    bag_blobs range;
    assert_ok(bag_reader_get_range(reader, 0, UINT64_MAX, &scratch, &range, &said));
    assert_true(range.length == length);
    assert_true(range.size == bag->blobs.size);
    if (range.size)
        assert_memory_equal(range.data, bag->blobs.data, range.size);
    start = 0;
    for (size_t i = 0; i < range.length; i++) {
        uint64_t end = load_u64(bag->ends.data + 8 * i);
        bags_view blob = bag_blobs_get(&range, i);
        assert_bytes(blob, bag->blobs.data + start, (size_t)(end - start));
        start = end;
    }
    bags_buffer_free(&scratch);
}

/* Write the file by hand and read it in every way. */
static void check_variant(const hand_bag *bag, enum variant variant) {
    bytes file = hand_bytes(bag, variant);
    make_dir(at("%d", (int)variant));
    hand_save(bag, variant, at("%d", (int)variant), "x");
    uint64_t size = file.size + (variant == SPLIT ? bag->ends.size : 0);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("%d/x.bag", (int)variant), (enum mode)mode);
        check_reader(reader, bag);
        assert_true(bag_reader_size(reader) == size);
        bag_reader_close(reader);
    }
    assert_ok(verify_path(at("%d/x.bag", (int)variant), NULL, &said));
    for (size_t offset = 0; variant != SPLIT && offset < 8; offset += 3) {
        unsigned char *block = (unsigned char *)malloc(file.size + offset);
        memcpy(block + offset, file.data, file.size);
        bag_reader_options options;
        memset(&options, 0, sizeof options);
        options.env.allocator = &memory.allocator;
        bag_reader *reader;
        assert_opens(
            reader, bag_reader_open_memory(block + offset, file.size, &options, &said));
        check_reader(reader, bag);
        assert_true(bag_reader_size(reader) == size);
        bag_reader_close(reader);
        assert_opens(
            reader, bag_reader_open_memory(block + offset, file.size, NULL, &said));
        check_reader(reader, bag);
        bag_reader_close(reader);
        free(block);
    }
    bytes_free(&file);
    remove_tree(at("%d", (int)variant));
}

static void check_variants(hand_bag *bag, bool has_empty) {
    check_variant(bag, V1);
    /* An empty v2 Bag has no bytes: that is tested elsewhere. */
    if (!has_empty && hand_length(bag))
        check_variant(bag, V2);
    check_variant(bag, SPLIT);
    hand_free(bag);
}

static void add_text(hand_bag *bag, const char *text) {
    hand_add(bag, text, strlen(text));
}

static void an_empty_bag_is_read(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    check_variants(&bag, false);
}

static void one_blob_is_read(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_text(&bag, "hello");
    check_variants(&bag, false);
    add_text(&bag, "a");
    check_variants(&bag, false);
}

static void empty_blobs_are_read(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_text(&bag, "");
    check_variants(&bag, true);
    for (int i = 0; i < 17; i++)
        add_text(&bag, "");
    check_variants(&bag, true);
    for (int i = 0; i < 40; i++)
        add_text(&bag, i % 3 ? "" : "abc");
    check_variants(&bag, true);
}

static void blobs_of_0_to_300_bytes_are_read(void **state) {
    unsigned char data[300];
    (void)state;
    for (size_t first = 0; first < 2; first++) {
        hand_bag bag = {{0}, {0}};
        for (size_t size = first; size <= 300; size++) {
            fill(data, size, size);
            hand_add(&bag, data, size);
        }
        check_variants(&bag, first == 0);
    }
}

static void large_blobs_are_read(void **state) {
    size_t size = 5000001;
    unsigned char *data = (unsigned char *)malloc(size);
    hand_bag bag = {{0}, {0}};
    (void)state;
    fill(data, size, 3);
    hand_add(&bag, data, size);
    add_text(&bag, "small");
    hand_add(&bag, data + 1, 3000000);
    free(data);
    check_variants(&bag, false);
}

static void blobs_that_look_like_tables_are_read(void **state) {
    unsigned char zeros[64] = {0};
    bytes looks = {NULL, 0, 0};
    (void)state;
    for (uint64_t i = 0; i < 6; i++)
        put_u64(&looks, i * 8);
    hand_bag bag = {{0}, {0}};
    hand_add(&bag, zeros, 8);
    hand_add(&bag, looks.data, looks.size);
    hand_add(&bag, zeros, 64);
    hand_add(&bag, looks.data, looks.size);
    hand_add(&bag, zeros, 16);
    check_variants(&bag, false);
    hand_add(&bag, zeros, 8);
    check_variants(&bag, false);
    bytes_free(&looks);
}

static void many_blobs_are_read(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (uint64_t i = 0; i < 40000; i++)
        hand_add(&bag, &i, 1 + i % 7);
    check_variants(&bag, false);
}

/* ---- ranges ---- */

static void ranges_are_clamped_and_checked(void **state) {
    static const uint64_t edges[] = {0, 1, 2, 6, 7, 8, 9, 100, UINT64_MAX / 8,
        UINT64_MAX / 8 + 1, UINT64_MAX - 1, UINT64_MAX};
    static const char *const texts[] = {"a", "", "ccc", "dd", "", "ffffff", "g"};
    const size_t count = sizeof edges / sizeof edges[0];
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (size_t i = 0; i < 7; i++)
        add_text(&bag, texts[i]);
    hand_save(&bag, V1, at("."), "x");
    hand_free(&bag);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < count; j++) {
                uint64_t start = edges[i], stop = edges[j];
                bag_blobs range, before;
                memset(&range, 0xee, sizeof range);
                before = range;
                if (start > stop) {
                    assert_fails(BAGS_ERROR_RANGE, bag_reader_get_range(reader, start,
                                                       stop, &scratch, &range, &said));
                    assert_memory_equal(&range, &before, sizeof range);
                    continue;
                }
                assert_ok(
                    bag_reader_get_range(reader, start, stop, &scratch, &range, &said));
                uint64_t end = stop < 7 ? stop : 7;
                uint64_t length = start < end ? end - start : 0;
                assert_true(range.length == length);
                size_t size = 0;
                for (size_t k = 0; k < length; k++) {
                    bags_view blob = bag_blobs_get(&range, k);
                    assert_text(blob, texts[start + k]);
                    if (blob.size)
                        assert_ptr_equal(blob.data, range.data + size);
                    size += blob.size;
                }
                assert_int_equal(range.size, size);
                assert_int_equal(bag_blobs_get(&range, (size_t)length).size, 0);
                assert_int_equal(bag_blobs_get(&range, SIZE_MAX).size, 0);
            }
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
}

static void reading_past_the_end_is_a_range_error(void **state) {
    static const uint64_t rows[] = {3, 4, 1000, UINT64_MAX, UINT64_MAX - 1,
        UINT64_MAX / 8, UINT64_MAX / 8 + 1, (uint64_t)1 << 61, ((uint64_t)1 << 61) + 1,
        (uint64_t)1 << 63, (uint64_t)1 << 32};
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 3; i++)
        add_text(&bag, "abcdefgh");
    for (int variant = V1; variant <= SPLIT; variant++) {
        make_dir(at("%d", variant));
        hand_save(&bag, (enum variant)variant, at("%d", variant), "x");
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader *reader = open_mode(at("%d/x.bag", variant), (enum mode)mode);
            bags_buffer scratch = {NULL, 0, NULL, NULL};
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                static const unsigned char other[1] = {0};
                bags_view blob = {other, 77};
                assert_fails(BAGS_ERROR_RANGE,
                    bag_reader_get(reader, rows[i], &scratch, &blob, &said));
                assert_says("x.bag");
                assert_says(i == 0 ? "3" : "");
                assert_true(blob.data == NULL && blob.size == 0);
                assert_int_equal(bag_reader_get(reader, rows[i], &scratch, &blob, NULL),
                    BAGS_ERROR_RANGE);
            }
            bags_buffer_free(&scratch);
            bag_reader_close(reader);
        }
    }
    hand_free(&bag);
}

/* ---- empty and short ---- */

static void a_file_of_0_bytes_is_a_bag_only_if_it_is_allowed(void **state) {
    bag_reader_options options;
    bag_reader *reader;
    (void)state;
    memset(&options, 0, sizeof options);
    save(at("x.bag"), "", 0);
    for (int mode = 0; mode < MODES; mode++) {
        assert_refused(
            BAGS_ERROR_CORRUPT, try_mode(at("x.bag"), (enum mode)mode, false));
        assert_says("x.bag");
        reader = try_mode(at("x.bag"), (enum mode)mode, true);
        assert_non_null(reader);
        hand_bag nothing = {{0}, {0}};
        check_reader(reader, &nothing);
        assert_true(bag_reader_size(reader) == 0);
        bag_reader_close(reader);
    }
    assert_refused(BAGS_ERROR_CORRUPT, bag_reader_open_memory("", 0, NULL, &said));
    assert_refused(
        BAGS_ERROR_CORRUPT, bag_reader_open_memory(NULL, 0, &options, &said));
    options.allow_empty_file = true;
    assert_opens(reader, bag_reader_open_memory(NULL, 0, &options, &said));
    assert_true(bag_reader_length(reader) == 0);
    bag_reader_close(reader);
}

static void skipping_unfinished_data_does_not_apply_to_a_bag(void **state) {
    bag_reader_options options;
    (void)state;
    memset(&options, 0, sizeof options);
    save(at("x.bag"), "\0\0\0\0\0\0\0\0", 8);
    options.unfinished = BAGS_UNFINISHED_SKIP;
    assert_refused(BAGS_ERROR_ARGUMENT, bag_reader_open(at("x.bag"), &options, &said));
    assert_says("x.bag");
}

static void a_file_of_1_to_7_bytes_is_an_error(void **state) {
    static const char rows[] = "\0\0\0\0\0\0\0";
    (void)state;
    for (size_t size = 1; size < 8; size++) {
        save(at("x.bag"), rows, size);
        for (int mode = 0; mode < MODES; mode++) {
            assert_refused(
                BAGS_ERROR_CORRUPT, try_mode(at("x.bag"), (enum mode)mode, false));
            assert_says("x.bag");
            assert_refused(
                BAGS_ERROR_CORRUPT, try_mode(at("x.bag"), (enum mode)mode, true));
        }
        char *block = (char *)malloc(size);
        memset(block, 0, size);
        assert_refused(
            BAGS_ERROR_CORRUPT, bag_reader_open_memory(block, size, NULL, &said));
        free(block);
    }
}

static void only_regular_files_are_bags(void **state) {
    (void)state;
    make_dir(at("directory"));
    make_dir(at("directory.bag"));
    save_text(at("file"), "abcdefgh");
    assert_refused(BAGS_ERROR_MISSING, bag_reader_open(at("missing.bag"), NULL, &said));
    assert_says("missing.bag");
    assert_refused(
        BAGS_ERROR_MISSING, bag_reader_open(at("missing/x.bag"), NULL, &said));
    assert_refused(BAGS_ERROR_MISSING, bag_reader_open(at("file/x.bag"), NULL, &said));
    assert_null(bag_reader_open(at("directory"), NULL, &said));
    assert_null(bag_reader_open(at("directory.bag"), NULL, &said));
    assert_null(bag_reader_open(at("directory.bag/"), NULL, &said));
    assert_null(bag_reader_open("", NULL, &said));
    assert_null(bag_reader_open(at("missing.bag"), NULL, NULL));
    for (int mode = 0; mode < MODES; mode++)
        assert_null(try_mode(at("directory.bag"), (enum mode)mode, true));
    char *path = (char *)malloc(100001);
    memset(path, 'p', 100000);
    path[100000] = 0;
    poison();
    assert_null(bag_reader_open(path, NULL, &said));
    assert_int_equal(said.system, ENAMETOOLONG);
    assert_null(bag_writer_open(path, NULL, &said));
    free(path);
    bag_reader_close(NULL);
}

/* ---- damaged tables ---- */

/* What the format says about a file: the reader is compared with this. */
typedef struct model {
    bool valid;
    uint64_t start; /* of the table */
    uint64_t count; /* of blobs */
    bytes table;    /* starts, and the end of the last */
} model;

static model model_of(const unsigned char *data, size_t size) {
    model m;
    memset(&m, 0, sizeof m);
    if (size < 8)
        return m;
    m.start = load_u64(data + size - 8);
    if (m.start > size - 8 || (size - m.start) % 8 != 0)
        return m;
    /* An end past all blobs: no table, whose first entry is checked with its last. */
    m.valid = load_u64(data + m.start) <= m.start;
    if (load_u64(data + m.start) != 0)
        put_u64(&m.table, 0);
    put(&m.table, data + m.start, size - (size_t)m.start);
    m.count = m.table.size / 8 - 1;
    return m;
}

static bool model_blob(const model *m, uint64_t i, uint64_t *start, uint64_t *end) {
    *start = load_u64(m->table.data + 8 * i);
    *end = load_u64(m->table.data + 8 * i + 8);
    return *start <= *end && *end <= m->start;
}

/* The first invalid blob of start .. stop; stop if there is none. */
static uint64_t model_wrong(const model *m, uint64_t start, uint64_t stop) {
    uint64_t a, b;
    while (start < stop && model_blob(m, start, &a, &b))
        start++;
    return start;
}

static void expect_corrupt(uint64_t blob, const char *name) {
    char number[32];
    assert_says(name);
    snprintf(number, sizeof number, "blob %d", (int)blob);
    assert_says(number);
}

static void check_model(const bag_reader *reader, const model *m,
    const unsigned char *data, const char *name) {
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    uint64_t a, b;
    assert_true(bag_reader_length(reader) == m->count);
    for (uint64_t i = 0; i < m->count; i++) {
        bags_view blob = {NULL, 77};
        if (model_blob(m, i, &a, &b)) {
            assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
            assert_bytes(blob, data + a, (size_t)(b - a));
        } else {
            assert_fails(
                BAGS_ERROR_CORRUPT, bag_reader_get(reader, i, &scratch, &blob, &said));
            expect_corrupt(i, name);
            assert_true(blob.data == NULL && blob.size == 0);
        }
    }
    for (uint64_t i = 0; i < m->count; i++)
        for (uint64_t j = i + 1; j <= m->count; j += 1 + i % 3) {
            bag_blobs range;
            uint64_t wrong = model_wrong(m, i, j);
            if (wrong == j) {
                assert_ok(bag_reader_get_range(reader, i, j, &scratch, &range, &said));
                assert_true(range.length == j - i);
                model_blob(m, j - 1, &a, &b);
                assert_bytes(bag_blobs_get(&range, (size_t)(j - 1 - i)), data + a,
                    (size_t)(b - a));
            } else {
                assert_fails(BAGS_ERROR_CORRUPT,
                    bag_reader_get_range(reader, i, j, &scratch, &range, &said));
                expect_corrupt(wrong, name);
            }
        }
    bags_buffer_free(&scratch);
}

static void check_against_model(
    const unsigned char *data, size_t size, bool all_modes) {
    model m = model_of(data, size);
    bag_reader *reader;
    save(at("x.bag"), data, size);
    for (int mode = 0; mode < (all_modes ? MODES : CACHED_INDEX + 1); mode++) {
        reader = try_mode(at("x.bag"), (enum mode)mode, false);
        assert_true((reader != NULL) == m.valid);
        if (!reader)
            assert_int_equal(said.code, BAGS_ERROR_CORRUPT);
        else
            check_model(reader, &m, data, "x.bag");
        bag_reader_close(reader);
    }
    uint64_t wrong = model_wrong(&m, 0, m.count);
    if (m.valid && wrong == m.count) {
        assert_ok(bags_verify(at("x.bag"), NULL, NULL, &said));
    } else {
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x.bag"), NULL, NULL, &said));
        if (m.valid)
            expect_corrupt(wrong, "x.bag");
    }
    unsigned char *block = (unsigned char *)malloc(size ? size : 1);
    memcpy(block, data, size);
    poison();
    reader = bag_reader_open_memory(block, size, NULL, &said);
    assert_true((reader != NULL) == m.valid);
    if (reader)
        check_model(reader, &m, data, "");
    bag_reader_close(reader);
    free(block);
    bytes_free(&m.table);
}

/* Five blobs and their table, in which one entry is replaced. */
static void damaged_tables_are_found_and_name_the_blob(void **state) {
    static const char *const texts[] = {"aa", "bbb", "", "ddddd", "eeeeee"};
    static const uint64_t values[] = {0, 1, 2, 3, 5, 9, 15, 16, 17, 18, 24, 32, 64, 100,
        0x7fffffff, 0x80000000, 0xffffffff, (uint64_t)1 << 32, (uint64_t)1 << 61,
        (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};
    (void)state;
    for (int variant = V1; variant <= V2; variant++) {
        hand_bag bag = {{0}, {0}};
        for (int i = 0; i < 5; i++)
            add_text(&bag, texts[i]);
        bytes file = hand_bytes(&bag, (enum variant)variant);
        for (size_t entry = 8; entry <= file.size - bag.blobs.size; entry += 8)
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
                unsigned char *place = file.data + file.size - entry;
                unsigned char before[8];
                memcpy(before, place, 8);
                for (int k = 0; k < 8; k++)
                    place[k] = (unsigned char)(values[i] >> (8 * k));
                check_against_model(file.data, file.size, i % 4 == 0);
                memcpy(place, before, 8);
            }
        bytes_free(&file);
        hand_free(&bag);
    }
}

static void truncated_files_are_refused(void **state) {
    static const char *const texts[] = {"aa", "bbb", "cccc", "ddddd", "eeeeee"};
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 5; i++)
        add_text(&bag, texts[i]);
    bytes file = hand_bytes(&bag, V1);
    for (size_t size = 1; size < file.size; size++)
        check_against_model(file.data, size, true);
    put_text(&file, "\n");
    check_against_model(file.data, file.size, true);
    file.size--;
    put_u64(&file, 0);
    check_against_model(file.data, file.size, true);
    bytes_free(&file);
    hand_free(&bag);
}

/* As do programs and archives: 8 zeros are the offset of the file's first byte. */
static void a_file_that_only_ends_in_zeros_is_not_a_bag(void **state) {
    unsigned char file[96];
    (void)state;
    memset(file, 'x', sizeof file);
    memset(file + sizeof file - 16, 0, 16);
    for (size_t size = sizeof file - 8; size <= sizeof file; size++) {
        save(at("x.bag"), file, size);
        for (int mode = 0; mode < MODES; mode++)
            assert_null(try_mode(at("x.bag"), (enum mode)mode, false));
        assert_int_equal(said.code, BAGS_ERROR_CORRUPT);
        assert_says("not a Bag, truncated, or never closed");
        assert_null(bag_reader_open_memory(file, size, NULL, &said));
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x.bag"), NULL, NULL, &said));
    }
}

static void random_files_are_read_as_the_format_says(void **state) {
    uint64_t random = 42;
    (void)state;
    for (int round = 0; round < 1500; round++) {
        hand_bag bag = {{0}, {0}};
        uint64_t count = next_random(&random) % 6;
        for (uint64_t i = 0; i < count; i++)
            hand_add(&bag, "abcdefghijklmnopqrstuvwxyz",
                (size_t)(next_random(&random) % 20));
        bytes file = hand_bytes(&bag, next_random(&random) % 2 ? V1 : V2);
        uint64_t changes = next_random(&random) % 4;
        for (uint64_t i = 0; i < changes && file.size; i++) {
            size_t place = (size_t)(next_random(&random) % file.size);
            if (next_random(&random) % 3 && file.size > bag.blobs.size)
                place = bag.blobs.size +
                        (size_t)(next_random(&random) % (file.size - bag.blobs.size)) /
                            8 * 8;
            file.data[place < file.size ? place : file.size - 1] =
                (unsigned char)(next_random(&random) % 40);
        }
        if (file.size)
            check_against_model(file.data, file.size, round % 8 == 0);
        bytes_free(&file);
        hand_free(&bag);
    }
}

/* ---- split ---- */

static bags_code read_all(const char *path, enum mode mode, uint64_t *length) {
    bag_reader *reader = try_mode(path, mode, false);
    if (!reader)
        return said.code;
    bags_code code = BAGS_OK;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    *length = bag_reader_length(reader);
    for (uint64_t i = 0; !code && i < *length; i++) {
        bags_view blob;
        code = bag_reader_get(reader, i, &scratch, &blob, &said);
    }
    bags_code verified = verify_path(path, NULL, NULL);
    assert_true((code == BAGS_OK) == (verified == BAGS_OK));
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return code;
}

static void a_torn_last_entry_of_an_idx_is_ignored(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_text(&bag, "aa");
    add_text(&bag, "bbb");
    for (size_t torn = 1; torn < 8; torn++) {
        hand_save(&bag, SPLIT, at("."), "x");
        bytes idx = load(at("x.idx"));
        for (size_t i = 0; i < torn; i++)
            put_u8(&idx, 0xff);
        save(at("x.idx"), idx.data, idx.size);
        bytes_free(&idx);
        /* The same for the bytes of a blob whose entry is not written yet. */
        save_text(at("x.bag"), "aabbbcccc");
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
            check_reader(reader, &bag);
            bag_reader_close(reader);
        }
    }
    save(at("x.idx"), "\x01\0\0", 3);
    for (int mode = 0; mode < MODES; mode++) {
        uint64_t length = 99;
        assert_int_equal(read_all(at("x.bag"), (enum mode)mode, &length), 0);
        assert_true(length == 0);
    }
    hand_free(&bag);
}

static void an_invalid_idx_is_an_error(void **state) {
    static const uint64_t rows[][3] = {{2, 5, 10}, {2, 1, 9}, {5, 2, 9},
        {2, 5, UINT64_MAX}, {UINT64_MAX, UINT64_MAX, UINT64_MAX}, {10, 9, 9},
        {2, (uint64_t)1 << 63, 9}, {0, 12, 9}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bytes idx = {NULL, 0, 0};
        for (int k = 0; k < 3; k++)
            put_u64(&idx, rows[i][k]);
        save(at("x.idx"), idx.data, idx.size);
        save_text(at("x.bag"), "aabbbcccc");
        bytes_free(&idx);
        for (int mode = 0; mode < MODES; mode++) {
            uint64_t length;
            poison();
            assert_int_equal(
                read_all(at("x.bag"), (enum mode)mode, &length), BAGS_ERROR_CORRUPT);
            assert_says("x.");
        }
    }
}

static void a_bag_next_to_an_idx_is_v1_if_its_table_agrees_with_it(void **state) {
    hand_bag bag = {{0}, {0}}, fewer = {{0}, {0}};
    (void)state;
    add_text(&bag, "12345678");
    add_text(&bag, "");
    add_text(&bag, "abc");
    hand_save(&bag, SPLIT, at("."), "x"); /* to get its .idx */
    bytes idx = load(at("x.idx"));
    hand_save(&bag, V1, at("."), "x");
    uint64_t size = file_size(at("x.bag"));
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        check_reader(reader, &bag);
        assert_true(bag_reader_size(reader) == size);
        bag_reader_close(reader);
    }
    /* One entry less: which of the two is correct is unknown. */
    add_text(&fewer, "12345678");
    save(at("x.idx"), idx.data, 8);
    for (int mode = 0; mode < MODES; mode++) {
        assert_refused(
            BAGS_ERROR_CORRUPT, try_mode(at("x.bag"), (enum mode)mode, false));
        assert_says("x.bag*3 blobs*11 bytes*1 blobs*8 bytes");
    }
    /* A power failure erased the table, whose length is correct; the .idx has
     * it. */
    hand_save(&bag, V1, at("."), "x");
    bytes torn = load(at("x.bag"));
    memset(torn.data + torn.size - 32, 0, 32);
    save(at("x.bag"), torn.data, torn.size);
    save(at("x.idx"), idx.data, idx.size);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        check_reader(reader, &bag);
        bag_reader_close(reader);
    }
    bytes_free(&torn);
    /* The last blob is itself a v1 Bag; its table begins elsewhere: split. */
    bytes inner = hand_bytes(&fewer, V1);
    hand_bag outer = {{0}, {0}};
    add_text(&outer, "first");
    hand_add(&outer, inner.data, inner.size);
    hand_save(&outer, SPLIT, at("."), "x");
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        check_reader(reader, &outer);
        bag_reader_close(reader);
    }
    bytes_free(&inner);
    bytes_free(&idx);
    hand_free(&outer);
    hand_free(&bag);
    hand_free(&fewer);
}

static void an_empty_v1_bag_next_to_an_empty_idx_is_empty(void **state) {
    (void)state;
    save(at("x.bag"), "\0\0\0\0\0\0\0\0", 8);
    save(at("x.idx"), "", 0);
    for (int mode = 0; mode < MODES; mode++) {
        uint64_t length = 99;
        assert_int_equal(read_all(at("x.bag"), (enum mode)mode, &length), 0);
        assert_true(length == 0);
    }
}

static void an_idx_without_a_bag_is_not_a_bag(void **state) {
    (void)state;
    save(at("x.idx"), "", 0);
    assert_refused(BAGS_ERROR_MISSING, bag_reader_open(at("x.bag"), NULL, &said));
}

/* ---- system calls ---- */

static void a_mapped_bag_is_read_without_system_calls_or_allocations(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 100; i++)
        add_text(&bag, "abc");
    hand_save(&bag, V1, at("."), "x");
    bag_reader *reader = open_mode(at("x.bag"), MAPPED);
    assert_int_equal(disk.maps, 1);
    uint64_t reads = disk.counts[HOOK_READ], calls = memory.calls;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view first, second;
    assert_ok(bag_reader_get(reader, 0, &scratch, &first, &said));
    check_reader(reader, &bag);
    assert_int_equal(disk.counts[HOOK_READ], reads);
    assert_int_equal(memory.calls, calls);
    assert_null(scratch.data);
    /* Views point into one map: they stay valid while other blobs are read. */
    assert_ok(bag_reader_get(reader, 1, &scratch, &second, &said));
    assert_ptr_equal(second.data, first.data + 3);
    bag_reader_close(reader);
    hand_free(&bag);
}

static void a_read_without_mmap_is_two_calls_or_one_with_the_index_cached(
    void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 1000; i++)
        add_text(&bag, "abcdefghij");
    hand_save(&bag, V1, at("."), "x");
    for (int cached = 0; cached < 2; cached++) {
        bag_reader *reader = open_mode(at("x.bag"), cached ? CACHED_INDEX : NO_MMAP);
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        bags_view blob;
        bag_blobs range;
        uint64_t each = cached ? 1 : 2;
        if (!cached)
            assert_true(memory.peak < 4096); /* the table is not in memory */
        uint64_t reads = disk.counts[HOOK_READ];
        for (uint64_t i = 0; i < 10; i++)
            assert_ok(bag_reader_get(reader, i * 99, &scratch, &blob, &said));
        assert_int_equal(disk.counts[HOOK_READ] - reads, 10 * each);
        reads = disk.counts[HOOK_READ];
        assert_ok(bag_reader_get_range(reader, 100, 900, &scratch, &range, &said));
        assert_int_equal(range.length, 800);
        assert_int_equal(disk.counts[HOOK_READ] - reads, each);
        assert_int_equal(disk.counts[HOOK_MAP], 0);
        assert_int_equal(disk.files, 1);
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
    hand_free(&bag);
}

static void short_reads_are_continued(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 30; i++)
        add_text(&bag, "abcdefghijklmnopqrstuvwxyz");
    for (int variant = V1; variant <= SPLIT; variant++) {
        make_dir(at("%d", variant));
        hand_save(&bag, (enum variant)variant, at("%d", variant), "x");
        for (size_t chunk = 1; chunk < 12; chunk += 5)
            for (int mode = NO_MMAP; mode < MODES; mode++) {
                disk.chunk = chunk;
                bag_reader *reader =
                    open_mode(at("%d/x.bag", variant), (enum mode)mode);
                check_reader(reader, &bag);
                bag_reader_close(reader);
            }
    }
    hand_free(&bag);
}

/* A file that becomes shorter while it is read without mmap. */
static void a_file_that_shrinks_is_an_error(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    for (int i = 0; i < 30; i++)
        add_text(&bag, "abcdefghijklmnopqrstuvwxyz");
    for (int mode = NO_MMAP; mode < MODES; mode++) {
        hand_save(&bag, V1, at("."), "x");
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        bags_view blob = {NULL, 77};
        resize_file(at("x.bag"), 10);
        bags_code code = bag_reader_get(reader, 20, &scratch, &blob, &said);
        assert_true(code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_IO);
        assert_says("x.bag");
        assert_int_equal(blob.size, 0);
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
    hand_free(&bag);
}

static void a_read_error_carries_its_errno(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_text(&bag, "abc");
    hand_save(&bag, V1, at("."), "x");
    bag_reader *reader = open_mode(at("x.bag"), NO_MMAP);
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    bag_blobs range;
    disk.only = 1u << HOOK_READ;
    disk.fail_at = disk.calls + 1;
    disk.fail_with = EIO;
    assert_fails(BAGS_ERROR_IO, bag_reader_get(reader, 0, &scratch, &blob, &said));
    assert_int_equal(said.system, EIO);
    assert_says("x.bag");
    assert_fails(
        BAGS_ERROR_IO, bag_reader_get_range(reader, 0, 1, &scratch, &range, &said));
    disk.fail_at = 0;
    check_reader(reader, &bag);
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    hand_free(&bag);
}

static void a_blob_of_5_gib_is_found_and_needs_memory(void **state) {
    (void)state;
    if (SIZE_MAX <= 0xffffffffu)
        skip();
    uint64_t huge = (uint64_t)5 << 30;
    save(at("x.bag"), "", 0);
    resize_file(at("x.bag"), huge);
    FILE *file = fopen(at("x.bag"), "ab");
    bytes tail = {NULL, 0, 0};
    put_text(&tail, "tail");
    put_u64(&tail, 0);
    put_u64(&tail, huge);
    put_u64(&tail, huge + 4);
    assert_int_equal(fwrite(tail.data, 1, tail.size, file), tail.size);
    fclose(file);
    bytes_free(&tail);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        bags_view blob;
        bag_blobs range;
        scratch.resize = memory.allocator.resize;
        scratch.user = memory.allocator.user;
        memory.limit = 1 << 20;
        assert_true(bag_reader_length(reader) == 2);
        assert_ok(bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_text(blob, "tail");
        if (mode == MAPPED) {
            assert_ok(bag_reader_get(reader, 0, &scratch, &blob, &said));
            assert_true(blob.size == huge);
            assert_ok(bag_reader_get_range(reader, 0, 2, &scratch, &range, &said));
            assert_text(bag_blobs_get(&range, 1), "tail");
        } else {
            assert_fails(
                BAGS_ERROR_MEMORY, bag_reader_get(reader, 0, &scratch, &blob, &said));
            assert_fails(BAGS_ERROR_MEMORY,
                bag_reader_get_range(reader, 0, 2, &scratch, &range, &said));
            assert_ok(bag_reader_get_range(reader, 1, 2, &scratch, &range, &said));
        }
        bags_env env = {&memory.allocator, NULL};
        assert_ok(verify_path(at("x.bag"), &env, &said));
        memory.limit = 0;
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
}

/* ---- writing ---- */

static bag_writer *open_writer(const char *path, size_t buffer_size) {
    bag_writer_options options;
    bag_writer *writer;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.buffer_size = buffer_size;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(writer, bag_writer_open(path, &options, &said));
    return writer;
}

/* Write blobs of these sizes; the file must be what the format requires. */
static void check_written(const size_t *sizes, size_t count, size_t buffer_size) {
    size_t most = 0;
    for (size_t i = 0; i < count; i++)
        most = sizes[i] > most ? sizes[i] : most;
    unsigned char *data = (unsigned char *)malloc(most + 1);
    hand_bag bag = {{0}, {0}};
    bag_writer *writer = open_writer(at("x.bag"), buffer_size);
    for (size_t i = 0; i < count; i++) {
        uint64_t index = 99;
        fill(data, sizes[i], i);
        hand_add(&bag, data, sizes[i]);
        assert_ok(bag_writer_append(writer, data, sizes[i], &index, &said));
        assert_true(index == i);
        memset(data, 0xee, sizes[i]); /* the blob was copied */
        assert_true(bag_writer_length(writer) == i + 1);
        assert_true(bag_writer_size(writer) == bag.blobs.size + 8 * (i + 2));
    }
    assert_ok(bag_writer_close(writer, &said));
    bytes file = hand_bytes(&bag, V1);
    assert_file(at("x.bag"), file.data, file.size);
    assert_names(at("."), "x.bag");
    remove_tree(at("x.bag"));
    bytes_free(&file);
    hand_free(&bag);
    free(data);
}

static void an_empty_bag_is_8_zero_bytes(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 0);
    assert_true(bag_writer_length(writer) == 0);
    assert_true(bag_writer_size(writer) == 8);
    assert_ok(bag_writer_close(writer, &said));
    assert_file(at("x.bag"), "\0\0\0\0\0\0\0\0", 8);
    assert_names(at("."), "x.bag");
}

static void blobs_of_every_size_are_written(void **state) {
    size_t sizes[301];
    (void)state;
    for (size_t i = 0; i <= 300; i++)
        sizes[i] = i;
    check_written(sizes, 301, 0);
    check_written(sizes, 301, 4096);
    check_written(sizes, 301, 1);
    memset(sizes, 0, sizeof sizes);
    check_written(sizes, 301, 0);
    check_written(sizes, 1, 0);
}

static void blobs_around_multiples_of_the_buffer_are_written(void **state) {
    static const long offsets[] = {-9, -8, -7, -1, 0, 1, 7, 8, 9};
    (void)state;
    for (size_t buffer = 4096; buffer <= 8192; buffer *= 2)
        for (size_t times = 1; times <= 3; times++)
            for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
                size_t edge = (size_t)((long)(buffer * times) + offsets[i]);
                size_t rows[][4] = {{edge, 3, 0, edge}, {5, edge, 0, 1},
                    {edge, edge, edge, 0}, {0, edge, buffer, buffer}};
                for (size_t k = 0; k < 4; k++)
                    check_written(rows[k], 4, buffer);
            }
}

static void blobs_above_the_default_buffer_are_written(void **state) {
    static const size_t buffer = 2 << 20;
    size_t rows[][3] = {{buffer - 1, 2, 7}, {buffer, 1, buffer}, {buffer + 1, 0, 1},
        {3 * buffer + 5, 9, 0}, {1, 2 * buffer, 1}};
    (void)state;
    for (size_t i = 0; i < 5; i++)
        check_written(rows[i], 3, 0);
}

static void the_journal_may_exceed_its_buffer(void **state) {
    size_t *sizes = (size_t *)calloc(20000, sizeof *sizes);
    (void)state;
    for (size_t i = 0; i < 20000; i++)
        sizes[i] = i % 3;
    for (size_t count = 510; count <= 515; count++)
        check_written(sizes, count, 4096);
    check_written(sizes, 1024, 4096);
    check_written(sizes, 1025, 4096);
    check_written(sizes, 20000, 4096);
    check_written(sizes, 20000, 0);
    free(sizes);
}

static void memory_does_not_grow_with_the_bag(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 4096);
    uint64_t used = memory.used, calls = memory.calls;
    assert_true(used < 20000);
    for (int i = 0; i < 100000; i++)
        assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_int_equal(memory.calls, calls);
    assert_int_equal(memory.used, used);
    assert_ok(bag_writer_close(writer, &said));
    assert_true(memory.peak < 200000);
    assert_true(file_size(at("x.bag")) == 1600008);
}

static void creating_a_bag_that_exists_is_an_error(void **state) {
    (void)state;
    save_text(at("x.bag"), "precious");
    assert_refused(BAGS_ERROR_EXISTS, bag_writer_open(at("x.bag"), NULL, &said));
    assert_says("x.bag");
    assert_names(at("."), "x.bag");
    assert_file(at("x.bag"), "precious", 8);
    make_dir(at("y.bag"));
    assert_refused(BAGS_ERROR_EXISTS, bag_writer_open(at("y.bag"), NULL, &said));
    assert_names(at("."), "x.bag y.bag");
}

static void an_existing_idx_is_kept(void **state) {
    (void)state;
    save_text(at("x.idx"), "precious");
    assert_refused(BAGS_ERROR_EXISTS, bag_writer_open(at("x.bag"), NULL, &said));
    assert_says("x.idx");
    assert_names(at("."), "x.idx");
    assert_file(at("x.idx"), "precious", 8);
}

static void a_bag_in_a_missing_directory_is_refused(void **state) {
    (void)state;
    assert_refused(
        BAGS_ERROR_MISSING, bag_writer_open(at("missing/x.bag"), NULL, &said));
    assert_names(at("."), "");
    assert_null(bag_writer_open("", NULL, &said));
}

static void two_writers_cannot_share_a_bag(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 0);
    assert_refused(BAGS_ERROR_EXISTS, bag_writer_open(at("x.bag"), NULL, &said));
    assert_ok(bag_writer_append(writer, "a", 1, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    assert_file(at("x.bag"), "a\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", 17);
}

static void names_of_any_form_are_written_and_read(void **state) {
    static const char *const names[] = {"x", "x.bag", "x.bag.bag", "a.b.c", ".bag",
        "x.", "bag", "\xc3\xa9.bag", "a b.bag", "x.BAG", "x.idx"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ON_WINDOWS && strcmp(names[i], "x.") == 0)
            continue; /* ":" has another meaning there */
        make_dir(at("%d", (int)i));
        bag_writer *writer =
            bag_writer_open(at("%d/%s", (int)i, names[i]), NULL, &said);
        if (!writer && strcmp(names[i], "x.idx") == 0) {
            assert_names(at("%d", (int)i), "");
            continue;
        }
        assert_non_null(writer);
        assert_ok(bag_writer_append(writer, "abc", 3, NULL, &said));
        assert_ok(bag_writer_close(writer, &said));
        assert_names(at("%d", (int)i), names[i]);
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader *reader =
                open_mode(at("%d/%s", (int)i, names[i]), (enum mode)mode);
            assert_true(bag_reader_length(reader) == 1);
            assert_true(bag_reader_size(reader) == 19);
            bag_reader_close(reader);
        }
    }
}

static void the_idx_is_kept_on_request(void **state) {
    bag_writer_options options;
    bag_writer *writer;
    hand_bag bag = {{0}, {0}};
    (void)state;
    memset(&options, 0, sizeof options);
    options.keep_idx = true;
    assert_opens(writer, bag_writer_open(at("x.bag"), &options, &said));
    for (int i = 0; i < 50; i++) {
        hand_add(&bag, "abcdefg", (size_t)(i % 7));
        assert_ok(bag_writer_append(writer, "abcdefg", (size_t)(i % 7), NULL, &said));
    }
    assert_ok(bag_writer_close(writer, &said));
    assert_names(at("."), "x.bag x.idx");
    assert_file(at("x.idx"), bag.ends.data, bag.ends.size);
    bytes file = hand_bytes(&bag, V1);
    assert_file(at("x.bag"), file.data, file.size);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
        check_reader(reader, &bag);
        bag_reader_close(reader);
    }
    bytes_free(&file);
    hand_free(&bag);
}

static void flushed_blobs_can_be_read_before_close(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 4096);
    assert_ok(bag_writer_flush(writer, &said));
    for (size_t i = 0; i < 600; i++) {
        unsigned char data[100];
        fill(data, sizeof data, i);
        hand_add(&bag, data, i % 100);
        assert_ok(bag_writer_append(writer, data, i % 100, NULL, &said));
        if (i % 97 != 0)
            continue;
        assert_ok(bag_writer_flush(writer, &said));
        assert_file(at("x.bag"), bag.blobs.data, bag.blobs.size);
        assert_file(at("x.idx"), bag.ends.data, bag.ends.size);
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader *reader = open_mode(at("x.bag"), (enum mode)mode);
            check_reader(reader, &bag);
            bag_reader_close(reader);
        }
    }
    assert_ok(bag_writer_flush(writer, &said));
    assert_ok(bag_writer_flush(writer, &said));
    assert_ok(bag_writer_close(writer, &said));
    bytes file = hand_bytes(&bag, V1);
    assert_file(at("x.bag"), file.data, file.size);
    assert_names(at("."), "x.bag");
    bytes_free(&file);
    hand_free(&bag);
}

/* The journal never lists a blob that is not in the file yet. */
static void the_journal_never_lists_blobs_that_are_not_written(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 4096);
    for (size_t i = 0; i < 3000; i++) {
        assert_ok(bag_writer_append(
            writer, "abcdefghijklmnopqrstuvwxyz", i % 26, NULL, &said));
        if (i % 10)
            continue;
        bytes idx = load(at("x.idx"));
        uint64_t complete = idx.size / 8;
        if (complete)
            assert_true(
                load_u64(idx.data + 8 * (complete - 1)) <= file_size(at("x.bag")));
        bytes_free(&idx);
    }
    bag_writer_abort(writer);
}

static void abort_removes_what_was_written(void **state) {
    (void)state;
    save_text(at("other.bag"), "other");
    bag_writer *writer = open_writer(at("x.bag"), 4096);
    for (int i = 0; i < 2000; i++)
        assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_ok(bag_writer_flush(writer, &said));
    bag_writer_abort(writer);
    assert_names(at("."), "other.bag");
    bag_writer_abort(open_writer(at("x.bag"), 0));
    assert_names(at("."), "other.bag");
    bag_writer_abort(NULL);
    assert_ok(bag_writer_close(NULL, &said));
    assert_int_equal(bag_writer_close(NULL, NULL), BAGS_OK);
}

static void a_system_failure_is_final(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 4096);
    for (int i = 0; i < 100; i++)
        assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_ok(bag_writer_flush(writer, &said));
    disk.only = 1u << HOOK_WRITE;
    disk.fail_at = disk.calls + 1;
    disk.fail_with = ENOSPC;
    bags_code code = BAGS_OK;
    for (int i = 0; i < 5000 && !code; i++) {
        poison();
        code = bag_writer_append(writer, "abcdefgh", 8, NULL, &said);
    }
    assert_int_equal(code, BAGS_ERROR_IO);
    assert_int_equal(said.system, ENOSPC);
    assert_says("x.");
    uint64_t index = 99;
    assert_fails(BAGS_ERROR_IO, bag_writer_append(writer, "a", 1, &index, &said));
    assert_int_equal(said.system, ENOSPC);
    assert_true(index == 99);
    assert_fails(BAGS_ERROR_IO, bag_writer_flush(writer, &said));
    assert_fails(BAGS_ERROR_IO, bag_writer_close(writer, &said));
    assert_int_equal(said.system, ENOSPC);
    /* Flushed data stays next to its journal. */
    assert_names(at("."), "x.bag x.idx");
    bag_reader *reader = open_mode(at("x.bag"), MAPPED);
    assert_true(bag_reader_length(reader) >= 100);
    bag_reader_close(reader);
    assert_ok(verify_path(at("x.bag"), NULL, &said));
}

static void close_returns_that_a_blob_was_refused_unless_it_is_cleared(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        bag_writer *writer = open_writer(at("%d.bag", how), 4096);
        bags_error *err = how == 1 ? NULL : &said;
        assert_ok(bag_writer_append(writer, "one", 3, NULL, &said));
        assert_int_equal(
            bag_writer_append(writer, NULL, 2, NULL, err), BAGS_ERROR_ARGUMENT);
        assert_ok(bag_writer_flush(writer, &said));
        assert_ok(bag_writer_append(writer, NULL, 0, NULL, &said));
        if (how == 2)
            bag_writer_clear(writer);
        assert_fails(
            how == 2 ? BAGS_OK : BAGS_ERROR_ARGUMENT, bag_writer_close(writer, &said));
        if (how < 2)
            assert_says(".bag: blob 1: the data is NULL (2 bytes)");
        bag_reader *reader;
        assert_opens(reader, bag_reader_open(at("%d.bag", how), NULL, &said));
        assert_int_equal(bag_reader_length(reader), 2);
        bag_reader_close(reader);
    }
}

static void short_writes_are_continued(void **state) {
    static const size_t sizes[] = {0, 1, 5000, 3, 10000};
    (void)state;
    for (size_t chunk = 1; chunk < 5000; chunk = chunk * 3 + 1) {
        disk.chunk = chunk;
        check_written(sizes, 5, 4096);
    }
}

static void a_bag_is_synced_unless_no_sync_is_set(void **state) {
    (void)state;
    bag_writer_options options;
    bag_writer *writer;
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    for (int round = 0; round < 3; round++) {
        uint64_t syncs = disk.counts[HOOK_SYNC];
        options.no_sync = round == 1;
        options.keep_idx = round == 2; /* and it is synced */
        assert_opens(writer, bag_writer_open(at("%d.bag", round), &options, &said));
        assert_ok(bag_writer_append(writer, "a", 1, NULL, &said));
        assert_ok(bag_writer_close(writer, &said));
        syncs = disk.counts[HOOK_SYNC] - syncs;
        assert_true(round == 1 ? syncs == 0 : syncs >= (round ? 2 : 1));
    }
}

/* The parts whose writing to the disk was started: contiguous. */
static struct {
    size_t count;
    uint64_t end;
} sent;

static int count_sent(void *user, void *file, uint64_t offset, uint64_t size) {
    (void)user, (void)file;
    assert_true(offset == sent.end && size >= (uint64_t)1 << 20);
    sent.end += size;
    sent.count++;
    return EIO; /* which sync reports if it matters */
}

static void a_large_file_starts_to_reach_the_disk_before_its_sync(void **state) {
    size_t size = 1000000;
    char *blob = (char *)calloc(1, size);
    (void)state;
    assert_non_null(blob);
    for (int round = 0; round < 2; round++) {
        bag_writer_options options;
        bag_writer *writer;
        memset(&options, 0, sizeof options);
        memset(&sent, 0, sizeof sent);
        bags_io io = disk.io;
        io.write_back = count_sent;
        options.env.io = &io;
        options.no_sync = round == 1;
        make_dir(at("%d", round));
        assert_opens(writer, bag_writer_open(at("%d/x.bag", round), &options, &said));
        for (int i = 0; i < 50; i++)
            assert_ok(bag_writer_append(writer, blob, size, NULL, &said));
        assert_ok(bag_writer_close(writer, &said));
        if (round == 0)
            assert_true(sent.count >= 2 && sent.end <= 50 * size + 8 * 51 &&
                        sent.end > 25 * size);
        else
            assert_true(sent.count == 0);
    }
    assert_same_tree(at("0"), at("1"));
    free(blob);
}

static void buffers_too_large_for_the_address_space_are_refused(void **state) {
    static const size_t rows[] = {
        SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 2, SIZE_MAX - 1};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bag_writer_options options;
        memset(&options, 0, sizeof options);
        options.buffer_size = rows[i];
        options.env.allocator = &memory.allocator;
        poison();
        assert_null(bag_writer_open(at("x.bag"), &options, &said));
        assert_true(said.code == BAGS_ERROR_MEMORY || said.code == BAGS_ERROR_LIMIT ||
                    said.code == BAGS_ERROR_ARGUMENT);
        assert_names(at("."), "");
    }
}

/* Disk space reserved for a large file is neither visible nor kept. */
static void reserved_disk_space_is_returned(void **state) {
    (void)state;
    size_t size = (size_t)3 << 20;
    unsigned char *blob = (unsigned char *)calloc(1, size);
    for (int fails = 0; fails < 2; fails++) {
        bag_writer_options options;
        memset(&options, 0, sizeof options);
        options.env.allocator = &memory.allocator;
        options.env.io = &disk.io;
        disk.only = 1u << HOOK_RESERVE;
        disk.fail_at = fails ? 1 : 0;
        disk.stays = true;
        disk.fail_with = EOPNOTSUPP;
        uint64_t before = disk.counts[HOOK_RESERVE];
        bag_writer *writer = NULL;
        assert_opens(writer, bag_writer_open(at("%d.bag", fails), &options, &said));
        for (int i = 0; i < 3; i++)
            assert_ok(bag_writer_append(writer, blob, size, NULL, &said));
        assert_ok(bag_writer_flush(writer, &said));
        assert_true(disk.counts[HOOK_RESERVE] > before);
        assert_true(file_size(at("%d.bag", fails)) == 3 * size);
        assert_ok(bag_writer_close(writer, &said));
        assert_true(file_size(at("%d.bag", fails)) == 3 * size + 8 * 4);
#if !defined(_WIN32)
        struct stat info;
        assert_int_equal(stat(at("%d.bag", fails), &info), 0);
        assert_true((uint64_t)info.st_blocks * 512 <= 3 * size + ((size_t)64 << 10));
#endif
    }
    free(blob);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(reserved_disk_space_is_returned),
        TEST(an_empty_bag_is_read),
        TEST(one_blob_is_read),
        TEST(empty_blobs_are_read),
        TEST(blobs_of_0_to_300_bytes_are_read),
        TEST(large_blobs_are_read),
        TEST(blobs_that_look_like_tables_are_read),
        TEST(many_blobs_are_read),
        TEST(ranges_are_clamped_and_checked),
        TEST(reading_past_the_end_is_a_range_error),
        TEST(a_file_of_0_bytes_is_a_bag_only_if_it_is_allowed),
        TEST(skipping_unfinished_data_does_not_apply_to_a_bag),
        TEST(a_file_of_1_to_7_bytes_is_an_error),
        TEST(only_regular_files_are_bags),
        TEST(damaged_tables_are_found_and_name_the_blob),
        TEST(truncated_files_are_refused),
        TEST(a_file_that_only_ends_in_zeros_is_not_a_bag),
        TEST(random_files_are_read_as_the_format_says),
        TEST(a_torn_last_entry_of_an_idx_is_ignored),
        TEST(an_invalid_idx_is_an_error),
        TEST(a_bag_next_to_an_idx_is_v1_if_its_table_agrees_with_it),
        TEST(an_empty_v1_bag_next_to_an_empty_idx_is_empty),
        TEST(an_idx_without_a_bag_is_not_a_bag),
        TEST(a_mapped_bag_is_read_without_system_calls_or_allocations),
        TEST(a_read_without_mmap_is_two_calls_or_one_with_the_index_cached),
        TEST(short_reads_are_continued),
        TEST(a_file_that_shrinks_is_an_error),
        TEST(a_read_error_carries_its_errno),
        TEST(a_blob_of_5_gib_is_found_and_needs_memory),
        TEST(an_empty_bag_is_8_zero_bytes),
        TEST(blobs_of_every_size_are_written),
        TEST(blobs_around_multiples_of_the_buffer_are_written),
        TEST(blobs_above_the_default_buffer_are_written),
        TEST(the_journal_may_exceed_its_buffer),
        TEST(memory_does_not_grow_with_the_bag),
        TEST(creating_a_bag_that_exists_is_an_error),
        TEST(an_existing_idx_is_kept),
        TEST(a_bag_in_a_missing_directory_is_refused),
        TEST(two_writers_cannot_share_a_bag),
        TEST(names_of_any_form_are_written_and_read),
        TEST(the_idx_is_kept_on_request),
        TEST(flushed_blobs_can_be_read_before_close),
        TEST(the_journal_never_lists_blobs_that_are_not_written),
        TEST(abort_removes_what_was_written),
        TEST(a_system_failure_is_final),
        TEST(close_returns_that_a_blob_was_refused_unless_it_is_cleared),
        TEST(short_writes_are_continued),
        TEST(a_bag_is_synced_unless_no_sync_is_set),
        TEST(a_large_file_starts_to_reach_the_disk_before_its_sync),
        TEST(buffers_too_large_for_the_address_space_are_refused),
    };
    return cmocka_run_group_tests_name("bag", tests, NULL, NULL);
}
