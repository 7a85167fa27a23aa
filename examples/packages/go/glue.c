/* glue.c - the implementation of bags.h. */
#define BAGS_IMPLEMENTATION
#include "bags.h"
