#define BAGS_IMPLEMENTATION
#include "bags.h"
