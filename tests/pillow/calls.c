/* What tests/pillow.py calls. Each function returns false if it failed, with the
 * reason in `message`, which has 1,024 bytes. */
#define BAGS_IMPLEMENTATION
#include "../../formats/resample.c"

bool resize_image(const void *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *box, int filter, uint32_t new_width,
    uint32_t new_height, void *out, char *message);

bool resize_image(const void *pixels, uint32_t width, uint32_t height,
    uint32_t channels, const double *box, int filter, uint32_t new_width,
    uint32_t new_height, void *out, char *message) {
    bags_image image = {width, height, channels, 8, BAGS_DTYPE_UINT8};
    bags_box part = {0, 0, width, height};
    bags_buffer scratch = {0};
    bags_error err;
    if (box)
        memcpy(&part, box, sizeof part);
    bags_code code = bags_resample(&image, pixels, 0, box ? &part : NULL,
        (bags_filter)filter, new_width, new_height, &scratch, out, 0, &err);
    if (code)
        snprintf(message, 1024, "%s", err.message);
    bags_buffer_free(&scratch);
    return code == BAGS_OK;
}
