/*
 * mp4_packets.c - the packets of videos that mp4.c has indexed, for other decoders than
 * FFmpeg's. A packet is a compressed frame as the file contains it.
 */
#include "mp4_reader.h"

bags_mp4_place bags_mp4_reader_place(const bags_mp4_reader *reader, uint64_t frame) {
    bags_mp4_place place;
    const AVCodecParameters *parameters = reader->parameters;
    memset(&place, 0, sizeof place);
    if (frame >= reader->info.frames)
        return place;
    place.packet = reader->order[frame].packet;
    place.first = reader->packets[place.packet].key;
    bool agrees = (uint64_t)parameters->width == reader->info.width &&
                  (uint64_t)parameters->height == reader->info.height;
    place.settings.data = parameters->extradata;
    place.settings.size = agrees ? (size_t)parameters->extradata_size : 0;
    place.full_range = parameters->color_range == AVCOL_RANGE_JPEG;
    return place;
}

bags_code bags_mp4_reader_packet(bags_mp4_reader *reader, uint64_t number,
    uint64_t last, bags_mp4_packet *out, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    if (number >= (uint64_t)reader->length)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "packet %" PRIu64 " out of range (length %d)", number, reader->length);
    const mp4_packet *packet = &reader->packets[number];
    out->time = packet->pts;
    if (packet->packet) {
        out->data.data = packet->packet->data;
        out->data.size = (size_t)packet->packet->size;
        return BAGS_OK;
    }
    bags_code code = mp4_read_packets(&reader->source, reader->packets,
        (uint32_t)reader->length, (uint32_t)number,
        (uint32_t)(last < (uint64_t)reader->length ? last : number), err);
    if (code)
        return code;
    out->data = mp4_window_from(&reader->source, packet->offset);
    if (out->data.size < packet->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "packet %" PRIu64 " of the video: truncated or empty", number);
    out->data.size = packet->size;
    return BAGS_OK;
}
