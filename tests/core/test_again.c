/* Datapoints that share blobs: bags_stored, against a model, with crashes at every step,
 * and journals and refs that a crash cannot explain. */
// flavours: test: asan; check: release
#include "check.h"
#include "durability.h"

static const bags_field fields[] = {{"text", "utf8"}, {"clip", "bytes[]"}};

static bags_writer_options writing(uint64_t shard_length) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.buffer_size = 4096;
    options.shard_length = shard_length;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_writer *open_writer(const char *path, uint64_t shard_length) {
    bags_writer_options options = writing(shard_length);
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    return writer;
}

static bags_code append(
    bags_writer *writer, bags_value text, const bags_value *clip, size_t count) {
    bags_entry entries[2];
    memset(entries, 0, sizeof entries);
    entries[0].field = "text";
    entries[0].values = &text;
    entries[0].count = 1;
    entries[1].field = "clip";
    entries[1].values = clip;
    entries[1].count = count;
    return bags_writer_append(writer, entries, 2, &said);
}

/* ---- a model ---- */

#define MOST_POINTS 600
#define MOST_ITEMS 5

/* What a datapoint has: numbers of texts, and the blobs that it refers to. */
typedef struct point {
    uint64_t text, text_blob, clip[MOST_ITEMS], clip_blob;
    size_t count;
    uint64_t shard;
} point;

typedef struct model {
    point points[MOST_POINTS];
    size_t length;
    uint64_t random;
    uint64_t content; /* the number of the next new text */
    uint64_t stored;  /* blobs that were stored as new ones */
} model;

static uint64_t below(model *m, uint64_t limit) {
    return next_random(&m->random) % limit;
}

/* Every fourth text is empty; some are longer than a buffer. */
static bags_value text_of(uint64_t number, char *store) {
    size_t size = number % 4 == 0    ? 0
                  : number % 61 == 1 ? 5000
                                     : (size_t)(number * 7 % 50 + 1);
    memset(store, (int)('a' + number % 26), size);
    if (size >= 12)
        store[snprintf(store, 12, "%llu", (unsigned long long)number)] = '.';
    return bags_blob(store, size);
}

/* Append a datapoint whose values are new, or are those of an earlier one. */
static void append_point(model *m, bags_writer *writer, bool streamed) {
    static char store[MOST_ITEMS + 1][5000];
    point *p = &m->points[m->length];
    uint64_t shard = bags_writer_shards(writer), stored = m->stored;
    const point *text_from = m->length ? &m->points[below(m, m->length)] : p;
    const point *clip_from = m->length ? &m->points[below(m, m->length)] : p;
    bags_value text, clip[MOST_ITEMS];
    size_t again = 0;
    p->shard = shard;
    if (text_from != p && text_from->shard == shard && below(m, 2)) {
        p->text = text_from->text;
        p->text_blob = text_from->text_blob;
        text = bags_stored(p->text_blob);
    } else {
        p->text = m->content++;
        p->text_blob = bags_writer_next(writer, "text");
        text = text_of(p->text, store[MOST_ITEMS]);
        stored++;
    }
    p->count = 0;
    p->clip_blob = bags_writer_next(writer, "clip");
    if (clip_from != p && clip_from->shard == shard && below(m, 2)) {
        /* Some of its items: all after one of them, or fewer. */
        size_t from = clip_from->count ? (size_t)below(m, clip_from->count) : 0;
        again = clip_from->count - from;
        again -= again && below(m, 3) == 0;
        p->clip_blob = clip_from->clip_blob + from;
        for (; p->count < again; p->count++) {
            p->clip[p->count] = clip_from->clip[from + p->count];
            clip[p->count] = bags_stored(p->clip_blob + p->count);
        }
    }
    /* New items may follow the last blob. */
    if (p->clip_blob + p->count == bags_writer_next(writer, "clip"))
        while (p->count < MOST_ITEMS && below(m, 3)) {
            p->clip[p->count] = m->content++;
            clip[p->count] = text_of(p->clip[p->count], store[p->count]);
            p->count++;
            stored++;
        }
    if (!streamed) {
        assert_ok(append(writer, text, clip, p->count));
    } else {
        assert_ok(bags_writer_begin(writer, &said));
        for (size_t i = 0; i < p->count; i++)
            assert_ok(bags_writer_push(writer, "clip", &clip[i], &said));
        assert_ok(bags_writer_set(writer, "text", &text, &said));
        assert_ok(bags_writer_end(writer, &said));
    }
    m->stored = stored;
    m->length++;
}

/* A datapoint that is refused or cancelled after some of its blobs were written. */
static void append_nothing(model *m, bags_writer *writer) {
    bags_value clip[2] = {bags_blob("dropped", 7), bags_stored(UINT64_MAX)};
    uint64_t next = bags_writer_next(writer, "clip");
    if (below(m, 2)) {
        assert_fails(BAGS_ERROR_RANGE, append(writer, bags_utf8("dropped"), clip, 2));
    } else {
        assert_ok(bags_writer_begin(writer, &said));
        assert_ok(bags_writer_push(writer, "clip", &clip[0], &said));
        assert_int_equal(bags_writer_next(writer, "clip"), next + 1);
        bags_writer_cancel(writer);
    }
    /* Of a shard that was not begun, numbers start when it is. */
    assert_int_equal(bags_writer_next(writer, "clip"), next);
}

static void check_points(const model *m, const bags_reader *reader, size_t most) {
    static char store[5000];
    bags_row row = {0};
    uint64_t length = bags_reader_length(reader);
    assert_true(length <= m->length && m->length - length <= most);
    for (uint64_t i = 0; i < length; i++) {
        const point *p = &m->points[i];
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_int_equal(bags_row_length(&row, 0), p->count);
        for (size_t k = 0; k < p->count; k++) {
            bags_value item = text_of(p->clip[k], store);
            assert_bytes(bags_row_bytes(&row, 0, k), item.data, item.size);
        }
        bags_value text = text_of(p->text, store);
        assert_bytes(bags_row_bytes(&row, 1, 0), text.data, text.size);
    }
    bags_row_free(&row);
}

static void check_path(const model *m, const char *path, bags_unfinished unfinished,
    bool checksums, size_t most) {
    bags_reader_options options;
    bags_reader *reader;
    for (int i = 0; i < 2; i++) {
        memset(&options, 0, sizeof options);
        options.unfinished = unfinished;
        options.no_mmap = i;
        options.verify_checksums = checksums && i;
        assert_opens(reader, bags_reader_open(path, &options, &said));
        check_points(m, reader, most);
        bags_reader_close(reader);
    }
}

static uint64_t blobs_in(const char *path) {
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    uint64_t blobs = field_info(reader, 0).blobs + field_info(reader, 1).blobs;
    bags_reader_close(reader);
    return blobs;
}

/* Random datapoints, flushed and read meanwhile, with and without shards and
 * checksums. */
static void shared_blobs_are_read_as_a_model_states(void **state) {
    static model m;
    uint64_t rounds = 60 / support_stride();
    (void)state;
    for (uint64_t round = 0; round < rounds; round++) {
        bags_writer_options options = writing(round % 3 == 0   ? 0
                                              : round % 3 == 1 ? 7
                                                               : 100);
        const char *path = at("%llu", (unsigned long long)round);
        bags_writer *writer;
        memset(&m, 0, sizeof m);
        m.random = round;
        options.checksum = round / 3 % 2;
        assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
        size_t total = (size_t)below(&m, 300) + 1;
        while (m.length < total) {
            uint64_t what = below(&m, 40);
            if (what < 2) {
                append_nothing(&m, writer);
            } else if (what < 4) {
                assert_ok(bags_writer_flush(writer, &said));
                if (m.length)
                    check_path(&m, path, BAGS_UNFINISHED_READ, options.checksum, 0);
            } else {
                append_point(&m, writer, what % 3 == 0);
            }
        }
        bags_writer_clear(writer);
        assert_ok(bags_writer_close(writer, &said));
        assert_ok(verify_path(path, NULL, &said));
        check_path(&m, path, BAGS_UNFINISHED_REFUSE, options.checksum, 0);
        assert_int_equal(blobs_in(path), m.stored);
        remove_tree(path);
    }
}

/* ---- crashes ---- */

/* Write until the n-th call, at which the disk dies; recover, or resume and write the
 * rest. Every datapoint that was flushed exists, and all that exist are as they were
 * written. False if there were fewer calls. */
static bool crash_at_call(
    uint64_t n, uint64_t shard_length, bool checksum, bool resume) {
    memory_disk m;
    crash_device device;
    memory_disk_start(&m);
    crash_device_start(&device, &m.io);
    work w = work_on("set", shard_length, &device.io);
    w.share = 4;
    w.options.checksum = checksum;
    crash_at(&device, n);
    bags_writer *writer = work_open(&w, false, &said);
    for (uint64_t stop = 5; writer && stop < 27; stop += 5)
        if (work_append_to(&w, writer, stop, &said) || work_flush(&w, writer, &said))
            break;
    if (writer)
        crash_writer(&device, writer);
    bool crashed = device.files.failed > 0;
    uint64_t flushed = w.flushed, appended = w.appended;
    bags_env env = {NULL, &m.io};
    if (resume) {
        w.options.env.io = &m.io;
        assert_opens(writer, work_open(&w, true, &said));
        assert_true(w.flushed >= flushed && w.appended <= appended);
        assert_ok(work_append_to(&w, writer, 30, &said));
        assert_ok(work_close(&w, writer, &said));
        flushed = appended = 30;
    } else {
        bags_code code = recover_path("set", &env, NULL, &said);
        if (flushed || code != BAGS_ERROR_MISSING)
            assert_int_equal(code, BAGS_OK);
    }
    finding f = work_find(&w, &m.io, false);
    if (f.right < flushed || f.length > appended || f.right < f.length ||
        (flushed && !f.verified))
        fail_msg("call %d: %d datapoints, %d right, %d flushed, %d appended: %s",
            (int)n, (int)f.length, (int)f.right, (int)flushed, (int)appended,
            f.error.message);
    memory_disk_free(&m);
    return crashed;
}

static void writers_that_share_blobs_may_crash_anywhere(void **state) {
    static const uint64_t lengths[] = {0, 7, 40};
    (void)state;
    for (int i = 0; i < 12; i++) {
        uint64_t n = 1;
        while (crash_at_call(n, lengths[i % 3], i / 3 % 2, i / 6))
            n += support_stride();
        assert_true(n > 50);
    }
}

/* ---- rules ---- */

static void what_cannot_be_shared_is_refused_and_the_writer_continues(void **state) {
    bags_value clip[3];
    (void)state;
    bags_writer *writer = open_writer(at("x"), 3);
    assert_int_equal(bags_writer_next(writer, "text"), 0);
    assert_true(bags_writer_next(writer, "txet") == UINT64_MAX);
    assert_true(bags_writer_next(NULL, "text") == UINT64_MAX);
    assert_true(bags_writer_next(writer, NULL) == UINT64_MAX);
    assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(0), NULL, 0));
    assert_says("x: field \"text\": datapoint 0: blob number out of range (0, this "
                "shard has 0 blobs from number 0); append the value itself");
    for (int i = 0; i < 3; i++)
        clip[i] = bags_blob("abc" + i, 1);
    assert_ok(append(writer, bags_utf8("one"), clip, 3));
    assert_int_equal(bags_writer_next(writer, "text"), 1);
    assert_int_equal(bags_writer_next(writer, "clip"), 3);
    assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(1), NULL, 0));
    assert_says("(1, this shard has 1 blobs from number 0)");
    /* Blobs of one field are no blobs of another. */
    assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(2), NULL, 0));
    clip[0] = bags_stored(0);
    clip[1] = bags_stored(2);
    assert_fails(BAGS_ERROR_VALUE, append(writer, bags_stored(0), clip, 2));
    assert_says(
        "x: field \"clip\": datapoint 1: item 1: its blob would not follow that "
        "of the item before (number 2, expected 1)");
    clip[1] = bags_stored(0);
    assert_fails(BAGS_ERROR_VALUE, append(writer, bags_stored(0), clip, 2));
    clip[1] = bags_blob("new", 3);
    assert_fails(BAGS_ERROR_VALUE, append(writer, bags_stored(0), clip, 2));
    assert_says("item 1: its blob would not follow that of the item before (number 3, "
                "expected 1)");
    /* A new item and, again, a blob of before. */
    clip[0] = bags_blob("new", 3);
    clip[1] = bags_stored(2);
    assert_fails(BAGS_ERROR_VALUE, append(writer, bags_stored(0), clip, 2));
    /* The last one, and a new one after it: they are next to each other. */
    clip[0] = bags_stored(2);
    clip[1] = bags_blob("new", 3);
    assert_ok(append(writer, bags_stored(0), clip, 2));
    assert_int_equal(bags_writer_next(writer, "clip"), 4);
    assert_ok(append(writer, bags_stored(0), NULL, 0));
    /* The shard is full: the next one has no blobs yet, and its numbers go on. */
    assert_int_equal(bags_writer_shards(writer), 1);
    assert_int_equal(bags_writer_next(writer, "text"), 1);
    assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(0), NULL, 0));
    assert_says("(0, this shard has 0 blobs from number 1)");
    assert_ok(append(writer, bags_utf8("two"), NULL, 0));
    assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(0), NULL, 0));
    assert_ok(append(writer, bags_stored(1), NULL, 0));
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(verify_path(at("x"), NULL, &said));

    bags_reader *reader;
    bags_row row = {0};
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_int_equal(bags_reader_length(reader), 5);
    assert_ok(bags_reader_get(reader, 1, NULL, 0, &row, &said));
    assert_text(bags_row_bytes(&row, 0, 0), "c");
    assert_text(bags_row_bytes(&row, 0, 1), "new");
    assert_text(bags_row_bytes(&row, 1, 0), "one");
    assert_ok(bags_reader_get(reader, 4, NULL, 0, &row, &said));
    assert_text(bags_row_bytes(&row, 1, 0), "two");
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* Nothing wrong is written, and a caller without an err learns of it. */
static void a_number_of_another_shard_is_returned_by_close(void **state) {
    bags_value text = bags_utf8("one");
    bags_entry entries[2] = {{"text", NULL, 1}, {"clip", NULL, 0}};
    (void)state;
    bags_writer *writer = open_writer(at("x"), 1);
    entries[0].values = &text;
    assert_int_equal(bags_writer_append(writer, entries, 2, NULL), BAGS_OK);
    text = bags_stored(0);
    assert_int_equal(bags_writer_append(writer, entries, 2, NULL), BAGS_ERROR_RANGE);
    assert_fails(BAGS_ERROR_RANGE, bags_writer_close(writer, &said));
    assert_says("datapoint 1: blob number out of range");
}

/* granular 0.22 reads a journal that stays, and not refs: it would take the second text
 * for that of the second datapoint. */
static void a_shard_with_shared_blobs_keeps_no_journals(void **state) {
    bags_writer_options options = writing(2);
    bags_writer *writer;
    (void)state;
    options.keep_idx = true;
    assert_opens(writer, bags_writer_open(at("x"), fields, 2, &options, &said));
    for (int i = 0; i < 6; i++)
        assert_ok(append(writer, i == 3 ? bags_stored(2) : bags_utf8("text"), NULL, 0));
    assert_ok(bags_writer_close(writer, &said));
    for (int i = 0; i < 3; i++)
        assert_true(exists(at("x/00000%d/text.idx", i)) == (i != 1));
    /* The first shard decides what those after it have. */
    remove_tree(at("x/000000"));
    assert_int_equal(rename(at("x/000001"), at("x/000000")), 0);
    remove_tree(at("x/000002"));
    options.existing = BAGS_EXISTING_RESUME;
    assert_refused(
        BAGS_ERROR_VALUE, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("x/000000: has no .idx files*request what exists, or none");
    options.keep_idx = false;
    assert_opens(writer, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_int_equal(bags_writer_resumed(writer), 2);
    assert_ok(bags_writer_close(writer, &said));
}

/* The numbers of a resumed writer start with the first blob of its shard, so that what a
 * reader of unfinished data finds can be referred to. */
static void a_resumed_writer_can_refer_to_what_was_stored_before(void **state) {
    static const uint64_t lengths[] = {0, 3};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *path = at("%d", i);
        bags_writer_options options = writing(lengths[i]);
        bags_writer *writer = open_writer(path, lengths[i]);
        uint64_t expected = i ? 2 : 5;
        for (int k = 0; k < 5; k++)
            assert_ok(append(writer, bags_utf8(k % 2 ? "odd" : "even"), NULL, 0));
        assert_ok(bags_writer_flush(writer, &said));
        disk.only = 0;
        disk.stays = true;
        disk.fail_at = disk.calls + 1;
        bags_writer_close(writer, NULL);
        disk.fail_at = 0;
        options.existing = BAGS_EXISTING_RESUME;
        assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
        assert_int_equal(bags_writer_next(writer, "text"), expected);
        assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(expected), NULL, 0));
        assert_ok(append(writer, bags_stored(0), NULL, 0));
        if (i) /* the next shard */
            assert_fails(BAGS_ERROR_RANGE, append(writer, bags_stored(0), NULL, 0));
        bags_writer_clear(writer);
        assert_ok(bags_writer_close(writer, &said));
        bags_reader *reader;
        bags_row row = {0};
        assert_opens(reader, bags_reader_open(path, NULL, &said));
        assert_int_equal(bags_reader_length(reader), 6);
        assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
        assert_text(bags_row_bytes(&row, 1, 0), i ? "odd" : "even");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void only_writers_accept_an_earlier_blob(void **state) {
    bags_buffer scratch = {0};
    bags_view blob;
    bags_value value = bags_stored(3);
    static const char *const types[] = {"bytes", "utf8", "int", "u64", "array", "new"};
    (void)state;
    assert_int_equal(value.kind, BAGS_KIND_STORED);
    assert_int_equal(value.uint, 3);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_fails(BAGS_ERROR_VALUE,
            bags_encode(NULL, types[i], &value, &scratch, &blob, &said));
        assert_says("kind mismatch (earlier blob, expected a value)");
    }
    bags_buffer_free(&scratch);
}

/* ---- by hand ---- */

/* Datapoint i refers to text `text[i]`, and to items clip[i][0] .. of that count. */
typedef struct shape {
    uint64_t text[4], clip[4][2];
    uint64_t complete; /* datapoints that recovery keeps */
} shape;

/* Three texts, of which one is empty, and four items. */
static void make(hand_set *set, const shape *s) {
    static const char *const items[] = {"a", "", "ccc", "dd"};
    memset(set, 0, sizeof *set);
    set_field(set, "clip", "bytes[]");
    set_field(set, "text", "utf8");
    for (size_t i = 0; i < 4; i++)
        hand_add(&set->bags[0], items[i], strlen(items[i]));
    hand_add(&set->bags[1], "zero", 4);
    hand_add(&set->bags[1], "one", 3);
    hand_add(&set->bags[1], "two", 3);
    for (size_t i = 0; i < 4; i++) {
        bytes row = {NULL, 0, 0};
        put_array(&row, 2);
        put_array(&row, s->clip[i][1] ? 2 : 0);
        if (s->clip[i][1]) {
            put_uint(&row, s->clip[i][0]);
            put_uint(&row, s->clip[i][1]);
        }
        put_uint(&row, s->text[i]);
        hand_add(&set->refs, row.data, row.size);
        bytes_free(&row);
    }
}

static void save_unfinished(hand_set *set, const char *path) {
    static const char spec[] = "{\"clip\": \"bytes[]\", \"text\": \"utf8\"}";
    char name[300];
    make_dir(path);
    hand_save(&set->bags[0], SPLIT, path, "clip");
    hand_save(&set->bags[1], SPLIT, path, "text");
    hand_save(&set->refs, SPLIT, path, "refs");
    snprintf(name, sizeof name, "%s/spec.json.partial", path);
    save(name, spec, sizeof spec - 1);
}

/* Journals in which datapoints share blobs, in every order that a writer can produce, and
 * others: recovery keeps what is complete, and verify accepts the result. */
static void recovery_accepts_references_to_earlier_blobs_only(void **state) {
    static const shape shapes[] = {
        /* as written by one that shares */
        {{0, 0, 1, 1}, {{0, 2}, {0, 2}, {1, 3}, {3, 1}}, 4},
        {{0, 1, 0, 2}, {{0, 0}, {0, 4}, {1, 2}, {0, 0}}, 4},
        /* its own first blob is not the next one */
        {{1, 0, 0, 0}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 0},
        {{0, 2, 0, 0}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 1},
        {{0, 0, 0, 0}, {{0, 1}, {2, 1}, {2, 1}, {3, 1}}, 1},
        {{0, 0, 0, 0}, {{0, 1}, {0, 1}, {2, 2}, {0, 1}}, 2},
        /* more than the journal has */
        {{0, 1, 2, 3}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 3},
        {{0, 1, 2, 2}, {{0, 1}, {1, 1}, {2, 1}, {0, 5}}, 3},
        {{0, 1, 2, 2}, {{0, 1}, {1, 1}, {2, 1}, {3, UINT64_MAX}}, 3},
        {{0, 1, 2, 2}, {{0, 1}, {1, 1}, {2, 1}, {1, UINT64_MAX}}, 3},
        {{0, 1, UINT64_MAX, 2}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 2},
        {{0, 1, 2, 2}, {{0, 1}, {1, 1}, {UINT64_MAX, 3}, {3, 1}}, 2},
        {{0, 1, 2, 2}, {{0, 1}, {1, 1}, {UINT64_MAX, UINT64_MAX}, {3, 1}}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const char *path = at("%d", (int)i);
        bags_recover_report report;
        bags_reader_options reading;
        bags_reader *reader;
        hand_set set;
        memset(&reading, 0, sizeof reading);
        reading.unfinished = BAGS_UNFINISHED_READ;
        make(&set, &shapes[i]);
        save_unfinished(&set, path);
        set_free(&set);
        if (!shapes[i].complete) { /* no crash leaves that */
            assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(path, &reading, &said));
            assert_says("refs.bag and a journal disagree");
            assert_fails(BAGS_ERROR_CORRUPT, recover_path(path, NULL, &report, &said));
            continue;
        }
        assert_opens(reader, bags_reader_open(path, &reading, &said));
        assert_int_equal(bags_reader_length(reader), shapes[i].complete);
        bags_reader_close(reader);
        assert_ok(recover_path(path, NULL, &report, &said));
        assert_int_equal(report.length, shapes[i].complete);
        assert_ok(verify_path(path, NULL, &said));
    }
}

/* Finished datasets of both layouts, whose refs go back and forth. */
static void both_layouts_may_share_blobs(void **state) {
    static const shape s = {{2, 0, 2, 1}, {{2, 2}, {0, 3}, {2, 2}, {0, 0}}, 4};
    static const char *const texts[] = {"two", "zero", "two", "one"};
    static const char *const clips[] = {"ccc dd ", "a X ccc ", "ccc dd ", ""};
    (void)state;
    for (int v = 0; v < 2; v++)
        for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
            hand_set set;
            bags_reader_options options;
            bags_reader *reader;
            bags_row row = {0};
            make(&set, &s);
            if (v == 1) { /* has no empty blobs */
                hand_free(&set.bags[0]);
                memset(&set.bags[0], 0, sizeof set.bags[0]);
                hand_add(&set.bags[0], "a", 1);
                hand_add(&set.bags[0], "X", 1);
                hand_add(&set.bags[0], "ccc", 3);
                hand_add(&set.bags[0], "dd", 2);
            }
            set_save(&set, v ? V2 : V1, at("%d%d", v, no_mmap));
            memset(&options, 0, sizeof options);
            options.no_mmap = no_mmap;
            assert_ok(verify_path(at("%d%d", v, no_mmap), NULL, &said));
            assert_opens(
                reader, bags_reader_open(at("%d%d", v, no_mmap), &options, &said));
            for (uint64_t i = 0; i < 4; i++) {
                char text[40] = "";
                assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
                for (size_t k = 0; k < bags_row_length(&row, 0); k++) {
                    bags_view item = bags_row_bytes(&row, 0, k);
                    size_t used = strlen(text);
                    snprintf(text + used, sizeof text - used, "%.*s ",
                        item.size ? (int)item.size : 1,
                        item.size ? (const char *)item.data : "X");
                }
                assert_string_equal(text, clips[i]);
                assert_text(bags_row_bytes(&row, 1, 0), texts[i]);
            }
            bags_row_free(&row);
            bags_reader_close(reader);
            set_free(&set);
        }
}

/* Not a byte per value: nine of ten datapoints have no blob of their own. */
static void a_shared_image_is_stored_once(void **state) {
    static unsigned char image[100000];
    static const bags_field pets[] = {{"image", "bytes"}, {"question", "utf8"}};
    bags_writer_options options = writing(0);
    bags_writer *writer;
    (void)state;
    assert_opens(writer, bags_writer_open(at("x"), pets, 2, &options, &said));
    for (int i = 0; i < 90; i++) {
        static uint64_t photo;
        if (i % 9 == 0)
            photo = bags_writer_next(writer, "image");
        bags_value values[2] = {
            i % 9 ? bags_stored(photo) : bags_bytes(image, sizeof image),
            bags_utf8("What is it?")};
        bags_entry entries[2] = {{"image", NULL, 1}, {"question", NULL, 1}};
        entries[0].values = &values[0];
        entries[1].values = &values[1];
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_true(bags_writer_size(writer) < 11 * sizeof image);
    assert_ok(bags_writer_close(writer, &said));
    assert_int_equal(file_size(at("x/image.bag")), 10 * sizeof image + 8 * 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(shared_blobs_are_read_as_a_model_states),
        TEST(writers_that_share_blobs_may_crash_anywhere),
        TEST(what_cannot_be_shared_is_refused_and_the_writer_continues),
        TEST(a_number_of_another_shard_is_returned_by_close),
        TEST(a_shard_with_shared_blobs_keeps_no_journals),
        TEST(a_resumed_writer_can_refer_to_what_was_stored_before),
        TEST(only_writers_accept_an_earlier_blob),
        TEST(recovery_accepts_references_to_earlier_blobs_only),
        TEST(both_layouts_may_share_blobs),
        TEST(a_shared_image_is_stored_once),
    };
    return cmocka_run_group_tests_name("again", tests, NULL, NULL);
}
