/*
 * image.c - what JPEG and PNG files state, without decoding them. No library.
 */
#define FORMAT_PRIVATE
#include "formats.h"

uint32_t bags_image_orientation(bags_view file) {
    return format_orientation(file);
}
