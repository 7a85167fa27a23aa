/*
 * --worker auto: find out which worker this process is from the environment of a
 * cluster.
 */
#include "command.h"

#include "formats.h"

static const char *const worker_names[] = {"auto", NULL};
option_choice worker_auto = CHOICE(worker_names);

void worker_find(const char *number_name, option_number *number, const char *count_name,
    option_number *count) {
    bags_worker me;
    if (!worker_auto.given)
        return;
    if (number->given)
        usage("--worker and --%s are mutually exclusive", number_name);
    if (count->given && count->value == 0)
        usage("--%s must be at least 1 with --worker", count_name);
    if (bags_worker_find(count->given ? count->value : 0, &me, &failure)) {
        failure_prefix("--worker auto: ");
        failure_suffix(" (this worker: --%s W; number of workers: --%s K)", number_name,
            count_name);
        failure.code = BAGS_ERROR_ARGUMENT;
        die();
    }
    note("worker %ju of %ju, from 0: %s%s%s", (uintmax_t)me.number, (uintmax_t)me.count,
        me.variable, me.count_variable ? " and " : "; their number is given",
        me.count_variable ? me.count_variable : "");
    number->value = me.number;
    count->value = me.count;
    number->given = count->given = true;
}

void worker_check(option_number *start, option_number *stop) {
    worker_find("shard-start", start, "shard-stop", stop);
    uint64_t workers = stop->value ? stop->value : 1;
    if (start->value >= workers)
        usage("--shard-start out of range (%ju, --shard-stop is %ju)",
            (uintmax_t)start->value, (uintmax_t)workers);
}
