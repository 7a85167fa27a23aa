/*
 * Recovery and resuming when any call may fail: a program writes datasets on a
 * disk in memory, crashes, recovers and resumes them, and reads and verifies them.
 * At its N-th call of a file hook, or its N-th allocation, for every N, there is a
 * fault; or it is killed there, in the middle of a write. Then, without faults,
 * everything that was flushed must exist, and resuming must end with the same
 * bytes as if nothing had happened.
 */
// flavours: test: release; check: release
#include "check.h"
#include "durability.h"
#include "toy.h"

#include <errno.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif
#include <unistd.h>

/* ---- the program ---- */

enum { BY_LENGTH, ONE, TWO, BY_SIZE, FIRST_OF_TWO, SECOND_OF_TWO, SHARED, WORKS };

static const uint64_t totals[WORKS] = {14, 6, 9, 9, 4, 3, 5};

/* SHARED has a dictionary, for which its first blobs are held. */
static toy with_dictionary;
static bags_registry *with_toy;

typedef struct world {
    memory_disk drive;
    crash_device device;
    ration blocks;
    work works[WORKS];
    bool repeated;     /* see verify_watched */
    const char *where; /* the step that failed */
    bool crashes;      /* it crashes, instead of closing a writer that failed */
} world;

#define OPEN(object, call) OPEN_STEP(object, call, said)

static void world_start(world *w) {
    memset(w, 0, sizeof *w);
    memory_disk_start(&w->drive);
    crash_device_start(&w->device, &w->drive.io);
    ration_start(&w->blocks);
    w->works[BY_LENGTH] = work_on("above/by_length", 4, NULL);
    w->works[ONE] = work_on("one", 0, NULL);
    w->works[TWO] = work_on("two", 0, NULL);
    w->works[BY_SIZE] = work_on("by_size", 0, NULL);
    w->works[BY_SIZE].options.shard_size = 6000;
    w->works[BY_SIZE].options.keep_idx = true;
    for (uint64_t i = 0; i < 2; i++) {
        work *each = &w->works[FIRST_OF_TWO + i];
        *each = work_on("pair", 2, NULL);
        each->options.shard_start = i;
        each->options.shard_stop = 2;
        each->first = 1000 * (i + 1);
    }
    w->works[SHARED] = work_on("shared", 3, NULL);
    w->works[SHARED].options.registry = with_toy;
    for (int i = 0; i < WORKS; i++) {
        w->works[i].options.checksum = i == BY_LENGTH || i == ONE || i >= FIRST_OF_TWO;
        w->works[i].options.env.io = &w->device.io;
        w->works[i].options.env.allocator = &w->blocks.allocator;
    }
}

static void world_end(world *w, uint64_t n) {
    if (w->blocks.live || w->device.files.files || w->device.files.maps)
        fail_msg("fault %d in %s leaves %d blocks, %d files, %d mappings", (int)n,
            w->where, (int)w->blocks.live, w->device.files.files, w->device.files.maps);
    memory_disk_free(&w->drive);
}

/* Write, flush now and then, and crash after `death` datapoints. */
static bags_code begin(world *w, int which, uint64_t death) {
    work *each = &w->works[which];
    bags_writer *writer = NULL;
    bags_code code;
    OPEN(writer, work_open(each, false, &said));
    for (uint64_t i = 1; i <= death; i++) {
        STEP(work_append(each, writer, &said));
        if (i % 3 == 0)
            STEP(work_flush(each, writer, &said));
        if (i == 7)
            STEP(work_sync(each, writer, &said));
    }
done:
    if (code && !w->crashes)
        bags_writer_close(writer, NULL);
    else
        crash_writer(&w->device, writer);
    return code;
}

/* Resume, and finish. */
static bags_code resume_work(world *w, int which) {
    work *each = &w->works[which];
    uint64_t flushed = each->flushed, appended = each->appended;
    bags_writer *writer = NULL;
    bags_code code;
    OPEN(writer, work_open(each, true, &said));
    if (each->flushed < flushed || each->flushed > appended)
        fail_msg("%s: %d datapoints found, %d were flushed, %d appended", each->path,
            (int)each->flushed, (int)flushed, (int)appended);
    STEP(work_append_to(each, writer, totals[which], &said));
done:
    if (code && w->crashes)
        crash_writer(&w->device, writer);
    else if (code)
        bags_writer_close(writer, NULL);
    if (code)
        return code;
    w->where = "work_close";
    poison();
    return work_close(each, writer, &said);
}

static bags_code recover(world *w, const char *path) {
    bags_env env = {&w->blocks.allocator, &w->device.io};
    bags_code code;
    STEP(recover_path(path, &env, NULL, &said));
done:
    return code;
}

static bags_code read_back(world *w, int which) {
    work *each = &w->works[which];
    poison();
    w->where = "read_back";
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &w->device.io;
    options.env.allocator = &w->blocks.allocator;
    finding f = work_read_all(each, &options);
    if (f.error.code) {
        said = f.error;
        return f.error.code;
    }
    if (f.right != f.length || f.length < each->flushed)
        fail_msg("%s: %d of %d datapoints are right", each->path, (int)f.right,
            (int)f.length);
    poison();
    w->where = "verify";
    return verify_watched(each->path, each->options.registry, &options.env,
        &w->device.files, f.length, work_blobs(each, f.length), &w->repeated, &said);
}

static bags_code run(world *w) {
    bags_code code;
    if ((code = begin(w, BY_LENGTH, 10)) != BAGS_OK)
        return code;
    if ((code = resume_work(w, BY_LENGTH)) != BAGS_OK)
        return code;
    if ((code = begin(w, ONE, 6)) != BAGS_OK)
        return code;
    if ((code = recover(w, "one")) != BAGS_OK)
        return code;
    if ((code = begin(w, TWO, 6)) != BAGS_OK)
        return code;
    if ((code = resume_work(w, TWO)) != BAGS_OK)
        return code;
    if ((code = begin(w, BY_SIZE, 6)) != BAGS_OK)
        return code;
    if ((code = resume_work(w, BY_SIZE)) != BAGS_OK)
        return code;
    if ((code = begin(w, SECOND_OF_TWO, 3)) != BAGS_OK)
        return code;
    if ((code = resume_work(w, FIRST_OF_TWO)) != BAGS_OK)
        return code;
    if ((code = recover(w, "pair")) != BAGS_OK)
        return code;
    if ((code = begin(w, SHARED, 4)) != BAGS_OK)
        return code;
    if ((code = resume_work(w, SHARED)) != BAGS_OK)
        return code;
    if ((code = read_back(w, SHARED)) != BAGS_OK)
        return code;
    return read_back(w, BY_LENGTH);
}

/* ---- what remains ---- */

static bool is_there(world *w, const char *path) {
    bags_path_kind kind = BAGS_PATH_NONE;
    w->drive.io.kind(w->drive.io.user, path, &kind);
    return kind != BAGS_PATH_NONE;
}

/* Recovery returns all flushed datapoints, and no more than were appended. */
static void check_recovery(world *w, uint64_t n) {
    for (int i = 0; i < WORKS; i++) {
        work *each = &w->works[i];
        bags_env env = {NULL, &w->drive.io};
        bags_error err;
        err.message[0] = 0;
        bags_code code = is_there(w, each->path)
                             ? recover_path(each->path, &env, NULL, &err)
                             : BAGS_ERROR_MISSING;
        if (code && (code != BAGS_ERROR_MISSING || each->flushed))
            fail_msg("fault %d, %s: %s: not recovered: %s", (int)n, w->where,
                each->path, err.message);
        finding f = work_find(each, &w->drive.io, false);
        if (f.length < each->flushed || f.length > each->appended ||
            f.right != f.length || (f.opened && !f.verified))
            fail_msg("fault %d, %s: %s: %d datapoints, of which %d are right; "
                     "%d were flushed, %d appended",
                (int)n, w->where, each->path, (int)f.length, (int)f.right,
                (int)each->flushed, (int)each->appended);
    }
}

/* What the disk would contain if nothing had happened. */
static void make_reference(memory_disk *m) {
    world *w = (world *)calloc(1, sizeof *w);
    world_start(w);
    for (int i = 0; i < WORKS; i++) {
        bags_writer *writer;
        w->works[i].options.env.io = &w->drive.io;
        assert_opens(writer, work_open(&w->works[i], false, &said));
        assert_ok(work_append_to(&w->works[i], writer, totals[i], &said));
        assert_ok(work_close(&w->works[i], writer, &said));
    }
    *m = w->drive;
    m->io.user = m;
    free(w);
}

static void finish_work(world *w, int which, uint64_t n) {
    work *each = &w->works[which];
    each->options.env.io = &w->drive.io;
    bags_code code = resume_work(w, which);
    if (code == BAGS_ERROR_EXISTS && (which == ONE || which == TWO)) {
        finding f = work_find(each, &w->drive.io, false);
        code = f.right == totals[which] ? BAGS_OK : code;
    }
    if (code)
        fail_msg(
            "fault %d: %s cannot be resumed: %s", (int)n, each->path, said.message);
}

/* Resuming ends with the same bytes as if nothing had happened. */
static void check_resuming(world *w, const memory_disk *expected, uint64_t n) {
    const char *where = w->where;
    for (int i = 0; i < WORKS; i++)
        finish_work(w, i, n);
    drop_journals(&w->drive.io, "above");
    drop_journals(&w->drive.io, "one");
    drop_journals(&w->drive.io, "two");
    drop_journals(&w->drive.io, "pair");
    drop_journals(&w->drive.io, "shared");
    if (!is_same_disk(&w->drive, expected))
        fail_msg("after fault %d in %s resuming ends with other bytes", (int)n, where);
}

typedef struct fault {
    const char *name;
    unsigned only; /* a bit per hook; 0: all */
    int error;
    bool stays;
    bool memory;
} fault;

/* Calls whose failure need not be reported: closing a file that was only read,
 * mapping, removing journals and finding out whether they may be removed; a lock that
 * was taken once, since the claim is repeated; and too many open files, since a file is
 * also opened only to request its bytes. */
static bool may_be_silent(const world *w) {
    int last = w->device.files.last;
    if (last == HOOK_LOCK && w->device.files.fail_with == EWOULDBLOCK)
        return true;
    if (last == HOOK_OPEN && w->device.files.fail_with == EMFILE)
        return true;
    return last == HOOK_MAP || last == HOOK_UNMAP || last == HOOK_REMOVE ||
           last == HOOK_IDENTIFY || (last == HOOK_CLOSE && !w->device.files.lost_bags);
}

static void check_report(world *w, const fault *how, bags_code code, uint64_t n) {
    bags_code expected =
        how->memory ? BAGS_ERROR_MEMORY
        : how->error == EWOULDBLOCK && w->device.files.last == HOOK_LOCK
            ? said.code
            : BAGS_ERROR_IO;
    if (!code && (how->memory || (!how->stays && !w->repeated && !may_be_silent(w))))
        fail_msg("%s %d in %s (%s) was passed over", how->name, (int)n, w->where,
            hook_names[w->device.files.last]);
    if (!code)
        return;
    CHECK(is_code((int)expected, (int)code, w->where));
    if (code == BAGS_ERROR_IO && said.system != how->error)
        fail_msg("%s %d: errno %d: %s", how->name, (int)n, said.system, said.message);
}

/* One fault and its consequences. Returns true if the fault was reached. */
static bool meet(const fault *how, uint64_t n, const memory_disk *expected) {
    world *w = (world *)calloc(1, sizeof *w);
    world_start(w);
    w->crashes = expected != NULL;
    if (how->memory) {
        w->blocks.fail_at = n;
        w->blocks.stays = how->stays;
    } else {
        w->device.files.only = how->only;
        w->device.files.fail_at = n;
        w->device.files.stays = how->stays;
        w->device.files.fail_with = how->error;
    }
    bags_code code = run(w);
    bool reached = w->blocks.failed || w->device.files.failed;
    if (reached)
        check_report(w, how, code, n);
    else
        assert_int_equal(code, BAGS_OK);
    w->blocks.fail_at = w->device.files.fail_at = 0;
    if (w->blocks.live || w->device.files.files || w->device.files.maps)
        fail_msg("%s %d in %s leaves %d blocks, %d files, %d mappings", how->name,
            (int)n, w->where, (int)w->blocks.live, w->device.files.files,
            w->device.files.maps);
    if (expected)
        check_resuming(w, expected, n);
    else
        check_recovery(w, n);
    world_end(w, n);
    free(w);
    return reached;
}

static void sweep(const fault *how) {
    memory_disk expected;
    int points = 0;
    make_reference(&expected);
    for (uint64_t n = 1; meet(how, n, NULL) && meet(how, n, &expected);
         n += support_stride())
        points++;
    memory_disk_free(&expected);
    print_message("%s: %d points, recovered and resumed\n", how->name, points);
    assert_true(points > 1);
}

/* ---- tests ---- */

static void the_program_works_without_faults(void **state) {
    fault none = {"no fault", 0, EIO, false, false};
    memory_disk expected;
    (void)state;
    make_reference(&expected);
    assert_false(meet(&none, UINT64_MAX, NULL));
    assert_false(meet(&none, UINT64_MAX, &expected));
    memory_disk_free(&expected);
}

static void a_kill_at_any_call_loses_nothing_flushed(void **state) {
    fault how = {"killed", 0, EIO, true, false};
    (void)state;
    sweep(&how);
}

static void any_call_may_fail_once(void **state) {
    fault how = {"EIO", 0, EIO, false, false};
    (void)state;
    sweep(&how);
}

static void the_disk_may_be_full_at_any_write(void **state) {
    const unsigned writes = 1u << HOOK_WRITE | 1u << HOOK_SYNC | 1u << HOOK_TRUNCATE |
                            1u << HOOK_MAKE_DIR | 1u << HOOK_OPEN | 1u << HOOK_RENAME |
                            1u << HOOK_CLOSE;
    fault once = {"ENOSPC once", writes, ENOSPC, false, false};
    fault stays = {"ENOSPC for good", writes, ENOSPC, true, false};
    (void)state;
    sweep(&once);
    sweep(&stays);
}

static void each_kind_of_call_may_fail(void **state) {
    fault interrupted = {"EINTR",
        1u << HOOK_WRITE | 1u << HOOK_READ | 1u << HOOK_SYNC_DIR, EINTR, false, false};
    fault files = {"EMFILE", 1u << HOOK_OPEN | 1u << HOOK_LIST, EMFILE, false, false};
    fault rights = {"EACCES",
        1u << HOOK_OPEN | 1u << HOOK_KIND | 1u << HOOK_RENAME | 1u << HOOK_MAKE_DIR,
        EACCES, true, false};
    fault quota = {"EDQUOT", 1u << HOOK_WRITE, EDQUOT, true, false};
    fault lock = {"lock taken", 1u << HOOK_LOCK, EWOULDBLOCK, false, false};
    fault no_locks = {"ENOLCK", 1u << HOOK_LOCK, ENOLCK, true, false};
    (void)state;
    sweep(&interrupted);
    sweep(&files);
    sweep(&rights);
    sweep(&quota);
    sweep(&lock);
    sweep(&no_locks);
}

static void any_allocation_may_fail(void **state) {
    fault once = {"no memory once", 0, 0, false, true};
    fault stays = {"no memory any more", 0, 0, true, true};
    (void)state;
    sweep(&once);
    sweep(&stays);
}

static void reads_and_writes_may_be_short(void **state) {
    memory_disk expected;
    (void)state;
    make_reference(&expected);
    for (size_t chunk = 1; chunk < 5000; chunk = chunk * 4 + 3) {
        world *w = (world *)calloc(1, sizeof *w);
        world_start(w);
        w->device.files.chunk = chunk;
        if (run(w))
            fail_msg(
                "with %d bytes at once, %s: %s", (int)chunk, w->where, said.message);
        check_resuming(w, &expected, chunk);
        world_end(w, chunk);
        free(w);
    }
    memory_disk_free(&expected);
}

/* Datasets of crashed writers, created again for each point. */
static void leave_crashed(world *w) {
    world_start(w);
    assert_int_equal(begin(w, BY_LENGTH, 10), BAGS_OK);
    assert_int_equal(begin(w, SECOND_OF_TWO, 3), BAGS_OK);
    assert_int_equal(begin(w, SHARED, 4), BAGS_OK);
    w->device.files.calls = 0;
}

static void a_recovery_killed_at_any_call_can_be_repeated(void **state) {
    static const char *const paths[] = {"above/by_length", "pair", "shared"};
    (void)state;
    for (int p = 0; p < 3; p++) {
        world *complete = (world *)calloc(1, sizeof *complete);
        leave_crashed(complete);
        assert_int_equal(recover(complete, paths[p]), BAGS_OK);
        uint64_t n = 1;
        for (bool reached = true; reached; n++) {
            world *w = (world *)calloc(1, sizeof *w);
            leave_crashed(w);
            crash_at(&w->device, n);
            recover(w, paths[p]);
            reached = w->device.files.failed > 0;
            w->device.files.fail_at = 0;
            assert_int_equal(recover(w, paths[p]), BAGS_OK);
            drop_journals(&w->drive.io, paths[p]);
            if (!is_same_disk(&w->drive, &complete->drive))
                fail_msg("recovery killed at call %d ends differently", (int)n);
            world_end(w, n);
            free(w);
        }
        print_message("recovery of %s: killed at %d points\n", paths[p], (int)n - 2);
        assert_true(n > 10);
        world_end(complete, 0);
        free(complete);
    }
}

/* ---- flushes inside of datapoints ---- */

typedef struct piece_world {
    memory_disk drive;
    crash_device device;
    ration blocks;
    in_pieces job;
} piece_world;

static piece_world *start_pieces(const fault *how, uint64_t n, int variant) {
    piece_world *w = (piece_world *)calloc(1, sizeof *w);
    memory_disk_start(&w->drive);
    crash_device_start(&w->device, &w->drive.io);
    ration_start(&w->blocks);
    pieces_start(&w->job, "set", variant % 2 ? 3 : 0, &w->device.io);
    w->job.options.env.allocator = &w->blocks.allocator;
    w->job.options.checksum = variant / 2;
    if (how->memory) {
        w->blocks.fail_at = n;
        w->blocks.stays = how->stays;
    } else {
        w->device.files.only = how->only;
        w->device.files.fail_at = n;
        w->device.files.stays = how->stays;
        w->device.files.fail_with = how->error;
    }
    return w;
}

/* End the writer: it crashes, or is closed, since it failed. */
static void end_pieces(piece_world *w, bool crashes) {
    if (crashes)
        crash_writer(&w->device, w->job.writer);
    else
        bags_writer_close(w->job.writer, NULL);
    w->job.writer = NULL;
    w->blocks.fail_at = w->device.files.fail_at = 0;
}

/* Recover or resume, at whose n-th call `again` is killed; then once more. */
static bool finish_pieces(piece_world *w, bool resume, uint64_t again) {
    in_pieces *p = &w->job;
    bags_env env = {&w->blocks.allocator, &w->device.io};
    bags_path_kind kind = BAGS_PATH_NONE;
    w->device.files.calls = w->device.files.failed = 0;
    if (again)
        crash_at(&w->device, again);
    bags_code code = BAGS_OK;
    for (int tries = again ? 0 : 1; tries < 2; tries++) {
        w->drive.io.kind(w->drive.io.user, "set", &kind);
        code = BAGS_OK;
        if (resume && kind != BAGS_PATH_NONE)
            code = pieces_resume(p, &said);
        else if (kind != BAGS_PATH_NONE)
            code = recover_path("set", &env, NULL, &said);
        if (p->writer)
            end_pieces(w, true);
        if (tries == 0)
            w->device.files.fail_at = 0;
    }
    /* Nothing remained; or what failed had finished. */
    if (code == BAGS_ERROR_MISSING && !p->certain_length && !p->certain_items)
        code = BAGS_OK;
    if (code == BAGS_ERROR_EXISTS && resume)
        code = BAGS_OK;
    if (code)
        fail_msg("%s: %s", resume ? "resume" : "recover", said.message);
    return w->device.files.failed > 0;
}

static void check_pieces(
    piece_world *w, const fault *how, uint64_t n, int variant, const char *what) {
    const char *wrong = pieces_fault(&w->job, &w->drive.io);
    if (wrong)
        fail_msg("%s %d, variant %d, %s, in %s: %s", how->name, (int)n, variant, what,
            w->job.where, wrong);
    if (w->blocks.live || w->device.files.files)
        fail_msg("%s %d leaves %d blocks, %d files", how->name, (int)n,
            (int)w->blocks.live, w->device.files.files);
}

static void sweep_pieces(const fault *how) {
    int points = 0;
    for (int variant = 0; variant < 8; variant++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n += support_stride(), points++) {
            piece_world *w = start_pieces(how, n, variant % 4);
            bags_code code = pieces_write(&w->job, &said);
            reached = w->blocks.failed || w->device.files.failed;
            end_pieces(w, !code || how->stays);
            finish_pieces(w, variant / 4, 0);
            check_pieces(w, how, n, variant, variant / 4 ? "resumed" : "recovered");
            memory_disk_free(&w->drive);
            free(w);
        }
    }
    print_message("%s: %d points\n", how->name, points);
    assert_true(points > 16);
}

static void a_kill_at_any_call_keeps_what_was_flushed_inside_a_datapoint(void **state) {
    fault how = {"killed", 0, EIO, true, false};
    (void)state;
    sweep_pieces(&how);
}

static void after_any_failure_what_was_flushed_inside_a_datapoint_is_kept(
    void **state) {
    fault once = {"EIO", 0, EIO, false, false};
    fault full = {"ENOSPC", 1u << HOOK_WRITE, ENOSPC, false, false};
    fault no_memory = {"no memory", 0, 0, false, true};
    (void)state;
    sweep_pieces(&once);
    sweep_pieces(&full);
    sweep_pieces(&no_memory);
}

/* Killed at any call; then recovery, or a writer that resumes, is killed, too. */
static void completing_a_datapoint_may_be_killed_and_repeated(void **state) {
    const fault none = {"no fault", 0, EIO, true, false};
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n += support_stride()) {
            piece_world *w = start_pieces(&none, UINT64_MAX, variant % 4);
            assert_ok(pieces_write(&w->job, &said));
            end_pieces(w, true);
            reached = finish_pieces(w, variant / 4, n);
            check_pieces(w, &none, n, variant, "repeated");
            memory_disk_free(&w->drive);
            free(w);
        }
    }
}

/* ---- a process that crashes ---- */

/* The process exits at the n-th call without closing anything. */
static void exit_in_a_process(uint64_t n, const char *path) {
    crash_device device;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        int status;
        assert_true(waitpid(child, &status, 0) == child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        return;
    }
    crash_device_start(&device, bags_io_local());
    crash_at(&device, n);
    work w = work_on(path, 4, &device.io);
    bags_writer *writer = work_open(&w, false, NULL);
    for (int i = 0; i < 9 && writer; i++) {
        if (work_append(&w, writer, NULL) || work_flush(&w, writer, NULL))
            break;
        /* The length of this file tells the parent how many were flushed. */
        FILE *reported = fopen(at("reported"), "ab");
        fputc('.', reported);
        fclose(reported);
    }
    _exit(device.files.failed ? 1 : 0);
}

static void a_process_that_exits_at_any_call_loses_nothing_flushed(void **state) {
    (void)state;
    skip_on_windows("needs fork");
    work complete = work_on(at("complete"), 4, NULL);
    bags_writer *writer;
    assert_opens(writer, work_open(&complete, false, &said));
    assert_ok(work_append_to(&complete, writer, 9, &said));
    assert_ok(work_close(&complete, writer, &said));
    for (uint64_t n = 1; n < 190; n += 7) {
        save(at("reported"), NULL, 0);
        exit_in_a_process(n, at("set"));
        uint64_t flushed = file_size(at("reported"));
        work w = work_on(at("set"), 4, &disk.io);
        w.options.env.allocator = &memory.allocator;
        assert_opens(writer, work_open(&w, true, &said));
        if (bags_writer_resumed(writer) < flushed ||
            bags_writer_resumed(writer) > flushed + 1)
            fail_msg("crashed at call %d: %d found, %d flushed", (int)n,
                (int)bags_writer_resumed(writer), (int)flushed);
        assert_ok(work_append_to(&w, writer, 9, &said));
        assert_ok(work_close(&w, writer, &said));
        drop_journals(bags_io_local(), at("set"));
        assert_same_tree(at("set"), at("complete"));
        remove_tree(at("set"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_program_works_without_faults),
        TEST(a_kill_at_any_call_loses_nothing_flushed),
        TEST(any_call_may_fail_once),
        TEST(the_disk_may_be_full_at_any_write),
        TEST(each_kind_of_call_may_fail),
        TEST(any_allocation_may_fail),
        TEST(reads_and_writes_may_be_short),
        TEST(a_recovery_killed_at_any_call_can_be_repeated),
        TEST(a_kill_at_any_call_keeps_what_was_flushed_inside_a_datapoint),
        TEST(after_any_failure_what_was_flushed_inside_a_datapoint_is_kept),
        TEST(completing_a_datapoint_may_be_killed_and_repeated),
        TEST(a_process_that_exits_at_any_call_loses_nothing_flushed),
    };
    with_dictionary.after = 1000;
    with_dictionary.holds = 1;
    with_toy = toy_registry(&with_dictionary);
    int failed = cmocka_run_group_tests_name("faults", tests, NULL, NULL);
    bags_registry_free(with_toy);
    return failed;
}
