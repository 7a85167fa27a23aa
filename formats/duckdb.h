/*
 * duckdb.h - DuckDB's C library (1.0 or later), loaded at run time from the loader's usual
 * path: the functions used, how they are found, and a connection. For the importers and
 * exporters that use it. Private.
 */
#ifndef BAGS_FORMATS_DUCKDB_H
#define BAGS_FORMATS_DUCKDB_H

#include "codecs.h"

#include <string.h>

typedef struct duck_result {
    uint64_t columns, rows, changed;
    void *first;
    char *message;
    void *internal;
} duck_result;

/* A list in a vector. */
typedef struct duck_list {
    uint64_t offset, length;
} duck_list;

/* Numbers of types. */
enum {
    DUCK_BIGINT = 5,
    DUCK_UBIGINT = 9,
    DUCK_FLOAT = 10,
    DUCK_DOUBLE = 11,
    DUCK_VARCHAR = 17,
    DUCK_BLOB = 18,
    DUCK_LIST = 24,
    DUCK_STRUCT = 25,
    DUCK_TIMESTAMP_TZ = 31,
    DUCK_ARRAY = 33
};

typedef void (*duck_callback)(void *info);
typedef void (*duck_function)(void *info, void *chunk);

/* X(result, name, parameters): declares a member for the symbol duckdb_NAME. */
#define DUCK_FUNCTIONS(X)                                                              \
    X(int, create_config, (void **config))                                             \
    X(int, set_config, (void *config, const char *name, const char *value))            \
    X(void, destroy_config, (void **config))                                           \
    X(int, open_ext,                                                                   \
        (const char *path, void **database, void *config, char **message))             \
    X(void, close, (void **database))                                                  \
    X(int, connect, (void *database, void **connection))                               \
    X(void, disconnect, (void **connection))                                           \
    X(int, prepare, (void *connection, const char *query, void **statement))           \
    X(const char *, prepare_error, (void *statement))                                  \
    X(void, destroy_prepare, (void **statement))                                       \
    X(int, pending_prepared_streaming, (void *statement, void **pending))              \
    X(const char *, pending_error, (void *pending))                                    \
    X(int, execute_pending, (void *pending, duck_result *result))                      \
    X(void, destroy_pending, (void **pending))                                         \
    X(void, destroy_result, (duck_result * result))                                    \
    X(const char *, result_error, (duck_result * result))                              \
    X(uint64_t, column_count, (duck_result * result))                                  \
    X(const char *, column_name, (duck_result * result, uint64_t column))              \
    X(void *, column_logical_type, (duck_result * result, uint64_t column))            \
    X(void, destroy_logical_type, (void **type))                                       \
    X(int, get_type_id, (void *type))                                                  \
    X(void *, list_type_child_type, (void *type))                                      \
    X(void *, array_type_child_type, (void *type))                                     \
    X(uint64_t, array_type_array_size, (void *type))                                   \
    X(uint64_t, struct_type_child_count, (void *type))                                 \
    X(char *, struct_type_child_name, (void *type, uint64_t child))                    \
    X(void *, struct_type_child_type, (void *type, uint64_t child))                    \
    X(void *, fetch_chunk, (duck_result result))                                       \
    X(void, destroy_data_chunk, (void **chunk))                                        \
    X(uint64_t, data_chunk_get_size, (void *chunk))                                    \
    X(void *, data_chunk_get_vector, (void *chunk, uint64_t column))                   \
    X(void *, vector_get_data, (void *vector))                                         \
    X(uint64_t *, vector_get_validity, (void *vector))                                 \
    X(void *, list_vector_get_child, (void *vector))                                   \
    X(void *, array_vector_get_child, (void *vector))                                  \
    X(void, free, (void *memory))                                                      \
    X(int, query, (void *connection, const char *query, duck_result *result))          \
    X(void *, create_table_function, (void))                                           \
    X(void, destroy_table_function, (void **function))                                 \
    X(void, table_function_set_name, (void *function, const char *name))               \
    X(void, table_function_set_extra_info,                                             \
        (void *function, void *extra, void (*destroy)(void *)))                        \
    X(void, table_function_set_bind, (void *function, duck_callback bind))             \
    X(void, table_function_set_init, (void *function, duck_callback init))             \
    X(void, table_function_set_function, (void *function, duck_function call))         \
    X(int, register_table_function, (void *connection, void *function))                \
    X(void *, bind_get_extra_info, (void *info))                                       \
    X(void, bind_add_result_column, (void *info, const char *name, void *type))        \
    X(void *, function_get_extra_info, (void *info))                                   \
    X(void, function_set_error, (void *info, const char *error))                       \
    X(void *, create_logical_type, (int type))                                         \
    X(void *, create_list_type, (void *type))                                          \
    X(void *, create_struct_type, (void **types, const char **names, uint64_t count))  \
    X(uint64_t, vector_size, (void))                                                   \
    X(void, data_chunk_set_size, (void *chunk, uint64_t size))                         \
    X(void, vector_ensure_validity_writable, (void *vector))                           \
    X(void, validity_set_row_invalid, (uint64_t * validity, uint64_t row))             \
    X(void, vector_assign_string_element_len,                                          \
        (void *vector, uint64_t index, const char *text, uint64_t size))               \
    X(uint64_t, list_vector_get_size, (void *vector))                                  \
    X(int, list_vector_set_size, (void *vector, uint64_t size))                        \
    X(int, list_vector_reserve, (void *vector, uint64_t capacity))                     \
    X(void *, struct_vector_get_child, (void *vector, uint64_t index))

#define DUCK_MEMBER(result, name, parameters) result(*name) parameters;
typedef struct duck_library {
    DUCK_FUNCTIONS(DUCK_MEMBER)
} duck_library;

/* Find a symbol in the first of these libraries that the loader finds: bags_import_symbol. */
typedef void *(*duck_finder)(
    const char *const *libraries, const char *symbol, bags_error *err);

/* Load the library. If it is missing, the message begins with `where`, and says that
 * `users` need it: "Parquet and SQL". Returns BAGS_OK or BAGS_ERROR_MISSING. */
static inline bags_code duck_load(duck_library *call, duck_finder find,
    const char *where, const char *users, bags_error *err) {
    static const char *const names[] = {
        "libduckdb.so", "libduckdb.so.1", "libduckdb.dylib", NULL};
#define DUCK_LOAD(result, name, parameters)                                            \
    {                                                                                  \
        void *symbol = find(names, "duckdb_" #name, err);                              \
        if (!symbol) {                                                                 \
            bags_prefix(err, BAGS_ERROR_MISSING, "%s: ", where);                       \
            return bags_suffix(err,                                                    \
                "; %s need DuckDB's C library, 1.0 or later: install libduckdb.so "    \
                "(https://duckdb.org/install, C/C++) where the loader finds it, or "   \
                "set LD_LIBRARY_PATH",                                                 \
                users);                                                                \
        }                                                                              \
        memcpy(&call->name, &symbol, sizeof symbol);                                   \
    }
    DUCK_FUNCTIONS(DUCK_LOAD)
#undef DUCK_LOAD
    return BAGS_OK;
}

/* Open a database in memory, and connect to it. One thread keeps the order of rows, and
 * makes the same file again. `memory` limits its memory: "1GB", or NULL. False with a
 * *message, to be freed with call->free (NULL: none). */
static inline bool duck_connect(const duck_library *call, const char *memory,
    void **database, void **connection, char **message) {
    const char *const settings[][2] = {{"threads", "1"},
        {"autoinstall_known_extensions", "false"},
        {"autoload_known_extensions", "false"}, {"memory_limit", memory}};
    void *config = NULL;
    bool good = !call->create_config(&config);
    for (size_t i = 0; good && i < (memory ? 4 : 3); i++)
        good = !call->set_config(config, settings[i][0], settings[i][1]);
    good = good && !call->open_ext(NULL, database, config, message) &&
           !call->connect(*database, connection);
    call->destroy_config(&config);
    return good;
}

static inline void duck_close(
    const duck_library *call, void **database, void **connection) {
    if (*connection)
        call->disconnect(connection);
    if (*database)
        call->close(database);
}

#endif /* BAGS_FORMATS_DUCKDB_H */
