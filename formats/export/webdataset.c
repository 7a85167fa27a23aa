/*
 * webdataset.c - writes tar files of samples, as webdataset reads them. No library;
 * formats/numpy.c for arrays.
 *
 * A datapoint is a sample. Its key is the value of a field (text or a number) or its number
 * in the export, "000012". A field is the member KEY.NAME, or KEY.NAME.ENDING unless the
 * name is, or ends in, an ending of its type:
 *
 *     jpeg, png, mp4, ...  the blob; jpg, png, mp4
 *     bytes                the blob; no ending is added
 *     utf8                 the text; txt, or another of its endings such as json
 *     int, i64, u64        decimal digits; cls
 *     arrays               a .npy file; npy
 *     sequences            of at most one item: the member exists, or not. Otherwise a JSON
 *                          list of numbers or text; json
 *
 * The field __key__ of the importer is the key, and no member. Tar is POSIX's
 * (ustar), with pax headers for names of more than 100 bytes or other than ASCII, and for
 * members of 8 GiB or more. Times, owners and modes are constant.
 *
 * Rejected: names in upper case (webdataset changes them) or with a slash; keys that are
 * not unique, or that it splits elsewhere; sequences of other blobs with several items; a
 * datapoint without any member.
 */
#include "export.h"

#include "codecs.h"
#include "text.h"
#include "try.h"

#include <stdio.h>
#include <string.h>

enum { WX_MEMBER, WX_OPTIONAL, WX_LIST, WX_KEY };

typedef struct wx_state {
    bags_target_field *key; /* NULL: the number */
    bags_export_bytes keys; /* each with its NUL */
    size_t key_count;
    bags_export_bytes name, value, pax;
} wx_state;

/* ---- names ---- */

/* True if an ending means this form to webdataset. */
static bool wx_is_ending(
    const bags_target_field *field, bool list, const char *ending) {
    static const char *const texts =
        " txt text transcript json jsonl jsn html xml csv tsv md srt vtt ";
    static const char *const numbers = " cls cls2 class count index inx id ";
    char word[40];
    if (strlen(ending) > 30)
        return false;
    (void)snprintf(word, sizeof word, " %s ", ending);
    if (list)
        return !strcmp(ending, "json");
    if (field->form == BAGS_FORM_TEXT)
        return strstr(texts, word) != NULL;
    if (field->form == BAGS_FORM_INTEGER)
        return strstr(numbers, word) != NULL;
    if (!strcmp(field->ending, "jpg"))
        return !strcmp(ending, "jpg") || !strcmp(ending, "jpeg");
    return !*field->ending || !strcmp(ending, field->ending);
}

/* The name of a member, after the key and its dot. */
static bags_code wx_name_field(bags_target *t, bags_target_field *field) {
    const char *dot = strrchr(field->name, '.'), *last = dot ? dot + 1 : field->name;
    bool list = field->kind == WX_LIST;
    for (const char *c = field->name; *c; c++)
        if ((*c >= 'A' && *c <= 'Z') || *c == '/')
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "webdataset reads endings in lower case, without a slash: rename it, "
                "as in "
                "--fields %s=name",
                field->name);
    const char *ending = list                               ? "json"
                         : field->form == BAGS_FORM_INTEGER ? "cls"
                                                            : field->ending;
    size_t size = strlen(field->name);
    if (size >= 4 && !memcmp(field->name, "__", 2) &&
        !strcmp(field->name + size - 2, "__"))
        return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
            "webdataset has members like __this__ of its own (__key__, __url__): "
            "rename it with --fields");
    field->text = wx_is_ending(field, list, last)
                      ? field->name
                      : bags_target_format(t, "%s.%s", field->name, ending);
    return field->text ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code wx_prepare_field(bags_target *t, bags_target_field *field) {
    uint64_t most = 1;
    field->kind = WX_MEMBER;
    if (field->sequence) {
        FORMAT_TRY(bags_target_most(t, field, &most));
        bool list = field->form == BAGS_FORM_TEXT || field->form == BAGS_FORM_INTEGER;
        if (most > 1 && !list)
            return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
                "a member of webdataset has one value (%s[] with %" PRIu64 " items)",
                field->type, most);
        field->kind = most > 1 ? WX_LIST : WX_OPTIONAL;
    }
    FORMAT_TRY(wx_name_field(t, field));
    for (bags_target_field *other = t->fields; other < field; other++)
        if (other->kind != WX_KEY && !strcmp(other->text, field->text))
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "another field has the member \"%.100s\", too", field->text);
    return BAGS_OK;
}

/* ---- keys ---- */

/* The reason why webdataset would not find this key, or NULL. */
static const char *wx_key_fault(const char *key, size_t size) {
    const char *slash = strrchr(key, '/'), *base = slash ? slash + 1 : key;
    size_t first = strcspn(key, "/");
    if (strlen(key) != size)
        return "contains NUL";
    if (!*base || *key == '/')
        return "is not the name of a file";
    if (strchr(base, '.'))
        return "has a dot, with which the names of fields begin";
    if (first >= 4 && !memcmp(key, "__", 2) && !memcmp(key + first - 2, "__", 2))
        return "is like __this__: webdataset skips it";
    for (const char *part = key; part; part = strchr(part, '/'), part += part != NULL)
        if (*part == '/' || !strncmp(part, "../", 3) || !strncmp(part, "./", 2))
            return "is not a plain path";
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F || *c == '\\')
            return "has a character that names of files cannot have on every system";
    return bags_utf8_valid(key, size, NULL) ? NULL : "is not UTF-8";
}

/* Append the key of the datapoint, and its NUL. */
static bags_code wx_put_key(bags_target *t, bags_export_bytes *to) {
    const wx_state *w = (const wx_state *)t->state;
    FORMAT_TRY(w->key ? bags_target_put_item(t, to, w->key, 0)
                      : bags_target_put_number(t, to));
    return bags_target_put(t, to, "", 1);
}

static bags_code wx_check_key(bags_target *t, bags_target_field *field, void *user) {
    wx_state *w = (wx_state *)user;
    size_t start = w->keys.size;
    FORMAT_TRY(wx_put_key(t, &w->keys));
    const char *key = (const char *)w->keys.buffer.data + start;
    const char *fault = wx_key_fault(key, w->keys.size - start - 1);
    if (fault)
        return bags_target_fail_value(t, field, "the key \"%.200s\" %s", key, fault);
    w->key_count++;
    return BAGS_OK;
}

static bags_code wx_check_keys(bags_target *t) {
    wx_state *w = (wx_state *)t->state;
    if (w->key->sequence ||
        (w->key->form != BAGS_FORM_TEXT && w->key->form != BAGS_FORM_INTEGER))
        return bags_target_fail_field(t, w->key, BAGS_ERROR_TYPE,
            "a key is text or a whole number (this is %s%s)", w->key->type,
            w->key->sequence ? "[]" : "");
    FORMAT_TRY(bags_target_scan(t, &w->key, 1, wx_check_key, w));
    const char *twice[2];
    FORMAT_TRY(bags_target_find_twice(t, &w->keys, w->key_count, false, twice));
    return twice[0] ? bags_target_fail_field(t, w->key, BAGS_ERROR_VALUE,
                          "the key \"%.200s\" is not unique", twice[0])
                    : BAGS_OK;
}

/* ---- tar ---- */

static const unsigned char wx_zeros[1024] = {0};

/* A header of ustar. `type` '0' is a file, 'x' what pax has for the next one. */
static bags_code wx_put_header(
    bags_target *t, const char *name, size_t size, uint64_t bytes, char type) {
    char header[512];
    unsigned sum = 0;
    memset(header, 0, sizeof header);
    memcpy(header, name, size < 100 ? size : 100);
    (void)snprintf(header + 100, 24, "0000644%c0000000%c0000000", 0, 0);
    (void)snprintf(header + 124, 13, "%011" PRIo64, bytes & UINT64_C(077777777777));
    (void)snprintf(header + 136, 12, "00000000000");
    memset(header + 148, ' ', 8);
    header[156] = type;
    memcpy(header + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof header; i++)
        sum += (unsigned char)header[i];
    (void)snprintf(header + 148, 8, "%06o", sum);
    return bags_target_write(t, header, sizeof header);
}

static bags_code wx_put_bytes(bags_target *t, const void *data, size_t size) {
    FORMAT_TRY(bags_target_write(t, data, size));
    return bags_target_write(t, wx_zeros, (512 - size % 512) % 512);
}

/* Append the record "LENGTH key=value\n", whose length counts its own digits. */
static bags_code wx_put_record(
    bags_target *t, bags_export_bytes *to, const char *key, const char *value) {
    size_t rest = strlen(key) + strlen(value) + 3, digits = 1;
    char number[24];
    for (size_t most = 10; rest + digits >= most; most *= 10)
        digits++;
    (void)snprintf(number, sizeof number, "%zu ", rest + digits);
    FORMAT_TRY(bags_target_put_text(t, to, number));
    FORMAT_TRY(bags_target_put_text(t, to, key));
    FORMAT_TRY(bags_target_put_text(t, to, "="));
    FORMAT_TRY(bags_target_put_text(t, to, value));
    return bags_target_put_text(t, to, "\n");
}

/* Write a member, whose name is in the state. */
static bags_code wx_put_member(bags_target *t, const void *data, size_t size) {
    wx_state *w = (wx_state *)t->state;
    const char *name = (const char *)w->name.buffer.data;
    bool large = (uint64_t)size >> 33 != 0, odd = strlen(name) > 100;
    for (const char *c = name; *c; c++)
        odd = odd || (unsigned char)*c >= 0x80;
    if (odd || large) {
        char number[24];
        (void)snprintf(number, sizeof number, "%zu", size);
        w->pax.size = 0;
        if (odd)
            FORMAT_TRY(wx_put_record(t, &w->pax, "path", name));
        if (large)
            FORMAT_TRY(wx_put_record(t, &w->pax, "size", number));
        FORMAT_TRY(wx_put_header(t, "pax", 3, w->pax.size, 'x'));
        FORMAT_TRY(wx_put_bytes(t, w->pax.buffer.data, w->pax.size));
    }
    FORMAT_TRY(wx_put_header(t, name, strlen(name), size, '0'));
    return wx_put_bytes(t, data, size);
}

/* ---- samples ---- */

static bags_code wx_put_field(bags_target *t, const bags_target_field *field) {
    wx_state *w = (wx_state *)t->state;
    const bags_value *value = field->values;
    bags_view file = {NULL, 0};
    bool list = field->kind == WX_LIST;
    if (list || field->form == BAGS_FORM_INTEGER) {
        w->value.size = 0;
        FORMAT_TRY(list ? bags_target_put_list(t, &w->value, field)
                        : bags_target_put_item(t, &w->value, field, 0));
        return wx_put_member(t, w->value.buffer.data, w->value.size);
    }
    if (field->form == BAGS_FORM_ARRAY) {
        FORMAT_TRY(bags_npy_write(value, &t->scratch, &file, t->err));
        return wx_put_member(t, file.data, file.size);
    }
    return wx_put_member(t, value->data, value->size);
}

static bags_code wx_put_sample(bags_target *t) {
    wx_state *w = (wx_state *)t->state;
    size_t members = 0;
    w->name.size = 0;
    FORMAT_TRY(wx_put_key(t, &w->name));
    size_t key = w->name.size - 1;
    for (size_t i = 0; i < t->count; i++) {
        const bags_target_field *field = &t->fields[i];
        if (field->kind == WX_KEY || (field->kind == WX_OPTIONAL && !field->length))
            continue;
        w->name.size = key;
        FORMAT_TRY(bags_target_put_text(t, &w->name, "."));
        FORMAT_TRY(bags_target_put_text(t, &w->name, field->text));
        FORMAT_TRY(wx_put_field(t, field));
        members++;
    }
    if (members == 0)
        return bags_fail(t->err, BAGS_ERROR_VALUE,
            "%s: datapoint %" PRIu64 ": no field has a value: webdataset has no sample "
            "without a member",
            bags_path_tail(t->path), t->datapoint);
    return BAGS_OK;
}

static bags_code wx_open(bags_target *t) {
    wx_state *w = (wx_state *)t->state;
    const char *key = t->options.key ? t->options.key : "__key__";
    w->key = bags_target_find(t, key);
    if (t->options.key && !w->key)
        return bags_target_fail(
            t, BAGS_ERROR_FIELD, "no field \"%.100s\" for the key", key);
    for (size_t i = 0; i < t->count; i++) {
        bags_target_field *field = &t->fields[i];
        if (field == w->key && (field->hidden || !strcmp(field->name, "__key__")))
            field->kind = WX_KEY;
        else
            FORMAT_TRY(wx_prepare_field(t, field));
    }
    return w->key ? wx_check_keys(t) : BAGS_OK;
}

static bags_code wx_shard(bags_target *t) {
    FORMAT_TRY(bags_target_put_shard(t, wx_put_sample));
    FORMAT_TRY(bags_target_write(t, wx_zeros, sizeof wx_zeros));
    return bags_target_file_close(t);
}

const bags_exporter bags_export_webdataset = {"webdataset", ".tar", false, true, false,
    sizeof(wx_state), wx_open, wx_shard, NULL, NULL};
