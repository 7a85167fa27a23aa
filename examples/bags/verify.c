/*
 * bags verify: find every fault in the files, using several threads.
 *
 * bags_verify divides the work, and each thread does its part. One function prints all
 * faults while holding a lock.
 */
#include "command.h"
#include "system.h"

#include <pthread.h>

#define MAX_JOBS 256

/* Shared by all threads while they check one path. */
static const char *path;
static uint64_t total; /* approximate number of bytes to read; 0: unknown */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects what follows */
static uint64_t bytes, shown;

/* A field that was not decoded because this build has no codec for its type. */
typedef struct skipped {
    char *name, *type;
    uint64_t blobs;
} skipped;
static skipped *skips;
static size_t skips_count;

static bool json;
static option_number jobs_given = {0, 1, 0, false};

static bags_verify_options given;
static bool skip_unfinished, live;

static const option options[] = {
    {"quick", OPTION_FLAG, &given.quick, NULL,
        "check only what costs the same for a file of any size: the shape of "
        "every file, its first and last entry"},
    {"decode", OPTION_FLAG, &given.decode, NULL, "decode every value too"},
    OPTION_MAX_PIXELS,
    {"jobs", OPTION_NUMBER, &jobs_given, "N",
        "threads; without it, the number of processors"},
    {"json", OPTION_FLAG, &json, NULL,
        "print an object per line; the last one is the summary"},
    {"allow-gaps", OPTION_FLAG, &given.allow_gaps, NULL,
        "missing shards are not a fault"},
    {"skip-unfinished", OPTION_FLAG, &skip_unfinished, NULL,
        "unfinished shards are not a fault"},
    {"live", OPTION_FLAG, &live, NULL,
        "of unfinished shards, check the datapoints that were flushed; missing shards "
        "are not a fault"},
    OPTIONS_END,
};

/* The work of one thread. */
typedef struct job {
    bags_verify_options options;
    bags_verify_report report;
    bags_code code;
    bags_error err;
    pthread_t thread;
    bool started;
} job;

/* ---- output ---- */

static void json_fault(text *line, const bags_fault *fault) {
    text_puts(line, "{");
    text_member_string(line, "path", fault->path);
    text_member_string(line, "field", fault->field);
    if (fault->kind == BAGS_FAULT_BLOB)
        text_member_number(line, "blob", fault->index);
    if (fault->kind == BAGS_FAULT_DATAPOINT)
        text_member_number(line, "datapoint", fault->index);
    text_member_number(line, "offset", fault->offset);
    text_member_string(line, "error", bags_code_name(fault->code));
    text_member_string(
        line, "message", message_of_command(fault->message, fault->remedy));
    text_puts(line, "}\n");
}

/* Append the message of a fault (it already names the file, the field and the index)
 * and add the offset. */
static void text_fault(text *line, const bags_fault *fault) {
    text_clean(line, message_of_command(fault->message, fault->remedy));
    if (fault->kind != BAGS_FAULT_FILE || (fault->field && fault->offset))
        text_format(line, " (at byte %ju)", (uintmax_t)fault->offset);
    text_puts(line, "\n");
}

/* Called by every thread. */
static void show_fault(void *user, const bags_fault *fault) {
    (void)user;
    text line = {0};
    pthread_mutex_lock(&lock);
    bar_hide();
    if (json)
        json_fault(&line, fault);
    else
        text_fault(&line, fault);
    text_output(&line);
    shown++;
    pthread_mutex_unlock(&lock);
    bags_buffer_free(&line.buffer);
}

/* Called by every thread, for each shard. */
static void add_skipped(void *user, const bags_field *field, uint64_t blobs) {
    (void)user;
    size_t i = 0;
    pthread_mutex_lock(&lock);
    while (i < skips_count &&
           (strcmp(skips[i].name, field->name) || strcmp(skips[i].type, field->type)))
        i++;
    if (i == skips_count) {
        skips = (skipped *)grow(skips, skips_count++, sizeof *skips);
        skips[i].name = string_format("%s", field->name);
        skips[i].type = string_format("%s", field->type);
        skips[i].blobs = 0;
    }
    skips[i].blobs += blobs;
    pthread_mutex_unlock(&lock);
}

/* Print a line for each field that was not decoded. Returns false if another build
 * could decode one of their types: --decode then did not check everything. */
static bool show_skipped(text *line) {
    bool complete = true;
    for (size_t i = 0; i < skips_count; i++) {
        const skipped *one = &skips[i];
        const type_info *info = type_find(one->type);
        bool lacking = info && info->format;
        char *message = string_format(
            "%s: field \"%s\": %s not decoded: no codec for type \"%s\"%s%s%s", path,
            one->name, counted(one->blobs, "blob"), one->type,
            lacking ? " in this build of bags; " : "", lacking ? info->format : "",
            lacking ? " has one" : "");
        complete = complete && !lacking;
        if (json) {
            text_puts(line, "{");
            text_member_string(line, "path", path);
            text_member_string(line, "field", one->name);
            text_member_number(line, "undecoded", one->blobs);
            text_member_string(line, "message", message);
            text_puts(line, "}\n");
        } else {
            text_clean(line, message);
            text_puts(line, "\n");
        }
        free(message);
        free(one->name);
        free(one->type);
    }
    skips_count = 0;
    return complete;
}

/* Called by every thread. */
static void show_progress(void *user, uint64_t read) {
    (void)user;
    pthread_mutex_lock(&lock);
    bytes += read;
    progress_show(path, "MiB", bytes, total, bytes >> 20);
    pthread_mutex_unlock(&lock);
}

/* Write how much of the blobs' bytes was checked. */
static void put_extent(text *line, const bags_verify_report *sum) {
    bool bag = sum->shards + sum->unfinished == 0;
    const char *rest = bag && given.decode ? "the table compared and values decoded"
                       : bag               ? "only the table compared"
                       : given.decode
                           ? "tables and references compared and values decoded"
                           : "only tables and references compared";
    if (given.quick)
        text_puts(line, ", quick check");
    else if (sum->checksums == 0)
        text_format(line, ", %s, without checksums", rest);
    else if (sum->checksums == sum->bags)
        text_puts(line, ", with checksums");
    else
        text_format(line, ", %ju of %ju Bags with checksums", (uintmax_t)sum->checksums,
            (uintmax_t)sum->bags);
}

static void text_summary(text *line, const bags_verify_report *sum) {
    bool bag = sum->shards + sum->unfinished == 0;
    uint64_t length = bag ? sum->blobs : sum->datapoints;
    text_clean(line, path);
    if (sum->faults)
        text_format(line, ": %s%s; checked ", counted(sum->faults, "fault"),
            sum->faults > shown ? ", not all of them shown" : "");
    else
        text_puts(line, sum->undecoded ? ": no fault found; checked " : ": good: ");
    text_puts(line, counted(length, bag ? "blob" : "datapoint"));
    if (sum->shards > 1)
        text_format(line, " in %ju shards", (uintmax_t)sum->shards);
    if (sum->unfinished)
        text_format(line, live ? ", with the flushed data of %s" : ", %s left out",
            counted(sum->unfinished, "unfinished shard"));
    if (sum->undecoded)
        text_format(
            line, ", %s without a codec not decoded", counted(sum->undecoded, "blob"));
    if (!sum->faults)
        put_extent(line, sum);
    text_puts(line, "\n");
}

static void json_summary(text *line, const bags_verify_report *sum) {
    text_puts(line, "{");
    text_member_string(line, "path", path);
    text_member_number(line, "faults", sum->faults);
    text_member_number(line, "shown", shown);
    text_member_number(line, "shards", sum->shards);
    text_member_number(line, "unfinished", sum->unfinished);
    text_member_number(line, "files", sum->files);
    text_member_number(line, "blobs", sum->blobs);
    text_member_number(line, "datapoints", sum->datapoints);
    text_member_number(line, "bytes", sum->bytes);
    text_member_number(line, "undecoded", sum->undecoded);
    text_member_number(line, "bags", sum->bags);
    text_member_number(line, "checksums", sum->checksums);
    text_puts(line, "}\n");
}

/* ---- the threads ---- */

static void *do_job(void *user) {
    job *one = (job *)user;
    one->code = bags_verify(path, &one->options, &one->report, &one->err);
    return NULL;
}

/* If the system cannot start a thread, this thread does its work. */
static void run_jobs(job *jobs, size_t count) {
    for (size_t i = 1; i < count; i++)
        jobs[i].started = pthread_create(&jobs[i].thread, NULL, do_job, &jobs[i]) == 0;
    do_job(&jobs[0]);
    for (size_t i = 1; i < count; i++)
        if (jobs[i].started)
            pthread_join(jobs[i].thread, NULL);
        else
            do_job(&jobs[i]);
}

/* Add up the reports. All members of a report are numbers. */
static void add(bags_verify_report *sum, const bags_verify_report *part) {
    for (size_t at = 0; at < sizeof *sum; at += sizeof(uint64_t)) {
        uint64_t one, two;
        memcpy(&one, (const char *)sum + at, sizeof one);
        memcpy(&two, (const char *)part + at, sizeof two);
        one += two;
        memcpy((char *)sum + at, &one, sizeof one);
    }
}

/* Find an error that ended a job early, as opposed to a fault. */
static const bags_error *find_failure(const job *jobs, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (jobs[i].code &&
            (!jobs[i].report.faults || jobs[i].code == BAGS_ERROR_MEMORY))
            return &jobs[i].err;
    return NULL;
}

/* ---- data flushed by running or crashed writers ---- */

/* Read a datapoint, and with --decode also decode it. Returns false with the fault in
 * `failure`. */
static bool live_read(const bags_reader *reader, uint64_t index, bags_row *row) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (bags_reader_get(reader, index, NULL, 0, row, &failure))
        return false;
    for (size_t k = 0; given.decode && k < count; k++)
        for (size_t i = 0; i < bags_row_length(row, k); i++) {
            bags_value value;
            if (!codec_exists(fields[k].type))
                add_skipped(NULL, &fields[k], 1);
            else if (bags_row_value(row, k, i, NULL, &value, &failure))
                return false;
        }
    return true;
}

/* Print `failure`. Its message names the datapoint, if there is one. */
static void live_fault(const bags_shard *shard) {
    bags_fault fault = {shard ? shard_path(path, shard) : path, NULL, BAGS_FAULT_FILE,
        0, 0, failure.code, failure.message, failure.remedy};
    show_fault(NULL, &fault);
    failure.code = BAGS_OK;
}

/* Check the first datapoints in a shard. Returns how many have faults. */
static uint64_t live_check_shard(
    const bags_reader *reader, const bags_shard *shard, uint64_t length) {
    bags_row row = {0};
    uint64_t faults = 0;
    for (uint64_t i = 0; i < length; i++)
        if (!live_read(reader, shard->start + i, &row)) {
            live_fault(shard);
            faults++;
        }
    bags_row_free(&row);
    return faults;
}

static bags_reader *live_open_reader(bool checksums) {
    bags_reader_options reading = {0};
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.allow_gaps = true;
    reading.verify_checksums = checksums;
    reading.registry = given.registry;
    reading.env = given.env;
    return bags_reader_open(path, &reading, &failure);
}

/* Find the shard with the same number as `like`; NULL if there is none. */
static const bags_shard *live_find(const bags_reader *reader, const bags_shard *like) {
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    for (size_t i = 0; i < count; i++)
        if (shards[i].number == like->number)
            return &shards[i];
    return NULL;
}

/* Check the flushed data of all shards that are unfinished now; bags_verify checks the
 * finished shards afterwards. A shard that finishes in between is checked twice but
 * counted once. When a reader compares checksums, a shard ends at the first
 * mismatch. */
static bags_shard *live_check(size_t *count, uint64_t *faults) {
    bags_shard *checked = NULL;
    size_t all = 0;
    *count = 0;
    *faults = 0;
    if (path_kind(path) != BAGS_PATH_DIRECTORY)
        return NULL;
    bags_reader *reader = live_open_reader(false);
    bags_reader *compared = reader ? live_open_reader(true) : NULL;
    if (!compared && failure.code != BAGS_ERROR_MISSING) {
        live_fault(NULL);
        ++*faults;
    }
    const bags_shard *shards = bags_reader_shards(reader, &all);
    for (size_t i = 0; reader && i < all; i++) {
        const bags_shard *same = live_find(compared, &shards[i]);
        uint64_t length = shards[i].length;
        if (!shards[i].unfinished)
            continue;
        if (same && same->length < length) {
            length = same->length;
            bags_fail(&failure, BAGS_ERROR_CORRUPT,
                "%s: datapoint %ju: checksum mismatch; `bags recover` drops it and the "
                "datapoints after it",
                shard_path(path, &shards[i]), (uintmax_t)length);
            live_fault(&shards[i]);
            ++*faults;
        }
        *faults += same ? live_check_shard(compared, same, length)
                        : live_check_shard(reader, &shards[i], length);
        checked = (bags_shard *)grow(checked, *count, sizeof *checked);
        checked[(*count)++] = shards[i];
    }
    bags_reader_close(compared);
    bags_reader_close(reader);
    return checked;
}

/* Estimate the number of bytes to read, for a terminal: everything once if there are
 * checksums, and the blobs once more with --decode. Returns 0 (unknown) otherwise;
 * reading only tables and refs takes little time. */
static uint64_t estimate_total(void) {
    bags_reader_options reading = {0};
    bags_info info = {0};
    reading.allow_gaps = true;
    reading.unfinished = BAGS_UNFINISHED_SKIP;
    reading.env = given.env;
    if (given.quick || isatty(STDERR_FILENO) != 1)
        return 0;
    bags_reader *reader = bags_reader_open(path, &reading, NULL);
    bool known = reader && !bags_reader_info(reader, &info, NULL, NULL);
    bags_reader_close(reader);
    return known ? ((info.checksums ? 1u : 0u) + (given.decode ? 1u : 0u)) * info.size
                 : 0;
}

/* granular 0.20 and 0.21 write an empty Bag as an empty file. */
static void note_empty_file(void) {
    bag_reader_options reading = {0};
    bags_path_kind kind = BAGS_PATH_NONE;
    reading.allow_empty_file = true;
    reading.env = given.env;
    bag_reader *bag =
        !given.env.io->kind(given.env.io->user, path, &kind) && kind == BAGS_PATH_FILE
            ? bag_reader_open(path, &reading, NULL)
            : NULL;
    bag_note_empty(path, bag);
    bag_reader_close(bag);
}

/* Check one path. Every thread verifies its part, and a fault in one does not stop the
 * others. Returns false if there are faults or the path cannot be checked as
 * requested. */
static bool check(const char *operand, job *jobs, size_t count) {
    bags_verify_report sum = {0};
    text line = {0};
    path = path_without_secrets(operand);
    given.env.io = io_find(path, &failure);
    if (!given.env.io) {
        note_failure();
        return false;
    }
    bytes = shown = 0;
    for (size_t i = 0; i < count; i++) {
        memset(&jobs[i], 0, sizeof *jobs);
        jobs[i].options = given;
        jobs[i].options.part = i;
    }
    note_empty_file();
    size_t live_count = 0;
    uint64_t live_faults = 0;
    bags_shard *checked = live ? live_check(&live_count, &live_faults) : NULL;
    total = estimate_total();
    run_jobs(jobs, count);
    progress_end();
    for (size_t i = 0; i < count; i++)
        add(&sum, &jobs[i].report);
    sum.faults += live_faults;
    for (size_t i = 0; i < live_count; i++)
        if (!path_has(shard_path(path, &checked[i]), "spec.json"))
            sum.datapoints += checked[i].length;
    free(checked);
    const bags_error *error = find_failure(jobs, count);
    if (error) {
        failure = *error;
        path_hint(path);
        note_failure();
        return false;
    }
    bool complete = show_skipped(&line);
    if (json)
        json_summary(&line, &sum);
    else
        text_summary(&line, &sum);
    text_output(&line);
    bags_buffer_free(&line.buffer);
    return sum.faults == 0 && complete;
}

static int run(char **operands) {
    uint64_t threads = processors() > 0 ? (uint64_t)processors() : 1;
    threads = jobs_given.given ? jobs_given.value : threads;
    given.parts = threads < MAX_JOBS ? threads : MAX_JOBS;
    options_exclude("quick|decode", NULL);
    interrupt_leaves("not everything was checked", "start again with", NULL);
    options_exclude("live|skip-unfinished|quick", NULL);
    if (skip_unfinished || live)
        given.unfinished = BAGS_UNFINISHED_SKIP;
    given.allow_gaps = given.allow_gaps || live;
    given.registry = registry_get();
    given.allow_empty_file = true;
    given.each = show_fault;
    given.progress = show_progress;
    given.undecoded = add_skipped;
    job *jobs = (job *)allocate((size_t)given.parts, sizeof *jobs);
    bool good = true;
    for (; *operands; operands++)
        good = check(*operands, jobs, (size_t)given.parts) && good;
    free(jobs);
    return good ? 0 : 1;
}

const command command_verify = {"verify", "find every fault", "PATH...",
    {ARGUMENT_PATH, ARGUMENT_PATH, ARGUMENT_PATH}, 1, 0, options, NULL,
    "Checks every file of datasets and Bags: spec.json, each entry of each "
    "table, each datapoint's references and that the blobs exist; that no "
    "shard is missing, unfinished, duplicate, or has another spec; and, if "
    "there are checksums, every byte. Continues after a fault. Prints a line for "
    "each fault with its shard, field, index and offset, then a summary of the "
    "comparisons. The exit code is 1 if there are faults. For each path, at most "
    "1000 faults per thread are printed.\n",
    "  bags verify pets --decode\n", run};
