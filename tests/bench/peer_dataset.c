/* bags.h, a dataset with one field of type bytes: in one directory, and in
 * eight shards. */
#include "peers.h"

#include <stdlib.h>

typedef struct set_handle {
    bags_reader *reader;
    bags_row row;
} set_handle;

static bags_error err;

static bags_writer *writer_of(const char *path, uint64_t shard, bool sync) {
    bags_writer_options options = {0};
    bags_field field = {"blob", "bytes"};
    options.no_sync = !sync;
    options.shard_length = shard;
    bags_writer *writer = bags_writer_open(path, &field, 1, &options, &err);
    if (!writer)
        die("%s", err.message);
    return writer;
}

static void *create(const char *path, const workload *load, bool sync) {
    (void)load;
    return writer_of(path, 0, sync);
}

static void *create_shards(const char *path, const workload *load, bool sync) {
    return writer_of(path, (load->count + 7) / 8, sync);
}

static void append(void *writer, const void *data, size_t size) {
    bags_value value = bags_bytes(data, size);
    bags_entry entry = {"blob", &value, 1};
    bags_writer_append((bags_writer *)writer, &entry, 1, NULL);
}

static void finish(void *writer) {
    if (bags_writer_close((bags_writer *)writer, &err))
        die("%s", err.message);
}

static void *handle_of(bags_reader *reader) {
    set_handle *h = (set_handle *)need_memory(sizeof *h);
    if (!reader)
        die("%s", err.message);
    memset(h, 0, sizeof *h);
    h->reader = reader;
    return h;
}

static void *open_reader(const char *path, const workload *load) {
    (void)load;
    return handle_of(bags_reader_open(path, NULL, &err));
}

static void *open_random(const char *path, const workload *load) {
    bags_reader_options options = {0};
    (void)load;
    options.no_read_ahead = true;
    return handle_of(bags_reader_open(path, &options, &err));
}

static void *open_no_mmap(const char *path, const workload *load) {
    bags_reader_options options = {0};
    (void)load;
    options.no_mmap = true;
    return handle_of(bags_reader_open(path, &options, &err));
}

static bags_view get(void *reader, uint64_t index) {
    set_handle *h = (set_handle *)reader;
    bags_view blob;
    if (bags_reader_get_blob(h->reader, index, 0, 0, &h->row, &blob, &err))
        die("%s", err.message);
    return blob;
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    set_handle *h = (set_handle *)reader;
    uint64_t sum = 0;
    if (bags_reader_get_range(h->reader, start, stop, 0, &h->row, &err))
        die("%s", err.message);
    for (size_t i = 0; i < bags_row_length(&h->row, 0); i++) {
        bags_view blob = bags_row_bytes(&h->row, 0, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

static uint64_t scan(void *reader) {
    set_handle *h = (set_handle *)reader;
    uint64_t length = bags_reader_length(h->reader), sum = 0;
    for (uint64_t i = 0; i < length; i += 512)
        sum += range(h, i, i + 512 < length ? i + 512 : length);
    return sum;
}

static void prefetch(void *reader, const uint64_t *indices, size_t count) {
    set_handle *h = (set_handle *)reader;
    if (bags_reader_prefetch(h->reader, indices, count, NULL, 0, &h->row, &err))
        die("%s", err.message);
}

static void *share(void *reader) { return handle_of(((set_handle *)reader)->reader); }

static void unshare(void *shared) {
    bags_row_free(&((set_handle *)shared)->row);
    free(shared);
}

static void release(void *reader) {
    bags_reader_close(((set_handle *)reader)->reader);
    unshare(reader);
}

const peer peer_dataset = {"bags.h dataset", NULL, NULL, NULL, 0, create, append,
    finish, open_reader, get, NULL, range, scan, prefetch, share, unshare, release};

const peer peer_dataset_random = {.name = "bags.h dataset, random",
    .reads = "bags.h dataset",
    .open = open_random,
    .get = get,
    .close = release};

const peer peer_dataset_no_mmap = {.name = "bags.h dataset, no mmap",
    .reads = "bags.h dataset",
    .open = open_no_mmap,
    .get = get,
    .close = release};

const peer peer_shards = {"bags.h 8 shards", NULL, NULL, NULL, 0, create_shards, append,
    finish, open_reader, get, NULL, range, scan, prefetch, share, unshare, release};
