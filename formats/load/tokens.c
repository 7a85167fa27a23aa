/*
 * tokens.c - makes fixed-length sequences from documents of any length: windows over
 * token streams, and packing.
 *
 * A stream is the concatenation of a shard's documents, each with its BOS and EOS. The
 * Bag stores the documents contiguously, and its table holds their ends, so a window is
 * a range of bytes, and a token's document is found by searching the table. If the
 * shard is *direct*, nothing else is needed or kept in memory:
 *
 *     direct    mapped, with one blob per datapoint, in order. The table and refs are
 *               checked when the tokens are opened
 *     indirect  all other shards, such as those in derived datasets: a table of
 *               document ends is built when the tokens are opened, and the reader reads
 *               each document
 *
 * Packing assigns whole documents to rows by first-fit decreasing, in blocks of
 * documents that are neighbours in the shuffled order. It reads only lengths.
 */
#include "tokens.h"
#include "blocks.h"
#include "files.h"
#include "load.h"
#include "random.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX_LENGTH (UINT64_C(1) << 28)

/* A field in one shard. */
typedef struct tokens_stream {
    bool direct;
    const unsigned char *data; /* if the shard is direct */
    bags_buffer ends;          /* if indirect: 8 bytes per document, as in a table */
} tokens_stream;

/* A shard in one of the datasets. */
typedef struct tokens_shard {
    uint64_t start, documents; /* the first document, and how many there are */
    uint64_t tokens;           /* including BOS and EOS */
    uint64_t windows_before, windows;
    tokens_stream *streams; /* one per field */
} tokens_shard;

typedef struct tokens_dataset {
    const bags_reader *reader;
    size_t *fields;
    tokens_shard *shards;
    size_t shard_count;
    bags_tokens_info info;
} tokens_dataset;

struct bags_tokens {
    format_tokens shared; /* the part that loader.c sees; must be first */
    bags_tokens_options options;
    format_block *blocks;
    tokens_dataset *datasets;
    size_t dataset_count, field_count;
    const char **names; /* of the fields */
    bags_dtype *dtypes; /* of the fields */
    uint64_t extra;     /* how many tokens BOS and EOS add to each document */
};

static void *tokens_allocate(
    bags_tokens *t, size_t count, size_t size, bags_error *err) {
    return format_block_add(&t->blocks, t->options.allocator, count, size, err);
}

/* ---- reading documents ---- */

/* A field's open Bag in a shard: its table and, if direct, its blobs. */
typedef struct tokens_view {
    const unsigned char *data, *ends; /* `data` NULL: indirect */
    size_t element;                   /* bytes per token */
} tokens_view;

static bags_code tokens_fail_field(const bags_tokens *t, const tokens_dataset *d,
    size_t field, bags_code code, const char *what, bags_error *err) {
    return bags_fail(err, code, "%s: field \"%.200s\": %s",
        bags_path_tail(bags_reader_path(d->reader)), t->names[field], what);
}

static bags_code tokens_view_of(const bags_tokens *t, const tokens_dataset *d,
    size_t shard, size_t field, bags_row *row, tokens_view *out, bags_error *err) {
    const tokens_shard *s = &d->shards[shard];
    const tokens_stream *stream = &s->streams[field];
    bag_blobs range;
    out->data = NULL;
    out->ends = stream->ends.data;
    out->element = bags_dtype_size(t->dtypes[field]);
    if (!stream->direct)
        return BAGS_OK;
    FORMAT_TRY(
        bags_reader_blobs(d->reader, shard, d->fields[field], true, row, &range, err));
    out->data = range.data;
    out->ends = range.ends;
    return BAGS_OK;
}

/* Count the elements in the documents before number i. */
static uint64_t tokens_before(const tokens_view *v, uint64_t i) {
    return i ? bags_load_bytes(v->ends + 8 * (i - 1), 8, false) / v->element : 0;
}

/* A document's number of elements, from the table. The entire table was checked
 * before. */
static uint64_t tokens_length(const tokens_view *v, uint64_t i) {
    return tokens_before(v, i + 1) - tokens_before(v, i);
}

static bags_code tokens_fail(const bags_tokens *t, const tokens_dataset *d,
    size_t field, bags_code code, uint64_t datapoint, bags_error *err) {
    return format_fail_at(d->reader, t->names[field], datapoint, UINT64_MAX, code, err);
}

/* Get the elements of document i. */
static bags_code tokens_document(const bags_tokens *t, const tokens_dataset *d,
    size_t shard, size_t field, const tokens_view *v, uint64_t i, bags_row *row,
    bags_view *out, bags_error *err) {
    uint64_t start = tokens_before(v, i) * v->element;
    uint64_t size = tokens_length(v, i) * v->element;
    if (v->data) {
        out->data = v->data + (size_t)start;
        out->size = (size_t)size;
        return BAGS_OK;
    }
    uint64_t datapoint = d->shards[shard].start + i;
    FORMAT_TRY(
        bags_reader_get_blob(d->reader, datapoint, d->fields[field], 0, row, out, err));
    if (out->size == size)
        return BAGS_OK;
    bags_fail(err, BAGS_ERROR_CHANGED,
        "changed since it was opened (%" PRIu64 " bytes, had %" PRIu64 ")",
        (uint64_t)out->size, size);
    return tokens_fail(t, d, field, BAGS_ERROR_CHANGED, datapoint, err);
}

/* Find the document at a position in the stream (below the stream's length), and where
 * it starts: the last non-empty document that starts at or before the position. */
static uint64_t tokens_find(const bags_tokens *t, const tokens_shard *s,
    const tokens_view *v, uint64_t place, uint64_t *start) {
    uint64_t low = 0, high = s->documents;
    *start = 0;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        uint64_t at = tokens_before(v, middle) + middle * t->extra;
        if (at <= place) {
            low = middle;
            *start = at;
        } else
            high = middle;
    }
    return low;
}

/* Write elements first ... first + count - 1 of a document, counting its BOS and EOS.
 * Fields after the first one have zeros in place of BOS and EOS. */
static void tokens_put(const bags_tokens *t, size_t field, bags_view document,
    uint64_t first, uint64_t count, unsigned char *to) {
    bags_dtype dtype = t->dtypes[field];
    size_t element = bags_dtype_size(dtype), size = 0;
    uint64_t length = document.size / element, bos = t->options.has_bos;
    uint32_t added = field ? 0 : t->options.bos;
    unsigned char number[8];
    memset(number, 0, sizeof number);
    if (first < bos && count) {
        bags_store_bytes(number, element, !bags_little_endian(), added);
        memcpy(to, number, element);
        to += element;
        first++;
        count--;
    }
    if (count && first - bos < length) {
        uint64_t left = length - (first - bos), part = left < count ? left : count;
        size = (size_t)part * element;
        const unsigned char *from = document.data + (size_t)(first - bos) * element;
        if (bags_little_endian())
            memcpy(to, from, size);
        else
            bags_swap_bytes(to, from, size, bags_dtype_swap(dtype));
        to += size;
        count -= part;
    }
    if (count) {
        added = field ? 0 : t->options.eos;
        bags_store_bytes(number, element, !bags_little_endian(), added);
        memcpy(to, number, element);
    }
}

/* Check that parallel fields have the same number of elements in each document. */
static bags_code tokens_check_parallel(const bags_tokens *t, const tokens_dataset *d,
    size_t shard, const tokens_view *all, size_t field, uint64_t i, bags_error *err) {
    uint64_t has = tokens_length(&all[field], i), needs = tokens_length(&all[0], i);
    if (has == needs)
        return BAGS_OK;
    bags_fail(err, BAGS_ERROR_VALUE,
        "%" PRIu64 " elements, but field \"%.100s\" has %" PRIu64, has, t->names[0],
        needs);
    return tokens_fail(t, d, field, BAGS_ERROR_VALUE, d->shards[shard].start + i, err);
}

/* Like tokens_put, for document i of a field. */
static bags_code tokens_copy(const bags_tokens *t, const tokens_dataset *d,
    size_t shard, const tokens_view *views, size_t field, uint64_t i, uint64_t first,
    uint64_t count, bags_row *row, unsigned char *to, bags_error *err) {
    bags_view document = {NULL, 0};
    if (field)
        FORMAT_TRY(tokens_check_parallel(t, d, shard, views, field, i, err));
    FORMAT_TRY(
        tokens_document(t, d, shard, field, &views[field], i, row, &document, err));
    tokens_put(t, field, document, first, count, to);
    return BAGS_OK;
}

/* ---- windows ---- */

static size_t tokens_find_shard(const tokens_dataset *d, uint64_t index, bool windows) {
    const uint64_t *first = windows ? &d->shards->windows_before : &d->shards->start;
    return format_last_at_most(first, sizeof *d->shards, d->shard_count, index);
}

#if defined(__GNUC__)
#define TOKENS_TOUCH(data) __builtin_prefetch(data)
#else
#define TOKENS_TOUCH(data) ((void)(data))
#endif

/* Prefetch a window into the processor's caches while the previous window is being
 * copied. */
static void tokens_touch(const bags_tokens *t, const bags_pick *pick) {
    const tokens_dataset *d = &t->datasets[pick->dataset];
    const tokens_shard *s = &d->shards[tokens_find_shard(d, pick->index, true)];
    size_t element = bags_dtype_size(t->dtypes[0]);
    uint64_t first = (pick->index - s->windows_before) * t->options.stride;
    const unsigned char *data = s->streams[0].data;
    if (!data || t->extra)
        return;
    data += (size_t)first * element;
    for (size_t i = 0; i < (size_t)t->options.length * element && i < 8192; i += 64)
        TOKENS_TOUCH(data + i);
}

/* Copy a window. out[i] has space for tensor i's window. */
static bags_code tokens_window(const bags_tokens *t, bags_row *row,
    const bags_pick *pick, unsigned char *const *out, bags_error *err) {
    const tokens_dataset *d = &t->datasets[pick->dataset];
    size_t shard = tokens_find_shard(d, pick->index, true);
    const tokens_shard *s = &d->shards[shard];
    uint64_t length = t->options.length, start = 0;
    uint64_t first = (pick->index - s->windows_before) * t->options.stride;
    tokens_view views[FORMAT_TOKENS_FIELDS];
    for (size_t f = 0; f < t->field_count; f++)
        FORMAT_TRY(tokens_view_of(t, d, shard, f, row, &views[f], err));
    bool plain = views[0].data && !t->extra && bags_little_endian();
    if (plain)
        memcpy(out[0], views[0].data + (size_t)(first * views[0].element),
            (size_t)(length + 1) * views[0].element);
    if (plain && t->shared.count == 1)
        return BAGS_OK;
    uint64_t i = tokens_find(t, s, &views[0], first, &start), done = 0;
    bool places = t->options.places;
    int32_t *documents = places ? (int32_t *)(void *)out[t->field_count] : NULL;
    int32_t *positions = places ? (int32_t *)(void *)out[t->field_count + 1] : NULL;
    for (; done < length + 1; i++) {
        uint64_t all = tokens_length(&views[0], i) + t->extra;
        uint64_t from = first + done - start;
        uint64_t part = all - from < length + 1 - done ? all - from : length + 1 - done;
        for (size_t f = plain; f < t->field_count && part; f++)
            FORMAT_TRY(tokens_copy(t, d, shard, views, f, i, from, part, row,
                out[f] + (size_t)done * views[f].element, err));
        uint64_t inputs = length - done < part ? length - done : part;
        for (uint64_t k = 0; places && k < inputs; k++)
            documents[done + k] = (int32_t)(s->start + i);
        for (uint64_t k = 0; places && k < inputs; k++)
            positions[done + k] = (int32_t)(from + k);
        start += all;
        done += part;
    }
    return BAGS_OK;
}

/* ---- packing ---- */

/* A document's length, including BOS and EOS. */
static bags_code tokens_length_of(const bags_tokens *t, bags_row *row,
    const bags_pick *pick, uint64_t *length, bags_error *err) {
    const tokens_dataset *d = &t->datasets[pick->dataset];
    size_t shard = tokens_find_shard(d, pick->index, false);
    tokens_view view;
    FORMAT_TRY(tokens_view_of(t, d, shard, 0, row, &view, err));
    *length = tokens_length(&view, pick->index - d->shards[shard].start) + t->extra;
    return BAGS_OK;
}

/* Copy a piece of a document. out[i] has space for it in field i's tensor. */
static bags_code tokens_piece(const bags_tokens *t, bags_row *row,
    const bags_piece *piece, unsigned char *const *out, bags_error *err) {
    const tokens_dataset *d = &t->datasets[piece->dataset];
    size_t shard = tokens_find_shard(d, piece->document, false);
    uint64_t i = piece->document - d->shards[shard].start;
    tokens_view views[FORMAT_TOKENS_FIELDS];
    for (size_t f = 0; f < t->field_count; f++) {
        FORMAT_TRY(tokens_view_of(t, d, shard, f, row, &views[f], err));
        FORMAT_TRY(tokens_copy(
            t, d, shard, views, f, i, piece->first, piece->length, row, out[f], err));
    }
    return BAGS_OK;
}

static int tokens_compare(const void *a, const void *b) {
    uint64_t one, two;
    memcpy(&one, a, sizeof one);
    memcpy(&two, b, sizeof two);
    return one < two ? -1 : one > two;
}

/*
 * First-fit decreasing: keys are sorted, longest first, and each goes to the first row
 * with enough space. The space in each row is a leaf of a tree whose inner nodes hold
 * the larger of their two children. Unused rows are empty, so a row is always found.
 */
static void tokens_fit(const uint64_t *keys, size_t count, uint64_t length,
    uint32_t *tree, size_t leaves, uint32_t *row_of, uint32_t *rows) {
    for (size_t i = 0; i < 2 * leaves; i++)
        tree[i] = (uint32_t)length;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = (uint32_t)(length - (keys[i] >> 32));
        size_t at = 1;
        while (at < leaves)
            at = 2 * at + (tree[2 * at] < size);
        row_of[(uint32_t)keys[i]] = (uint32_t)(at - leaves);
        if (at - leaves >= *rows)
            *rows = (uint32_t)(at - leaves + 1);
        tree[at] -= size;
        for (at /= 2; at > 0; at /= 2)
            tree[at] =
                tree[2 * at] > tree[2 * at + 1] ? tree[2 * at] : tree[2 * at + 1];
    }
}

/* The number of pieces that a document forms in rows of S tokens. */
static uint64_t tokens_piece_count(const bags_tokens *t, uint64_t length) {
    uint64_t most = t->options.length;
    if (length > most && t->options.long_documents == BAGS_LONG_DROP)
        return 0;
    return length ? (length - 1) / most + 1 : 0;
}

/* Amount packed: documents, their pieces, and documents without a piece. */
typedef struct tokens_block {
    size_t count;
    uint64_t pieces, dropped;
} tokens_block;

/* Find a block's documents and their lengths, and reserve memory for its rows. */
static bags_code tokens_measure(const bags_tokens *t, format_packer *p, bags_row *row,
    const bags_order *order, uint64_t epoch, uint64_t block, tokens_block *out,
    bags_error *err) {
    uint64_t start = block * FORMAT_PACK_BLOCK, left = order->length - start;
    out->count = (size_t)(left < FORMAT_PACK_BLOCK ? left : FORMAT_PACK_BLOCK);
    out->pieces = out->dropped = 0;
    FORMAT_TRY(bags_order_get(order, epoch, start, out->count, p->picks, err));
    for (size_t i = 0; i < out->count; i++) {
        FORMAT_TRY(tokens_length_of(t, row, &p->picks[i], &p->lengths[i], err));
        uint64_t pieces = tokens_piece_count(t, p->lengths[i]);
        out->dropped += p->lengths[i] && !pieces;
        out->pieces += pieces;
    }
    if (out->pieces > UINT32_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "too many rows for a block of documents (%" PRIu64 "); use longer rows",
            out->pieces);
    FORMAT_TRY(bags_buffer_reserve(
        &p->pieces, (size_t)out->pieces * sizeof(bags_piece) + 1, err));
    return bags_buffer_reserve(
        &p->rows, ((size_t)out->pieces + 1) * 2 * sizeof(uint32_t), err);
}

/*
 * Pack an epoch's block number `block`: the documents at FORMAT_PACK_BLOCK positions of
 * the order. Rows filled by a single piece come first, then the first-fit rows. If the
 * order is shuffled, so are all rows.
 */
static bags_code tokens_pack(const bags_tokens *t, format_packer *p, bags_row *row,
    const bags_order *order, uint64_t epoch, uint64_t block, bags_error *err) {
    const bags_pick *picks = p->picks;
    const uint64_t *lengths = p->lengths;
    uint64_t most = t->options.length;
    tokens_block b;
    p->valid = false;
    p->row_count = 0;
    FORMAT_TRY(tokens_measure(t, p, row, order, epoch, block, &b, err));
    /* Pieces that fill a row, and each document's remainder. */
    uint32_t full = 0, rows = 0, rest = 0;
    size_t leaves = 1;
    for (size_t i = 0; i < b.count; i++) {
        uint64_t pieces = tokens_piece_count(t, lengths[i]);
        uint64_t size = pieces ? lengths[i] - (pieces - 1) * most : 0;
        p->full[i] = (uint32_t)(pieces - (size > 0 && size < most));
        full += p->full[i];
        if (size > 0 && size < most)
            p->keys[rest++] = (most - size) << 32 | i;
    }
    while (leaves < rest)
        leaves *= 2;
    qsort(p->keys, rest, sizeof *p->keys, tokens_compare);
    tokens_fit(p->keys, rest, most, p->tree, leaves, p->row_of, &rows);
    /* Where each row starts. Row r ends up as row place[r]. */
    uint32_t *starts = (uint32_t *)(void *)p->rows.data, *place = starts + b.pieces + 1;
    uint64_t all = (uint64_t)full + rows;
    uint64_t key = format_key(format_key(order->seed, ~epoch), block);
    for (uint64_t r = 0; r < all; r++)
        place[r] = (uint32_t)(order->in_order ? r : bags_permute(key, 0, all, r));
    memset(starts, 0, (size_t)(all + 1) * sizeof *starts);
    for (uint32_t r = 0; r < full; r++)
        starts[place[r] + 1]++;
    for (uint32_t i = 0; i < rest; i++)
        starts[place[full + p->row_of[(uint32_t)p->keys[i]]] + 1]++;
    for (uint64_t r = 0; r < all; r++)
        starts[r + 1] += starts[r];
    bags_piece *pieces = (bags_piece *)(void *)p->pieces.data;
    uint32_t row_at = 0;
    for (size_t i = 0; i < b.count; i++)
        for (uint64_t k = 0; k < p->full[i]; k++) {
            bags_piece *to = &pieces[starts[place[row_at++]]];
            to->dataset = picks[i].dataset;
            to->document = picks[i].index;
            to->first = k * most;
            to->length = most;
        }
    memset(p->filled, 0, rows * sizeof *p->filled);
    for (uint32_t i = 0; i < rest; i++) {
        uint32_t number = (uint32_t)p->keys[i], r = p->row_of[number];
        bags_piece *to = &pieces[starts[place[full + r]] + p->filled[r]++];
        to->dataset = picks[number].dataset;
        to->document = picks[number].index;
        to->length = most - (p->keys[i] >> 32);
        to->first = lengths[number] - to->length;
    }
    p->row_count = (size_t)all;
    p->dropped = b.dropped;
    p->epoch = epoch;
    p->block = block;
    p->valid = true;
    return BAGS_OK;
}

/* ---- opening ---- */

/* Find a field that stores raw elements, and its dtype. */
static bags_code tokens_find_field(
    bags_tokens *t, const tokens_dataset *d, size_t field, bags_error *err) {
    FORMAT_TRY(bags_reader_field(d->reader, t->names[field], &d->fields[field], err));
    const bags_type *type = bags_reader_type(d->reader, d->fields[field]);
    bags_view first = bags_type_argument(type, 0);
    bool bytes = bags_view_is(type->name, "bytes"), is_first = field == 0;
    bags_dtype given = t->options.stored, dtype = BAGS_DTYPE_NONE;
    uint64_t side;
    if (bytes)
        dtype = is_first ? given : BAGS_DTYPE_UINT8;
    /* One dimension of any length. */
    if (bags_view_is(type->name, "array") && type->count == 2 &&
        !bags_type_number(type, 1, &side))
        dtype = bags_dtype_parse((const char *)first.data, first.size, NULL);
    bool is_token = dtype == BAGS_DTYPE_UINT16 || dtype == BAGS_DTYPE_UINT32 ||
                    dtype == BAGS_DTYPE_INT32 || (bytes && dtype == BAGS_DTYPE_UINT8);
    const format_rule rules[] = {
        {type->sequence, "a sequence has no tokens; a document must be one array"},
        {bytes && !dtype, "of type bytes: its dtype must be given as `stored`"},
        {!dtype, "not of a type whose blobs are elements: array(DTYPE,-1) or bytes"},
        {is_first && !bytes && given && given != dtype,
            "its type has another dtype than the option `stored`"},
        {is_first && !is_token, "tokens must be uint16, uint32 or int32"},
        {d != t->datasets && dtype != t->dtypes[field],
            "another dtype than in the first dataset"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return tokens_fail_field(t, d, field, BAGS_ERROR_TYPE, rules[i].what, err);
    t->dtypes[field] = dtype;
    return BAGS_OK;
}

/* Check a table: entries must not decrease, and must be multiples of the element size.
 * Violations are accumulated, so that there is only one branch at the end. */
static bags_code tokens_check_table(const bags_tokens *t, tokens_dataset *d,
    const tokens_shard *s, size_t field, const unsigned char *ends, bags_error *err) {
    size_t element = bags_dtype_size(t->dtypes[field]);
    uint64_t last = 0, odd = 0, falls = 0, longest = 0, longer = 0;
    uint64_t most = t->options.length > t->extra ? t->options.length - t->extra : 0;
    for (uint64_t i = 0; i < s->documents; i++) {
        uint64_t end = bags_load_bytes(ends + 8 * i, 8, false);
        odd |= end & (element - 1);
        falls |= end < last;
        longest = end - last > longest ? end - last : longest;
        longer += end - last > most * element;
        last = end;
    }
    if (falls)
        return tokens_fail_field(
            t, d, field, BAGS_ERROR_CORRUPT, "the table of its Bag decreases", err);
    if (longest / element > INT32_MAX)
        return tokens_fail_field(t, d, field, BAGS_ERROR_LIMIT,
            "a document of 2^31 elements or more; positions are int32", err);
    d->info.longer += field ? 0 : longer;
    for (uint64_t i = 0, before = 0; odd && i < s->documents; i++) {
        uint64_t end = bags_load_bytes(ends + 8 * i, 8, false);
        if ((end - before) % element) {
            bags_fail(err, BAGS_ERROR_VALUE,
                "%" PRIu64 " bytes, not a multiple of %d as %s needs", end - before,
                (int)element, bags_dtype_name(t->dtypes[field]));
            return tokens_fail(t, d, field, BAGS_ERROR_VALUE, s->start + i, err);
        }
        before = end;
    }
    return BAGS_OK;
}

/* Build the table of document ends, in the order in which the reader returns
 * documents. */
static bags_code tokens_make_table(const tokens_dataset *d, const tokens_shard *s,
    size_t field, bags_row *row, bags_buffer *ends, bags_error *err) {
    uint64_t at = 0;
    if (s->documents > SIZE_MAX / 8)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    FORMAT_TRY(bags_buffer_reserve(ends, (size_t)s->documents * 8, err));
    for (uint64_t i = 0; i < s->documents;) {
        uint64_t stop = i + 256 < s->documents ? i + 256 : s->documents;
        FORMAT_TRY(bags_reader_get_range(
            d->reader, s->start + i, s->start + stop, d->fields[field], row, err));
        for (size_t k = 0; i < stop; i++, k++) {
            at += bags_row_bytes(row, 0, k).size;
            bags_store_bytes(ends->data + 8 * i, 8, false, at);
        }
    }
    return BAGS_OK;
}

/* Prepare a field in one shard. */
static bags_code tokens_open_stream(bags_tokens *t, tokens_dataset *d, size_t shard,
    size_t field, bags_row *row, bags_error *err) {
    tokens_shard *s = &d->shards[shard];
    tokens_stream *stream = &s->streams[field];
    bag_blobs range;
    if (s->documents == 0)
        return BAGS_OK;
    bags_code code =
        bags_reader_blobs(d->reader, shard, d->fields[field], false, row, &range, err);
    if (!code && range.ends) /* mapped, so refs are read only once */
        code = bags_reader_blobs(
            d->reader, shard, d->fields[field], true, row, &range, err);
    if (code && code != BAGS_ERROR_RANGE)
        return code;
    stream->direct = !code && range.ends;
    if (stream->direct)
        stream->data = range.data;
    else
        FORMAT_TRY(tokens_make_table(d, s, field, row, &stream->ends, err));
    const unsigned char *ends = stream->direct ? range.ends : stream->ends.data;
    FORMAT_TRY(tokens_check_table(t, d, s, field, ends, err));
    if (field == 0)
        s->tokens = bags_load_bytes(ends + 8 * (s->documents - 1), 8, false) /
                        bags_dtype_size(t->dtypes[0]) +
                    s->documents * t->extra;
    return BAGS_OK;
}

static void tokens_count_windows(
    const bags_tokens *t, tokens_shard *s, uint64_t before, bags_tokens_info *info) {
    uint64_t length = t->options.length, stride = t->options.stride;
    uint64_t used = 0;
    s->windows_before = before;
    if (s->tokens > length)
        s->windows = (s->tokens - 1 - length) / stride + 1;
    if (s->windows && stride > length)
        used = s->windows * length;
    else if (s->windows)
        used = (s->windows - 1) * stride + length;
    info->documents += s->documents;
    info->tokens += s->tokens;
    info->windows += s->windows;
    info->unused += s->tokens - used;
}

static bags_code tokens_open_shard(
    bags_tokens *t, tokens_dataset *d, size_t shard, bags_row *row, bags_error *err) {
    tokens_shard *s = &d->shards[shard];
    size_t count;
    const bags_shard *own = &bags_reader_shards(d->reader, &count)[shard];
    s->start = own->start;
    s->documents = own->length;
    s->streams =
        (tokens_stream *)tokens_allocate(t, t->field_count, sizeof *s->streams, err);
    if (!s->streams)
        return BAGS_ERROR_MEMORY;
    for (size_t f = 0; f < t->field_count; f++) {
        s->streams[f].ends = bags_buffer_of(t->options.allocator);
        FORMAT_TRY(tokens_open_stream(t, d, shard, f, row, err));
    }
    tokens_count_windows(t, s, d->info.windows, &d->info);
    return BAGS_OK;
}

static bags_code tokens_open_dataset(
    bags_tokens *t, tokens_dataset *d, bags_row *row, bags_error *err) {
    size_t count;
    (void)bags_reader_shards(d->reader, &count);
    d->fields = (size_t *)tokens_allocate(t, t->field_count, sizeof *d->fields, err);
    d->shards = (tokens_shard *)tokens_allocate(t, count, sizeof *d->shards, err);
    if (!d->fields || !d->shards)
        return BAGS_ERROR_MEMORY;
    d->shard_count = count;
    for (size_t f = 0; f < t->field_count; f++)
        FORMAT_TRY(tokens_find_field(t, d, f, err));
    if (bags_reader_length(d->reader) > INT32_MAX)
        return tokens_fail_field(t, d, 0, BAGS_ERROR_LIMIT,
            "2^31 documents or more; their numbers are int32", err);
    for (size_t i = 0; i < count; i++)
        FORMAT_TRY(tokens_open_shard(t, d, i, row, err));
    return BAGS_OK;
}

/* Open the datasets, and count the units that the order shuffles: windows or, if
 * packed, documents. */
static bags_code tokens_open_datasets(
    bags_tokens *t, const bags_reader *const *readers, bags_row *row, bags_error *err) {
    for (size_t i = 0; i < t->dataset_count; i++) {
        tokens_dataset *d = &t->datasets[i];
        d->reader = t->shared.readers[i] = readers[i];
        FORMAT_TRY(tokens_open_dataset(t, d, row, err));
        t->shared.units[i] =
            t->options.pack ? bags_reader_length(readers[i]) : d->info.windows;
    }
    return BAGS_OK;
}

/* Windows that are longer than the tokens of every shard would silently be no batch. */
static bags_code tokens_check_windows(const bags_tokens *t, bags_error *err) {
    const tokens_shard *longest = NULL;
    const tokens_dataset *of = t->datasets;
    char what[160];
    for (size_t i = 0; i < t->dataset_count && !t->options.pack; i++) {
        const tokens_dataset *d = &t->datasets[i];
        if (d->info.windows)
            return BAGS_OK;
        for (size_t k = 0; k < d->shard_count; k++)
            if (d->shards[k].tokens > (longest ? longest->tokens : 0)) {
                longest = &d->shards[k];
                of = d;
            }
    }
    if (!longest)
        return BAGS_OK;
    (void)snprintf(what, sizeof what,
        "no window: a window has %" PRIu64 " tokens, and the longest shard has %" PRIu64
        "; choose a smaller length, or pack",
        t->options.length + 1, longest->tokens);
    return tokens_fail_field(t, of, 0, BAGS_ERROR_VALUE, what, err);
}

static bags_code tokens_check_options(const bags_tokens_options *o, bags_error *err) {
    const format_rule rules[] = {
        {!o->field, "tokens without a field"},
        {o->length == 0 || o->length > TOKENS_MAX_LENGTH,
            "the length of a window or row must be 1 to 2^28"},
        {o->stride > TOKENS_MAX_LENGTH, "the stride must be at most 2^28"},
        {o->pack && o->stride, "pack and stride are mutually exclusive"},
        {!o->pack && o->long_documents, "long_documents without pack"},
        {o->long_documents > BAGS_LONG_DROP, "no such long_documents"},
        {!o->parallel != !o->parallel_count,
            "parallel and parallel_count must be set together"},
        {o->parallel_count >= FORMAT_TOKENS_FIELDS, "too many parallel fields"},
        {(o->bos && !o->has_bos) || (o->eos && !o->has_eos),
            "bos without has_bos, or eos without has_eos"},
        {o->pack && o->places, "pack and places are mutually exclusive"},
    };
    return FORMAT_CHECK(rules, "", err);
}

/* True if a token of this dtype can have this id. */
static bool tokens_has_id(bags_dtype dtype, uint32_t id) {
    return id <= (dtype == BAGS_DTYPE_UINT8       ? UINT8_MAX
                     : dtype == BAGS_DTYPE_UINT16 ? UINT16_MAX
                     : dtype == BAGS_DTYPE_INT32  ? (uint32_t)INT32_MAX
                                                  : UINT32_MAX);
}

static void tokens_add_tensor(
    bags_tokens *t, const char *name, bags_dtype dtype, uint64_t length) {
    format_tokens_tensor *to = &t->shared.tensors[t->shared.count++];
    to->name = name;
    to->dtype = to->stored = dtype;
    to->length = length;
}

/* Describe the tensors, and hash the options that determine the order. */
static bags_code tokens_describe(bags_tokens *t, bags_error *err) {
    const bags_tokens_options *o = &t->options;
    format_tokens *s = &t->shared;
    s->tensors = (format_tokens_tensor *)tokens_allocate(
        t, t->field_count + 2, sizeof *s->tensors, err);
    if (!s->tensors)
        return BAGS_ERROR_MEMORY;
    for (size_t f = 0; f < t->field_count; f++)
        tokens_add_tensor(t, t->names[f], t->dtypes[f], o->pack ? 0 : o->length + 1);
    if (o->dtype)
        s->tensors->dtype = o->dtype;
    if (o->pack)
        tokens_add_tensor(t, "cu_seqlens", BAGS_DTYPE_INT32, 0);
    else if (o->places) {
        tokens_add_tensor(t, "documents", BAGS_DTYPE_INT32, o->length);
        tokens_add_tensor(t, "positions", BAGS_DTYPE_INT32, o->length);
    }
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < i; k++)
            if (!strcmp(s->tensors[i].name, s->tensors[k].name))
                return tokens_fail_field(t, t->datasets, k < t->field_count ? k : 0,
                    BAGS_ERROR_FIELD,
                    i < t->field_count ? "listed twice"
                                       : "has the name of another tensor",
                    err);
    const uint64_t numbers[] = {o->length, o->stride,
        (uint64_t)o->pack << 1 | o->has_bos, (uint64_t)o->has_eos, o->bos, o->eos,
        (uint64_t)o->long_documents};
    /* States cover an array's dtype through its type. Tokens stored as bytes are mostly
     * uint16. */
    const tokens_dataset *d = t->datasets;
    size_t element = bags_dtype_size(t->dtypes[0]);
    s->hash = FORMAT_GOLDEN;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        s->hash = format_mix(s->hash ^ numbers[i]) + FORMAT_GOLDEN;
    for (const char *c = o->field; *c; c++)
        s->hash = format_mix(s->hash ^ (unsigned char)*c) + FORMAT_GOLDEN;
    if (element != 2 &&
        bags_view_is(bags_reader_type(d->reader, d->fields[0])->name, "bytes"))
        s->hash = format_mix(s->hash ^ element) + FORMAT_GOLDEN;
    s->packed = o->pack;
    s->length = o->length;
    s->field_count = t->field_count;
    s->touch = tokens_touch;
    s->window = tokens_window;
    s->piece = tokens_piece;
    s->pack = tokens_pack;
    return BAGS_OK;
}

/* Copy the fields' names. */
static bags_code tokens_copy_names(bags_tokens *t, bags_error *err) {
    bags_tokens_options *o = &t->options;
    for (size_t f = 0; f < t->field_count; f++) {
        const char *name = f ? o->parallel[f - 1] : o->field;
        if (!name)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "a field without a name");
        char *copy = (char *)tokens_allocate(t, strlen(name) + 1, 1, err);
        if (!copy)
            return BAGS_ERROR_MEMORY;
        memcpy(copy, name, strlen(name) + 1);
        t->names[f] = copy;
    }
    o->field = t->names[0];
    return BAGS_OK;
}

static bags_code tokens_prepare(
    bags_tokens *t, const bags_reader *const *readers, size_t count, bags_error *err) {
    bags_tokens_options *o = &t->options;
    bags_row row;
    FORMAT_TRY(tokens_check_options(o, err));
    if (!readers || !count)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "no dataset");
    o->stride = o->stride ? o->stride : o->length;
    t->extra = (uint64_t)o->has_bos + o->has_eos;
    t->field_count = 1 + o->parallel_count;
    t->names = (const char **)tokens_allocate(t, t->field_count, sizeof *t->names, err);
    t->dtypes =
        (bags_dtype *)tokens_allocate(t, t->field_count, sizeof *t->dtypes, err);
    t->datasets = (tokens_dataset *)tokens_allocate(t, count, sizeof *t->datasets, err);
    t->shared.readers =
        (const bags_reader **)tokens_allocate(t, count, sizeof *readers, err);
    t->shared.units = (uint64_t *)tokens_allocate(t, count, sizeof(uint64_t), err);
    if (!t->names || !t->dtypes || !t->datasets || !t->shared.readers ||
        !t->shared.units)
        return BAGS_ERROR_MEMORY;
    t->dataset_count = t->shared.dataset_count = count;
    FORMAT_TRY(tokens_copy_names(t, err));
    memset(&row, 0, sizeof row);
    bags_code code = tokens_open_datasets(t, readers, &row, err);
    bags_row_free(&row);
    if (code)
        return code;
    if ((o->has_bos && !tokens_has_id(t->dtypes[0], o->bos)) ||
        (o->has_eos && !tokens_has_id(t->dtypes[0], o->eos)))
        return tokens_fail_field(t, t->datasets, 0, BAGS_ERROR_VALUE,
            "bos or eos is out of range for its dtype", err);
    FORMAT_TRY(tokens_check_windows(t, err));
    return tokens_describe(t, err);
}

bags_tokens *bags_tokens_open(const bags_reader *const *readers, size_t count,
    const bags_tokens_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_tokens *t = (bags_tokens *)format_state(
        options ? options->allocator : NULL, sizeof *t, err);
    if (!t)
        return NULL;
    if (options)
        t->options = *options;
    if (!tokens_prepare(t, readers, count, err))
        return t;
    bags_tokens_close(t);
    return NULL;
}

void bags_tokens_close(bags_tokens *t) {
    if (!t)
        return;
    for (size_t i = 0; t->datasets && i < t->dataset_count; i++)
        for (size_t k = 0; k < t->datasets[i].shard_count; k++)
            for (size_t f = 0; t->datasets[i].shards[k].streams && f < t->field_count;
                 f++)
                bags_buffer_free(&t->datasets[i].shards[k].streams[f].ends);
    format_blocks_free(t->blocks);
    format_state_close(t);
}

bags_tokens_info bags_tokens_count(const bags_tokens *t, size_t dataset) {
    bags_tokens_info none;
    memset(&none, 0, sizeof none);
    return dataset < t->dataset_count ? t->datasets[dataset].info : none;
}
