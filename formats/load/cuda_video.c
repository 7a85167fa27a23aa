/*
 * cuda_video.c - decodes frames of H.264, HEVC and AV1 videos on an NVIDIA GPU, for
 * cuda.c's tensors. The driver's libnvcuvid.so.1 is opened at run time.
 *
 * A run decodes the frames that follow one keyframe. The driver's parser calls back:
 *
 *     packet -> Annex B or OBUs -> parser -> sequence: make the decoder fit the video
 *                                         -> decode:   decode a picture into a surface
 *                                         -> display:  map the surface, make the item
 *
 * The time stamp of a packet is its number, so a displayed picture names its packet. A
 * second check must agree: the packet that was parsed when the surface was decoded. If
 * it differs, or the driver reports damage in any picture of the run, nothing of the
 * run is used.
 *
 * A session is a parser and a decoder of the driver. A decoder (bags_cuda_decoder)
 * keeps a few, for different videos:
 *
 *     same settings      the session is used again
 *     other settings     the session used longest ago gets a new parser; its decoder is
 *                        reconfigured if it is for this codec and large enough
 *     a run failed       the session is closed
 */
#include "cuda_device.h"

#include "random.h"

#define VIDEO_SESSIONS 4
#define VIDEO_SURFACES 32 /* the most per session */
#define VIDEO_MORE 2     /* surfaces in addition to the number that the parser states */
#define VIDEO_REFUSED 64 /* videos that the GPU does not support, remembered */

/* ---- the driver's interface ---- */

enum {
    VIDEO_H264 = 4,
    VIDEO_HEVC = 8,
    VIDEO_AV1 = 11,
    VIDEO_CODECS = 12,
    VIDEO_CHROMA_420 = 1,
    VIDEO_NV12 = 0,
    VIDEO_NOT_SUPPORTED = 801, /* an error */
    VIDEO_STATUS_GOOD = 2,
    VIDEO_STATUS_ERROR = 8,
    VIDEO_STATUS_CONCEALED = 9,
    /* flags of packets: */
    VIDEO_LAST = 1,
    VIDEO_STAMPED = 2,
    VIDEO_ONE_PICTURE = 8
};

/* Structures of libnvcuvid. Members whose names start with `zero` are not used here. */
typedef struct video_caps {
    int codec, chroma;
    unsigned more_bits; /* bits per channel, minus 8 */
    unsigned zero1[3];
    unsigned char supported, engines;
    unsigned short formats; /* bit n: surface format n */
    unsigned most_width, most_height, most_blocks;
    unsigned short least_width, least_height;
    unsigned char zero2[4];
    unsigned zero3[10];
} video_caps;

typedef struct video_area {
    short left, top, right, bottom;
} video_area;

typedef struct video_making {
    unsigned long width, height, surfaces;
    int codec, chroma;
    unsigned long flags, more_bits, intra_only, most_width, most_height, zero1;
    video_area shown;
    int format, deinterlacing;
    unsigned long out_width, out_height, out_surfaces;
    void *lock;
    video_area target;
    unsigned long zero2[5];
} video_making;

typedef struct video_changing {
    unsigned width, height, out_width, out_height, surfaces;
    unsigned zero1[12];
    video_area shown, target;
    unsigned zero2[11];
} video_changing;

typedef struct video_format {
    int codec;
    unsigned rate[2];
    unsigned char progressive, more_bits_luma, more_bits_chroma, surfaces;
    unsigned width, height;
    int left, top, right, bottom; /* the part that is shown */
    int chroma;
    unsigned zero1[3];
    unsigned char range; /* bit 3: full */
    unsigned char colours[3];
    unsigned zero2;
} video_format;

/* The first members of the parameters of a picture. */
typedef struct video_picture {
    int blocks[2];
    int surface;
} video_picture;

typedef struct video_shown {
    int surface, progressive, top_first, repeated;
    long long time;
} video_shown;

typedef struct video_parsing {
    int codec;
    unsigned surfaces, clock, threshold, delay, zero1[5];
    void *user;
    int (*sequence)(void *user, video_format *format);
    int (*decode)(void *user, video_picture *picture);
    int (*display)(void *user, video_shown *shown);
    void *zero2[8];
} video_parsing;

typedef struct video_packet {
    unsigned long flags, size;
    const unsigned char *data;
    long long time;
} video_packet;

typedef struct video_mapping {
    int progressive, second, top_first, unpaired;
    unsigned zero1[2];
    unsigned long long zero2;
    unsigned zero3[2];
    unsigned long long zero4;
    unsigned zero5[2];
    cuda_object stream;
    unsigned zero6[46];
    void *zero7[2];
} video_mapping;

typedef struct video_status {
    int status;
    unsigned zero1[31];
    void *zero2[8];
} video_status;

/* Each returns 0 or an error code of the driver. */
typedef struct video_functions {
    int (*caps)(video_caps *caps);
    int (*parser_create)(cuda_object *parser, video_parsing *parsing);
    int (*parser_destroy)(cuda_object parser);
    int (*parse)(cuda_object parser, video_packet *packet);
    int (*decoder_create)(cuda_object *decoder, video_making *making);
    int (*decoder_change)(cuda_object decoder, video_changing *changing);
    int (*decoder_destroy)(cuda_object decoder);
    int (*decode)(cuda_object decoder, video_picture *picture);
    int (*status)(cuda_object decoder, int surface, video_status *status);
    int (*map)(cuda_object decoder, int surface, unsigned long long *address,
        unsigned *pitch, video_mapping *mapping);
    int (*unmap)(cuda_object decoder, unsigned long long address);
} video_functions;

#define VIDEO_SYMBOL(member, name)                                                     \
    { name, offsetof(video_functions, member) }

static const cuda_symbol video_symbols[] = {VIDEO_SYMBOL(caps, "cuvidGetDecoderCaps"),
    VIDEO_SYMBOL(parser_create, "cuvidCreateVideoParser"),
    VIDEO_SYMBOL(parser_destroy, "cuvidDestroyVideoParser"),
    VIDEO_SYMBOL(parse, "cuvidParseVideoData"),
    VIDEO_SYMBOL(decoder_create, "cuvidCreateDecoder"),
    VIDEO_SYMBOL(decoder_change, "cuvidReconfigureDecoder"),
    VIDEO_SYMBOL(decoder_destroy, "cuvidDestroyDecoder"),
    VIDEO_SYMBOL(decode, "cuvidDecodePicture"),
    VIDEO_SYMBOL(status, "cuvidGetDecodeStatus"),
    VIDEO_SYMBOL(map, "cuvidMapVideoFrame64"),
    VIDEO_SYMBOL(unmap, "cuvidUnmapVideoFrame64"), {NULL, 0}};

/* ---- state ---- */

typedef struct video_run video_run;

typedef struct video_session {
    int codec; /* 0: unused */
    cuda_object parser, decoder;
    video_format format;  /* for which the decoder is configured, */
    unsigned made[3];     /* and its largest width, height and number of surfaces */
    bags_buffer settings; /* of the parser's videos */
    size_t settings_size;
    uint64_t used; /* the number of the last run */
    video_run *run;
} video_session;

typedef struct cuda_videos {
    bags_buffer memory; /* holds this structure; see format_state */
    video_functions call;
    bool missing; /* no library */
    video_caps caps[VIDEO_CODECS];
    bool asked[VIDEO_CODECS]; /* `caps` is known */
    video_session sessions[VIDEO_SESSIONS];
    uint64_t runs;
    uint64_t refused[VIDEO_REFUSED]; /* hashes of videos */
    size_t refused_count;            /* of all; the latest are kept */
    bags_buffer stream;              /* a packet, as the parser expects it */
    bags_buffer wants;               /* of a call of bags_cuda_make_frames */
} cuda_videos;

/* A frame that is needed. */
typedef struct video_want {
    uint64_t first, packet; /* see bags_mp4_place */
    size_t image;           /* its number */
    bool done;
} video_want;

/* Use of a surface in a run. */
typedef struct video_surface {
    bool used;
    uint64_t fed,
        before; /* the packet parsed when it was decoded, and the one before */
    bool open;  /* its status is not known */
} video_surface;

struct video_run {
    bags_cuda_decoder *decoder;
    cuda_videos *videos;
    video_session *session;
    const bags_cuda_form *form;
    const bags_cuda_video *video;
    const bags_cuda_image *images;
    cuda_address out;
    size_t item_size, table_size;
    video_want *wants;
    size_t count;
    uint64_t fed, before;       /* the packet being parsed, and the one before */
    uint64_t packets, pictures; /* parsed; decoded */
    bool states_full_range;     /* the container does */
    video_surface surfaces[VIDEO_SURFACES];
    const char *rejected; /* why the CPU must decode the frames; NULL: no reason */
    bool unsupported;     /* it is the same for every run of this video */
    bags_code code;       /* of a failed call */
    bags_error *err;
};

static cuda_videos *video_state(bags_cuda_decoder *d) {
    static const char *const names[] = {"libnvcuvid.so.1", NULL};
    const bags_allocator *allocator = d->cuda->options.allocator;
    bags_error unused;
    if (d->videos)
        return d->videos;
    cuda_videos *v = (cuda_videos *)format_state(allocator, sizeof *v, &unused);
    if (!v)
        return NULL;
    v->stream = v->wants = bags_buffer_of(allocator);
    for (size_t i = 0; i < VIDEO_SESSIONS; i++)
        v->sessions[i].settings = v->stream;
    void *library = bagi_cuda_library(names, &unused);
    v->missing = !library || bagi_cuda_bind(&v->call, library, video_symbols);
    d->videos = v;
    return v;
}

static void video_close_decoder(const cuda_videos *v, video_session *s) {
    if (s->decoder)
        (void)v->call.decoder_destroy(s->decoder);
    s->decoder = NULL;
}

static void video_close_parser(const cuda_videos *v, video_session *s) {
    if (s->parser)
        (void)v->call.parser_destroy(s->parser);
    s->parser = NULL;
}

static void video_close_session(const cuda_videos *v, video_session *s) {
    video_close_parser(v, s);
    video_close_decoder(v, s);
    s->codec = 0;
    s->used = 0;
}

void bagi_cuda_close_videos(bags_cuda_decoder *d) {
    cuda_videos *v = d->videos;
    if (!v)
        return;
    for (size_t i = 0; i < VIDEO_SESSIONS; i++) {
        video_close_session(v, &v->sessions[i]);
        bags_buffer_free(&v->sessions[i].settings);
    }
    bags_buffer_free(&v->stream);
    bags_buffer_free(&v->wants);
    format_state_close(v);
    d->videos = NULL;
}

/* ---- which videos the GPU decodes ---- */

static int video_codec(const bags_mp4_info *info) {
    return !strcmp(info->codec, "h264")   ? VIDEO_H264
           : !strcmp(info->codec, "hevc") ? VIDEO_HEVC
           : !strcmp(info->codec, "av1")  ? VIDEO_AV1
                                          : 0;
}

/* True if the settings state a profile of 4:2:0 and 8 bits. H.264's do not state the
 * latter for each profile; the sequence does. */
static bool video_is_plain(int codec, bags_view settings) {
    const unsigned char *s = settings.data;
    if (codec == VIDEO_H264) /* Baseline, Main, High */
        return settings.size >= 7 && s[0] == 1 &&
               (s[1] == 66 || s[1] == 77 || s[1] == 100);
    if (codec == VIDEO_HEVC) /* Main, Main 10, Main Still Picture */
        return settings.size >= 23 && s[0] == 1 && (s[1] & 31) >= 1 &&
               (s[1] & 31) <= 3 && (s[16] & 3) == VIDEO_CHROMA_420 &&
               (s[17] & 7) == 0 && (s[18] & 7) == 0;
    return settings.size >= 4 && s[0] == 0x81 && s[1] >> 5 == 0 &&
           (s[2] & 0x7C) == 0x0C;
}

static uint64_t video_hash(const bags_mp4_info *info, bags_view settings) {
    uint64_t hash = format_mix(info->width << 32 ^ info->height);
    for (size_t i = 0; i < settings.size; i++)
        hash = format_mix(hash ^ settings.data[i]) + FORMAT_GOLDEN;
    return hash;
}

static bool video_is_refused(const cuda_videos *v, uint64_t hash) {
    size_t i = 0,
           kept = v->refused_count < VIDEO_REFUSED ? v->refused_count : VIDEO_REFUSED;
    while (i < kept && v->refused[i] != hash)
        i++;
    return i < kept;
}

/* Ask the driver about a codec, once. */
static const video_caps *video_ask(bags_cuda_decoder *d, int codec) {
    cuda_videos *v = d->videos;
    video_caps *caps = &v->caps[codec];
    bags_error unused;
    if (v->asked[codec] || bagi_cuda_enter(d->cuda, &unused))
        return caps;
    caps->codec = codec;
    caps->chroma = VIDEO_CHROMA_420;
    if (v->call.caps(caps))
        caps->supported = 0;
    else
        v->asked[codec] = true;
    bagi_cuda_leave(d->cuda);
    return caps;
}

static bool video_has_size(
    const video_caps *caps, uint64_t width, uint64_t height, bool coded) {
    return caps->supported && (caps->formats >> VIDEO_NV12 & 1) &&
           width <= caps->most_width && height <= caps->most_height &&
           width * height / 256 <= caps->most_blocks &&
           (!coded || (width >= caps->least_width && height >= caps->least_height));
}

bool bags_cuda_probe_video(bags_cuda_decoder *d, const bags_cuda_video *video,
    uint64_t frame, bags_image *out) {
    const bags_mp4_info *info = video->info(video->reader);
    int codec = video_codec(info);
    cuda_videos *v = codec ? video_state(d) : NULL;
    if (!v || v->missing || info->width % 2 || info->height % 2 ||
        frame >= info->frames)
        return false;
    bags_mp4_place place = video->place(video->reader, frame);
    if (!video_is_plain(codec, place.settings) ||
        video_is_refused(v, video_hash(info, place.settings)))
        return false;
    memset(out, 0, sizeof *out);
    out->width = (uint32_t)info->width;
    out->height = (uint32_t)info->height;
    out->channels = 3;
    out->depth = 8;
    out->dtype = BAGS_DTYPE_UINT8;
    if (info->width > UINT16_MAX || info->height > UINT16_MAX ||
        !bagi_cuda_fits(d->cuda, out))
        return false;
    return video_has_size(video_ask(d, codec), info->width, info->height, false);
}

/* ---- packets ---- */

/* A packet being rewritten for the parser. */
typedef struct video_writing {
    bags_buffer *to;
    size_t used;
    bags_error *err;
} video_writing;

static bags_code video_write(video_writing *w, const void *data, size_t size) {
    if (size > SIZE_MAX / 4 - w->used)
        return bags_fail(w->err, BAGS_ERROR_CORRUPT, "packet too large");
    FORMAT_TRY(bags_buffer_reserve(w->to, w->used + size, w->err));
    if (size)
        memcpy(w->to->data + w->used, data, size);
    w->used += size;
    return BAGS_OK;
}

/* Consume a number of `width` bytes and the unit whose size it states. False if the
 * unit is truncated. */
static bool video_unit(bags_view *rest, size_t width, bags_view *unit) {
    if (rest->size < width)
        return false;
    unit->size = (size_t)bags_load_bytes(rest->data, width, true);
    unit->data = rest->data + width;
    if (unit->size > rest->size - width)
        return false;
    rest->data = unit->data + unit->size;
    rest->size -= width + unit->size;
    return true;
}

static bags_code video_fail_packet(video_writing *w) {
    return bags_fail(w->err, BAGS_ERROR_CORRUPT, "a packet contradicts itself");
}

static bags_code video_write_unit(video_writing *w, bags_view unit) {
    static const unsigned char start[] = {0, 0, 0, 1};
    FORMAT_TRY(video_write(w, start, sizeof start));
    return video_write(w, unit.data, unit.size);
}

/* Consume `count` units of a box of settings, each with a size of two bytes. */
static bags_code video_write_listed(video_writing *w, bags_view *rest, size_t count) {
    bags_view unit;
    for (size_t i = 0; i < count; i++) {
        if (!video_unit(rest, 2, &unit))
            return video_fail_packet(w);
        FORMAT_TRY(video_write_unit(w, unit));
    }
    return BAGS_OK;
}

/* Write the parameter sets of avcC: the number of sequence sets, the sets, and the same
 * for the picture sets. */
static bags_code video_write_avcc(video_writing *w, bags_view settings) {
    bags_view rest = {settings.data + 5, settings.size - 5};
    for (int i = 0; i < 2; i++) {
        if (rest.size < 1)
            return video_fail_packet(w);
        size_t count = i ? rest.data[0] : rest.data[0] & 31;
        rest.data++;
        rest.size--;
        FORMAT_TRY(video_write_listed(w, &rest, count));
    }
    return BAGS_OK;
}

/* Write the parameter sets of hvcC: the number of arrays; each has a type and, in two
 * bytes, a number of units. */
static bags_code video_write_hvcc(video_writing *w, bags_view settings) {
    bags_view rest = {settings.data + 23, settings.size - 23};
    for (size_t i = 0; i < settings.data[22]; i++) {
        if (rest.size < 3)
            return video_fail_packet(w);
        size_t count = (size_t)bags_load_bytes(rest.data + 1, 2, true);
        rest.data += 3;
        rest.size -= 3;
        FORMAT_TRY(video_write_listed(w, &rest, count));
    }
    return BAGS_OK;
}

/* Write a packet of H.264 or HEVC in Annex B: start codes replace lengths. *is_key is
 * true if a unit belongs to a picture that no later picture reaches across: an IDR
 * picture or, in HEVC, any picture for random access. */
static bags_code video_write_units(
    video_writing *w, int codec, size_t width, bags_view packet, bool *is_key) {
    bags_view unit;
    *is_key = false;
    while (packet.size > 0) {
        if (!video_unit(&packet, width, &unit))
            return video_fail_packet(w);
        if (unit.size == 0)
            continue;
        unsigned head = unit.data[0],
                 type = codec == VIDEO_H264 ? head & 31 : head >> 1;
        *is_key =
            *is_key || (codec == VIDEO_H264 ? type == 5 : type >= 16 && type <= 21);
        FORMAT_TRY(video_write_unit(w, unit));
    }
    return BAGS_OK;
}

/* Write OBUs of AV1, each with its size, without temporal delimiters. Only the last one
 * of a packet may lack its size. */
static bags_code video_write_obus(video_writing *w, bags_view rest) {
    while (rest.size > 0) {
        const unsigned char *obu = rest.data;
        size_t head = obu[0] & 4 ? 2 : 1, at = head, size = 0;
        bool has_size = obu[0] & 2;
        unsigned char copy[2 + 8], *to = copy + head;
        if ((obu[0] & 0x80) || rest.size < head)
            return video_fail_packet(w);
        for (unsigned shift = 0; has_size; shift += 7, at++) {
            if (at >= rest.size || shift > 28)
                return video_fail_packet(w);
            size |= (size_t)(obu[at] & 127) << shift;
            has_size = obu[at] & 128;
        }
        if (!(obu[0] & 2))
            size = rest.size - head;
        if (size > rest.size - at)
            return video_fail_packet(w);
        rest.data += at + size;
        rest.size -= at + size;
        if ((obu[0] >> 3 & 15) == 2)
            continue;
        memcpy(copy, obu, head);
        copy[0] |= 2;
        size_t left = size;
        for (; left > 127; left >>= 7)
            *to++ = (unsigned char)(left | 128);
        *to++ = (unsigned char)left;
        FORMAT_TRY(video_write(w, copy, (size_t)(to - copy)));
        FORMAT_TRY(video_write(w, obu + at, size));
    }
    return BAGS_OK;
}

/* Rewrite a packet for the parser; the first one of a run with the settings. */
static bags_code video_rewrite(video_writing *w, int codec, bags_view settings,
    bags_view packet, bool first, bool *is_key) {
    static const unsigned char delimiter[] = {0x12, 0};
    const unsigned char *s = settings.data;
    *is_key = true;
    if (codec == VIDEO_AV1) {
        bags_view obus = {s + 4, settings.size - 4};
        FORMAT_TRY(video_write(w, delimiter, sizeof delimiter));
        if (first)
            FORMAT_TRY(video_write_obus(w, obus));
        return video_write_obus(w, packet);
    }
    if (first)
        FORMAT_TRY(codec == VIDEO_H264 ? video_write_avcc(w, settings)
                                       : video_write_hvcc(w, settings));
    size_t width = (size_t)(s[codec == VIDEO_H264 ? 4 : 21] & 3) + 1;
    return video_write_units(w, codec, width, packet, is_key);
}

/* ---- callbacks of the parser ---- */

/* Reject a run. Returns 0: the parser must stop. */
static int video_reject(video_run *run, const char *why, bool unsupported) {
    if (!run->rejected) {
        run->rejected = why;
        run->unsupported = unsupported;
    }
    return 0;
}

/* Record that a call failed. Returns 0. */
static int video_fail_call(video_run *run, int result, const char *call) {
    if (!run->code)
        run->code = bagi_cuda_check(run->decoder->cuda, result, call, run->err);
    return 0;
}

static bool video_is_over(const video_run *run) {
    return !run || run->rejected || run->code;
}

static video_area video_area_of(const video_format *f) {
    video_area area = {
        (short)f->left, (short)f->top, (short)f->right, (short)f->bottom};
    return area;
}

/* True for values of 0 to 255. FFmpeg's decoders of AV1 do not tell. */
static bool video_is_full(const video_session *s, const video_format *f) {
    return s->codec != VIDEO_AV1 && (f->range & 8);
}

/* Check that a format fits the video as mp4.c describes it. */
static bool video_fits(video_run *run, const video_format *f) {
    const bags_mp4_info *info = run->video->info(run->video->reader);
    if (f->right - f->left != (int)info->width ||
        f->bottom - f->top != (int)info->height)
        (void)video_reject(run, "a frame of another size", true);
    /* The CPU's decoder finds out whether the stream states a range. */
    else if (run->session->codec != VIDEO_AV1 && run->states_full_range &&
             !video_is_full(run->session, f))
        (void)video_reject(run, "container and stream state different ranges", true);
    return !run->rejected;
}

/* True if the session's decoder is configured for this format. */
static bool video_is_same(
    const video_session *s, const video_format *f, unsigned surfaces) {
    const video_format *is = &s->format;
    return s->decoder && f->width == is->width && f->height == is->height &&
           f->left == is->left && f->top == is->top && f->right == is->right &&
           f->bottom == is->bottom && surfaces <= s->made[2];
}

/* Change the session's decoder. False if it must be made again. */
static bool video_change(
    const video_run *run, const video_format *f, unsigned surfaces) {
    video_session *s = run->session;
    video_changing changing;
    if (video_is_same(s, f, surfaces))
        return true;
    if (!s->decoder || f->width > s->made[0] || f->height > s->made[1] ||
        surfaces > s->made[2])
        return false;
    memset(&changing, 0, sizeof changing);
    changing.width = f->width;
    changing.height = f->height;
    changing.surfaces = s->made[2];
    changing.out_width = (unsigned)(f->right - f->left);
    changing.out_height = (unsigned)(f->bottom - f->top);
    changing.shown = video_area_of(f);
    return !run->videos->call.decoder_change(s->decoder, &changing);
}

/* Make the session's decoder fit a sequence. Returns 0 on failure. */
static int video_configure(video_run *run, const video_format *f, unsigned surfaces) {
    const cuda_videos *v = run->videos;
    video_session *s = run->session;
    video_making making;
    if (video_change(run, f, surfaces)) {
        s->format = *f;
        return 1;
    }
    video_close_decoder(v, s);
    memset(&making, 0, sizeof making);
    making.width = making.most_width = f->width;
    making.height = making.most_height = f->height;
    making.surfaces = surfaces;
    making.codec = f->codec;
    making.chroma = f->chroma;
    making.shown = video_area_of(f);
    making.format = VIDEO_NV12;
    making.out_width = (unsigned long)(f->right - f->left);
    making.out_height = (unsigned long)(f->bottom - f->top);
    making.out_surfaces = 1;
    int result = v->call.decoder_create(&s->decoder, &making);
    if (result) {
        s->decoder = NULL;
        return video_fail_call(run, result, "cuvidCreateDecoder");
    }
    s->made[0] = f->width;
    s->made[1] = f->height;
    s->made[2] = surfaces;
    s->format = *f;
    return 1;
}

/* A sequence starts, or its format changes. Returns the number of surfaces. */
static int video_on_sequence(void *user, video_format *f) {
    video_session *s = (video_session *)user;
    video_run *run = s->run;
    unsigned surfaces = f->surfaces + VIDEO_MORE;
    if (video_is_over(run))
        return 0;
    const video_caps *caps = &run->videos->caps[s->codec];
    if (f->codec != s->codec || f->chroma != VIDEO_CHROMA_420 || f->more_bits_luma ||
        f->more_bits_chroma || !f->progressive || surfaces > VIDEO_SURFACES ||
        f->width > INT16_MAX || f->height > INT16_MAX || f->left < 0 || f->top < 0 ||
        f->right > (int)f->width || f->bottom > (int)f->height ||
        !video_has_size(caps, f->width, f->height, true))
        return video_reject(run, "a format that the GPU does not support", true);
    if (!video_fits(run, f))
        return 0;
    if (run->pictures == 0)
        return video_configure(run, f, surfaces) ? (int)s->made[2] : 0;
    if (video_is_same(s, f, surfaces) &&
        video_is_full(s, f) == video_is_full(s, &s->format))
        return (int)s->made[2];
    return video_reject(run, "another format within a run", false);
}

/* Find out whether a picture is damaged. It stays open if the driver does not know yet.
 * A picture that was mapped must be known. */
static void video_settle(video_run *run, int surface, bool mapped) {
    const cuda_videos *v = run->videos;
    video_status status;
    memset(&status, 0, sizeof status);
    int result = v->call.status(run->session->decoder, surface, &status);
    bool unknown = status.status != VIDEO_STATUS_GOOD &&
                   status.status != VIDEO_STATUS_ERROR &&
                   status.status != VIDEO_STATUS_CONCEALED;
    if (!result && unknown && !mapped)
        return;
    run->surfaces[surface].open = false;
    if (result == VIDEO_NOT_SUPPORTED && run->session->codec == VIDEO_AV1)
        return;
    if (result == VIDEO_NOT_SUPPORTED)
        (void)video_reject(run, "a driver that does not report damage", true);
    else if (result || status.status != VIDEO_STATUS_GOOD)
        (void)video_reject(run, "a damaged picture", false);
}

/* Map a surface; returns its address, or 0 on failure. */
static cuda_address video_map(
    video_run *run, const video_shown *shown, unsigned *pitch) {
    video_mapping mapping;
    unsigned long long address = 0;
    memset(&mapping, 0, sizeof mapping);
    mapping.progressive = shown->progressive;
    mapping.second = shown->repeated + 1;
    mapping.top_first = shown->top_first;
    mapping.unpaired = shown->repeated < 0;
    mapping.stream = run->decoder->stream;
    int result = run->videos->call.map(
        run->session->decoder, shown->surface, &address, pitch, &mapping);
    if (result)
        (void)video_fail_call(run, result, "cuvidMapVideoFrame");
    return result ? 0 : address;
}

static void video_unmap(video_run *run, cuda_address address) {
    int result = run->videos->call.unmap(run->session->decoder, address);
    if (result)
        (void)video_fail_call(run, result, "cuvidUnmapVideoFrame");
}

/* Settle a picture whose surface is about to be decoded again, or at the end of a run.
 * The driver certainly knows its status once it was mapped. */
static void video_settle_now(video_run *run, int surface) {
    video_shown shown;
    unsigned pitch;
    video_settle(run, surface, false);
    if (!run->surfaces[surface].open || video_is_over(run))
        return;
    memset(&shown, 0, sizeof shown);
    shown.surface = surface;
    shown.progressive = 1;
    cuda_address address = video_map(run, &shown, &pitch);
    if (!address)
        return;
    run->code = bagi_cuda_finish(run->decoder, run->err);
    video_unmap(run, address);
    if (!run->code)
        video_settle(run, surface, true);
}

/* Decode a picture. */
static int video_on_decode(void *user, video_picture *picture) {
    video_session *s = (video_session *)user;
    video_run *run = s->run;
    int surface = picture->surface;
    if (video_is_over(run))
        return 0;
    if (!s->decoder || surface < 0 || surface >= (int)s->made[2])
        return video_reject(run, "a surface that does not exist", false);
    video_surface *at = &run->surfaces[surface];
    if (at->used && at->open)
        video_settle_now(run, surface);
    if (video_is_over(run))
        return 0;
    at->used = at->open = true;
    at->fed = run->fed;
    at->before = run->before;
    run->pictures++;
    /* The CPU reports damage. */
    if (run->videos->call.decode(s->decoder, picture))
        return video_reject(run, "cuvidDecodePicture failed", false);
    return 1;
}

/* Make an item from a mapped surface. */
static bags_code video_make_item(
    video_run *run, const video_want *want, cuda_address address, unsigned pitch) {
    bags_cuda_decoder *d = run->decoder;
    const bags_cuda_image *image = &run->images[want->image];
    cuda_address at = d->scratch + run->table_size;
    cuda_job job;
    size_t size;
    memset(&job, 0, sizeof job);
    FORMAT_TRY(bagi_cuda_plan(run->form, image, &job,
        run->table_size + cuda_align(sizeof job), &size, run->err));
    job.planes[0] = address;
    job.planes[1] = address + (cuda_address)pitch * image->image.height;
    job.pitch[0] = job.pitch[1] = pitch;
    job.video = video_is_full(run->session, &run->session->format) ? 2 : 1;
    job.weights += d->scratch;
    job.rows += d->scratch;
    job.table = run->form->table ? d->scratch : 0;
    job.out = run->out + want->image * run->item_size;
    FORMAT_TRY(bagi_cuda_copy(d, at, &job, sizeof job, run->err));
    FORMAT_TRY(bagi_cuda_resize(
        d, run->form, at, 1, (size_t)job.crop[3] * job.out_size[0], run->err));
    /* The next job is written to the same memory. */
    return bagi_cuda_finish(d, run->err);
}

/* True if a picture can be the one of its time stamp. It is decoded when its packet, or
 * at the latest the next one, is parsed. In AV1, a packet may show an earlier
 * picture. */
static bool video_is_of(const video_run *run, const video_shown *shown) {
    uint64_t packet = (uint64_t)shown->time;
    if (shown->surface < 0 || shown->surface >= VIDEO_SURFACES)
        return false;
    const video_surface *at = &run->surfaces[shown->surface];
    if (run->session->codec == VIDEO_AV1)
        return at->used && at->fed <= run->fed &&
               (packet == run->fed || packet == run->before);
    return at->used && (packet == at->fed || packet == at->before);
}

/* Show a picture: make the items that need it. */
static int video_on_display(void *user, video_shown *shown) {
    video_session *s = (video_session *)user;
    video_run *run = s->run;
    cuda_address address = 0;
    unsigned pitch = 0;
    if (!shown) /* the end of the stream */
        return 1;
    if (video_is_over(run))
        return 0;
    if (!video_fits(run, &s->format)) /* the session may be of another video */
        return 0;
    if (!video_is_of(run, shown))
        return video_reject(run, "a picture with the time stamp of another", false);
    for (size_t i = 0; i < run->count && !video_is_over(run); i++) {
        video_want *want = &run->wants[i];
        if (want->packet != (uint64_t)shown->time)
            continue;
        if (want->done)
            return video_reject(run, "a picture that was shown before", false);
        if (!address)
            address = video_map(run, shown, &pitch);
        if (!address)
            return 0;
        run->code = video_make_item(run, want, address, pitch);
    }
    for (size_t i = 0; i < run->count; i++)
        if (run->wants[i].packet == (uint64_t)shown->time)
            run->wants[i].done = true;
    if (address) {
        video_unmap(run, address);
        if (!video_is_over(run))
            video_settle(run, shown->surface, true);
    }
    return !video_is_over(run);
}

/* ---- runs ---- */

/* Find a session for a video, or prepare the least recently used session. */
static bags_code video_open_session(
    video_run *run, int codec, bags_view settings, bags_error *err) {
    cuda_videos *v = run->videos;
    video_session *s = NULL, *oldest = &v->sessions[0];
    video_parsing parsing;
    for (size_t i = 0; i < VIDEO_SESSIONS && !s; i++) {
        video_session *at = &v->sessions[i];
        if (at->codec == codec && at->parser && at->settings_size == settings.size &&
            !memcmp(at->settings.data, settings.data, settings.size))
            s = at;
        if (at->used < oldest->used)
            oldest = at;
    }
    run->session = s ? s : oldest;
    run->session->used = ++v->runs;
    run->session->run = run;
    if (s)
        return BAGS_OK;
    s = oldest;
    video_close_parser(v, s);
    if (s->codec != codec)
        video_close_decoder(v, s);
    s->codec = codec;
    FORMAT_TRY(bags_buffer_reserve(&s->settings, settings.size, err));
    memcpy(s->settings.data, settings.data, settings.size);
    s->settings_size = settings.size;
    memset(&parsing, 0, sizeof parsing);
    parsing.codec = codec;
    parsing.surfaces = 1; /* the sequence states the number */
    parsing.threshold = 100;
    parsing.user = s;
    parsing.sequence = video_on_sequence;
    parsing.decode = video_on_decode;
    parsing.display = video_on_display;
    int result = v->call.parser_create(&s->parser, &parsing);
    if (result)
        s->parser = NULL;
    return bagi_cuda_check(run->decoder->cuda, result, "cuvidCreateVideoParser", err);
}

/* Pass a packet to the parser; NULL: the end. Returns the failure of a callback. */
static bags_code video_feed(video_run *run, const video_writing *w, uint64_t number) {
    video_packet packet;
    memset(&packet, 0, sizeof packet);
    run->before = run->fed;
    if (w) {
        run->fed = number;
        run->packets++;
        packet.flags = VIDEO_STAMPED;
        /* A packet of AV1 may contain hidden pictures, too. */
        if (run->session->codec != VIDEO_AV1)
            packet.flags |= VIDEO_ONE_PICTURE;
        packet.data = w->to->data;
        packet.size = (unsigned long)w->used;
        packet.time = (long long)number;
    } else
        packet.flags = VIDEO_LAST;
    int result = run->videos->call.parse(run->session->parser, &packet);
    if (result && !run->code)
        (void)video_reject(run, "cuvidParseVideoData failed", false);
    return run->code;
}

/* Parse the packets of a run, until the last frame that is needed. */
static bags_code video_parse(
    video_run *run, const bags_mp4_place *from, uint64_t last) {
    const bags_cuda_video *video = run->video;
    bags_error why;
    int64_t start = 0;
    for (uint64_t n = from->first; n <= last && !run->rejected; n++) {
        video_writing w = {&run->videos->stream, 0, &why};
        bags_mp4_packet packet;
        bool is_key = true, first = n == from->first;
        if (video->packet(video->reader, n, last, &packet, &why)) {
            (void)video_reject(run, "a packet that cannot be read", false);
            break;
        }
        start = first ? packet.time : start;
        if (packet.time < start) /* its references were not decoded */
            continue;
        bags_code code = video_rewrite(
            &w, run->session->codec, from->settings, packet.data, first, &is_key);
        if (code == BAGS_ERROR_MEMORY)
            return bags_fail(run->err, code, "%s", why.message);
        if (code)
            (void)video_reject(run, "a packet that contradicts itself", false);
        else if (first && !is_key)
            (void)video_reject(run, "a keyframe that refers to earlier frames", true);
        else
            FORMAT_TRY(video_feed(run, &w, n));
    }
    return run->rejected ? BAGS_OK : video_feed(run, NULL, 0);
}

/* Decode the frames that follow one keyframe. */
static bags_code video_run_all(video_run *run, bags_error *err) {
    const bags_cuda_video *video = run->video;
    const video_want *wants = run->wants;
    cuda_videos *v = run->videos;
    const bags_mp4_info *info = video->info(video->reader);
    bags_mp4_place place =
        video->place(video->reader, run->images[wants[0].image].frame);
    uint64_t hash = video_hash(info, place.settings);
    run->states_full_range = place.full_range;
    run->fed = run->before = place.first;
    bags_code code = video_open_session(run, video_codec(info), place.settings, err);
    if (!code)
        code = video_parse(run, &place, wants[run->count - 1].packet);
    for (int i = 0; i < VIDEO_SURFACES && !code && !video_is_over(run); i++)
        if (run->surfaces[i].used && run->surfaces[i].open)
            video_settle_now(run, i);
    code = code ? code : run->code;
    /* A picture that the parser skips may be needed by others. */
    if (!code && run->session->codec != VIDEO_AV1 && run->pictures < run->packets)
        (void)video_reject(run, "a packet without a picture", false);
    for (size_t i = 0; i < run->count && !code; i++)
        if (!wants[i].done)
            (void)video_reject(run, "a picture was not shown", false);
    run->session->run = NULL;
    if (code || run->rejected) {
        bags_error unused;
        (void)bagi_cuda_finish(run->decoder, &unused);
        video_close_session(v, run->session);
    }
    if (run->rejected && run->unsupported)
        v->refused[v->refused_count++ % VIDEO_REFUSED] = hash;
    if (code || !run->rejected)
        return code;
    return bags_fail(err, BAGS_ERROR_CORRUPT, "GPU %" PRIu32 ": %s",
        run->decoder->cuda->options.device, run->rejected);
}

static int video_compare(const void *a, const void *b) {
    const video_want *x = (const video_want *)a, *y = (const video_want *)b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->packet < y->packet ? -1 : x->packet > y->packet;
}

/* Locate the frames, and reserve the decoder's memory for the largest. */
static bags_code video_prepare(video_run *run, const size_t *which, bags_error *err) {
    const bags_cuda_video *video = run->video;
    const bags_cuda_form *form = run->form;
    bags_cuda_decoder *d = run->decoder;
    const bags_mp4_info *info = video->info(video->reader);
    size_t pixels = bags_dtype_size(form->dtype), most = 0, size = 0;
    for (size_t i = 0; i < run->count; i++) {
        const bags_cuda_image *image = &run->images[which[i]];
        cuda_job unused;
        if (!image->is_frame || image->frame >= info->frames ||
            image->image.width != info->width || image->image.height != info->height)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "not a frame of the video");
        bags_mp4_place place = video->place(video->reader, image->frame);
        video_want want = {place.first, place.packet, which[i], false};
        run->wants[i] = want;
        FORMAT_TRY(bagi_cuda_plan(form, image, &unused, 0, &size, err));
        most = size > most ? size : most;
    }
    qsort(run->wants, run->count, sizeof *run->wants, video_compare);
    run->item_size = (size_t)form->width * form->height * form->channels * pixels;
    run->table_size =
        form->table ? cuda_align((size_t)256 * form->channels * pixels) : 0;
    FORMAT_TRY(bagi_cuda_reserve(
        d, run->table_size + cuda_align(sizeof(cuda_job)) + most, err));
    FORMAT_TRY(bagi_cuda_await(d, err));
    if (!form->table)
        return BAGS_OK;
    return bagi_cuda_copy(
        d, d->scratch, form->table, (size_t)256 * form->channels * pixels, err);
}

/* Decode all frames, each group with the same keyframe in a run. */
static bags_code video_make(video_run *run, const size_t *which, bags_error *err) {
    size_t all = run->count;
    FORMAT_TRY(video_prepare(run, which, err));
    video_want *wants = run->wants;
    for (size_t start = 0, stop = 0; start < all; start = stop) {
        while (stop < all && wants[stop].first == wants[start].first)
            stop++;
        run->wants = wants + start;
        run->count = stop - start;
        run->packets = run->pictures = 0;
        memset(run->surfaces, 0, sizeof run->surfaces);
        FORMAT_TRY(video_run_all(run, err));
    }
    return BAGS_OK;
}

bags_code bags_cuda_make_frames(bags_cuda_decoder *d, const bags_cuda_form *form,
    const bags_cuda_video *video, const bags_cuda_image *images, const size_t *which,
    size_t count, void *out, bags_error *err) {
    bags_error local;
    bags_image image;
    video_run run;
    if (!err)
        err = &local;
    if (count == 0)
        return BAGS_OK;
    FORMAT_TRY(bagi_cuda_check_form(form, err));
    if (!bags_cuda_probe_video(d, video, images[which[0]].frame, &image))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "GPU %" PRIu32 ": a video that the GPU does not support",
            d->cuda->options.device);
    memset(&run, 0, sizeof run);
    run.decoder = d;
    run.videos = d->videos;
    run.form = form;
    run.video = video;
    run.images = images;
    run.out = (cuda_address)(uintptr_t)out;
    run.count = count;
    run.err = err;
    if (count > SIZE_MAX / sizeof(video_want))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    FORMAT_TRY(
        bags_buffer_reserve(&run.videos->wants, count * sizeof(video_want), err));
    run.wants = (video_want *)(void *)run.videos->wants.data;
    FORMAT_TRY(bagi_cuda_enter(d->cuda, err));
    bags_code code = video_make(&run, which, err);
    bagi_cuda_leave(d->cuda);
    return code;
}
