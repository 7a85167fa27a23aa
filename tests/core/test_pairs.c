/*
 * Two processes on one dataset. One stops before its n-th call of a file hook, for
 * every n; the other one then does all of its work; then the first continues. After
 * each of these:
 *
 *   - every call succeeded with a correct result, or failed with a message that
 *     names a path of the dataset;
 *   - what both left is recovered, and verify finds no fault;
 *   - each datapoint that was reported as flushed or finished exists once, and none
 *     exists twice;
 *   - no datapoint is made of fields of different datapoints, and no shard of
 *     datapoints of different jobs.
 *
 * tests/README.md lists the rule for every pair.
 */
// flavours: test: release; check: release
#include "check.h"

#ifdef _WIN32

static void two_processes_share_a_dataset(void **state) {
    (void)state;
    skip_on_windows("the processes are made by fork");
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(two_processes_share_a_dataset)};
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}

#else

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what one process reports to the other ---- */

#define MOST 64 /* datapoints of a process */

typedef struct report {
    bags_code code; /* of what it did as a unit */
    char message[BAGS_ERROR_SIZE];
    const char *wrong; /* a result that is not correct */
    uint64_t written[MOST];
    size_t count;        /* of those, in the order in which they were appended */
    size_t promised;     /* of those, reported as flushed or finished */
    bool promised_after; /* so reported after the other process worked */
    uint64_t seen[MOST];
    size_t seen_count;
    bool all_seen; /* it has read all that it found when it opened the dataset */
    uint64_t resumed;
    bool resumes;  /* `resumed` was returned */
    bool removing; /* it has not removed everything yet that it replaces */
} report;

typedef struct process {
    const char *path;
    bool sharded;
    const bags_io *io;
    report *to;
    uint64_t first; /* the number of its first datapoint */
    bool late;      /* the other process has done its work */
} process;

static bags_code report_error(report *to, bags_code code, const char *message) {
    if (code && !to->code) {
        to->code = code;
        snprintf(to->message, sizeof to->message, "%s", message);
    }
    return code;
}

/* ---- datapoints ---- */

static const bags_field fields[] = {{"id", "int(8)"}, {"name", "utf8"}};

/* The job of a datapoint is its number / 1000, its worker the hundreds. */
static bags_code append(process *p, bags_writer *writer, uint64_t id, bags_error *err) {
    char text[32];
    snprintf(text, sizeof text, "datapoint %d", (int)id);
    bags_value number = bags_uint(id), name = bags_utf8(text);
    bags_entry entries[] = {{"id", &number, 1}, {"name", &name, 1}};
    bags_code code = bags_writer_append(writer, entries, 2, err);
    if (!code)
        p->to->written[p->to->count++] = id;
    return code;
}

/* `late`: the call that reports it began after the other process worked. */
static void promise(process *p, bool late) {
    p->to->promised = p->to->count;
    p->to->promised_after = late;
}

/* Read a datapoint. False: its fields do not belong together. */
static bags_code read_id(const bags_reader *reader, uint64_t index, bags_row *row,
    uint64_t *id, bool *whole, bags_error *err) {
    bags_value number, name;
    char text[32];
    bags_code code = bags_reader_get(reader, index, NULL, 0, row, err);
    if (!code)
        code = bags_row_value(row, 0, 0, NULL, &number, err);
    if (!code)
        code = bags_row_value(row, 1, 0, NULL, &name, err);
    if (code)
        return code;
    snprintf(text, sizeof text, "datapoint %d", (int)number.uint);
    *id = number.uint;
    *whole = name.size == strlen(text) && !memcmp(name.data, text, name.size);
    return BAGS_OK;
}

/* ---- operations ---- */

static bags_writer_options writing(const process *p, uint64_t start, uint64_t stop) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.buffer_size = 4096;
    options.env.io = p->io;
    if (p->sharded) {
        options.shard_length = 2;
        options.shard_start = start;
        options.shard_stop = stop;
    }
    return options;
}

/* Append `more` datapoints; flush after the first and the last; finish. */
static void write_with(process *p, const bags_writer_options *options, uint64_t more) {
    bags_error err;
    bags_code code = BAGS_OK;
    bags_writer *writer = bags_writer_open(p->path, fields, 2, options, &err);
    if (!writer) {
        report_error(p->to, err.code, err.message);
        return;
    }
    p->to->resumed = bags_writer_resumed(writer);
    p->to->resumes = options->existing == BAGS_EXISTING_RESUME;
    uint64_t first = p->first + p->to->resumed;
    for (uint64_t i = 0; i < more && !code; i++) {
        code = append(p, writer, first + i, &err);
        bool late = p->late;
        if (!code && (i == 0 || i + 1 == more)) {
            code = bags_writer_flush(writer, &err);
            if (!code)
                promise(p, late);
        }
    }
    report_error(p->to, code, err.message);
    bool late = p->late;
    code = bags_writer_close(writer, &err);
    report_error(p->to, code, err.message);
    if (!code)
        promise(p, late);
}

static void run_writer(process *p) {
    bags_writer_options options = writing(p, 2, 3);
    p->first += 200;
    write_with(p, &options, 3);
}

static void run_resume(process *p) {
    bags_writer_options options = writing(p, 1, 3);
    options.existing = BAGS_EXISTING_RESUME;
    p->first += 100;
    write_with(p, &options, 2);
}

static void run_recover(process *p) {
    bags_error err;
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.env.io = p->io;
    report_error(p->to, bags_recover(p->path, &options, NULL, &err), err.message);
}

static void run_dry_run(process *p) {
    bags_error err;
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.dry_run = true;
    options.env.io = p->io;
    report_error(p->to, bags_recover(p->path, &options, NULL, &err), err.message);
}

static void run_finalize(process *p) {
    bags_error err;
    bags_finalize_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.env.io = p->io;
    report_error(p->to, bags_finalize(p->path, &options, NULL, &err), err.message);
}

static void run_checksum(process *p) {
    bags_error err;
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.env.io = p->io;
    report_error(p->to, bags_checksum(p->path, &options, NULL, &err), err.message);
}

static void read_with(process *p, const bags_reader_options *options) {
    bags_error err;
    bags_row row = {0};
    bags_code code = BAGS_OK;
    report *to = p->to;
    bags_reader *reader = bags_reader_open(p->path, options, &err);
    if (!reader) {
        report_error(to, err.code, err.message);
        return;
    }
    uint64_t length = bags_reader_length(reader);
    for (uint64_t i = 0; i < length && i < MOST && !code; i++) {
        uint64_t id = 0;
        bool whole = true;
        code = read_id(reader, i, &row, &id, &whole, &err);
        if (code)
            break;
        to->seen[to->seen_count++] = id;
        if (!whole)
            to->wrong = "a row is made of two datapoints";
        if (id / 1000 != to->seen[0] / 1000)
            to->wrong = "a reader mixes datapoints of two jobs";
        for (size_t j = 0; j + 1 < to->seen_count; j++)
            if (to->seen[j] == id)
                to->wrong = "a reader returns a datapoint twice";
    }
    to->all_seen = !code;
    report_error(to, code, err.message);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* Follows running writers, with one file open at a time. */
static void run_reader(process *p) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_READ;
    options.allow_gaps = true;
    options.no_mmap = true;
    options.max_files = 1;
    options.env.io = p->io;
    read_with(p, &options);
}

/* What `bags export` does, which reads with maps and refuses what is unfinished. */
static void run_export(process *p) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.allow_gaps = true;
    options.env.io = p->io;
    read_with(p, &options);
}

typedef struct listing {
    char names[MOST][24];
    size_t count;
} listing;

static int collect(void *user, const char *name) {
    listing *all = (listing *)user;
    if (all->count == MOST || strlen(name) >= sizeof all->names[0])
        abort();
    strcpy(all->names[all->count++], name);
    return 0;
}

/* rm -r. Returns an errno value. */
static int remove_all(const bags_io *io, const char *path) {
    listing *all = (listing *)calloc(1, sizeof *all);
    int error = all ? io->list(io->user, path, collect, all) : ENOMEM;
    for (size_t i = 0; !error && i < all->count; i++) {
        char inner[512];
        bags_path_kind kind = BAGS_PATH_NONE;
        snprintf(inner, sizeof inner, "%s/%s", path, all->names[i]);
        error = io->kind(io->user, inner, &kind);
        if (!error && kind == BAGS_PATH_DIRECTORY)
            error = remove_all(io, inner);
        else if (!error && kind == BAGS_PATH_FILE)
            error = io->remove(io->user, inner);
        error = error == ENOENT ? 0 : error; /* as rm -rf */
    }
    free(all);
    return error ? error : io->remove_dir(io->user, path);
}

/* A new job: it removes the dataset and writes another one in its place. */
static void run_rewrite(process *p) {
    p->to->removing = true;
    int error = remove_all(p->io, p->path);
    if (error && error != ENOENT) {
        char message[600];
        snprintf(message, sizeof message, "%s: rm: %s", p->path, strerror(error));
        report_error(p->to, BAGS_ERROR_IO, message);
        return;
    }
    p->to->removing = false;
    p->first += p->first ? 1000 : 2000;
    bags_writer_options options = writing(p, 0, 1);
    write_with(p, &options, 3);
}

enum {
    WRITER,
    RESUME,
    RECOVER,
    DRY_RUN,
    FINALIZE,
    CHECKSUM,
    READER,
    EXPORT,
    REWRITE,
    OPERATIONS
};

static const struct operation {
    const char *name;
    void (*run)(process *p);
} operations[OPERATIONS] = {
    {"writer", run_writer},
    {"resume", run_resume},
    {"recover", run_recover},
    {"dry run", run_dry_run},
    {"finalize", run_finalize},
    {"checksum", run_checksum},
    {"reader", run_reader},
    {"export", run_export},
    {"rewrite", run_rewrite},
};

/* ---- what they start with ---- */

enum {
    CRASHED, /* worker 0 has finished, worker 1 crashed after a flush */
    GAPS,    /* both have finished, and left a gap */
    SINGLE,  /* not sharded; its writer crashed after a flush */
    STARTS
};

static const char *const start_names[STARTS] = {
    "after a crash", "with gaps", "in one directory"};

typedef struct start {
    uint64_t ids[MOST]; /* those that were flushed */
    size_t count;
    uint64_t own; /* of them, of the worker that resumes */
} start;

static void write_start(const char *path, bool sharded, uint64_t worker, uint64_t count,
    bool finish, start *all) {
    report to;
    process p = {path, sharded, bags_io_local(), &to, 0, false};
    bags_writer_options options = writing(&p, worker, 3);
    bags_writer *writer;
    memset(&to, 0, sizeof to);
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(append(&p, writer, 100 * worker + i, &said));
        all->ids[all->count++] = 100 * worker + i;
    }
    if (finish) {
        assert_ok(bags_writer_close(writer, &said));
        return;
    }
    /* It crashes: its process ends while the files are as they are. */
    assert_ok(bags_writer_flush(writer, &said));
    copy_tree(path, at("crashed"));
    bags_writer_abort(writer);
    if (exists(path))
        remove_tree(path);
    copy_tree(at("crashed"), path);
    remove_tree(at("crashed"));
}

static start make_start(int which, const char *path) {
    start all;
    memset(&all, 0, sizeof all);
    if (which == SINGLE) {
        write_start(path, false, 1, 1, false, &all);
        all.own = 1;
    } else if (which == CRASHED) {
        write_start(path, true, 0, 1, true, &all);
        write_start(path, true, 1, 1, false, &all);
        all.own = 1;
    } else {
        write_start(path, true, 0, 1, true, &all);
        write_start(path, true, 1, 3, true, &all);
        all.own = 3;
    }
    return all;
}

/* ---- one pair ---- */

typedef struct pair {
    int stepping, other;
    char name[80];
} pair;

typedef struct trial {
    const pair *what;
    int start_kind;
    start before;
    const char *path;
    uint64_t step;
    report *one, *two;    /* the first is in shared memory */
    size_t promised_then; /* by the first, when it stopped */
    size_t written_then;
    bool removing_then;
} trial;

static void fail_trial(const trial *t, const char *format, ...) BAGI_PRINTF(2, 3);
static void fail_trial(const trial *t, const char *format, ...) {
    char text[700];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail_msg("%s, %s, step %d: %s\n  %s: %s\n  %s: %s", t->what->name,
        start_names[t->start_kind], (int)t->step, text,
        operations[t->what->stepping].name,
        t->one->code ? t->one->message : "succeeded", operations[t->what->other].name,
        t->two->code ? t->two->message : "succeeded");
}

/* A process that stops itself before a call. */
typedef struct stepper {
    watch files;
    process *p;
    uint64_t calls, stop_at;
} stepper;

static void step(void *user) {
    stepper *s = (stepper *)user;
    if (++s->calls != s->stop_at)
        return;
    raise(SIGSTOP);
    s->p->late = true;
}

static void run_stepping(trial *t) {
    stepper s;
    process p = {t->path, t->start_kind != SINGLE, NULL, t->one, 0, false};
    memset(&s, 0, sizeof s);
    watch_start(&s.files, bags_io_local());
    s.files.before = step;
    s.files.user = &s;
    s.p = &p;
    s.stop_at = t->step;
    p.io = &s.files.io;
    operations[t->what->stepping].run(&p);
    if (s.files.files || s.files.maps)
        p.to->wrong = "files are left open";
    _exit(0);
}

/* Run both. False: the first had no such step, and ran before the other. */
static bool run_both(trial *t) {
    int status = 0;
    process p = {t->path, t->start_kind != SINGLE, bags_io_local(), t->two, 0, false};
    pid_t child = fork();
    if (child < 0)
        fail_msg("fork: %s", strerror(errno));
    if (child == 0)
        run_stepping(t);
    if (waitpid(child, &status, WUNTRACED) != child)
        fail_msg("waitpid: %s", strerror(errno));
    bool stopped = WIFSTOPPED(status);
    t->promised_then = t->one->promised;
    t->written_then = t->one->count;
    t->removing_then = t->one->removing;
    if (t->what->other == REWRITE && t->what->stepping == REWRITE)
        p.first = 2000;
    operations[t->what->other].run(&p);
    if (stopped) {
        kill(child, SIGCONT);
        if (waitpid(child, &status, 0) != child)
            fail_msg("waitpid: %s", strerror(errno));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_trial(t, "the process ended with status %d", status);
    return stopped;
}

/* ---- what must hold afterwards ---- */

static void check_report(const trial *t, const report *r, const char *who) {
    if (r->wrong)
        fail_trial(t, "%s: %s", who, r->wrong);
    if (r->code && !strstr(r->message, "set"))
        fail_trial(t, "%s: code %d, and the message names no path", who, (int)r->code);
}

/* All that was promised and not removed by a new job. */
static bool is_replaced(const trial *t) {
    return t->what->stepping == REWRITE || t->what->other == REWRITE;
}

typedef struct contents {
    uint64_t ids[4 * MOST];
    size_t count;
} contents;

static size_t count_of(const contents *all, uint64_t id) {
    size_t found = 0;
    for (size_t i = 0; i < all->count; i++)
        found += all->ids[i] == id;
    return found;
}

static void read_contents(const trial *t, contents *all) {
    bags_reader_options options;
    bags_row row = {0};
    bags_error err;
    memset(&options, 0, sizeof options);
    options.allow_gaps = true;
    bags_reader *reader = bags_reader_open(t->path, &options, &err);
    if (!reader)
        fail_trial(t, "cannot be read: %s", err.message);
    for (size_t s = 0; s < shard_count(reader); s++) {
        bags_shard shard = shard_at(reader, s);
        uint64_t job = 0;
        for (uint64_t i = 0; i < shard.length && all->count < 4 * MOST; i++) {
            uint64_t id = 0;
            bool whole = false;
            if (read_id(reader, shard.start + i, &row, &id, &whole, &err))
                fail_trial(t, "cannot be read: %s", err.message);
            if (!whole)
                fail_trial(t, "a datapoint has fields of another");
            job = i ? job : id / 1000;
            if (id / 1000 != job)
                fail_trial(t, "a shard has datapoints of two jobs");
            all->ids[all->count++] = id;
        }
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    for (size_t i = 0; i < all->count; i++)
        if (count_of(all, all->ids[i]) != 1)
            fail_trial(t, "datapoint %d exists twice", (int)all->ids[i]);
}

static void check_promised(const trial *t, const contents *all, const uint64_t *ids,
    size_t count, const char *who) {
    for (size_t i = 0; i < count; i++)
        if (count_of(all, ids[i]) != 1)
            fail_trial(t, "datapoint %d of the %s is lost", (int)ids[i], who);
}

static void check_contents(const trial *t, const contents *all) {
    const report *one = t->one, *two = t->two;
    const char *name_one = operations[t->what->stepping].name;
    const char *name_two = operations[t->what->other].name;
    if (!is_replaced(t))
        check_promised(t, all, t->before.ids, t->before.count, "start");
    /* A new job removes what was promised before. */
    if (t->what->other != REWRITE || one->promised_after)
        check_promised(t, all, one->written, one->promised, name_one);
    if (t->what->stepping != REWRITE || !t->removing_then)
        check_promised(t, all, two->written, two->promised, name_two);
    /* A job that wrote to the old dataset must not write to the new one. */
    for (size_t i = 0; i < one->count; i++)
        if (t->what->other == REWRITE && t->written_then > 0 &&
            count_of(all, one->written[i]))
            fail_trial(t, "datapoint %d is in the dataset of another job",
                (int)one->written[i]);
}

/* A reader that read everything it found returns all that was flushed before it
 * was opened. */
static void check_seen(const trial *t, const report *r, int operation) {
    contents seen;
    if ((operation != READER && operation != EXPORT) || !r->all_seen || is_replaced(t))
        return;
    memset(&seen, 0, sizeof seen);
    for (size_t i = 0; i < r->seen_count; i++)
        seen.ids[seen.count++] = r->seen[i];
    check_promised(t, &seen, t->before.ids, t->before.count, "start, for a reader,");
}

/* Two resume the same worker's shards, one after the other. */
static void check_resumed(const trial *t, const report *r, const report *other) {
    uint64_t own = t->before.own;
    if (!r->resumes || is_replaced(t) || r->resumed == own)
        return;
    if (r->code && r->count == 0) /* it has not used the number */
        return;
    if (!other->resumes || r->resumed != own + other->promised)
        fail_trial(t, "%d datapoints were resumed, not %d", (int)r->resumed, (int)own);
}

/* Shards that came later, or were moved away, get their checksums now. */
static void complete_checksums(const trial *t) {
    bags_error err;
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    if ((t->what->stepping == CHECKSUM || t->what->other == CHECKSUM) &&
        bags_checksum(t->path, &options, NULL, &err))
        fail_trial(t, "checksums cannot be completed: %s", err.message);
}

static void check_trial(const trial *t) {
    contents all;
    bags_error err;
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    check_report(t, t->one, operations[t->what->stepping].name);
    check_report(t, t->two, operations[t->what->other].name);
    check_resumed(t, t->one, t->two);
    check_resumed(t, t->two, t->one);
    check_seen(t, t->one, t->what->stepping);
    check_seen(t, t->two, t->what->other);
    /* A removal that was disturbed leaves files of any kind. */
    if ((t->what->stepping == REWRITE && t->one->removing) ||
        (t->what->other == REWRITE && t->two->removing))
        return;
    bags_code code = bags_recover(t->path, &options, NULL, &err);
    if (code && code != BAGS_ERROR_MISSING)
        fail_trial(t, "not recovered: %s", err.message);
    memset(&all, 0, sizeof all);
    if (!code)
        read_contents(t, &all);
    check_contents(t, &all);
    if (!code)
        complete_checksums(t);
    if (!code && verify_path(t->path, NULL, &err))
        fail_trial(t, "a fault: %s", err.message);
}

static void check_pair(void **state) {
    const pair *what = (const pair *)*state;
    report *shared = (report *)mmap(NULL, sizeof(report), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    report other;
    int steps = 0, one = 0, two = 0, both = 0, locked = 0;
    if (shared == MAP_FAILED)
        fail_msg("mmap: %s", strerror(errno));
    for (int kind = 0; kind < STARTS; kind++) {
        trial t;
        bool stopped = true;
        memset(&t, 0, sizeof t);
        t.what = what;
        t.start_kind = kind;
        t.one = shared;
        t.two = &other;
        t.before = make_start(kind, at("set"));
        copy_tree(at("set"), at("template"));
        for (t.step = 1; stopped; t.step += support_stride()) {
            if (exists(at("set")))
                remove_tree(at("set"));
            copy_tree(at("template"), at("set"));
            memset(shared, 0, sizeof *shared);
            memset(&other, 0, sizeof other);
            t.path = at("set");
            stopped = run_both(&t);
            check_trial(&t);
            steps++;
            one += !shared->code;
            two += !other.code;
            both += !shared->code && !other.code;
            locked += other.code == BAGS_ERROR_LOCKED;
        }
        remove_tree(at("set"));
        remove_tree(at("template"));
    }
    munmap(shared, sizeof(report));
    print_message("%s: %d steps; the first succeeds at %d, the second at %d, "
                  "both at %d\n",
        what->name, steps, one, two, both);
    /* Two writers have the same worker number. */
    bool exclusive = what->stepping == WRITER && what->other == WRITER;
    assert_true(one > 0 && two > 0 && (both > 0) != exclusive);
    /* A dry run tests a lock, and releases it a few calls later. */
    if (what->stepping == DRY_RUN)
        assert_true(locked <= 6 * STARTS);
}

int main(int count, char **words) {
    static pair pairs[OPERATIONS][OPERATIONS];
    static struct CMUnitTest tests[OPERATIONS * OPERATIONS];
    for (int i = 0; i < OPERATIONS; i++)
        for (int j = 0; j < OPERATIONS; j++) {
            pair *each = &pairs[i][j];
            struct CMUnitTest *test = &tests[i * OPERATIONS + j];
            each->stepping = i;
            each->other = j;
            snprintf(each->name, sizeof each->name, "%s at every step of %s",
                operations[j].name, operations[i].name);
            test->name = each->name;
            test->test_func = check_pair;
            test->setup_func = support_setup;
            test->teardown_func = support_teardown;
            test->initial_state = each;
        }
    /* Small files are made thousands of times: on a disk that takes minutes. */
    if (!getenv("TMPDIR") && !access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 1);
    if (count > 1)
        cmocka_set_test_filter(words[1]);
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
#endif
