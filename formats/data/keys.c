/*
 * keys.c - the keys of all datapoints in memory, sorted; see index.h. diff.c and join.c
 * match the datapoints of two datasets with them.
 */
#include "blocks.h"
#include "index.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_BLOCK 256 /* datapoints requested at once */

int bagi_keys_compare(const void *x, const void *y) {
    const index_key *a = (const index_key *)x, *b = (const index_key *)y;
    if (a->prefix != b->prefix)
        return a->prefix < b->prefix ? -1 : 1;
    bags_view one = {a->data, a->size}, two = {b->data, b->size};
    return index_compare_keys(one, two);
}

static int keys_compare_numbered(const void *x, const void *y) {
    const index_key *a = (const index_key *)x, *b = (const index_key *)y;
    int order = bagi_keys_compare(x, y);
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

index_key bagi_keys_make(bags_view bytes, uint64_t number) {
    size_t front = bytes.size < 8 ? bytes.size : 8;
    index_key key = {0, bytes.data, bytes.size, number};
    if (front)
        key.prefix = bags_load_bytes(bytes.data, front, true) << 8 * (8 - front);
    return key;
}

/* Append the keys in a row to `text`. The row's first datapoint is `start`. */
static bags_code keys_add(const bags_reader *reader, size_t field,
    const index_key_type *type, index_key *keys, uint64_t start, bags_row *row,
    bags_buffer *text, size_t *used, bags_error *err) {
    for (size_t i = 0; i < bags_row_length(row, 0); i++) {
        unsigned char number[INDEX_NUMBER];
        bags_value value;
        bags_view key = {NULL, 0};
        FORMAT_TRY(bags_row_value(row, 0, i, NULL, &value, err));
        bags_code code = index_key_make(type, &value, false, number, &key, err);
        if (code)
            return format_fail_at(reader, bags_reader_fields(reader, NULL)[field].name,
                start + i, UINT64_MAX, code, err);
        if (key.size > SIZE_MAX / 2 - *used)
            return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        FORMAT_TRY(bags_buffer_reserve(text, *used + key.size + 1, err));
        if (key.size)
            memcpy(text->data + *used, key.data, key.size);
        keys[start + i] = bagi_keys_make(key, start + i);
        *used += key.size;
    }
    return BAGS_OK;
}

bags_code bagi_keys_read(const bags_reader *reader, size_t field,
    const index_key_type *type, index_key *keys, bags_buffer *text, bags_row *row,
    bags_error *err) {
    uint64_t length = bags_reader_length(reader);
    size_t used = 0;
    for (uint64_t i = 0; i < length; i += KEYS_BLOCK) {
        uint64_t stop = length - i < KEYS_BLOCK ? length : i + KEYS_BLOCK;
        FORMAT_TRY(bags_reader_get_range(reader, i, stop, field, row, err));
        FORMAT_TRY(keys_add(reader, field, type, keys, i, row, text, &used, err));
    }
    const unsigned char *data = text->data;
    for (uint64_t i = 0; i < length; i++) { /* the buffer has moved */
        keys[i].data = data;
        data += keys[i].size;
    }
    if (length)
        qsort(keys, (size_t)length, sizeof *keys, keys_compare_numbered);
    return BAGS_OK;
}
