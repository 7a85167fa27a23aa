/*
 * s3.c - the part of http.c that is of S3 alone: its settings, and uploads. libcurl signs
 * the requests (SigV4).
 *
 * An upload is one request, or above the size of a part:
 *
 *     POST ?uploads          -> an id
 *     PUT ?partNumber=1&...  -> the ETag of each part, of which http.c repeats those
 *     PUT ?partNumber=2&...     that fail for a reason that may pass
 *     POST ?uploadId=...     the list of ETags: now the object appears
 *     DELETE ?uploadId=...   instead, after a failure: the parts are discarded
 *     HEAD                   after a failure of the last POST: is the object complete?
 */
#include "http.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- uploading ---- */

/* A file that is uploaded, or compared, part by part. */
typedef struct s3_source {
    const bags_io *io;
    const char *path;
    void *file;
    uint64_t size, part; /* bytes: of the file, of each part but the last */
    size_t count;        /* parts; 1: not multipart */
    unsigned char *data; /* one part */
    bags_error *err;
} s3_source;

/* ETags can be compared if the parts have the size that was chosen; but there are at most
 * 10,000 parts. */
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
    from->part = bagi_http_part_size(http);
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

/* Read part i: *size bytes, and their MD5. */
static bags_code s3_source_read(
    s3_source *from, size_t i, size_t *size, unsigned char md5[16]) {
    uint64_t start = from->part * i, rest = from->size - start;
    *size = (size_t)(rest < from->part ? rest : from->part);
    bags_code code = bags_read(
        from->io, from->file, from->path, start, from->data, *size, from->err);
    return code ? code : s3_md5(from, from->data, *size, md5);
}

/* The ETag that S3 gives this file: the MD5, or that of the parts' MD5 and their
 * number. */
static bags_code s3_source_etag(s3_source *from, char out[64]) {
    unsigned char *all = (unsigned char *)malloc(16 * from->count);
    size_t size = 0;
    bags_code code =
        all ? BAGS_OK : bags_fail_io(NULL, ENOMEM, from->path, "read", from->err);
    for (size_t i = 0; i < from->count && !code; i++)
        code = s3_source_read(from, i, &size, all + 16 * i);
    if (!code && from->count > 1)
        code = s3_md5(from, all, 16 * from->count, all);
    *out++ = '"';
    for (size_t i = 0; i < 16 && !code; i++)
        out += snprintf(out, 3, "%02x", all[i]);
    if (from->count > 1)
        out += snprintf(out, 24, "-%" PRIu64, (uint64_t)from->count);
    memcpy(out, "\"", 2);
    free(all);
    return code;
}

bags_code bags_http_same(bags_http *http, const char *url, const bags_io *io,
    const char *path, bool *same, bags_error *err) {
    const bags_io *remote = bags_http_io(http);
    s3_source from;
    char etag[64];
    void *object = NULL;
    uint64_t size = 0;
    *same = false;
    bags_code code = s3_source_open(&from, http, io, path, err);
    int error = code ? 0 : remote->open(remote->user, url, BAGS_IO_READ, &object);
    if (error && error != ENOENT)
        code = bags_fail_io(remote, error, url, "open", err);
    if (object)
        (void)remote->size(remote->user, object, &size);
    if (object && size == from.size && bagi_http_is_hash(bagi_http_tag(object))) {
        code = s3_source_etag(&from, etag);
        *same = !code && strcmp(bagi_http_tag(object), etag) == 0;
    }
    s3_source_close(&from);
    return code;
}

/* Upload part i, and append its line to the list of parts in *xml. */
static bags_code s3_upload_part(bags_http *http, const char *url, const char *id,
    s3_source *from, size_t i, char **xml) {
    http_reply reply;
    memset(&reply, 0, sizeof reply);
    unsigned char md5[16];
    size_t size = 0;
    char *query =
        http_format("partNumber=%" PRIu64 "&uploadId=%s", (uint64_t)i + 1, id);
    bags_code code = query ? s3_source_read(from, i, &size, md5)
                           : bags_fail_io(NULL, ENOMEM, url, "upload", from->err);
    if (!code)
        code = bagi_http_send(
            http, "PUT", url, query, from->data, size, md5, &reply, from->err);
    char *longer = code ? NULL
                        : http_format("%s<Part><PartNumber>%" PRIu64
                                      "</PartNumber><ETag>%s</ETag></Part>",
                              *xml, (uint64_t)i + 1, reply.tag);
    if (!code && !longer)
        code = bags_fail_io(NULL, ENOMEM, url, "upload", from->err);
    free(*xml);
    *xml = longer;
    free(query);
    bags_buffer_free(&reply.body);
    return code;
}

/* True if the object is what the upload of this file makes. */
static bool s3_is_complete(bags_http *http, const char *url, const s3_source *from) {
    s3_source again = *from;
    http_reply reply;
    bags_error ignored;
    char etag[64];
    bags_code code =
        bagi_http_send(http, "HEAD", url, NULL, NULL, 0, NULL, &reply, &ignored);
    bags_buffer_free(&reply.body);
    again.err = &ignored;
    return !code && !s3_source_etag(&again, etag) && strcmp(reply.tag, etag) == 0;
}

static bags_code s3_upload_multipart(bags_http *http, const char *url, s3_source *from,
    void (*progress)(void *user, uint64_t bytes), void *user) {
    http_reply reply;
    memset(&reply, 0, sizeof reply);
    bags_code code =
        bagi_http_send(http, "POST", url, "uploads=", NULL, 0, NULL, &reply, from->err);
    char *plain = code ? NULL : http_xml(reply.body.data, reply.size, "<UploadId>");
    char *id = plain ? format_url(plain, "", NULL) : NULL;
    char *query = id ? http_format("uploadId=%s", id) : NULL;
    char *xml = http_copy("<CompleteMultipartUpload>"), *all = NULL;
    bags_buffer_free(&reply.body);
    if (!code && (!query || !xml))
        code = bags_fail(from->err, BAGS_ERROR_IO,
            "%s: cannot upload: the answer has no UploadId", bags_path_tail(url));
    for (size_t i = 0; i < from->count && !code; i++) {
        uint64_t rest = from->size - from->part * i;
        code = s3_upload_part(http, url, id, from, i, &xml);
        if (!code && progress)
            progress(user, rest < from->part ? rest : from->part);
    }
    if (!code && !(all = http_format("%s</CompleteMultipartUpload>", xml)))
        code = bags_fail_io(NULL, ENOMEM, url, "upload", from->err);
    if (!code)
        code = bagi_http_send(
            http, "POST", url, query, all, strlen(all), NULL, &reply, from->err);
    /* The status is 200 even if S3 then fails to put the parts together. */
    char *etag = code ? NULL : http_xml(reply.body.data, reply.size, "<ETag>");
    char *why = code ? NULL : http_code(reply.body.data, reply.size);
    if (!code && !etag)
        code = bags_fail(from->err, BAGS_ERROR_IO, "%s: cannot upload: %.100s",
            bags_path_tail(url), why ? why : "the answer has no ETag");
    bags_buffer_free(&reply.body);
    if (code && query)
        (void)bagi_http_send(http, "DELETE", url, query, NULL, 0, NULL, &reply, NULL);
    bags_buffer_free(&reply.body);
    /* If the answer to the last request was lost, the same request fails again. */
    if (code && all && s3_is_complete(http, url, from))
        code = BAGS_OK;
    char *texts[] = {plain, id, query, xml, all, etag, why};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    return code;
}

bags_code bags_http_upload(bags_http *http, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *user, uint64_t bytes), void *user,
    bags_error *err) {
    s3_source from;
    http_reply reply;
    memset(&reply, 0, sizeof reply);
    unsigned char md5[16];
    size_t size = 0;
    if (!http_is_s3(url) || !bagi_http_alive(http))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: only s3:// accepts uploads, and only in the process that "
            "opened it",
            bags_path_tail(url));
    bags_code code = s3_source_open(&from, http, io, path, err);
    if (!code && from.count > 1) {
        code = s3_upload_multipart(http, url, &from, progress, user);
    } else if (!code) {
        code = s3_source_read(&from, 0, &size, md5);
        if (!code)
            code = bagi_http_send(
                http, "PUT", url, NULL, from.data, size, md5, &reply, err);
        bags_buffer_free(&reply.body);
        if (!code && progress)
            progress(user, size);
    }
    s3_source_close(&from);
    return code;
}

/* ---- settings ---- */

/* The value of NAME in [section] of an .ini file, or NULL. */
static char *s3_ini(const char *path, const char *section, const char *name) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096], *found = NULL;
    bool inside = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *stop = line + strlen(line), *start = line;
        while (stop > start && (unsigned char)stop[-1] <= ' ')
            *--stop = '\0';
        while (*start == ' ' || *start == '\t')
            start++;
        if (*start == '[') {
            size_t size = strlen(section);
            inside = strncmp(start + 1, section, size) == 0 &&
                     strcmp(start + 1 + size, "]") == 0;
        }
        size_t size = strcspn(start, " \t=");
        if (!inside || size != strlen(name) || strncmp(start, name, size) != 0)
            continue;
        start += size;
        start += strspn(start, " \t");
        if (*start++ == '=')
            found = http_copy(start + strspn(start, " \t"));
    }
    if (file)
        (void)fclose(file);
    return found;
}

static char *s3_aws_file(const char *variable, const char *name) {
    const char *path = getenv(variable), *home = getenv("HOME");
    if (path && *path)
        return http_copy(path);
    return home ? http_format("%s/.aws/%s", home, name) : NULL;
}

/* The first of an option and two variables that is not empty. */
static char *s3_setting(const char *option, const char *variable, const char *other) {
    char *found = http_copy(option);
    found = found ? found : http_copy(getenv(variable));
    return found || !other ? found : http_copy(getenv(other));
}

/* Keys, region and endpoint of S3: options, then the environment, then the files in
 * ~/.aws. The key of one place is never used with the secret of another. */
void bagi_s3_settings(s3_settings *out, const bags_http_options *options) {
    const char *profile = getenv("AWS_PROFILE");
    char *keys = s3_aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    char *config = s3_aws_file("AWS_CONFIG_FILE", "config");
    profile = profile && *profile ? profile : "default";
    char *section = strcmp(profile, "default") == 0
                        ? http_copy(profile)
                        : http_format("profile %s", profile);
    const char *in_config = section ? section : "default";
    if (options->key) {
        out->key = http_copy(options->key);
        out->secret = http_copy(options->secret);
        out->token = http_copy(options->token);
    } else if ((out->key = http_copy(getenv("AWS_ACCESS_KEY_ID")))) {
        out->secret = http_copy(getenv("AWS_SECRET_ACCESS_KEY"));
        out->token = http_copy(getenv("AWS_SESSION_TOKEN"));
    } else {
        out->key = s3_ini(keys, profile, "aws_access_key_id");
        out->secret = s3_ini(keys, profile, "aws_secret_access_key");
        out->token = s3_ini(keys, profile, "aws_session_token");
    }
    out->region = s3_setting(options->region, "AWS_REGION", "AWS_DEFAULT_REGION");
    out->endpoint =
        s3_setting(options->endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    if (!out->region)
        out->region = s3_ini(config, in_config, "region");
    if (!out->region)
        out->region = http_copy("us-east-1");
    if (!out->endpoint)
        out->endpoint = s3_ini(config, in_config, "endpoint_url");
    if (out->endpoint)
        out->endpoint[http_path_size(out->endpoint)] = '\0';
    free(keys);
    free(config);
    free(section);
}
