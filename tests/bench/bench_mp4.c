/*
 * formats/mp4.c against the same work done by calls of FFmpeg's libraries, in
 * one run: mpeg4, yuv420p, one thread. The best of several turns each, taken
 * alternately. "slower" is what the codec costs on top.
 *
 * Then frames in random order of three videos in a dataset, H.264, against a loop that
 * seeks to the keyframe and decodes up to the frame, in files that stay open.
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

/* ---- frames in random order ---- */

#define CAMERAS 3
#define LENGTH 400
#define SAMPLES 300
#define SMALL ((size_t)180 * 320 * 3)

static bags_reader *dataset;
static bags_mp4_cache *cache;
static bags_view files[CAMERAS];
static uint64_t digest;

static uint64_t sample(int i) { return (uint64_t)(i + 1) * 7919 * 31 % LENGTH; }

static void add_digest(const unsigned char *pixels) {
    for (size_t i = 0; i < SMALL; i += 997)
        digest = digest * 31 + pixels[i];
}

static void our_frames(void) {
    bags_error err;
    for (int i = 0; i < SAMPLES; i++)
        for (size_t k = 0; k < CAMERAS; k++) {
            bags_mp4_reader *video = bags_mp4_cache_get(cache, dataset, 0, k, 0, &err);
            need(video && !bags_mp4_reader_get_into(video, sample(i), sample(i) + 1, 1,
                              decoded, SMALL, NULL, &err),
                "frame");
            add_digest(decoded);
        }
}

/* A file that is open, and its decoder. */
typedef struct opened {
    bags_view file;
    size_t at;
    AVFormatContext *format;
    AVCodecContext *codec;
    struct SwsContext *scaler;
} opened;

static int read_opened(void *user, uint8_t *out, int size) {
    opened *from = (opened *)user;
    size_t left = from->file.size - from->at, part = (size_t)size;
    part = part < left ? part : left;
    memcpy(out, from->file.data + from->at, part);
    from->at += part;
    return part ? (int)part : AVERROR_EOF;
}

static int64_t seek_opened(void *user, int64_t offset, int whence) {
    opened *from = (opened *)user;
    if (whence == AVSEEK_SIZE)
        return (int64_t)from->file.size;
    from->at = (size_t)offset;
    return offset;
}

static opened cameras[CAMERAS];
static AVPacket *packet;
static AVFrame *frame;

static void open_camera(opened *camera, bags_view file) {
    camera->file = file;
    camera->at = 0;
    camera->format = avformat_alloc_context();
    camera->format->pb = avio_alloc_context((unsigned char *)av_malloc(32768), 32768, 0,
        camera, read_opened, NULL, seek_opened);
    need(avformat_open_input(&camera->format, "", NULL, NULL) >= 0, "open");
    AVCodecParameters *parameters = camera->format->streams[0]->codecpar;
    const AVCodec *decoder = avcodec_find_decoder(parameters->codec_id);
    camera->codec = avcodec_alloc_context3(decoder);
    avcodec_parameters_to_context(camera->codec, parameters);
    camera->codec->thread_count = 1;
    need(avcodec_open2(camera->codec, decoder, NULL) >= 0, "decoder");
    camera->scaler = sws_getContext(320, 180, AV_PIX_FMT_YUV420P, 320, 180,
        AV_PIX_FMT_RGB24, SWS_BILINEAR, NULL, NULL, NULL);
}

static void close_camera(opened *camera) {
    sws_freeContext(camera->scaler);
    avcodec_free_context(&camera->codec);
    av_freep(&camera->format->pb->buffer);
    avio_context_free(&camera->format->pb);
    avformat_close_input(&camera->format);
}

/* Pass packets to the decoder until it returns the frame with this time stamp. */
static void decode_until(opened *camera, int64_t pts) {
    for (;;) {
        int result = avcodec_receive_frame(camera->codec, frame);
        if (result >= 0 && frame->pts == pts)
            return;
        if (result >= 0)
            continue;
        need(result == AVERROR(EAGAIN), "frame");
        bool more = av_read_frame(camera->format, packet) >= 0;
        avcodec_send_packet(camera->codec, more ? packet : NULL);
        av_packet_unref(packet);
    }
}

static void their_frames(void) {
    for (int i = 0; i < SAMPLES; i++)
        for (size_t k = 0; k < CAMERAS; k++) {
            opened *camera = &cameras[k];
            AVStream *stream = camera->format->streams[0];
            int64_t pts =
                av_rescale_q((int64_t)sample(i), av_make_q(1, 15), stream->time_base);
            need(av_seek_frame(camera->format, 0, pts, AVSEEK_FLAG_BACKWARD) >= 0,
                "seek");
            avcodec_flush_buffers(camera->codec);
            decode_until(camera, pts);
            uint8_t *lines[4] = {decoded, NULL, NULL, NULL};
            int strides[4] = {320 * 3, 0, 0, 0};
            sws_scale(camera->scaler, (const uint8_t *const *)frame->data,
                frame->linesize, 0, 180, lines, strides);
            add_digest(decoded);
            av_frame_unref(frame);
        }
}

/* Three videos of one datapoint, of keyframes this many frames apart. */
static void compare_frames(uint32_t interval) {
    char path[] = "/tmp/bench_mp4-XXXXXX", name[64], command[128];
    const bags_field fields[CAMERAS] = {
        {"a", "mp4(15,h264)"}, {"b", "mp4(15,h264)"}, {"c", "mp4(15,h264)"}};
    uint64_t shape[4] = {LENGTH, 180, 320, 3};
    bags_mp4_options options;
    bags_writer_options writing;
    bags_codec codec = bags_codec_mp4;
    bags_value values[CAMERAS];
    bags_error err;
    bags_row row;
    memset(&options, 0, sizeof options);
    memset(&writing, 0, sizeof writing);
    memset(&row, 0, sizeof row);
    options.key_interval = interval;
    codec.user = &options;
    bags_registry *registry = bags_registry_create(NULL, &err);
    need(registry && !bags_registry_add(registry, &codec, &err), "registry");
    writing.registry = registry;
    unsigned char *pixels = (unsigned char *)malloc(CAMERAS * LENGTH * SMALL);
    need(pixels != NULL, "malloc");
    for (size_t i = 0; i < CAMERAS * LENGTH * SMALL; i++)
        pixels[i] =
            (unsigned char)((i / 3 % 320 + i / SMALL * 3 + i / 960 % 180 / 2) % 200 +
                            (i * 2654435761u >> 29 & 7));
    for (size_t k = 0; k < CAMERAS; k++)
        values[k] = bags_array(BAGS_DTYPE_UINT8, 4, shape, pixels + k * LENGTH * SMALL);
    const bags_entry entries[CAMERAS] = {
        {"a", &values[0], 1}, {"b", &values[1], 1}, {"c", &values[2], 1}};
    need(mkdtemp(path) != NULL, "mkdtemp");
    snprintf(name, sizeof name, "%s/set", path);
    bags_writer *writer = bags_writer_open(name, fields, CAMERAS, &writing, &err);
    bool has = writer && !bags_writer_append(writer, entries, CAMERAS, &err);
    if (bags_writer_close(writer, &err) || !has) {
        printf("skipped: frames in random order: %s\n", err.message);
    } else {
        dataset = bags_reader_open(name, NULL, &err);
        cache = bags_mp4_cache_open(NULL, &err);
        need(dataset && cache && !bags_reader_get(dataset, 0, NULL, 0, &row, &err),
            "open");
        packet = av_packet_alloc();
        frame = av_frame_alloc();
        for (size_t k = 0; k < CAMERAS; k++)
            open_camera(&cameras[k], files[k] = bags_row_bytes(&row, k, 0));
        digest = 0;
        our_frames();
        uint64_t ours = digest;
        digest = 0;
        their_frames();
        need(digest == ours, "same frames");
        double mine = 1e9, direct = 1e9;
        for (int i = 0; i < TURNS; i++) {
            mine = fmin(mine, timed(our_frames));
            direct = fmin(direct, timed(their_frames));
        }
        printf("random frames, h264, a keyframe every %d, 3 cameras 320 x 180: %.0f "
               "frames/s, a loop of seeks %.0f, ratio of times %.2f\n",
            (int)interval, SAMPLES * CAMERAS / mine, SAMPLES * CAMERAS / direct,
            mine / direct);
        for (size_t k = 0; k < CAMERAS; k++)
            close_camera(&cameras[k]);
        av_packet_free(&packet);
        av_frame_free(&frame);
        bags_mp4_cache_close(cache);
        bags_row_free(&row);
        bags_reader_close(dataset);
    }
    bags_registry_free(registry);
    free(pixels);
    snprintf(command, sizeof command, "rm -r %s", path);
    need(system(command) == 0, "rm");
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
    compare_frames(2);
    compare_frames(12);
    bags_codec_mp4.close(state);
    bags_buffer_free(&buffer);
    bags_buffer_free(&scratch);
    free(frames);
    free(decoded);
    return 0;
}
