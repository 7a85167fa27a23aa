/* bags.h itself, compiled once for the command. */
#define BAGS_IMPLEMENTATION
#include "../../bags.h"
