/*
 * bags index: sorted indexes of fields; and the keys of `bags get --key`.
 */
#include "command.h"

#include "../../formats/formats.h"

#include <math.h>

static option_number memory = {0, 65536, 0, false};

static const option options[] = {
    {"memory", OPTION_SIZE, &memory, "SIZE",
        "sort with this much memory; 64M if not given"},
    OPTIONS_END,
};

/* ---- bags get --key ---- */

static const char *given; /* FIELD=KEY */

ENDS static void fail_key(const char *what) {
    usage("%s: --key %s: %s", source_path(), given, what);
}

/* Parse a number, the first bytes of a word. One with a fraction is in *real; of a
 * field of float32, it means the key that is shown like that. */
static bags_value parse_number(
    const char *word, size_t size, bool is_single, double *real) {
    char *end = NULL;
    bool is_infinity = !strncmp(word + (*word == '-'), "Infinity", 8);
    bags_value out;
    if (number_parse(word, size, &out))
        return out;
    *real = strtod(word, &end);
    if (!size || end != word + size ||
        (!is_infinity && strspn(word, "+-.0123456789eE") < size))
        fail_key(temp_format("\"%.*s\" is not a number", (int)size, word));
    if (isinf(*real) && !is_infinity)
        fail_key("a number above 1.8e308");
    if (is_single && single_is_shown(*real))
        *real = (double)(float)*real;
    return bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, real);
}

/* The field of FIELD=KEY. Its name may contain an =. */
static size_t find_field(const char *word, const bags_field *fields,
    size_t count, const char **key) {
    const char *at = strchr(word, '=');
    if (!at)
        usage("--key %s: must be FIELD=KEY", word);
    for (; at; at = strchr(at + 1, '=')) {
        size_t i = field_find(fields, count, word, (size_t)(at - word));
        *key = at + 1;
        if (i < count)
            return i;
    }
    word = string_format("%.*s", (int)strcspn(word, "="), word);
    fail_field(source_path(), word, fields, count);
}

static bags_index *found_index;

/* Text is a key as it is; a number may be the start of a range. */
void key_find(const char *word, uint64_t *start, uint64_t *stop) {
    static bags_buffer scratch;
    size_t count = 0;
    double reals[2];
    bags_value from = bags_int(0), to = from;
    const char *key = "";
    given = word;
    const bags_field *fields = source_fields(&count);
    if (!source_dataset())
        usage("%s is a Bag, which has no keys", source_path());
    if (io_for_path(source_path()) != bags_io_local())
        usage("--key: %s is not a local directory", source_path());
    const bags_field *field = &fields[find_field(word, fields, count, &key)];
    found_index = bags_index_open(source_path(), source_dataset(),
        (size_t)(field - fields), NULL, &failure);
    if (!found_index && failure.code == BAGS_ERROR_MISSING)
        failure_suffix(" with `bags index %s %s`", source_path(), field->name);
    must_open(found_index);
    type_class kind = type_kind(field->type);
    bool is_number = kind == TYPE_NUMBER || kind == TYPE_ARRAY;
    bool is_single = type_dtype(field->type) == BAGS_DTYPE_FLOAT32;
    const char *colon = is_number ? strchr(key, ':') : NULL;
    if (!is_number)
        from = bags_utf8(key);
    else if (!colon || colon > key)
        from = parse_number(key, strcspn(key, ":"), is_single, &reals[0]);
    if (colon && colon[1])
        to = parse_number(colon + 1, strlen(colon + 1), is_single, &reals[1]);
    bags_code code;
    if (colon)
        code = bags_index_find_range(found_index, colon > key ? &from : NULL,
            colon[1] ? &to : NULL, &scratch, start, stop, &failure);
    else
        code = bags_index_find(
            found_index, &from, &scratch, start, stop, &failure);
    if (code == BAGS_ERROR_VALUE || code == BAGS_ERROR_RANGE)
        fail_key(failure.message);
    must(code);
    if (*start == *stop && !colon)
        fail(BAGS_ERROR_RANGE, "%s: field \"%s\": no datapoint has the key %s",
            source_path(), field->name, key);
}

uint64_t key_datapoint(uint64_t position) {
    static bags_buffer scratch;
    static bags_row row;
    uint64_t datapoint = 0;
    must(bags_index_get(
        found_index, position, &scratch, &row, &datapoint, &failure));
    return datapoint;
}

/* ---- the command ---- */

static uint64_t indexed; /* datapoints */

static void progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    indexed = done;
    progress_show("indexing", "datapoints", done, total, done);
}

ENDS static void fail_no_field(const char *path, const char *name) {
    size_t count = 0;
    static bags_reader *reader;
    reader = bags_reader_open(path, NULL, &failure);
    must_open(reader);
    const bags_field *fields = bags_reader_fields(reader, &count);
    fail_field(path, name, fields, count);
}

static int run(char **operands) {
    bags_index_options how = {0};
    how.memory = (size_t)memory.value;
    how.progress = progress;
    path_must_be_writable(operands[0]);
    interrupt_leaves("no index was written", "start again with", NULL);
    bags_code code = bags_index_build(operands[0], operands[1], &how, &failure);
    progress_end();
    if (code == BAGS_ERROR_FIELD)
        fail_no_field(operands[0], operands[1]);
    must(code);
    print("%s: indexed %s by %s\n", operands[0], counted(indexed, "datapoint"),
        operands[1]);
    return 0;
}

const command command_index = {"index", "an index, to find datapoints by key",
    "DATASET FIELD", {ARGUMENT_LOCAL, ARGUMENT_WORD}, 2, 2, options, NULL,
    "Writes a sorted index of a field of numbers, utf8 or bytes, with which "
    "`bags get DATASET --key FIELD=KEY` finds datapoints without reading all. "
    "It is stored in the dataset's directory, in that of its first shard if it "
    "is sharded; other readers ignore it. When the dataset has changed, the "
    "index is refused until it is built again.\n",
    "  bags index pets name\n"
    "  bags get pets --key name=rex label\n",
    run};
