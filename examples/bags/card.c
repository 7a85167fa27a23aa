/*
 * bags card: describe a dataset for catalogues, as Croissant 1.1 (JSON-LD) or as the
 * YAML front matter of a Hugging Face README. Facts that the files do not state, such
 * as the licence, come from the dataset's info.json.
 */
#include "command.h"

#include "text.h"
#include "values.h"

#include <ctype.h>

static bool readme;

static const option options[] = {
    {"readme", OPTION_FLAG, &readme, NULL,
        "print the YAML with which the README of a dataset on Hugging Face begins"},
    OPTIONS_END,
};

static const char *path;
static const bags_reader *reader;
static const bags_field *fields;
static size_t fields_count;
static bags_info about;
static json_object *info; /* an object */
static text out;

/* ---- info.json ---- */

static void info_read(void) {
    must(metadata_read(path, reader, &info));
    if (!info)
        info = json_object_new_object();
}

/* Look up a member of info.json by its Croissant name. NULL if there is none. */
static json_object *info_get(const char *name) {
    json_object *value = NULL;
    (void)json_object_object_get_ex(info, name, &value);
    return value;
}

/* Like info_get, but the member must be a string. */
static const char *info_text(const char *name) {
    json_object *value = info_get(name);
    if (!value)
        return NULL;
    if (!json_object_is_type(value, json_type_string))
        fail(BAGS_ERROR_VALUE, "%s: info.json: \"%s\" is not a string", path, name);
    return json_object_get_string(value);
}

/* By default, the dataset is named after the last component of its path. */
static const char *default_name(void) {
    size_t size = format_path_size(path);
    size_t start = size;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return temp_format("%.*s", (int)(size - start), path + start);
}

/* ---- fields ---- */

/* A type as a card describes it: its class, and an array's dtype and shape. */
typedef struct described {
    type_class kind;
    bags_dtype dtype;
    bool sequence;
    size_t dims; /* some may be unknown */
    bags_view shape[BAGS_MAX_DIMS];
} described;

static described describe(const char *type) {
    bags_type parsed, inside;
    described d;
    memset(&d, 0, sizeof d);
    must(bags_type_parse(type, &parsed, &failure));
    d.kind = type_kind(type);
    d.dtype = type_dtype(type);
    d.sequence = parsed.sequence;
    if (format_type_inside(&parsed, &inside))
        parsed = inside;
    for (size_t i = 1; d.dtype && i < parsed.count && d.dims < BAGS_MAX_DIMS; i++)
        d.shape[d.dims++] = bags_type_argument(&parsed, i);
    return d;
}

static bool is_known(bags_view dim) { return dim.size > 0 && isdigit(dim.data[0]); }

/* ---- Croissant ---- */

static void next_line(int indent) {
    text_format(&out, "%s\n%*s",
        out.buffer.data[out.size - 1] == '{' || out.buffer.data[out.size - 1] == '['
            ? ""
            : ",",
        indent, "");
}

static void put_member(int indent, const char *name, const char *value) {
    next_line(indent);
    text_json_string(&out, name);
    text_puts(&out, ": ");
    text_json_string(&out, value);
}

/* The context from the appendix of the specification. */
static void put_context(void) {
    static const char *const prefixes[][2] = {{"@language", "en"},
        {"@vocab", "http://schema.org/"}, {"sc", "http://schema.org/"},
        {"cr", "http://mlcommons.org/croissant/"},
        {"rai", "http://mlcommons.org/croissant/RAI/"},
        {"dct", "http://purl.org/dc/terms/"}, {"conformsTo", "dct:conformsTo"}};
    static const char *const names[] = {"annotation", "arrayShape", "citeAs", "column",
        "containedIn", "equivalentProperty", "excludes", "extract", "field",
        "fileProperty", "fileObject", "fileSet", "format", "includes", "isArray",
        "isLiveDataset", "jsonPath", "key", "md5", "parentField", "recordSet",
        "references", "regex", "readLines", "sdVersion", "separator", "source",
        "subField", "transform", "unArchive", "value"};
    static const char *const typed[][2] = {
        {"data", "@json"}, {"dataType", "@vocab"}, {"examples", "@json"}};
    text_puts(&out, "{\n  \"@context\": {");
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        put_member(4, prefixes[i][0], prefixes[i][1]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_member(4, names[i], temp_format("cr:%s", names[i]));
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        next_line(4);
        text_format(&out, "\"%s\": {\"@id\": \"cr:%s\", \"@type\": \"%s\"}",
            typed[i][0], typed[i][0], typed[i][1]);
    }
    text_puts(&out, "\n  }");
}

/* The members that info.json provides. The specification requires the first four. */
static void put_about(void) {
    static const char *const members[] = {"license", "url", "creator", "datePublished",
        "version", "keywords", "citeAs", "publisher", "dateCreated", "dateModified",
        "inLanguage", "sameAs"};
    const char *name = info_text("name"), *description = info_text("description");
    static text missing;
    put_member(2, "@type", "sc:Dataset");
    put_member(2, "conformsTo", "http://mlcommons.org/croissant/1.1");
    put_member(2, "name", name ? name : default_name());
    put_member(2, "description",
        description ? description
                    : temp_format("%s in the Bags format.",
                          counted(bags_reader_length(reader), "datapoint")));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_object *value = info_get(members[i]);
        if (!value && i < 4)
            text_format(&missing, "%s%s", missing.size ? ", " : "", members[i]);
        if (!value)
            continue;
        next_line(2);
        text_json_string(&out, members[i]);
        text_puts(&out, ": ");
        const char *words =
            json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
        bags_view json = {(const unsigned char *)words, strlen(words)};
        text_json_clean(&out, json);
    }
    if (missing.size)
        note("%s: Croissant requires %s: add them to info.json", path,
            text_string(&missing));
}

/* The files below a directory. `front` is prepended to their names. */
typedef struct file_list {
    const char *directory, *front;
    char **names;
    size_t count;
} file_list;

static file_list files;

static int add_file(void *user, const char *name) {
    const file_list *in = (const file_list *)user;
    char *file = path_join(in->directory, name);
    char *shown = string_format("%s%s", in->front, name);
    bags_path_kind kind = path_kind(file);
    /* These files describe the dataset; they are not part of it. */
    bool is_card =
        !*in->front && (!strcmp(name, "croissant.json") || !strcmp(name, "README.md"));
    if (kind == BAGS_PATH_DIRECTORY) {
        char *front = string_format("%s/", shown);
        file_list below = {file, front, NULL, 0};
        const bags_io *io = bags_io_local();
        int error = io->list(io->user, file, add_file, &below);
        must(bags_fail_io(io, error, file, "list", &failure));
        free(front);
    } else if (kind == BAGS_PATH_FILE && !is_card) {
        files.names = (char **)grow(files.names, files.count, sizeof *files.names);
        files.names[files.count++] = shown;
        shown = NULL;
    }
    free(shown);
    free(file);
    return 0;
}

static void list_files(void) {
    const bags_io *io = bags_io_local();
    files.directory = path;
    files.front = "";
    int error = io->list(io->user, path, add_file, &files);
    must(bags_fail_io(io, error, path, "list", &failure));
    qsort(files.names, files.count, sizeof *files.names, format_compare_texts);
}

static uint64_t hashed;

static void show_progress(uint64_t bytes) {
    hashed += bytes;
    progress_show("hashing", "bytes", hashed, about.size, hashed);
    interrupt_check();
}

/* Escape special characters in a name so that it can be part of a URL. */
static const char *url_of(const char *name) {
    static text made;
    made.size = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        text_format(&made, isalnum(*c) || strchr("-._~/", *c) ? "%c" : "%%%02X", *c);
    return text_string(&made);
}

static void put_files(void) {
    next_line(2);
    text_puts(&out, "\"distribution\": [");
    for (size_t i = 0; i < files.count; i++) {
        char hash[65];
        const char *name = files.names[i];
        char *file = path_join(path, name);
        uint64_t size = file_sha256(file, show_progress, hash);
        free(file);
        next_line(4);
        text_puts(&out, "{");
        put_member(6, "@type", "cr:FileObject");
        put_member(6, "@id", name);
        put_member(6, "name", name);
        put_member(6, "contentUrl", url_of(name));
        put_member(6, "contentSize", temp_format("%ju B", (uintmax_t)size));
        put_member(6, "encodingFormat",
            has_ending(name, ".json") ? "application/json"
                                      : "application/octet-stream");
        put_member(6, "sha256", hash);
        text_puts(&out, "\n    }");
    }
    progress_end();
    text_puts(&out, "\n  ]");
}

static const char *data_type(const described *d) {
    static const char *const types[] = {[TYPE_OTHER] = "sc:Text",
        [TYPE_NUMBER] = "sc:Integer",
        [TYPE_TEXT] = "sc:Text",
        [TYPE_ARRAY] = "sc:Text",
        [TYPE_MSGPACK] = "sc:Text",
        [TYPE_IMAGE] = "sc:ImageObject",
        [TYPE_VIDEO] = "sc:VideoObject"};
    if (d->kind != TYPE_ARRAY || !d->dtype)
        return types[d->kind];
    return d->dtype == BAGS_DTYPE_BOOL    ? "sc:Boolean"
           : d->dtype <= BAGS_DTYPE_INT64 ? "sc:Integer"
                                          : "sc:Float";
}

/* "-1,2,3" for a sequence of arrays of shape 2 x 3. */
static void put_shape(const described *d) {
    next_line(10);
    text_puts(&out, "\"isArray\": true");
    next_line(10);
    text_puts(&out, "\"arrayShape\": \"");
    text_puts(&out, d->sequence ? "-1" : "");
    for (size_t i = 0; i < d->dims; i++) {
        text_puts(&out, i || d->sequence ? "," : "");
        if (is_known(d->shape[i]))
            text_put(&out, d->shape[i].data, d->shape[i].size);
        else
            text_puts(&out, "-1");
    }
    text_puts(&out, "\"");
}

/* The Bags that store a field: one per shard. */
static void put_source(const char *field) {
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    next_line(10);
    text_format(&out, "\"source\": {\"fileObject\": %s", count == 1 ? "" : "[");
    for (size_t i = 0; i < count; i++) {
        const char *name = temp_format("%s.bag", field);
        if (shards[i].digits)
            name = temp_format("%0*ju/%s.bag", (int)shards[i].digits,
                (uintmax_t)shards[i].number, field);
        text_puts(&out, i ? ", {\"@id\": " : "{\"@id\": ");
        text_json_string(&out, name);
        text_puts(&out, "}");
    }
    text_format(&out, "%s, \"extract\": {\"fileProperty\": \"content\"}}",
        count == 1 ? "" : "]");
}

static void put_records(void) {
    next_line(2);
    text_puts(&out, "\"recordSet\": [\n    {");
    put_member(6, "@type", "cr:RecordSet");
    put_member(6, "@id", "datapoints");
    put_member(6, "name", "datapoints");
    put_member(6, "description", counted(bags_reader_length(reader), "datapoint"));
    next_line(6);
    text_puts(&out, "\"field\": [");
    for (size_t i = 0; i < fields_count; i++) {
        described d = describe(fields[i].type);
        next_line(8);
        text_puts(&out, "{");
        put_member(10, "@type", "cr:Field");
        put_member(10, "@id", temp_format("datapoints/%s", fields[i].name));
        put_member(10, "name", fields[i].name);
        put_member(10, "description", temp_format("of type %s", fields[i].type));
        put_member(10, "dataType", data_type(&d));
        if (d.sequence || d.dims)
            put_shape(&d);
        put_source(fields[i].name);
        text_puts(&out, "\n        }");
    }
    text_puts(&out, "\n      ]\n    }\n  ]\n}\n");
}

/* ---- YAML ---- */

/* Write a name as a JSON string: every JSON string is also valid YAML. */
static void put_yaml(const char *front, const char *value) {
    text_puts(&out, front);
    text_json_string(&out, value);
    text_puts(&out, "\n");
}

static const char *size_category(uint64_t length) {
    static const char *const names[] = {"n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M",
        "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B", "10B<n<100B", "100B<n<1T"};
    uint64_t limit = 1000;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++, limit *= 10)
        if (length < limit)
            return names[i];
    return "n>1T";
}

/* The dtype of one element, or a word for a type without elements. */
static const char *feature_dtype(const described *d) {
    static const char *const dtypes[] = {[TYPE_OTHER] = "binary",
        [TYPE_NUMBER] = "int64",
        [TYPE_TEXT] = "string",
        [TYPE_ARRAY] = "binary",
        [TYPE_MSGPACK] = "binary",
        [TYPE_IMAGE] = "image",
        [TYPE_VIDEO] = "video"};
    if (!d->dtype)
        return dtypes[d->kind];
    return d->dtype == BAGS_DTYPE_BOOL ? "bool" : bags_dtype_name(d->dtype);
}

static void put_feature(const bags_field *field) {
    described d = describe(field->type);
    const char *dtype = feature_dtype(&d);
    bool is_array = d.dims > 1 && d.dims <= 5;
    for (size_t i = 1; i < d.dims; i++) /* only the first may be unknown */
        is_array = is_array && is_known(d.shape[i]);
    bool is_list = d.sequence || d.dims == 1;
    put_yaml("  - name: ", field->name);
    text_format(&out, "    %s:", is_list ? "sequence" : "dtype");
    if (is_array) {
        text_format(&out, "\n      array%zu_d:\n        shape:\n", d.dims);
        for (size_t i = 0; i < d.dims; i++)
            text_format(&out, "        - %.*s\n",
                is_known(d.shape[i]) ? (int)d.shape[i].size : 4,
                is_known(d.shape[i]) ? (const char *)d.shape[i].data : "null");
        text_format(&out, "        dtype: %s\n", dtype);
    } else if (d.sequence && d.dims == 1) {
        text_format(&out, "\n      sequence: %s\n", dtype);
    } else {
        text_format(&out, " %s\n", d.dims > 1 ? "binary" : dtype);
    }
}

static void put_readme(void) {
    const char *name = info_text("name"), *license = info_text("license");
    text_puts(&out, "---\n");
    put_yaml("pretty_name: ", name ? name : default_name());
    if (license)
        put_yaml("license: ", license);
    text_format(&out, "size_categories:\n- %s\ntags:\n- bags\n",
        size_category(bags_reader_length(reader)));
    text_puts(&out, "dataset_info:\n  features:\n");
    for (size_t i = 0; i < fields_count; i++)
        put_feature(&fields[i]);
    text_format(&out,
        "  splits:\n  - name: train\n    num_bytes: %ju\n    num_examples: %ju\n"
        "  dataset_size: %ju\n---\n",
        (uintmax_t)about.size, (uintmax_t)bags_reader_length(reader),
        (uintmax_t)about.size);
}

static int run(char **operands) {
    path = operands[0];
    path_must_be_local("DATASET", path);
    path_must_be_writable(path);
    reader = dataset_open(path, registry_get());
    fields = bags_reader_fields(reader, &fields_count);
    must(bags_reader_info(reader, &about, NULL, &failure));
    info_read();
    if (readme) {
        put_readme();
    } else {
        list_files();
        put_context();
        put_about();
        put_files();
        put_records();
    }
    must(bags_reader_check(reader, &failure));
    text_output(&out);
    return 0;
}

const command command_card = {"card", "describe a dataset for catalogues", "DATASET",
    {ARGUMENT_LOCAL}, 1, 1, options, NULL,
    "Prints a croissant.json (Croissant 1.1), with the SHA-256 and the size of every "
    "file, "
    "whose URLs are relative to the dataset; or with --readme YAML. Facts that the "
    "files do "
    "not state are read from info.json, next to spec.json or in the first shard: a "
    "JSON "
    "object with members of schema.org, such as \"name\", \"description\", "
    "\"license\", \"url\", \"creator\", \"datePublished\", \"version\" and "
    "\"keywords\". The files croissant.json and README.md of the dataset are left "
    "out.\n",
    "  bags card pets >croissant.json\n", run};
