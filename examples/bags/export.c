/*
 * bags export: a Bag or a dataset as a manifest of JSON lines and files.
 *
 *     OUT/spec.json                the fields and their types
 *     OUT/manifest.jsonl           one line per datapoint; written last
 *     OUT/files/FIELD/000012.jpg   blobs; 000012-000003.jpg: of a sequence
 *
 * The manifest receives its name when it is complete. If something fails, what
 * was created is removed: all of it is in OUT, which was empty or missing.
 */
#include "command.h"
#include "system.h"

#define MAX_INLINE 256 /* bytes of blobs that --raw writes into the line */
#define WRITE_SIZE ((size_t)1 << 16)
#define MAX_TEXT ((size_t)1 << 27) /* bytes of text in the line */

static bool raw, npy, lists;

static const option options[] = {
    {"lists", OPTION_FLAG, &lists, NULL,
        "write arrays of up to 1024 elements into the lines, as nested lists"},
    {"npy", OPTION_FLAG, &npy, NULL,
        "write arrays as .npy files, {\"from\": PATH}, for other programs"},
    {"raw", OPTION_FLAG, &raw, NULL,
        "decode nothing: {\"base64\": TEXT} for up to 256 bytes, otherwise "
        "{\"file\": PATH}. Packing this gives the same bytes again"},
    OPTIONS_END,
};

static const bags_field *fields;
static size_t count;
static const char *out;
static bool made_out; /* OUT was missing before */
static char *partial, *manifest, *spec;
static char **directories; /* files/FIELD, for each field, */
static bool *made;         /* and whether it was created */
static uint64_t files;     /* written there */
static void *manifest_file;
static uint64_t written; /* bytes of it */
static text line;        /* what is written next */

/* ---- one value ---- */

/* {"file": "files/photo/000012.jpg"} */
static void put_file(const char *key, uint64_t index, size_t field, size_t item,
    const char *ending, bags_view blob) {
    char suffix[32] = "";
    if (source_is_sequence(field))
        snprintf(suffix, sizeof suffix, "-%06zu", item);
    const char *name = temp_format(
        "%s/%06ju%s.%s", directories[field], (uintmax_t)index, suffix, ending);
    char *path = path_join(out, name);
    if (!made[field]) {
        directory_make(path_parent(path));
        made[field] = true;
    }
    value_file(&line, key, path, name, blob);
    files++;
    free(path);
}

/* Write a value to the line, unless the line would give back another one: JSON has
 * neither the sign of NaN nor a bool that is 2. */
static bool put_in_line(const char *type, const bags_value *value) {
    static value_reader reader;
    size_t start = line.size;
    if (value->size > MAX_TEXT || !value_write(&line, type, value, lists))
        return false;
    if (value->kind != BAGS_KIND_ARRAY)
        return true;
    json_object *json =
        json_read(text_string(&line) + start, line.size - start);
    bags_value again = value_parse(&reader, type, json);
    bool same = again.size == value->size &&
                (!again.size || !memcmp(again.data, value->data, again.size));
    json_object_put(json);
    line.size = same ? line.size : start;
    return same;
}

/* Write a value to the line, or with --npy as a .npy file. False: its blob is to
 * be a file. */
static bool put_decoded(uint64_t index, size_t field, size_t item) {
    static bags_buffer scratch;
    const char *type = fields[field].type;
    type_class kind = type_kind(type);
    bags_value value;
    if ((kind != TYPE_NUMBER && kind != TYPE_TEXT && kind != TYPE_ARRAY) ||
        !source_value(field, item, type, &value))
        return false;
    if (put_in_line(type, &value))
        return true;
    /* A blob of type npy is such a file already. */
    if (!npy || value.kind != BAGS_KIND_ARRAY || !strncmp(type, "npy", 3))
        return false;
    put_file("from", index, field, item, "npy", npy_encode(&value, &scratch));
    return true;
}

static void put_item(uint64_t index, size_t field, size_t item) {
    bags_view blob = source_bytes(field, item);
    char buffer[16];
    if (raw && blob.size <= MAX_INLINE) {
        text_puts(&line, "{\"base64\": \"");
        text_base64(&line, blob.data, blob.size);
        text_puts(&line, "\"}");
    } else if (raw || !put_decoded(index, field, item)) {
        put_file("file", index, field, item,
            type_ending(fields[field].type, blob, buffer), blob);
    }
}

static void write_lines(void) {
    int error = write_all(
        bags_io_local(), manifest_file, written, line.buffer.data, line.size);
    if (error)
        fail_system(error, partial, "write");
    written += line.size;
    line.size = 0;
}

static void put_line(uint64_t index) {
    source_get(index, NULL, 0);
    text_puts(&line, "{");
    for (size_t i = 0; i < count; i++) {
        bool list = source_is_sequence(i);
        text_member(&line, fields[i].name);
        text_puts(&line, list ? "[" : "");
        for (size_t j = 0; j < source_items(i); j++) {
            if (list)
                text_next(&line);
            put_item(index, i, j);
        }
        text_puts(&line, list ? "]" : "");
    }
    text_puts(&line, "}\n");
    if (line.size >= WRITE_SIZE)
        write_lines();
}

/* ---- the directory ---- */

/* Remove what was created, and nothing else. */
static void remove_out(void) {
    if (manifest_file)
        bags_io_local()->close(NULL, manifest_file);
    unlink(partial);
    unlink(spec);
    directory_remove(temp_format("%s/files", out));
    if (made_out)
        rmdir(out);
}

static void make_out(void) {
    bool exists = path_exists(out);
    if (exists && !directory_is_empty(out))
        fail(
            BAGS_ERROR_EXISTS, "%s: exists and is not an empty directory", out);
    directory_make(out);
    made_out = !exists;
    partial = path_join(out, "manifest.jsonl.partial");
    manifest = path_join(out, "manifest.jsonl");
    spec = path_join(out, "spec.json");
    on_failure = remove_out;
    manifest_file = file_create(partial);
    made = (bool *)allocate(count, sizeof *made);
    directories = names_make(fields, count, "files/");
}

static void finish(void) {
    const bags_io *io = bags_io_local();
    write_lines();
    int error = io->close(io->user, manifest_file);
    manifest_file = NULL;
    if (error)
        fail_system(error, partial, "write");
    if (rename(partial, manifest))
        fail_system(errno, manifest, "create");
    on_failure = NULL;
}

static int run(char **operands) {
    out = operands[1];
    if (raw && (npy || lists))
        usage("--raw and %s are mutually exclusive", npy ? "--npy" : "--lists");
    if (!strcmp(out, "-"))
        usage("OUT is a directory, not standard output; ./- is one named -");
    path_must_be_writable(out);
    source_open(operands[0]);
    fields = source_fields(&count);
    make_out();
    text_spec(&line, fields, count);
    if (source_dataset())
        file_write(spec, line.buffer.data, line.size);
    line.size = 0;
    uint64_t length = source_length();
    for (uint64_t i = 0; i < length; i++) {
        put_line(i);
        progress_show("export", "lines", i + 1, length, i + 1);
    }
    progress_end();
    finish();
    print("%s: wrote %s of %s, with %s\n", out,
        counted(length, source_dataset() ? "datapoint" : "blob"), source_path(),
        counted(files, "file"));
    return 0;
}

const command command_export = {"export", "all of it as JSON lines and files",
    "PATH OUT", {ARGUMENT_PATH, ARGUMENT_LOCAL}, 2, 2, options, reading_options,
    "Writes OUT/manifest.jsonl, one line per datapoint, OUT/spec.json, and the "
    "files that the lines name, in OUT/files. `bags pack OUT/manifest.jsonl "
    "NEW` reads all of it back. OUT must be missing or empty. A Bag becomes "
    "lines {\"blob\": ...} without a spec.\n"
    "Numbers and text are in the lines. Other blobs are files, as they are: "
    "{\"file\": PATH}; so is what a line would not give back exactly, such as "
    "numbers above 64 bits and the sign of NaN. Text that is not UTF-8 needs "
    "`bags pack --unchecked`.\n",
    "  bags export pets unpacked && head -3 unpacked/manifest.jsonl\n", run};
