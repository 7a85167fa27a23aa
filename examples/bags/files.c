/*
 * Whole files, directories, and names for what is written. Only regular files
 * are read: a manifest that names a pipe or a device must not make the command
 * wait for ever. New files are created exclusively: nothing is overwritten.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

bags_code fail_system(bags_error *err, int error, const char *path,
    const char *doing) {
    bags_code code = error == ENOENT || error == ENOTDIR ? BAGS_ERROR_MISSING
                     : error == EEXIST                   ? BAGS_ERROR_EXISTS
                     : error == ENOMEM                   ? BAGS_ERROR_MEMORY
                                                         : BAGS_ERROR_IO;
    bags_fail(err, code, "%s: cannot %s: %s", path, doing, strerror(error));
    if (err)
        err->system = error;
    return code;
}

bags_code fail_memory(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
}

bags_code fail_prefix(bags_error *err, const char *format, ...) {
    bags_error old = *err;
    char words[BAGS_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    bags_fail(err, old.code, "%s%s", words, old.message);
    err->system = old.system;
    return old.code;
}

/* ---- strings ---- */

char *string_format(bags_error *err, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *made = size < 0 ? NULL : (char *)malloc((size_t)size + 1);
    if (!made) {
        fail_memory(err);
        return NULL;
    }
    va_start(arguments, format);
    vsnprintf(made, (size_t)size + 1, format, arguments);
    va_end(arguments);
    return made;
}

char *path_join(const char *directory, const char *name, bags_error *err) {
    size_t size = strlen(directory);
    if (is_absolute(name) || !strcmp(directory, "."))
        return string_format(err, "%s", name);
    bool slash = size && is_separator(directory[size - 1]);
    return string_format(err, slash ? "%s%s" : "%s/%s", directory, name);
}

char *path_parent(const char *path, bags_error *err) {
    const char *slash = NULL;
    for (const char *at = path; *at; at++)
        if (is_separator(*at))
            slash = at;
    if (!slash)
        return string_format(err, ".");
    if (slash == path)
        return string_format(err, "/");
    return string_format(err, "%.*s", (int)(slash - path), path);
}

/* ---- files ---- */

static bags_code read_to_end(int file, const char *path, bags_buffer *buffer,
    size_t *size, bags_error *err) {
    size_t here = 0;
    for (;;) {
        /* Always room for more than the file has: reading 0 bytes ends it, and
         * a zero byte goes behind. */
        bags_code code = bags_buffer_reserve(buffer, here + 4096, err);
        if (code)
            return code;
        ssize_t got =
            read_some(file, buffer->data + here, buffer->capacity - here - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_system(err, errno, path, "read");
        if (got == 0)
            break;
        here += (size_t)got;
    }
    buffer->data[here] = 0;
    *size = here;
    return BAGS_OK;
}

bags_code file_read(const char *path, bags_buffer *buffer, size_t *size,
    bags_error *err) {
    /* O_NONBLOCK: opening a named pipe returns, and is then refused. */
    int file = open_file(path, O_RDONLY | O_NONBLOCK);
    if (file < 0)
        return fail_system(err, errno, path, "open");
    struct stat about;
    bags_code code = BAGS_OK;
    if (fstat(file, &about))
        code = fail_system(err, errno, path, "look at");
    else if (!S_ISREG(about.st_mode))
        code = bags_fail(err, BAGS_ERROR_IO, "%s: cannot read: %s", path,
            S_ISDIR(about.st_mode) ? "it is a directory"
                                   : "not a regular file");
    else if ((uint64_t)about.st_size > SIZE_MAX - 4096)
        code = bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: larger than this machine's memory", path);
    else
        code = bags_buffer_reserve(buffer, (size_t)about.st_size + 4096, err);
    if (!code)
        code = read_to_end(file, path, buffer, size, err);
    close(file);
    return code;
}

static bool write_all(int file, const unsigned char *data, size_t size) {
    while (size > 0) {
        ssize_t done = write_some(file, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return false;
        data += done;
        size -= (size_t)done;
    }
    return true;
}

bags_code file_write(const char *path, const void *data, size_t size,
    bags_error *err) {
    int file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
    if (file < 0)
        return fail_system(err, errno, path, "create");
    bool good = write_all(file, (const unsigned char *)data, size);
    int error = errno;
    if (close(file) && good) {
        good = false;
        error = errno;
    }
    if (good)
        return BAGS_OK;
    unlink(path);
    return fail_system(err, error, path, "write");
}

/* ---- directories ---- */

bool path_exists(const char *path) {
    struct stat about;
    return !lstat(path, &about);
}

static bool is_directory(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISDIR(about.st_mode);
}

bags_code directory_make(const char *path, bags_error *err) {
    if (path[0] == 0)
        return bags_fail(err, BAGS_ERROR_MISSING, "a directory needs a name");
    char *part = string_format(err, "%s", path);
    if (!part)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    for (char *at = part + 1; !code; at++) {
        bool end = *at == 0;
        const char separator = *at;
        if (!end && !is_separator(separator))
            continue;
        *at = 0;
        if (mkdir(part, 0777) && !(errno == EEXIST && is_directory(part)) &&
            !is_directory(part))
            code = fail_system(err, errno, part, "make the directory");
        if (end)
            break;
        *at = separator;
    }
    free(part);
    return code;
}

static void remove_entry(const char *directory, const char *name) {
    char *path = path_join(directory, name, NULL);
    struct stat about;
    if (path && !lstat(path, &about)) {
        if (S_ISDIR(about.st_mode))
            directory_remove(path);
        else
            unlink(path);
    }
    free(path);
}

void directory_remove(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            remove_entry(path, entry->d_name);
    if (directory)
        closedir(directory);
    rmdir(path);
}

/* ---- names ---- */

#define NAME_MOST 48

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Whether a name can be used as it is: short, of plain characters, no capitals,
 * which some file systems fold, and no device of Windows (they all have 3 or 4
 * characters). */
static bool is_good_name(const char *name) {
    static const char *const devices[] = {"con", "prn", "aux", "nul", "com",
        "lpt"};
    size_t size = strlen(name);
    if (size == 0 || size > NAME_MOST || name[0] == '-')
        return false;
    for (size_t i = 0; i < size; i++)
        if (!is_plain(name[i]) || (name[i] >= 'A' && name[i] <= 'Z'))
            return false;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (size < 5 && !strncmp(name, devices[i], 3))
            return false;
    return true;
}

/* Other names get ~ and the field's number, which no good name has. */
static char *name_make(const char *name, size_t number, bags_error *err) {
    char plain[NAME_MOST + 1];
    size_t size = 0;
    if (is_good_name(name))
        return string_format(err, "%s", name);
    for (; size < NAME_MOST && name[size]; size++)
        plain[size] = is_plain(name[size]) ? name[size] : '_';
    plain[size] = 0;
    return string_format(err, "%s~%zu", plain[0] == '-' ? "" : plain, number);
}

char **names_make(const bags_field *fields, size_t count, bags_error *err) {
    char **names = (char **)calloc(count + 1, sizeof *names);
    if (!names) {
        fail_memory(err);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = name_make(fields[i].name, i, err);
        if (!names[i]) {
            names_free(names, i);
            return NULL;
        }
    }
    return names;
}

void names_free(char **names, size_t count) {
    for (size_t i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
}
