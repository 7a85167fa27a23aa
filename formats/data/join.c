/*
 * join.c - matches datapoints of a derived dataset's source with datapoints of another
 * dataset by key; see bags_derive_join in datasets.h.
 *
 * The keys of the other dataset are sorted in memory; each selected datapoint's key is
 * then found by bisection.
 */
#include "derived.h"
#include "index.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#ifndef BAGS_NO_WRITER

#define JOIN_BLOCK 256 /* datapoints requested at once */

typedef struct join_work {
    derive *d;
    derive_source *other;
    const char *on, *from; /* names of the key in the source and in the other dataset */
    index_key_type type;   /* type of the other dataset's keys */
    index_key *keys;       /* sorted */
    uint64_t count;        /* number of keys */
    uint64_t missing,
        first_missing; /* selected datapoints without a match; the first */
    char shown[80];    /* its key */
    bags_buffer text;
    bags_row row;
} join_work;

/* Write a key for a message. */
static void join_show(char out[80], const index_key_type *type, bags_view key) {
    bool clean = type->order == INDEX_BYTES;
    size_t at = 0;
    if (!clean && key.size == INDEX_NUMBER) {
        uint64_t number = bags_load_bytes(key.data, INDEX_NUMBER, true);
        int64_t whole = (int64_t)(number ^ (uint64_t)1 << 63);
        if (type->order == INDEX_INT)
            (void)snprintf(out, 80, "%" PRId64, whole);
        else
            (void)snprintf(out, 80, "%" PRIu64, number);
        return;
    }
    for (size_t i = 0; i < key.size && clean; i++)
        clean = key.data[i] >= ' ' && key.data[i] != 127 && key.data[i] != '"';
    if (clean) {
        (void)snprintf(out, 80, "\"%.*s\"%s", (int)(key.size < 60 ? key.size : 60),
            key.size ? (const char *)key.data : "", key.size > 60 ? "..." : "");
        return;
    }
    out[0] = 0;
    for (size_t i = 0; i < key.size && i < 30; i++)
        at += (size_t)snprintf(out + at, 80 - at, "%02x", key.data[i]);
    (void)snprintf(out + at, 80 - at, "%s", key.size > 30 ? "..." : " (bytes)");
}

/* Find the key of a dataset, and check that its type can be matched. */
static bags_code join_find(const derive_source *s, const char *name, size_t *field,
    index_key_type *type, bags_error *err) {
    bags_type inside;
    FORMAT_TRY(bags_reader_field(s->reader, name, field, err));
    FORMAT_TRY(index_find_field(s->reader, *field, s->path, type, err));
    bool compressed = format_type_inside(bags_reader_type(s->reader, *field), &inside);
    if (type->order != INDEX_FLOAT && (!compressed || type->order == INDEX_BYTES))
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%.200s\": values of type %.100s cannot match (only whole numbers, "
        "utf8 and bytes)",
        bags_path_tail(s->path), name,
        bags_reader_fields(s->reader, NULL)[*field].type);
}

/* Read the keys of the other dataset. Two datapoints with the same key are an error,
 * unless the first is to be used. */
static bags_code join_read(join_work *w, bags_error *err) {
    const derive_source *other = w->other;
    size_t field = 0;
    char shown[80];
    w->count = bags_reader_length(other->reader);
    if (w->count >= SIZE_MAX)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    FORMAT_TRY(join_find(other, w->from, &field, &w->type, err));
    w->keys =
        (index_key *)bagi_derived_array(w->d, (size_t)w->count, sizeof *w->keys, err);
    if (!w->keys)
        return err->code;
    FORMAT_TRY(bagi_keys_read(
        other->reader, field, &w->type, w->keys, &w->text, &w->row, err));
    for (uint64_t i = 1; i < w->count && !other->join->first; i++) {
        const index_key *key = &w->keys[i];
        if (bagi_keys_compare(key - 1, key) != 0)
            continue;
        bags_view bytes = {key->data, key->size};
        join_show(shown, &w->type, bytes);
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: field \"%.200s\": datapoints %" PRIu64 " and %" PRIu64
            " have the same key (%s)",
            bags_path_tail(other->path), w->from, key[-1].number, key->number, shown);
    }
    return BAGS_OK;
}

/* The number of the first datapoint with a key; DERIVE_NONE if there is none. */
static uint64_t join_search(const join_work *w, bags_view bytes) {
    index_key key = bagi_keys_make(bytes, 0);
    uint64_t low = 0, high = w->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (bagi_keys_compare(&w->keys[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->count && !bagi_keys_compare(&w->keys[low], &key)
               ? w->keys[low].number
               : DERIVE_NONE;
}

/* Match `count` selected datapoints of one part of the source. */
static bags_code join_match(join_work *w, const derive_source *part, size_t field,
    uint64_t at, size_t count, bags_error *err) {
    uint64_t rows[JOIN_BLOCK];
    for (size_t i = 0; i < count; i++)
        rows[i] = derive_row(w->d, at + i) - part->start;
    FORMAT_TRY(bags_reader_get_many(part->reader, rows, count, field, &w->row, err));
    for (size_t i = 0; i < count; i++) {
        unsigned char number[INDEX_NUMBER];
        bags_value value;
        bags_view key = {NULL, 0};
        FORMAT_TRY(bags_row_value(&w->row, 0, i, NULL, &value, err));
        /* As the end of a range: a number outside the other type matches no key. */
        bags_code code = index_key_make(&w->type, &value, true, number, &key, err);
        if (code)
            return format_fail_at(part->reader, w->on, rows[i], UINT64_MAX, code, err);
        uint64_t found = join_search(w, key);
        w->other->matches[at + i] = found;
        if (found != DERIVE_NONE || w->missing++)
            continue;
        w->first_missing = derive_row(w->d, at + i);
        join_show(w->shown, &w->type, key);
    }
    return BAGS_OK;
}

static bags_code join_match_all(join_work *w, bags_error *err) {
    const derive *d = w->d;
    for (uint64_t at = 0; at < d->length;) {
        const derive_source *part = &d->sources[derive_part_of(d, derive_row(d, at))];
        size_t count = 1, field = 0;
        index_key_type type;
        while (count < JOIN_BLOCK && count < d->length - at &&
               &d->sources[derive_part_of(d, derive_row(d, at + count))] == part)
            count++;
        FORMAT_TRY(join_find(part, w->on, &field, &type, err));
        if ((type.order == INDEX_BYTES) != (w->type.order == INDEX_BYTES))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.200s\": text cannot match numbers (%s: field "
                "\"%.200s\")",
                bags_path_tail(part->path), w->on, bags_path_tail(w->other->path),
                w->from);
        FORMAT_TRY(join_match(w, part, field, at, count, err));
        at += count;
    }
    if (!w->missing || w->other->join->drop)
        return BAGS_OK;
    w->d->report->missing = w->missing;
    return bags_fail(err, BAGS_ERROR_MISSING,
        "%s: field \"%.200s\": datapoint %" PRIu64
        ": %s has no datapoint with this key "
        "(%s); %" PRIu64 " of %" PRIu64 " datapoints have no match",
        bags_path_tail(d->sources->path), w->on, w->first_missing,
        bags_path_tail(w->other->path), w->shown, w->missing, d->length);
}

static bags_code join_source(derive *d, derive_source *other, bags_error *err) {
    join_work w;
    memset(&w, 0, sizeof w);
    w.d = d;
    w.other = other;
    w.on = other->join->on;
    w.from = other->join->from ? other->join->from : w.on;
    w.text = bags_buffer_of(d->options->env.allocator);
    if (!w.on)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the name of a key is NULL");
    if (d->length >= SIZE_MAX)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    other->matches = (uint64_t *)bagi_derived_array(
        d, (size_t)d->length, sizeof *other->matches, err);
    if (!other->matches)
        return err->code;
    bags_code code = join_read(&w, err);
    if (!code)
        code = join_match_all(&w, err);
    bags_buffer_free(&w.text);
    bags_row_free(&w.row);
    return code;
}

bags_code bagi_derived_join(derive *d, bags_error *err) {
    uint64_t kept = 0;
    bool any = false;
    for (size_t s = d->parts_count; s < d->sources_count; s++)
        if (d->sources[s].join) {
            FORMAT_TRY(join_source(d, &d->sources[s], err));
            any = true;
        }
    if (!any)
        return BAGS_OK;
    uint64_t *rows =
        (uint64_t *)bagi_derived_array(d, (size_t)d->length, sizeof *rows, err);
    if (!rows)
        return err->code;
    for (uint64_t i = 0; i < d->length; i++) {
        bool matched = true;
        for (size_t s = d->parts_count; s < d->sources_count; s++)
            matched = matched &&
                      (!d->sources[s].join || d->sources[s].matches[i] != DERIVE_NONE);
        if (!matched)
            continue;
        for (size_t s = d->parts_count; s < d->sources_count; s++)
            if (d->sources[s].join)
                d->sources[s].matches[kept] = d->sources[s].matches[i];
        rows[kept++] = derive_row(d, i);
    }
    d->report->missing = d->length - kept;
    d->rows = rows;
    d->length = kept;
    return BAGS_OK;
}

#endif /* BAGS_NO_WRITER */
