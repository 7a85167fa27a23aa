/*
 * A dataset, or shards, of any files: read with mmap and without, which must
 * agree; verified; recovered; finalized.
 *
 * The input: a byte of options, and then for each file a byte (the file in the
 * low 4 bits, the shard in the high 4; 0: no shard), its size in two bytes,
 * little-endian, and its bytes.
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[16] = {"spec.json", "refs.bag", "refs.idx", "a.bag",
    "a.idx", "b.bag", "b.idx", "c.bag", "c.idx", "spec.json.partial", "refs", "a", "",
    "x/y", "..", "000000"};
static const char *const shards[16] = {NULL, "000000", "000001", "000002", "3", "01",
    "000009", "0000000000000000000000001", "999999999999999999", "1000000000000000000",
    "99999999999999999999", "x", "-1", "1a", " 1", "00"};

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static void unpack(memory_disk *m, const uint8_t *data, size_t size) {
    memory_disk_make_dir(m, "x");
    while (size >= 3) {
        char path[128];
        const char *shard = shards[data[0] >> 4];
        size_t length = (size_t)data[1] | (size_t)data[2] << 8;
        snprintf(path, sizeof path, "x/%s%s%s", shard ? shard : "", shard ? "/" : "",
            files[data[0] & 15]);
        data += 3;
        size -= 3;
        length = length < size ? length : size;
        if (!memory_disk_find(m, path).data)
            memory_disk_save(m, path, data, length);
        data += length;
        size -= length;
    }
}

static uint64_t add_bytes(uint64_t sum, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        sum = sum * 31 + ((const unsigned char *)data)[i];
    return sum * 31 + size;
}

static uint64_t add_row(uint64_t sum, bags_row *row, bags_buffer *scratch) {
    for (size_t slot = 0; slot < 4; slot++)
        for (size_t i = 0; i < bags_row_length(row, slot) && i < 20; i++) {
            bags_view blob = bags_row_bytes(row, slot, i);
            bags_value value;
            bags_error err;
            sum = add_bytes(sum, blob.data, blob.size);
            bags_code code =
                bags_row_value(row, slot, i, i % 2 ? scratch : NULL, &value, &err);
            sum = sum * 31 + (uint64_t)code;
            if (!code && value.size)
                sum = add_bytes(sum, value.data, value.size);
        }
    return sum;
}

static uint64_t read_point(const bags_reader *reader, uint64_t index, bags_row *row,
    bags_buffer *scratch, bool *all) {
    size_t count = 0;
    bags_error err;
    bags_code code = bags_reader_get(reader, index, NULL, 0, row, &err);
    uint64_t sum = add_row((uint64_t)code, row, scratch);
    *all = *all && !code;
    bags_reader_fields(reader, &count);
    for (size_t f = 0; f < count && f < 4; f++) {
        uint64_t items = 0;
        bool sequence = bags_reader_type(reader, f)->sequence;
        bags_select select = bags_select_all(f);
        if (sequence) {
            uint64_t start = index % 3;
            select = bags_select_slice(f, start, start + index % 5, index % 4);
        }
        code = bags_reader_get(reader, index, &select, 1, row, &err);
        sum = add_row(sum * 31 + (uint64_t)code, row, scratch);
        code = bags_reader_items(reader, index, f, row, &items, &err);
        sum = sum * 31 + (uint64_t)code + items;
        if (!sequence) {
            code = bags_reader_get_range(reader, index, index + 3, f, row, &err);
            sum = add_row(sum * 31 + (uint64_t)code, row, scratch);
        }
    }
    return sum;
}

/* Everything that a reader returns, in one number; if verify found a fault, some
 * of it may be missing. */
static uint64_t read_all(const bags_reader *reader, bool faulty) {
    uint64_t length = bags_reader_length(reader), sum = length;
    bags_row row = {0};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_error err;
    size_t count = 0;
    bool all = true;
    for (uint64_t i = 0; i < length && i < 40; i++)
        sum = sum * 31 + read_point(reader, i, &row, &scratch, &all);
    if (length > 40)
        sum = sum * 31 + read_point(reader, length - 1, &row, &scratch, &all);
    bags_reader_fields(reader, &count);
    bags_info info;
    bags_field_info *fields = (bags_field_info *)malloc((count + 1) * sizeof *fields);
    bags_code described = bags_reader_info(reader, &info, fields, &err);
    sum = sum * 31 + (uint64_t)described;
    for (size_t f = 0; !described && f < count; f++)
        sum = sum * 31 + fields[f].blobs + fields[f].size;
    if (!described)
        sum = sum * 31 + info.size;
    free(fields);
    demand(faulty || all, "verify saw less than a read");
    bags_buffer_free(&scratch);
    bags_row_free(&row);
    return sum;
}

static void count_fault(void *user, const bags_fault *fault) {
    demand(
        fault->code && fault->message[0] && fault->path[0], "a fault without a name");
    ++*(uint64_t *)user;
}

/* Verify reports no datapoint, nor blob of refs, that a reader can read. (The
 * reader need not notice that a Bag is too long, that blobs overlap, or a blob
 * that no datapoint refers to.) */
static void check_fault(void *user, const bags_fault *fault) {
    const bags_reader *reader = (const bags_reader *)user;
    const char *name = strchr(fault->path, '/');
    uint64_t number = name ? strtoull(name + 1, NULL, 10) : 0;
    bool refs = fault->field && strcmp(fault->field, "refs") == 0;
    size_t count = 0;
    const bags_shard *found = bags_reader_shards(reader, &count);
    if (fault->kind != BAGS_FAULT_DATAPOINT &&
        (fault->kind != BAGS_FAULT_BLOB || !refs))
        return;
    for (size_t i = 0; i < count; i++) {
        bags_row row = {0};
        bags_error err;
        if (found[i].number != number || fault->index >= found[i].length)
            continue;
        demand(bags_reader_get(reader, found[i].start + fault->index, NULL, 0, &row,
                   &err) != BAGS_OK,
            "a reader reads what verify rejects");
        bags_row_free(&row);
    }
}

/* Verify what a reader with these options reads. */
static bags_code verify_shards(
    bags_reader *reader, const bags_reader_options *reading) {
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.each = check_fault;
    options.user = reader;
    options.allow_gaps = reading->allow_gaps;
    options.unfinished = reading->unfinished;
    options.shard_start = reading->shard_start;
    options.shard_stop = reading->shard_stop;
    options.env = reading->env;
    return bags_verify("x", &options, NULL, NULL);
}

/* A dataset without faults opens; and the faults are the same at once and in
 * parts. */
static void compare_faults(
    memory_disk *m, const bags_reader_options *read, bool opened) {
    bags_verify_options options;
    bags_verify_report report;
    uint64_t faults[2] = {0, 0};
    bags_code code;
    memset(&options, 0, sizeof options);
    options.allow_gaps = read->allow_gaps;
    options.unfinished = read->unfinished;
    options.env.io = &m->io;
    options.each = count_fault;
    options.user = &faults[0];
    code = bags_verify("x", &options, &report, NULL);
    demand(code || opened, "verify finds nothing in what does not open");
    demand(report.faults >= faults[0], "faults that are not counted");
    options.user = &faults[1];
    options.parts = 3;
    for (options.part = 0; options.part < 3; options.part++)
        bags_verify("x", &options, &report, NULL);
    demand(faults[0] == faults[1] || report.faults >= 1000, "other faults in parts");
    options.parts = 0;
    options.part = 0;
    options.user = &faults[0];
    options.decode = true;
    bags_verify("x", &options, &report, NULL);
}

static uint64_t read_path(
    memory_disk *m, unsigned options_byte, bool no_mmap, bool load) {
    bags_reader_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.no_mmap = no_mmap;
    options.cache_index = load;
    options.allow_gaps = options_byte & 1;
    options.unfinished =
        options_byte & 2 ? BAGS_UNFINISHED_SKIP : BAGS_UNFINISHED_REFUSE;
    options.max_files = options_byte & 4 ? 1 : 0;
    m->most_maps = options_byte & 4 ? 1 : 0;
    options.shard_stop = options_byte & 8 ? 2 : 0;
    options.shard_start = options_byte & 16 && options_byte & 8 ? 1 : 0;
    options.env.io = &m->io;
    bags_reader *reader = bags_reader_open("x", &options, &err);
    bool none = !reader && err.code == BAGS_ERROR_UNFINISHED;
    bool good = reader && verify_shards(reader, &options) == BAGS_OK;
    uint64_t sum = reader ? read_all(reader, !good) : (uint64_t)err.code << 32;
    if (!options.shard_stop && !(none && options.unfinished))
        compare_faults(m, &options, reader != NULL);
    bags_reader_close(reader);
    return sum;
}

/* After a recovery that reports success everything is finished, and valid. */
static void recover(memory_disk *m) {
    bags_recover_options options;
    bags_recover_report report;
    bags_reader_options read;
    bags_error err;
    memset(&options, 0, sizeof options);
    memset(&report, 0, sizeof report);
    memset(&read, 0, sizeof read);
    options.env.io = &m->io;
    read.env.io = &m->io;
    read.allow_gaps = true;
    if (bags_recover("x", &options, &report, &err))
        return;
    demand(report.failed == 0 && report.locked == 0, "success with failures");
    bags_reader *reader = bags_reader_open("x", &read, &err);
    if (!reader) {
        bool only_new = report.finished_before == 0 && report.removed == 0 &&
                        report.finished_now == 1;
        demand(!only_new, "what was recovered cannot be opened");
        return;
    }
    if (report.finished_before == 0) {
        demand(bags_reader_length(reader) == report.length,
            "another length than recovered");
        demand(verify_path("x", &read.env, &err) == BAGS_OK,
            "what was recovered is wrong");
    }
    bags_reader_close(reader);
    memset(&report, 0, sizeof report);
    demand(bags_recover("x", &options, &report, &err) == BAGS_OK ||
               report.finished_before == 0,
        "a second recovery fails");
    demand(report.finished_now == 0 && report.truncated == 0,
        "a second recovery changes something");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_disk m;
    if (size < 1)
        return 0;
    memory_disk_start(&m);
    unpack(&m, data + 1, size - 1);
    uint64_t mapped = read_path(&m, data[0], false, false);
    demand(
        mapped == read_path(&m, data[0], true, false), "another result without mmap");
    demand(mapped == read_path(&m, data[0], true, true),
        "another result with a cached index");
    if (data[0] & 32)
        recover(&m);
    if (data[0] & 64) {
        bags_error err;
        uint64_t renamed = 0;
        bags_finalize_options options;
        memset(&options, 0, sizeof options);
        options.env.io = &m.io;
        if (!bags_finalize("x", &options, &renamed, &err))
            demand(
                bags_finalize("x", &options, &renamed, &err) == BAGS_OK && renamed == 0,
                "finalize does not come to an end");
        read_path(&m, 1, false, false);
    }
    memory_disk_free(&m);
    return 0;
}
