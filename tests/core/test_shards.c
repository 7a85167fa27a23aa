/* Directories of shards: where writers end a shard, which numbers they use, how
 * readers treat gaps and unfinished shards; and finalize. */
// flavours: test: asan; check: release
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"
#include "durability.h"

#include <errno.h>
#ifndef _WIN32
#include <sys/resource.h>
#endif
#include <unistd.h>

/* ---- shards with computed content ---- */

static const bags_field fields[] = {{"b", "utf8[]"}, {"a", "bytes"}};

static size_t formula_items(uint64_t index) { return (size_t)(index * 5 % 4); }

static size_t formula_text(uint64_t index, char *text) {
    size_t size = (size_t)snprintf(text, 64, "datapoint %d", (int)index);
    memset(text + size, '.', 64);
    return size + (size_t)(index * 7 % 50);
}

static void formula_row(hand_set *set, uint64_t index) {
    char text[128];
    set_begin(set);
    set_blob(set, 0, text, formula_text(index, text));
    set_items(set, 1, "item", formula_items(index));
    set_end(set);
}

static void formula_start(hand_set *set) {
    memset(set, 0, sizeof *set);
    set_field(set, "a", "bytes");
    set_field(set, "b", "utf8[]");
}

/* A shard with the datapoints first .. first + count - 1. */
static void save_shard(const char *path, uint64_t first, uint64_t count) {
    hand_set set;
    formula_start(&set);
    for (uint64_t i = 0; i < count; i++)
        formula_row(&set, first + i);
    set_save(&set, V1, path);
    set_free(&set);
}

/* Shards with these names, each with 3 datapoints, counted from the first. */
static void save_shards(const char *path, const char *const *names) {
    make_dir(path);
    for (size_t i = 0; names[i]; i++) {
        char shard[4096];
        snprintf(shard, sizeof shard, "%s/%s", path, names[i]);
        save_shard(shard, 3 * i, 3);
    }
}

static bags_code append_formula(bags_writer *writer, uint64_t index) {
    char text[128], item_texts[4][16];
    bags_value value = bags_blob(text, formula_text(index, text)), items[4];
    bags_entry entries[2];
    for (size_t i = 0; i < formula_items(index); i++) {
        snprintf(item_texts[i], 16, "item%d", (int)(i & 15));
        items[i] = bags_utf8(item_texts[i]);
    }
    entries[0].field = "a";
    entries[0].values = &value;
    entries[0].count = 1;
    entries[1].field = "b";
    entries[1].values = items;
    entries[1].count = formula_items(index);
    return bags_writer_append(writer, entries, 2, &said);
}

static void check_datapoint(
    const bags_reader *reader, uint64_t index, uint64_t formula, bags_row *row) {
    char text[128];
    assert_ok(bags_reader_get(reader, index, NULL, 0, row, &said));
    size_t size = formula_text(formula, text);
    assert_bytes(bags_row_bytes(row, 0, 0), text, size);
    assert_int_equal(bags_row_length(row, 1), formula_items(formula));
    for (size_t i = 0; i < formula_items(formula); i++) {
        snprintf(text, sizeof text, "item%d", (int)i);
        assert_text(bags_row_bytes(row, 1, i), text);
    }
}

static void the_path_of_a_shard_has_its_number(void **state) {
    bags_shard shard = {0};
    char path[16], end[4];
    (void)state;
    assert_ok(bags_shard_path("pets", &shard, path, sizeof path, &said));
    assert_string_equal(path, "pets");
    shard.number = 3;
    shard.digits = 6;
    assert_ok(bags_shard_path("pets", &shard, path, 12, &said));
    assert_string_equal(path, "pets/000003");
    assert_fails(BAGS_ERROR_LIMIT, bags_shard_path("pets", &shard, path, 11, &said));
    assert_string_equal(said.message, "pets: path too long (maximum 10)");
    shard.number = 1234567;
    assert_ok(bags_shard_path("", &shard, path, sizeof path, &said));
    assert_string_equal(path, "/1234567");
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = 0;
    shard.digits = 0;
    assert_fails(
        BAGS_ERROR_LIMIT, bags_shard_path(path, &shard, end, sizeof end, &said));
}

static void exactly_the_requested_bytes_are_read(void **state) {
    const bags_io *io = bags_io_local();
    const char *path = at("exactly.bin");
    char data[9] = "", nest[400];
    void *file = NULL;
    (void)state;
    save(path, "12345678", 8);
    assert_int_equal(io->open(io->user, path, BAGS_IO_READ, &file), 0);
    assert_ok(bags_read(io, file, path, 2, data, 6, &said));
    assert_string_equal(data, "345678");
    assert_ok(bags_read(io, file, path, 99, data, 0, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_read(io, file, path, 3, data, 6, &said));
    assert_non_null(strstr(said.message,
        "exactly.bin: truncated while open (ends at offset 8, 1 bytes missing)"));
    io->close(io->user, file);
    memset(nest, 'a', sizeof nest - 1);
    nest[sizeof nest - 1] = 0;
    assert_ptr_equal(bags_path_tail(nest), nest + sizeof nest - 1 - 320);
    assert_ptr_equal(bags_path_tail(path), path);
}

/* How many numbers below `stop`, every step-th from start, no shard of a reader
 * has. */
static uint64_t missing_before(
    const bags_reader *reader, uint64_t start, uint64_t stop, uint64_t step) {
    uint64_t missing = 0;
    size_t count = 0, i = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    for (uint64_t n = start; n < stop; n += step) {
        while (i < count && shards[i].number < n)
            i++;
        missing += i == count || shards[i].number != n;
    }
    return missing;
}

/* The reader must have `count` datapoints, with these formulas. */
static void check_formulas(
    const bags_reader *reader, const uint64_t *formulas, uint64_t count) {
    bags_row row = {0};
    assert_true(bags_reader_length(reader) == count);
    for (uint64_t i = 0; i < count; i++)
        check_datapoint(reader, i, formulas ? formulas[i] : i, &row);
    assert_fails(
        BAGS_ERROR_RANGE, bags_reader_get(reader, count, NULL, 0, &row, &said));
    bags_row_free(&row);
}

static bags_reader_options reading(void) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_reader *open_reader(const char *path, bool allow_gaps) {
    bags_reader_options options = reading();
    bags_reader *reader;
    options.allow_gaps = allow_gaps;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static bags_writer_options sharding(uint64_t size, uint64_t length) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.shard_size = size;
    options.shard_length = length;
    options.no_sync = true;
    options.buffer_size = 4096;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_writer *open_writer(const char *path, const bags_writer_options *options) {
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 2, options, &said));
    return writer;
}

/* ---- where shards end ---- */

/* The size that the Bags of the set will have together, tables included. */
static uint64_t hand_size(const hand_set *set) {
    uint64_t size = set->refs.blobs.size + set->refs.ends.size + 8;
    for (size_t i = 0; i < set->count; i++)
        size += set->bags[i].blobs.size + set->bags[i].ends.size + 8;
    return size;
}

static void save_number(memory_disk *to, hand_set *set, uint64_t number) {
    char shard[64];
    snprintf(shard, sizeof shard, "x/%06d", (int)number);
    memory_disk_save_set(to, set, V1, shard);
    set_free(set);
    formula_start(set);
}

/* Write shards by hand, ended as FORMAT.md says. Returns their number. */
static uint64_t cut_by_hand(memory_disk *to, uint64_t count, uint64_t size,
    uint64_t length, uint64_t first, uint64_t step) {
    hand_set set;
    uint64_t shards = 0;
    formula_start(&set);
    for (uint64_t i = 0; i < count; i++) {
        formula_row(&set, i);
        if ((size && hand_size(&set) >= size) ||
            (length && hand_length(&set.refs) >= length))
            save_number(to, &set, first + step * shards++);
    }
    if (hand_length(&set.refs))
        save_number(to, &set, first + step * shards++);
    set_free(&set);
    return shards;
}

static void check_cut(
    uint64_t count, uint64_t size, uint64_t length, uint64_t worker, uint64_t workers) {
    memory_disk by_hand, written;
    memory_disk_start(&by_hand);
    memory_disk_start(&written);
    bags_writer_options options = sharding(size, length);
    options.shard_start = worker;
    options.shard_stop = workers ? workers : 1;
    options.env.io = &written.io;
    bags_writer *writer = open_writer("x", &options);
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(append_formula(writer, i));
        assert_true(bags_writer_length(writer) == i + 1);
    }
    uint64_t finished = bags_writer_shards(writer);
    assert_ok(bags_writer_close(writer, &said));
    uint64_t shards =
        cut_by_hand(&by_hand, count, size, length, worker, workers ? workers : 1);
    assert_true(finished == shards || finished + 1 == shards);
    CHECK(is_same_disk(&by_hand, &written));
    memory_disk_free(&by_hand);
    memory_disk_free(&written);
}

static void shards_end_at_their_length(void **state) {
    (void)state;
    for (uint64_t length = 1; length <= 6; length++)
        for (uint64_t count = 1; count <= 12; count += 1 + length / 3)
            check_cut(count, 0, length, 0, 0);
}

static void shards_end_when_their_size_is_reached(void **state) {
    (void)state;
    /* Every size around that of the first shards. */
    for (uint64_t size = 1; size < 420; size += 1)
        check_cut(size < 200 ? 4 : 8, size, 0, 0, 0);
    for (uint64_t size = 1000; size < 4000; size += 333)
        check_cut(60, size, 0, 0, 0);
}

static void shards_end_at_whichever_limit_comes_first(void **state) {
    (void)state;
    for (uint64_t size = 50; size < 700; size += 30)
        for (uint64_t length = 1; length < 5; length++)
            check_cut(14, size, length, 0, 0);
}

static void limits_of_0_and_of_2_to_the_64_mean_no_limit(void **state) {
    (void)state;
    check_cut(20, 0, 0, 0, 0);
    check_cut(20, UINT64_MAX, UINT64_MAX, 0, 0);
}

static void workers_take_every_kth_number(void **state) {
    (void)state;
    for (uint64_t workers = 1; workers <= 4; workers++)
        for (uint64_t worker = 0; worker < workers; worker++) {
            check_cut(7, 0, 2, worker, workers);
            check_cut(7, 300, 0, worker, workers);
        }
    check_cut(3, 0, 1, 999999, 1000000);
}

static void each_shard_option_makes_the_dataset_sharded(void **state) {
    (void)state;
    for (int which = 0; which < 5; which++) {
        bags_writer_options options = sharding(0, 0);
        options.shard_size = which == 0 ? 100000 : 0;
        options.shard_length = which == 1 ? 100000 : 0;
        options.shard_stop = which == 2 || which == 3 ? 2 : which == 4 ? 1 : 0;
        options.shard_start = which == 3 ? 1 : 0;
        bags_writer *writer = open_writer(at("%d", which), &options);
        assert_false(exists(at("%d", which)));
        assert_ok(append_formula(writer, 0));
        assert_ok(bags_writer_close(writer, &said));
        assert_names(at("%d", which), which == 3 ? "000001" : "000000");
    }
}

static void invalid_worker_numbers_are_refused(void **state) {
    static const uint64_t rows[][2] = {{1, 1}, {2, 1}, {1, 0}, {5, 3}, {UINT64_MAX, 0},
        {UINT64_MAX, UINT64_MAX}, {UINT64_MAX, 1}};
    (void)state;
    save_shards(at("y"), (const char *const[]){"000000", "000001", NULL});
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_writer_options options = sharding(0, 0);
        bags_reader_options read = reading();
        options.shard_start = rows[i][0];
        options.shard_stop = rows[i][1];
        assert_refused(
            BAGS_ERROR_ARGUMENT, bags_writer_open(at("x"), fields, 2, &options, &said));
        read.shard_start = rows[i][0];
        read.shard_stop = rows[i][1];
        assert_refused(BAGS_ERROR_ARGUMENT, bags_reader_open(at("y"), &read, &said));
    }
    assert_names(at("."), "y");
}

static void numbers_end_below_10_to_the_18(void **state) {
    const uint64_t most = 1000000000000000000u;
    (void)state;
    bags_writer_options options = sharding(0, 1);
    options.shard_start = most;
    options.shard_stop = UINT64_MAX;
    poison();
    bags_writer *writer = bags_writer_open(at("x"), fields, 2, &options, &said);
    if (writer) {
        poison();
        assert_int_not_equal(append_formula(writer, 0), BAGS_OK);
        assert_int_not_equal(bags_writer_close(writer, NULL), BAGS_OK);
    }
    assert_true(said.code == BAGS_ERROR_LIMIT || said.code == BAGS_ERROR_ARGUMENT);
    for (int round = 0; round < 2; round++) {
        options.shard_start = most - 1;
        options.shard_stop = round ? UINT64_MAX : most;
        writer = open_writer(at("%d", round), &options);
        assert_ok(append_formula(writer, 0));
        poison();
        bags_code code = append_formula(writer, 1);
        assert_true(code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_ARGUMENT);
        assert_int_equal(bags_writer_close(writer, &said), code);
        assert_names(at("%d", round), "999999999999999999");
        bags_reader *reader = open_reader(at("%d", round), true);
        check_formulas(reader, NULL, 1);
        assert_int_equal(shard_count(reader), 1);
        assert_true(shard_at(reader, 0).number == most - 1);
        bags_reader_close(reader);
    }
}

/* ---- claiming shards ---- */

static void a_worker_that_appends_nothing_creates_nothing(void **state) {
    bags_writer_options options = sharding(0, 2);
    (void)state;
    bags_writer *writer = open_writer(at("p/q"), &options);
    assert_ok(bags_writer_flush(writer, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("."), "");
    bags_writer_abort(open_writer(at("p/q"), &options));
    assert_names(at("."), "");
    make_dir(at("here"));
    assert_ok(bags_writer_close(open_writer(at("here"), &options), &said));
    assert_names(at("here"), "");
}

static bool is_empty_or_missing(const char *path) {
    if (!exists(path))
        return true;
    char *names = names_in(path);
    bool empty = !*names;
    free(names);
    return empty;
}

static void a_shard_with_only_refused_datapoints_is_removed(void **state) {
    bags_writer_options options = sharding(0, 2);
    (void)state;
    for (int streamed = 0; streamed < 3; streamed++) {
        bags_writer *writer = open_writer(at("x"), &options);
        bags_value bad = bags_int(1), text = bags_utf8("text");
        bags_entry entries[2] = {{"a", &bad, 1}, {"b", NULL, 0}};
        if (!streamed) {
            assert_fails(
                BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 2, &said));
        } else {
            assert_ok(bags_writer_begin(writer, &said));
            for (int i = 0; i < 5000; i++)
                assert_ok(bags_writer_push(writer, "b", &text, &said));
            if (streamed == 1)
                bags_writer_cancel(writer);
            else
                assert_fails(BAGS_ERROR_FIELD, bags_writer_end(writer, &said));
        }
        assert_int_equal(
            bags_writer_close(writer, &said), streamed == 0   ? BAGS_ERROR_VALUE
                                              : streamed == 1 ? BAGS_OK
                                                              : BAGS_ERROR_FIELD);
        assert_true(is_empty_or_missing(at("x")));
    }
    /* The same after full shards. */
    bags_writer *writer = open_writer(at("y"), &options);
    for (uint64_t i = 0; i < 4; i++)
        assert_ok(append_formula(writer, i));
    assert_ok(bags_writer_begin(writer, &said));
    bags_writer_cancel(writer);
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("y"), "000000 000001");
}

static void a_shard_that_exists_is_left_alone(void **state) {
    bags_writer_options options = sharding(0, 2);
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", NULL});
    copy_tree(at("x"), at("before"));
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("000000");
    assert_same_tree(at("before"), at("x"));
    /* There is no directory: detected at once or by the first datapoint. */
    save_text(at("file"), "precious");
    poison();
    bags_writer *writer = bags_writer_open(at("file"), fields, 2, &options, &said);
    if (writer) {
        assert_int_not_equal(append_formula(writer, 0), BAGS_OK);
        assert_int_not_equal(bags_writer_close(writer, NULL), BAGS_OK);
    }
    assert_says("file");
    assert_file(at("file"), "precious", 8);
    /* The next number already exists. */
    writer = open_writer(at("y"), &options);
    assert_ok(append_formula(writer, 0));
    make_dir(at("y/000001"));
    assert_ok(append_formula(writer, 1));
    assert_fails(BAGS_ERROR_EXISTS, append_formula(writer, 2));
    assert_says("000001");
    assert_fails(BAGS_ERROR_EXISTS, append_formula(writer, 3));
    assert_fails(BAGS_ERROR_EXISTS, bags_writer_begin(writer, &said));
    assert_true(bags_writer_length(writer) == 2);
    assert_true(bags_writer_shards(writer) == 1);
    assert_fails(BAGS_ERROR_EXISTS, bags_writer_close(writer, &said));
    assert_names(at("y/000001"), "");
    remove_tree(at("y/000001"));
    bags_reader *reader = open_reader(at("y"), false);
    check_formulas(reader, NULL, 2);
    bags_reader_close(reader);
}

static void the_size_of_a_writer_is_that_of_the_bags_when_it_is_closed(void **state) {
    bags_writer_options options = sharding(0, 3);
    bags_info info;
    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        const char *path = at(sharded ? "x" : "y");
        bags_writer *writer = open_writer(path, sharded ? &options : NULL);
        uint64_t before = 0;
        for (uint64_t i = 0; i < 8; i++) {
            assert_ok(append_formula(writer, i));
            assert_true(bags_writer_size(writer) > before);
            before = bags_writer_size(writer);
        }
        assert_ok(bags_writer_close(writer, &said));
        bags_reader *reader = open_reader(path, false);
        assert_ok(bags_reader_info(reader, &info, NULL, &said));
        assert_true(info.size == before);
        bags_reader_close(reader);
    }
    assert_true(bags_writer_size(NULL) == 0);
}

static void two_workers_with_the_same_number_do_no_harm(void **state) {
    bags_writer_options options = sharding(0, 3);
    (void)state;
    bags_writer *first = open_writer(at("x"), &options);
    bags_writer *second = open_writer(at("x"), &options);
    assert_ok(append_formula(first, 0));
    assert_fails(BAGS_ERROR_EXISTS, append_formula(second, 7));
    assert_says("000000");
    for (uint64_t i = 1; i < 5; i++)
        assert_ok(append_formula(first, i));
    assert_fails(BAGS_ERROR_EXISTS, append_formula(second, 7));
    assert_fails(BAGS_ERROR_EXISTS, bags_writer_close(second, &said));
    assert_ok(bags_writer_close(first, &said));
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 5);
    bags_reader_close(reader);
}

static void abort_removes_only_the_unfinished_shard(void **state) {
    bags_writer_options options = sharding(0, 3);
    (void)state;
    bags_writer *writer = open_writer(at("x"), &options);
    for (uint64_t i = 0; i < 8; i++)
        assert_ok(append_formula(writer, i));
    assert_names(at("x"), "000000 000001 000002");
    assert_true(bags_writer_shards(writer) == 2);
    bags_writer_abort(writer);
    assert_names(at("x"), "000000 000001");
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 6);
    bags_reader_close(reader);
}

static void a_shard_that_is_full_is_finished_at_once(void **state) {
    bags_writer_options options = sharding(0, 2);
    (void)state;
    bags_writer *writer = open_writer(at("x"), &options);
    assert_ok(append_formula(writer, 0));
    assert_names(at("x/000000"), "a.bag a.idx b.bag b.idx refs.bag refs.idx "
                                 "spec.json.partial");
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    assert_says("000000: unfinished (no spec.json): its writer is running");
    assert_ok(append_formula(writer, 1));
    assert_names(at("x"), "000000");
    assert_names(at("x/000000"), "a.bag b.bag refs.bag spec.json");
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 2);
    bags_reader_close(reader);
    bags_writer_abort(writer);
}

/* ---- numbers ---- */

static void shards_are_ordered_by_number(void **state) {
    static const char *const sets[][6] = {
        {"000000", "000001", "000002", "000003", "000004", NULL},
        {"0", "1", "2", "3", "4", NULL},
        {"00", "001", "0000000002", "3", "000004", NULL},
        {"0000000000000000000000000000", "1", "02", "003", "0004", NULL},
    };
    static const char *const others[] = {"README", ".hidden", "12a", "a12", "-1", "+5",
        " 5", "5 ", "0x5", "1e1", "5.0", "\xd9\xa5", "", "5_0", "spec.json.old"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        save_shards(at("%d", (int)i), sets[i]);
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++)
            if (ON_WINDOWS && strcmp(others[k], "5 ") == 0)
                continue; /* "005" is 5 there */
            else if (others[k][0] && k % 2)
                make_dir(at("%d/%s", (int)i, others[k]));
            else if (others[k][0])
                save_text(at("%d/%s", (int)i, others[k]), "junk");
        bags_reader *reader = open_reader(at("%d", (int)i), false);
        assert_true(shard_count(reader) == 5);
        assert_true(reader_info(reader).sharded);
        check_formulas(reader, NULL, 15);
        for (size_t s = 0; s < 5; s++) {
            bags_shard shard = shard_at(reader, s);
            assert_true(shard.number == s && shard.start == 3 * s && shard.length == 3);
        }
        bags_reader_close(reader);
    }
}

static void shards_are_not_ordered_as_text(void **state) {
    (void)state;
    make_dir(at("x"));
    for (int i = 0; i < 25; i++)
        save_shard(at("x/%d", i), (uint64_t)i * 2, 2);
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 50);
    bags_reader_close(reader);
}

static void two_shards_with_the_same_number_are_an_error(void **state) {
    static const char *const rows[][3] = {{"1", "01", NULL}, {"000001", "1", NULL},
        {"0", "00", NULL}, {"000001", "0000000000000000000000000000000001", NULL}};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        save_shards(at("%d", (int)i), rows[i]);
        for (int allow = 0; allow < 2; allow++) {
            bags_reader_options options = reading();
            options.allow_gaps = allow == 1;
            options.unfinished =
                allow == 1 ? BAGS_UNFINISHED_SKIP : BAGS_UNFINISHED_REFUSE;
            assert_refused(BAGS_ERROR_CORRUPT,
                bags_reader_open(at("%d", (int)i), &options, &said));
            assert_says(rows[i][1]);
        }
    }
}

static void a_shard_number_above_the_limit_is_an_error(void **state) {
    static const char *const rows[] = {"1000000000000000000", "18446744073709551615",
        "18446744073709551616", "99999999999999999999999999999"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        bags_reader_options options = reading();
        save_shards(at("%d", (int)i), (const char *const[]){"000000", rows[i], NULL});
        options.allow_gaps = true;
        poison();
        assert_null(bags_reader_open(at("%d", (int)i), &options, &said));
        assert_true(said.code == BAGS_ERROR_LIMIT || said.code == BAGS_ERROR_CORRUPT);
    }
}

static void a_file_named_like_a_shard_does_no_harm(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", NULL});
    save_text(at("x/000002"), "no directory");
    bags_reader_options options = reading();
    poison();
    bags_reader *reader = bags_reader_open(at("x"), &options, &said);
    if (reader)
        check_formulas(reader, NULL, 6);
    else
        assert_says("000002");
    bags_reader_close(reader);
}

/* ---- gaps ---- */

static void gaps_are_refused_and_listed(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", "000002", "000003",
                             "000004", "000006", "000009", NULL});
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("x"), NULL, &said));
    assert_says("5");
    assert_says("7");
    assert_says("8");
    bags_reader *reader = open_reader(at("x"), true);
    check_formulas(reader, NULL, 21);
    assert_true(shard_count(reader) == 7);
    assert_true(shard_at(reader, 6).number == 9);
    assert_true(shard_at(reader, 5).number == 6);
    assert_true(missing_before(reader, 0, 9, 1) == 3);
    assert_ok(verify_path(at("x"), NULL, &said));
    assert_fails(BAGS_ERROR_GAP, bags_verify(at("x"), NULL, NULL, &said));
    bags_reader_close(reader);
}

static void many_single_gaps_are_counted_and_twenty_listed(void **state) {
    (void)state;
    make_dir(at("x"));
    for (int i = 0; i <= 600; i += 2)
        save_shard(at("x/%06d", i), 0, 1);
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("x"), NULL, &said));
    assert_says("missing shards 1, 3, 5*, 37, 39, ... (found 301 of 601)");
    bags_reader_close(open_reader(at("x"), true));
}

static void a_missing_first_shard_is_a_gap(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000002", "000003", NULL});
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("x"), NULL, &said));
    assert_says("0");
    assert_says("1");
    bags_reader *reader = open_reader(at("x"), true);
    check_formulas(reader, NULL, 6);
    assert_int_equal(shard_count(reader), 2);
    assert_true(shard_at(reader, 0).number == 2);
    assert_true(shard_at(reader, 1).number == 3);
    bags_reader_close(reader);
}

static void many_and_huge_gaps_need_no_memory(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"0", "2", "4", "6", "8", "10",
                             "999999999999999999", NULL});
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("x"), NULL, &said));
    bags_reader *reader = open_reader(at("x"), true);
    assert_int_equal(shard_count(reader), 7);
    assert_true(shard_at(reader, 5).number == 10);
    assert_true(shard_at(reader, 6).number == 999999999999999999u);
    assert_true(memory.peak < 200000);
    bags_reader_close(reader);
}

static void a_worker_reads_its_own_shards(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", "000002", "000003",
                             "000004", "000006", "000009", NULL});
    /* The position of each number's shard among those saved; 99: none. */
    static const uint64_t places[] = {0, 1, 2, 3, 4, 99, 5, 99, 99, 6};
    for (uint64_t stop = 1; stop < 12; stop++)
        for (uint64_t start = 0; start < stop; start++) {
            bags_reader_options options = reading();
            uint64_t formulas[64], count = 0, shards = 0, missing = 0, last = 0;
            for (uint64_t n = start; n < 10; n += stop)
                last = places[n] < 99 ? n : last;
            for (uint64_t n = start; n <= last; n += stop) {
                missing += places[n] == 99;
                shards += places[n] < 99;
                for (uint64_t k = 0; places[n] < 99 && k < 3; k++)
                    formulas[count++] = places[n] * 3 + k;
            }
            if (start > last)
                missing = shards = count = 0;
            options.shard_start = start;
            options.shard_stop = stop;
            options.allow_gaps = true;
            poison();
            bags_reader *reader = bags_reader_open(at("x"), &options, &said);
            if (!reader) {
                assert_int_equal(said.code, BAGS_ERROR_MISSING);
                assert_true(shards == 0);
                continue;
            }
            assert_true(shard_count(reader) == shards);
            check_formulas(reader, formulas, count);
            for (size_t i = 0; i < shards; i++)
                assert_true(places[shard_at(reader, i).number] < 99);
            if (shards)
                assert_true(missing_before(reader, start, last, stop) == missing);
            bags_reader_close(reader);
            options.allow_gaps = false;
            poison();
            reader = bags_reader_open(at("x"), &options, &said);
            assert_true((reader == NULL) == (missing > 0));
            if (!reader)
                assert_int_equal(said.code, BAGS_ERROR_GAP);
            bags_reader_close(reader);
        }
}

static void an_unsharded_dataset_belongs_to_worker_0(void **state) {
    (void)state;
    save_shard(at("x"), 0, 4);
    for (uint64_t stop = 1; stop < 4; stop++)
        for (uint64_t start = 0; start < stop; start++) {
            bags_reader_options options = reading();
            bags_reader *reader;
            size_t count = 0;
            options.shard_start = start;
            options.shard_stop = stop;
            assert_opens(reader, bags_reader_open(at("x"), &options, &said));
            check_formulas(reader, NULL, start ? 0 : 4);
            assert_int_equal(shard_count(reader), start ? 0 : 1);
            bags_reader_fields(reader, &count);
            assert_int_equal(count, 2);
            bags_reader_close(reader);
        }
}

/* ---- shares of workers ---- */

/* For every number of workers, their shares make up the complete: each datapoint
 * belongs to exactly one. `shards` of 2 datapoints; 0: unsharded. */
#define MOST_WORKERS 4

static void save_dataset(const char *path, uint64_t shards) {
    if (shards == 0)
        save_shard(path, 0, 4);
    else
        make_dir(path);
    for (uint64_t s = 0; s < shards; s++) {
        char shard[4096];
        snprintf(shard, sizeof shard, "%s/%06d", path, (int)s);
        save_shard(shard, 2 * s, 2);
    }
}

static void check_shares_of_readers(uint64_t shards, uint64_t workers) {
    uint64_t seen[16] = {0}, total = shards ? 2 * shards : 4;
    for (uint64_t w = 0; w < workers; w++) {
        bags_reader_options options = reading();
        bags_reader *reader;
        bags_row row = {0};
        options.shard_start = w;
        options.shard_stop = workers;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        size_t count = shard_count(reader);
        for (size_t s = 0; s < count; s++) {
            bags_shard shard = shard_at(reader, s);
            assert_true(shard.number % workers == w);
            for (uint64_t i = 0; i < shard.length; i++) {
                uint64_t formula = shard.number * 2 + i;
                check_datapoint(reader, shard.start + i, formula, &row);
                seen[formula]++;
            }
        }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
    for (uint64_t i = 0; i < 16; i++)
        assert_true(seen[i] == (i < total));
}

static void check_shares_of_verify(uint64_t workers) {
    bags_verify_options options;
    bags_verify_report complete, sum, one;
    memset(&options, 0, sizeof options);
    memset(&sum, 0, sizeof sum);
    options.env.io = &disk.io;
    assert_ok(bags_verify(at("x"), &options, &complete, &said));
    options.shard_stop = workers;
    for (uint64_t w = 0; w < workers; w++) {
        options.shard_start = w;
        assert_ok(bags_verify(at("x"), &options, &one, &said));
        sum.shards += one.shards;
        sum.files += one.files;
        sum.blobs += one.blobs;
        sum.datapoints += one.datapoints;
        sum.bytes += one.bytes;
        sum.bags += one.bags;
        sum.checksums += one.checksums;
    }
    assert_memory_equal(&sum, &complete, sizeof sum);
}

static void check_shares_of_checksum(uint64_t shards, uint64_t workers) {
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.env.io = &disk.io;
    options.shard_stop = workers;
    uint64_t made = 0, bags = 3 * (shards ? shards : 1);
    for (uint64_t w = 0; w < workers; w++) {
        bags_checksum_report report;
        options.shard_start = w;
        assert_ok(bags_checksum(at("x"), &options, &report, &said));
        assert_int_equal(report.kept, 0);
        made += report.made;
    }
    assert_int_equal(made, bags);
    bags_verify_report report;
    assert_ok(bags_verify(at("x"), NULL, &report, &said));
    assert_true(report.checksums == bags && report.bags == bags);
}

static void every_datapoint_is_in_the_share_of_one_worker(void **state) {
    (void)state;
    for (uint64_t shards = 0; shards < 6; shards += shards ? 2 : 1)
        for (uint64_t workers = 1; workers <= MOST_WORKERS; workers++) {
            save_dataset(at("x"), shards);
            if (shards >= workers || shards == 0)
                check_shares_of_readers(shards, workers);
            check_shares_of_verify(workers);
            check_shares_of_checksum(shards, workers);
            check_shares_of_verify(workers);
            remove_tree(at("x"));
        }
}

static void every_crashed_shard_is_recovered_by_one_worker(void **state) {
    (void)state;
    for (uint64_t writers = 0; writers < 4; writers++)
        for (uint64_t workers = 1; workers <= MOST_WORKERS; workers++) {
            uint64_t finished = 0, length = 0;
            for (uint64_t i = 0; i < (writers ? writers : 1); i++) {
                crash_device device;
                bags_writer *writer;
                crash_device_start(&device, bags_io_local());
                work w = work_on(at("x"), writers ? 9 : 0, &device.io);
                w.options.shard_start = i;
                w.options.shard_stop = writers;
                assert_opens(writer, work_open(&w, false, &said));
                assert_ok(work_append_to(&w, writer, 3 + i, &said));
                assert_ok(work_flush(&w, writer, &said));
                crash_writer(&device, writer);
            }
            for (uint64_t i = 0; i < workers; i++) {
                bags_recover_options options;
                bags_recover_report report;
                memset(&options, 0, sizeof options);
                options.no_sync = true;
                options.shard_start = i;
                options.shard_stop = workers;
                assert_ok(bags_recover(at("x"), &options, &report, &said));
                assert_int_equal(report.finished_before, 0);
                finished += report.finished_now;
                length += report.length;
            }
            assert_int_equal(finished, writers ? writers : 1);
            bags_reader *reader = open_reader(at("x"), false);
            assert_true(bags_reader_length(reader) == length);
            bags_reader_close(reader);
            remove_tree(at("x"));
        }
}

/* ---- unfinished ---- */

static void unfinished_shards_are_refused_or_skipped(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        save_shards(at("x"),
            (const char *const[]){"000000", "000001", "000002", "000003", NULL});
        remove_tree(at("x/000002/spec.json"));
        if (how == 1)
            save_text(at("x/000002/spec.json.partial"), "{}");
        if (how == 2) {
            remove_tree(at("x/000002"));
            make_dir(at("x/000002"));
        }
        if (how == 3) {
            remove_tree(at("x/000003"));
            make_dir(at("x/000003"));
            make_dir(at("x/000004"));
        }
        assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
        assert_says("000002");
        assert_says("recover");
        bags_reader_options options = reading();
        options.allow_gaps = true;
        assert_refused(
            BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), &options, &said));
        options.allow_gaps = false;
        options.unfinished = BAGS_UNFINISHED_SKIP;
        bags_reader *reader;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        static const uint64_t formulas[] = {0, 1, 2, 3, 4, 5, 9, 10, 11};
        check_formulas(reader, formulas, how == 3 ? 6 : 9);
        assert_true(reader_info(reader).skipped == (how == 3 ? 3 : 1));
        bags_reader_close(reader);
        remove_tree(at("x"));
    }
}

static void a_dataset_with_only_unfinished_shards_is_refused(void **state) {
    (void)state;
    make_dir(at("x"));
    make_dir(at("x/000000"));
    make_dir(at("x/000001"));
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    bags_reader_options options = reading();
    options.unfinished = BAGS_UNFINISHED_SKIP;
    poison();
    bags_reader *reader = bags_reader_open(at("x"), &options, &said);
    if (reader) {
        assert_true(bags_reader_length(reader) == 0);
        assert_true(reader_info(reader).skipped == 2);
    } else {
        assert_true(
            said.code == BAGS_ERROR_UNFINISHED || said.code == BAGS_ERROR_MISSING);
    }
    bags_reader_close(reader);
}

static void a_directory_without_a_dataset_is_missing(void **state) {
    (void)state;
    make_dir(at("empty"));
    make_dir(at("junk"));
    save_text(at("junk/notes.txt"), "none");
    make_dir(at("junk/data"));
    save_text(at("file"), "none");
    assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("nowhere"), NULL, &said));
    assert_says("nowhere");
    assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("empty"), NULL, &said));
    assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("junk"), NULL, &said));
    assert_null(bags_reader_open(at("file"), NULL, &said));
    assert_null(bags_reader_open("", NULL, &said));
    assert_null(bags_reader_open(at("nowhere"), NULL, NULL));
}

static void a_directory_with_spec_and_shards_is_an_error(void **state) {
    (void)state;
    save_shard(at("x"), 0, 4);
    save_shard(at("x/000000"), 5, 2);
    copy_tree(at("x"), at("copy"));
    bags_writer_options options = sharding(0, 3);
    assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("x"), NULL, &said));
    assert_says("x: has both spec.json and shards (000000)");
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
    assert_says("x: has both");
    assert_fails(BAGS_ERROR_CORRUPT, bags_recover(at("x"), NULL, NULL, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_checksum(at("x"), NULL, NULL, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_finalize(at("x"), NULL, NULL, &said));
    for (int i = 0; i < 2; i++) {
        options.existing = BAGS_EXISTING_RESUME;
        options.shard_length = i ? 3 : 0;
        assert_refused(
            BAGS_ERROR_CORRUPT, bags_writer_open(at("x"), fields, 2, &options, &said));
    }
    options.existing = BAGS_EXISTING_REFUSE;
    options.shard_start = 1;
    options.shard_stop = 2;
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_same_tree(at("x"), at("copy"));
    /* A file with a number for a name is no shard. */
    remove_tree(at("x/000000"));
    save_text(at("x/000000"), "notes");
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 4);
    bags_reader_close(reader);
}

/* ---- specs ---- */

static void shards_of_different_specs_are_an_error(void **state) {
    static const char *const specs[] = {"{\"a\": \"bytes\"}", "{}",
        "{\"a\": \"bytes\", \"b\": \"utf8\"}", "{\"a\": \"utf8\", \"b\": \"utf8[]\"}",
        "{\"a\": \"bytes\", \"c\": \"utf8[]\"}",
        "{\"a\": \"bytes\", \"b\": \"utf8[]\", \"c\": \"utf8\"}"};
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", "000002", NULL});
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        save_text(at("x/000001/spec.json"), specs[i]);
        assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("x"), NULL, &said));
        assert_says("000001");
    }
    save_text(at("x/000001/spec.json"),
        "\n{ \"a\" :\t\"bytes\",\"b\"\r:\"ut\\u0066\\u0038[]\" }\n");
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 9);
    bags_reader_close(reader);
}

static void shards_of_different_variants_are_read_together(void **state) {
    (void)state;
    make_dir(at("x"));
    for (int i = 0; i < 6; i++) {
        hand_set set;
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "bytes");
        for (uint64_t k = 0; k < 4; k++) {
            char text[128];
            set_begin(&set);
            set_blob(&set, 0, text, formula_text((uint64_t)i * 4 + k, text));
            set_end(&set);
        }
        set_save(&set, (enum variant)(i % 3), at("x/%06d", i));
        set_free(&set);
    }
    bags_reader *reader = open_reader(at("x"), false);
    bags_row row = {0};
    assert_true(bags_reader_length(reader) == 24);
    assert_ok(bags_verify(at("x"), NULL, NULL, &said));
    for (uint64_t start = 0; start < 24; start++) {
        char text[128];
        assert_ok(bags_reader_get_range(reader, start, 24, 0, &row, &said));
        for (uint64_t i = start; i < 24; i++) {
            size_t size = formula_text(i, text);
            assert_bytes(bags_row_bytes(&row, 0, (size_t)(i - start)), text, size);
        }
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- ranges, sums ---- */

/* Shards of 0, 1, 5, 0, 2, 3, 0 datapoints. */
static void save_uneven(const char *path) {
    static const uint64_t lengths[] = {0, 1, 5, 0, 2, 3, 0};
    uint64_t first = 0;
    make_dir(path);
    for (int i = 0; i < 7; i++) {
        char shard[4096];
        snprintf(shard, sizeof shard, "%s/%06d", path, i);
        save_shard(shard, first, lengths[i]);
        first += lengths[i];
    }
}

static void ranges_may_span_shards(void **state) {
    (void)state;
    save_uneven(at("x"));
    for (int no_mmap = 0; no_mmap < 3; no_mmap++) {
        bags_reader_options options = reading();
        bags_reader *reader;
        bags_row row = {0};
        options.no_mmap = no_mmap > 0;
        options.cache_index = no_mmap > 1;
        options.max_files = no_mmap ? 1 : 0;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        check_formulas(reader, NULL, 11);
        for (uint64_t start = 0; start < 13; start++)
            for (uint64_t stop = start; stop < 14; stop++) {
                char text[128];
                assert_ok(bags_reader_get_range(reader, start, stop, 0, &row, &said));
                uint64_t end = stop < 11 ? stop : 11;
                uint64_t length = start < end ? end - start : 0;
                assert_int_equal(bags_row_length(&row, 0), length);
                for (size_t i = 0; i < length; i++) {
                    size_t size = formula_text(start + i, text);
                    assert_bytes(bags_row_bytes(&row, 0, i), text, size);
                }
            }
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void sizes_and_blobs_are_added_up_over_shards(void **state) {
    (void)state;
    save_uneven(at("x"));
    uint64_t expected = 0, items = 0, text_bytes = 0;
    bags_info info;
    bags_field_info infos[2];
    char text[128];
    for (int i = 0; i < 7; i++)
        expected += file_size(at("x/%06d/a.bag", i)) +
                    file_size(at("x/%06d/b.bag", i)) +
                    file_size(at("x/%06d/refs.bag", i));
    for (uint64_t i = 0; i < 11; i++) {
        items += formula_items(i);
        text_bytes += formula_text(i, text);
    }
    bags_reader *reader = open_reader(at("x"), false);
    assert_ok(bags_reader_info(reader, &info, infos, &said));
    assert_true(info.size == expected && info.sharded);
    assert_true(infos[0].blobs == 11 && infos[0].size == text_bytes);
    assert_true(infos[1].blobs == items && infos[1].size == items * 5);
    assert_ok(bags_reader_info(reader, &info, NULL, &said));
    assert_true(info.size == expected);
    assert_true(shard_count(reader) == 7);
    assert_true(shard_at(reader, 4).start == 6);
    assert_true(shard_at(reader, 4).length == 2);
    bags_reader_close(reader);
}

static void faults_name_the_shard(void **state) {
    (void)state;
    save_uneven(at("x"));
    bytes file = load(at("x/000004/a.bag"));
    uint64_t start = load_u64(file.data + file.size - 8);
    memset(file.data + start + 8, 0xff, 8);
    save(at("x/000004/a.bag"), file.data, file.size);
    bytes_free(&file);
    bags_reader *reader = open_reader(at("x"), false);
    bags_row row = {0};
    assert_fails(BAGS_ERROR_CORRUPT, bags_reader_get(reader, 6, NULL, 0, &row, &said));
    assert_says("000004/a.bag");
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
    assert_says("000004/a.bag");
    check_datapoint(reader, 8, 8, &row);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- many shards at once ---- */

static void thousands_of_shards_are_read_with_few_files(void **state) {
    const uint64_t shards = 2500, different = 50;
    struct rlimit before, few;
    (void)state;
    skip_on_windows("needs symbolic links and limits of open files");
    make_dir(at("x"));
    for (uint64_t i = 0; i < shards; i++) {
        hand_set set;
        char text[128], target[8];
        if (i >= different) {
            snprintf(target, sizeof target, "%06d", (int)(i % different));
            assert_int_equal(symlink(target, at("x/%06d", (int)i)), 0);
            continue;
        }
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "bytes");
        set_begin(&set);
        set_blob(&set, 0, text, formula_text(i, text));
        set_end(&set);
        set_save(&set, V1, at("x/%06d", (int)i));
        set_free(&set);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    for (int mode = 0; mode < 5; mode++) {
        bags_reader_options options = reading();
        bags_reader *reader;
        bags_row row = {0};
        /* Fewer files than max_files: the limit is then exceeded. */
        few.rlim_cur = mode == 4 ? 40 : 256;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        options.no_mmap = mode == 1 || mode == 2 || mode == 4;
        options.max_files = mode == 2 ? 3 : 0;
        disk.most_maps = mode == 3 ? 100 : 0;
        disk.peak_files = disk.peak_maps = 0;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        assert_true(disk.peak_files <= 66);
        assert_true(bags_reader_length(reader) == shards);
        for (uint64_t i = 0; i < shards; i++) {
            char text[128];
            uint64_t index = i * 1237 % shards;
            size_t size = formula_text(index % different, text);
            assert_ok(bags_reader_get(reader, index, NULL, 0, &row, &said));
            assert_bytes(bags_row_bytes(&row, 0, 0), text, size);
        }
        assert_ok(bags_reader_get_range(reader, 100, 2100, 0, &row, &said));
        assert_int_equal(bags_row_length(&row, 0), 2000);
        assert_true(disk.peak_files <= (mode == 2 ? 4 : 66));
        if (mode == 3)
            assert_true(disk.peak_maps <= 100);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---- finalize ---- */

static void check_finalized(const char *path, const char *names, uint64_t count) {
    char *mark = strdup(path);
    mark = (char *)realloc(mark, strlen(path) + 20);
    strcat(mark, "/000000/finalized");
    assert_names(path, names);
    assert_true(exists(mark));
    bags_reader *reader = open_reader(path, false);
    check_formulas(reader, NULL, count);
    bags_reader_close(reader);
    free(mark);
}

static bags_code finalize(const char *path, uint64_t *renamed) {
    bags_finalize_options options;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return bags_finalize(path, &options, renamed, &said);
}

static void finalize_closes_gaps(void **state) {
    uint64_t renamed = 99;
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", "000002", "000003",
                             "000004", "000006", "000009", NULL});
    assert_ok(finalize(at("x"), &renamed));
    assert_true(renamed == 2);
    check_finalized(at("x"), "000000 000001 000002 000003 000004 000005 000006", 21);
    assert_ok(finalize(at("x"), &renamed));
    assert_true(renamed == 0);
    assert_ok(finalize(at("x"), NULL));
    check_finalized(at("x"), "000000 000001 000002 000003 000004 000005 000006", 21);
    assert_file(at("x/000000/finalized"), "", 0);
    assert_ok(verify_path(at("x"), NULL, &said));
    save_shards(at("y"), (const char *const[]){
                             "000003", "000004", "001000", "999999999999999999", NULL});
    save_text(at("y/notes.txt"), "mine");
    assert_int_equal(bags_finalize(at("y"), NULL, &renamed, NULL), 0);
    assert_true(renamed == 4);
    check_finalized(at("y"), "000000 000001 000002 000003 notes.txt", 12);
}

static void finalize_syncs_the_directory_unless_no_sync_is_set(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        bags_finalize_options options;
        memset(&options, 0, sizeof options);
        options.env.io = &disk.io;
        options.no_sync = i == 1;
        save_shards(at("x%d", i), (const char *const[]){"000001", "000003", NULL});
        uint64_t before = disk.counts[HOOK_SYNC_DIR];
        assert_ok(bags_finalize(at("x%d", i), &options, NULL, &said));
        assert_int_equal(disk.counts[HOOK_SYNC_DIR] > before, i == 0);
        check_finalized(at("x%d", i), "000000 000001", 6);
    }
}

static void finalize_gives_names_six_digits(void **state) {
    uint64_t renamed = 99;
    (void)state;
    save_shards(at("x"),
        (const char *const[]){"0", "01", "002", "3", "10", "0000011", "012", NULL});
    assert_ok(finalize(at("x"), &renamed));
    check_finalized(at("x"), "000000 000001 000002 000003 000004 000005 000006", 21);
    assert_true(renamed == 7);
}

static void finalize_refuses_unfinished_shards(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        bags_writer_options options = sharding(0, 3);
        bags_writer *writer = NULL;
        uint64_t renamed = 99;
        save_shards(at("x"), (const char *const[]){"000001", "000005", "000009", NULL});
        if (how == 0)
            remove_tree(at("x/000009/spec.json"));
        if (how == 1)
            make_dir(at("x/000007"));
        if (how == 2) {
            options.shard_start = 12;
            options.shard_stop = 13;
            writer = open_writer(at("x"), &options);
            assert_ok(append_formula(writer, 0));
        }
        char *names = names_in(at("x"));
        poison();
        bags_code code = finalize(at("x"), &renamed);
        assert_true(
            code == BAGS_ERROR_UNFINISHED || (how == 2 && code == BAGS_ERROR_LOCKED));
        assert_says(how == 0 ? "000009" : how == 1 ? "000007" : "000012");
        /* It is for users of the command too. */
        assert_null(strstr(said.message, "BAGS_"));
        assert_true(renamed == 99);
        assert_names(at("x"), names);
        assert_false(exists(at("x/000001/finalized")));
        free(names);
        bags_writer_abort(writer);
        remove_tree(at("x"));
    }
}

static void finalize_refuses_two_shards_with_the_same_number(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"1", "01", "000007", NULL});
    assert_fails(BAGS_ERROR_CORRUPT, finalize(at("x"), NULL));
    assert_names(at("x"), "000007 01 1");
}

static void finalize_changes_nothing_if_the_dataset_is_not_sharded(void **state) {
    uint64_t renamed = 99;
    (void)state;
    assert_fails(BAGS_ERROR_MISSING, finalize(at("nowhere"), &renamed));
    assert_true(renamed == 99);
    save_shard(at("x"), 0, 3);
    copy_tree(at("x"), at("y"));
    if (!finalize(at("x"), &renamed))
        assert_true(renamed == 0);
    assert_same_tree(at("y"), at("x"));
    make_dir(at("empty"));
    renamed = 0;
    if (!finalize(at("empty"), &renamed))
        assert_true(renamed == 0);
    assert_names(at("empty"), "");
    save_text(at("file"), "precious");
    assert_int_not_equal(finalize(at("file"), NULL), BAGS_OK);
    assert_file(at("file"), "precious", 8);
}

static void a_file_in_the_way_of_finalize_is_kept(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000001", "000005", NULL});
    save_text(at("x/000000"), "precious");
    poison();
    bags_code code = finalize(at("x"), NULL);
    assert_int_not_equal(code, BAGS_OK);
    assert_file(at("x/000000"), "precious", 8);
    remove_tree(at("x/000000"));
    bags_reader *reader = open_reader(at("x"), true);
    check_formulas(reader, NULL, 6);
    bags_reader_close(reader);
}

/* The process crashes, or the disk fails, at every call. */
static void finalize_may_be_interrupted_anywhere(void **state) {
    static const char *const names[] = {
        "000002", "3", "000005", "000006", "07", "000008", "000100", NULL};
    unsigned points = 0;
    (void)state;
    for (int every = 0; every < 2; every++)
        for (uint64_t n = 1;; n++) {
            uint64_t renamed = 99;
            save_shards(at("x"), names);
            disk.only = every ? 0 : 1u << HOOK_RENAME;
            disk.calls = 0;
            disk.failed = 0;
            disk.fail_at = n;
            disk.stays = true;
            disk.fail_with = EIO;
            poison();
            bags_code code = finalize(at("x"), &renamed);
            bool reached = disk.failed > 0;
            disk.fail_at = 0;
            disk.only = 0;
            if (reached && code) {
                assert_int_equal(said.code, code);
                assert_true(renamed == 99);
                points++;
            }
            /* No worker resumes what has been renamed. */
            if (!exists(at("x/000002")))
                assert_true(exists(at("x/000000/finalized")));
            bags_reader *reader = open_reader(at("x"), true);
            check_formulas(reader, NULL, 21);
            bags_reader_close(reader);
            assert_ok(finalize(at("x"), &renamed));
            check_finalized(
                at("x"), "000000 000001 000002 000003 000004 000005 000006", 21);
            remove_tree(at("x"));
            if (!reached) {
                assert_int_equal(code, BAGS_OK);
                break;
            }
        }
    print_message("finalize was interrupted at %u points\n", points);
    assert_true(points >= 7);
}

/* ---- workers and finalize ---- */

enum { ANEW, RESUME, APPEND };

static bags_writer_options worker(uint64_t start, uint64_t stop, int how) {
    bags_writer_options options = sharding(0, 3);
    options.shard_start = start;
    options.shard_stop = stop;
    options.existing = how == RESUME   ? BAGS_EXISTING_RESUME
                       : how == APPEND ? BAGS_EXISTING_APPEND
                                       : BAGS_EXISTING_REFUSE;
    return options;
}

/* Datapoints that continue the list, by one worker. */
static void write_as(
    const bags_writer_options *options, uint64_t start, uint64_t stop) {
    bags_writer *writer = open_writer(at("x"), options);
    for (uint64_t i = start; i < stop; i++)
        assert_ok(append_formula(writer, i));
    assert_ok(bags_writer_close(writer, &said));
}

static void a_worker_whose_shard_is_missing_is_refused(void **state) {
    (void)state;
    for (uint64_t start = 0; start < 2; start++)
        for (int how = ANEW; how <= APPEND; how++) {
            bags_writer_options options = worker(start, 2, how);
            save_shards(at("x"),
                start ? (const char *const[]){"000000", "000003", NULL}
                      : (const char *const[]){"000000", "000001", "000004", NULL});
            copy_tree(at("x"), at("before"));
            poison();
            assert_refused(how || start ? BAGS_ERROR_GAP : BAGS_ERROR_EXISTS,
                bags_writer_open(at("x"), fields, 2, &options, &said));
            if (how || start)
                assert_says(start ? "missing shards 1 *other worker numbers"
                                  : "missing shards 2 *other worker numbers");
            assert_same_tree(at("before"), at("x"));
            remove_tree(at("x"));
            remove_tree(at("before"));
        }
    /* Gaps of other workers are none of its own. */
    save_shards(at("x"), (const char *const[]){"000001", "000006", NULL});
    bags_writer_options options = worker(1, 5, RESUME);
    bags_writer *writer = open_writer(at("x"), &options);
    assert_true(bags_writer_resumed(writer) == 6);
    bags_writer_abort(writer);
}

/* Four workers, the last of whom had nothing to write; then three. */
static void another_number_of_workers_is_named(void **state) {
    (void)state;
    bags_writer_options options = worker(0, 3, RESUME);
    save_shards(at("x"), (const char *const[]){"000000", "000001", "000002", "000004",
                             "000005", "000006", NULL});
    poison();
    assert_refused(
        BAGS_ERROR_GAP, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says(
        "missing shards 3 *other worker numbers: shard_stop 4 would fit, not 3");
    remove_tree(at("x"));
    /* None fits these, of which each number above would be a worker's first. */
    save_shards(at("x"), (const char *const[]){"000001", "000002", NULL});
    options = worker(0, 1, RESUME);
    poison();
    assert_refused(
        BAGS_ERROR_GAP, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("missing shards 0 *other worker numbers");
    assert_null(strstr(said.message, "would fit"));
}

static void workers_refuse_a_finalized_dataset(void **state) {
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000002", NULL});
    assert_ok(finalize(at("x"), NULL));
    copy_tree(at("x"), at("before"));
    for (uint64_t start = 0; start < 3; start++)
        for (int how = ANEW; how <= RESUME; how++) {
            bags_writer_options options = worker(start, 3, how);
            assert_refused(BAGS_ERROR_EXISTS,
                bags_writer_open(at("x"), fields, 2, &options, &said));
            assert_says(how ? "x: finalized" : "x");
        }
    assert_same_tree(at("before"), at("x"));
    bags_writer_options options = worker(0, 1, RESUME);
    options.existing = (bags_existing)3;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("x: invalid option (existing 3)");
}

static void append_continues_after_finalize(void **state) {
    bags_writer_options options = worker(0, 1, APPEND);
    (void)state;
    save_shards(at("x"), (const char *const[]){"000001", "000004", NULL});
    assert_ok(finalize(at("x"), NULL));
    write_as(&options, 6, 10);
    write_as(&options, 10, 11);
    check_finalized(at("x"), "000000 000001 000002 000003 000004", 11);
    /* Of several, each starts after all that exist. */
    options = worker(1, 4, APPEND);
    write_as(&options, 11, 15);
    assert_names(at("x"), "000000 000001 000002 000003 000004 000005 000009");
    options = worker(0, 4, APPEND);
    write_as(&options, 15, 16);
    assert_names(at("x"), "000000 000001 000002 000003 000004 000005 000009 000012");
    assert_ok(finalize(at("x"), NULL));
    check_finalized(
        at("x"), "000000 000001 000002 000003 000004 000005 000006 000007", 16);
}

/* Checksums of some shards only would be a fault that verify finds. */
static void new_shards_have_the_files_that_the_finished_ones_have(void **state) {
    (void)state;
    for (int how = RESUME; how <= APPEND; how++)
        for (unsigned has = 0; has < 4; has++) {
            bags_writer_options options = worker(0, 2, ANEW);
            options.checksum = has & 1;
            options.keep_idx = has & 2;
            write_as(&options, 0, 2);
            for (unsigned asks = 0; asks < 4; asks++) {
                options = worker(0, 2, how);
                options.checksum = asks & 1;
                options.keep_idx = asks & 2;
                if ((asks & has) == asks)
                    continue;
                assert_refused(BAGS_ERROR_VALUE,
                    bags_writer_open(at("x"), fields, 2, &options, &said));
                assert_says((asks & ~has) & 1 ? "x/000000: has no checksums"
                                              : "x/000000: has no .idx files");
            }
            /* Its own shards follow, as do those of a worker that has none. */
            options = worker(0, 2, how);
            write_as(&options, 2, 4);
            options = worker(1, 2, how);
            write_as(&options, 4, 6);
            assert_names(at("x"), "000000 000001 000002");
            for (int i = 0; i < 3; i++) {
                char name[32];
                snprintf(name, sizeof name, "x/%06d/refs.crc", i);
                assert_int_equal(exists(at(name)), has & 1);
                snprintf(name, sizeof name, "x/%06d/refs.idx", i);
                assert_int_equal(exists(at(name)), (has & 2) != 0);
            }
            assert_ok(bags_verify(at("x"), NULL, NULL, &said));
            remove_tree(at("x"));
        }
}

static void shards_after_a_resumed_one_with_checksums_have_them(void **state) {
    bags_writer_options options = worker(0, 1, ANEW);
    (void)state;
    options.checksum = true;
    bags_writer *writer = open_writer(at("x"), &options);
    assert_ok(append_formula(writer, 0));
    assert_ok(bags_writer_flush(writer, &said));
    /* It crashes: what it leaves is copied, and brought back after it ends. */
    copy_tree(at("x"), at("crashed"));
    bags_writer_abort(writer);
    copy_tree(at("crashed"), at("x"));
    options = worker(0, 1, RESUME);
    options.shard_length = 2;
    write_as(&options, 1, 5);
    assert_names(at("x"), "000000 000001 000002");
    assert_true(exists(at("x/000000/refs.crc")));
    assert_true(exists(at("x/000002/refs.crc")));
    assert_ok(bags_verify(at("x"), NULL, NULL, &said));
}

/* It would store again what the interrupted `append` has stored. */
static void append_refuses_an_unfinished_shard_after_finalize(void **state) {
    bags_writer_options options = worker(0, 1, APPEND);
    (void)state;
    save_shards(at("x"), (const char *const[]){"000001", NULL});
    assert_ok(finalize(at("x"), NULL));
    bags_writer *writer = open_writer(at("x"), &options);
    assert_ok(append_formula(writer, 3));
    assert_ok(bags_writer_flush(writer, &said));
    /* It crashes: what it leaves is copied, and brought back after it ends. */
    copy_tree(at("x"), at("crashed"));
    bags_writer_abort(writer);
    remove_tree(at("x"));
    copy_tree(at("crashed"), at("x"));
    for (int again = 0; again < 2; again++) {
        assert_refused(BAGS_ERROR_UNFINISHED,
            bags_writer_open(at("x"), fields, 2, &options, &said));
        assert_says("x/000001: unfinished (datapoints: 1)*recover*append");
        assert_same_tree(at("crashed"), at("x"));
    }
    assert_ok(bags_recover(at("x"), NULL, NULL, &said));
    writer = open_writer(at("x"), &options);
    assert_true(bags_writer_resumed(writer) == 0);
    assert_ok(bags_writer_close(writer, &said));
    write_as(&options, 4, 7);
    check_finalized(at("x"), "000000 000001 000002", 7);
    /* Without finalize its numbers must fit; it resumes otherwise. */
    remove_tree(at("x/000000/finalized"));
    options = worker(0, 1, RESUME);
    write_as(&options, 7, 8);
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 8);
    bags_reader_close(reader);
}

/* What `append` wrote would count as the input of the worker that crashed, which
 * could never be resumed. */
static void append_refuses_the_shard_of_an_interrupted_input(void **state) {
    bags_writer_options first = worker(0, 1, ANEW);
    bags_writer_options again = worker(0, 1, RESUME);
    bags_writer_options append = worker(0, 1, APPEND);
    (void)state;
    for (int recover = 0; recover < 2; recover++) {
        bags_writer *writer = open_writer(at("x"), &first);
        for (uint64_t i = 0; i < 4; i++)
            assert_ok(append_formula(writer, i));
        assert_ok(bags_writer_flush(writer, &said));
        copy_tree(at("x"), at("crashed"));
        bags_writer_abort(writer);
        remove_tree(at("x"));
        copy_tree(at("crashed"), at("x"));
        assert_refused(BAGS_ERROR_UNFINISHED,
            bags_writer_open(at("x"), fields, 2, &append, &said));
        assert_says("x/000001: unfinished (datapoints: 1)*bags_recover*append");
        assert_same_tree(at("crashed"), at("x"));
        /* Either way the input is continued, and then another one appended. */
        if (recover) {
            assert_ok(bags_recover(at("x"), NULL, NULL, &said));
        } else {
            writer = open_writer(at("x"), &again);
            assert_true(bags_writer_resumed(writer) == 4);
            assert_ok(bags_writer_close(writer, &said));
        }
        write_as(&append, 4, 8);
        bags_reader *reader = open_reader(at("x"), false);
        check_formulas(reader, NULL, 8);
        bags_reader_close(reader);
        remove_tree(at("x"));
        remove_tree(at("crashed"));
    }
    /* A shard without a datapoint holds no one's input. */
    save_shards(at("x"), (const char *const[]){"000000", NULL});
    make_dir(at("x/000001"));
    write_as(&append, 3, 5);
    bags_reader *reader = open_reader(at("x"), false);
    check_formulas(reader, NULL, 5);
    bags_reader_close(reader);
}

/* It is removed, and its number is used again: a gap would be an error of readers. */
static void append_after_finalize_leaves_no_gap_for_an_empty_shard(void **state) {
    bags_writer_options options = worker(0, 1, APPEND);
    (void)state;
    save_shards(at("x"), (const char *const[]){"000001", NULL});
    assert_ok(finalize(at("x"), NULL));
    make_dir(at("x/000001"));
    write_as(&options, 3, 5);
    check_finalized(at("x"), "000000 000001", 5);
}

/* Three workers crashed before their first flush; one takes their place. */
static void several_empty_shards_leave_no_gap(void **state) {
    (void)state;
    for (uint64_t first = 0; first < 2; first++)
        for (int how = RESUME; how <= APPEND; how++) {
            bags_writer_options options = worker(0, 1, how);
            if (first)
                save_shards(at("x"), (const char *const[]){"000000", NULL});
            else
                make_dir(at("x"));
            for (uint64_t i = first; i < 3; i++)
                make_dir(at("x/00000%d", (int)i));
            write_as(&options, 3 * first, 3 * first + 2);
            assert_names(at("x"), first ? "000000 000001" : "000000");
            bags_reader *reader = open_reader(at("x"), false);
            check_formulas(reader, NULL, 3 * first + 2);
            bags_reader_close(reader);
            remove_tree(at("x"));
        }
}

/* Its workers may go on: their numbers did not change. */
static void finalize_leaves_no_mark_in_a_dataset_without_gaps(void **state) {
    bags_writer_options options = worker(1, 2, RESUME);
    uint64_t renamed = 99;
    (void)state;
    save_shards(at("x"), (const char *const[]){"000000", "000001", NULL});
    copy_tree(at("x"), at("before"));
    assert_ok(finalize(at("x"), &renamed));
    assert_true(renamed == 0);
    assert_same_tree(at("before"), at("x"));
    write_as(&options, 6, 7);
    assert_names(at("x"), "000000 000001 000003");
}

/* A worker that runs while finalize does is refused at its next shard. */
static void a_running_worker_is_refused_after_finalize(void **state) {
    bags_writer_options options = worker(1, 2, ANEW);
    (void)state;
    for (int checksum = 0; checksum < 2; checksum++) {
        options.checksum = checksum != 0;
        bags_writer *writer = open_writer(at("x"), &options);
        for (uint64_t i = 0; i < 3; i++)
            assert_ok(append_formula(writer, i));
        assert_ok(finalize(at("x"), NULL));
        assert_fails(BAGS_ERROR_EXISTS, append_formula(writer, 3));
        assert_says("x: finalized");
        assert_fails(BAGS_ERROR_EXISTS, bags_writer_close(writer, &said));
        check_finalized(at("x"), "000000", 3);
        remove_tree(at("x"));
    }
}

/* ---- workers with other fields ---- */

static bags_writer_options worker_of_2(uint64_t worker) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.shard_start = worker;
    options.shard_stop = 2;
    options.shard_length = 2;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

/* Start worker W with a field x, or with other ones. */
static bags_writer *start_worker(
    uint64_t worker, const bags_field *with, size_t count, bags_error *err) {
    bags_writer_options options = worker_of_2(worker);
    return bags_writer_open(at("set"), with, count, &options, err);
}

static bags_code append_x(bags_writer *writer) {
    bags_value value = bags_int(1);
    bags_entry x = {"x", &value, 1};
    return bags_writer_append(writer, &x, 1, &said);
}

static const bags_field x_signed = {"x", "i64"}, x_unsigned = {"x", "u64"};

/* Every way in which the fields of two workers may differ, and what is said when the
 * second one opens. */
static void a_worker_with_other_fields_than_a_shard_is_refused(void **state) {
    static const struct {
        bags_field fields[2];
        size_t count;
        const char *says;
    } cases[] = {
        {{{"x", "u64"}, {NULL, NULL}}, 1,
            "set: field \"x\": type mismatch (u64, i64 in *set/000000)*same fields"},
        {{{"x", "i64[]"}, {NULL, NULL}}, 1, "type mismatch (i64[], i64 in"},
        {{{"x", "i64"}, {"a", "utf8"}}, 2,
            "field \"a\": missing in *set/000000 (utf8)"},
        {{{"z", "utf8"}, {"x", "i64"}}, 2,
            "field \"z\": missing in *set/000000 (utf8)"},
        {{{"y", "i64"}, {NULL, NULL}}, 1, "field \"x\": missing (i64 in *set/000000)"},
        {{{NULL, NULL}, {NULL, NULL}}, 0, "field \"x\": missing (i64 in *set/000000)"},
    };
    bags_writer *first, *writer;
    (void)state;
    for (int finished = 0; finished < 2; finished++) {
        assert_opens(first, start_worker(0, &x_signed, 1, &said));
        assert_ok(append_x(first));
        if (finished)
            assert_ok(bags_writer_close(first, &said));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            assert_refused(BAGS_ERROR_VALUE,
                start_worker(1, cases[i].fields, cases[i].count, &said));
            assert_says(cases[i].says);
        }
        assert_opens(writer, start_worker(1, &x_signed, 1, &said));
        assert_ok(append_x(writer));
        assert_ok(bags_writer_close(writer, &said));
        if (!finished)
            assert_ok(bags_writer_close(first, &said));
        assert_ok(bags_verify(at("set"), NULL, NULL, &said));
        remove_tree(at("set"));
    }
}

/* Both were opened before there was a shard: the one that finishes last is refused at
 * the latest, and the dataset is never complete. */
static void workers_with_other_fields_cannot_both_finish(void **state) {
    bags_writer *writers[2];
    (void)state;
    for (int how = 0; how < 4; how++) {
        int first = how % 2;
        assert_opens(writers[0], start_worker(0, &x_signed, 1, &said));
        assert_opens(writers[1], start_worker(1, &x_unsigned, 1, &said));
        assert_ok(append_x(writers[first]));
        if (how < 2) /* finished before the other one has a shard */
            assert_ok(bags_writer_close(writers[first], &said));
        assert_ok(append_x(writers[!first]));
        if (first)
            assert_fails(
                BAGS_ERROR_VALUE, append_x(writers[0])); /* the shard is full */
        else
            assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writers[1], &said));
        assert_says(
            first ? "set/000000: field \"x\": type mismatch (i64, u64 in *000001)"
                  : "set/000001: field \"x\": type mismatch (u64, i64 in *000000)");
        if (first)
            bags_writer_close(writers[0], NULL);
        if (how >= 2)
            assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writers[first], &said));
        assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("set"), NULL, &said));
        remove_tree(at("set"));
    }
}

static void what_readers_and_resuming_writers_say_names_the_field(void **state) {
    bags_writer_options options = worker_of_2(0);
    bags_writer *writer;
    (void)state;
    assert_opens(writer, start_worker(0, &x_signed, 1, &said));
    assert_ok(append_x(writer));
    assert_ok(bags_writer_close(writer, &said));
    options.existing = BAGS_EXISTING_RESUME;
    assert_refused(
        BAGS_ERROR_VALUE, bags_writer_open(at("set"), &x_unsigned, 1, &options, &said));
    assert_says("set: field \"x\": type mismatch (u64, i64 in *set/000000)");
    /* A copy of a shard, with another type, as older writers could leave it. */
    copy_tree(at("set/000000"), at("set/000001"));
    save_text(at("set/000001/spec.json"), "{\"x\": \"u64\"}");
    assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("set"), NULL, &said));
    assert_says(
        "set/000001/spec.json: field \"x\": type mismatch (u64, i64 in the first "
        "shard)");
    remove_tree(at("set/000001"));
    assert_int_equal(
        rename(at("set/000000/spec.json"), at("set/000000/spec.json.partial")), 0);
    assert_refused(
        BAGS_ERROR_VALUE, bags_writer_open(at("set"), &x_unsigned, 1, &options, &said));
    assert_says("set/000000: field \"x\": type mismatch (u64, i64 in its "
                "spec.json.partial); pass the fields");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_path_of_a_shard_has_its_number),
        TEST(exactly_the_requested_bytes_are_read),
        TEST(shards_end_at_their_length),
        TEST(shards_end_when_their_size_is_reached),
        TEST(shards_end_at_whichever_limit_comes_first),
        TEST(limits_of_0_and_of_2_to_the_64_mean_no_limit),
        TEST(workers_take_every_kth_number),
        TEST(each_shard_option_makes_the_dataset_sharded),
        TEST(invalid_worker_numbers_are_refused),
        TEST(numbers_end_below_10_to_the_18),
        TEST(a_worker_that_appends_nothing_creates_nothing),
        TEST(a_shard_with_only_refused_datapoints_is_removed),
        TEST(a_shard_that_exists_is_left_alone),
        TEST(the_size_of_a_writer_is_that_of_the_bags_when_it_is_closed),
        TEST(two_workers_with_the_same_number_do_no_harm),
        TEST(abort_removes_only_the_unfinished_shard),
        TEST(a_shard_that_is_full_is_finished_at_once),
        TEST(shards_are_ordered_by_number),
        TEST(shards_are_not_ordered_as_text),
        TEST(two_shards_with_the_same_number_are_an_error),
        TEST(a_shard_number_above_the_limit_is_an_error),
        TEST(a_file_named_like_a_shard_does_no_harm),
        TEST(gaps_are_refused_and_listed),
        TEST(many_single_gaps_are_counted_and_twenty_listed),
        TEST(a_missing_first_shard_is_a_gap),
        TEST(many_and_huge_gaps_need_no_memory),
        TEST(a_worker_reads_its_own_shards),
        TEST(an_unsharded_dataset_belongs_to_worker_0),
        TEST(every_datapoint_is_in_the_share_of_one_worker),
        TEST(every_crashed_shard_is_recovered_by_one_worker),
        TEST(unfinished_shards_are_refused_or_skipped),
        TEST(a_dataset_with_only_unfinished_shards_is_refused),
        TEST(a_directory_without_a_dataset_is_missing),
        TEST(a_directory_with_spec_and_shards_is_an_error),
        TEST(shards_of_different_specs_are_an_error),
        TEST(shards_of_different_variants_are_read_together),
        TEST(ranges_may_span_shards),
        TEST(sizes_and_blobs_are_added_up_over_shards),
        TEST(faults_name_the_shard),
        TEST(thousands_of_shards_are_read_with_few_files),
        TEST(finalize_closes_gaps),
        TEST(finalize_syncs_the_directory_unless_no_sync_is_set),
        TEST(finalize_gives_names_six_digits),
        TEST(finalize_refuses_unfinished_shards),
        TEST(finalize_refuses_two_shards_with_the_same_number),
        TEST(finalize_changes_nothing_if_the_dataset_is_not_sharded),
        TEST(a_file_in_the_way_of_finalize_is_kept),
        TEST(finalize_may_be_interrupted_anywhere),
        TEST(a_worker_whose_shard_is_missing_is_refused),
        TEST(another_number_of_workers_is_named),
        TEST(workers_refuse_a_finalized_dataset),
        TEST(append_continues_after_finalize),
        TEST(new_shards_have_the_files_that_the_finished_ones_have),
        TEST(shards_after_a_resumed_one_with_checksums_have_them),
        TEST(append_refuses_an_unfinished_shard_after_finalize),
        TEST(append_after_finalize_leaves_no_gap_for_an_empty_shard),
        TEST(several_empty_shards_leave_no_gap),
        TEST(append_refuses_the_shard_of_an_interrupted_input),
        TEST(finalize_leaves_no_mark_in_a_dataset_without_gaps),
        TEST(a_running_worker_is_refused_after_finalize),
        TEST(a_worker_with_other_fields_than_a_shard_is_refused),
        TEST(workers_with_other_fields_cannot_both_finish),
        TEST(what_readers_and_resuming_writers_say_names_the_field),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
