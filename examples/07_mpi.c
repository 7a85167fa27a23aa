/*
 * MPI: the ranks of a program write the shards of one dataset, like the workers in
 * 04_workers. Ranks with less work write fewer shards, and so leave gaps in the shard
 * numbers. bags_finalize closes these gaps.
 *
 *     mpicc 07_mpi.c -o 07_mpi && mpirun -n 4 ./07_mpi lengths
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <mpi.h>
#include <stdio.h>

enum { JOBS = 60 };

/* The number of 3n+1 steps it takes to reach 1, as jobs of very different lengths. */
static uint64_t steps(uint64_t n) {
    uint64_t count = 0;
    for (; n != 1; count++)
        n = n % 2 ? 3 * n + 1 : n / 2;
    return count;
}

/* The last rank gets most of the jobs, and the others take turns with the rest. */
static int rank_of(int job, int ranks) {
    return job < JOBS / 2 ? ranks - 1 : job % ranks;
}

static bags_code work(const char *path, int rank, int ranks, bags_error *err) {
    const bags_field fields[] = {{"start", "int"}, {"steps", "int"}};
    bags_writer_options options = {0};
    options.shard_length = 5;
    options.shard_start = (uint64_t)rank;
    options.shard_stop = (uint64_t)ranks;
    bags_writer *writer = bags_writer_open(path, fields, 2, &options, err);
    if (!writer)
        return err->code;
    for (int job = 0; job < JOBS; job++) {
        if (rank_of(job, ranks) != rank)
            continue;
        bags_value start = bags_int(job + 1);
        bags_value count = bags_uint(steps((uint64_t)job + 1));
        bags_entry datapoint[] = {{"start", &start, 1}, {"steps", &count, 1}};
        bags_writer_append(writer, datapoint, 2, NULL);
    }
    return bags_writer_close(writer, err);
}

static bags_code add_up(const char *path, bags_error *err) {
    uint64_t sum = 0;
    bags_row row = {0};
    bags_value value;
    bags_code code = bags_finalize(path, NULL, NULL, err);
    if (code)
        return code;
    bags_reader *reader = bags_reader_open(path, NULL, err);
    if (!reader)
        return err->code;
    for (uint64_t i = 0; !code && i < bags_reader_length(reader); i++) {
        code = bags_reader_get(reader, i, NULL, 0, &row, err);
        if (!code)
            code = bags_row_value(&row, 1, 0, NULL, &value, err);
        if (!code)
            sum += value.uint;
    }
    if (!code)
        printf("%d datapoints, %d steps in all\n", (int)bags_reader_length(reader),
            (int)sum);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

int main(int argc, char **argv) {
    int rank, ranks, failed, any;
    bags_error err;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *path = argc > 1 ? argv[1] : "lengths";

    failed = work(path, rank, ranks, &err) != BAGS_OK;
    /* Nobody may read before everybody has written. */
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (!any && rank == 0)
        failed = any = add_up(path, &err) != BAGS_OK;
    if (failed)
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
    MPI_Finalize();
    return any;
}

/* Output:
60 datapoints, 1457 steps in all
*/
