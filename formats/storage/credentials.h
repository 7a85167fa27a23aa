/*
 * credentials.h - temporary AWS credentials: where they are found (sources.c), and their
 * renewal by a thread (credentials.c). Programs do not include it.
 *
 *                 a request is due              found
 *     (unknown) -----------------> searching ----------> usable (unsigned, or until an end)
 *                                   ^     |                 |
 *      a request, 1 s later         |     | failed          | half of the time has passed
 *     failed <----------------------------+                 v
 *        +------------------------->+<------------------ searching; the old ones are used
 *
 * Static keys need none of this: aws.c.
 */
#ifndef BAGS_FORMATS_CREDENTIALS_H
#define BAGS_FORMATS_CREDENTIALS_H

#include "url.h"

/* Variables of the environment, copied when the hooks are opened, because programs may
 * change them later, in another thread. */
typedef enum aws_variable {
    AWS_HOME,
    AWS_PROFILE,
    AWS_CONFIG_FILE,
    AWS_SHARED_CREDENTIALS_FILE,
    AWS_WEB_IDENTITY_TOKEN_FILE,
    AWS_ROLE_ARN,
    AWS_ROLE_SESSION_NAME,
    AWS_ENDPOINT_URL,
    AWS_ENDPOINT_URL_STS,
    AWS_ENDPOINT_URL_SSO,
    AWS_ENDPOINT_URL_SSO_OIDC,
    AWS_CONTAINER_CREDENTIALS_FULL_URI,
    AWS_CONTAINER_CREDENTIALS_RELATIVE_URI,
    AWS_CONTAINER_AUTHORIZATION_TOKEN,
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE,
    AWS_EC2_METADATA_DISABLED,
    AWS_EC2_METADATA_SERVICE_ENDPOINT,
    AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE,
    AWS_VARIABLES
} aws_variable;

typedef struct aws_keys {
    char *key, *secret, *token; /* NULL key: requests are not signed */
    double ends;                /* seconds since 1970; 0: never */
} aws_keys;

void bagi_aws_keys_free(aws_keys *keys);

/* A search for credentials. */
typedef struct aws_search {
    char *const *variables; /* [AWS_VARIABLES]; NULL: not set */
    const char *region, *ca_file;
    double slowest;              /* seconds that a service may take to answer */
    bool (*stopped)(void *user); /* true: give up */
    void *user;
    unsigned depth; /* number of profiles that name this one as their source_profile */
    /* Its result: */
    aws_keys keys;
    bool temporary; /* the failure may pass */
    char why[256];
} aws_search;

/* Search the sources in their order. Returns false, with `why`, if a source that is
 * configured fails. Without any, keys.key is NULL. Blocks. */
bool bagi_aws_search(aws_search *search);

/* Credentials that are shared by all requests. Threads: any. */
typedef struct aws_credentials aws_credentials;

/* Nothing is searched for yet. `changed` is called by a thread, without a lock, after
 * bagi_aws_is_ready may have become true. The region and the certificates belong to the
 * caller, and are used until bagi_aws_stop. NULL: out of memory. */
aws_credentials *bagi_aws_open(const char *region, const char *ca_file, double slowest,
    void (*changed)(void *user), void *user);

/* True if a request may begin: bagi_aws_get then returns at once. If the credentials
 * are missing or end soon, a thread starts to search. */
bool bagi_aws_is_ready(aws_credentials *credentials);

/* Copy the credentials, to be freed, and their number. Returns false, with the reason,
 * if there are none. `why` has 256 bytes. */
bool bagi_aws_get(
    aws_credentials *credentials, aws_keys *out, uint64_t *number, char *why);

/* The server says that the credentials with this number have ended. */
void bagi_aws_ended(aws_credentials *credentials, uint64_t number);

/* Stop the search. It cannot be started again. NULL is accepted. */
void bagi_aws_stop(aws_credentials *credentials);

/* Free stopped credentials or, in the child of a fork, any. NULL is accepted. */
void bagi_aws_free(aws_credentials *credentials);

#endif /* BAGS_FORMATS_CREDENTIALS_H */
