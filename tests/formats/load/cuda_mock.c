/*
 * cuda_mock.c - libcuda.so.1, libnvjpeg.so.12 and libnvcuvid.so.1 for computers without a
 * GPU, in one file. Memory of the GPU is memory of the process, streams do their work at
 * once, JPEGs are decoded by libjpeg, videos by FFmpeg, and kernels are the source of
 * cuda_kernels.h, compiled for the CPU. Only tests load it: make builds it into the folder mock/ next to test_cuda.
 * LD_LIBRARY_PATH must name that folder.
 *
 * The mock_ functions are for the tests: they fail a call, and report calls and what was
 * not freed.
 */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <pthread.h>

static __thread unsigned mock_thread, mock_job;
#define CUDA_ON_CPU
#define CUDA_KERNEL static
#define CUDA_MEMORY
#define CUDA_THREAD mock_thread
#define CUDA_JOB mock_job
#include "../../../formats/load/cuda_kernels.h"

#define MOCK __attribute__((visibility("default")))

/* ---- for the tests ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, fail_at = -1, objects, bytes, most_bytes, failed_code = 700;
static int device_count = 1;
static char called[64][40]; /* the latest calls, calls % 64 */

/* Calls of a function since mock_reset. Only these are counted. */
static const char *const counted[] = {"cuvidCreateVideoParser", "cuvidCreateDecoder",
    "cuvidReconfigureDecoder", "cuvidDecodePicture", "cuvidMapVideoFrame"};
#define COUNTED (sizeof counted / sizeof *counted)
static long counts[COUNTED];
static void clear_counts(void) { memset(counts, 0, sizeof counts); }

MOCK void mock_reset(long fail, int code, int devices) {
    pthread_mutex_lock(&lock);
    calls = 0;
    fail_at = fail;
    failed_code = code;
    device_count = devices;
    most_bytes = bytes;
    clear_counts();
    pthread_mutex_unlock(&lock);
}
static long look(const long *number) {
    pthread_mutex_lock(&lock);
    long found = *number;
    pthread_mutex_unlock(&lock);
    return found;
}
MOCK long mock_calls(void) { return look(&calls); }
MOCK long mock_objects(void) { return look(&objects); }
MOCK long mock_most_bytes(void) { return look(&most_bytes); }
/* The name of a call, counted back from the latest. */
MOCK const char *mock_called(long back) {
    long count = look(&calls);
    return back < count && back < 64 ? called[(count - 1 - back) % 64] : "";
}

MOCK long mock_count(const char *name) {
    for (size_t i = 0; i < COUNTED; i++)
        if (!strcmp(name, counted[i]))
            return look(&counts[i]);
    return -1;
}

/* Count a call. Returns the error code that it must return. */
static int enter(const char *name) {
    pthread_mutex_lock(&lock);
    snprintf(called[calls % 64], sizeof *called, "%s", name);
    for (size_t i = 0; i < COUNTED; i++)
        counts[i] += !strcmp(name, counted[i]);
    int code = calls++ == fail_at ? (int)failed_code : 0;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Add or remove objects. */
static void count(long more, long size) {
    pthread_mutex_lock(&lock);
    objects += more;
    bytes += size;
    most_bytes = bytes > most_bytes ? bytes : most_bytes;
    pthread_mutex_unlock(&lock);
}

static int create(const char *name, void **out) {
    int code = enter(name);
    if (code)
        return code;
    *out = malloc(1);
    count(1, 0);
    return 0;
}

static int destroy(const char *name, void *object) {
    (void)enter(name); /* what cannot be freed is lost: not tested */
    free(object);
    count(-1, 0);
    return 0;
}

/* ---- the driver ---- */

MOCK int cuInit(unsigned flags) { return flags ? 1 : enter("cuInit"); }
MOCK int cuGetErrorName(int error, const char **name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS";
    return error == 2 || error == 700 ? 0 : 1;
}
MOCK int cuDeviceGetCount(int *out) {
    *out = device_count;
    return enter("cuDeviceGetCount");
}
MOCK int cuDeviceGet(int *device, int number) {
    *device = number;
    return enter("cuDeviceGet");
}
static char context_of_process;
static __thread int depth; /* of the stack of contexts */
MOCK int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    int code = enter("cuDevicePrimaryCtxRetain");
    if (code)
        return code;
    *context = &context_of_process;
    count(1, 0);
    return 0;
}
MOCK int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    (void)enter("cuDevicePrimaryCtxRelease");
    count(-1, 0);
    return 0;
}
MOCK int cuCtxPushCurrent_v2(void *context) {
    int code = enter("cuCtxPushCurrent");
    if (code)
        return code;
    if (context != &context_of_process)
        return 201;
    depth++;
    return 0;
}
MOCK int cuCtxPopCurrent_v2(void **context) {
    (void)enter("cuCtxPopCurrent");
    *context = &context_of_process;
    depth--;
    return 0;
}
/* For tests/bench/cuda.py: */
MOCK int cuCtxSetCurrent(void *context) {
    depth += context != NULL;
    return 0;
}
MOCK int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, (size_t)size, "mock");
    return 0;
}
MOCK int cuMemGetInfo_v2(size_t *left, size_t *total) {
    *total = (size_t)1 << 40;
    *left = *total - (size_t)bytes;
    return 0;
}
MOCK int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (const void *)(uintptr_t)from, size);
    return 0;
}
/* Calls that need a context fail without one. */
static int enter_in_context(const char *name) { return depth ? enter(name) : 201; }
MOCK int cuModuleLoadData(void **module, const void *image) {
    if (!strstr((const char *)image, ".entry cuda_columns(") || !depth)
        return 200;
    return create("cuModuleLoadData", module);
}
MOCK int cuModuleUnload(void *module) { return destroy("cuModuleUnload", module); }
static void (*const kernels[])(const cuda_job *) = {
    cuda_weigh, cuda_rows, cuda_columns};
static const char *const kernel_names[] = {"cuda_weigh", "cuda_rows", "cuda_columns"};
MOCK int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(name, kernel_names[i]))
            *function = (void *)(i + 1);
    return enter("cuModuleGetFunction");
}
MOCK int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int code = enter_in_context("cuMemAlloc");
    if (code)
        return code;
    size_t *block = malloc(size + 64);
    *block = size;
    memset((char *)block + 64, 0xA5, size);
    *address = (uintptr_t)block + 64;
    count(1, (long)size);
    return 0;
}
MOCK int cuMemFree_v2(uint64_t address) {
    size_t *block = (size_t *)((uintptr_t)address - 64);
    (void)enter("cuMemFree");
    count(-1, -(long)*block);
    free(block);
    return 0;
}
MOCK int cuMemcpyHtoDAsync_v2(
    uint64_t to, const void *from, size_t size, void *stream) {
    int code = enter_in_context("cuMemcpyHtoDAsync");
    if (!code && stream)
        memcpy((void *)(uintptr_t)to, from, size);
    return code;
}
MOCK int cuStreamCreate(void **stream, unsigned flags) {
    return flags == 1 ? create("cuStreamCreate", stream) : 1;
}
MOCK int cuStreamDestroy_v2(void *stream) { return destroy("cuStreamDestroy", stream); }
MOCK int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return stream && event && !flags ? enter("cuStreamWaitEvent") : 1;
}
MOCK int cuEventCreate(void **event, unsigned flags) {
    return flags == 3 ? create("cuEventCreate", event) : 1;
}
MOCK int cuEventRecord(void *event, void *stream) {
    (void)stream;
    return event ? enter("cuEventRecord") : 1;
}
MOCK int cuEventSynchronize(void *event) {
    return event ? enter("cuEventSynchronize") : 1;
}
MOCK int cuEventDestroy_v2(void *event) { return destroy("cuEventDestroy", event); }
MOCK int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y,
    unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
    unsigned shared, void *stream, void **arguments, void **extra) {
    int code = enter_in_context("cuLaunchKernel");
    (void)stream, (void)extra;
    if (code)
        return code;
    if (grid_y > 65535 || grid_z != 1 || block_x > 1024 || block_y != 1 ||
        block_z != 1 || shared)
        return 1;
    const cuda_job *jobs =
        (const cuda_job *)(uintptr_t) * (const uint64_t *)arguments[0];
    for (mock_job = 0; mock_job < grid_y; mock_job++)
        for (mock_thread = 0; mock_thread < grid_x * block_x; mock_thread++)
            kernels[(uintptr_t)function - 1](jobs);
    return 0;
}

/* ---- nvJPEG ---- */

typedef struct parsed {
    const unsigned char *data;
    size_t size;
} parsed;

static int no_hardware;
MOCK void mock_no_hardware(int no) { no_hardware = no; }

MOCK int nvjpegCreateEx(
    int backend, void *device, void *pinned, unsigned flags, void **handle) {
    if (device || pinned || flags)
        return 2;
    if (backend == 3 && no_hardware)
        return 7;
    int code = create("nvjpegCreateEx", handle);
    return code ? 8 : 0;
}
MOCK int nvjpegDestroy(void *handle) { return destroy("nvjpegDestroy", handle); }
MOCK int nvjpegJpegStateCreate(void *handle, void **state) {
    (void)handle;
    return create("nvjpegJpegStateCreate", state) ? 5 : 0;
}
MOCK int nvjpegJpegStateDestroy(void *state) {
    return destroy("nvjpegJpegStateDestroy", state);
}
MOCK int nvjpegJpegStreamCreate(void *handle, void **stream) {
    (void)handle;
    if (enter("nvjpegJpegStreamCreate"))
        return 5;
    *stream = calloc(1, sizeof(parsed));
    count(1, 0);
    return 0;
}
MOCK int nvjpegJpegStreamDestroy(void *stream) {
    return destroy("nvjpegJpegStreamDestroy", stream);
}
MOCK int nvjpegJpegStreamParseHeader(
    void *handle, const unsigned char *data, size_t size, void *stream) {
    parsed *p = (parsed *)stream;
    (void)handle;
    p->data = data;
    p->size = size;
    return enter("nvjpegJpegStreamParseHeader") ? 3 : 0;
}
MOCK int nvjpegJpegStreamGetFrameDimensions(
    void *stream, unsigned *width, unsigned *height) {
    const parsed *p = (const parsed *)stream;
    for (size_t i = 0; i + 9 < p->size && !*width; i++)
        if (p->data[i] == 0xFF && p->data[i + 1] == 0xC0) {
            *height = p->data[i + 5] * 256U + p->data[i + 6];
            *width = p->data[i + 7] * 256U + p->data[i + 8];
        }
    return enter("nvjpegJpegStreamGetFrameDimensions") ? 8 : 0;
}
/* Like the decoder in hardware: only baseline JPEGs. */
MOCK int nvjpegDecodeBatchedSupported(void *handle, void *stream, int *no) {
    const parsed *p = (const parsed *)stream;
    (void)handle;
    *no = 1;
    for (size_t i = 0; i + 1 < p->size && *no; i++)
        *no = !(p->data[i] == 0xFF && p->data[i + 1] == 0xC0);
    return enter("nvjpegDecodeBatchedSupported") ? 8 : 0;
}
static __thread int batch;
MOCK int nvjpegDecodeBatchedInitialize(
    void *handle, void *state, int size, int threads, int format) {
    (void)handle, (void)state;
    if (size < 1 || threads < 1 || format != 1)
        return 2;
    batch = size;
    return enter("nvjpegDecodeBatchedInitialize") ? 6 : 0;
}

typedef struct planes {
    unsigned char *channel[4];
    size_t pitch[4];
} planes;

typedef struct failing {
    struct jpeg_error_mgr base;
    jmp_buf out;
} failing;

static void fail(j_common_ptr info) { longjmp(((failing *)info->err)->out, 1); }
static void say_nothing(j_common_ptr info, int level) {
    info->err->num_warnings += level < 0;
}

/* Copy the rows of one unit to the planes. */
static void copy_rows(
    struct jpeg_decompress_struct *info, JSAMPARRAY *rows, unsigned from, planes *to) {
    for (int k = 0; k < info->num_components; k++) {
        const jpeg_component_info *c = &info->comp_info[k];
        unsigned first =
            from / (unsigned)info->max_v_samp_factor * (unsigned)c->v_samp_factor;
        for (unsigned i = 0; i < (unsigned)c->v_samp_factor * 8; i++)
            if (first + i < c->downsampled_height)
                memcpy(to->channel[k] + (first + i) * to->pitch[k], rows[k][i],
                    c->downsampled_width);
    }
}

static int decode(const unsigned char *data, size_t size, planes *to) {
    struct jpeg_decompress_struct info;
    failing error;
    info.err = jpeg_std_error(&error.base);
    error.base.error_exit = fail;
    error.base.emit_message = say_nothing;
    jpeg_create_decompress(&info);
    if (setjmp(error.out)) {
        jpeg_destroy_decompress(&info);
        return 3;
    }
    jpeg_mem_src(&info, data, size);
    jpeg_read_header(&info, TRUE);
    info.raw_data_out = TRUE;
    info.out_color_space = info.jpeg_color_space;
    jpeg_start_decompress(&info);
    unsigned unit = (unsigned)info.max_v_samp_factor * 8;
    JSAMPARRAY rows[3];
    for (int k = 0; k < info.num_components; k++)
        rows[k] = info.mem->alloc_sarray((j_common_ptr)&info, JPOOL_IMAGE,
            info.comp_info[k].width_in_blocks * 8 + 64, unit);
    for (unsigned y = 0; y < info.output_height; y += unit) {
        jpeg_read_raw_data(&info, rows, unit);
        copy_rows(&info, rows, y, to);
    }
    jpeg_finish_decompress(&info);
    int bad = info.err->num_warnings > 0;
    jpeg_destroy_decompress(&info);
    return bad ? 3 : 0;
}

MOCK int nvjpegDecodeBatched(void *handle, void *state,
    const unsigned char *const *data, const size_t *sizes, planes *out, void *stream) {
    (void)handle, (void)state, (void)stream;
    if (enter("nvjpegDecodeBatched"))
        return 6;
    for (int i = 0; i < batch; i++) {
        int code = decode(data[i], sizes[i], &out[i]);
        if (code)
            return code;
    }
    return 0;
}

/* ---- libnvcuvid ---- */

#ifdef MOCK_WITH_VIDEO
#include "cuda_mock_video.h"
#endif
