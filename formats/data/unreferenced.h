/*
 * unreferenced.h - what may be published: datasets whose blobs are all referred to.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_UNREFERENCED_H
#define BAGS_FORMATS_UNREFERENCED_H

#include "datasets.h"

#include <inttypes.h>
#include <stdlib.h>

/* Fail with BAGS_ERROR_VALUE if a dataset has blobs that no datapoint refers to. */
static inline bags_code format_check_referenced(
    const bags_reader *reader, const bags_env *env, bags_error *err) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    bags_buffer memory = bags_buffer_of(env->allocator);
    bags_code code =
        bags_buffer_reserve(&memory, (count + 1) * sizeof(bags_field_info), err);
    bags_field_info *found = (bags_field_info *)(void *)memory.data;
    if (!code)
        code = bags_unreferenced(reader, env, false, found, err);
    for (size_t i = 0; i < count && !code; i++)
        if (found[i].blobs)
            code = bags_fail(err, BAGS_ERROR_VALUE,
                "%s: field \"%.200s\": has %" PRIu64
                " blob%s that no datapoint refers to",
                bags_path_tail(bags_reader_path(reader)), fields[i].name,
                found[i].blobs, found[i].blobs == 1 ? "" : "s");
    bags_buffer_free(&memory);
    return code;
}

#endif /* BAGS_FORMATS_UNREFERENCED_H */
