/*
 * tfrecord.c - imports TFRecord files of tf.train.Example or any other content. No
 * library.
 *
 * A record consists of its size (8 bytes, little-endian), the size's masked CRC-32C,
 * the data, and the data's masked CRC-32C. All are checked. Compressed files are
 * rejected.
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
#include "import.h"
#include "try.h"
#include "values.h"

#include <inttypes.h>

#define TF_FEATURES 4096 /* maximum number of features in an Example */

enum { TF_BYTES = 1, TF_FLOAT = 2, TF_INT64 = 3 }; /* the lists of a Feature */

typedef struct tf_state {
    uint64_t offset; /* offset of the next record in the file */
    uint64_t start;  /* offset of the last record */
    uint64_t next;   /* index of the next record */
    bool examples;
} tf_state;

/* ---- records ---- */

/* Fail with an error that names the last record. */
static bags_code tf_fail(bags_source *s, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "record at byte %" PRIu64 ": %s",
        ((tf_state *)s->state)->start, what);
}

static bags_code tf_check(bags_source *s, const char *what, bags_view part) {
    size_t size = part.size - 4;
    uint64_t start = ((tf_state *)s->state)->start;
    uint32_t computed = format_masked_crc(part.data, size);
    uint32_t stored = (uint32_t)bags_load_bytes(part.data + size, 4, false);
    if (computed == stored)
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "record at byte %" PRIu64 ": checksum mismatch of its %s (computed "
        "%08" PRIx32 ", stored %08" PRIx32 ")%s",
        start, what, computed, stored,
        start == 0 && part.data[0] == 0x1F && part.data[1] == 0x8B
            ? "; it is compressed by gzip: decompress it first"
            : "");
}

/* Read the next record, or with `skip` only find its end. Sets `ended` if there are no
 * more. */
static bags_code tf_next(bags_source *s, bool skip, bags_view *record) {
    tf_state *t = (tf_state *)s->state;
    while (s->path_next == 0 || t->offset == s->file.size) {
        FORMAT_TRY(bags_source_next_file(s));
        if (s->ended)
            return BAGS_OK;
        t->offset = 0;
    }
    uint64_t left = s->file.size - t->offset;
    t->start = t->offset;
    if (left < 16)
        return tf_fail(s, "truncated");
    FORMAT_TRY(bags_source_view(s, t->start, 12, record));
    FORMAT_TRY(tf_check(s, "size", *record));
    uint64_t size = bags_load_bytes(record->data, 8, false);
    if (size > left - 16)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "record at byte %" PRIu64 ": truncated (%" PRIu64
            " bytes, the file has %" PRIu64 " more)",
            t->start, size, left - 16);
    t->offset += 16 + size;
    t->next++;
    if (skip)
        return BAGS_OK;
    FORMAT_TRY(bags_source_view(s, t->start + 12, size + 4, record));
    FORMAT_TRY(tf_check(s, "bytes", *record));
    record->size = (size_t)size;
    return BAGS_OK;
}

/* ---- protocol buffers ---- */

/* A part of a message. */
typedef struct tf_part {
    uint64_t number; /* field number */
    unsigned wire;   /* 0: `varint`; 2: `bytes`; 5: 4 bytes */
    uint64_t varint;
    bags_view bytes;
} tf_part;

static bool tf_varint(bags_view *at, uint64_t *out) {
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 64 && at->size > 0; shift += 7) {
        unsigned char byte = *at->data++;
        at->size--;
        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = number;
            return shift < 63 || byte < 2;
        }
    }
    return false;
}

/* Split off the next part. False if it is invalid. */
static bool tf_split(bags_view *at, tf_part *part) {
    uint64_t tag, size = 4;
    if (!tf_varint(at, &tag))
        return false;
    part->number = tag >> 3;
    part->wire = (unsigned)(tag & 7);
    if (part->wire == 0)
        return tf_varint(at, &part->varint);
    if ((part->wire != 2 && part->wire != 5) ||
        (part->wire == 2 && !tf_varint(at, &size)) || size > at->size)
        return false;
    part->bytes.data = at->data;
    part->bytes.size = (size_t)size;
    at->data += size;
    at->size -= (size_t)size;
    return true;
}

/* Get the bytes of the next part. It must be a message or text with a number from 1 to
 * `most`. */
static bool tf_message(bags_view *at, uint64_t most, tf_part *part) {
    return tf_split(at, part) && part->wire == 2 && part->number >= 1 &&
           part->number <= most;
}

/* A feature of an Example. */
typedef struct tf_feature {
    bags_view name, list;
    unsigned kind; /* 0: no list */
} tf_feature;

/* Parse an entry of the feature map: a name and a Feature. */
static bool tf_parse_feature(bags_view entry, tf_feature *feature) {
    tf_part part;
    memset(feature, 0, sizeof *feature);
    while (entry.size > 0) {
        if (!tf_message(&entry, 2, &part))
            return false;
        if (part.number == 1) {
            feature->name = part.bytes;
            continue;
        }
        for (bags_view lists = part.bytes; lists.size > 0;) {
            if (feature->kind || !tf_message(&lists, 3, &part))
                return false;
            feature->kind = (unsigned)part.number;
            feature->list = part.bytes;
        }
    }
    return bags_utf8_valid(feature->name.data, feature->name.size, NULL);
}

typedef bags_code (*tf_visit)(bags_source *s, const tf_feature *feature);

/* Call visit (if not NULL) for each feature that has a list. Fails if the record is not
 * an Example. */
static bags_code tf_walk(
    bags_source *s, bags_view example, tf_visit visit, size_t *found) {
    tf_part features, entry;
    tf_feature feature;
    *found = 0;
    while (example.size > 0) {
        if (!tf_message(&example, 1, &features))
            return tf_fail(s, "not a tf.train.Example");
        while (features.bytes.size > 0) {
            if (!tf_message(&features.bytes, 1, &entry) ||
                !tf_parse_feature(entry.bytes, &feature))
                return tf_fail(s, "not a tf.train.Example");
            *found += feature.kind != 0;
            FORMAT_TRY(feature.kind && visit ? visit(s, &feature) : BAGS_OK);
        }
    }
    return BAGS_OK;
}

/* Get the number of values in a list and, if out is not NULL, the values: 4 or 8 bytes
 * each, or a bags_value each. False if the list is invalid. */
static bool tf_values(const tf_feature *feature, size_t *count, void *out) {
    bags_view list = feature->list;
    tf_part part;
    for (*count = 0; list.size > 0;) {
        if (!tf_split(&list, &part) || part.number != 1)
            return false;
        if (feature->kind == TF_BYTES) {
            if (part.wire != 2)
                return false;
            if (out)
                ((bags_value *)out)[*count] =
                    bags_blob(part.bytes.data, part.bytes.size);
            ++*count;
        } else if (feature->kind == TF_FLOAT) {
            if (part.wire == 0 || part.bytes.size % 4)
                return false;
            if (out && part.bytes.size)
                memcpy((char *)out + 4 * *count, part.bytes.data, part.bytes.size);
            *count += part.bytes.size / 4;
        } else if (part.wire == 5) {
            return false;
        } else {
            /* A single number, or packed numbers. */
            bool packed = part.wire == 2;
            while (!packed || part.bytes.size > 0) {
                if (packed && !tf_varint(&part.bytes, &part.varint))
                    return false;
                if (out)
                    ((uint64_t *)out)[*count] = part.varint;
                ++*count;
                if (!packed)
                    break;
            }
        }
    }
    return true;
}

/* ---- features ---- */

static bags_code tf_fail_feature(
    bags_source *s, const tf_feature *feature, const char *what) {
    size_t size = feature->name.size < 100 ? feature->name.size : 100;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "record at byte %" PRIu64 ": feature \"%.*s\": %s",
        ((tf_state *)s->state)->start, (int)size,
        size ? (const char *)feature->name.data : "", what);
}

/* The first pass: find the type of each feature. */
static bags_code tf_learn(bags_source *s, const tf_feature *feature) {
    uint64_t index = ((tf_state *)s->state)->next;
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
    for (tf_part part; feature->kind == TF_BYTES && list.size > 0;)
        if (tf_split(&list, &part))
            bags_import_guess(column, part.bytes.data, part.bytes.size, true);
    return BAGS_OK;
}

/* The second pass: fill in the entry of a feature. */
static bags_code tf_take(bags_source *s, const tf_feature *feature) {
    uint64_t index = ((tf_state *)s->state)->next;
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

static bool tf_accept(const char *name) { return strstr(name, "tfrecord") != NULL; }

static bags_code tf_open(bags_source *s) {
    tf_state *t = (tf_state *)s->state;
    bags_view record;
    size_t found = 0;
    bool decided = false;
    bags_code code = bags_source_files(s, tf_accept);
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
    s->length = t->next;
    for (size_t i = 0; i < s->column_count; i++)
        s->columns[i]->sequence =
            s->columns[i]->kind == TF_BYTES && s->columns[i]->not_one;
    bags_source_close_file(s);
    s->path_next = 0;
    t->next = 0;
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
    for (s->ended = false; !code && !s->ended && t->next <= index;)
        code = tf_next(s, t->next < index, &record);
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

static bool tf_detect(const char *path) {
    unsigned char head[12];
    return bags_import_has_files(path, tf_accept) ||
           (bags_import_peek(path, head, sizeof head) == sizeof head &&
               format_masked_crc(head, 8) == bags_load_bytes(head + 8, 4, false));
}

const bags_importer bags_import_tfrecord = {
    "tfrecord", tf_detect, sizeof(tf_state), tf_open, tf_read, NULL};
