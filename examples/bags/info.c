/*
 * bags info: print what a Bag or a dataset contains, as text or as JSON.
 */
#include "command.h"

#include "random.h"

/* Missing shard numbers are listed one by one. An invalid directory name must not make
 * the list endless. */
#define MAX_MISSING 1000000

/* The most that --ratio measures, and the fewest values from which a dictionary is
 * made; see bags_codec_zstd. */
#define RATIO_BLOBS 1000
#define RATIO_SIZE (16 << 20)
#define RATIO_LEAST 64

static bool json;
static const char *ratio;

static const option options[] = {
    {"json", OPTION_FLAG, &json, NULL,
        "print one JSON object: path, length, shards, skipped (left out), "
        "unfinished (shards read with --live), missing (numbers of shards), "
        "size (bytes of all Bags), checksums (shards that have them), unreferenced "
        "(blobs "
        "that no datapoint refers to; null on a server, and of unfinished shards), "
        "indexes "
        "(fields that have one), spec, fields (blobs and bytes of each), and metadata "
        "(the object in info.json, if it exists). A Bag has an empty spec and no "
        "fields"},
    {"ratio", OPTION_TEXT, &ratio, "FIELD",
        "estimate, from up to 1000 blobs, the size of FIELD as zstd(...) (see `bags "
        "help types`), without a dictionary and with one made of its first blobs; with "
        "--json: field, type, blobs, their bytes, zstd, with_dictionary, and "
        "dictionary (its own bytes, once per shard)"},
    OPTIONS_END,
};

static bool is_bag;
static bags_info info;
static const bags_field *fields; /* none for a Bag */
static bags_field_info *sizes;   /* of each field */
static size_t count;
static const bags_shard *shards; /* none for a Bag */
static size_t shards_count;
static uint64_t unfinished;
static const bags_shard *existing; /* the same, and skipped shards */
static size_t existing_count;
/* Unreferenced blobs in all fields, unless unknown. */
static bags_field_info unreferenced;
static bool unreferenced_is_known;
static size_t *indexes; /* the fields that have an index */
static size_t indexes_count;
static json_object *metadata; /* NULL: none */
static text out;

/* ---- collecting facts ---- */

/* The checksums of a Bag are in the file NAME.crc. */
static bool has_crc(void) {
    const char *path = source_path();
    const char *crc = temp_format("%.*s.crc", (int)strlen(path) - 4, path);
    return has_ending(path, ".bag") && path_kind(crc) == BAGS_PATH_FILE;
}

/* This would download all refs from a server, and nothing can be counted in a faulty
 * dataset. */
static void load_unreferenced(void) {
    bags_env env = {NULL, io_for_path(source_path())};
    bags_field_info *found = (bags_field_info *)allocate(count, sizeof *found);
    unreferenced_is_known =
        !path_is_remote(source_path()) && !unfinished &&
        !bags_unreferenced(source_dataset(), &env, true, found, &failure);
    for (size_t i = 0; i < count && unreferenced_is_known; i++) {
        unreferenced.blobs += found[i].blobs;
        unreferenced.size += found[i].size;
    }
    free(found);
}

/* Collect everything before printing, so that no failure follows partial output. */
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
    load_unreferenced();
    existing = shards;
    existing_count = shards_count;
    if (info.skipped)
        existing = shards_list(source_path(), &existing_count);
    indexes = indexes_find(source_path(), reader, &indexes_count);
    if (metadata_read(source_path(), reader, &metadata))
        note_failure();
}

/* ---- as JSON ---- */

static void put_metadata(void) {
    if (!metadata)
        return;
    text_member(&out, "metadata");
    const char *words =
        json_object_to_json_string_ext(metadata, JSON_C_TO_STRING_PLAIN);
    bags_view object = {(const unsigned char *)words, strlen(words)};
    text_json_clean(&out, object);
}

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
    text_member(&out, "unreferenced");
    if (unreferenced_is_known)
        text_format(&out, "{\"blobs\": %ju, \"bytes\": %ju}",
            (uintmax_t)unreferenced.blobs, (uintmax_t)unreferenced.size);
    else
        text_puts(&out, "null");
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
    text_puts(&out, "}");
    put_metadata();
    text_puts(&out, "}\n");
}

/* ---- as text ---- */

/* A size with one decimal, in powers of 1024. */
static const char *size_words(uint64_t size) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double shown = (double)size / 1024;
    size_t unit = 0;
    for (; shown >= 1024 && unit < 5; unit++)
        shown /= 1024;
    return size < 1024 ? counted(size, "byte")
                       : temp_format("%.1f %s", shown, units[unit]);
}

/* Write a name as a JSON string if it contains anything special to a terminal or to a
 * reader of the table. */
static const char *name_words(const char *name) {
    static text made;
    size_t size = strlen(name);
    if (size > 0 && is_clean(name) && strcspn(name, " \"") == size)
        return name;
    made.size = 0;
    text_json_string(&made, name);
    return text_string(&made);
}

static void put_table(void) {
    static const char *const titles[] = {"field", "type", "       blobs", "bytes"};
    for (size_t i = 0; i < 4; i++)
        table_add(titles[i], i == 2);
    for (size_t i = 0; i < count; i++) {
        table_add(name_words(fields[i].name), false);
        table_add(fields[i].type, false);
        table_add(temp_format("%ju", (uintmax_t)sizes[i].blobs), true);
        table_add(size_words(sizes[i].size), false);
    }
    text_puts(&out, "\n");
    table_put(&out, 4);
}

static void put_metadata_names(void) {
    static const char title[] = "metadata   ";
    const char *before = title;
    json_object_iter at;
    if (!metadata)
        return;
    json_object_object_foreachC(metadata, at) {
        text_format(&out, "%s%s", before, name_words(at.key));
        before = ", ";
    }
    text_format(&out, "%s\n", before == title ? "metadata   {}" : "");
}

static void show_text(void) {
    text_format(&out, "kind       %s\n",
        is_bag         ? "Bag"
        : info.sharded ? "sharded dataset"
                       : "dataset");
    text_format(&out, "length     %s\nsize       %s\n",
        counted(source_length(), is_bag ? "blob" : "datapoint"), size_words(info.size));
    if (info.checksums && info.checksums == shards_count)
        text_puts(&out, "checksums  yes\n");
    else if (info.checksums)
        text_format(&out, "checksums  in %ju shards of %zu\n",
            (uintmax_t)info.checksums, shards_count);
    if (is_bag)
        return;
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += sizes[i].size;
    if (unreferenced.blobs)
        text_format(&out, "unreferenced  %s of %s (%.1f %% of the bytes)\n",
            size_words(unreferenced.size), counted(unreferenced.blobs, "blob"),
            all ? 100 * (double)unreferenced.size / (double)all : 0.0);
    for (size_t i = 0; i < indexes_count; i++) {
        text_format(&out, "%s%s%s", i ? ", " : "indexes    ",
            name_words(fields[indexes[i]].name), i + 1 < indexes_count ? "" : "\n");
    }
    put_metadata_names();
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

/* ---- --ratio: savings from zstd ---- */

/* The field is encoded twice: by bags_encode, and as a writer with a dictionary does
 * it. */
enum { RATIO_ALONE, RATIO_WRITER };

static struct {
    size_t field;
    char *type;   /* zstd(...) */
    char *inside; /* NULL: the field is not compressed */
    /* Arrays (whose bytes are transposed) and compressed values are encoded as values.
     * Any other blob is encoded as bytes: it becomes the content of a frame without
     * changes. */
    bool by_value;
    const bags_codec *codec;
    void *states[2];
    bool alone;           /* a dictionary would not help */
    bags_view dictionary; /* size 0: none yet */
    /* Totals over the encoded blobs: */
    uint64_t blobs, plain, sizes[2];
} sample;

static void sample_open(void) {
    const bags_allocator allocator = bags_allocator_of(NULL);
    bags_view none = {NULL, 0}, name = {(const unsigned char *)"zstd", 4};
    bags_type parsed;
    must(bags_type_parse(fields[sample.field].type, &parsed, &failure));
    bool compressed = type_is_compressed(fields[sample.field].type);
    sample.type = string_format(compressed     ? "%.*s(%.*s)"
                                : parsed.count ? "zstd(%.*s,%.*s)"
                                               : "zstd(%.*s)",
        (int)parsed.name.size, (const char *)parsed.name.data,
        (int)parsed.arguments.size, (const char *)parsed.arguments.data);
    sample.inside = compressed ? type_inside(sample.type) : NULL;
    sample.by_value = compressed || type_dtype(sample.type) != BAGS_DTYPE_NONE;
    sample.codec = bags_registry_find(registry_get(), name);
    must(bags_type_parse(
        sample.by_value ? sample.type : "zstd(bytes)", &parsed, &failure));
    for (int i = RATIO_ALONE; i <= RATIO_WRITER; i++)
        must(sample.codec->open(
            sample.codec, &parsed, &allocator, &sample.states[i], &failure));
    must(sample.codec->dictionary->start(sample.states[RATIO_WRITER], none, &failure));
}

static void sample_close(void) {
    for (int i = RATIO_ALONE; i <= RATIO_WRITER; i++)
        sample.codec->close(sample.states[i]);
    free(sample.type);
    free(sample.inside);
}

static void sample_add(size_t item) {
    static bags_buffer scratch;
    const bags_codec *codec = sample.codec;
    bags_view blob = source_bytes(0, item);
    bags_value value = bags_bytes(blob.data, blob.size);
    if (sample.by_value && !source_value(0, item, fields[sample.field].type, &value))
        die();
    if (sample.inside)
        must(bags_encode(
            registry_get(), sample.inside, &value, &scratch, &blob, &failure));
    sample.plain += blob.size;
    sample.blobs++;
    for (int i = RATIO_ALONE; i <= RATIO_WRITER; i++) {
        void *state = sample.states[sample.alone ? RATIO_ALONE : i];
        bags_view frame = {NULL, 0};
        must(codec->encode(state, &value, &scratch, &frame, &failure));
        sample.sizes[i] += frame.size;
        if (codec->dictionary->needed(state, frame))
            must(codec->dictionary->find(state, frame, &sample.dictionary, &failure));
    }
}

/* True if enough blobs were measured or, with `training`, enough values were collected
 * for a dictionary. */
static bool sample_is_enough(bool training) {
    if (training)
        return !sample.codec->dictionary->holds(sample.states[RATIO_WRITER]);
    return sample.blobs >= RATIO_BLOBS || sample.plain >= RATIO_SIZE;
}

/* Encode one random datapoint out of every `step` below `length`; with fixed steps, the
 * sample might follow a pattern that repeats in the data. */
static void sample_read(uint64_t length, uint64_t step, bool training) {
    bags_select whole = bags_select_all(sample.field);
    uint64_t start = 0, numbers[1024];
    sample.blobs = sample.plain = sample.sizes[0] = sample.sizes[1] = 0;
    /* Request ever larger batches: a server answers each in one round trip. */
    for (size_t part = 4, i; start < length; part = part < 1024 ? part * 2 : part) {
        for (i = 0; i < part && start < length; i++, start += step) {
            numbers[i] = start + format_mix(start) % step;
            if (numbers[i] >= length)
                numbers[i] = length - 1;
        }
        source_prefetch(numbers, i, &whole, 1);
        for (size_t k = 0; k < i; k++) {
            source_get(numbers[k], &whole, 1);
            for (size_t j = 0; j < source_items(0); j++) {
                sample_add(j);
                if (sample_is_enough(training))
                    return;
            }
        }
    }
}

static void put_part(int which) {
    double size = (double)sample.sizes[which];
    text_format(&out, " %.1f bytes, %.0f %%", size / (double)sample.blobs,
        100 * size / (double)(sample.plain ? sample.plain : 1));
}

/* Like a writer, train the dictionary on the first datapoints, at most the first shard.
 * Then measure a sample of all datapoints. */
static void show_ratio(void) {
    fields = source_fields(&count);
    if (!source_dataset())
        fail(BAGS_ERROR_FIELD, "%s: a Bag has no fields for --ratio", source_path());
    sample.field = field_require(source_path(), ratio, fields, count);
    codec_check("zstd(bytes)");
    sample_open();
    uint64_t length = source_length();
    size_t exist = 0;
    const bags_shard *first = bags_reader_shards(source_dataset(), &exist);
    bool made = false;
    sample_read(exist && first->length < length ? first->length : length, 1, true);
    bool enough = sample.blobs >= RATIO_LEAST;
    must(sample.codec->dictionary->make(sample.states[RATIO_WRITER], &made, &failure));
    sample.alone = !made;
    sample_read(length, (length + RATIO_BLOBS - 1) / RATIO_BLOBS, false);
    size_t dictionary = sample.dictionary.size;
    if (json) {
        text_puts(&out, "{");
        text_member_string(&out, "field", ratio);
        text_member_string(&out, "type", sample.type);
        text_member_number(&out, "blobs", sample.blobs);
        text_member_number(&out, "bytes", sample.plain);
        text_member_number(&out, "zstd", sample.sizes[RATIO_ALONE]);
        text_member_number(&out, "with_dictionary", sample.sizes[RATIO_WRITER]);
        text_member_number(&out, "dictionary", dictionary);
        text_puts(&out, "}\n");
    } else if (!sample.blobs) {
        text_format(&out, "%s: no blobs\n", ratio);
    } else {
        text_format(&out, "%s: %s of %.1f bytes on average; as %s%s", ratio,
            counted(sample.blobs, "blob"), (double)sample.plain / (double)sample.blobs,
            sample.type, source_is_sequence(sample.field) ? "[]" : "");
        put_part(RATIO_ALONE);
        if (dictionary) {
            text_puts(&out, "; with a dictionary");
            put_part(RATIO_WRITER);
            text_format(&out, " (and %.1f KiB per shard)", (double)dictionary / 1024);
        } else {
            text_format(&out, "; %s",
                enough ? "a dictionary would not help"
                       : "these are too few for a dictionary");
        }
        text_puts(&out, "\n");
    }
    sample_close();
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
