/*
 * order.h - shared by order.c, opening.c and state.c. Programs do not include it.
 */
#ifndef BAGS_FORMATS_ORDER_H
#define BAGS_FORMATS_ORDER_H

#include "load.h"

/* Tables inside a bags_order's memory. */
typedef struct format_order_tables {
    uint64_t *starts; /* where each dataset starts in the list of all; then the total */
    uint32_t *shares; /* with weights: each dataset's slots in a block */
    uint32_t *slots;  /* with weights: each slot's dataset */
} format_order_tables;

static inline format_order_tables format_order_tables_of(const bags_order *order) {
    format_order_tables t;
    t.starts = (uint64_t *)(void *)order->memory.data;
    t.shares = (uint32_t *)(void *)(t.starts + order->count + 1);
    t.slots = t.shares + order->count;
    return t;
}

#endif /* BAGS_FORMATS_ORDER_H */
