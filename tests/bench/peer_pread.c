/* Files of bags.h read by hand: pread() of the bytes that a blob needs and of nothing
 * else. A Bag: two entries of the table, the blob. A dataset: the same of refs.bag
 * and of the field. The files have one blob per datapoint, so the references are read
 * and not followed. Little-endian machines only. */
#include "peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct by_hand {
    int count; /* files */
    int file[2];
    uint64_t table[2];
    size_t room;
    unsigned char *buffer;
} by_hand;

static by_hand *open_files(const char *const *paths, int count, const workload *load) {
    by_hand *h = (by_hand *)need_memory(sizeof *h);
    h->count = count;
    h->room = load->size < 64 ? 64 : load->size;
    h->buffer = (unsigned char *)need_memory(h->room);
    for (int i = 0; i < count; i++) {
        h->file[i] = need_open(paths[i], O_RDONLY);
        posix_fadvise(h->file[i], 0, 0, POSIX_FADV_RANDOM);
        off_t end = lseek(h->file[i], 0, SEEK_END);
        need_read(h->file[i], &h->table[i], 8, (uint64_t)end - 8);
    }
    return h;
}

static void *open_bag(const char *path, const workload *load) {
    return open_files(&path, 1, load);
}

static void *open_dataset(const char *path, const workload *load) {
    char names[2][4096];
    const char *const paths[2] = {names[0], names[1]};
    snprintf(names[0], sizeof names[0], "%s/refs.bag", path);
    snprintf(names[1], sizeof names[1], "%s/blob.bag", path);
    return open_files(paths, 2, load);
}

static bags_view get(void *reader, uint64_t index) {
    by_hand *h = (by_hand *)reader;
    bags_view blob = {h->buffer, 0};
    for (int i = 0; i < h->count; i++) {
        uint64_t ends[2];
        need_read(h->file[i], ends, sizeof ends, h->table[i] + 8 * index);
        blob.size = (size_t)(ends[1] - ends[0]);
        if (blob.size > h->room)
            die("blob %llu", (unsigned long long)index);
        need_read(h->file[i], h->buffer, blob.size, ends[0]);
    }
    return blob;
}

static void release(void *reader) {
    by_hand *h = (by_hand *)reader;
    for (int i = 0; i < h->count; i++)
        close(h->file[i]);
    free(h->buffer);
    free(h);
}

const peer peer_pread_bag = {.name = "pread, Bag",
    .reads = "bags.h Bag",
    .open = open_bag,
    .get = get,
    .close = release};

const peer peer_pread_dataset = {.name = "pread, dataset",
    .reads = "bags.h dataset",
    .open = open_dataset,
    .get = get,
    .close = release};
