/*
 * bags recover: finish the shards of crashed writers.
 */
#include "command.h"

static bags_recover_options given;
static option_list sets;

static const option options[] = {
    {"dry-run", OPTION_FLAG, &given.dry_run, NULL,
        "print what would be done, and change nothing"},
    {"idx", OPTION_FLAG, &given.keep_idx, NULL, "keep .idx files for granular 0.22"},
    {"no-sync", OPTION_FLAG, &given.no_sync, NULL, "do not wait for stable storage"},
    {"set", OPTION_LIST, &sets, "FIELD=JSON",
        "the value of FIELD in a datapoint that was not ended, if it has none; may be "
        "repeated"},
    {"drop-partial", OPTION_FLAG, &given.drop_partial, NULL,
        "remove the flushed part of a datapoint that was not ended"},
    OPTIONS_END,
};

/* The reason without the path, since the line already starts with the path. */
static const char *short_reason(const bags_recovered *shard) {
    size_t size = strlen(shard->path);
    const char *reason = message_of_command(shard->reason, shard->remedy);
    if (strncmp(reason, shard->path, size))
        return reason;
    return reason + size + strspn(reason + size, ":/ ");
}

/* Print one line with the action taken, the kept and truncated data, and the reason. */
static void show(void *user, const bags_recovered *shard) {
    (void)user;
    const char *later = given.dry_run ? "to be " : "";
    switch (shard->action) {
    case BAGS_RECOVERY_NOTHING:
        return;
    case BAGS_RECOVERY_FINISHED:
        print("%s: %sfinished, %s kept", shard->path, later,
            counted(shard->length, "datapoint"));
        if (shard->partial && shard->items)
            print(", the last with %ju of its items: it was not ended",
                (uintmax_t)shard->items);
        else if (shard->partial)
            print(", the last was not ended");
        if (shard->truncated)
            print("; %s after %s %struncated", counted(shard->truncated, "byte"),
                shard->length == 1 ? "it" : "them", later);
        break;
    case BAGS_RECOVERY_REMOVED:
        print("%s: contains no datapoint, %sremoved", shard->path, later);
        if (shard->truncated)
            print(" with %s", counted(shard->truncated, "byte"));
        break;
    case BAGS_RECOVERY_LOCKED:
        print("%s: unchanged", shard->path);
        break;
    case BAGS_RECOVERY_FAILED:
        print("%s: not recovered", shard->path);
        break;
    }
    print("%s%s\n", shard->reason[0] ? ": " : "", short_reason(shard));
}

static void show_count(const char *what, uint64_t count, const char **before) {
    if (count == 0)
        return;
    print("%s%ju %s", *before, (uintmax_t)count, what);
    *before = ", ";
}

/* Only printed for several shards: a single shard's line already says everything. */
static void show_summary(const char *path, const bags_recover_report *sum) {
    uint64_t shards = sum->finished_before + sum->finished_now + sum->removed +
                      sum->locked + sum->failed;
    const char *before = ": ";
    if (shards == 1 && sum->finished_before)
        print("%s: already finished\n", path);
    if (shards < 2)
        return;
    print("%s: %ju shards", path, (uintmax_t)shards);
    show_count("finished before", sum->finished_before, &before);
    show_count(
        given.dry_run ? "to be finished" : "finished now", sum->finished_now, &before);
    show_count(given.dry_run ? "to be removed" : "removed", sum->removed, &before);
    show_count("unchanged", sum->locked, &before);
    show_count("not recovered", sum->failed, &before);
    if (sum->truncated)
        print("; %s %s", counted(sum->truncated, "byte"),
            given.dry_run ? "to be removed" : "removed");
    print("\n");
}

static const char *parsed_set;

static void explain_set(void) { failure_prefix("--set %s: ", parsed_set); }

/* Parse the values of --set, using the types of the fields in any shard. The values
 * refer to the JSON and its parser, so both live until the program ends. */
static void read_sets(const char *path) {
    static bags_entry *entries;
    static bags_value *values;
    static value_reader *readings;
    static json_object **parsed;
    bags_reader_options how = {0};
    how.unfinished = BAGS_UNFINISHED_READ;
    how.allow_gaps = true;
    bags_reader *reader = bags_reader_open(path, &how, &failure);
    must_open(reader);
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    entries = (bags_entry *)allocate(sets.count, sizeof *entries);
    values = (bags_value *)allocate(sets.count, sizeof *values);
    readings = (value_reader *)allocate(sets.count, sizeof *readings);
    parsed = (json_object **)allocate(sets.count, sizeof *parsed);
    for (size_t i = 0; i < sets.count; i++) {
        const char *word = sets.words[i], *json = strchr(word, '=');
        if (!json)
            usage("--set: \"%s\" is not FIELD=JSON", word);
        char *name = string_format("%.*s", (int)(json - word), word);
        guess from = {name, strlen(name), NULL, 0};
        size_t at = 0;
        for (; at < count && strcmp(fields[at].name, name); at++)
            guess_name(&from, fields[at].name);
        if (at == count)
            fail(BAGS_ERROR_FIELD, "--set: %s has no field \"%s\"%s", path, name,
                guess_words(&from, "", ""));
        for (size_t k = 0; k < i; k++)
            if (!strcmp(entries[k].field, name))
                usage("--set: two values for field \"%s\"", name);
        readings[i].directory = ".";
        parsed_set = word;
        on_failure = explain_set;
        parsed[i] = json_read(json + 1, strlen(json + 1));
        values[i] = value_parse(&readings[i], fields[at].type, parsed[i]);
        on_failure = NULL;
        entries[i] = (bags_entry){name, &values[i], 1};
    }
    bags_reader_close(reader);
    given.values = entries;
    given.values_count = sets.count;
    given.registry = registry_get();
}

/* Finished shards are not recovered, but damage in them is reported. */
static void check_finished(const char *path) {
    bags_verify_options how = {0};
    how.quick = how.allow_gaps = how.allow_empty_file = true;
    how.unfinished = BAGS_UNFINISHED_SKIP;
    if (bags_verify(path, &how, NULL, &failure)) {
        failure_suffix("; it is finished, and recover does not repair it: "
                       "`bags verify` finds every fault");
        die();
    }
}

static int run(char **operands) {
    bags_recover_report sum;
    path_must_be_writable(operands[0]);
    if (directory_is_empty(operands[0])) {
        print("%s: nothing to recover\n", operands[0]);
        return 0;
    }
    options_exclude("set|drop-partial", NULL);
    if (sets.count)
        read_sets(operands[0]);
    interrupt_leaves("what is finished is kept", "continue with", NULL);
    given.each = show;
    bags_code code = bags_recover(operands[0], &given, &sum, &failure);
    if (!code && sum.finished_before)
        check_finished(operands[0]);
    show_summary(operands[0], &sum);
    must(code);
    return 0;
}

const command command_recover = {"recover", "finish what crashed writers left", "PATH",
    {ARGUMENT_LOCAL}, 1, 1, options, NULL,
    "Finishes every shard that a crashed or killed writer left without its "
    "spec.json. Flushed data is kept, the rest is truncated, and a shard without "
    "a datapoint is removed. If a datapoint was flushed before it was ended, its "
    "flushed items are kept. If one of its fields has no value yet, --set or "
    "--drop-partial is required. "
    "Prints the kept and truncated data of each shard, and why. Finished shards, "
    "and shards of running writers, are unchanged. The command can be interrupted "
    "and repeated.\n",
    "  bags recover pets --dry-run\n", run};
