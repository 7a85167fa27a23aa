/* HDF5, as fast as it goes: one contiguous dataset of N x SIZE bytes, written
 * in pieces of a MiB, read by hyperslabs. */
#include "peers.h"

#ifndef BENCH_WITH_HDF5
const peer peer_hdf5 = {.name = "HDF5", .lacking = "libhdf5-dev"};
#else

#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

typedef struct store {
    hid_t file, set, space;
    hsize_t count, size;
    hsize_t at;        /* blobs in the file */
    size_t held, room; /* blobs in the buffer, and at most */
    unsigned char *buffer;
    bool sync;
    char path[4096];
} store;

static hid_t must(hid_t result, const char *what) {
    if (result < 0)
        die("HDF5: %s", what);
    return result;
}

static store *store_of(const char *path, const workload *load) {
    store *s = (store *)need_memory(sizeof *s);
    memset(s, 0, sizeof *s);
    snprintf(s->path, sizeof s->path, "%s", path);
    s->count = load->count;
    s->size = load->size;
    s->room = 1 + PIECE / load->size;
    s->buffer = (unsigned char *)need_memory(s->room * load->size);
    return s;
}

static void *create(const char *path, const workload *load, bool sync) {
    store *s = store_of(path, load);
    hsize_t dims[2] = {s->count, s->size};
    s->sync = sync;
    s->file = must(H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT), "create");
    s->space = must(H5Screate_simple(2, dims, NULL), "dataspace");
    s->set = must(H5Dcreate2(s->file, "blobs", H5T_STD_U8LE, s->space, H5P_DEFAULT,
                      H5P_DEFAULT, H5P_DEFAULT),
        "dataset");
    return s;
}

/* Select `count` blobs from `start` in the file; the space of as many bytes in
 * memory, to be closed. */
static hid_t select_blobs(const store *s, hsize_t start, hsize_t count) {
    hsize_t from[2] = {start, 0}, many[2] = {count, s->size};
    must(H5Sselect_hyperslab(s->space, H5S_SELECT_SET, from, NULL, many, NULL),
        "hyperslab");
    return must(H5Screate_simple(2, many, NULL), "dataspace");
}

static void flush(store *s) {
    if (s->held == 0)
        return;
    hid_t memory = select_blobs(s, s->at, s->held);
    must(H5Dwrite(s->set, H5T_NATIVE_UCHAR, memory, s->space, H5P_DEFAULT, s->buffer),
        "write");
    H5Sclose(memory);
    s->at += s->held;
    s->held = 0;
}

static void append(void *writer, const void *data, size_t size) {
    store *s = (store *)writer;
    memcpy(s->buffer + s->held * size, data, size);
    if (++s->held == s->room)
        flush(s);
}

static void release(void *reader) {
    store *s = (store *)reader;
    H5Sclose(s->space);
    H5Dclose(s->set);
    must(H5Fclose(s->file), "close");
    free(s->buffer);
    free(s);
}

static void finish(void *writer) {
    store *s = (store *)writer;
    flush(s);
    int file = s->sync ? need_open(s->path, O_RDWR) : -1;
    release(s);
    if (file >= 0 && fsync(file))
        die("fsync");
    if (file >= 0)
        close(file);
}

static void *open_reader(const char *path, const workload *load) {
    store *s = store_of(path, load);
    s->file = must(H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), "open");
    s->set = must(H5Dopen2(s->file, "blobs", H5P_DEFAULT), "dataset");
    s->space = must(H5Dget_space(s->set), "dataspace");
    return s;
}

static void read_blobs(
    const store *s, hsize_t start, hsize_t count, unsigned char *to) {
    hid_t memory = select_blobs(s, start, count);
    must(H5Dread(s->set, H5T_NATIVE_UCHAR, memory, s->space, H5P_DEFAULT, to), "read");
    H5Sclose(memory);
}

static void copy(void *reader, uint64_t index, unsigned char *to) {
    read_blobs((const store *)reader, index, 1, to);
}

static bags_view get(void *reader, uint64_t index) {
    const store *s = (const store *)reader;
    bags_view blob = {s->buffer, (size_t)s->size};
    copy(reader, index, s->buffer);
    return blob;
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    const store *s = (const store *)reader;
    uint64_t sum = 0;
    while (start < stop) {
        uint64_t many = stop - start < s->room ? stop - start : s->room;
        read_blobs(s, start, many, s->buffer);
        for (uint64_t i = 0; i < many; i++)
            sum += consume(s->buffer + i * s->size, (size_t)s->size);
        start += many;
    }
    return sum;
}

static uint64_t scan(void *reader) {
    return range(reader, 0, ((const store *)reader)->count);
}

const peer peer_hdf5 = {"HDF5", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, get, copy, range, scan, NULL, NULL, NULL, release};
#endif
