/*
 * zstd_decoder.c - the decoder of libzstd, compiled from its source for the small size
 * that a page needs.
 */
#pragma clang diagnostic ignored "-Weverything"

#define DEBUGLEVEL 0
#define HUF_FORCE_DECOMPRESS_X1
#define ZSTD_DISABLE_ASM 1
#define ZSTD_FORCE_DECOMPRESS_SEQUENCES_SHORT
#define ZSTD_LEGACY_SUPPORT 0
#define ZSTD_NO_INLINE
#define ZSTD_TRACE 0

#define ZDICT_STATIC_LINKING_ONLY
#include "zdict.h"

#include "common/entropy_common.c"
#include "common/error_private.c"
#include "common/fse_decompress.c"
#include "common/xxhash.c"
#include "common/zstd_common.c"
#include "decompress/huf_decompress.c"
#include "decompress/zstd_ddict.c"
#include "decompress/zstd_decompress.c"
#include "decompress/zstd_decompress_block.c"

/* Functions that formats/zstd.c calls only to write. They fail. */

int ZSTD_minCLevel(void) { return 0; }
int ZSTD_maxCLevel(void) { return 0; }
size_t ZSTD_compressBound(size_t size) { return size; }
ZSTD_CCtx *ZSTD_createCCtx(void) { return NULL; }
size_t ZSTD_freeCCtx(ZSTD_CCtx *context) { return 0; }
size_t ZSTD_compressCCtx(ZSTD_CCtx *context, void *to, size_t capacity,
    const void *from, size_t size, int level) {
    return ERROR(GENERIC);
}
ZSTD_CDict *ZSTD_createCDict(const void *from, size_t size, int level) { return NULL; }
size_t ZSTD_freeCDict(ZSTD_CDict *dictionary) { return 0; }
size_t ZSTD_compress_usingCDict(ZSTD_CCtx *context, void *to, size_t capacity,
    const void *from, size_t size, const ZSTD_CDict *dictionary) {
    return ERROR(GENERIC);
}
size_t ZDICT_trainFromBuffer(void *to, size_t capacity, const void *samples,
    const size_t *sizes, unsigned count) {
    return ERROR(GENERIC);
}
size_t ZDICT_finalizeDictionary(void *to, size_t capacity, const void *content,
    size_t content_size, const void *samples, const size_t *sizes, unsigned count,
    ZDICT_params_t how) {
    return ERROR(GENERIC);
}
unsigned ZDICT_isError(size_t code) { return ZSTD_isError(code); }

/* From zdict.c; the rest of that file is not needed. */
size_t ZDICT_getDictHeaderSize(const void *from, size_t size) {
    static ZSTD_entropyDTables_t tables;
    return size > 8 ? ZSTD_loadDEntropy(&tables, from, size) : ERROR(GENERIC);
}
