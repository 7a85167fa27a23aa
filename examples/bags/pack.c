/*
 * bags pack: a manifest of JSON lines as a dataset, or as a Bag.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

typedef struct packing {
    write_options options;
    const char *spec;
    line_reader manifest;
    sink out;
    value_reader values;
    char *directory;
    bags_field *fields;
    bool *sequence; /* of each field */
    size_t count;
    bool append;
    uint64_t skip;   /* lines of this worker that are packed already */
    char *spec_text; /* what the fields' names and types point into */
    json_object *spec_json;
} packing;

/* ---- the spec ---- */

static bags_code add_field(packing *pack, const char *name, const char *type,
    bags_error *err) {
    bags_type parsed;
    if (bags_type_parse(type, &parsed, err))
        return fail_prefix(err, "field \"%s\": ", name);
    void *grown = realloc(pack->fields,
        (pack->count + 1) * sizeof *pack->fields);
    if (grown)
        pack->fields = (bags_field *)grown;
    void *flags = realloc(pack->sequence, pack->count + 1);
    if (flags)
        pack->sequence = (bool *)flags;
    if (!grown || !flags)
        return fail_memory(err);
    pack->fields[pack->count].name = name;
    pack->fields[pack->count].type = type;
    pack->sequence[pack->count++] = parsed.sequence;
    return BAGS_OK;
}

/* The comma behind a field of 'foo=int(8),bar=utf8[]', or the end: not a comma
 * in parentheses. */
static char *field_end(char *at) {
    int depth = 0;
    for (; *at && (*at != ',' || depth > 0); at++)
        depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
    return at;
}

static bags_code spec_from_words(packing *pack, bags_error *err) {
    pack->spec_text = string_format(err, "%s", pack->spec);
    if (!pack->spec_text)
        return BAGS_ERROR_MEMORY;
    for (char *at = pack->spec_text;;) {
        char *end = field_end(at);
        bool last = *end == 0;
        *end = 0;
        /* Types have no "=", names may. */
        char *equals = strrchr(at, '=');
        if (!equals)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "--spec: \"%s\" is not NAME=TYPE", at);
        *equals = 0;
        bags_code code = add_field(pack, at, equals + 1, err);
        if (code || last)
            return code;
        at = end + 1;
    }
}

static bags_code spec_from_file(packing *pack, const char *path,
    bags_error *err) {
    bags_buffer file = {0};
    size_t size = 0;
    bags_code code = file_read(path, &file, &size, err);
    if (!code && json_read((const char *)file.data, size, &pack->spec_json,
                     err))
        code = fail_prefix(err, "%s: ", path);
    bags_buffer_free(&file);
    if (code)
        return code;
    if (!json_object_is_type(pack->spec_json, json_type_object))
        return bags_fail(err, BAGS_ERROR_VALUE, "%s: not a JSON object", path);
    json_object_iter at;
    json_object_object_foreachC(pack->spec_json, at) {
        const char *type = json_object_is_type(at.val, json_type_string)
                               ? json_object_get_string(at.val)
                               : NULL;
        if (!type || strlen(type) != (size_t)json_object_get_string_len(at.val))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%s\": its type is not text", path, at.key);
        code = add_field(pack, at.key, type, err);
        if (code)
            return fail_prefix(err, "%s: ", path);
    }
    return BAGS_OK;
}

static bool ends_in(const char *string, const char *ending) {
    size_t size = strlen(string), length = strlen(ending);
    return size >= length && !strcmp(string + size - length, ending);
}

/* ARGUMENT: the command line makes no sense. */
static bags_code read_spec(packing *pack, bool from_pipe, bags_error *err) {
    bool is_file = pack->spec &&
        (ends_in(pack->spec, ".json") ||
            (!strchr(pack->spec, '=') && path_exists(pack->spec)));
    if (is_file)
        return spec_from_file(pack, pack->spec, err);
    if (pack->spec)
        return spec_from_words(pack, err);
    if (from_pipe)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "--spec is needed for a manifest from standard input");
    char *beside = path_join(pack->directory, "spec.json", err);
    if (!beside)
        return BAGS_ERROR_MEMORY;
    bags_code code = path_exists(beside)
        ? spec_from_file(pack, beside, err)
        : bags_fail(err, BAGS_ERROR_ARGUMENT, "--spec is needed: there is no "
              "%s beside the manifest", beside);
    free(beside);
    return code;
}

/* ---- lines ---- */

static bags_code check_names(const packing *pack, json_object *line,
    bags_error *err) {
    size_t found = 0;
    for (size_t i = 0; i < pack->count; i++) {
        if (!json_object_object_get_ex(line, pack->fields[i].name, NULL))
            return bags_fail(err, BAGS_ERROR_FIELD, "field \"%s\": missing",
                pack->fields[i].name);
        found++;
    }
    if ((size_t)json_object_object_length(line) == found)
        return BAGS_OK;
    json_object_iter at;
    json_object_object_foreachC(line, at) {
        size_t i = 0;
        while (i < pack->count && strcmp(pack->fields[i].name, at.key))
            i++;
        if (i == pack->count)
            return bags_fail(err, BAGS_ERROR_FIELD,
                "field \"%s\": not in the spec", at.key);
    }
    return BAGS_OK;
}

/* One value, `item` of a sequence. What the writer says of it names the field
 * and the item already. */
static bags_code put_value(packing *pack, size_t field, size_t item,
    json_object *json, uint64_t *size, bags_error *err) {
    const bags_field *to = &pack->fields[field];
    bags_writer *out = pack->out.dataset;
    bags_value value;
    if (value_from_json(&pack->values, to->type, json, &value, err)) {
        if (pack->sequence[field])
            fail_prefix(err, "item %zu: ", item);
        return fail_prefix(err, "field \"%s\": ", to->name);
    }
    *size += value.size;
    return sink_did(&pack->out, pack->sequence[field]
            ? bags_writer_push(out, to->name, &value, err)
            : bags_writer_set(out, to->name, &value, err));
}

static bags_code put_list(packing *pack, size_t field, json_object *json,
    uint64_t *size, bags_error *err) {
    if (!json_object_is_type(json, json_type_array))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "field \"%s\": a sequence must be a list",
            pack->fields[field].name);
    size_t count = json_object_array_length(json);
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < count && !code; i++)
        code = put_value(pack, field, i, json_object_array_get_idx(json, i),
            size, err);
    return code;
}

static bags_code put_datapoint(packing *pack, json_object *line,
    uint64_t *size, bags_error *err) {
    bags_code code = check_names(pack, line, err);
    if (code)
        return code;
    code = sink_did(&pack->out, bags_writer_begin(pack->out.dataset, err));
    for (size_t i = 0; i < pack->count && !code; i++) {
        json_object *json;
        json_object_object_get_ex(line, pack->fields[i].name, &json);
        code = pack->sequence[i] ? put_list(pack, i, json, size, err)
                                 : put_value(pack, i, 0, json, size, err);
    }
    if (code)
        return code;
    return sink_did(&pack->out, bags_writer_end(pack->out.dataset, err));
}

static bags_code put_blob(packing *pack, json_object *line, uint64_t *size,
    bags_error *err) {
    json_object *json;
    bags_value value;
    if (json_object_object_length(line) != 1 ||
        !json_object_object_get_ex(line, "blob", &json))
        return bags_fail(err, BAGS_ERROR_FIELD,
            "a line for a Bag is {\"blob\": ...} and nothing else");
    bags_code code = value_from_json(&pack->values, NULL, json, &value, err);
    if (code)
        return fail_prefix(err, "field \"blob\": ");
    *size += value.size;
    return sink_did(&pack->out, bag_writer_append(pack->out.bag, value.data,
        value.size, NULL, err));
}

static bags_code put_line(packing *pack, const char *string, size_t size,
    bags_error *err) {
    json_object *line = NULL;
    uint64_t bytes = 0;
    bags_code code = json_read(string, size, &line, err);
    if (!code && !json_object_is_type(line, json_type_object))
        code = bags_fail(err, BAGS_ERROR_VALUE, "not a JSON object");
    if (!code)
        code = pack->out.bag ? put_blob(pack, line, &bytes, err)
                             : put_datapoint(pack, line, &bytes, err);
    json_object_put(line);
    if (code)
        return fail_prefix(err, "%s: line %ju: ", pack->manifest.path,
            (uintmax_t)pack->manifest.number);
    return sink_added(&pack->out, bytes, err);
}

/* Whether the line just read is this worker's, and not packed yet. */
static bool is_wanted(packing *pack) {
    uint64_t workers = pack->options.options.shard_stop;
    uint64_t worker = pack->options.options.shard_start;
    if (workers > 1 && (pack->manifest.number - 1) % workers != worker)
        return false;
    if (pack->skip == 0)
        return true;
    pack->skip--;
    return false;
}

static bags_code check_skipped(const packing *pack, bags_error *err) {
    if (pack->skip == 0)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE,
        "%s: holds more datapoints, by %ju, than %s has lines for them: it was "
        "packed from another manifest", pack->out.path, (uintmax_t)pack->skip,
        pack->manifest.path);
}

/* All lines of this worker. */
static bags_code put_lines(packing *pack, bags_error *err) {
    progress bar = {0};
    bar.title = "pack";
    bar.unit = pack->out.bag ? "blobs" : "datapoints";
    bags_code code = BAGS_OK;
    while (!code) {
        char *line;
        size_t size;
        line_state state = lines_next(&pack->manifest,
            sink_patience(&pack->out), &line, &size, err);
        if (state == LINE_NONE)
            break;
        if (state == LINE_BAD)
            code = err->code;
        else if (state == LINE_LATER)
            code = sink_flush(&pack->out, err);
        else if (is_wanted(pack))
            code = put_line(pack, line, size, err);
        progress_show(&bar, pack->manifest.consumed, pack->manifest.size,
            sink_length(&pack->out));
    }
    progress_end(&bar);
    return code ? code : check_skipped(pack, err);
}

/* ---- the command ---- */

/* Whether a dataset has the spec that is asked for. That no field is given twice
 * the writer has seen. */
static bool has_spec(const packing *pack, const bags_reader *reader) {
    size_t count;
    const bags_field *fields = bags_reader_fields(reader, &count);
    bool same = count == pack->count;
    for (size_t i = 0; same && i < count; i++) {
        size_t field;
        same = !bags_reader_field(reader, pack->fields[i].name, &field, NULL) &&
               !strcmp(fields[field].type, pack->fields[i].type);
    }
    return same;
}

static bool has_as_many_lines(packing *pack, uint64_t length) {
    bags_error err;
    uint64_t lines = 0;
    line_state state;
    do {
        char *line;
        size_t size;
        state = lines_next(&pack->manifest, -1, &line, &size, &err);
        lines += state != LINE_NONE && state != LINE_BAD;
    } while (state != LINE_NONE && state != LINE_BAD);
    return state == LINE_NONE && lines == length;
}

/* Whether the dataset is what this pack would have made; else err says why not,
 * or what it said before. */
static bags_code check_complete(packing *pack, const bags_reader *reader,
    bags_error *err) {
    uint64_t summed = 0;
    if (!has_spec(pack, reader))
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: is finished, and has other fields", pack->out.path);
    if (!has_as_many_lines(pack, bags_reader_length(reader)))
        return err->code;
    if (pack->options.checksum && bags_reader_summed(reader, &summed, err))
        return err->code;
    if (pack->options.checksum && !summed)
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: is complete, but without checksums; `bags checksum` makes them",
            pack->out.path);
    return BAGS_OK;
}

/* A dataset without shards that was packed to the end needs nothing more. */
static bags_code accept_complete(packing *pack, bags_error *err) {
    bags_error ignored;
    bags_reader *reader = bags_reader_open(pack->out.path, NULL, &ignored);
    if (!reader)
        return err->code;
    uint64_t length = bags_reader_length(reader);
    bags_code code = bags_reader_sharded(reader)
                         ? err->code
                         : check_complete(pack, reader, err);
    bags_reader_close(reader);
    if (!code)
        printf("%s: %ju datapoint%s, complete already\n", pack->out.path,
            (uintmax_t)length, length == 1 ? "" : "s");
    return code;
}

static bags_code open_sink(packing *pack, const char *out, bool from_pipe,
    bags_error *err) {
    pack->out.path = out;
    pack->out.sharded = pack->options.options.sharded;
    if (ends_in(out, ".bag")) {
        bag_writer_options options = {0};
        options.keep_idx = pack->options.idx;
        options.no_sync = pack->options.no_sync;
        options.checksum = pack->options.checksum;
        options.sync_size = pack->options.options.sync_size;
        if (pack->append)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%s is to be a Bag, to which nothing can be appended", out);
        if (pack->spec || pack->out.sharded)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%s is to be a Bag, which has no spec and no shards", out);
        pack->out.bag = bag_writer_open(out, &options, err);
        return pack->out.bag ? BAGS_OK : err->code;
    }
    bags_code code = read_spec(pack, from_pipe, err);
    if (code)
        return code;
    pack->values.codecs = codecs_make(err);
    if (!pack->values.codecs)
        return BAGS_ERROR_MEMORY;
    pack->options.options.registry = pack->values.codecs;
    pack->options.options.append = pack->append;
    pack->out.dataset = bags_writer_open(out, pack->fields, pack->count,
        &pack->options.options, err);
    pack->skip = bags_writer_resumed(pack->out.dataset);
    return pack->out.dataset ? BAGS_OK : err->code;
}

static int pack_all(packing *pack, const char *manifest, const char *out) {
    bags_error err;
    bool from_pipe = !strcmp(manifest, "-");
    if (lines_open(&pack->manifest, manifest, &err))
        return fail(&err);
    pack->directory = from_pipe ? string_format(&err, ".")
                                : path_parent(manifest, &err);
    pack->values.directory = pack->directory;
    if (!pack->directory)
        return fail(&err);
    bags_code code = open_sink(pack, out, from_pipe, &err);
    if (code == BAGS_ERROR_ARGUMENT)
        return fail_usage(&command_pack, "%s", err.message);
    if (code == BAGS_ERROR_EXISTS && pack->append && !pack->out.sharded)
        return accept_complete(pack, &err) ? fail(&err) : 0;
    if (code)
        return fail(&err);
    if (put_lines(pack, &err))
        return sink_give_up(&pack->out, &err);
    return sink_finish(&pack->out);
}

static void release(packing *pack) {
    lines_close(&pack->manifest);
    values_free(&pack->values);
    bags_registry_free(pack->values.codecs);
    json_object_put(pack->spec_json);
    free(pack->spec_text);
    free(pack->directory);
    free(pack->fields);
    free(pack->sequence);
}

static int run(int count, char **words) {
    packing pack;
    memset(&pack, 0, sizeof pack);
    pack.manifest.file = -1;
    option options[WRITE_OPTIONS + 2] = {{"spec", NULL, &pack.spec},
        {"append", &pack.append, NULL}};
    write_options_describe(&pack.options, options + 2);
    int exit_code;
    if (!options_parse(&command_pack, &count, words, options,
            WRITE_OPTIONS + 2, &exit_code))
        return exit_code;
    if (count != 2)
        return fail_usage(&command_pack, "takes MANIFEST.jsonl and OUT");
    if (!write_options_understand(&pack.options, &command_pack, &exit_code))
        return exit_code;
    exit_code = pack_all(&pack, words[0], words[1]);
    release(&pack);
    return exit_code;
}

const command command_pack = {"pack", "a dataset from JSON lines and files",
    "usage: bags pack MANIFEST.jsonl OUT [--spec SPEC] [--shard-...]\n"
    "                 [--append] [--checksum] [--idx]\n"
    "                 [--sync-size N | --no-sync]\n"
    "\n"
    "Each line is an object with a value for every field: numbers, text,\n"
    "lists for sequences, lists in lists for arrays, any JSON for msgpack;\n"
    "{\"file\": PATH} and {\"base64\": ...}, stored as encoded already; or\n"
    "{\"from\": PATH}, a .npy, JPEG, PNG, MP4, WebM, .txt or .msgpack file to\n"
    "be encoded anew. PATH is relative to the manifest. Lines {\"blob\": ...}\n"
    "and an OUT.bag make a Bag. A MANIFEST of - is standard input.\n"
    "\n"
    "  --spec SPEC       'photo=jpeg,label=int(4),words=utf8[]', or a\n"
    "                    FILE.json; else the spec.json beside the manifest\n"
    "  --append          go on where a pack of the same manifest, with the\n"
    "                    same options, was killed\n"
    "  --shard-size N    begin a new shard at N bytes: 512M, 10G\n"
    "  --shard-length N  ... at N datapoints\n"
    "  --shard-stop K    K workers pack the manifest, each with its own\n"
    "  --shard-start W   ... number, from 0. Worker W packs the lines W, W+K,\n"
    "                    W+2K, ... Any --shard option makes shards; 0 is no\n"
    "                    limit\n"
    "  --checksum        checksums beside each Bag: bags help checksum\n"
    "  --idx             leave .idx files, which newest granular reads\n"
    "  --sync-size N     wait for the disk after every N bytes, not only when\n"
    "                    a shard is done: what came before survives a loss of\n"
    "                    power\n"
    "  --no-sync         do not wait for the disk\n"
    "\n"
    "A bad line ends it, and what is not finished is removed.\n"
    "\n"
    "example:\n"
    "  bags pack pets.jsonl pets --spec 'photo=jpeg,label=int(4)'\n",
    run};
