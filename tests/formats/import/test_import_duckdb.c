/* Parquet files that polars and DuckDB wrote:
 * tests/data/import/make_arrays.py. */
// flavours: test: release; check: asan
#include "import_check.h"

#include <dlfcn.h>

#define PARQUET &bags_import_parquet

/* DuckDB's library is loaded at run time. */
#define skip_without_duckdb()                                                          \
    do {                                                                               \
        if (!dlopen("libduckdb.so", RTLD_NOW)) {                                       \
            print_message("skipped %s: libduckdb.so not found\n", __func__);           \
            skip();                                                                    \
        }                                                                              \
    } while (0)

static void columns_of_every_type_are_fields(void **state) {
    (void)state;
    skip_without_duckdb();
    check_import(
        PARQUET, IMPORT_DATA "types.parquet", IMPORT_DATA "types.parquet.expected");
    assert_string_equal(import_left_out, "column 2 image.path,images.path;");
    check_import(
        PARQUET, IMPORT_DATA "polars.parquet", IMPORT_DATA "polars.parquet.expected");
}

static void a_query_can_be_imported(void **state) {
    bags_code code;
    (void)state;
    skip_without_duckdb();
    save_text(at("query.sql"), "SELECT id AS a, NULL::INT AS b, '''' AS \"c\"\"d\" "
                               "FROM '" IMPORT_DATA "polars.parquet'\n"
                               "WHERE id < 2 ORDER BY id DESC -- last\n;\n");
    bytes text = import_all(&bags_import_sql, at("query.sql"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(
        contains((const char *)text.data, "2\ni64 * a\ni64[] * b\nutf8 * c_d\n"));
    bytes_free(&text);
    check_import_fails(
        &bags_import_sql, BAGS_ERROR_CORRUPT, "SELEC 1", "SELEC 1: Parser Error");
    check_import_fails(&bags_import_sql, BAGS_ERROR_CORRUPT,
        "SELECT * FROM 'none.parquet'", "none.parquet");
}

static void what_has_no_counterpart_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    check_import_fails(&bags_import_sql, BAGS_ERROR_TYPE,
        "SELECT 1 AS a, MAP{'x': 1} AS m", "column m: its type");
    check_import_fails(&bags_import_sql, BAGS_ERROR_TYPE, "SELECT [[[1]]] AS deep",
        "column deep: its type");
    check_import_fails(&bags_import_sql, BAGS_ERROR_VALUE,
        "SELECT CASE WHEN i = 3 THEN [1, NULL] ELSE [2] END AS l FROM range(5) "
        "t(i)",
        "field \"l\": datapoint 3: NULL in a list");
    check_import_fails(&bags_import_sql, BAGS_ERROR_VALUE, "SELECT [[1, NULL]] AS l",
        "field \"l\": datapoint 0: NULL in a list");
    check_import_fails(PARQUET, BAGS_ERROR_MISSING, at("none.parquet"), "No such file");
    save_text(at("bad.parquet"), "PAR1xxxxPAR1");
    check_import_fails(PARQUET, BAGS_ERROR_CORRUPT, at("bad.parquet"), "bad.parquet");
}

/* Images of Hugging Face's datasets that were not embedded. */
static void a_path_in_place_of_bytes_is_an_error(void **state) {
#define STORED "{'bytes': 'a'::BLOB, 'path': 'b'}"
#define ELSEWHERE "{'bytes': NULL, 'path': '/data/cat.jpg'}"
    static const char *const columns[][2] = {
        {"SELECT unnest([" STORED ", NULL, " ELSEWHERE "]) AS x", "column x: "},
        {"SELECT unnest([[" STORED "], NULL, [" STORED ", " ELSEWHERE "]]) AS x",
            "column x: "},
        {"SELECT {'y': {'z': unnest([" STORED ", " ELSEWHERE "])}} AS x",
            "column x.y.z: "},
        {"SELECT [{'y': {'z': unnest([" STORED ", " ELSEWHERE "])}}] AS x",
            "column x.y.z: "},
    };
    (void)state;
    skip_without_duckdb();
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        char text[200];
        snprintf(text, sizeof text,
            "%sits bytes are NULL, and its path is \"/data/cat.jpg\": a file elsewhere "
            "(datapoints: 1)",
            columns[i][1]);
        check_import_fails(&bags_import_sql, BAGS_ERROR_VALUE, columns[i][0], text);
    }
    bags_code code;
    bytes all = import_all(&bags_import_sql,
        "SELECT unnest([" STORED ", NULL, {'bytes': NULL, 'path': NULL}]) AS x", &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)all.data, "3\nbytes[] * x\n"));
    bytes_free(&all);
}

/* Write the result of a query to a Parquet file in the test's directory. */
static void write_parquet(const char *name, const char *query) {
    int (*begin)(const char *path, void **database);
    int (*connect_to)(void *database, void **connection);
    int (*run)(void *connection, const char *query, void *result);
    void (*disconnect)(void **connection), (*end)(void **database);
    static const char *const names[] = {"duckdb_open", "duckdb_connect", "duckdb_query",
        "duckdb_disconnect", "duckdb_close"};
    void *library = dlopen("libduckdb.so", RTLD_NOW), *symbols[5];
    void *database, *connection;
    char text[1000];
    for (size_t i = 0; i < 5; i++)
        assert_non_null(symbols[i] = dlsym(library, names[i]));
    memcpy(&begin, &symbols[0], sizeof begin);
    memcpy(&connect_to, &symbols[1], sizeof connect_to);
    memcpy(&run, &symbols[2], sizeof run);
    memcpy(&disconnect, &symbols[3], sizeof disconnect);
    memcpy(&end, &symbols[4], sizeof end);
    snprintf(text, sizeof text, "COPY (%s) TO '%s' (FORMAT parquet)", query, at(name));
    assert_int_equal(begin(NULL, &database), 0);
    assert_int_equal(connect_to(database, &connection), 0);
    assert_int_equal(run(connection, text, NULL), 0);
    disconnect(&connection);
    end(&database);
}

/* DuckDB alone imports 1.5 as 2, and leaves y out. */
static void files_with_other_columns_are_refused(void **state) {
    static const char *const others[][2] = {
        {"SELECT 1.5::DOUBLE AS x", "a1.parquet: other columns than in"},
        {"SELECT 'a' AS x", "(\"x VARCHAR\", \"x INTEGER\")"},
        {"SELECT 2 AS x, 3 AS y", "(\"y INTEGER\", \"\")"},
        {"SELECT 2 AS y", "(\"y INTEGER\", \"x INTEGER\")"},
        {"SELECT [2] AS x", "(\"x INTEGER[]\", \"x INTEGER\")"},
    };
    bags_code code;
    char pattern[256];
    (void)state;
    skip_without_duckdb();
    snprintf(pattern, sizeof pattern, "%s", at("a*.parquet"));
    write_parquet("a0.parquet", "SELECT 1 AS x");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_parquet("a1.parquet", others[i][0]);
        check_import_fails(PARQUET, BAGS_ERROR_TYPE, pattern, others[i][1]);
    }
    write_parquet("a1.parquet", "SELECT 2::BIGINT AS X");
    bytes text = import_all(PARQUET, pattern, &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "2\ni64 * x\n"));
    bytes_free(&text);
    check_out_of_memory(PARQUET, pattern);
}

static void a_truncated_file_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    bytes file = load(IMPORT_DATA "types.parquet");
    for (size_t size = 0; size < file.size; size += 97) {
        save(at("x.parquet"), file.data, size);
        check_import_fails(PARQUET, BAGS_ERROR_CORRUPT, at("x.parquet"), "x.parquet");
    }
    bytes_free(&file);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    check_out_of_memory(PARQUET, IMPORT_DATA "polars.parquet");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(columns_of_every_type_are_fields),
        TEST(a_query_can_be_imported),
        TEST(what_has_no_counterpart_is_an_error),
        TEST(a_path_in_place_of_bytes_is_an_error),
        TEST(files_with_other_columns_are_refused),
        TEST(a_truncated_file_is_an_error),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
