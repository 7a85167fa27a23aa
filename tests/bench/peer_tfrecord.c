/* TFRecord: for each blob its length, a checksum of that, the bytes, and a
 * checksum of them. It can be read from the beginning only. The checksums are
 * CRC-32C, by the processor's instruction where there is one. */
#include "peers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define GATHER ((size_t)1 << 20)

typedef struct record_file {
    int file;
    bool sync;
    size_t used;
    unsigned char *buffer;
    bags_view map;
} record_file;

static uint32_t table[256];

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
        table[i] = c;
    }
}

static uint32_t crc_bytes(uint32_t c, const unsigned char *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        c = c >> 8 ^ table[(c ^ data[i]) & 255];
    return c;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t crc_words(
    uint32_t crc, const unsigned char *data, size_t size) {
    uint64_t c = crc;
    size_t i = 0;
    for (; i + 8 <= size; i += 8)
        c = __builtin_ia32_crc32di(c, load_word(data + i));
    return crc_bytes((uint32_t)c, data + i, size - i);
}

static uint32_t crc_of(const unsigned char *data, size_t size) {
    return ~(__builtin_cpu_supports("sse4.2") ? crc_words(~0u, data, size)
                                              : crc_bytes(~0u, data, size));
}
#else
static uint32_t crc_of(const unsigned char *data, size_t size) {
    return ~crc_bytes(~0u, data, size);
}
#endif

static uint32_t masked(const void *data, size_t size) {
    uint32_t c = crc_of((const unsigned char *)data, size);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static record_file *file_of(void) {
    record_file *r = (record_file *)need_memory(sizeof *r);
    memset(r, 0, sizeof *r);
    make_table();
    return r;
}

static void *create(const char *path, const workload *load, bool sync) {
    record_file *r = file_of();
    (void)load;
    r->file = need_open(path, O_CREAT | O_EXCL | O_WRONLY);
    r->sync = sync;
    r->buffer = (unsigned char *)need_memory(GATHER);
    return r;
}

static void put(record_file *r, const void *data, size_t size) {
    if (size > GATHER - r->used) {
        need_write(r->file, r->buffer, r->used);
        r->used = 0;
    }
    if (size > GATHER) {
        need_write(r->file, data, size);
        return;
    }
    memcpy(r->buffer + r->used, data, size);
    r->used += size;
}

static void append(void *writer, const void *data, size_t size) {
    record_file *r = (record_file *)writer;
    uint64_t length = size;
    uint32_t of_length = masked(&length, 8), of_data = masked(data, size);
    put(r, &length, 8);
    put(r, &of_length, 4);
    put(r, data, size);
    put(r, &of_data, 4);
}

static void finish(void *writer) {
    record_file *r = (record_file *)writer;
    need_write(r->file, r->buffer, r->used);
    if (r->sync && fsync(r->file))
        die("fsync");
    close(r->file);
    free(r->buffer);
    free(r);
}

static void *open_reader(const char *path, const workload *load) {
    record_file *r = file_of();
    (void)load;
    r->map = map_file(path);
    return r;
}

static void check(const unsigned char *data, size_t size) {
    uint32_t stored;
    memcpy(&stored, data + size, 4);
    if (stored != masked(data, size))
        die("TFRecord: a checksum is wrong");
}

static uint64_t scan(void *reader) {
    bags_view map = ((record_file *)reader)->map;
    uint64_t sum = 0;
    for (size_t at = 0; at < map.size;) {
        size_t size = (size_t)load_word(map.data + at);
        check(map.data + at, 8);
        check(map.data + at + 12, size);
        sum += consume(map.data + at + 12, size);
        at += size + 16;
    }
    return sum;
}

static void release(void *reader) {
    unmap_file(((record_file *)reader)->map);
    free(reader);
}

const peer peer_tfrecord = {"TFRecord", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, NULL, NULL, NULL, scan, NULL, NULL, NULL, release};
