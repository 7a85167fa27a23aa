/*
 * bags info: what a Bag or a dataset contains, as text or as JSON.
 */
#include "command.h"

/* The numbers of missing shards are listed one by one; an invalid directory name
 * must not make that endless. */
#define MAX_MISSING 1000000

static bool json;

static const option options[] = {
    {"json", OPTION_FLAG, &json, NULL,
        "print one JSON object: path, length, shards, skipped (left out), "
        "unfinished (shards read with --live), missing (numbers of shards), "
        "size (bytes of all Bags), checksums (shards that have them), indexes "
        "(fields that have one), spec, and fields (blobs and bytes of each). A "
        "Bag has an empty spec and no fields"},
    OPTIONS_END,
};

static bool is_bag;
static bags_info info;
static const bags_field *fields; /* of a Bag, none */
static bags_field_info *sizes;   /* of each field */
static size_t count;
static const bags_shard *shards; /* of a Bag, none */
static size_t shards_count;
static uint64_t unfinished;
static const bags_shard *existing; /* the same, and skipped ones */
static size_t existing_count;
static size_t *indexes; /* the fields that have one */
static size_t indexes_count;
static text out;

/* ---- what there is to show ---- */

/* Of a Bag: its checksums are the file NAME.crc. */
static bool has_crc(void) {
    const char *path = source_path();
    const char *crc = temp_format("%.*s.crc", (int)strlen(path) - 4, path);
    return has_ending(path, ".bag") && path_kind(crc) == BAGS_PATH_FILE;
}

/* Find out everything first: a failure must not follow half of an output. */
static void load(void) {
    const bags_reader *reader = source_dataset();
    is_bag = !reader;
    if (is_bag) {
        shards_count = 1;
        info.size = source_size();
        info.checksums = has_crc();
        return;
    }
    fields = bags_reader_fields(reader, &count);
    shards = bags_reader_shards(reader, &shards_count);
    for (size_t i = 0; i < shards_count; i++)
        unfinished += shards[i].unfinished;
    sizes = (bags_field_info *)allocate(count, sizeof *sizes);
    must(bags_reader_info(reader, &info, sizes, &failure));
    existing = shards;
    existing_count = shards_count;
    if (info.skipped)
        existing = shards_list(source_path(), &existing_count);
    indexes = indexes_find(source_path(), reader, &indexes_count);
}

/* ---- as JSON ---- */

static void show_json(void) {
    uint64_t start, stop;
    text_puts(&out, "{");
    text_member_string(&out, "path", source_path());
    text_member_number(&out, "length", source_length());
    text_member_number(&out, "shards", shards_count);
    text_member_number(&out, "skipped", info.skipped);
    text_member_number(&out, "unfinished", unfinished);
    text_member(&out, "missing");
    text_puts(&out, "[");
    for (size_t i = 0; i < existing_count; i++) {
        stop = shards_missing(existing, i, &start);
        if (stop > start + MAX_MISSING)
            fail(BAGS_ERROR_LIMIT,
                "%s: more than %d shards are missing, too many to list", source_path(),
                MAX_MISSING);
        for (; start < stop; start++) {
            text_next(&out);
            text_format(&out, "%ju", (uintmax_t)start);
        }
    }
    text_puts(&out, "]");
    text_member_number(&out, "size", info.size);
    text_member_number(&out, "checksums", info.checksums);
    text_member(&out, "indexes");
    text_puts(&out, "[");
    for (size_t i = 0; i < indexes_count; i++) {
        text_next(&out);
        text_json_string(&out, fields[indexes[i]].name);
    }
    text_puts(&out, "]");
    text_member(&out, "spec");
    text_spec(&out, fields, count);
    text_member(&out, "fields");
    text_puts(&out, "{");
    for (size_t i = 0; i < count; i++) {
        text_member(&out, fields[i].name);
        text_puts(&out, "{");
        text_member_number(&out, "blobs", sizes[i].blobs);
        text_member_number(&out, "bytes", sizes[i].size);
        text_puts(&out, "}");
    }
    text_puts(&out, "}}\n");
}

/* ---- as text ---- */

/* With one decimal, in powers of 1024. */
static void put_size(uint64_t size) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double shown = (double)size / 1024;
    size_t unit = 0;
    for (; shown >= 1024 && unit < 5; unit++)
        shown /= 1024;
    if (size < 1024)
        text_format(&out, "%s\n", counted(size, "byte"));
    else
        text_format(&out, "%.1f %s\n", shown, units[unit]);
}

/* A name is a JSON string if it contains anything that is special to a terminal
 * or to a reader of the table. Returns its width in characters. */
static size_t put_name(text *to, const char *name) {
    size_t before = to->size, size = strlen(name), width = 0;
    if (size > 0 && is_clean(name) && strcspn(name, " \"") == size)
        text_puts(to, name);
    else
        text_json_string(to, name);
    for (size_t i = before; i < to->size; i++)
        width += (to->buffer.data[i] & 0xC0) != 0x80;
    return width;
}

/* Columns are as wide as their widest entry, up to 40 characters. */
static void put_table(void) {
    size_t names = 5, types = 4;
    for (size_t i = 0; i < count; i++) {
        text measure = {0};
        size_t width = put_name(&measure, fields[i].name);
        bags_buffer_free(&measure.buffer);
        names = width > names && width <= 40 ? width : names;
        width = strlen(fields[i].type);
        types = width > types && width <= 40 ? width : types;
    }
    text_format(&out, "\nfield%*s%-*s         blobs  bytes\n", (int)names - 3, "",
        (int)types, "type");
    for (size_t i = 0; i < count; i++) {
        size_t width = put_name(&out, fields[i].name);
        text_format(&out, "%*s%-*s  %12ju  ",
            width < names ? (int)(names + 2 - width) : 2, "", (int)types,
            fields[i].type, (uintmax_t)sizes[i].blobs);
        put_size(sizes[i].size);
    }
}

static void show_text(void) {
    text_format(&out, "kind       %s\n",
        is_bag         ? "Bag"
        : info.sharded ? "sharded dataset"
                       : "dataset");
    text_format(&out, "length     %s\nsize       ",
        counted(source_length(), is_bag ? "blob" : "datapoint"));
    put_size(info.size);
    if (info.checksums && info.checksums == shards_count)
        text_puts(&out, "checksums  yes\n");
    else if (info.checksums)
        text_format(&out, "checksums  in %ju shards of %zu\n",
            (uintmax_t)info.checksums, shards_count);
    if (is_bag)
        return;
    for (size_t i = 0; i < indexes_count; i++) {
        text_puts(&out, i ? ", " : "indexes    ");
        put_name(&out, fields[indexes[i]].name);
        text_puts(&out, i + 1 < indexes_count ? "" : "\n");
    }
    if (info.sharded)
        text_format(&out, "shards     %zu\n", shards_count);
    if (info.skipped)
        text_format(&out, "skipped    %ju unfinished\n", (uintmax_t)info.skipped);
    if (unfinished)
        text_format(&out, "unfinished %ju, with the data that was flushed\n",
            (uintmax_t)unfinished);
    static text missing;
    if (text_missing(&missing, existing, existing_count))
        text_format(&out, "missing    %s\n", text_string(&missing));
    put_table();
}

static int run(char **operands) {
    source_open(operands[0]);
    load();
    if (json)
        show_json();
    else
        show_text();
    text_output(&out);
    return 0;
}

const command command_info = {"info", "what a Bag or a dataset contains", "PATH",
    {ARGUMENT_PATH}, 1, 1, options, reading_options,
    "Shows how many datapoints and shards PATH has, its size, and its fields "
    "with their types. PATH is a Bag, a dataset, or a directory of shards.\n",
    "  bags info pets --json\n", run};
