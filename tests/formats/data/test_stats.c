/* Statistics of fields: formats/data/stats.c. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include "../../../formats/formats.h"

#include <math.h>

static bags_buffer found;
static size_t elements[8];

static const bags_statistics *result(size_t i) {
    return (const bags_statistics *)(const void *)found.data + i;
}

static bags_code compute(const char *path, const char *field, uint32_t threads) {
    bags_stats_options options = {0};
    bags_reader *reader = bags_reader_open(path, NULL, &said);
    options.threads = threads;
    bags_code code =
        reader ? bags_stats(reader, &field, 1, &options, &found, elements, &said)
               : said.code;
    bags_reader_close(reader);
    return code;
}

/* A dataset of one field; each number is a datapoint, of the dtype of the type. */
static void write_numbers(const char *path, const char *type, const void *data,
    size_t size, size_t count, uint64_t shard) {
    const bags_field field = {"x", type};
    bags_writer_options options = {0};
    bags_writer *writer;
    bags_type parsed;
    options.shard_length = shard;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(path, &field, 1, &options, &said));
    assert_ok(bags_type_parse(type, &parsed, &said));
    bags_dtype dtype =
        bags_dtype_parse((const char *)parsed.name.data, parsed.name.size, NULL);
    uint64_t shape[] = {size / bags_dtype_size(dtype)};
    for (size_t i = 0; i < count; i++) {
        bags_value value =
            bags_array(dtype, parsed.count > 0, shape, (const char *)data + i * size);
        bags_entry entry = {"x", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bool is_near(double a, double b, double most) {
    return fabs(a - b) <= most * fabs(b);
}

static uint64_t state = 1;

static uint64_t draw(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state >> 11;
}

static double draw_real(void) { return (double)draw() / 9007199254740992.0; }

static int compare(const void *a, const void *b) {
    double one = *(const double *)a, two = *(const double *)b;
    return one < two ? -1 : one > two;
}

static double quantile(const double *sorted, size_t count, double q) {
    double at = (double)(count - 1) * q, part = at - floor(at);
    double a = sorted[(size_t)at], b = sorted[(size_t)at + (part > 0)];
    return part < 0.5 ? a + (b - a) * part : b - (b - a) * (1 - part);
}

static const double quantiles[] = {0.01, 0.1, 0.5, 0.9, 0.99};

static void statistics_are_those_of_a_plain_computation(void **unused) {
    (void)unused;
    enum { COUNT = 3000 };
    static double values[COUNT];
    for (int kind = 0; kind < 4; kind++) {
        long double sum = 0, squares = 0, base = kind == 2 ? 1e15 : 0;
        for (size_t i = 0; i < COUNT; i++) {
            values[i] = kind == 0 ? draw_real()
                        : kind == 1
                            ? ldexp(draw_real() - 0.5, (int)(draw() % 600) - 300)
                        : kind == 2 ? 1e15 + (double)(draw() % 7)
                                    : -(double)(draw() % 5);
            sum += (long double)values[i] - base;
        }
        write_numbers(at("k%d", kind), "float64", values, 8, COUNT, 0);
        assert_ok(compute(at("k%d", kind), "x", 2));
        const bags_statistics *s = result(0);
        assert_true(elements[0] == 1 && s->count == COUNT);
        double mean = (double)(base + sum / COUNT);
        for (size_t i = 0; i < COUNT; i++)
            squares += powl((long double)values[i] - base - sum / COUNT, 2);
        assert_true(is_near(s->mean, mean, 1e-15));
        assert_true(is_near(s->std, (double)sqrtl(squares / COUNT), 1e-15));
        qsort(values, COUNT, sizeof *values, compare);
        assert_true(s->min.kind == BAGS_KIND_REAL && s->min.real == values[0] &&
                    s->max.real == values[COUNT - 1] && s->error == 0);
        for (size_t i = 0; i < BAGS_QUANTILES; i++)
            assert_true(s->quantiles[i] == quantile(values, COUNT, quantiles[i]));
    }
}

static void sums_do_not_lose_what_cancels(void **unused) {
    (void)unused;
    static const double values[] = {1e300, 1, -1e300, 1e-300, 3, -1e-300};
    static const double large[] = {1.7e308, 1.7e308, 1.7e308, -1.7e308};
    static const double tiny[] = {4.9406564584124654e-324, 0, 0, 0};
    write_numbers(at("x"), "float64", values, 8, 2, 0);
    assert_ok(compute(at("x"), "x", 1));
    assert_true(result(0)->mean == 5e299);
    write_numbers(at("y"), "float64", values, 8, 6, 0);
    assert_ok(compute(at("y"), "x", 1));
    assert_true(is_near(result(0)->mean, 4.0 / 6, 1e-15));
    write_numbers(at("z"), "float64", large, 8, 4, 0);
    assert_ok(compute(at("z"), "x", 1));
    assert_true(is_near(result(0)->mean, 0.85e308, 1e-15));
    assert_true(is_near(result(0)->std, 1.7e308 * sqrt(0.75), 1e-15));
    write_numbers(at("t"), "float64", tiny, 8, 1, 0);
    assert_ok(compute(at("t"), "x", 1));
    assert_true(result(0)->mean == tiny[0] && result(0)->std == 0);
}

static void integers_of_64_bits_are_exact(void **unused) {
    (void)unused;
    static const uint64_t whole[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX, 0};
    static const int64_t sign[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, -1};
    write_numbers(at("u"), "uint64", whole, 8, 4, 0);
    assert_ok(compute(at("u"), "x", 1));
    const bags_statistics *s = result(0);
    assert_true(s->min.kind == BAGS_KIND_UINT && s->min.uint == 0);
    assert_true(s->max.kind == BAGS_KIND_UINT && s->max.uint == UINT64_MAX);
    assert_true(s->mean == 0.75 * 18446744073709551616.0 && s->error == 0);
    write_numbers(at("u3"), "uint64", whole, 8, 3, 0);
    assert_ok(compute(at("u3"), "x", 1));
    assert_true(is_near(result(0)->std, sqrt(2.0) / 3, 1e-15)); /* 2/3 of 1, 1/3 of 0 */
    write_numbers(at("i"), "int64", sign, 8, 4, 0);
    assert_ok(compute(at("i"), "x", 1));
    s = result(0);
    assert_true(s->min.kind == BAGS_KIND_INT && s->min.sint == INT64_MIN);
    assert_true(s->max.sint == INT64_MAX && s->count == 4);
    write_numbers(at("i2"), "int64", sign, 8, 2, 0);
    assert_ok(compute(at("i2"), "x", 1));
    assert_true(result(0)->std == 0.5);
}

/* Every member, but for padding. */
static bool is_equal(const bags_statistics *a, const bags_statistics *b) {
    return a->count == b->count && !memcmp(&a->mean, &b->mean, sizeof a->mean) &&
           !memcmp(&a->std, &b->std, sizeof a->std) && a->min.real == b->min.real &&
           a->max.real == b->max.real && a->min.uint == b->min.uint &&
           !memcmp(a->quantiles, b->quantiles, sizeof a->quantiles) &&
           !memcmp(&a->error, &b->error, sizeof a->error);
}

static void neither_threads_nor_shards_nor_the_order_matter(void **unused) {
    (void)unused;
    enum { COUNT = 2000 };
    static float values[COUNT][3], reversed[COUNT][3];
    bags_statistics first[3];
    for (size_t i = 0; i < COUNT; i++)
        for (size_t k = 0; k < 3; k++) {
            values[i][k] = (float)(draw_real() * pow(10, (double)(draw() % 12)));
            reversed[COUNT - 1 - i][k] = values[i][k];
        }
    write_numbers(at("a"), "float32(3)", values, sizeof *values, COUNT, 0);
    write_numbers(at("b"), "float32(3)", reversed, sizeof *values, COUNT, 77);
    for (uint32_t i = 0; i < 6; i++) {
        assert_ok(compute(at(i % 2 ? "b" : "a"), "x", i == 4 ? 9 : 1 + i));
        assert_true(elements[0] == 3);
        for (size_t k = 0; k < 3; k++) {
            if (i == 0)
                first[k] = *result(k);
            assert_true(is_equal(result(k), &first[k]));
        }
    }
}

/* A field of so many elements that each has few keys: quantiles are then not exact, their
 * error is bounded, and still nothing matters but the numbers. */
static void many_different_numbers_are_grouped(void **unused) {
    (void)unused;
    enum { COUNT = 1500, WIDTH = 6000 };
    static double column[COUNT];
    static float values[COUNT][WIDTH], reversed[COUNT][WIDTH];
    bags_statistics first;
    for (size_t i = 0; i < COUNT; i++)
        for (size_t k = 0; k < WIDTH; k++)
            values[i][k] = k % 100 ? 1 : (float)(draw_real() - 0.3) * 100;
    for (size_t i = 0; i < COUNT; i++)
        memcpy(reversed[COUNT - 1 - i], values[i], sizeof *values);
    write_numbers(at("a"), "float32(6000)", values, sizeof *values, COUNT, 0);
    write_numbers(at("b"), "float32(6000)", reversed, sizeof *values, COUNT, 0);
    assert_ok(compute(at("a"), "x", 1));
    assert_true(elements[0] == WIDTH);
    first = *result(300);
    assert_true(first.error > 0 && result(1)->error == 0 && result(1)->std == 0);
    for (size_t i = 0; i < COUNT; i++)
        column[i] = (double)values[i][300];
    qsort(column, COUNT, sizeof *column, compare);
    for (size_t i = 0; i < BAGS_QUANTILES; i++) {
        double exact = quantile(column, COUNT, quantiles[i]);
        assert_true(fabs(first.quantiles[i] - exact) <= first.error);
        assert_true(fabs(first.quantiles[i] - exact) <= 0.02 * fabs(exact) + 1e-3);
    }
    assert_true(first.min.real == column[0] && first.max.real == column[COUNT - 1]);
    for (uint32_t threads = 2; threads < 4; threads++) {
        assert_ok(compute(at(threads == 2 ? "b" : "a"), "x", threads));
        assert_true(is_equal(result(300), &first));
    }
}

static void elements_are_those_of_the_shape(void **unused) {
    (void)unused;
    static const bags_field fields[] = {{"any", "array"}, {"free", "int16(-1,2)"},
        {"list", "uint8(2)[]"}, {"middle", "int8(2,-1,2)"}, {"n", "int"}};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(at("x"), fields, 5, NULL, &said));
    for (int i = 0; i < 3; i++) {
        int16_t free_data[] = {1, 10, 2, 20, 3, 30};
        uint8_t list_data[] = {5, 7};
        int8_t middle[] = {1, 2, 3, 4, -1, -2, -3, -4};
        float any[] = {(float)i, 5};
        uint64_t two[] = {2}, rows[] = {(uint64_t)i + 1, 2}, boxes[] = {2, 2, 2};
        bags_value values[4], items[3], n = bags_int(i);
        values[0] = bags_array(BAGS_DTYPE_FLOAT32, 1, two, any);
        values[1] = bags_array(BAGS_DTYPE_INT16, 2, rows, free_data);
        values[2] = bags_array(BAGS_DTYPE_INT8, 3, boxes, middle);
        for (int k = 0; k < 3; k++)
            items[k] = bags_array(BAGS_DTYPE_UINT8, 1, two, list_data);
        bags_entry entries[] = {{"any", &values[0], 1}, {"free", &values[1], 1},
            {"list", items, (size_t)i}, {"middle", &values[2], 1}, {"n", &n, 1}};
        assert_ok(bags_writer_append(writer, entries, 5, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader;
    static const char *const names[] = {"n", "middle", "list", "free", "any"};
    uint64_t rows[] = {2, 0};
    bags_stats_options options = {0};
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_ok(bags_stats(reader, names, 5, NULL, &found, elements, &said));
    assert_true(elements[0] == 1 && elements[1] == 4 && elements[2] == 2 &&
                elements[3] == 2 && elements[4] == 2);
    assert_true(result(0)->mean == 1 && result(0)->count == 3);
    static const int least[] = {1, 2, -3, -4}, most[] = {3, 4, -1, -2};
    for (size_t i = 0; i < 4; i++)
        assert_true(result(1 + i)->min.sint == least[i] &&
                    result(1 + i)->max.sint == most[i] && result(1 + i)->count == 6);
    assert_true(result(5)->count == 3 && result(6)->mean == 7);
    assert_true(result(7)->count == 6 && result(7)->mean == 10.0 / 6);
    assert_true(result(8)->max.sint == 30 && result(9)->max.real == 2);
    options.rows = rows;
    options.rows_count = 2;
    assert_ok(bags_stats(reader, names, 1, &options, &found, elements, &said));
    assert_true(result(0)->count == 2 && result(0)->std == 1);
    rows[1] = 3;
    assert_fails(BAGS_ERROR_RANGE,
        bags_stats(reader, names, 1, &options, &found, elements, &said));
    options.rows_count = 0;
    assert_fails(BAGS_ERROR_VALUE,
        bags_stats(reader, names, 1, &options, &found, elements, &said));
    assert_says("field \"n\": no values (0 datapoints)");
    bags_reader_close(reader);
}

static void nan_is_not_counted_and_infinity_is_refused(void **unused) {
    (void)unused;
    float values[][2] = {{1, NAN}, {NAN, NAN}, {3, NAN}};
    write_numbers(at("x"), "float32(2)", values, 8, 3, 0);
    assert_ok(compute(at("x"), "x", 2));
    assert_true(result(0)->count == 2 && result(0)->mean == 2 && result(0)->std == 1);
    assert_true(result(1)->count == 0 && result(1)->std == 0);
    values[2][1] = -INFINITY;
    write_numbers(at("y"), "float32(2)", values, 8, 3, 0);
    for (uint32_t threads = 1; threads < 4; threads++) {
        assert_fails(BAGS_ERROR_VALUE, compute(at("y"), "x", threads));
        assert_says(
            "field \"x\": datapoint 2: element 1: statistics need finite numbers");
    }
}

static void values_without_numbers_are_refused(void **unused) {
    (void)unused;
    static const bags_field fields[] = {
        {"a", "array"}, {"c", "complex64"}, {"t", "utf8"}, {"z", "uint8(200,200)"}};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(at("x"), fields, 4, NULL, &said));
    static unsigned char image[200 * 200];
    for (uint64_t i = 1; i < 3; i++) {
        float pair[] = {0, 1};
        uint64_t shape[] = {200, 200};
        bags_value values[] = {bags_array(BAGS_DTYPE_FLOAT32, 1, &i, pair),
            bags_array(BAGS_DTYPE_COMPLEX64, 0, NULL, pair), bags_utf8("x"),
            bags_array(BAGS_DTYPE_UINT8, 2, shape, image)};
        bags_entry entries[4];
        for (size_t k = 0; k < 4; k++) {
            entries[k].field = fields[k].name;
            entries[k].values = &values[k];
            entries[k].count = 1;
        }
        assert_ok(bags_writer_append(writer, entries, 4, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_fails(BAGS_ERROR_TYPE, compute(at("x"), "t", 1));
    assert_says("x: field \"t\": values of type utf8 have no statistics");
    assert_fails(BAGS_ERROR_TYPE, compute(at("x"), "c", 1));
    assert_fails(BAGS_ERROR_FIELD, compute(at("x"), "nothing", 1));
    assert_fails(BAGS_ERROR_VALUE, compute(at("x"), "a", 1));
    assert_says("field \"a\": datapoint 1: another shape");
    assert_fails(BAGS_ERROR_LIMIT, compute(at("x"), "z", 1));
    assert_says("too many elements");
    static const char *const twice[] = {"z", "z"};
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_fails(
        BAGS_ERROR_FIELD, bags_stats(reader, twice, 2, NULL, &found, elements, &said));
    assert_says("field \"z\": listed twice");
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_stats(reader, twice, 0, NULL, &found, elements, &said));
    bags_reader_close(reader);
}

static bool stop_at(void *user, uint64_t done, uint64_t total) {
    uint64_t *seen = (uint64_t *)user;
    assert_true(done > *seen && done <= total && total == 500);
    *seen = done;
    return done < 100;
}

static void progress_may_end_it(void **unused) {
    (void)unused;
    static double values[500];
    const char *field = "x";
    uint64_t seen = 0;
    bags_stats_options options = {0};
    bags_reader *reader;
    write_numbers(at("x"), "float64", values, 8, 500, 0);
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    options.progress = stop_at;
    options.user = &seen;
    options.threads = 2;
    assert_fails(BAGS_ERROR_IO,
        bags_stats(reader, &field, 1, &options, &found, elements, &said));
    assert_says("interrupted");
    assert_true(seen >= 100);
    bags_reader_close(reader);
}

/* Each allocation fails once. */
static void memory_may_run_out_at_any_time(void **unused) {
    (void)unused;
    static float values[300][2];
    const char *field = "x";
    for (size_t i = 0; i < 300; i++)
        values[i][0] = (float)draw_real();
    write_numbers(at("x"), "float32(2)", values, 8, 300, 0);
    uint64_t failed = 0;
    for (uint64_t n = 1;; n++) {
        tally heap;
        tally_start(&heap);
        bags_stats_options options = {0};
        bags_reader *reader;
        assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
        options.env.allocator = &heap.allocator;
        options.threads = 1;
        heap.fail_at = n;
        bags_buffer out = {0};
        bags_code code = bags_stats(reader, &field, 1, &options, &out, elements, &said);
        bags_buffer_free(&out);
        bags_reader_close(reader);
        assert_true(heap.live == 0);
        if (!code)
            break;
        assert_true(code == BAGS_ERROR_MEMORY);
        failed++;
    }
    assert_true(failed > 10);
}

static int free_found(void **unused) {
    (void)unused;
    bags_buffer_free(&found);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(statistics_are_those_of_a_plain_computation),
        TEST(sums_do_not_lose_what_cancels),
        TEST(integers_of_64_bits_are_exact),
        TEST(neither_threads_nor_shards_nor_the_order_matter),
        TEST(many_different_numbers_are_grouped),
        TEST(elements_are_those_of_the_shape),
        TEST(nan_is_not_counted_and_infinity_is_refused),
        TEST(values_without_numbers_are_refused),
        TEST(progress_may_end_it),
        TEST(memory_may_run_out_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, free_found);
}
