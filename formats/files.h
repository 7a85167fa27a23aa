/*
 * files.h - file paths, versions and locks, and the names of a dataset's files.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_FILES_H
#define BAGS_FORMATS_FILES_H

#include "text.h"
#include "try.h"
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/* Binary search in an array of structs sorted by a uint64_t member. Returns the index
 * of the last element <= `most`, or 0. `numbers` points to the member in the first
 * struct. */
static inline size_t format_last_at_most(
    const uint64_t *numbers, size_t size, size_t count, uint64_t most) {
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        const void *at = (const char *)numbers + middle * size;
        if (*(const uint64_t *)at <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#define FORMAT_PATH 4096 /* size of the longest path */

/* Write DIRECTORY/NAMEENDING to out. */
static inline bags_code format_path(char out[FORMAT_PATH], const char *directory,
    const char *name, const char *ending, bags_error *err) {
    int size = snprintf(out, FORMAT_PATH, "%s/%s%s", directory, name, ending);
    return size >= 0 && size < FORMAT_PATH
               ? BAGS_OK
               : bags_fail(err, BAGS_ERROR_LIMIT, "%s: path too long",
                     bags_path_tail(directory));
}

static inline bool format_is_same(const bags_identity *a, const bags_identity *b) {
    return a->device == b->device && a->inode == b->inode && a->time == b->time &&
           a->size == b->size;
}

/* Check that an open file (or if NULL, the file at `path`) still has the identity
 * recorded earlier, so that all files read belong to one version of the dataset.
 * Without the hook, changes go unnoticed. */
static inline bags_code format_check_identity(const bags_io *io, void *file,
    const char *path, const bags_identity *was, bags_error *err) {
    bags_identity now;
    if (!io->identify)
        return BAGS_OK;
    int error = io->identify(io->user, file, path, &now);
    if (error && error != ENOENT)
        return bags_fail_io(io, error, path, "identify", err);
    if (!error && format_is_same(&now, was))
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: changed while it was read: another process replaced, renamed, "
        "removed or wrote it",
        path);
}

/* Read up to *size bytes. *size becomes smaller at the end of the file. Returns 0, or an
 * errno value. */
static inline int format_read_some(
    const bags_io *io, void *file, uint64_t at, void *data, size_t *size) {
    size_t done = 0, step = 1;
    int error = 0;
    for (; done < *size && step > 0 && !error; done += step) {
        step = 0;
        error = io->read_at(
            io->user, file, at + done, (char *)data + done, *size - done, &step);
    }
    *size = done;
    return error;
}

/* Get a file's size and the identity of its version (left unchanged without the
 * hook). */
static inline bags_code format_measure(const bags_io *io, const char *path,
    uint64_t *size, bags_identity *identity, bags_error *err) {
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(io, error, path, "open", err);
    error = io->size(io->user, file, size);
    if (!error && io->identify)
        error = io->identify(io->user, file, path, identity);
    io->close(io->user, file);
    return bags_fail_io(io, error, path, "get the size of", err);
}

static inline bags_code format_read_open(const bags_io *io, void *file,
    const char *path, uint64_t most, bags_code too_large, bags_buffer *buffer,
    bags_view *out, bags_error *err) {
    uint64_t size = 0;
    FORMAT_TRY(bags_fail_io(
        io, io->size(io->user, file, &size), path, "get the size of", err));
    if (size > most)
        return bags_fail(err, too_large,
            "%s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            bags_path_tail(path), size, most);
    FORMAT_TRY(bags_buffer_reserve(buffer, (size_t)size + 1, err));
    FORMAT_TRY(bags_read(io, file, path, 0, buffer->data, (size_t)size, err));
    buffer->data[size] = 0;
    out->data = buffer->data;
    out->size = (size_t)size;
    return BAGS_OK;
}

/* Read a whole file, and append a zero byte. If it has more than `most` bytes, fail with
 * `too_large`. */
static inline bags_code format_read_file(const bags_io *io, const char *path,
    uint64_t most, bags_code too_large, bags_buffer *buffer, bags_view *out,
    bags_error *err) {
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    FORMAT_TRY(bags_fail_io(io, error, path, "open", err));
    bags_code code =
        format_read_open(io, file, path, most, too_large, buffer, out, err);
    io->close(io->user, file);
    return code;
}

/* Write bytes at an offset. Returns 0, or an errno value. */
static inline int format_write_all(
    const bags_io *io, void *file, uint64_t at, const void *data, size_t size) {
    int error = 0;
    for (size_t done = 0, step = 0; done < size && !error; done += step) {
        step = 0;
        error = io->write_at(
            io->user, file, at + done, (const char *)data + done, size - done, &step);
        if (!error && (step == 0 || step > size - done))
            error = EIO;
    }
    return error;
}

/* Open or create a file and lock it. If it is already locked, fail with "OF: locked by
 * another running BY". */
static inline bags_code format_open_locked(const bags_io *io, const char *path,
    const char *of, const char *by, void **file, bags_error *err) {
    for (;;) {
        bags_identity opened, found;
        int error = io->open(io->user, path, BAGS_IO_WRITE, file);
        if (error == ENOENT)
            error = io->open(io->user, path, BAGS_IO_CREATE, file);
        if (error == EEXIST)
            continue;
        if (error)
            return bags_fail_io(io, error, path, "create", err);
        error = io->lock(io->user, *file);
        if (!error && io->identify)
            error = io->identify(io->user, *file, path, &opened);
        /* Another process may have renamed or removed the file before it was locked. */
        if (!error && (!io->identify || (!io->identify(io->user, NULL, path, &found) &&
                                            opened.device == found.device &&
                                            opened.inode == found.inode)))
            return BAGS_OK;
        io->close(io->user, *file);
        *file = NULL;
        if (error == EWOULDBLOCK)
            return bags_fail(
                err, BAGS_ERROR_LOCKED, "%s: locked by another running %s", of, by);
        if (error)
            return bags_fail_io(io, error, path, "lock", err);
    }
}

#define FORMAT_SUFFIXES 4

/* The extensions of a Bag and of its companion files: checksums, ends and
 * dictionary. */
static inline const char *format_suffix(size_t i) {
    static const char *const suffixes[FORMAT_SUFFIXES] = {
        ".bag", ".crc", ".idx", ".dict"};
    return suffixes[i];
}

/* True for the name of a Bag or of one of its companion files. */
static inline bool format_is_of_bag(const char *name, size_t size) {
    size_t i = 0;
    while (i < FORMAT_SUFFIXES && !format_ends(name, size, format_suffix(i)))
        i++;
    return i < FORMAT_SUFFIXES;
}

/* Iterate over the file names of a shard, relative to the dataset's directory
 * ("000003/refs.bag"): first spec.json, then each Bag and its companion files, and in
 * the first shard the mark of bags_finalize and the metadata. All files except
 * spec.json and the Bags may be missing. *next starts at 0. False after the last name. */
static inline bool format_file_name(
    const bags_reader *reader, size_t shard, size_t *next, char name[600]) {
    char directory[255 + 1 + 1] = ""; /* the longest file name and a slash */
    size_t count = 0;
    const bags_shard *own = &bags_reader_shards(reader, &count)[shard];
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (own->digits)
        (void)snprintf(directory, sizeof directory, "%0*" PRIu64 "/", (int)own->digits,
            own->number);
    size_t files = 1 + FORMAT_SUFFIXES * (count + 1), i = (*next)++, field = 0;
    for (; i > 0 && i < files; i = (*next)++) {
        field = (i - 1) / FORMAT_SUFFIXES;
        bool is_dictionary = i % FORMAT_SUFFIXES == 0; /* the last ending */
        if (!is_dictionary ||
            (field < count && format_has_dictionary(bags_reader_type(reader, field))))
            break;
    }
    if (i == 0)
        (void)snprintf(name, 600, "%sspec.json", directory);
    else if (i >= files)
        (void)snprintf(
            name, 600, "%s%s", directory, i == files ? "finalized" : "info.json");
    else
        (void)snprintf(name, 600, "%s%s%s", directory,
            field < count ? fields[field].name : "refs",
            format_suffix((i - 1) % FORMAT_SUFFIXES));
    return i < files + (shard == 0 ? 2 : 0);
}

#endif /* BAGS_FORMATS_FILES_H */
