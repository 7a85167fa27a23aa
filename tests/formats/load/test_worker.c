/* Which worker of a cluster's job this process is: formats/load/worker.c. */
// flavours: test: asan; check: release
#include "check.h"

#include "../../../formats/formats.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct worker_case {
    const char *variables; /* NAME=VALUE, separated by spaces */
    uint64_t count;        /* that is passed */
    uint64_t number, of;   /* expected; of 0: an error that has these words: */
    const char *words, *more;
} worker_case;

#define ARRAY(id, count, min, max, step)                                               \
    "SLURM_ARRAY_TASK_ID=" id " SLURM_ARRAY_TASK_COUNT=" count                         \
    " SLURM_ARRAY_TASK_MIN=" min " SLURM_ARRAY_TASK_MAX=" max                          \
    " SLURM_ARRAY_TASK_STEP=" step

static const worker_case cases[] = {
    {ARRAY("3", "8", "0", "7", "1"), 0, 3, 8, "SLURM_ARRAY_TASK_ID", ""},
    /* The script of a task of an array, as Slurm 22.05 starts it. */
    {ARRAY("3", "8", "0", "7", "1") " SLURM_PROCID=0 SLURM_JOB_ID=5", 0, 3, 8, "", ""},
    {ARRAY("3", "8", "0", "7", "1") " SLURM_PROCID=0 SLURM_NTASKS=1", 0, 3, 8, "", ""},
    {ARRAY("3", "8", "0", "7", "1") " SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=5", 8,
        3, 8, "", ""},
    {ARRAY("0", "1", "0", "0", "1") " RANK=1 WORLD_SIZE=2", 0, 1, 2, "RANK", ""},
    {"SLURM_PROCID=1 SLURM_NTASKS=3", 0, 1, 3, "SLURM_PROCID", ""},
    {"SLURM_PROCID=0 SLURM_JOB_ID=5", 0, 0, 1, "SLURM_PROCID", ""},
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3", 0, 2, 3, "OMPI_COMM_WORLD_RANK",
        ""},
    {"PMI_RANK=0 PMI_SIZE=1", 0, 0, 1, "PMI_RANK", ""},
    {"RANK=7 WORLD_SIZE=8", 8, 7, 8, "RANK", ""},
    {"JOB_COMPLETION_INDEX=7", 8, 7, 8, "JOB_COMPLETION_INDEX", ""},
    {"JOB_COMPLETION_INDEX=1 RANK=1 WORLD_SIZE=4", 0, 1, 4, "RANK", ""},
    {"SGE_TASK_ID=8 SGE_TASK_FIRST=1 SGE_TASK_LAST=8 SGE_TASK_STEPSIZE=1", 0, 7, 8,
        "SGE_TASK_ID", ""},
    {"SGE_TASK_ID=undefined SGE_TASK_LAST=undefined RANK=0 WORLD_SIZE=2", 0, 0, 2,
        "RANK", ""},
    {"PBS_ARRAY_INDEX=0", 2, 0, 2, "PBS_ARRAY_INDEX", ""},
    {"LSB_JOBINDEX=1 LSB_JOBINDEX_END=2 LSB_JOBINDEX_STEP=1", 0, 0, 2, "LSB_JOBINDEX",
        ""},
    {"LSB_JOBINDEX=0 LSB_JOBINDEX_END=0 PMI_RANK=1 PMI_SIZE=2", 0, 1, 2, "PMI_RANK",
        ""},
    {"RANK= WORLD_SIZE= PMI_RANK=1 PMI_SIZE=2", 0, 1, 2, "PMI_RANK", ""},
    /* errors */
    {"", 0, 0, 0, "SLURM_ARRAY_TASK_ID", "LSB_JOBINDEX"},
    {"", 4, 0, 0, "no variable", ""},
    {"RANK=1", 0, 0, 0, "RANK", "WORLD_SIZE"},
    {"JOB_COMPLETION_INDEX=0", 0, 0, 0, "JOB_COMPLETION_INDEX", "number of workers"},
    {"JOB_COMPLETION_INDEX=2", 2, 0, 0, "JOB_COMPLETION_INDEX", "range"},
    {"PBS_ARRAY_INDEX=1", 0, 0, 0, "PBS_ARRAY_INDEX", "number of workers"},
    {"LSB_JOBINDEX=1", 0, 0, 0, "LSB_JOBINDEX_END", ""},
    {"SGE_TASK_ID=1", 0, 0, 0, "SGE_TASK_LAST", ""},
    {"SGE_TASK_ID=0 SGE_TASK_LAST=2", 0, 0, 0, "SGE_TASK_ID", "at least 1"},
    {"SGE_TASK_ID=2 SGE_TASK_FIRST=2 SGE_TASK_LAST=9", 0, 0, 0, "SGE_TASK_FIRST", ""},
    {"SGE_TASK_ID=3 SGE_TASK_FIRST=1 SGE_TASK_LAST=9 SGE_TASK_STEPSIZE=2", 0, 0, 0,
        "SGE_TASK_STEPSIZE", ""},
    {ARRAY("3", "3", "1", "3", "1"), 0, 0, 0, "SLURM_ARRAY_TASK_MIN", "starts at 1"},
    {ARRAY("3", "1", "3", "3", "1"), 8, 0, 0, "SLURM_ARRAY_TASK_MIN", "starts at 3"},
    {ARRAY("3", "3", "0", "3", "1"), 0, 0, 0, "SLURM_ARRAY_TASK_COUNT", "gaps"},
    {ARRAY("2", "2", "0", "2", "2"), 0, 0, 0, "SLURM_ARRAY_TASK_STEP", "step of 2"},
    {ARRAY("2", "4", "0", "3", "1") " SLURM_PROCID=1 SLURM_NTASKS=2", 0, 0, 0,
        "SLURM_ARRAY_TASK_ID", "SLURM_PROCID"},
    {"RANK=1 WORLD_SIZE=4 PMI_RANK=1 PMI_SIZE=3", 0, 0, 0, "WORLD_SIZE", "PMI_SIZE"},
    {"JOB_COMPLETION_INDEX=2 RANK=1 WORLD_SIZE=4", 4, 0, 0, "JOB_COMPLETION_INDEX",
        "RANK"},
    {"RANK=1 WORLD_SIZE=4", 3, 0, 0, "WORLD_SIZE", "not 3"},
    {"RANK=4 WORLD_SIZE=4", 0, 0, 0, "RANK", "WORLD_SIZE"},
    {"RANK=0 WORLD_SIZE=0", 0, 0, 0, "WORLD_SIZE", "0"},
    {"RANK=-1 WORLD_SIZE=4", 0, 0, 0, "RANK", "-1"},
    {"RANK=1x WORLD_SIZE=4", 0, 0, 0, "RANK", "1x"},
    {"RANK=1 WORLD_SIZE=4294967296", 0, 0, 0, "WORLD_SIZE", "4294967296"},
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=5", 0, 0, 0, "SLURM_PROCID", "srun"},
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=5 SLURM_STEP_ID=0", 0, 0, 8,
        "SLURM_PROCID", ""},
};

/* The same for the ranks of a training. `count` is unused. */
static const worker_case ranks[] = {
    {"", 0, 0, 1, "", ""},
    {"RANK=7 WORLD_SIZE=8 LOCAL_RANK=3", 0, 7, 8, "RANK", ""},
    {"SLURM_PROCID=1 SLURM_NTASKS=3", 0, 1, 3, "SLURM_PROCID", ""},
    {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 WORLD_SIZE=3", 0, 2, 3,
        "OMPI_COMM_WORLD_RANK", ""},
    {"PMI_RANK=1 PMI_SIZE=2 RANK=1 WORLD_SIZE=2", 0, 1, 2, "PMI_RANK", ""},
    {ARRAY("3", "8", "0", "7", "1") " JOB_COMPLETION_INDEX=2", 0, 0, 1, "", ""},
    {ARRAY("3", "8", "0", "7", "1") " RANK=0 WORLD_SIZE=2", 0, 0, 2, "RANK", ""},
    {"SLURM_PROCID=0 SLURM_JOB_ID=5", 0, 0, 1, "SLURM_PROCID", ""},
    {"SLURM_NTASKS=1", 0, 0, 1, "", ""},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=5 RANK=5 WORLD_SIZE=8", 0, 5, 8,
        "RANK", ""},
    {"RANK= WORLD_SIZE=", 0, 0, 1, "", ""},
    /* errors */
    {"RANK=1", 0, 0, 0, "RANK", "WORLD_SIZE"},
    {"WORLD_SIZE=2", 0, 0, 0, "WORLD_SIZE", "RANK"},
    {"SLURM_NTASKS=4", 0, 0, 0, "SLURM_NTASKS", "SLURM_PROCID"},
    {"PMI_SIZE=2 RANK=0 WORLD_SIZE=4", 0, 0, 0, "PMI_SIZE", "PMI_RANK"},
    {"RANK=0 WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2", 0, 0, 0, "RANK",
        "SLURM_PROCID"},
    {"RANK=1 WORLD_SIZE=4 PMI_RANK=1 PMI_SIZE=3", 0, 0, 0, "WORLD_SIZE", "PMI_SIZE"},
    {"RANK=2 WORLD_SIZE=2", 0, 0, 0, "RANK", "range"},
    {"RANK=x WORLD_SIZE=2", 0, 0, 0, "RANK", "x"},
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=5", 0, 0, 0, "SLURM_PROCID", "srun"},
};

static void find_in_environment(const worker_case *one, bool rank) {
    char text[512];
    bags_error err = {BAGS_OK, 0, "", 0};
    bags_worker found = {77, 77, "", ""};
    clearenv();
    (void)snprintf(text, sizeof text, "%s", one->variables);
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " "))
        assert_int_equal(putenv(at), 0);
    bags_code code = rank ? bags_rank_find(&found, &err)
                          : bags_worker_find(one->count, &found, &err);
    if (!code != (one->of > 0) ||
        (code ? !strstr(err.message, one->words) || !strstr(err.message, one->more)
              : found.number != one->number || found.count != one->of ||
                    (*one->words && strcmp(found.variable, one->words) != 0)))
        fail_msg("%s: code %d, worker %d of %d: %s", one->variables, (int)code,
            (int)found.number, (int)found.count, err.message);
    assert_true(!code || found.number == 77); /* outputs are untouched */
    clearenv();
}

static void the_number_of_a_worker_is_found_in_the_environment(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        find_in_environment(&cases[i], false);
}

static void the_rank_of_a_training_is_not_the_task_of_an_array(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        find_in_environment(&ranks[i], true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_a_worker_is_found_in_the_environment),
        cmocka_unit_test(the_rank_of_a_training_is_not_the_task_of_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
