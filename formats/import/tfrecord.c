/*
 * tfrecord.c - imports TFRecord files of tf.train.Example or any other content, using
 * zlib (Debian: zlib1g-dev).
 *
 * All checksums are checked. Files may be compressed by gzip.
 *
 * The first record decides, not counting Examples without lists: if it is an Example,
 * every record must be one, and each feature is a field; otherwise the only field is
 * `record: bytes`. A first pass over all records finds the type of each feature:
 *
 *     a list of        always one value        other numbers of values
 *     bytes            bytes                   bytes[]
 *     int64            i64                     array(int64,-1)
 *     float            array(float32)          array(float32,-1)
 *
 * `bytes` becomes jpeg, png, ... or utf8 if all values are: see bags_import_guess. A
 * feature missing from some records is a sequence of 0 or 1 such values (bytes[]: of
 * any number).
 */
#include "tfrecord.h"
#include "detect.h"

#define TF_FEATURES 4096 /* maximum number of features in an Example */

typedef struct tf_state {
    tf_reader reader; /* the first member */
    bool examples;
} tf_state;

/* ---- features ---- */

/* The first pass: find the type of each feature. */
static bags_code tf_learn(bags_source *s, const tf_feature *feature) {
    uint64_t index = ((tf_reader *)s->state)->next;
    bags_view list = feature->list;
    size_t count;
    if (s->column_count == TF_FEATURES)
        return bags_source_fail(
            s, BAGS_ERROR_LIMIT, "%d or more features", TF_FEATURES);
    bags_import_column *column =
        bags_source_column(s, feature->name.data, feature->name.size, true);
    if (!column)
        return BAGS_ERROR_MEMORY;
    if (column->last == index)
        return tf_fail_feature(s, feature, "duplicate");
    if (column->seen && column->kind != feature->kind)
        return tf_fail_feature(s, feature, "another kind of list than before");
    if (!tf_values(feature, &count, NULL))
        return tf_fail_feature(s, feature, "invalid list");
    column->kind = feature->kind;
    column->last = index;
    column->seen++;
    column->not_one = column->not_one || count != 1;
    for (wire_part part; feature->kind == TF_BYTES && list.size > 0;)
        if (wire_split(&list, &part))
            bags_import_guess(column, part.bytes.data, part.bytes.size, true);
    return BAGS_OK;
}

/* The second pass: fill in the entry of a feature. */
static bags_code tf_take(bags_source *s, const tf_feature *feature) {
    uint64_t index = ((tf_reader *)s->state)->next;
    size_t count;
    bags_import_column *column =
        bags_source_column(s, feature->name.data, feature->name.size, false);
    if (!column || column->kind != feature->kind || column->last == index ||
        !tf_values(feature, &count, NULL) || (!column->not_one && count != 1))
        return tf_fail_feature(s, feature, "changed while the file was read");
    bags_entry *entry = &s->entries[column->field];
    bags_value *value = &s->values[column->field];
    bool bytes = feature->kind == TF_BYTES, floats = feature->kind == TF_FLOAT;
    void *data = bags_source_alloc(s, count, bytes ? sizeof *value : 8);
    uint64_t *shape = (uint64_t *)bags_source_alloc(s, 1, sizeof *shape);
    if (!data || !shape)
        return BAGS_ERROR_MEMORY;
    tf_values(feature, &count, data);
    column->last = index;
    entry->count = 1;
    *shape = count;
    if (bytes) {
        entry->values = (bags_value *)data;
        entry->count = count;
    } else if (!floats && !column->not_one) {
        *value = bags_int(*(int64_t *)data);
    } else {
        if (floats && !bags_little_endian())
            bags_swap_bytes(data, data, 4 * count, 4);
        *value = bags_array(floats ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_INT64,
            column->not_one, shape, data);
    }
    return BAGS_OK;
}

/* ---- the source ---- */

static const char *tf_type(const bags_import_column *column) {
    return column->kind == TF_BYTES ? bags_import_guessed(column)
           : column->kind == TF_FLOAT
               ? (column->not_one ? "array(float32,-1)" : "array(float32)")
           : column->not_one ? "array(int64,-1)"
                             : "i64";
}

static bags_code tf_open(bags_source *s) {
    tf_state *t = (tf_state *)s->state;
    bags_view record;
    size_t found = 0;
    bool decided = false;
    bags_code code = bags_source_files(s, bags_import_is_tfrecord_name);
    /* The first pass. */
    while (!code) {
        code = tf_next(s, false, &record);
        if (code || s->ended)
            break;
        if (!decided) {
            t->examples = !tf_walk(s, record, NULL, &found);
            decided = !t->examples || found > 0;
            t->examples = t->examples && decided;
        }
        if (t->examples)
            code = tf_walk(s, record, tf_learn, &found);
    }
    if (code)
        return code;
    s->length = t->reader.next;
    if (s->length == 0)
        bags_source_note(s, s->path, "no records: the fields are not known");
    for (size_t i = 0; i < s->column_count; i++)
        s->columns[i]->sequence =
            s->columns[i]->kind == TF_BYTES && s->columns[i]->not_one;
    tf_rewind(s);
    if (t->examples)
        bags_source_add_columns(s, tf_type);
    else
        bags_source_field(s, "record", "bytes");
    return BAGS_OK;
}

static bags_code tf_read(bags_source *s, uint64_t index) {
    tf_state *t = (tf_state *)s->state;
    bags_view record = {NULL, 0};
    size_t found;
    bags_code code = BAGS_OK;
    for (s->ended = false; !code && !s->ended && t->reader.next <= index;)
        code = tf_next(s, t->reader.next < index, &record);
    if (code || s->ended)
        return code;
    if (!t->examples) {
        s->values[0] = bags_bytes(record.data, record.size);
        return BAGS_OK;
    }
    for (size_t i = 0; i < s->count; i++)
        s->entries[i].count = 0;
    code = tf_walk(s, record, tf_take, &found);
    for (size_t i = 0; i < s->column_count && !code; i++)
        if (!s->columns[i]->sequence && s->entries[s->columns[i]->field].count != 1)
            code = tf_fail(s, "changed while the file was read");
    return code;
}

static void tf_close(bags_source *s) {
    bags_import_stream_close(&((tf_reader *)s->state)->stream);
}

const bags_importer bags_import_tfrecord = {
    "tfrecord", bags_import_is_tfrecord, sizeof(tf_state), tf_open, tf_read, tf_close};
