/*
 * bags verify: every fault in the files, by several threads.
 *
 * Each thread does its part of the work, which bags_verify finds by itself; what
 * they find goes through one place, under a lock.
 */
#include "command.h"
#include "system.h"

#include <pthread.h>

#define JOBS_MOST 256

/* What all threads share while they check one path. */
typedef struct checking {
    const char *path;
    bool json, quick;
    pthread_mutex_t lock; /* of all that follows */
    progress bar;
    uint64_t bytes, shown;
    bool failed; /* standard output takes no more */
} checking;

/* One thread. */
typedef struct job {
    checking *all;
    bags_verify_options options;
    bags_verify_report report;
    bags_code code;
    bags_error err;
    pthread_t thread;
    bool started;
} job;

/* ---- what is printed ---- */

static void put_text(text *line, const char *name, const char *value) {
    text_format(line, "\"%s\": ", name);
    if (value)
        text_json(line, value, strlen(value), false);
    else
        text_puts(line, "null");
}

static void put_number(text *line, const char *name, uint64_t value) {
    text_format(line, ", \"%s\": %ju", name, (uintmax_t)value);
}

static void json_fault(text *line, const bags_fault *fault) {
    text_puts(line, "{");
    put_text(line, "path", fault->path);
    text_puts(line, ", ");
    put_text(line, "field", fault->field);
    if (fault->kind == BAGS_FAULT_BLOB)
        put_number(line, "blob", fault->index);
    if (fault->kind == BAGS_FAULT_DATAPOINT) {
        put_number(line, "datapoint", fault->index);
        put_number(line, "item", fault->item);
    }
    put_number(line, "offset", fault->offset);
    text_puts(line, ", ");
    put_text(line, "error", bags_code_name(fault->code));
    text_puts(line, ", ");
    put_text(line, "message", fault->message);
    text_puts(line, "}\n");
}

/* The message names the shard, the field and the index; the offset is added. */
static void plain_fault(text *line, const bags_fault *fault) {
    text_puts(line, fault->message);
    if (fault->kind != BAGS_FAULT_FILE || (fault->field && fault->offset))
        text_format(line, " (at byte %ju)", (uintmax_t)fault->offset);
    text_puts(line, "\n");
}

static void show_fault(void *user, const bags_fault *fault) {
    checking *all = (checking *)user;
    text line = {0};
    bags_error err;
    if (all->json)
        json_fault(&line, fault);
    else
        plain_fault(&line, fault);
    pthread_mutex_lock(&all->lock);
    progress_end(&all->bar);
    all->failed = all->failed || text_check(&line, &err) ||
                  output(line.buffer.data, line.size, &err);
    all->shown++;
    pthread_mutex_unlock(&all->lock);
    text_free(&line);
}

static void show_progress(void *user, uint64_t bytes) {
    checking *all = (checking *)user;
    pthread_mutex_lock(&all->lock);
    all->bytes += bytes;
    progress_show(&all->bar, all->bytes, 0, all->bytes >> 20);
    pthread_mutex_unlock(&all->lock);
}

static const char *plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

/* What "good" means: how far the bytes of blobs were looked at. */
static void plain_extent(const checking *all, const bags_verify_report *sum) {
    if (all->quick)
        printf(", at a quick look");
    else if (sum->summed == 0)
        printf(", without checksums");
    else if (sum->summed == sum->bags)
        printf(", with checksums");
    else
        printf(", %ju of %ju Bags with checksums", (uintmax_t)sum->summed,
            (uintmax_t)sum->bags);
}

static void plain_summary(const checking *all, const bags_verify_report *sum) {
    bool bag = sum->shards + sum->unfinished == 0;
    uint64_t length = bag ? sum->blobs : sum->datapoints;
    printf("%s: ", all->path);
    if (sum->faults)
        printf("%ju fault%s%s: ", (uintmax_t)sum->faults, plural(sum->faults),
            sum->faults > all->shown ? ", not all of them shown" : "");
    else
        printf("good: ");
    printf("%ju %s%s", (uintmax_t)length, bag ? "blob" : "datapoint",
        plural(length));
    if (sum->shards > 1)
        printf(" in %ju shards", (uintmax_t)sum->shards);
    if (sum->unfinished)
        printf(", %ju unfinished shard%s left out", (uintmax_t)sum->unfinished,
            plural(sum->unfinished));
    if (sum->undecoded)
        printf(", %ju blob%s without a codec not decoded",
            (uintmax_t)sum->undecoded, plural(sum->undecoded));
    if (!sum->faults)
        plain_extent(all, sum);
    putchar('\n');
}

static void json_summary(const checking *all, const bags_verify_report *sum) {
    text line = {0};
    text_puts(&line, "{");
    put_text(&line, "path", all->path);
    put_number(&line, "faults", sum->faults);
    put_number(&line, "shown", all->shown);
    put_number(&line, "shards", sum->shards);
    put_number(&line, "unfinished", sum->unfinished);
    put_number(&line, "files", sum->files);
    put_number(&line, "blobs", sum->blobs);
    put_number(&line, "datapoints", sum->datapoints);
    put_number(&line, "bytes", sum->bytes);
    put_number(&line, "undecoded", sum->undecoded);
    put_number(&line, "bags", sum->bags);
    put_number(&line, "summed", sum->summed);
    text_puts(&line, "}\n");
    fwrite(line.buffer.data, 1, line.size, stdout);
    text_free(&line);
}

/* ---- the threads ---- */

static void *do_job(void *user) {
    job *one = (job *)user;
    one->code = bags_verify(one->all->path, &one->options, &one->report,
        &one->err);
    return NULL;
}

/* A thread that the system refuses is done without. */
static void run_jobs(job *jobs, size_t count) {
    for (size_t i = 1; i < count; i++)
        jobs[i].started =
            pthread_create(&jobs[i].thread, NULL, do_job, &jobs[i]) == 0;
    for (size_t i = 0; i < count; i++)
        if (!jobs[i].started)
            do_job(&jobs[i]);
    for (size_t i = 1; i < count; i++)
        if (jobs[i].started)
            pthread_join(jobs[i].thread, NULL);
}

static void add(bags_verify_report *sum, const bags_verify_report *part) {
    sum->shards += part->shards;
    sum->unfinished += part->unfinished;
    sum->files += part->files;
    sum->blobs += part->blobs;
    sum->datapoints += part->datapoints;
    sum->bytes += part->bytes;
    sum->undecoded += part->undecoded;
    sum->bags += part->bags;
    sum->summed += part->summed;
    sum->faults += part->faults;
}

/* What ended a job before it had looked at everything: not a fault. */
static const bags_error *find_failure(const job *jobs, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (jobs[i].code &&
            (!jobs[i].report.faults || jobs[i].code == BAGS_ERROR_MEMORY))
            return &jobs[i].err;
    return NULL;
}

static int finish(checking *all, const job *jobs, size_t count) {
    bags_verify_report sum = {0};
    const bags_error *failure = find_failure(jobs, count);
    progress_end(&all->bar);
    for (size_t i = 0; i < count; i++)
        add(&sum, &jobs[i].report);
    if (failure)
        fail(failure);
    else if (all->json)
        json_summary(all, &sum);
    else
        plain_summary(all, &sum);
    return failure || sum.faults || all->failed;
}

/* granular 0.20 and 0.21 write an empty Bag as an empty file. */
static void note_empty_file(const char *path) {
    struct stat about;
    if (!stat(path, &about) && S_ISREG(about.st_mode) && about.st_size == 0)
        note("%s: the file has 0 bytes: taken for an empty Bag, but a crash "
             "leaves this too", path);
}

static int check(const char *path, const bags_verify_options *options,
    bool json, job *jobs) {
    checking all = {0};
    size_t count = (size_t)options->parts;
    all.path = path;
    all.json = json;
    all.quick = options->quick;
    all.bar.title = path;
    all.bar.unit = "MiB";
    pthread_mutex_init(&all.lock, NULL);
    memset(jobs, 0, count * sizeof *jobs);
    for (size_t i = 0; i < count; i++) {
        jobs[i].all = &all;
        jobs[i].options = *options;
        jobs[i].options.user = &all;
        jobs[i].options.part = i;
    }
    note_empty_file(path);
    run_jobs(jobs, count);
    pthread_mutex_destroy(&all.lock);
    return finish(&all, jobs, count);
}

/* How many threads: as many as there are processors, if it is not said. */
static bool understand_jobs(const char *given, uint64_t *jobs) {
    *jobs = processors() > 0 ? (uint64_t)processors() : 1;
    if (given && !number_option(given, jobs))
        return false;
    if (*jobs > JOBS_MOST)
        *jobs = JOBS_MOST;
    return *jobs > 0;
}

static int run(int count, char **words) {
    static job jobs[JOBS_MOST];
    bags_verify_options how = {0};
    const char *jobs_given = NULL;
    bool json = false;
    const option options[] = {{"quick", &how.quick, NULL},
        {"decode", &how.decode, NULL}, {"jobs", NULL, &jobs_given},
        {"json", &json, NULL}, {"allow-gaps", &how.allow_gaps, NULL},
        {"skip-unfinished", &how.skip_unfinished, NULL}};
    int exit_code;
    if (!options_parse(&command_verify, &count, words, options, 6, &exit_code))
        return exit_code;
    if (count == 0)
        return fail_usage(&command_verify, "which PATH?");
    if (how.quick && how.decode)
        return fail_usage(&command_verify, "--quick and --decode exclude each "
                                           "other");
    if (!understand_jobs(jobs_given, &how.parts))
        return fail_usage(&command_verify, "--jobs takes a number from 1");
    bags_error err;
    bags_registry *codecs = codecs_make(&err);
    if (!codecs)
        return fail(&err);
    how.registry = codecs;
    how.allow_empty_file = true;
    how.each = show_fault;
    how.progress = show_progress;
    int worst = 0;
    for (int i = 0; i < count; i++)
        if (check(words[i], &how, json, jobs))
            worst = 1;
    bags_registry_free(codecs);
    return worst;
}

const command command_verify = {"verify", "find every fault",
    "usage: bags verify PATH... [--quick] [--decode] [--jobs N] [--json]\n"
    "                   [--allow-gaps] [--skip-unfinished]\n"
    "\n"
    "Checks every file of datasets and Bags: spec.json, each entry of each\n"
    "table, each datapoint's references, and that the blobs they name are\n"
    "there; and that no shard is missing, unfinished, there twice, or of\n"
    "another spec; and, where there are checksums, every byte. Goes on\n"
    "behind a fault, prints a line for each with its shard, field, index\n"
    "and offset, then a summary; exit code 1 if there is any. Of one path\n"
    "at most 1000 faults a thread are printed.\n"
    "\n"
    "  --quick   only what costs the same for a file of any size: the\n"
    "            shape of every file, its first and its last entry\n"
    "  --decode  decode every value too\n"
    "  --jobs N  threads; as many as there are processors, if not given\n"
    "  --json    each line an object; the last one is the summary\n"
    "  --allow-gaps, --skip-unfinished  as in bags help info\n"
    "\n"
    "example:\n"
    "  bags verify pets --decode\n",
    run};
