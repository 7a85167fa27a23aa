/*
 * unzip.h - read a member of a zip file with libzip, for zarr.c. Programs do not
 * include it.
 */
#ifndef BAGS_FORMATS_IMPORT_UNZIP_H
#define BAGS_FORMATS_IMPORT_UNZIP_H

#include "bags.h"
#include "try.h"

#include <inttypes.h>
#include <zip.h>

/* Deflate expands a byte to at most this many. */
#define FORMAT_UNZIP_RATIO 1032

static inline bags_code format_unzip_fail(
    bags_error *err, const char *name, zip_error_t *why) {
    bool memory = zip_error_code_zip(why) == ZIP_ER_MEMORY;
    return bags_fail(err, memory ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT, "%s: %s",
        name, zip_error_strerror(why));
}

/* Check that an archive's statements about a member are plausible, and that the member
 * has at most `limit` bytes. */
static inline bags_code format_unzip_check(
    const char *name, const zip_stat_t *about, uint64_t limit, bags_error *err) {
    const zip_uint64_t needed =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    bool stored = about->comp_method == ZIP_CM_STORE;
    if ((about->valid & needed) != needed)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: unknown size", name);
    if ((about->valid & ZIP_STAT_ENCRYPTION_METHOD) &&
        about->encryption_method != ZIP_EM_NONE)
        return bags_fail(err, BAGS_ERROR_VALUE, "%s: encrypted", name);
    if (!stored && about->comp_method != ZIP_CM_DEFLATE)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: unsupported compression (method %d)", name, (int)about->comp_method);
    if (about->size / (stored ? 1 : FORMAT_UNZIP_RATIO) > about->comp_size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: claims too much (%" PRIu64 " bytes, compressed %" PRIu64 ")", name,
            (uint64_t)about->size, (uint64_t)about->comp_size);
    if (about->size > limit || about->size >= SIZE_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")", name,
            (uint64_t)about->size, limit < SIZE_MAX ? limit : (uint64_t)SIZE_MAX - 1);
    return BAGS_OK;
}

/* Read a member into a buffer, and append a zero byte. Messages begin with `name`. */
static inline bags_code format_unzip(zip_t *archive, uint64_t i, const char *name,
    uint64_t limit, bags_buffer *buffer, bags_view *out, bags_error *err) {
    zip_stat_t about;
    zip_stat_init(&about);
    if (zip_stat_index(archive, i, 0, &about))
        return format_unzip_fail(err, name, zip_get_error(archive));
    FORMAT_TRY(format_unzip_check(name, &about, limit, err));
    size_t size = (size_t)about.size, done = 0;
    FORMAT_TRY(bags_buffer_reserve(buffer, size + 1, err));
    zip_file_t *member = zip_fopen_index(archive, i, 0);
    if (!member)
        return format_unzip_fail(err, name, zip_get_error(archive));
    /* Read one more byte, since the library verifies the checksum at the end. */
    zip_int64_t part = 1;
    while (part > 0 && done <= size) {
        part = zip_fread(member, buffer->data + done, size - done + 1);
        done += part > 0 ? (size_t)part : 0;
    }
    zip_fclose(member);
    if (part < 0 || done != size)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: damaged", name);
    buffer->data[size] = 0;
    out->data = buffer->data;
    out->size = size;
    return BAGS_OK;
}

#endif /* BAGS_FORMATS_IMPORT_UNZIP_H */
