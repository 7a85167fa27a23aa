/*
 * verify.c - bags_verify with threads, and of data that writers have flushed; see
 * datasets.h. No library.
 */
#include "gate.h"

#include "datasets.h"
#include "files.h"
#include "try.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#ifndef BAGS_NO_VERIFY

#define VERIFY_THREADS 256
#define VERIFY_FAULTS 1000 /* the default of max_faults */

/* Shared by all threads. */
typedef struct verify_all {
    const char *path;
    const bags_verify_all_options *options;
    bags_verify_options part; /* with callbacks that hold the lock */
    gate lock;
    uint64_t passed;     /* faults, to `each` of the options */
    bags_shard *checked; /* unfinished shards whose data was checked */
    size_t checked_count;
    uint64_t faults; /* in them */
    bags_row row;
    char shard_path[FORMAT_PATH];
} verify_all;

/* The path of a shard and `name`, in *all. If it is too long or the shard is NULL: of the
 * dataset. */
static const char *verify_path(
    verify_all *all, const bags_shard *shard, const char *name) {
    size_t most = sizeof all->shard_path - strlen(name);
    if (!shard || bags_shard_path(all->path, shard, all->shard_path, most, NULL))
        return all->path;
    return strcat(all->shard_path, name);
}

/* The work of one thread. */
typedef struct verify_job {
    verify_all *all;
    bags_verify_options options;
    bags_verify_report report;
    bags_code code;
    bags_error err;
    gate_thread thread;
} verify_job;

/* ---- callbacks, called by every thread ---- */

static void verify_fault(void *user, const bags_fault *fault) {
    verify_all *all = (verify_all *)user;
    gate_lock(&all->lock);
    if (all->options->verify.each && all->passed++ < all->part.max_faults)
        all->options->verify.each(all->options->verify.user, fault);
    gate_unlock(&all->lock);
}

static void verify_undecoded(void *user, const bags_field *field, uint64_t blobs) {
    verify_all *all = (verify_all *)user;
    gate_lock(&all->lock);
    if (all->options->verify.undecoded)
        all->options->verify.undecoded(all->options->verify.user, field, blobs);
    gate_unlock(&all->lock);
}

static void verify_progress(void *user, uint64_t bytes) {
    verify_all *all = (verify_all *)user;
    gate_lock(&all->lock);
    if (all->options->verify.progress)
        all->options->verify.progress(all->options->verify.user, bytes);
    gate_unlock(&all->lock);
}

/* ---- threads ---- */

static gate_result GATE_CALL verify_part(void *user) {
    verify_job *job = (verify_job *)user;
    job->code = bags_verify(job->all->path, &job->options, &job->report, &job->err);
    return 0;
}

/* Add up the reports. All members of a report are numbers. */
static void verify_add(bags_verify_report *sum, const bags_verify_report *part) {
    for (size_t at = 0; at < sizeof *sum; at += sizeof(uint64_t)) {
        uint64_t one, two;
        memcpy(&one, (const char *)sum + at, sizeof one);
        memcpy(&two, (const char *)part + at, sizeof two);
        one += two;
        memcpy((char *)sum + at, &one, sizeof one);
    }
}

/* Do all parts. If the system cannot start a thread, this thread does its work. */
static bags_code verify_parts(
    verify_all *all, verify_job *jobs, bags_verify_report *sum, bags_error *err) {
    size_t count = (size_t)all->part.parts, started = 1;
    for (size_t i = 0; i < count; i++) {
        jobs[i].all = all;
        jobs[i].options = all->part;
        jobs[i].options.part = i;
    }
    while (started < count &&
           gate_thread_start(&jobs[started].thread, verify_part, &jobs[started]))
        started++;
    (void)verify_part(&jobs[0]);
    for (size_t i = started; i < count; i++)
        (void)verify_part(&jobs[i]);
    for (size_t i = 1; i < started; i++)
        gate_thread_join(jobs[i].thread);
    for (size_t i = 0; i < count; i++)
        verify_add(sum, &jobs[i].report);
    for (size_t i = 0; i < count; i++) /* an error, as opposed to a fault */
        if (jobs[i].code &&
            (!jobs[i].report.faults || jobs[i].code == BAGS_ERROR_MEMORY)) {
            *err = jobs[i].err;
            return jobs[i].code;
        }
    return BAGS_OK;
}

/* ---- data flushed by running or crashed writers ---- */

static bags_reader *verify_open(
    const verify_all *all, bool checksums, bags_error *err) {
    bags_reader_options reading;
    memset(&reading, 0, sizeof reading);
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.allow_gaps = true;
    reading.verify_checksums = checksums;
    reading.shard_start = all->part.shard_start;
    reading.shard_stop = all->part.shard_stop;
    reading.registry = all->part.registry;
    reading.env = all->part.env;
    return bags_reader_open(all->path, &reading, err);
}

/* Report an error as a fault of a shard or, if that is NULL, of the dataset. */
static void verify_report(
    verify_all *all, const bags_shard *shard, const bags_error *err) {
    bags_fault fault;
    memset(&fault, 0, sizeof fault);
    fault.path = verify_path(all, shard, "");
    fault.kind = BAGS_FAULT_FILE;
    fault.code = err->code;
    fault.message = err->message;
    fault.remedy = err->remedy;
    verify_fault(all, &fault);
    all->faults++;
}

/* Read a datapoint, and with `decode` also decode it. */
static bags_code verify_datapoint(
    verify_all *all, const bags_reader *reader, uint64_t index, bags_error *err) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    FORMAT_TRY(bags_reader_get(reader, index, NULL, 0, &all->row, err));
    for (size_t k = 0; all->part.decode && k < count; k++) {
        const bags_type *type = bags_reader_type(reader, k);
        bool known = type && bags_registry_find(all->part.registry, type->name) != NULL;
        for (size_t i = 0; i < bags_row_length(&all->row, k); i++) {
            bags_value value;
            if (!known)
                verify_undecoded(all, &fields[k], 1);
            else
                FORMAT_TRY(bags_row_value(&all->row, k, i, NULL, &value, err));
        }
    }
    return BAGS_OK;
}

/* Find the shard with the same number as `like`; NULL if there is none. */
static const bags_shard *verify_find(
    const bags_reader *reader, const bags_shard *like) {
    size_t count = 0;
    const bags_shard *shards = reader ? bags_reader_shards(reader, &count) : NULL;
    for (size_t i = 0; i < count; i++)
        if (shards[i].number == like->number)
            return &shards[i];
    return NULL;
}

/* Check the datapoints of an unfinished shard. When a reader compares checksums, a shard
 * ends at the first mismatch. */
static bags_code verify_shard(verify_all *all, const bags_reader *reader,
    const bags_reader *compared, const bags_shard *shard, bags_error *err) {
    const bags_shard *same = verify_find(compared, shard);
    uint64_t length = shard->length;
    if (same && same->length < length) {
        length = same->length;
        bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: datapoint %" PRIu64 ": checksum mismatch; `bags recover` drops it and "
            "the datapoints after it",
            bags_path_tail(verify_path(all, shard, "")), length);
        verify_report(all, shard, err);
    }
    uint64_t start = same ? same->start : shard->start;
    for (uint64_t i = 0; i < length; i++)
        if (verify_datapoint(all, same ? compared : reader, start + i, err)) {
            if (err->code == BAGS_ERROR_MEMORY)
                return err->code;
            verify_report(all, same ? same : shard, err);
        }
    return BAGS_OK;
}

/* Check the flushed data of all shards that are unfinished now. bags_verify checks the
 * finished shards afterwards: a shard that finishes in between is checked twice but
 * counted once. */
static bags_code verify_unfinished(verify_all *all, const bags_reader *reader,
    const bags_reader *compared, bags_error *err) {
    size_t count = 0;
    const bags_shard *shards = reader ? bags_reader_shards(reader, &count) : NULL;
    if (!compared && err->code == BAGS_ERROR_MEMORY)
        return err->code;
    if (!compared && err->code != BAGS_ERROR_MISSING)
        verify_report(all, NULL, err);
    all->checked = (bags_shard *)calloc(count + 1, sizeof *all->checked);
    if (!all->checked)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        if (!shards[i].unfinished)
            continue;
        FORMAT_TRY(verify_shard(all, reader, compared, &shards[i], err));
        all->checked[all->checked_count++] = shards[i];
    }
    return BAGS_OK;
}

static bags_code verify_live(verify_all *all, bags_error *err) {
    bags_reader *reader = verify_open(all, false, err);
    bags_reader *compared = reader ? verify_open(all, true, err) : NULL;
    bags_code code = verify_unfinished(all, reader, compared, err);
    bags_row_free(&all->row);
    bags_reader_close(compared);
    bags_reader_close(reader);
    return code;
}

/* Count the datapoints of checked shards that are still unfinished. */
static uint64_t verify_live_length(verify_all *all) {
    const bags_io *io = bags_io_local();
    uint64_t length = 0;
    for (size_t i = 0; i < all->checked_count; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        const char *spec = verify_path(all, &all->checked[i], "/spec.json");
        bool found = !io->kind(io->user, spec, &kind) && kind != BAGS_PATH_NONE;
        length += found ? 0 : all->checked[i].length;
    }
    return length;
}

/* ---- all of it ---- */

static bags_code verify_run(verify_all *all, bags_verify_report *sum, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    const bags_io *io = bags_io_local();
    verify_job *jobs = (verify_job *)calloc((size_t)all->part.parts, sizeof *jobs);
    if (!jobs)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = BAGS_OK;
    if (all->options->live && !io->kind(io->user, all->path, &kind) &&
        kind == BAGS_PATH_DIRECTORY)
        code = verify_live(all, err);
    if (!code)
        code = verify_parts(all, jobs, sum, err);
    free(jobs);
    sum->faults += all->faults;
    sum->datapoints += verify_live_length(all);
    free(all->checked);
    return code;
}

bags_code bags_verify_all(const char *path, const bags_verify_all_options *options,
    bags_verify_report *report, bags_error *err) {
    verify_all all;
    bags_verify_report sum;
    bags_error ignored;
    err = err ? err : &ignored;
    memset(&all, 0, sizeof all);
    memset(&sum, 0, sizeof sum);
    if (!path || !options)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "an argument is NULL");
    if (options->verify.part || options->verify.parts)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "part and parts must be 0: each thread gets its own");
    if (options->live && (options->verify.quick || options->verify.unfinished))
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "live excludes quick and unfinished");
    all.path = path;
    all.options = options;
    all.part = options->verify;
    all.part.each = verify_fault;
    all.part.undecoded = verify_undecoded;
    all.part.progress = verify_progress;
    all.part.user = &all;
    all.part.max_faults = all.part.max_faults ? all.part.max_faults : VERIFY_FAULTS;
    uint32_t threads = options->threads ? options->threads : gate_processors();
    all.part.parts = threads < VERIFY_THREADS ? threads : VERIFY_THREADS;
    if (options->live) {
        all.part.unfinished = BAGS_UNFINISHED_SKIP;
        all.part.allow_gaps = true;
    }
    if (!gate_start(&all.lock))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = verify_run(&all, &sum, err);
    gate_end(&all.lock);
    if (report)
        *report = sum;
    return code;
}

#endif /* BAGS_NO_VERIFY */
