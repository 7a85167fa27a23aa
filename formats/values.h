/*
 * values.h - shared functions for numbers, types and arrays. Programs do not include
 * it.
 */
#ifndef BAGS_FORMATS_VALUES_H
#define BAGS_FORMATS_VALUES_H

#include "bags.h"

#include <inttypes.h>
#include <string.h>

/* True if Bags of this type may have a dictionary: zstd, and codecs unknown here. */
static inline bool format_has_dictionary(const bags_type *type) {
    static const char *const none[] = {"bytes", "utf8", "int", "i64", "u64", "array",
        "jpeg", "jpg", "png", "webp", "npy", "msgpack", "tree", "mp4", "webm"};
    size_t i = 0;
    while (i < sizeof none / sizeof *none && !bags_view_is(type->name, none[i]))
        i++;
    return i == sizeof none / sizeof *none;
}

/* The inner type of zstd(NAME,ARGUMENTS), NAME(ARGUMENTS), as views into its text (not
 * NUL-terminated). False for any other type, or if there is no inner type. */
static inline bool format_type_inside(const bags_type *type, bags_type *inside) {
    if (!bags_view_is(type->name, "zstd") || type->count == 0)
        return false;
    *inside = *type;
    inside->name = bags_type_argument(type, 0);
    inside->count = type->count - 1;
    size_t front = inside->name.size + (inside->count > 0);
    inside->arguments.data = type->arguments.data + front;
    inside->arguments.size = type->arguments.size - front;
    return true;
}

/* True for a zstd frame that names the dictionary it needs. Only blobs of zstd types
 * are frames. */
static inline bool format_needs_dictionary(const bags_type *type, bags_view blob) {
    if (!bags_view_is(type->name, "zstd") || blob.size < 10 ||
        bags_load_bytes(blob.data, 4, false) != 0xFD2FB528)
        return false;
    size_t start = blob.data[4] & 0x20 ? 5 : 6;
    size_t size = blob.data[4] & 3; /* size of the dictionary's id; 3 means 4 bytes */
    return bags_load_bytes(blob.data + start, size == 3 ? 4 : size, false) != 0;
}

/* Convert the bits of a float of 2, 4 or 8 bytes to a number. */
static inline double format_real(uint64_t bits, size_t size) {
    uint32_t low = (uint32_t)bits;
    int exponent = (int)(bits >> 10 & 31);
    float single;
    double number;
    memcpy(&single, &low, sizeof single);
    memcpy(&number, &bits, sizeof number);
    if (size > 2)
        return size == 4 ? (double)single : number;
    number = (double)(bits & 1023);
    if (exponent == 31) {
        uint64_t special =
            bits & 1023 ? UINT64_C(0x7FF8000000000000) : UINT64_C(0x7FF0000000000000);
        memcpy(&number, &special, sizeof number);
    } else {
        number = exponent ? number + 1024 : number;
        for (exponent = exponent ? exponent - 25 : -24; exponent < 0; exponent++)
            number /= 2;
        for (; exponent > 0; exponent--)
            number *= 2;
    }
    return bits >> 15 & 1 ? -number : number;
}

/* Get the bits of the nearest float of 2, 4 or 8 bytes, rounding ties to even. False if
 * the number is too large. */
static inline bool format_real_bits(double number, size_t size, uint64_t *out) {
    float single = (float)number;
    uint64_t bits, rest;
    uint32_t low;
    memcpy(&bits, &number, sizeof bits);
    memcpy(&low, &single, sizeof low);
    *out = size == 4 ? low : bits;
    int exponent = (int)(bits >> 52 & 2047) - 1023; /* 1024: not finite */
    if (size > 2)
        return size == 8 || exponent == 1024 || (low >> 23 & 255) < 255;
    uint64_t sign = bits >> 48 & 0x8000, fraction = bits & (UINT64_MAX >> 12);
    *out = sign | 0x7C00 | (exponent == 1024 && fraction ? 0x200 : 0);
    if (exponent > 15)
        return exponent == 1024;
    fraction |= UINT64_C(1) << 52; /* the implicit leading bit, unless below 2^-14 */
    exponent = exponent < -26 ? -26 : exponent; /* far below the smallest number: 0 */
    int dropped = exponent < -14 ? 28 - exponent : 42;
    rest = fraction & ((UINT64_C(1) << dropped) - 1);
    fraction >>= dropped;
    fraction += rest + fraction % 2 > UINT64_C(1) << (dropped - 1);
    fraction += exponent < -14 ? 0 : (uint64_t)(exponent + 14) << 10;
    *out = sign | fraction;
    return fraction < 0x7C00;
}

/* Store a number as an element of an integer dtype, in native byte order. False if it is
 * out of range. */
static inline bool format_store_integer(
    bags_dtype dtype, const bags_value *number, void *out) {
    size_t size = bags_dtype_size(dtype);
    bool is_signed = dtype >= BAGS_DTYPE_INT8;
    bool negative = number->kind == BAGS_KIND_INT && number->sint < 0;
    uint64_t most = UINT64_MAX >> (64 - 8 * size + is_signed);
    uint64_t bits = negative ? (uint64_t)number->sint : number->uint;
    bags_store_bytes(out, size, !bags_little_endian(), bits);
    return negative ? is_signed && ~bits <= most : bits <= most;
}

/* The checksum of a part of a TFRecord. */
static inline uint32_t format_masked_crc(const void *data, size_t size) {
    uint32_t crc = bags_crc32c(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

#endif /* BAGS_FORMATS_VALUES_H */
