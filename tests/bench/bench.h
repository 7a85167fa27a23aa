/*
 * bench.h - what the parts of the benchmark share: clocks, files, the blobs
 * that are written, and the results.
 */
#ifndef BENCH_H
#define BENCH_H

#include "peers.h"

typedef struct settings {
    bool small; /* a few seconds: does everything read back what was
                           written? */
    int rounds;
    const char *folder; /* for the files; made, and emptied of them */
    const char *part;   /* only the parts whose names contain it; or NULL */
    const char *who;    /* and the peers that have one of these, with commas
                           between, in their names; or NULL */
} settings;

extern settings set;

/* ---------------------------------------------------------------- measure.c */

double wall_time(void); /* seconds */
double cpu_time(void);  /* of this thread: other programs disturb it little */
/* The largest number of programs that wanted to run at the begin of a part: the
 * system's mean of a minute. */
double busy_at_most(void);
double median(const double *values, size_t count);

/* Results must be used, or the compiler leaves the work out. */
extern volatile uint64_t sink;

/* Blob i of a workload. Borrowed, forever. */
const unsigned char *blob_data(uint64_t i);
/* What consume() says of the blobs start <= i < stop. */
uint64_t blob_sum(uint64_t start, uint64_t stop, size_t size);
/* Every number below count once, in an order that is always the same. Borrowed
 * until the next call. */
const uint64_t *random_order(uint64_t count);

/* Write a file of this size and remove it: where the machine has lent its free
 * memory to others, the first who asks for it waits, up to ten times as long as
 * the writing takes. What a file gave back the next file is given; to use and
 * give back memory of the program did not help every second time. */
void warm_memory(uint64_t size);

/* A path below the folder; the directories above it are there. Lives for 16
 * more calls. */
const char *place(const char *name, const char *file);
void remove_place(const char *name);

typedef struct tree_size {
    uint64_t bytes;     /* the sum of the files' sizes */
    uint64_t allocated; /* what they take of the disk */
} tree_size;

tree_size measure_place(const char *name);
/* Drop the first `size` bytes of the files of at least a quarter of that from
 * the page cache. False if the system kept them. */
bool make_cold(const char *name, uint64_t size);

/* Bytes of memory that this process uses (VmRSS), or used at most (VmHWM); and
 * that the machine could give. */
uint64_t memory_used(const char *key);
uint64_t memory_available(void);

/* ---------------------------------------------------------------- results.c */

/* Of writing: the processor's time. */
#define CPU_TIME "write, CPU"

typedef enum bench_unit { NANOSECONDS, BYTES } bench_unit;

/* What a part measures now; not copied. */
void begin_part(const char *name);
/* One round's figure. Names are not copied. */
void record(const char *operation, const char *who, bench_unit unit, double value);

/* The median of the rounds, or the least where CPU_TIME is measured; NAN if it
 * was not measured. */
double result_of(const char *part, const char *operation, const char *who);
/* The median over the rounds of one by the other; of CPU_TIME the leasts. */
double ratio_of(const char *part, const char *operation, const char *who,
    const char *other_operation, const char *other);

void print_results(void);
/* The last is called inside the JSON object. */
bool write_json(const char *path, void (*more)(void *file));

/* A check of the small version. */
void check(bool good, const char *who, const char *what);
extern int checks_passed, checks_failed;

/* ---------------------------------------------------------------- the parts */

bool wanted(const char *part, const char *who);
/* Say, once for each, that it is left out. */
void skip(const char *who, const char *package);

/* Those of the whole benchmark or of the small one, three of them. */
extern const workload *workloads;
#define WORKLOADS 3

void bench_records(const workload *load);
/* Write a workload by one peer and print the memory that this took: what the
 * program does when bench_records calls it again. */
int write_alone(const char *part, const char *who);
void bench_cold(void);       /* blobs that are not in memory */
void bench_datapoints(void); /* fields, refs, sequences */
void bench_opening(void);    /* many shards; more datapoints than memory has bytes */
void bench_pictures(void);   /* JPEG decoding */
void print_bars(void);
void write_bars(void *file);

#endif /* BENCH_H */
