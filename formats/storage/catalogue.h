/*
 * catalogue.h - the bytes of 000000/catalogue: their layout, and the bytes of other
 * files that follow from it. catalogue.c writes a catalogue, known.c uses it. Programs
 * do not include this header.
 *
 * A catalogue describes the files of a sharded dataset, so that a reader of a remote
 * dataset need not request anything from a shard before it reads datapoints in it.
 * (offset, size, content), with little-endian integers:
 *
 *      0  8  "BAGSCAT1"
 *      8  4  CRC-32C of all bytes that follow
 *     12  4  S, the size of spec.json
 *     16  8  N, the number of shards: 000000, 000001, ...
 *     24  4  F, the number of fields
 *     28  4  M, the size of the names
 *     32  S  spec.json, the same in every shard
 *         M  the names of the fields, sorted, each followed by 0
 *            a record for each shard
 *
 *     A record has 8 + 16 * (F + 1) bytes:
 *
 *      0  4  the CRC that binds the shard together: offset 28 of each NAME.crc's trailer
 *      4  4  flags: 1, if refs.bag is plain
 *      8 16  for each field, then for refs: the size of NAME.bag, and the offset of its
 *            table. Number of blobs = (size - table) / 8 - 1
 *
 * A plain refs.bag refers to blob i of every field in datapoint i. All its bytes follow
 * from the numbers of fields and datapoints.
 */
#ifndef BAGS_FORMATS_CATALOGUE_H
#define BAGS_FORMATS_CATALOGUE_H

#include "bags.h"

#include <string.h>

#define CATALOGUE_NAME "000000/catalogue"
#define CATALOGUE_MAGIC "BAGSCAT1"
enum { CATALOGUE_HEAD = 32, CATALOGUE_PLAIN = 1, CATALOGUE_FIELDS = 255 };
#define CATALOGUE_SPEC ((size_t)1 << 20)        /* most bytes of spec.json, */
#define CATALOGUE_RECORDS ((uint64_t)512 << 20) /* of all records, */
#define CATALOGUE_SIZE ((uint64_t)640 << 20)    /* and of a catalogue */
#define CATALOGUE_SHARDS 1000000 /* most shards: a reader needs 1 KB of memory each */

/* A parsed catalogue; the pointers point into its bytes. */
typedef struct catalogue_view {
    uint64_t shards;
    size_t fields, spec_size, record_size;
    const unsigned char *spec;
    const char *names; /* NUL-terminated, one after the other */
    const unsigned char *records;
} catalogue_view;

static inline uint64_t catalogue_load(const unsigned char *data, size_t size) {
    return bags_load_bytes(data, size, false);
}

static inline void catalogue_store(unsigned char *data, uint64_t number, size_t size) {
    bags_store_bytes(data, size, false, number);
}

static inline const unsigned char *catalogue_record(
    const catalogue_view *of, uint64_t shard) {
    return of->records + (size_t)shard * of->record_size;
}

static inline uint32_t catalogue_bound(const catalogue_view *of, uint64_t shard) {
    return (uint32_t)catalogue_load(catalogue_record(of, shard), 4);
}

static inline bool catalogue_is_plain(const catalogue_view *of, uint64_t shard) {
    return catalogue_load(catalogue_record(of, shard) + 4, 4) == CATALOGUE_PLAIN;
}

/* The size of the Bag of a field (index `fields`: of refs). */
static inline uint64_t catalogue_size(
    const catalogue_view *of, uint64_t shard, size_t field) {
    return catalogue_load(catalogue_record(of, shard) + 8 + 16 * field, 8);
}

/* The offset of its table. */
static inline uint64_t catalogue_table(
    const catalogue_view *of, uint64_t shard, size_t field) {
    return catalogue_load(catalogue_record(of, shard) + 16 + 16 * field, 8);
}

/* The number of its blobs; for refs, of the shard's datapoints. */
static inline uint64_t catalogue_length(
    const catalogue_view *of, uint64_t shard, size_t field) {
    return (catalogue_size(of, shard, field) - catalogue_table(of, shard, field)) / 8 -
           1;
}

/* ---- plain refs ---- */

/* Datapoint numbers below each bound have a reference of `width` bytes. */
typedef struct catalogue_width {
    uint64_t bound;
    size_t width;
} catalogue_width;

static inline const catalogue_width *catalogue_widths(void) {
    static const catalogue_width widths[] = {
        {128, 1}, {256, 2}, {65536, 3}, {(uint64_t)1 << 32, 5}, {UINT64_MAX, 9}};
    return widths;
}

/* The offset of row `index` in a plain refs.bag. */
static inline uint64_t catalogue_row_start(size_t fields, uint64_t index) {
    const catalogue_width *at = catalogue_widths();
    uint64_t start = 0, first = 0;
    for (;; first = at++->bound) {
        uint64_t stop = index < at->bound ? index : at->bound;
        start += (stop - first) * ((fields < 16 ? 1 : 3) + fields * at->width);
        if (stop == index)
            return start;
    }
}

/* The row that contains the byte at this offset. */
static inline uint64_t catalogue_row_at(size_t fields, uint64_t offset) {
    const catalogue_width *at = catalogue_widths();
    uint64_t first = 0, start = 0;
    for (;; first = at++->bound) {
        uint64_t row = (fields < 16 ? 1 : 3) + fields * at->width;
        if (at->bound == UINT64_MAX || (offset - start) / row < at->bound - first)
            return first + (offset - start) / row;
        start += (at->bound - first) * row;
    }
}

enum { CATALOGUE_ROW = 3 + 9 * CATALOGUE_FIELDS };

/* Write row `index`: a msgpack array of the same number for every field. Returns its
 * size. */
static inline size_t catalogue_row(
    size_t fields, uint64_t index, unsigned char out[CATALOGUE_ROW]) {
    static const unsigned char tags[] = {0, 0, 0xCC, 0xCD, 0, 0xCE, 0, 0, 0, 0xCF};
    const catalogue_width *at = catalogue_widths();
    size_t size = 0;
    while (index >= at->bound)
        at++;
    if (fields >= 16) {
        out[size++] = 0xDC;
        out[size++] = 0;
    }
    out[size++] = (unsigned char)(fields < 16 ? 0x90 | fields : fields);
    for (size_t i = 0; i < fields; i++) {
        if (at->width > 1)
            out[size++] = tags[at->width];
        for (size_t bytes = at->width > 1 ? at->width - 1 : 1; bytes-- > 0;)
            out[size++] = (unsigned char)(index >> 8 * bytes);
    }
    return size;
}

/* Copy bytes of a plain refs.bag of `length` rows. All of them must be in the file. */
static inline void catalogue_read_plain(
    size_t fields, uint64_t length, uint64_t offset, unsigned char *out, size_t size) {
    unsigned char row[CATALOGUE_ROW], end[8];
    uint64_t table = catalogue_row_start(fields, length);
    while (size > 0) {
        uint64_t start = 0;
        const unsigned char *from = row;
        size_t count = 8;
        if (offset < table) {
            uint64_t index = catalogue_row_at(fields, offset);
            start = catalogue_row_start(fields, index);
            count = catalogue_row(fields, index, row);
        } else {
            start = offset - (offset - table) % 8;
            uint64_t entry = (start - table) / 8; /* entry 0 is the leading 0 */
            catalogue_store(end, catalogue_row_start(fields, entry), 8);
            from = end;
        }
        size_t skip = (size_t)(offset - start);
        size_t step = count - skip < size ? count - skip : size;
        memcpy(out, from + skip, step);
        out += step;
        offset += step;
        size -= step;
    }
}

/* ---- other refs ---- */

#define CATALOGUE_MARGIN 8192.0 /* bytes around a guess */

static inline double catalogue_count(
    const catalogue_view *of, uint64_t shard, size_t field) {
    uint64_t length = catalogue_length(of, shard, field);
    return (double)length;
}

/* The bytes of the numbers in the rows of refs.bag before `row`, if datapoints refer to
 * the blobs of each field in order. */
static inline double catalogue_numbers(
    const catalogue_view *of, uint64_t shard, double row) {
    double rows = catalogue_count(of, shard, of->fields), size = 0;
    for (size_t i = 0; i < of->fields; i++) {
        const catalogue_width *at = catalogue_widths();
        double each = catalogue_count(of, shard, i) / rows, first = 0;
        for (; first < row * each; first = (double)at++->bound) {
            double bound = (double)at->bound;
            double stop = row * each < bound ? row * each : bound;
            size += (stop - first) / each * (double)at->width;
        }
    }
    return size;
}

static inline uint64_t catalogue_clamp(double offset, uint64_t end) {
    return !(offset > 0) ? 0 : offset < (double)end ? (uint64_t)offset : end;
}

/* Guess the range of row `index` of a refs.bag that is not plain. It covers two
 * guesses: all rows have the same size, or they differ by the sizes of numbers in
 * order. If they are far apart, only the second counts. */
static inline void catalogue_guess_row(const catalogue_view *of, uint64_t shard,
    uint64_t index, uint64_t *start, uint64_t *stop) {
    uint64_t end = catalogue_table(of, shard, of->fields);
    double table = (double)end;
    double length = catalogue_count(of, shard, of->fields);
    double part = (double)index / length;
    double even = table * part;
    double ordered = (table - catalogue_numbers(of, shard, length)) * part +
                     catalogue_numbers(of, shard, (double)index);
    double first = even < ordered ? even : ordered;
    double last = even < ordered ? ordered : even;
    if (last - first > 6 * CATALOGUE_MARGIN)
        first = last = ordered;
    *start = catalogue_clamp(first - CATALOGUE_MARGIN, end);
    *stop = catalogue_clamp(last + CATALOGUE_MARGIN, end);
}

/* ---- parsing ---- */

/* True if the record of a shard is possible: every Bag ends in its table, and no sum of
 * lengths overflows. */
static inline bool catalogue_is_valid(const catalogue_view *of, uint64_t shard) {
    size_t fields = of->fields;
    for (size_t i = 0; i <= fields; i++) {
        uint64_t size = catalogue_size(of, shard, i);
        uint64_t table = catalogue_table(of, shard, i);
        if (size < 8 || size > INT64_MAX || table > size - 8 || (size - table) % 8 != 0)
            return false;
    }
    uint64_t length = catalogue_length(of, shard, fields);
    if (!catalogue_is_plain(of, shard))
        return catalogue_load(catalogue_record(of, shard) + 4, 4) == 0;
    for (size_t i = 0; i < fields; i++)
        if (catalogue_length(of, shard, i) != length)
            return false;
    return fields > 0 && fields <= CATALOGUE_FIELDS && length < (uint64_t)1 << 48 &&
           catalogue_table(of, shard, fields) == catalogue_row_start(fields, length);
}

/* Parse a catalogue. Returns false if it is damaged, or not a catalogue. */
static inline bool catalogue_parse(
    const unsigned char *data, uint64_t size, catalogue_view *out) {
    if (size < CATALOGUE_HEAD || size > CATALOGUE_SIZE || size > SIZE_MAX ||
        memcmp(data, CATALOGUE_MAGIC, 8) != 0 ||
        catalogue_load(data + 8, 4) != bags_crc32c(0, data + 12, (size_t)size - 12))
        return false;
    uint64_t spec = catalogue_load(data + 12, 4), names = catalogue_load(data + 28, 4);
    uint64_t fields = catalogue_load(data + 24, 4), left = size - CATALOGUE_HEAD;
    if (spec > CATALOGUE_SPEC || spec > left || names > left - spec || fields > names)
        return false;
    left -= spec + names;
    out->shards = catalogue_load(data + 16, 8);
    out->fields = (size_t)fields;
    out->spec_size = (size_t)spec;
    out->record_size = 8 + 16 * ((size_t)fields + 1);
    out->spec = data + CATALOGUE_HEAD;
    out->names = (const char *)out->spec + spec;
    out->records = out->spec + spec + names;
    if (out->shards == 0 || out->shards > CATALOGUE_SHARDS ||
        out->shards != left / out->record_size || left % out->record_size != 0 ||
        (names && out->names[names - 1]))
        return false;
    for (size_t i = 0; i < names; i++)
        fields -= !out->names[i];
    for (uint64_t i = 0; i < out->shards; i++)
        if (fields || !catalogue_is_valid(out, i))
            return false;
    return true;
}

#endif /* BAGS_FORMATS_CATALOGUE_H */
