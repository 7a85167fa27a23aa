/*
 * lmdb.c - imports LMDB databases: a directory with data.mdb, or such a file. No
 * library.
 *
 * Each entry is a datapoint, in the order of the keys:
 *
 *     key    utf8 if all keys are text, otherwise bytes; u64 with MDB_INTEGERKEY
 *     value  jpeg, png, ... if all values begin like that, otherwise bytes
 *
 * If the first value is a Datum of Caffe, every value must be one. They have, instead of
 * `value`,
 *
 *     data        array(uint8,C,H,W), or the type of encoded images: see `value`
 *     float_data  array(float32,C,H,W)
 *     label       i64
 *
 * Arrays of several shapes have the type `array`. A member missing from some values is
 * a sequence of 0 or 1. Pickles and msgpack are bytes, and a note says so.
 *
 * The file is parsed here, since liblmdb follows damaged page numbers without a check.
 * It consists of pages. The first two describe the database: the one with the higher
 * transaction number is valid. The entries are in a B+ tree:
 *
 *     page   number (8 bytes), padding (2), flags (2), lower (2), upper (2); offsets of
 *            nodes (2 each) up to `lower`
 *     node   size or page (4), flags, or more of the page (2), size of the key (2), key,
 *            value or (8) the first of the pages that have it
 *
 * Numbers are little-endian. Rejected: other byte orders, 32-bit files, named databases,
 * duplicate keys. The file must not change while it is imported.
 */
#include "import.h"
#include "try.h"
#include "wire.h"

#include <inttypes.h>
#include <string.h>

#define LM_HEAD 16 /* bytes of a page's header */
#define LM_LEVELS 32
#define LM_MAGIC 0xBEEFC0DE
#define LM_FILE "data.mdb"
#define LM_DIMENSION ((uint64_t)1 << 20)

enum { LM_BRANCH = 1, LM_LEAF = 2, LM_OVERFLOW = 4, LM_META = 8 }; /* of pages */
enum { LM_BIG = 1, LM_NAMED = 2, LM_DUPLICATES = 4 };              /* of nodes */
enum { LM_DUPSORT = 4, LM_INTEGER_KEY = 8 };                       /* of databases */

/* A level of the path from the root to the current node. */
typedef struct lm_level {
    const unsigned char *page;
    uint64_t number;
    size_t index, count;
} lm_level;

typedef struct lm_entry {
    bags_view key, value;
} lm_entry;

/* A Datum. */
typedef struct lm_datum {
    uint64_t shape[3]; /* channels, height, width */
    bool has_data, has_floats, has_label, encoded;
    bags_view data;
    size_t float_count;
    int64_t label;
} lm_datum;

/* A field of the dataset. */
typedef struct lm_field {
    uint64_t seen; /* number of datapoints with it */
    size_t index;
    bool varies; /* the shape differs between datapoints */
    uint64_t shape[3];
    bags_import_column guess;
} lm_field;

typedef struct lm_state {
    bags_view file;
    uint64_t page_size, last_page, root, entries, transaction;
    unsigned flags;
    size_t depth; /* number of levels of the tree */
    lm_level levels[LM_LEVELS];
    size_t level_count; /* 0: before the first entry */
    uint64_t next;      /* number of the next entry */
    bool is_datum, encoded;
    uint64_t pickles, msgpacks;
    lm_field key, value, floats, label;
} lm_state;

static uint64_t lm_number(const unsigned char *at, size_t size) {
    return bags_load_bytes(at, size, false);
}

static bags_code lm_bad(bags_source *s, uint64_t page, const char *what) {
    return bags_source_fail(
        s, BAGS_ERROR_CORRUPT, "damaged database: page %" PRIu64 ": %s", page, what);
}

/* ---- the database ---- */

/* Read one of the two descriptions. */
static bags_code lm_meta(bags_source *s, uint64_t number, uint64_t page_size) {
    lm_state *l = (lm_state *)s->state;
    uint64_t start = number * page_size;
    if (l->file.size < start + LM_HEAD + 136)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT, "truncated");
    const unsigned char *meta = l->file.data + start + LM_HEAD;
    if (lm_number(meta, 4) != LM_MAGIC && number == 0) {
        bool foreign = bags_load_bytes(meta, 4, true) == LM_MAGIC ||
                       lm_number(meta - 4, 4) == LM_MAGIC;
        return foreign
                   ? bags_source_fail(s, BAGS_ERROR_TYPE,
                         "written by a 32-bit or big-endian program: not supported")
                   : bags_source_fail(s, BAGS_ERROR_CORRUPT, "not an LMDB database");
    }
    if (lm_number(meta, 4) != LM_MAGIC || !(lm_number(meta - 6, 2) & LM_META))
        return lm_bad(s, number, "not a description of the database");
    if (lm_number(meta + 4, 4) != 1)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "version of the format not supported (%" PRIu64 ", expected 1)",
            lm_number(meta + 4, 4));
    const unsigned char *pages = meta + 24, *tree = pages + 48, *rest = tree + 48;
    uint64_t transaction = lm_number(rest + 8, 8);
    l->page_size = lm_number(pages, 4);
    if (l->page_size < 512 || l->page_size > 65536 ||
        (l->page_size & (l->page_size - 1)) || (page_size && l->page_size != page_size))
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "damaged database: invalid page size (%" PRIu64 ")", l->page_size);
    if (number > 0 && transaction <= l->transaction)
        return BAGS_OK;
    l->transaction = transaction;
    l->last_page = lm_number(rest, 8);
    l->flags = (unsigned)lm_number(tree + 4, 2);
    l->depth = (size_t)lm_number(tree + 6, 2);
    l->entries = lm_number(tree + 32, 8);
    l->root = lm_number(tree + 40, 8);
    uint64_t map_size = lm_number(meta + 16, 8);
    if (map_size / l->page_size <= l->last_page)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "damaged database: map size too small (%" PRIu64 " bytes for %" PRIu64
            " pages)",
            map_size, l->last_page + 1);
    return BAGS_OK;
}

static bags_code lm_open_database(bags_source *s) {
    lm_state *l = (lm_state *)s->state;
    FORMAT_TRY(lm_meta(s, 0, 0));
    FORMAT_TRY(lm_meta(s, 1, l->page_size));
    if (l->last_page >= l->file.size / l->page_size && l->root != UINT64_MAX)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "truncated (%" PRIu64 " bytes, %" PRIu64 " pages of %" PRIu64 " expected)",
            s->file.size, l->last_page + 1, l->page_size);
    if (l->flags & LM_DUPSORT)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "duplicate keys (MDB_DUPSORT) are not supported");
    if (l->root != UINT64_MAX && (l->depth == 0 || l->depth > LM_LEVELS))
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "damaged database: invalid depth (%" PRIu64 ")", (uint64_t)l->depth);
    /* A node has 8 bytes or more. */
    if ((l->root == UINT64_MAX) != (l->entries == 0) || l->entries > l->file.size / 8)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "damaged database: invalid number of entries (%" PRIu64 ")", l->entries);
    return BAGS_OK;
}

/* Find a page of this kind. */
static bags_code lm_page(
    bags_source *s, uint64_t number, unsigned kind, const unsigned char **out) {
    const lm_state *l = (const lm_state *)s->state;
    if (number < 2 || number > l->last_page)
        return lm_bad(s, number, "out of range");
    *out = l->file.data + number * l->page_size;
    unsigned flags = (unsigned)lm_number(*out + 10, 2);
    if (lm_number(*out, 8) != number || (flags & ~16U) != kind)
        return lm_bad(s, number, "not a page of the expected kind");
    return BAGS_OK;
}

/* Enter a page of the tree. */
static bags_code lm_enter(bags_source *s, uint64_t number) {
    lm_state *l = (lm_state *)s->state;
    lm_level *level = &l->levels[l->level_count];
    unsigned kind = l->level_count + 1 == l->depth ? LM_LEAF : LM_BRANCH;
    FORMAT_TRY(lm_page(s, number, kind, &level->page));
    uint64_t lower = lm_number(level->page + 12, 2);
    if (lower < LM_HEAD + 2 || lower % 2 || lower > l->page_size)
        return lm_bad(s, number, "invalid number of nodes");
    level->number = number;
    level->index = 0;
    level->count = (size_t)(lower - LM_HEAD) / 2;
    l->level_count++;
    return BAGS_OK;
}

/* The current node of a level. *size receives the number of bytes up to the end of the
 * page. */
static bags_code lm_node(
    bags_source *s, const lm_level *level, const unsigned char **out, uint64_t *size) {
    const lm_state *l = (const lm_state *)s->state;
    uint64_t at = lm_number(level->page + LM_HEAD + 2 * level->index, 2);
    if (at < LM_HEAD + 2 * level->count || at > l->page_size - 8 ||
        lm_number(level->page + at + 6, 2) > l->page_size - at - 8)
        return lm_bad(s, level->number, "invalid node");
    *out = level->page + at;
    *size = l->page_size - at;
    return BAGS_OK;
}

/* The value of a node of a leaf. `left`: number of bytes in its page after the key. */
static bags_code lm_value(bags_source *s, const unsigned char *node, uint64_t left,
    bags_view key, bags_view *out) {
    const lm_state *l = (const lm_state *)s->state;
    const lm_level *level = &l->levels[l->level_count - 1];
    unsigned flags = (unsigned)lm_number(node + 4, 2);
    uint64_t size = lm_number(node, 4);
    const unsigned char *at = key.data + key.size;
    if (flags & LM_NAMED)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "contains a named database (\"%.*s\"): not supported",
            (int)(key.size < 100 ? key.size : 100), (const char *)key.data);
    if (flags & LM_DUPLICATES)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "duplicate keys (MDB_DUPSORT) are not supported");
    if (flags & LM_BIG) {
        uint64_t first = left < 8 ? 0 : lm_number(at, 8);
        FORMAT_TRY(lm_page(s, first, LM_OVERFLOW, &at));
        uint64_t pages = lm_number(at + 12, 4);
        if (pages > l->last_page - first + 1)
            return lm_bad(s, first, "too many pages of a value");
        left = pages * l->page_size;
        at += LM_HEAD;
        left -= left < LM_HEAD ? left : LM_HEAD;
    }
    if (size > left)
        return lm_bad(s, level->number, "a value crosses the end of its page");
    out->data = at;
    out->size = (size_t)size;
    return BAGS_OK;
}

/* Move to the next entry. Its key has no data after the last one. */
static bags_code lm_next(bags_source *s, lm_entry *out) {
    lm_state *l = (lm_state *)s->state;
    const unsigned char *node;
    uint64_t size;
    memset(out, 0, sizeof *out);
    if (l->root == UINT64_MAX)
        return BAGS_OK;
    if (l->next == 0)
        FORMAT_TRY(lm_enter(s, l->root));
    else
        l->levels[l->level_count - 1].index++;
    while (l->levels[l->level_count - 1].index == l->levels[l->level_count - 1].count) {
        if (--l->level_count == 0)
            return BAGS_OK;
        l->levels[l->level_count - 1].index++;
    }
    while (l->level_count < l->depth) {
        FORMAT_TRY(lm_node(s, &l->levels[l->level_count - 1], &node, &size));
        FORMAT_TRY(lm_enter(s, lm_number(node, 6)));
    }
    FORMAT_TRY(lm_node(s, &l->levels[l->level_count - 1], &node, &size));
    out->key.data = node + 8;
    out->key.size = (size_t)lm_number(node + 6, 2);
    l->next++;
    return lm_value(s, node, size - 8 - out->key.size, out->key, &out->value);
}

/* ---- values ---- */

/* Parse a Datum. False if the value is none. */
static bool lm_parse_datum(bags_view from, lm_datum *out) {
    wire_part part;
    memset(out, 0, sizeof *out);
    while (from.size > 0) {
        if (!wire_split(&from, &part) || part.number > 7)
            return false;
        bool is_bytes = part.number == 4 || part.number == 6;
        if (part.wire != (is_bytes ? (unsigned)WIRE_BYTES : (unsigned)WIRE_VARINT) &&
            !(part.number == 6 && part.wire == WIRE_4))
            return false;
        if (part.number <= 3) {
            out->shape[part.number - 1] = part.varint;
        } else if (part.number == 4) {
            out->data = part.bytes;
            out->has_data = part.bytes.size > 0;
        } else if (part.number == 5) {
            out->label = (int64_t)part.varint;
            out->has_label = true;
        } else if (part.number == 6) {
            if (part.bytes.size % 4)
                return false;
            out->float_count += part.bytes.size / 4;
            out->has_floats = true;
        } else {
            out->encoded = part.varint != 0;
        }
    }
    uint64_t count = 1;
    for (size_t i = 0; i < 3; i++) {
        if (out->shape[i] > LM_DIMENSION)
            return false;
        count *= out->shape[i];
    }
    return (out->has_data || out->has_floats) && out->label >= INT32_MIN &&
           out->label <= INT32_MAX &&
           (!out->has_data || out->encoded || out->data.size == count) &&
           (!out->has_floats || out->float_count == count);
}

/* Copy the floats of a Datum. NULL if out of memory. */
static void *lm_floats(bags_source *s, bags_view from, size_t count) {
    unsigned char *floats = (unsigned char *)bags_source_alloc(s, count + 1, 4);
    wire_part part;
    for (unsigned char *to = floats; to && from.size > 0 && wire_split(&from, &part);) {
        if (part.number != 6 || part.bytes.size == 0)
            continue;
        bags_swap_bytes(
            to, part.bytes.data, part.bytes.size, bags_little_endian() ? 1 : 4);
        to += part.bytes.size;
    }
    return floats;
}

/* True if the bytes are one msgpack map or array, and nothing else. */
static bool lm_is_msgpack(bags_view from) {
    uint64_t open = 1, at = 0;
    if (from.size < 2 ||
        ((from.data[0] & 0xE0) != 0x80 && (from.data[0] < 0xDC || from.data[0] > 0xDF)))
        return false;
    while (open > 0 && at < from.size) {
        /* Bytes after the head of 0xC0 to 0xDF: a number or a size. */
        static const unsigned char after[32] = {0, 0, 0, 0, 1, 2, 4, 2, 3, 5, 4, 8, 1,
            2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 1, 2, 4, 2, 4, 2, 4};
        unsigned head = from.data[at++];
        uint64_t size = 0, items = 0;
        if (head >= 0x80 && head < 0xA0) {
            items = (head & 15) * (head < 0x90 ? 2U : 1U);
        } else if (head >= 0xA0 && head < 0xC0) {
            size = head & 31;
        } else if (head >= 0xC0 && head < 0xE0) {
            size = after[head - 0xC0];
            bool has_size = (head >= 0xC4 && head <= 0xC9) || head >= 0xD9;
            size_t bytes =
                head >= 0xC7 && head <= 0xC9 ? (size_t)size - 1 : (size_t)size;
            if (head == 0xC1 || size > from.size - at)
                return false;
            uint64_t stated =
                has_size ? bags_load_bytes(from.data + at, bytes, true) : 0;
            if (head >= 0xDC)
                items = stated * (head >= 0xDE ? 2U : 1U);
            else
                size += stated;
        }
        if (size > from.size - at || items > from.size - at)
            return false;
        at += size;
        open += items - 1;
    }
    return open == 0 && at == from.size;
}

/* Protocols 2 to 5 of pickle. */
static bool lm_is_pickle(bags_view from) {
    return from.size > 2 && from.data[0] == 0x80 && from.data[1] >= 2 &&
           from.data[1] <= 5 && from.data[from.size - 1] == '.';
}

static void lm_learn_shape(lm_field *field, const uint64_t shape[3]) {
    field->varies = field->varies ||
                    (field->seen && memcmp(field->shape, shape, sizeof field->shape));
    memcpy(field->shape, shape, sizeof field->shape);
    field->seen++;
}

static bags_code lm_not_datum(bags_source *s, uint64_t index, const char *what) {
    return bags_source_fail(
        s, BAGS_ERROR_CORRUPT, "datapoint %" PRIu64 ": %s", index, what);
}

/* Learn what an entry contains. */
static bags_code lm_learn(bags_source *s, const lm_entry *entry, uint64_t index) {
    lm_state *l = (lm_state *)s->state;
    lm_datum datum;
    bool is_datum = lm_parse_datum(entry->value, &datum);
    bags_import_guess(&l->key.guess, entry->key.data, entry->key.size, true);
    l->key.seen++;
    if (index == 0)
        l->is_datum = is_datum;
    if (l->is_datum && !is_datum)
        return lm_not_datum(s, index, "not a Datum of Caffe, unlike the first value");
    if (!l->is_datum) {
        l->pickles += lm_is_pickle(entry->value);
        l->msgpacks += lm_is_msgpack(entry->value);
        bags_import_guess(&l->value.guess, entry->value.data, entry->value.size, false);
        l->value.seen++;
        return BAGS_OK;
    }
    if (datum.has_data && l->value.seen && l->encoded != datum.encoded)
        return lm_not_datum(s, index,
            datum.encoded ? "an encoded image, unlike earlier ones"
                          : "not an encoded image, unlike earlier ones");
    l->encoded = datum.has_data ? datum.encoded : l->encoded;
    if (datum.has_data && datum.encoded)
        bags_import_guess(&l->value.guess, datum.data.data, datum.data.size, false);
    if (datum.has_data)
        lm_learn_shape(&l->value, datum.shape);
    if (datum.has_floats)
        lm_learn_shape(&l->floats, datum.shape);
    l->label.seen += datum.has_label;
    return BAGS_OK;
}

/* ---- the source ---- */

static void lm_add(
    bags_source *s, lm_field *field, const char *name, const char *type) {
    field->index = s->count;
    bags_source_field(s, name,
        type ? bags_source_format(s, "%s%s", type, field->seen < s->length ? "[]" : "")
             : NULL);
}

static const char *lm_array(bags_source *s, const lm_field *field, bags_dtype dtype) {
    return field->varies ? "array"
                         : bags_source_number_type(s, dtype, 3, field->shape, false);
}

static void lm_add_fields(bags_source *s) {
    lm_state *l = (lm_state *)s->state;
    lm_add(s, &l->key, "key",
        l->flags & LM_INTEGER_KEY ? "u64"
        : l->key.guess.not_text   ? "bytes"
                                  : "utf8");
    if (!l->is_datum)
        lm_add(s, &l->value, "value", bags_import_guessed(&l->value.guess));
    else if (l->value.seen)
        lm_add(s, &l->value, "data",
            l->encoded ? bags_import_guessed(&l->value.guess)
                       : lm_array(s, &l->value, BAGS_DTYPE_UINT8));
    if (l->floats.seen)
        lm_add(
            s, &l->floats, "float_data", lm_array(s, &l->floats, BAGS_DTYPE_FLOAT32));
    if (l->label.seen)
        lm_add(s, &l->label, "label", "i64");
}

static void lm_note(bags_source *s, uint64_t count, const char *what) {
    if (count > 0)
        bags_source_note(s, s->path,
            "%" PRIu64 " value%s %s: stored as bytes, not decoded", count,
            count == 1 ? " is" : "s are", what);
}

static bags_code lm_open(bags_source *s) {
    lm_state *l = (lm_state *)s->state;
    lm_entry entry;
    const char *path = s->path;
    if (bags_import_kind(path, NULL) == BAGS_PATH_DIRECTORY)
        path = bags_source_format(s, "%s/" LM_FILE, path);
    if (!path)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_source_open_file(s, path));
    FORMAT_TRY(bags_source_map(s, &l->file));
    FORMAT_TRY(lm_open_database(s));
    for (uint64_t i = 0; true; i++) {
        FORMAT_TRY(lm_next(s, &entry));
        if (!entry.key.data && i == l->entries)
            break;
        if (!entry.key.data || i == l->entries)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "damaged database: %s entries than stated (%" PRIu64 ")",
                entry.key.data ? "more" : "fewer", l->entries);
        if (l->flags & LM_INTEGER_KEY && entry.key.size != 4 && entry.key.size != 8)
            return lm_bad(s, l->levels[l->level_count - 1].number,
                "an integer key without 4 or 8 bytes");
        FORMAT_TRY(lm_learn(s, &entry, i));
    }
    s->length = l->entries;
    l->next = l->level_count = 0;
    lm_note(s, l->pickles, "pickled");
    lm_note(s, l->msgpacks, "msgpack");
    lm_add_fields(s);
    return BAGS_OK;
}

static bags_code lm_set_datum(bags_source *s, const lm_entry *entry, uint64_t index) {
    lm_state *l = (lm_state *)s->state;
    lm_datum datum;
    uint64_t *shape = (uint64_t *)bags_source_alloc(s, 3, sizeof *shape);
    if (!shape)
        return BAGS_ERROR_MEMORY;
    if (!lm_parse_datum(entry->value, &datum))
        return lm_not_datum(s, index, "changed while the file was read");
    memcpy(shape, datum.shape, sizeof datum.shape);
    if (l->value.seen)
        s->entries[l->value.index].count = datum.has_data;
    if (l->floats.seen)
        s->entries[l->floats.index].count = datum.has_floats;
    if (l->label.seen)
        s->entries[l->label.index].count = datum.has_label;
    if (datum.has_label)
        s->values[l->label.index] = bags_int(datum.label);
    if (datum.has_data)
        s->values[l->value.index] =
            l->encoded ? bags_blob(datum.data.data, datum.data.size)
                       : bags_array(BAGS_DTYPE_UINT8, 3, shape, datum.data.data);
    if (!datum.has_floats)
        return BAGS_OK;
    void *floats = lm_floats(s, entry->value, datum.float_count);
    if (!floats)
        return BAGS_ERROR_MEMORY;
    s->values[l->floats.index] = bags_array(BAGS_DTYPE_FLOAT32, 3, shape, floats);
    return BAGS_OK;
}

static bags_code lm_read(bags_source *s, uint64_t index) {
    lm_state *l = (lm_state *)s->state;
    lm_entry entry;
    memset(&entry, 0, sizeof entry);
    if (s->ended)
        return BAGS_OK;
    while (l->next <= index) {
        FORMAT_TRY(lm_next(s, &entry));
        if (!entry.key.data)
            return lm_not_datum(s, index, "changed while the file was read");
    }
    s->values[l->key.index] = l->flags & LM_INTEGER_KEY
                                  ? bags_uint(lm_number(entry.key.data, entry.key.size))
                                  : bags_blob(entry.key.data, entry.key.size);
    if (l->is_datum)
        return lm_set_datum(s, &entry, index);
    s->values[l->value.index] = bags_blob(entry.value.data, entry.value.size);
    return BAGS_OK;
}

static bool lm_detect(const char *path) {
    unsigned char head[LM_HEAD + 4];
    return bags_import_kind(path, LM_FILE) == BAGS_PATH_FILE ||
           (bags_import_peek(path, head, sizeof head) == sizeof head &&
               lm_number(head + LM_HEAD, 4) == LM_MAGIC);
}

const bags_importer bags_import_lmdb = {
    "lmdb", lm_detect, sizeof(lm_state), lm_open, lm_read, NULL};
