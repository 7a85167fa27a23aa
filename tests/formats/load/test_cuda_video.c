/* formats/load/cuda_video.c and the loader's frames of videos on a device, with cuda_mock.c
 * in place of the driver: that frames equal the CPU's, what the CPU makes, a driver that
 * confuses pictures, and each call failing. */
// flavours: test: asan; check: release tsan
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

/* What cuda_mock_video.h does wrong. */
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

/* ---- datasets ---- */

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
    assert_opens(writer, bags_writer_open(path, fields, 2, NULL, &said));
    for (size_t i = 0; i < count; i++) {
        char name[200];
        bags_mp4_info info;
        snprintf(name, sizeof name, "%s%s",
            strchr(names[i], '/') ? "" : "tests/data/video/", names[i]);
        bytes file = load(name);
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
    assert_opens(reader, bags_reader_open(path, NULL, &said));
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

/* Values of pixels may differ by this much from libswscale's, which depend on the
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
        for (unsigned i = 0; i < 12; i += 5) {
            uint64_t all = 0, on_cpu = compare_all(reader, i, &all);
            print_message("%s %u: %d of %d\n", good[k], i, (int)on_cpu, (int)all);
        }
        bags_reader_close(reader);
    }
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
    };
    (void)count;
    start_with_mock(arguments);
    find("mock_reset", &mock.reset);
    find("mock_calls", &mock.calls);
    find("mock_objects", &mock.objects);
    find("mock_most_bytes", &mock.most_bytes);
    find("mock_called", &mock.called);
    find("mock_count", &mock.count);
    find("mock_video", &mock.video);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
