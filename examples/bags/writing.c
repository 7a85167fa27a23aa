/*
 * What pack and images share: the options of writers, when to flush, and how to
 * end. A bad datapoint leaves nothing half-made: the shard that it should have
 * gone into is removed. But if the system failed (a full disk, say), what was
 * flushed is kept as it is, without its spec.json, so that it can be recovered.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_BYTES ((uint64_t)1 << 20)
#define FLUSH_SECONDS 1.0

/* ---- options ---- */

void write_options_describe(write_options *given, option *into) {
    const option all[WRITE_OPTIONS] = {
        {"shard-size", NULL, &given->shard_size},
        {"shard-length", NULL, &given->shard_length},
        {"shard-start", NULL, &given->shard_start},
        {"shard-stop", NULL, &given->shard_stop},
        {"sync-size", NULL, &given->sync_size},
        {"idx", &given->idx, NULL}, {"no-sync", &given->no_sync, NULL},
        {"checksum", &given->checksum, NULL}};
    memcpy(into, all, sizeof all);
}

static bool understand(const command *about, const char *name,
    const char *value, bool is_size, uint64_t *out) {
    if (!value || (is_size ? size_option(value, out)
                           : number_option(value, out)))
        return true;
    fail_usage(about, "--%s: \"%s\" is no %s", name, value,
        is_size ? "size; 512M and 10G are" : "number from 0");
    return false;
}

bool write_options_understand(write_options *given, const command *about,
    int *exit_code) {
    bags_writer_options *to = &given->options;
    *exit_code = 2;
    if (!understand(about, "shard-size", given->shard_size, true,
            &to->shard_size) ||
        !understand(about, "shard-length", given->shard_length, false,
            &to->shard_length) ||
        !understand(about, "shard-start", given->shard_start, false,
            &to->shard_start) ||
        !understand(about, "shard-stop", given->shard_stop, false,
            &to->shard_stop) ||
        !understand(about, "sync-size", given->sync_size, true,
            &to->sync_size))
        return false;
    if (to->sync_size && given->no_sync) {
        fail_usage(about, "--sync-size and --no-sync exclude each other");
        return false;
    }
    uint64_t workers = to->shard_stop ? to->shard_stop : 1;
    if (to->shard_start >= workers) {
        fail_usage(about, "--shard-start is this worker's number, from 0, and "
            "must be below --shard-stop, the number of workers: %ju is not "
            "below %ju", (uintmax_t)to->shard_start, (uintmax_t)workers);
        return false;
    }
    to->sharded = given->shard_size || given->shard_length ||
                  given->shard_start || given->shard_stop;
    to->keep_idx = given->idx;
    to->no_sync = given->no_sync;
    to->checksum = given->checksum;
    return true;
}

/* ---- flushing ---- */

bags_code sink_did(sink *to, bags_code code) {
    to->failed = to->failed || code;
    return code;
}

bags_code sink_flush(sink *to, bags_error *err) {
    to->unflushed = 0;
    to->flushed_at = seconds_now();
    return sink_did(to, to->bag ? bag_writer_flush(to->bag, err)
                                : bags_writer_flush(to->dataset, err));
}

/* Numbers and references take room too, so that nothing counts as no bytes. */
bags_code sink_added(sink *to, uint64_t size, bags_error *err) {
    if (to->unflushed == 0)
        to->flushed_at = seconds_now();
    to->unflushed += size + 16;
    if (to->unflushed < FLUSH_BYTES &&
        seconds_now() - to->flushed_at < FLUSH_SECONDS)
        return BAGS_OK;
    return sink_flush(to, err);
}

int sink_patience(const sink *to) {
    if (to->unflushed == 0)
        return -1;
    double left = to->flushed_at + FLUSH_SECONDS - seconds_now();
    return left > 0 ? (int)(left * 1000) + 1 : 0;
}

/* ---- ending ---- */

uint64_t sink_length(const sink *to) {
    return to->bag ? bag_writer_length(to->bag)
                   : bags_writer_length(to->dataset);
}

static bags_code sink_close(sink *to, bags_error *err) {
    bags_code code = to->bag ? bag_writer_close(to->bag, err)
                             : bags_writer_close(to->dataset, err);
    to->bag = NULL;
    to->dataset = NULL;
    return code;
}

int sink_finish(sink *to) {
    bags_error err;
    uint64_t length = sink_length(to);
    const char *unit = to->bag ? "blob" : "datapoint";
    uint64_t found = to->dataset ? bags_writer_resumed(to->dataset) : 0;
    if (sink_close(to, &err))
        return fail(&err);
    printf("%s: %ju %s%s", to->path, (uintmax_t)length, unit,
        length == 1 ? "" : "s");
    if (found)
        printf(", behind %ju that were there", (uintmax_t)found);
    putchar('\n');
    return 0;
}

static bool is_system_failure(bags_code code) {
    return code == BAGS_ERROR_IO || code == BAGS_ERROR_MEMORY ||
           code == BAGS_ERROR_LOCKED;
}

int sink_give_up(sink *to, const bags_error *err) {
    uint64_t shards = to->dataset ? bags_writer_shards(to->dataset) : 0;
    const char *what = to->sharded ? "the shard that was not finished" : "it";
    const char *done = "was removed";
    fail(err);
    if (to->failed && is_system_failure(err->code)) {
        bags_error again;
        sink_close(to, &again);
        done = "is kept up to what was flushed, unfinished";
    } else {
        if (to->dataset && bags_writer_resumed(to->dataset))
            done = "holds what it held before";
        bag_writer_abort(to->bag);
        bags_writer_abort(to->dataset);
        to->bag = NULL;
        to->dataset = NULL;
    }
    if (to->sharded)
        note("%s: %s %s; %ju finished shard%s before it stay%s", to->path,
            what, done, (uintmax_t)shards, shards == 1 ? "" : "s",
            shards == 1 ? "s" : "");
    else
        note("%s: %s %s", to->path, what, done);
    return 1;
}
