/*
 * image.c - read the headers of JPEG, PNG and WebP files, without decoding them. No
 * library.
 */
#include "images.h"

uint32_t bags_image_orientation(bags_view file) { return format_orientation(file); }

static bags_code image_fail(
    bags_error *err, const char *format, const char *what, size_t at) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s %s (at byte %" PRIu64 ")", format,
        what, (uint64_t)at);
}

static bags_code image_fail_truncated(
    bags_error *err, const char *format, bags_view file) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "truncated %s (%" PRIu64 " bytes)",
        format, (uint64_t)file.size);
}

/* ---- JPEG ---- */

enum { IMAGE_SOI = 0xD8, IMAGE_EOI = 0xD9, IMAGE_SOS = 0xDA };

/* Progress in checking the segments of a JPEG. */
typedef struct image_promise {
    bool frame;               /* the frame header was found */
    bool progressive;         /* then the first scan of a component must have its DC */
    uint32_t components;      /* components without a scan so far */
    unsigned char lacks[256]; /* how many components with each identifier still lack a
                               * scan */
} image_promise;

/* Check the frame header: bits; height and width in 2 bytes each; number of components;
 * then 3 bytes per component, starting with its identifier. Returns the reason if it is
 * invalid, or NULL. */
static const char *image_check_frame(
    image_promise *p, unsigned marker, bags_view header) {
    const unsigned char *from = header.data;
    if (p->frame)
        return "has two frame headers";
    if (header.size < 6 || header.size != 6 + 3 * (size_t)from[5])
        return "has an invalid frame header";
    if (!(from[1] | from[2]) || !(from[3] | from[4]) || !from[5])
        return "states a height, width or number of components of 0";
    p->frame = true;
    p->progressive = marker % 4 == 2;
    p->components = from[5];
    for (size_t i = 0; i < from[5]; i++)
        p->lacks[from[6 + 3 * i]]++;
    return NULL;
}

/* Check the header of a scan: number of components; 2 bytes per component, starting
 * with its identifier; first and last coefficient; bits of earlier scans and of this
 * scan. */
static const char *image_check_scan(image_promise *p, bags_view header) {
    size_t count = header.size > 0 ? header.data[0] : 0;
    if (!p->frame)
        return "has a scan before its frame header";
    if (count == 0 || header.size != 4 + 2 * count)
        return "has an invalid scan header";
    const unsigned char *part = header.data + 1 + 2 * count;
    if (p->progressive && (part[0] != 0 || part[2] >> 4 != 0))
        return NULL; /* not the first */
    for (size_t i = 0; i < count; i++) {
        unsigned char *lacks = &p->lacks[header.data[1 + 2 * i]];
        p->components -= *lacks;
        *lacks = 0;
    }
    return NULL;
}

/* Find the marker after a scan's data. Within the data, 0xFF is followed by 0 or
 * belongs to a restart marker. */
static size_t image_skip_scan(bags_view file, size_t at) {
    const unsigned char *bytes = file.data;
    while (at < file.size) {
        const unsigned char *found =
            (const unsigned char *)memchr(bytes + at, 0xFF, file.size - at);
        if (!found || found + 1 == bytes + file.size)
            return file.size;
        at = (size_t)(found - bytes);
        unsigned next = found[1];
        if (next != 0 && next != 0xFF && (next < 0xD0 || next > 0xD7))
            return at;
        at += next == 0xFF ? 1 : 2;
    }
    return at;
}

static bags_code image_check_jpeg(bags_view file, bags_error *err) {
    image_promise p;
    bags_view data;
    size_t at = 2; /* after IMAGE_SOI */
    memset(&p, 0, sizeof p);
    for (;;) {
        size_t start = at;
        const char *fault = NULL;
        unsigned marker = format_jpeg_marker(file, &at, &data);
        if (marker == IMAGE_EOI)
            break;
        if (marker == 0 && start < file.size && file.data[start] != 0xFF)
            fault = "has no marker where one must be";
        else if (marker == 0)
            return image_fail_truncated(err, "JPEG", file);
        else if (marker == IMAGE_SOI)
            fault = "has a second start";
        else if (format_jpeg_is_frame(marker))
            fault = image_check_frame(&p, marker, data);
        else if (marker == IMAGE_SOS) {
            fault = image_check_scan(&p, data);
            at = image_skip_scan(file, at);
        }
        if (fault)
            return image_fail(err, "JPEG", fault, start);
    }
    if (!p.frame || p.components > 0)
        return image_fail(err, "JPEG", "ends without all of its scans", at);
    return BAGS_OK;
}

/* ---- PNG ---- */

static bags_code image_check_png(bags_view file, bags_error *err) {
    uint32_t table[8][256];
    bool header = false, pixels = false;
    size_t at = 8;
    format_crc_tables(table);
    for (;;) {
        bags_view data;
        size_t start = at;
        const char *fault = NULL;
        const unsigned char *name = format_png_chunk(file, &at, &data);
        if (!name)
            return image_fail_truncated(err, "PNG", file);
        uint32_t crc = name[0] & 0x20 /* not needed */
                           ? 0
                           : ~format_crc_add(table, UINT32_MAX, name, data.size + 4);
        uint32_t stored = (uint32_t)bags_load_bytes(data.data + data.size, 4, true);
        if (!(name[0] & 0x20) && crc != stored)
            fault = "has a chunk with a checksum mismatch";
        else if (header != (memcmp(name, "IHDR", 4) != 0))
            fault = "does not have one header, as its first chunk";
        else if (!memcmp(name, "IEND", 4) && !pixels)
            fault = "ends without pixels";
        if (fault)
            return image_fail(err, "PNG", fault, start);
        if (!memcmp(name, "IEND", 4))
            return BAGS_OK;
        header = true;
        pixels = pixels || !memcmp(name, "IDAT", 4);
    }
}

bags_code bags_image_check(bags_view file, bags_error *err) {
    if (file.size >= 2 && file.data[0] == 0xFF && file.data[1] == IMAGE_SOI)
        return image_check_jpeg(file, err);
    if (file.size >= 8 && !memcmp(file.data, FORMAT_PNG_START, 8))
        return image_check_png(file, err);
    if (format_is_webp(file)) {
        format_webp webp;
        return format_webp_scan(file, &webp, err);
    }
    return bags_fail(err, BAGS_ERROR_CORRUPT, "neither JPEG nor PNG nor WebP");
}
