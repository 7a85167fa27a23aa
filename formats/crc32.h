/*
 * crc32.h - the checksum of zip and PNG.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_CRC32_H
#define BAGS_FORMATS_CRC32_H

#include "bags.h"

/* The CRC-32 of zip and PNG. Its tables are of eight bytes at once: table[k][i] is the
 * CRC of byte i and k zeros. */
static inline void format_crc_tables(uint32_t (*table)[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = table[k - 1][i];
            table[k][i] = crc >> 8 ^ table[0][crc & 255];
        }
}

/* Start with UINT32_MAX; the CRC is the complement of the last result. */
static inline uint32_t format_crc_add(
    uint32_t (*table)[256], uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= (uint32_t)bags_load(data, 4, false);
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^
              table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^ table[3][data[4]] ^
              table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

#endif /* BAGS_FORMATS_CRC32_H */
