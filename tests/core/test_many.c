/* Many blobs at once: lists of indices, prefetch, a shard's blobs; and the access
 * options, which must not change what is read. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>

enum mode { MAPPED, RANDOM, NO_MMAP, CACHED_INDEX, ONE_FILE, ONE_MAP, MODES };

static bags_reader_options reading(int mode) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.no_read_ahead = mode == RANDOM;
    options.no_mmap = mode >= NO_MMAP && mode <= ONE_FILE;
    options.cache_index = mode == CACHED_INDEX;
    options.max_files = mode == ONE_FILE ? 1 : 0;
    disk.most_maps = mode == ONE_MAP ? 1 : 0;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_reader *open_mode(const char *path, int mode) {
    bags_reader_options options = reading(mode);
    bags_reader *reader = bags_reader_open(path, &options, &said);
    if (!reader)
        fail_msg("mode %d of %s: %s", mode, path, said.message);
    return reader;
}

enum { IMAGE, LABEL, TITLE };
#define ROWS 23
#define SHARD 9

/* The value of field f in datapoint i. A v2 Bag cannot begin with an empty
 * blob. */
static size_t blob_of(size_t field, uint64_t i, unsigned char *out) {
    if (field == LABEL) {
        fill(out, 8, i + 1);
        return 8;
    }
    size_t size = field == IMAGE ? 6000 + (size_t)i * 37 : 1 + (size_t)(i * 7 % 31);
    fill(out, size, i * 3 + field);
    return size;
}

static void check_blob(bags_view blob, size_t field, uint64_t i) {
    unsigned char expected[8000];
    assert_bytes(blob, expected, blob_of(field, i, expected));
}

/* Shards of nine datapoints. With `foreign`, each blob of the titles follows an
 * orphan, so that refs are not indices. */
static void save_rows(const char *path, enum variant variant, bool foreign) {
    unsigned char blob[8000];
    make_dir(path);
    for (uint64_t first = 0; first < ROWS; first += SHARD) {
        hand_set set;
        memset(&set, 0, sizeof set);
        set_field(&set, "image", "bytes");
        set_field(&set, "label", "bytes");
        set_field(&set, "title", "bytes");
        for (uint64_t i = first; i < first + SHARD && i < ROWS; i++) {
            if (foreign)
                hand_add(&set.bags[TITLE], "orphan", 6);
            set_begin(&set);
            for (size_t f = 0; f < 3; f++) {
                size_t size = blob_of(f, i, blob);
                set_blob(&set, f, blob, size);
            }
            set_end(&set);
        }
        char name[400];
        snprintf(name, sizeof name, "%s/%06d", path, (int)(first / SHARD));
        set_save(&set, variant, name);
        set_free(&set);
    }
}

static const uint64_t orders[][8] = {{0, 1, 2, 3, 4, 5, 6, 7},
    {22, 0, 13, 13, 9, 8, 13, 1}, {5, 5, 5, 5, 5, 5, 5, 5},
    {21, 18, 15, 12, 9, 6, 3, 0}};

static void many_datapoints_are_returned_in_the_requested_order(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        const char *path = at("%d", kind);
        save_rows(path, kind < 3 ? (enum variant)kind : V1, kind == 3);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(path, mode);
            bags_row row = {0};
            for (size_t o = 0; o < 4; o++)
                for (size_t field = 0; field < 3; field++) {
                    assert_ok(
                        bags_reader_get_many(reader, orders[o], 8, field, &row, &said));
                    assert_int_equal(bags_row_length(&row, 0), 8);
                    for (size_t i = 0; i < 8; i++)
                        check_blob(bags_row_bytes(&row, 0, i), field, orders[o][i]);
                }
            assert_ok(bags_reader_get_many(reader, NULL, 0, 0, &row, &said));
            assert_int_equal(bags_row_length(&row, 0), 0);
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void neighbours_are_read_with_one_call(void **state) {
    static const uint64_t order[] = {3, 1, 2, 4, 0};
    (void)state;
    save_rows(at("x"), V1, false);
    bags_reader *reader = open_mode(at("x"), CACHED_INDEX);
    bags_row row = {0};
    assert_ok(bags_reader_get_many(reader, order, 1, IMAGE, &row, &said));
    uint64_t before = disk.counts[HOOK_READ];
    assert_ok(bags_reader_get_many(reader, order, 5, IMAGE, &row, &said));
    assert_int_equal(disk.counts[HOOK_READ] - before, 2); /* refs and blobs */
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void invalid_lists_are_refused(void **state) {
    static const uint64_t order[] = {1, 2, ROWS};
    (void)state;
    save_rows(at("x"), V1, false);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        bag_blobs column;
        assert_fails(
            BAGS_ERROR_RANGE, bags_reader_get_many(reader, order, 3, 0, &row, &said));
        assert_says("x*datapoint*23*length 23");
        assert_fails(
            BAGS_ERROR_FIELD, bags_reader_get_many(reader, order, 2, 3, &row, &said));
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_prefetch(reader, order, 3, NULL, 0, &row, &said));
        bags_select none = bags_select_all(3);
        assert_fails(BAGS_ERROR_FIELD,
            bags_reader_prefetch(reader, order, 2, &none, 1, &row, &said));
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_blobs(reader, 3, 0, true, &row, &column, &said));
        assert_fails(BAGS_ERROR_FIELD,
            bags_reader_blobs(reader, 0, 3, true, &row, &column, &said));
        assert_int_equal(bags_row_length(&row, 0), 0);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void prefetch_requests_the_bytes_that_are_read_later(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        const char *path = at("%d", kind);
        save_rows(path, kind < 3 ? (enum variant)kind : V1, kind == 3);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(path, mode);
            bags_row row = {0};
            bags_select image = bags_select_all(IMAGE);
            for (size_t o = 0; o < 4; o++) {
                uint64_t before = disk.counts[HOOK_ADVISE];
                assert_ok(
                    bags_reader_prefetch(reader, orders[o], 8, &image, 1, &row, &said));
                assert_true(disk.counts[HOOK_ADVISE] > before);
                /* At most two reads each for refs, table and blobs. */
                assert_true(disk.counts[HOOK_ADVISE] - before <= 8 * 4 + 6);
                assert_int_equal(bags_row_length(&row, 0), 0);
                assert_ok(
                    bags_reader_prefetch(reader, orders[o], 8, NULL, 0, &row, &said));
                assert_ok(bags_reader_get(reader, orders[o][0], NULL, 0, &row, &said));
                for (size_t f = 0; f < 3; f++)
                    check_blob(bags_row_bytes(&row, f, 0), f, orders[o][0]);
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

/* It has no result: under the address sanitizer, it must touch nothing else. */
static void touching_datapoints_changes_nothing(void **state) {
    (void)state;
    static const uint64_t wild[] = {0, 1, UINT64_MAX, 1000000, 2};
    for (int kind = 0; kind < 4; kind++) {
        const char *path = at("%d", kind);
        save_rows(path, kind < 3 ? (enum variant)kind : V1, kind == 3);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(path, mode);
            bags_row row = {0};
            bags_select selects[] = {
                bags_select_all(IMAGE), bags_select_all(0), bags_select_all(99)};
            for (int again = 0; again < 2; again++) {
                bags_reader_touch(reader, wild, 5, selects, 3);
                bags_reader_touch(reader, orders[again], 8, selects, 1);
                bags_reader_touch(reader, wild, 0, NULL, 0);
                bags_reader_touch(reader, wild, 5, NULL, again ? 3 : 0);
                assert_ok(bags_reader_get(reader, orders[0][0], NULL, 0, &row, &said));
                check_blob(bags_row_bytes(&row, 0, 0), 0, orders[0][0]);
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void items_of_sequences_are_prefetched(void **state) {
    (void)state;
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "words", "utf8[]");
    for (size_t i = 0; i < 10; i++) {
        set_begin(&set);
        set_items(&set, 0, "word", i * 3);
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    static const uint64_t order[] = {9, 0, 4};
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        bags_select some[] = {bags_select_slice(0, 1, 3, 1), bags_select_all(0),
            bags_select_slice(0, 0, 20, 9), bags_select_slice(0, 50, 60, 1)};
        for (size_t i = 0; i < 4; i++)
            assert_ok(bags_reader_prefetch(reader, order, 3, &some[i], 1, &row, &said));
        bags_select back = bags_select_slice(0, 3, 1, 1);
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_prefetch(reader, order, 3, &back, 1, &row, &said));
        bag_blobs all;
        assert_fails(
            BAGS_ERROR_TYPE, bags_reader_blobs(reader, 0, 0, true, &row, &all, &said));
        assert_says("sequence");
        assert_fails(
            BAGS_ERROR_TYPE, bags_reader_blobs(reader, 0, 0, false, &row, &all, &said));
        assert_fails(BAGS_ERROR_TYPE,
            bags_reader_blobs(reader, 1, 0, false, &row, &all, &said));
        assert_fails(
            BAGS_ERROR_TYPE, bags_reader_get_many(reader, order, 3, 0, &row, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_failing_advise_hook_changes_nothing(void **state) {
    (void)state;
    save_rows(at("x"), V1, false);
    for (int mode = 0; mode < MODES; mode++) {
        disk.only = 1u << HOOK_ADVISE;
        disk.fail_at = 1;
        disk.stays = true;
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        assert_ok(bags_reader_prefetch(reader, orders[1], 8, NULL, 0, &row, &said));
        assert_ok(bags_reader_get_many(reader, orders[1], 8, IMAGE, &row, &said));
        check_blob(bags_row_bytes(&row, 0, 0), IMAGE, 22);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void blobs_of_a_shard_are_viewed_where_it_is_mapped(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        const char *path = at("%d", kind);
        save_rows(path, (enum variant)kind, false);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(path, mode);
            bags_row row = {0};
            for (uint64_t shard = 0; shard < 3; shard++)
                for (size_t field = 0; field < 3; field++) {
                    uint64_t length = shard < 2 ? SHARD : ROWS % SHARD;
                    bag_blobs all;
                    assert_ok(bags_reader_blobs(
                        reader, shard, field, true, &row, &all, &said));
                    assert_true(all.length == length || (mode > 0 && !all.length));
                    for (size_t i = 0; i < all.length; i++)
                        check_blob(bag_blobs_get(&all, i), field, shard * SHARD + i);
                }
            /* Afterwards, one field alone is still the same. */
            for (uint64_t i = 0; i < ROWS; i++) {
                bags_select label = bags_select_all(LABEL);
                assert_ok(bags_reader_get(reader, i, &label, 1, &row, &said));
                check_blob(bags_row_bytes(&row, 0, 0), LABEL, i);
                label = bags_select_slice(LABEL, 0, 1, 1);
                assert_fails(BAGS_ERROR_TYPE,
                    bags_reader_get(reader, i, &label, 1, &row, &said));
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void the_order_of_blobs_is_checked_once(void **state) {
    (void)state;
    save_rows(at("x"), V1, false);
    bags_reader *reader = open_mode(at("x"), NO_MMAP);
    uint64_t reads[2];
    bags_row row = {0};
    for (int i = 0; i < 2; i++) {
        bag_blobs c;
        reads[i] = disk.counts[HOOK_READ];
        assert_ok(bags_reader_blobs(reader, 0, IMAGE, true, &row, &c, &said));
        reads[i] = disk.counts[HOOK_READ] - reads[i];
    }
    assert_true(reads[1] < reads[0]);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void blobs_that_are_not_in_order_are_an_error(void **state) {
    (void)state;
    save_rows(at("x"), V1, true);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        bag_blobs c;
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_blobs(reader, 1, TITLE, true, &row, &c, &said));
        assert_says("x/000001/title.bag*datapoint 9*blob 1");
        assert_ok(bags_reader_blobs(reader, 1, IMAGE, true, &row, &c, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void an_empty_dataset_has_no_blobs(void **state) {
    (void)state;
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    for (int variant = V1; variant <= SPLIT; variant++) {
        set_save(&set, (enum variant)variant, at("%d", variant));
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), mode);
            bags_row row = {0};
            bag_blobs c;
            assert_ok(bags_reader_blobs(reader, 0, 0, true, &row, &c, &said));
            assert_true(c.length == 0 && c.size == 0);
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
    set_free(&set);
}

static void many_blobs_of_a_bag_are_read(void **state) {
    static const uint64_t order[] = {4, 0, 3, 3, 9};
    (void)state;
    hand_bag hand;
    unsigned char blob[8000];
    memset(&hand, 0, sizeof hand);
    for (uint64_t i = 0; i < 10; i++)
        hand_add(&hand, blob, blob_of(IMAGE, i, blob));
    for (int variant = V1; variant <= SPLIT; variant++) {
        make_dir(at("%d", variant));
        hand_save(&hand, (enum variant)variant, at("%d", variant), "x");
        for (int mode = 0; mode < CACHED_INDEX + 1; mode++) {
            bag_reader_options options;
            memset(&options, 0, sizeof options);
            options.no_read_ahead = mode == RANDOM;
            options.no_mmap = mode >= NO_MMAP;
            options.cache_index = mode == CACHED_INDEX;
            options.env.io = &disk.io;
            options.env.allocator = &memory.allocator;
            bag_reader *reader =
                bag_reader_open(at("%d/x.bag", variant), &options, &said);
            assert_non_null(reader);
            bags_buffer scratch = {0};
            bags_view out[5];
            assert_ok(bag_reader_get_many(reader, order, 5, &scratch, out, &said));
            for (size_t i = 0; i < 5; i++)
                check_blob(out[i], IMAGE, order[i]);
            for (uint64_t i = 0; i < 300; i++) {
                assert_ok(bag_reader_get(reader, i % 10, &scratch, out, &said));
                check_blob(out[0], IMAGE, i % 10);
            }
            uint64_t wrong[] = {1, 10};
            assert_fails(BAGS_ERROR_RANGE,
                bag_reader_get_many(reader, wrong, 2, &scratch, out, &said));
            bags_buffer_free(&scratch);
            bag_reader_close(reader);
        }
    }
    bytes complete = hand_bytes(&hand, V1);
    bag_reader *reader =
        bag_reader_open_memory(complete.data, complete.size, NULL, &said);
    bags_buffer scratch = {0};
    bags_view out[5];
    assert_ok(bag_reader_get_many(reader, order, 5, &scratch, out, &said));
    for (size_t i = 0; i < 5; i++)
        check_blob(out[i], IMAGE, order[i]);
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    bytes_free(&complete);
    hand_free(&hand);
}

static void invalid_tables_are_found_by_get_many_and_blobs(void **state) {
    (void)state;
    save_rows(at("x"), V1, false);
    bytes bag = load(at("x/000000/image.bag"));
    memset(bag.data + bag.size - 8 * 5 + 6, 0x7f, 1);
    save(at("x/000000/image.bag"), bag.data, bag.size);
    bytes_free(&bag);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        bag_blobs c;
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_get_many(reader, orders[0], 8, IMAGE, &row, &said));
        assert_says("image.bag");
        if (mode == 0)
            assert_fails(BAGS_ERROR_CORRUPT,
                bags_reader_blobs(reader, 0, IMAGE, true, &row, &c, &said));
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_prefetch(reader, orders[0], 8, NULL, 0, &row, &said));
        assert_ok(bags_reader_blobs(reader, 0, LABEL, true, &row, &c, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* From datapoint 65536 on, refs that are the datapoint's own index are compared, not
 * parsed: what differs is found there, too. */
static void refs_that_differ_in_a_large_shard_are_found(void **state) {
    enum { LENGTH = 66000, SIZE = 11, START = LENGTH - 3 }; /* bytes of a row */
    static const struct {
        size_t row, byte;
        unsigned char value;
        bags_code codes[2]; /* of both fields */
    } cases[] = {
        {START, 0, 0x92, {BAGS_OK, BAGS_OK}},
        {START, 5, 0x07, {BAGS_ERROR_RANGE, BAGS_OK}},
        {START, 10, 0x07, {BAGS_OK, BAGS_ERROR_RANGE}},
        {LENGTH - 1, 2, 0x01, {BAGS_ERROR_CORRUPT, BAGS_OK}},
        {START + 1, 0, 0x93, {BAGS_ERROR_CORRUPT, BAGS_ERROR_CORRUPT}},
        {START, 1, 0xCF, {BAGS_ERROR_CORRUPT, BAGS_ERROR_CORRUPT}},
    };
    static const bags_field fields[] = {{"a", "int(4)"}, {"b", "bytes"}};
    (void)state;
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(at("x"), fields, 2, &options, &said);
    assert_non_null(writer);
    for (uint64_t i = 0; i < LENGTH; i++) {
        bags_value a = bags_uint(i), b = bags_blob("bytes", i % 6);
        bags_entry entries[2] = {{"a", &a, 1}, {"b", &b, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    bytes refs = load(at("x/refs.bag"));
    size_t end = refs.size - 8 * (LENGTH + 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t place = end - SIZE * (LENGTH - cases[i].row) + cases[i].byte;
        unsigned char was = refs.data[place];
        refs.data[place] = cases[i].value;
        save(at("x/refs.bag"), refs.data, refs.size);
        refs.data[place] = was;
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("x"), mode);
            bags_row row = {0};
            bag_blobs c;
            for (size_t field = 0; field < 2; field++) {
                assert_int_equal(cases[i].codes[field],
                    bags_reader_blobs(reader, 0, field, true, &row, &c, &said));
                assert_true(cases[i].codes[field] == BAGS_OK || c.length == 0);
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
    bytes_free(&refs);
}

/* Every second of 400 blobs is all of the data, and those between end before
 * they begin. */
static void overlapping_blobs_are_not_copied_again_and_again(void **state) {
    unsigned char bag[1000 + 8 * 401];
    uint64_t order[200];
    (void)state;
    memset(bag, 0, sizeof bag);
    for (size_t i = 1; i <= 400; i++)
        if (i % 2 || i == 400)
            memcpy(bag + 1000 + 8 * i, "\350\003", 2);
    save(at("x.bag"), bag, sizeof bag);
    for (size_t i = 0; i < 200; i++)
        order[i] = 2 * i;
    for (int load = 0; load < 2; load++) {
        bag_reader_options options;
        memset(&options, 0, sizeof options);
        options.no_mmap = true;
        options.cache_index = load == 1;
        bag_reader *reader = bag_reader_open(at("x.bag"), &options, &said);
        assert_non_null(reader);
        bags_buffer scratch = {0};
        bags_view out[200];
        assert_ok(bag_reader_get_many(reader, order, 1, &scratch, out, &said));
        assert_true(out[0].size == 1000);
        assert_fails(BAGS_ERROR_CORRUPT,
            bag_reader_get_many(reader, order, 200, &scratch, out, &said));
        assert_says("x.bag: blob 2*overlap");
        assert_true(scratch.capacity < 40 * 1000);
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
}

/* One of the three calls that read many datapoints. */
static bags_code read_many(const bags_reader *reader, int what, bags_row *row) {
    bag_blobs c;
    if (what == 0)
        return bags_reader_get_many(reader, orders[1], 8, IMAGE, row, &said);
    if (what == 1)
        return bags_reader_prefetch(reader, orders[1], 8, NULL, 0, row, &said);
    return bags_reader_blobs(reader, 1, TITLE, true, row, &c, &said);
}

static void every_system_failure_is_reported(void **state) {
    (void)state;
    save_rows(at("x"), V1, false);
    for (int mode = NO_MMAP; mode < MODES; mode++)
        for (int what = 0; what < 3; what++) {
            bool failed = true;
            for (uint64_t n = 1; failed; n++) {
                bags_reader *reader = open_mode(at("x"), mode);
                bags_row row = {0};
                disk.only = 1u << HOOK_READ | 1u << HOOK_OPEN;
                disk.calls = disk.failed = 0;
                disk.stays = false;
                disk.fail_at = n;
                bags_code code = read_many(reader, what, &row);
                failed = disk.failed > 0;
                /* Prefetch is only a hint. */
                if (what != 1 || code)
                    assert_int_equal((int)code, failed ? BAGS_ERROR_IO : BAGS_OK);
                disk.fail_at = 0;
                bags_row_free(&row);
                bags_reader_close(reader);
                assert_true(n < 1000);
            }
        }
}

static void running_out_of_memory_is_reported(void **state) {
    (void)state;
    save_rows(at("x"), V1, false);
    for (int mode = 0; mode < MODES; mode++)
        for (int what = 0; what < 3; what++) {
            bool failed = true;
            for (uint64_t n = 1; failed; n++) {
                bags_reader *reader = open_mode(at("x"), mode);
                bags_row row = {0};
                memory.calls = memory.failed = 0;
                memory.fail_at = n;
                bags_code code = read_many(reader, what, &row);
                failed = memory.failed > 0;
                memory.fail_at = 0;
                assert_int_equal((int)code, failed ? BAGS_ERROR_MEMORY : BAGS_OK);
                bags_row_free(&row);
                bags_reader_close(reader);
                assert_true(n < 1000);
            }
        }
}

/* A system may map one file and not the next. */
static void a_split_bag_may_be_mapped_without_its_index(void **state) {
    static const uint64_t order[] = {4, 0, 3};
    (void)state;
    hand_bag hand;
    unsigned char blob[8000];
    memset(&hand, 0, sizeof hand);
    for (uint64_t i = 0; i < 5; i++)
        hand_add(&hand, blob, blob_of(IMAGE, i, blob));
    make_dir(at("d"));
    hand_save(&hand, SPLIT, at("d"), "x");
    for (uint64_t n = 1; n <= 2; n++) {
        bag_reader_options options;
        memset(&options, 0, sizeof options);
        options.env.io = &disk.io;
        options.env.allocator = &memory.allocator;
        disk.only = 1u << HOOK_MAP;
        disk.fail_with = ENODEV;
        disk.calls = disk.failed = 0;
        disk.fail_at = n;
        bag_reader *reader = bag_reader_open(at("d/x.bag"), &options, &said);
        assert_non_null(reader);
        assert_true(disk.failed == 1);
        bags_buffer scratch = {0};
        bags_view out[3];
        assert_ok(bag_reader_get_many(reader, order, 3, &scratch, out, &said));
        for (size_t i = 0; i < 3; i++)
            check_blob(out[i], IMAGE, order[i]);
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
    hand_free(&hand);
}

static void a_list_too_large_for_memory_is_an_error(void **state) {
    static const uint64_t order[] = {4, 0, 3};
    bag_reader *reader;
    bag_reader_options options;
    bags_buffer scratch = {0};
    bags_view out[3];
    (void)state;
    save_rows(at("x"), V1, false);
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bag_reader_open(at("x/000000/image.bag"), &options, &said));
    memory.calls = 0;
    memory.fail_at = 1;
    assert_fails(
        BAGS_ERROR_MEMORY, bag_reader_get_many(reader, order, 3, &scratch, out, &said));
    memory.fail_at = 0;
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void invalid_refs_are_found_by_get_many(void **state) {
    static const uint64_t all[] = {0, 1, 2, 3};
    (void)state;
    save_rows(at("x"), V1, false);
    bytes bag = load(at("x/000000/refs.bag"));
    bag.data[1] = 0x7f; /* the image of datapoint 0 */
    save(at("x/000000/refs.bag"), bag.data, bag.size);
    bytes_free(&bag);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), mode);
        bags_row row = {0};
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_get_many(reader, all, 4, IMAGE, &row, &said));
        assert_says("127");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_damaged_blob_among_many_leaves_the_output_alone(void **state) {
    static const uint64_t order[] = {0, 4};
    static const unsigned char before[8] = {0};
    (void)state;
    bag_writer_options writing;
    memset(&writing, 0, sizeof writing);
    writing.checksum = true;
    bag_writer *writer;
    assert_opens(writer, bag_writer_open(at("x.bag"), &writing, &said));
    for (int i = 0; i < 5; i++)
        assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    bytes bag = load(at("x.bag"));
    bag.data[33] ^= 1;
    save(at("x.bag"), bag.data, bag.size);
    bytes_free(&bag);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        bag_reader_options options;
        bags_buffer scratch = {0};
        bag_reader *reader;
        bags_view out[2] = {{before, 7}, {before, 8}};
        memset(&options, 0, sizeof options);
        options.verify_checksums = true;
        options.no_mmap = no_mmap == 1;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_fails(BAGS_ERROR_CORRUPT,
            bag_reader_get_many(reader, order, 2, &scratch, out, &said));
        assert_says("blob 4");
        assert_true(out[0].data == before && out[0].size == 7);
        assert_true(out[1].data == before && out[1].size == 8);
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
}

static void an_undecodable_value_among_many_is_named_by_its_place(void **state) {
    static const uint64_t order[] = {3, 9, 7};
    bags_value value;
    bags_row row = {0};
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "utf8");
    for (int i = 0; i < 12; i++) {
        set_begin(&set);
        set_text(&set, 0, i == 7 ? "\xff" : "a");
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    assert_ok(bags_reader_get_many(reader, order, 3, 0, &row, &said));
    assert_ok(bags_row_value(&row, 0, 1, NULL, &value, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_row_value(&row, 0, 2, NULL, &value, &said));
    assert_says("item of bags_reader_get_many 2");
    bags_row_free(&row);
    bags_reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(many_datapoints_are_returned_in_the_requested_order),
        TEST(neighbours_are_read_with_one_call),
        TEST(invalid_lists_are_refused),
        TEST(prefetch_requests_the_bytes_that_are_read_later),
        TEST(touching_datapoints_changes_nothing),
        TEST(items_of_sequences_are_prefetched),
        TEST(a_failing_advise_hook_changes_nothing),
        TEST(blobs_of_a_shard_are_viewed_where_it_is_mapped),
        TEST(the_order_of_blobs_is_checked_once),
        TEST(blobs_that_are_not_in_order_are_an_error),
        TEST(an_empty_dataset_has_no_blobs),
        TEST(many_blobs_of_a_bag_are_read),
        TEST(invalid_tables_are_found_by_get_many_and_blobs),
        TEST(refs_that_differ_in_a_large_shard_are_found),
        TEST(overlapping_blobs_are_not_copied_again_and_again),
        TEST(every_system_failure_is_reported),
        TEST(running_out_of_memory_is_reported),
        TEST(a_split_bag_may_be_mapped_without_its_index),
        TEST(a_list_too_large_for_memory_is_an_error),
        TEST(invalid_refs_are_found_by_get_many),
        TEST(a_damaged_blob_among_many_leaves_the_output_alone),
        TEST(an_undecodable_value_among_many_is_named_by_its_place),
    };
    return cmocka_run_group_tests_name("many", tests, NULL, NULL);
}
