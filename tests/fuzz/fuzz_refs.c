/*
 * Any bytes as the blobs of refs.bag. A second decoder, written here as simply as
 * possible, decides which of them are valid and what they refer to; a reader must
 * find the same, with mmap and without.
 *
 * The input: the number of fields in a byte; which of them are sequences, bits
 * of three bytes; the number of blobs in each field's Bag in a byte; and then for
 * each datapoint the size of its blob in a byte, and the blob.
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FIELDS 20
#define POINTS 12

typedef struct range {
    uint64_t first, count;
} range;

typedef struct verdict {
    bool complete;      /* an array of the right shape */
    bool inside;        /* and everything it refers to exists */
    range refs[FIELDS]; /* if valid */
} verdict;

typedef struct input {
    size_t fields, blobs, points;
    bool sequence[FIELDS];
    hand_set set;
    verdict expected[POINTS];
} input;

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* ---- a second decoder ---- */

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

static bool take_number(cursor *c, int size, uint64_t *number) {
    *number = 0;
    for (; size > 0 && c->at < c->end; size--)
        *number = *number * 256 + *c->at++;
    return size == 0;
}

static bool take_uint(cursor *c, uint64_t *number) {
    if (c->at == c->end)
        return false;
    switch (*c->at++) {
    case 0xCC:
        return take_number(c, 1, number);
    case 0xCD:
        return take_number(c, 2, number);
    case 0xCE:
        return take_number(c, 4, number);
    case 0xCF:
        return take_number(c, 8, number);
    case 0xD0:
        return take_number(c, 1, number) && *number <= INT8_MAX;
    case 0xD1:
        return take_number(c, 2, number) && *number <= INT16_MAX;
    case 0xD2:
        return take_number(c, 4, number) && *number <= INT32_MAX;
    case 0xD3:
        return take_number(c, 8, number) && *number <= INT64_MAX;
    default:
        *number = c->at[-1];
        return *number < 128;
    }
}

static bool take_array(cursor *c, uint64_t *length) {
    if (c->at == c->end)
        return false;
    uint8_t tag = *c->at++;
    if (tag == 0xDC || tag == 0xDD)
        return take_number(c, tag == 0xDC ? 2 : 4, length);
    *length = tag & 15u;
    return tag >> 4 == 9;
}

static bool take_ref(cursor *c, bool sequence, range *ref) {
    uint64_t length = 0;
    ref->first = 0;
    ref->count = 1;
    if (!sequence)
        return take_uint(c, &ref->first);
    if (!take_array(c, &length))
        return false;
    ref->count = 0;
    return length == 0 ||
           (length == 2 && take_uint(c, &ref->first) && take_uint(c, &ref->count));
}

static void expect(input *in, const uint8_t *data, size_t size) {
    verdict *e = &in->expected[in->points++];
    cursor c = {data, data + size};
    uint64_t length = 0;
    e->complete = take_array(&c, &length) && length == in->fields;
    for (size_t f = 0; e->complete && f < in->fields; f++)
        e->complete = take_ref(&c, in->sequence[f], &e->refs[f]);
    e->complete = e->complete && c.at == c.end;
    e->inside = e->complete;
    for (size_t f = 0; e->inside && f < in->fields; f++)
        e->inside = e->refs[f].count == 0 ||
                    (e->refs[f].first < in->blobs &&
                        e->refs[f].count <= in->blobs - e->refs[f].first);
}

/* ---- the comparison ---- */

static size_t blob_of(size_t field, uint64_t index, char *out) {
    memset(out, (int)('a' + field), 4);
    out[0] = (char)('A' + index);
    return (size_t)(field + index) % 4;
}

static void check_item(bags_view blob, size_t field, uint64_t index) {
    char wanted[4];
    size_t size = blob_of(field, index, wanted);
    demand(blob.size == size && (!size || !memcmp(blob.data, wanted, size)),
        "another blob");
}

static void check_slot(
    const bags_row *row, size_t slot, size_t field, const range *ref) {
    demand(bags_row_length(row, slot) == ref->count, "another length");
    for (size_t i = 0; i < ref->count; i++)
        check_item(bags_row_bytes(row, slot, i), field, ref->first + i);
}

/* A part of a sequence, which may exist even if other blobs of the datapoint do
 * not. */
static void check_part(const input *in, const bags_reader *reader, size_t index,
    size_t field, bags_row *row) {
    const verdict *e = &in->expected[index];
    const range *ref = &e->refs[field];
    bags_select select = bags_select_all(field);
    bags_error err;
    uint64_t count = 0, step = 1 + index % 3;
    if (in->sequence[field])
        select = bags_select_slice(field, field % 3, field % 3 + 4, step);
    bags_code code = bags_reader_get(reader, index, &select, 1, row, &err);
    demand(code == BAGS_OK || code == BAGS_ERROR_CORRUPT, "another code");
    demand(e->complete || code, "a wrong blob is read in part");
    demand(!e->inside || !code, "a right blob is not read in part");
    for (size_t i = 0; !code && i < bags_row_length(row, 0); i++)
        check_item(
            bags_row_bytes(row, 0, i), field, ref->first + select.start + i * step);
    if (!code && in->sequence[field]) {
        uint64_t stop = ref->count < select.stop ? ref->count : select.stop;
        uint64_t some =
            select.start < stop ? (stop - select.start + step - 1) / step : 0;
        demand(bags_row_length(row, 0) == some, "another part");
    }
    code = bags_reader_items(reader, index, field, row, &count, &err);
    demand(code || (e->complete && count == ref->count), "another count");
    demand(!e->inside || !code, "a right blob is not counted");
}

/* The same for one item, or the one after the last. */
static void check_blob(const input *in, const bags_reader *reader, size_t index,
    size_t field, bags_row *row) {
    const verdict *e = &in->expected[index];
    const range *ref = &e->refs[field];
    bags_error err;
    bags_view blob;
    uint64_t item = index % (ref->count < 8 ? ref->count + 1 : 8);
    bags_code code = bags_reader_get_blob(reader, index, field, item, row, &blob, &err);
    demand(code == BAGS_OK || code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_RANGE,
        "another code of a blob");
    demand(e->complete || code == BAGS_ERROR_CORRUPT, "a wrong blob is read");
    demand(!e->inside || code == (item < ref->count ? 0 : BAGS_ERROR_RANGE),
        "a right blob is not read");
    if (!code)
        check_item(blob, field, ref->first + item);
    else
        demand(!blob.data && !blob.size, "a failed read leaves a blob");
}

/* A plain field of all datapoints at once. */
static void check_column(
    const input *in, const bags_reader *reader, size_t field, bags_row *row) {
    bags_error err;
    bool complete = true, inside = true;
    for (size_t i = 0; i < in->points; i++) {
        complete = complete && in->expected[i].complete;
        inside = inside && in->expected[i].inside;
    }
    bags_code code = bags_reader_get_range(reader, 0, in->points, field, row, &err);
    demand(complete || code, "a range with a wrong blob is read");
    demand(!inside || !code, "a range of right blobs is not read");
    if (code)
        return;
    demand(bags_row_length(row, 0) == in->points, "a range of another length");
    for (size_t i = 0; i < in->points; i++)
        check_item(bags_row_bytes(row, 0, i), field, in->expected[i].refs[field].first);
}

static void check_reader(const input *in, memory_disk *m, bool no_mmap, bool load) {
    bags_reader_options options;
    bags_row row = {0};
    bags_error err;
    bool all = true;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.no_mmap = no_mmap;
    options.cache_index = load;
    bags_reader *reader = bags_reader_open("x", &options, &err);
    demand(reader && bags_reader_length(reader) == in->points, "it does not open");
    for (size_t i = 0; i < in->points; i++) {
        const verdict *e = &in->expected[i];
        bags_code code = bags_reader_get(reader, i, NULL, 0, &row, &err);
        all = all && e->inside;
        demand(code == (e->inside ? BAGS_OK : BAGS_ERROR_CORRUPT),
            "the decoders do not agree");
        for (size_t f = 0; !code && f < in->fields; f++)
            check_slot(&row, f, f, &e->refs[f]);
        if (in->fields) {
            check_part(in, reader, i, i * 7 % in->fields, &row);
            check_blob(in, reader, i, i * 5 % in->fields, &row);
        }
    }
    for (size_t f = 0; f < in->fields; f += 5)
        if (!in->sequence[f])
            check_column(in, reader, f, &row);
    demand(verify_path("x", &options.env, &err) == (all ? BAGS_OK : BAGS_ERROR_CORRUPT),
        "verify does not agree");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void build(input *in, const uint8_t *data, size_t size) {
    static const char names[] = "abcdefghijklmnopqrst";
    static char text[FIELDS][2];
    unsigned mask = data[1] | (unsigned)data[2] << 8 | (unsigned)data[3] << 16;
    in->fields = data[0] % (FIELDS + 1);
    in->blobs = data[4] % 24;
    for (size_t f = 0; f < in->fields; f++) {
        char blob[4];
        in->sequence[f] = mask >> f & 1;
        text[f][0] = names[f];
        set_field(&in->set, text[f], in->sequence[f] ? "bytes[]" : "bytes");
        for (size_t i = 0; i < in->blobs; i++)
            hand_add(&in->set.bags[f], blob, blob_of(f, i, blob));
    }
    data += 5;
    size -= 5;
    while (size > 0 && in->points < POINTS) {
        size_t length = *data++;
        size--;
        length = length < size ? length : size;
        hand_add(&in->set.refs, data, length);
        expect(in, data, length);
        data += length;
        size -= length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_disk m;
    input *in;
    if (size < 5)
        return 0;
    in = (input *)calloc(1, sizeof *in);
    build(in, data, size);
    memory_disk_start(&m);
    memory_disk_save_set(&m, &in->set, V1, "x");
    check_reader(in, &m, false, false);
    check_reader(in, &m, true, false);
    check_reader(in, &m, true, true);
    memory_disk_free(&m);
    set_free(&in->set);
    free(in);
    return 0;
}
