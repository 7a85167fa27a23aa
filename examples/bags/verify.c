/*
 * bags verify: the structure of every file, and checksums where there are any.
 */
#include "command.h"

static bags_code verify(const source *from, bags_error *err) {
    return from->bag ? bag_reader_verify(from->bag, err)
                     : bags_reader_verify(from->dataset, err);
}

static void say_good(const source *from) {
    printf("%s: good: %ju %s", from->path, (uintmax_t)source_length(from),
        from->bag ? "blobs" : "datapoints");
    if (from->dataset && bags_reader_sharded(from->dataset))
        printf(" in %ju shard%s", (uintmax_t)bags_reader_shards(from->dataset),
            bags_reader_shards(from->dataset) == 1 ? "" : "s");
    if (from->dataset && bags_reader_skipped(from->dataset))
        printf(", %ju unfinished shards left out",
            (uintmax_t)bags_reader_skipped(from->dataset));
    printf("\n");
}

static int run(int count, char **words) {
    source_options reading = {0};
    const option options[] = {{"allow-gaps", &reading.allow_gaps, NULL},
        {"skip-unfinished", &reading.skip_unfinished, NULL}};
    int exit_code;
    if (!options_parse(&command_verify, &count, words, options, 2, &exit_code))
        return exit_code;
    if (count != 1)
        return fail_usage(&command_verify, "takes one PATH");
    source from;
    bags_error err;
    if (source_open(&from, words[0], &reading, &err))
        return fail(&err);
    bags_code code = verify(&from, &err);
    if (!code)
        say_good(&from);
    source_close(&from);
    return code ? fail(&err) : 0;
}

const command command_verify = {"verify", "look for faults",
    "usage: bags verify PATH [--allow-gaps] [--skip-unfinished]\n"
    "\n"
    "Checks the structure of every file: each entry of each table, each\n"
    "datapoint's references, and that the blobs they name are there; and\n"
    "every byte of shards with checksums (bags help checksum). Prints the\n"
    "first fault with its file and index. The blobs are not decoded.\n"
    "\n"
    "  --allow-gaps, --skip-unfinished  as in bags help info\n"
    "\n"
    "example:\n"
    "  bags verify pets\n",
    run};
