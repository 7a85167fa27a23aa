/*
 * A shim between this program and the system: the calls that bags.h makes are
 * counted, and one of them fails, does half of what it should, or is the last
 * that the process makes.
 *
 * It defines open, pwrite and so on, which then stand before libc's in every
 * lookup. What the rest of a test does through stdio does not come here.
 */
#ifndef BAGS_TESTS_SHIM_H
#define BAGS_TESTS_SHIM_H

#include <stdbool.h>
#include <stdint.h>

enum call {
    CALL_OPEN,
    CALL_CLOSE,
    CALL_FSTAT,
    CALL_READ,
    CALL_WRITE,
    CALL_TRUNCATE,
    CALL_SYNC,
    CALL_FCNTL,
    CALL_LOCK,
    CALL_MMAP,
    CALL_MUNMAP,
    CALL_STAT,
    CALL_MKDIR,
    CALL_RENAME,
    CALL_UNLINK,
    CALL_RMDIR,
    CALL_OPENDIR,
    CALL_READDIR,
    CALL_CLOSEDIR,
    CALL_FALLOCATE,
    CALL_WRITE_BACK,
    CALLS
};

extern const char *const call_names[CALLS];

#define ONLY(call) (1u << (call))

enum effect {
    EFFECT_FAIL,        /* with `error` */
    EFFECT_SHORT,       /* a read or write moves half, but a byte at least */
    EFFECT_DIE_BEFORE,  /* SIGKILL instead of the call */
    EFFECT_DIE_HALFWAY, /* SIGKILL when half of a write is done */
    EFFECT_DIE_AFTER    /* SIGKILL when the call is done */
};

/* May stand in memory that processes share, to be read after a death. */
typedef struct shim {
    bool armed;       /* else nothing is counted and nothing fails */
    bool buried;      /* what would change the disk fails, and is not counted */
    unsigned only;    /* bits of enum call; 0: all */
    uint64_t fail_at; /* the call that is met, from 1; 0: none */
    bool stays;       /* those after it too */
    enum effect effect;
    int error;
    uint64_t counts[CALLS];
    uint64_t calls;        /* of those in `only` */
    uint64_t met;          /* calls that failed or were short */
    enum call last;        /* the one met last */
    bool last_read_only;   /* it was on a file opened to read only */
    char last_path[512];   /* its file, where that is known; else "" */
    char unsynced[512];    /* the file whose fsync failed */
    int synced_again;      /* fsyncs of it after that */
    int files, maps, dirs; /* open now, of those opened while armed */
} shim;

/* What the calls of this process look at; NULL: nothing. */
extern shim *shim_in_use;

/* Sync as on macOS. Returns 0 or an errno value. */
int full_sync(int fd);

#endif /* BAGS_TESTS_SHIM_H */
