/*
 * mp4_cut.h - parts of an MP4 file as MP4 files: packets are copied, never decoded, so a
 * part begins at a keyframe. For the importers of videos that contain several datapoints.
 * Private.
 *
 *     ftyp | moov: mvhd, trak: tkhd, edts, mdia: ... stbl: stsd, and new tables | mdat
 */
#ifndef BAGS_IMPORT_MP4_CUT_H
#define BAGS_IMPORT_MP4_CUT_H

#include "mp4_tables.h"
#include "import.h"

#include <inttypes.h>

#define CUT_MOOV ((uint64_t)1 << 30) /* most bytes of moov */

typedef struct cut_packet {
    uint64_t offset;
    uint32_t size, duration;
    int64_t decoded, shown; /* times in the units of the track */
    bool is_key, is_shown;
} cut_packet;

/* An open MP4 file with its first track of video. The buffers are kept for the next file. */
typedef struct cut_file {
    const char *path;
    bags_buffer *moov_bytes, *packet_bytes, *order_bytes, *out;
    bags_view moov, trak;
    cut_packet *packets; /* `count`, in decoding order */
    mp4_shown *order;    /* `shown_count` frames, in display order */
    size_t count, shown_count;
    uint64_t scale; /* units per second */
    int64_t origin; /* the time of the track that is 0 s */
} cut_file;

/* ---- reading ---- */

/* Copy the content of moov of the open file. */
static inline bags_code cut_read_moov(bags_source *s, cut_file *cut) {
    for (uint64_t at = 0; at < s->file.size;) {
        uint64_t left = s->file.size - at;
        size_t header = 0;
        bags_view part;
        bags_code code = bags_source_view(s, at, left < 16 ? left : 16, &part);
        if (code)
            return code;
        uint64_t size = mp4_box_size(part, left, &header);
        if (size == 0)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "not an MP4 file, or truncated (box at byte %" PRIu64 " of %" PRIu64
                ")",
                at, s->file.size);
        if (memcmp(part.data + 4, "moov", 4) != 0) {
            at += size;
            continue;
        }
        if (size > CUT_MOOV)
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "moov of %" PRIu64 " bytes (maximum %" PRIu64 ")", size, CUT_MOOV);
        cut->moov.size = (size_t)size - header;
        code = bags_source_reserve(s, &cut->moov_bytes, cut->moov.size);
        if (!code)
            code = bags_source_view(s, at + header, cut->moov.size, &part);
        if (code)
            return code;
        cut->moov.data = cut->moov_bytes->data;
        memcpy(cut->moov_bytes->data, part.data, part.size);
        return BAGS_OK;
    }
    return bags_source_fail(
        s, BAGS_ERROR_CORRUPT, "no moov: it was not finished, or is not an MP4 file");
}

/* Find the track of video; *others receives the number of other tracks. */
static inline void cut_find_track(cut_file *cut, uint64_t *others) {
    bags_view rest = cut->moov, box;
    char type[4];
    *others = 0;
    cut->trak.data = NULL;
    while (mp4_box(&rest, type, &box)) {
        if (memcmp(type, "trak", 4) != 0)
            continue;
        bags_view hdlr = mp4_find(box, "mdiahdlr");
        bool video = hdlr.size >= 12 && memcmp(hdlr.data + 8, "vide", 4) == 0;
        if (video && !cut->trak.data)
            cut->trak = box;
        else
            ++*others;
    }
}

/* Read the packets of the track, and sort the frames. */
static inline bags_code cut_read_packets(bags_source *s, cut_file *cut) {
    mp4_track track;
    mp4_table edits;
    bags_view elst = mp4_find(cut->trak, "edtselst");
    bool one_edit =
        !elst.data || (mp4_entries(&edits, elst, 4, 12) && edits.count == 1);
    cut->scale = mp4_time_scale(mp4_find(cut->trak, "mdiamdhd"));
    if (!mp4_track_open(&track, cut->moov) || !one_edit || cut->scale == 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "its index is not supported (fragments, several descriptions of samples or "
            "edits, samples of one size, or no video); write it again: ffmpeg -i "
            "IN.mp4 -c copy OUT.mp4");
    cut->origin = elst.data ? track.start : 0;
    cut->count = (size_t)track.places.sizes.count;
    cut->shown_count = 0;
    bags_code code =
        bags_source_reserve(s, &cut->packet_bytes, cut->count * sizeof(cut_packet));
    if (!code)
        code =
            bags_source_reserve(s, &cut->order_bytes, cut->count * sizeof(mp4_shown));
    if (code)
        return code;
    cut->packets = (cut_packet *)(void *)cut->packet_bytes->data;
    cut->order = (mp4_shown *)(void *)cut->order_bytes->data;
    for (size_t i = 0; i < cut->count; i++) {
        cut_packet *packet = &cut->packets[i];
        mp4_sample sample;
        packet->decoded = track.time;
        if (!mp4_track_next(&track, &sample))
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "packet %llu: the tables of the index contradict each other",
                (unsigned long long)i);
        if (sample.offset > s->file.size || sample.size > s->file.size - sample.offset)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "truncated (packet %llu ends at byte %" PRIu64 " of %" PRIu64 ")",
                (unsigned long long)i, sample.offset + sample.size, s->file.size);
        packet->offset = sample.offset;
        packet->size = (uint32_t)sample.size;
        packet->duration = (uint32_t)(track.time - packet->decoded);
        packet->shown = sample.time;
        packet->is_key = sample.is_key;
        packet->is_shown = sample.is_shown;
        if (!sample.is_shown)
            continue;
        cut->order[cut->shown_count].pts = sample.time;
        cut->order[cut->shown_count++].packet = (uint32_t)i;
    }
    qsort(cut->order, cut->shown_count, sizeof *cut->order, mp4_compare);
    return BAGS_OK;
}

/* Open a file, as the file of the source. Its index is read once if the same path is opened
 * several times in a row. */
static inline bags_code cut_open(bags_source *s, cut_file *cut, const char *path) {
    uint64_t others = 0;
    bool again = cut->path && strcmp(cut->path, path) == 0;
    bags_code code = bags_source_open_file(s, path);
    if (code || again)
        return code;
    cut->path = NULL;
    code = cut_read_moov(s, cut);
    if (code)
        return code;
    cut_find_track(cut, &others);
    if (others > 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "it has other tracks than one of video (%" PRIu64 "): they cannot be cut; "
            "copy the video only: ffmpeg -i IN.mp4 -map 0:v:0 -c copy OUT.mp4",
            others);
    code = cut_read_packets(s, cut);
    cut->path = code ? NULL : path;
    return code;
}

/* The time of a frame, in display order, in seconds. */
static inline double cut_time(const cut_file *cut, size_t frame) {
    return (double)(cut->order[frame].pts - cut->origin) / (double)cut->scale;
}

/* The first frame at this time or later; shown_count if there is none. */
static inline size_t cut_find(const cut_file *cut, double time) {
    size_t low = 0, high = cut->shown_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cut_time(cut, middle) < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- writing ---- */

static inline void cut_put(unsigned char **to, uint64_t number, size_t width) {
    bags_store_bytes(*to, width, true, number);
    *to += width;
}

static inline void cut_put_bytes(unsigned char **to, bags_view bytes) {
    if (bytes.size > 0)
        memcpy(*to, bytes.data, bytes.size);
    *to += bytes.size;
}

/* Begin a box; cut_end sets its size. */
static inline unsigned char *cut_begin(unsigned char **to, const char *type) {
    unsigned char *start = *to;
    memcpy(start + 4, type, 4);
    *to += 8;
    return start;
}

static inline void cut_end(unsigned char *start, const unsigned char *to) {
    bags_store_bytes(start, 4, true, (uint64_t)(to - start));
}

/* Copy a box with this content. Does nothing if it is missing. */
static inline unsigned char *cut_copy(
    unsigned char **to, const char *type, bags_view content) {
    if (!content.data)
        return NULL;
    unsigned char *start = cut_begin(to, type);
    cut_put_bytes(to, content);
    cut_end(start, *to);
    return start;
}

/* Copy mvhd, tkhd or mdhd with another duration: at offset `at` of version 0, `wide` of
 * version 1. False if the box is too small. */
static inline bool cut_header(unsigned char **to, const char *type, bags_view content,
    size_t at, size_t wide, uint64_t duration) {
    bool is_wide = content.size > 0 && content.data[0] == 1;
    size_t from = is_wide ? wide : at, width = is_wide ? 8 : 4;
    if (content.size < from + width || (!is_wide && duration > UINT32_MAX))
        return false;
    unsigned char *start = cut_copy(to, type, content);
    bags_store_bytes(start + 8 + from, width, true, duration);
    return true;
}

/* stts (durations) or ctts (time shown - time decoded) of packets, as runs. */
static inline void cut_runs(unsigned char **to, const cut_packet *packets, size_t count,
    const char *type, int64_t base) {
    bool shifts = type[0] == 'c';
    unsigned char *start = cut_begin(to, type), *entries;
    uint64_t runs = 0;
    cut_put(to, 0, 4);
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
        cut_put(to, i - first, 4);
        cut_put(to, (uint64_t)value, 4);
    }
    bags_store_bytes(entries, 4, true, runs);
    cut_end(start, *to);
}

/* The tables of samples. Returns the location of the offset of their only chunk. */
static inline unsigned char *cut_tables(unsigned char **to, bags_view stsd,
    const cut_packet *packets, size_t count, int64_t base, bool has_shifts) {
    unsigned char *stbl = cut_begin(to, "stbl"), *box, *keys, *offset;
    uint64_t key_count = 0;
    cut_copy(to, "stsd", stsd);
    cut_runs(to, packets, count, "stts", 0);
    if (has_shifts)
        cut_runs(to, packets, count, "ctts", base);
    box = cut_begin(to, "stss");
    cut_put(to, 0, 4);
    keys = *to;
    *to += 4;
    for (size_t i = 0; i < count; i++)
        if (packets[i].is_key) {
            cut_put(to, i + 1, 4);
            key_count++;
        }
    bags_store_bytes(keys, 4, true, key_count);
    cut_end(box, *to);
    box = cut_begin(to, "stsc"); /* one chunk of all samples */
    cut_put(to, 0, 4);
    cut_put(to, 1, 4);
    cut_put(to, 1, 4);
    cut_put(to, count, 4);
    cut_put(to, 1, 4);
    cut_end(box, *to);
    box = cut_begin(to, "stsz");
    cut_put(to, 0, 8);
    cut_put(to, count, 4);
    for (size_t i = 0; i < count; i++)
        cut_put(to, packets[i].size, 4);
    cut_end(box, *to);
    box = cut_begin(to, "stco");
    cut_put(to, 0, 4);
    cut_put(to, 1, 4);
    offset = *to;
    *to += 4;
    cut_end(box, *to);
    cut_end(stbl, *to);
    return offset;
}

/* Write ftyp and moov of a part of `ticks` units. Returns the location of the offset of the
 * samples, or NULL if a box of the source is missing or too small. */
static inline unsigned char *cut_boxes(unsigned char **to, const cut_file *cut,
    const cut_packet *packets, size_t count, uint64_t ticks) {
    static const unsigned char brands[] = "isom\0\0\2\0isomiso2mp41";
    bags_view ftyp = {brands, sizeof brands - 1}, trak = cut->trak;
    bags_view mvhd = mp4_find(cut->moov, "mvhd");
    uint64_t movie_scale = mp4_time_scale(mvhd);
    uint64_t duration = (ticks * movie_scale + cut->scale - 1) / cut->scale;
    int64_t base = 0, first = packets[0].shown - packets[0].decoded;
    bool has_shifts = false;
    for (size_t i = 0; i < count; i++) {
        int64_t shift = packets[i].shown - packets[i].decoded;
        base = shift < base ? shift : base;
        has_shifts = has_shifts || shift != 0;
    }
    cut_copy(to, "ftyp", ftyp);
    unsigned char *moov = cut_begin(to, "moov");
    if (!cut_header(to, "mvhd", mvhd, 16, 24, duration))
        return NULL;
    unsigned char *track = cut_begin(to, "trak");
    if (!cut_header(to, "tkhd", mp4_find(trak, "tkhd"), 20, 28, duration))
        return NULL;
    if (has_shifts) { /* the first frame is at 0 */
        unsigned char *edts = cut_begin(to, "edts"), *elst = cut_begin(to, "elst");
        cut_put(to, 0, 4);
        cut_put(to, 1, 4);
        cut_put(to, duration, 4);
        cut_put(to, (uint64_t)(first - base), 4);
        cut_put(to, 0x10000, 4);
        cut_end(elst, *to);
        cut_end(edts, *to);
    }
    unsigned char *mdia = cut_begin(to, "mdia");
    if (!cut_header(to, "mdhd", mp4_find(trak, "mdiamdhd"), 16, 24, ticks))
        return NULL;
    cut_copy(to, "hdlr", mp4_find(trak, "mdiahdlr"));
    unsigned char *minf = cut_begin(to, "minf");
    cut_copy(to, "vmhd", mp4_find(trak, "mdiaminfvmhd"));
    cut_copy(to, "dinf", mp4_find(trak, "mdiaminfdinf"));
    unsigned char *offset = cut_tables(
        to, mp4_find(trak, "mdiaminfstblstsd"), packets, count, base, has_shifts);
    cut_end(minf, *to);
    cut_end(mdia, *to);
    cut_end(track, *to);
    cut_end(moov, *to);
    return offset;
}

/*
 * Cut frames `start` to `start + count` (in display order, count > 0) of the open file. *out
 * is valid until the next cut of this cut_file. Returns BAGS_OK, or with a message that
 * names the file BAGS_ERROR_VALUE if these frames do not begin at a keyframe, or their
 * packets are not contiguous.
 */
static inline bags_code cut_part(
    bags_source *s, cut_file *cut, size_t start, size_t count, bags_view *out) {
    size_t low = cut->order[start].packet, high = low;
    for (size_t i = start; i < start + count; i++) {
        size_t packet = cut->order[i].packet;
        low = packet < low ? packet : low;
        high = packet > high ? packet : high;
    }
    const cut_packet *packets = &cut->packets[low];
    if (low != cut->order[start].packet || !packets[0].is_key)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "the part from %.6f s does not begin at a keyframe", cut_time(cut, start));
    if (high - low + 1 != count)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "the packets of the part from %.6f s are not contiguous (%llu frames, %llu "
            "packets)",
            cut_time(cut, start), (unsigned long long)count,
            (unsigned long long)(high - low + 1));
    uint64_t size = 0, ticks = 0;
    for (size_t i = 0; i < count; i++) {
        size += packets[i].size;
        ticks += packets[i].duration;
    }
    uint64_t most = cut->moov.size + 24 * (uint64_t)count + 1024;
    if (size + most > UINT32_MAX || ticks > INT64_MAX / UINT32_MAX)
        return bags_source_fail(
            s, BAGS_ERROR_LIMIT, "a part of %" PRIu64 " bytes (maximum 4 GiB)", size);
    bags_code code = bags_source_reserve(s, &cut->out, (size_t)(size + most));
    if (code)
        return code;
    unsigned char *to = cut->out->data;
    unsigned char *offset = cut_boxes(&to, cut, packets, count, ticks);
    if (!offset)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "mvhd, tkhd or mdhd is missing or too small");
    cut_put(&to, size + 8, 4);
    memcpy(to, "mdat", 4);
    to += 4;
    bags_store_bytes(offset, 4, true, (uint64_t)(to - cut->out->data));
    for (size_t i = 0; i < count; i++) {
        bags_view part;
        code = bags_source_view(s, packets[i].offset, packets[i].size, &part);
        if (code)
            return code;
        cut_put_bytes(&to, part);
    }
    out->data = cut->out->data;
    out->size = (size_t)(to - cut->out->data);
    return BAGS_OK;
}

#endif /* BAGS_IMPORT_MP4_CUT_H */
