/*
 * sources.c - where temporary AWS credentials are found, in this order:
 *
 *     source_profile      another profile, for STS AssumeRole (or credential_source)
 *     web identity        a token in a file, for STS AssumeRoleWithWebIdentity
 *     SSO                 the token that `aws sso login` keeps in ~/.aws/sso/cache. If
 *                         it has ended, it is renewed, and replaced there
 *     credential_process  a program named in ~/.aws/config
 *     container           the service of ECS or EKS
 *     instance            the service of EC2 (IMDSv2)
 *
 * A source that is not configured is skipped. Answers are limited in size and time, and
 * redirects are refused. Messages contain no text of a file, an answer or a program,
 * except the code of STS's errors.
 */
#include "credentials.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AWS_LARGEST ((size_t)64 << 10) /* most bytes of an answer or a file */
#define AWS_PROCESS 60.0               /* most seconds of a credential_process */
#define AWS_WORDS 64                   /* most words of its command */
#define AWS_PROFILES 5                 /* most profiles in a chain of source_profile */
#define AWS_SESSION "bags"             /* name of a role's session */

extern char **environ;

typedef enum aws_found { AWS_SKIPPED, AWS_FOUND, AWS_FAILED } aws_found;

/* An answer, a file or the output of a program. */
typedef struct aws_text {
    char bytes[AWS_LARGEST + 1]; /* NUL-terminated */
    size_t size;
} aws_text;

/* Describe a failure: its source, the reason, and after a semicolon the remedy. */
BAGI_PRINTF(2, 3)
static aws_found aws_fail(aws_search *search, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(search->why, sizeof search->why, format, arguments);
    va_end(arguments);
    return AWS_FAILED;
}

static aws_found aws_no_memory(aws_search *search) {
    return aws_fail(search, "out of memory");
}

static const char *aws_get(const aws_search *search, aws_variable variable) {
    return search->variables[variable] ? search->variables[variable] : "";
}

/* ---- text ---- */

/* True for text that a header may contain. */
static bool aws_is_plain(const char *text) {
    size_t size = 0;
    while (text[size] > ' ' && text[size] <= '~')
        size++;
    return size > 0 && !text[size];
}

/* Read a small file, without white space at its end. Returns an errno. */
static int aws_read(const char *path, aws_text *out) {
    FILE *file = fopen(path, "r");
    if (!file)
        return errno;
    out->size = fread(out->bytes, 1, AWS_LARGEST, file);
    int code = ferror(file) ? EIO : out->size == AWS_LARGEST ? EFBIG : 0;
    (void)fclose(file);
    while (out->size > 0 && isspace((unsigned char)out->bytes[out->size - 1]))
        out->size--;
    out->bytes[out->size] = '\0';
    return code;
}

/* Seconds since 1970 of 2026-11-28T19:45:00Z, with fractions, an offset such as +01:00,
 * or UTC. Negative: invalid. */
static double aws_time(const char *text) {
    struct tm at;
    int read = 0, hours = 0, minutes = 0;
    char sign = '+';
    memset(&at, 0, sizeof at);
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &at.tm_year, &at.tm_mon, &at.tm_mday,
            &at.tm_hour, &at.tm_min, &at.tm_sec, &read) != 6)
        return -1;
    text += read;
    if (*text == '.')
        text += 1 + strspn(text + 1, "0123456789");
    if (strcmp(text, "Z") != 0 && strcmp(text, "UTC") != 0 &&
        sscanf(text, "%c%2d%*[:]%2d", &sign, &hours, &minutes) != 3 &&
        sscanf(text, "%c%2d%2d", &sign, &hours, &minutes) != 3)
        return -1;
    if (sign != '+' && sign != '-')
        return -1;
    at.tm_year -= 1900;
    at.tm_mon -= 1;
    double offset = 60.0 * (60 * hours + minutes);
    time_t seconds = timegm(&at);
    return (double)seconds - (sign == '+' ? offset : -offset);
}

/* Move past a JSON string, starting at its opening quote. NULL: it does not end. */
static const char *aws_json_string_end(const char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && !*++at)
            return NULL;
    return *at ? at + 1 : NULL;
}

/* Copy a JSON string without its quotes; other values as they are. Only escapes of
 * ASCII are supported. NULL: invalid, or out of memory. */
static char *aws_json_copy(const char *at, const char *end) {
    char *out = (char *)malloc((size_t)(end - at) + 1);
    size_t size = 0;
    bool quoted = *at == '"', good = out != NULL;
    for (at += quoted, end -= quoted; good && at < end; at++) {
        static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        unsigned point = (unsigned char)*at;
        const char *name = NULL;
        if (*at == '\\' && at[1] == 'u') {
            int read = 0;
            good = sscanf(at + 2, "%4x%n", &point, &read) == 1 && read == 4 &&
                   point > 0 && point < 128;
            at += 5;
        } else if (*at == '\\') {
            name = strchr(names, *++at);
            good = name != NULL;
            point = name ? (unsigned char)values[name - names] : 0;
        }
        out[size++] = (char)point;
    }
    if (out)
        out[size] = '\0';
    if (good)
        return out;
    free(out);
    return NULL;
}

/* The value of a member of a JSON object or, with `inside`, of the object that is this
 * member of it. Strings and numbers are returned as text, to be freed. NULL: none,
 * null, or not JSON. */
static char *aws_json(const char *text, const char *inside, const char *name) {
    int depth = 0, wanted = inside ? 2 : 1;
    const char *key = NULL, *key_end = NULL;
    bool entered = !inside;
    for (const char *at = text; *at;) {
        size_t size = strcspn(at, " \t\r\n:,{}[]\"");
        const char *end = *at == '"' ? aws_json_string_end(at) : at + size;
        if (!end)
            return NULL;
        if (end == at) { /* a mark or white space */
            bool opens = *at == '{' || *at == '[';
            if (opens && depth == 1 && inside)
                entered = *at == '{' && key &&
                          (size_t)(key_end - key) == strlen(inside) &&
                          memcmp(key, inside, strlen(inside)) == 0;
            depth += opens ? 1 : *at == '}' || *at == ']' ? -1 : 0;
            if (opens || *at == ',')
                key = NULL;
            at++;
            continue;
        }
        const char *next = end + strspn(end, " \t\r\n");
        if (*at == '"' && *next == ':') {
            key = at + 1;
            key_end = end - 1;
        } else if (key && depth == wanted && entered &&
                   (size_t)(key_end - key) == strlen(name) &&
                   memcmp(key, name, strlen(name)) == 0)
            return end - at == 4 && memcmp(at, "null", 4) == 0 ? NULL
                                                               : aws_json_copy(at, end);
        at = end;
    }
    return NULL;
}

/* ---- credentials ---- */

/* Check the keys of a search, taken from an answer. `end` may be NULL. */
static aws_found aws_check_keys(
    aws_search *search, const char *source, const char *end, double ends) {
    aws_keys *keys = &search->keys;
    if (!keys->key || !keys->secret || !aws_is_plain(keys->key) ||
        !aws_is_plain(keys->secret) || (keys->token && !aws_is_plain(keys->token)))
        return aws_fail(search, "%s: the answer has no valid credentials", source);
    keys->ends = end ? aws_time(end) : ends;
    if (end && keys->ends < 0)
        return aws_fail(
            search, "%s: the answer has an invalid time of its end", source);
    return AWS_FOUND;
}

/* Parse the answer of a service or a program, in JSON. */
static aws_found aws_parse(
    aws_search *search, const char *source, const char *text, const char *token_name) {
    aws_keys *keys = &search->keys;
    keys->key = aws_json(text, NULL, "AccessKeyId");
    keys->secret = aws_json(text, NULL, "SecretAccessKey");
    keys->token = aws_json(text, NULL, token_name);
    char *end = aws_json(text, NULL, "Expiration");
    aws_found found = aws_check_keys(search, source, end, 0);
    free(end);
    return found;
}

/* ---- requests ---- */

typedef struct aws_request {
    const char *source; /* for messages */
    const char *method, *url;
    const char *body;     /* NULL: none */
    const char *header;   /* one line, or NULL */
    double connects;      /* most seconds to connect; 0: as for the answer */
    bool direct;          /* without a proxy */
    const aws_keys *keys; /* sign it for STS; NULL: not signed */
} aws_request;

static size_t aws_receive(char *bytes, size_t one, size_t size, void *user) {
    aws_text *out = (aws_text *)user;
    (void)one;
    if (size > AWS_LARGEST - out->size)
        return 0;
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
    return size;
}

static int aws_progress(void *user, curl_off_t total, curl_off_t received,
    curl_off_t upload, curl_off_t sent) {
    const aws_search *search = (const aws_search *)user;
    (void)total, (void)received, (void)upload, (void)sent;
    return search->stopped(search->user);
}

#define AWS_SET(option, value)                                                         \
    (good = good && curl_easy_setopt(easy, option, value) == CURLE_OK)

static bool aws_set(CURL *easy, aws_search *search, const aws_request *request,
    struct curl_slist *headers, aws_text *out) {
    double connects = request->connects > 0 && request->connects < search->slowest
                          ? request->connects
                          : search->slowest;
    bool good = easy && (headers || !request->header);
    AWS_SET(CURLOPT_URL, request->url);
    AWS_SET(CURLOPT_CUSTOMREQUEST, request->method);
    AWS_SET(CURLOPT_HTTPHEADER, headers);
    if (request->body || strcmp(request->method, "PUT") == 0)
        AWS_SET(CURLOPT_POSTFIELDS, request->body ? request->body : "");
    AWS_SET(CURLOPT_WRITEFUNCTION, aws_receive);
    AWS_SET(CURLOPT_WRITEDATA, out);
    AWS_SET(CURLOPT_XFERINFOFUNCTION, aws_progress);
    AWS_SET(CURLOPT_XFERINFODATA, search);
    AWS_SET(CURLOPT_NOPROGRESS, 0L);
    AWS_SET(CURLOPT_NOSIGNAL, 1L);
    AWS_SET(CURLOPT_USERAGENT, "bags.h/" BAGS_VERSION);
    AWS_SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(connects * 1000));
    AWS_SET(CURLOPT_TIMEOUT_MS, (long)(search->slowest * 1000));
#if LIBCURL_VERSION_NUM >= 0x075500
    AWS_SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    AWS_SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (request->direct)
        AWS_SET(CURLOPT_NOPROXY, "*");
    if (search->ca_file)
        AWS_SET(CURLOPT_CAINFO, search->ca_file);
    if (request->keys) {
        char sign[128];
        (void)snprintf(sign, sizeof sign, "aws:amz:%.60s:sts", search->region);
        AWS_SET(CURLOPT_AWS_SIGV4, sign);
        AWS_SET(CURLOPT_USERNAME, request->keys->key);
        AWS_SET(CURLOPT_PASSWORD, request->keys->secret);
    }
    return good;
}

/* Send a request. Returns its status; 0, with `why`, if there is no answer. */
static long aws_send(aws_search *search, const aws_request *request, aws_text *out) {
    struct curl_slist *headers =
        request->header ? curl_slist_append(NULL, request->header) : NULL;
    CURL *easy = curl_easy_init();
    long status = 0;
    out->size = 0;
    bool set = aws_set(easy, search, request, headers, out);
    CURLcode code = set ? curl_easy_perform(easy) : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK)
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    else
        (void)aws_fail(search, "%s: %s", request->source,
            code == CURLE_WRITE_ERROR          ? "the answer is too large"
            : code == CURLE_OPERATION_TIMEDOUT ? "the service does not answer in time"
                                               : curl_easy_strerror(code));
    search->temporary = code != CURLE_OK && code != CURLE_WRITE_ERROR &&
                        code != CURLE_URL_MALFORMAT &&
                        code != CURLE_UNSUPPORTED_PROTOCOL;
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    out->bytes[out->size] = '\0';
    if (memchr(out->bytes, '\0', out->size)) /* no valid answer contains a NUL */
        out->bytes[out->size = 0] = '\0';
    return status;
}

/* Send a request that must be answered with 200. `remedy` is for other answers. */
static bool aws_fetch(
    aws_search *search, const aws_request *request, aws_text *out, const char *remedy) {
    long status = aws_send(search, request, out);
    if (status == 200 || !status)
        return status == 200;
    search->temporary = status == 429 || status >= 500;
    char *code = bagi_http_code(out->bytes, out->size);
    if (code)
        code[strspn(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = 0;
    (void)aws_fail(search, "%s: HTTP %ld%s%.40s%s%s", request->source, status,
        code && *code ? " " : "", code ? code : "",
        status / 100 == 3 ? ": redirects are refused; " : "; ",
        status / 100 == 3 ? "name the service itself" : remedy);
    free(code);
    return false;
}

/* ---- the profile ---- */

/* A value of the profile in ~/.aws/config, otherwise in ~/.aws/credentials. To be
 * freed. NULL: none. */
static char *aws_profile(const aws_search *search, const char *name) {
    return bagi_aws_value(aws_get(search, AWS_HOME), aws_get(search, AWS_CONFIG_FILE),
        aws_get(search, AWS_SHARED_CREDENTIALS_FILE), aws_get(search, AWS_PROFILE),
        name);
}

/* ---- STS ---- */

/* One parameter of a request: its name, and a value, or NULL for none. */
typedef struct aws_parameter {
    const char *name, *value;
} aws_parameter;

/* Encode a request's parameters. To be freed. NULL: out of memory. */
static char *aws_join(const char *action, const aws_parameter *all, size_t count) {
    char *out = bagi_http_format("Action=%s&Version=2011-06-15", action);
    for (size_t i = 0; out && i < count; i++) {
        if (!all[i].value)
            continue;
        char *value = format_url(all[i].value, "", NULL), *before = out;
        out = value ? bagi_http_format("%s&%s=%s", out, all[i].name, value) : NULL;
        free(value);
        free(before);
    }
    return out;
}

/* Send a request to STS, signed with `keys` unless NULL, and take the credentials from
 * the answer. */
static aws_found aws_ask_sts(aws_search *search, const char *source, const char *action,
    const aws_parameter *all, size_t count, const aws_keys *keys, const char *remedy) {
    const char *endpoint = aws_get(search, AWS_ENDPOINT_URL_STS);
    endpoint = *endpoint ? endpoint : aws_get(search, AWS_ENDPOINT_URL);
    bool has_token = keys && keys->token;
    aws_text *text = (aws_text *)malloc(sizeof *text);
    char *body = aws_join(action, all, count);
    char *url = *endpoint
                    ? bagi_http_format("%.*s/", (int)http_path_size(endpoint), endpoint)
                    : bagi_http_format("https://sts.%s.amazonaws.com/", search->region);
    char *token =
        has_token ? bagi_http_format("x-amz-security-token: %s", keys->token) : NULL;
    aws_request request = {source, "POST", url, body, token, 0, false, keys};
    aws_found found = AWS_FAILED;
    if (!text || !url || !body || (has_token && !token)) {
        (void)aws_no_memory(search);
    } else if (aws_fetch(search, &request, text, remedy)) {
        search->keys.key = bagi_http_xml(text->bytes, text->size, "<AccessKeyId>");
        search->keys.secret =
            bagi_http_xml(text->bytes, text->size, "<SecretAccessKey>");
        search->keys.token = bagi_http_xml(text->bytes, text->size, "<SessionToken>");
        char *end = bagi_http_xml(text->bytes, text->size, "<Expiration>");
        found = aws_check_keys(search, source, end, 0);
        free(end);
    }
    free(text);
    free(url);
    free(body);
    free(token);
    return found;
}

/* ---- web identity ---- */

static aws_found aws_web_identity_of(aws_search *search, const char *source,
    const char *file, const char *role, const char *session) {
    aws_text *text = (aws_text *)malloc(sizeof *text);
    if (!text)
        return aws_no_memory(search);
    int error = aws_read(file, text);
    const aws_parameter all[] = {{"RoleArn", role},
        {"RoleSessionName", *session ? session : AWS_SESSION},
        {"WebIdentityToken", text->bytes}};
    aws_found found =
        error || !aws_is_plain(text->bytes)
            ? aws_fail(search, "%s: cannot read the token in %.80s: %s", source, file,
                  error ? strerror(error) : "not a token")
            : aws_ask_sts(search, source, "AssumeRoleWithWebIdentity", all, 3, NULL,
                  "the role must trust the token; has it ended?");
    free(text);
    return found;
}

static aws_found aws_web_identity(aws_search *search) {
    const char *file = aws_get(search, AWS_WEB_IDENTITY_TOKEN_FILE);
    const char *role = aws_get(search, AWS_ROLE_ARN);
    if (*file && !*role)
        return aws_fail(search,
            "web identity: AWS_WEB_IDENTITY_TOKEN_FILE is set; set AWS_ROLE_ARN, too");
    if (*file)
        return aws_web_identity_of(search, "web identity (AWS_WEB_IDENTITY_TOKEN_FILE)",
            file, role, aws_get(search, AWS_ROLE_SESSION_NAME));
    char *own_file = aws_profile(search, "web_identity_token_file");
    char *own_role = aws_profile(search, "role_arn");
    char *session = aws_profile(search, "role_session_name");
    aws_found found = AWS_SKIPPED;
    if (own_file && !own_role)
        found = aws_fail(search,
            "web identity: the profile has web_identity_token_file, but no role_arn");
    else if (own_file)
        found = aws_web_identity_of(search, "web identity (web_identity_token_file)",
            own_file, own_role, session ? session : "");
    free(own_file);
    free(own_role);
    free(session);
    return found;
}

/* ---- SSO ---- */

/* The file in which `aws sso login` keeps the token of a session or of a start URL. To
 * be freed. */
static char *aws_sso_file(const aws_search *search, const char *name) {
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    char digits[2 * EVP_MAX_MD_SIZE + 1] = "";
    if (!EVP_Digest(name, strlen(name), hash, &size, EVP_sha1(), NULL))
        return NULL;
    for (unsigned i = 0; i < size; i++)
        (void)snprintf(digits + 2 * i, 3, "%02x", hash[i]);
    return bagi_http_format(
        "%s/.aws/sso/cache/%s.json", aws_get(search, AWS_HOME), digits);
}

/* Members of the file, in this order. */
enum {
    AWS_SSO_TOKEN,
    AWS_SSO_ENDS,
    AWS_SSO_REFRESH,
    AWS_SSO_CLIENT,
    AWS_SSO_SECRET,
    AWS_SSO_REGISTERED,
    AWS_SSO_REGION,
    AWS_SSO_START,
    AWS_SSO_MEMBERS
};
static const char *const aws_sso_names[AWS_SSO_MEMBERS] = {"accessToken", "expiresAt",
    "refreshToken", "clientId", "clientSecret", "registrationExpiresAt", "region",
    "startUrl"};

/* True for text that a JSON string contains without escapes. */
static bool aws_is_quotable(const char *text) {
    return text && aws_is_plain(text) && !strpbrk(text, "\"\\");
}

/* Replace the file, so that other programs use the new token. A failure does not
 * matter: this program has the token. */
static void aws_sso_save(const char *path, char *const members[AWS_SSO_MEMBERS]) {
    char *partial = bagi_http_format("%s.%ld", path, (long)getpid());
    int file =
        partial ? open(partial, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600) : -1;
    bool good = file >= 0 && members[AWS_SSO_ENDS]; /* NULL: out of memory */
    for (int i = 0; i < AWS_SSO_MEMBERS; i++)
        if (good && members[i])
            good = aws_is_quotable(members[i]) &&
                   dprintf(file, "%s\"%s\": \"%s\"", i ? ", " : "{", aws_sso_names[i],
                       members[i]) > 0;
    good = good && dprintf(file, "}\n") > 0;
    if (file >= 0 && close(file) == 0 && good)
        good = rename(partial, path) == 0;
    if (file >= 0 && !good)
        (void)unlink(partial);
    free(partial);
}

/* Renew a token that has ended, and its members of the file. Returns false, with
 * `why`, on failure. */
static bool aws_sso_renew(aws_search *search, const char *region,
    char *members[AWS_SSO_MEMBERS], aws_text *text) {
    const char *endpoint = aws_get(search, AWS_ENDPOINT_URL_SSO_OIDC);
    endpoint = *endpoint ? endpoint : aws_get(search, AWS_ENDPOINT_URL);
    char *url =
        *endpoint
            ? bagi_http_format("%.*s/token", (int)http_path_size(endpoint), endpoint)
            : bagi_http_format("https://oidc.%s.amazonaws.com/token", region);
    char *body = bagi_http_format("{\"grantType\": \"refresh_token\", \"clientId\": "
                                  "\"%s\", \"clientSecret\": \"%s\", "
                                  "\"refreshToken\": \"%s\"}",
        members[AWS_SSO_CLIENT], members[AWS_SSO_SECRET], members[AWS_SSO_REFRESH]);
    aws_request request = {
        "SSO", "POST", url, body, "Content-Type: application/json", 0, false, NULL};
    bool good = url && body;
    if (!good)
        (void)aws_no_memory(search);
    good = good && aws_fetch(search, &request, text, "run `aws sso login`");
    free(url);
    free(body);
    if (!good)
        return false;
    char *token = aws_json(text->bytes, NULL, "accessToken");
    char *lasts = aws_json(text->bytes, NULL, "expiresIn");
    char *refresh = aws_json(text->bytes, NULL, "refreshToken");
    const char *at = lasts ? lasts : "";
    uint64_t seconds = 0;
    if (!aws_is_quotable(token) || !format_decimal(&at, NULL, &seconds) || *at ||
        seconds > 1000000000) {
        free(token);
        free(lasts);
        free(refresh);
        (void)aws_fail(search, "SSO: the answer has no valid token");
        return false;
    }
    char when[32];
    time_t end = time(NULL) + (time_t)seconds;
    struct tm utc;
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&end, &utc));
    free(lasts);
    free(members[AWS_SSO_TOKEN]);
    free(members[AWS_SSO_ENDS]);
    members[AWS_SSO_TOKEN] = token;
    members[AWS_SSO_ENDS] = http_copy(when);
    if (refresh) {
        free(members[AWS_SSO_REFRESH]);
        members[AWS_SSO_REFRESH] = refresh;
    }
    return true;
}

/* True if the time in this member of the file has passed. */
static bool aws_sso_has_ended(const char *member) {
    time_t now = time(NULL);
    return member && aws_time(member) <= (double)now;
}

/* Read the cached token, and renew it if it has ended. To be freed; NULL: `why` is
 * set. */
static char *aws_sso_token(
    aws_search *search, const char *name, const char *region, aws_text *text) {
    char *path = aws_sso_file(search, name), *members[AWS_SSO_MEMBERS];
    int error = path ? aws_read(path, text) : ENOMEM;
    for (int i = 0; i < AWS_SSO_MEMBERS; i++)
        members[i] = error ? NULL : aws_json(text->bytes, NULL, aws_sso_names[i]);
    bool ended = aws_sso_has_ended(members[AWS_SSO_ENDS]);
    bool valid =
        !ended && members[AWS_SSO_TOKEN] && aws_is_plain(members[AWS_SSO_TOKEN]);
    if (ended && aws_is_quotable(members[AWS_SSO_REFRESH]) &&
        aws_is_quotable(members[AWS_SSO_CLIENT]) &&
        aws_is_quotable(members[AWS_SSO_SECRET]) &&
        !aws_sso_has_ended(members[AWS_SSO_REGISTERED])) {
        valid = aws_sso_renew(search, region, members, text);
        if (valid)
            aws_sso_save(path, members);
    } else if (!valid) {
        (void)aws_fail(search, "SSO: %s in ~/.aws/sso/cache; run `aws sso login`",
            error == ENOENT ? "no token"
            : ended         ? "the token has ended"
                            : "no valid token");
    }
    for (int i = valid ? AWS_SSO_TOKEN + 1 : 0; i < AWS_SSO_MEMBERS; i++)
        free(members[i]);
    free(path);
    return valid ? members[AWS_SSO_TOKEN] : NULL;
}

static aws_found aws_sso_fetch(aws_search *search, const char *name, const char *region,
    const char *account, const char *role) {
    aws_text *text = (aws_text *)malloc(sizeof *text);
    if (!text)
        return aws_no_memory(search);
    const char *endpoint = aws_get(search, AWS_ENDPOINT_URL_SSO);
    endpoint = *endpoint ? endpoint : aws_get(search, AWS_ENDPOINT_URL);
    char *token = aws_sso_token(search, name, region, text);
    char *base = *endpoint
                     ? bagi_http_format("%.*s", (int)http_path_size(endpoint), endpoint)
                     : bagi_http_format("https://portal.sso.%s.amazonaws.com", region);
    char *plain_role = format_url(role, "", NULL);
    char *plain_account = format_url(account, "", NULL);
    char *url =
        base && plain_role && plain_account
            ? bagi_http_format("%s/federation/credentials?role_name=%s&account_id=%s",
                  base, plain_role, plain_account)
            : NULL;
    char *header = token ? bagi_http_format("x-amz-sso_bearer_token: %s", token) : NULL;
    aws_request request = {"SSO", "GET", url, NULL, header, 0, false, NULL};
    aws_found found = AWS_FAILED;
    if (token && (!url || !header))
        (void)aws_no_memory(search);
    else if (token && aws_fetch(search, &request, text,
                          "run `aws sso login`, and compare sso_account_id and "
                          "sso_role_name")) {
        static const char inside[] = "roleCredentials";
        search->keys.key = aws_json(text->bytes, inside, "accessKeyId");
        search->keys.secret = aws_json(text->bytes, inside, "secretAccessKey");
        search->keys.token = aws_json(text->bytes, inside, "sessionToken");
        char *end = aws_json(text->bytes, inside, "expiration"); /* milliseconds */
        const char *at = end ? end : "";
        uint64_t ends = 0;
        bool good = !end || (format_decimal(&at, NULL, &ends) && !*at);
        free(end);
        found =
            good ? aws_check_keys(search, "SSO", NULL, (double)ends / 1000)
                 : aws_fail(search, "SSO: the answer has an invalid time of its end");
    }
    char *texts[] = {token, base, plain_role, plain_account, url, header};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free(text);
    return found;
}

static aws_found aws_sso(aws_search *search) {
    char *session = aws_profile(search, "sso_session");
    char *section = session ? bagi_http_format("sso-session %s", session) : NULL;
    char *start = section
                      ? bagi_aws_config_value(aws_get(search, AWS_HOME),
                            aws_get(search, AWS_CONFIG_FILE), section, "sso_start_url")
                      : aws_profile(search, "sso_start_url");
    char *region = section
                       ? bagi_aws_config_value(aws_get(search, AWS_HOME),
                             aws_get(search, AWS_CONFIG_FILE), section, "sso_region")
                       : aws_profile(search, "sso_region");
    char *account = aws_profile(search, "sso_account_id");
    char *role = aws_profile(search, "sso_role_name");
    aws_found found = AWS_SKIPPED;
    if ((session || start) && !(start && region && account && role))
        found = aws_fail(search,
            "SSO: the profile needs sso_account_id and sso_role_name, and the profile "
            "or its sso_session sso_start_url and sso_region");
    else if (start)
        found = aws_sso_fetch(search, session ? session : start, region, account, role);
    char *texts[] = {session, section, start, region, account, role};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    return found;
}

/* ---- credential_process ---- */

/* Split a command into words, in place: at white space, except within single or double
 * quotes. A backslash quotes the next character, except within single quotes. Nothing
 * is expanded. Returns the number of words; 0 if there are none or too many, or a quote
 * does not end. */
static size_t aws_split(char *text, char *words[AWS_WORDS + 1]) {
    size_t count = 0;
    char *to = text;
    for (const char *at = text;;) {
        char quote = 0;
        at += strspn(at, " \t");
        if (!*at || count == AWS_WORDS) {
            words[count] = NULL;
            return *at ? 0 : count;
        }
        words[count++] = to;
        for (; *at && (quote || (*at != ' ' && *at != '\t')); at++) {
            if (quote ? *at == quote : *at == '"' || *at == '\'')
                quote = quote ? '\0' : *at;
            else if (*at == '\\' && quote != '\'' && at[1])
                *to++ = *++at;
            else
                *to++ = *at;
        }
        if (quote)
            return 0;
        bool more = *at != '\0';
        at += more;
        *to++ = '\0'; /* at most at[-1], or the end of the text */
        if (!more) {
            words[count] = NULL;
            return count;
        }
    }
}

/* Start a program: without input, with its output in a pipe, in a process group of its
 * own. Its messages are dropped, because they may contain secrets. Returns an errno. */
static int aws_spawn(char *words[], pid_t *process, int *output) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    int ends[2];
    if (pipe(ends))
        return errno;
    for (int i = 0; i < 2; i++)
        (void)fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    if (!code)
        code = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes,
        POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!code)
        code = posix_spawnp(process, words[0], &actions, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    if (code)
        close(ends[0]);
    *output = ends[0];
    return code;
}

static double aws_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Read a program's output until it ends. Returns NULL or the reason of a failure. */
static const char *aws_read_output(
    const aws_search *search, int output, aws_text *out) {
    double due = aws_now() + AWS_PROCESS;
    out->size = 0;
    for (;;) {
        struct pollfd one = {output, POLLIN, 0};
        if (search->stopped(search->user))
            return "interrupted";
        if (aws_now() > due)
            return "it did not end within 60 s";
        if (poll(&one, 1, 100) <= 0)
            continue;
        ssize_t size = read(output, out->bytes + out->size, AWS_LARGEST - out->size);
        if (size < 0 && errno != EINTR && errno != EAGAIN)
            return strerror(errno);
        out->size += size > 0 ? (size_t)size : 0;
        out->bytes[out->size] = '\0';
        if (out->size == AWS_LARGEST)
            return "its output is too large";
        if (size == 0)
            return NULL;
    }
}

/* Run a program. */
static bool aws_run(aws_search *search, char *words[], aws_text *out) {
    static const char source[] = "credential_process in ~/.aws/config";
    pid_t process = 0;
    int output = -1, status = 0;
    int error = aws_spawn(words, &process, &output);
    if (error) {
        (void)aws_fail(
            search, "%s: cannot run %.80s: %s", source, words[0], strerror(error));
        return false;
    }
    const char *why = aws_read_output(search, output, out);
    close(output);
    /* A program that has closed its output has nothing left to do. */
    double due = aws_now() + (why ? 0 : 1);
    pid_t ended = 0;
    while ((ended = waitpid(process, &status, WNOHANG)) == 0 && aws_now() < due)
        (void)poll(NULL, 0, 5);
    if (ended == 0) {
        (void)kill(-process, SIGKILL);
        while (waitpid(process, &status, 0) < 0 && errno == EINTR)
            ;
        status = 0;
    }
    if (why)
        (void)aws_fail(search, "%s: %.80s: %s", source, words[0], why);
    else if (ended > 0 && status)
        (void)aws_fail(search, "%s: %.80s failed (%s %d); run it to see why", source,
            words[0], WIFEXITED(status) ? "exit code" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return !why && !(ended > 0 && status);
}

static aws_found aws_process(aws_search *search) {
    static const char source[] = "credential_process in ~/.aws/config";
    char *command = aws_profile(search, "credential_process");
    char *words[AWS_WORDS + 1];
    if (!command)
        return AWS_SKIPPED;
    aws_text *text = (aws_text *)malloc(sizeof *text);
    aws_found found = AWS_FAILED;
    if (!text)
        (void)aws_no_memory(search);
    else if (!aws_split(command, words))
        (void)aws_fail(search, "%s: not a command (an open quote, or over %d words)",
            source, AWS_WORDS);
    else if (aws_run(search, words, text)) {
        char *version = aws_json(text->bytes, NULL, "Version");
        found =
            version && strcmp(version, "1") == 0
                ? aws_parse(search, source, text->bytes, "SessionToken")
                : aws_fail(search, "%s: the output is not JSON with Version 1", source);
        free(version);
    }
    free(command);
    free(text);
    return found;
}

/* ---- container ---- */

/* True for a URL to which a token may be sent: by TLS, or to this machine. */
static bool aws_is_near(const char *url) {
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]",
        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (strncmp(url, "https://", 8) == 0)
        return true;
    if (strncmp(url, "http://", 7) != 0)
        return false;
    url += 7;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        size_t size = strlen(hosts[i]);
        const char *rest = url + size;
        if (strncmp(url, hosts[i], size) != 0)
            continue;
        if (*rest == ':')
            rest += 1 + strspn(rest + 1, "0123456789");
        return !*rest || strchr("/?", *rest);
    }
    return false;
}

static aws_found aws_container_fetch(
    aws_search *search, const char *source, const char *url, aws_text *text) {
    const char *file = aws_get(search, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE);
    const char *token = aws_get(search, AWS_CONTAINER_AUTHORIZATION_TOKEN);
    int error = *file ? aws_read(file, text) : 0;
    token = *file ? text->bytes : token;
    if (error || ((*file || *token) && token[strcspn(token, "\r\n")]))
        return aws_fail(search, "%s: cannot read the token in %s: %s", source,
            *file ? "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
                  : "AWS_CONTAINER_AUTHORIZATION_TOKEN",
            error ? strerror(error) : "more than one line");
    char *header = *token ? bagi_http_format("Authorization: %s", token) : NULL;
    if (*token && !header)
        return aws_no_memory(search);
    aws_request request = {source, "GET", url, NULL, header, 0, true, NULL};
    aws_found found = AWS_FAILED;
    if (aws_fetch(search, &request, text, "does the container have a role?"))
        found = aws_parse(search, source, text->bytes, "Token");
    free(header);
    return found;
}

static aws_found aws_container(aws_search *search) {
    const char *relative = aws_get(search, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI);
    const char *url = aws_get(search, AWS_CONTAINER_CREDENTIALS_FULL_URI);
    const char *source = *relative
                             ? "container role (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI)"
                             : "container role (AWS_CONTAINER_CREDENTIALS_FULL_URI)";
    if (!*relative && !*url)
        return AWS_SKIPPED;
    if (*relative && *relative != '/')
        return aws_fail(search, "%s: it must begin with a slash", source);
    if (!*relative && !aws_is_near(url))
        return aws_fail(search,
            "%s: neither https:// nor the address of this machine or of the service",
            source);
    char *own = *relative ? bagi_http_format("http://169.254.170.2%s", relative) : NULL;
    aws_text *text = (aws_text *)malloc(sizeof *text);
    aws_found found = text && (own || !*relative)
                          ? aws_container_fetch(search, source, own ? own : url, text)
                          : aws_no_memory(search);
    free(own);
    free(text);
    return found;
}

/* ---- instance ---- */

/* Get a session token of the service. Without a service, or if none is expected and the
 * answer is another's, the source is skipped. */
static aws_found aws_instance_token(aws_search *search, const char *base, bool expected,
    aws_text *text, char **header) {
    static const char source[] = "instance role (EC2)";
    char *url = bagi_http_format("%s/latest/api/token", base);
    aws_request request = {source, "PUT", url, NULL,
        "X-aws-ec2-metadata-token-ttl-seconds: 21600", expected ? 0.0 : 1.0, true,
        NULL};
    bool good = false;
    if (!url)
        return aws_no_memory(search);
    if (expected) {
        good = aws_fetch(search, &request, text,
            "is AWS_EC2_METADATA_SERVICE_ENDPOINT the service (IMDSv2)?");
    } else {
        good = aws_send(search, &request, text) == 200;
        search->temporary = false;
    }
    free(url);
    if (!good)
        return expected ? AWS_FAILED : AWS_SKIPPED;
    if (!aws_is_plain(text->bytes))
        return expected ? aws_fail(search, "%s: the answer is not a token", source)
                        : AWS_SKIPPED;
    *header = bagi_http_format("X-aws-ec2-metadata-token: %s", text->bytes);
    return *header ? AWS_FOUND : aws_no_memory(search);
}

/* Get the credentials of the instance's role. Without a role, the source is skipped. */
static aws_found aws_instance_role(
    aws_search *search, const char *base, const char *header, aws_text *text) {
    static const char source[] = "instance role (EC2)";
    static const char path[] = "/latest/meta-data/iam/security-credentials/";
    static const char remedy[] = "see the instance's role";
    char *url = bagi_http_format("%s%s", base, path);
    aws_request request = {source, "GET", url, NULL, header, 0, true, NULL};
    if (!url)
        return aws_no_memory(search);
    long status = aws_send(search, &request, text);
    if (status == 404) {
        free(url);
        return AWS_SKIPPED;
    }
    bool good = status == 200 || (status && aws_fetch(search, &request, text, remedy));
    free(url);
    if (!good)
        return AWS_FAILED;
    text->bytes[strcspn(text->bytes, "\r\n")] = '\0';
    char *role =
        aws_is_plain(text->bytes) ? format_url(text->bytes, "+=,@", NULL) : NULL;
    if (!role)
        return aws_fail(search, "%s: the answer is not the name of a role", source);
    request.url = url = bagi_http_format("%s%s%s", base, path, role);
    free(role);
    if (!url)
        return aws_no_memory(search);
    good = aws_fetch(search, &request, text, remedy);
    free(url);
    if (!good)
        return AWS_FAILED;
    char *code = aws_json(text->bytes, NULL, "Code");
    bool success = !code || strcmp(code, "Success") == 0;
    free(code);
    return success ? aws_parse(search, source, text->bytes, "Token")
                   : aws_fail(search,
                         "%s: the service cannot assume the role; see "
                         "the instance's role and whom it trusts",
                         source);
}

static aws_found aws_instance(aws_search *search) {
    const char *endpoint = aws_get(search, AWS_EC2_METADATA_SERVICE_ENDPOINT);
    const char *mode = aws_get(search, AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE);
    if (strcasecmp(aws_get(search, AWS_EC2_METADATA_DISABLED), "true") == 0)
        return AWS_SKIPPED;
    bool expected = *endpoint != '\0';
    if (!expected)
        endpoint = strcasecmp(mode, "IPv6") == 0 ? "http://[fd00:ec2::254]"
                                                 : "http://169.254.169.254";
    char *base = bagi_http_format("%.*s", (int)http_path_size(endpoint), endpoint);
    aws_text *text = (aws_text *)malloc(sizeof *text);
    char *header = NULL;
    aws_found found = text && base
                          ? aws_instance_token(search, base, expected, text, &header)
                          : aws_no_memory(search);
    if (found == AWS_FOUND)
        found = aws_instance_role(search, base, header, text);
    free(base);
    free(text);
    free(header);
    return found;
}

/* ---- roles of a profile ---- */

static aws_found aws_role(aws_search *search);

/* Search for the keys with which a role is assumed: in another profile, or in a
 * service. The result is in `from`. */
static aws_found aws_role_source(aws_search *from, const char *service) {
    static aws_found (*const sources[])(aws_search * search) = {
        aws_role, aws_web_identity, aws_sso, aws_process};
    if (service && strcmp(service, "Ec2InstanceMetadata") == 0)
        return aws_instance(from);
    if (service && strcmp(service, "EcsContainer") == 0)
        return aws_container(from);
    if (service)
        return aws_fail(from,
            "credential_source must be Ec2InstanceMetadata or EcsContainer (keys in "
            "the environment are used as they are)");
    aws_keys *keys = &from->keys;
    keys->key = aws_profile(from, "aws_access_key_id");
    keys->secret = aws_profile(from, "aws_secret_access_key");
    keys->token = aws_profile(from, "aws_session_token");
    if (keys->key && keys->secret)
        return AWS_FOUND;
    bagi_aws_keys_free(keys);
    if (from->depth == AWS_PROFILES)
        return aws_fail(
            from, "source_profile: more than %d profiles, or a circle", AWS_PROFILES);
    aws_found found = AWS_SKIPPED;
    for (size_t i = 0; found == AWS_SKIPPED && i < sizeof sources / sizeof *sources;
         i++)
        found = sources[i](from);
    return found;
}

/* Assume the role of the profile with the keys of another profile or of a service. */
static aws_found aws_role_of(
    aws_search *search, const char *role, char *other, const char *service) {
    static const char source[] = "role_arn in ~/.aws/config";
    char *variables[AWS_VARIABLES];
    aws_search from = *search;
    memcpy(variables, search->variables, sizeof variables);
    variables[AWS_WEB_IDENTITY_TOKEN_FILE] = NULL; /* of the environment */
    if (other)
        variables[AWS_PROFILE] = other;
    from.variables = variables;
    from.depth++;
    aws_found found = aws_role_source(&from, service);
    if (found == AWS_FAILED) {
        search->temporary = from.temporary;
        memcpy(search->why, from.why, sizeof search->why);
    } else if (found == AWS_SKIPPED) {
        found =
            aws_fail(search, "%s: no keys in %.80s", source, service ? service : other);
    } else {
        char *external = aws_profile(search, "external_id");
        char *session = aws_profile(search, "role_session_name");
        char *seconds = aws_profile(search, "duration_seconds");
        const aws_parameter all[] = {{"DurationSeconds", seconds},
            {"ExternalId", external}, {"RoleArn", role},
            {"RoleSessionName", session ? session : AWS_SESSION}};
        found = aws_ask_sts(search, source, "AssumeRole", all, 4, &from.keys,
            "the role must trust the keys of its source_profile or credential_source");
        free(external);
        free(session);
        free(seconds);
    }
    bagi_aws_keys_free(&from.keys);
    return found;
}

/* The source of a profile that names a role and whose keys assume it. A profile that
 * does not exist is an error, since another role would be used. */
static aws_found aws_role(aws_search *search) {
    const char *profile = aws_get(search, AWS_PROFILE);
    char *exists = aws_profile(search, NULL);
    char *role = aws_profile(search, "role_arn");
    char *other = aws_profile(search, "source_profile");
    char *service = aws_profile(search, "credential_source");
    char *serial = aws_profile(search, "mfa_serial");
    aws_found found = AWS_SKIPPED;
    if (*profile && !exists)
        found = aws_fail(search,
            "%s: no profile \"%.80s\" in ~/.aws/config or ~/.aws/credentials",
            search->depth ? "source_profile" : "AWS_PROFILE", profile);
    else if ((other || service) && (!role || serial || (other && service)))
        found = aws_fail(search,
            "profile \"%.80s\": it needs role_arn, and either source_profile or "
            "credential_source; for mfa_serial use credential_process = aws configure "
            "export-credentials --profile ...",
            *profile ? profile : "default");
    else if (other || service)
        found = aws_role_of(search, role, other, service);
    char *texts[] = {exists, role, other, service, serial};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    return found;
}

/* ---- the search ---- */

bool bagi_aws_search(aws_search *search) {
    static aws_found (*const sources[])(aws_search * search) = {
        aws_role, aws_web_identity, aws_sso, aws_process, aws_container, aws_instance};
    aws_found found = AWS_SKIPPED;
    for (size_t i = 0; found == AWS_SKIPPED && i < sizeof sources / sizeof *sources;
         i++)
        found = sources[i](search);
    if (found == AWS_FAILED || (found == AWS_SKIPPED && search->keys.key))
        bagi_aws_keys_free(&search->keys);
    return found != AWS_FAILED;
}
