/* The local files of bags.h as on macOS, whose F_FULLFSYNC no other system has:
 * here it is a command that the shim answers. */
#define F_FULLFSYNC 51
#define BAGS_STATIC
#include "../../../bags.h"

#include "shim.h"

int full_sync(int fd) {
    const bags_io *io = bags_io_local();
    return io->sync(io->user, bagi_local_wrap(fd));
}
