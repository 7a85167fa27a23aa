/*
 * diff.c - compares two datasets; see datasets.h. No library.
 *
 * Each datapoint of the first dataset, A, has at most one partner in the second, B: the
 * datapoint with the same number or, with a key, with the same key. The latter is found
 * by merging the sorted keys.
 *
 *     a datapoint of A without a partner is removed; one of B is added
 *     partners whose blobs differ are changed
 *     partners whose positions among all partners differ are moved
 *
 * If all shards of both datasets have checksums, blobs are compared by the CRCs in
 * NAME.crc and the sizes in the table; otherwise, or with `exact`, by their bytes. A
 * dictionary needed by a field's blobs counts as part of each blob.
 */
#include "blocks.h"
#include "datasets.h"
#include "files.h"
#include "index.h"

#include <stdlib.h>
#include <string.h>

#define DIFF_BLOCK 256 /* datapoints requested at once */
#define DIFF_NONE UINT64_MAX

/* A field of a shard. */
typedef struct diff_part {
    bool has_sums, has_dictionary; /* which parts were read */
    bag_reader *bag;
    bags_buffer scratch;
    bags_checksums sums;
    uint64_t dictionary; /* CRC and size of NAME.dict; 0: no dictionary */
} diff_part;

typedef struct diff_side {
    const char *path;
    bags_env env;
    bags_reader *reader;
    uint64_t length;
    const bags_shard *shards;
    size_t shards_count, shard; /* number of shards; the shard used last */
    const bags_field *fields;
    size_t fields_count;
    size_t *common;    /* number of each common field */
    diff_part *parts;  /* one for each shard and common field */
    size_t key;        /* number of the field */
    index_key *keys;   /* sorted */
    bool *has_partner; /* for each datapoint; NULL: those below the other length have
                        * one */
    bags_ref *refs;
    bags_row row, key_row;
} diff_side;

typedef struct diff {
    const bags_diff_options *options;
    diff_side a, b;
    size_t common;      /* number of common fields */
    const char **names; /* names of a datapoint's changed fields */
    uint64_t *partners; /* partner of each datapoint of A; NULL: the same number */
    bool exact;
    index_key_type type; /* type of A's keys */
    format_block *blocks;
    bags_diff_report report;
    bags_error *err;
} diff;

static const bags_allocator *diff_allocator(const diff *d) {
    return d->options->env.allocator;
}

/* Allocate zeroed memory for at least one element. diff_close frees it. */
static void *diff_memory(diff *d, uint64_t count, size_t size) {
    if (count < SIZE_MAX)
        return format_block_add(
            &d->blocks, diff_allocator(d), (size_t)count + 1, size, d->err);
    bags_fail(d->err, BAGS_ERROR_MEMORY, "out of memory");
    return NULL;
}

/* ---- open ---- */

static bags_code diff_open_as(diff *d, diff_side *s, bool verify) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.allow_gaps = d->options->allow_gaps;
    options.registry = d->options->registry;
    options.verify_checksums = verify;
    options.env = s->env;
    s->reader = bags_reader_open(s->path, &options, d->err);
    return s->reader ? BAGS_OK : d->err->code;
}

/* Open a side. If *checked, its checksums must match their Bags; if some are missing,
 * *checked becomes false. */
static bags_code diff_open(diff *d, diff_side *s, bool *checked) {
    bags_code code = *checked ? diff_open_as(d, s, true) : BAGS_ERROR_MISSING;
    if (code != BAGS_ERROR_MISSING)
        return code;
    *checked = false;
    return diff_open_as(d, s, false);
}

static bags_code diff_prepare(diff *d, diff_side *s) {
    s->length = bags_reader_length(s->reader);
    s->shards = bags_reader_shards(s->reader, &s->shards_count);
    s->fields = bags_reader_fields(s->reader, &s->fields_count);
    s->refs = (bags_ref *)diff_memory(d, s->fields_count, sizeof *s->refs);
    s->common = (size_t *)diff_memory(d, s->fields_count, sizeof *s->common);
    return s->refs && s->common ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static void diff_report_field(
    diff *d, bags_difference_kind kind, const bags_field *field) {
    bags_difference found;
    memset(&found, 0, sizeof found);
    found.kind = kind;
    found.fields = &field->name;
    found.fields_count = 1;
    found.a = found.b = DIFF_NONE;
    d->report.fields++;
    if (d->options->each)
        d->options->each(d->options->user, &found);
}

/* Find the common fields, and report the others. Both field lists are sorted. */
static bags_code diff_match_fields(diff *d) {
    diff_side *a = &d->a, *b = &d->b;
    for (size_t i = 0, k = 0; i < a->fields_count || k < b->fields_count;) {
        int order = i == a->fields_count ? 1
                    : k == b->fields_count
                        ? -1
                        : strcmp(a->fields[i].name, b->fields[k].name);
        if (order) {
            diff_report_field(d,
                order < 0 ? BAGS_DIFFERENCE_FIELD_REMOVED : BAGS_DIFFERENCE_FIELD_ADDED,
                order < 0 ? &a->fields[i] : &b->fields[k]);
            i += order < 0;
            k += order > 0;
            continue;
        }
        if (strcmp(a->fields[i].type, b->fields[k].type) != 0)
            diff_report_field(d, BAGS_DIFFERENCE_FIELD_TYPE, &a->fields[i]);
        a->common[d->common] = i++;
        b->common[d->common++] = k++;
    }
    d->names = (const char **)diff_memory(d, d->common, sizeof *d->names);
    for (int i = 0; i < 2; i++) {
        diff_side *s = i ? b : a;
        if (d->common && s->shards_count > SIZE_MAX / d->common)
            return bags_fail(d->err, BAGS_ERROR_MEMORY, "out of memory");
        s->parts = (diff_part *)diff_memory(
            d, (uint64_t)s->shards_count * d->common, sizeof *s->parts);
    }
    return d->names && a->parts && b->parts ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* ---- keys ---- */

static bags_code diff_find_key(diff *d, diff_side *s, index_key_type *type) {
    bags_code code = bags_reader_field(s->reader, d->options->key, &s->key, d->err);
    return code ? code : index_find_field(s->reader, s->key, s->path, type, d->err);
}

/* Read and sort the keys of a side. Two datapoints with the same key are an error. */
static bags_code diff_read_keys(
    diff *d, diff_side *s, const index_key_type *type, bags_buffer *text) {
    s->keys = (index_key *)diff_memory(d, s->length, sizeof *s->keys);
    s->has_partner = (bool *)diff_memory(d, s->length, sizeof *s->has_partner);
    if (!s->keys || !s->has_partner)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bagi_keys_read(s->reader, s->key, type, s->keys, text, &s->row, d->err));
    for (uint64_t i = 1; i < s->length; i++)
        if (bagi_keys_compare(&s->keys[i - 1], &s->keys[i]) == 0)
            return bags_fail(d->err, BAGS_ERROR_VALUE,
                "%s: field \"%.200s\": datapoint %" PRIu64
                ": has the key of datapoint %" PRIu64 "; a key must be unique",
                bags_path_tail(s->path), d->options->key, s->keys[i].number,
                s->keys[i - 1].number);
    return BAGS_OK;
}

/* Find the partner of each datapoint of A. */
static bags_code diff_match_keys(diff *d, bags_buffer text[2]) {
    diff_side *a = &d->a, *b = &d->b;
    index_key_type other;
    FORMAT_TRY(diff_find_key(d, a, &d->type));
    FORMAT_TRY(diff_find_key(d, b, &other));
    if (d->type.order != other.order)
        return bags_fail(d->err, BAGS_ERROR_TYPE,
            "%s: field \"%.200s\": keys of type %.100s cannot equal keys of type "
            "%.100s "
            "(%s)",
            bags_path_tail(b->path), d->options->key, b->fields[b->key].type,
            a->fields[a->key].type, bags_path_tail(a->path));
    FORMAT_TRY(diff_read_keys(d, a, &d->type, &text[0]));
    FORMAT_TRY(diff_read_keys(d, b, &other, &text[1]));
    d->partners = (uint64_t *)diff_memory(d, a->length, sizeof *d->partners);
    if (!d->partners)
        return BAGS_ERROR_MEMORY;
    for (uint64_t i = 0; i < a->length; i++)
        d->partners[i] = DIFF_NONE;
    for (uint64_t i = 0, k = 0; i < a->length && k < b->length;) {
        int order = bagi_keys_compare(&a->keys[i], &b->keys[k]);
        if (order == 0) {
            d->partners[a->keys[i].number] = b->keys[k].number;
            a->has_partner[a->keys[i].number] = true;
            b->has_partner[b->keys[k].number] = true;
        }
        i += order <= 0;
        k += order >= 0;
    }
    return BAGS_OK;
}

/* ---- compare ---- */

static uint64_t diff_partner(const diff *d, uint64_t i) {
    if (d->partners)
        return d->partners[i];
    return i < d->b.length ? i : DIFF_NONE;
}

static bool diff_is_added(const diff *d, uint64_t i) {
    return d->b.has_partner ? !d->b.has_partner[i] : i >= d->a.length;
}

/* Set s->shard to the shard of a datapoint. */
static void diff_find_shard(diff_side *s, uint64_t i) {
    const bags_shard *at = &s->shards[s->shard];
    if (i < at->start || i - at->start >= at->length)
        s->shard = format_last_at_most(
            &s->shards->start, sizeof *s->shards, s->shards_count, i);
}

/* Get a common field's part in the current shard. */
static diff_part *diff_part_of(const diff *d, const diff_side *s, size_t k) {
    return &s->parts[s->shard * d->common + k];
}

/* Write the path of a common field's file in the current shard. */
static bags_code diff_path(const diff *d, const diff_side *s, size_t k,
    const char *ending, char path[FORMAT_PATH]) {
    char directory[FORMAT_PATH];
    FORMAT_TRY(bags_shard_path(
        s->path, &s->shards[s->shard], directory, sizeof directory, d->err));
    return format_path(path, directory, s->fields[s->common[k]].name, ending, d->err);
}

/* Determine the dictionary of a field's blobs in the current shard. */
static bags_code diff_read_dictionary(
    diff *d, diff_side *s, size_t k, diff_part *part) {
    const bags_io *io = s->env.io ? s->env.io : bags_io_local();
    const bags_type *type = bags_reader_type(s->reader, s->common[k]);
    char path[FORMAT_PATH];
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_view found = {NULL, 0};
    part->has_dictionary = true;
    if (!format_has_dictionary(type))
        return BAGS_OK;
    FORMAT_TRY(diff_path(d, s, k, ".dict", path));
    int error = io->kind(io->user, path, &kind);
    if (error || kind == BAGS_PATH_NONE)
        return bags_fail_io(io, error, path, "open", d->err);
    FORMAT_TRY(format_read_file(io, path, (uint64_t)16 << 20, BAGS_ERROR_CORRUPT,
        &part->scratch, &found, d->err));
    part->dictionary =
        (uint64_t)found.size << 32 | bags_crc32c(0, found.data, found.size);
    return BAGS_OK;
}

/* Open a field's checksums in the current shard. */
static bags_code diff_read_sums(diff *d, diff_side *s, size_t k, diff_part *part) {
    char path[FORMAT_PATH];
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    options.verify_checksums = true;
    options.env = s->env;
    FORMAT_TRY(diff_path(d, s, k, ".bag", path));
    part->bag = bag_reader_open(path, &options, d->err);
    if (!part->bag)
        return d->err->code;
    FORMAT_TRY(bag_reader_checksums(
        part->bag, 0, UINT64_MAX, &part->scratch, &part->sums, d->err));
    part->has_sums = true;
    return bags_reader_check_shard(s->reader, s->shard, d->err);
}

/* Prepare a common field for comparison, once per shard. */
static bags_code diff_part_ready(diff *d, diff_side *s, size_t k) {
    diff_part *part = diff_part_of(d, s, k);
    if (!part->has_dictionary)
        FORMAT_TRY(diff_read_dictionary(d, s, k, part));
    return d->exact || part->has_sums ? BAGS_OK : diff_read_sums(d, s, k, part);
}

static uint64_t diff_size(const bags_checksums *sums, uint64_t blob) {
    const unsigned char *end = sums->ends + 8 * blob;
    return bags_load_bytes(end, 8, false) -
           (blob ? bags_load_bytes(end - 8, 8, false) : sums->start);
}

/* True if a field's checksums are equal in the two datapoints whose refs were read.
 * Refs that exceed their Bag were refused. */
static bool diff_same_sums(const diff *d, size_t k) {
    const bags_checksums *x = &diff_part_of(d, &d->a, k)->sums;
    const bags_checksums *y = &diff_part_of(d, &d->b, k)->sums;
    const bags_ref *p = &d->a.refs[d->a.common[k]], *q = &d->b.refs[d->b.common[k]];
    bool same = p->count == q->count;
    for (uint64_t i = 0; i < p->count && same; i++)
        same = !memcmp(x->crcs + 4 * (p->first + i), y->crcs + 4 * (q->first + i), 4) &&
               diff_size(x, p->first + i) == diff_size(y, q->first + i);
    return same;
}

/* The same for bytes; the rows have all fields. */
static bool diff_same_bytes(const diff *d, size_t k) {
    size_t i = d->a.common[k], j = d->b.common[k];
    size_t count = bags_row_length(&d->a.row, i);
    bool same = count == bags_row_length(&d->b.row, j);
    for (size_t n = 0; n < count && same; n++) {
        bags_view x = bags_row_bytes(&d->a.row, i, n);
        bags_view y = bags_row_bytes(&d->b.row, j, n);
        same = x.size == y.size && (x.size == 0 || !memcmp(x.data, y.data, x.size));
    }
    return same;
}

/* Read a datapoint for comparison. */
static bags_code diff_read(diff *d, diff_side *s, uint64_t i) {
    diff_find_shard(s, i);
    if (d->exact)
        FORMAT_TRY(bags_reader_get(s->reader, i, NULL, 0, &s->row, d->err));
    else
        FORMAT_TRY(bags_reader_refs(s->reader, i, &s->row, s->refs, d->err));
    for (size_t k = 0; k < d->common; k++)
        FORMAT_TRY(diff_part_ready(d, s, k));
    return BAGS_OK;
}

/* Report a datapoint; one of its two numbers may be DIFF_NONE. */
static bags_code diff_report(
    diff *d, bags_difference_kind kind, uint64_t a, uint64_t b, size_t fields) {
    diff_side *s = a == DIFF_NONE ? &d->b : &d->a;
    bags_select key = bags_select_all(s->key);
    bags_difference found;
    bags_value value;
    memset(&found, 0, sizeof found);
    found.kind = kind;
    found.a = a;
    found.b = b;
    found.fields = d->names;
    found.fields_count = fields;
    if (!d->options->each)
        return BAGS_OK;
    if (d->options->key) {
        uint64_t i = a == DIFF_NONE ? b : a;
        FORMAT_TRY(bags_reader_get(s->reader, i, &key, 1, &s->key_row, d->err));
        FORMAT_TRY(bags_row_value(&s->key_row, 0, 0, NULL, &value, d->err));
        found.key = &value;
        found.key_type = s->fields[s->key].type;
    }
    d->options->each(d->options->user, &found);
    return BAGS_OK;
}

/* Compare partners. */
static bags_code diff_compare(diff *d, uint64_t i, uint64_t partner) {
    size_t changed = 0;
    FORMAT_TRY(diff_read(d, &d->a, i));
    FORMAT_TRY(diff_read(d, &d->b, partner));
    for (size_t k = 0; k < d->common; k++) {
        bool same = diff_part_of(d, &d->a, k)->dictionary ==
                        diff_part_of(d, &d->b, k)->dictionary &&
                    (d->exact ? diff_same_bytes(d, k) : diff_same_sums(d, k));
        if (!same)
            d->names[changed++] = d->a.fields[d->a.common[k]].name;
    }
    d->report.changed += changed > 0;
    return changed ? diff_report(d, BAGS_DIFFERENCE_CHANGED, i, partner, changed)
                   : BAGS_OK;
}

/* On a server, requesting the refs (or everything) of many datapoints at once costs one
 * wait. */
static bags_code diff_request(
    diff *d, diff_side *s, const uint64_t *numbers, size_t count) {
    static const bags_select none = {0, false, 0, 0, 0};
    if (!s->env.io || !s->env.io->read_many || count == 0)
        return BAGS_OK;
    return bags_reader_prefetch(
        s->reader, numbers, count, d->exact ? NULL : &none, 0, &s->row, d->err);
}

/* Compare the datapoints start <= i < stop of A. *place is the first datapoint of B
 * that has a partner, but none among the earlier datapoints of A. */
static bags_code diff_block(diff *d, uint64_t start, uint64_t stop, uint64_t *place) {
    uint64_t own[DIFF_BLOCK], other[DIFF_BLOCK];
    size_t count = 0;
    for (uint64_t i = start; i < stop; i++) {
        own[count] = i;
        other[count] = diff_partner(d, i);
        count += other[count] != DIFF_NONE;
    }
    FORMAT_TRY(diff_request(d, &d->a, own, count));
    FORMAT_TRY(diff_request(d, &d->b, other, count));
    for (uint64_t i = start; i < stop; i++) {
        uint64_t partner = diff_partner(d, i);
        if (partner == DIFF_NONE) {
            d->report.removed++;
            FORMAT_TRY(diff_report(d, BAGS_DIFFERENCE_REMOVED, i, DIFF_NONE, 0));
            continue;
        }
        while (diff_is_added(d, *place))
            ++*place;
        if ((*place)++ != partner) {
            d->report.moved++;
            FORMAT_TRY(diff_report(d, BAGS_DIFFERENCE_MOVED, i, partner, 0));
        }
        FORMAT_TRY(diff_compare(d, i, partner));
    }
    return BAGS_OK;
}

static bags_code diff_datapoints(diff *d) {
    uint64_t total = d->a.length, place = 0;
    for (uint64_t i = 0; i < total; i += DIFF_BLOCK) {
        uint64_t stop = total - i < DIFF_BLOCK ? total : i + DIFF_BLOCK;
        FORMAT_TRY(diff_block(d, i, stop, &place));
        if (d->options->progress &&
            !d->options->progress(d->options->user, stop, total))
            return bags_fail(
                d->err, BAGS_ERROR_IO, "%s: interrupted", bags_path_tail(d->a.path));
    }
    for (uint64_t i = d->b.has_partner ? 0 : total; i < d->b.length; i++) {
        if (!diff_is_added(d, i))
            continue;
        d->report.added++;
        FORMAT_TRY(diff_report(d, BAGS_DIFFERENCE_ADDED, DIFF_NONE, i, 0));
    }
    FORMAT_TRY(bags_reader_check(d->a.reader, d->err));
    return bags_reader_check(d->b.reader, d->err);
}

static bags_code diff_run(diff *d, bags_buffer text[2]) {
    bool checked = !d->options->exact;
    FORMAT_TRY(diff_open(d, &d->a, &checked));
    FORMAT_TRY(diff_open(d, &d->b, &checked));
    d->exact = !checked;
    d->report.probable = checked;
    FORMAT_TRY(diff_prepare(d, &d->a));
    FORMAT_TRY(diff_prepare(d, &d->b));
    if (d->options->key)
        FORMAT_TRY(diff_match_keys(d, text));
    FORMAT_TRY(diff_match_fields(d));
    return diff_datapoints(d);
}

static void diff_close(diff *d, diff_side *s) {
    for (size_t i = 0; s->parts && i < s->shards_count * d->common; i++) {
        bag_reader_close(s->parts[i].bag);
        bags_buffer_free(&s->parts[i].scratch);
    }
    bags_row_free(&s->row);
    bags_row_free(&s->key_row);
    bags_reader_close(s->reader);
}

bags_code bags_diff(const char *a, const char *b, const bags_diff_options *options,
    bags_diff_report *report, bags_error *err) {
    bags_diff_options none;
    bags_error why; /* may also come from a read to be repeated without checksums */
    bags_buffer text[2];
    diff d;
    memset(&none, 0, sizeof none);
    memset(&d, 0, sizeof d);
    d.options = options ? options : &none;
    d.err = &why;
    d.a.path = a;
    d.b.path = b;
    d.a.env = d.b.env = d.options->env;
    if (d.options->a)
        d.a.env.io = d.options->a;
    if (d.options->b)
        d.b.env.io = d.options->b;
    text[0] = text[1] = bags_buffer_of(diff_allocator(&d));
    bags_code code =
        a && b ? diff_run(&d, text)
               : bags_fail(d.err, BAGS_ERROR_ARGUMENT, "bags_diff: NULL argument");
    diff_close(&d, &d.a);
    diff_close(&d, &d.b);
    format_blocks_free(d.blocks);
    bags_buffer_free(&text[0]);
    bags_buffer_free(&text[1]);
    if (code && err)
        *err = why;
    if (report)
        *report = d.report;
    return code;
}
