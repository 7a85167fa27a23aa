/* Exports in C: formats/export. tests/command/exporting.py reads what they contain. */
// flavours: test: release; check: asan
#include "check.h"

#include "../../../formats/export/export.h"

#define LENGTH 40

static const bags_exporter *const exporters[] = {&bags_export_webdataset,
    &bags_export_tfrecord, &bags_export_mds, &bags_export_images};

static const unsigned char jpeg[] = {0xFF, 0xD8, 0xFF, 0xD9};

/* A dataset with an image, a label and, unless it is to be a folder of images, others. */
static void write_dataset(const char *path, bool images) {
    static const bags_field fields[] = {{"image", "jpeg"}, {"label", "utf8"},
        {"pose", "array(float32,-1)"}, {"tags", "utf8[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.no_sync = true;
    assert_opens(
        writer, bags_writer_open(path, fields, images ? 2 : 4, &options, &said));
    for (uint64_t i = 0; i < LENGTH; i++) {
        const float numbers[3] = {0.5F, (float)i, -1};
        uint64_t shape[1] = {i % 4};
        bags_value image = bags_blob(jpeg, sizeof jpeg);
        bags_value label = bags_utf8(i % 2 ? "odd" : "even");
        bags_value pose = bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers);
        bags_value tags[2] = {bags_utf8("a"), bags_utf8("b")};
        bags_entry entries[] = {{"image", &image, 1}, {"label", &label, 1},
            {"pose", &pose, 1}, {"tags", tags, i % 3}};
        assert_ok(bags_writer_append(writer, entries, images ? 2 : 4, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* Open the dataset for an exporter. */
static bags_reader *open_for(size_t which) {
    const char *path = at("ds%zu", which);
    bags_reader *reader;
    if (!exists(path))
        write_dataset(path, exporters[which] == &bags_export_images);
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    return reader;
}

/* A failure leaves nothing that a resumed export does not complete. */
static void memory_may_run_out_at_any_time(void **state) {
    (void)state;
    for (size_t which = 0; which < sizeof exporters / sizeof *exporters; which++) {
        bags_export_options options = {0};
        bags_reader *reader = open_for(which);
        char whole[1000], out[1000]; /* more calls follow than at() has texts */
        (void)snprintf(whole, sizeof whole, "%s", at("whole%zu", which));
        (void)snprintf(out, sizeof out, "%s", at("out%zu", which));
        tally heap;
        options.no_sync = true;
        assert_ok(bags_export(reader, exporters[which], whole, &options, NULL, &said));
        for (uint64_t n = 1;; n++) {
            tally_start(&heap);
            heap.fail_at = n;
            options.allocator = &heap.allocator;
            options.resume = false;
            bags_code code =
                bags_export(reader, exporters[which], out, &options, NULL, &said);
            assert_int_equal(heap.live, 0);
            if (code) {
                assert_int_equal(code, BAGS_ERROR_MEMORY);
                options.allocator = NULL;
                options.resume = true;
                assert_ok(
                    bags_export(reader, exporters[which], out, &options, NULL, &said));
            }
            assert_false(exists(at("out%zu.unfinished", which)));
            if (*exporters[which]->endings && !exporters[which]->always_sharded) {
                bytes expected = load(whole);
                assert_file(out, expected.data, expected.size);
                bytes_free(&expected);
            } else {
                assert_same_tree(out, whole);
            }
            remove_tree(out);
            if (!code)
                break;
        }
        bags_reader_close(reader);
    }
}

static bool stop_after(void *user, uint64_t done, uint64_t total) {
    assert_int_equal(total, LENGTH);
    return done < *(const uint64_t *)user;
}

static void progress_may_stop_an_export_that_is_then_resumed(void **state) {
    (void)state;
    for (size_t which = 0; which < 3; which++) {
        bags_export_options options = {0};
        bags_export_report report;
        bags_reader *reader = open_for(which);
        uint64_t most = 7;
        const char *out = at("x%zu", which);
        options.no_sync = true;
        options.progress = stop_after;
        options.user = &most;
        options.shard_length = 5;
        assert_fails(BAGS_ERROR_IO,
            bags_export(reader, exporters[which], out, &options, &report, &said));
        assert_true(exists(at("x%zu.unfinished", which)));
        most = LENGTH + 1;
        assert_fails(BAGS_ERROR_EXISTS,
            bags_export(reader, exporters[which], out, &options, &report, &said));
        assert_says("unfinished*--resume");
        options.resume = true;
        assert_ok(bags_export(reader, exporters[which], out, &options, &report, &said));
        assert_int_equal(report.datapoints, LENGTH);
        assert_false(report.existed);
        assert_ok(bags_export(reader, exporters[which], out, &options, &report, &said));
        assert_true(report.existed);
        bags_reader_close(reader);
    }
}

static void options_that_are_wrong_are_errors(void **state) {
    const bags_field unknown[] = {{"nothing", NULL}},
                     twice[] = {{"label", "x"}, {"tags", "x"}};
    const uint64_t rows[] = {0, LENGTH};
    bags_export_options options = {0};
    bags_reader *reader = open_for(1);
    (void)state;
    options.rows = rows;
    options.rows_count = 2;
    assert_fails(BAGS_ERROR_RANGE,
        bags_export(reader, exporters[1], at("y"), &options, NULL, &said));
    assert_says("index 40 out of range (length 40)");
    options.rows = NULL;
    options.fields = unknown;
    options.fields_count = 1;
    assert_fails(BAGS_ERROR_FIELD,
        bags_export(reader, exporters[1], at("y"), &options, NULL, &said));
    options.fields = twice;
    options.fields_count = 2;
    assert_fails(BAGS_ERROR_FIELD,
        bags_export(reader, exporters[1], at("y"), &options, NULL, &said));
    options.fields = NULL;
    options.shard_start = 2;
    options.shard_stop = 2;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_export(reader, exporters[1], at("y"), &options, NULL, &said));
    options.shard_start = 0;
    options.shard_size = 9;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_export(reader, exporters[1], at("y"), &options, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_export(reader, exporters[3], at("y"), &options, NULL, &said));
    assert_false(exists(at("y")));
    bags_reader_close(reader);
}

#ifdef BAGS_WITH_EXPORT_LEROBOT
/* Two episodes of three frames. */
static void write_episodes(const char *path) {
    static const bags_field fields[] = {
        {"stats", "utf8"}, {"task", "utf8"}, {"x", "array(float32,2)[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(path, fields, 3, &options, &said));
    for (uint64_t i = 0; i < 2; i++) {
        static const float numbers[3][2] = {{0, 1}, {2, -3}, {4, 5}};
        const uint64_t shape[1] = {2};
        bags_value items[3], task = bags_utf8(i ? "fold" : "open");
        bags_value stats = bags_utf8("{\"x\": {\"mean\": [2, 1], \"count\": [3]}}");
        for (size_t k = 0; k < 3; k++)
            items[k] = bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers[k]);
        bags_entry entries[] = {
            {"stats", &stats, 1}, {"task", &task, 1}, {"x", items, 3}};
        assert_ok(bags_writer_append(writer, entries, 3, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static void memory_may_run_out_in_a_lerobot_export(void **state) {
    const bags_exporter *lerobot = &bags_export_lerobot;
    static const char known[] =
        "{\"lerobot\": {\"info\": {\"fps\": 5, \"features\": {\"x\": {\"dtype\": "
        "\"float32\", \"shape\": [2]}}}, \"tasks\": {\"open\": 0}}}";
    char whole[1000], out[1000];
    bags_export_options options = {0};
    bags_reader *reader;
    tally heap;
    (void)state;
    (void)snprintf(whole, sizeof whole, "%s", at("whole-lerobot"));
    (void)snprintf(out, sizeof out, "%s", at("out-lerobot"));
    write_episodes(at("episodes"));
    assert_opens(reader, bags_reader_open(at("episodes"), NULL, &said));
    options.no_sync = true;
    options.metadata.data = (const unsigned char *)known;
    options.metadata.size = sizeof known - 1;
    bags_code code = bags_export(reader, lerobot, whole, &options, NULL, &said);
    if (code == BAGS_ERROR_MISSING) {
        bags_reader_close(reader);
        print_message("skipped: libduckdb.so not found\n");
        skip();
    }
    assert_ok(code);
    /* Each attempt opens a database: not all allocations fail. */
    for (uint64_t n = 1; code || n == 1; n += 1 + n / 8) {
        tally_start(&heap);
        heap.fail_at = n;
        options.allocator = &heap.allocator;
        options.resume = false;
        code = bags_export(reader, lerobot, out, &options, NULL, &said);
        assert_int_equal(heap.live, 0);
        if (code) {
            assert_int_equal(code, BAGS_ERROR_MEMORY);
            options.allocator = NULL;
            options.resume = true;
            assert_ok(bags_export(reader, lerobot, out, &options, NULL, &said));
        }
        assert_same_tree(out, whole);
        remove_tree(out);
    }
    bags_reader_close(reader);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(memory_may_run_out_at_any_time),
        TEST(progress_may_stop_an_export_that_is_then_resumed),
        TEST(options_that_are_wrong_are_errors),
#ifdef BAGS_WITH_EXPORT_LEROBOT
        TEST(memory_may_run_out_in_a_lerobot_export),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
