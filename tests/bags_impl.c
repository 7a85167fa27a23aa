/* The one object that holds the implementation, which every test links. */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
