/*
 * aws.c - S3 settings from options, the environment, and the files in ~/.aws.
 */
#include "url.h"

/* The value of NAME in [section] of an .ini file, or NULL. Without a name, the
 * section's own name if it exists. */
static char *s3_ini(const char *path, const char *section, const char *name) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[16384], *found = NULL; /* session tokens are long */
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
            if (inside && !name)
                found = http_copy(section);
        }
        if (!name)
            continue;
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

/* The path of a file in ~/.aws, unless `path` replaces it. To be freed. */
static char *s3_aws_file(const char *home, const char *path, const char *name) {
    if (path && *path)
        return http_copy(path);
    return home && *home ? bagi_http_format("%s/.aws/%s", home, name) : NULL;
}

char *bagi_aws_config_value(
    const char *home, const char *config, const char *section, const char *name) {
    char *path = s3_aws_file(home, config, "config");
    char *found = s3_ini(path, section, name);
    free(path);
    return found;
}

char *bagi_aws_value(const char *home, const char *config, const char *keys,
    const char *profile, const char *name) {
    bool is_default = !*profile || strcmp(profile, "default") == 0;
    const char *plain = is_default ? "default" : profile;
    char *section =
        is_default ? http_copy(plain) : bagi_http_format("profile %s", profile);
    char *found = section ? bagi_aws_config_value(home, config, section, name) : NULL;
    char *path = found ? NULL : s3_aws_file(home, keys, "credentials");
    if (!found)
        found = s3_ini(path, plain, name);
    free(section);
    free(path);
    return found;
}

/* The first non-empty one of an option and two environment variables. */
static char *s3_setting(const char *option, const char *variable, const char *other) {
    char *found = http_copy(option);
    found = found ? found : http_copy(getenv(variable));
    return found || !other ? found : http_copy(getenv(other));
}

/* True if the profile's own keys, if any, only assume its role. */
static bool s3_assumes_role(const char *home, const char *profile) {
    static const char *const names[] = {"source_profile", "credential_source"};
    for (size_t i = 0; i < 2; i++) {
        char *value = bagi_aws_value(home, getenv("AWS_CONFIG_FILE"),
            getenv("AWS_SHARED_CREDENTIALS_FILE"), profile, names[i]);
        if (!value)
            continue;
        free(value);
        return true;
    }
    return false;
}

/* Keys, region and endpoint of S3: options, then the environment, then the files in
 * ~/.aws. A key from one source is never combined with a secret from another. */
void bagi_s3_settings(s3_settings *out, const bags_http_options *options) {
    const char *profile = getenv("AWS_PROFILE"), *home = getenv("HOME");
    char *keys =
        s3_aws_file(home, getenv("AWS_SHARED_CREDENTIALS_FILE"), "credentials");
    char *config = s3_aws_file(home, getenv("AWS_CONFIG_FILE"), "config");
    profile = profile && *profile ? profile : "default";
    char *section = strcmp(profile, "default") == 0
                        ? http_copy(profile)
                        : bagi_http_format("profile %s", profile);
    const char *in_config = section ? section : "default";
    if (options->key) {
        out->key = http_copy(options->key);
        out->secret = http_copy(options->secret);
        out->token = http_copy(options->token);
    } else if ((out->key = http_copy(getenv("AWS_ACCESS_KEY_ID")))) {
        out->secret = http_copy(getenv("AWS_SECRET_ACCESS_KEY"));
        out->token = http_copy(getenv("AWS_SESSION_TOKEN"));
    } else if (!s3_assumes_role(home, profile)) {
        out->key = s3_ini(keys, profile, "aws_access_key_id");
        out->secret = s3_ini(keys, profile, "aws_secret_access_key");
        out->token = s3_ini(keys, profile, "aws_session_token");
        if (!out->key) {
            out->key = s3_ini(config, in_config, "aws_access_key_id");
            out->secret = s3_ini(config, in_config, "aws_secret_access_key");
            out->token = s3_ini(config, in_config, "aws_session_token");
        }
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
