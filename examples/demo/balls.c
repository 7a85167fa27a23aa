/*
 * One worker of the demo: simulates episodes of bouncing balls, and writes them to its
 * own shards of a dataset shared by all workers.
 *
 *     balls DATASET WORKER WORKERS EPISODES
 */
#define BAGS_IMPLEMENTATION
#include "../../bags.h"
#include "../../formats/formats.h"
#include "world.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef BAGS_WITH_MSGPACK
#include <msgpack.h>
#endif

enum { FRAMES = 60, FRAMES_A_SECOND = 30, STEPS_A_FRAME = 8 };

static const bags_field fields[] = {
#ifdef BAGS_WITH_JPEG
    {"frames", "jpeg(90)[]"},
#else
    {"frames", "array(uint8,120,160,3)[]"},
#endif
#ifdef BAGS_WITH_MP4
    {"clip", "mp4(30)"},
#endif
#ifdef BAGS_WITH_MSGPACK
    {"meta", "msgpack"},
#else
    {"meta", "utf8"},
#endif
    {"state", "array(float32,6,4)[]"},
    {"action", "array(float32,2)[]"},
    {"caption", "utf8"},
};

static bags_code add_formats(bags_registry *codecs, bags_error *err) {
    const bags_codec *formats[] = {
#ifdef BAGS_WITH_JPEG
        &bags_codec_jpeg,
#endif
#ifdef BAGS_WITH_MP4
        &bags_codec_mp4,
#endif
        NULL};
    bags_code code = BAGS_OK;
    for (size_t i = 0; formats[i] && !code; i++)
        code = bags_registry_add(codecs, formats[i], err);
    return code;
}

/* The agent changes the wind twice a second; now and then it blows upwards. */
static void choose_wind(world *w, int frame) {
    if (frame % (FRAMES_A_SECOND / 2))
        return;
    w->wind[0] = 6 * (world_random(w) - 0.5f);
    w->wind[1] = world_random(w) < 0.4f ? -6.0f : 0.0f;
}

/* Items are pushed as they arrive; only the clip needs all frames at once. */
static void push_frames(bags_writer *writer, world *w, unsigned char *clip) {
    const uint64_t picture[] = {HEIGHT, WIDTH, CHANNELS};
    const uint64_t state[] = {BALLS, 4}, action[] = {2};
    for (int i = 0; i < FRAMES; i++) {
        unsigned char *pixels = clip + (size_t)i * FRAME_SIZE;
        choose_wind(w, i);
        world_draw(w, pixels);
        bags_value frame = bags_array(BAGS_DTYPE_UINT8, 3, picture, pixels);
        bags_value balls = bags_array(BAGS_DTYPE_FLOAT32, 2, state, w->state);
        bags_value wind = bags_array(BAGS_DTYPE_FLOAT32, 1, action, w->wind);
        bags_writer_push(writer, "frames", &frame, NULL);
        bags_writer_push(writer, "state", &balls, NULL);
        bags_writer_push(writer, "action", &wind, NULL);
        for (int step = 0; step < STEPS_A_FRAME; step++)
            world_step(w, 1.0f / (FRAMES_A_SECOND * STEPS_A_FRAME));
    }
}

static void set_clip(bags_writer *writer, const unsigned char *clip) {
#ifdef BAGS_WITH_MP4
    const uint64_t shape[] = {FRAMES, HEIGHT, WIDTH, CHANNELS};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, clip);
    bags_writer_set(writer, "clip", &value, NULL);
#else
    (void)writer;
    (void)clip;
#endif
}

static void set_caption(bags_writer *writer, const world *w) {
    char text[128];
    int first = 0;
    for (int i = 1; i < BALLS; i++)
        if (w->travelled[i] > w->travelled[first])
            first = i;
    snprintf(text, sizeof text,
        "Of six balls the %s one travels farthest: %.1f times the height of "
        "the box.",
        world_colors[first], (double)w->travelled[first]);
    bags_value value = bags_utf8(text);
    bags_writer_set(writer, "caption", &value, NULL);
}

#ifdef BAGS_WITH_MSGPACK
static void pack_text(msgpack_packer *packer, const char *text) {
    msgpack_pack_str_with_body(packer, text, strlen(text));
}

static void set_meta(bags_writer *writer, const world *w, uint64_t episode) {
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, 4);
    pack_text(&packer, "episode");
    msgpack_pack_uint64(&packer, episode);
    pack_text(&packer, "fps");
    msgpack_pack_int(&packer, FRAMES_A_SECOND);
    pack_text(&packer, "gravity");
    msgpack_pack_float(&packer, world_gravity);
    pack_text(&packer, "radius");
    msgpack_pack_array(&packer, BALLS);
    for (int i = 0; i < BALLS; i++)
        msgpack_pack_float(&packer, w->radius[i]);
    /* A blob that is already encoded is stored unchanged. */
    bags_value value = bags_blob(buffer.data, buffer.size);
    bags_writer_set(writer, "meta", &value, NULL);
    msgpack_sbuffer_destroy(&buffer);
}
#else
static void set_meta(bags_writer *writer, const world *w, uint64_t episode) {
    char text[64];
    (void)w;
    snprintf(text, sizeof text, "{\"episode\": %" PRIu64 ", \"fps\": %d}", episode,
        FRAMES_A_SECOND);
    bags_value value = bags_utf8(text);
    bags_writer_set(writer, "meta", &value, NULL);
}
#endif

static bags_code write_episode(
    bags_writer *writer, uint64_t episode, unsigned char *clip, bags_error *err) {
    world w;
    world_start(&w, episode);
    bags_writer_begin(writer, NULL);
    push_frames(writer, &w, clip);
    set_clip(writer, clip);
    set_caption(writer, &w);
    set_meta(writer, &w, episode);
    return bags_writer_end(writer, err);
}

/* Write the remaining episodes of worker w: w, w + workers, ... */
static bags_code work(const char *path, uint64_t w, uint64_t workers, uint64_t episodes,
    const bags_registry *codecs, bags_error *err) {
    bags_code code = BAGS_OK;
    bags_writer_options options = {0};
    options.shard_length = 4;
    options.shard_start = w;
    options.shard_stop = workers;
    options.registry = codecs;
    unsigned char *clip = (unsigned char *)malloc((size_t)FRAMES * FRAME_SIZE);
    if (!clip)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_writer *writer =
        bags_writer_open(path, fields, sizeof fields / sizeof fields[0], &options, err);
    if (!writer) {
        free(clip);
        return err->code;
    }
    for (uint64_t i = w; i < episodes && !code; i += workers)
        code = write_episode(writer, i, clip, err);
    free(clip);
    printf("worker %" PRIu64 " wrote %" PRIu64 " episodes of %d frames\n", w,
        bags_writer_length(writer), FRAMES);
    return bags_writer_close(writer, err);
}

int main(int argc, char **argv) {
    bags_error err;
    if (argc != 5) {
        fprintf(stderr, "usage: balls DATASET WORKER WORKERS EPISODES\n");
        return 2;
    }
    bags_registry *codecs = bags_registry_create(NULL, &err);
    int failed = !codecs || add_formats(codecs, &err) ||
                 work(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10),
                     strtoull(argv[4], NULL, 10), codecs, &err);
    if (failed)
        fprintf(stderr, "balls: %s\n", err.message);
    bags_registry_free(codecs);
    return failed;
}
