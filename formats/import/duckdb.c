/*
 * duckdb.c - imports Parquet, CSV and the results of SQL queries, with DuckDB's
 * library (1.0 or later), which is loaded at run time: libduckdb.so, found by the
 * loader's usual path.
 *
 *     parquet  a file, directory or pattern
 *     csv      a .csv or .tsv file, compressed or not; types are detected
 *     sql      a query, or a .sql file with one, which may read what DuckDB can
 *
 * A column is a field; of a struct, each member is: "column.member". A datapoint is
 * a row.
 *
 *     integers           i64, u64
 *     floats, Booleans   array(DTYPE)
 *     dates and times    i64: days, or the column's unit since 1970 or midnight
 *     text               utf8; so are decimals, huge integers, UUIDs, enums,
 *                        intervals and bits
 *     blobs              jpeg or png if all of them begin like that, else bytes
 *     {bytes, path}      the bytes: images and audio of Hugging Face's datasets
 *     lists              sequences; of structs, one per member; a list in a list is
 *                        array(DTYPE,-1). NULL is an empty sequence
 *     fixed-size lists   array(DTYPE,N)
 *
 * A column with NULLs becomes a sequence of 0 or 1. To find those, open reads the
 * source once. Rejected: NULL in a list, maps, unions, deeper lists.
 */
#include "import.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>

#define DK_DEPTH 8
#define DK_QUERY ((uint64_t)16 << 20) /* most bytes of a .sql file */

/* ---- the parts of duckdb.h that are used ---- */

typedef struct dk_result {
    uint64_t columns, rows, changed;
    void *first;
    char *message;
    void *internal;
} dk_result;

enum {
    DK_BOOLEAN = 1,
    DK_TINYINT,
    DK_SMALLINT,
    DK_INTEGER,
    DK_BIGINT,
    DK_UTINYINT,
    DK_USMALLINT,
    DK_UINTEGER,
    DK_UBIGINT,
    DK_FLOAT,
    DK_DOUBLE,
    DK_TIMESTAMP,
    DK_DATE,
    DK_TIME,
    DK_INTERVAL,
    DK_HUGEINT,
    DK_VARCHAR,
    DK_BLOB,
    DK_DECIMAL,
    DK_TIMESTAMP_S,
    DK_TIMESTAMP_MS,
    DK_TIMESTAMP_NS,
    DK_ENUM,
    DK_LIST,
    DK_STRUCT,
    DK_UUID = 27,
    DK_BIT = 29,
    DK_TIME_TZ,
    DK_TIMESTAMP_TZ,
    DK_UHUGEINT,
    DK_ARRAY
};

/* X(result, name, parameters): a member and the symbol duckdb_NAME. */
#define DK_FUNCTIONS(X)                                                        \
    X(int, create_config, (void **config))                                     \
    X(int, set_config, (void *config, const char *name, const char *value))    \
    X(void, destroy_config, (void **config))                                   \
    X(int, open_ext,                                                           \
        (const char *path, void **database, void *config, char **message))     \
    X(void, close, (void **database))                                          \
    X(int, connect, (void *database, void **connection))                       \
    X(void, disconnect, (void **connection))                                   \
    X(int, prepare, (void *connection, const char *query, void **statement))   \
    X(const char *, prepare_error, (void *statement))                          \
    X(void, destroy_prepare, (void **statement))                               \
    X(int, pending_prepared_streaming, (void *statement, void **pending))      \
    X(const char *, pending_error, (void *pending))                            \
    X(int, execute_pending, (void *pending, dk_result *result))                \
    X(void, destroy_pending, (void **pending))                                 \
    X(void, destroy_result, (dk_result * result))                              \
    X(const char *, result_error, (dk_result * result))                        \
    X(uint64_t, column_count, (dk_result * result))                            \
    X(const char *, column_name, (dk_result * result, uint64_t column))        \
    X(void *, column_logical_type, (dk_result * result, uint64_t column))      \
    X(void, destroy_logical_type, (void **type))                               \
    X(int, get_type_id, (void *type))                                          \
    X(void *, list_type_child_type, (void *type))                              \
    X(void *, array_type_child_type, (void *type))                             \
    X(uint64_t, array_type_array_size, (void *type))                           \
    X(uint64_t, struct_type_child_count, (void *type))                         \
    X(char *, struct_type_child_name, (void *type, uint64_t child))            \
    X(void *, struct_type_child_type, (void *type, uint64_t child))            \
    X(void *, fetch_chunk, (dk_result result))                                 \
    X(void, destroy_data_chunk, (void **chunk))                                \
    X(uint64_t, data_chunk_get_size, (void *chunk))                            \
    X(void *, data_chunk_get_vector, (void *chunk, uint64_t column))           \
    X(void *, vector_get_data, (void *vector))                                 \
    X(uint64_t *, vector_get_validity, (void *vector))                         \
    X(void *, list_vector_get_child, (void *vector))                           \
    X(void *, array_vector_get_child, (void *vector))                          \
    X(void, free, (void *memory))

#define DK_MEMBER(result, name, parameters) result(*name) parameters;
typedef struct dk_library {
    DK_FUNCTIONS(DK_MEMBER)
} dk_library;

/* A list in a vector. */
typedef struct dk_list {
    uint64_t offset, length;
} dk_list;

/* ---- the source ---- */

typedef struct dk_column {
    const char *name, *expression; /* in SQL */
    int type;                      /* of a value; of arrays, their elements */
    bool list;                     /* a list of values */
    bool inner;    /* values are lists: arrays of one dimension */
    uint64_t size; /* values are arrays of this size; 0: they are not */
    bool optional; /* it has NULLs */
    bags_buffer values;
} dk_column;

typedef struct dk_source {
    bags_import_arena arena;
    bags_buffer list;
    const bags_allocator *allocator;
    bags_allocator own;
    dk_library call;
    const char *path, *from; /* for messages; in SQL */
    void *database, *connection, *statement, *pending;
    dk_result result;
    bool running;
    void *chunk;
    uint64_t chunk_start, chunk_size;
    dk_column *columns;
    size_t count;
    bags_field *fields;
    bags_entry *entries;
    uint64_t length;
    bags_error *err;
} dk_source;

static bags_code dk_fail(dk_source *s, const char *why) {
    size_t size = why ? strcspn(why, "\n") : 0;
    return bags_fail(s->err, BAGS_ERROR_CORRUPT, "%.400s: %.*s", s->path,
        (int)(size < 500 ? size : 500), size ? why : "DuckDB failed");
}

/* printf to the arena: a macro, so that compilers compare format and arguments. */
#define DK_FORMAT(s, ...) bags_import_format(&(s)->arena, (s)->err, __VA_ARGS__)

/* Text in quotes, for SQL. */
static const char *dk_quote(dk_source *s, const char *text, char quote) {
    char *out =
        (char *)bags_import_alloc(&s->arena, 2 * strlen(text) + 3, 1, s->err);
    char *to = out;
    if (!out)
        return NULL;
    *to++ = quote;
    for (; *text; text++) {
        *to++ = *text;
        if (*text == quote)
            *to++ = quote;
    }
    *to = quote;
    return out;
}

/* ---- queries ---- */

static void dk_stop(dk_source *s) {
    if (s->chunk)
        s->call.destroy_data_chunk(&s->chunk);
    if (s->running)
        s->call.destroy_result(&s->result);
    if (s->pending)
        s->call.destroy_pending(&s->pending);
    if (s->statement)
        s->call.destroy_prepare(&s->statement);
    s->running = false;
}

/* Start a query, whose result is then read in chunks. */
static bags_code dk_run(dk_source *s, const char *query) {
    dk_stop(s);
    memset(&s->result, 0, sizeof s->result);
    if (!query)
        return BAGS_ERROR_MEMORY;
    if (s->call.prepare(s->connection, query, &s->statement))
        return dk_fail(s, s->call.prepare_error(s->statement));
    if (s->call.pending_prepared_streaming(s->statement, &s->pending))
        return dk_fail(s, s->call.pending_error(s->pending));
    s->running = true;
    if (s->call.execute_pending(s->pending, &s->result))
        return dk_fail(s, s->call.result_error(&s->result));
    return BAGS_OK;
}

/* The next chunk of the result; size 0 at its end. */
static bags_code dk_next(dk_source *s) {
    if (s->chunk)
        s->call.destroy_data_chunk(&s->chunk);
    s->chunk_start += s->chunk_size;
    s->chunk = s->call.fetch_chunk(s->result);
    s->chunk_size = s->chunk ? s->call.data_chunk_get_size(s->chunk) : 0;
    const char *why = s->call.result_error(&s->result);
    return !s->chunk && why && *why ? dk_fail(s, why) : BAGS_OK;
}

/* ---- types ---- */

static bags_dtype dk_dtype(int type) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_BOOL,
        BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32, BAGS_DTYPE_INT64,
        BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32,
        BAGS_DTYPE_UINT64, BAGS_DTYPE_FLOAT32, BAGS_DTYPE_FLOAT64};
    return type <= DK_DOUBLE ? dtypes[type] : BAGS_DTYPE_NONE;
}

/* Bytes of a date or time in a vector, or 0. */
static size_t dk_time(int type) {
    return type == DK_DATE ? 4
           : type == DK_TIMESTAMP || type == DK_TIME ||
                   (type >= DK_TIMESTAMP_S && type <= DK_TIMESTAMP_NS) ||
                   type == DK_TIMESTAMP_TZ
               ? 8
               : 0;
}

static bool dk_is_text(int type) {
    return type == DK_INTERVAL || type == DK_HUGEINT || type == DK_DECIMAL ||
           type == DK_ENUM || type == DK_UUID || type == DK_BIT ||
           type == DK_TIME_TZ || type == DK_UHUGEINT;
}

static bags_code dk_columns(dk_source *s, const char *name,
    const char *expression, void *type, bool list, int depth);

/* Add the columns of a struct, or of a list of them. */
static bags_code dk_members(dk_source *s, const char *name,
    const char *expression, void *type, bool list, int depth) {
    uint64_t count = s->call.struct_type_child_count(type);
    bags_code code = BAGS_OK;
    bool file = count == 2; /* {bytes, path} */
    for (uint64_t i = 0; i < count && file; i++) {
        char *member = s->call.struct_type_child_name(type, i);
        file = member && (!strcmp(member, "bytes") || !strcmp(member, "path"));
        s->call.free(member);
    }
    for (uint64_t i = 0; i < count && !code; i++) {
        char *member = s->call.struct_type_child_name(type, i);
        void *inner = s->call.struct_type_child_type(type, i);
        const char *quoted = member ? dk_quote(s, member, '\'') : NULL;
        const char *value =
            !quoted ? NULL
            : list ? DK_FORMAT(s, "[struct_extract(x, %s) FOR x IN %s]", quoted,
                         expression)
                   : DK_FORMAT(s, "struct_extract(%s, %s)", expression, quoted);
        const char *full =
            member ? file ? name : DK_FORMAT(s, "%s.%s", name, member) : NULL;
        if (!value || !full)
            code = BAGS_ERROR_MEMORY;
        else if (!file || !strcmp(member, "bytes"))
            code = dk_columns(s, full, value, inner, list, depth + 1);
        s->call.free(member);
        s->call.destroy_logical_type(&inner);
    }
    return code;
}

/* Add the columns that a value of this type becomes, or a list of such values. */
static bags_code dk_columns(dk_source *s, const char *name,
    const char *expression, void *type, bool list, int depth) {
    dk_column column;
    void *inner = NULL;
    bags_code code;
    memset(&column, 0, sizeof column);
    column.name = name;
    column.expression = expression;
    column.list = list;
    column.values = bags_import_buffer_start(s->allocator);
    column.type = s->call.get_type_id(type);
    if (column.type == DK_STRUCT && depth < DK_DEPTH)
        return dk_members(s, name, expression, type, list, depth);
    if (column.type == DK_LIST && !list) {
        inner = s->call.list_type_child_type(type);
        code = dk_columns(s, name, expression, inner, true, depth + 1);
        s->call.destroy_logical_type(&inner);
        return code;
    }
    if (column.type == DK_LIST || column.type == DK_ARRAY) {
        column.inner = column.type == DK_LIST;
        if (!column.inner)
            column.size = s->call.array_type_array_size(type);
        inner = column.inner ? s->call.list_type_child_type(type)
                             : s->call.array_type_child_type(type);
        column.type = s->call.get_type_id(inner);
        s->call.destroy_logical_type(&inner);
        if (!dk_dtype(column.type))
            column.type = -1;
    }
    if (dk_is_text(column.type)) {
        column.type = DK_VARCHAR;
        column.expression =
            DK_FORMAT(s, "CAST(%s AS VARCHAR%s)", expression, list ? "[]" : "");
        if (!column.expression)
            return BAGS_ERROR_MEMORY;
    }
    if (column.type < 0 ||
        (!dk_dtype(column.type) && !dk_time(column.type) &&
            column.type != DK_VARCHAR && column.type != DK_BLOB))
        return bags_fail(s->err, BAGS_ERROR_TYPE,
            "%.400s: column %.200s: its type is not supported; convert it in a "
            "query (--from sql)",
            s->path, name);
    code =
        bags_buffer_reserve(&s->list, (s->count + 1) * sizeof column, s->err);
    if (!code)
        ((dk_column *)(void *)s->list.data)[s->count++] = column;
    s->columns = (dk_column *)(void *)s->list.data;
    return code;
}

static const char *dk_type(
    dk_source *s, const dk_column *c, bool jpeg, bool png) {
    const char *type = jpeg ? "jpeg" : png ? "png" : "bytes";
    char size[32] = "";
    if (c->type == DK_VARCHAR)
        type = "utf8";
    else if (dk_time(c->type) ||
             (c->type >= DK_TINYINT && c->type <= DK_BIGINT))
        type = "i64";
    else if (c->type >= DK_UTINYINT && c->type <= DK_UBIGINT)
        type = "u64";
    if (c->size)
        snprintf(size, sizeof size, ",%" PRIu64, c->size);
    if (c->inner || c->size || c->type == DK_BOOLEAN || c->type == DK_FLOAT ||
        c->type == DK_DOUBLE)
        type = bags_import_format(&s->arena, s->err, "array(%s%s)",
            bags_dtype_name(dk_dtype(c->type)), c->inner ? ",-1" : size);
    if (type && (c->list || c->optional))
        type = DK_FORMAT(s, "%s[]", type);
    return type;
}

/* ---- values ---- */

static bool dk_is_null(dk_source *s, void *vector, uint64_t i) {
    const uint64_t *bits = s->call.vector_get_validity(vector);
    return bits && !(bits[i / 64] >> (i % 64) & 1);
}

/* Value i of a vector, which is not NULL; false if a part of it is. */
static bool dk_value(dk_source *s, const dk_column *c, void *vector, uint64_t i,
    bags_value *value) {
    unsigned char *data = (unsigned char *)s->call.vector_get_data(vector);
    bags_dtype dtype = dk_dtype(c->type);
    size_t size = dtype ? bags_dtype_size(dtype) : dk_time(c->type);
    if (c->inner || c->size) {
        const dk_list *part = (const dk_list *)(void *)data + i;
        void *child = c->inner ? s->call.list_vector_get_child(vector)
                               : s->call.array_vector_get_child(vector);
        uint64_t start = c->inner ? part->offset : i * c->size;
        const uint64_t *length = c->inner ? &part->length : &c->size;
        for (uint64_t k = start; k < start + *length; k++)
            if (dk_is_null(s, child, k))
                return false;
        data = (unsigned char *)s->call.vector_get_data(child);
        *value = bags_array(dtype, 1, length, data + start * size);
        return true;
    }
    if (c->type == DK_VARCHAR || c->type == DK_BLOB) {
        /* A length, and 12 bytes of text, or 4 and a pointer to all. */
        const unsigned char *text = data + 16 * i;
        uint32_t length;
        memcpy(&length, text, 4);
        const char *from = (const char *)text + 4;
        if (length > 12)
            memcpy(&from, text + 8, sizeof from);
        *value = c->type == DK_VARCHAR ? bags_utf8_sized(from, length)
                                       : bags_blob(from, length);
        return true;
    }
    data += i * size;
    uint64_t number = 0;
    if (c->type == DK_BOOLEAN || c->type == DK_FLOAT || c->type == DK_DOUBLE) {
        *value = bags_array(dtype, 0, NULL, data);
        return true;
    }
    memcpy((char *)&number + (bags_little_endian() ? 0 : 8 - size), data, size);
    bool is_signed = c->type < DK_UTINYINT || c->type > DK_UBIGINT;
    if (is_signed && size < 8 && number >> (8 * size - 1) & 1)
        number |= UINT64_MAX << 8 * size;
    *value = is_signed ? bags_int((int64_t)number) : bags_uint(number);
    return true;
}

/* The values of a column in a row of the chunk. */
static bags_code dk_entry(
    dk_source *s, size_t field, uint64_t row, uint64_t index) {
    dk_column *c = &s->columns[field];
    bags_entry *entry = &s->entries[field];
    void *vector = s->call.data_chunk_get_vector(s->chunk, field);
    uint64_t start = row, count = 1;
    bool null = dk_is_null(s, vector, row), good = true;
    if (null)
        count = 0;
    if (c->list && !null) {
        const dk_list *part =
            (const dk_list *)s->call.vector_get_data(vector) + row;
        start = part->offset;
        count = part->length;
        vector = s->call.list_vector_get_child(vector);
    }
    if (count > SIZE_MAX / sizeof(bags_value) / 2)
        return dk_fail(s, "a list is too large");
    bags_code code = bags_buffer_reserve(
        &c->values, (size_t)count * sizeof(bags_value), s->err);
    if (code)
        return code;
    bags_value *values = (bags_value *)(void *)c->values.data;
    for (uint64_t i = 0; i < count && good; i++)
        good = (!c->list || !dk_is_null(s, vector, start + i)) &&
               dk_value(s, c, vector, start + i, &values[i]);
    if (!good || (null && !c->list && !c->optional))
        return bags_fail(s->err, BAGS_ERROR_VALUE,
            "%.400s: field \"%.200s\": datapoint %" PRIu64 ": NULL%s", s->path,
            s->fields[field].name, index, c->list || !null ? " in a list" : "");
    entry->values = values;
    entry->count = (size_t)count;
    return BAGS_OK;
}

/* ---- open ---- */

static bags_code dk_load(dk_source *s) {
    static const char *const names[] = {
        "libduckdb.so", "libduckdb.so.1", "libduckdb.dylib"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return bags_fail(s->err, BAGS_ERROR_MISSING,
            "%.400s: libduckdb.so not found; install DuckDB's C library where "
            "the loader finds it, or set LD_LIBRARY_PATH",
            s->path);
#define DK_LOAD(result, name, parameters)                                      \
    {                                                                          \
        void *symbol = dlsym(library, "duckdb_" #name);                        \
        if (!symbol)                                                           \
            return dk_fail(s, "libduckdb.so lacks duckdb_" #name);             \
        memcpy(&s->call.name, &symbol, sizeof symbol);                         \
    }
    DK_FUNCTIONS(DK_LOAD)
    return BAGS_OK;
}

static bags_code dk_connect(dk_source *s) {
    static const char *const settings[][2] = {{"threads", "1"},
        {"memory_limit", "1GB"}, {"autoinstall_known_extensions", "false"},
        {"autoload_known_extensions", "false"}};
    void *config = NULL;
    char *message = NULL;
    bool good = !s->call.create_config(&config);
    for (size_t i = 0; good && i < sizeof settings / sizeof *settings; i++)
        good = !s->call.set_config(config, settings[i][0], settings[i][1]);
    good = good && !s->call.open_ext(NULL, &s->database, config, &message) &&
           !s->call.connect(s->database, &s->connection);
    bags_code code = good ? BAGS_OK : dk_fail(s, message);
    s->call.free(message);
    s->call.destroy_config(&config);
    return code;
}

/* The number of rows, and which columns have NULLs or only images. */
static bags_code dk_count(dk_source *s) {
    const char *query = "SELECT count(*)";
    for (size_t i = 0; query && i < s->count; i++) {
        const dk_column *c = &s->columns[i];
        const char *x = c->list ? "x" : c->expression;
        const char *test = NULL;
        query = DK_FORMAT(s, "%s, count(%s)", query, c->expression);
        for (int png = 0; query && c->type == DK_BLOB && png < 2; png++) {
            test = bags_import_format(&s->arena, s->err,
                png ? "%s >= '\\x89PNG\\x0D\\x0A\\x1A\\x0A'::BLOB AND "
                      "%s < '\\x89PNG\\x0D\\x0A\\x1A\\x0B'::BLOB"
                    : "%s >= '\\xFF\\xD8\\xFF'::BLOB AND "
                      "%s < '\\xFF\\xD9'::BLOB",
                x, x);
            if (test && c->list)
                test =
                    DK_FORMAT(s, "list_aggregate([%s FOR x IN %s], 'bool_and')",
                        test, c->expression);
            query = test ? DK_FORMAT(s, "%s, bool_and(%s)", query, test) : NULL;
        }
    }
    query = query ? DK_FORMAT(s, "%s FROM %s", query, s->from) : NULL;
    bags_code code = dk_run(s, query);
    if (!code)
        code = dk_next(s);
    if (code)
        return code;
    if (s->chunk_size != 1)
        return dk_fail(s, "no result of count(*)");
    uint64_t at = 0;
    dk_column number, truth;
    bags_value value;
    memset(&number, 0, sizeof number);
    truth = number;
    number.type = DK_BIGINT;
    truth.type = DK_BOOLEAN;
    dk_value(
        s, &number, s->call.data_chunk_get_vector(s->chunk, at++), 0, &value);
    s->length = value.uint;
    for (size_t i = 0; i < s->count; i++) {
        dk_column *c = &s->columns[i];
        bool kinds[2] = {false, false};
        dk_value(s, &number, s->call.data_chunk_get_vector(s->chunk, at++), 0,
            &value);
        c->optional = !c->list && value.uint != s->length;
        for (int k = 0; c->type == DK_BLOB && k < 2; k++) {
            void *vector = s->call.data_chunk_get_vector(s->chunk, at++);
            dk_value(s, &truth, vector, 0, &value);
            kinds[k] =
                !dk_is_null(s, vector, 0) && *(const unsigned char *)value.data;
        }
        s->fields[i].name = c->name;
        s->fields[i].type = dk_type(s, c, kinds[0], kinds[1]);
        if (!s->fields[i].type)
            return BAGS_ERROR_MEMORY;
    }
    return BAGS_OK;
}

static bags_code dk_open_query(dk_source *s) {
    bags_code code = dk_run(s, DK_FORMAT(s, "SELECT * FROM %s", s->from));
    uint64_t count = code ? 0 : s->call.column_count(&s->result);
    for (uint64_t i = 0; !code && i < count; i++) {
        const char *name = s->call.column_name(&s->result, i);
        void *type = s->call.column_logical_type(&s->result, i);
        const char *own =
            name ? bags_import_text(&s->arena, name, strlen(name), s->err)
                 : NULL;
        const char *quoted = own ? dk_quote(s, own, '"') : NULL;
        code = quoted ? dk_columns(s, own, quoted, type, false, 0)
                      : BAGS_ERROR_MEMORY;
        s->call.destroy_logical_type(&type);
    }
    if (!code && s->count == 0)
        code = dk_fail(s, "no columns");
    if (code)
        return code;
    s->fields = (bags_field *)bags_import_alloc(
        &s->arena, s->count, sizeof *s->fields, s->err);
    s->entries = (bags_entry *)bags_import_alloc(
        &s->arena, s->count, sizeof *s->entries, s->err);
    if (!s->fields || !s->entries)
        return BAGS_ERROR_MEMORY;
    code = dk_count(s);
    if (!code)
        code =
            bags_import_names(s->fields, s->count, s->path, &s->arena, s->err);
    const char *query = "SELECT ";
    for (size_t i = 0; !code && query && i < s->count; i++) {
        s->entries[i].field = s->fields[i].name;
        const char *next = DK_FORMAT(
            s, "%s%s", s->columns[i].expression, i + 1 < s->count ? ", " : "");
        query = next ? DK_FORMAT(s, "%s%s", query, next) : NULL;
    }
    query = query ? DK_FORMAT(s, "%s FROM %s", query, s->from) : NULL;
    if (!code)
        code = dk_run(s, query);
    s->chunk_start = s->chunk_size = 0;
    return code;
}

/* The files of a source as a table function of DuckDB. */
static bags_code dk_from_files(
    dk_source *s, const char *function, bool (*accept)(const char *)) {
    char **paths;
    size_t count;
    bags_code code =
        bags_import_files(s->path, accept, &s->arena, &paths, &count, s->err);
    const char *list = "";
    for (size_t i = 0; !code && list && i < count; i++) {
        const char *quoted = dk_quote(s, paths[i], '\'');
        list = quoted ? bags_import_format(&s->arena, s->err, "%s%s%s", list,
                            i ? ", " : "", quoted)
                      : NULL;
    }
    if (!code && list)
        s->from = DK_FORMAT(s, "%s([%s])", function, list);
    return code ? code : s->from ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bool dk_is_parquet(const char *name) {
    return bags_import_ends(name, ".parquet");
}

static bool dk_is_csv(const char *name) {
    return bags_import_ends(name, ".csv") || bags_import_ends(name, ".tsv") ||
           bags_import_ends(name, ".csv.gz") ||
           bags_import_ends(name, ".tsv.gz");
}

/* A query, or a file that contains it. */
static bags_code dk_from_query(dk_source *s) {
    bags_buffer text = bags_import_buffer_start(s->allocator);
    const char *query = s->path;
    bags_view file;
    bags_code code = BAGS_OK;
    if (bags_import_ends(query, ".sql")) {
        code = bags_import_file_load(query, DK_QUERY, &text, &file, s->err);
        query = code ? "" : (const char *)file.data;
    }
    size_t size = strlen(query);
    while (size > 0 && strchr("; \t\r\n", query[size - 1]))
        size--;
    /* The line break ends a comment. */
    s->from = code ? NULL
                   : bags_import_format(
                         &s->arena, s->err, "(%.*s\n)", (int)size, query);
    bags_buffer_free(&text);
    return code ? code : s->from ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static void dk_close(void *source) {
    dk_source *s = (dk_source *)source;
    if (!s)
        return;
    dk_stop(s);
    if (s->connection)
        s->call.disconnect(&s->connection);
    if (s->database)
        s->call.close(&s->database);
    for (size_t i = 0; i < s->count; i++)
        bags_buffer_free(&s->columns[i].values);
    bags_buffer_free(&s->list);
    bags_import_arena arena = s->arena;
    bags_import_free(&arena);
}

static bags_code dk_open(const char *path, const char *function,
    bool (*accept)(const char *), const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    dk_source *s = (dk_source *)bags_import_alloc(&arena, 1, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    s->arena = arena;
    if (allocator) {
        s->own = *allocator;
        s->allocator = &s->own;
    }
    s->list = bags_import_buffer_start(s->allocator);
    s->err = err;
    s->path = bags_import_text(&s->arena, path, strlen(path), err);
    bags_code code = !s->path   ? BAGS_ERROR_MEMORY
                     : function ? dk_from_files(s, function, accept)
                                : dk_from_query(s);
    if (!code)
        code = dk_load(s);
    if (!code)
        code = dk_connect(s);
    if (!code)
        code = dk_open_query(s);
    if (code) {
        dk_close(s);
        return code;
    }
    info->fields = s->fields;
    info->count = s->count;
    info->length = s->length;
    *source = s;
    return BAGS_OK;
}

static bags_code dk_read(
    void *source, uint64_t index, const bags_entry **entries, bags_error *err) {
    dk_source *s = (dk_source *)source;
    bags_code code = BAGS_OK;
    s->err = err;
    *entries = NULL;
    while (!code && index >= s->chunk_start + s->chunk_size) {
        code = dk_next(s);
        if (!code && s->chunk_size == 0)
            return s->chunk_start == s->length
                       ? BAGS_OK
                       : dk_fail(s, "the source changed while it was read");
    }
    for (size_t i = 0; !code && i < s->count; i++)
        code = dk_entry(s, i, index - s->chunk_start, index);
    if (!code)
        *entries = s->entries;
    return code;
}

static bags_code parquet_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    return dk_open(
        path, "read_parquet", dk_is_parquet, allocator, source, info, err);
}

static bags_code csv_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    return dk_open(path, "read_csv", dk_is_csv, allocator, source, info, err);
}

static bags_code sql_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    return dk_open(path, NULL, NULL, allocator, source, info, err);
}

static bool parquet_detect(const char *path) {
    unsigned char magic[4];
    if (bags_import_kind(path) == BAGS_PATH_FILE)
        return bags_import_peek(path, magic, 4) == 4 &&
               memcmp(magic, "PAR1", 4) == 0;
    return bags_import_has_files(path, dk_is_parquet);
}

static bool csv_detect(const char *path) {
    return bags_import_has_files(path, dk_is_csv);
}

static bool sql_detect(const char *path) {
    return bags_import_ends(path, ".sql") &&
           bags_import_kind(path) == BAGS_PATH_FILE;
}

const bags_importer bags_import_parquet = {
    "parquet", parquet_detect, parquet_open, dk_read, dk_close};
const bags_importer bags_import_csv = {
    "csv", csv_detect, csv_open, dk_read, dk_close};
const bags_importer bags_import_sql = {
    "sql", sql_detect, sql_open, dk_read, dk_close};
