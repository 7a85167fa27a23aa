/*
 * What .npy files cost: decoding a view, which must not depend on the size;
 * decoding what has to be turned around; and writing, beside a bare memcpy of
 * the elements.
 */
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdio.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 9

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

static double decode(bags_view file, bool view, size_t repeat, bags_buffer *scratch) {
    bags_value value;
    double start = now();
    for (size_t i = 0; i < repeat; i++) {
        if (bags_npy_read(file, scratch, &value, NULL))
            abort();
        const unsigned char *data = (const unsigned char *)value.data;
        if (view != (data >= file.data && data <= file.data + file.size))
            abort();
    }
    return (now() - start) / (double)repeat;
}

static double encode(const bags_value *value, size_t repeat, bags_buffer *scratch) {
    bags_view file;
    double start = now();
    for (size_t i = 0; i < repeat; i++)
        if (bags_npy_write(value, scratch, &file, NULL))
            abort();
    return (now() - start) / (double)repeat;
}

static double copy(void *to, const void *from, size_t size, size_t repeat) {
    volatile unsigned char *seen = (volatile unsigned char *)to;
    double start = now();
    for (size_t i = 0; i < repeat; i++) {
        memcpy(to, from, size);
        seen[0] = seen[size - 1];
    }
    return (now() - start) / (double)repeat;
}

/* The same file in Fortran order, by its header. */
static bags_view make_fortran(bags_view file, unsigned char *room) {
    static const char was[] = "'fortran_order': False,";
    static const char is[] = "'fortran_order': True, ";
    memcpy(room, file.data, file.size);
    for (size_t i = 0; i + sizeof was < 128; i++)
        if (memcmp(room + i, was, sizeof was - 1) == 0)
            memcpy(room + i, is, sizeof is - 1);
    bags_view out = {room, file.size};
    return out;
}

static void measure(uint64_t rows, size_t repeat) {
    const uint64_t shape[] = {rows, 16};
    size_t size = (size_t)rows * 16 * sizeof(float);
    double times[5][ROUNDS];
    bags_buffer scratch = {0}, written = {0};
    bags_view file;
    float *data = (float *)malloc(size);
    unsigned char *aside = (unsigned char *)malloc(size + 192);
    if (!data || !aside)
        abort();
    for (size_t i = 0; i < size / sizeof(float); i++)
        data[i] = (float)i;
    bags_value value = bags_array(BAGS_DTYPE_FLOAT32, 2, shape, data);
    encode(&value, 1, &written);
    for (int i = 0; i < ROUNDS; i++) {
        if (bags_npy_write(&value, &written, &file, NULL))
            abort();
        /* Headers begin 2 bytes into the buffer: in aside all is aligned. */
        memcpy(aside, file.data, file.size);
        bags_view aligned = {aside, file.size};
        times[0][i] = decode(aligned, true, 20000, &scratch);
        times[1][i] = decode(make_fortran(file, aside), false, repeat, &scratch);
        times[2][i] = encode(&value, repeat, &written);
        times[3][i] = copy(aside, data, size, repeat);
        times[4][i] = times[2][i] / times[3][i];
    }
    printf("%10zu %10.0f %14.1f %12.1f %12.1f %8.2f\n", size, median(times[0]) * 1e9,
        median(times[1]) * 1e6, median(times[2]) * 1e6, median(times[3]) * 1e6,
        median(times[4]));
    free(data);
    free(aside);
    bags_buffer_free(&scratch);
    bags_buffer_free(&written);
}

int main(void) {
    printf("%10s %10s %14s %12s %12s %8s\n%10s %10s %14s %12s %12s\n", "bytes", "view",
        "from Fortran", "write", "memcpy", "ratio", "", "ns", "us", "us", "us");
    measure(16, 20000);
    measure(1024, 2000);
    measure(16384, 200);
    measure(262144, 20);
    measure(1048576, 5);
    return 0;
}
