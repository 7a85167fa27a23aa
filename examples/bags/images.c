/*
 * bags images: a folder of JPEG and PNG files as a dataset. What a file is, its
 * first bytes say: in real collections some endings lie.
 *
 * Every directory is visited once, links to directories after the others, so
 * that links in a circle end.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct image {
    char *path;        /* below DIR, with "/" */
    size_t label_size; /* the first directory in it; 0: none */
    bool png;
} image;

/* A place in a hash table of directories. */
typedef struct visited {
    bool used;
    dev_t device;
    ino_t number;
} visited;

typedef struct imaging {
    const char *root;
    const char *type; /* of the field image */
    write_options options;
    image *images;
    size_t count, room;
    visited *seen;
    size_t seen_count, seen_room;
    size_t pngs, others, hidden, again;
    bags_registry *codecs;
    bags_buffer file, scratch;
    sink out;
} imaging;

/* One more element of an array that grows. */
static bool grow(void **array, size_t count, size_t *room, size_t size) {
    if (count < *room)
        return true;
    size_t more = *room ? *room * 2 : 64;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return false;
    *array = grown;
    *room = more;
    return true;
}

/* ---- looking for images ---- */

/* A pipe or a device is no image, and must not be waited for. */
static bags_code read_head(const char *path, unsigned char head[16],
    size_t *size, bags_error *err) {
    int file = open_file(path, O_RDONLY | O_NONBLOCK);
    if (file < 0)
        return fail_system(err, errno, path, "open");
    ssize_t got = read_some(file, head, 16);
    int error = errno;
    close(file);
    if (got < 0)
        return fail_system(err, error, path, "read");
    *size = (size_t)got;
    return BAGS_OK;
}

static void note_other(imaging *all, const char *path, const char *why) {
    if (++all->others <= 5)
        note("%s: left out: %s", path, why);
}

static bags_code add_file(imaging *all, const char *below, const char *path,
    bags_error *err) {
    unsigned char head[16];
    bags_view start = {head, 0};
    bags_code code = read_head(path, head, &start.size, err);
    if (code)
        return code;
    const char *type = type_of_bytes(start);
    bool png = type && !strcmp(type, "png");
    if (!png && (!type || strcmp(type, "jpeg"))) {
        note_other(all, path, "neither JPEG nor PNG");
        return BAGS_OK;
    }
    void *images = all->images;
    if (!grow(&images, all->count, &all->room, sizeof *all->images))
        return fail_memory(err);
    all->images = (image *)images;
    image *to = &all->images[all->count];
    to->path = string_format(err, "%s", below);
    if (!to->path)
        return BAGS_ERROR_MEMORY;
    const char *slash = strchr(below, '/');
    to->label_size = slash ? (size_t)(slash - below) : 0;
    to->png = png;
    all->pngs += png ? 1 : 0;
    all->count++;
    return BAGS_OK;
}

/* Where a directory is in the table, or belongs. */
static visited *find_place(visited *table, size_t room, dev_t device,
    ino_t number) {
    uint64_t hash = ((uint64_t)number + (uint64_t)device) * 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 32) & (room - 1);
    while (table[at].used &&
           (table[at].device != device || table[at].number != number))
        at = (at + 1) & (room - 1);
    return &table[at];
}

/* Keep the table at most half full; its room is a power of two. */
static bags_code grow_table(imaging *all, bags_error *err) {
    size_t room = all->seen_room ? all->seen_room * 2 : 256;
    if (2 * all->seen_count < all->seen_room)
        return BAGS_OK;
    visited *table = (visited *)calloc(room, sizeof *table);
    if (!table)
        return fail_memory(err);
    for (size_t i = 0; i < all->seen_room; i++)
        if (all->seen[i].used)
            *find_place(table, room, all->seen[i].device,
                all->seen[i].number) = all->seen[i];
    free(all->seen);
    all->seen = table;
    all->seen_room = room;
    return BAGS_OK;
}

/* Note that a directory is visited; *before: it was already. */
static bags_code mark_visited(imaging *all, const char *path, bool *before,
    bags_error *err) {
    struct stat about;
    if (stat(path, &about))
        return fail_system(err, errno, path, "open");
    bags_code code = grow_table(all, err);
    if (code)
        return code;
    visited *place = find_place(all->seen, all->seen_room, about.st_dev,
        about.st_ino);
    *before = place->used && about.st_ino; /* on Windows all have 0 */
    all->seen_count += place->used ? 0 : 1;
    place->used = true;
    place->device = about.st_dev;
    place->number = about.st_ino;
    return BAGS_OK;
}

typedef struct names {
    char **all;
    size_t count, room;
} names;

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory that are not hidden, sorted. */
static bags_code list_names(imaging *all, const char *path, names *out,
    bags_error *err) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    bags_code code = BAGS_OK;
    if (!directory)
        return fail_system(err, errno, path, "open");
    while (!code && (errno = 0, entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (entry->d_name[0] == '.') {
            all->hidden++;
            continue;
        }
        void *list = out->all;
        if (!grow(&list, out->count, &out->room, sizeof *out->all)) {
            code = fail_memory(err);
            break;
        }
        out->all = (char **)list;
        out->all[out->count] = string_format(err, "%s", entry->d_name);
        code = out->all[out->count] ? BAGS_OK : BAGS_ERROR_MEMORY;
        out->count += code ? 0 : 1;
    }
    if (!code && errno)
        code = fail_system(err, errno, path, "read");
    closedir(directory);
    if (out->count)
        qsort(out->all, out->count, sizeof *out->all, compare_names);
    return code;
}

static bags_code visit(imaging *all, const char *below, bags_error *err);

/* What the three passes over a directory look at. */
typedef enum pass { PASS_FILES, PASS_DIRECTORIES, PASS_LINKS, PASSES } pass;

static bags_code visit_entry(imaging *all, const char *below, const char *path,
    pass now, bags_error *err) {
    struct stat link, about;
    if (lstat(path, &link))
        return fail_system(err, errno, path, "look at");
    bool dangles = stat(path, &about) != 0;
    bool directory = !dangles && S_ISDIR(about.st_mode);
    pass its = !directory ? PASS_FILES
               : S_ISLNK(link.st_mode) ? PASS_LINKS : PASS_DIRECTORIES;
    if (its != now)
        return BAGS_OK;
    if (directory)
        return visit(all, below, err);
    if (!dangles && S_ISREG(about.st_mode))
        return add_file(all, below, path, err);
    note_other(all, path, dangles ? "a link to nothing" : "not a regular file");
    return BAGS_OK;
}

static bags_code visit_names(imaging *all, const char *below,
    const names *list, pass now, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < list->count && !code; i++) {
        char *inner = *below ? path_join(below, list->all[i], err)
                             : string_format(err, "%s", list->all[i]);
        char *path = inner ? path_join(all->root, inner, err) : NULL;
        code = path ? visit_entry(all, inner, path, now, err)
                    : BAGS_ERROR_MEMORY;
        free(inner);
        free(path);
    }
    return code;
}

/* Visit the directory `below` the root; "" is the root. */
static bags_code visit(imaging *all, const char *below, bags_error *err) {
    names list = {0};
    bool before = false;
    char *path = *below ? path_join(all->root, below, err)
                        : string_format(err, "%s", all->root);
    bags_code code =
        path ? mark_visited(all, path, &before, err) : BAGS_ERROR_MEMORY;
    if (before)
        all->again++;
    else if (!code)
        code = list_names(all, path, &list, err);
    for (int now = PASS_FILES; now < PASSES && !code; now++)
        code = visit_names(all, below, &list, (pass)now, err);
    for (size_t i = 0; i < list.count; i++)
        free(list.all[i]);
    free(list.all);
    free(path);
    return code;
}

/* By label, then by path. */
static int compare_images(const void *a, const void *b) {
    const image *one = (const image *)a, *two = (const image *)b;
    size_t size = one->label_size < two->label_size ? one->label_size
                                                    : two->label_size;
    int order = memcmp(one->path, two->path, size);
    if (order)
        return order;
    if (one->label_size != two->label_size)
        return one->label_size < two->label_size ? -1 : 1;
    return strcmp(one->path, two->path);
}

/* ---- writing them ---- */

/* Whether a file of this kind is a blob of the field's type as it stands. */
static bool fits_type(const imaging *all, bool png) {
    if (!strcmp(all->type, "bytes"))
        return true;
    return png == !strncmp(all->type, "png", 3);
}

static bags_code image_value(imaging *all, const image *one,
    bags_value *out, bags_error *err) {
    size_t size = 0;
    char *path = path_join(all->root, one->path, err);
    bags_code code = path ? file_read(path, &all->file, &size, err)
                          : BAGS_ERROR_MEMORY;
    bags_view file = {all->file.data, size};
    const char *type = code ? NULL : type_of_bytes(file);
    if (!code && (!type || strcmp(type, one->png ? "png" : "jpeg")))
        code = bags_fail(err, BAGS_ERROR_VALUE,
            "%s: changed since it was looked at", path);
    else if (!code && fits_type(all, one->png))
        *out = bags_blob(file.data, file.size);
    else if (!code)
        code = value_from_file(all->codecs, path, file, &all->scratch, out,
            err);
    free(path);
    return code;
}

static bags_code add_image(imaging *all, const image *one, bags_error *err) {
    bags_value picture;
    bags_value label = bags_utf8_sized(one->path, one->label_size);
    bags_value path = bags_utf8(one->path);
    bags_code code = image_value(all, one, &picture, err);
    if (code)
        return code;
    bags_entry entries[3] = {{"image", &picture, 1}, {"label", &label, 1},
        {"path", &path, 1}};
    code = sink_did(&all->out,
        bags_writer_append(all->out.dataset, entries, 3, err));
    if (code)
        return fail_prefix(err, "%s/%s: ", all->root, one->path);
    return sink_added(&all->out, picture.size + path.size, err);
}

static bags_code add_images(imaging *all, bags_error *err) {
    progress bar = {0};
    bar.title = "images";
    bar.unit = "images";
    const bags_writer_options *options = &all->options.options;
    uint64_t workers = options->shard_stop ? options->shard_stop : 1;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < all->count && !code; i++) {
        if (i % workers != options->shard_start)
            continue;
        code = add_image(all, &all->images[i], err);
        progress_show(&bar, i + 1, all->count, sink_length(&all->out));
    }
    progress_end(&bar);
    return code;
}

static void report_left_out(const imaging *all, size_t count,
    const char *which) {
    if (count)
        printf("%s: left out: %zu %s\n", all->root, count, which);
}

static void report(const imaging *all) {
    size_t labels = 0;
    for (size_t i = 0; i < all->count; i++) {
        const image *one = &all->images[i], *before = i ? one - 1 : NULL;
        labels += !before || before->label_size != one->label_size ||
                  memcmp(before->path, one->path, one->label_size);
    }
    printf("%s: %zu image%s of type %s (%zu JPEG, %zu PNG), %zu label%s\n",
        all->root, all->count, all->count == 1 ? "" : "s", all->type,
        all->count - all->pngs, all->pngs, labels, labels == 1 ? "" : "s");
    report_left_out(all, all->others, "that are neither JPEG nor PNG");
    report_left_out(all, all->hidden, "that are hidden");
    report_left_out(all, all->again, "that are directories met before");
}

static bool is_image_type(const char *type, bags_error *err) {
    static const char *const known[] = {"jpeg", "jpg", "png", "bytes"};
    bags_type parsed;
    if (bags_type_parse(type, &parsed, err))
        return false;
    for (size_t i = 0; i < 4 && !parsed.sequence; i++)
        if (strlen(known[i]) == parsed.name.size &&
            !memcmp(known[i], parsed.name.data, parsed.name.size))
            return true;
    return false;
}

static bags_code find_images(imaging *all, bags_error *err) {
    bags_code code = visit(all, "", err);
    if (code)
        return code;
    if (all->count == 0)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: no JPEG or PNG file in it", all->root);
    qsort(all->images, all->count, sizeof *all->images, compare_images);
    if (!all->type)
        all->type = all->pngs == 0            ? "jpeg"
                    : all->pngs == all->count ? "png"
                                              : "bytes";
    return BAGS_OK;
}

static int write_images(imaging *all, const char *out) {
    bags_error err;
    if (find_images(all, &err))
        return fail(&err);
    all->codecs = codecs_make(&err);
    if (!all->codecs)
        return fail(&err);
    bags_field fields[3] = {{"image", all->type}, {"label", "utf8"},
        {"path", "utf8"}};
    all->options.options.registry = all->codecs;
    all->out.path = out;
    all->out.sharded = all->options.options.sharded;
    all->out.dataset =
        bags_writer_open(out, fields, 3, &all->options.options, &err);
    if (!all->out.dataset)
        return fail(&err);
    if (add_images(all, &err))
        return sink_give_up(&all->out, &err);
    report(all);
    return sink_finish(&all->out);
}

static void release(imaging *all) {
    for (size_t i = 0; i < all->count; i++)
        free(all->images[i].path);
    free(all->images);
    free(all->seen);
    bags_registry_free(all->codecs);
    bags_buffer_free(&all->file);
    bags_buffer_free(&all->scratch);
}

static int run(int count, char **words) {
    imaging all;
    memset(&all, 0, sizeof all);
    option options[WRITE_OPTIONS + 1] = {{"type", NULL, &all.type}};
    write_options_describe(&all.options, options + 1);
    int exit_code;
    bags_error err;
    if (!options_parse(&command_images, &count, words, options,
            WRITE_OPTIONS + 1, &exit_code))
        return exit_code;
    if (count != 2)
        return fail_usage(&command_images, "takes DIR and OUT");
    if (all.type && !is_image_type(all.type, &err))
        return fail_usage(&command_images,
            "--type: \"%s\" is not jpeg, png or bytes", all.type);
    if (!write_options_understand(&all.options, &command_images, &exit_code))
        return exit_code;
    all.root = words[0];
    exit_code = write_images(&all, words[1]);
    release(&all);
    return exit_code;
}

const command command_images = {"images", "a dataset from folders of images",
    "usage: bags images DIR OUT [--type jpeg|png|bytes] [--shard-...]\n"
    "                   [--checksum] [--idx] [--sync-size N | --no-sync]\n"
    "\n"
    "Packs the JPEG and PNG files below DIR, as they are, into the fields\n"
    "image, label (the folder in DIR that it is in; \"\" for files in DIR\n"
    "itself) and path (below DIR), sorted by label and path. A file's first\n"
    "bytes say what it is. Other files, and hidden ones, are left out and\n"
    "counted. Links are followed; every directory is taken once.\n"
    "\n"
    "  --type T  type of the field image. By default jpeg if all are JPEG,\n"
    "            png if all are PNG, else bytes, which keeps every file as it\n"
    "            is. With jpeg, jpeg(90) or png, files of the other kind are\n"
    "            encoded anew\n"
    "  --shard-size N, --shard-length N, --shard-start W, --shard-stop K,\n"
    "  --checksum, --idx, --sync-size N, --no-sync  as in bags help pack;\n"
    "            worker W packs the images W, W+K, W+2K, ...\n"
    "\n"
    "example:\n"
    "  bags images imagenet/train train --shard-size 1G\n",
    run};
