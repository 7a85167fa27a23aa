/* bags.h, one Bag: mapped, mapped for random reading, read by position, and
 * with checksums that are compared at every read. */
#include "peers.h"

#include <stdlib.h>

typedef struct bag_handle {
    bag_reader *reader;
    bags_buffer scratch;
} bag_handle;

static bags_error err;

static void *create_with(const char *path, const bag_writer_options *options) {
    bag_writer *writer = bag_writer_open(path, options, &err);
    if (!writer)
        die("%s", err.message);
    return writer;
}

static void *create(const char *path, const workload *load, bool sync) {
    bag_writer_options options = {0};
    (void)load;
    options.no_sync = !sync;
    return create_with(path, &options);
}

static void *create_summed(const char *path, const workload *load, bool sync) {
    bag_writer_options options = {0};
    (void)load;
    options.no_sync = !sync;
    options.checksum = true;
    return create_with(path, &options);
}

static void append(void *writer, const void *data, size_t size) {
    bag_writer_append((bag_writer *)writer, data, size, NULL, NULL);
}

static void finish(void *writer) {
    if (bag_writer_close((bag_writer *)writer, &err))
        die("%s", err.message);
}

static bag_handle *handle_of(bag_reader *reader) {
    bag_handle *h = (bag_handle *)need_memory(sizeof *h);
    memset(h, 0, sizeof *h);
    h->reader = reader;
    return h;
}

static void *open_with(const char *path, const bag_reader_options *options) {
    bag_reader *reader = bag_reader_open(path, options, &err);
    if (!reader)
        die("%s", err.message);
    return handle_of(reader);
}

static void *open_mapped(const char *path, const workload *load) {
    (void)load;
    return open_with(path, NULL);
}

static void *open_random(const char *path, const workload *load) {
    bag_reader_options options;
    (void)load;
    memset(&options, 0, sizeof options);
    options.no_read_ahead = true;
    return open_with(path, &options);
}

static void *open_no_mmap(const char *path, const workload *load) {
    bag_reader_options options;
    (void)load;
    memset(&options, 0, sizeof options);
    options.no_mmap = true;
    options.cache_index = true;
    return open_with(path, &options);
}

static void *open_checked(const char *path, const workload *load) {
    bag_reader_options options;
    (void)load;
    memset(&options, 0, sizeof options);
    options.verify_checksums = true;
    return open_with(path, &options);
}

static bags_view get(void *reader, uint64_t index) {
    bag_handle *h = (bag_handle *)reader;
    bags_view blob;
    if (bag_reader_get(h->reader, index, &h->scratch, &blob, &err))
        die("%s", err.message);
    return blob;
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    bag_handle *h = (bag_handle *)reader;
    bag_blobs blobs;
    uint64_t sum = 0;
    if (bag_reader_get_range(h->reader, start, stop, &h->scratch, &blobs, &err))
        die("%s", err.message);
    for (size_t i = 0; i < blobs.length; i++) {
        bags_view blob = bag_blobs_get(&blobs, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

/* As many blobs at once as lie in about 64 KiB. */
static uint64_t scan(void *reader) {
    bag_handle *h = (bag_handle *)reader;
    uint64_t length = bag_reader_length(h->reader), sum = 0;
    uint64_t many = 1 + 65536 * length / (bag_reader_size(h->reader) + 1);
    for (uint64_t i = 0; i < length; i += many)
        sum += range(h, i, i + many < length ? i + many : length);
    return sum;
}

static void *share(void *reader) { return handle_of(((bag_handle *)reader)->reader); }

static void unshare(void *shared) {
    bag_handle *h = (bag_handle *)shared;
    bags_buffer_free(&h->scratch);
    free(h);
}

static void release(void *reader) {
    bag_reader_close(((bag_handle *)reader)->reader);
    unshare(reader);
}

const peer peer_bag = {"bags.h Bag", NULL, NULL, NULL, 0, create, append, finish,
    open_mapped, get, NULL, range, scan, NULL, share, unshare, release};

const peer peer_bag_random = {"bags.h Bag, random", NULL, "bags.h Bag", NULL, 0, NULL,
    NULL, NULL, open_random, get, NULL, range, scan, NULL, share, unshare, release};

const peer peer_bag_no_mmap = {"bags.h Bag, no mmap", NULL, "bags.h Bag", NULL, 0, NULL,
    NULL, NULL, open_no_mmap, get, NULL, range, scan, NULL, share, unshare, release};

const peer peer_bag_summed = {"bags.h Bag, checksums", NULL, NULL, NULL, 0,
    create_summed, append, finish, open_checked, get, NULL, range, scan, NULL, share,
    unshare, release};
