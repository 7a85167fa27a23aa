/*
 * Tokens: a character model learns from a text. Each paragraph is a document. All
 * paragraphs are concatenated, and split into windows of 32 characters that come in a
 * new order every epoch. A second training stops half way, as if it were killed, and
 * continues from the weights and the 64 bytes of the loader's state. Its losses are the
 * same to the last bit.
 *
 *     L=../formats/load
 *     cc -I.. -I../formats 09_tokens.c $L/tokens.c $L/loader.c $L/opening.c $L/convert.c \
 *         $L/crop.c $L/frames.c $L/state.c $L/order.c $L/warp.c -lm -pthread -o 09_tokens
 *     ./09_tokens ../LICENSE paragraphs
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include "../formats/load/load.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 300, WINDOW = 32, CHARACTERS = 256 };

/* The contents of the checkpoint file. The weights are the scores of each character
 * following each other character. */
typedef struct training {
    float weights[CHARACTERS][CHARACTERS];
    unsigned char state[BAGS_LOADER_STATE];
    bool started;
} training;

static training whole, parts;
static float losses[2][STEPS];

static bags_code write_paragraphs(const char *from, const char *path, bags_error *err) {
    static char text[65536];
    static const bags_field field = {"text", "bytes"};
    FILE *file = fopen(from, "rb");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, err);
    if (!writer)
        return err->code;
    text[size] = 0;
    for (const char *at = text; *at;) {
        const char *end = strstr(at, "\n\n");
        size_t length = end ? (size_t)(end - at) : strlen(at);
        bags_value value = bags_bytes(at, length);
        bags_entry entry = {"text", &value, 1};
        bags_writer_append(writer, &entry, 1, NULL);
        at += length + strspn(at + length, "\n");
    }
    if (file)
        fclose(file);
    return bags_writer_close(writer, err);
}

/* Predict each next character, and update the weights. Returns the mean loss. */
static float learn(training *t, const bags_batch *batch) {
    const unsigned char *text = (const unsigned char *)batch->tensors[0].data;
    float loss = 0, count = (float)(batch->length * WINDOW);
    for (size_t i = 0; i < batch->length; i++)
        for (size_t k = 0; k < WINDOW; k++) {
            const unsigned char *at = text + i * (WINDOW + 1) + k;
            float *row = t->weights[at[0]], chance[CHARACTERS], sum = 0;
            for (size_t c = 0; c < CHARACTERS; c++)
                sum += chance[c] = expf(row[c]);
            loss -= logf(chance[at[1]] / sum) / count;
            for (size_t c = 0; c < CHARACTERS; c++)
                row[c] -= 0.5f * (chance[c] / sum - (c == at[1] ? 1 : 0));
        }
    return loss;
}

/* Train from step `start`, where the previous training stopped. */
static bags_code train(const bags_reader *reader, training *t, int start, int stop,
    float *loss, bags_error *err) {
    bags_tokens_options sequences = {0};
    bags_loader_options options = {0};
    const bags_batch *batch;
    sequences.field = "text";
    sequences.stored = BAGS_DTYPE_UINT8;
    sequences.length = WINDOW;
    sequences.has_eos = true; /* eos is 0: no text contains it */
    bags_tokens *tokens = bags_tokens_open(&reader, 1, &sequences, err);
    options.tokens = tokens;
    options.batch = 4;
    options.order.seed = 1;
    bags_loader *loader = tokens ? bags_loader_open(&reader, 1, &options, err) : NULL;
    bags_code code = loader ? BAGS_OK : err->code;
    if (!code && t->started)
        code = bags_loader_restore(loader, t->state, sizeof t->state, err);
    for (int i = start; i < stop && !code; i++) {
        code = bags_loader_next(loader, &batch, err);
        if (!code)
            loss[i] = learn(t, batch);
    }
    if (!code)
        code = bags_loader_save(loader, t->state, err);
    t->started = true;
    bags_loader_close(loader);
    bags_tokens_close(tokens);
    return code;
}

int main(int argc, char **argv) {
    bags_error err;
    err.message[0] = 0;
    if (argc < 3 || write_paragraphs(argv[1], argv[2], &err)) {
        fprintf(stderr, "usage: 09_tokens TEXT DATASET: %s\n", err.message);
        return 2;
    }
    bags_reader *reader = bags_reader_open(argv[2], NULL, &err);
    if (!reader || train(reader, &whole, 0, STEPS, losses[0], &err) ||
        train(reader, &parts, 0, STEPS / 2, losses[1], &err) ||
        train(reader, &parts, STEPS / 2, STEPS, losses[1], &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int i = 0; i < STEPS; i += STEPS / 3)
        printf("step %3d: loss %.1f\n", i, (double)losses[0][i]);
    printf("stopped and continued: %s\n", memcmp(losses[0], losses[1], sizeof *losses)
                                              ? "other losses"
                                              : "the same losses");
    bags_reader_close(reader);
    return 0;
}

/* Output:
step   0: loss 4.3
step 100: loss 2.2
step 200: loss 2.2
stopped and continued: the same losses
*/
