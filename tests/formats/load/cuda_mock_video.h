/*
 * cuda_mock_video.h - libnvcuvid.so.1 for computers without a GPU: part of cuda_mock.c.
 * FFmpeg decodes. Members of the driver's structures are found by their offsets on 64-bit
 * systems, independently of the declarations in cuda_video.c.
 *
 * Like the driver's, a picture is decoded in the background: its status is unknown until
 * this picture or a later one is mapped.
 */
#include <libavcodec/avcodec.h>

#define AT(type, base, offset) (*(type *)(void *)((char *)(base) + (offset)))
typedef int (*callback)(void *user, void *structure);

#define MOCK_SURFACES 32
#define MOCK_NEEDED 12 /* surfaces that the parser asks for */

/* Faults of the mock, for tests. */
enum {
    MOCK_FAITHFUL,
    MOCK_SKIPS,          /* does not show each third picture */
    MOCK_SHIFTS,         /* time stamps of the picture shown before */
    MOCK_REPEATS,        /* shows each picture twice */
    MOCK_REPEATS_FORMAT, /* announces the same sequence before each picture: allowed */
    MOCK_CHANGES_RANGE,  /* announces another range before the third picture */
    MOCK_INTERLACED,
    MOCK_NEEDS_MORE, /* more surfaces than are supported */
    MOCK_DEEP,       /* 10 bits */
    MOCK_NO_STATUS,  /* the status of pictures is not supported */
    MOCK_LAZY, /* the status of a picture is unknown until it is mapped: allowed */
    MOCK_SKIPS_DECODING /* does not decode the second picture */
};
static int wrong, no_codec, least_side = 16;
MOCK void mock_video(int how, int unsupported, int least) {
    pthread_mutex_lock(&lock);
    wrong = how;
    no_codec = unsupported;
    least_side = least;
    pthread_mutex_unlock(&lock);
}
static int look_int(const int *number) {
    pthread_mutex_lock(&lock);
    int found = *number;
    pthread_mutex_unlock(&lock);
    return found;
}
static int is_wrong(int how) { return look_int(&wrong) == how; }

typedef struct mock_surface {
    int waits; /* it was not shown yet */
    int64_t time;
    long number; /* of the picture */
    int mapped;
    AVFrame *frame;
    int bad;
} mock_surface;

typedef struct mock_parser {
    char given[136];
    AVCodecContext *codec;
    AVPacket *packet;
    AVFrame *frame;
    mock_surface surfaces[MOCK_SURFACES];
    int surface_count, latest;
    long pictures, shown;
    int64_t time; /* of the picture shown last */
    char format[64];
} mock_parser;

typedef struct mock_decoder {
    unsigned width, height, most_width, most_height, surfaces, out_width, out_height;
    int codec;
    mock_parser *parser; /* of the latest picture */
    long finished;       /* the pictures that are decoded */
    void *mapped;
} mock_decoder;

static int has_codec(int codec) { return codec == 4 || codec == 8 || codec == 11; }

MOCK int cuvidGetDecoderCaps(void *caps) {
    int code = enter_in_context("cuvidGetDecoderCaps");
    int codec = AT(int, caps, 0);
    if (code)
        return code;
    memset((char *)caps + 24, 0, 64);
    if (!has_codec(codec) || codec == look_int(&no_codec) || AT(int, caps, 4) != 1 ||
        AT(unsigned, caps, 8))
        return 0;
    AT(unsigned char, caps, 24) = 1;
    AT(unsigned char, caps, 25) = 1;
    AT(unsigned short, caps, 26) = 1;
    AT(unsigned, caps, 28) = AT(unsigned, caps, 32) = 4096;
    AT(unsigned, caps, 36) = 65536;
    AT(unsigned short, caps, 40) = AT(unsigned short, caps, 42) =
        (unsigned short)look_int(&least_side);
    return 0;
}

/* ---- the parser ---- */

MOCK int cuvidDestroyVideoParser(void *parser) {
    mock_parser *p = (mock_parser *)parser;
    for (int i = 0; i < MOCK_SURFACES; i++)
        av_frame_free(&p->surfaces[i].frame);
    avcodec_free_context(&p->codec);
    av_packet_free(&p->packet);
    av_frame_free(&p->frame);
    return destroy("cuvidDestroyVideoParser", parser);
}

MOCK int cuvidCreateVideoParser(void **parser, void *given) {
    int kind = AT(int, given, 0);
    int code = enter_in_context("cuvidCreateVideoParser");
    if (code)
        return code;
    if (!has_codec(kind) || !AT(unsigned, given, 4) || AT(unsigned, given, 12) != 100 ||
        !AT(void *, given, 48) || !AT(void *, given, 56) || !AT(void *, given, 64))
        return 1;
    mock_parser *p = (mock_parser *)calloc(1, sizeof *p);
    memcpy(p->given, given, sizeof p->given);
    p->codec =
        avcodec_alloc_context3(avcodec_find_decoder(kind == 4   ? AV_CODEC_ID_H264
                                                    : kind == 8 ? AV_CODEC_ID_HEVC
                                                                : AV_CODEC_ID_AV1));
    p->packet = av_packet_alloc();
    p->frame = av_frame_alloc();
    p->codec->thread_count = 1;
    p->codec->log_level_offset = 128;
    p->codec->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER;
    if (kind == 4) {
        p->codec->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
        p->codec->has_b_frames = 4;
    } else
        p->codec->err_recognition |= AV_EF_EXPLODE;
    count(1, 0);
    *parser = p;
    if (!avcodec_open2(p->codec, NULL, NULL))
        return 0;
    cuvidDestroyVideoParser(p);
    return 999;
}

/* Call back if the format differs from the last one. Returns 0 if the callback fails. */
static int announce(mock_parser *p) {
    const AVCodecContext *c = p->codec;
    char format[64] = {0};
    int full = c->color_range == AVCOL_RANGE_JPEG;
    AT(int, format, 0) = AT(int, p->given, 0);
    AT(unsigned char, format, 12) = !is_wrong(MOCK_INTERLACED);
    if (is_wrong(MOCK_DEEP) || c->pix_fmt == AV_PIX_FMT_YUV420P10)
        AT(unsigned char, format, 13) = AT(unsigned char, format, 14) = 2;
    AT(unsigned char, format, 15) = is_wrong(MOCK_NEEDS_MORE) ? 40 : MOCK_NEEDED;
    AT(unsigned, format, 16) = (unsigned)c->coded_width;
    AT(unsigned, format, 20) = (unsigned)c->coded_height;
    AT(int, format, 32) = c->width;
    AT(int, format, 36) = c->height;
    AT(int, format, 40) = c->pix_fmt == AV_PIX_FMT_YUV420P ||
                                  c->pix_fmt == AV_PIX_FMT_YUVJ420P ||
                                  c->pix_fmt == AV_PIX_FMT_YUV420P10
                              ? 1
                              : 2;
    if (is_wrong(MOCK_CHANGES_RANGE) && p->pictures >= 2)
        full = !full;
    AT(unsigned char, format, 56) = (unsigned char)(5 | full << 3);
    if (!memcmp(format, p->format, sizeof format) && !is_wrong(MOCK_REPEATS_FORMAT))
        return 1;
    memcpy(p->format, format, sizeof format);
    int surfaces = AT(callback, p->given, 48)(AT(void *, p->given, 40), format);
    if (surfaces > 1)
        p->surface_count = surfaces < MOCK_SURFACES ? surfaces : MOCK_SURFACES;
    return surfaces;
}

/* Choose a surface for a picture, and call back. Returns 0 if that fails. */
static int picture(mock_parser *p, int64_t time, int bad) {
    char parameters[4096] = {0};
    int i = 0;
    while (i < p->surface_count &&
           p->surfaces[(p->latest + 1 + i) % p->surface_count].waits)
        i++;
    if (i == p->surface_count)
        return 0;
    p->latest = (p->latest + 1 + i) % p->surface_count;
    AT(int, parameters, 8) = p->latest;
    AT(void *, parameters, 32) = p;
    int result = AT(callback, p->given, 56)(AT(void *, p->given, 40), parameters);
    mock_surface *s = &p->surfaces[p->latest];
    s->waits = 1;
    s->time = time;
    s->bad = bad;
    s->number = ++p->pictures;
    s->mapped = 0;
    av_frame_free(&s->frame);
    return result;
}

/* Show the picture in a surface. */
static int show(mock_parser *p, int surface) {
    char shown[24] = {0};
    int times = is_wrong(MOCK_REPEATS) ? 2 : 1, result = 1;
    p->surfaces[surface].waits = 0;
    if (++p->shown % 3 == 0 && is_wrong(MOCK_SKIPS))
        return 1;
    AT(int, shown, 0) = surface;
    AT(int, shown, 4) = 1;
    AT(int64_t, shown, 16) =
        is_wrong(MOCK_SHIFTS) && p->shown > 1 ? p->time : p->surfaces[surface].time;
    p->time = p->surfaces[surface].time;
    while (times-- && result)
        result = AT(callback, p->given, 64)(AT(void *, p->given, 40), shown);
    return result;
}

/* Show the frames that FFmpeg returns. */
static int receive(mock_parser *p) {
    int good = 1;
    while (good && !avcodec_receive_frame(p->codec, p->frame)) {
        int i = 0;
        while (i < p->surface_count &&
               !(p->surfaces[i].waits && p->surfaces[i].time == p->frame->pts))
            i++;
        if (i < p->surface_count) {
            mock_surface *s = &p->surfaces[i];
            s->bad = s->bad || p->frame->decode_error_flags ||
                     (p->frame->flags & AV_FRAME_FLAG_CORRUPT);
            s->frame = av_frame_clone(p->frame);
            good = show(p, i);
        }
        av_frame_unref(p->frame);
    }
    return good;
}

static int parse(mock_parser *p, void *packet) {
    unsigned long flags = AT(unsigned long, packet, 0),
                  size = AT(unsigned long, packet, 8);
    int64_t time = AT(int64_t, packet, 24);
    int good = 1;
    if (size) {
        if (!(flags & 2) || av_new_packet(p->packet, (int)size) < 0)
            return 0;
        memcpy(p->packet->data, AT(const void *, packet, 16), size);
        p->packet->pts = p->packet->dts = time;
        int bad = avcodec_send_packet(p->codec, p->packet) < 0;
        av_packet_unref(p->packet);
        good = !p->codec->width || announce(p);
        if (good && !(is_wrong(MOCK_SKIPS_DECODING) && p->pictures == 1))
            good = picture(p, time, bad);
        else if (good)
            p->pictures++;
        good = good && receive(p);
    }
    if (!(flags & 1))
        return good;
    avcodec_send_packet(p->codec, NULL);
    good = good && receive(p);
    for (int i = 0; i < p->surface_count && good; i++)
        if (p->surfaces[i].waits) { /* FFmpeg returned nothing */
            p->surfaces[i].bad = 1;
            good = show(p, i);
        }
    avcodec_flush_buffers(p->codec);
    return good;
}

MOCK int cuvidParseVideoData(void *parser, void *packet) {
    int code = enter_in_context("cuvidParseVideoData");
    if (code)
        return code;
    return parse((mock_parser *)parser, packet) ? 0 : 999;
}

/* ---- the decoder ---- */

static int set_size(mock_decoder *d) {
    return d->width > d->most_width || d->height > d->most_height || d->out_width % 2 ||
           d->out_height % 2 || !d->surfaces || d->surfaces > MOCK_SURFACES;
}

MOCK int cuvidCreateDecoder(void **decoder, void *given) {
    int code = enter_in_context("cuvidCreateDecoder");
    if (code)
        return code;
    mock_decoder *d = (mock_decoder *)calloc(1, sizeof *d);
    d->width = (unsigned)AT(unsigned long, given, 0);
    d->height = (unsigned)AT(unsigned long, given, 8);
    d->surfaces = (unsigned)AT(unsigned long, given, 16);
    d->codec = AT(int, given, 24);
    d->most_width = (unsigned)AT(unsigned long, given, 56);
    d->most_height = (unsigned)AT(unsigned long, given, 64);
    d->out_width = (unsigned)AT(unsigned long, given, 96);
    d->out_height = (unsigned)AT(unsigned long, given, 104);
    if (set_size(d) || AT(int, given, 28) != 1 || AT(int, given, 88) ||
        AT(unsigned long, given, 112) != 1 ||
        AT(short, given, 84) - AT(short, given, 80) != (short)d->out_width) {
        free(d);
        return 1;
    }
    count(1, (long)d->surfaces * d->width * d->height * 3 / 2);
    *decoder = d;
    return 0;
}

MOCK int cuvidDestroyDecoder(void *decoder) {
    mock_decoder *d = (mock_decoder *)decoder;
    count(0, -(long)d->surfaces * d->most_width * d->most_height * 3 / 2);
    free(d->mapped);
    return destroy("cuvidDestroyDecoder", decoder);
}

MOCK int cuvidReconfigureDecoder(void *decoder, void *given) {
    mock_decoder *d = (mock_decoder *)decoder;
    int code = enter_in_context("cuvidReconfigureDecoder");
    if (code)
        return code;
    if (AT(unsigned, given, 16) > d->surfaces || d->mapped)
        return 1;
    d->width = AT(unsigned, given, 0);
    d->height = AT(unsigned, given, 4);
    d->out_width = AT(unsigned, given, 8);
    d->out_height = AT(unsigned, given, 12);
    return set_size(d);
}

MOCK int cuvidDecodePicture(void *decoder, void *parameters) {
    mock_decoder *d = (mock_decoder *)decoder;
    int code = enter_in_context("cuvidDecodePicture");
    if (code)
        return code;
    mock_parser *p = AT(mock_parser *, parameters, 32);
    if (p != d->parser)
        d->finished = p->pictures;
    d->parser = p;
    return AT(int, parameters, 8) >= (int)d->surfaces ||
           AT(int, p->given, 0) != d->codec;
}

MOCK int cuvidGetDecodeStatus(void *decoder, int surface, void *status) {
    mock_decoder *d = (mock_decoder *)decoder;
    int code = enter_in_context("cuvidGetDecodeStatus");
    if (code)
        return code;
    if (is_wrong(MOCK_NO_STATUS) || d->codec == 11)
        return 801;
    const mock_surface *s = &d->parser->surfaces[surface];
    AT(int, status, 0) = s->number > d->finished             ? 1
                         : is_wrong(MOCK_LAZY) && !s->mapped ? 0
                         : s->bad                            ? 9
                                                             : 2;
    return 0;
}

/* Copy a frame as NV12, followed by nothing: a read past the end is found. */
MOCK int cuvidMapVideoFrame64(void *decoder, int surface, unsigned long long *address,
    unsigned *pitch, void *mapping) {
    mock_decoder *d = (mock_decoder *)decoder;
    int code = enter_in_context("cuvidMapVideoFrame");
    if (code)
        return code;
    mock_surface *s = &d->parser->surfaces[surface];
    if (d->mapped || !AT(void *, mapping, 56) || !AT(int, mapping, 0))
        return 1;
    if (s->frame && (s->frame->width != (int)d->out_width ||
                        s->frame->height != (int)d->out_height))
        return 1;
    s->mapped = 1;
    if (d->finished < s->number)
        d->finished = s->number;
    *pitch = (d->out_width + 255) / 256 * 256;
    unsigned char *to = (unsigned char *)malloc((size_t)*pitch * d->out_height * 3 / 2);
    memset(to, 0xA5, (size_t)*pitch * d->out_height * 3 / 2);
    for (unsigned y = 0; y < d->out_height && s->frame; y++)
        memcpy(to + y * (size_t)*pitch,
            s->frame->data[0] + (ptrdiff_t)y * s->frame->linesize[0], d->out_width);
    unsigned char *chroma = to + (size_t)*pitch * d->out_height;
    for (unsigned y = 0; y < d->out_height / 2 && s->frame; y++)
        for (unsigned x = 0; x < d->out_width; x++)
            chroma[y * (size_t)*pitch + x] =
                s->frame->data[1 + x % 2][(ptrdiff_t)y * s->frame->linesize[1] + x / 2];
    d->mapped = to;
    count(1, 0);
    *address = (unsigned long long)(uintptr_t)to;
    return 0;
}

MOCK int cuvidUnmapVideoFrame64(void *decoder, unsigned long long address) {
    mock_decoder *d = (mock_decoder *)decoder;
    int code = enter_in_context("cuvidUnmapVideoFrame");
    if ((uintptr_t)d->mapped != address)
        return 1;
    free(d->mapped);
    d->mapped = NULL;
    count(-1, 0);
    return code;
}
