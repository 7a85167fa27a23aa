/*
 * bags pack: write a manifest of JSON lines as a dataset, or as a Bag.
 */
#include "command.h"

#include "text.h"

static const char *spec;
static bool any_type;
static value_reader values;

static const option options[] = {
    {"spec", OPTION_TEXT, &spec, "SPEC",
        "'photo=jpeg,label=int(4),words=utf8[]', or a FILE.json; default: the "
        "spec.json next to the manifest or, with --append, of OUT"},
    {"any-type", OPTION_FLAG, &any_type, NULL,
        "accept unknown types in --spec: bags help types"},
    {"dictionary", OPTION_PATH, &dictionary_given, "FILE",
        "for zstd fields: use this dictionary; none: no dictionary; default: train on "
        "the first values"},
    {"unchecked", OPTION_FLAG, &values.unchecked, NULL,
        "store \"file\" and \"base64\" values without checking that they are "
        "of their type"},
    OPTION_MAX_PIXELS,
    OPTIONS_END,
};

/* ---- the spec ---- */

static bags_field *fields;
static size_t count;
static const char *spec_path; /* the file being read, for failure messages */
static bool in_words;         /* a refused type or name comes from --spec */

/* Unknown types are legal, but are more likely mistakes. In a spec.json next to the
 * manifest, perhaps written by `bags export`, they only cause a note. */
static void add_field(const char *name, const char *type, bool given) {
    bags_type parsed;
    fields = (bags_field *)grow(fields, count, sizeof *fields);
    fields[count].name = name;
    fields[count].type = type = type_complete(type);
    count++;
    bool legal = !bags_type_parse(type, &parsed, NULL);
    bool known = !bags_type_check(registry_get(), type, &failure);
    if (known ? type_is_valid(type) : legal && any_type)
        return;
    if (legal && !known)
        failure_suffix(
            "; see `bags help types`%s", given ? ", or pass --any-type" : "");
    if (!legal)
        failure_suffix("%s", type_hint(type));
    failure_prefix("field \"%.160s\": ", name);
    if (given || !legal || known)
        die();
    note_failure();
}

/* Parse --spec NAME=TYPE,... Names must be simple, since commas and = are
 * separators. */
static void spec_from_words(void) {
    char *at = string_format("%s", spec), *name, *type;
    in_words = true;
    while (list_next(&at, &name, &type)) {
        if (!type)
            usage("--spec: \"%s\" is not NAME=TYPE", name);
        if (strpbrk(name, "= \t\n"))
            usage("--spec: the name of a field in \"%s=%s\" contains = or "
                  "spaces; use a FILE.json. Commas separate fields",
                name, type);
        add_field(name, type, true);
    }
}

/* Parse a spec.json in the format of a dataset. The names are not freed. */
static void spec_from_file(const char *path, bool given) {
    bags_buffer file = {0};
    bags_view content = file_read(path, &file);
    spec_path = path;
    json_object *json = json_read((const char *)content.data, content.size);
    if (!json_object_is_type(json, json_type_object))
        fail(BAGS_ERROR_VALUE, "not a JSON object");
    json_object_iter at;
    json_object_object_foreachC(json, at) {
        const char *type = json_object_get_string(at.val);
        if (!json_object_is_type(at.val, json_type_string) ||
            strlen(type) != (size_t)json_object_get_string_len(at.val))
            fail(BAGS_ERROR_TYPE, "field \"%s\": the type is not text", at.key);
        add_field(string_format("%s", at.key), type, given);
    }
    json_object_put(json);
    bags_buffer_free(&file);
    spec_path = NULL;
}

static char *info_path; /* next to this spec.json; may be missing */

/* --spec takes precedence, followed by the spec.json next to the manifest, and by the
 * spec of the dataset to append to. */
static void read_spec(const char *out, bool from_pipe) {
    char *beside = path_join(values.directory, "spec.json");
    char *appended = out ? existing_spec(out) : NULL;
    if (spec &&
        (has_ending(spec, ".json") || (!strchr(spec, '=') && path_exists(spec))))
        spec_from_file(spec, true);
    else if (spec)
        spec_from_words();
    else if (!from_pipe && path_exists(beside)) {
        spec_from_file(beside, false);
        info_path = path_join(values.directory, "info.json");
    } else if (appended)
        spec_from_file(appended, false);
    else if (from_pipe)
        usage("a manifest from standard input needs --spec");
    else
        usage("needs --spec, or a spec.json next to the manifest (%s is missing)",
            beside);
    free(beside);
    free(appended);
}

/* ---- lines ---- */

static bool in_line;         /* a failure is in this line, */
static const char *in_field; /* in a value of this field, or NULL, */
static bool in_sequence;
static size_t in_item; /* and in this item of a sequence */

/* A line must have exactly the fields of the spec: a misspelt name must not become a
 * missing value. */
static void check_names(json_object *line) {
    for (size_t i = 0; i < count; i++)
        if (!json_object_object_get_ex(line, fields[i].name, NULL))
            fail(BAGS_ERROR_FIELD, "field \"%s\": missing", fields[i].name);
    if ((size_t)json_object_object_length(line) == count)
        return;
    json_object_iter at;
    json_object_object_foreachC(line, at) {
        if (field_find(fields, count, at.key, strlen(at.key)) == count)
            fail(BAGS_ERROR_FIELD, "field \"%s\": not in the spec", at.key);
    }
}

static void put_value(size_t field, size_t item, json_object *json) {
    in_field = fields[field].name;
    in_item = item;
    bags_value value = value_parse(&values, fields[field].type, json);
    in_field = NULL;
    sink_put(field, item, &value);
}

static void put_line(const char *string, size_t size) {
    in_line = true;
    json_object *line = json_read(string, size);
    if (!json_object_is_type(line, json_type_object))
        fail(BAGS_ERROR_VALUE, "not a JSON object");
    check_names(line);
    sink_begin();
    for (size_t i = 0; i < count; i++) {
        json_object *json;
        json_object_object_get_ex(line, fields[i].name, &json);
        in_sequence = sink_is_sequence(i);
        if (!in_sequence) {
            put_value(i, 0, json);
            continue;
        }
        if (!json_object_is_type(json, json_type_array))
            fail(BAGS_ERROR_VALUE, "field \"%s\": a sequence must be a list",
                fields[i].name);
        for (size_t j = 0; j < json_object_array_length(json); j++)
            put_value(i, j, json_object_array_get_idx(json, j));
    }
    sink_end();
    json_object_put(line);
    in_line = false;
}

void lines_explain(void) {
    if (in_field && in_sequence)
        failure_prefix("item %zu: ", in_item);
    if (in_field)
        failure_prefix("field \"%s\": ", in_field);
    if (in_line)
        failure_prefix("%s: line %ju: ", lines_path(), (uintmax_t)lines_number());
    if (spec_path)
        failure_prefix("%s: ", spec_path);
    if (in_words &&
        (failure.code == BAGS_ERROR_TYPE || failure.code == BAGS_ERROR_FIELD))
        failure.code = BAGS_ERROR_ARGUMENT;
}

/* Append the position of the failure, and which data was kept. */
static void explain_failure(void) {
    lines_explain();
    sink_failed();
}

uint64_t lines_put(uint64_t most) {
    line_state state = LINE_READY;
    char *line;
    size_t size;
    uint64_t i = 0;
    in_words = false;
    for (; i < most && state != LINE_END; i += state == LINE_READY) {
        uint64_t done, total;
        state = lines_next(sink_patience(), &line, &size);
        interrupt_check();
        if (state == LINE_LATER)
            sink_flush();
        else if (state == LINE_READY && writing_is_mine(lines_number() - 1) &&
                 sink_next())
            put_line(line, size);
        lines_progress(&done, &total);
        progress_show(failed_command, "datapoints", done, total, sink_length());
    }
    progress_end();
    return i;
}

static void open_lines(const char *manifest) {
    bool from_pipe = !strcmp(manifest, "-");
    if (spec)
        path_must_be_local("--spec", spec);
    lines_open(manifest);
    values.directory = string_format("%s", from_pipe ? "." : path_parent(manifest));
}

const bags_field *lines_spec(const char *manifest, const char *with, size_t *number) {
    spec = with;
    open_lines(manifest);
    read_spec(NULL, false);
    in_words = false;
    *number = count;
    return fields;
}

static int run(char **operands) {
    const char *out = operands[1];
    bool is_bag = has_ending(out, ".bag");
    on_failure = explain_failure;
    writing_check(out, is_bag);
    open_lines(operands[0]);
    if (is_bag && spec)
        usage("%s: a Bag has no --spec", out);
    if (is_bag)
        add_field("blob", "bytes", true);
    else
        read_spec(out, !strcmp(operands[0], "-"));
    bags_buffer info = {0};
    if (info_path && path_exists(info_path) &&
        !format_is_metadata(file_read(info_path, &info)))
        fail(BAGS_ERROR_VALUE, "%s: not a JSON object of at most 16 MiB", info_path);
    sink_open(out, lines_path(), fields, count, is_bag);
    lines_put(UINT64_MAX);
    sink_finish();
    if (info.data)
        sink_describe((const char *)info.data);
    bags_buffer_free(&info);
    free(info_path);
    return 0;
}

const command command_pack = {"pack", "a dataset from JSON lines and files",
    "MANIFEST.jsonl OUT", {ARGUMENT_LOCAL, ARGUMENT_LOCAL}, 2, 2, options,
    writing_options,
    "Each line is an object with a value for every field: numbers, text, lists "
    "for sequences, nested lists for arrays, any JSON for msgpack; {\"file\": "
    "PATH} and {\"base64\": TEXT} for encoded values; or {\"from\": PATH}, a .npy, "
    "JPEG, PNG, WebP, MP4, WebM, .txt or .msgpack file to convert. PATH is relative to "
    "the manifest. Lines {\"blob\": ...} and an OUT.bag make a Bag. A MANIFEST of "
    "- is standard input. Worker W of K packs the lines W, W+K, W+2K, ..., counted "
    "from 0.\n"
    "A bad line ends the command. Earlier datapoints are kept, unfinished: correct "
    "the line and run the command again with --resume.\n",
    "  bags pack pets.jsonl pets --spec 'photo=jpeg,label=int(4)'\n", run};
