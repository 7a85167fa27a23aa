/* Python: peer_python.py, a process for each measurement, which times itself. */
#include "peers.h"

const peer peer_python = {.name = "Python",
    .reads = "bags.h Bag",
    .is_bag = true,
    .script = "tests/bench/peer_python.py"};
