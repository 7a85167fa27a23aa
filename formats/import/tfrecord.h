/*
 * tfrecord.h - read the records of TFRecord files, and tf.train.Example, using zlib. For
 * the importers of such files. Private.
 *
 *     record: size (8 bytes, little-endian) | masked CRC-32C of the size
 *             | data                        | masked CRC-32C of the data
 *
 * A file may be compressed by gzip as a whole.
 */
#ifndef BAGS_IMPORT_TFRECORD_H
#define BAGS_IMPORT_TFRECORD_H

#include "gzip.h"
#include "import.h"
#include "try.h"
#include "values.h"
#include "wire.h"

#include <inttypes.h>

enum { TF_BYTES = 1, TF_FLOAT = 2, TF_INT64 = 3 }; /* the lists of a Feature */

/* The first member of the state of an importer. */
typedef struct tf_reader {
    uint64_t offset; /* offset of the next record in the file, after decompression */
    uint64_t start;  /* offset of the last record */
    uint64_t next;   /* index of the next record */
    uint64_t before; /* index of the first record of the file */
    const uint64_t *lengths; /* expected number of records per file; NULL: any */
    bags_import_stream stream;
    bags_view ready; /* decompressed bytes not yet used */
    bags_buffer *record;
} tf_reader;

/* ---- records ---- */

/* Fail with an error that names the last record. */
static inline bags_code tf_fail(bags_source *s, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "record at byte %" PRIu64 ": %s",
        ((tf_reader *)s->state)->start, what);
}

static inline bags_code tf_check(bags_source *s, const char *what, bags_view part) {
    size_t size = part.size - 4;
    uint32_t computed = format_masked_crc(part.data, size);
    uint32_t stored = (uint32_t)bags_load_bytes(part.data + size, 4, false);
    if (computed == stored)
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "record at byte %" PRIu64 ": checksum mismatch of its %s (computed "
        "%08" PRIx32 ", stored %08" PRIx32 ")",
        ((tf_reader *)s->state)->start, what, computed, stored);
}

/* Start at the first file again. */
static inline void tf_rewind(bags_source *s) {
    tf_reader *t = (tf_reader *)s->state;
    bags_import_stream_close(&t->stream);
    bags_source_close_file(s);
    s->path_next = 0;
    t->next = 0;
}

/* Open the next file, or set `ended`. The size of a record may look like the first bytes
 * of gzip, but then its checksum is right. */
static inline bags_code tf_next_file(bags_source *s) {
    tf_reader *t = (tf_reader *)s->state;
    bags_view head;
    size_t file = s->path_next;
    if (file > 0 && t->lengths && t->next - t->before != t->lengths[file - 1])
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "wrong number of records (%" PRIu64 ", dataset_info.json has %" PRIu64 ")",
            t->next - t->before, t->lengths[file - 1]);
    FORMAT_TRY(bags_source_next_file(s));
    if (s->ended)
        return BAGS_OK;
    t->offset = 0;
    t->before = t->next;
    t->ready.size = 0;
    FORMAT_TRY(bags_import_stream_open(s, &t->stream));
    if (!t->stream.gzip || s->file.size < 12)
        return BAGS_OK;
    FORMAT_TRY(bags_source_view(s, 0, 12, &head));
    if (format_masked_crc(head.data, 8) == bags_load_bytes(head.data + 8, 4, false))
        bags_import_stream_close(&t->stream);
    return BAGS_OK;
}

/* Get the next bytes of the file, valid until the next ones. There are fewer than `size`
 * only at its end. */
static inline bags_code tf_get(bags_source *s, uint64_t size, bags_view *out) {
    tf_reader *t = (tf_reader *)s->state;
    size_t done = 0;
    if (!t->stream.gzip) {
        uint64_t left = s->file.size - t->offset;
        FORMAT_TRY(bags_source_view(s, t->offset, size < left ? size : left, out));
        t->offset += out->size;
        return BAGS_OK;
    }
    FORMAT_TRY(bags_source_reserve(s, &t->record, 0));
    while (done < size) {
        if (t->ready.size == 0)
            FORMAT_TRY(bags_import_stream_next(s, &t->stream, &t->ready));
        size_t part =
            t->ready.size < size - done ? t->ready.size : (size_t)(size - done);
        if (part == 0)
            break;
        FORMAT_TRY(bags_source_reserve(s, &t->record, done + part));
        memcpy(t->record->data + done, t->ready.data, part);
        t->ready.data += part;
        t->ready.size -= part;
        done += part;
    }
    out->data = t->record->data;
    out->size = done;
    t->offset += done;
    return BAGS_OK;
}

/* Read the next record, or with `skip` only find its end. Sets `ended` if there are no
 * more. */
static inline bags_code tf_next(bags_source *s, bool skip, bags_view *record) {
    tf_reader *t = (tf_reader *)s->state;
    record->size = 0;
    if (s->path_next > 0) {
        t->start = t->offset;
        FORMAT_TRY(tf_get(s, 12, record));
    }
    while (record->size == 0) {
        FORMAT_TRY(tf_next_file(s));
        if (s->ended)
            return BAGS_OK;
        t->start = 0;
        FORMAT_TRY(tf_get(s, 12, record));
    }
    if (record->size < 12 || (!t->stream.gzip && s->file.size - t->start < 16))
        return tf_fail(s, "truncated");
    FORMAT_TRY(tf_check(s, "size", *record));
    uint64_t size = bags_load_bytes(record->data, 8, false);
    uint64_t left = t->stream.gzip ? SIZE_MAX / 4 : s->file.size - t->offset - 4;
    if (!t->stream.gzip && size > left)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "record at byte %" PRIu64 ": truncated (%" PRIu64
            " bytes, the file has %" PRIu64 " more)",
            t->start, size, left);
    if (size > left)
        return tf_fail(s, "truncated");
    t->next++;
    if (skip && !t->stream.gzip) {
        t->offset += size + 4;
        return BAGS_OK;
    }
    FORMAT_TRY(tf_get(s, size + 4, record));
    if (record->size < size + 4)
        return tf_fail(s, "truncated");
    FORMAT_TRY(tf_check(s, "bytes", *record));
    record->size = (size_t)size;
    return BAGS_OK;
}

/* ---- tf.train.Example ---- */

/* Get the bytes of the next part. It must be a message or text with a number from 1 to
 * `most`. */
static inline bool tf_message(bags_view *at, uint64_t most, wire_part *part) {
    return wire_split(at, part) && part->wire == WIRE_BYTES && part->number >= 1 &&
           part->number <= most;
}

/* A feature of an Example. */
typedef struct tf_feature {
    bags_view name, list;
    unsigned kind; /* 0: no list */
} tf_feature;

/* Parse an entry of the feature map: a name and a Feature. */
static inline bool tf_parse_feature(bags_view entry, tf_feature *feature) {
    wire_part part;
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
static inline bags_code tf_walk(
    bags_source *s, bags_view example, tf_visit visit, size_t *found) {
    wire_part features, entry;
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
static inline bool tf_values(const tf_feature *feature, size_t *count, void *out) {
    bags_view list = feature->list;
    wire_part part;
    for (*count = 0; list.size > 0;) {
        if (!wire_split(&list, &part) || part.number != 1)
            return false;
        if (feature->kind == TF_BYTES) {
            if (part.wire != WIRE_BYTES)
                return false;
            if (out)
                ((bags_value *)out)[*count] =
                    bags_blob(part.bytes.data, part.bytes.size);
            ++*count;
        } else if (feature->kind == TF_FLOAT) {
            if ((part.wire != WIRE_BYTES && part.wire != WIRE_4) || part.bytes.size % 4)
                return false;
            if (out && part.bytes.size)
                memcpy((char *)out + 4 * *count, part.bytes.data, part.bytes.size);
            *count += part.bytes.size / 4;
        } else if (part.wire != WIRE_BYTES && part.wire != WIRE_VARINT) {
            return false;
        } else {
            /* A single number, or packed numbers. */
            bool packed = part.wire == WIRE_BYTES;
            while (!packed || part.bytes.size > 0) {
                if (packed && !wire_varint(&part.bytes, &part.varint))
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

static inline bags_code tf_fail_feature(
    bags_source *s, const tf_feature *feature, const char *what) {
    size_t size = feature->name.size < 100 ? feature->name.size : 100;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "record at byte %" PRIu64 ": feature \"%.*s\": %s",
        ((tf_reader *)s->state)->start, (int)size,
        size ? (const char *)feature->name.data : "", what);
}

#endif /* BAGS_IMPORT_TFRECORD_H */
