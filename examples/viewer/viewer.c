/*
 * viewer.c - the bags.h reader for a web page, compiled to WebAssembly.
 *
 * The hooks ask JavaScript (reader.mjs) for bytes. If bytes are missing, a hook returns
 * EAGAIN; JavaScript then requests all bytes missing in this call, and repeats the
 * call. A failed call has no side effects, so any number of calls may be waiting at the
 * same time.
 */
#define BAGS_NO_LOCAL
#define BAGS_NO_WRITER
#define BAGS_NO_VERIFY
#define BAGS_IMPLEMENTATION
#include "bags.h"

#include "formats/codecs.h"
#include "formats/data/datasets.h"
#include "formats/storage/storage.h"

#include "../bags/curve.h"

#include <errno.h>
#include <math.h>

#define IMPORT(name) __attribute__((import_module("page"), import_name(#name)))
#define EXPORT __attribute__((visibility("default"), used))

/* The largest blob that is loaded, and the largest block of memory. */
#define MOST ((size_t)256 << 20)

/* ---- functions in JavaScript: negative results are -errno ---- */

IMPORT(size) double page_size(const char *path, size_t length);
IMPORT(read)
int page_read(const char *path, size_t length, double offset, void *data, double size);
IMPORT(kind) int page_kind(const char *path, size_t length);
IMPORT(list) int page_list(const char *path, size_t length, char *names, size_t size);
IMPORT(explain)
int page_explain(const char *path, size_t length, char *text, size_t size);
IMPORT(expect) void page_expect(const char *path, size_t length);

/* ---- hooks ---- */

typedef struct file {
    size_t length;
    char path[];
} file;

static bool measuring;  /* blobs are not read; only their sizes are added up */
static double measured; /* in bytes; NAN: unknown */
static size_t limit = MOST;
static double refused; /* size of an allocation that was too large, in bytes */

static int file_open(void *user, const char *path, int mode, void **out) {
    size_t length = strlen(path);
    double size = page_size(path, length);
    (void)user, (void)mode;
    if (size < 0)
        return (int)-size;
    file *opened = (file *)malloc(sizeof *opened + length + 1);
    if (!opened)
        return ENOMEM;
    opened->length = length;
    memcpy(opened->path, path, length + 1);
    *out = opened;
    return 0;
}

static int file_close(void *user, void *opened) {
    (void)user;
    free(opened);
    return 0;
}

static int file_size(void *user, void *opened, uint64_t *size) {
    const file *of = (const file *)opened;
    double found = page_size(of->path, of->length);
    (void)user;
    if (found < 0)
        return (int)-found;
    *size = (uint64_t)found;
    return 0;
}

static int file_read(
    void *user, void *opened, uint64_t offset, void *data, size_t size, size_t *done) {
    const file *of = (const file *)opened;
    int count = page_read(of->path, of->length, (double)offset, data, (double)size);
    (void)user;
    if (count < 0)
        return -count;
    *done = (size_t)count;
    return 0;
}

static double size_of(const void *opened) {
    const file *of = (const file *)opened;
    return page_size(of->path, of->length);
}

/* Request all missing ranges, not only the first one. In a file of 4 GiB or more, a
 * size may not fit in size_t. */
static void file_read_many(void *user, bags_io_read *reads, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (reads[i].data)
            (void)file_read(user, reads[i].file, reads[i].offset, reads[i].data,
                reads[i].size, &reads[i].done);
        else if (measuring)
            measured += size_of(reads[i].file) < 4294967296.0 ? (double)reads[i].size
                                                              : (double)NAN;
    }
}

static int path_kind(void *user, const char *path, bags_path_kind *kind) {
    int found = page_kind(path, strlen(path));
    (void)user;
    if (found < 0)
        return -found;
    *kind = (bags_path_kind)found;
    return 0;
}

static int path_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    size_t length = strlen(path);
    int size = page_list(path, length, NULL, 0), error = 0;
    (void)user;
    if (size < 0)
        return -size;
    char *names = (char *)malloc((size_t)size + 1);
    if (!names)
        return ENOMEM;
    (void)page_list(path, length, names, (size_t)size);
    for (char *at = names; at < names + size && !error; at += strlen(at) + 1)
        error = each(each_user, at);
    free(names);
    return error;
}

static void path_expect(void *user, const char *path) {
    (void)user;
    page_expect(path, strlen(path));
}

static void path_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    (void)user, (void)error;
    text[page_explain(path, strlen(path), text, size - 1)] = '\0';
}

static const bags_io page_io = {.open = file_open,
    .close = file_close,
    .size = file_size,
    .read_at = file_read,
    .kind = path_kind,
    .list = path_list,
    .read_many = file_read_many,
    .expect = path_expect,
    .explain = path_explain};

static void *memory_resize(void *user, void *data, size_t old_size, size_t new_size) {
    (void)user, (void)old_size;
    if (new_size == 0) {
        free(data);
        return NULL;
    }
    if (new_size > limit)
        refused = (double)new_size;
    return new_size > limit ? NULL : realloc(data, new_size);
}

static const bags_allocator memory = {memory_resize, NULL};

/* ---- functions called by JavaScript ---- */

/* A shard, a dataset or a Bag. */
typedef struct view {
    bags_reader *reader;
    bag_reader *bag; /* if not NULL: a Bag, with one field "blob" of type bytes */
    bags_row row;
} view;

static bags_error failure;
static bags_view blob;
static bags_value value;
static bags_buffer scratch;
static const bags_field blob_field = {"blob", "bytes"};

#ifndef VIEWER_ZSTD
static bags_code no_zstd(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec, (void)type, (void)allocator, (void)state;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "this page was built without libzstd; read it with `bags get`");
}
#endif

/* The registry that decodes zstd(TYPE) to values of TYPE (for keys), or to blobs of
 * TYPE. */
static const bags_registry *registry(bool blobs) {
    static bags_registry *all[2];
    static bags_zstd_options options[2];
    bags_registry *made = all[blobs];
    if (!made) {
        made = bags_registry_create(&memory, NULL);
#ifdef VIEWER_ZSTD
        bags_codec zstd = bags_codec_zstd;
#else
        bags_codec zstd = {.names = "zstd", .open = no_zstd};
#endif
        options[blobs].registry = made;
        options[blobs].max_size = MOST;
        options[blobs].blobs = blobs;
        zstd.user = &options[blobs];
        if (made && (bags_registry_add(made, &bags_codec_npy, NULL) ||
                        bags_registry_add(made, &zstd, NULL)))
            made = NULL;
        all[blobs] = made;
    }
    return made;
}

EXPORT void *view_allocate(size_t size) { return malloc(size); }

EXPORT void view_free(void *data) { free(data); }

EXPORT const char *view_error(void) { return failure.message; }

/* The size of the allocation that made the last call fail, or 0. */
EXPORT double view_refused(void) {
    double bytes = refused;
    refused = 0;
    return bytes;
}

/* On failure, returns NULL; see view_error. */
EXPORT bags_archive *view_archive(const char *path) {
    bags_archive_options options = {0};
    options.env.io = &page_io;
    options.env.allocator = &memory;
    return bags_archive_open(path, &options, &failure);
}

EXPORT void view_archive_close(bags_archive *archive) { bags_archive_close(archive); }

static const bags_io *io_of(const bags_archive *archive) {
    return archive ? bags_archive_io(archive) : &page_io;
}

/* Open a dataset or, if shard >= 0, only this shard of it, either to find keys or to
 * read blobs. On failure, returns NULL; see view_error. */
EXPORT view *view_open(
    const char *path, bags_archive *archive, double shard, int verify, int keys) {
    size_t length = strlen(path);
    bags_env env = {&memory, io_of(archive)};
    view *opened = (view *)calloc(1, sizeof *opened);
    if (!opened)
        return NULL;
    if (length > 4 && !strcmp(path + length - 4, ".bag")) {
        bag_reader_options options = {0};
        options.no_mmap = true;
        options.allow_empty_file = true;
        options.verify_checksums = verify;
        options.env = env;
        opened->bag = bag_reader_open(path, &options, &failure);
    } else {
        bags_reader_options options = {0};
        options.no_mmap = true;
        options.verify_checksums = verify;
        options.registry = registry(!keys);
        options.env = env;
        if (shard >= 0) {
            options.shard_start = (uint64_t)shard;
            options.shard_stop = (uint64_t)1 << 60;
        }
        opened->reader = bags_reader_open(path, &options, &failure);
    }
    if (opened->reader || opened->bag)
        return opened;
    free(opened);
    return NULL;
}

EXPORT void view_close(view *opened) {
    if (!opened)
        return;
    bags_row_free(&opened->row);
    bags_reader_close(opened->reader);
    bag_reader_close(opened->bag);
    free(opened);
}

EXPORT double view_length(const view *opened) {
    return (double)(opened->bag ? bag_reader_length(opened->bag)
                                : bags_reader_length(opened->reader));
}

EXPORT size_t view_fields(const view *opened) {
    size_t count = 1;
    if (opened->reader)
        (void)bags_reader_fields(opened->reader, &count);
    return count;
}

static const bags_field *field_of(const view *opened, size_t field) {
    return opened->bag ? &blob_field : &bags_reader_fields(opened->reader, NULL)[field];
}

EXPORT const char *view_name(const view *opened, size_t field) {
    return field_of(opened, field)->name;
}

EXPORT const char *view_type(const view *opened, size_t field) {
    return field_of(opened, field)->type;
}

/* The total size of a field's blobs in all shards. Below 0 on failure; see
 * view_error. */
EXPORT double view_field_size(const view *opened, size_t field) {
    bags_info info;
    if (opened->bag)
        return (double)bag_reader_size(opened->bag);
    size_t count = view_fields(opened);
    bags_field_info *fields = (bags_field_info *)calloc(count + 1, sizeof *fields);
    double size = -1;
    if (fields && !bags_reader_info(opened->reader, &info, fields, &failure))
        size = (double)fields[field].size;
    free(fields);
    return size;
}

/* How many items a datapoint's field has. Below 0 on failure; see view_error. */
EXPORT double view_items(view *opened, double index, size_t field) {
    uint64_t count = 1;
    if (opened->reader && bags_reader_items(opened->reader, (uint64_t)index, field,
                              &opened->row, &count, &failure))
        return -1;
    return (double)count;
}

/* The size of an item's blob, without reading it. NAN if it is unknown; below 0 on
 * failure, see view_error. */
EXPORT double view_size(view *opened, double index, size_t field, double item) {
    uint64_t datapoint = (uint64_t)index;
    if (opened->bag) /* every blob of a Bag is read */
        return 0;
    const bags_type *type = bags_reader_type(opened->reader, field);
    bags_select select = bags_select_all(field);
    if (type->sequence)
        select = bags_select_slice(field, (uint64_t)item, (uint64_t)item + 1, 1);
    measuring = true;
    measured = 0;
    bags_code code = bags_reader_prefetch(
        opened->reader, &datapoint, 1, &select, 1, &opened->row, &failure);
    measuring = false;
    return code ? -1 : measured;
}

/* Read a blob, and decompress it if necessary. */
static bags_code get_blob(view *opened, uint64_t index, size_t field, uint64_t item) {
    const bags_type *type = bags_reader_type(opened->reader, field);
    bags_select one = type->sequence ? bags_select_slice(field, item, item + 1, 1)
                                     : bags_select_all(field);
    if (!bags_view_is(type->name, "zstd"))
        return bags_reader_get_blob(
            opened->reader, index, field, item, &opened->row, &blob, &failure);
    bags_buffer_free(&scratch); /* it may be as large as the largest value */
    scratch = bags_buffer_of(&memory);
    bags_code code =
        bags_reader_get(opened->reader, index, &one, 1, &opened->row, &failure);
    if (!code)
        code = bags_row_value(&opened->row, 0, 0, &scratch, &value, &failure);
    blob.data = (const unsigned char *)value.data;
    blob.size = value.size;
    return code;
}

/* Read an item of at most this many bytes. The result is at view_data, its size at
 * view_data_size. */
EXPORT int view_get(
    view *opened, double index, size_t field, double item, double most) {
    bags_code code;
    limit = most < MOST ? (size_t)most + 4096 : MOST; /* and what is read with it */
    if (opened->bag)
        code = bag_reader_get(
            opened->bag, (uint64_t)index, &opened->row.data, &blob, &failure);
    else
        code = get_blob(opened, (uint64_t)index, field, (uint64_t)item);
    limit = MOST;
    return (int)code;
}

/* Read numbers of a sequence, like curve_read. The result is at view_data, its size at
 * view_data_size. */
EXPORT int view_curve(
    view *opened, double index, size_t field, double start, double stop, double step) {
    static bags_buffer numbers;
    size_t size = 0;
    if (opened->bag)
        return (int)bags_fail(&failure, BAGS_ERROR_TYPE, "a Bag has no sequences");
    numbers.resize = scratch.resize = bags_buffer_of(&memory).resize;
    bags_code code = curve_read(opened->reader, (uint64_t)index, field, (uint64_t)start,
        (uint64_t)stop, (uint64_t)step, &opened->row, &scratch, &numbers, &size,
        &failure);
    blob.data = numbers.data;
    blob.size = size * sizeof(double);
    return (int)code;
}

EXPORT const void *view_data(void) { return blob.data; }

EXPORT size_t view_data_size(void) { return blob.size; }

/* ---- finding by key ---- */

#define FIND_MOST 500 /* in datapoints */

/* Returns 1 if a field has an index, 0 if it has none, -1 if that is not known yet.
 * `opened` may be any shard. */
EXPORT int view_has_index(
    const view *opened, const char *path, const bags_archive *archive, size_t field) {
    char file[4096];
    size_t count = 0;
    bags_path_kind kind = BAGS_PATH_NONE;
    const bags_shard *shards = bags_reader_shards(opened->reader, &count);
    if (!count)
        return 0;
    bags_shard first = shards[0];
    first.number = 0;
    if (bags_shard_path(path, &first, file, sizeof file, &failure))
        return 0;
    size_t size = strlen(file);
    int more = snprintf(file + size, sizeof file - size, "/index/%s.bag",
        field_of(opened, field)->name);
    if (more < 0 || (size_t)more >= sizeof file - size)
        return 0;
    const bags_io *io = io_of(archive);
    return io->kind(io->user, file, &kind) ? -1 : kind == BAGS_PATH_FILE;
}

/* Open a field's index. `opened` must have all shards. On failure, returns NULL; see
 * view_error. */
EXPORT bags_index *view_index(
    const view *opened, const char *path, const bags_archive *archive, size_t field) {
    bags_index_options options = {0};
    options.no_mmap = true;
    options.env.allocator = &memory;
    options.env.io = io_of(archive);
    return bags_index_open(path, opened->reader, field, &options, &failure);
}

EXPORT void view_index_close(bags_index *index) { bags_index_close(index); }

/* Find a key: text, or a number in the 8 bytes of `data` (a double for
 * BAGS_KIND_ARRAY). Returns the number of datapoints, or a number below 0 on failure;
 * see view_error. After skipping the first `skip` datapoints, up to FIND_MOST are
 * stored at view_found. */
static uint64_t found[FIND_MOST];

EXPORT const uint64_t *view_found(void) { return found; }

EXPORT size_t view_find_most(void) { return FIND_MOST; }

EXPORT double view_find(view *opened, bags_index *index, int kind, const void *data,
    size_t size, int prefix, size_t skip) {
    uint64_t start = 0, stop = 0, number = 0, positions[FIND_MOST];
    scratch.resize = bags_buffer_of(&memory).resize;
    bags_value key = bags_bytes(data, size);
    if (kind != BAGS_KIND_UTF8)
        memcpy(&number, data, sizeof number);
    if (kind == BAGS_KIND_ARRAY)
        key = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, data);
    else if (kind != BAGS_KIND_UTF8)
        key = kind == BAGS_KIND_INT ? bags_int((int64_t)number) : bags_uint(number);
    bags_code code = (prefix ? bags_index_find_prefix : bags_index_find)(
        index, &key, &scratch, &start, &stop, &failure);
    uint64_t first = stop - start < skip ? stop : start + skip;
    size_t count = stop - first < FIND_MOST ? (size_t)(stop - first) : FIND_MOST;
    for (size_t i = 0; i < count; i++)
        positions[i] = first + i;
    if (!code)
        code = bags_index_get_many(
            index, positions, count, &scratch, &opened->row, found, &failure);
    return code ? -1 : (double)(stop - start);
}

/* ---- decoding ---- */

/* Decode bytes from JavaScript, using at most this much memory. Returns the bags_kind,
 * or -1 on failure; see view_error. */
EXPORT int view_decode(const char *type, const void *data, size_t size, double most) {
    bags_view bytes = {(const unsigned char *)data, size};
    bags_buffer_free(&scratch); /* it may be as large as the largest value */
    scratch = bags_buffer_of(&memory);
    memset(&value, 0, sizeof value);
    limit = most < MOST ? (size_t)most + 4096 : MOST;
    bags_code code =
        bags_decode(registry(false), type, bytes, &scratch, &value, &failure);
    limit = MOST;
    return code ? -1 : (int)value.kind;
}

EXPORT uint64_t view_value_uint(void) { return value.uint; }

EXPORT int64_t view_value_int(void) { return value.sint; }

EXPORT const void *view_value_data(void) { return value.data; }

EXPORT size_t view_value_size(void) { return value.size; }

EXPORT const char *view_value_dtype(void) { return bags_dtype_name(value.dtype); }

EXPORT size_t view_value_dims(void) { return value.dims; }

EXPORT double view_value_dim(size_t i) { return (double)value.shape[i]; }
