/*
 * url.c - URL and response parsing: the identity of a URL's object, and the names in a
 * listing.
 */
#include "url.h"

#include "random.h"

#include <curl/curl.h>
#include <stdarg.h>

char *bagi_http_format(const char *format, ...) {
    char *out = NULL;
    va_list arguments;
    va_start(arguments, format);
    int size = vasprintf(&out, format, arguments);
    va_end(arguments);
    return size < 0 ? NULL : out;
}

bool bags_http_is_url(const char *path) {
    const char *host = strstr(path, "://");
    return (http_is_s3(path) || strncmp(path, "http://", 7) == 0 ||
               strncmp(path, "https://", 8) == 0) &&
           host && host[3] && !strchr("/?#@", host[3]);
}

bool bagi_http_ends_in(const char *path, const char *endings) {
    const char *dot = strrchr(path, '.');
    const char *found = dot ? strstr(endings, dot) : NULL;
    return found && found[strlen(dot)] == ' ';
}

const char *bagi_http_strong(const char *tag) {
    return tag && strncmp(tag, "W/", 2) == 0 ? tag + 2 : tag ? tag : "";
}

bool bagi_http_is_hash(const char *tag) {
    size_t digits = 0;
    for (; tag && *tag && digits < 32; tag++)
        digits = format_hex(*tag) >= 0 ? digits + 1 : 0;
    return digits == 32;
}

http_store bagi_http_store(const char *path, const char **name) {
    static const char google[] = "storage.googleapis.com";
    const char *host = strstr(path, "://");
    host = host ? host + 3 : path;
    size_t size = strcspn(host, "/:"), own = strlen(google);
    bool s3 = http_is_s3(path);
    bool in_google = size >= own && strncasecmp(host + size - own, google, own) == 0 &&
                     (size == own || host[size - own - 1] == '.');
    const char *azure = (const char *)memmem(host, size, ".blob.core.", 11);
    azure = azure ? azure : (const char *)memmem(host, size, ".blob.storage.", 14);
    *name = host + strcspn(host, "/");
    *name += **name == '/';
    if ((in_google && size == own) || (!in_google && azure)) {
        *name += strcspn(*name, "/");
        *name += **name == '/';
    }
    return s3 ? HTTP_S3 : in_google ? HTTP_GOOGLE : azure ? HTTP_AZURE : HTTP_INDEX;
}

char *bagi_http_url(const http_settings *settings, const char *path, bool bucket,
    bool field, const char *query) {
    if (!http_is_s3(path)) {
        size_t front = 8 + strcspn(path + 8, "/");
        const char *own = settings->query ? settings->query : "", *end = NULL;
        (void)bagi_http_store(path, &end);
        end = bucket ? end : path + strlen(path);
        char *shown = bagi_http_format("%.*s", (int)(end - path), path);
        char *rest = shown ? format_url(shown + front, "/!$&'()*+,;=:@[]",
                                 field ? strrchr(shown, '/') : shown + strlen(shown))
                           : NULL;
        if (bucket && rest) /* the container has no slash at its end */
            rest[http_path_size(rest)] = '\0';
        char *out = rest ? bagi_http_format("%.*s%s%s%s%s%s", (int)front, path, rest,
                               query || *own ? "?" : "", query ? query : "",
                               query && *own ? "&" : "", own)
                         : NULL;
        free(rest);
        free(shown);
        return out;
    }
    const char *name = path + 5;
    size_t size = strcspn(name, "/");
    const char *key = name + size + (name[size] == '/');
    /* Certificates cover a single label in front of s3.REGION, so bucket names with
     * dots need path style. */
    bool in_path = settings->s3.endpoint || memchr(name, '.', size);
    char *host =
        settings->s3.endpoint ? http_copy(settings->s3.endpoint)
        : in_path ? bagi_http_format("https://s3.%s.amazonaws.com", settings->s3.region)
                  : bagi_http_format("https://%.*s.s3.%s.amazonaws.com", (int)size,
                        name, settings->s3.region);
    char *rest = format_url(bucket ? "" : key, "/", NULL);
    char *out = NULL;
    if (host && rest)
        out = bagi_http_format("%s%s%.*s/%s%s%s", host, in_path ? "/" : "",
            in_path ? (int)size : 0, name, rest, query ? "?" : "", query ? query : "");
    free(host);
    free(rest);
    return out;
}

/* ---- a path's query and user ----
 * The object at a path also depends on the query and the user, or on S3's endpoint, so
 * these are part of its identity. A signature is not, because it differs each time. */

/* Signature parameters. A scheme's other parameters count only if its first one is
 * present. */
static const char *const http_schemes[] = {
    "X-Amz-Signature X-Amz-Algorithm X-Amz-Content-Sha256 X-Amz-Credential X-Amz-Date "
    "X-Amz-Expires X-Amz-Security-Token X-Amz-SignedHeaders ",
    "X-Goog-Signature X-Goog-Algorithm X-Goog-Credential X-Goog-Date X-Goog-Expires "
    "X-Goog-SignedHeaders ",
    /* CloudFront; S3 and Google Cloud, version 2 */
    "Signature Expires Hash-Algorithm Key-Pair-Id Policy AWSAccessKeyId GoogleAccessId "
    "X-Amz-Security-Token ",
    /* Azure */
    "sig rscc rscd rsce rscl rsct saoid scid sdd se ses si sip ske skoid sks skt sktid "
    "skv sp spr sr srt ss st suoid sv "};

/* True if the parameter's name is the first word (or, with `any`, any word). */
static bool http_is_named(const char *parameter, const char *words, bool any) {
    size_t size = strcspn(parameter, "=&");
    for (const char *word = words; *word; word += strcspn(word, " ") + 1) {
        if (strcspn(word, " ") == size && strncasecmp(word, parameter, size) == 0)
            return true;
        if (!any)
            return false;
    }
    return false;
}

/* The next parameter of a query; NULL: no more. */
static const char *http_parameter(const char *at) {
    at += strcspn(at, "&");
    return *at ? at + 1 : NULL;
}

/* True if the parameter is part of this query's signature. */
static bool http_signs(const char *query, const char *parameter) {
    for (size_t i = 0; i < sizeof http_schemes / sizeof *http_schemes; i++)
        for (const char *at = query;
             at && http_is_named(parameter, http_schemes[i], true);
             at = http_parameter(at))
            if (http_is_named(at, http_schemes[i], false))
                return true;
    return false;
}

void bagi_http_find_places(http_settings *settings) {
    uint64_t hash = 0;
    for (const char *at = settings->query; at; at = http_parameter(at))
        if (!http_signs(settings->query, at))
            hash = format_hash(format_hash(hash, at, strcspn(at, "&")), "&", 1);
    if (settings->user)
        hash = format_hash(hash, settings->user, strlen(settings->user) + 1);
    settings->place = format_mix(hash) & UINT32_MAX;
    settings->s3_place =
        settings->s3.endpoint ? http_hash(settings->s3.endpoint) & UINT32_MAX : 0;
}

/* ---- answers ---- */

/* Find the next mark. Returns the text after it, up to the closing quote or tag. */
static const char *http_after(
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

/* Decode the entities that occur in names. Returns the new size. */
static size_t http_entities(char *text, size_t size) {
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

char *bagi_http_xml(const void *page, size_t size, const char *mark) {
    const char *start = (const char *)page;
    const char *text = start ? http_after(start, start + size, mark, &size) : NULL;
    char *out = text && size < 8192 ? bagi_http_format("%.*s", (int)size, text) : NULL;
    if (out)
        out[http_entities(out, strlen(out))] = '\0';
    return out;
}

char *bagi_http_code(const void *page, size_t size) {
    char *code = bagi_http_xml(page, size, "<Code>");
    if (code)
        code[strspn(code, FORMAT_PLAIN)] = '\0';
    return code;
}

/* Pass on a valid name: not empty, no slash, and neither . nor .. */
static int http_name(
    char *name, size_t size, int (*each)(void *user, const char *name), void *user) {
    while (size > 0 && name[size - 1] == '/')
        size--;
    if (size == 0 || memchr(name, '/', size) || memchr(name, '\0', size))
        return 0;
    name[size] = '\0';
    bool inside = strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    return inside ? each(user, name) : 0;
}

int bags_http_names(const void *page, size_t size, bool xml, const char *prefix,
    int (*each)(void *user, const char *name), void *user) {
    static const char *const marks[] = {
        "href=\"", "href='", "<Key>", "<Prefix>", "<Name>"};
    const char *at = NULL, *stop = (const char *)page + size;
    size_t front = strlen(prefix), length = 0;
    int code = 0;
    bool azure =
        xml && size > 0 && http_after((const char *)page, stop, "<Blobs>", &length);
    int first = azure ? 4 : xml ? 2 : 0, last = azure ? 5 : xml ? 4 : 2;
    for (int i = first; i < last; i++)
        for (at = (const char *)page;
             !code && (at = http_after(at, stop, marks[i], &length)) != NULL;
             at += length) {
            char name[8192], *plain = NULL;
            if (length == 0 || length >= sizeof name || (!xml && strchr("?#", *at)))
                continue;
            memcpy(name, at, length);
            int used = (int)http_entities(name, length);
            if (!xml) { /* a link: relative, or prefixed with the directory's own
                           path */
                plain = curl_easy_unescape(NULL, name, used, &used);
                used = plain ? used : 0;
            }
            char *text = plain ? plain : name, *end = text + used;
            bool inside = (size_t)used > front && memcmp(text, prefix, front) == 0;
            if (inside)
                text += front;
            else if (!xml && used > 2 && memcmp(text, "./", 2) == 0)
                text += 2;
            if (inside || !xml)
                code = http_name(text, (size_t)(end - text), each, user);
            curl_free(plain);
        }
    return code;
}
