/* tar: ustar, as WebDataset has it. There is no index in the file: opening
 * walks over all headers and makes one in memory. */
#include "peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK 512
#define GATHER ((size_t)1 << 20)

typedef struct tar {
    int file;
    bool sync;
    uint64_t count;
    size_t used;
    unsigned char *buffer;
    bags_view map;
    uint64_t *starts; /* of the headers; and the end of the last member */
} tar;

static tar *tar_of(void) {
    tar *t = (tar *)need_memory(sizeof *t);
    memset(t, 0, sizeof *t);
    return t;
}

static void *create(const char *path, const workload *load, bool sync) {
    tar *t = tar_of();
    (void)load;
    t->file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    t->sync = sync;
    t->buffer = (unsigned char *)need_memory(GATHER);
    return t;
}

static void put(tar *t, const void *data, size_t size) {
    if (size > GATHER - t->used) {
        need_write(t->file, t->buffer, t->used);
        t->used = 0;
    }
    if (size > GATHER) {
        need_write(t->file, data, size);
        return;
    }
    memcpy(t->buffer + t->used, data, size);
    t->used += size;
}

static void octal(char *to, size_t digits, uint64_t number) {
    while (digits--) {
        to[digits] = (char)('0' + number % 8);
        number /= 8;
    }
}

/* Name, mode, owner, group, size, time, sum, type, and the magic. */
static void fill_header(char *header, uint64_t number, size_t size) {
    unsigned sum = 0;
    memset(header, 0, BLOCK);
    memcpy(header, "blobs/", 6);
    octal(header + 6, 16, number);
    octal(header + 100, 7, 0644);
    octal(header + 108, 7, 0);
    octal(header + 116, 7, 0);
    octal(header + 124, 11, size);
    octal(header + 136, 11, 0);
    memset(header + 148, ' ', 8);
    header[156] = '0';
    memcpy(header + 257,
        "ustar\0"
        "00",
        8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)header[i];
    octal(header + 148, 6, sum);
    header[154] = 0;
}

static void append(void *writer, const void *data, size_t size) {
    static const char zeros[BLOCK] = {0};
    tar *t = (tar *)writer;
    char header[BLOCK];
    fill_header(header, t->count++, size);
    put(t, header, BLOCK);
    put(t, data, size);
    put(t, zeros, (BLOCK - size % BLOCK) % BLOCK);
}

static void finish(void *writer) {
    static const char end[2 * BLOCK] = {0};
    tar *t = (tar *)writer;
    put(t, end, sizeof end);
    need_write(t->file, t->buffer, t->used);
    if (t->sync && fsync(t->file))
        die("fsync");
    close(t->file);
    free(t->buffer);
    free(t);
}

static size_t size_at(const tar *t, uint64_t header) {
    size_t size = 0;
    for (size_t i = 124; i < 135; i++)
        size = size * 8 + (size_t)(t->map.data[header + i] - '0');
    return size;
}

static void *open_reader(const char *path, const workload *load) {
    tar *t = tar_of();
    uint64_t at = 0;
    t->map = map_file(path);
    t->starts = (uint64_t *)need_memory((size_t)(load->count + 1) * 8);
    while (at + BLOCK <= t->map.size && t->map.data[at] && t->count < load->count) {
        t->starts[t->count++] = at;
        at += BLOCK + (size_at(t, at) + BLOCK - 1) / BLOCK * BLOCK;
    }
    return t;
}

static bags_view get(void *reader, uint64_t index) {
    const tar *t = (const tar *)reader;
    uint64_t start = t->starts[index];
    bags_view blob = {t->map.data + start + BLOCK, size_at(t, start)};
    return blob;
}

static uint64_t scan(void *reader) {
    uint64_t sum = 0, count = ((const tar *)reader)->count;
    for (uint64_t i = 0; i < count; i++) {
        bags_view blob = get(reader, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

static void *share(void *reader) { return reader; }
static void unshare(void *shared) { (void)shared; }

static void release(void *reader) {
    tar *t = (tar *)reader;
    unmap_file(t->map);
    free(t->starts);
    free(t);
}

const peer peer_tar = {"tar", NULL, NULL, NULL, 0, create, append, finish, open_reader,
    get, NULL, NULL, scan, NULL, share, unshare, release};
