/*
 * pool.c - memory for batches.
 *
 * Arrays in a batch own blocks of the pool. When an array is freed, a later batch
 * reuses its block. malloc would return a large block to the system, so that the next
 * block would have to be mapped and cleared again. Free blocks are kept up to a limit.
 * The pool lives until the loader and the last block are freed. All callers hold the
 * GIL.
 */
#include "core.h"

typedef struct Block {
    struct Block *next; /* the next free block; most recently freed first */
    Pool *pool;
    size_t size; /* size of the data that follows */
} Block;

#define BLOCK_HEAD 64 /* bytes before the data; also aligns it for vectors */

struct Pool {
    Block *free;
    size_t limit; /* maximum size of free blocks, in bytes */
    size_t users; /* the loader, and each block in use */
};

static void leave(Pool *pool) {
    if (--pool->users == 0)
        free(pool);
}

/* Drop the blocks that were freed first until the remaining ones fit in `limit`
 * bytes. */
static void trim(Pool *pool) {
    Block **at = &pool->free;
    for (size_t sum = 0; *at; at = &(*at)->next) {
        sum += (*at)->size;
        if (sum > pool->limit)
            break;
    }
    Block *block = *at;
    *at = NULL;
    while (block) {
        Block *next = block->next;
        free(block);
        block = next;
    }
}

/* Round up to one of few sizes (64 times 3, 4, 6, 8, 12 ...), so that a block can serve
 * any tensor of about the same size. Pages after the data are never written, and so use
 * no memory. */
static size_t block_size(size_t size) {
    size_t step = BLOCK_HEAD;
    while (step < size / 4)
        step *= 2;
    return (size + step - 1) / step * step;
}

void *pool_take(Pool *pool, size_t size) {
    void *made = NULL;
    size = block_size(size);
    Block **at = &pool->free;
    while (*at && (*at)->size != size)
        at = &(*at)->next;
    Block *block = *at;
    if (block) {
        *at = block->next;
    } else if (!posix_memalign(&made, BLOCK_HEAD, BLOCK_HEAD + size)) {
        block = (Block *)made;
        block->pool = pool;
        block->size = size;
    }
    if (!block)
        return NULL;
    pool->users++;
    return (unsigned char *)(void *)block + BLOCK_HEAD;
}

void pool_give(void *data) {
    Block *block = (Block *)(void *)((unsigned char *)data - BLOCK_HEAD);
    Pool *pool = block->pool;
    block->next = pool->free;
    pool->free = block;
    trim(pool);
    leave(pool);
}

void pool_limit(Pool *pool, size_t size) {
    pool->limit = size > pool->limit ? size : pool->limit;
}

Pool *pool_open(void) {
    Pool *pool = (Pool *)calloc(1, sizeof *pool);
    if (pool)
        pool->users = 1;
    return pool;
}

void pool_close(Pool *pool) {
    if (!pool)
        return;
    pool->limit = 0;
    trim(pool);
    leave(pool);
}
