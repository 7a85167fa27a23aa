/* Reading datasets in one directory: selections, refs, rows, values. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>

enum mode { MAPPED, NO_MMAP, CACHED_INDEX, ONE_FILE, ONE_MAP, CANNOT_MAP, MODES };

static bags_reader_options reading(enum mode mode) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.no_mmap = mode == NO_MMAP || mode == CACHED_INDEX || mode == ONE_FILE;
    options.cache_index = mode == CACHED_INDEX;
    options.max_files = mode == ONE_FILE ? 1 : 0;
    disk.most_maps = mode == ONE_MAP ? 1 : 0;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    disk.only = 1u << HOOK_MAP;
    disk.fail_at = mode == CANNOT_MAP ? 1 : 0;
    disk.stays = true;
    disk.fail_with = ENODEV;
    return options;
}

static bags_reader *open_mode(const char *path, enum mode mode) {
    bags_reader_options options = reading(mode);
    poison();
    bags_reader *reader = bags_reader_open(path, &options, &said);
    if (!reader)
        fail_msg("mode %d of %s: %s", (int)mode, path, said.message);
    return reader;
}

/* ---- a dataset with computed content ---- */

enum { INFO, PICTURES, TITLE, WORDS, FIELDS };

static const char *const names[FIELDS] = {"info", "pictures", "title", "words"};
static const bool is_sequence[FIELDS] = {false, true, false, true};

static size_t items_of(size_t field, uint64_t row) {
    if (!is_sequence[field])
        return 1;
    return (size_t)(field == WORDS ? row * 7 % 12 : row % 4);
}

static size_t item_text(size_t field, uint64_t row, size_t item, char *text) {
    int size = snprintf(text, 200, "%s %d %d", names[field], (int)row, (int)item);
    size_t more = (size_t)(row * 5 + item * 3 + field) % 120;
    memset(text + size, '.', more);
    return (size_t)size + more;
}

static void formula_set(hand_set *set, uint64_t rows, bool sequences) {
    char text[400];
    memset(set, 0, sizeof *set);
    for (size_t f = 0; f < FIELDS; f++)
        if (sequences || !is_sequence[f])
            set_field(set, names[f], is_sequence[f] ? "utf8[]" : "utf8");
    for (uint64_t row = 0; row < rows; row++) {
        size_t column = 0;
        set_begin(set);
        for (size_t f = 0; f < FIELDS; f++) {
            size_t items = items_of(f, row);
            if (is_sequence[f]) {
                if (!sequences)
                    continue;
                put_array(&set->row, items ? 2 : 0);
                if (items) {
                    put_uint(&set->row, hand_length(&set->bags[column]));
                    put_uint(&set->row, items);
                }
            } else {
                put_uint(&set->row, hand_length(&set->bags[column]));
            }
            for (size_t i = 0; i < items; i++)
                hand_add(&set->bags[column], text, item_text(f, row, i, text));
            column++;
        }
        set_end(set);
    }
}

static void save_formula(const char *path, uint64_t rows, enum variant variant) {
    hand_set set;
    formula_set(&set, rows, variant != SPLIT);
    set_save(&set, variant, path);
    set_free(&set);
}

static void check_item(const bags_row *row, size_t slot, size_t item, size_t field,
    uint64_t index, size_t which) {
    char text[400];
    size_t size = item_text(field, index, which, text);
    assert_bytes(bags_row_bytes(row, slot, item), text, size);
}

/* ---- complete rows ---- */

static void datapoints_are_read_in_every_mode_and_variant(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        save_formula(at("%d", variant), 50, (enum variant)variant);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_row row = {0};
            size_t fields = variant == SPLIT ? 2 : 4, count = 0;
            const bags_field *known = bags_reader_fields(reader, &count);
            assert_int_equal(count, fields);
            assert_true(bags_reader_length(reader) == 50);
            assert_true(shard_count(reader) == 1);
            assert_true(reader_info(reader).skipped == 0);
            assert_false(reader_info(reader).sharded);
            for (uint64_t i = 0; i < 50; i++) {
                uint64_t index = i * 37 % 50;
                assert_ok(bags_reader_get(reader, index, NULL, 0, &row, &said));
                size_t slot = 0;
                for (size_t f = 0; f < FIELDS; f++) {
                    if (variant == SPLIT && is_sequence[f])
                        continue;
                    assert_string_equal(known[slot].name, names[f]);
                    assert_int_equal(bags_row_length(&row, slot), items_of(f, index));
                    for (size_t k = 0; k < items_of(f, index); k++)
                        check_item(&row, slot, k, f, index, k);
                    bags_view blob = bags_row_bytes(&row, slot, 0);
                    if (blob.size && mode != ONE_MAP)
                        assert_int_equal(
                            bags_row_owns(&row, blob.data), mode != MAPPED);
                    slot++;
                }
                assert_int_equal(bags_row_length(&row, slot), 0);
                assert_int_equal(bags_row_bytes(&row, slot, 0).size, 0);
                assert_int_equal(bags_row_bytes(&row, 0, 1).size, 0);
                assert_int_equal(bags_row_bytes(&row, SIZE_MAX, 0).size, 0);
                assert_int_equal(bags_row_bytes(&row, 0, SIZE_MAX).size, 0);
            }
            assert_ok(bags_verify(at("%d", variant), NULL, NULL, &said));
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void fields_are_found_by_name_and_described(void **state) {
    size_t field = 99;
    (void)state;
    save_formula(at("x"), 3, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    for (size_t f = 0; f < FIELDS; f++) {
        assert_ok(bags_reader_field(reader, names[f], &field, &said));
        assert_int_equal(field, f);
        const bags_type *type = bags_reader_type(reader, f);
        assert_text(type->name, "utf8");
        assert_int_equal(type->sequence, is_sequence[f]);
        assert_int_equal(type->count, 0);
    }
    field = 99;
    assert_fails(BAGS_ERROR_FIELD, bags_reader_field(reader, "colour", &field, &said));
    assert_says("colour");
    assert_fails(BAGS_ERROR_FIELD, bags_reader_field(reader, "", &field, &said));
    assert_fails(BAGS_ERROR_FIELD, bags_reader_field(reader, "words[]", &field, &said));
    assert_fails(BAGS_ERROR_FIELD, bags_reader_field(reader, "word", &field, &said));
    assert_fails(BAGS_ERROR_FIELD, bags_reader_field(reader, "zzz", &field, &said));
    assert_int_equal(field, 99);
    assert_null(bags_reader_type(reader, FIELDS));
    assert_null(bags_reader_type(reader, SIZE_MAX));
    bags_shard shard = shard_at(reader, 0);
    assert_true(shard.number == 0 && shard.start == 0 && shard.length == 3);
    assert_false(shard.unfinished);
    bags_reader_close(reader);
    bags_reader_close(NULL);
    bags_row_free(NULL);
}

static void the_info_agrees_with_the_files(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        hand_set set;
        formula_set(&set, 30, variant != SPLIT);
        set_save(&set, (enum variant)variant, at("%d", variant));
        uint64_t expected = 0;
        for (size_t f = 0; f < set.count; f++) {
            expected += file_size(at("%d/%s.bag", variant, set.names[f]));
            if (variant == SPLIT)
                expected += file_size(at("%d/%s.idx", variant, set.names[f]));
        }
        if (variant != SPLIT)
            expected += file_size(at("%d/refs.bag", variant));
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_info info;
            bags_field_info infos[FIELDS];
            assert_ok(bags_reader_info(reader, &info, infos, &said));
            assert_true(info.size == expected);
            assert_true(info.skipped == 0 && info.checksums == 0);
            for (size_t f = 0; f < set.count; f++) {
                assert_true(infos[f].blobs == hand_length(&set.bags[f]));
                assert_true(infos[f].size == set.bags[f].blobs.size);
            }
            bags_reader_close(reader);
        }
        set_free(&set);
    }
}

/* ---- selections ---- */

static void any_fields_in_any_order_are_selected_any_number_of_times(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (unsigned code = 0; code < 625; code++) {
            bags_select selects[4];
            size_t count = 0;
            for (unsigned rest = code; rest; rest /= 5) {
                if (rest % 5 == 0)
                    continue;
                selects[count++] = bags_select_all(rest % 5 - 1);
            }
            uint64_t index = code % 20;
            assert_ok(bags_reader_get(reader, index, selects, count, &row, &said));
            for (size_t slot = 0; slot < count; slot++) {
                size_t items = items_of(selects[slot].field, index);
                assert_int_equal(bags_row_length(&row, slot), items);
                for (size_t i = 0; i < items; i++)
                    check_item(&row, slot, i, selects[slot].field, index, i);
            }
            assert_int_equal(bags_row_length(&row, count), 0);
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* What a selection of a sequence of `length` items returns; -1: an error. */
static int model_select(const bags_select *s, size_t length, size_t *items) {
    uint64_t start = s->start, stop = s->stop, step = s->step ? s->step : 1;
    int count = 0;
    if (!s->slice)
        stop = length;
    if (start > stop)
        return -1;
    while (start < stop && start < length) {
        items[count++] = (size_t)start;
        if (step > length)
            break;
        start += step;
    }
    return count;
}

static void check_select(
    const bags_reader *reader, uint64_t index, bags_select s, bags_row *row) {
    size_t items[64];
    int count = model_select(&s, items_of(s.field, index), items);
    if (count < 0) {
        assert_fails(
            BAGS_ERROR_RANGE, bags_reader_get(reader, index, &s, 1, row, &said));
        assert_int_equal(bags_row_length(row, 0), 0);
        return;
    }
    assert_ok(bags_reader_get(reader, index, &s, 1, row, &said));
    assert_int_equal(bags_row_length(row, 0), count);
    for (int i = 0; i < count; i++)
        check_item(row, 0, (size_t)i, s.field, index, items[i]);
    assert_int_equal(bags_row_bytes(row, 0, (size_t)count).size, 0);
}

static void items_of_a_sequence_are_selected_by_start_stop_and_step(void **state) {
    static const uint64_t edges[] = {
        0, 1, 2, 5, 10, 11, 12, 13, UINT64_MAX - 1, UINT64_MAX};
    static const uint64_t steps[] = {
        0, 1, 2, 3, 11, 12, (uint64_t)1 << 63, UINT64_MAX - 3, UINT64_MAX};
    (void)state;
    save_formula(at("x"), 13, V1);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (uint64_t index = 0; index < 13; index++)
            for (size_t i = 0; i < 10; i++)
                for (size_t j = 0; j < 10; j++)
                    for (size_t k = 0; k < 9; k += mode < 2 ? 1 : 4) {
                        bags_select s =
                            bags_select_slice(WORDS, edges[i], edges[j], steps[k]);
                        check_select(reader, index, s, &row);
                    }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_slice_is_applied_literally(void **state) {
    (void)state;
    save_formula(at("x"), 13, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    bags_row row = {0};
    for (uint64_t start = 0; start < 14; start++)
        for (uint64_t stop = 0; stop < 14; stop++) {
            bags_select s = bags_select_slice(WORDS, start, stop, 1);
            size_t length = items_of(WORDS, 5);
            if (start > stop) {
                assert_fails(
                    BAGS_ERROR_RANGE, bags_reader_get(reader, 5, &s, 1, &row, &said));
                assert_says("words");
                continue;
            }
            assert_ok(bags_reader_get(reader, 5, &s, 1, &row, &said));
            uint64_t end = stop < length ? stop : length;
            assert_int_equal(bags_row_length(&row, 0), start < end ? end - start : 0);
        }
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_slice_of_a_plain_field_is_an_error(void **state) {
    static const uint64_t rows[][3] = {{0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {0, 5, 2},
        {1, 0, 0}, {UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    (void)state;
    save_formula(at("x"), 13, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    bags_row row = {0};
    for (size_t i = 0; i < 6; i++) {
        bags_select s = bags_select_slice(TITLE, rows[i][0], rows[i][1], rows[i][2]);
        assert_fails(i == 4 ? BAGS_ERROR_RANGE : BAGS_ERROR_TYPE,
            bags_reader_get(reader, 0, &s, 1, &row, &said));
        assert_says("title");
    }
    bags_select s = bags_select_slice(TITLE, 0, 0, 0);
    assert_fails(BAGS_ERROR_TYPE, bags_reader_get(reader, 0, &s, 1, &row, &said));
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* A selection that is filled by hand, and half of it. */
static void start_or_stop_without_slice_is_an_argument_error(void **state) {
    static const size_t fields[] = {WORDS, TITLE};
    (void)state;
    save_formula(at("x"), 13, V1);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (size_t i = 0; i < 6; i++) {
            bags_select s = bags_select_all(fields[i / 3]);
            *(i % 3 == 0 ? &s.start : i % 3 == 1 ? &s.stop : &s.step) = 1;
            /* Also when the row was used before. */
            assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
            assert_fails(
                BAGS_ERROR_ARGUMENT, bags_reader_get(reader, 5, &s, 1, &row, &said));
            assert_says(names[fields[i / 3]]);
            assert_int_equal(bags_row_length(&row, 0), 0);
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* Enums are checked: an unknown `unfinished` is not one of those that exist. */
static void unknown_options_are_argument_errors(void **state) {
    static const int unknown[] = {-1, 3, 9, 1 << 30};
    (void)state;
    save_formula(at("x"), 13, V1);
    for (size_t i = 0; i < 4; i++) {
        bags_reader_options options;
        bag_reader_options single;
        bags_verify_options verify;
        memset(&options, 0, sizeof options);
        memset(&single, 0, sizeof single);
        memset(&verify, 0, sizeof verify);
        options.unfinished = (bags_unfinished)unknown[i];
        single.unfinished = verify.unfinished = options.unfinished;
        assert_refused(BAGS_ERROR_ARGUMENT, bags_reader_open(at("x"), &options, &said));
        assert_says("x: invalid option");
        assert_refused(
            BAGS_ERROR_ARGUMENT, bag_reader_open(at("x/refs.bag"), &single, &said));
        assert_says("x/refs.bag: invalid option");
        assert_fails(BAGS_ERROR_ARGUMENT, bags_verify(at("x"), &verify, NULL, &said));
    }
}

static void unknown_fields_are_errors(void **state) {
    static const size_t rows[] = {
        FIELDS, FIELDS + 1, 64, SIZE_MAX, SIZE_MAX / sizeof(void *) + 1};
    (void)state;
    save_formula(at("x"), 13, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    bags_row row = {0};
    for (size_t i = 0; i < 5; i++) {
        bags_select s[2];
        uint64_t count = 99;
        s[0] = bags_select_all(TITLE);
        s[1] = bags_select_all(rows[i]);
        assert_fails(BAGS_ERROR_FIELD, bags_reader_get(reader, 0, s, 2, &row, &said));
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_fails(BAGS_ERROR_FIELD,
            bags_reader_get_range(reader, 0, 1, rows[i], &row, &said));
        assert_fails(BAGS_ERROR_FIELD,
            bags_reader_items(reader, 0, rows[i], &row, &count, &said));
        assert_true(count == 99);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_datapoint_past_the_end_is_a_range_error(void **state) {
    static const uint64_t rows[] = {
        13, 14, 1000, UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 61, (uint64_t)1 << 63};
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        save_formula(at("%d", variant), 13, (enum variant)variant);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_row row = {0};
            for (size_t i = 0; i < 7; i++) {
                uint64_t count = 99;
                assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
                assert_fails(BAGS_ERROR_RANGE,
                    bags_reader_get(reader, rows[i], NULL, 0, &row, &said));
                if (i == 0)
                    assert_says("13");
                assert_int_equal(bags_row_length(&row, 0), 0);
                assert_int_equal(bags_row_bytes(&row, 0, 0).size, 0);
                assert_fails(BAGS_ERROR_RANGE,
                    bags_reader_items(reader, rows[i], 0, &row, &count, &said));
                assert_true(count == 99);
                assert_int_equal(bags_reader_get(reader, rows[i], NULL, 0, &row, NULL),
                    BAGS_ERROR_RANGE);
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void items_are_counted_without_reading_them(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        save_formula(at("%d", variant), 13, (enum variant)variant);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_row row = {0};
            for (uint64_t i = 0; i < 13; i++) {
                size_t number = 0;
                for (size_t f = 0; f < FIELDS; f++) {
                    uint64_t count = 99;
                    if (variant == SPLIT && is_sequence[f])
                        continue;
                    assert_ok(
                        bags_reader_items(reader, i, number++, &row, &count, &said));
                    assert_true(count == items_of(f, i));
                }
            }
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void check_blob(const bags_reader *reader, uint64_t index, size_t number,
    uint64_t item, size_t field, bags_row *row) {
    char text[400];
    bags_view blob;
    size_t size = item_text(field, index, item, text);
    assert_ok(bags_reader_get_blob(reader, index, number, item, row, &blob, &said));
    assert_bytes(blob, text, size);
    assert_int_equal(bags_row_length(row, 0), 0);
}

static void check_no_blob(const bags_reader *reader, uint64_t index, size_t number,
    uint64_t item, bags_code code, bags_row *row) {
    static const unsigned char other[1] = {0};
    bags_view blob = {other, 1};
    assert_fails(
        code, bags_reader_get_blob(reader, index, number, item, row, &blob, &said));
    assert_null(blob.data);
    assert_int_equal(blob.size, 0);
    assert_int_equal(bags_row_length(row, 0), 0);
    assert_int_equal(
        bags_reader_get_blob(reader, index, number, item, row, &blob, NULL), code);
}

/* Visit the layouts of refs in an order that leaves and returns to each. */
static void one_blob_is_read_in_every_mode_and_variant(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        save_formula(at("%d", variant), 150, (enum variant)variant);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_row row = {0};
            for (uint64_t i = 0; i < 150; i++) {
                uint64_t index = i * 97 % 150;
                size_t number = 0;
                for (size_t f = 0; f < FIELDS; f++) {
                    uint64_t items = items_of(f, index);
                    if (variant == SPLIT && is_sequence[f])
                        continue;
                    for (uint64_t k = 0; k < items; k++)
                        check_blob(reader, index, number, k, f, &row);
                    check_no_blob(reader, index, number, items, BAGS_ERROR_RANGE, &row);
                    check_no_blob(
                        reader, index, number++, UINT64_MAX, BAGS_ERROR_RANGE, &row);
                }
                check_no_blob(reader, index, number, 0, BAGS_ERROR_FIELD, &row);
            }
            check_no_blob(reader, 150, 0, 0, BAGS_ERROR_RANGE, &row);
            check_no_blob(reader, UINT64_MAX, 0, 0, BAGS_ERROR_RANGE, &row);
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void a_missing_item_is_named(void **state) {
    bags_row row = {0};
    bags_view blob;
    (void)state;
    save_formula(at("x"), 20, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    assert_fails(BAGS_ERROR_RANGE,
        bags_reader_get_blob(reader, 7, TITLE, 3, &row, &blob, &said));
    assert_says("x: field \"title\": datapoint 7*item*3*length 1");
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* After the order of a field's blobs was checked, its refs are not read any more; items
 * are counted anyway. */
static void one_blob_of_a_field_in_order_is_read(void **state) {
    bags_row row = {0};
    bag_blobs all;
    (void)state;
    save_formula(at("x"), 20, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    assert_ok(bags_reader_blobs(reader, 0, TITLE, true, &row, &all, &said));
    for (uint64_t i = 0; i < 20; i++)
        check_blob(reader, i, TITLE, 0, TITLE, &row);
    check_no_blob(reader, 3, TITLE, 1, BAGS_ERROR_RANGE, &row);
    check_no_blob(reader, 20, TITLE, 0, BAGS_ERROR_RANGE, &row);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void blobs_of_different_sizes_are_one_range(void **state) {
    static const char *const texts[] = {"a", "bcdefgh", "", "ijklmnop"};
    (void)state;
    for (size_t first = 0; first < 3; first++) {
        bags_row row = {0};
        bag_blobs all;
        hand_set set;
        uint64_t offset = 0;
        memset(&set, 0, sizeof set);
        set_field(&set, "t", "utf8");
        for (size_t i = first; i < 4; i++) {
            set_begin(&set);
            put_uint(&set.row, i - first);
            set_end(&set);
            hand_add(&set.bags[0], texts[i], strlen(texts[i]));
        }
        set_save(&set, V1, at("%d", (int)first));
        set_free(&set);
        bags_reader *reader = open_mode(at("%d", (int)first), MAPPED);
        assert_ok(bags_reader_blobs(reader, 0, 0, true, &row, &all, &said));
        assert_int_equal(all.length, 4 - first);
        for (size_t i = first; i < 4; i++) {
            bags_view blob = bag_blobs_get(&all, i - first);
            assert_ptr_equal(blob.data, all.data + offset);
            assert_int_equal(blob.size, strlen(texts[i]));
            assert_memory_equal(blob.data, texts[i], blob.size);
            offset += blob.size;
        }
        assert_int_equal(all.size, offset);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* A plain field and a sequence whose refs have every length that writers
 * produce: blob i of each is the number i. */
#define WIDE 70000

static void save_wide(const char *path) {
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "items", "bytes[]");
    set_field(&set, "one", "bytes");
    for (uint32_t i = 0; i < WIDE; i++) {
        size_t items = i % 1000 == 0 ? 300 : i % 3;
        set_begin(&set);
        put_array(&set.row, items ? 2 : 0);
        if (items) {
            put_uint(&set.row, hand_length(&set.bags[0]));
            put_uint(&set.row, items);
        }
        put_uint(&set.row, hand_length(&set.bags[1]));
        set_end(&set);
        for (uint32_t k = 0; k < items; k++) {
            uint32_t item[2] = {i, k};
            hand_add(&set.bags[0], item, sizeof item);
        }
        hand_add(&set.bags[1], &i, sizeof i);
    }
    set_save(&set, V1, path);
    set_free(&set);
}

static void check_wide(const bags_reader *reader, uint32_t i, bags_row *row) {
    uint32_t items = i % 1000 == 0 ? 300 : i % 3, item[2] = {i, 0};
    bags_view blob;
    assert_ok(bags_reader_get(reader, i, NULL, 0, row, &said));
    assert_int_equal(bags_row_length(row, 0), items);
    for (; item[1] < items; item[1]++)
        assert_bytes(bags_row_bytes(row, 0, item[1]), item, sizeof item);
    assert_bytes(bags_row_bytes(row, 1, 0), &i, sizeof i);
    item[1] = items - 1;
    if (items) {
        assert_ok(bags_reader_get_blob(reader, i, 0, items - 1, row, &blob, &said));
        assert_bytes(blob, item, sizeof item);
    }
    assert_ok(bags_reader_get_blob(reader, i, 1, 0, row, &blob, &said));
    assert_bytes(blob, &i, sizeof i);
}

static void refs_of_every_layout_are_read_in_any_order(void **state) {
    bags_row row = {0};
    (void)state;
    save_wide(at("x"));
    bags_reader *reader = open_mode(at("x"), MAPPED);
    for (uint32_t i = 0; i < WIDE; i++)
        check_wide(reader, i, &row);
    for (uint32_t i = 0; i < 20000; i++)
        check_wide(reader, (uint32_t)((uint64_t)i * 2654435761u % WIDE), &row);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* With this many fields, empty refs are invalid too. */
static void empty_refs_of_many_fields_are_refused(void **state) {
    (void)state;
    for (size_t fields = 63; fields < 72; fields += 4) {
        char called[HAND_FIELDS][8];
        hand_set set;
        bags_row row = {0};
        memset(&set, 0, sizeof set);
        for (size_t f = 0; f < fields; f++) {
            snprintf(called[f], sizeof called[f], "f%02d", (int)f);
            set_field(&set, called[f], "utf8");
        }
        for (int i = 0; i < 2; i++) {
            set_begin(&set);
            for (size_t f = 0; f < fields; f++)
                set_text(&set, f, "a");
            set_end(&set);
        }
        hand_add(&set.refs, "", 0);
        set_save(&set, V1, at("%d", (int)fields));
        set_free(&set);
        bags_reader *reader = open_mode(at("%d", (int)fields), MAPPED);
        for (size_t f = 0; f < fields; f++) {
            bags_select select = bags_select_all(f);
            assert_ok(bags_reader_get(reader, f % 2, &select, 1, &row, &said));
            assert_fails(BAGS_ERROR_CORRUPT,
                bags_reader_get(reader, 2, &select, 1, &row, &said));
            check_no_blob(reader, 2, f, 0, BAGS_ERROR_CORRUPT, &row);
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* Form number `form` of those that writers use for indices below 2^32. */
static void put_form(bytes *row, size_t form, unsigned number) {
    if (form % 4)
        put_tagged(row, 0xcb + (unsigned)(form % 4), number);
    else
        put_u8(row, number);
}

/* A row for `fields` fields, every third a sequence of 2, all with blob 1 as the first
 * one. */
static void put_row(bytes *row, size_t fields) {
    put_array(row, fields);
    for (size_t f = 0; f < fields; f++) {
        if (f % 3 == 2)
            put_array(row, 2);
        put_form(row, f, 1);
        if (f % 3 == 2)
            put_form(row, f / 4, 2);
    }
}

/* Of the rows of refs.bag one is complete; others lack bytes at their end, or have
 * another head. */
static void rows_of_many_fields_are_read_and_damaged_ones_refused(void **state) {
    static const size_t counts[] = {15, 16, 17, 80};
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        size_t fields = counts[c];
        char called[HAND_FIELDS][8];
        bytes row = {NULL, 0, 0};
        hand_set set;
        bags_row got = {0};
        memset(&set, 0, sizeof set);
        for (size_t f = 0; f < fields; f++) {
            snprintf(called[f], sizeof called[f], "f%02d", (int)f);
            set_field(&set, called[f], f % 3 == 2 ? "utf8[]" : "utf8");
            for (int i = 0; i < 3; i++)
                hand_add(&set.bags[f], &"abc"[i], 1);
        }
        put_row(&row, fields);
        for (size_t size = 0; size <= row.size; size++)
            hand_add(&set.refs, row.data, size);
        for (size_t i = 0; i < (fields < 16 ? 1 : 3); i++) {
            row.data[i]++;
            hand_add(&set.refs, row.data, row.size);
            row.data[i]--;
        }
        set_save(&set, V1, at("%d", (int)c));
        set_free(&set);
        bags_reader *reader = open_mode(at("%d", (int)c), MAPPED);
        for (uint64_t i = 0; i < bags_reader_length(reader); i++) {
            bags_select last = bags_select_all(fields - 1);
            bags_view blob;
            if (i != row.size) {
                assert_fails(BAGS_ERROR_CORRUPT,
                    bags_reader_get(reader, i, &last, 1, &got, &said));
                check_no_blob(reader, i, 0, 0, BAGS_ERROR_CORRUPT, &got);
                continue;
            }
            assert_ok(bags_reader_get(reader, i, NULL, 0, &got, &said));
            for (size_t f = 0; f < fields; f++) {
                assert_int_equal(bags_row_length(&got, f), f % 3 == 2 ? 2 : 1);
                assert_bytes(bags_row_bytes(&got, f, 0), "b", 1);
                if (f % 3 == 2)
                    assert_bytes(bags_row_bytes(&got, f, 1), "c", 1);
                assert_ok(
                    bags_reader_get_blob(reader, i, f, f % 3 / 2, &got, &blob, &said));
                assert_bytes(blob, f % 3 == 2 ? "c" : "b", 1);
                assert_ok(bags_reader_get(reader, i, NULL, 0, &got, &said));
            }
        }
        bags_row_free(&got);
        bags_reader_close(reader);
        bytes_free(&row);
    }
}

/* Neither a mapped read nor a row that has grown needs memory or system
 * calls. */
static void a_mapped_read_makes_no_calls(void **state) {
    (void)state;
    save_formula(at("x"), 50, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    bags_row row = {0};
    for (uint64_t i = 0; i < 50; i++)
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
    uint64_t before = 0, after = 0, calls = memory.calls;
    for (int h = 0; h < HOOKS; h++)
        before += disk.counts[h];
    for (uint64_t i = 0; i < 50; i++)
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
    for (int h = 0; h < HOOKS; h++)
        after += disk.counts[h];
    assert_int_equal(before, after);
    assert_int_equal(calls, memory.calls);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void opening_a_dataset_opens_no_field(void **state) {
    (void)state;
    save_formula(at("x"), 50, V1);
    remove_tree(at("x/words.bag"));
    save_text(at("x/title.bag"), "junk");
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        bags_select s = bags_select_all(INFO);
        assert_ok(bags_reader_get(reader, 7, &s, 1, &row, &said));
        check_item(&row, 0, 0, INFO, 7, 0);
        s.field = TITLE;
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get(reader, 7, &s, 1, &row, &said));
        assert_says("title.bag");
        s.field = WORDS;
        poison();
        bags_code code = bags_reader_get(reader, 7, &s, 1, &row, &said);
        assert_true(code == BAGS_ERROR_MISSING || code == BAGS_ERROR_CORRUPT);
        assert_says("words.bag");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_int_not_equal(bags_verify(at("x"), NULL, NULL, &said), BAGS_OK);
        s.field = PICTURES;
        assert_ok(bags_reader_get(reader, 7, &s, 1, &row, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* ---- rows ---- */

static void a_row_is_used_with_many_readers(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    save_formula(at("y"), 30, SPLIT);
    bags_row row = {0};
    for (int round = 0; round < 4; round++) {
        bags_reader *x = open_mode(at("x"), (enum mode)round);
        bags_reader *y = open_mode(at("y"), (enum mode)(MODES - 1 - round));
        for (uint64_t i = 0; i < 20; i++) {
            assert_ok(bags_reader_get(x, i, NULL, 0, &row, &said));
            check_item(&row, TITLE, 0, TITLE, i, 0);
            assert_ok(bags_reader_get(y, i, NULL, 0, &row, &said));
            check_item(&row, 1, 0, TITLE, i, 0);
            assert_int_equal(bags_row_length(&row, 2), 0);
        }
        bags_reader_close(x);
        bags_reader_close(y);
        if (round == 2)
            bags_row_free(&row);
    }
    bags_row_free(&row);
    assert_int_equal(bags_row_length(&row, 0), 0);
    bags_row_free(&row);
}

static void an_empty_row_has_no_slots(void **state) {
    bags_row row = {0};
    bags_value value;
    (void)state;
    assert_int_equal(bags_row_length(&row, 0), 0);
    assert_int_equal(bags_row_bytes(&row, 0, 0).size, 0);
    assert_fails(BAGS_ERROR_RANGE, bags_row_value(&row, 0, 0, NULL, &value, &said));
    bags_row_free(&row);
}

/* ---- values ---- */

static void values_are_decoded_by_their_types(void **state) {
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "array(float64,2)");
    set_field(&set, "b", "bytes");
    set_field(&set, "i", "i64");
    set_field(&set, "n", "int");
    set_field(&set, "s", "array");
    set_field(&set, "t", "utf8[]");
    set_field(&set, "u", "strange(1)");
    double numbers[2] = {1.5, -2.25}, stored[2] = {1.5, -2.25};
    turn_elements(stored, 16, 8);
    for (size_t i = 0; i < 9; i++) {
        set_begin(&set);
        set_blob(&set, 0, stored, 16);
        hand_add(&set.bags[0], "xxxxxxx", i); /* an orphan: it shifts the next blob */
        set_blob(&set, 1, "raw", i % 4);
        set_blob(&set, 2, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8);
        set_blob(&set, 3, "\x01\x02", 2);
        set_blob(&set, 4, "\x93\xa3>u2\x91\x02\xc4\x04\x01\x02\x03\x04", 13);
        set_items(&set, 5, "w", i);
        set_blob(&set, 6, "\xff\xfe", 2);
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        for (uint64_t i = 0; i < 9; i++)
            for (int own = 0; own < 2; own++) {
                bags_buffer *space = own ? &scratch : NULL;
                bags_value array, other;
                assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
                assert_ok(bags_row_value(&row, 0, 0, NULL, &array, &said));
                assert_int_equal(array.kind, BAGS_KIND_ARRAY);
                assert_true((uintptr_t)array.data % 8 == 0);
                assert_ok(bags_row_value(&row, 1, 0, space, &other, &said));
                assert_int_equal(other.kind, BAGS_KIND_BYTES);
                assert_int_equal(other.size, i % 4);
                assert_ok(bags_row_value(&row, 2, 0, space, &other, &said));
                assert_true(other.kind == BAGS_KIND_INT && other.sint == -2);
                assert_ok(bags_row_value(&row, 3, 0, space, &other, &said));
                assert_true(other.kind == BAGS_KIND_UINT && other.uint == 0x201);
                assert_ok(bags_row_value(&row, 4, 0, space, &other, &said));
                assert_true(other.dims == 1 && other.shape[0] == 2);
                assert_int_equal(((const uint16_t *)other.data)[1], 0x304);
                for (size_t k = 0; k < i; k++) {
                    char text[8];
                    snprintf(text, sizeof text, "w%d", (int)k);
                    assert_ok(bags_row_value(&row, 5, k, space, &other, &said));
                    assert_int_equal(other.kind, BAGS_KIND_UTF8);
                    assert_int_equal(other.size, 2);
                    assert_memory_equal(other.data, text, 2);
                }
                assert_fails(BAGS_ERROR_RANGE,
                    bags_row_value(&row, 5, (size_t)i, space, &other, &said));
                assert_fails(
                    BAGS_ERROR_RANGE, bags_row_value(&row, 7, 0, space, &other, &said));
                assert_fails(
                    BAGS_ERROR_TYPE, bags_row_value(&row, 6, 0, space, &other, &said));
                assert_says("strange");
                assert_bytes(bags_row_bytes(&row, 6, 0), "\xff\xfe", 2);
                /* Other slots did not use this slot's scratch. */
                assert_memory_equal(array.data, numbers, 16);
            }
        bags_buffer_free(&scratch);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_value_that_does_not_decode_names_field_and_datapoint(void **state) {
    static const struct {
        const char *type, *blob;
        size_t size;
        bags_code code;
    } rows[] = {{"utf8", "\xff", 1, BAGS_ERROR_CORRUPT},
        {"int(4)", "abc", 3, BAGS_ERROR_CORRUPT},
        {"int", "123456789", 9, BAGS_ERROR_LIMIT}, {"i64", "", 0, BAGS_ERROR_CORRUPT},
        {"array(float32,3)", "1234", 4, BAGS_ERROR_CORRUPT},
        {"array", "\x93", 1, BAGS_ERROR_CORRUPT}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hand_set set;
        bags_row row = {0};
        bags_value value, before;
        memset(&set, 0, sizeof set);
        set_field(&set, "caption", rows[i].type);
        for (int k = 0; k < 18; k++) {
            set_begin(&set);
            set_blob(&set, 0, rows[i].blob, rows[i].size);
            set_end(&set);
        }
        set_save(&set, V1, at("%d", (int)i));
        set_free(&set);
        bags_reader *reader = open_mode(at("%d", (int)i), MAPPED);
        assert_ok(bags_reader_get(reader, 17, NULL, 0, &row, &said));
        memset(&value, 0xee, sizeof value);
        before = value;
        assert_fails(rows[i].code, bags_row_value(&row, 0, 0, NULL, &value, &said));
        assert_says("caption");
        assert_says("17");
        assert_memory_equal(&value, &before, sizeof value);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* ---- plain ranges ---- */

static void plain_fields_of_consecutive_datapoints_are_read_at_once(void **state) {
    static const uint64_t edges[] = {0, 1, 2, 19, 20, 21, 100, UINT64_MAX};
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        save_formula(at("%d", variant), 20, (enum variant)variant);
        size_t field = variant == SPLIT ? 1 : TITLE;
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader *reader = open_mode(at("%d", variant), (enum mode)mode);
            bags_row row = {0};
            for (size_t i = 0; i < 8; i++)
                for (size_t j = 0; j < 8; j++) {
                    uint64_t start = edges[i], stop = edges[j];
                    if (start > stop) {
                        assert_fails(
                            BAGS_ERROR_RANGE, bags_reader_get_range(reader, start, stop,
                                                  field, &row, &said));
                        assert_int_equal(bags_row_length(&row, 0), 0);
                        continue;
                    }
                    assert_ok(
                        bags_reader_get_range(reader, start, stop, field, &row, &said));
                    uint64_t end = stop < 20 ? stop : 20;
                    size_t length = start < end ? (size_t)(end - start) : 0;
                    assert_int_equal(bags_row_length(&row, 0), length);
                    assert_int_equal(bags_row_length(&row, 1), 0);
                    for (size_t k = 0; k < length; k++)
                        check_item(&row, 0, k, TITLE, start + k, 0);
                }
            bags_value value;
            assert_ok(bags_reader_get_range(reader, 3, 9, field, &row, &said));
            assert_ok(bags_row_value(&row, 0, 5, NULL, &value, &said));
            assert_int_equal(value.kind, BAGS_KIND_UTF8);
            assert_fails(
                BAGS_ERROR_RANGE, bags_row_value(&row, 0, 6, NULL, &value, &said));
            bags_row_free(&row);
            bags_reader_close(reader);
        }
    }
}

static void a_range_of_a_sequence_field_is_refused(void **state) {
    bags_row row = {0};
    (void)state;
    save_formula(at("x"), 20, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    poison();
    assert_fails(
        BAGS_ERROR_TYPE, bags_reader_get_range(reader, 0, 5, WORDS, &row, &said));
    assert_says("words");
    assert_int_equal(bags_row_length(&row, 0), 0);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_plain_range_is_one_contiguous_read(void **state) {
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    for (int i = 0; i < 500; i++) {
        set_begin(&set);
        set_text(&set, 0, "twenty bytes of text");
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    bags_reader *reader = open_mode(at("x"), NO_MMAP);
    bags_row row = {0};
    assert_ok(bags_reader_get_range(reader, 0, 1, 0, &row, &said));
    uint64_t reads = disk.counts[HOOK_READ];
    disk.most_read = 0;
    assert_ok(bags_reader_get_range(reader, 100, 400, 0, &row, &said));
    /* refs: table and rows; the field: table and blobs */
    assert_true(disk.counts[HOOK_READ] - reads <= 4);
    assert_true(disk.most_read >= 300 * 20 && disk.most_read < 500 * 20);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void orphans_do_not_appear_in_ranges(void **state) {
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    for (int i = 0; i < 30; i++) {
        char text[32];
        snprintf(text, sizeof text, "point %d", i);
        for (int k = 0; k < i % 3; k++)
            hand_add(&set.bags[0], "orphan orphan", (size_t)(i + k) % 13);
        set_begin(&set);
        set_text(&set, 0, text);
        set_end(&set);
    }
    hand_add(&set.bags[0], "orphan", 6);
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (uint64_t start = 0; start < 30; start += 4)
            for (uint64_t stop = start; stop <= 30; stop += 3) {
                assert_ok(bags_reader_get_range(reader, start, stop, 0, &row, &said));
                assert_int_equal(bags_row_length(&row, 0), stop - start);
                for (uint64_t i = start; i < stop; i++) {
                    char text[32];
                    snprintf(text, sizeof text, "point %d", (int)i);
                    assert_text(bags_row_bytes(&row, 0, (size_t)(i - start)), text);
                }
            }
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* Legal in the format: datapoints that share blobs, in reverse order. */
static void refs_in_any_order_are_followed(void **state) {
    static const size_t order[] = {4, 0, 0, 3, 1, 4, 2, 2, 0};
    static const char *const texts[] = {"a", "bb", "", "dddd", "eeeee"};
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_field(&set, "b", "bytes[]");
    for (size_t i = 0; i < 5; i++) {
        hand_add(&set.bags[0], texts[i], strlen(texts[i]));
        hand_add(&set.bags[1], texts[i], strlen(texts[i]));
    }
    for (size_t i = 0; i < 9; i++) {
        set_begin(&set);
        put_uint(&set.row, order[i]);
        put_array(&set.row, 2);
        put_uint(&set.row, order[i]);
        put_uint(&set.row, 5 - order[i]);
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (uint64_t start = 0; start < 9; start++)
            for (uint64_t stop = start; stop <= 9; stop++) {
                assert_ok(bags_reader_get_range(reader, start, stop, 0, &row, &said));
                for (uint64_t i = start; i < stop; i++)
                    assert_text(
                        bags_row_bytes(&row, 0, (size_t)(i - start)), texts[order[i]]);
            }
        for (uint64_t i = 0; i < 9; i++) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_int_equal(bags_row_length(&row, 1), 5 - order[i]);
            for (size_t k = 0; k < 5 - order[i]; k++)
                assert_text(bags_row_bytes(&row, 1, k), texts[order[i] + k]);
        }
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* ---- refs ---- */

/* A dataset of a plain field with 3 blobs and a sequence with 4; the given row
 * of refs is between two valid ones. */
static void save_row(const void *row, size_t size) {
    hand_set set;
    if (exists(at("x")))
        remove_tree(at("x"));
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_field(&set, "b", "bytes[]");
    for (int i = 0; i < 3; i++)
        hand_add(&set.bags[0], &"abc"[i], 1);
    for (int i = 0; i < 4; i++)
        hand_add(&set.bags[1], &"defg"[i], 1);
    hand_add(&set.refs, "\x92\x00\x92\x00\x01", 5);
    hand_add(&set.refs, row, size);
    hand_add(&set.refs, "\x92\x02\x90", 3);
    set_save(&set, V1, at("x"));
    set_free(&set);
}

static void refs_are_read_in_every_form_of_an_integer(void **state) {
    static const unsigned tags[] = {0, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3};
    static const char *const heads[] = {"\x92", "\xdc\x00\x02", "\xdd\x00\x00\x00\x02"};
    static const size_t head_sizes[] = {1, 3, 5};
    (void)state;
    for (size_t i = 0; i < 9; i++)
        for (size_t j = 0; j < 9; j++)
            for (size_t k = 0; k < 9; k++) {
                bytes row = {NULL, 0, 0};
                bags_row got = {0};
                uint64_t count = 0;
                put(&row, heads[(i + j) % 3], head_sizes[(i + j) % 3]);
                if (tags[i])
                    put_tagged(&row, tags[i], 2);
                else
                    put_u8(&row, 2);
                put(&row, heads[(i + k) % 3], head_sizes[(i + k) % 3]);
                if (tags[j])
                    put_tagged(&row, tags[j], 1);
                else
                    put_u8(&row, 1);
                if (tags[k])
                    put_tagged(&row, tags[k], 3);
                else
                    put_u8(&row, 3);
                save_row(row.data, row.size);
                bytes_free(&row);
                bags_reader *reader =
                    open_mode(at("x"), (i + j + k) % 2 ? MAPPED : NO_MMAP);
                assert_ok(bags_reader_get(reader, 1, NULL, 0, &got, &said));
                assert_text(bags_row_bytes(&got, 0, 0), "c");
                assert_int_equal(bags_row_length(&got, 1), 3);
                assert_text(bags_row_bytes(&got, 1, 0), "e");
                assert_text(bags_row_bytes(&got, 1, 2), "g");
                assert_ok(bags_reader_items(reader, 1, 1, &got, &count, &said));
                assert_true(count == 3);
                assert_ok(bags_reader_get_range(reader, 0, 3, 0, &got, &said));
                assert_text(bags_row_bytes(&got, 0, 1), "c");
                assert_ok(bags_verify(at("x"), NULL, NULL, &said));
                bags_row_free(&got);
                bags_reader_close(reader);
            }
    static const char *const empties[] = {
        "\x92\x01\x90", "\x92\x01\xdc\x00\x00", "\x92\x01\xdd\x00\x00\x00\x00"};
    static const size_t sizes[] = {3, 5, 7};
    for (size_t i = 0; i < 3; i++) {
        bags_row got = {0};
        save_row(empties[i], sizes[i]);
        bags_reader *reader = open_mode(at("x"), MAPPED);
        assert_ok(bags_reader_get(reader, 1, NULL, 0, &got, &said));
        assert_text(bags_row_bytes(&got, 0, 0), "b");
        assert_int_equal(bags_row_length(&got, 1), 0);
        bags_row_free(&got);
        bags_reader_close(reader);
    }
}

static void check_bad_row(const void *data, size_t size, size_t number) {
    save_row(data, size);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        poison();
        bags_code code = bags_reader_get(reader, 1, NULL, 0, &row, &said);
        if (code != BAGS_ERROR_CORRUPT)
            fail_msg("row %zu: %s", number, bags_code_name(code));
        assert_int_equal(said.code, code);
        assert_says("1");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_int_equal(bags_row_bytes(&row, 0, 0).size, 0);
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
        /* Its neighbours can be read. */
        assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
        assert_text(bags_row_bytes(&row, 1, 0), "d");
        assert_ok(bags_reader_get(reader, 2, NULL, 0, &row, &said));
        assert_text(bags_row_bytes(&row, 0, 0), "c");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void invalid_rows_of_refs_are_errors(void **state) {
    static const struct {
        const char *row;
        size_t size;
    } rows[] = {
        {"", 0},
        {"\x90", 1},
        {"\x91\x00", 2},
        {"\x93\x00\x90\x00", 4},
        {"\x93\x00\x90\x90", 4},
        {"\x92\x00\x90\x00", 4}, /* trailing bytes */
        {"\x92\x00\x90\xc0", 4},
        {"\x92\x03\x90", 3}, /* no such blob */
        {"\x92\x7f\x90", 3},
        {"\x92\xcc\xff\x90", 4},
        {"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x90", 11},
        {"\x92\xcf\x20\x00\x00\x00\x00\x00\x00\x00\x90", 11},
        {"\x92\xcf\x20\x00\x00\x00\x00\x00\x00\x01\x90", 11},
        {"\x92\x00\x92\x04\x01", 5},
        {"\x92\x00\x92\x00\x05", 5},
        {"\x92\x00\x92\x03\x02", 5},
        {"\x92\x00\x92\x05\x01", 5},
        {"\x92\x00\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 13},
        {"\x92\x00\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13},
        {"\x92\x00\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
         "\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
            21},
        {"\x92\x00\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xfe\x03", 13},
        {"\x92\xff\x90", 3}, /* negative */
        {"\x92\xe0\x90", 3},
        {"\x92\xd0\x80\x90", 4},
        {"\x92\xd0\xff\x90", 4},
        {"\x92\xd1\xff\xff\x90", 5},
        {"\x92\xd2\xff\xff\xff\xff\x90", 7},
        {"\x92\xd3\xff\xff\xff\xff\xff\xff\xff\xff\x90", 11},
        {"\x92\xd3\x80\x00\x00\x00\x00\x00\x00\x00\x90", 11},
        {"\x92\x00\x92\xff\x01", 5},
        {"\x92\x00\x92\x00\xff", 5},
        {"\x92\x00\x92\x00\xd0\xff", 6},
        {"\x92\x00\x00", 3}, /* not a list */
        {"\x92\x90\x90", 3}, /* a list for a plain field */
        {"\x92\x92\x00\x01\x90", 5},
        {"\x92\x00\x91\x00", 4},
        {"\x92\x00\x93\x00\x01\x01", 6},
        {"\x92\x00\x92\x90\x01", 5},
        {"\x92\xc0\x90", 3},
        {"\x92\x00\xc0", 3},
        {"\x92\xc2\x90", 3},
        {"\x92\xc3\x90", 3},
        {"\x92\xca\x00\x00\x00\x00\x90", 7},
        {"\x92\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90", 11},
        {"\x92\xa1\x30\x90", 4},
        {"\x92\xc4\x01\x00\x90", 5},
        {"\x92\xc1\x90", 3},
        {"\x82\x00\x00\x01\x90", 5}, /* a map */
        {"\xc0", 1},
        {"\x00", 1},
        {"\xa2\x00\x90", 3},
        {"\xdc\x00", 2},
        {"\xdc\x00\x03\x00\x90\x90", 6},
        {"\xdd\xff\xff\xff\xff", 5},
        {"\xdd\x00\x00\x00\x02\x00", 6},
        {"\x92\x00\xdd\xff\xff\xff\xff", 7},
        {"\xff\xff\xff\xff\xff\xff\xff\xff", 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_bad_row(rows[i].row, rows[i].size, i);
}

static void truncated_rows_of_refs_are_errors(void **state) {
    static const char row[] = "\xdc\x00\x02\xcf\x00\x00\x00\x00\x00\x00\x00\x01"
                              "\xdd\x00\x00\x00\x02\xcd\x00\x01\xd2\x00\x00\x00\x02";
    (void)state;
    for (size_t size = 0; size < sizeof row - 1; size++)
        check_bad_row(row, size, size);
}

/* Errors in refs name the file and the datapoint. */
static void a_refs_error_names_file_and_datapoint(void **state) {
    hand_set set;
    bags_row row = {0};
    uint64_t count = 99;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "caption", "bytes");
    set_field(&set, "list", "bytes[]");
    for (int i = 0; i < 100; i++) {
        set_begin(&set);
        set_text(&set, 0, "x");
        set_items(&set, 1, "i", 2);
        if (i == 77)
            set.row.data[1] = 0x7f;
        if (i == 88)
            set.row.size--;
        set_end(&set);
    }
    /* 77 refers to blob 127, which does not exist */
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get(reader, 77, NULL, 0, &row, &said));
        assert_says("77");
        assert_says("caption");
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get(reader, 88, NULL, 0, &row, &said));
        assert_says("refs.bag");
        assert_says("88");
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_items(reader, 88, 1, &row, &count, &said));
        assert_says("88");
        assert_true(count == 99);
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get_range(reader, 70, 80, 0, &row, &said));
        assert_says("77");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
        assert_says("77");
        bags_reader_close(reader);
    }
    bags_row_free(&row);
}

/* ---- tables of fields ---- */

static void a_damaged_table_names_file_and_blob(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    bytes file = load(at("x/title.bag"));
    uint64_t start = load_u64(file.data + file.size - 8);
    memset(file.data + start + 8 * 6, 0xff, 7);
    save(at("x/title.bag"), file.data, file.size);
    bytes_free(&file);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (uint64_t i = 0; i < 20; i++) {
            if (i != 5 && i != 6) {
                assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
                continue;
            }
            assert_fails(
                BAGS_ERROR_CORRUPT, bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_says("title.bag");
            assert_says(i == 5 ? "5" : "6");
            assert_int_equal(bags_row_length(&row, 0), 0);
        }
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_get_range(reader, 0, 20, TITLE, &row, &said));
        assert_says("title.bag");
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
        assert_says("title.bag");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_damaged_table_of_refs_names_it(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    bytes file = load(at("x/refs.bag"));
    uint64_t start = load_u64(file.data + file.size - 8);
    memset(file.data + start + 8 * 6, 0xff, 7);
    save(at("x/refs.bag"), file.data, file.size);
    bytes_free(&file);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        assert_ok(bags_reader_get(reader, 4, NULL, 0, &row, &said));
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get(reader, 5, NULL, 0, &row, &said));
        assert_says("refs.bag");
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_get_range(reader, 0, 20, TITLE, &row, &said));
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
        assert_says("refs.bag");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* ---- variants ---- */

/* Each file is of another variant. */
static void variants_may_be_mixed_in_a_dataset_with_refs(void **state) {
    hand_set set;
    (void)state;
    for (unsigned mix = 0; mix < 32; mix++) {
        formula_set(&set, 20, true);
        set_save(&set, V1, at("x"));
        for (size_t f = 0; f < FIELDS; f++)
            if (mix >> f & 1)
                hand_save(&set.bags[f], V2, at("x"), names[f]);
        if (mix >> 4)
            hand_save(&set.refs, V2, at("x"), "refs");
        set_free(&set);
        bags_reader *reader = open_mode(at("x"), (enum mode)(mix % MODES));
        bags_row row = {0};
        for (uint64_t i = 0; i < 20; i++) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            for (size_t f = 0; f < FIELDS; f++)
                for (size_t k = 0; k < items_of(f, i); k++)
                    check_item(&row, f, k, f, i, k);
        }
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
        remove_tree(at("x"));
    }
}

static bags_code read_all(const char *path, enum mode mode) {
    bags_reader_options options = reading(mode);
    return read_dataset(path, &options);
}

static void a_bag_of_0_bytes_is_read_only_next_to_v2_or_empty_bags(void **state) {
    hand_set set;
    (void)state;
    for (int variant = V1; variant <= V2; variant++)
        for (int rows = 0; rows < 2; rows++) {
            memset(&set, 0, sizeof set);
            set_field(&set, "a", "bytes");
            set_field(&set, "b", "bytes[]");
            for (int i = 0; i < rows; i++) {
                set_begin(&set);
                set_text(&set, 0, "text");
                set_items(&set, 1, "", 0);
                set_end(&set);
            }
            set_save(&set, (enum variant)variant, at("x"));
            set_free(&set);
            /* now b is empty in its variant; truncate it to 0 bytes */
            save(at("x/b.bag"), "", 0);
            for (int mode = 0; mode < MODES; mode++) {
                bags_code code = read_all(at("x"), (enum mode)mode);
                if (variant == V1 && rows) {
                    assert_int_equal(code, BAGS_ERROR_CORRUPT);
                    assert_says("b.bag");
                } else {
                    assert_int_equal(code, BAGS_OK);
                }
            }
            remove_tree(at("x"));
        }
    /* All empty, in every combination. */
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_field(&set, "b", "bytes[]");
    set_save(&set, V2, at("x"));
    set_free(&set);
    assert_true(file_size(at("x/refs.bag")) == 0);
    for (int mode = 0; mode < MODES; mode++)
        assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_OK);
    save(at("x/refs.bag"), "\0\0\0\0\0\0\0\0", 8);
    for (int mode = 0; mode < MODES; mode++)
        assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_OK);
}

static void a_bag_shorter_than_8_bytes_is_an_error_in_a_dataset(void **state) {
    (void)state;
    for (size_t size = 1; size < 8; size++) {
        save_formula(at("x"), 3, V2);
        save(at("x/words.bag"), "\0\0\0\0\0\0\0", size);
        for (int mode = 0; mode < MODES; mode++)
            assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_ERROR_CORRUPT);
        assert_says("words.bag");
        save(at("x/refs.bag"), "\0\0\0\0\0\0\0", size);
        for (int mode = 0; mode < MODES; mode++) {
            bags_reader_options options = reading((enum mode)mode);
            assert_refused(
                BAGS_ERROR_CORRUPT, bags_reader_open(at("x"), &options, &said));
            assert_says("refs.bag");
        }
        remove_tree(at("x"));
    }
}

static void journals_next_to_refs_are_ignored(void **state) {
    static const char junk[] = "\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    (void)state;
    for (int variant = V1; variant <= V2; variant++) {
        save_formula(at("x"), 20, (enum variant)variant);
        for (size_t f = 0; f < FIELDS; f++)
            save(at("x/%s.idx", names[f]), junk, f == 1 ? 9 : f == 2 ? 8 : 0);
        save(at("x/refs.idx"), junk, 8);
        for (int mode = 0; mode < MODES; mode++)
            assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_OK);
        remove_tree(at("x"));
    }
}

static void split_fields_of_unequal_length_are_an_error(void **state) {
    (void)state;
    save_formula(at("x"), 20, SPLIT);
    resize_file(at("x/title.idx"), 8 * 17);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader_options options = reading((enum mode)mode);
        assert_refused(
            BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), &options, &said));
        assert_says("20");
        assert_says("17");
        options.unfinished = BAGS_UNFINISHED_SKIP;
        bags_reader *reader;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        assert_true(bags_reader_length(reader) == 17);
        bags_row row = {0};
        assert_ok(bags_reader_get(reader, 16, NULL, 0, &row, &said));
        check_item(&row, 1, 0, TITLE, 16, 0);
        assert_fails(
            BAGS_ERROR_RANGE, bags_reader_get(reader, 17, NULL, 0, &row, &said));
        assert_ok(bags_reader_get_range(reader, 0, 99, 0, &row, &said));
        assert_int_equal(bags_row_length(&row, 0), 17);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void damaged_split_datasets_are_errors(void **state) {
    (void)state;
    for (int fault = 0; fault < 6; fault++) {
        save_formula(at("x"), 20, SPLIT);
        switch (fault) {
        case 0:
            remove_tree(at("x/title.idx"));
            break;
        case 1:
            remove_tree(at("x/title.bag"));
            break;
        case 2: /* bytes of the last blob are missing */
            resize_file(at("x/title.bag"), file_size(at("x/title.bag")) - 1);
            break;
        case 3:
            save_text(at("x/spec.json"), "{\"info\": \"utf8\", \"title\": \"utf8[]\"}");
            break;
        case 4: /* an entry that decreases */ {
            bytes idx = load(at("x/title.idx"));
            memset(idx.data + 8 * 5, 0, 8);
            save(at("x/title.idx"), idx.data, idx.size);
            bytes_free(&idx);
            break;
        }
        default:
            remove_tree(at("x/info.bag"));
            make_dir(at("x/info.bag"));
        }
        for (int mode = 0; mode < MODES; mode++) {
            poison();
            bags_code code = read_all(at("x"), (enum mode)mode);
            if (code == BAGS_OK)
                fail_msg("fault %d was not found", fault);
            assert_int_equal(said.code, code);
        }
        remove_tree(at("x"));
    }
}

static void torn_entries_and_trailing_bytes_of_split_fields_are_ignored(void **state) {
    (void)state;
    save_formula(at("x"), 20, SPLIT);
    bytes file = load(at("x/title.idx"));
    put_text(&file, "abc");
    save(at("x/title.idx"), file.data, file.size);
    bytes_free(&file);
    file = load(at("x/info.bag"));
    put_text(&file, "abc");
    save(at("x/info.bag"), file.data, file.size);
    bytes_free(&file);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        assert_true(bags_reader_length(reader) == 20);
        for (uint64_t i = 0; i < 20; i++) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            check_item(&row, 0, 0, INFO, i, 0);
            check_item(&row, 1, 0, TITLE, i, 0);
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_split_dataset_without_datapoints_is_empty(void **state) {
    (void)state;
    save_formula(at("x"), 0, SPLIT);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        assert_true(bags_reader_length(reader) == 0);
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        bags_reader_close(reader);
    }
}

/* Kept journals make a dataset without sequences readable for the newest Python
 * package, which deletes nothing: the same files without refs.bag. */
static void v1_bags_with_journals_and_no_refs_are_split(void **state) {
    hand_set set;
    (void)state;
    formula_set(&set, 20, false);
    set_save(&set, SPLIT, at("x"));
    for (size_t f = 0; f < 2; f++)
        hand_save(&set.bags[f], V1, at("x"), set.names[f]);
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        bags_row row = {0};
        for (uint64_t i = 0; i < 20; i++) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            check_item(&row, 1, 0, TITLE, i, 0);
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* ---- limits ---- */

static void few_open_files_and_maps_are_enough(void **state) {
    hand_set set;
    char name[HAND_FIELDS][8];
    (void)state;
    memset(&set, 0, sizeof set);
    for (size_t f = 0; f < 30; f++) {
        snprintf(name[f], 8, "f%02d", (int)f);
        set_field(&set, name[f], "bytes");
    }
    for (int i = 0; i < 10; i++) {
        set_begin(&set);
        for (size_t f = 0; f < 30; f++)
            set_text(&set, f, name[(f + (size_t)i) % 30]);
        set_end(&set);
    }
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (size_t most = 1; most < 9; most += 2)
        for (int maps = 0; maps < 2; maps++) {
            bags_reader_options options = reading(maps ? MAPPED : NO_MMAP);
            bags_reader *reader;
            bags_row row = {0};
            options.max_files = most;
            disk.most_maps = (int)most;
            assert_opens(reader, bags_reader_open(at("x"), &options, &said));
            disk.peak_files = disk.files;
            disk.peak_maps = disk.maps;
            for (uint64_t i = 0; i < 20; i++) {
                assert_ok(bags_reader_get(reader, i % 10, NULL, 0, &row, &said));
                for (size_t f = 0; f < 30; f++)
                    assert_text(
                        bags_row_bytes(&row, f, 0), name[(f + (size_t)i % 10) % 30]);
            }
            assert_true(disk.peak_maps <= (int)most);
            assert_true(disk.peak_files <= (int)most + 1);
            bags_row_free(&row);
            bags_reader_close(reader);
        }
}

/* The limit is that of a process: a quarter of what Linux allows. */
static void maps_beyond_the_limit_are_read(void **state) {
    enum { COUNT = 31, READERS = 514, LIMIT = 16384 };
    static bags_reader *readers[READERS];
    hand_set set;
    bags_row row = {0};
    char name[COUNT][8];
    (void)state;
    memset(&set, 0, sizeof set);
    for (size_t f = 0; f < COUNT; f++) {
        snprintf(name[f], 8, "f%02d", (int)f);
        set_field(&set, name[f], "bytes");
    }
    set_begin(&set);
    for (size_t f = 0; f < COUNT; f++)
        set_text(&set, f, name[f]);
    set_end(&set);
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int i = 0; i < READERS; i++) {
        readers[i] = open_mode(at("x"), MAPPED);
        assert_ok(bags_reader_get(readers[i], 0, NULL, 0, &row, &said));
        for (size_t f = 0; f < COUNT; f++)
            assert_text(bags_row_bytes(&row, f, 0), name[f]);
        int mapped = (COUNT + 1) * (i + 1);
        assert_int_equal(disk.maps, mapped < LIMIT ? mapped : LIMIT);
    }
    bags_row_free(&row);
    for (int i = 0; i < READERS; i++)
        bags_reader_close(readers[i]);
}

static void short_reads_are_continued(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    save_formula(at("y"), 20, SPLIT);
    for (size_t chunk = 1; chunk < 12; chunk += 5)
        for (int mode = 0; mode < MODES; mode++) {
            disk.chunk = chunk;
            assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_OK);
            assert_int_equal(read_all(at("y"), (enum mode)mode), BAGS_OK);
        }
}

/* A row that claims a sequence of 2^40 items, or a blob of 2^40 bytes, must not
 * make the reader allocate that much. */
static void memory_use_is_bounded_by_the_file_sizes(void **state) {
    (void)state;
    save_row("\x92\x00\x92\x00\xcf\x00\x00\x01\x00\x00\x00\x00\x00", 13);
    for (int mode = 0; mode < MODES; mode++) {
        uint64_t peak = memory.peak = memory.used;
        assert_int_equal(read_all(at("x"), (enum mode)mode), BAGS_ERROR_CORRUPT);
        assert_true(memory.peak - peak < 200000);
    }
    save_formula(at("y"), 5, V1);
    bytes file = load(at("y/title.bag"));
    uint64_t start = load_u64(file.data + file.size - 8);
    file.data[start + 8 * 2 + 5] = 1;
    save(at("y/title.bag"), file.data, file.size);
    bytes_free(&file);
    for (int mode = 0; mode < MODES; mode++) {
        uint64_t peak = memory.peak = memory.used;
        assert_int_equal(read_all(at("y"), (enum mode)mode), BAGS_ERROR_CORRUPT);
        assert_true(memory.peak - peak < 200000);
    }
}

/* Another process truncates a field's index between opening and the first
 * use. */
static void an_idx_that_shrinks_after_opening_is_an_error(void **state) {
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        bags_row row = {0};
        save_formula(at("x"), 2000, SPLIT);
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        resize_file(at("x/title.idx"), 80);
        bags_code code = bags_reader_get_range(reader, 1000, 2000, 1, &row, &said);
        assert_true(code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_IO);
        assert_says("title");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_int_not_equal(
            bags_reader_get(reader, 1500, NULL, 0, &row, NULL), BAGS_OK);
        assert_int_not_equal(bags_verify(at("x"), NULL, NULL, NULL), BAGS_OK);
        bags_row_free(&row);
        bags_reader_close(reader);
        remove_tree(at("x"));
    }
}

static bags_code silent_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    (void)blob;
    (void)scratch;
    (void)value;
    (void)err;
    return BAGS_ERROR_VALUE;
}

static bags_code silent_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    (void)type;
    (void)allocator;
    (void)state;
    (void)err;
    return BAGS_ERROR_TYPE;
}

/* They should write a message; until they do, err may contain anything. */
static void codecs_that_fail_without_a_message_do_no_harm(void **state) {
    bags_codec decode = {"utf8", NULL, NULL, silent_decode, NULL, NULL, NULL};
    bags_codec open = {"utf8", silent_open, NULL, silent_decode, NULL, NULL, NULL};
    bags_codec neither = {"utf8", NULL, NULL, NULL, NULL, NULL, NULL};
    const bags_codec *all[3];
    (void)state;
    all[0] = &decode;
    all[1] = &open;
    all[2] = &neither;
    save_formula(at("x"), 3, V1);
    for (size_t i = 0; i < 3; i++) {
        bags_reader_options options = reading(MAPPED);
        bags_registry *codecs;
        bags_reader *reader;
        bags_row row = {0};
        bags_value value;
        bags_error *mine = (bags_error *)malloc(sizeof *mine);
        assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
        assert_ok(bags_registry_add(codecs, all[i], &said));
        options.registry = codecs;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
        memset(mine, 0x5a, sizeof *mine);
        assert_int_equal(bags_row_value(&row, TITLE, 0, NULL, &value, mine),
            i == 0 ? BAGS_ERROR_VALUE : BAGS_ERROR_TYPE);
        said = *mine;
        assert_says("title");
        assert_in_range(strlen(said.message), 5, 300);
        assert_int_not_equal(
            bags_row_value(&row, TITLE, 0, NULL, &value, NULL), BAGS_OK);
        free(mine);
        bags_row_free(&row);
        bags_reader_close(reader);
        bags_registry_free(codecs);
    }
}

static bags_code grow_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    bags_code code = bags_buffer_reserve(scratch, 100, err);
    (void)state;
    if (code)
        return code;
    memset(scratch->data, (int)blob.size, 100);
    code = bags_buffer_reserve(
        scratch, blob.size > 1 ? 100000 * blob.size : SIZE_MAX - 9, err);
    value->kind = BAGS_KIND_BYTES;
    value->data = scratch->data;
    value->size = 100;
    return code;
}

/* A codec may grow its scratch several times, also where the row keeps the values. */
static void a_decoded_value_keeps_its_bytes_while_it_grows(void **state) {
    bags_codec codec;
    bags_registry *codecs;
    bags_reader *reader;
    bags_reader_options options = reading(MAPPED);
    bags_row row = {0};
    bags_value values[4];
    hand_set set;
    (void)state;
    memset(&codec, 0, sizeof codec);
    codec.names = "grows";
    codec.decode = grow_decode;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "grows[]");
    set_begin(&set);
    put_array(&set.row, 2);
    put_uint(&set.row, 0);
    put_uint(&set.row, 4);
    set_end(&set);
    for (size_t i = 0; i < 4; i++)
        hand_add(&set.bags[0], "wxyz", i + 1);
    set_save(&set, V1, at("x"));
    set_free(&set);
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_ok(bags_registry_add(codecs, &codec, &said));
    options.registry = codecs;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    for (size_t i = 1; i < 4; i++)
        assert_ok(bags_row_value(&row, 0, i, NULL, &values[i], &said));
    assert_fails(
        BAGS_ERROR_MEMORY, bags_row_value(&row, 0, 0, NULL, &values[0], &said));
    for (size_t i = 1; i < 4; i++)
        for (size_t k = 0; k < 100; k++)
            assert_int_equal(((const unsigned char *)values[i].data)[k], (int)i + 1);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_registry_free(codecs);
}

/* 2000 datapoints that all refer to one blob of 64 KiB: 128 MiB if each had a
 * copy. */
static void shared_blobs_need_bounded_memory(void **state) {
    hand_set set;
    unsigned char *data = (unsigned char *)calloc(1, 65536);
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    hand_add(&set.bags[0], data, 65536);
    for (int i = 0; i < 2000; i++)
        hand_add(&set.refs, "\x91\x00", 2);
    set_save(&set, V1, at("x"));
    set_free(&set);
    for (int mode = 0; mode < MODES; mode++) {
        bags_row row = {0};
        bags_reader *reader = open_mode(at("x"), (enum mode)mode);
        memory.peak = memory.used;
        bags_code code = bags_reader_get_range(reader, 0, 2000, 0, &row, NULL);
        assert_true(
            code == BAGS_OK || code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_LIMIT);
        if (!code)
            assert_bytes(bags_row_bytes(&row, 0, 1999), data, 65536);
        /* A few times the size of the Bag, and a little for small ones. */
        assert_true(memory.peak < (uint64_t)40 << 20);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
    free(data);
}

/* An allocator that returns the same addresses again once everything is
 * freed. */
typedef struct arena {
    bags_allocator allocator;
    size_t used, live;
    double space[100000];
} arena;

static void *arena_resize(void *user, void *data, size_t old_size, size_t new_size) {
    arena *a = (arena *)user;
    if (!new_size) {
        a->live -= data != NULL;
        a->used = a->live ? a->used : 0;
        return NULL;
    }
    void *fresh = a->space + a->used;
    a->used += (new_size + 15) / 16 * 2;
    if (a->used > 100000)
        return NULL;
    a->live += data == NULL;
    if (data)
        memcpy(fresh, data, old_size < new_size ? old_size : new_size);
    return fresh;
}

/* A row must not mistake a new reader for the one it served before. */
static void a_row_is_not_confused_by_a_new_reader_at_the_same_address(void **state) {
    static arena a;
    bags_row row = {0};
    const bags_reader *before = NULL;
    (void)state;
    a.allocator.resize = arena_resize;
    a.allocator.user = &a;
    save_formula(at("x"), 20, V1);
    save_formula(at("y"), 30, SPLIT);
    /* The row's own memory comes from another allocator. */
    bags_reader *first = open_mode(at("x"), MAPPED);
    assert_ok(bags_reader_get(first, 0, NULL, 0, &row, &said));
    bags_reader_close(first);
    for (int i = 0; i < 12; i++) {
        bags_reader_options options = reading((enum mode)(i / 2));
        bags_reader *reader;
        options.env.allocator = &a.allocator;
        assert_opens(reader, bags_reader_open(at(i % 2 ? "y" : "x"), &options, &said));
        assert_true(!before || before == reader);
        before = reader;
        for (uint64_t k = 0; k < 20; k++) {
            assert_ok(bags_reader_get(reader, k, NULL, 0, &row, &said));
            check_item(&row, i % 2 ? 1 : TITLE, 0, TITLE, k, 0);
            check_blob(reader, k, i % 2 ? 1 : TITLE, 0, TITLE, &row);
        }
        bags_reader_close(reader);
        assert_int_equal(a.live, 0);
    }
    bags_row_free(&row);
}

static void zero_selects_are_nothing_and_null_is_everything(void **state) {
    bags_row row = {0};
    bags_select none = bags_select_all(0);
    (void)state;
    save_formula(at("x"), 3, V1);
    bags_reader *reader = open_mode(at("x"), MAPPED);
    assert_ok(bags_reader_get(reader, 0, &none, 0, &row, &said));
    assert_int_equal(bags_row_length(&row, 0), 0);
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_int_equal(bags_row_length(&row, 0), 1);
    assert_int_equal(
        bags_reader_get(reader, 99, NULL, 0, &row, NULL), BAGS_ERROR_RANGE);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static bag_writer *at_work;
static int at_work_stage;

/* The writer appends when the reader opens the checksums, and has finished when
 * it opens the Bag again. */
static int open_while_writing(void *user, const char *path, int mode, void **file) {
    const char *name = strrchr(path, '.');
    if (at_work_stage == 0 && name && !strcmp(name, ".crc")) {
        at_work_stage = 1;
        assert_ok(bag_writer_append(at_work, "abcdefgh", 8, NULL, &said));
        assert_ok(bag_writer_flush(at_work, &said));
    } else if (at_work_stage == 1 && name && !strcmp(name, ".bag")) {
        at_work_stage = 2;
        assert_ok(bag_writer_close(at_work, &said));
    }
    return disk.io.open(user, path, mode, file);
}

static void a_bag_that_is_finished_while_it_is_opened_is_read(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bag_writer_options writing;
        bag_reader_options options;
        bags_buffer scratch = {0};
        bag_reader *reader;
        bags_io io = disk.io;
        memset(&writing, 0, sizeof writing);
        writing.checksum = true;
        writing.keep_idx = i / 2 == 1;
        assert_opens(at_work, bag_writer_open(at("%d.bag", i), &writing, &said));
        at_work_stage = 0;
        for (int k = 0; k < 5; k++)
            assert_ok(bag_writer_append(at_work, "abcdefgh", 8, NULL, &said));
        assert_ok(bag_writer_flush(at_work, &said));
        io.open = open_while_writing;
        memset(&options, 0, sizeof options);
        options.verify_checksums = true;
        options.no_mmap = i % 2 == 1;
        options.env.allocator = &memory.allocator;
        options.env.io = &io;
        reader = bag_reader_open(at("%d.bag", i), &options, &said);
        if (!reader)
            fail_msg("%s", said.message);
        assert_int_equal(at_work_stage, 2);
        assert_int_equal(bag_reader_length(reader), 6);
        for (uint64_t k = 0; k < 6; k++) {
            bags_view blob;
            assert_ok(bag_reader_get(reader, k, &scratch, &blob, &said));
            assert_text(blob, "abcdefgh");
        }
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
}

static int open_few(void *user, const char *path, int mode, void **file) {
    return disk.files >= 4 ? EMFILE : disk.io.open(user, path, mode, file);
}

static void describing_closes_files_if_too_many_are_open(void **state) {
    hand_set set;
    bags_io io = disk.io;
    bags_reader_options options;
    bags_reader *reader;
    bags_info info;
    bags_row row = {0};
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "utf8");
    set_field(&set, "b", "utf8");
    set_field(&set, "c", "utf8");
    set_begin(&set);
    for (size_t i = 0; i < 3; i++)
        set_text(&set, i, "text");
    set_end(&set);
    set_save(&set, V1, at("x"));
    memset(&options, 0, sizeof options);
    io.open = open_few;
    options.no_mmap = true;
    options.env.io = &io;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_int_equal(disk.files, 4); /* all that may be open */
    assert_ok(bags_reader_info(reader, &info, NULL, &said));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    bags_row_free(&row);
    bags_reader_close(reader);
    set_free(&set);
}

/* As over HTTP, where nothing can be listed. */
static void an_unsharded_dataset_is_read_without_a_list(void **state) {
    memory_disk m;
    hand_set set;
    bags_reader_options options;
    bags_reader *reader;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "utf8");
    memory_disk_start(&m);
    memory_disk_save_set(&m, &set, V1, "x");
    memory_disk_save_set(&m, &set, V1, "y/000000");
    memset(&options, 0, sizeof options);
    m.io.list = NULL;
    options.env.io = &m.io;
    assert_opens(reader, bags_reader_open("x", &options, &said));
    bags_reader_close(reader);
    assert_refused(BAGS_ERROR_IO, bags_reader_open("y", &options, &said));
    memory_disk_free(&m);
    set_free(&set);
}

/* ---- hooks that fail ---- */

#define CALLS 8

/* A reading function, and a checksum of what it returns. */
static bags_code read_somehow(
    const bags_reader *reader, int call, bags_row *row, uint32_t *sum) {
    static const uint64_t indices[] = {19, 3, 3, 0};
    bags_view blob = {NULL, 0};
    bag_blobs all = {0};
    bags_info info = {0};
    bags_field_info fields[FIELDS] = {{0, 0}};
    uint64_t count = 0;
    bags_code code = BAGS_OK;
    switch (call) {
    case 0:
        code = bags_reader_get(reader, 7, NULL, 0, row, &said);
        break;
    case 1:
        code = bags_reader_get_blob(reader, 7, WORDS, 0, row, &blob, &said);
        break;
    case 2:
        code = bags_reader_get_range(reader, 2, 15, TITLE, row, &said);
        break;
    case 3:
        code = bags_reader_get_many(reader, indices, 4, INFO, row, &said);
        break;
    case 4:
        code = bags_reader_items(reader, 7, WORDS, row, &count, &said);
        break;
    case 5:
        code = bags_reader_blobs(reader, 0, TITLE, true, row, &all, &said);
        if (!code && all.length == 0) /* it was not mapped */
            code = bags_reader_get_range(reader, 0, 20, TITLE, row, &said);
        break;
    case 6:
        code = bags_reader_info(reader, &info, fields, &said);
        break;
    default:
        code = bags_reader_prefetch(reader, indices, 4, NULL, 0, row, &said);
    }
    if (code)
        return code;
    count += info.size + fields[WORDS].blobs;
    *sum = bags_crc32c(0, &count, sizeof count);
    *sum = bags_crc32c(*sum, blob.data, blob.size);
    *sum = bags_crc32c(*sum, all.data, all.size);
    for (size_t slot = 0; slot < FIELDS; slot++) {
        for (size_t item = 0; item < bags_row_length(row, slot); item++) {
            blob = bags_row_bytes(row, slot, item);
            *sum = bags_crc32c(*sum, blob.data, blob.size);
        }
    }
    return BAGS_OK;
}

static void a_call_that_failed_because_of_a_hook_can_be_repeated(void **state) {
    (void)state;
    save_formula(at("x"), 20, V1);
    for (int round = 0; round < 3 * CALLS; round++) {
        enum mode mode = (enum mode)(round / CALLS);
        uint64_t failures = 0;
        for (uint64_t n = 0;; n++) { /* 0: none fails */
            static uint32_t expected;
            uint32_t sum = 0;
            bags_row row = {0};
            bags_reader *reader = open_mode(at("x"), mode);
            uint64_t failed = disk.failed;
            disk.only = 0;
            disk.calls = 0;
            disk.fail_at = n;
            disk.stays = false;
            disk.fail_with = EAGAIN;
            bags_code code = read_somehow(reader, round % CALLS, &row, &sum);
            bool hit = disk.failed > failed;
            disk.fail_at = 0;
            if (!hit && code)
                fail_msg("call %d: %s", round % CALLS, said.message);
            failures += code != BAGS_OK;
            if (code)
                assert_ok(read_somehow(reader, round % CALLS, &row, &sum));
            if (n == 0)
                expected = sum;
            assert_int_equal(sum, expected);
            bags_row_free(&row);
            bags_reader_close(reader);
            if (n > 0 && !hit)
                break;
        }
        assert_true(failures > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datapoints_are_read_in_every_mode_and_variant),
        TEST(fields_are_found_by_name_and_described),
        TEST(the_info_agrees_with_the_files),
        TEST(any_fields_in_any_order_are_selected_any_number_of_times),
        TEST(items_of_a_sequence_are_selected_by_start_stop_and_step),
        TEST(a_slice_is_applied_literally),
        TEST(a_slice_of_a_plain_field_is_an_error),
        TEST(start_or_stop_without_slice_is_an_argument_error),
        TEST(unknown_options_are_argument_errors),
        TEST(unknown_fields_are_errors),
        TEST(a_datapoint_past_the_end_is_a_range_error),
        TEST(items_are_counted_without_reading_them),
        TEST(one_blob_is_read_in_every_mode_and_variant),
        TEST(a_missing_item_is_named),
        TEST(one_blob_of_a_field_in_order_is_read),
        TEST(blobs_of_different_sizes_are_one_range),
        TEST(refs_of_every_layout_are_read_in_any_order),
        TEST(empty_refs_of_many_fields_are_refused),
        TEST(rows_of_many_fields_are_read_and_damaged_ones_refused),
        TEST(a_mapped_read_makes_no_calls),
        TEST(opening_a_dataset_opens_no_field),
        TEST(a_row_is_used_with_many_readers),
        TEST(an_empty_row_has_no_slots),
        TEST(values_are_decoded_by_their_types),
        TEST(a_value_that_does_not_decode_names_field_and_datapoint),
        TEST(plain_fields_of_consecutive_datapoints_are_read_at_once),
        TEST(a_range_of_a_sequence_field_is_refused),
        TEST(a_plain_range_is_one_contiguous_read),
        TEST(orphans_do_not_appear_in_ranges),
        TEST(refs_in_any_order_are_followed),
        TEST(refs_are_read_in_every_form_of_an_integer),
        TEST(invalid_rows_of_refs_are_errors),
        TEST(truncated_rows_of_refs_are_errors),
        TEST(a_refs_error_names_file_and_datapoint),
        TEST(a_damaged_table_names_file_and_blob),
        TEST(a_damaged_table_of_refs_names_it),
        TEST(variants_may_be_mixed_in_a_dataset_with_refs),
        TEST(a_bag_of_0_bytes_is_read_only_next_to_v2_or_empty_bags),
        TEST(a_bag_shorter_than_8_bytes_is_an_error_in_a_dataset),
        TEST(journals_next_to_refs_are_ignored),
        TEST(split_fields_of_unequal_length_are_an_error),
        TEST(damaged_split_datasets_are_errors),
        TEST(torn_entries_and_trailing_bytes_of_split_fields_are_ignored),
        TEST(a_split_dataset_without_datapoints_is_empty),
        TEST(v1_bags_with_journals_and_no_refs_are_split),
        TEST(few_open_files_and_maps_are_enough),
        TEST(maps_beyond_the_limit_are_read),
        TEST(short_reads_are_continued),
        TEST(memory_use_is_bounded_by_the_file_sizes),
        TEST(an_idx_that_shrinks_after_opening_is_an_error),
        TEST(codecs_that_fail_without_a_message_do_no_harm),
        TEST(a_decoded_value_keeps_its_bytes_while_it_grows),
        TEST(shared_blobs_need_bounded_memory),
        TEST(a_row_is_not_confused_by_a_new_reader_at_the_same_address),
        TEST(zero_selects_are_nothing_and_null_is_everything),
        TEST(a_bag_that_is_finished_while_it_is_opened_is_read),
        TEST(describing_closes_files_if_too_many_are_open),
        TEST(an_unsharded_dataset_is_read_without_a_list),
        TEST(a_call_that_failed_because_of_a_hook_can_be_repeated),
    };
    return cmocka_run_group_tests_name("reader", tests, NULL, NULL);
}
