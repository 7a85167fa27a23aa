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
#include "unzip.h"

#include <stdlib.h>

struct bags_npz {
    zip_t *archive;
    uint64_t size; /* of the file */
};

static zip_t *npz_open(bags_view file, bags_error *err) {
    zip_error_t why;
    zip_error_init(&why);
    zip_t *archive = NULL;
    zip_source_t *source = zip_source_buffer_create(file.data, file.size, 0, &why);
    if (source)
        archive = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &why);
    if (!archive) {
        format_unzip_fail(err, "invalid .npz file", &why);
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

bags_code bags_npz_read(bags_npz *npz, size_t i, uint64_t limit, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    if (i >= bags_npz_length(npz))
        return bags_fail(err, BAGS_ERROR_RANGE,
            ".npz member %" PRIu64 " out of range (length %" PRIu64 ")", (uint64_t)i,
            (uint64_t)bags_npz_length(npz));
    char name[40];
    (void)snprintf(name, sizeof name, ".npz member %" PRIu64, (uint64_t)i);
    return format_unzip(npz->archive, i, name, npz->size, limit ? limit : UINT64_MAX,
        scratch, out, err);
}
