/*
 * bags load: run the data loader, to measure it, to see its order, or to check that
 * several ranks load the same.
 *
 * The line of a batch is flushed before the state is replaced: after a kill the
 * last line may be printed again, but none is lost.
 */
#include "command.h"
#include "system.h"

#include <errno.h>

#include "../../formats/formats.h"

static const char *weights_given, *fields_given, *state_path, *rows_path;
static option_number batch = {32, 1, UINT32_MAX, false}, seed;
static option_number epochs = {1, 0, 0, false};
static option_number batches = {UINT64_MAX, 0, 0, false};
static option_number rank = {0, 0, UINT32_MAX, false};
static option_number ranks = {1, 1, UINT32_MAX, false};
static option_choice worker = {worker_name, 0, false};
static option_number threads = {0, 1, 1024, false};
static option_number chunk = {0, 1, 0, false};
static option_number window = {0, 1, 0, false};
static option_number take = {0, 1, 0, false};
static option_number crop = {0, 1, 65535, false};
static bags_loader_options loading;
static bool indices, digest, orient;

static const option options[] = {
    {"batch", OPTION_NUMBER, &batch, "B",
        "datapoints per batch, of all ranks together (32)"},
    {"seed", OPTION_NUMBER, &seed, "S", "choose the order (0)"},
    {"epochs", OPTION_NUMBER, &epochs, "E", "end after epoch E - 1 (1)"},
    {"batches", OPTION_NUMBER, &batches, "N", "end after N batches of this run"},
    {"rank", OPTION_NUMBER, &rank, "R", "load slice R of each batch, from 0 ..."},
    {"ranks", OPTION_NUMBER, &ranks, "K", "... of K slices"},
    {"worker", OPTION_CHOICE, &worker, "auto",
        "find R and K in the variables of Slurm, MPI or others; Kubernetes and PBS "
        "need K"},
    {"threads", OPTION_NUMBER, &threads, "T", "threads (the number of processors)"},
    {"chunk", OPTION_NUMBER, &chunk, "C",
        "shuffle chunks of C neighbours, and datapoints ..."},
    {"window", OPTION_NUMBER, &window, "G", "... within windows of G chunks (256)"},
    {"weights", OPTION_TEXT, &weights_given, "W,...",
        "mix the datasets in these proportions"},
    {"rows", OPTION_PATH, &rows_path, "FILE",
        "only the datapoints whose numbers are in FILE or, with -, standard input"},
    {"take", OPTION_NUMBER, &take, "N", "only the first N, of each dataset"},
    {"replacement", OPTION_FLAG, &loading.order.replacement, NULL,
        "draw with replacement: some come several times in an epoch, some never"},
    {"fields", OPTION_TEXT, &fields_given, "F,...", "load these fields (all)"},
    {"crop", OPTION_NUMBER, &crop, "SIZE",
        "of images, random crops of this size, as to train"},
    {"orient", OPTION_FLAG, &orient, NULL,
        "turn images upright, as their EXIF data state"},
    {"in-order", OPTION_FLAG, &loading.order.in_order, NULL, "do not shuffle"},
    {"skip-damaged", OPTION_FLAG, &loading.skip_damaged, NULL,
        "leave out and count damaged datapoints"},
    {"state", OPTION_PATH, &state_path, "FILE",
        "continue at FILE, if it exists; save there"},
    {"indices", OPTION_FLAG, &indices, NULL,
        "print each batch's datapoints as a line of JSON"},
    {"digest", OPTION_FLAG, &digest, NULL,
        "print each batch's checksum as a line of JSON"},
    OPTIONS_END,
};

static bags_loader *loader;
static size_t dataset_count;

/* ---- options ---- */

/* The parts of a list; *count of them. */
static char **split(const char *list, size_t *count) {
    char *at = string_format("%s", list), **parts = NULL;
    for (*count = 0; at; ++*count) {
        parts = (char **)grow(parts, *count, sizeof *parts);
        parts[*count] = at;
        at = strchr(at, ',');
        if (at)
            *at++ = 0;
    }
    return parts;
}

/* One positive number per dataset. */
static const double *parse_weights(void) {
    size_t count;
    static char **parts;
    static double *weights;
    char *end;
    parts = split(weights_given, &count);
    weights = (double *)allocate(count, sizeof *weights);
    if (count != dataset_count)
        usage("--weights: %s for %s", counted(count, "weight"),
            counted(dataset_count, "dataset"));
    for (size_t i = 0; i < count; i++) {
        weights[i] = strtod(parts[i], &end);
        if (*end || end == parts[i] || !(weights[i] > 0))
            usage("--weights: \"%s\" is not a positive number", parts[i]);
    }
    return weights;
}

/* The datapoints of --rows. */
static void select_rows(const bags_reader *reader) {
    static bags_selection selection;
    selection.kind = BAGS_SELECTION_INDICES;
    selection.numbers =
        rows_read(rows_path, bags_reader_length(reader), &selection.count);
    selection.borrowed = true;
    loading.order.selections = &selection;
}

/* ---- fields ---- */

/* What the loader needs of the formats that were linked. */
static void link_images(void) {
#ifdef BAGS_WITH_RESAMPLE
    static bags_loader_images images = {bags_resample, NULL, NULL, NULL, NULL};
#ifdef BAGS_WITH_JPEG
    images.jpeg_probe = bags_jpeg_probe;
    images.jpeg_decode = bags_jpeg_decode;
#endif
#ifdef BAGS_WITH_PNG
    images.png_probe = bags_png_probe;
    images.png_decode = bags_png_decode;
#endif
    loading.images = &images;
#endif
}

static bool is_image(const bags_reader *reader, const char *name) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    size_t i = field_find(fields, count, name, strlen(name));
    return i < count && type_kind(fields[i].type) == TYPE_IMAGE;
}

/* As training on ImageNet does it: its mean and deviation, channels first. */
static void choose_crop(bags_load_field *field, uint32_t size) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f};
    static const float deviation[3] = {0.229f, 0.224f, 0.225f};
    if (!loading.images)
        fail(BAGS_ERROR_TYPE,
            "--crop is not in this build of bags; formats/resample.c has it");
    field->width = field->height = size;
    field->crop = BAGS_CROP_RANDOM;
    field->orient = orient;
    field->flip = field->nchw = true;
    field->dtype = BAGS_DTYPE_FLOAT32;
    memcpy(field->mean, mean, sizeof mean);
    memcpy(field->std, deviation, sizeof deviation);
}

/* The fields to load: all of the first dataset, or those that were given. Returns
 * true if some are images. */
static bool choose_fields(const char *path, const bags_reader *reader) {
    size_t count, all_count;
    bool found = false;
    const bags_field *all = bags_reader_fields(reader, &all_count);
    static char **names;
    count = all_count;
    names = fields_given ? split(fields_given, &count) : NULL;
    for (size_t i = 0; names && i < count; i++)
        if (field_find(all, all_count, names[i], strlen(names[i])) == all_count)
            fail_field(path, names[i], all, all_count);
    uint32_t size = (uint32_t)crop.value;
    static bags_load_field *fields; /* it and `names` live as long as the loader */
    fields = (bags_load_field *)allocate(count, sizeof *fields);
    for (size_t i = 0; i < count; i++) {
        fields[i].name = names ? names[i] : all[i].name;
        if (!is_image(reader, fields[i].name))
            continue;
        found = true;
        if (size)
            choose_crop(&fields[i], size);
    }
    if ((size || orient) && !found)
        usage("--%s: no field that is loaded is an image", size ? "crop" : "orient");
    loading.fields = count ? fields : NULL;
    loading.field_count = count;
    return found;
}

/* ---- the state ---- */

/* False if there is no state yet: the run starts at the beginning. */
static bool state_read(void) {
    bags_buffer buffer = {0};
    struct stat about;
    if (stat(state_path, &about) && errno == ENOENT)
        return false;
    bags_view state = file_read(state_path, &buffer);
    if (bags_loader_restore(loader, state.data, state.size, &failure)) {
        failure_prefix("%s: ", state_path);
        die();
    }
    bags_buffer_free(&buffer);
    return true;
}

/* What becomes the state. Each rank has one of its own, should they share FILE. */
static const char *state_fresh;

/* Fail before anything is printed if no state can be written. */
static void state_prepare(void) {
    const bags_io *io = bags_io_local();
    unsigned char state[BAGS_LOADER_STATE] = {0};
    void *file = NULL;
    state_fresh = string_format("%s.new%ju", state_path, (uintmax_t)rank.value);
    (void)io->remove(io->user, state_fresh); /* of a run that was killed */
    int error = io->open(io->user, state_fresh, BAGS_IO_CREATE, &file);
    if (error)
        fail_system(error, error == EEXIST ? state_fresh : state_path, "create");
    error = write_all(io, file, 0, state, sizeof state);
    int closed = io->close(io->user, file);
    (void)io->remove(io->user, state_fresh);
    error = error ? error : closed;
    if (error)
        fail_system(error, state_path, "write");
}

/* Not synced: that takes milliseconds, longer than most batches. After a power
 * failure FILE may be older, or truncated, which bags_loader_restore notices. */
static void state_write(void) {
    const bags_io *io = bags_io_local();
    unsigned char state[BAGS_LOADER_STATE];
    must(bags_loader_save(loader, state, &failure));
    file_write(state_fresh, state, sizeof state);
    int error = io->rename(io->user, state_fresh, state_path);
    if (error) {
        (void)io->remove(io->user, state_fresh);
        fail_system(error, state_path, "replace");
    }
}

/* ---- what is printed ---- */

/* A number alone, or a pair if there are several datasets. */
static void print_batch(const bags_batch *loaded) {
    static text line;
    line.size = 0;
    text_format(&line, "{\"epoch\": %ju, \"batch\": %ju", (uintmax_t)loaded->epoch,
        (uintmax_t)loaded->batch);
    if (indices) {
        text_puts(&line, ", \"indices\": [");
        for (size_t i = 0; i < loaded->length; i++) {
            const bags_pick *pick = &loaded->picks[i];
            text_puts(&line, i ? ", " : "");
            if (dataset_count > 1)
                text_format(&line, "[%ju, %ju]", (uintmax_t)pick->dataset,
                    (uintmax_t)pick->index);
            else
                text_format(&line, "%ju", (uintmax_t)pick->index);
        }
        text_puts(&line, "]");
    }
    if (digest)
        text_format(
            &line, ", \"digest\": \"%016jx\"", (uintmax_t)bags_batch_digest(loaded));
    text_puts(&line, "}\n");
    text_output(&line);
}

typedef struct totals {
    uint64_t batches, datapoints, images, skipped, bytes;
    double seconds;
} totals;

static void add(totals *sum, const bags_reader *reader, const bags_batch *one) {
    sum->batches++;
    sum->datapoints += one->length;
    sum->skipped += one->skipped;
    sum->bytes += one->bytes;
    for (size_t i = 0; i < one->count; i++)
        if (is_image(reader, one->tensors[i].name))
            sum->images += one->tensors[i].items;
}

/* The last line. It is not JSON, so it goes to stderr if the others are. */
static void print_summary(const totals *sum, bool has_images) {
    double seconds = sum->seconds > 1e-9 ? sum->seconds : 1e-9;
    text line = {0};
    text_format(&line, "%s in %s, %.1f s: %.0f datapoints/s",
        counted(sum->datapoints, "datapoint"), counted(sum->batches, "batch"),
        sum->seconds, (double)sum->datapoints / seconds);
    if (has_images)
        text_format(&line, ", %.0f images/s", (double)sum->images / seconds);
    text_format(&line, ", %.1f MB/s", (double)sum->bytes / 1e6 / seconds);
    if (sum->skipped)
        text_format(&line, "; %s left out", counted(sum->skipped, "damaged datapoint"));
    text_puts(&line, "\n");
    if (indices || digest)
        fwrite(line.buffer.data, 1, line.size, stderr);
    else
        text_output(&line);
    bags_buffer_free(&line.buffer);
}

/* ---- the loop ---- */

/* How many batches will be loaded in this run; 0: unknown. */
static uint64_t count_batches(const bags_batch *first, uint64_t most) {
    uint64_t each = bags_loader_batches(loader), all = UINT64_MAX;
    if (epochs.value < UINT64_MAX / each)
        all = epochs.value * each - (first->epoch * each + first->batch);
    most = all < most ? all : most;
    return most < UINT64_MAX ? most : 0;
}

static totals load_all(const bags_reader *reader, uint64_t most, const char *title) {
    totals sum = {0};
    uint64_t total = 0;
    double start = seconds_now();
    setvbuf(stdout, NULL, _IONBF, 0); /* a line is written before its state */
    while (sum.batches < most) {
        const bags_batch *loaded;
        must(bags_loader_next(loader, &loaded, &failure));
        if (!loaded)
            break;
        if (state_path && sum.batches == 0)
            state_prepare();
        if (sum.batches == 0)
            total = count_batches(loaded, most);
        add(&sum, reader, loaded);
        if (indices || digest)
            print_batch(loaded);
        if (state_path)
            state_write();
        progress_show(title, "datapoints", sum.batches, total, sum.datapoints);
    }
    sum.seconds = seconds_now() - start;
    progress_end();
    return sum;
}

static int run(char **operands) {
    while (operands[dataset_count])
        dataset_count++;
    const bags_reader **readers =
        (const bags_reader **)allocate(dataset_count, sizeof *readers);
    worker_find(&worker, "rank", &rank, "ranks", &ranks);
    loading.batch = (uint32_t)batch.value;
    loading.order.seed = seed.value;
    loading.epochs = epochs.value;
    loading.ranks = (uint32_t)ranks.value;
    loading.rank = (uint32_t)rank.value;
    loading.threads = (uint32_t)threads.value;
    loading.order.chunk = chunk.value;
    loading.order.window = window.value;
    loading.order.take = take.value;
    link_images();
    if (orient) /* images that are not cropped */
        registry_orient();
    if (rank.given && !ranks.given)
        usage("--rank needs --ranks");
    if (loading.rank >= loading.ranks)
        usage("--rank must be below --ranks (%ju, %ju)", (uintmax_t)rank.value,
            (uintmax_t)loading.ranks);
    if (window.given && !chunk.given)
        usage("--window needs --chunk");
    if (loading.order.in_order && (chunk.given || weights_given))
        usage("--in-order and %s are mutually exclusive",
            chunk.given ? "--chunk" : "--weights");
    if (loading.order.in_order && loading.order.replacement)
        usage("--in-order and --replacement are mutually exclusive");
    if (chunk.given && loading.order.replacement)
        usage("--chunk and --replacement are mutually exclusive");
    if (rows_path && dataset_count > 1)
        usage("--rows needs a single dataset");
    if (state_path && !*state_path)
        usage("--state: the name of the file is empty");
    if (weights_given)
        loading.order.weights = parse_weights();
    if (state_path)
        interrupt_leaves("the state of the last batch is kept", "continue with", NULL);
    else
        interrupt_leaves("", "start again with", NULL);
    bool remote = false;
    for (size_t i = 0; i < dataset_count; i++) {
        const char *path = path_without_secrets(operands[i]);
        remote = remote || path_is_remote(path);
        readers[i] = dataset_open(path);
        mapped_path = dataset_count == 1 ? path : NULL;
    }
    if (rows_path)
        select_rows(readers[0]);
    const char *first = path_without_secrets(operands[0]);
    bool has_images = choose_fields(first, readers[0]);
    loading.prefetch = has_images || remote;
    uint64_t most = batches.value;
    if (loading.epochs == 0)
        most = 0;
    loader = bags_loader_open(readers, dataset_count, &loading, &failure);
    must_open(loader);
    bool resumed = state_path && state_read();
    totals sum = load_all(readers[0], most, first);
    if (sum.batches || !resumed)
        print_summary(&sum, has_images);
    bags_loader_close(loader);
    for (size_t i = 0; i < dataset_count; i++)
        bags_reader_close((bags_reader *)(uintptr_t)readers[i]);
    free(readers);
    return 0;
}

const command command_load = {"load", "load shuffled batches, as for training",
    "DATASET...", {ARGUMENT_PATH, ARGUMENT_PATH, ARGUMENT_PATH}, 1, 0, options,
    reading_options,
    "Loads batches of decoded datapoints, in an order that is shuffled anew in "
    "every epoch, and prints how fast that was. With --indices or --digest it "
    "prints a line of JSON for each batch that was loaded, and the speed on "
    "stderr. Several datasets are mixed; an index is then a pair [dataset, "
    "index].\n",
    "  bags load pets --batch 256 --crop 224\n"
    "  bags load pets --batch 4 --epochs 2 --indices --state pets.state\n",
    run};
