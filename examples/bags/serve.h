/*
 * serve.h - a server that shows a dataset in a browser, for `bags view` and bags.view of
 * the Python package. serve.c describes the addresses.
 */
#ifndef BAGS_SERVE_H
#define BAGS_SERVE_H

#include "../../bags.h"

typedef struct serve_options {
    bags_view page;                /* the HTML; must stay valid */
    const bags_registry *registry; /* for `live`, and must stay valid; see
                                    * bags_zstd_options.blobs. NULL: the built-in types */
    const char *shown;             /* the path for messages; NULL: the path */
    uint16_t port;                 /* 0: any free one */
    bool live;                     /* follow a running writer */
} serve_options;

typedef struct serve serve;

/* Open libmicrohttpd. Returns BAGS_OK, or BAGS_ERROR_MISSING if this build or this
 * computer lacks it. */
bags_code serve_check(bags_error *err);

/*
 * Serve a dataset, a zip or tar file or a Bag, and the page, on 127.0.0.1. For a dataset
 * with an http:// or https:// address, only the page. A process may run any number of
 * servers, each in a thread of its own in which no signal handler runs.
 *
 *   remark  why the page cannot show the whole dataset, or BAGS_OK
 *
 * Returns the server, to be closed with serve_close. NULL on failure.
 */
serve *serve_open(const char *path, const serve_options *options, bags_error *remark,
    bags_error *err);
/* The address of the page, valid until the server is closed. */
const char *serve_address(const serve *server);
/* Stop the server and its connections. NULL: do nothing. Not after fork() in the child,
 * which has no such thread. */
void serve_close(serve *server);

#endif /* BAGS_SERVE_H */
