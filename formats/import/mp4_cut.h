/*
 * mp4_cut.h - parts of an MP4 file as MP4 files: packets are copied, never decoded, so a
 * part begins at a keyframe. For the importers of videos that contain several datapoints.
 * Private.
 *
 *     ftyp | moov: mvhd, trak: tkhd, edts, mdia: ... stbl: stsd, and new tables | mdat
 */
#ifndef BAGS_IMPORT_MP4_CUT_H
#define BAGS_IMPORT_MP4_CUT_H

#include "import.h"
#include "mp4_write.h"

#include <inttypes.h>

#define CUT_MOOV ((uint64_t)1 << 30) /* most bytes of moov */

/* An open MP4 file with its first track of video. The buffers are kept for the next file. */
typedef struct cut_file {
    const char *path;
    bags_buffer *moov_bytes, *packet_bytes, *order_bytes, *out;
    mp4_video video;
    mp4_unit *packets; /* `count`, in decoding order */
    mp4_shown *order;  /* `shown_count` frames, in display order */
    size_t count, shown_count;
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
        cut->video.moov.size = (size_t)size - header;
        code = bags_source_reserve(s, &cut->moov_bytes, cut->video.moov.size);
        if (!code)
            code = bags_source_view(s, at + header, cut->video.moov.size, &part);
        if (code)
            return code;
        cut->video.moov.data = cut->moov_bytes->data;
        memcpy(cut->moov_bytes->data, part.data, part.size);
        return BAGS_OK;
    }
    return bags_source_fail(
        s, BAGS_ERROR_CORRUPT, "no moov: it was not finished, or is not an MP4 file");
}

/* Read the packets of the track, and sort the frames. */
static inline bags_code cut_read_packets(bags_source *s, cut_file *cut) {
    mp4_track track;
    bags_view elst = mp4_find(cut->video.trak, "edtselst");
    if (!mp4_video_open(&cut->video, &track))
        return bags_source_fail(s, BAGS_ERROR_TYPE, "%s", MP4_ADVICE);
    cut->origin = elst.data ? track.start : 0;
    cut->count = (size_t)track.places.sizes.count;
    cut->shown_count = 0;
    bags_code code =
        bags_source_reserve(s, &cut->packet_bytes, cut->count * sizeof(mp4_unit));
    if (!code)
        code =
            bags_source_reserve(s, &cut->order_bytes, cut->count * sizeof(mp4_shown));
    if (code)
        return code;
    cut->packets = (mp4_unit *)(void *)cut->packet_bytes->data;
    cut->order = (mp4_shown *)(void *)cut->order_bytes->data;
    for (size_t i = 0; i < cut->count; i++) {
        mp4_unit *packet = &cut->packets[i];
        if (!mp4_unit_next(&track, packet))
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "packet %llu: the tables of the index contradict each other",
                (unsigned long long)i);
        if (packet->offset > s->file.size ||
            packet->size > s->file.size - packet->offset)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "truncated (packet %llu ends at byte %" PRIu64 " of %" PRIu64 ")",
                (unsigned long long)i, packet->offset + packet->size, s->file.size);
        if (!packet->is_shown)
            continue;
        cut->order[cut->shown_count].pts = packet->shown;
        cut->order[cut->shown_count++].packet = (uint32_t)i;
    }
    qsort(cut->order, cut->shown_count, sizeof *cut->order, mp4_compare);
    return BAGS_OK;
}

/* Open a file, as the file of the source. Its index is read once if the same path is opened
 * several times in a row. */
static inline bags_code cut_open(bags_source *s, cut_file *cut, const char *path) {
    bool again = cut->path && strcmp(cut->path, path) == 0;
    bags_code code = bags_source_open_file(s, path);
    if (code || again)
        return code;
    cut->path = NULL;
    code = cut_read_moov(s, cut);
    if (code)
        return code;
    uint64_t others = mp4_find_video(&cut->video);
    if (others > 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "it has other tracks than one of video (%" PRIu64 "): they cannot be cut; "
            "copy the video only: ffmpeg -i IN.mp4 -map 0:v:0 -c copy OUT.mp4",
            others);
    code = cut_read_packets(s, cut);
    cut->path = code ? NULL : path;
    return code;
}

/* Get the shorter and the longer side of the frames: 0 if the index lacks them. */
static inline void cut_sides(const cut_file *cut, uint64_t sides[2]) {
    bags_view stsd = mp4_find(cut->video.trak, "mdiaminfstblstsd");
    bool known = stsd.size >= 44; /* the first description begins at byte 8 */
    uint64_t width = known ? bags_load_bytes(stsd.data + 40, 2, true) : 0;
    uint64_t height = known ? bags_load_bytes(stsd.data + 42, 2, true) : 0;
    sides[0] = width < height ? width : height;
    sides[1] = width < height ? height : width;
}

/* The time of a frame, in display order, in seconds. */
static inline double cut_time(const cut_file *cut, size_t frame) {
    return (double)(cut->order[frame].pts - cut->origin) / (double)cut->video.scale;
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
    const mp4_unit *packets = &cut->packets[low];
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
    uint64_t most = mp4_index_size(&cut->video, count, 1);
    if (size + most > UINT32_MAX || ticks > INT64_MAX / UINT32_MAX)
        return bags_source_fail(
            s, BAGS_ERROR_LIMIT, "a part of %" PRIu64 " bytes (maximum 4 GiB)", size);
    bags_code code = bags_source_reserve(s, &cut->out, (size_t)(size + most));
    if (code)
        return code;
    unsigned char *to = cut->out->data;
    const mp4_chunk chunk = {0, count};
    mp4_put_ftyp(&to);
    unsigned char *offset =
        mp4_put_moov(&to, &cut->video, packets, count, &chunk, 1, ticks);
    if (!offset)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "mvhd, tkhd or mdhd is missing or too small");
    mp4_put(&to, size + 8, 4);
    memcpy(to, "mdat", 4);
    to += 4;
    bags_store_bytes(offset, 4, true, (uint64_t)(to - cut->out->data));
    for (size_t i = 0; i < count; i++) {
        bags_view part;
        code = bags_source_view(s, packets[i].offset, packets[i].size, &part);
        if (code)
            return code;
        mp4_put_bytes(&to, part);
    }
    out->data = cut->out->data;
    out->size = (size_t)(to - cut->out->data);
    return BAGS_OK;
}

#endif /* BAGS_IMPORT_MP4_CUT_H */
