/* Frames: which samples there are, windows and masks, nearest items, states, what is drawn
 * for images, misuse, and faults. tests/command/frames.py compares random datasets with a
 * model. */
// flavours: test: release; check: asan tsan
#include "check.h"

#include "../../../formats/formats.h"

#define EPISODES 9
#define MOST 40 /* items of an episode */
#define SIDE 6  /* pixels of an image */

static const bags_loader_images images = {bags_resample, NULL, NULL, NULL, NULL};

/* ---- episodes ---- */

/* 0, 13, 26, 0, ... */
static uint64_t items_of(uint64_t e) { return e % 4 == 3 ? 0 : e * 13 % 40; }
static uint64_t eyes_of(uint64_t e) { return 2 * items_of(e) + (items_of(e) > 0); }

static double time_of(uint64_t e, uint64_t i) {
    return 100 * (double)e + (double)i / 8 + (i > 10 ? 3 : 0); /* with a gap */
}

static double eye_time_of(uint64_t e, uint64_t i) {
    return 100 * (double)e + (double)(i / 2) / 8; /* each twice */
}

static float state_of(uint64_t e, uint64_t i, uint64_t k) {
    return (float)(e * 1000 + i * 10 + k);
}

static const bags_field fields[] = {{"action", "array(int16)[]"},
    {"eye", "array(uint8,6,6,3)[]"}, {"eye_time", "array(float64)[]"}, {"name", "utf8"},
    {"other", "array(uint8,6,6,3)[]"}, {"state", "array(float32,2)[]"},
    {"time", "array(float64)[]"}};
#define FIELDS (sizeof fields / sizeof *fields)

/* Episodes as above. `spoil` may change a list of times, or its length. */
static void write_spoilt(const char *path, uint64_t shard_length,
    void (*spoil)(uint64_t e, double *times, size_t *count)) {
    static const uint64_t two = 2, image[] = {SIDE, SIDE, 3};
    static bags_value values[FIELDS][2 * MOST + 1];
    static float states[MOST][2];
    static int16_t actions[MOST];
    static double times[MOST], eye_times[2 * MOST + 1];
    static unsigned char pixels[2 * MOST + 1][SIDE * SIDE * 3];
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.shard_length = shard_length;
    assert_opens(writer, bags_writer_open(path, fields, FIELDS, &options, &said));
    for (uint64_t e = 0; e < EPISODES; e++) {
        size_t count = (size_t)items_of(e), eyes = (size_t)eyes_of(e), timed = count;
        char name[32];
        for (size_t i = 0; i < count; i++) {
            states[i][0] = state_of(e, i, 0);
            states[i][1] = state_of(e, i, 1);
            actions[i] = (int16_t)(e * 100 + i);
            times[i] = time_of(e, i);
            values[0][i] = bags_array(BAGS_DTYPE_INT16, 0, NULL, &actions[i]);
            values[5][i] = bags_array(BAGS_DTYPE_FLOAT32, 1, &two, states[i]);
        }
        for (size_t i = 0; i < eyes; i++) {
            eye_times[i] = eye_time_of(e, i);
            for (size_t k = 0; k < sizeof pixels[i]; k++)
                pixels[i][k] = (unsigned char)(k * 7); /* the same in each */
            values[1][i] = bags_array(BAGS_DTYPE_UINT8, 3, image, pixels[i]);
            values[2][i] = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &eye_times[i]);
            values[4][i] = values[1][i];
        }
        if (spoil)
            spoil(e, times, &timed);
        for (size_t i = 0; i < timed; i++)
            values[6][i] = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &times[i]);
        snprintf(name, sizeof name, "episode %d", (int)e);
        values[3][0] = bags_utf8(name);
        const bags_entry entries[] = {{"action", values[0], count},
            {"eye", values[1], eyes}, {"eye_time", values[2], eyes},
            {"name", values[3], 1}, {"other", values[4], eyes},
            {"state", values[5], count}, {"time", values[6], timed}};
        assert_ok(bags_writer_append(writer, entries, FIELDS, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static void write_episodes(const char *path) { write_spoilt(path, 4, NULL); }

static bags_reader *open_dataset(const char *path) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

/* ---- loaders ---- */

static const int64_t around[] = {-3, -1, 0, 2};
static const double seconds[] = {-0.25, -0.01, 0.0625, 0.3};
#define WINDOW 4

/* The options of a loader. */
typedef struct setup {
    bags_loader_options options;
    bags_frames_options frames;
    bags_load_field fields[4];
} setup;

/* state and action by offsets, eye by seconds, name. */
static void start(setup *s, uint32_t batch) {
    memset(s, 0, sizeof *s);
    s->frames.clock = "state";
    s->frames.times = "time";
    s->fields[0].name = "state";
    s->fields[1].name = "action";
    s->fields[2].name = "eye";
    s->fields[3].name = "name";
    s->fields[0].offsets = s->fields[1].offsets = around;
    s->fields[0].offset_count = s->fields[1].offset_count = WINDOW;
    s->fields[2].seconds = seconds;
    s->fields[2].second_count = WINDOW;
    s->fields[2].times = "eye_time";
    s->options.batch = batch;
    s->options.epochs = 1;
    s->options.threads = 3;
    s->options.allocator = &memory.allocator;
    s->options.fields = s->fields;
    s->options.field_count = 4;
    s->options.frames = &s->frames;
    s->options.images = &images;
}

static bags_loader *open_loader(const bags_reader *reader, const setup *s) {
    bags_loader *loader;
    assert_opens(loader, bags_loader_open(&reader, 1, &s->options, &said));
    return loader;
}

static const bags_batch *next(bags_loader *loader) {
    const bags_batch *batch;
    assert_ok(bags_loader_next(loader, &batch, &said));
    return batch;
}

static uint64_t all_frames(void) {
    uint64_t all = 0;
    for (uint64_t e = 0; e < EPISODES; e++)
        all += items_of(e);
    return all;
}

/* ---- windows ---- */

static uint64_t clamp(int64_t i, uint64_t count) {
    return i < 0 ? 0 : i < (int64_t)count ? (uint64_t)i : count - 1;
}

/* The first of the nearest images, by looking at all. */
static uint64_t nearest_eye(uint64_t e, double time) {
    uint64_t best = 0;
    for (uint64_t i = 1; i < eyes_of(e); i++) {
        double now = eye_time_of(e, i) - time, least = eye_time_of(e, best) - time;
        if ((now < 0 ? -now : now) < (least < 0 ? -least : least))
            best = i;
    }
    return best;
}

static void check_sample(const bags_batch *b, size_t i) {
    uint64_t e = b->picks[i].index, t = b->frames[i], count = items_of(e);
    const float *states = (const float *)b->tensors[0].data + i * WINDOW * 2;
    const int16_t *actions = (const int16_t *)b->tensors[1].data + i * WINDOW;
    const bool *masks[] = {(const bool *)b->tensors[4].data + i * WINDOW,
        (const bool *)b->tensors[5].data + i * WINDOW,
        (const bool *)b->tensors[6].data + i * WINDOW};
    char name[32];
    int size = snprintf(name, sizeof name, "episode %d", (int)e);
    assert_true(t < count);
    assert_bytes(bags_tensor_get(b, &b->tensors[3], i, NULL, NULL), name, (size_t)size);
    for (size_t k = 0; k < WINDOW; k++) {
        int64_t from = (int64_t)t + around[k];
        uint64_t item = clamp(from, count);
        bool outside = from < 0 || from >= (int64_t)count;
        assert_true(states[2 * k] <= state_of(e, item, 0) &&
                    states[2 * k] >= state_of(e, item, 0));
        assert_true(states[2 * k + 1] >= state_of(e, item, 1));
        assert_int_equal(actions[k], e * 100 + item);
        assert_true(masks[0][k] == outside && masks[1][k] == outside);
        double time = time_of(e, t) + seconds[k];
        outside = time < eye_time_of(e, 0) || time > eye_time_of(e, eyes_of(e) - 1);
        assert_true(masks[2][k] == outside);
    }
}

static void windows_repeat_edges_and_masks_say_so(void **state) {
    (void)state;
    setup s;
    uint64_t loaded = 0;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 17);
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader)); loaded += b->length) {
        static const char *const names[] = {
            "state", "action", "eye", "name", "state_pad", "action_pad", "eye_pad"};
        assert_int_equal(b->count, 7);
        for (size_t i = 0; i < b->count; i++)
            assert_string_equal(b->tensors[i].name, names[i]);
        assert_true(b->tensors[0].dims == 3 && b->tensors[0].shape[1] == WINDOW &&
                    b->tensors[0].shape[2] == 2);
        assert_true(b->tensors[1].dims == 2 && b->tensors[2].dims == 5);
        assert_true(b->tensors[4].dtype == BAGS_DTYPE_BOOL && b->tensors[4].dims == 2 &&
                    b->tensors[4].shape[1] == WINDOW);
        for (size_t i = 0; i < b->length; i++)
            check_sample(b, i);
    }
    assert_int_equal(loaded, all_frames());
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* Returns the item that it is called for. */
static bags_code number_of(void *user, const bags_load_item *item, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)user, (void)scratch, (void)err;
    *value = bags_uint(item->item);
    return BAGS_OK;
}

static void the_nearest_item_is_the_first_of_those(void **state) {
    (void)state;
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 50);
    s.fields[2].decode = number_of;
    s.fields[2].dtype = BAGS_DTYPE_UINT64;
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader));)
        for (size_t i = 0; i < b->length * WINDOW; i++) {
            uint64_t e = b->picks[i / WINDOW].index, last = eyes_of(e) - 1;
            double time = time_of(e, b->frames[i / WINDOW]) + seconds[i % WINDOW];
            uint64_t item = time > eye_time_of(e, last) ? last : nearest_eye(e, time);
            assert_int_equal(((const uint64_t *)b->tensors[2].data)[i], item);
        }
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* Times that a search by halves would not reach: a rate, and a window far away. */
static void a_rate_gives_times(void **state) {
    (void)state;
    static const double far[] = {-1e6, 0.499, 0.501, 1e6};
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 50);
    s.frames.times = NULL;
    s.frames.rate = 2;
    s.fields[2].times = NULL;
    s.fields[2].rate = 1;
    s.fields[2].seconds = far;
    s.fields[2].decode = number_of;
    s.fields[2].dtype = BAGS_DTYPE_UINT64;
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader));)
        for (size_t i = 0; i < b->length; i++) {
            const uint64_t *items = (const uint64_t *)b->tensors[2].data + i * WINDOW;
            const bool *mask = (const bool *)b->tensors[6].data + i * WINDOW;
            uint64_t t = b->frames[i], last = eyes_of(b->picks[i].index) - 1;
            assert_true(items[0] == 0 && mask[0] && items[3] == last && mask[3]);
            assert_true(items[1] == t / 2 + t % 2 && items[2] == t / 2 + 1);
            assert_true(!mask[1] && !mask[2]);
        }
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void pad_drop_leaves_out_what_is_not_inside(void **state) {
    (void)state;
    setup s;
    uint64_t expected = 0, found = 0;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    for (uint64_t e = 0; e < EPISODES; e++)
        for (uint64_t t = 3; t + 2 < items_of(e); t++) {
            double early = time_of(e, t) + seconds[0],
                   late = time_of(e, t) + seconds[3];
            expected +=
                early >= eye_time_of(e, 0) && late <= eye_time_of(e, eyes_of(e) - 1);
        }
    start(&s, 10);
    s.frames.pad = BAGS_PAD_DROP;
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader)); found += b->length)
        for (size_t i = 0; i < b->length; i++) {
            check_sample(b, i);
            for (size_t k = 0; k < WINDOW; k++)
                for (size_t m = 4; m < 7; m++)
                    assert_false(((const bool *)b->tensors[m].data)[i * WINDOW + k]);
        }
    assert_true(expected > 20 && found == expected);
    bags_loader_close(loader);
    /* Longer than every episode. */
    static const int64_t wide[] = {INT64_MIN, INT64_MAX};
    s.fields[0].offsets = wide;
    s.fields[0].offset_count = 2;
    loader = open_loader(reader, &s);
    assert_true(!next(loader) && bags_loader_batches(loader) == 0);
    bags_loader_close(loader);
    s.frames.pad = BAGS_PAD_EDGE;
    loader = open_loader(reader, &s);
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < b->length; i++) {
        const float *states = (const float *)b->tensors[0].data + 4 * i;
        uint64_t e = b->picks[i].index;
        assert_true(states[0] <= state_of(e, 0, 0));
        assert_true(states[2] >= state_of(e, items_of(e) - 1, 0));
        assert_true(((const bool *)b->tensors[4].data)[2 * i] &&
                    ((const bool *)b->tensors[4].data)[2 * i + 1]);
    }
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void without_a_window_a_sequence_has_the_item_of_the_frame(void **state) {
    (void)state;
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 50);
    s.fields[0].offsets = NULL;
    s.fields[0].offset_count = 0;
    s.options.field_count = 1;
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader));) {
        assert_true(b->count == 1 && b->tensors[0].dims == 2);
        for (size_t i = 0; i < b->length; i++)
            assert_true(((const float *)b->tensors[0].data)[2 * i] >=
                        state_of(b->picks[i].index, b->frames[i], 0));
    }
    bags_loader_close(loader);
    /* No list: the clock, and what is plain. */
    s.options.fields = NULL;
    s.options.field_count = 0;
    loader = open_loader(reader, &s);
    const bags_batch *b = next(loader);
    assert_true(b->count == 2);
    assert_string_equal(b->tensors[0].name, "name");
    assert_string_equal(b->tensors[1].name, "state");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* ---- the order ---- */

/* Load an epoch: how often each frame came, and the sum of the digests. */
static uint64_t load_epoch(
    const bags_reader *reader, const setup *s, unsigned char counts[EPISODES][MOST]) {
    uint64_t digest = 0;
    bags_loader *loader = open_loader(reader, s);
    for (const bags_batch *b; (b = next(loader)); digest += bags_batch_digest(b))
        for (size_t i = 0; i < b->length; i++)
            counts[b->picks[i].index][b->frames[i]]++;
    bags_loader_close(loader);
    return digest;
}

static void each_frame_comes_once_on_any_ranks_and_threads(void **state) {
    (void)state;
    static unsigned char counts[EPISODES][MOST];
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    for (int chunk = 0; chunk < 8; chunk += 7) {
        memset(counts, 0, sizeof counts);
        start(&s, 10);
        s.options.order.chunk = (uint64_t)chunk;
        uint64_t whole = load_epoch(reader, &s, counts), parts = 0;
        s.options.threads = BAGS_THREADS_NONE;
        assert_true(load_epoch(reader, &s, counts) == whole);
        s.options.ranks = 4;
        for (s.options.rank = 0; s.options.rank < 4; s.options.rank++)
            parts += load_epoch(reader, &s, counts);
        assert_true(parts == whole);
        for (uint64_t e = 0; e < EPISODES; e++)
            for (uint64_t t = 0; t < MOST; t++)
                assert_int_equal(counts[e][t], t < items_of(e) ? 3 : 0);
    }
    bags_reader_close(reader);
}

static void a_state_continues_at_every_batch(void **state) {
    (void)state;
    enum { BATCHES = 40 };
    static uint64_t digests[BATCHES];
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 13);
    s.options.epochs = 3;
    bags_loader *loader = open_loader(reader, &s);
    uint64_t each = bags_loader_batches(loader);
    assert_true(each == (all_frames() + 12) / 13 && each < BATCHES);
    for (size_t i = 0; i < each; i++)
        digests[i] = bags_batch_digest(next(loader));
    bags_loader_close(loader);
    for (size_t stop = 0; stop < each; stop++) {
        unsigned char saved[BAGS_LOADER_STATE];
        s.options.threads = 1 + (int32_t)(stop % 3);
        loader = open_loader(reader, &s);
        for (size_t i = 0; i < stop; i++)
            next(loader);
        assert_ok(bags_loader_save(loader, saved, &said));
        bags_loader_close(loader);
        loader = open_loader(reader, &s);
        assert_ok(bags_loader_restore(loader, saved, sizeof saved, &said));
        for (size_t i = stop; i < each; i++)
            assert_true(bags_batch_digest(next(loader)) == digests[i]);
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

/* Restore a state of one setup in another. */
static bags_code restore_in(
    const bags_reader *reader, const setup *from, const setup *to) {
    unsigned char saved[BAGS_LOADER_STATE];
    bags_loader *loader = open_loader(reader, from);
    assert_ok(bags_loader_save(loader, saved, &said));
    bags_loader_close(loader);
    loader = open_loader(reader, to);
    poison();
    bags_code code = bags_loader_restore(loader, saved, sizeof saved, &said);
    bags_loader_close(loader);
    return code;
}

static void a_state_of_other_frames_is_refused(void **state) {
    (void)state;
    setup s, other;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 13);
    start(&other, 13);
    /* Windows do not choose the frames, unless others are dropped. */
    static const int64_t few[] = {-2};
    other.fields[1].offsets = few;
    other.fields[1].offset_count = 1;
    assert_true(!restore_in(reader, &s, &other));
    s.frames.pad = other.frames.pad = BAGS_PAD_DROP;
    assert_true(restore_in(reader, &s, &other) == BAGS_ERROR_VALUE);
    assert_says("a state of other datasets or options: ");
    start(&s, 13);
    start(&other, 13);
    other.frames.clock = "action";
    other.options.field_count = s.options.field_count = 2;
    assert_true(restore_in(reader, &s, &other) == BAGS_ERROR_VALUE);
    assert_says("frames");
    start(&other, 13);
    other.options.frames = NULL;
    other.options.fields = NULL;
    other.options.field_count = 0;
    assert_true(restore_in(reader, &s, &other) == BAGS_ERROR_VALUE);
    bags_reader_close(reader);
}

static void selections_and_take_are_of_episodes(void **state) {
    (void)state;
    static unsigned char counts[EPISODES][MOST];
    static const uint64_t chosen[] = {6, 2, 0, 6, 1};
    bags_selection selection = {BAGS_SELECTION_INDICES, chosen, 5, false};
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 10);
    s.options.order.selections = &selection;
    s.options.order.take = 4;
    load_epoch(reader, &s, counts);
    for (uint64_t e = 0; e < EPISODES; e++)
        for (uint64_t t = 0; t < items_of(e); t++)
            assert_int_equal(counts[e][t], e == 6 ? 2 : e == 2);
    /* In order: the frames of the episodes, one after the other. */
    s.options.order.in_order = true;
    bags_loader *loader = open_loader(reader, &s);
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < b->length; i++)
        assert_true(b->picks[i].index == 6 && b->frames[i] == i);
    bags_loader_close(loader);
    setup all;
    start(&all, 10);
    assert_true(restore_in(reader, &s, &all) == BAGS_ERROR_VALUE);
    bags_reader_close(reader);
}

static void datasets_are_mixed_by_weights(void **state) {
    (void)state;
    static const double weights[] = {1, 3};
    setup s;
    uint64_t of[2] = {0, 0};
    bags_loader *loader;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x")), *again = open_dataset(at("x"));
    const bags_reader *both[] = {reader, again};
    start(&s, 32);
    s.options.order.weights = weights;
    assert_opens(loader, bags_loader_open(both, 2, &s.options, &said));
    for (const bags_batch *b; (b = next(loader));)
        for (size_t i = 0; i < b->length; i++) {
            of[b->picks[i].dataset]++;
            check_sample(b, i);
        }
    assert_true(of[0] == 256 && of[1] == 768);
    bags_loader_close(loader);
    bags_reader_close(reader);
    bags_reader_close(again);
}

static bags_code two_of_each(void *user, uint64_t epoch, uint64_t begin, size_t count,
    bags_pick *picks, bags_error *err) {
    (void)user, (void)epoch, (void)err;
    for (size_t i = 0; i < count; i++) {
        picks[i].dataset = 0;
        picks[i].index = (begin + i) / 2;
    }
    return BAGS_OK;
}

static void a_sampler_numbers_frames(void **state) {
    (void)state;
    setup s;
    uint64_t found = 0;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 7);
    s.options.sampler = two_of_each;
    s.options.sampler_length = 2 * all_frames();
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader));)
        for (size_t i = 0; i < b->length; i++, found++) {
            uint64_t number = found / 2, e = 0;
            for (; number >= items_of(e); e++)
                number -= items_of(e);
            assert_true(b->picks[i].index == e && b->frames[i] == number);
        }
    assert_int_equal(found, 2 * all_frames());
    bags_loader_close(loader);
    s.options.sampler_length = 2 * all_frames() + 2;
    loader = open_loader(reader, &s);
    bags_code code = BAGS_OK;
    for (const bags_batch *b = NULL; !code;)
        code = bags_loader_next(loader, &b, &said);
    assert_true(code == BAGS_ERROR_ARGUMENT);
    assert_says("sampler returned index");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* ---- images ---- */

/* eye and other, both by seconds, cropped at random. Their pixels are all the same, so
 * that crops are if their results are. */
static void count_draws(bool same, size_t *frames_differ, size_t *fields_differ) {
    setup s;
    *frames_differ = *fields_differ = 0;
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 20);
    s.frames.same_draw = same;
    s.fields[0] = s.fields[2];
    s.fields[1] = s.fields[2];
    s.fields[1].name = "other";
    for (size_t i = 0; i < 2; i++) {
        s.fields[i].width = s.fields[i].height = 3;
        s.fields[i].crop = BAGS_CROP_RANDOM;
        s.fields[i].flip_x = 0.5;
    }
    s.options.field_count = 2;
    bags_loader *loader = open_loader(reader, &s);
    for (const bags_batch *b; (b = next(loader));)
        for (size_t i = 0; i < b->length; i++) {
            const unsigned char *eye = (const unsigned char *)b->tensors[0].data;
            const unsigned char *other = (const unsigned char *)b->tensors[1].data;
            const size_t size = 27;
            eye += i * WINDOW * size;
            other += i * WINDOW * size;
            for (size_t k = 1; k < WINDOW; k++)
                *frames_differ += memcmp(eye, eye + k * size, size) != 0;
            *fields_differ += memcmp(eye, other, size) != 0;
        }
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void images_of_a_sample_are_cropped_alike(void **state) {
    (void)state;
    size_t frames_differ, fields_differ;
    write_episodes(at("x"));
    count_draws(false, &frames_differ, &fields_differ);
    assert_true(frames_differ == 0 && fields_differ > all_frames() / 2);
    count_draws(true, &frames_differ, &fields_differ);
    assert_true(frames_differ == 0 && fields_differ == 0);
}

/* ---- what is refused ---- */

static void refuse_setup(
    const bags_reader *reader, const setup *s, bags_code code, const char *says) {
    assert_refused(code, bags_loader_open(&reader, 1, &s->options, &said));
    assert_says(says);
}

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const double endless[] = {0, 1.0 / 0.0};
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
#define REFUSE(code, says, ...)                                                        \
    do {                                                                               \
        start(&s, 10);                                                                 \
        __VA_ARGS__;                                                                   \
        refuse_setup(reader, &s, BAGS_ERROR_##code, says);                             \
    } while (0)
    REFUSE(ARGUMENT, "frames: without a clock", s.frames.clock = NULL);
    REFUSE(FIELD, "field \"none\"", s.frames.clock = "none");
    REFUSE(TYPE, "field \"name\": not a sequence", s.frames.clock = "name");
    REFUSE(ARGUMENT, "no such pad", s.frames.pad = (bags_pad)2);
    REFUSE(ARGUMENT, "times and rate of the clock are", s.frames.rate = 2);
    REFUSE(ARGUMENT, "rate of the clock must be above 0", s.frames.times = NULL;
           s.frames.rate = -2);
    REFUSE(ARGUMENT, "rate of the clock must be above 0", s.frames.times = NULL;
           s.frames.rate = 1.0 / 0.0);
    REFUSE(FIELD, "field \"none\"", s.frames.times = "none");
    REFUSE(TYPE,
        "field \"state\": of type array(float32,2)[]; the times of field "
        "\"state\" must be array(float64)[]",
        s.frames.times = "state");
    REFUSE(TYPE, "field \"name\": of type utf8; the times of field \"eye\"",
        s.fields[2].times = "name");
    REFUSE(ARGUMENT, "field \"eye\": seconds need the times of the clock",
        s.frames.times = NULL);
    REFUSE(ARGUMENT, "field \"eye\": seconds need the times of its items",
        s.fields[2].times = NULL);
    REFUSE(ARGUMENT, "field \"eye\": times and rate are mutually exclusive",
        s.fields[2].rate = 3);
    REFUSE(
        ARGUMENT, "field \"eye\": the rate must be above 0", s.fields[2].times = NULL;
        s.fields[2].rate = -1);
    REFUSE(ARGUMENT, "field \"eye\": tolerance without has_tolerance",
        s.fields[2].tolerance = 1);
    REFUSE(ARGUMENT, "field \"eye\": the tolerance must be at least 0",
           s.fields[2].has_tolerance = true;
           s.fields[2].tolerance = -1);
    REFUSE(ARGUMENT, "field \"eye\": seconds must be finite",
           s.fields[2].seconds = endless;
           s.fields[2].second_count = 2);
    REFUSE(ARGUMENT, "field \"eye\": offsets and seconds are mutually exclusive",
           s.fields[2].offsets = around;
           s.fields[2].offset_count = WINDOW);
    REFUSE(ARGUMENT, "field \"state\": an empty window", s.fields[0].offset_count = 0);
    REFUSE(ARGUMENT, "field \"eye\": an empty window", s.fields[2].second_count = 0);
    REFUSE(ARGUMENT, "field \"state\": window too large",
        s.fields[0].offset_count = (1 << 20) + 1);
    REFUSE(ARGUMENT,
        "field \"state\": times and rate of the clock belong in bags_frames_options",
        s.fields[0].times = "time");
    REFUSE(ARGUMENT, "field \"action\": times, rate and tolerance need seconds",
        s.fields[1].rate = 1);
    REFUSE(ARGUMENT, "field \"action\": times, rate and tolerance need seconds",
        s.fields[1].has_tolerance = true);
    REFUSE(ARGUMENT, "field \"name\": offsets and seconds need a sequence",
           s.fields[3].offsets = around;
           s.fields[3].offset_count = WINDOW);
    REFUSE(ARGUMENT, "field \"action\": window and frames are mutually exclusive",
        s.fields[1].window = 2);
    REFUSE(ARGUMENT, "frames and window_start", s.options.window_start = 1);
    REFUSE(ARGUMENT,
        "field \"state\": offsets, seconds, times, rate and tolerance need "
        "frames",
        s.options.frames = NULL);
    REFUSE(VALUE, "x: field \"eye\": datapoint 1: 27 items, but field \"state\" has 13",
           s.fields[2].seconds = NULL;
           s.fields[2].second_count = 0; s.fields[2].times = NULL);
    REFUSE(VALUE, "x: field \"eye_time\": datapoint 1: 27 items, but field \"state\"",
        s.frames.times = "eye_time");
    REFUSE(VALUE, "x: field \"time\": datapoint 1: 13 items, but field \"eye\" has 27",
        s.fields[2].times = "time");
    bags_reader_close(reader);
}

static void drop_the_last(uint64_t e, double *times, size_t *count) {
    (void)times;
    *count -= e == 5 && *count > 0;
}

static void fall(uint64_t e, double *times, size_t *count) {
    if (e == 5 && *count > 9)
        times[9] = times[8] - 0.5;
}

static void spoil_number(uint64_t e, double *times, size_t *count) {
    if (e == 5 && *count > 9)
        times[9] = 0.0 / 0.0;
}

/* Load all batches; the failure of one. */
static bags_code load_all(
    const bags_reader *reader, const setup *s, uint64_t *loaded, uint64_t *skipped) {
    const bags_batch *b;
    bags_code code;
    *loaded = *skipped = 0;
    poison();
    bags_loader *loader = bags_loader_open(&reader, 1, &s->options, &said);
    if (!loader)
        return said.code;
    do {
        poison();
        code = bags_loader_next(loader, &b, &said);
        *loaded += !code && b ? b->length : 0;
        *skipped += !code && b ? b->skipped : 0;
    } while (!code && b);
    bags_loader_close(loader);
    return code;
}

static void times_that_are_none_name_field_and_episode(void **state) {
    (void)state;
    static const struct {
        void (*spoil)(uint64_t e, double *times, size_t *count);
        const char *says;
    } cases[] = {
        {drop_the_last,
            "field \"time\": datapoint 5: 24 items, but field \"state\" has "
            "25"},
        {fall,
            "field \"time\": datapoint 5: item 9: times must not decrease (501 after "
            "501"},
        {spoil_number, "field \"time\": datapoint 5: item 9: not a time (NaN)"},
    };
    for (size_t i = 0; i < 3; i++)
        for (int drop = 0; drop < 2; drop++) {
            setup s;
            uint64_t loaded, skipped;
            write_spoilt(at("x"), 0, cases[i].spoil);
            bags_reader *reader = open_dataset(at("x"));
            start(&s, 10);
            s.frames.pad = drop ? BAGS_PAD_DROP : BAGS_PAD_EDGE;
            assert_true(load_all(reader, &s, &loaded, &skipped) == BAGS_ERROR_VALUE);
            assert_says(i == 1 ? "datapoint 5: item 9: times must not decrease"
                               : cases[i].says);
            /* Each frame of that episode is left out, if they can be counted. */
            s.options.skip_damaged = true;
            if (i > 0 && !drop) {
                assert_true(!load_all(reader, &s, &loaded, &skipped));
                assert_true(skipped == items_of(5) && loaded + skipped == all_frames());
            }
            bags_reader_close(reader);
            remove_tree(at("x"));
        }
}

static void a_sample_without_an_item_names_episode_and_time(void **state) {
    (void)state;
    setup s;
    uint64_t loaded, skipped, far = 0;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 10);
    s.options.order.in_order = true;
    s.options.threads = BAGS_THREADS_NONE;
    s.fields[2].has_tolerance = true; /* 0.0625 is in the middle of two */
    assert_true(load_all(reader, &s, &loaded, &skipped) == BAGS_ERROR_VALUE);
    assert_says("x: field \"eye\": datapoint 1: frame 0, at 100 s: no item within 0 s "
                "of 100.0625 s (the nearest is at 100 s)");
    s.options.skip_damaged = true;
    assert_true(!load_all(reader, &s, &loaded, &skipped));
    for (uint64_t e = 0; e < EPISODES; e++)
        for (uint64_t t = 0; t < items_of(e); t++)
            far += time_of(e, t) + 0.0625 <= eye_time_of(e, eyes_of(e) - 1) ||
                   time_of(e, t) - 0.01 <= eye_time_of(e, eyes_of(e) - 1);
    assert_true(skipped > 20 && skipped == far);
    s.options.skip_damaged = false;
    s.fields[2].tolerance = 0.0625;
    assert_true(!load_all(reader, &s, &loaded, &skipped));
    assert_int_equal(loaded, all_frames());
    bags_reader_close(reader);
}

static void a_value_that_does_not_fit_names_its_item(void **state) {
    (void)state;
    setup s;
    uint64_t loaded, skipped;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 10);
    s.options.order.in_order = true;
    s.options.threads = BAGS_THREADS_NONE;
    s.fields[1].dtype = BAGS_DTYPE_UINT8;
    assert_true(load_all(reader, &s, &loaded, &skipped) == BAGS_ERROR_VALUE);
    assert_says("field \"action\": datapoint 4: item 0: element 0: value out of range");
    bags_reader_close(reader);
}

/* ---- files far away ---- */

static struct {
    size_t calls, requests; /* calls that request, and all of these */
} seen;

/* A request has no memory. */
static void far_read_many(void *user, bags_io_read *reads, size_t count) {
    seen.calls += !reads->data;
    for (size_t i = 0; i < count; i++) {
        seen.requests += !reads[i].data;
        if (reads[i].data)
            bags_io_local()->read_at(user, reads[i].file, reads[i].offset,
                reads[i].data, reads[i].size, &reads[i].done);
    }
}

/* The requests of a batch: refs and times, refs again, and the items of all windows. */
static void a_batch_is_requested_before_it_is_read(void **state) {
    (void)state;
    bags_io far = *bags_io_local();
    bags_reader_options options;
    bags_reader *reader;
    setup s;
    write_episodes(at("x"));
    far.map = NULL;
    far.read_many = far_read_many;
    memset(&options, 0, sizeof options);
    options.env.io = &far;
    options.cache_index = true;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    for (int i = 0; i < 4; i++) {
        bool prefetch = i % 2;
        start(&s, 32);
        s.options.threads = BAGS_THREADS_NONE;
        s.options.prefetch = prefetch;
        s.frames.pad = i / 2 ? BAGS_PAD_DROP : BAGS_PAD_EDGE;
        bags_loader *loader = open_loader(reader, &s);
        memset(&seen, 0, sizeof seen);
        const bags_batch *b = next(loader);
        for (size_t k = 0; k < b->length; k++)
            check_sample(b, k);
        bags_loader_close(loader);
        assert_int_equal(seen.calls, prefetch ? 4 : 0);
        assert_true(seen.requests > 40 || !prefetch);
    }
    bags_reader_close(reader);
}

/* ---- memory, and faults ---- */

static void nothing_is_allocated_per_sample(void **state) {
    (void)state;
    setup s;
    write_episodes(at("x"));
    bags_reader *reader = open_dataset(at("x"));
    start(&s, 10);
    s.options.epochs = 0;
    s.options.threads = BAGS_THREADS_NONE;
    s.options.prefetch = true;
    bags_loader *loader = open_loader(reader, &s);
    for (int i = 0; i < 60; i++)
        next(loader);
    uint64_t calls = memory.calls;
    for (int i = 0; i < 60; i++)
        next(loader);
    assert_int_equal(memory.calls, calls);
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* Open, load two batches, and close, where one call fails. */
static bags_code run_once(bool mapped) {
    bags_reader_options options;
    setup s;
    const bags_batch *b;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    options.no_mmap = !mapped;
    poison();
    bags_reader *reader = bags_reader_open(at("x"), &options, &said);
    if (!reader)
        return said.code;
    start(&s, 10);
    s.options.threads = BAGS_THREADS_NONE;
    s.frames.pad = BAGS_PAD_DROP;
    const bags_reader *readers[] = {reader};
    poison();
    bags_loader *loader = bags_loader_open(readers, 1, &s.options, &said);
    bags_code code = loader ? BAGS_OK : said.code;
    for (int i = 0; i < 2 && !code; i++) {
        poison();
        code = bags_loader_next(loader, &b, &said);
    }
    bags_loader_close(loader);
    bags_reader_close(reader);
    return code;
}

static void every_failure_of_memory_and_files_is_reported(void **state) {
    (void)state;
    write_episodes(at("x"));
    for (int how = 0; how < 4; how++) {
        bool files = how % 2, mapped = how / 2;
        memory.calls = disk.calls = 0;
        assert_true(!run_once(mapped));
        uint64_t total = files ? disk.calls : memory.calls, failed = 0;
        uint64_t step = getenv("BAGS_QUICK") ? total / 40 + 1 : 1;
        for (uint64_t n = 1; n <= total; n += step) {
            memory.calls = memory.failed = disk.calls = disk.failed = 0;
            memory.fail_at = files ? 0 : n;
            disk.fail_at = files ? n : 0;
            disk.fail_with = 5; /* EIO */
            bags_code code = run_once(mapped);
            memory.fail_at = disk.fail_at = 0;
            if (code)
                assert_true(code == (files ? BAGS_ERROR_IO : BAGS_ERROR_MEMORY));
            failed += code != BAGS_OK;
            assert_true(memory.live == 0);
        }
        assert_true(failed > 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(windows_repeat_edges_and_masks_say_so),
        TEST(the_nearest_item_is_the_first_of_those),
        TEST(a_rate_gives_times),
        TEST(pad_drop_leaves_out_what_is_not_inside),
        TEST(without_a_window_a_sequence_has_the_item_of_the_frame),
        TEST(each_frame_comes_once_on_any_ranks_and_threads),
        TEST(a_state_continues_at_every_batch),
        TEST(a_state_of_other_frames_is_refused),
        TEST(selections_and_take_are_of_episodes),
        TEST(datasets_are_mixed_by_weights),
        TEST(a_sampler_numbers_frames),
        TEST(images_of_a_sample_are_cropped_alike),
        TEST(wrong_options_are_refused_by_name),
        TEST(times_that_are_none_name_field_and_episode),
        TEST(a_sample_without_an_item_names_episode_and_time),
        TEST(a_value_that_does_not_fit_names_its_item),
        TEST(a_batch_is_requested_before_it_is_read),
        TEST(nothing_is_allocated_per_sample),
        TEST(every_failure_of_memory_and_files_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
