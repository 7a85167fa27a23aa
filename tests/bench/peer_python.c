/* Python: peer_python.py, a process for each measurement; it times itself. */
#include "peers.h"

const peer peer_python = {
    .name = "Python", .reads = "bags.h Bag", .script = "tests/bench/peer_python.py"};
