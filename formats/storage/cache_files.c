/*
 * cache_files.c - the directory of a cache: its files (see cache.c) and their eviction.
 */
#include "cache_files.h"

#ifndef _WIN32

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CACHE_NAME "bags-cache-1"
#define CACHE_TAG                                                                      \
    "Signature: 8a477f597d28d172789f06886806bc55\n"                                    \
    "# This directory was made by bags. bags deletes files in it.\n"

bool bagi_cache_is_off(cache_files *files) {
    pthread_mutex_lock(&files->mutex);
    bool off = files->off;
    pthread_mutex_unlock(&files->mutex);
    return off;
}

void bagi_cache_give_up(cache_files *files, int error) {
    char message[512];
    if (!error || error == CACHE_LARGE)
        return;
    pthread_mutex_lock(&files->mutex);
    bool first = !files->off;
    files->off = true;
    pthread_mutex_unlock(&files->mutex);
    if (!first || !files->warn)
        return;
    (void)snprintf(message, sizeof message,
        "%s: the cache cannot be written: %s; reading continues without it",
        bags_path_tail(files->path), strerror(error));
    files->warn(files->user, message);
}

int bagi_cache_write(int file, const void *data, size_t size, uint64_t at) {
    const unsigned char *from = (const unsigned char *)data;
    while (size > 0) {
        ssize_t done = pwrite(file, from, size, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done ? errno : ENOSPC;
        from += done;
        size -= (size_t)done;
        at += (uint64_t)done;
    }
    return 0;
}

size_t bagi_cache_read(int file, void *data, size_t size, uint64_t at) {
    size_t used = 0;
    while (used < size) {
        ssize_t done =
            pread(file, (unsigned char *)data + used, size - used, (off_t)(at + used));
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        used += (size_t)done;
    }
    return used;
}

/* True for the names of segments, answers and temporary files. */
static bool cache_is_own(const char *name) {
    size_t digits = strspn(name, "0123456789abcdef");
    return digits == 16 && name[16] == '-' &&
           !name[17 + strspn(name + 17, "0123456789-.answertmp")];
}

typedef struct cache_entry {
    char name[64];
    struct timespec when;
    uint64_t size;
} cache_entry;

static int cache_entry_order(const void *a, const void *b) {
    const cache_entry *x = (const cache_entry *)a, *y = (const cache_entry *)b;
    if (x->when.tv_sec != y->when.tv_sec)
        return x->when.tv_sec < y->when.tv_sec ? -1 : 1;
    return (x->when.tv_nsec > y->when.tv_nsec) - (x->when.tv_nsec < y->when.tv_nsec);
}

static DIR *cache_list_files(int directory) {
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *all = copy >= 0 ? fdopendir(copy) : NULL;
    if (!all && copy >= 0)
        close(copy);
    return all;
}

int bagi_cache_open_file(const cache_files *files, const char *name) {
    return openat(files->directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

/* Add up the sizes of all files, and delete the least recently used ones until at most
 * `most` bytes remain. Returns the remaining bytes. Deleted files are also truncated,
 * so that a file another process has open frees its space at once. */
static uint64_t cache_evict(const cache_files *files, uint64_t most) {
    DIR *all = cache_list_files(files->directory);
    cache_entry *entries = NULL;
    size_t count = 0;
    uint64_t total = 0;
    bags_buffer memory = bags_buffer_of(NULL);
    for (struct dirent *one; all && (one = readdir(all)) != NULL;) {
        struct stat about;
        if (!cache_is_own(one->d_name) || strlen(one->d_name) >= sizeof entries->name ||
            fstatat(files->directory, one->d_name, &about, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(about.st_mode) ||
            bags_buffer_reserve(&memory, (count + 1) * sizeof *entries, NULL))
            continue;
        entries = (cache_entry *)(void *)memory.data;
        memcpy(entries[count].name, one->d_name, strlen(one->d_name) + 1);
        entries[count].when = about.st_mtim;
        entries[count].size = (uint64_t)about.st_blocks * 512;
        total += entries[count++].size;
    }
    if (all)
        closedir(all);
    if (total > most)
        qsort(entries, count, sizeof *entries, cache_entry_order);
    for (size_t i = 0; i < count && total > most; i++) {
        int file = bagi_cache_open_file(files, entries[i].name);
        if (!unlinkat(files->directory, entries[i].name, 0)) {
            total -= entries[i].size;
            if (file >= 0 && ftruncate(file, 0))
                total += 0; /* its space is freed when it is closed */
        }
        if (file >= 0)
            close(file);
    }
    bags_buffer_free(&memory);
    return total;
}

/* The file `usage` holds a number and its complement. If it is damaged, all files are
 * counted again. */
int bagi_cache_reserve(cache_files *files, uint64_t bytes, bool again) {
    unsigned char found[16];
    int error = 0;
    if (bytes > files->size)
        return CACHE_LARGE;
    pthread_mutex_lock(&files->counting);
    while (flock(files->usage, LOCK_EX) && errno == EINTR)
        ;
    uint64_t total = 0;
    bool valid = !again && bagi_cache_read(files->usage, found, 16, 0) == 16 &&
                 cache_get(found) == ~cache_get(found + 8);
    if (valid)
        total = cache_get(found);
    else
        total = cache_evict(files, UINT64_MAX);
    if (total + bytes > files->size)
        total = cache_evict(files, files->size - files->size / 8 < bytes
                                       ? 0
                                       : files->size - files->size / 8 - bytes);
    cache_put(found, total + bytes);
    cache_put(found + 8, ~(total + bytes));
    error = bagi_cache_write(files->usage, found, 16, 0);
    (void)flock(files->usage, LOCK_UN);
    pthread_mutex_unlock(&files->counting);
    return error;
}

int bagi_cache_create(
    cache_files *files, const char *name, const void *data, size_t size, bool replace) {
    char other[96];
    pthread_mutex_lock(&files->mutex);
    unsigned number = files->temporary++;
    pthread_mutex_unlock(&files->mutex);
    (void)snprintf(
        other, sizeof other, "%.48s.%ld.%u.tmp", name, (long)getpid(), number);
    int file = openat(files->directory, other,
        O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = file < 0 ? errno : bagi_cache_write(file, data, size, 0);
    if (file >= 0 && close(file) && !error)
        error = errno;
    if (!error && replace) {
        error = renameat(files->directory, other, files->directory, name) ? errno : 0;
    } else if (!error && linkat(files->directory, other, files->directory, name, 0) &&
               errno != EEXIST && errno != ENOENT) { /* the file system has no links */
        error = renameat(files->directory, other, files->directory, name) ? errno : 0;
    }
    if (file >= 0)
        (void)unlinkat(files->directory, other, 0);
    return file >= 0 && error == ENOENT ? 0 : error;
}

/* ---- the directory ---- */

/* Check the mark in the cache's directory, and write it if the directory is empty (just
 * created). Returns an errno: EPERM for any other directory. */
static int cache_mark(int directory) {
    static const char tag[] = CACHE_TAG; /* tells backup programs to skip the
                                            directory */
    struct stat about;
    if (!fstatat(directory, "CACHEDIR.TAG", &about, AT_SYMLINK_NOFOLLOW))
        return 0;
    DIR *all = cache_list_files(directory);
    bool empty = all != NULL;
    for (struct dirent *one; empty && (one = readdir(all)) != NULL;)
        empty = !strcmp(one->d_name, ".") || !strcmp(one->d_name, "..");
    if (all)
        closedir(all);
    if (!empty)
        return EPERM;
    int file = openat(
        directory, "CACHEDIR.TAG", O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = file < 0 ? errno : bagi_cache_write(file, tag, sizeof tag - 1, 0);
    if (file >= 0)
        close(file);
    return error;
}

/* Returns the directory, or -1 with *error set. */
static int cache_make_directory(const char *path, int *error) {
    size_t size = strlen(path) + sizeof "/" CACHE_NAME;
    char *inside = (char *)malloc(size);
    *error = ENOMEM;
    if (!inside)
        return -1;
    (void)snprintf(inside, size, "%s/" CACHE_NAME, path);
    *error = mkdir(path, 0777) && errno != EEXIST ? errno : 0;
    if (mkdir(inside, 0700) && errno != EEXIST)
        *error = *error ? *error : errno;
    int directory = open(inside, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        *error = *error ? *error : errno;
    free(inside);
    return directory;
}

/* Open the cache's directory and its files. */
static int cache_open_directory(cache_files *files, const char **why) {
    struct stat about;
    int error = 0;
    int directory = files->directory = cache_make_directory(files->path, &error);
    if (directory < 0)
        return error;
    if (fstat(directory, &about) || (about.st_uid != geteuid() && about.st_uid != 0) ||
        (about.st_mode & (S_IWGRP | S_IWOTH))) {
        *why = "its directory " CACHE_NAME
               " belongs to another user, or others may write to it";
        return EPERM;
    }
    error = cache_mark(directory);
    if (error == EPERM) /* or another process is marking it */
        error = cache_mark(directory);
    if (error == EPERM)
        *why = "its directory " CACHE_NAME " was not made by this program";
    if (error)
        return error;
    files->usage =
        openat(directory, "usage", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return files->usage < 0 ? errno : bagi_cache_reserve(files, 0, true);
}

int bagi_cache_files_open(cache_files *files, const bags_cache_options *options,
    const char *path, const char **why) {
    size_t size = strlen(path) + 1;
    *why = NULL;
    files->size = options->size;
    files->warn = options->warn;
    files->user = options->user;
    files->directory = files->usage = -1;
    pthread_mutex_init(&files->mutex, NULL);
    pthread_mutex_init(&files->counting, NULL);
    files->path = (char *)malloc(size);
    if (!files->path)
        return ENOMEM;
    memcpy(files->path, path, size);
    return cache_open_directory(files, why);
}

void bagi_cache_files_close(cache_files *files) {
    if (files->directory >= 0)
        close(files->directory);
    if (files->usage >= 0)
        close(files->usage);
    pthread_mutex_destroy(&files->mutex);
    pthread_mutex_destroy(&files->counting);
    free(files->path);
}

#endif /* not Windows */
