/*
 * tfrecord.c - writes TFRecords of tf.train.Example. No library; formats/numpy.c for arrays.
 *
 *     size (8 bytes) | masked CRC-32C | Example | masked CRC-32C
 *
 * A datapoint is an Example, and a field a feature of its name:
 *
 *     int, i64, sequences of them            int64_list
 *     arrays of integers and bool            int64_list, if they have at most one dimension
 *     arrays of float32 and float16          float_list, likewise
 *     other arrays                           bytes_list of .npy files
 *     sequences of arrays without dimensions like an array of one dimension
 *     utf8, blobs, sequences of them         bytes_list
 *
 * Rejected: unsigned numbers of 64 bits: int64_list has none. If a field is of type int, or
 * int(8), its values decide.
 */
#include "export.h"

#include "codecs.h"
#include "try.h"
#include "values.h"

#include <string.h>

/* Lists of a Feature; TX_NPY is a list of bytes, of .npy files. */
enum { TX_BYTES = 1, TX_FLOAT = 2, TX_INT64 = 3, TX_NPY = 8 };

typedef struct tx_state {
    bags_export_bytes list, packed, feature, features;
} tx_state;

static bool tx_is_float(bags_dtype dtype) {
    return dtype == BAGS_DTYPE_FLOAT32 || dtype == BAGS_DTYPE_FLOAT16;
}

static bool tx_is_integer(bags_dtype dtype) {
    return dtype == BAGS_DTYPE_BOOL ||
           (dtype >= BAGS_DTYPE_UINT8 && dtype <= BAGS_DTYPE_INT64);
}

static bags_code tx_prepare_field(bags_target *t, bags_target_field *field) {
    bool flat = field->dims <= (field->sequence ? 0 : 1);
    FORMAT_TRY(bags_target_refuse_unsigned(t, field, "tf.train.Example"));
    field->kind = field->form == BAGS_FORM_INTEGER      ? TX_INT64
                  : field->form != BAGS_FORM_ARRAY      ? TX_BYTES
                  : flat && tx_is_float(field->dtype)   ? TX_FLOAT
                  : flat && tx_is_integer(field->dtype) ? TX_INT64
                                                        : TX_NPY;
    return BAGS_OK;
}

static bags_code tx_open(bags_target *t) {
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(tx_prepare_field(t, &t->fields[i]));
    return BAGS_OK;
}

/* ---- protobuf ---- */

static bags_code tx_put_varint(bags_target *t, bags_export_bytes *to, uint64_t number) {
    unsigned char bytes[10];
    size_t size = 0;
    for (; number >= 0x80; number >>= 7)
        bytes[size++] = (unsigned char)(number | 0x80);
    bytes[size++] = (unsigned char)number;
    return bags_target_put(t, to, bytes, size);
}

/* A part of a message: text, bytes or another message. */
static bags_code tx_put_part(bags_target *t, bags_export_bytes *to, unsigned number,
    const void *data, size_t size) {
    FORMAT_TRY(tx_put_varint(t, to, number << 3 | 2));
    FORMAT_TRY(tx_put_varint(t, to, size));
    return bags_target_put(t, to, data, size);
}

static float tx_float(const bags_value *array, size_t i) {
    uint16_t half;
    float single;
    if (array->dtype == BAGS_DTYPE_FLOAT32) {
        memcpy(&single, (const char *)array->data + 4 * i, 4);
        return single;
    }
    memcpy(&half, (const char *)array->data + 2 * i, 2);
    return (float)format_real(half, 2);
}

/* Append the elements of a value to the packed numbers of a list. */
static bags_code tx_put_numbers(
    bags_target *t, const bags_target_field *field, const bags_value *value) {
    bags_export_bytes *to = &((tx_state *)t->state)->list;
    if (field->form == BAGS_FORM_INTEGER)
        return tx_put_varint(t, to, bags_target_bits(value, 0));
    size_t count = value->size / bags_dtype_size(value->dtype);
    for (size_t i = 0; i < count; i++) {
        if (field->kind == TX_INT64) {
            FORMAT_TRY(tx_put_varint(t, to, bags_target_bits(value, i)));
            continue;
        }
        float single = tx_float(value, i);
        uint32_t bits;
        unsigned char bytes[4];
        memcpy(&bits, &single, 4);
        bags_store_bytes(bytes, 4, false, bits);
        FORMAT_TRY(bags_target_put(t, to, bytes, 4));
    }
    return BAGS_OK;
}

/* The list of a feature. */
static bags_code tx_make_list(bags_target *t, const bags_target_field *field) {
    tx_state *x = (tx_state *)t->state;
    x->list.size = x->feature.size = 0;
    for (size_t i = 0; i < field->length; i++) {
        const bags_value *value = &field->values[i];
        bags_view bytes = {(const unsigned char *)value->data, value->size};
        if (field->kind == TX_FLOAT || field->kind == TX_INT64) {
            FORMAT_TRY(tx_put_numbers(t, field, value));
            continue;
        }
        if (field->kind == TX_NPY)
            FORMAT_TRY(bags_npy_write(value, &t->scratch, &bytes, t->err));
        FORMAT_TRY(tx_put_part(t, &x->list, 1, bytes.data, bytes.size));
    }
    if (field->kind == TX_BYTES || field->kind == TX_NPY)
        return tx_put_part(t, &x->feature, TX_BYTES, x->list.buffer.data, x->list.size);
    /* Packed numbers are one part of the list; an empty list has none. */
    if (!x->list.size)
        return tx_put_part(t, &x->feature, field->kind, NULL, 0);
    x->packed.size = 0;
    FORMAT_TRY(tx_put_part(t, &x->packed, 1, x->list.buffer.data, x->list.size));
    return tx_put_part(
        t, &x->feature, field->kind, x->packed.buffer.data, x->packed.size);
}

static bags_code tx_put_example(bags_target *t) {
    tx_state *x = (tx_state *)t->state;
    unsigned char head[12], tail[4];
    x->features.size = 0;
    for (size_t i = 0; i < t->count; i++) {
        const bags_target_field *field = &t->fields[i];
        FORMAT_TRY(tx_make_list(t, field));
        /* An entry of the map: the name, and the feature. */
        bags_export_bytes *entry = &x->list;
        entry->size = 0;
        FORMAT_TRY(tx_put_part(t, entry, 1, field->name, strlen(field->name)));
        FORMAT_TRY(tx_put_part(t, entry, 2, x->feature.buffer.data, x->feature.size));
        FORMAT_TRY(tx_put_part(t, &x->features, 1, entry->buffer.data, entry->size));
    }
    x->list.size = 0;
    FORMAT_TRY(tx_put_part(t, &x->list, 1, x->features.buffer.data, x->features.size));
    bags_store_bytes(head, 8, false, x->list.size);
    bags_store_bytes(head + 8, 4, false, format_masked_crc(head, 8));
    bags_store_bytes(
        tail, 4, false, format_masked_crc(x->list.buffer.data, x->list.size));
    FORMAT_TRY(bags_target_write(t, head, sizeof head));
    FORMAT_TRY(bags_target_write(t, x->list.buffer.data, x->list.size));
    return bags_target_write(t, tail, sizeof tail);
}

static bags_code tx_shard(bags_target *t) {
    FORMAT_TRY(bags_target_put_shard(t, tx_put_example));
    return bags_target_file_close(t);
}

const bags_exporter bags_export_tfrecord = {"tfrecord", ".tfrecord .tfrecords", false,
    false, false, sizeof(tx_state), tx_open, tx_shard, NULL, NULL};
