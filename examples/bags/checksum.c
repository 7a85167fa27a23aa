/*
 * bags checksum: put checksums beside the Bags of a dataset that has none.
 */
#include "command.h"

static int run(int count, char **words) {
    bool replace = false, no_sync = false;
    const option options[] = {{"replace", &replace, NULL},
        {"no-sync", &no_sync, NULL}};
    int exit_code;
    if (!options_parse(&command_checksum, &count, words, options, 2,
            &exit_code))
        return exit_code;
    if (count != 1)
        return fail_usage(&command_checksum, "takes one PATH");
    bags_checksum_options how = {0};
    bags_checksum_report report;
    bags_error err;
    how.replace = replace;
    how.no_sync = no_sync;
    bags_code code = bags_checksum(words[0], &how, &report, &err);
    if (report.made || report.kept)
        printf("%s: checksums of %ju blobs in %ju Bag%s made, of %ju kept\n",
            words[0], (uintmax_t)report.blobs, (uintmax_t)report.made,
            report.made == 1 ? "" : "s", (uintmax_t)report.kept);
    return code ? fail(&err) : 0;
}

const command command_checksum = {"checksum", "put checksums beside the Bags",
    "usage: bags checksum PATH [--replace] [--no-sync]\n"
    "\n"
    "Writes a NAME.crc beside each NAME.bag of a dataset, of its shards, or\n"
    "beside a Bag: a CRC-32C of every blob, of the table and of spec.json.\n"
    "bags verify then finds any byte that has changed, and bags get --check\n"
    "gives none. Those that are there are kept as they are. No other file is\n"
    "touched. It can be interrupted and called again.\n"
    "\n"
    "  --replace  make all of them anew: what the files hold now is right\n"
    "  --no-sync  do not wait for the disk\n"
    "\n"
    "example:\n"
    "  bags checksum pets && bags verify pets\n",
    run};
