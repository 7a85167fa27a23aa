/*
 * benzina.c - imports Benzina's .bzna files. It needs no library.
 *
 * A .bzna is an MP4 file of brand bzna with a track per column. Datapoint i is
 * sample i of each; fields have the tracks' names:
 *
 *     bzna_input   mp4: the inner MP4 file with its H.264 or H.265 image, as stored
 *     bzna_target  i64 if every target has 8 bytes, otherwise bytes
 *     bzna_fname   utf8, without the trailing NUL
 *
 * bzna_thumb is left out: its samples are parts of bzna_input. Other tracks are
 * bytes. Rejected: fragments, and tracks that differ in length.
 */
#include "import.h"

#include <inttypes.h>

#define BZ_MOOV ((uint64_t)1 << 30) /* most bytes of the index */
#define BZ_TRACKS 64

/* Part of the index in memory. data NULL: there is none. */
typedef struct bz_table {
    const unsigned char *data;
    uint64_t size, count; /* entries */
} bz_table;

typedef struct bz_track {
    const char *name;
    bz_table sizes, offsets, runs; /* stsz, stco or co64, stsc */
    uint32_t size;                 /* of every sample; 0: see sizes */
    bool wide;                     /* offsets of 8 bytes */
    bool text;                     /* a name: it ends in NUL */
    /* The next sample: its number, its chunk, how many of it precede it in its
     * chunk, its offset, the run that its chunk is of. */
    uint64_t next, chunk, before, offset, run;
    bags_buffer data;
} bz_track;

typedef struct bz_source {
    bags_import_arena arena;
    bags_import_file file;
    bags_buffer moov;
    bz_track tracks[BZ_TRACKS];
    bags_field fields[BZ_TRACKS];
    bags_entry entries[BZ_TRACKS];
    bags_value values[BZ_TRACKS];
    size_t count;
    uint64_t length;
} bz_source;

static uint64_t bz_load(const unsigned char *data, size_t size) {
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++)
        number = number << 8 | data[i];
    return number;
}

static bags_code bz_bad(
    const bz_source *s, const char *what, const char *of, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: invalid %s%s%s",
        s->file.path, what, *of ? " of track " : "", of);
}

/* The content of the next box in *rest, which is moved past it; data NULL if the
 * rest has none. */
static bz_table bz_next(bz_table *rest, char type[4]) {
    bz_table box = {NULL, 0, 0};
    if (rest->size < 8)
        return box;
    uint64_t size = bz_load(rest->data, 4), header = 8;
    memcpy(type, rest->data + 4, 4);
    if (size == 1 && rest->size >= 16) {
        size = bz_load(rest->data + 8, 8);
        header = 16;
    } else if (size == 0) {
        size = rest->size; /* up to the end */
    }
    if (size < header || size > rest->size)
        return box;
    box.data = rest->data + header;
    box.size = size - header;
    rest->data += size;
    rest->size -= size;
    return box;
}

/* The first box at a path such as "mdia" "hdlr" within another. */
static bz_table bz_find(bz_table in, const char *path) {
    bz_table box = {NULL, 0, 0};
    char type[4];
    while ((box = bz_next(&in, type)).data)
        if (memcmp(type, path, 4) == 0)
            return path[4] ? bz_find(box, path + 4) : box;
    return box;
}

/* A table of `width` bytes per entry, whose number precedes it. */
static bool bz_entries(bz_table *table, uint64_t skip, uint64_t width) {
    if (!table->data || table->size < skip + 4)
        return false;
    table->count = bz_load(table->data + skip, 4);
    table->data += skip + 4;
    table->size -= skip + 4;
    return table->count <= table->size / width;
}

static bags_code bz_open_track(
    bz_source *s, bz_track *track, bz_table trak, bags_error *err) {
    bz_table about = bz_find(trak, "mdiahdlr");
    bz_table tables = bz_find(trak, "mdiaminfstbl");
    if (!about.data || about.size < 24)
        return bz_bad(s, "hdlr box", "", err);
    const unsigned char *name = about.data + 24;
    const void *end = memchr(name, 0, (size_t)about.size - 24);
    track->name = bags_import_text(&s->arena, name,
        end ? (size_t)((const unsigned char *)end - name)
            : (size_t)about.size - 24,
        err);
    if (!track->name)
        return BAGS_ERROR_MEMORY;
    track->sizes = bz_find(tables, "stsz");
    track->runs = bz_find(tables, "stsc");
    track->offsets = bz_find(tables, "stco");
    track->wide = !track->offsets.data;
    if (track->wide)
        track->offsets = bz_find(tables, "co64");
    if (track->sizes.data && track->sizes.size >= 12) {
        track->size = (uint32_t)bz_load(track->sizes.data + 4, 4);
        if (track->size)
            track->sizes.count = bz_load(track->sizes.data + 8, 4);
    }
    /* Samples of one size have no table of sizes. */
    if ((!track->size && !bz_entries(&track->sizes, 8, 4)) ||
        !bz_entries(&track->runs, 4, 12) ||
        !bz_entries(&track->offsets, 4, track->wide ? 8 : 4))
        return bz_bad(s, "stsz, stsc or stco box", track->name, err);
    if (track->sizes.count > s->file.size)
        return bz_bad(s, "number of samples", track->name, err);
    return BAGS_OK;
}

static uint64_t bz_size(const bz_track *track, uint64_t sample) {
    return track->size ? track->size
                       : bz_load(track->sizes.data + 4 * sample, 4);
}

/* Move to this sample, which is not before the next one, and past it. A run has
 * the number of its first chunk, from 1, and of samples per chunk. */
static bags_code bz_move(bz_source *s, bz_track *track, uint64_t sample,
    uint64_t *offset, bags_error *err) {
    while (track->next <= sample) {
        const unsigned char *run = track->runs.data + 12 * track->run;
        if (track->run >= track->runs.count ||
            track->chunk >= track->offsets.count)
            return bz_bad(s, "stsc box: too few chunks", track->name, err);
        if (track->run + 1 < track->runs.count &&
            bz_load(run + 12, 4) <= track->chunk + 1) {
            track->run++;
        } else if (track->before >= bz_load(run + 4, 4)) {
            track->chunk++;
            track->before = 0;
        } else {
            size_t width = track->wide ? 8 : 4;
            if (track->before == 0)
                track->offset =
                    bz_load(track->offsets.data + width * track->chunk, width);
            *offset = track->offset;
            uint64_t size = bz_size(track, track->next);
            if (*offset > s->file.size || size > s->file.size - *offset)
                return bags_fail(err, BAGS_ERROR_CORRUPT,
                    "%s: track %s: sample %" PRIu64 " out of range (%" PRIu64
                    " bytes at %" PRIu64 ", size of the file %" PRIu64 ")",
                    s->file.path, track->name, track->next, size, *offset,
                    s->file.size);
            track->offset += size;
            track->before++;
            track->next++;
        }
    }
    return BAGS_OK;
}

/* The type of a track's field. */
static bags_code bz_type(
    bz_source *s, bz_track *track, const char **type, bags_error *err) {
    bz_track first = *track; /* a position of its own */
    unsigned char start[12];
    uint64_t offset, equal = 0;
    const char *magic = NULL;
    *type = "bytes";
    while (equal < s->length && bz_size(track, equal) == 8)
        equal++;
    if (!strcmp(track->name, "bzna_target") && s->length && equal == s->length)
        *type = "i64";
    track->text = !strcmp(track->name, "bzna_fname");
    if (track->text)
        *type = "utf8";
    if (strcmp(track->name, "bzna_input") != 0 || !s->length ||
        bz_size(track, 0) < sizeof start)
        return BAGS_OK;
    bags_code code = bz_move(s, &first, 0, &offset, err);
    if (!code)
        code =
            bags_import_file_read(&s->file, offset, start, sizeof start, err);
    if (!code)
        magic = bags_import_magic(start, sizeof start);
    if (magic)
        *type = magic;
    return code;
}

/* Find the moov box and load it. */
static bags_code bz_load_moov(bz_source *s, bz_table *moov, bags_error *err) {
    for (uint64_t at = 0, size; at < s->file.size; at += size) {
        unsigned char head[16];
        bool wide = s->file.size - at >= 16;
        bags_code code = BAGS_OK;
        if (s->file.size - at >= 8)
            code =
                bags_import_file_read(&s->file, at, head, wide ? 16 : 8, err);
        if (code)
            return code;
        size = s->file.size - at >= 8 ? bz_load(head, 4) : 2;
        if (size == 0)
            size = s->file.size - at;
        else if (size == 1 && wide)
            size = bz_load(head + 8, 8);
        if (size < 8 || size > s->file.size - at)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: invalid box at %" PRIu64 " (%" PRIu64 " bytes)",
                s->file.path, at, size);
        if (memcmp(head + 4, "moov", 4) != 0)
            continue;
        if (size > BZ_MOOV)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "%s: moov box too large (%" PRIu64 " bytes, maximum %" PRIu64
                ")",
                s->file.path, size, BZ_MOOV);
        code = bags_buffer_reserve(&s->moov, (size_t)size, err);
        if (!code)
            code = bags_import_file_read(
                &s->file, at, s->moov.data, (size_t)size, err);
        char type[4];
        bz_table box = {s->moov.data, size, 0};
        if (!code)
            *moov = bz_next(&box, type);
        return !code && !moov->data ? bz_bad(s, "moov box", "", err) : code;
    }
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: no moov box", s->file.path);
}

static bags_code bz_open_tracks(
    bz_source *s, const bags_allocator *allocator, bags_error *err) {
    bz_table moov = {NULL, 0, 0}, box;
    char type[4];
    bags_code code = bz_load_moov(s, &moov, err);
    while (!code && (box = bz_next(&moov, type)).data) {
        bz_track *track = &s->tracks[s->count];
        if (memcmp(type, "trak", 4) != 0)
            continue;
        code = bz_open_track(s, track, box, err);
        if (code || strcmp(track->name, "bzna_thumb") == 0) {
            memset(track, 0, sizeof *track);
            continue;
        }
        if (s->count == 0)
            s->length = track->sizes.count;
        if (track->sizes.count != s->length)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: tracks differ in length (%s %" PRIu64 ", %s %" PRIu64 ")",
                s->file.path, s->tracks[0].name, s->length, track->name,
                track->sizes.count);
        track->data = bags_import_buffer_start(allocator);
        s->fields[s->count].name = track->name;
        if (++s->count == BZ_TRACKS)
            return bz_bad(s, "number of tracks", "", err);
    }
    if (!code && moov.size > 0)
        code = bz_bad(s, "moov box", "", err);
    if (!code && s->count == 0)
        code =
            bags_fail(err, BAGS_ERROR_CORRUPT, "%s: no tracks", s->file.path);
    for (size_t i = 0; !code && i < s->count; i++)
        code = bz_type(s, &s->tracks[i], &s->fields[i].type, err);
    if (!code)
        code = bags_import_names(
            s->fields, s->count, s->file.path, &s->arena, err);
    return code;
}

static void benzina_close(void *source) {
    bz_source *s = (bz_source *)source;
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++)
        bags_buffer_free(&s->tracks[i].data);
    bags_buffer_free(&s->moov);
    bags_import_file_close(&s->file);
    bags_import_arena arena = s->arena;
    bags_import_free(&arena);
}

static bags_code benzina_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    bz_source *s = (bz_source *)bags_import_alloc(&arena, 1, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    s->arena = arena;
    s->moov = bags_import_buffer_start(allocator);
    path = bags_import_text(&s->arena, path, strlen(path), err);
    bags_code code =
        path ? bags_import_file_open(&s->file, path, err) : BAGS_ERROR_MEMORY;
    if (!code)
        code = bz_open_tracks(s, allocator, err);
    if (code) {
        benzina_close(s);
        return code;
    }
    info->fields = s->fields;
    info->count = s->count;
    info->length = s->length;
    *source = s;
    return BAGS_OK;
}

static bags_code benzina_read(
    void *source, uint64_t index, const bags_entry **entries, bags_error *err) {
    bz_source *s = (bz_source *)source;
    *entries = NULL;
    if (index >= s->length)
        return BAGS_OK;
    for (size_t i = 0; i < s->count; i++) {
        bz_track *track = &s->tracks[i];
        size_t size = (size_t)bz_size(track, index);
        uint64_t offset;
        bags_code code = bz_move(s, track, index, &offset, err);
        if (!code)
            code = bags_buffer_reserve(&track->data, size, err);
        if (!code)
            code = bags_import_file_read(
                &s->file, offset, track->data.data, size, err);
        if (code)
            return code;
        if (track->text && size > 0 && track->data.data[size - 1] == 0)
            size--;
        s->values[i] =
            track->text ? bags_utf8_sized((const char *)track->data.data, size)
                        : bags_blob(track->data.data, size);
        s->entries[i].field = s->fields[i].name;
        s->entries[i].values = &s->values[i];
        s->entries[i].count = 1;
    }
    *entries = s->entries;
    return BAGS_OK;
}

static bool benzina_detect(const char *path) {
    unsigned char start[64];
    size_t size = bags_import_peek(path, start, sizeof start);
    if (size < 16 || memcmp(start + 4, "ftyp", 4) != 0)
        return false;
    uint64_t end = bz_load(start, 4);
    for (size_t i = 8; i + 4 <= size && i + 4 <= end; i += 4)
        if (i != 12 && memcmp(start + i, "bzna", 4) == 0)
            return true;
    return false;
}

const bags_importer bags_import_benzina = {
    "benzina", benzina_detect, benzina_open, benzina_read, benzina_close};
