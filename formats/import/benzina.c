/*
 * benzina.c - imports Benzina's .bzna files. It needs no library.
 *
 * A .bzna is an MP4 file of brand bzna with one track per column. Datapoint i is sample
 * i of each track, and fields are named after tracks:
 *
 *     bzna_input   mp4: the inner MP4 file with its H.264 or H.265 image, as stored
 *     bzna_target  i64 if every target has 8 bytes, otherwise bytes
 *     bzna_fname   utf8, without the trailing NUL
 *
 * bzna_thumb is left out, since its samples are parts of bzna_input. Other tracks are
 * stored as bytes. Rejected: fragments, and tracks that differ in length.
 */
#include "import.h"
#include "mp4_tables.h"
#include "try.h"

#include <inttypes.h>

#define BZ_MOOV ((uint64_t)1 << 30) /* maximum bytes of the index */

typedef struct bz_track {
    const char *name;
    mp4_places places;
    bool text; /* a name that ends in NUL */
} bz_track;

typedef struct bz_state {
    bz_track *tracks; /* one per field */
} bz_state;

static bags_code bz_bad(bags_source *s, const char *what, const char *of) {
    return bags_source_fail(
        s, BAGS_ERROR_CORRUPT, "invalid %s%s%s", what, *of ? " of track " : "", of);
}

static bags_code bz_open_track(bags_source *s, bz_track *track, bags_view trak) {
    bags_view about = mp4_find(trak, "mdiahdlr");
    if (about.size < 24)
        return bz_bad(s, "hdlr box", "");
    const unsigned char *name = about.data + 24;
    const void *end = memchr(name, 0, about.size - 24);
    track->name = bags_source_text(
        s, name, end ? (size_t)((const unsigned char *)end - name) : about.size - 24);
    if (!track->name)
        return BAGS_ERROR_MEMORY;
    if (!mp4_places_open(&track->places, mp4_find(trak, "mdiaminfstbl")))
        return bz_bad(s, "stsz, stsc or stco box", track->name);
    if (track->places.sizes.count > s->file.size)
        return bz_bad(s, "number of samples", track->name);
    return BAGS_OK;
}

/* Advance to this sample, and past it. */
static bags_code bz_move(bags_source *s, bz_track *track, uint64_t sample,
    uint64_t *offset, uint64_t *size) {
    while (track->places.next <= sample) {
        uint64_t number = track->places.next;
        if (!mp4_places_next(&track->places, offset, size))
            return bz_bad(s, "stsc box: too few chunks", track->name);
        if (*offset > s->file.size || *size > s->file.size - *offset)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "track %s: sample %" PRIu64 " out of range (%" PRIu64
                " bytes at %" PRIu64 ", size of the file %" PRIu64 ")",
                track->name, number, *size, *offset, s->file.size);
    }
    return BAGS_OK;
}

/* The type of a track's field. */
static bags_code bz_type(bags_source *s, bz_track *track, const char **type) {
    bz_track first = *track; /* a copy with its own position */
    uint64_t offset, size, equal = 0;
    bags_view start;
    *type = "bytes";
    while (equal < s->length && mp4_places_size(&track->places, equal) == 8)
        equal++;
    if (!strcmp(track->name, "bzna_target") && s->length && equal == s->length)
        *type = "i64";
    track->text = !strcmp(track->name, "bzna_fname");
    if (track->text)
        *type = "utf8";
    if (strcmp(track->name, "bzna_input") != 0 || !s->length ||
        mp4_places_size(&track->places, 0) < 12)
        return BAGS_OK;
    FORMAT_TRY(bz_move(s, &first, 0, &offset, &size));
    FORMAT_TRY(bags_source_view(s, offset, 12, &start));
    const char *image = bags_import_magic(start.data, start.size);
    if (image)
        *type = image;
    return BAGS_OK;
}

/* Find the moov box, the index, and copy its content. The rest of the file may not fit
 * in memory. */
static bags_code bz_load_moov(bags_source *s, bags_view *moov) {
    char type[4] = "";
    for (uint64_t at = 0, size; at < s->file.size; at += size) {
        uint64_t left = s->file.size - at;
        bags_view box;
        FORMAT_TRY(bags_source_view(s, at, left < 16 ? left : 16, &box));
        size = box.size < 8 ? 2 : bags_load_bytes(box.data, 4, true);
        if (size == 0)
            size = left;
        else if (size == 1 && box.size == 16)
            size = bags_load_bytes(box.data + 8, 8, true);
        if (size < 8 || size > left)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "invalid box at %" PRIu64 " (%" PRIu64 " bytes)", at, size);
        if (memcmp(box.data + 4, "moov", 4) != 0)
            continue;
        if (size > BZ_MOOV)
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "moov box too large (%" PRIu64 " bytes, maximum %" PRIu64 ")", size,
                BZ_MOOV);
        bags_code code = bags_source_copy(s, at, size, &box);
        return code || mp4_box(&box, type, moov) ? code : bz_bad(s, "moov box", "");
    }
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "no moov box");
}

/* Add the field for a track, except for thumbnails. */
static bags_code bz_add_track(bags_source *s, bags_view trak) {
    bz_state *b = (bz_state *)s->state;
    const char *type;
    bz_track track;
    memset(&track, 0, sizeof track);
    FORMAT_TRY(bz_open_track(s, &track, trak));
    if (strcmp(track.name, "bzna_thumb") == 0) {
        bags_source_leave_out(s, "track", 1, "%s", track.name);
        return BAGS_OK;
    }
    if (s->count == 0)
        s->length = track.places.sizes.count;
    else if (track.places.sizes.count != s->length)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "tracks differ in length (%s %" PRIu64 ", %s %" PRIu64 ")",
            s->fields[0].name, s->length, track.name, track.places.sizes.count);
    FORMAT_TRY(bz_type(s, &track, &type));
    b->tracks = (bz_track *)bags_source_grow(s, b->tracks, s->count, sizeof track);
    if (!b->tracks)
        return BAGS_ERROR_MEMORY;
    b->tracks[s->count] = track;
    bags_source_field(s, track.name, type);
    return BAGS_OK;
}

static bags_code bz_open(bags_source *s) {
    bags_view moov = {NULL, 0}, box;
    char type[4];
    FORMAT_TRY(bags_source_open_file(s, s->path));
    FORMAT_TRY(bz_load_moov(s, &moov));
    while (mp4_box(&moov, type, &box)) {
        if (memcmp(type, "trak", 4) != 0)
            continue;
        FORMAT_TRY(bz_add_track(s, box));
    }
    if (moov.size > 0)
        return bz_bad(s, "moov box", "");
    if (s->count == 0)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT, "no tracks");
    return BAGS_OK;
}

static bags_code bz_read(bags_source *s, uint64_t index) {
    bz_state *b = (bz_state *)s->state;
    for (size_t i = 0; !s->ended && i < s->count; i++) {
        bz_track *track = &b->tracks[i];
        uint64_t offset, size;
        bags_view sample;
        FORMAT_TRY(bz_move(s, track, index, &offset, &size));
        FORMAT_TRY(bags_source_view(s, offset, size, &sample));
        if (track->text && sample.size > 0 && sample.data[sample.size - 1] == 0)
            sample.size--;
        s->values[i] = track->text
                           ? bags_utf8_sized((const char *)sample.data, sample.size)
                           : bags_blob(sample.data, sample.size);
    }
    return BAGS_OK;
}

static bool bz_detect(const char *path) {
    unsigned char start[64];
    size_t size = bags_import_peek(path, start, sizeof start);
    if (size < 16 || memcmp(start + 4, "ftyp", 4) != 0)
        return false;
    uint64_t end = bags_load_bytes(start, 4, true);
    for (size_t i = 8; i + 4 <= size && i + 4 <= end; i += 4)
        if (i != 12 && memcmp(start + i, "bzna", 4) == 0)
            return true;
    return false;
}

const bags_importer bags_import_benzina = {
    "benzina", bz_detect, sizeof(bz_state), bz_open, bz_read, NULL};
