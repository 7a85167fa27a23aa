/*
 * lz4_frames.h - decompress an LZ4 frame in memory, for the importers that need it.
 * Private.
 */
#ifndef BAGS_IMPORT_LZ4_FRAMES_H
#define BAGS_IMPORT_LZ4_FRAMES_H

#include "import.h"

#include <lz4frame.h>

/* Decompress a frame to exactly `size` bytes. False if it is not a frame of this
 * size. */
static inline bool bags_import_lz4(bags_view in, unsigned char *out, size_t size) {
    LZ4F_dctx *context = NULL;
    size_t done = 0, used = 0, more = 1;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)))
        return false;
    while (more && !LZ4F_isError(more) && used < in.size) {
        size_t made = size - done, taken = in.size - used;
        more =
            LZ4F_decompress(context, out + done, &made, in.data + used, &taken, NULL);
        if (made == 0 && taken == 0)
            break;
        done += made;
        used += taken;
    }
    LZ4F_freeDecompressionContext(context);
    return more == 0 && used == in.size && done == size;
}

#endif /* BAGS_IMPORT_LZ4_FRAMES_H */
