/*
 * The input of the reading subcommands: a Bag or a dataset. A Bag is treated as a
 * dataset with one plain field, "blob", of type bytes.
 */
#include "command.h"
#include "system.h"

#include "values.h"

static const bags_field bag_field = {"blob", "bytes"};
static bags_reader_options reading;
static bool skip_unfinished, live;

static const char *path;
static bag_reader *bag; /* one of these two */
static bags_reader *dataset;
static bags_row row;
static bags_buffer scratch;
static bags_view blob;

const option reading_options[] = {
    {"check", OPTION_FLAG, &reading.verify_checksums, NULL,
        "compare every blob with its checksum; checksums must exist"},
    {"allow-gaps", OPTION_FLAG, &reading.allow_gaps, NULL,
        "read the other shards if some are missing"},
    {"skip-unfinished", OPTION_FLAG, &skip_unfinished, NULL, "skip unfinished shards"},
    {"live", OPTION_FLAG, &live, NULL,
        "read the flushed data of unfinished shards, during writing or after a "
        "crash"},
    OPTIONS_END,
};

/* The options for unfinished shards. */
static bags_unfinished how_unfinished(void) {
    options_exclude("live|skip-unfinished", NULL);
    return live              ? BAGS_UNFINISHED_READ
           : skip_unfinished ? BAGS_UNFINISHED_SKIP
                             : BAGS_UNFINISHED_REFUSE;
}

static void open_bag(void) {
    bag_reader_options options = {0};
    options.verify_checksums = reading.verify_checksums;
    /* granular 0.20 and 0.21 write an empty Bag as an empty file. */
    options.allow_empty_file = true;
    options.unfinished = how_unfinished() == BAGS_UNFINISHED_READ
                             ? BAGS_UNFINISHED_READ
                             : BAGS_UNFINISHED_REFUSE;
    options.env.io = io_for_path(path);
    bag = bag_reader_open(path, &options, &failure);
    must_open(bag);
    bag_note_empty(path, bag);
}

void bag_note_empty(const char *of, const bag_reader *opened) {
    if (opened && bag_reader_size(opened) == 0)
        note("%s: the file has 0 bytes: read as an empty Bag, but a crash "
             "leaves the same",
            of);
}

/* If an option or another path would avoid a failure, the message names it. */
bags_reader *dataset_open(const char *given, const bags_registry *registry) {
    reading.unfinished = how_unfinished();
    reading.registry = registry;
    reading.env.io = io_for_path(given);
    bags_reader *reader = bags_reader_open(given, &reading, &failure);
    if (!reader && failure.code == BAGS_ERROR_UNFINISHED &&
        !strstr(failure.message, ": not a shard"))
        failure_suffix("; --live reads the data that was flushed, --skip-unfinished "
                       "leaves it out");
    if (!reader)
        path_hint(given);
    must_open(reader);
    return reader;
}

bags_reader *dataset_again(
    const bags_reader *as, const char *given, const bags_registry *registry) {
    bags_reader *reader = dataset_open(given, registry);
    if (bags_reader_version(reader) != bags_reader_version(as))
        fail(BAGS_ERROR_CHANGED,
            "%s: another process replaced it, or added shards, while it was read",
            given);
    return reader;
}

/* storage.c remembers a URL's secrets, so `path` may be shown from here on. */
void source_open(const char *given) {
    path = mapped_path = path_without_secrets(given);
    how_unfinished();
    bags_path_kind kind = path_kind(path);
    if (kind == BAGS_PATH_NONE)
        must(bags_fail_io(io_for_path(path), ENOENT, path, "open", &failure));
    if (kind == BAGS_PATH_DIRECTORY)
        dataset = dataset_open(path, registry_get());
    else
        open_bag();
}

size_t field_find(
    const bags_field *fields, size_t count, const char *name, size_t size) {
    size_t i = 0;
    while (i < count &&
           (strlen(fields[i].name) != size || memcmp(fields[i].name, name, size)))
        i++;
    return i;
}

const char *field_guess(const char *word, const bags_field *fields, size_t count) {
    static text names;
    guess from = {word, strcspn(word, "=["), NULL, 0};
    names.size = 0;
    for (size_t i = 0; i < count && i < 20; i++)
        text_format(&names, "%s %.60s", i ? "," : "", fields[i].name);
    text_puts(&names, count > 20 ? ", ..." : "");
    for (size_t i = 0; i < count; i++)
        guess_name(&from, fields[i].name);
    return temp_format("%s%s%s", guess_words(&from, "", ""),
        from.name ? " The fields are" : "; the fields are", text_string(&names));
}

void fail_field(
    const char *of, const char *word, const bags_field *fields, size_t count) {
    fail(BAGS_ERROR_FIELD, "%s: no field \"%.300s\"%s", of, word,
        field_guess(word, fields, count));
}

size_t field_require(
    const char *of, const char *name, const bags_field *fields, size_t count) {
    size_t i = field_find(fields, count, name, strlen(name));
    if (i == count)
        fail_field(of, name, fields, count);
    return i;
}

bool fields_next(char **at, const char *which, const char *of, const bags_field *fields,
    size_t count, size_t *field, char **value) {
    char *name, *own;
    if (!list_next(at, &name, &own))
        return false;
    if (!own != !value)
        usage("--%s: expected %s", which,
            !value                     ? "FIELD,..."
            : !strcmp(which, "rename") ? "OLD=NEW,..."
                                       : "FIELD=VALUE,...");
    *field = field_require(of, name, fields, count);
    if (value)
        *value = own;
    return true;
}

const bags_reader *source_dataset(void) { return dataset; }

const char *source_path(void) { return path; }

void source_check(void) {
    if (dataset)
        must(bags_reader_check(dataset, &failure));
}

uint64_t source_length(void) {
    return bag ? bag_reader_length(bag) : bags_reader_length(dataset);
}

uint64_t source_size(void) { return bag ? bag_reader_size(bag) : 0; }

const bags_field *source_fields(size_t *count) {
    if (dataset)
        return bags_reader_fields(dataset, count);
    *count = 1;
    return &bag_field;
}

bool source_is_sequence(size_t field) {
    const bags_type *type = bag ? NULL : bags_reader_type(dataset, field);
    return type && type->sequence;
}

void source_get(uint64_t index, const bags_select *selects, size_t count) {
    must(bag ? bag_reader_get(bag, index, &scratch, &blob, &failure)
             : bags_reader_get(dataset, index, selects, count, &row, &failure));
}

/* The system already reads ahead in mapped local files. Only hooks that can read many
 * ranges at once benefit. */
void source_prefetch(
    const uint64_t *indices, size_t length, const bags_select *selects, size_t count) {
    if (dataset && io_for_path(path)->read_many)
        must(bags_reader_prefetch(
            dataset, indices, length, selects, count, &row, &failure));
}

uint64_t source_count(uint64_t index, size_t field) {
    uint64_t count = 0;
    must(bags_reader_items(dataset, index, field, &row, &count, &failure));
    return count;
}

size_t source_items(size_t slot) { return bag ? 1 : bags_row_length(&row, slot); }

bags_view source_bytes(size_t slot, size_t item) {
    return bag ? blob : bags_row_bytes(&row, slot, item);
}

/* If a frame needs a dictionary, compress the value again without one. */
bags_view source_alone(
    uint64_t index, size_t field, size_t slot, size_t item, uint64_t at) {
    static bags_reader *blobs;
    static bags_row own;
    static bags_buffer plain, frame;
    bags_view out = source_bytes(slot, item);
    bags_value value;
    if (!dataset || !format_needs_dictionary(bags_reader_type(dataset, field), out))
        return out;
    codec_check("zstd");
    if (!blobs)
        blobs = dataset_again(dataset, path, registry_blobs());
    bags_select one = source_is_sequence(field)
                          ? bags_select_slice(field, at, at + 1, 1)
                          : bags_select_all(field);
    must(bags_reader_get(blobs, index, &one, 1, &own, &failure));
    must(bags_row_value(&own, 0, 0, &plain, &value, &failure));
    must(bags_encode(registry_blobs(), bags_reader_fields(dataset, NULL)[field].type,
        &value, &frame, &out, &failure));
    return out;
}

bool source_value(size_t slot, size_t item, const char *type, bags_value *out) {
    if (bag) {
        *out = bags_bytes(blob.data, blob.size);
        return true;
    }
    if (!codec_exists(type)) {
        failure.code = BAGS_ERROR_TYPE;
        return false;
    }
    bags_code code = bags_row_value(&row, slot, item, NULL, out, &failure);
    if (code == BAGS_ERROR_MEMORY)
        die();
    return !code;
}

/* ---- shards ---- */

void shards_follow(const bags_reader *reader, bags_writer_options *writing) {
    size_t count;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    if (count != 1 || shards[0].digits > 0)
        writing->shard_stop = 1;
    for (size_t i = 0; i < count; i++)
        if (shards[i].length > writing->shard_length)
            writing->shard_length = shards[i].length;
}

typedef struct shard_list {
    bags_shard *shards;
    size_t count;
} shard_list;

/* Called for each entry of a directory. A shard's name is a number. */
static int add_shard(void *user, const char *name) {
    shard_list *list = (shard_list *)user;
    size_t digits = strlen(name);
    if (!digits || name[strspn(name, "0123456789")])
        return 0;
    list->shards = (bags_shard *)grow(list->shards, list->count, sizeof *list->shards);
    bags_shard shard = {strtoull(name, NULL, 10), 0, 0, (unsigned)digits, false};
    list->shards[list->count++] = shard;
    return 0;
}

static int compare_shards(const void *a, const void *b) {
    uint64_t one = ((const bags_shard *)a)->number;
    uint64_t two = ((const bags_shard *)b)->number;
    return one < two ? -1 : one > two;
}

bags_shard *shards_list(const char *of, size_t *count) {
    shard_list list = {NULL, 0};
    const bags_io *io = io_for_path(of);
    int error = path_kind(of) == BAGS_PATH_DIRECTORY
                    ? io->list(io->user, of, add_shard, &list)
                    : 0;
    if (error && error != ENOENT)
        fail_system(error, of, "list");
    if (list.count)
        qsort(list.shards, list.count, sizeof *list.shards, compare_shards);
    *count = list.count;
    return list.shards;
}

const char *shard_path(const char *of, const bags_shard *shard) {
    if (!shard->digits)
        return of;
    return temp_format("%s/%0*ju", of, (int)shard->digits, (uintmax_t)shard->number);
}

uint64_t shards_missing(const bags_shard *shards, size_t i, uint64_t *start) {
    *start = i ? shards[i - 1].number + 1 : 0;
    return shards[i].number;
}

/* Consecutive numbers are abbreviated, since thousands of shards may be missing. */
bool text_missing(text *out, const bags_shard *shards, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t start, stop = shards_missing(shards, i, &start);
        if (start >= stop)
            continue;
        text_format(out, "%s%06ju", any ? ", " : "", (uintmax_t)start);
        if (stop - start > 1)
            text_format(out, " to %06ju", (uintmax_t)stop - 1);
        any = true;
    }
    return any;
}
