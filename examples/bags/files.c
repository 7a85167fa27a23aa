/*
 * Files, directories, and names for files. Only regular files are read: a manifest
 * that names a pipe or a device must not make the command wait. New files are
 * created exclusively: nothing is overwritten.
 */
#include "command.h"
#include "system.h"

#include <strings.h>

/* ---- paths ---- */

char *path_join(const char *directory, const char *name) {
    size_t size = strlen(directory);
    if (is_absolute(name) || !strcmp(directory, "."))
        return string_format("%s", name);
    bool slash = size && is_separator(directory[size - 1]);
    return string_format(slash ? "%s%s" : "%s/%s", directory, name);
}

char *path_parent(const char *path) {
    const char *slash = NULL;
    for (const char *at = path; *at; at++)
        if (is_separator(*at))
            slash = at;
    if (!slash)
        return string_format(".");
    return string_format("%.*s", slash == path ? 1 : (int)(slash - path), path);
}

bool path_exists(const char *path) {
    struct stat about;
    return !lstat(path, &about);
}

bool has_ending(const char *path, const char *ending) {
    size_t size = strlen(path), length = strlen(ending);
    return size > length && !strcasecmp(path + size - length, ending);
}

/* ---- files ---- */

bags_view file_read(const char *path, bags_buffer *buffer) {
    /* O_NONBLOCK: opening a named pipe returns, and is then refused. */
    int file = open_file(path, O_RDONLY | O_NONBLOCK);
    struct stat about;
    if (file < 0)
        fail_system(errno, path, "open");
    if (fstat(file, &about))
        fail_system(errno, path, "stat");
    if (!S_ISREG(about.st_mode))
        fail(BAGS_ERROR_IO, "%s: cannot read: %s", path,
            S_ISDIR(about.st_mode) ? "it is a directory"
                                   : "not a regular file");
    size_t size = 0;
    ssize_t got = (ssize_t)about.st_size;
    do {
        /* Always more than the file has: reading 0 bytes is its end, and a zero
         * byte follows. */
        must(bags_buffer_reserve(
            buffer, size + (size ? 0 : (size_t)got) + 4096, &failure));
        got = read_some(file, buffer->data + size, buffer->capacity - size - 1);
        if (got < 0 && errno != EINTR)
            fail_system(errno, path, "read");
        size += got > 0 ? (size_t)got : 0;
    } while (got);
    close(file);
    buffer->data[size] = 0;
    bags_view content = {buffer->data, size};
    return content;
}

void file_write(const char *path, const void *data, size_t size) {
    int file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
    const unsigned char *from = (const unsigned char *)data;
    int error = 0;
    if (file < 0)
        fail_system(errno, path, "create");
    while (size > 0 && !error) {
        ssize_t done = write_some(file, from, size);
        if (done < 0 && errno != EINTR)
            error = errno;
        from += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
    if (close(file) && !error)
        error = errno;
    if (error) {
        unlink(path);
        fail_system(error, path, "write");
    }
}

/* ---- directories ---- */

static bool is_directory(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

void directory_make(const char *path) {
    char *part = string_format("%s", path);
    if (path[0] == 0)
        fail(BAGS_ERROR_MISSING, "the name of a directory is empty");
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] && !is_separator(path[i]))
            continue;
        part[i] = 0;
        int error = mkdir(part, 0777) ? errno : 0;
        if (error && !is_directory(part))
            fail_system(error == EEXIST ? ENOTDIR : error, part,
                "create the directory");
        part[i] = path[i];
    }
    free(part);
}

static int is_an_entry(void *user, const char *name) {
    (void)user;
    (void)name;
    return EEXIST;
}

bool directory_is_empty(const char *path) {
    const bags_io *io = bags_io_local();
    return io->list(io->user, path, is_an_entry, NULL) == 0;
}

void directory_remove(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        struct stat about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char *inner = path_join(path, entry->d_name);
        if (!lstat(inner, &about) && S_ISDIR(about.st_mode))
            directory_remove(inner);
        else
            unlink(inner);
        free(inner);
    }
    if (directory)
        closedir(directory);
    rmdir(path);
}

/* ---- names ---- */

#define MAX_NAME 48
#define PLAIN "abcdefghijklmnopqrstuvwxyz0123456789_-"

/* True if a name can be used as it is: short, of plain characters, without
 * capitals, which some file systems fold, and not a device of Windows (they have
 * 3 or 4 characters). */
static bool is_good_name(const char *name) {
    static const char *const devices[] = {
        "con", "prn", "aux", "nul", "com", "lpt"};
    size_t size = strlen(name);
    if (size == 0 || size > MAX_NAME || name[0] == '-' ||
        strspn(name, PLAIN) < size)
        return false;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (size < 5 && !strncmp(name, devices[i], 3))
            return false;
    return true;
}

/* Other names receive ~ and the field's number, which no good name contains. */
char **names_make(const bags_field *fields, size_t count, const char *prefix) {
    char **names = (char **)allocate(count, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        char plain[MAX_NAME + 1];
        size_t size = 0;
        for (; size < MAX_NAME && fields[i].name[size]; size++) {
            char c = fields[i].name[size];
            plain[size] = strchr(PLAIN, c) || (c >= 'A' && c <= 'Z') ? c : '_';
        }
        plain[size] = 0;
        if (is_good_name(fields[i].name))
            names[i] = string_format("%s%s", prefix, plain);
        else
            names[i] = string_format(
                "%s%s~%zu", prefix, plain[0] == '-' ? "" : plain, i);
    }
    return names;
}
