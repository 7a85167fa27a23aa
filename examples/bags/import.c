/*
 * bags import: import other formats as a dataset. `bags images` is `bags import --from
 * images` with its own options.
 */
#include "command.h"
#include "system.h"

#include "detect.h"
#include "modules.h"
#include "text.h"

#include <errno.h>
#include <signal.h>

/* The importers of this build, in the order in which they are tried. */
#define IMPORTER(name) {#name, NULL, &bags_import_##name, NULL},
#define IMPORTER_WITH(name, detect) {#name, LINKED(bags_import_##name), detect},
static const struct built {
    const char *name, *symbol;
    const bags_importer *importer;    /* NULL: it is in a module, under this symbol, */
    bool (*detect)(const char *path); /* and has this function; otherwise may be NULL */
} importers[] = {
#include "importers.h"
    {NULL, NULL, NULL, NULL},
};

static const char *const header_names[] = {"yes", "no", NULL};
/* In the order of bags_dtype, from BAGS_DTYPE_UINT8 on. */
static const char *const dtype_names[] = {
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", NULL};

static option_choice from = CHOICE(importers);
static option_choice layout = CHOICE(layout_names);
static option_choice header = CHOICE(header_names);
static option_choice raw_dtype = CHOICE(dtype_names);
static option_number separator;
static option_number document = {0, 1, INT32_MAX, false};
static const char *fields_words, *types_words;
static const char *image_type, *classes_path;
static bool dry_run, any_type, skip_damaged, decode;

/* The options for image folders. */
#define IMAGES_OPTIONS                                                                 \
    {"classes", OPTION_PATH, &classes_path, "FILE",                                    \
        "labels of images are numbers, int(4): the line of the class folder's name "   \
        "in FILE, from 0. If FILE is missing, it is written with the sorted names"},   \
        {"skip-damaged", OPTION_FLAG, &skip_damaged, NULL,                             \
            "leave out, name and count images that are damaged or cannot be "          \
            "converted"},                                                              \
        OPTION_MAX_PIXELS

static const option options[] = {
    {"from", OPTION_CHOICE, &from, "KIND", "the format of SRC, if it is not detected"},
    {"dry-run", OPTION_FLAG, &dry_run, NULL,
        "write nothing; print the \"spec\", \"length\" (or null) and "
        "\"first\" datapoint as JSON"},
    {"layout", OPTION_CHOICE, &layout, "LAYOUT",
        "of HDF5: datapoints are rows or episodes (groups)"},
    {"header", OPTION_CHOICE, &header, "yes|no",
        "of CSV: the first line is the header, or data"},
    {"decode", OPTION_FLAG, &decode, NULL,
        "of MCAP: fields are the members of messages"},
    {"dtype", OPTION_CHOICE, &raw_dtype, "DTYPE",
        "of raw tokens: what a .bin file contains"},
    {"separator", OPTION_NUMBER, &separator, "ID",
        "of raw tokens: the last token of each document"},
    {"document", OPTION_NUMBER, &document, "N",
        "of raw tokens: their number in each document"},
    {"fields", OPTION_TEXT, &fields_words, "FIELDS",
        "import only these, some renamed: photo,label=class"},
    {"type", OPTION_TEXT, &types_words, "TYPES",
        "store fields as other types: photo=jpeg,label=int(4)"},
    {"any-type", OPTION_FLAG, &any_type, NULL,
        "accept types without a codec in --type, unchecked"},
    IMAGES_OPTIONS,
    OPTIONS_END,
};

static const option images_options[] = {
    {"type", OPTION_TEXT, &image_type, "T",
        "type of the field image: jpeg, jpeg(90), png or webp converts files of other "
        "formats; bytes keeps every file unchanged, but readers do not decode it. "
        "Required if DIR contains more than one format"},
    IMAGES_OPTIONS,
    OPTIONS_END,
};

/* ---- importers ---- */

static const char *importers_names(void) {
    static text names;
    names.size = 0;
    for (size_t i = 0; importers[i].name; i++)
        text_format(&names, "%s%s", i ? " " : "", importers[i].name);
    return text_string(&names);
}

void importers_print(void) { printf("importers: %s\n", importers_names()); }

static const bags_importer *importer_open(const struct built *importer) {
    if (importer->importer)
        return importer->importer;
    char *format = string_format("import/%s", importer->name);
    const bags_importer *opened =
        (const bags_importer *)module_find(format, importer->symbol, &failure);
    must_open(opened);
    free(format);
    return opened;
}

/* Find the importer of a path, unless --from names it. */
static const bags_importer *importer_find(const char *path) {
    static bags_importer known[sizeof importers / sizeof *importers];
    static const bags_importer *list[sizeof importers / sizeof *importers];
    size_t found = from.value;
    for (size_t i = 0; importers[i].name; i++) {
        known[i].name = importers[i].name;
        known[i].detect =
            importers[i].detect ? importers[i].detect : importers[i].importer->detect;
        list[i] = &known[i];
    }
    if (!from.given)
        must(bags_import_recognize(list, path, &found, &failure));
    return importer_open(&importers[found]);
}

/* ---- fields ---- */

/* A word of --fields or --type: NAME=VALUE, or NAME with a value of NULL. */
typedef struct pair {
    char *name, *value;
} pair;

static pair *fields_given, *types_given;
static size_t fields_given_count, types_given_count;

static pair *split(const char *words, size_t *length) {
    char *at = words ? string_format("%s", words) : NULL;
    pair one, *pairs = NULL;
    while (list_next(&at, &one.name, &one.value)) {
        pairs = (pair *)grow(pairs, *length, sizeof *pairs);
        pairs[(*length)++] = one;
    }
    return pairs;
}

/* A field of the dataset. */
typedef struct plan {
    const char *name, *type;
    size_t from; /* the field's index in the source */
    bool sequence;
    bool typed; /* --type specified the type */
    bags_conversion *conversion;
} plan;

static const char *source_name; /* the path, for messages */
static bags_source *source;
static bool images; /* the source is a folder of images */
static plan *plans;
static size_t count;

/* The index of a field of the source. The word may also be the field's original
 * name. */
static size_t find_source(const char *word) {
    size_t size = strlen(word);
    char *name = (char *)allocate(size + 2, 1);
    bags_import_name(word, size, name);
    size_t i = field_find(source->fields, source->count, name, strlen(name));
    free(name);
    if (i == source->count)
        fail_field(source_name, word, source->fields, source->count);
    return i;
}

static void add_plan(size_t field, const char *name) {
    plan one = {name, source->fields[field].type, field, false, false, NULL};
    plans = (plan *)grow(plans, count, sizeof *plans);
    plans[count++] = one;
}

/* Add a field given by --fields, possibly renamed. Neither a name nor a field may be
 * repeated. */
static void add_given(size_t field, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(plans[i].name, name))
            usage("--fields: fields \"%s\" and \"%s\" would both be named "
                  "\"%s\"",
                source->fields[plans[i].from].name, source->fields[field].name, name);
        if (plans[i].from == field)
            usage("--fields: duplicate field \"%s\"", source->fields[field].name);
    }
    add_plan(field, name);
}

/* Add the fields in --fields, or all fields without it. */
static void select_fields(void) {
    for (size_t i = 0; i < fields_given_count; i++) {
        size_t field = find_source(fields_given[i].name);
        const char *renamed = fields_given[i].value;
        add_given(field, renamed ? renamed : source->fields[field].name);
    }
    for (size_t i = 0; i < source->count && !fields_words; i++)
        add_plan(i, source->fields[i].name);
}

/* True for the field whose type the importer itself determines. */
static bool is_image(size_t field) {
    return images && !strcmp(source->fields[field].name, "image");
}

/* Apply --type: a name refers to a field of the dataset, or else of the source. */
static void override_types(void) {
    for (size_t k = 0; k < types_given_count; k++) {
        const char *name = types_given[k].name, *type = types_given[k].value;
        size_t i = 0;
        while (i < count && strcmp(plans[i].name, name))
            i++;
        size_t field = i < count ? plans[i].from : find_source(name);
        for (i = 0; i < count && plans[i].from != field;)
            i++;
        if (i == count)
            usage("--type: field \"%s\" is not among --fields", name);
        if (plans[i].typed)
            usage("--type: duplicate field \"%s\"", name);
        plans[i].type = type_complete(type);
        plans[i].typed = true;
        if (!any_type && !is_image(field))
            codec_check(plans[i].type);
    }
}

static void open_conversion(plan *to) {
    bool convert = to->typed && !is_image(to->from);
    bags_conversion_options how = {registry_get(), msgpack_pack};
    to->conversion = bags_conversion_open(
        source->fields[to->from].type, convert ? to->type : NULL, &how, &failure);
    must_open(to->conversion);
}

/* The fields of the dataset, in storage order. */
static bags_field *plan_fields(void) {
    select_fields();
    override_types();
    if (count == 0)
        fail(BAGS_ERROR_FIELD, "%s: it has no fields", source_name);
    /* The order in spec.json. */
    qsort(plans, count, sizeof *plans, format_compare_texts);
    bags_field *fields = (bags_field *)allocate(count, sizeof *fields);
    for (size_t i = 0; i < count; i++) {
        bags_type parsed;
        fields[i].name = plans[i].name;
        fields[i].type = plans[i].type;
        if (bags_type_parse(fields[i].type, &parsed, &failure)) {
            failure_prefix("field \"%s\": ", fields[i].name);
            die();
        }
        plans[i].sequence = parsed.sequence;
        open_conversion(&plans[i]);
    }
    return fields;
}

/* True if a word refers to this field of the source. */
static bool is_meant(const char *word, const char *field) {
    size_t size = strlen(word), length = strlen(field);
    char *name = (char *)allocate(size + length + 4, 1);
    bags_import_name(word, size, name);
    bags_import_name(field, length, name + size + 2);
    bool same = !strcmp(name, name + size + 2);
    free(name);
    return same;
}

/* The type given by --type for a field of the source, or NULL; see override_types. */
static const char *find_type(const char *field) {
    const char *name = field, *found = NULL;
    for (size_t i = 0; i < fields_given_count; i++)
        if (fields_given[i].value && is_meant(fields_given[i].name, field))
            name = fields_given[i].value;
    for (size_t i = 0; i < types_given_count; i++)
        if (!strcmp(types_given[i].name, name) || is_meant(types_given[i].name, field))
            found = types_given[i].value;
    return found;
}

static bags_source_want what_is_wanted(void *user, const char *field) {
    const char *type = find_type(field);
    (void)user;
    return type ? bags_conversion_want(type) : BAGS_WANT_NOTHING;
}

/* ---- images ---- */

/* Check the type of the images before searching for files. */
static void check_image_type(void) {
    bags_type parsed;
    if (!image_type)
        return;
    bool known = !bags_type_parse(image_type, &parsed, NULL) && !parsed.sequence &&
                 (type_kind(image_type) == TYPE_IMAGE || !strcmp(image_type, "bytes"));
    if (!known)
        usage("--type: \"%s\" is not jpeg, png, webp or bytes", image_type);
    if (!type_is_valid(image_type)) {
        failure_prefix("--type: ");
        failure.code = BAGS_ERROR_ARGUMENT;
        die();
    }
}

static void show_note(void *user, const char *message) {
    (void)user;
    note("%s", message);
}

/* Turn images upright and expand palettes if images are converted: a JPEG of palette
 * indices would not show the image. */
static void prepare_images(bags_source_options *how) {
    check_image_type();
    registry_orient();
    registry_expand_palettes(true);
    how->image_type = image_type;
    how->registry = registry_get();
    how->class_numbers = classes_path != NULL;
    how->skip_damaged = skip_damaged;
}

ENDS static void fail_open(void) {
    const char *field = !strcmp(failed_command, "images") ? "" : "image=";
    if (images && failure.code == BAGS_ERROR_ARGUMENT)
        failure_suffix("; choose --type %sjpeg, --type %spng or --type %swebp to "
                       "convert, or --type %sbytes to store them without decoding",
            field, field, field, field);
    die();
}

static const char **classes; /* the lines in the --classes file */
static size_t classes_count;

/* Write the names of the class folders to the file, unless it exists. Several workers
 * may do so at once: the first to finish counts, even if another one found a new
 * folder. */
static void write_classes(void) {
    static text lines;
    static char *partial;
    if (path_exists(classes_path))
        return;
    partial = string_format("%s.%ju.partial", classes_path, (uintmax_t)getpid());
    for (size_t i = 0; i < source->images->class_count; i++)
        text_format(&lines, "%s\n", source->images->classes[i]);
    file_write(partial, lines.buffer.data, lines.size);
    if (publish_file(partial, classes_path) && !path_exists(classes_path))
        fail_system(errno, classes_path, "create");
}

static void read_classes(void) {
    static bags_buffer file; /* the names point into it */
    if (dry_run && !path_exists(classes_path)) {
        classes = source->images->classes;
        classes_count = source->images->class_count;
        return;
    }
    write_classes();
    bags_view content = file_read(classes_path, &file);
    char *at = (char *)file.data, *end = at + content.size;
    while (at < end) {
        size_t size = strcspn(at, "\n");
        at[size] = 0;
        if (size && at[size - 1] == '\r')
            at[size - 1] = 0;
        classes = (const char **)grow(classes, classes_count, sizeof *classes);
        classes[classes_count++] = at;
        at += size + 1;
    }
}

/* The number of the first line with the name of a class. */
static uint64_t find_class(const char *name) {
    static size_t at; /* images of the same class are adjacent */
    if (at < classes_count && !strcmp(classes[at], name))
        return at;
    for (at = 0; at < classes_count; at++)
        if (!strcmp(classes[at], name))
            return at;
    fail(BAGS_ERROR_VALUE, "%s: no line \"%s\"", classes_path, name);
}

static void print_left_out(uint64_t number, const char *unit, const char *reason) {
    if (number)
        print("%s: left out: %s (%s)\n", source_name, counted(number, unit), reason);
}

/* Print the formats of the converted images, and the new one. */
static void print_converted(const bags_images *about) {
    static const char *const names[] = {"JPEG", "PNG", "WebP"};
    const uint64_t counts[] = {about->jpegs, about->pngs, about->webps};
    size_t to = !strncmp(about->type, "png", 3)    ? 1
                : !strncmp(about->type, "webp", 4) ? 2
                                                   : 0;
    static text old;
    old.size = 0;
    for (size_t i = 0; i < 3; i++)
        if (i != to && counts[i])
            text_format(&old, "%s%s", old.size ? " and " : "", names[i]);
    print("%s: converted: %ju %s to %s\n", source_name, (uintmax_t)about->converted,
        text_string(&old), names[to]);
}

static void print_images(const bags_images *about) {
    const char *webps =
        about->webps ? temp_format(", %ju WebP", (uintmax_t)about->webps) : "";
    print("%s: %s of type %s (%ju JPEG, %ju PNG%s), %s\n", source_name,
        counted(about->jpegs + about->pngs + about->webps, "image"), about->type,
        (uintmax_t)about->jpegs, (uintmax_t)about->pngs, webps,
        counted(about->class_count, "label"));
    if (about->converted)
        print_converted(about);
    if (about->turned)
        print("%s: turned upright: %ju of them, by their EXIF orientation\n",
            source_name, (uintmax_t)about->turned);
    if (about->to_turn)
        print("%s: %s with an EXIF orientation, to be turned by readers "
              "(bags load --orient)\n",
            source_name, counted(about->to_turn, "image"));
    if (about->renamed)
        print("%s: %ju path%s not UTF-8: invalid bytes are written as \\xff\n",
            source_name, (uintmax_t)about->renamed,
            about->renamed == 1 ? " is" : "s are");
    print_left_out(about->damaged, "image", "damaged, or not to be converted");
    print_left_out(about->others, "file", "neither JPEG nor PNG nor WebP");
    print_left_out(about->hidden, "hidden file", "or directory");
    print_left_out(about->links, "link", "to directories within a class");
}

/* ---- values ---- */

static bool in_datapoint; /* a failure is in this datapoint, */
static uint64_t datapoint;
static const plan *in_plan; /* in a value of this field; NULL: unknown */

/* The number of values for a field of the dataset. */
static size_t count_values(const bags_entry *entry, const plan *to) {
    size_t found = 0;
    in_plan = to;
    must(bags_conversion_count(to->conversion, entry, &found, &failure));
    in_plan = NULL;
    return found;
}

static bags_value value_of(const bags_entry *entry, size_t item, const plan *to) {
    bags_value value;
    in_plan = to;
    must(bags_conversion_get(to->conversion, entry, item, &value, &failure));
    if (classes_path && !strcmp(source->fields[to->from].name, "label"))
        value = bags_uint(find_class(source->images->classes[value.uint]));
    in_plan = NULL;
    return value;
}

/* ---- --dry-run ---- */

static void show_entry(const bags_entry *entry, const plan *field, text *line) {
    static bags_buffer scratch, decoded;
    size_t values = count_values(entry, field);
    text_puts(line, field->sequence ? "[" : "");
    for (size_t j = 0; j < values; j++) {
        bags_value value = value_of(entry, j, field);
        bags_view blob = {(const unsigned char *)value.data, value.size};
        in_plan = field;
        if (value.kind != BAGS_KIND_BLOB)
            must(bags_encode(
                registry_get(), field->type, &value, &scratch, &blob, &failure));
        in_plan = NULL;
        if (field->sequence)
            text_next(line);
        failure.code = BAGS_OK;
        bool shown =
            value_is_shown(field->type) &&
            !bags_decode(registry_get(), field->type, blob, &decoded, &value, &failure);
        value_show(field->type, blob, shown ? &value : NULL, false, line);
    }
    text_puts(line, field->sequence ? "]" : "");
}

/* --dry-run: show one datapoint without writing anything. */
static void show(const bags_field *fields) {
    static text line;
    const bags_entry *entries;
    must(bags_source_read(source, 0, &entries, &failure));
    in_datapoint = true;
    text_puts(&line, "{");
    text_member(&line, "spec");
    text_spec(&line, fields, count);
    if (source->length == BAGS_SOURCE_UNKNOWN)
        text_member_string(&line, "length", NULL);
    else
        text_member_number(&line, "length", source->length);
    text_member(&line, "first");
    text_puts(&line, entries ? "{" : "null");
    for (size_t i = 0; entries && i < count; i++) {
        text_member(&line, plans[i].name);
        show_entry(&entries[plans[i].from], &plans[i], &line);
    }
    text_puts(&line, entries ? "}}\n" : "}\n");
    text_output(&line);
    in_datapoint = false;
}

/* ---- writing ---- */

static void put_datapoint(const bags_entry *entries) {
    in_datapoint = true;
    sink_begin();
    for (size_t i = 0; i < count; i++) {
        const bags_entry *entry = &entries[plans[i].from];
        size_t values = count_values(entry, &plans[i]);
        for (size_t j = 0; j < values; j++) {
            bags_value value = value_of(entry, j, &plans[i]);
            sink_put(i, j, &value);
        }
    }
    sink_end();
    in_datapoint = false;
}

/* Write all datapoints of this worker. If the length is unknown, or datapoints may be
 * left out, each is read before the sink counts it. */
static void put_all(void) {
    const bags_entry *entries;
    bool known = source->length != BAGS_SOURCE_UNKNOWN;
    bool early = !known || skip_damaged;
    for (datapoint = 0; !known || datapoint < source->length; datapoint++) {
        interrupt_check();
        if (!writing_is_mine(source->shares ? source->shares[datapoint] : datapoint) ||
            (!early && !sink_next()))
            continue;
        if (bags_source_read(source, datapoint, &entries, &failure)) {
            if (source->damaged)
                failure_suffix("; --skip-damaged leaves it out");
            die();
        }
        if (source->damaged)
            continue;
        if (!entries && known)
            fail(BAGS_ERROR_CORRUPT, "%s: ends at datapoint %ju (expected %ju)",
                source_name, (uintmax_t)datapoint, (uintmax_t)source->length);
        if (!entries)
            break;
        if (!early || sink_next())
            put_datapoint(entries);
        progress_show(failed_command, images ? "images" : "datapoints", datapoint + 1,
            known ? source->length : 0, sink_length());
    }
    progress_end();
    /* Data after the last datapoint, such as a checksum or a count, may also be
     * invalid. */
    if (known) {
        must(bags_source_read(source, source->length, &entries, &failure));
        if (entries)
            fail(BAGS_ERROR_CORRUPT, "%s: has more than %ju datapoints", source_name,
                (uintmax_t)source->length);
    }
}

/* Append the position of the failure, and which data was kept. */
static void explain_failure(void) {
    progress_end();
    if (in_plan)
        failure_prefix("field \"%s\": ", in_plan->name);
    if (in_datapoint && images)
        failure_prefix("%s: ", source->where);
    else if (in_datapoint)
        failure_prefix("%s: datapoint %ju: ", source_name, (uintmax_t)datapoint);
    if (!dry_run)
        sink_failed();
}

#if defined BAGS_WITH_IMPORT_HDF5 && !defined _WIN32 && !defined __SANITIZE_ADDRESS__
/* libhdf5 crashes on some damaged files, and no prior check can prevent that. The
 * destination is left as after a kill. */
static void say_crashed(int number) {
    (void)number;
    fail_in_signal(source_name, "libhdf5 crashed; the file is damaged");
}

static void expect_crashes(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = say_crashed, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}
#else
static void expect_crashes(void) {}
#endif

static bool show_opening(void *user, uint64_t bytes) {
    (void)user;
    progress_show("reading", "MiB", 0, 0, bytes >> 20);
    return true;
}

/* Print a note about source content that no field contains. */
static void note_left_out(void) {
    static text line;
    for (size_t i = 0; i < source->left_out_count; i++) {
        const bags_left_out *kind = &source->left_out[i];
        line.size = 0;
        text_format(&line, "%s: left out: %ju %s%s (", source_name,
            (uintmax_t)kind->count, kind->what, kind->count > 1 ? "s" : "");
        for (size_t k = 0; k < BAGS_LEFT_OUT_NAMES && kind->names[k]; k++)
            text_format(&line, "%s%.200s", k ? ", " : "", kind->names[k]);
        text_puts(&line, kind->names_count > BAGS_LEFT_OUT_NAMES ? ", ...)" : ")");
        note("%s", text_string(&line));
    }
}

/* Refuse options that only other importers have. */
static void check_options(const bags_importer *importer) {
    const char *of_tokens = options_given("dtype|separator|document");
    const char *of_images = options_given("classes|skip-damaged|max-pixels");
    if (layout.given && strcmp(importer->name, "hdf5"))
        usage("--layout: only HDF5 has layouts (this is %s)", importer->name);
    if (header.given && strcmp(importer->name, "csv"))
        usage("--header: only CSV has headers (this is %s)", importer->name);
    if (decode && strcmp(importer->name, "mcap"))
        usage("--decode: only MCAP has messages (this is %s)", importer->name);
    if (of_tokens && strcmp(importer->name, "tokens"))
        usage("--%s: only of raw tokens; pass --from tokens (this is %s)", of_tokens,
            importer->name);
    if (of_images && !images)
        usage("--%s: only of images; pass --from images (this is %s)", of_images,
            importer->name);
}

static int import(char **operands) {
    bags_source_options how = {
        .progress = show_opening, .want = what_is_wanted, .note = show_note};
    if (layout.given)
        how.layout = layout.value ? BAGS_LAYOUT_EPISODES : BAGS_LAYOUT_ROWS;
    if (header.given)
        how.header = header.value ? BAGS_HEADER_NO : BAGS_HEADER_YES;
    how.decode = decode;
    how.dtype = raw_dtype.given ? (bags_dtype)(BAGS_DTYPE_UINT8 + (int)raw_dtype.value)
                                : BAGS_DTYPE_NONE;
    how.has_separator = separator.given;
    how.separator = separator.value;
    how.document = document.value;
    mapped_path = source_name = operands[0];
    on_failure = explain_failure;
    writing_check(operands[1], false);
    interrupt_leaves("nothing was added", "start again with", NULL);
    const bags_importer *importer = importer_find(source_name);
    images = !strcmp(importer->name, "images");
    check_options(importer);
    if (!strcmp(importer->name, "hdf5"))
        expect_crashes();
    if (images)
        prepare_images(&how);
    source = bags_source_open(importer, source_name, &how, &failure);
    if (!source)
        fail_open();
    progress_end();
    note_left_out();
    if (classes_path)
        read_classes();
    bags_field *fields = plan_fields();
    if (dry_run) {
        show(fields);
    } else {
        sink_open(operands[1], source_name, fields, count, false);
        put_all();
        if (images)
            print_images(source->images);
        sink_finish();
        if (source->metadata)
            sink_describe(source->metadata);
    }
    for (size_t i = 0; i < count; i++)
        bags_conversion_close(plans[i].conversion);
    bags_source_close(source);
    free(fields);
    return 0;
}

static int run(char **operands) {
    options_exclude("separator|document", NULL);
    if (!dry_run && !operands[1])
        usage("expected SRC DST");
    fields_given = split(fields_words, &fields_given_count);
    types_given = split(types_words, &types_given_count);
    for (size_t i = 0; i < types_given_count; i++)
        if (!types_given[i].value)
            usage("--type: \"%s\" is not FIELD=TYPE", types_given[i].name);
    image_type = find_type("image");
    return import(operands);
}

static int run_images(char **operands) {
    while (strcmp(importers[from.value].name, "images"))
        from.value++;
    from.given = true;
    return import(operands);
}

const command command_import = {"import", "a dataset from another format", "SRC DST",
    {ARGUMENT_LOCAL, ARGUMENT_LOCAL}, 1, 2, options, writing_options,
    "SRC is a file, a directory of files that belong together, or a "
    "pattern such as 'train-*.tar' with stars in its last part only. "
    "Encoded values are stored unchanged. "
    "formats/import/README.md lists the formats and their fields.\n"
    "--type converts text to numbers and msgpack (from JSON), lists of numbers to "
    "arrays, and the text of CSV; other bytes must be a blob of the type.\n"
    "After a failure, imported datapoints are kept: continue with --resume.\n",
    "  bags import train.tar pets --dry-run\n"
    "  bags import train.tar pets --fields jpg=photo,cls --type 'cls=int(4)'\n",
    run};

const command command_images = {"images", "a dataset from folders of images", "DIR OUT",
    {ARGUMENT_LOCAL, ARGUMENT_LOCAL}, 2, 2, images_options, writing_options,
    "Packs the JPEG, PNG and WebP files in DIR, as they are, into the fields image, "
    "label (the folder in DIR that contains it; \"\" for files in DIR itself) "
    "and path (relative to DIR), sorted by label and path. The first bytes of "
    "a file state its format. Other files, files of Bags, and hidden ones, are "
    "left out and counted. Links to files, and class folders that are links, "
    "are followed; links to other directories are not. A file that is truncated is an "
    "error.\n"
    "Workers share the images by a hash of their paths: --shard-start W of K "
    "packs those whose 64-bit FNV-1a hash is W modulo K.\n",
    "  bags images imagenet/train train --shard-size 1G --classes names.txt\n",
    run_images};
