/*
 * random.h - random numbers, the same on every platform.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_RANDOM_H
#define BAGS_FORMATS_RANDOM_H

#include <stdint.h>

#define FORMAT_GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / the golden ratio, odd */

/* A bijection on 64 bits in which every output bit depends on every input bit. */
static inline uint64_t format_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t format_key(uint64_t seed, uint64_t number) {
    return format_mix(format_mix(seed + FORMAT_GOLDEN) + number);
}

/* The next number of a random sequence. */
static inline uint64_t format_random(uint64_t *state) {
    return format_mix(*state += FORMAT_GOLDEN);
}

/* A number from 0 to `most`, inclusive. */
static inline uint64_t format_below(uint64_t *state, uint64_t most) {
    uint64_t random = format_random(state);
    if (most < UINT32_MAX)
        return ((random >> 32) * (most + 1)) >> 32;
    return most == UINT64_MAX ? random : random % (most + 1);
}

/* A number in [0, 1). */
static inline double format_uniform(uint64_t *state) {
    return (double)(format_random(state) >> 11) / 9007199254740992.0;
}

#endif /* BAGS_FORMATS_RANDOM_H */
