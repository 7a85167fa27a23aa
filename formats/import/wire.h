/*
 * wire.h - the encoding of protocol buffers, for the importers. Private.
 */
#ifndef BAGS_IMPORT_WIRE_H
#define BAGS_IMPORT_WIRE_H

#include "bags.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_8 = 1, WIRE_BYTES = 2, WIRE_4 = 5 };

/* A part of a message. */
typedef struct wire_part {
    uint64_t number; /* field number */
    unsigned wire;   /* WIRE_VARINT: `varint` has the value, otherwise `bytes` has it */
    uint64_t varint;
    bags_view bytes;
} wire_part;

static inline bool wire_varint(bags_view *at, uint64_t *out) {
    uint64_t number = 0;
    for (unsigned shift = 0; shift < 64 && at->size > 0; shift += 7) {
        unsigned char byte = *at->data++;
        at->size--;
        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = number;
            return shift < 63 || byte < 2;
        }
    }
    return false;
}

/* Split off the next part. False if it is invalid. */
static inline bool wire_split(bags_view *at, wire_part *part) {
    uint64_t tag, size;
    memset(part, 0, sizeof *part);
    if (!wire_varint(at, &tag))
        return false;
    part->number = tag >> 3;
    part->wire = (unsigned)(tag & 7);
    size = part->wire == WIRE_8 ? 8 : 4;
    if (part->number == 0 || part->number >= (uint64_t)1 << 29)
        return false;
    if (part->wire == WIRE_VARINT)
        return wire_varint(at, &part->varint);
    if ((part->wire != WIRE_8 && part->wire != WIRE_BYTES && part->wire != WIRE_4) ||
        (part->wire == WIRE_BYTES && !wire_varint(at, &size)) || size > at->size)
        return false;
    part->bytes.data = at->data;
    part->bytes.size = (size_t)size;
    at->data += size;
    at->size -= (size_t)size;
    return true;
}

#endif /* BAGS_IMPORT_WIRE_H */
