/*
 * worker.c - finds out from the environment which worker of a cluster job this process
 * is.
 *
 * Each engine has a row below. All rows whose variables are set must agree: one engine
 * may have started the process inside another, and with the wrong number two workers
 * would do the same work while a third worker's share is skipped.
 */
#include "load.h"
#include "text.h"
#include "try.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An engine's variables; NULL: the engine has no such variable. */
typedef struct worker_source {
    const char *number;
    const char *count;
    /* For an array job: its first and last number, and the step. */
    const char *first, *last, *step;
    uint64_t start; /* the first worker's number */
    bool
        launches; /* starts the processes of one program together: a training's ranks */
} worker_source;

static const worker_source worker_sources[] = {
    {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
        "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP", 0, false},
    {"SLURM_PROCID", "SLURM_NTASKS", NULL, NULL, NULL, 0, true},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, NULL, NULL, 0, true},
    {"PMI_RANK", "PMI_SIZE", NULL, NULL, NULL, 0, true},
    {"RANK", "WORLD_SIZE", NULL, NULL, NULL, 0, true},
    {"JOB_COMPLETION_INDEX", NULL, NULL, NULL, NULL, 0, false},
    {"SGE_TASK_ID", NULL, "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE", 1,
        false},
    {"PBS_ARRAY_INDEX", NULL, NULL, NULL, NULL, 0, false},
    {"LSB_JOBINDEX", NULL, NULL, "LSB_JOBINDEX_END", "LSB_JOBINDEX_STEP", 1, false},
};

#define WORKER_SOURCES (sizeof worker_sources / sizeof *worker_sources)

/* A variable's value, or NULL if unset or empty. Grid Engine sets "undefined" in jobs
 * that are not arrays; that counts as unset. */
static const char *worker_value(const char *variable) {
    const char *value = variable ? getenv(variable) : NULL;
    return value && *value && strcmp(value, "undefined") != 0 ? value : NULL;
}

/* Parse a variable. *out is unchanged if it is not set. */
static bags_code worker_number(const char *variable, uint64_t *out, bags_error *err) {
    const char *value = worker_value(variable), *at = value;
    uint64_t number = 0;
    if (!value)
        return BAGS_OK;
    if (!format_decimal(&at, NULL, &number) || *at || number > UINT32_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: \"%.40s\" is not a number from 0 to 4294967295", variable, value);
    *out = number;
    return BAGS_OK;
}

/* Check that an array's numbers are contiguous, starting with the first worker's: a gap
 * would mean a missing worker. Sets *count if the last number is known. */
static bags_code worker_check_array(
    const worker_source *source, uint64_t *count, bags_error *err) {
    uint64_t first = source->start, last = UINT64_MAX, step = 1;
    bags_code code = worker_number(source->first, &first, err);
    if (!code)
        code = worker_number(source->last, &last, err);
    if (!code)
        code = worker_number(source->step, &step, err);
    if (code)
        return code;
    if (first != source->start)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: the array starts at %" PRIu64 ", not at %" PRIu64
            "; submit it with all numbers from there, or pass the number of this "
            "worker",
            source->first, first, source->start);
    if (step != 1 && last != first)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: the array has a step of %" PRIu64 "; submit it without a step",
            source->step, step);
    if (last == UINT64_MAX)
        return BAGS_OK;
    if (last < first)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: the array ends at %" PRIu64 ", before its start at %" PRIu64,
            source->last, last, first);
    if (*count && last - first + 1 != *count)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s and %s: the array has gaps (%" PRIu64 " numbers up to %" PRIu64
            "); submit it with all numbers from %" PRIu64,
            source->count, source->last, *count, last, source->start);
    *count = last - first + 1;
    return BAGS_OK;
}

/* Slurm gives a batch job's script the number of the first task, although srun did not
 * start the script: only the job's steps are tasks. */
static bool worker_is_batch_script(const worker_source *source, uint64_t number) {
    return !strcmp(source->number, "SLURM_PROCID") && number == 0 &&
           worker_value("SLURM_JOB_ID") && !worker_value("SLURM_STEP_ID");
}

/* Read the variables of one engine. out->variable is NULL if none is set. */
static bags_code worker_read(
    const worker_source *source, bags_worker *out, bags_error *err) {
    memset(out, 0, sizeof *out);
    if (!worker_value(source->number))
        return BAGS_OK;
    bags_code code = worker_number(source->number, &out->number, err);
    if (!code)
        code = worker_number(source->count, &out->count, err);
    if (code)
        return code;
    /* An LSF job that is not an array. */
    if (!strcmp(source->number, "LSB_JOBINDEX") && out->number == 0)
        return BAGS_OK;
    if (out->count == 0 && worker_value(source->count))
        return bags_fail(err, BAGS_ERROR_VALUE, "%s: is 0", source->count);
    if (out->number < source->start)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: is %" PRIu64 ", must be at least "
            "%" PRIu64,
            source->number, out->number, source->start);
    code = worker_check_array(source, &out->count, err);
    if (code)
        return code;
    out->number -= source->start;
    out->variable = source->number;
    out->count_variable = worker_value(source->count)  ? source->count
                          : worker_value(source->last) ? source->last
                                                       : NULL;
    if (out->count == 0 && worker_is_batch_script(source, out->number)) {
        out->count = 1; /* Slurm sets the count only if the job requested several
                           tasks */
        out->count_variable = "SLURM_JOB_ID";
    }
    if (out->count > 0 && out->number >= out->count)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s and %s: worker out of range (%" PRIu64 ", %" PRIu64
            " workers from %" PRIu64 ")",
            out->variable, out->count_variable, out->number + source->start, out->count,
            source->start);
    return BAGS_OK;
}

/* Merge two engines. Their settings must match, except that one may lack the count. */
static bags_code worker_merge(
    bags_worker *found, const bags_worker *other, bags_error *err) {
    if (!other->variable || other->count == 1)
        return BAGS_OK;
    if (!found->variable || found->count == 1) {
        *found = *other;
        return BAGS_OK;
    }
    bool same = found->number == other->number &&
                (!found->count || !other->count || found->count == other->count);
    if (same && !found->count)
        *found = *other;
    if (same)
        return BAGS_OK;
    char counts[2][96] = {"", ""};
    const bags_worker *both[2] = {found, other};
    for (int i = 0; i < 2; i++)
        if (both[i]->count)
            (void)snprintf(counts[i], sizeof counts[i], " of %" PRIu64 " (%.40s)",
                both[i]->count, both[i]->count_variable);
    return bags_fail(err, BAGS_ERROR_VALUE,
        "%s and %s contradict each other: worker %" PRIu64 "%s, and worker %" PRIu64
        "%s; unset one of them, or pass the number of this worker",
        found->variable, other->variable, found->number, counts[0], other->number,
        counts[1]);
}

/* Read the variables of all engines; for ranks, only of engines that launch processes. A
 * batch script that is not one of several tasks is reported, and does not count. */
static bags_code worker_read_all(
    bool ranks, bags_worker *out, bool *is_batch_script, bags_error *err) {
    bags_worker one;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < WORKER_SOURCES; i++) {
        const worker_source *source = &worker_sources[i];
        if (ranks && !source->launches)
            continue;
        FORMAT_TRY(worker_read(source, &one, err));
        if (one.count > 1 && worker_is_batch_script(source, one.number)) {
            *is_batch_script = true;
            continue;
        }
        if (!out->variable && one.variable)
            *out = one;
        else
            FORMAT_TRY(worker_merge(out, &one, err));
    }
    return BAGS_OK;
}

static bags_code worker_fail_script(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_MISSING,
        "SLURM_PROCID and SLURM_NTASKS: several tasks, but this is the script of the "
        "batch job, of which there is one; start the workers by srun");
}

/* The variable with the number of workers that an engine should have set. */
static const char *worker_count_variable(const char *variable) {
    for (size_t i = 0; i < WORKER_SOURCES; i++)
        if (!strcmp(worker_sources[i].number, variable))
            return worker_sources[i].count ? worker_sources[i].count
                                           : worker_sources[i].last;
    return NULL;
}

bags_code bags_worker_find(uint64_t count, bags_worker *out, bags_error *err) {
    bags_worker found;
    bool is_batch_script = false;
    FORMAT_TRY(worker_read_all(false, &found, &is_batch_script, err));
    if (!found.variable && is_batch_script)
        return worker_fail_script(err);
    if (!found.variable)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "no variable states the number of this worker: SLURM_ARRAY_TASK_ID, "
            "SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK, RANK, JOB_COMPLETION_INDEX, "
            "SGE_TASK_ID, PBS_ARRAY_INDEX or LSB_JOBINDEX");
    if (!found.count && !count) {
        const char *missing = worker_count_variable(found.variable);
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: is set, but %s%s; pass the number of workers", found.variable,
            missing ? missing : "no variable states the number of workers",
            missing ? ", the number of workers, is not" : "");
    }
    if (count && found.count && found.count != count)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: there are %" PRIu64 " workers, not %" PRIu64, found.count_variable,
            found.count, count);
    if (!found.count && found.number >= count)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: worker out of range (%" PRIu64 ", %" PRIu64 " workers from 0)",
            found.variable, found.number, count);
    if (!found.count)
        found.count = count;
    *out = found;
    return BAGS_OK;
}

bags_code bags_rank_find(bags_worker *out, bags_error *err) {
    bags_worker found;
    bool is_batch_script = false;
    FORMAT_TRY(worker_read_all(true, &found, &is_batch_script, err));
    for (size_t i = 0; i < WORKER_SOURCES; i++) {
        const worker_source *source = &worker_sources[i];
        uint64_t count = 0;
        if (!source->launches || worker_value(source->number))
            continue;
        FORMAT_TRY(worker_number(source->count, &count, err));
        if (count > 1 && (!found.variable || (found.count && found.count != count)))
            return bags_fail(err, BAGS_ERROR_MISSING,
                "%s: %" PRIu64 " processes, but %s, the number of this process, is not "
                "set; start the processes by their launcher, or pass rank and ranks",
                source->count, count, source->number);
    }
    if (found.variable && !found.count)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: is set, but %s, the number of processes, is not; pass rank and ranks",
            found.variable, worker_count_variable(found.variable));
    if (!found.variable && is_batch_script)
        return worker_fail_script(err);
    if (!found.variable)
        found.count = 1;
    *out = found;
    return BAGS_OK;
}
