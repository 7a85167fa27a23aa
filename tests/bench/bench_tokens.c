/*
 * Windows of 2,048 tokens at random from a dataset in the page cache, next to a bare loop
 * that copies the same bytes at random, and to what Megatron-LM does before the first
 * batch: shuffle the documents and note where each sample starts.
 *
 *     bench_tokens [N]     N million tokens of uint16 (200), in TMPDIR
 */
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { WINDOW = 2048, BATCH = 64, MEAN = 600 };

static bags_error err;
#define OR_FAIL(done) ((done) ? (void)0 : fail())

static void fail(void) {
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

typedef struct job {
    const bags_reader *reader;
    bags_loader *loader;
    const unsigned char *tokens; /* all bytes of the field */
    uint64_t count, state;
    uint16_t batch[BATCH][WINDOW + 1];
} job;

static uint64_t draw(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ (x >> 31);
}

/* Documents whose lengths are log-normal, as those of text are. */
static void write_tokens(const char *path, uint64_t count) {
    static uint16_t text[1 << 16];
    bags_field field = {"text", "array(uint16,-1)"};
    bags_writer_options options = {0};
    options.no_sync = true;
    uint64_t state = 1, written = 0;
    bags_writer *writer = bags_writer_open(path, &field, 1, &options, &err);
    OR_FAIL(writer);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        text[i] = (uint16_t)draw(&state);
    while (written < count) {
        double normal = -6;
        for (int i = 0; i < 12; i++)
            normal += (double)(draw(&state) >> 11) / 9007199254740992.0;
        uint64_t length = (uint64_t)(MEAN * 0.6 * exp(normal)) + 1;
        length = length > 60000 ? 60000 : length;
        bags_value value = bags_array(BAGS_DTYPE_UINT16, 1, &length, text);
        bags_entry entry = {"text", &value, 1};
        OR_FAIL(!bags_writer_append(writer, &entry, 1, &err));
        written += length;
    }
    OR_FAIL(!bags_writer_close(writer, &err));
}

static void by_loader(void *argument) {
    const bags_batch *batch;
    OR_FAIL(!bags_loader_next(((job *)argument)->loader, &batch, &err));
}

static void by_copies(void *argument) {
    job *j = (job *)argument;
    for (int i = 0; i < BATCH; i++)
        memcpy(j->batch[i],
            j->tokens + draw(&j->state) % (j->count - WINDOW) / WINDOW * WINDOW * 2,
            sizeof j->batch[i]);
}

static uint32_t *numbers(uint64_t count) {
    uint32_t *out = (uint32_t *)malloc((size_t)count * sizeof *out);
    if (!out)
        exit(1);
    return out;
}

/* Megatron-LM: a shuffled list of documents, then for each sample of an epoch the document
 * and the offset where it starts, and a shuffled list of samples. */
static void index_samples(const bags_reader *reader, uint64_t count) {
    uint64_t length = bags_reader_length(reader), state = 2, left = 0, samples = 0;
    uint64_t most = count / WINDOW + 1;
    bags_row row = {0};
    uint32_t *sizes = numbers(length), *order = numbers(length);
    uint32_t *starts = numbers(2 * most), *shuffled = numbers(most);
    for (uint64_t i = 0; i < length; i++) { /* Megatron's .idx has these */
        bags_view blob;
        OR_FAIL(!bags_reader_get_blob(reader, i, 0, 0, &row, &blob, &err));
        sizes[i] = (uint32_t)blob.size / 2;
    }
    double start = now();
    for (uint64_t i = 0; i < length; i++) {
        uint64_t k = draw(&state) % (i + 1);
        order[i] = order[k];
        order[k] = (uint32_t)i;
    }
    for (uint64_t i = 0; i < length; i++) {
        for (uint64_t used = left; used < sizes[order[i]] && samples < most;
             used += WINDOW, samples++) {
            starts[2 * samples] = (uint32_t)i;
            starts[2 * samples + 1] = (uint32_t)used;
            left = used + WINDOW;
        }
        left = left > sizes[order[i]] ? left - sizes[order[i]] : 0;
    }
    for (uint64_t i = 0; i < samples; i++) {
        uint64_t k = draw(&state) % (i + 1);
        shuffled[i] = shuffled[k];
        shuffled[k] = (uint32_t)i;
    }
    printf("Megatron-LM's index of %" PRIu64 " samples %12.1f ms, %.1f MB\n", samples,
        (now() - start) * 1e3, ((double)length + 3 * (double)samples) * 4e-6);
    bags_row_free(&row);
    free(sizes);
    free(order);
    free(starts);
    free(shuffled);
}

static void time_packing(const bags_reader *reader) {
    bags_tokens_options options = {0};
    bags_loader_options loading = {0};
    const bags_batch *batch;
    options.field = "text";
    options.length = WINDOW;
    options.pack = true;
    loading.tokens = bags_tokens_open(&reader, 1, &options, &err);
    OR_FAIL(loading.tokens);
    loading.epochs = 1;
    loading.threads = BAGS_THREADS_NONE;
    loading.ranks = 1u << 31; /* of nearly all rows, only where they are */
    loading.batch = BATCH;
    bags_loader *loader = bags_loader_open(&reader, 1, &loading, &err);
    OR_FAIL(loader);
    double start = now();
    do
        OR_FAIL(!bags_loader_next(loader, &batch, &err));
    while (batch);
    printf("packing %37.0f million documents a minute\n",
        (double)bags_reader_length(reader) / (now() - start) * 60e-6);
    bags_loader_close(loader);
    bags_tokens_close((bags_tokens *)(uintptr_t)loading.tokens);
}

int main(int argc, char **argv) {
    char folder[64], path[600], command[80];
    const char *scratch = getenv("TMPDIR");
    uint64_t count = (argc > 1 ? strtoull(argv[1], NULL, 10) : 200) * 1000000;
    snprintf(folder, sizeof folder, "%.40s/tokens-XXXXXX", scratch ? scratch : "/tmp");
    if (count == 0 || !mkdtemp(folder))
        return 2;
    snprintf(path, sizeof path, "%s/x", folder);
    write_tokens(path, count);
    static job j;
    double start = now();
    bags_tokens_options options = {0};
    bags_loader_options loading = {0};
    options.field = "text";
    options.length = WINDOW;
    j.reader = bags_reader_open(path, NULL, &err);
    OR_FAIL(j.reader);
    loading.tokens = bags_tokens_open(&j.reader, 1, &options, &err);
    OR_FAIL(loading.tokens);
    loading.batch = BATCH;
    loading.threads = BAGS_THREADS_NONE;
    j.loader = bags_loader_open(&j.reader, 1, &loading, &err);
    OR_FAIL(j.loader);
    by_loader(&j);
    printf("opening, with the first batch %21.1f ms\n", (now() - start) * 1e3);
    bags_row row = {0};
    bags_view first;
    OR_FAIL(!bags_reader_get_blob(j.reader, 0, 0, 0, &row, &first, &err));
    j.tokens = first.data; /* mapped: the documents are contiguous */
    j.count = count;
    by_copies(&j);
    index_samples(j.reader, count);
    time_packing(j.reader);
    printf(
        "%-36s %13s %13s   ratio\n", "64 windows of 2,048 tokens", "loader", "memcpy");
    compare("at random", by_loader, by_copies, &j);
    bags_loader_close(j.loader);
    bags_tokens_close((bags_tokens *)(uintptr_t)loading.tokens);
    bags_row_free(&row);
    bags_reader_close((bags_reader *)(uintptr_t)j.reader);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}
