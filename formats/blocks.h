/*
 * blocks.h - early returns, memory freed as a whole, option checks, and the location of
 * failures. Programs do not include it.
 */
#ifndef BAGS_FORMATS_BLOCKS_H
#define BAGS_FORMATS_BLOCKS_H

#include "codecs.h"
#include "try.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory freed together with the object that owns it. */
typedef struct format_block {
    bags_buffer memory; /* see format_state */
    struct format_block *older;
} format_block;

/* Allocate zeroed memory for `count` elements; format_blocks_free releases it. NULL if
 * out of memory. */
static inline void *format_block_add(format_block **blocks,
    const bags_allocator *allocator, size_t count, size_t size, bags_error *err) {
    format_block *made = NULL;
    if (count > (SIZE_MAX - sizeof *made) / size)
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    else
        made =
            (format_block *)format_state(allocator, sizeof *made + count * size, err);
    if (!made)
        return NULL;
    made->older = *blocks;
    *blocks = made;
    return made + 1;
}

static inline void format_blocks_free(format_block *blocks) {
    while (blocks) {
        format_block *older = blocks->older;
        format_state_close(blocks);
        blocks = older;
    }
}

/* A check on options, and the message if it fails. */
typedef struct format_rule {
    bool broken;
    const char *what;
} format_rule;

/* Fail with the message of the first broken rule, prefixed with `front`. */
static inline bags_code format_check_rules(
    const format_rule *rules, size_t count, const char *front, bags_error *err) {
    for (size_t i = 0; i < count; i++)
        if (rules[i].broken)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "%s%s", front, rules[i].what);
    return BAGS_OK;
}

#define FORMAT_CHECK(rules, front, err)                                                \
    format_check_rules(rules, sizeof rules / sizeof *rules, front, err)

/* Marks a function called only after a failure, so that the compiler keeps it out of
 * the calling loop. */
#ifdef __GNUC__
#define FORMAT_COLD __attribute__((cold))
#else
#define FORMAT_COLD
#endif

/* Prefix a message with the dataset, field and datapoint, and for a sequence the item
 * (UINT64_MAX: none). */
FORMAT_COLD static inline bags_code format_fail_at(const bags_reader *reader,
    const char *field, uint64_t datapoint, uint64_t item, bags_code code,
    bags_error *err) {
    char of[40] = "";
    if (item != UINT64_MAX)
        (void)snprintf(of, sizeof of, "item %" PRIu64 ": ", item);
    return bags_prefix(err, code, "%s: field \"%.200s\": datapoint %" PRIu64 ": %s",
        bags_path_tail(bags_reader_path(reader)), field, datapoint, of);
}

#endif /* BAGS_FORMATS_BLOCKS_H */
