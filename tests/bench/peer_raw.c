/* The bare file: one write() a blob, small ones gathered as stdio would; read
 * by pread() at a place that is computed. The least that a program can ask of
 * the system. */
#include "peers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define GATHER 65536

typedef struct raw {
    int file;
    size_t size, used;
    bool sync;
    unsigned char *buffer;
} raw;

static raw *raw_open(const char *path, int flags, size_t size, size_t room) {
    raw *r = (raw *)need_memory(sizeof *r);
    r->file = need_open(path, flags);
    r->size = size;
    r->used = 0;
    r->sync = false;
    r->buffer = (unsigned char *)need_memory(room);
    return r;
}

static void *create(const char *path, const workload *load, bool sync) {
    raw *r = raw_open(path, O_CREAT | O_EXCL | O_WRONLY, load->size, GATHER);
    r->sync = sync;
    return r;
}

static void flush(raw *r) {
    need_write(r->file, r->buffer, r->used);
    r->used = 0;
}

static void append(void *writer, const void *data, size_t size) {
    raw *r = (raw *)writer;
    if (size >= 4096) {
        need_write(r->file, data, size);
        return;
    }
    if (r->used + size > GATHER)
        flush(r);
    memcpy(r->buffer + r->used, data, size);
    r->used += size;
}

static void release(void *reader) {
    raw *r = (raw *)reader;
    close(r->file);
    free(r->buffer);
    free(r);
}

static void finish(void *writer) {
    raw *r = (raw *)writer;
    flush(r);
    if (r->sync && fsync(r->file))
        die("fsync");
    release(r);
}

static void *open_reader(const char *path, const workload *load) {
    raw *r = raw_open(path, O_RDONLY, load->size, load->size);
    posix_fadvise(r->file, 0, 0, POSIX_FADV_RANDOM);
    return r;
}

static void copy(void *reader, uint64_t index, unsigned char *to) {
    raw *r = (raw *)reader;
    need_read(r->file, to, r->size, index * r->size);
}

static bags_view get(void *reader, uint64_t index) {
    raw *r = (raw *)reader;
    bags_view blob = {r->buffer, r->size};
    copy(r, index, r->buffer);
    return blob;
}

static uint64_t scan(void *reader) {
    raw *r = (raw *)reader;
    uint64_t sum = 0;
    size_t many = r->size < 4096 ? GATHER / r->size : 1, got;
    unsigned char *room = (unsigned char *)need_memory(many * r->size);
    posix_fadvise(r->file, 0, 0, POSIX_FADV_SEQUENTIAL);
    lseek(r->file, 0, SEEK_SET);
    do {
        ssize_t done = read(r->file, room, many * r->size);
        got = done > 0 ? (size_t)done / r->size : 0;
        for (size_t i = 0; i < got; i++)
            sum += consume(room + i * r->size, r->size);
    } while (got);
    posix_fadvise(r->file, 0, 0, POSIX_FADV_RANDOM);
    free(room);
    return sum;
}

static void *share(void *reader) {
    const raw *r = (const raw *)reader;
    raw *shared = (raw *)need_memory(sizeof *shared);
    *shared = *r;
    shared->file = dup(r->file);
    shared->buffer = (unsigned char *)need_memory(r->size);
    return shared;
}

const peer peer_raw = {"write(), pread()", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, get, copy, NULL, scan, NULL, share, release, release};
