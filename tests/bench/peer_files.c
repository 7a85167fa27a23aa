/* A file for every blob, a thousand in a directory. */
#define _GNU_SOURCE 1 /* syncfs */
#include "peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct folder {
    int directory;
    bool sync;
    uint64_t at, count;
    unsigned char *buffer;
    size_t room;
} folder;

static folder *folder_of(const char *path, const workload *load) {
    folder *f = (folder *)need_memory(sizeof *f);
    memset(f, 0, sizeof *f);
    f->directory = need_open(path, O_RDONLY | O_DIRECTORY);
    f->count = load->count;
    f->room = load->size;
    f->buffer = (unsigned char *)need_memory(f->room);
    return f;
}

static int blob_file(const folder *f, uint64_t index, int flags) {
    char name[64];
    snprintf(name, sizeof name, "%06u/%03u", (unsigned)(index / 1000),
        (unsigned)(index % 1000));
    int file = openat(f->directory, name, flags | O_CLOEXEC, 0644);
    if (file < 0)
        die("%s", name);
    return file;
}

static void *create(const char *path, const workload *load, bool sync) {
    if (mkdir(path, 0755))
        die("%s", path);
    folder *f = folder_of(path, load);
    f->sync = sync;
    return f;
}

static void append(void *writer, const void *data, size_t size) {
    folder *f = (folder *)writer;
    if (f->at % 1000 == 0) {
        char name[64];
        snprintf(name, sizeof name, "%06u", (unsigned)(f->at / 1000));
        if (mkdirat(f->directory, name, 0755))
            die("%s", name);
    }
    int file = blob_file(f, f->at++, O_CREAT | O_EXCL | O_WRONLY);
    need_write(file, data, size);
    close(file);
}

static void release(void *reader) {
    folder *f = (folder *)reader;
    close(f->directory);
    free(f->buffer);
    free(f);
}

/* One syncfs() is much faster than an fsync() a file. */
static void finish(void *writer) {
    folder *f = (folder *)writer;
    if (f->sync && syncfs(f->directory))
        die("syncfs");
    release(f);
}

static void *open_reader(const char *path, const workload *load) {
    return folder_of(path, load);
}

static bags_view get(void *reader, uint64_t index) {
    folder *f = (folder *)reader;
    struct stat info;
    int file = blob_file(f, index, O_RDONLY);
    if (fstat(file, &info) || (size_t)info.st_size > f->room)
        die("blob %llu", (unsigned long long)index);
    bags_view blob = {f->buffer, (size_t)info.st_size};
    need_read(file, f->buffer, blob.size, 0);
    close(file);
    return blob;
}

static uint64_t scan(void *reader) {
    uint64_t sum = 0, count = ((folder *)reader)->count;
    for (uint64_t i = 0; i < count; i++) {
        bags_view blob = get(reader, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

const peer peer_files = {"a file each", NULL, NULL, NULL, 10000, create, append, finish,
    open_reader, get, NULL, NULL, scan, NULL, NULL, NULL, release};
