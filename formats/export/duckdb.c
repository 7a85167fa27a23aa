/*
 * duckdb.c - writes CSV and Parquet, with COPY of DuckDB's library (1.0 or later).
 * libduckdb.so is loaded at run time from the loader's usual path. DuckDB calls a table
 * function of this file. It reads the datapoints: no table is kept in memory.
 *
 *                                Parquet              CSV
 *     i64; int(1) to int(7)      BIGINT               digits
 *     int, int(8), u64           UBIGINT              digits
 *     utf8                       VARCHAR              text
 *     array(DTYPE)               its type; float16 as FLOAT
 *     arrays with dimensions     lists of lists       refused
 *     jpeg, png                  {bytes, path}        refused
 *     other blobs                BLOB                 refused
 *     sequences                  lists                NULL or a value, if no datapoint has
 *                                                     more than one; refused otherwise
 *
 * Rejected: arrays of complex numbers, or whose type states no dtype; names that differ only
 * in case.
 */
#include "export.h"
#include "import.h"

#include "text.h"
#include "try.h"
#include "values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DX_BYTES ((uint64_t)8 << 20)  /* of values in a chunk */
#define DX_GROUP ((uint64_t)64 << 20) /* of values in a row group */

typedef struct dx_result {
    uint64_t columns, rows, changed;
    void *first;
    char *message;
    void *internal;
} dx_result;

typedef struct dx_list {
    uint64_t offset, length;
} dx_list;

/* Numbers of DuckDB's types. */
enum { DX_BIGINT = 5, DX_UBIGINT = 9, DX_FLOAT = 10, DX_VARCHAR = 17, DX_BLOB = 18 };

typedef void (*dx_callback)(void *info);
typedef void (*dx_function)(void *info, void *chunk);

/* X(result, name, parameters): a member and the symbol duckdb_NAME. */
#define DX_FUNCTIONS(X)                                                                \
    X(int, create_config, (void **config))                                             \
    X(int, set_config, (void *config, const char *name, const char *value))            \
    X(void, destroy_config, (void **config))                                           \
    X(int, open_ext,                                                                   \
        (const char *path, void **database, void *config, char **message))             \
    X(void, close, (void **database))                                                  \
    X(int, connect, (void *database, void **connection))                               \
    X(void, disconnect, (void **connection))                                           \
    X(int, query, (void *connection, const char *query, dx_result *result))            \
    X(void, destroy_result, (dx_result * result))                                      \
    X(const char *, result_error, (dx_result * result))                                \
    X(void *, create_table_function, (void))                                           \
    X(void, destroy_table_function, (void **function))                                 \
    X(void, table_function_set_name, (void *function, const char *name))               \
    X(void, table_function_set_extra_info,                                             \
        (void *function, void *extra, void (*destroy)(void *)))                        \
    X(void, table_function_set_bind, (void *function, dx_callback bind))               \
    X(void, table_function_set_init, (void *function, dx_callback init))               \
    X(void, table_function_set_function, (void *function, dx_function call))           \
    X(int, register_table_function, (void *connection, void *function))                \
    X(void *, bind_get_extra_info, (void *info))                                       \
    X(void, bind_add_result_column, (void *info, const char *name, void *type))        \
    X(void *, function_get_extra_info, (void *info))                                   \
    X(void, function_set_error, (void *info, const char *error))                       \
    X(void *, create_logical_type, (int type))                                         \
    X(void *, create_list_type, (void *type))                                          \
    X(void *, create_struct_type, (void **types, const char **names, uint64_t count))  \
    X(void, destroy_logical_type, (void **type))                                       \
    X(uint64_t, vector_size, (void))                                                   \
    X(void, data_chunk_set_size, (void *chunk, uint64_t size))                         \
    X(void *, data_chunk_get_vector, (void *chunk, uint64_t column))                   \
    X(void *, vector_get_data, (void *vector))                                         \
    X(uint64_t *, vector_get_validity, (void *vector))                                 \
    X(void, vector_ensure_validity_writable, (void *vector))                           \
    X(void, validity_set_row_invalid, (uint64_t * validity, uint64_t row))             \
    X(void, vector_assign_string_element_len,                                          \
        (void *vector, uint64_t index, const char *text, uint64_t size))               \
    X(void *, list_vector_get_child, (void *vector))                                   \
    X(uint64_t, list_vector_get_size, (void *vector))                                  \
    X(int, list_vector_set_size, (void *vector, uint64_t size))                        \
    X(int, list_vector_reserve, (void *vector, uint64_t capacity))                     \
    X(void *, struct_vector_get_child, (void *vector, uint64_t index))                 \
    X(void, free, (void *memory))

#define DX_MEMBER(result, name, parameters) result(*name) parameters;
typedef struct dx_library {
    DX_FUNCTIONS(DX_MEMBER)
} dx_library;

typedef struct dx_state {
    dx_library call;
    void *database, *connection;
    bags_code failed; /* in the table function; the error is in t->err */
    bool begun;       /* the first datapoint of the shard was read, */
    bool ended;       /* or there is none */
    uint64_t bytes;   /* of its values */
} dx_state;

/* ---- fields ---- */

/* The number of DuckDB's type for a dtype; 0: none. */
static int dx_dtype(bags_dtype dtype) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_BOOL,
        BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32, BAGS_DTYPE_INT64,
        BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32, BAGS_DTYPE_UINT64,
        BAGS_DTYPE_FLOAT32, BAGS_DTYPE_FLOAT64};
    int type = dtype == BAGS_DTYPE_FLOAT16 ? DX_FLOAT : 1;
    while (type < 12 && dtype != BAGS_DTYPE_FLOAT16 && dtypes[type] != dtype)
        type++;
    return type == 12 ? 0 : type;
}

static bool dx_is_image(const bags_target_field *field) {
    return !strcmp(field->ending, "jpg") || !strcmp(field->ending, "png");
}

static bags_code dx_prepare_csv(bags_target *t, bags_target_field *field) {
    uint64_t most = 1;
    if (field->form == BAGS_FORM_BLOB || field->dims)
        return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "CSV has numbers and text (this is %s)", field->type);
    FORMAT_TRY(bags_target_most(t, field, &most));
    if (most > 1)
        return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "CSV has no lists (%s[] with %" PRIu64 " items)", field->type, most);
    return BAGS_OK;
}

static bool dx_same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        int left = *a >= 'A' && *a <= 'Z' ? *a + 32 : *a;
        int right = *b >= 'A' && *b <= 'Z' ? *b + 32 : *b;
        if (left != right)
            return false;
    }
    return *a == *b;
}

static bool dx_is_csv(const bags_target *t) { return t->exporter == &bags_export_csv; }

static bags_code dx_prepare_field(bags_target *t, bags_target_field *field) {
    for (bags_target_field *other = t->fields; other < field; other++)
        if (dx_same_name(other->name, field->name))
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "differs only in case from the field \"%.100s\": rename it with "
                "--fields",
                other->name);
    if (field->form == BAGS_FORM_ARRAY && !dx_dtype(field->dtype))
        return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "%s has no type for %s", dx_is_csv(t) ? "CSV" : "Parquet", field->type);
    return dx_is_csv(t) ? dx_prepare_csv(t, field) : BAGS_OK;
}

/* ---- the library ---- */

static bags_code dx_load(bags_target *t) {
    static const char *const names[] = {
        "libduckdb.so", "libduckdb.so.1", "libduckdb.dylib", NULL};
    dx_state *d = (dx_state *)t->state;
#define DX_LOAD(result, name, parameters)                                              \
    {                                                                                  \
        void *symbol = bags_import_symbol(names, "duckdb_" #name, t->err);             \
        if (!symbol) {                                                                 \
            bags_prefix(t->err, BAGS_ERROR_MISSING, "%s: ", bags_path_tail(t->path));  \
            return bags_suffix(t->err,                                                 \
                "; CSV and Parquet need DuckDB's C library, 1.0 or later: install "    \
                "libduckdb.so (https://duckdb.org/install, C/C++) where the loader "   \
                "finds it, or set LD_LIBRARY_PATH");                                   \
        }                                                                              \
        memcpy(&d->call.name, &symbol, sizeof symbol);                                 \
    }
    DX_FUNCTIONS(DX_LOAD)
    return BAGS_OK;
}

/* DuckDB's message, as one line. */
static bags_code dx_fail(bags_target *t, const char *why) {
    char line[400];
    size_t size = why ? strlen(why) : 0;
    size = size < sizeof line ? size : sizeof line - 1;
    if (size)
        memcpy(line, why, size);
    line[size] = 0;
    for (char *c = line; *c; c++)
        *c = (char)(*c == '\n' ? ' ' : *c);
    return bags_target_fail(t, BAGS_ERROR_IO, "DuckDB failed: %s", line);
}

/* One thread keeps the order, and makes the same file again. */
static bags_code dx_connect(bags_target *t) {
    static const char *const settings[][2] = {{"threads", "1"},
        {"autoinstall_known_extensions", "false"},
        {"autoload_known_extensions", "false"}};
    dx_state *d = (dx_state *)t->state;
    void *config = NULL;
    char *message = NULL;
    bool good = !d->call.create_config(&config);
    for (size_t i = 0; good && i < sizeof settings / sizeof *settings; i++)
        good = !d->call.set_config(config, settings[i][0], settings[i][1]);
    good = good && !d->call.open_ext(NULL, &d->database, config, &message) &&
           !d->call.connect(d->database, &d->connection);
    bags_code code = good ? BAGS_OK : dx_fail(t, message);
    d->call.free(message);
    d->call.destroy_config(&config);
    return code;
}

/* ---- the table function ---- */

static void *dx_wrap_list(const dx_library *call, void *inner) {
    void *list = call->create_list_type(inner);
    call->destroy_logical_type(&inner);
    return list;
}

static void *dx_type(const dx_library *call, const bags_target_field *field, bool csv) {
    int number = field->form == BAGS_FORM_TEXT    ? DX_VARCHAR
                 : field->form == BAGS_FORM_BLOB  ? DX_BLOB
                 : field->form == BAGS_FORM_ARRAY ? dx_dtype(field->dtype)
                 : field->may_exceed_int64        ? DX_UBIGINT
                                                  : DX_BIGINT;
    void *type = call->create_logical_type(number);
    if (dx_is_image(field)) {
        const char *names[2] = {"bytes", "path"};
        void *types[2] = {type, call->create_logical_type(DX_VARCHAR)};
        type = call->create_struct_type(types, names, 2);
        call->destroy_logical_type(&types[0]);
        call->destroy_logical_type(&types[1]);
    }
    for (size_t i = 0; i < field->dims + (field->sequence && !csv); i++)
        type = dx_wrap_list(call, type);
    return type;
}

/* These find the target, the extra information of the table function, and have the same
 * values for every export. */
static void *(*dx_bind_target)(void *info);
static void *(*dx_fill_target)(void *info);

static void dx_bind(void *info) {
    bags_target *t = (bags_target *)dx_bind_target(info);
    const dx_library *call = &((dx_state *)t->state)->call;
    for (size_t i = 0; i < t->count; i++) {
        void *type = dx_type(call, &t->fields[i], dx_is_csv(t));
        call->bind_add_result_column(info, t->fields[i].name, type);
        call->destroy_logical_type(&type);
    }
}

static void dx_init(void *info) { (void)info; }

static void dx_put_null(const dx_library *call, void *vector, uint64_t index) {
    call->vector_ensure_validity_writable(vector);
    call->validity_set_row_invalid(call->vector_get_validity(vector), index);
}

/* Start a list of `count` elements: *child, and where they begin in it. */
static bool dx_put_list(const dx_library *call, void *vector, uint64_t index,
    uint64_t count, void **child, uint64_t *offset) {
    *offset = call->list_vector_get_size(vector);
    if (call->list_vector_reserve(vector, *offset + count) ||
        call->list_vector_set_size(vector, *offset + count))
        return false;
    dx_list *lists = (dx_list *)call->vector_get_data(vector);
    lists[index].offset = *offset;
    lists[index].length = count;
    *child = call->list_vector_get_child(vector);
    return true;
}

/* Elements of an array, from element `at`. */
static void dx_put_elements(const dx_library *call, void *vector, uint64_t index,
    const bags_value *array, size_t at, size_t count) {
    size_t size = bags_dtype_size(array->dtype);
    const char *from = (const char *)array->data + at * size;
    char *to = (char *)call->vector_get_data(vector);
    if (count && array->dtype != BAGS_DTYPE_FLOAT16) {
        memcpy(to + index * size, from, count * size);
        for (size_t i = 0; i < count && array->dtype == BAGS_DTYPE_BOOL; i++)
            to[index + i] = from[i] != 0;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + i * size, sizeof half);
        float single = (float)format_real(half, 2);
        memcpy(to + (index + i) * 4, &single, 4);
    }
}

/* An array: a list per dimension. */
static bool dx_put_array(const dx_library *call, void *vector, uint64_t index,
    const bags_value *array, size_t dim, size_t at) {
    if (dim == array->dims) {
        dx_put_elements(call, vector, index, array, at, 1);
        return true;
    }
    void *child;
    uint64_t offset, count = array->shape[dim];
    if (!dx_put_list(call, vector, index, count, &child, &offset))
        return false;
    if (dim + 1 == array->dims) {
        dx_put_elements(call, child, offset, array, at, (size_t)count);
        return true;
    }
    size_t step = 1;
    for (size_t i = dim + 1; i < array->dims; i++)
        step *= (size_t)array->shape[i];
    for (size_t i = 0; i < count; i++)
        if (!dx_put_array(call, child, offset + i, array, dim + 1, at + i * step))
            return false;
    return true;
}

static bool dx_put_item(const dx_library *call, void *vector, uint64_t index,
    const bags_target_field *field, const bags_value *value) {
    if (field->form == BAGS_FORM_ARRAY)
        return dx_put_array(call, vector, index, value, 0, 0);
    if (field->form == BAGS_FORM_INTEGER) {
        uint64_t bits =
            value->kind == BAGS_KIND_INT ? (uint64_t)value->sint : value->uint;
        ((uint64_t *)call->vector_get_data(vector))[index] = bits;
        return true;
    }
    if (dx_is_image(field)) {
        dx_put_null(call, call->struct_vector_get_child(vector, 1), index);
        vector = call->struct_vector_get_child(vector, 0);
    }
    call->vector_assign_string_element_len(
        vector, index, value->size ? (const char *)value->data : "", value->size);
    return true;
}

/* Put the datapoint that was read into row `index` of a chunk. */
static bags_code dx_put_row(bags_target *t, void *chunk, uint64_t index) {
    const dx_library *call = &((dx_state *)t->state)->call;
    bool good = true;
    for (size_t i = 0; i < t->count && good; i++) {
        const bags_target_field *field = &t->fields[i];
        void *vector = call->data_chunk_get_vector(chunk, i), *child;
        uint64_t offset;
        for (size_t j = 0; j < field->length && field->form == BAGS_FORM_TEXT; j++)
            if (!bags_utf8_valid(field->values[j].data, field->values[j].size, NULL))
                return bags_target_fail_value(t, field, "text that is not UTF-8");
        if (!field->sequence) {
            good = dx_put_item(call, vector, index, field, field->values);
            continue;
        }
        if (dx_is_csv(t)) {
            if (field->length)
                good = dx_put_item(call, vector, index, field, field->values);
            else
                dx_put_null(call, vector, index);
            continue;
        }
        good = dx_put_list(call, vector, index, field->length, &child, &offset);
        for (size_t j = 0; j < field->length && good; j++)
            good = dx_put_item(call, child, offset + j, field, &field->values[j]);
    }
    return good ? BAGS_OK : bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
}

static uint64_t dx_row_bytes(const bags_target *t) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->count; i++)
        for (size_t j = 0; j < t->fields[i].length; j++)
            bytes += t->fields[i].values[j].size + 8;
    return bytes;
}

static void dx_fill(void *info, void *chunk) {
    bags_target *t = (bags_target *)dx_fill_target(info);
    dx_state *d = (dx_state *)t->state;
    uint64_t rows = 0, most = d->call.vector_size(), bytes = 0;
    bool more = true;
    while (rows < most && bytes < DX_BYTES && !d->ended && !d->failed) {
        if (!d->begun) {
            d->failed = bags_target_next(t, &more);
            d->ended = !more;
        }
        d->begun = false;
        if (d->failed || d->ended)
            break;
        d->failed = dx_put_row(t, chunk, rows++);
        bytes += dx_row_bytes(t);
    }
    if (d->failed)
        d->call.function_set_error(info, "the dataset cannot be read");
    d->call.data_chunk_set_size(chunk, d->failed ? 0 : rows);
}

/* ---- the export ---- */

static bags_code dx_query(bags_target *t, const char *query) {
    dx_state *d = (dx_state *)t->state;
    dx_result result;
    memset(&result, 0, sizeof result);
    bool bad = d->call.query(d->connection, query, &result) != 0;
    bags_code code = d->failed ? d->failed
                     : bad     ? dx_fail(t, d->call.result_error(&result))
                               : BAGS_OK;
    d->call.destroy_result(&result);
    return code;
}

static bags_code dx_open(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(dx_prepare_field(t, &t->fields[i]));
    FORMAT_TRY(dx_load(t));
    dx_bind_target = d->call.bind_get_extra_info;
    dx_fill_target = d->call.function_get_extra_info;
    FORMAT_TRY(dx_connect(t));
    void *function = d->call.create_table_function();
    d->call.table_function_set_name(function, "bags_rows");
    d->call.table_function_set_extra_info(function, t, NULL);
    d->call.table_function_set_bind(function, dx_bind);
    d->call.table_function_set_init(function, dx_init);
    d->call.table_function_set_function(function, dx_fill);
    bool bad = d->call.register_table_function(d->connection, function) != 0;
    d->call.destroy_table_function(&function);
    return bad ? dx_fail(t, "a table function is refused") : BAGS_OK;
}

static bags_code dx_shard(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    char *path = bags_target_shard_path(t);
    const char *partial = NULL;
    bool more = false;
    FORMAT_TRY(path ? bags_target_made_open(t, path, &partial) : BAGS_ERROR_MEMORY);
    d->failed = BAGS_OK;
    FORMAT_TRY(bags_target_next(t, &more));
    d->begun = more;
    d->ended = !more;
    /* A row group is in memory until it is complete. */
    uint64_t bytes = more ? dx_row_bytes(t) + 1 : 1, group = DX_GROUP / bytes;
    group = group < 2048 ? 2048 : group > 122880 ? 122880 : group;
    char *quoted = (char *)bags_target_alloc(t, 2 * strlen(partial) + 1, 1),
         *to = quoted;
    if (!quoted)
        return BAGS_ERROR_MEMORY;
    for (const char *c = partial; *c; c++) {
        *to++ = *c;
        if (*c == '\'')
            *to++ = *c;
    }
    char *query =
        dx_is_csv(t)
            ? bags_target_format(t,
                  "COPY (SELECT * FROM bags_rows()) TO '%s' (FORMAT csv, HEADER true)",
                  quoted)
            : bags_target_format(t,
                  "COPY (SELECT * FROM bags_rows()) TO '%s' (FORMAT parquet, "
                  "ROW_GROUP_SIZE %" PRIu64 ")",
                  quoted, group);
    FORMAT_TRY(query ? dx_query(t, query) : BAGS_ERROR_MEMORY);
    return bags_target_made_close(t);
}

static void dx_close(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    if (d->connection)
        d->call.disconnect(&d->connection);
    if (d->database)
        d->call.close(&d->database);
}

const bags_exporter bags_export_csv = {
    "csv", ".csv", false, false, sizeof(dx_state), dx_open, dx_shard, NULL, dx_close};
const bags_exporter bags_export_parquet = {"parquet", ".parquet", false, false,
    sizeof(dx_state), dx_open, dx_shard, NULL, dx_close};
