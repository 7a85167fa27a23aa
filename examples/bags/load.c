/*
 * bags load: run the data loader, to measure it, to see its order, or to check that
 * several ranks load the same data.
 *
 * A batch's line is flushed before the state is replaced. So after a kill, the last
 * line may be printed again, but no line is lost.
 */
#include "command.h"
#include "system.h"

#include <errno.h>

#include "formats.h"
#include "frames.h"
#include "modules.h"
#include "text.h"

static const char *weights_given, *fields_given, *state_path;
static option_number batch = {32, 1, UINT32_MAX, false}, seed;
static option_number epochs = {1, 0, 0, false};
static option_number batches = {UINT64_MAX, 0, 0, false};
static option_number rank = {0, 0, UINT32_MAX, false};
static option_number ranks = {1, 1, UINT32_MAX, false};
static option_number threads = {0, 1, 1024, false};
static option_number chunk = {0, 1, 0, false};
static option_number window = {0, 1, 0, false};
static option_number take = {0, 1, 0, false};
static option_number crop = {0, 1, 65535, false};
static option_number device = {0, 0, UINT32_MAX, false};
static const char *tokens_given, *pack_given;
static const char *const long_names[] = {"split", "drop", NULL};
static option_choice long_documents = CHOICE(long_names);
static const char *const dtype_names[] = {"uint8", "uint16", "uint32", "int32", NULL};
static option_choice dtype = CHOICE(dtype_names);
static option_number stride = {0, 1, 1 << 28, false};
static option_number bos = {0, 0, UINT32_MAX, false};
static option_number eos = {0, 0, UINT32_MAX, false};
static bags_loader_options loading;
static bags_tokens_options sequences;
static bool indices, digest, orient, values;

static const option options[] = {
    {"batch", OPTION_NUMBER, &batch, "B",
        "datapoints per batch, of all ranks together (32)"},
    {"seed", OPTION_NUMBER, &seed, "S", "choose the order (0)"},
    {"epochs", OPTION_NUMBER, &epochs, "E", "end after epoch E - 1 (1)"},
    {"batches", OPTION_NUMBER, &batches, "N", "end after N batches of this run"},
    {"rank", OPTION_NUMBER, &rank, "R", "load slice R of each batch, from 0 ..."},
    {"ranks", OPTION_NUMBER, &ranks, "K", "... of K slices"},
    {"worker", OPTION_CHOICE, &worker_auto, "auto",
        "find R and K in a cluster's variables"},
    {"threads", OPTION_NUMBER, &threads, "T", "threads (the number of processors)"},
    {"chunk", OPTION_NUMBER, &chunk, "C",
        "shuffle chunks of C neighbours, and datapoints ..."},
    {"window", OPTION_NUMBER, &window, "G", "... within windows of G chunks (256)"},
    {"weights", OPTION_TEXT, &weights_given, "W,...",
        "mix the datasets in these proportions"},
    SELECT_OPTIONS,
    {"take", OPTION_NUMBER, &take, "N", "only the first N, of each dataset"},
    {"replacement", OPTION_FLAG, &loading.order.replacement, NULL,
        "draw datapoints with replacement"},
    {"fields", OPTION_TEXT, &fields_given, "F,...", "load these fields (all)"},
    {"tokens", OPTION_TEXT, &tokens_given, "FIELD=S",
        "windows of S tokens, and the label of the last"},
    {"stride", OPTION_NUMBER, &stride, "N", "from one window to the next (S)"},
    {"pack", OPTION_TEXT, &pack_given, "FIELD=S",
        "rows of entire documents, at most S tokens"},
    {"long", OPTION_CHOICE, &long_documents, "HOW",
        "split or drop documents longer than a row (split)"},
    {"dtype", OPTION_CHOICE, &dtype, "DTYPE",
        "of tokens in bytes: uint8, uint16, uint32, int32"},
    {"bos", OPTION_NUMBER, &bos, "ID", "add this token before each document"},
    {"eos", OPTION_NUMBER, &eos, "ID", "add this token after each document"},
    {"crop", OPTION_NUMBER, &crop, "SIZE",
        "of images and stored pixels, random crops of this size, as to train"},
    {"orient", OPTION_FLAG, &orient, NULL,
        "turn images upright, as their EXIF data state"},
    {"device", OPTION_NUMBER, &device, "N",
        "decode and crop images on GPU N, from 0 (--crop)"},
    {"in-order", OPTION_FLAG, &loading.order.in_order, NULL, "do not shuffle"},
    {"skip-damaged", OPTION_FLAG, &loading.skip_damaged, NULL,
        "leave out and count damaged datapoints"},
    {"state", OPTION_PATH, &state_path, "FILE",
        "continue at FILE, if it exists; save there"},
    {"indices", OPTION_FLAG, &indices, NULL,
        "print each batch's datapoints as a line of JSON"},
    {"digest", OPTION_FLAG, &digest, NULL,
        "print each batch's checksum as a line of JSON"},
    {"values", OPTION_FLAG, &values, NULL, "print tokens or frames, too"},
    FRAMES_OPTIONS,
    OPTIONS_END,
};

static bags_loader *loader;
static bags_tokens *tokens;
static bags_cuda *gpu;
static size_t dataset_count;

/* ---- options ---- */

/* Split a list into its *count parts. */
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

/* Select datapoints by --rows and --where, or select windows. */
static void select_each(const bags_reader *const *readers) {
    static bags_selection *selections;
    selections = (bags_selection *)allocate(dataset_count, sizeof *selections);
    for (size_t i = 0; i < dataset_count; i++) {
        bags_selection *one = &selections[i];
        size_t count = 0;
        uint64_t length = tokens && !sequences.pack
                              ? bags_tokens_count(tokens, i).windows
                              : bags_reader_length(readers[i]);
        one->kind = BAGS_SELECTION_INDICES;
        one->numbers = select_datapoints(&readers[i], 1, length, &count);
        one->count = count;
        one->borrowed = true;
    }
    loading.order.selections = selections;
}

/* ---- fields ---- */

/* Open the GPU for --device. */
static void link_device(void) {
    static bags_loader_device functions;
    bags_cuda_options of_gpu = {0};
    of_gpu.device = (uint32_t)device.value;
    gpu = bags_cuda_open(&of_gpu, &failure);
    must_open(gpu);
    functions.cuda = gpu;
    functions.take = bags_cuda_take;
    functions.give = bags_cuda_give;
    functions.open = bags_cuda_decoder_open;
    functions.close = bags_cuda_decoder_close;
    functions.probe = bags_cuda_probe;
    functions.make = bags_cuda_make;
    loading.device = &functions;
}

static type_class class_of(const bags_reader *reader, const char *name) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    size_t i = field_find(fields, count, name, strlen(name));
    return i < count ? type_kind(fields[i].type) : TYPE_OTHER;
}

/* Prepare to load video frames, if a video is loaded. This opens a library. */
static void link_videos(
    const bags_reader *reader, const bags_load_field *fields, size_t count) {
#ifdef BAGS_WITH_MP4
    static bags_loader_videos videos;
    static bags_loader_device_videos on_device;
    for (size_t i = 0; i < count && !loading.videos; i++) {
        if (class_of(reader, fields[i].name) != TYPE_VIDEO)
            continue;
        videos.open = bags_mp4_cache_open;
        videos.close = bags_mp4_cache_close;
        videos.get = bags_mp4_cache_get;
        videos.info = bags_mp4_reader_info;
        videos.read = bags_mp4_reader_get_into;
        videos.part = bags_mp4_reader_part;
        loading.videos = &videos;
        if (!device.given)
            continue;
        on_device.probe = bags_cuda_probe_video;
        on_device.make = bags_cuda_make_frames;
        on_device.place = bags_mp4_reader_place;
        on_device.packet = bags_mp4_reader_packet;
        loading.device_videos = &on_device;
    }
#else
    (void)reader, (void)fields, (void)count;
#endif
}

/* True for stored pixels of `bags derive --pixels`: array(uint8,HEIGHT,WIDTH,3). */
static bool is_pixels(const bags_reader *reader, const char *name) {
    size_t count, i;
    uint64_t shape[3] = {0};
    (void)bags_reader_fields(reader, &count);
    if (bags_reader_field(reader, name, &i, NULL))
        return false;
    const bags_type *type = bags_reader_type(reader, i);
    if (!bags_view_is(type->name, "array") || type->count != 4 ||
        !bags_view_is(bags_type_argument(type, 0), "uint8"))
        return false;
    for (size_t k = 0; k < 3; k++)
        if (!bags_type_number(type, k + 1, &shape[k]))
            return false;
    return shape[0] > 0 && shape[1] > 0 && shape[2] == 3;
}

/* True for an image, and for a video whose frames are loaded. */
static bool is_image(const bags_reader *reader, const char *name) {
    type_class kind = class_of(reader, name);
    return kind == TYPE_IMAGE || (kind == TYPE_VIDEO && framing.clock);
}

/* Crop, normalize by the ImageNet mean and deviation, and put channels first, as is
 * usual when training on ImageNet. */
static void choose_crop(bags_load_field *field, uint32_t size, bool upright) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f};
    static const float deviation[3] = {0.229f, 0.224f, 0.225f};
    loading.images = images_linked();
    field->width = field->height = size;
    field->crop = BAGS_CROP_RANDOM;
    field->orient = upright;
    field->flip_x = 0.5;
    field->nchw = true;
    field->dtype = BAGS_DTYPE_FLOAT32;
    memcpy(field->mean, mean, sizeof mean);
    memcpy(field->std, deviation, sizeof deviation);
}

/* With --values, a line has each field's values under the field's name, next to these
 * keys. */
static void refuse_key(const char *name) {
    static const char *const keys[] = {"epoch", "batch", "indices", "digest"};
    for (size_t k = 0; values && k < sizeof keys / sizeof *keys; k++)
        if (!strcmp(name, keys[k]))
            usage("--values: a field called \"%s\" cannot be printed", name);
}

/* Choose the fields to load: the given fields, or all fields of the first dataset.
 * Returns true if some are images. */
static bool choose_fields(const char *path, const bags_reader *reader) {
    size_t count, all_count;
    bool found = false;
    const bags_field *all = bags_reader_fields(reader, &all_count);
    static char **names;
    count = all_count;
    names = fields_given ? split(fields_given, &count) : NULL;
    for (size_t i = 0; names && i < count; i++)
        (void)field_require(path, names[i], all, all_count);
    uint32_t size = (uint32_t)crop.value;
    static bags_load_field *fields; /* like `names`, lives as long as the loader */
    size_t used = 0;
    fields = (bags_load_field *)allocate(count, sizeof *fields);
    for (size_t i = 0; i < count; i++) {
        if (!names && framing.clock && !frames_names(i, path, all, all_count))
            continue;
        bags_load_field *field = &fields[used++];
        field->name = names ? names[i] : all[i].name;
        bool image = is_image(reader, field->name);
        if (!image && !(size && is_pixels(reader, field->name)))
            continue;
        found = found || image || !orient;
        if (size)
            choose_crop(field, size, orient && image);
    }
    count = used;
    if (framing.clock) {
        loading.frames = frames_apply(path, all, all_count, fields, count);
        link_videos(reader, fields, count);
    }
    for (size_t i = 0; i < count; i++)
        refuse_key(fields[i].name);
    if ((size || orient) && !found)
        usage("--%s: no field that is loaded is an image", orient ? "orient" : "crop");
    loading.fields = count ? fields : NULL;
    loading.field_count = count;
    return found;
}

/* ---- tokens ---- */

/* Handle --tokens FIELD=S and --pack. The fields in --fields have one element per
 * token. */
static void open_tokens(const char *path, const bags_reader **readers) {
    static const bags_dtype dtypes[] = {
        BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32, BAGS_DTYPE_INT32};
    const char *name = pack_given ? "pack" : "tokens";
    char *field = string_format("%s", pack_given ? pack_given : tokens_given);
    char *equals = strrchr(field, '=');
    bags_value length;
    size_t all_count;
    const bags_field *all = bags_reader_fields(readers[0], &all_count);
    if (!equals || equals == field ||
        !format_number(equals + 1, strlen(equals + 1), &length) || equals[1] == '-' ||
        length.uint < 1 || length.uint > 1 << 28)
        usage("--%s: expected FIELD=S, as text=2048, with S from 1 to 268435456", name);
    *equals = 0;
    sequences.field = field;
    sequences.length = length.uint;
    sequences.stride = stride.value;
    sequences.pack = pack_given != NULL;
    sequences.long_documents = (bags_long)long_documents.value;
    sequences.stored = dtype.given ? dtypes[dtype.value] : BAGS_DTYPE_NONE;
    sequences.has_bos = bos.given;
    sequences.has_eos = eos.given;
    sequences.bos = (uint32_t)bos.value;
    sequences.eos = (uint32_t)eos.value;
    sequences.places = values && !pack_given;
    if (fields_given)
        sequences.parallel =
            (const char *const *)split(fields_given, &sequences.parallel_count);
    for (size_t i = 0; i <= sequences.parallel_count; i++) {
        const char *one = i ? sequences.parallel[i - 1] : field;
        (void)field_require(path, one, all, all_count);
        refuse_key(one);
    }
    tokens = bags_tokens_open(readers, dataset_count, &sequences, &failure);
    must_open(tokens);
    loading.tokens = tokens;
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

/* The new file that will replace the state. Each rank uses its own, in case they share
 * FILE. */
static const char *state_fresh;

/* Replace the state or, without `keep`, only check that it can be written. It is not
 * synced, since that takes milliseconds, longer than most batches. After a power
 * failure, FILE may be older or truncated; bags_loader_restore refuses a truncated
 * file. */
static void state_write(bool keep) {
    const bags_io *io = bags_io_local();
    unsigned char state[BAGS_LOADER_STATE];
    must(bags_loader_save(loader, state, &failure));
    file_write(state_fresh, state, sizeof state);
    int error = keep ? io->rename(io->user, state_fresh, state_path) : 0;
    if (error || !keep)
        (void)io->remove(io->user, state_fresh);
    if (error)
        fail_system(error, state_path, "replace");
}

/* If the state cannot be written, fail before anything is printed. */
static void state_prepare(void) {
    state_fresh = string_format("%s.new%ju", state_path, (uintmax_t)rank.value);
    (void)bags_io_local()->remove(NULL, state_fresh); /* left by a killed run */
    state_write(false);
}

/* ---- output ---- */

/* Write the pieces of a packed row. */
static void put_row(text *line, const bags_batch *loaded, size_t i) {
    text_puts(line, "[");
    for (uint64_t k = loaded->rows[i]; k < loaded->rows[i + 1]; k++) {
        const bags_piece *piece = &loaded->pieces[k];
        text_next(line);
        text_puts(line, "[");
        if (dataset_count > 1)
            text_format(line, "%ju, ", (uintmax_t)piece->dataset);
        text_format(line, "%ju, %ju, %ju]", (uintmax_t)piece->document,
            (uintmax_t)piece->first, (uintmax_t)piece->length);
    }
    text_puts(line, "]");
}

static void put_value(
    text *line, const bags_tensor *tensor, const char *type, const bags_value *value) {
    text_next(line);
    if (!value_write(line, type, value, SIZE_MAX))
        fail(BAGS_ERROR_TYPE, "field \"%s\": %s is not printed by --values",
            tensor->name, value->dtype ? bags_dtype_name(value->dtype) : "its type");
}

/* Write the numbers in a window of tokens, a row or a frame, as nested lists. */
static void put_numbers(
    text *line, const bags_batch *loaded, const bags_tensor *tensor, size_t i) {
    const char *type = temp_format("array(%s,-1)", bags_dtype_name(tensor->dtype));
    bags_view bytes = bags_tensor_get(loaded, tensor, i, NULL, NULL);
    uint64_t count = bytes.size / bags_dtype_size(tensor->dtype);
    bags_value list = tensor->offsets ? bags_array(tensor->dtype, 1, &count, bytes.data)
                                      : bags_array(tensor->dtype, tensor->dims - 1,
                                            tensor->shape + 1, bytes.data);
    put_value(line, tensor, type, &list);
}

/* Write values that are not numbers of one shape; a window becomes a list. */
static void put_items(
    text *line, const bags_batch *loaded, const bags_tensor *tensor, size_t i) {
    uint64_t first, count;
    bool is_window = tensor->dims > 1;
    (void)bags_tensor_get(loaded, tensor, i, &first, &count);
    if (is_window) {
        text_next(line);
        text_puts(line, "[");
    }
    for (uint64_t k = first; k < first + count; k++) {
        const unsigned char *from =
            (const unsigned char *)tensor->data + tensor->ends[k];
        bags_value words = bags_utf8_sized((const char *)from,
            tensor->values ? 0 : (size_t)(tensor->ends[k + 1] - tensor->ends[k]));
        put_value(line, tensor, "utf8", tensor->values ? &tensor->values[k] : &words);
    }
    if (is_window)
        text_puts(line, "]");
}

/* Write the values of each window, row or frame. */
static void put_values(text *line, const bags_batch *loaded) {
    for (size_t t = 0; t < loaded->count; t++) {
        const bags_tensor *tensor = &loaded->tensors[t];
        text_member(line, tensor->name);
        text_puts(line, "[");
        for (size_t i = 0; i < loaded->length; i++)
            (tensor->ends ? put_items : put_numbers)(line, loaded, tensor, i);
        text_puts(line, "]");
    }
}

/* Write what was picked: a number, a list of pieces for packed rows, or [episode,
 * frame] for frames. The dataset comes first if there are several. */
static void put_pick(text *line, const bags_pick *pick, const uint64_t *frame) {
    bool is_list = frame || dataset_count > 1;
    text_puts(line, is_list ? "[" : "");
    if (dataset_count > 1)
        text_format(line, "%ju, ", (uintmax_t)pick->dataset);
    text_format(line, "%ju", (uintmax_t)pick->index);
    if (frame)
        text_format(line, ", %ju", (uintmax_t)*frame);
    text_puts(line, is_list ? "]" : "");
}

static void print_batch(const bags_batch *loaded) {
    static text line;
    line.size = 0;
    text_puts(&line, "{");
    text_member_number(&line, "epoch", loaded->epoch);
    text_member_number(&line, "batch", loaded->batch);
    if (indices) {
        text_member(&line, "indices");
        text_puts(&line, "[");
        for (size_t i = 0; i < loaded->length; i++) {
            const bags_pick *pick = &loaded->picks[i];
            text_next(&line);
            if (loaded->pieces)
                put_row(&line, loaded, i);
            else
                put_pick(&line, pick, loaded->frames ? &loaded->frames[i] : NULL);
        }
        text_puts(&line, "]");
    }
    if (digest)
        text_member_string(&line, "digest",
            temp_format("%016jx", (uintmax_t)bags_batch_digest(loaded)));
    if (values)
        put_values(&line, loaded);
    text_puts(&line, "}\n");
    text_output(&line);
}

typedef struct totals {
    uint64_t batches, datapoints, images, skipped, bytes, tokens, dropped, on_cpu;
    double seconds;
} totals;

static void add(totals *sum, const bags_reader *reader, const bags_batch *one) {
    sum->batches++;
    sum->datapoints += one->length;
    sum->skipped += one->skipped;
    sum->bytes += one->bytes;
    sum->dropped += one->dropped;
    sum->on_cpu += one->on_cpu;
    if (tokens)
        sum->tokens +=
            one->pieces ? one->tensors[0].items : one->length * sequences.length;
    for (size_t i = 0; i < one->count && !tokens; i++)
        if (is_image(reader, one->tensors[i].name) ||
            (crop.given && is_pixels(reader, one->tensors[i].name)))
            sum->images += one->tensors[i].items;
}

/* Print how many tokens were unused, and how full the packed rows were. */
static void print_tokens(const totals *sum) {
    uint64_t unused = 0;
    for (size_t i = 0; i < dataset_count; i++)
        unused += bags_tokens_count(tokens, i).unused;
    if (!sequences.pack)
        fprintf(stderr, "%s not used\n",
            unused == 1 ? "1 trailing token is"
                        : temp_format("%ju trailing tokens are", (uintmax_t)unused));
    else if (sum->datapoints)
        fprintf(stderr, "fill %.2f %%\n",
            100 * (double)sum->tokens /
                ((double)sum->datapoints * (double)sequences.length));
    uint64_t dropped = sum->dropped;
    for (size_t i = 0; i < dataset_count && sum->batches == 0; i++)
        if (long_documents.value)
            dropped += bags_tokens_count(tokens, i).longer;
    if (dropped)
        fprintf(
            stderr, "%s longer than a row left out\n", counted(dropped, "document"));
}

/* The word for one sample. */
static const char *unit_name(void) {
    return loading.frames   ? "frame"
           : !tokens        ? "datapoint"
           : sequences.pack ? "row"
                            : "window";
}

/* Print the last line. It is not JSON, so it goes to stderr if the other lines are
 * JSON. */
static void print_summary(const totals *sum, bool has_images) {
    double seconds = sum->seconds > 1e-9 ? sum->seconds : 1e-9;
    const char *unit = unit_name();
    text line = {0};
    text_format(&line, "%s in %s, %.1f s: %.0f %ss/s", counted(sum->datapoints, unit),
        counted(sum->batches, "batch"), sum->seconds, (double)sum->datapoints / seconds,
        unit);
    if (tokens)
        text_format(&line, ", %.0f tokens/s", (double)sum->tokens / seconds);
    if (has_images)
        text_format(&line, ", %.0f images/s", (double)sum->images / seconds);
    text_format(&line, ", %.1f MB/s", (double)sum->bytes / 1e6 / seconds);
    if (sum->on_cpu)
        text_format(&line, "; the CPU made %s", counted(sum->on_cpu, "image"));
    if (sum->skipped)
        text_format(&line, "; %s left out", counted(sum->skipped, "damaged datapoint"));
    text_puts(&line, "\n");
    if (indices || digest || values)
        fwrite(line.buffer.data, 1, line.size, stderr);
    else
        text_output(&line);
    bags_buffer_free(&line.buffer);
}

/* ---- the loop ---- */

/* How many batches this run will load; 0 if unknown. */
static uint64_t count_batches(const bags_batch *first, uint64_t most) {
    uint64_t each = bags_loader_batches(loader), all = UINT64_MAX;
    if (each && epochs.value < UINT64_MAX / each)
        all = epochs.value * each - (first->epoch * each + first->batch);
    most = all < most ? all : most;
    return most < UINT64_MAX ? most : 0;
}

static totals load_all(const bags_reader *reader, uint64_t most, const char *title) {
    totals sum = {0};
    uint64_t total = 0;
    double start = seconds_now();
    setvbuf(stdout, NULL, _IONBF, 0); /* writes each line before its state */
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
        if (indices || digest || values)
            print_batch(loaded);
        if (state_path)
            state_write(true);
        progress_show(
            title, temp_format("%ss", unit_name()), sum.batches, total, sum.datapoints);
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
    worker_find("rank", &rank, "ranks", &ranks);
    loading.batch = (uint32_t)batch.value;
    loading.order.seed = seed.value;
    loading.epochs = epochs.value;
    loading.ranks = (uint32_t)ranks.value;
    loading.rank = (uint32_t)rank.value;
    loading.threads = (int32_t)threads.value;
    loading.order.chunk = chunk.value;
    loading.order.window = window.value;
    loading.order.take = take.value;
    if (orient) /* for images that are not cropped */
        registry_orient();
    options_need("rank", "ranks");
    if (loading.rank >= loading.ranks)
        usage("--rank must be below --ranks (%ju, %ju)", (uintmax_t)rank.value,
            (uintmax_t)loading.ranks);
    options_need("window", "chunk");
    options_exclude("in-order", "chunk|weights|replacement");
    options_exclude("chunk|replacement", NULL);
    options_exclude("tokens|pack", NULL);
    options_need("stride", "tokens");
    options_need("long", "pack");
    options_need("dtype|bos|eos", "tokens|pack");
    options_need("values", "tokens|pack|frames");
    options_need("offsets|seconds|times|rate|tolerance|pad|same-draw", "frames");
    options_exclude("tokens|pack", "crop|orient|frames");
    options_exclude("pack", "skip-damaged");
    options_need("device", "crop");
    options_exclude("device", "digest");
    bool by_token = tokens_given || pack_given;
    if (selecting.rows && dataset_count > 1)
        usage("--rows needs a single dataset");
    if (selecting.where && tokens_given)
        usage("--where and --tokens are mutually exclusive: numbers refer to windows");
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
        readers[i] = dataset_open(path, registry_get());
        mapped_path = dataset_count == 1 ? path : NULL;
    }
    const char *first = path_without_secrets(operands[0]);
    bool has_images = false;
    if (by_token)
        open_tokens(first, readers);
    else
        has_images = choose_fields(first, readers[0]);
    if (selecting.rows || selecting.where)
        select_each(readers);
    loading.prefetch = has_images || remote;
    uint64_t most = batches.value;
    if (loading.epochs == 0)
        most = 0;
    if (device.given)
        link_device();
    loader = bags_loader_open(readers, dataset_count, &loading, &failure);
    must_open(loader);
    bool resumed = state_path && state_read();
    totals sum = load_all(readers[0], most, first);
    if (sum.batches || !resumed)
        print_summary(&sum, has_images);
    if (tokens && (sum.batches || !resumed))
        print_tokens(&sum);
    bags_loader_close(loader);
    bags_tokens_close(tokens);
    bags_cuda_close(gpu);
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
    "index].\n"
    "With --tokens or --pack, the datapoints of a field are documents: what is loaded "
    "are windows of a stream of them, counted through the shards, or rows, each a list "
    "of [document, first token, tokens]. --fields are then fields that have an element "
    "for each token.\n"
    "With --frames, datapoints are episodes, and the items of CLOCK are loaded: pairs "
    "[episode, frame], each with the plain fields and the windows of others. --rows, "
    "--where and --take select episodes.\n",
    "  bags load pets --batch 256 --crop 224\n"
    "  bags load pets --batch 4 --epochs 2 --indices --state pets.state\n",
    run};
