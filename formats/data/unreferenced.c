/*
 * unreferenced.c - counts blobs not referenced by any datapoint; see datasets.h. No
 * library.
 *
 * A writer appends the blobs of each datapoint after the blobs of the previous one. So
 * each ref normally begins at or before the end of all earlier refs, and all blobs up
 * to that end are referenced. Only in a shard where a ref leaves a gap does a field
 * need more: one bit per blob, for one window of the Bag at a time.
 */
#include "blocks.h"
#include "datasets.h"
#include "files.h"

#include <string.h>

#define UNREF_WORDS ((size_t)1 << 21) /* words of bits: 16 MiB for all fields */
#define UNREF_AHEAD 4096              /* datapoints whose refs are requested at once */

typedef struct unref_field {
    /* In one shard: */
    uint64_t next;  /* all blobs before it are referenced */
    uint64_t stop;  /* end of all refs */
    bool gap;       /* a ref began after `next` */
    uint64_t *bits; /* bits of the window; NULL: not needed */
    /* In all shards: */
    uint64_t blobs, size; /* referenced blobs, and their bytes */
    bool measured;        /* bytes are counted */
} unref_field;

typedef struct unref {
    const bags_reader *reader;
    const bags_env *env;
    size_t count;
    unref_field *fields;
    bags_ref *refs;         /* refs of a datapoint */
    uint64_t start, window; /* first blob in the window, and number of blobs */
    uint64_t requested;     /* refs before this datapoint were requested */
    bags_row row;
    bags_buffer memory[2], bits, blob, ahead;
    bags_error *err;
} unref;

/* Extend the range of blobs referenced without a gap. */
static void unref_extend(unref *u, unref_field *field, const bags_ref *ref) {
    uint64_t stop = ref->first + ref->count;
    (void)u;
    field->gap = field->gap || ref->first > field->next;
    if (!field->gap && stop > field->next)
        field->next = stop;
    if (stop > field->stop)
        field->stop = stop;
}

/* Mark the ref's blobs that lie in the window. */
static void unref_mark(unref *u, unref_field *field, const bags_ref *ref) {
    uint64_t end = u->start + u->window, stop = ref->first + ref->count;
    uint64_t at = ref->first > u->start ? ref->first : u->start;
    stop = stop < end ? stop : end;
    for (uint64_t size; field->bits && at < stop; at += size) {
        uint64_t i = at - u->start;
        size = 64 - i % 64 < stop - at ? 64 - i % 64 : stop - at;
        field->bits[i / 64] |= UINT64_MAX >> (64 - size) << i % 64;
    }
}

/* Call each() for every field of every datapoint in a shard that refers to blobs. Refs
 * of many datapoints, including those in later shards, are requested at once. */
static bags_code unref_scan(unref *u, const bags_shard *shard,
    void (*each)(unref *u, unref_field *field, const bags_ref *ref)) {
    static const bags_select none = {0, false, 0, 0, 0};
    uint64_t length = bags_reader_length(u->reader);
    bool far = u->env->io && u->env->io->read_many;
    if (far && bags_buffer_reserve(&u->ahead, UNREF_AHEAD * sizeof(uint64_t), u->err))
        return BAGS_ERROR_MEMORY;
    uint64_t *ahead = (uint64_t *)(void *)u->ahead.data;
    for (uint64_t i = shard->start; i < shard->start + shard->length; i++) {
        if (far && i >= u->requested) {
            size_t part = 0;
            for (; part < UNREF_AHEAD && part < length - i; part++)
                ahead[part] = i + part;
            u->requested = i + part;
            FORMAT_TRY(bags_reader_prefetch(
                u->reader, ahead, part, &none, 0, &u->row, u->err));
        }
        FORMAT_TRY(bags_reader_refs(u->reader, i, &u->row, u->refs, u->err));
        for (size_t k = 0; k < u->count; k++)
            if (u->refs[k].count)
                each(u, &u->fields[k], &u->refs[k]);
    }
    return BAGS_OK;
}

/* Give each field that needs one a window of bits, large enough for the longest field
 * if memory allows. *stop receives the end of all needed windows; 0: none. */
static bags_code unref_make_window(unref *u, uint64_t *stop) {
    size_t fields = 0, words = UNREF_WORDS;
    *stop = 0;
    for (size_t k = 0; k < u->count; k++) {
        unref_field *field = &u->fields[k];
        bool needed = field->gap || (field->measured && field->stop > 0);
        fields += needed;
        if (needed && field->stop > *stop)
            *stop = field->stop;
        if (!needed)
            field->blobs += field->next;
    }
    if (!fields)
        return BAGS_OK;
    words = words / fields ? words / fields : 1;
    if (*stop / 64 < words)
        words = (size_t)(*stop / 64) + 1;
    if (bags_buffer_reserve(&u->bits, fields * words * sizeof(uint64_t), u->err))
        return BAGS_ERROR_MEMORY;
    uint64_t *bits = (uint64_t *)(void *)u->bits.data;
    for (size_t k = 0; k < u->count; k++) {
        unref_field *field = &u->fields[k];
        bool needed = field->gap || (field->measured && field->stop > 0);
        field->bits = needed ? bits : NULL;
        bits += needed ? words : 0;
    }
    u->window = (uint64_t)words * 64;
    return BAGS_OK;
}

/* Count the marked blobs of a field and, if there is a Bag, their bytes. */
static bags_code unref_count(unref *u, unref_field *field, const bag_reader *bag) {
    for (uint64_t i = 0; i < u->window; i++) {
        bags_view blob = {NULL, 0};
        uint64_t word = field->bits[i / 64];
        if (!word)
            i += 63;
        if (!word || !(word >> i % 64 & 1))
            continue;
        field->blobs++;
        if (bag && bag_reader_get(bag, u->start + i, &u->blob, &blob, u->err))
            return u->err->code;
        field->size += blob.size;
    }
    return BAGS_OK;
}

/* Count the marked blobs of a field and, if needed, their bytes. */
static bags_code unref_count_field(unref *u, const char *directory, size_t field) {
    char path[FORMAT_PATH];
    bag_reader_options opening;
    const char *name = bags_reader_fields(u->reader, NULL)[field].name;
    if (!u->fields[field].measured)
        return unref_count(u, &u->fields[field], NULL);
    memset(&opening, 0, sizeof opening);
    opening.env = *u->env;
    FORMAT_TRY(format_path(path, directory, name, ".bag", u->err));
    bag_reader *bag = bag_reader_open(path, &opening, u->err);
    bags_code code = bag ? unref_count(u, &u->fields[field], bag) : u->err->code;
    bag_reader_close(bag);
    return code;
}

/* Count the marked blobs of all fields. */
static bags_code unref_count_window(unref *u, const bags_shard *shard) {
    char directory[FORMAT_PATH];
    FORMAT_TRY(bags_shard_path(
        bags_reader_path(u->reader), shard, directory, sizeof directory, u->err));
    for (size_t k = 0; k < u->count; k++)
        if (u->fields[k].bits)
            FORMAT_TRY(unref_count_field(u, directory, k));
    return BAGS_OK;
}

/* Count the referenced blobs of all shards. */
static bags_code unref_count_all(unref *u) {
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(u->reader, &count);
    for (size_t k = 0; k < u->count; k++)
        u->fields[k].blobs = u->fields[k].size = 0;
    u->requested = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t stop = 0;
        for (size_t k = 0; k < u->count; k++) {
            u->fields[k].next = u->fields[k].stop = 0;
            u->fields[k].gap = false;
            u->fields[k].bits = NULL;
        }
        FORMAT_TRY(unref_scan(u, &shards[i], unref_extend));
        FORMAT_TRY(unref_make_window(u, &stop));
        for (u->start = 0; u->start < stop; u->start += u->window) {
            memset(u->bits.data, 0, u->bits.capacity);
            u->requested = shards[i].start;
            FORMAT_TRY(unref_scan(u, &shards[i], unref_mark));
            FORMAT_TRY(unref_count_window(u, &shards[i]));
        }
    }
    return BAGS_OK;
}

/* Subtract the referenced blobs and bytes from the totals. */
static bags_code unref_run(unref *u, bool sizes, bags_field_info *fields) {
    bags_info info;
    FORMAT_TRY(bags_reader_info(u->reader, &info, fields, u->err));
    (void)bags_reader_fields(u->reader, &u->count);
    size_t most = u->count + 1;
    FORMAT_TRY(bags_buffer_reserve(&u->memory[0], most * sizeof *u->fields, u->err));
    FORMAT_TRY(bags_buffer_reserve(&u->memory[1], most * sizeof *u->refs, u->err));
    u->fields = (unref_field *)memset(u->memory[0].data, 0, u->memory[0].capacity);
    u->refs = (bags_ref *)(void *)u->memory[1].data;
    FORMAT_TRY(unref_count_all(u));
    bool measured = false;
    for (size_t k = 0; k < u->count; k++) {
        u->fields[k].measured = sizes && u->fields[k].blobs < fields[k].blobs;
        measured = measured || u->fields[k].measured;
    }
    if (measured)
        FORMAT_TRY(unref_count_all(u));
    for (size_t k = 0; k < u->count; k++) {
        fields[k].blobs -= u->fields[k].blobs;
        fields[k].size = u->fields[k].measured ? fields[k].size - u->fields[k].size : 0;
    }
    return bags_reader_check(u->reader, u->err);
}

bags_code bags_unreferenced(const bags_reader *reader, const bags_env *env, bool sizes,
    bags_field_info *fields, bags_error *err) {
    bags_error ignored;
    bags_env local;
    unref u;
    memset(&local, 0, sizeof local);
    memset(&u, 0, sizeof u);
    u.reader = reader;
    u.env = env ? env : &local;
    u.err = err ? err : &ignored;
    u.bits = u.blob = u.ahead = u.memory[0] = u.memory[1] =
        bags_buffer_of(u.env->allocator);
    bags_code code = unref_run(&u, sizes, fields);
    bags_buffer_free(&u.bits);
    bags_buffer_free(&u.blob);
    bags_buffer_free(&u.ahead);
    bags_buffer_free(&u.memory[0]);
    bags_buffer_free(&u.memory[1]);
    bags_row_free(&u.row);
    return code;
}
