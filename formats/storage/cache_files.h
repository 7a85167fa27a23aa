/*
 * cache_files.h - the directory of a cache: its files, and how many bytes they have. Programs
 * do not include it.
 */
#ifndef BAGS_FORMATS_CACHE_FILES_H
#define BAGS_FORMATS_CACHE_FILES_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64 /* names in a directory may have offsets of 64 bits */
#endif
#include "storage.h"

#ifndef _WIN32

#include <pthread.h>

#define CACHE_LARGE (-1) /* no errno: larger than the cache */

typedef struct cache_files {
    char *path;
    uint64_t size; /* bytes, at most */
    void (*warn)(void *user, const char *message);
    void *user;
    int directory; /* -1: it is not open */
    int usage;
    pthread_mutex_t mutex;    /* of the last two members */
    pthread_mutex_t counting; /* one thread at a time locks `usage` */
    bool off;                 /* nothing more is stored */
    unsigned temporary;       /* counts temporary files */
} cache_files;

static inline void cache_put(unsigned char *to, uint64_t value) {
    bags_store_bytes(to, 8, false, value);
}

static inline uint64_t cache_get(const unsigned char *from) {
    return bags_load_bytes(from, 8, false);
}

/* Open the directory, or make it. Returns errno; *why is more than that, or NULL. The files
 * must be closed also after a failure. */
int bagi_cache_files_open(cache_files *files, const bags_cache_options *options,
    const char *path, const char **why);

void bagi_cache_files_close(cache_files *files);

/* True after a failure: nothing more is stored. */
bool bagi_cache_is_off(cache_files *files);

/* After a failure nothing more is stored, and existing data is still read. 0 and
 * CACHE_LARGE are not failures. */
void bagi_cache_give_up(cache_files *files, int error);

/* Count bytes that are going to be written, after others were deleted if they would be
 * too many; with `again`, all files are counted. Returns errno or CACHE_LARGE. */
int bagi_cache_reserve(cache_files *files, uint64_t bytes, bool again);

/* Write a file under a temporary name, and rename it when it is complete. `replace`:
 * replace an existing file. Returns errno; 0 also if another process was faster, or
 * deleted it. */
int bagi_cache_create(
    cache_files *files, const char *name, const void *data, size_t size, bool replace);

/* Open a file to be read and written. Returns -1 if that fails. */
int bagi_cache_open_file(const cache_files *files, const char *name);

/* Write all bytes. Returns errno. */
int bagi_cache_write(int file, const void *data, size_t size, uint64_t at);

/* Read fewer bytes only at the end of the file, or after a failure. */
size_t bagi_cache_read(int file, void *data, size_t size, uint64_t at);

#endif /* not Windows */

#endif /* BAGS_FORMATS_CACHE_FILES_H */
