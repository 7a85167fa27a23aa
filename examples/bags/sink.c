/*
 * The output of pack, images and import: a Bag or a dataset. It is flushed at least
 * every --flush-seconds and every MiB.
 *
 * --resume: the input starts with the existing datapoints. The first, the last and a
 * hundred in between are encoded again and compared, so that another input is refused
 * instead of losing its first datapoints. --append: every datapoint of the input is
 * new. It also works after finalize, when a shard's number no longer identifies its
 * worker. Both follow the finished shards: checksums and .idx files, or their absence.
 *
 * After a failure, everything written before it is kept: the writer is flushed
 * and not closed, so that the shard is unfinished, as after a crash, and
 * --resume continues it. With --append it is closed: the next --append adds a shard
 * after it. A shard without a new datapoint is given up instead.
 */
#include "command.h"

#include "images.h"

#include <errno.h>

#define FLUSH_BYTES ((uint64_t)1 << 20)
#define SAMPLES 101

static bags_writer_options writing;
static bool resuming, appending, with_checksums, without_checksums;
static option_number shard_size, shard_length, shard_start, shard_stop;
static option_number sync_size;
static option_number flush_seconds = {1, 1, 86400, false};
static const char *dedup_given;
const char *dictionary_given;

static const char *version_name(size_t i) {
    return i < PYTHON_VERSIONS ? python_versions[i].name : NULL;
}

static option_choice version = {version_name, 0, false};

const option writing_options[] = {
    {"resume", OPTION_FLAG, &resuming, NULL,
        "continue the same command with the same input"},
    {"append", OPTION_FLAG, &appending, NULL,
        "add all of the input to a sharded dataset"},
    {"shard-size", OPTION_SIZE, &shard_size, "N",
        "start a new shard at N bytes: 512M, 10G"},
    {"shard-length", OPTION_NUMBER, &shard_length, "N",
        "start a new shard at N datapoints. Any --shard option makes shards; "
        "0 is no limit"},
    WORKER_OPTIONS(shard_start, shard_stop),
    {"checksum", OPTION_FLAG, &with_checksums, NULL,
        "write checksums of all blobs: the default"},
    {"no-checksum", OPTION_FLAG, &without_checksums, NULL, "write none"},
    {"dedup", OPTION_TEXT, &dedup_given, "F,...",
        "store equal values of fields once per shard"},
    {"idx", OPTION_FLAG, &writing.keep_idx, NULL, "keep .idx files for granular 0.22"},
    {"for", OPTION_CHOICE, &version, "VERSION",
        "write only types that it reads: bags-0.5, granular-0.16, granular-0.21 or "
        "granular-0.22; see bags help types"},
    {"sync-size", OPTION_SIZE, &sync_size, "N",
        "wait for stable storage after every N bytes, not only at the end of a "
        "shard: earlier data then survives a power failure"},
    {"flush-seconds", OPTION_NUMBER, &flush_seconds, "N",
        "flush after N seconds, 1 to 86400, or a MiB; default 1"},
    {"no-sync", OPTION_FLAG, &writing.no_sync, NULL, "do not wait for stable storage"},
    OPTIONS_END,
};

/* Before the input is read, refuse contradictory options and invalid names of a
 * dataset. */
void writing_check(const char *out, bool is_bag) {
    worker_check(&shard_start, &shard_stop);
    if (out)
        path_must_be_outside(out);
    if (out && !is_bag && has_ending(out, ".bag"))
        usage("%s: a dataset is written, not a Bag: its name must not end in "
              ".bag",
            out);
    if (version.given && python_versions[version.value].idx)
        writing.keep_idx = true;
    options_exclude("checksum|no-checksum", NULL);
    options_exclude("sync-size|no-sync", NULL);
    options_exclude("resume|append", NULL);
    if (dedup_given && writing.keep_idx)
        usage(
            "--dedup and %s are mutually exclusive: granular 0.22 reads blob number n "
            "as the value of datapoint n",
            version.given ? "this --for" : "--idx");
}

void writing_no_sync(bool no_sync) { writing.no_sync = no_sync; }

static uint64_t offered; /* datapoints of the input, of all workers */

bool writing_is_mine(uint64_t i) {
    offered++;
    return shard_stop.value < 2 || i % shard_stop.value == shard_start.value;
}

/* ---- opening ---- */

typedef struct field_state {
    /* The type of the input. With --for, the field's type may differ. */
    const char *type;
    char *inside; /* of zstd(TYPE): TYPE, whose blobs are compared; otherwise NULL */
    bool sequence;
    bool dedup;
    size_t before; /* its number in the reader of the existing datapoints */
    size_t items;  /* items of the datapoint that is being compared */
    bool image;
} field_state;

static const char *path, *input;
static const bags_field *fields;
static size_t count;
static field_state *states; /* one per field */
static bag_writer *bag;     /* one of these two; none if it is complete */
static bags_writer *dataset;
static bool sharded;
static uint64_t seen;       /* datapoints of the input that are this worker's */
static uint64_t undecoded;  /* JPEG images that no codec decodes */
static uint64_t appended;   /* datapoints in the shard that is being written */
static uint64_t shards;     /* shards finished before it */
static bags_reader *before; /* --resume: the datapoints that exist, */
static uint64_t existing;   /* their number, */
static bool comparing;      /* and whether one is being compared */
static bags_row row;
static bags_buffer scratch;

/* The fields as --for stores them. */
static bags_field *fields_for_python(void) {
    const python_version *one = &python_versions[version.value];
    static bags_field *made; /* reachable when this fails: it is no leak */
    made = (bags_field *)allocate(count, sizeof *made);
    for (size_t i = 0; i < count; i++) {
        made[i].name = fields[i].name;
        made[i].type = type_for_python(fields[i].type, version.value);
        if (!made[i].type)
            usage("field \"%.160s\": %s reads no %s (%.160s)%s", fields[i].name,
                one->name,
                states[i].sequence && !one->sequences ? "sequences" : "such type",
                fields[i].type,
                strcmp(fields[i].type, "i64")
                    ? ""
                    : "; numbers from 0 can be int: "
                      "NAME=int in --spec, or in --type of import");
    }
    return made;
}

/* Note which fields share blobs. */
static void choose_dedup(void) {
    char *words = string_format("%s", dedup_given), *at = words;
    size_t field;
    while (fields_next(&at, "dedup", path, fields, count, &field, NULL)) {
        if (states[field].sequence)
            usage("--dedup: the field \"%s\" is a sequence", fields[field].name);
        states[field].dedup = true;
    }
    free(words);
}

static void choose_dictionary(void) {
    size_t i = 0;
    while (i < count && !states[i].inside)
        i++;
    if (i == count)
        usage("--dictionary: no field is of zstd");
    registry_dictionary(dictionary_given);
}

/* Refuse options of datasets. */
static void open_bag(void) {
    bag_writer_options options = {0};
    options.keep_idx = writing.keep_idx;
    options.no_sync = writing.no_sync;
    options.checksum = !without_checksums;
    if (dedup_given)
        usage("%s: a Bag has no fields to --dedup", path);
    if (appending || resuming || sharded)
        usage("%s: a Bag has no shards and cannot be resumed or appended to", path);
    bag = bag_writer_open(path, &options, &failure);
    if (!bag && failure.code == BAGS_ERROR_EXISTS)
        failure_suffix("; remove it, or write to a new path");
    must_open(bag);
}

static int field_order(const void *a, const void *b) {
    return strcmp(((const bags_field *)a)->name, ((const bags_field *)b)->name);
}

/* Open a reader of the datapoints that exist, to compare them. */
static void open_before(bool finished) {
    bags_reader_options options = {0};
    options.registry = registry_blobs();
    options.unfinished = finished ? BAGS_UNFINISHED_REFUSE : BAGS_UNFINISHED_READ;
    options.shard_start = shard_start.value;
    options.shard_stop = shard_stop.value;
    before = bags_reader_open(path, &options, &failure);
    must_open(before);
    size_t length;
    const bags_field *old = bags_reader_fields(before, &length);
    bags_field *sorted = (bags_field *)allocate(count, sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        sorted[i] = fields[i];
    qsort(sorted, count, sizeof *sorted, field_order);
    if (bags_fields_compare(sorted, count, old, length, path, &failure)) {
        failure.code = BAGS_ERROR_VALUE;
        failure_prefix("%s: exists: ", path);
        die();
    }
    free(sorted);
    for (size_t i = 0; i < count; i++)
        must(bags_reader_field(before, fields[i].name, &states[i].before, &failure));
}

/* The dataset or its first shard, whichever is finished; NULL if none is. */
static char *find_finished(const char *of) {
    size_t length, i = 0;
    if (path_has(of, "spec.json"))
        return string_format("%s", of);
    bags_shard *all = shards_list(of, &length);
    while (i < length && !path_has(shard_path(of, &all[i]), "spec.json"))
        i++;
    char *found = i < length ? string_format("%s", shard_path(of, &all[i])) : NULL;
    free(all);
    return found;
}

char *sink_appended_spec(const char *out) {
    char *finished = appending ? find_finished(out) : NULL;
    char *spec = finished ? path_join(finished, "spec.json") : NULL;
    free(finished);
    return spec;
}

/* A shard without refs has such files next to its fields. */
static bool finished_has(const char *finished, const char *ending) {
    return path_has(finished, temp_format("refs.%s", ending)) ||
           (count > 0 &&
               path_has(finished, temp_format("%s.%s", fields[0].name, ending)));
}

/* Write checksums if the finished shard has them, and refuse options that differ from it.
 * bags_writer_open follows its .idx files itself: another worker may be removing them. */
static void follow_finished(void) {
    char *finished = find_finished(path);
    if (!finished)
        return;
    bool has_checksums = finished_has(finished, "crc");
    bool has_idx = finished_has(finished, "idx");
    free(finished);
    if (with_checksums && !has_checksums)
        fail(BAGS_ERROR_VALUE,
            "%s: has no checksums; omit --checksum, or add them first with "
            "`bags checksum`",
            path);
    if (without_checksums && has_checksums)
        fail(BAGS_ERROR_VALUE, "%s: has checksums; omit --no-checksum", path);
    if (writing.keep_idx && !has_idx)
        fail(BAGS_ERROR_VALUE, "%s: has no .idx files; omit %s", path,
            version.given ? "--for, whose version needs them" : "--idx");
    writing.checksum = has_checksums;
}

/* An unsharded dataset that is finished has no writer: everything is compared,
 * and nothing may follow. */
static void open_complete(void) {
    open_before(true);
    existing = bags_reader_length(before);
}

/* Follow what exists, open the writer, and a reader if there is anything to compare. */
static void open_dataset(void) {
    writing.shard_size = shard_size.value;
    writing.shard_length = shard_length.value;
    writing.shard_start = shard_start.value;
    writing.shard_stop = shard_stop.value;
    if (sharded && !shard_stop.value)
        writing.shard_stop = 1;
    writing.existing = resuming    ? BAGS_EXISTING_RESUME
                       : appending ? BAGS_EXISTING_APPEND
                                   : BAGS_EXISTING_REFUSE;
    writing.registry = registry_get();
    writing.any_type = true; /* the caller has checked them */
    writing.checksum = !without_checksums;
    if (appending && !path_exists(path))
        fail(BAGS_ERROR_MISSING, "%s: does not exist; omit --append to start it", path);
    if (resuming || appending)
        follow_finished();
    if (resuming && !sharded && path_has(path, "spec.json")) {
        open_complete();
        return;
    }
    dataset = bags_writer_open(path, fields, count, &writing, &failure);
    must_open(dataset);
    shards = bags_writer_shards(dataset);
    existing = bags_writer_resumed(dataset);
    if (existing)
        open_before(false);
}

static const char *next_step(bool is_bag) {
    return is_bag      ? temp_format("`bags export %s OUT --live` reads it", path)
           : appending ? "append only the others"
                       : "--resume continues";
}

void sink_open(const char *out, const char *from, const bags_field *given,
    size_t length, bool is_bag) {
    path = out;
    input = from;
    fields = given;
    count = length;
    path_must_be_writable(path);
    interrupt_leaves(temp_format("%s: the data that was flushed is kept, %s", path,
                         next_step(is_bag)),
        is_bag || appending ? NULL : "continue with", "--resume");
    interrupt_defer();
    sharded = appending || shard_size.given || shard_length.given ||
              shard_start.given || shard_stop.given;
    states = (field_state *)allocate(count, sizeof *states);
    for (size_t i = 0; i < count; i++) {
        bags_type parsed;
        must(bags_type_parse(fields[i].type, &parsed, &failure));
        states[i].sequence = parsed.sequence;
        states[i].type = fields[i].type;
        states[i].image = type_kind(states[i].type) == TYPE_IMAGE;
    }
    if (version.given)
        fields = fields_for_python();
    for (size_t i = 0; i < count && !is_bag; i++)
        states[i].inside = type_inside(fields[i].type);
    if (dedup_given && !is_bag)
        choose_dedup();
    if (dictionary_given)
        choose_dictionary();
    if (is_bag)
        open_bag();
    else
        open_dataset();
}

bool sink_is_sequence(size_t field) { return states[field].sequence; }

/* ---- comparing with what exists ---- */

/* Compare the first existing datapoint, the last and a hundred in between. */
bool sink_next(void) {
    uint64_t i = seen++, last = existing - 1;
    comparing = i < existing;
    if (!comparing || i == 0 || i == last || last <= SAMPLES)
        return true;
    uint64_t step = last / SAMPLES + 1;
    return i / step != (i - 1) / step;
}

ENDS static void fail_difference(size_t field, const char *what) {
    size_t length, i = 0;
    uint64_t index = seen - 1;
    const bags_shard *all = bags_reader_shards(before, &length);
    while (i + 1 < length && index >= all[i].start + all[i].length)
        i++;
    fail(BAGS_ERROR_VALUE,
        "field \"%s\": %s differs from datapoint %ju of %s; --resume needs the "
        "same input%s as before, --append adds to a dataset",
        fields[field].name, what, (uintmax_t)(index - all[i].start),
        shard_path(path, &all[i]),
        sharded ? ", options and number of workers (--shard-stop)" : " and options");
}

static void must_field(bags_code code, size_t field) {
    if (code)
        failure_prefix("field \"%s\": ", fields[field].name);
    must(code);
}

/* The blob of a value. For zstd(TYPE), the blob of TYPE: a frame depends on earlier
 * values. */
static bags_view encode(size_t field, const bags_value *value) {
    const char *inside = states[field].inside;
    const char *type = fields[field].type;
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

/* The same of an item that exists. */
static bags_view encoded(size_t field, size_t item) {
    size_t slot = states[field].before;
    bags_view blob = bags_row_bytes(&row, slot, item);
    bags_value plain;
    if (states[field].inside && item < bags_row_length(&row, slot)) {
        must(bags_row_value(&row, slot, item, NULL, &plain, &failure));
        blob = value_bytes(&plain);
    }
    return blob;
}

static void compare(size_t field, size_t item, const bags_value *value) {
    bags_view blob = encode(field, value);
    bags_view old = encoded(field, item);
    states[field].items++;
    if (item >= bags_row_length(&row, states[field].before) || old.size != blob.size ||
        (blob.size && memcmp(old.data, blob.data, blob.size)))
        fail_difference(field, "value");
}

/* Convert a value of the input to the stored type. Encoding it as its own type first
 * checks it. */
static bags_value stored_value(size_t field, const bags_value *value) {
    static bags_buffer encoded, decoded;
    const char *type = states[field].type;
    bags_view blob = {(const unsigned char *)value->data, value->size};
    bags_value out = *value;
    bags_code code = BAGS_OK;
    if (!strcmp(type, fields[field].type))
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

static uint64_t bytes;               /* of the datapoint that is being written */
static uint64_t unflushed, unsynced; /* bytes, about */
static double flushed_at;

void sink_begin(void) {
    bytes = 0;
    for (size_t i = 0; i < count; i++)
        states[i].items = 0;
    if (comparing)
        must(bags_reader_get(before, seen - 1, NULL, 0, &row, &failure));
    else if (dataset)
        must(bags_writer_begin(dataset, &failure));
    else if (!bag)
        fail(BAGS_ERROR_EXISTS,
            "%s: is finished with %s and not sharded, so that it cannot be "
            "continued",
            path, counted(existing, "datapoint"));
}

/* True for a JPEG in CMYK, or with more than 8 bits per channel. */
static bool is_undecoded(const bags_value *value) {
    bags_view frame = format_jpeg_frame(value_bytes(value));
    return frame.size > 0 &&
           (frame.data[0] != 8 || (frame.data[5] != 1 && frame.data[5] != 3));
}

void sink_put(size_t field, size_t item, const bags_value *given) {
    const char *name = fields[field].name;
    bags_value stored = stored_value(field, given);
    const bags_value *value = &stored;
    bytes += value->size;
    if (states[field].image && !comparing && value->kind == BAGS_KIND_BLOB)
        undecoded += is_undecoded(value);
    if (comparing) {
        compare(field, item, value);
    } else if (bag) {
        bags_view blob = encode(field, value);
        must(bag_writer_append(bag, blob.data, blob.size, NULL, &failure));
    } else {
        if (states[field].dedup) {
            bags_view blob = encode(field, value);
            uint64_t next = bags_writer_next(dataset, name);
            uint64_t known = dedup_find(shards, field, blob, next);
            if (known != next)
                stored = bags_stored(known);
            else if (!states[field].inside)
                stored = bags_blob(blob.data, blob.size);
        }
        must(states[field].sequence ? bags_writer_push(dataset, name, value, &failure)
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
    if (comparing) {
        for (size_t i = 0; i < count; i++)
            if (states[i].items != bags_row_length(&row, states[i].before))
                fail_difference(i, "number of items");
        return;
    }
    if (dataset)
        must(bags_writer_end(dataset, &failure));
    uint64_t finished = dataset ? bags_writer_shards(dataset) : 0;
    appended = finished == shards ? appended + 1 : 0;
    shards = finished;
    if (unflushed == 0)
        flushed_at = seconds_now();
    /* References are bytes too, so that no datapoint counts as none. */
    unflushed += bytes + 16;
    unsynced += bytes + 16;
    if (sync_size.value && unsynced >= sync_size.value)
        must(sync_or_flush(true, &failure));
    else if (unflushed >= FLUSH_BYTES ||
             seconds_now() - flushed_at >= (double)flush_seconds.value)
        sink_flush();
}

int sink_patience(void) {
    double left = (double)flush_seconds.value;
    if (unflushed)
        left += flushed_at - seconds_now();
    return left > 0 ? (int)(left * 1000) + 1 : 0;
}

uint64_t sink_length(void) {
    return bag ? bag_writer_length(bag) : dataset ? bags_writer_length(dataset) : 0;
}

/* ---- the end ---- */

/* Append to the message that what was flushed is kept. The failure may have come
 * before anything was. */
static void explain_flushed(bool is_bag) {
    failure_suffix("; %s: the data that was flushed, if any, is kept, %s", path,
        next_step(is_bag));
}

bags_code sink_close(void) {
    bags_reader_close(before);
    bags_code code =
        bag ? bag_writer_close(bag, &failure) : bags_writer_close(dataset, &failure);
    bag = NULL;
    dataset = NULL;
    before = NULL;
    for (size_t i = 0; states && i < count; i++)
        free(states[i].inside);
    free(states);
    states = NULL;
    return code;
}

/* In a pipe, an interruption may end the input as well. */
void sink_finish(void) {
    interrupt_check();
    uint64_t length = sink_length();
    uint64_t resumed = dataset ? bags_writer_resumed(dataset) : existing;
    const char *unit = bag ? "blob" : "datapoint";
    bool complete = !bag && !dataset, is_bag = bag != NULL;
    comparing = true;
    if (seen < existing)
        fail(BAGS_ERROR_VALUE,
            "%s: has %s, but %s has only %ju for it; --resume needs the same "
            "input%s as before",
            path, counted(existing, "datapoint"), input, (uintmax_t)seen,
            sharded ? " and number of workers (--shard-stop)" : "");
    if (!is_bag && !sharded && length + resumed == 0 && version.given &&
        python_versions[version.value].idx)
        fail(BAGS_ERROR_VALUE,
            "%s: contains no datapoint, and %s reads no empty dataset", input,
            python_versions[version.value].name);
    bags_code code = sink_close();
    if (code && length > 0)
        explain_flushed(is_bag);
    must(code);
    if (sharded && !path_exists(path) && !offered)
        fail(BAGS_ERROR_VALUE,
            "%s: contains no datapoint, and a shard has at least one; without "
            "--shard options %s becomes an empty dataset",
            input, path);
    if (sharded && !path_exists(path))
        print("%s: no datapoint of the input is this worker's: no shard\n", path);
    else if (complete)
        print("%s: %s, already complete\n", path, counted(resumed, unit));
    else if (resumed)
        print("%s: %s, after %ju that existed\n", path, counted(length, unit),
            (uintmax_t)resumed);
    else
        print("%s: %s\n", path, counted(length, unit));
    if (undecoded)
        print("%s: %s in CMYK or with more than 8 bits per channel: stored as they "
              "are, but "
              "not decoded by readers\n",
            path, counted(undecoded, "JPEG"));
}

/* An appended shard is closed, since --append cannot continue it; without a new
 * datapoint it is given up. */
void sink_failed(void) {
    bags_error ignored;
    uint64_t kept = sink_length();
    bool flushed = true;
    if (dataset) {
        bags_writer_cancel(dataset);
        bags_writer_clear(dataset);
        kept += bags_writer_resumed(dataset);
    }
    if (appended > 0 && appending) {
        flushed = !bags_writer_close(dataset, &ignored);
    } else if (appended > 0) {
        flushed = !sync_or_flush(!writing.no_sync, &ignored);
    } else {
        bags_writer_abort(dataset);
        bag_writer_abort(bag);
    }
    if (kept == 0)
        interrupt_leaves("", "start again with", NULL);
    if (kept == 0 || comparing)
        return;
    if (flushed)
        failure_suffix("; %s: %s %s kept, %s", path,
            counted(kept, bag ? "blob" : "datapoint"), kept == 1 ? "is" : "are",
            next_step(bag != NULL));
    else
        explain_flushed(bag != NULL);
}
