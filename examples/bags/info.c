/*
 * bags info: what a Bag or a dataset contains, as text or as JSON.
 */
#include "command.h"

/* The numbers of missing shards are listed one by one; an invalid directory name
 * must not make that endless. */
#define MAX_MISSING 1000000

/* How much --ratio reads at most. */
#define RATIO_BLOBS 1000
#define RATIO_SIZE (16 << 20)

static bool json;
static const char *ratio;

static const option options[] = {
    {"json", OPTION_FLAG, &json, NULL,
        "print one JSON object: path, length, shards, skipped (left out), "
        "unfinished (shards read with --live), missing (numbers of shards), "
        "size (bytes of all Bags), checksums (shards that have them), indexes "
        "(fields that have one), spec, and fields (blobs and bytes of each). A "
        "Bag has an empty spec and no fields"},
    {"ratio", OPTION_TEXT, &ratio, "FIELD",
        "estimate, from up to 1000 of its blobs, how much smaller FIELD is as "
        "zstd(...): `bags help types`; with --json: field, type, blobs, and bytes and "
        "zstd of these"},
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
    indexes_expect(source_path(), reader);
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

/* ---- what zstd would save ---- */

/* An array, whose bytes are transposed, as its value; any other blob as bytes, since they
 * become the content of a frame as they are. */
static uint64_t size_with_zstd(size_t field, const char *type, size_t item) {
    static bags_buffer scratch;
    bags_view blob = source_bytes(0, item), made = {NULL, 0};
    bags_value value = bags_bytes(blob.data, blob.size);
    bool array = type_dtype(type) != BAGS_DTYPE_NONE;
    if (array && !source_value(0, item, fields[field].type, &value))
        die();
    must(bags_encode(registry_get(), array ? type : "zstd(bytes)", &value, &scratch,
        &made, &failure));
    return made.size;
}

/* The size without compression. */
static uint64_t size_without_zstd(size_t field, const char *inside, size_t item) {
    static bags_buffer scratch;
    bags_view blob = source_bytes(0, item);
    bags_value value;
    if (!inside)
        return blob.size;
    if (!source_value(0, item, fields[field].type, &value))
        die();
    must(bags_encode(registry_get(), inside, &value, &scratch, &blob, &failure));
    return blob.size;
}

/* Blobs of datapoints that are evenly spaced. */
static void show_ratio(void) {
    uint64_t blobs = 0, plain = 0, compressed = 0, length = source_length();
    uint64_t step = length / RATIO_BLOBS + (length % RATIO_BLOBS > 0);
    fields = source_fields(&count);
    if (!source_dataset())
        fail(BAGS_ERROR_FIELD, "%s: a Bag has no fields, which --ratio needs",
            source_path());
    size_t field = field_find(fields, count, ratio, strlen(ratio));
    if (field == count)
        fail_field(source_path(), ratio, fields, count);
    bags_type parsed;
    must(bags_type_parse(fields[field].type, &parsed, &failure));
    char *inside = type_inside(fields[field].type);
    char *type =
        inside ? string_format("%s", fields[field].type)
               : string_format(parsed.count ? "zstd(%.*s,%.*s)" : "zstd(%.*s)",
                     (int)parsed.name.size, (const char *)parsed.name.data,
                     (int)parsed.arguments.size, (const char *)parsed.arguments.data);
    codec_check("zstd(bytes)");
    for (uint64_t i = 0; i < length && blobs < RATIO_BLOBS && plain < RATIO_SIZE;
         i += step) {
        bags_select whole = bags_whole(field);
        source_get(i, &whole, 1);
        for (size_t j = 0; j < source_items(0) && blobs < RATIO_BLOBS; j++, blobs++) {
            plain += size_without_zstd(field, inside, j);
            compressed +=
                inside ? source_bytes(0, j).size : size_with_zstd(field, type, j);
        }
    }
    if (json) {
        text_puts(&out, "{");
        text_member_string(&out, "field", ratio);
        text_member_string(&out, "type", type);
        text_member_number(&out, "blobs", blobs);
        text_member_number(&out, "bytes", plain);
        text_member_number(&out, "zstd", compressed);
        text_puts(&out, "}\n");
    } else if (!blobs) {
        text_format(&out, "%s: no blobs\n", ratio);
    } else {
        text_format(&out,
            "%s: %s of %.1f bytes on average; as %s%s %.1f bytes, %.0f %%\n", ratio,
            counted(blobs, "blob"), (double)plain / (double)blobs, type,
            !inside && parsed.sequence ? "[]" : "", (double)compressed / (double)blobs,
            100 * (double)compressed / (double)(plain ? plain : 1));
    }
    free(type);
    free(inside);
}

static int run(char **operands) {
    source_open(operands[0]);
    if (ratio) {
        show_ratio();
        text_output(&out);
        return 0;
    }
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
