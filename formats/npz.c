/*
 * npz.c - reads NumPy's .npz files, on libzip 1.5 or later (Debian: libzip-dev).
 *
 * An .npz is a ZIP archive of .npy files, stored (numpy.savez) or deflated
 * (numpy.savez_compressed). This extracts them; bags_npy_read of numpy.c, or any
 * other reader, decodes them. It is not a type of a field: a datapoint with
 * several arrays has a field for each.
 *
 * Rejected: encrypted archives, other compression methods, and a member that
 * claims to be larger than its compressed bytes can become.
 */
#include "codecs.h"

#include <zip.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Deflate makes at most this number of bytes of one. */
#define NPZ_MOST_RATIO 1032

struct bags_npz {
    zip_t *archive;
    uint64_t size; /* of the file */
};

static bags_code npz_fail(bags_error *err, zip_error_t *why) {
    bool memory = zip_error_code_zip(why) == ZIP_ER_MEMORY;
    return bags_fail(err, memory ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT,
        "invalid .npz file: %s", zip_error_strerror(why));
}

static zip_t *npz_open(bags_view file, bags_error *err) {
    zip_error_t why;
    zip_error_init(&why);
    zip_t *archive = NULL;
    zip_source_t *source = zip_source_buffer_create(file.data, file.size, 0, &why);
    if (source)
        archive = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &why);
    if (!archive) {
        npz_fail(err, &why);
        zip_source_free(source);
    }
    zip_error_fini(&why);
    return archive;
}

bags_npz *bags_npz_open(bags_view file, bags_error *err) {
    if (file.size < 4 || memcmp(file.data, "PK", 2) != 0) {
        bags_fail(err, BAGS_ERROR_CORRUPT, "not a .npz file");
        return NULL;
    }
    bags_npz *npz = (bags_npz *)malloc(sizeof *npz);
    if (!npz) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    npz->size = file.size;
    npz->archive = npz_open(file, err);
    if (npz->archive)
        return npz;
    free(npz);
    return NULL;
}

void bags_npz_close(bags_npz *npz) {
    if (!npz)
        return;
    zip_discard(npz->archive);
    free(npz);
}

size_t bags_npz_length(const bags_npz *npz) {
    return (size_t)zip_get_num_entries(npz->archive, 0);
}

bags_view bags_npz_name(const bags_npz *npz, size_t i) {
    bags_view name = {NULL, 0};
    const char *text = zip_get_name(npz->archive, i, ZIP_FL_ENC_RAW);
    if (!text)
        return name;
    name.data = (const unsigned char *)text;
    name.size = strlen(text);
    if (name.size >= 4 && memcmp(text + name.size - 4, ".npy", 4) == 0)
        name.size -= 4;
    return name;
}

/* What the archive states about a member, if it can be true. */
static bags_code npz_stat(
    const bags_npz *npz, size_t i, uint64_t limit, zip_stat_t *about, bags_error *err) {
    const zip_uint64_t needed =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    zip_stat_init(about);
    if (zip_stat_index(npz->archive, i, 0, about) || (about->valid & needed) != needed)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "unknown size of .npz member %" PRIu64, (uint64_t)i);
    if ((about->valid & ZIP_STAT_ENCRYPTION_METHOD) &&
        about->encryption_method != ZIP_EM_NONE)
        return bags_fail(err, BAGS_ERROR_VALUE, "encrypted .npz file");
    bool stored = about->comp_method == ZIP_CM_STORE;
    if (!stored && about->comp_method != ZIP_CM_DEFLATE)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "unsupported compression of a .npz file (method %d)",
            (int)about->comp_method);
    if (about->comp_size > npz->size ||
        about->size / (stored ? 1 : NPZ_MOST_RATIO) > about->comp_size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            ".npz member %" PRIu64 " claims too much (%" PRIu64
            " bytes, compressed %" PRIu64 ")",
            (uint64_t)i, (uint64_t)about->size, (uint64_t)about->comp_size);
    if ((limit && about->size > limit) || about->size >= SIZE_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            ".npz member too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            (uint64_t)about->size, limit ? limit : (uint64_t)SIZE_MAX - 1);
    return BAGS_OK;
}

/* Read a member. One more byte is requested, since the library compares the
 * checksum at the end of the member. */
static bool npz_extract(zip_file_t *member, unsigned char *to, size_t size) {
    for (size_t done = 0; done <= size;) {
        zip_int64_t part = zip_fread(member, to + done, size - done + 1);
        if (part <= 0)
            return part == 0 && done == size;
        done += (size_t)part;
    }
    return false;
}

bags_code bags_npz_read(bags_npz *npz, size_t i, uint64_t limit, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    if (i >= bags_npz_length(npz))
        return bags_fail(err, BAGS_ERROR_RANGE,
            ".npz member %" PRIu64 " out of range (length %" PRIu64 ")", (uint64_t)i,
            (uint64_t)bags_npz_length(npz));
    zip_stat_t about;
    bags_code code = npz_stat(npz, i, limit, &about, err);
    size_t size = (size_t)about.size;
    if (!code)
        code = bags_buffer_reserve(scratch, size + 1, err);
    if (code)
        return code;
    zip_file_t *member = zip_fopen_index(npz->archive, i, 0);
    if (!member)
        return npz_fail(err, zip_get_error(npz->archive));
    bool complete = npz_extract(member, scratch->data, size);
    zip_fclose(member);
    if (!complete)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "damaged .npz member %" PRIu64, (uint64_t)i);
    out->data = scratch->data;
    out->size = size;
    return BAGS_OK;
}
