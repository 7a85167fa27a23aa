/*
 * speed - bags.h beside what else one would use.
 *
 *     speed [--small] [--folder DIR] [--rounds N] [--json FILE]
 *           [--part TEXT] [--who TEXT,TEXT,...]
 *
 * Everything takes turns in one run, so that what disturbs the machine disturbs
 * all; the figures are medians of the rounds, and a ratio is the median of the
 * rounds' ratios; of the processor's time of writing they are the least, and
 * theirs. --small takes seconds, and checks that every peer reads back
 * what it wrote. --part and --who leave out parts and peers without such a text
 * in their names.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

settings set = {false, 5, "build/bench", NULL, NULL};

const peer *const peers[] = {&peer_raw, &peer_ideal, &peer_bag, &peer_bag_random,
    &peer_bag_no_mmap, &peer_bag_summed, &peer_dataset, &peer_shards, &peer_lmdb,
    &peer_sqlite, &peer_hdf5, &peer_files, &peer_tar, &peer_tfrecord, &peer_python,
    NULL};

static const workload full[WORKLOADS] = {
    {"100 B x 2,000,000", 2000000, 100, 500000},
    {"30 kB x 60,000", 60000, 30000, 60000},
    {"1 MB x 1,000", 1000, 1000000, 1000},
};

static const workload little[WORKLOADS] = {
    {"100 B x 2,000,000", 2000, 100, 1000},
    {"30 kB x 60,000", 150, 30000, 100},
    {"1 MB x 1,000", 4, 1000000, 4},
};

const workload *workloads = full;

bool wanted(const char *part, const char *who) {
    if (set.part && !strstr(part, set.part))
        return false;
    for (const char *at = set.who; at;) {
        const char *comma = strchr(at, ',');
        char text[64];
        snprintf(
            text, sizeof text, "%.*s", comma ? (int)(comma - at) : (int)strlen(at), at);
        if (strstr(who, text))
            return true;
        at = comma ? comma + 1 : NULL;
    }
    return !set.who;
}

void skip(const char *who, const char *package) {
    static const char *said[16];
    size_t i = 0;
    for (; i < 15 && said[i]; i++)
        if (strcmp(said[i], who) == 0)
            return;
    said[i] = who;
    printf("skipped: %s, for want of %s\n", who, package);
}

static int usage(void) {
    fprintf(stderr, "usage: speed [--small] [--folder DIR] [--rounds N] "
                    "[--json FILE] [--part TEXT] [--who TEXT,...]\n");
    return 2;
}

/* The figures of the small version mean nothing: only its checks are shown. */
static int report(const char *json) {
    if (set.small) {
        printf("%d passed, %d failed\n", checks_passed, checks_failed);
        return checks_failed > 0 || checks_passed == 0;
    }
    print_results();
    print_bars();
    if (json && !write_json(json, write_bars))
        die("%s", json);
    return checks_failed > 0;
}

int main(int count, char **words) {
    const char *json = NULL;
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        const char *next = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(word, "--small") == 0) {
            set.small = true;
            set.rounds = 1;
            workloads = little;
            continue;
        }
        if (!next)
            return usage();
        i++;
        if (strcmp(word, "--folder") == 0)
            set.folder = next;
        else if (strcmp(word, "--rounds") == 0)
            set.rounds = atoi(next);
        else if (strcmp(word, "--json") == 0)
            json = next;
        else if (strcmp(word, "--part") == 0)
            set.part = next;
        else if (strcmp(word, "--who") == 0)
            set.who = next;
        else if (strcmp(word, "--write") == 0 && i + 1 < count)
            return write_alone(next, words[i + 1]);
        else
            return usage();
    }
    if (set.rounds < 1 || set.rounds > 32)
        return usage();
    place("", "");
    for (size_t i = 0; i < WORKLOADS; i++)
        bench_records(&workloads[i]);
    bench_datapoints();
    bench_opening();
    bench_pictures();
    bench_cold();
    return report(json);
}
