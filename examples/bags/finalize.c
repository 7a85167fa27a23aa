/*
 * bags finalize: close the gaps in the numbers of shards.
 */
#include "command.h"

static int run(int count, char **words) {
    int exit_code;
    if (!options_parse(&command_finalize, &count, words, NULL, 0, &exit_code))
        return exit_code;
    if (count != 1)
        return fail_usage(&command_finalize, "takes one PATH");
    bags_error err;
    uint64_t renamed = 0;
    if (bags_finalize(words[0], NULL, NULL, &renamed, &err))
        return fail(&err);
    printf("%s: %ju shard%s renamed\n", words[0], (uintmax_t)renamed,
        renamed == 1 ? "" : "s");
    return 0;
}

const command command_finalize = {"finalize",
    "renumber shards so that no gap is left",
    "usage: bags finalize PATH\n"
    "\n"
    "Workers that wrote different numbers of shards leave gaps in the\n"
    "numbering, which the Python readers refuse. This renames the shards to\n"
    "000000, 000001, ... in the same order and touches nothing inside them.\n"
    "Call it when all workers are done; if it is interrupted, call it again.\n"
    "\n"
    "example:\n"
    "  bags finalize pets\n",
    run};
