/* Clocks, files, memory, and the blobs that are written. */
#define _XOPEN_SOURCE 700 /* nftw */
#define _DEFAULT_SOURCE 1 /* mincore */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

volatile uint64_t sink;

void die(const char *format, ...) {
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("benchmark: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

double wall_time(void) { return seconds(CLOCK_MONOTONIC); }
double cpu_time(void) { return seconds(CLOCK_THREAD_CPUTIME_ID); }

double busy_at_most(void) {
    static double most;
    double now = 0;
    if (getloadavg(&now, 1) == 1 && now > most)
        most = now;
    return most;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(const double *values, size_t count) {
    double sorted[128];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, by_value);
    return count % 2 ? sorted[count / 2]
                     : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* -------------------------------------------------------------------- blobs */

#define POOL ((uint64_t)2 << 20)
#define LARGEST ((size_t)1 << 20)

static uint64_t next_word(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* All blobs are parts of one block of random bytes, each a little behind the
 * one before, so that reading them costs a writer little. The steps count 13
 * words, which is odd: no two of 2^18 neighbours begin alike. */
const unsigned char *blob_data(uint64_t i) {
    static unsigned char *pool;
    if (!pool) {
        uint64_t state = 88172645463325252u;
        pool = (unsigned char *)need_memory((size_t)POOL + LARGEST);
        for (size_t at = 0; at < POOL + LARGEST; at += 8) {
            uint64_t word = next_word(&state);
            memcpy(pool + at, &word, 8);
        }
    }
    return pool + (i * 8 * 13) % POOL;
}

uint64_t blob_sum(uint64_t start, uint64_t stop, size_t size) {
    uint64_t sum = 0;
    for (uint64_t i = start; i < stop; i++)
        sum += consume(blob_data(i), size);
    return sum;
}

const uint64_t *random_order(uint64_t count) {
    static uint64_t *order, length;
    if (length == count)
        return order;
    uint64_t state = 1181783497276652981u;
    free(order);
    order = (uint64_t *)need_memory((size_t)count * sizeof *order);
    length = count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t j = next_word(&state) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

/* ------------------------------------------------------------------- memory */

void *need_memory(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory)
        die("%zu bytes of memory", size);
    return memory;
}

void warm_memory(uint64_t size) {
    static const char zeros[POOL] = {0};
    if (set.small)
        return;
    FILE *file = fopen(place("warm", "file"), "wb");
    if (!file)
        die("a file in %s", set.folder);
    setvbuf(file, NULL, _IONBF, 0);
    for (uint64_t done = 0; done < size + POOL; done += POOL)
        if (fwrite(zeros, POOL, 1, file) != 1)
            die("%llu bytes in %s", (unsigned long long)size, set.folder);
    fclose(file);
    remove_place("warm");
}

/* A number of kilobytes in one of the system's lists, as bytes. */
static uint64_t bytes_in(const char *list, const char *key) {
    char line[256];
    unsigned long long kilobytes = 0;
    size_t length = strlen(key);
    FILE *file = fopen(list, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && line[length] == ':')
            kilobytes = strtoull(line + length + 1, NULL, 10);
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

uint64_t memory_used(const char *key) { return bytes_in("/proc/self/status", key); }

uint64_t memory_available(void) { return bytes_in("/proc/meminfo", "MemAvailable"); }

/* -------------------------------------------------------------------- files */

int need_open(const char *path, int flags) {
    int file = open(path, flags | O_CLOEXEC, 0644);
    if (file < 0)
        die("%s", path);
    return file;
}

void need_write(int file, const void *data, size_t size) {
    const char *from = (const char *)data;
    while (size) {
        ssize_t done = write(file, from, size);
        if (done <= 0)
            die("write");
        from += done;
        size -= (size_t)done;
    }
}

void need_read(int file, void *data, size_t size, uint64_t offset) {
    char *to = (char *)data;
    while (size) {
        ssize_t done = pread(file, to, size, (off_t)offset);
        if (done <= 0)
            die("read");
        to += done;
        offset += (uint64_t)done;
        size -= (size_t)done;
    }
}

bags_view map_file(const char *path) {
    bags_view map;
    struct stat info;
    int file = need_open(path, O_RDONLY);
    if (fstat(file, &info))
        die("%s", path);
    map.size = (size_t)info.st_size;
    void *data = mmap(NULL, map.size, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        die("%s: map", path);
    map.data = (const unsigned char *)data;
    close(file);
    return map;
}

void unmap_file(bags_view map) { munmap((void *)(uintptr_t)map.data, map.size); }

const char *place(const char *name, const char *file) {
    static char paths[16][4096];
    static size_t turn;
    char *path = paths[turn++ % 16];
    int length = snprintf(path, 4096, "%s/%s", set.folder, name);
    for (char *c = path + strlen(set.folder) + 1; *c; c++)
        if (*c == ' ' || *c == ',' || *c == '(' || *c == ')')
            *c = '-';
    mkdir(set.folder, 0755);
    if (file[0]) {
        mkdir(path, 0755);
        snprintf(path + length, 4096 - (size_t)length, "/%s", file);
    }
    return path;
}

static int remove_one(
    const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void remove_place(const char *name) {
    if (nftw(place(name, ""), remove_one, 32, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        die("%s: remove", name);
}

static tree_size found;

static int add_one(
    const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)path, (void)where;
    if (kind == FTW_F) {
        found.bytes += (uint64_t)info->st_size;
        found.allocated += (uint64_t)info->st_blocks * 512;
    }
    return 0;
}

tree_size measure_place(const char *name) {
    memset(&found, 0, sizeof found);
    nftw(place(name, ""), add_one, 32, FTW_PHYS);
    return found;
}

static uint64_t cold_size;
static bool all_cold;

/* Whether hardly a page of a file's beginning is in memory. */
static bool is_cold(const char *path, size_t size) {
    bags_view map = map_file(path);
    size_t pages = size / 4096, resident = 0;
    unsigned char *there = (unsigned char *)need_memory(pages);
    bool known = mincore((void *)(uintptr_t)map.data, pages * 4096, there) == 0;
    for (size_t i = 0; known && i < pages; i++)
        resident += there[i] & 1;
    free(there);
    unmap_file(map);
    return known && resident <= pages / 100;
}

static int cool_one(
    const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)where;
    if (kind != FTW_F || (uint64_t)info->st_size < cold_size / 4)
        return 0;
    uint64_t size =
        (uint64_t)info->st_size < cold_size ? (uint64_t)info->st_size : cold_size;
    int file = need_open(path, O_RDONLY);
    fdatasync(file);
    posix_fadvise(file, 0, (off_t)(size / 4096 * 4096), POSIX_FADV_DONTNEED);
    close(file);
    all_cold = is_cold(path, (size_t)size) && all_cold;
    return 0;
}

bool make_cold(const char *name, uint64_t size) {
    cold_size = size;
    all_cold = true;
    nftw(place(name, ""), cool_one, 32, FTW_PHYS);
    return all_cold;
}
