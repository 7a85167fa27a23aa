/*
 * bags recover: finish what writers that died have left.
 */
#include "command.h"

#include <string.h>
#include <sys/stat.h>

/* What is recovered, and how. */
typedef struct recovering {
    bool dry_run;
    const char *unit; /* what it holds: "datapoint" */
} recovering;

static const char *plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

/* The reason without the path, which the line begins with. */
static const char *reason(const bags_recovered *shard) {
    size_t size = strlen(shard->path);
    const char *why = shard->why;
    if (strncmp(why, shard->path, size))
        return why;
    return why + size + strspn(why + size, ":/ ");
}

static void show_whole(const bags_recovered *shard, const char *unit,
    bool dry_run) {
    printf("%s, %ju %s%s kept", dry_run ? "to be finished" : "finished",
        (uintmax_t)shard->length, unit, plural(shard->length));
    if (shard->cut)
        printf("; %ju byte%s behind %scut off", (uintmax_t)shard->cut,
            plural(shard->cut), dry_run ? "to be " : "");
}

/* One line: what becomes of the shard, what is kept, what is cut, and why. */
static void show(void *user, const bags_recovered *shard) {
    const recovering *job = (const recovering *)user;
    const bool dry_run = job->dry_run;
    if (shard->done == BAGS_RECOVERY_NOTHING)
        return;
    printf("%s: ", shard->path);
    if (shard->done == BAGS_RECOVERY_FINISHED)
        show_whole(shard, job->unit, dry_run);
    else if (shard->done == BAGS_RECOVERY_REMOVED)
        printf("holds no datapoint, %sremoved", dry_run ? "to be " : "");
    else if (shard->done == BAGS_RECOVERY_LOCKED)
        printf("left alone");
    else
        printf("not recovered");
    printf("%s%s\n", shard->why[0] ? ": " : "", reason(shard));
}

/* Only what there is any of. */
static void show_count(const char *what, uint64_t count, const char **before) {
    if (count == 0)
        return;
    printf("%s%ju %s", *before, (uintmax_t)count, what);
    *before = ", ";
}

static uint64_t count_all(const bags_recover_report *report) {
    return report->finished_before + report->finished_now + report->removed +
           report->locked + report->failed;
}

static void show_sum(const char *path, const bags_recover_report *report,
    bool dry_run) {
    uint64_t all = count_all(report);
    const char *before = ": ";
    printf("%s: %ju shard%s", path, (uintmax_t)all, plural(all));
    show_count("finished before", report->finished_before, &before);
    show_count(dry_run ? "to be finished" : "finished now",
        report->finished_now, &before);
    show_count(dry_run ? "to be removed" : "removed", report->removed, &before);
    show_count("left alone", report->locked, &before);
    show_count("not recovered", report->failed, &before);
    putchar('\n');
}

static bool is_file(const char *path) {
    struct stat about;
    return !stat(path, &about) && S_ISREG(about.st_mode);
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
    how.dry_run = dry_run;
    how.keep_idx = idx;
    how.no_sync = no_sync;
    recovering job = {dry_run, is_file(words[0]) ? "blob" : "datapoint"};
    how.each = show;
    how.user = &job;
    bags_code code = bags_recover(words[0], &how, &report, &err);
    if (count_all(&report) > 1)
        show_sum(words[0], &report, dry_run);
    else if (report.finished_before)
        printf("%s: finished already\n", words[0]);
    return code ? fail(&err) : 0;
}

const command command_recover = {"recover",
    "finish what writers that died have left",
    "usage: bags recover PATH [--dry-run] [--idx] [--no-sync]\n"
    "\n"
    "Makes every shard, or a Bag, whole that a killed or crashed writer left\n"
    "without its spec.json or its table: what had been flushed is kept, what\n"
    "stands behind it is cut off, and a shard without a datapoint is removed.\n"
    "Says for each what was kept, what was cut and why. What is finished, or\n"
    "what a living writer works on, is left alone. It can be interrupted and\n"
    "called again.\n"
    "\n"
    "  --dry-run  say what would be done, and change nothing\n"
    "  --idx      leave .idx files for newest granular\n"
    "  --no-sync  do not wait for the disk\n"
    "\n"
    "example:\n"
    "  bags recover pets --dry-run\n",
    run};
