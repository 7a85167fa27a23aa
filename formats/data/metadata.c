/*
 * metadata.c - info.json, the metadata of a dataset; see datasets.h.
 */
#include "derived.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const bags_io *metadata_io(const bags_env *env) {
    return env && env->io ? env->io : bags_io_local();
}

bags_code bags_metadata_path(const char *path, const bags_reader *reader, char *out,
    size_t size, bags_error *err) {
    size_t count = 0;
    if (!path || !reader || !out || !size)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    const bags_shard *shards = bags_reader_shards(reader, &count);
    bags_shard none;
    memset(&none, 0, sizeof none);
    FORMAT_TRY(bags_shard_path(path, count ? shards : &none, out, size, err));
    size_t length = strlen(out);
    int made = snprintf(out + length, size - length, "/info.json");
    return made >= 0 && (size_t)made < size - length
               ? BAGS_OK
               : bags_fail(
                     err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(path));
}

bags_code bags_metadata_read(const char *path, const bags_reader *reader,
    const bags_env *env, bags_buffer *scratch, bags_view *json, bags_error *err) {
    char file[FORMAT_PATH];
    const bags_io *io = metadata_io(env);
    bags_path_kind kind = BAGS_PATH_NONE;
    if (!scratch || !json)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    FORMAT_TRY(bags_metadata_path(path, reader, file, sizeof file, err));
    FORMAT_TRY(bags_fail_io(io, io->kind(io->user, file, &kind), file, "open", err));
    json->data = NULL;
    json->size = 0;
    if (kind == BAGS_PATH_NONE)
        return BAGS_OK;
    return format_read_file(
        io, file, BAGS_METADATA_MOST, BAGS_ERROR_LIMIT, scratch, json, err);
}

#ifndef BAGS_NO_WRITER

/* Replace a file; *made becomes true once there is a temporary file. */
static bags_code metadata_replace(const bags_io *io, const char *partial,
    const char *path, bags_view json, bool no_sync, bool *made, bags_error *err) {
    void *file = NULL;
    int error = io->open(io->user, partial, BAGS_IO_CREATE, &file);
    FORMAT_TRY(bags_fail_io(io, error, partial, "create", err));
    *made = true;
    error = format_write_all(io, file, 0, json.data, json.size);
    if (!error && !no_sync)
        error = io->sync(io->user, file);
    int closed = io->close(io->user, file);
    FORMAT_TRY(bags_fail_io(io, error ? error : closed, partial, "write", err));
    error = io->rename(io->user, partial, path);
    return bags_fail_io(io, error, path, "rename", err);
}

bags_code bagi_metadata_put(const bags_io *io, const char *directory, bags_view json,
    bool no_sync, bags_error *err) {
    char path[FORMAT_PATH], partial[FORMAT_PATH];
    bool made = false;
    if (json.size > BAGS_METADATA_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s/info.json: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            bags_path_tail(directory), (uint64_t)json.size,
            (uint64_t)BAGS_METADATA_MOST);
    FORMAT_TRY(format_path(path, directory, "info.json", "", err));
    FORMAT_TRY(format_path(partial, directory, "info.json", ".partial", err));
    (void)io->remove(io->user, partial); /* a killed process left it */
    bags_code code = metadata_replace(io, partial, path, json, no_sync, &made, err);
    if (code && made)
        (void)io->remove(io->user, partial);
    if (code || no_sync)
        return code;
    return bags_fail_io(io, io->sync_dir(io->user, directory), directory, "sync", err);
}

bags_code bags_metadata_write(const char *path, bags_view json, bool no_sync,
    const bags_env *env, bags_error *err) {
    char file[FORMAT_PATH];
    bags_error ignored;
    bags_reader_options reading;
    if (!err)
        err = &ignored;
    memset(&reading, 0, sizeof reading);
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.allow_gaps = true;
    if (env)
        reading.env = *env;
    bags_reader *reader = bags_reader_open(path, &reading, err);
    if (!reader)
        return err->code;
    bags_code code = bags_metadata_path(path, reader, file, sizeof file, err);
    bags_reader_close(reader);
    FORMAT_TRY(code);
    *strrchr(file, '/') = 0;
    return bagi_metadata_put(metadata_io(env), file, json, no_sync, err);
}

#endif /* BAGS_NO_WRITER */
