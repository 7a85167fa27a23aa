/*
 * zarr_chunks.h - the chunks of a Zarr array: reading them from files and shards, and
 * undoing their codecs. For zarr.c. Private.
 *
 *     shard, index at its end:   chunk | chunk | ... | index | crc32c of the index
 *     index:                     offset and size of each chunk, 8 bytes each, in C order;
 *                                both 2^64-1: the chunk is missing
 */
#ifndef BAGS_IMPORT_ZARR_CHUNKS_H
#define BAGS_IMPORT_ZARR_CHUNKS_H

#include "zarr.h"

#include <blosc.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

/* ---- codecs ---- */

static inline size_t zr_inflate(
    bags_view in, unsigned char *out, size_t size, int bits) {
    z_stream z;
    memset(&z, 0, sizeof z);
    z.next_in = (unsigned char *)(uintptr_t)in.data;
    z.avail_in = (uInt)in.size;
    z.next_out = out;
    z.avail_out = (uInt)size;
    if (inflateInit2(&z, bits) != Z_OK)
        return SIZE_MAX;
    int end = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return end == Z_STREAM_END && z.avail_in == 0 ? size - z.avail_out : SIZE_MAX;
}

/* Decompress to at most `size` bytes. Returns their number, or SIZE_MAX if the data are
 * invalid. */
static inline size_t zr_decompress(const zr_array *a, const char *codec, bags_view in,
    unsigned char *out, size_t size) {
    if (strcmp(codec, "blosc") == 0) {
        size_t states;
        bool valid = blosc_cbuffer_validate(in.data, in.size, &states) == 0 &&
                     states <= size &&
                     blosc_decompress_ctx(in.data, out, states, 1) == (int)states;
        return valid ? states : SIZE_MAX;
    }
    if (strcmp(codec, "zstd") == 0) {
        size_t made = ZSTD_decompress(out, size, in.data, in.size);
        return ZSTD_isError(made) ? SIZE_MAX : made;
    }
    if (strcmp(codec, "lz4") == 0) { /* after the size */
        int made = in.size < 4 ? -1
                               : LZ4_decompress_safe((const char *)in.data + 4,
                                     (char *)out, (int)in.size - 4, (int)size);
        return made < 0 ? SIZE_MAX : (size_t)made;
    }
    /* Version 2: zlib or gzip. */
    return zr_inflate(in, out, size, a->version == 2 ? 15 + 32 : 15 + 16);
}

/* The most bytes of a stored chunk. */
static inline uint64_t zr_limit(const zr_array *a) {
    return a->codec_count ? a->chunk_size + a->chunk_size / 8 + 4096 : a->chunk_size;
}

/* The number of bytes before codec i was applied, if every earlier codec has a fixed
 * size. */
static inline bool zr_is_exact(const zr_array *a, size_t i, size_t *size) {
    *size = a->chunk_size;
    for (size_t k = 0; k < i; k++) {
        if (strcmp(a->codecs[k], "crc32c") != 0)
            return false;
        *size += 4;
    }
    return true;
}

/* Undo codec i. */
static inline bags_code zr_undo(
    bags_source *s, zr_array *a, const char *key, size_t i, bags_view *bytes) {
    zr_state *z = (zr_state *)s->state;
    const char *codec = a->codecs[i];
    size_t size;
    bool exact = zr_is_exact(a, i, &size);
    if (strcmp(codec, "crc32c") == 0) {
        if (bytes->size < 4)
            return bags_source_fail(
                s, BAGS_ERROR_CORRUPT, "%s: the chunk has no checksum", key);
        bytes->size -= 4;
        uint32_t computed = bags_crc32c(0, bytes->data, bytes->size);
        uint32_t stored =
            (uint32_t)bags_load_bytes(bytes->data + bytes->size, 4, false);
        if (computed == stored)
            return BAGS_OK;
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%s: checksum mismatch of the chunk (computed %08" PRIx32
            ", stored %08" PRIx32 ")",
            key, computed, stored);
    }
    if (!exact)
        size = (size_t)zr_limit(a);
    if (exact && size / ZR_RATIO > bytes->size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%s: size of the chunk is wrong (%" PRIu64 " bytes for %" PRIu64 ")", key,
            (uint64_t)bytes->size, (uint64_t)size);
    bags_buffer **to =
        z->chunk && bytes->data == z->chunk->data ? &z->other : &z->chunk;
    FORMAT_TRY(bags_source_reserve(s, to, size));
    size_t made = zr_decompress(a, codec, *bytes, (*to)->data, size);
    if (made == SIZE_MAX || (exact && made != size))
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%s: not a chunk of %" PRIu64 " bytes compressed by %s", key,
            (uint64_t)size, codec);
    bytes->data = (*to)->data;
    bytes->size = made;
    return BAGS_OK;
}

/* Put the elements of a transposed chunk in C order. */
static inline void zr_turn(
    const zr_array *a, const unsigned char *from, unsigned char *to) {
    size_t steps[BAGS_MAX_DIMS], step = a->item, d;
    uint64_t at[BAGS_MAX_DIMS] = {0};
    for (d = a->dims; d-- > 0; step *= (size_t)a->chunks[a->order[d]])
        steps[a->order[d]] = step;
    size_t count = a->chunk_size / a->item;
    for (size_t i = 0; i < count; i++, to += a->item) {
        memcpy(to, from, a->item);
        for (d = a->dims; d-- > 0; at[d] = 0) {
            from += steps[d];
            if (++at[d] < a->chunks[d])
                break;
            from -= steps[d] * (size_t)a->chunks[d];
        }
    }
}

/* ---- shards ---- */

/* The number of a shard's chunks. */
static inline size_t zr_inner(const zr_array *a) {
    size_t count = 1;
    for (size_t d = 0; d < a->dims; d++)
        count *= (size_t)(a->grid[d] / a->chunks[d]);
    return count;
}

/* Open a shard as source->file, or read it from the .zip. BAGS_ERROR_MISSING if there
 * is none. */
static inline bags_code zr_open_shard(
    bags_source *s, zr_array *a, const char *key, bool known) {
    zr_state *z = (zr_state *)s->state;
    bags_view whole;
    if (z->zip && known)
        return BAGS_OK;
    if (z->zip) {
        FORMAT_TRY(zr_read_zip(s, key, SIZE_MAX / 4, &a->whole, &whole));
        a->whole_size = whole.size;
        return BAGS_OK;
    }
    const char *path = bags_source_format(s, "%s/%s", s->path, key);
    if (!path)
        return BAGS_ERROR_MEMORY;
    if (s->file.handle && strcmp(s->where, path) == 0)
        return BAGS_OK;
    bags_code code = bags_source_open_file(s, path);
    if (code)
        bags_source_close_file(s);
    return code;
}

static inline bags_code zr_bad_shard(bags_source *s, const zr_array *a, const char *key,
    const char *what, uint64_t number, uint64_t other) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "%s%scodec sharding_indexed: %s (%" PRIu64 ", %" PRIu64 ")",
        a->whole ? key : "", a->whole ? ": " : "", what, number, other);
}

/* Read the index of an open shard. */
static inline bags_code zr_read_index(bags_source *s, zr_array *a, const char *key) {
    uint64_t size = 16 * (uint64_t)zr_inner(a) + (a->index_crc ? 4 : 0);
    uint64_t all = a->whole ? a->whole_size : s->file.size;
    uint64_t start = a->index_first ? 0 : all - size;
    bags_view view;
    uint64_t elements = size / 16 * (uint64_t)a->chunk_size;
    if (all < size)
        return zr_bad_shard(
            s, a, key, "the shard is smaller than its index", all, size);
    if (elements > ZR_SHARD && elements / ZR_RATIO > all)
        return zr_bad_shard(s, a, key,
            "the shard consists almost only of fill values; its bytes are", all,
            elements);
    FORMAT_TRY(bags_source_reserve(s, &a->index, (size_t)size));
    if (a->whole) {
        view.data = a->whole->data + start;
        view.size = (size_t)size;
    } else {
        FORMAT_TRY(bags_source_view(s, start, size, &view));
    }
    memcpy(a->index->data, view.data, view.size);
    if (!a->index_crc)
        return BAGS_OK;
    uint32_t computed = bags_crc32c(0, view.data, view.size - 4);
    uint32_t stored = (uint32_t)bags_load_bytes(view.data + view.size - 4, 4, false);
    if (computed == stored)
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "%s: checksum mismatch of the shard's index (computed %08" PRIx32
        ", stored %08" PRIx32 ")",
        key, computed, stored);
}

/* Get the stored bytes of a chunk of a shard. BAGS_ERROR_MISSING if it has none. */
static inline bags_code zr_read_inner(bags_source *s, zr_array *a, const char *key,
    const uint64_t *shard, const uint64_t *at, bags_view *out) {
    size_t size = sizeof a->shard, i = 0;
    bool known = a->shard_known && memcmp(a->shard, shard, size) == 0;
    if (known && a->shard_missing)
        return BAGS_ERROR_MISSING;
    a->shard_known = false;
    bags_code code = zr_open_shard(s, a, key, known);
    if (code && code != BAGS_ERROR_MISSING)
        return code;
    if (!known && !code)
        FORMAT_TRY(zr_read_index(s, a, key));
    memcpy(a->shard, shard, size);
    a->shard_known = true;
    a->shard_missing = code == BAGS_ERROR_MISSING;
    if (code)
        return code;
    for (size_t d = 0; d < a->dims; d++) {
        uint64_t count = a->grid[d] / a->chunks[d];
        i = i * (size_t)count + (size_t)(at[d] - shard[d] * count);
    }
    uint64_t offset = bags_load_bytes(a->index->data + 16 * i, 8, a->index_big);
    uint64_t bytes = bags_load_bytes(a->index->data + 16 * i + 8, 8, a->index_big);
    if (offset == UINT64_MAX && bytes == UINT64_MAX)
        return BAGS_ERROR_MISSING;
    uint64_t all = a->whole ? a->whole_size : s->file.size;
    if (offset > all || bytes > all - offset || bytes > zr_limit(a))
        return zr_bad_shard(s, a, key,
            "a chunk is not within the shard, or too large; its offset and size are",
            offset, bytes);
    if (!a->whole)
        return bags_source_copy(s, offset, bytes, out);
    out->data = a->whole->data + offset;
    out->size = (size_t)bytes;
    return BAGS_OK;
}

/* ---- chunks ---- */

/* The key of a file of an array. NULL if out of memory. */
static inline const char *zr_key(
    bags_source *s, const zr_array *a, const uint64_t *at) {
    const char *key = bags_source_format(s, "%s%s", a->key, a->prefix);
    for (size_t d = 0; key && d < a->dims; d++)
        key = bags_source_format(
            s, "%s%s%" PRIu64, key, d || *a->prefix ? a->separator : "", at[d]);
    if (key && a->dims == 0 && !*a->prefix)
        key = bags_source_format(s, "%s0", key);
    return key;
}

/* Get the elements of a chunk; `file` has the numbers of its file. Data NULL: the chunk
 * is missing, and all elements are the fill value. */
static inline bags_code zr_chunk(bags_source *s, zr_array *a, const uint64_t *file,
    const uint64_t *at, const unsigned char **data) {
    zr_state *z = (zr_state *)s->state;
    bags_view in = {NULL, 0};
    const char *key = zr_key(s, a, file);
    *data = NULL;
    if (!key)
        return BAGS_ERROR_MEMORY;
    bags_code code = a->sharded ? zr_read_inner(s, a, key, file, at, &in)
                                : zr_read(s, key, zr_limit(a), &in);
    if (code == BAGS_ERROR_MISSING && !a->fill)
        return bags_source_fail(
            s, BAGS_ERROR_GAP, "%s: is missing, and the array has no fill_value", key);
    if (code)
        return code == BAGS_ERROR_MISSING ? BAGS_OK : code;
    for (size_t i = a->codec_count; i-- > 0;)
        FORMAT_TRY(zr_undo(s, a, key, i, &in));
    if (in.size != a->chunk_size)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%s: size of the chunk is wrong (%" PRIu64 " bytes for %" PRIu64 ")", key,
            (uint64_t)in.size, (uint64_t)a->chunk_size);
    *data = in.data;
    if (!a->transposed)
        return BAGS_OK;
    bags_buffer **to = z->chunk && in.data == z->chunk->data ? &z->other : &z->chunk;
    FORMAT_TRY(bags_source_reserve(s, to, a->chunk_size));
    zr_turn(a, in.data, (*to)->data);
    *data = (*to)->data;
    return BAGS_OK;
}

/* Copy the part of a chunk in dimension d and later ones. `from` points into the chunk,
 * `to` into the band. Steps refer to the previous dimension. */
static inline void zr_copy(const zr_array *a, const uint64_t *at, size_t d,
    const unsigned char *from, unsigned char *to, size_t from_step, size_t to_step) {
    if (d == a->dims) {
        memcpy(to, from ? from : a->fill, a->item);
        return;
    }
    uint64_t start = at[d] * a->chunks[d], count = a->chunks[d];
    if (count > a->shape[d] - start)
        count = a->shape[d] - start;
    from_step /= (size_t)a->chunks[d];
    to_step /= (size_t)a->shape[d];
    to += start * to_step;
    if (d + 1 == a->dims && from) {
        memcpy(to, from, (size_t)count * a->item);
        return;
    }
    for (uint64_t i = 0; i < count; i++, to += to_step) {
        zr_copy(a, at, d + 1, from, to, from_step, to_step);
        from = from ? from + from_step : NULL;
    }
}

/* Advance to the next cell of a box, in dimensions 1 and later, in C order. False after
 * the last one. */
static inline bool zr_next(
    size_t dims, const uint64_t *start, const uint64_t *stop, uint64_t *at) {
    for (size_t d = dims; d > 1; d--) {
        if (++at[d - 1] < stop[d - 1])
            return true;
        at[d - 1] = start[d - 1];
    }
    return false;
}

/* Copy rows start to stop from the chunks of a file to the band. */
static inline bags_code zr_load_file(
    bags_source *s, zr_array *a, const uint64_t *file, uint64_t start, uint64_t stop) {
    uint64_t from[BAGS_MAX_DIMS] = {0}, to[BAGS_MAX_DIMS] = {0},
             at[BAGS_MAX_DIMS] = {0};
    uint64_t height = a->dims ? a->chunks[0] : 1;
    size_t step = a->chunk_size / (size_t)height;
    for (size_t d = 1; d < a->dims; d++) {
        uint64_t count = a->grid[d] / a->chunks[d];
        uint64_t most = (a->shape[d] - 1) / a->chunks[d] + 1;
        at[d] = from[d] = file[d] * count;
        to[d] = most - from[d] < count ? most : from[d] + count;
    }
    at[0] = start / height;
    uint64_t first = at[0] * height;
    do {
        const unsigned char *chunk = NULL;
        FORMAT_TRY(zr_chunk(s, a, file, at, &chunk));
        for (uint64_t r = start; r < stop; r++)
            zr_copy(a, at, a->dims ? 1 : 0, chunk ? chunk + (r - first) * step : NULL,
                a->band->data + (r - a->band_start) * a->row, step, a->row);
    } while (zr_next(a->dims, from, to, at));
    return BAGS_OK;
}

/* Load the band that contains this row; it covers at most one row of chunks. */
static inline bags_code zr_load(bags_source *s, zr_array *a, uint64_t row) {
    uint64_t zero[BAGS_MAX_DIMS] = {0}, files[BAGS_MAX_DIMS] = {0};
    uint64_t file[BAGS_MAX_DIMS] = {0};
    uint64_t height = a->dims ? a->chunks[0] : 1, most = ZR_BAND / a->row;
    if (most == 0)
        most = 1;
    uint64_t first = row / height * height;
    uint64_t start = first + (row - first) / most * most;
    uint64_t stop = height - (start - first) < most ? first + height : start + most;
    if (a->dims && stop > a->shape[0])
        stop = a->shape[0];
    for (size_t d = 1; d < a->dims; d++)
        files[d] = (a->shape[d] - 1) / a->grid[d] + 1;
    file[0] = a->dims ? row / a->grid[0] : 0;
    a->band_stop = 0;
    a->band_start = start;
    FORMAT_TRY(bags_source_reserve(s, &a->band, (size_t)(stop - start) * a->row));
    do
        FORMAT_TRY(zr_load_file(s, a, file, start, stop));
    while (zr_next(a->dims, zero, files, file));
    a->band_stop = stop;
    if (a->sharded)
        bags_source_close_file(s);
    return BAGS_OK;
}

/* Get the bytes of a row, valid until the next one. */
static inline bags_code zr_row(
    bags_source *s, zr_array *a, uint64_t row, const unsigned char **out) {
    if (row < a->band_start || row >= a->band_stop)
        FORMAT_TRY(zr_load(s, a, row));
    *out = a->band->data + (row - a->band_start) * a->row;
    return BAGS_OK;
}

#endif /* BAGS_IMPORT_ZARR_CHUNKS_H */
