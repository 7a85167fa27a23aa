/*
 * cuda.c - decodes JPEGs on an NVIDIA GPU, and makes tensors of them. It needs no
 * library: the driver's libraries are opened at run time. cuda_kernels.h contains the
 * programs that run on the GPU.
 *
 * A decoder works through a batch in steps. A step has as many images as fit the
 * decoder's memory:
 *
 *     memory    | jobs | table | planes, weights, rows of image 0 | image 1 | ...
 *     stream    nvJPEG -> planes -> cuda_weigh -> cuda_rows -> cuda_columns -> tensor
 *
 * The thread sleeps until the stream has finished the step.
 */
#include "cuda_device.h"

#include "cuda_ptx.h"
#include "images.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

#define CUDA_MEMORY_DEFAULT ((size_t)256 << 20)
#define CUDA_THREADS 256     /* per block */
#define CUDA_JOBS_MOST 32768 /* a grid has at most 65,535 rows of blocks */

/* ---- the functions of the libraries ---- */

#define CUDA_SYMBOL(member, name)                                                      \
    { name, offsetof(cuda_functions, member) }

static const cuda_symbol cuda_driver[] = {CUDA_SYMBOL(init, "cuInit"),
    CUDA_SYMBOL(error_name, "cuGetErrorName"), CUDA_SYMBOL(device_get, "cuDeviceGet"),
    CUDA_SYMBOL(device_count, "cuDeviceGetCount"),
    CUDA_SYMBOL(context_retain, "cuDevicePrimaryCtxRetain"),
    CUDA_SYMBOL(context_release, "cuDevicePrimaryCtxRelease_v2"),
    CUDA_SYMBOL(context_push, "cuCtxPushCurrent_v2"),
    CUDA_SYMBOL(context_pop, "cuCtxPopCurrent_v2"),
    CUDA_SYMBOL(module_load, "cuModuleLoadData"),
    CUDA_SYMBOL(module_unload, "cuModuleUnload"),
    CUDA_SYMBOL(module_function, "cuModuleGetFunction"),
    CUDA_SYMBOL(memory_allocate, "cuMemAlloc_v2"),
    CUDA_SYMBOL(memory_free, "cuMemFree_v2"),
    CUDA_SYMBOL(copy_to, "cuMemcpyHtoDAsync_v2"),
    CUDA_SYMBOL(stream_create, "cuStreamCreate"),
    CUDA_SYMBOL(stream_destroy, "cuStreamDestroy_v2"),
    CUDA_SYMBOL(stream_wait, "cuStreamWaitEvent"),
    CUDA_SYMBOL(event_create, "cuEventCreate"),
    CUDA_SYMBOL(event_record, "cuEventRecord"),
    CUDA_SYMBOL(event_synchronize, "cuEventSynchronize"),
    CUDA_SYMBOL(event_destroy, "cuEventDestroy_v2"),
    CUDA_SYMBOL(launch, "cuLaunchKernel"), {NULL, 0}};

static const cuda_symbol cuda_nvjpeg[] = {CUDA_SYMBOL(jpeg_create, "nvjpegCreateEx"),
    CUDA_SYMBOL(jpeg_destroy, "nvjpegDestroy"),
    CUDA_SYMBOL(jpeg_state, "nvjpegJpegStateCreate"),
    CUDA_SYMBOL(jpeg_state_destroy, "nvjpegJpegStateDestroy"),
    CUDA_SYMBOL(jpeg_stream, "nvjpegJpegStreamCreate"),
    CUDA_SYMBOL(jpeg_stream_destroy, "nvjpegJpegStreamDestroy"),
    CUDA_SYMBOL(jpeg_parse, "nvjpegJpegStreamParseHeader"),
    CUDA_SYMBOL(jpeg_size, "nvjpegJpegStreamGetFrameDimensions"),
    CUDA_SYMBOL(jpeg_supported, "nvjpegDecodeBatchedSupported"),
    CUDA_SYMBOL(jpeg_begin, "nvjpegDecodeBatchedInitialize"),
    CUDA_SYMBOL(jpeg_decode, "nvjpegDecodeBatched"), {NULL, 0}};

/* ---- errors ---- */

static const char *cuda_jpeg_name(int status) {
    static const char *const names[] = {"SUCCESS", "NOT_INITIALIZED",
        "INVALID_PARAMETER", "BAD_JPEG", "JPEG_NOT_SUPPORTED", "ALLOCATOR_FAILURE",
        "EXECUTION_FAILED", "ARCH_MISMATCH", "INTERNAL_ERROR",
        "IMPLEMENTATION_NOT_SUPPORTED", "INCOMPLETE_BITSTREAM"};
    size_t known = sizeof names / sizeof *names;
    return status >= 0 && (size_t)status < known ? names[status] : "unknown status";
}

bags_code bagi_cuda_check(
    const bags_cuda *c, int result, const char *call, bags_error *err) {
    const char *name = NULL;
    if (!result)
        return BAGS_OK;
    if (c->call.error_name(result, &name) || !name)
        name = "unknown error";
    return bags_fail(err,
        result == CUDA_OUT_OF_MEMORY ? BAGS_ERROR_MEMORY : BAGS_ERROR_IO,
        "GPU %" PRIu32 ": %s failed: %s (%d)", c->options.device, call, name, result);
}

/* Turn the result of a call of nvJPEG into a code. */
static bags_code cuda_jpeg_check(
    const bags_cuda *c, int status, const char *call, bags_error *err) {
    if (!status)
        return BAGS_OK;
    bags_code code = status == CUDA_JPEG_BAD || status == CUDA_JPEG_NOT_SUPPORTED ||
                             status == CUDA_JPEG_INCOMPLETE
                         ? BAGS_ERROR_CORRUPT
                     : status == CUDA_JPEG_OUT_OF_MEMORY ? BAGS_ERROR_MEMORY
                                                         : BAGS_ERROR_IO;
    return bags_fail(err, code, "GPU %" PRIu32 ": %s failed: %s (%d)",
        c->options.device, call, cuda_jpeg_name(status), status);
}

/* ---- libraries ---- */

#ifdef _WIN32

void *bagi_cuda_library(const char *const *names, bags_error *err) {
    bags_fail(err, BAGS_ERROR_MISSING, "%s: no GPU is used on Windows", names[0]);
    return NULL;
}

static void *cuda_find(void *library, const char *name) {
    (void)library, (void)name;
    return NULL;
}

#else

/* Open the first library that exists. It is never closed: the driver does not support
 * that. */
void *bagi_cuda_library(const char *const *names, bags_error *err) {
    for (size_t i = 0; names[i]; i++) {
        void *found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (found)
            return found;
    }
    bags_fail(err, BAGS_ERROR_MISSING,
        "no GPU can be used: the NVIDIA driver is not installed (%s not found)",
        names[0]);
    return NULL;
}

static void *cuda_find(void *library, const char *name) { return dlsym(library, name); }

#endif

const char *bagi_cuda_bind(void *to, void *library, const cuda_symbol *symbols) {
    for (; symbols->name; symbols++) {
        void *found = cuda_find(library, symbols->name);
        if (!found)
            return symbols->name;
        /* ISO C does not convert pointers to functions. */
        memcpy((char *)to + symbols->offset, &found, sizeof found);
    }
    return NULL;
}

/* ---- opening ---- */

static bags_code cuda_open_driver(bags_cuda *c, bags_error *err) {
    static const char *const names[] = {"libcuda.so.1", NULL};
    void *library = bagi_cuda_library(names, err);
    int count = 0;
    if (!library)
        return err->code;
    const char *missing = bagi_cuda_bind(&c->call, library, cuda_driver);
    if (missing)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "no GPU can be used: the NVIDIA driver is too old (%s not found)", missing);
    int result = c->call.init(0);
    if (!result)
        result = c->call.device_count(&count);
    if (result || count == 0)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "no GPU can be used: the NVIDIA driver finds none (cuInit: %d)", result);
    if (c->options.device >= (uint32_t)count)
        return bags_fail(err, BAGS_ERROR_MISSING, "no GPU %" PRIu32 " (GPUs found: %d)",
            c->options.device, count);
    FORMAT_TRY(bagi_cuda_check(
        c, c->call.device_get(&c->device, (int)c->options.device), "cuDeviceGet", err));
    bags_code code = bagi_cuda_check(c, c->call.context_retain(&c->context, c->device),
        "cuDevicePrimaryCtxRetain", err);
    if (code)
        c->context = NULL;
    return code;
}

/* Load the kernels. Their text is stored in lines, because C limits the length of a
 * string. */
static bags_code cuda_open_kernels(bags_cuda *c, bags_error *err) {
    bags_buffer text = bags_buffer_of(c->options.allocator);
    size_t used = 0, lines = sizeof cuda_ptx / sizeof *cuda_ptx;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < lines && !code; i++) {
        size_t size = strlen(cuda_ptx[i]);
        code = bags_buffer_reserve(&text, used + size + 2, err);
        if (code)
            break;
        memcpy(text.data + used, cuda_ptx[i], size);
        memcpy(text.data + used + size, "\n", 2);
        used += size + 1;
    }
    if (!code)
        code = bagi_cuda_check(
            c, c->call.module_load(&c->module, text.data), "cuModuleLoadData", err);
    bags_buffer_free(&text);
    if (code) {
        c->module = NULL;
        return code;
    }
    FORMAT_TRY(
        bagi_cuda_check(c, c->call.module_function(&c->weigh, c->module, "cuda_weigh"),
            "cuModuleGetFunction", err));
    FORMAT_TRY(
        bagi_cuda_check(c, c->call.module_function(&c->rows, c->module, "cuda_rows"),
            "cuModuleGetFunction", err));
    return bagi_cuda_check(c,
        c->call.module_function(&c->columns, c->module, "cuda_columns"),
        "cuModuleGetFunction", err);
}

/* Open nvJPEG, if it exists, with the GPU's own decoder if it has one. */
static bags_code cuda_open_jpeg(bags_cuda *c, bags_error *err) {
    static const char *const names[] = {
        "libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so.11", "libnvjpeg.so", NULL};
    bags_error unused;
    void *library = bagi_cuda_library(names, &unused);
    if (!library || bagi_cuda_bind(&c->call, library, cuda_nvjpeg))
        return BAGS_OK;
    if (!c->call.jpeg_create(CUDA_JPEG_BACKEND_HARDWARE, NULL, NULL, 0, &c->jpeg))
        return BAGS_OK;
    c->jpeg = NULL;
    bags_code code = cuda_jpeg_check(c,
        c->call.jpeg_create(CUDA_JPEG_BACKEND_DEFAULT, NULL, NULL, 0, &c->jpeg),
        "nvjpegCreateEx", err);
    if (code)
        c->jpeg = NULL;
    return code;
}

bags_code bagi_cuda_enter(const bags_cuda *c, bags_error *err) {
    return bagi_cuda_check(
        c, c->call.context_push(c->context), "cuCtxPushCurrent", err);
}

void bagi_cuda_leave(const bags_cuda *c) {
    cuda_object unused;
    (void)c->call.context_pop(&unused);
}

static bags_code cuda_open_all(bags_cuda *c, bags_error *err) {
    FORMAT_TRY(cuda_open_driver(c, err));
    FORMAT_TRY(bagi_cuda_enter(c, err));
    bags_code code = cuda_open_kernels(c, err);
    if (!code)
        code = cuda_open_jpeg(c, err);
    bagi_cuda_leave(c);
    return code;
}

/* Free everything; failures do not matter any more. */
static void cuda_free(bags_cuda *c) {
    cuda_block *blocks = (cuda_block *)(void *)c->blocks.data;
    bool entered = c->context && !c->call.context_push(c->context);
    for (size_t i = 0; i < c->block_count; i++)
        (void)c->call.memory_free(blocks[i].address);
    if (c->jpeg)
        (void)c->call.jpeg_destroy(c->jpeg);
    if (c->module)
        (void)c->call.module_unload(c->module);
    if (entered)
        bagi_cuda_leave(c);
    if (c->context)
        (void)c->call.context_release(c->device);
    bags_buffer_free(&c->blocks);
    gate_end(&c->lock);
    format_state_close(c);
}

/* Add a user, or remove one; the last one frees the GPU. */
static void cuda_use(bags_cuda *c) {
    gate_lock(&c->lock);
    c->users++;
    gate_unlock(&c->lock);
}

static void cuda_drop(bags_cuda *c) {
    gate_lock(&c->lock);
    bool last = --c->users == 0;
    gate_unlock(&c->lock);
    if (last)
        cuda_free(c);
}

bags_cuda *bags_cuda_open(const bags_cuda_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_cuda *c =
        (bags_cuda *)format_state(options ? options->allocator : NULL, sizeof *c, err);
    if (!c)
        return NULL;
    if (options)
        c->options = *options;
    if (!c->options.memory)
        c->options.memory = CUDA_MEMORY_DEFAULT;
    c->blocks = bags_buffer_of(c->options.allocator);
    c->users = 1;
    if (!gate_start(&c->lock)) {
        bags_fail(err, BAGS_ERROR_MEMORY, "cannot make a lock");
        format_state_close(c);
        return NULL;
    }
    if (!cuda_open_all(c, err))
        return c;
    cuda_free(c);
    return NULL;
}

void bags_cuda_close(bags_cuda *c) {
    if (c)
        cuda_drop(c);
}

uint32_t bags_cuda_device(const bags_cuda *c) { return c->options.device; }

/* ---- memory of the GPU ---- */

/* Find the smallest free block of at least this size. Called under the lock. */
static cuda_block *cuda_find_block(bags_cuda *c, size_t size) {
    cuda_block *blocks = (cuda_block *)(void *)c->blocks.data, *best = NULL;
    for (size_t i = 0; i < c->block_count; i++)
        if (!blocks[i].taken && blocks[i].size >= size &&
            (!best || blocks[i].size < best->size))
            best = &blocks[i];
    return best;
}

/* Free the blocks that are too small, so that growing batches do not leave them behind;
 * then allocate one. Called under the lock, in the context. */
static bags_code cuda_add_block(
    bags_cuda *c, size_t size, cuda_block **out, bags_error *err) {
    size_t kept = 0;
    FORMAT_TRY(bags_buffer_reserve(
        &c->blocks, (c->block_count + 1) * sizeof(cuda_block), err));
    cuda_block *blocks = (cuda_block *)(void *)c->blocks.data;
    for (size_t i = 0; i < c->block_count; i++)
        if (blocks[i].taken)
            blocks[kept++] = blocks[i];
        else
            (void)c->call.memory_free(blocks[i].address);
    c->block_count = kept;
    FORMAT_TRY(bagi_cuda_check(
        c, c->call.memory_allocate(&blocks[kept].address, size), "cuMemAlloc", err));
    *out = &blocks[kept];
    (*out)->size = size;
    (*out)->taken = false;
    c->block_count++;
    return BAGS_OK;
}

void *bags_cuda_take(bags_cuda *c, size_t size, bags_error *err) {
    bags_error local;
    void *address = NULL;
    bags_code code = BAGS_OK;
    if (!err)
        err = &local;
    size = size ? size : 1;
    gate_lock(&c->lock);
    cuda_block *block = cuda_find_block(c, size);
    if (!block && !(code = bagi_cuda_enter(c, err))) {
        code = cuda_add_block(c, size, &block, err);
        bagi_cuda_leave(c);
    }
    if (!code) {
        block->taken = true;
        c->users++;
        address = (void *)(uintptr_t)block->address;
    }
    gate_unlock(&c->lock);
    return address;
}

void bags_cuda_give(bags_cuda *c, void *memory) {
    bool found = false;
    gate_lock(&c->lock);
    cuda_block *blocks = (cuda_block *)(void *)c->blocks.data;
    for (size_t i = 0; i < c->block_count; i++)
        if (blocks[i].taken && blocks[i].address == (uintptr_t)memory) {
            blocks[i].taken = false;
            found = true;
        }
    gate_unlock(&c->lock);
    if (found)
        cuda_drop(c);
}

/* ---- decoders ---- */

static bags_code cuda_decoder_start(bags_cuda_decoder *d, bags_error *err) {
    const bags_cuda *c = d->cuda;
    const cuda_functions *call = &c->call;
    FORMAT_TRY(
        bagi_cuda_check(c, call->stream_create(&d->stream, CUDA_STREAM_NON_BLOCKING),
            "cuStreamCreate", err));
    FORMAT_TRY(bagi_cuda_check(c,
        call->event_create(
            &d->done, CUDA_EVENT_BLOCKING_SYNC | CUDA_EVENT_DISABLE_TIMING),
        "cuEventCreate", err));
    if (!c->jpeg)
        return BAGS_OK;
    FORMAT_TRY(cuda_jpeg_check(
        c, call->jpeg_state(c->jpeg, &d->jpeg_state), "nvjpegJpegStateCreate", err));
    return cuda_jpeg_check(
        c, call->jpeg_stream(c->jpeg, &d->jpeg_stream), "nvjpegJpegStreamCreate", err);
}

bags_cuda_decoder *bags_cuda_decoder_open(bags_cuda *c, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_cuda_decoder *d =
        (bags_cuda_decoder *)format_state(c->options.allocator, sizeof *d, err);
    if (!d)
        return NULL;
    cuda_use(c);
    d->cuda = c;
    d->jobs = d->blobs = d->sizes = d->planes = bags_buffer_of(c->options.allocator);
    bags_code code = bagi_cuda_enter(c, err);
    if (!code) {
        code = cuda_decoder_start(d, err);
        bagi_cuda_leave(c);
    }
    if (!code)
        return d;
    bags_cuda_decoder_close(d);
    return NULL;
}

void bags_cuda_decoder_close(bags_cuda_decoder *d) {
    if (!d)
        return;
    bags_cuda *c = d->cuda;
    bool entered = !c->call.context_push(c->context);
    bagi_cuda_close_videos(d);
    if (d->jpeg_stream)
        (void)c->call.jpeg_stream_destroy(d->jpeg_stream);
    if (d->jpeg_state)
        (void)c->call.jpeg_state_destroy(d->jpeg_state);
    if (d->scratch)
        (void)c->call.memory_free(d->scratch);
    if (d->done)
        (void)c->call.event_destroy(d->done);
    if (d->stream)
        (void)c->call.stream_destroy(d->stream);
    if (entered)
        bagi_cuda_leave(c);
    bags_buffer_free(&d->jobs);
    bags_buffer_free(&d->blobs);
    bags_buffer_free(&d->sizes);
    bags_buffer_free(&d->planes);
    format_state_close(d);
    cuda_drop(c);
}

/* ---- probing ---- */

/* True if a JPEG's colours are YCbCr. Adobe's segment may state others, and so do
 * components named R, G, B. */
static bool cuda_is_ycc(bags_view blob, bags_view frame) {
    const unsigned char *f = frame.data;
    bags_view data;
    size_t at = 0;
    unsigned marker = format_jpeg_marker(blob, &at, &data);
    bool jfif = false;
    while (marker && marker != 0xDA) {
        marker = format_jpeg_marker(blob, &at, &data);
        jfif =
            jfif || (marker == 0xE0 && data.size >= 5 && !memcmp(data.data, "JFIF", 5));
        if (!jfif && marker == 0xEE && data.size >= 12 &&
            !memcmp(data.data, "Adobe", 5))
            return data.data[11] == 1;
    }
    return jfif || f[6] != 'R' || f[9] != 'G' || f[12] != 'B';
}

/* Read the size and the sampling of a JPEG: 0x11, 0x21, 0x22 or 0x12. False unless the
 * kernels support it. */
static bool cuda_read_frame(bags_view blob, bags_image *out, unsigned *sampling) {
    bags_view frame = format_jpeg_frame(blob);
    const unsigned char *f = frame.data;
    if (frame.size < 9 || f[0] != 8 || (f[5] != 1 && f[5] != 3) ||
        frame.size < 6 + (size_t)3 * f[5])
        return false;
    memset(out, 0, sizeof *out);
    out->height = (uint32_t)bags_load_bytes(f + 1, 2, true);
    out->width = (uint32_t)bags_load_bytes(f + 3, 2, true);
    out->channels = f[5];
    out->depth = 8;
    out->dtype = BAGS_DTYPE_UINT8;
    *sampling = out->channels == 1 ? 0x11 : f[7];
    if (!out->height || !out->width)
        return false;
    if (out->channels == 1)
        return true;
    return (*sampling == 0x11 || *sampling == 0x21 || *sampling == 0x22 ||
               *sampling == 0x12) &&
           f[10] == 0x11 && f[13] == 0x11 && cuda_is_ycc(blob, frame);
}

/* Bytes per row, and rows, of a plane: entire units, because decoders may write
 * them. */
static size_t cuda_plane_pitch(const bags_image *image) {
    return ((size_t)image->width + 63) / 64 * 64;
}

static size_t cuda_plane_size(const bags_image *image) {
    return cuda_plane_pitch(image) * (((size_t)image->height + 15) / 16 * 16);
}

bool bagi_cuda_fits(const bags_cuda *c, const bags_image *image) {
    return cuda_plane_size(image) <= c->options.memory / 6;
}

bool bags_cuda_probe(
    bags_cuda_decoder *d, bags_view blob, bool orient, bags_image *out) {
    const bags_cuda *c = d->cuda;
    unsigned sampling, width = 0, height = 0;
    int no = -1;
    bool complete = blob.size > 4 && blob.data[blob.size - 2] == 0xFF &&
                    blob.data[blob.size - 1] == 0xD9;
    if (!c->jpeg || !complete || !cuda_read_frame(blob, out, &sampling) ||
        (orient && format_orientation(blob) != 1) || !bagi_cuda_fits(c, out))
        return false;
    if (c->call.context_push(c->context))
        return false;
    bool good = !c->call.jpeg_parse(c->jpeg, blob.data, blob.size, d->jpeg_stream) &&
                !c->call.jpeg_size(d->jpeg_stream, &width, &height) &&
                !c->call.jpeg_supported(c->jpeg, d->jpeg_stream, &no) && no == 0;
    /* nvJPEG must not write past the planes. */
    good = good && width == out->width && height == out->height;
    bagi_cuda_leave(c);
    return good;
}

/* ---- making tensors ---- */

/* The most weights of a pixel, as in resample.c. */
static uint32_t cuda_most(uint32_t from, uint32_t to, bags_filter filter) {
    double scale = (double)from / to, widened = scale < 1 ? 1 : scale;
    double support = (filter == BAGS_FILTER_BICUBIC ? 2 : 1) * widened;
    uint32_t most = 2 * (uint32_t)support + 3;
    return most > from ? from : most;
}

bags_code bagi_cuda_plan(const bags_cuda_form *form, const bags_cuda_image *image,
    cuda_job *job, size_t at, size_t *size, bags_error *err) {
    const bags_part *crop = &image->crop;
    const bags_image *frame = &image->image;
    if (!crop->width || !crop->height || crop->left > frame->width ||
        crop->width > frame->width - crop->left || crop->top > frame->height ||
        crop->height > frame->height - crop->top || image->left > image->width ||
        form->width > image->width - image->left || image->top > image->height ||
        form->height > image->height - image->top)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "a crop or an item outside its image (%" PRIu32 " x %" PRIu32 ")",
            frame->width, frame->height);
    job->size[0] = frame->width;
    job->size[1] = frame->height;
    job->crop[0] = crop->left;
    job->crop[1] = crop->top;
    job->crop[2] = crop->width;
    job->crop[3] = crop->height;
    job->resized[0] = image->width;
    job->resized[1] = image->height;
    job->cut[0] = image->left;
    job->cut[1] = image->top;
    job->out_size[0] = form->width;
    job->out_size[1] = form->height;
    job->most[0] = cuda_most(crop->width, image->width, form->filter);
    job->most[1] = cuda_most(crop->height, image->height, form->filter);
    job->bicubic = form->filter == BAGS_FILTER_BICUBIC;
    job->flip_x = image->flip_x;
    job->flip_y = image->flip_y;
    job->channels = form->channels;
    job->nchw = form->nchw;
    job->width = (cuda_number)bags_dtype_size(form->dtype);
    job->weights = at;
    at += cuda_align(((size_t)form->width * (job->most[0] + (size_t)2) +
                         (size_t)form->height * (job->most[1] + (size_t)2)) *
                     sizeof(int32_t));
    job->rows = at;
    *size = at + cuda_align((size_t)crop->height * form->width * form->channels);
    return BAGS_OK;
}

/* Check a JPEG, and plan its job. *size is the memory that it needs; addresses in the
 * job are offsets in that memory. */
static bags_code cuda_plan(const bags_cuda_form *form, const bags_cuda_image *image,
    cuda_job *job, size_t *size, bags_error *err) {
    bags_image frame;
    unsigned sampling;
    size_t plane, at = 0;
    memset(job, 0, sizeof *job);
    if (!cuda_read_frame(image->blob, &frame, &sampling) ||
        frame.width != image->image.width || frame.height != image->image.height)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "an image that bags_cuda_probe rejects");
    plane = cuda_plane_size(&frame);
    for (int i = 0; i < 3; i++, at += plane) { /* gray images may be written as three */
        job->planes[i] = at;
        job->pitch[i] = (cuda_number)cuda_plane_pitch(&frame);
    }
    job->halved[0] = (sampling & 0xF0) == 0x20;
    job->halved[1] = (sampling & 0x0F) == 0x02;
    job->gray = frame.channels == 1;
    return bagi_cuda_plan(form, image, job, at, size, err);
}

/* A step: the JPEGs from `start` to `stop`. */
typedef struct cuda_step {
    size_t start, stop;
    size_t count;     /* of jobs */
    size_t size;      /* of the GPU's memory */
    size_t most_rows; /* the most pixels that a job has in job.rows */
} cuda_step;

/* Plan as many jobs as fit the memory, at least one. */
static bags_code cuda_plan_step(bags_cuda_decoder *d, const bags_cuda_form *form,
    const bags_cuda_image *images, size_t count, cuda_step *step, bags_error *err) {
    size_t most = d->cuda->options.memory;
    step->count = step->most_rows = 0;
    step->size = cuda_align((size_t)256 * form->channels * sizeof(float));
    for (step->stop = step->start; step->stop < count; step->stop++) {
        const bags_cuda_image *image = &images[step->stop];
        cuda_job job;
        size_t size = 0;
        if (image->item || image->is_frame)
            continue;
        FORMAT_TRY(cuda_plan(form, image, &job, &size, err));
        if (step->count &&
            (size > most || step->size > most - size || step->count == CUDA_JOBS_MOST))
            break;
        size_t rows = (size_t)job.crop[3] * job.out_size[0];
        FORMAT_TRY(
            bags_buffer_reserve(&d->jobs, (step->count + 1) * sizeof(cuda_job), err));
        job.out = step->stop;   /* the number of the item, */
        job.table = step->size; /* and where its memory starts, for now */
        memcpy(d->jobs.data + step->count * sizeof job, &job, sizeof job);
        step->count++;
        step->size += size;
        step->most_rows = rows > step->most_rows ? rows : step->most_rows;
    }
    step->size += cuda_align(step->count * sizeof(cuda_job));
    return BAGS_OK;
}

/* Grow the decoder's memory on the GPU. */
bags_code bagi_cuda_reserve(bags_cuda_decoder *d, size_t size, bags_error *err) {
    const bags_cuda *c = d->cuda;
    if (size <= d->scratch_size)
        return BAGS_OK;
    if (d->scratch)
        (void)c->call.memory_free(d->scratch);
    d->scratch = d->scratch_size = 0;
    FORMAT_TRY(bagi_cuda_check(
        c, c->call.memory_allocate(&d->scratch, size), "cuMemAlloc", err));
    d->scratch_size = size;
    return BAGS_OK;
}

/* Replace the offsets in a step's jobs by addresses, and list the images for nvJPEG. */
static bags_code cuda_place(bags_cuda_decoder *d, const cuda_step *step,
    const bags_cuda_image *images, size_t item_size, cuda_address table,
    cuda_address tensor, bags_error *err) {
    cuda_job *jobs = (cuda_job *)(void *)d->jobs.data;
    FORMAT_TRY(bags_buffer_reserve(&d->blobs, step->count * sizeof(void *), err));
    FORMAT_TRY(bags_buffer_reserve(&d->sizes, step->count * sizeof(size_t), err));
    FORMAT_TRY(bags_buffer_reserve(&d->planes, step->count * sizeof(cuda_planes), err));
    const unsigned char **blobs = (const unsigned char **)(void *)d->blobs.data;
    size_t *sizes = (size_t *)(void *)d->sizes.data;
    cuda_planes *planes = (cuda_planes *)(void *)d->planes.data;
    memset(planes, 0, step->count * sizeof *planes);
    for (size_t i = 0; i < step->count; i++) {
        cuda_job *job = &jobs[i];
        const bags_cuda_image *image = &images[job->out];
        cuda_address base = d->scratch + job->table;
        for (int k = 0; k < 3; k++) {
            job->planes[k] += base;
            planes[i].channel[k] = (unsigned char *)(uintptr_t)job->planes[k];
            planes[i].pitch[k] = job->pitch[k];
        }
        job->weights += base;
        job->rows += base;
        job->out = tensor + job->out * item_size;
        job->table = table;
        blobs[i] = image->blob.data;
        sizes[i] = image->blob.size;
    }
    return BAGS_OK;
}

/* Run a kernel for all jobs, with at least `threads` threads for each. */
static bags_code cuda_launch(bags_cuda_decoder *d, cuda_object kernel,
    cuda_address jobs, size_t count, size_t threads, bags_error *err) {
    const bags_cuda *c = d->cuda;
    void *arguments[1];
    arguments[0] = &jobs;
    size_t blocks = (threads + CUDA_THREADS - 1) / CUDA_THREADS;
    if (blocks > INT32_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT, "image too large for a GPU");
    return bagi_cuda_check(c,
        c->call.launch(kernel, (unsigned)blocks, (unsigned)count, 1, CUDA_THREADS, 1, 1,
            0, d->stream, arguments, NULL),
        "cuLaunchKernel", err);
}

bags_code bagi_cuda_resize(bags_cuda_decoder *d, const bags_cuda_form *form,
    cuda_address jobs, size_t count, size_t most_rows, bags_error *err) {
    const bags_cuda *c = d->cuda;
    FORMAT_TRY(
        cuda_launch(d, c->weigh, jobs, count, (size_t)form->width + form->height, err));
    FORMAT_TRY(cuda_launch(d, c->rows, jobs, count, most_rows, err));
    return cuda_launch(
        d, c->columns, jobs, count, (size_t)form->width * form->height, err);
}

bags_code bagi_cuda_copy(bags_cuda_decoder *d, cuda_address to, const void *from,
    size_t size, bags_error *err) {
    const bags_cuda *c = d->cuda;
    return bagi_cuda_check(
        c, c->call.copy_to(to, from, size, d->stream), "cuMemcpyHtoDAsync", err);
}

/* The program may still use the memory for an earlier batch. */
bags_code bagi_cuda_await(bags_cuda_decoder *d, bags_error *err) {
    const bags_cuda *c = d->cuda;
    FORMAT_TRY(bagi_cuda_check(
        c, c->call.event_record(d->done, c->options.stream), "cuEventRecord", err));
    return bagi_cuda_check(
        c, c->call.stream_wait(d->stream, d->done, 0), "cuStreamWaitEvent", err);
}

/* Wait, asleep, until the stream has finished. */
bags_code bagi_cuda_finish(bags_cuda_decoder *d, bags_error *err) {
    const bags_cuda *c = d->cuda;
    FORMAT_TRY(bagi_cuda_check(
        c, c->call.event_record(d->done, d->stream), "cuEventRecord", err));
    return bagi_cuda_check(
        c, c->call.event_synchronize(d->done), "cuEventSynchronize", err);
}

/* Decode a planned step. */
static bags_code cuda_run_step(bags_cuda_decoder *d, const bags_cuda_form *form,
    const bags_cuda_image *images, const cuda_step *step, cuda_address tensor,
    bags_error *err) {
    const bags_cuda *c = d->cuda;
    size_t numbers = (size_t)256 * form->channels,
           pixels = bags_dtype_size(form->dtype);
    size_t item = (size_t)form->width * form->height * form->channels * pixels;
    FORMAT_TRY(bagi_cuda_reserve(d, step->size, err));
    cuda_address jobs =
        d->scratch + step->size - cuda_align(step->count * sizeof(cuda_job));
    if (form->table)
        FORMAT_TRY(bagi_cuda_copy(d, d->scratch, form->table, numbers * pixels, err));
    FORMAT_TRY(
        cuda_place(d, step, images, item, form->table ? d->scratch : 0, tensor, err));
    FORMAT_TRY(
        bagi_cuda_copy(d, jobs, d->jobs.data, step->count * sizeof(cuda_job), err));
    if (d->jpeg_batch != step->count) {
        d->jpeg_batch = 0;
        FORMAT_TRY(cuda_jpeg_check(c,
            c->call.jpeg_begin(
                c->jpeg, d->jpeg_state, (int)step->count, 1, CUDA_JPEG_YUV),
            "nvjpegDecodeBatchedInitialize", err));
        d->jpeg_batch = step->count;
    }
    bags_code code = cuda_jpeg_check(c,
        c->call.jpeg_decode(c->jpeg, d->jpeg_state,
            (const unsigned char *const *)(void *)d->blobs.data,
            (const size_t *)(const void *)d->sizes.data,
            (cuda_planes *)(void *)d->planes.data, d->stream),
        "nvjpegDecodeBatched", err);
    if (code) {
        d->jpeg_batch = 0;
        return code;
    }
    return bagi_cuda_resize(d, form, jobs, step->count, step->most_rows, err);
}

/* Copy the items that the CPU made, neighbours together. */
static bags_code cuda_copy_items(bags_cuda_decoder *d, const bags_cuda_image *images,
    size_t count, size_t size, cuda_address tensor, bags_error *err) {
    for (size_t i = 0, next; i < count; i = next) {
        const unsigned char *from = (const unsigned char *)images[i].item;
        next = i + 1;
        while (from && next < count && images[next].item == from + (next - i) * size)
            next++;
        if (from)
            FORMAT_TRY(
                bagi_cuda_copy(d, tensor + i * size, from, (next - i) * size, err));
    }
    return BAGS_OK;
}

static bags_code cuda_make(bags_cuda_decoder *d, const bags_cuda_form *form,
    const bags_cuda_image *images, size_t count, cuda_address tensor, bags_error *err) {
    size_t item = (size_t)form->width * form->height * form->channels *
                  bags_dtype_size(form->dtype);
    cuda_step step;
    FORMAT_TRY(bagi_cuda_await(d, err));
    FORMAT_TRY(cuda_copy_items(d, images, count, item, tensor, err));
    memset(&step, 0, sizeof step);
    for (; step.start < count; step.start = step.stop) {
        FORMAT_TRY(cuda_plan_step(d, form, images, count, &step, err));
        if (step.count) {
            FORMAT_TRY(cuda_run_step(d, form, images, &step, tensor, err));
            FORMAT_TRY(bagi_cuda_finish(d, err));
        }
    }
    return bagi_cuda_finish(d, err);
}

bags_code bagi_cuda_check_form(const bags_cuda_form *form, bags_error *err) {
    size_t width = bags_dtype_size(form->dtype);
    const format_rule rules[] = {
        {form->width < 1 || form->height < 1 || form->width > UINT16_MAX ||
                form->height > UINT16_MAX,
            "width and height must both be 1 to 65535"},
        {form->channels != 1 && form->channels != 3, "channels must be 1 or 3"},
        {form->filter > BAGS_FILTER_BICUBIC, "the filter must be bilinear or bicubic"},
        {width != 1 && width != 2 && width != 4, "no dtype of 1, 2 or 4 bytes"},
        {(form->table == NULL) != (form->dtype == BAGS_DTYPE_UINT8),
            "a table is needed, except for uint8"},
    };
    return FORMAT_CHECK(rules, "", err);
}

bags_code bags_cuda_make(bags_cuda_decoder *d, const bags_cuda_form *form,
    const bags_cuda_image *images, size_t count, void *out, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    for (size_t i = 0; i < count && !d->cuda->jpeg; i++)
        if (!images[i].item && !images[i].is_frame)
            return bags_fail(
                err, BAGS_ERROR_ARGUMENT, "an image that bags_cuda_probe rejects");
    FORMAT_TRY(bagi_cuda_check_form(form, err));
    FORMAT_TRY(bagi_cuda_enter(d->cuda, err));
    bags_code code =
        cuda_make(d, form, images, count, (cuda_address)(uintptr_t)out, err);
    if (code) { /* nothing may still use the caller's memory */
        bags_error unused;
        (void)bagi_cuda_finish(d, &unused);
    }
    bagi_cuda_leave(d->cuda);
    return code;
}
