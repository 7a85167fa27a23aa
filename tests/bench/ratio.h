/*
 * ratio.h - how much slower one way of doing a thing is than another, measured
 * side by side: the two take turns, each turn is timed, and the medians of the
 * times and of the turns' ratios are printed.
 */
#ifndef RATIO_H
#define RATIO_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TURNS 201

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *values) {
    qsort(values, TURNS, sizeof *values, by_value);
    return values[TURNS / 2];
}

/* As many calls as take two milliseconds, so that the clock is fine enough. */
static inline int calls_for(void (*run)(void *), void *what) {
    double start = now();
    int calls = 0;
    do {
        run(what);
        calls++;
    } while (now() - start < 2e-3);
    return calls;
}

static inline double turn(void (*run)(void *), void *what, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++)
        run(what);
    return (now() - start) / calls;
}

/* ours / theirs. Who begins alternates. */
static inline void compare(const char *name, void (*ours)(void *),
    void (*theirs)(void *), void *what) {
    static double our[TURNS], their[TURNS], ratio[TURNS];
    int calls = calls_for(theirs, what);
    ours(what);
    for (int i = 0; i < TURNS; i++) {
        if (i % 2)
            our[i] = turn(ours, what, calls);
        their[i] = turn(theirs, what, calls);
        if (i % 2 == 0)
            our[i] = turn(ours, what, calls);
        ratio[i] = our[i] / their[i];
    }
    printf("%-40s %9.1f us %9.1f us   %.3f\n", name, median(our) * 1e6,
        median(their) * 1e6, median(ratio));
}

#endif /* RATIO_H */
