/*
 * http.h - what http.c and s3.c share. Programs do not include it.
 */
#ifndef BAGS_FORMATS_HTTP_H
#define BAGS_FORMATS_HTTP_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "storage.h"
#include "text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- between the two files ---- */

/* What requests for s3:// need. NULL: not set; region always is. To be freed. */
typedef struct s3_settings {
    char *key, *secret, *token, *region, *endpoint;
} s3_settings;

/* Find them, by the options and the environment. Without a region: out of memory. */
void bagi_s3_settings(s3_settings *out, const bags_http_options *options);

/* The answer to a request with a body. */
typedef struct http_reply {
    bags_buffer body; /* to be freed */
    size_t size;      /* of the body */
    char tag[512];    /* ETag */
} http_reply;

/* Send a request, repeat it as every other, and wait for the answer. `query` and the MD5
 * of the data may be NULL. Returns BAGS_OK if the status is 2xx. */
bags_code bagi_http_send(bags_http *http, const char *method, const char *url,
    const char *query, const void *data, size_t size, const unsigned char *md5,
    http_reply *reply, bags_error *err);

/* The ETag, or time of the last change, of an open file; "": neither. */
const char *bagi_http_tag(const void *file);

/* bags_http_options.part_size. */
uint64_t bagi_http_part_size(const bags_http *http);

/* True if a run of its characters may be MD5 or a longer hash. */
bool bagi_http_is_hash(const char *tag);

/* After a fork the threads are missing. */
bool bagi_http_alive(const bags_http *http);

/* ---- text ---- */

/* printf to new memory. */
BAGI_PRINTF(1, 2)
static inline char *http_format(const char *format, ...) {
    char *out = NULL;
    va_list arguments;
    va_start(arguments, format);
    int size = vasprintf(&out, format, arguments);
    va_end(arguments);
    return size < 0 ? NULL : out;
}

static inline char *http_copy(const char *text) {
    return text && *text ? http_format("%s", text) : NULL;
}

static inline bool http_is_s3(const char *path) {
    return strncmp(path, "s3://", 5) == 0;
}

/* Without the slashes at its end. */
static inline size_t http_path_size(const char *path) {
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] == '/')
        size--;
    return size;
}

/* The text after the next of these marks, up to the quote or the tag that ends it. */
static inline const char *http_after(
    const char *at, const char *stop, const char *mark, size_t *size) {
    size_t length = strlen(mark);
    char last = mark[length - 1];
    for (; stop - at > (ptrdiff_t)length; at++) {
        if (strncasecmp(at, mark, length) != 0)
            continue;
        const char *text = at + length;
        const char *found =
            (const char *)memchr(text, last == '>' ? '<' : last, (size_t)(stop - text));
        *size = found ? (size_t)(found - text) : 0;
        return found ? text : NULL;
    }
    return NULL;
}

/* Replace the entities that names contain; returns the size. */
static inline size_t http_entities(char *text, size_t size) {
    static const char *const entity[] = {
        "&amp;", "&lt;", "&gt;", "&quot;", "&apos;", "&#39;", "&#34;"};
    static const char plain[] = "&<>\"''\"";
    size_t to = 0;
    for (size_t i = 0; i < size; to++) {
        size_t k = 0, count = sizeof entity / sizeof *entity;
        while (k < count && (size - i < strlen(entity[k]) ||
                                memcmp(text + i, entity[k], strlen(entity[k])) != 0))
            k++;
        text[to] = *(k < count ? &plain[k] : &text[i]);
        i += k < count ? strlen(entity[k]) : 1;
    }
    return to;
}

/* The text of the first <NAME> in an answer, to be freed, or NULL. */
static inline char *http_xml(const void *page, size_t size, const char *mark) {
    const char *start = (const char *)page;
    const char *text = start ? http_after(start, start + size, mark, &size) : NULL;
    char *out = text && size < 8192 ? http_format("%.*s", (int)size, text) : NULL;
    if (out)
        out[http_entities(out, strlen(out))] = '\0';
    return out;
}

/* The server's own code of an error, or NULL. Of anything else, such as an echo of the
 * request, its signature would be shown. */
static inline char *http_code(const void *page, size_t size) {
    char *code = http_xml(page, size, "<Code>");
    if (code)
        code[strspn(code, FORMAT_PLAIN)] = '\0';
    return code;
}

#endif /* BAGS_FORMATS_HTTP_H */
