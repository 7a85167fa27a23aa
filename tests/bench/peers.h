/*
 * peers.h - what is measured: a way to write blobs to disk and to read them
 * back, behind one table of functions, one small file for each.
 *
 * All blobs of a workload have one size, which is all that HDF5 and the bare
 * file need to find them; the others make no use of it. A peer that cannot do
 * its work ends the program: see die.
 */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../../bags.h"

typedef struct workload {
    const char *name;
    uint64_t count;
    size_t size;
    uint64_t steps; /* blobs that a random operation reads */
} workload;

typedef struct peer {
    const char *name;
    const char *lacking; /* the package that it needs and has not; NULL: none */
    const char *reads;   /* it reads what this peer wrote; or NULL */
    const char *script;  /* a program that does all of it; or NULL */
    uint64_t most;       /* blobs, where more would take hours; 0: any */

    /* With sync, finish waits until the disk has it. */
    void *(*create)(const char *path, const workload *load, bool sync);
    void (*append)(void *writer, const void *data, size_t size);
    void (*finish)(void *writer);

    void *(*open)(const char *path, const workload *load);
    /* The blob, until the next call. NULL: it cannot be read by index. */
    bags_view (*get)(void *reader, uint64_t index);
    /* NULL: get, and a copy. */
    void (*copy)(void *reader, uint64_t index, unsigned char *to);
    /* The sum of what consume() says of every blob. NULL: by get. */
    uint64_t (*range)(void *reader, uint64_t start, uint64_t stop);
    uint64_t (*scan)(void *reader);
    /* Have the system read these blobs. NULL: it cannot be told. */
    void (*prefetch)(void *reader, const uint64_t *indices, size_t count);
    /* The same reader for one more thread, and its end. NULL: one thread. */
    void *(*share)(void *reader);
    void (*unshare)(void *shared);
    void (*close)(void *reader);
} peer;

/* In the order in which they are shown; ended by NULL. */
extern const peer *const peers[];

extern const peer peer_raw, peer_ideal, peer_bag, peer_bag_random, peer_bag_no_mmap,
    peer_bag_summed, peer_dataset, peer_shards, peer_lmdb, peer_sqlite, peer_hdf5,
    peer_files, peer_tar, peer_tfrecord, peer_python;

/* Of cold reads only. */
extern const peer peer_pread_bag, peer_pread_dataset, peer_dataset_random,
    peer_dataset_no_mmap, peer_sqlite_no_mmap;

/* Print a message as printf does, with errno's text if there is one; end. */
_Noreturn void die(const char *format, ...) BAGI_PRINTF(1, 2);

void *need_memory(size_t size);
int need_open(const char *path, int flags);
/* All of it, or die. */
void need_write(int file, const void *data, size_t size);
void need_read(int file, void *data, size_t size, uint64_t offset);

/* A whole file, read-only. */
bags_view map_file(const char *path);
void unmap_file(bags_view map);

static inline uint64_t load_word(const unsigned char *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* Have the memory of every cache line of a blob come to the processor, which is
 * the least that a program does that uses it. */
static inline uint64_t consume(const unsigned char *data, size_t size) {
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= size; i += 64)
        sum += load_word(data + i);
    return sum;
}

#endif /* BENCH_PEERS_H */
