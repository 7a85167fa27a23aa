/*
 * bags images: a folder of JPEG and PNG files as a dataset. The first bytes of a
 * file state its format: in real collections some endings are wrong.
 *
 * All files are found and sorted first, then written. Those that are not converted are
 * checked to be complete, but not decoded. Links to files, and those in DIR to class
 * folders, are followed; within a class, links to directories are not, so that circular
 * links end.
 */
#include "command.h"
#include "system.h"

#include "files.h"
#include "formats.h"
#include "text.h"

static const char *type, *classes_path;
static bool skip_damaged;

static const option options[] = {
    {"type", OPTION_TEXT, &type, "T",
        "type of the field image: jpeg, jpeg(90), png, or bytes, which keeps "
        "every file as it is but is not decoded by readers. Files of the other "
        "format are converted. Needed if DIR contains both formats"},
    {"classes", OPTION_PATH, &classes_path, "FILE",
        "labels are numbers, int(4): the line of the class folder's name in "
        "FILE, from 0. If FILE is missing, it is written with the sorted "
        "names"},
    {"skip-damaged", OPTION_FLAG, &skip_damaged, NULL,
        "leave out, name and count files that are damaged or cannot be "
        "converted"},
    OPTION_MAX_PIXELS,
    OPTIONS_END,
};

typedef struct image {
    char *path;        /* relative to DIR, with "/" */
    const char *label; /* the folder in DIR that contains it; "" for DIR */
    bool png;
} image;

static const char *root;
static image *images;
static size_t count, pngs;
static size_t others, hidden, linked; /* left out */
static char **folders;                /* in DIR: the classes */
static size_t folders_count;
static size_t class_number; /* of the class that is visited; 0: DIR itself */

/* ---- finding images ---- */

/* Name the first five; the others are only counted. */
static void leave_out(const char *path, const char *reason) {
    if (++others <= 5)
        note("%s: left out: %s", path, reason);
}

static void add_file(const char *name, const char *path) {
    const bags_io *io = bags_io_local();
    unsigned char head[16];
    size_t got = sizeof head;
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    must(bags_fail_io(io, error, path, "open", &failure));
    error = read_all(io, file, 0, head, &got);
    must(bags_fail_io(io, error, path, "read", &failure));
    io->close(io->user, file);
    /* A Bag begins with its first blob, which may be an image. */
    bool of_bag = has_ending(name, ".partial");
    for (size_t i = 0; i < FORMAT_SUFFIXES; i++)
        of_bag = of_bag || has_ending(name, format_suffix(i));
    if (of_bag)
        got = 0;
    bags_view start = {head, got};
    const char *found = type_of_bytes(start);
    bool png = found && !strcmp(found, "png");
    if (!png && (!found || strcmp(found, "jpeg"))) {
        leave_out(path, "neither JPEG nor PNG");
        return;
    }
    images = (image *)grow(images, count, sizeof *images);
    images[count].path = string_format("%s", name);
    images[count].label = class_number ? folders[class_number - 1] : "";
    images[count++].png = png;
    pngs += png;
}

static void visit(const char *name);

static void visit_entry(const char *name) {
    struct stat link, about;
    char *path = path_join(root, name);
    if (lstat(path, &link))
        fail_system(errno, path, "stat");
    bool dangling = stat(path, &about) != 0;
    bool is_directory = !dangling && S_ISDIR(about.st_mode);
    if (is_directory && class_number == 0) {
        folders = (char **)grow(folders, folders_count, sizeof *folders);
        folders[folders_count++] = string_format("%s", name);
    } else if (is_directory && S_ISLNK(link.st_mode)) {
        linked++;
    } else if (is_directory) {
        visit(name);
    } else if (!dangling && S_ISREG(about.st_mode)) {
        add_file(name, path);
    } else {
        leave_out(path, dangling ? "a dangling link" : "not a regular file");
    }
    free(path);
}

/* Visit a directory, named relative to the root, which is ".". */
static void visit(const char *name) {
    struct dirent *entry;
    char *path = strcmp(name, ".") ? path_join(root, name) : string_format("%s", root);
    DIR *directory = opendir(path);
    if (!directory)
        fail_system(errno, path, "open");
    while ((errno = 0, entry = readdir(directory))) {
        char *inner = path_join(name, entry->d_name);
        if (entry->d_name[0] != '.')
            visit_entry(inner);
        else
            hidden += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        free(inner);
    }
    if (errno)
        fail_system(errno, path, "read");
    closedir(directory);
    free(path);
}

/* By label, then by path. */
static int compare_images(const void *a, const void *b) {
    const image *one = (const image *)a, *two = (const image *)b;
    int order = strcmp(one->label, two->label);
    return order ? order : strcmp(one->path, two->path);
}

static bool is_new_label(size_t i) {
    return i == 0 || strcmp(images[i - 1].label, images[i].label);
}

static void find_images(void) {
    visit(".");
    for (class_number = 1; class_number <= folders_count; class_number++)
        visit(folders[class_number - 1]);
    if (count == 0)
        fail(BAGS_ERROR_MISSING, "%s: contains no JPEG or PNG file", root);
    qsort(images, count, sizeof *images, compare_images);
    if (type)
        return;
    type = pngs ? "png" : "jpeg";
    if (pngs == 0 || pngs == count)
        return;
    size_t rare = 0;
    while (images[rare].png != (2 * pngs < count))
        rare++;
    usage("%s: contains %zu JPEG and %zu PNG files (%s); choose --type jpeg or "
          "--type png, which convert, or --type bytes, which readers do not "
          "decode",
        root, count - pngs, pngs, images[rare].path);
}

/* ---- classes ---- */

static char **classes;
static size_t classes_count;

/* Write the class folders' names to the file, if it does not exist. Several
 * workers may do so at once: the first one counts, also if another found a folder
 * that is new. */
static void write_classes(void) {
    static text lines;
    static char *partial;
    if (path_exists(classes_path))
        return;
    partial = string_format("%s.%ju.partial", classes_path, (uintmax_t)getpid());
    for (size_t i = 0; i < count; i++)
        if (is_new_label(i)) {
            text_puts(&lines, images[i].label);
            text_puts(&lines, "\n");
        }
    file_write(partial, lines.buffer.data, lines.size);
    if (publish_file(partial, classes_path) && !path_exists(classes_path))
        fail_system(errno, classes_path, "create");
}

static void read_classes(void) {
    static bags_buffer file; /* the names stay in it */
    write_classes();
    bags_view content = file_read(classes_path, &file);
    char *at = (char *)file.data, *end = at + content.size;
    while (at < end) {
        size_t size = strcspn(at, "\n");
        at[size] = 0;
        if (size && at[size - 1] == '\r')
            at[size - 1] = 0;
        classes = (char **)grow(classes, classes_count, sizeof *classes);
        classes[classes_count++] = at;
        at += size + 1;
    }
}

/* The first line with the name. */
static uint64_t find_class(const char *label) {
    static size_t at; /* images of one class follow each other */
    if (at < classes_count && !strcmp(classes[at], label))
        return at;
    for (at = 0; at < classes_count; at++)
        if (!strcmp(classes[at], label))
            return at;
    fail(BAGS_ERROR_VALUE, "%s: no line \"%s\"", classes_path, label);
}

/* ---- writing them ---- */

static size_t converted, renamed;
static size_t turned, to_turn; /* with an EXIF orientation other than 1 */

static size_t damaged, damaged_pngs;

/* Decode a file, turned upright, and encode it as the field's type. */
static bags_code convert(const char *from, bags_view file, bags_view *out) {
    static bags_buffer decoded, encoded;
    bags_value value;
    codec_check(from);
    registry_orient();
    registry_expand_palettes(true); /* a JPEG of indices would be no image */
    bags_code code =
        bags_decode(registry_get(), from, file, &decoded, &value, &failure);
    return code ? code
                : bags_encode(registry_get(), type, &value, &encoded, out, &failure);
}

/* Read an image, as its blob. False, and `failure` states why, if it is damaged or
 * cannot be converted. */
static bool read_image(const image *one, bags_value *out) {
    static bags_buffer buffer;
    char *path = path_join(root, one->path);
    bags_view file = file_read(path, &buffer), blob = file;
    const char *found = type_of_bytes(file);
    free(path);
    if (!found || strcmp(found, one->png ? "png" : "jpeg"))
        fail(BAGS_ERROR_VALUE, "changed since it was found");
    bool fits = !strcmp(type, "bytes") || one->png == !strncmp(type, "png", 3);
    bags_code code =
        fits ? bags_image_check(file, &failure) : convert(found, file, &blob);
    if (code == BAGS_ERROR_MEMORY)
        die();
    if (code)
        return false;
    bool upright = bags_image_orientation(file) == 1;
    converted += !fits;
    turned += !fits && !upright;
    to_turn += fits && !upright;
    *out = bags_blob(blob.data, blob.size);
    return true;
}

/* Bytes that are not UTF-8 become \xff. */
static bags_value name_value(text *out, const char *name) {
    size_t size = strlen(name);
    out->size = 0;
    for (size_t i = 0; i < size; i++) {
        size_t valid = size - i;
        bool good = bags_utf8_valid(name + i, size - i, &valid);
        text_put(out, name + i, valid);
        i += valid;
        if (!good)
            text_format(out, "\\x%02x", (unsigned char)name[i]);
    }
    return bags_utf8_sized((char *)out->buffer.data, out->size);
}

static const image *current; /* for failures */

/* With --resume, images that exist are not read, unless damaged ones are left out. */
static void add_image(const image *one) {
    static text label, path;
    bags_value values[3];
    current = one;
    /* One that is left out is not the next datapoint: it is read first. */
    if (skip_damaged && !read_image(one, &values[0])) {
        damaged++;
        damaged_pngs += one->png;
        note("%s/%s: left out: %s", root, one->path, failure.message);
        return;
    }
    if (!sink_next())
        return;
    if (!skip_damaged && !read_image(one, &values[0])) {
        failure_suffix("; --skip-damaged leaves it out");
        die();
    }
    values[1] = classes_path ? bags_uint(find_class(one->label))
                             : name_value(&label, one->label);
    values[2] = name_value(&path, one->path);
    renamed += path.size > strlen(one->path);
    sink_begin();
    for (size_t i = 0; i < 3; i++)
        sink_put(i, 0, &values[i]);
    sink_end();
    current = NULL;
}

static void explain_failure(void) {
    char *path = current ? path_join(root, current->path) : NULL;
    if (path && strncmp(failure.message, path, strlen(path)) != 0)
        failure_prefix("%s: ", path);
    free(path);
    sink_failed();
}

static void print_left_out(size_t number, const char *unit, const char *reason) {
    if (number)
        print("%s: left out: %s (%s)\n", root, counted(number, unit), reason);
}

static void print_summary(void) {
    size_t labels = 0;
    for (size_t i = 0; i < count; i++)
        labels += is_new_label(i);
    size_t good = count - damaged, good_pngs = pngs - damaged_pngs;
    print("%s: %s of type %s (%zu JPEG, %zu PNG), %s\n", root, counted(good, "image"),
        type, good - good_pngs, good_pngs, counted(labels, "label"));
    if (converted)
        print("%s: converted: %zu %s\n", root, converted,
            strncmp(type, "png", 3) ? "PNG to JPEG" : "JPEG to PNG");
    if (turned)
        print("%s: turned upright: %zu of them, by their EXIF orientation\n", root,
            turned);
    if (to_turn)
        print("%s: %s with an EXIF orientation, to be turned by readers "
              "(bags load --orient)\n",
            root, counted(to_turn, "image"));
    if (renamed)
        print("%s: %zu path%s not UTF-8: invalid bytes are written as \\xff\n", root,
            renamed, renamed == 1 ? " is" : "s are");
    print_left_out(damaged, "image", "damaged, or not to be converted");
    print_left_out(others, "file", "neither JPEG nor PNG");
    print_left_out(hidden, "hidden file", "or directory");
    print_left_out(linked, "link", "to directories within a class");
}

static bool is_image_type(void) {
    bags_type parsed;
    type_class kind = type_kind(type);
    return !bags_type_parse(type, &parsed, NULL) && !parsed.sequence &&
           (kind == TYPE_IMAGE || !strcmp(type, "bytes"));
}

static int run(char **operands) {
    root = operands[0];
    if (type && !is_image_type())
        usage("--type: \"%s\" is not jpeg, png or bytes", type);
    if (type && !type_is_valid(type))
        usage("--type: %s", failure.message);
    writing_check(operands[1], false);
    interrupt_leaves("nothing was added", "start again with", NULL);
    find_images();
    if (classes_path)
        read_classes();
    bags_field fields[3] = {
        {"image", type}, {"label", classes_path ? "int(4)" : "utf8"}, {"path", "utf8"}};
    on_failure = explain_failure;
    sink_open(operands[1], root, fields, 3, false);
    for (size_t i = 0; i < count; i++) {
        interrupt_check();
        /* Which worker writes an image does not depend on what else the folder contains,
         * now or when the worker is resumed. */
        if (writing_is_mine(format_hash(0, images[i].path, strlen(images[i].path))))
            add_image(&images[i]);
        progress_show("images", "images", i + 1, count, sink_length());
    }
    progress_end();
    print_summary();
    sink_finish();
    return 0;
}

const command command_images = {"images", "a dataset from folders of images", "DIR OUT",
    {ARGUMENT_LOCAL, ARGUMENT_LOCAL}, 2, 2, options, writing_options,
    "Packs the JPEG and PNG files in DIR, as they are, into the fields image, "
    "label (the folder in DIR that contains it; \"\" for files in DIR itself) "
    "and path (relative to DIR), sorted by label and path. The first bytes of "
    "a file state its format. Other files, files of Bags, and hidden ones, are "
    "left out and counted. Links to files, and class folders that are links, "
    "are followed; links to other directories are not. A file that is truncated is an "
    "error.\n"
    "Workers share the images by a hash of their paths: --shard-start W of K "
    "packs those whose 64-bit FNV-1a hash is W modulo K.\n",
    "  bags images imagenet/train train --shard-size 1G --classes names.txt\n", run};
