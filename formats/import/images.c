/*
 * images.c - imports folders of JPEG, PNG and WebP files. No library; formats/image.c
 * checks that files are complete. Formats are detected from a file's first bytes, since
 * real collections contain wrong extensions.
 *
 * Each file is a datapoint, ordered by label, then by path. Unconverted files are
 * stored unchanged and are not decoded.
 *     image   the type from the options; by default jpeg, png or webp, if all files are
 *     label   utf8: the folder in the source that contains the file; "" for the source
 *             itself. With class_numbers, int(4): its index in source->images->classes
 *     path    utf8: the path in the source, with "/"
 *
 * Bytes in names that are not UTF-8 become \xff. Links to files are followed, and so
 * are links to folders directly in the source; deeper links to folders are not, so that
 * circular links end. Files in other formats, files of Bags, and hidden files are left
 * out.
 *
 * Rejected: a mix of formats if no type is given, incomplete files, and files that
 * the registry cannot convert.
 */
#include "import.h"

#include "codecs.h"
#include "files.h"
#include "text.h"
#include "try.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The formats, as bags_import_magic and as messages name them. */
static const char *const ig_types[] = {"jpeg", "png", "webp"};
static const char *const ig_names[] = {"JPEG", "PNG", "WebP"};
#define IG_FORMATS (sizeof ig_types / sizeof *ig_types)

typedef struct ig_image {
    const char *file;  /* its path */
    const char *label; /* a folder; "" for the source itself */
    size_t class_number;
    size_t format; /* an index of ig_types */
} ig_image;

typedef struct ig_state {
    bags_images about;
    size_t prefix; /* length of the source's part of paths */
    ig_image *images;
    char **folders; /* folders in the source */
    size_t folder_count;
    const char *label; /* label of the folder being listed */
    bags_buffer *decoded, *encoded;
} ig_state;

/* The number of images in a format. */
static uint64_t *ig_count(bags_images *about, size_t format) {
    return format == 0 ? &about->jpegs : format == 1 ? &about->pngs : &about->webps;
}

/* ---- finding images ---- */

/* Report the first five by name; only count the rest. */
static bags_code ig_leave_out(bags_source *s, const char *path, const char *reason) {
    if (((ig_state *)s->state)->about.others++ < BAGS_LEFT_OUT_NAMES)
        bags_source_note(s, path, "left out: %s", reason);
    return BAGS_OK;
}

/* A Bag begins with its first blob, and that may be an image. */
static bool ig_is_of_bag(const char *path) {
    bool found = bags_import_ends(path, ".partial");
    for (size_t i = 0; i < FORMAT_SUFFIXES; i++)
        found = found || bags_import_ends(path, format_suffix(i));
    return found;
}

static bags_code ig_add_file(bags_source *s, const char *path) {
    ig_state *t = (ig_state *)s->state;
    unsigned char head[16];
    bags_code code = bags_source_open_file(s, path);
    if (code && s->err->system == ENXIO)
        return ig_leave_out(s, path, "not a regular file");
    size_t size = s->file.size < sizeof head ? (size_t)s->file.size : sizeof head;
    if (!code)
        code = bags_read(bags_io_local(), s->file.handle, path, 0, head, size, s->err);
    if (code)
        return code;
    const char *magic = ig_is_of_bag(path) ? NULL : bags_import_magic(head, size);
    size_t format = 0;
    while (magic && format < IG_FORMATS && strcmp(magic, ig_types[format]) != 0)
        format++;
    if (!magic || format == IG_FORMATS)
        return ig_leave_out(s, path, "neither JPEG nor PNG nor WebP");
    ig_image image = {path, t->label, 0, format};
    t->images =
        (ig_image *)bags_source_grow(s, t->images, (size_t)s->length, sizeof image);
    if (!t->images)
        return BAGS_ERROR_MEMORY;
    t->images[s->length++] = image;
    *ig_count(&t->about, format) += 1;
    return BAGS_OK;
}

static bags_code ig_list(bags_source *s, const char *folder, const char *prefix);

/* Add a file or folder; its path stays valid. */
static bags_code ig_add(bags_source *s, char *path) {
    ig_state *t = (ig_state *)s->state;
    const bags_io *io = bags_io_local();
    bags_identity about;
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_path_kind kind = bags_import_kind(path, NULL);
    bool at_top = !*t->label;
    if (kind == BAGS_PATH_FILE && at_top && !strcmp(path + t->prefix, "info.json"))
        return bags_source_metadata_file(s, s->path);
    if (kind == BAGS_PATH_FILE)
        return ig_add_file(s, path);
    if (kind == BAGS_PATH_NONE)
        return ig_leave_out(s, path, "a dangling link");
    int error = io->identify(io->user, NULL, path, &about);
    if (error)
        return bags_fail_io(io, error, path, "stat", s->err);
    if (!at_top && !about.link)
        return ig_list(s, path, bags_source_format(s, "%s/", path));
    if (!at_top) {
        t->about.links++;
        return BAGS_OK;
    }
    t->folders =
        (char **)bags_source_grow(s, t->folders, t->folder_count, sizeof *t->folders);
    if (!t->folders)
        return BAGS_ERROR_MEMORY;
    t->folders[t->folder_count++] = path;
    return BAGS_OK;
}

typedef struct ig_listing {
    bags_source *s;
    const char *prefix;
    bags_code code;
} ig_listing;

static int ig_add_name(void *user, const char *name) {
    ig_listing *in = (ig_listing *)user;
    if (name[0] == '.')
        ((ig_state *)in->s->state)->about.hidden++;
    else
        in->code = ig_add(in->s, bags_source_format(in->s, "%s%s", in->prefix, name));
    return in->code ? EIO : 0;
}

/* `prefix` precedes the names in a folder. */
static bags_code ig_list(bags_source *s, const char *folder, const char *prefix) {
    const bags_io *io = bags_io_local();
    ig_listing in = {s, prefix, BAGS_OK};
    int error = prefix ? io->list(io->user, folder, ig_add_name, &in) : ENOMEM;
    return in.code || !error ? in.code
                             : bags_fail_io(io, error, folder, "open", s->err);
}

/* By label, then by path. */
static int ig_compare(const void *a, const void *b) {
    const ig_image *one = (const ig_image *)a, *two = (const ig_image *)b;
    int order = strcmp(one->label, two->label);
    return order ? order : strcmp(one->file, two->file);
}

static bags_code ig_find(bags_source *s) {
    ig_state *t = (ig_state *)s->state;
    size_t size = strlen(s->path);
    const char *slash = size && s->path[size - 1] == '/' ? "" : "/", *prefix = "";
    if (strcmp(s->path, ".") != 0)
        prefix = bags_source_format(s, "%s%s", s->path, slash);
    t->prefix = prefix ? strlen(prefix) : 0;
    t->label = "";
    bags_code code = ig_list(s, s->path, prefix);
    for (size_t i = 0; i < t->folder_count && !code; i++) {
        t->label = t->folders[i] + t->prefix;
        code = ig_list(s, t->folders[i], bags_source_format(s, "%s/", t->folders[i]));
    }
    bags_source_close_file(s);
    if (code)
        return code;
    if (!s->length)
        return bags_source_fail(
            s, BAGS_ERROR_MISSING, "contains no JPEG, PNG or WebP file");
    qsort(t->images, (size_t)s->length, sizeof *t->images, ig_compare);
    return BAGS_OK;
}

/* ---- the source ---- */

static bags_code ig_choose_type(bags_source *s) {
    ig_state *t = (ig_state *)s->state;
    size_t found[IG_FORMATS], count = 0, rare = 0, used = 0;
    char text[100];
    for (size_t f = 0; f < IG_FORMATS; f++) {
        uint64_t number = *ig_count(&t->about, f);
        if (!number)
            continue;
        if (count == 0 || number < *ig_count(&t->about, rare))
            rare = f;
        found[count++] = f;
    }
    t->about.type = s->options.image_type ? s->options.image_type : ig_types[found[0]];
    if (s->options.image_type || count == 1)
        return BAGS_OK;
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRIu64 " %s",
            i == 0          ? ""
            : i + 1 < count ? ", "
                            : " and ",
            *ig_count(&t->about, found[i]), ig_names[found[i]]);
    const ig_image *image = t->images;
    while (image->format != rare)
        image++;
    return bags_source_fail(s, BAGS_ERROR_ARGUMENT, "contains %s files (%s)", text,
        image->file + t->prefix);
}

/* Set each image's class and share. Both depend only on its path. */
static bags_code ig_share(bags_source *s) {
    ig_state *t = (ig_state *)s->state;
    bags_images *about = &t->about;
    s->shares = (uint64_t *)bags_source_alloc(s, (size_t)s->length, sizeof *s->shares);
    for (size_t i = 0; i < s->length && s->shares; i++) {
        ig_image *one = &t->images[i];
        s->shares[i] =
            format_hash(0, one->file + t->prefix, strlen(one->file + t->prefix));
        if (i == 0 || strcmp(one[-1].label, one->label) != 0) {
            about->classes = (const char **)bags_source_grow(
                s, about->classes, about->class_count, sizeof *about->classes);
            if (!about->classes)
                return BAGS_ERROR_MEMORY;
            about->classes[about->class_count++] = one->label;
        }
        one->class_number = about->class_count - 1;
    }
    return s->shares ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code ig_open(bags_source *s) {
    FORMAT_TRY(ig_find(s));
    FORMAT_TRY(ig_choose_type(s));
    FORMAT_TRY(ig_share(s));
    s->images = &((ig_state *)s->state)->about;
    bags_source_field(s, "image", s->images->type);
    bags_source_field(s, "label", s->options.class_numbers ? "int(4)" : "utf8");
    bags_source_field(s, "path", "utf8");
    return BAGS_OK;
}

/* Decode a file, and encode it in the field's type. */
static bags_code ig_convert(
    bags_source *s, const char *from, bags_view file, bags_view *out, bags_error *why) {
    ig_state *t = (ig_state *)s->state;
    bags_value value;
    if (bags_source_reserve(s, &t->decoded, 0) ||
        bags_source_reserve(s, &t->encoded, 0))
        return BAGS_ERROR_MEMORY;
    bags_code code =
        bags_decode(s->options.registry, from, file, t->decoded, &value, why);
    return code ? code
                : bags_encode(
                      s->options.registry, t->about.type, &value, t->encoded, out, why);
}

/* Bytes that are not UTF-8 become \xff. */
static bags_value ig_name(bags_source *s, const char *name) {
    size_t size = strlen(name), used = 0, valid;
    char *made = (char *)bags_source_alloc(s, size + 1, 4);
    for (size_t i = 0; made && i < size; i++) {
        bool good = bags_utf8_valid(name + i, size - i, &valid);
        valid = good ? size - i : valid;
        memcpy(made + used, name + i, valid);
        used += valid;
        i += valid;
        if (!good)
            used += (size_t)snprintf(made + used, 5, "\\x%02x", (unsigned char)name[i]);
    }
    return bags_utf8_sized(made, used);
}

/* Handle an image that is damaged or cannot be converted. */
static bags_code ig_refuse(bags_source *s, size_t format, const bags_error *why) {
    bags_images *about = &((ig_state *)s->state)->about;
    s->damaged = true;
    if (!s->options.skip_damaged)
        return bags_source_fail(s, why->code, "%s", why->message);
    about->damaged++;
    *ig_count(about, format) -= 1;
    bags_source_note(s, s->where, "left out: %s", why->message);
    return BAGS_OK;
}

static bags_code ig_read(bags_source *s, uint64_t index) {
    ig_state *t = (ig_state *)s->state;
    bags_view file = {NULL, 0};
    bags_error why;
    if (s->ended)
        return BAGS_OK;
    const ig_image *image = &t->images[index];
    bags_code code = bags_source_open_file(s, image->file);
    if (!code)
        code = bags_source_copy(s, 0, s->file.size, &file);
    if (code)
        return code;
    const char *kind = ig_types[image->format], *type = t->about.type;
    const char *magic = bags_import_magic(file.data, file.size);
    if (!magic || strcmp(magic, kind) != 0)
        return bags_source_fail(s, BAGS_ERROR_VALUE, "changed since it was found");
    bool fits = !strcmp(type, "bytes") || !strncmp(type, kind, strlen(kind)) ||
                (image->format == 0 && !strncmp(type, "jpg", 3));
    bags_view blob = file;
    code = fits ? bags_image_check(file, &why) : ig_convert(s, kind, file, &blob, &why);
    if (code == BAGS_ERROR_MEMORY)
        return bags_source_no_memory(s);
    if (code)
        return ig_refuse(s, image->format, &why);
    bool upright = bags_image_orientation(file) == 1;
    t->about.converted += !fits;
    t->about.turned += !fits && !upright;
    t->about.to_turn += fits && !upright;
    s->values[0] = bags_blob(blob.data, blob.size);
    s->values[1] = s->options.class_numbers ? bags_uint(image->class_number)
                                            : ig_name(s, image->label);
    s->values[2] = ig_name(s, image->file + t->prefix);
    t->about.renamed += s->values[2].size > strlen(image->file + t->prefix);
    return BAGS_OK;
}

/* Never detected, since this would require listing the entire tree. */
const bags_importer bags_import_images = {
    "images", NULL, sizeof(ig_state), ig_open, ig_read, NULL};
