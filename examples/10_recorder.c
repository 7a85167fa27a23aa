/*
 * Record a robot until Ctrl-C: three topics, each with its own rate and the times of
 * its items. Each episode of ten seconds is one datapoint. It is streamed: data is
 * flushed every 100 ms, to survive a crash of this program, and synced every second, to
 * survive a power failure. If you run it again, it continues with the next episode.
 *
 *     cc 10_recorder.c -lm -o 10_recorder && ./10_recorder robot
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

typedef struct topic {
    const char *name, *times;
    double hz;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[3];
} topic;

static const topic topics[] = {{"imu", "imu_time", 1000, BAGS_DTYPE_FLOAT32, 1, {6}},
    {"joints", "joints_time", 100, BAGS_DTYPE_FLOAT32, 1, {7}},
    {"camera", "camera_time", 30, BAGS_DTYPE_UINT8, 3, {48, 64, 3}}};
static const bags_field fields[] = {{"task", "utf8"}, {"imu", "float32(6)[]"},
    {"imu_time", "float64[]"}, {"joints", "float32(7)[]"}, {"joints_time", "float64[]"},
    {"camera", "uint8(48,64,3)[]"}, {"camera_time", "float64[]"}};

static volatile sig_atomic_t stopped;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Stands in for the drivers of a robot. */
static const void *read_sensor(const topic *of, double seconds) {
    static float angles[7];
    static unsigned char image[48 * 64 * 3];
    for (size_t i = 0; i < 7; i++)
        angles[i] = (float)sin(seconds * (double)(i + 1));
    for (size_t i = 0; of->dtype == BAGS_DTYPE_UINT8 && i < sizeof image; i++)
        image[i] = (unsigned char)((double)i / 3 + 60 * seconds);
    return of->dtype == BAGS_DTYPE_UINT8 ? (const void *)image : angles;
}

/* The next flush reports any failure. */
static void push(bags_writer *writer, const topic *of, double seconds) {
    bags_value time = bags_real(seconds);
    bags_value item =
        bags_array(of->dtype, of->dims, of->shape, read_sensor(of, seconds));
    bags_writer_push(writer, of->name, &item, NULL);
    bags_writer_push(writer, of->times, &time, NULL);
}

/* Record until the end of the episode, Ctrl-C or a failure. The plain field is written
 * first, so that the episode can be recovered. */
static bags_code record(bags_writer *writer, bags_error *err) {
    const struct timespec pause = {0, 500000};
    uint64_t items[] = {0, 0, 0};
    double start = now(), flushed = 0, synced = 0, t = 0;
    bags_value task = bags_utf8("wave");
    bags_code code = bags_writer_begin(writer, err);
    if (!code)
        code = bags_writer_set(writer, "task", &task, err);
    for (; !code && !stopped && t < 10; t = now() - start) {
        for (size_t i = 0; i < 3; i++)
            for (; (double)items[i] / topics[i].hz <= t; items[i]++)
                push(writer, &topics[i], (double)items[i] / topics[i].hz);
        if (t - synced >= 1)
            code = bags_writer_sync(writer, err), synced = flushed = t;
        else if (t - flushed >= 0.1)
            code = bags_writer_flush(writer, err), flushed = t;
        nanosleep(&pause, NULL);
    }
    return code ? code : bags_writer_end(writer, err);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "robot";
    bags_error err;
    bags_writer_options options = {0};
    options.existing = BAGS_EXISTING_RESUME;
    options.shard_length = 100; /* finished shards need no recovery */
    bags_writer *writer = bags_writer_open(path, fields, 7, &options, &err);
    bags_code code = writer ? BAGS_OK : err.code;
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    while (!code && !stopped)
        code = record(writer, &err);
    int episodes = (int)bags_writer_length(writer);
    if (code)
        bags_writer_close(writer, NULL); /* flushed data stays, and can be recovered */
    else
        code = bags_writer_close(writer, &err);
    if (code)
        fprintf(stderr, "%s\n", err.message);
    else
        printf("episodes recorded: %d\n", episodes);
    return code ? 1 : 0;
}

/* Output:
episodes recorded: 1
*/
