/*
 * bags index: sorted indexes of fields; and the keys of `bags get --key`.
 */
#include "command.h"

#include "../../formats/formats.h"

#include <errno.h>
#include <string.h>

static option_number memory;

static const option options[] = {
    {"memory", OPTION_SIZE, &memory, "SIZE",
        "sort with this much memory; 64M if not given"},
    OPTIONS_END,
};

/* ---- bags get --key ---- */

/* A number that a word starts with, in `out`; `real` is the memory of one with a
 * fraction. Returns what follows it, or NULL. */
static const char *parse_number(
    const char *word, double *real, bags_value *out) {
    char *end = NULL;
    size_t digits = strspn(word + (*word == '-'), "0123456789");
    if (strspn(word, "+-.0123456789eE") < strcspn(word, ":"))
        return NULL;
    errno = 0;
    *out = *word == '-' ? bags_int(strtoll(word, &end, 10))
                        : bags_uint(strtoull(word, &end, 10));
    if (digits && !errno && (!*end || *end == ':'))
        return end;
    *real = strtod(word, &end);
    *out = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, real);
    return end == word ? NULL : end;
}

/* The field of FIELD=KEY. Its name may contain an =. */
static size_t find_field(const char *word, const bags_field *fields,
    size_t count, const char **key) {
    for (const char *at = strchr(word, '='); at; at = strchr(at + 1, '='))
        for (size_t i = 0; i < count; i++)
            if (strlen(fields[i].name) == (size_t)(at - word) &&
                !strncmp(fields[i].name, word, (size_t)(at - word))) {
                *key = at + 1;
                return i;
            }
    if (!strchr(word, '='))
        usage("--key %s: must be FIELD=KEY", word);
    fail(BAGS_ERROR_FIELD, "%s: --key %s: no such field", source_path(), word);
}

static bags_index *found_index;

/* Text is a key as it is; a number may be the start of a range. */
void key_find(const char *word, uint64_t *start, uint64_t *stop) {
    size_t count = 0;
    double reals[2];
    bags_value values[2];
    bags_buffer scratch = {0};
    const char *key = "", *at;
    const bags_field *fields = source_fields(&count);
    if (!source_dataset())
        usage("%s is a Bag, which has no keys", source_path());
    if (io_for_path(source_path()) != bags_io_local())
        usage("--key: %s is not a local directory", source_path());
    size_t field = find_field(word, fields, count, &key);
    found_index =
        bags_index_open(source_path(), source_dataset(), field, NULL, &failure);
    if (!found_index && failure.code == BAGS_ERROR_MISSING)
        failure_suffix(
            " with `bags index %s %s`", source_path(), fields[field].name);
    if (!found_index)
        die();
    type_class kind = type_kind(fields[field].type);
    if (kind != TYPE_NUMBER && kind != TYPE_ARRAY) {
        values[0] = bags_utf8(key);
        must(bags_index_find(
            found_index, &values[0], &scratch, start, stop, &failure));
    } else {
        at = *key == ':' ? key : parse_number(key, &reals[0], &values[0]);
        if (at && *at == ':') {
            const char *end =
                at[1] ? parse_number(at + 1, &reals[1], &values[1]) : at + 1;
            if (!end || *end)
                usage("--key %s: \"%s\" is not a number", word, at + 1);
            must(bags_index_find_range(found_index,
                *key == ':' ? NULL : &values[0], at[1] ? &values[1] : NULL,
                &scratch, start, stop, &failure));
            bags_buffer_free(&scratch);
            return;
        }
        if (!at || *at)
            usage("--key %s: \"%s\" is not a number, START:, :STOP or "
                  "START:STOP",
                word, key);
        must(bags_index_find(
            found_index, &values[0], &scratch, start, stop, &failure));
    }
    bags_buffer_free(&scratch);
    if (*start == *stop)
        fail(BAGS_ERROR_RANGE, "%s: field \"%s\": no datapoint has the key %s",
            source_path(), fields[field].name, key);
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

static void progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    progress_show("indexing", "datapoints", done, total, done);
}

static int run(int count, char **operands) {
    bags_index_options how = {0};
    (void)count;
    how.memory = (size_t)memory.value;
    how.progress = progress;
    if (memory.given && memory.value < 65536)
        usage("--memory: must be at least 64K");
    path_must_be_writable(operands[0]);
    bags_code code = bags_index_build(operands[0], operands[1], &how, &failure);
    progress_end();
    must(code);
    return 0;
}

const command command_index = {"index", "an index, to find datapoints by key",
    "DATASET FIELD", 2, 2, options, NULL,
    "Writes a sorted index of a field of numbers, utf8 or bytes, with which "
    "`bags "
    "get DATASET --key FIELD=KEY` finds datapoints without reading all. It is "
    "stored in the dataset's directory, in that of its first shard if it is "
    "sharded; other readers ignore it. When the dataset has changed, the index "
    "is "
    "refused until it is built again.\n",
    "  bags index pets name\n"
    "  bags get pets --key name=rex label\n",
    run};
