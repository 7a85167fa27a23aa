/*
 * The output of pack, images and import: a Bag or a dataset. It is flushed at least
 * every --flush-seconds and every MiB. The options are in writing.c, and the comparison
 * for --resume is in existing.c.
 *
 * After a failure, everything written before it is kept: the writer is flushed but not
 * closed. The shard stays unfinished, as after a crash, so that --resume can continue
 * it. With --append, the shard is closed, and the next --append adds a shard after it.
 * A shard without new datapoints is discarded instead.
 */
#include "sink.h"

#include "images.h"

#define FLUSH_BYTES ((uint64_t)1 << 20)

static sink_target to;
static bag_writer *bag; /* one of these two; none if everything already exists */
static bags_writer *dataset;
static uint64_t undecoded; /* JPEG images that no codec can decode */
static uint64_t appended;  /* datapoints in the current shard */
static uint64_t shards;    /* shards finished before it */
static bool finishing;     /* all of the input has been passed */
static bags_buffer scratch;

/* ---- opening ---- */

/* Open a Bag. Options for datasets are refused. */
static void open_bag(void) {
    bag_writer_options options = {0};
    options.keep_idx = writing.options.keep_idx;
    options.no_sync = writing.options.no_sync;
    options.checksum = !writing.without_checksums;
    if (writing.dedup)
        usage("%s: a Bag has no fields to --dedup", to.path);
    if (writing.appending || writing.resuming || to.sharded)
        usage("%s: a Bag has no shards and cannot be resumed or appended to", to.path);
    bag = bag_writer_open(to.path, &options, &failure);
    if (!bag && failure.code == BAGS_ERROR_EXISTS)
        failure_suffix("; remove it, or write to a new path");
    must_open(bag);
}

/* Follow the existing data, then open the writer, and a reader if there is anything to
 * compare. A finished unsharded dataset gets no writer: everything is compared, and
 * nothing may be added. */
static void open_dataset(void) {
    writing.options.shard_size = writing.shard_size.value;
    writing.options.shard_length = writing.shard_length.value;
    writing.options.shard_start = writing.shard_start.value;
    writing.options.shard_stop = writing.shard_stop.value;
    if (to.sharded && !writing.shard_stop.value)
        writing.options.shard_stop = 1;
    writing.options.existing = writing.resuming    ? BAGS_EXISTING_RESUME
                               : writing.appending ? BAGS_EXISTING_APPEND
                                                   : BAGS_EXISTING_REFUSE;
    writing.options.registry = registry_get();
    writing.options.any_type = true; /* the caller checked the types */
    writing.options.checksum = !writing.without_checksums;
    if (writing.appending && !path_exists(to.path))
        fail(BAGS_ERROR_MISSING, "%s: does not exist; omit --append to start it",
            to.path);
    if (writing.resuming || writing.appending)
        existing_follow(&to);
    if (writing.resuming && !to.sharded && path_has(to.path, "spec.json")) {
        existing_open(&to, NULL);
        return;
    }
    dataset =
        bags_writer_open(to.path, to.fields, to.count, &writing.options, &failure);
    must_open(dataset);
    shards = bags_writer_shards(dataset);
    if (bags_writer_resumed(dataset))
        existing_open(&to, dataset);
}

static const char *next_step(bool is_bag) {
    return is_bag ? temp_format("`bags export %s OUT --live` reads it", to.path)
           : writing.appending ? "append only the others"
                               : "--resume continues";
}

void sink_open(const char *out, const char *from, const bags_field *given,
    size_t length, bool is_bag) {
    to.path = out;
    to.input = from;
    to.fields = given;
    to.count = length;
    path_must_be_writable(to.path);
    interrupt_leaves(temp_format("%s: the data that was flushed is kept, %s", to.path,
                         next_step(is_bag)),
        is_bag || writing.appending ? NULL : "continue with", "--resume");
    interrupt_defer();
    to.sharded = writing.appending || writing.shard_size.given ||
                 writing.shard_length.given || writing.shard_start.given ||
                 writing.shard_stop.given;
    to.states = (sink_field *)allocate(to.count, sizeof *to.states);
    for (size_t i = 0; i < to.count; i++) {
        bags_type parsed;
        must(bags_type_parse(to.fields[i].type, &parsed, &failure));
        to.states[i].sequence = parsed.sequence;
        to.states[i].type = to.fields[i].type;
        to.states[i].image = type_kind(to.states[i].type) == TYPE_IMAGE;
    }
    if (writing.version.given)
        writing_for_python(&to);
    for (size_t i = 0; i < to.count && !is_bag; i++)
        to.states[i].inside = type_inside(to.fields[i].type);
    if (writing.dedup && !is_bag)
        writing_dedup(&to);
    if (dictionary_given)
        writing_dictionary(&to);
    if (is_bag)
        open_bag();
    else
        open_dataset();
}

bool sink_is_sequence(size_t field) { return to.states[field].sequence; }

bool sink_next(void) { return existing_next(); }

/* ---- values ---- */

static void must_field(bags_code code, size_t field) {
    if (code)
        failure_prefix("field \"%s\": ", to.fields[field].name);
    must(code);
}

/* Encode a value as a blob. For zstd(TYPE), this is the inner blob of TYPE, since a
 * frame depends on earlier values. */
static bags_view encode(size_t field, const bags_value *value) {
    const char *inside = to.states[field].inside;
    const char *type = to.fields[field].type;
    bags_view blob = {(const unsigned char *)value->data, value->size};
    bags_value plain;
    bags_code code = BAGS_OK;
    if (value->kind != BAGS_KIND_BLOB) {
        code = bags_encode(
            registry_get(), inside ? inside : type, value, &scratch, &blob, &failure);
    } else if (inside) {
        code = bags_decode(registry_blobs(), type, blob, &scratch, &plain, &failure);
        if (!code)
            blob = value_bytes(&plain);
    }
    must_field(code, field);
    return blob;
}

/* Convert an input value to the stored type. It is first encoded as its own type to
 * check it. */
static bags_value stored_value(size_t field, const bags_value *value) {
    static bags_buffer encoded, decoded;
    const char *type = to.states[field].type;
    bags_view blob = {(const unsigned char *)value->data, value->size};
    bags_value out = *value;
    bags_code code = BAGS_OK;
    if (!strcmp(type, to.fields[field].type))
        return out;
    if (value->kind != BAGS_KIND_BLOB)
        code = bags_encode(registry_get(), type, value, &encoded, &blob, &failure);
    if (type_kind(type) == TYPE_IMAGE || type_kind(type) == TYPE_VIDEO)
        out = bags_blob(blob.data, blob.size);
    else if (!code)
        code = bags_decode(registry_get(), type, blob, &decoded, &out, &failure);
    must_field(code, field);
    return out;
}

/* ---- one datapoint ---- */

static uint64_t bytes;               /* bytes in the current datapoint */
static uint64_t unflushed, unsynced; /* approximate, in bytes */
static double flushed_at;

void sink_begin(void) {
    bytes = 0;
    if (existing_is_compared())
        existing_begin();
    else if (dataset)
        must(bags_writer_begin(dataset, &failure));
    else if (!bag)
        fail(BAGS_ERROR_EXISTS,
            "%s: is finished with %s and not sharded, so that it cannot be "
            "continued",
            to.path, counted(existing_length(), "datapoint"));
}

/* True for a JPEG that uses CMYK, or more than 8 bits per channel. */
static bool is_undecoded(const bags_value *value) {
    bags_view frame = format_jpeg_frame(value_bytes(value));
    return frame.size > 0 &&
           (frame.data[0] != 8 || (frame.data[5] != 1 && frame.data[5] != 3));
}

void sink_put(size_t field, size_t item, const bags_value *given) {
    const char *name = to.fields[field].name;
    bags_value stored = stored_value(field, given);
    const bags_value *value = &stored;
    bytes += value->size;
    if (to.states[field].image && !existing_is_compared() &&
        value->kind == BAGS_KIND_BLOB)
        undecoded += is_undecoded(value);
    if (existing_is_compared()) {
        existing_compare(field, item, encode(field, value));
    } else if (bag) {
        bags_view blob = encode(field, value);
        must(bag_writer_append(bag, blob.data, blob.size, NULL, &failure));
    } else {
        if (to.states[field].dedup) {
            bags_view blob = encode(field, value);
            uint64_t next = bags_writer_next(dataset, name);
            uint64_t known = dedup_find(shards, field, blob, next);
            if (known != next)
                stored = bags_stored(known);
            else if (!to.states[field].inside)
                stored = bags_blob(blob.data, blob.size);
        }
        must(to.states[field].sequence
                 ? bags_writer_push(dataset, name, value, &failure)
                 : bags_writer_set(dataset, name, value, &failure));
    }
}

static bags_code sync_or_flush(bool sync, bags_error *err) {
    unflushed = 0;
    if (sync)
        unsynced = 0;
    if (bag)
        return sync ? bag_writer_sync(bag, err) : bag_writer_flush(bag, err);
    return sync ? bags_writer_sync(dataset, err) : bags_writer_flush(dataset, err);
}

void sink_flush(void) {
    if (unflushed)
        must(sync_or_flush(false, &failure));
}

void sink_end(void) {
    if (existing_is_compared()) {
        existing_end();
        return;
    }
    if (dataset)
        must(bags_writer_end(dataset, &failure));
    uint64_t finished = dataset ? bags_writer_shards(dataset) : 0;
    appended = finished == shards ? appended + 1 : 0;
    shards = finished;
    if (unflushed == 0)
        flushed_at = seconds_now();
    /* References take bytes too; counting them means that no datapoint counts as 0. */
    unflushed += bytes + 16;
    unsynced += bytes + 16;
    if (writing.sync_size.value && unsynced >= writing.sync_size.value)
        must(sync_or_flush(true, &failure));
    else if (unflushed >= FLUSH_BYTES ||
             seconds_now() - flushed_at >= (double)writing.flush_seconds.value)
        sink_flush();
}

int sink_patience(void) {
    double left = (double)writing.flush_seconds.value;
    if (unflushed)
        left += flushed_at - seconds_now();
    return left > 0 ? (int)(left * 1000) + 1 : 0;
}

uint64_t sink_length(void) {
    return bag ? bag_writer_length(bag) : dataset ? bags_writer_length(dataset) : 0;
}

/* ---- the end ---- */

/* Append to the message that flushed data is kept. The failure may have occurred before
 * any data was flushed. */
static void explain_flushed(bool is_bag) {
    failure_suffix("; %s: the data that was flushed, if any, is kept, %s", to.path,
        next_step(is_bag));
}

bags_code sink_close(void) {
    existing_close();
    bags_code code =
        bag ? bag_writer_close(bag, &failure) : bags_writer_close(dataset, &failure);
    bag = NULL;
    dataset = NULL;
    for (size_t i = 0; to.states && i < to.count; i++)
        free(to.states[i].inside);
    free(to.states);
    to.states = NULL;
    return code;
}

/* In a pipe, an interruption may also end the input. */
void sink_finish(void) {
    interrupt_check();
    uint64_t length = sink_length();
    uint64_t resumed = dataset ? bags_writer_resumed(dataset) : existing_length();
    const char *unit = bag ? "blob" : "datapoint";
    bool complete = !bag && !dataset, is_bag = bag != NULL;
    finishing = true;
    existing_check_all();
    if (!is_bag && !to.sharded && length + resumed == 0 && writing.version.given &&
        python_versions[writing.version.value].idx)
        fail(BAGS_ERROR_VALUE,
            "%s: contains no datapoint, and %s reads no empty dataset", to.input,
            python_versions[writing.version.value].name);
    bags_code code = sink_close();
    if (code && length > 0)
        explain_flushed(is_bag);
    must(code);
    if (to.sharded && !path_exists(to.path) && !writing_offered)
        fail(BAGS_ERROR_VALUE,
            "%s: contains no datapoint, and a shard has at least one; without "
            "--shard options %s becomes an empty dataset",
            to.input, to.path);
    if (to.sharded && !path_exists(to.path))
        print("%s: no datapoint of the input is this worker's: no shard\n", to.path);
    else if (complete)
        print("%s: %s, already complete\n", to.path, counted(resumed, unit));
    else if (resumed)
        print("%s: %s, after %ju that existed\n", to.path, counted(length, unit),
            (uintmax_t)resumed);
    else
        print("%s: %s\n", to.path, counted(length, unit));
    if (undecoded)
        print("%s: %s in CMYK or with more than 8 bits per channel: stored as they "
              "are, but "
              "not decoded by readers\n",
            to.path, counted(undecoded, "JPEG"));
}

void sink_describe(const char *metadata) {
    const bags_reader_options how = {
        .unfinished = BAGS_UNFINISHED_READ, .allow_gaps = true};
    bags_buffer buffer = {0};
    const bags_view json = {(const unsigned char *)metadata, strlen(metadata)};
    bags_view found;
    if (writing.shard_start.value > 0)
        return;
    bags_reader *reader = bags_reader_open(to.path, &how, &failure);
    must_open(reader);
    must(bags_metadata_read(to.path, reader, NULL, &buffer, &found, &failure));
    bags_reader_close(reader);
    if (!found.data)
        must(bags_metadata_write(
            to.path, json, writing.options.no_sync, NULL, &failure));
    else if (found.size != json.size || memcmp(found.data, json.data, json.size) != 0)
        note("%s: its info.json is kept, and does not have the metadata of %s", to.path,
            to.input);
    bags_buffer_free(&buffer);
}

/* Close an appended shard, since --append cannot continue it, or discard it if it has
 * no new datapoint. */
void sink_failed(void) {
    bags_error ignored;
    uint64_t kept = sink_length();
    bool flushed = true;
    if (dataset) {
        bags_writer_cancel(dataset);
        bags_writer_clear(dataset);
        kept += bags_writer_resumed(dataset);
    }
    if (appended > 0 && writing.appending) {
        flushed = !bags_writer_close(dataset, &ignored);
    } else if (appended > 0) {
        flushed = !sync_or_flush(!writing.options.no_sync, &ignored);
    } else {
        bags_writer_abort(dataset);
        bag_writer_abort(bag);
    }
    if (kept == 0)
        interrupt_leaves("", "start again with", NULL);
    if (kept == 0 || finishing || existing_is_compared())
        return;
    if (flushed)
        failure_suffix("; %s: %s %s kept, %s", to.path,
            counted(kept, bag ? "blob" : "datapoint"), kept == 1 ? "is" : "are",
            next_step(bag != NULL));
    else
        explain_flushed(bag != NULL);
}
