/*
 * bags export: a Bag or a dataset as a manifest of JSON lines and files.
 *
 *     OUT/spec.json               the fields and their types
 *     OUT/manifest.jsonl          one line a datapoint; written last
 *     OUT/files/FIELD/000012.jpg  blobs; -000003 behind it: of a sequence
 *
 * The manifest gets its name when it is whole. If something fails, what was
 * made is removed: it all lies in OUT, which was empty or not there.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A blob of at most this many bytes stands in the line itself (--raw). */
#define INLINE_MOST 256

typedef struct exporting {
    source from;
    const char *out;
    bool raw, npy, lists;
    bool made_out; /* OUT was not there before */
    char *files, *partial, *manifest, *spec;
    const bags_field *fields;
    size_t count;
    char **names;
    bool *made; /* the directories of fields that exist by now */
    FILE *lines;
    text line;
} exporting;

/* ---- one value ---- */

static bags_code make_field_directory(exporting *to, size_t field,
    bags_error *err) {
    if (to->made[field])
        return BAGS_OK;
    char *path = path_join(to->files, to->names[field], err);
    bags_code code = path ? directory_make(path, err) : BAGS_ERROR_MEMORY;
    to->made[field] = !code;
    free(path);
    return code;
}

/* {"file": "files/photo/000012.jpg"} */
static bags_code put_file(exporting *to, const char *kind, uint64_t index,
    size_t field, size_t item, const char *ending, bags_view blob,
    bags_error *err) {
    char number[32] = "";
    if (source_is_sequence(&to->from, field))
        snprintf(number, sizeof number, "-%06zu", item);
    char *name = string_format(err, "files/%s/%06ju%s.%s",
        to->names[field], (uintmax_t)index, number, ending);
    char *path = name ? path_join(to->out, name, err) : NULL;
    bags_code code = path ? make_field_directory(to, field, err)
                          : BAGS_ERROR_MEMORY;
    if (!code)
        code = file_write(path, blob.data, blob.size, err);
    if (!code) {
        text_format(&to->line, "{\"%s\": ", kind);
        text_json(&to->line, name, strlen(name), false);
        text_puts(&to->line, "}");
    }
    free(name);
    free(path);
    return code;
}

/* --npy: {"from": "files/state/000012.npy"}, for what decodes to an array. */
static bags_code put_npy(exporting *to, uint64_t index, size_t field,
    size_t item, bool *done, bags_error *err) {
    bags_value value;
    bags_view blob;
    bags_code code = source_value(&to->from, 0, item, &value, err);
    if (code == BAGS_ERROR_MEMORY)
        return code;
    if (code || value.kind != BAGS_KIND_ARRAY)
        return BAGS_OK;
    bags_buffer scratch = {0};
    code = encode_as(to->from.codecs, "npy", &value, &scratch, &blob, err);
    if (!code)
        code = put_file(to, "from", index, field, item, "npy", blob, err);
    bags_buffer_free(&scratch);
    *done = !code;
    return code;
}

static bags_code put_item(exporting *to, uint64_t index, size_t field,
    size_t item, bags_error *err) {
    const char *type = to->fields[field].type;
    bags_view blob = source_bytes(&to->from, 0, item);
    bool done = false;
    bags_code code = BAGS_OK;
    if (to->raw && blob.size <= INLINE_MOST) {
        text_puts(&to->line, "{\"base64\": \"");
        text_base64(&to->line, blob.data, blob.size);
        text_puts(&to->line, "\"}");
        return BAGS_OK;
    }
    if (!to->raw)
        code = value_plain(&to->from, 0, item, type, &to->line, &done,
            err);
    if (!code && to->lists && !done)
        code = value_list(&to->from, 0, item, type, &to->line, &done, err);
    /* A blob of type npy is such a file already. */
    if (!code && !done && to->npy && type_shown_as(type) == SHOWN_ARRAY &&
        strncmp(type, "npy", 3))
        code = put_npy(to, index, field, item, &done, err);
    if (code || done)
        return code;
    char room[16];
    return put_file(to, "file", index, field, item,
        type_ending(type, blob, room), blob, err);
}

/* ---- lines ---- */

static bags_code put_field(exporting *to, uint64_t index, size_t field,
    bags_error *err) {
    bags_select select = {0};
    select.field = field;
    bags_code code = source_get(&to->from, index, &select, 1, err);
    if (code)
        return code;
    bool list = source_is_sequence(&to->from, field);
    size_t items = source_items(&to->from, 0);
    const char *name = to->fields[field].name;
    text_json(&to->line, name, strlen(name), false);
    text_puts(&to->line, list ? ": [" : ": ");
    for (size_t i = 0; i < items && !code; i++) {
        text_puts(&to->line, i ? ", " : "");
        code = put_item(to, index, field, i, err);
    }
    text_puts(&to->line, list ? "]" : "");
    return code;
}

static bags_code put_line(exporting *to, uint64_t index, bags_error *err) {
    bags_code code = BAGS_OK;
    to->line.size = 0;
    text_puts(&to->line, "{");
    for (size_t i = 0; i < to->count && !code; i++) {
        text_puts(&to->line, i ? ", " : "");
        code = put_field(to, index, i, err);
    }
    text_puts(&to->line, "}\n");
    if (!code)
        code = text_check(&to->line, err);
    if (code)
        return code;
    errno = 0;
    if (fwrite(to->line.buffer.data, 1, to->line.size, to->lines) !=
        to->line.size)
        return fail_system(err, errno ? errno : EIO, to->partial, "write");
    return BAGS_OK;
}

static bags_code put_lines(exporting *to, bags_error *err) {
    progress bar = {0};
    bar.title = "export";
    bar.unit = to->from.bag ? "blobs" : "datapoints";
    uint64_t length = source_length(&to->from);
    bags_code code = BAGS_OK;
    for (uint64_t i = 0; i < length && !code; i++) {
        code = put_line(to, i, err);
        progress_show(&bar, i + 1, length, i + 1);
    }
    progress_end(&bar);
    return code;
}

/* ---- the directory ---- */

static bool is_empty(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    bool empty = directory != NULL;
    while (empty && (entry = readdir(directory)))
        empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
    if (directory)
        closedir(directory);
    return empty;
}

static bags_code make_out(exporting *to, bags_error *err) {
    to->files = path_join(to->out, "files", err);
    to->partial = path_join(to->out, "manifest.jsonl.partial", err);
    to->manifest = path_join(to->out, "manifest.jsonl", err);
    to->spec = path_join(to->out, "spec.json", err);
    if (!to->files || !to->partial || !to->manifest ||
        !to->spec)
        return BAGS_ERROR_MEMORY;
    bool there = path_exists(to->out);
    if (there && !is_empty(to->out))
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: exists and is no empty directory: export overwrites nothing",
            to->out);
    bags_code code = directory_make(to->out, err);
    if (code)
        return code;
    to->made_out = !there;
    to->lines = create_stream(to->partial);
    if (to->lines)
        return BAGS_OK;
    code = fail_system(err, errno, to->partial, "create");
    if (to->made_out)
        rmdir(to->out);
    return code;
}

/* Remove what this run made, and nothing else. */
static void remove_out(const exporting *to) {
    unlink(to->partial);
    unlink(to->spec);
    for (size_t i = 0; i < to->count; i++) {
        char *path = to->made[i]
                         ? path_join(to->files, to->names[i], NULL)
                         : NULL;
        if (path)
            directory_remove(path);
        free(path);
    }
    rmdir(to->files);
    if (to->made_out)
        rmdir(to->out);
}

static bags_code write_spec(exporting *to, bags_error *err) {
    text spec = {0};
    if (to->from.bag)
        return BAGS_OK;
    text_spec(&spec, to->fields, to->count);
    bags_code code = text_check(&spec, err);
    if (!code)
        code = file_write(to->spec, spec.buffer.data, spec.size, err);
    text_free(&spec);
    return code;
}

static bags_code finish_lines(exporting *to, bags_error *err) {
    FILE *file = to->lines;
    to->lines = NULL;
    errno = 0;
    bool good = !fflush(file) && !ferror(file);
    int error = errno;
    good = !fclose(file) && good;
    if (!good)
        return fail_system(err, error ? error : EIO, to->partial, "write");
    if (rename(to->partial, to->manifest))
        return fail_system(err, errno, to->manifest, "create");
    return BAGS_OK;
}

static bags_code export_all(exporting *to, bags_error *err) {
    to->fields = source_fields(&to->from, &to->count);
    to->names = names_make(to->fields, to->count, err);
    to->made = (bool *)calloc(to->count + 1, sizeof *to->made);
    if (!to->names || !to->made)
        return fail_memory(err);
    bags_code code = make_out(to, err);
    if (!to->lines)
        return code;
    code = write_spec(to, err);
    if (!code)
        code = put_lines(to, err);
    if (!code)
        code = finish_lines(to, err);
    if (to->lines)
        fclose(to->lines);
    if (code)
        remove_out(to);
    return code;
}

static void release(exporting *to) {
    names_free(to->names, to->count);
    source_close(&to->from);
    text_free(&to->line);
    free(to->made);
    free(to->files);
    free(to->partial);
    free(to->manifest);
    free(to->spec);
}

static int run(int count, char **words) {
    exporting to;
    memset(&to, 0, sizeof to);
    source_options reading = {0};
    option options[SOURCE_OPTIONS + 3] = {{"raw", &to.raw, NULL},
        {"npy", &to.npy, NULL}, {"lists", &to.lists, NULL}};
    source_options_describe(&reading, options + 3);
    int exit_code;
    if (!options_parse(&command_export, &count, words, options,
            SOURCE_OPTIONS + 3, &exit_code))
        return exit_code;
    if (count != 2)
        return fail_usage(&command_export, "takes PATH and OUT");
    if (to.raw && (to.npy || to.lists))
        return fail_usage(&command_export,
            "--raw excludes --npy and --lists");
    bags_error err;
    if (source_open(&to.from, words[0], &reading, &err))
        return fail(&err);
    to.out = words[1];
    bags_code code = export_all(&to, &err);
    release(&to);
    return code ? fail(&err) : 0;
}

const command command_export = {"export", "all of it as JSON lines and files",
    "usage: bags export PATH OUT [--raw | [--lists] [--npy]]\n"
    "                   [--check] [--allow-gaps] [--skip-unfinished] [--live]\n"
    "\n"
    "Writes OUT/manifest.jsonl, one line a datapoint, OUT/spec.json, and the\n"
    "files that the lines name, in OUT/files. `bags pack OUT/manifest.jsonl\n"
    "NEW` reads all of it back. OUT must not exist, or be empty. A Bag\n"
    "becomes lines {\"blob\": ...} without a spec.\n"
    "\n"
    "Numbers and text stand in the lines. Other blobs are files, as they\n"
    "are: {\"file\": PATH}; so are numbers above 64 bits and text that is not\n"
    "UTF-8.\n"
    "\n"
    "  --raw  no decoding at all: {\"base64\": ...} for up to 256 bytes, else\n"
    "         {\"file\": PATH}. Packing this gives the same bytes again\n"
    "  --lists  arrays of up to 1024 elements in the lines, as nested lists\n"
    "  --npy  arrays as .npy files, {\"from\": PATH}, to be used elsewhere\n"
    "  --check  compare every blob with its checksum: bags help checksum\n"
    "  --allow-gaps, --skip-unfinished, --live  as in bags help info\n"
    "\n"
    "example:\n"
    "  bags export pets unpacked && head -3 unpacked/manifest.jsonl\n",
    run};
