/*
 * mp4.c - video for bags.h, on FFmpeg's libavformat, libavcodec, libswscale and
 * libavutil, 4.4 to 7 (Debian: libavformat-dev libavcodec-dev libswscale-dev).
 *
 * Types mp4, mp4(FPS), mp4(FPS,CODEC), webm and the same arguments. A value is
 * uint8, T x H x W x 3, RGB. formats.h says the rest; how it is done:
 *
 * Writing. RGB becomes yuv420p, which the encoder compresses and the muxer
 * writes into a bags_buffer: MP4 with its index behind the frames, or WebM.
 * Settings are those with which the Python package bags 0.5 called PyAV: mpeg4,
 * 15 frames a second, 1,024,000 bits a second; the bytes are the same. 4:2:0
 * cannot express odd sizes in h264 and hevc: those are stored as yuv444p, so
 * that every other program sees the true size as well.
 *
 * Reading. The demuxer goes through the blob once and leaves an index of the
 * packets: where each lies in the blob, whether it is a keyframe, and the rank
 * of its picture in the order of showing. It is closed again; the decoder gets
 * them from the blob, with the rank as time stamp. So a frame is recognised
 * whatever B-frames, edit lists and variable rates do to the time stamps, and
 * seeking is a step in the index.
 *
 * Refused: other containers, other codecs than h264, hevc, mpeg4, vp8, vp9 and
 * av1, pictures that change their size, packets compressed by the container,
 * tracks that lie in other files.
 *
 * FFmpeg prints what displeases it by a logger that belongs to the program, so
 * it is not touched: our own contexts lower the level of what they say instead.
 * What is left are a few helpers of FFmpeg that speak for no context.
 */
#include "formats.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/buffer.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#ifdef __cplusplus
}
#endif

#if LIBAVFORMAT_VERSION_MAJOR >= 59
typedef const AVInputFormat mp4_demuxer;
#else
typedef AVInputFormat mp4_demuxer;
#endif
#if LIBAVFORMAT_VERSION_MAJOR >= 61
typedef const uint8_t mp4_written;
#else
typedef uint8_t mp4_written;
#endif

#if LIBAVUTIL_VERSION_MAJOR >= 57
typedef size_t mp4_pool_size;
#else
typedef int mp4_pool_size;
#endif

#define MP4_MAX_PIXELS ((uint64_t)1 << 26)
#define MP4_MAX_SIZE ((uint64_t)1 << 32)
#define MP4_BIT_RATE 1024000
#define MP4_BIT_RATE_TOLERANCE 128000
#define MP4_IO_SIZE 32768
#define MP4_ALIGN 64
#define MP4_HEADER 64  /* of a decoded value: its shape, then the pixels */
#define MP4_HUSHED 128 /* added to a level; higher bits would mean colours */
#define MP4_UNSEEN UINT32_MAX /* the rank of a packet that shows nothing */

/* ------------------------------------------------------------------------
 * Errors and silence
 * --------------------------------------------------------------------- */

/* FFmpeg said no. Out of memory is itself, everything else is `code`. */
static bags_code mp4_fail(
    bags_error *err, bags_code code, int result, const char *what) {
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (result == AVERROR(ENOMEM))
        return bags_fail(err, BAGS_ERROR_MEMORY, "%s: out of memory", what);
    av_strerror(result, text, sizeof text);
    return bags_fail(err, code, "%s: %s", what, text);
}

static bags_code mp4_fail_memory(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_MEMORY, "video: out of memory");
}

/*
 * Make a format context quiet. Codec contexts have a member that is added to
 * the level of every message; a format context gets one by a class of its own,
 * in a member that only avformat_find_stream_info uses, which is not called
 * here. `quiet` must live as long as the context.
 */
static void mp4_hush(AVFormatContext *format, AVClass *quiet) {
    *quiet = *format->av_class;
    /* The library must not look for members that our copy does not have. */
    quiet->version = LIBAVUTIL_VERSION_INT;
    quiet->log_level_offset_offset =
        (int)offsetof(AVFormatContext, fps_probe_size);
    format->fps_probe_size = MP4_HUSHED;
    format->av_class = quiet;
}

static void mp4_hush_codec(AVCodecContext *codec) {
    codec->log_level_offset = MP4_HUSHED;
}

void bags_mp4_silence(void) { av_log_set_level(AV_LOG_QUIET); }

/* A video in one file must not make us open another. */
static int mp4_refuse_open(AVFormatContext *format, AVIOContext **io,
    const char *url, int flags, AVDictionary **options) {
    (void)format;
    (void)io;
    (void)url;
    (void)flags;
    (void)options;
    return AVERROR(EPERM);
}

/* ------------------------------------------------------------------------
 * Arguments
 * --------------------------------------------------------------------- */

/* Up to `most` digits from text[*at]. */
static unsigned mp4_digits(
    bags_view text, size_t *at, unsigned most, uint64_t *number) {
    unsigned count = 0;
    for (; *at < text.size && count < most; (*at)++, count++) {
        if (text.data[*at] < '0' || text.data[*at] > '9')
            break;
        *number = *number * 10 + (uint64_t)(text.data[*at] - '0');
    }
    return count;
}

/*
 * "29.97" is what people call 30000/1001: a decimal that is the rounded rate of
 * television means that rate. All others are exact.
 */
static bool mp4_parse_rate(bags_view text, AVRational *out) {
    static const unsigned television[] = {24, 30, 48, 60, 120};
    uint64_t number = 0;
    size_t at = 0;
    if (!mp4_digits(text, &at, 5, &number))
        return false;
    uint64_t scale = 1;
    if (at < text.size && text.data[at] == '.') {
        at++;
        unsigned places = mp4_digits(text, &at, 4, &number);
        if (!places)
            return false;
        for (; places > 0; places--)
            scale *= 10;
    }
    if (at != text.size || number == 0)
        return false;
    for (size_t i = 0; i < sizeof television / sizeof *television; i++) {
        uint64_t rate = television[i] * UINT64_C(1000);
        if (scale >= 100 && (rate * scale + 500) / 1001 == number) {
            *out = av_make_q((int)rate, 1001);
            return true;
        }
    }
    av_reduce(&out->num, &out->den, (int64_t)number, (int64_t)scale, INT_MAX);
    return true;
}

/* What a type's codec remembers. */
typedef struct mp4_state {
    bags_allocator memory;
    bags_mp4_options options;
    char codec[16]; /* options.codec points here */
} mp4_state;

static bags_code mp4_parse_arguments(
    const bags_type *type, mp4_state *state, bags_error *err) {
    bags_view rate = bags_type_argument(type, 0);
    bags_view codec = bags_type_argument(type, 1);
    AVRational fps;
    if (type->count > 2)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "video types have two arguments: mp4(FPS,CODEC)");
    if (type->count > 0) {
        if (!mp4_parse_rate(rate, &fps))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "\"%.*s\" is no number of frames a second: 15, 12.5, 29.97",
                (int)rate.size, (const char *)rate.data);
        state->options.fps_num = (uint32_t)fps.num;
        state->options.fps_den = (uint32_t)fps.den;
    }
    if (type->count > 1) {
        if (codec.size == 0 || codec.size >= sizeof state->codec)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "\"%.*s\" is no video codec: h264, hevc, mpeg4, vp9, av1",
                (int)codec.size, (const char *)codec.data);
        memcpy(state->codec, codec.data, codec.size);
        state->options.codec = state->codec;
    }
    return BAGS_OK;
}

static bags_code mp4_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    mp4_state *made =
        (mp4_state *)allocator->resize(allocator->user, NULL, 0, sizeof *made);
    if (!made)
        return mp4_fail_memory(err);
    memset(made, 0, sizeof *made);
    made->memory = *allocator;
    if (codec->user)
        made->options = *(const bags_mp4_options *)codec->user;
    if (type->name.size == 4 && memcmp(type->name.data, "webm", 4) == 0)
        made->options.webm = true;
    bags_code code = mp4_parse_arguments(type, made, err);
    if (code) {
        made->memory.resize(made->memory.user, made, sizeof *made, 0);
        return code;
    }
    *state = made;
    return BAGS_OK;
}

static void mp4_close(void *state) {
    mp4_state *made = (mp4_state *)state;
    if (made)
        made->memory.resize(made->memory.user, made, sizeof *made, 0);
}

static int mp4_threads(const bags_mp4_options *options) {
    if (options->threads == 0)
        return 1;
    return options->threads < 64 ? (int)options->threads : 64;
}

/* ------------------------------------------------------------------------
 * Codecs
 * --------------------------------------------------------------------- */

typedef struct mp4_codec {
    const char *name;
    enum AVCodecID id;
    bool even;               /* 4:2:0 in it has even sizes only */
    const char *encoders[3]; /* the best first */
} mp4_codec;

/* vp8 is read, but not written: it is what WebM had before vp9. libsvtav1 is
 * the last choice since its older versions print. */
static const mp4_codec mp4_codecs[] = {
    {"mpeg4", AV_CODEC_ID_MPEG4, false, {"mpeg4", NULL, NULL}},
    {"h264", AV_CODEC_ID_H264, true, {"libx264", "libopenh264", NULL}},
    {"hevc", AV_CODEC_ID_HEVC, true, {"libx265", NULL, NULL}},
    {"vp9", AV_CODEC_ID_VP9, false, {"libvpx-vp9", NULL, NULL}},
    {"av1", AV_CODEC_ID_AV1, false, {"libaom-av1", "librav1e", "libsvtav1"}},
    {"vp8", AV_CODEC_ID_VP8, false, {NULL, NULL, NULL}},
};
#define MP4_CODECS (sizeof mp4_codecs / sizeof *mp4_codecs)

static const AVCodec *mp4_encoder(const mp4_codec *codec) {
    for (size_t i = 0; i < 3 && codec->encoders[i]; i++) {
        const AVCodec *found = avcodec_find_encoder_by_name(codec->encoders[i]);
        if (found)
            return found;
    }
    return NULL;
}

static bool mp4_container_takes(bool webm, const mp4_codec *codec) {
    return !webm || codec->id == AV_CODEC_ID_VP9 ||
           codec->id == AV_CODEC_ID_AV1;
}

static const mp4_codec *mp4_find_codec(enum AVCodecID id) {
    for (size_t i = 0; i < MP4_CODECS; i++)
        if (mp4_codecs[i].id == id)
            return &mp4_codecs[i];
    return NULL;
}

/* The encoder that the options ask for, or an error that names the others. */
static const AVCodec *mp4_choose_encoder(const bags_mp4_options *options,
    const mp4_codec **chosen, bags_error *err) {
    const char *name = options->codec  ? options->codec
                       : options->webm ? "vp9"
                                       : "mpeg4";
    char have[64] = "";
    for (size_t i = 0; i < MP4_CODECS; i++) {
        const AVCodec *encoder = mp4_encoder(&mp4_codecs[i]);
        if (!encoder || !mp4_container_takes(options->webm, &mp4_codecs[i]))
            continue;
        if (strcmp(mp4_codecs[i].name, name) == 0) {
            *chosen = &mp4_codecs[i];
            return encoder;
        }
        if (have[0])
            strcat(have, ", ");
        strcat(have, mp4_codecs[i].name);
    }
    bags_fail(err, BAGS_ERROR_TYPE,
        "this build of FFmpeg has no encoder for \"%s\" in %s; it has: %s",
        name, options->webm ? "webm" : "mp4", have[0] ? have : "none");
    return NULL;
}

/* ------------------------------------------------------------------------
 * A blob as a file
 * --------------------------------------------------------------------- */

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

/* Where a seek goes, or -1. Files from strangers seek anywhere. */
static int64_t mp4_seek_target(int64_t offset, int64_t base) {
    if (offset < -base || offset > INT64_MAX - base)
        return -1;
    return base + offset;
}

/* The size is not told: where a packet should be larger than the rest of the
 * file, libavformat would print so, instead of only failing. */
static int64_t mp4_seek_input(void *user, int64_t offset, int whence) {
    mp4_input *input = (mp4_input *)user;
    int64_t base =
        (whence & ~AVSEEK_FORCE) == SEEK_CUR ? (int64_t)input->at : 0;
    if ((whence & AVSEEK_SIZE) || (whence & ~AVSEEK_FORCE) == SEEK_END)
        return AVERROR(ENOSYS);
    int64_t target = mp4_seek_target(offset, base);
    if (target < 0 || (uint64_t)target > input->blob.size)
        return AVERROR(EINVAL);
    input->at = (size_t)target;
    return target;
}

static void mp4_free_io(AVIOContext **io) {
    if (*io)
        av_freep(&(*io)->buffer);
    avio_context_free(io);
}

static AVIOContext *mp4_make_io(void *user, bool write,
    int (*read)(void *, uint8_t *, int),
    int (*write_to)(void *, mp4_written *, int),
    int64_t (*seek)(void *, int64_t, int)) {
    unsigned char *memory = (unsigned char *)av_malloc(MP4_IO_SIZE);
    if (!memory)
        return NULL;
    AVIOContext *io = avio_alloc_context(
        memory, MP4_IO_SIZE, write, user, read, write_to, seek);
    if (!io)
        av_free(memory);
    return io;
}

/* ------------------------------------------------------------------------
 * Claims of MP4 headers
 *
 * libavformat takes memory for as many samples as a header claims. Some claims
 * cost a hostile file a few bytes: tables of a million entries that are not
 * there, a million samples of one size, a fragment of
 * a million samples, an edit list that shows everything a million times. Every
 * sample has a byte at least, so that the blob's size bounds what is honest.
 * --------------------------------------------------------------------- */

static uint64_t mp4_big(const unsigned char *data, size_t size) {
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++)
        number = number << 8 | data[i];
    return number;
}

typedef struct mp4_claims {
    uint64_t samples; /* of all tables and fragments */
    uint64_t edits;
    uint64_t chunks;
    uint64_t chunk_samples; /* of the largest chunk */
    uint64_t budget;
    const char *table; /* one that claims more entries than fit */
    uint64_t entries;
} mp4_claims;

static bool mp4_is(const unsigned char *data, const char *name) {
    return memcmp(data, name, 4) == 0;
}

static uint64_t mp4_more(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Samples per chunk: triples of first chunk, samples, description. */
static void mp4_claim_chunks(
    mp4_claims *claims, const unsigned char *data, size_t size) {
    uint64_t count = mp4_big(data + 4, 4);
    for (size_t at = 8; count > 0 && at + 12 <= size; at += 12, count--)
        claims->chunk_samples =
            mp4_more(claims->chunk_samples, mp4_big(data + at + 4, 4));
}

/* Tables with a count: where it stands behind the name, and the least size of
 * an entry. */
static const struct {
    char name[5];
    unsigned char at, entry;
} mp4_tables[] = {
    {"stts", 8, 8},
    {"stss", 8, 4},
    {"stps", 8, 4},
    {"stsc", 8, 12},
    {"stco", 8, 4},
    {"co64", 8, 8},
    {"ctts", 8, 8},
    {"elst", 8, 12},
    {"dref", 8, 12},
    {"sbgp", 12, 8},
};

static void mp4_claim_table(
    mp4_claims *claims, const unsigned char *data, size_t size) {
    for (size_t i = 0; i < sizeof mp4_tables / sizeof *mp4_tables; i++) {
        if (!mp4_is(data, mp4_tables[i].name) || size < mp4_tables[i].at + 4u)
            continue;
        size_t left = size - mp4_tables[i].at - 4;
        uint64_t count = mp4_big(data + mp4_tables[i].at, 4);
        if (count <= left / mp4_tables[i].entry)
            continue;
        claims->table = mp4_tables[i].name;
        claims->entries = count;
    }
}

/* What the box whose name stands at `data` claims; `size` bytes are there. */
static void mp4_claim(
    mp4_claims *claims, const unsigned char *data, size_t size) {
    const unsigned char *body = data + 4;
    mp4_claim_table(claims, data, size);
    if (size < 16)
        return;
    if (mp4_is(data, "stsz") || mp4_is(data, "stz2"))
        claims->samples += mp4_big(body + 8, 4);
    else if (mp4_is(data, "trun"))
        claims->samples += mp4_big(body + 4, 4);
    else if (mp4_is(data, "elst"))
        claims->edits = mp4_more(claims->edits, mp4_big(body + 4, 4));
    else if (mp4_is(data, "stco") || mp4_is(data, "co64"))
        claims->chunks = mp4_more(claims->chunks, mp4_big(body + 4, 4));
    else if (mp4_is(data, "stsc"))
        mp4_claim_chunks(claims, body, size - 4);
    else if (mp4_is(data, "cmov"))
        claims->samples = UINT64_MAX / 2; /* a header in a zip: a bomb */
}

/* libavformat looks for boxes at places that the standard does not know. So do
 * we: at every byte that is no picture. */
static void mp4_claim_all(
    mp4_claims *claims, const unsigned char *data, size_t size) {
    for (size_t at = 0; at + 4 <= size; at++)
        if (data[at] >= 'b' && data[at] <= 't')
            mp4_claim(claims, data + at, size - at);
}

static bags_code mp4_judge(const mp4_claims *claims, bags_error *err) {
    uint64_t most = claims->budget;
    if (claims->table)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "the MP4 header's table %s claims %llu entries in a file of %llu "
            "bytes",
            claims->table, (unsigned long long)claims->entries,
            (unsigned long long)most);
    if (claims->samples > most)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "the MP4 header claims %llu samples in a file of %llu bytes",
            (unsigned long long)claims->samples, (unsigned long long)most);
    if (claims->edits > 1 && claims->edits * claims->samples > most)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "the MP4 header claims %llu edits of %llu samples in a file of "
            "%llu bytes",
            (unsigned long long)claims->edits,
            (unsigned long long)claims->samples, (unsigned long long)most);
    if (claims->chunks > 0 &&
        claims->chunk_samples / 1024 > most / claims->chunks)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "the MP4 header claims %llu chunks of %llu samples in a file of "
            "%llu bytes",
            (unsigned long long)claims->chunks,
            (unsigned long long)claims->chunk_samples,
            (unsigned long long)most);
    return BAGS_OK;
}

/* Walk the outermost boxes; all but `mdat`, the pictures, may make claims. */
static bags_code mp4_check_boxes(bags_view blob, bags_error *err) {
    mp4_claims claims;
    memset(&claims, 0, sizeof claims);
    claims.budget = blob.size;
    for (size_t at = 0; blob.size - at >= 8;) {
        const unsigned char *box = blob.data + at;
        size_t left = blob.size - at;
        uint64_t size = mp4_big(box, 4);
        size_t header = 8;
        if (size == 1 && left >= 16) {
            header = 16;
            size = mp4_big(box + 8, 8);
        }
        if (size == 0)
            size = left;
        if (size < header || size > left)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "not an MP4 file, or cut off: the box at byte %llu has %llu "
                "bytes, %llu are there",
                (unsigned long long)at, (unsigned long long)size,
                (unsigned long long)left);
        if (!mp4_is(box + 4, "mdat"))
            mp4_claim_all(&claims, box, (size_t)size);
        at += (size_t)size;
    }
    return mp4_judge(&claims, err);
}

/* ------------------------------------------------------------------------
 * Demuxer
 * --------------------------------------------------------------------- */

typedef struct mp4_file {
    AVFormatContext *format;
    AVIOContext *io;
    AVClass quiet;
    mp4_input input;
    AVStream *stream; /* the first track that is a video */
    const mp4_codec *codec; /* of the stream */
} mp4_file;

static void mp4_file_close(mp4_file *file) {
    avformat_close_input(&file->format);
    mp4_free_io(&file->io);
}

static bool mp4_is_matroska(bags_view blob) {
    static const unsigned char magic[4] = {0x1a, 0x45, 0xdf, 0xa3};
    return blob.size >= 4 && memcmp(blob.data, magic, 4) == 0;
}

static bags_code mp4_find_stream(mp4_file *file, bags_error *err) {
    for (unsigned i = 0; i < file->format->nb_streams; i++) {
        AVStream *stream = file->format->streams[i];
        bool video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                     !(stream->disposition & AV_DISPOSITION_ATTACHED_PIC);
        if (video && !file->stream)
            file->stream = stream;
        else
            stream->discard = AVDISCARD_ALL;
    }
    if (!file->stream)
        return bags_fail(err, BAGS_ERROR_TYPE, "there is no video in it");
    enum AVCodecID id = file->stream->codecpar->codec_id;
    file->codec = mp4_find_codec(id);
    if (!file->codec)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "video in %s, which is not read: only h264, hevc, mpeg4, vp8, vp9 "
            "and av1",
            avcodec_get_name(id));
    return BAGS_OK;
}

/* Packets as they are stored: parsers would print, and guess what is not
 * there. */
static bags_code mp4_file_open(
    mp4_file *file, bags_view blob, bags_error *err) {
    bool matroska = mp4_is_matroska(blob);
    mp4_demuxer *demuxer = av_find_input_format(matroska ? "matroska" : "mov");
    if (!demuxer)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "this build of FFmpeg does not read %s", matroska ? "webm" : "mp4");
    if (!matroska) {
        bags_code code = mp4_check_boxes(blob, err);
        if (code)
            return code;
    }
    file->input.blob = blob;
    file->io = mp4_make_io(&file->input, false, mp4_read, NULL, mp4_seek_input);
    file->format = avformat_alloc_context();
    if (!file->io || !file->format)
        return mp4_fail_memory(err);
    mp4_hush(file->format, &file->quiet);
    file->format->pb = file->io;
    file->format->io_open = mp4_refuse_open;
    file->format->flags |=
        AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_NOPARSE | AVFMT_FLAG_NOFILLIN;
    int result = avformat_open_input(&file->format, "", demuxer, NULL);
    if (result < 0)
        return mp4_fail(err, BAGS_ERROR_CORRUPT, result,
            matroska ? "not a WebM file" : "not an MP4 file");
    return mp4_find_stream(file, err);
}

/* ------------------------------------------------------------------------
 * Index
 * --------------------------------------------------------------------- */

typedef struct mp4_packet {
    uint64_t offset; /* in the blob */
    uint32_t size;
    uint32_t rank;  /* which frame it shows, or MP4_UNSEEN */
    uint32_t stamp; /* the last call that got the frame */
    bool key;
    int64_t pts;
} mp4_packet;

struct bags_mp4_reader {
    bags_mp4_info info;
    bags_mp4_options options;
    bags_view blob;
    AVCodecParameters *parameters;

    mp4_packet *packets; /* in the order of decoding */
    uint32_t length;
    uint32_t capacity;
    uint32_t first;  /* the first keyframe */
    uint32_t *order; /* the packet of each frame */

    /* The decoder; opened by the first read. */
    AVCodecContext *codec;
    AVPacket *packet;
    AVFrame *frame;
    AVFrame *rgb; /* a picture with padded lines */
    struct SwsContext *scaler;
    enum AVPixelFormat scaler_format;
    int scaler_space;
    bool scaler_full;
    uint32_t next;   /* the packet to feed */
    uint64_t shown;  /* no frame from this one on came out yet */
    uint32_t stamp;  /* of this call */
    bool drained;    /* fed to the end */
    bool positioned; /* `next` and `shown` are right */
};

void bags_mp4_reader_close(bags_mp4_reader *reader) {
    if (!reader)
        return;
    avcodec_free_context(&reader->codec);
    avcodec_parameters_free(&reader->parameters);
    av_packet_free(&reader->packet);
    av_frame_free(&reader->frame);
    av_frame_free(&reader->rgb);
    sws_freeContext(reader->scaler);
    av_free(reader->packets);
    av_free(reader->order);
    av_free(reader);
}

/*
 * Several vp9 pictures in a packet: behind them stand a byte, their sizes, and
 * the byte again. 0 if the packet is a single one, 1 if it is a superframe, -1
 * if its sizes are wrong, which FFmpeg would print.
 */
static int mp4_vp9_superframe(const unsigned char *data, size_t size) {
    unsigned mark = data[size - 1];
    size_t count = (mark & 7) + 1, bytes = (mark >> 3 & 3) + 1;
    size_t index = 2 + count * bytes;
    if ((mark & 0xe0) != 0xc0 || size < index || data[size - index] != mark)
        return 0;
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t part = 0;
        for (size_t k = bytes; k-- > 0;)
            part = part << 8 | data[size - index + 1 + i * bytes + k];
        total += part;
        if (part == 0 || total > size - index)
            return -1;
    }
    return 1;
}

/* A vp9 packet that only prepares later pictures shows nothing. Encoders hide
 * those in a superframe, with one that is shown. */
static bool mp4_vp9_shows(const unsigned char *data, size_t size) {
    if (mp4_vp9_superframe(data, size) != 0)
        return true;
    unsigned head = data[0];
    bool profile3 = (head & 0x30) == 0x30;
    unsigned existing = profile3 ? head >> 2 & 1 : head >> 3 & 1;
    unsigned show = profile3 ? head & 1 : head >> 1 & 1;
    return existing || show;
}

/* Whether a picture comes out for a packet. */
static bool mp4_shows(enum AVCodecID id, const AVPacket *packet) {
    if (packet->flags & AV_PKT_FLAG_DISCARD)
        return false;
    if (id == AV_CODEC_ID_VP8)
        return packet->data[0] >> 4 & 1;
    if (id == AV_CODEC_ID_VP9)
        return mp4_vp9_shows(packet->data, (size_t)packet->size);
    return true;
}

/* Where a packet's bytes lie in the blob: at its position, or behind a few
 * bytes of header. */
static bool mp4_locate(
    bags_view blob, const AVPacket *packet, uint64_t *offset) {
    size_t size = (size_t)packet->size;
    if (packet->pos < 0 || (uint64_t)packet->pos > blob.size)
        return false;
    size_t at = (size_t)packet->pos;
    for (size_t tries = 0; tries < 64; tries++, at++) {
        if (size > blob.size - at)
            return false;
        if (memcmp(blob.data + at, packet->data, size) == 0) {
            *offset = at;
            return true;
        }
    }
    return false;
}

static bags_code mp4_index_grow(bags_mp4_reader *reader, bags_error *err) {
    if (reader->length < reader->capacity)
        return BAGS_OK;
    uint32_t more = reader->capacity ? reader->capacity / 2 * 3 : 64;
    if (more > (uint32_t)INT32_MAX / sizeof(mp4_packet))
        return bags_fail(err, BAGS_ERROR_LIMIT, "more than %u packets",
            (unsigned)reader->length);
    void *grown = av_realloc_array(reader->packets, more, sizeof(mp4_packet));
    if (!grown)
        return mp4_fail_memory(err);
    reader->packets = (mp4_packet *)grown;
    reader->capacity = more;
    return BAGS_OK;
}

static bags_code mp4_index_add(
    bags_mp4_reader *reader, const AVPacket *packet, bags_error *err) {
    unsigned n = (unsigned)reader->length;
    if (packet->flags & AV_PKT_FLAG_CORRUPT || packet->size <= 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "packet %u of the video is cut off or empty", n);
    if (av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "packet %u of the video changes the codec's settings", n);
    bags_code code = mp4_index_grow(reader, err);
    if (code)
        return code;
    mp4_packet *made = &reader->packets[n];
    memset(made, 0, sizeof *made);
    if (!mp4_locate(reader->blob, packet, &made->offset))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "packet %u of the video does not stand in the file as it is: "
            "encrypted or compressed by the container",
            n);
    made->size = (uint32_t)packet->size;
    made->key = packet->flags & AV_PKT_FLAG_KEY;
    made->rank =
        mp4_shows(reader->parameters->codec_id, packet) ? 0 : MP4_UNSEEN;
    made->pts = packet->pts != AV_NOPTS_VALUE   ? packet->pts
                : packet->dts != AV_NOPTS_VALUE ? packet->dts
                                                : (int64_t)n;
    reader->length++;
    return BAGS_OK;
}

/*
 * The size that the bitstream says, which is that of the pictures; where FFmpeg
 * has no parser for it, that of the container.
 */
static void mp4_parse_size(bags_mp4_reader *reader, const AVPacket *packet) {
    AVCodecParserContext *parser =
        av_parser_init((int)reader->parameters->codec_id);
    AVCodecContext *codec = avcodec_alloc_context3(NULL);
    int width = reader->parameters->width, height = reader->parameters->height;
    if (parser && codec &&
        avcodec_parameters_to_context(codec, reader->parameters) >= 0) {
        uint8_t *out = NULL;
        int size = 0;
        mp4_hush_codec(codec);
        parser->flags |= PARSER_FLAG_COMPLETE_FRAMES;
        av_parser_parse2(parser, codec, &out, &size, packet->data, packet->size,
            AV_NOPTS_VALUE, AV_NOPTS_VALUE, -1);
        bool own = parser->width > 0 && parser->height > 0;
        width = own ? parser->width : codec->width;
        height = own ? parser->height : codec->height;
    }
    reader->info.width = width > 0 ? (uint64_t)width : 0;
    reader->info.height = height > 0 ? (uint64_t)height : 0;
    avcodec_free_context(&codec);
    av_parser_close(parser);
}

static bags_code mp4_check_size(
    const bags_mp4_reader *reader, bags_error *err) {
    uint64_t most = reader->options.max_pixels;
    uint64_t height = reader->info.height, width = reader->info.width;
    if (height == 0 || width == 0)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "the video does not say its size");
    /* Both are below 2^31. */
    if (height * width > most)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "pictures of %llu x %llu (H x W) are above the limit of %llu "
            "pixels",
            (unsigned long long)height, (unsigned long long)width,
            (unsigned long long)most);
    return BAGS_OK;
}

/* Read all packets of the video. */
static bags_code mp4_index_read(
    bags_mp4_reader *reader, mp4_file *file, bags_error *err) {
    bags_code code = BAGS_OK;
    int result = 0;
    while (
        !code && (result = av_read_frame(file->format, reader->packet)) >= 0) {
        if (reader->packet->stream_index == file->stream->index) {
            code = mp4_index_add(reader, reader->packet, err);
            bool key = !code && reader->packets[reader->length - 1].key;
            if (key && !reader->info.width) {
                reader->first = reader->length - 1;
                mp4_parse_size(reader, reader->packet);
                code = mp4_check_size(reader, err);
            }
        }
        av_packet_unref(reader->packet);
    }
    if (!code && result != AVERROR_EOF)
        return mp4_fail(
            err, BAGS_ERROR_CORRUPT, result, "the video is cut off");
    return code;
}

typedef struct mp4_shown {
    int64_t pts;
    uint32_t packet;
} mp4_shown;

static int mp4_compare(const void *a, const void *b) {
    const mp4_shown *x = (const mp4_shown *)a, *y = (const mp4_shown *)b;
    if (x->pts != y->pts)
        return x->pts < y->pts ? -1 : 1;
    return x->packet < y->packet ? -1 : x->packet > y->packet;
}

/*
 * Give every packet the rank of its picture. What comes before the first
 * keyframe, in the order of decoding or of showing, cannot be decoded.
 */
static bags_code mp4_index_sort(bags_mp4_reader *reader, bags_error *err) {
    uint32_t count = 0;
    bags_code code = BAGS_ERROR_MEMORY;
    int64_t start = reader->packets[reader->first].pts;
    mp4_shown *shown =
        (mp4_shown *)av_malloc_array(reader->length, sizeof *shown);
    reader->order =
        (uint32_t *)av_malloc_array(reader->length, sizeof *reader->order);
    if (!shown || !reader->order) {
        mp4_fail_memory(err);
        goto done;
    }
    for (uint32_t i = 0; i < reader->length; i++) {
        mp4_packet *packet = &reader->packets[i];
        if (packet->rank == MP4_UNSEEN)
            continue;
        packet->rank = MP4_UNSEEN;
        if (i < reader->first || packet->pts < start)
            continue;
        shown[count].pts = packet->pts;
        shown[count++].packet = i;
    }
    qsort(shown, count, sizeof *shown, mp4_compare);
    for (uint32_t i = 0; i < count; i++) {
        reader->order[i] = shown[i].packet;
        reader->packets[shown[i].packet].rank = i;
    }
    reader->info.frames = count;
    code = BAGS_OK;
done:
    av_free(shown);
    return code;
}

/* The average rate: the container's, or that of the time stamps. */
static void mp4_rate(bags_mp4_reader *reader, const AVStream *stream) {
    AVRational rate = stream->avg_frame_rate;
    uint64_t frames = reader->info.frames;
    if ((rate.num <= 0 || rate.den <= 0) && frames > 1) {
        int64_t first = reader->packets[reader->order[0]].pts;
        int64_t last = reader->packets[reader->order[frames - 1]].pts;
        AVRational base = stream->time_base;
        int64_t span = 0, steps = 0;
        if (last > first && last < INT64_MAX / 4 && first > INT64_MIN / 4 &&
            base.num > 0 && base.den > 0) {
            span = av_rescale(last - first, base.num, 1);
            steps = av_rescale((int64_t)frames - 1, base.den, 1);
        }
        if (span > 0 && steps > 0)
            av_reduce(&rate.num, &rate.den, steps, span, INT_MAX);
    }
    if (rate.num > 0 && rate.den > 0) {
        reader->info.fps_num = (uint32_t)rate.num;
        reader->info.fps_den = (uint32_t)rate.den;
    }
}

static bags_code mp4_index(
    bags_mp4_reader *reader, mp4_file *file, bags_error *err) {
    const AVCodecParameters *parameters = file->stream->codecpar;
    strcpy(reader->info.codec, file->codec->name);
    reader->parameters = avcodec_parameters_alloc();
    reader->packet = av_packet_alloc();
    if (!reader->parameters || !reader->packet ||
        avcodec_parameters_copy(reader->parameters, parameters) < 0)
        return mp4_fail_memory(err);
    bags_code code = mp4_index_read(reader, file, err);
    if (code)
        return code;
    if (reader->info.width == 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "the video has no keyframe in its %u packets",
            (unsigned)reader->length);
    code = mp4_index_sort(reader, err);
    if (!code)
        mp4_rate(reader, file->stream);
    return code;
}

static bags_code mp4_reader_make(bags_view blob,
    const bags_mp4_options *options, bags_mp4_reader **out, bags_error *err) {
    mp4_file file;
    memset(&file, 0, sizeof file);
    bags_mp4_reader *reader = (bags_mp4_reader *)av_mallocz(sizeof *reader);
    if (!reader)
        return mp4_fail_memory(err);
    reader->blob = blob;
    if (options)
        reader->options = *options;
    if (!reader->options.max_pixels)
        reader->options.max_pixels = MP4_MAX_PIXELS;
    if (!reader->options.max_size)
        reader->options.max_size = MP4_MAX_SIZE;
    bags_code code = BAGS_OK;
    if (blob.size > 0)
        code = mp4_file_open(&file, blob, err);
    if (blob.size > 0 && !code)
        code = mp4_index(reader, &file, err);
    mp4_file_close(&file);
    if (code)
        bags_mp4_reader_close(reader);
    else
        *out = reader;
    return code;
}

bags_mp4_reader *bags_mp4_reader_open(
    bags_view blob, const bags_mp4_options *options, bags_error *err) {
    bags_mp4_reader *reader = NULL;
    mp4_reader_make(blob, options, &reader, err);
    return reader;
}

const bags_mp4_info *bags_mp4_reader_info(const bags_mp4_reader *reader) {
    return &reader->info;
}

bags_code bags_mp4_probe(bags_view blob, const bags_mp4_options *options,
    bags_mp4_info *info, bags_error *err) {
    bags_mp4_reader *reader = NULL;
    bags_code code = mp4_reader_make(blob, options, &reader, err);
    if (code)
        return code;
    *info = reader->info;
    bags_mp4_reader_close(reader);
    return BAGS_OK;
}

/* ------------------------------------------------------------------------
 * Decoder
 * --------------------------------------------------------------------- */

/*
 * How many pictures wait, at most, for one that is decoded later and shown
 * earlier. H.264 need not say; a decoder that guesses too low drops pictures.
 */
static int mp4_reorder(const bags_mp4_reader *reader) {
    int most = 0;
    for (uint32_t i = reader->first; i < reader->length; i++) {
        int waiting = 0;
        uint32_t back = i - reader->first < 32 ? i - reader->first : 32;
        for (uint32_t j = i - back; j < i; j++)
            if (reader->packets[j].rank != MP4_UNSEEN &&
                reader->packets[j].rank > reader->packets[i].rank)
                waiting++;
        if (waiting > most)
            most = waiting;
    }
    return most < 16 ? most : 16;
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
    mp4_hush_codec(codec);
    int result = avcodec_parameters_to_context(codec, reader->parameters);
    codec->thread_count = mp4_threads(&reader->options);
    codec->err_recognition =
        AV_EF_EXPLODE | AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER;
    /* Pictures do not grow behind the index's back. Decoders count their own
     * borders. */
    codec->max_pixels =
        (int64_t)((reader->info.width + 320) * (reader->info.height + 320));
    if (codec->codec_id == AV_CODEC_ID_H264)
        codec->has_b_frames = mp4_reorder(reader);
    if (result >= 0)
        result = avcodec_open2(codec, decoder, NULL);
    if (result < 0) {
        avcodec_free_context(&codec);
        return mp4_fail(err, BAGS_ERROR_CORRUPT, result,
            "the decoder refuses the video's settings");
    }
    reader->codec = codec;
    if (!reader->frame)
        reader->frame = av_frame_alloc();
    if (!reader->rgb)
        reader->rgb = av_frame_alloc();
    return reader->frame && reader->rgb ? BAGS_OK : mp4_fail_memory(err);
}

/* Old names of formats that use the whole range of a byte: the scaler wants the
 * range by itself. */
static enum AVPixelFormat mp4_full_range(
    enum AVPixelFormat format, bool *full) {
    static const struct {
        enum AVPixelFormat old, now;
    } names[] = {
        {AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV420P},
        {AV_PIX_FMT_YUVJ422P, AV_PIX_FMT_YUV422P},
        {AV_PIX_FMT_YUVJ444P, AV_PIX_FMT_YUV444P},
        {AV_PIX_FMT_YUVJ440P, AV_PIX_FMT_YUV440P},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].old == format) {
            *full = true;
            return names[i].now;
        }
    return format;
}

/* The scaler for the frame at hand, made as the ffmpeg command makes it. (For
 * three or four lines the bicubic one would print that it is not the fastest.)
 */
static bags_code mp4_scaler(bags_mp4_reader *reader, bags_error *err) {
    const AVFrame *frame = reader->frame;
    bool full = frame->color_range == AVCOL_RANGE_JPEG;
    enum AVPixelFormat format =
        mp4_full_range((enum AVPixelFormat)frame->format, &full);
    int space = (int)frame->colorspace;
    bool few = frame->height == 3 || frame->height == 4;
    if (reader->scaler && reader->scaler_format == format &&
        reader->scaler_space == space && reader->scaler_full == full)
        return BAGS_OK;
    if (!sws_isSupportedInput(format))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "pixels of format %d, which FFmpeg does not convert", (int)format);
    sws_freeContext(reader->scaler);
    reader->scaler = sws_getContext(frame->width, frame->height, format,
        frame->width, frame->height, AV_PIX_FMT_RGB24,
        few ? SWS_BILINEAR : SWS_BICUBIC, NULL, NULL, NULL);
    if (!reader->scaler)
        return mp4_fail_memory(err);
    reader->scaler_format = format;
    reader->scaler_space = space;
    reader->scaler_full = full;
    sws_setColorspaceDetails(reader->scaler, sws_getCoefficients(space), full,
        sws_getCoefficients(SWS_CS_DEFAULT), 0, 0, 1 << 16, 1 << 16);
    return BAGS_OK;
}

/* The scaler writes whole vectors: lines that end between two need padding. */
static bool mp4_is_aligned(const void *data, uint64_t width) {
    return width % 32 == 0 && (uintptr_t)data % 16 == 0;
}

static bags_code mp4_padded(AVFrame *frame, enum AVPixelFormat format,
    uint64_t width, uint64_t height, bags_error *err) {
    if (frame->buf[0])
        return BAGS_OK;
    frame->format = format;
    frame->width = (int)width;
    frame->height = (int)height;
    if (av_frame_get_buffer(frame, MP4_ALIGN) < 0)
        return mp4_fail_memory(err);
    /* The scaler looks at the padding. */
    memset(frame->buf[0]->data, 0, (size_t)frame->buf[0]->size);
    return BAGS_OK;
}

/* Convert the frame at hand to RGB at `out`. */
static bags_code mp4_convert(
    bags_mp4_reader *reader, unsigned char *out, bags_error *err) {
    const AVFrame *frame = reader->frame;
    bags_code code = mp4_scaler(reader, err);
    if (code)
        return code;
    size_t line = (size_t)frame->width * 3;
    uint8_t *lines[4] = {out, NULL, NULL, NULL};
    int strides[4] = {(int)line, 0, 0, 0};
    bool direct = mp4_is_aligned(out, (uint64_t)frame->width);
    if (!direct) {
        code = mp4_padded(reader->rgb, AV_PIX_FMT_RGB24, reader->info.width,
            reader->info.height, err);
        if (code)
            return code;
        lines[0] = reader->rgb->data[0];
        strides[0] = reader->rgb->linesize[0];
    }
    sws_scale(reader->scaler, (const uint8_t *const *)frame->data,
        frame->linesize, 0, frame->height, lines, strides);
    if (!direct)
        av_image_copy_plane(
            out, (int)line, lines[0], strides[0], (int)line, frame->height);
    return BAGS_OK;
}

/* Frames start, start + step, ... below stop, to `out`. */
typedef struct mp4_wanted {
    uint64_t start, stop, step;
    unsigned char *out; /* of frame `start` */
    uint32_t last;      /* the last packet that is needed */
    uint64_t left;      /* frames that have not come out */
} mp4_wanted;

static uint64_t mp4_count(uint64_t start, uint64_t stop, uint64_t step) {
    return start < stop ? (stop - start - 1) / step + 1 : 0;
}

/* The decoder gave a frame: if it is wanted, convert it. */
static bags_code mp4_take(
    bags_mp4_reader *reader, mp4_wanted *wanted, bags_error *err) {
    const AVFrame *frame = reader->frame;
    if (frame->pts < 0 || (uint64_t)frame->pts >= reader->info.frames)
        return BAGS_OK;
    uint64_t rank = (uint64_t)frame->pts;
    mp4_packet *packet = &reader->packets[reader->order[rank]];
    if (rank >= reader->shown)
        reader->shown = rank + 1;
    if (rank < wanted->start || rank >= wanted->stop ||
        (rank - wanted->start) % wanted->step != 0 ||
        packet->stamp == reader->stamp)
        return BAGS_OK;
    if ((uint64_t)frame->width != reader->info.width ||
        (uint64_t)frame->height != reader->info.height)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "frame %llu is %d x %d, the video %llu x %llu (H x W)",
            (unsigned long long)rank, frame->height, frame->width,
            (unsigned long long)reader->info.height,
            (unsigned long long)reader->info.width);
    if (frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "frame %llu is damaged",
            (unsigned long long)rank);
    uint64_t place = (rank - wanted->start) / wanted->step;
    size_t size = (size_t)(reader->info.height * reader->info.width * 3);
    bags_code code = mp4_convert(reader, wanted->out + place * size, err);
    if (code)
        return code;
    packet->stamp = reader->stamp;
    wanted->left--;
    return BAGS_OK;
}

/* Give the decoder the next packet, or the end. */
static int mp4_feed(bags_mp4_reader *reader) {
    if (reader->next == reader->length || reader->drained) {
        reader->drained = true;
        return avcodec_send_packet(reader->codec, NULL);
    }
    const mp4_packet *from = &reader->packets[reader->next++];
    const unsigned char *data = reader->blob.data + from->offset;
    if (reader->codec->codec_id == AV_CODEC_ID_VP9 &&
        mp4_vp9_superframe(data, from->size) < 0)
        return AVERROR_INVALIDDATA;
    AVPacket *packet = reader->packet;
    av_packet_unref(packet);
    /* The decoder copies what has no buffer, with the padding that it needs;
     * it does not write. */
    packet->data = (uint8_t *)(uintptr_t)data;
    packet->size = (int)from->size;
    packet->flags = from->key ? AV_PKT_FLAG_KEY : 0;
    packet->pts = from->rank == MP4_UNSEEN ? -1 : (int64_t)from->rank;
    packet->dts = packet->pts;
    int result = avcodec_send_packet(reader->codec, packet);
    packet->data = NULL;
    packet->size = 0;
    return result;
}

/* Name the frame of the packet that the decoder did not like. */
static bags_code mp4_fail_packet(
    const bags_mp4_reader *reader, int result, bags_error *err) {
    uint32_t n = reader->next > 0 ? reader->next - 1 : 0;
    uint32_t rank = reader->packets[n].rank;
    char what[64];
    if (rank == MP4_UNSEEN)
        (void)snprintf(
            what, sizeof what, "packet %u, which is not shown", (unsigned)n);
    else
        (void)snprintf(what, sizeof what, "frame %u", (unsigned)rank);
    return mp4_fail(err, BAGS_ERROR_CORRUPT, result, what);
}

static bags_code mp4_fail_missing(
    const bags_mp4_reader *reader, const mp4_wanted *wanted, bags_error *err) {
    uint64_t rank = wanted->start;
    while (reader->packets[reader->order[rank]].stamp == reader->stamp)
        rank += wanted->step;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "frame %llu of %llu does not come out of the decoder",
        (unsigned long long)rank, (unsigned long long)reader->info.frames);
}

/*
 * Run the decoder until all wanted frames came out. What is wrong behind the
 * last packet that is needed does not matter: the decoder is then told that the
 * video ends, to get the pictures that it holds back.
 */
static bags_code mp4_pump(
    bags_mp4_reader *reader, mp4_wanted *wanted, bags_error *err) {
    while (wanted->left > 0) {
        int result = avcodec_receive_frame(reader->codec, reader->frame);
        if (result >= 0) {
            bags_code code = mp4_take(reader, wanted, err);
            av_frame_unref(reader->frame);
            if (code)
                return code;
            continue;
        }
        if (result == AVERROR_EOF)
            return mp4_fail_missing(reader, wanted, err);
        if (result == AVERROR(EAGAIN))
            result = mp4_feed(reader);
        if (result >= 0)
            continue;
        if (reader->drained || reader->next <= wanted->last + 1)
            return mp4_fail_packet(reader, result, err);
        reader->drained = true;
    }
    return BAGS_OK;
}

/* The last keyframe at or before a packet from which frame `rank` and all that
 * follow are decodable: one that is shown no later. */
static uint32_t mp4_key_before(
    const bags_mp4_reader *reader, uint32_t packet, uint64_t rank) {
    int64_t pts = reader->packets[reader->order[rank]].pts;
    while (packet > reader->first &&
           !(reader->packets[packet].key && reader->packets[packet].pts <= pts))
        packet--;
    return packet;
}

static void mp4_rewind(bags_mp4_reader *reader, uint32_t packet) {
    avcodec_flush_buffers(reader->codec);
    reader->next = packet;
    reader->shown = 0;
    reader->drained = false;
    reader->positioned = true;
}

/*
 * Read frames that lie close to each other: from where the decoder is, if it is
 * not past them, or from the keyframe. If that fails, keyframes may not be what
 * the index says: from the start.
 */
static bags_code mp4_read_near(bags_mp4_reader *reader, mp4_wanted *wanted,
    uint32_t key, bags_error *err) {
    bool on = reader->positioned && !reader->drained && reader->next >= key &&
              reader->shown <= wanted->start;
    bool start = !on && key == reader->first;
    if (!on)
        mp4_rewind(reader, key);
    bags_code code = mp4_pump(reader, wanted, err);
    if (code == BAGS_ERROR_CORRUPT && !start) {
        mp4_rewind(reader, reader->first);
        code = mp4_pump(reader, wanted, err);
    }
    if (code)
        reader->positioned = false;
    return code;
}

/* Read frames anywhere: seek where a keyframe lies between two of them. */
static bags_code mp4_read_frames(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, unsigned char *out, bags_error *err) {
    bags_code code = mp4_decoder_open(reader, err);
    uint64_t size = reader->info.height * reader->info.width * 3;
    reader->stamp++;
    while (!code && start < stop) {
        mp4_wanted wanted;
        uint32_t first = reader->order[start];
        memset(&wanted, 0, sizeof wanted);
        wanted.start = start;
        wanted.step = step;
        wanted.out = out;
        uint64_t rank = start;
        do {
            uint32_t packet = reader->order[rank];
            first = packet < first ? packet : first;
            wanted.last = packet > wanted.last ? packet : wanted.last;
            wanted.left++;
            rank += stop - rank > step ? step : stop - rank;
        } while (rank < stop && mp4_key_before(reader, reader->order[rank],
                                    rank) <= wanted.last + 1);
        wanted.stop = rank;
        out += size * mp4_count(start, rank, step);
        code = mp4_read_near(
            reader, &wanted, mp4_key_before(reader, first, start), err);
        start = rank;
    }
    return code;
}

/* Clip a range, and see how many frames and bytes it has. */
static bags_code mp4_range(const bags_mp4_reader *reader, uint64_t start,
    uint64_t *stop, uint64_t *step, uint64_t *count, uint64_t *size,
    bags_error *err) {
    uint64_t frame = reader->info.height * reader->info.width * 3;
    if (start > *stop)
        return bags_fail(err, BAGS_ERROR_RANGE, "frames %llu to %llu",
            (unsigned long long)start, (unsigned long long)*stop);
    if (*stop > reader->info.frames)
        *stop = reader->info.frames;
    if (*step == 0)
        *step = 1;
    *count = mp4_count(start, *stop, *step);
    if (*count > 0 && (*count > reader->options.max_size / frame ||
                          *count > (SIZE_MAX - MP4_HEADER) / frame))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%llu x %llu x %llu x 3 are more than the limit of %llu bytes",
            (unsigned long long)*count, (unsigned long long)reader->info.height,
            (unsigned long long)reader->info.width,
            (unsigned long long)reader->options.max_size);
    *size = *count * frame;
    return BAGS_OK;
}

bags_code bags_mp4_reader_get_into(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, void *data, size_t size, uint64_t *frames,
    bags_error *err) {
    uint64_t count = 0, need = 0;
    bags_code code = mp4_range(reader, start, &stop, &step, &count, &need, err);
    if (code)
        return code;
    if (need > size)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%llu frames need %llu bytes, there are %llu",
            (unsigned long long)count, (unsigned long long)need,
            (unsigned long long)size);
    if (count > 0)
        code = mp4_read_frames(
            reader, start, stop, step, (unsigned char *)data, err);
    if (!code && frames)
        *frames = count;
    return code;
}

bags_code bags_mp4_reader_get(bags_mp4_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, bags_buffer *scratch, bags_value *out,
    bags_error *err) {
    uint64_t count = 0, need = 0;
    bags_code code = mp4_range(reader, start, &stop, &step, &count, &need, err);
    if (!code)
        code = bags_buffer_reserve(scratch, (size_t)need + MP4_HEADER, err);
    if (code)
        return code;
    unsigned char *pixels = scratch->data + MP4_HEADER;
    if (count > 0)
        code = mp4_read_frames(reader, start, stop, step, pixels, err);
    if (code)
        return code;
    uint64_t *shape = (uint64_t *)(void *)scratch->data;
    shape[0] = count;
    shape[1] = reader->info.height;
    shape[2] = reader->info.width;
    shape[3] = 3;
    *out = bags_array(BAGS_DTYPE_UINT8, 4, shape, pixels);
    return BAGS_OK;
}

static bags_code mp4_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    const mp4_state *made = (const mp4_state *)state;
    bags_mp4_reader *reader = NULL;
    bags_code code = mp4_reader_make(blob, &made->options, &reader, err);
    if (code)
        return code;
    code = bags_mp4_reader_get(reader, 0, UINT64_MAX, 1, scratch, value, err);
    bags_mp4_reader_close(reader);
    return code;
}

/* ------------------------------------------------------------------------
 * Writer
 * --------------------------------------------------------------------- */

struct bags_mp4_writer {
    AVClass quiet;
    AVFormatContext *format;
    AVIOContext *io;
    AVStream *stream;
    AVCodecContext *codec;
    struct SwsContext *scaler;
    AVPacket *packet;
    AVFrame *rgb;   /* a copy of a frame, with padded lines */
    AVFrame *frame; /* what the encoder gets */
    AVBufferPool *pool;
    int64_t frames, packets; /* in, out */
    bags_buffer *buffer;
    size_t at, size;  /* in the file that grows in the buffer */
    bags_error error; /* the first failure */
};

static int mp4_write(void *user, mp4_written *data, int size) {
    bags_mp4_writer *writer = (bags_mp4_writer *)user;
    size_t part = size < 0 ? 0 : (size_t)size;
    if (part > SIZE_MAX - writer->at ||
        bags_buffer_reserve(writer->buffer, writer->at + part, NULL))
        return AVERROR(ENOMEM);
    memcpy(writer->buffer->data + writer->at, data, part);
    writer->at += part;
    if (writer->at > writer->size)
        writer->size = writer->at;
    return (int)part;
}

static int64_t mp4_seek_output(void *user, int64_t offset, int whence) {
    bags_mp4_writer *writer = (bags_mp4_writer *)user;
    if (whence & AVSEEK_SIZE)
        return (int64_t)writer->size;
    whence &= ~AVSEEK_FORCE;
    int64_t base = whence == SEEK_CUR   ? (int64_t)writer->at
                   : whence == SEEK_END ? (int64_t)writer->size
                                        : 0;
    int64_t target = mp4_seek_target(offset, base);
    if (target < 0 || (uint64_t)target > writer->size)
        return AVERROR(EINVAL);
    writer->at = (size_t)target;
    return target;
}

void bags_mp4_writer_abort(bags_mp4_writer *writer) {
    if (!writer)
        return;
    avcodec_free_context(&writer->codec);
    avformat_free_context(writer->format);
    mp4_free_io(&writer->io);
    sws_freeContext(writer->scaler);
    av_packet_free(&writer->packet);
    av_frame_free(&writer->rgb);
    av_frame_free(&writer->frame);
    av_buffer_pool_uninit(&writer->pool);
    av_free(writer);
}

/* Keep the first failure. */
static bags_code mp4_writer_fail(
    bags_mp4_writer *writer, int result, const char *what) {
    return mp4_fail(&writer->error, BAGS_ERROR_VALUE, result, what);
}

/*
 * Encoders that would print or take minutes by themselves. libx265 (3.5) writes
 * behind its memory in cutree where a picture is narrow.
 */
static void mp4_tune(AVCodecContext *codec, const AVCodec *encoder) {
    if (strcmp(encoder->name, "libx265") == 0)
        av_opt_set(codec->priv_data, "x265-params",
            codec->thread_count == 1 ? "log-level=none:cutree=0:pools=none"
                                     : "log-level=none:cutree=0",
            0);
    if (strcmp(encoder->name, "libaom-av1") == 0)
        av_opt_set_int(codec->priv_data, "cpu-used", 6, 0);
}

static bags_code mp4_encoder_open(bags_mp4_writer *writer, uint64_t height,
    uint64_t width, const bags_mp4_options *options, bags_error *err) {
    const mp4_codec *kind = NULL;
    const AVCodec *encoder = mp4_choose_encoder(options, &kind, err);
    if (!encoder)
        return BAGS_ERROR_TYPE;
    AVCodecContext *codec = avcodec_alloc_context3(encoder);
    if (!codec)
        return mp4_fail_memory(err);
    writer->codec = codec;
    mp4_hush_codec(codec);
    bool odd = kind->even && (height % 2 || width % 2);
    AVRational rate = av_make_q(options->webm ? 20 : 15, 1);
    if (options->fps_num)
        rate = av_make_q((int)options->fps_num,
            options->fps_den ? (int)options->fps_den : 1);
    codec->width = (int)width;
    codec->height = (int)height;
    codec->pix_fmt = odd ? AV_PIX_FMT_YUV444P : AV_PIX_FMT_YUV420P;
    codec->framerate = rate;
    codec->time_base = av_inv_q(rate);
    codec->bit_rate =
        options->bit_rate ? (int64_t)options->bit_rate : MP4_BIT_RATE;
    codec->bit_rate_tolerance = MP4_BIT_RATE_TOLERANCE;
    codec->thread_count = mp4_threads(options);
    if (options->key_interval)
        codec->gop_size = (int)options->key_interval;
    if (writer->format->oformat->flags & AVFMT_GLOBALHEADER)
        codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    mp4_tune(codec, encoder);
    int result = avcodec_open2(codec, encoder, NULL);
    if (result >= 0)
        return BAGS_OK;
    char what[128];
    (void)snprintf(what, sizeof what,
        "%s does not take %d x %d (H x W) at %d/%d frames a second",
        encoder->name, (int)height, (int)width, rate.num, rate.den);
    return mp4_fail(err, BAGS_ERROR_VALUE, result, what);
}

static bags_code mp4_muxer_open(
    bags_mp4_writer *writer, const bags_mp4_options *options, bags_error *err) {
    avformat_alloc_output_context2(
        &writer->format, NULL, options->webm ? "webm" : "mp4", NULL);
    if (!writer->format)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "this build of FFmpeg does not write %s",
            options->webm ? "webm" : "mp4");
    mp4_hush(writer->format, &writer->quiet);
    writer->io = mp4_make_io(writer, true, NULL, mp4_write, mp4_seek_output);
    writer->format->pb = writer->io;
    writer->format->flags |= AVFMT_FLAG_CUSTOM_IO;
    /* WebM would get a random number, and other bytes each time. */
    if (options->webm)
        writer->format->flags |= AVFMT_FLAG_BITEXACT;
    writer->stream = avformat_new_stream(writer->format, NULL);
    return writer->io && writer->stream ? BAGS_OK : mp4_fail_memory(err);
}

static bags_code mp4_write_header(bags_mp4_writer *writer, bags_error *err) {
    AVCodecContext *codec = writer->codec;
    AVStream *stream = writer->stream;
    stream->time_base = codec->time_base;
    stream->avg_frame_rate = codec->framerate;
    int result = avcodec_parameters_from_context(stream->codecpar, codec);
    if (result >= 0)
        result = avformat_write_header(writer->format, NULL);
    if (result < 0)
        return mp4_fail(err, BAGS_ERROR_VALUE, result,
            "the video's header cannot be written");
    writer->packet = av_packet_alloc();
    writer->rgb = av_frame_alloc();
    writer->frame = av_frame_alloc();
    writer->scaler = sws_getContext(codec->width, codec->height,
        AV_PIX_FMT_RGB24, codec->width, codec->height, codec->pix_fmt,
        SWS_BILINEAR, NULL, NULL, NULL);
    int size = av_image_get_buffer_size(
        codec->pix_fmt, codec->width, (codec->height + 31) & ~31, MP4_ALIGN);
    writer->pool = av_buffer_pool_init((mp4_pool_size)size, av_buffer_allocz);
    if (size < 0 || !writer->packet || !writer->rgb || !writer->frame ||
        !writer->scaler || !writer->pool)
        return mp4_fail_memory(err);
    return BAGS_OK;
}

static bags_code mp4_writer_make(uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_buffer *buffer, bags_mp4_writer **out,
    bags_error *err) {
    if (height == 0 || width == 0 || height > INT16_MAX || width > INT16_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a video of %llu x %llu (H x W); sizes are 1 to 32767",
            (unsigned long long)height, (unsigned long long)width);
    if (options->fps_num > INT_MAX || options->fps_den > INT_MAX ||
        options->bit_rate > INT_MAX || options->key_interval > INT_MAX)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "options of a video are below 2^31");
    bags_mp4_writer *writer = (bags_mp4_writer *)av_mallocz(sizeof *writer);
    if (!writer)
        return mp4_fail_memory(err);
    writer->buffer = buffer;
    bags_code code = mp4_muxer_open(writer, options, err);
    if (!code)
        code = mp4_encoder_open(writer, height, width, options, err);
    if (!code)
        code = mp4_write_header(writer, err);
    if (code)
        bags_mp4_writer_abort(writer);
    else
        *out = writer;
    return code;
}

bags_mp4_writer *bags_mp4_writer_open(uint64_t height, uint64_t width,
    const bags_mp4_options *options, bags_buffer *buffer, bags_error *err) {
    bags_mp4_options none;
    bags_mp4_writer *writer = NULL;
    memset(&none, 0, sizeof none);
    mp4_writer_make(
        height, width, options ? options : &none, buffer, &writer, err);
    return writer;
}

/* Give the encoder a frame, or NULL at the end, and store what it has. */
static bags_code mp4_compress(bags_mp4_writer *writer, const AVFrame *frame) {
    int result = avcodec_send_frame(writer->codec, frame);
    while (result >= 0) {
        result = avcodec_receive_packet(writer->codec, writer->packet);
        if (result == AVERROR(EAGAIN) || result == AVERROR_EOF)
            return BAGS_OK;
        if (result < 0)
            break;
        /* libx265 (3.5) does not set the times of decoding in a video that is
         * shorter than its delay: two frames, for pyramids of B-frames. */
        if (writer->codec->codec_id == AV_CODEC_ID_HEVC)
            writer->packet->dts = writer->packets++ - 2;
        av_packet_rescale_ts(writer->packet, writer->codec->time_base,
            writer->stream->time_base);
        writer->packet->stream_index = writer->stream->index;
        result = av_interleaved_write_frame(writer->format, writer->packet);
    }
    return mp4_writer_fail(writer, result, "the video cannot be encoded");
}

/* RGB to the encoder's format. Vectors are read whole, so that the last lines
 * must not be the end of the caller's memory. */
static bags_code mp4_prepare(
    bags_mp4_writer *writer, const unsigned char *pixels) {
    AVFrame *rgb = writer->rgb;
    int width = writer->codec->width, height = writer->codec->height;
    int line = width * 3;
    int direct = height > 2 && mp4_is_aligned(pixels, (uint64_t)width)
                     ? (height - 2) & ~1
                     : 0;
    const uint8_t *lines[4] = {pixels, NULL, NULL, NULL};
    int strides[4] = {line, 0, 0, 0};
    bags_code code = mp4_padded(rgb, AV_PIX_FMT_RGB24, (uint64_t)width,
        (uint64_t)height, &writer->error);
    if (code)
        return code;
    if (direct > 0)
        sws_scale(writer->scaler, lines, strides, 0, direct,
            writer->frame->data, writer->frame->linesize);
    uint8_t *rest = rgb->data[0] + (ptrdiff_t)direct * rgb->linesize[0];
    av_image_copy_plane(rest, rgb->linesize[0],
        pixels + (size_t)direct * (size_t)line, line, line, height - direct);
    lines[0] = rest;
    strides[0] = rgb->linesize[0];
    sws_scale(writer->scaler, lines, strides, direct, height - direct,
        writer->frame->data, writer->frame->linesize);
    return BAGS_OK;
}

/*
 * A frame that the encoder does not hold any more. Encoders look at the
 * padding, too: buffers are zeroed, so that the same frames make the same
 * bytes, and used again, so that it costs nothing.
 */
static bags_code mp4_fresh(bags_mp4_writer *writer) {
    AVFrame *frame = writer->frame;
    const AVCodecContext *codec = writer->codec;
    int rows = (codec->height + 31) & ~31;
    if (frame->buf[0] && av_frame_is_writable(frame))
        return BAGS_OK;
    av_frame_unref(frame);
    frame->format = codec->pix_fmt;
    frame->width = codec->width;
    frame->height = codec->height;
    frame->buf[0] = av_buffer_pool_get(writer->pool);
    if (!frame->buf[0] ||
        av_image_fill_arrays(frame->data, frame->linesize, frame->buf[0]->data,
            codec->pix_fmt, codec->width, rows, MP4_ALIGN) < 0)
        return mp4_fail_memory(&writer->error);
    return BAGS_OK;
}

bags_code bags_mp4_writer_add(
    bags_mp4_writer *writer, const void *frame, bags_error *err) {
    AVFrame *to = writer->frame;
    if (!writer->error.code) {
        if (!mp4_fresh(writer) &&
            !mp4_prepare(writer, (const unsigned char *)frame)) {
            to->pts = writer->frames++;
            mp4_compress(writer, to);
        }
    }
    if (writer->error.code)
        return bags_fail(err, writer->error.code, "%s", writer->error.message);
    return BAGS_OK;
}

static bags_code mp4_finish(bags_mp4_writer *writer) {
    if (writer->error.code || writer->frames == 0)
        return writer->error.code;
    bags_code code = mp4_compress(writer, NULL);
    if (code)
        return code;
    int result = av_write_trailer(writer->format);
    if (result >= 0 && writer->io->error < 0)
        result = writer->io->error;
    return result < 0
               ? mp4_writer_fail(writer, result, "the video cannot be finished")
               : BAGS_OK;
}

bags_code bags_mp4_writer_close(
    bags_mp4_writer *writer, bags_view *blob, bags_error *err) {
    if (!writer)
        return BAGS_OK;
    bags_code code = mp4_finish(writer);
    if (code) {
        bags_fail(err, code, "%s", writer->error.message);
    } else {
        blob->data = writer->buffer->data;
        blob->size = writer->frames ? writer->size : 0;
    }
    bags_mp4_writer_abort(writer);
    return code;
}

static bags_code mp4_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    const mp4_state *made = (const mp4_state *)state;
    if (value->kind != BAGS_KIND_ARRAY || value->dtype != BAGS_DTYPE_UINT8 ||
        value->dims != 4 || value->shape[3] != 3)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "a video is an array of uint8, T x H x W x 3");
    uint64_t frames = value->shape[0];
    if (frames == 0) {
        blob->data = NULL;
        blob->size = 0;
        return BAGS_OK;
    }
    bags_mp4_writer *writer = NULL;
    bags_code code = mp4_writer_make(value->shape[1], value->shape[2],
        &made->options, scratch, &writer, err);
    if (code)
        return code;
    size_t size = (size_t)(value->shape[1] * value->shape[2] * 3);
    const unsigned char *frame = (const unsigned char *)value->data;
    while (frames-- > 0 && !bags_mp4_writer_add(writer, frame, NULL))
        frame += size;
    return bags_mp4_writer_close(writer, blob, err);
}

/* ------------------------------------------------------------------------
 * Table
 * --------------------------------------------------------------------- */

const bags_codec bags_codec_mp4 = {
    "mp4 webm", mp4_open, mp4_encode, mp4_decode, mp4_close, NULL};
