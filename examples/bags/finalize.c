/*
 * bags finalize: close the gaps in the shard numbers.
 */
#include "command.h"

static int run(char **operands) {
    uint64_t renamed = 0;
    size_t shards_count;
    static text missing;
    static bags_shard *shards;
    path_must_be_writable(operands[0]);
    interrupt_leaves("shards that were renamed stay so", "continue with", NULL);
    shards = shards_list(operands[0], &shards_count);
    bags_code code = bags_finalize(operands[0], NULL, &renamed, &failure);
    if (code == BAGS_ERROR_MISSING && path_kind(operands[0]) != BAGS_PATH_NONE)
        failure_suffix("; only a sharded dataset can have gaps");
    must(code);
    catalogue_add(operands[0], operands[0]);
    bool any = text_missing(&missing, shards, shards_count);
    print("%s: %s renamed%s%s\n", operands[0], counted(renamed, "shard"),
        any ? "; missing before: " : "", text_string(&missing));
    return 0;
}

const command command_finalize = {"finalize",
    "renumber shards so that there are no gaps", "PATH", {ARGUMENT_LOCAL}, 1, 1, NULL,
    NULL,
    "Workers that wrote different numbers of shards leave gaps in the numbers, "
    "which the Python readers refuse. This renames the shards to 000000, "
    "000001, ... in the same order; their content does not change. Call it "
    "when all workers are done; if it is interrupted, call it again.\n"
    "It also writes 000000/catalogue if the dataset has checksums: see `bags help "
    "catalogue`. Renumbered shards are marked by a file `finalized` in the first one: "
    "`bags pack --resume` is then refused, `bags pack --append` adds shards.\n",
    "  bags finalize pets\n", run};
