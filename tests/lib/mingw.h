/*
 * What the tests use of POSIX and MinGW's C library lacks. What Windows cannot do
 * fails here; the tests that would call it are skipped there, by skip_on_windows
 * of check.h.
 */
#ifndef BAGS_TESTS_MINGW_H
#define BAGS_TESTS_MINGW_H

#include <direct.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define mkdir(path, mode) _mkdir(path)

/* The C library's own fail where paths are long. */
#define unlink(path) (bags_io_local()->remove(NULL, path) ? -1 : 0)

static inline int lstat(const char *path, struct stat *info) {
    bags_path_kind kind = BAGS_PATH_NONE;
    memset(info, 0, sizeof *info);
    if (bags_io_local()->kind(NULL, path, &kind) || kind == BAGS_PATH_NONE)
        return -1;
    info->st_mode = kind == BAGS_PATH_DIRECTORY ? S_IFDIR : S_IFREG;
    return 0;
}

static inline int alphasort(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Neither a filter nor another order is asked for by the tests. */
static inline int scandir(const char *path, struct dirent ***found, void *filter,
    int (*order)(const struct dirent **, const struct dirent **)) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    int count = 0;
    (void)filter;
    *found = NULL;
    if (!dir)
        return -1;
    while ((entry = readdir(dir)) != NULL) {
        *found =
            (struct dirent **)realloc(*found, (size_t)(count + 1) * sizeof **found);
        (*found)[count] = (struct dirent *)malloc(sizeof *entry);
        *(*found)[count++] = *entry;
    }
    closedir(dir);
    qsort(*found, (size_t)count, sizeof **found,
        (int (*)(const void *, const void *))order);
    return count;
}

static inline char *mkdtemp(char *name) {
    size_t size = strlen(name);
    for (int i = 0; i < 100000; i++) {
        snprintf(name + size - 6, 7, "%06x",
            (unsigned)(rand() + getpid() * 7919) & 0xffffff);
        if (_mkdir(name) == 0)
            return name;
    }
    return NULL;
}

#define EDQUOT ENOSPC
#define fork() (-1)
#define alarm(seconds) ((void)(seconds))
#define symlink(target, path) ((void)(target), (void)(path), -1)
#define mkfifo(path, mode) ((void)(path), -1)
#define pipe(ends) _pipe(ends, 512, _O_BINARY)
#define waitpid(child, status, flags) ((void)(child), *(status) = 0, -1)
#define WIFEXITED(status) ((status) == 0)
#define WEXITSTATUS(status) (status)

#define RLIMIT_NOFILE 0
struct rlimit {
    unsigned rlim_cur;
};
#define getrlimit(what, limit) ((limit)->rlim_cur = 0, -1)
#define setrlimit(what, limit) ((void)(limit), -1)

#endif /* BAGS_TESTS_MINGW_H */
