/* formats/load/cuda.c and the loader's option device, with cuda_mock.c in place of the
 * driver: that tensors equal the CPU's, what the CPU makes, and each call failing. */
// flavours: test: asan; check: release tsan
#include "check.h"

#include <dlfcn.h>
#include <unistd.h>

#include "../../../formats/formats.h"

static const bags_loader_images images = {
    bags_resample, bags_jpeg_probe, bags_jpeg_decode, bags_png_probe, bags_png_decode};
static const char *program;

/* The functions of the mock for tests. */
static struct {
    void (*reset)(long fail, int code, int devices);
    long (*calls)(void);
    long (*objects)(void);
    long (*most_bytes)(void);
    const char *(*called)(long back);
    void (*no_hardware)(int no);
} mock;

static void find(const char *name, void *to) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found)
        fail_msg("%s: %s", name, dlerror());
    memcpy(to, &found, sizeof found);
}

/* ---- datasets ---- */

static const char *const good[] = {"420", "411", "422", "440", "441", "444",
    "arithmetic", "exif", "gray-2x2", "gray", "input.pillow", "mixed", "odd",
    "progressive-gray", "progressive", "quality-100", "restart", "rgb", "sample-2x4",
    "sample-4x2", "scans-64", "size-16x16", "size-17x2", "size-1x1", "size-1x17",
    "size-2x3", "size-3x1"};
#define GOOD (sizeof good / sizeof *good)

static void append(bags_writer *writer, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "tests/data/images/%s.jpg", name);
    bytes file = load(path);
    static int64_t number;
    bags_value value = bags_blob(file.data, file.size), label = bags_int(number++);
    bags_entry entries[] = {{"image", &value, 1}, {"label", &label, 1}};
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    bytes_free(&file);
}

/* The first `count` good images, `times` times; then one more. */
static bags_reader *make_dataset(size_t count, size_t times, const char *last) {
    static int made;
    bags_field fields[] = {{"image", "jpeg"}, {"label", "int(8)"}};
    bags_writer *writer;
    bags_reader *reader;
    const char *path = at("set%d", made++);
    assert_opens(writer, bags_writer_open(path, fields, 2, NULL, &said));
    for (size_t t = 0; t < times; t++)
        for (size_t i = 0; i < count; i++)
            append(writer, good[i]);
    if (last)
        append(writer, last);
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

typedef struct pair {
    bags_cuda *cuda;
    bags_loader_device device;
    bags_loader *loaders[2]; /* of the GPU, and of the CPU */
    uint64_t on_cpu, images;
} pair;

static void open_pair(pair *p, const bags_reader *reader, const bags_load_field *field,
    bags_loader_options *options, size_t gpu_memory) {
    bags_cuda_options of_gpu = {0};
    bags_load_field fields[2] = {*field};
    memset(p, 0, sizeof *p);
    of_gpu.memory = gpu_memory;
    assert_opens(p->cuda, bags_cuda_open(&of_gpu, &said));
    p->device = device_of(p->cuda);
    fields[1].name = "label";
    options->images = &images;
    options->fields = fields;
    options->field_count = 2;
    options->epochs = 1;
    for (int k = 0; k < 2; k++) {
        options->device = k ? NULL : &p->device;
        assert_opens(p->loaders[k], bags_loader_open(&reader, 1, options, &said));
    }
}

static void close_pair(pair *p) {
    bags_loader_close(p->loaders[0]);
    bags_loader_close(p->loaders[1]);
    bags_cuda_close(p->cuda);
    assert_int_equal(mock.objects(), 0);
}

/* Both loaders return the same batches, and the same failure. */
static bags_code compare(pair *p) {
    for (;;) {
        const bags_batch *batches[2];
        bags_code codes[2];
        bags_error errors[2];
        for (int k = 0; k < 2; k++)
            codes[k] = bags_loader_next(p->loaders[k], &batches[k], &errors[k]);
        assert_int_equal(codes[0], codes[1]);
        if (codes[0]) {
            assert_string_equal(errors[0].message, errors[1].message);
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
            /* The mock's GPU shares the memory of the process. */
            assert_memory_equal(of_gpu->data, of_cpu->data, of_gpu->size);
        }
        p->on_cpu += batches[0]->on_cpu;
        p->images += batches[0]->length;
        assert_int_equal(batches[1]->on_cpu, 0);
    }
}

static bags_load_field photo(unsigned i) {
    bags_load_field field = {0};
    field.name = "image";
    field.width = i % 2 ? 24 : 33;
    field.height = i % 3 ? 20 : 41;
    field.channels = i % 5 == 2 ? 1 : 3;
    field.crop = (bags_crop)(i % 3);
    field.filter = i / 3 % 2 ? BAGS_FILTER_BICUBIC : BAGS_FILTER_BILINEAR;
    field.flip_x = i % 2 ? 0.5 : 0;
    field.flip_y = i % 7 == 3 ? 0.5 : 0;
    field.nchw = i / 2 % 2;
    field.orient = i % 4 == 3;
    field.matrix = i % 6 == 5;
    if (i % 3 == 1) {
        field.dtype = i % 2 ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_FLOAT16;
        field.mean[1] = 0.4f;
        field.std[2] = 0.25f;
    }
    return field;
}

static void tensors_equal_those_of_the_cpu(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(GOOD, 1, NULL);
    uint64_t on_cpu = 0, all = 0;
    for (unsigned i = 0; i < 24; i++) {
        pair p;
        bags_load_field field = photo(i);
        bags_loader_options options = {0};
        options.batch = 5 + i;
        options.threads = i % 2 ? 2 : BAGS_THREADS_NONE;
        options.order.seed = i;
        mock.reset(-1, 0, 1);
        mock.no_hardware(i % 4 == 1);
        open_pair(&p, reader, &field, &options, 0);
        assert_ok(compare(&p));
        on_cpu += p.on_cpu;
        all += p.images;
        close_pair(&p);
    }
    mock.no_hardware(0);
    /* 16 of the images are baseline, gray or YCbCr, and sampled as the kernels expect;
     * one of them is turned by its EXIF data. */
    assert_int_equal(all, 24 * GOOD);
    assert_true(on_cpu >= 24 * 8 && on_cpu <= 24 * 13);
    bags_reader_close(reader);
}

static void images_that_only_the_cpu_makes_are_counted(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(GOOD, 1, NULL);
    bags_warp_options warp = {0};
    bags_jitter_options jitter = {0};
    warp.degrees.high = 20;
    jitter.hue.high = 0.1;
    for (int i = 0; i < 4; i++) {
        pair p;
        bags_load_field field = photo(0);
        bags_loader_options options = {0};
        if (i == 0)
            field.warp = &warp;
        if (i == 1)
            field.jitter = &jitter;
        if (i == 2)
            field.filter = BAGS_FILTER_NEAREST;
        if (i == 3) {
            field.crop = BAGS_CROP_RANDOM;
            field.scaled = true;
        }
        mock.reset(-1, 0, 1);
        open_pair(&p, reader, &field, &options, 0);
        assert_ok(compare(&p));
        assert_int_equal(p.on_cpu, GOOD);
        close_pair(&p);
    }
    bags_reader_close(reader);
}

static void a_damaged_image_is_left_to_the_cpu(void **state) {
    (void)state;
    static const char *const bad[] = {"bad-entropy", "bad-too-short", "bad-cmyk"};
    for (int i = 0; i < 6; i++) {
        pair p;
        bags_load_field field = photo(0);
        bags_loader_options options = {0};
        bags_reader *reader = make_dataset(3, 2, bad[i % 3]);
        options.skip_damaged = i >= 3;
        options.batch = 4;
        mock.reset(-1, 0, 1);
        open_pair(&p, reader, &field, &options, 0);
        bags_code code = compare(&p);
        assert_int_equal(code == BAGS_OK, options.skip_damaged);
        close_pair(&p);
        bags_reader_close(reader);
    }
}

/* At an episode's ends, an image occurs several times in a window. */
static void windows_of_frames_repeat_images(void **state) {
    (void)state;
    bags_field fields[] = {{"image", "jpeg[]"}, {"label", "int(8)[]"}};
    bags_writer *writer;
    bags_reader *reader;
    const char *path = at("episodes");
    assert_opens(writer, bags_writer_open(path, fields, 2, NULL, &said));
    for (size_t i = 0; i + 4 <= GOOD; i += 4) {
        bags_value values[4], labels[4];
        bytes files[4];
        for (size_t k = 0; k < 4; k++) {
            char name[200];
            snprintf(name, sizeof name, "tests/data/images/%s.jpg", good[i + k]);
            files[k] = load(name);
            values[k] = bags_blob(files[k].data, files[k].size);
            labels[k] = bags_uint(i + k);
        }
        bags_entry entries[] = {
            {"image", values, 1 + i / 4 % 4}, {"label", labels, 1 + i / 4 % 4}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
        for (size_t k = 0; k < 4; k++)
            bytes_free(&files[k]);
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    static const int64_t offsets[] = {-2, -1, 0, 1, 2, 9};
    for (unsigned i = 0; i < 4; i++) {
        pair p;
        bags_load_field field = photo(i == 3 ? 5 : i);
        bags_loader_options options = {0};
        bags_frames_options frames = {0};
        field.offsets = offsets;
        field.offset_count = sizeof offsets / sizeof *offsets;
        frames.clock = "label";
        options.frames = &frames;
        options.batch = 3;
        options.threads = i % 2 ? 2 : BAGS_THREADS_NONE;
        mock.reset(-1, 0, 1);
        open_pair(&p, reader, &field, &options, 0);
        assert_ok(compare(&p));
        assert_true(p.on_cpu > 0 && p.on_cpu < p.images * field.offset_count);
        close_pair(&p);
    }
    bags_reader_close(reader);
}

/* ---- memory ---- */

static void a_small_memory_makes_several_steps(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(6, 8, NULL);
    for (size_t limit = 100000; limit <= 1000000; limit *= 3) {
        pair p;
        bags_load_field field = photo(1);
        bags_loader_options options = {0};
        options.batch = 48;
        options.threads = BAGS_THREADS_NONE;
        mock.reset(-1, 0, 1);
        open_pair(&p, reader, &field, &options, limit);
        assert_ok(compare(&p));
        assert_true(p.on_cpu < p.images);
        assert_true(
            mock.most_bytes() < (long)(limit + limit / 2 + 2 * 48 * 33 * 41 * 3 * 4));
        close_pair(&p);
    }
    bags_reader_close(reader);
}

static void memory_is_reused(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(GOOD, 1, NULL);
    bags_cuda *cuda;
    bags_loader *loader;
    bags_load_field field = photo(1);
    bags_loader_options options = {0};
    const bags_batch *batch;
    long before = 0;
    void *taken = NULL;
    mock.reset(-1, 0, 1);
    assert_opens(cuda, bags_cuda_open(NULL, &said));
    bags_loader_device device = device_of(cuda);
    options.device = &device;
    options.images = &images;
    options.batch = 8;
    options.threads = 2;
    options.fields = &field;
    options.field_count = 1;
    assert_opens(
        loader, bags_loader_open(&(const bags_reader *){reader}, 1, &options, &said));
    for (int i = 0; i < 120; i++) {
        assert_ok(bags_loader_next(loader, &batch, &said));
        assert_ptr_equal(bags_loader_take(loader, batch, 1), NULL);
        bags_cuda_give(cuda, taken);
        taken = bags_loader_take(loader, batch, 0);
        assert_ptr_equal(taken, batch->tensors[0].data);
        assert_ptr_equal(bags_loader_take(loader, batch, 0), NULL);
        if (i == 30)
            before = mock.most_bytes();
    }
    /* A decoder's memory may still grow to its largest batch. */
    assert_true(mock.most_bytes() <= before + 8 * 1000000);
    bags_loader_close(loader);
    bags_cuda_close(cuda);
    memset(taken, 1, 1000); /* is still valid */
    assert_true(mock.objects() > 0);
    bags_cuda_give(cuda, taken);
    assert_int_equal(mock.objects(), 0);
    bags_reader_close(reader);
}

/* The stream waits for the program's work before it changes a tensor. */
static void a_tensor_waits_for_the_program(void **state) {
    (void)state;
    bags_cuda *cuda;
    bags_cuda_decoder *decoder;
    mock.reset(-1, 0, 1);
    assert_opens(cuda, bags_cuda_open(NULL, &said));
    assert_opens(decoder, bags_cuda_decoder_open(cuda, &said));
    unsigned char item[12] = {1, 2, 3};
    bags_cuda_form form = {
        2, 2, 3, BAGS_FILTER_BILINEAR, false, BAGS_DTYPE_UINT8, NULL};
    bags_cuda_image image = {0};
    image.item = item;
    void *out = bags_cuda_take(cuda, 12, &said);
    assert_non_null(out);
    assert_ok(bags_cuda_make(decoder, &form, &image, 1, out, &said));
    static const char *const last[] = {"cuCtxPopCurrent", "cuEventSynchronize",
        "cuEventRecord", "cuMemcpyHtoDAsync", "cuStreamWaitEvent", "cuEventRecord",
        "cuCtxPushCurrent"};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        assert_string_equal(mock.called((long)i), last[i]);
    assert_memory_equal(out, item, 12);

    form.channels = 2;
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_cuda_make(decoder, &form, &image, 1, out, &said));
    form.channels = 3;
    form.dtype = BAGS_DTYPE_FLOAT32;
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_cuda_make(decoder, &form, &image, 1, out, &said));
    form.dtype = BAGS_DTYPE_UINT8;
    bytes file = load("tests/data/images/420.jpg");
    image.item = NULL;
    image.blob.data = file.data;
    image.blob.size = file.size;
    assert_true(bags_cuda_probe(decoder, image.blob, true, &image.image));
    image.crop.width = image.image.width;
    image.crop.height = image.image.height;
    image.width = image.height = 1; /* smaller than the item */
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_cuda_make(decoder, &form, &image, 1, out, &said));
    image.width = image.height = 2;
    assert_ok(bags_cuda_make(decoder, &form, &image, 1, out, &said));
    image.crop.left = 1;
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_cuda_make(decoder, &form, &image, 1, out, &said));
    bytes_free(&file);
    bags_cuda_give(cuda, out);
    bags_cuda_decoder_close(decoder);
    bags_cuda_close(cuda);
    bags_cuda_close(NULL);
    bags_cuda_decoder_close(NULL);
    assert_int_equal(mock.objects(), 0);
}

/* ---- failures ---- */

/* Open everything, and load two batches. */
static bags_code load_two(const bags_reader *reader, const bags_allocator *allocator) {
    bags_cuda_options of_gpu = {0};
    bags_loader_options options = {0};
    bags_load_field field = photo(1);
    const bags_batch *batch;
    bags_code code = BAGS_OK;
    of_gpu.allocator = options.allocator = allocator;
    bags_cuda *cuda = bags_cuda_open(&of_gpu, &said);
    if (!cuda)
        return said.code;
    bags_loader_device device = device_of(cuda);
    options.device = &device;
    options.images = &images;
    options.batch = 4;
    options.threads = BAGS_THREADS_NONE;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = bags_loader_open(&reader, 1, &options, &said);
    for (int i = 0; loader && i < 2 && !code; i++)
        code = bags_loader_next(loader, &batch, &said);
    code = loader ? code : said.code;
    bags_loader_close(loader);
    bags_cuda_close(cuda);
    return code;
}

/* The number of calls if none fails. */
static long count_calls(const bags_reader *reader) {
    mock.reset(-1, 0, 1);
    assert_ok(load_two(reader, NULL));
    return mock.calls();
}

static void every_call_may_fail(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(8, 1, NULL);
    static const int failures[] = {2, 700};
    unsigned failed = 0;
    long calls = count_calls(reader);
    for (int f = 0; f < 2; f++)
        for (long n = 0; n < calls; n++) {
            mock.reset(n, failures[f], 1);
            poison();
            bags_code code = load_two(reader, NULL);
            assert_int_equal(mock.objects(), 0);
            failed += code != BAGS_OK;
            /* The CPU decodes what nvJPEG rejects. */
            assert_true(code == BAGS_OK || code == BAGS_ERROR_MEMORY ||
                        code == BAGS_ERROR_IO || code == BAGS_ERROR_MISSING);
            if (code)
                assert_true(strstr(said.message, "GPU") != NULL);
        }
    assert_true(failed > 40);
    bags_reader_close(reader);
}

static void memory_that_fails_is_an_error_and_no_leak(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(8, 1, NULL);
    uint64_t failed = 1;
    mock.reset(-1, 0, 1);
    for (uint64_t n = 1; failed; n++) {
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_code code = load_two(reader, &memory.allocator);
        failed = memory.failed;
        /* Announcing datapoints to the processor may fail silently. */
        assert_true(code == BAGS_OK || (failed && code == BAGS_ERROR_MEMORY));
        assert_int_equal(mock.objects(), 0);
        assert_int_equal(memory.live, 0);
    }
    memory.fail_at = 0;
    bags_reader_close(reader);
}

static void messages_name_the_call_and_its_code(void **state) {
    (void)state;
    bags_reader *reader = make_dataset(8, 1, NULL);
    bool memory_failed = false, decoding_failed = false;
    long calls = count_calls(reader);
    for (long n = 0; n < calls; n++) {
        mock.reset(n, 2, 1);
        if (load_two(reader, NULL)) {
            memory_failed =
                memory_failed ||
                !strcmp(said.message,
                    "GPU 0: cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
            decoding_failed =
                decoding_failed ||
                !strcmp(said.message,
                    "GPU 0: nvjpegDecodeBatched failed: EXECUTION_FAILED (6)");
        }
    }
    assert_true(memory_failed && decoding_failed);
    bags_reader_close(reader);
}

static void a_missing_gpu_is_one_sentence(void **state) {
    (void)state;
    bags_cuda_options options = {0};
    char command[1000];
    mock.reset(-1, 0, 0);
    assert_refused(BAGS_ERROR_MISSING, bags_cuda_open(NULL, &said));
    assert_string_equal(
        said.message, "no GPU can be used: the NVIDIA driver finds none (cuInit: 0)");
    mock.reset(-1, 0, 2);
    options.device = 2;
    assert_refused(BAGS_ERROR_MISSING, bags_cuda_open(&options, &said));
    assert_string_equal(said.message, "no GPU 2 (GPUs found: 2)");
    assert_int_equal(mock.objects(), 0);
    snprintf(command, sizeof command, "env -u LD_LIBRARY_PATH '%s' --without", program);
    assert_int_equal(system(command), 0);
}

static void options_that_exclude_a_device_are_refused(void **state) {
    (void)state;
    const bags_reader *reader = make_dataset(2, 1, NULL);
    bags_cuda *cuda;
    bags_load_field field = {0};
    bags_loader_options options = {0};
    mock.reset(-1, 0, 1);
    assert_opens(cuda, bags_cuda_open(NULL, &said));
    bags_loader_device device = device_of(cuda);
    field.name = "label";
    options.fields = &field;
    options.field_count = 1;
    options.device = &device;
    assert_refused(BAGS_ERROR_ARGUMENT, bags_loader_open(&reader, 1, &options, &said));
    assert_says("device needs a field with width and height");
    bags_cuda_close(cuda);
    assert_int_equal(mock.objects(), 0);
    bags_reader_close((bags_reader *)(uintptr_t)reader);
}

/* In a process without the mock: the driver is missing or, on a computer with a GPU,
 * opens. */
static int without_mock(void) {
    bags_error err;
    bags_cuda *cuda = bags_cuda_open(NULL, &err);
    bool said_so = strstr(err.message, "no GPU can be used: the NVIDIA driver") != NULL;
    bool good_code = cuda || (err.code == BAGS_ERROR_MISSING && said_so);
    bags_cuda_close(cuda);
    return good_code ? 0 : 1;
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
        TEST(tensors_equal_those_of_the_cpu),
        TEST(images_that_only_the_cpu_makes_are_counted),
        TEST(a_damaged_image_is_left_to_the_cpu),
        TEST(windows_of_frames_repeat_images),
        TEST(a_small_memory_makes_several_steps),
        TEST(memory_is_reused),
        TEST(a_tensor_waits_for_the_program),
        TEST(every_call_may_fail),
        TEST(memory_that_fails_is_an_error_and_no_leak),
        TEST(messages_name_the_call_and_its_code),
        TEST(a_missing_gpu_is_one_sentence),
        TEST(options_that_exclude_a_device_are_refused),
    };
    program = arguments[0];
    if (count > 1 && !strcmp(arguments[1], "--without"))
        return without_mock();
    start_with_mock(arguments);
    find("mock_reset", &mock.reset);
    find("mock_calls", &mock.calls);
    find("mock_objects", &mock.objects);
    find("mock_most_bytes", &mock.most_bytes);
    find("mock_called", &mock.called);
    find("mock_no_hardware", &mock.no_hardware);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
