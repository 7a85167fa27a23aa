/*
 * pthread.h - what formats/zstd.c uses and a page lacks: threads, and the compressor,
 * which is not compiled.
 */
#ifndef VIEWER_PTHREAD_H
#define VIEWER_PTHREAD_H

#include <zstd.h>

typedef int pthread_mutex_t;
#define pthread_mutex_init(lock, attributes) (*(lock) = 0)
#define pthread_mutex_destroy(lock) ((void)(lock))
#define pthread_mutex_lock(lock) ((void)(lock))
#define pthread_mutex_unlock(lock) ((void)(lock))

#define ZSTD_createCCtx() NULL
#define ZSTD_freeCCtx(context) ((void)(context))
#define ZSTD_minCLevel() 0
#define ZSTD_maxCLevel() 0
#define ZSTD_compressBound(size) (size)
#define ZSTD_compressCCtx(context, to, capacity, from, size, level)                    \
    ((void)(capacity), (void)(level), (size_t)0)

#endif
