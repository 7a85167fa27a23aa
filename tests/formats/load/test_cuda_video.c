/* formats/load/cuda_video.c and the loader's frames of videos on a device, with cuda_mock.c
 * in place of the driver: that frames equal the CPU's, what the CPU makes, a driver that
 * confuses pictures, and each call failing. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "../../../formats/formats.h"

static const bags_loader_images images = {
    bags_resample, bags_jpeg_probe, bags_jpeg_decode, bags_png_probe, bags_png_decode};
static const bags_loader_videos videos = {bags_mp4_cache_open, bags_mp4_cache_close,
    bags_mp4_cache_get, bags_mp4_reader_info, bags_mp4_reader_get_into,
    bags_mp4_reader_part};
static const bags_loader_device_videos device_videos = {bags_cuda_probe_video,
    bags_cuda_make_frames, bags_mp4_reader_place, bags_mp4_reader_packet};

static const char *program;

#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* Faults of cuda_mock_video.h. */
enum {
    FAITHFUL,
    SKIPS,
    SHIFTS,
    REPEATS,
    REPEATS_FORMAT,
    CHANGES_RANGE,
    INTERLACED,
    NEEDS_MORE,
    DEEP,
    NO_STATUS,
    LAZY,
    SKIPS_DECODING
};

/* The functions of the mock for tests. */
static struct {
    void (*reset)(long fail, int code, int devices);
    long (*calls)(void);
    long (*objects)(void);
    long (*most_bytes)(void);
    const char *(*called)(long back);
    long (*count)(const char *name);
    void (*video)(int how, int unsupported, int least);
} mock;

static void find(const char *name, void *to) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found)
        fail_msg("%s: %s", name, dlerror());
    memcpy(to, &found, sizeof found);
}

/* The distance between the points that a test tries. */
static long quick(long fast, long all) { return getenv("BAGS_SOAK") ? all : fast; }

/* ---- datasets ---- */

/* Load a file of tests/data/video, or image N, "golden N", of Benzina's file. */
static bytes load_video(const char *name) {
    static const size_t parts[][2] = {{40, 7336}, {7376, 7527}, {14903, 8907}};
    char path[200];
    snprintf(path, sizeof path, "tests/data/video/%s", name);
    if (strncmp(name, "golden", 6))
        return load(path);
    bytes file = load("tests/data/golden/benzina/data.bzna");
    const size_t *part = parts[name[7] - '0'];
    assert_true(part[0] + part[1] <= file.size);
    memmove(file.data, file.data + part[0], part[1]);
    file.size = part[1];
    return file;
}

static bags_reader_options reading;

/* Videos of tests/data/video, each an episode whose clock has as many items as the video
 * has frames. */
static bags_reader *make_dataset(
    const char *const *names, size_t count, void (*damage)(bytes *file)) {
    static int made;
    static int64_t numbers[200];
    static bags_value values[200];
    bags_field fields[] = {{"clock", "array(int64)[]"}, {"view", "mp4"}};
    bags_writer *writer;
    bags_reader *reader;
    const char *path = at("set%d", made++);
    bags_writer_options writing = {0};
    writing.checksum = reading.verify_checksums;
    assert_opens(writer, bags_writer_open(path, fields, 2, &writing, &said));
    for (size_t i = 0; i < count; i++) {
        bags_mp4_info info;
        bytes file = load_video(names[i]);
        bags_value video = bags_blob(file.data, file.size);
        bags_view blob = {file.data, file.size};
        assert_ok(bags_mp4_probe(blob, NULL, &info, &said));
        if (damage)
            damage(&file);
        assert_true(info.frames <= 200);
        for (size_t k = 0; k < info.frames; k++) {
            numbers[k] = (int64_t)k;
            values[k] = bags_array(BAGS_DTYPE_INT64, 0, NULL, &numbers[k]);
        }
        bags_entry entries[] = {
            {"clock", values, (size_t)info.frames}, {"view", &video, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
        bytes_free(&file);
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(path, &reading, &said));
    return reader;
}

static bags_loader_device device_of(bags_cuda *cuda) {
    bags_loader_device out = {cuda, bags_cuda_take, bags_cuda_give,
        bags_cuda_decoder_open, bags_cuda_decoder_close, bags_cuda_probe,
        bags_cuda_make};
    return out;
}

/* ---- comparing with the CPU ---- */

static const int64_t around[] = {-2, 0, 0, 5, 1};
#define AROUND (sizeof around / sizeof *around)

/* The options of a loader of frames. */
typedef struct setup {
    bags_loader_options options;
    bags_frames_options frames;
    bags_load_field fields[2];
} setup;

static void start(setup *s, unsigned i) {
    bags_load_field *view = &s->fields[0];
    memset(s, 0, sizeof *s);
    s->frames.clock = "clock";
    s->fields[1].name = "clock";
    view->name = "view";
    view->width = i % 2 ? 24 : 64;
    view->height = i % 2 ? 20 : 48;
    view->channels = i % 5 == 2 ? 1 : 3;
    view->crop = (bags_crop)(i % 3);
    view->filter = i / 3 % 2 ? BAGS_FILTER_BICUBIC : BAGS_FILTER_BILINEAR;
    view->flip_x = i % 2 ? 0.5 : 0;
    view->nchw = i / 2 % 2;
    view->matrix = i % 6 == 5;
    if (i % 3 == 1)
        view->dtype = i % 2 ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_FLOAT16;
    if (i % 2) {
        view->offsets = around;
        view->offset_count = AROUND;
    }
    s->options.batch = 3 + i % 9;
    s->options.threads = i % 4 == 1 ? 2 : BAGS_THREADS_NONE;
    s->options.order.seed = i;
    s->options.images = &images;
    s->options.videos = &videos;
    s->options.frames = &s->frames;
    s->options.fields = s->fields;
    s->options.field_count = 2;
    s->options.epochs = 1;
}

typedef struct pair {
    bags_cuda *cuda;
    bags_loader_device device;
    bags_loader *loaders[2]; /* of the GPU, and of the CPU */
    uint64_t on_cpu, images;
    int differs; /* the largest difference of two values of a pixel */
} pair;

static void open_pair(pair *p, const bags_reader *reader, setup *s, size_t gpu_memory) {
    bags_cuda_options of_gpu = {0};
    memset(p, 0, sizeof *p);
    of_gpu.memory = gpu_memory;
    assert_opens(p->cuda, bags_cuda_open(&of_gpu, &said));
    p->device = device_of(p->cuda);
    for (int k = 0; k < 2; k++) {
        s->options.device = k ? NULL : &p->device;
        s->options.device_videos = k ? NULL : &device_videos;
        assert_opens(p->loaders[k], bags_loader_open(&reader, 1, &s->options, &said));
    }
}

static void close_pair(pair *p) {
    bags_loader_close(p->loaders[0]);
    bags_loader_close(p->loaders[1]);
    bags_cuda_close(p->cuda);
    assert_int_equal(mock.objects(), 0);
}

/* The largest difference of two tensors, in values of pixels. */
static int difference(const bags_tensor *a, const bags_tensor *b) {
    const unsigned char *x = (const unsigned char *)a->data;
    const unsigned char *y = (const unsigned char *)b->data;
    double most = 0;
    for (size_t i = 0; i < a->size && a->dtype == BAGS_DTYPE_UINT8; i++)
        most = fmax(most, abs(x[i] - y[i]));
    for (size_t i = 0; i < a->size / 4 && a->dtype == BAGS_DTYPE_FLOAT32; i++) {
        float u, v;
        memcpy(&u, x + 4 * i, 4);
        memcpy(&v, y + 4 * i, 4);
        most = fmax(most, fabs(u - v) * 255);
    }
    for (size_t i = 0; i < a->size / 2 && a->dtype == BAGS_DTYPE_FLOAT16; i++)
        if (memcmp(x + 2 * i, y + 2 * i, 2)) /* numbers of 0 to 1, 11 bits exact */
            most = fmax(most,
                abs((x[2 * i] | x[2 * i + 1] << 8) - (y[2 * i] | y[2 * i + 1] << 8)) /
                    8.);
    return (int)(most + 0.5);
}

/* Both loaders return the same batches, and the same failure. */
static bags_code compare(pair *p) {
    for (;;) {
        const bags_batch *batches[2];
        bags_code codes[2];
        bags_error errors[2];
        for (int k = 0; k < 2; k++)
            codes[k] = bags_loader_next(p->loaders[k], &batches[k], &errors[k]);
        if (codes[0] != codes[1])
            print_error("%s\n", errors[codes[0] ? 0 : 1].message);
        assert_int_equal(codes[0], codes[1]);
        if (codes[0]) {
            assert_string_equal(errors[0].message, errors[1].message);
            said = errors[0];
            return codes[0];
        }
        if (!batches[0] || !batches[1]) {
            assert_ptr_equal(batches[0], batches[1]);
            return BAGS_OK;
        }
        assert_int_equal(batches[0]->length, batches[1]->length);
        assert_int_equal(batches[0]->skipped, batches[1]->skipped);
        assert_int_equal(batches[0]->count, batches[1]->count);
        for (size_t i = 0; i < batches[0]->count; i++) {
            const bags_tensor *of_gpu = &batches[0]->tensors[i];
            const bags_tensor *of_cpu = &batches[1]->tensors[i];
            assert_int_equal(of_gpu->on_device, i == 0);
            assert_int_equal(of_gpu->dtype, of_cpu->dtype);
            assert_int_equal(of_gpu->dims, of_cpu->dims);
            assert_memory_equal(of_gpu->shape, of_cpu->shape, sizeof of_gpu->shape);
            assert_int_equal(of_gpu->size, of_cpu->size);
            if (i > 0)
                assert_memory_equal(of_gpu->data, of_cpu->data, of_gpu->size);
            else if (difference(of_gpu, of_cpu) > p->differs)
                p->differs = difference(of_gpu, of_cpu);
        }
        p->on_cpu += batches[0]->on_cpu;
        p->images += batches[0]->tensors[0].items;
        assert_int_equal(batches[1]->on_cpu, 0);
    }
}

/* Values of pixels may differ by this much from libswscale's. These depend on the
 * processor. Frames next to each other differ by far more. */
#define NEAR 3

/* Compare all frames of some videos. Returns the number of images that the CPU made. */
static uint64_t compare_all(const bags_reader *reader, unsigned i, uint64_t *all) {
    pair p;
    setup s;
    start(&s, i);
    open_pair(&p, reader, &s, 0);
    assert_ok(compare(&p));
    close_pair(&p);
    if (p.differs)
        print_message("setup %u: values differ by up to %d\n", i, p.differs);
    assert_true(p.differs <= NEAR);
    if (all)
        *all = p.images;
    return p.on_cpu;
}

/* H.264 with B-frames; HEVC with an open GOP; AV1; full range; an edit list; frames before
 * the first keyframe; times that vary; fragments; a larger one. */
static const char *const good[] = {"h264_bt709.mp4", "hevc_open_gop.mp4", "av1.mp4",
    "h264_full_range.mp4", "h264_edit_list.mp4", "h264_no_key_at_start.mp4",
    "hevc_no_key_at_start.mp4", "hevc_cut_open_gop.mp4", "h264_variable_rate.mp4",
    "h264_fragments.mp4", "h264.mkv", "video.mp4"};
#define GOOD (sizeof good / sizeof *good)

static void frames_equal_those_of_the_cpu(void **state) {
    (void)state;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (size_t k = 0; k < GOOD; k++) {
        bags_reader *reader = make_dataset(&good[k], 1, NULL);
        for (unsigned i = (unsigned)k % 2; i < 24; i += (unsigned)quick(30, 7))
            assert_int_equal(compare_all(reader, i, NULL), 0);
        bags_reader_close(reader);
    }
}

/* Videos of several codecs, sizes and settings in one batch. */
static void videos_may_differ(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(good, GOOD - 1, NULL);
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (unsigned i = 0; i < 8; i += (unsigned)quick(5, 1))
        assert_int_equal(compare_all(reader, i, NULL), 0);
    bags_reader_close(reader);
}

/* Packets are read in parts, or with the video. */
static void videos_need_not_be_mapped(void **state) {
    (void)state;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (int i = 0; i < 2; i++) {
        memset(&reading, 0, sizeof reading);
        reading.no_mmap = true;
        reading.verify_checksums = i == 1;
        bags_reader *reader = make_dataset(&good[GOOD - 1], 1, NULL);
        assert_int_equal(compare_all(reader, 8, NULL), 0);
        bags_reader_close(reader);
        reader = make_dataset(good, 5, NULL);
        assert_int_equal(compare_all(reader, 8, NULL), 0);
        bags_reader_close(reader);
    }
    memset(&reading, 0, sizeof reading);
}

/* The images of a Benzina file are videos of one frame. */
static void images_of_benzina_are_frames(void **state) {
    (void)state;
    static const char *const names[] = {"golden 0", "golden 1", "golden 2"};
    bags_reader *reader = make_dataset(names, 3, NULL);
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 144);
    for (unsigned i = 0; i < 6; i++) {
        uint64_t all = 0, on_cpu = 0;
        on_cpu = compare_all(reader, i, &all);
        assert_int_equal(on_cpu, 0);
        assert_int_equal(all, i % 2 ? 3 * AROUND : 3);
    }
    bags_reader_close(reader);
}

/* Only the packets of the needed GOP are decoded, once for all frames of a batch. */
static void a_batch_decodes_each_gop_once(void **state) {
    (void)state;
    static const char *const name[] = {"h264_edit_list.mp4"};
    bags_reader *reader = make_dataset(name, 1, NULL);
    setup s;
    pair p;
    start(&s, 0);
    s.options.order.in_order = true;
    s.options.batch = 46; /* all frames; keyframes are 20 packets apart */
    mock.video(FAITHFUL, 0, 16);
    mock.reset(-1, 0, 1);
    open_pair(&p, reader, &s, 0);
    assert_ok(compare(&p));
    /* Surfaces that are decoded again are mapped once more, to learn of damage. */
    assert_true(mock.count("cuvidMapVideoFrame") >= 46);
    assert_true(mock.count("cuvidMapVideoFrame") < 46 + 20);
    assert_true(mock.count("cuvidDecodePicture") <= 60);
    assert_int_equal(mock.count("cuvidCreateDecoder"), 1);
    assert_int_equal(mock.count("cuvidCreateVideoParser"), 1);
    close_pair(&p);
    bags_reader_close(reader);
}

/* ---- what the CPU makes ---- */

static void videos_that_the_gpu_cannot_decode_are_counted(void **state) {
    (void)state;
    static const char *const names[] = {"h264_422.mp4", "hevc_10_bit.mp4",
        "mpeg4_b_frames.mp4", "mpeg4_odd.mp4", "vp9_hidden.mp4", "vp8_hidden.webm"};
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        uint64_t all = 0, on_cpu = 0;
        bags_reader *reader = make_dataset(&names[k], 1, NULL);
        on_cpu = compare_all(reader, (unsigned)k, &all);
        assert_int_equal(on_cpu, all);
        assert_int_equal(mock.count("cuvidDecodePicture"), 0);
        bags_reader_close(reader);
    }
}

/* A keyframe that is not an IDR picture, in H.264: batches that need one are made by the
 * CPU, and then all others, too. */
static void an_open_gop_of_h264_is_left_to_the_cpu(void **state) {
    (void)state;
    static const char *const names[] = {"h264_open_gop.mp4", "h264_cut_open_gop.mp4"};
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (size_t k = 0; k < 2; k++) {
        bags_reader *reader = make_dataset(&names[k], 1, NULL);
        uint64_t all = 0, on_cpu = compare_all(reader, 0, &all);
        assert_true(on_cpu > all / 2);
        bags_reader_close(reader);
    }
}

static void limits_of_the_gpu_are_asked_for(void **state) {
    (void)state;
    static const char *const names[] = {
        "h264_bt709.mp4", "hevc_open_gop.mp4", "av1.mp4"};
    static const int codecs[] = {4, 8, 11};
    for (size_t k = 0; k < 3; k++) {
        uint64_t all = 0, on_cpu = 0;
        bags_reader *reader = make_dataset(&names[k], 1, NULL);
        mock.reset(-1, 0, 1);
        mock.video(FAITHFUL, codecs[k], 16); /* no such codec */
        on_cpu = compare_all(reader, 0, &all);
        assert_int_equal(on_cpu, all);
        mock.video(FAITHFUL, 0, 65); /* too small */
        on_cpu = compare_all(reader, 0, &all);
        assert_int_equal(on_cpu, all);
        mock.video(FAITHFUL, codecs[(k + 1) % 3], 48);
        on_cpu = compare_all(reader, 0, &all);
        assert_int_equal(on_cpu, 0);
        bags_reader_close(reader);
    }
}

static void images_that_only_the_cpu_makes_are_counted(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(good, 3, NULL);
    bags_warp_options warp = {0};
    bags_jitter_options jitter = {0};
    warp.degrees.high = 20;
    jitter.hue.high = 0.1;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (int i = 0; i < 4; i++) {
        pair p;
        setup s;
        start(&s, 0);
        if (i == 0)
            s.fields[0].warp = &warp;
        if (i == 1)
            s.fields[0].jitter = &jitter;
        if (i == 2)
            s.fields[0].filter = BAGS_FILTER_NEAREST;
        open_pair(&p, reader, &s, i == 3 ? 5000 : 0); /* 3: too little memory */
        assert_ok(compare(&p));
        assert_int_equal(p.on_cpu, p.images);
        close_pair(&p);
    }
    bags_reader_close(reader);
}

/* Without the library, the CPU decodes. */
static void a_missing_library_is_no_error(void **state) {
    (void)state;
    char command[4000];
    const char *folder = at("mock"), *from = getenv("LD_LIBRARY_PATH");
    snprintf(command, sizeof command,
        "mkdir '%s' && cp '%s/libcuda.so.1' '%s' && LD_LIBRARY_PATH='%s' '%s' "
        "--without",
        folder, from, folder, folder, program);
    assert_int_equal(system(command), 0);
}

/* ---- a driver that confuses pictures ---- */

static void a_picture_is_never_taken_for_another(void **state) {
    (void)state;
    static const int faults[] = {SKIPS, SHIFTS, REPEATS, CHANGES_RANGE, INTERLACED,
        NEEDS_MORE, DEEP, SKIPS_DECODING};
    for (size_t k = 0; k < 3; k++) {
        bags_reader *reader = make_dataset(&good[k], 1, NULL);
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
            for (unsigned i = 0; i < 3; i += 2) {
                uint64_t on_cpu;
                mock.reset(-1, 0, 1);
                mock.video(faults[f], 0, 16);
                on_cpu = compare_all(reader, i, NULL);
                /* AV1's range is not used; its pictures are not counted. */
                if (k < 2 ||
                    (faults[f] != CHANGES_RANGE && faults[f] != SKIPS_DECODING))
                    assert_true(on_cpu > 0);
            }
        mock.video(REPEATS_FORMAT, 0, 16);
        assert_int_equal(compare_all(reader, 1, NULL), 0);
        mock.video(LAZY, 0, 16);
        assert_int_equal(compare_all(reader, 1, NULL), 0);
        /* Without a status, damage would not be noticed. AV1 never has one. */
        mock.video(NO_STATUS, 0, 16);
        uint64_t all = 0, on_cpu = compare_all(reader, 1, &all);
        assert_int_equal(on_cpu, k < 2 ? all : 0);
        bags_reader_close(reader);
    }
    mock.video(FAITHFUL, 0, 16);
}

/* ---- damage ---- */

static size_t damage_at; /* where, in parts of 64 of the file */

static void flip_bytes(bytes *file) {
    size_t at = file->size * damage_at / 64;
    for (size_t i = at; i < at + 24 && i < file->size; i++)
        file->data[i] ^= 0x5A;
}

static void damage_is_the_same_error(void **state) {
    (void)state;
    unsigned failed = 0, named = 0;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (size_t k = 0; k < 2; k++)
        for (damage_at = 4; damage_at < 64; damage_at += (size_t)quick(12, 3))
            for (int skip = 0; skip < 2; skip++) {
                pair p;
                setup s;
                bags_reader *reader = make_dataset(&good[k], 1, flip_bytes);
                start(&s, 0);
                s.options.skip_damaged = skip;
                open_pair(&p, reader, &s, 0);
                bags_code code = compare(&p);
                failed += code != BAGS_OK;
                named += code && strstr(said.message, "field \"view\": datapoint 0");
                assert_true(p.differs <= NEAR);
                close_pair(&p);
                bags_reader_close(reader);
            }
    assert_true(failed > 3);
    assert_int_equal(failed, named);
}

/* The driver does not report damage in AV1. Nothing else may happen. */
static void damage_in_av1_is_harmless(void **state) {
    (void)state;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (damage_at = 4; damage_at < 64; damage_at += (size_t)quick(12, 3)) {
        pair p;
        setup s;
        const bags_batch *batch;
        bags_code code = BAGS_OK;
        bags_reader *reader = make_dataset(&good[2], 1, flip_bytes);
        start(&s, 0);
        open_pair(&p, reader, &s, 0);
        for (batch = NULL; !code;) {
            code = bags_loader_next(p.loaders[0], &batch, &said);
            if (!batch)
                break;
        }
        assert_true(code == BAGS_OK || code == BAGS_ERROR_CORRUPT ||
                    code == BAGS_ERROR_TYPE || code == BAGS_ERROR_VALUE ||
                    code == BAGS_ERROR_LIMIT);
        close_pair(&p);
        bags_reader_close(reader);
    }
}

/* ---- memory and failures ---- */

static void memory_is_reused(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(good, GOOD, NULL);
    const bags_batch *batch;
    bags_cuda *cuda;
    bags_loader *loader;
    setup s;
    long created = 0;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    assert_opens(cuda, bags_cuda_open(NULL, &said));
    bags_loader_device device = device_of(cuda);
    start(&s, 0);
    s.options.batch = 8;
    s.options.threads = BAGS_THREADS_NONE;
    s.options.epochs = 0;
    s.options.device = &device;
    s.options.device_videos = &device_videos;
    assert_opens(
        loader, bags_loader_open(&(const bags_reader *){reader}, 1, &s.options, &said));
    for (int i = 0, all = (int)quick(90, 240); i < all; i++) {
        assert_ok(bags_loader_next(loader, &batch, &said));
        assert_int_equal(batch->on_cpu, 0);
        if (i == all / 2)
            created = mock.count("cuvidCreateDecoder");
    }
    /* 4 decoders of the largest video with 14 surfaces, tensors and weights. */
    assert_true(mock.most_bytes() < 4 * 14 * 256 * 144 * 3 / 2 + 1000000);
    /* Decoders of the same codec are reconfigured; others are made again. */
    assert_true(mock.count("cuvidReconfigureDecoder") > 0);
    assert_true(mock.count("cuvidCreateDecoder") - created < 45 * 8);
    bags_loader_close(loader);
    bags_cuda_close(cuda);
    assert_int_equal(mock.objects(), 0);
    bags_reader_close(reader);
}

/* Open everything, and load three batches. */
static bags_code load_three(
    const bags_reader *reader, const bags_allocator *allocator) {
    bags_cuda_options of_gpu = {0};
    setup s;
    const bags_batch *batch;
    bags_code code = BAGS_OK;
    start(&s, 1);
    s.options.batch = 2;
    of_gpu.allocator = s.options.allocator = allocator;
    bags_cuda *cuda = bags_cuda_open(&of_gpu, &said);
    if (!cuda)
        return said.code;
    bags_loader_device device = device_of(cuda);
    s.options.device = &device;
    s.options.device_videos = &device_videos;
    s.options.threads = BAGS_THREADS_NONE;
    bags_loader *loader = bags_loader_open(&reader, 1, &s.options, &said);
    for (int i = 0; loader && i < 3 && !code; i++)
        code = bags_loader_next(loader, &batch, &said);
    code = loader ? code : said.code;
    bags_loader_close(loader);
    bags_cuda_close(cuda);
    return code;
}

static void every_call_may_fail(void **state) {
    (void)state;
    static const int failures[] = {2, 700};
    static const char *const named[] = {"cuvidCreateVideoParser", "cuvidCreateDecoder",
        "cuvidMapVideoFrame", "cuvidUnmapVideoFrame"};
    unsigned names[4] = {0};
    for (size_t k = 0; k < 3; k += (size_t)quick(3, 1)) {
        bags_reader *reader = make_dataset(&good[k], 1, NULL);
        unsigned failed = 0;
        mock.video(FAITHFUL, 0, 16);
        mock.reset(-1, 0, 1);
        assert_ok(load_three(reader, NULL));
        long calls = mock.calls();
        for (int f = 0; f < 2; f++)
            for (long n = f; n < calls; n += quick(2, 1)) {
                mock.reset(n, failures[f], 1);
                poison();
                bags_code code = load_three(reader, NULL);
                assert_int_equal(mock.objects(), 0);
                failed += code != BAGS_OK;
                assert_true(code == BAGS_OK || code == BAGS_ERROR_MEMORY ||
                            code == BAGS_ERROR_IO || code == BAGS_ERROR_MISSING);
                if (code)
                    assert_true(strstr(said.message, "GPU") != NULL);
                for (size_t i = 0; i < 4 && code; i++) {
                    char expected[100];
                    snprintf(expected, sizeof expected, "GPU 0: %s failed: %s (%d)",
                        named[i],
                        f ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OUT_OF_MEMORY",
                        failures[f]);
                    names[i] += !strcmp(said.message, expected);
                }
            }
        assert_true(failed > 20);
        bags_reader_close(reader);
    }
    for (size_t i = 0; i < 4; i++)
        assert_true(names[i] > 0);
}

/* The frames are right after each failure that is no error. */
static void a_failure_that_the_cpu_repairs_changes_no_pixel(void **state) {
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        bags_reader *reader = make_dataset(&good[k], 1, NULL);
        unsigned repaired = 0;
        mock.video(FAITHFUL, 0, 16);
        for (long n = 30; n < 400; n += quick(17, 3)) {
            pair p;
            setup s;
            start(&s, 0);
            mock.reset(n, 700, 1);
            open_pair(&p, reader, &s, 0);
            bool good_so_far = true;
            for (int i = 0; i < 3 && good_so_far; i++) {
                const bags_batch *batches[2];
                bags_code code = bags_loader_next(p.loaders[0], &batches[0], &said);
                if (code) {
                    assert_int_equal(code, BAGS_ERROR_IO);
                    good_so_far = false;
                    continue;
                }
                assert_ok(bags_loader_next(p.loaders[1], &batches[1], &said));
                assert_true(difference(&batches[0]->tensors[0],
                                &batches[1]->tensors[0]) <= NEAR);
                repaired += batches[0]->on_cpu > 0;
            }
            close_pair(&p);
        }
        assert_true(repaired > 0);
        bags_reader_close(reader);
    }
}

static void memory_that_fails_is_an_error_and_no_leak(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(good, 2, NULL);
    uint64_t failed = 1;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    for (uint64_t n = 1; failed; n++) {
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_code code = load_three(reader, &memory.allocator);
        failed = memory.failed;
        /* Announcing datapoints may fail silently; and the CPU decodes if there is no
         * memory for the GPU's part. */
        assert_true(code == BAGS_OK || (failed && code == BAGS_ERROR_MEMORY));
        assert_int_equal(mock.objects(), 0);
        assert_int_equal(memory.live, 0);
    }
    memory.fail_at = 0;
    bags_reader_close(reader);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(good, 1, NULL);
    const bags_reader *readers[] = {reader};
    setup s;
    bags_cuda *cuda;
    bags_cuda_decoder *decoder;
    bags_mp4_cache *cache;
    mock.reset(-1, 0, 1);
    mock.video(FAITHFUL, 0, 16);
    start(&s, 0);
    s.options.device_videos = &device_videos;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_loader_open(readers, 1, &s.options, &said));
    assert_says("device_videos needs device and videos");

    assert_opens(cuda, bags_cuda_open(NULL, &said));
    assert_opens(decoder, bags_cuda_decoder_open(cuda, &said));
    assert_opens(cache, bags_mp4_cache_open(NULL, &said));
    bags_cuda_video video = {
        NULL, bags_mp4_reader_info, bags_mp4_reader_place, bags_mp4_reader_packet};
    assert_opens(video.reader, bags_mp4_cache_get(cache, reader, 0, 1, 0, &said));
    bags_cuda_form form = {
        8, 8, 3, BAGS_FILTER_BILINEAR, false, BAGS_DTYPE_UINT8, NULL};
    bags_cuda_image image = {0};
    size_t which[] = {0};
    void *out = bags_cuda_take(cuda, 8 * 8 * 3, &said);
    assert_non_null(out);
    assert_true(bags_cuda_probe_video(decoder, &video, 19, &image.image));
    assert_false(bags_cuda_probe_video(decoder, &video, 20, &image.image));
    image.crop.width = image.image.width;
    image.crop.height = image.image.height;
    image.width = image.height = 8;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 1, out, &said));
    image.is_frame = true;
    assert_ok(
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 1, out, &said));
    assert_ok(
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 0, out, NULL));
    image.frame = 20;
    assert_fails(BAGS_ERROR_CORRUPT,
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 1, out, &said));
    image.frame = 0;
    image.crop.left = 1;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 1, out, &said));
    form.channels = 2;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_cuda_make_frames(decoder, &form, &video, &image, which, 1, out, &said));

    bags_mp4_packet packet;
    assert_fails(
        BAGS_ERROR_RANGE, bags_mp4_reader_packet(video.reader, 20, 20, &packet, &said));
    bags_mp4_place place = bags_mp4_reader_place(video.reader, 20);
    assert_true(place.settings.size == 0 && place.packet == 0);
    bags_cuda_give(cuda, out);
    bags_mp4_cache_close(cache);
    bags_cuda_decoder_close(decoder);
    bags_cuda_close(cuda);
    assert_int_equal(mock.objects(), 0);
    bags_reader_close(reader);
}

/* In a process with the mock's driver, but without libnvcuvid. */
static int without_library(void) {
    bags_error err;
    bags_cuda_video video = {
        NULL, bags_mp4_reader_info, bags_mp4_reader_place, bags_mp4_reader_packet};
    bags_image image;
    if (dlopen("libnvcuvid.so.1", RTLD_NOW)) /* of a computer with a GPU */
        return 0;
    bytes file = load("tests/data/video/av1.mp4");
    bags_view blob = {file.data, file.size};
    video.reader = bags_mp4_reader_open(blob, NULL, &err);
    bags_cuda *cuda = bags_cuda_open(NULL, &err);
    bags_cuda_decoder *decoder = cuda ? bags_cuda_decoder_open(cuda, &err) : NULL;
    bool refused =
        decoder && video.reader && !bags_cuda_probe_video(decoder, &video, 0, &image);
    bags_mp4_reader_close(video.reader);
    bags_cuda_decoder_close(decoder);
    bags_cuda_close(cuda);
    bytes_free(&file);
    return refused ? 0 : 1;
}

/* LD_LIBRARY_PATH is read when a program starts. */
static void start_with_mock(char **arguments) {
    char folder[1000];
    const char *slash = strrchr(arguments[0], '/');
    int size = slash ? (int)(slash - arguments[0]) : 0;
    const char *before = getenv("LD_LIBRARY_PATH");
    if (before && strstr(before, "/mock"))
        return;
    snprintf(folder, sizeof folder, "%.*s/mock", size, arguments[0]);
    setenv("LD_LIBRARY_PATH", folder, 1);
    execv(arguments[0], arguments);
    fail_msg("%s: cannot be started again", arguments[0]);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        TEST(frames_equal_those_of_the_cpu),
        TEST(videos_may_differ),
        TEST(videos_need_not_be_mapped),
        TEST(images_of_benzina_are_frames),
        TEST(a_batch_decodes_each_gop_once),
        TEST(videos_that_the_gpu_cannot_decode_are_counted),
        TEST(an_open_gop_of_h264_is_left_to_the_cpu),
        TEST(limits_of_the_gpu_are_asked_for),
        TEST(images_that_only_the_cpu_makes_are_counted),
        TEST(a_missing_library_is_no_error),
        TEST(a_picture_is_never_taken_for_another),
        TEST(damage_is_the_same_error),
        TEST(damage_in_av1_is_harmless),
        TEST(memory_is_reused),
        TEST(every_call_may_fail),
        TEST(a_failure_that_the_cpu_repairs_changes_no_pixel),
        TEST(memory_that_fails_is_an_error_and_no_leak),
        TEST(wrong_arguments_are_refused),
    };
    const struct CMUnitTest threaded[] = {
        TEST(frames_equal_those_of_the_cpu), TEST(videos_may_differ)};
    program = arguments[0];
    if (count > 1 && !strcmp(arguments[1], "--without"))
        return without_library();
    start_with_mock(arguments);
    find("mock_reset", &mock.reset);
    find("mock_calls", &mock.calls);
    find("mock_objects", &mock.objects);
    find("mock_most_bytes", &mock.most_bytes);
    find("mock_called", &mock.called);
    find("mock_count", &mock.count);
    find("mock_video", &mock.video);
    return UNDER_TSAN ? cmocka_run_group_tests(threaded, NULL, NULL)
                      : cmocka_run_group_tests(tests, NULL, NULL);
}
