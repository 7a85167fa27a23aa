/*
 * A bar on stderr with rate and time left. Only where stderr is a terminal, and
 * only for work that takes more than a second.
 */
#include "command.h"
#include "system.h"

#include <string.h>
#include <time.h>

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static unsigned terminal_width(void) {
    unsigned columns = terminal_columns();
    return columns ? columns : 80;
}

static bool is_due(progress *bar, double now) {
    if (!bar->started) {
        bar->started = true;
        bar->terminal = isatty(STDERR_FILENO) == 1;
        bar->began = now;
    }
    return bar->terminal && now - bar->began > 1 && now - bar->shown > 0.1;
}

void progress_show(progress *bar, uint64_t done, uint64_t total,
    uint64_t count) {
    double now = seconds_now();
    if (!is_due(bar, now))
        return;
    bar->shown = now;
    double took = now - bar->began;
    double part = total && done < total ? (double)done / (double)total : 1;
    char tail[96];
    int size = snprintf(tail, sizeof tail, " %3.0f%%  %.0f %s/s", 100 * part,
        (double)count / took, bar->unit);
    if (total == 0)
        size = snprintf(tail, sizeof tail, " %ju %s  %.0f/s", (uintmax_t)count,
            bar->unit, (double)count / took);
    else if (part > 0)
        size += snprintf(tail + size, sizeof tail - (size_t)size,
            "  %.0f s left ", took / part - took);
    unsigned width = terminal_width();
    unsigned used = (unsigned)strlen(bar->title) + (unsigned)size + 4;
    unsigned room = width > used && total ? width - used : 0;
    fprintf(stderr, "\r%s ", bar->title);
    for (unsigned i = 0; i < room; i++)
        fputc((double)i < part * (double)room ? '#' : '.', stderr);
    fprintf(stderr, "%.*s\033[K", (int)(width > 20 ? width - 12 : 8), tail);
    fflush(stderr);
}

void progress_end(progress *bar) {
    if (bar->shown > 0)
        fputs("\r\033[K", stderr);
    bar->shown = 0;
}
