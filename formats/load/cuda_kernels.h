/*
 * cuda_kernels.h - the programs that cuda.c runs on a GPU: they turn decoded planes into
 * items of a tensor. Programs do not include it.
 *
 * Three kernels run one after the other, each for all jobs (images) of a batch:
 *
 *     cuda_weigh    the filter's weights for each column and row of the result
 *     cuda_rows     colours of the crop, resized along x       -> job.rows, uint8
 *     cuda_columns  resized along y, mirrored and normalised   -> job.out
 *
 * The arithmetic is the arithmetic of libjpeg (chroma, colours; for videos, of libswscale
 * on x86) and of resample.c, step by step, so that equal planes give equal tensors. cuda_ptx.h contains this file,
 * compiled by tests/formats/load/cuda_ptx.sh. A test runs the same source on the CPU.
 */
#ifndef BAGS_FORMATS_CUDA_KERNELS_H
#define BAGS_FORMATS_CUDA_KERNELS_H

#ifdef __OPENCL_C_VERSION__
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL FP_CONTRACT OFF
typedef ulong cuda_address;
typedef uint cuda_number;
#else
#include <stdint.h>
typedef uint64_t cuda_address;
typedef uint32_t cuda_number;
#endif

/* An image on its way to a tensor. Numbers are in pixels, addresses are of the GPU. */
typedef struct cuda_job {
    cuda_address planes[3];  /* Y, Cb, Cr; only Y for gray images */
    cuda_address weights;    /* for each column, then each row of the result: the first
                               pixel, the number of pixels, and a weight for each */
    cuda_address rows;       /* crop[3] rows of out[0] pixels */
    cuda_address out;        /* the item */
    cuda_address table;      /* 256 numbers per channel; 0: the item is uint8 */
    cuda_number pitch[3];    /* bytes per row of each plane */
    cuda_number size[2];     /* width and height of the image */
    cuda_number halved[2];   /* 1: chroma has half the columns, half the rows */
    cuda_number gray;        /* 1: only Y exists */
    cuda_number crop[4];     /* left, top, width, height in the image */
    cuda_number resized[2];  /* size of the resized crop, */
    cuda_number cut[2];      /* left and top of the result in it, */
    cuda_number out_size[2]; /* and the result's size */
    cuda_number most[2];     /* most weights per column, and per row */
    cuda_number bicubic, flip_x, flip_y;
    cuda_number channels; /* of the result: 1 or 3 */
    cuda_number nchw;
    cuda_number width; /* bytes per number of the item: 1, 2 or 4 */
    cuda_number video; /* 0: planes of a JPEG. 1, 2: a frame of limited or full range,
                         NV12: planes[1] holds pairs of Cb and Cr */
} cuda_job;

/* A test that runs kernels on the CPU defines CUDA_ON_CPU and the macros of this
 * block. */
#if defined(__OPENCL_C_VERSION__) || defined(CUDA_ON_CPU)
#ifndef CUDA_ON_CPU
#define CUDA_KERNEL __kernel
#define CUDA_MEMORY __global
#define CUDA_THREAD                                                                    \
    (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() +                  \
        __nvvm_read_ptx_sreg_tid_x())
#define CUDA_JOB __nvvm_read_ptx_sreg_ctaid_y()
#endif

#define CUDA_PRECISION 22 /* bits of a weight's fraction, as in resample.c */

/* ---- weights ---- */

static double cuda_filter(double x, cuda_number bicubic) {
    const double a = -0.5;
    x = x < 0 ? -x : x;
    if (!bicubic)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static cuda_number cuda_stride(CUDA_MEMORY const cuda_job *job, int axis) {
    return job->most[axis] + 2;
}

/* One thread per column, then per row, of the result. */
CUDA_KERNEL void cuda_weigh(CUDA_MEMORY const cuda_job *jobs) {
    CUDA_MEMORY const cuda_job *job = jobs + CUDA_JOB;
    cuda_number i = CUDA_THREAD;
    int axis = i >= job->out_size[0];
    CUDA_MEMORY int *to = (CUDA_MEMORY int *)job->weights;
    if (axis) {
        i -= job->out_size[0];
        to += job->out_size[0] * cuda_stride(job, 0);
    }
    if (i >= job->out_size[axis])
        return;
    to += i * cuda_stride(job, axis);
    cuda_number size = job->crop[2 + axis];
    double scale = (double)size / job->resized[axis];
    double widened = scale < 1 ? 1 : scale, shrink = 1 / widened;
    double support = (job->bicubic ? 2 : 1) * widened;
    double centre = (i + job->cut[axis] + 0.5) * scale;
    double from = centre - support + 0.5, stop = centre + support + 0.5;
    cuda_number first = from < 0 ? 0 : (cuda_number)from;
    cuda_number last = stop > size ? size : (cuda_number)stop;
    double total = 0;
    for (cuda_number j = first; j < last; j++)
        total += cuda_filter((j - centre + 0.5) * shrink, job->bicubic);
    to[0] = (int)first;
    to[1] = (int)(last - first);
    for (cuda_number j = first; j < last; j++) {
        double weight = cuda_filter((j - centre + 0.5) * shrink, job->bicubic) / total *
                        (1 << CUDA_PRECISION);
        to[2 + j - first] = (int)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
}

/* ---- colours ---- */

static int cuda_clamp(int x) { return x < 0 ? 0 : x > 255 ? 255 : x; }

/* The chroma of pixel (x, y): a weighted mean of the nearest samples, as libjpeg's fancy
 * upsampling computes it. */
static int cuda_chroma(
    CUDA_MEMORY const cuda_job *job, int plane, cuda_number x, cuda_number y) {
    CUDA_MEMORY const unsigned char *from =
        (CUDA_MEMORY const unsigned char *)job->planes[plane];
    cuda_number width = job->halved[0] ? (job->size[0] + 1) / 2 : job->size[0];
    cuda_number height = job->halved[1] ? (job->size[1] + 1) / 2 : job->size[1];
    cuda_number near_x = job->halved[0] ? x / 2 : x,
                near_y = job->halved[1] ? y / 2 : y;
    cuda_number far_x = near_x, far_y = near_y;
    if (job->halved[0] && width <= 2) /* libjpeg repeats the samples instead */
        return from[near_y * job->pitch[plane] + near_x];
    if (job->halved[0])
        far_x = x % 2 ? (near_x + 1 < width ? near_x + 1 : near_x)
                      : (near_x ? near_x - 1 : near_x);
    if (job->halved[1])
        far_y = y % 2 ? (near_y + 1 < height ? near_y + 1 : near_y)
                      : (near_y ? near_y - 1 : near_y);
    CUDA_MEMORY const unsigned char *near_row = from + near_y * job->pitch[plane];
    CUDA_MEMORY const unsigned char *far_row = from + far_y * job->pitch[plane];
    if (job->halved[0] && job->halved[1])
        return (3 * (3 * near_row[near_x] + far_row[near_x]) + 3 * near_row[far_x] +
                   far_row[far_x] + (x % 2 ? 7 : 8)) >>
               4;
    if (job->halved[0])
        return (3 * near_row[near_x] + near_row[far_x] + (x % 2 ? 2 : 1)) >> 2;
    if (job->halved[1])
        return (3 * near_row[near_x] + far_row[near_x] + (y % 2 ? 2 : 1)) >> 2;
    return near_row[near_x];
}

/* The colour of pixel (x, y) of a frame, in BT.601: each pair of chroma is repeated for 4
 * pixels. Products are rounded down to integers, as in libswscale for x86. */
static void cuda_video_colour(
    CUDA_MEMORY const cuda_job *job, cuda_number x, cuda_number y, int *out) {
    int full = job->video == 2;
    CUDA_MEMORY const unsigned char *chroma =
        (CUDA_MEMORY const unsigned char *)job->planes[1] +
        (cuda_address)(y / 2) * job->pitch[1] + x / 2 * 2;
    int luma = ((CUDA_MEMORY const unsigned char *)
                    job->planes[0])[(cuda_address)y * job->pitch[0] + x];
    int cb = 8 * (chroma[0] - 128), cr = 8 * (chroma[1] - 128);
    luma = full ? luma : (8 * (luma - 16) * 9539) >> 16;
    out[0] = cuda_clamp(luma + ((cr * (full ? 11485 : 13075)) >> 16));
    out[1] = cuda_clamp(luma + ((cb * (full ? -2819 : -3209)) >> 16) +
                        ((cr * (full ? -5850 : -6660)) >> 16));
    out[2] = cuda_clamp(luma + ((cb * (full ? 14516 : 16525)) >> 16));
}

static int cuda_gray(const int *colour) {
    return (colour[0] * 19595 + colour[1] * 38470 + colour[2] * 7471 + 32768) >> 16;
}

/* The colour of pixel (x, y) of the image, in job->channels numbers. */
static void cuda_colour(
    CUDA_MEMORY const cuda_job *job, cuda_number x, cuda_number y, int *out) {
    if (job->video) {
        cuda_video_colour(job, x, y, out);
        if (job->channels == 1)
            out[0] = cuda_gray(out);
        return;
    }
    int luma = ((CUDA_MEMORY const unsigned char *)
                    job->planes[0])[(cuda_address)y * job->pitch[0] + x];
    out[0] = out[1] = out[2] = luma;
    if (job->gray)
        return;
    int cb = cuda_chroma(job, 1, x, y) - 128, cr = cuda_chroma(job, 2, x, y) - 128;
    out[0] = cuda_clamp(luma + ((91881 * cr + 32768) >> 16));
    out[1] = cuda_clamp(luma + ((-22554 * cb - 46802 * cr + 32768) >> 16));
    out[2] = cuda_clamp(luma + ((116130 * cb + 32768) >> 16));
    if (job->channels == 1)
        out[0] = cuda_gray(out);
}

/* ---- resizing ---- */

/* One thread per pixel of job.rows. */
CUDA_KERNEL void cuda_rows(CUDA_MEMORY const cuda_job *jobs) {
    CUDA_MEMORY const cuda_job *job = jobs + CUDA_JOB;
    cuda_number width = job->out_size[0], channels = job->channels;
    cuda_number x = CUDA_THREAD % width, y = CUDA_THREAD / width;
    if (y >= job->crop[3])
        return;
    CUDA_MEMORY const int *from =
        (CUDA_MEMORY const int *)job->weights + x * cuda_stride(job, 0);
    CUDA_MEMORY unsigned char *to = (CUDA_MEMORY unsigned char *)job->rows +
                                    ((cuda_address)y * width + x) * channels;
    int sum[3], colour[3];
    sum[0] = sum[1] = sum[2] = 1 << (CUDA_PRECISION - 1);
    for (int j = 0; j < from[1]; j++) {
        cuda_colour(
            job, job->crop[0] + (cuda_number)(from[0] + j), job->crop[1] + y, colour);
        for (int k = 0; k < 3; k++)
            sum[k] += colour[k] * from[2 + j];
    }
    for (cuda_number k = 0; k < channels; k++)
        to[k] = (unsigned char)cuda_clamp(sum[k] >> CUDA_PRECISION);
}

/* Write number k of pixel (x, y) of the result to the item. */
static void cuda_store(CUDA_MEMORY const cuda_job *job, cuda_number x, cuda_number y,
    cuda_number k, int value) {
    cuda_address width = job->out_size[0], height = job->out_size[1];
    x = job->flip_x ? job->out_size[0] - 1 - x : x;
    y = job->flip_y ? job->out_size[1] - 1 - y : y;
    cuda_address at =
        job->nchw ? (k * height + y) * width + x : (y * width + x) * job->channels + k;
    cuda_number entry = 256 * k + (cuda_number)value;
    if (job->width == 4)
        ((CUDA_MEMORY cuda_number *)job->out)[at] =
            ((CUDA_MEMORY const cuda_number *)job->table)[entry];
    else if (job->width == 2)
        ((CUDA_MEMORY unsigned short *)job->out)[at] =
            ((CUDA_MEMORY const unsigned short *)job->table)[entry];
    else
        ((CUDA_MEMORY unsigned char *)job->out)[at] = (unsigned char)value;
}

/* One thread per pixel of the result. */
CUDA_KERNEL void cuda_columns(CUDA_MEMORY const cuda_job *jobs) {
    CUDA_MEMORY const cuda_job *job = jobs + CUDA_JOB;
    cuda_number width = job->out_size[0], channels = job->channels;
    cuda_number x = CUDA_THREAD % width, y = CUDA_THREAD / width;
    if (y >= job->out_size[1])
        return;
    CUDA_MEMORY const int *from = (CUDA_MEMORY const int *)job->weights +
                                  width * cuda_stride(job, 0) + y * cuda_stride(job, 1);
    for (cuda_number k = 0; k < channels; k++) {
        CUDA_MEMORY const unsigned char *at =
            (CUDA_MEMORY const unsigned char *)job->rows +
            ((cuda_address)(cuda_number)from[0] * width + x) * channels + k;
        int sum = 1 << (CUDA_PRECISION - 1);
        for (int j = 0; j < from[1]; j++, at += (cuda_address)width * channels)
            sum += *at * from[2 + j];
        cuda_store(job, x, y, k, cuda_clamp(sum >> CUDA_PRECISION));
    }
}

#endif
#endif /* BAGS_FORMATS_CUDA_KERNELS_H */
