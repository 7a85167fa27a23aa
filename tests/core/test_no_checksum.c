/* The library without checksums, as static functions of one file. */
// flavours: test: release; check: asan
#define BAGS_STATIC
#define BAGS_NO_CHECKSUM
#include "../../bags.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static bags_error err;
static char folder[1024];

/* A path in the folder of the test; the last two stay valid. */
static const char *at(const char *name) {
    static char paths[2][2048];
    static int turn;
    char *path = paths[turn = !turn];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/bags-XXXXXX", temporary ? temporary : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[1100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void append(bags_writer *writer, uint64_t number) {
    bags_value value = bags_uint(number);
    bags_entry entry = {"n", &value, 1};
    assert_int_equal(bags_writer_append(writer, &entry, 1, &err), 0);
}

static bags_writer *open_writer(const char *name, bags_writer_options options) {
    bags_field field = {"n", "int(4)"};
    return bags_writer_open(at(name), &field, 1, &options, &err);
}

static void touch(const char *name) {
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

static void datasets_are_written_read_and_verified(void **state) {
    bags_writer_options options = {0};
    bags_verify_report report;
    bags_row row = {0};
    (void)state;
    options.shard_length = 2;
    bags_writer *writer = open_writer("set", options);
    assert_non_null(writer);
    for (uint64_t i = 0; i < 5; i++)
        append(writer, i);
    assert_int_equal(bags_writer_close(writer, &err), 0);
    touch("set/000000/n.crc"); /* invalid, and not looked at */
    bags_reader *reader = bags_reader_open(at("set"), NULL, &err);
    assert_non_null(reader);
    for (uint64_t i = 0; i < 5; i++) {
        bags_value value;
        assert_int_equal(bags_reader_get(reader, i, NULL, 0, &row, &err), 0);
        assert_int_equal(bags_row_value(&row, 0, 0, NULL, &value, &err), 0);
        assert_true(value.uint == i);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_int_equal(bags_verify(at("set"), NULL, &report, &err), 0);
    assert_true(report.datapoints == 5 && report.bags == 0 && report.checksums == 0);
}

static void damaged_tables_are_found(void **state) {
    bags_writer_options options = {0};
    bags_verify_report report;
    (void)state;
    bags_writer *writer = open_writer("damaged", options);
    assert_non_null(writer);
    append(writer, 1);
    append(writer, 2);
    assert_int_equal(bags_writer_close(writer, &err), 0);
    FILE *file = fopen(at("damaged/n.bag"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 8 + 8, SEEK_SET), 0); /* the end of blob 0 */
    assert_int_equal(fputc(200, file), 200);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(
        bags_verify(at("damaged"), NULL, &report, &err), BAGS_ERROR_CORRUPT);
    assert_true(report.faults > 0);
}

static void a_request_for_checksums_is_refused(void **state) {
    bag_reader_options bag_reading = {0};
    bag_writer_options bag_writing = {0};
    bags_reader_options reading = {0};
    bags_writer_options writing = {0};
    (void)state;
    bag_writer *bag = bag_writer_open(at("a.bag"), NULL, &err);
    assert_non_null(bag);
    assert_int_equal(bag_writer_append(bag, "a", 1, NULL, &err), 0);
    assert_int_equal(bag_writer_close(bag, &err), 0);
    bag_writing.checksum = writing.checksum = true;
    bag_reading.verify_checksums = reading.verify_checksums = true;
    for (int i = 0; i < 4; i++) {
        memset(&err, 0, sizeof err);
        const void *opened =
            i == 0   ? (void *)bag_reader_open(at("a.bag"), &bag_reading, &err)
            : i == 1 ? (void *)bag_writer_open(at("b.bag"), &bag_writing, &err)
            : i == 2 ? (void *)bags_reader_open(at("no"), &reading, &err)
                     : (void *)open_writer("no", writing);
        assert_null(opened);
        assert_int_equal(err.code, BAGS_ERROR_ARGUMENT);
        assert_non_null(strstr(err.message, "BAGS_NO_CHECKSUM"));
    }
    assert_null(fopen(at("b.bag"), "r"));
}

static bags_code last_blob(
    void *user, uint64_t datapoint, bags_ref *refs, bags_error *why) {
    (void)user;
    (void)why;
    refs->first = 1 - datapoint;
    return BAGS_OK;
}

static void a_shard_of_existing_bags_is_completed_without_checksums(void **state) {
    const char *sources[] = {"any/n.bag"};
    const bags_view spec = {(const unsigned char *)"{\"n\": \"int(4)\"}", 15};
    bags_writer_options writing = {0};
    bags_complete_options options = {0};
    bags_row row = {0};
    bags_value value;
    (void)state;
    bags_writer *writer = open_writer("set", writing);
    assert_non_null(writer);
    append(writer, 1);
    append(writer, 2);
    assert_int_equal(bags_writer_close(writer, &err), 0);
    assert_int_equal(remove(at("set/refs.bag")), 0);
    options.checksums = sources;
    assert_int_equal(
        bags_shard_complete(at("set"), spec, 2, last_blob, &options, NULL, &err),
        BAGS_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "BAGS_NO_CHECKSUM"));
    assert_int_equal(
        bags_shard_complete(at("set"), spec, 2, last_blob, NULL, NULL, &err), 0);
    bags_reader *reader = bags_reader_open(at("set"), NULL, &err);
    assert_non_null(reader);
    assert_int_equal(bags_reader_get(reader, 0, NULL, 0, &row, &err), 0);
    assert_int_equal(bags_row_value(&row, 0, 0, NULL, &value, &err), 0);
    assert_true(value.uint == 2);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* Continuing one would leave datapoints without checksums among those that have them. */
static void shards_that_have_checksums_are_not_continued(void **state) {
    bags_writer_options options = {0};
    int status = 0;
    (void)state;
    options.shard_stop = 1;
    pid_t child = fork();
    if (child == 0) { /* it crashes */
        bags_writer *writer = open_writer("crashed", options);
        append(writer, 1);
        _exit(bags_writer_flush(writer, &err) ? 1 : 0);
    }
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    touch("crashed/000000/refs.crc");
    options.existing = BAGS_EXISTING_RESUME;
    assert_null(open_writer("crashed", options));
    assert_int_equal(err.code, BAGS_ERROR_ARGUMENT);
    assert_int_equal(
        bags_recover(at("crashed"), NULL, NULL, &err), BAGS_ERROR_ARGUMENT);
    assert_int_equal(remove(at("crashed/000000/refs.crc")), 0);
    bags_writer *writer = open_writer("crashed", options);
    assert_non_null(writer);
    assert_int_equal(bags_writer_close(writer, &err), 0);
    touch("crashed/000000/refs.crc");
    options.existing = BAGS_EXISTING_REFUSE;
    options.existing = BAGS_EXISTING_APPEND;
    assert_null(open_writer("crashed", options));
    assert_int_equal(err.code, BAGS_ERROR_ARGUMENT);
}

#define TEST(function)                                                                 \
    cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datasets_are_written_read_and_verified),
        TEST(damaged_tables_are_found),
        TEST(a_request_for_checksums_is_refused),
        TEST(a_shard_of_existing_bags_is_completed_without_checksums),
        TEST(shards_that_have_checksums_are_not_continued),
    };
    return cmocka_run_group_tests_name("no checksum", tests, NULL, NULL);
}
