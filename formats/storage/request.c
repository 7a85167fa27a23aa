/*
 * request.c - a single HTTP request and its response: the headers sent, the bytes
 * accepted, and what earlier lookups recorded about the object.
 *
 * Rejects a range whose offset, length or object is not the requested one, and servers
 * that ignore ranges if the object is larger than 4 MiB.
 */
#include "transfer.h"

#include <openssl/ssl.h>

#define HTTP_WHOLE ((uint64_t)4 << 20)  /* largest object read without ranges */
#define HTTP_LONGEST ((size_t)64 << 20) /* most bytes if it is not a file */
#define HTTP_HEADERS ((size_t)1 << 20)  /* most bytes of a response's headers */
#define HTTP_ERROR ((size_t)64 << 10)   /* most bytes of an error's body */
#define HTTP_SMALL ((uint64_t)16 << 10) /* a range whose answer fits in 20,480 bytes */
#define HTTP_REDIRECTS 5
#define HTTP_SETTLES 2 /* seconds that a server's clocks may differ */

void bagi_http_request_free(http_request *request) {
    if (!request)
        return;
    curl_slist_free_all(request->headers);
    free(request->url);
    bags_buffer_free(&request->body);
    free(request);
}

http_request *bagi_http_request_new(
    http_engine *engine, const char *path, bool bucket, bool field, const char *query) {
    http_request *request = (http_request *)calloc(1, sizeof *request);
    if (!request)
        return NULL;
    request->engine = engine;
    request->is_s3 = http_is_s3(path);
    request->url = bagi_http_url(&engine->settings, path, bucket, field, query);
    const char *host = request->url ? strstr(request->url, "://") : NULL;
    host = host ? host + 3 : request->url;
    if (host) {
        request->server = format_hash(0, host, strcspn(host, "/?"));
        return request;
    }
    bagi_http_request_free(request);
    return NULL;
}

/* Returns false, so that a check can return this call's result. */
static bool http_refuse(http_request *request, int error, const char *why) {
    request->error = error;
    (void)snprintf(request->why, sizeof request->why, "%s", why);
    return false;
}

/* How many bytes a lookup requests, from the object's end or start. */
static uint64_t http_ends(const http_request *request) {
    return request->bytes == HTTP_NONE ? 1
           : request->from_start       ? request->first_size
                                       : request->last_size;
}

static uint32_t http_place(const http_request *request) {
    const http_settings *settings = &request->engine->settings;
    return request->is_s3 ? settings->s3_place : settings->place;
}

/* ---- the answer ---- */

/* Copy the value of a header line, if it has this name and the value fits. */
static void http_keep(
    char *line, size_t size, const char *name, char *out, size_t capacity) {
    size_t start = strlen(name);
    if (size < start || strncasecmp(line, name, start) != 0)
        return;
    while (start < size && (line[start] == ' ' || line[start] == '\t'))
        start++;
    while (size > start && (unsigned char)line[size - 1] <= ' ')
        size--;
    if (size - start < capacity)
        (void)snprintf(out, capacity, "%.*s", (int)(size - start), line + start);
}

/* Handle a header line. A redirect's headers are discarded when the next response
 * begins. */
static size_t http_header(char *line, size_t one, size_t size, void *user) {
    http_request *request = (http_request *)user;
    (void)one;
    request->headers_size += size; /* counts trailers too, since they may be endless */
    if (request->headers_size > HTTP_HEADERS) {
        http_refuse(request, EFBIG, "the headers are too large");
        return 0;
    }
    bool first = size > 5 && memcmp(line, "HTTP/", 5) == 0;
    /* An empty line ends the head; trailers may follow. */
    request->has_head = !first && (request->has_head || *line == '\r' || *line == '\n');
    if (first)
        *request->tag = *request->modified = *request->date = *request->range =
            *request->encoding = *request->transfer = '\0';
    http_keep(line, size, "etag:", request->tag, sizeof request->tag);
    http_keep(
        line, size, "last-modified:", request->modified, sizeof request->modified);
    http_keep(line, size, "date:", request->date, sizeof request->date);
    http_keep(line, size, "content-range:", request->range, sizeof request->range);
    http_keep(
        line, size, "content-encoding:", request->encoding, sizeof request->encoding);
    http_keep(
        line, size, "transfer-encoding:", request->transfer, sizeof request->transfer);
    return size;
}

const char *bagi_http_tag(const http_request *request) {
    return *request->tag ? request->tag : request->modified;
}

bags_identity bagi_http_identity(const http_request *request) {
    bags_identity found;
    memset(&found, 0, sizeof found);
    found.device = http_place(request);
    found.inode = http_hash(bagi_http_strong(request->tag));
    /* A weak ETag only says that the content is equivalent. Without a Last-Modified it
     * does not identify the bytes, so treat the object as having neither. */
    bool weak = *request->tag == 'W' && !*request->modified;
    found.time = weak ? found.inode : http_hash(request->modified);
    found.size = request->status == 416   ? 0
                 : request->status == 206 ? request->total
                                          : request->size;
    return found;
}

/* Parse "bytes FIRST-LAST/TOTAL". */
static bool http_parse_range(http_request *request) {
    const char *at = request->range + 6;
    return strncasecmp(request->range, "bytes ", 6) == 0 &&
           format_decimal(&at, NULL, &request->first) && *at++ == '-' &&
           format_decimal(&at, NULL, &request->last) && *at++ == '/' &&
           format_decimal(&at, NULL, &request->total) && !*at &&
           request->first <= request->last && request->last < request->total;
}

/* True if the response belongs to the object being read. */
static bool http_same(http_request *request, uint64_t total) {
    if (total != request->object_size)
        return http_refuse(request, ESTALE, "changed while open (its size differs)");
    if (request->any_tag)
        return true;
    const char *tag = bagi_http_strong(bagi_http_tag(request));
    return !strcmp(bagi_http_strong(request->object_tag), tag) ||
           http_refuse(request, ESTALE, "changed while open (its ETag differs)");
}

/* Handle HTTP 200, the entire object: the response to a lookup, or from a server that
 * ignores ranges. */
static bool http_check_whole(http_request *request) {
    bool range = request->bytes == HTTP_RANGE;
    uint64_t length = request->length;
    bool large = length != UINT64_MAX && length > HTTP_WHOLE;
    request->size = 0; /* it restarts at the beginning */
    if (request->bytes == HTTP_NONE) {
        request->most = UINT64_MAX;
        return true;
    }
    if (!range && !request->from_start && length > http_ends(request) &&
        length != UINT64_MAX)
        return http_refuse(request, EAGAIN, "");
    request->most =
        range ? request->stop - request->start : HTTP_WHOLE; /* the rest is dropped */
    request->skip = range ? request->start : 0;
    /* A body that is ended by closing the connection may be truncated; chunked bodies
     * mark their end. */
    if (length == UINT64_MAX && (range || !(*request->transfer || request->is_html)))
        return http_refuse(request, EIO, "HTTP 200 without a length in place of 206");
    if (range && !http_same(request, length))
        return false;
    if (large && (!range || request->start > 0 || request->stop != length))
        return http_refuse(request, EIO,
            "the server ignores ranges (HTTP 200 in place of 206), so "
            "only files of up to 4 MiB can be read; nginx, Apache and S3 serve "
            "ranges");
    return true;
}

/* Check a response's head before the first byte of its body. */
static bool http_check_head(http_request *request) {
    bool range = request->bytes == HTTP_RANGE;
    curl_off_t length = -1;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    curl_easy_getinfo(request->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    const char *type = NULL;
    curl_easy_getinfo(request->easy, CURLINFO_CONTENT_TYPE, &type);
    request->is_html = type && strncasecmp(type, "text/html", 9) == 0;
    request->length = length < 0 ? UINT64_MAX : (uint64_t)length;
    request->checked = true;
    request->most = HTTP_LONGEST;
    if (request->bytes == HTTP_ALL)
        return true;
    if (request->status / 100 == 2 && *request->encoding &&
        strcasecmp(request->encoding, "identity") != 0) {
        (void)snprintf(request->why, sizeof request->why,
            "Content-Encoding %s: the server must send files as they are",
            request->encoding);
        request->error = EIO;
        return false;
    }
    if (request->status == 200)
        return http_check_whole(request);
    if (request->status != 206)
        return true;
    if (!http_parse_range(request))
        return http_refuse(request, EIO, "HTTP 206 without a valid Content-Range");
    uint64_t size = request->last - request->first + 1;
    if (request->length != UINT64_MAX && request->length != size)
        return http_refuse(request, EIO,
            "HTTP 206 with contradicting Content-Range and Content-Length");
    request->most = range ? request->stop - request->start : http_ends(request);
    if (range && !http_same(request, request->total))
        return false;
    bool right = range ? request->first == request->start + request->size &&
                             request->last < request->stop
                 : request->from_start ? request->first == 0
                                       : request->last == request->total - 1;
    return (right && size <= request->most) ||
           http_refuse(request, EIO, "HTTP 206 with another range than requested");
}

/* Receive body bytes. An error's body is kept for the message, up to a limit. A range
 * never gets more bytes than requested, whatever the server sends. */
static size_t http_body(char *bytes, size_t one, size_t all, void *user) {
    http_request *request = (http_request *)user;
    size_t size = all;
    (void)one;
    if (!request->checked && !http_check_head(request))
        return 0;
    if (request->status / 100 != 2) {
        size_t most = sizeof request->text - request->text_size;
        size = size < most ? size : most;
        memcpy(request->text + request->text_size, bytes, size);
        request->text_size += size;
        return all;
    }
    size_t skip = request->skip < size ? (size_t)request->skip : size;
    request->skip -= skip;
    bytes += skip;
    size -= skip;
    if (size > request->most - request->size) {
        if (request->bytes != HTTP_RANGE || request->status != 200) {
            http_refuse(request, EFBIG, "the answer is too large");
            return 0;
        }
        size = (size_t)(request->most - request->size);
    }
    if (request->bytes == HTTP_NONE) {
        request->size += size;
        return all;
    }
    uint64_t least =
        request->bytes == HTTP_RANGE ? request->most : request->size + size;
    if (bags_buffer_reserve(&request->body, (size_t)least, NULL)) {
        http_refuse(request, ENOMEM, "out of memory");
        return 0;
    }
    if (size > 0)
        memcpy(request->body.data + request->size, bytes, size);
    request->size += size;
    return all;
}

/* Stop reading the body of an error or of a redirect (only libcurl sees the latter). */
static int http_progress(void *user, curl_off_t total, curl_off_t received,
    curl_off_t upload, curl_off_t sent) {
    http_request *request = (http_request *)user;
    (void)total, (void)upload, (void)sent;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    long kind = request->status / 100;
    request->cut =
        kind != 2 && (received > (curl_off_t)HTTP_ERROR ||
                         (kind != 3 && received > (curl_off_t)sizeof request->text &&
                             http_now() - request->begun > 2));
    return request->cut;
}

/* Check that the body of a 2xx or 416 response is what the head promised. Returns true
 * if so; the error is EAGAIN for a body that ended early. */
static bool http_is_complete(http_request *request) {
    bool range = request->bytes == HTTP_RANGE;
    if (!request->checked && !http_check_head(request))
        return false; /* there was no body */
    if (request->bytes == HTTP_ALL)
        return request->status / 100 == 2;
    if (request->status == 416 && !range) /* for an empty object */
        return !strcmp(request->range, "bytes */0") ||
               (request->from_start && !*request->range);
    if (request->status != 200 && request->status != 206)
        return false;
    uint64_t size = range                           ? request->stop - request->start
                    : request->status == 206        ? request->last + 1 - request->first
                    : request->length != UINT64_MAX ? request->length
                                                    : request->size;
    if (request->size == size)
        return true;
    (void)snprintf(request->why, sizeof request->why,
        "truncated (%" PRIu64 " of %" PRIu64 " bytes)", (uint64_t)request->size, size);
    request->error = EAGAIN;
    return false;
}

void bagi_http_describe(http_request *request, CURLcode result) {
    long status = request->status;
    if (request->error == EAGAIN)
        request->error = EIO;
    if (*request->why)
        return;
    if (result) {
        request->error = EIO;
        (void)snprintf(request->why, sizeof request->why, "%s",
            result == CURLE_OPERATION_TIMEDOUT
                ? "the transfer stalled"
                : (*request->curl_why ? request->curl_why
                                      : curl_easy_strerror(result)));
        return;
    }
    char *code = bagi_http_code(request->text, request->text_size);
    bool changed = status == 412 || (status == 416 && request->bytes == HTTP_RANGE);
    request->error = status == 404 || status == 410 ? ENOENT
                     : status == 401                ? EPERM
                     : status == 403                ? EACCES
                     : changed                      ? ESTALE
                                                    : EIO;
    if (request->error == EACCES && code && strcmp(code, "AccessDenied") != 0)
        request->error = EPERM; /* the key is invalid, the object is not missing */
    bool moved = request->is_s3 && (status == 301 || status == 307);
    (void)snprintf(request->why, sizeof request->why, "HTTP %ld%s%.64s%s", status,
        code ? " " : "", code ? code : "",
        changed ? ": changed while open"
        : moved ? ": the bucket may be in another region"
                : "");
    free(code);
}

/* ---- sending ---- */

/* Add a header, unless its value is NULL. */
static bool http_add_header(
    http_request *request, const char *name, const char *value) {
    char *line = value ? bagi_http_format("%s: %s", name, value) : NULL;
    struct curl_slist *list = line ? curl_slist_append(request->headers, line) : NULL;
    free(line);
    if (list)
        request->headers = list;
    return list || !value;
}

/* Allow TLS 1.2 session tickets. libcurl disables them because of servers from 2009.
 * With a ticket, a handshake takes half the processor time. */
static CURLcode http_allow_tickets(CURL *easy, void *context, void *user) {
    (void)easy;
    (void)user;
    SSL_CTX_clear_options((SSL_CTX *)context, SSL_OP_NO_TICKET);
    return CURLE_OK;
}

#define HTTP_SET(option, value)                                                        \
    (good = good && curl_easy_setopt(easy, option, value) == CURLE_OK)

/* Set all options of a request's handle. `keys` are for S3. */
static bool http_set(http_request *request, CURL *easy, const aws_keys *keys) {
    const http_engine *engine = request->engine;
    const http_settings *settings = &engine->settings;
    bool range = request->bytes == HTTP_RANGE;
    const char *tag = range && request->object_tag ? request->object_tag : "";
    bool is_signed = request->is_s3 && keys->key;
    bool is_tls = strncmp(request->url, "https", 5) == 0;
    double stall = engine->stall_seconds < 1 ? 1 : engine->stall_seconds;
    char bytes[64] = "", sign[128];
    bool good = true;
    if (request->any_tag) /* bytes of an earlier try may be of another version */
        request->size = 0;
    curl_slist_free_all(request->headers);
    request->headers = NULL;
    good =
        http_add_header(
            request, "x-amz-content-sha256", is_signed ? "UNSIGNED-PAYLOAD" : NULL) &&
        http_add_header(
            request, "x-amz-security-token", is_signed ? keys->token : NULL) &&
        /* Weak ETags never match. */
        http_add_header(request, "If-Match", *tag == '"' ? tag : NULL) &&
        http_add_header(request, "If-None-Match",
            *request->known.tag ? request->known.tag : NULL) &&
        /* For caches on the way to the server. */
        http_add_header(request, "Cache-Control",
            request->bytes == HTTP_NONE || request->fresh ? "no-cache" : NULL) &&
        http_add_header(request, "Content-MD5", *request->md5 ? request->md5 : NULL) &&
        http_add_header(request, "Content-Type",
            request->method ? "application/octet-stream" : NULL);
    if (range)
        (void)snprintf(bytes, sizeof bytes, "%" PRIu64 "-%" PRIu64,
            request->start + request->size, request->stop - 1);
    else if (request->bytes != HTTP_ALL)
        (void)snprintf(bytes, sizeof bytes, request->from_start ? "0-%u" : "-%u",
            (unsigned)http_ends(request) - request->from_start);
    HTTP_SET(CURLOPT_URL, request->url);
    HTTP_SET(CURLOPT_PATH_AS_IS, 1L);
    HTTP_SET(CURLOPT_HTTPHEADER, request->headers);
    HTTP_SET(CURLOPT_PRIVATE, request);
    HTTP_SET(CURLOPT_ERRORBUFFER, request->curl_why);
    HTTP_SET(CURLOPT_HEADERFUNCTION, http_header);
    HTTP_SET(CURLOPT_HEADERDATA, request);
    HTTP_SET(CURLOPT_WRITEFUNCTION, http_body);
    HTTP_SET(CURLOPT_WRITEDATA, request);
    HTTP_SET(CURLOPT_XFERINFOFUNCTION, http_progress);
    HTTP_SET(CURLOPT_XFERINFODATA, request);
    HTTP_SET(CURLOPT_NOPROGRESS, 0L);
    HTTP_SET(CURLOPT_NOSIGNAL, 1L);
    HTTP_SET(CURLOPT_TCP_KEEPALIVE, 1L);
    HTTP_SET(CURLOPT_BUFFERSIZE,
        range && request->stop - request->start <= HTTP_SMALL ? 20480L : 65536L);
    /* Use many connections, as object stores expect, so that requests do not share one
     * connection's slow start. (Over HTTP/2, libcurl 7.88 also delivered responses to
     * the wrong requests.) */
    HTTP_SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    HTTP_SET(CURLOPT_USERAGENT, "bags.h/" BAGS_VERSION);
    HTTP_SET(CURLOPT_SHARE, request->thread->share);
    HTTP_SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(stall * 1000));
    HTTP_SET(CURLOPT_LOW_SPEED_LIMIT, 100L);
    HTTP_SET(CURLOPT_LOW_SPEED_TIME, (long)stall);
#if LIBCURL_VERSION_NUM >= 0x075500
    HTTP_SET(CURLOPT_PROTOCOLS_STR, "http,https");
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS_STR, is_tls ? "https" : "http,https");
#else
    HTTP_SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    HTTP_SET(CURLOPT_REDIR_PROTOCOLS,
        (long)((is_tls ? 0 : CURLPROTO_HTTP) | CURLPROTO_HTTPS));
#endif
    /* If a directory of certificates were set as well, every connection would read them
     * again. */
    if (settings->ca_file)
        HTTP_SET(CURLOPT_CAINFO, settings->ca_file);
    if (settings->ca_file || curl_version_info(CURLVERSION_NOW)->cainfo)
        HTTP_SET(CURLOPT_CAPATH, NULL);
    if (engine->is_openssl)
        HTTP_SET(CURLOPT_SSL_CTX_FUNCTION, http_allow_tickets);
    if (request->bytes != HTTP_ALL)
        HTTP_SET(CURLOPT_RANGE, bytes);
    if (request->method) {
        HTTP_SET(CURLOPT_POSTFIELDS, request->send);
        HTTP_SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->send_size);
        HTTP_SET(CURLOPT_CUSTOMREQUEST, request->method);
        if (strcmp(request->method, "HEAD") == 0)
            HTTP_SET(CURLOPT_NOBODY, 1L);
    }
    if (!request->is_s3) {
        HTTP_SET(CURLOPT_FOLLOWLOCATION, 1L);
        HTTP_SET(CURLOPT_MAXREDIRS, (long)HTTP_REDIRECTS);
        if (settings->user)
            HTTP_SET(CURLOPT_USERPWD, settings->user);
    } else if (is_signed) {
        (void)snprintf(sign, sizeof sign, "aws:amz:%.60s:s3", settings->s3.region);
        HTTP_SET(CURLOPT_AWS_SIGV4, sign);
        HTTP_SET(CURLOPT_USERNAME, keys->key);
        HTTP_SET(CURLOPT_PASSWORD, keys->secret);
    }
    return good;
}

/* ---- answers recorded by earlier lookups ----
 * With a recorded answer, a lookup only asks whether the ETag is still the same. */

static bool http_is_tag(const char *tag) {
    return *tag == '"' || strncmp(tag, "W/\"", 3) == 0;
}

/* An object's path plus its query and user. */
static char *http_key(const http_request *request) {
    uint32_t place = http_place(request);
    return place ? bagi_http_format("%s?%08" PRIx32, request->path, place)
                 : http_copy(request->path);
}

/* Recall the recorded answer for a request, if any. No other thread uses the request
 * yet. */
static void http_recall(http_request *request) {
    const http_engine *engine = request->engine;
    bags_http_answer *known = &request->known;
    if (request->unconditional)
        memset(known, 0, sizeof *known);
    else if (request->path && engine->recall) {
        char *key = http_key(request);
        memset(known, 0, sizeof *known);
        if (!key || !engine->recall(engine->cache, key, known))
            memset(known, 0, sizeof *known);
        free(key);
        request->timed = *known->modified;
    }
    if (!http_is_tag(known->tag))
        *known->tag = '\0';
}

/* Handle 304: the object is unchanged. True if the recorded answer supplies the rest.
 * Last-Modified may differ even if the ETag does not, so the response must state it. */
static bool http_unchanged(http_request *request) {
    const bags_http_answer *known = &request->known;
    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &request->status);
    if (request->status != 304 || !*known->tag)
        return false;
    if ((request->timed && !*request->modified) ||
        (*request->tag && strcmp(bagi_http_strong(request->tag),
                              bagi_http_strong(known->tag)) != 0)) {
        request->unconditional = true;
        return false;
    }
    if (!*request->tag)
        memcpy(request->tag, known->tag, sizeof request->tag);
    request->status = 206;
    request->total = known->size;
    return true;
}

/* True if the object may still be replaced by another one with the same size, ETag and
 * Last-Modified: some servers derive ETags from the time in seconds, and this object
 * was changed within the second of the response. A Last-Modified further in the future
 * was not set by a clock, so waiting for it is useless. */
static bool http_is_unsettled(const http_request *request) {
    time_t modified = curl_getdate(request->modified, NULL);
    time_t now = *request->date ? curl_getdate(request->date, NULL) : time(NULL);
    return modified >= 0 && now >= 0 && now <= modified &&
           modified <= now + HTTP_SETTLES && !bagi_http_is_hash(request->tag);
}

/* Record a successful lookup. Returns true if it must be repeated, for up to two
 * seconds, because the object may still change unnoticed. */
static bool http_remember(http_request *request) {
    const http_engine *engine = request->engine;
    if (!engine->remember || !request->path)
        return false;
    if (http_is_unsettled(request)) {
        request->not_before = http_now() + 0.25;
        return request->unsettled++ < 8;
    }
    if (request->status != 206 || !http_is_tag(request->tag) || request->is_html ||
        request->size == 0)
        return false;
    bags_http_answer answer;
    memset(&answer, 0, sizeof answer);
    answer.size = request->total;
    memcpy(answer.tag, request->tag, sizeof answer.tag);
    memcpy(answer.modified, request->modified, sizeof answer.modified);
    char *key = http_key(request);
    if (key)
        engine->remember(engine->cache, key, &answer);
    free(key);
    return false;
}

/* ---- beginning and end ---- */

/* Make the handle. */
static bool http_make(http_request *request, const aws_keys *keys) {
    request->easy = curl_easy_init();
    return (request->easy && http_set(request, request->easy, keys)) ||
           http_refuse(request, ENOMEM, "out of memory");
}

bool bagi_http_prepare(http_request *request) {
    const s3_settings *s3 = &request->engine->settings.s3;
    aws_keys keys = {s3->key, s3->secret, s3->token, 0};
    char why[256];
    request->status = 0;
    request->text_size = request->headers_size = 0;
    request->begun = http_now();
    request->cut = false;
    request->has_head = request->checked = false;
    request->skip = 0;
    request->error = 0;
    request->curl_why[0] = request->why[0] = '\0';
    if (request->tries == 0)
        request->since = http_now();
    if (request->bytes != HTTP_RANGE)
        request->size = 0;
    http_recall(request);
    if (request->is_s3 && s3->key && !s3->secret)
        return http_refuse(
            request, EPERM, "a key without a secret (AWS_SECRET_ACCESS_KEY)");
    if (!request->is_s3 || !s3->credentials)
        return http_make(request, &keys);
    if (!bagi_aws_get(s3->credentials, &keys, &request->keys, why))
        return http_refuse(request, EPERM, why);
    bool good = http_make(request, &keys);
    bagi_aws_keys_free(&keys);
    return good;
}

bool bagi_http_complete(http_request *request, CURLcode *result, bool *repeat) {
    if (request->cut)
        *result = CURLE_OK;
    else if (*result == CURLE_OK && !request->has_head) /* the response ended within its
                                                           head */
        *result = CURLE_PARTIAL_FILE;
    bool unchanged = *result == CURLE_OK && http_unchanged(request);
    bool good = unchanged || (*result == CURLE_OK && http_is_complete(request));
    *repeat = good ? !unchanged && http_remember(request)
                   : request->status == 304 && request->unconditional;
    return good;
}
