/*
 * mp4_join.h - joins MP4 files of one track of video: packets are copied, never decoded. For
 * exporters. Private.
 *
 *     ftyp | mdat of a video | mdat of the next one | ... | moov
 *
 * A video begins when the one before it ends. Videos of other encoders or units of time, or
 * whose first frame is shown at another time after it is decoded, need a file of their own: a
 * file describes all its packets once.
 */
#ifndef BAGS_EXPORT_MP4_JOIN_H
#define BAGS_EXPORT_MP4_JOIN_H

#include "export.h"

#include "mp4_write.h"
#include "try.h"

#define JOIN_ENTRY 94 /* bytes of stsd up to the boxes of its first entry */

typedef struct mp4_join_video {
    /* The file that is written. */
    bags_export_file *file;
    bool is_open;
    bags_export_bytes moov;          /* of its first video */
    bags_export_bytes units, chunks; /* mp4_unit, mp4_chunk */
    mp4_video form;                  /* views of `moov` */
    uint64_t at, videos;
    int64_t ticks; /* the end of its videos, in units of time */
    /* The video that was read. */
    bags_view blob;
    mp4_video video;
    bags_export_bytes packets; /* mp4_unit */
    bags_export_bytes times;   /* int64_t: of each frame since the first, increasing */
    size_t count;              /* of packets; each shows a frame */
    uint64_t size;             /* their bytes */
    int64_t length;            /* in units of time */
    uint64_t width, height;
    char codec[5]; /* "avc1" */
} mp4_join_video;

static inline int mp4_join_compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

static inline int64_t *mp4_join_times(const mp4_join_video *v) {
    return (int64_t *)(void *)v->times.buffer.data;
}

static inline double mp4_join_time(const mp4_join_video *v, size_t frame) {
    return (double)mp4_join_times(v)[frame] / (double)v->video.scale;
}

/* Read the packets of the open track. */
static inline bags_code join_read_packets(bags_target *t,
    const bags_target_field *field, mp4_join_video *v, mp4_track *track) {
    size_t count = (size_t)track->places.sizes.count;
    v->packets.size = v->times.size = 0;
    v->size = 0;
    v->length = 0;
    for (v->count = 0; v->count < count; v->count++) {
        mp4_unit unit;
        memset(&unit, 0, sizeof unit);
        if (!mp4_unit_next(track, &unit) || unit.offset > v->blob.size ||
            unit.size > v->blob.size - unit.offset)
            return bags_target_fail_value(t, field,
                "packet %llu: the tables of the index contradict each other, or the "
                "file is truncated",
                (unsigned long long)v->count);
        if (!unit.is_shown)
            return bags_target_fail_value(t, field,
                "packet %llu is not shown (an edit list hides it): joined with others "
                "it would be; encode the video again",
                (unsigned long long)v->count);
        v->size += unit.size;
        v->length += unit.duration;
        FORMAT_TRY(bags_target_put(t, &v->packets, &unit, sizeof unit));
        FORMAT_TRY(bags_target_put(t, &v->times, &unit.shown, sizeof unit.shown));
    }
    return BAGS_OK;
}

/* Read a video: the value of a field. It is valid until the next datapoint is read. `rate`:
 * its frames per second, for a last packet without a duration. */
static inline bags_code mp4_join_read(
    bags_target *t, const bags_target_field *field, mp4_join_video *v, double rate) {
    mp4_track track;
    v->blob.data = (const unsigned char *)field->values->data;
    v->blob.size = field->values->size;
    v->video.moov = mp4_find(v->blob, "moov");
    if (!v->video.moov.data)
        return bags_target_fail_value(
            t, field, "no moov: it was not finished, or is not an MP4 file");
    if (mp4_find_video(&v->video) > 0)
        return bags_target_fail_value(t, field,
            "it has other tracks than one of video; copy the video only: ffmpeg -i "
            "IN.mp4 -map 0:v:0 -c copy OUT.mp4");
    if (!mp4_video_open(&v->video, &track))
        return bags_target_fail_value(t, field, "%s", MP4_ADVICE);
    FORMAT_TRY(join_read_packets(t, field, v, &track));
    mp4_unit *units = (mp4_unit *)(void *)v->packets.buffer.data;
    int64_t *times = mp4_join_times(v);
    qsort(times, v->count, sizeof *times, mp4_join_compare);
    if (!units[0].is_key || units[0].shown != times[0])
        return bags_target_fail_value(
            t, field, "its first packet is not a keyframe that is shown first");
    int64_t first = times[0], decoded = units[0].decoded;
    if (units[v->count - 1].duration == 0) {
        double ticks = (double)v->video.scale / rate + 0.5;
        units[v->count - 1].duration = ticks < 1e9 ? (uint32_t)ticks : 0;
        v->length += units[v->count - 1].duration;
    }
    for (size_t i = 0; i < v->count; i++) {
        times[i] -= first;
        units[i].shown -= decoded;
        units[i].decoded -= decoded;
    }
    bags_view stsd = mp4_find(v->video.trak, "mdiaminfstblstsd");
    if (stsd.size < JOIN_ENTRY)
        return bags_target_fail_value(t, field, "its description is truncated");
    memcpy(v->codec, stsd.data + 12, 4);
    v->codec[4] = 0;
    v->width = bags_load_bytes(stsd.data + 40, 2, true);
    v->height = bags_load_bytes(stsd.data + 42, 2, true);
    return BAGS_OK;
}

/* Consume the next box in a description of samples, but for bitrates. Empty at the end. */
static inline bags_view mp4_join_part(bags_view *rest) {
    char type[4] = "";
    bags_view box, part = *rest;
    while (mp4_box(rest, type, &box)) {
        part.size = (size_t)(rest->data - part.data);
        if (memcmp(type, "btrt", 4) != 0)
            return part;
        part = *rest;
    }
    rest->size = 0; /* not a box */
    return part;
}

/* True if two tracks describe their samples alike: codec, size, parameter sets. */
static inline bool join_same_description(bags_view a, bags_view b) {
    const size_t fixed = JOIN_ENTRY; /* up to the boxes in the first entry */
    a = mp4_find(a, "mdiaminfstblstsd");
    b = mp4_find(b, "mdiaminfstblstsd");
    if (a.size < fixed || b.size < fixed ||
        memcmp(a.data + 12, b.data + 12, fixed - 12) != 0)
        return false;
    a.data += fixed;
    a.size -= fixed;
    b.data += fixed;
    b.size -= fixed;
    while (a.size > 0 || b.size > 0) {
        bags_view left = mp4_join_part(&a), right = mp4_join_part(&b);
        if (left.size != right.size ||
            (left.size && memcmp(left.data, right.data, left.size) != 0))
            return false;
    }
    return true;
}

/* True if the video that was read may follow those in the open file. */
static inline bool mp4_join_fits(const mp4_join_video *v) {
    const mp4_unit *first = (const mp4_unit *)(const void *)v->units.buffer.data;
    const mp4_unit *next = (const mp4_unit *)(const void *)v->packets.buffer.data;
    return v->form.scale == v->video.scale && first->shown == next->shown &&
           join_same_description(v->form.trak, v->video.trak);
}

/* Complete the open file. Does nothing without one. */
static inline bags_code mp4_join_end(bags_target *t, mp4_join_video *v) {
    size_t count = v->units.size / sizeof(mp4_unit);
    size_t chunks = v->chunks.size / sizeof(mp4_chunk);
    if (!v->is_open)
        return BAGS_OK;
    v->is_open = false;
    FORMAT_TRY(bags_target_use(t, &v->file));
    FORMAT_TRY(bags_buffer_reserve(
        &t->scratch, (size_t)mp4_index_size(&v->form, count, chunks), t->err));
    unsigned char *to = t->scratch.data;
    if (!mp4_put_moov(&to, &v->form,
            (const mp4_unit *)(const void *)v->units.buffer.data, count,
            (const mp4_chunk *)(const void *)v->chunks.buffer.data, chunks,
            (uint64_t)v->ticks))
        return bags_target_fail(t, BAGS_ERROR_CORRUPT,
            "%s: mvhd, tkhd or mdhd of its first video is missing or too small",
            v->file->path);
    FORMAT_TRY(bags_target_write(t, t->scratch.data, (size_t)(to - t->scratch.data)));
    FORMAT_TRY(bags_target_file_close(t));
    return bags_target_use(t, NULL);
}

/* Begin a file with the description of the video that was read. */
static inline bags_code mp4_join_begin(
    bags_target *t, mp4_join_video *v, const char *path) {
    unsigned char head[64], *to = head;
    mp4_put_ftyp(&to);
    v->at = (uint64_t)(to - head);
    v->units.size = v->chunks.size = v->moov.size = 0;
    v->videos = 0;
    v->ticks = 0;
    FORMAT_TRY(bags_target_put(t, &v->moov, v->video.moov.data, v->video.moov.size));
    v->form.moov.data = v->moov.buffer.data;
    v->form.moov.size = v->moov.size;
    v->form.scale = v->video.scale;
    (void)mp4_find_video(&v->form);
    FORMAT_TRY(bags_target_use(t, &v->file));
    FORMAT_TRY(bags_target_file_open(t, path));
    v->is_open = true;
    FORMAT_TRY(bags_target_write(t, head, (size_t)v->at));
    return bags_target_use(t, NULL);
}

/* Append the video that was read to the open file. It begins at `ticks`. */
static inline bags_code mp4_join_put(bags_target *t, mp4_join_video *v) {
    const mp4_unit *units = (const mp4_unit *)(const void *)v->packets.buffer.data;
    unsigned char head[16], *to = head;
    bool is_wide = v->size + 8 > UINT32_MAX;
    mp4_put(&to, is_wide ? 1 : v->size + 8, 4);
    memcpy(to, "mdat", 4);
    to += 4;
    if (is_wide)
        mp4_put(&to, v->size + 16, 8);
    size_t before = (size_t)(to - head);
    const mp4_chunk chunk = {v->at + before, v->count};
    FORMAT_TRY(bags_target_put(t, &v->chunks, &chunk, sizeof chunk));
    FORMAT_TRY(bags_target_use(t, &v->file));
    FORMAT_TRY(bags_target_write(t, head, before));
    for (size_t i = 0; i < v->count; i++) {
        mp4_unit unit = units[i];
        FORMAT_TRY(bags_target_write(t, v->blob.data + unit.offset, unit.size));
        unit.shown += v->ticks;
        unit.decoded += v->ticks;
        FORMAT_TRY(bags_target_put(t, &v->units, &unit, sizeof unit));
    }
    v->at += before + v->size;
    v->ticks += v->length;
    v->videos++;
    return bags_target_use(t, NULL);
}

#endif /* BAGS_EXPORT_MP4_JOIN_H */
