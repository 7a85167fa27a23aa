/*
 * gzip.h - read a file of a source, decompressing it if it begins like gzip. For the
 * importers that need it; uses zlib. Private.
 */
#ifndef BAGS_IMPORT_GZIP_H
#define BAGS_IMPORT_GZIP_H

#include "import.h"
#include "try.h"

#include <inttypes.h>
#include <zlib.h>

#define BAGS_IMPORT_PART ((size_t)1 << 18) /* maximum bytes per read */

typedef struct bags_import_stream {
    uint64_t offset; /* offset of the next byte in source->file */
    bool gzip;       /* `zip` is in use; */
    bool inside;     /* it is inside a gzip member */
    z_stream zip;
    bags_buffer *part;
} bags_import_stream;

static inline void bags_import_stream_close(bags_import_stream *stream) {
    if (stream->gzip)
        inflateEnd(&stream->zip);
    stream->gzip = false;
}

/* Start reading source->file instead of the previous file. */
static inline bags_code bags_import_stream_open(
    bags_source *s, bags_import_stream *stream) {
    bags_view magic;
    bags_import_stream_close(stream);
    FORMAT_TRY(bags_source_view(s, 0, s->file.size < 2 ? 0 : 2, &magic));
    memset(&stream->zip, 0, sizeof stream->zip);
    stream->inside = false;
    stream->offset = 0;
    if (magic.size == 0 || bags_load_bytes(magic.data, 2, true) != 0x1F8B)
        return BAGS_OK;
    stream->gzip = inflateInit2(&stream->zip, 15 + 16) == Z_OK;
    return stream->gzip ? bags_source_reserve(s, &stream->part, BAGS_IMPORT_PART)
                        : bags_source_no_memory(s);
}

static inline bags_code bags_import_stream_raw(
    bags_source *s, bags_import_stream *stream, bags_view *out) {
    uint64_t left = s->file.size - stream->offset;
    bags_code code = bags_source_view(
        s, stream->offset, left < BAGS_IMPORT_PART ? left : BAGS_IMPORT_PART, out);
    stream->offset += code ? 0 : out->size;
    return code;
}

/* Get the next bytes; empty at the end. They are valid until the next call or the next
 * view of the file. */
static inline bags_code bags_import_stream_next(
    bags_source *s, bags_import_stream *stream, bags_view *out) {
    z_stream *zip = &stream->zip;
    if (!stream->gzip)
        return bags_import_stream_raw(s, stream, out);
    zip->next_out = stream->part->data;
    zip->avail_out = (uInt)BAGS_IMPORT_PART;
    while (zip->avail_out == BAGS_IMPORT_PART) {
        if (zip->avail_in == 0) {
            bags_view more;
            FORMAT_TRY(bags_import_stream_raw(s, stream, &more));
            zip->next_in = (Bytef *)(uintptr_t)more.data;
            zip->avail_in = (uInt)more.size;
        }
        if (zip->avail_in == 0 && !stream->inside)
            break;
        if (!stream->inside)
            inflateReset(zip);
        int result = inflate(zip, Z_NO_FLUSH);
        stream->inside = result != Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return bags_source_fail(s,
                result == Z_MEM_ERROR ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT,
                "gzip before byte %" PRIu64 ": %s", stream->offset - zip->avail_in,
                result == Z_BUF_ERROR ? "truncated"
                : zip->msg            ? zip->msg
                                      : "invalid");
    }
    out->data = stream->part->data;
    out->size = BAGS_IMPORT_PART - zip->avail_out;
    return BAGS_OK;
}

#endif /* BAGS_IMPORT_GZIP_H */
