/* Parquet and CSV files that polars and DuckDB wrote:
 * tests/data/import/make_arrays.py. */
#include "import_check.h"

#include <dlfcn.h>

#ifdef BAGS_WITH_IMPORT_DUCKDB

#define PARQUET &bags_import_parquet

/* DuckDB's library is loaded at run time. */
#define skip_without_duckdb()                                                  \
    do {                                                                       \
        if (!dlopen("libduckdb.so", RTLD_NOW)) {                               \
            print_message("skipped %s: libduckdb.so not found\n", __func__);   \
            skip();                                                            \
        }                                                                      \
    } while (0)

static void columns_of_every_type_are_fields(void **state) {
    (void)state;
    skip_without_duckdb();
    check_import(PARQUET, IMPORT_DATA "types.parquet",
        IMPORT_DATA "types.parquet.expected");
    assert_string_equal(import_left_out, "column 2 image.path,images.path;");
    check_import(PARQUET, IMPORT_DATA "polars.parquet",
        IMPORT_DATA "polars.parquet.expected");
    check_import(&bags_import_csv, IMPORT_DATA "table.csv",
        IMPORT_DATA "table.csv.expected");
}

static void a_query_can_be_imported(void **state) {
    bags_code code;
    (void)state;
    skip_without_duckdb();
    save_text(at("query.sql"),
        "SELECT id AS a, NULL::INT AS b, '''' AS \"c\"\"d\" "
        "FROM '" IMPORT_DATA "polars.parquet'\n"
        "WHERE id < 2 ORDER BY id DESC -- last\n;\n");
    bytes text = import_all(&bags_import_sql, at("query.sql"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains(
        (const char *)text.data, "2\ni64 * a\ni64[] * b\nutf8 * c_d\n"));
    bytes_free(&text);
    check_import_fails(&bags_import_sql, BAGS_ERROR_CORRUPT, "SELEC 1",
        "SELEC 1: Parser Error");
    check_import_fails(&bags_import_sql, BAGS_ERROR_CORRUPT,
        "SELECT * FROM 'none.parquet'", "none.parquet");
}

static void what_has_no_counterpart_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    check_import_fails(&bags_import_sql, BAGS_ERROR_TYPE,
        "SELECT 1 AS a, MAP{'x': 1} AS m", "column m: its type");
    check_import_fails(&bags_import_sql, BAGS_ERROR_TYPE,
        "SELECT [[[1]]] AS deep", "column deep: its type");
    check_import_fails(&bags_import_sql, BAGS_ERROR_VALUE,
        "SELECT CASE WHEN i = 3 THEN [1, NULL] ELSE [2] END AS l FROM range(5) "
        "t(i)",
        "field \"l\": datapoint 3: NULL in a list");
    check_import_fails(&bags_import_sql, BAGS_ERROR_VALUE,
        "SELECT [[1, NULL]] AS l", "field \"l\": datapoint 0: NULL in a list");
    check_import_fails(
        PARQUET, BAGS_ERROR_MISSING, at("none.parquet"), "No such file");
    save_text(at("bad.parquet"), "PAR1xxxxPAR1");
    check_import_fails(
        PARQUET, BAGS_ERROR_CORRUPT, at("bad.parquet"), "bad.parquet");
}

static void check_csv(
    const char *content, bags_code expected, const char *pattern) {
    bags_code code;
    save_text(at("x.csv"), content);
    bytes text = import_all(&bags_import_csv, at("x.csv"), &code);
    CHECK(is_code((int)expected, (int)code, content));
    if (code)
        assert_says(pattern);
    else
        CHECK(contains((const char *)text.data, pattern));
    bytes_free(&text);
}

static void every_line_of_csv_is_imported_or_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    check_csv("a,b\n#1,x\n#2,y\n3,z\n", BAGS_OK, "3\nutf8 * a\nutf8 * b\n");
    check_csv("note\na,b\n1,x\n2,y\n", BAGS_OK, "3\nutf8 * note\n");
    check_csv("a,b\n1,5\" pipe\n2,y\n", BAGS_OK, "2\ni64 * a\nutf8 * b\n");
    check_csv("a,b\n1,\"x\n2,y\n", BAGS_ERROR_CORRUPT,
        "x.csv: lines differ in their number of values, or a quote is not "
        "closed");
    check_csv("a,b\n1,x\n2\n3,z\n", BAGS_ERROR_CORRUPT, "x.csv: lines differ");
    check_csv(
        "a,b\n1,x\n2,y,q\n3,z\n", BAGS_ERROR_CORRUPT, "x.csv: lines differ");
    /* After the lines by which DuckDB detects the format. */
    bytes late = {0};
    put_text(&late, "a,b\n");
    for (int i = 0; i < 30000; i++)
        put_format(&late, "%d,x\n", i);
    put_text(&late, "1,\"x\n2,y\n");
    put(&late, "", 1);
    check_csv((const char *)late.data, BAGS_ERROR_CORRUPT,
        "x.csv: Invalid Input Error: CSV Error on Line: 30002*unterminated");
    bytes_free(&late);
}

static void integers_in_csv_are_not_rounded(void **state) {
    (void)state;
    skip_without_duckdb();
    check_csv("a,b\n1,13835058055282163713\n2,13835058055282163714\n3,\n",
        BAGS_ERROR_VALUE,
        "x.csv: column \"b\": integers above 2^63-1 would be rounded*UBIGINT");
    check_csv("a\n9223372036854775807\n-1\n", BAGS_OK, "2\ni64 * a\n");
    check_csv(
        "a\n13835058055282163713\n0.5\n", BAGS_OK, "2\narray(float64) * a\n");
    check_csv("a\n1e30\nInfinity\n", BAGS_OK, "2\narray(float64) * a\n");
    check_csv(
        "a,b\n1,2.0\n,\n", BAGS_OK, "2\ni64[] * a\narray(float64)[] * b\n");
}

static void names_of_files_are_no_patterns(void **state) {
    bags_code code;
    (void)state;
    skip_without_duckdb();
    make_dir(at("k=1"));
    save_text(at("k=1/x1.csv"), "other\n1\n2\n");
    save_text(at("k=1/x[1].csv"), "a\n1\n");
    bytes text = import_all(&bags_import_csv, at("k=1/x[1].csv"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "1\ni64 * a\n"));
    assert_false(contains((const char *)text.data, " k\n"));
    bytes_free(&text);
}

static void a_message_names_the_file_of_a_directory(void **state) {
    (void)state;
    skip_without_duckdb();
    make_dir(at("in"));
    save_text(at("in/1.csv"), "a,b\n1,2\n");
    save_text(at("in/2.csv"), "a,b\n1,\"2\n");
    check_import_fails(&bags_import_csv, BAGS_ERROR_CORRUPT, at("in"),
        "in: *CSV Error on Line: 2*in/2.csv");
}

static void a_truncated_file_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    bytes file = load(IMPORT_DATA "types.parquet");
    for (size_t size = 0; size < file.size; size += 97) {
        save(at("x.parquet"), file.data, size);
        check_import_fails(
            PARQUET, BAGS_ERROR_CORRUPT, at("x.parquet"), "x.parquet");
    }
    bytes_free(&file);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    skip_without_duckdb();
    check_out_of_memory(&bags_import_csv, IMPORT_DATA "table.csv");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(columns_of_every_type_are_fields),
        TEST(a_query_can_be_imported),
        TEST(what_has_no_counterpart_is_an_error),
        TEST(every_line_of_csv_is_imported_or_an_error),
        TEST(integers_in_csv_are_not_rounded),
        TEST(names_of_files_are_no_patterns),
        TEST(a_message_names_the_file_of_a_directory),
        TEST(a_truncated_file_is_an_error),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return 0; }

#endif
