/*
 * A codec with a dictionary that is simple enough to be checked by hand. Values are bytes.
 * A blob is "p" and the value; or "d", the number of a dictionary, and the value plus the
 * bytes of the dictionary, which begin with this number. If blobs are held, they are
 * "held" and the value until then.
 */
#ifndef BAGS_TESTS_TOY_H
#define BAGS_TESTS_TOY_H

#include "support.h"

#define TOY_SIZE 40 /* of a dictionary that a writer makes */

typedef struct toy {
    uint64_t after;  /* values that a writer stores before it makes a dictionary */
    unsigned number; /* of that one, if it is made at the first value */
    bool never;      /* writers make none */
    bool stubborn;   /* writers make one although there is one already */
    size_t size;     /* in place of the true one, which writers state */
    uint64_t started, prepared, discarded; /* calls; started: with bytes */
    /* Writers hold the blobs of `after` values, or until they must be written: then they
     * make the dictionary if they have at least this many. 0: they hold none. */
    uint64_t holds;
    bool fails; /* they cannot make it */
} toy;

/* The codec of these types, with `user`. */
bags_codec toy_codec(const char *names, toy *user);
/* A registry with that codec in place of utf8. Free it with bags_registry_free. */
bags_registry *toy_registry(toy *user);

#endif /* BAGS_TESTS_TOY_H */
