/*
 * formats/mp4.c against the same work done by calls of FFmpeg's libraries, in
 * one run: mpeg4, yuv420p, one thread. The best of several turns each, taken
 * alternately. "slower" is what the codec costs on top.
 */
#include "../../formats/formats.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAMES 60
#define HEIGHT 720
#define WIDTH 1280
#define TURNS 7
#define FRAME ((size_t)HEIGHT * WIDTH * 3)

static unsigned char *frames, *decoded;
static bags_buffer buffer, scratch;
static bags_view blob;
static void *state;

/* The processor's time: others may use the machine. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void need(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

/* A pattern that moves, with some noise, as a camera has. */
static void make_frames(void) {
    uint32_t random = 1;
    frames = (unsigned char *)malloc(FRAMES * FRAME);
    decoded = (unsigned char *)malloc(FRAMES * FRAME);
    need(frames && decoded, "malloc");
    unsigned char *to = frames;
    for (int t = 0; t < FRAMES; t++)
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++) {
                random = random * 1664525 + 1013904223;
                int noise = (int)(random >> 29);
                *to++ = (unsigned char)(((x + 3 * t) >> 2 & 127) + noise);
                *to++ = (unsigned char)(((y + 2 * t) >> 2 & 127) + noise);
                *to++ = (unsigned char)(((x + y) >> 3 & 127) + noise);
            }
    memset(decoded, 1, FRAMES * FRAME);
}

static void our_encode(void) {
    uint64_t shape[4] = {FRAMES, HEIGHT, WIDTH, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, frames);
    bags_error err;
    need(!bags_codec_mp4.encode(state, &value, &buffer, &blob, &err), "encode");
}

static void our_decode(void) {
    bags_error err;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
    need(reader && !bags_mp4_reader_get_into(
                       reader, 0, FRAMES, 1, decoded, FRAMES * FRAME, NULL, &err),
        "decode");
    bags_mp4_reader_close(reader);
}

static void our_range(void) {
    bags_error err;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
    need(reader && !bags_mp4_reader_get_into(
                       reader, FRAMES - 8, FRAMES, 1, decoded, 8 * FRAME, NULL, &err),
        "range");
    bags_mp4_reader_close(reader);
}

static void our_probe(void) {
    bags_error err;
    bags_mp4_info info;
    need(!bags_mp4_probe(blob, NULL, &info, &err), "probe");
}

/* The libraries, called by a program that trusts its data. */

static void mux(AVFormatContext *format, AVCodecContext *codec, AVStream *stream,
    AVPacket *packet, AVFrame *frame) {
    need(avcodec_send_frame(codec, frame) >= 0, "send");
    while (avcodec_receive_packet(codec, packet) >= 0) {
        av_packet_rescale_ts(packet, codec->time_base, stream->time_base);
        packet->stream_index = 0;
        need(av_interleaved_write_frame(format, packet) >= 0, "write");
    }
}

static void their_encode(void) {
    AVFormatContext *format = NULL;
    avformat_alloc_output_context2(&format, NULL, "mp4", NULL);
    /* Fragments need no seeking, so that FFmpeg's own buffer serves. */
    AVDictionary *options = NULL;
    av_dict_set(&options, "movflags", "frag_keyframe+empty_moov", 0);
    need(format && avio_open_dyn_buf(&format->pb) >= 0, "open");
    const AVCodec *encoder = avcodec_find_encoder(AV_CODEC_ID_MPEG4);
    AVCodecContext *codec = avcodec_alloc_context3(encoder);
    codec->width = WIDTH;
    codec->height = HEIGHT;
    codec->pix_fmt = AV_PIX_FMT_YUV420P;
    codec->time_base = av_make_q(1, 15);
    codec->framerate = av_make_q(15, 1);
    codec->bit_rate = 1024000;
    codec->bit_rate_tolerance = 128000;
    codec->thread_count = 1;
    codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    need(avcodec_open2(codec, encoder, NULL) >= 0, "encoder");
    AVStream *stream = avformat_new_stream(format, NULL);
    stream->time_base = codec->time_base;
    avcodec_parameters_from_context(stream->codecpar, codec);
    need(avformat_write_header(format, &options) >= 0, "header");
    av_dict_free(&options);
    struct SwsContext *scaler = sws_getContext(WIDTH, HEIGHT, AV_PIX_FMT_RGB24, WIDTH,
        HEIGHT, AV_PIX_FMT_YUV420P, SWS_BILINEAR, NULL, NULL, NULL);
    AVPacket *packet = av_packet_alloc();
    for (int t = 0; t < FRAMES; t++) {
        AVFrame *frame = av_frame_alloc();
        frame->format = AV_PIX_FMT_YUV420P;
        frame->width = WIDTH;
        frame->height = HEIGHT;
        frame->pts = t;
        av_frame_get_buffer(frame, 0);
        const uint8_t *lines[4] = {frames + (size_t)t * FRAME, NULL, NULL, NULL};
        int strides[4] = {WIDTH * 3, 0, 0, 0};
        sws_scale(scaler, lines, strides, 0, HEIGHT, frame->data, frame->linesize);
        mux(format, codec, stream, packet, frame);
        av_frame_free(&frame);
    }
    mux(format, codec, stream, packet, NULL);
    av_write_trailer(format);
    uint8_t *out = NULL;
    avio_close_dyn_buf(format->pb, &out);
    av_free(out);
    av_packet_free(&packet);
    sws_freeContext(scaler);
    avcodec_free_context(&codec);
    avformat_free_context(format);
}

static size_t read_at;

static int read_blob(void *user, uint8_t *out, int size) {
    (void)user;
    size_t part = blob.size - read_at;
    if (part > (size_t)size)
        part = (size_t)size;
    memcpy(out, blob.data + read_at, part);
    read_at += part;
    return part ? (int)part : AVERROR_EOF;
}

static int64_t seek_blob(void *user, int64_t offset, int whence) {
    (void)user;
    if (whence == AVSEEK_SIZE)
        return (int64_t)blob.size;
    read_at = (size_t)offset;
    return whence == SEEK_SET ? offset : AVERROR(EINVAL);
}

static void their_decode(void) {
    read_at = 0;
    AVFormatContext *format = avformat_alloc_context();
    format->pb = avio_alloc_context(
        (unsigned char *)av_malloc(32768), 32768, 0, NULL, read_blob, NULL, seek_blob);
    need(avformat_open_input(&format, "", NULL, NULL) >= 0, "open");
    AVCodecParameters *parameters = format->streams[0]->codecpar;
    const AVCodec *decoder = avcodec_find_decoder(parameters->codec_id);
    AVCodecContext *codec = avcodec_alloc_context3(decoder);
    avcodec_parameters_to_context(codec, parameters);
    codec->thread_count = 1;
    need(avcodec_open2(codec, decoder, NULL) >= 0, "decoder");
    struct SwsContext *scaler = sws_getContext(WIDTH, HEIGHT, AV_PIX_FMT_YUV420P, WIDTH,
        HEIGHT, AV_PIX_FMT_RGB24, SWS_BICUBIC, NULL, NULL, NULL);
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    unsigned char *to = decoded;
    bool more = true;
    while (more) {
        more = av_read_frame(format, packet) >= 0;
        avcodec_send_packet(codec, more ? packet : NULL);
        av_packet_unref(packet);
        while (avcodec_receive_frame(codec, frame) >= 0) {
            uint8_t *lines[4] = {to, NULL, NULL, NULL};
            int strides[4] = {WIDTH * 3, 0, 0, 0};
            sws_scale(scaler, (const uint8_t *const *)frame->data, frame->linesize, 0,
                HEIGHT, lines, strides);
            to += FRAME;
        }
    }
    need(to == decoded + FRAMES * FRAME, "frames");
    av_frame_free(&frame);
    av_packet_free(&packet);
    sws_freeContext(scaler);
    avcodec_free_context(&codec);
    av_freep(&format->pb->buffer);
    avio_context_free(&format->pb);
    avformat_close_input(&format);
}

static double timed(void (*work)(void)) {
    double start = now();
    work();
    return now() - start;
}

static void compare(const char *name, void (*ours)(void), void (*theirs)(void)) {
    double mine = 1e9, direct = 1e9;
    for (int i = 0; i < TURNS; i++) {
        mine = fmin(mine, timed(ours));
        direct = fmin(direct, timed(theirs));
    }
    printf("%s: %.0f frames/s, FFmpeg's libraries alone %.0f, %+.1f %% slower\n", name,
        FRAMES / mine, FRAMES / direct, (mine / direct - 1) * 100);
}

static void measure(const char *name, void (*ours)(void)) {
    double mine = 1e9;
    for (int i = 0; i < TURNS; i++)
        mine = fmin(mine, timed(ours));
    printf("%s: %.2f ms\n", name, mine * 1e3);
}

static void *resize(void *user, void *data, size_t old_size, size_t new_size) {
    (void)user;
    (void)old_size;
    if (new_size)
        return realloc(data, new_size);
    free(data);
    return NULL;
}

int main(void) {
    av_log_set_level(AV_LOG_ERROR);
    static const bags_allocator memory = {resize, NULL};
    bags_type type;
    bags_error err;
    need(!bags_type_parse("mp4", &type, &err), "type");
    need(!bags_codec_mp4.open(&bags_codec_mp4, &type, &memory, &state, &err), "codec");
    make_frames();
    printf("%d frames, %d x %d, mpeg4\n", FRAMES, HEIGHT, WIDTH);
    compare("encode", our_encode, their_encode);
    compare("decode", our_decode, their_decode);
    measure("open, and the last 8 frames", our_range);
    measure("probe", our_probe);
    bags_codec_mp4.close(state);
    bags_buffer_free(&buffer);
    bags_buffer_free(&scratch);
    free(frames);
    free(decoded);
    return 0;
}
