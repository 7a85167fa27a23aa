/*
 * live.h - read a dataset that is being written, for serve.c. The numbers of datapoints
 * never change. Only one thread at a time may call these. Views are valid until the next
 * call. Each function returns BAGS_OK or the code of an error.
 */
#ifndef BAGS_LIVE_H
#define BAGS_LIVE_H

#include "growing.h"

typedef struct live live;

/* Open a local dataset. The registry must stay valid. NULL on failure. */
live *live_open(const char *path, const bags_registry *registry, bags_error *err);
void live_close(live *dataset);
/* Look for new datapoints, and append the state as JSON. */
bags_code live_state(live *dataset, text *out, const char *name, bags_error *err);
/* The number of items; 1 for a plain field. */
bags_code live_items(
    live *dataset, uint64_t number, size_t field, uint64_t *count, bags_error *err);
/* Read a blob. A compressed blob is returned uncompressed, as its inner type. */
bags_code live_blob(live *dataset, uint64_t number, size_t field, uint64_t item,
    bags_view *blob, bags_error *err);
/* Read items of a sequence of numbers or vectors; see curve_read. */
bags_code live_curve(live *dataset, uint64_t number, size_t field, uint64_t start,
    uint64_t stop, uint64_t step, bags_view *numbers, bags_error *err);

#endif /* BAGS_LIVE_H */
