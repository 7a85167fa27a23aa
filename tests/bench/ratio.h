/*
 * ratio.h - how much slower one way of doing a thing is than another, measured
 * side by side: the two take turns, each turn is timed, and the medians of the
 * times and of the turns' ratios are printed. The time is the processor's, so
 * that other programs disturb it little.
 */
#ifndef RATIO_H
#define RATIO_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_TURNS 201

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static inline double turn(void (*run)(void *), void *what, int calls) {
    double start = now();
    for (int i = 0; i < calls; i++)
        run(what);
    return (now() - start) / calls;
}

/* As many calls as take two milliseconds, so that the clock is fine enough. */
static inline int calls_for(void (*run)(void *), void *what) {
    double once = turn(run, what, 1);
    once = turn(run, what, 1 + (int)(1e-3 / once));
    return 1 + (int)(2e-3 / once);
}

/* ours / theirs, for about a second. Who begins alternates. */
static inline void compare(
    const char *name, void (*ours)(void *), void (*theirs)(void *), void *what) {
    double our[MOST_TURNS], their[MOST_TURNS], ratio[MOST_TURNS];
    int our_calls = calls_for(ours, what);
    int their_calls = calls_for(theirs, what);
    double both = turn(ours, what, our_calls) * our_calls +
                  turn(theirs, what, their_calls) * their_calls;
    double wanted = 1 / both;
    size_t turns = wanted < 15 ? 15 : wanted < MOST_TURNS ? (size_t)wanted : MOST_TURNS;
    for (size_t i = 0; i < turns; i++) {
        if (i % 2)
            our[i] = turn(ours, what, our_calls);
        their[i] = turn(theirs, what, their_calls);
        if (i % 2 == 0)
            our[i] = turn(ours, what, our_calls);
        ratio[i] = our[i] / their[i];
    }
    printf("%-36s %10.1f us %10.1f us   %.3f\n", name, median(our, turns) * 1e6,
        median(their, turns) * 1e6, median(ratio, turns));
}

#endif /* RATIO_H */
