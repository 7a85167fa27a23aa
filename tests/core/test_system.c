/*
 * Real system calls fail. A program in a process of its own writes datasets,
 * flushes, crashes, resumes, recovers and reads. Its N-th call fails, or it is
 * killed there; or the disk is full, files may not grow, there are too few file
 * descriptors, or permissions are missing. Then, without faults, everything that
 * was flushed must exist, and resuming must end with the same bytes as if nothing
 * had happened.
 *
 * A seeded sample of the points is tested; with BAGS_SOAK set, every one. Tests
 * that need root are skipped where it is not permitted.
 */
// flavours: check: release asan; soak: release asan
#define _GNU_SOURCE 1
#include "check.h"
#include "durability.h"
#include "system/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_soak(void) { return getenv("BAGS_SOAK") != NULL; }

/* ---- the program ---- */

enum { SHARDS, ONE, FIRST_OF_TWO, SECOND_OF_TWO, WORKS };

static const uint64_t totals[WORKS] = {11, 6, 4, 3};

/* It is in memory that the program shares with the test. */
typedef struct world {
    bags_code (*program)(struct world *w);
    shim calls;
    ration blocks;
    work works[WORKS];
    char directory[200];
    char paths[3][256];
    const char *where; /* the step that failed */
    bool crashes;      /* it crashes, instead of closing a writer that failed */
    bool reads;        /* without mmap, with few open files */
    bool ended;        /* it reached its end, and did not crash */
    bags_code code;
    bags_error error; /* if there is a code */
} world;

typedef bags_code program(world *w);

#define OPEN(object, call) OPEN_STEP(object, call, w->error)

static bags_code run(world *w);

static world *world_on(const char *directory) {
    world *w = (world *)mmap(
        NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED);
    memset(w, 0, sizeof *w);
    w->program = run;
    ration_start(&w->blocks);
    snprintf(w->directory, sizeof w->directory, "%s", directory);
    snprintf(w->paths[0], sizeof w->paths[0], "%s/above/shards", directory);
    snprintf(w->paths[1], sizeof w->paths[1], "%s/one", directory);
    snprintf(w->paths[2], sizeof w->paths[2], "%s/pair", directory);
    w->works[SHARDS] = work_on(w->paths[0], 4, NULL);
    w->works[ONE] = work_on(w->paths[1], 0, NULL);
    w->works[ONE].options.keep_idx = true;
    for (uint64_t i = 0; i < 2; i++) {
        work *each = &w->works[FIRST_OF_TWO + i];
        *each = work_on(w->paths[2], 2, NULL);
        each->options.shard_start = i;
        each->options.shard_stop = 2;
        each->first = 1000 * (i + 1);
    }
    for (int i = 0; i < WORKS; i++)
        w->works[i].options.env.allocator = &w->blocks.allocator;
    return w;
}

static world *new_world(const char *directory, uint64_t n) {
    make_dir(directory);
    world *w = world_on(directory);
    w->crashes = n % 2;
    return w;
}

static void world_free(world *w) { munmap(w, sizeof *w); }

/* The program crashes: nothing that releasing its writer does reaches the
 * disk. */
static void crash_here(world *w, bags_writer *writer) {
    w->calls.buried = true;
    bags_writer_close(writer, NULL);
    w->calls.buried = false;
}

static bags_code leave(world *w, bags_writer *writer, bags_code code) {
    if (w->crashes || !code)
        crash_here(w, writer);
    else
        bags_writer_close(writer, NULL);
    return code;
}

/* Write, flush now and then, and crash after `death` datapoints. */
static bags_code begin(world *w, int which, uint64_t death) {
    work *each = &w->works[which];
    bags_writer *writer = NULL;
    bags_code code;
    OPEN(writer, work_open(each, false, &w->error));
    for (uint64_t i = 1; i <= death; i++) {
        STEP(work_append(each, writer, &w->error));
        if (i % 3 == 0)
            STEP(work_flush(each, writer, &w->error));
        if (i == 5)
            STEP(work_sync(each, writer, &w->error));
    }
done:
    return leave(w, writer, code);
}

/* Resume, and finish. */
static bags_code resume_work(world *w, int which) {
    work *each = &w->works[which];
    uint64_t flushed = each->flushed, appended = each->appended;
    bags_writer *writer = NULL;
    bags_code code;
    OPEN(writer, work_open(each, true, &w->error));
    if (each->flushed < flushed || each->flushed > appended) {
        code = bags_fail(&w->error, BAGS_ERROR_STATE,
            "%s: %d datapoints "
            "found, %d were flushed, %d appended",
            each->path, (int)each->flushed, (int)flushed, (int)appended);
        goto done;
    }
    STEP(work_append_to(each, writer, totals[which], &w->error));
done:
    if (code)
        return leave(w, writer, code);
    w->where = "work_close";
    return work_close(each, writer, &w->error);
}

static bags_code recover(world *w, const char *path) {
    bags_env env = {&w->blocks.allocator, NULL};
    w->where = "bags_recover";
    return recover_path(path, &env, NULL, &w->error);
}

/* Everything that is read must be correct, or be refused. */
static bags_code read_back(world *w, int which, bool no_mmap) {
    work *each = &w->works[which];
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.no_mmap = no_mmap;
    options.cache_index = no_mmap;
    options.max_files = 3;
    options.env.allocator = &w->blocks.allocator;
    w->where = "read_back";
    w->reads = no_mmap;
    finding f = work_read_all(each, &options);
    if (f.error.code)
        w->error = f.error;
    else if (f.right != f.length || f.length < each->flushed)
        return bags_fail(&w->error, BAGS_ERROR_STATE,
            "%s: %d of %d datapoints are right", each->path, (int)f.right,
            (int)f.length);
    return f.error.code;
}

static bags_code run(world *w) {
    bags_code code;
    STEP(begin(w, SHARDS, 7));
    STEP(resume_work(w, SHARDS));
    STEP(begin(w, ONE, 5));
    STEP(recover(w, w->paths[1]));
    STEP(begin(w, SECOND_OF_TWO, 3));
    STEP(resume_work(w, FIRST_OF_TWO));
    STEP(recover(w, w->paths[2]));
    STEP(read_back(w, SHARDS, false));
    STEP(read_back(w, SHARDS, true));
done:
    return code;
}

/* In a child process: cmocka's handlers would run the other tests in it. */
static void end_at_signals(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        signal(signals[i], SIG_DFL);
}

#define LARGE 1200000

/* A standalone Bag with a blob so large that disk space is reserved for it. */
static bags_code write_bag(world *w, const char *path) {
    static unsigned char blob[LARGE];
    bag_writer_options options;
    memset(&options, 0, sizeof options);
    options.env.allocator = &w->blocks.allocator;
    bag_writer *writer = NULL;
    bags_code code;
    OPEN(writer, bag_writer_open(path, &options, &w->error));
    STEP(bag_writer_append(writer, blob, LARGE, NULL, &w->error));
    STEP(bag_writer_flush(writer, &w->error));
    STEP(bag_writer_append(writer, "small", 5, NULL, &w->error));
done:
    if (code && w->crashes)
        bag_writer_abort(writer);
    if (code && !w->crashes)
        bag_writer_close(writer, NULL);
    if (code)
        return code;
    w->where = "bag_writer_close";
    return bag_writer_close(writer, &w->error);
}

static bags_code read_bag(world *w, const char *path) {
    bag_reader_options options;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 0};
    memset(&options, 0, sizeof options);
    options.env.allocator = &w->blocks.allocator;
    options.no_mmap = true;
    bag_reader *reader = NULL;
    bags_code code;
    OPEN(reader, bag_reader_open(path, &options, &w->error));
    STEP(bag_reader_get(reader, 1, &scratch, &blob, &w->error));
    if (bag_reader_size(reader) != LARGE + 5 + 3 * 8 || blob.size != 5 ||
        memcmp(blob.data, "small", 5) != 0)
        code = bags_fail(&w->error, BAGS_ERROR_STATE, "%s: is not right", path);
done:
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return code;
}

/* The program, and a Bag, for which small disks have no space. */
static bags_code run_with_bag(world *w) {
    char path[256];
    snprintf(path, sizeof path, "%s/alone.bag", w->directory);
    bags_code code;
    STEP(run(w));
    STEP(write_bag(w, path));
    STEP(read_bag(w, path));
done:
    return code;
}

typedef void prepare(world *w, uint64_t n);

/* Run the program in a new process; `ready` may first take away its
 * permissions. Returns the status of waitpid. */
static int run_apart(world *w, prepare *ready, uint64_t n) {
    int status = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        assert_true(waitpid(child, &status, 0) == child);
        return status;
    }
    end_at_signals();
    shim_in_use = &w->calls;
    if (ready)
        ready(w, n);
    w->calls.armed = true;
    w->code = w->program(w);
    w->calls.armed = false;
    w->ended = true;
    _exit(0);
}

/* Leave an unfinished shard after a finished one. */
static void crash_in_second_shard(world *w) {
    shim_in_use = &w->calls;
    w->calls.armed = true;
    bags_code code = begin(w, SHARDS, 7);
    w->calls.armed = false;
    shim_in_use = NULL;
    assert_int_equal(code, BAGS_OK);
}

/* ---- what remains ---- */

static char reference[200];

/* What the disk would contain if nothing had happened; made once per test. */
static void make_reference(void) {
    snprintf(reference, sizeof reference, "%s", at("reference"));
    make_dir(reference);
    world *w = world_on(reference);
    for (int i = 0; i < WORKS; i++) {
        bags_writer *writer;
        w->works[i].options.no_sync = true;
        assert_opens(writer, work_open(&w->works[i], false, &said));
        assert_ok(work_append_to(&w->works[i], writer, totals[i], &said));
        assert_ok(work_close(&w->works[i], writer, &said));
    }
    world_free(w);
}

/* Recovery returns all flushed datapoints, and no more than were appended. */
static void check_recovery(world *w, const char *how, uint64_t n) {
    for (int i = 0; i < WORKS; i++) {
        work *each = &w->works[i];
        bags_error err;
        err.message[0] = 0;
        bags_code code = exists(each->path) ? bags_recover(each->path, NULL, NULL, &err)
                                            : BAGS_ERROR_MISSING;
        if (code && (code != BAGS_ERROR_MISSING || each->flushed))
            fail_msg("%s %d, %s: %s: not recovered: %s", how, (int)n, w->where,
                each->path, err.message);
        finding f = work_find(each, NULL, false);
        if (f.length < each->flushed || f.length > each->appended ||
            f.right != f.length || (f.opened && !f.verified))
            fail_msg("%s %d, %s: %s: %d datapoints, of which %d are right; "
                     "%d were flushed, %d appended",
                how, (int)n, w->where, each->path, (int)f.length, (int)f.right,
                (int)each->flushed, (int)each->appended);
    }
}

/* An unsharded dataset is complete after recovery. */
static bool is_complete(const world *w, int which) {
    const work *each = &w->works[which];
    return which == ONE && work_find(each, NULL, false).right > 0 && exists(each->path);
}

/* Resuming ends with the same bytes as if nothing had happened. */
static void check_resuming(world *w, const char *how, uint64_t n) {
    static const char *const names[] = {"above", "pair"};
    const char *where = w->where;
    for (int i = 0; i < WORKS; i++) {
        w->works[i].options.no_sync = true;
        if (!is_complete(w, i) && resume_work(w, i))
            fail_msg("%s %d in %s: %s cannot be resumed: %s", how, (int)n, where,
                w->works[i].path, w->error.message);
    }
    drop_journals(bags_io_local(), w->directory);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char here[512], there[512];
        snprintf(here, sizeof here, "%s/%s", w->directory, names[i]);
        snprintf(there, sizeof there, "%s/%s", reference, names[i]);
        drop_journals(bags_io_local(), there);
        if (!is_same_tree(here, there))
            fail_msg(
                "after %s %d in %s resuming ends with other bytes", how, (int)n, where);
    }
}

/* Both recovery and resuming, each from what the program left. */
static void check_remains(world *w, const char *how, uint64_t n) {
    char copy[256];
    world before = *w;
    memset(&w->calls, 0, sizeof w->calls);
    w->crashes = false;
    snprintf(copy, sizeof copy, "%s.copy", w->directory);
    copy_tree(w->directory, copy);
    check_recovery(w, how, n);
    memcpy(w->works, before.works, sizeof w->works);
    remove_tree(w->directory);
    assert_int_equal(rename(copy, w->directory), 0);
    check_resuming(w, how, n);
}

/* ---- faults ---- */

typedef struct fault {
    const char *name;
    unsigned only; /* a bit per call; 0: all */
    int error;
    enum effect effect;
    bool stays;
    bool harmless; /* the program must succeed anyway */
} fault;

/* Calls whose failure need not be reported: closing what was only read or is
 * not a Bag, mapping (the file is read instead), removing journals, a lock that
 * was taken once (the claim is repeated), syncing a directory that may not be
 * listed, opening one file too many (another is closed), reserving disk space,
 * and starting to write to the disk early. */
static bool may_be_silent(const world *w) {
    const shim *s = &w->calls;
    /* Then the path stays relative. */
    if (s->last == CALL_STAT && strcmp(s->last_path, ".") == 0)
        return true;
    switch (s->last) {
    case CALL_MMAP:
    case CALL_MUNMAP:
    case CALL_CLOSEDIR:
    case CALL_UNLINK:
    case CALL_FALLOCATE:
    case CALL_WRITE_BACK:
        return true;
    case CALL_FSTAT: /* of a journal: to find out whether it may be removed */
        return !s->last_read_only &&
               (strstr(s->last_path, "alone.bag") || strstr(s->last_path, ".idx"));
    case CALL_STAT:
        return strstr(s->last_path, ".idx");
    case CALL_CLOSE:
        return s->last_read_only || !strstr(s->last_path, ".bag");
    case CALL_LOCK:
        return s->error == EWOULDBLOCK;
    case CALL_OPEN:
        return (s->error == EACCES &&
                   (!strchr(s->last_path, '.') || strcmp(s->last_path, ".") == 0)) ||
               (s->error == EMFILE && w->reads);
    default:
        return false;
    }
}

/* The message names a file or directory of the dataset, and the cause. The shim
 * knows a file by the name with which it was opened: spec.json.partial. */
static void check_message(const world *w, const char *how, uint64_t n) {
    char path[sizeof w->calls.last_path];
    snprintf(path, sizeof path, "%s", w->calls.last_path);
    char *partial = strstr(path, ".partial");
    if (partial)
        *partial = '\0';
    const char *name = strrchr(path, '/');
    const char *say = w->error.message;
    if (w->error.system != w->calls.error || !strstr(say, strerror(w->calls.error)) ||
        !strchr(say, '/') || (name && !w->calls.stays && !strstr(say, name + 1)))
        fail_msg("%s %d in %s at %s of %s: \"%s\", errno %d", how, (int)n, w->where,
            call_names[w->calls.last], w->calls.last_path, say, w->error.system);
}

/* A Bag that may not be on the disk is in no shard that looks complete. */
static void check_sync(const world *w, const fault *how, uint64_t n) {
    char commit[600];
    const char *file = strrchr(w->calls.unsynced, '/');
    if (w->calls.synced_again)
        fail_msg("%s %d: %s was synced again after that had failed", how->name, (int)n,
            w->calls.unsynced);
    if (!file || !strstr(file, ".bag"))
        return;
    snprintf(commit, sizeof commit, "%.*s/spec.json", (int)(file - w->calls.unsynced),
        w->calls.unsynced);
    if (exists(commit))
        fail_msg("%s %d: %s is there, but %s was not synced", how->name, (int)n, commit,
            file);
}

static void check_report(const world *w, const fault *how, uint64_t n) {
    const shim *s = &w->calls;
    if (how->harmless && w->code)
        fail_msg("%s %d at %s of %s is no reason to fail: %s", how->name, (int)n,
            call_names[s->last], s->last_path, w->error.message);
    if (w->code)
        check_message(w, how->name, n);
    else if (!how->harmless && !how->stays && !may_be_silent(w))
        fail_msg("%s %d at %s of %s in %s was passed over", how->name, (int)n,
            call_names[s->last], s->last_path, w->where);
    check_sync(w, how, n);
    if (s->files || s->maps || s->dirs || w->blocks.live)
        fail_msg("%s %d in %s leaves %d files, %d mappings, %d directories, "
                 "%d blocks",
            how->name, (int)n, w->where, s->files, s->maps, s->dirs,
            (int)w->blocks.live);
}

static bool is_death(const fault *how) {
    return how->effect != EFFECT_FAIL && how->effect != EFFECT_SHORT;
}

/* One fault and its consequences. Returns true if the fault was reached. */
static bool meet(const fault *how, uint64_t n) {
    world *w = new_world(at("set"), n);
    w->program = run_with_bag;
    w->calls.only = how->only;
    w->calls.fail_at = n;
    w->calls.stays = how->stays;
    w->calls.effect = how->effect;
    w->calls.error = how->error;
    int status = run_apart(w, NULL, n);
    bool reached = w->calls.met > 0;
    if (is_death(how) && reached)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) || !w->ended)
        fail_msg("%s %d in %s: the program crashed: %d", how->name, (int)n, w->where,
            status);
    if (reached && !is_death(how))
        check_report(w, how, n);
    else if (!reached && w->code)
        fail_msg("without a fault, %s: %s", w->where, w->error.message);
    check_remains(w, how->name, n);
    remove_tree(w->directory);
    world_free(w);
    return reached;
}

/* Every point in a soak, otherwise the first and about one in `stride`; the
 * address sanitizer makes new processes slow. */
static uint64_t next_point(uint64_t n, uint64_t stride, uint64_t *seed) {
#if defined(__SANITIZE_ADDRESS__)
    stride *= 4;
#endif
    return is_soak() ? n + 1 : n + 1 + next_random(seed) % (2 * stride - 1);
}

typedef bool meeting(const fault *how, uint64_t n);

/* how many points were reached */
static uint64_t sweep(const fault *how, uint64_t stride, meeting *met) {
    uint64_t seed = how->only + (uint64_t)how->error * 64 + how->effect;
    uint64_t tried = 0, n = 1;
    if (how->only && !(how->only & (how->only - 1)))
        stride = stride / 8 + 1; /* there are few */
    for (; met(how, n); tried++)
        n = next_point(n, stride, &seed);
    return tried;
}

static void sweep_all(const fault *faults, size_t count, uint64_t stride) {
    make_reference();
    for (size_t i = 0; i < count; i++) {
        uint64_t tried = sweep(&faults[i], stride, meet);
        print_message("%-20s %5d points\n", faults[i].name, (int)tried);
        assert_true(tried > 0);
    }
}

#define SWEEP(faults, stride)                                                          \
    sweep_all(faults, sizeof(faults) / sizeof *(faults), stride)

/* ---- the N-th call of a program ---- */

static void the_program_makes_every_call_that_will_fail(void **state) {
    (void)state;
    make_reference();
    make_dir(at("set"));
    world *w = world_on(at("set"));
    w->program = run_with_bag;
    assert_int_equal(run_apart(w, NULL, 0), 0);
    if (w->code)
        fail_msg("%s: %s", w->where, w->error.message);
    for (int i = 0; i < CALLS; i++) {
        print_message("%s %d  ", call_names[i], (int)w->calls.counts[i]);
        /* One call is made only on macOS; only files are removed; and nothing
         * is large enough to be written to the disk early. */
        if (i != CALL_FCNTL && i != CALL_RMDIR && i != CALL_WRITE_BACK)
            assert_true(w->calls.counts[i] > 0);
    }
    print_message("\n");
    check_remains(w, "no fault", 0);
    world_free(w);
}

static void a_kill_at_any_call_loses_nothing_flushed(void **state) {
    static const fault faults[] = {
        {"killed before", 0, 0, EFFECT_DIE_BEFORE, false, false},
        {"killed in a write", ONLY(CALL_WRITE), 0, EFFECT_DIE_HALFWAY, false, false},
        {"killed after", 0, 0, EFFECT_DIE_AFTER, false, false},
    };
    (void)state;
    SWEEP(faults, 12);
}

static void short_and_interrupted_calls_do_no_harm(void **state) {
    static const fault faults[] = {
        {"short reads", ONLY(CALL_READ), 0, EFFECT_SHORT, false, true},
        {"short writes", ONLY(CALL_WRITE), 0, EFFECT_SHORT, false, true},
        {"all reads short", ONLY(CALL_READ), 0, EFFECT_SHORT, true, true},
        {"all writes short", ONLY(CALL_WRITE), 0, EFFECT_SHORT, true, true},
        {"EINTR",
            ONLY(CALL_OPEN) | ONLY(CALL_READ) | ONLY(CALL_WRITE) | ONLY(CALL_TRUNCATE) |
                ONLY(CALL_SYNC) | ONLY(CALL_LOCK) | ONLY(CALL_CLOSE) |
                ONLY(CALL_OPENDIR),
            EINTR, EFFECT_FAIL, false, true},
    };
    (void)state;
    SWEEP(faults, 10);
}

static void a_full_disk_is_reported_at_any_call(void **state) {
    const unsigned grows = ONLY(CALL_WRITE) | ONLY(CALL_SYNC) | ONLY(CALL_CLOSE) |
                           ONLY(CALL_TRUNCATE) | ONLY(CALL_OPEN) | ONLY(CALL_MKDIR) |
                           ONLY(CALL_RENAME);
    const fault faults[] = {
        {"ENOSPC", grows, ENOSPC, EFFECT_FAIL, false, false},
        {"ENOSPC for good", grows, ENOSPC, EFFECT_FAIL, true, false},
        {"EDQUOT", grows, EDQUOT, EFFECT_FAIL, false, false},
        {"EFBIG for good", ONLY(CALL_WRITE) | ONLY(CALL_TRUNCATE), EFBIG, EFFECT_FAIL,
            true, false},
    };
    (void)state;
    SWEEP(faults, 20);
}

static void a_failing_disk_is_reported_at_any_call(void **state) {
    static const fault faults[] = {
        {"EIO", 0, EIO, EFFECT_FAIL, false, false},
        {"EIO for good", 0, EIO, EFFECT_FAIL, true, false},
        {"EIO at syncs", ONLY(CALL_SYNC), EIO, EFFECT_FAIL, false, false},
        {"EIO at closes", ONLY(CALL_CLOSE), EIO, EFFECT_FAIL, false, false},
    };
    (void)state;
    SWEEP(faults, 20);
}

static void denied_access_is_reported_at_any_call(void **state) {
    const unsigned paths = ONLY(CALL_OPEN) | ONLY(CALL_MKDIR) | ONLY(CALL_RENAME) |
                           ONLY(CALL_UNLINK) | ONLY(CALL_STAT) | ONLY(CALL_OPENDIR);
    const fault faults[] = {
        {"EMFILE", ONLY(CALL_OPEN) | ONLY(CALL_OPENDIR), EMFILE, EFFECT_FAIL, false,
            false},
        {"EACCES", paths, EACCES, EFFECT_FAIL, false, false},
        {"EROFS for good", paths & ~ONLY(CALL_STAT) & ~ONLY(CALL_OPENDIR), EROFS,
            EFFECT_FAIL, true, false},
        {"ENOLCK", ONLY(CALL_LOCK), ENOLCK, EFFECT_FAIL, false, false},
        {"EINVAL at maps", ONLY(CALL_MMAP), EINVAL, EFFECT_FAIL, true, true},
    };
    (void)state;
    SWEEP(faults, 12);
}

static void a_failed_sync_is_never_tried_again(void **state) {
    static const struct {
        int error, expected;
        uint64_t fcntls, fsyncs;
    } cases[] = {{EIO, EIO, 1, 0}, {ENOSPC, ENOSPC, 1, 0}, {EINTR, 0, 2, 1},
        {ENOTTY, 0, 1, 1}, {ENOTSUP, 0, 1, 1}, {EINVAL, 0, 1, 1}};
    int fd = open(at("file"), O_RDWR | O_CREAT, 0666);
    (void)state;
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shim s;
        memset(&s, 0, sizeof s);
        s.only = ONLY(CALL_FCNTL);
        s.fail_at = 1;
        s.error = cases[i].error;
        s.armed = true;
        shim_in_use = &s;
        int error = full_sync(fd);
        shim_in_use = NULL;
        assert_int_equal(error, cases[i].expected);
        assert_int_equal(s.counts[CALL_FCNTL], cases[i].fcntls);
        assert_int_equal(s.counts[CALL_SYNC], cases[i].fsyncs);
    }
    close(fd);
}

static void a_file_whose_early_writing_fails_is_synced(void **state) {
    size_t size = (size_t)1 << 20;
    char *blob = (char *)calloc(1, size);
    bag_writer *writer;
    shim s;
    (void)state;
    assert_non_null(blob);
    memset(&s, 0, sizeof s);
    s.only = ONLY(CALL_WRITE_BACK);
    s.fail_at = 1;
    s.stays = true;
    s.error = ESPIPE;
    assert_opens(writer, bag_writer_open(at("x.bag"), NULL, &said));
    s.armed = true;
    shim_in_use = &s;
    for (int i = 0; i < 40; i++)
        assert_ok(bag_writer_append(writer, blob, size, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    shim_in_use = NULL;
    assert_true(s.met >= 2);
    assert_true(s.counts[CALL_SYNC] >= 1);
    free(blob);
}

/* ---- operations on existing data ---- */

static const fault upkeep_faults[] = {
    {"killed before", 0, 0, EFFECT_DIE_BEFORE, false, false},
    {"killed in a write", ONLY(CALL_WRITE), 0, EFFECT_DIE_HALFWAY, false, false},
    {"killed after", 0, 0, EFFECT_DIE_AFTER, false, false},
    {"short reads", ONLY(CALL_READ), 0, EFFECT_SHORT, true, true},
    {"short writes", ONLY(CALL_WRITE), 0, EFFECT_SHORT, true, true},
    {"EINTR",
        ONLY(CALL_OPEN) | ONLY(CALL_READ) | ONLY(CALL_WRITE) | ONLY(CALL_TRUNCATE) |
            ONLY(CALL_SYNC) | ONLY(CALL_LOCK) | ONLY(CALL_CLOSE) | ONLY(CALL_OPENDIR),
        EINTR, EFFECT_FAIL, false, true},
    {"EIO", 0, EIO, EFFECT_FAIL, false, false},
    {"ENOSPC for good",
        ONLY(CALL_WRITE) | ONLY(CALL_SYNC) | ONLY(CALL_OPEN) | ONLY(CALL_RENAME) |
            ONLY(CALL_MKDIR),
        ENOSPC, EFFECT_FAIL, true, false},
    {"EACCES",
        ONLY(CALL_OPEN) | ONLY(CALL_RENAME) | ONLY(CALL_STAT) | ONLY(CALL_MKDIR) |
            ONLY(CALL_OPENDIR),
        EACCES, EFFECT_FAIL, false, false},
};

#define SWEEP_UPKEEP(met, stride, total)                                               \
    for (size_t i_ = 0; i_ < sizeof upkeep_faults / sizeof upkeep_faults[0]; i_++)     \
    (total) += sweep(&upkeep_faults[i_], stride, met)

/* What writers have left: shards with gaps between their numbers; an unfinished
 * shard after a finished one. */
static void make_model(void) {
    static const char *const names[] = {"000002", "000005", "000001", "000002"};
    bags_writer *writer;
    make_dir(at("model"));
    world *w = world_on(at("model"));
    work gaps = work_on(at("model/gaps"), 2, NULL);
    assert_opens(writer, work_open(&gaps, false, &said));
    assert_ok(work_append_to(&gaps, writer, 6, &said));
    assert_ok(work_close(&gaps, writer, &said));
    for (int i = 0; i < 4; i += 2)
        assert_int_equal(
            rename(at("model/gaps/%s", names[i]), at("model/gaps/%s", names[i + 1])),
            0);
    crash_in_second_shard(w);
    world_free(w);
    save_text(at("model/lines"), "{\"n\": 1, \"t\": [\"a\", \"b\"]}\n"
                                 "{\"n\": 2, \"t\": []}\n{\"n\": 3, \"t\": [\"c\"]}\n");
}

/* `set` now has the expected content. A journal whose removal failed, or was not
 * reached, is not part of it. */
static void keep_set(void) {
    drop_journals(bags_io_local(), at("set"));
    assert_int_equal(rename(at("set"), at("kept")), 0);
}

static bags_code keep_up(world *w) {
    bags_checksum_options sums;
    bags_finalize_options closing;
    char gaps[256];
    bags_code code;
    snprintf(gaps, sizeof gaps, "%s/gaps", w->directory);
    memset(&sums, 0, sizeof sums);
    memset(&closing, 0, sizeof closing);
    closing.env.allocator = sums.env.allocator = &w->blocks.allocator;
    STEP(bags_finalize(gaps, &closing, NULL, &w->error));
    STEP(bags_checksum(gaps, &sums, NULL, &w->error));
    STEP(recover(w, w->paths[0]));
done:
    return code;
}

/* The program succeeded, or reported why not; then it is called again. */
static bool meet_upkeep(const fault *how, uint64_t n) {
    copy_tree(at("model"), at("set"));
    world *w = world_on(at("set"));
    w->program = keep_up;
    w->calls.only = how->only;
    w->calls.fail_at = n;
    w->calls.stays = how->stays;
    w->calls.effect = how->effect;
    w->calls.error = how->error;
    int status = run_apart(w, NULL, n);
    bool reached = w->calls.met > 0;
    if (is_death(how) && reached)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) || !w->ended)
        fail_msg("%s %d in %s: it crashed: %d", how->name, (int)n, w->where, status);
    else if (reached)
        check_report(w, how, n);
    memset(&w->calls, 0, sizeof w->calls);
    if (keep_up(w))
        fail_msg(
            "%s %d: it cannot be repeated: %s", how->name, (int)n, w->error.message);
    drop_journals(bags_io_local(), w->directory);
    if (!is_same_tree(at("set"), at("kept")))
        fail_msg("%s %d: it ends differently", how->name, (int)n);
    remove_tree(w->directory);
    world_free(w);
    return reached;
}

static void finalize_checksum_and_recover_may_be_interrupted(void **state) {
    uint64_t tried = 0;
    (void)state;
    make_model();
    copy_tree(at("model"), at("set"));
    world *w = world_on(at("set"));
    if (keep_up(w))
        fail_msg("%s: %s", w->where, w->error.message);
    world_free(w);
    keep_set();
    SWEEP_UPKEEP(meet_upkeep, 12, tried);
    print_message("%-20s %5d points\n", "upkeep", (int)tried);
    assert_true(tried > 25); /* with the sanitizers fewer calls are tried */
}

/* ---- the command ---- */

/* The `bags` command of this build, with the shim preloaded. */
static const char *const *words;
static char program_path[4096], preload[4200];

static void find_command(void) {
    ssize_t size = readlink("/proc/self/exe", program_path, sizeof program_path - 32);
    assert_true(size > 0);
    program_path[size] = 0;
    for (int i = 0; i < 3; i++) /* of tests/core/test_system */
        *strrchr(program_path, '/') = 0;
    snprintf(preload, sizeof preload, "%s/tests/lib/system/shim.so", program_path);
    strcat(program_path, "/bags");
#if defined(__SANITIZE_ADDRESS__)
    print_message("skipped: the sanitizer must come before the shim\n");
    skip();
#endif
    if (exists(program_path) && exists(preload))
        return;
    print_message("skipped: %s is not built\n", program_path);
    skip();
}

/* Run it in `directory`. Returns the status of waitpid; its standard error is
 * in the file "said". */
static int run_command(const char *directory, const char *map) {
    int status = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        assert_true(waitpid(child, &status, 0) == child);
        return status;
    }
    int out = open(at("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    end_at_signals();
    dup2(out, 1);
    dup2(out, 2);
    if (map) {
        setenv("BAGS_SHIM", map, 1);
        setenv("LD_PRELOAD", preload, 1);
    }
    if (chdir(directory) == 0)
        execv(program_path, (char **)(uintptr_t)words);
    _exit(99);
}

static void expect_success(const char *how, uint64_t n, int status) {
    bytes text = load(at("said"));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("%s %d: bags %s ends with %d: %.*s", how, (int)n, words[1], status,
            (int)text.size, (const char *)text.data);
    bytes_free(&text);
}

/* It failed as it should: an exit code, and one line with the cause. */
static void check_command(const world *w, const fault *how, uint64_t n, int status) {
    bytes text = load(at("said"));
    put(&text, "", 1);
    const char *say = (const char *)text.data;
    bool failed = WIFEXITED(status) && WEXITSTATUS(status) == 1;
    if (!WIFEXITED(status) || (!failed && WEXITSTATUS(status)))
        fail_msg(
            "%s %d: bags %s crashed: %d: %s", how->name, (int)n, words[1], status, say);
    if (failed &&
        (how->harmless || !strstr(say, "bags: ") || !strstr(say, strerror(how->error))))
        fail_msg("%s %d at %s of %s: bags %s says: %s", how->name, (int)n,
            call_names[w->calls.last], w->calls.last_path, words[1], say);
    /* recover looks whether the directory is empty, and whether to count blobs or
     * datapoints: what fails there, the recovery itself meets again. pack looks whether
     * it would write into a dataset: what fails there does not change its result. */
    bool looks =
        (w->calls.last == CALL_STAT || w->calls.last == CALL_OPENDIR) &&
        ((n == 1 && strcmp(words[1], "recover") == 0) || strcmp(words[1], "pack") == 0);
    if (!failed && !looks && !how->harmless && !how->stays && !may_be_silent(w))
        fail_msg("%s %d at %s of %s was passed over by bags %s", how->name, (int)n,
            call_names[w->calls.last], w->calls.last_path, words[1]);
    bytes_free(&text);
}

static bool meet_command(const fault *how, uint64_t n) {
    world *w = world_on(at("set"));
    w->calls.armed = true;
    w->calls.only = how->only;
    w->calls.fail_at = n;
    w->calls.stays = how->stays;
    w->calls.effect = how->effect;
    w->calls.error = how->error;
    copy_tree(at("model"), at("set"));
    save(at("map"), &w->calls, sizeof w->calls);
    int status = run_command(at("set"), at("map"));
    bytes map = load(at("map"));
    assert_int_equal(map.size, sizeof w->calls);
    memcpy(&w->calls, map.data, map.size);
    bytes_free(&map);
    bool reached = w->calls.met > 0;
    if (is_death(how) && reached)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else if (reached)
        check_command(w, how, n, status);
    else
        expect_success(how->name, n, status);
    expect_success(how->name, n, run_command(at("set"), NULL));
    drop_journals(bags_io_local(), at("set"));
    if (!is_same_tree(at("set"), at("kept")))
        fail_msg("%s %d: bags %s, called again, ends differently", how->name, (int)n,
            words[1]);
    remove_tree(at("set"));
    world_free(w);
    return reached;
}

static void a_failed_command_can_be_repeated(void **state) {
    static const char *const commands[][12] = {
        {"bags", "finalize", "gaps", NULL},
        {"bags", "checksum", "gaps", NULL},
        {"bags", "recover", "above/shards", NULL},
        {"bags", "pack", "lines", "out", "--spec", "n=int(4),t=utf8[]", "--resume",
            "--shard-length", "2", "--checksum", NULL},
    };
    (void)state;
    find_command();
    make_model();
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        uint64_t tried = 0;
        words = commands[i];
        copy_tree(at("model"), at("set"));
        expect_success("no fault", i, run_command(at("set"), NULL));
        keep_set();
        SWEEP_UPKEEP(meet_command, 60, tried);
        print_message("bags %-15s %5d points\n", words[1], (int)tried);
        assert_true(tried > 5);
        remove_tree(at("kept"));
    }
}

/* ---- resource limits ---- */

/* Rules for points at which the system itself fails. */
typedef struct limit {
    const char *name;
    int error;
    int signal; /* that may terminate the program; 0: none */
} limit;

/* The program succeeds, or fails with the limit's error, which it reports. */
static bool check_limit(world *w, const limit *how, uint64_t n, int status) {
    if (how->signal && WIFSIGNALED(status) && WTERMSIG(status) == how->signal)
        return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) || !w->ended)
        fail_msg("%s %d in %s: the program crashed: %d", how->name, (int)n, w->where,
            status);
    w->calls.error = how->error;
    w->calls.last_path[0] = 0;
    if (w->code)
        check_message(w, how->name, n);
    if (w->calls.files || w->calls.maps || w->calls.dirs || w->blocks.live)
        fail_msg("%s %d in %s leaves something", how->name, (int)n, w->where);
    return w->code != BAGS_OK;
}

/* Run the program under a limit that `ready` sets. True if the limit was
 * hit. */
static bool meet_limit(const limit *how, prepare *ready, uint64_t n) {
    world *w = new_world(at("set"), n);
    int status = run_apart(w, ready, n);
    bool hit = check_limit(w, how, n, status);
    check_remains(w, how->name, n);
    remove_tree(w->directory);
    world_free(w);
    return hit;
}

/* From n on, until the limit is not hit any more. */
static void raise_limit(
    const limit *how, prepare *ready, uint64_t n, uint64_t step, uint64_t stride) {
    int tried = 0;
    uint64_t seed = stride;
    make_reference();
    while (meet_limit(how, ready, n)) {
        n += is_soak() ? step : 1 + next_random(&seed) % stride;
        tried++;
    }
    print_message("%-20s %5d points\n", how->name, tried);
    assert_true(tried > 3);
}

static void limit_resource(int resource, uint64_t n) {
    struct rlimit most = {n, n};
    if (setrlimit((__rlimit_resource_t)resource, &most) != 0)
        _exit(3);
}

static void limit_size(world *w, uint64_t n) {
    (void)w;
    signal(SIGXFSZ, SIG_IGN);
    limit_resource(RLIMIT_FSIZE, n);
}

static void limit_size_to_death(world *w, uint64_t n) {
    (void)w;
    limit_resource(RLIMIT_FSIZE, n);
}

static void limit_files(world *w, uint64_t n) {
    (void)w;
    limit_resource(RLIMIT_NOFILE, n);
}

static void a_file_size_limit_is_reported_with_the_file(void **state) {
    static const limit how = {"RLIMIT_FSIZE", EFBIG, 0};
    (void)state;
    raise_limit(&how, limit_size, 0, 37, 500);
}

static void a_kill_by_a_file_size_limit_loses_nothing_flushed(void **state) {
    static const limit how = {"SIGXFSZ", EFBIG, SIGXFSZ};
    (void)state;
    raise_limit(&how, limit_size_to_death, 0, 37, 500);
}

static void too_few_file_descriptors_are_reported(void **state) {
    static const limit how = {"RLIMIT_NOFILE", EMFILE, 0};
    (void)state;
    raise_limit(&how, limit_files, 3, 1, 1);
}

/* ---- small disks ---- */

/* Mounts of this process alone, which end with it. Where they are not
 * permitted, the test is skipped. */
static void may_mount(void) {
    static int may = -1;
    if (may < 0)
        may = unshare(CLONE_NEWNS) == 0 &&
              mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    if (may)
        return;
    print_message("skipped: needs root, and the right to mount\n");
    skip();
}

static const char *small_disk;

static void mount_small_disk(const char *options) {
    small_disk = at("small_disk");
    if (!exists(small_disk))
        make_dir(small_disk);
    assert_int_equal(mount("tmpfs", small_disk, "tmpfs", 0, options), 0);
}

static void unmount_small_disk(void) { assert_int_equal(umount(at("small_disk")), 0); }

/* Also after the test failed in it. */
static int leave_small_disk(void **state) {
    umount2(at("small_disk"), MNT_DETACH);
    return support_teardown(state);
}

#define TEST_IN_ROOM(function)                                                         \
    cmocka_unit_test_setup_teardown(function, support_setup, leave_small_disk)

/* While the disk is still full, recovery may fail, but not lose anything. */
static void recover_when_full(world *w, const limit *how, uint64_t n) {
    for (int i = 0; i < WORKS; i++) {
        bags_error err;
        bags_code code = bags_recover(w->works[i].path, NULL, NULL, &err);
        if (code && code != BAGS_ERROR_MISSING && err.system != how->error)
            fail_msg("%s %d: recovery of %s: %s", how->name, (int)n, w->works[i].path,
                err.message);
    }
}

/* Free disk space again, so that the data can be recovered. */
typedef void relieve(uint64_t n);

static bool meet_small_disk(const limit *how, relieve *more, uint64_t n) {
    char directory[256];
    snprintf(directory, sizeof directory, "%s/small_disk/set", at("."));
    if (mkdir(directory, 0777) != 0) {
        assert_int_equal(errno, how->error);
        more(n);
        return true;
    }
    world *w = world_on(directory);
    w->crashes = n % 2;
    int status = run_apart(w, NULL, n);
    bool hit = check_limit(w, how, n, status);
    if (n % 4 < 2) {
        recover_when_full(w, how, n);
        more(n);
        check_recovery(w, how->name, n);
    } else {
        more(n);
        check_remains(w, how->name, n);
    }
    remove_tree(w->directory);
    world_free(w);
    return hit;
}

static void grow_small_disk(uint64_t n) {
    (void)n;
    assert_int_equal(mount("tmpfs", at("small_disk"), "tmpfs", MS_REMOUNT,
                         "size=64m,nr_inodes=10000"),
        0);
}

/* format contains a conversion for n. */
static void raise_tmpfs(const limit *how, const char *format, uint64_t n) {
    uint64_t seed = n;
    int tried = 0;
    bool hit = true;
    may_mount();
    make_reference();
    for (; hit; tried += hit) {
        char options[64];
        snprintf(options, sizeof options, format, (int)n);
        mount_small_disk(options);
        hit = meet_small_disk(how, grow_small_disk, n);
        unmount_small_disk();
        n += is_soak() ? 1 : 1 + next_random(&seed) % 12;
    }
    print_message("%-20s %5d points\n", how->name, tried);
    assert_true(tried > 3);
}

static void a_full_tmpfs_is_named(void **state) {
    static const limit how = {"full tmpfs", ENOSPC, 0};
    (void)state;
    raise_tmpfs(&how, "nr_blocks=%d", 1);
}

static void a_tmpfs_without_inodes_is_named(void **state) {
    static const limit how = {"tmpfs inodes", ENOSPC, 0};
    (void)state;
    raise_tmpfs(&how, "nr_inodes=%d,size=64m", 2);
}

/* An ext4 of 2 MiB in a file, in blocks of 1 KiB. */
static void mount_ext4(void) {
    char command[1024];
    may_mount();
    small_disk = at("small_disk");
    make_dir(small_disk);
    save(at("image"), NULL, 0);
    resize_file(at("image"), 2 << 20);
    snprintf(command, sizeof command,
        "PATH=$PATH:/sbin:/usr/sbin; "
        "mkfs.ext4 -q -m 0 -b 1024 -N 160 '%s' && mount -o loop '%s' '%s'",
        at("image"), at("image"), small_disk);
    if (system(command) == 0)
        return;
    print_message("skipped: needs mkfs.ext4 and a loop device\n");
    skip();
}

/* Fills the disk except for n blocks, or inodes. */
static void fill_blocks(uint64_t n) {
    struct statvfs space;
    assert_int_equal(statvfs(at("small_disk"), &space), 0);
    int fd = open(at("small_disk/filler"), O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    /* Some blocks go to the filler's own list of blocks. */
    for (uint64_t take = space.f_bfree; take > n; take--)
        if (posix_fallocate(fd, 0, (off_t)((take - n) * space.f_frsize)) == 0)
            break;
    close(fd);
}

static void empty_blocks(uint64_t n) {
    (void)n;
    remove_tree(at("small_disk/filler"));
}

static void fill_inodes(uint64_t n) {
    struct statvfs space;
    make_dir(at("small_disk/filler"));
    assert_int_equal(statvfs(at("small_disk"), &space), 0);
    for (uint64_t i = n; i < space.f_ffree; i++)
        save(at("small_disk/filler/%d", (int)i), NULL, 0);
}

static void raise_ext4(const limit *how, relieve *take, uint64_t step) {
    uint64_t n = 0, seed = step;
    int tried = 0;
    bool hit = true;
    mount_ext4();
    make_reference();
    for (; hit; tried += hit) {
        take(n);
        hit = meet_small_disk(how, empty_blocks, n);
        n += is_soak() ? step : 1 + next_random(&seed) % (12 * step);
    }
    unmount_small_disk();
    print_message("%-20s %5d points\n", how->name, tried);
    assert_true(tried > 3);
}

static void a_full_ext4_is_named(void **state) {
    static const limit how = {"full ext4", ENOSPC, 0};
    (void)state;
    raise_ext4(&how, fill_blocks, 1);
}

static void an_ext4_without_inodes_is_named(void **state) {
    static const limit how = {"ext4 inodes", ENOSPC, 0};
    (void)state;
    raise_ext4(&how, fill_inodes, 1);
}

static void a_disk_that_became_read_only_is_named(void **state) {
    bags_writer *writer;
    (void)state;
    may_mount();
    make_reference();
    mount_small_disk("size=64m");
    make_dir(at("small_disk/set"));
    world *w = world_on(at("small_disk/set"));
    crash_in_second_shard(w);
    assert_int_equal(mount(NULL, small_disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_fails(BAGS_ERROR_IO, bags_recover(w->paths[0], NULL, NULL, &said));
    assert_int_equal(said.system, EROFS);
    assert_says("shards/000001");
    writer = work_open(&w->works[SHARDS], true, &said);
    assert_null(writer);
    assert_int_equal(said.system, EROFS);
    assert_refused(BAGS_ERROR_IO, work_open(&w->works[ONE], false, &said));
    assert_says("one");
    assert_says("Read-only");
    finding f = work_find(&w->works[SHARDS], NULL, true);
    assert_int_equal(f.right, 4);
    assert_int_equal(mount(NULL, small_disk, NULL, MS_REMOUNT, NULL), 0);
    check_remains(w, "read-only", 0);
    world_free(w);
    unmount_small_disk();
}

/* ---- permissions ---- */

/* Become the user nobody, who has no permissions for root's files. */
static void drop_rights(world *w, uint64_t n) {
    (void)w;
    (void)n;
    if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) ||
        setresuid(65534, 65534, 65534))
        _exit(3);
}

static bags_code read_shards(world *w) { return read_back(w, SHARDS, false); }

static bags_code recover_shards(world *w) { return recover(w, w->paths[0]); }

static bags_code resume_with_shards(world *w) { return resume_work(w, SHARDS); }

static bags_code begin_one(world *w) { return begin(w, ONE, 5); }

static void expect_refusal(world *w, program *what, const char *path) {
    w->program = what;
    w->ended = false;
    assert_int_equal(run_apart(w, drop_rights, 0), 0);
    assert_true(w->ended);
    if (w->code != BAGS_ERROR_IO || w->error.system != EACCES ||
        !strstr(w->error.message, path) || !strstr(w->error.message, strerror(EACCES)))
        fail_msg(
            "%s without rights: code %d: %s", path, (int)w->code, w->error.message);
    assert_int_equal(w->calls.files + w->calls.maps + w->calls.dirs, 0);
    assert_int_equal(w->blocks.live, 0);
}

/* A dataset with a finished shard and one whose writer crashed. */
static world *nobodys_world(void) {
    if (geteuid() != 0) {
        print_message("skipped: needs root, to become nobody\n");
        skip();
    }
    make_reference();
    chmod(at("."), 0755);
    make_dir(at("set"));
    world *w = world_on(at("set"));
    crash_in_second_shard(w);
    return w;
}

static void a_file_without_read_permission_is_named(void **state) {
    static const char *const names[] = {
        "spec.json", "refs.bag", "id.bag", "text.bag", "clip.bag"};
    (void)state;
    world *w = nobodys_world();
    assert_ok(bags_recover(w->paths[0], NULL, NULL, &said));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *path = at("set/above/shards/000001/%s", names[i]);
        assert_int_equal(chmod(path, 0), 0);
        expect_refusal(w, read_shards, path);
        assert_int_equal(chmod(path, 0644), 0);
    }
    assert_int_equal(chmod(at("set/above/shards"), 0), 0);
    expect_refusal(w, read_shards, "above/shards");
    assert_int_equal(chmod(at("set/above/shards"), 0755), 0);
    world_free(w);
}

static void missing_write_permission_loses_nothing(void **state) {
    (void)state;
    world *w = nobodys_world();
    work before = w->works[SHARDS];
    expect_refusal(w, recover_shards, "above/shards/000001");
    expect_refusal(w, resume_with_shards, "above/shards/000001");
    expect_refusal(w, begin_one, "set/one");
    w->works[SHARDS] = before;
    check_remains(w, "no rights", 0);
    world_free(w);
}

/* ---- truncated files ---- */

#define FIRST_SHARD 4

static bags_code hash_row(
    const bags_reader *reader, uint64_t index, char hex[65], bags_error *err) {
    sha256 hash;
    bags_row row = {0};
    bags_code code = bags_reader_get(reader, index, NULL, 0, &row, err);
    sha256_start(&hash);
    for (size_t slot = 0; slot < POINT_FIELDS && !code; slot++)
        for (size_t i = 0; i < bags_row_length(&row, slot); i++) {
            bags_view blob = bags_row_bytes(&row, slot, i);
            sha256_add(&hash, blob.data, blob.size);
        }
    sha256_hex(&hash, hex);
    bags_row_free(&row);
    return code;
}

/* Read the first shard, truncate one of its files, and read again: each row is
 * as before, or an error that names a file of the shard. Returns the number of
 * errors. */
static int read_and_truncate(
    const char *set, const bags_reader_options *how, const char *path, uint64_t size) {
    char before[FIRST_SHARD][65], after[65];
    int errors = 0;
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(set, how, &said));
    for (uint64_t i = 0; i < FIRST_SHARD; i++)
        assert_ok(hash_row(reader, i, before[i], &said));
    resize_file(path, size);
    for (uint64_t i = 0; i < FIRST_SHARD; i++) {
        bags_code code = hash_row(reader, i, after, &said);
        errors += code != BAGS_OK;
        if (code)
            assert_says("/000000/");
        else
            assert_string_equal(after, before[i]);
    }
    bags_reader_close(reader);
    assert_true(bags_verify(set, NULL, NULL, &said) != BAGS_OK);
    return errors;
}

static void a_file_truncated_while_read_without_mmap_is_an_error(void **state) {
    static const char *const names[] = {"refs", "id", "text", "clip"};
    int tried = 0, errors = 0;
    (void)state;
    make_reference();
    const char *set = at("reference/above/shards");
    for (size_t f = 0; f < 4; f++)
        for (int mode = 0; mode < 3; mode++) {
            bags_reader_options how;
            char path[300];
            snprintf(path, sizeof path, "%s/000000/%s.bag", set, names[f]);
            memset(&how, 0, sizeof how);
            how.no_mmap = true;
            how.cache_index = mode == 1;
            how.max_files = mode == 2 ? 1 : 0;
            bytes complete = load(path);
            for (uint64_t n = 0; n < complete.size; n += 1 + n / 16, tried++) {
                errors += read_and_truncate(set, &how, path, n);
                save(path, complete.data, complete.size);
            }
            bytes_free(&complete);
        }
    print_message("%-20s %5d points, %d errors\n", "cut without mmap", tried, errors);
    assert_true(errors > tried);
}

/* This is why no_mmap exists. */
static void a_file_truncated_while_mapped_terminates_the_program(void **state) {
    int status = 0;
    (void)state;
    make_reference();
    const char *set = at("reference/above/shards");
    const char *text = at("reference/above/shards/000000/text.bag");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bags_reader_options how;
        memset(&how, 0, sizeof how);
        end_at_signals();
        read_and_truncate(set, &how, text, 0);
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_program_makes_every_call_that_will_fail),
        TEST(a_kill_at_any_call_loses_nothing_flushed),
        TEST(short_and_interrupted_calls_do_no_harm),
        TEST(a_full_disk_is_reported_at_any_call),
        TEST(a_failing_disk_is_reported_at_any_call),
        TEST(denied_access_is_reported_at_any_call),
        TEST(a_failed_sync_is_never_tried_again),
        TEST(a_file_whose_early_writing_fails_is_synced),
        TEST(finalize_checksum_and_recover_may_be_interrupted),
        TEST(a_failed_command_can_be_repeated),
        TEST(a_file_size_limit_is_reported_with_the_file),
        TEST(a_kill_by_a_file_size_limit_loses_nothing_flushed),
        TEST(too_few_file_descriptors_are_reported),
        TEST_IN_ROOM(a_full_tmpfs_is_named),
        TEST_IN_ROOM(a_tmpfs_without_inodes_is_named),
        TEST_IN_ROOM(a_full_ext4_is_named),
        TEST_IN_ROOM(an_ext4_without_inodes_is_named),
        TEST_IN_ROOM(a_disk_that_became_read_only_is_named),
        TEST(a_file_without_read_permission_is_named),
        TEST(missing_write_permission_loses_nothing),
        TEST(a_file_truncated_while_read_without_mmap_is_an_error),
        TEST(a_file_truncated_while_mapped_terminates_the_program),
    };
    /* Faults come from the shim and from small disks: waiting for a real one
     * only costs time. */
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("system", tests, NULL, NULL);
}
