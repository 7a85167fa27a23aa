/*
 * Files, directories, and names for files. Only regular files are read, so that a
 * manifest that names a pipe or a device cannot make the command wait. New files are
 * created exclusively, so nothing is overwritten.
 */
#include "command.h"
#include "system.h"

#include "files.h"
#include "place.h"

/* ---- paths ---- */

char *path_join(const char *directory, const char *name) {
    size_t size = strlen(directory);
    if (is_absolute(name) || !strcmp(directory, "."))
        return string_format("%s", name);
    bool slash = size && is_separator(directory[size - 1]);
    return string_format(slash ? "%s%s" : "%s/%s", directory, name);
}

const char *path_parent(const char *path) {
    const char *slash = NULL;
    for (const char *at = path; *at; at++)
        if (is_separator(*at))
            slash = at;
    if (!slash)
        return ".";
    return temp_format("%.*s", slash == path ? 1 : (int)(slash - path), path);
}

void path_must_be_outside(const char *path) {
    must(format_check_outside(bags_io_local(), path, &failure));
}

bool path_exists(const char *path) {
    struct stat about;
    return !lstat(path, &about);
}

/* ---- files ---- */

/* The buffer grows while reading: the reported size may be 0, as in /proc. */
bags_view file_read(const char *path, bags_buffer *buffer) {
    const bags_io *io = bags_io_local();
    uint64_t expected = 0;
    size_t size = 0, more = 1;
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    must(bags_fail_io(io, error, path, "open", &failure));
    error = io->size(io->user, file, &expected);
    /* Always ask for more than the file has: a short read marks its end, and leaves
     * room for the zero byte. */
    while (!error && more > 0) {
        must(bags_buffer_reserve(
            buffer, size + (size ? 0 : (size_t)expected) + 4096, &failure));
        more = buffer->capacity - size - 1;
        error = format_read_some(io, file, size, buffer->data + size, &more);
        size += more;
    }
    must(bags_fail_io(io, error, path, "read", &failure));
    io->close(io->user, file);
    buffer->data[size] = 0;
    bags_view content = {buffer->data, size};
    return content;
}

static void *file_create(const char *path) {
    const bags_io *io = bags_io_local();
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_CREATE, &file);
    if (error)
        fail_system(error, path, "create");
    return file;
}

void file_write(const char *path, const void *data, size_t size) {
    const bags_io *io = bags_io_local();
    void *file = file_create(path);
    interrupt_removes(path);
    int error = format_write_all(io, file, 0, data, size);
    int closed = io->close(io->user, file);
    interrupt_removes(NULL);
    error = error ? error : closed;
    if (error) {
        (void)io->remove(io->user, path);
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
            fail_system(
                error == EEXIST ? ENOTDIR : error, part, "create the directory");
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

/* True if a name can be used unchanged: it is short, consists of plain characters, has
 * no capitals (some file systems fold case), and is not a Windows device (3 or 4
 * characters). */
static bool is_good_name(const char *name) {
    static const char *const devices[] = {"con", "prn", "aux", "nul", "com", "lpt"};
    size_t size = strlen(name);
    if (size == 0 || size > MAX_NAME || name[0] == '-' || strspn(name, PLAIN) < size)
        return false;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (size < 5 && !strncmp(name, devices[i], 3))
            return false;
    return true;
}

/* Append ~ and the field's number to all other names. No good name contains a ~. */
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
            names[i] =
                string_format("%s%s~%zu", prefix, plain[0] == '-' ? "" : plain, i);
    }
    return names;
}
