/*
 * Codecs with a dictionary: what a writer stores and when, what readers find in every
 * way, resuming, recovery, checksums, threads, and files that are wrong. Faults at every
 * call and power failures are in test_faults and test_power.
 */
// flavours: test: release; check: asan tsan
#include "check.h"
#include "durability.h"
#include "toy.h"

static toy made;
static bags_registry *codecs;

static int start(void **state) {
    toy fresh = {5, 7, false, false, 0, 0, 0, 0, 0, false};
    made = fresh;
    codecs = toy_registry(&made);
    return support_setup(state);
}

static int stop(void **state) {
    bags_registry_free(codecs);
    return support_teardown(state);
}

/* ---- datapoints ---- */

static const bags_field fields[] = {{"list", "utf8[]"}, {"text", "utf8"}};

static const char *text_of(uint64_t i, uint64_t item) {
    static char texts[8][64];
    static unsigned next;
    char *text = texts[next++ % 8];
    snprintf(text, 64, "value %d, item %d, in words", (int)i, (int)item);
    return text;
}

static bags_code append_one(bags_writer *writer, uint64_t i, bags_error *err) {
    bags_value text = bags_utf8(text_of(i, 9)), list[3];
    for (uint64_t k = 0; k < 3; k++)
        list[k] = bags_utf8(text_of(i, k));
    bags_entry entries[] = {{"text", &text, 1}, {"list", list, (size_t)(i % 4)}};
    return bags_writer_append(writer, entries, 2, err);
}

static bags_writer_options writing_options(uint64_t shard_length) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.shard_length = shard_length;
    options.buffer_size = 4096;
    options.no_sync = true;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    return options;
}

static bags_writer *open_writer(const char *path, const bags_writer_options *options) {
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 2, options, &said));
    return writer;
}

static void append_all(bags_writer *writer, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++)
        assert_ok(append_one(writer, i, &said));
}

static void write_set(const char *path, uint64_t shard_length, uint64_t length) {
    bags_writer_options options = writing_options(shard_length);
    bags_writer *writer = open_writer(path, &options);
    append_all(writer, 0, length);
    assert_ok(bags_writer_close(writer, &said));
}

/* A writer that crashes after these datapoints, which were flushed. */
static void crash_after(
    bags_writer_options options, const char *path, uint64_t from, uint64_t to) {
    crash_device device;
    crash_device_start(&device, bags_io_local());
    options.env.io = &device.io;
    bags_writer *writer = open_writer(path, &options);
    append_all(writer, from, to);
    assert_ok(bags_writer_flush(writer, &said));
    crash_writer(&device, writer);
}

static bags_reader *open_reader(const char *path, bool verify) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.verify_checksums = verify;
    options.allow_gaps = true;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static void check_value(bags_row *row, size_t slot, size_t item, const char *expected) {
    bags_value value;
    assert_ok(bags_row_value(row, slot, item, NULL, &value, &said));
    assert_int_equal(value.size, strlen(expected));
    assert_memory_equal(value.data, expected, value.size);
}

/* In every way that leads to a value. */
static void check_reader(const bags_reader *reader, uint64_t length) {
    bags_row row = {0};
    uint64_t indices[64];
    bags_select some = bags_select_slice(0, 1, 3, 1);
    assert_int_equal(bags_reader_length(reader), length);
    assert_true(length <= 64);
    for (uint64_t i = length; i-- > 0;) {
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        check_value(&row, 1, 0, text_of(i, 9));
        for (uint64_t k = 0; k < i % 4; k++)
            check_value(&row, 0, (size_t)k, text_of(i, k));
        assert_ok(bags_reader_get(reader, i, &some, 1, &row, &said));
        for (uint64_t k = 1; k < i % 4; k++)
            check_value(&row, 0, (size_t)k - 1, text_of(i, k));
    }
    assert_ok(bags_reader_get_range(reader, 0, length, 1, &row, &said));
    for (uint64_t i = 0; i < length; i++) {
        check_value(&row, 0, (size_t)i, text_of(i, 9));
        indices[i] = i * 7 % length;
    }
    assert_ok(bags_reader_get_many(reader, indices, length, 1, &row, &said));
    for (uint64_t i = 0; i < length; i++)
        check_value(&row, 0, (size_t)i, text_of(i * 7 % length, 9));
    bags_row_free(&row);
}

/* Whether all values are decoded or only the last ones, what is wrong with a dictionary
 * is found. */
static bags_code verify_all(const char *path, bags_verify_report *report) {
    bags_verify_options options;
    bags_verify_report quicker;
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.allow_gaps = true;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    bags_code first = bags_verify(path, &options, &quicker, &said);
    options.decode = true;
    bags_code code = bags_verify(path, &options, report, &said);
    CHECK(is_code((int)code, (int)first, "bags_verify"));
    if (report)
        assert_int_equal(quicker.files, report->files);
    return code;
}

static void check_set(const char *path, uint64_t length) {
    bags_reader *reader = open_reader(path, false);
    check_reader(reader, length);
    bags_reader_close(reader);
    assert_ok(verify_all(path, NULL));
    assert_int_equal(made.prepared, made.discarded);
}

/* The blobs of a field in a shard that need a dictionary. */
static uint64_t count_with(const char *bag) {
    bag_reader *reader;
    bags_buffer scratch = {0};
    bags_view blob;
    uint64_t count = 0;
    assert_opens(reader, bag_reader_open(bag, NULL, &said));
    for (uint64_t i = 0; i < bag_reader_length(reader); i++) {
        assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
        count += blob.size > 0 && blob.data[0] == 'd';
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return count;
}

static bool is_same_file(const char *a, const char *b) {
    bytes first = load(a), second = load(b);
    bool same =
        first.size == second.size && memcmp(first.data, second.data, first.size) == 0;
    bytes_free(&first);
    bytes_free(&second);
    return same;
}

/* ---- what is stored ---- */

static void all_shards_of_a_writer_have_its_dictionary(void **state) {
    (void)state;
    write_set(at("set"), 10, 34);
    assert_names(
        at("set/000000"), "list.bag list.dict refs.bag spec.json text.bag text.dict");
    assert_int_equal(count_with(at("set/000000/text.bag")), 5);
    assert_int_equal(count_with(at("set/000003/text.bag")), 4);
    assert_true(is_same_file(at("set/000000/text.dict"), at("set/000003/text.dict")));
    assert_false(is_same_file(at("set/000000/text.dict"), at("set/000000/list.dict")));
    assert_int_equal(file_size(at("set/000000/text.dict")), TOY_SIZE);
    bags_reader *reader = open_reader(at("set"), false);
    check_reader(reader, 34);
    assert_int_equal(made.prepared, 2); /* one per field, not per shard */
    bags_reader_close(reader);
    assert_int_equal(made.discarded, 2);
    check_set(at("set"), 34);
}

static void a_field_of_few_values_has_none(void **state) {
    (void)state;
    write_set(at("set"), 0, 4);
    assert_names(at("set"), "list.bag list.dict refs.bag spec.json text.bag");
    check_set(at("set"), 4);
    made.never = true;
    write_set(at("never"), 3, 20);
    assert_names(at("never/000002"), "list.bag refs.bag spec.json text.bag");
    check_set(at("never"), 20);
}

/* NAME.dict.partial would have a longer name than file systems allow. */
static void a_field_with_a_long_name_has_none(void **state) {
    char name[252];
    bags_writer *writer;
    (void)state;
    made.after = 0;
    for (size_t size = 242; size < 252; size += 9) {
        memset(name, 'n', sizeof name);
        name[size] = '\0';
        bags_field field = {name, "utf8"};
        bags_writer_options options = writing_options(0);
        assert_opens(
            writer, bags_writer_open(at("%d", (int)size), &field, 1, &options, &said));
        bags_value value = bags_utf8("x");
        bags_entry entry = {name, &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
        assert_ok(bags_writer_close(writer, &said));
        assert_int_equal(count_with(at("%d/%s.bag", (int)size, name)), size == 242);
    }
}

static void workers_have_their_own(void **state) {
    (void)state;
    for (uint64_t worker = 0; worker < 2; worker++) {
        bags_writer_options options = writing_options(8);
        options.shard_start = worker;
        options.shard_stop = 2;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, worker * 100, worker * 100 + 16);
        assert_ok(bags_writer_close(writer, &said));
    }
    assert_false(is_same_file(at("set/000000/text.dict"), at("set/000001/text.dict")));
    assert_true(is_same_file(at("set/000001/text.dict"), at("set/000003/text.dict")));
    bags_reader *reader = open_reader(at("set"), false);
    bags_row row = {0};
    uint64_t indices[32];
    for (uint64_t i = 0; i < 32; i++)
        indices[i] = i * 5 % 32;
    assert_ok(bags_reader_get_many(reader, indices, 32, 1, &row, &said));
    for (uint64_t i = 0; i < 32; i++) {
        uint64_t at_place = indices[i] % 8 + indices[i] / 16 * 8;
        check_value(
            &row, 0, (size_t)i, text_of(at_place + indices[i] / 8 % 2 * 100, 9));
    }
    assert_int_equal(made.prepared, 2);
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_ok(verify_all(at("set"), NULL));
}

/* Blobs of a refused datapoint are dropped; what they needed stays, and is used. */
static void a_refused_datapoint_may_leave_one(void **state) {
    bags_value text = bags_utf8("refused"), wrong = bags_int(3);
    bags_entry entries[] = {{"text", &text, 1}, {"list", &wrong, 1}};
    (void)state;
    made.after = 0;
    bags_writer_options options = writing_options(0);
    bags_writer *writer = open_writer(at("set"), &options);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 2, &said));
    assert_true(exists(at("set/text.dict")));
    append_all(writer, 0, 9);
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    check_set(at("set"), 9);
}

static void an_abort_removes_it(void **state) {
    (void)state;
    bags_writer_options options = writing_options(20);
    bags_writer *writer = open_writer(at("set"), &options);
    append_all(writer, 0, 30);
    assert_true(exists(at("set/000001/text.dict")));
    bags_writer_abort(writer);
    assert_names(at("set"), "000000");
    check_set(at("set"), 20);
}

/* ---- encoded blobs ---- */

static void encoded_blobs_need_the_same_one(void **state) {
    bags_value other = bags_blob("d\1x", 3), plain = bags_blob("px", 2);
    bags_entry entries[] = {{"text", &other, 1}, {"list", NULL, 0}};
    bags_buffer scratch = {0};
    bags_row row = {0};
    bags_view blob;
    (void)state;
    write_set(at("from"), 0, 12);
    bags_reader *from = open_reader(at("from"), false);
    assert_ok(bags_reader_get_blob(from, 11, 1, 0, &row, &blob, &said));
    assert_int_equal(blob.data[0], 'd');
    /* The same first values make the same dictionary. */
    bags_writer_options options = writing_options(12);
    bags_writer *writer = open_writer(at("set"), &options);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 2, &said));
    assert_says("set: field \"text\": datapoint 0: needs toy 1");
    append_all(writer, 0, 10);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 2, &said));
    assert_says("datapoint 10: needs toy 1, this is");
    entries[0].values = &plain;
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    /* A shard that begins with such blobs. */
    assert_false(exists(at("set/000001")));
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_false(exists(at("set/000001/text.dict")));
    other = bags_blob(blob.data, blob.size);
    entries[0].values = &other;
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_true(exists(at("set/000001/text.dict")));
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader = open_reader(at("set"), false);
    assert_ok(bags_reader_get(reader, 13, NULL, 0, &row, &said));
    check_value(&row, 1, 0, text_of(11, 9));
    /* bags_decode knows no shard, and bags_encode has no dictionary. */
    bags_value value = bags_utf8("x");
    assert_fails(
        BAGS_ERROR_CORRUPT, bags_decode(codecs, "utf8", blob, &scratch, &value, &said));
    made.after = 0;
    assert_ok(bags_encode(codecs, "utf8", &value, &scratch, &blob, &said));
    assert_text(blob, "px");
    bags_buffer_free(&scratch);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_reader_close(from);
}

/* ---- crashes ---- */

static void a_resumed_shard_keeps_its_dictionary(void **state) {
    (void)state;
    for (int append = 0; append < 2; append++) {
        for (uint64_t first = 3; first < 31; first++) {
            bags_writer_options options = writing_options(10);
            crash_after(options, at("set"), 0, first);
            if (append)
                assert_ok(recover_path(at("set"), NULL, NULL, &said));
            bool had = exists(at("set/000000/text.dict"));
            options.existing = append ? BAGS_EXISTING_APPEND : BAGS_EXISTING_RESUME;
            made.started = 0;
            bags_writer *writer = open_writer(at("set"), &options);
            assert_true((made.started > 0) == exists(at("set/000000/list.dict")));
            append_all(writer, first, 45);
            assert_ok(bags_writer_close(writer, &said));
            if (had)
                assert_true(is_same_file(
                    at("set/000000/text.dict"), at("set/000004/text.dict")));
            assert_true(exists(at("set/000004/text.dict")));
            check_set(at("set"), 45);
            remove_tree(at("set"));
        }
    }
}

static void append_after_finalize_follows_the_last_shard(void **state) {
    (void)state;
    for (uint64_t worker = 0; worker < 2; worker++) {
        bags_writer_options options = writing_options(8);
        options.shard_start = 3 * worker;
        options.shard_stop = 4;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 8 * worker, 8 * worker + 8);
        assert_ok(bags_writer_close(writer, &said));
    }
    assert_ok(bags_finalize(at("set"), NULL, NULL, &said));
    bags_writer_options options = writing_options(8);
    options.existing = BAGS_EXISTING_APPEND;
    bags_writer *writer = open_writer(at("set"), &options);
    append_all(writer, 16, 19);
    assert_ok(bags_writer_close(writer, &said));
    assert_true(is_same_file(at("set/000001/text.dict"), at("set/000002/text.dict")));
    check_set(at("set"), 19);
}

static void a_shard_without_datapoints_is_removed_with_it(void **state) {
    crash_device device;
    (void)state;
    made.after = 0;
    for (int recover = 0; recover < 2; recover++) {
        bags_writer_options options = writing_options(10);
        crash_device_start(&device, bags_io_local());
        options.env.io = &device.io;
        bags_writer *writer = open_writer(at("set"), &options);
        append_all(writer, 0, 2); /* in buffers */
        crash_writer(&device, writer);
        save_text(at("set/000000/text.dict.partial"), "torn");
        assert_true(exists(at("set/000000/text.dict")));
        options = writing_options(10);
        options.existing = BAGS_EXISTING_RESUME;
        if (recover) {
            assert_ok(recover_path(at("set"), NULL, NULL, &said));
        } else {
            writer = open_writer(at("set"), &options);
            assert_ok(bags_writer_close(writer, &said));
        }
        assert_names(at("set"), "");
        remove_tree(at("set"));
    }
}

static void what_is_left_of_one_is_removed(void **state) {
    (void)state;
    for (int recover = 0; recover < 2; recover++) {
        bags_writer_options options = writing_options(10);
        options.checksum = true;
        crash_after(options, at("set"), 0, 8);
        save_text(at("set/000000/text.dict.partial"), "torn");
        options.existing = BAGS_EXISTING_RESUME;
        if (recover) {
            assert_ok(recover_path(at("set"), NULL, NULL, &said));
        } else {
            bags_writer *writer = open_writer(at("set"), &options);
            assert_ok(bags_writer_close(writer, &said));
        }
        assert_false(exists(at("set/000000/text.dict.partial")));
        check_set(at("set"), 8);
        remove_tree(at("set"));
    }
}

static void a_damaged_one_is_not_continued(void **state) {
    (void)state;
    bags_writer_options options = writing_options(20);
    crash_after(options, at("set"), 0, 8);
    bytes good = load(at("set/000000/text.dict"));
    options.existing = BAGS_EXISTING_RESUME;
    save_text(at("set/000000/text.dict"), "");
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_writer_open(at("set"), fields, 2, &options, &said));
    assert_says("set/000000/text.dict: empty");
    save(at("set/000000/text.dict"), "\0x", 2);
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_writer_open(at("set"), fields, 2, &options, &said));
    assert_says("set: field \"text\": not the dictionary of a toy");
    /* A codec that does not continue with it cannot write to this shard. */
    save(at("set/000000/text.dict"), good.data, good.size);
    bytes_free(&good);
    made.stubborn = true;
    made.after = 0;
    made.number = 77;
    bags_writer *writer = open_writer(at("set"), &options);
    assert_fails(BAGS_ERROR_VALUE, append_one(writer, 8, &said));
    assert_says("needs another dictionary than text.dict of this shard");
    assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said));
    check_set(at("set"), 8);
}

/* Such as a codec with a fault would state. */
static void its_size_is_checked_when_it_is_written(void **state) {
    static const size_t sizes[] = {0, ((size_t)16 << 20) + 1};
    (void)state;
    made.after = 0;
    for (int i = 0; i < 2; i++) {
        made.size = sizes[i] + 1;
        bags_writer_options options = writing_options(0);
        bags_writer *writer = open_writer(at("set"), &options);
        assert_fails(BAGS_ERROR_LIMIT, append_one(writer, 1, &said));
        assert_says("set: field \"text\": datapoint 0: invalid dictionary size");
        bags_writer_abort(writer);
        assert_false(exists(at("set")));
    }
}

/* At every call; test_faults does that with other checks. */
static void a_crash_at_any_call_loses_nothing(void **state) {
    uint64_t n = 1;
    (void)state;
    made.after = 2;
    for (bool reached = true; reached; n += support_stride()) {
        for (int recover = 0; recover < 2; recover++) {
            memory_disk drive;
            crash_device device;
            bags_row row = {0};
            bags_value value;
            uint64_t flushed = 0, total = recover ? 0 : 12;
            memory_disk_start(&drive);
            crash_device_start(&device, &drive.io);
            crash_at(&device, n);
            bags_writer_options options = writing_options(5);
            options.env.io = &device.io;
            options.checksum = n % 2;
            bags_writer *writer = bags_writer_open("set", fields, 2, &options, NULL);
            for (uint64_t i = 0; i < 12 && writer; i++) {
                if (append_one(writer, i, NULL) || bags_writer_flush(writer, NULL))
                    break;
                flushed = i + 1;
            }
            reached = device.files.failed > 0;
            crash_writer(&device, writer);
            options.env.io = &drive.io;
            options.existing = BAGS_EXISTING_RESUME;
            bags_env env = {NULL, &drive.io};
            bags_path_kind kind = BAGS_PATH_NONE;
            drive.io.kind(drive.io.user, "set", &kind);
            if (recover && kind) {
                bags_code code = recover_path("set", &env, NULL, &said);
                assert_true(!code || (code == BAGS_ERROR_MISSING && !flushed));
            } else if (!recover) {
                assert_opens(
                    writer, bags_writer_open("set", fields, 2, &options, &said));
                assert_true(bags_writer_resumed(writer) >= flushed);
                append_all(writer, bags_writer_resumed(writer), 12);
                assert_ok(bags_writer_close(writer, &said));
            }
            bags_reader_options reading;
            memset(&reading, 0, sizeof reading);
            reading.registry = codecs;
            reading.env.io = &drive.io;
            bags_reader *reader = bags_reader_open("set", &reading, NULL);
            assert_true(
                bags_reader_length(reader) >= (flushed > total ? flushed : total));
            for (uint64_t i = 0; i < bags_reader_length(reader); i++) {
                assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
                check_value(&row, 1, 0, text_of(i, 9));
                for (size_t k = 0; k < i % 4; k++)
                    assert_ok(bags_row_value(&row, 0, k, NULL, &value, &said));
            }
            bags_row_free(&row);
            bags_reader_close(reader);
            memory_disk_free(&drive);
        }
    }
    print_message("crashed at %d calls\n", (int)n);
    assert_true(n > 50);
}

static void a_reader_of_a_running_writer_finds_it(void **state) {
    (void)state;
    bags_writer_options options = writing_options(10);
    bags_reader_options reading;
    bags_reader *reader;
    memset(&reading, 0, sizeof reading);
    reading.registry = codecs;
    reading.unfinished = BAGS_UNFINISHED_READ;
    bags_writer *writer = open_writer(at("set"), &options);
    for (uint64_t i = 0; i < 24; i++) {
        assert_ok(append_one(writer, i, &said));
        assert_ok(bags_writer_flush(writer, &said));
        assert_opens(reader, bags_reader_open(at("set"), &reading, &said));
        check_reader(reader, i + 1);
        bags_reader_close(reader);
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* ---- checksums ---- */

static void check_damage(const char *path, const char *pattern) {
    bags_reader_options options;
    bags_row row = {0};
    memset(&options, 0, sizeof options);
    options.registry = codecs;
    options.verify_checksums = true;
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_reader_get(reader, 8, NULL, 0, &row, &said));
    assert_says(pattern);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_verify_report report;
    assert_fails(BAGS_ERROR_CORRUPT, verify_all(path, &report));
    assert_says(pattern);
}

static bags_code read_value(const bags_reader *reader, uint64_t index, bool many) {
    bags_row row = {0};
    bags_value value;
    bags_code code =
        many ? bags_reader_get_many(reader, &index, 1, 1, &row, &said)
             : bags_reader_get_range(reader, index, index + 1, 1, &row, &said);
    assert_int_equal(code, BAGS_OK);
    poison();
    code = bags_row_value(&row, 0, 0, NULL, &value, &said);
    bags_row_free(&row);
    return code;
}

static void checksums_include_it(void **state) {
    bags_verify_report report;
    (void)state;
    bags_writer_options options = writing_options(10);
    options.checksum = true;
    bags_writer *writer = open_writer(at("set"), &options);
    append_all(writer, 0, 24);
    assert_ok(bags_writer_close(writer, &said));
    check_set(at("set"), 24);
    bags_reader *reader = open_reader(at("set"), true);
    check_reader(reader, 24);
    bags_reader_close(reader);
    assert_ok(verify_all(at("set"), &report));
    assert_int_equal(report.files, 3 * (1 + 3 * 2 + 2));
    /* Those that are made later, and of a shard that is recovered, are the same. */
    copy_tree(at("set"), at("later"));
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            remove(at("later/00000%d/%s.crc", i, k ? k > 1 ? "text" : "list" : "refs"));
    assert_ok(bags_checksum(at("later"), NULL, NULL, &said));
    assert_same_tree(at("set"), at("later"));
    assert_ok(bags_checksum(at("later"), NULL, NULL, &said));
    crash_after(options, at("crashed"), 0, 24);
    assert_ok(recover_path(at("crashed"), NULL, NULL, &said));
    assert_same_tree(at("set"), at("crashed"));

    bytes good = load(at("set/000000/text.dict"));
    good.data[good.size - 1] ^= 1;
    save(at("set/000000/text.dict"), good.data, good.size);
    check_damage(at("set"), "set/000000/text.crc: *text.dict has changed");
    reader = open_reader(at("set"), false); /* also if blobs are not verified */
    assert_int_equal(read_value(reader, 8, true), BAGS_ERROR_CORRUPT);
    assert_says("set/000000/text.dict: checksum mismatch: it is not the one");
    bags_reader_close(reader);
    reader = NULL;
    good.data[good.size - 1] ^= 1;
    remove(at("set/000000/text.dict"));
    check_damage(at("set"), "set/000000/text.crc: *text.dict is missing");
    save(at("set/000000/text.dict"), good.data, good.size);
    check_set(at("set"), 24);
    /* One that is replaced between the Bag and the value. */
    bags_row row = {0};
    bags_value value;
    reader = open_reader(at("set"), true);
    assert_ok(bags_reader_get(reader, 8, NULL, 0, &row, &said));
    good.data[good.size - 1] ^= 1;
    save(at("set/000000/text.dict"), good.data, good.size);
    assert_fails(BAGS_ERROR_CORRUPT, bags_row_value(&row, 1, 0, NULL, &value, &said));
    assert_says(
        "datapoint 8: *set/000000/text.dict: checksum mismatch: it is not the one");
    bags_row_free(&row);
    bags_reader_close(reader);
    good.data[good.size - 1] ^= 1;
    save(at("set/000000/text.dict"), good.data, good.size);
    /* Checksums that were made without it; and a file that no blob needs. */
    remove(at("set/000000/text.dict"));
    remove(at("set/000000/text.crc"));
    assert_ok(bags_checksum(at("set"), NULL, NULL, &said));
    assert_fails(BAGS_ERROR_MISSING, verify_all(at("set"), NULL));
    assert_says("set/000000/text.bag: blob *: *set/000000/text.dict: cannot open");
    save(at("set/000000/text.dict"), good.data, good.size);
    assert_fails(BAGS_ERROR_CORRUPT, verify_all(at("set"), NULL));
    assert_says("set/000000/text.dict: checksum mismatch: it is not the one");
    remove(at("set/000000/text.crc"));
    assert_ok(bags_checksum(at("set"), NULL, NULL, &said));
    check_set(at("set"), 24);
    made.never = true;
    writer = open_writer(at("other"), &options);
    append_all(writer, 0, 9);
    assert_ok(bags_writer_close(writer, &said));
    save_text(at("other/000000/text.dict"), "");
    assert_ok(verify_all(at("other"), NULL));
    bytes_free(&good);
    /* A Bag of a dataset may be read alone. */
    bag_reader_options alone = {0};
    bag_reader *bag;
    alone.verify_checksums = true;
    assert_opens(bag, bag_reader_open(at("set/000000/text.bag"), &alone, &said));
    bag_reader_close(bag);
    assert_ok(verify_path(at("set/000000/text.bag"), NULL, &said));
}

/* ---- files that are wrong ---- */

static void check_wrong(bags_code code, const char *pattern) {
    for (int many = 0; many < 2; many++) {
        bags_reader *reader = open_reader(at("set"), false);
        bags_code found = read_value(reader, 17, many);
        CHECK(is_code((int)code, (int)found, "bags_row_value"));
        assert_says(many ? "set: field \"text\": item of bags_reader_get_many 0: "
                         : "set: field \"text\": datapoint 17: ");
        assert_says(pattern);
        /* Other shards are not affected, nor is what needs none. */
        assert_int_equal(read_value(reader, 9, many), BAGS_OK);
        assert_int_equal(read_value(reader, 0, many), BAGS_OK);
        bags_reader_close(reader);
    }
    assert_fails(code, verify_all(at("set"), NULL));
    assert_says(pattern);
}

static void a_dictionary_that_is_wrong_is_an_error(void **state) {
    const char *path = at("set/000001/text.dict");
    (void)state;
    write_set(at("set"), 10, 20);
    bytes good = load(path);
    remove(path);
    check_wrong(BAGS_ERROR_MISSING, "set/000001/text.dict: cannot open");
    save_text(path, "");
    check_wrong(BAGS_ERROR_CORRUPT, "set/000001/text.dict: empty");
    save(path, "\0x", 2);
    check_wrong(
        BAGS_ERROR_CORRUPT, "set/000001/text.dict: not the dictionary of a toy");
    good.data[0] ^= 1;
    save(path, good.data, good.size);
    check_wrong(BAGS_ERROR_CORRUPT, "needs toy *, this is");
    resize_file(path, ((uint64_t)16 << 20) + 1);
    check_wrong(BAGS_ERROR_CORRUPT, "set/000001/text.dict: too large (16777217 bytes");
    remove(path);
    make_dir(path);
    check_wrong(BAGS_ERROR_IO, "set/000001/text.dict: cannot");
    bytes_free(&good);
}

/* It is read again after a failure, and once after a success. */
static void a_failure_is_not_kept(void **state) {
    const char *path = at("set/000001/text.dict");
    (void)state;
    write_set(at("set"), 10, 20);
    bytes good = load(path);
    bags_reader *reader = open_reader(at("set"), false);
    remove(path);
    assert_int_equal(read_value(reader, 17, false), BAGS_ERROR_MISSING);
    save(path, good.data, good.size);
    assert_int_equal(read_value(reader, 17, false), BAGS_OK);
    remove(path);
    assert_int_equal(read_value(reader, 16, true), BAGS_OK);
    bags_reader_close(reader);
    bytes_free(&good);
}

static void a_shard_that_was_replaced_is_noticed(void **state) {
    (void)state;
    skip_on_windows("removes files that are mapped");
    write_set(at("set"), 10, 20);
    write_set(at("new"), 10, 20);
    bags_reader *reader = open_reader(at("set"), false);
    assert_int_equal(read_value(reader, 10, false), BAGS_OK);
    bags_reader_close(reader);
    reader = open_reader(at("set"), false);
    bags_row row = {0};
    bags_value value;
    assert_ok(bags_reader_get(reader, 17, NULL, 0, &row, &said));
    remove_tree(at("set/000001"));
    copy_tree(at("new/000001"), at("set/000001"));
    assert_fails(BAGS_ERROR_CHANGED, bags_row_value(&row, 1, 0, NULL, &value, &said));
    assert_says(
        "set: field \"text\": datapoint 17: *set/000001/text.dict: its shard was "
        "replaced");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_fault_of_any_call_or_allocation_is_an_error(void **state) {
    (void)state;
    write_set(at("set"), 10, 20);
    for (int by_memory = 0; by_memory < 2; by_memory++)
        for (uint64_t n = 1;; n++) {
            bags_reader *reader = open_reader(at("set"), false);
            bags_row row = {0};
            bags_value value;
            assert_ok(bags_reader_get(reader, 17, NULL, 0, &row, &said));
            memory.calls = disk.calls = memory.failed = disk.failed = 0;
            disk.fail_with = 5; /* EIO */
            memory.fail_at = by_memory ? n : 0;
            disk.fail_at = by_memory ? 0 : n;
            poison();
            bags_code code = bags_row_value(&row, 1, 0, NULL, &value, &said);
            bool failed = memory.failed || disk.failed;
            memory.fail_at = disk.fail_at = 0;
            /* A failure to close what was read loses nothing. */
            if (failed && code)
                assert_int_equal(code, by_memory ? BAGS_ERROR_MEMORY : BAGS_ERROR_IO);
            assert_true(!code || failed);
            check_value(&row, 1, 0, text_of(17, 9));
            bags_row_free(&row);
            bags_reader_close(reader);
            if (!failed)
                break;
            assert_true(n < 50);
        }
}

static void verify_reports_a_failure_of_any_call_or_allocation(void **state) {
    uint64_t calls = 0;
    (void)state;
    write_set(at("set"), 10, 20);
    for (int i = 0; i < 4; i++)
        for (uint64_t n = 1;; n++) {
            bool by_memory = i % 2;
            bags_verify_options options;
            bags_verify_report report;
            memset(&options, 0, sizeof options);
            options.registry = codecs;
            options.decode = i / 2;
            options.env.io = &disk.io;
            options.env.allocator = &memory.allocator;
            memory.calls = disk.calls = memory.failed = disk.failed = 0;
            disk.fail_with = 5; /* EIO */
            memory.fail_at = by_memory ? n : 0;
            disk.fail_at = by_memory ? 0 : n;
            poison();
            bags_code code = bags_verify(at("set"), &options, &report, &said);
            bool failed = memory.failed || disk.failed;
            memory.fail_at = disk.fail_at = 0;
            assert_int_equal(made.prepared, made.discarded);
            if (!failed) {
                assert_int_equal(code, BAGS_OK);
                break;
            }
            if (by_memory)
                assert_int_equal(code, BAGS_ERROR_MEMORY);
            else
                assert_true(code == BAGS_OK || code == BAGS_ERROR_IO);
            calls += code != BAGS_OK;
        }
    assert_true(calls > 100);
}

static void reading_allocates_once(void **state) {
    bags_row row = {0};
    bags_buffer scratch = {0};
    bags_value value;
    (void)state;
    write_set(at("set"), 10, 40);
    bags_reader *reader = open_reader(at("set"), false);
    uint64_t calls = 0;
    for (int round = 0; round < 2; round++) {
        calls = memory.calls;
        for (uint64_t i = 40; i-- > 0;) {
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_ok(bags_row_value(&row, 1, 0, &scratch, &value, &said));
        }
    }
    assert_int_equal(memory.calls, calls);
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_reader_close(reader);
}

/* ---- threads ---- */

static bool wrong;

static void *read_all_values(void *user) {
    const bags_reader *reader = (const bags_reader *)user;
    bags_row row = {0};
    bags_buffer scratch = {0};
    bags_value value;
    for (uint64_t i = 0; i < 60; i++) {
        char expected[64];
        uint64_t index = i * 37 % 60;
        snprintf(expected, sizeof expected, "value %d, item 9, in words", (int)index);
        if (bags_reader_get(reader, index, NULL, 0, &row, NULL) ||
            bags_row_value(&row, 1, 0, &scratch, &value, NULL) ||
            value.size != strlen(expected) ||
            memcmp(value.data, expected, value.size) != 0)
            wrong = true;
    }
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    return NULL;
}

static void threads_find_it_at_once(void **state) {
    (void)state;
    write_set(at("set"), 4, 60);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[4];
        bags_reader *reader = open_reader(at("set"), false);
        uint64_t before = made.prepared;
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(
                pthread_create(&threads[i], NULL, read_all_values, reader), 0);
        for (size_t i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        assert_false(wrong);
        assert_int_equal(made.prepared, before + 1);
        bags_reader_close(reader);
    }
}

/* Without the codec, the bytes are read as they are, and recovered. */
static void its_codec_is_not_needed_for_bytes(void **state) {
    bags_reader *reader;
    bags_row row = {0};
    bags_view blob;
    (void)state;
    bags_writer_options options = writing_options(10);
    crash_after(options, at("set"), 0, 17);
    assert_ok(recover_path(at("set"), NULL, NULL, &said));
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_ok(bags_reader_get_blob(reader, 16, 1, 0, &row, &blob, &said));
    assert_int_equal(blob.size, 2 + strlen(text_of(16, 9)));
    assert_int_equal(blob.data[0], 'd');
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_ok(verify_path(at("set"), NULL, &said));
    check_set(at("set"), 17);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(all_shards_of_a_writer_have_its_dictionary),
        CASE(a_field_of_few_values_has_none),
        CASE(a_field_with_a_long_name_has_none),
        CASE(workers_have_their_own),
        CASE(a_refused_datapoint_may_leave_one),
        CASE(an_abort_removes_it),
        CASE(encoded_blobs_need_the_same_one),
        CASE(a_resumed_shard_keeps_its_dictionary),
        CASE(append_after_finalize_follows_the_last_shard),
        CASE(a_shard_without_datapoints_is_removed_with_it),
        CASE(what_is_left_of_one_is_removed),
        CASE(a_damaged_one_is_not_continued),
        CASE(its_size_is_checked_when_it_is_written),
        CASE(a_crash_at_any_call_loses_nothing),
        CASE(a_reader_of_a_running_writer_finds_it),
        CASE(checksums_include_it),
        CASE(a_dictionary_that_is_wrong_is_an_error),
        CASE(a_failure_is_not_kept),
        CASE(a_shard_that_was_replaced_is_noticed),
        CASE(a_fault_of_any_call_or_allocation_is_an_error),
        CASE(verify_reports_a_failure_of_any_call_or_allocation),
        CASE(reading_allocates_once),
        CASE(threads_find_it_at_once),
        CASE(its_codec_is_not_needed_for_bytes),
    };
    return cmocka_run_group_tests_name("dictionary", tests, NULL, NULL);
}
