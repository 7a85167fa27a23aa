/*
 * formats/mp4.c: what Python wrote, what ffmpeg wrote, what we write, and what
 * nobody should have written.
 */
// flavours: check: asan
#include "../../bags.h"
#include "../../formats/formats.h"

#include <dlfcn.h>
#include <libavcodec/avcodec.h>
#include <libavutil/log.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#define TEST(function) cmocka_unit_test(function)

#define VIDEO "tests/data/video/"
#define GOLDEN "tests/data/golden/"

/* libx265 keeps some memory of each encoder. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libx265\n"; }

static char scratch_directory[256];
static bool have_ffmpeg, have_ffprobe;

/* ------------------------------------------------------------------------
 * Helpers
 * --------------------------------------------------------------------- */

/* The calls that pass packets to decoders, in place of libavcodec's. */
static int packets_sent;

int avcodec_send_packet(AVCodecContext *codec, const AVPacket *packet) {
    static int (*next)(AVCodecContext * codec, const AVPacket *packet);
    if (!next) {
        void *symbol = dlsym(RTLD_NEXT, "avcodec_send_packet");
        memcpy(&next, &symbol, sizeof next);
    }
    __atomic_add_fetch(&packets_sent, packet != NULL, __ATOMIC_RELAXED);
    return next(codec, packet);
}

/* What FFmpeg would have printed. Helpers that speak for no context, and those
 * of images, cannot be hushed. */
static int printed;

static void on_log(void *context, int level, const char *format, va_list list) {
    const AVClass *speaker = context ? *(const AVClass **)context : NULL;
    if (level > AV_LOG_INFO || !speaker || strcmp(speaker->class_name, "IMGUTILS") == 0)
        return;
    __atomic_add_fetch(&printed, 1, __ATOMIC_RELAXED);
    vprintf(format, list);
}

static bags_view read_file(const char *path) {
    bags_view bytes = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    bytes.size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = (unsigned char *)malloc(bytes.size ? bytes.size : 1);
    assert_int_equal(fread(data, 1, bytes.size, file), bytes.size);
    fclose(file);
    bytes.data = data;
    return bytes;
}

static void drop(bags_view bytes) { free((void *)(uintptr_t)bytes.data); }

static const char *write_file(bags_view blob, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch_directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(blob.data, 1, blob.size, file), blob.size);
    fclose(file);
    return path;
}

/* What a command prints. */
static bags_view output_of(const char *command) {
    bags_view bytes = {NULL, 0};
    unsigned char *data = NULL;
    size_t capacity = 0;
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    for (;;) {
        if (capacity - bytes.size < 65536)
            data = (unsigned char *)realloc(data, capacity = capacity * 2 + 131072);
        size_t part = fread(data + bytes.size, 1, 65536, pipe);
        if (part == 0)
            break;
        bytes.size += part;
    }
    pclose(pipe);
    bytes.data = data;
    return bytes;
}

/* ffmpeg's own decoding: every frame once, RGB, scaled as PyAV does. */
static bags_view decoded_by_ffmpeg(const char *path) {
    static const char *const modes[] = {"-vsync", "-fps_mode"};
    bags_view bytes = {NULL, 0};
    for (int i = 0; i < 2 && bytes.size == 0; i++) {
        char command[1024];
        free((void *)(uintptr_t)bytes.data);
        snprintf(command, sizeof command,
            "ffmpeg -v quiet -autorotate 0 -i '%s' -map 0:v:0 %s passthrough "
            "-sws_flags bilinear -f rawvideo -pix_fmt rgb24 - </dev/null "
            "2>/dev/null",
            path, modes[i]);
        bytes = output_of(command);
    }
    return bytes;
}

static double psnr(const void *a, const void *b, size_t size) {
    const unsigned char *x = (const unsigned char *)a;
    const unsigned char *y = (const unsigned char *)b;
    double sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sum == 0 ? 999 : 10 * log10(255.0 * 255.0 * (double)size / sum);
}

static void assert_alike(bags_value value, const char *path) {
    bags_view theirs = decoded_by_ffmpeg(path);
    if (theirs.size != value.size)
        fail_msg("%s: ffmpeg decodes %zu bytes, we %zu", path, theirs.size, value.size);
    double quality = psnr(value.data, theirs.data, value.size);
    if (quality < 40)
        fail_msg("%s: PSNR %.1f dB against ffmpeg", path, quality);
    drop(theirs);
}

/* Smooth images that move. */
static unsigned char *make_frames(size_t frames, size_t height, size_t width) {
    unsigned char *data = (unsigned char *)malloc(frames * height * width * 3 + 1),
                  *to = data;
    for (size_t t = 0; t < frames; t++)
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) {
                double s = (double)x / (double)width, r = (double)y / (double)height,
                       u = (double)t / 20;
                *to++ = (unsigned char)(127 + 100 * sin(3 * s + u));
                *to++ = (unsigned char)(127 + 100 * sin(3 * r - u));
                *to++ = (unsigned char)(127 + 100 * sin(2 * (s + r)));
            }
    return data;
}

/* A codec as a registry opens it. */
typedef struct opened {
    bags_registry *codecs;
    const bags_codec *codec;
    void *state;
} opened;

static void *resize(void *user, void *data, size_t old_size, size_t new_size) {
    (void)user;
    (void)old_size;
    if (new_size)
        return realloc(data, new_size);
    free(data);
    return NULL;
}

static bags_code open_codec(
    opened *out, const char *type, const bags_mp4_options *options, bags_error *err) {
    static const bags_allocator memory = {resize, NULL};
    bags_type parsed;
    bags_codec mine = bags_codec_mp4;
    mine.user = (void *)(uintptr_t)options;
    memset(out, 0, sizeof *out);
    out->codecs = bags_registry_create(NULL, err);
    assert_non_null(out->codecs);
    assert_int_equal(bags_registry_add(out->codecs, &mine, err), BAGS_OK);
    assert_int_equal(bags_type_parse(type, &parsed, err), BAGS_OK);
    out->codec = bags_registry_find(out->codecs, parsed.name);
    assert_non_null(out->codec);
    return out->codec->open(out->codec, &parsed, &memory, &out->state, err);
}

static void close_codec(opened *codec) {
    if (codec->state)
        codec->codec->close(codec->state);
    bags_registry_free(codec->codecs);
}

static bool can_encode(const char *type) {
    opened codec;
    bags_error err;
    bags_buffer scratch = {0};
    bags_view blob;
    unsigned char *data = make_frames(1, 32, 32);
    uint64_t shape[4] = {1, 32, 32, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    assert_int_equal(open_codec(&codec, type, NULL, &err), BAGS_OK);
    bool can = !codec.codec->encode(codec.state, &value, &scratch, &blob, &err);
    close_codec(&codec);
    bags_buffer_free(&scratch);
    free(data);
    if (!can)
        printf("skipped: %s: %s\n", type, err.message);
    return can;
}

/* Encode; the buffer holds the blob. */
static bags_view encode(const char *type, size_t frames, size_t height, size_t width,
    const void *data, bags_buffer *buffer) {
    opened codec;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_view blob = {NULL, 0};
    uint64_t shape[4] = {frames, height, width, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    assert_int_equal(open_codec(&codec, type, NULL, &err), BAGS_OK);
    if (codec.codec->encode(codec.state, &value, buffer, &blob, &err))
        fail_msg("%s %zu x %zu: %s", type, height, width, err.message);
    close_codec(&codec);
    return blob;
}

static bags_value decode(bags_view blob, bags_buffer *scratch) {
    opened codec;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_value value;
    assert_int_equal(open_codec(&codec, "mp4", NULL, &err), BAGS_OK);
    if (codec.codec->decode(codec.state, blob, scratch, &value, &err))
        fail_msg("%s", err.message);
    close_codec(&codec);
    assert_int_equal(value.kind, BAGS_KIND_ARRAY);
    assert_int_equal(value.dtype, BAGS_DTYPE_UINT8);
    assert_int_equal(value.dims, 4);
    assert_int_equal(value.shape[3], 3);
    assert_int_equal(value.size, value.shape[0] * value.shape[1] * value.shape[2] * 3);
    return value;
}

/* Where a box's name is, searched from byte `at`. */
static size_t find_box(bags_view blob, const char *name, size_t at) {
    for (; at + 4 <= blob.size; at++)
        if (memcmp(blob.data + at, name, 4) == 0)
            return at;
    fail_msg("no box %s", name);
    return 0;
}

static uint32_t load_big(const unsigned char *data) {
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 |
           data[3];
}

static void store_big(unsigned char *data, uint32_t number) {
    for (int i = 0; i < 4; i++)
        data[i] = (unsigned char)(number >> (24 - 8 * i));
}

/* Sample n of an MP4 whose samples are contiguous. */
static void find_sample(bags_view blob, size_t n, size_t *at, size_t *size) {
    const unsigned char *sizes = blob.data + find_box(blob, "stsz", 0) + 16;
    *at = load_big(blob.data + find_box(blob, "stco", 0) + 12);
    for (size_t i = 0; i < n; i++)
        *at += load_big(sizes + 4 * i);
    *size = load_big(sizes + 4 * n);
}

/* ------------------------------------------------------------------------
 * Reading what others wrote
 * --------------------------------------------------------------------- */

typedef struct clip {
    const char *name;
    const char *codec;
    uint64_t frames, height, width;
    uint32_t fps_num, fps_den;
    bool differs; /* from what ffmpeg shows: it also shows frames that need
                     missing ones, and heeds BT.709, unlike PyAV */
} clip;

static const clip clips[] = {
    {"video.mp4", "h264", 140, 144, 256, 30, 1, false},
    {"av1.mp4", "av1", 20, 48, 64, 25, 1, false},
    {"h264.mkv", "h264", 60, 48, 64, 25, 1, false},
    {"h264_cut_open_gop.mkv", "h264", 21, 48, 64, 25, 1, false},
    {"h264_cut_open_gop.mp4", "h264", 20, 48, 64, 25, 1, false},
    {"h264_422.mp4", "h264", 20, 48, 64, 25, 1, false},
    {"h264_bt709.mp4", "h264", 20, 48, 64, 25, 1, true},
    {"h264_edit_list.mp4", "h264", 46, 48, 64, 25, 1, false},
    {"h264_fragments.mp4", "h264", 60, 48, 64, 25, 1, false},
    {"h264_full_range.mp4", "h264", 20, 48, 64, 25, 1, false},
    {"h264_no_key_at_start.mp4", "h264", 40, 48, 64, 25, 1, false},
    {"h264_open_gop.mp4", "h264", 45, 48, 64, 25, 1, false},
    {"h264_variable_rate.mp4", "h264", 40, 48, 64, 100, 9, false},
    {"hevc_cut_open_gop.mkv", "hevc", 21, 48, 64, 25, 1, false},
    {"hevc_cut_open_gop.mp4", "hevc", 20, 48, 64, 25, 1, false},
    {"hevc_10_bit.mp4", "hevc", 20, 48, 64, 25, 1, false},
    {"hevc_no_key_at_start.mp4", "hevc", 33, 48, 64, 25, 1, true},
    {"hevc_open_gop.mp4", "hevc", 45, 48, 64, 25, 1, false},
    {"mpeg4_b_frames.mp4", "mpeg4", 40, 48, 64, 25, 1, false},
    {"mpeg4_no_key_at_start.mp4", "mpeg4", 31, 48, 64, 25, 1, true},
    {"mpeg4_odd.mp4", "mpeg4", 12, 49, 65, 24000, 1001, false},
    {"vp8_hidden.webm", "vp8", 40, 48, 64, 25, 1, false},
    {"vp9_hidden.mp4", "vp9", 40, 48, 64, 25, 1, false},
    {"vp9_hidden.webm", "vp9", 40, 48, 64, 25, 1, false},
    {"vp9_odd.webm", "vp9", 12, 49, 65, 24000, 1001, false},
    {"vp9_variable_rate.webm", "vp9", 40, 48, 64, 25, 1, false},
};
#define CLIPS (sizeof clips / sizeof *clips)

static bool can_decode(const clip *from) {
    const AVCodecDescriptor *codec = avcodec_descriptor_get_by_name(from->codec);
    if (codec && avcodec_find_decoder(codec->id))
        return true;
    printf("skipped: %s: no decoder\n", from->name);
    return false;
}

static bags_view read_clip(const clip *from) {
    char path[256];
    snprintf(path, sizeof path, VIDEO "%s", from->name);
    return read_file(path);
}

static void a_probe_reports_frames_size_and_rate(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIPS; i++) {
        const clip *want = &clips[i];
        bags_view blob = read_clip(want);
        bags_mp4_info info;
        bags_error err = {BAGS_OK, 0, "", 0};
        if (bags_mp4_probe(blob, NULL, &info, &err))
            fail_msg("%s: %s", want->name, err.message);
        if (info.frames != want->frames || info.height != want->height ||
            info.width != want->width || info.fps_num != want->fps_num ||
            info.fps_den != want->fps_den || strcmp(info.codec, want->codec) != 0)
            fail_msg("%s: %s %llu x %llu x %llu at %u/%u", want->name, info.codec,
                (unsigned long long)info.frames, (unsigned long long)info.height,
                (unsigned long long)info.width, info.fps_num, info.fps_den);
        drop(blob);
    }
}

static void clips_decode_as_ffmpeg_decodes_them(void **state) {
    (void)state;
    bags_buffer scratch = {0};
    if (!have_ffmpeg)
        skip();
    for (size_t i = 0; i < CLIPS; i++) {
        char path[256];
        if (!can_decode(&clips[i]))
            continue;
        bags_view blob = read_clip(&clips[i]);
        bags_value value = decode(blob, &scratch);
        snprintf(path, sizeof path, VIDEO "%s", clips[i].name);
        assert_int_equal(value.shape[0], clips[i].frames);
        if (!clips[i].differs)
            assert_alike(value, path);
        drop(blob);
    }
    bags_buffer_free(&scratch);
}

/* PyAV's default conversion, exactly: odd sizes, 10 bits, 4:2:2, full range. */
static void frames_equal_those_of_pyav(void **state) {
    (void)state;
    static const char *const names[] = {"av1.mp4", "h264_422.mp4", "h264_bt709.mp4",
        "h264_full_range.mp4", "hevc_10_bit.mp4", "mpeg4_odd.mp4", "vp9_odd.webm"};
    bags_buffer scratch = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, VIDEO "%s", names[i]);
        bags_view blob = read_file(path);
        snprintf(path, sizeof path, VIDEO "%s.pyav.rgb", names[i]);
        bags_view wanted = read_file(path);
        bags_value value = decode(blob, &scratch);
        const unsigned char *frame =
            (const unsigned char *)value.data + 5 * wanted.size;
        assert_int_equal(value.size, value.shape[0] * wanted.size);
        if (memcmp(frame, wanted.data, wanted.size) != 0)
            fail_msg("%s: PSNR %.1f dB against PyAV", names[i],
                psnr(frame, wanted.data, wanted.size));
        drop(blob);
        drop(wanted);
    }
    bags_buffer_free(&scratch);
}

static void a_codec_opens_without_an_allocator(void **state) {
    (void)state;
    bags_type type;
    bags_error err;
    void *made = NULL;
    assert_int_equal(bags_type_parse("mp4(15)", &type, &err), BAGS_OK);
    assert_int_equal(
        bags_codec_mp4.open(&bags_codec_mp4, &type, NULL, &made, &err), BAGS_OK);
    bags_codec_mp4.close(made);
}

/* Frames that follow a keyframe are the same, whatever is missing before. */
static void frames_before_the_first_keyframe_are_skipped(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"hevc_no_key_at_start.mp4", "hevc_open_gop.mp4"},
        {"mpeg4_no_key_at_start.mp4", "mpeg4_b_frames.mp4"},
        {"h264_cut_open_gop.mkv", "h264_open_gop.mp4"},
        {"h264_cut_open_gop.mp4", "h264_open_gop.mp4"},
        {"hevc_cut_open_gop.mkv", "hevc_open_gop.mp4"},
        {"hevc_cut_open_gop.mp4", "hevc_open_gop.mp4"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        bags_buffer cut = {0}, whole = {0};
        char path[256];
        snprintf(path, sizeof path, VIDEO "%s", pairs[i][0]);
        bags_view cut_blob = read_file(path);
        snprintf(path, sizeof path, VIDEO "%s", pairs[i][1]);
        bags_view whole_blob = read_file(path);
        bags_value a = decode(cut_blob, &cut), b = decode(whole_blob, &whole);
        assert_true(a.size < b.size);
        assert_memory_equal(
            a.data, (const unsigned char *)b.data + (b.size - a.size), a.size);
        drop(cut_blob);
        drop(whole_blob);
        bags_buffer_free(&cut);
        bags_buffer_free(&whole);
    }
}

/* Every blob of the golden fields that are videos. */
static void golden_clips_decode_as_ffmpeg_decodes_them(void **state) {
    (void)state;
    static const struct {
        const char *path;
        uint64_t blobs, frames, height, width;
        uint32_t fps;
        const char *codec;
    } bags[] = {
        {"bags-0.5.1/ds-types/data/clip", 2, 4, 32, 48, 15, "mpeg4"},
        {"bags-0.5.1/ds-lists/data/clips", 4, 2, 16, 16, 10, "mpeg4"},
        {"granular-0.16.1/ds-types/data/clip", 2, 4, 32, 48, 20, "h264"},
        {"granular-0.16.1/ds-types/data/web", 2, 4, 32, 48, 20, "vp9"},
        {"granular-0.16.1/ds-lists/data/clips", 4, 2, 16, 16, 20, "h264"},
        {"granular-0.21.0/ds-types/data/clip", 2, 4, 32, 48, 20, "h264"},
        {"granular-0.21.0/ds-types/data/web", 2, 4, 32, 48, 20, "vp9"},
        {"granular-0.21.0/ds-lists/data/clips", 4, 2, 16, 16, 20, "h264"},
        {"granular-0.22.0a1/ds-types/data/clip", 2, 4, 32, 48, 20, "h264"},
        {"granular-0.22.0a1/ds-types/data/web", 2, 4, 32, 48, 20, "vp9"},
    };
    bags_buffer scratch = {0}, bytes = {0};
    for (size_t i = 0; i < sizeof bags / sizeof *bags; i++) {
        char path[256];
        bags_error err = {BAGS_OK, 0, "", 0};
        snprintf(path, sizeof path, GOLDEN "%s.bag", bags[i].path);
        bag_reader *reader = bag_reader_open(path, NULL, &err);
        if (!reader)
            fail_msg("%s", err.message);
        /* The types' lists have a datapoint with more, and an empty one. */
        assert_true(bag_reader_length(reader) >= bags[i].blobs);
        for (uint64_t n = 0; n < bag_reader_length(reader); n++) {
            bags_view blob;
            bags_mp4_info info;
            assert_int_equal(bag_reader_get(reader, n, &bytes, &blob, &err), BAGS_OK);
            bags_value value = decode(blob, &scratch);
            assert_int_equal(value.shape[0], bags[i].frames);
            assert_int_equal(value.shape[1], bags[i].height);
            assert_int_equal(value.shape[2], bags[i].width);
            assert_int_equal(bags_mp4_probe(blob, NULL, &info, &err), BAGS_OK);
            assert_string_equal(info.codec, bags[i].codec);
            assert_int_equal(info.fps_num, bags[i].fps);
            assert_int_equal(info.fps_den, 1);
            if (have_ffmpeg)
                assert_alike(value, write_file(blob, "golden"));
        }
        bag_reader_close(reader);
    }
    if (!have_ffmpeg)
        printf("skipped: comparison with ffmpeg, which is not installed\n");
    bags_buffer_free(&scratch);
    bags_buffer_free(&bytes);
}

static void assert_range(bags_mp4_reader *reader, bags_value whole, uint64_t start,
    uint64_t stop, uint64_t step, bags_buffer *scratch) {
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_value value;
    size_t size = (size_t)(whole.shape[1] * whole.shape[2] * 3);
    const unsigned char *all = (const unsigned char *)whole.data;
    if (bags_mp4_reader_get(reader, start, stop, step, scratch, &value, &err))
        fail_msg("%llu to %llu by %llu: %s", (unsigned long long)start,
            (unsigned long long)stop, (unsigned long long)step, err.message);
    const unsigned char *some = (const unsigned char *)value.data;
    uint64_t n = 0;
    if (stop > whole.shape[0])
        stop = whole.shape[0];
    for (uint64_t i = start; i < stop; i += step ? step : 1, n++)
        if (memcmp(some + n * size, all + i * size, size) != 0)
            fail_msg("frame %llu of %llu to %llu by %llu is another",
                (unsigned long long)i, (unsigned long long)start,
                (unsigned long long)stop, (unsigned long long)step);
    assert_int_equal(value.shape[0], n);
}

static void every_range_has_the_frames_of_the_entire_video(void **state) {
    (void)state;
    bags_buffer all = {0}, scratch = {0};
    for (size_t i = 0; i < CLIPS; i++) {
        bags_error err = {BAGS_OK, 0, "", 0};
        if (!can_decode(&clips[i]))
            continue;
        bags_view blob = read_clip(&clips[i]);
        bags_value whole = decode(blob, &all);
        uint64_t frames = whole.shape[0];
        bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
        assert_non_null(reader);
        for (uint64_t n = 0; n < frames; n += 3) /* on and on */
            assert_range(reader, whole, n, n + 3, 1, &scratch);
        for (uint64_t n = frames; n-- > 0;) /* backwards */
            assert_range(reader, whole, n, n + 1, 0, &scratch);
        for (uint64_t step = 2; step < frames; step = step * 2 + 1)
            assert_range(reader, whole, step / 2, UINT64_MAX, step, &scratch);
        for (uint64_t n = 0, at = 5; n < 20; n++, at = (at * 7 + 3) % frames)
            assert_range(reader, whole, at, at + n, 1 + n % 4, &scratch);
        assert_range(reader, whole, 0, UINT64_MAX, 1, &scratch);
        assert_range(reader, whole, frames, UINT64_MAX, 1, &scratch);
        assert_range(reader, whole, 4, 4, 1, &scratch);
        bags_mp4_reader_close(reader);
        drop(blob);
    }
    bags_buffer_free(&all);
    bags_buffer_free(&scratch);
}

/* Leading pictures need the GOP before. A frame is complete when those on which it may
 * depend have left the decoder. */
static void a_seek_decodes_from_its_keyframe(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t frames;
        int most; /* packets: of two GOPs, and those that the decoder holds back */
    } videos[] = {{"h264_open_gop.mp4", 45, 26}, {"hevc_open_gop.mp4", 45, 26},
        {"mpeg4_b_frames.mp4", 40, 12}, {"h264_cut_open_gop.mp4", 20, 24}};
    bags_buffer scratch = {0};
    for (size_t i = 0; i < sizeof videos / sizeof *videos; i++) {
        char path[256];
        bags_error err = {BAGS_OK, 0, "", 0};
        bags_value value;
        snprintf(path, sizeof path, VIDEO "%s", videos[i].name);
        bags_view blob = read_file(path);
        bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
        assert_non_null(reader);
        int most = 0;
        for (uint64_t n = videos[i].frames; n-- > 0;) {
            packets_sent = 0;
            assert_int_equal(
                bags_mp4_reader_get(reader, n, n + 1, 1, &scratch, &value, &err),
                BAGS_OK);
            most = packets_sent > most ? packets_sent : most;
        }
        if (most > videos[i].most)
            fail_msg("%s: a seek decodes %d packets", videos[i].name, most);
        bags_mp4_reader_close(reader);
        reader = bags_mp4_reader_open(blob, NULL, &err);
        assert_non_null(reader);
        packets_sent = 0;
        for (uint64_t n = 0; n < videos[i].frames; n++)
            assert_int_equal(
                bags_mp4_reader_get(reader, n, n + 1, 1, &scratch, &value, &err),
                BAGS_OK);
        assert_in_range(packets_sent, videos[i].frames, videos[i].frames + 4);
        bags_mp4_reader_close(reader);
        drop(blob);
    }
    bags_buffer_free(&scratch);
}

static void frames_go_into_the_callers_memory(void **state) {
    (void)state;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer all = {0};
    bags_view blob = read_file(VIDEO "mpeg4_odd.mp4");
    bags_value whole = decode(blob, &all);
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
    size_t size = 49 * 65 * 3;
    unsigned char *data = (unsigned char *)malloc(size * 3);
    uint64_t frames = 77;
    assert_non_null(reader);
    assert_int_equal(
        bags_mp4_reader_get_into(reader, 2, 8, 2, data, size * 3, &frames, &err),
        BAGS_OK);
    assert_int_equal(frames, 3);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(data + i * size,
            (const unsigned char *)whole.data + (2 + 2 * i) * size, size);
    frames = 77;
    assert_int_equal(
        bags_mp4_reader_get_into(reader, 2, 8, 2, data, size * 3 - 1, &frames, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(frames, 77);
    assert_int_equal(
        bags_mp4_reader_get_into(reader, 8, 2, 1, data, size * 3, &frames, &err),
        BAGS_ERROR_RANGE);
    assert_int_equal(
        bags_mp4_reader_get_into(reader, 12, 99, 1, NULL, 0, &frames, &err), BAGS_OK);
    assert_int_equal(frames, 0);
    bags_mp4_reader_close(reader);
    bags_buffer_free(&all);
    free(data);
    drop(blob);
}

/* ------------------------------------------------------------------------
 * Writing
 * --------------------------------------------------------------------- */

static void assert_ffprobe(
    bags_view blob, const char *fps, size_t frames, size_t height, size_t width) {
    char command[1024], want[128];
    if (!have_ffprobe)
        return;
    snprintf(command, sizeof command,
        "ffprobe -v error -count_frames -select_streams v -show_entries "
        "stream=width,height,avg_frame_rate,nb_read_frames -of csv=p=0 '%s' "
        "2>&1",
        write_file(blob, "probed"));
    int size =
        snprintf(want, sizeof want, "%zu,%zu,%s,%zu", width, height, fps, frames);
    bags_view said = output_of(command);
    if (said.size < (size_t)size || memcmp(said.data, want, (size_t)size) != 0)
        fail_msg("ffprobe says %.*s instead of %s", (int)said.size, said.data, want);
    drop(said);
}

static void what_is_encoded_comes_back(void **state) {
    (void)state;
    static const struct {
        const char *type, *fps, *codec;
        size_t least; /* height and width */
    } types[] = {
        {"mp4", "15/1", "mpeg4", 1},
        {"mp4(30)", "30/1", "mpeg4", 1},
        {"mp4(12.5,mpeg4)", "25/2", "mpeg4", 1},
        {"mp4(29.97,h264)", "30000/1001", "h264", 1},
        {"mp4(20,hevc)", "20/1", "hevc", 16},
        {"mp4(23.976,vp9)", "24000/1001", "vp9", 1},
        {"mp4(25,av1)", "25/1", "av1", 1},
        {"webm", "20/1", "vp9", 1},
        {"webm(25,av1)", "25/1", "av1", 1},
    };
    static const size_t sizes[][2] = {
        {1, 1}, {1, 7}, {3, 5}, {4, 2}, {33, 47}, {48, 64}, {63, 17}, {90, 121}};
    bags_buffer written = {0}, again = {0}, scratch = {0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!can_encode(types[i].type))
            continue;
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            if (getenv("BAGS_QUICK") && j % 4 != i % 4)
                continue; /* two sizes of each type */
            size_t height = sizes[j][0], width = sizes[j][1], frames = 13;
            bags_mp4_info info;
            bags_error err = {BAGS_OK, 0, "", 0};
            if (height < types[i].least || width < types[i].least)
                continue;
            unsigned char *data = make_frames(frames, height, width);
            bags_view blob =
                encode(types[i].type, frames, height, width, data, &written);
            bags_view twice =
                encode(types[i].type, frames, height, width, data, &again);
            /* libx264 and libx265 do not promise it. */
            bool same =
                blob.size == twice.size && !memcmp(blob.data, twice.data, blob.size);
            if (!same && strcmp(types[i].codec, "h264") != 0 &&
                strcmp(types[i].codec, "hevc") != 0)
                fail_msg("%s %zu x %zu: other bytes the second time", types[i].type,
                    height, width);
            assert_int_equal(bags_mp4_probe(blob, NULL, &info, &err), BAGS_OK);
            assert_string_equal(info.codec, types[i].codec);
            bags_value value = decode(blob, &scratch);
            assert_int_equal(value.shape[0], frames);
            assert_int_equal(value.shape[1], height);
            assert_int_equal(value.shape[2], width);
            double quality = psnr(value.data, data, value.size);
            if (quality < (height < 16 || width < 16 ? 18 : 30))
                fail_msg("%s %zu x %zu: PSNR %.1f dB", types[i].type, height, width,
                    quality);
            assert_ffprobe(blob, types[i].fps, frames, height, width);
            if (have_ffmpeg)
                assert_alike(value, write_file(blob, "alike"));
            free(data);
        }
    }
    if (!have_ffprobe)
        printf("skipped: comparison with ffprobe, which is not installed\n");
    bags_buffer_free(&written);
    bags_buffer_free(&again);
    bags_buffer_free(&scratch);
}

/* The order of the boxes, the brand and the settings in the headers. */
static void default_files_have_the_layout_of_pythons(void **state) {
    (void)state;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer ours_buffer = {0}, theirs_buffer = {0};
    bags_view theirs;
    unsigned char *data = make_frames(4, 32, 48);
    bags_view ours = encode("mp4", 4, 32, 48, data, &ours_buffer);
    bag_reader *reader =
        bag_reader_open(GOLDEN "bags-0.5.1/ds-types/data/clip.bag", NULL, &err);
    assert_non_null(reader);
    assert_int_equal(bag_reader_get(reader, 0, &theirs_buffer, &theirs, &err), BAGS_OK);
    assert_memory_equal(ours.data, theirs.data, 28); /* ftyp */
    assert_memory_equal(ours.data + 32, "moov", 4);  /* after the frames in theirs */
    size_t a = find_box(ours, "moov", 0) - 4, b = find_box(theirs, "moov", 0) - 4;
    assert_int_equal(load_big(ours.data + a), load_big(theirs.data + b));
    a += load_big(ours.data + a);
    assert_memory_equal(ours.data + a, theirs.data + 28, 8); /* free */
    assert_memory_equal(ours.data + a + 12, "mdat", 4);
    a = find_box(ours, "stsd", 0);
    b = find_box(theirs, "stsd", 0);
    /* Size, codec, name, largest bit rate; then comes the average one. */
    assert_memory_equal(ours.data + a, theirs.data + b, 126);
    a = find_box(ours, "mdhd", 0);
    b = find_box(theirs, "mdhd", 0);
    assert_memory_equal(ours.data + a, theirs.data + b, 28);
    a = find_box(ours, "stts", 0);
    b = find_box(theirs, "stts", 0);
    assert_memory_equal(ours.data + a, theirs.data + b, 20);
    bag_reader_close(reader);
    bags_buffer_free(&ours_buffer);
    bags_buffer_free(&theirs_buffer);
    free(data);
}

static void no_frames_are_no_bytes(void **state) {
    (void)state;
    bags_buffer buffer = {0}, scratch = {0};
    bags_mp4_info info;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_view blob = encode("mp4", 0, 48, 64, NULL, &buffer);
    assert_int_equal(blob.size, 0);
    bags_value value = decode(blob, &scratch);
    assert_int_equal(value.shape[0], 0);
    assert_int_equal(value.size, 0);
    assert_int_equal(bags_mp4_probe(blob, NULL, &info, &err), BAGS_OK);
    assert_int_equal(info.frames, 0);
    bags_buffer_free(&buffer);
    bags_buffer_free(&scratch);
}

/* The most that a buffer ever took. */
static size_t peak;

static void *resize_counted(void *user, void *data, size_t old_size, size_t new_size) {
    if (new_size > peak)
        peak = new_size;
    return resize(user, data, old_size, new_size);
}

static void encoding_takes_the_memory_of_the_encoded_video(void **state) {
    (void)state;
    bags_buffer buffer = {0};
    unsigned char *data = make_frames(120, 240, 320);
    buffer.resize = resize_counted;
    peak = 0;
    bags_view blob = encode("mp4", 120, 240, 320, data, &buffer);
    assert_true(blob.size > 0);
    assert_true(peak <= blob.size * 3 / 2 + 64);
    bags_buffer_free(&buffer);
    free(data);
}

static void *resize_to_4096(void *user, void *data, size_t old_size, size_t new_size) {
    return new_size > 4096 ? NULL : resize(user, data, old_size, new_size);
}

static void a_buffer_that_cannot_grow_is_out_of_memory(void **state) {
    (void)state;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer buffer = {0};
    bags_view blob = {NULL, 77};
    unsigned char *data = make_frames(60, 64, 64);
    for (size_t i = 0; i < 60 * 64 * 64 * 3; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    buffer.resize = resize_to_4096;
    opened codec;
    uint64_t shape[4] = {60, 64, 64, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    assert_int_equal(open_codec(&codec, "mp4", NULL, &err), BAGS_OK);
    assert_int_equal(codec.codec->encode(codec.state, &value, &buffer, &blob, &err),
        BAGS_ERROR_MEMORY);
    assert_int_equal(err.code, BAGS_ERROR_MEMORY);
    assert_int_equal(blob.size, 77);
    close_codec(&codec);
    bags_buffer_free(&buffer);
    free(data);
}

static void options_choose_rate_keyframes_and_container(void **state) {
    (void)state;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer small = {0}, large = {0};
    bags_view a, b;
    bags_mp4_options options = {0};
    bags_mp4_info info;
    unsigned char *data = make_frames(20, 64, 64);
    for (size_t i = 0; i < 20 * 64 * 64 * 3; i++)
        data[i] = (unsigned char)(data[i] + (i * 2654435761u >> 27));
    opened codec;
    uint64_t shape[4] = {20, 64, 64, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    options.fps_num = 7;
    options.bit_rate = 50000;
    options.key_interval = 5;
    assert_int_equal(open_codec(&codec, "mp4", &options, &err), BAGS_OK);
    assert_int_equal(
        codec.codec->encode(codec.state, &value, &small, &a, &err), BAGS_OK);
    close_codec(&codec);
    assert_int_equal(bags_mp4_probe(a, NULL, &info, &err), BAGS_OK);
    assert_int_equal(info.fps_num, 7);
    /* Sync samples: 0, 5, 10, 15. */
    assert_int_equal(load_big(a.data + find_box(a, "stss", 0) + 8), 4);
    b = encode("mp4(7)", 20, 64, 64, data, &large);
    assert_true(a.size < b.size);
    bags_buffer_free(&small);
    bags_buffer_free(&large);
    free(data);
}

static void invalid_types_are_rejected(void **state) {
    (void)state;
    static const char *const types[] = {"mp4()", "mp4(0)", "mp4(fast)", "mp4(-5)",
        "mp4(1.)", "mp4(.5)", "mp4(15,)", "mp4(15,h264,x)", "mp4(999999)",
        "mp4(1.23456)", "mp4(15,a-very-long-codec-name)"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        opened codec;
        bags_error err = {BAGS_OK, 0, "", 0};
        assert_int_equal(open_codec(&codec, types[i], NULL, &err), BAGS_ERROR_TYPE);
        assert_int_equal(err.code, BAGS_ERROR_TYPE);
        close_codec(&codec);
    }
}

static void an_unknown_encoder_is_an_error_that_names_the_others(void **state) {
    (void)state;
    static const char *const types[] = {"mp4(15,theora)", "webm(15,mpeg4)"};
    static const char *const named[] = {"mpeg4", "it has:"};
    uint64_t shape[4] = {1, 16, 16, 3};
    unsigned char *data = make_frames(1, 16, 16);
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    for (size_t i = 0; i < 2; i++) {
        opened codec;
        bags_error err = {BAGS_OK, 0, "", 0};
        bags_buffer scratch = {0};
        bags_view blob;
        assert_int_equal(open_codec(&codec, types[i], NULL, &err), BAGS_OK);
        assert_int_equal(
            codec.codec->encode(codec.state, &value, &scratch, &blob, &err),
            BAGS_ERROR_TYPE);
        assert_non_null(strstr(err.message, named[i]));
        close_codec(&codec);
        bags_buffer_free(&scratch);
    }
    free(data);
}

static void values_that_are_not_videos_are_rejected(void **state) {
    (void)state;
    unsigned char data[64] = {0};
    uint64_t shape[4] = {1, 4, 4, 3}, gray[4] = {1, 4, 4, 1}, none[4] = {1, 0, 4, 3},
             wide[4] = {1, 1, 40000, 3};
    bags_value values[] = {bags_int(1), bags_utf8("video"),
        bags_array(BAGS_DTYPE_INT8, 4, shape, data),
        bags_array(BAGS_DTYPE_UINT8, 3, shape + 1, data),
        bags_array(BAGS_DTYPE_UINT8, 4, gray, data),
        bags_array(BAGS_DTYPE_UINT8, 4, none, data),
        bags_array(BAGS_DTYPE_UINT8, 4, wide, data),
        bags_array(BAGS_DTYPE_UINT8, 4, shape, data)};
    values[sizeof values / sizeof *values - 1].size = 10;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        opened codec;
        bags_error err = {BAGS_OK, 0, "", 0};
        bags_buffer scratch = {0};
        bags_view blob = {NULL, 77};
        assert_int_equal(open_codec(&codec, "mp4", NULL, &err), BAGS_OK);
        assert_int_equal(
            codec.codec->encode(codec.state, &values[i], &scratch, &blob, &err),
            BAGS_ERROR_VALUE);
        assert_int_equal(err.code, BAGS_ERROR_VALUE);
        assert_int_equal(blob.size, 77);
        close_codec(&codec);
        bags_buffer_free(&scratch);
    }
}

static void videos_live_in_a_dataset(void **state) {
    (void)state;
    char path[512];
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_field fields[] = {{"clip", "mp4(29.97)"}, {"takes", "webm[]"}};
    bags_writer_options writer_options = {0};
    bags_reader_options reader_options = {0};
    bags_registry *codecs = bags_registry_create(NULL, &err);
    assert_int_equal(bags_registry_add(codecs, &bags_codec_mp4, &err), BAGS_OK);
    writer_options.registry = reader_options.registry = codecs;
    writer_options.no_sync = true;
    snprintf(path, sizeof path, "%s/dataset", scratch_directory);
    unsigned char *data = make_frames(9, 20, 30);
    uint64_t shape[4] = {9, 20, 30, 3}, empty[4] = {0, 20, 30, 3};
    bool webm = can_encode("webm");
    bags_value film = bags_array(BAGS_DTYPE_UINT8, 4, shape, data);
    bags_value takes[] = {film, bags_array(BAGS_DTYPE_UINT8, 4, empty, data)};
    bags_entry entries[] = {{"clip", &film, 1}, {"takes", takes + !webm, webm ? 2 : 1}};
    bags_writer *writer = bags_writer_open(path, fields, 2, &writer_options, &err);
    if (!writer || bags_writer_append(writer, entries, 2, &err) ||
        bags_writer_close(writer, &err))
        fail_msg("%s", err.message);
    bags_reader *reader = bags_reader_open(path, &reader_options, &err);
    bags_row row = {0};
    bags_value value;
    if (!reader || bags_reader_get(reader, 0, NULL, 0, &row, &err) ||
        bags_row_value(&row, 0, 0, NULL, &value, &err))
        fail_msg("%s", err.message);
    assert_int_equal(value.shape[0], 9);
    assert_true(psnr(value.data, data, value.size) > 30);
    for (size_t i = 0; i < bags_row_length(&row, 1); i++) {
        assert_int_equal(bags_row_value(&row, 1, i, NULL, &value, &err), BAGS_OK);
        assert_int_equal(value.shape[0], i == 0 && webm ? 9 : 0);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_registry_free(codecs);
    free(data);
}

/* ------------------------------------------------------------------------
 * Files that are wrong
 * --------------------------------------------------------------------- */

/* Read a blob that may be anything: all, with limits, without a crash. */
static bags_code read_all(
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err) {
    bags_mp4_options options = {0};
    options.max_pixels = 1 << 16;
    options.max_size = 1 << 23;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, &options, err);
    if (!reader)
        return err->code;
    bags_code code = bags_mp4_reader_get(reader, 0, UINT64_MAX, 1, scratch, value, err);
    bags_mp4_reader_close(reader);
    return code;
}

static void a_damaged_frame_is_named(void **state) {
    (void)state;
    static const char *const types[] = {
        "mp4", "mp4(15,h264)", "mp4(15,hevc)", "mp4(15,vp9)", "mp4(15,av1)"};
    bags_buffer written = {0}, scratch = {0};
    unsigned char *data = make_frames(12, 64, 64);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bags_error err = {BAGS_OK, 0, "", 0};
        bags_value value;
        size_t at, size;
        if (!can_encode(types[i]))
            continue;
        bags_view blob = encode(types[i], 12, 64, 64, data, &written);
        find_sample(blob, 7, &at, &size);
        memset(written.data + at, 0xff, size);
        assert_int_equal(read_all(blob, &scratch, &value, &err), BAGS_ERROR_CORRUPT);
        if (!strstr(err.message, "frame "))
            fail_msg("%s: %s", types[i], err.message);
        if (i > 0)
            continue;
        /* Without B-frames it is frame 7, and those before are right. */
        assert_non_null(strstr(err.message, "frame 7"));
        bags_mp4_reader *reader = bags_mp4_reader_open(blob, NULL, &err);
        assert_non_null(reader);
        assert_int_equal(
            bags_mp4_reader_get(reader, 3, 7, 1, &scratch, &value, &err), BAGS_OK);
        assert_true(psnr(value.data, data + 3 * 64 * 64 * 3, value.size) > 30);
        assert_int_equal(bags_mp4_reader_get(reader, 3, 8, 1, &scratch, &value, &err),
            BAGS_ERROR_CORRUPT);
        assert_int_equal(
            bags_mp4_reader_get(reader, 0, 2, 1, &scratch, &value, &err), BAGS_OK);
        bags_mp4_reader_close(reader);
    }
    bags_buffer_free(&written);
    bags_buffer_free(&scratch);
    free(data);
}

static void a_file_truncated_anywhere_is_an_error(void **state) {
    (void)state;
    static const char *const names[] = {"mpeg4_odd.mp4", "h264_edit_list.mp4"};
    bags_buffer scratch = {0};
    for (size_t i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, VIDEO "%s", names[i]);
        bags_view blob = read_file(path);
        for (size_t size = 1; size < blob.size; size += 1 + size / 9) {
            /* A block of its own, so that a read after it shows. */
            unsigned char *part = (unsigned char *)malloc(size);
            bags_view cut = {part, size};
            bags_error err = {BAGS_OK, 0, "", 0};
            bags_value value;
            memcpy(part, blob.data, size);
            bags_code code = read_all(cut, &scratch, &value, &err);
            if (code != BAGS_ERROR_CORRUPT && code != BAGS_ERROR_TYPE)
                fail_msg("%s, %zu bytes: code %d", names[i], size, code);
            assert_true(err.message[0] != 0);
            free(part);
        }
        drop(blob);
    }
    bags_buffer_free(&scratch);
}

static void changed_bytes_do_no_harm(void **state) {
    (void)state;
    bags_buffer scratch = {0};
    uint32_t random = 1;
    for (size_t i = 1; i < CLIPS; i++) {
        bags_view blob = read_clip(&clips[i]);
        for (int n = 0; n < 60; n++) {
            unsigned char *copy = (unsigned char *)malloc(blob.size);
            bags_view changed = {copy, blob.size};
            bags_error err = {BAGS_OK, 0, "", 0};
            bags_value value;
            memcpy(copy, blob.data, blob.size);
            for (int k = 0; k < 1 + n % 4; k++) {
                random = random * 1664525 + 1013904223;
                copy[(random >> 8) % blob.size] = (unsigned char)random;
            }
            if (read_all(changed, &scratch, &value, &err))
                assert_true(err.message[0] != 0);
            free(copy);
        }
        drop(blob);
    }
    bags_buffer_free(&scratch);
}

static long resident(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

static void assert_refused(bags_view blob, bags_code code, const char *text) {
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer scratch = {0};
    bags_value value;
    long before = resident();
    assert_int_equal(read_all(blob, &scratch, &value, &err), code);
    if (!strstr(err.message, text))
        fail_msg("\"%s\" is not in: %s", text, err.message);
    assert_null(scratch.data);
    assert_true(resident() - before < 16);
}

static void a_bomb_is_rejected_without_allocating_memory(void **state) {
    (void)state;
    bags_view blob = read_file(VIDEO "vp9_hidden.mp4");
    unsigned char *data = (unsigned char *)(uintptr_t)blob.data;
    /* Images of 65535 x 65535. */
    size_t at = find_box(blob, "vp09", 0);
    memset(data + at + 28, 0xff, 4);
    assert_refused(blob, BAGS_ERROR_LIMIT, "65535 x 65535");
    drop(blob);
    /* As many samples of one byte as a table can claim. */
    blob = read_file(VIDEO "mpeg4_odd.mp4");
    data = (unsigned char *)(uintptr_t)blob.data;
    at = find_box(blob, "stsz", 0);
    store_big(data + at + 8, 1);
    store_big(data + at + 12, 0xf0000000);
    assert_refused(blob, BAGS_ERROR_CORRUPT, "4026531840 entries in stsz");
    drop(blob);
    /* A table of what is not there. */
    blob = read_file(VIDEO "h264_open_gop.mp4");
    data = (unsigned char *)(uintptr_t)blob.data;
    at = find_box(blob, "ctts", 0);
    store_big(data + at + 8, 0x08000000);
    assert_refused(blob, BAGS_ERROR_CORRUPT, "134217728 entries in ctts");
    drop(blob);
    /* An edit list that shows everything a million times. */
    blob = read_file(VIDEO "mpeg4_odd.mp4");
    data = (unsigned char *)(uintptr_t)blob.data;
    at = find_box(blob, "elst", 0);
    store_big(data + at + 8, 1000000);
    assert_refused(blob, BAGS_ERROR_CORRUPT, "1000000 entries in elst");
    drop(blob);
    /* A fragment of two thousand million samples. */
    blob = read_file(VIDEO "h264_fragments.mp4");
    data = (unsigned char *)(uintptr_t)blob.data;
    at = find_box(blob, "trun", 0);
    store_big(data + at + 8, 0x7fffffff);
    assert_refused(blob, BAGS_ERROR_CORRUPT, "2147483647 entries in trun");
    drop(blob);
}

static void limits_are_options(void **state) {
    (void)state;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_mp4_info info;
    bags_buffer scratch = {0};
    bags_value value;
    bags_mp4_options options = {0};
    bags_view blob = read_file(VIDEO "mpeg4_odd.mp4");
    options.max_pixels = 49 * 65 - 1;
    assert_int_equal(bags_mp4_probe(blob, &options, &info, &err), BAGS_ERROR_LIMIT);
    options.max_pixels = 49 * 65;
    options.max_size = 3 * 49 * 65 * 3;
    bags_mp4_reader *reader = bags_mp4_reader_open(blob, &options, &err);
    assert_non_null(reader);
    assert_int_equal(
        bags_mp4_reader_get(reader, 2, 5, 1, &scratch, &value, &err), BAGS_OK);
    assert_int_equal(
        bags_mp4_reader_get(reader, 2, 6, 1, &scratch, &value, &err), BAGS_ERROR_LIMIT);
    bags_mp4_reader_close(reader);
    bags_buffer_free(&scratch);
    drop(blob);
}

static void what_is_not_a_video_is_rejected(void **state) {
    (void)state;
    static const char *const texts[] = {"x", "hello, I am no video at all",
        "#EXTM3U\nfile:///etc/passwd\n", "\x1a\x45\xdf\xa3",
        "\x1a\x45\xdf\xa3 and what is not WebM behind it"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bags_view blob = {(const unsigned char *)texts[i], strlen(texts[i])};
        bags_mp4_info info;
        bags_error err = {BAGS_OK, 0, "", 0};
        assert_int_equal(bags_mp4_probe(blob, NULL, &info, &err), BAGS_ERROR_CORRUPT);
    }
}

/* ------------------------------------------------------------------------
 * Threads and the world around
 * --------------------------------------------------------------------- */

typedef struct job {
    const opened *codec;
    bags_view blob;
    bags_value want;
    int failures;
} job;

static void *decode_often(void *user) {
    job *work = (job *)user;
    bags_buffer scratch = {0};
    for (int i = 0; i < 4; i++) {
        bags_value value;
        bags_error err;
        if (work->codec->codec->decode(
                work->codec->state, work->blob, &scratch, &value, &err) ||
            value.size != work->want.size ||
            memcmp(value.data, work->want.data, value.size) != 0)
            work->failures++;
    }
    bags_buffer_free(&scratch);
    return NULL;
}

static void threads_share_a_codec(void **state) {
    (void)state;
    pthread_t threads[4];
    job jobs[4];
    opened codec;
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_buffer scratch = {0};
    bags_view blob = read_file(VIDEO "h264_open_gop.mp4");
    bags_value want = decode(blob, &scratch);
    assert_int_equal(open_codec(&codec, "mp4", NULL, &err), BAGS_OK);
    for (int i = 0; i < 4; i++) {
        job made = {&codec, blob, want, 0};
        jobs[i] = made;
        assert_int_equal(pthread_create(&threads[i], NULL, decode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].failures, 0);
    }
    close_codec(&codec);
    bags_buffer_free(&scratch);
    drop(blob);
}

static void more_decoder_threads_give_the_same_frames(void **state) {
    (void)state;
    bags_mp4_options options = {0};
    bags_buffer one = {0}, two = {0};
    bags_error err = {BAGS_OK, 0, "", 0};
    options.threads = 3;
    for (size_t i = 0; i < CLIPS; i++) {
        if (!can_decode(&clips[i]))
            continue;
        bags_view blob = read_clip(&clips[i]);
        bags_value want = decode(blob, &one);
        bags_mp4_reader *reader = bags_mp4_reader_open(blob, &options, &err);
        assert_non_null(reader);
        assert_range(reader, want, 0, UINT64_MAX, 1, &two);
        assert_range(reader, want, 7, 9, 1, &two);
        bags_mp4_reader_close(reader);
        drop(blob);
    }
    bags_buffer_free(&one);
    bags_buffer_free(&two);
}

static void nothing_was_printed(void **state) {
    (void)state;
    assert_int_equal(printed, 0);
}

static bool have(const char *command) {
    char text[128];
    snprintf(text, sizeof text, "command -v %s >/dev/null 2>&1", command);
    if (system(text) == 0)
        return true;
    printf("skipped: comparisons with %s, which is not installed\n", command);
    return false;
}

static int set_up(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    snprintf(scratch_directory, sizeof scratch_directory, "%s/bags-mp4-XXXXXX",
        directory ? directory : "/tmp");
    have_ffmpeg = have("ffmpeg");
    have_ffprobe = have("ffprobe");
    av_log_set_callback(on_log);
    return mkdtemp(scratch_directory) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch_directory);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_probe_reports_frames_size_and_rate),
        TEST(clips_decode_as_ffmpeg_decodes_them),
        TEST(frames_equal_those_of_pyav),
        TEST(a_codec_opens_without_an_allocator),
        TEST(frames_before_the_first_keyframe_are_skipped),
        TEST(golden_clips_decode_as_ffmpeg_decodes_them),
        TEST(every_range_has_the_frames_of_the_entire_video),
        TEST(a_seek_decodes_from_its_keyframe),
        TEST(frames_go_into_the_callers_memory),
        TEST(what_is_encoded_comes_back),
        TEST(default_files_have_the_layout_of_pythons),
        TEST(no_frames_are_no_bytes),
        TEST(encoding_takes_the_memory_of_the_encoded_video),
        TEST(a_buffer_that_cannot_grow_is_out_of_memory),
        TEST(options_choose_rate_keyframes_and_container),
        TEST(invalid_types_are_rejected),
        TEST(an_unknown_encoder_is_an_error_that_names_the_others),
        TEST(values_that_are_not_videos_are_rejected),
        TEST(videos_live_in_a_dataset),
        TEST(a_damaged_frame_is_named),
        TEST(a_file_truncated_anywhere_is_an_error),
        TEST(changed_bytes_do_no_harm),
        TEST(a_bomb_is_rejected_without_allocating_memory),
        TEST(limits_are_options),
        TEST(what_is_not_a_video_is_rejected),
        TEST(threads_share_a_codec),
        TEST(more_decoder_threads_give_the_same_frames),
        TEST(nothing_was_printed),
    };
    return cmocka_run_group_tests_name("mp4", tests, set_up, tear_down);
}
