/*
 * Recovery of a damaged shard, on a disk in memory. bags_verify must accept the
 * result, a dry run before it must report the same, a second recovery must find
 * nothing to do, and resuming must find the same datapoints. Of a damaged standalone
 * Bag, the complete blobs are copied.
 *
 * The input: a byte of options, then for each file its number in a byte
 * (0: spec.json.partial, 1: refs.bag, 2: refs.idx, 3: a.bag, 4: a.idx,
 * 5: b.bag, 6: b.idx), its size in two bytes, little-endian, and its bytes. A
 * bit of the options adds the record of the fields a and b to an input without
 * one; another makes it a standalone Bag (odd: standalone.bag; 0: standalone.crc; otherwise
 * standalone.idx).
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[7] = {
    "spec.json.partial", "refs.bag", "refs.idx", "a.bag", "a.idx", "b.bag", "b.idx"};
static const char *const standalone_names[7] = {"standalone.crc", "standalone.bag",
    "standalone.idx", "standalone.bag", "standalone.idx", "standalone.bag",
    "standalone.idx"};
static const bags_field fields[2] = {{"a", "bytes"}, {"b", "bytes[]"}};
#define RECORD "{\"a\": \"bytes\", \"b\": \"bytes[]\"}"

#define OPTION_SHARD 1
#define OPTION_RECORD 2
#define OPTION_KEEP 4
#define OPTION_APPEND 8
#define OPTION_STANDALONE 16

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static void unpack(memory_disk *m, const uint8_t *data, size_t size) {
    bool shard = data[0] & OPTION_SHARD && !(data[0] & OPTION_STANDALONE);
    const char *directory = shard ? "x/000000" : "x";
    unsigned options = *data++;
    const char *const *files = options & OPTION_STANDALONE ? standalone_names : names;
    char path[64];
    size--;
    memory_disk_make_dir(m, directory);
    while (size >= 3) {
        size_t length = (size_t)data[1] | (size_t)data[2] << 8;
        snprintf(path, sizeof path, "%s/%s", directory, files[data[0] % 7]);
        data += 3;
        size -= 3;
        length = length < size ? length : size;
        memory_disk_save(m, path, data, length);
        data += length;
        size -= length;
    }
    if (options & OPTION_STANDALONE)
        return;
    snprintf(path, sizeof path, "%s/%s", directory, names[0]);
    if (options & OPTION_RECORD && !memory_disk_find(m, path).data)
        memory_disk_save(m, path, RECORD, strlen(RECORD));
}

static bags_code recover(
    memory_disk *m, bool dry, bool keep, bags_recover_report *report) {
    bags_recover_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.dry_run = dry;
    options.keep_idx = keep;
    return bags_recover("x", &options, report, &err);
}

/* The complete blobs of a standalone Bag can be copied, and every blob of the copy can
 * be read. */
static void check_bag(memory_disk *m) {
    bag_reader_options options;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    bags_error err;
    uint64_t length = 0;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    if (copy_flushed("x/standalone.bag", "x/copy.bag", false, &m->io, &length, &err))
        return;
    bag_reader *reader = bag_reader_open("x/copy.bag", &options, &err);
    demand(reader != NULL, "the copy of a Bag cannot be opened");
    demand(bag_reader_length(reader) == length, "another length than was copied");
    demand(!verify_path("x/copy.bag", &options.env, &err), "the Bag is wrong");
    for (uint64_t i = 0; i < length; i++)
        demand(!bag_reader_get(reader, i, &scratch, &blob, &err),
            "a blob that was copied cannot be read");
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

/* Every datapoint can be read. */
static void check_readable(memory_disk *m, uint64_t length) {
    bags_reader_options options;
    bags_row row = {0};
    bags_error err;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    bags_reader *reader = bags_reader_open("x", &options, &err);
    demand(reader != NULL, "what was recovered cannot be opened");
    demand(bags_reader_length(reader) == length, "another length than reported");
    demand(!verify_path("x", &options.env, &err), "what was recovered is wrong");
    for (uint64_t i = 0; i < length; i++)
        demand(!bags_reader_get(reader, i, NULL, 0, &row, &err),
            "a datapoint that was recovered cannot be read");
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* Resume: count the datapoints found, and append one more. */
static void resume_work(
    memory_disk *m, bool sharded, const bags_recover_report *reported) {
    bags_writer_options options;
    bags_value value = bags_blob("new", 3);
    bags_error err;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.existing = BAGS_EXISTING_RESUME;
    options.shard_stop = sharded;
    options.buffer_size = 4096;
    bags_writer *writer = bags_writer_open("x", fields, 2, &options, &err);
    if (!writer)
        return;
    demand(bags_writer_resumed(writer) == reported->length,
        "append finds another length than recovery");
    bags_entry entries[2] = {{"a", &value, 1}, {"b", &value, 1}};
    demand(!bags_writer_append(writer, entries, 2, &err), "append fails");
    demand(!bags_writer_close(writer, &err), "close fails");
    check_readable(m, reported->length + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_disk m, before;
    bags_recover_report dry, done, again;
    if (size < 1)
        return 0;
    bool keep = data[0] & OPTION_KEEP;
    memory_disk_start(&m);
    memory_disk_start(&before);
    unpack(&m, data, size);
    if (data[0] & OPTION_STANDALONE) {
        check_bag(&m);
        memory_disk_free(&m);
        return 0;
    }
    unpack(&before, data, size);
    bags_code looked = recover(&m, true, keep, &dry);
    demand(is_same_disk(&m, &before), "a dry run changes something");
    if (data[0] & OPTION_APPEND) {
        resume_work(&m, data[0] & OPTION_SHARD, &dry);
    } else {
        bags_code code = recover(&m, false, keep, &done);
        demand(code == looked && memcmp(&dry, &done, sizeof dry) == 0,
            "a dry run tells something else");
        if (code)
            demand(is_same_disk(&m, &before), "a failure changes something");
        if (!code && done.finished_now) {
            check_readable(&m, done.length);
            demand(!recover(&m, false, keep, &again), "it fails when repeated");
            demand(again.finished_before == 1 && again.truncated == 0,
                "it is not done after the first time");
        }
    }
    memory_disk_free(&before);
    memory_disk_free(&m);
    return 0;
}
