/*
 * cuda_device.h - declarations shared by cuda.c and cuda_video.c: the driver's
 * interface, a GPU and a decoder. Programs do not include it.
 */
#ifndef BAGS_FORMATS_CUDA_DEVICE_H
#define BAGS_FORMATS_CUDA_DEVICE_H

#include "gate.h"

#include "blocks.h"
#include "cuda_kernels.h"
#include "load.h"

#define CUDA_ALIGN ((size_t)256)

/* ---- the driver's interface ---- */

typedef void *cuda_object; /* a context, stream, event, module or function */

/* A decoded image, as nvJPEG declares it. */
typedef struct cuda_planes {
    unsigned char *channel[4];
    size_t pitch[4];
} cuda_planes;

enum {
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_BLOCKING_SYNC = 1,
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_JPEG_BAD = 3,
    CUDA_JPEG_NOT_SUPPORTED = 4,
    CUDA_JPEG_OUT_OF_MEMORY = 5,
    CUDA_JPEG_INCOMPLETE = 10,
    CUDA_JPEG_BACKEND_DEFAULT = 0,
    CUDA_JPEG_BACKEND_HARDWARE = 3,
    CUDA_JPEG_YUV = 1
};

/* Functions of the libraries; each returns 0 or an error code. */
typedef struct cuda_functions {
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **name);
    int (*device_get)(int *device, int number);
    int (*device_count)(int *count);
    int (*context_retain)(cuda_object *context, int device);
    int (*context_release)(int device);
    int (*context_push)(cuda_object context);
    int (*context_pop)(cuda_object *context);
    int (*module_load)(cuda_object *module, const void *image);
    int (*module_unload)(cuda_object module);
    int (*module_function)(cuda_object *function, cuda_object module, const char *name);
    int (*memory_allocate)(cuda_address *address, size_t size);
    int (*memory_free)(cuda_address address);
    int (*copy_to)(cuda_address to, const void *from, size_t size, cuda_object stream);
    int (*stream_create)(cuda_object *stream, unsigned flags);
    int (*stream_destroy)(cuda_object stream);
    int (*stream_wait)(cuda_object stream, cuda_object event, unsigned flags);
    int (*event_create)(cuda_object *event, unsigned flags);
    int (*event_record)(cuda_object event, cuda_object stream);
    int (*event_synchronize)(cuda_object event);
    int (*event_destroy)(cuda_object event);
    int (*launch)(cuda_object function, unsigned grid_x, unsigned grid_y,
        unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
        unsigned shared, cuda_object stream, void **arguments, void **extra);

    /* Of nvJPEG: */
    int (*jpeg_create)(int backend, void *device_allocator, void *pinned_allocator,
        unsigned flags, cuda_object *handle);
    int (*jpeg_destroy)(cuda_object handle);
    int (*jpeg_state)(cuda_object handle, cuda_object *state);
    int (*jpeg_state_destroy)(cuda_object state);
    int (*jpeg_stream)(cuda_object handle, cuda_object *stream);
    int (*jpeg_stream_destroy)(cuda_object stream);
    int (*jpeg_parse)(
        cuda_object handle, const unsigned char *data, size_t size, cuda_object stream);
    int (*jpeg_size)(cuda_object stream, unsigned *width, unsigned *height);
    int (*jpeg_supported)(cuda_object handle, cuda_object stream, int *no);
    int (*jpeg_begin)(
        cuda_object handle, cuda_object state, int batch, int threads, int format);
    int (*jpeg_decode)(cuda_object handle, cuda_object state,
        const unsigned char *const *data, const size_t *sizes, cuda_planes *out,
        cuda_object stream);
} cuda_functions;

typedef struct cuda_symbol {
    const char *name;
    size_t offset;
} cuda_symbol;

/* GPU memory from bags_cuda_take. */
typedef struct cuda_block {
    cuda_address address;
    size_t size;
    bool taken;
} cuda_block;

struct bags_cuda {
    bags_buffer memory; /* holds the GPU itself; see format_state */
    bags_cuda_options options;
    cuda_functions call;
    int device;
    cuda_object context, module, weigh, rows, columns;
    cuda_object jpeg; /* NULL: no nvJPEG */

    gate lock;
    /* Under the lock: */
    bags_buffer blocks; /* cuda_block */
    size_t block_count;
    size_t users; /* the program until bags_cuda_close, decoders, taken blocks */
};

struct bags_cuda_decoder {
    bags_buffer memory; /* holds the decoder itself; see format_state */
    bags_cuda *cuda;
    cuda_object stream, done, jpeg_state, jpeg_stream;
    size_t jpeg_batch;    /* of the last jpeg_begin */
    cuda_address scratch; /* of the GPU, */
    size_t scratch_size;
    bags_buffer jobs, blobs, sizes, planes; /* of a step's images */
    struct cuda_videos *videos;             /* NULL: no video was decoded yet */
};

/* ---- functions called across both files ---- */

/* cuda.c: turn the result of a call of the driver into a code. */
bags_code bagi_cuda_check(
    const bags_cuda *c, int result, const char *call, bags_error *err);

/* cuda.c: open the first library that exists; and find its functions, whose pointers
 * are members of `to`. Returns the name of a missing function, or NULL. */
void *bagi_cuda_library(const char *const *names, bags_error *err);
const char *bagi_cuda_bind(void *to, void *library, const cuda_symbol *symbols);

/* cuda.c: make the GPU's context current in this thread, and undo it. */
bags_code bagi_cuda_enter(const bags_cuda *c, bags_error *err);
void bagi_cuda_leave(const bags_cuda *c);

/* cuda.c: false for images too large for the memory of a decoder. */
bool bagi_cuda_fits(const bags_cuda *c, const bags_image *image);

/* cuda.c: check a form; plan the resizing of an image, except its planes; reserve the
 * decoder's memory. Weights start at offset `at`, *size receives the end. */
bags_code bagi_cuda_check_form(const bags_cuda_form *form, bags_error *err);
bags_code bagi_cuda_plan(const bags_cuda_form *form, const bags_cuda_image *image,
    cuda_job *job, size_t at, size_t *size, bags_error *err);
bags_code bagi_cuda_reserve(bags_cuda_decoder *d, size_t size, bags_error *err);

/* cuda.c: copy bytes of the program to the GPU; let the decoder's stream wait for the
 * program's work; resize `count` planned images; wait until the stream has finished. */
bags_code bagi_cuda_copy(bags_cuda_decoder *d, cuda_address to, const void *from,
    size_t size, bags_error *err);
bags_code bagi_cuda_await(bags_cuda_decoder *d, bags_error *err);
bags_code bagi_cuda_resize(bags_cuda_decoder *d, const bags_cuda_form *form,
    cuda_address jobs, size_t count, size_t most_rows, bags_error *err);
bags_code bagi_cuda_finish(bags_cuda_decoder *d, bags_error *err);

static inline size_t cuda_align(size_t size) {
    return (size + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

/* cuda_video.c: free what a decoder keeps for videos, in the context. */
void bagi_cuda_close_videos(bags_cuda_decoder *d);

#endif /* BAGS_FORMATS_CUDA_DEVICE_H */
