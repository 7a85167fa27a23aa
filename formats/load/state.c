/*
 * state.c - saves a loader's position as 64 bytes from which another loader can
 * continue, and computes digests of batches. A state contains hashes of the datasets
 * and of the options that determine the order.
 */
#include "ring.h"

#include "order.h"
#include "random.h"

/* ---- hashes ---- */

/* Not cryptographic: it only detects mistakes. Its results are stored in states, so it
 * must never change. */
static uint64_t loader_hash_number(uint64_t hash, uint64_t number) {
    return format_mix(hash ^ number) + FORMAT_GOLDEN;
}

static uint64_t loader_hash_bytes(uint64_t hash, const void *data, size_t size) {
    const unsigned char *from = (const unsigned char *)data;
    hash = loader_hash_number(hash, size);
    for (; size >= 8; size -= 8, from += 8) {
        hash = (hash ^ bagi_load_u64(from)) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    return loader_hash_number(hash, bags_load_bytes(from, size, false));
}

/* A value's number, if it is one. */
static uint64_t loader_number_of(const bags_value *value) {
    return value->kind == BAGS_KIND_UINT  ? value->uint
           : value->kind == BAGS_KIND_INT ? (uint64_t)value->sint
                                          : 0;
}

/* ---- digests ---- */

/* Covers everything that a training program can see of a datapoint, and nothing that
 * depends on threads or memory layout: no pointers, no padding. */
uint64_t bags_batch_digest(const bags_batch *batch) {
    uint64_t digest = 0;
    for (size_t i = 0; i < batch->length; i++) {
        uint64_t hash =
            loader_hash_number(batch->picks[i].dataset, batch->picks[i].index);
        if (batch->frames)
            hash = loader_hash_number(hash, batch->frames[i]);
        for (size_t k = 0; k < batch->count; k++) {
            const bags_tensor *t = &batch->tensors[k];
            uint64_t first, count;
            bags_view bytes = bags_tensor_get(batch, t, i, &first, &count);
            hash = loader_hash_bytes(hash, t->name, strlen(t->name));
            hash = loader_hash_number(hash, (uint64_t)t->dtype);
            hash = loader_hash_number(hash, count);
            for (size_t d = 1; d < t->dims; d++)
                hash = loader_hash_number(hash, t->shape[d]);
            if (!t->ends && !t->on_device)
                hash = loader_hash_bytes(hash, bytes.data, bytes.size);
            for (uint64_t j = first; t->ends && j < first + count; j++) {
                const bags_value *v = t->values ? &t->values[j] : NULL;
                bytes.data = (const unsigned char *)t->data + t->ends[j];
                bytes.size = v ? v->size : (size_t)(t->ends[j + 1] - t->ends[j]);
                hash = loader_hash_bytes(hash, bytes.data, bytes.size);
                hash = loader_hash_number(hash, v ? loader_number_of(v) : 0);
                hash = loader_hash_number(
                    hash, v ? (uint64_t)v->kind << 8 | (uint64_t)v->dtype : 0);
                for (size_t d = 0; v && d < v->dims; d++)
                    hash = loader_hash_number(hash, v->shape[d]);
            }
        }
        digest += format_mix(hash);
    }
    return digest;
}

/* ---- a state's identity ---- */

#define LOADER_SAMPLE 4096 /* bytes at the start of a blob used to identify it */

/* Hash a dataset's identity: its fields, its length, and three datapoints. */
static bags_code loader_hash_dataset(
    const bags_reader *reader, bags_row *row, uint64_t *hash, bags_error *err) {
    uint64_t length = bags_reader_length(reader);
    bags_error why;
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    *hash = loader_hash_number(*hash, length);
    for (size_t i = 0; i < count; i++) {
        *hash = loader_hash_bytes(*hash, fields[i].name, strlen(fields[i].name));
        *hash = loader_hash_bytes(*hash, fields[i].type, strlen(fields[i].type));
    }
    for (uint64_t i = 0; i < 3 && length; i++) {
        uint64_t index = i == 0 ? 0 : i == 1 ? length / 2 : length - 1;
        for (size_t k = 0; k < count; k++) {
            bags_view blob;
            bags_code code =
                bags_reader_get_blob(reader, index, k, 0, row, &blob, &why);
            if (code && !loader_is_damage(code)) { /* no item 0: damage */
                if (err)
                    *err = why;
                return code;
            }
            *hash = loader_hash_number(*hash, blob.size);
            *hash = loader_hash_bytes(*hash, blob.data,
                blob.size < LOADER_SAMPLE ? blob.size : LOADER_SAMPLE);
        }
    }
    return BAGS_OK;
}

/* Hash the random ranges for a field's images. */
static uint64_t loader_hash_draws(uint64_t hash, const loader_column *c) {
    const bags_load_field *g = &c->given;
    const bags_warp_options *o = &c->warp;
    const bags_jitter_options *j = &c->jitter;
    const bags_interval all[] = {g->area, g->aspect, {g->flip_x, g->flip_y}, o->degrees,
        o->scale, o->shear_x, o->shear_y, o->translate_x, o->translate_y,
        {o->perspective, 0}, j->brightness, j->contrast, j->saturation, j->hue};
    hash = loader_hash_bytes(hash, g->name, strlen(g->name));
    hash = loader_hash_number(hash, (uint64_t)g->crop);
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        double number = i % 2 ? all[i / 2].high : all[i / 2].low;
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        hash = loader_hash_number(hash, bits);
    }
    return hash;
}

static bags_code loader_hash_datasets(
    const bags_loader *l, bags_row *row, uint64_t *hash, bags_error *err) {
    for (size_t i = 0; i < l->count; i++)
        FORMAT_TRY(loader_hash_dataset(l->readers[i], row, hash, err));
    return BAGS_OK;
}

/* Hash the options that determine the order. */
static uint64_t loader_hash_order(const bags_loader *l) {
    const bags_order *o = &l->order;
    const uint32_t *shares = format_order_tables_of(o).shares;
    uint64_t hash = loader_hash_number(0, o->chunk);
    hash = loader_hash_number(hash, o->window);
    hash = loader_hash_number(hash, (uint64_t)o->replacement << 2 |
                                        (uint64_t)o->in_order << 1 |
                                        (uint64_t)l->options.drop_last);
    for (size_t i = 0; o->weighted && i < o->count; i++)
        hash = loader_hash_number(hash, shares[i] + UINT64_C(1));
    if (o->selection)
        hash = loader_hash_number(hash, o->selection);
    if (l->tokens)
        hash = loader_hash_number(hash, l->tokens->hash);
    if (l->frames)
        hash = loader_hash_number(hash, l->frames->hash);
    if (l->packer || l->options.sampler)
        hash = loader_hash_number(hash, o->length);
    if (l->options.sampler)
        hash = loader_hash_number(hash, l->options.sampler_hash);
    for (size_t i = 0; i < l->column_count; i++)
        if (l->columns[i].draws)
            hash = loader_hash_draws(hash, &l->columns[i]);
    return hash;
}

/* Compute both hashes on the first call. */
static bags_code loader_hash_all(bags_loader *l, bags_error *err) {
    uint64_t data = 0;
    bags_row row;
    if (l->hashed)
        return BAGS_OK;
    memset(&row, 0, sizeof row);
    bags_code code = loader_hash_datasets(l, &row, &data, err);
    bags_row_free(&row);
    if (code)
        return code;
    l->data_hash = (uint32_t)(data >> 32);
    l->order_hash = (uint32_t)(loader_hash_order(l) >> 32);
    l->hashed = true;
    return BAGS_OK;
}

/* ---- states ---- */

#define LOADER_STATE_PLAIN "BAGSLD\1\0"
#define LOADER_STATE_PACKED "BAGSPK\1\0"            /* for packed rows */
#define LOADER_STATE_HASHED (BAGS_LOADER_STATE - 8) /* bytes before the hash */

enum {
    LOADER_STATE_SEED,
    LOADER_STATE_EPOCH,
    LOADER_STATE_BATCH,
    LOADER_STATE_LENGTH, /* for packed rows: block and row instead */
    LOADER_STATE_BATCH_SIZE,
    LOADER_STATE_DATASETS,
    LOADER_STATE_DATA_HASH,
    LOADER_STATE_ORDER_HASH,
    LOADER_STATE_NUMBERS
};

/* The numbers in a state, in the order in which they follow its first 8 bytes. */
static const struct loader_state_rule {
    size_t size;         /* in bytes */
    bool shown;          /* print the number in the message */
    const char *differs; /* the error if the number differs; NULL: it may differ */
} loader_state_rules[LOADER_STATE_NUMBERS] = {
    {8, true, "the seed differs"},
    {8, true, NULL},
    {8, true, NULL},
    {8, true, "the number of datapoints differs"},
    {4, true, "the batch size differs"},
    {4, true, "the number of datasets differs"},
    {4, false, "the datasets differ in length, fields, types or content"},
    {4, false,
        "tokens, frames, sampler, selections, replacement, chunk, window, weights, "
        "in_order, "
        "drop_last, or what is drawn for images differ"},
};

/* Compute the numbers that the loader would save now. The position is the caller's; the
 * threads run ahead of it. */
static bags_code loader_state_here(
    bags_loader *l, uint64_t numbers[LOADER_STATE_NUMBERS], bags_error *err) {
    FORMAT_TRY(loader_hash_all(l, err));
    numbers[LOADER_STATE_SEED] = l->order.seed;
    numbers[LOADER_STATE_EPOCH] = l->next.epoch;
    numbers[LOADER_STATE_BATCH] = l->next.batch;
    numbers[LOADER_STATE_LENGTH] =
        l->packer ? l->next.block << 32 | l->next.row
                  : format_order_tables_of(&l->order).starts[l->count];
    numbers[LOADER_STATE_BATCH_SIZE] = l->options.batch;
    numbers[LOADER_STATE_DATASETS] = l->count;
    numbers[LOADER_STATE_DATA_HASH] = l->data_hash;
    numbers[LOADER_STATE_ORDER_HASH] = l->order_hash;
    return BAGS_OK;
}

bags_code bags_loader_save(
    bags_loader *l, unsigned char state[BAGS_LOADER_STATE], bags_error *err) {
    uint64_t numbers[LOADER_STATE_NUMBERS];
    unsigned char *at = state + 8;
    FORMAT_TRY(loader_state_here(l, numbers, err));
    memcpy(state, l->packer ? LOADER_STATE_PACKED : LOADER_STATE_PLAIN, 8);
    for (size_t i = 0; i < LOADER_STATE_NUMBERS; at += loader_state_rules[i++].size)
        bags_store_bytes(at, loader_state_rules[i].size, false, numbers[i]);
    bags_store_bytes(at, 8, false, loader_hash_bytes(0, state, LOADER_STATE_HASHED));
    return BAGS_OK;
}

/* Check a state's bytes and read its numbers. */
static bags_code loader_state_read(const void *from, size_t size, bool *packed,
    uint64_t numbers[LOADER_STATE_NUMBERS], bags_error *err) {
    unsigned char state[BAGS_LOADER_STATE];
    const unsigned char *at = state + 8;
    if (size != sizeof state)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "not a loader's state (%" PRIu64 " bytes, expected 64)", (uint64_t)size);
    memcpy(state, from, sizeof state);
    *packed = memcmp(state, LOADER_STATE_PACKED, 8) == 0;
    if (!*packed && memcmp(state, LOADER_STATE_PLAIN, 8) != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a loader's state of version 1");
    for (size_t i = 0; i < LOADER_STATE_NUMBERS; at += loader_state_rules[i++].size)
        numbers[i] = bags_load_bytes(at, loader_state_rules[i].size, false);
    if (bags_load_bytes(at, 8, false) !=
        loader_hash_bytes(0, state, LOADER_STATE_HASHED))
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "damaged loader state (checksum mismatch)");
    return BAGS_OK;
}

/* Compare one number at a time, so that the message can name the difference. */
static bags_code loader_state_compare(const bags_loader *l,
    const uint64_t has[LOADER_STATE_NUMBERS],
    const uint64_t needs[LOADER_STATE_NUMBERS], bags_error *err) {
    for (size_t i = 0; i < LOADER_STATE_NUMBERS; i++) {
        const struct loader_state_rule *rule = &loader_state_rules[i];
        char values[64] = "";
        if (!rule->differs || has[i] == needs[i] ||
            (l->packer && i == LOADER_STATE_LENGTH))
            continue;
        if (rule->shown)
            (void)snprintf(values, sizeof values, " (%" PRIu64 ", here %" PRIu64 ")",
                has[i], needs[i]);
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a state of other datasets or options: %s%s", rule->differs, values);
    }
    return BAGS_OK;
}

bags_code bags_loader_restore(
    bags_loader *l, const void *state, size_t size, bags_error *err) {
    uint64_t numbers[LOADER_STATE_NUMBERS], needs[LOADER_STATE_NUMBERS];
    bool packed = false;
    FORMAT_TRY(loader_state_read(state, size, &packed, numbers, err));
    FORMAT_TRY(loader_state_here(l, needs, err));
    if (packed != (l->packer != NULL))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a state of other datasets or options: it is %sof packed rows",
            packed ? "" : "not ");
    FORMAT_TRY(loader_state_compare(l, numbers, needs, err));
    if (!packed)
        return bags_loader_seek(
            l, numbers[LOADER_STATE_EPOCH], numbers[LOADER_STATE_BATCH], err);
    const loader_cursor to = {numbers[LOADER_STATE_EPOCH], numbers[LOADER_STATE_BATCH],
        numbers[LOADER_STATE_LENGTH] >> 32, numbers[LOADER_STATE_LENGTH] & UINT32_MAX};
    return bagi_loader_seek_row(l, &to, err);
}
