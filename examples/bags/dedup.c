/*
 * pack --dedup: find a blob with the same bytes in the shard being written.
 *
 * Blobs are compared by their 128-bit SipHash-2-4, with a new random key in each run.
 * So no input can force a collision, and the probability of any collision among 10^12
 * blobs is 10^-14. The table has a fixed size; a blob evicted from it is stored again.
 */
#include "command.h"
#include "system.h"

#define WAYS 4
#define SETS ((size_t)1 << 18) /* 24 MiB */

typedef struct hashed {
    uint64_t hash[2]; /* of the shard and field numbers and the bytes; 0: none */
    uint64_t blob;
} hashed;

static hashed (*table)[WAYS]; /* in each set, the most recently used comes first */
static uint64_t key[2];

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static void sip_rounds(uint64_t v[4], int rounds) {
    for (; rounds > 0; rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
}

/* Hash two numbers, followed by the bytes. */
static void hash_blob(uint64_t shard, uint64_t field, bags_view blob, uint64_t out[2]) {
    uint64_t v[4] = {UINT64_C(0x736f6d6570736575) ^ key[0],
        UINT64_C(0x646f72616e646f6d) ^ key[1] ^ 0xEE,
        UINT64_C(0x6c7967656e657261) ^ key[0], UINT64_C(0x7465646279746573) ^ key[1]};
    size_t at = 0;
    sip_word(v, shard);
    sip_word(v, field);
    for (; blob.size - at >= 8; at += 8)
        sip_word(v, bags_load_bytes(blob.data + at, 8, false));
    sip_word(v,
        (uint64_t)blob.size << 56 |
            bags_load_bytes(blob.size ? blob.data + at : NULL, blob.size - at, false));
    v[2] ^= 0xEE;
    for (int i = 0; i < 2; i++) {
        sip_rounds(v, 4);
        out[i] = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xDD;
    }
}

uint64_t dedup_find(uint64_t shard, size_t field, bags_view blob, uint64_t next) {
    hashed found = {{0, 0}, next};
    if (!table) {
        table = (hashed(*)[WAYS])allocate(SETS, sizeof *table);
        if (!secret_fill(key, sizeof key))
            fail(BAGS_ERROR_IO, "--dedup: the system has no random numbers");
    }
    hash_blob(shard, field, blob, found.hash);
    hashed *set = table[found.hash[0] % SETS];
    size_t i = 0;
    while (i < WAYS - 1 && memcmp(set[i].hash, found.hash, sizeof found.hash))
        i++;
    if (!memcmp(set[i].hash, found.hash, sizeof found.hash))
        found.blob = set[i].blob;
    memmove(set + 1, set, i * sizeof *set);
    set[0] = found;
    return found.blob;
}
