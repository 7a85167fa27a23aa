/*
 * url.h - URL and response parsing, and request settings: url.c, aws.c. Programs do not
 * include it.
 */
#ifndef BAGS_FORMATS_URL_H
#define BAGS_FORMATS_URL_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "storage.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Like printf, but into new memory. NULL: out of memory. */
BAGI_PRINTF(1, 2)
char *bagi_http_format(const char *format, ...);

static inline char *http_copy(const char *text) {
    return text && *text ? bagi_http_format("%s", text) : NULL;
}

static inline uint64_t http_hash(const char *text) {
    return format_hash(0, text, strlen(text));
}

static inline bool http_is_s3(const char *path) {
    return strncmp(path, "s3://", 5) == 0;
}

/* How the names at a path are listed. */
typedef enum http_store {
    HTTP_INDEX,  /* index pages of a web server */
    HTTP_S3,     /* ListObjectsV2 */
    HTTP_GOOGLE, /* storage.googleapis.com: likewise, but not signed */
    HTTP_AZURE   /* ACCOUNT.blob.core.windows.net: List Blobs */
} http_store;

/* The kind of a URL's host. *name receives the start of the names' part of the path, or
 * the path's end: after the bucket or container. */
http_store bagi_http_store(const char *path, const char **name);

/* The path's size without trailing slashes. */
static inline size_t http_path_size(const char *path) {
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] == '/')
        size--;
    return size;
}

/* True if the path has one of these endings; each is followed by a space. */
bool bagi_http_ends_in(const char *path, const char *endings);

/* An ETag without the W/ prefix of weak ETags, since servers may drop the prefix a
 * second after the last change. NULL counts as "". */
const char *bagi_http_strong(const char *tag);

/* True if the ETag contains a run of characters that may be an MD5 or a longer hash. */
bool bagi_http_is_hash(const char *tag);

/* The text of the first <NAME> in a response, to be freed, or NULL. */
char *bagi_http_xml(const void *page, size_t size, const char *mark);

/* The server's own error code, to be freed, or NULL. */
char *bagi_http_code(const void *page, size_t size);

/* ---- settings ---- */

/* Static keys, region and endpoint for s3://. NULL: not set. The region is always set. */
typedef struct s3_settings {
    char *key, *secret, *token, *region, *endpoint;
    struct aws_credentials *credentials; /* temporary ones; NULL: the keys are static */
} s3_settings;

/* Collect the S3 settings from the options, the environment and the files in ~/.aws.
 * The caller frees them. A NULL region means out of memory. */
void bagi_s3_settings(s3_settings *out, const bags_http_options *options);

/* The value of a name in a section of ~/.aws/config, to be freed, or NULL. `config`, if
 * not empty, replaces the file's path. */
char *bagi_aws_config_value(
    const char *home, const char *config, const char *section, const char *name);

/* The value of a name in the section of a profile ("": default) of ~/.aws/config,
 * otherwise of ~/.aws/credentials, to be freed, or NULL. Without a name, the section's
 * own name. `config` and `keys`, if not empty, replace the paths of these files. */
char *bagi_aws_value(const char *home, const char *config, const char *keys,
    const char *profile, const char *name);

/* Parameters of every request. NULL: not set. */
typedef struct http_settings {
    char *query, *user, *ca_file;
    s3_settings s3;
    uint32_t place, s3_place; /* hashes of the settings that a path does not name; 0:
                                 none */
} http_settings;

/* Compute the hashes of query and user (http://) and of the endpoint (s3://) from the
 * other members. */
void bagi_http_find_places(http_settings *settings);

/* The URL of a path, to be freed. `query`, encoded and sorted, may be NULL. `bucket`
 * means the bucket or container itself. `field` means that the path ends in a field name;
 * unlike the rest of a path, it is never encoded. NULL: out of memory. */
char *bagi_http_url(const http_settings *settings, const char *path, bool bucket,
    bool field, const char *query);

#endif /* BAGS_FORMATS_URL_H */
