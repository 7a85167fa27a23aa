/*
 * pixels.h - shared by resample.c and warp.c. Programs do not include it.
 */
#ifndef BAGS_FORMATS_PIXELS_H
#define BAGS_FORMATS_PIXELS_H

#include "load.h"

#include <inttypes.h>

/* Check an image in memory. A *stride of 0 is replaced by the size of a row. */
static inline bags_code format_check_pixels(
    const bags_image *image, uint32_t most, size_t *stride, bags_error *err) {
    uint64_t row = (uint64_t)image->width * image->channels;
    if (image->dtype != BAGS_DTYPE_UINT8 || image->channels < 1 || image->channels > 4)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "not an image of uint8 with 1 to 4 channels (%s, %u channels)",
            bags_dtype_name(image->dtype), (unsigned)image->channels);
    if (image->width < 1 || image->height < 1)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "image without pixels (%u x %u)",
            (unsigned)image->width, (unsigned)image->height);
    if (image->width > most || image->height > most)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "side of an image out of range (%u x %u pixels, maximum %u)",
            (unsigned)image->width, (unsigned)image->height, (unsigned)most);
    if (*stride && *stride < row)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "stride too small (%" PRIu64 " bytes, row %" PRIu64 ")", (uint64_t)*stride,
            row);
    if (row > SIZE_MAX / image->height || *stride > SIZE_MAX / image->height)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    *stride = *stride ? *stride : (size_t)row;
    return BAGS_OK;
}

#endif /* BAGS_FORMATS_PIXELS_H */
