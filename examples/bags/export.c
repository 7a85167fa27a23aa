/*
 * bags export: a Bag or a dataset as a manifest of JSON lines and files.
 *
 *     OUT/spec.json                the fields and their types
 *     OUT/info.json                the metadata of the dataset, if it has any
 *     OUT/manifest.jsonl           one line per datapoint; written last
 *     OUT/files/FIELD/000012.jpg   blobs; 000012-000003.jpg: of a sequence
 *
 * Until it is complete, the manifest is manifest.jsonl.partial, and locked. Once it has
 * lines, a failure or a signal keeps it and the files. Before that, all created files
 * are removed; OUT was empty or missing.
 *
 * --resume does all of it again, but compares existing data instead of writing it. The
 * manifest must be a prefix of the new one, each file must be equal or truncated, and
 * no other file may exist. The result therefore equals an uninterrupted export, even if
 * the source, the options or OUT have changed.
 */
#include "command.h"
#include "system.h"

#include "files.h"
#include "text.h"

#define MAX_INLINE 256 /* bytes of blobs that --raw writes into the line */
#define MAX_SMALL 64   /* elements of arrays that are in the line by default */
#define MAX_TEXT ((size_t)1 << 20) /* bytes of text in the line */
#define WRITE_SIZE ((size_t)1 << 16)
#define WRITE_SECONDS 1.0

static bool raw, npy, lists, resume;
static const char *tokens_given;

static const option options[] = {
    {"to", OPTION_CHOICE, &exporting.to, "FORMAT",
        "the format, if OUT's ending does not state it: webdataset, tfrecord, mds, "
        "images, "
        "csv, parquet, hdf5 or lerobot; lines is the default"},
    {"fields", OPTION_TEXT, &exporting.fields, "FIELDS",
        "with a format: only these, some renamed: photo=jpg,label"},
    SELECT_OPTIONS,
    {"key", OPTION_TEXT, &exporting.key, "FIELD",
        "of webdataset: the field with the keys of samples; of images: with their "
        "names"},
    {"label", OPTION_TEXT, &exporting.label, "FIELD",
        "of images: the field with the names of folders"},
    {"layout", OPTION_CHOICE, &exporting.layout, "LAYOUT",
        "of HDF5: rows, or episodes (a group per datapoint)"},
    {"fps", OPTION_TEXT, &exporting.fps, "N",
        "of LeRobot: the frames per second, if the dataset does not state them"},
    {"shard-size", OPTION_SIZE, &exporting.shard_size, "N",
        "with a format: start a new file before values exceed N bytes"},
    {"shard-length", OPTION_NUMBER, &exporting.shard_length, "N",
        "with a format: start a new file after N datapoints"},
    WORKER_OPTIONS(exporting.start, exporting.stop),
    {"lists", OPTION_FLAG, &lists, NULL,
        "write arrays of up to 1024 elements into the lines, as nested lists"},
    {"npy", OPTION_FLAG, &npy, NULL,
        "write arrays as .npy files, {\"from\": PATH}, for other programs"},
    {"raw", OPTION_FLAG, &raw, NULL,
        "decode nothing: {\"base64\": TEXT} for up to 256 bytes, otherwise "
        "{\"file\": PATH}"},
    {"resume", OPTION_FLAG, &resume, NULL,
        "continue an export with the same source and options that was "
        "interrupted; what exists is compared"},
    {"tokens", OPTION_TEXT, &tokens_given, "FIELD", "of X.idx: the documents (tokens)"},
    OPTIONS_END,
};

static const bags_field *fields;
static size_t count;
static const char *out;
static bool made_out; /* OUT was missing before */
static char *partial, *manifest, *spec, *info;
static char **directories; /* files/FIELD, for each field, */
static bool *made;         /* and whether it was created */
static uint64_t files;     /* written there */
static void *manifest_file;
static bool complete;     /* --resume: it has the name manifest.jsonl, */
static uint64_t existing; /* and these bytes */
static uint64_t written;  /* bytes of it; the first `existing` bytes are equal */
static uint64_t lines;    /* complete ones among them */
static double written_at;
static text line; /* what is written next */
static uint64_t line_count;

/* ---- what exists ---- */

ENDS static void fail_difference(const char *path, const char *what) {
    on_failure = NULL;
    fail(BAGS_ERROR_VALUE,
        "%s: %s; --resume needs the same source and options as before; to "
        "start again, remove %s",
        path, what, out);
}

/* Write a file, or compare it. The last file of an interrupted export may be truncated.
 * The files of its lines exist. */
static void keep_file(const char *path, const void *data, size_t size) {
    static bags_buffer scratch;
    bool exists = resume && path_exists(path);
    if (exists) {
        bags_view found = file_read(path, &scratch);
        if (found.size > size || (found.size && memcmp(found.data, data, found.size)))
            fail_difference(path, "differs from what this export writes");
        if (found.size == size)
            return;
    }
    if (complete || (!exists && written < existing))
        fail_difference(path, exists ? "truncated" : "missing");
    if (exists)
        unlink(path);
    file_write(path, data, size);
}

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
    keep_file(path, blob.data, blob.size);
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
    bags_view blob = source_alone(index, field, field, item, item);
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

/* Write the lines, or compare them with the existing lines. */
static void write_lines(void) {
    static bags_buffer scratch;
    const bags_io *io = bags_io_local();
    size_t size = 0;
    int error = 0;
    if (written < existing) {
        uint64_t left = existing - written;
        size = left < line.size ? (size_t)left : line.size;
        must(bags_buffer_reserve(&scratch, size, &failure));
        error = format_read_some(io, manifest_file, written, scratch.data, &size);
        if (error)
            fail_system(error, complete ? manifest : partial, "read");
        if (size && memcmp(scratch.data, line.buffer.data, size))
            fail_difference(
                complete ? manifest : partial, "differs from what this export writes");
    }
    if (size < line.size && complete)
        fail_difference(manifest, "ends before what this export writes");
    error = format_write_all(
        io, manifest_file, written + size, line.buffer.data + size, line.size - size);
    if (error)
        fail_system(error, partial, "write");
    written += line.size;
    lines += line_count;
    line.size = 0;
    line_count = 0;
    written_at = seconds_now();
}

/* Nothing is written before all that exists was compared. */
static void put_line(uint64_t index) {
    if (written < existing && written + line.size >= existing)
        write_lines();
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
    line_count++;
    if (line.size >= WRITE_SIZE || seconds_now() - written_at > WRITE_SECONDS)
        write_lines();
}

/* ---- the directory ---- */

/* Keep an export that can be resumed. Otherwise remove only the created files. */
static void keep_or_remove(void) {
    if (manifest_file)
        bags_io_local()->close(NULL, manifest_file);
    if (resume || lines > 0) {
        failure_suffix("; %s: exported files are kept, --resume continues", out);
        return;
    }
    unlink(partial);
    unlink(spec);
    unlink(info);
    directory_remove(temp_format("%s/files", out));
    if (made_out)
        rmdir(out);
}

/* Open or create the manifest, and lock it. */
static void open_manifest(bool exists) {
    const bags_io *io = bags_io_local();
    const char *path = complete ? manifest : partial;
    int mode = complete ? BAGS_IO_READ : exists ? BAGS_IO_WRITE : BAGS_IO_CREATE;
    int error = io->open(io->user, path, mode, &manifest_file);
    if (error)
        fail_system(error, path, exists ? "open" : "create");
    /* Between both, another process may have finished it. */
    bool is_locked = io->lock(io->user, manifest_file) == EWOULDBLOCK;
    if (is_locked || !path_exists(path))
        fail(BAGS_ERROR_LOCKED, "%s: another process is exporting to it", out);
    error = io->size(io->user, manifest_file, &existing);
    if (error)
        fail_system(error, path, "read");
}

static void open_out(void) {
    partial = path_join(out, "manifest.jsonl.partial");
    manifest = path_join(out, "manifest.jsonl");
    spec = path_join(out, "spec.json");
    info = path_join(out, "info.json");
    bool exists = path_exists(out), interrupted = path_exists(partial);
    complete = resume && path_exists(manifest);
    if (interrupted && !resume)
        fail(BAGS_ERROR_EXISTS,
            "%s: contains an interrupted export; continue it with --resume, or "
            "remove it",
            out);
    if (exists && !interrupted && !complete && !directory_is_empty(out))
        fail(BAGS_ERROR_EXISTS, "%s: exists and is not an empty directory%s", out,
            resume ? " or an interrupted export" : "");
    directory_make(out);
    made_out = !exists;
    open_manifest(interrupted || complete);
    on_failure = keep_or_remove;
    interrupt_leaves(
        temp_format("%s: exported files are kept", out), "continue with", "--resume");
    made = (bool *)allocate(count, sizeof *made);
    directories = names_make(fields, count, "files/");
    written_at = seconds_now();
}

static int count_name(void *user, const char *name) {
    (void)name;
    ++*(uint64_t *)user;
    return 0;
}

static int count_names(void *user, const char *name) {
    const bags_io *io = bags_io_local();
    const char *path = temp_format("%s/files/%s", out, name);
    return io->list(io->user, path, count_name, user);
}

/* Files of an export of another source would be treated as a part of this one. */
static void check_files(void) {
    const bags_io *io = bags_io_local();
    uint64_t found = 0;
    const char *path = temp_format("%s/files", out);
    int error = io->list(io->user, path, count_names, &found);
    if (error == ENOTDIR || (!error && found != files))
        fail_difference(path, "has files that this export does not write");
    if (error && error != ENOENT)
        fail_system(error, path, "list");
}

static void finish(void) {
    const bags_io *io = bags_io_local();
    write_lines();
    if (written < existing)
        fail_difference(
            complete ? manifest : partial, "has more lines than this export writes");
    if (resume)
        check_files();
    int error = io->close(io->user, manifest_file);
    manifest_file = NULL;
    if (error)
        fail_system(error, partial, "write");
    if (!complete && rename(partial, manifest))
        fail_system(errno, manifest, "create");
    on_failure = NULL;
}

static int run(char **operands) {
    out = operands[1];
    options_exclude("raw", "npy|lists");
    if (!strcmp(out, "-"))
        usage("OUT is a directory, not standard output; ./- is one named -");
    path_must_be_outside(out);
    bool to_format = export_is_to_format(out);
    const char *of_formats = options_given("fields|rows|where|key|label|layout|fps|"
                                           "shard-size|shard-length|shard-start|shard-"
                                           "stop|worker");
    if (of_formats && !to_format)
        usage("--%s needs --to FORMAT (JSON lines contain all of the source)",
            of_formats);
    /* An archive that exists may be what is resumed. */
    path_must_be_writable(to_format ? path_parent(out) : out);
    source_open(operands[0]);
    if (to_format) {
        export_to_format(out, resume);
        return 0;
    }
    if (!exporting.to.given && has_ending(out, ".idx")) {
        if (raw || npy || lists || resume)
            usage("--%s is not of a pair X.idx, X.bin", raw     ? "raw"
                                                        : npy   ? "npy"
                                                        : lists ? "lists"
                                                                : "resume");
        export_pair(out, tokens_given ? tokens_given : "tokens");
        return 0;
    }
    if (tokens_given)
        usage("--tokens needs OUT to be X.idx");
    fields = source_fields(&count);
    bags_view metadata = {NULL, 0};
    if (source_dataset())
        metadata = export_metadata(source_dataset());
    if (metadata.data && !format_is_metadata(metadata))
        fail(BAGS_ERROR_CORRUPT, "%s: info.json: not a JSON object", source_path());
    open_out();
    text_spec(&line, fields, count);
    if (source_dataset()) {
        keep_file(spec, line.buffer.data, line.size);
        if (metadata.data)
            keep_file(info, metadata.data, metadata.size);
    }
    line.size = 0;
    uint64_t length = source_length();
    for (uint64_t i = 0; i < length; i++) {
        put_line(i);
        progress_show("export", "lines", i + 1, length, i + 1);
    }
    source_check();
    progress_end();
    finish();
    print("%s: %s %s of %s, with %s\n", out, complete ? "already has" : "wrote",
        counted(length, source_dataset() ? "datapoint" : "blob"), source_path(),
        counted(files, "file"));
    return 0;
}

const command command_export = {"export",
    "JSON lines and files, or the format of others", "PATH OUT",
    {ARGUMENT_PATH, ARGUMENT_LOCAL}, 2, 2, options, reading_options,
    "Writes OUT/manifest.jsonl, one line per datapoint, OUT/spec.json, and the "
    "files that the lines name, in OUT/files. `bags pack OUT/manifest.jsonl "
    "NEW` writes the same bytes again. OUT must be missing or empty. A Bag "
    "becomes lines {\"blob\": ...} without a spec.\n"
    "Numbers, text and arrays of up to 64 elements are in the lines. Other "
    "blobs are unchanged files: {\"file\": PATH}. So are values that pack "
    "would encode differently, such as numbers above 64 bits and a NaN with a "
    "sign. (An `int` is a number, even if another writer has stored it in "
    "other bytes; --raw keeps them.) Text that is not UTF-8 needs `bags pack "
    "--unchecked`.\n"
    "If OUT is X.idx, the documents of a field are written as a Megatron-LM pair, "
    "X.idx and X.bin. `bags import X.idx` reads it.\n"
    "Writes the format of other programs with --to FORMAT, or if OUT ends in .tar, "
    ".tfrecord, .csv, .parquet or .h5; another ending is an error. "
    "formats/export/README.md states "
    "how fields become each format. With shards or workers, x.tar becomes x-000000.tar "
    "and others.\n"
    "An export that was interrupted, or that fails after a second, is kept: run it "
    "again with --resume.\n",
    "  bags export pets unpacked && head -3 unpacked/manifest.jsonl\n"
    "  bags export pets pets.tar --shard-size 1G --key name\n",
    run};
