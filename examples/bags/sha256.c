/*
 * The SHA-256 (FIPS 180-4) of a file.
 */
#include "command.h"

#include "files.h"

typedef struct sha256 {
    uint32_t state[8];
    uint64_t size;
    unsigned char block[64];
} sha256;

static const uint32_t constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5,
    0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152,
    0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624,
    0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3,
    0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void mix(sha256 *s, const unsigned char *block) {
    uint32_t w[64], v[8];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)bags_load_bytes(block + 4 * i, 4, true);
    for (size_t i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (size_t i = 0; i < 64; i++) {
        uint32_t one = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t zero = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t step = v[7] + one + choice + constants[i] + w[i];
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += step;
        v[0] = step + zero + majority;
    }
    for (size_t i = 0; i < 8; i++)
        s->state[i] += v[i];
}

static void add(sha256 *s, const unsigned char *from, size_t size) {
    while (size) {
        size_t used = s->size % 64;
        size_t part = 64 - used < size ? 64 - used : size;
        if (part == 64) {
            mix(s, from);
        } else {
            memcpy(s->block + used, from, part);
            if (used + part == 64)
                mix(s, s->block);
        }
        s->size += part;
        from += part;
        size -= part;
    }
}

static void finish(sha256 *s, char hex[65]) {
    static const unsigned char padding[64] = {0x80};
    unsigned char bits[8];
    bags_store_bytes(bits, 8, true, s->size * 8);
    add(s, padding, 1 + (119 - s->size % 64) % 64);
    add(s, bits, 8);
    for (size_t i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", (unsigned)s->state[i]);
}

uint64_t file_sha256(const char *path, void (*progress)(uint64_t bytes), char hex[65]) {
    static unsigned char part[1 << 18];
    const bags_io *io = bags_io_local();
    sha256 s = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                    0x1f83d9ab, 0x5be0cd19},
        0, {0}};
    size_t size = sizeof part;
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    must(bags_fail_io(io, error, path, "open", &failure));
    while (size == sizeof part && !error) {
        error = format_read_some(io, file, s.size, part, &size);
        must(bags_fail_io(io, error, path, "read", &failure));
        add(&s, part, size);
        progress(size);
    }
    io->close(io->user, file);
    uint64_t all = s.size;
    finish(&s, hex);
    return all;
}
