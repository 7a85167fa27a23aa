/*
 * images.c - writes a folder of images per label. No library.
 *
 *     OUT/LABEL/000012.jpg     OUT/000012.jpg if the dataset has no label
 *     OUT/info.json            the metadata of the dataset, if it has any
 *
 * The images are the blobs of the only field of type jpeg, png or webp, as they are. The label is
 * the field of the options, or the field `label` if it is text or a number. The name is the
 * value of the key's field, or of the field `path` if it is text, or the datapoint's number
 * in the export. A label at the start of a name is not repeated; nor is the ending.
 *
 * Files are not synchronized one by one.
 *
 * Rejected: several fields of images, or none; other fields; labels and names that cannot be
 * names of files on every system, or that begin with a dot; two files of one name, or
 * labels that differ only in case.
 */
#include "export.h"

#include "files.h"
#include "try.h"

#include <string.h>

typedef struct ix_state {
    bags_target_field *image, *label, *key;
    bags_export_bytes names; /* each path, with its NUL */
    size_t count;
    bags_export_bytes path; /* of the file that is written */
} ix_state;

/* The reason why text is not a part of a path, or NULL. */
static const char *ix_fault(const char *text, size_t size, bool slashes) {
    if (memchr(text, 0, size))
        return "contains NUL";
    if (!bags_utf8_valid(text, size, NULL))
        return "is not UTF-8";
    for (size_t i = 0, start = 0; i <= size; i++) {
        if (i < size && !(text[i] == '/' && slashes)) {
            if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F ||
                strchr("/\\:*?\"<>|", text[i]))
                return "has a character that names of files cannot have on every "
                       "system";
            continue;
        }
        if (i == start)
            return "has an empty name in it";
        if (text[start] == '.')
            return "begins with a dot: a hidden file";
        if (i - start > 240)
            return "is longer than 240 bytes";
        start = i + 1;
    }
    return NULL;
}

/* Append LABEL/NAME.jpg and a NUL, from the values of the datapoint. */
static bags_code ix_put_path(bags_target *t, bags_export_bytes *to) {
    const ix_state *x = (const ix_state *)t->state;
    const char *endings = !strcmp(x->image->ending, "jpg")   ? ".jpg .jpeg"
                          : !strcmp(x->image->ending, "png") ? ".png"
                                                             : ".webp";
    size_t start = to->size, label = 0;
    const char *fault = NULL;
    if (x->label) {
        FORMAT_TRY(bags_target_put_item(t, to, x->label, 0));
        label = to->size - start;
        fault = label ? ix_fault((char *)to->buffer.data + start, label, false) : NULL;
        if (fault)
            return bags_target_fail_value(t, x->label, "the label \"%.*s\" %s",
                label > 200 ? 200 : (int)label, (char *)to->buffer.data + start, fault);
        FORMAT_TRY(bags_target_put(t, to, "/", label > 0));
    }
    size_t name = to->size;
    if (!x->key) {
        FORMAT_TRY(bags_target_put_number(t, to));
    } else {
        FORMAT_TRY(bags_target_put_item(t, to, x->key, 0));
        const char *path = (const char *)to->buffer.data + start;
        const char *key = (const char *)to->buffer.data + name;
        size_t size = to->size - name, front = name - start;
        if (front && size > front && !memcmp(path, key, front)) {
            memmove(
                to->buffer.data + name, to->buffer.data + name + front, size - front);
            to->size -= front;
            size -= front;
        }
        fault = ix_fault(key, size, true);
        if (fault)
            return bags_target_fail_value(t, x->key, "the name \"%.*s\" %s",
                size > 200 ? 200 : (int)size, key, fault);
        FORMAT_TRY(bags_target_put(t, to, "", 1));
        to->size--;
        for (const char *at = endings; at; at = strchr(at, ' '), at += at != NULL) {
            size_t length = strcspn(at, " "), end = to->size - name;
            const char *last = (const char *)to->buffer.data + to->size - length;
            if (end > length && !memcmp(last, at, length))
                return bags_target_put(t, to, "", 1);
        }
    }
    FORMAT_TRY(bags_target_put(t, to, endings, strcspn(endings, " ")));
    return bags_target_put(t, to, "", 1);
}

static bags_code ix_collect(bags_target *t, bags_target_field *field, void *user) {
    ix_state *x = (ix_state *)user;
    (void)field;
    x->count++;
    return ix_put_path(t, &x->names);
}

/* All names are made before the first file is written. */
static bags_code ix_check(bags_target *t) {
    ix_state *x = (ix_state *)t->state;
    bags_target_field *fields[2] = {x->label ? x->label : x->key, x->key};
    for (size_t i = 0; i < t->count; i++)
        if (&t->fields[i] != x->image && &t->fields[i] != x->label &&
            &t->fields[i] != x->key)
            return bags_target_fail_field(t, &t->fields[i], BAGS_ERROR_TYPE,
                "a folder of images has no place for it: choose others with --fields");
    if (!fields[0])
        return BAGS_OK;
    if (t->options.metadata.data) {
        FORMAT_TRY(bags_target_put(t, &x->names, "info.json", sizeof "info.json"));
        x->count++;
    }
    FORMAT_TRY(bags_target_scan(t, fields, x->label && x->key ? 2 : 1, ix_collect, x));
    const char *twice[2];
    FORMAT_TRY(bags_target_find_twice(t, &x->names, x->count, true, twice));
    if (!twice[0])
        return BAGS_OK;
    return bags_target_fail_field(t, x->key ? x->key : x->label, BAGS_ERROR_VALUE,
        strcmp(twice[0], twice[1]) ? "the files %.200s and %.200s cannot both exist on "
                                     "every system (case, or a folder of this name)"
                                   : "two images would be the file %.200s",
        twice[0], twice[1]);
}

static bags_target_field *ix_find(
    bags_target *t, const char *given, const char *usual, bags_code *code) {
    bags_target_field *field = bags_target_find(t, given ? given : usual);
    bool fits = field && !field->sequence &&
                (field->form == BAGS_FORM_TEXT || field->form == BAGS_FORM_INTEGER);
    if (given && !field)
        *code = bags_target_fail(t, BAGS_ERROR_FIELD, "no field \"%.100s\"", given);
    else if (given && !fits)
        *code = bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "not text or a whole number (%s%s)", field->type,
            field->sequence ? "[]" : "");
    return fits ? field : NULL;
}

static bags_code ix_open(bags_target *t) {
    ix_state *x = (ix_state *)t->state;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < t->count; i++) {
        bags_target_field *field = &t->fields[i];
        if (field->form != BAGS_FORM_BLOB ||
            (strcmp(field->ending, "jpg") != 0 && strcmp(field->ending, "png") != 0 &&
                strcmp(field->ending, "webp") != 0))
            continue;
        if (x->image)
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "a second field of images (\"%.100s\" is another): choose one with "
                "--fields",
                x->image->name);
        if (field->sequence)
            return bags_target_fail_field(
                t, field, BAGS_ERROR_TYPE, "a file has one image (this is a sequence)");
        x->image = field;
    }
    if (!x->image)
        return bags_target_fail(
            t, BAGS_ERROR_TYPE, "no field is of type jpeg, png or webp");
    x->label = ix_find(t, t->options.label, "label", &code);
    if (!code)
        x->key = ix_find(t, t->options.key, "path", &code);
    if (x->key && !t->options.key && x->key->form != BAGS_FORM_TEXT)
        x->key = NULL;
    FORMAT_TRY(code);
    t->options.no_sync = true;
    return ix_check(t);
}

/* A file of an earlier export would be another image of its label. */
static bags_code ix_finish(bags_target *t) {
    bool has_metadata = t->options.metadata.data != NULL;
    if (has_metadata && t->options.shard_start == 0)
        FORMAT_TRY(bags_target_put_file(t, "info.json", t->options.metadata, false));
    return t->options.shard_stop > 1
               ? BAGS_OK
               : bags_target_check_files(t, t->length + has_metadata);
}

static bags_code ix_shard(bags_target *t) {
    ix_state *x = (ix_state *)t->state;
    for (bool more = true;;) {
        FORMAT_TRY(bags_target_next(t, &more));
        if (!more)
            return BAGS_OK;
        x->path.size = 0;
        FORMAT_TRY(bags_target_put_text(t, &x->path, t->path));
        FORMAT_TRY(bags_target_put_text(t, &x->path, "/"));
        FORMAT_TRY(ix_put_path(t, &x->path));
        FORMAT_TRY(bags_target_file_open(t, (const char *)x->path.buffer.data));
        FORMAT_TRY(
            bags_target_write(t, x->image->values->data, x->image->values->size));
        FORMAT_TRY(bags_target_file_close(t));
    }
}

const bags_exporter bags_export_images = {"images", "", false, true, true,
    sizeof(ix_state), ix_open, ix_shard, ix_finish, NULL};
