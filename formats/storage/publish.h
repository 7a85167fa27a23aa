/*
 * publish.h - refuse to publish datasets with unreferenced blobs. Programs do not
 * include it.
 */
#ifndef BAGS_FORMATS_PUBLISH_H
#define BAGS_FORMATS_PUBLISH_H

#include "blocks.h"
#include "datasets.h"

#include <inttypes.h>

/* Fail with BAGS_ERROR_VALUE if a dataset has blobs that no datapoint references. */
static inline bags_code format_check_referenced(
    const bags_reader *reader, const bags_env *env, bags_error *err) {
    size_t count = 0, i = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    format_block *blocks = NULL;
    bags_field_info *found = (bags_field_info *)format_block_add(
        &blocks, env->allocator, count + 1, sizeof *found, err);
    bags_code code =
        found ? bags_unreferenced(reader, env, false, found, err) : err->code;
    count = code ? 0 : count;
    while (i < count && !found[i].blobs)
        i++;
    if (i < count)
        code = bags_fail(err, BAGS_ERROR_VALUE,
            "%s: field \"%.200s\": has %" PRIu64
            " blob%s that no datapoint refers to; set whole to write all of them",
            bags_path_tail(bags_reader_path(reader)), fields[i].name, found[i].blobs,
            found[i].blobs == 1 ? "" : "s");
    format_blocks_free(blocks);
    return code;
}

#endif /* BAGS_FORMATS_PUBLISH_H */
