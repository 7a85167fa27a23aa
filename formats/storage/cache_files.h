/*
 * cache_files.h - a cache's directory: its files and their total size. Programs do not
 * include it.
 */
#ifndef BAGS_FORMATS_CACHE_FILES_H
#define BAGS_FORMATS_CACHE_FILES_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64 /* directory entries may have 64-bit offsets */
#endif
#include "storage.h"

#ifndef _WIN32

#include <pthread.h>

#define CACHE_LARGE (-1) /* not an errno: larger than the cache */

typedef struct cache_files {
    char *path;
    uint64_t size; /* most bytes in the cache */
    void (*warn)(void *user, const char *message);
    void *user;
    int directory; /* -1: not open */
    int usage;
    pthread_mutex_t mutex;    /* guards the last two members */
    pthread_mutex_t counting; /* held by the one thread that locks `usage` */
    bool off;                 /* store nothing more */
    unsigned temporary;       /* counts temporary files */
} cache_files;

static inline void cache_put(unsigned char *to, uint64_t value) {
    bags_store_bytes(to, 8, false, value);
}

static inline uint64_t cache_get(const unsigned char *from) {
    return bags_load_bytes(from, 8, false);
}

/* Open the directory, or create it. Returns an errno; *why gives more detail, or is
 * NULL. The files must be closed even after a failure. */
int bagi_cache_files_open(cache_files *files, const bags_cache_options *options,
    const char *path, const char **why);

void bagi_cache_files_close(cache_files *files);

/* True after a failure: nothing more is stored. */
bool bagi_cache_is_off(cache_files *files);

/* Stop storing after a failure; existing data is still read. 0 and CACHE_LARGE are not
 * failures. */
void bagi_cache_give_up(cache_files *files, int error);

/* Reserve space for bytes about to be written, deleting old files first if the cache
 * would grow too large. With `again`, count all files anew. Returns an errno or
 * CACHE_LARGE. */
int bagi_cache_reserve(cache_files *files, uint64_t bytes, bool again);

/* Write a file under a temporary name, and rename it once complete. `replace`:
 * overwrite an existing file. Returns an errno; also 0 if another process was faster,
 * or deleted the file. */
int bagi_cache_create(
    cache_files *files, const char *name, const void *data, size_t size, bool replace);

/* Open a file for reading and writing. Returns -1 on failure. */
int bagi_cache_open_file(const cache_files *files, const char *name);

/* Write all bytes. Returns an errno. */
int bagi_cache_write(int file, const void *data, size_t size, uint64_t at);

/* Returns the number of bytes read: short only at the end of the file or after a
 * failure. */
size_t bagi_cache_read(int file, void *data, size_t size, uint64_t at);

#endif /* not Windows */

#endif /* BAGS_FORMATS_CACHE_FILES_H */
