/* The reader without the writer and verify, as static functions of one file. */
// flavours: test: release; check: asan
#define BAGS_STATIC
#define BAGS_NO_WRITER
#define BAGS_NO_VERIFY
#include "../../bags.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DATA "tests/data/golden/bags-0.5.1/"

static bags_error err;

/* Datapoint i: bar is i, foo is some text, and baz is "word0", "word1", ... */
static void check_datapoints(const bags_reader *reader) {
    bags_row row = {0};
    assert_true(bags_reader_length(reader) == 10);
    for (uint64_t i = 0; i < 10; i++) {
        bags_value value;
        uint64_t items = 0;
        assert_int_equal(bags_reader_get(reader, i, NULL, 0, &row, &err), 0);
        assert_int_equal(bags_row_value(&row, 0, 0, NULL, &value, &err), 0);
        assert_true(value.uint == i);
        assert_int_equal(bags_row_value(&row, 2, 0, NULL, &value, &err), 0);
        assert_true(bags_utf8_valid(value.data, value.size, NULL));
        size_t length = bags_row_length(&row, 1);
        for (size_t k = 0; k < length; k++) {
            char text[32];
            bags_view word = bags_row_bytes(&row, 1, k);
            snprintf(text, sizeof text, "word%d", (int)k);
            assert_int_equal(word.size, strlen(text));
            assert_memory_equal(word.data, text, word.size);
        }
        assert_int_equal(bags_reader_items(reader, i, 1, &row, &items, &err), 0);
        assert_true(items == length);
    }
    assert_int_equal(
        bags_reader_get(reader, 10, NULL, 0, &row, &err), BAGS_ERROR_RANGE);
    bags_row_free(&row);
}

static void datasets_are_read_without_the_writer(void **state) {
    static const char *const paths[] = {DATA "ds-small/data", DATA "sh-length/data"};
    (void)state;
    for (int i = 0; i < 6; i++) {
        bags_reader_options options;
        bags_info info;
        memset(&options, 0, sizeof options);
        options.no_mmap = i / 2 > 0;
        options.cache_index = i / 2 > 1;
        bags_reader *reader = bags_reader_open(paths[i % 2], &options, &err);
        if (!reader)
            fail_msg("%s", err.message);
        check_datapoints(reader);
        assert_int_equal(bags_reader_info(reader, &info, NULL, &err), 0);
        assert_int_equal(info.sharded, i % 2);
        bags_reader_close(reader);
    }
}

static void a_bag_is_read_without_the_writer(void **state) {
    static const unsigned char bag[] = {'a', 'b',
        'c', /* "a", "", "bc", and the table */
        0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0,
        0, 0, 0, 0, 0};
    bags_view blob;
    (void)state;
    bag_reader *reader = bag_reader_open_memory(bag, sizeof bag, NULL, &err);
    assert_non_null(reader);
    assert_true(bag_reader_length(reader) == 3);
    assert_int_equal(bag_reader_get(reader, 2, NULL, &blob, &err), 0);
    assert_int_equal(blob.size, 2);
    assert_memory_equal(blob.data, "bc", 2);
    bag_reader_close(reader);
    reader = bag_reader_open(DATA "bag-sizes/data.bag", NULL, &err);
    assert_non_null(reader);
    assert_true(bag_reader_length(reader) == 301);
    assert_int_equal(bag_reader_get(reader, 300, NULL, &blob, &err), 0);
    assert_int_equal(blob.size, 300);
    bag_reader_close(reader);
}

static void unfinished_data_is_refused_without_the_writer_too(void **state) {
    (void)state;
    assert_null(bags_reader_open(DATA "err-unclosed/data", NULL, &err));
    assert_true(err.code != BAGS_OK && err.message[0]);
    assert_null(bags_reader_open(DATA "no/such/dataset", NULL, &err));
    assert_int_equal(err.code, BAGS_ERROR_MISSING);
}

#define TEST(function) cmocka_unit_test(function)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datasets_are_read_without_the_writer),
        TEST(a_bag_is_read_without_the_writer),
        TEST(unfinished_data_is_refused_without_the_writer_too),
    };
    return cmocka_run_group_tests_name("reader alone", tests, NULL, NULL);
}
