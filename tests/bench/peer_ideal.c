/* A Bag by hand: what the hardware allows. It checks nothing and trusts the
 * file; writes in pieces of 2 MiB at multiples of 2 MiB, which gives the page
 * cache its largest pages; and holds the table in memory until the end, without
 * a journal. Little-endian machines only. */
#include "peers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE ((size_t)2 << 20)

typedef struct ideal_writer {
    int file;
    bool sync;
    size_t used;
    uint64_t length;
    unsigned char *buffer;
    uint64_t *table;
} ideal_writer;

typedef struct ideal {
    bags_view map;
    const unsigned char *table;
    uint64_t length;
} ideal;

static void *create(const char *path, const workload *load, bool sync) {
    ideal_writer *w = (ideal_writer *)need_memory(sizeof *w);
    w->file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    w->sync = sync;
    w->buffer = (unsigned char *)need_memory(PIECE);
    w->table = (uint64_t *)need_memory((size_t)(load->count + 1) * 8);
    w->table[0] = w->length = w->used = 0;
    return w;
}

static void put(ideal_writer *w, const unsigned char *data, size_t size) {
    while (size) {
        size_t part = size < PIECE - w->used ? size : PIECE - w->used;
        memcpy(w->buffer + w->used, data, part);
        w->used += part;
        data += part;
        size -= part;
        if (w->used == PIECE) {
            need_write(w->file, w->buffer, PIECE);
            w->used = 0;
        }
    }
}

static void append(void *writer, const void *data, size_t size) {
    ideal_writer *w = (ideal_writer *)writer;
    put(w, (const unsigned char *)data, size);
    w->table[w->length + 1] = w->table[w->length] + size;
    w->length++;
}

static void finish(void *writer) {
    ideal_writer *w = (ideal_writer *)writer;
    put(w, (const unsigned char *)w->table, (size_t)(w->length + 1) * 8);
    need_write(w->file, w->buffer, w->used);
    if (w->sync && fsync(w->file))
        die("fsync");
    close(w->file);
    free(w->buffer);
    free(w->table);
    free(w);
}

static void *open_reader(const char *path, const workload *load) {
    ideal *r = (ideal *)need_memory(sizeof *r);
    (void)load;
    r->map = map_file(path);
    uint64_t start = load_word(r->map.data + r->map.size - 8);
    r->table = r->map.data + start;
    r->length = (r->map.size - 8 - start) / 8;
    return r;
}

static inline uint64_t entry(const ideal *r, uint64_t index) {
    return load_word(r->table + index * 8);
}

static inline bags_view blob_of(const ideal *r, uint64_t index) {
    uint64_t start = entry(r, index);
    bags_view blob = {r->map.data + start, (size_t)(entry(r, index + 1) - start)};
    return blob;
}

static bags_view get(void *reader, uint64_t index) {
    return blob_of((const ideal *)reader, index);
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    const ideal *r = (const ideal *)reader;
    uint64_t sum = 0;
    for (uint64_t i = start; i < stop; i++) {
        bags_view blob = blob_of(r, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

static uint64_t scan(void *reader) {
    return range(reader, 0, ((const ideal *)reader)->length);
}

static void *share(void *reader) { return reader; }
static void unshare(void *shared) { (void)shared; }

static void release(void *reader) {
    unmap_file(((ideal *)reader)->map);
    free(reader);
}

const peer peer_ideal = {"ideal Bag", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, get, NULL, range, scan, NULL, share, unshare, release};
