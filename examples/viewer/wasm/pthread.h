/*
 * pthread.h - what formats/zstd.c uses and a page lacks: threads.
 */
#ifndef VIEWER_PTHREAD_H
#define VIEWER_PTHREAD_H

typedef int pthread_mutex_t;
#define pthread_mutex_init(lock, attributes) (*(lock) = 0)
#define pthread_mutex_destroy(lock) ((void)(lock))
#define pthread_mutex_lock(lock) ((void)(lock))
#define pthread_mutex_trylock(lock) ((void)(lock), 0)
#define pthread_mutex_unlock(lock) ((void)(lock))

#endif
