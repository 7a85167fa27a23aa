/*
 * split.c - assigns the datapoints of a dataset to parts, such as train and val. No
 * library.
 *
 * Datapoints that must stay together form a group. Groups are sorted by stratum, then by
 * decreasing size, then randomly. Each group goes to the part that still lacks the most
 * datapoints, so that the sizes are as exact as the groups allow.
 */
#include "blocks.h"
#include "datasets.h"
#include "index.h"
#include "load.h"
#include "text.h"
#include "values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A selected datapoint and its group. */
typedef struct split_member {
    uint64_t major, minor; /* sort keys, followed by the index */
    uint64_t stratum;      /* hash of the value of `stratify`; 0 without it */
    uint64_t first;        /* the first selected datapoint in this group */
    uint64_t size;         /* number of datapoints in the group */
    size_t index;          /* index of the datapoint in the selection */
} split_member;

typedef struct splitting {
    const bags_reader *const *readers;
    size_t readers_count;
    const bags_split_options *options;
    uint64_t length;
    size_t count; /* selected datapoints */
    format_block *blocks;
    split_member *members;
    bags_row row;
    bags_buffer plain;
} splitting;

static int split_compare(const void *a, const void *b) {
    const split_member *one = (const split_member *)a, *two = (const split_member *)b;
    if (one->major != two->major)
        return one->major < two->major ? -1 : 1;
    if (one->minor != two->minor)
        return one->minor < two->minor ? -1 : 1;
    return one->index < two->index ? -1 : one->index > two->index;
}

static int split_compare_strata(const void *a, const void *b) {
    const split_member *one = (const split_member *)a, *two = (const split_member *)b;
    if (one->stratum != two->stratum)
        return one->stratum < two->stratum ? -1 : 1;
    return split_compare(a, b);
}

static uint64_t split_row(const splitting *s, size_t i) {
    return s->options->rows ? s->options->rows[i] : i;
}

/* ---- values ---- */

/* Only whole numbers, utf8 and bytes have shares: floats are rarely equal. */
static bags_code split_check_strata(
    const bags_reader *reader, const char *name, bags_error *err) {
    index_key_type type;
    size_t field;
    FORMAT_TRY(bags_reader_field(reader, name, &field, err));
    type = index_key_type_of(bags_reader_type(reader, field));
    if (type.order != INDEX_NONE && type.order != INDEX_FLOAT)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%s: field \"%.200s\": values of type %.100s cannot be stratified (only whole "
        "numbers, utf8 and bytes)",
        bags_path_tail(bags_reader_path(reader)), name,
        bags_reader_fields(reader, NULL)[field].type);
}

/* Hash the items of a datapoint's field. For zstd(TYPE), the inner blobs are hashed,
 * since equal values may have different frames. */
static bags_code split_hash(
    splitting *s, const char *name, uint64_t index, uint64_t *hash, bags_error *err) {
    const bags_reader *const *reader = s->readers;
    bags_type inside;
    size_t field;
    for (; index >= bags_reader_length(*reader); reader++)
        index -= bags_reader_length(*reader);
    FORMAT_TRY(bags_reader_field(*reader, name, &field, err));
    bool compressed = format_type_inside(bags_reader_type(*reader, field), &inside);
    bags_select select = bags_select_all(field);
    FORMAT_TRY(bags_reader_get(*reader, index, &select, 1, &s->row, err));
    *hash = 0;
    for (size_t item = 0; item < bags_row_length(&s->row, 0); item++) {
        bags_view blob = bags_row_bytes(&s->row, 0, item);
        unsigned char size[8];
        bags_value value;
        if (compressed) {
            FORMAT_TRY(bags_row_value(&s->row, 0, item, &s->plain, &value, err));
            if (value.kind != BAGS_KIND_BYTES && value.kind != BAGS_KIND_UTF8)
                return bags_fail(err, BAGS_ERROR_TYPE,
                    "%s: field \"%.200s\": the codec of zstd must have the option "
                    "`blobs`",
                    bags_path_tail(bags_reader_path(*reader)), name);
            blob.data = (const unsigned char *)value.data;
            blob.size = value.size;
        }
        bags_store_bytes(size, 8, false, blob.size);
        *hash = format_hash(*hash, size, sizeof size);
        *hash = format_hash(*hash, blob.data, blob.size);
    }
    return BAGS_OK;
}

static bags_code split_read(splitting *s, bags_error *err) {
    const bags_split_options *o = s->options;
    for (size_t i = 0; i < s->count; i++) {
        split_member *member = &s->members[i];
        uint64_t row = split_row(s, i);
        member->index = i;
        member->major = i;
        if (o->by)
            FORMAT_TRY(split_hash(s, o->by, row, &member->major, err));
        if (o->stratify)
            FORMAT_TRY(split_hash(s, o->stratify, row, &member->stratum, err));
        if (o->progress && i % 1024 == 0 && !o->progress(o->user, i, s->count))
            return bags_fail(err, BAGS_ERROR_IO, "%s: interrupted",
                bags_path_tail(bags_reader_path(s->readers[0])));
    }
    return BAGS_OK;
}

/* ---- groups ---- */

/* A group with several values of `stratify` fits no stratum. */
static bags_code split_fail_mixed(
    const splitting *s, const split_member *a, const split_member *b, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_VALUE,
        "%s: datapoints %" PRIu64 " and %" PRIu64 " have equal values of field "
        "\"%.200s\", but different values of field \"%.200s\"",
        bags_path_tail(bags_reader_path(s->readers[0])), split_row(s, a->index),
        split_row(s, b->index), s->options->by, s->options->stratify);
}

/* Group the selected datapoints: one per group, or all with equal values. Sort the
 * groups by stratum, then by decreasing size, and groups of equal size randomly. */
static bags_code split_sort(splitting *s, bags_error *err) {
    split_member *members = s->members;
    uint64_t groups = 0, group = 0;
    qsort(members, s->count, sizeof *members, split_compare);
    for (size_t i = 0, stop; i < s->count; i = stop, groups++) {
        for (stop = i; stop < s->count && members[stop].major == members[i].major;)
            members[stop++].first = members[i].index;
        for (size_t k = i; k < stop; k++) {
            members[k].size = stop - i;
            if (members[k].stratum != members[i].stratum)
                return split_fail_mixed(s, &members[i], &members[k], err);
        }
    }
    /* A group is numbered by its first datapoint. */
    for (size_t i = 0; i < s->count; i++)
        members[i].major = members[i].first;
    qsort(members, s->count, sizeof *members, split_compare);
    for (size_t i = 0; i < s->count; i++) {
        group += i > 0 && members[i].first != members[i - 1].first;
        members[i].major = UINT64_MAX - members[i].size;
        members[i].minor = bags_permute_inverse(s->options->seed, 0, groups, group);
    }
    qsort(members, s->count, sizeof *members, split_compare_strata);
    return BAGS_OK;
}

/* Add the number of datapoints that each part lacks of `count` more. The last entry
 * belongs to no part. Whole numbers, unless strata must carry their fractions on. */
static void split_add(const splitting *s, size_t count, double *lacks) {
    const bags_split_options *o = s->options;
    double sum = 0, start = 0;
    for (size_t k = 0; k <= o->parts_count; k++) {
        sum = k < o->parts_count ? sum + o->parts[k] : 1;
        double stop = sum * (double)count;
        if (!o->stratify)
            stop = (double)(uint64_t)(stop + 0.5);
        stop = stop < (double)count ? stop : (double)count;
        lacks[k] += stop - start;
        start = stop;
    }
}

static void split_assign(const splitting *s, double *lacks, uint32_t *part_of) {
    const split_member *members = s->members;
    for (size_t i = 0, most = 0, stop = 0; i < s->count; i++) {
        if (i == stop) { /* a new stratum */
            while (stop < s->count && members[stop].stratum == members[i].stratum)
                stop++;
            split_add(s, stop - i, lacks);
        }
        if (i == 0 || members[i].first != members[i - 1].first) {
            most = 0;
            for (size_t k = 1; k <= s->options->parts_count; k++)
                if (lacks[k] > lacks[most])
                    most = k;
            lacks[most] -= (double)members[i].size;
        }
        part_of[members[i].index] = (uint32_t)most;
    }
}

/* ---- the call ---- */

static bags_code split_check(splitting *s, bags_error *err) {
    const bags_split_options *o = s->options;
    double sum = 0;
    for (size_t k = 0; k < o->parts_count; k++) {
        if (!(o->parts[k] > 0) || o->parts[k] > 1)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "part %" PRIu64 ": %g is not above 0 and up to 1", (uint64_t)k,
                o->parts[k]);
        sum += o->parts[k];
    }
    if (!o->parts_count || sum > 1 + 1e-9)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "the parts add up to %g, not above 0 and up to 1", sum);
    if (o->parts_count >= UINT32_MAX || s->length > SIZE_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT, "too many parts or datapoints");
    unsigned char *seen = (unsigned char *)format_block_add(
        &s->blocks, o->env.allocator, (size_t)s->length + 1, 1, err);
    if (!seen)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; o->rows && i < o->rows_count; i++) {
        if (o->rows[i] >= s->length)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: index %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(bags_reader_path(s->readers[0])), o->rows[i], s->length);
        if (seen[o->rows[i]]++)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "datapoint %" PRIu64 " is selected twice, and could be in two parts",
                o->rows[i]);
    }
    return BAGS_OK;
}

static bags_code split_run(splitting *s, bags_buffer *out, bags_error *err) {
    const bags_allocator *allocator = s->options->env.allocator;
    FORMAT_TRY(split_check(s, err));
    s->count = s->options->rows ? s->options->rows_count : (size_t)s->length;
    s->members = (split_member *)format_block_add(
        &s->blocks, allocator, s->count + 1, sizeof *s->members, err);
    double *lacks = (double *)format_block_add(
        &s->blocks, allocator, s->options->parts_count + 1, sizeof *lacks, err);
    if (!s->members || !lacks)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_buffer_reserve(out, (s->count + 1) * sizeof(uint32_t), err));
    if (s->options->stratify)
        FORMAT_TRY(split_check_strata(s->readers[0], s->options->stratify, err));
    FORMAT_TRY(split_read(s, err));
    FORMAT_TRY(split_sort(s, err));
    split_assign(s, lacks, (uint32_t *)(void *)out->data);
    return BAGS_OK;
}

bags_code bags_split(const bags_reader *const *readers, size_t readers_count,
    const bags_split_options *options, bags_buffer *out, bags_error *err) {
    splitting s;
    bags_error ignored;
    err = err ? err : &ignored;
    memset(&s, 0, sizeof s);
    if (!readers || !readers_count || !options || !out)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL or 0");
    s.readers = readers;
    s.readers_count = readers_count;
    s.options = options;
    for (size_t i = 0; i < readers_count; i++)
        s.length += bags_reader_length(readers[i]);
    bags_code code = split_run(&s, out, err);
    format_blocks_free(s.blocks);
    bags_row_free(&s.row);
    bags_buffer_free(&s.plain);
    return code;
}
