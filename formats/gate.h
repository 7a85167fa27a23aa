/*
 * gate.h - threads, and a gate for them to wait at, on POSIX or Windows. Programs do
 * not include it. It sets feature macros, so it must be included first.
 */
#ifndef BAGS_FORMATS_GATE_H
#define BAGS_FORMATS_GATE_H

#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE 1 /* _SC_NPROCESSORS_ONLN */
#define _NETBSD_SOURCE 1
#endif

#include <stdbool.h>
#include <stdint.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(_MSC_VER)
#define GATE_OF_THREAD __declspec(thread)
#else
#define GATE_OF_THREAD __thread
#endif

/* A lock with a single condition for all waiters: there are only a few wakeups per
 * batch. */
#ifdef _WIN32
typedef struct gate {
    SRWLOCK lock;
    CONDITION_VARIABLE changed;
} gate;
typedef HANDLE gate_thread;
typedef DWORD gate_result;
#define GATE_CALL WINAPI

static inline bool gate_start(gate *g) {
    InitializeSRWLock(&g->lock);
    InitializeConditionVariable(&g->changed);
    return true;
}

static inline void gate_end(gate *g) { (void)g; }
static inline void gate_lock(gate *g) { AcquireSRWLockExclusive(&g->lock); }
static inline void gate_unlock(gate *g) { ReleaseSRWLockExclusive(&g->lock); }
static inline void gate_wake(gate *g) { WakeAllConditionVariable(&g->changed); }
static inline void gate_wait(gate *g) {
    SleepConditionVariableSRW(&g->changed, &g->lock, INFINITE, 0);
}

/* At most this long. */
static inline void gate_wait_seconds(gate *g, double seconds) {
    SleepConditionVariableSRW(&g->changed, &g->lock, (DWORD)(seconds * 1000), 0);
}

static inline double gate_now(void) { return (double)GetTickCount64() / 1000; }

static inline bool gate_thread_start(
    gate_thread *t, gate_result(GATE_CALL *run)(void *), void *user) {
    *t = CreateThread(NULL, 0, run, user, 0, NULL);
    return *t != NULL;
}

static inline void gate_thread_join(gate_thread t) {
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}

static inline uint64_t gate_process(void) { return GetCurrentProcessId(); }

static inline uint32_t gate_processors(void) {
    SYSTEM_INFO about;
    GetSystemInfo(&about);
    return (uint32_t)about.dwNumberOfProcessors;
}
#else
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} gate;
typedef pthread_t gate_thread;
typedef void *gate_result;
#define GATE_CALL

static inline bool gate_start(gate *g) {
    if (pthread_mutex_init(&g->lock, NULL))
        return false;
    if (!pthread_cond_init(&g->changed, NULL))
        return true;
    pthread_mutex_destroy(&g->lock);
    return false;
}

static inline void gate_end(gate *g) {
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

static inline void gate_lock(gate *g) { pthread_mutex_lock(&g->lock); }
static inline void gate_unlock(gate *g) { pthread_mutex_unlock(&g->lock); }
static inline void gate_wake(gate *g) { pthread_cond_broadcast(&g->changed); }
static inline void gate_wait(gate *g) { pthread_cond_wait(&g->changed, &g->lock); }

/* Wait at most this long, unless the clock is set back. */
static inline void gate_wait_seconds(gate *g, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t nanoseconds = (uint64_t)until.tv_nsec + (uint64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

static inline double gate_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline bool gate_thread_start(
    gate_thread *t, gate_result (*run)(void *), void *user) {
    return !pthread_create(t, NULL, run, user);
}

static inline void gate_thread_join(gate_thread t) { pthread_join(t, NULL); }

static inline uint64_t gate_process(void) { return (uint64_t)getpid(); }

static inline uint32_t gate_processors(void) {
    long count = 1;
#ifdef _SC_NPROCESSORS_ONLN
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return count > 0 ? (uint32_t)count : 1;
}
#endif

#endif /* BAGS_FORMATS_GATE_H */
