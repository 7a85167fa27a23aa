/*
 * duckdb.c - imports Parquet files and the results of SQL queries, using DuckDB's
 * library (1.0 or later). libduckdb.so is loaded at run time from the loader's usual
 * path.
 *
 *     parquet  a file, directory or pattern
 *     sql      a query, or a .sql file with a query, on anything DuckDB can read
 *
 * Each column becomes a field, or for a struct, each of its members: "column.member". A
 * datapoint is a row.
 *
 *     integers           i64, u64
 *     floats, Booleans   array(DTYPE)
 *     dates and times    i64, in the column's unit since 1970 or midnight; the field's
 *                        name ends in the unit: "day_days", "time_us"; time zones are
 *                        left out
 *     text               utf8; so are decimals, huge integers, UUIDs, enums,
 *                        intervals and bits
 *     blobs              jpeg, png or webp if all values begin like such a file, else bytes
 *     {bytes, path}      the bytes: images and audio of Hugging Face's datasets; NULL
 *                        bytes with a path (a file elsewhere) are an error
 *     lists              sequences; of structs, one per member; a list in a list is
 *                        array(DTYPE,-1). NULL is an empty sequence
 *     fixed-size lists   array(DTYPE,N)
 *
 * A column with NULLs becomes a sequence of 0 or 1. To find these columns, open reads
 * the source once. Rejected: NULL in a list, maps, unions, deeper lists, and Parquet
 * files whose columns differ.
 */
#include "duckdb.h"
#include "sql.h"
#include "try.h"

#include <inttypes.h>
#include <stdio.h>

#define DK_DEPTH 8
#define DK_QUERY ((uint64_t)16 << 20) /* maximum bytes of a .sql file */

/* ---- the source ---- */

typedef struct dk_column {
    const char *name, *expression; /* `expression` is SQL */
    const char *file; /* the first path next to NULL bytes, as text, or NULL */
    bags_dtype dtype; /* dtype of numbers; otherwise text or a blob */
    bool text;
    bool list;     /* a list of values */
    bool inner;    /* values are lists: arrays of one dimension */
    uint64_t size; /* array size of the values; 0: not arrays */
    bool optional; /* some values are NULL */
} dk_column;

typedef struct dk_state {
    duck_library call;
    const char *from;     /* SQL text */
    const char *metadata; /* the same for Parquet files, or NULL */
    bags_buffer *query;
    size_t query_size;
    bags_code failed; /* result of building the query */
    void *database, *connection, *statement, *pending;
    duck_result result;
    bool running;
    void *chunk;
    uint64_t chunk_start, chunk_size;
    dk_column *columns;
    size_t count;
} dk_state;

/* Fail with DuckDB's message as one line, without its advice and its copy of the query.
 * For CSV, the file name follows the advice. */
static bags_code dk_fail(bags_source *s, const char *why) {
    char line[500] = "DuckDB failed";
    const char *file = why ? strstr(why, "\n  file = ") : NULL;
    bool ended = false; /* after a line; another may follow */
    for (size_t used = 0; why && *why && used < 400; why++) {
        if (!strncmp(why, "\nPo", 3) || !strncmp(why, "\nLINE ", 6))
            break;
        if (*why != '\n') {
            if (ended && used > 0)
                line[used++] = ' ';
            line[used++] = *why;
            line[used] = 0;
        }
        ended = *why == '\n';
    }
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "%s%s%.*s%s", line, file ? " (" : "",
        file ? (int)strcspn(file + 3, "\n") : 0, file ? file + 3 : "", file ? ")" : "");
}

/* ---- queries ---- */

/* Append to the query, unless this failed before. NULL: out of memory. */
static void dk_add(bags_source *s, const char *text) {
    dk_state *d = (dk_state *)s->state;
    size_t size = text ? strlen(text) : 0;
    if (!d->failed)
        d->failed = text ? bags_source_reserve(s, &d->query, d->query_size + size)
                         : BAGS_ERROR_MEMORY;
    if (d->failed)
        return;
    memcpy(d->query->data + d->query_size, text, size + 1);
    d->query_size += size;
}

static void dk_stop(dk_state *d) {
    if (d->chunk)
        d->call.destroy_data_chunk(&d->chunk);
    if (d->running)
        d->call.destroy_result(&d->result);
    if (d->pending)
        d->call.destroy_pending(&d->pending);
    if (d->statement)
        d->call.destroy_prepare(&d->statement);
    d->running = false;
}

/* Complete the query with its source, and start it. Its result is then read in
 * chunks. */
static bags_code dk_run(bags_source *s, const char *from) {
    dk_state *d = (dk_state *)s->state;
    dk_add(s, " FROM ");
    dk_add(s, from);
    d->query_size = 0;
    if (d->failed)
        return d->failed;
    dk_stop(d);
    memset(&d->result, 0, sizeof d->result);
    if (d->call.prepare(d->connection, (const char *)d->query->data, &d->statement))
        return dk_fail(s, d->call.prepare_error(d->statement));
    if (d->call.pending_prepared_streaming(d->statement, &d->pending))
        return dk_fail(s, d->call.pending_error(d->pending));
    d->running = true;
    if (d->call.execute_pending(d->pending, &d->result))
        return dk_fail(s, d->call.result_error(&d->result));
    return BAGS_OK;
}

/* Get the next chunk of the result; size 0 at its end. */
static bags_code dk_next(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    if (d->chunk)
        d->call.destroy_data_chunk(&d->chunk);
    d->chunk_start += d->chunk_size;
    d->chunk = d->call.fetch_chunk(d->result);
    d->chunk_size = d->chunk ? d->call.data_chunk_get_size(d->chunk) : 0;
    const char *why = d->call.result_error(&d->result);
    return !d->chunk && why && *why ? dk_fail(s, why) : BAGS_OK;
}

/* ---- types ---- */

/* How a type is converted: to numbers (dates or times if there is a unit), or to text
 * by a cast. */
typedef struct dk_kind {
    bags_dtype dtype;
    const char *unit;
    bool text;
} dk_kind;

static dk_kind dk_kind_of(int type) {
    static const dk_kind kinds[] = {
        {BAGS_DTYPE_NONE, NULL, false}, {BAGS_DTYPE_BOOL, NULL, false},
        {BAGS_DTYPE_INT8, NULL, false}, {BAGS_DTYPE_INT16, NULL, false},
        {BAGS_DTYPE_INT32, NULL, false}, {BAGS_DTYPE_INT64, NULL, false},
        {BAGS_DTYPE_UINT8, NULL, false}, {BAGS_DTYPE_UINT16, NULL, false},
        {BAGS_DTYPE_UINT32, NULL, false}, {BAGS_DTYPE_UINT64, NULL, false},
        {BAGS_DTYPE_FLOAT32, NULL, false}, {BAGS_DTYPE_FLOAT64, NULL, false},
        {BAGS_DTYPE_INT64, "us", false}, /* TIMESTAMP */
        {BAGS_DTYPE_INT32, "D", false},  /* DATE */
        {BAGS_DTYPE_INT64, "us", false}, /* TIME */
        {BAGS_DTYPE_NONE, NULL, true},   /* INTERVAL */
        {BAGS_DTYPE_NONE, NULL, true},   /* HUGEINT */
        {BAGS_DTYPE_NONE, NULL, true},   /* VARCHAR */
        {BAGS_DTYPE_NONE, NULL, false},  /* BLOB */
        {BAGS_DTYPE_NONE, NULL, true},   /* DECIMAL */
        {BAGS_DTYPE_INT64, "s", false},  /* TIMESTAMP_S */
        {BAGS_DTYPE_INT64, "ms", false}, /* TIMESTAMP_MS */
        {BAGS_DTYPE_INT64, "ns", false}, /* TIMESTAMP_NS */
        {BAGS_DTYPE_NONE, NULL, true},   /* ENUM */
        {BAGS_DTYPE_NONE, NULL, false},  /* LIST */
        {BAGS_DTYPE_NONE, NULL, false},  /* STRUCT */
        {BAGS_DTYPE_NONE, NULL, false},  /* MAP */
        {BAGS_DTYPE_NONE, NULL, true},   /* UUID */
        {BAGS_DTYPE_NONE, NULL, false},  /* UNION */
        {BAGS_DTYPE_NONE, NULL, true},   /* BIT */
        {BAGS_DTYPE_NONE, NULL, true},   /* TIME_TZ */
        {BAGS_DTYPE_INT64, "us", false}, /* TIMESTAMP_TZ */
        {BAGS_DTYPE_NONE, NULL, true},   /* UHUGEINT */
    };
    bool known = type >= 0 && (size_t)type < sizeof kinds / sizeof *kinds;
    return kinds[known ? type : 0];
}

static bags_code dk_columns(bags_source *s, const char *name, const char *expression,
    const char *file, void *type, bool list, int depth);

/* SQL for the first path next to NULL bytes, as text, in a {bytes, path} or a list of
 * these. It yields NULL if there is no such path. */
static const char *dk_file(bags_source *s, const char *expression, bool list) {
    return bags_source_format(s,
        "([CAST(struct_extract(x, 'path') AS VARCHAR) FOR x IN %s%s%s IF "
        "struct_extract(x, 'bytes') IS NULL AND struct_extract(x, 'path') IS NOT "
        "NULL])[1]",
        list ? "" : "[", expression, list ? "" : "]");
}

/* Add the columns of a struct or a list of structs. */
static bags_code dk_members(bags_source *s, const char *name, const char *expression,
    void *type, bool list, int depth) {
    const duck_library *call = &((dk_state *)s->state)->call;
    uint64_t count = call->struct_type_child_count(type);
    bags_code code = BAGS_OK;
    bool is_file = count == 2; /* {bytes, path} */
    for (uint64_t i = 0; i < count && is_file; i++) {
        char *member = call->struct_type_child_name(type, i);
        is_file = member && (!strcmp(member, "bytes") || !strcmp(member, "path"));
        call->free(member);
    }
    const char *file = is_file ? dk_file(s, expression, list) : NULL;
    if (is_file && !file)
        return BAGS_ERROR_MEMORY;
    for (uint64_t i = 0; i < count && !code; i++) {
        char *member = call->struct_type_child_name(type, i);
        void *inner = call->struct_type_child_type(type, i);
        const char *quoted = member ? bags_import_quote(s, member, '\'') : NULL;
        const char *value =
            !quoted ? NULL
            : list
                ? bags_source_format(
                      s, "[struct_extract(x, %s) FOR x IN %s]", quoted, expression)
                : bags_source_format(s, "struct_extract(%s, %s)", expression, quoted);
        const char *full = !member   ? NULL
                           : is_file ? name
                                     : bags_source_format(s, "%s.%s", name, member);
        if (!value || !full)
            code = BAGS_ERROR_MEMORY;
        else if (!is_file || !strcmp(member, "bytes"))
            code = dk_columns(s, full, value, file, inner, list, depth + 1);
        else
            bags_source_leave_out(s, "column", 1, "%s.%s", name, member);
        call->free(member);
        call->destroy_logical_type(&inner);
    }
    return code;
}

/* Add the columns for a value of this type, or for a list of such values. */
static bags_code dk_columns(bags_source *s, const char *name, const char *expression,
    const char *file, void *type, bool list, int depth) {
    dk_state *d = (dk_state *)s->state;
    const duck_library *call = &d->call;
    dk_column column;
    memset(&column, 0, sizeof column);
    column.name = name;
    column.expression = expression;
    column.file = file;
    column.list = list;
    int id = call->get_type_id(type);
    dk_kind kind = dk_kind_of(id);
    if (id == DUCK_STRUCT && depth < DK_DEPTH)
        return dk_members(s, name, expression, type, list, depth);
    if (id == DUCK_LIST && !list) {
        void *inner = call->list_type_child_type(type);
        bags_code code = dk_columns(s, name, expression, NULL, inner, true, depth + 1);
        call->destroy_logical_type(&inner);
        return code;
    }
    if (id == DUCK_LIST || id == DUCK_ARRAY) {
        column.inner = id == DUCK_LIST;
        if (!column.inner)
            column.size = call->array_type_array_size(type);
        void *inner = column.inner ? call->list_type_child_type(type)
                                   : call->array_type_child_type(type);
        kind = dk_kind_of(call->get_type_id(inner));
        call->destroy_logical_type(&inner);
        if (!kind.dtype || kind.unit)
            kind = dk_kind_of(0);
    }
    if (!kind.dtype && !kind.text && id != DUCK_BLOB)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "column %.200s: its type is not supported; convert it in a query "
            "(--from sql)",
            name);
    column.dtype = kind.dtype;
    column.text = kind.text;
    if (kind.text && id != DUCK_VARCHAR)
        column.expression = bags_source_format(
            s, "CAST(%s AS VARCHAR%s)", expression, list ? "[]" : "");
    if (kind.unit)
        column.name = bags_source_unit(s, name, kind.unit);
    if (id == DUCK_TIMESTAMP_TZ)
        bags_source_leave_out(s, "time zone", 1, "%s: UTC", name);
    if (!column.name || !column.expression)
        return BAGS_ERROR_MEMORY;
    d->columns = (dk_column *)bags_source_grow(s, d->columns, d->count, sizeof column);
    if (!d->columns)
        return BAGS_ERROR_MEMORY;
    d->columns[d->count++] = column;
    return BAGS_OK;
}

/* `image`: the type of all values, or NULL. */
static const char *dk_type(bags_source *s, const dk_column *c, const char *image) {
    const char *type = c->text ? "utf8" : image ? image : "bytes";
    bool sequence = c->list || c->optional;
    uint64_t size = c->inner ? UINT64_MAX : c->size;
    return c->dtype
               ? bags_source_number_type(s, c->dtype, size ? 1 : 0, &size, sequence)
               : bags_source_format(s, "%s%s", type, sequence ? "[]" : "");
}

/* ---- values ---- */

static bool dk_is_null(const dk_state *d, void *vector, uint64_t i) {
    const uint64_t *bits = d->call.vector_get_validity(vector);
    return bits && !(bits[i / 64] >> (i % 64) & 1);
}

/* Get value i of a vector (not NULL); false if a part of it is NULL. */
static bool dk_value(const dk_state *d, const dk_column *c, void *vector, uint64_t i,
    bags_value *value) {
    unsigned char *data = (unsigned char *)d->call.vector_get_data(vector);
    size_t size = bags_dtype_size(c->dtype);
    if (c->inner || c->size) {
        const duck_list *part = (const duck_list *)(void *)data + i;
        void *child = c->inner ? d->call.list_vector_get_child(vector)
                               : d->call.array_vector_get_child(vector);
        uint64_t start = c->inner ? part->offset : i * c->size;
        const uint64_t *length = c->inner ? &part->length : &c->size;
        for (uint64_t k = start; k < start + *length; k++)
            if (dk_is_null(d, child, k))
                return false;
        data = (unsigned char *)d->call.vector_get_data(child);
        *value = bags_array(c->dtype, 1, length, data + start * size);
        return true;
    }
    if (!c->dtype) {
        /* A length, then either up to 12 bytes of text, or the first 4 bytes and a
         * pointer to all of it. */
        const unsigned char *text = data + 16 * i;
        uint32_t length;
        memcpy(&length, text, 4);
        const char *from = (const char *)text + 4;
        if (length > 12)
            memcpy(&from, text + 8, sizeof from);
        *value = c->text ? bags_utf8_sized(from, length) : bags_blob(from, length);
        return true;
    }
    data += i * size;
    if (!bags_import_is_integer(c->dtype)) {
        *value = bags_array(c->dtype, 0, NULL, data);
        return true;
    }
    unsigned char bytes[8];
    bags_swap_bytes(bytes, data, size, bags_little_endian() ? 1 : size);
    *value = bags_import_integer(c->dtype, bytes);
    return true;
}

/* Get the values of a column in a row of the chunk. */
static bags_code dk_entry(bags_source *s, size_t field, uint64_t row, uint64_t index) {
    dk_state *d = (dk_state *)s->state;
    const dk_column *c = &d->columns[field];
    void *vector = d->call.data_chunk_get_vector(d->chunk, field);
    uint64_t start = row, count = 1;
    bool null = dk_is_null(d, vector, row), good = true;
    if (null)
        count = 0;
    if (c->list && !null) {
        const duck_list *part =
            (const duck_list *)d->call.vector_get_data(vector) + row;
        start = part->offset;
        count = part->length;
        vector = d->call.list_vector_get_child(vector);
    }
    bags_value *values =
        (bags_value *)bags_source_alloc(s, (size_t)count, sizeof *values);
    if (!values)
        return BAGS_ERROR_MEMORY;
    for (uint64_t i = 0; i < count && good; i++)
        good = (!c->list || !dk_is_null(d, vector, start + i)) &&
               dk_value(d, c, vector, start + i, &values[i]);
    if (!good || (null && !c->list && !c->optional))
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "field \"%.200s\": datapoint %" PRIu64 ": NULL%s", s->fields[field].name,
            index, c->list || !null ? " in a list" : "");
    s->entries[field].values = values;
    s->entries[field].count = (size_t)count;
    return BAGS_OK;
}

/* ---- open ---- */

static bags_code dk_connect(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    char *message = NULL;
    FORMAT_TRY(
        duck_load(&d->call, bags_import_symbol, s->where, "Parquet and SQL", s->err));
    bool good = duck_connect(&d->call, "1GB", &d->database, &d->connection, &message);
    bags_code code = good ? BAGS_OK : dk_fail(s, message);
    d->call.free(message);
    return code;
}

/* The types of images that are recognized. */
#define DK_IMAGES 3
static const char *const dk_images[DK_IMAGES] = {"jpeg", "png", "webp"};

static bool dk_is_blob(const dk_column *c) { return !c->dtype && !c->text; }

/* Query the number of rows and, for each column, the number of values; for files, the
 * number of paths without bytes, and one such path; for blobs and each type of images,
 * whether all begin like such a file. */
static bags_code dk_ask(bags_source *s) {
    static const char *const bounds[DK_IMAGES][2] = {{"\\xFF\\xD8\\xFF", "\\xFF\\xD9"},
        {"\\x89PNG\\x0D\\x0A\\x1A\\x0A", "\\x89PNG\\x0D\\x0A\\x1A\\x0B"},
        {"RIFF", "RIFG"}};
    const dk_state *d = (const dk_state *)s->state;
    dk_add(s, "SELECT count(*)");
    for (size_t i = 0; i < d->count; i++) {
        const dk_column *c = &d->columns[i];
        const char *x = c->list ? "x" : c->expression;
        dk_add(s, bags_source_format(s, ", count(%s)", c->expression));
        if (c->file)
            dk_add(s, bags_source_format(s, ", count(%s), min(%s)", c->file, c->file));
        for (int k = 0; dk_is_blob(c) && k < DK_IMAGES; k++) {
            const char *test =
                bags_source_format(s, "%s >= '%s'::BLOB AND %s < '%s'::BLOB", x,
                    bounds[k][0], x, bounds[k][1]);
            if (test && k == 2) /* WebP: "WEBP" at byte 8 */
                test = bags_source_format(
                    s, "%s AND array_slice(%s, 9, 12) = 'WEBP'::BLOB", test, x);
            if (test && c->list)
                test = bags_source_format(s,
                    "list_aggregate([%s FOR x IN %s], 'bool_and')", test,
                    c->expression);
            dk_add(s, test ? bags_source_format(s, ", bool_and(%s)", test) : NULL);
        }
    }
    return dk_run(s, d->from);
}

/* Find the number of rows, and which columns have NULLs or only images. */
static bags_code dk_count(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    uint64_t at = 0;
    dk_column number, truth, text;
    bags_value value, path;
    memset(&number, 0, sizeof number);
    truth = text = number;
    number.dtype = BAGS_DTYPE_INT64;
    truth.dtype = BAGS_DTYPE_BOOL;
    text.text = true;
    FORMAT_TRY(dk_ask(s));
    FORMAT_TRY(dk_next(s));
    if (d->chunk_size != 1)
        return dk_fail(s, "no result of count(*)");
    dk_value(d, &number, d->call.data_chunk_get_vector(d->chunk, at++), 0, &value);
    s->length = value.uint;
    for (size_t i = 0; i < d->count; i++) {
        dk_column *c = &d->columns[i];
        const char *image = NULL;
        dk_value(d, &number, d->call.data_chunk_get_vector(d->chunk, at++), 0, &value);
        c->optional = !c->list && value.uint != s->length;
        if (c->file) {
            dk_value(
                d, &number, d->call.data_chunk_get_vector(d->chunk, at++), 0, &value);
            void *vector = d->call.data_chunk_get_vector(d->chunk, at++);
            if (value.uint && dk_value(d, &text, vector, 0, &path))
                return bags_source_fail(s, BAGS_ERROR_VALUE,
                    "column %.200s: its bytes are NULL, and its path is \"%.*s\": a "
                    "file "
                    "elsewhere (datapoints: %" PRIu64 "); " BAGS_IMPORT_EMBED,
                    c->name, (int)(path.size < 200 ? path.size : 200),
                    (const char *)path.data, value.uint);
        }
        for (int k = 0; dk_is_blob(c) && k < DK_IMAGES; k++) {
            void *vector = d->call.data_chunk_get_vector(d->chunk, at++);
            dk_value(d, &truth, vector, 0, &value);
            if (!dk_is_null(d, vector, 0) && *(const unsigned char *)value.data)
                image = dk_images[k];
        }
        bags_source_field(s, c->name, dk_type(s, c, image));
    }
    return BAGS_OK;
}

/* Report the metadata of Parquet files as left out. */
static bags_code dk_metadata(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    dk_column text;
    memset(&text, 0, sizeof text);
    text.text = true;
    /* The value of a key that all files have with one value. */
    dk_add(s, "SELECT CAST(key AS VARCHAR), CASE WHEN min(value) = max(value) AND "
              "count(*) = ");
    dk_add(s, bags_source_format(s, "%llu THEN any_value(value) END",
                  (unsigned long long)s->path_count));
    bags_code code =
        dk_run(s, bags_source_format(s, "%s GROUP BY 1 ORDER BY 1", d->metadata));
    while (!code && !(code = dk_next(s)) && d->chunk_size > 0) {
        void *vector = d->call.data_chunk_get_vector(d->chunk, 0);
        void *values = d->call.data_chunk_get_vector(d->chunk, 1);
        for (uint64_t i = 0; i < d->chunk_size; i++) {
            bags_value key, value;
            dk_value(d, &text, vector, i, &key);
            if (key.size == 9 && !memcmp(key.data, "info.json", 9) &&
                !dk_is_null(d, values, i)) {
                dk_value(d, &text, values, i, &value);
                bags_source_metadata(s, value.data, value.size, "info.json");
                continue;
            }
            bags_source_leave_out(s, "metadata value", 1, "%.*s",
                (int)(key.size < 200 ? key.size : 200), (const char *)key.data);
        }
    }
    d->chunk_start = d->chunk_size = 0;
    return code;
}

/* Express files `start` to `stop` as a DuckDB table function with options. */
static const char *dk_from_files(bags_source *s, const char *function, size_t start,
    size_t stop, const char *options) {
    dk_state *d = (dk_state *)s->state;
    dk_add(s, function);
    for (size_t i = start; i < stop; i++) {
        dk_add(s, i > start ? ", " : "([");
        dk_add(s, bags_import_quote_path(s, s->paths[i]));
    }
    dk_add(s, options);
    const char *from =
        d->failed ? NULL : bags_source_text(s, d->query->data, d->query_size);
    d->query_size = 0;
    return from;
}

/* A directory named a=b must not become a column. */
static const char *dk_from_parquet(bags_source *s, size_t start, size_t stop) {
    return dk_from_files(s, "read_parquet", start, stop, "], hive_partitioning=false)");
}

/* List the columns of a file, one line each: lower-case names and types. All integers
 * count as one type, since DuckDB checks that they fit. */
static bags_code dk_describe(bags_source *s, size_t file, const char **lines) {
    dk_state *d = (dk_state *)s->state;
    const char *from = dk_from_parquet(s, file, file + 1);
    dk_column text;
    bags_value value = bags_utf8("");
    memset(&text, 0, sizeof text);
    text.text = true;
    if (!from)
        return BAGS_ERROR_MEMORY;
    dk_add(s, "SELECT string_agg(x || chr(10), '' ORDER BY x)");
    from = bags_source_format(s,
        "(SELECT lower(column_name) || ' ' || regexp_replace(column_type, "
        "'\\bU?(TINYINT|SMALLINT|BIGINT|INTEGER)\\b', 'INTEGER', 'g') AS x "
        "FROM (DESCRIBE SELECT * FROM %s))",
        from);
    FORMAT_TRY(from ? dk_run(s, from) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(dk_next(s));
    if (d->chunk_size != 1)
        return dk_fail(s, "no result of DESCRIBE");
    void *vector = d->call.data_chunk_get_vector(d->chunk, 0);
    if (!dk_is_null(d, vector, 0))
        dk_value(d, &text, vector, 0, &value);
    *lines = bags_source_text(s, value.data, value.size);
    return *lines ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Check that all files have the same columns. Otherwise, DuckDB would convert values to
 * the types of the first file (1.5 to 2), and skip columns missing from the first
 * file. */
static bags_code dk_same_columns(bags_source *s) {
    const char *first = NULL, *other = NULL, *where = s->where;
    bags_code code = s->path_count > 1 ? dk_describe(s, 0, &first) : BAGS_OK;
    for (size_t i = 1; !code && i < s->path_count; i++) {
        s->where = s->paths[i];
        code = dk_describe(s, i, &other);
        if (code || strcmp(first, other) == 0)
            continue;
        size_t line = 0; /* the first difference */
        for (size_t k = 0; first[k] && first[k] == other[k]; k++)
            if (first[k] == '\n')
                line = k + 1;
        size_t size = strcspn(first + line, "\n"),
               other_size = strcspn(other + line, "\n");
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "other columns than in %.100s (\"%.*s\", \"%.*s\"); a query can unite "
            "them: --from sql \"SELECT * FROM read_parquet('DIR/*.parquet', "
            "union_by_name=true)\"",
            s->paths[0], (int)(other_size < 70 ? other_size : 70), other + line,
            (int)(size < 70 ? size : 70), first + line);
    }
    s->where = where;
    return code;
}

static bool dk_is_parquet(const char *name) {
    return bags_import_ends(name, ".parquet");
}

/* Read from a query, or from a file that contains one. */
static bags_code dk_from_query(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    const char *query = s->path;
    bags_view file;
    if (bags_import_ends(query, ".sql")) {
        FORMAT_TRY(bags_source_load(s, query, DK_QUERY, &file));
        query = (const char *)file.data;
    }
    size_t size = strlen(query);
    while (size > 0 && strchr("; \t\r\n", query[size - 1]))
        size--;
    /* The line break ends a trailing comment. */
    d->from = bags_source_format(s, "(%.*s\n)", (int)size, query);
    s->where = bags_source_format(s, "%.400s", s->path);
    return d->from && s->where ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static void dk_close(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    dk_stop(d);
    duck_close(&d->call, &d->database, &d->connection);
}

static bags_code dk_open(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    FORMAT_TRY(dk_connect(s));
    if (d->metadata) {
        FORMAT_TRY(dk_same_columns(s));
        FORMAT_TRY(dk_metadata(s));
    }
    dk_add(s, "SELECT *");
    FORMAT_TRY(dk_run(s, d->from));
    uint64_t count = d->call.column_count(&d->result);
    for (uint64_t i = 0; i < count; i++) {
        const char *name = d->call.column_name(&d->result, i);
        void *type = d->call.column_logical_type(&d->result, i);
        name = name ? bags_source_text(s, name, strlen(name)) : NULL;
        const char *quoted = name ? bags_import_quote(s, name, '"') : NULL;
        bags_code code = quoted ? dk_columns(s, name, quoted, NULL, type, false, 0)
                                : BAGS_ERROR_MEMORY;
        d->call.destroy_logical_type(&type);
        FORMAT_TRY(code);
    }
    if (d->count == 0)
        return dk_fail(s, "no columns");
    FORMAT_TRY(dk_count(s));
    for (size_t i = 0; i < d->count; i++) {
        dk_add(s, i ? ", " : "SELECT ");
        dk_add(s, d->columns[i].expression);
    }
    d->chunk_start = d->chunk_size = 0;
    return dk_run(s, d->from);
}

static bags_code dk_read(bags_source *s, uint64_t index) {
    dk_state *d = (dk_state *)s->state;
    s->ended = false;
    while (index >= d->chunk_start + d->chunk_size) {
        FORMAT_TRY(dk_next(s));
        s->ended = d->chunk_size == 0;
        if (s->ended)
            return d->chunk_start == s->length
                       ? BAGS_OK
                       : dk_fail(s, "the source changed while it was read");
    }
    for (size_t i = 0; i < s->count; i++)
        FORMAT_TRY(dk_entry(s, i, index - d->chunk_start, index));
    return BAGS_OK;
}

static bags_code parquet_open(bags_source *s) {
    dk_state *d = (dk_state *)s->state;
    FORMAT_TRY(bags_source_files(s, dk_is_parquet));
    d->from = dk_from_parquet(s, 0, s->path_count);
    d->metadata = dk_from_files(s, "parquet_kv_metadata", 0, s->path_count, "])");
    return d->from && d->metadata ? dk_open(s) : BAGS_ERROR_MEMORY;
}

static bags_code sql_open(bags_source *s) {
    bags_code code = dk_from_query(s);
    return code ? code : dk_open(s);
}

static bool parquet_detect(const char *path) {
    return bags_import_starts(path, "PAR1", 4) ||
           (bags_import_kind(path, NULL) != BAGS_PATH_FILE &&
               bags_import_has_files(path, dk_is_parquet));
}

static bool sql_detect(const char *path) {
    return bags_import_ends(path, ".sql") &&
           bags_import_kind(path, NULL) == BAGS_PATH_FILE;
}

const bags_importer bags_import_parquet = {
    "parquet", parquet_detect, sizeof(dk_state), parquet_open, dk_read, dk_close};
const bags_importer bags_import_sql = {
    "sql", sql_detect, sizeof(dk_state), sql_open, dk_read, dk_close};
