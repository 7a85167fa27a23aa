/*
 * mp4.c - video using FFmpeg 4.4 to 7: libavformat, libavcodec, libswscale and
 * libavutil (Debian: libavformat-dev libavcodec-dev libswscale-dev).
 *
 *     mp4, webm                            15 and 20 frames per second
 *     mp4(FPS), mp4(FPS,CODEC), webm(...)  codecs.h describes the arguments
 *
 * Encoding: RGB, T x H x W x 3, is converted to yuv420p. The encoder compresses it, and
 * the muxer writes a file in memory: WebM, or MP4 with its index then moved in front of
 * the frames. The defaults match how the Python package bags 0.5 calls PyAV. In h264
 * and hevc, 4:2:0 cannot express odd sizes: such videos are stored as yuv444p, so that
 * other programs see the true size.
 *
 * Decoding: the demuxer reads the blob once, then is closed. Its packets are indexed:
 * the position in the blob, whether it is a keyframe, and the rank of its frame in
 * display order. The decoder receives packets from the blob, with their number as time
 * stamp. Frames are therefore identified regardless of what B-frames, edit lists and
 * variable rates do to time stamps, and seeking is a lookup in the index.
 *
 * For an MP4 in a dataset, the index is built from moov (mp4_tables.h), and the demuxer
 * sees nothing else. Packets are read when they are decoded, one GOP at a time. Files
 * for which this does not suffice are read completely.
 *
 * A packet is damaged if the decoder refuses it or marks its frame as damaged. Frames
 * that may depend on it are refused as well: frames decoded later from the same
 * keyframe. In an open GOP, leading pictures are decoded after a keyframe and shown
 * before it. They depend on the previous GOP, and only other leading pictures depend on
 * them.
 *
 * Rejected: other containers, codecs except h264, hevc, mpeg4, vp8, vp9 and av1, frames
 * that change size, packets compressed by the container, tracks in other files.
 *
 * FFmpeg prints through a logger that belongs to the program, so it is left unchanged.
 * Instead, our contexts lower the level of their messages.
 */
#include "mp4_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#ifdef __cplusplus
}
#endif

#define MP4_MAX_PIXELS ((uint64_t)1 << 26)
#define MP4_MAX_SIZE ((uint64_t)1 << 32)
#define MP4_BIT_RATE 1024000
#define MP4_BIT_RATE_TOLERANCE 128000
#define MP4_MOST_PACKETS 8 /* times the size of the file */
#define MP4_IO_SIZE 32768
#define MP4_ALIGN 64
#define MP4_HEADER 64 /* space for the shape, before a decoded value's pixels */
#define MP4_QUIET 128 /* added to a message's level; higher bits would select colors */

/* ---- errors and silence ---- */

static bags_code mp4_fail_memory(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
}

/* Report an error returned by FFmpeg. */
static bags_code mp4_fail(
    bags_error *err, bags_code code, int result, const char *what) {
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (result == AVERROR(ENOMEM))
        return mp4_fail_memory(err);
    av_strerror(result, text, sizeof text);
    return bags_fail(err, code, "%s: %s", what, text);
}

/* Silence a format context. Codec contexts have a member that is added to the level of
 * every message. A format context gets such an offset through its own class, stored in
 * a member used only by avformat_find_stream_info, a function not called here. `quiet`
 * must live as long as the context. */
static void mp4_silence(AVFormatContext *format, AVClass *quiet) {
    *quiet = *format->av_class;
    /* Keep the library from accessing members that our copy lacks. */
    quiet->version = LIBAVUTIL_VERSION_INT;
    quiet->log_level_offset_offset = (int)offsetof(AVFormatContext, fps_probe_size);
    format->fps_probe_size = MP4_QUIET;
    format->av_class = quiet;
}

/* Refuse to open other files named by a video. */
static int mp4_refuse_open(AVFormatContext *format, AVIOContext **io, const char *url,
    int flags, AVDictionary **options) {
    (void)format, (void)io, (void)url, (void)flags, (void)options;
    return AVERROR(EPERM);
}

/* ---- arguments ---- */

/* Parse up to 5 digits, a point and up to 4 digits. A decimal that is a rounded
 * television rate means that rate: 29.97 is 30000/1001. All other values are exact. */
static bool mp4_parse_rate(bags_view text, AVRational *out) {
    static const int television[] = {24, 30, 48, 60, 120};
    int64_t number = 0, scale = 0; /* 0: before the point */
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = text.data[i];
        if (c == '.' && i > 0 && scale == 0) {
            scale = 1;
            continue;
        }
        if (c < '0' || c > '9' || i >= 10)
            return false;
        number = number * 10 + (c - '0');
        scale *= 10;
    }
    if (scale == 1 || scale > 10000 || number == 0)
        return false;
    if (scale == 0)
        scale = 1;
    if (number / scale > 99999)
        return false;
    for (size_t i = 0; i < sizeof television / sizeof *television; i++)
        if (scale >= 100 &&
            (television[i] * INT64_C(1000) * scale + 500) / 1001 == number) {
            *out = av_make_q(television[i] * 1000, 1001);
            return true;
        }
    av_reduce(&out->num, &out->den, number, scale, INT_MAX);
    return true;
}

/* The state of a codec opened for a type. */
typedef struct mp4_state {
    bags_buffer memory; /* the memory holding this structure */
    bags_mp4_options options;
    char codec[16]; /* options.codec points here */
} mp4_state;

static bags_code mp4_parse_arguments(
    const bags_type *type, mp4_state *state, bags_error *err) {
    bags_view rate = bags_type_argument(type, 0);
    bags_view codec = bags_type_argument(type, 1);
    AVRational fps;
    if (type->count > 2)
        return bags_fail(
            err, BAGS_ERROR_TYPE, "too many arguments, expected mp4(FPS,CODEC)");
    if (type->count > 0) {
        if (!mp4_parse_rate(rate, &fps))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "invalid frame rate (\"%.*s\", expected 15, 12.5 or 29.97)",
                (int)rate.size, (const char *)rate.data);
        state->options.fps_num = (uint32_t)fps.num;
        state->options.fps_den = (uint32_t)fps.den;
    }
    if (type->count > 1) {
        if (codec.size == 0 || codec.size >= sizeof state->codec)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "unknown video codec (\"%.*s\", expected h264, hevc, mpeg4, "
                "vp9 or av1)",
                (int)codec.size, (const char *)codec.data);
        memcpy(state->codec, codec.data, codec.size);
        state->options.codec = state->codec;
    }
    return BAGS_OK;
}

static bags_code mp4_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    mp4_state *made = (mp4_state *)format_state(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    if (codec->user)
        made->options = *(const bags_mp4_options *)codec->user;
    if (type->name.size == 4 && memcmp(type->name.data, "webm", 4) == 0)
        made->options.webm = true;
    bags_code code = mp4_parse_arguments(type, made, err);
    if (code)
        format_state_close(made);
    else
        *state = made;
    return code;
}

static int mp4_threads(const bags_mp4_options *options) {
    if (options->threads == 0)
        return 1;
    return options->threads < 64 ? (int)options->threads : 64;
}

/* ---- codecs ---- */

/* vp8, WebM's codec before vp9, can only be read. */
static const struct {
    const char *name;
    enum AVCodecID id;
    bool mp4, webm; /* containers that it can be written to */
    bool even;      /* its 4:2:0 frames have even sizes only */
    bool by_tables; /* every packet in MP4 shows a frame; for other codecs the packet's
                     * bytes tell */
} mp4_codecs[] = {
    {"mpeg4", AV_CODEC_ID_MPEG4, true, false, false, true},
    {"h264", AV_CODEC_ID_H264, true, false, true, true},
    {"hevc", AV_CODEC_ID_HEVC, true, false, true, true},
    {"vp9", AV_CODEC_ID_VP9, true, true, false, false},
    {"av1", AV_CODEC_ID_AV1, true, true, false, true},
    {"vp8", AV_CODEC_ID_VP8, false, false, false, false},
};
#define MP4_CODECS (sizeof mp4_codecs / sizeof *mp4_codecs)

/* Find the encoder requested by the options; an error lists the available ones. */
static const AVCodec *mp4_choose_encoder(
    const bags_mp4_options *options, bool *even, bags_error *err) {
    const char *name = options->codec  ? options->codec
                       : options->webm ? "vp9"
                                       : "mpeg4";
    char have[64] = "";
    for (size_t i = 0; i < MP4_CODECS; i++) {
        const AVCodec *encoder = avcodec_find_encoder(mp4_codecs[i].id);
        if (!encoder || !(options->webm ? mp4_codecs[i].webm : mp4_codecs[i].mp4))
            continue;
        *even = mp4_codecs[i].even;
        if (strcmp(mp4_codecs[i].name, name) == 0)
            return encoder;
        strcat(have, have[0] ? ", " : "");
        strcat(have, mp4_codecs[i].name);
    }
    bags_fail(err, BAGS_ERROR_TYPE,
        "this build of FFmpeg has no encoder for \"%s\" in %s; it has: %s", name,
        options->webm ? "webm" : "mp4", have[0] ? have : "none");
    return NULL;
}

/* ---- blobs as files ---- */

typedef struct mp4_input {
    bags_view blob;
    size_t at;
} mp4_input;

static int mp4_read(void *user, uint8_t *out, int size) {
    mp4_input *input = (mp4_input *)user;
    size_t left = input->blob.size - input->at;
    size_t part = size < 0 ? 0 : (size_t)size;
    if (part > left)
        part = left;
    if (part == 0)
        return AVERROR_EOF;
    memcpy(out, input->blob.data + input->at, part);
    input->at += part;
    return (int)part;
}

/* The size is not reported: if it knew the size, libavformat would print a message for
 * a packet larger than the rest of the file instead of only failing. */
static int64_t mp4_seek(void *user, int64_t offset, int whence) {
    mp4_input *input = (mp4_input *)user;
    int from = whence & ~AVSEEK_FORCE;
    int64_t base = from == SEEK_CUR ? (int64_t)input->at : 0;
    if (from != SEEK_CUR && from != SEEK_SET)
        return AVERROR(ENOSYS);
    if (offset < -base || offset > INT64_MAX - base ||
        (uint64_t)(base + offset) > input->blob.size)
        return AVERROR(EINVAL); /* untrusted files may seek anywhere */
    input->at = (size_t)(base + offset);
    return base + offset;
}

static AVIOContext *mp4_make_io(mp4_input *input) {
    unsigned char *memory = (unsigned char *)av_malloc(MP4_IO_SIZE);
    if (!memory)
        return NULL;
    AVIOContext *io =
        avio_alloc_context(memory, MP4_IO_SIZE, 0, input, mp4_read, NULL, mp4_seek);
    if (!io)
        av_free(memory);
    return io;
}

/* ---- demuxer ---- */

typedef struct mp4_file {
    AVFormatContext *format;
    AVIOContext *io;
    AVClass quiet;
    mp4_input input;
    AVStream *stream; /* the first video track */
} mp4_file;

static void mp4_file_close(mp4_file *file) {
    avformat_close_input(&file->format);
    if (file->io)
        av_freep(&file->io->buffer);
    avio_context_free(&file->io);
}

/* Return packets as stored: parsers would print messages and guess missing data. */
static bags_code mp4_file_open(mp4_file *file, bags_view blob, bags_error *err) {
    memset(file, 0, sizeof *file);
    bool matroska = blob.size >= 4 && bags_load_bytes(blob.data, 4, true) == 0x1A45DFA3;
    bags_code code = matroska ? BAGS_OK : mp4_check_boxes(blob, err);
    if (code)
        return code;
    const AVInputFormat *demuxer = av_find_input_format(matroska ? "matroska" : "mov");
    if (!demuxer)
        return bags_fail(err, BAGS_ERROR_TYPE, "this build of FFmpeg does not read %s",
            matroska ? "webm" : "mp4");
    file->input.blob = blob;
    file->io = mp4_make_io(&file->input);
    file->format = avformat_alloc_context();
    if (!file->io || !file->format)
        return mp4_fail_memory(err);
    mp4_silence(file->format, &file->quiet);
    file->format->pb = file->io;
    file->format->io_open = mp4_refuse_open;
    file->format->flags |=
        AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_NOPARSE | AVFMT_FLAG_NOFILLIN;
    /* FFmpeg 4 does not guarantee to leave the demuxer unchanged. */
    int result = avformat_open_input(
        &file->format, "", (AVInputFormat *)(uintptr_t)demuxer, NULL);
    if (result < 0)
        return mp4_fail(err, BAGS_ERROR_CORRUPT, result,
            matroska ? "not a WebM file" : "not an MP4 file");
    for (unsigned i = 0; i < file->format->nb_streams; i++) {
        AVStream *stream = file->format->streams[i];
        bool video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                     !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC);
        if (video && !file->stream)
            file->stream = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    return file->stream ? BAGS_OK : bags_fail(err, BAGS_ERROR_TYPE, "no video track");
}

/* ---- index ---- */

/* Free held frames up to this rank. */
static void mp4_release(bags_mp4_reader *reader, uint64_t rank) {
    size_t count = reader->held_count;
    reader->held_count = 0;
    for (size_t i = 0; i < count; i++)
        if (reader->packets[reader->held[i]->pts].rank > rank)
            reader->held[reader->held_count++] = reader->held[i];
        else
            av_frame_free(&reader->held[i]);
}

void bags_mp4_reader_idle(bags_mp4_reader *reader) {
    if (!reader)
        return;
    mp4_release(reader, UINT64_MAX);
    avcodec_free_context(&reader->codec);
    av_frame_free(&reader->frame);
    av_frame_free(&reader->rgb);
    av_packet_free(&reader->loaded);
    sws_freeContext(reader->scaler);
    reader->scaler = NULL;
    reader->positioned = false;
    reader->source.window.size = 0;
    bags_row_free(&reader->source.row);
}

size_t bags_mp4_reader_memory(const bags_mp4_reader *reader) {
    size_t each = sizeof(mp4_packet) + sizeof(mp4_shown), size = sizeof *reader;
    for (int i = 0; i < reader->length; i++)
        size += each + reader->packets[i].size;
    return size;
}

void bags_mp4_reader_close(bags_mp4_reader *reader) {
    if (!reader)
        return;
    bags_mp4_reader_idle(reader);
    avcodec_parameters_free(&reader->parameters);
    while (reader->length > 0)
        av_packet_free(&reader->packets[--reader->length].packet);
    av_free(reader->packets);
    av_free(reader->order);
    av_free(reader);
}

/* Returns true if a packet shows a frame. Other packets only prepare later frames. A
 * vp9 superframe combines these with a displayed frame. */
static bool mp4_shows(enum AVCodecID id, const AVPacket *packet) {
    unsigned head = packet->data[0];
    if (packet->flags & AV_PKT_FLAG_DISCARD)
        return false;
    if (id == AV_CODEC_ID_VP8)
        return head >> 4 & 1;
    if (id != AV_CODEC_ID_VP9 ||
        mp4_vp9_superframe(packet->data, (size_t)packet->size) != 0)
        return true;
    if ((head & 0x30) == 0x30) /* profile 3 has an extra bit in front */
        head <<= 1;
    return (head & 0x0A) != 0; /* show an existing frame, or this one */
}

/* Append a packet to the index. *left limits the memory of all packets: edit lists can
 * repeat packets, and containers can compress them. */
static bags_code mp4_index_add(
    bags_mp4_reader *reader, AVPacket *packet, uint64_t *left, bags_error *err) {
    enum AVCodecID id = reader->parameters->codec_id;
    int n = reader->length;
    size_t size = packet->size < 0 ? 0 : (size_t)packet->size;
    const char *fault = NULL;
    if ((packet->flags & AV_PKT_FLAG_CORRUPT) || size == 0)
        fault = "truncated or empty";
    else if (av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL))
        fault = "changes the codec's settings";
    else if (size > *left)
        fault = "all together are many times larger than the file";
    else if (id == AV_CODEC_ID_VP9 && mp4_vp9_superframe(packet->data, size) < 0)
        fault = "an invalid superframe";
    if (fault)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "packet %d of the video: %s", n, fault);
    *left -= size;
    mp4_packet *made = (mp4_packet *)av_dynarray2_add(
        (void **)&reader->packets, &reader->length, sizeof *made, NULL);
    if (!made)
        return mp4_fail_memory(err);
    memset(made, 0, sizeof *made);
    made->packet = av_packet_clone(packet);
    if (!made->packet)
        return mp4_fail_memory(err);
    made->rank = mp4_shows(id, packet) ? 0 : MP4_HIDDEN;
    made->size = (uint32_t)size;
    made->is_key = (packet->flags & AV_PKT_FLAG_KEY) != 0;
    made->pts = packet->pts;
    made->packet->flags &= ~AV_PKT_FLAG_DISCARD; /* other frames may depend on it */
    if (packet->pts == AV_NOPTS_VALUE)
        made->pts = packet->dts;
    if (made->pts == AV_NOPTS_VALUE && n > 0 && n != (int)reader->first + 1)
        made->pts = reader->packets[n - 1].pts;
    return BAGS_OK;
}

/* Find and check the frame size: from the bitstream of `packet`, the first keyframe; or
 * from the container if `packet` is NULL or FFmpeg has no parser for it. */
static bags_code mp4_find_size(
    bags_mp4_reader *reader, const AVPacket *packet, bags_error *err) {
    AVCodecParserContext *parser = av_parser_init((int)reader->parameters->codec_id);
    AVCodecContext *codec = avcodec_alloc_context3(NULL);
    int width = reader->parameters->width, height = reader->parameters->height;
    if (packet && parser && codec &&
        avcodec_parameters_to_context(codec, reader->parameters) >= 0) {
        uint8_t *out = NULL;
        int size = 0;
        codec->log_level_offset = MP4_QUIET;
        parser->flags |= PARSER_FLAG_COMPLETE_FRAMES;
        av_parser_parse2(parser, codec, &out, &size, packet->data, packet->size,
            AV_NOPTS_VALUE, AV_NOPTS_VALUE, -1);
        bool own = parser->width > 0 && parser->height > 0;
        width = own ? parser->width : codec->width;
        height = own ? parser->height : codec->height;
    }
    avcodec_free_context(&codec);
    av_parser_close(parser);
    if (width <= 0 || height <= 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "frame size is missing");
    reader->info.width = (uint64_t)width;
    reader->info.height = (uint64_t)height;
    if (reader->info.width * reader->info.height > reader->options.max_pixels)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "too many pixels (%d x %d, maximum %" PRIu64 ")", height, width,
            (uint64_t)reader->options.max_pixels);
    return BAGS_OK;
}

/* Read all packets of the video. */
static bags_code mp4_index_read(
    bags_mp4_reader *reader, mp4_file *file, bags_error *err) {
    bags_code code = BAGS_OK;
    uint64_t left = (uint64_t)reader->blob.size * MP4_MOST_PACKETS;
    int result = 0;
    AVPacket *packet = av_packet_alloc();
    if (!packet)
        return mp4_fail_memory(err);
    while (!code && (result = av_read_frame(file->format, packet)) >= 0) {
        if (packet->stream_index == file->stream->index) {
            code = mp4_index_add(reader, packet, &left, err);
            if (!code && (packet->flags & AV_PKT_FLAG_KEY) && reader->info.width == 0) {
                reader->first = (uint32_t)reader->length - 1;
                code = mp4_find_size(reader, packet, err);
            }
        }
        av_packet_unref(packet);
    }
    av_packet_free(&packet);
    if (!code && result != AVERROR_EOF)
        code = mp4_fail(err, BAGS_ERROR_CORRUPT, result, "truncated video");
    if (!code && reader->info.width == 0)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "no keyframe in the %d packets of the video", reader->length);
    return code;
}

/* Record the codec, its settings and the frame rate. *kind receives the codec's index
 * in mp4_codecs. */
static bags_code mp4_describe(
    bags_mp4_reader *reader, const mp4_file *file, size_t *kind, bags_error *err) {
    const AVCodecParameters *parameters = file->stream->codecpar;
    *kind = 0;
    while (*kind < MP4_CODECS && mp4_codecs[*kind].id != parameters->codec_id)
        ++*kind;
    if (*kind == MP4_CODECS)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "unsupported video codec (%s, expected h264, hevc, mpeg4, vp8, vp9 "
            "or av1)",
            avcodec_get_name(parameters->codec_id));
    AVRational rate = file->stream->avg_frame_rate;
    if (rate.num > 0 && rate.den > 0) {
        reader->info.fps_num = (uint32_t)rate.num;
        reader->info.fps_den = (uint32_t)rate.den;
    }
    strcpy(reader->info.codec, mp4_codecs[*kind].name);
    avcodec_parameters_free(&reader->parameters);
    reader->parameters = avcodec_parameters_alloc();
    if (!reader->parameters ||
        avcodec_parameters_copy(reader->parameters, parameters) < 0)
        return mp4_fail_memory(err);
    return BAGS_OK;
}

/* Sort the packets into display order, once all are known. */
static bags_code mp4_index_sort(bags_mp4_reader *reader, bags_error *err) {
    uint32_t length = (uint32_t)reader->length;
    reader->order = (mp4_shown *)av_malloc_array(length, sizeof(mp4_shown));
    if (!reader->order)
        return mp4_fail_memory(err);
    reader->info.frames =
        mp4_sort(reader->packets, length, reader->first, reader->order, &reader->delay);
    return BAGS_OK;
}

/* Index a file that is in memory. */
static bags_code mp4_index_file(
    bags_mp4_reader *reader, bags_view blob, bags_error *err) {
    mp4_file file;
    size_t kind;
    reader->blob = blob;
    bags_code code = mp4_file_open(&file, blob, err);
    if (!code)
        code = mp4_describe(reader, &file, &kind, err);
    if (!code)
        code = mp4_index_read(reader, &file, err);
    if (!code)
        code = mp4_index_sort(reader, err);
    mp4_file_close(&file);
    return code;
}

static bags_mp4_reader *mp4_reader_new(
    const bags_mp4_options *options, bags_error *err) {
    bags_mp4_reader *reader = (bags_mp4_reader *)av_mallocz(sizeof *reader);
    if (!reader) {
        mp4_fail_memory(err);
        return NULL;
    }
    if (options)
        reader->options = *options;
    if (!reader->options.max_pixels)
        reader->options.max_pixels = MP4_MAX_PIXELS;
    if (!reader->options.max_size)
        reader->options.max_size = MP4_MAX_SIZE;
    return reader;
}

bags_mp4_reader *bags_mp4_reader_open(
    bags_view blob, const bags_mp4_options *options, bags_error *err) {
    bags_mp4_reader *reader = mp4_reader_new(options, err);
    if (!reader || blob.size == 0 || !mp4_index_file(reader, blob, err))
        return reader;
    bags_mp4_reader_close(reader);
    return NULL;
}

/* ---- videos in datasets ---- */

/* Copy a packet from the window. */
static bags_code mp4_load_packet(
    bags_mp4_reader *reader, const mp4_packet *packet, bags_error *err) {
    bags_view from = mp4_window_from(&reader->source, packet->offset);
    if (from.size < packet->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "packet %d of the video: truncated or empty",
            (int)(packet - reader->packets));
    if (!reader->loaded)
        reader->loaded = av_packet_alloc();
    if (!reader->loaded)
        return mp4_fail_memory(err);
    av_packet_unref(reader->loaded);
    if (av_new_packet(reader->loaded, (int)packet->size) < 0)
        return mp4_fail_memory(err);
    memcpy(reader->loaded->data, from.data, packet->size);
    reader->loaded->flags = packet->is_key ? AV_PKT_FLAG_KEY : 0;
    return BAGS_OK;
}

/* Index a video from its tables. *known stays false if the video must be read
 * completely. */
static bags_code mp4_index_moov(bags_mp4_reader *reader, bags_view moov, size_t skip,
    bool *known, bags_error *err) {
    mp4_track track;
    mp4_file file;
    size_t kind = 0;
    bags_view content = {moov.data + skip, moov.size - skip};
    if (!mp4_track_open(&track, content))
        return BAGS_OK;
    bags_error why;
    bags_code code = mp4_file_open(&file, moov, &why);
    if (!code)
        code = mp4_describe(reader, &file, &kind, &why);
    mp4_file_close(&file);
    if (code == BAGS_ERROR_MEMORY)
        return mp4_fail_memory(err);
    if (code || !mp4_codecs[kind].by_tables) /* reading the whole video finds the
                                              * error */
        return BAGS_OK;
    size_t count = (size_t)track.places.sizes.count;
    reader->packets = (mp4_packet *)av_calloc(count, sizeof(mp4_packet));
    if (!reader->packets)
        return mp4_fail_memory(err);
    *known = mp4_track_packets(&track, reader->packets, &reader->first);
    if (!*known)
        return BAGS_OK;
    reader->length = (int)count;
    const mp4_packet *key = &reader->packets[reader->first];
    if (mp4_is_near(&reader->source, key->offset, key->size))
        code = mp4_load_packet(reader, key, err);
    if (!code)
        code = mp4_find_size(reader, reader->loaded, err);
    return code ? code : mp4_index_sort(reader, err);
}

/* Index the source's video: from its tables, or by reading all of it. */
static bags_code mp4_index_source(bags_mp4_reader *reader, bags_error *err) {
    mp4_source *source = &reader->source;
    bags_buffer copy = {NULL, 0, NULL, NULL};
    bags_view moov = {NULL, 0}, blob;
    size_t before = 0, header = 0;
    bool known = false;
    bags_code code = mp4_read_part(source, 0, MP4_HEAD, err);
    if (!code && source->window.size == 0)
        return BAGS_OK;
    source->is_short = source->window.size < MP4_HEAD;
    if (!code)
        code = mp4_find_moov(source, &copy, &moov.size, &before, &header, err);
    moov.data = copy.data;
    if (!code && moov.size > 0)
        code = mp4_index_moov(reader, moov, before + header, &known, err);
    bags_buffer_free(&copy);
    if (known || (code && code != BAGS_ERROR_ARGUMENT)) /* partial reads are not
                                                         * verified */
        return code;
    av_freep(&reader->packets);
    reader->first = 0;
    code = bags_reader_get_blob(source->reader, source->index, source->field,
        source->item, &source->row, &blob, err);
    if (!code && blob.size > 0)
        code = mp4_index_file(reader, blob, err);
    source->reader = NULL;
    bags_row_free(&source->row);
    return code;
}

bags_mp4_reader *bags_mp4_reader_open_blob(const bags_reader *dataset, uint64_t index,
    size_t field, uint64_t item, const bags_mp4_options *options, bags_error *err) {
    bags_mp4_reader *reader = mp4_reader_new(options, err);
    if (!reader)
        return NULL;
    reader->source.reader = dataset;
    reader->source.index = index;
    reader->source.field = field;
    reader->source.item = item;
    if (!mp4_index_source(reader, err))
        return reader;
    bags_mp4_reader_close(reader);
    return NULL;
}

const bags_mp4_info *bags_mp4_reader_info(const bags_mp4_reader *reader) {
    return &reader->info;
}

bags_code bags_mp4_probe(bags_view blob, const bags_mp4_options *options,
    bags_mp4_info *info, bags_error *err) {
    bags_error own;
    if (!err)
        err = &own;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, options, err);
    if (!reader)
        return err->code;
    *info = reader->info;
    bags_mp4_reader_close(reader);
    return BAGS_OK;
}

/* ---- decoder ---- */

/* True if the decoder marks damaged frames and must not stop at them: H.264 cut in an
 * open GOP refers to frames that no longer exist, but does not use them. Before FFmpeg
 * 7, a multithreaded decoder may return a frame before it is marked. */
static bool mp4_marks_frames(const bags_mp4_reader *reader) {
    return reader->parameters->codec_id == AV_CODEC_ID_H264 &&
           mp4_threads(&reader->options) == 1;
}

static bags_code mp4_decoder_open(bags_mp4_reader *reader, bags_error *err) {
    if (reader->codec)
        return BAGS_OK;
    const AVCodec *decoder = avcodec_find_decoder(reader->parameters->codec_id);
    if (!decoder)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "this build of FFmpeg has no decoder for %s", reader->info.codec);
    AVCodecContext *codec = avcodec_alloc_context3(decoder);
    if (!codec)
        return mp4_fail_memory(err);
    int result = avcodec_parameters_to_context(codec, reader->parameters);
    codec->log_level_offset = MP4_QUIET;
    codec->thread_count = mp4_threads(&reader->options);
    codec->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER;
    if (mp4_marks_frames(reader))
        codec->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
    else
        codec->err_recognition |= AV_EF_EXPLODE;
    /* Frames must not grow after indexing. Decoders add their own borders. */
    codec->max_pixels =
        (int64_t)((reader->info.width + 320) * (reader->info.height + 320));
    /* H.264 need not state the reorder delay; a decoder that guesses too low drops
     * frames. */
    if (codec->codec_id == AV_CODEC_ID_H264)
        codec->has_b_frames = reader->delay < 16 ? reader->delay : 16;
    if (result >= 0)
        result = avcodec_open2(codec, decoder, NULL);
    if (result < 0) {
        avcodec_free_context(&codec);
        return mp4_fail(err, BAGS_ERROR_CORRUPT, result,
            "the decoder rejects the video's settings");
    }
    reader->codec = codec;
    if (!reader->frame)
        reader->frame = av_frame_alloc();
    if (!reader->rgb)
        reader->rgb = av_frame_alloc();
    return reader->frame && reader->rgb ? BAGS_OK : mp4_fail_memory(err);
}

/* Set up the scaler for the current frame with PyAV's defaults: bilinear, with BT.601
 * coefficients regardless of the video. The deprecated names of full-range formats are
 * replaced only because the scaler prints a message about them. */
static bags_code mp4_scaler(bags_mp4_reader *reader, bags_error *err) {
    static const enum AVPixelFormat full[][2] = {
        {AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV420P},
        {AV_PIX_FMT_YUVJ422P, AV_PIX_FMT_YUV422P},
        {AV_PIX_FMT_YUVJ444P, AV_PIX_FMT_YUV444P},
        {AV_PIX_FMT_YUVJ440P, AV_PIX_FMT_YUV440P},
    };
    const AVFrame *frame = reader->frame;
    const int *coefficients = sws_getCoefficients(SWS_CS_DEFAULT);
    enum AVPixelFormat format = (enum AVPixelFormat)frame->format;
    if (reader->scaler && reader->scaler_format == frame->format)
        return BAGS_OK;
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        if (full[i][0] == format)
            format = full[i][1];
    if (!sws_isSupportedInput(format))
        return bags_fail(
            err, BAGS_ERROR_TYPE, "unsupported pixel format (%d)", frame->format);
    sws_freeContext(reader->scaler);
    reader->scaler = sws_getContext(frame->width, frame->height, format, frame->width,
        frame->height, AV_PIX_FMT_RGB24, SWS_BILINEAR, NULL, NULL, NULL);
    if (!reader->scaler)
        return mp4_fail_memory(err);
    reader->scaler_format = frame->format;
    if ((int)format != frame->format)
        sws_setColorspaceDetails(
            reader->scaler, coefficients, 1, coefficients, 0, 0, 1 << 16, 1 << 16);
    return BAGS_OK;
}

/* Allocate a frame with zeroed, padded lines: the scaler reads the padding. */
static bags_code mp4_padded(
    AVFrame *frame, enum AVPixelFormat format, int width, int height, bags_error *err) {
    if (frame->buf[0])
        return BAGS_OK;
    frame->format = format;
    frame->width = width;
    frame->height = height;
    if (av_frame_get_buffer(frame, MP4_ALIGN) < 0)
        return mp4_fail_memory(err);
    memset(frame->buf[0]->data, 0, (size_t)frame->buf[0]->size);
    return BAGS_OK;
}

/* Convert the current frame to RGB at `out`. The scaler writes complete vectors, so
 * lines that end within a vector need padding. */
static bags_code mp4_convert(
    bags_mp4_reader *reader, unsigned char *out, bags_error *err) {
    const AVFrame *frame = reader->frame;
    int line = frame->width * 3;
    uint8_t *lines[4] = {out, NULL, NULL, NULL};
    int strides[4] = {line, 0, 0, 0};
    bool direct = frame->width % 32 == 0 && (uintptr_t)out % 16 == 0;
    bags_code code = mp4_scaler(reader, err);
    if (!code && !direct) {
        code =
            mp4_padded(reader->rgb, AV_PIX_FMT_RGB24, frame->width, frame->height, err);
        lines[0] = reader->rgb->data[0];
        strides[0] = reader->rgb->linesize[0];
    }
    if (code)
        return code;
    sws_scale(reader->scaler, (const uint8_t *const *)frame->data, frame->linesize, 0,
        frame->height, lines, strides);
    if (!direct)
        av_image_copy_plane(out, line, lines[0], strides[0], line, frame->height);
    return BAGS_OK;
}

/* Check the current frame and convert it. */
static bags_code mp4_take(
    bags_mp4_reader *reader, unsigned char *out, bags_error *err) {
    const AVFrame *frame = reader->frame;
    uint64_t height = reader->info.height, width = reader->info.width;
    if ((uint64_t)frame->width != width || (uint64_t)frame->height != height)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "frame %" PRId64 " has another size (%d x %d, expected %" PRIu64
            " x %" PRIu64 ")",
            frame->pts, frame->height, frame->width, (uint64_t)height, (uint64_t)width);
    /* The decoder started here, and the frame refers to missing frames. */
    if (frame->flags & AV_FRAME_FLAG_CORRUPT)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "frame %" PRId64 " is damaged", frame->pts);
    return mp4_convert(reader, out, err);
}

/* Pass the next packet, or the end of the stream, to the decoder. *code receives the
 * reason if it cannot be read. If all needed frames are already in the decoder, the
 * source's next GOP is not read. */
static int mp4_feed(bags_mp4_reader *reader, bags_code *code, bags_error *err) {
    uint32_t next = reader->next, length = (uint32_t)reader->length;
    reader->drained = next < length && reader->source.reader && next > reader->last &&
                      mp4_threads(&reader->options) == 1 &&
                      mp4_starts_gop(reader->packets, length, next);
    if (next >= length)
        reader->next = UINT32_MAX;
    if (next >= length || reader->drained)
        return avcodec_send_packet(reader->codec, NULL);
    AVPacket *packet = reader->packets[next].packet;
    if (!packet) {
        *code = mp4_read_packets(
            &reader->source, reader->packets, length, next, reader->last, err);
        if (!*code)
            *code = mp4_load_packet(reader, &reader->packets[next], err);
        packet = reader->loaded;
    }
    if (*code)
        return AVERROR_EXTERNAL;
    packet->pts = packet->dts = reader->next++;
    return avcodec_send_packet(reader->codec, packet);
}

/* Record that a packet is damaged. No displayed frame depends on leading pictures of
 * the first keyframe. */
static void mp4_mark(bags_mp4_reader *reader, uint32_t packet) {
    mp4_packet *at = &reader->packets[packet];
    if (packet < reader->first || at->pts < reader->packets[at->key].pts)
        return;
    at->damaged = reader->run;
    if (reader->damaged <= at->key)
        reader->damaged = at->key + 1;
}

/* True if a packet may depend on another packet that is damaged. */
static bool mp4_is_damaged(const bags_mp4_reader *reader, uint32_t packet) {
    const mp4_packet *packets = reader->packets;
    uint32_t key = packets[packet].key, i = key;
    if (reader->damaged <= key)
        return false;
    while (i <= packet && (packets[i].damaged != reader->run || packets[i].key < key))
        i++;
    return i <= packet;
}

/* Process the frame returned by the decoder. Hold it if it is frame `rank` or later. If
 * too many are held, drop the oldest. */
static bags_code mp4_note(bags_mp4_reader *reader, uint64_t rank, bags_error *err) {
    AVFrame *frame = reader->frame;
    if (frame->pts < 0 || frame->pts >= reader->length)
        return BAGS_OK;
    const mp4_packet *from = &reader->packets[frame->pts];
    if (frame->decode_error_flags)
        mp4_mark(reader, (uint32_t)frame->pts);
    if (reader->latest < from->pts)
        reader->latest = from->pts;
    if (from->rank == MP4_HIDDEN)
        return BAGS_OK;
    if (reader->shown <= from->rank)
        reader->shown = (uint64_t)from->rank + 1;
    if (from->rank < rank)
        return BAGS_OK;
    AVFrame *kept = av_frame_alloc();
    if (!kept)
        return mp4_fail_memory(err);
    if (reader->held_count == MP4_HELD) {
        av_frame_free(&reader->held[0]);
        memmove(reader->held, reader->held + 1,
            --reader->held_count * sizeof *reader->held);
    }
    av_frame_move_ref(kept, frame);
    reader->held[reader->held_count++] = kept;
    return BAGS_OK;
}

/* True if a packet's frame is held. */
static bool mp4_is_held(const bags_mp4_reader *reader, uint32_t packet) {
    size_t i = 0;
    while (i < reader->held_count && reader->held[i]->pts != (int64_t)packet)
        i++;
    return i < reader->held_count;
}

/* Convert held frame `rank`, then free it and all earlier frames. */
static bags_code mp4_take_held(
    bags_mp4_reader *reader, uint64_t rank, unsigned char *out, bags_error *err) {
    uint32_t packet = reader->order[rank].packet;
    if (mp4_is_damaged(reader, packet))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "frame %" PRIu64 " is damaged, or depends on a damaged one", rank);
    for (size_t i = 0; i < reader->held_count; i++)
        if (reader->held[i]->pts == (int64_t)packet &&
            av_frame_ref(reader->frame, reader->held[i]) < 0)
            return mp4_fail_memory(err);
    reader->frame->pts = (int64_t)rank;
    bags_code code = mp4_take(reader, out, err);
    av_frame_unref(reader->frame);
    mp4_release(reader, rank);
    return code;
}

/* Run the decoder until it has returned frame `rank` and, if the decoder marks damaged
 * frames, all frames that it may depend on: B-frames are returned before a frame
 * decoded earlier. Errors in other packets do not matter. */
static bags_code mp4_pump(
    bags_mp4_reader *reader, uint64_t rank, unsigned char *out, bags_error *err) {
    uint32_t length = (uint32_t)reader->length, packet = reader->order[rank].packet;
    const mp4_packet *wanted = &reader->packets[packet];
    int64_t until = mp4_marks_frames(reader) ? wanted->until : wanted->pts;
    bags_code code = BAGS_OK;
    int result = 0;
    for (uint32_t faults = 0; faults <= length;) {
        bool held = mp4_is_held(reader, packet);
        if (held && (reader->latest >= until || result == AVERROR_EOF))
            return mp4_take_held(reader, rank, out, err);
        result = avcodec_receive_frame(reader->codec, reader->frame);
        if (result >= 0) {
            code = mp4_note(reader, rank, err);
            av_frame_unref(reader->frame);
            if (code)
                return code;
            continue;
        }
        if (result == AVERROR(EAGAIN))
            result = mp4_feed(reader, &code, err);
        if (code)
            return code;
        if (result >= 0 || (result == AVERROR_EOF && held))
            continue;
        if (result == AVERROR_EOF || result == AVERROR(ENOMEM) || reader->next > length)
            break;
        mp4_mark(reader, reader->next - 1);
        if (mp4_is_damaged(reader, packet))
            break;
        faults++;
    }
    char what[64];
    (void)snprintf(what, sizeof what, "frame %" PRIu64, (uint64_t)rank);
    return mp4_fail(err, BAGS_ERROR_CORRUPT, result, what);
}

static void mp4_rewind(bags_mp4_reader *reader, uint32_t packet) {
    avcodec_flush_buffers(reader->codec);
    mp4_release(reader, UINT64_MAX);
    reader->next = packet;
    reader->shown = 0;
    reader->latest = INT64_MIN;
    reader->damaged = 0;
    reader->run++;
    reader->positioned = true;
    reader->drained = false;
}

/* Read a frame: continue from the decoder's position if it is not past the frame, or
 * start at the keyframe. If that fails, retry with one thread (it can decode more
 * H.264), then from the start of the video, since the index may be wrong about
 * keyframes. */
static bags_code mp4_read_frame(
    bags_mp4_reader *reader, uint64_t rank, unsigned char *out, bags_error *err) {
    uint32_t packet = reader->order[rank].packet, key = reader->packets[packet].key;
    bool resume =
        reader->positioned && (mp4_is_held(reader, packet) ||
                                  (reader->next >= key && reader->shown <= rank &&
                                      (!reader->drained || packet < reader->next)));
    if (!resume)
        mp4_rewind(reader, key);
    bags_code code = mp4_pump(reader, rank, out, err);
    if (code == BAGS_ERROR_CORRUPT && mp4_threads(&reader->options) > 1 &&
        reader->codec->codec_id == AV_CODEC_ID_H264) {
        reader->options.threads = 1;
        avcodec_free_context(&reader->codec);
        code = mp4_decoder_open(reader, err);
        if (code)
            return code;
        mp4_rewind(reader, key);
        code = mp4_pump(reader, rank, out, err);
    }
    if (code == BAGS_ERROR_CORRUPT && (resume || key > reader->first)) {
        mp4_rewind(reader, reader->first);
        code = mp4_pump(reader, rank, out, err);
    }
    reader->positioned = !code;
    return code;
}

bags_extent bags_mp4_reader_part(const bags_mp4_reader *reader, uint64_t frame) {
    bags_extent none = {0, 0};
    if (!reader->source.reader || frame >= reader->info.frames)
        return none;
    uint32_t at = reader->order[frame].packet, length = (uint32_t)reader->length;
    return mp4_part_from(reader->packets, length, reader->packets[at].key, at);
}

/* Clamp a range. *count receives its number of frames, *size their total bytes. */
static bags_code mp4_range(const bags_mp4_reader *reader, uint64_t start,
    uint64_t *stop, uint64_t *step, uint64_t *count, size_t *size, bags_error *err) {
    uint64_t frame = reader->info.height * reader->info.width * 3;
    if (start > *stop)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "invalid range (start %" PRIu64 " > stop %" PRIu64 ")", start, *stop);
    if (*stop > reader->info.frames)
        *stop = reader->info.frames;
    if (*step == 0)
        *step = 1;
    *count = start < *stop ? (*stop - start - 1) / *step + 1 : 0;
    if (*count > 0 && (*count > reader->options.max_size / frame ||
                          *count > (SIZE_MAX - MP4_HEADER) / frame))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "frames too large (%" PRIu64 " of %" PRIu64 " bytes, maximum %" PRIu64 ")",
            *count, frame, reader->options.max_size);
    *size = (size_t)(*count * frame);
    return BAGS_OK;
}

bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, void *data, size_t size, uint64_t *frames,
    bags_error *err) {
    uint64_t count = 0;
    size_t need = 0;
    unsigned char *out = (unsigned char *)data;
    bags_code code = mp4_range(reader, start, &stop, &step, &count, &need, err);
    if (!code && need > size)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "buffer too small (%" PRIu64 " bytes, need %" PRIu64 ")", (uint64_t)size,
            (uint64_t)need);
    if (!code && count > 0)
        code = mp4_decoder_open(reader, err);
    uint32_t last = 0;
    for (uint64_t i = 0; i < count && step == 1; i++)
        last = (uint32_t)mp4_most(last, reader->order[start + i].packet);
    for (uint64_t i = 0; i < count && !code; i++, out += need / count) {
        reader->last = step == 1 ? last : reader->order[start + i * step].packet;
        code = mp4_read_frame(reader, start + i * step, out, err);
    }
    if (!code && frames)
        *frames = count;
    return code;
}

bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start, uint64_t stop,
    uint64_t step, bags_buffer *scratch, bags_value *out, bags_error *err) {
    uint64_t count = 0;
    size_t size = 0;
    bags_code code = mp4_range(reader, start, &stop, &step, &count, &size, err);
    if (!code)
        code = bags_buffer_reserve(scratch, size + MP4_HEADER, err);
    if (code)
        return code;
    uint64_t *shape = (uint64_t *)(void *)scratch->data;
    unsigned char *pixels = scratch->data + MP4_HEADER;
    code = bags_mp4_reader_get_into(reader, start, stop, step, pixels, size, NULL, err);
    if (code)
        return code;
    shape[0] = count;
    shape[1] = reader->info.height;
    shape[2] = reader->info.width;
    shape[3] = 3;
    *out = bags_array(BAGS_DTYPE_UINT8, 4, shape, pixels);
    return BAGS_OK;
}

/* ---- writer ---- */

typedef struct mp4_writer {
    AVClass quiet;
    AVFormatContext *format;
    AVIOContext *io; /* the output file, in memory */
    AVStream *stream;
    AVCodecContext *codec;
    struct SwsContext *scaler;
    AVPacket *packet;
    AVFrame *rgb;    /* a copy of a frame, with padded lines */
    AVFrame *frame;  /* the encoder's input */
    int64_t packets; /* packets written */
} mp4_writer;

static void mp4_writer_close(mp4_writer *writer) {
    uint8_t *file = NULL;
    avcodec_free_context(&writer->codec);
    avformat_free_context(writer->format);
    if (writer->io)
        avio_close_dyn_buf(writer->io, &file);
    av_free(file);
    sws_freeContext(writer->scaler);
    av_packet_free(&writer->packet);
    av_frame_free(&writer->rgb);
    av_frame_free(&writer->frame);
}

static bags_code mp4_encoder_open(mp4_writer *writer, uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_error *err) {
    bool even = false;
    const AVCodec *encoder = mp4_choose_encoder(options, &even, err);
    if (!encoder)
        return BAGS_ERROR_TYPE;
    AVCodecContext *codec = avcodec_alloc_context3(encoder);
    if (!codec)
        return mp4_fail_memory(err);
    writer->codec = codec;
    bool odd = even && (height % 2 || width % 2);
    AVRational rate = av_make_q(options->webm ? 20 : 15, 1);
    if (options->fps_num)
        rate = av_make_q(
            (int)options->fps_num, options->fps_den ? (int)options->fps_den : 1);
    codec->log_level_offset = MP4_QUIET;
    codec->width = (int)width;
    codec->height = (int)height;
    codec->pix_fmt = odd ? AV_PIX_FMT_YUV444P : AV_PIX_FMT_YUV420P;
    codec->framerate = rate;
    codec->time_base = av_inv_q(rate);
    codec->bit_rate = options->bit_rate ? (int64_t)options->bit_rate : MP4_BIT_RATE;
    codec->bit_rate_tolerance = MP4_BIT_RATE_TOLERANCE;
    codec->thread_count = mp4_threads(options);
    if (options->key_interval)
        codec->gop_size = (int)options->key_interval;
    if (writer->format->oformat->flags & AVFMT_GLOBALHEADER)
        codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    /* libx265 (3.5) writes out of bounds in cutree if a frame is narrow. */
    if (strcmp(encoder->name, "libx265") == 0)
        av_opt_set(codec->priv_data, "x265-params",
            codec->thread_count == 1 ? "log-level=none:cutree=0:pools=none"
                                     : "log-level=none:cutree=0",
            0);
    if (strcmp(encoder->name, "libaom-av1") == 0) /* encoding takes minutes otherwise */
        av_opt_set_int(codec->priv_data, "cpu-used", 6, 0);
    int result = avcodec_open2(codec, encoder, NULL);
    if (result >= 0)
        return BAGS_OK;
    char what[128];
    (void)snprintf(what, sizeof what,
        "%s rejects %d x %d (H x W) at %d/%d frames per second", encoder->name,
        (int)height, (int)width, rate.num, rate.den);
    return mp4_fail(err, BAGS_ERROR_VALUE, result, what);
}

static bags_code mp4_muxer_open(
    mp4_writer *writer, const bags_mp4_options *options, bags_error *err) {
    const char *name = options->webm ? "webm" : "mp4";
    avformat_alloc_output_context2(&writer->format, NULL, name, NULL);
    if (!writer->format)
        return bags_fail(
            err, BAGS_ERROR_TYPE, "this build of FFmpeg does not write %s", name);
    mp4_silence(writer->format, &writer->quiet);
    if (avio_open_dyn_buf(&writer->io) < 0)
        return mp4_fail_memory(err);
    writer->format->pb = writer->io;
    writer->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    /* Otherwise WebM contains a random number, so the bytes differ each time. */
    if (options->webm)
        writer->format->flags |= AVFMT_FLAG_BITEXACT;
    writer->stream = avformat_new_stream(writer->format, NULL);
    return writer->stream ? BAGS_OK : mp4_fail_memory(err);
}

static bags_code mp4_write_header(mp4_writer *writer, bags_error *err) {
    AVCodecContext *codec = writer->codec;
    AVStream *stream = writer->stream;
    stream->time_base = codec->time_base;
    stream->avg_frame_rate = codec->framerate;
    int result = avcodec_parameters_from_context(stream->codecpar, codec);
    if (result >= 0)
        result = avformat_write_header(writer->format, NULL);
    if (result < 0)
        return mp4_fail(
            err, BAGS_ERROR_VALUE, result, "cannot write the video's header");
    writer->packet = av_packet_alloc();
    writer->rgb = av_frame_alloc();
    writer->frame = av_frame_alloc();
    writer->scaler = sws_getContext(codec->width, codec->height, AV_PIX_FMT_RGB24,
        codec->width, codec->height, codec->pix_fmt, SWS_BILINEAR, NULL, NULL, NULL);
    if (!writer->packet || !writer->rgb || !writer->frame || !writer->scaler)
        return mp4_fail_memory(err);
    return BAGS_OK;
}

/* Pass a frame (NULL at the end) to the encoder, and write the packets it returns. */
static bags_code mp4_compress(
    mp4_writer *writer, const AVFrame *frame, bags_error *err) {
    AVCodecContext *codec = writer->codec;
    AVPacket *packet = writer->packet;
    int result = avcodec_send_frame(codec, frame);
    while (result >= 0) {
        result = avcodec_receive_packet(codec, packet);
        if (result == AVERROR(EAGAIN) || result == AVERROR_EOF)
            return BAGS_OK;
        if (result < 0)
            break;
        /* libx265 (3.5) does not set decoding times if the video is shorter than the
         * encoder's delay of two frames (for B-pyramids). */
        if (codec->codec_id == AV_CODEC_ID_HEVC)
            packet->dts = writer->packets++ - 2;
        av_packet_rescale_ts(packet, codec->time_base, writer->stream->time_base);
        packet->stream_index = writer->stream->index;
        result = av_interleaved_write_frame(writer->format, packet);
    }
    return mp4_fail(err, BAGS_ERROR_VALUE, result, "cannot encode the video");
}

/*
 * Convert a frame to the encoder's format, and encode it. The input is copied with
 * padding, since the scaler reads complete vectors. The encoder's frame is replaced if
 * the encoder still holds it. Encoders read its padding too, so it is zeroed: equal
 * frames then give equal bytes.
 */
static bags_code mp4_add(
    mp4_writer *writer, const unsigned char *pixels, uint64_t index, bags_error *err) {
    AVFrame *rgb = writer->rgb, *frame = writer->frame;
    int width = writer->codec->width, height = writer->codec->height;
    if (frame->buf[0] && !av_frame_is_writable(frame))
        av_frame_unref(frame);
    bags_code code = mp4_padded(rgb, AV_PIX_FMT_RGB24, width, height, err);
    if (code)
        return code;
    code = mp4_padded(frame, writer->codec->pix_fmt, width, height, err);
    if (code)
        return code;
    av_image_copy_plane(
        rgb->data[0], rgb->linesize[0], pixels, width * 3, width * 3, height);
    sws_scale(writer->scaler, (const uint8_t *const *)rgb->data, rgb->linesize, 0,
        height, frame->data, frame->linesize);
    frame->pts = (int64_t)index;
    return mp4_compress(writer, frame, err);
}

/* Finish the video, and copy it to a buffer. */
static bags_code mp4_finish(
    mp4_writer *writer, bags_buffer *buffer, bags_view *blob, bags_error *err) {
    uint8_t *file = NULL;
    bags_code code = mp4_compress(writer, NULL, err);
    if (code)
        return code;
    int result = av_write_trailer(writer->format);
    if (result >= 0 && writer->io->error < 0)
        result = writer->io->error;
    if (result < 0)
        return mp4_fail(err, BAGS_ERROR_VALUE, result, "cannot finish the video");
    int size = avio_close_dyn_buf(writer->io, &file);
    size_t all = file ? (size_t)size : 0;
    writer->io = NULL;
    code = bags_buffer_reserve(buffer, all, err);
    if (!code) {
        bags_view made = {file, all};
        bool webm = strcmp(writer->format->oformat->name, "webm") == 0;
        if (all && (webm || !mp4_index_first(made, buffer->data)))
            memcpy(buffer->data, file, all);
        blob->data = buffer->data;
        blob->size = all;
    }
    av_free(file);
    return code;
}

static bags_code mp4_write(mp4_writer *writer, const bags_value *frames,
    const bags_mp4_options *options, bags_buffer *scratch, bags_view *blob,
    bags_error *err) {
    uint64_t height = frames->shape[1], width = frames->shape[2];
    const unsigned char *frame = (const unsigned char *)frames->data;
    if (height - 1 >= INT16_MAX || width - 1 >= INT16_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "frame size out of range (%" PRIu64 " x %" PRIu64 ", 1 to 32767)", height,
            width);
    if (options->fps_num > INT_MAX || options->fps_den > INT_MAX ||
        options->bit_rate > INT_MAX || options->key_interval > INT_MAX)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "video option out of range (above 2^31-1)");
    bags_code code = mp4_muxer_open(writer, options, err);
    if (code)
        return code;
    code = mp4_encoder_open(writer, height, width, options, err);
    if (code)
        return code;
    code = mp4_write_header(writer, err);
    if (code)
        return code;
    for (uint64_t i = 0; i < frames->shape[0]; i++, frame += height * width * 3) {
        code = mp4_add(writer, frame, i, err);
        if (code)
            return code;
    }
    return mp4_finish(writer, scratch, blob, err);
}

/* ---- table ---- */

static bags_code mp4_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    const mp4_state *made = (const mp4_state *)state;
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != BAGS_DTYPE_UINT8 ||
        value->dims != 4 || value->shape[3] != 3)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "expected an array of uint8, T x H x W x 3");
    bags_code code = format_array_check(value, err);
    if (code)
        return code;
    if (value->shape[0] == 0)
        return BAGS_OK;
    mp4_writer writer;
    memset(&writer, 0, sizeof writer);
    code = mp4_write(&writer, value, &made->options, scratch, blob, err);
    mp4_writer_close(&writer);
    return code;
}

static bags_code mp4_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    const mp4_state *made = (const mp4_state *)state;
    bags_error own;
    if (!err)
        err = &own;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, &made->options, err);
    if (!reader)
        return err->code;
    bags_code code = bags_mp4_reader_get(reader, 0, UINT64_MAX, 1, scratch, value, err);
    bags_mp4_reader_close(reader);
    return code;
}

const bags_codec bags_codec_mp4 = {
    "mp4 webm", mp4_open, mp4_encode, mp4_decode, format_state_close, NULL, NULL};
