/*
 * Frames with windows of states and actions, in one thread, next to a bare loop that copies
 * the same items.
 *
 *     bench_frames             measure, with a dataset in TMPDIR
 *     bench_frames write DIR   write that dataset: 50 episodes of 400 items, each of 14 and
 *                              7 float32, and a field of times
 */
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <inttypes.h>
#include <string.h>

enum { EPISODES = 50, ITEMS = 400, STATE = 14, ACTION = 7, H = 16, BATCH = 256 };

static bags_error err;
#define OR_FAIL(done) ((done) ? (void)0 : fail())

static void fail(void) {
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

static void write_episodes(const char *path) {
    static float states[ITEMS][STATE], actions[ITEMS][ACTION];
    static double times[ITEMS];
    static const uint64_t state_shape = STATE, action_shape = ACTION;
    static bags_value values[3][ITEMS];
    const bags_field fields[] = {{"state", "array(float32,14)[]"},
        {"action", "array(float32,7)[]"}, {"times", "array(float64)[]"}};
    bags_writer_options options = {0};
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(path, fields, 3, &options, &err);
    OR_FAIL(writer);
    for (int e = 0; e < EPISODES; e++) {
        for (int i = 0; i < ITEMS; i++) {
            times[i] = i / 50.0;
            for (int k = 0; k < STATE; k++)
                states[i][k] = (float)(e * 1000 + i) + (float)k / 16;
            for (int k = 0; k < ACTION; k++)
                actions[i][k] = -states[i][k];
            values[0][i] = bags_array(BAGS_DTYPE_FLOAT32, 1, &state_shape, states[i]);
            values[1][i] = bags_array(BAGS_DTYPE_FLOAT32, 1, &action_shape, actions[i]);
            values[2][i] = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &times[i]);
        }
        const bags_entry entry[] = {{"state", values[0], ITEMS},
            {"action", values[1], ITEMS}, {"times", values[2], ITEMS}};
        OR_FAIL(!bags_writer_append(writer, entry, 3, &err));
    }
    OR_FAIL(!bags_writer_close(writer, &err));
}

typedef struct job {
    const bags_reader *reader;
    bags_loader *loader;
    bags_row row;
    uint64_t position;
    float states[BATCH][H][STATE], actions[BATCH][H][ACTION];
} job;

static bags_loader *open_loader(const bags_reader *reader, bool seconds) {
    static int64_t offsets[H];
    static double times[H];
    bags_load_field fields[2] = {{0}, {0}};
    bags_frames_options frames = {0};
    bags_loader_options options = {0};
    for (int i = 0; i < H; i++) {
        offsets[i] = i;
        times[i] = i / 50.0;
    }
    fields[0].name = frames.clock = "state";
    fields[1].name = "action";
    for (int i = 0; i < 2; i++) {
        fields[i].offsets = seconds ? NULL : offsets;
        fields[i].offset_count = seconds ? 0 : H;
        fields[i].seconds = seconds ? times : NULL;
        fields[i].second_count = seconds ? H : 0;
    }
    if (seconds)
        frames.times = fields[1].times = "times";
    options.frames = &frames;
    options.fields = fields;
    options.field_count = 2;
    options.batch = BATCH;
    options.threads = BAGS_THREADS_NONE;
    bags_loader *loader = bags_loader_open(&reader, 1, &options, &err);
    OR_FAIL(loader);
    return loader;
}

static void by_loader(void *argument) {
    const bags_batch *batch;
    OR_FAIL(!bags_loader_next(((job *)argument)->loader, &batch, &err));
}

/* The next batch: of each sample, both windows by one call. */
static void by_hand(void *argument) {
    job *j = (job *)argument;
    const uint64_t all = EPISODES * ITEMS;
    for (uint64_t i = 0; i < BATCH; i++) {
        uint64_t at = bags_permute(0, j->position / all, all, j->position % all);
        uint64_t frame = at % ITEMS;
        const bags_select selects[] = {bags_select_slice(1, frame, frame + H, 1),
            bags_select_slice(0, frame, frame + H, 1)};
        j->position++;
        OR_FAIL(!bags_reader_get(j->reader, at / ITEMS, selects, 2, &j->row, &err));
        size_t has = bags_row_length(&j->row, 0);
        for (size_t k = 0; k < H; k++) {
            size_t item = k < has ? k : has - 1;
            memcpy(j->states[i][k], bags_row_bytes(&j->row, 0, item).data,
                sizeof j->states[i][k]);
            memcpy(j->actions[i][k], bags_row_bytes(&j->row, 1, item).data,
                sizeof j->actions[i][k]);
        }
    }
}

int main(int argc, char **argv) {
    static job j;
    char folder[64], path[80], command[80];
    const char *scratch = getenv("TMPDIR");
    if (argc == 3 && strcmp(argv[1], "write") == 0) {
        write_episodes(argv[2]);
        return 0;
    }
    snprintf(folder, sizeof folder, "%.40s/frames-XXXXXX", scratch ? scratch : "/tmp");
    if (argc != 1 || !mkdtemp(folder))
        return 2;
    snprintf(path, sizeof path, "%s/ds", folder);
    write_episodes(path);
    j.reader = bags_reader_open(path, NULL, &err);
    OR_FAIL(j.reader);
    for (int seconds = 0; seconds < 2; seconds++) {
        j.loader = open_loader(j.reader, seconds);
        by_loader(&j);
        double each = turn(by_loader, &j, 400) / BATCH;
        printf("%-36s %9.0f frames/s of the processor's time\n",
            seconds ? "windows by seconds" : "windows by offsets", 1 / each);
        if (!seconds)
            compare("batches of 256, next to a bare loop", by_loader, by_hand, &j);
        bags_loader_close(j.loader);
    }
    bags_row_free(&j.row);
    bags_reader_close((bags_reader *)(uintptr_t)j.reader);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}
