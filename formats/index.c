/*
 * index.c - finds datapoints by the value of a field: ids, names, times.
 *
 * An index is a Bag with checksums, index/FIELD.bag, in the dataset's directory or,
 * if it is sharded, in that of its first shard. Other readers ignore it.
 *
 *     blob 0      "BAGSKEYS" | number of keys | stamp | the field's type
 *     blob 1..N   key | datapoint; one per datapoint, sorted
 *
 * The header's numbers have 8 bytes, little-endian; a datapoint has 8 bytes,
 * big-endian. Keys compare as bytes, a prefix before what it begins: text is
 * its own key; a number is 8 big-endian bytes, with the sign inverted (of negative
 * floats, all bits). The stamp is a hash of the times and sizes of the field's Bags,
 * so it changes when the dataset does; 0 where the files have no times.
 *
 * Building is an external merge sort: sorted runs of `memory` bytes become Bags next
 * to the index, .FIELD.0.bag and so on, which are then merged into .FIELD.bag. That
 * one is locked meanwhile, and gets its name at the end.
 */
#include "formats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_MAGIC "BAGSKEYS"
#define INDEX_HEADER 24  /* bytes before the type */
#define INDEX_PATH 1024  /* bytes of the longest path */
#define INDEX_CHUNK 1024 /* the most datapoints or entries read at once */
#define INDEX_NUMBER 8   /* bytes of a datapoint, and of a number as a key */
#define INDEX_MEMORY ((size_t)64 << 20)

/* How values become keys. */
typedef enum key_class {
    KEY_NONE,
    KEY_BYTES,
    KEY_UINT,
    KEY_INT,
    KEY_FLOAT
} key_class;

typedef struct key_type {
    key_class order;
    bool single; /* float32: keys are rounded to it */
} key_type;

struct bags_index {
    bags_buffer memory; /* that holds it */
    bag_reader *bag;
    const bags_reader *reader;
    size_t field;
    key_type type;
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
    key_type none = {KEY_NONE, false}, out = {KEY_NONE, false};
    if (type->sequence)
        return none;
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
            return none;
    }
    bags_view name = bags_type_argument(type, 0);
    bags_dtype dtype =
        bags_dtype_parse((const char *)name.data, name.size, NULL);
    switch (dtype) {
    case BAGS_DTYPE_BOOL:
    case BAGS_DTYPE_UINT8:
    case BAGS_DTYPE_UINT16:
    case BAGS_DTYPE_UINT32:
    case BAGS_DTYPE_UINT64:
        out.order = KEY_UINT;
        break;
    case BAGS_DTYPE_INT8:
    case BAGS_DTYPE_INT16:
    case BAGS_DTYPE_INT32:
    case BAGS_DTYPE_INT64:
        out.order = KEY_INT;
        break;
    case BAGS_DTYPE_FLOAT32:
    case BAGS_DTYPE_FLOAT64:
        out.order = KEY_FLOAT;
        out.single = dtype == BAGS_DTYPE_FLOAT32;
        break;
    case BAGS_DTYPE_NONE:
    case BAGS_DTYPE_FLOAT16:
    case BAGS_DTYPE_COMPLEX64:
    case BAGS_DTYPE_COMPLEX128:
        break;
    }
    return out;
}

/* The one element of an array as a number: bags_int or bags_uint; or *real. */
static bags_value key_element(const bags_value *array, double *real) {
    const void *data = array->data;
    float single = 0;
    int16_t i16 = 0;
    int32_t i32 = 0;
    int64_t i64 = 0;
    uint16_t u16 = 0;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    bags_value none;
    memset(&none, 0, sizeof none);
    if (array->size != bags_dtype_size(array->dtype))
        return none;
#define KEY_LOAD(variable) memcpy(&variable, data, sizeof variable)
    switch (array->dtype) {
    case BAGS_DTYPE_BOOL:
    case BAGS_DTYPE_UINT8:
        return bags_uint(*(const unsigned char *)data);
    case BAGS_DTYPE_INT8:
        return bags_int(*(const signed char *)data);
    case BAGS_DTYPE_UINT16:
        KEY_LOAD(u16);
        return bags_uint(u16);
    case BAGS_DTYPE_UINT32:
        KEY_LOAD(u32);
        return bags_uint(u32);
    case BAGS_DTYPE_UINT64:
        KEY_LOAD(u64);
        return bags_uint(u64);
    case BAGS_DTYPE_INT16:
        KEY_LOAD(i16);
        return bags_int(i16);
    case BAGS_DTYPE_INT32:
        KEY_LOAD(i32);
        return bags_int(i32);
    case BAGS_DTYPE_INT64:
        KEY_LOAD(i64);
        return bags_int(i64);
    case BAGS_DTYPE_FLOAT32:
        KEY_LOAD(single);
        *real = (double)single;
        return *array;
    case BAGS_DTYPE_FLOAT64:
        memcpy(real, data, sizeof *real);
        return *array;
    case BAGS_DTYPE_NONE:
    case BAGS_DTYPE_FLOAT16:
    case BAGS_DTYPE_COMPLEX64:
    case BAGS_DTYPE_COMPLEX128:
        break;
    }
#undef KEY_LOAD
    return none;
}

static bags_code key_fail(const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_VALUE, "%s", what);
}

/* The key of a value. Numbers are stored in `number`, text is not copied. */
static bags_code key_make(const key_type *type, const bags_value *value,
    unsigned char number[INDEX_NUMBER], bags_view *key, bags_error *err) {
    uint64_t bits = 0;
    double real = 0;
    bags_value element = *value;
    bool is_text =
        value->kind == BAGS_KIND_BYTES || value->kind == BAGS_KIND_UTF8;
    if (type->order == KEY_BYTES) {
        if (!is_text)
            return key_fail("a key of this field is text", err);
        key->data = (const unsigned char *)value->data;
        key->size = value->size;
        return BAGS_OK;
    }
    if (value->kind == BAGS_KIND_ARRAY)
        element = key_element(value, &real);
    bool is_int = element.kind == BAGS_KIND_INT,
         is_uint = element.kind == BAGS_KIND_UINT;
    if (!is_int && !is_uint && element.kind != BAGS_KIND_ARRAY)
        return key_fail("a key of this field is a number", err);
    if (type->order == KEY_FLOAT) {
        if (is_int || is_uint)
            real = is_int ? (double)element.sint : (double)element.uint;
        bool exact = real < 9007199254740992.0 && real > -9007199254740992.0;
        if ((is_int || is_uint) && !exact)
            return key_fail("number out of range (2^53 or above)", err);
        if (type->single)
            real = (double)(float)real;
        if (real != real)
            return key_fail("NaN has no order", err);
        real += 0.0; /* -0 equals 0 */
        memcpy(&bits, &real, sizeof bits);
        bits = bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
    } else if (!is_int && !is_uint) {
        return key_fail("a key of this field is a whole number", err);
    } else if (type->order == KEY_INT) {
        if (is_uint && element.uint > INT64_MAX)
            return key_fail("number out of range (above 2^63-1)", err);
        bits = is_uint ? element.uint : (uint64_t)element.sint;
        bits ^= (uint64_t)1 << 63;
    } else {
        if (is_int && element.sint < 0)
            return key_fail("number out of range (below 0)", err);
        bits = is_uint ? element.uint : (uint64_t)element.sint;
    }
    key_store(number, bits);
    key->data = number;
    key->size = INDEX_NUMBER;
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

static int entry_compare(const void *a, const void *b) {
    bags_view x = *(const bags_view *)a, y = *(const bags_view *)b;
    int order = key_compare(key_of(x), key_of(y));
    return order ? order
                 : memcmp(x.data + x.size - INDEX_NUMBER,
                       y.data + y.size - INDEX_NUMBER, INDEX_NUMBER);
}

/* ---- where the files are ---- */

/* A shard's directory; the names of those with more digits are refused. */
typedef struct shard_name {
    char text[32];
} shard_name;

/* The shards of a dataset, sorted by number. None: it is not sharded. */
typedef struct shard_list {
    bags_buffer names; /* shard_name */
    size_t count;
} shard_list;

static bags_buffer buffer_of(const bags_env *env) {
    bags_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    if (env->allocator) {
        buffer.resize = env->allocator->resize;
        buffer.user = env->allocator->user;
    }
    return buffer;
}

static const bags_io *io_of(const bags_env *env) {
    return env->io ? env->io : bags_io_local();
}

static bags_code path_make(char out[INDEX_PATH], bags_error *err,
    const char *directory, const char *name, const char *ending) {
    int size = snprintf(out, INDEX_PATH, "%s/%s%s", directory, name, ending);
    if (size < 0 || size >= INDEX_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%.300s: path too long", directory);
    return BAGS_OK;
}

static bags_code fail_system(
    bags_error *err, int error, const char *path, const char *doing) {
    bags_code code = error == ENOENT   ? BAGS_ERROR_MISSING
                     : error == ENOMEM ? BAGS_ERROR_MEMORY
                                       : BAGS_ERROR_IO;
    bags_fail(err, code, "%.300s: cannot %s: %s", path, doing, strerror(error));
    if (err)
        err->system = error;
    return code;
}

static int shard_compare(const void *a, const void *b) {
    const char *x = ((const shard_name *)a)->text;
    const char *y = ((const shard_name *)b)->text;
    x += strspn(x, "0");
    y += strspn(y, "0");
    size_t x_size = strlen(x), y_size = strlen(y);
    return x_size != y_size ? (x_size > y_size) - (x_size < y_size)
                            : strcmp(x, y);
}

static int shard_add(void *user, const char *name) {
    shard_list *all = (shard_list *)user;
    size_t size = strlen(name);
    if (size == 0 || size >= sizeof(shard_name) ||
        name[strspn(name, "0123456789")])
        return 0;
    if (bags_buffer_reserve(
            &all->names, (all->count + 1) * sizeof(shard_name), NULL))
        return ENOMEM;
    memcpy(all->names.data + all->count * sizeof(shard_name), name, size + 1);
    all->count++;
    return 0;
}

static const char *shard_get(const shard_list *all, size_t i) {
    return ((const shard_name *)(const void *)all->names.data)[i].text;
}

static bags_code shards_find(
    shard_list *all, const bags_env *env, const char *path, bags_error *err) {
    const bags_io *io = io_of(env);
    char spec[INDEX_PATH];
    bags_path_kind kind = BAGS_PATH_NONE;
    all->names = buffer_of(env);
    all->count = 0;
    bags_code code = path_make(spec, err, path, "spec.json", "");
    if (code)
        return code;
    int error = io->kind(io->user, spec, &kind);
    if (!error && kind != BAGS_PATH_FILE)
        error = io->list(io->user, path, shard_add, all);
    if (error)
        return fail_system(err, error, path, "list");
    if (all->count)
        qsort(all->names.data, all->count, sizeof(shard_name), shard_compare);
    return BAGS_OK;
}

static uint64_t mix(uint64_t hash, uint64_t number) {
    hash = (hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* A hash of the times and sizes of a field's Bags; 0 if they have no times. */
static bags_code stamp_make(const shard_list *all, const bags_env *env,
    const char *path, const char *field, uint64_t *stamp, bags_error *err) {
    const bags_io *io = io_of(env);
    char directory[INDEX_PATH], file[INDEX_PATH];
    bags_code code = BAGS_OK;
    *stamp = 0;
    if (!io->identify)
        return BAGS_OK;
    for (size_t i = 0; i == 0 || i < all->count; i++) {
        bags_identity found;
        if (all->count)
            code = path_make(directory, err, path, shard_get(all, i), "");
        if (!code)
            code = path_make(
                file, err, all->count ? directory : path, field, ".bag");
        if (code)
            return code;
        int error = io->identify(io->user, NULL, file, &found);
        if (error)
            return fail_system(err, error, file, "identify");
        *stamp = mix(mix(*stamp, found.time), found.size);
    }
    *stamp += *stamp == 0;
    return BAGS_OK;
}

/* The directory of the index. */
static bags_code index_directory(const shard_list *all, const char *path,
    char out[INDEX_PATH], bags_error *err) {
    char shard[INDEX_PATH];
    if (!all->count)
        return path_make(out, err, path, "index", "");
    bags_code code = path_make(shard, err, path, shard_get(all, 0), "");
    return code ? code : path_make(out, err, shard, "index", "");
}

/* ---- building ---- */

typedef struct build {
    const bags_index_options *options;
    const char *path;
    const bags_field *field;
    bags_reader *reader;
    size_t number; /* of the field */
    shard_list shards;
    char directory[INDEX_PATH];
    key_type type;
    uint64_t stamp;
    bag_writer *out; /* .FIELD.bag */
    size_t runs;     /* .FIELD.0.bag ... that were written */
    bags_buffer entries, bytes;
    size_t count, used, capacity; /* of both */
    bag_reader **readers;
    bags_buffer merge;
} build;

static bags_code run_path(
    const build *b, size_t run, char out[INDEX_PATH], bags_error *err) {
    char name[INDEX_PATH];
    int size = snprintf(name, sizeof name, ".%s.%" PRIu64 ".bag",
        b->field->name, (uint64_t)run);
    if (size < 0 || size >= INDEX_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%.300s: path too long", b->path);
    return path_make(out, err, b->directory, name, "");
}

/* A Bag that a build which was killed has left is removed. Its lock tells whether
 * that build is still running. */
static bags_code remove_left(
    const bags_env *env, const char *path, bags_error *err) {
    const bags_io *io = io_of(env);
    char other[INDEX_PATH];
    void *file = NULL;
    size_t stem = strlen(path) - strlen(".bag");
    int error = io->open(io->user, path, BAGS_IO_WRITE, &file);
    if (!error) {
        error = io->lock(io->user, file);
        io->close(io->user, file);
        if (error == EWOULDBLOCK)
            return bags_fail(err, BAGS_ERROR_LOCKED,
                "%.300s: another process is building this index", path);
        if (!error)
            error = io->remove(io->user, path);
    }
    if (error && error != ENOENT)
        return fail_system(err, error, path, "remove");
    static const char *const endings[] = {".idx", ".crc"};
    for (size_t i = 0; i < 2; i++) {
        memcpy(other, path, stem);
        memcpy(other + stem, endings[i], sizeof ".idx");
        error = io->remove(io->user, other);
        if (error && error != ENOENT)
            return fail_system(err, error, other, "remove");
    }
    return BAGS_OK;
}

static bags_code create(const build *b, const char *path, bool last,
    bag_writer **out, bags_error *err) {
    bag_writer_options options;
    bags_code code = BAGS_OK;
    memset(&options, 0, sizeof options);
    options.checksum = last;
    options.no_sync = !last;
    options.env = b->options->env;
    bags_error why;
    *out = bag_writer_open(path, &options, &why);
    if (*out)
        return BAGS_OK;
    if (why.code != BAGS_ERROR_EXISTS)
        return bags_fail(err, why.code, "%s", why.message);
    code = remove_left(&options.env, path, err);
    if (!code)
        *out = bag_writer_open(path, &options, err);
    return code || *out ? code : err->code;
}

/* Sort the entries in memory, and write them. */
static bags_code write_sorted(build *b, bag_writer *out, bags_error *err) {
    bags_view *entries = (bags_view *)(void *)b->entries.data;
    bags_code code = BAGS_OK;
    if (b->count)
        qsort(entries, b->count, sizeof *entries, entry_compare);
    for (size_t i = 0; i < b->count && !code; i++)
        code =
            bag_writer_append(out, entries[i].data, entries[i].size, NULL, err);
    b->count = b->used = 0;
    return code;
}

static bags_code write_run(build *b, bags_error *err) {
    char path[INDEX_PATH];
    bag_writer *out = NULL;
    bags_code code = run_path(b, b->runs, path, err);
    if (!code)
        code = create(b, path, false, &out, err);
    if (code)
        return code;
    b->runs++;
    code = write_sorted(b, out, err);
    if (!code)
        return bag_writer_close(out, err);
    bag_writer_abort(out);
    return code;
}

static bags_code add(
    build *b, bags_view key, uint64_t datapoint, bags_error *err) {
    size_t size = key.size + INDEX_NUMBER;
    if (key.size > b->bytes.capacity / 2)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%.300s: field \"%.200s\": datapoint %" PRIu64
            ": key too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
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

static bags_code read_keys(build *b, bags_row *row, bags_error *err) {
    uint64_t length = bags_reader_length(b->reader), chunk = 1;
    size_t count = 0;
    bags_code code = BAGS_OK;
    for (uint64_t i = 0; i < length && !code; i += count) {
        uint64_t bytes = 1;
        code =
            bags_reader_get_range(b->reader, i, i + chunk, b->number, row, err);
        count = code ? 0 : bags_row_length(row, 0);
        for (size_t j = 0; j < count && !code; j++) {
            bytes += bags_row_bytes(row, 0, j).size;
            unsigned char number[INDEX_NUMBER];
            bags_error why;
            bags_value value;
            bags_view key;
            code = bags_row_value(row, 0, j, NULL, &value, err);
            if (code)
                return code;
            if (key_make(&b->type, &value, number, &key, &why))
                return bags_fail(err, why.code,
                    "%.300s: field \"%.200s\": datapoint %" PRIu64 ": %s",
                    b->path, b->field->name, i + j, why.message);
            code = add(b, key, i + j, err);
        }
        if (b->options->progress)
            b->options->progress(b->options->user, i + count, length);
        chunk = chunk_of(b->bytes.capacity / 2, bytes / (count + 1), 4 * chunk);
    }
    return code;
}

/* ---- merging ---- */

/* The next entry of a run, and those that were read with it. The runs are a heap,
 * ordered by their next entries. */
typedef struct run {
    bags_view entry;
    bag_reader *bag;
    uint64_t read;  /* entries read from the Bag */
    uint64_t chunk; /* to be read at once */
    bags_range range;
    size_t next; /* of the range */
    bags_buffer scratch;
} run;

/* The run is over if its entry has no data. */
static bags_code run_next(run *r, bags_error *err) {
    bags_code code = BAGS_OK;
    if (r->next == r->range.length) {
        code = bag_reader_get_range(
            r->bag, r->read, r->read + r->chunk, &r->scratch, &r->range, err);
        if (code)
            return code;
        r->read += r->range.length;
        r->next = 0;
    }
    r->entry = bags_range_get(&r->range, r->next);
    r->next += r->entry.data != NULL;
    if (r->entry.data && r->entry.size < INDEX_NUMBER)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "a sorted run was changed");
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

static bags_code merge_runs(build *b, run *runs, bags_error *err) {
    size_t count = 0;
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    options.no_mmap = true; /* which would not bound the memory that is used */
    options.env = b->options->env;
    bags_code code = BAGS_OK;
    for (; count < b->runs && !code; count++) {
        char path[INDEX_PATH];
        code = run_path(b, count, path, err);
        if (code)
            return code;
        runs[count].bag = bag_reader_open(path, &options, err);
        if (!runs[count].bag)
            return err->code;
        uint64_t length = bag_reader_length(runs[count].bag);
        runs[count].chunk = chunk_of(b->bytes.capacity / b->runs,
            bag_reader_size(runs[count].bag) / (length + !length), INDEX_CHUNK);
        code = run_next(&runs[count], err);
    }
    for (size_t i = count; i > 0 && !code; i--)
        sift_down(runs, count, i - 1);
    while (count > 0 && !code) {
        code = bag_writer_append(
            b->out, runs[0].entry.data, runs[0].entry.size, NULL, err);
        if (!code)
            code = run_next(&runs[0], err);
        if (code)
            return code;
        if (!runs[0].entry.data) {
            run ended = runs[0];
            runs[0] = runs[--count];
            runs[count] = ended;
        }
        sift_down(runs, count, 0);
    }
    return code;
}

static bags_code write_index(build *b, bags_error *err) {
    unsigned char header[INDEX_HEADER + 256] = INDEX_MAGIC;
    size_t type = strlen(b->field->type);
    if (type > sizeof header - INDEX_HEADER)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%.300s: type too long", b->path);
    for (size_t i = 0; i < 8; i++) {
        header[8 + i] =
            (unsigned char)(bags_reader_length(b->reader) >> (8 * i));
        header[16 + i] = (unsigned char)(b->stamp >> (8 * i));
    }
    memcpy(header + INDEX_HEADER, b->field->type, type);
    bags_code code =
        bag_writer_append(b->out, header, INDEX_HEADER + type, NULL, err);
    if (code || !b->runs)
        return code ? code : write_sorted(b, b->out, err);
    if (b->count)
        code = write_run(b, err);
    if (!code)
        code = bags_buffer_reserve(&b->merge, b->runs * sizeof(run), err);
    if (code)
        return code;
    run *runs = (run *)(void *)b->merge.data;
    memset(runs, 0, b->runs * sizeof *runs);
    for (size_t i = 0; i < b->runs; i++)
        runs[i].scratch = buffer_of(&b->options->env);
    code = merge_runs(b, runs, err);
    for (size_t i = 0; i < b->runs; i++) {
        bag_reader_close(runs[i].bag);
        bags_buffer_free(&runs[i].scratch);
    }
    return code;
}

/* Lock the Bag that was written, whose lock ended with the writer, so that no other
 * build takes it for one that was left. */
static bags_code lock_again(
    const bags_io *io, const char *path, void **file, bags_error *err) {
    bags_identity opened, found;
    int error = io->open(io->user, path, BAGS_IO_READ, file);
    if (!error)
        error = io->lock(io->user, *file);
    if (!error && io->identify) {
        error = io->identify(io->user, *file, path, &opened);
        if (!error)
            error = io->identify(io->user, NULL, path, &found);
        if (!error &&
            (opened.inode != found.inode || opened.device != found.device))
            error = EWOULDBLOCK;
    }
    if (error == EWOULDBLOCK || error == ENOENT)
        return bags_fail(err, BAGS_ERROR_LOCKED,
            "%.300s: another process is building this index", path);
    return error ? fail_system(err, error, path, "lock") : BAGS_OK;
}

/* The index gets its name. A build that is interrupted here leaves none. */
static bags_code publish(const build *b, const char *from, bags_error *err) {
    static const char *const endings[] = {".bag", ".crc"};
    const bags_io *io = io_of(&b->options->env);
    char source[INDEX_PATH], target[INDEX_PATH];
    int error = 0;
    for (int i = 0; i < 2; i++) {
        bags_code code =
            path_make(target, err, b->directory, b->field->name, endings[i]);
        if (code)
            return code;
        error = io->remove(io->user, target);
        if (error && error != ENOENT)
            return fail_system(err, error, target, "remove");
    }
    for (int i = 1; i >= 0; i--) {
        path_make(target, err, b->directory, b->field->name, endings[i]);
        memcpy(source, from, INDEX_PATH);
        memcpy(source + strlen(source) - strlen(".bag"), endings[i], 4);
        error = io->rename(io->user, source, target);
        if (error)
            return fail_system(err, error, source, "rename");
    }
    error = io->sync_dir(io->user, b->directory);
    return error ? fail_system(err, error, b->directory, "sync") : BAGS_OK;
}

static bags_code build_files(build *b, bags_error *err) {
    const bags_env *env = &b->options->env;
    const bags_io *io = io_of(env);
    size_t memory = b->options->memory ? b->options->memory : INDEX_MEMORY;
    char path[INDEX_PATH], name[INDEX_PATH];
    uint64_t stamp = 0;
    bags_row row;
    memset(&row, 0, sizeof row);
    bags_code code = shards_find(&b->shards, env, b->path, err);
    if (!code)
        code = stamp_make(
            &b->shards, env, b->path, b->field->name, &b->stamp, err);
    if (!code)
        code = index_directory(&b->shards, b->path, b->directory, err);
    (void)snprintf(name, sizeof name, ".%.1000s.bag", b->field->name);
    if (!code)
        code = path_make(path, err, b->directory, name, "");
    if (code)
        return code;
    int error = io->make_dir(io->user, b->directory);
    if (error && error != EEXIST)
        return fail_system(err, error, b->directory, "create directory");
    /* Half for the bytes of small keys, half for the array that is sorted. */
    memory = memory < 4096 ? 2048 : memory / 2;
    b->capacity = memory / sizeof(bags_view);
    code = bags_buffer_reserve(&b->bytes, memory, err);
    if (!code)
        code = bags_buffer_reserve(&b->entries, memory, err);
    if (!code)
        code = create(b, path, true, &b->out, err);
    if (!code)
        code = read_keys(b, &row, err);
    bags_row_free(&row);
    if (!code)
        code = write_index(b, err);
    if (!code)
        code =
            stamp_make(&b->shards, env, b->path, b->field->name, &stamp, err);
    if (!code && stamp != b->stamp)
        code = bags_fail(err, BAGS_ERROR_STATE,
            "%.300s: the dataset changed while its index was built", b->path);
    if (code) {
        bag_writer_abort(b->out);
    } else {
        void *file = NULL;
        code = bag_writer_close(b->out, err);
        if (!code)
            code = lock_again(io, path, &file, err);
        if (!code)
            code = publish(b, path, err);
        if (file)
            io->close(io->user, file);
    }
    for (size_t i = 0; i < b->runs; i++)
        if (!run_path(b, i, path, NULL))
            io->remove(io->user, path);
    return code;
}

/* Types that cannot be keys are refused by name. */
static bags_code find_field(const bags_reader *reader, size_t field,
    const char *path, key_type *type, bags_error *err) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (field >= count)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%.300s: field number %" PRIu64 " out of range (%" PRIu64
            " fields)",
            path, (uint64_t)field, (uint64_t)count);
    *type = key_type_of(bags_reader_type(reader, field));
    if (type->order != KEY_NONE)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "%.300s: field \"%.200s\": values of type %.100s cannot be keys (only "
        "numbers, utf8 and bytes)",
        path, fields[field].name, fields[field].type);
}

bags_code bags_index_build(const char *path, const char *field,
    const bags_index_options *options, bags_error *err) {
    bags_error ignored;
    bags_index_options none;
    bags_reader_options reading;
    build b;
    size_t count = 0;
    memset(&none, 0, sizeof none);
    memset(&reading, 0, sizeof reading);
    memset(&b, 0, sizeof b);
    if (!err)
        err = &ignored;
    if (!path || !field)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "the path or the field is NULL");
    b.options = options ? options : &none;
    b.path = path;
    b.entries = b.bytes = b.merge = b.shards.names = buffer_of(&b.options->env);
    reading.env = b.options->env;
    reading.no_mmap = true;
    b.reader = bags_reader_open(path, &reading, err);
    if (!b.reader)
        return err->code;
    bags_code code = bags_reader_field(b.reader, field, &b.number, err);
    if (!code)
        code = find_field(b.reader, b.number, path, &b.type, err);
    if (!code) {
        b.field = &bags_reader_fields(b.reader, &count)[b.number];
        code = build_files(&b, err);
    }
    bags_reader_close(b.reader);
    bags_buffer_free(&b.entries);
    bags_buffer_free(&b.bytes);
    bags_buffer_free(&b.merge);
    bags_buffer_free(&b.shards.names);
    return code;
}

/* ---- finding ---- */

static bags_code fail_index(
    const bags_index *index, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%.300s: %s; build the index again", index->path, what);
}

/* Compare the header with the dataset that the reader has open. */
static bags_code check_header(
    bags_index *index, const char *path, const bags_env *env, bags_error *err) {
    bags_buffer scratch = buffer_of(env);
    bags_view header;
    size_t count = 0;
    uint64_t stamp = 0;
    shard_list all;
    memset(&header, 0, sizeof header);
    const bags_field *field =
        &bags_reader_fields(index->reader, &count)[index->field];
    size_t type = strlen(field->type);
    bags_code code = bag_reader_get(index->bag, 0, &scratch, &header, err);
    unsigned char expected[16];
    for (size_t i = 0; i < 8; i++)
        expected[8 + i] = (unsigned char)(index->length >> (8 * i));
    memcpy(expected, INDEX_MAGIC, 8);
    if (!code && (header.size < INDEX_HEADER ||
                     memcmp(header.data, INDEX_MAGIC, 8) != 0))
        code = fail_index(index, "not an index", err);
    if (!code &&
        (memcmp(header.data, expected, sizeof expected) != 0 ||
            bag_reader_length(index->bag) - 1 != index->length ||
            header.size != INDEX_HEADER + type ||
            memcmp(header.data + INDEX_HEADER, field->type, type) != 0))
        code = fail_index(index,
            "the dataset has another length or type than when it was indexed",
            err);
    uint64_t written = 0;
    for (size_t i = 8; i > 0 && !code; i--)
        written = written << 8 | header.data[16 + i - 1];
    bags_buffer_free(&scratch);
    if (code)
        return code;
    code = shards_find(&all, env, path, err);
    if (!code)
        code = stamp_make(&all, env, path, field->name, &stamp, err);
    bags_buffer_free(&all.names);
    if (!code && stamp && written && stamp != written)
        return fail_index(index, "older than the dataset", err);
    return code;
}

static bags_code open_files(bags_index *index, const char *path,
    const bags_index_options *options, bags_error *err) {
    bag_reader_options reading;
    char directory[INDEX_PATH];
    size_t count = 0;
    shard_list all;
    memset(&reading, 0, sizeof reading);
    reading.verify_checksums = true;
    reading.no_mmap = options->no_mmap;
    reading.env = options->env;
    bags_code code =
        find_field(index->reader, index->field, path, &index->type, err);
    if (code)
        return code;
    const char *field =
        bags_reader_fields(index->reader, &count)[index->field].name;
    code = shards_find(&all, &options->env, path, err);
    if (!code)
        code = index_directory(&all, path, directory, err);
    bags_buffer_free(&all.names);
    if (!code)
        code = path_make(index->path, err, directory, field, ".bag");
    if (code)
        return code;
    index->length = bags_reader_length(index->reader);
    index->bag = bag_reader_open(index->path, &reading, err);
    if (!index->bag && err->code == BAGS_ERROR_MISSING)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%.300s: field \"%.200s\" has no index (%.300s); build one", path,
            field, index->path);
    if (!index->bag)
        return err->code;
    if (bag_reader_length(index->bag) == 0)
        return fail_index(index, "not an index", err);
    return check_header(index, path, &options->env, err);
}

bags_index *bags_index_open(const char *path, const bags_reader *reader,
    size_t field, const bags_index_options *options, bags_error *err) {
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
    bags_buffer memory = buffer_of(&options->env);
    if (bags_buffer_reserve(&memory, sizeof(bags_index), err))
        return NULL;
    bags_index *index = (bags_index *)(void *)memory.data;
    memset(index, 0, sizeof *index);
    index->memory = memory;
    index->reader = reader;
    index->field = field;
    if (!open_files(index, path, options, err))
        return index;
    bags_index_close(index);
    return NULL;
}

void bags_index_close(bags_index *index) {
    if (!index)
        return;
    bag_reader_close(index->bag);
    bags_buffer memory = index->memory;
    bags_buffer_free(&memory);
}

/* Move *position to the first key that is not below `key`; with `past`, to the first
 * one above it, which is near: a step of 1, 2, 4, ... finds where. */
static bags_code bound(const bags_index *index, bags_view key, bool past,
    bags_buffer *scratch, uint64_t *position, bags_error *err) {
    uint64_t low = *position, high = index->length, step = past;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        bags_view entry;
        if (step && step <= middle - low)
            middle = low + step - 1;
        bags_code code =
            bag_reader_get(index->bag, middle + 1, scratch, &entry, err);
        if (code)
            return code;
        if (entry.size < INDEX_NUMBER)
            return fail_index(index, "an entry is too short", err);
        int order = key_compare(key_of(entry), key);
        bool below = order < 0 || (past && order == 0);
        if (below)
            low = middle + 1;
        else
            high = middle;
        step = below ? 2 * step : 0;
    }
    *position = low;
    return BAGS_OK;
}

/* The key of a value that a caller asks for. */
static bags_code asked(const bags_index *index, const bags_value *value,
    unsigned char number[INDEX_NUMBER], bags_view *key, bags_error *err) {
    size_t count = 0;
    bags_error why;
    if (!key_make(&index->type, value, number, key, &why))
        return BAGS_OK;
    return bags_fail(err, why.code, "field \"%.200s\": %s",
        bags_reader_fields(index->reader, &count)[index->field].name,
        why.message);
}

bags_code bags_index_find(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    uint64_t first = 0, last;
    bags_view at;
    if (!index || !key || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    bags_code code = asked(index, key, number, &at, err);
    if (!code)
        code = bound(index, at, false, scratch, &first, err);
    last = first;
    if (!code)
        code = bound(index, at, true, scratch, &last, err);
    if (code)
        return code;
    *start = first;
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
        code = asked(index, from, numbers[0], &low, err);
    if (to && !code)
        code = asked(index, to, numbers[1], &high, err);
    if (from && to && !code && key_compare(low, high) > 0)
        code = bags_fail(
            err, BAGS_ERROR_RANGE, "invalid range of keys (start > stop)");
    if (from && !code)
        code = bound(index, low, false, scratch, &first, err);
    if (to && !code)
        code = bound(index, high, false, scratch, &last, err);
    if (code)
        return code;
    *start = first;
    *stop = last;
    return BAGS_OK;
}

bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    bags_view entry, key;
    bags_value value;
    bags_error why;
    if (!index || !scratch || !row || !datapoint)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    if (position >= index->length)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%.300s: position %" PRIu64 " out of range (length %" PRIu64 ")",
            index->path, position, index->length);
    bags_code code =
        bag_reader_get(index->bag, position + 1, scratch, &entry, err);
    if (code)
        return code;
    if (entry.size < INDEX_NUMBER)
        return fail_index(index, "an entry is too short", err);
    uint64_t found = key_load(entry.data + entry.size - INDEX_NUMBER);
    if (found >= index->length)
        return fail_index(index, "a datapoint is out of range", err);
    code = bags_reader_get_range(
        index->reader, found, found + 1, index->field, row, err);
    if (!code)
        code = bags_row_value(row, 0, 0, NULL, &value, err);
    if (code)
        return code;
    if (key_make(&index->type, &value, number, &key, &why) ||
        key_compare(key, key_of(entry)) != 0)
        return fail_index(index, "the dataset has other keys", err);
    *datapoint = found;
    return BAGS_OK;
}
