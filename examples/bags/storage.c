/*
 * Where paths are: local files, and datasets inside archives.
 */
#include "command.h"
#include "system.h"

#include "../../formats/formats.h"

/* An archive that was opened, until the program ends. */
typedef struct opened {
    const char *path;
    bags_archive *archive;
} opened;

static opened *archives;
static size_t archives_count;

/* True if this part of a path names an archive. Compressed ones are archives too,
 * so that the error states what is wrong. */
static bool has_archive_name(const char *path) {
    static const char *const endings[] = {
        ".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (has_ending(path, endings[i]))
            return true;
    return false;
}

/* The hooks for everything that is not in an archive. */
static const bags_io *base_io(const char *path) {
    (void)path;
    return bags_io_local();
}

/* The archive at the start of a path, to be freed; NULL if there is none. */
static char *find_archive(const char *path) {
    const bags_io *base = base_io(path);
    size_t size = strlen(path);
    for (size_t i = 1; i <= size; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        if (path[i] && !is_separator(path[i]))
            continue;
        char *front = string_format("%.*s", (int)i, path);
        if (has_archive_name(front) && !base->kind(base->user, front, &kind) &&
            kind == BAGS_PATH_FILE)
            return front;
        free(front);
    }
    return NULL;
}

const bags_io *io_for_path(const char *path) {
    bags_archive_options options = {0};
    char *front = find_archive(path);
    if (!front)
        return base_io(path);
    for (size_t i = 0; i < archives_count; i++)
        if (!strcmp(archives[i].path, front)) {
            free(front);
            return bags_archive_io(archives[i].archive);
        }
    options.env.io = base_io(front);
    archives = (opened *)grow(archives, archives_count, sizeof *archives);
    archives[archives_count].path = front;
    archives[archives_count].archive =
        bags_archive_open(front, &options, &failure);
    if (!archives[archives_count].archive)
        die();
    return bags_archive_io(archives[archives_count++].archive);
}

bags_path_kind path_kind(const char *path) {
    const bags_io *io = io_for_path(path);
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = io->kind(io->user, path, &kind);
    if (error)
        fail_system(error, path, "open");
    return kind;
}

void path_must_be_writable(const char *path) {
    char *front = find_archive(path);
    bool found = front != NULL;
    free(front);
    if (found)
        fail(BAGS_ERROR_IO,
            "%s: cannot write: an archive is only read; unpack it first", path);
}

/* ---- a dataset below the path ---- */

typedef struct search {
    const char *path;
    char *found; /* a directory in it, or NULL */
} search;

static int keep_directory(void *user, const char *name) {
    search *in = (search *)user;
    char *path = path_join(in->path, name);
    if (!in->found && path_kind(path) == BAGS_PATH_DIRECTORY)
        in->found = path;
    else
        free(path);
    return 0;
}

void path_hint(const char *path) {
    search in = {path, NULL};
    const bags_io *io = io_for_path(path);
    if (io == base_io(path) || path_kind(path) != BAGS_PATH_DIRECTORY)
        return;
    io->list(io->user, path, keep_directory, &in);
    if (in.found)
        failure_suffix("; there is a directory %s", in.found);
    free(in.found);
}
