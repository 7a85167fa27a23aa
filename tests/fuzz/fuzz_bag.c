/*
 * A Bag of any bytes, read in memory, without mmap and mapped: all three must
 * agree, and access nothing outside.
 *
 * The input: a byte of options; if its bit 1 is set, two bytes with the size of
 * the .idx file (little-endian) and that file; then the .bag file.
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Reads everything. Returns the result as one number. env NULL: not in a
 * file. */
static uint64_t digest(const bag_reader *reader, const bags_env *env) {
    uint64_t sum = 1, length = bag_reader_length(reader);
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_error err;
    bool all = true;
    demand(length <= bag_reader_size(reader) / 8 + 1, "too many blobs");
    for (uint64_t i = 0; i < length && i < 200; i++) {
        bags_view blob;
        bag_blobs range;
        bags_code code = bag_reader_get(reader, i, &scratch, &blob, &err);
        demand(code == BAGS_OK || code == BAGS_ERROR_CORRUPT, "another code");
        sum = sum * 31 + (uint64_t)code;
        all = all && !code;
        for (size_t k = 0; !code && k < blob.size; k++)
            sum = sum * 31 + blob.data[k];
        code = bag_reader_get_range(reader, i, i + i % 5, &scratch, &range, &err);
        sum = sum * 31 + (uint64_t)code;
        for (size_t k = 0; !code && k < range.length; k++) {
            blob = bag_blobs_get(&range, k);
            for (size_t c = 0; c < blob.size; c++)
                sum = sum * 31 + blob.data[c];
        }
    }
    bags_code verified = env ? verify_path("x.bag", env, &err) : BAGS_OK;
    demand(verified || all || !env, "verify saw less than a read");
    demand(!verified || !all || length > 200, "verify saw more than reads");
    bags_buffer_free(&scratch);
    return sum * 31 + length;
}

static uint64_t read_file(const bags_io *io, bool no_mmap, bool load, bool empty) {
    bag_reader_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.no_mmap = no_mmap;
    options.cache_index = load;
    options.allow_empty_file = empty;
    options.env.io = io;
    bag_reader *reader = bag_reader_open("x.bag", &options, &err);
    uint64_t sum = reader ? digest(reader, &options.env) : 0;
    bag_reader_close(reader);
    return sum;
}

static uint64_t read_memory(const uint8_t *data, size_t size, bool empty) {
    bag_reader_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.allow_empty_file = empty;
    bag_reader *reader = bag_reader_open_memory(data, size, &options, &err);
    uint64_t sum = reader ? digest(reader, NULL) : 0;
    bag_reader_close(reader);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_disk m;
    if (size < 1)
        return 0;
    bool empty = data[0] & 1, split = data[0] & 2;
    data++;
    size--;
    memory_disk_start(&m);
    if (split && size >= 2) {
        size_t idx = (size_t)data[0] | (size_t)data[1] << 8;
        data += 2;
        size -= 2;
        idx = idx < size ? idx : size;
        memory_disk_save(&m, "x.idx", data, idx);
        data += idx;
        size -= idx;
    } else {
        split = false;
    }
    memory_disk_save(&m, "x.bag", data, size);
    uint64_t mapped = read_file(&m.io, false, false, empty);
    demand(
        mapped == read_file(&m.io, true, false, empty), "another result without mmap");
    demand(mapped == read_file(&m.io, true, true, empty),
        "another result with the table cached");
    demand(
        split || mapped == read_memory(data, size, empty), "another result in memory");
    memory_disk_free(&m);
    return 0;
}
