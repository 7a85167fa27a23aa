/*
 * order.h - what order.c, opening.c and state.c share.
 * Programs do not include it.
 */
#ifndef BAGS_FORMATS_ORDER_H
#define BAGS_FORMATS_ORDER_H

#include "load.h"

/* The tables in the memory of a bags_order. */
typedef struct format_order_tables {
    uint64_t *starts; /* of the datasets in the list of all, and its length */
    uint32_t *shares; /* with weights: slots of each dataset in a block */
    uint32_t *slots;  /* with weights: the dataset of each slot */
} format_order_tables;

static inline format_order_tables format_order_tables_of(const bags_order *order) {
    format_order_tables t;
    t.starts = (uint64_t *)(void *)order->memory.data;
    t.shares = (uint32_t *)(void *)(t.starts + order->count + 1);
    t.slots = t.shares + order->count;
    return t;
}

#endif /* BAGS_FORMATS_ORDER_H */
