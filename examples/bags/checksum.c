/*
 * bags checksum: write checksums next to the Bags of a dataset that has none.
 */
#include "command.h"

static bags_checksum_options given;

static const option options[] = {
    {"replace", OPTION_FLAG, &given.replace, NULL,
        "replace existing ones: what the files contain now is correct"},
    {"no-sync", OPTION_FLAG, &given.no_sync, NULL, "do not wait for stable storage"},
    OPTIONS_END,
};

static int run(char **operands) {
    bags_checksum_report made;
    path_must_be_writable(operands[0]);
    interrupt_leaves("complete .crc files are kept", "continue with", NULL);
    bags_code code = bags_checksum(operands[0], &given, &made, &failure);
    if (made.made || made.kept)
        print("%s: wrote checksums of %s in %s, kept %ju\n", operands[0],
            counted(made.blobs, "blob"), counted(made.made, "Bag"),
            (uintmax_t)made.kept);
    if (code)
        path_hint(operands[0]);
    must(code);
    return 0;
}

const command command_checksum = {"checksum", "write checksums next to the Bags",
    "PATH", {ARGUMENT_LOCAL}, 1, 1, options, NULL,
    "Writes a NAME.crc next to each NAME.bag of a dataset, of its shards, or "
    "next to a standalone Bag: a CRC-32C of every blob, of the table and of "
    "spec.json. `bags verify` then finds any byte that has changed. Existing "
    "ones are kept. No other file is changed. It can be interrupted and called "
    "again.\n",
    "  bags checksum pets && bags verify pets\n", run};
