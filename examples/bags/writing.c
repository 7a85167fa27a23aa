/*
 * The options of the commands that write: pack, images and import. Also decides which
 * datapoints belong to a worker, and which types a version of the Python packages
 * requires.
 */
#include "sink.h"

#include <string.h>

writing_choices writing = {
    .flush_seconds = {1, 1, 86400, false}, .version = CHOICE(python_versions)};
uint64_t writing_offered;
const char *dictionary_given;

const option writing_options[] = {
    {"resume", OPTION_FLAG, &writing.resuming, NULL,
        "continue the same command with the same input"},
    {"append", OPTION_FLAG, &writing.appending, NULL,
        "add all of the input to a sharded dataset"},
    {"shard-size", OPTION_SIZE, &writing.shard_size, "N",
        "start a new shard at N bytes: 512M, 10G"},
    {"shard-length", OPTION_NUMBER, &writing.shard_length, "N",
        "start a new shard at N datapoints. Any --shard option makes shards; "
        "0 is no limit"},
    WORKER_OPTIONS(writing.shard_start, writing.shard_stop),
    {"checksum", OPTION_FLAG, &writing.with_checksums, NULL,
        "write checksums of all blobs: the default"},
    {"no-checksum", OPTION_FLAG, &writing.without_checksums, NULL, "write none"},
    {"dedup", OPTION_TEXT, &writing.dedup, "F,...",
        "store equal values of fields once per shard"},
    {"idx", OPTION_FLAG, &writing.options.keep_idx, NULL,
        "keep .idx files for granular 0.22"},
    {"for", OPTION_CHOICE, &writing.version, "VERSION",
        "write only types that it reads: bags-0.5, granular-0.16, granular-0.21 or "
        "granular-0.22; see bags help types"},
    {"sync-size", OPTION_SIZE, &writing.sync_size, "N",
        "wait for stable storage after every N bytes, not only at the end of a "
        "shard: earlier data then survives a power failure"},
    {"flush-seconds", OPTION_NUMBER, &writing.flush_seconds, "N",
        "flush after N seconds, 1 to 86400, or a MiB; default 1"},
    {"no-sync", OPTION_FLAG, &writing.options.no_sync, NULL,
        "do not wait for stable storage"},
    OPTIONS_END,
};

/* Refuse contradictory options, and names that no dataset may have, before the input is
 * read. */
void writing_check(const char *out, bool is_bag) {
    worker_check(&writing.shard_start, &writing.shard_stop);
    if (out)
        path_must_be_outside(out);
    if (out && !is_bag && has_ending(out, ".bag"))
        usage("%s: a dataset is written, not a Bag: its name must not end in "
              ".bag",
            out);
    if (writing.version.given && python_versions[writing.version.value].idx)
        writing.options.keep_idx = true;
    options_exclude("checksum|no-checksum", NULL);
    options_exclude("sync-size|no-sync", NULL);
    options_exclude("resume|append", NULL);
    if (writing.dedup && writing.options.keep_idx)
        usage(
            "--dedup and %s are mutually exclusive: granular 0.22 reads blob number n "
            "as the value of datapoint n",
            writing.version.given ? "this --for" : "--idx");
}

void writing_no_sync(bool no_sync) { writing.options.no_sync = no_sync; }

bool writing_is_mine(uint64_t i) {
    writing_offered++;
    return writing.shard_stop.value < 2 ||
           i % writing.shard_stop.value == writing.shard_start.value;
}

void writing_for_python(sink_target *to) {
    const python_version *one = &python_versions[writing.version.value];
    static bags_field *made; /* stays reachable on failure: not a leak */
    made = (bags_field *)allocate(to->count, sizeof *made);
    for (size_t i = 0; i < to->count; i++) {
        made[i].name = to->fields[i].name;
        made[i].type = type_for_python(to->fields[i].type, writing.version.value);
        if (!made[i].type)
            usage("field \"%.160s\": %s reads no %s (%.160s)%s", to->fields[i].name,
                one->name,
                to->states[i].sequence && !one->sequences ? "sequences" : "such type",
                to->fields[i].type,
                strcmp(to->fields[i].type, "i64")
                    ? ""
                    : "; numbers from 0 can be int: "
                      "NAME=int in --spec, or in --type of import");
    }
    to->fields = made;
}

void writing_dedup(sink_target *to) {
    char *words = string_format("%s", writing.dedup), *at = words;
    size_t field;
    while (fields_next(&at, "dedup", to->path, to->fields, to->count, &field, NULL)) {
        if (to->states[field].sequence)
            usage("--dedup: the field \"%s\" is a sequence", to->fields[field].name);
        to->states[field].dedup = true;
    }
    free(words);
}

void writing_dictionary(const sink_target *to) {
    size_t i = 0;
    while (i < to->count && !to->states[i].inside)
        i++;
    if (i == to->count)
        usage("--dictionary: no field is of zstd");
    registry_dictionary(dictionary_given);
}
