/*
 * The loader next to a bare loop over the same decoder, and its speed with small
 * datapoints and with many.
 *
 *     bench_loader                 everything: 1.2 GB of files in TMPDIR
 *     bench_loader write DIR N     write N photographs of 500 x 375, as the dataset
 *                                  DIR/photos and as the files DIR/0.jpg, ...
 *     bench_loader images DIR      load them once each way; prints microseconds of the
 *                                  processor per image: loader, bare loop
 *     bench_loader warps DIR       the same for the loader alone, which turns, shears and
 *                                  moves them and changes their colours
 *
 * An image is decoded from the random rectangle on, resized to 224 x 224, flipped in
 * half of the cases, normalised and stored as NCHW float32. tests/bench/peer_torch.py
 * compares that with PyTorch.
 */
#define PICTURES_WITHOUT_CMOCKA
#include "pictures.h"
#include "ratio.h"

#ifdef BAGS_WITH_JPEG

#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>

enum { WIDTH = 500, HEIGHT = 375, SIDE = 224, BATCH = 32, PLANE = SIDE * SIDE };
#define SEED 1

static bags_error err;
static const bags_loader_images images = {
    bags_resample, bags_jpeg_probe, bags_jpeg_decode, NULL, NULL};
static const float means[3] = {0.485f, 0.456f, 0.406f};
static const float stds[3] = {0.229f, 0.224f, 0.225f};

#define OR_FAIL(done) ((done) ? (void)0 : (void)fail_msg("%s\n", err.message))

static bags_reader *open_reader(const char *path) {
    bags_reader *reader = bags_reader_open(path, NULL, &err);
    OR_FAIL(reader);
    return reader;
}

static double wall(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- the photographs ---- */

typedef struct photo {
    bags_image image;
    unsigned char *pixels;
} photo;

static photo load_photo(const char *name) {
    photo out;
    bags_view file = load_part(PHOTOS, name, ".jpg");
    OR_FAIL(!bags_jpeg_probe(file, NULL, &out.image, &err));
    size_t size = picture_size(&out.image);
    out.pixels = (unsigned char *)malloc(size);
    OR_FAIL(!bags_jpeg_decode(file, NULL, out.pixels, size, 0, &err));
    unload(file);
    return out;
}

/* Parts of two photographs, with the quality that photographs on the net have. */
static void write_photos(const char *folder, uint64_t count) {
    static unsigned char pixels[WIDTH * HEIGHT * 3];
    char path[600];
    photo photos[2] = {load_photo("china"), load_photo("flower")};
    void *jpeg = opened(&bags_codec_jpeg, "jpeg(90)");
    bags_buffer scratch = {0}, blob_scratch = {0};
    bags_field field = {"image", "jpeg"};
    snprintf(path, sizeof path, "%s/photos", folder);
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, &err);
    OR_FAIL(writer);
    for (uint64_t i = 0; i < count; i++) {
        const photo *from = &photos[i % 2];
        double part = 0.5 + 0.5 * (double)(i % 16) / 16;
        double left = (1 - part) * from->image.width * (double)(i % 7) / 7;
        double top = (1 - part) * from->image.height * (double)(i % 5) / 5;
        bags_box box = {left, top, left + part * from->image.width,
            top + part * from->image.height};
        OR_FAIL(!bags_resample(&from->image, from->pixels, 0, &box, BAGS_FILTER_BICUBIC,
            WIDTH, HEIGHT, &scratch, pixels, 0, &err));
        const uint64_t shape[] = {HEIGHT, WIDTH, 3};
        bags_value value = bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels);
        bags_view blob;
        OR_FAIL(!bags_codec_jpeg.encode(jpeg, &value, &blob_scratch, &blob, &err));
        value = bags_blob(blob.data, blob.size);
        bags_entry entry = {"image", &value, 1};
        OR_FAIL(!bags_writer_append(writer, &entry, 1, &err));
        snprintf(path, sizeof path, "%s/%" PRIu64 ".jpg", folder, i);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(blob.data, blob.size, 1, file) != 1 || fclose(file))
            fail_msg("%s: cannot write\n", path);
    }
    OR_FAIL(!bags_writer_close(writer, &err));
    bags_codec_jpeg.close(jpeg);
    bags_buffer_free(&scratch);
    bags_buffer_free(&blob_scratch);
    for (int i = 0; i < 2; i++)
        free(photos[i].pixels);
}

/* ---- the loader ---- */

typedef struct job {
    bags_reader *reader;
    bags_loader *loader;
    bags_row row;
    bags_buffer pixels, resized, scratch;
    float table[3][256];
    float *batch; /* of the bare loop: BATCH x 3 x SIDE x SIDE */
    uint64_t position;
} job;

static const bags_warp_options warp = {.degrees = {-15, 15},
    .scale = {0.8, 1.2},
    .shear_x = {-10, 10},
    .translate_x = {-0.1, 0.1},
    .translate_y = {-0.1, 0.1}};
static const bags_jitter_options jitter = {
    {0.6, 1.4}, {0.6, 1.4}, {0.6, 1.4}, {-0.1, 0.1}};

static bags_loader *open_loader(
    const bags_reader *reader, uint32_t threads, bool warps) {
    bags_load_field field = {0};
    field.warp = warps ? &warp : NULL;
    field.jitter = warps ? &jitter : NULL;
    bags_loader_options options = {0};
    field.name = "image";
    field.dtype = BAGS_DTYPE_FLOAT32;
    field.width = field.height = SIDE;
    field.crop = BAGS_CROP_RANDOM;
    field.flip_x = 0.5;
    field.nchw = true;
    memcpy(field.mean, means, sizeof means);
    memcpy(field.std, stds, sizeof stds);
    options.order.seed = SEED;
    options.batch = BATCH;
    options.threads = threads ? (int32_t)threads : BAGS_THREADS_NONE;
    options.images = &images;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = bags_loader_open(&reader, 1, &options, &err);
    OR_FAIL(loader);
    return loader;
}

static const bags_batch *next_batch(bags_loader *loader) {
    const bags_batch *batch;
    OR_FAIL(!bags_loader_next(loader, &batch, &err));
    return batch;
}

static void by_loader(void *argument) { next_batch(((job *)argument)->loader); }

/* ---- the bare loop, which draws the same random numbers ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

static uint64_t draw(uint64_t *state) { return mix(*state += GOLDEN); }
static double draw_part(uint64_t *state) {
    return (double)(draw(state) >> 11) / 9007199254740992.0;
}
static uint32_t draw_below(uint64_t *state, uint32_t most) {
    return (uint32_t)(((draw(state) >> 32) * (most + UINT64_C(1))) >> 32);
}

/* Ten attempts do not fail for an image of this shape. */
static void choose(uint64_t *state, bags_jpeg_options *out) {
    const double low = log(3.0 / 4), high = log(4.0 / 3);
    for (;;) {
        double area = WIDTH * HEIGHT * (0.08 + 0.92 * draw_part(state));
        double aspect = exp(low + (high - low) * draw_part(state));
        double w = rint(sqrt(area * aspect)), h = rint(sqrt(area / aspect));
        if (w > WIDTH || h > HEIGHT)
            continue;
        out->width = (uint32_t)w;
        out->height = (uint32_t)h;
        out->top = draw_below(state, HEIGHT - out->height);
        out->left = draw_below(state, WIDTH - out->width);
        return;
    }
}

static void bare_image(job *j, uint64_t position, float *out) {
    bags_view blob;
    bags_image image;
    bags_jpeg_options part = {0};
    uint64_t length = bags_reader_length(j->reader);
    uint64_t epoch = position / length;
    uint64_t key = mix(mix(~(uint64_t)SEED + GOLDEN) + epoch);
    uint64_t random = mix(key + position % length);
    bool flip = draw(&random) >> 63;
    OR_FAIL(!bags_reader_get_blob(j->reader,
        bags_permute(SEED, epoch, length, position % length), 0, 0, &j->row, &blob,
        &err));
    OR_FAIL(!bags_jpeg_probe(blob, NULL, &image, &err));
    choose(&random, &part);
    image.width = part.width;
    image.height = part.height;
    size_t size = picture_size(&image);
    OR_FAIL(!bags_buffer_reserve(&j->pixels, size, &err));
    OR_FAIL(!bags_jpeg_decode(blob, &part, j->pixels.data, size, 0, &err));
    OR_FAIL(!bags_resample(&image, j->pixels.data, 0, NULL, BAGS_FILTER_BILINEAR, SIDE,
        SIDE, &j->scratch, j->resized.data, 0, &err));
    const unsigned char *from = j->resized.data;
    for (size_t y = 0; y < SIDE; y++)
        for (size_t i = 0; i < SIDE; i++, from += 3) {
            float *to = out + y * SIDE + (flip ? SIDE - 1 - i : i);
            to[0] = j->table[0][from[0]];
            to[PLANE] = j->table[1][from[1]];
            to[2 * PLANE] = j->table[2][from[2]];
        }
}

static void by_hand(void *argument) {
    job *j = (job *)argument;
    uint64_t length = bags_reader_length(j->reader);
    uint64_t left = length - j->position % length;
    for (uint64_t i = 0; i < BATCH && i < left; i++)
        bare_image(j, j->position++, j->batch + i * 3 * PLANE);
}

static void start_job(job *j, const char *folder) {
    char path[600];
    memset(j, 0, sizeof *j);
    snprintf(path, sizeof path, "%s/photos", folder);
    j->reader = open_reader(path);
    j->loader = open_loader(j->reader, 0, false);
    OR_FAIL(!bags_buffer_reserve(&j->resized, PLANE * 3, &err));
    j->batch = (float *)malloc(BATCH * 3 * PLANE * sizeof(float));
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++) {
            volatile float value = (float)i / 255.0f;
            value = value - means[c];
            j->table[c][i] = value / stds[c];
        }
    /* Both make the same bytes. */
    for (int i = 0; i < 3; i++) {
        const bags_batch *batch = next_batch(j->loader);
        by_hand(j);
        if (memcmp(batch->tensors[0].data, j->batch, batch->tensors[0].size))
            fail_msg("the bare loop makes other bytes in batch %d\n", i);
    }
}

static void end_job(job *j) {
    bags_loader_close(j->loader);
    bags_reader_close(j->reader);
    bags_row_free(&j->row);
    bags_buffer_free(&j->pixels);
    bags_buffer_free(&j->resized);
    bags_buffer_free(&j->scratch);
    free(j->batch);
}

static void print_images(const char *folder) {
    job j;
    start_job(&j, folder);
    int batches = (int)(bags_reader_length(j.reader) / BATCH);
    double loader = turn(by_loader, &j, batches);
    double bare = turn(by_hand, &j, batches);
    printf("%.1f %.1f\n", loader / BATCH * 1e6, bare / BATCH * 1e6);
    end_job(&j);
}

static void print_warps(const char *folder) {
    char path[600];
    job j = {0};
    snprintf(path, sizeof path, "%s/photos", folder);
    j.reader = open_reader(path);
    j.loader = open_loader(j.reader, 0, true);
    int batches = (int)(bags_reader_length(j.reader) / BATCH);
    printf("%.1f\n", turn(by_loader, &j, batches) / BATCH * 1e6);
    bags_loader_close(j.loader);
    bags_reader_close(j.reader);
}

/* All processors at once, in wall-clock time. */
static void print_threads(const char *folder) {
    char path[600];
    snprintf(path, sizeof path, "%s/photos", folder);
    bags_reader *reader = open_reader(path);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        bags_loader *loader = open_loader(reader, threads, false);
        next_batch(loader);
        double start = wall();
        for (int i = 0; i < 32; i++)
            next_batch(loader);
        printf("%" PRIu32 " thread%s %29.0f images/s, wall clock\n", threads,
            threads > 1 ? "s" : " ", 32 * BATCH / (wall() - start));
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

/* ---- small datapoints ---- */

#define IN_ORDER UINT64_MAX

/* Millions of indices per second. */
static double time_indices(
    const bags_reader *reader, uint64_t chunk, uint64_t datapoints) {
    static bags_pick picks[4096];
    bags_order order;
    bags_order_options options = {0};
    uint64_t length = bags_reader_length(reader), at = 0;
    options.chunk = chunk;
    OR_FAIL(!bags_order_init(&order, &length, 1, &options, NULL, &err));
    double start = now();
    for (uint64_t done = 0; done < datapoints; done += 4096) {
        uint64_t count = length - at < 4096 ? length - at : 4096;
        OR_FAIL(!bags_order_get(&order, done / length, at, (size_t)count, picks, &err));
        at = at + count < length ? at + count : 0;
    }
    double seconds = now() - start;
    bags_order_free(&order);
    return (double)datapoints / seconds * 1e-6;
}

/* Millions of datapoints per second. */
static double time_small(
    const bags_reader *reader, uint64_t chunk, uint64_t datapoints) {
    bags_load_field field = {0};
    bags_loader_options options = {0};
    field.name = "blob";
    options.batch = 4096;
    options.threads = BAGS_THREADS_NONE;
    options.order.chunk = chunk == IN_ORDER ? 0 : chunk;
    options.order.in_order = chunk == IN_ORDER;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = bags_loader_open(&reader, 1, &options, &err);
    OR_FAIL(loader);
    next_batch(loader);
    double start = now();
    uint64_t done = 0;
    while (done < datapoints)
        done += next_batch(loader)->length;
    double seconds = now() - start;
    bags_loader_close(loader);
    return (double)done / seconds * 1e-6;
}

/* The same datapoints by hand: a view of each in a random order, copied. */
static double time_by_hand(const bags_reader *reader) {
    static unsigned char batch[4096][100];
    bags_row row = {0};
    bags_view blob;
    uint64_t length = bags_reader_length(reader);
    double start = now();
    for (uint64_t i = 0; i < length; i++) {
        OR_FAIL(!bags_reader_get_blob(
            reader, bags_permute(SEED, 0, length, i), 0, 0, &row, &blob, &err));
        memcpy(batch[i % 4096], blob.data, 100);
    }
    double seconds = now() - start;
    bags_row_free(&row);
    return (double)length / seconds * 1e-6;
}

static void write_small(const char *path, uint64_t count, size_t size) {
    static unsigned char bytes[256];
    bags_field field = {"blob", "bytes"};
    bags_writer_options options = {0};
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(path, &field, 1, &options, &err);
    OR_FAIL(writer);
    for (uint64_t i = 0; i < count; i++) {
        memcpy(bytes, &i, sizeof i);
        bags_value value = bags_bytes(bytes, size);
        bags_entry entry = {"blob", &value, 1};
        OR_FAIL(!bags_writer_append(writer, &entry, 1, &err));
    }
    OR_FAIL(!bags_writer_close(writer, &err));
}

static void print_small(const char *folder) {
    char path[600];
    const uint64_t count = 10000000;
    snprintf(path, sizeof path, "%s/small", folder);
    write_small(path, count, 100);
    bags_reader *reader = open_reader(path);
    time_small(reader, 4096, count); /* now it is in memory */
    printf("\n%-36s %9s   million/s of the processor's time\n",
        "10,000,000 datapoints of 100 bytes", "");
    printf("%-36s %9.1f\n", "indices", time_indices(reader, 0, count));
    printf("%-36s %9.1f\n", "indices in chunks of 4,096",
        time_indices(reader, 4096, count));
    printf("%-36s %9.1f\n", "datapoints", time_small(reader, 0, count));
    printf("%-36s %9.1f\n", "datapoints by hand", time_by_hand(reader));
    printf("%-36s %9.1f\n", "datapoints in chunks of 4,096",
        time_small(reader, 4096, count));
    printf("%-36s %9.1f\n", "datapoints in order", time_small(reader, IN_ORDER, count));
    bags_reader_close(reader);
}

/* ---- memory ---- */

/* MiB that /proc states, or 0. */
static double memory_of(const char *name) {
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtod(line + strlen(name), NULL);
    if (file)
        fclose(file);
    return kib / 1024;
}

/* Blobs of no byte but the last one: the index is a hole, of which the disk stores
 * nothing. */
static void write_sparse(const char *path, uint64_t count) {
    static const char *const names[3] = {"spec.json", "blob.bag", "blob.idx"};
    static const char *const texts[3] = {"{\"blob\": \"bytes\"}", "\7", "\1"};
    char name[700];
    mkdir(path, 0777);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/%s", path, names[i]);
        FILE *file = fopen(name, "wb");
        if (!file)
            fail_msg("%s: cannot write\n", name);
        if (i == 2 && fseeko(file, (off_t)(8 * (count - 1)), SEEK_SET))
            fail_msg("%s: cannot write\n", name);
        fputs(texts[i], file);
        if (fclose(file) || (i == 2 && truncate(name, (off_t)(8 * count))))
            fail_msg("%s: cannot write\n", name);
    }
}

static void print_memory(const char *folder) {
    char path[600];
    printf("\n%-36s %9s %9s   MiB: resident after indices, and the process's own "
           "after datapoints\n",
        "datapoints, shuffled", "", "");
    for (uint64_t count = 1000; count <= 1000000000; count *= 1000) {
        snprintf(path, sizeof path, "%s/%" PRIu64, folder, count);
        write_sparse(path, count);
        bags_reader *reader = open_reader(path);
        time_indices(reader, 0, 1000000);
        double resident = memory_of("VmRSS:");
        time_small(reader, 0, 100000);
        printf("%-36" PRIu64 " %9.1f %9.1f\n", bags_reader_length(reader), resident,
            memory_of("RssAnon:"));
        bags_reader_close(reader);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "write") == 0) {
        write_photos(argv[2], strtoull(argv[3], NULL, 10));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "images") == 0) {
        print_images(argv[2]);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "warps") == 0) {
        print_warps(argv[2]);
        return 0;
    }
    job j;
    char folder[64], command[80];
    const char *scratch = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/loader-XXXXXX", scratch ? scratch : "/tmp");
    if (argc != 1 || !mkdtemp(folder))
        return 2;
    print_memory(folder);
    print_small(folder);
    write_photos(folder, 256);
    start_job(&j, folder);
    printf("\nbatches of %d images of %d x %d\n%-36s %13s %13s   ratio\n", BATCH, WIDTH,
        HEIGHT, "", "loader", "bare loop");
    compare("decode, crop, resize, flip, floats", by_loader, by_hand, &j);
    end_job(&j);
    print_threads(folder);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0;
}

#else

int main(void) { return 0; }

#endif
