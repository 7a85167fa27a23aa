/*
 * index_find.c - finds datapoints by the value of a field, using the index built by
 * index_build.c; see index.h.
 *
 * A search narrows the range low <= i <= high that contains the bound. For local files,
 * each step reads the middle key. For remote files, where a read costs a round trip
 * whatever its size, each step reads INDEX_PROBES evenly spaced keys with one request.
 */
#include "blocks.h"
#include "files.h"
#include "index.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_SAMPLES 16 /* keys compared when an index is opened */
#define INDEX_PROBES 31  /* keys read per search step in remote files */
#define INDEX_MANY 256   /* entries read at once */

struct bags_index {
    bags_buffer memory; /* holds the index itself */
    bag_reader *bag;
    const bags_reader *reader;
    size_t field;
    index_key_type type;
    bool far;
    uint64_t length;
    char path[FORMAT_PATH];
};

static bags_code index_fail(
    const bags_index *index, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: %s; build the index again",
        bags_path_tail(index->path), what);
}

static const bags_field *index_field(const bags_index *index) {
    size_t count = 0;
    return &bags_reader_fields(index->reader, &count)[index->field];
}

bags_code bagi_index_place(const bags_reader *reader, const bags_io *io,
    const char *path, const char *field, char directory[FORMAT_PATH],
    char bag[FORMAT_PATH], bags_error *err) {
    char shard[FORMAT_PATH];
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    if (count == 0)
        return bags_fail(err, BAGS_ERROR_MISSING, "%s: an index needs a finished shard",
            bags_path_tail(path));
    bags_shard first = shards[0];
    first.number = 0; /* the reader may lack earlier shards */
    FORMAT_TRY(bags_shard_path(path, &first, shard, sizeof shard, err));
    if (first.digits)
        FORMAT_TRY(index_check_no_link(io, shard, err));
    FORMAT_TRY(format_path(directory, shard, "index", "", err));
    FORMAT_TRY(index_check_no_link(io, directory, err));
    return format_path(bag, shard, field, ".bag", err);
}

static bags_code index_stamp_file(const bags_io *io, const char *path, bool optional,
    index_stamp *out, bags_error *err) {
    unsigned char last[INDEX_LAST];
    bags_identity found;
    uint64_t size = 0;
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    if (error == ENOENT && optional) {
        index_mix(&out->content, 0);
        return BAGS_OK;
    }
    if (error)
        return bags_fail_io(io, error, path, "read", err);
    memset(&found, 0, sizeof found);
    error = io->size(io->user, file, &size);
    if (!error && io->identify && !index_is_far(io))
        error = io->identify(io->user, file, path, &found);
    bags_code code = bags_fail_io(io, error, path, "read", err);
    size_t part = size < sizeof last ? (size_t)size : sizeof last;
    if (!code)
        code = bags_read(io, file, path, size - part, last, part, err);
    io->close(io->user, file);
    FORMAT_TRY(code);
    if (part)
        index_mix(&out->content, bags_crc32c(0, last, part));
    index_mix(&out->content, size + 1);
    index_mix(&out->times, found.time);
    index_mix(&out->content, 1);
    return BAGS_OK;
}

bags_code bagi_index_stamp(const bags_reader *reader, const bags_env *env,
    const char *path, const char *field, index_stamp *out, bags_error *err) {
    const bags_io *io = index_io(env);
    char directory[FORMAT_PATH], file[FORMAT_PATH];
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    memset(out, 0, sizeof *out);
    /* All files will be looked up, so announce them first. */
    for (int round = io->expect ? 0 : 1; round < 2; round++)
        for (size_t i = 0; i < 3 * count; i++) {
            size_t k = i % 3;
            FORMAT_TRY(bags_shard_path(
                path, &shards[i / 3], directory, sizeof directory, err));
            FORMAT_TRY(format_path(file, directory, k < 2 ? field : "refs",
                k == 1 ? ".crc" : ".bag", err));
            if (round == 0)
                io->expect(io->user, file);
            else
                FORMAT_TRY(index_stamp_file(io, file, k > 0, out, err));
        }
    bool timed = io->identify && !index_is_far(io);
    out->times = timed ? out->times + !out->times : 0;
    return BAGS_OK;
}

/* Compare the header with the reader's dataset. */
static bags_code index_check_header(const bags_index *index, const char *path,
    const bags_env *env, bags_buffer *scratch, bags_error *err) {
    bags_view header;
    index_stamp now;
    const bags_field *field = index_field(index);
    uint64_t numbers[3] = {0, 0, 0}; /* length, content, times */
    size_t type = strlen(field->type);
    if (bag_reader_length(index->bag) == 0)
        return index_fail(index, "not an index", err);
    FORMAT_TRY(bag_reader_get(index->bag, 0, scratch, &header, err));
    if (header.size < INDEX_HEADER || memcmp(header.data, INDEX_MAGIC, 8) != 0)
        return index_fail(index, "not an index", err);
    for (size_t i = 0; i < 3; i++)
        numbers[i] = bags_load_bytes(header.data + 8 + 8 * i, 8, false);
    if (numbers[0] > index->length)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: the reader has only %" PRIu64 " of the %" PRIu64
            " datapoints that were indexed; open all shards, or build the "
            "index again",
            bags_path_tail(index->path), index->length, numbers[0]);
    if (numbers[0] != index->length ||
        bag_reader_length(index->bag) - 1 != index->length ||
        header.size != INDEX_HEADER + type ||
        memcmp(header.data + INDEX_HEADER, field->type, type) != 0)
        return index_fail(index,
            "the dataset has another length or type than when it was indexed", err);
    FORMAT_TRY(bagi_index_stamp(index->reader, env, path, field->name, &now, err));
    if (now.content != numbers[1] ||
        (now.times && numbers[2] && now.times != numbers[2]))
        return index_fail(index, "older than the dataset", err);
    return BAGS_OK;
}

/* Compare some of the keys, since the dataset may have been replaced by one with the
 * same sizes and times. */
static bags_code index_check_samples(
    const bags_index *index, bags_buffer *scratch, bags_error *err) {
    uint64_t samples[INDEX_SAMPLES], ignored[INDEX_SAMPLES];
    uint64_t step = index->length / INDEX_SAMPLES;
    size_t length = step ? INDEX_SAMPLES : (size_t)index->length;
    bags_row row;
    memset(&row, 0, sizeof row);
    for (size_t i = 0; i < length; i++)
        samples[i] = step ? i * (index->length - 1) / (INDEX_SAMPLES - 1) : i;
    bags_code code =
        bags_index_get_many(index, samples, length, scratch, &row, ignored, err);
    bags_row_free(&row);
    return code;
}

/* Find the files of the index; links instead of files are refused. */
static bags_code index_find_files(
    bags_index *index, const char *path, const bags_io *io, bags_error *err) {
    static const char *const endings[] = {".bag", ".crc", ".idx"};
    char directory[FORMAT_PATH];
    const char *field = index_field(index)->name;
    size_t count = 0;
    FORMAT_TRY(
        bagi_index_place(index->reader, io, path, field, directory, index->path, err));
    for (size_t i = 3; i-- > 0;) {
        FORMAT_TRY(format_path(index->path, directory, field, endings[i], err));
        FORMAT_TRY(index_check_no_link(io, index->path, err));
    }
    const bags_shard *shards = bags_reader_shards(index->reader, &count);
    for (size_t i = 0; i < count; i++)
        if (shards[i].unfinished)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%s: the reader has unfinished shards; an index has none",
                bags_path_tail(path));
    return BAGS_OK;
}

static bags_code index_open_files(bags_index *index, const char *path,
    const bags_index_options *options, bags_error *err) {
    bag_reader_options reading;
    memset(&reading, 0, sizeof reading);
    reading.verify_checksums = true;
    reading.no_mmap = options->no_mmap;
    reading.env = options->env;
    FORMAT_TRY(index_find_field(index->reader, index->field, path, &index->type, err));
    const bags_io *io = index_io(&options->env);
    FORMAT_TRY(index_find_files(index, path, io, err));
    index->length = bags_reader_length(index->reader);
    index->far = index_is_far(io);
    index->bag = bag_reader_open(index->path, &reading, err);
    if (!index->bag && err->code == BAGS_ERROR_MISSING)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: field \"%.200s\" has no index (%s); build one", bags_path_tail(path),
            index_field(index)->name, bags_path_tail(index->path));
    if (!index->bag)
        return err->code;
    bags_buffer scratch = bags_buffer_of(options->env.allocator);
    bags_code code = index_check_header(index, path, &options->env, &scratch, err);
    if (!code)
        code = index_check_samples(index, &scratch, err);
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
    if (!index_open_files(index, path, options, err))
        return index;
    bags_index_close(index);
    return NULL;
}

void bags_index_close(bags_index *index) {
    if (index)
        bag_reader_close(index->bag);
    format_state_close(index);
}

/* The bound to search for. */
typedef enum index_bound_kind {
    INDEX_FROM,  /* the first key not below */
    INDEX_PAST,  /* the first key above; close by */
    INDEX_PREFIX /* the first key above without this prefix; close by */
} index_bound_kind;

/* Move *position to a bound by bisection. Remote reads are slow, so each reads several
 * evenly spaced keys. A bound close by is found in steps of 1, 2, 4, ... */
static bags_code index_bound(const bags_index *index, bags_view key,
    index_bound_kind kind, bags_buffer *scratch, uint64_t *position, bags_error *err) {
    uint64_t low = *position, high = index->length;
    uint64_t step = kind != INDEX_FROM, blobs[INDEX_PROBES];
    bags_view entries[INDEX_PROBES];
    while (low < high) {
        uint64_t left = high - low, most = index->far ? INDEX_PROBES : 1;
        size_t count = (size_t)(left < most ? left : most), i = 0;
        if (step > left / (2 * most))
            step = 0;
        for (; i < count; i++)
            blobs[i] = low + (step ? step * (i + 1) : left * (i + 1) / (count + 1) + 1);
        FORMAT_TRY(
            count == 1
                ? bag_reader_get(index->bag, blobs[0], scratch, entries, err)
                : bag_reader_get_many(index->bag, blobs, count, scratch, entries, err));
        for (i = 0; i < count; i++) {
            if (entries[i].size < INDEX_NUMBER)
                return index_fail(index, "an entry is too short", err);
            bags_view entry = index_key_of(entries[i]);
            if (kind == INDEX_PREFIX && entry.size > key.size)
                entry.size = key.size;
            int order = index_compare_keys(entry, key);
            if (order > 0 || (order == 0 && kind == INDEX_FROM)) {
                high = blobs[i] - 1;
                step = 0;
                break;
            }
            low = blobs[i];
        }
        step *= 2 * most;
    }
    *position = low;
    return BAGS_OK;
}

/* Make the key for a value given by the caller. The ends of a range are not rounded. */
static bags_code index_asked(const bags_index *index, const bags_value *value,
    bool is_end, unsigned char number[INDEX_NUMBER], bags_view *key, bags_error *err) {
    bags_code code = index_key_make(&index->type, value, is_end, number, key, err);
    return code ? bags_prefix(err, code, "field \"%.200s\": ", index_field(index)->name)
                : BAGS_OK;
}

/* Find the range of positions from the first key not below the value to the end
 * selected by `kind`. */
static bags_code index_search(const bags_index *index, const bags_value *value,
    bool is_end, index_bound_kind kind, bags_buffer *scratch, uint64_t *start,
    uint64_t *stop, bags_error *err) {
    unsigned char number[INDEX_NUMBER];
    bags_view key;
    uint64_t first = 0;
    if (!index || !value || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    FORMAT_TRY(index_asked(index, value, is_end, number, &key, err));
    FORMAT_TRY(index_bound(index, key, INDEX_FROM, scratch, &first, err));
    uint64_t last = first;
    FORMAT_TRY(index_bound(index, key, kind, scratch, &last, err));
    *start = first;
    *stop = last;
    return BAGS_OK;
}

bags_code bags_index_find(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    double real = 0, most = (double)FLT_MAX;
    if (index && key && index->type.single && key->kind == BAGS_KIND_ARRAY &&
        key->dtype == BAGS_DTYPE_FLOAT64 && key->size == sizeof real)
        memcpy(&real, key->data, sizeof real);
    float single = real < most && real > -most ? (float)real : 0;
    bags_value rounded = bags_array(BAGS_DTYPE_FLOAT32, 0, NULL, &single);
    if (single < 0 || single > 0)
        key = &rounded;
    return index_search(index, key, false, INDEX_PAST, scratch, start, stop, err);
}

bags_code bags_index_find_prefix(const bags_index *index, const bags_value *prefix,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    if (index && index->type.order != INDEX_BYTES)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "field \"%.200s\": a number has no prefix", index_field(index)->name);
    return index_search(index, prefix, true, INDEX_PREFIX, scratch, start, stop, err);
}

bags_code bags_index_find_at_or_before(const bags_index *index, const bags_value *key,
    bags_buffer *scratch, uint64_t *start, uint64_t *stop, bags_error *err) {
    FORMAT_TRY(index_search(index, key, true, INDEX_PAST, scratch, start, stop, err));
    *start = *stop - (*stop > 0);
    return BAGS_OK;
}

bags_code bags_index_find_range(const bags_index *index, const bags_value *from,
    const bags_value *to, bags_buffer *scratch, uint64_t *start, uint64_t *stop,
    bags_error *err) {
    unsigned char numbers[2][INDEX_NUMBER];
    bags_view low = {NULL, 0}, high = {NULL, 0};
    if (!index || !scratch || !start || !stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    uint64_t first = 0, last = to ? 0 : index->length;
    if (from)
        FORMAT_TRY(index_asked(index, from, true, numbers[0], &low, err));
    if (to)
        FORMAT_TRY(index_asked(index, to, true, numbers[1], &high, err));
    if (from && to && index_compare_keys(low, high) > 0)
        return bags_fail(err, BAGS_ERROR_RANGE, "invalid range of keys (start > stop)");
    if (from)
        FORMAT_TRY(index_bound(index, low, INDEX_FROM, scratch, &first, err));
    if (to)
        FORMAT_TRY(index_bound(index, high, INDEX_FROM, scratch, &last, err));
    *start = first;
    *stop = last;
    return BAGS_OK;
}

/* Get the datapoints of at most INDEX_MANY entries. Reading the entries and then the
 * values takes only a few batches, whatever their number. */
static bags_code index_get_some(const bags_index *index, const uint64_t *positions,
    size_t count, bags_buffer *scratch, bags_row *row, uint64_t *found,
    bags_error *err) {
    bags_view entries[INDEX_MANY], key;
    for (size_t i = 0; i < count; i++)
        found[i] = positions[i] + 1; /* the blob */
    FORMAT_TRY(bag_reader_get_many(index->bag, found, count, scratch, entries, err));
    for (size_t i = 0; i < count; i++) {
        if (entries[i].size < INDEX_NUMBER)
            return index_fail(index, "an entry is too short", err);
        found[i] = bags_load_bytes(
            entries[i].data + entries[i].size - INDEX_NUMBER, INDEX_NUMBER, true);
        if (found[i] >= index->length)
            return index_fail(index, "a datapoint is out of range", err);
    }
    FORMAT_TRY(
        bags_reader_get_many(index->reader, found, count, index->field, row, err));
    for (size_t i = 0; i < count; i++) {
        unsigned char number[INDEX_NUMBER];
        bags_value value;
        bags_error why;
        FORMAT_TRY(bags_row_value(row, 0, i, NULL, &value, err));
        if (index_key_make(&index->type, &value, false, number, &key, &why) ||
            index_compare_keys(key, index_key_of(entries[i])) != 0)
            return index_fail(index, "the dataset has other keys", err);
    }
    return BAGS_OK;
}

bags_code bags_index_get_many(const bags_index *index, const uint64_t *positions,
    size_t count, bags_buffer *scratch, bags_row *row, uint64_t *datapoints,
    bags_error *err) {
    if (!index || !scratch || !row || (count && (!positions || !datapoints)))
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    for (size_t i = 0; i < count; i++)
        if (positions[i] >= index->length)
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: position %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(index->path), positions[i], index->length);
    for (size_t done = 0, part; done < count; done += part) {
        part = count - done < INDEX_MANY ? count - done : INDEX_MANY;
        FORMAT_TRY(index_get_some(
            index, positions + done, part, scratch, row, datapoints + done, err));
    }
    return BAGS_OK;
}

bags_code bags_index_get(const bags_index *index, uint64_t position,
    bags_buffer *scratch, bags_row *row, uint64_t *datapoint, bags_error *err) {
    uint64_t found;
    if (!datapoint)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    FORMAT_TRY(bags_index_get_many(index, &position, 1, scratch, row, &found, err));
    *datapoint = found;
    return BAGS_OK;
}
