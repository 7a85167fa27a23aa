/* Finding datapoints by key: formats/data/index_build.c and index_find.c. */
// flavours: test: release; check: asan
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"

#include "../../../formats/formats.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const bags_field fields[] = {{"id", "utf8"}, {"real", "array(float64)"},
    {"single", "array(float32)"}, {"small", "array(int16,1)"}, {"tags", "utf8[]"},
    {"time", "i64"}, {"unsigned", "u64"}};
enum { ID, REAL, SINGLE, SMALL, TAGS, TIME, UNSIGNED, FIELDS };

static int64_t time_of(uint64_t i) { return (int64_t)(i * 37 % 101) - 50; }

static void append(bags_writer *writer, uint64_t i) {
    static const uint64_t shape[] = {1};
    char id[64];
    double real = (double)time_of(i) / 4;
    float single = (float)time_of(i) / 10;
    int16_t small = (int16_t)time_of(i);
    /* Some ids begin with others. */
    snprintf(id, sizeof id, "%.*s%d", (int)(i % 3), "aa", (int)(i * 7919 % 1000));
    bags_value values[] = {bags_utf8(id),
        bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &real),
        bags_array(BAGS_DTYPE_FLOAT32, 0, NULL, &single),
        bags_array(BAGS_DTYPE_INT16, 1, shape, &small), bags_utf8("tag"),
        bags_int(time_of(i)), bags_uint(UINT64_MAX - i % 9)};
    bags_entry entries[FIELDS];
    for (size_t f = 0; f < FIELDS; f++) {
        entries[f].field = fields[f].name;
        entries[f].values = &values[f];
        entries[f].count = 1;
    }
    assert_ok(bags_writer_append(writer, entries, FIELDS, &said));
}

/* Datapoints first .. stop - 1, `shard` per shard (0: not sharded). */
static void write_rows(
    const char *path, uint64_t first, uint64_t stop, uint64_t shard, bool resume) {
    bags_writer_options options = {0};
    bags_writer *writer;
    options.shard_length = shard;
    options.existing = resume ? BAGS_EXISTING_RESUME : BAGS_EXISTING_REFUSE;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(path, fields, FIELDS, &options, &said));
    for (uint64_t i = first; i < stop; i++)
        append(writer, i);
    assert_ok(bags_writer_close(writer, &said));
}

static bags_index_options with_env(void) {
    bags_index_options options = {0};
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_reader *open_rows(const char *path) {
    bags_reader_options options = {0};
    bags_reader *reader;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

/* The datapoints at positions start .. stop - 1, as text. */
static const char *datapoints(
    const bags_index *index, uint64_t start, uint64_t stop, bool no_error) {
    static char text[65536];
    bags_buffer scratch = {0};
    bags_row row = {0};
    size_t used = 0;
    text[0] = 0;
    for (uint64_t i = start; i < stop && used < sizeof text - 32; i++) {
        uint64_t datapoint = 0;
        bags_code code = bags_index_get(index, i, &scratch, &row, &datapoint, &said);
        if (no_error)
            assert_int_equal(code, BAGS_OK);
        used += (size_t)snprintf(
            text + used, 32, "%s%d", used ? " " : "", code ? -1 : (int)datapoint);
    }
    bags_buffer_free(&scratch);
    bags_row_free(&row);
    return text;
}

static const char *find(const bags_index *index, bags_value key) {
    bags_buffer scratch = {0};
    uint64_t start = 0, stop = 0;
    assert_ok(bags_index_find(index, &key, &scratch, &start, &stop, &said));
    bags_buffer_free(&scratch);
    return datapoints(index, start, stop, true);
}

static const char *find_range(
    const bags_index *index, const bags_value *from, const bags_value *to) {
    bags_buffer scratch = {0};
    uint64_t start = 0, stop = 0;
    assert_ok(bags_index_find_range(index, from, to, &scratch, &start, &stop, &said));
    bags_buffer_free(&scratch);
    return datapoints(index, start, stop, true);
}

/* What find and find_range must return, by looking at every datapoint. */
static const char *scan(uint64_t count, int64_t from, int64_t to) {
    static char text[65536];
    size_t used = 0;
    text[0] = 0;
    for (int64_t at = from; at < to; at++)
        for (uint64_t i = 0; i < count; i++)
            if (time_of(i) == at)
                used +=
                    (size_t)snprintf(text + used, 32, "%s%d", used ? " " : "", (int)i);
    return text;
}

static bags_index *open_index(
    const char *path, const bags_reader *reader, size_t field) {
    bags_index_options options = with_env();
    bags_index *index;
    assert_opens(index, bags_index_open(path, reader, field, &options, &said));
    return index;
}

static void every_key_is_found(void **state) {
    (void)state;
    /* Unsharded and sharded; in one run, and in many. */
    for (int way = 0; way < 4; way++) {
        const char *path = at("rows%d", way);
        bags_index_options options = with_env();
        write_rows(path, 0, 500, way & 1 ? 60 : 0, false);
        options.memory = way & 2 ? 4096 : 0;
        for (size_t f = 0; f < FIELDS; f++)
            if (f != TAGS)
                assert_ok(bags_index_build(path, fields[f].name, &options, &said));
        assert_names(way & 1 ? at("rows%d/000000/index", way) : at("rows%d/index", way),
            "id.bag id.crc real.bag real.crc single.bag single.crc small.bag "
            "small.crc time.bag time.crc unsigned.bag unsigned.crc");
        bags_reader *reader = open_rows(path);
        bags_index *index = open_index(path, reader, TIME);
        for (int64_t key = -52; key <= 52; key++) {
            bags_value from = bags_int(key), to = bags_int(key + 5);
            assert_string_equal(find(index, from), scan(500, key, key + 1));
            assert_string_equal(find_range(index, &from, &to), scan(500, key, key + 5));
            assert_string_equal(find_range(index, &from, NULL), scan(500, key, 99));
            assert_string_equal(find_range(index, NULL, &to), scan(500, -99, key + 5));
        }
        bags_index_close(index);
        index = open_index(path, reader, ID);
        for (uint64_t i = 0; i < 500; i++) {
            char id[64], expected[16];
            snprintf(
                id, sizeof id, "%.*s%d", (int)(i % 3), "aa", (int)(i * 7919 % 1000));
            snprintf(expected, sizeof expected, "%d", (int)i);
            assert_string_equal(find(index, bags_utf8(id)), expected);
        }
        assert_string_equal(find(index, bags_utf8("a")), "");
        assert_string_equal(find(index, bags_utf8("")), "");
        bags_index_close(index);
        for (size_t f = 0; f < FIELDS; f++)
            if (f == REAL || f == SINGLE || f == SMALL) {
                double key = f == REAL ? -2.5 : f == SINGLE ? -0.7 : -3;
                bags_value value = f == SMALL
                                       ? bags_int(-3)
                                       : bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &key);
                index = open_index(path, reader, f);
                assert_string_equal(find(index, value), f == REAL ? scan(500, -10, -9)
                                                        : f == SINGLE
                                                            ? scan(500, -7, -6)
                                                            : scan(500, -3, -2));
                bags_index_close(index);
            }
        index = open_index(path, reader, UNSIGNED);
        assert_int_equal(strncmp(find(index, bags_uint(UINT64_MAX)), "0 9 18", 6), 0);
        bags_index_close(index);
        bags_reader_close(reader);
    }
}

static void what_cannot_be_a_key_is_refused(void **state) {
    (void)state;
    bags_index_options options = with_env();
    bags_buffer scratch = {0};
    uint64_t start = 0, stop = 0;
    const char *path = at("rows");
    write_rows(path, 0, 10, 0, false);
    assert_fails(BAGS_ERROR_TYPE, bags_index_build(path, "tags", &options, &said));
    assert_says("rows*\"tags\"*utf8[]");
    assert_fails(BAGS_ERROR_FIELD, bags_index_build(path, "x", &options, &said));
    assert_fails(
        BAGS_ERROR_MISSING, bags_index_build(at("none"), "id", &options, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_index_build(NULL, "id", &options, &said));
    bags_reader *reader = open_rows(path);
    assert_refused(
        BAGS_ERROR_MISSING, bags_index_open(path, reader, ID, &options, &said));
    assert_says("\"id\" has no index");
    assert_ok(bags_index_build(path, "id", &options, &said));
    assert_ok(bags_index_build(path, "unsigned", &options, &said));
    bags_index *index = open_index(path, reader, UNSIGNED);
    bags_value negative = bags_int(-1), text = bags_utf8("1"), one = bags_uint(1),
               two = bags_uint(2);
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find(index, &negative, &scratch, &start, &stop, &said));
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find(index, &text, &scratch, &start, &stop, &said));
    assert_fails(BAGS_ERROR_RANGE,
        bags_index_find_range(index, &two, &one, &scratch, &start, &stop, &said));
    bags_row row = {0};
    assert_fails(
        BAGS_ERROR_RANGE, bags_index_get(index, 10, &scratch, &row, &start, &said));
    bags_row_free(&row);
    bags_index_close(index);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
}

/* Numbers that the type cannot hold are before or after all keys. */
static void the_ends_of_a_range_may_be_outside_the_type(void **state) {
    static const double reals[] = {-1e30, 1e30};
    bags_index_options options = with_env();
    bags_buffer scratch = {0};
    uint64_t start = 0, stop = 0;
    const char *path = at("rows");
    (void)state;
    write_rows(path, 0, 9, 0, false);
    bags_reader *reader = open_rows(path);
    assert_ok(bags_index_build(path, "unsigned", &options, &said));
    assert_ok(bags_index_build(path, "time", &options, &said));
    for (size_t field = TIME; field <= UNSIGNED; field++) {
        bags_index *index = open_index(path, reader, field);
        bags_value low = bags_int(-1),
                   least = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &reals[0]),
                   high = bags_uint(UINT64_MAX),
                   most = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &reals[1]);
        const char *all = "8 7 6 5 4 3 2 1 0", *rest = "8 7 6 5 4 3 2 1";
        if (field == TIME) { /* -50 -13 24 -40 -3 34 -30 7 44 */
            all = "0 3 6 1 4 7 2 5 8";
            rest = "7 2 5 8";
        }
        assert_string_equal(find_range(index, &least, &most), all);
        assert_string_equal(find_range(index, &low, &most), field == TIME ? rest : all);
        assert_string_equal(find_range(index, &low, &high), rest);
        assert_string_equal(find_range(index, &most, NULL), "");
        assert_string_equal(find_range(index, NULL, &least), "");
        assert_fails(BAGS_ERROR_RANGE,
            bags_index_find_range(index, &most, &low, &scratch, &start, &stop, &said));
        assert_fails(BAGS_ERROR_VALUE,
            bags_index_find(index, &most, &scratch, &start, &stop, &said));
        bags_index_close(index);
    }
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
}

/* Like unzip, which sets the times that the archive states. */
static void copy_with_time(const char *from, const char *to) {
    const struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    bytes data = load(from);
    int descriptor = open(to, O_WRONLY | O_TRUNC);
    assert_int_equal(write(descriptor, data.data, data.size), data.size);
    assert_int_equal(futimens(descriptor, times), 0);
    close(descriptor);
    bytes_free(&data);
}

typedef bags_code (*finder)(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err);

static const char *find_by(finder by, const bags_index *index, bags_value key) {
    bags_buffer scratch = {0};
    uint64_t start = 0, stop = 0;
    assert_ok(by(index, &key, &scratch, &start, &stop, &said));
    bags_buffer_free(&scratch);
    return datapoints(index, start, stop, true);
}

#define find_prefix(index, key) find_by(bags_index_find_prefix, index, key)
#define find_before(index, key) find_by(bags_index_find_at_or_before, index, key)

/* One field of these values, indexed. */
static bags_index *index_values(
    const char *type, const bags_value *values, size_t count, bags_reader **reader) {
    bags_field field = {"x", type};
    bags_index_options options = with_env();
    bags_writer *writer;
    if (access(at("values"), F_OK) == 0)
        remove_tree(at("values"));
    assert_opens(writer, bags_writer_open(at("values"), &field, 1, NULL, &said));
    for (size_t i = 0; i < count; i++) {
        bags_entry entry = {"x", &values[i], 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(bags_index_build(at("values"), "x", &options, &said));
    *reader = open_rows(at("values"));
    return open_index(at("values"), *reader, 0);
}

static void keys_are_found_by_what_they_begin_with(void **state) {
    static const struct {
        const char *key;
        size_t size;
    } keys[] = {{"b", 1}, {"", 0}, {"ab", 2}, {"a", 1}, {"\xff", 1}, {"abc", 3},
        {"ab\0", 3}, {"\xff\xff", 2}, {"ab", 2}, {"\xfe", 1}, {"ab\xff", 3}, {"ac", 2},
        {"\xff\xff\0", 3}, {"ab", 2}, {"a\xff\xff", 3}};
    static const struct {
        const char *prefix, *found;
        size_t size;
    } cases[] = {{"a", "3 2 8 13 6 5 10 11 14", 1}, {"ab", "2 8 13 6 5 10", 2},
        {"abc", "5", 3}, {"ab\0", "6", 3}, {"ab\xff", "10", 3}, {"b", "0", 1},
        {"\xff", "4 7 12", 1}, {"\xff\xff", "7 12", 2}, {"\xff\xff\0", "12", 3},
        {"\xff\xff\xff", "", 3}, {"a\xff", "14", 2}, {"\xfe", "9", 1}, {"c", "", 1},
        {"abcd", "", 4}, {"\0", "", 1}, {"", NULL, 0}};
    bags_value values[15];
    bags_reader *reader;
    (void)state;
    for (size_t i = 0; i < 15; i++)
        values[i] = bags_bytes(keys[i].key, keys[i].size);
    bags_index *index = index_values("bytes", values, 15, &reader);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(
            find_prefix(index, bags_bytes(cases[i].prefix, cases[i].size)),
            cases[i].found ? cases[i].found : "1 3 2 8 13 6 5 10 11 14 0 9 4 7 12");
    assert_string_equal(find_prefix(index, bags_utf8("ac")), "11");
    bags_index_close(index);
    bags_reader_close(reader);
    /* Without any key, and in a field of numbers. */
    index = index_values("utf8", NULL, 0, &reader);
    assert_string_equal(find_prefix(index, bags_utf8("")), "");
    assert_string_equal(find_before(index, bags_utf8("z")), "");
    bags_value text = bags_utf8("1"), number = bags_int(1);
    bags_buffer scratch = {0};
    uint64_t start = 7, stop = 7;
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find_prefix(index, &number, &scratch, &start, &stop, &said));
    assert_says("\"x\"*text");
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_index_find_prefix(index, NULL, &scratch, &start, &stop, &said));
    bags_index_close(index);
    bags_reader_close(reader);
    index = index_values("i64", &number, 1, &reader);
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find_prefix(index, &text, &scratch, &start, &stop, &said));
    assert_says("\"x\"*prefix");
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find_at_or_before(index, &text, &scratch, &start, &stop, &said));
    assert_int_equal(start, 7);
    assert_int_equal(stop, 7);
    bags_index_close(index);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
}

static bags_value real_of(const double *real) {
    return bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, real);
}

/* Of equal keys, the datapoint with the highest number. */
static void the_last_key_at_or_before_is_found(void **state) {
    static const double reals[] = {-1e30, 1e30, 20.5, -INFINITY, INFINITY, NAN};
    bags_buffer scratch = {0};
    bags_value values[7];
    bags_reader *reader;
    uint64_t start = 0, stop = 0;
    (void)state;
    const int64_t times[] = {20, -5, 10, 20, -5, 10, 20};
    for (size_t i = 0; i < 7; i++)
        values[i] = bags_int(times[i]);
    bags_index *index = index_values("i64", values, 7, &reader);
    const struct {
        int64_t at;
        const char *found;
    } cases[] = {{INT64_MIN, ""}, {-6, ""}, {-5, "4"}, {-4, "4"}, {0, "4"}, {9, "4"},
        {10, "5"}, {11, "5"}, {19, "5"}, {20, "6"}, {21, "6"}, {INT64_MAX, "6"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(find_before(index, bags_int(cases[i].at)), cases[i].found);
    assert_string_equal(find_before(index, bags_uint(UINT64_MAX)), "6");
    assert_string_equal(find_before(index, real_of(&reals[0])), "");
    assert_string_equal(find_before(index, real_of(&reals[1])), "6");
    bags_value fraction = real_of(&reals[2]), nan = real_of(&reals[5]);
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find_at_or_before(index, &fraction, &scratch, &start, &stop, &said));
    bags_index_close(index);
    bags_reader_close(reader);

    /* A number below the type is below its least one. */
    const uint64_t numbers[] = {0, UINT64_MAX, 0};
    for (size_t i = 0; i < 3; i++)
        values[i] = bags_uint(numbers[i]);
    index = index_values("u64", values, 3, &reader);
    assert_string_equal(find_before(index, bags_int(-1)), "");
    assert_string_equal(find_before(index, bags_int(0)), "2");
    assert_string_equal(find_before(index, bags_uint(UINT64_MAX)), "1");
    assert_string_equal(find_before(index, real_of(&reals[1])), "1");
    bags_value below = bags_int(-1), zero = bags_int(0), one = bags_int(1);
    assert_string_equal(find_range(index, &below, &zero), "");
    assert_string_equal(find_range(index, &below, &one), "0 2");
    bags_index_close(index);
    bags_reader_close(reader);

    const double floats[] = {0.5, -0.0, INFINITY, 0, -2.25};
    for (size_t i = 0; i < 5; i++)
        values[i] = real_of(&floats[i]);
    index = index_values("array(float64)", values, 5, &reader);
    assert_string_equal(find_before(index, real_of(&reals[3])), "");
    assert_string_equal(find_before(index, bags_int(-1)), "4");
    assert_string_equal(find_before(index, bags_int(0)), "3");
    assert_string_equal(find_before(index, real_of(&reals[2])), "0");
    assert_string_equal(find_before(index, real_of(&reals[4])), "2");
    assert_fails(BAGS_ERROR_VALUE,
        bags_index_find_at_or_before(index, &nan, &scratch, &start, &stop, &said));
    assert_says("\"x\"*NaN");
    bags_index_close(index);
    bags_reader_close(reader);

    const char *names[] = {"b", "a", "b", "", "b\xff"};
    for (size_t i = 0; i < 5; i++)
        values[i] = bags_bytes(names[i], strlen(names[i]));
    index = index_values("bytes", values, 5, &reader);
    assert_string_equal(find_before(index, bags_utf8("")), "3");
    assert_string_equal(find_before(index, bags_utf8("A")), "3");
    assert_string_equal(find_before(index, bags_utf8("b")), "2");
    assert_string_equal(find_before(index, bags_utf8("ba")), "2");
    assert_string_equal(find_before(index, bags_utf8("c")), "4");
    bags_index_close(index);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
}

/* By looking at every key; with many equal ones. */
static void prefixes_and_neighbours_agree_with_a_scan(void **state) {
    char texts[300][8];
    bags_value values[300];
    bags_reader *reader;
    (void)state;
    for (int i = 0; i < 300; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i * 7919 % 301 / 4);
        values[i] = bags_utf8(texts[i]);
    }
    bags_index *index = index_values("utf8", values, 300, &reader);
    bags_buffer scratch = {0};
    for (int number = -1; number < 80; number++) {
        char key[8] = "";
        uint64_t start, stop, length = 0;
        int best = -1;
        if (number >= 0)
            snprintf(key, sizeof key, "%d", number);
        bags_value word = bags_utf8(key);
        for (int i = 0; i < 300; i++) {
            length += strncmp(texts[i], key, strlen(key)) == 0;
            if (strcmp(texts[i], key) <= 0 &&
                (best < 0 || strcmp(texts[i], texts[best]) >= 0))
                best = i;
        }
        assert_ok(bags_index_find_prefix(index, &word, &scratch, &start, &stop, &said));
        assert_int_equal(stop - start, length);
        char expected[16] = "";
        if (best >= 0)
            snprintf(expected, sizeof expected, "%d", best);
        assert_string_equal(find_before(index, word), expected);
    }
    uint64_t positions[600], found[600];
    bags_row row = {0};
    for (uint64_t i = 0; i < 600; i++)
        positions[i] = i * 131 % 300;
    assert_ok(bags_index_get_many(index, positions, 600, &scratch, &row, found, &said));
    for (size_t i = 0; i < 600; i++) {
        uint64_t one = 0;
        assert_ok(bags_index_get(index, positions[i], &scratch, &row, &one, &said));
        assert_int_equal(one, found[i]);
    }
    positions[599] = 300;
    assert_fails(BAGS_ERROR_RANGE,
        bags_index_get_many(index, positions, 600, &scratch, &row, found, &said));
    assert_ok(bags_index_get_many(index, NULL, 0, &scratch, &row, NULL, &said));
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_index_close(index);
    bags_reader_close(reader);
}

static size_t far_calls;

static void far_read_many(void *user, bags_io_read *reads, size_t count) {
    (void)user;
    far_calls++;
    for (size_t i = 0; i < count; i++)
        if (reads[i].data)
            bags_io_local()->read_at(user, reads[i].file, reads[i].offset,
                reads[i].data, reads[i].size, &reads[i].done);
}

static size_t far_expected;

static void far_expect(void *user, const char *path) {
    (void)user;
    far_expected += strstr(path, "time") || strstr(path, "refs");
}

/* A copy has other times; what is read is announced, so that few round trips do. */
static void an_index_that_is_far_away_is_used(void **state) {
    bags_index_options options = with_env();
    bags_reader_options reading = {0};
    bags_buffer scratch = {0};
    bags_row row = {0};
    bags_index *index;
    bags_reader *reader;
    (void)state;
    write_rows(at("rows"), 0, 3000, 500, false);
    assert_ok(bags_index_build(at("rows"), "time", &options, &said));
    for (int i = 0; i < 6; i++)
        copy_with_time(at("rows/00000%d/time.bag", i), at("rows/00000%d/time.bag", i));
    reader = open_rows(at("rows"));
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(at("rows"), reader, TIME, &options, &said));
    bags_reader_close(reader);
    bags_io far = *bags_io_local();
    far.map = NULL;
    far.read_many = far_read_many;
    far.expect = far_expect;
    reading.env.io = options.env.io = &far;
    assert_opens(reader, bags_reader_open(at("rows"), &reading, &said));
    far_calls = far_expected = 0;
    assert_opens(index, bags_index_open(at("rows"), reader, TIME, &options, &said));
    assert_in_range(far_calls, 1, 10);
    assert_true(far_expected >= 18);
    far_calls = 0;
    assert_string_equal(find(index, bags_int(3)), scan(3000, 3, 4));
    bags_value key = bags_int(7);
    uint64_t start, stop, positions[3000], found[3000];
    far_calls = 0;
    assert_ok(
        bags_index_find_at_or_before(index, &key, &scratch, &start, &stop, &said));
    assert_in_range(far_calls, 1, 12);
    for (uint64_t i = 0; i < 250; i++)
        positions[i] = i * 11;
    far_calls = 0;
    assert_ok(bags_index_get_many(index, positions, 250, &scratch, &row, found, &said));
    assert_in_range(far_calls, 1, 10);
    bags_index_close(index);
    bags_reader_close(reader);
    /* A dataset of other sizes is not the one that was indexed. */
    write_rows(at("other"), 0, 2999, 500, false);
    bytes data = load(at("other/000005/time.bag"));
    int file = open(at("rows/000005/time.bag"), O_WRONLY | O_TRUNC);
    assert_int_equal(write(file, data.data, data.size), data.size);
    close(file);
    bytes_free(&data);
    assert_opens(reader, bags_reader_open(at("rows"), &reading, &said));
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(at("rows"), reader, TIME, &options, &said));
    bags_reader_close(reader);
    bags_row_free(&row);
    bags_buffer_free(&scratch);
}

static void nan_is_refused_and_zeros_are_equal(void **state) {
    (void)state;
    static const bags_field field = {"x", "array(float64)"};
    double numbers[] = {0.0, -INFINITY, -0.0, INFINITY, -1.5, DBL_MIN, NAN};
    for (size_t count = 6; count <= 7; count++) {
        bags_index_options options = with_env();
        const char *path = at("rows%d", (int)count);
        bags_writer *writer;
        assert_opens(writer, bags_writer_open(path, &field, 1, NULL, &said));
        for (size_t i = 0; i < count; i++) {
            bags_value value = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &numbers[i]);
            bags_entry entry = {"x", &value, 1};
            assert_ok(bags_writer_append(writer, &entry, 1, &said));
        }
        assert_ok(bags_writer_close(writer, &said));
        if (count == 7) {
            assert_fails(
                BAGS_ERROR_VALUE, bags_index_build(path, "x", &options, &said));
            assert_says("\"x\"*datapoint 6*NaN");
            assert_names(at("rows%d/index", (int)count), "");
            continue;
        }
        assert_ok(bags_index_build(path, "x", &options, &said));
        bags_reader *reader = open_rows(path);
        bags_index *index = open_index(path, reader, 0);
        assert_string_equal(find_range(index, NULL, NULL), "1 4 0 2 5 3");
        assert_string_equal(find(index, bags_int(0)), "0 2");
        bags_index_close(index);
        bags_reader_close(reader);
    }
}

/* Only a key that is searched for is rounded to float32. */
static void a_range_of_float32_is_exact(void **state) {
    (void)state;
    static const bags_field field = {"x", "array(float32)"};
    float numbers[] = {0.7f, 16777216, 0, -0.3f, INFINITY};
    double real = 0.7, tiny = 1e-60, huge = 1e300;
    bags_value number = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &real);
    bags_value above_0 = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &tiny);
    bags_value finite = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &huge);
    bags_value odd = bags_int(16777217);
    const char *path = at("rows");
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, &field, 1, NULL, &said));
    for (size_t i = 0; i < 5; i++) {
        bags_value value = bags_array(BAGS_DTYPE_FLOAT32, 0, NULL, &numbers[i]);
        bags_entry entry = {"x", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(bags_index_build(path, "x", NULL, &said));
    bags_reader *reader = open_rows(path);
    bags_index *index = open_index(path, reader, 0);
    assert_true((double)numbers[0] < real);
    assert_string_equal(find_range(index, &number, NULL), "1 4");
    assert_string_equal(find_range(index, NULL, &number), "3 2 0");
    assert_string_equal(find_range(index, &number, &odd), "1");
    assert_string_equal(find_range(index, NULL, &above_0), "3 2");
    assert_string_equal(find_range(index, NULL, &finite), "3 2 0 1");
    assert_string_equal(find(index, number), "0");
    assert_string_equal(find(index, odd), "");
    assert_string_equal(find(index, above_0), "");
    assert_string_equal(find(index, finite), "");
    bags_index_close(index);
    bags_reader_close(reader);
}

/* The index is right, but not for this reader. */
static void a_reader_of_other_shards_is_the_cause_that_is_named(void **state) {
    (void)state;
    bags_index_options options = with_env();
    bags_reader_options reading = {0};
    bags_writer_options writing = {0};
    const char *path = at("rows");
    bags_reader *reader;
    bags_writer *writer;
    write_rows(path, 0, 50, 20, false);
    assert_ok(bags_index_build(path, "time", &options, &said));
    reading.shard_start = 1;
    reading.shard_stop = 2;
    assert_opens(reader, bags_reader_open(path, &reading, &said));
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(path, reader, TIME, &options, &said));
    assert_says("000000/index/time.bag: the reader has only 20 of the 50 "
                "datapoints that were indexed; open all shards");
    bags_reader_close(reader);
    writing.existing = BAGS_EXISTING_APPEND;
    writing.shard_length = 20;
    assert_opens(writer, bags_writer_open(path, fields, FIELDS, &writing, &said));
    append(writer, 50);
    assert_ok(bags_writer_flush(writer, &said));
    reading.shard_start = reading.shard_stop = 0;
    reading.unfinished = BAGS_UNFINISHED_READ;
    assert_opens(reader, bags_reader_open(path, &reading, &said));
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_index_open(path, reader, TIME, &options, &said));
    assert_says("rows: the reader has unfinished shards");
    bags_reader_close(reader);
    assert_ok(bags_writer_close(writer, &said));
}

static void an_index_older_than_its_dataset_is_an_error(void **state) {
    (void)state;
    bags_index_options options = with_env();
    const char *path = at("rows"), *other = at("other");
    write_rows(path, 0, 50, 20, false);
    assert_ok(bags_index_build(path, "time", &options, &said));
    bags_reader *reader = open_rows(path);
    bags_index_close(open_index(path, reader, TIME));
    bags_reader_close(reader);
    /* It grew. */
    write_rows(path, 50, 60, 20, true);
    reader = open_rows(path);
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(path, reader, TIME, &options, &said));
    assert_says("index/time.bag*another length*build the index again");
    bags_reader_close(reader);
    assert_ok(bags_index_build(path, "time", &options, &said));
    /* Other values of the same size are written over its file. */
    write_rows(other, 1, 61, 20, false);
    bytes data = load(at("other/000001/time.bag"));
    int descriptor = open(at("rows/000001/time.bag"), O_WRONLY);
    assert_int_equal(write(descriptor, data.data, data.size), data.size);
    close(descriptor);
    bytes_free(&data);
    reader = open_rows(path);
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(path, reader, TIME, &options, &said));
    assert_says("older than the dataset");
    /* Where files have no times, the last bytes are compared. */
    bags_io timeless = *bags_io_local();
    timeless.identify = NULL;
    options.env.io = &timeless;
    assert_ok(bags_index_build(path, "id", &options, &said));
    bags_index *index;
    assert_opens(index, bags_index_open(path, reader, ID, &options, &said));
    bags_index_close(index);
    data = load(at("other/000001/id.bag"));
    descriptor = open(at("rows/000001/id.bag"), O_WRONLY | O_TRUNC);
    assert_int_equal(write(descriptor, data.data, data.size), data.size);
    close(descriptor);
    bytes_free(&data);
    bags_reader_close(reader);
    reader = open_rows(path);
    assert_refused(
        BAGS_ERROR_CORRUPT, bags_index_open(path, reader, ID, &options, &said));
    bags_reader_close(reader);
}

/* Replaced by files of equal sizes and times: by other values, or by others' order. */
static void a_dataset_of_the_same_time_and_size_is_not_the_same(void **state) {
    (void)state;
    bags_index_options options = with_env();
    for (int checksums = 0; checksums < 2; checksums++) {
        write_rows(at("rows"), 0, 50, 0, false);
        write_rows(at("other"), 1, 51, 0, false);
        if (checksums) {
            assert_ok(bags_checksum(at("rows"), NULL, NULL, &said));
            assert_ok(bags_checksum(at("other"), NULL, NULL, &said));
            copy_with_time(at("rows/time.crc"), at("rows/time.crc"));
        }
        copy_with_time(at("rows/time.bag"), at("rows/time.bag"));
        copy_with_time(at("rows/refs.bag"), at("rows/refs.bag"));
        assert_ok(bags_index_build(at("rows"), "time", &options, &said));
        bags_reader *reader = open_rows(at("rows"));
        bags_index_close(open_index(at("rows"), reader, TIME));
        bags_reader_close(reader);
        copy_with_time(at("other/time.bag"), at("rows/time.bag"));
        if (checksums)
            copy_with_time(at("other/time.crc"), at("rows/time.crc"));
        reader = open_rows(at("rows"));
        assert_refused(BAGS_ERROR_CORRUPT,
            bags_index_open(at("rows"), reader, TIME, &options, &said));
        assert_says(checksums ? "time.bag: older" : "time.bag: *other keys");
        bags_reader_close(reader);
        remove_tree(at("rows"));
        remove_tree(at("other"));
    }
}

/* There may be many more sorted runs than files that can be open. */
static void a_sort_of_many_runs_needs_few_files(void **state) {
    (void)state;
    bags_index_options options = with_env();
    struct rlimit limit, few;
    options.memory = 4096;
    write_rows(at("rows"), 0, 5000, 0, false);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = limit;
    few.rlim_cur = 24;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    bags_code code = bags_index_build(at("rows"), "time", &options, &said);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_ok(code);
    assert_true(disk.peak_files < 20);
    bags_reader *reader = open_rows(at("rows"));
    bags_index *index = open_index(at("rows"), reader, TIME);
    assert_string_equal(find(index, bags_int(3)), scan(5000, 3, 4));
    bags_index_close(index);
    bags_reader_close(reader);
    assert_names(at("rows/index"), "time.bag time.crc");
}

static void an_index_moves_with_its_dataset(void **state) {
    (void)state;
    bags_index_options options = with_env();
    write_rows(at("rows"), 0, 50, 20, false);
    assert_int_equal(rename(at("rows/000000"), at("rows/000005")), 0);
    assert_fails(BAGS_ERROR_GAP, bags_index_build(at("rows"), "id", &options, &said));
    assert_ok(bags_finalize(at("rows"), NULL, NULL, &said));
    assert_ok(bags_index_build(at("rows"), "id", &options, &said));
    assert_int_equal(rename(at("rows"), at("moved")), 0);
    bags_reader *reader = open_rows(at("moved"));
    bags_index *index = open_index(at("moved"), reader, ID);
    assert_string_equal(find(index, bags_utf8("0")), "30");
    bags_index_close(index);
    bags_reader_close(reader);
}

static void every_changed_byte_is_harmless_or_reported(void **state) {
    (void)state;
    bags_index_options options = with_env();
    const char *path = at("rows");
    write_rows(path, 0, 20, 0, false);
    assert_ok(bags_index_build(path, "id", &options, &said));
    bags_reader *reader = open_rows(path);
    bags_index *index = open_index(path, reader, ID);
    char expected[1024], prefixed[1024], before[1024];
    bags_value prefix = bags_utf8("a"), key = bags_utf8("b");
    strcpy(expected, datapoints(index, 0, 20, true));
    strcpy(prefixed, find_prefix(index, prefix));
    strcpy(before, find_before(index, key));
    bags_buffer scratch = {0};
    bags_index_close(index);
    bytes good = load(at("rows/index/id.bag"));
    for (size_t i = 0; i < 2 * good.size; i++) {
        bytes bad = {0};
        put(&bad, good.data, i < good.size ? good.size : i - good.size);
        if (i < good.size)
            bad.data[i] ^= 0x41;
        save(at("rows/index/id.bag"), bad.data, bad.size);
        bytes_free(&bad);
        index = bags_index_open(path, reader, ID, &options, &said);
        if (!index)
            continue;
        /* A datapoint is right, or an error. */
        const char *found = datapoints(index, 0, 20, false), *want = expected;
        for (int j = 0; j < 20; j++) {
            char *after_found, *after_want;
            long one = strtol(found, &after_found, 10);
            assert_true(one == strtol(want, &after_want, 10) || one == -1);
            found = after_found;
            want = after_want;
        }
        uint64_t start, stop;
        if (!bags_index_find_prefix(index, &prefix, &scratch, &start, &stop, &said)) {
            found = datapoints(index, start, stop, false);
            assert_true(strstr(found, "-1") || !strcmp(found, prefixed));
        }
        if (!bags_index_find_at_or_before(
                index, &key, &scratch, &start, &stop, &said)) {
            found = datapoints(index, start, stop, false);
            assert_true(!strcmp(found, "-1") || !strcmp(found, before));
        }
        bags_index_close(index);
    }
    bags_buffer_free(&scratch);
    bytes_free(&good);
    bags_reader_close(reader);
}

static void a_build_that_is_running_excludes_others(void **state) {
    (void)state;
    bags_index_options options = with_env();
    const bags_io *io = bags_io_local();
    const char *path = at("rows");
    void *file = NULL;
    write_rows(path, 0, 300, 0, false);
    assert_int_equal(io->open(io->user, at("rows/id.bag"), BAGS_IO_READ, &file), 0);
    assert_int_equal(io->lock(io->user, file), 0);
    assert_fails(BAGS_ERROR_LOCKED, bags_index_build(path, "id", &options, &said));
    assert_says("rows: field \"id\": another process");
    assert_ok(bags_index_build(path, "time", &options, &said));
    assert_names(at("rows/index"), "time.bag time.crc");
    assert_int_equal(io->close(io->user, file), 0);
    /* What a killed one left is replaced. */
    make_dir(at("rows/index/id.partial"));
    save_text(at("rows/index/id.partial/keys.bag"), "left");
    save_text(at("rows/index/id.partial/keys.idx"), "left");
    save_text(at("rows/index/id.partial/keys.crc"), "left");
    save_text(at("rows/index/id.partial/runs.bag"), "left");
    save_text(at("rows/index/id.partial/runs.idx"), "left");
    options.memory = 4096;
    assert_ok(bags_index_build(path, "id", &options, &said));
    assert_names(at("rows/index"), "id.bag id.crc time.bag time.crc");
}

/* Whatever fails: there is no index, or a right one. */
static void check_after_failure(const char *path) {
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    bags_index *index = bags_index_open(path, reader, TIME, NULL, &said);
    if (index)
        assert_string_equal(find(index, bags_int(3)), scan(300, 3, 4));
    else
        assert_int_equal(said.code, BAGS_ERROR_MISSING);
    bags_index_close(index);
    bags_reader_close(reader);
}

static void every_failure_of_the_system_is_reported(void **state) {
    (void)state;
    const char *path = at("rows");
    write_rows(path, 0, 300, 70, false);
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        bags_index_options options = with_env();
        options.memory = 4096;
        disk.calls = disk.failed = 0;
        disk.only =
            (unsigned)~(1u << HOOK_CLOSE | 1u << HOOK_REMOVE | 1u << HOOK_ADVISE |
                        1u << HOOK_RESERVE | 1u << HOOK_WRITE_BACK | 1u << HOOK_MAP |
                        1u << HOOK_UNMAP);
        disk.fail_at = n;
        bags_code code = bags_index_build(path, "time", &options, &said);
        disk.fail_at = 0;
        failed = disk.failed > 0;
        if (!failed)
            assert_int_equal(code, BAGS_OK);
        check_after_failure(path);
        assert_int_equal(disk.files, 0);
    }
    failed = true;
    for (uint64_t n = 1; failed; n++) {
        bags_index_options options = with_env();
        options.memory = 4096;
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_code code = bags_index_build(path, "time", &options, &said);
        memory.fail_at = 0;
        failed = memory.failed > 0;
        assert_int_equal(code, failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        check_after_failure(path);
    }
    failed = true;
    for (uint64_t n = 1; failed; n++) {
        bags_index_options options = with_env();
        bags_reader *reader = open_rows(path);
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_index *index = bags_index_open(path, reader, TIME, &options, &said);
        memory.fail_at = 0;
        failed = memory.failed > 0;
        assert_true(failed ? !index && said.code == BAGS_ERROR_MEMORY : !!index);
        bags_index_close(index);
        bags_reader_close(reader);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_key_is_found),
        TEST(what_cannot_be_a_key_is_refused),
        TEST(the_ends_of_a_range_may_be_outside_the_type),
        TEST(keys_are_found_by_what_they_begin_with),
        TEST(the_last_key_at_or_before_is_found),
        TEST(prefixes_and_neighbours_agree_with_a_scan),
        TEST(an_index_that_is_far_away_is_used),
        TEST(nan_is_refused_and_zeros_are_equal),
        TEST(a_range_of_float32_is_exact),
        TEST(a_reader_of_other_shards_is_the_cause_that_is_named),
        TEST(an_index_older_than_its_dataset_is_an_error),
        TEST(a_dataset_of_the_same_time_and_size_is_not_the_same),
        TEST(a_sort_of_many_runs_needs_few_files),
        TEST(an_index_moves_with_its_dataset),
        TEST(every_changed_byte_is_harmless_or_reported),
        TEST(a_build_that_is_running_excludes_others),
        TEST(every_failure_of_the_system_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
