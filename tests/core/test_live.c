/*
 * Reading unfinished data while it is written. Writer and reader alternate at
 * every call of a file hook: after each call of a writer that changes a file, a reader
 * reads everything; before each call of a reader a writer does something. A reader must
 * find the first datapoints, complete, including all that were flushed before.
 */
// flavours: test: release; check: asan
#include "check.h"
#include "durability.h"

#include <errno.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#endif

/* ---- places and readers ---- */

/* Where a test runs: on a disk in memory, or on the real one, where maps are
 * shared with the writer. */
typedef struct place {
    memory_disk drive;
    const bags_io *io;
    crash_device device; /* of the writers; the test sees each call */
    work job;
} place;

static void place_start(place *p, bool real, uint64_t shard_length) {
    memset(p, 0, sizeof *p);
    memory_disk_start(&p->drive);
    p->io = real ? bags_io_local() : &p->drive.io;
    crash_device_start(&p->device, p->io);
    p->job =
        work_on(real ? strdup(at("set")) : strdup("set"), shard_length, &p->device.io);
    p->job.options.no_sync = true;
}

static void place_end(place *p, bool real) {
    if (real && exists(p->job.path))
        remove_tree(p->job.path);
    free((void *)(uintptr_t)p->job.path);
    memory_disk_free(&p->drive);
}

enum { MAPPED, NO_MMAP, FEW_FILES, WAYS };

static bags_reader_options unfinished_options(const bags_io *io, int way) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_READ;
    options.env.io = io;
    options.no_mmap = way != MAPPED;
    options.max_files = way == FEW_FILES ? 1 : 0;
    return options;
}

/* ---- a reader at every call of a writer ---- */

#define KEPT 5

typedef struct gaze {
    place *where;
    bags_reader_options options;
    uint64_t seen; /* datapoints seen; they never become fewer */
    uint64_t looks;
    bool changed;            /* since the last look */
    bool aborting;           /* then they may */
    bags_reader *kept[KEPT]; /* readers that were opened earlier */
    bool busy;
} gaze;

static void check_kept(gaze *g) {
    for (int i = 0; i < KEPT; i++) {
        if (!g->kept[i])
            continue;
        finding f = work_check(&g->where->job, g->kept[i]);
        if (f.right != f.length || !f.verified)
            fail_msg("call %d: an older reader has %d of %d right: %s", (int)g->looks,
                (int)f.right, (int)f.length, f.error.message);
    }
}

static void drop_kept(gaze *g) {
    for (int i = 0; i < KEPT; i++) {
        bags_reader_close(g->kept[i]);
        g->kept[i] = NULL;
    }
}

static void look(void *user) {
    gaze *g = (gaze *)user;
    const work *job = &g->where->job;
    bags_error err;
    if (g->busy)
        return;
    if (++g->looks % support_stride())
        return;
    g->busy = true;
    if (g->aborting)
        drop_kept(g);
    bags_reader *reader = work_read(job, &g->options, &err);
    if (!reader &&
        (err.code == BAGS_ERROR_UNFINISHED || err.code == BAGS_ERROR_MISSING) &&
        !g->seen && !job->flushed) {
        g->busy = false;
        return;
    }
    if (!reader)
        fail_msg("call %d: %s", (int)g->looks, err.message);
    finding f = work_check(job, reader);
    if (f.right != f.length || !f.verified || f.length < g->seen ||
        f.length < job->flushed || f.length > job->appended)
        fail_msg("call %d: %d of %d right, %d seen before, %d flushed, %d "
                 "appended: %s",
            (int)g->looks, (int)f.right, (int)f.length, (int)g->seen, (int)job->flushed,
            (int)job->appended, f.verified ? "" : f.error.message);
    g->seen = g->aborting ? 0 : f.length;
    check_kept(g);
    bags_reader **keep = &g->kept[g->looks / 7 % KEPT];
    if (g->looks % 7 == 3 && !g->aborting) {
        bags_reader_close(*keep);
        *keep = reader;
    } else {
        bags_reader_close(reader);
    }
    g->busy = false;
}

/* Calls after which a reader could see the same as before. */
#define HOOKS_THAT_READ                                                                \
    (1u << HOOK_SIZE | 1u << HOOK_READ | 1u << HOOK_MAP | 1u << HOOK_UNMAP |           \
        1u << HOOK_KIND | 1u << HOOK_LIST | 1u << HOOK_IDENTIFY | 1u << HOOK_SYNC |    \
        1u << HOOK_SYNC_DIR | 1u << HOOK_ADVISE | 1u << HOOK_WRITE_BACK)

static void look_if_changed(void *user) {
    gaze *g = (gaze *)user;
    if (g->changed && !g->busy) {
        g->changed = false;
        look(user);
    }
    g->changed = g->changed || !(HOOKS_THAT_READ >> g->where->device.files.now & 1);
}

static void gaze_start(gaze *g, place *p, int way) {
    memset(g, 0, sizeof *g);
    g->where = p;
    g->options = unfinished_options(p->io, way);
    p->device.files.before = look_if_changed;
    p->device.files.user = g;
}

static void gaze_end(gaze *g) {
    look(g);
    drop_kept(g);
    g->where->device.files.before = NULL;
}

static void write_some(work *job, bags_writer *writer, uint64_t stop) {
    assert_ok(work_append_to(job, writer, job->appended + 2, &said));
    assert_ok(work_flush(job, writer, &said));
    assert_ok(work_append_to(job, writer, job->appended + 1, &said));
    assert_ok(work_sync(job, writer, &said));
    assert_ok(work_append_to(job, writer, stop, &said));
}

static bags_writer *begin(work *job, bool append) {
    bags_writer *writer;
    assert_opens(writer, work_open(job, append, &said));
    return writer;
}

static void write_and_close(place *p) {
    bags_writer *writer = begin(&p->job, false);
    write_some(&p->job, writer, 11);
    assert_ok(work_close(&p->job, writer, &said));
}

/* Its writer crashes two times; after the first it is resumed. */
static void write_and_crash(place *p) {
    bags_writer *writer = begin(&p->job, false);
    write_some(&p->job, writer, 8);
    crash_writer(&p->device, writer);
    writer = begin(&p->job, true);
    write_some(&p->job, writer, p->job.appended + 5);
    crash_writer(&p->device, writer);
    bags_env env = {NULL, &p->device.io};
    assert_ok(recover_path(p->job.path, &env, NULL, &said));
}

static void write_and_abort(place *p) {
    gaze *g = (gaze *)p->device.files.user;
    bags_writer *writer = begin(&p->job, false);
    write_some(&p->job, writer, 11);
    g->aborting = true;
    g->seen = 0;
    p->job.flushed = p->job.options.shard_length ? 8 : 0;
    bags_writer_abort(writer);
}

static void check_every_call(void (*write)(place *p), const char *what) {
    static const uint64_t lengths[] = {0, 4};
    uint64_t looks = 0;
    for (int real = 0; real < 2; real++)
        for (int sharded = 0; sharded < 2; sharded++)
            for (int way = 0; way < WAYS; way++)
                for (int kind = 0; kind < 3; kind++) {
                    place p;
                    gaze g;
                    bool chunks = kind == 1, with_checksums = kind == 2;
                    if (chunks && (real || way))
                        continue; /* small writes: many calls */
                    place_start(&p, real, lengths[sharded]);
                    p.device.files.chunk = chunks ? 1003 : 0;
                    p.job.options.checksum = with_checksums;
                    gaze_start(&g, &p, way);
                    g.options.verify_checksums = with_checksums;
                    write(&p);
                    gaze_end(&g);
                    looks += g.looks;
                    place_end(&p, real);
                }
    print_message("%s: %d calls\n", what, (int)looks);
}

static void flushed_data_is_readable_after_every_call_of_a_writer(void **state) {
    (void)state;
    check_every_call(write_and_close, "a writer");
}

static void flushed_data_is_readable_after_every_call_of_a_recovery(void **state) {
    (void)state;
    check_every_call(write_and_crash, "writers that die");
}

static void only_complete_datapoints_are_read_during_an_abort(void **state) {
    (void)state;
    check_every_call(write_and_abort, "a writer that aborts");
}

/* Writes of three bytes, so that every entry of a journal is torn at times. */
static void a_torn_entry_of_a_journal_is_not_a_datapoint(void **state) {
    place p;
    gaze g;
    (void)state;
    place_start(&p, false, 0);
    p.device.files.chunk = 3;
    gaze_start(&g, &p, MAPPED);
    bags_writer *writer = begin(&p.job, false);
    assert_ok(work_append_to(&p.job, writer, 3, &said));
    assert_ok(work_flush(&p.job, writer, &said));
    assert_ok(work_close(&p.job, writer, &said));
    gaze_end(&g);
    place_end(&p, false);
}

/* ---- a writer between a reader's calls ---- */

enum act { APPEND, ROLL, CLOSE, ABORT, RECOVER, GO_ON, AGAIN, ACTS };

/* A reader whose n-th call waits until a writer has done something. */
typedef struct turn {
    place *where;
    bags_writer *writer;
    enum act act;
    uint64_t calls, n;
} turn;

static void crash(turn *t) {
    crash_writer(&t->where->device, t->writer);
    t->writer = NULL;
}

static void act_now(turn *t) {
    work *job = &t->where->job;
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.env.io = t->where->io;
    options.no_sync = true;
    switch (t->act) {
    case ROLL:
        assert_ok(work_append_to(job, t->writer, job->appended + 6, &said));
        /* fall through */
    case APPEND:
        assert_ok(work_append(job, t->writer, &said));
        assert_ok(work_flush(job, t->writer, &said));
        break;
    case CLOSE:
        assert_ok(work_close(job, t->writer, &said));
        t->writer = NULL;
        break;
    case RECOVER:
        crash(t);
        assert_ok(bags_recover(job->path, &options, NULL, &said));
        break;
    case GO_ON:
        crash(t);
        t->writer = begin(job, true);
        assert_ok(work_append_to(job, t->writer, job->appended + 6, &said));
        assert_ok(work_flush(job, t->writer, &said));
        break;
    case AGAIN:
    case ABORT:
        bags_writer_abort(t->writer);
        t->writer = t->act == AGAIN ? begin(job, true) : NULL;
        if (t->act == AGAIN) {
            assert_ok(work_append_to(job, t->writer, 9, &said));
            assert_ok(work_flush(job, t->writer, &said));
        }
        break;
    default:
        fail();
    }
}

static void take_turn(void *user) {
    turn *t = (turn *)user;
    if (++t->calls == t->n)
        act_now(t);
}

/* False if the reader made fewer calls. */
static bool take_turn_at(enum act act, int way, uint64_t shard_length, uint64_t n) {
    place p;
    watch eyes;
    turn t = {&p, NULL, act, 0, n};
    place_start(&p, false, shard_length);
    t.writer = begin(&p.job, false);
    assert_ok(work_append_to(&p.job, t.writer, 7, &said));
    assert_ok(work_flush(&p.job, t.writer, &said));
    assert_ok(work_append_to(&p.job, t.writer, 8, &said));
    uint64_t flushed = p.job.flushed;
    watch_start(&eyes, p.io);
    eyes.before = take_turn;
    eyes.user = &t;
    bags_reader_options options = unfinished_options(&eyes.io, way);
    finding f;
    memset(&f, 0, sizeof f);
    bags_reader *reader = work_read(&p.job, &options, &f.error);
    if (reader)
        f = work_check(&p.job, reader);
    bool taken_back = act == ABORT || act == AGAIN;
    if (taken_back && !f.opened)
        assert_true(f.error.code == BAGS_ERROR_UNFINISHED ||
                    f.error.code == BAGS_ERROR_MISSING);
    else if (!f.opened || (!taken_back && (f.length < flushed || !f.verified ||
                                              f.right != f.length)))
        fail_msg("act %d, way %d, shards of %d, call %d: %d of %d right, %d "
                 "flushed: %s",
            (int)act, way, (int)shard_length, (int)n, (int)f.right, (int)f.length,
            (int)flushed, f.error.message);
    else if (f.verified && f.right != f.length)
        fail_msg("datapoints that were taken back are read wrong");
    bags_reader_close(reader);
    assert_int_equal(eyes.files + eyes.maps, 0);
    bags_writer_close(t.writer, NULL);
    place_end(&p, false);
    return t.calls >= n;
}

static void a_writer_may_run_between_any_two_calls_of_a_reader(void **state) {
    static const uint64_t lengths[] = {0, 5};
    uint64_t turns = 0;
    (void)state;
    for (int act = 0; act < ACTS; act++)
        for (int way = 0; way < WAYS; way++)
            for (int i = 0; i < 2; i++)
                for (uint64_t n = 1; take_turn_at((enum act)act, way, lengths[i], n);
                     n += support_stride())
                    turns++;
    print_message("%d turns of a writer\n", (int)turns);
}

/* A reader that lists a directory without a record; the writer starts a shard in it
 * before the reader's n-th call, and finishes it before the m-th. */
typedef struct life {
    turn first;
    uint64_t finish;
} life;

static void start_or_finish(void *user) {
    life *l = (life *)user;
    work *job = &l->first.where->job;
    const bags_io *io = l->first.where->io;
    if (++l->first.calls == l->first.n) {
        assert_ok(io->remove_dir(io->user, "set/000001"));
        assert_ok(work_append(job, l->first.writer, &said));
        assert_ok(work_flush(job, l->first.writer, &said));
    }
    if (l->first.calls == l->finish) {
        assert_ok(work_close(job, l->first.writer, &said));
        l->first.writer = NULL;
    }
}

/* False if the reader made fewer calls. */
static bool start_and_finish_at(uint64_t start, uint64_t finish) {
    place p;
    watch eyes;
    life l = {{&p, NULL, APPEND, 0, start}, finish};
    place_start(&p, false, 5);
    l.first.writer = begin(&p.job, false);
    assert_ok(work_append_to(&p.job, l.first.writer, 5, &said));
    assert_ok(p.io->make_dir(p.io->user, "set/000001"));
    watch_start(&eyes, p.io);
    eyes.before = start_or_finish;
    eyes.user = &l;
    bags_reader_options options = unfinished_options(&eyes.io, NO_MMAP);
    bags_error err;
    bags_reader *reader = work_read(&p.job, &options, &err);
    uint64_t calls = l.first.calls;
    if (!reader)
        fail_msg("started at call %d, finished at call %d: %s", (int)start, (int)finish,
            err.message);
    finding f = work_check(&p.job, reader);
    assert_true(f.verified && f.right == f.length && f.length >= 5);
    bags_reader_close(reader);
    bags_writer_close(l.first.writer, NULL);
    place_end(&p, false);
    return calls >= finish;
}

static void a_shard_may_be_started_and_finished_while_it_is_opened(void **state) {
    uint64_t lives = 0;
    (void)state;
    for (uint64_t start = 1; start_and_finish_at(start, start); start++)
        for (uint64_t finish = start + 1; start_and_finish_at(start, finish); finish++)
            lives++;
    print_message("%d lives of a shard\n", (int)lives);
    assert_true(lives > 800);
}

/* ---- what crashed writers leave ---- */

static const char *const left_files[] = {"spec.json.partial", "clip.bag", "clip.idx",
    "id.bag", "id.idx", "text.bag", "text.idx", "refs.bag", "refs.idx"};
#define LEFT_FILES 9

/* A shard of a crashed writer, with one file changed: truncated, or with
 * trailing zeros. */
static void damage(
    const memory_disk *from, memory_disk *to, size_t which, size_t keep, bool zeros) {
    memory_disk_start(to);
    for (size_t i = 0; i < LEFT_FILES; i++) {
        char path[64];
        snprintf(path, sizeof path, "set/%s", left_files[i]);
        bags_view file = memory_disk_find(from, path);
        unsigned char *copy = (unsigned char *)calloc(1, file.size + 1);
        if (file.size)
            memcpy(copy, file.data, i == which ? keep : file.size);
        memory_disk_save(to, path, copy, i == which && !zeros ? keep : file.size);
        free(copy);
    }
}

static void note_length(void *user, const bags_recovered *shard) {
    if (shard->action == BAGS_RECOVERY_FAILED)
        *(uint64_t *)user = UINT64_MAX;
    else
        *(uint64_t *)user = shard->length;
}

static void check_damage(
    memory_disk *drive, const work *job, const char *name, size_t keep) {
    bags_recover_options dry;
    uint64_t kept = 0;
    memset(&dry, 0, sizeof dry);
    dry.dry_run = true;
    dry.each = note_length;
    dry.user = &kept;
    dry.env.io = &drive->io;
    bags_recover(job->path, &dry, NULL, NULL);
    for (int way = 0; way < 2; way++) {
        bags_error err;
        bags_reader_options options = unfinished_options(&drive->io, way);
        bags_reader *reader = work_read(job, &options, &err);
        bool recorded = strcmp(name, "spec.json.partial") != 0;
        if (!reader &&
            (recorded ? kept != UINT64_MAX : err.code != BAGS_ERROR_UNFINISHED))
            fail_msg("%s, %d bytes: %s", name, (int)keep, err.message);
        if (reader && bags_reader_length(reader) != kept)
            fail_msg("%s, %d bytes: %d datapoints; recovery keeps %d", name, (int)keep,
                (int)bags_reader_length(reader), (int)kept);
        bags_row row = {0};
        for (uint64_t i = 0; reader && i < kept; i++)
            if (bags_reader_get(reader, i, NULL, 0, &row, &err))
                fail_msg("%s, %d bytes: %s", name, (int)keep, err.message);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void a_reader_shows_what_recovery_would_keep(void **state) {
    place p;
    uint64_t cases = 0;
    (void)state;
    place_start(&p, false, 0);
    bags_writer *writer = begin(&p.job, false);
    assert_ok(work_append_to(&p.job, writer, 7, &said));
    assert_ok(work_flush(&p.job, writer, &said));
    assert_ok(work_append_to(&p.job, writer, 9, &said));
    crash_writer(&p.device, writer);
    for (size_t which = 0; which < LEFT_FILES; which++) {
        char path[64];
        snprintf(path, sizeof path, "set/%s", left_files[which]);
        size_t size = memory_disk_find(&p.drive, path).size;
        size_t step = size > 2000 ? 13 : 1;
        for (size_t keep = 0; keep <= size; keep += step)
            for (int zeros = 0; zeros < 2; zeros++) {
                memory_disk changed;
                damage(&p.drive, &changed, which, keep, zeros);
                check_damage(&changed, &p.job, left_files[which], keep);
                memory_disk_free(&changed);
                cases++;
            }
    }
    print_message("%d damaged shards\n", (int)cases);
    place_end(&p, false);
}

/* A reader with verify_checksums returns what was written, a part of it, or an
 * error. True if it did not return everything. */
static bool notices_change(
    memory_disk *drive, const work *job, const bags_reader *right) {
    bags_error err;
    bags_row row = {0}, expected = {0};
    bags_reader_options options = unfinished_options(&drive->io, MAPPED);
    options.verify_checksums = true;
    bags_reader *reader = work_read(job, &options, &err);
    uint64_t length = reader ? bags_reader_length(reader) : 0;
    bool noticed = length < bags_reader_length(right);
    assert_true(length <= bags_reader_length(right));
    for (uint64_t i = 0; i < length; i++) {
        assert_ok(bags_reader_get(right, i, NULL, 0, &expected, &said));
        if (bags_reader_get(reader, i, NULL, 0, &row, &err)) {
            assert_non_null(strstr(err.message, "CRC-32C"));
            noticed = true;
            continue;
        }
        for (size_t field = 0; field < POINT_FIELDS; field++) {
            size_t items = bags_row_length(&expected, field);
            assert_int_equal(bags_row_length(&row, field), items);
            for (size_t j = 0; j < items; j++) {
                bags_view want = bags_row_bytes(&expected, field, j);
                assert_bytes(bags_row_bytes(&row, field, j), want.data, want.size);
            }
        }
    }
    bags_row_free(&row);
    bags_row_free(&expected);
    bags_reader_close(reader);
    return noticed;
}

static void unfinished_data_is_compared_with_its_checksums(void **state) {
    static const char *const names[] = {"clip", "id", "text", "refs"};
    static const char *const endings[] = {"bag", "idx", "crc"};
    place p;
    bags_reader *right;
    uint64_t noticed = 0, changes = 0;
    (void)state;
    place_start(&p, false, 0);
    p.job.options.checksum = true;
    bags_writer *writer = begin(&p.job, false);
    assert_ok(work_append_to(&p.job, writer, 7, &said));
    assert_ok(work_flush(&p.job, writer, &said));
    bags_reader_options options = unfinished_options(&p.drive.io, MAPPED);
    options.verify_checksums = true;
    assert_opens(right, bags_reader_open("set", &options, &said));
    assert_int_equal(bags_reader_length(right), 7);
    for (int f = 0; f < 12; f++) {
        char path[64];
        snprintf(path, sizeof path, "set/%s.%s", names[f / 3], endings[f % 3]);
        bags_view file = memory_disk_find(&p.drive, path);
        unsigned char *data = (unsigned char *)(uintptr_t)file.data;
        size_t step = file.size > 2000 ? 37 : 1;
        for (size_t i = 0; i < file.size; i += step, changes++) {
            memory_disk other;
            data[i] = (unsigned char)(data[i] ^ 1u << i % 8);
            /* A copy, since the reader reads the intact one. */
            memory_disk_start(&other);
            for (int g = 0; g < 13; g++) {
                char each[64] = "set/spec.json.partial";
                if (g < 12)
                    snprintf(
                        each, sizeof each, "set/%s.%s", names[g / 3], endings[g % 3]);
                bags_view copy = memory_disk_find(&p.drive, each);
                memory_disk_save(&other, each, copy.data, copy.size);
            }
            data[i] = (unsigned char)(data[i] ^ 1u << i % 8);
            noticed += notices_change(&other, &p.job, right);
            memory_disk_free(&other);
        }
    }
    /* Not in a cancelled datapoint, which follows the data in use. */
    print_message("%d changes, %d of them noticed\n", (int)changes, (int)noticed);
    assert_true(noticed > changes * 2 / 3);
    bags_reader_close(right);
    assert_ok(work_close(&p.job, writer, &said));
    place_end(&p, false);
}

/* Checksums that are truncated, as by a power failure, or missing. */
static void verify_checksums_refuses_unfinished_data_without_them(void **state) {
    place p;
    bags_reader *reader;
    (void)state;
    for (int with_checksums = 0; with_checksums < 2; with_checksums++) {
        place_start(&p, true, 0);
        p.job.options.checksum = with_checksums;
        bags_writer *writer = begin(&p.job, false);
        assert_ok(work_append_to(&p.job, writer, 7, &said));
        assert_ok(work_flush(&p.job, writer, &said));
        bags_reader_options options = unfinished_options(NULL, NO_MMAP);
        options.verify_checksums = true;
        if (with_checksums) {
            char path[300];
            snprintf(path, sizeof path, "%s/text.crc", p.job.path);
            resize_file(path, 3 * 4 + 1);
            assert_opens(reader, bags_reader_open(p.job.path, &options, &said));
            assert_int_equal(bags_reader_length(reader), 3);
            bags_reader_close(reader);
        } else {
            assert_refused(
                BAGS_ERROR_MISSING, bags_reader_open(p.job.path, &options, &said));
            assert_says("no checksums*.crc");
        }
        crash_writer(&p.device, writer);
        place_end(&p, true);
    }
}

static void a_missing_file_of_an_unfinished_shard_is_an_error(void **state) {
    (void)state;
    for (size_t which = 1; which < 7; which++) {
        place p;
        char path[64];
        place_start(&p, false, 0);
        bags_writer *writer = begin(&p.job, false);
        assert_ok(work_append_to(&p.job, writer, 3, &said));
        assert_ok(work_flush(&p.job, writer, &said));
        snprintf(path, sizeof path, "set/%s", left_files[which]);
        p.io->remove(p.io->user, path);
        bags_reader_options options = unfinished_options(p.io, MAPPED);
        assert_refused(BAGS_ERROR_MISSING, work_read(&p.job, &options, &said));
        assert_says(left_files[which]);
        crash_writer(&p.device, writer);
        place_end(&p, false);
    }
}

/* ---- what a reader reports ---- */

static const bags_field one_field[] = {{"n", "int(8)"}};

static void put_number(bags_writer *writer, uint64_t number) {
    bags_value value = bags_uint(number);
    bags_entry entry = {"n", &value, 1};
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
}

static bags_writer *number_writer(uint64_t worker, uint64_t workers) {
    bags_writer *writer;
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.shard_length = 2;
    options.shard_start = worker;
    options.shard_stop = workers;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(at("x"), one_field, 1, &options, &said));
    return writer;
}

static void a_reader_reports_which_shards_are_unfinished(void **state) {
    bags_reader_options options = unfinished_options(&disk.io, MAPPED);
    bags_reader *reader;
    (void)state;
    bags_writer *writer = number_writer(0, 1);
    for (uint64_t i = 0; i < 3; i++)
        put_number(writer, i);
    assert_ok(bags_writer_flush(writer, &said));
    make_dir(at("x/000002"));
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 3);
    assert_true(shard_count(reader) == 2);
    assert_true(reader_info(reader).skipped == 1);
    assert_false(shard_at(reader, 0).unfinished);
    assert_true(shard_at(reader, 1).unfinished);
    assert_true(shard_at(reader, 1).start == 2);
    assert_true(shard_at(reader, 1).length == 1);
    assert_true(field_info(reader, 0).blobs == 3);
    assert_true(field_info(reader, 0).size == 24);
    /* The second shard's n: 8 and 8 bytes; refs: 2 and 8. */
    assert_true(
        reader_info(reader).size ==
        file_size(at("x/000000/n.bag")) + file_size(at("x/000000/refs.bag")) + 26);
    bags_reader_close(reader);
    assert_ok(bags_writer_close(writer, &said));
}

static void a_shard_that_was_just_started_is_empty_or_skipped(void **state) {
    static const char *const records[] = {
        "", "{", "{\"n\": \"int(8)\"", "{\"n\": \"int(8)\"}"};
    bags_reader_options options = unfinished_options(&disk.io, MAPPED);
    (void)state;
    make_dir(at("x"));
    assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("x"), &options, &said));
    make_dir(at("x/000000"));
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), &options, &said));
    assert_says("x*finished*recover");
    for (int i = 0; i < 4; i++) {
        bags_reader *reader = NULL;
        save_text(at("x/000000/spec.json.partial"), records[i]);
        if (i < 3) {
            assert_refused(
                BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), &options, &said));
            assert_refused(BAGS_ERROR_UNFINISHED,
                bags_reader_open(at("x/000000"), &options, &said));
            continue;
        }
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        assert_true(bags_reader_length(reader) == 0);
        assert_true(shard_count(reader) == 1);
        assert_true(reader_info(reader).skipped == 0);
        bags_reader_close(reader);
        assert_opens(reader, bags_reader_open(at("x/000000"), &options, &said));
        assert_false(reader_info(reader).sharded);
        assert_true(shard_at(reader, 0).unfinished);
        bags_reader_close(reader);
    }
    save_text(at("x/000000/spec.json.partial"), "{\"../n\": \"int(8)\"}");
    assert_refused(BAGS_ERROR_FIELD, bags_reader_open(at("x"), &options, &said));
}

static void a_shard_without_a_datapoint_stays_empty_while_it_grows(void **state) {
    bags_reader_options options = unfinished_options(&disk.io, MAPPED);
    bags_writer_options with;
    bags_field field = {"n", "int(8)"};
    bags_reader *reader;
    bags_row row = {0};
    bag_blobs all;
    (void)state;
    memset(&with, 0, sizeof with);
    with.shard_stop = 1;
    for (int flushed = 0; flushed < 2; flushed++) {
        bags_writer *writer =
            bags_writer_open(at("x%d", flushed), &field, 1, &with, &said);
        assert_non_null(writer);
        put_number(writer, 7);
        assert_opens(reader, bags_reader_open(at("x%d", flushed), &options, &said));
        assert_true(bags_reader_length(reader) == 0);
        assert_true(shard_count(reader) == 1);
        if (flushed)
            assert_ok(bags_writer_flush(writer, &said));
        for (int again = 0; again < 2; again++) {
            assert_ok(bags_reader_blobs(reader, 0, 0, true, &row, &all, &said));
            assert_true(all.length == 0 && all.size == 0);
            assert_true(reader_info(reader).checksums == 0);
            assert_ok(bags_writer_flush(writer, &said));
        }
        bags_reader_close(reader);
        bags_writer_abort(writer);
    }
    bags_row_free(&row);
}

static void a_gap_is_reported_while_workers_write(void **state) {
    bags_reader_options options = unfinished_options(&disk.io, MAPPED);
    bags_reader *reader;
    (void)state;
    bags_writer *writer = number_writer(0, 2);
    for (uint64_t i = 0; i < 3; i++)
        put_number(writer, i);
    assert_ok(bags_writer_flush(writer, &said));
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("x"), &options, &said));
    assert_says("1");
    options.allow_gaps = true;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 3);
    assert_true(shard_count(reader) == 2);
    assert_true(shard_at(reader, 0).number == 0);
    assert_true(shard_at(reader, 1).number == 2);
    bags_reader_close(reader);
    options.allow_gaps = false;
    options.shard_stop = 2;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 3);
    bags_reader_close(reader);
    /* The other worker's reader learns the fields from an unfinished shard. */
    remove_tree(at("x/000000"));
    options.shard_start = 1;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 0);
    bags_reader_close(reader);
    bags_writer_abort(writer);
}

static void without_the_option_an_unfinished_shard_is_refused(void **state) {
    bags_reader_options options;
    bags_reader *reader;
    (void)state;
    bags_writer *writer = number_writer(0, 1);
    for (uint64_t i = 0; i < 3; i++)
        put_number(writer, i);
    assert_ok(bags_writer_flush(writer, &said));
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_SKIP;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 2);
    assert_true(reader_info(reader).skipped == 1);
    bags_reader_close(reader);
    assert_refused(
        BAGS_ERROR_UNFINISHED, bags_reader_open(at("x/000001"), &options, &said));
    bags_writer_abort(writer);
}

/* Datasets of other writers, which have no record of an unfinished shard. */
static void the_shortest_field_limits_an_unfinished_split_dataset(void **state) {
    bags_reader_options options = unfinished_options(&disk.io, NO_MMAP);
    bags_reader *reader;
    bags_row row = {0};
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "utf8");
    set_field(&set, "b", "utf8");
    for (int i = 0; i < 3; i++) {
        set_begin(&set);
        set_text(&set, 0, "one");
        set_text(&set, 1, "two");
        set_end(&set);
    }
    hand_add(&set.bags[0], "more", 4);
    set_save(&set, SPLIT, at("x"));
    options.max_files = 1;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_true(bags_reader_length(reader) == 3);
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    /* It grows while it is read, and its files are opened again. */
    hand_add(&set.bags[1], "more", 4);
    hand_save(&set.bags[1], SPLIT, at("x"), "b");
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_text(bags_row_bytes(&row, 0, 0), "one");
        assert_text(bags_row_bytes(&row, 1, 0), "two");
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    set_free(&set);
}

/* ---- one Bag ---- */

typedef struct bag_gaze {
    const bags_io *io;
    const char *path;
    uint64_t flushed, appended, seen;
    bool live, made, no_mmap, with_checksums;
    uint64_t looks;
} bag_gaze;

/* Blobs of zeros, which look like tables, and letters; some are empty. */
static size_t blob_of(uint64_t number, unsigned char *data) {
    size_t size = (size_t)(number * 8 % 72);
    memset(data, number % 3 ? 0 : 'a' + (int)(number % 26), size);
    return size;
}

static void check_bag_call(void *user) {
    bag_gaze *g = (bag_gaze *)user;
    bag_reader_options options;
    bags_error err;
    bags_buffer scratch = {0};
    memset(&options, 0, sizeof options);
    options.env.io = g->io;
    options.no_mmap = g->no_mmap;
    options.unfinished = g->live ? BAGS_UNFINISHED_READ : BAGS_UNFINISHED_REFUSE;
    options.verify_checksums = g->with_checksums;
    bag_reader *reader = bag_reader_open(g->path, &options, &err);
    if (!reader) {
        /* The Bag is created just before its journal. */
        if (g->made && err.code != BAGS_ERROR_MISSING)
            fail_msg("call %d: %s", (int)g->looks, err.message);
        return;
    }
    g->looks++;
    uint64_t length = bag_reader_length(reader);
    if (length < g->flushed || length < g->seen || length > g->appended)
        fail_msg("call %d: %d blobs; %d flushed, %d seen, %d appended", (int)g->looks,
            (int)length, (int)g->flushed, (int)g->seen, (int)g->appended);
    g->seen = length;
    for (uint64_t i = 0; i < length; i++) {
        unsigned char data[80];
        bags_view blob;
        size_t size = blob_of(i, data);
        assert_int_equal(bag_reader_get(reader, i, &scratch, &blob, &err), 0);
        assert_true(blob.size == size);
        assert_true(!size || memcmp(blob.data, data, size) == 0);
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void write_bag(bag_gaze *g, watch *w, size_t chunk) {
    bag_writer_options options;
    bag_writer *writer;
    watch_start(w, g->io);
    w->before = check_bag_call;
    w->user = g;
    w->chunk = chunk;
    memset(&options, 0, sizeof options);
    options.buffer_size = 4096;
    options.env.io = &w->io;
    options.checksum = g->with_checksums;
    assert_opens(writer, bag_writer_open(g->path, &options, &said));
    g->made = true;
    for (uint64_t i = 0; i < 400; i++) {
        unsigned char data[80];
        g->appended = i + 1;
        assert_ok(bag_writer_append(writer, data, blob_of(i, data), NULL, &said));
        if (i % 150 == 149) {
            assert_ok(bag_writer_flush(writer, &said));
            g->flushed = i + 1;
        }
    }
    assert_ok(bag_writer_close(writer, &said));
    g->flushed = 400;
    check_bag_call(g);
}

static void a_bag_is_read_while_it_is_written(void **state) {
    uint64_t looks = 0;
    (void)state;
    for (int i = 0; i < 32; i++) {
        bag_gaze g;
        watch w;
        memory_disk drive;
        memset(&g, 0, sizeof g);
        memory_disk_start(&drive);
        bool real = i & 4;
        g.io = real ? bags_io_local() : &drive.io;
        g.path = real ? at("%d.bag", i) : "x.bag";
        g.with_checksums = i & 16; /* which only a reader of unfinished data compares */
        g.live = i & 1 || g.with_checksums;
        g.no_mmap = i & 2;
        write_bag(&g, &w, i & 8 ? 111 : 0);
        looks += g.looks;
        memory_disk_free(&drive);
    }
    print_message("%d calls with a Bag open\n", (int)looks);
}

/* A writer does all its work between two calls of a reader. */
typedef struct bag_turn {
    bag_writer *writer;
    bags_io io;
    uint64_t calls, n;
    bool opens; /* the Bag did not exist before */
} bag_turn;

static void take_bag_turn(void *user) {
    bag_turn *t = (bag_turn *)user;
    unsigned char data[80];
    if (++t->calls != t->n)
        return;
    if (t->opens) {
        bag_writer_options options;
        memset(&options, 0, sizeof options);
        options.env.io = &t->io;
        options.no_sync = true;
        assert_opens(t->writer, bag_writer_open("x.bag", &options, &said));
    }
    for (uint64_t i = t->opens ? 0 : 20; i < 30; i++)
        assert_ok(bag_writer_append(t->writer, data, blob_of(i, data), NULL, &said));
    assert_ok(bag_writer_close(t->writer, &said));
    t->writer = NULL;
}

static bool take_bag_turn_at(uint64_t n, bool opens, bool no_mmap) {
    memory_disk drive;
    bag_turn t;
    watch eyes;
    bag_reader_options options;
    unsigned char data[80];
    bags_buffer scratch = {0};
    memory_disk_start(&drive);
    memset(&t, 0, sizeof t);
    t.n = n;
    t.opens = opens;
    t.io = drive.io;
    memset(&options, 0, sizeof options);
    watch_start(&eyes, &drive.io);
    eyes.before = take_bag_turn;
    eyes.user = &t;
    options.env.io = &eyes.io;
    options.no_mmap = no_mmap;
    if (!opens) {
        bag_writer_options with;
        memset(&with, 0, sizeof with);
        with.env.io = &drive.io;
        with.no_sync = true;
        assert_opens(t.writer, bag_writer_open("x.bag", &with, &said));
        for (uint64_t i = 0; i < 20; i++)
            assert_ok(bag_writer_append(t.writer, data, blob_of(i, data), NULL, &said));
        assert_ok(bag_writer_flush(t.writer, &said));
    }
    bags_error err;
    bag_reader *reader = bag_reader_open("x.bag", &options, &err);
    assert_true(reader || (opens && err.code == BAGS_ERROR_MISSING));
    uint64_t length = reader ? bag_reader_length(reader) : 0;
    assert_true(!reader || length == 30 || (!opens && length == 20));
    for (uint64_t i = 0; i < length; i++) {
        bags_view blob;
        assert_int_equal(bag_reader_get(reader, i, &scratch, &blob, &err), 0);
        assert_true(blob.size == blob_of(i, data));
        assert_true(!blob.size || memcmp(blob.data, data, blob.size) == 0);
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    bag_writer_abort(t.writer);
    memory_disk_free(&drive);
    return t.calls >= n;
}

static void a_bag_may_be_finished_between_two_calls_of_a_reader(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        uint64_t n = 1;
        while (take_bag_turn_at(n, i & 1, i & 2))
            n++;
        assert_true(n > (i & 1 ? 1 : 5));
    }
}

/* A power failure left the journal longer than the blobs. */
static void the_complete_blobs_of_a_damaged_bag_are_read(void **state) {
    bag_reader_options options;
    bag_reader *reader;
    bags_buffer scratch = {0};
    bags_view blob;
    bytes journal = {0};
    (void)state;
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    save(at("x.bag"), "onetwothr", 9);
    put_u64(&journal, 3);
    put_u64(&journal, 6);
    put_u64(&journal, 11);
    for (int way = 0; way < 4; way++) {
        if (way == 2)
            put_u64(&journal, 0);
        if (way == 3)
            put_u8(&journal, 6); /* a torn entry */
        save(at("x.idx"), journal.data, journal.size);
        options.no_mmap = way % 2;
        options.unfinished = BAGS_UNFINISHED_REFUSE;
        if (way < 2)
            assert_refused(
                BAGS_ERROR_CORRUPT, bag_reader_open(at("x.bag"), &options, &said));
        options.unfinished = BAGS_UNFINISHED_READ;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_true(bag_reader_length(reader) == 2);
        assert_ok(bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_text(blob, "two");
        bag_reader_close(reader);
    }
    bytes_free(&journal);
    bags_buffer_free(&scratch);
}

/* ---- syncs ---- */

static uint64_t syncs_of(const watch *w) {
    return w->counts[HOOK_SYNC] + w->counts[HOOK_SYNC_DIR];
}

static void a_bag_is_synced_with_its_journal_and_their_directory(void **state) {
    bag_writer_options options;
    bag_writer *writer;
    uint64_t before;
    (void)state;
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    assert_opens(writer, bag_writer_open(at("x.bag"), &options, &said));
    for (int i = 0; i < 9; i++) {
        before = syncs_of(&disk);
        assert_ok(bag_writer_append(writer, "four", 4, NULL, &said));
        assert_true(syncs_of(&disk) == before);
        assert_ok(bag_writer_sync(writer, &said));
        assert_true(syncs_of(&disk) - before == 3);
    }
    assert_true(file_size(at("x.bag")) == 36);
    assert_true(file_size(at("x.idx")) == 72);
    assert_ok(bag_writer_close(writer, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bag_writer_sync(NULL, &said));
}

/* Each sync fails once: it ends the writer, and no file is synced after it. */
static void a_sync_that_fails_is_final(void **state) {
    (void)state;
    for (uint64_t n = 1;; n++) {
        memory_disk drive;
        watch w;
        bags_writer_options options;
        bags_error err;
        memory_disk_start(&drive);
        watch_start(&w, &drive.io);
        w.only = 1u << HOOK_SYNC | 1u << HOOK_SYNC_DIR;
        w.fail_at = n;
        w.fail_with = EIO;
        memset(&options, 0, sizeof options);
        options.env.io = &w.io;
        bags_writer *writer = bags_writer_open("x", one_field, 1, &options, &err);
        bags_code code = writer ? BAGS_OK : err.code;
        for (uint64_t i = 0; i < 5 && !code; i++) {
            bags_value value = bags_uint(i);
            bags_entry entry = {"n", &value, 1};
            code = bags_writer_append(writer, &entry, 1, &err);
            if (!code && i % 2)
                code = bags_writer_sync(writer, &err);
        }
        uint64_t syncs = syncs_of(&w);
        if (writer && code) {
            assert_fails(BAGS_ERROR_IO, bags_writer_sync(writer, &said));
            assert_fails(BAGS_ERROR_IO, bags_writer_flush(writer, &said));
            assert_fails(BAGS_ERROR_IO, bags_writer_close(writer, &said));
            assert_true(said.system == EIO);
            assert_true(syncs_of(&w) == syncs);
        } else {
            bags_writer_close(writer, NULL);
        }
        memory_disk_free(&drive);
        if (!w.failed)
            break;
        assert_true(n < 100);
    }
}

static void a_bags_sync_that_fails_is_final(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        bag_writer_options options;
        bag_writer *writer;
        disk.only = 1u << HOOK_SYNC | 1u << HOOK_SYNC_DIR;
        disk.calls = 0;
        disk.fail_at = n;
        disk.fail_with = EIO;
        memset(&options, 0, sizeof options);
        options.env.io = &disk.io;
        assert_opens(writer, bag_writer_open(at("%d.bag", (int)n), &options, &said));
        assert_ok(bag_writer_append(writer, "four", 4, NULL, &said));
        assert_fails(BAGS_ERROR_IO, bag_writer_sync(writer, &said));
        uint64_t syncs = syncs_of(&disk);
        assert_fails(BAGS_ERROR_IO, bag_writer_append(writer, "four", 4, NULL, &said));
        assert_fails(BAGS_ERROR_IO, bag_writer_sync(writer, &said));
        assert_fails(BAGS_ERROR_IO, bag_writer_close(writer, &said));
        assert_true(syncs_of(&disk) == syncs);
    }
}

/* ---- another process ---- */

#ifdef _WIN32
static void another_process_writes_meanwhile(void **state) {
    (void)state;
    print_message("skipped: this system has no fork\n");
    skip();
}
#else
static void write_for_ever(work *job) {
    for (uint64_t round = 0;; round++) {
        bags_writer *writer = work_open(job, round > 0, NULL);
        bags_code code = writer ? BAGS_OK : BAGS_ERROR_IO;
        for (int i = 0; i < 40 && !code; i++) {
            code = work_append(job, writer, NULL);
            if (i % 3 == 0 && !code)
                code = work_flush(job, writer, NULL);
        }
        if (bags_writer_close(writer, NULL) || code)
            _exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* While another process writes, finishes shards and continues, what a reader
 * finds never becomes less, and is correct. */
static void watch_process(work *job, int way, double until) {
    uint64_t seen = 0, opens = 0;
    bags_reader_options options = unfinished_options(NULL, way);
    /* It may take long until the other process starts. */
    for (; now() < until || (!seen && now() < until + 600); opens++) {
        bags_error err;
        bags_reader *reader = work_read(job, &options, &err);
        if (!reader) {
            if (seen ||
                (err.code != BAGS_ERROR_UNFINISHED && err.code != BAGS_ERROR_MISSING))
                fail_msg("%s", err.message);
            continue;
        }
        uint64_t length = bags_reader_length(reader);
        if (length < seen)
            fail_msg("%d datapoints, and %d before", (int)length, (int)seen);
        seen = length;
        finding f = work_check(job, reader);
        if (f.right != f.length || !f.verified)
            fail_msg(
                "%d of %d are right: %s", (int)f.right, (int)f.length, f.error.message);
        bags_reader_close(reader);
    }
    print_message("%d readers saw up to %d datapoints\n", (int)opens, (int)seen);
    assert_true(seen > 0);
}

static void another_process_writes_meanwhile(void **state) {
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        char *path = strdup(at("set%d", way));
        work job = work_on(path, 7, NULL);
        int status = 0;
        job.options.no_sync = true;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            write_for_ever(&job);
        watch_process(&job, way, now() + 0.7);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        free(path);
    }
}
#endif

static void reading_unfinished_data_may_run_out_of_memory(void **state) {
    uint64_t n;
    place p;
    bags_writer *writer;
    (void)state;
    place_start(&p, false, 0);
    assert_opens(writer, work_open(&p.job, false, &said));
    assert_ok(work_append_to(&p.job, writer, 4, &said));
    assert_ok(work_flush(&p.job, writer, &said));
    for (n = 1;; n++) {
        tally blocks;
        tally_start(&blocks);
        blocks.fail_at = n;
        blocks.stays = true; /* with one failure the reader may try again */
        bags_reader_options options = unfinished_options(p.io, MAPPED);
        options.env.allocator = &blocks.allocator;
        bags_reader *reader = work_read(&p.job, &options, &said);
        if (blocks.failed)
            assert_true(!reader && said.code == BAGS_ERROR_MEMORY);
        else
            assert_int_equal(bags_reader_length(reader), 4);
        bags_reader_close(reader);
        assert_int_equal(blocks.live, 0);
        if (!blocks.failed)
            break;
    }
    assert_true(n > 20);
    assert_ok(work_close(&p.job, writer, &said));
    place_end(&p, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(flushed_data_is_readable_after_every_call_of_a_writer),
        TEST(flushed_data_is_readable_after_every_call_of_a_recovery),
        TEST(only_complete_datapoints_are_read_during_an_abort),
        TEST(a_torn_entry_of_a_journal_is_not_a_datapoint),
        TEST(a_writer_may_run_between_any_two_calls_of_a_reader),
        TEST(a_shard_may_be_started_and_finished_while_it_is_opened),
        TEST(a_reader_shows_what_recovery_would_keep),
        TEST(unfinished_data_is_compared_with_its_checksums),
        TEST(verify_checksums_refuses_unfinished_data_without_them),
        TEST(a_missing_file_of_an_unfinished_shard_is_an_error),
        TEST(a_reader_reports_which_shards_are_unfinished),
        TEST(a_shard_that_was_just_started_is_empty_or_skipped),
        TEST(a_shard_without_a_datapoint_stays_empty_while_it_grows),
        TEST(a_gap_is_reported_while_workers_write),
        TEST(without_the_option_an_unfinished_shard_is_refused),
        TEST(the_shortest_field_limits_an_unfinished_split_dataset),
        TEST(a_bag_is_read_while_it_is_written),
        TEST(a_bag_may_be_finished_between_two_calls_of_a_reader),
        TEST(the_complete_blobs_of_a_damaged_bag_are_read),
        TEST(a_bag_is_synced_with_its_journal_and_their_directory),
        TEST(a_sync_that_fails_is_final),
        TEST(a_bags_sync_that_fails_is_final),
        TEST(another_process_writes_meanwhile),
        TEST(reading_unfinished_data_may_run_out_of_memory),
    };
    return cmocka_run_group_tests_name("unfinished data", tests, NULL, NULL);
}
