/*
 * tokens.h - declarations shared by loader.c and tokens.c; neither needs the other.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_TOKENS_H
#define BAGS_FORMATS_TOKENS_H

#include "load.h"

#define FORMAT_TOKENS_FIELDS 16 /* most fields */
#define FORMAT_PACK_BLOCK 4096  /* documents packed together */

typedef struct format_tokens_tensor {
    const char *name;
    bags_dtype dtype;
    bags_dtype stored; /* window() and piece() write elements of this dtype */
    uint64_t length;   /* of a window; 0: ragged */
} format_tokens_tensor;

/* A block of packed rows, plus the memory to make it. */
typedef struct format_packer {
    bool valid;
    uint64_t epoch, block;
    size_t row_count;
    uint64_t dropped;   /* documents that were left out */
    bags_buffer pieces; /* bags_piece; a row's pieces are adjacent */
    bags_buffer rows;   /* uint32_t: where each row starts; then the end */
    bags_pick picks[FORMAT_PACK_BLOCK];
    uint64_t lengths[FORMAT_PACK_BLOCK], keys[FORMAT_PACK_BLOCK];
    uint32_t full[FORMAT_PACK_BLOCK], row_of[FORMAT_PACK_BLOCK];
    uint32_t filled[FORMAT_PACK_BLOCK], tree[2 * FORMAT_PACK_BLOCK];
} format_packer;

/* The first member of bags_tokens. */
typedef struct format_tokens {
    bags_buffer memory;
    const bags_reader **readers;
    size_t dataset_count;
    uint64_t *units; /* for each dataset: windows or, if packed, documents */
    bool packed;
    uint64_t length; /* of a window or row */
    uint64_t hash;   /* of the options that determine the windows */
    format_tokens_tensor *tensors;
    size_t count, field_count; /* tensors; tensors of fields come first */
    void (*touch)(const bags_tokens *tokens, const bags_pick *pick);
    bags_code (*window)(const bags_tokens *tokens, bags_row *row, const bags_pick *pick,
        unsigned char *const *out, bags_error *err);
    bags_code (*piece)(const bags_tokens *tokens, bags_row *row,
        const bags_piece *piece, unsigned char *const *out, bags_error *err);
    bags_code (*pack)(const bags_tokens *tokens, format_packer *packer, bags_row *row,
        const bags_order *order, uint64_t epoch, uint64_t block, bags_error *err);
} format_tokens;

#endif /* BAGS_FORMATS_TOKENS_H */
