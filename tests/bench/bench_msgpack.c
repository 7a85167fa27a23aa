/*
 * What formats/msgpack.c costs beside calling msgpack-c directly: the same
 * blobs, the same objects, in turns; times and ratios are medians of the rounds. For decoding the
 * library is called in its usual way (msgpack_unpack_next, which makes a zone
 * for every value) and in its fastest (msgpack_unpack into a zone that is
 * cleared and used again).
 */
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdio.h>

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 15

typedef struct sample {
    const char *name;
    msgpack_sbuffer blob;
    size_t repeat;
} sample;

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

static void put_text(msgpack_packer *to, const char *text) {
    msgpack_pack_str(to, strlen(text));
    msgpack_pack_str_body(to, text, strlen(text));
}

/* The metadata of an episode, as in the demo. */
static void make_metadata(msgpack_packer *to) {
    msgpack_pack_map(to, 5);
    put_text(to, "episode");
    msgpack_pack_uint64(to, 123456);
    put_text(to, "seed");
    msgpack_pack_uint64(to, 0xDEADBEEFCAFEULL);
    put_text(to, "gravity");
    msgpack_pack_double(to, 9.80665);
    put_text(to, "tags");
    msgpack_pack_array(to, 3);
    put_text(to, "balls");
    put_text(to, "bouncing");
    put_text(to, "train");
    put_text(to, "valid");
    msgpack_pack_true(to);
}

/* 1,000 boxes of detections. */
static void make_boxes(msgpack_packer *to) {
    msgpack_pack_array(to, 1000);
    for (int i = 0; i < 1000; i++) {
        msgpack_pack_map(to, 3);
        put_text(to, "label");
        msgpack_pack_int(to, i % 91);
        put_text(to, "score");
        msgpack_pack_double(to, i / 1000.0);
        put_text(to, "box");
        msgpack_pack_array(to, 4);
        for (int j = 0; j < 4; j++)
            msgpack_pack_int(to, i * 7 + j * 100);
    }
}

static void make_numbers(msgpack_packer *to) {
    msgpack_pack_array(to, 100000);
    for (int i = 0; i < 100000; i++)
        msgpack_pack_double(to, i * 0.25);
}

static void make_binary(msgpack_packer *to) {
    static char data[1 << 20];
    msgpack_pack_map(to, 1);
    put_text(to, "data");
    msgpack_pack_bin(to, sizeof data);
    msgpack_pack_bin_body(to, data, sizeof data);
}

static double decode_ours(const sample *of, bags_buffer *scratch) {
    bags_view blob = {(const unsigned char *)of->blob.data, of->blob.size};
    bags_value value;
    double start = now();
    for (size_t i = 0; i < of->repeat; i++)
        if (bags_codec_msgpack.decode(NULL, blob, scratch, &value, NULL))
            abort();
    return now() - start;
}

static double decode_usual(const sample *of) {
    msgpack_unpacked result;
    double start = now();
    for (size_t i = 0; i < of->repeat; i++) {
        size_t offset = 0;
        msgpack_unpacked_init(&result);
        if (msgpack_unpack_next(&result, of->blob.data, of->blob.size, &offset) !=
            MSGPACK_UNPACK_SUCCESS)
            abort();
        msgpack_unpacked_destroy(&result);
    }
    return now() - start;
}

static double decode_fastest(const sample *of, msgpack_zone *zone) {
    double start = now();
    for (size_t i = 0; i < of->repeat; i++) {
        size_t offset = 0;
        msgpack_object object;
        msgpack_zone_clear(zone);
        if (msgpack_unpack(of->blob.data, of->blob.size, &offset, zone, &object) !=
            MSGPACK_UNPACK_SUCCESS)
            abort();
    }
    return now() - start;
}

static double encode_ours(
    const sample *of, const bags_value *value, bags_buffer *scratch) {
    bags_view blob;
    double start = now();
    for (size_t i = 0; i < of->repeat; i++)
        if (bags_codec_msgpack.encode(NULL, value, scratch, &blob, NULL))
            abort();
    return now() - start;
}

static double encode_directly(
    const sample *of, const bags_value *value, msgpack_sbuffer *buffer) {
    msgpack_packer packer;
    double start = now();
    for (size_t i = 0; i < of->repeat; i++) {
        msgpack_sbuffer_clear(buffer);
        msgpack_packer_init(&packer, buffer, msgpack_sbuffer_write);
        if (msgpack_pack_object(&packer, *(const msgpack_object *)value->object))
            abort();
    }
    return now() - start;
}

/* How many times as long as `to`, round by round. */
static double ratio(const double *time, const double *to) {
    double ratios[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        ratios[i] = time[i] / to[i];
    return median(ratios);
}

static void measure(const sample *of) {
    double times[5][ROUNDS], each[5], copy[ROUNDS];
    bags_buffer decoded = {0}, encoded = {0};
    bags_value value;
    msgpack_sbuffer buffer;
    msgpack_zone *zone = msgpack_zone_new(MSGPACK_ZONE_CHUNK_SIZE);
    msgpack_sbuffer_init(&buffer);
    bags_view blob = {(const unsigned char *)of->blob.data, of->blob.size};
    if (!zone || bags_codec_msgpack.decode(NULL, blob, &decoded, &value, NULL))
        abort();
    for (int i = 0; i < ROUNDS; i++) {
        times[0][i] = decode_ours(of, &decoded);
        times[1][i] = decode_usual(of);
        times[2][i] = decode_fastest(of, zone);
        times[3][i] = encode_ours(of, &value, &encoded);
        times[4][i] = encode_directly(of, &value, &buffer);
    }
    double usual = ratio(times[0], times[1]), best = ratio(times[0], times[2]);
    double encoding = ratio(times[3], times[4]);
    for (int i = 0; i < 5; i++) {
        memcpy(copy, times[i], sizeof copy);
        each[i] = median(copy) * 1e9 / (double)of->repeat;
    }
    printf("%-22s %8zu %11.0f %11.0f %11.0f %6.2f %11.0f %11.0f %6.2f\n", of->name,
        of->blob.size, each[0], each[1], each[2], usual > best ? usual : best, each[3],
        each[4], encoding);
    msgpack_sbuffer_destroy(&buffer);
    msgpack_zone_free(zone);
    bags_buffer_free(&decoded);
    bags_buffer_free(&encoded);
}

int main(void) {
    static void (*const makers[])(msgpack_packer *) = {
        make_metadata, make_boxes, make_numbers, make_binary};
    static const char *const names[] = {
        "metadata", "1,000 boxes", "100,000 doubles", "1 MiB bin"};
    static const size_t repeats[] = {200000, 200, 20, 200};
    printf("nanoseconds a value\n%-22s %8s %11s %11s %11s %6s %11s %11s %6s\n", "",
        "bytes", "decode", "library", "its zone", "ratio", "encode", "library",
        "ratio");
    for (size_t i = 0; i < 4; i++) {
        sample of = {names[i], {0, NULL, 0}, repeats[i]};
        msgpack_packer packer;
        msgpack_sbuffer_init(&of.blob);
        msgpack_packer_init(&packer, &of.blob, msgpack_sbuffer_write);
        makers[i](&packer);
        measure(&of);
        msgpack_sbuffer_destroy(&of.blob);
    }
    return 0;
}
