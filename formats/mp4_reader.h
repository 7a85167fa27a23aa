/*
 * mp4_reader.h - the state of a reader of a video, shared by mp4.c and mp4_packets.c.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_MP4_READER_H
#define BAGS_FORMATS_MP4_READER_H

#include "mp4_tables.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <libavcodec/avcodec.h>
#ifdef __cplusplus
}
#endif

#define MP4_HELD 20 /* more frames than a decoder reorders */

struct bags_mp4_reader {
    bags_mp4_info info;
    bags_mp4_options options;
    bags_view blob;
    mp4_source source;
    AVCodecParameters *parameters;

    mp4_packet *packets; /* in decoding order */
    int length;
    uint32_t first;   /* the first keyframe */
    mp4_shown *order; /* info.frames elements */
    int delay;        /* maximum number of frames waiting for one shown earlier */

    /* The decoder, opened by the first read. */
    AVCodecContext *codec;
    AVFrame *frame;
    AVFrame *rgb;     /* a frame with padded lines */
    AVPacket *loaded; /* a copy of a packet from the source */
    struct SwsContext *scaler;
    int scaler_format; /* AVPixelFormat of its input */
    uint32_t next;     /* the packet to feed */
    uint64_t shown;    /* no frame from this one on has been decoded */
    bool positioned;   /* `next` and `shown` are valid */
    bool drained;      /* the decoder returns no packet from `next` on */
    uint32_t last;     /* the last packet needed by this call */
    /* State since the last rewind. That rewind started run `run`. */
    uint32_t run;
    uint32_t damaged;        /* the keyframe of the last damaged packet, from 1 */
    int64_t latest;          /* the last time stamp of a decoded frame */
    AVFrame *held[MP4_HELD]; /* decoded frames likely to be read next, */
    size_t held_count;       /* with their packet's number as pts */
};

#endif /* BAGS_FORMATS_MP4_READER_H */
