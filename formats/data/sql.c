/*
 * sql.c - datasets as tables of SQLite; see datasets.h. Library: SQLite 3.29 or later.
 *
 * A virtual table: rowid is the datapoint, and a column is read when a query needs it.
 * SQLite passes us comparisons of the rowid and numeric columns with numbers
 * (sql_best_index). sql_passes skips rows for which a comparison is false, faster than
 * SQLite's own steps would. SQLite rechecks all comparisons, so an unsupported one only
 * costs time.
 *
 * With BAGS_SQL_EXTENSION this file contains the implementation of bags.h, and is a
 * loadable extension:
 *
 *     .load ./bags-sql.so
 *     CREATE VIRTUAL TABLE pets USING bags('PATH');
 */
#ifdef BAGS_SQL_EXTENSION
#define BAGS_STATIC
#define BAGS_NO_VERIFY
#endif
#include "blocks.h"
#include "datasets.h"
#include "images.h"
#include "index.h"
#include "text.h"
#include "values.h"

#include <math.h>
#include <stdlib.h>

#ifdef BAGS_SQL_EXTENSION
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1
#else
#include <sqlite3.h>
#endif

/* The extension is one file; zstd is its only additional codec. */
#ifdef BAGS_SQL_EXTENSION
#include "index_find.c"
#ifdef BAGS_WITH_ZSTD
#include "zstd.c"
#endif
#endif

#define SQL_AHEAD 512 /* datapoints whose numbers and texts are read at once, */
#define SQL_RUN 8     /* after this many reads of consecutive rows */

typedef enum sql_kind { SQL_BLOB, SQL_TEXT, SQL_INT, SQL_ARRAY, SQL_SEQUENCE } sql_kind;

typedef struct sql_column {
    sql_kind kind;
    char code; /* kind of number: f is a float, i signed, others are unsigned */
    bool big_endian;
    bool compressed; /* zstd(...): this describes the decompressed blob */
    bool is_array;   /* with any number of elements */
    uint64_t size;   /* bytes of a number, as stated in the type; 0: any */
    const char *type;
    bags_index *index; /* NULL: no valid index */
    bool sought;       /* opening the index was tried */
} sql_column;

/* The source of bags_sql_open's table. */
typedef struct sql_source {
    const bags_reader *reader;
    uint64_t start; /* rowid of the first datapoint */
} sql_source;

typedef struct sql_table {
    sqlite3_vtab base; /* SQLite's base; must be first */
    const bags_reader *reader;
    uint64_t start;
    bags_reader *own; /* the reader, if this table must close it */
    bags_registry *registry;
    sql_column *columns;
    size_t count;
} sql_table;

/* A comparison with a number. */
typedef struct sql_test {
    size_t column;
    int op;
    bool is_real;
    sqlite3_int64 whole;
    double real;
} sql_test;

/* Plain values of a column, read at once. */
typedef struct sql_ahead {
    bags_row row;
    uint64_t start, stop;
    uint64_t last; /* the datapoint read last */
    int run;       /* number of consecutive reads */
} sql_ahead;

typedef struct sql_cursor {
    sqlite3_vtab_cursor base; /* SQLite's base; must be first */
    uint64_t at, stop;
    uint64_t *found; /* rows found by an index, in ascending order; NULL: all rows */
    size_t found_count, found_at;
    sql_test *tests;
    size_t tests_count;
    sql_ahead *ahead; /* one for each column */
    size_t count;
    bags_row row;
    bags_buffer scratch;     /* for compressed values */
    unsigned char number[8]; /* a decompressed number */
} sql_cursor;

/* ---- columns ---- */

/* Describe the column for a type. Arrays with one element count as numbers. */
static sql_column sql_column_of(const bags_type *type, const char *text) {
    sql_column out = {SQL_BLOB, 'u', false, false, false, 0, text, NULL, false};
    uint64_t dim = 0;
    bags_type inside;
    if (format_type_inside(type, &inside)) {
        type = &inside;
        out.compressed =
            bags_view_is(type->name, "utf8") || bags_view_is(type->name, "bytes") ||
            bags_view_is(type->name, "int") || bags_view_is(type->name, "u64") ||
            bags_view_is(type->name, "i64") ||
            (bags_view_is(type->name, "array") && type->count > 0);
    }
    if (type->sequence)
        out.kind = SQL_SEQUENCE;
    else if (bags_view_is(type->name, "utf8"))
        out.kind = SQL_TEXT;
    else if (bags_view_is(type->name, "int") || bags_view_is(type->name, "u64"))
        out.kind = SQL_INT;
    else if (bags_view_is(type->name, "i64")) {
        out.kind = SQL_INT;
        out.code = 'i';
    }
    if (out.kind == SQL_INT && !bags_view_is(type->name, "int"))
        out.size = 8;
    else if (out.kind == SQL_INT && type->count && !out.compressed) {
        out.big_endian = bags_view_is(bags_type_argument(type, 1), "big");
        (void)bags_type_number(type, 0, &out.size);
    }
    out.is_array = bags_view_is(type->name, "array");
    if (out.kind != SQL_BLOB || !out.is_array || !type->count)
        return out;
    for (size_t i = 1; i < type->count; i++)
        if (!bags_type_number(type, i, &dim) || dim != 1)
            return out;
    bags_view name = bags_type_argument(type, 0);
    bags_dtype dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    if (!dtype || *bags_dtype_code(dtype) == 'c')
        return out;
    out.kind = SQL_ARRAY;
    out.code = *bags_dtype_code(dtype);
    out.size = bags_dtype_size(dtype);
    out.big_endian = out.compressed && !bags_little_endian();
    return out;
}

static bool sql_is_number(const sql_column *column) {
    return column->kind == SQL_INT || column->kind == SQL_ARRAY;
}

/* Check a text. Returns NULL, or `wrong` with the reason. */
static const char *sql_text(bags_view text, char wrong[64]) {
    size_t bad = 0;
    if (bags_utf8_valid(text.data, text.size, &bad))
        return NULL;
    (void)snprintf(wrong, 64, "invalid UTF-8 (offset %" PRIu64 ")", (uint64_t)bad);
    return wrong;
}

/* Parse a blob of a column of numbers. Returns NULL, or the reason. */
static const char *sql_number(const sql_column *column, bags_view blob, sql_test *out) {
    static const char too_large[] = "above 2^63-1, the maximum of an SQL integer";
    size_t size = blob.size;
    if (column->size && size != column->size)
        return "wrong size for its type";
    while (!column->big_endian && size > 8 && !blob.data[size - 1])
        size--; /* high-order zeros */
    for (; column->big_endian && size > 8 && !*blob.data; size--)
        blob.data++;
    if (size > 8)
        return too_large;
    bool big = column->big_endian; /* with a constant size, loading is one
                                    * instruction */
    uint64_t bits = size == 4 && !big   ? bags_load_bytes(blob.data, 4, false)
                    : size == 2 && !big ? bags_load_bytes(blob.data, 2, false)
                    : size == 8 && !big ? bags_load_bytes(blob.data, 8, false)
                                        : bags_load_bytes(blob.data, size, big);
    out->is_real = column->code == 'f';
    if (out->is_real) {
        out->real = format_real(bits, size);
        return NULL;
    }
    if (column->code == 'i') {
        uint64_t sign = (uint64_t)1 << (8 * size - 1);
        bits = (bits ^ sign) - sign;
    } else if (bits > INT64_MAX) {
        return too_large;
    }
    out->whole = (sqlite3_int64)bits;
    return NULL;
}

/* Fail because of an invalid value. `item` is UINT64_MAX if the field is plain. */
static bags_code sql_invalid(const sql_cursor *cursor, size_t field, uint64_t item,
    const char *wrong, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    const char *name = bags_reader_fields(table->reader, NULL)[field].name;
    bags_code code = bags_fail(err, BAGS_ERROR_VALUE, "%s", wrong);
    return format_fail_at(table->reader, name, cursor->at, item, code, err);
}

static int sql_fail(sqlite3_vtab *table, const bags_error *err) {
    sqlite3_free(table->zErrMsg);
    table->zErrMsg = sqlite3_mprintf("%s", err->message);
    return SQLITE_ERROR;
}

/* Get an item of a row's only slot. Decompressed numbers have 8 bytes. */
static bags_code sql_item(sql_cursor *cursor, const sql_column *column, bags_row *row,
    size_t item, bags_view *out, bags_error *err) {
    bags_value value;
    if (!column->compressed) {
        *out = bags_row_bytes(row, 0, item);
        return BAGS_OK;
    }
    FORMAT_TRY(bags_row_value(row, 0, item, &cursor->scratch, &value, err));
    out->data = (const unsigned char *)value.data;
    out->size = value.size;
    if (value.kind == BAGS_KIND_UINT || value.kind == BAGS_KIND_INT) {
        bool is_uint = value.kind == BAGS_KIND_UINT;
        out->data = cursor->number;
        out->size = sizeof cursor->number;
        bags_store_bytes(cursor->number, sizeof cursor->number, false,
            is_uint ? value.uint : (uint64_t)value.sint);
    }
    return BAGS_OK;
}

/* Read a plain field's blob for this datapoint only. */
static bags_code sql_single(
    sql_cursor *cursor, size_t field, bags_view *out, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    const sql_column *column = &table->columns[field];
    uint64_t at = cursor->at;
    if (!column->compressed)
        return bags_reader_get_blob(
            table->reader, at, field, 0, &cursor->row, out, err);
    bags_code code =
        bags_reader_get_range(table->reader, at, at + 1, field, &cursor->row, err);
    return code ? code : sql_item(cursor, column, &cursor->row, 0, out, err);
}

/* Get the blob of a plain field. If rows are read in order, many small values are read
 * at a time. */
static bags_code sql_fetch(
    sql_cursor *cursor, size_t field, bags_view *out, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    sql_ahead *ahead = &cursor->ahead[field];
    uint64_t at = cursor->at;
    const sql_column *column = &table->columns[field];
    bool small = column->kind != SQL_BLOB;
    if (at - ahead->start < ahead->stop - ahead->start)
        return sql_item(
            cursor, column, &ahead->row, (size_t)(at - ahead->start), out, err);
    ahead->run = at - ahead->last < 4 ? ahead->run + (ahead->run < SQL_RUN) : 0;
    ahead->last = at;
    if (!small || ahead->run < SQL_RUN)
        return sql_single(cursor, field, out, err);
    uint64_t stop = cursor->stop - at < SQL_AHEAD ? cursor->stop : at + SQL_AHEAD;
    ahead->start = ahead->stop = 0;
    bags_code code =
        bags_reader_get_range(table->reader, at, stop, field, &ahead->row, err);
    if (code) /* the error may concern another datapoint, so read this one by itself */
        return sql_single(cursor, field, out, err);
    ahead->start = at;
    ahead->run = SQL_RUN;
    ahead->last = ahead->stop = stop;
    return sql_item(cursor, column, &ahead->row, 0, out, err);
}

/* Like sql_fetch, but a value already read costs only a pointer. */
static inline bags_code sql_blob(
    sql_cursor *cursor, size_t field, bags_view *out, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    const sql_ahead *ahead = &cursor->ahead[field];
    uint64_t i = cursor->at - ahead->start;
    if (i >= ahead->stop - ahead->start || table->columns[field].compressed)
        return sql_fetch(cursor, field, out, err);
    *out = bags_row_bytes(&ahead->row, 0, (size_t)i);
    return BAGS_OK;
}

/* Check that a frame whose content is not needed here is not passed on without its
 * dictionary. */
static bags_code sql_check_frame(
    const sql_cursor *cursor, size_t field, bags_view blob, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    const bags_field *of = &bags_reader_fields(table->reader, NULL)[field];
    if (table->columns[field].compressed ||
        !format_needs_dictionary(bags_reader_type(table->reader, field), blob))
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%.200s\": datapoint %" PRIu64
        ": values of type %.200s are not read by SQL, and this one needs a dictionary",
        bags_reader_path(table->reader), of->name, cursor->at, of->type);
}

/* ---- sequences as JSON ---- */

static void sql_json_text(sqlite3_str *out, bags_view text) {
    sqlite3_str_appendchar(out, 1, '"');
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = text.data[i];
        if (c == '"' || c == '\\')
            sqlite3_str_appendchar(out, 1, '\\');
        if (c < 0x20)
            sqlite3_str_appendf(out, "\\u%04x", c);
        else
            sqlite3_str_appendchar(out, 1, (char)c);
    }
    sqlite3_str_appendchar(out, 1, '"');
}

static void sql_json_base64(sqlite3_str *out, bags_view blob) {
    sqlite3_str_appendall(out, "{\"base64\": \"");
    for (size_t i = 0; i < blob.size; i += 3) {
        char four[4];
        format_base64_encode(blob.data + i, blob.size - i, four);
        sqlite3_str_append(out, four, 4);
    }
    sqlite3_str_appendall(out, "\"}");
}

/* Returns NULL, or the reason. */
static const char *sql_json_number(
    sqlite3_str *out, const sql_column *column, bags_view blob) {
    char shown[40];
    sql_test number;
    const char *wrong = sql_number(column, blob, &number);
    if (wrong)
        return wrong;
    if (!number.is_real)
        sqlite3_str_appendf(out, "%lld", number.whole);
    else if (isnan(number.real))
        sqlite3_str_appendall(out, "null");
    else {
        format_json_real(shown, number.real);
        sqlite3_str_appendall(out, shown);
    }
    return NULL;
}

/* Append the elements at *at as nested lists, and move *at past them. */
static const char *sql_json_elements(sqlite3_str *out, const sql_column *element,
    const bags_value *array, size_t dim, const unsigned char **at) {
    const char *wrong = NULL;
    if (dim == array->dims) {
        bags_view blob = {*at, (size_t)element->size};
        *at += element->size;
        return sql_json_number(out, element, blob);
    }
    sqlite3_str_appendchar(out, 1, '[');
    for (uint64_t i = 0; array->size && i < array->shape[dim] && !wrong; i++) {
        if (i)
            sqlite3_str_appendall(out, ", ");
        wrong = sql_json_elements(out, element, array, dim + 1, at);
    }
    sqlite3_str_appendchar(out, 1, ']');
    return wrong;
}

/* An array with no elements is written [], since its shape may have any number of empty
 * lists. */
static const char *sql_json_array(sqlite3_str *out, const bags_value *array) {
    sql_column element = {SQL_ARRAY, *bags_dtype_code(array->dtype), false, false,
        false, 0, NULL, NULL, false};
    const unsigned char *at = (const unsigned char *)array->data;
    element.big_endian = !bags_little_endian();
    element.size = bags_dtype_size(array->dtype);
    return sql_json_elements(out, &element, array, 0, &at);
}

/* Append an item of a row's only slot. */
static bags_code sql_json_item(sql_cursor *cursor, size_t field, const sql_column *of,
    size_t item, sqlite3_str *out, bags_error *err) {
    bags_view blob = {NULL, 0};
    bags_value value;
    char invalid[64];
    const char *wrong = NULL;
    bool is_array = of->is_array && !sql_is_number(of);
    FORMAT_TRY(
        is_array ? bags_row_value(&cursor->row, 0, item, &cursor->scratch, &value, err)
                 : sql_item(cursor, of, &cursor->row, item, &blob, err));
    FORMAT_TRY(sql_check_frame(cursor, field, blob, err));
    if (is_array) {
        blob.data = (const unsigned char *)value.data;
        blob.size = value.size;
    }
    if (is_array && value.kind == BAGS_KIND_ARRAY &&
        *bags_dtype_code(value.dtype) != 'c') {
        wrong = sql_json_array(out, &value);
    } else if (sql_is_number(of)) {
        wrong = sql_json_number(out, of, blob);
    } else if (of->kind == SQL_TEXT) {
        wrong = sql_text(blob, invalid);
        if (!wrong)
            sql_json_text(out, blob);
    } else {
        sql_json_base64(out, blob);
    }
    return wrong ? sql_invalid(cursor, field, item, wrong, err) : BAGS_OK;
}

static bags_code sql_sequence(
    sql_cursor *cursor, size_t field, char **json, bags_error *err) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    bags_select select = bags_select_all(field);
    bags_type type = *bags_reader_type(table->reader, field);
    type.sequence = false;
    sql_column item = sql_column_of(&type, NULL);
    bags_code code =
        bags_reader_get(table->reader, cursor->at, &select, 1, &cursor->row, err);
    if (code)
        return code;
    sqlite3_str *out = sqlite3_str_new(NULL);
    sqlite3_str_appendchar(out, 1, '[');
    for (size_t i = 0; i < bags_row_length(&cursor->row, 0) && !code; i++) {
        if (i)
            sqlite3_str_appendall(out, ", ");
        code = sql_json_item(cursor, field, &item, i, out, err);
    }
    sqlite3_str_appendchar(out, 1, ']');
    *json = sqlite3_str_finish(out);
    if (code) {
        sqlite3_free(*json);
        return code;
    }
    return *json ? BAGS_OK : bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
}

/* ---- the module ---- */

/* True if an earlier column or a later field has this name. SQLite ignores case. */
static bool sql_is_taken(const bags_field *fields, size_t count, char *const *names,
    size_t i, const char *name) {
    for (size_t k = 0; k < i; k++)
        if (!sqlite3_stricmp(names[k], name))
            return true;
    for (size_t k = i + 1; k < count; k++)
        if (!strcmp(fields[k].name, name))
            return true;
    return false;
}

/* Declare the columns. If two fields differ only in case, the second becomes NAME_2. */
static int sql_declare(sqlite3 *db, sql_table *table, char **message) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(table->reader, &count);
    int most = sqlite3_limit(db, SQLITE_LIMIT_COLUMN, -1);
    if (count > (size_t)most) {
        *message = sqlite3_mprintf("%s: too many fields for a table of SQL (%llu, "
                                   "maximum %d); `bags derive --fields` selects some",
            bags_reader_path(table->reader), (unsigned long long)count, most);
        return SQLITE_ERROR;
    }
    char **names = (char **)sqlite3_malloc64((count + 1) * sizeof *names);
    sqlite3_str *sql = sqlite3_str_new(db);
    sqlite3_str_appendall(sql, "CREATE TABLE x(");
    for (size_t i = 0; names && i < count; i++) {
        const sql_column *column = &table->columns[i];
        int number = 1;
        names[i] = sqlite3_mprintf("%s", fields[i].name);
        while (names[i] && sql_is_taken(fields, count, names, i, names[i]) &&
               number < 99) {
            sqlite3_free(names[i]);
            names[i] = sqlite3_mprintf("%s_%d", fields[i].name, ++number);
        }
        sqlite3_str_appendf(sql, "%s\"%w\" %s", i ? ", " : "", names[i],
            sql_is_number(column) ? column->code == 'f' ? "REAL" : "INTEGER"
            : column->kind == SQL_TEXT || column->kind == SQL_SEQUENCE ? "TEXT"
                                                                       : "BLOB");
    }
    for (size_t i = 0; names && i < count; i++)
        sqlite3_free(names[i]);
    sqlite3_free(names);
    /* A table needs at least one column. */
    sqlite3_str_appendall(sql, count ? ")" : "\"no fields\" HIDDEN)");
    char *text = sqlite3_str_finish(sql);
    int code = text && names ? sqlite3_declare_vtab(db, text) : SQLITE_NOMEM;
    if (code)
        *message = sqlite3_mprintf("%s", sqlite3_errmsg(db));
    sqlite3_free(text);
    return code;
}

static int sql_disconnect(sqlite3_vtab *base) {
    sql_table *table = (sql_table *)base;
    for (size_t i = 0; table->columns && i < table->count; i++)
        bags_index_close(table->columns[i].index);
    bags_reader_close(table->own);
    bags_registry_free(table->registry);
    sqlite3_free(table->columns);
    sqlite3_free(table);
    return SQLITE_OK;
}

static bags_reader *sql_open_path(sql_table *table, const char *path, bags_error *err) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
#if defined(BAGS_SQL_EXTENSION) && defined(BAGS_WITH_ZSTD)
    table->registry = bags_registry_create(NULL, err);
    if (!table->registry || bags_registry_add(table->registry, &bags_codec_zstd, err))
        return NULL;
#endif
    options.registry = table->registry;
    return bags_reader_open(path, &options, err);
}

/* argv[3] is the quoted path, unless the reader is passed. */
static int sql_connect(sqlite3 *db, void *source, int argc, const char *const *argv,
    sqlite3_vtab **out, char **message) {
    bags_error err;
    size_t count = 0;
    sql_table *table = (sql_table *)sqlite3_malloc64(sizeof *table);
    if (!table)
        return SQLITE_NOMEM;
    memset(table, 0, sizeof *table);
    if (source) {
        table->reader = ((const sql_source *)source)->reader;
        table->start = ((const sql_source *)source)->start;
    } else {
        size_t size = argc == 4 ? strlen(argv[3]) : 0;
        char *path = (char *)sqlite3_malloc64(size + 1), *to = path;
        const char *from = argc == 4 ? argv[3] : "";
        char quote = size > 1 && (*from == '\'' || *from == '"') ? *from : 0;
        for (size_t i = quote != 0; path && i < size - (quote != 0); i++) {
            *to++ = from[i];
            i += quote && from[i] == quote; /* a doubled quote */
        }
        if (path)
            *to = 0;
        if (path && *path)
            table->reader = table->own = sql_open_path(table, path, &err);
        else
            bags_fail(&err, BAGS_ERROR_ARGUMENT, "expected bags('PATH')");
        sqlite3_free(path);
        if (!table->reader) {
            *message = sqlite3_mprintf("%s", err.message);
            sql_disconnect(&table->base);
            return SQLITE_ERROR;
        }
    }
    const bags_field *fields = bags_reader_fields(table->reader, &count);
    table->count = count;
    table->columns =
        (sql_column *)sqlite3_malloc64((count + 1) * sizeof *table->columns);
    for (size_t i = 0; i < count && table->columns; i++)
        table->columns[i] =
            sql_column_of(bags_reader_type(table->reader, i), fields[i].type);
    int code = table->columns ? sql_declare(db, table, message) : SQLITE_NOMEM;
    if (code)
        sql_disconnect(&table->base);
    else
        *out = &table->base;
    return code;
}

/* ---- indexes ---- */

/* Get the index of a field, if any. An index that is damaged or older than the dataset
 * is not used, and all rows are read. */
static bags_index *sql_index(sql_table *table, size_t field) {
    sql_column *column = &table->columns[field];
    bags_error ignored;
    if (!column->sought &&
        index_key_type_of(bags_reader_type(table->reader, field)).order != INDEX_NONE)
        column->index = bags_index_open(
            bags_reader_path(table->reader), table->reader, field, NULL, &ignored);
    column->sought = true;
    return column->index;
}

/* Find the rows with a value. False if the value cannot be a key of the index, or the
 * index fails or would be slower than reading all rows. The result may include rows
 * that SQL does not treat as equal; SQLite skips these. */
static bool sql_find(sql_cursor *cursor, size_t field, sqlite3_value *value) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    const sql_column *column = &table->columns[field];
    int type = sqlite3_value_type(value);
    double real = sqlite3_value_double(value);
    uint64_t start = 0, stop = 0, length = bags_reader_length(table->reader);
    bool is_text = column->kind == SQL_TEXT, is_blob = column->kind == SQL_BLOB;
    bags_error ignored;
    bags_value key = bags_int(sqlite3_value_int64(value));
    if (type == SQLITE_FLOAT)
        key = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &real);
    else if (is_text || is_blob)
        key = bags_bytes(sqlite3_value_blob(value), (size_t)sqlite3_value_bytes(value));
    if (is_text   ? type != SQLITE_TEXT
        : is_blob ? type != SQLITE_BLOB
                  : type != SQLITE_INTEGER && type != SQLITE_FLOAT)
        return false;
    if (!column->index ||
        bags_index_find(column->index, &key, &cursor->scratch, &start, &stop, &ignored))
        return false;
    size_t count = (size_t)(stop - start);
    if (count > length / 64 + 1)
        return false;
    uint64_t *rows = (uint64_t *)sqlite3_malloc64((count + 1) * 2 * sizeof *rows);
    if (!rows)
        return false;
    for (size_t i = 0; i < count; i++)
        rows[count + i] = start + i;
    if (bags_index_get_many(column->index, rows + count, count, &cursor->scratch,
            &cursor->row, rows, &ignored)) {
        sqlite3_free(rows);
        return false;
    }
    cursor->found = rows;
    cursor->found_count = count;
    return true;
}

/* The plan is the string "COLUMN OP COLUMN OP ...", with one pair for each argument of
 * sql_filter. */
static int sql_best_index(sqlite3_vtab *base, sqlite3_index_info *info) {
    sql_table *table = (sql_table *)base;
    uint64_t length = bags_reader_length(table->reader);
    double rows = (double)length + 1, cost = rows;
    sqlite3_str *plan = sqlite3_str_new(NULL);
    int passed = 0;
    for (int i = 0; i < info->nConstraint; i++) {
        int column = info->aConstraint[i].iColumn, op = info->aConstraint[i].op;
        bool is_known =
            op == SQLITE_INDEX_CONSTRAINT_EQ || op == SQLITE_INDEX_CONSTRAINT_GT ||
            op == SQLITE_INDEX_CONSTRAINT_GE || op == SQLITE_INDEX_CONSTRAINT_LT ||
            op == SQLITE_INDEX_CONSTRAINT_LE;
        bool is_field = column >= 0 && column < (int)table->count;
        if (!info->aConstraint[i].usable || !is_known || column >= (int)table->count)
            continue;
        bool indexed = is_field && op == SQLITE_INDEX_CONSTRAINT_EQ &&
                       !sqlite3_stricmp(sqlite3_vtab_collation(info, i), "BINARY") &&
                       sql_index(table, (size_t)column);
        if (is_field && !indexed && !sql_is_number(&table->columns[column]))
            continue;
        info->idxNum |= indexed; /* shown by EXPLAIN QUERY PLAN */
        if (indexed)
            cost = cost < 10 ? cost : 10;
        info->aConstraintUsage[i].argvIndex = ++passed;
        sqlite3_str_appendf(plan, "%d %d ", column, op);
        if (column < 0 && op == SQLITE_INDEX_CONSTRAINT_EQ)
            cost = 1;
        else if (column < 0)
            cost = cost < rows / 4 ? cost : rows / 4;
    }
    info->estimatedCost = cost;
    info->estimatedRows = (sqlite3_int64)cost;
    info->orderByConsumed =
        info->nOrderBy == 1 && info->aOrderBy[0].iColumn < 0 && !info->aOrderBy[0].desc;
    info->idxStr = sqlite3_str_finish(plan);
    info->needToFreeIdxStr = 1;
    return info->idxStr || !passed ? SQLITE_OK : SQLITE_NOMEM;
}

static int sql_open_cursor(sqlite3_vtab *base, sqlite3_vtab_cursor **out) {
    const sql_table *table = (const sql_table *)base;
    size_t ahead = (table->count + 1) * sizeof(sql_ahead);
    sql_cursor *cursor = (sql_cursor *)sqlite3_malloc64(sizeof *cursor);
    sql_ahead *rows = (sql_ahead *)sqlite3_malloc64(ahead);
    if (!cursor || !rows) {
        sqlite3_free(cursor);
        sqlite3_free(rows);
        return SQLITE_NOMEM;
    }
    memset(cursor, 0, sizeof *cursor);
    memset(rows, 0, ahead);
    cursor->ahead = rows;
    cursor->count = table->count;
    *out = &cursor->base;
    return SQLITE_OK;
}

static int sql_close_cursor(sqlite3_vtab_cursor *base) {
    sql_cursor *cursor = (sql_cursor *)base;
    for (size_t i = 0; i < cursor->count; i++)
        bags_row_free(&cursor->ahead[i].row);
    bags_row_free(&cursor->row);
    bags_buffer_free(&cursor->scratch);
    sqlite3_free(cursor->found);
    sqlite3_free(cursor->ahead);
    sqlite3_free(cursor->tests);
    sqlite3_free(cursor);
    return SQLITE_OK;
}

/* Compare two numbers: -1, 0 or 1; 2 if either is NaN or the result cannot be
 * determined here. */
static int sql_compare(const sql_test *a, const sql_test *b) {
    const sqlite3_int64 exact = (sqlite3_int64)1 << 53;
    if (!a->is_real && !b->is_real)
        return a->whole < b->whole ? -1 : a->whole > b->whole;
    double x = a->is_real ? a->real : (double)a->whole;
    double y = b->is_real ? b->real : (double)b->whole;
    if ((!a->is_real && (a->whole > exact || a->whole < -exact)) ||
        (!b->is_real && (b->whole > exact || b->whole < -exact)))
        return 2;
    return x < y ? -1 : x > y ? 1 : x <= y ? 0 : 2;
}

/* Run the tests on this row. *passes becomes false only if a test is false. */
static int sql_passes(sql_cursor *cursor, bool *passes) {
    const sql_table *table = (const sql_table *)(const void *)cursor->base.pVtab;
    bags_error err;
    *passes = true;
    for (size_t i = 0; i < cursor->tests_count && *passes; i++) {
        const sql_test *test = &cursor->tests[i];
        bags_view blob;
        sql_test value;
        if (sql_blob(cursor, test->column, &blob, &err))
            return sql_fail(cursor->base.pVtab, &err);
        if (sql_number(&table->columns[test->column], blob, &value))
            continue; /* if the value is read, sql_column_value will fail */
        int order = sql_compare(&value, test);
        if (order == 2)
            continue;
        *passes = test->op == SQLITE_INDEX_CONSTRAINT_EQ   ? order == 0
                  : test->op == SQLITE_INDEX_CONSTRAINT_GT ? order > 0
                  : test->op == SQLITE_INDEX_CONSTRAINT_GE ? order >= 0
                  : test->op == SQLITE_INDEX_CONSTRAINT_LT ? order < 0
                                                           : order <= 0;
    }
    return SQLITE_OK;
}

/* Go to the next row, or to the next row found by an index. */
static void sql_step(sql_cursor *cursor) {
    if (!cursor->found)
        cursor->at++;
    else if (++cursor->found_at < cursor->found_count)
        cursor->at = cursor->found[cursor->found_at];
    else
        cursor->at = UINT64_MAX;
}

/* Go to the first row that passes, starting with this one. */
static int sql_advance(sql_cursor *cursor) {
    bool passes = false;
    for (; cursor->at < cursor->stop; sql_step(cursor)) {
        int code = sql_passes(cursor, &passes);
        if (code || passes)
            return code;
    }
    return SQLITE_OK;
}

static int sql_next(sqlite3_vtab_cursor *base) {
    sql_cursor *cursor = (sql_cursor *)base;
    sql_step(cursor);
    return cursor->tests_count ? sql_advance(cursor) : SQLITE_OK;
}

/* Apply a comparison of the rowid with an integer. */
static void sql_limit(sql_cursor *cursor, int op, sqlite3_int64 number) {
    bool above = op == SQLITE_INDEX_CONSTRAINT_GT || op == SQLITE_INDEX_CONSTRAINT_LE;
    if (above && number == INT64_MAX)
        return;
    uint64_t from = number + above < 0 ? 0 : (uint64_t)(number + above);
    bool is_equal = op == SQLITE_INDEX_CONSTRAINT_EQ;
    if (is_equal && number < 0)
        cursor->stop = 0;
    if (is_equal || op == SQLITE_INDEX_CONSTRAINT_GT ||
        op == SQLITE_INDEX_CONSTRAINT_GE)
        cursor->at = from > cursor->at ? from : cursor->at;
    if (is_equal && number >= 0)
        from++;
    if (is_equal || op == SQLITE_INDEX_CONSTRAINT_LT ||
        op == SQLITE_INDEX_CONSTRAINT_LE)
        cursor->stop = from < cursor->stop ? from : cursor->stop;
}

static int sql_filter(sqlite3_vtab_cursor *base, int number, const char *plan, int argc,
    sqlite3_value **argv) {
    sql_cursor *cursor = (sql_cursor *)base;
    const sql_table *table = (const sql_table *)(const void *)base->pVtab;
    (void)number;
    sqlite3_free(cursor->tests);
    cursor->tests =
        (sql_test *)sqlite3_malloc64(((uint64_t)argc + 1) * sizeof *cursor->tests);
    if (!cursor->tests)
        return SQLITE_NOMEM;
    sqlite3_free(cursor->found);
    cursor->found = NULL;
    cursor->found_at = 0;
    cursor->tests_count = 0;
    cursor->at = 0;
    cursor->stop = bags_reader_length(table->reader);
    for (int i = 0; i < argc; i++) {
        char *end;
        sql_test test;
        long column = strtol(plan, &end, 10);
        test.op = (int)strtol(end, &end, 10);
        plan = end;
        int type = sqlite3_value_type(argv[i]);
        test.is_real = type == SQLITE_FLOAT;
        test.whole = test.is_real ? 0 : sqlite3_value_int64(argv[i]);
        test.real = test.is_real ? sqlite3_value_double(argv[i]) : 0;
        test.column = (size_t)column;
        sqlite3_int64 first = (sqlite3_int64)table->start;
        if (column < 0 && type == SQLITE_INTEGER)
            sql_limit(cursor, test.op,
                test.whole < INT64_MIN + first ? INT64_MIN : test.whole - first);
        else if (column >= 0 && sql_is_number(&table->columns[column]) &&
                 (type == SQLITE_INTEGER || type == SQLITE_FLOAT))
            cursor->tests[cursor->tests_count++] = test;
        if (column >= 0 && test.op == SQLITE_INDEX_CONSTRAINT_EQ && !cursor->found)
            sql_find(cursor, (size_t)column, argv[i]);
    }
    if (cursor->found) { /* keep the rows within the rowid's limits */
        while (cursor->found_at < cursor->found_count &&
               cursor->found[cursor->found_at] < cursor->at)
            cursor->found_at++;
        cursor->at = cursor->found_at < cursor->found_count
                         ? cursor->found[cursor->found_at]
                         : UINT64_MAX;
    }
    return sql_advance(cursor);
}

static int sql_eof(sqlite3_vtab_cursor *base) {
    const sql_cursor *cursor = (const sql_cursor *)base;
    return cursor->at >= cursor->stop;
}

static int sql_rowid(sqlite3_vtab_cursor *base, sqlite3_int64 *out) {
    const sql_table *table = (const sql_table *)(const void *)base->pVtab;
    *out = (sqlite3_int64)(table->start + ((const sql_cursor *)base)->at);
    return SQLITE_OK;
}

static int sql_column_value(sqlite3_vtab_cursor *base, sqlite3_context *out, int i) {
    sql_cursor *cursor = (sql_cursor *)base;
    const sql_table *table = (const sql_table *)(const void *)base->pVtab;
    size_t field = (size_t)i;
    bags_error err;
    bags_view blob = {NULL, 0};
    bags_code code = BAGS_OK;
    char *json = NULL, invalid[64];
    const char *wrong = NULL;
    sql_test number;
    if (field >= table->count)
        return SQLITE_OK;
    const sql_column *column = &table->columns[field];
    if (column->kind == SQL_SEQUENCE)
        code = sql_sequence(cursor, field, &json, &err);
    else
        code = sql_blob(cursor, field, &blob, &err);
    if (!code && column->kind == SQL_BLOB)
        code = sql_check_frame(cursor, field, blob, &err);
    if (!code && sql_is_number(column))
        wrong = sql_number(column, blob, &number);
    else if (!code && column->kind == SQL_TEXT)
        wrong = sql_text(blob, invalid);
    if (wrong)
        code = sql_invalid(cursor, field, UINT64_MAX, wrong, &err);
    if (code)
        return sql_fail(base->pVtab, &err);
    if (column->kind == SQL_SEQUENCE)
        sqlite3_result_text64(out, json, strlen(json), sqlite3_free, SQLITE_UTF8);
    else if (column->kind == SQL_TEXT)
        sqlite3_result_text64(out, blob.size ? (const char *)blob.data : "", blob.size,
            SQLITE_TRANSIENT, SQLITE_UTF8);
    else if (!sql_is_number(column))
        sqlite3_result_blob64(
            out, blob.size ? (const void *)blob.data : "", blob.size, SQLITE_TRANSIENT);
    else if (number.is_real)
        sqlite3_result_double(out, number.real);
    else
        sqlite3_result_int64(out, number.whole);
    return SQLITE_OK;
}

static const sqlite3_module sql_module = {1, sql_connect, sql_connect, sql_best_index,
    sql_disconnect, sql_disconnect, sql_open_cursor, sql_close_cursor, sql_filter,
    sql_next, sql_eof, sql_column_value, sql_rowid, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL};

/* ---- functions ---- */

/* Get the width and height stated by a JPEG, PNG or WebP. */
static bool sql_image_size(bags_view file, uint64_t size[2]) {
    bags_view data = format_jpeg_frame(file);
    if (file.size >= 24 && !memcmp(file.data, FORMAT_PNG_START, 8)) {
        size[0] = bags_load_bytes(file.data + 16, 4, true);
        size[1] = bags_load_bytes(file.data + 20, 4, true);
        return true;
    }
    if (format_is_webp(file)) {
        format_webp webp;
        (void)format_webp_scan(file, &webp, NULL);
        size[0] = webp.width;
        size[1] = webp.height;
        return webp.width > 0;
    }
    if (data.size == 0)
        return false;
    size[1] = bags_load_bytes(data.data + 1, 2, true);
    size[0] = bags_load_bytes(data.data + 3, 2, true);
    return true;
}

/* width(image), height(image): NULL if a value is not a JPEG, PNG or WebP. */
static void sql_image(sqlite3_context *out, int count, sqlite3_value **values) {
    uint64_t size[2];
    bags_view file;
    (void)count;
    file.data = (const unsigned char *)sqlite3_value_blob(values[0]);
    file.size = (size_t)sqlite3_value_bytes(values[0]);
    if (file.data && sql_image_size(file, size))
        sqlite3_result_int64(out, (sqlite3_int64)size[sqlite3_user_data(out) != NULL]);
}

/* Register the module and functions. `source` (or NULL) is freed with the database. */
static int sql_register(sqlite3 *db, const char *module, sql_source *source) {
    const int how = SQLITE_UTF8 | SQLITE_DETERMINISTIC;
    int code = sqlite3_create_module_v2(db, module, &sql_module, source, sqlite3_free);
    if (!code)
        code =
            sqlite3_create_function(db, "width", 1, how, NULL, sql_image, NULL, NULL);
    if (!code)
        code = sqlite3_create_function(db, "height", 1, how, db, sql_image, NULL, NULL);
    return code;
}

#ifdef BAGS_SQL_EXTENSION

/* The entry point of the extension. */
#if defined(_WIN32)
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
    int sqlite3_extension_init(
        sqlite3 *db, char **message, const sqlite3_api_routines *api);

int sqlite3_extension_init(
    sqlite3 *db, char **message, const sqlite3_api_routines *api) {
    (void)message;
    SQLITE_EXTENSION_INIT2(api);
    return sql_register(db, "bags", NULL);
}

#else

/* ---- a separate database ---- */

/* Allow only read-only statements. */
static int sql_authorize(void *user, int action, const char *a, const char *b,
    const char *c, const char *d) {
    (void)user;
    (void)a;
    (void)c;
    (void)d;
    if (action == SQLITE_SELECT || action == SQLITE_READ || action == SQLITE_RECURSIVE)
        return SQLITE_OK;
    return action == SQLITE_FUNCTION && sqlite3_stricmp(b, "load_extension")
               ? SQLITE_OK
               : SQLITE_DENY;
}

static bags_code sql_error(sqlite3 *db, bags_error *err) {
    return bags_fail(err,
        sqlite3_errcode(db) == SQLITE_NOMEM ? BAGS_ERROR_MEMORY : BAGS_ERROR_VALUE,
        "SQL: %.900s", sqlite3_errmsg(db));
}

static sqlite3 *sql_database(
    const bags_reader *reader, uint64_t start, bags_error *err) {
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(
        ":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    sql_source *source = code ? NULL : (sql_source *)sqlite3_malloc64(sizeof *source);
    if (source) {
        source->reader = reader;
        source->start = start;
    }
    if (!code)
        code = source ? sql_register(db, "bags_reader", source) : SQLITE_NOMEM;
    if (!code)
        code = sqlite3_exec(
            db, "CREATE VIRTUAL TABLE data USING bags_reader", NULL, NULL, NULL);
    /* Use json_each once for sequences: the first use of a module declares its columns,
     * and later this would be refused. An SQLite without json_each has no JSON
     * support. */
    if (!code)
        sqlite3_exec(
            db, "SELECT 1 FROM json_each('[]'), json_tree('[]')", NULL, NULL, NULL);
    /* Make a misspelt "column" an error instead of a string. */
    if (!code)
        code = sqlite3_db_config(db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
    if (!code)
        code = sqlite3_set_authorizer(db, sql_authorize, NULL);
    if (!code)
        return db;
    sql_error(db, err);
    sqlite3_close(db);
    return NULL;
}

struct sqlite3 *bags_sql_open(const bags_reader *reader, bags_error *err) {
    return sql_database(reader, 0, err);
}

/* Find a name for the rowid that no field has. */
static const char *sql_rowid_name(const bags_reader *reader) {
    static const char *const names[] = {"rowid", "_rowid_", "oid"};
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool taken = false;
        for (size_t k = 0; k < count; k++)
            taken = taken || !sqlite3_stricmp(fields[k].name, names[i]);
        if (!taken)
            return names[i];
    }
    return NULL;
}

/* True if the parentheses in a text are balanced outside comments and quoted words: "1)
 * OR (1" is not. */
static bool sql_is_enclosed(const char *text) {
    size_t open = 0;
    for (const char *at = text; *at; at++) {
        const char *end =
            at; /* end of a quoted word or comment; NULL: SQLite refuses it */
        if (*at == '(')
            open++;
        else if (*at == ')' && !open--)
            return false;
        else if (strchr("'\"`", *at))
            end = strchr(at + 1, *at);
        else if (*at == '[')
            end = strchr(at, ']');
        else if (!strncmp(at, "--", 2))
            end = at + strcspn(at, "\n") - 1;
        else if (!strncmp(at, "/*", 2))
            end = strstr(at + 2, "*/") ? strstr(at + 2, "*/") + 1 : NULL;
        if (!end)
            break;
        at = end;
    }
    return !open;
}

static bags_code sql_not_one(const char *where, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_VALUE, "SQL: not one expression: %.500s", where);
}

bags_code bags_sql_check(struct sqlite3_stmt *query, bags_error *err) {
    int last = sqlite3_bind_parameter_count(query); /* the highest parameter number */
    const char *name = last ? sqlite3_bind_parameter_name(query, last) : NULL;
    return last ? bags_fail(err, BAGS_ERROR_VALUE,
                      "SQL: the parameter %.200s has no value; write the value in its "
                      "place",
                      name ? name : "?")
                : BAGS_OK;
}

/* A running selection, for SQLite. */
typedef struct sql_selection {
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    size_t found;
} sql_selection;

/* Called by SQLite. Returns nonzero to end the selection. */
static int sql_select_step(void *user) {
    sql_selection *run = (sql_selection *)user;
    return !run->progress(run->user, run->found, 0);
}

bags_code bags_sql_rows(const bags_reader *reader, uint64_t start, const char *where,
    bags_buffer *numbers, size_t *count, bags_error *err) {
    return bags_sql_select(reader, start, where, NULL, NULL, numbers, count, err);
}

bags_code bags_sql_select(const bags_reader *reader, uint64_t start, const char *where,
    bool (*progress)(void *user, uint64_t done, uint64_t total), void *user,
    bags_buffer *numbers, size_t *count, bags_error *err) {
    bags_error ignored;
    sql_selection run = {progress, user, 0};
    err = err ? err : &ignored;
    if (!reader || !where || !numbers || !count)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    if (!sql_is_enclosed(where))
        return sql_not_one(where, err);
    const char *rowid = sql_rowid_name(reader);
    if (!rowid)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%s: fields called rowid, _rowid_ and oid hide the number of a datapoint",
            bags_reader_path(reader));
    sqlite3 *db = sql_database(reader, start, err);
    if (!db)
        return err->code;
    if (progress)
        sqlite3_progress_handler(db, 10000, sql_select_step, &run);
    sqlite3_stmt *statement = NULL;
    /* As a function argument, the text must be an expression and cannot be a query. */
    char *query = sqlite3_mprintf(
        "SELECT %s FROM data WHERE likely(\n%s\n) ORDER BY 1", rowid, where);
    bags_code code = BAGS_OK;
    if (!query || sqlite3_prepare_v2(db, query, -1, &statement, NULL))
        code = strstr(sqlite3_errmsg(db), "likely()") ? sql_not_one(where, err)
                                                      : sql_error(db, err);
    sqlite3_free(query);
    if (!code)
        code = bags_sql_check(statement, err);
    for (int step = SQLITE_ROW; !code && step == SQLITE_ROW;) {
        step = sqlite3_step(statement);
        if (step == SQLITE_ROW)
            code =
                bags_buffer_reserve(numbers, (run.found + 1) * sizeof(uint64_t), err);
        else if (step != SQLITE_DONE)
            code = sql_error(db, err);
        if (!code && step == SQLITE_ROW)
            ((uint64_t *)(void *)numbers->data)[run.found++] =
                (uint64_t)sqlite3_column_int64(statement, 0);
    }
    sqlite3_finalize(statement);
    sqlite3_close(db);
    if (!code)
        *count = run.found;
    return code;
}

#endif
