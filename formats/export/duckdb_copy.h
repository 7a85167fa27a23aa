/*
 * duckdb_copy.h - COPY of DuckDB: a connection with a table function, values as DuckDB's
 * vectors, and queries. For the exporters of Parquet. Private.
 */
#ifndef BAGS_EXPORT_DUCKDB_COPY_H
#define BAGS_EXPORT_DUCKDB_COPY_H

#include "export.h"
#include "import.h"

#include "duckdb.h"
#include "text.h"
#include "try.h"
#include "values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DX_BYTES ((uint64_t)8 << 20)  /* of values in a chunk */
#define DX_GROUP ((uint64_t)64 << 20) /* of values in a row group */

typedef struct dx_session {
    duck_library call;
    void *database, *connection;
    bags_export_bytes query;
    bags_code failed; /* in the table function; the error is in target->err */
} dx_session;

/* These find the target, the extra information of the table function, and have the same
 * values for every export. */
static void *(*dx_bind_target)(void *info);
static void *(*dx_fill_target)(void *info);

/* The number of DuckDB's type for a dtype; 0: none. */
static inline int dx_dtype(bags_dtype dtype) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_BOOL,
        BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32, BAGS_DTYPE_INT64,
        BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32, BAGS_DTYPE_UINT64,
        BAGS_DTYPE_FLOAT32, BAGS_DTYPE_FLOAT64};
    int type = dtype == BAGS_DTYPE_FLOAT16 ? DUCK_FLOAT : 1;
    while (type < 12 && dtype != BAGS_DTYPE_FLOAT16 && dtypes[type] != dtype)
        type++;
    return type == 12 ? 0 : type;
}

static inline bool dx_is_image(const bags_target_field *field) {
    return !strcmp(field->ending, "jpg") || !strcmp(field->ending, "png") ||
           !strcmp(field->ending, "webp");
}

/* True if DuckDB cannot tell two names of columns apart. */
static inline bool dx_same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        int left = *a >= 'A' && *a <= 'Z' ? *a + 32 : *a;
        int right = *b >= 'A' && *b <= 'Z' ? *b + 32 : *b;
        if (left != right)
            return false;
    }
    return *a == *b;
}

static inline bags_code dx_check_name(bags_target *t, const bags_target_field *field) {
    for (const bags_target_field *other = t->fields; other < field; other++)
        if (dx_same_name(other->name, field->name))
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "differs only in case from the field \"%.100s\": rename it with "
                "--fields",
                other->name);
    return BAGS_OK;
}

/* ---- queries ---- */

/* DuckDB's message, as one line. */
static inline bags_code dx_fail(bags_target *t, const char *why) {
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

static inline bags_code dx_query(
    bags_target *t, dx_session *session, const char *query) {
    duck_result result;
    if (!query)
        return BAGS_ERROR_MEMORY;
    memset(&result, 0, sizeof result);
    bool bad = session->call.query(session->connection, query, &result) != 0;
    bags_code code = session->failed ? session->failed
                     : bad           ? dx_fail(t, session->call.result_error(&result))
                                     : BAGS_OK;
    session->call.destroy_result(&result);
    return code;
}

/* Append text for SQL, in quotes: each `quote` in it is doubled. */
static inline bags_code dx_put_quoted(
    bags_target *t, bags_export_bytes *to, const char *text, char quote) {
    FORMAT_TRY(bags_target_put(t, to, &quote, 1));
    for (const char *c = text; *c; c++) {
        FORMAT_TRY(bags_target_put(t, to, c, 1));
        if (*c == quote)
            FORMAT_TRY(bags_target_put(t, to, c, 1));
    }
    return bags_target_put(t, to, &quote, 1);
}

/* Write the rows of a query to a file of the export. `how` has the options of COPY. `path`
 * and `how` are NULL if out of memory. */
static inline bags_code dx_copy(bags_target *t, dx_session *session, const char *from,
    const char *path, const char *how) {
    bags_export_bytes *query = &session->query;
    const char *partial = NULL;
    if (!path || !how)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_target_made_open(t, path, &partial));
    query->size = 0;
    FORMAT_TRY(bags_target_put_text(t, query, "COPY ("));
    FORMAT_TRY(bags_target_put_text(t, query, from));
    FORMAT_TRY(bags_target_put_text(t, query, ") TO "));
    FORMAT_TRY(dx_put_quoted(t, query, partial, '\''));
    FORMAT_TRY(bags_target_put_text(t, query, " ("));
    FORMAT_TRY(bags_target_put_text(t, query, how));
    FORMAT_TRY(bags_target_put_text(t, query, ")"));
    FORMAT_TRY(dx_query(t, session, (const char *)query->buffer.data));
    return bags_target_made_close(t);
}

static inline void dx_ignore(void *info) { (void)info; }

/* Load the library, connect, and register the table function bags_rows. Its extra
 * information is the target. `users`: see duck_load. */
static inline bags_code dx_connect(bags_target *t, dx_session *session,
    const char *users, duck_callback bind, duck_function fill) {
    const duck_library *call = &session->call;
    char *message = NULL;
    FORMAT_TRY(duck_load(
        &session->call, bags_import_symbol, bags_path_tail(t->path), users, t->err));
    bool good =
        duck_connect(call, NULL, &session->database, &session->connection, &message);
    bags_code code = good ? BAGS_OK : dx_fail(t, message);
    call->free(message);
    FORMAT_TRY(code);
    dx_bind_target = call->bind_get_extra_info;
    dx_fill_target = call->function_get_extra_info;
    void *function = call->create_table_function();
    call->table_function_set_name(function, "bags_rows");
    call->table_function_set_extra_info(function, t, NULL);
    call->table_function_set_bind(function, bind);
    call->table_function_set_init(function, dx_ignore);
    call->table_function_set_function(function, fill);
    bool bad = call->register_table_function(session->connection, function) != 0;
    call->destroy_table_function(&function);
    return bad ? dx_fail(t, "a table function is refused") : BAGS_OK;
}

/* The number of rows in a row group, if a row has `bytes`. A row group is in memory until it
 * is complete. */
static inline uint64_t dx_group(uint64_t bytes) {
    uint64_t group = DX_GROUP / (bytes + 1);
    return group < 2048 ? 2048 : group > 122880 ? 122880 : group;
}

/* ---- values ---- */

/* The type of a field's items, in this number of lists more than their dimensions. */
static inline void *dx_type(
    const duck_library *call, const bags_target_field *field, size_t lists) {
    int number = field->form == BAGS_FORM_TEXT    ? DUCK_VARCHAR
                 : field->form == BAGS_FORM_BLOB  ? DUCK_BLOB
                 : field->form == BAGS_FORM_ARRAY ? dx_dtype(field->dtype)
                 : field->may_exceed_int64        ? DUCK_UBIGINT
                                                  : DUCK_BIGINT;
    void *type = call->create_logical_type(number);
    if (dx_is_image(field)) {
        const char *names[2] = {"bytes", "path"};
        void *types[2] = {type, call->create_logical_type(DUCK_VARCHAR)};
        type = call->create_struct_type(types, names, 2);
        call->destroy_logical_type(&types[0]);
        call->destroy_logical_type(&types[1]);
    }
    for (size_t i = 0; i < field->dims + lists; i++) {
        void *inner = type;
        type = call->create_list_type(inner);
        call->destroy_logical_type(&inner);
    }
    return type;
}

static inline void dx_put_null(const duck_library *call, void *vector, uint64_t index) {
    call->vector_ensure_validity_writable(vector);
    call->validity_set_row_invalid(call->vector_get_validity(vector), index);
}

/* Start a list of `count` elements: *child, and where they begin in it. */
static inline bool dx_put_list(const duck_library *call, void *vector, uint64_t index,
    uint64_t count, void **child, uint64_t *offset) {
    *offset = call->list_vector_get_size(vector);
    if (call->list_vector_reserve(vector, *offset + count) ||
        call->list_vector_set_size(vector, *offset + count))
        return false;
    duck_list *lists = (duck_list *)call->vector_get_data(vector);
    lists[index].offset = *offset;
    lists[index].length = count;
    *child = call->list_vector_get_child(vector);
    return true;
}

/* Elements of an array, from element `at`. */
static inline void dx_put_elements(const duck_library *call, void *vector,
    uint64_t index, const bags_value *array, size_t at, size_t count) {
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
static inline bool dx_put_array(const duck_library *call, void *vector, uint64_t index,
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

static inline bool dx_put_item(const duck_library *call, void *vector, uint64_t index,
    const bags_target_field *field, const bags_value *value) {
    if (field->form == BAGS_FORM_ARRAY)
        return dx_put_array(call, vector, index, value, 0, 0);
    if (field->form == BAGS_FORM_INTEGER) {
        ((uint64_t *)call->vector_get_data(vector))[index] = bags_target_bits(value, 0);
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

#endif /* BAGS_EXPORT_DUCKDB_COPY_H */
