/*
 * System calls of the command: POSIX, and the equivalents for Windows, where windows.rc
 * makes the C library use UTF-8 paths. Files are read and written in binary mode.
 */
#ifndef BAGS_SYSTEM_H
#define BAGS_SYSTEM_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <dirent.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <direct.h>
#include <io.h>

#define O_CLOEXEC (O_NOINHERIT | O_BINARY)
#define lstat(path, about) stat(path, about)
#define realpath(path, out) _fullpath(out, path, 0)
#define mkdir(path, mode) _mkdir(path)

static inline bool is_separator(char c) { return c == '/' || c == '\\'; }

static inline bool is_absolute(const char *path) {
    return is_separator(path[0]) || (path[0] && path[1] == ':');
}

static inline int publish_file(const char *from, const char *to) {
    return rename(from, to); /* does not replace an existing file */
}

/* True if bytes or the end of the file can be read within this many milliseconds. Only
 * a pipe can make a reader wait. */
static inline bool wait_for_bytes(int file, int milliseconds) {
    HANDLE handle = (HANDLE)_get_osfhandle(file);
    DWORD bytes = 0;
    if (GetFileType(handle) != FILE_TYPE_PIPE)
        return true;
    for (int waited = 0;
         PeekNamedPipe(handle, NULL, 0, NULL, &bytes, NULL) && bytes == 0;
         waited += 10) {
        if (waited >= milliseconds)
            return false;
        Sleep(10);
    }
    return true;
}

static inline unsigned terminal_columns(void) {
    CONSOLE_SCREEN_BUFFER_INFO about;
    HANDLE handle = (HANDLE)_get_osfhandle(STDERR_FILENO);
    if (!GetConsoleScreenBufferInfo(handle, &about))
        return 0;
    return (unsigned)(about.srWindow.Right - about.srWindow.Left + 1);
}

static inline long processors(void) {
    SYSTEM_INFO about;
    GetSystemInfo(&about);
    return (long)about.dwNumberOfProcessors;
}

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom; no header declares it */

/* Fill a buffer with unpredictable bytes. */
static inline bool secret_fill(void *out, size_t size) {
    return SystemFunction036(out, (ULONG)size);
}

static inline void prepare_files(void) {
    _setmode(STDIN_FILENO, O_BINARY);
    _setmode(STDOUT_FILENO, O_BINARY);
}

#else
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

static inline bool is_separator(char c) { return c == '/'; }

static inline bool is_absolute(const char *path) { return path[0] == '/'; }

/* Give a complete new file its name; EEXIST if the name is taken. If the file system
 * has no links, the file is renamed instead. */
static inline int publish_file(const char *from, const char *to) {
    int error = link(from, to) ? errno : 0;
    if (error == EPERM || error == ENOTSUP || error == ENOSYS)
        return rename(from, to);
    unlink(from);
    errno = error;
    return error ? -1 : 0;
}

static inline bool wait_for_bytes(int file, int milliseconds) {
    struct pollfd ready = {file, POLLIN, 0};
    int seen = poll(&ready, 1, milliseconds);
    return seen != 0 && !(seen < 0 && errno == EINTR);
}

static inline unsigned terminal_columns(void) {
    struct winsize window;
    memset(&window, 0, sizeof window);
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &window) ? 0 : window.ws_col;
}

static inline long processors(void) { return sysconf(_SC_NPROCESSORS_ONLN); }

/* Fill a buffer with unpredictable bytes. */
static inline bool secret_fill(void *out, size_t size) {
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool filled = file >= 0 && read(file, out, size) == (ssize_t)size;
    if (file >= 0)
        close(file);
    return filled;
}

/* Without this, a program started with standard output closed would open a data file as
 * descriptor 1. Using a closed standard file remains an error: stdin is replaced by a
 * file that cannot be read, stdout and stderr by a file that cannot be written. */
static inline void prepare_files(void) {
    bool no_input = fcntl(STDIN_FILENO, F_GETFD) < 0;
    int file;
    do {
        file = open("/dev/null", no_input ? O_WRONLY : O_RDONLY);
        no_input = false;
    } while (file >= 0 && file <= 2);
    if (file > 2)
        close(file);
    signal(SIGPIPE, SIG_IGN); /* writing then fails with EPIPE */
    signal(SIGXFSZ, SIG_IGN); /* ... and with EFBIG */
    struct rlimit open_files; /* a writer needs two or three per field */
    if (!getrlimit(RLIMIT_NOFILE, &open_files)) {
        open_files.rlim_cur = open_files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &open_files)) {
            open_files.rlim_cur = 10240; /* OPEN_MAX of macOS */
            setrlimit(RLIMIT_NOFILE, &open_files);
        }
    }
}
#endif

#endif /* BAGS_SYSTEM_H */
