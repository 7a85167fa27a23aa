/* See shim.h. */
#define _GNU_SOURCE 1
#include "shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

const char *const call_names[CALLS] = {"open", "close", "fstat", "pread", "pwrite",
    "ftruncate", "fsync", "fcntl", "flock", "mmap", "munmap", "stat", "mkdir", "rename",
    "unlink", "rmdir", "opendir", "readdir", "closedir", "fallocate",
    "sync_file_range"};

shim *shim_in_use;

/* ------------------------------------------------------ which file is which */

#define MOST_FILES 1024

static struct {
    bool ours; /* opened while armed */
    bool read_only;
    char path[512];
} opened[MOST_FILES];

static void remember(int fd, const char *path, bool read_only) {
    if (fd < 0 || fd >= MOST_FILES)
        return;
    opened[fd].ours = true;
    opened[fd].read_only = read_only;
    snprintf(opened[fd].path, sizeof opened[fd].path, "%s", path);
    __atomic_fetch_add(&shim_in_use->files, 1, __ATOMIC_RELAXED); /* by threads, too */
}

static void forget(int fd) {
    if (fd < 0 || fd >= MOST_FILES || !opened[fd].ours)
        return;
    opened[fd].ours = false;
    __atomic_fetch_sub(&shim_in_use->files, 1, __ATOMIC_RELAXED);
}

/* ------------------------------------------------------------------- fates */

enum fate { LIVE, FAIL, SHORT, DIE_AFTER, DIE_HALFWAY };

static _Noreturn void die(void) {
    kill(getpid(), SIGKILL);
    abort();
}

/* What only gives something back is done even by the dead. */
static bool is_release(enum call call) {
    return call == CALL_CLOSE || call == CALL_MUNMAP || call == CALL_CLOSEDIR;
}

static void note(enum call call, const char *path, int fd) {
    shim *s = shim_in_use;
    bool known = fd >= 0 && fd < MOST_FILES && opened[fd].ours;
    s->met++;
    s->last = call;
    s->last_read_only = known && opened[fd].read_only;
    snprintf(s->last_path, sizeof s->last_path, "%s",
        path    ? path
        : known ? opened[fd].path
                : "");
}

/* Other libraries look at the system's files; the command, in these tests, at
 * what is in its directory: what it makes absolute contains this. */
static bool is_foreign(const char *path, int fd) {
#if defined(BAGS_SHIM_PRELOADED)
    char here[4096];
    if (path && path[0] == '/') {
        size_t size = getcwd(here, sizeof here) ? strlen(here) : 0;
        return size == 0 || strncmp(path, here, size) != 0 || path[size] != '/';
    }
    if (path)
        return false;
    return fd >= 0 && (fd >= MOST_FILES || !opened[fd].ours);
#else
    (void)path;
    (void)fd;
    return false;
#endif
}

/* What becomes of this call; errno is set if it fails. */
static enum fate fate_of(enum call call, const char *path, int fd) {
    shim *s = shim_in_use;
    if (!s || !s->armed || is_foreign(path, fd))
        return LIVE;
    if (s->buried) {
        errno = EIO;
        return is_release(call) ? LIVE : FAIL;
    }
    s->counts[call]++;
    if (s->only && !(s->only & ONLY(call)))
        return LIVE;
    uint64_t now = __atomic_add_fetch(&s->calls, 1, __ATOMIC_RELAXED);
    if (!s->fail_at || (s->stays ? now < s->fail_at : now != s->fail_at))
        return LIVE;
    note(call, path, fd);
    if (s->effect == EFFECT_DIE_BEFORE)
        die();
    errno = s->error;
    return s->effect == EFFECT_FAIL        ? FAIL
           : s->effect == EFFECT_SHORT     ? SHORT
           : s->effect == EFFECT_DIE_AFTER ? DIE_AFTER
                                           : DIE_HALFWAY;
}

static void end_with(enum fate fate) {
    if (fate == DIE_AFTER || fate == DIE_HALFWAY)
        die();
}

static bool is_counted(void) { return shim_in_use && shim_in_use->armed; }

#if defined(BAGS_SHIM_PRELOADED)
/* As a library before another program: what it looks at stands in the file that
 * BAGS_SHIM names. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BAGS_SHIM");
    int fd = path ? open(path, O_RDWR) : -1;
    void *map =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, sizeof(shim), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        abort();
    close(fd);
    shim_in_use = (shim *)map;
}
#endif

/* ------------------------------------------------------------------- calls */

/* libc's function, or the sanitizer's before it. POSIX lets a void pointer be
 * one to a function; ISO C does not. */
#define REAL(result, name, parameters)                                                 \
    static void *found;                                                                \
    result(*real) parameters;                                                          \
    void *known = __atomic_load_n(&found, __ATOMIC_RELAXED);                           \
    if (!known)                                                                        \
        __atomic_store_n(&found, known = dlsym(RTLD_NEXT, name), __ATOMIC_RELAXED);    \
    *(void **)&real = known

/* A call by path or by descriptor that gives 0 or -1. */
#define PLAIN_CALL(call, name, parameters, arguments, path, fd)                        \
    int name parameters;                                                               \
    int name parameters {                                                              \
        REAL(int, #name, parameters);                                                  \
        enum fate fate = fate_of(call, path, fd);                                      \
        if (fate == FAIL)                                                              \
            return -1;                                                                 \
        int result = real arguments;                                                   \
        end_with(fate);                                                                \
        return result;                                                                 \
    }

PLAIN_CALL(CALL_FSTAT, fstat64, (int fd, struct stat64 *info), (fd, info), NULL, fd)
PLAIN_CALL(CALL_TRUNCATE, ftruncate64, (int fd, off64_t size), (fd, size), NULL, fd)
PLAIN_CALL(CALL_FALLOCATE, fallocate64, (int fd, int mode, off64_t from, off64_t size),
    (fd, mode, from, size), NULL, fd)
PLAIN_CALL(CALL_WRITE_BACK, sync_file_range,
    (int fd, off64_t from, off64_t size, unsigned how), (fd, from, size, how), NULL, fd)
PLAIN_CALL(CALL_LOCK, flock, (int fd, int how), (fd, how), NULL, fd)
PLAIN_CALL(
    CALL_STAT, stat64, (const char *path, struct stat64 *info), (path, info), path, -1)
PLAIN_CALL(
    CALL_STAT, lstat64, (const char *path, struct stat64 *info), (path, info), path, -1)
PLAIN_CALL(CALL_MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), path, -1)
PLAIN_CALL(
    CALL_RENAME, rename, (const char *from, const char *to), (from, to), from, -1)
PLAIN_CALL(CALL_UNLINK, unlink, (const char *path), (path), path, -1)
PLAIN_CALL(CALL_RMDIR, rmdir, (const char *path), (path), path, -1)
PLAIN_CALL(CALL_STAT, fstatat64,
    (int at, const char *path, struct stat64 *info, int flags), (at, path, info, flags),
    path, -1)
PLAIN_CALL(CALL_RENAME, linkat,
    (int at, const char *from, int to_at, const char *to, int flags),
    (at, from, to_at, to, flags), from, -1)
PLAIN_CALL(CALL_RENAME, renameat,
    (int at, const char *from, int to_at, const char *to), (at, from, to_at, to), from,
    -1)
PLAIN_CALL(CALL_UNLINK, unlinkat, (int at, const char *path, int flags),
    (at, path, flags), path, -1)

static int open_at(int at, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", (int, const char *, int, ...));
    enum fate fate = fate_of(CALL_OPEN, path, -1);
    if (fate == FAIL)
        return -1;
    int fd = real(at, path, flags, mode);
    end_with(fate);
    if (fd >= 0 && is_counted() && !is_foreign(path, -1))
        remember(fd, path, (flags & O_ACCMODE) == O_RDONLY);
    return fd;
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_at(AT_FDCWD, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return open_at(at, path, flags, mode);
}

/* One that fails has closed all the same. */
int close(int fd) {
    REAL(int, "close", (int));
    enum fate fate = fate_of(CALL_CLOSE, NULL, fd);
    int error = errno;
    forget(fd);
    int result = real(fd);
    end_with(fate);
    errno = error;
    return fate == FAIL ? -1 : result;
}

/* A sync that failed must not be tried again: it would say that all is well. */
static void note_sync(int fd, bool failed) {
    shim *s = shim_in_use;
    if (!is_counted() || s->buried || fd >= MOST_FILES || !opened[fd].ours)
        return;
    s->synced_again += strcmp(s->unsynced, opened[fd].path) == 0;
    if (failed && errno != EINTR)
        snprintf(s->unsynced, sizeof s->unsynced, "%s", opened[fd].path);
}

int fsync(int fd) {
    REAL(int, "fsync", (int));
    enum fate fate = fate_of(CALL_SYNC, NULL, fd);
    note_sync(fd, fate == FAIL);
    if (fate == FAIL)
        return -1;
    int result = real(fd);
    end_with(fate);
    return result;
}

static size_t half(size_t size) { return size > 1 ? size / 2 : size; }

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pread64", (int, void *, size_t, off64_t));
    enum fate fate = fate_of(CALL_READ, NULL, fd);
    if (fate == FAIL)
        return -1;
    ssize_t done = real(fd, data, fate == SHORT ? half(size) : size, offset);
    end_with(fate);
    return done;
}

/* A short one reads the first part alone. */
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t offset) {
    REAL(ssize_t, "preadv64", (int, const struct iovec *, int, off64_t));
    enum fate fate = fate_of(CALL_READ, NULL, fd);
    if (fate == FAIL)
        return -1;
    ssize_t done = real(fd, parts, fate == SHORT ? 1 : count, offset);
    end_with(fate);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pwrite64", (int, const void *, size_t, off64_t));
    enum fate fate = fate_of(CALL_WRITE, NULL, fd);
    if (fate == FAIL)
        return -1;
    bool part = fate == SHORT || fate == DIE_HALFWAY;
    ssize_t done = real(fd, data, part ? half(size) : size, offset);
    end_with(fate);
    return done;
}

/* bags.h calls it with one number behind the command at most. */
int fcntl64(int fd, int command, ...) {
    REAL(int, "fcntl64", (int, int, ...));
    va_list arguments;
    va_start(arguments, command);
    void *more = va_arg(arguments, void *);
    va_end(arguments);
    enum fate fate = fate_of(CALL_FCNTL, NULL, fd);
    if (fate == FAIL)
        return -1;
    int result = real(fd, command, more);
    end_with(fate);
    return result;
}

void *mmap64(void *at, size_t size, int protect, int flags, int fd, off64_t offset) {
    REAL(void *, "mmap64", (void *, size_t, int, int, int, off64_t));
    enum fate fate = fate_of(CALL_MMAP, NULL, fd);
    if (fate == FAIL)
        return MAP_FAILED;
    void *map = real(at, size, protect, flags, fd, offset);
    end_with(fate);
    if (map != MAP_FAILED && is_counted())
        shim_in_use->maps++;
    return map;
}

/* One that fails has unmapped all the same, so that maps add up. */
int munmap(void *data, size_t size) {
    REAL(int, "munmap", (void *, size_t));
    enum fate fate = fate_of(CALL_MUNMAP, NULL, -1);
    int error = errno, result = real(data, size);
    end_with(fate);
    if (is_counted())
        shim_in_use->maps--;
    errno = error;
    return fate == FAIL ? -1 : result;
}

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", (const char *));
    enum fate fate = fate_of(CALL_OPENDIR, path, -1);
    if (fate == FAIL)
        return NULL;
    DIR *dir = real(path);
    end_with(fate);
    if (dir && is_counted())
        __atomic_fetch_add(&shim_in_use->dirs, 1, __ATOMIC_RELAXED);
    return dir;
}

/* The directory owns the file from then on. */
DIR *fdopendir(int fd) {
    REAL(DIR *, "fdopendir", (int));
    enum fate fate = fate_of(CALL_OPENDIR, NULL, fd);
    if (fate == FAIL)
        return NULL;
    DIR *dir = real(fd);
    end_with(fate);
    if (dir && is_counted()) {
        forget(fd);
        __atomic_fetch_add(&shim_in_use->dirs, 1, __ATOMIC_RELAXED);
    }
    return dir;
}

struct dirent64 *readdir64(DIR *dir) {
    REAL(struct dirent64 *, "readdir64", (DIR *));
    enum fate fate = fate_of(CALL_READDIR, NULL, -1);
    if (fate == FAIL)
        return NULL;
    struct dirent64 *entry = real(dir);
    end_with(fate);
    return entry;
}

int closedir(DIR *dir) {
    REAL(int, "closedir", (DIR *));
    enum fate fate = fate_of(CALL_CLOSEDIR, NULL, -1);
    int result = real(dir);
    end_with(fate);
    if (is_counted())
        __atomic_fetch_sub(&shim_in_use->dirs, 1, __ATOMIC_RELAXED);
    return fate == FAIL ? -1 : result;
}
