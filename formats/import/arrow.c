/*
 * arrow.c - imports Arrow files and streams (.arrow, .arrows, .feather version 2,
 * .ipc), raw or compressed, using zstd and lz4 (Debian: libzstd-dev liblz4-dev). It
 * parses flatbuffers itself, because Debian has no Arrow library.
 *
 * Each column becomes a field, or for a struct, each of its members: "column.member". A
 * datapoint is a row.
 *
 *     integers           i64, u64
 *     dates, times,      i64, in their unit since 1970 or midnight; the field's name
 *     durations          ends in the unit: "time_ns"; time zones are left out
 *     floats, Booleans   array(DTYPE)
 *     text               utf8; so are decimals
 *     binary             jpeg, png, ... if all values begin like such a file, else
 *                        bytes
 *     {bytes, path}      the bytes: images and audio of Hugging Face's datasets; NULL
 *                        bytes with a path (a file elsewhere) are an error
 *     lists, maps        sequences; of structs, one per member; a list in a list is
 *                        array(DTYPE,-1). NULL is an empty sequence
 *     fixed-size lists   array(DTYPE,N)
 *     dictionaries       like their values
 *
 * A column with NULLs becomes a sequence of 0 or 1. To find these columns, open reads
 * the source once. Rejected: NULL in a list, unions, intervals, run-end encoding, list
 * views, dictionary deltas, big-endian files.
 */
#include "detect.h"
#include "lz4_frames.h"
#include "try.h"

#include <inttypes.h>
#include <stdio.h>
#include <zstd.h>

#define AR_DEPTH 16
#define AR_NODES 65536               /* maximum number of fields, including members */
#define AR_ROWS 1000000              /* maximum number of rows not backed by a buffer */
#define AR_TEXT 1200                 /* more characters than any decimal needs */
#define AR_MOST ((uint64_t)1 << 31)  /* maximum bytes of a batch */
#define AR_RATIO ((uint64_t)1 << 16) /* no compression expands a byte to more */

/* ---- flatbuffers: positions in a buffer; 0: missing or invalid ---- */

static size_t ar_field(bags_view fb, size_t table, unsigned i) {
    if (!table || table > fb.size - 4)
        return 0;
    int64_t vtable =
        (int64_t)table - (int32_t)bags_load_bytes(fb.data + table, 4, false);
    if (vtable < 0 || (size_t)vtable > fb.size - 4)
        return 0;
    const unsigned char *entries = fb.data + vtable;
    size_t size = (size_t)bags_load_bytes(entries, 2, false), entry = 4 + 2 * i;
    if (entry + 2 > size || (size_t)vtable + size > fb.size)
        return 0;
    size_t offset = (size_t)bags_load_bytes(entries + entry, 2, false);
    return offset && table + offset < fb.size ? table + offset : 0;
}

/* A number in a table, or its default from the schema. */
static int64_t ar_number(
    bags_view fb, size_t table, unsigned i, size_t size, int64_t if_missing) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_INT8,
        BAGS_DTYPE_INT16, BAGS_DTYPE_NONE, BAGS_DTYPE_INT32, BAGS_DTYPE_NONE,
        BAGS_DTYPE_NONE, BAGS_DTYPE_NONE, BAGS_DTYPE_INT64};
    size_t at = ar_field(fb, table, i);
    return at && size <= fb.size - at
               ? bags_import_integer(dtypes[size], fb.data + at).sint
               : if_missing;
}

static size_t ar_follow(bags_view fb, size_t at) {
    if (!at || at > fb.size - 4)
        return 0;
    size_t to = at + (size_t)bags_load_bytes(fb.data + at, 4, false);
    return to > at && to <= fb.size - 4 ? to : 0;
}

static size_t ar_table(bags_view fb, size_t table, unsigned i) {
    return ar_follow(fb, ar_field(fb, table, i));
}

/* The elements of a vector in a table, each of this size. */
static size_t ar_vector(
    bags_view fb, size_t table, unsigned i, size_t size, size_t *count) {
    size_t at = ar_table(fb, table, i);
    *count = at ? (size_t)bags_load_bytes(fb.data + at, 4, false) : 0;
    if (*count > (at ? (fb.size - at - 4) / size : 0))
        *count = 0;
    return *count ? at + 4 : 0;
}

/* ---- the schema ---- */

/* As in Arrow's Schema.fbs. */
enum {
    AR_NULL = 1,
    AR_INT,
    AR_FLOAT,
    AR_BINARY,
    AR_UTF8,
    AR_BOOL,
    AR_DECIMAL,
    AR_DATE,
    AR_TIME,
    AR_TIMESTAMP,
    AR_LIST = 12,
    AR_STRUCT,
    AR_FIXED_BINARY = 15,
    AR_FIXED_LIST,
    AR_MAP,
    AR_DURATION,
    AR_LARGE_BINARY,
    AR_LARGE_UTF8,
    AR_LARGE_LIST,
    AR_BINARY_VIEW = 23,
    AR_UTF8_VIEW
};

enum { AR_SCHEMA = 1, AR_DICTIONARY, AR_RECORDS }; /* messages */

typedef struct ar_dictionary ar_dictionary;

/* A field of the schema or a member of a field, and its part of the current batch. */
typedef struct ar_node {
    const char *name;
    int type;
    bags_dtype dtype;        /* dtype of numbers */
    const char *unit, *zone; /* unit and zone of dates and times; NULL: none */
    uint64_t width;          /* bytes per element; items per fixed-size list */
    int64_t scale;           /* of a decimal; or the stored unit of a time */
    struct ar_node *children;
    size_t count;
    ar_dictionary *dictionary; /* elements are indices into it */
    uint64_t length;
    const unsigned char *valid, *offsets, *data; /* NULL: missing */
    uint64_t data_size;
    const bags_view *views; /* data of AR_BINARY_VIEW */
    size_t view_count;
} ar_node;

struct ar_dictionary {
    int64_t id;
    bags_buffer *memory;
    ar_node values;
    bool loaded;
    ar_dictionary *next;
};

typedef struct ar_column {
    bags_import_column about; /* only its statistics are used */
    const char *name;
    const ar_node *path[AR_DEPTH + 2]; /* nodes from the schema to the values */
    size_t depth, list;  /* number of nodes in path; position of the list in it, from
                          * 1 */
    const ar_node *file; /* the `path` member next to the values in {bytes, path}, or
                          * NULL */
    bags_buffer *values; /* the values of a row */
} ar_column;

typedef struct ar_state {
    bool open;        /* a file is being read: */
    uint64_t at, end; /* offsets of its next message and of its end */
    uint64_t start;   /* offset of the last message, for errors */
    bool again;       /* this is not the first file */
    bool parsed;      /* the schema of the first file was parsed, to */
    ar_node root;     /* its children are the fields */
    size_t nodes;
    ar_dictionary *dictionaries;
    bags_buffer *memory;
    ar_column *columns;
    size_t count;
    uint64_t batch_start; /* index of the batch's first row */
} ar_state;

static bags_code ar_bad(bags_source *s, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "message at %" PRIu64 ": %s",
        ((ar_state *)s->state)->start, what);
}

static bags_code ar_refuse(bags_source *s, const ar_node *node) {
    return bags_source_fail(
        s, BAGS_ERROR_TYPE, "column %.200s: its type is not supported", node->name);
}

/* Set the kind of a type. False if the type is not supported. */
static bool ar_parse_type(bags_view fb, size_t type, ar_node *node) {
    static const bags_dtype floats[] = {
        BAGS_DTYPE_FLOAT16, BAGS_DTYPE_FLOAT32, BAGS_DTYPE_FLOAT64};
    static const bags_dtype integers[2][4] = {
        {BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32, BAGS_DTYPE_UINT64},
        {BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32, BAGS_DTYPE_INT64}};
    int64_t first = ar_number(fb, type, 0, node->type == AR_INT ? 4 : 2, 0);
    int64_t bits = 64;
    switch (node->type) {
    case AR_NULL:
    case AR_STRUCT:
    case AR_LIST:
    case AR_MAP:
    case AR_LARGE_LIST:
    case AR_UTF8:
    case AR_LARGE_UTF8:
    case AR_BINARY:
    case AR_LARGE_BINARY:
    case AR_BINARY_VIEW:
    case AR_UTF8_VIEW:
        return true;
    case AR_BOOL:
        node->dtype = BAGS_DTYPE_BOOL;
        return true;
    case AR_FLOAT:
        if (first < 0 || first > 2)
            return false;
        node->dtype = floats[first];
        break;
    case AR_DECIMAL:
        node->scale = ar_number(fb, type, 1, 4, 0);
        bits = ar_number(fb, type, 2, 4, 128);
        node->width = (uint64_t)bits / 8;
        return bits >= 32 && bits <= 256 && bits % 32 == 0 && node->scale > -1000 &&
               node->scale < 1000;
    case AR_FIXED_BINARY:
    case AR_FIXED_LIST:
        bits = ar_number(fb, type, 0, 4, 0);
        node->width = (uint64_t)bits;
        return bits >= 0 && (bits > 0 || node->type == AR_FIXED_BINARY);
    case AR_INT:
    case AR_TIME:
    case AR_DATE:
    case AR_TIMESTAMP:
    case AR_DURATION:
        if (node->type != AR_INT)
            node->scale = ar_number(fb, type, 0, 2, -1);
        if (node->type == AR_INT)
            bits = first;
        else if (node->type == AR_TIME)
            bits = ar_number(fb, type, 1, 4, 32);
        else if (node->type == AR_DATE)
            bits = ar_number(fb, type, 0, 2, 1) ? 64 : 32;
        if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
            return false;
        node->dtype = integers[node->type != AR_INT ||
                               ar_number(fb, type, 1, 1, 0) != 0][bits == 8    ? 0
                                                                  : bits == 16 ? 1
                                                                  : bits == 32 ? 2
                                                                               : 3];
        break;
    default:
        return false;
    }
    node->width = bags_dtype_size(node->dtype);
    return true;
}

static bags_code ar_parse_field(
    bags_source *s, bags_view fb, size_t field, ar_node *node, int depth);

static bags_code ar_parse_children(
    bags_source *s, bags_view fb, size_t table, unsigned i, ar_node *node, int depth) {
    ar_state *a = (ar_state *)s->state;
    size_t at = ar_vector(fb, table, i, 4, &node->count);
    a->nodes += node->count;
    if (a->nodes > AR_NODES || depth > AR_DEPTH)
        return ar_bad(s, "too many fields, or nested too deeply");
    node->children = (ar_node *)bags_source_alloc(s, node->count, sizeof *node);
    if (!node->children)
        return BAGS_ERROR_MEMORY;
    for (size_t k = 0; k < node->count; k++)
        FORMAT_TRY(ar_parse_field(
            s, fb, ar_follow(fb, at + 4 * k), &node->children[k], depth + 1));
    return BAGS_OK;
}

/* Report a vector of metadata, from a schema or field, as left out. */
static void ar_metadata(
    bags_source *s, bags_view fb, size_t table, unsigned i, const char *prefix) {
    size_t count, at = ar_vector(fb, table, i, 4, &count);
    for (size_t k = 0; k < count; k++) {
        size_t size, pair = ar_follow(fb, at + 4 * k);
        size_t key = ar_vector(fb, pair, 0, 1, &size);
        const char *name = key ? (const char *)fb.data + key : "";
        bags_source_leave_out(s, "metadata value", 1, "%s%s%.*s", prefix,
            *prefix ? "@" : "", (int)(size < 200 ? size : 200), name);
    }
}

/* Set the unit and the time zone of a date or time, so that its name in the schema
 * states them. */
static bags_code ar_parse_time(
    bags_source *s, bags_view fb, size_t type, ar_node *node) {
    static const char *const units[] = {"s", "ms", "us", "ns"};
    bool is_time = node->type == AR_TIME || node->type == AR_DURATION;
    int64_t unit = ar_number(fb, type, 0, 2, is_time || node->type == AR_DATE ? 1 : 0);
    if (node->type == AR_DATE)
        node->unit = unit ? "ms" : "D";
    else if (unit >= 0 && unit <= 3)
        node->unit = units[unit];
    size_t size = 0,
           zone = node->type == AR_TIMESTAMP ? ar_vector(fb, type, 1, 1, &size) : 0;
    node->zone = bags_source_text(s, zone ? fb.data + zone : NULL, size);
    if (!node->unit)
        return ar_refuse(s, node);
    if (!node->zone)
        return BAGS_ERROR_MEMORY;
    if (size && !((ar_state *)s->state)->again)
        bags_source_leave_out(s, "time zone", 1, "%s: %s", node->name, node->zone);
    return BAGS_OK;
}

static bags_code ar_parse_field(
    bags_source *s, bags_view fb, size_t field, ar_node *node, int depth) {
    ar_state *a = (ar_state *)s->state;
    size_t size, name = ar_vector(fb, field, 0, 1, &size);
    size_t encoding = ar_table(fb, field, 4);
    node->name = bags_source_text(s, name ? fb.data + name : NULL, size);
    if (!node->name)
        return BAGS_ERROR_MEMORY;
    ar_node *values = node;
    if (encoding) {
        ar_dictionary *made = (ar_dictionary *)bags_source_alloc(s, 1, sizeof *made);
        if (!made)
            return BAGS_ERROR_MEMORY;
        size_t index = ar_table(fb, encoding, 1);
        made->id = ar_number(fb, encoding, 0, 8, 0);
        made->next = a->dictionaries;
        a->dictionaries = node->dictionary = made;
        values = &made->values;
        values->name = node->name;
        node->type = AR_INT;
        node->dtype = BAGS_DTYPE_INT32;
        node->width = 4;
        if (index && !ar_parse_type(fb, index, node))
            return ar_refuse(s, node);
    }
    values->type = (int)ar_number(fb, field, 2, 1, 0);
    if (!ar_parse_type(fb, ar_table(fb, field, 3), values))
        return ar_refuse(s, node);
    bool is_time = values->type == AR_DATE || values->type == AR_TIME ||
                   values->type == AR_TIMESTAMP || values->type == AR_DURATION;
    FORMAT_TRY(
        is_time ? ar_parse_time(s, fb, ar_table(fb, field, 3), values) : BAGS_OK);
    ar_metadata(s, fb, field, 6, node->name);
    FORMAT_TRY(ar_parse_children(s, fb, field, 5, values, depth));
    bool list = values->type == AR_LIST || values->type == AR_LARGE_LIST ||
                values->type == AR_MAP || values->type == AR_FIXED_LIST;
    if (list ? values->count != 1 : values->count != 0 && values->type != AR_STRUCT)
        return ar_bad(s, "a field has another number of members");
    return BAGS_OK;
}

/* ---- batches ---- */

/* The position in a batch. */
typedef struct ar_batch {
    bags_view fb, body;
    size_t nodes, node_count, buffers, buffer_count, counts, count_count;
    int codec;       /* 0: lz4, 1: zstd, -1: none */
    uint64_t proven; /* number of rows backed by buffers */
    bags_buffer *memory;
    size_t used;
} ar_batch;

/* Get the next buffer, decompressed into the batch's memory. With `measure`, only add
 * up its size. */
static bags_code ar_buffer(bags_source *s, ar_batch *b, bool measure, bags_view *out) {
    memset(out, 0, sizeof *out);
    if (b->buffer_count == 0)
        return ar_bad(s, "too few buffers");
    const unsigned char *place = b->fb.data + b->buffers;
    uint64_t offset = bags_load_bytes(place, 8, false);
    uint64_t size = bags_load_bytes(place + 8, 8, false), made = size;
    b->buffers += 16;
    b->buffer_count--;
    if (offset > b->body.size || size > b->body.size - offset)
        return ar_bad(s, "a buffer is out of range");
    bags_view in = {b->body.data + offset, (size_t)size};
    int codec = size ? b->codec : -1;
    if (codec >= 0) {
        if (size < 8)
            return ar_bad(s, "a buffer is too short");
        made = bags_load_bytes(in.data, 8, false);
        in.data += 8;
        in.size -= 8;
        if (made == UINT64_MAX) { /* not compressed */
            codec = -1;
            made = in.size;
        }
    }
    if (made / AR_RATIO > in.size || made > AR_MOST - b->used)
        return ar_bad(s, "a buffer is too large");
    out->size = (size_t)made;
    size_t start = b->used;
    b->used += (out->size + 63) / 64 * 64;
    if (measure)
        return BAGS_OK;
    unsigned char *to = b->memory->data + start;
    out->data = to;
    if (codec < 0) {
        if (made)
            memcpy(to, in.data, out->size);
        return BAGS_OK;
    }
    return (codec == 1 ? ZSTD_decompress(to, out->size, in.data, in.size) == out->size
                       : bags_import_lz4(in, to, out->size))
               ? BAGS_OK
               : ar_bad(s, "damaged buffer");
}

/* Extract the parts of a batch that belong to a node and its children. `least` is the
 * minimum number of elements. */
static bags_code ar_load_node(
    bags_source *s, ar_batch *b, ar_node *node, uint64_t least) {
    bool large = node->type == AR_LARGE_LIST || node->type == AR_LARGE_UTF8 ||
                 node->type == AR_LARGE_BINARY;
    bool list =
        node->type == AR_LIST || node->type == AR_MAP || node->type == AR_LARGE_LIST;
    bool view = node->type == AR_BINARY_VIEW || node->type == AR_UTF8_VIEW;
    bool text = node->type == AR_UTF8 || node->type == AR_BINARY || (large && !list);
    bool nested = node->type == AR_STRUCT || node->type == AR_FIXED_LIST;
    bags_view valid = {NULL, 0}, offsets = {NULL, 0}, data = {NULL, 0};
    if (b->node_count == 0)
        return ar_bad(s, "too few nodes");
    node->length = bags_load_bytes(b->fb.data + b->nodes, 8, false);
    uint64_t nulls = bags_load_bytes(b->fb.data + b->nodes + 8, 8, false);
    b->nodes += 16;
    b->node_count--;
    if (node->length < least || node->length > AR_MOST)
        return ar_bad(s, "invalid length of a column");
    if (node->type != AR_NULL)
        FORMAT_TRY(ar_buffer(s, b, false, &valid));
    if (list || text)
        FORMAT_TRY(ar_buffer(s, b, false, &offsets));
    if (node->type != AR_NULL && !list && !nested)
        FORMAT_TRY(ar_buffer(s, b, false, &data));
    uint64_t n = node->length, size = n * node->width;
    if (node->type == AR_BOOL)
        size = (n + 7) / 8;
    else if (view)
        size = 16 * n;
    else if (list || text || nested || node->type == AR_NULL)
        size = 0;
    if (n && nulls && node->type != AR_NULL && valid.size < (n + 7) / 8)
        return ar_bad(s, "a column's bits of NULLs are too short");
    if ((n && (list || text) && offsets.size < (n + 1) * (large ? 8 : 4)) ||
        data.size < size)
        return ar_bad(s, "a column's buffer is too short");
    if (size || offsets.size || valid.size >= (n + 7) / 8)
        b->proven = n > b->proven ? n : b->proven;
    node->valid = nulls && valid.size >= (n + 7) / 8 ? valid.data : NULL;
    node->offsets = offsets.data;
    node->data = data.data;
    node->data_size = data.size;
    if (view) {
        node->view_count = 0;
        if (b->count_count > 0) {
            uint64_t count = bags_load_bytes(b->fb.data + b->counts, 8, false);
            if (count > b->buffer_count)
                return ar_bad(s, "too few buffers");
            node->view_count = (size_t)count;
            b->counts += 8;
            b->count_count--;
        }
        bags_view *views = (bags_view *)(void *)(b->memory->data + b->used);
        b->used += (node->view_count * sizeof *views + 63) / 64 * 64;
        for (size_t i = 0; i < node->view_count; i++)
            FORMAT_TRY(ar_buffer(s, b, false, &views[i]));
        node->views = views;
    }
    if (node->type == AR_FIXED_LIST && n > AR_MOST / node->width)
        return ar_bad(s, "invalid length of a column");
    for (size_t i = 0; i < node->count; i++)
        FORMAT_TRY(ar_load_node(s, b, &node->children[i],
            list                                    ? 0
            : nested && node->type == AR_FIXED_LIST ? n * node->width
                                                    : n));
    return BAGS_OK;
}

/* Load a RecordBatch: the nodes of `parent`'s children, or of `parent` itself. */
static bags_code ar_load(bags_source *s, bags_view fb, size_t table, bags_view body,
    bags_buffer **memory, ar_node *node, bool itself) {
    ar_batch b;
    bags_view ignored;
    memset(&b, 0, sizeof b);
    b.fb = fb;
    b.body = body;
    b.nodes = ar_vector(fb, table, 1, 16, &b.node_count);
    b.buffers = ar_vector(fb, table, 2, 16, &b.buffer_count);
    b.counts = ar_vector(fb, table, 4, 8, &b.count_count);
    size_t compression = ar_table(fb, table, 3);
    b.codec = compression ? (int)ar_number(fb, compression, 0, 1, 0) : -1;
    int64_t length = ar_number(fb, table, 0, 8, 0);
    if (!table || length < 0 || b.codec > 1)
        return ar_bad(s, "invalid record batch");
    ar_batch all = b;
    while (all.buffer_count > 0)
        FORMAT_TRY(ar_buffer(s, &all, true, &ignored));
    FORMAT_TRY(bags_source_reserve(s, memory, /* and room for views */
        all.used + 64 * (b.node_count + b.buffer_count)));
    b.memory = *memory;
    if (itself)
        FORMAT_TRY(ar_load_node(s, &b, node, (uint64_t)length));
    for (size_t i = 0; !itself && i < node->count; i++)
        FORMAT_TRY(ar_load_node(s, &b, &node->children[i], (uint64_t)length));
    if ((uint64_t)length > AR_ROWS && (uint64_t)length > b.proven)
        return ar_bad(s, "its rows have no bytes");
    if (!itself)
        node->length = (uint64_t)length;
    return BAGS_OK;
}

/* ---- messages ---- */

/* Read the next message of the file; its header and body are views. kind 0: the end. */
static bags_code ar_message(
    bags_source *s, int *kind, bags_view *fb, size_t *header, bags_view *body) {
    ar_state *a = (ar_state *)s->state;
    uint64_t left = a->end - a->at, skip = 4, start = a->at;
    bags_view head;
    *kind = 0;
    a->start = start;
    if (left == 0)
        return BAGS_OK;
    FORMAT_TRY(bags_source_view(s, start, left < 8 ? left : 8, &head));
    if (head.size < 8)
        return ar_bad(s, "truncated");
    uint64_t size = bags_load_bytes(head.data, 4, false);
    if (size == UINT32_MAX) { /* since Arrow 0.15 */
        size = bags_load_bytes(head.data + 4, 4, false);
        skip = 8;
    }
    a->at += skip + size;
    /* In a file, the footer follows the end of the stream. */
    if (size == 0 && a->end == s->file.size && a->at < a->end)
        return ar_bad(s, "the stream ends here, but the file does not");
    if (size == 0)
        return BAGS_OK;
    if (size > left - skip || size < 8)
        return ar_bad(s, "truncated");
    FORMAT_TRY(bags_source_view(s, start + skip, size, fb));
    size_t message = (size_t)bags_load_bytes(fb->data, 4, false);
    int64_t body_size = ar_number(*fb, message, 3, 8, 0);
    *kind = (int)ar_number(*fb, message, 1, 1, 0);
    if (body_size < 0 || (uint64_t)body_size > a->end - a->at)
        return ar_bad(s, "truncated");
    a->at += (uint64_t)body_size;
    /* View both at once, so that the header stays valid. */
    FORMAT_TRY(bags_source_view(s, start + skip, size + (uint64_t)body_size, body));
    fb->data = body->data;
    body->data += size;
    body->size -= (size_t)size;
    *header = ar_table(*fb, message, 2);
    return BAGS_OK;
}

/* True if fields parsed from two files are equal. The files' bytes cannot be compared,
 * since offsets differ. */
static bool ar_same(const ar_node *a, const ar_node *b) {
    bool same = !strcmp(a->name, b->name) && a->type == b->type &&
                a->dtype == b->dtype && a->width == b->width && a->scale == b->scale &&
                a->count == b->count && !a->dictionary == !b->dictionary &&
                !a->zone == !b->zone && (!a->zone || !strcmp(a->zone, b->zone));
    if (same && a->dictionary)
        same = a->dictionary->id == b->dictionary->id &&
               ar_same(&a->dictionary->values, &b->dictionary->values);
    for (size_t i = 0; same && i < a->count; i++)
        same = ar_same(&a->children[i], &b->children[i]);
    return same;
}

/* Describe the type of a column, such as list(int64). */
static void ar_words(const ar_node *node, char *out, size_t size) {
    static const char *const names[] = {"", "null", "int", "float", "binary", "utf8",
        "bool", "decimal", "date", "time", "timestamp", "", "list", "struct", "",
        "fixed_binary", "fixed_list", "map", "duration", "large_binary", "large_utf8",
        "large_list", "", "binary_view", "utf8_view"};
    const ar_node *values = node->dictionary ? &node->dictionary->values : node;
    bool number = values->type == AR_INT || values->type == AR_FLOAT;
    char inside[64] = "";
    if (values->count == 1)
        ar_words(&values->children[0], inside, sizeof inside);
    snprintf(out, size, "%s%s%s%s%s%s", node->dictionary ? "dictionary of " : "",
        number ? bags_dtype_name(values->dtype) : names[values->type],
        *inside || values->zone ? "(" : "", inside, values->zone ? values->zone : "",
        *inside || values->zone ? ")" : "");
}

/* Two files have different columns: name the first difference. */
static bags_code ar_fail_columns(
    bags_source *s, const ar_node *first, const ar_node *other) {
    char words[2][128] = {"missing", "missing"};
    size_t i = 0;
    while (i < first->count && i < other->count &&
           ar_same(&first->children[i], &other->children[i]))
        i++;
    const ar_node *one = i < other->count ? &other->children[i] : NULL;
    const ar_node *expected = i < first->count ? &first->children[i] : NULL;
    if (one)
        ar_words(one, words[0], sizeof words[0]);
    if (expected)
        ar_words(expected, words[1], sizeof words[1]);
    return bags_source_fail(s, BAGS_ERROR_TYPE,
        "other columns than in %.320s (\"%.100s\": %s, expected \"%.100s\": %s)",
        s->paths[0], one ? one->name : "", words[0], expected ? expected->name : "",
        words[1]);
}

/* Open the next file and read its schema: the first message of a stream, or the footer
 * of a file (followed by its size and the magic). Sets `ended` if there are no more
 * files. */
static bags_code ar_open_file(bags_source *s) {
    ar_state *a = (ar_state *)s->state;
    bags_view head, fb = {NULL, 0}, body;
    size_t schema = 0;
    int kind;
    bags_code code = bags_source_next_file(s);
    if (code || s->ended)
        return code;
    FORMAT_TRY(bags_source_view(s, 0, s->file.size < 18 ? 0 : 18, &head));
    a->at = a->start = 0;
    a->end = s->file.size;
    if (head.size && memcmp(head.data, "FEA1", 4) == 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "Feather version 1 is not supported; write it again as version 2");
    if (head.size && memcmp(head.data, "ARROW1", 6) == 0) {
        a->at = 8;
        a->end -= 10;
        FORMAT_TRY(bags_source_view(s, a->end, 10, &head));
        uint64_t size = bags_load_bytes(head.data, 4, false);
        if (memcmp(head.data + 4, "ARROW1", 6) != 0 || size < 8 || size > a->end - 8)
            return ar_bad(s, "the file has no footer (truncated?)");
        a->end -= size;
        code = bags_source_view(s, a->end, size, &fb);
        if (!code)
            schema = ar_table(fb, (size_t)bags_load_bytes(fb.data, 4, false), 1);
    } else {
        code = ar_message(s, &kind, &fb, &schema, &body);
        schema = kind == AR_SCHEMA ? schema : 0;
    }
    if (code)
        return code;
    if (!schema)
        return ar_bad(s, "no schema: not an Arrow file");
    if (ar_number(fb, schema, 0, 2, 0) != 0)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "big-endian files are not supported");
    for (ar_dictionary *d = a->dictionaries; d; d = d->next)
        d->loaded = false;
    a->again = a->parsed;
    ar_dictionary *dictionaries = a->dictionaries;
    ar_node other;
    memset(&other, 0, sizeof other);
    other.name = a->root.name = "";
    a->parsed = true;
    a->nodes = 0;
    ar_metadata(s, fb, schema, 2, "");
    code = ar_parse_children(s, fb, schema, 1, a->again ? &other : &a->root, 0);
    if (a->again)
        a->dictionaries = dictionaries;
    return code || !a->again || ar_same(&a->root, &other)
               ? code
               : ar_fail_columns(s, &a->root, &other);
}

/* Load the next record batch and the dictionaries before it. Sets `ended` if there are
 * no more. */
static bags_code ar_next(bags_source *s) {
    ar_state *a = (ar_state *)s->state;
    a->batch_start += a->root.length;
    a->root.length = 0;
    for (;;) {
        bags_view fb = {NULL, 0}, body = {NULL, 0};
        size_t header = 0, found = 0;
        int kind = 0;
        FORMAT_TRY(
            a->open ? ar_message(s, &kind, &fb, &header, &body) : ar_open_file(s));
        if (s->ended)
            return BAGS_OK;
        if (!a->open || kind == 0) {
            a->open = !a->open;
            continue;
        }
        if (kind == AR_RECORDS)
            return ar_load(s, fb, header, body, &a->memory, &a->root, false);
        if (kind == AR_SCHEMA)
            continue;
        if (kind != AR_DICTIONARY)
            return ar_bad(s, "not a record batch");
        if (ar_number(fb, header, 2, 1, 0))
            return bags_source_fail(
                s, BAGS_ERROR_TYPE, "deltas of dictionaries are not supported");
        for (ar_dictionary *d = a->dictionaries; d; d = d->next)
            if (d->id == ar_number(fb, header, 0, 8, 0)) {
                FORMAT_TRY(ar_load(s, fb, ar_table(fb, header, 1), body, &d->memory,
                    &d->values, true));
                d->loaded = true;
                found++;
            }
        if (!found)
            return ar_bad(s, "a dictionary that no field has");
    }
}

/* ---- columns ---- */

static bool ar_is_list(const ar_node *node) {
    return !node->dictionary && (node->type == AR_LIST || node->type == AR_LARGE_LIST ||
                                    node->type == AR_MAP);
}

/* True if elements are contiguous numbers, as in arrays. */
static bool ar_is_number(const ar_node *node) {
    return node->dtype && node->type != AR_BOOL && !node->dictionary;
}

static bool ar_is_text(const ar_node *node) {
    const ar_node *leaf = node->dictionary ? &node->dictionary->values : node;
    return leaf->type == AR_UTF8 || leaf->type == AR_LARGE_UTF8 ||
           leaf->type == AR_UTF8_VIEW;
}

/* The `path` member of {bytes, path}, the form in which Hugging Face's datasets store
 * images and audio; NULL for any other struct. */
static const ar_node *ar_file(const ar_node *node) {
    const ar_node *at = node->children;
    if (node->count != 2)
        return NULL;
    const ar_node *path = &at[strcmp(at[0].name, "path") != 0];
    return !strcmp(at[path == at].name, "bytes") && !strcmp(path->name, "path") &&
                   (ar_is_text(path) || path->type == AR_NULL)
               ? path
               : NULL;
}

static bags_code ar_add_columns(
    bags_source *s, const char *name, const ar_node *node, ar_column column) {
    ar_state *a = (ar_state *)s->state;
    bags_code code = BAGS_OK;
    column.name = name;
    column.path[column.depth++] = node;
    if (ar_is_list(node) && !column.list) {
        column.list = column.depth;
        return ar_add_columns(s, name, node->children, column);
    }
    if (node->type == AR_STRUCT && !node->dictionary) {
        const ar_node *file = column.file = ar_file(node);
        for (size_t i = 0; !code && i < node->count; i++) {
            const ar_node *member = &node->children[i];
            const char *full =
                file ? name : bags_source_format(s, "%s.%s", name, member->name);
            if (!full)
                return BAGS_ERROR_MEMORY;
            if (member != file)
                code = ar_add_columns(s, full, member, column);
            else
                bags_source_leave_out(s, "column", 1, "%s.%s", name, member->name);
        }
        return code;
    }
    const ar_node *leaf = node->dictionary ? &node->dictionary->values : node;
    const ar_node *inner = leaf;
    while (inner->type == AR_FIXED_LIST)
        inner = inner->children;
    if (inner == leaf && ar_is_list(leaf) && !node->dictionary)
        inner = leaf->children;
    if (inner != leaf ? !ar_is_number(inner)
                      : ar_is_list(leaf) || leaf->type == AR_STRUCT || leaf->dictionary)
        return ar_refuse(s, node);
    ar_column *columns =
        (ar_column *)bags_source_grow(s, a->columns, a->count, sizeof *columns);
    if (inner->unit)
        column.name = bags_source_unit(s, name, inner->unit);
    if (!columns || !column.name)
        return BAGS_ERROR_MEMORY;
    a->columns = columns;
    a->columns[a->count++] = column;
    return BAGS_OK;
}

/* The type of a column's values. */
static const char *ar_type(bags_source *s, const ar_column *c) {
    const ar_node *leaf = c->path[c->depth - 1];
    bool sequence = c->list || c->about.seen < s->length;
    uint64_t shape[AR_DEPTH + 2], any = UINT64_MAX;
    size_t dims = 0;
    const char *type = "bytes";
    if (leaf->dictionary)
        leaf = &leaf->dictionary->values;
    if (ar_is_list(leaf))
        return bags_source_number_type(s, leaf->children->dtype, 1, &any, sequence);
    for (; leaf->type == AR_FIXED_LIST; leaf = leaf->children)
        shape[dims++] = leaf->width;
    if (leaf->dtype)
        return bags_source_number_type(s, leaf->dtype, dims, shape, sequence);
    if (leaf->type == AR_NULL)
        type = "i64";
    else if (ar_is_text(leaf) || leaf->type == AR_DECIMAL)
        type = "utf8";
    else if (c->about.magic)
        type = c->about.magic;
    return bags_source_format(s, "%s%s", type, sequence ? "[]" : "");
}

/* ---- values ---- */

static bool ar_is_null(const ar_node *node, uint64_t i) {
    return node->type == AR_NULL || (node->valid && !(node->valid[i / 8] >> i % 8 & 1));
}

/* Get offsets i and i + 1 of a list or text. False if they are out of range. */
static bool ar_range(
    const ar_node *node, uint64_t i, uint64_t limit, uint64_t *start, uint64_t *stop) {
    bool large = node->type == AR_LARGE_LIST || node->type == AR_LARGE_UTF8 ||
                 node->type == AR_LARGE_BINARY;
    size_t width = large ? 8 : 4;
    *start = bags_load_bytes(node->offsets + i * width, width, false);
    *stop = bags_load_bytes(node->offsets + (i + 1) * width, width, false);
    return *start <= *stop && *stop <= limit;
}

/* Print a decimal as text shorter than AR_TEXT bytes. */
static size_t ar_decimal(const ar_node *node, uint64_t i, char *out) {
    uint32_t words[8] = {0}, rest, any = 1;
    char digits[AR_TEXT];
    size_t count = (size_t)node->width / 4, made = 0, used = 0;
    int64_t scale = node->scale > 0 ? node->scale : 0;
    for (size_t k = 0; k < count; k++)
        words[k] =
            (uint32_t)bags_load_bytes(node->data + i * node->width + 4 * k, 4, false);
    bool negative = words[count - 1] >> 31;
    for (size_t k = 0, carry = 1; negative && k < count; k++) {
        uint64_t sum = (uint64_t)(uint32_t)~words[k] + carry;
        words[k] = (uint32_t)sum;
        carry = (size_t)(sum >> 32);
    }
    while (any || made < (scale ? (size_t)scale + 2 : 1)) {
        any = rest = 0;
        for (size_t k = count; k-- > 0;) {
            uint64_t part = (uint64_t)rest << 32 | words[k];
            words[k] = (uint32_t)(part / 10);
            rest = (uint32_t)(part % 10);
            any |= words[k];
        }
        digits[made++] = (char)('0' + rest);
        if (made == (size_t)scale)
            digits[made++] = '.';
    }
    if (negative)
        out[used++] = '-';
    while (made > 0)
        out[used++] = digits[--made];
    for (int64_t k = node->scale; k < 0; k++)
        out[used++] = '0';
    return used;
}

/* Get value i of a leaf. *null: it is NULL or contains a NULL. `text` has AR_TEXT
 * bytes. */
static bags_code ar_value(bags_source *s, const ar_node *node, uint64_t i, char *text,
    bags_value *out, bool *null) {
    static const unsigned char bits[2] = {0, 1};
    uint64_t start, stop, count = 1;
    *null = ar_is_null(node, i);
    if (!*null && node->dictionary) {
        bags_value at = bags_import_integer(node->dtype, node->data + i * node->width);
        const ar_dictionary *d = node->dictionary;
        if (!d->loaded || at.uint >= d->values.length ||
            (at.kind == BAGS_KIND_INT && at.sint < 0))
            return ar_bad(s, "an index is out of range of its dictionary");
        node = &d->values;
        i = at.uint;
        *null = ar_is_null(node, i);
    }
    if (*null)
        return BAGS_OK;
    if (ar_is_list(node) || node->type == AR_FIXED_LIST) {
        if (ar_is_list(node)) {
            if (!ar_range(node, i, node->children->length, &start, &stop))
                return ar_bad(s, "a list is out of range");
            count = stop - start;
            node = node->children;
        } else {
            for (start = i; node->type == AR_FIXED_LIST; node = node->children) {
                for (uint64_t k = start; k < start + count; k++)
                    *null = *null || ar_is_null(node, k);
                start *= node->width;
                count *= node->width;
            }
        }
        for (uint64_t k = start; k < start + count; k++)
            *null = *null || ar_is_null(node, k);
        *out =
            bags_blob(node->data + start * node->width, (size_t)(count * node->width));
    } else if (node->type == AR_BOOL) {
        *out = bags_blob(bits + (node->data[i / 8] >> i % 8 & 1), 1);
    } else if (node->type == AR_FLOAT || node->type == AR_FIXED_BINARY) {
        *out = bags_blob(node->data + i * node->width, (size_t)node->width);
    } else if (node->dtype) {
        *out = bags_import_integer(node->dtype, node->data + i * node->width);
    } else if (node->type == AR_DECIMAL) {
        *out = bags_utf8_sized(text, ar_decimal(node, i, text));
    } else if (node->type == AR_UTF8_VIEW || node->type == AR_BINARY_VIEW) {
        const unsigned char *view = node->data + 16 * i;
        size_t size = (size_t)bags_load_bytes(view, 4, false);
        size_t buffer = (size_t)bags_load_bytes(view + 8, 4, false);
        size_t offset = (size_t)bags_load_bytes(view + 12, 4, false);
        const unsigned char *data = view + 4;
        if (size > 12) {
            if (buffer >= node->view_count || offset > node->views[buffer].size ||
                size > node->views[buffer].size - offset)
                return ar_bad(s, "a value is out of range");
            data = node->views[buffer].data + offset;
        }
        *out = bags_blob(data, size);
    } else {
        if (!ar_range(node, i, node->data_size, &start, &stop))
            return ar_bad(s, "a value is out of range");
        *out = bags_blob(node->data + start, (size_t)(stop - start));
    }
    return BAGS_OK;
}

/* Walk down a column from the node at `step`, for its element i. *leaf receives the
 * node reached at the end, or NULL if a struct on the way is NULL. */
static const ar_node *ar_walk(
    const ar_column *c, size_t step, size_t stop, uint64_t i) {
    for (; step + 1 < stop; step++)
        if (ar_is_null(c->path[step], i))
            return NULL;
    return c->path[step];
}

/* Fail if element i of a column has a path but its bytes are NULL. */
static bags_code ar_check_file(
    bags_source *s, const ar_column *c, uint64_t row, uint64_t i) {
    bags_value path;
    bool null = c->file->type == AR_NULL;
    bags_code code = null ? BAGS_OK : ar_value(s, c->file, i, NULL, &path, &null);
    if (code || null)
        return code;
    return bags_source_fail(s, BAGS_ERROR_VALUE,
        "column %.200s: datapoint %" PRIu64 ": its bytes are NULL, and its path is "
        "\"%.*s\": a file elsewhere; " BAGS_IMPORT_EMBED,
        c->name, ((ar_state *)s->state)->batch_start + row,
        (int)(path.size < 200 ? path.size : 200), (const char *)path.data);
}

/* Get the values of a column in a row of the batch. */
static bags_code ar_row(bags_source *s, ar_column *c, uint64_t row, bags_entry *out) {
    uint64_t start = row, stop = row + 1;
    const ar_node *node = ar_walk(c, 0, c->list ? c->list : c->depth, row);
    out->count = 0;
    if (c->list && (!node || ar_is_null(node, row)))
        return BAGS_OK;
    if (c->list && !ar_range(node, row, node->children->length, &start, &stop))
        return ar_bad(s, "a list is out of range");
    const ar_node *leaf = c->path[c->depth - 1];
    bool decimal = leaf->type == AR_DECIMAL ||
                   (leaf->dictionary && leaf->dictionary->values.type == AR_DECIMAL);
    size_t each = sizeof(bags_value) + (decimal ? AR_TEXT : 0);
    if (stop - start > SIZE_MAX / 4 / each)
        return bags_source_no_memory(s);
    size_t length = (size_t)(stop - start);
    FORMAT_TRY(bags_source_reserve(s, &c->values, length * each));
    bags_value *values = (bags_value *)(void *)c->values->data;
    char *text = (char *)(values + length);
    out->values = values;
    for (uint64_t i = start; i < stop; i++) {
        bool null = true;
        node = ar_walk(c, c->list, c->depth, i);
        if (node)
            FORMAT_TRY(ar_value(s, node, i, text, &values[out->count], &null));
        if (node && null && c->file)
            FORMAT_TRY(ar_check_file(s, c, row, i));
        if (null && (c->list || (node && !ar_is_null(node, i))))
            return bags_source_fail(s, BAGS_ERROR_VALUE,
                "column %.200s: datapoint %" PRIu64 ": NULL in a list", c->name,
                ((ar_state *)s->state)->batch_start + row);
        out->count += !null;
        text += decimal ? AR_TEXT : 0;
    }
    return BAGS_OK;
}

/* ---- the source ---- */

/* The first pass: find the columns with NULLs, and the content of the others. */
static bags_code ar_learn(bags_source *s) {
    ar_state *a = (ar_state *)s->state;
    for (uint64_t row = 0; row < a->root.length; row++)
        for (size_t i = 0; i < a->count; i++) {
            ar_column *c = &a->columns[i];
            bags_entry found;
            FORMAT_TRY(ar_row(s, c, row, &found));
            c->about.seen += found.count > 0;
            for (size_t k = 0; k < found.count; k++) {
                const bags_value *value = &found.values[k];
                if (value->kind == BAGS_KIND_BLOB)
                    bags_import_guess(&c->about, value->data,
                        value->size < 16 ? value->size : 16, false);
            }
        }
    return BAGS_OK;
}

static bags_code ar_open(bags_source *s) {
    ar_state *a = (ar_state *)s->state;
    ar_column none;
    memset(&none, 0, sizeof none);
    bags_code code = bags_source_files(s, bags_import_is_arrow_name);
    if (!code)
        code = ar_open_file(s);
    a->open = true;
    for (size_t i = 0; !code && i < a->root.count; i++)
        code = ar_add_columns(s, a->root.children[i].name, &a->root.children[i], none);
    while (!code) {
        code = ar_next(s);
        if (code || s->ended)
            break;
        s->length += a->root.length;
        code = ar_learn(s);
    }
    for (size_t i = 0; !code && i < a->count; i++)
        bags_source_field(s, a->columns[i].name, ar_type(s, &a->columns[i]));
    bags_source_close_file(s);
    a->open = false;
    s->path_next = 0;
    a->batch_start = a->root.length = 0;
    return code;
}

static bags_code ar_read(bags_source *s, uint64_t index) {
    ar_state *a = (ar_state *)s->state;
    s->ended = false;
    while (!s->ended && index >= a->batch_start + a->root.length)
        FORMAT_TRY(ar_next(s));
    for (size_t i = 0; !s->ended && i < s->count; i++)
        FORMAT_TRY(ar_row(s, &a->columns[i], index - a->batch_start, &s->entries[i]));
    return BAGS_OK;
}

const bags_importer bags_import_arrow = {
    "arrow", bags_import_is_arrow, sizeof(ar_state), ar_open, ar_read, NULL};
