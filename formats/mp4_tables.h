/*
 * mp4_tables.h - MP4 boxes: checks their claims, reads the tables of a track, and moves
 * the index to the front. Used by mp4.c and the importers of MP4 files. Programs do not
 * include it, but need to copy it along with mp4.c. It needs no library and allocates
 * no memory.
 *
 *     ftyp | moov, the index  | mdat, the samples
 *            trak, mdia, minf, stbl: a table for each question
 *              stsz  sizes of samples             stss  which are keyframes; none: all
 *              stco  offsets of chunks (co64)     stts  durations, to be added up
 *              stsc  samples per chunk            ctts  time shown - time decoded
 */
#ifndef BAGS_FORMATS_MP4_TABLES_H
#define BAGS_FORMATS_MP4_TABLES_H

#include "codecs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- boxes ---- */

/* The size of the box at the start of `data`, including its header of *header bytes.
 * `left` bytes remain in the file from there. 0: not a box. */
static inline uint64_t mp4_box_size(bags_view data, uint64_t left, size_t *header) {
    if (data.size < 8)
        return 0;
    uint64_t size = bags_load_bytes(data.data, 4, true);
    *header = 8;
    if (size == 1 && data.size >= 16) {
        size = bags_load_bytes(data.data + 8, 8, true);
        *header = 16;
    } else if (size == 0) { /* up to the end */
        size = left;
    }
    return size >= *header && size <= left ? size : 0;
}

/* Consume the first box of *rest, and return its name and content. False at the end, or
 * if the box exceeds *rest. */
static inline bool mp4_box(bags_view *rest, char type[4], bags_view *box) {
    size_t header = 0;
    size_t size = (size_t)mp4_box_size(*rest, rest->size, &header);
    if (size == 0)
        return false;
    memcpy(type, rest->data + 4, 4);
    box->data = rest->data + header;
    box->size = size - header;
    rest->data += size;
    rest->size -= size;
    return true;
}

/* Find the first box at a path: "mdiahdlr" is hdlr in mdia. Its data are NULL if there
 * is none. */
static inline bags_view mp4_find(bags_view in, const char *path) {
    bags_view box, none = {NULL, 0};
    char type[4];
    while (path[0] && mp4_box(&in, type, &box))
        if (memcmp(type, path, 4) == 0) {
            if (!path[4])
                return box;
            in = box;
            path += 4;
        }
    return none;
}

/* ---- claims ---- */

/*
 * libavformat allocates memory for as many entries as a header claims. Claims cost an
 * attacker only a few bytes: tables of a million missing entries, a million samples of
 * one size, an edit list that shows everything a million times. Every sample has at
 * least one byte, so the size of the blob limits honest claims.
 */

/* Boxes with a count: the count's offset from the box name, and the minimum size of a
 * counted item: a table entry, or a sample (1) stored elsewhere. */
static const struct {
    char name[5];
    unsigned char at, least;
} mp4_boxes[] = {{"stts", 8, 8}, {"stss", 8, 4}, {"stps", 8, 4}, {"stsc", 8, 12},
    {"stco", 8, 4}, {"co64", 8, 8}, {"ctts", 8, 8}, {"elst", 8, 12}, {"dref", 8, 12},
    {"sbgp", 12, 8}, {"stsz", 12, 1}, {"stz2", 12, 1}, {"trun", 8, 1}};
#define MP4_BOXES (sizeof mp4_boxes / sizeof *mp4_boxes)

typedef struct mp4_claims {
    uint64_t samples;                      /* total over all tables and fragments */
    uint64_t edits, chunks, chunk_samples; /* the maximum in any table */
    const char *name; /* the last box with a claim, and its count */
    uint64_t count;
} mp4_claims;

static inline uint64_t mp4_most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Returns false if the box whose name is at `data`, with `size` bytes from there, or
 * all boxes together, claim more than a file of `total` bytes can contain. */
static inline bool mp4_check_claim(
    mp4_claims *claims, const unsigned char *data, uint64_t size, uint64_t total) {
    size_t i = 0;
    while (i < MP4_BOXES && memcmp(data, mp4_boxes[i].name, 4) != 0)
        i++;
    if (i == MP4_BOXES || size < mp4_boxes[i].at + 4U)
        return memcmp(data, "cmov", 4) != 0; /* a compressed header */
    const unsigned char *entries = data + mp4_boxes[i].at + 4;
    uint64_t count = claims->count = bags_load_bytes(entries - 4, 4, true);
    claims->name = mp4_boxes[i].name;
    if (mp4_boxes[i].least == 1)
        claims->samples += count;
    else if (count > (size - mp4_boxes[i].at - 4) / mp4_boxes[i].least)
        return false;
    if (memcmp(data, "elst", 4) == 0)
        claims->edits = mp4_most(claims->edits, count);
    if (memcmp(data, "stco", 4) == 0 || memcmp(data, "co64", 4) == 0)
        claims->chunks = mp4_most(claims->chunks, count);
    if (memcmp(data, "stsc", 4) == 0) /* first chunk, samples, description */
        for (; count > 0; count--, entries += 12)
            claims->chunk_samples =
                mp4_most(claims->chunk_samples, bags_load_bytes(entries + 4, 4, true));
    /* A single edit shows all samples, and each additional one may, too. */
    return mp4_most(claims->edits, 1) <= total / mp4_most(claims->samples, 1) &&
           claims->chunk_samples / 1024 <= total / mp4_most(claims->chunks, 1);
}

/* Walk the outermost boxes. libavformat finds boxes in places not described by the
 * standard, so a box may start at any byte outside `mdat`, the frames. */
static inline bags_code mp4_check_boxes(bags_view blob, bags_error *err) {
    mp4_claims claims;
    memset(&claims, 0, sizeof claims);
    claims.name = "cmov";
    for (size_t at = 0; blob.size - at >= 8;) {
        const unsigned char *box = blob.data + at;
        size_t left = blob.size - at, header = 8;
        uint64_t size = bags_load_bytes(box, 4, true);
        if (size == 1 && left >= 16) {
            header = 16;
            size = bags_load_bytes(box + 8, 8, true);
        }
        if (size == 0)
            size = left;
        if (size < header || size > left)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "not an MP4 file, or truncated (box of %" PRIu64
                " bytes at byte %" PRIu64 " "
                "of %" PRIu64 ")",
                (uint64_t)size, (uint64_t)at, (uint64_t)blob.size);
        if (memcmp(box + 4, "mdat", 4) != 0)
            for (size_t i = 0; i + 4 <= size; i++)
                if (box[i] >= 'b' && box[i] <= 't' &&
                    !mp4_check_claim(&claims, box + i, size - i, blob.size))
                    return bags_fail(err, BAGS_ERROR_CORRUPT,
                        "MP4 header claims too much: %" PRIu64 " entries in %s (file "
                        "size %" PRIu64 ")",
                        (uint64_t)claims.count, claims.name, (uint64_t)blob.size);
        at += (size_t)size;
    }
    return BAGS_OK;
}

/* ---- tables ---- */

/* Entries of a box. */
typedef struct mp4_table {
    const unsigned char *data;
    uint64_t count;
} mp4_table;

/* Get the table in a box: `skip` bytes, the number of entries, then entries of `width`
 * bytes each. False if the box is too small. */
static inline bool mp4_entries(
    mp4_table *table, bags_view box, size_t skip, size_t width) {
    if (box.size < skip + 4)
        return false;
    table->count = bags_load_bytes(box.data + skip, 4, true);
    table->data = box.data + skip + 4;
    return table->count <= (box.size - skip - 4) / width;
}

/* The locations of a track's samples. */
typedef struct mp4_places {
    mp4_table sizes, offsets, runs; /* stsz; stco or co64; stsc */
    uint32_t size;                  /* size of every sample; 0: see sizes */
    bool wide;                      /* offsets of 8 bytes */
    /* The next sample: its number, its chunk, the number of samples before it in the
     * chunk, its offset, and the run that its chunk belongs to. */
    uint64_t next, chunk, before, offset, run;
} mp4_places;

/* Open the tables of `stbl`. False if they are missing or too small. */
static inline bool mp4_places_open(mp4_places *places, bags_view stbl) {
    bags_view sizes = mp4_find(stbl, "stsz"), offsets = mp4_find(stbl, "stco");
    memset(places, 0, sizeof *places);
    places->wide = !offsets.data;
    if (places->wide)
        offsets = mp4_find(stbl, "co64");
    if (sizes.size >= 12) {
        places->size = (uint32_t)bags_load_bytes(sizes.data + 4, 4, true);
        places->sizes.count = bags_load_bytes(sizes.data + 8, 4, true);
    }
    /* If all samples have the same size, there is no table of sizes. */
    return (places->size || mp4_entries(&places->sizes, sizes, 8, 4)) &&
           mp4_entries(&places->runs, mp4_find(stbl, "stsc"), 4, 12) &&
           mp4_entries(&places->offsets, offsets, 4, places->wide ? 8 : 4);
}

static inline uint64_t mp4_places_size(const mp4_places *places, uint64_t sample) {
    return places->size ? places->size
                        : bags_load_bytes(places->sizes.data + 4 * sample, 4, true);
}

/* Find the next sample, below sizes.count. A run states its first chunk, counted from
 * 1, and the number of samples per chunk. False if there are too few chunks. */
static inline bool mp4_places_next(
    mp4_places *places, uint64_t *offset, uint64_t *size) {
    for (;;) {
        const unsigned char *run = places->runs.data + 12 * places->run;
        if (places->run >= places->runs.count || places->chunk >= places->offsets.count)
            return false;
        if (places->run + 1 < places->runs.count &&
            bags_load_bytes(run + 12, 4, true) <= places->chunk + 1) {
            places->run++;
        } else if (places->before >= bags_load_bytes(run + 4, 4, true)) {
            places->chunk++;
            places->before = 0;
        } else {
            break;
        }
    }
    size_t width = places->wide ? 8 : 4;
    if (places->before == 0)
        places->offset =
            bags_load_bytes(places->offsets.data + width * places->chunk, width, true);
    *offset = places->offset;
    *size = mp4_places_size(places, places->next);
    places->offset += *size;
    places->before++;
    places->next++;
    return true;
}

/* ---- a track of video ---- */

/* An entry of stts or ctts, valid for `left` more samples. */
typedef struct mp4_runs {
    mp4_table table;
    uint64_t next, left;
    int64_t value;
} mp4_runs;

typedef struct mp4_sample {
    uint64_t offset, size;
    int64_t time; /* presentation time */
    bool is_key, is_shown;
} mp4_sample;

typedef struct mp4_track {
    mp4_places places;
    mp4_runs durations, shifts; /* stts, ctts */
    mp4_table keys;             /* stss; count 0: all samples are keyframes */
    uint64_t key;               /* index of the next entry */
    int64_t time;               /* decoding time of the next sample */
    int64_t start, stop;        /* the time range shown by the edit list */
} mp4_track;

/* Get the value for the next sample. Returns false if there is none or it is not
 * plausible. */
static inline bool mp4_runs_next(mp4_runs *runs, bool is_signed, int64_t *value) {
    while (runs->left == 0) {
        const unsigned char *entry = runs->table.data + 8 * runs->next;
        if (runs->next >= runs->table.count)
            return false;
        runs->next++;
        runs->left = bags_load_bytes(entry, 4, true);
        runs->value = (int64_t)bags_load_bytes(entry + 4, 4, true);
        if (is_signed && runs->value > INT32_MAX)
            runs->value -= (int64_t)1 << 32;
        if (runs->value > INT32_MAX / 8 || runs->value < -(INT32_MAX / 8))
            return false;
    }
    runs->left--;
    *value = runs->value;
    return true;
}

/* Read an edit list of empty edits followed by one range of the video. False for any
 * other list. */
static inline bool mp4_track_edits(
    mp4_track *track, bags_view elst, uint64_t movie_scale, uint64_t media_scale) {
    mp4_table edits;
    bool wide = elst.size > 0 && elst.data[0] == 1;
    size_t width = wide ? 8 : 4;
    track->start = INT64_MIN;
    track->stop = INT64_MAX;
    if (!elst.data)
        return true;
    if (!mp4_entries(&edits, elst, 4, 2 * width + 4) || edits.count == 0 ||
        movie_scale == 0 || media_scale == 0)
        return false;
    for (uint64_t i = 0; i < edits.count; i++) {
        const unsigned char *edit = edits.data + i * (2 * width + 4);
        uint64_t duration = bags_load_bytes(edit, width, true);
        uint64_t time = bags_load_bytes(edit + width, width, true);
        if (time == (wide ? UINT64_MAX : UINT32_MAX) && i + 1 < edits.count)
            continue; /* empty */
        if (i + 1 < edits.count || duration == 0 || time > INT32_MAX ||
            duration > INT64_MAX / UINT32_MAX)
            return false;
        track->start = (int64_t)time;
        track->stop =
            track->start +
            (int64_t)((duration * media_scale + movie_scale / 2) / movie_scale);
    }
    return true;
}

/* Get the time scale from mvhd or mdhd; 0 if it is missing. */
static inline uint64_t mp4_time_scale(bags_view box) {
    size_t at = box.size > 0 && box.data[0] == 1 ? 20 : 12;
    return box.size >= at + 4 ? bags_load_bytes(box.data + at, 4, true) : 0;
}

/*
 * Open the first video track in the content of moov. It has places.sizes.count samples;
 * mp4_track_next returns them in decoding order. False if there is no such track, or if
 * these tables do not suffice: fragments, several sample descriptions, other files,
 * edit lists that repeat or join parts, open GOPs marked only by a sample group,
 * samples of one size.
 */
static inline bool mp4_track_open(mp4_track *track, bags_view moov) {
    bags_view trak, stbl, hdlr, keys, group, box, rest = moov;
    char type[4];
    memset(track, 0, sizeof *track);
    do {
        if (!mp4_box(&rest, type, &trak))
            return false;
        hdlr = mp4_find(trak, "mdiahdlr");
    } while (memcmp(type, "trak", 4) != 0 || hdlr.size < 12 ||
             memcmp(hdlr.data + 8, "vide", 4) != 0);
    stbl = mp4_find(trak, "mdiaminfstbl");
    bags_view described = mp4_find(stbl, "stsd"),
              files = mp4_find(trak, "mdiaminfdinfdref");
    if (mp4_find(moov, "mvex").data || mp4_find(stbl, "stps").data ||
        described.size < 8 || bags_load_bytes(described.data + 4, 4, true) != 1 ||
        files.size < 20 || bags_load_bytes(files.data + 4, 4, true) != 1 ||
        !(files.data[19] & 1)) /* samples are in this file */
        return false;
    for (group = stbl; mp4_box(&group, type, &box);)
        if (memcmp(type, "sbgp", 4) == 0 &&
            (box.size < 8 || memcmp(box.data + 4, "rap ", 4) == 0))
            return false;
    if (group.size > 0 || !mp4_places_open(&track->places, stbl) ||
        track->places.size || track->places.sizes.count == 0 ||
        track->places.sizes.count > INT32_MAX ||
        !mp4_entries(&track->durations.table, mp4_find(stbl, "stts"), 4, 8))
        return false;
    box = mp4_find(stbl, "ctts");
    if (box.data && (!mp4_entries(&track->shifts.table, box, 4, 8) ||
                        track->shifts.table.count == 0))
        return false;
    keys = mp4_find(stbl, "stss");
    if (keys.data &&
        (!mp4_entries(&track->keys, keys, 4, 4) || track->keys.count == 0 ||
            bags_load_bytes(track->keys.data, 4, true) == 0))
        return false;
    return mp4_track_edits(track, mp4_find(trak, "edtselst"),
        mp4_time_scale(mp4_find(moov, "mvhd")),
        mp4_time_scale(mp4_find(trak, "mdiamdhd")));
}

/* Get the next sample, whose index is less than places.sizes.count. False if the
 * tables are inconsistent. */
static inline bool mp4_track_next(mp4_track *track, mp4_sample *sample) {
    int64_t duration = 0, shift = 0;
    uint64_t number = track->places.next + 1;
    if (!mp4_places_next(&track->places, &sample->offset, &sample->size) ||
        sample->size == 0 || sample->size > INT32_MAX / 2 ||
        sample->offset > INT64_MAX / 2 ||
        !mp4_runs_next(&track->durations, false, &duration) ||
        (track->shifts.table.data && !mp4_runs_next(&track->shifts, true, &shift)))
        return false;
    sample->time = track->time + shift;
    sample->is_shown = sample->time >= track->start && sample->time < track->stop;
    track->time += duration;
    sample->is_key = track->keys.count == 0;
    if (track->key < track->keys.count) {
        const unsigned char *key = track->keys.data + 4 * track->key;
        uint64_t next = bags_load_bytes(key, 4, true);
        sample->is_key = next == number;
        if (next < number) /* out of order */
            return false;
        track->key += sample->is_key;
    }
    return true;
}

/* ---- the index of a video ---- */

#define MP4_HIDDEN UINT32_MAX /* the rank of a packet that shows no frame */
#define MP4_HEAD 16384        /* first bytes searched for moov or its position */
#define MP4_TOP_BOXES 64      /* maximum number of boxes skipped to find it */
#define MP4_FTYP 1024         /* maximum number of bytes read from ftyp */
#define MP4_WINDOW ((uint64_t)16 << 20) /* maximum bytes per read, */
#define MP4_AHEAD ((uint64_t)4 << 20)   /* read ahead of the needed packets, */
#define MP4_GAP ((uint64_t)64 << 10)    /* of other tracks between two packets */

struct AVPacket;

typedef struct mp4_packet {
    struct AVPacket *packet; /* NULL: it is in the dataset, ... */
    uint64_t offset;         /* ... here in the blob */
    uint32_t size;
    bool is_key;
    int64_t pts;
    uint32_t key;     /* the keyframe where decoding must start */
    uint32_t rank;    /* the rank of the frame it shows, or MP4_HIDDEN */
    int64_t until;    /* the last time stamp since the last keyframe */
    uint32_t damaged; /* the decoder run that found it damaged; 0: none */
} mp4_packet;

/* A frame in display order. */
typedef struct mp4_shown {
    int64_t pts;
    uint32_t packet;
} mp4_shown;

/*
 * A vp9 superframe packs several frames into a packet, followed by a marker byte, their
 * sizes, and the marker again. Returns 0 if the packet is a single frame, 1 if it is a
 * superframe, -1 if its sizes are invalid (FFmpeg would print a message).
 */
static inline int mp4_vp9_superframe(const unsigned char *data, size_t size) {
    unsigned mark = data[size - 1];
    size_t count = (mark & 7) + 1, bytes = (mark >> 3 & 3) + 1;
    size_t index = 2 + count * bytes;
    if ((mark & 0xe0) != 0xc0 || size < index || data[size - index] != mark)
        return 0;
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t part =
            bags_load_bytes(data + size - index + 1 + i * bytes, bytes, false);
        total += part;
        if (part == 0 || total > size - index)
            return -1;
    }
    return 1;
}

static inline int mp4_compare(const void *a, const void *b) {
    const mp4_shown *x = (const mp4_shown *)a, *y = (const mp4_shown *)b;
    if (x->pts != y->pts)
        return x->pts < y->pts ? -1 : 1;
    return x->packet < y->packet ? -1 : x->packet > y->packet;
}

/*
 * Set the rank and keyframe of every packet; packet `first` is the first keyframe.
 * Packets before it in decoding or display order cannot be decoded; nor can a packet be
 * decoded from a preceding keyframe if it is shown before that keyframe. Matroska has
 * no time stamps below 0: packets without one after the first keyframe are shown before
 * it. `order` has room for all packets, and receives the displayed frames; *delay
 * receives the maximum number of frames that wait for one shown earlier. Returns the
 * number of frames.
 */
static inline uint32_t mp4_sort(mp4_packet *packets, uint32_t length, uint32_t first,
    mp4_shown *order, int *delay) {
    uint32_t key = first, decoded = length - first, count = 0;
    int64_t start = packets[first].pts;
    for (uint32_t i = 0; i < length; i++) {
        int64_t pts = packets[i].pts;
        if (packets[i].is_key)
            key = i;
        packets[i].key = key;
        packets[i].until =
            i > key && packets[i - 1].until > pts ? packets[i - 1].until : pts;
        while (packets[i].key > first && packets[packets[i].key].pts > pts)
            packets[i].key = packets[packets[i].key - 1].key;
        if (i < first || pts < start)
            packets[i].rank = MP4_HIDDEN;
        if (i < first)
            continue;
        order[i - first].pts = pts;
        order[i - first].packet = i;
    }
    qsort(order, decoded, sizeof *order, mp4_compare);
    for (uint32_t i = 0; i < decoded; i++) {
        mp4_shown shown = order[i];
        int waiting = (int)(shown.packet - first) - (int)i;
        *delay = waiting > *delay ? waiting : *delay;
        if (packets[shown.packet].rank == MP4_HIDDEN)
            continue;
        packets[shown.packet].rank = count;
        order[count++] = shown;
    }
    return count;
}

/* Fill in the zeroed packets of a track; *first receives the first keyframe. False if
 * the tables are inconsistent, or there is no keyframe. */
static inline bool mp4_track_packets(
    mp4_track *track, mp4_packet *packets, uint32_t *first) {
    uint32_t count = (uint32_t)track->places.sizes.count;
    *first = count;
    for (uint32_t i = 0; i < count; i++) {
        mp4_sample sample;
        if (!mp4_track_next(track, &sample))
            return false;
        packets[i].offset = sample.offset;
        packets[i].size = (uint32_t)sample.size;
        packets[i].pts = sample.time;
        packets[i].is_key = sample.is_key;
        packets[i].rank = sample.is_shown ? 0 : MP4_HIDDEN;
        if (sample.is_key && *first == count)
            *first = i;
    }
    return *first < count;
}

/* True if neither this packet nor any later one needs an earlier one: a keyframe
 * without leading pictures (frames that follow a keyframe and are shown before it). */
static inline bool mp4_starts_gop(
    const mp4_packet *packets, uint32_t length, uint32_t i) {
    return packets[i].is_key &&
           (i + 1 == length || packets[i + 1].pts >= packets[i].pts);
}

/* ---- a video in a dataset ---- */

/* A blob of a dataset, and the part read most recently. */
typedef struct mp4_source {
    const bags_reader *reader; /* NULL: all packets are in memory */
    uint64_t index, item;
    size_t field;
    bags_row row;
    uint64_t start;
    bags_view window;
    bool is_short; /* the entire blob is read at once, so that it can be verified */
} mp4_source;

/* Read at least this part of the blob into the window. */
static inline bags_code mp4_read_part(
    mp4_source *source, uint64_t offset, uint64_t size, bags_error *err) {
    if (source->is_short) {
        offset = 0;
        size = UINT64_MAX;
    }
    source->start = offset;
    return bags_reader_get_part(source->reader, source->index, source->field,
        source->item, offset, size, &source->row, &source->window, err);
}

/* The window's bytes from this offset onward. */
static inline bags_view mp4_window_from(const mp4_source *source, uint64_t offset) {
    bags_view from = {NULL, 0};
    if (offset < source->start || offset - source->start > source->window.size)
        return from;
    from.data = source->window.data + (offset - source->start);
    from.size = source->window.size - (size_t)(offset - source->start);
    return from;
}

/* True if these bytes are in the window, or are mapped and could be added to it for
 * free. */
static inline bool mp4_is_near(mp4_source *source, uint64_t offset, uint64_t size) {
    bags_error ignored;
    if (mp4_window_from(source, offset).size >= size)
        return true;
    return !bags_row_owns(&source->row, source->window.data) &&
           !mp4_read_part(source, offset, size, &ignored) &&
           mp4_window_from(source, offset).size >= size;
}

/* The part to read starting at packet `next`: through packet `last`, and to the end of
 * its GOP. */
static inline bags_extent mp4_part_from(
    const mp4_packet *packets, uint32_t length, uint32_t next, uint32_t last) {
    uint64_t start = packets[next].offset, stop = start + packets[next].size;
    for (uint32_t i = next + 1; i < length; i++) {
        uint64_t from = packets[i].offset, to = from + packets[i].size;
        uint64_t most = i <= last ? MP4_WINDOW : MP4_AHEAD;
        if ((i > last && packets[i].is_key) || from < stop || from - stop > MP4_GAP ||
            to - start > most)
            break;
        stop = to;
    }
    bags_extent part = {start, stop - start};
    return part;
}

/* Read packet `next` and the ones after it into the window, unless it is already
 * there. */
static inline bags_code mp4_read_packets(mp4_source *source, const mp4_packet *packets,
    uint32_t length, uint32_t next, uint32_t last, bags_error *err) {
    if (mp4_window_from(source, packets[next].offset).size >= packets[next].size)
        return BAGS_OK;
    bags_extent part = mp4_part_from(packets, length, next, last);
    return mp4_read_part(source, part.offset, part.size, err);
}

/*
 * Find moov, after mp4_read_part has read the first MP4_HEAD bytes. *before receives
 * the size of ftyp, or 0 if it is not the first box; *header receives the size of
 * moov's header. Both boxes are copied to `out`, one after the other, *size bytes in
 * total; 0 if moov is missing or truncated.
 */
static inline bags_code mp4_find_moov(mp4_source *source, bags_buffer *out,
    size_t *size, size_t *before, size_t *header, bags_error *err) {
    unsigned char ftyp[MP4_FTYP];
    bags_view from = source->window;
    uint64_t at = 0, all = 0;
    bags_code code = BAGS_OK;
    *size = *before = 0;
    for (int i = 0; i < MP4_TOP_BOXES; i++, at += all) {
        from = mp4_window_from(source, at);
        if (i > 0 && from.size < 16) {
            code = mp4_read_part(source, at, MP4_HEAD, err);
            if (code)
                return code;
            from = mp4_window_from(source, at);
        }
        all = mp4_box_size(from, INT64_MAX / 2, header);
        if (all == 0 || all > INT64_MAX / 4)
            return BAGS_OK;
        if (memcmp(from.data + 4, "moov", 4) == 0)
            break;
        if (i == 0 && memcmp(from.data + 4, "ftyp", 4) == 0 && all <= sizeof ftyp &&
            all <= from.size)
            memcpy(ftyp, from.data, *before = (size_t)all);
    }
    if (from.size < 8 || memcmp(from.data + 4, "moov", 4) != 0)
        return BAGS_OK;
    size_t found = from.size < all ? from.size : (size_t)all;
    code = bags_buffer_reserve(out, *before + found, err);
    if (code)
        return code;
    memcpy(out->data, ftyp, *before);
    memcpy(out->data + *before, from.data, found);
    if (found < all) {
        code = mp4_read_part(source, at + found, all - found, err);
        if (code || source->start != at + found || source->window.size < all - found)
            return code;
        code = bags_buffer_reserve(out, *before + (size_t)all, err);
        if (code)
            return code;
        memcpy(out->data + *before + found, source->window.data, source->window.size);
    }
    *size = *before + (size_t)all;
    return BAGS_OK;
}

/* ---- the index first ---- */

/* Add `more` to all chunk offsets below `stop` in the content of moov, in place. False
 * if an offset exceeds its 4 bytes, or the boxes differ from the layout that muxers
 * write. */
static inline bool mp4_shift_chunks(bags_view moov, uint64_t stop, uint64_t more) {
    bags_view trak;
    char type[4];
    while (mp4_box(&moov, type, &trak)) {
        if (memcmp(type, "trak", 4) != 0)
            continue;
        mp4_places places;
        if (!mp4_places_open(&places, mp4_find(trak, "mdiaminfstbl")))
            return false;
        size_t width = places.wide ? 8 : 4;
        unsigned char *entry = (unsigned char *)(uintptr_t)places.offsets.data;
        for (uint64_t i = 0; i < places.offsets.count; i++, entry += width) {
            uint64_t offset = bags_load_bytes(entry, width, true);
            offset += offset < stop ? more : 0;
            if (!places.wide && offset > UINT32_MAX)
                return false;
            bags_store_bytes(entry, width, true, offset);
        }
    }
    return moov.size == 0;
}

/*
 * Copy a file to `out` with moov in front of mdat, so that its first bytes locate the
 * rest. If moov is already in front, the file is copied unchanged. Returns false if it
 * has no moov or mp4_shift_chunks fails.
 */
static inline bool mp4_index_first(bags_view file, unsigned char *out) {
    bags_view rest = file, box, before = {file.data, 0}, moov = {NULL, 0};
    char type[4];
    bool has_data = false;
    while (!moov.data) {
        const unsigned char *at = rest.data;
        if (!mp4_box(&rest, type, &box))
            return false;
        if (memcmp(type, "moov", 4) == 0) {
            moov.data = at;
            moov.size = (size_t)(rest.data - at);
        } else if (!has_data && memcmp(type, "ftyp", 4) == 0) {
            before.size = (size_t)(rest.data - file.data);
        } else {
            has_data = true;
        }
    }
    if (!has_data) {
        memcpy(out, file.data, file.size);
        return true;
    }
    size_t between = (size_t)(moov.data - file.data) - before.size;
    memcpy(out, file.data, before.size);
    memcpy(out + before.size, moov.data, moov.size);
    memcpy(out + before.size + moov.size, file.data + before.size, between);
    size_t used = before.size + moov.size + between;
    memcpy(out + used, file.data + used, file.size - used);
    size_t header = (size_t)(box.data - moov.data);
    bags_view copy = {out + before.size + header, moov.size - header};
    return mp4_shift_chunks(copy, before.size + between, moov.size);
}

#endif /* BAGS_FORMATS_MP4_TABLES_H */
