/*
 * pace.c - limits the requests per second and server, and lets all processes of a user
 * rest if a server refuses requests because there are too many. pace.h draws the file.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "pace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PACE_SERVERS ((size_t)4096) /* different servers may share an entry */
#define PACE_SIZE (PACE_SERVERS * 2 * sizeof(uint64_t))
#define PACE_VALID (BAGI_PACE_REST + 1) /* a later time is invalid */
#define PACE_LATE 0.01 /* seconds that a request may be late without loss of speed */

/* Open the table in a directory that every process of the machine finds. Another user's
 * file is refused. Returns -1 if it cannot be used. */
static int pace_file(const char *directory) {
    char path[64];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/bags-requests-1-%" PRIu64, directory,
        (uint64_t)geteuid());
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (file < 0)
        return -1;
    bool good = fstat(file, &about) == 0 && S_ISREG(about.st_mode) &&
                about.st_uid == geteuid() && (about.st_mode & 077) == 0;
    /* Several processes may set the same size at once. */
    if (good && about.st_size == 0)
        good = ftruncate(file, (off_t)PACE_SIZE) == 0 && fstat(file, &about) == 0;
    if (good && about.st_size == (off_t)PACE_SIZE)
        return file;
    close(file);
    return -1;
}

bool bagi_pace_open(http_pace *pace, double requests_per_second) {
    int file = pace_file("/dev/shm");
    if (file < 0)
        file = pace_file("/tmp");
    void *shared =
        file < 0 ? MAP_FAILED
                 : mmap(NULL, PACE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    pace->interval = requests_per_second > 0 ? 1 / requests_per_second : 0;
    pace->shared = shared != MAP_FAILED;
    pace->table =
        (uint64_t *)(pace->shared ? shared
                                  : calloc(PACE_SERVERS, PACE_SIZE / PACE_SERVERS));
    return pace->table != NULL;
}

void bagi_pace_close(http_pace *pace) {
    if (pace->shared)
        (void)munmap(pace->table, PACE_SIZE);
    else
        free(pace->table);
    memset(pace, 0, sizeof *pace);
}

/* A time in the table, in seconds. Those after `most` are invalid: 0. */
static double pace_load(const uint64_t *entry, uint64_t *stored, double most) {
    *stored = __atomic_load_n(entry, __ATOMIC_RELAXED);
    double time = (double)*stored * 1e-6;
    return time <= most ? time : 0;
}

static bool pace_replace(uint64_t *entry, uint64_t stored, double time) {
    return __atomic_compare_exchange_n(entry, &stored, (uint64_t)(time * 1e6 + 0.5),
        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

double bagi_pace_due(http_pace *pace, uint64_t server, double now) {
    uint64_t *entry = pace->table + 2 * (size_t)(server % PACE_SERVERS), stored = 0;
    double rest = pace_load(entry + 1, &stored, now + PACE_VALID);
    if (rest > now)
        return rest - now;
    if (pace->interval <= 0)
        return 0;
    for (;;) {
        double most = pace->interval > PACE_VALID ? pace->interval : PACE_VALID;
        double next = pace_load(entry, &stored, now + most);
        if (next > now)
            return next - now;
        double late = pace->interval < PACE_LATE ? PACE_LATE : pace->interval;
        next = next > now - late ? next : now - late;
        if (pace_replace(entry, stored, next + pace->interval))
            return 0;
    }
}

void bagi_pace_rest(http_pace *pace, uint64_t server, double now, double seconds) {
    uint64_t *entry = pace->table + 2 * (size_t)(server % PACE_SERVERS) + 1, stored = 0;
    double until = now + (seconds < BAGI_PACE_REST ? seconds : BAGI_PACE_REST);
    /* The longest rest counts. */
    while (pace_load(entry, &stored, now + PACE_VALID) < until &&
           !pace_replace(entry, stored, until))
        ;
}
