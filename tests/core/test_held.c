/*
 * Blobs that a writer holds until their codec makes a dictionary: each way to release
 * them; counting, rewinding, repeating and resuming meanwhile; a model in random orders
 * with crashes; faults at every call. A power failure at every point is in test_power.
 */
// flavours: test: release; check: asan
#include "check.h"
#include "durability.h"
#include "toy.h"

static toy made;
static bags_registry *codecs;

static int start(void **state) {
    toy fresh = {1000, 7, false, false, 0, 0, 0, 0, 1, false};
    made = fresh;
    codecs = toy_registry(&made);
    return support_setup(state);
}

static int stop(void **state) {
    bags_registry_free(codecs);
    return support_teardown(state);
}

static const bags_field fields[] = {{"list", "utf8[]"}, {"text", "utf8"}};

static const char *text_of(uint64_t i, uint64_t item) {
    static char texts[8][4000];
    static unsigned next;
    char *text = texts[next++ % 8];
    int size = snprintf(text, 64, "value %d, item %d, in words", (int)i, (int)item);
    if (i % 13 == 7 && item == 9) /* a fifth of the buffer */
        memset(text + size, 'x', 3000);
    text[size + (i % 13 == 7 && item == 9 ? 3000 : 0)] = '\0';
    return text;
}

static bags_writer_options writing_options(uint64_t shard_length) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.shard_length = shard_length;
    options.buffer_size = 16384;
    options.no_sync = true;
    options.env.allocator = &memory.allocator;
    return options;
}

static bags_writer *open_writer(const char *path, const bags_writer_options *options) {
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 2, options, &said));
    return writer;
}

static bags_code append_with(
    bags_writer *writer, uint64_t i, bags_value text, bags_error *err) {
    bags_value list[3];
    for (uint64_t k = 0; k < 3; k++)
        list[k] = bags_utf8(text_of(i, k));
    bags_entry entries[] = {{"text", &text, 1}, {"list", list, (size_t)(i % 4)}};
    return bags_writer_append(writer, entries, 2, err);
}

static bags_code append_one(bags_writer *writer, uint64_t i, bags_error *err) {
    return append_with(writer, i, bags_utf8(text_of(i, 9)), err);
}

static void append_all(bags_writer *writer, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++)
        assert_ok(append_one(writer, i, &said));
}

/* A datapoint that is refused after values were appended. */
static void append_refused(bags_writer *writer) {
    bags_value text = bags_utf8("refused"), list[] = {bags_utf8("item"), bags_int(3)};
    bags_entry entries[] = {{"text", &text, 1}, {"list", list, 2}};
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 2, &said));
    bags_writer_clear(writer);
}

static bags_reader *open_reader(const char *path, bool unfinished) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    if (unfinished)
        options.unfinished = BAGS_UNFINISHED_READ;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static void check_value(bags_row *row, size_t slot, size_t item, const char *expected) {
    bags_value value;
    assert_ok(bags_row_value(row, slot, item, NULL, &value, &said));
    assert_int_equal(value.size, strlen(expected));
    assert_memory_equal(value.data, expected, value.size);
}

/* Datapoint `index` has the list of `list` and the text of `text`. */
static void check_point(
    const bags_reader *reader, uint64_t index, uint64_t list, uint64_t text) {
    bags_row row = {0};
    assert_ok(bags_reader_get(reader, index, NULL, 0, &row, &said));
    check_value(&row, 1, 0, text_of(text, 9));
    assert_int_equal(bags_row_length(&row, 0), list % 4);
    for (uint64_t k = 0; k < list % 4; k++)
        check_value(&row, 0, (size_t)k, text_of(list, k));
    bags_row_free(&row);
}

static void check_set(const char *path, uint64_t length) {
    bags_reader *reader = open_reader(path, false);
    bags_verify_options options;
    assert_int_equal(bags_reader_length(reader), length);
    for (uint64_t i = 0; i < length; i++)
        check_point(reader, i, i, i);
    bags_reader_close(reader);
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.decode = true;
    assert_ok(bags_verify(path, &options, NULL, &said));
}

/* The blobs of a Bag that begin with a letter: d, with the dictionary; h, as they were
 * held. */
static uint64_t count_of(const char *bag, char letter) {
    bag_reader_options options;
    bag_reader *reader;
    bags_buffer scratch = {0};
    bags_view blob;
    uint64_t count = 0;
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_READ;
    assert_opens(reader, bag_reader_open(bag, &options, &said));
    for (uint64_t i = 0; i < bag_reader_length(reader); i++) {
        assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
        count += blob.size > 0 && blob.data[0] == letter;
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return count;
}

/* ---- what releases them ---- */

static void all_values_use_the_dictionary(void **state) {
    (void)state;
    for (int checksum = 0; checksum < 2; checksum++)
        for (uint64_t shard = 0; shard < 12; shard += 5) {
            bags_writer_options options = writing_options(shard);
            options.checksum = checksum;
            bags_writer *writer = open_writer(at("set"), &options);
            append_all(writer, 0, 24);
            assert_ok(bags_writer_close(writer, &said));
            const char *first = shard ? "set/000000" : "set";
            assert_int_equal(
                count_of(at("%s/text.bag", first), 'd'), shard ? shard : 24);
            assert_int_equal(count_of(at("%s/list.bag", first), 'h'), 0);
            assert_true(exists(at("%s/list.dict", first)));
            check_set(at("set"), 24);
            remove_tree(at("set"));
        }
}

/* Until then nothing is written; after it, all is as if it had been made before. */
static void what_releases_them(void **state) {
    (void)state;
    for (int how = 0; how < 5; how++) {
        bags_writer_options options = writing_options(0);
        options.flush_seconds = how == 2 ? 1e-6 : 0;
        options.buffer_size = how == 2 ? (size_t)16 << 20 : options.buffer_size;
        made.after = how == 3 ? 6 : 1000;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, how == 2 ? 0 : 5);
        if (how != 2)
            assert_false(exists(at("set/text.dict")));
        if (how < 2)
            assert_ok(how ? bags_writer_sync(writer, &said)
                          : bags_writer_flush(writer, &said));
        for (uint64_t i = 0; how == 2 && !exists(at("set/text.dict")); i++)
            append_all(writer, i, i + 1); /* until the time is over */
        if (how == 3)                     /* the codec has enough */
            append_all(writer, 5, 6);
        if (how == 4) /* a full buffer: some texts have 3,000 bytes */
            append_all(writer, 5, 100);
        assert_true(exists(at("set/text.dict")));
        assert_int_equal(file_size(at("set/text.bag")) > 0 && how != 4, how < 3);
        uint64_t length = bags_writer_length(writer);
        if (how < 3)
            assert_int_equal(count_of(at("set/text.bag"), 'd'), length);
        append_all(writer, length, length + 9);
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(count_of(at("set/text.bag"), 'd'), length + 9);
        check_set(at("set"), length + 9);
        remove_tree(at("set"));
    }
}

/* Then the codec is asked again when more are written. */
static void too_few_stay_as_they_are(void **state) {
    (void)state;
    made.holds = 10;
    bags_writer_options options = writing_options(0);
    bags_writer *writer = open_writer(at("set"), &options);
    for (uint64_t i = 0; i < 30; i++) {
        assert_ok(append_one(writer, i, &said));
        if (i % 4 == 3 && i < 20)
            assert_ok(bags_writer_flush(writer, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_int_equal(count_of(at("set/text.bag"), 'h'), 8);
    assert_int_equal(count_of(at("set/text.bag"), 'd'), 22);
    check_set(at("set"), 30);
    made.never = true;
    writer = open_writer(at("never"), &options);
    append_all(writer, 0, 30);
    assert_ok(bags_writer_close(writer, &said));
    assert_int_equal(count_of(at("never/text.bag"), 'p'), 30);
    made.never = false;
    writer = open_writer(at("few"), &options);
    append_all(writer, 0, 9);
    assert_ok(bags_writer_close(writer, &said));
    assert_false(exists(at("few/text.dict")));
    assert_int_equal(count_of(at("few/text.bag"), 'h'), 9);
    check_set(at("few"), 9);
}

/* They count as they are; a shard that they fill may have space once they are smaller. */
static void sizes_of_shards_hold(void **state) {
    (void)state;
    bags_writer_options options = writing_options(0);
    options.shard_size = 2000;
    bags_writer *writer = open_writer(at("set"), &options);
    uint64_t shards = 0, before = 0;
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t size = bags_writer_size(writer);
        assert_ok(append_one(writer, i, &said));
        if (bags_writer_shards(writer) > shards) {
            uint64_t finished = bags_writer_size(writer) - before;
            assert_true(finished >= 2000 && size - before < 2000);
            before += finished;
            shards++;
        }
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_true(shards > 3);
    check_set(at("set"), 60);
}

/* ---- what else happens to them ---- */

static void blobs_of_the_caller_stay_as_they_are(void **state) {
    (void)state;
    for (int checksum = 0; checksum < 2; checksum++) {
        bags_writer_options options = writing_options(0);
        options.checksum = checksum;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, 4);
        assert_ok(append_with(writer, 4, bags_blob("heldown", 7), &said));
        append_all(writer, 5, 9);
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(count_of(at("set/text.bag"), 'd'), 8);
        bags_reader *reader = open_reader(at("set"), false);
        bags_row row = {0};
        bags_view blob;
        assert_ok(bags_reader_get_blob(reader, 4, 1, 0, &row, &blob, &said));
        assert_text(blob, "heldown");
        for (uint64_t i = 0; i < 9; i++)
            if (i != 4)
                check_point(reader, i, i, i);
        bags_row_free(&row);
        bags_reader_close(reader);
        remove_tree(at("set"));
    }
}

static void a_value_may_be_stored_again(void **state) {
    (void)state;
    for (int flush = 0; flush < 2; flush++) {
        bags_writer_options options = writing_options(0);
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, 3);
        assert_int_equal(bags_writer_next(writer, "text"), 3);
        if (flush)
            assert_ok(bags_writer_flush(writer, &said));
        assert_ok(append_with(writer, 3, bags_stored(1), &said));
        append_all(writer, 4, 6);
        assert_int_equal(bags_writer_next(writer, "text"), 5);
        assert_ok(append_with(writer, 6, bags_stored(4), &said));
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(count_of(at("set/text.bag"), 'd'), 5);
        bags_reader *reader = open_reader(at("set"), false);
        for (uint64_t i = 0; i < 7; i++)
            check_point(reader, i, i, i == 3 ? 1 : i == 6 ? 5 : i);
        bags_reader_close(reader);
        remove_tree(at("set"));
    }
}

static void dropped_datapoints_leave_nothing(void **state) {
    (void)state;
    for (int how = 0; how < 8; how++) {
        bags_writer_options options = writing_options(0);
        options.checksum = how % 2;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, how / 2 % 2 ? 3 : 0);
        append_refused(writer);
        for (uint64_t i = bags_writer_length(writer); i < 8; i++) {
            bags_value text = bags_utf8("cancelled"), item = bags_utf8("item");
            assert_ok(bags_writer_begin(writer, &said));
            assert_ok(bags_writer_set(writer, "text", &text, &said));
            assert_ok(bags_writer_push(writer, "list", &item, &said));
            if (how / 4 && i == 5)
                assert_ok(bags_writer_flush(writer, &said));
            assert_ok(bags_writer_push(writer, "list", &item, &said));
            bags_writer_cancel(writer);
            assert_ok(append_one(writer, i, &said));
            append_refused(writer);
        }
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(count_of(at("set/text.bag"), 'd'), 8);
        check_set(at("set"), 8);
        remove_tree(at("set"));
    }
}

static void a_live_reader_finds_what_was_flushed(void **state) {
    (void)state;
    bags_writer_options options = writing_options(10);
    bags_writer *writer = open_writer(at("set"), &options);
    for (uint64_t i = 0; i < 24; i++) {
        assert_ok(append_one(writer, i, &said));
        if (i % 3)
            continue;
        if (i % 2)
            assert_ok(bags_writer_flush(writer, &said));
        bags_reader *reader = open_reader(at("set"), true);
        assert_true(bags_reader_length(reader) ==
                    (i % 2  ? i + 1
                        : i ? i - i % 10 > i - 2 ? i - i % 10 : i - 2
                            : 0));
        for (uint64_t k = 0; k < bags_reader_length(reader); k++)
            check_point(reader, k, k, k);
        bags_reader_close(reader);
    }
    assert_ok(bags_writer_close(writer, &said));
    check_set(at("set"), 24);
}

static void what_was_not_flushed_is_not_there_after_a_crash(void **state) {
    crash_device device;
    (void)state;
    for (int recover = 0; recover < 2; recover++) {
        bags_writer_options options = writing_options(10);
        crash_device_start(&device, bags_io_local());
        options.env.io = &device.io;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, 2);
        crash_writer(&device, writer);
        assert_false(exists(at("set/000000/text.dict")));
        options = writing_options(10);
        options.existing = BAGS_EXISTING_RESUME;
        if (recover) {
            assert_ok(recover_path(at("set"), NULL, NULL, &said));
        } else {
            writer = open_writer(at("set"), &options);
            append_all(writer, 0, 12);
            assert_ok(bags_writer_close(writer, &said));
            assert_int_equal(count_of(at("set/000000/text.bag"), 'd'), 10);
            check_set(at("set"), 12);
        }
        remove_tree(at("set"));
    }
}

/* A shard without a dictionary, and one with it, where nothing is held. */
static void a_resumed_shard_continues(void **state) {
    crash_device device;
    (void)state;
    for (uint64_t first = 1; first < 25; first++) {
        bags_writer_options options = writing_options(20);
        crash_device_start(&device, bags_io_local());
        options.env.io = &device.io;
        options.checksum = first % 2;
        made.holds = 10;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, first);
        assert_ok(bags_writer_flush(writer, &said));
        crash_writer(&device, writer);
        options = writing_options(20);
        options.checksum = first % 2;
        options.existing = BAGS_EXISTING_RESUME;
        made.holds = 1;
        writer = open_writer(at("set"), &options);
        assert_int_equal(bags_writer_resumed(writer), first);
        append_all(writer, first, 45);
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(
            count_of(at("set/000000/text.bag"), 'h'), first < 10 ? first : 0);
        check_set(at("set"), 45);
        options.existing = BAGS_EXISTING_REFUSE;
        options.existing = BAGS_EXISTING_APPEND;
        writer = open_writer(at("set"), &options);
        append_all(writer, 45, 47);
        assert_true(exists(at("set/000003/text.dict")));
        assert_ok(bags_writer_close(writer, &said));
        check_set(at("set"), 47);
        remove_tree(at("set"));
    }
}

static void an_aborted_shard_is_as_it_was(void **state) {
    crash_device device;
    (void)state;
    bags_writer_options options = writing_options(20);
    crash_device_start(&device, bags_io_local());
    options.env.io = &device.io;
    made.holds = 10;
    bags_writer *writer = open_writer(at("set"), &options);
    append_all(writer, 0, 5);
    assert_ok(bags_writer_flush(writer, &said));
    crash_writer(&device, writer);
    options = writing_options(20);
    options.existing = BAGS_EXISTING_RESUME;
    for (int flush = 0; flush < 2; flush++) {
        made.holds = 1;
        writer = open_writer(at("set"), &options);
        append_all(writer, 5, 9);
        if (flush)
            assert_ok(bags_writer_flush(writer, &said));
        bags_writer_abort(writer);
        bags_reader *reader = open_reader(at("set"), true);
        assert_int_equal(bags_reader_length(reader), 5);
        for (uint64_t i = 0; i < 5; i++)
            check_point(reader, i, i, i);
        bags_reader_close(reader);
    }
    writer = open_writer(at("new"), &options);
    append_all(writer, 0, 5);
    bags_writer_abort(writer);
    assert_false(exists(at("new")));
}

static void a_failure_stops_the_writer(void **state) {
    crash_device device;
    (void)state;
    for (int how = 0; how < 4; how++) {
        bags_writer_options options = writing_options(how == 2 ? 4 : 0);
        crash_device_start(&device, bags_io_local());
        options.env.io = &device.io;
        made.fails = false;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, 3);
        made.fails = true;
        bags_code code = how == 0   ? bags_writer_flush(writer, &said)
                         : how == 1 ? bags_writer_sync(writer, &said)
                         : how == 2 ? append_one(writer, 3, &said)
                                    : BAGS_OK;
        assert_int_equal(code, how == 3 ? BAGS_OK : BAGS_ERROR_VALUE);
        if (how < 3) {
            assert_says("set: field \"list\": no toy can be made");
            assert_fails(BAGS_ERROR_VALUE, append_one(writer, 3, &said));
        }
        assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said));
        assert_says("set: field \"list\": no toy can be made");
        remove_tree(at("set"));
    }
}

/* ---- a model ---- */

enum { MOST = 120 };

typedef struct model {
    uint64_t random;
    uint64_t length, flushed; /* datapoints */
    uint64_t texts[MOST];     /* whose text each has */
    uint64_t blob, owner;     /* a blob of the shard, and whose text it is */
    bool has_blob;
    uint64_t shards;
} model;

static uint64_t below(model *m, uint64_t limit) {
    return next_random(&m->random) % limit;
}

static void model_append(model *m, bags_writer *writer, bool streamed) {
    uint64_t i = m->length;
    bags_value text = bags_utf8(text_of(i, 9)), item;
    m->has_blob = m->has_blob && bags_writer_shards(writer) == m->shards;
    m->shards = bags_writer_shards(writer);
    m->texts[i] = i;
    bool inside = false; /* it was flushed before it was ended */
    if (m->has_blob && below(m, 4) == 0) {
        m->texts[i] = m->owner;
        text = bags_stored(m->blob);
    } else if (below(m, 2)) {
        m->blob = bags_writer_next(writer, "text");
        m->owner = i;
        m->has_blob = true;
    }
    if (!streamed) {
        assert_ok(append_with(writer, i, text, &said));
    } else {
        assert_ok(bags_writer_begin(writer, &said));
        assert_ok(bags_writer_set(writer, "text", &text, &said));
        for (uint64_t k = 0; k < i % 4; k++) {
            item = bags_utf8(text_of(i, k));
            assert_ok(bags_writer_push(writer, "list", &item, &said));
            if (below(m, 8) == 0) {
                assert_ok(bags_writer_flush(writer, &said));
                inside = true;
            }
        }
        assert_ok(bags_writer_end(writer, &said));
    }
    m->length++;
    if (inside) { /* otherwise a crash would leave a part of it */
        assert_ok(bags_writer_flush(writer, &said));
        m->flushed = m->length;
    }
}

static void model_drop(model *m, bags_writer *writer) {
    uint64_t items = below(m, 6);
    bags_value item = bags_utf8("item"), text = bags_utf8("dropped");
    if (below(m, 2)) {
        append_refused(writer);
        return;
    }
    assert_ok(bags_writer_begin(writer, &said));
    for (uint64_t k = 0; k < items; k++) {
        assert_ok(bags_writer_push(writer, "list", &item, &said));
        if (below(m, 8) == 0)
            assert_ok(bags_writer_flush(writer, &said));
    }
    assert_ok(bags_writer_set(writer, "text", &text, &said));
    bags_writer_cancel(writer);
}

/* The process ends, and another one resumes, or recovers and appends. */
static bags_writer *model_crash(
    model *m, bags_writer *writer, crash_device *device, bags_writer_options *options) {
    crash_writer(device, writer);
    crash_device_start(device, bags_io_local());
    options->existing = BAGS_EXISTING_RESUME;
    writer = open_writer(at("set"), options);
    assert_true(bags_writer_resumed(writer) >= m->flushed);
    assert_true(bags_writer_resumed(writer) <= m->length);
    m->length = bags_writer_resumed(writer);
    m->has_blob = false;
    m->shards = 0;
    return writer;
}

static void any_order_stores_the_same(void **state) {
    uint64_t dictionaries = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed += support_stride()) {
        model m;
        crash_device device;
        memset(&m, 0, sizeof m);
        m.random = seed;
        bags_writer_options options = writing_options(below(&m, 3) * 11);
        crash_device_start(&device, bags_io_local());
        options.env.io = &device.io;
        options.buffer_size = (size_t)4096 << below(&m, 3);
        options.shard_size = below(&m, 3) ? 0 : 1000 + below(&m, 5000);
        options.shard_stop = 1;
        options.checksum = below(&m, 2);
        options.keep_idx = false;
        made.after = 1 + below(&m, 60);
        made.holds = 1 + below(&m, 12);
        bags_writer *writer = open_writer(at("set"), &options);
        for (uint64_t length = 40 + below(&m, MOST - 40); m.length < length;) {
            uint64_t what = below(&m, 32);
            if (what < 2)
                model_drop(&m, writer);
            else if (what == 2)
                writer = model_crash(&m, writer, &device, &options);
            else
                model_append(&m, writer, below(&m, 3) == 0);
            if (below(&m, 16) == 0) {
                assert_ok(below(&m, 4) ? bags_writer_flush(writer, &said)
                                       : bags_writer_sync(writer, &said));
                m.flushed = m.length;
            }
        }
        assert_ok(bags_writer_close(writer, &said));
        bags_reader *reader = open_reader(at("set"), false);
        assert_int_equal(bags_reader_length(reader), m.length);
        for (uint64_t i = 0; i < m.length; i++)
            check_point(reader, i, i, m.texts[i]);
        bags_reader_close(reader);
        bags_verify_options checking;
        memset(&checking, 0, sizeof checking);
        checking.registry = codecs;
        checking.decode = true;
        assert_ok(bags_verify(at("set"), &checking, NULL, &said));
        dictionaries += exists(at("set/000000/text.dict"));
        remove_tree(at("set"));
    }
    assert_true(dictionaries > 10);
}

/* ---- faults ---- */

/* At every call and allocation: what was flushed is kept. */
static void a_crash_at_any_call_loses_nothing_flushed(void **state) {
    uint64_t n = 1;
    (void)state;
    for (bool reached = true; reached; n += support_stride())
        for (int way = 0; way < 4; way++) {
            memory_disk drive;
            crash_device device;
            uint64_t flushed = 0;
            memory_disk_start(&drive);
            crash_device_start(&device, &drive.io);
            crash_at(&device, n);
            bags_writer_options options = writing_options(way / 2 ? 5 : 0);
            options.shard_stop = 1;
            options.env.io = &device.io;
            options.checksum = way % 2;
            bags_writer *writer = bags_writer_open("set", fields, 2, &options, NULL);
            for (uint64_t i = 0; i < 12 && writer; i++) {
                if (append_one(writer, i, NULL) ||
                    (i % 4 == 3 && bags_writer_flush(writer, NULL)))
                    break;
                flushed = i % 4 == 3 ? i + 1 : flushed;
            }
            reached = device.files.failed > 0;
            crash_writer(&device, writer);
            options.env.io = &drive.io;
            options.existing = BAGS_EXISTING_RESUME;
            assert_opens(writer, bags_writer_open("set", fields, 2, &options, &said));
            assert_true(bags_writer_resumed(writer) >= flushed);
            append_all(writer, bags_writer_resumed(writer), 12);
            assert_ok(bags_writer_close(writer, &said));
            bags_reader_options reading;
            bags_reader *reader;
            memset(&reading, 0, sizeof reading);
            reading.registry = codecs;
            reading.verify_checksums = way % 2;
            reading.env.io = &drive.io;
            assert_opens(reader, bags_reader_open("set", &reading, &said));
            assert_int_equal(bags_reader_length(reader), 12);
            for (uint64_t i = 0; i < 12; i++)
                check_point(reader, i, i, i);
            bags_reader_close(reader);
            memory_disk_free(&drive);
        }
    print_message("crashed at %d calls\n", (int)n);
    assert_true(n > 50 / support_stride());
}

static void a_failed_allocation_is_an_error(void **state) {
    uint64_t n = 1;
    (void)state;
    for (bool reached = true; reached; n++) {
        bags_writer_options options = writing_options(5);
        bags_code code = BAGS_ERROR_MEMORY;
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_writer *writer = bags_writer_open(at("set"), fields, 2, &options, &said);
        for (uint64_t i = 0; i < 12 && writer; i++)
            if (append_one(writer, i, &said))
                break;
        if (writer)
            code = bags_writer_close(writer, &said);
        memory.fail_at = 0;
        reached = memory.failed > 0;
        assert_int_equal(code, reached ? BAGS_ERROR_MEMORY : BAGS_OK);
        if (reached)
            (void)recover_path(at("set"), NULL, NULL, &said);
        if (!reached)
            check_set(at("set"), 12);
        if (exists(at("set")))
            remove_tree(at("set"));
    }
    assert_true(n > 10);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(all_values_use_the_dictionary),
        CASE(what_releases_them),
        CASE(too_few_stay_as_they_are),
        CASE(sizes_of_shards_hold),
        CASE(blobs_of_the_caller_stay_as_they_are),
        CASE(a_value_may_be_stored_again),
        CASE(dropped_datapoints_leave_nothing),
        CASE(a_live_reader_finds_what_was_flushed),
        CASE(what_was_not_flushed_is_not_there_after_a_crash),
        CASE(a_resumed_shard_continues),
        CASE(an_aborted_shard_is_as_it_was),
        CASE(a_failure_stops_the_writer),
        CASE(any_order_stores_the_same),
        CASE(a_crash_at_any_call_loses_nothing_flushed),
        CASE(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests_name("held", tests, NULL, NULL);
}
