/*
 * index.c - finds datapoints by the value of a field: ids, names, times.
 *
 * An index is a Bag with checksums, index/FIELD.bag, in the dataset's directory or,
 * if it is sharded, in that of its first shard. Other readers ignore it.
 *
 *     blob 0      "BAGSKEY2" | number of keys | content | times | the field's type
 *     blob 1..N   key | datapoint; one per datapoint, sorted
 *
 * The header's numbers have 8 bytes, little-endian; a datapoint has 8 bytes,
 * big-endian. Keys compare as bytes, a prefix before what it begins: text is
 * its own key; a number is 8 big-endian bytes, with the sign inverted (of negative
 * floats, all bits).
 *
 * `content` and `times` indicate whether the dataset is the one that was indexed:
 * they are hashes of the sizes and last bytes (where tables and checksums end), and of
 * the times, of FIELD.bag, FIELD.crc and refs.bag of every shard; times is 0 where
 * files have none, and is not compared where they are those of a copy. When the index is opened, some of its keys are compared, too.
 *
 * Building is an external merge sort in the directory index/FIELD.partial: sorted runs
 * of `memory` bytes are written to runs.bag one after the other, then merged into
 * keys.bag, which gets its name at the end. Meanwhile, the dataset's FIELD.bag is
 * locked.
 *
 * Two jobs share the file because both need its first half, keys and places: to sort
 * in bounded memory, and to find. A third of it is what recognizes a dataset that has
 * changed and reports each failure of the system.
 */
#include "loader.h"
#include "private.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_MAGIC "BAGSKEY2"
#define INDEX_HEADER 32  /* bytes before the type */
#define INDEX_PATH 4096  /* bytes of the longest path */
#define INDEX_CHUNK 1024 /* the most datapoints or entries read at once */
#define INDEX_NUMBER 8   /* bytes of a datapoint, and of a number as a key */
#define INDEX_SAMPLES 16 /* keys that are compared when an index is opened */
#define INDEX_PROBES 31  /* keys that a step of a search reads if they are far away */
#define INDEX_LAST 64    /* bytes at the end of a file that are compared */
#define INDEX_MANY 256   /* entries that are read at once */
#define INDEX_MEMORY ((size_t)64 << 20)

/* How values become keys. */
typedef enum key_class { KEY_NONE, KEY_BYTES, KEY_UINT, KEY_INT, KEY_FLOAT } key_class;

typedef struct key_type {
    key_class order;
    bool single; /* float32: a key that is searched for is rounded to it */
} key_type;

struct bags_index {
    bags_buffer memory; /* that holds it */
    bag_reader *bag;
    const bags_reader *reader;
    size_t field;
    key_type type;
    bool far;
    uint64_t length;
    char path[INDEX_PATH];
};

/* ---- keys ---- */

static void key_store(unsigned char *out, uint64_t number) {
    for (int i = INDEX_NUMBER; i > 0; i--, number >>= 8)
        out[i - 1] = (unsigned char)number;
}

static uint64_t key_load(const unsigned char *in) {
    uint64_t number = 0;
    for (int i = 0; i < INDEX_NUMBER; i++)
        number = number << 8 | in[i];
    return number;
}

static bool name_is(bags_view name, const char *text) {
    return name.size == strlen(text) && memcmp(name.data, text, name.size) == 0;
}

/* Arrays have keys if they have one element. */
static key_type key_type_of(const bags_type *type) {
    key_type out = {KEY_NONE, false};
    if (type->sequence)
        return out;
    if (name_is(type->name, "utf8") || name_is(type->name, "bytes"))
        out.order = KEY_BYTES;
    else if (name_is(type->name, "int") || name_is(type->name, "u64"))
        out.order = KEY_UINT;
    else if (name_is(type->name, "i64"))
        out.order = KEY_INT;
    if (out.order != KEY_NONE || !name_is(type->name, "array"))
        return out;
    for (size_t i = 1; i < type->count; i++) {
        uint64_t dim = 0;
        if (!bags_type_number(type, i, &dim) || dim != 1)
            return out;
    }
    bags_view name = bags_type_argument(type, 0);
    bags_dtype dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    char code = *bags_dtype_code(dtype); /* "u2", "f4", ... */
    out.single = dtype == BAGS_DTYPE_FLOAT32;
    out.order = code == 'u' || code == 'b'                  ? KEY_UINT
                : code == 'i'                               ? KEY_INT
                : out.single || dtype == BAGS_DTYPE_FLOAT64 ? KEY_FLOAT
                                                            : KEY_NONE;
    return out;
}

/* The one element of an array as a number: bags_int or bags_uint; or *real. */
static bags_value key_element(const bags_value *array, double *real) {
    size_t size = bags_dtype_size(array->dtype);
    char code = *bags_dtype_code(array->dtype);
    unsigned char bytes[8] = {0}; /* little-endian */
    float single = 0;
    bags_value out;
    memset(&out, 0, sizeof out);
    if (array->size != size || size > sizeof bytes)
        return out;
    if (code == 'f') {
        if (size == sizeof single)
            memcpy(&single, array->data, size);
        *real = (double)single;
        if (size == sizeof *real)
            memcpy(real, array->data, size);
        return size == 2 ? out : *array;
    }
    if (bags_little_endian())
        memcpy(bytes, array->data, size);
    else
        bags_swap_bytes(bytes, array->data, size, size);
    uint64_t number = 0, sign = (uint64_t)1 << (8 * size - 1);
    for (size_t i = size; i > 0; i--)
        number = number << 8 | bytes[i - 1];
    if (code != 'i')
        return code == 'u' || code == 'b' ? bags_uint(number) : out;
    return bags_int((int64_t)((number ^ sign) - sign));
}

/* The key of a value. Numbers are stored in `number`, text is not copied. The end of
 * a range may be `beyond` the type: it is then before or after all keys. */
static bags_code key_make(const key_type *type, const bags_value *value, bool is_end,
    unsigned char number[INDEX_NUMBER], bags_view *key, bags_error *err) {
    static const unsigned char after[INDEX_NUMBER + 1] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t bits = 0;
    double real = 0;
    const char *wrong = NULL, *beyond = NULL;
    bool above = false;
    bags_value element = *value;
    if (type->order == KEY_BYTES) {
        if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
            return bags_fail(err, BAGS_ERROR_VALUE, "a key of this field is text");
        key->data = (const unsigned char *)value->data;
        key->size = value->size;
        return BAGS_OK;
    }
    if (value->kind == BAGS_KIND_ARRAY)
        element = key_element(value, &real);
    bool is_int = element.kind == BAGS_KIND_INT;
    bool is_uint = element.kind == BAGS_KIND_UINT;
    bool is_whole = is_int || is_uint;
    bits = is_uint ? element.uint : (uint64_t)element.sint;
    if (!is_whole && element.kind != BAGS_KIND_ARRAY) {
        wrong = "a key of this field is a number";
    } else if (type->order == KEY_FLOAT) {
        if (is_whole)
            real = is_int ? (double)element.sint : (double)element.uint;
        if (is_whole && (real >= 9007199254740992.0 || real <= -9007199254740992.0))
            wrong = "number out of range (2^53 or above)";
        if (real != real)
            wrong = "NaN has no order";
        real += 0.0; /* -0 equals 0 */
        memcpy(&bits, &real, sizeof bits);
        bits = bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
    } else if (!is_whole) {
        above = real >= 18446744073709551616.0;
        if (above || real < -9223372036854775808.0)
            beyond = "number out of range";
        else
            wrong = "a key of this field is a whole number";
    } else if (type->order == KEY_INT) {
        above = is_uint && element.uint > INT64_MAX;
        beyond = above ? "number out of range (above 2^63-1)" : NULL;
        bits ^= (uint64_t)1 << 63;
    } else if (is_int && element.sint < 0) {
        beyond = "number out of range (below 0)";
    }
    if (beyond && !is_end)
        wrong = beyond;
    if (wrong)
        return bags_fail(err, BAGS_ERROR_VALUE, "%s", wrong);
    key_store(number, bits);
    key->data = above ? after : number;
    key->size = above ? sizeof after : beyond ? 0 : INDEX_NUMBER;
    return BAGS_OK;
}

static int key_compare(bags_view a, bags_view b) {
    size_t size = a.size < b.size ? a.size : b.size;
    int order = size ? memcmp(a.data, b.data, size) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* The key of a blob of the index. */
static bags_view key_of(bags_view entry) {
    entry.size -= INDEX_NUMBER;
    return entry;
}

/* ---- files ---- */

static const bags_io *io_of(const bags_env *env) {
    return env->io ? env->io : bags_io_local();
}

/* Files that are far away have no links, and the times of their copies. */
static bool is_far(const bags_io *io) { return io->read_many != NULL; }

static bags_code fail_long(const char *path, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_LIMIT, "%.300s: path too long", path);
}

static bags_code path_make(char out[INDEX_PATH], bags_error *err, const char *directory,
    const char *name, const char *ending) {
    int size = snprintf(out, INDEX_PATH, "%s/%s%s", directory, name, ending);
    return size < 0 || size >= INDEX_PATH ? fail_long(directory, err) : BAGS_OK;
}

/* The directory of a shard of the reader's dataset. */
static bags_code shard_path(
    char out[INDEX_PATH], bags_error *err, const char *path, const bags_shard *shard) {
    char name[256 + 1]; /* the longest name of a file */
    (void)snprintf(name, sizeof name, "/%0*" PRIu64, (int)shard->digits, shard->number);
    int size = snprintf(out, INDEX_PATH, "%s%s", path, shard->digits ? name : "");
    return size < 0 || size >= INDEX_PATH ? fail_long(path, err) : BAGS_OK;
}

/* Refuse a link, which leads to what is not the dataset's. */
static bags_code check_no_link(const bags_io *io, const char *path, bags_error *err) {
    bags_identity found;
    if (!io->identify || is_far(io))
        return BAGS_OK;
    int error = io->identify(io->user, NULL, path, &found);
    if (!error && found.link)
        error = ELOOP;
    return error == ENOENT ? BAGS_OK : bags_fail_io(io, error, path, "open", err);
}

static void mix(uint64_t *hash, uint64_t number) {
    *hash = (*hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    *hash ^= *hash >> 29;
}

/* What a dataset is recognized by; see the top. */
typedef struct stamp {
    uint64_t content, times;
} stamp;

static int stamp_file(const bags_io *io, const char *path, stamp *out) {
    unsigned char last[INDEX_LAST];
    bags_identity found;
    uint64_t size = 0;
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    if (error)
        return error;
    memset(&found, 0, sizeof found);
    error = io->size(io->user, file, &size);
    if (!error && io->identify && !is_far(io))
        error = io->identify(io->user, file, path, &found);
    size_t part = size < sizeof last ? (size_t)size : sizeof last, done = 1;
    for (size_t at = 0; at < part && !error && done > 0; at += done) {
        done = 0;
        error =
            io->read_at(io->user, file, size - part + at, last + at, part - at, &done);
        if (!error)
            mix(&out->content, bags_crc32c(0, last + at, done));
    }
    io->close(io->user, file);
    mix(&out->content, size + 1);
    mix(&out->times, found.time);
    return error;
}

static bags_code stamp_make(const bags_reader *reader, const bags_env *env,
    const char *path, const char *field, stamp *out, bags_error *err) {
    const bags_io *io = io_of(env);
    char directory[INDEX_PATH], file[INDEX_PATH];
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    bags_code code = BAGS_OK;
    memset(out, 0, sizeof *out);
    /* All of them will be looked up: announce it first. */
    for (int round = io->expect ? 0 : 1; round < 2; round++)
        for (size_t i = 0; i < 3 * count && !code; i++) {
            size_t k = i % 3;
            int error = 0;
            code = shard_path(directory, err, path, &shards[i / 3]);
            if (!code)
                code = path_make(file, err, directory, k < 2 ? field : "refs",
                    k == 1 ? ".crc" : ".bag");
            if (!code && round == 0) {
                io->expect(io->user, file);
                continue;
            }
            if (!code)
                error = stamp_file(io, file, out);
            if (error && (k == 0 || error != ENOENT))
                code = bags_fail_io(io, error, file, "read", err);
            mix(&out->content, (uint64_t)(error == 0));
        }
    bool timed = io->identify && !is_far(io);
    out->times = timed ? out->times + !out->times : 0;
    return code;
}

/* Where the index of a field is: the directory of indexes, which is the dataset's own;
 * and the first of the field's Bags, which is locked while the index is built. */
static bags_code index_place(const bags_reader *reader, const bags_io *io,
    const char *path, const char *field, char directory[INDEX_PATH],
    char bag[INDEX_PATH], bags_error *err) {
    char shard[INDEX_PATH];
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    if (count == 0)
        return bags_fail(
            err, BAGS_ERROR_MISSING, "%.300s: an index needs a finished shard", path);
    bags_shard first = shards[0];
    first.number = 0; /* the reader may have only later ones */
    bags_code code = shard_path(shard, err, path, &first);
    if (!code && first.digits)
        code = check_no_link(io, shard, err);
    if (!code)
        code = path_make(directory, err, shard, "index", "");
    if (!code)
        code = check_no_link(io, directory, err);
    return code ? code : path_make(bag, err, shard, field, ".bag");
}

/* Types that cannot be keys are refused by name. */
static bags_code find_field(const bags_reader *reader, size_t field, const char *path,
    key_type *type, bags_error *err) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (field >= count)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%.300s: field number %" PRIu64 " out of range (%" PRIu64 " fields)", path,
            (uint64_t)field, (uint64_t)count);
    *type = key_type_of(bags_reader_type(reader, field));
    if (type->order != KEY_NONE)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%.300s: field \"%.200s\": values of type %.100s cannot be keys (only "
        "numbers, utf8 and bytes)",
        path, fields[field].name, fields[field].type);
}

/* ---- building ---- */

#ifndef BAGS_NO_WRITER

static int entry_compare(const void *a, const void *b) {
    bags_view x = *(const bags_view *)a, y = *(const bags_view *)b;
    int order = key_compare(key_of(x), key_of(y));
    return order ? order
                 : memcmp(x.data + x.size - INDEX_NUMBER,
                       y.data + y.size - INDEX_NUMBER, INDEX_NUMBER);
}

/* It is on the heap: a thread's stack may be small. */
typedef struct build {
    bags_buffer memory; /* see format_state */
    const bags_index_options *options;
    const bags_io *io;
    const char *path;
    const bags_field *field;
    bags_reader *reader;
    size_t number; /* of the field */
    key_type type;
    char directory[INDEX_PATH], partial[INDEX_PATH];
    char from[INDEX_PATH], to[INDEX_PATH]; /* of whoever needs a path */
    bag_writer *sorted;                    /* runs.bag */
    bags_buffer stops; /* uint64_t: the entry at which each run ends */
    size_t runs;
    bags_buffer entries, bytes;
    size_t count, used, capacity; /* of both */
} build;

/* Remove the directory of a build, this one's or one that was killed. */
static void remove_partial(build *b) {
    static const char *const names[] = {
        "keys.bag", "keys.idx", "keys.crc", "runs.bag", "runs.idx"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!path_make(b->from, NULL, b->partial, names[i], ""))
            b->io->remove(b->io->user, b->from);
    b->io->remove_dir(b->io->user, b->partial);
}

static bags_code create(
    build *b, const char *name, bool last, bag_writer **out, bags_error *err) {
    bag_writer_options options;
    memset(&options, 0, sizeof options);
    options.checksum = last;
    options.no_sync = !last;
    options.env = b->options->env;
    bags_code code = path_make(b->to, err, b->partial, name, ".bag");
    *out = code ? NULL : bag_writer_open(b->to, &options, err);
    return code || *out ? code : err->code;
}

/* Sort the entries in memory, and write them. */
static bags_code write_sorted(build *b, bag_writer *out, bags_error *err) {
    bags_view *entries = (bags_view *)(void *)b->entries.data;
    bags_code code = BAGS_OK;
    if (b->count)
        qsort(entries, b->count, sizeof *entries, entry_compare);
    for (size_t i = 0; i < b->count && !code; i++)
        code = bag_writer_append(out, entries[i].data, entries[i].size, NULL, err);
    b->count = b->used = 0;
    return code;
}

static bags_code write_run(build *b, bags_error *err) {
    bags_code code = b->sorted ? BAGS_OK : create(b, "runs", false, &b->sorted, err);
    if (!code)
        code = bags_buffer_reserve(&b->stops, (b->runs + 1) * sizeof(uint64_t), err);
    if (!code)
        code = write_sorted(b, b->sorted, err);
    if (!code)
        ((uint64_t *)(void *)b->stops.data)[b->runs++] = bag_writer_length(b->sorted);
    return code;
}

static bags_code add(build *b, bags_view key, uint64_t datapoint, bags_error *err) {
    size_t size = key.size + INDEX_NUMBER;
    if (key.size > b->bytes.capacity / 2)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%.300s: field \"%.200s\": datapoint %" PRIu64 ": key too large (%" PRIu64
            " bytes, maximum %" PRIu64 ")",
            b->path, b->field->name, datapoint, (uint64_t)key.size,
            (uint64_t)b->bytes.capacity / 2);
    if (b->count == b->capacity || size > b->bytes.capacity - b->used) {
        bags_code code = write_run(b, err);
        if (code)
            return code;
    }
    bags_view *entry = (bags_view *)(void *)b->entries.data + b->count++;
    unsigned char *to = b->bytes.data + b->used;
    if (key.size)
        memcpy(to, key.data, key.size);
    key_store(to + key.size, datapoint);
    entry->data = to;
    entry->size = size;
    b->used += size;
    return BAGS_OK;
}

/* How many blobs of this size fit in the memory: at least one, and at most `most`. */
static uint64_t chunk_of(size_t memory, uint64_t size, uint64_t most) {
    uint64_t chunk = memory / (size + 1);
    if (most > INDEX_CHUNK)
        most = INDEX_CHUNK;
    return chunk > most ? most : chunk + (chunk == 0);
}

static bags_code read_keys(build *b, bags_error *err) {
    uint64_t length = bags_reader_length(b->reader), chunk = 1;
    size_t count = 0;
    bags_row row;
    bags_code code = BAGS_OK;
    memset(&row, 0, sizeof row);
    for (uint64_t i = 0; i < length && !code; i += count) {
        uint64_t bytes = 1;
        code = bags_reader_get_range(b->reader, i, i + chunk, b->number, &row, err);
        count = code ? 0 : bags_row_length(&row, 0);
        for (size_t j = 0; j < count && !code; j++) {
            unsigned char number[INDEX_NUMBER];
            bags_error why;
            bags_value value;
            bags_view key = {NULL, 0};
            bytes += bags_row_bytes(&row, 0, j).size;
            code = bags_row_value(&row, 0, j, NULL, &value, err);
            if (!code && key_make(&b->type, &value, false, number, &key, &why))
                code = bags_fail(err, why.code,
                    "%.300s: field \"%.200s\": datapoint %" PRIu64 ": %s", b->path,
                    b->field->name, i + j, why.message);
            if (!code)
                code = add(b, key, i + j, err);
        }
        if (b->options->progress && !code)
            b->options->progress(b->options->user, i + count, length);
        chunk = chunk_of(b->bytes.capacity / 2, bytes / (count + 1), 4 * chunk);
    }
    bags_row_free(&row);
    return code;
}

/* The next entry of a run, and those that were read with it. The runs are a heap,
 * ordered by their next entries. */
typedef struct run {
    bags_view entry;     /* without data: the run is over */
    uint64_t next, stop; /* in runs.bag: what was not read yet */
    bags_range range;
    size_t at; /* in the range */
    bags_buffer scratch;
} run;

static bags_code run_next(
    run *r, const bag_reader *bag, uint64_t chunk, bags_error *err) {
    static const char changed[] = "another process changed a sorted run";
    if (r->at == r->range.length) {
        uint64_t stop = r->stop - r->next < chunk ? r->stop : r->next + chunk;
        bags_code code =
            bag_reader_get_range(bag, r->next, stop, &r->scratch, &r->range, err);
        if (code)
            return code;
        if (r->range.length != stop - r->next)
            return bags_fail(err, BAGS_ERROR_CORRUPT, "%s", changed);
        r->next = stop;
        r->at = 0;
    }
    r->entry = bags_range_get(&r->range, r->at);
    r->at += r->entry.data != NULL;
    if (r->entry.data && r->entry.size < INDEX_NUMBER)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "%s", changed);
    return BAGS_OK;
}

static void sift_down(run *runs, size_t count, size_t i) {
    for (;;) {
        size_t least = 2 * i + 1;
        if (least >= count)
            return;
        if (least + 1 < count &&
            entry_compare(&runs[least + 1].entry, &runs[least].entry) < 0)
            least++;
        if (entry_compare(&runs[i].entry, &runs[least].entry) <= 0)
            return;
        run moved = runs[i];
        runs[i] = runs[least];
        runs[least] = moved;
        i = least;
    }
}

static bags_code merge_runs(
    build *b, const bag_reader *bag, run *runs, bag_writer *out, bags_error *err) {
    const uint64_t *stops = (const uint64_t *)(const void *)b->stops.data;
    uint64_t chunk = chunk_of(b->bytes.capacity / b->runs,
        bag_reader_size(bag) / (bag_reader_length(bag) + 1), INDEX_CHUNK);
    size_t count = b->runs;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < count && !code; i++) {
        runs[i].next = i ? stops[i - 1] : 0;
        runs[i].stop = stops[i];
        code = run_next(&runs[i], bag, chunk, err);
    }
    for (size_t i = count; i > 0 && !code; i--)
        sift_down(runs, count, i - 1);
    while (count > 0 && !code) {
        code =
            bag_writer_append(out, runs[0].entry.data, runs[0].entry.size, NULL, err);
        if (!code)
            code = run_next(&runs[0], bag, chunk, err);
        if (!code && !runs[0].entry.data) {
            run ended = runs[0];
            runs[0] = runs[--count];
            runs[count] = ended;
        }
        if (!code)
            sift_down(runs, count, 0);
    }
    return code;
}

/* Merge what is in runs.bag. */
static bags_code write_merged(build *b, bag_writer *out, bags_error *err) {
    bag_reader_options options;
    bags_buffer memory = bags_buffer_of(b->options->env.allocator);
    memset(&options, 0, sizeof options);
    options.no_mmap = true; /* which would not bound the memory that is used */
    options.env = b->options->env;
    bags_code code = write_run(b, err);
    bags_code closed = bag_writer_close(b->sorted, code ? NULL : err);
    b->sorted = NULL;
    code = code ? code : closed;
    if (!code)
        code = path_make(b->from, err, b->partial, "runs", ".bag");
    if (!code)
        code = bags_buffer_reserve(&memory, b->runs * sizeof(run), err);
    bag_reader *bag = code ? NULL : bag_reader_open(b->from, &options, err);
    if (bag) {
        run *runs = (run *)(void *)memory.data;
        memset(runs, 0, b->runs * sizeof *runs);
        for (size_t i = 0; i < b->runs; i++)
            runs[i].scratch = bags_buffer_of(b->options->env.allocator);
        code = merge_runs(b, bag, runs, out, err);
        for (size_t i = 0; i < b->runs; i++)
            bags_buffer_free(&runs[i].scratch);
        bag_reader_close(bag);
    } else if (!code) {
        code = err->code;
    }
    bags_buffer_free(&memory);
    return code;
}

/* keys.bag: the header, and the keys. */
static bags_code write_index(build *b, const stamp *now, bags_error *err) {
    unsigned char header[INDEX_HEADER + 256] = INDEX_MAGIC;
    const uint64_t numbers[] = {
        bags_reader_length(b->reader), now->content, now->times};
    size_t type = strlen(b->field->type);
    bag_writer *out = NULL;
    if (type > sizeof header - INDEX_HEADER)
        return bags_fail(err, BAGS_ERROR_LIMIT, "%.300s: type too long", b->path);
    for (size_t i = 0; i < 24; i++)
        header[8 + i] = (unsigned char)(numbers[i / 8] >> 8 * (i % 8));
    memcpy(header + INDEX_HEADER, b->field->type, type);
    bags_code code = create(b, "keys", true, &out, err);
    if (!code)
        code = bag_writer_append(out, header, INDEX_HEADER + type, NULL, err);
    if (!code)
        code = b->runs ? write_merged(b, out, err) : write_sorted(b, out, err);
    if (!code)
        return bag_writer_close(out, err);
    bag_writer_abort(out);
    return code;
}

/* The index gets its name. A build that is interrupted here leaves none. */
static bags_code publish(build *b, bags_error *err) {
    static const char *const endings[] = {".bag", ".crc"};
    for (int i = 0; i < 2; i++) {
        bags_code code =
            path_make(b->to, err, b->directory, b->field->name, endings[i]);
        int error = code ? 0 : b->io->remove(b->io->user, b->to);
        if (error && error != ENOENT)
            code = bags_fail_io(b->io, error, b->to, "remove", err);
        if (code)
            return code;
    }
    for (int i = 1; i >= 0; i--) {
        path_make(b->from, err, b->partial, "keys", endings[i]);
        path_make(b->to, err, b->directory, b->field->name, endings[i]);
        int error = b->io->rename(b->io->user, b->from, b->to);
        if (error)
            return bags_fail_io(b->io, error, b->from, "rename", err);
    }
    int error = b->io->sync_dir(b->io->user, b->directory);
    return error ? bags_fail_io(b->io, error, b->directory, "sync", err) : BAGS_OK;
}

/* With the lock: sort, write and publish. */
static bags_code build_locked(build *b, bags_error *err) {
    const bags_env *env = &b->options->env;
    size_t memory = b->options->memory ? b->options->memory : INDEX_MEMORY;
    stamp before, after;
    bags_code code = stamp_make(b->reader, env, b->path, b->field->name, &before, err);
    if (code)
        return code;
    remove_partial(b);
    const char *made = b->directory;
    int error = b->io->make_dir(b->io->user, made);
    if (!error || error == EEXIST) {
        made = b->partial;
        error = b->io->make_dir(b->io->user, made);
    }
    if (error)
        return bags_fail_io(b->io, error, made, "create directory", err);
    /* Half for the bytes of small keys, half for the array that is sorted. */
    memory = memory < 4096 ? 2048 : memory / 2;
    b->capacity = memory / sizeof(bags_view);
    code = bags_buffer_reserve(&b->bytes, memory, err);
    if (!code)
        code = bags_buffer_reserve(&b->entries, memory, err);
    if (!code)
        code = read_keys(b, err);
    if (!code)
        code = write_index(b, &before, err);
    if (!code)
        code = stamp_make(b->reader, env, b->path, b->field->name, &after, err);
    if (!code && memcmp(&before, &after, sizeof before) != 0)
        code = bags_fail(err, BAGS_ERROR_STATE,
            "%.300s: the dataset changed while its index was built", b->path);
    if (!code)
        code = publish(b, err);
    bag_writer_abort(b->sorted);
    remove_partial(b);
    return code;
}

/* The lock of an index is that of the field's first Bag. */
static bags_code build_index(build *b, bags_error *err) {
    void *file = NULL;
    bags_code code = index_place(
        b->reader, b->io, b->path, b->field->name, b->directory, b->from, err);
    if (!code)
        code = path_make(b->partial, err, b->directory, b->field->name, ".partial");
    if (!code)
        code = check_no_link(b->io, b->partial, err);
    if (code)
        return code;
    int error = b->io->open(b->io->user, b->from, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(b->io, error, b->from, "open", err);
    error = b->io->lock(b->io->user, file);
    if (error == EWOULDBLOCK)
        code = bags_fail(err, BAGS_ERROR_LOCKED,
            "%.300s: field \"%.200s\": another process is building its index", b->path,
            b->field->name);
    else if (error)
        code = bags_fail_io(b->io, error, b->from, "lock", err);
    else
        code = build_locked(b, err);
    b->io->close(b->io->user, file);
    return code;
}

bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err) {
    bags_error ignored;
    bags_index_options none;
    bags_reader_options reading;
    size_t count = 0;
    memset(&none, 0, sizeof none);
    memset(&reading, 0, sizeof reading);
    if (!err)
        err = &ignored;
    if (!path || !field)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the path or the field is NULL");
    if (!options)
        options = &none;
    build *b = (build *)format_state(options->env.allocator, sizeof *b, err);
    if (!b)
        return err->code;
    b->options = options;
    b->io = io_of(&options->env);
    b->path = path;
    b->entries = b->bytes = b->stops = bags_buffer_of(options->env.allocator);
    reading.env = options->env;
    reading.no_mmap = true;
    b->reader = bags_reader_open(path, &reading, err);
    bags_code code =
        b->reader ? bags_reader_field(b->reader, field, &b->number, err) : err->code;
    if (!code)
        code = find_field(b->reader, b->number, path, &b->type, err);
    if (!code) {
        b->field = &bags_reader_fields(b->reader, &count)[b->number];
        code = build_index(b, err);
    }
    bags_reader_close(b->reader);
    bags_buffer_free(&b->entries);
    bags_buffer_free(&b->bytes);
    bags_buffer_free(&b->stops);
    format_state_close(b);
    return code;
}

#endif /* BAGS_NO_WRITER */

/* ---- finding ---- */

static bags_code fail_index(
    const bags_index *index, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%.300s: %s; build the index again",
        index->path, what);
}

static const bags_field *index_field(const bags_index *index) {
    size_t count = 0;
    return &bags_reader_fields(index->reader, &count)[index->field];
}

/* Compare the header with the dataset that the reader has open. */
static bags_code check_header(const bags_index *index, const char *path,
    const bags_env *env, bags_buffer *scratch, bags_error *err) {
    bags_view header;
    stamp now;
    const bags_field *field = index_field(index);
    uint64_t numbers[3] = {0, 0, 0}; /* length, content, times */
    size_t type = strlen(field->type);
    bags_code code = bag_reader_get(index->bag, 0, scratch, &header, err);
    if (code || header.size < INDEX_HEADER || memcmp(header.data, INDEX_MAGIC, 8) != 0)
        return code ? code : fail_index(index, "not an index", err);
    for (size_t i = 24; i-- > 0;)
        numbers[i / 8] = numbers[i / 8] << 8 | header.data[8 + i];
    if (numbers[0] > index->length)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%.300s: the reader has only %" PRIu64 " of the %" PRIu64
            " datapoints that were indexed; open all shards, or build the "
            "index again",
            index->path, index->length, numbers[0]);
    if (numbers[0] != index->length ||
        bag_reader_length(index->bag) - 1 != index->length ||
        header.size != INDEX_HEADER + type ||
        memcmp(header.data + INDEX_HEADER, field->type, type) != 0)
        return fail_index(index,
            "the dataset has another length or type than when it was indexed", err);
    code = stamp_make(index->reader, env, path, field->name, &now, err);
    if (!code && (now.content != numbers[1] ||
                     (now.times && numbers[2] && now.times != numbers[2])))
        code = fail_index(index, "older than the dataset", err);
    return code;
}

static bags_code open_files(bags_index *index, const char *path,
    const bags_index_options *options, bags_error *err) {
    bag_reader_options reading;
    char directory[INDEX_PATH];
    bags_buffer scratch = bags_buffer_of(options->env.allocator);
    bags_row row;
    memset(&row, 0, sizeof row);
    memset(&reading, 0, sizeof reading);
    reading.verify_checksums = true;
    reading.no_mmap = options->no_mmap;
    reading.env = options->env;
    bags_code code = find_field(index->reader, index->field, path, &index->type, err);
    if (code)
        return code;
    const char *field = index_field(index)->name;
    const bags_io *io = io_of(&options->env);
    code = index_place(index->reader, io, path, field, directory, index->path, err);
    for (size_t i = 3; i-- > 0 && !code;) {
        static const char *const endings[] = {".bag", ".crc", ".idx"};
        code = path_make(index->path, err, directory, field, endings[i]);
        if (!code)
            code = check_no_link(io, index->path, err);
    }
    if (code)
        return code;
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(index->reader, &count);
    for (size_t i = 0; i < count; i++)
        if (shards[i].unfinished)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%.300s: the reader has unfinished shards, which no index has", path);
    index->length = bags_reader_length(index->reader);
    index->far = is_far(io);
    index->bag = bag_reader_open(index->path, &reading, err);
    if (!index->bag && err->code == BAGS_ERROR_MISSING)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%.300s: field \"%.200s\" has no index (%.300s); build one", path, field,
            index->path);
    if (!index->bag)
        return err->code;
    code = bag_reader_length(index->bag) == 0
               ? fail_index(index, "not an index", err)
               : check_header(index, path, &options->env, &scratch, err);
    /* A dataset may have been replaced by one of equal sizes and times. */
    uint64_t samples[INDEX_SAMPLES], ignored[INDEX_SAMPLES];
    uint64_t step = index->length / INDEX_SAMPLES;
    size_t length = step ? INDEX_SAMPLES : (size_t)index->length;
    for (size_t i = 0; i < length; i++)
        samples[i] = step ? i * (index->length - 1) / (INDEX_SAMPLES - 1) : i;
    if (!code)
        code =
            bags_index_get_many(index, samples, length, &scratch, &row, ignored, err);
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    return code;
}

bags_index *bags_index_open(const char *path, const bags_reader *reader, size_t field,
    const bags_index_options *options, bags_error *err) {
    bags_error ignored;
    bags_index_options none;
    memset(&none, 0, sizeof none);
    if (!err)
        err = &ignored;
    if (!options)
        options = &none;
    if (!path || !reader) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "the path or the reader is NULL");
        return NULL;
    }
    bags_index *index =
        (bags_index *)format_state(options->env.allocator, sizeof *index, err);
    if (!index)
        return NULL;
    index->reader = reader;
    index->field = field;
    if (!open_files(index, path, options, err))
        return index;
    bags_index_close(index);
    return NULL;
}

void bags_index_close(bags_index *index) {
    if (index)
        bag_reader_close(index->bag);
    format_state_close(index);
}

/* Which keys bound searches for. */
typedef enum bound_kind {
    BOUND_FROM,  /* the first that is not below */
    BOUND_PAST,  /* the first above, which is near */
    BOUND_PREFIX /* the first above that does not begin with it, which is near */
} bound_kind;

/* Move *position to a key, by reading the one in the middle of those that are left, or
 * far away, where a read takes long, several in equal distances. What is near is found
 * by steps of 1, 2, 4, ... */
static bags_code bound(const bags_index *index, bags_view key, bound_kind kind,
    bags_buffer *scratch, uint64_t *position, bags_error *err) {
    uint64_t low = *position, high = index->length;
    uint64_t step = kind != BOUND_FROM, blobs[INDEX_PROBES];
    bags_view entries[INDEX_PROBES];
    bags_code code = BAGS_OK;
    while (low < high && !code) {
        uint64_t left = high - low, most = index->far ? INDEX_PROBES : 1;
        size_t count = (size_t)(left < most ? left : most), i = 0;
        if (step > left / (2 * most))
            step = 0;
        for (; i < count; i++)
            blobs[i] = low + (step ? step * (i + 1) : left * (i + 1) / (count + 1) + 1);
        code = count == 1 ? bag_reader_get(index->bag, blobs[0], scratch, entries, err)
                          : bag_reader_get_many(
                                index->bag, blobs, count, scratch, entries, err);
        for (i = 0; i < count && !code; i++) {
            if (entries[i].size < INDEX_NUMBER)
                return fail_index(index, "an entry is too short", err);
            bags_view entry = key_of(entries[i]);
            if (kind == BOUND_PREFIX && entry.size > key.size)
                entry.size = key.size;
            int order = key_compare(entry, key);
            if (order > 0 || (order == 0 && kind == BOUND_FROM)) {
                high = blobs[i] - 1;
                step = 0;
                break;
            }
            low = blobs[i];
        }
        step *= 2 * most;
    }
    *position = low;
    return code;
}

/* The positions from the first key that is not below to the one that `kind` finds. */
static bags_code find_both(const bags_index *index, bags_view key, bound_kind kind,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    uint64_t first = 0;
    bags_code code = bound(index, key, BOUND_FROM, scratch, &first, err);
    uint64_t last = first;
    if (!code)
        code = bound(index, key, kind, scratch, &last, err);
    if (code)
        return code;
    *start = first;
    *stop = last;
    return BAGS_OK;
}

/* The key of a value that a caller asks for. The ends of a range are exact. */
static bags_code asked(const bags_index *index, const bags_value *value, bool is_end,
    unsigned char number[INDEX_NUMBER], bags_view *key, bags_error *err) {
    bags_error why;
    if (!key_make(&index->type, value, is_end, number, key, &why))
        return BAGS_OK;
    return bags_fail(
        err, why.code, "field \"%.200s\": %s", index_field(index)->name, why.message);
}

bags_code bags_index_find(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    double real = 0, most = (double)FLT_MAX;
    float single;
    bags_value rounded;
    bags_view at;
    if (!index || !key || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    if (index->type.single && key->kind == BAGS_KIND_ARRAY &&
        key->dtype == BAGS_DTYPE_FLOAT64 && key->size == sizeof real)
        memcpy(&real, key->data, sizeof real);
    single = real < most && real > -most ? (float)real : 0;
    rounded = bags_array(BAGS_DTYPE_FLOAT32, 0, NULL, &single);
    if (single < 0 || single > 0)
        key = &rounded;
    bags_code code = asked(index, key, false, number, &at, err);
    return code ? code : find_both(index, at, BOUND_PAST, scratch, start, stop, err);
}

bags_code bags_index_find_prefix(const bags_index *index, const bags_value *prefix,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    bags_view at;
    if (!index || !prefix || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    if (index->type.order != KEY_BYTES)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "field \"%.200s\": a number has no prefix", index_field(index)->name);
    bags_code code = asked(index, prefix, true, number, &at, err);
    return code ? code : find_both(index, at, BOUND_PREFIX, scratch, start, stop, err);
}

bags_code bags_index_find_at_or_before(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    uint64_t first = 0, last = 0;
    bags_view at;
    if (!index || !key || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    bags_code code = asked(index, key, true, number, &at, err);
    if (!code)
        code = find_both(index, at, BOUND_PAST, scratch, &first, &last, err);
    if (code)
        return code;
    *start = last - (last > 0);
    *stop = last;
    return BAGS_OK;
}

bags_code bags_index_find_range(const bags_index *index, const bags_value *from,
    const bags_value *to, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err) {
    unsigned char numbers[2][INDEX_NUMBER];
    bags_view low = {NULL, 0}, high = {NULL, 0};
    bags_code code = BAGS_OK;
    if (!index || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    uint64_t first = 0, last = to ? 0 : index->length;
    if (from)
        code = asked(index, from, true, numbers[0], &low, err);
    if (to && !code)
        code = asked(index, to, true, numbers[1], &high, err);
    if (from && to && !code && key_compare(low, high) > 0)
        code = bags_fail(err, BAGS_ERROR_RANGE, "invalid range of keys (start > stop)");
    if (from && !code)
        code = bound(index, low, BOUND_FROM, scratch, &first, err);
    if (to && !code)
        code = bound(index, high, BOUND_FROM, scratch, &last, err);
    if (code)
        return code;
    *start = first;
    *stop = last;
    return BAGS_OK;
}

/* Reading the entries, then the values, are a few batches whatever their number. */
bags_code bags_index_get_many(const bags_index *index, const uint64_t *positions,
    size_t count, bags_buffer *scratch, bags_row *row, uint64_t *datapoints,
    bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    bags_view entries[INDEX_MANY], key;
    bags_value value;
    bags_error why;
    bags_code code = BAGS_OK;
    if (!index || !scratch || !row || (count && (!positions || !datapoints)))
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    for (size_t i = 0; i < count; i++)
        if (positions[i] >= index->length)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%.300s: position %" PRIu64 " out of range (length %" PRIu64 ")",
                index->path, positions[i], index->length);
    for (size_t done = 0, part; done < count && !code; done += part) {
        uint64_t *found = datapoints + done;
        part = count - done < INDEX_MANY ? count - done : INDEX_MANY;
        for (size_t i = 0; i < part; i++)
            found[i] = positions[done + i] + 1; /* the blob */
        code = bag_reader_get_many(index->bag, found, part, scratch, entries, err);
        for (size_t i = 0; i < part && !code; i++) {
            if (entries[i].size < INDEX_NUMBER)
                return fail_index(index, "an entry is too short", err);
            found[i] = key_load(entries[i].data + entries[i].size - INDEX_NUMBER);
            if (found[i] >= index->length)
                return fail_index(index, "a datapoint is out of range", err);
        }
        if (!code)
            code = bags_reader_get_many(
                index->reader, found, part, index->field, row, err);
        for (size_t i = 0; i < part && !code; i++) {
            code = bags_row_value(row, 0, i, NULL, &value, err);
            if (!code && (key_make(&index->type, &value, false, number, &key, &why) ||
                             key_compare(key, key_of(entries[i])) != 0))
                code = fail_index(index, "the dataset has other keys", err);
        }
    }
    return code;
}

bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err) {
    uint64_t found;
    if (!datapoint)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    bags_code code =
        bags_index_get_many(index, &position, 1, scratch, row, &found, err);
    if (!code)
        *datapoint = found;
    return code;
}
