/*
 * mp4_write.h - the packets of a track of video, and the index (moov) of a file with packets
 * of others: for parts of videos, and for videos that are joined. Packets are never decoded.
 * Programs do not include it. It needs no library and allocates no memory.
 */
#ifndef BAGS_FORMATS_MP4_WRITE_H
#define BAGS_FORMATS_MP4_WRITE_H

#include "mp4_tables.h"

/* A packet of a track. */
typedef struct mp4_unit {
    uint64_t offset;
    uint32_t size, duration;
    int64_t decoded, shown; /* times in the units of the track */
    bool is_key, is_shown;
} mp4_unit;

/* The index of a video, from which all that is not about packets is copied. */
typedef struct mp4_video {
    bags_view moov, trak; /* their contents */
    uint64_t scale;       /* units per second */
} mp4_video;

/* Packets that are contiguous in a file. */
typedef struct mp4_chunk {
    uint64_t offset, count;
} mp4_chunk;

/* ---- reading ---- */

/* Find the track of video in moov. Returns the number of other tracks. */
static inline uint64_t mp4_find_video(mp4_video *video) {
    bags_view rest = video->moov, box;
    char type[4];
    uint64_t others = 0;
    video->trak.data = NULL;
    while (mp4_box(&rest, type, &box)) {
        if (memcmp(type, "trak", 4) != 0)
            continue;
        bags_view hdlr = mp4_find(box, "mdiahdlr");
        bool is_video = hdlr.size >= 12 && memcmp(hdlr.data + 8, "vide", 4) == 0;
        if (is_video && !video->trak.data)
            video->trak = box;
        else
            others++;
    }
    return others;
}

/* Open the track of a video that mp4_find_video found. False if its index is not supported:
 * see mp4_track_open; also several edits. */
static inline bool mp4_video_open(mp4_video *video, mp4_track *track) {
    mp4_table edits;
    bags_view elst = mp4_find(video->trak, "edtselst");
    bool one_edit =
        !elst.data || (mp4_entries(&edits, elst, 4, 12) && edits.count == 1);
    video->scale = mp4_time_scale(mp4_find(video->trak, "mdiamdhd"));
    return mp4_track_open(track, video->moov) && one_edit && video->scale > 0;
}

#define MP4_ADVICE                                                                     \
    "its index is not supported (fragments, several descriptions of samples or "       \
    "edits, "                                                                          \
    "samples of one size, or no video); write it again: ffmpeg -i IN.mp4 -c copy "     \
    "OUT.mp4"

/* Get the next packet of an open track. See mp4_track_next. */
static inline bool mp4_unit_next(mp4_track *track, mp4_unit *unit) {
    mp4_sample sample;
    unit->decoded = track->time;
    if (!mp4_track_next(track, &sample))
        return false;
    unit->offset = sample.offset;
    unit->size = (uint32_t)sample.size;
    unit->duration = (uint32_t)(track->time - unit->decoded);
    unit->shown = sample.time;
    unit->is_key = sample.is_key;
    unit->is_shown = sample.is_shown;
    return true;
}

/* ---- writing ---- */

static inline void mp4_put(unsigned char **to, uint64_t number, size_t width) {
    bags_store_bytes(*to, width, true, number);
    *to += width;
}

static inline void mp4_put_bytes(unsigned char **to, bags_view bytes) {
    if (bytes.size > 0)
        memcpy(*to, bytes.data, bytes.size);
    *to += bytes.size;
}

/* Begin a box; mp4_end sets its size. */
static inline unsigned char *mp4_begin(unsigned char **to, const char *type) {
    unsigned char *start = *to;
    memcpy(start + 4, type, 4);
    *to += 8;
    return start;
}

static inline void mp4_end(unsigned char *start, const unsigned char *to) {
    bags_store_bytes(start, 4, true, (uint64_t)(to - start));
}

/* Copy a box with this content. Does nothing if it is missing. */
static inline unsigned char *mp4_copy_box(
    unsigned char **to, const char *type, bags_view content) {
    if (!content.data)
        return NULL;
    unsigned char *start = mp4_begin(to, type);
    mp4_put_bytes(to, content);
    mp4_end(start, *to);
    return start;
}

/* Copy mvhd, tkhd or mdhd with another duration: at offset `at` of version 0, `wide` of
 * version 1. False if the box is too small. */
static inline bool mp4_put_header(unsigned char **to, const char *type,
    bags_view content, size_t at, size_t wide, uint64_t duration) {
    bool is_wide = content.size > 0 && content.data[0] == 1;
    size_t from = is_wide ? wide : at, width = is_wide ? 8 : 4;
    if (content.size < from + width || (!is_wide && duration > UINT32_MAX))
        return false;
    unsigned char *start = mp4_copy_box(to, type, content);
    bags_store_bytes(start + 8 + from, width, true, duration);
    return true;
}

/* stts (durations) or ctts (time shown - time decoded) of packets, as runs. */
static inline void mp4_put_runs(unsigned char **to, const mp4_unit *packets,
    size_t count, const char *type, int64_t base) {
    bool shifts = type[0] == 'c';
    unsigned char *start = mp4_begin(to, type), *entries;
    uint64_t runs = 0;
    mp4_put(to, 0, 4);
    entries = *to;
    *to += 4;
    for (size_t i = 0; i < count; runs++) {
        size_t first = i;
        int64_t value = 0;
        for (; i < count; i++) {
            int64_t next = shifts ? packets[i].shown - packets[i].decoded - base
                                  : (int64_t)packets[i].duration;
            if (i > first && next != value)
                break;
            value = next;
        }
        mp4_put(to, i - first, 4);
        mp4_put(to, (uint64_t)value, 4);
    }
    bags_store_bytes(entries, 4, true, runs);
    mp4_end(start, *to);
}

/* stsc and stco (or co64). Returns the location of the first chunk's offset. */
static inline unsigned char *mp4_put_chunks(
    unsigned char **to, const mp4_chunk *chunks, size_t count) {
    size_t width = chunks[count - 1].offset > UINT32_MAX ? 8 : 4;
    unsigned char *box = mp4_begin(to, "stsc"), *entries, *offsets;
    uint64_t runs = 0;
    mp4_put(to, 0, 4);
    entries = *to;
    *to += 4;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && chunks[i].count == chunks[i - 1].count)
            continue;
        mp4_put(to, i + 1, 4);
        mp4_put(to, chunks[i].count, 4);
        mp4_put(to, 1, 4);
        runs++;
    }
    bags_store_bytes(entries, 4, true, runs);
    mp4_end(box, *to);
    box = mp4_begin(to, width == 8 ? "co64" : "stco");
    mp4_put(to, 0, 4);
    mp4_put(to, count, 4);
    offsets = *to;
    for (size_t i = 0; i < count; i++)
        mp4_put(to, chunks[i].offset, width);
    mp4_end(box, *to);
    return offsets;
}

/* The tables of samples. Returns the location of the first chunk's offset. */
static inline unsigned char *mp4_put_tables(unsigned char **to, bags_view stsd,
    const mp4_unit *packets, size_t count, const mp4_chunk *chunks, size_t chunk_count,
    int64_t base, bool has_shifts) {
    unsigned char *stbl = mp4_begin(to, "stbl"), *box, *keys, *offset;
    uint64_t key_count = 0;
    mp4_copy_box(to, "stsd", stsd);
    mp4_put_runs(to, packets, count, "stts", 0);
    if (has_shifts)
        mp4_put_runs(to, packets, count, "ctts", base);
    box = mp4_begin(to, "stss");
    mp4_put(to, 0, 4);
    keys = *to;
    *to += 4;
    for (size_t i = 0; i < count; i++)
        if (packets[i].is_key) {
            mp4_put(to, i + 1, 4);
            key_count++;
        }
    bags_store_bytes(keys, 4, true, key_count);
    mp4_end(box, *to);
    box = mp4_begin(to, "stsz");
    mp4_put(to, 0, 8);
    mp4_put(to, count, 4);
    for (size_t i = 0; i < count; i++)
        mp4_put(to, packets[i].size, 4);
    mp4_end(box, *to);
    offset = mp4_put_chunks(to, chunks, chunk_count);
    mp4_end(stbl, *to);
    return offset;
}

static inline void mp4_put_ftyp(unsigned char **to) {
    static const unsigned char brands[] = "isom\0\0\2\0isomiso2mp41";
    bags_view ftyp = {brands, sizeof brands - 1};
    mp4_copy_box(to, "ftyp", ftyp);
}

/* An upper bound of the bytes that mp4_put_ftyp and mp4_put_moov write. */
static inline uint64_t mp4_index_size(
    const mp4_video *video, uint64_t count, uint64_t chunks) {
    return video->moov.size + 24 * count + 20 * chunks + 1024;
}

/* Write moov, with the descriptions in `video`, for `count` > 0 packets of `ticks` units, in
 * `chunk_count` > 0 chunks. The first frame is at 0. Returns the location of the first
 * chunk's offset, or NULL if a box of `video` is missing or too small. */
static inline unsigned char *mp4_put_moov(unsigned char **to, const mp4_video *video,
    const mp4_unit *packets, size_t count, const mp4_chunk *chunks, size_t chunk_count,
    uint64_t ticks) {
    bags_view trak = video->trak, mvhd = mp4_find(video->moov, "mvhd");
    uint64_t movie_scale = mp4_time_scale(mvhd);
    uint64_t duration = (ticks * movie_scale + video->scale - 1) / video->scale;
    int64_t base = 0, first = packets[0].shown - packets[0].decoded;
    bool has_shifts = false;
    for (size_t i = 0; i < count; i++) {
        int64_t shift = packets[i].shown - packets[i].decoded;
        base = shift < base ? shift : base;
        has_shifts = has_shifts || shift != 0;
    }
    unsigned char *moov = mp4_begin(to, "moov");
    if (!mp4_put_header(to, "mvhd", mvhd, 16, 24, duration))
        return NULL;
    unsigned char *track = mp4_begin(to, "trak");
    if (!mp4_put_header(to, "tkhd", mp4_find(trak, "tkhd"), 20, 28, duration))
        return NULL;
    if (has_shifts) { /* the first frame is at 0 */
        unsigned char *edts = mp4_begin(to, "edts"), *elst = mp4_begin(to, "elst");
        mp4_put(to, 0, 4);
        mp4_put(to, 1, 4);
        mp4_put(to, duration, 4);
        mp4_put(to, (uint64_t)(first - base), 4);
        mp4_put(to, 0x10000, 4);
        mp4_end(elst, *to);
        mp4_end(edts, *to);
    }
    unsigned char *mdia = mp4_begin(to, "mdia");
    if (!mp4_put_header(to, "mdhd", mp4_find(trak, "mdiamdhd"), 16, 24, ticks))
        return NULL;
    mp4_copy_box(to, "hdlr", mp4_find(trak, "mdiahdlr"));
    unsigned char *minf = mp4_begin(to, "minf");
    mp4_copy_box(to, "vmhd", mp4_find(trak, "mdiaminfvmhd"));
    mp4_copy_box(to, "dinf", mp4_find(trak, "mdiaminfdinf"));
    unsigned char *offset = mp4_put_tables(to, mp4_find(trak, "mdiaminfstblstsd"),
        packets, count, chunks, chunk_count, base, has_shifts);
    mp4_end(minf, *to);
    mp4_end(mdia, *to);
    mp4_end(track, *to);
    mp4_end(moov, *to);
    return offset;
}

#endif /* BAGS_FORMATS_MP4_WRITE_H */
