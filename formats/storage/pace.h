/*
 * pace.h - when requests to a server may begin: pace.c. The processes of a user on this
 * machine share one small file, a table of servers (numbers in native byte order):
 *
 *     0    16    32            65536
 *     +----+----+- - - - - - -+        8 bytes: the next request begins no earlier
 *     | 0  | 1  |  ...        |        8 bytes: nor before the end of a rest
 *     +----+----+- - - - - - -+        both in microseconds of CLOCK_MONOTONIC
 *
 * Entries change by atomic operations and are never held, so a killed process leaves
 * nothing to repair. A time too far in the future is invalid and ignored, such as one
 * from before a restart. Programs do not include this header.
 */
#ifndef BAGS_FORMATS_PACE_H
#define BAGS_FORMATS_PACE_H

#include "text.h"

typedef struct http_pace {
    uint64_t *table; /* in the file or, if that is impossible, of this process */
    bool shared;
    double interval; /* seconds between two requests; 0: no limit */
} http_pace;

/* Open the table. Returns false if out of memory. */
bool bagi_pace_open(http_pace *pace, double requests_per_second);

void bagi_pace_close(http_pace *pace);

/* Returns 0 if a request to this server (a hash of its name) may begin, and counts it.
 * Otherwise the seconds until the next attempt. `now` is CLOCK_MONOTONIC. Threads: any. */
double bagi_pace_due(http_pace *pace, uint64_t server, double now);

/* Let all requests to a server rest for some seconds, at most BAGI_PACE_REST. Threads:
 * any. */
void bagi_pace_rest(http_pace *pace, uint64_t server, double now, double seconds);

#define BAGI_PACE_REST 60.0

#endif /* BAGS_FORMATS_PACE_H */
