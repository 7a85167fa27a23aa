/* bags_recover and the writer's option `resume`, applied to what crashed
 * writers leave and to damaged files, and what they report. */
// flavours: test: release; check: asan
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"
#include "durability.h"
#include "toy.h"

#include <errno.h>
#include <sys/stat.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif
#include <unistd.h>

/* ---- helpers ---- */

/* What bags_recover reported about each shard. */
typedef struct reported {
    bags_recover_report report;
    bags_recovered shards[40];
    char paths[40][256], reasons[40][BAGS_ERROR_SIZE];
    int count;
} reported;

static void note_shard(void *user, const bags_recovered *shard) {
    reported *t = (reported *)user;
    assert_true(t->count < 40);
    t->shards[t->count] = *shard;
    snprintf(t->paths[t->count], sizeof t->paths[0], "%s", shard->path);
    snprintf(t->reasons[t->count], sizeof t->reasons[0], "%s", shard->reason);
    t->count++;
}

static bags_recover_options recover_options(reported *t) {
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    memset(t, 0, sizeof *t);
    options.each = note_shard;
    options.user = t;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_code recover(const char *path, reported *t) {
    bags_recover_options options = recover_options(t);
    return bags_recover(path, &options, &t->report, &said);
}

static work local_work(const char *path, uint64_t shard_length) {
    work w = work_on(path, shard_length, &disk.io);
    w.options.env.allocator = &memory.allocator;
    return w;
}

/* A writer crashes: `flushed` datapoints were passed to the system, `lost` were
 * not. */
static void leave(work *w, uint64_t flushed, uint64_t lost) {
    crash_device device;
    bags_writer *writer;
    crash_device_start(&device, &disk.io);
    w->options.env.io = &device.io;
    assert_opens(writer, work_open(w, false, &said));
    assert_ok(work_append_to(w, writer, flushed, &said));
    assert_ok(work_flush(w, writer, &said));
    assert_ok(work_append_to(w, writer, flushed + lost, &said));
    crash_writer(&device, writer);
    w->options.env.io = &disk.io;
}

static void write_complete(work *w, uint64_t total) {
    bags_writer *writer;
    assert_opens(writer, work_open(w, false, &said));
    assert_ok(work_append_to(w, writer, total, &said));
    assert_ok(work_close(w, writer, &said));
}

static void check_points(const work *w, uint64_t length) {
    finding f = work_find(w, &disk.io, false);
    if (!f.opened || !f.verified || f.length != length || f.right != length)
        fail_msg("%s: %d datapoints, %d right, not %d: %s", w->path, (int)f.length,
            (int)f.right, (int)length, f.error.code ? f.error.message : "");
}

static uint64_t tree_size(const char *path) {
    static const char *const names[] = {"text", "clip", "id", "refs"};
    uint64_t size = 0;
    for (int i = 0; i < 4; i++) {
        char file[300];
        snprintf(file, sizeof file, "%s/%s.bag", path, names[i]);
        size += file_size(file);
        snprintf(file, sizeof file, "%s/%s.idx", path, names[i]);
        size += file_size(file);
    }
    return size;
}

#define LEFT_NAMES                                                                     \
    "clip.bag clip.idx id.bag id.idx refs.bag refs.idx "                               \
    "spec.json.partial text.bag text.idx"

/* ---- recovery ---- */

static void recovery_writes_the_bytes_that_the_writer_would_have_written(void **state) {
    static const uint64_t lengths[] = {0, 4, 40};
    (void)state;
    for (int i = 0; i < 3; i++) {
        reported t;
        work crashed = local_work(at("crashed%d", i), lengths[i]);
        work complete = local_work(at("complete%d", i), lengths[i]);
        leave(&crashed, 6, 0);
        write_complete(&complete, 6);
        assert_ok(recover(crashed.path, &t));
        assert_same_tree(crashed.path, complete.path);
        assert_int_equal(t.report.finished_now, 1);
        assert_int_equal(t.report.finished_before, lengths[i] == 4);
        assert_int_equal(t.report.length, lengths[i] == 4 ? 2 : 6);
        assert_int_equal(t.report.removed + t.report.locked + t.report.failed, 0);
        check_points(&crashed, 6);
        assert_ok(recover(crashed.path, &t));
        assert_int_equal(t.report.finished_before, lengths[i] == 4 ? 2 : 1);
        assert_int_equal(t.report.finished_now + t.report.length, 0);
        assert_same_tree(crashed.path, complete.path);
    }
}

static void shards_limited_by_size_are_recovered_too(void **state) {
    reported t;
    (void)state;
    work crashed = local_work(at("crashed"), 0),
         complete = local_work(at("complete"), 0);
    crashed.options.shard_size = complete.options.shard_size = 6000;
    leave(&crashed, 9, 0);
    write_complete(&complete, 9);
    assert_ok(recover(crashed.path, &t));
    assert_same_tree(crashed.path, complete.path);
}

static void recovery_keeps_journals_on_request(void **state) {
    reported t;
    (void)state;
    work crashed = local_work(at("crashed"), 4),
         complete = local_work(at("complete"), 4);
    crashed.options.keep_idx = complete.options.keep_idx = true;
    leave(&crashed, 6, 0);
    write_complete(&complete, 6);
    bags_recover_options options = recover_options(&t);
    options.keep_idx = true;
    assert_ok(bags_recover(crashed.path, &options, NULL, &said));
    assert_same_tree(crashed.path, complete.path);
}

static void a_dry_run_reports_everything_and_changes_nothing(void **state) {
    reported dry, done;
    (void)state;
    work w = local_work(at("set"), 4);
    leave(&w, 6, 0);
    resize_file(at("set/000001/refs.idx"), 8 + 3);
    copy_tree(at("set"), at("copy"));
    uint64_t before = tree_size(at("set/000001"));
    bags_recover_options options = recover_options(&dry);
    options.dry_run = true;
    assert_ok(bags_recover(w.path, &options, &dry.report, &said));
    assert_same_tree(at("set"), at("copy"));
    assert_names(at("set/000001"), LEFT_NAMES);
    options = recover_options(&done);
    options.keep_idx = true;
    assert_ok(bags_recover(w.path, &options, &done.report, &said));
    assert_memory_equal(&dry.report, &done.report, sizeof dry.report);
    assert_int_equal(dry.count, 2);
    assert_int_equal(done.count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dry.shards[i].action, done.shards[i].action);
        assert_int_equal(dry.shards[i].length, done.shards[i].length);
        assert_int_equal(dry.shards[i].truncated, done.shards[i].truncated);
        assert_string_equal(dry.paths[i], done.paths[i]);
        assert_string_equal(dry.reasons[i], done.reasons[i]);
    }
    assert_int_equal(dry.shards[0].action, BAGS_RECOVERY_NOTHING);
    assert_int_equal(dry.shards[1].action, BAGS_RECOVERY_FINISHED);
    assert_int_equal(dry.shards[1].length, 1);
    /* The size before, less the size of the files without their four tables. */
    uint64_t tables = 4 * 8 + 8 + 8 + 8;
    for (uint64_t i = file_size(at("set/000001/clip.idx")); i; i -= 8)
        tables += 8;
    assert_int_equal(
        dry.shards[1].truncated, before - (tree_size(at("set/000001")) - tables));
    check_points(&w, 5);
}

/* Any journal or Bag, truncated anywhere: the complete datapoints are kept. */
static void truncated_files_keep_their_complete_datapoints(void **state) {
    static const char *const files[] = {
        "refs.idx", "refs.bag", "id.idx", "id.bag", "text.idx", "clip.idx", "clip.bag"};
    (void)state;
    work w = local_work(at("model"), 0);
    leave(&w, 6, 0);
    int cuts = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        uint64_t size = file_size(at("model/%s", files[f]));
        uint64_t last = UINT64_MAX;
        for (uint64_t n = size + 1; n > 0; cuts++) {
            n -= n > 700 ? 61 : 1; /* in larger steps where there is much */
            reported t;
            work one = local_work(at("one"), 0);
            copy_tree(at("model"), one.path);
            resize_file(at("one/%s", files[f]), n);
            poison();
            bags_code code = recover(one.path, &t);
            if (code == BAGS_ERROR_CORRUPT) {
                /* None is complete, although refs.idx lists some. */
                assert_names(one.path, LEFT_NAMES);
                assert_int_equal(t.report.failed, 1);
                assert_says("refs.idx");
                last = 0;
            } else if (t.report.removed) {
                assert_false(exists(one.path));
                assert_true(f == 0 && n < 8);
                continue;
            } else {
                assert_int_equal(code, BAGS_OK);
                check_points(&one, t.report.length);
                assert_true(t.report.length <= last);
                if (f == 0 || f == 2)
                    assert_int_equal(t.report.length, n / 8);
                if (f == 3)
                    assert_int_equal(t.report.length, n / 8);
                last = t.report.length;
            }
            remove_tree(one.path);
        }
    }
    print_message("%d truncations\n", cuts);
}

/* What follows the complete datapoints is truncated. */
static void trailing_bytes_are_truncated(void **state) {
    static const char *const files[] = {"refs.idx", "refs.bag", "id.idx", "id.bag",
        "text.idx", "text.bag", "clip.idx", "clip.bag"};
    (void)state;
    work crashed = local_work(at("model"), 0), complete = local_work(at("complete"), 0);
    leave(&crashed, 6, 0);
    write_complete(&complete, 6);
    reported dry;
    bags_recover_options dry_options = recover_options(&dry);
    dry_options.dry_run = true;
    assert_ok(bags_recover(crashed.path, &dry_options, &dry.report, &said));
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (uint64_t more = 1; more < 40; more += 6) {
            reported t;
            copy_tree(at("model"), at("one"));
            uint64_t size = file_size(at("one/%s", files[f]));
            resize_file(at("one/%s", files[f]), size + more);
            assert_ok(recover(at("one"), &t));
            assert_same_tree(at("one"), at("complete"));
            assert_int_equal(t.report.truncated, dry.report.truncated + more);
            remove_tree(at("one"));
        }
}

/* A journal in which one entry was changed. */
static void datapoints_end_before_damage_in_the_middle(void **state) {
    static const char *const files[] = {
        "refs.idx", "id.idx", "text.idx", "clip.idx", "refs.bag"};
    (void)state;
    work w = local_work(at("model"), 0);
    leave(&w, 6, 0);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        bytes file = load(at("model/%s", files[f]));
        for (size_t i = 0; i < file.size; i++) {
            reported t;
            work one = local_work(at("one"), 0);
            copy_tree(at("model"), one.path);
            file.data[i] ^= 0xff;
            save(at("one/%s", files[f]), file.data, file.size);
            file.data[i] ^= 0xff;
            poison();
            bags_code code = recover(one.path, &t);
            if (code == BAGS_ERROR_CORRUPT)
                assert_names(one.path, LEFT_NAMES);
            else
                assert_int_equal(code, BAGS_OK);
            if (!code) {
                finding found = work_find(&one, &disk.io, false);
                assert_true(found.opened && found.verified);
                assert_int_equal(found.length, t.report.length);
            }
            remove_tree(one.path);
        }
        bytes_free(&file);
    }
}

static void a_shard_without_datapoints_is_removed(void **state) {
    reported t;
    (void)state;
    work w = local_work(at("set"), 4);
    leave(&w, 0, 1);
    assert_names(at("set/000000"), LEFT_NAMES);
    assert_ok(recover(w.path, &t));
    assert_int_equal(t.report.removed, 1);
    assert_int_equal(t.shards[0].action, BAGS_RECOVERY_REMOVED);
    assert_names(at("set"), "");
    work one = local_work(at("one"), 0);
    leave(&one, 0, 0);
    assert_ok(recover(one.path, &t));
    assert_int_equal(t.report.removed, 1);
    assert_false(exists(one.path));
}

static void files_that_no_writer_creates_stay(void **state) {
    reported t;
    (void)state;
    work w = local_work(at("set"), 4);
    leave(&w, 0, 1);
    save_text(at("set/000000/notes.txt"), "mine");
    save_text(at("set/000000/other.bag"), "not a field");
    save_text(at("set/readme"), "mine too");
    make_dir(at("set/logs"));
    assert_ok(recover(w.path, &t));
    assert_int_equal(t.report.removed, 1);
    assert_true(t.reasons[0][0] != 0);
    assert_names(at("set/000000"), "notes.txt other.bag");
    assert_names(at("set"), "000000 logs readme");
    work full = local_work(at("full"), 4);
    leave(&full, 3, 0);
    save_text(at("full/000000/notes.txt"), "mine");
    assert_ok(recover(full.path, &t));
    assert_names(
        at("full/000000"), "clip.bag id.bag notes.txt refs.bag spec.json text.bag");
    check_points(&full, 3);
}

/* Directories that no writer left are unchanged. */
static void directories_without_a_record_are_left_alone(void **state) {
    reported t;
    (void)state;
    work w = local_work(at("set"), 4);
    leave(&w, 6, 0);
    make_dir(at("set/20240101"));
    save_text(at("set/20240101/drive.bag"), "a recording of another program");
    assert_fails(BAGS_ERROR_CORRUPT, recover(w.path, &t));
    assert_says("20240101");
    assert_names(at("set/20240101"), "drive.bag");
    assert_int_equal(t.report.failed, 1);
    assert_int_equal(t.report.finished_before, 1);
    assert_int_equal(t.report.finished_now, 1);
    assert_fails(BAGS_ERROR_MISSING, recover(at("nothing"), &t));
    make_dir(at("empty"));
    assert_fails(BAGS_ERROR_MISSING, recover(at("empty"), &t));
    assert_names(at("empty"), "");
}

static void a_damaged_record_is_an_error_and_stays(void **state) {
    static const char *const texts[] = {"", "{", "{}x", "[]", "{\"a\": 3}",
        "{\"text\": \"utf8\", \"clip\": \"bytes[]\"}", "{\"../x\": \"utf8\"}",
        "{\"refs\": \"utf8\"}"};
    reported t;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        work w = local_work(at("set%d", (int)i), 4);
        leave(&w, 3, 0);
        save_text(at("set%d/000000/spec.json.partial", (int)i), texts[i]);
        copy_tree(w.path, at("copy"));
        assert_fails(BAGS_ERROR_CORRUPT, recover(w.path, &t));
        assert_says("000000");
        assert_int_equal(t.shards[0].action, BAGS_RECOVERY_FAILED);
        assert_string_equal(t.reasons[0], said.message);
        assert_same_tree(w.path, at("copy"));
        bags_writer *writer = NULL;
        poison();
        writer = work_open(&w, true, &said);
        assert_null(writer);
        assert_same_tree(w.path, at("copy"));
        remove_tree(at("copy"));
    }
}

/* Like a copy that was made while the writer renamed and removed files. */
static void a_shard_with_tables_but_no_journals_is_not_removed(void **state) {
    reported t;
    bags_writer *writer;
    (void)state;
    work w = local_work(at("set"), 4);
    leave(&w, 3, 0);
    assert_ok(recover(w.path, &t));
    assert_int_equal(
        rename(at("set/000000/spec.json"), at("set/000000/spec.json.partial")), 0);
    copy_tree(w.path, at("copy"));
    assert_fails(BAGS_ERROR_CORRUPT, recover(w.path, &t));
    assert_says("000000");
    assert_says("rename spec.json.partial");
    assert_same_tree(w.path, at("copy"));
    poison();
    writer = work_open(&w, true, &said);
    assert_null(writer);
    assert_same_tree(w.path, at("copy"));
}

/* ---- several workers ---- */

static work worker(const char *path, uint64_t index, uint64_t workers) {
    work w = local_work(path, 2);
    w.options.shard_start = index;
    w.options.shard_stop = workers;
    w.first = 1000 * index;
    return w;
}

static void the_shard_of_a_running_writer_is_left_alone(void **state) {
    reported t;
    bags_writer *writer;
    (void)state;
    work crashed = worker(at("set"), 0, 2), alive = worker(at("set"), 1, 2);
    leave(&crashed, 3, 0);
    assert_opens(writer, work_open(&alive, false, &said));
    assert_ok(work_append_to(&alive, writer, 3, &said));
    assert_ok(work_flush(&alive, writer, &said));
    assert_fails(BAGS_ERROR_LOCKED, recover(at("set"), &t));
    assert_says("000003");
    assert_int_equal(t.report.finished_before, 2);
    assert_int_equal(t.report.finished_now, 1);
    assert_int_equal(t.report.locked, 1);
    assert_int_equal(t.report.length, 1);
    assert_int_equal(t.shards[3].action, BAGS_RECOVERY_LOCKED);
    assert_names(at("set/000003"), LEFT_NAMES);
    poison();
    assert_refused(BAGS_ERROR_LOCKED, work_open(&alive, true, &said));
    alive.appended = 3;
    assert_ok(work_append_to(&alive, writer, 5, &said));
    assert_ok(work_close(&alive, writer, &said));
    check_points(&crashed, 3);
    check_points(&alive, 5);
}

/* No message calls a writer crashed that is running, or leaves it open where its lock
 * shows that it has ended. */
static void an_unfinished_shard_is_said_to_be_written_or_left(void **state) {
    static const char *const paths[] = {"set", "set/000000"};
    bags_reader_options options;
    bags_writer *writer;
    bags_io no_locks = *bags_io_local();
    (void)state;
    no_locks.lock = NULL;
    work w = local_work(at("set"), 4);
    for (int running = 1; running >= 0; running--) {
        if (running)
            assert_opens(writer, work_open(&w, false, &said));
        else
            leave(&w, 1, 0);
        if (running)
            assert_ok(work_append(&w, writer, &said));
        for (int i = 0; i < 6; i++) {
            memset(&options, 0, sizeof options);
            options.env.io = i / 2 == 1 ? &no_locks : NULL;
            const char *path = at("%s", paths[i % 2]);
            if (i / 2 == 2)
                assert_fails(
                    BAGS_ERROR_UNFINISHED, bags_verify(path, NULL, NULL, &said));
            else
                assert_refused(
                    BAGS_ERROR_UNFINISHED, bags_reader_open(path, &options, &said));
            assert_says("set/000000: unfinished (no spec.json)*");
            assert_says(i / 2 == 1 ? "; if its writer crashed, run bags_recover"
                        : running  ? ": its writer is running"
                                   : ", and no writer has locked it; run bags_recover");
            assert_true(i / 2 == 1 || !strstr(said.message, "crash"));
        }
        memset(&options, 0, sizeof options);
        options.unfinished = BAGS_UNFINISHED_SKIP;
        assert_refused(
            BAGS_ERROR_UNFINISHED, bags_reader_open(at("set"), &options, &said));
        assert_says("set: no shard is finished; run bags_recover when*");
        if (running)
            bags_writer_abort(writer);
    }
    /* The test has released the lock. */
    assert_opens(writer, work_open(&w, true, &said));
    assert_ok(work_close(&w, writer, &said));
}

static void the_shard_of_a_writer_in_another_process_is_left_alone(void **state) {
    int ready[2], go[2], status;
    char byte = 0;
    reported t;
    (void)state;
    skip_on_windows("needs fork");
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) {
        work w = work_on(at("set"), 40, NULL);
        bags_writer *writer = work_open(&w, false, NULL);
        if (!writer || work_append_to(&w, writer, 3, NULL) ||
            work_flush(&w, writer, NULL) || write(ready[1], "x", 1) != 1 ||
            read(go[0], &byte, 1) != 1)
            _exit(1);
        _exit(0); /* it crashes; its lock is released */
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_fails(BAGS_ERROR_LOCKED, recover(at("set"), &t));
    assert_names(at("set/000000"), LEFT_NAMES);
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_ok(recover(at("set"), &t));
    work w = local_work(at("set"), 40);
    check_points(&w, 3);
    close(ready[0]);
    close(ready[1]);
    close(go[0]);
    close(go[1]);
}

static void recovery_can_be_limited_to_the_shards_of_one_worker(void **state) {
    reported t;
    (void)state;
    work first = worker(at("set"), 0, 3), second = worker(at("set"), 1, 3);
    work third = worker(at("set"), 2, 3);
    leave(&first, 3, 0);
    leave(&second, 5, 0);
    leave(&third, 1, 0);
    bags_recover_options options = recover_options(&t);
    options.shard_start = 1;
    options.shard_stop = 3;
    assert_ok(bags_recover(at("set"), &options, &t.report, &said));
    assert_int_equal(t.count, 3);
    assert_int_equal(t.report.finished_before, 2);
    assert_int_equal(t.report.finished_now, 1);
    check_points(&second, 5);
    assert_names(at("set/000003"), LEFT_NAMES);
    assert_names(at("set/000002"), LEFT_NAMES);
    options.shard_start = 3;
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_recover(at("set"), &options, &t.report, &said));
    options.shard_start = 4;
    options.shard_stop = 2;
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_recover(at("set"), &options, &t.report, &said));
    options.shard_start = options.shard_stop = 0;
    assert_ok(bags_recover(at("set"), &options, &t.report, &said));
    check_points(&first, 3);
    check_points(&third, 1);
}

/* ---- resume ---- */

/* After a crash with any number of datapoints. */
static void a_resumed_dataset_equals_one_that_was_never_interrupted(void **state) {
    static const uint64_t lengths[] = {0, 4, 1};
    (void)state;
    for (int i = 0; i < 3; i++) {
        work complete = local_work(at("complete%d", i), lengths[i]);
        write_complete(&complete, 13);
        for (uint64_t death = 0; death < 13; death++)
            for (uint64_t lost = 0; lost < 3 && death + lost < 14; lost += 2) {
                bags_writer *writer;
                work w = local_work(at("set"), lengths[i]);
                leave(&w, death, lost);
                assert_opens(writer, work_open(&w, true, &said));
                assert_true(bags_writer_resumed(writer) >= death);
                assert_true(bags_writer_resumed(writer) <= death + lost);
                assert_int_equal(bags_writer_length(writer), 0);
                assert_ok(work_append_to(&w, writer, 13, &said));
                assert_ok(work_close(&w, writer, &said));
                assert_same_tree(w.path, complete.path);
                remove_tree(w.path);
            }
    }
}

static void killed_workers_can_resume(void **state) {
    (void)state;
    for (uint64_t killed = 0; killed < 16; killed++) {
        for (uint64_t i = 0; i < 4; i++) {
            work complete = worker(at("complete"), i, 4), w = worker(at("set"), i, 4);
            write_complete(&complete, 3 + 2 * i);
            if (killed >> i & 1)
                leave(&w, 2 + i, i % 2);
            else
                write_complete(&w, 3 + 2 * i);
        }
        for (uint64_t i = 0; i < 4; i++) {
            bags_writer *writer;
            work w = worker(at("set"), i, 4);
            assert_opens(writer, work_open(&w, true, &said));
            if (!(killed >> i & 1))
                assert_int_equal(bags_writer_resumed(writer), 3 + 2 * i);
            assert_ok(work_append_to(&w, writer, 3 + 2 * i, &said));
            assert_ok(work_close(&w, writer, &said));
        }
        assert_same_tree(at("set"), at("complete"));
        remove_tree(at("set"));
        remove_tree(at("complete"));
    }
}

static void resuming_a_sharded_dataset_as_unsharded_is_refused_with_a_remedy(
    void **state) {
    work w = local_work(at("x"), 4);
    (void)state;
    write_complete(&w, 10);
    copy_tree(at("x"), at("before"));
    w.options.shard_length = 0;
    assert_null(work_open(&w, true, &said));
    assert_int_equal(said.code, BAGS_ERROR_EXISTS);
    assert_says("x*sharded*shard options");
    assert_same_tree(at("x"), at("before"));
}

static void resume_starts_a_dataset_that_does_not_exist(void **state) {
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        bags_writer *writer;
        work w = local_work(at("new%d/set", i), lengths[i]);
        work complete = local_work(at("complete%d", i), lengths[i]);
        write_complete(&complete, 6);
        assert_opens(writer, work_open(&w, true, &said));
        assert_int_equal(bags_writer_resumed(writer), 0);
        assert_ok(work_append_to(&w, writer, 6, &said));
        assert_ok(work_close(&w, writer, &said));
        assert_same_tree(w.path, complete.path);
    }
}

static void finished_shards_are_followed_by_new_ones(void **state) {
    bags_writer *writer;
    (void)state;
    work w = local_work(at("set"), 4);
    write_complete(&w, 6);
    copy_tree(at("set/000001"), at("second"));
    assert_opens(writer, work_open(&w, true, &said));
    assert_int_equal(bags_writer_resumed(writer), 6);
    assert_ok(work_append_to(&w, writer, 11, &said));
    assert_int_equal(bags_writer_shards(writer), 1);
    assert_ok(work_close(&w, writer, &said));
    assert_names(at("set"), "000000 000001 000002 000003");
    assert_same_tree(at("set/000001"), at("second"));
    check_points(&w, 11);
}

static void a_finished_unsharded_dataset_cannot_be_resumed(void **state) {
    (void)state;
    work w = local_work(at("set"), 0);
    write_complete(&w, 3);
    copy_tree(at("set"), at("copy"));
    assert_refused(BAGS_ERROR_EXISTS, work_open(&w, true, &said));
    assert_says("set");
    w.options.shard_stop = 1;
    assert_refused(BAGS_ERROR_EXISTS, work_open(&w, true, &said));
    assert_same_tree(at("set"), at("copy"));
}

static void resuming_with_other_fields_is_refused(void **state) {
    static const bags_field others[3][2] = {{{"id", "int(8)"}, {"x", "utf8"}},
        {{"text", "utf8"}, {"id", "int(8)"}}, {{"id", "int(4)"}, {"a", "utf8"}}};
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int finished = 0; finished < 2; finished++) {
            work w = local_work(at("set%d%d", i, finished), lengths[i]);
            if (finished)
                write_complete(&w, 3);
            else
                leave(&w, 3, 0);
            copy_tree(w.path, at("copy"));
            w.options.existing = BAGS_EXISTING_RESUME;
            for (int o = 0; o < 3; o++)
                assert_refused(
                    finished && !lengths[i] ? BAGS_ERROR_EXISTS : BAGS_ERROR_VALUE,
                    bags_writer_open(w.path, others[o], 2, &w.options, &said));
            assert_same_tree(w.path, at("copy"));
            remove_tree(at("copy"));
        }
}

static void sharded_and_unsharded_are_not_mixed(void **state) {
    (void)state;
    work one = local_work(at("one"), 0), shards = local_work(at("shards"), 4);
    leave(&one, 3, 0);
    leave(&shards, 3, 0);
    copy_tree(at("one"), at("copy1"));
    copy_tree(at("shards"), at("copy2"));
    one.options.shard_length = 4;
    shards.options.shard_length = 0;
    assert_refused(BAGS_ERROR_EXISTS, work_open(&one, true, &said));
    assert_refused(BAGS_ERROR_EXISTS, work_open(&shards, true, &said));
    assert_same_tree(at("one"), at("copy1"));
    assert_same_tree(at("shards"), at("copy2"));
}

/* An abort removes only what this writer added. */
static void abort_restores_what_existed_before_resume(void **state) {
    static const uint64_t lengths[] = {0, 40};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (uint64_t more = 0; more < 9; more += 4) {
            bags_writer *writer;
            reported t;
            work w = local_work(at("set"), lengths[i]);
            work complete = local_work(at("complete"), lengths[i]);
            leave(&w, 5, 0);
            write_complete(&complete, 5);
            assert_opens(writer, work_open(&w, true, &said));
            assert_ok(work_append_to(&w, writer, 5 + more, &said));
            if (more)
                assert_ok(work_flush(&w, writer, &said));
            bags_writer_abort(writer);
            assert_ok(recover(w.path, &t));
            assert_int_equal(t.report.length, 5);
            assert_same_tree(w.path, complete.path);
            remove_tree(w.path);
            remove_tree(complete.path);
        }
}

/* The end of an abort that fails or crashes at its n-th call: recovery finishes
 * what it left. False if it made fewer calls. */
static bool interrupt_abort(const char *path, uint64_t shard_length, uint64_t n) {
    crash_device device;
    bags_writer *writer;
    reported t;
    work w = local_work(path, shard_length);
    crash_device_start(&device, &disk.io);
    w.options.env.io = &device.io;
    assert_opens(writer, work_open(&w, false, &said));
    assert_ok(work_append_to(&w, writer, 5, &said));
    assert_ok(work_flush(&w, writer, &said));
    crash_at(&device, device.files.calls + n);
    bags_writer_abort(writer);
    poison();
    bags_code code = recover(path, &t);
    if (code && code != BAGS_ERROR_MISSING)
        fail_msg("after call %d of an abort: %s", (int)n, said.message);
    assert_int_equal(t.report.failed, 0);
    remove_tree(at("above"));
    return device.files.failed > 0;
}

static void abort_may_be_interrupted_anywhere(void **state) {
    static const uint64_t lengths[] = {0, 40};
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t n = 1;
        while (interrupt_abort(at("above/set"), lengths[i], n))
            n++;
        assert_true(n > 10);
    }
}

static void flush_alone_makes_datapoints_recoverable(void **state) {
    (void)state;
    for (uint64_t flushed = 1; flushed < 12; flushed++) {
        reported t;
        work w = local_work(at("set%d", (int)flushed), 0);
        leave(&w, flushed, 1);
        assert_ok(recover(w.path, &t));
        assert_true(t.report.length >= flushed);
        check_points(&w, t.report.length);
    }
}

/* ---- concurrent recovery ---- */

/* Hooks that do something else before their n-th call. */
typedef struct between {
    bags_io io;
    const bags_io *base;
    uint64_t calls, at;
    void (*act)(struct between *b);
    bags_writer *writer;
    bag_writer *bag;
    work *job;
    const char *path;
} between;

static void come_between(void *user) {
    between *b = (between *)user;
    if (++b->calls == b->at)
        b->act(b);
}

static int between_open(void *user, const char *path, int mode, void **file) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->open(io->user, path, mode, file);
}
static int between_close(void *user, void *file) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->close(io->user, file);
}
static int between_size(void *user, void *file, uint64_t *size) {
    const bags_io *io = ((between *)user)->base;
    return io->size(io->user, file, size);
}
static int between_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const bags_io *io = ((between *)user)->base;
    return io->read_at(io->user, file, offset, data, size, done);
}
static int between_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->write_at(io->user, file, offset, data, size, done);
}
static int between_truncate(void *user, void *file, uint64_t size) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->truncate(io->user, file, size);
}
static int between_sync(void *user, void *file) {
    const bags_io *io = ((between *)user)->base;
    return io->sync(io->user, file);
}
static int between_lock(void *user, void *file) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->lock(io->user, file);
}
static int between_kind(void *user, const char *path, bags_path_kind *kind) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->kind(io->user, path, kind);
}
static int between_make_dir(void *user, const char *path) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->make_dir(io->user, path);
}
static int between_sync_dir(void *user, const char *path) {
    const bags_io *io = ((between *)user)->base;
    return io->sync_dir(io->user, path);
}
static int between_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->list(io->user, path, each, each_user);
}
static int between_rename(void *user, const char *from, const char *to) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->rename(io->user, from, to);
}
static int between_remove(void *user, const char *path) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->remove(io->user, path);
}
static int between_remove_dir(void *user, const char *path) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->remove_dir(io->user, path);
}

static int between_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    come_between(user);
    const bags_io *io = ((between *)user)->base;
    return io->identify(io->user, file, path, identity);
}

static void between_start(between *b, const bags_io *base) {
    memset(b, 0, sizeof *b);
    b->base = base;
    b->io.user = b;
    b->io.open = between_open;
    b->io.close = between_close;
    b->io.size = between_size;
    b->io.read_at = between_read;
    b->io.write_at = between_write;
    b->io.truncate = between_truncate;
    b->io.sync = between_sync;
    b->io.lock = between_lock;
    b->io.kind = between_kind;
    b->io.make_dir = between_make_dir;
    b->io.sync_dir = between_sync_dir;
    b->io.list = between_list;
    b->io.rename = between_rename;
    b->io.remove = between_remove;
    b->io.remove_dir = between_remove_dir;
    b->io.identify = between_identify;
}

static void act_recover(between *b) {
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.env.io = b->base;
    bags_recover(b->path, &options, NULL, NULL);
}

/* Another process recovers the dataset at every call of its running writer. */
static void recovery_at_any_time_does_not_harm_a_running_writer(void **state) {
    static const uint64_t lengths[] = {0, 3};
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t n = 1;
        for (bool reached = true; reached; n++) {
            memory_disk m;
            between b;
            memory_disk_start(&m);
            between_start(&b, &m.io);
            b.at = n;
            b.act = act_recover;
            b.path = "set";
            work w = work_on("set", lengths[i], &b.io);
            bags_writer *writer;
            poison();
            writer = work_open(&w, false, &said);
            if (!writer || work_append_to(&w, writer, 7, &said) ||
                work_close(&w, writer, &said))
                fail_msg(
                    "recovered at call %d, the writer fails: %s", (int)n, said.message);
            finding f = work_find(&w, &m.io, false);
            if (f.right != 7 || f.length != 7 || !f.verified)
                fail_msg("recovered at call %d: %d of %d datapoints are right: "
                         "%s",
                    (int)n, (int)f.right, (int)f.length,
                    f.error.code ? f.error.message : "");
            reached = b.calls >= n;
            memory_disk_free(&m);
        }
        print_message("a recovery in between at %d calls\n", (int)n - 2);
    }
}

static void act_close(between *b) {
    assert_ok(work_close(b->job, b->writer, &said));
    b->writer = NULL;
}

static void act_append(between *b) {
    assert_ok(work_append_to(b->job, b->writer, 7, &said));
    act_close(b);
}

/* A writer finishes at every call of a recovery. */
static void a_writer_that_finishes_does_not_disturb_a_recovery(void **state) {
    static void (*const acts[])(between *) = {act_close, act_append};
    (void)state;
    for (int i = 0; i < 4; i++) {
        uint64_t n = 1;
        for (bool reached = true; reached; n++) {
            memory_disk m;
            between b;
            bags_recover_options options;
            memory_disk_start(&m);
            between_start(&b, &m.io);
            work w = work_on("set", i % 2 ? 3 : 0, &m.io);
            b.job = &w;
            b.at = n;
            b.act = acts[i / 2];
            assert_opens(b.writer, work_open(&w, false, &said));
            assert_ok(work_append_to(&w, b.writer, 5, &said));
            assert_ok(work_flush(&w, b.writer, &said));
            memset(&options, 0, sizeof options);
            options.env.io = &b.io;
            bags_error err;
            err.message[0] = 0;
            bags_code code = bags_recover("set", &options, NULL, &err);
            reached = b.writer == NULL;
            if (code && code != BAGS_ERROR_LOCKED)
                fail_msg("finished at call %d: recover says %s", (int)n, err.message);
            if (b.writer)
                b.act(&b);
            finding f = work_find(&w, &m.io, false);
            if (f.right != w.appended || f.length != w.appended || !f.verified)
                fail_msg("finished at call %d: %d of %d datapoints are right: "
                         "%s",
                    (int)n, (int)f.right, (int)f.length,
                    f.error.code ? f.error.message : "");
            memory_disk_free(&m);
        }
        assert_true(n > 3);
    }
}

/* ---- the tests ---- */

static int pass_over(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

/* The power does not fail here: nothing waits for the disk. */
static int quick_setup(void **state) {
    static bags_io quick;
    int code = support_setup(state);
    quick = *bags_io_local();
    quick.sync = pass_over;
    disk.base = &quick;
    return code;
}

/* ---- checksums ---- */

static work checksum_work(
    const char *path, uint64_t shard_length, bool with_checksums) {
    work w = local_work(path, shard_length);
    w.options.checksum = with_checksums;
    return w;
}

static void a_shard_with_checksums_is_recovered_with_them(void **state) {
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        reported t;
        work crashed = checksum_work(at("crashed%d", i), lengths[i], true);
        work complete = checksum_work(at("complete%d", i), lengths[i], true);
        leave(&crashed, 6, 0);
        write_complete(&complete, 6);
        assert_ok(recover(crashed.path, &t));
        assert_int_equal(t.report.finished_now, 1);
        assert_same_tree(crashed.path, complete.path);
        check_points(&crashed, 6);
    }
}

/* The checksums are those of the record as it is, which becomes spec.json. */
static void a_record_with_other_whitespace_is_recovered_with_its_checksums(
    void **state) {
    reported t;
    (void)state;
    work w = checksum_work(at("x"), 0, true);
    leave(&w, 6, 0);
    bytes record = load(at("x/spec.json.partial"));
    put(&record, "\n", 1);
    save(at("x/spec.json.partial"), record.data, record.size);
    bytes_free(&record);
    assert_ok(recover(w.path, &t));
    check_points(&w, 6);
}

/* A power failure may keep a file's size but not its bytes. */
static void datapoints_end_before_a_checksum_mismatch(void **state) {
    static const char *const names[] = {"text", "clip", "id", "refs"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        reported t;
        work w = checksum_work(at("%d", i), 0, true);
        leave(&w, 12, 0);
        const char *path = at("%d/%s.%s", i, names[i / 2], i % 2 ? "crc" : "bag");
        bytes file = load(path);
        /* A cancelled datapoint may follow the data in use. */
        size_t where = i % 2 ? 4 * 7 + 1 : i == 2 ? 200 : file.size - 20;
        file.data[where] ^= 1;
        save(path, file.data, file.size);
        bytes_free(&file);
        assert_ok(recover(w.path, &t));
        assert_true(t.report.length > 0 && t.report.length < 12);
        assert_non_null(strstr(t.reasons[0], "checksum"));
        check_points(&w, t.report.length);
    }
}

static void truncated_checksums_end_the_datapoints(void **state) {
    reported t;
    (void)state;
    work w = checksum_work(at("x"), 0, true);
    leave(&w, 12, 0);
    resize_file(at("x/text.crc"), 4 * 5 + 3);
    assert_ok(recover(w.path, &t));
    assert_int_equal(t.report.length, 5);
    assert_non_null(strstr(t.reasons[0], "checksums"));
    check_points(&w, 5);
}

/* Whatever the resuming writer requests, a shard that has checksums keeps them; one
 * that was started without is refused if they are requested. */
static void resuming_with_and_without_checksums(void **state) {
    static const uint64_t lengths[] = {0, 10};
    (void)state;
    for (int i = 0; i < 6; i++) {
        bool before = i % 3 != 1, after = i % 3 != 0;
        work w = checksum_work(at("crashed%d", i), lengths[i / 3], before);
        work complete = checksum_work(at("complete%d", i), lengths[i / 3], before);
        bags_writer *writer;
        leave(&w, 6, 0);
        w.options.checksum = after;
        if (!before) {
            copy_tree(w.path, at("before%d", i));
            assert_null(work_open(&w, true, &said));
            assert_int_equal(said.code, BAGS_ERROR_VALUE);
            assert_non_null(strstr(said.message, "was started without checksums"));
            assert_same_tree(w.path, at("before%d", i));
            w.options.checksum = false;
        }
        assert_opens(writer, work_open(&w, true, &said));
        assert_int_equal(bags_writer_resumed(writer), 6);
        assert_ok(work_append_to(&w, writer, 9, &said));
        assert_ok(work_close(&w, writer, &said));
        write_complete(&complete, 9);
        assert_same_tree(w.path, complete.path);
        check_points(&w, 9);
    }
}

static void abort_restores_checksums_too(void **state) {
    (void)state;
    reported t;
    bags_writer *writer;
    work w = checksum_work(at("x"), 0, true);
    work complete = checksum_work(at("complete"), 0, true);
    leave(&w, 6, 0);
    assert_opens(writer, work_open(&w, true, &said));
    assert_ok(work_append_to(&w, writer, 9, &said));
    bags_writer_abort(writer);
    assert_ok(recover(w.path, &t));
    assert_int_equal(t.report.length, 6);
    write_complete(&complete, 6);
    assert_same_tree(w.path, complete.path);
}

static void a_shard_with_checksums_and_no_datapoint_is_removed(void **state) {
    (void)state;
    reported t;
    work w = checksum_work(at("x"), 0, true);
    leave(&w, 0, 0);
    assert_true(exists(at("x/text.crc")));
    assert_ok(recover(w.path, &t));
    assert_int_equal(t.report.removed, 1);
    assert_false(exists(at("x")));
    /* A crash just after the record was created, or a lost name. */
    make_dir(at("x"));
    save(at("x/refs.crc"), "", 0);
    save(at("x/spec.json.partial"), "{", 1);
    assert_ok(recover(w.path, &t));
    assert_false(exists(at("x")));
}

/* ---- standalone Bags ---- */

/* The same bytes every time; some are longer than a buffer of 4 KiB. */
static size_t standalone_blob(uint64_t number, unsigned char *data) {
    size_t size = number % 5 == 3 ? 5000 : (size_t)(number * 37 % 700);
    fill(data, size, number);
    return size;
}

/* A writer of a standalone Bag, and how many of its blobs are flushed. */
typedef struct standalone {
    const char *path;
    bag_writer_options options;
    uint64_t flushed, appended;
} standalone;

static standalone standalone_on(
    const char *path, const bags_io *io, bool with_checksums) {
    standalone l;
    memset(&l, 0, sizeof l);
    l.path = path;
    l.options.env.io = io;
    l.options.buffer_size = 4096;
    l.options.checksum = with_checksums;
    return l;
}

/* Append until `stop`; flush after every fourth. */
static bags_code standalone_append(standalone *l, bag_writer *writer, uint64_t stop) {
    bags_code code = BAGS_OK;
    while (l->appended < stop && !code) {
        unsigned char data[5000];
        size_t size = standalone_blob(l->appended++, data);
        code = bag_writer_append(writer, data, size, NULL, &said);
        if (!code && l->appended % 4 == 0) {
            code = bag_writer_flush(writer, &said);
            l->flushed = code ? l->flushed : l->appended;
        }
    }
    return code;
}

#define STANDALONE_BLOBS 37

static bags_code standalone_write(standalone *l) {
    poison();
    bag_writer *writer = bag_writer_open(l->path, &l->options, &said);
    if (!writer)
        return said.code;
    bags_code code = standalone_append(l, writer, STANDALONE_BLOBS);
    bags_code also = bag_writer_close(writer, code ? NULL : &said);
    if (!code && !also)
        l->flushed = l->appended;
    return code ? code : also;
}

/* The writer crashes at its n-th call; 0: before it closes. True if it
 * crashed. */
static bool standalone_crashes(standalone *l, uint64_t n) {
    crash_device device;
    crash_device_start(&device, l->options.env.io);
    l->options.env.io = &device.io;
    crash_at(&device, n ? n : UINT64_MAX);
    bag_writer *writer = bag_writer_open(l->path, &l->options, &said);
    if (writer && !standalone_append(l, writer, STANDALONE_BLOBS) && n == 0)
        crash_at(&device, device.files.calls + 1);
    if (!bag_writer_close(writer, &said) && writer)
        l->flushed = l->appended;
    return device.files.failed > 0;
}

/* The number of blobs, all of which must be correct. */
static uint64_t standalone_check(const standalone *l, const bags_io *io, bool check) {
    bag_reader_options options;
    bags_buffer scratch = {0};
    bags_view blob;
    unsigned char data[5000];
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.verify_checksums = check;
    bag_reader *reader = bag_reader_open(l->path, &options, &said);
    if (!reader)
        fail_msg("%s: %s", l->path, said.message);
    uint64_t length = bag_reader_length(reader);
    bags_env env = {NULL, io};
    assert_ok(verify_path(l->path, &env, &said));
    for (uint64_t i = 0; i < length; i++) {
        assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
        size_t size = standalone_blob(i, data);
        assert_bytes(blob, data, size);
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return length;
}

static void the_flushed_blobs_of_a_standalone_bag_are_copied(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t length = 0;
        standalone crashed = standalone_on(at("crashed/x.bag"), &disk.io, i);
        standalone copy = standalone_on(at("copy/x.bag"), &disk.io, i);
        standalone complete = standalone_on(at("complete/x.bag"), &disk.io, i);
        make_dir(at("crashed"));
        make_dir(at("copy"));
        make_dir(at("complete"));
        assert_true(standalone_crashes(&crashed, 0));
        bag_writer *writer;
        assert_opens(writer, bag_writer_open(complete.path, &complete.options, &said));
        assert_ok(standalone_append(&complete, writer, crashed.flushed));
        assert_ok(bag_writer_close(writer, &said));
        assert_ok(copy_flushed(crashed.path, copy.path, i, &disk.io, &length, &said));
        assert_int_equal(length, crashed.flushed);
        assert_same_tree(at("copy"), at("complete"));
        assert_int_equal(standalone_check(&copy, &disk.io, i), crashed.flushed);
        remove_tree(at("crashed"));
        remove_tree(at("copy"));
        remove_tree(at("complete"));
    }
}

/* Any of its files, truncated anywhere: the complete blobs are read. */
static void a_truncated_standalone_bag_keeps_its_complete_blobs(void **state) {
    static const char *const endings[] = {"bag", "idx", "crc"};
    int cuts = 0, some = 0;
    (void)state;
    make_dir(at("model"));
    standalone crashed = standalone_on(at("model/x.bag"), &disk.io, true);
    assert_true(standalone_crashes(&crashed, 0));
    for (int f = 0; f < 3; f++) {
        uint64_t size = file_size(at("model/x.%s", endings[f]));
        for (uint64_t n = size + 5; n > 0; n -= n > 600 ? 97 : 1, cuts++) {
            standalone copy = standalone_on(at("one/copy.bag"), &disk.io, true);
            uint64_t length = 0;
            copy_tree(at("model"), at("one"));
            resize_file(at("one/x.%s", endings[f]), n);
            poison();
            assert_ok(copy_flushed(
                at("one/x.bag"), copy.path, true, &disk.io, &length, &said));
            assert_int_equal(standalone_check(&copy, &disk.io, true), length);
            if (f == 1)
                assert_int_equal(
                    length, n / 8 < crashed.flushed ? n / 8 : crashed.flushed);
            some += length > 0 && length < crashed.flushed;
            remove_tree(at("one"));
        }
    }
    print_message("%d truncations, %d of which left some blobs\n", cuts, some);
    assert_true(some > cuts / 2 && some < cuts);
}

/* The writer of a standalone Bag crashes at any call. */
static void the_flushed_blobs_of_a_standalone_bag_survive_a_kill_at_any_call(
    void **state) {
    int points = 0;
    (void)state;
    for (int with_checksums = 0; with_checksums < 2; with_checksums++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n++, points++) {
            memory_disk m;
            uint64_t length = 0;
            memory_disk_start(&m);
            standalone l = standalone_on("x.bag", &m.io, with_checksums);
            standalone copy = standalone_on("copy.bag", &m.io, with_checksums);
            reached = standalone_crashes(&l, n);
            bool empty = memory_disk_find(&m, "x.bag").size == 0;
            bool sums = memory_disk_find(&m, "x.crc").data != NULL;
            poison();
            bags_code code =
                copy_flushed("x.bag", "copy.bag", sums, &m.io, &length, &said);
            /* Before it had a journal it had no data. */
            if (code &&
                !(empty && (code == BAGS_ERROR_MISSING || code == BAGS_ERROR_CORRUPT)))
                fail_msg("killed at %d: %s", (int)n, said.message);
            uint64_t right = code ? 0 : standalone_check(&copy, &m.io, sums);
            if (right != length || right < l.flushed || right > l.appended)
                fail_msg("killed at %d: %d blobs; %d were flushed, %d appended", (int)n,
                    (int)right, (int)l.flushed, (int)l.appended);
            memory_disk_free(&m);
        }
    }
    print_message("killed at %d calls\n", points);
}

static void rows_without_any_journal_are_not_removed(void **state) {
    reported t;
    (void)state;
    work w = local_work(at("set"), 0);
    leave(&w, 4, 0);
    resize_file(at("set/refs.idx"), 0);
    assert_int_equal(remove(at("set/id.idx")), 0);
    copy_tree(at("set"), at("before"));
    assert_fails(BAGS_ERROR_CORRUPT, recover(w.path, &t));
    assert_says("refs.bag*.idx");
    assert_int_equal(t.report.failed, 1);
    assert_same_tree(at("set"), at("before"));
}

static void files_are_not_recovered(void **state) {
    reported t;
    (void)state;
    work w = local_work(at("all/set"), 0);
    standalone l = standalone_on(at("all/x.bag"), &disk.io, true);
    make_dir(at("all"));
    leave(&w, 4, 0);
    assert_true(standalone_crashes(&l, 0));
    copy_tree(at("all"), at("before"));
    for (int i = 0; i < 2; i++) {
        poison();
        assert_fails(
            BAGS_ERROR_ARGUMENT, recover(i ? at("all/set/text.bag") : l.path, &t));
        assert_says(i ? "text.bag: is a file*`unfinished`" : "x.bag: is a file");
        assert_int_equal(t.count, 0);
    }
    assert_same_tree(at("all"), at("before"));
    assert_fails(BAGS_ERROR_MISSING, recover(at("y.bag"), &t));
}

/* A reader would take them for its own. */
static void a_bag_is_not_written_next_to_the_checksums_of_another(void **state) {
    (void)state;
    standalone l = standalone_on(at("x.bag"), &disk.io, false);
    save_text(at("x.crc"), "of another");
    assert_int_equal(standalone_write(&l), BAGS_ERROR_EXISTS);
    assert_says("x.crc");
    assert_names(at("."), "x.crc");
}

/* ---- datapoints that were flushed and not ended ---- */

static const bags_field film_fields[] = {
    {"id", "int(8)"}, {"clip", "bytes[]"}, {"note", "utf8"}};

/* A writer that crashes. Items of "clip" state their datapoint, number and `take`. */
typedef struct film {
    const char *path;
    crash_device device;
    bags_writer_options options;
    bags_writer *writer;
    uint64_t id, item;
    int take;
} film;

static film film_on(const char *path, uint64_t shard_length) {
    film f;
    memset(&f, 0, sizeof f);
    f.path = path;
    f.options.shard_length = shard_length;
    f.options.buffer_size = 4096;
    f.options.env.allocator = &memory.allocator;
    return f;
}

static void film_open(film *f, bool resume) {
    crash_device_start(&f->device, &disk.io);
    f->options.env.io = &f->device.io;
    f->options.existing = resume ? BAGS_EXISTING_RESUME : BAGS_EXISTING_REFUSE;
    assert_opens(
        f->writer, bags_writer_open(f->path, film_fields, 3, &f->options, &said));
    f->id = bags_writer_resumed(f->writer);
}

static bags_view frame(uint64_t id, uint64_t item, int take) {
    static char text[64];
    int size = snprintf(
        text, sizeof text, "datapoint %d, frame %d, take %d", (int)id, (int)item, take);
    bags_view out = {(const unsigned char *)text, (size_t)size};
    return out;
}

static void film_push(film *f, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        bags_view data = frame(f->id, f->item++, f->take);
        bags_value item = bags_bytes(data.data, data.size);
        assert_ok(bags_writer_push(f->writer, "clip", &item, &said));
    }
}

static void film_begin(film *f, bool with_note, uint64_t count) {
    bags_value id = bags_uint(f->id), note = bags_utf8("a note");
    f->item = 0;
    assert_ok(bags_writer_begin(f->writer, &said));
    assert_ok(bags_writer_set(f->writer, "id", &id, &said));
    if (with_note)
        assert_ok(bags_writer_set(f->writer, "note", &note, &said));
    film_push(f, count);
}

static void film_end(film *f) {
    assert_ok(bags_writer_end(f->writer, &said));
    f->id++;
}

static void film_add(film *f, uint64_t count) {
    film_begin(f, true, count);
    film_end(f);
}

static void film_flush(film *f) { assert_ok(bags_writer_flush(f->writer, &said)); }

static void film_crash(film *f) { crash_writer(&f->device, f->writer); }

/* A dataset that was closed, whose datapoints have so many items. */
static void film_complete(
    film *like, const char *path, const uint64_t *items, int count) {
    film f = film_on(path, like->options.shard_length);
    f.options.checksum = like->options.checksum;
    film_open(&f, false);
    for (int i = 0; i < count; i++)
        film_add(&f, items[i]);
    assert_ok(bags_writer_close(f.writer, &said));
}

/* The datapoints, the last of which was of this take, have so many items; their notes
 * are ignored. */
static void check_film(
    const char *path, const uint64_t *items, uint64_t count, int take) {
    bags_row row = {0};
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    assert_int_equal(bags_reader_length(reader), count);
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_int_equal(bags_row_bytes(&row, 1, 0).data[0], i);
        assert_int_equal(bags_row_length(&row, 0), items[i]);
        for (uint64_t k = 0; k < items[i]; k++) {
            bags_view expected = frame(i, k, i + 1 == count ? take : 0);
            assert_bytes(bags_row_bytes(&row, 0, k), expected.data, expected.size);
        }
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_ok(bags_verify(path, NULL, NULL, &said));
}

static bags_code recover_with(film *f, reported *t, bool dry_run, bool drop,
    const bags_entry *values, size_t count) {
    bags_recover_options options = recover_options(t);
    options.dry_run = dry_run;
    options.drop_partial = drop;
    options.values = values;
    options.values_count = count;
    return bags_recover(f->path, &options, &t->report, &said);
}

#define PARTIAL_NAMES                                                                  \
    "clip.bag clip.idx id.bag id.idx note.bag note.idx refs.bag refs.idx "             \
    "refs.partial spec.json.partial"

static void what_was_flushed_of_a_datapoint_is_recovered(void **state) {
    static const uint64_t items[] = {2, 400};
    (void)state;
    for (int i = 0; i < 8; i++) {
        reported dry, t;
        int before = i % 2; /* datapoints */
        film f = film_on(at("set%d", i), i / 2 % 2 ? 10 : 0);
        f.options.checksum = i / 4;
        film_open(&f, false);
        if (before)
            film_add(&f, 2);
        film_begin(&f, true, 300);
        film_flush(&f);
        film_push(&f, 100);
        film_flush(&f);
        film_push(&f, 500); /* more than a buffer */
        film_crash(&f);
        const char *shard = i / 2 % 2 ? at("set%d/000000", i) : f.path;
        if (i == 0)
            assert_names(shard, PARTIAL_NAMES);
        copy_tree(f.path, at("copy"));
        assert_ok(recover_with(&f, &dry, true, false, NULL, 0));
        assert_same_tree(f.path, at("copy"));
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        assert_memory_equal(&dry.report, &t.report, sizeof t.report);
        assert_int_equal(dry.shards[0].items, 400);
        assert_int_equal(t.shards[0].action, BAGS_RECOVERY_FINISHED);
        assert_int_equal(t.shards[0].length, before + 1);
        assert_true(t.shards[0].partial && dry.shards[0].partial);
        assert_int_equal(t.shards[0].items, 400);
        assert_true(t.shards[0].truncated > 0);
        film_complete(&f, at("complete%d", i), items + 1 - before, before + 1);
        assert_same_tree(f.path, at("complete%d", i));
        check_film(f.path, items + 1 - before, (uint64_t)before + 1, 0);
        remove_tree(at("copy"));
    }
}

/* A file of the dataset is as it would be without the flushes. */
static void flushes_of_datapoints_that_are_ended_leave_no_trace(void **state) {
    static const uint64_t items[] = {5, 7, 3};
    (void)state;
    for (int i = 0; i < 2; i++) {
        film f = film_on(at("set%d", i), i ? 2 : 0);
        film_open(&f, false);
        for (int k = 0; k < 3; k++) {
            film_begin(&f, true, items[k] - 1);
            assert_ok(k % 2 ? bags_writer_sync(f.writer, &said)
                            : bags_writer_flush(f.writer, &said));
            film_push(&f, 1);
            film_end(&f);
        }
        assert_ok(bags_writer_close(f.writer, &said));
        film_complete(&f, at("complete%d", i), items, 3);
        assert_same_tree(f.path, at("complete%d", i));
    }
}

static void what_has_no_value_or_was_not_flushed_is_not_recovered(void **state) {
    static const uint64_t items[] = {2};
    (void)state;
    for (int i = 0; i < 3; i++) {
        reported t;
        film f = film_on(at("set%d", i), 0);
        film_open(&f, false);
        film_add(&f, 2);
        film_flush(&f);
        if (i == 0) { /* it has nothing yet */
            assert_ok(bags_writer_begin(f.writer, &said));
            film_flush(&f);
        } else {
            film_begin(&f, true, i == 1 ? 900 : 3);
        }
        if (i == 2) {
            film_flush(&f);
            bags_writer_cancel(f.writer);
        }
        film_crash(&f);
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        assert_false(t.shards[0].partial);
        check_film(f.path, items, 1, 0);
    }
}

static void a_field_without_a_value_stops_recovery_which_names_it(void **state) {
    static const uint64_t items[] = {2, 40};
    bags_value note = bags_utf8("given"), number = bags_uint(1), notes[2];
    bags_entry given = {"note", &note, 1}, wrong = {"note", &number, 1};
    bags_entry unknown = {"nota", &note, 1}, sequence = {"clip", &note, 1};
    bags_entry two = {"note", notes, 2}, other = {"id", &number, 1};
    bags_entry both[2];
    reported t;
    (void)state;
    notes[0] = notes[1] = note;
    both[0] = other;
    both[1] = given;
    film f = film_on(at("set"), 0);
    film_open(&f, false);
    film_add(&f, 2);
    film_begin(&f, false, 40);
    film_flush(&f);
    film_crash(&f);
    copy_tree(f.path, at("copy"));
    for (int dry = 0; dry < 2; dry++) {
        assert_fails(BAGS_ERROR_UNFINISHED, recover_with(&f, &t, dry, false, NULL, 0));
        assert_says(
            "set: field \"note\": datapoint 1: no value*with values*drop_partial");
        assert_int_equal(t.shards[0].action, BAGS_RECOVERY_FAILED);
        assert_fails(BAGS_ERROR_FIELD, recover_with(&f, &t, dry, false, &unknown, 1));
        assert_says("field \"nota\": unknown field");
        assert_fails(BAGS_ERROR_FIELD, recover_with(&f, &t, dry, false, &sequence, 1));
        assert_says("clip*sequence");
        assert_fails(BAGS_ERROR_FIELD, recover_with(&f, &t, dry, false, &two, 1));
        assert_says("note*exactly one value");
    }
    f.options.existing = BAGS_EXISTING_RESUME;
    assert_refused(BAGS_ERROR_UNFINISHED,
        bags_writer_open(f.path, film_fields, 3, &f.options, &said));
    assert_says("note*bags_recover");
    assert_same_tree(f.path, at("copy"));
    /* What cannot be encoded is found when recovery has begun, and it can be repeated. */
    assert_fails(BAGS_ERROR_VALUE, recover_with(&f, &t, false, false, &wrong, 1));
    assert_says("note*datapoint 1*");
    /* A value that was set stays. */
    assert_ok(recover_with(&f, &t, false, false, both, 2));
    assert_true(t.shards[0].partial);
    check_film(f.path, items, 2, 0);
    bags_reader *reader;
    bags_row row = {0};
    assert_opens(reader, bags_reader_open(f.path, NULL, &said));
    assert_ok(bags_reader_get(reader, 1, NULL, 0, &row, &said));
    assert_text(bags_row_bytes(&row, 2, 0), "given");
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* The value needs the dictionary of the shard, or the codec makes one for it. */
static void a_value_that_is_given_is_encoded_with_the_dictionary(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        toy made = {0, 7, false, false, 0, 0, 0, 0, 0, false};
        bags_registry *registry = toy_registry(&made);
        bags_value note = bags_utf8("given"), found;
        bags_entry given = {"note", &note, 1};
        bags_reader_options reading;
        bags_row row = {0};
        bags_reader *reader;
        reported t;
        film f = film_on(at("set%d", i), 0);
        f.options.registry = registry;
        film_open(&f, false);
        if (i)
            film_add(&f, 2);
        film_begin(&f, false, 40);
        film_flush(&f);
        film_crash(&f);
        bags_recover_options options = recover_options(&t);
        options.values = &given;
        options.values_count = 1;
        options.registry = registry;
        assert_ok(bags_recover(f.path, &options, &t.report, &said));
        assert_true(exists(at("set%d/note.dict", i)));
        memset(&reading, 0, sizeof reading);
        reading.registry = registry;
        assert_opens(reader, bags_reader_open(f.path, &reading, &said));
        assert_ok(bags_reader_get(reader, (uint64_t)i, NULL, 0, &row, &said));
        assert_ok(bags_row_value(&row, 2, 0, NULL, &found, &said));
        assert_int_equal(bags_row_bytes(&row, 2, 0).data[0], 'd');
        assert_int_equal(found.size, 5);
        assert_memory_equal(found.data, "given", 5);
        bags_row_free(&row);
        bags_reader_close(reader);
        bags_registry_free(registry);
    }
}

static void a_datapoint_that_was_not_ended_is_dropped_on_request(void **state) {
    static const uint64_t items[] = {2};
    (void)state;
    for (int i = 0; i < 4; i++) {
        reported dry, t;
        film f = film_on(at("set%d", i), i / 2 ? 5 : 0);
        film_open(&f, false);
        if (i % 2)
            film_add(&f, 2);
        film_begin(&f, false, 40);
        film_flush(&f);
        film_crash(&f);
        assert_ok(recover_with(&f, &dry, true, true, NULL, 0));
        assert_ok(recover_with(&f, &t, false, true, NULL, 0));
        assert_memory_equal(&dry.report, &t.report, sizeof t.report);
        assert_int_equal(
            t.shards[0].action, i % 2 ? BAGS_RECOVERY_FINISHED : BAGS_RECOVERY_REMOVED);
        assert_non_null(strstr(t.reasons[0], "not ended"));
        assert_true(t.shards[0].truncated > 40 * 30 && !t.shards[0].partial);
        if (i % 2) {
            film_complete(&f, at("complete%d", i), items, 1);
            assert_same_tree(f.path, at("complete%d", i));
        } else {
            assert_false(exists(i ? at("set%d/000000", i) : f.path));
        }
    }
}

static void a_resumed_writer_counts_and_continues_after_what_was_flushed(void **state) {
    static const uint64_t items[] = {2, 40, 6, 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        film f = film_on(at("set%d", i), i ? 3 : 0);
        film_open(&f, false);
        film_add(&f, 2);
        film_begin(&f, true, 40);
        film_flush(&f);
        film_push(&f, 300);
        film_crash(&f);
        film_open(&f, true);
        assert_int_equal(bags_writer_resumed(f.writer), 2);
        assert_int_equal(bags_writer_length(f.writer), 0);
        film_begin(&f, true, 6);
        film_flush(&f);
        film_crash(&f);
        film_open(&f, true);
        assert_int_equal(bags_writer_resumed(f.writer), 3);
        film_add(&f, 1);
        assert_ok(bags_writer_close(f.writer, &said));
        film_complete(&f, at("complete%d", i), items, 4);
        assert_same_tree(f.path, at("complete%d", i));
    }
    film f = film_on(at("appended"), 3);
    film_open(&f, false);
    film_begin(&f, true, 4);
    film_flush(&f);
    film_crash(&f);
    f.options.existing = BAGS_EXISTING_REFUSE;
    f.options.existing = BAGS_EXISTING_APPEND;
    assert_refused(BAGS_ERROR_UNFINISHED,
        bags_writer_open(f.path, film_fields, 3, &f.options, &said));
    assert_says("datapoints: 1");
}

/* After its end the datapoint has what was flushed, at least; once that is flushed,
 * everything. */
static void a_datapoint_that_was_ended_has_all_items_once_it_is_flushed(void **state) {
    static const uint64_t items[] = {4, 9};
    (void)state;
    for (int i = 0; i < 2; i++) {
        reported t;
        film f = film_on(at("set%d", i), 0);
        film_open(&f, false);
        film_begin(&f, true, 4);
        film_flush(&f);
        film_push(&f, 5);
        film_end(&f);
        if (i)
            film_flush(&f);
        film_crash(&f);
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        assert_int_equal(t.shards[0].partial, i == 0);
        check_film(f.path, items + i, 1, 0);
    }
}

static void closing_a_datapoint_that_was_begun_leaves_what_was_flushed(void **state) {
    static const uint64_t items[] = {2, 40};
    reported t;
    (void)state;
    film f = film_on(at("set"), 0);
    film_open(&f, false);
    film_add(&f, 2);
    film_begin(&f, true, 40);
    film_flush(&f);
    film_push(&f, 300);
    assert_fails(BAGS_ERROR_STATE, bags_writer_close(f.writer, &said));
    assert_ok(recover_with(&f, &t, false, false, NULL, 0));
    assert_true(t.shards[0].partial);
    check_film(f.path, items, 2, 0);
}

/* A value is refused: what was flushed before stays, after end and close as well, which
 * fail. Only cancel drops it. */
static void a_refused_datapoint_keeps_what_was_flushed_until_it_is_dropped(
    void **state) {
    static const uint64_t items[][2] = {{2, 40}, {2, 43}, {2, 40}, {2, 40}, {2, 0}};
    bags_value wrong = bags_uint(1);
    (void)state;
    for (int i = 0; i < 5; i++) {
        reported t;
        film f = film_on(at("set%d", i), 0);
        film_open(&f, false);
        film_add(&f, 2);
        film_begin(&f, true, 40);
        film_flush(&f);
        film_push(&f, 3);
        assert_fails(
            BAGS_ERROR_VALUE, bags_writer_push(f.writer, "clip", &wrong, &said));
        if (i == 1)
            film_flush(&f);
        if (i == 2) {
            assert_fails(BAGS_ERROR_VALUE, bags_writer_end(f.writer, &said));
            assert_fails(BAGS_ERROR_VALUE, bags_writer_begin(f.writer, &said));
        }
        if (i == 3) {
            assert_fails(BAGS_ERROR_VALUE, bags_writer_close(f.writer, &said));
            f.writer = NULL;
        }
        if (i == 4)
            bags_writer_cancel(f.writer);
        film_crash(&f);
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        check_film(f.path, items[i], i == 4 ? 1 : 2, 0);
    }
}

/* As after a power failure: each flush is found, and nothing that was not written. */
static void damaged_drafts_lead_to_an_earlier_flush(void **state) {
    static const uint64_t flushed[][2] = {{2, 0}, {2, 3}, {2, 5}, {2, 9}};
    (void)state;
    film f = film_on(at("model"), 0);
    film_open(&f, false);
    film_add(&f, 2);
    film_begin(&f, true, 3);
    film_flush(&f);
    film_push(&f, 2);
    film_flush(&f);
    film_push(&f, 4);
    film_flush(&f);
    film_crash(&f);
    bytes drafts = load(at("model/refs.partial"));
    assert_int_equal(drafts.size, 3 * (8 + 3 * 16 + 4));
    size_t one = drafts.size / 3;
    for (size_t i = 0; i < 2 * drafts.size; i++) {
        reported t;
        size_t where = i % drafts.size;
        bool truncated = i < drafts.size;
        f.path = at("one");
        copy_tree(at("model"), f.path);
        drafts.data[where] ^= 0x5a;
        save(at("one/refs.partial"), drafts.data, truncated ? where : drafts.size);
        drafts.data[where] ^= 0x5a;
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        size_t found = truncated ? where / one : where / one == 2 ? 2 : 3;
        check_film(f.path, flushed[found], found ? 2 : 1, 0);
        assert_int_equal(t.shards[0].partial, found > 0);
        remove_tree(f.path);
    }
    bytes_free(&drafts);
}

/* Its blobs are not in the files, as after a power failure. */
static void flushed_items_that_are_missing_are_not_removed_silently(void **state) {
    static const uint64_t items[] = {2, 3};
    (void)state;
    for (int i = 0; i < 4; i++) {
        reported t;
        film f = film_on(at("set%d", i), 0);
        film_open(&f, false);
        if (i % 2)
            film_add(&f, 2);
        film_begin(&f, true, 3);
        if (i / 2)
            film_flush(&f);
        film_push(&f, 4);
        film_flush(&f);
        film_crash(&f);
        const char *journal = at("set%d/clip.idx", i);
        resize_file(journal, file_size(journal) - (i / 2 ? 16 : 40));
        if (i == 0) { /* nothing else exists: it stays */
            assert_fails(
                BAGS_ERROR_CORRUPT, recover_with(&f, &t, false, false, NULL, 0));
            assert_says("set0*not complete*drop_partial");
            assert_ok(recover_with(&f, &t, false, true, NULL, 0));
            assert_false(exists(f.path));
            continue;
        }
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        assert_non_null(strstr(t.reasons[0], i == 1 ? "journal ends" : ""));
        check_film(f.path, i == 2 ? items + 1 : items, i == 3 ? 2 : 1, 0);
    }
}

static void live_readers_show_only_datapoints_that_were_ended(void **state) {
    static const uint64_t items[] = {2, 40};
    bags_reader_options options;
    (void)state;
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_READ;
    film f = film_on(at("set"), 0);
    film_open(&f, false);
    for (int i = 0; i < 2; i++) {
        bags_reader *reader;
        film_begin(&f, true, items[i]);
        film_flush(&f);
        assert_opens(reader, bags_reader_open(f.path, &options, &said));
        assert_int_equal(bags_reader_length(reader), i);
        bags_reader_close(reader);
        film_end(&f);
        film_flush(&f);
    }
    assert_ok(bags_writer_close(f.writer, &said));
    check_film(f.path, items, 2, 0);
}

/* A writer that resumes ends the drafts of datapoints which it writes again. */
static void drafts_of_an_earlier_writer_are_not_used_for_other_datapoints(
    void **state) {
    static const uint64_t items[] = {2, 3};
    reported t;
    (void)state;
    film f = film_on(at("set"), 0);
    film_open(&f, false);
    film_add(&f, 2);
    film_add(&f, 1);
    assert_ok(bags_writer_begin(f.writer, &said));
    film_push(&f, 4);
    film_flush(&f);
    film_crash(&f);
    resize_file(at("set/refs.idx"), 8); /* a power failure: the second is lost */
    film_open(&f, true);
    assert_int_equal(f.id, 1);
    film_add(&f, 3);
    film_flush(&f);
    f.take = 1;
    film_begin(&f, true, 900);
    film_crash(&f);
    assert_ok(recover_with(&f, &t, false, false, NULL, 0));
    assert_false(t.shards[0].partial);
    check_film(f.path, items, 2, 0);
}

static void abort_restores_what_was_flushed_before_resume(void **state) {
    static const uint64_t items[] = {2, 40, 6};
    (void)state;
    for (int i = 0; i < 3; i++) {
        reported t;
        film f = film_on(at("set%d", i), 0);
        film_open(&f, false);
        film_add(&f, 2);
        film_begin(&f, true, 40);
        film_flush(&f);
        film_crash(&f);
        film_open(&f, true);
        film_begin(&f, true, 6);
        film_flush(&f);
        if (i == 1)
            film_end(&f);
        if (i == 2)
            film_flush(&f);
        bags_writer_abort(f.writer);
        assert_ok(recover_with(&f, &t, false, false, NULL, 0));
        assert_false(t.shards[0].partial); /* it was completed when it was resumed */
        assert_string_equal(t.reasons[0], "");
        check_film(f.path, items, 2, 0);
    }
    film f = film_on(at("new"), 0);
    film_open(&f, false);
    film_begin(&f, true, 6);
    film_flush(&f);
    bags_writer_abort(f.writer);
    assert_false(exists(f.path));
}

static void each_worker_keeps_what_it_flushed(void **state) {
    static const uint64_t items[] = {40};
    bags_value note = bags_utf8("given");
    bags_entry given = {"note", &note, 1};
    reported t;
    (void)state;
    film f[3];
    for (int i = 0; i < 3; i++) {
        f[i] = film_on(at("set"), 5);
        f[i].options.shard_start = (uint64_t)i;
        f[i].options.shard_stop = 3;
        film_open(&f[i], false);
        film_begin(&f[i], i != 1, 40);
        film_flush(&f[i]);
        film_push(&f[i], 2);
        film_crash(&f[i]);
    }
    /* The failure of one does not stop the others. */
    assert_fails(BAGS_ERROR_UNFINISHED, recover_with(f, &t, false, false, NULL, 0));
    assert_says("000001*note");
    assert_int_equal(t.report.finished_now, 2);
    assert_int_equal(t.report.failed, 1);
    assert_ok(recover_with(f, &t, false, false, &given, 1));
    assert_int_equal(t.report.finished_before, 2);
    assert_int_equal(t.report.finished_now, 1);
    for (int i = 0; i < 3; i++)
        check_film(at("set/%06d", i), items, 1, 0);
}

#undef TEST
#define TEST(function)                                                                 \
    cmocka_unit_test_setup_teardown(function, quick_setup, support_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(recovery_writes_the_bytes_that_the_writer_would_have_written),
        TEST(shards_limited_by_size_are_recovered_too),
        TEST(recovery_keeps_journals_on_request),
        TEST(a_dry_run_reports_everything_and_changes_nothing),
        TEST(truncated_files_keep_their_complete_datapoints),
        TEST(trailing_bytes_are_truncated),
        TEST(datapoints_end_before_damage_in_the_middle),
        TEST(a_shard_without_datapoints_is_removed),
        TEST(files_that_no_writer_creates_stay),
        TEST(directories_without_a_record_are_left_alone),
        TEST(a_damaged_record_is_an_error_and_stays),
        TEST(a_shard_with_tables_but_no_journals_is_not_removed),
        TEST(the_shard_of_a_running_writer_is_left_alone),
        TEST(an_unfinished_shard_is_said_to_be_written_or_left),
        TEST(the_shard_of_a_writer_in_another_process_is_left_alone),
        TEST(recovery_can_be_limited_to_the_shards_of_one_worker),
        TEST(a_resumed_dataset_equals_one_that_was_never_interrupted),
        TEST(killed_workers_can_resume),
        TEST(resuming_a_sharded_dataset_as_unsharded_is_refused_with_a_remedy),
        TEST(resume_starts_a_dataset_that_does_not_exist),
        TEST(finished_shards_are_followed_by_new_ones),
        TEST(a_finished_unsharded_dataset_cannot_be_resumed),
        TEST(resuming_with_other_fields_is_refused),
        TEST(sharded_and_unsharded_are_not_mixed),
        TEST(abort_restores_what_existed_before_resume),
        TEST(abort_may_be_interrupted_anywhere),
        TEST(flush_alone_makes_datapoints_recoverable),
        TEST(recovery_at_any_time_does_not_harm_a_running_writer),
        TEST(a_writer_that_finishes_does_not_disturb_a_recovery),
        TEST(a_shard_with_checksums_is_recovered_with_them),
        TEST(a_record_with_other_whitespace_is_recovered_with_its_checksums),
        TEST(datapoints_end_before_a_checksum_mismatch),
        TEST(truncated_checksums_end_the_datapoints),
        TEST(resuming_with_and_without_checksums),
        TEST(abort_restores_checksums_too),
        TEST(a_shard_with_checksums_and_no_datapoint_is_removed),
        TEST(the_flushed_blobs_of_a_standalone_bag_are_copied),
        TEST(a_truncated_standalone_bag_keeps_its_complete_blobs),
        TEST(the_flushed_blobs_of_a_standalone_bag_survive_a_kill_at_any_call),
        TEST(files_are_not_recovered),
        TEST(rows_without_any_journal_are_not_removed),
        TEST(a_bag_is_not_written_next_to_the_checksums_of_another),
        TEST(what_was_flushed_of_a_datapoint_is_recovered),
        TEST(flushes_of_datapoints_that_are_ended_leave_no_trace),
        TEST(what_has_no_value_or_was_not_flushed_is_not_recovered),
        TEST(a_field_without_a_value_stops_recovery_which_names_it),
        TEST(a_value_that_is_given_is_encoded_with_the_dictionary),
        TEST(a_datapoint_that_was_not_ended_is_dropped_on_request),
        TEST(a_resumed_writer_counts_and_continues_after_what_was_flushed),
        TEST(a_datapoint_that_was_ended_has_all_items_once_it_is_flushed),
        TEST(closing_a_datapoint_that_was_begun_leaves_what_was_flushed),
        TEST(a_refused_datapoint_keeps_what_was_flushed_until_it_is_dropped),
        TEST(damaged_drafts_lead_to_an_earlier_flush),
        TEST(flushed_items_that_are_missing_are_not_removed_silently),
        TEST(live_readers_show_only_datapoints_that_were_ended),
        TEST(drafts_of_an_earlier_writer_are_not_used_for_other_datapoints),
        TEST(abort_restores_what_was_flushed_before_resume),
        TEST(each_worker_keeps_what_it_flushed),
    };
    return cmocka_run_group_tests_name("recover", tests, NULL, NULL);
}
