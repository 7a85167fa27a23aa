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
 *     jpeg, png, webp            {bytes, path}        refused
 *     other blobs                BLOB                 refused
 *     sequences                  lists                NULL or a value, if no datapoint has
 *                                                     more than one; refused otherwise
 *
 * Parquet: the metadata of the dataset are the value "info.json" of the footer.
 *
 * Rejected: arrays of complex numbers, or whose type states no dtype; names that differ only
 * in case.
 */
#include "duckdb_copy.h"

typedef struct dx_state {
    dx_session session;
    bool begun;     /* the first datapoint of the shard was read, */
    bool ended;     /* or there is none */
    uint64_t bytes; /* of its values */
    bags_export_bytes how;
} dx_state;

/* ---- fields ---- */

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

static bool dx_is_csv(const bags_target *t) { return t->exporter == &bags_export_csv; }

static bags_code dx_prepare_field(bags_target *t, bags_target_field *field) {
    FORMAT_TRY(dx_check_name(t, field));
    if (field->form == BAGS_FORM_ARRAY && !dx_dtype(field->dtype))
        return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "%s has no type for %s", dx_is_csv(t) ? "CSV" : "Parquet", field->type);
    return dx_is_csv(t) ? dx_prepare_csv(t, field) : BAGS_OK;
}

/* ---- the table function ---- */

static void dx_bind(void *info) {
    bags_target *t = (bags_target *)dx_bind_target(info);
    const duck_library *call = &((dx_state *)t->state)->session.call;
    for (size_t i = 0; i < t->count; i++) {
        void *type =
            dx_type(call, &t->fields[i], t->fields[i].sequence && !dx_is_csv(t));
        call->bind_add_result_column(info, t->fields[i].name, type);
        call->destroy_logical_type(&type);
    }
}

/* Put the datapoint that was read into row `index` of a chunk. */
static bags_code dx_put_row(bags_target *t, void *chunk, uint64_t index) {
    const duck_library *call = &((dx_state *)t->state)->session.call;
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
    uint64_t rows = 0, most = d->session.call.vector_size(), bytes = 0;
    bool more = true;
    while (rows < most && bytes < DX_BYTES && !d->ended && !d->session.failed) {
        if (!d->begun) {
            d->session.failed = bags_target_next(t, &more);
            d->ended = !more;
        }
        d->begun = false;
        if (d->session.failed || d->ended)
            break;
        d->session.failed = dx_put_row(t, chunk, rows++);
        bytes += dx_row_bytes(t);
    }
    if (d->session.failed)
        d->session.call.function_set_error(info, "the dataset cannot be read");
    d->session.call.data_chunk_set_size(chunk, d->session.failed ? 0 : rows);
}

/* ---- the export ---- */

static bags_code dx_open(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(dx_prepare_field(t, &t->fields[i]));
    return dx_connect(t, &d->session, "CSV and Parquet", dx_bind, dx_fill);
}

/* The metadata of the dataset are a value of the file's footer. */
static bags_code dx_put_metadata(bags_target *t, bags_export_bytes *how) {
    const bags_view json = t->options.metadata;
    FORMAT_TRY(bags_target_put_text(t, how, ", KV_METADATA {\"info.json\": "));
    const char *text =
        bags_target_format(t, "%.*s", (int)json.size, (const char *)json.data);
    FORMAT_TRY(text ? dx_put_quoted(t, how, text, '\'') : BAGS_ERROR_MEMORY);
    return bags_target_put_text(t, how, "}");
}

static bags_code dx_shard(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    bool more = false;
    d->session.failed = BAGS_OK;
    FORMAT_TRY(bags_target_next(t, &more));
    d->begun = more;
    d->ended = !more;
    bags_export_bytes *how = &d->how;
    how->size = 0;
    FORMAT_TRY(bags_target_put_text(
        t, how, dx_is_csv(t) ? "FORMAT csv, HEADER true" : "FORMAT parquet"));
    if (!dx_is_csv(t)) {
        const char *group = bags_target_format(
            t, ", ROW_GROUP_SIZE %" PRIu64, dx_group(more ? dx_row_bytes(t) : 0));
        FORMAT_TRY(group ? bags_target_put_text(t, how, group) : BAGS_ERROR_MEMORY);
        if (t->options.metadata.data)
            FORMAT_TRY(dx_put_metadata(t, how));
    }
    return dx_copy(t, &d->session, "SELECT * FROM bags_rows()",
        bags_target_shard_path(t), (const char *)how->buffer.data);
}

static void dx_close(bags_target *t) {
    dx_state *d = (dx_state *)t->state;
    duck_close(&d->session.call, &d->session.database, &d->session.connection);
}

const bags_exporter bags_export_csv = {"csv", ".csv", false, false, false,
    sizeof(dx_state), dx_open, dx_shard, NULL, dx_close};
const bags_exporter bags_export_parquet = {"parquet", ".parquet", false, false, true,
    sizeof(dx_state), dx_open, dx_shard, NULL, dx_close};
