/*
 * place.h - checks on output paths: never write into a dataset or over an existing
 * file. Programs do not include it.
 */
#ifndef BAGS_FORMATS_PLACE_H
#define BAGS_FORMATS_PLACE_H

#include "files.h"
#include "text.h"

#include <errno.h>
#include <string.h>

/* True for a file that marks a dataset as finished, being written, or being derived. */
static inline bool format_is_record(const char *name) {
    return !strcmp(name, "spec.json") || !strcmp(name, "spec.json.partial") ||
           !strcmp(name, "spec.json.derived");
}

typedef struct format_entries {
    bool record, bag;
} format_entries;

static inline int format_see_entry(void *user, const char *name) {
    format_entries *seen = (format_entries *)user;
    seen->record = seen->record || format_is_record(name);
    seen->bag = seen->bag || format_ends(name, strlen(name), ".bag");
    return seen->record && seen->bag ? EEXIST : 0;
}

/* Return errors that leave open whether there is a dataset. The others mean that the
 * path cannot be a dataset, or that this process may not search the directory. */
static inline int format_serious(int error) {
    static const int others[] = {ENOENT, ENOTDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (error == others[i])
            return 0;
    return error;
}

/* Find out whether a directory or its first shard has the files of a dataset. A
 * spec.json by itself proves nothing, so a directory that has one is listed. Returns 0,
 * or an errno value. */
static inline int format_has_dataset(
    const bags_io *io, const char *directory, bool in_shard, bool *found) {
    static const char *const records[] = {"", ".partial", ".derived"};
    format_entries seen = {false, false};
    bags_path_kind kind = BAGS_PATH_NONE;
    char path[FORMAT_PATH];
    const char *record = in_shard ? "000000/spec.json" : "spec.json";
    for (size_t i = 0; i < 3 && kind != BAGS_PATH_FILE; i++) {
        if (format_path(path, directory, record, records[i], NULL))
            return 0;
        int error = io->kind(io->user, path, &kind);
        if (error)
            return format_serious(error);
    }
    if (kind != BAGS_PATH_FILE || !io->list ||
        (in_shard && format_path(path, directory, "000000", "", NULL)))
        return 0;
    int error =
        io->list(io->user, in_shard ? path : directory, format_see_entry, &seen);
    *found = error == EEXIST;
    return *found ? 0 : format_serious(error);
}

/* Replace a path by its parent directory. The path gets shorter unless it contains a
 * link. *moved becomes false at the top. Returns 0, or an errno value. */
static inline int format_go_up(const bags_io *io, char path[FORMAT_PATH], bool *moved) {
    char up[FORMAT_PATH];
    bags_identity here, there, shorter;
    size_t size = strlen(path);
    *moved = false;
    if (format_path(up, path, "..", "", NULL) || !io->identify)
        return 0;
    int error = io->identify(io->user, NULL, path, &here);
    if (!error)
        error = io->identify(io->user, NULL, up, &there);
    if (error || (here.device == there.device && here.inode == there.inode))
        return format_serious(error);
    memcpy(up, path, size + 1);
    while (size > 0 && up[size - 1] != '/')
        size--;
    up[size > 1 ? size - 1 : size] = 0;
    if (size == 0)
        memcpy(up, ".", 2);
    bool same = strcmp(path, ".") != 0 && !io->identify(io->user, NULL, up, &shorter) &&
                shorter.device == there.device && shorter.inode == there.inode;
    if (!same && format_path(up, path, "..", "", NULL))
        return 0;
    memcpy(path, up, strlen(up) + 1);
    *moved = true;
    return 0;
}

/* Replace a path, existing or not, by its directory. An existing directory is left
 * unchanged, and *inside is set. Returns 0, or an errno value. */
static inline int format_go_to_directory(
    const bags_io *io, char path[FORMAT_PATH], bool *inside) {
    bags_path_kind kind = BAGS_PATH_NONE;
    size_t size = strlen(path);
    int error = 0;
    *inside = true; /* this directory itself may be a dataset */
    while (
        (error = io->kind(io->user, path, &kind)) == 0 && kind != BAGS_PATH_DIRECTORY) {
        while (size > 0 && path[size - 1] == '/')
            size--;
        while (size > 0 && path[size - 1] != '/')
            size--;
        path[size] = 0;
        *inside = false;
        if (size == 0) {
            memcpy(path, ".", 2);
            return 0;
        }
    }
    while (size > 1 && path[size - 1] == '/')
        path[--size] = 0;
    return format_serious(error);
}

/* Fail with BAGS_ERROR_ARGUMENT if a path, existing or not, is in a dataset's
 * directory, even through links. Other programs would treat a file there as part of the
 * dataset, and remove it with the dataset. */
static inline bags_code format_check_outside(
    const bags_io *io, const char *path, bags_error *err) {
    char at[FORMAT_PATH];
    size_t size = strlen(path);
    if (size + 3 >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(path));
    memset(at, 0, sizeof at);
    memcpy(at, path, size);
    bool inside, found = false, moved = true;
    int error = format_go_to_directory(io, at, &inside);
    if (!error && inside)
        error = format_go_up(io, at, &moved);
    while (!error && moved) {
        error = format_has_dataset(io, at, false, &found);
        if (!error && !found)
            error = format_has_dataset(io, at, true, &found);
        if (found)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%s: is in the directory of the dataset %s", bags_path_tail(path),
                bags_path_tail(at));
        if (!error)
            error = format_go_up(io, at, &moved);
    }
    return bags_fail_io(io, error, at, "search for a dataset in", err);
}

/* The content of an existing directory. */
typedef struct format_left {
    const bags_io *io;
    const char *path;
    unsigned depth;
    bool any, record, finished, files; /* whether there are files of a dataset, and
                                        * which */
    bool unfinished;                   /* an incomplete shard or part */
    bool other;                        /* files that no writer makes */
} format_left;

static inline int format_left_entry(void *user, const char *name) {
    format_left *in = (format_left *)user;
    size_t size = strlen(name), parent = strlen(in->path);
    char path[FORMAT_PATH];
    bags_path_kind kind = BAGS_PATH_NONE;
    format_left below;
    in->any = true;
    if (format_path(path, in->path, name, "", NULL) ||
        in->io->kind(in->io->user, path, &kind) || kind == BAGS_PATH_NONE)
        in->other = true;
    else if (kind == BAGS_PATH_FILE) {
        in->record = in->record || format_is_record(name);
        in->finished = in->finished || !strcmp(name, "spec.json");
        in->files = true;
        if (format_ends(name, size, ".partial")) /* not completed by a writer */
            size -= strlen(".partial");
        in->other =
            !format_is_record(name) && !format_is_of_bag(name, size) &&
            strcmp(name, "refs.partial") != 0 && strcmp(name, "finalized") != 0 &&
            (size != strlen("info.json") || strncmp(name, "info.json", size) != 0);
    } else if (in->depth == 2 || (name[strspn(name, "0123456789")] &&
                                     !format_ends(in->path, parent, ".parts"))) {
        in->other = true;
    } else {
        memset(&below, 0, sizeof below);
        below.io = in->io;
        below.path = path;
        below.depth = in->depth + 1;
        if (in->io->list(in->io->user, path, format_left_entry, &below))
            below.other = true;
        in->other = below.other || (below.files && !below.record);
        in->unfinished = in->unfinished || below.unfinished || !below.any ||
                         (below.files && !below.finished);
    }
    return in->other;
}

/* Fail because a path exists. Suggest removing it only if a killed process left it,
 * that is, if it contains only dataset files that are incomplete or have temporary
 * names. */
static inline bags_code format_fail_exists(
    const bags_io *io, const char *path, bool temporary, bags_error *err) {
    format_left top;
    memset(&top, 0, sizeof top);
    top.io = io;
    top.path = path;
    if (!io->list || io->list(io->user, path, format_left_entry, &top))
        top.other = true;
    bool ours = !top.other && (top.record || !top.files);
    const char *remedy = "write to a new path";
    if (ours && !top.any)
        remedy = "it is an empty directory: rmdir removes it";
    else if (ours && (temporary || top.unfinished || (top.files && !top.finished)))
        remedy = "if an earlier run was killed, remove it";
    return bags_fail(
        err, BAGS_ERROR_EXISTS, "%s: already exists; %s", bags_path_tail(path), remedy);
}

#endif /* BAGS_FORMATS_PLACE_H */
