/*
 * Show progress on stderr, with percentage, rate and time left: as a bar if stderr is a
 * terminal and the work takes more than a second, otherwise as one line per minute, for
 * logs.
 */
#include "command.h"
#include "system.h"

#include <time.h>

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* An invalid number is an error. progress_prepare reports it before the work starts. */
double number_of(const char *variable, const char *what) {
    const char *value = getenv(variable);
    char *end = NULL;
    double number = value && *value ? strtod(value, &end) : 0;
    if (end && (*end || !(number > 0)))
        usage("%s must be a %s above 0", variable, what);
    return number;
}

static double started, shown; /* points in time */
static bool terminal;
static double interval, noted; /* interval between lines; time of the last line */

void progress_prepare(void) {
    interval = number_of("BAGS_PROGRESS_SECONDS", "number of seconds");
    if (interval <= 0)
        interval = 60;
    noted = seconds_now();
}

/* The rate covers all work so far. The time left is extrapolated from the completed
 * part. The bar fills the columns left over by the text. */
void progress_show(const char *title, const char *unit, uint64_t done, uint64_t total,
    uint64_t count) {
    double now = seconds_now();
    if (started <= 0) {
        started = now;
        terminal = isatty(STDERR_FILENO) == 1;
    }
    double elapsed = now - started;
    if (terminal ? elapsed <= 1 || now - shown <= 0.1 : now - noted < interval)
        return;
    double part = total && done < total ? (double)done / (double)total : 1;
    double rate = elapsed > 0 ? (double)count / elapsed : 0;
    char tail[128];
    if (total == 0)
        snprintf(tail, sizeof tail, " %ju %s  %.0f/s", (uintmax_t)count, unit, rate);
    else
        snprintf(tail, sizeof tail, " %3.0f%%  %.0f %s/s  %.0f s left", 100 * part,
            rate, unit, part > 0 ? elapsed / part - elapsed : 0);
    if (!terminal) {
        noted = now;
        note("%s: %s", title, tail + strspn(tail, " "));
        return;
    }
    shown = now;
    char clean[256];
    clean_copy(clean, sizeof clean, title);
    unsigned width = terminal_columns();
    width = width ? width : 80;
    unsigned used = (unsigned)(strlen(clean) + strlen(tail)) + 4;
    unsigned length = total && width > used ? width - used : 0;
    fprintf(stderr, "\r%s ", clean);
    for (unsigned i = 0; i < length; i++)
        fputc((double)i < part * (double)length ? '#' : '.', stderr);
    fprintf(stderr, "%.*s\033[K", (int)(width > 20 ? width - 12 : 8), tail);
    fflush(stderr);
    bar_is_shown = true;
}

bool progress_datapoints(void *title, uint64_t done, uint64_t total) {
    progress_show((const char *)title, "datapoints", done, total, done);
    return !interrupt_pending();
}

void progress_end(void) {
    bar_hide();
    started = 0;
}
