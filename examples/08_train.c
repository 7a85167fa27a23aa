/*
 * Train: a small network learns to see where six balls are. A loader makes the batches,
 * in a new order every epoch: four frames from each of eight episodes, scaled down, and
 * the state of the balls in each frame. After every batch the weights and the position
 * of the loader are saved in one file. If the program is killed and started again, it
 * continues there, and its losses are the same to the last bit. `make demo` writes the
 * dataset.
 *
 *     L=../formats/load
 *     cc -I.. -I../formats 08_train.c $L/loader.c $L/opening.c $L/convert.c $L/crop.c \
 *         $L/frames.c $L/state.c $L/order.c $L/warp.c $L/resample.c ../formats/jpeg.c \
 *         -ljpeg -lm -pthread -o 08_train
 *     ./08_train balls balls.state
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include "../formats/load/load.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { EPISODES = 8, FRAMES = 4, WIDTH = 24, HEIGHT = 18, BALLS = 6 };
enum { INPUTS = WIDTH * HEIGHT * 3, HIDDEN = 32, OUTPUTS = BALLS * 2 };
static const float rate = 0.01f, momentum = 0.9f;

/* Two layers. All members are floats, so the struct can be used as an array of
 * floats. */
typedef struct network {
    float first[HIDDEN][INPUTS], first_bias[HIDDEN];
    float second[OUTPUTS][HIDDEN], second_bias[OUTPUTS];
} network;
enum { WEIGHTS = sizeof(network) / sizeof(float) };

/* The contents of the checkpoint file. */
static struct saved {
    unsigned char loader[BAGS_LOADER_STATE];
    network net, speed;
} now;

static const bags_loader_images images = {
    bags_resample, bags_jpeg_probe, bags_jpeg_decode, NULL, NULL};

static bags_loader *open_loader(
    const bags_reader *reader, uint64_t epochs, bags_error *err) {
    bags_load_field fields[2] = {{0}, {0}};
    fields[0].name = "frames";
    fields[0].width = WIDTH;
    fields[0].height = HEIGHT;
    fields[0].dtype = BAGS_DTYPE_FLOAT32;
    fields[1].name = "state"; /* position and speed (x, y) of each ball */
    for (int i = 0; i < 3; i++) {
        fields[0].mean[i] = 0.5f;
        fields[0].std[i] = 0.25f;
    }
    for (int i = 0; i < 2; i++) {
        fields[i].window = FRAMES;
        fields[i].stride = 7;
    }
    bags_loader_options options = {0};
    options.batch = EPISODES;
    options.epochs = epochs;
    options.order.seed = 1;
    options.window_start = BAGS_WINDOW_RANDOM;
    options.fields = fields;
    options.field_count = 2;
    options.images = &images;
    return bags_loader_open(&reader, 1, &options, err);
}

/* Returns the error of the network in one frame. Adds its gradient to *gradient. */
static float learn_frame(const float *pixels, const float *state, network *gradient) {
    const network *net = &now.net;
    float hidden[HIDDEN], back[HIDDEN] = {0}, loss = 0;
    for (int i = 0; i < HIDDEN; i++) {
        float sum = net->first_bias[i];
        for (int j = 0; j < INPUTS; j++)
            sum += net->first[i][j] * pixels[j];
        hidden[i] = sum > 0 ? sum : 0;
    }
    for (int i = 0; i < OUTPUTS; i++) {
        float sum = net->second_bias[i] - state[i / 2 * 4 + i % 2];
        for (int j = 0; j < HIDDEN; j++)
            sum += net->second[i][j] * hidden[j];
        loss += sum * sum / OUTPUTS;
        gradient->second_bias[i] += sum;
        for (int j = 0; j < HIDDEN; j++) {
            gradient->second[i][j] += sum * hidden[j];
            back[j] += sum * net->second[i][j];
        }
    }
    for (int i = 0; i < HIDDEN; i++) {
        if (hidden[i] <= 0)
            continue;
        gradient->first_bias[i] += back[i];
        for (int j = 0; j < INPUTS; j++)
            gradient->first[i][j] += back[i] * pixels[j];
    }
    return loss;
}

/* One step of gradient descent with momentum. Returns the mean loss before it. */
static float learn_batch(const bags_batch *batch) {
    static network gradient;
    const float *pixels = (const float *)batch->tensors[0].data;
    const float *state = (const float *)batch->tensors[1].data;
    float *net = &now.net.first[0][0], *speed = &now.speed.first[0][0];
    float *slope = &gradient.first[0][0], loss = 0;
    float frames = (float)(batch->length * FRAMES);
    memset(&gradient, 0, sizeof gradient);
    for (size_t i = 0; i < batch->length * FRAMES; i++)
        loss += learn_frame(pixels + i * INPUTS, state + i * BALLS * 4, &gradient);
    for (size_t i = 0; i < WEIGHTS; i++) {
        speed[i] = momentum * speed[i] - rate * slope[i] / frames;
        net[i] += speed[i];
    }
    return loss / frames;
}

/* Small random weights. */
static void start_network(void) {
    uint32_t random = 1;
    float *net = &now.net.first[0][0];
    for (size_t i = 0; i < WEIGHTS; i++) {
        random = random * 1664525u + 1013904223u;
        net[i] = ((float)(random >> 8) / (1 << 24) - 0.5f) * 0.05f;
    }
}

/* The file is always complete, since it is written under another name first. */
static bags_code save(const char *path, bags_error *err) {
    char next[4096];
    snprintf(next, sizeof next, "%s.next", path);
    FILE *file = fopen(next, "wb");
    bool written = file && fwrite(&now, sizeof now, 1, file) == 1;
    if (!file || fclose(file) || !written || rename(next, path))
        return bags_fail(err, BAGS_ERROR_IO, "%s: cannot write", path);
    return BAGS_OK;
}

static bags_code resume(bags_loader *loader, const char *path, bags_error *err) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        start_network();
        return BAGS_OK;
    }
    size_t count = fread(&now, sizeof now, 1, file);
    fclose(file);
    if (count != 1)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: truncated", path);
    return bags_loader_restore(loader, now.loader, sizeof now.loader, err);
}

static bags_code train(bags_loader *loader, const char *path, bags_error *err) {
    const bags_batch *batch;
    bags_code code = resume(loader, path, err);
    while (!code) {
        code = bags_loader_next(loader, &batch, err);
        if (code || !batch)
            break;
        float loss = learn_batch(batch);
        printf("epoch %" PRIu64 " batch %" PRIu64 " loss %.9g\n", batch->epoch,
            batch->batch, (double)loss);
        fflush(stdout); /* no line is missing after a kill */
        code = bags_loader_save(loader, now.loader, err);
        if (!code)
            code = save(path, err);
    }
    return code;
}

int main(int argc, char **argv) {
    bags_error err;
    if (argc < 3) {
        fprintf(stderr, "usage: 08_train DATASET STATE [EPOCHS]\n");
        return 2;
    }
    uint64_t epochs = argc > 3 ? strtoull(argv[3], NULL, 10) : 30;
    bags_reader *reader = bags_reader_open(argv[1], NULL, &err);
    bags_loader *loader = reader ? open_loader(reader, epochs, &err) : NULL;
    int failed = !loader || train(loader, argv[2], &err);
    if (failed)
        fprintf(stderr, "%s\n", err.message);
    bags_loader_close(loader);
    bags_reader_close(reader);
    return failed;
}

/* Output:
epoch 0 batch 0 loss 0.427283496
epoch 1 batch 0 loss 0.375888735
epoch 2 batch 0 loss 0.216717795
epoch 3 batch 0 loss 0.0533413999
*/
