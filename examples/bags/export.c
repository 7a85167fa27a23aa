/*
 * bags export: a Bag or a dataset as a manifest of JSON lines and files.
 *
 *     OUT/spec.json                the fields and their types
 *     OUT/manifest.jsonl           one line per datapoint; written last
 *     OUT/files/FIELD/000012.jpg   blobs; 000012-000003.jpg: of a sequence
 *
 * The manifest is manifest.jsonl.partial until it is complete. What a failure leaves is
 * removed by the user: continuing would read as much as starting again.
 */
#include "command.h"
#include "system.h"

#define MAX_INLINE 256 /* bytes of blobs that --raw writes into the line */
#define MAX_SMALL 64   /* elements of arrays that are in the line by default */
#define MAX_TEXT ((size_t)1 << 20) /* bytes of text in the line */
#define WRITE_SIZE ((size_t)1 << 16)

static bool raw, npy, lists;

static const option options[] = {
    {"lists", OPTION_FLAG, &lists, NULL,
        "write arrays of up to 1024 elements into the lines, as nested lists"},
    {"npy", OPTION_FLAG, &npy, NULL,
        "write arrays as .npy files, {\"from\": PATH}, for other programs"},
    {"raw", OPTION_FLAG, &raw, NULL,
        "decode nothing: {\"base64\": TEXT} for up to 256 bytes, otherwise "
        "{\"file\": PATH}"},
    OPTIONS_END,
};

static const bags_field *fields;
static size_t count;
static const char *out;
static char *partial, *manifest;
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
    file_write(path, blob.data, blob.size);
    value_file(&line, key, name);
    files++;
    free(path);
}

/* True if pack makes this blob of the value. */
static bool is_exact(const char *type, const bags_value *value, bags_view blob) {
    static bags_buffer scratch;
    bags_view again;
    bags_code code =
        bags_encode(registry_get(), type, value, &scratch, &again, &failure);
    if (code == BAGS_ERROR_MEMORY)
        die();
    return !code && again.size == blob.size &&
           (!blob.size || !memcmp(again.data, blob.data, blob.size));
}

/* Write a value to the line, unless pack would make other bytes of an array: JSON has
 * neither the sign of NaN nor a bool that is 2. */
static bool put_in_line(const char *type, const bags_value *value, bags_view blob) {
    static value_reader reader;
    size_t start = line.size;
    size_t most = lists ? MAX_LIST : npy ? 0 : MAX_SMALL;
    if (value->size > MAX_TEXT || !value_write(&line, type, value, most))
        return false;
    if (value->kind != BAGS_KIND_ARRAY)
        return true;
    json_object *json = json_read(text_string(&line) + start, line.size - start);
    bags_value again = value_parse(&reader, type, json);
    bool same = is_exact(type, &again, blob);
    json_object_put(json);
    line.size = same ? line.size : start;
    return same;
}

/* Write a value to the line, or with --npy as a .npy file. False: its blob is to
 * be a file. */
static bool put_decoded(uint64_t index, size_t field, size_t item, bags_view blob) {
    static bags_buffer scratch;
    const char *type = fields[field].type;
    type_class kind = type_kind(type);
    bags_value value;
    if ((kind != TYPE_NUMBER && kind != TYPE_TEXT && kind != TYPE_ARRAY) ||
        !source_value(field, item, type, &value))
        return false;
    if (put_in_line(type, &value, blob))
        return true;
    /* A blob of type npy is such a file already. */
    if (!npy || value.kind != BAGS_KIND_ARRAY || !strncmp(type, "npy", 3) ||
        !is_exact(type, &value, blob))
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
    } else if (raw || !put_decoded(index, field, item, blob)) {
        put_file("file", index, field, item,
            type_ending(fields[field].type, blob, buffer), blob);
    }
}

static void write_lines(void) {
    int error =
        write_all(bags_io_local(), manifest_file, written, line.buffer.data, line.size);
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

static void explain_failure(void) {
    failure_suffix("; %s is incomplete: remove it", out);
}

/* Two exports to one directory at once: the manifest is created by one of them. */
static void open_out(void) {
    partial = path_join(out, "manifest.jsonl.partial");
    manifest = path_join(out, "manifest.jsonl");
    if (path_exists(out) && !directory_is_empty(out))
        fail(BAGS_ERROR_EXISTS, "%s: exists and is not an empty directory%s", out,
            path_exists(partial) ? ": an export was interrupted; remove it" : "");
    directory_make(out);
    manifest_file = file_create(partial);
    on_failure = explain_failure;
    interrupt_leaves(temp_format("%s is incomplete: remove it", out), NULL, NULL);
    made = (bool *)allocate(count, sizeof *made);
    directories = names_make(fields, count, "files/");
}

static void finish(void) {
    const bags_io *io = bags_io_local();
    write_lines();
    int error = io->close(io->user, manifest_file);
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
    open_out();
    text_spec(&line, fields, count);
    if (source_dataset())
        file_write(path_join(out, "spec.json"), line.buffer.data, line.size);
    line.size = 0;
    uint64_t length = source_length();
    for (uint64_t i = 0; i < length; i++) {
        put_line(i);
        progress_show("export", "lines", i + 1, length, i + 1);
    }
    source_check();
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
    "NEW` gives the same bytes again. OUT must be missing or empty. A Bag "
    "becomes lines {\"blob\": ...} without a spec.\n"
    "Numbers, text and arrays of up to 64 elements are in the lines. Other "
    "blobs are files, as they are: {\"file\": PATH}; so are values that pack "
    "would encode differently, such as numbers above 64 bits and a NaN with a "
    "sign. (An `int` is a number, also if another writer has stored it in "
    "other bytes; --raw keeps them.) Text that is not UTF-8 needs `bags pack "
    "--unchecked`.\n",
    "  bags export pets unpacked && head -3 unpacked/manifest.jsonl\n", run};
