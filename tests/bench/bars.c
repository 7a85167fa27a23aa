/* How fast bags.h shall be, and whether it was, in this run. */
#include "bench.h"

#include <math.h>
#include <stdio.h>

#define SMALL "100 B x 2,000,000"
#define MIDDLE "30 kB x 60,000"
#define LARGE "1 MB x 1,000"
#define POINTS "200,000 datapoints"
#define PHOTOS "JPEG, 640 x 427"
#define BAG "bags.h Bag"
#define SHARDS "100,000 shards"
#define SPARSE "10,000,000,000 datapoints"
#define SUMMED "bags.h Bag, checksums"
#define COLD_SMALL "cold, 1 kB x 1,000,000"
#define COLD_MIDDLE "cold, 30 kB x 40,000"
#define COLD_LARGE "cold, 1 MB x 1,000"
#define IDEAL "ideal Bag"
#define SET "bags.h dataset"

typedef enum bar_sense { AT_MOST, AT_LEAST, EXACTLY } bar_sense;

/* A figure of bags.h over one of somebody else, or the other way round, or
 * alone (other NULL): at most, or at least, so much. Times: less is faster. */
typedef struct bar {
    const char *what, *part, *operation, *who, *other_operation, *other;
    bar_sense sense;
    double limit;
} bar;

/* Of bags.h, at most `limit` times the other's time. */
#define WITHIN(part, operation, who, other, limit)                                     \
    { operation, part, operation, who, operation, other, AT_MOST, limit }
/* At least `limit` times as fast as the other. */
#define FASTER(part, operation, who, other, limit)                                     \
    { operation, part, operation, other, operation, who, AT_LEAST, limit }

/* By the clock; and by the time of the processor, which tells the same of
 * writing that does not wait for the disk, also where other programs run. */
#define WRITES(part, who, other, limit)                                                \
    FASTER(part, "write", who, other, limit), FASTER(part, CPU_TIME, who, other, limit)

/* Random blobs on the disk, by pread() of the same places. */
#define COLD(part, read_ahead)                                                         \
    WITHIN(part, "single, " read_ahead " KiB", BAG, "pread, Bag", 1.15),               \
        WITHIN(part, "single, " read_ahead " KiB", SET, "pread, dataset", 1.15)

/* Opening and the first blob, by opening a directory and a file. */
#define FIRST(part, read_ahead)                                                        \
    WITHIN(part, "first, " read_ahead " KiB", SET, "a file each", 1.5)

static const bar bars[] = {
    WITHIN(SMALL, "pointer", BAG, IDEAL, 1.25),
    FASTER(SMALL, "pointer", BAG, "LMDB", 50),
    WITHIN(SMALL, "first touch", BAG, IDEAL, 1.1),
    FASTER(SMALL, "first touch", BAG, "LMDB", 7),
    FASTER(SMALL, "first touch", BAG, "SQLite", 10),
    FASTER(SMALL, "copy", BAG, "Python", 40),
    WITHIN(SMALL, "range of 16", BAG, IDEAL, 1.1),
    FASTER(SMALL, "scan", BAG, IDEAL, 0.9),
    WRITES(SMALL, BAG, IDEAL, 0.8),
    WRITES(SMALL, BAG, "LMDB", 2.2),
    WRITES(SMALL, BAG, "SQLite", 10),
    WRITES(SMALL, BAG, "Python", 10),
    {"open, first get", SMALL, "open, first get", BAG, "", NULL, AT_MOST, 100e3},
    WITHIN(SMALL, "open, first get", BAG, IDEAL, 2),
    FASTER(SMALL, "open, first get", BAG, "Python", 60),
    {"bytes beside blobs", SMALL, "bytes beside blobs", BAG, "", NULL, EXACTLY,
        8.0 * 2000001},
    {"writer's memory", SMALL, "writer's memory", BAG, "", NULL, AT_MOST,
        36 * 1048576.0},
    {"writer's memory", SMALL, "writer's memory", SET, "", NULL, AT_MOST,
        40 * 1048576.0},
    WITHIN(MIDDLE, "pointer", BAG, IDEAL, 1.25),
    WITHIN(MIDDLE, "first touch", BAG, IDEAL, 1.1),
    FASTER(MIDDLE, "first touch", BAG, "LMDB", 1),
    WITHIN(MIDDLE, "range of 16", BAG, IDEAL, 1.1),
    FASTER(MIDDLE, "scan", BAG, IDEAL, 0.9),
    WRITES(MIDDLE, BAG, "write(), pread()", 1.2),
    WRITES(MIDDLE, BAG, "LMDB", 1.1),
    {"2 threads, one reader", MIDDLE, "copy, 1 thread", BAG, "copy, 2 threads", BAG,
        AT_LEAST, 1.6},
    {"writer's memory", MIDDLE, "writer's memory", BAG, "", NULL, AT_MOST,
        36 * 1048576.0},
    WRITES(LARGE, BAG, "write(), pread()", 1.2),
    WRITES(LARGE, BAG, "LMDB", 1.1),
    /* The reader by hand knows where in a row each field is, and checks nothing. */
    WITHIN(POINTS, "label, random", SET, "by hand", 1.8),
    WITHIN(POINTS, "label, in order", SET, "by hand", 4),
    WITHIN(POINTS, "label column", SET, "by hand", 1.3),
    WITHIN(POINTS, "one caption", SET, "by hand", 3),
    FASTER(POINTS, "one caption", SET, "SQLite", 5),
    WITHIN(POINTS, "all fields", SET, "by hand", 1.3),
    FASTER(POINTS, "all fields", SET, "SQLite", 2.5),
    FASTER(PHOTOS, "decode", BAG, "memory", 0.97),
    WRITES(MIDDLE, SUMMED, BAG, 0.85),
    {"verified touch by copy", MIDDLE, "copy", IDEAL, "touch", SUMMED, AT_LEAST, 0.7},
    COLD(COLD_SMALL, "128"),
    COLD(COLD_SMALL, "8192"),
    COLD(COLD_MIDDLE, "128"),
    COLD(COLD_MIDDLE, "8192"),
    FIRST(COLD_MIDDLE, "128"),
    FIRST(COLD_MIDDLE, "8192"),
    FIRST(COLD_LARGE, "128"),
    FIRST(COLD_LARGE, "8192"),
    WITHIN(COLD_MIDDLE, "batch of 32, 128 KiB", SET, "io_uring", 1.5),
    {"open, first get", SHARDS, "open, first get", SET, "", NULL, AT_MOST, 2e9},
    {"memory a shard", SHARDS, "memory a shard", SET, "", NULL, AT_MOST, 200},
    {"open, both ends", SPARSE, "open, both ends", SET, "", NULL, AT_MOST, 5e6},
};

#define BARS (sizeof bars / sizeof *bars)

static double measured(const bar *b) {
    return b->other
               ? ratio_of(b->part, b->operation, b->who, b->other_operation, b->other)
               : result_of(b->part, b->operation, b->who);
}

static bool is_met(const bar *b, double value) {
    return b->sense == AT_MOST    ? value <= b->limit
           : b->sense == AT_LEAST ? value >= b->limit
                                  : fabs(value - b->limit) < 0.5;
}

static const char *const senses[] = {"<=", ">=", "="};
static const char *const sense_words[] = {"at most", "at least", "exactly"};

static const char *verdict(const bar *b, double value) {
    return isnan(value) ? "not measured" : is_met(b, value) ? "met" : "MISSED";
}

static void print_bar(const bar *b) {
    double value = measured(b);
    char against[128] = "";
    if (b->other)
        snprintf(against, sizeof against, "%s / %s", b->who, b->other);
    else
        snprintf(against, sizeof against, "%s", b->who);
    printf("%-25s %-24s %-38s ", b->part, b->what, against);
    if (isnan(value))
        printf("%12s", "-");
    else
        printf("%12.*g", value < 1e6 ? 4 : 8, value);
    printf("  %2s %-9.8g %s\n", senses[b->sense], b->limit, verdict(b, value));
}

void print_bars(void) {
    size_t met = 0, missed = 0;
    printf("\n%-25s %-24s %-38s %12s  %-11s\n", "wanted", "", "", "measured", "wanted");
    for (size_t i = 0; i < BARS; i++) {
        double value = measured(&bars[i]);
        if (!isnan(value) || (!set.part && !set.who))
            print_bar(&bars[i]);
        met += !isnan(value) && is_met(&bars[i], value);
        missed += !isnan(value) && !is_met(&bars[i], value);
    }
    printf("%zu met, %zu missed, %zu not measured\n", met, missed, BARS - met - missed);
    if (busy_at_most() > 1.5)
        printf("The machine was busy (a load of %.1f): do not trust what the "
               "clock measured:\nwriting, threads, opening, cold reads\n",
            busy_at_most());
}

void write_bars(void *to) {
    FILE *file = (FILE *)to;
    fputs("  \"wanted\": [\n", file);
    for (size_t i = 0; i < BARS; i++) {
        const bar *b = &bars[i];
        double value = measured(b);
        fprintf(file,
            "    {\"part\": \"%s\", \"what\": \"%s\", \"who\": \"%s\", "
            "\"other\": \"%s\", \"sense\": \"%s\", \"limit\": %g, ",
            b->part, b->what, b->who, b->other ? b->other : "", sense_words[b->sense],
            b->limit);
        if (isnan(value))
            fputs("\"measured\": null, ", file);
        else
            fprintf(file, "\"measured\": %.6g, ", value);
        fprintf(file, "\"verdict\": \"%s\"}%s\n", verdict(b, value),
            i + 1 < BARS ? "," : "");
    }
    fputs("  ]\n", file);
}
