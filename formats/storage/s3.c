/*
 * s3.c - uploads to S3. libcurl signs the requests (SigV4).
 *
 * An upload is a single request or, for files larger than a part:
 *
 *     POST ?uploads          -> an id
 *     PUT ?partNumber=1&...  -> the ETag of each part; transfer.c retries after a
 *     PUT ?partNumber=2&...     temporary failure
 *     POST ?uploadId=...     the list of ETags: now the object appears
 *     DELETE ?uploadId=...   instead, after a failure: the parts are discarded
 *     HEAD                   after the last POST failed: is the object complete?
 */
#include "objects.h"
#include "try.h"

#include <openssl/evp.h>

/* ---- the file ---- */

/* A file being uploaded or compared, part by part. */
typedef struct s3_source {
    const bags_io *io;
    const char *path;
    void *file;
    uint64_t size, part; /* bytes in the file, and in each part but the last */
    size_t count;        /* number of parts; 1: not multipart */
    unsigned char *data; /* the bytes of one part */
    bags_error *err;
} s3_source;

/* ETags can be compared only if the parts have the configured size, but S3 allows at
 * most 10,000 parts. */
static bags_code s3_source_open(s3_source *from, bags_http *http, const bags_io *io,
    const char *path, bags_error *err) {
    memset(from, 0, sizeof *from);
    from->io = io;
    from->path = path;
    from->err = err;
    int error = io->open(io->user, path, BAGS_IO_READ, &from->file);
    if (error)
        from->file = NULL;
    else
        error = io->size(io->user, from->file, &from->size);
    if (error)
        return bags_fail_io(io, error, path, "open", err);
    from->part = http->part_size;
    while (from->size / 10000 >= from->part)
        from->part *= 2;
    from->count =
        from->size <= from->part ? 1 : (size_t)((from->size - 1) / from->part + 1);
    uint64_t size = from->size < from->part ? from->size : from->part;
    from->data = size < SIZE_MAX ? (unsigned char *)malloc((size_t)size + 1) : NULL;
    return from->data ? BAGS_OK : bags_fail_io(NULL, ENOMEM, path, "upload", err);
}

static void s3_source_close(s3_source *from) {
    if (from->file)
        from->io->close(from->io->user, from->file);
    free(from->data);
}

static bags_code s3_md5(const s3_source *from, const unsigned char *data, size_t size,
    unsigned char md5[16]) {
    if (EVP_Digest(data, size, md5, NULL, EVP_md5(), NULL))
        return BAGS_OK;
    return bags_fail(from->err, BAGS_ERROR_IO,
        "%s: cannot upload: libcrypto refuses MD5", bags_path_tail(from->path));
}

/* Read part i: stores its size in *size, and its MD5. */
static bags_code s3_source_read(
    s3_source *from, size_t i, size_t *size, unsigned char md5[16]) {
    uint64_t start = from->part * i, rest = from->size - start;
    *size = (size_t)(rest < from->part ? rest : from->part);
    bags_code code = bags_read(
        from->io, from->file, from->path, start, from->data, *size, from->err);
    return code ? code : s3_md5(from, from->data, *size, md5);
}

/* Write each part's MD5 to `all`. If there are several, then write the MD5 of these
 * MD5s to the front of `all`. */
static bags_code s3_source_hash(s3_source *from, unsigned char *all) {
    for (size_t i = 0, size = 0; i < from->count; i++)
        FORMAT_TRY(s3_source_read(from, i, &size, all + 16 * i));
    return from->count > 1 ? s3_md5(from, all, 16 * from->count, all) : BAGS_OK;
}

/* The ETag that S3 gives this file: its MD5, or the MD5 of the parts' MD5s plus the
 * number of parts. */
static bags_code s3_source_etag(s3_source *from, char out[64]) {
    unsigned char *all = (unsigned char *)malloc(16 * from->count);
    if (!all)
        return bags_fail_io(NULL, ENOMEM, from->path, "read", from->err);
    bags_code code = s3_source_hash(from, all);
    *out++ = '"';
    for (size_t i = 0; i < 16; i++)
        out += snprintf(out, 3, "%02x", code ? 0U : all[i]);
    if (from->count > 1)
        out += snprintf(out, 24, "-%" PRIu64, (uint64_t)from->count);
    memcpy(out, "\"", 2);
    free(all);
    return code;
}

/* *same: the object's size and ETag match the file's. */
static bags_code s3_compare(
    bags_http *http, const char *url, s3_source *from, bool *same) {
    const bags_io *remote = bags_http_io(http);
    char etag[64];
    void *file = NULL;
    int error = remote->open(remote->user, url, BAGS_IO_READ, &file);
    if (error)
        return error == ENOENT ? BAGS_OK
                               : bags_fail_io(remote, error, url, "open", from->err);
    const http_object *object = (const http_object *)file;
    bags_code code = BAGS_OK;
    if (object->size == from->size && bagi_http_is_hash(object->tag)) {
        code = s3_source_etag(from, etag);
        *same = !code && strcmp(object->tag, etag) == 0;
    }
    remote->close(remote->user, file);
    return code;
}

bags_code bags_http_same(bags_http *http, const char *url, const bags_io *io,
    const char *path, bool *same, bags_error *err) {
    s3_source from;
    *same = false;
    bags_code code = s3_source_open(&from, http, io, path, err);
    code = code ? code : s3_compare(http, url, &from, same);
    s3_source_close(&from);
    return code;
}

/* ---- requests ---- */

/* A response, to be freed. */
typedef struct s3_reply {
    bags_buffer body;
    size_t size;   /* bytes in the body */
    char tag[512]; /* ETag */
} s3_reply;

/* Send a request and wait for the answer. `query` and the MD5 of the data may be NULL.
 * Returns BAGS_OK if the status is 2xx. */
static bags_code s3_send(bags_http *http, const char *method, const char *url,
    const char *query, const void *data, size_t size, const unsigned char *md5,
    s3_reply *reply, bags_error *err) {
    http_request *request =
        bagi_http_request_new(&http->engine, url, false, false, query);
    memset(reply, 0, sizeof *reply);
    if (!request)
        return bags_fail_io(NULL, ENOMEM, url, "upload", err);
    if (md5)
        EVP_EncodeBlock((unsigned char *)request->md5, md5, 16);
    request->method = method;
    request->send = size ? (const char *)data : "";
    request->send_size = size;
    bags_code code = BAGS_OK;
    if (bagi_http_run(request)) {
        code = bags_fail(err, BAGS_ERROR_IO, "%s: cannot upload: %s",
            bags_path_tail(url), request->why);
        if (err)
            err->system = request->error;
    }
    memcpy(reply->tag, request->tag, sizeof reply->tag);
    reply->body = request->body;
    reply->size = request->size;
    memset(&request->body, 0, sizeof request->body);
    bagi_http_request_free(request);
    return code;
}

/* Send part i: the entire object or, with a query, one part of it. `etag` may be
 * NULL. */
static bags_code s3_put(bags_http *http, const char *url, const char *query,
    s3_source *from, size_t i, char etag[512]) {
    s3_reply reply;
    unsigned char md5[16];
    size_t size = 0;
    FORMAT_TRY(s3_source_read(from, i, &size, md5));
    bags_code code =
        s3_send(http, "PUT", url, query, from->data, size, md5, &reply, from->err);
    bags_buffer_free(&reply.body);
    if (etag)
        memcpy(etag, reply.tag, sizeof reply.tag);
    return code;
}

/* ---- uploads ---- */

/* A multipart upload. */
typedef struct s3_upload {
    bags_http *http;
    const char *url;
    s3_source *from;
    void (*progress)(void *user, uint64_t bytes);
    void *user;
    char *id, *query; /* the upload's id and query; NULL: it has not begun */
    char *xml;        /* the list of parts so far */
    bool listed;      /* the list has been sent */
} s3_upload;

static bags_code s3_no_memory(const s3_upload *up) {
    return bags_fail_io(NULL, ENOMEM, up->url, "upload", up->from->err);
}

static bags_code s3_begin(s3_upload *up) {
    s3_reply reply;
    bags_code code = s3_send(
        up->http, "POST", up->url, "uploads=", NULL, 0, NULL, &reply, up->from->err);
    char *plain =
        code ? NULL : bagi_http_xml(reply.body.data, reply.size, "<UploadId>");
    bags_buffer_free(&reply.body);
    if (code)
        return code;
    up->id = plain ? format_url(plain, "", NULL) : NULL;
    free(plain);
    up->query = up->id ? bagi_http_format("uploadId=%s", up->id) : NULL;
    up->xml = http_copy("<CompleteMultipartUpload>");
    if (up->query && up->xml)
        return BAGS_OK;
    return bags_fail(up->from->err, BAGS_ERROR_IO,
        "%s: cannot upload: the answer has no UploadId", bags_path_tail(up->url));
}

/* Send part i, and append its line to the list. */
static bags_code s3_send_part(s3_upload *up, size_t i) {
    char etag[512];
    uint64_t number = (uint64_t)i + 1;
    char *query =
        bagi_http_format("partNumber=%" PRIu64 "&uploadId=%s", number, up->id);
    if (!query)
        return s3_no_memory(up);
    bags_code code = s3_put(up->http, up->url, query, up->from, i, etag);
    free(query);
    if (code)
        return code;
    char *longer = bagi_http_format("%s<Part><PartNumber>%" PRIu64
                                    "</PartNumber><ETag>%s</ETag></Part>",
        up->xml, number, etag);
    if (!longer)
        return s3_no_memory(up);
    free(up->xml);
    up->xml = longer;
    uint64_t rest = up->from->size - up->from->part * i;
    if (up->progress)
        up->progress(up->user, rest < up->from->part ? rest : up->from->part);
    return BAGS_OK;
}

/* Send the list. The status is 200 even if S3 then fails to assemble the parts. */
static bags_code s3_finish(s3_upload *up) {
    s3_reply reply;
    char *all = bagi_http_format("%s</CompleteMultipartUpload>", up->xml);
    if (!all)
        return s3_no_memory(up);
    up->listed = true;
    bags_code code = s3_send(up->http, "POST", up->url, up->query, all, strlen(all),
        NULL, &reply, up->from->err);
    free(all);
    char *etag = bagi_http_xml(reply.body.data, reply.size, "<ETag>");
    char *why = bagi_http_code(reply.body.data, reply.size);
    bags_buffer_free(&reply.body);
    if (!code && !etag)
        code = bags_fail(up->from->err, BAGS_ERROR_IO, "%s: cannot upload: %.100s",
            bags_path_tail(up->url), why ? why : "the answer has no ETag");
    free(etag);
    free(why);
    return code;
}

static bags_code s3_send_all(s3_upload *up) {
    FORMAT_TRY(s3_begin(up));
    for (size_t i = 0; i < up->from->count; i++)
        FORMAT_TRY(s3_send_part(up, i));
    return s3_finish(up);
}

/* True if the object is what uploading this file would produce. */
static bool s3_is_complete(bags_http *http, const char *url, const s3_source *from) {
    s3_source again = *from;
    s3_reply reply;
    bags_error ignored;
    char etag[64];
    bags_code code = s3_send(http, "HEAD", url, NULL, NULL, 0, NULL, &reply, &ignored);
    bags_buffer_free(&reply.body);
    again.err = &ignored;
    return !code && !s3_source_etag(&again, etag) && strcmp(reply.tag, etag) == 0;
}

static bags_code s3_upload_parts(s3_upload *up) {
    s3_reply reply;
    bags_code code = s3_send_all(up);
    if (code && up->query) {
        (void)s3_send(
            up->http, "DELETE", up->url, up->query, NULL, 0, NULL, &reply, NULL);
        bags_buffer_free(&reply.body);
    }
    /* If the response to the last request was lost, repeating the request fails even
     * though the upload succeeded. */
    if (code && up->listed && s3_is_complete(up->http, up->url, up->from))
        code = BAGS_OK;
    free(up->id);
    free(up->query);
    free(up->xml);
    return code;
}

bags_code bags_http_upload(bags_http *http, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *user, uint64_t bytes), void *user,
    bags_error *err) {
    s3_source from;
    if (!http_is_s3(url) || !bagi_http_alive(&http->engine))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: only s3:// accepts uploads, and only in the process that "
            "opened it",
            bags_path_tail(url));
    s3_upload up = {http, url, &from, progress, user, NULL, NULL, NULL, false};
    bags_code code = s3_source_open(&from, http, io, path, err);
    bool whole = from.count == 1;
    if (!code)
        code = whole ? s3_put(http, url, NULL, &from, 0, NULL) : s3_upload_parts(&up);
    if (!code && whole && progress)
        progress(user, from.size);
    s3_source_close(&from);
    return code;
}
