/*
 * cache.c - keeps the bytes read through other hooks in a directory.
 *
 * An object is a path plus its identity (for a server: ETag, Last-Modified, size, query
 * and user). Its bytes are kept in 16 KiB blocks. Neighbouring blocks share a sparse
 * file, a segment, the unit of eviction:
 *
 *     DIRECTORY/bags-cache-1/CACHEDIR.TAG    the directory was made by this file
 *                            usage           bytes of all segments and answers
 *                            HASH-I-S        segment I, of 2^S bytes of data
 *                            HASH-answer     what a server answered to a lookup
 *
 *     segment:  0     8  "BAGSCACH"
 *               8     8  size of the fields up to the path
 *               16   32  identity: device, inode, time, size
 *               48    8  number of the segment
 *               56    8  S
 *               64    8  CRC-32C of all other bytes before the data but the records
 *               72    8 per block: its record
 *               2560     the path, NUL-terminated
 *               4096     data
 *
 * A record holds its block's CRC-32C, and a second CRC-32C computed over the first one
 * and the numbers of the segment and the block. 0 means that the block is missing. The
 * record is written after the block. A block that a crash left incomplete or damaged,
 * or that another process truncated or deleted, is therefore fetched again. All numbers
 * are little-endian.
 *
 * A block that is being fetched is locked: within this process by `busy`, against other
 * processes by a lock on its record. Other readers wait for the block for at most
 * CACHE_PATIENCE seconds, then fetch it themselves.
 */
#include "cache_files.h"

#include "files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_BLOCK ((uint64_t)16 << 10)
#define CACHE_BLOCK_SHIFT 14
#define CACHE_MAX_SHIFT 22 /* of a segment's size */
#define CACHE_MAX_BLOCKS ((size_t)1 << (CACHE_MAX_SHIFT - CACHE_BLOCK_SHIFT))
#define CACHE_HEADER 4096
#define CACHE_RECORDS 72
#define CACHE_PATH (CACHE_RECORDS + 8 * CACHE_MAX_BLOCKS)
#define CACHE_LONGEST (CACHE_HEADER - CACHE_PATH - 1)
#define CACHE_READ ((uint64_t)16 << 20)  /* most bytes one read fetches at once */
#define CACHE_AHEAD ((uint64_t)64 << 20) /* most bytes read in advance at once */
#define CACHE_STEP 16                    /* blocks loaded at once */
#define CACHE_OPEN 256                   /* most open segments */
#define CACHE_BUCKETS 4096
#define CACHE_THREADS 2
#define CACHE_PATIENCE 30.0
#define CACHE_QUEUE 65536
#ifndef _WIN32

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* An open file of the cache's directory. */
typedef struct cache_segment {
    struct cache_segment *newer, *older;
    struct cache_object *object;
    uint64_t number;
    unsigned users;
    int file;
    uint32_t seed; /* for the records: the header's CRC-32C */
    time_t touched;
    uint64_t records[CACHE_MAX_BLOCKS];
    unsigned char busy[CACHE_MAX_BLOCKS]; /* a thread of this process is fetching it */
} cache_segment;

/* One version of the object at a path. It lives until the cache is closed. */
typedef struct cache_object {
    struct cache_object *next; /* in the same hash bucket */
    char *path;
    bags_identity identity;
    uint64_t hash;
    cache_segment **segments; /* NULL: not open */
} cache_object;

/* An open file. */
typedef struct cache_file {
    const struct cache_hooks *hooks;
    cache_object *object; /* NULL: not cached */
    void *inner;
} cache_file;

/* A range announced by the reader. */
typedef struct cache_ahead {
    const cache_file *file;
    uint64_t start, stop;
} cache_ahead;

/* Hooks that wrap other hooks. */
typedef struct cache_hooks {
    struct cache_hooks *next;
    bags_io io;
    const bags_io *inner;
    bags_cache *cache;
} cache_hooks;

struct bags_cache {
    cache_files files;
    unsigned shift;
    bool (*interrupted)(void *user);
    void *interrupted_user;
    pid_t process;
    pthread_mutex_t mutex;  /* guards everything below */
    pthread_cond_t changed; /* work was queued, or reading in advance is done */
    cache_object *objects[CACHE_BUCKETS];
    cache_segment *newest, *oldest;
    size_t open_count;
    cache_hooks *hooks;
    cache_ahead *queue;
    size_t queued, queue_next, active;
    pthread_t threads[CACHE_THREADS];
    size_t thread_count;
    bool stop;
};

/* A block that a call needs and the cache lacks. */
typedef struct cache_block {
    const cache_file *file;
    uint64_t number; /* in the object */
    unsigned char *data;
    size_t size;
    cache_segment *segment;   /* NULL: it cannot be stored */
    const bags_io_read *read; /* the read that fetches it */
    bool claimed, complete;
} cache_block;

/* ---- numbers and text ---- */

static void cache_put_identity(unsigned char *to, const bags_identity *identity) {
    cache_put(to, identity->device);
    cache_put(to + 8, identity->inode);
    cache_put(to + 16, identity->time);
    cache_put(to + 24, identity->size);
}

static double cache_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A hash for file names. It need not be unique, because each file states what it
 * holds. */
static uint64_t cache_hash(const char *path, const bags_identity *identity) {
    unsigned char bytes[32] = {0};
    if (identity)
        cache_put_identity(bytes, identity);
    return format_hash(format_hash(0, path, strlen(path)), bytes, sizeof bytes);
}

static uint64_t cache_record(
    const cache_segment *segment, uint64_t block, const void *data, size_t size) {
    unsigned char bytes[16];
    uint64_t crc = bags_crc32c(0, data, size);
    cache_put(bytes, crc);
    cache_put(bytes + 8, block);
    return crc | (uint64_t)bags_crc32c(segment->seed, bytes, sizeof bytes) << 32;
}

/* ---- files ---- */

/* ---- segments ---- */

static void cache_unlink(bags_cache *cache, cache_segment *segment) {
    *(segment->newer ? &segment->newer->older : &cache->newest) = segment->older;
    *(segment->older ? &segment->older->newer : &cache->oldest) = segment->newer;
}

static void cache_link(bags_cache *cache, cache_segment *segment) {
    segment->newer = NULL;
    segment->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = segment;
    cache->newest = segment;
}

static void cache_segment_free(bags_cache *cache, cache_segment *segment) {
    cache_unlink(cache, segment);
    segment->object->segments[segment->number] = NULL;
    cache->open_count--;
    close(segment->file);
    free(segment);
}

static void cache_segment_name(const bags_cache *cache, const cache_object *object,
    uint64_t number, char out[64]) {
    (void)snprintf(
        out, 64, "%016" PRIx64 "-%" PRIu64 "-%u", object->hash, number, cache->shift);
}

static void cache_header(const bags_cache *cache, const cache_object *object,
    uint64_t number, unsigned char out[CACHE_HEADER]) {
    memset(out, 0, CACHE_HEADER);
    memcpy(out, "BAGSCACH", 8);
    cache_put(out + 8, CACHE_PATH);
    cache_put_identity(out + 16, &object->identity);
    cache_put(out + 48, number);
    cache_put(out + 56, cache->shift);
    memcpy(out + CACHE_PATH, object->path, strlen(object->path));
    cache_put(out + 64, bags_crc32c(0, out, CACHE_HEADER));
}

/* Open a segment's file. True if it belongs to this object. */
static bool cache_segment_open(const bags_cache *cache, const char *name,
    const unsigned char *header, cache_segment *segment) {
    unsigned char found[CACHE_HEADER];
    segment->file = bagi_cache_open_file(&cache->files, name);
    if (segment->file < 0)
        return false;
    if (bagi_cache_read(segment->file, found, CACHE_HEADER, 0) == CACHE_HEADER) {
        for (size_t i = 0; i < CACHE_MAX_BLOCKS; i++)
            segment->records[i] = cache_get(found + CACHE_RECORDS + 8 * i);
        memset(found + CACHE_RECORDS, 0, 8 * CACHE_MAX_BLOCKS);
        if (memcmp(found, header, CACHE_HEADER) == 0)
            return true;
    }
    close(segment->file);
    segment->file = -1;
    errno = EINVAL;
    return false;
}

/* Get a segment and count the caller as a user. NULL if the segment does not exist or,
 * with `create`, cannot be made; *error then says why. The mutex is not held. */
static cache_segment *cache_segment_get(
    bags_cache *cache, cache_object *object, uint64_t number, bool create, int *error) {
    char name[64];
    unsigned char header[CACHE_HEADER];
    *error = 0;
    pthread_mutex_lock(&cache->mutex);
    cache_segment *segment = object->segments[number];
    if (segment) {
        segment->users++;
        cache_unlink(cache, segment);
        cache_link(cache, segment);
    }
    pthread_mutex_unlock(&cache->mutex);
    if (segment)
        return segment;
    cache_segment_name(cache, object, number, name);
    segment = (cache_segment *)calloc(1, sizeof *segment);
    if (!segment)
        return NULL;
    cache_header(cache, object, number, header);
    bool good = cache_segment_open(cache, name, header, segment);
    bool exists = !good && errno != ENOENT;
    if (!good && create && !bagi_cache_is_off(&cache->files)) {
        *error = bagi_cache_reserve(&cache->files, CACHE_HEADER, false);
        if (!*error)
            *error =
                bagi_cache_create(&cache->files, name, header, CACHE_HEADER, exists);
        good = !*error && cache_segment_open(cache, name, header, segment);
    }
    if (!good) {
        free(segment);
        return NULL;
    }
    segment->object = object;
    segment->number = number;
    segment->seed = bags_crc32c(0, header, CACHE_HEADER);
    pthread_mutex_lock(&cache->mutex);
    if (object->segments[number]) { /* another thread was faster */
        close(segment->file);
        free(segment);
        segment = object->segments[number];
    } else {
        object->segments[number] = segment;
        cache_link(cache, segment);
        cache->open_count++;
    }
    segment->users++;
    for (cache_segment *old = cache->oldest, *newer;
         old && cache->open_count > CACHE_OPEN; old = newer) {
        newer = old->newer;
        if (old->users == 0)
            cache_segment_free(cache, old);
    }
    pthread_mutex_unlock(&cache->mutex);
    return segment;
}

static void cache_segment_leave(bags_cache *cache, cache_segment *segment) {
    pthread_mutex_lock(&cache->mutex);
    segment->users--;
    pthread_mutex_unlock(&cache->mutex);
}

/* Mark a segment as used, so that eviction takes others first. */
static void cache_touch(bags_cache *cache, cache_segment *segment) {
    time_t now = time(NULL);
    pthread_mutex_lock(&cache->mutex);
    bool touch = now != segment->touched;
    segment->touched = now;
    pthread_mutex_unlock(&cache->mutex);
    if (touch)
        (void)futimens(segment->file, NULL);
}

static size_t cache_block_size(const cache_object *object, uint64_t block) {
    uint64_t rest = object->identity.size - block * CACHE_BLOCK;
    return (size_t)(rest < CACHE_BLOCK ? rest : CACHE_BLOCK);
}

/* Reread the records of blocks, starting at the segment's block `first`, because
 * another process may have stored missing blocks. */
static size_t cache_find_records(bags_cache *cache, cache_segment *segment,
    uint64_t first, size_t count, uint64_t *out) {
    unsigned char found[8 * CACHE_MAX_BLOCKS];
    size_t known = 0, size = 0;
    for (int attempt = 0; attempt < 2 && known < count; attempt++) {
        if (attempt)
            size = bagi_cache_read(segment->file, found, sizeof found, CACHE_RECORDS);
        pthread_mutex_lock(&cache->mutex);
        for (size_t i = 0; i < size / 8; i++)
            if (!segment->records[i])
                segment->records[i] = cache_get(found + 8 * i);
        for (; known < count && segment->records[first + known]; known++)
            out[known] = segment->records[first + known];
        pthread_mutex_unlock(&cache->mutex);
    }
    return known;
}

/* Load an object's bytes start <= i < stop (all in one segment) up to the first missing
 * or damaged block. Returns where the loaded bytes end. */
static uint64_t cache_load(bags_cache *cache, cache_segment *segment, uint64_t start,
    uint64_t stop, unsigned char *to) {
    uint64_t records[CACHE_STEP], at = start;
    uint64_t base = segment->number << (cache->shift - CACHE_BLOCK_SHIFT);
    uint64_t most = (stop - 1) / CACHE_BLOCK - start / CACHE_BLOCK + 1;
    most = most < CACHE_STEP ? most : CACHE_STEP;
    unsigned char *memory = (unsigned char *)malloc((size_t)(most * CACHE_BLOCK));
    while (memory && at < stop) {
        uint64_t first = at / CACHE_BLOCK, from = first * CACHE_BLOCK;
        size_t count = (size_t)((stop - 1) / CACHE_BLOCK - first + 1), size = 0;
        count = cache_find_records(cache, segment, first - base,
            count < CACHE_STEP ? count : CACHE_STEP, records);
        for (size_t i = 0; i < count; i++)
            size += cache_block_size(segment->object, first + i);
        if (size == 0)
            break;
        /* Blocks that lie entirely within the result are read straight into place. */
        unsigned char *data =
            from == at && from + size <= stop ? to + (at - start) : memory;
        size_t done = bagi_cache_read(
            segment->file, data, size, CACHE_HEADER + (first - base) * CACHE_BLOCK);
        for (size_t i = 0; i < count; i++) {
            size_t offset = i * (size_t)CACHE_BLOCK;
            size_t length = cache_block_size(segment->object, first + i);
            if (offset + length <= done &&
                cache_record(segment, first + i, data + offset, length) == records[i])
                continue;
            pthread_mutex_lock(&cache->mutex);
            if (segment->records[first - base + i] == records[i])
                segment->records[first - base + i] = 0;
            pthread_mutex_unlock(&cache->mutex);
            stop = from + offset;
            break;
        }
        uint64_t until = from + size < stop ? from + size : stop;
        if (until > at && data == memory)
            memcpy(to + (at - start), data + (at - from), (size_t)(until - at));
        at = until > at ? until : at;
    }
    free(memory);
    return at;
}

/* ---- block locks ---- */

/* Lock (F_WRLCK) or unlock (F_UNLCK) the record of a block against other processes;
 * with `ask`, only test whether that is possible. Also true where such locks are not
 * supported. */
static bool cache_lock(
    const cache_segment *segment, uint64_t index, short type, bool ask) {
#ifdef F_OFD_SETLK
    struct flock one;
    memset(&one, 0, sizeof one);
    one.l_type = type;
    one.l_whence = SEEK_SET;
    one.l_start = (off_t)(CACHE_RECORDS + 8 * index);
    one.l_len = 8;
    if (fcntl(segment->file, ask ? F_OFD_GETLK : F_OFD_SETLK, &one))
        return errno != EAGAIN && errno != EACCES;
    return !ask || one.l_type == F_UNLCK;
#else
    (void)segment, (void)index, (void)type, (void)ask;
    return true;
#endif
}

static uint64_t cache_index(const bags_cache *cache, const cache_block *block) {
    return block->number & ((UINT64_C(1) << (cache->shift - CACHE_BLOCK_SHIFT)) - 1);
}

/* Claim a block. True if no other thread or process is fetching it; all others then
 * wait for this thread. */
static bool cache_claim(bags_cache *cache, cache_block *block) {
    uint64_t i = cache_index(cache, block);
    unsigned char *busy = &block->segment->busy[i];
    pthread_mutex_lock(&cache->mutex);
    block->claimed = !*busy && cache_lock(block->segment, i, F_WRLCK, false);
    *busy = *busy || block->claimed;
    pthread_mutex_unlock(&cache->mutex);
    return block->claimed;
}

static void cache_release(bags_cache *cache, cache_block *block) {
    uint64_t i = cache_index(cache, block);
    if (!block->claimed)
        return;
    pthread_mutex_lock(&cache->mutex);
    (void)cache_lock(block->segment, i, F_UNLCK, false);
    block->segment->busy[i] = 0;
    pthread_mutex_unlock(&cache->mutex);
    block->claimed = false;
}

/* ---- missing blocks ---- */

/* Fetch these blocks through the inner hooks, neighbours together. */
static void cache_fetch(const cache_hooks *hooks, cache_block **blocks, size_t count) {
    const bags_io *io = hooks->inner;
    bags_io_read *reads = (bags_io_read *)calloc(count + 1, sizeof *reads),
                 *last = NULL;
    size_t runs = 0;
    if (!reads)
        return;
    for (size_t i = 0; i < count; i++) {
        cache_block *block = blocks[i];
        if (!last || last->file != block->file->inner ||
            last->offset + last->size != block->number * CACHE_BLOCK ||
            (unsigned char *)last->data + last->size != block->data) {
            last = &reads[runs++];
            last->file = block->file->inner;
            last->offset = block->number * CACHE_BLOCK;
            last->data = block->data;
        }
        last->size += block->size;
        block->read = last;
    }
    if (io->read_many)
        io->read_many(io->user, reads, runs);
    for (size_t i = 0; i < runs; i++)
        for (size_t done = 1; done && reads[i].done < reads[i].size;
             reads[i].done += done)
            if (io->read_at(io->user, reads[i].file, reads[i].offset + reads[i].done,
                    (unsigned char *)reads[i].data + reads[i].done,
                    reads[i].size - reads[i].done, &done))
                done = 0;
    for (size_t i = 0; i < count; i++) {
        const bags_io_read *read = blocks[i]->read;
        size_t at = (size_t)(blocks[i]->data - (unsigned char *)read->data);
        blocks[i]->complete = at + blocks[i]->size <= read->done;
    }
    free(reads);
}

/* Store a fetched block. */
static int cache_store(bags_cache *cache, cache_block *block) {
    cache_segment *segment = block->segment;
    uint64_t i = cache_index(cache, block);
    unsigned char bytes[8];
    uint64_t record = cache_record(segment, block->number, block->data, block->size);
    cache_put(bytes, record);
    int error = bagi_cache_write(
        segment->file, block->data, block->size, CACHE_HEADER + i * CACHE_BLOCK);
    if (!error)
        error = bagi_cache_write(segment->file, bytes, 8, CACHE_RECORDS + 8 * i);
    if (error)
        return error;
    pthread_mutex_lock(&cache->mutex);
    segment->records[i] = record;
    pthread_mutex_unlock(&cache->mutex);
    return 0;
}

/* Store the claimed blocks that were fetched, and release them. */
static void cache_store_all(bags_cache *cache, cache_block **blocks, size_t count) {
    uint64_t bytes = 0;
    int error = 0;
    bool off = bagi_cache_is_off(&cache->files);
    /* In a very long list, the last blocks are less useful than what the cache holds
     * already. */
    for (size_t i = 0; i < count && bytes < cache->files.size / 2; i++)
        bytes += blocks[i]->claimed && blocks[i]->complete ? CACHE_BLOCK : 0;
    if (bytes && !off)
        error = bagi_cache_reserve(&cache->files, bytes, false);
    for (size_t i = 0; i < count; i++) {
        bool wanted = bytes && blocks[i]->claimed && blocks[i]->complete;
        if (!error && !off && wanted)
            error = cache_store(cache, blocks[i]);
        bytes -= wanted ? CACHE_BLOCK : 0;
        cache_release(cache, blocks[i]);
    }
    bagi_cache_give_up(&cache->files, error);
}

/* Wait until no other thread or process is fetching this block, or until the time
 * *until. Sets *until to 0 if the caller must stop waiting. */
static void cache_wait(bags_cache *cache, const cache_block *block, double *until) {
    uint64_t i = cache_index(cache, block);
    struct timespec pause = {0, 1000000};
    double due = cache_now() + 0.1;
    for (bool busy = true; busy && cache_now() < *until;) {
        if (cache->interrupted && cache_now() >= due) {
            due = cache_now() + 0.1;
            *until = cache->interrupted(cache->interrupted_user) ? 0 : *until;
        }
        pthread_mutex_lock(&cache->mutex);
        busy = block->segment->busy[i];
        pthread_mutex_unlock(&cache->mutex);
        busy = busy || !cache_lock(block->segment, i, F_WRLCK, true);
        if (busy)
            (void)nanosleep(&pause, NULL);
    }
}

static int cache_block_order(const void *a, const void *b) {
    const cache_block *x = (const cache_block *)a, *y = (const cache_block *)b;
    const cache_file *f = x->file, *g = y->file;
    if (f->hooks != g->hooks)
        return (uintptr_t)f->hooks < (uintptr_t)g->hooks ? -1 : 1;
    if (f->object != g->object)
        return (uintptr_t)f->object < (uintptr_t)g->object ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Find or create the segment for a block: another process has deleted it, or it does
 * not exist yet. */
static void cache_find_segment(
    bags_cache *cache, cache_block *block, cache_segment *former) {
    uint64_t number = block->number >> (cache->shift - CACHE_BLOCK_SHIFT);
    int error = 0;
    if (former && former->object == block->file->object && former->number == number) {
        pthread_mutex_lock(&cache->mutex);
        former->users++;
        pthread_mutex_unlock(&cache->mutex);
        block->segment = former;
        return;
    }
    bool again = true;
    for (int attempt = 0; attempt < 3 && again; attempt++) {
        struct stat about;
        block->segment =
            cache_segment_get(cache, block->file->object, number, true, &error);
        bagi_cache_give_up(&cache->files, error);
        if (!block->segment ||
            (!fstat(block->segment->file, &about) && about.st_nlink > 0))
            return;
        /* The file was deleted, so this process's open file is useless to others.
         * Threads already using it keep it for now. */
        pthread_mutex_lock(&cache->mutex);
        again = --block->segment->users == 0;
        if (again)
            cache_segment_free(cache, block->segment);
        pthread_mutex_unlock(&cache->mutex);
        block->segment = NULL;
    }
}

/* Fetch and store missing blocks. They are sorted and distinct. With `ahead`, skip
 * blocks that others are fetching. */
static void cache_bring(
    bags_cache *cache, cache_block *blocks, size_t count, bool ahead) {
    cache_block **mine = (cache_block **)malloc((count + 1) * sizeof *mine);
    if (!mine)
        return;
    cache_segment *former = NULL;
    for (size_t i = 0; i < count; i++) {
        cache_find_segment(cache, &blocks[i], former);
        former = blocks[i].segment ? blocks[i].segment : former;
    }
    double until = cache_now() + CACHE_PATIENCE;
    for (int round = 0; round < 2; round++) {
        size_t used = 0;
        for (size_t i = 0; i < count; i++) {
            cache_block *block = &blocks[i];
            if (block->complete)
                continue;
            bool claimed = block->segment && round == 0 && cache_claim(cache, block);
            if (block->segment && round == 0 && !claimed)
                continue; /* others are fetching it */
            /* One of the waiting threads fetches the missing blocks. */
            while (block->segment && !claimed && cache_now() < until) {
                cache_wait(cache, block, &until);
                claimed = cache_claim(cache, block);
            }
            uint64_t start = block->number * CACHE_BLOCK, stop = start + block->size;
            if (block->segment &&
                cache_load(cache, block->segment, start, stop, block->data) == stop) {
                block->complete = true; /* stored by another thread or process */
                cache_release(cache, block);
                continue;
            }
            mine[used++] = block;
        }
        for (size_t i = 0, next; i < used; i = next) {
            const cache_hooks *hooks = mine[i]->file->hooks;
            for (next = i + 1; next < used && mine[next]->file->hooks == hooks;)
                next++;
            cache_fetch(hooks, mine + i, next - i);
        }
        cache_store_all(cache, mine, used);
        if (ahead)
            break;
    }
    for (size_t i = 0; i < count; i++)
        if (blocks[i].segment)
            cache_segment_leave(cache, blocks[i].segment);
    free(mine);
}

/* ---- hooks that read ---- */

typedef struct cache_list {
    bags_buffer memory;
    size_t count;
} cache_list;

/* Add the blocks that a range touches. */
static bool cache_list_add(
    cache_list *list, const cache_file *file, uint64_t start, uint64_t stop) {
    uint64_t first = start / CACHE_BLOCK, last = (stop - 1) / CACHE_BLOCK;
    size_t more = (size_t)(last - first + 1);
    if (bags_buffer_reserve(
            &list->memory, (list->count + more) * sizeof(cache_block), NULL))
        return false;
    cache_block *blocks = (cache_block *)(void *)list->memory.data;
    for (uint64_t i = first; i <= last; i++) {
        cache_block *one = &blocks[list->count++];
        memset(one, 0, sizeof *one);
        one->file = file;
        one->number = i;
        one->size = cache_block_size(file->object, i);
    }
    return true;
}

/* Sort, drop duplicates, and allocate one buffer for each run of neighbours. */
static unsigned char *cache_list_prepare(cache_list *list) {
    cache_block *blocks = (cache_block *)(void *)list->memory.data;
    size_t kept = 0;
    if (list->count > 1)
        qsort(blocks, list->count, sizeof *blocks, cache_block_order);
    for (size_t i = 0; i < list->count; i++)
        if (kept == 0 || cache_block_order(&blocks[kept - 1], &blocks[i]) != 0)
            blocks[kept++] = blocks[i];
    list->count = kept;
    unsigned char *data = (unsigned char *)malloc(kept * (size_t)CACHE_BLOCK + 1),
                  *at = data;
    for (size_t i = 0; data && i < kept; at += blocks[i++].size)
        blocks[i].data = at;
    return data;
}

/* Copy the stored bytes at the start of a range. Returns where they end. */
static uint64_t cache_hit(bags_cache *cache, cache_object *object, uint64_t start,
    uint64_t stop, unsigned char *to) {
    uint64_t at = start;
    while (at < stop) {
        int error;
        uint64_t number = at >> cache->shift;
        uint64_t end = (number + 1) << cache->shift;
        end = end < stop ? end : stop;
        cache_segment *segment =
            cache_segment_get(cache, object, number, false, &error);
        if (!segment)
            return at;
        uint64_t loaded = cache_load(cache, segment, at, end, to + (at - start));
        if (loaded > at)
            cache_touch(cache, segment);
        cache_segment_leave(cache, segment);
        if (loaded < end)
            return loaded;
        at = end;
    }
    return at;
}

static void cache_announce(const cache_file *file, uint64_t start, uint64_t stop);

/* A child made by fork() reads without the cache: it lacks the threads, and its mutexes
 * may be locked by threads that only the parent has. */
static bool cache_is_here(const bags_cache *cache) {
    return cache->process == getpid();
}

static void cache_read_many(void *user, bags_io_read *reads, size_t count) {
    const cache_hooks *hooks = (const cache_hooks *)user;
    bags_cache *cache = hooks->cache;
    const bags_io *inner = hooks->inner;
    cache_list list;
    memset(&list, 0, sizeof list);
    for (size_t i = 0; i < count; i++) {
        bags_io_read *read = &reads[i];
        const cache_file *file = (const cache_file *)read->file;
        cache_object *object = cache_is_here(cache) ? file->object : NULL;
        if (!object) {
            if (inner->read_many) {
                bags_io_read one = *read;
                one.file = file->inner;
                inner->read_many(inner->user, &one, 1);
                read->done = one.done;
            }
            continue;
        }
        uint64_t size = object->identity.size;
        if (read->offset >= size || read->size == 0)
            continue;
        uint64_t most = read->size < CACHE_READ ? read->size : CACHE_READ;
        uint64_t stop = size - read->offset < most ? size : read->offset + most;
        if (!read->data) {
            cache_announce(file, read->offset, stop);
            continue;
        }
        uint64_t end =
            cache_hit(cache, object, read->offset, stop, (unsigned char *)read->data);
        read->done = (size_t)(end - read->offset);
        if (end < stop)
            (void)cache_list_add(&list, file, end, stop);
    }
    if (list.count == 0)
        return;
    unsigned char *data = cache_list_prepare(&list);
    cache_block *blocks = (cache_block *)(void *)list.memory.data;
    if (data)
        cache_bring(cache, blocks, list.count, false);
    for (size_t i = 0; data && i < count; i++) {
        bags_io_read *read = &reads[i];
        const cache_file *file = (const cache_file *)read->file;
        if (!file->object || !read->data)
            continue;
        while (read->done < read->size) {
            uint64_t at = read->offset + read->done;
            cache_block key;
            memset(&key, 0, sizeof key);
            key.file = file;
            key.number = at / CACHE_BLOCK;
            const cache_block *found = (const cache_block *)bsearch(
                &key, blocks, list.count, sizeof key, cache_block_order);
            if (!found || !found->complete)
                break;
            size_t skip = (size_t)(at - key.number * CACHE_BLOCK);
            if (skip >= found->size)
                break;
            size_t step = found->size - skip;
            step = step < read->size - read->done ? step : read->size - read->done;
            memcpy((unsigned char *)read->data + read->done, found->data + skip, step);
            read->done += step;
        }
    }
    free(data);
    bags_buffer_free(&list.memory);
}

static int cache_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const cache_hooks *hooks = (const cache_hooks *)user;
    const cache_file *opened = (const cache_file *)file;
    const bags_io *inner = hooks->inner;
    bags_io_read read = {file, offset, data, size, 0};
    if (opened->object && cache_is_here(hooks->cache))
        cache_read_many(user, &read, 1);
    *done = read.done;
    return read.done
               ? 0
               : inner->read_at(inner->user, opened->inner, offset, data, size, done);
}

/* ---- reading in advance ---- */

/* Fetch the announced ranges. */
static void *cache_work(void *user) {
    bags_cache *cache = (bags_cache *)user;
    pthread_mutex_lock(&cache->mutex);
    while (!cache->stop) {
        cache_list list;
        uint64_t bytes = 0;
        memset(&list, 0, sizeof list);
        while (cache->queue_next < cache->queued && bytes < CACHE_AHEAD) {
            cache_ahead *one = &cache->queue[cache->queue_next++];
            bytes += one->stop - one->start + CACHE_BLOCK;
            (void)cache_list_add(&list, one->file, one->start, one->stop);
        }
        if (cache->queue_next == cache->queued)
            cache->queue_next = cache->queued = 0;
        if (list.count == 0) {
            pthread_cond_wait(&cache->changed, &cache->mutex);
            continue;
        }
        cache->active++;
        pthread_mutex_unlock(&cache->mutex);
        unsigned char *data = cache_list_prepare(&list);
        cache_block *blocks = (cache_block *)(void *)list.memory.data;
        size_t kept = 0;
        for (size_t i = 0; data && i < list.count; i++) {
            uint64_t start = blocks[i].number * CACHE_BLOCK;
            uint64_t stop = start + blocks[i].size;
            if (cache_hit(cache, blocks[i].file->object, start, stop, blocks[i].data) <
                stop)
                blocks[kept++] = blocks[i];
        }
        if (data && kept)
            cache_bring(cache, blocks, kept, true);
        free(data);
        bags_buffer_free(&list.memory);
        pthread_mutex_lock(&cache->mutex);
        cache->active--;
        pthread_cond_broadcast(&cache->changed);
    }
    pthread_mutex_unlock(&cache->mutex);
    return NULL;
}

/* True if all blocks of a range are known to be stored. The mutex is held. */
static bool cache_is_known(const bags_cache *cache, const cache_object *object,
    uint64_t start, uint64_t stop) {
    for (uint64_t i = start / CACHE_BLOCK; i <= (stop - 1) / CACHE_BLOCK; i++) {
        unsigned shift = cache->shift - CACHE_BLOCK_SHIFT;
        const cache_segment *segment = object->segments[i >> shift];
        if (!segment || !segment->records[i & ((UINT64_C(1) << shift) - 1)])
            return false;
    }
    return true;
}

static void cache_announce(const cache_file *file, uint64_t start, uint64_t stop) {
    bags_cache *cache = file->hooks->cache;
    cache_ahead one = {file, start, stop};
    if (bagi_cache_is_off(&cache->files))
        return;
    pthread_mutex_lock(&cache->mutex);
    if (!cache_is_known(cache, file->object, start, stop)) {
        while (cache->thread_count < CACHE_THREADS &&
               !pthread_create(
                   &cache->threads[cache->thread_count], NULL, cache_work, cache))
            cache->thread_count++;
        if (!cache->queue)
            cache->queue = (cache_ahead *)malloc(CACHE_QUEUE * sizeof *cache->queue);
        if (cache->queue && cache->thread_count && cache->queued < CACHE_QUEUE)
            cache->queue[cache->queued++] = one;
        pthread_cond_broadcast(&cache->changed);
    }
    pthread_mutex_unlock(&cache->mutex);
}

/* ---- other hooks ---- */

/* Find the object with this identity. NULL: nothing identifies it, so it is not cached
 * (both hashes are equal if a server sends neither ETag nor Last-Modified). */
static cache_object *cache_find(
    bags_cache *cache, const char *path, const bags_identity *identity) {
    if (identity->size == 0 || identity->inode == identity->time ||
        strlen(path) > CACHE_LONGEST)
        return NULL;
    uint64_t hash = cache_hash(path, identity);
    size_t bucket = (size_t)(hash % CACHE_BUCKETS);
    pthread_mutex_lock(&cache->mutex);
    cache_object *object = cache->objects[bucket];
    while (object && (strcmp(object->path, path) != 0 ||
                         !format_is_same(&object->identity, identity)))
        object = object->next;
    if (!object && (object = (cache_object *)calloc(1, sizeof *object)) != NULL) {
        uint64_t segments = ((identity->size - 1) >> cache->shift) + 1;
        size_t size = strlen(path) + 1;
        object->path = (char *)malloc(size);
        if (segments < SIZE_MAX / sizeof *object->segments)
            object->segments =
                (cache_segment **)calloc((size_t)segments, sizeof *object->segments);
        if (object->path && object->segments) {
            memcpy(object->path, path, size);
            object->hash = hash;
            object->identity = *identity;
            object->next = cache->objects[bucket];
            cache->objects[bucket] = object;
        } else {
            free(object->path);
            free(object->segments);
            free(object);
            object = NULL;
        }
    }
    pthread_mutex_unlock(&cache->mutex);
    return object;
}

static int cache_open(void *user, const char *path, int mode, void **file) {
    const cache_hooks *hooks = (const cache_hooks *)user;
    const bags_io *inner = hooks->inner;
    bags_identity identity;
    if (mode != BAGS_IO_READ)
        return EROFS;
    cache_file *opened = (cache_file *)calloc(1, sizeof *opened);
    if (!opened)
        return ENOMEM;
    opened->hooks = hooks;
    int error = inner->open(inner->user, path, mode, &opened->inner);
    if (error) {
        free(opened);
        return error;
    }
    if (cache_is_here(hooks->cache) && inner->identify &&
        !inner->identify(inner->user, opened->inner, path, &identity))
        opened->object = cache_find(hooks->cache, path, &identity);
    *file = opened;
    return 0;
}

/* Drop the file's pending reads in advance, or wait for them if they are running. */
static int cache_close(void *user, void *file) {
    const cache_hooks *hooks = (const cache_hooks *)user;
    bags_cache *cache = hooks->cache;
    cache_file *opened = (cache_file *)file;
    void *inner = opened->inner;
    if (!cache_is_here(cache)) {
        free(opened);
        return hooks->inner->close(hooks->inner->user, inner);
    }
    pthread_mutex_lock(&cache->mutex);
    size_t kept = cache->queue_next;
    for (size_t i = kept; i < cache->queued; i++)
        if (cache->queue[i].file != file)
            cache->queue[kept++] = cache->queue[i];
    cache->queued = kept;
    while (cache->active)
        pthread_cond_wait(&cache->changed, &cache->mutex);
    pthread_mutex_unlock(&cache->mutex);
    free(opened);
    return hooks->inner->close(hooks->inner->user, inner);
}

static int cache_size(void *user, void *file, uint64_t *size) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    return inner->size(inner->user, ((const cache_file *)file)->inner, size);
}

static int cache_kind(void *user, const char *path, bags_path_kind *kind) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    return inner->kind(inner->user, path, kind);
}

static int cache_names(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    return inner->list(inner->user, path, each, each_user);
}

static int cache_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    return inner->identify(
        inner->user, file ? ((const cache_file *)file)->inner : NULL, path, identity);
}

static void cache_expect(void *user, const char *path) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    inner->expect(inner->user, path);
}

static void cache_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    const bags_io *inner = ((const cache_hooks *)user)->inner;
    inner->explain(inner->user, path, error, text, size);
}

const bags_io *bags_cache_io(bags_cache *cache, const bags_io *inner, bags_error *err) {
    cache_hooks *hooks = (cache_hooks *)calloc(1, sizeof *hooks);
    if (!hooks) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    hooks->inner = inner;
    hooks->cache = cache;
    hooks->io.user = hooks;
    hooks->io.open = cache_open;
    hooks->io.close = cache_close;
    hooks->io.size = cache_size;
    hooks->io.read_at = cache_read_at;
    hooks->io.read_many = cache_read_many;
    hooks->io.kind = cache_kind;
    hooks->io.list = inner->list ? cache_names : NULL;
    hooks->io.identify = inner->identify ? cache_identify : NULL;
    hooks->io.expect = inner->expect ? cache_expect : NULL;
    hooks->io.explain = inner->explain ? cache_explain : NULL;
    pthread_mutex_lock(&cache->mutex);
    hooks->next = cache->hooks;
    cache->hooks = hooks;
    pthread_mutex_unlock(&cache->mutex);
    return &hooks->io;
}

/* ---- answers to lookups ----
 *
 *     0   8  "BAGSANSW"
 *     8   8  CRC-32C of what follows
 *     16  8  size of the object
 *     24     the path, ETag and Last-Modified, each NUL-terminated
 */

static void cache_answer_name(const char *path, char out[64]) {
    (void)snprintf(out, 64, "%016" PRIx64 "-answer", cache_hash(path, NULL));
}

bool bags_cache_recall(void *user, const char *path, bags_http_answer *answer) {
    bags_cache *cache = (bags_cache *)user;
    unsigned char data[CACHE_HEADER];
    char name[64];
    const char *texts[3];
    cache_answer_name(path, name);
    int file = bagi_cache_open_file(&cache->files, name);
    if (file < 0)
        return false;
    size_t size = bagi_cache_read(file, data, sizeof data, 0), at = 24;
    bool good = size > 24 && !memcmp(data, "BAGSANSW", 8) && !data[size - 1] &&
                cache_get(data + 8) == bags_crc32c(0, data + 16, size - 16);
    for (int i = 0; i < 3 && (good = good && at < size); i++) {
        texts[i] = (const char *)data + at;
        at += strlen(texts[i]) + 1;
    }
    good = good && !strcmp(texts[0], path) && strlen(texts[1]) < sizeof answer->tag &&
           strlen(texts[2]) < sizeof answer->modified;
    if (good) {
        answer->size = cache_get(data + 16);
        strcpy(answer->tag, texts[1]);
        strcpy(answer->modified, texts[2]);
        (void)futimens(file, NULL);
    }
    close(file);
    return good;
}

void bags_cache_remember(void *user, const char *path, const bags_http_answer *answer) {
    bags_cache *cache = (bags_cache *)user;
    unsigned char data[CACHE_HEADER] = "BAGSANSW";
    char name[64];
    if (strlen(path) > CACHE_LONGEST || bagi_cache_is_off(&cache->files))
        return;
    cache_answer_name(path, name);
    size_t size = 25 + (size_t)snprintf((char *)data + 24, sizeof data - 24,
                           "%s%c%s%c%s", path, 0, answer->tag, 0, answer->modified);
    cache_put(data + 16, answer->size);
    cache_put(data + 8, bags_crc32c(0, data + 16, size - 16));
    int error = bagi_cache_reserve(&cache->files, CACHE_HEADER, false);
    if (!error)
        error = bagi_cache_create(&cache->files, name, data, size, true);
    bagi_cache_give_up(&cache->files, error);
}

/* ---- opening and closing ---- */

bags_cache *bags_cache_open(
    const char *directory, const bags_cache_options *options, bags_error *err) {
    bags_cache_options set;
    memset(&set, 0, sizeof set);
    if (options)
        set = *options;
    if (!set.size)
        set.size = (uint64_t)10 << 30;
    if (set.size < BAGS_CACHE_LEAST) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "a cache needs at least %d bytes",
            (int)BAGS_CACHE_LEAST);
        return NULL;
    }
    bags_cache *cache = (bags_cache *)calloc(1, sizeof *cache);
    if (!cache) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    cache->process = getpid();
    cache->interrupted = set.interrupted;
    cache->interrupted_user = set.interrupted_user;
    cache->shift = CACHE_BLOCK_SHIFT;
    while (cache->shift < CACHE_MAX_SHIFT && set.size >> (cache->shift + 5))
        cache->shift++;
    pthread_mutex_init(&cache->mutex, NULL);
    pthread_cond_init(&cache->changed, NULL);
    const char *why = NULL;
    int error = bagi_cache_files_open(&cache->files, &set, directory, &why);
    if (error == ENOSPC || error == EDQUOT)
        bagi_cache_give_up(&cache->files, error);
    if (!error || (bagi_cache_is_off(&cache->files) && cache->files.usage >= 0))
        return cache;
    if (why)
        bags_fail(err, BAGS_ERROR_IO, "%s: not usable as a cache: %s",
            bags_path_tail(directory), why);
    else
        bags_fail_io(NULL, error, directory, "open the cache", err);
    bags_cache_close(cache);
    return NULL;
}

void bags_cache_close(bags_cache *cache) {
    if (!cache || !cache_is_here(cache))
        return;
    pthread_mutex_lock(&cache->mutex);
    cache->stop = true;
    pthread_cond_broadcast(&cache->changed);
    pthread_mutex_unlock(&cache->mutex);
    for (size_t i = 0; i < cache->thread_count; i++)
        pthread_join(cache->threads[i], NULL);
    while (cache->newest)
        cache_segment_free(cache, cache->newest);
    for (size_t i = 0; i < CACHE_BUCKETS; i++)
        for (cache_object *object = cache->objects[i], *next; object; object = next) {
            next = object->next;
            free(object->path);
            free(object->segments);
            free(object);
        }
    for (cache_hooks *hooks = cache->hooks, *next; hooks; hooks = next) {
        next = hooks->next;
        free(hooks);
    }
    bagi_cache_files_close(&cache->files);
    pthread_mutex_destroy(&cache->mutex);
    pthread_cond_destroy(&cache->changed);
    free(cache->queue);
    free(cache);
}

#endif /* not Windows */
