/*
 * bags sql: run a query on a dataset.
 */
#include "command.h"

#include "formats.h"
#include "text.h"

#include <math.h>

#ifdef BAGS_WITH_SQL
#include <sqlite3.h>
#endif

#include "modules.h" /* after the declarations of SQLite */

static bool json, csv, only_rows;

static const option options[] = {
    {"json", OPTION_FLAG, &json, NULL, "print one JSON object per line"},
    {"csv", OPTION_FLAG, &csv, NULL, "print CSV, with a header (RFC 4180)"},
    {"rows", OPTION_FLAG, &only_rows, NULL,
        "print whole numbers, one per line, as `bags derive --rows` reads them"},
    OPTIONS_END,
};

#ifdef BAGS_WITH_SQL

static sqlite3_stmt *statement;
static text line;

/* Write infinities in the form that pack reads. */
static void put_real(text *out, double number) {
    char shown[40];
    format_json_real(shown, number);
    if (isinf(number))
        text_puts(out, number < 0 ? "-Infinity" : "Infinity");
    else
        text_puts(out, shown);
}

/* Write a value, as JSON or as plain text. */
static void put_value(text *out, int i, bool as_json) {
    const void *data;
    size_t size;
    switch (sqlite3_column_type(statement, i)) {
    case SQLITE_NULL:
        text_puts(out, as_json ? "null" : "");
        break;
    case SQLITE_INTEGER:
        text_format(out, "%lld", (long long)sqlite3_column_int64(statement, i));
        break;
    case SQLITE_FLOAT:
        put_real(out, sqlite3_column_double(statement, i));
        break;
    case SQLITE_TEXT:
        data = sqlite3_column_text(statement, i);
        size = (size_t)sqlite3_column_bytes(statement, i);
        if (as_json)
            text_json(out, data, size);
        else
            text_put(out, data, size);
        break;
    default:
        data = sqlite3_column_blob(statement, i);
        size = (size_t)sqlite3_column_bytes(statement, i);
        text_format(out, "%s", as_json ? "{\"base64\": \"" : "");
        text_base64(out, data, size);
        text_format(out, "%s", as_json ? "\"}" : "");
    }
}

static void print_json(int columns) {
    line.size = 0;
    text_puts(&line, "{");
    for (int i = 0; i < columns; i++) {
        text_member(&line, sqlite3_column_name(statement, i));
        put_value(&line, i, true);
    }
    text_puts(&line, "}\n");
    text_output(&line);
}

static void put_csv(const char *data, size_t size) {
    bool quoted = size == 0;
    for (size_t i = 0; i < size; i++)
        quoted = quoted || data[i] == '"' || data[i] == ',' || data[i] == '\n' ||
                 data[i] == '\r';
    if (!quoted) {
        text_put(&line, data, size);
        return;
    }
    text_puts(&line, "\"");
    for (size_t i = 0; i < size; i++) {
        if (data[i] == '"')
            text_puts(&line, "\"");
        text_put(&line, data + i, 1);
    }
    text_puts(&line, "\"");
}

/* NULL is an empty cell; empty text is "". */
static void print_csv(int columns, bool header) {
    static text value;
    line.size = 0;
    for (int i = 0; i < columns; i++) {
        if (i)
            text_puts(&line, ",");
        value.size = 0;
        if (header)
            text_puts(&value, sqlite3_column_name(statement, i));
        else
            put_value(&value, i, false);
        if (header || sqlite3_column_type(statement, i) != SQLITE_NULL)
            put_csv((const char *)value.buffer.data, value.size);
    }
    text_puts(&line, "\r\n");
    text_output(&line);
}

static void print_number(void) {
    if (sqlite3_column_type(statement, 0) != SQLITE_INTEGER ||
        sqlite3_column_int64(statement, 0) < 0)
        fail(BAGS_ERROR_VALUE,
            "--rows: a value that is not the number of a datapoint; select rowid");
    line.size = 0;
    text_format(&line, "%lld\n", (long long)sqlite3_column_int64(statement, 0));
    text_output(&line);
}

/* ---- the table ---- */

static void add_row(int columns) {
    static text value;
    for (int i = 0; i < columns; i++) {
        int type = sqlite3_column_type(statement, i);
        value.size = 0;
        if (type == SQLITE_BLOB)
            text_format(&value, "(%d bytes)", sqlite3_column_bytes(statement, i));
        else
            put_value(&value, i, false);
        table_add(text_string(&value), type == SQLITE_INTEGER || type == SQLITE_FLOAT);
    }
}

static void check_names(int columns) {
    for (int i = 0; i < columns; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(sqlite3_column_name(statement, i),
                    sqlite3_column_name(statement, k)))
                usage("--json: two columns are called \"%s\"; use AS",
                    sqlite3_column_name(statement, i));
}

static int run(char **operands) {
    const char *rest = NULL, *path = path_without_secrets(operands[0]);
    options_exclude("json|csv|rows", NULL);
    mapped_path = path;
    interrupt_leaves("", "start again with", NULL);
    bags_reader *reader = dataset_open(path, registry_get());
    sqlite3 *db = bags_sql_open(reader, &failure);
    must_open(db);
    if (sqlite3_prepare_v2(db, operands[1], -1, &statement, &rest)) {
        bags_fail(&failure, BAGS_ERROR_VALUE, "SQL: %s", sqlite3_errmsg(db));
        sql_hint(reader);
        die();
    }
    if (!statement)
        fail(BAGS_ERROR_VALUE, "SQL: an empty query");
    if (rest[strspn(rest, " \t\r\n;")])
        fail(BAGS_ERROR_VALUE, "SQL: more than one statement");
    must(bags_sql_check(statement, &failure));
    int columns = sqlite3_column_count(statement), step;
    if (columns == 0)
        fail(BAGS_ERROR_VALUE, "SQL: only queries are possible");
    if (only_rows && columns != 1)
        usage("--rows: the query must have one column");
    if (json)
        check_names(columns);
    if (csv)
        print_csv(columns, true);
    for (int i = 0; i < columns && !json && !csv && !only_rows; i++)
        table_add(sqlite3_column_name(statement, i), false);
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        if (json)
            print_json(columns);
        else if (csv)
            print_csv(columns, false);
        else if (only_rows)
            print_number();
        else
            add_row(columns);
    }
    if (step != SQLITE_DONE)
        fail(BAGS_ERROR_VALUE, "SQL: %s", sqlite3_errmsg(db));
    line.size = 0;
    if (!json && !csv && !only_rows)
        table_put(&line, (size_t)columns);
    text_output(&line);
    must(bags_reader_check(reader, &failure));
    sqlite3_finalize(statement);
    sqlite3_close(db);
    bags_reader_close(reader);
    return 0;
}

#else

static int run(char **operands) {
    (void)operands;
    sql_missing();
}

#endif

const command command_sql = {"sql", "ask a dataset with SQL", "DATASET QUERY",
    {ARGUMENT_PATH, ARGUMENT_WORD}, 2, 2, options, reading_options,
    "The dataset is the table `data`, as in 'SELECT label, count(*) FROM data GROUP BY "
    "label'. rowid is the number of a datapoint, and each field is a column: numbers, "
    "arrays of one element and text are values, sequences are text in JSON, and "
    "others, such as images, are blobs, with length(image), width(image) and "
    "height(image). A column is read when the query uses it. Of two fields that differ "
    "only in case, the second is called NAME_2. Blobs are printed in base64 or, in the "
    "table, by their size. Whatever writes is refused.\n",
    "  bags sql pets 'SELECT label, count(*) FROM data GROUP BY label'\n"
    "  bags sql pets 'SELECT rowid FROM data WHERE label = 3' --rows\n",
    run};
