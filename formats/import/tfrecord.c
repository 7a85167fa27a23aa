/*
 * tfrecord.c - TFRecord files, of tf.train.Example or of anything else. No library.
 *
 * A record is its size (8 bytes, little-endian), the masked CRC-32C of these, the
 * bytes, and their masked CRC-32C. All are checked. Files that are compressed are
 * rejected.
 *
 * The first record decides: if it is an Example with at least one feature, every
 * record must be one, and each feature is a field; otherwise the only field is
 * `record: bytes`. A first pass over all records finds the type of each feature:
 *
 *     a list of        always one value        other numbers of values
 *     bytes            bytes                   bytes[]
 *     int64            i64                     array(int64,-1)
 *     float            array(float32)          array(float32,-1)
 *
 * `bytes` is jpeg, png, ... or utf8 if all values are: see bags_import_guess. A
 * feature that some records lack is a sequence of 0 or 1 of this (bytes[] of any
 * number).
 */
#include "import.h"

#include <inttypes.h>

#define TF_FEATURES 4096 /* the most of an Example */

typedef struct tf_feature {
    const char *name; /* as in the source; not NUL-terminated */
    size_t size;
    unsigned kind; /* the number of its list in a Feature */
    bool not_one;  /* some list has not exactly one value */
    uint64_t seen; /* records that have it */
    uint64_t last; /* the last of them, from 1 */
    bool plain;    /* one value in every datapoint */
    bags_import_guess guess;
} tf_feature;

enum { TF_BYTES = 1, TF_FLOAT = 2, TF_INT64 = 3 };

typedef struct tf_source {
    bags_allocator allocator;
    bags_import_arena arena;   /* as long as the source */
    bags_import_arena scratch; /* of one datapoint */
    bags_buffer record;
    char **paths;
    size_t path_count, path; /* the file that is read */
    bags_import_file file;
    uint64_t offset; /* of the next record in it */
    uint64_t start;  /* of the last one */
    uint64_t next;   /* the index of the next record */
    bool examples, ended;
    bags_buffer features_buffer;
    tf_feature *features; /* sorted by name */
    size_t count;
    bags_field *fields;
    bags_entry *entries;
    bags_value value; /* of the field `record` */
} tf_source;

/* ---- records ---- */

static uint64_t tf_load(const unsigned char *data, unsigned bytes) {
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++)
        number |= (uint64_t)data[i] << (8 * i);
    return number;
}

static uint32_t tf_masked_crc(const void *data, size_t size) {
    uint32_t crc = bags_crc32c(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

static bags_code tf_check(const tf_source *source, const char *what,
    const unsigned char *data, size_t size, bags_error *err) {
    uint32_t computed = tf_masked_crc(data, size);
    uint32_t stored = (uint32_t)tf_load(data + size, 4);
    if (computed == stored)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: record at byte %" PRIu64 ": checksum mismatch of its %s (computed "
        "%08" PRIx32 ", stored %08" PRIx32 ")%s",
        source->file.path, source->start, what, computed, stored,
        source->start == 0 && data[0] == 0x1F && data[1] == 0x8B
            ? "; it is compressed by gzip: decompress it first"
            : "");
}

static bags_code tf_fail(
    const tf_source *source, bags_error *err, const char *what) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: record at byte %" PRIu64 ": %s", source->file.path, source->start,
        what);
}

/* Read the next record; `skip`: only find its end. Sets `ended` if there is
 * none. */
static bags_code tf_next(
    tf_source *source, bool skip, bags_view *record, bags_error *err) {
    unsigned char head[12];
    bags_code code = BAGS_OK;
    while (!source->file.handle || source->offset == source->file.size) {
        if (source->file.handle)
            source->path++;
        bags_import_file_close(&source->file);
        source->ended = source->path == source->path_count;
        if (source->ended)
            return BAGS_OK;
        source->offset = 0;
        code = bags_import_file_open(
            &source->file, source->paths[source->path], err);
        if (code)
            return code;
    }
    uint64_t left = source->file.size - source->offset;
    source->start = source->offset;
    if (left < 16)
        return tf_fail(source, err, "truncated");
    code = bags_import_file_read(
        &source->file, source->offset, head, sizeof head, err);
    if (!code)
        code = tf_check(source, "size", head, 8, err);
    if (code)
        return code;
    uint64_t size = tf_load(head, 8);
    if (size > left - 16)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: record at byte %" PRIu64 ": truncated (%" PRIu64
            " bytes, the file has %" PRIu64 " more)",
            source->file.path, source->start, size, left - 16);
    source->offset += 16 + size;
    source->next++;
    if (skip)
        return BAGS_OK;
    if (size > SIZE_MAX - 4)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    code = bags_buffer_reserve(&source->record, (size_t)size + 4, err);
    if (!code)
        code = bags_import_file_read(&source->file, source->start + 12,
            source->record.data, (size_t)size + 4, err);
    if (!code)
        code =
            tf_check(source, "bytes", source->record.data, (size_t)size, err);
    record->data = source->record.data;
    record->size = (size_t)size;
    return code;
}

/* ---- protocol buffers ---- */

/* A part of a message. */
typedef struct tf_part {
    uint64_t number; /* of the field */
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

/* Split the next part off. False if it is invalid. */
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

/* The bytes of the next part, which must be a message or text with one of the
 * numbers 1 to `most`. */
static bool tf_message(bags_view *at, uint64_t most, tf_part *part) {
    return tf_split(at, part) && part->wire == 2 && part->number >= 1 &&
           part->number <= most;
}

/* What is done with each feature of an Example: `list` contains its values. */
typedef bags_code (*tf_visit)(tf_source *source, bags_view name, unsigned kind,
    bags_view list, bags_error *err);

/* Call visit (if not NULL) for each feature that has a list. *valid becomes false
 * if it is not an Example. */
static bags_code tf_walk(tf_source *source, bags_view example, tf_visit visit,
    size_t *found, bool *valid, bags_error *err) {
    tf_part features, entry, part;
    *found = 0;
    *valid = false;
    while (example.size > 0) {
        if (!tf_message(&example, 1, &features))
            return BAGS_OK;
        while (features.bytes.size > 0) {
            bags_view name = {NULL, 0}, list = {NULL, 0};
            unsigned kind = 0;
            if (!tf_message(&features.bytes, 1, &entry))
                return BAGS_OK;
            while (entry.bytes.size > 0) {
                if (!tf_message(&entry.bytes, 2, &part))
                    return BAGS_OK;
                if (part.number == 1) {
                    name = part.bytes;
                    continue;
                }
                for (bags_view feature = part.bytes; feature.size > 0;) {
                    if (kind || !tf_message(&feature, 3, &part))
                        return BAGS_OK;
                    kind = (unsigned)part.number;
                    list = part.bytes;
                }
            }
            if (!bags_utf8_valid(name.data, name.size, NULL))
                return BAGS_OK;
            *found += kind != 0;
            bags_code code =
                kind && visit ? visit(source, name, kind, list, err) : BAGS_OK;
            if (code)
                return code;
        }
    }
    *valid = true;
    return BAGS_OK;
}

/* The values of a list: their number and, if out is not NULL, the values: views,
 * floats or integers. False if it is invalid. */
static bool tf_values(unsigned kind, bags_view list, size_t *count, void *out) {
    uint64_t *integers = (uint64_t *)out;
    bags_value *views = (bags_value *)out;
    tf_part part;
    *count = 0;
    while (list.size > 0) {
        if (!tf_split(&list, &part) || part.number != 1)
            return false;
        if (kind == TF_BYTES) {
            if (part.wire != 2)
                return false;
            if (out)
                views[*count] = bags_blob(part.bytes.data, part.bytes.size);
            ++*count;
        } else if (kind == TF_FLOAT) {
            if (part.wire == 0 || part.bytes.size % 4)
                return false;
            if (out && part.bytes.size)
                memcpy(
                    (char *)out + 4 * *count, part.bytes.data, part.bytes.size);
            *count += part.bytes.size / 4;
        } else if (part.wire == 0) {
            if (out)
                integers[*count] = part.varint;
            ++*count;
        } else {
            if (part.wire != 2)
                return false;
            for (; part.bytes.size > 0; ++*count) {
                uint64_t number;
                if (!tf_varint(&part.bytes, &number))
                    return false;
                if (out)
                    integers[*count] = number;
            }
        }
    }
    return true;
}

/* ---- features ---- */

/* Where a feature is or, if *found is false, where it belongs. */
static size_t tf_find(const tf_source *source, bags_view name, bool *found) {
    size_t low = 0, high = source->count;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const tf_feature *feature = &source->features[middle];
        size_t size = feature->size < name.size ? feature->size : name.size;
        int order = size ? memcmp(feature->name, name.data, size) : 0;
        if (order == 0 && feature->size == name.size) {
            *found = true;
            return middle;
        }
        if (order < 0 || (order == 0 && feature->size < name.size))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bags_code tf_fail_feature(const tf_source *source, bags_view name,
    const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: record at byte %" PRIu64 ": feature \"%.*s\": %s",
        source->file.path, source->start,
        (int)(name.size < 100 ? name.size : 100), (const char *)name.data,
        what);
}

/* The first pass: learn what a feature is. */
static bags_code tf_learn(tf_source *source, bags_view name, unsigned kind,
    bags_view list, bags_error *err) {
    bool found;
    size_t count, i = tf_find(source, name, &found);
    if (!found) {
        if (source->count == TF_FEATURES)
            return bags_fail(err, BAGS_ERROR_LIMIT, "%s: more than %d features",
                source->file.path, TF_FEATURES);
        bags_code code = bags_buffer_reserve(&source->features_buffer,
            (source->count + 1) * sizeof(tf_feature), err);
        if (code)
            return code;
        source->features = (tf_feature *)(void *)source->features_buffer.data;
        tf_feature *to = source->features + i;
        memmove(to + 1, to, (source->count++ - i) * sizeof *to);
        memset(to, 0, sizeof *to);
        to->name = bags_import_text(&source->arena, name.data, name.size, err);
        if (!to->name)
            return BAGS_ERROR_MEMORY;
        to->size = name.size;
        to->kind = kind;
    }
    tf_feature *feature = &source->features[i];
    if (feature->last == source->next)
        return tf_fail_feature(source, name, "duplicate", err);
    if (feature->kind != kind)
        return tf_fail_feature(
            source, name, "another kind of list than before", err);
    if (!tf_values(kind, list, &count, NULL))
        return tf_fail_feature(source, name, "invalid list", err);
    feature->last = source->next;
    feature->seen++;
    feature->not_one = feature->not_one || count != 1;
    for (tf_part part; kind == TF_BYTES && list.size > 0;)
        if (tf_split(&list, &part))
            bags_import_guess_add(
                &feature->guess, part.bytes.data, part.bytes.size, true);
    return BAGS_OK;
}

/* The second pass: the entry of a feature. */
static bags_code tf_take(tf_source *source, bags_view name, unsigned kind,
    bags_view list, bags_error *err) {
    bool found;
    size_t count, i = tf_find(source, name, &found);
    const tf_feature *feature = &source->features[i];
    bags_entry *entry = &source->entries[i];
    bool is_list = kind != TF_BYTES && found && feature->not_one;
    if (!found || feature->kind != kind || entry->values ||
        !tf_values(kind, list, &count, NULL) ||
        (!feature->not_one && count != 1))
        return tf_fail_feature(
            source, name, "changed while the file was read", err);
    size_t size = kind == TF_BYTES ? sizeof(bags_value) : 8;
    void *data = bags_import_alloc(&source->scratch, count, size, err);
    bags_value *values = (bags_value *)bags_import_alloc(
        &source->scratch, 1, sizeof *values, err);
    uint64_t *shape =
        (uint64_t *)bags_import_alloc(&source->scratch, 1, sizeof *shape, err);
    if (!data || !values || !shape)
        return BAGS_ERROR_MEMORY;
    tf_values(kind, list, &count, data);
    entry->values = values;
    entry->count = 1;
    *shape = count;
    if (kind == TF_BYTES) {
        entry->values = (bags_value *)data;
        entry->count = count;
    } else if (kind == TF_INT64 && !is_list) {
        *values = bags_int(*(int64_t *)data);
    } else {
        if (kind == TF_FLOAT && !bags_little_endian())
            bags_swap_bytes(data, data, 4 * count, 4);
        *values =
            bags_array(kind == TF_FLOAT ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_INT64,
                is_list, shape, data);
    }
    return BAGS_OK;
}

/* ---- the source ---- */

static const char *tf_type(
    tf_source *source, const tf_feature *feature, bags_error *err) {
    static const char *const types[][2] = {{NULL, NULL},
        {"array(float32)", "array(float32,-1)"}, {"i64", "array(int64,-1)"}};
    const char *type = feature->kind == TF_BYTES
                           ? bags_import_guess_type(&feature->guess)
                           : types[feature->kind - 1][feature->not_one];
    return bags_import_format(
        &source->arena, err, "%s%s", type, feature->plain ? "" : "[]");
}

static bags_code tf_make_fields(tf_source *source, bags_error *err) {
    size_t count = source->examples ? source->count : 1;
    source->fields = (bags_field *)bags_import_alloc(
        &source->arena, count, sizeof *source->fields, err);
    source->entries = (bags_entry *)bags_import_alloc(
        &source->arena, count, sizeof *source->entries, err);
    if (!source->fields || !source->entries)
        return BAGS_ERROR_MEMORY;
    source->fields[0].name = "record";
    source->fields[0].type = "bytes";
    for (size_t i = 0; i < source->count; i++) {
        tf_feature *feature = &source->features[i];
        feature->plain = feature->seen == source->next &&
                         !(feature->kind == TF_BYTES && feature->not_one);
        source->fields[i].name = feature->name;
        source->fields[i].type = tf_type(source, feature, err);
        if (!source->fields[i].type)
            return BAGS_ERROR_MEMORY;
    }
    bags_code code = bags_import_names(
        source->fields, count, source->paths[0], &source->arena, err);
    for (size_t i = 0; i < count; i++)
        source->entries[i].field = source->fields[i].name;
    return code;
}

/* The first pass. */
static bags_code tf_scan(tf_source *source, bags_error *err) {
    bags_view record = {NULL, 0};
    for (;;) {
        size_t found;
        bool valid;
        bags_code code = tf_next(source, false, &record, err);
        if (code || source->ended)
            return code;
        if (source->next == 1) {
            tf_walk(source, record, NULL, &found, &valid, NULL);
            source->examples = valid && found > 0;
        }
        if (!source->examples)
            continue;
        code = tf_walk(source, record, tf_learn, &found, &valid, err);
        if (!code && !valid)
            code = tf_fail(source, err,
                "not a tf.train.Example, which the first record is");
        if (code)
            return code;
    }
}

static void tf_rewind(tf_source *source) {
    bags_import_file_close(&source->file);
    source->path = 0;
    source->next = 0;
    source->ended = false;
}

static void tf_close(void *state) {
    tf_source *source = (tf_source *)state;
    if (!source)
        return;
    bags_import_file_close(&source->file);
    bags_buffer_free(&source->record);
    bags_buffer_free(&source->features_buffer);
    bags_import_free(&source->scratch);
    bags_import_arena arena = source->arena; /* which contains the source */
    bags_import_free(&arena);
}

static bool tf_accept(const char *name) {
    return strstr(name, "tfrecord") != NULL;
}

static bags_code tf_open(const char *path, const bags_allocator *allocator,
    void **out, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    tf_source *source =
        (tf_source *)bags_import_alloc(&arena, 1, sizeof *source, err);
    if (!source)
        return BAGS_ERROR_MEMORY;
    source->arena = arena;
    source->scratch = bags_import_arena_start(allocator);
    source->record = bags_import_buffer_start(allocator);
    source->features_buffer = bags_import_buffer_start(allocator);
    bags_code code = bags_import_files(path, tf_accept, &source->arena,
        &source->paths, &source->path_count, err);
    if (!code)
        code = tf_scan(source, err);
    if (!code)
        code = tf_make_fields(source, err);
    if (code) {
        tf_close(source);
        return code;
    }
    info->fields = source->fields;
    info->count = source->examples ? source->count : 1;
    info->length = source->next;
    tf_rewind(source);
    *out = source;
    return BAGS_OK;
}

static bags_code tf_read(
    void *state, uint64_t index, const bags_entry **entries, bags_error *err) {
    tf_source *source = (tf_source *)state;
    bags_view record = {NULL, 0};
    size_t found;
    bool valid;
    bags_code code = BAGS_OK;
    while (!code && !source->ended && source->next < index)
        code = tf_next(source, true, &record, err);
    if (!code)
        code = tf_next(source, false, &record, err);
    *entries = NULL;
    if (code || source->ended)
        return code;
    if (!source->examples) {
        source->value = bags_bytes(record.data, record.size);
        source->entries[0].values = &source->value;
        source->entries[0].count = 1;
        *entries = source->entries;
        return BAGS_OK;
    }
    bags_import_reset(&source->scratch);
    for (size_t i = 0; i < source->count; i++) {
        source->entries[i].values = NULL;
        source->entries[i].count = 0;
    }
    code = tf_walk(source, record, tf_take, &found, &valid, err);
    if (!code && !valid)
        code = tf_fail(source, err, "changed while the file was read");
    for (size_t i = 0; i < source->count && !code; i++)
        if (source->features[i].plain && source->entries[i].count != 1)
            code = tf_fail(source, err, "changed while the file was read");
    if (!code)
        *entries = source->entries;
    return code;
}

static bool tf_detect(const char *path) {
    unsigned char head[12];
    return bags_import_has_files(path, tf_accept) ||
           (bags_import_peek(path, head, sizeof head) == sizeof head &&
               tf_masked_crc(head, 8) == tf_load(head + 8, 4));
}

const bags_importer bags_import_tfrecord = {
    "tfrecord", tf_detect, tf_open, tf_read, tf_close};
