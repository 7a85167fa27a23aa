/*
 * resized.c - stores images as pixels of one size, with the loader; see load.h.
 *
 * The loader returns the images of the needed datapoints in ascending order. The shards
 * are written in the same order: a datapoint that is not needed refers to the pixels of
 * the next needed one, or after the last of them to its pixels.
 */
#include "blocks.h"
#include "files.h"
#include "load.h"

#ifndef BAGS_NO_WRITER

#define RESIZED_BATCH ((uint64_t)16 << 20) /* bytes of a batch */
#define RESIZED_MOST 64                    /* datapoints in a batch */

/* A field being written. */
typedef struct resized_field {
    bool sequence;
    bool has;     /* the shard has a blob of the field: number `blob` */
    bool current; /* and that blob is the next needed datapoint's */
    uint64_t blob;
    char type[64];
} resized_field;

typedef struct resizer {
    bags_buffer memory; /* see format_state */
    format_block *blocks;
    const bags_resize_options *options;
    const bags_reader *const *readers;
    size_t count;
    bool *needed; /* for each datapoint of all readers */
    uint64_t length;
    uint64_t *numbers; /* the needed datapoints, ascending, across all readers */
    uint64_t numbers_count, at;
    resized_field *fields;
    bags_loader *loader;
    const bags_batch *batch;
    size_t row; /* of the batch: the images of numbers[at], if `fetched` */
    bool fetched;
    bags_writer *writer;
} resizer;

static void *resized_array(resizer *r, uint64_t count, size_t size, bags_error *err) {
    if (count < SIZE_MAX)
        return format_block_add(
            &r->blocks, r->options->env.allocator, (size_t)count + 1, size, err);
    bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    return NULL;
}

/* ---- the needed datapoints ---- */

/* Find the shard of a datapoint, numbered across all readers. */
static uint64_t resized_shard_of(const resizer *r, uint64_t number) {
    uint64_t before = 0;
    size_t count = 0, reader = 0;
    while (number >= bags_reader_length(r->readers[reader])) {
        (void)bags_reader_shards(r->readers[reader], &count);
        before += count;
        number -= bags_reader_length(r->readers[reader++]);
    }
    const bags_shard *shards = bags_reader_shards(r->readers[reader], &count);
    return before + format_last_at_most(&shards->start, sizeof *shards, count, number);
}

/* Mark the datapoints that this worker needs. As in bags_derive, a derived shard is a
 * run of rows in one shard, or shard_length rows of a copy. */
static bags_code resized_mark(resizer *r, bags_error *err) {
    const bags_resize_options *o = r->options;
    uint64_t count = o->rows ? o->rows_count : r->length, made = 0, last = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t number = o->rows ? o->rows[i] : i;
        if (number >= r->length)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: datapoint %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(bags_reader_path(r->readers[0])), number, r->length);
        if (o->shard_stop > 1) {
            uint64_t shard =
                o->shard_length ? i / o->shard_length : resized_shard_of(r, number);
            made += i > 0 && shard != last;
            last = shard;
            if (made % o->shard_stop != o->shard_start)
                continue;
        }
        r->numbers_count += !r->needed[number];
        r->needed[number] = true;
    }
    return BAGS_OK;
}

/* List the needed datapoints, for each reader by its own numbers in *selections. */
static bags_code resized_select(
    resizer *r, bags_selection **selections, bags_error *err) {
    uint64_t start = 0, at = 0;
    r->numbers =
        (uint64_t *)resized_array(r, r->numbers_count, sizeof *r->numbers, err);
    uint64_t *own = (uint64_t *)resized_array(r, r->numbers_count, sizeof *own, err);
    *selections =
        (bags_selection *)resized_array(r, r->count, sizeof **selections, err);
    if (!r->numbers || !own || !*selections)
        return BAGS_ERROR_MEMORY;
    for (size_t k = 0; k < r->count; k++) {
        bags_selection *one = &(*selections)[k];
        uint64_t length = bags_reader_length(r->readers[k]);
        one->kind = BAGS_SELECTION_INDICES;
        one->numbers = own + at;
        one->borrowed = true;
        for (uint64_t i = 0; i < length; i++)
            if (r->needed[start + i]) {
                r->numbers[at] = start + i;
                own[at++] = i;
                one->count++;
            }
        start += length;
    }
    return BAGS_OK;
}

/* ---- opening ---- */

static bags_code resized_open_loader(
    resizer *r, const bags_selection *selections, bags_error *err) {
    const bags_resize_options *o = r->options;
    bags_loader_options loading;
    uint64_t size = 1;
    bags_load_field *fields =
        (bags_load_field *)resized_array(r, o->field_count, sizeof *fields, err);
    if (!fields)
        return err->code;
    for (size_t i = 0; i < o->field_count; i++) {
        fields[i].name = o->fields[i].name;
        fields[i].width = o->fields[i].width;
        fields[i].height = o->fields[i].height;
        size += (uint64_t)3 * fields[i].width * fields[i].height;
    }
    memset(&loading, 0, sizeof loading);
    loading.order.in_order = true;
    loading.order.selections = selections;
    loading.batch = RESIZED_BATCH / size < 1 ? 1 : (uint32_t)(RESIZED_BATCH / size);
    loading.batch = loading.batch < RESIZED_MOST ? loading.batch : RESIZED_MOST;
    loading.epochs = 1;
    loading.threads = o->threads;
    loading.prefetch = true;
    loading.fields = fields;
    loading.field_count = o->field_count;
    loading.images = o->images;
    loading.allocator = o->env.allocator;
    r->loader = bags_loader_open(r->readers, r->count, &loading, err);
    return r->loader ? BAGS_OK : err->code;
}

static bags_code resized_open_fields(resizer *r, bags_error *err) {
    const bags_resize_options *o = r->options;
    r->fields =
        (resized_field *)resized_array(r, o->field_count, sizeof *r->fields, err);
    if (!r->fields)
        return err->code;
    for (size_t i = 0; i < o->field_count; i++) {
        size_t number;
        FORMAT_TRY(bags_reader_field(r->readers[0], o->fields[i].name, &number, err));
        r->fields[i].sequence = bags_reader_type(r->readers[0], number)->sequence;
        (void)snprintf(r->fields[i].type, sizeof r->fields[i].type,
            "array(uint8,%" PRIu32 ",%" PRIu32 ",3)%s", o->fields[i].height,
            o->fields[i].width, r->fields[i].sequence ? "[]" : "");
    }
    return BAGS_OK;
}

/* ---- writing ---- */

/* Advance to the images of the next needed datapoint. */
static bags_code resized_fetch(resizer *r, bags_error *err) {
    const bags_resize_options *o = r->options;
    if (r->batch && ++r->row < r->batch->length)
        return BAGS_OK;
    if (o->progress && !o->progress(o->user, r->at, r->numbers_count))
        return bags_fail(err, BAGS_ERROR_IO, "%s: interrupted",
            bags_path_tail(bags_reader_path(r->readers[0])));
    r->row = 0;
    return bags_loader_next(r->loader, &r->batch, err);
}

/* Append the items of the next needed datapoint. */
static bags_code resized_push(resizer *r, size_t i, bags_error *err) {
    const bags_resized_field *given = &r->options->fields[i];
    const uint64_t shape[3] = {given->height, given->width, 3};
    uint64_t count = 1;
    bags_view pixels =
        bags_tensor_get(r->batch, &r->batch->tensors[i], r->row, NULL, &count);
    for (uint64_t k = 0; k < count; k++) {
        size_t size = pixels.size / (size_t)count;
        bags_value value =
            bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels.data + k * size);
        FORMAT_TRY(r->fields[i].sequence
                       ? bags_writer_push(r->writer, given->name, &value, err)
                       : bags_writer_set(r->writer, given->name, &value, err));
    }
    return BAGS_OK;
}

/* Write a datapoint. `next`: the shard has a needed datapoint at or after it, whose
 * images are fetched. */
static bags_code resized_append(resizer *r, bool next, bool needed, bags_error *err) {
    FORMAT_TRY(bags_writer_begin(r->writer, err));
    for (size_t i = 0; i < r->options->field_count; i++) {
        resized_field *f = &r->fields[i];
        const char *name = r->options->fields[i].name;
        bool fresh = f->sequence ? needed : next && !f->current;
        if (fresh || !f->has)
            f->blob = bags_writer_next(r->writer, name);
        if (fresh) {
            FORMAT_TRY(resized_push(r, i, err));
        } else if (!f->sequence) {
            bags_value value = f->has ? bags_stored(f->blob) : bags_blob(NULL, 0);
            FORMAT_TRY(bags_writer_set(r->writer, name, &value, err));
        }
        f->has = true;
        f->current = next && !needed;
    }
    return bags_writer_end(r->writer, err);
}

/* Write the datapoints from `start` up to `stop`, a shard. */
static bags_code resized_write(
    resizer *r, uint64_t start, uint64_t stop, bags_error *err) {
    for (size_t i = 0; i < r->options->field_count; i++)
        r->fields[i].has = r->fields[i].current = false;
    for (uint64_t number = start; number < stop; number++) {
        bool next = r->at < r->numbers_count && r->numbers[r->at] < stop;
        bool needed = next && r->numbers[r->at] == number;
        if (next && !r->fetched)
            FORMAT_TRY(resized_fetch(r, err));
        r->fetched = next && !needed;
        FORMAT_TRY(resized_append(r, next, needed, err));
        r->at += needed;
    }
    return BAGS_OK;
}

static bags_code resized_shard(resizer *r, const char *path, const bags_field *list,
    uint64_t start, uint64_t stop, bags_error *err) {
    bags_writer_options writing;
    memset(&writing, 0, sizeof writing);
    writing.checksum = r->options->checksum;
    writing.no_sync = r->options->no_sync;
    writing.env = r->options->env;
    r->writer = bags_writer_open(path, list, r->options->field_count, &writing, err);
    if (!r->writer)
        return err->code;
    bags_code code = resized_write(r, start, stop, err);
    if (!code)
        return bags_writer_close(r->writer, err);
    bags_writer_abort(r->writer);
    return code;
}

static bags_code resized_all(resizer *r, const char *out, bags_error *err) {
    bags_selection *selections = NULL;
    char path[FORMAT_PATH], name[32];
    uint64_t shard = 0, start = 0;
    bags_field *list =
        (bags_field *)resized_array(r, r->options->field_count, sizeof *list, err);
    for (size_t k = 0; k < r->count; k++)
        r->length += bags_reader_length(r->readers[k]);
    r->needed = (bool *)resized_array(r, r->length, sizeof *r->needed, err);
    if (!list || !r->needed)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(resized_mark(r, err));
    FORMAT_TRY(resized_select(r, &selections, err));
    FORMAT_TRY(resized_open_fields(r, err));
    FORMAT_TRY(resized_open_loader(r, selections, err));
    for (size_t i = 0; i < r->options->field_count; i++) {
        list[i].name = r->options->fields[i].name;
        list[i].type = r->fields[i].type;
    }
    for (size_t k = 0; k < r->count; k++) {
        size_t count;
        const bags_shard *shards = bags_reader_shards(r->readers[k], &count);
        for (size_t i = 0; i < count; i++, shard++) {
            (void)snprintf(name, sizeof name, "%06" PRIu64, shard);
            FORMAT_TRY(format_path(path, out, name, "", err));
            FORMAT_TRY(
                resized_shard(r, path, list, start, start + shards[i].length, err));
            start += shards[i].length;
        }
    }
    if (r->options->progress)
        (void)r->options->progress(r->options->user, r->at, r->numbers_count);
    return BAGS_OK;
}

bags_code bags_resize(const bags_reader *const *readers, size_t count, const char *out,
    const bags_resize_options *options, bags_error *err) {
    bags_error ignored;
    if (!err)
        err = &ignored;
    if (!readers || !count || !out || !options || !options->field_count)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "no reader, no directory, or no field");
    resizer *r = (resizer *)format_state(options->env.allocator, sizeof *r, err);
    if (!r)
        return err->code;
    r->options = options;
    r->readers = readers;
    r->count = count;
    bags_code code = resized_all(r, out, err);
    bags_loader_close(r->loader);
    format_blocks_free(r->blocks);
    format_state_close(r);
    return code;
}

#endif /* BAGS_NO_WRITER */
