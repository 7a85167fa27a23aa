/*
 * bags recover: finish what writers that died have left.
 */
#include "command.h"

#include <sys/stat.h>

typedef struct telling {
    bool dry_run;
    const char *unit; /* what is kept */
} telling;

static const char *done_name(bags_recovery done, bool dry_run) {
    switch (done) {
    case BAGS_RECOVERY_NOTHING:
        return "finished already";
    case BAGS_RECOVERY_FINISHED:
        return dry_run ? "to finish" : "finished now";
    case BAGS_RECOVERY_REMOVED:
        return dry_run ? "empty, to remove" : "empty, removed";
    case BAGS_RECOVERY_LOCKED:
        return "left alone";
    default:
        return "NOT RECOVERED";
    }
}

static void show(void *user, const bags_recovered *shard) {
    const telling *how = (const telling *)user;
    if (shard->done == BAGS_RECOVERY_NOTHING)
        return;
    printf("%s: %s", shard->path, done_name(shard->done, how->dry_run));
    if (shard->done == BAGS_RECOVERY_FINISHED)
        printf(": %ju %s%s kept", (uintmax_t)shard->length, how->unit,
            shard->length == 1 ? "" : "s");
    if (shard->cut)
        printf(", %ju byte%s cut off", (uintmax_t)shard->cut,
            shard->cut == 1 ? "" : "s");
    if (shard->why[0])
        printf(" (%s)", shard->why);
    putchar('\n');
}

static int run(int count, char **words) {
    bool dry_run = false, idx = false, no_sync = false;
    const option options[] = {{"dry-run", &dry_run, NULL}, {"idx", &idx, NULL},
        {"no-sync", &no_sync, NULL}};
    int exit_code;
    if (!options_parse(&command_recover, &count, words, options, 3, &exit_code))
        return exit_code;
    if (count != 1)
        return fail_usage(&command_recover, "takes one PATH");
    bags_recover_options how = {0};
    bags_recover_report report;
    bags_error err;
    struct stat about;
    bool lone = stat(words[0], &about) == 0 && S_ISREG(about.st_mode);
    telling told = {dry_run, lone ? "blob" : "datapoint"};
    how.dry_run = dry_run;
    how.keep_idx = idx;
    how.no_sync = no_sync;
    how.each = show;
    how.user = &told;
    bags_code code = bags_recover(words[0], &how, &report, &err);
    uintmax_t all = (uintmax_t)report.finished_before + report.finished_now +
                    report.removed + report.locked + report.failed;
    if (lone && report.finished_before)
        printf("%s: finished already\n", words[0]);
    else if (!lone && all)
        printf("%s: %ju shard%s: %ju finished before, %ju now, %ju removed, "
               "%ju left alone, %ju not recovered\n", words[0], all,
            all == 1 ? "" : "s", (uintmax_t)report.finished_before,
            (uintmax_t)report.finished_now, (uintmax_t)report.removed,
            (uintmax_t)report.locked, (uintmax_t)report.failed);
    return code ? fail(&err) : 0;
}

const command command_recover = {"recover",
    "finish what writers that died have left",
    "usage: bags recover PATH [--dry-run] [--idx] [--no-sync]\n"
    "\n"
    "Makes every shard whole that a killed or crashed writer left without its\n"
    "spec.json: datapoints that had been flushed are kept, what stands behind\n"
    "them is cut off, and a shard that holds none is removed. Says for each\n"
    "what was kept, what was cut and why. Shards that are finished, or that a\n"
    "living writer works on, are left alone. It can be interrupted and called\n"
    "again. PATH may also be a lone Bag, NAME.bag: it gets its table.\n"
    "\n"
    "  --dry-run  say what would be done, and change nothing\n"
    "  --idx      leave .idx files for newest granular\n"
    "  --no-sync  do not wait for the disk\n"
    "\n"
    "example:\n"
    "  bags recover pets --dry-run\n",
    run};
