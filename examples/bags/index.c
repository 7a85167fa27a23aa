/*
 * bags index: make sorted indexes of fields. Also implements `bags get --key`.
 */
#include "command.h"

#include "formats.h"
#include "index.h"
#include "text.h"

#include <errno.h>
#include <math.h>

static option_number memory = {0, 65536, 0, false};

static const option options[] = {
    {"memory", OPTION_SIZE, &memory, "SIZE",
        "sort with this much memory; 64M if not given"},
    OPTIONS_END,
};

/* ---- existing indexes ---- */

void indexes_expect(const char *path, const bags_reader *reader) {
    const bags_io *io = io_for_path(path);
    size_t shards_count, fields_count;
    const bags_field *fields = bags_reader_fields(reader, &fields_count);
    const bags_shard *shards = bags_reader_shards(reader, &shards_count);
    char file[4096];
    if (!io->expect || !shards_count)
        return;
    if (!bags_metadata_path(path, reader, file, sizeof file, NULL))
        io->expect(io->user, file);
    bags_shard first = shards[0];
    first.number = 0;
    for (size_t i = 0; i < fields_count; i++)
        io->expect(io->user,
            temp_format("%s/index/%s.bag", shard_path(path, &first), fields[i].name));
}

/* Open each index to check that it matches the dataset. Print a note about an index
 * that does not, and treat it as missing. */
size_t *indexes_find(const char *path, const bags_reader *reader, size_t *count) {
    bags_index_options how = {0};
    size_t shards_count, fields_count;
    (void)bags_reader_fields(reader, &fields_count);
    (void)bags_reader_shards(reader, &shards_count);
    size_t *found = (size_t *)allocate(fields_count, sizeof *found);
    how.env.io = io_for_path(path);
    *count = 0;
    if (!shards_count)
        return found;
    indexes_expect(path, reader);
    for (size_t i = 0; i < fields_count; i++) {
        bags_index *index = bags_index_open(path, reader, i, &how, &failure);
        bags_code code = index ? BAGS_OK : failure.code;
        bags_index_close(index);
        if (code == BAGS_ERROR_MEMORY)
            die();
        if (!code)
            found[(*count)++] = i;
        /* Some servers respond with 403 to a request for a missing file. */
        else if (code == BAGS_ERROR_CORRUPT ||
                 (code == BAGS_ERROR_IO &&
                     !(how.env.io->read_many && failure.system == EACCES)))
            note_failure();
    }
    return found;
}

/* Each index is a Bag with checksums. */
char **index_files(const char *path, size_t *count) {
    bags_reader_options reading = {0};
    size_t length;
    reading.env.io = io_for_path(path);
    bags_reader *reader = bags_reader_open(path, &reading, &failure);
    if (!reader)
        path_hint(path);
    must_open(reader);
    size_t *found = indexes_find(path, reader, &length);
    char **names = (char **)allocate(2 * length, sizeof *names);
    for (size_t i = 0; i < 2 * length; i++) {
        char name[FORMAT_INDEX_NAME];
        format_index_name(reader, found[i / 2], i % 2, name);
        names[i] = string_format("%s", name);
    }
    *count = 2 * length;
    free(found);
    bags_reader_close(reader);
    return names;
}

/* ---- bags get --key ---- */

static const char *given; /* FIELD=KEY */

ENDS static void fail_key(const char *what) {
    usage("%s: --key %s: %s", source_path(), given, what);
}

/* Parse the number at the start of a word. A fraction is stored in *real; in a float32
 * field, it means the key that is shown like that. */
static bags_value parse_number(
    const char *word, size_t size, bool is_single, double *real) {
    char *end = NULL;
    bool is_infinity = !strncmp(word + (*word == '-'), "Infinity", 8);
    bags_value out;
    if (format_number(word, size, &out))
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

/* Find the field in FIELD=KEY or FIELD<=KEY. Its name may contain = or end in <. */
static size_t find_field(const char *word, const bags_field *fields, size_t count,
    const char **key, bool *before) {
    const char *at = strchr(word, '=');
    if (!at)
        usage("--key %s: must be FIELD=KEY or FIELD<=KEY", word);
    for (; at; at = strchr(at + 1, '=')) {
        size_t size = (size_t)(at - word);
        size_t i = field_find(fields, count, word, size);
        *key = at + 1;
        *before = i == count && size && at[-1] == '<';
        if (*before)
            i = field_find(fields, count, word, size - 1);
        if (i < count)
            return i;
    }
    word = string_format("%.*s", (int)strcspn(word, "="), word);
    fail_field(source_path(), word, fields, count);
}

static bags_index *found_index;

/* If the index is missing, the message names the command that makes it. */
static void open_index(size_t field, const char *name) {
    bags_index_options how = {0};
    how.env.io = io_for_path(source_path());
    found_index =
        bags_index_open(source_path(), source_dataset(), field, &how, &failure);
    if (found_index || failure.code != BAGS_ERROR_MISSING) {
        must_open(found_index);
        return;
    }
    if (how.env.io == bags_io_local())
        failure_suffix(" with `bags index %s %s`", source_path(), name);
    else
        failure_suffix(" where the dataset was written, and copy it again");
    die();
}

/* Kinds of keys. */
typedef enum key_kind { KEY_EQUAL, KEY_RANGE, KEY_PREFIX, KEY_BEFORE } key_kind;

/* Parse a key of a text or bytes field. A final * matches any ending; a final ** stands
 * for a literal *. */
static bags_value parse_text(const char *key, key_kind *kind) {
    size_t size = strlen(key);
    bool is_star = *kind == KEY_EQUAL && size > 0 && key[size - 1] == '*';
    bool are_two = is_star && size > 1 && key[size - 2] == '*';
    if (is_star && !are_two)
        *kind = KEY_PREFIX;
    return bags_utf8_sized(key, size - is_star);
}

/* A key of a number field is a number or a range START:STOP. A key of a text field is
 * text, or a prefix followed by a star. If START or STOP is missing, that side is
 * unbounded. */
void key_find(const char *word, uint64_t *start, uint64_t *stop) {
    static bags_buffer scratch;
    size_t count = 0;
    double reals[2];
    bags_value from = bags_int(0), to = from;
    const char *key = "";
    bool before;
    given = word;
    const bags_field *fields = source_fields(&count);
    if (!source_dataset())
        usage("%s is a Bag and has no keys", source_path());
    size_t number = find_field(word, fields, count, &key, &before);
    const bags_field *field = &fields[number];
    open_index(number, field->name);
    type_class type = type_kind(field->type);
    bool is_number = type == TYPE_NUMBER || type == TYPE_ARRAY;
    bool is_single = type_dtype(field->type) == BAGS_DTYPE_FLOAT32;
    const char *colon = is_number && !before ? strchr(key, ':') : NULL;
    key_kind kind = before ? KEY_BEFORE : colon ? KEY_RANGE : KEY_EQUAL;
    if (!is_number)
        from = parse_text(key, &kind);
    else if (!colon || colon > key)
        from = parse_number(
            key, colon ? (size_t)(colon - key) : strlen(key), is_single, &reals[0]);
    if (colon && colon[1])
        to = parse_number(colon + 1, strlen(colon + 1), is_single, &reals[1]);
    bags_code code;
    if (kind == KEY_RANGE)
        code = bags_index_find_range(found_index, colon > key ? &from : NULL,
            colon[1] ? &to : NULL, &scratch, start, stop, &failure);
    else if (kind == KEY_PREFIX)
        code =
            bags_index_find_prefix(found_index, &from, &scratch, start, stop, &failure);
    else if (kind == KEY_BEFORE)
        code = bags_index_find_at_or_before(
            found_index, &from, &scratch, start, stop, &failure);
    else
        code = bags_index_find(found_index, &from, &scratch, start, stop, &failure);
    if (code == BAGS_ERROR_VALUE || code == BAGS_ERROR_RANGE)
        fail_key(message_of_command(failure.message, failure.remedy));
    must(code);
    if (*start == *stop && (kind == KEY_EQUAL || kind == KEY_BEFORE))
        fail(BAGS_ERROR_RANGE, "%s: field \"%s\": no datapoint has %s %.*s",
            source_path(), field->name,
            kind == KEY_BEFORE ? "a key at or before" : "the key",
            is_number ? (int)strlen(key) : (int)from.size, key);
}

/* Positions are in key order; the index stores the number of the datapoint at each
 * position. */
void key_datapoints(uint64_t start, size_t count, uint64_t *datapoints) {
    static bags_buffer scratch, positions;
    static bags_row row;
    must(bags_buffer_reserve(&positions, count * sizeof start, &failure));
    uint64_t *list = (uint64_t *)(void *)positions.data;
    for (size_t i = 0; i < count; i++)
        list[i] = start + i;
    must(bags_index_get_many(
        found_index, list, count, &scratch, &row, datapoints, &failure));
}

/* ---- the command ---- */

static uint64_t indexed; /* datapoints in the index */

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
    how.registry = registry_get();
    how.progress = progress;
    path_must_be_writable(operands[0]);
    interrupt_leaves("no index was written", "start again with", NULL);
    bags_code code = bags_index_build(operands[0], operands[1], &how, &failure);
    progress_end();
    if (code == BAGS_ERROR_FIELD)
        fail_no_field(operands[0], operands[1]);
    if (code)
        path_hint(operands[0]);
    must(code);
    print("%s: indexed %s by %s\n", operands[0], counted(indexed, "datapoint"),
        operands[1]);
    return 0;
}

const command command_index = {"index", "an index, to find datapoints by key",
    "DATASET FIELD", {ARGUMENT_LOCAL, ARGUMENT_WORD}, 2, 2, options, NULL,
    "Writes a sorted index of a field of numbers, utf8 or bytes. `bags get DATASET "
    "--key FIELD=KEY` then finds datapoints without reading all. The index is stored "
    "in the directory of the dataset or of its first shard; other readers ignore it. "
    "If the dataset has changed, the index is refused: build it again.\n",
    "  bags index pets name\n"
    "  bags get pets --key name=rex label\n",
    run};
