/* CSV files by hand, and one of a table that DuckDB reads alike. */
// flavours: test: release; check: asan
#include "import_check.h"

#include <locale.h>

static void a_table_is_imported(void **state) {
    (void)state;
    check_import(
        &bags_import_csv, IMPORT_DATA "table.csv", IMPORT_DATA "table.csv.expected");
}

static void check_csv(const char *content, bags_code expected, const char *pattern) {
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
    check_csv("a,b\n#1,x\n#2,y\n3,z\n", BAGS_OK, "3\nutf8 * a\nutf8 * b\n");
    check_csv("note\na,b\n1,x\n2,y\n", BAGS_OK, "3\nutf8 * note\n");
    check_csv("a,b\n1,5\" pipe\n2,y\n", BAGS_OK, "2\ni64 * a\nutf8 * b\n");
    check_csv("a,b\n1,\"x\n2,y\n", BAGS_ERROR_CORRUPT,
        "x.csv: lines differ in their number of values, or a quote is not "
        "closed");
    check_csv("a,b\n1,x\n2\n3,z\n", BAGS_ERROR_CORRUPT, "x.csv: lines differ");
    check_csv("a,b\n1,x\n2,y,q\n3,z\n", BAGS_ERROR_CORRUPT, "x.csv: lines differ");
    /* After the lines by which DuckDB detects the format. */
    bytes late = {0};
    put_text(&late, "a,b\n");
    for (int i = 0; i < 30000; i++)
        put_format(&late, "%d,x\n", i);
    put_text(&late, "1,\"x\n2,y\n");
    put(&late, "", 1);
    check_csv((const char *)late.data, BAGS_ERROR_CORRUPT,
        "x.csv: lines differ*line 30002: a quote that nothing closes");
    bytes_free(&late);
}

static void integers_in_csv_are_not_rounded(void **state) {
    (void)state;
    check_csv("a,b\n1,13835058055282163713\n2,13835058055282163714\n3,\n",
        BAGS_ERROR_VALUE,
        "x.csv: column \"b\": integers above 2^63-1 are not an i64*--type 'b=u64'");
    check_csv("a\n9223372036854775807\n-1\n", BAGS_OK, "2\ni64 * a\n");
    check_csv("a\n13835058055282163713\n0.5\n", BAGS_OK, "2\narray(float64) * a\n");
    check_csv("a\n1e30\nInfinity\n", BAGS_OK, "2\narray(float64) * a\n");
    check_csv("a,b\n1,2.0\n,\n", BAGS_OK, "2\ni64[] * a\narray(float64)[] * b\n");
}

/* Of all files; the second one has another separator. */
static void comments_before_the_header_are_counted(void **state) {
    bags_code code;
    (void)state;
    make_dir(at("c"));
    save_text(at("c/0.csv"), "# one\n# two\n\"a\",b\n1,2\n");
    save_text(at("c/1.csv"), "sep=;\n#\na;b\n3;4\n");
    bytes text = import_all(&bags_import_csv, at("c"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "2\ni64 * a\ni64 * b\n"));
    assert_string_equal(import_left_out, "comment line 3 line 1,line 2,line 2;");
    bytes_free(&text);
    check_out_of_memory(&bags_import_csv, at("c"));
}

static void names_of_files_are_no_patterns(void **state) {
    bags_code code;
    (void)state;
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
    make_dir(at("in"));
    save_text(at("in/1.csv"), "a,b\n1,2\n");
    save_text(at("in/2.csv"), "a,b\n1,\"2\n");
    check_import_fails(&bags_import_csv, BAGS_ERROR_CORRUPT, at("in"),
        "in/2.csv: lines differ*line 2: a quote");
}

/* The fields of a file, and the number of its datapoints. */
static void columns_have_the_types_of_all_their_values(void **state) {
    static const struct {
        const char *content, *fields;
    } cases[] = {
        {"a\ntrue\nFALSE\n", "2\narray(bool) * a\n"},
        {"a\nt\nf\n", "2\nutf8 * a\n"},
        {"a\nyes\nno\n", "2\nutf8 * a\n"},
        {"a\ntrue\n1\n", "2\nutf8 * a\n"},
        {"a\n007\n10\n", "2\nutf8 * a\n"},
        {"a\n00.5\n1\n", "2\nutf8 * a\n"},
        {"a\n+5\n6\n", "2\nutf8 * a\n"},
        {"a\n0x1F\n2\n", "2\nutf8 * a\n"},
        {"a\n1_000\n2\n", "2\nutf8 * a\n"},
        {"a\n-0\n2\n", "2\narray(float64) * a\n"},
        {"a\n0\n-2\n", "2\ni64 * a\n"},
        {"a\n -9223372036854775808 \n1\n", "2\ni64 * a\n"},
        {"a\n1\n.5\n5.\n-1E-3\n", "4\narray(float64) * a\n"},
        {"a\nnan\ninf\n-Infinity\n", "3\narray(float64) * a\n"},
        {"a\n1e400\n1\n", "2\nutf8 * a\n"},
        {"a\n1e-400\n1\n", "2\nutf8 * a\n"},
        {"a\n1e\n1\n", "2\nutf8 * a\n"},
        {"a\n.\n1\n", "2\nutf8 * a\n"},
        {"a\n99999999999999999999\n1\n", "2\nutf8 * a\n"},
        {"a\n2024-01-01\n2024-02-01\n", "2\nutf8 * a\n"},
        {"a\n1\nNA\n", "2\nutf8 * a\n"},
        {"a,b\n,\n", "1\nutf8[] * a\nutf8[] * b\n"},
        {"a,b\n1,\"\"\n2,x\n", "2\ni64 * a\nutf8 * b\n"},
        {"a,b\n\"1\",x\n\"\",y\n", "2\ni64[] * a\nutf8 * b\n"},
        {"1,2\n3,4\n", "2\ni64 * column0\ni64 * column1\n"},
        {"1.5,2\n3,4\n", "2\narray(float64) * column0\ni64 * column1\n"},
        {"1,2\n", "1\ni64 * column0\ni64 * column1\n"},
        {"a,b\n", "0\nutf8 * a\nutf8 * b\n"},
        {"a,a,,b\n1,2,3,4\n", "1\ni64 * a\ni64 * a_1\ni64 * column2\ni64 * b\n"},
        {"a;b\n1,5;2\n2,5;3\n", "2\nutf8 * a\ni64 * b\n"},
        {"a\tb\n1,5\t2\n", "1\nutf8 * a\ni64 * b\n"},
        {"a|b\n1|2\n", "1\ni64 * a\n"},
        {"\xEF\xBB\xBF\"a\",b\n1,2\n", "1\ni64 * a\ni64 * b\n"},
        {"a,b\r\n1,2\r\n3,4", "2\ni64 * a\ni64 * b\n"},
        {"a,b\r1,2\r3,4\r", "2\ni64 * a\ni64 * b\n"},
        {"sep=;\na;b\n1;x,y\n", "1\ni64 * a\nutf8 * b\n"},
        {"\xEF\xBB\xBFSEP=|\r\na|b;c\r\n1|2;3\r\n", "1\ni64 * a\nutf8 * b;c\n"},
        {"sep=,\n1,2\n", "1\ni64 * column0\ni64 * column1\n"},
        {"sep=\t\ra\tb\r1\t2\r", "1\ni64 * a\ni64 * b\n"},
        {"sep=:\na:b\n1,5:2\n", "1\nutf8 * a\ni64 * b\n"},
        {"sep=;;\n1;2;3\n", "1\ni64 * sep=\ni64 * column1\ni64 * column2\n"},
        {"sep\n1\n2\n", "2\ni64 * sep\n"},
        {"# made by \"z\n# x, y\na,b\n1,2\n#3,4\n", "2\nutf8 * a\ni64 * b\n"},
        {"# x,y\n1,2\n", "1\ni64 * # x\ni64 * y\n"},
        {"#a,b\nx,y\n", "1\nutf8 * #a\nutf8 * b\n"},
        {"# c\na\n1\n", "1\ni64 * a\n"},
        {"##v=1\n#a\tb\n1\t2\n", "1\ni64 * #a\ni64 * b\n"},
        {"# one\n1,2\n3,4\n", "2\ni64 * column0\ni64 * column1\n"},
        {"#a,b\n", "0\nutf8 * #a\nutf8 * b\n"},
        {"#a\n1\n2\n", "2\ni64 * #a\n"},
        {"sep=;\n# c\na;b\n1;2\n", "1\ni64 * a\ni64 * b\n"},
        {"a,b\n1,2\n\n3,4\n\n", "2\ni64 * a\ni64 * b\n"},
        {"a\n1\n\n3\n", "3\ni64[] * a\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_csv(cases[i].content, BAGS_OK, cases[i].fields);
    check_csv("a,b\n1,2\n\n3,4\n\n", BAGS_OK, "2\n");
    assert_string_equal(import_left_out, "blank line 2 line 3,line 5;");
    check_csv("", BAGS_ERROR_MISSING, "x.csv: it is empty");
    check_csv("\xFF\xFE"
              "a",
        BAGS_ERROR_TYPE, "x.csv: UTF-16");
    check_csv("a,b\n1,\xE9\n", BAGS_ERROR_CORRUPT, "x.csv: line 2: not UTF-8");
    check_csv("a,b\n1,\"x\"y\n", BAGS_ERROR_CORRUPT,
        "x.csv: line 2: a quote is followed by other text");
    check_csv("a,b\n\"1\n2\",3\n4\n", BAGS_ERROR_CORRUPT,
        "lines differ*(line 4: 1, the first line: 2)");
}

/* A first line that may be the header or data is an error unless the caller decides. */
static void an_ambiguous_first_line_is_an_error(void **state) {
    static const struct {
        const char *content, *shown, *yes, *no;
    } cases[] = {
        {"Country,1960,1961\nAruba,54211,55438\nPeru,9931,10218\n",
            "x.csv: line 1: header or data? (Country,1960,1961); pass --header yes *"
            "--header no",
            "2\nutf8 * Country\ni64 * 1960\ni64 * 1961\n",
            "3\nutf8 * column0\ni64 * column1\ni64 * column2\n"},
        {"id,5\n1,6\n2,7\n", "line 1: header or data? (id,5)", "2\ni64 * id\ni64 * 5\n",
            "3\nutf8 * column0\ni64 * column1\n"},
        {"1,x\n2,y\n", "(1,x)", "1\ni64 * 1\nutf8 * x\n",
            "2\ni64 * column0\nutf8 * column1\n"},
        {",1\n3,4\n", "(,1)", "1\ni64 * column0\ni64 * 1\n",
            "2\ni64[] * column0\ni64 * column1\n"},
        {"1,2\n3,NA\n", "(1,2)", "1\ni64 * 1\nutf8 * 2\n",
            "2\ni64 * column0\nutf8 * column1\n"},
        {"a;true\nb;false\n", "(a;true)", "1\nutf8 * a\narray(bool) * true\n",
            "2\nutf8 * column0\narray(bool) * column1\n"},
        {"1\ntrue\n", "(1)", "1\narray(bool) * 1\n", "2\nutf8 * column0\n"},
        {"a,1\n", "(a,1)", "0\nutf8 * a\nutf8 * 1\n",
            "1\nutf8 * column0\ni64 * column1\n"},
        {"# c\n# x,y\na,1\n1,2\n", "line 3: header or data? (a,1)",
            "1\ni64 * a\ni64 * 1\n", "2\nutf8 * column0\ni64 * column1\n"},
        {"#ff0,1\n#0ff,2\nred,3\n", "(#ff0,1)", "2\nutf8 * #ff0\ni64 * 1\n",
            "3\nutf8 * column0\ni64 * column1\n"},
        /* Certain: the option decides otherwise. */
        {"1,2\n3,4\n", NULL, "1\ni64 * 1\ni64 * 2\n",
            "2\ni64 * column0\ni64 * column1\n"},
        {"a,b\nx,y\n", NULL, "1\nutf8 * a\nutf8 * b\n",
            "2\nutf8 * column0\nutf8 * column1\n"},
        {"#a,b\n1,2\n", NULL, "1\ni64 * #a\ni64 * b\n",
            "1\ni64 * column0\ni64 * column1\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].shown)
            check_csv(cases[i].content, BAGS_ERROR_TYPE, cases[i].shown);
        import_header = BAGS_HEADER_YES;
        check_csv(cases[i].content, BAGS_OK, cases[i].yes);
        import_header = BAGS_HEADER_NO;
        check_csv(cases[i].content, BAGS_OK, cases[i].no);
        import_header = BAGS_HEADER_DETECT;
    }
}

static void check_first(const char *content, const char *text, double number) {
    const bags_entry *entries;
    save_text(at("x.csv"), content);
    bags_source *source = bags_source_open(&bags_import_csv, at("x.csv"), NULL, &said);
    assert_non_null(source);
    assert_ok(bags_source_read(source, 0, &entries, &said));
    const bags_value *value = entries[0].values;
    assert_int_equal(value->size, strlen(text));
    assert_memory_equal(value->data, text, value->size);
    double found;
    assert_int_equal(entries[1].count, 1);
    memcpy(&found, entries[1].values->data, sizeof found);
    assert_true(memcmp(&found, &number, sizeof found) == 0);
    assert_ok(bags_source_read(source, 1, &entries, &said));
    assert_null(entries);
    bags_source_close(source);
}

static void values_are_those_of_rfc_4180(void **state) {
    (void)state;
    check_first("a,b\n\"x\r\n\"\"y\"\", z\n\",0.5\n", "x\r\n\"y\", z\n", 0.5);
    check_first("a,b\r\n x \"y\" ,-1.25e2\r\n", " x \"y\" ", -125);
    check_first("a;b\n1,5; 0.1 ", "1,5", 0.1);
    /* A program may have another decimal point. */
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
        check_first("a,b\nx,0.5\n", "x", 0.5);
        setlocale(LC_NUMERIC, "C");
    }
}

/* Values and lines that cross the blocks in which files are read. */
static void a_value_may_be_anywhere_in_a_file(void **state) {
    bags_code code;
    (void)state;
    bytes file = {0};
    put_text(&file, "a,b\n");
    uint64_t seed = 1;
    for (int i = 0; i < 3000; i++) {
        size_t size = (size_t)(next_random(&seed) % 500);
        put_text(&file, "\"");
        for (size_t k = 0; k < size; k++)
            put_text(&file, k % 7 ? "x" : k % 3 ? "\"\"" : "\r\n");
        put_format(&file, "\",%d\r\n", i);
    }
    save(at("x.csv"), file.data, file.size);
    bytes text = import_all(&bags_import_csv, at("x.csv"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(contains((const char *)text.data, "3000\nutf8 * a\ni64 * b\n"));
    bytes_free(&file);
    bytes_free(&text);
}

static void files_of_a_directory_have_the_same_columns(void **state) {
    bags_code code;
    (void)state;
    make_dir(at("d"));
    save_text(at("d/1.csv"), "a,b\n1,2\n");
    save_text(at("d/2.csv"), "a,b\n0.5,\n");
    bytes text = import_all(&bags_import_csv, at("d"), &code);
    assert_int_equal(code, BAGS_OK);
    assert_true(
        contains((const char *)text.data, "2\narray(float64) * a\ni64[] * b\n"));
    bytes_free(&text);
    save_text(at("d/2.csv"), "a,c\n1,2\n");
    check_import_fails(&bags_import_csv, BAGS_ERROR_TYPE, at("d"),
        "d/2.csv: other columns than in *d/1.csv (\"c\", \"b\")");
}

static void damage_is_an_error_or_without_effect(void **state) {
    (void)state;
    save_text(at("y.csv"), "\xEF\xBB\xBF"
                           "a,b;c\r\n1,\"x\"\"\n\"\r\n-0.5e1,nan\r\n\n");
    check_damage(&bags_import_csv, at("y.csv"), at("y.csv"), false, 16 << 20);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(&bags_import_csv, IMPORT_DATA "table.csv");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_table_is_imported),
        TEST(every_line_of_csv_is_imported_or_an_error),
        TEST(integers_in_csv_are_not_rounded),
        TEST(comments_before_the_header_are_counted),
        TEST(names_of_files_are_no_patterns),
        TEST(a_message_names_the_file_of_a_directory),
        TEST(columns_have_the_types_of_all_their_values),
        TEST(an_ambiguous_first_line_is_an_error),
        TEST(values_are_those_of_rfc_4180),
        TEST(a_value_may_be_anywhere_in_a_file),
        TEST(files_of_a_directory_have_the_same_columns),
        TEST(damage_is_an_error_or_without_effect),
        TEST(an_allocation_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
