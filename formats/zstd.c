/*
 * zstd.c - the type zstd(NAME,ARGUMENTS...), on libzstd 1.4 or later (Debian:
 * libzstd-dev).
 *
 * Arguments: the name and the arguments of the inner type, as one list: zstd(utf8),
 * zstd(int,4), zstd(array,float32,64), zstd(msgpack). Values are values of the inner
 * type. A blob is the blob of the inner type in one frame (RFC 8878), with the
 * content's size:
 *
 *     28 b5 2f fd | header with the size | blocks | optional checksum
 *
 * The content of an array whose type states the dtype is transposed by the size of an
 * element before it is compressed: byte 0 of every element, then byte 1 of every
 * element, and so on.
 *
 * A shard's NAME.dict is a zstd dictionary (RFC 8878, section 5). It begins with 37 a4
 * 30 ec and its id, and frames compressed with it state this id. A writer trains it on
 * its first values. Their frames are held and then compressed again: see zstd_train.
 * The content of a dictionary trained here begins with a mark to detect damage:
 *     ba 65 d1 00 | CRC-32C of the bytes after the id, without these 8 bytes | more
 *
 * Rejected: blobs that are not exactly one frame; a frame that does not state its
 * content's size, claims more than its bytes can expand to or more than max_size (1
 * GiB), or needs a different dictionary; a dictionary without an id; zstd in zstd.
 */
#include "codecs.h"
#include "values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zdict.h>
#include <zstd.h>

#include <stdlib.h>

/* A block of up to 128 KiB takes at least 4 bytes. */
#define ZSTD_MOST_RATIO 32768
#define ZSTD_ALIGN 16

/* A writer collects values up to this size and count, or until they must be written.
 * Then it trains a dictionary if there are enough values, and at least twice as many as
 * at the last attempt. Large values get no dictionary: each provides enough context by
 * itself. */
#define ZSTD_SAMPLES_SIZE ((size_t)1 << 20)
#define ZSTD_SAMPLES_MOST 32768
#define ZSTD_SAMPLES_LEAST 64

/* A writer tries the largest size, then half of it, and so on down to the smallest, and
 * takes the size with the fewest bytes of dictionary and frames in total. Normally all
 * values train the dictionary and are measured. If the writer collected the maximum,
 * more will probably follow: then three quarters of the values train the dictionary,
 * and the last quarter is measured as if the field were four times as long. */
#define ZSTD_DICTIONARY_MIN ((size_t)1 << 10)
#define ZSTD_DICTIONARY_MAX ((size_t)64 << 10)
#define ZSTD_DICTIONARY_MOST ((size_t)16 << 20) /* the largest that readers accept */
#define ZSTD_HEADER_MOST 256
#define ZSTD_FULL_WEIGHT 16
#define ZSTD_LEAST_SAVING 20 /* one 20th of the compressed size */

/* ---- contexts ---- The library's contexts take 100 KB or more: too large to allocate
 * for each blob. A limited number of unused contexts is kept, without a lock: after
 * fork(), a thread holding a lock would not exist in the child. */
#define ZSTD_IDLE 256

typedef struct zstd_context {
    ZSTD_DCtx *reading; /* both are NULL until needed */
    ZSTD_CCtx *writing;
    bags_buffer plain, transposed; /* buffers for a value being written */
} zstd_context;

/* Values, one after the other. */
typedef struct zstd_samples {
    bags_buffer data, sizes;
    size_t size;
    unsigned count;
    unsigned tried; /* the count at the last attempt to train a dictionary */
    bool full;
} zstd_samples;

typedef struct zstd_state {
    bags_buffer own; /* see format_state */
    bags_allocator memory;
    const bags_codec *inside;
    void *inside_state;
    size_t element; /* size of an element; 1: no transposition */
    uint64_t max_size;
    int level;
    zstd_context *idle[ZSTD_IDLE]; /* atomic */
    bags_view given;               /* the dictionary from the options */
    bool no_dictionary;
    /* For a writer: */
    bool sampling;
    zstd_samples samples;
    bags_buffer dictionary;
    bags_view bytes; /* its content; size 0: none */
    ZSTD_CDict *writing;
} zstd_state;

/* NULL is accepted. */
static void zstd_context_free(zstd_context *context) {
    if (!context)
        return;
    ZSTD_freeDCtx(context->reading);
    ZSTD_freeCCtx(context->writing);
    bags_buffer_free(&context->plain);
    bags_buffer_free(&context->transposed);
    free(context);
}

/* NULL if out of memory. */
static zstd_context *zstd_acquire(zstd_state *s, bool write, bags_error *err) {
    zstd_context *context = NULL;
    for (size_t i = 0; i < ZSTD_IDLE && !context; i++)
        if (__atomic_load_n(&s->idle[i], __ATOMIC_RELAXED))
            context = __atomic_exchange_n(&s->idle[i], NULL, __ATOMIC_ACQUIRE);
    if (!context) {
        context = (zstd_context *)calloc(1, sizeof *context);
        if (context)
            context->plain = context->transposed = bags_buffer_of(&s->memory);
    }
    if (context && write && !context->writing)
        context->writing = ZSTD_createCCtx();
    if (context && !write && !context->reading)
        context->reading = ZSTD_createDCtx();
    if (context && (write ? context->writing != NULL : context->reading != NULL))
        return context;
    zstd_context_free(context);
    bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    return NULL;
}

/* Keep an unused context. If another thread has put one into the same slot, move that
 * one to the next slot. */
static void zstd_release(zstd_state *s, zstd_context *context) {
    for (size_t i = 0; i < ZSTD_IDLE && context; i++)
        if (!__atomic_load_n(&s->idle[i], __ATOMIC_RELAXED))
            context = __atomic_exchange_n(&s->idle[i], context, __ATOMIC_ACQ_REL);
    zstd_context_free(context);
}

/* ---- the type inside ---- */

static bags_code zstd_open_inside(zstd_state *s, const bags_zstd_options *options,
    const bags_type *type, const bags_allocator *allocator, bags_error *err) {
    bags_view name = type->name;
    bags_type bytes;
    s->inside = bags_registry_find(options->registry, name);
    if ((!s->inside && !options->blobs) || bags_view_is(name, "zstd"))
        return bags_fail(err, BAGS_ERROR_TYPE, "no codec for \"%.*s\" inside of zstd",
            (int)(name.size < 80 ? name.size : 80), (const char *)name.data);
    if (bags_view_is(name, "array") && type->count) {
        bags_view dtype = bags_type_argument(type, 0);
        s->element = bags_dtype_size(
            bags_dtype_parse((const char *)dtype.data, dtype.size, NULL));
        if (s->element == 0)
            return bags_fail(err, BAGS_ERROR_TYPE, "unknown dtype \"%.*s\"",
                (int)(dtype.size < 80 ? dtype.size : 80), (const char *)dtype.data);
    }
    if (options->blobs && !bags_type_parse("bytes", &bytes, err)) {
        s->inside = bags_registry_find(NULL, bytes.name);
        type = &bytes;
    }
    if (s->inside->open)
        return s->inside->open(s->inside, type, allocator, &s->inside_state, err);
    if (type->count)
        return bags_fail(err, BAGS_ERROR_TYPE, "this type accepts no arguments");
    return BAGS_OK;
}

static void zstd_samples_free(zstd_state *s) {
    bags_buffer_free(&s->samples.data);
    bags_buffer_free(&s->samples.sizes);
    s->sampling = false;
}

static void zstd_close(void *state) {
    zstd_state *s = (zstd_state *)state;
    zstd_samples_free(s);
    bags_buffer_free(&s->dictionary);
    ZSTD_freeCDict(s->writing);
    if (s->inside && s->inside->close)
        s->inside->close(s->inside_state);
    for (size_t i = 0; i < ZSTD_IDLE; i++)
        zstd_context_free(s->idle[i]);
    format_state_close(s);
}

/* The inner codec receives a type with its own text, like every codec. */
static bags_code zstd_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    static const bags_zstd_options none = {NULL, 0, 0, {NULL, 0}, false, false};
    const bags_zstd_options *options =
        codec->user ? (const bags_zstd_options *)codec->user : &none;
    bags_type inside;
    if (!format_type_inside(type, &inside))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "expected zstd(TYPE) or zstd(TYPE,ARGUMENTS), such as "
            "zstd(array,float32,64)");
    if (options->level < ZSTD_minCLevel() || options->level > ZSTD_maxCLevel())
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "invalid level of zstd (%d, allowed %d to %d)", options->level,
            ZSTD_minCLevel(), ZSTD_maxCLevel());
    if (options->dictionary.size && options->no_dictionary)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "dictionary and no_dictionary are mutually exclusive");
    zstd_state *s = (zstd_state *)format_state(allocator, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    s->memory = *allocator;
    s->element = 1;
    s->max_size = options->max_size ? options->max_size : BAGS_ZSTD_MAX_SIZE;
    s->level = options->level ? options->level : ZSTD_CLEVEL_DEFAULT;
    s->given = options->dictionary;
    s->no_dictionary = options->no_dictionary;
    bags_buffer text = bags_buffer_of(allocator);
    size_t size = type->arguments.size + 3;
    bags_code code = bags_buffer_reserve(&text, size, err);
    if (!code) {
        (void)snprintf((char *)text.data, size, inside.count ? "%.*s(%.*s)" : "%.*s",
            (int)inside.name.size, (const char *)inside.name.data,
            (int)inside.arguments.size, (const char *)inside.arguments.data);
        code = bags_type_parse((const char *)text.data, &inside, err);
    }
    if (!code)
        code = zstd_open_inside(s, options, &inside, allocator, err);
    bags_buffer_free(&text);
    if (code) {
        s->inside = NULL; /* not open */
        zstd_close(s);
        return code;
    }
    *state = s;
    return BAGS_OK;
}

/* ---- transposition ---- */

/* Transpose `count` elements of `size` bytes to `size` rows of `count` bytes. */
static void zstd_transpose(
    unsigned char *to, const unsigned char *from, size_t count, size_t size) {
    for (size_t byte = 0; byte < size; byte++, to += count)
        for (size_t i = 0; i < count; i++)
            to[i] = from[i * size + byte];
}

static void zstd_transpose_back(
    unsigned char *to, const unsigned char *from, size_t count, size_t size) {
    for (size_t byte = 0; byte < size; byte++, from += count)
        for (size_t i = 0; i < count; i++)
            to[i * size + byte] = from[i];
}

/* ---- dictionaries ---- */

/* Compute the mark of a dictionary. Returns its offset; 0: there is no room for a
 * mark. */
static size_t zstd_mark(bags_view bytes, unsigned char mark[8]) {
#if ZSTD_VERSION_NUMBER < 10405
    (void)bytes, (void)mark;
    return 0;
#else
    static const unsigned char magic[4] = {0xBA, 0x65, 0xD1, 0x00}; /* no text */
    size_t at = ZDICT_getDictHeaderSize(bytes.data, bytes.size);
    if (ZDICT_isError(at) || bytes.size - at < 8)
        return 0;
    uint32_t crc = bags_crc32c(0, bytes.data + 8, at - 8);
    crc = bags_crc32c(crc, bytes.data + at + 8, bytes.size - at - 8);
    memcpy(mark, magic, 4);
    bags_store_bytes(mark + 4, 4, false, crc);
    return at;
#endif
}

static bags_code zstd_check_dictionary(bags_view bytes, bags_error *err) {
    unsigned char mark[8];
    if (bytes.size > ZSTD_DICTIONARY_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "dictionary of zstd too large (%" PRIu64 " bytes, maximum 16 MiB)",
            (uint64_t)bytes.size);
    if (!ZSTD_getDictID_fromDict(bytes.data, bytes.size))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "not a dictionary of zstd, as `zstd --train` makes them");
    size_t at = zstd_mark(bytes, mark);
    if (at && !memcmp(bytes.data + at, mark, 4) && memcmp(bytes.data + at, mark, 8))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "damaged dictionary of zstd (its CRC differs from the one in it)");
    return BAGS_OK;
}

/* Prepare a dictionary for decoding. Returns NULL and sets err on failure. */
static ZSTD_DDict *zstd_dictionary(bags_view bytes, bags_error *err) {
    if (zstd_check_dictionary(bytes, err))
        return NULL;
    ZSTD_DDict *made = ZSTD_createDDict(bytes.data, bytes.size);
    if (!made)
        bags_fail(
            err, BAGS_ERROR_CORRUPT, "damaged dictionary of zstd, or out of memory");
    return made;
}

static bags_code zstd_prepare(
    void *state, bags_view bytes, void **prepared, bags_error *err) {
    (void)state;
    *prepared = zstd_dictionary(bytes, err);
    return *prepared ? BAGS_OK : err->code;
}

static void zstd_discard(void *state, void *prepared) {
    (void)state;
    ZSTD_freeDDict((ZSTD_DDict *)prepared);
}

static bool zstd_needed(void *state, bags_view blob) {
    (void)state;
    return ZSTD_getDictID_fromFrame(blob.data, blob.size) != 0;
}

/* Make a writer use a dictionary from now on. */
static bags_code zstd_use(zstd_state *s, bags_view bytes, bags_error *err) {
    bags_code code = zstd_check_dictionary(bytes, err);
    if (!code)
        code = bags_buffer_reserve(&s->dictionary, bytes.size, err);
    if (code)
        return code;
    memcpy(s->dictionary.data, bytes.data, bytes.size);
    s->writing = ZSTD_createCDict(bytes.data, bytes.size, s->level);
    if (!s->writing)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "damaged dictionary of zstd, or out of memory");
    s->bytes.data = s->dictionary.data;
    s->bytes.size = bytes.size;
    return BAGS_OK;
}

static bags_code zstd_start(void *state, bags_view bytes, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    s->dictionary = s->samples.data = s->samples.sizes = bags_buffer_of(&s->memory);
    if (s->given.size && bytes.size &&
        (s->given.size != bytes.size ||
            memcmp(s->given.data, bytes.data, bytes.size) != 0))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "existing frames have another dictionary (id %u, requested %u)",
            ZSTD_getDictID_fromDict(bytes.data, bytes.size),
            ZSTD_getDictID_fromDict(s->given.data, s->given.size));
    if (s->no_dictionary)
        return BAGS_OK;
    if (bytes.size || s->given.size)
        return zstd_use(s, bytes.size ? bytes : s->given, err);
    s->sampling = true;
    return BAGS_OK;
}

static bags_code zstd_find(
    void *state, bags_view blob, bags_view *bytes, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    unsigned needs = ZSTD_getDictID_fromFrame(blob.data, blob.size);
    unsigned has =
        s->bytes.size ? ZSTD_getDictID_fromDict(s->bytes.data, s->bytes.size) : 0;
    if (needs != has)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "zstd frame that needs a dictionary (id %u) which the field does not "
            "have; append the value instead of the frame",
            needs);
    *bytes = s->bytes;
    return BAGS_OK;
}

/* ---- training ---- */

static const size_t *zstd_sizes(const zstd_state *s) {
    return (const size_t *)(const void *)s->samples.sizes.data;
}

/* The compressed size of the samples from number `first` on; SIZE_MAX if compression
 * fails. */
static size_t zstd_measure(const zstd_state *s, const zstd_context *context,
    unsigned first, const ZSTD_CDict *dictionary, bags_buffer *scratch) {
    const unsigned char *at = s->samples.data.data;
    size_t total = 0;
    for (unsigned i = 0; i < s->samples.count; at += zstd_sizes(s)[i++]) {
        size_t size = zstd_sizes(s)[i], made = 0;
        if (i < first)
            continue;
        made = dictionary ? ZSTD_compress_usingCDict(context->writing, scratch->data,
                                scratch->capacity, at, size, dictionary)
                          : ZSTD_compressCCtx(context->writing, scratch->data,
                                scratch->capacity, at, size, s->level);
        if (ZSTD_isError(made))
            return SIZE_MAX;
        total += made;
    }
    return total;
}

/* Write a dictionary of at most `size` bytes from the end of another dictionary's
 * content, where the most frequent content is. Returns its size, or a zstd error. */
static size_t zstd_shrink(const zstd_state *s, unsigned trained, bags_view from,
    size_t size, unsigned char *to) {
    const unsigned char *data = s->samples.data.data;
    unsigned char mark[8];
    bags_view made = {to, size};
#if ZSTD_VERSION_NUMBER < 10407
    (void)from;
    made.size = ZDICT_trainFromBuffer(to, size, data, zstd_sizes(s), trained);
#else
    size_t keep = size - ZSTD_HEADER_MOST;
    ZDICT_params_t how;
    memset(&how, 0, sizeof how);
    how.compressionLevel = s->level;
    if (size == from.size)
        memcpy(to, from.data, size);
    else
        made.size = ZDICT_finalizeDictionary(to, size, from.data + from.size - keep,
            keep, data, zstd_sizes(s), trained, how);
#endif
    size_t at = ZDICT_isError(made.size) ? 0 : zstd_mark(made, mark);
    if (at)
        memcpy(to + at, mark, sizeof mark);
    return made.size;
}

/* Train a dictionary on the samples, and use it if it saves enough. `made` and `trial`
 * have memory for it. If no dictionary can be made from the samples, this is not an
 * error. */
static bags_code zstd_train(zstd_state *s, const zstd_context *context, size_t most,
    bags_buffer *made, bags_buffer *trial, bags_buffer *scratch, bags_error *err) {
    const zstd_samples *samples = &s->samples;
    unsigned trained =
        samples->full ? samples->count - samples->count / 4 : samples->count;
    unsigned first = samples->full ? trained : 0;
    size_t weight = samples->full ? ZSTD_FULL_WEIGHT : 1;
    bags_view whole = {made->data, ZDICT_trainFromBuffer(made->data, most,
                                       samples->data.data, zstd_sizes(s), trained)};
    size_t without = zstd_measure(s, context, first, NULL, scratch);
    if (ZDICT_isError(whole.size) || without == SIZE_MAX)
        return BAGS_OK;
    size_t least = weight * (without - without / ZSTD_LEAST_SAVING), best = 0;
    size_t size = whole.size;
    do {
        size_t is = zstd_shrink(s, trained, whole, size, trial->data);
        if (ZDICT_isError(is))
            break;
        ZSTD_CDict *with = ZSTD_createCDict(trial->data, is, s->level);
        size_t total = with ? zstd_measure(s, context, first, with, scratch) : SIZE_MAX;
        ZSTD_freeCDict(with);
        if (total < without && is + weight * total < least) {
            least = is + weight * total;
            best = size;
        }
        size /= 2;
    } while (size >= ZSTD_DICTIONARY_MIN);
    if (!best)
        return BAGS_OK;
    bags_view bytes = {trial->data, zstd_shrink(s, trained, whole, best, trial->data)};
    return zstd_use(s, bytes, err);
}

static bool zstd_holds(void *state) {
    zstd_state *s = (zstd_state *)state;
    return s->sampling && !s->samples.full;
}

static bags_code zstd_make(void *state, bool *made, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    zstd_samples *samples = &s->samples;
    bags_buffer whole = bags_buffer_of(&s->memory), trial = whole, scratch = whole;
    bags_code code = BAGS_OK;
    if (s->sampling && samples->count >= ZSTD_SAMPLES_LEAST &&
        (samples->full || samples->count / 2 >= samples->tried)) {
        zstd_context *context = zstd_acquire(s, true, err);
        size_t most = ZSTD_DICTIONARY_MAX;
        while (most > samples->size / 4 && most > ZSTD_DICTIONARY_MIN)
            most /= 2;
        code = context ? bags_buffer_reserve(&whole, most, err) : BAGS_ERROR_MEMORY;
        if (!code)
            code = bags_buffer_reserve(&trial, most, err);
        if (!code)
            code =
                bags_buffer_reserve(&scratch, ZSTD_compressBound(samples->size), err);
        if (!code)
            code = zstd_train(s, context, most, &whole, &trial, &scratch, err);
        zstd_release(s, context);
        samples->tried = samples->count;
        bags_buffer_free(&whole);
        bags_buffer_free(&trial);
        bags_buffer_free(&scratch);
    }
    if (s->writing || samples->full)
        zstd_samples_free(s);
    *made = s->writing != NULL;
    return code;
}

/* Keep a value about to be compressed, for training a dictionary. */
static bags_code zstd_sample(zstd_state *s, bags_view plain, bags_error *err) {
    zstd_samples *samples = &s->samples;
    samples->full = samples->count == ZSTD_SAMPLES_MOST ||
                    plain.size > ZSTD_SAMPLES_SIZE - samples->size;
    if (samples->full)
        return BAGS_OK;
    bags_code code =
        bags_buffer_reserve(&samples->data, samples->size + plain.size, err);
    if (!code)
        code = bags_buffer_reserve(
            &samples->sizes, (samples->count + 1) * sizeof(size_t), err);
    if (code)
        return code;
    if (plain.size)
        memcpy(samples->data.data + samples->size, plain.data, plain.size);
    ((size_t *)(void *)samples->sizes.data)[samples->count++] = plain.size;
    samples->size += plain.size;
    return BAGS_OK;
}

/* ---- encode ---- */

/* Compress a blob of the inner type into a frame. */
static bags_code zstd_frame(const zstd_state *s, const zstd_context *context,
    bags_view plain, bags_buffer *scratch, bags_view *blob, bags_error *err) {
    bags_code code = bags_buffer_reserve(scratch, ZSTD_compressBound(plain.size), err);
    if (code)
        return code;
    size_t size = s->writing
                      ? ZSTD_compress_usingCDict(context->writing, scratch->data,
                            scratch->capacity, plain.data, plain.size, s->writing)
                      : ZSTD_compressCCtx(context->writing, scratch->data,
                            scratch->capacity, plain.data, plain.size, s->level);
    if (ZSTD_isError(size))
        return bags_fail(err, BAGS_ERROR_MEMORY, "zstd: %s", ZSTD_getErrorName(size));
    blob->data = scratch->data;
    blob->size = size;
    return BAGS_OK;
}

static bags_code zstd_compress(zstd_state *s, zstd_context *context,
    const bags_value *value, bags_buffer *scratch, bags_view *blob, bags_error *err) {
    bags_view plain = {NULL, 0};
    bags_code code =
        s->inside->encode(s->inside_state, value, &context->plain, &plain, err);
    if (!code && plain.size > s->max_size)
        code = bags_fail(err, BAGS_ERROR_VALUE,
            "value too large for zstd (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            (uint64_t)plain.size, s->max_size);
    if (!code && plain.size % s->element)
        code = bags_fail(err, BAGS_ERROR_VALUE,
            "%" PRIu64 " bytes are not a multiple of the size of an element (%" PRIu64
            ")",
            (uint64_t)plain.size, (uint64_t)s->element);
    if (!code && s->element > 1 && plain.size)
        code = bags_buffer_reserve(&context->transposed, plain.size, err);
    if (code)
        return code;
    if (s->element > 1 && plain.size) {
        zstd_transpose(
            context->transposed.data, plain.data, plain.size / s->element, s->element);
        plain.data = context->transposed.data;
    }
    if (s->sampling)
        code = zstd_sample(s, plain, err);
    return code ? code : zstd_frame(s, context, plain, scratch, blob, err);
}

static bags_code zstd_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    if (!s->inside->encode)
        return bags_fail(err, BAGS_ERROR_TYPE, "the codec cannot encode values");
    bool made = false;
    if (s->sampling && s->samples.full) { /* no held blob will end the sampling */
        bags_code failed = zstd_make(s, &made, err);
        if (failed)
            return failed;
    }
    zstd_context *context = zstd_acquire(s, true, err);
    if (!context)
        return BAGS_ERROR_MEMORY;
    bags_code code = zstd_compress(s, context, value, scratch, blob, err);
    zstd_release(s, context);
    return code;
}

/* ---- decode ---- */

/* Get the content's size, and check it against the limit implied by the blob's size. */
static bags_code zstd_check(const zstd_state *s, const ZSTD_DDict *dictionary,
    bags_view blob, size_t *size, bags_error *err) {
    if (blob.size < 4 || bags_load_bytes(blob.data, 4, false) != ZSTD_MAGICNUMBER)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a zstd frame");
    unsigned long long content = ZSTD_getFrameContentSize(blob.data, blob.size);
    size_t frame = ZSTD_findFrameCompressedSize(blob.data, blob.size);
    if (content == ZSTD_CONTENTSIZE_ERROR || ZSTD_isError(frame))
        return bags_fail(err, BAGS_ERROR_CORRUPT, "damaged or truncated zstd frame");
    if (content == ZSTD_CONTENTSIZE_UNKNOWN)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "zstd frame without the size of its content");
    if (frame != blob.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes after the zstd frame", (uint64_t)(blob.size - frame));
    unsigned needs = ZSTD_getDictID_fromFrame(blob.data, blob.size);
    if (needs && !dictionary)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "zstd frame that needs a dictionary (id %u), the .dict next to its Bag",
            needs);
    if (needs && needs != ZSTD_getDictID_fromDDict(dictionary))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "zstd frame that needs another dictionary (id %u, not %u)", needs,
            ZSTD_getDictID_fromDDict(dictionary));
    if (content / ZSTD_MOST_RATIO > blob.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "zstd frame claims too much (%" PRIu64 " bytes, compressed %" PRIu64 ")",
            (uint64_t)content, (uint64_t)blob.size);
    if (content > s->max_size || content > SIZE_MAX / 4)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "zstd frame too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            (uint64_t)content, s->max_size);
    if (content % s->element)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes are not a multiple of the size of an element (%" PRIu64
            ")",
            (uint64_t)content, (uint64_t)s->element);
    *size = (size_t)content;
    return BAGS_OK;
}

/*
 * A decoded value may point into the content and into the inner codec's scratch, so
 * both share the caller's scratch:
 *     content | for the inner codec
 *
 * The inner codec cannot grow the second part, because that would move the content it
 * is reading. Instead, its request is recorded, and it is called again with enough
 * memory.
 */
typedef struct zstd_rest {
    unsigned char *data;
    size_t needed; /* the size that was requested; 0: none */
    bags_buffer *scratch;
} zstd_rest;

/* All memory except the second part comes from the scratch's allocator. */
static void *zstd_rest_resize(
    void *user, void *data, size_t old_size, size_t new_size) {
    zstd_rest *rest = (zstd_rest *)user;
    if (data != rest->data)
        return rest->scratch->resize(rest->scratch->user, data, old_size, new_size);
    rest->needed = new_size;
    return NULL;
}

static bags_code zstd_decompress(zstd_state *s, const ZSTD_DDict *dictionary,
    bags_view blob, unsigned char *to, size_t size, bags_error *err) {
    zstd_context *context = zstd_acquire(s, false, err);
    if (!context)
        return BAGS_ERROR_MEMORY;
    size_t made = dictionary ? ZSTD_decompress_usingDDict(context->reading, to, size,
                                   blob.data, blob.size, dictionary)
                             : ZSTD_decompressDCtx(
                                   context->reading, to, size, blob.data, blob.size);
    zstd_release(s, context);
    if (ZSTD_isError(made))
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "damaged zstd frame: %s", ZSTD_getErrorName(made));
    if (made != size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "zstd frame of another size than it states (%" PRIu64 " bytes, expected "
            "%" PRIu64 ")",
            (uint64_t)made, (uint64_t)size);
    return BAGS_OK;
}

/* Compress the content of a frame again. */
static bags_code zstd_recode(void *state, bags_view blob, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    size_t size = 0;
    *out = blob;
    if (!s->writing)
        return BAGS_OK;
    zstd_context *context = zstd_acquire(s, true, err);
    if (!context)
        return BAGS_ERROR_MEMORY;
    bags_code code = zstd_check(s, NULL, blob, &size, err);
    if (!code)
        code = bags_buffer_reserve(&context->plain, size + 1, err);
    if (!code)
        code = zstd_decompress(s, NULL, blob, context->plain.data, size, err);
    bags_view plain = {context->plain.data, size};
    if (!code)
        code = zstd_frame(s, context, plain, scratch, out, err);
    zstd_release(s, context);
    return code;
}

static bags_code zstd_decode_with(void *state, const void *prepared, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    const ZSTD_DDict *dictionary = (const ZSTD_DDict *)prepared;
    const bags_value none = *value;
    size_t size = 0;
    if (!s->inside->decode)
        return bags_fail(err, BAGS_ERROR_TYPE, "the codec cannot decode blobs");
    bags_code code = zstd_check(s, dictionary, blob, &size, err);
    if (code)
        return code;
    size_t front = (size + ZSTD_ALIGN - 1) / ZSTD_ALIGN * ZSTD_ALIGN;
    /* Transposed content is decompressed into the second part. */
    size_t more = s->element > 1 && size > ZSTD_ALIGN ? size : ZSTD_ALIGN;
    for (;;) {
        code = bags_buffer_reserve(scratch, front + more, err);
        if (code)
            return code;
        zstd_rest rest = {scratch->data + front, 0, scratch};
        bags_buffer inner = {
            rest.data, scratch->capacity - front, zstd_rest_resize, &rest};
        bags_view plain = {scratch->data, size};
        bool transposed = s->element > 1;
        code = zstd_decompress(
            s, dictionary, blob, transposed ? rest.data : scratch->data, size, err);
        if (code)
            return code;
        if (transposed)
            zstd_transpose_back(
                scratch->data, rest.data, size / s->element, s->element);
        *value = none;
        code = s->inside->decode(s->inside_state, plain, &inner, value, err);
        if (!code || !rest.needed)
            return code;
        more = rest.needed;
        if (more > SIZE_MAX / 2 - front)
            return code;
    }
}

/* Decode without a shard, using the dictionary from the options if one is needed. The
 * prepared dictionary is not kept, since bags_decode creates a new state for each
 * call. */
static bags_code zstd_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    zstd_state *s = (zstd_state *)state;
    ZSTD_DDict *dictionary = NULL;
    if (s->given.size && zstd_needed(s, blob)) {
        dictionary = zstd_dictionary(s->given, err);
        if (!dictionary)
            return err->code;
    }
    bags_code code = zstd_decode_with(s, dictionary, blob, scratch, value, err);
    ZSTD_freeDDict(dictionary);
    return code;
}

/* ---- table ---- */

static const bags_codec_dictionary zstd_with_dictionary = {zstd_needed, zstd_start,
    zstd_find, zstd_prepare, zstd_discard, zstd_decode_with, zstd_holds, zstd_make,
    zstd_recode};

const bags_codec bags_codec_zstd = {"zstd", zstd_open, zstd_encode, zstd_decode,
    zstd_close, NULL, &zstd_with_dictionary};
