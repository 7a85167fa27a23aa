/*
 * bags derive: make another version of a dataset, sharing or copying its Bags.
 */
#include "command.h"

#include <errno.h>

#include "formats.h"
#include "place.h"

static bags_derive_options given;
static const char *split, *keep_given, *drop_given, *rename_given, *joined, *lines, *by,
    *on, *stratify, *pixels_given;
static option_number seed, shard_size, shard_length, shard_start, shard_stop;
static bool copying, unsharded, with_checksums, without_checksums;

enum { MISSING_ERROR, MISSING_DROP, DUPLICATE_FIRST = 1 };

static const char *const missing_names[] = {"error", "drop", NULL};
static const char *const duplicate_names[] = {"error", "first", NULL};
static option_choice missing = CHOICE(missing_names);
static option_choice duplicate = CHOICE(duplicate_names);

static const option options[] = {
    SELECT_OPTIONS,
    SELECT_MORE_OPTIONS,
    {"split", OPTION_TEXT, &split, "NAME=PART,...",
        "'train=0.9,val=0.1' writes OUT/train and OUT/val: exact parts, chosen at "
        "random"},
    {"by", OPTION_TEXT, &by, "FIELD",
        "with --split: datapoints with equal values of FIELD are in one part"},
    {"stratify", OPTION_TEXT, &stratify, "FIELD",
        "with --split: each value of FIELD has its share in each part"},
    {"seed", OPTION_NUMBER, &seed, "S", "which random parts (0)"},
    {"fields", OPTION_TEXT, &keep_given, "FIELD,...", "only these fields"},
    {"drop", OPTION_TEXT, &drop_given, "FIELD,...", "all fields but these"},
    {"rename", OPTION_TEXT, &rename_given, "OLD=NEW,...", "new names for fields"},
    {"add", OPTION_TEXT, &joined, "DATASET",
        "the fields of another dataset: by --on, or by position if its shards have the "
        "same lengths; or, with --spec, of FILE.jsonl: for each datapoint of DATASET a "
        "line as for pack"},
    {"on", OPTION_TEXT, &on, "FIELD",
        "of --add DATASET: each datapoint gets the fields of the datapoint with an "
        "equal "
        "value of FIELD (or FIELD=OTHER, if the field has another name there)"},
    {"missing", OPTION_CHOICE, &missing, "error|drop",
        "with --on: fail if DATASET lacks a value (the default), or drop the "
        "datapoint"},
    {"duplicate", OPTION_CHOICE, &duplicate, "error|first",
        "with --on: fail if DATASET has a value twice (the default), or use the first"},
    {"spec", OPTION_TEXT, &lines, "SPEC", "of --add FILE.jsonl: 'score=float32'"},
    {"pixels", OPTION_TEXT, &pixels_given, "FIELD=WIDTHxHEIGHT,...",
        "'image=256x256': decode and resize the images of FIELD once, and store their "
        "pixels as array(uint8,HEIGHT,WIDTH,3)"},
    WORKER_OPTIONS(shard_start, shard_stop),
    {"copy", OPTION_FLAG, &copying, NULL,
        "copy the blobs instead of linking Bags: only referenced blobs, unchanged, in "
        "any order and to any shards"},
    {"shard-size", OPTION_SIZE, &shard_size, "N",
        "of a copy: start a new shard at N bytes: 512M, 10G"},
    {"shard-length", OPTION_NUMBER, &shard_length, "N",
        "of a copy: start a new shard at N datapoints (the length of the longest "
        "shard)"},
    {"unsharded", OPTION_FLAG, &unsharded, NULL, "of a copy: make no shards"},
    {"checksum", OPTION_FLAG, &with_checksums, NULL,
        "of a copy: write checksums: the default if DATASET has them"},
    {"no-checksum", OPTION_FLAG, &without_checksums, NULL, "of a copy: write none"},
    {"no-sync", OPTION_FLAG, &given.no_sync, NULL, "do not wait for stable storage"},
    OPTIONS_END,
};

/* Several datasets are treated as one; numbers continue from each to the next. */
static const bags_reader **readers;
static bags_derive_more *froms; /* the same datasets, for bags_derive */
static size_t froms_count;
static uint64_t length;  /* of all datasets */
static const char *from; /* the first dataset */
static bool checksums;   /* all datasets have them */

/* Open a dataset that provides datapoints or fields. */
static bags_reader *open_from(const char *path) {
    bags_reader *opened = dataset_open(path, registry_get());
    if (copying)
        checksums = checksums && dataset_has_checksums(opened);
    return opened;
}

static bool all_have_checksums(void) {
    size_t i = 0;
    while (i < froms_count && dataset_has_checksums(readers[i]))
        i++;
    return i == froms_count;
}

static void open_all(char **operands, size_t count) {
    froms = (bags_derive_more *)allocate(count, sizeof *froms);
    readers = (const bags_reader **)allocate(count, sizeof *readers);
    checksums = true;
    for (size_t i = 0; i < count; i++) {
        froms[i].path = path_without_secrets(operands[i]);
        readers[i] = open_from(froms[i].path);
        froms[i].io = io_for_path(froms[i].path);
        froms[i].version = bags_reader_version(readers[i]);
        length += bags_reader_length(readers[i]);
    }
    froms_count = count;
    from = froms[0].path;
    given.from = froms[0].io;
    given.version = froms[0].version;
    given.more = froms + 1;
    given.more_count = count - 1;
}

/* ---- directories next to OUT ---- */

/* Directories created by this process. They are removed after a failure. */
static char *claimed[3];
static size_t claimed_count;

static void remove_claimed(void) {
    for (size_t i = 0; i < claimed_count; i++)
        directory_remove(claimed[i]);
    claimed_count = 0;
}

static void explain_failure(void) {
    lines_explain();
    remove_claimed();
}

/* Make the directory OUT.ENDING, with this worker's number if there are several
 * workers. */
static const char *claim(const char *to, const char *ending) {
    const bags_io *io = bags_io_local();
    char *path = shard_stop.value > 1 ? string_format("%s.%s-%ju", to, ending,
                                            (uintmax_t)shard_start.value)
                                      : string_format("%s.%s", to, ending);
    directory_make(path_parent(path));
    int error = io->make_dir(io->user, path);
    if (error == EEXIST)
        must(format_fail_exists(io, path, true, &failure));
    must(bags_fail_io(io, error, path, "create directory", &failure));
    return claimed[claimed_count++] = path;
}

/* ---- fields ---- */

static const bags_field *fields;
static size_t fields_count;
static bags_derived_field *derived;
static size_t derived_count;

static bool *kept;
static const char **names;

static void rename_fields(void) {
    char *at = string_format("%s", rename_given), *name; /* names point into it */
    size_t i;
    while (fields_next(&at, "rename", from, fields, fields_count, &i, &name)) {
        if (!kept[i])
            usage("--rename: the field \"%s\" is left out", fields[i].name);
        if (names[i] != fields[i].name)
            usage("--rename: duplicate field \"%s\"", fields[i].name);
        names[i] = name;
    }
}

static void add_field(
    const char *name, const char *old, const char *other, uint64_t version) {
    derived = (bags_derived_field *)grow(derived, derived_count, sizeof *derived);
    bags_derived_field one = {
        name, old, other, other ? io_for_path(other) : NULL, version};
    derived[derived_count++] = one;
}

static bags_resized_field *pixels; /* the fields to store as pixels */
static size_t pixels_count;
static const char *pixels_path; /* the dataset of pixels, removed at the end */

/* Get one side from "WIDTHxHEIGHT", and advance past it. 0: not a side. */
static uint32_t parse_side(const char **at) {
    uint64_t side = 0;
    if (!format_decimal(at, NULL, &side) || side > 65535)
        return 0;
    return (uint32_t)side;
}

static void parse_pixels(const char *to) {
    char *list = string_format("%s", pixels_given), *at = list, *value;
    size_t i;
    while (fields_next(&at, "pixels", from, fields, fields_count, &i, &value)) {
        const char *end = value;
        bags_resized_field one = {fields[i].name, parse_side(&end), 0};
        if (*end == 'x') {
            end++;
            one.height = parse_side(&end);
        }
        if (!one.width || !one.height || *end)
            usage("--pixels: \"%s\" is not WIDTHxHEIGHT, with sides of 1 to 65535",
                value);
        if (!kept[i])
            usage("--pixels: the field \"%s\" is left out", fields[i].name);
        for (size_t k = 0; k < pixels_count; k++)
            if (!strcmp(pixels[k].name, one.name))
                usage("--pixels: duplicate field \"%s\"", one.name);
        pixels = (bags_resized_field *)grow(pixels, pixels_count, sizeof *pixels);
        pixels[pixels_count++] = one;
    }
    free(list);
    pixels_path = claim(to, "pixels");
}

static bool is_pixels(const char *name) {
    size_t i = 0;
    while (i < pixels_count && strcmp(pixels[i].name, name) != 0)
        i++;
    return i < pixels_count;
}

/* Let the datapoints of `joined` be matched by key. Returns the key's number there. */
static size_t choose_join(const bags_reader *other) {
    static bags_derive_join join;
    size_t count;
    const bags_field *theirs = bags_reader_fields(other, &count);
    char *own = string_format("%s", on), *equals = strchr(own, '=');
    join.dataset = joined;
    join.on = own;
    join.from = equals ? equals + 1 : own;
    if (equals)
        *equals = 0;
    join.drop = missing.value == MISSING_DROP;
    join.first = duplicate.value == DUPLICATE_FIRST;
    join.io = io_for_path(joined);
    join.version = bags_reader_version(other);
    (void)field_require(from, own, fields, fields_count);
    given.joins = &join;
    given.joins_count = 1;
    return field_require(joined, join.from, theirs, count);
}

static const bags_field *added; /* the fields of the lines */
static size_t added_count;

static void choose_fields(const char *to) {
    fields = bags_reader_fields(readers[0], &fields_count);
    kept = (bool *)allocate(fields_count + 1, sizeof *kept);
    names = (const char **)allocate(fields_count + 1, sizeof *names);
    for (size_t i = 0; i < fields_count; i++) {
        kept[i] = keep_given == NULL;
        names[i] = fields[i].name;
    }
    if (keep_given || drop_given) {
        char *list = string_format("%s", keep_given ? keep_given : drop_given);
        char *at = list;
        const char *which = keep_given ? "fields" : "drop";
        size_t i;
        while (fields_next(&at, which, from, fields, fields_count, &i, NULL))
            kept[i] = keep_given != NULL;
        free(list);
    }
    if (rename_given)
        rename_fields();
    if (pixels_given)
        parse_pixels(to);
    derived = (bags_derived_field *)allocate(1, sizeof *derived);
    for (size_t i = 0; i < fields_count; i++)
        if (kept[i])
            add_field(names[i], fields[i].name,
                is_pixels(fields[i].name) ? pixels_path : NULL, 0);
    if (lines) {
        path_must_be_local("--add", joined);
        added = lines_spec(joined, lines, &added_count);
        joined = claim(to, "lines");
        for (size_t i = 0; i < added_count; i++)
            add_field(added[i].name, NULL, joined, 0);
    } else if (joined) {
        size_t count;
        joined = path_without_secrets(joined);
        bags_reader *other = open_from(joined);
        const bags_field *more = bags_reader_fields(other, &count);
        size_t key = on ? choose_join(other) : count;
        for (size_t i = 0; i < count; i++)
            if (i != key) /* the source has it */
                add_field(string_format("%s", more[i].name), NULL, joined,
                    bags_reader_version(other));
        bags_reader_close(other);
    }
    given.fields = derived;
    given.fields_count = derived_count;
}

/* Encode the lines as a dataset with the same shards as DATASET. */
static void encode_lines(void) {
    uint64_t number = 0, found = 0;
    char *unread;
    size_t size;
    writing_no_sync(given.no_sync);
    for (size_t k = 0, count; k < froms_count; k++) {
        const bags_shard *shards = bags_reader_shards(readers[k], &count);
        for (size_t i = 0; i < count; i++) {
            char *path = string_format("%s/%06ju", joined, (uintmax_t)number++);
            sink_open(path, lines_path(), added, added_count, false);
            found += lines_put(shards[i].length);
            must(sink_close());
            free(path);
        }
    }
    for (; lines_next(-1, &unread, &size) != LINE_END; found++)
        interrupt_check();
    if (found != length)
        fail(BAGS_ERROR_VALUE, "%s: has %s, but %s %s", lines_path(),
            counted(found, "line"),
            froms_count > 1 ? "the datasets have" : temp_format("%s has", from),
            counted(length, "datapoint"));
}

/* ---- datapoints ---- */

static uint64_t *rows; /* NULL: all */
static size_t rows_count;

/* ---- deriving ---- */

/* Make the shards of a copy as long as the longest shard of DATASET, if it has
 * shards. */
static void choose_copy(void) {
    static bags_writer_options writing;
    bool limited = shard_size.given || shard_length.given;
    options_need("shard-size|shard-length|unsharded|checksum|no-checksum", "copy");
    options_exclude("unsharded", "shard-size|shard-length|shard-stop");
    options_exclude("checksum|no-checksum", NULL);
    if (!copying)
        return;
    writing.shard_size = shard_size.value;
    writing.shard_length = shard_length.value;
    for (size_t k = 0; k < froms_count && !unsharded && !limited; k++)
        shards_follow(readers[k], &writing);
    if (!writing.shard_stop && !limited)
        writing.shard_length = 0;
    if (shard_stop.value > 1 && (!writing.shard_length || writing.shard_size))
        usage("workers copy shards of a given --shard-length, without a --shard-size");
    writing.checksum = with_checksums || (checksums && !without_checksums);
    given.copy = &writing;
}

/* Derive the dataset at `path`, or end the program. */
static bags_derive_report must_derive(
    const char *path, const uint64_t *numbers, size_t count) {
    static char title[] = "derive";
    bags_derive_report made;
    given.rows = numbers;
    given.rows_count = count;
    given.shard_start = shard_start.value;
    given.shard_stop = shard_stop.value;
    interrupt_leaves(
        "nothing is complete; remove what is left", "start again with", NULL);
    bags_code code = dataset_derive(title, from, path, &given, &made);
    if (made.copy)
        failure_suffix(": use --copy");
    else if (made.missing && code)
        failure_suffix("; use --missing drop to drop them");
    must(code);
    return made;
}

static bags_derive_report derive(
    const char *path, const uint64_t *numbers, size_t count) {
    static bool noted; /* once for all parts */
    bags_derive_report made = must_derive(path, numbers, count);
    if (made.metadata && !noted)
        note("%s: its info.json differs from the info.json of %s, and is not carried",
            made.metadata, from);
    noted = noted || made.metadata;
    if (made.missing)
        note("%s: %s dropped: %s has no datapoint with an equal key", path,
            counted(made.missing, "datapoint"), joined);
    return made;
}

/* Decoding takes long: first derive the dataset with links to the images, so that
 * whatever prevents links is found now. */
static void check_links(void) {
    bags_derived_field *checked =
        (bags_derived_field *)allocate(derived_count + 1, sizeof *checked);
    char *path = path_join(pixels_path, "checked");
    for (size_t i = 0; i < derived_count; i++) {
        checked[i] = derived[i];
        if (checked[i].dataset == pixels_path)
            checked[i].dataset = NULL;
    }
    given.fields = checked;
    must_derive(path, rows, rows_count);
    given.fields = derived;
    directory_remove(path);
    free(path);
    free(checked);
}

static bool show_images(void *title, uint64_t done, uint64_t total) {
    progress_show((const char *)title, "images", done, total, done);
    return !interrupt_pending();
}

/* Decode the selected images to the dataset at pixels_path. */
static void store_pixels(const char *to) {
    static char title[] = "decode";
    bags_resize_options how = {0};
    if (shard_stop.value < 2 && path_exists(to))
        must(format_fail_exists(bags_io_local(), to, false, &failure));
    if (!given.copy)
        check_links();
    how.fields = pixels;
    how.field_count = pixels_count;
    how.rows = rows;
    how.rows_count = rows_count;
    how.shard_start = shard_start.value;
    how.shard_stop = shard_stop.value;
    how.shard_length = given.copy ? given.copy->shard_length : 0;
    how.checksum = given.copy ? given.copy->checksum : all_have_checksums();
    how.no_sync = given.no_sync;
    how.images = images_linked();
    how.progress = show_images;
    how.user = title;
    interrupt_defer();
    bags_code code = bags_resize(readers, froms_count, pixels_path, &how, &failure);
    progress_end();
    must(code);
}

/* Print the result once everything has its final name. */
static void print_made(const char *to, const bags_derive_report *made) {
    if (!made->shards)
        print("%s: no shard is left for this worker\n", to);
    else if (!made->length)
        print("%s: nothing selected: made an empty dataset\n", to);
    else if (copying)
        print("%s: copied %s in %s, %s\n", to, counted(made->length, "datapoint"),
            counted(made->shards, "shard"), counted(made->made, "byte"));
    else
        print("%s: derived %s in %s, %s linked, %s new\n", to,
            counted(made->length, "datapoint"), counted(made->shards, "shard"),
            counted(made->linked, "byte"), counted(made->made, "byte"));
}

/* Print a note that OUT also contains the blobs that were not selected. */
static void print_shared(const char *to, uint64_t linked) {
    if (linked)
        print("%s: shares the files of %s; --copy omits the blobs that were not "
              "selected\n",
            to, from);
}

typedef struct split_part {
    const char *name;
    double part;
    bags_derive_report made;
} split_part;

static split_part *parts;
static size_t parts_count;

static void parse_split(void) {
    char *at = string_format("%s", split), *name, *value, *end;
    double sum = 0;
    while (list_next(&at, &name, &value)) {
        split_part one = {name, value ? strtod(value, &end) : -1, {0}};
        if (!value || !*value || *end || !(one.part > 0) || one.part > 1)
            usage("--split: \"%s\" is not NAME=PART, with a PART above 0 and up to 1",
                name);
        if (!*name || *name == '.' || strpbrk(name, "/\\:") ||
            !name[strspn(name, "0123456789")])
            usage("--split: \"%s\" cannot be the name of a dataset: it must not be a "
                  "number, begin with a dot, or contain / \\ or :",
                name);
        for (size_t i = 0; i < parts_count; i++)
            if (!strcmp(parts[i].name, name))
                usage("--split: duplicate name \"%s\"", name);
        parts = (split_part *)grow(parts, parts_count, sizeof *parts);
        parts[parts_count++] = one;
        sum += one.part;
    }
    if (sum > 1 + 1e-9)
        usage("--split: the parts add up to %g, more than 1", sum);
}

/* Assign each selected datapoint to a part, as bags_split does. Values of zstd(TYPE)
 * are compared as the blobs inside. */
static const uint32_t *assign_parts(void) {
    /* Still reachable after a failure. A variable that is only written would be removed. */
    static bags_buffer part_of;
    static double *volatile sizes;
    static const bags_reader **volatile blobs;
    bags_split_options how = {0};
    bool compressed = false;
    const char *const grouping[] = {by, stratify};
    blobs = (const bags_reader **)allocate(froms_count, sizeof(bags_reader *));
    for (size_t i = 0; i < 2; i++) {
        size_t field = grouping[i]
                           ? field_require(from, grouping[i], fields, fields_count)
                           : fields_count;
        compressed =
            compressed || (grouping[i] && type_is_compressed(fields[field].type));
    }
    for (size_t k = 0; k < froms_count; k++)
        blobs[k] = compressed
                       ? dataset_again(readers[k], froms[k].path, registry_blobs())
                       : readers[k];
    sizes = (double *)allocate(parts_count, sizeof(double));
    for (size_t k = 0; k < parts_count; k++)
        sizes[k] = parts[k].part;
    how.parts = sizes;
    how.parts_count = parts_count;
    how.seed = seed.value;
    how.by = by;
    how.stratify = stratify;
    how.rows = rows;
    how.rows_count = rows_count;
    bags_code code = bags_split(blobs, froms_count, &how, &part_of, &failure);
    if (code == BAGS_ERROR_ARGUMENT)
        failure_prefix("--split: ");
    must(code);
    for (size_t k = 0; compressed && k < froms_count; k++)
        bags_reader_close((bags_reader *)(uintptr_t)blobs[k]);
    free(blobs);
    return (const uint32_t *)(void *)part_of.data;
}

/* All parts appear at once, when OUT.parts is renamed to OUT, unless there are several
 * workers. */
static void derive_split(const char *to) {
    const bags_io *io = bags_io_local();
    if (!rows) {
        rows = select_all(length);
        rows_count = (size_t)length;
    }
    bool alone = shard_stop.value < 2;
    if (alone && path_exists(to))
        must(format_fail_exists(io, to, false, &failure));
    const uint32_t *part_of = assign_parts();
    static uint64_t *volatile numbers; /* still reachable after a failure */
    numbers = (uint64_t *)allocate(rows_count + 1, sizeof(uint64_t));
    const char *at = alone ? claim(to, "parts") : to;
    for (size_t k = 0; k < parts_count; k++) {
        size_t count = 0;
        for (size_t i = 0; i < rows_count; i++)
            if (part_of[i] == k)
                numbers[count++] = rows[i];
        char *path = path_join(at, parts[k].name);
        parts[k].made = derive(path, numbers, count);
        free(path);
    }
    if (alone) {
        int error = path_exists(to) ? EEXIST : io->rename(io->user, at, to);
        must(bags_fail_io(io, error, to, "rename", &failure));
        free(claimed[--claimed_count]);
        error = given.no_sync ? 0 : io->sync_dir(io->user, path_parent(to));
        must(bags_fail_io(io, error, to, "sync", &failure));
    }
    uint64_t linked = 0;
    for (size_t k = 0; k < parts_count; k++) {
        char *path = path_join(to, parts[k].name);
        print_made(path, &parts[k].made);
        linked += parts[k].made.linked;
        free(path);
    }
    print_shared(to, linked);
    free(numbers);
}

static int run(char **operands) {
    size_t count = 0;
    while (operands[count + 1])
        count++;
    char *to = operands[count];
    path_must_be_local("OUT", to);
    for (size_t size = strlen(to); size > 1 && to[size - 1] == '/';)
        to[--size] = 0;
    options_exclude("fields|drop", NULL);
    options_need("seed|by|stratify", "split");
    options_need("spec|on", "add");
    options_need("missing|duplicate", "on");
    options_exclude("spec|on", NULL);
    if (split && missing.value == MISSING_DROP)
        usage("--split: with --missing drop the parts would not be exact; derive the "
              "dataset first, and split it then");
    if (joined && !lines && has_ending(joined, ".jsonl"))
        usage("--add: %s needs --spec", joined);
    worker_check(&shard_start, &shard_stop);
    if (split && pixels_given && shard_stop.value > 1)
        usage("--pixels: with --split each worker would decode all images; derive the "
              "dataset with --pixels first, and split it then");
    if (has_ending(to, ".bag") || has_ending(to, ".zip"))
        usage("%s: the name of a dataset must not end in .bag or .zip", to);
    if (split)
        parse_split();
    path_must_be_writable(path_parent(to));
    path_must_be_outside(to);
    interrupt_leaves("nothing was derived", "start again with", NULL);
    open_all(operands, count);
    on_failure = explain_failure;
    choose_fields(to);
    choose_copy();
    rows = select_datapoints(readers, froms_count, length, &rows_count);
    if (lines)
        encode_lines();
    if (pixels_count)
        store_pixels(to);
    if (split) {
        derive_split(to);
    } else {
        bags_derive_report made = derive(to, rows, rows_count);
        print_made(to, &made);
        print_shared(to, made.linked);
    }
    remove_claimed();
    return 0;
}

const command command_derive = {"derive",
    "another version of a dataset, without copying", "DATASET... OUT",
    {ARGUMENT_PATH, ARGUMENT_PATH, ARGUMENT_PATH}, 2, 0, options, NULL,
    "Makes a dataset of some datapoints or fields of DATASET in milliseconds, without "
    "copying data: its Bags are hard links to the Bags of DATASET. It is an ordinary "
    "dataset, also for Python, and stays complete when DATASET is removed. OUT must "
    "not exist, and must be on the same file system.\n"
    "Selections apply in the order of this list; names and numbers refer to DATASET. "
    "Each shard has datapoints of one shard; empty shards are skipped. If nothing is "
    "selected, OUT is an empty dataset. Checksums are carried over. If another process "
    "replaces DATASET, the command fails; workers do not compare their versions.\n"
    "--pixels decodes each selected image once, so that `bags load --crop` and "
    "training "
    "decode nothing: RGB, the entire image resized as the loader does, not turned by "
    "EXIF data. All other fields are linked.\n"
    "--copy does what links cannot: an order across shards, shards of other sizes, "
    "several DATASETs (of one spec; numbers continue; --where runs on each "
    "separately), or a DATASET on a server or in an archive.\n"
    "A killed process leaves directories without spec.json, or OUT.derived, OUT.parts, "
    "OUT.pixels or OUT.lines: the next run names the files to remove.\n",
    "  bags derive pets cats --rows cats.txt --drop path\n"
    "  bags derive pets parts --split train=0.9,val=0.1 --seed 1\n"
    "  bags derive pets named --add captions --on id --missing drop\n"
    "  bags derive pets scored --add scores.jsonl --spec 'score=float32'\n"
    "  bags derive pets small --pixels image=256x256\n"
    "  bags derive pets more all --copy --shuffle 1 --shard-size 1G\n",
    run};
