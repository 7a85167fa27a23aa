/*
 * bags get: show datapoints, or single blobs, by index.
 */
#include "command.h"

#define KEYS_AT_ONCE 64 /* datapoints read together */

/* A parsed word such as frames[0:8:2]. */
typedef struct selection {
    size_t field;
    bool whole;  /* all blobs of the field; otherwise items: */
    bool frames; /* items are frames of the blob, a video */
    range_word items;
    bool sequence; /* shown as a list */
} selection;

static bool raw, npy, lists, base64;
static const char *directory, *key;

static const option options[] = {
    {"key", OPTION_TEXT, &key, "FIELD=KEY",
        "instead of INDEX: the datapoints with this key, with their numbers as "
        "\"#\". START:STOP selects a range of numbers, KEY* texts that begin with "
        "KEY, in the order of the keys, FIELD<=KEY the last key at or before it. "
        "`bags index` makes the index"},
    {"lists", OPTION_FLAG, &lists, NULL,
        "show arrays of up to 1024 elements completely, as nested lists"},
    {"raw", OPTION_FLAG, &raw, NULL,
        "write the bytes of the one blob that is selected"},
    {"base64", OPTION_FLAG, &base64, NULL,
        "show the bytes of every blob as they are stored, in base64"},
    {"npy", OPTION_FLAG, &npy, NULL,
        "decode that blob, and write the array as a .npy file"},
    {"out", OPTION_PATH, &directory, "DIR",
        "write every blob to its own file in DIR, and print the names"},
    OPTION_MAX_PIXELS,
    OPTIONS_END,
};

/* ---- fields ---- */

static const bags_field *fields;
static size_t fields_count;
static selection *selections;
static bags_select *selects;
static size_t count; /* of selections and selects */

/* Parse FIELD, FIELD[i] or FIELD[START:STOP:STEP]. For a video, the items are
 * frames. */
static selection parse_selection(const char *word) {
    selection out = {0, true, false, {NULL, false, NULL, 0, 0, 0, 0}, false};
    size_t size = strlen(word);
    const char *open = strrchr(word, '[');
    /* The field's name may itself end in brackets. */
    out.field = field_find(fields, fields_count, word, size);
    out.whole = out.field < fields_count;
    if (!out.whole) {
        if (open && word[size - 1] == ']')
            out.field = field_find(fields, fields_count, word, (size_t)(open - word));
        if (out.field == fields_count && key && !word[strspn(word, "-0123456789:,[]")])
            usage("%s: --key and INDEX are mutually exclusive", word);
        if (out.field == fields_count)
            fail_field(source_path(), word, fields, fields_count);
        out.items =
            indices_parse(string_format("%.*s", (int)strlen(open) - 2, open + 1));
        bool is_video = type_kind(fields[out.field].type) == TYPE_VIDEO;
        out.whole = out.frames = is_video && !source_is_sequence(out.field);
        if (!out.frames && !source_is_sequence(out.field))
            fail(BAGS_ERROR_RANGE,
                "%s: field \"%s\": neither a sequence nor a video, so it has "
                "no items",
                source_path(), fields[out.field].name);
    }
    out.sequence = !out.items.one && (out.frames || source_is_sequence(out.field));
    return out;
}

/* Parse the SELECT words. All fields are selected if there are none. */
static void parse_selections(char **words, size_t words_count) {
    count = words_count ? words_count : fields_count;
    selections = (selection *)allocate(count, sizeof *selections);
    selects = (bags_select *)allocate(count, sizeof *selects);
    for (size_t i = 0; i < count; i++) {
        selections[i].field = i;
        selections[i].whole = true;
        selections[i].sequence = source_is_sequence(i);
        if (words_count)
            selections[i] = parse_selection(words[i]);
        selects[i] = bags_select_all(selections[i].field);
        for (size_t j = 0; words_count && j < i; j++)
            if (selections[j].field == selections[i].field)
                usage("duplicate field \"%s\"", fields[selections[i].field].name);
    }
}

static bool is_negative(const range_word *some) {
    return some->start < 0 || some->stop < 0;
}

/* Convert the items of selection i for the reader. Negative numbers depend on the
 * length of the sequence. */
static void resolve(uint64_t index, size_t i) {
    const range_word *items = &selections[i].items;
    uint64_t length = 0, start, stop;
    if (selections[i].whole)
        return;
    if (is_negative(items))
        length = source_count(index, selections[i].field);
    indices_range(items, length, &start, &stop);
    selects[i] = bags_select_slice(selections[i].field, start, stop, items->step);
}

ENDS static void fail_items(uint64_t index, size_t i, uint64_t length) {
    const selection *one = &selections[i];
    fail(BAGS_ERROR_RANGE,
        "%s: field \"%s\": datapoint %ju: %s %.40s out of range (length %ju)",
        source_path(), fields[one->field].name, (uintmax_t)index,
        one->frames ? "frame" : "item", one->items.word, (uintmax_t)length);
}

/* Fail if an item selected by FIELD[i] does not exist. */
static void check_items(uint64_t index) {
    for (size_t i = 0; i < count; i++)
        if (selections[i].items.one && source_items(i) != 1)
            fail_items(index, i, source_count(index, selections[i].field));
}

/* ---- output ---- */

static char **names; /* file names for each field */
static text line;

/* Write a blob to its own file. The file name is shown as the value. */
static void put_file(uint64_t index, size_t slot, const char *suffix,
    const char *ending, bags_view blob) {
    const char *name = temp_format("%06ju-%s%s.%s", (uintmax_t)index,
        names[selections[slot].field], suffix, ending);
    char *path = path_join(directory, name);
    file_write(path, blob.data, blob.size);
    value_file(&line, "file", path);
    free(path);
}

/* Write a value to the line; with --out, write the name of its file. */
static void put_blob(uint64_t index, size_t slot, size_t item) {
    const selection *one = &selections[slot];
    const char *type = fields[one->field].type;
    bags_view blob = source_bytes(slot, item);
    char buffer[16], suffix[32] = "";
    uint64_t step = selects[slot].step ? selects[slot].step : 1;
    uint64_t at = selects[slot].start + item * step;
    if (base64) {
        text_puts(&line, "\"");
        text_base64(&line, blob.data, blob.size);
        text_puts(&line, "\"");
        return;
    }
    if (!directory) {
        bags_value value;
        failure.code = BAGS_OK;
        bool shown = value_is_shown(type) && source_value(slot, item, type, &value);
        value_show(type, blob, shown ? &value : NULL, lists, &line);
        return;
    }
    if (one->items.one || one->sequence)
        snprintf(suffix, sizeof suffix, "-%06ju", (uintmax_t)at);
    blob = source_alone(index, one->field, slot, item, at);
    put_file(index, slot, suffix, type_ending(type, blob, buffer), blob);
}

/* ---- frames of videos ---- */

/* Open the video in a slot, and find the selected frames. False if it does not
 * decode. */
static bool open_frames(uint64_t index, size_t slot, uint64_t *start, uint64_t *stop) {
    const range_word *items = &selections[slot].items;
    uint64_t length = 0;
    codec_check(fields[selections[slot].field].type);
    if (!frames_open(source_bytes(slot, 0), &length))
        return false;
    indices_range(items, length, start, stop);
    *stop = *stop < length ? *stop : length;
    if (items->one && *start >= *stop)
        fail_items(index, slot, length);
    return true;
}

/* Turn an array of 1 x H x W x 3 into H x W x 3. */
static void make_frame(bags_value *frames) {
    frames->shape++;
    frames->dims--;
}

ENDS static void fail_frames(uint64_t index, size_t slot) {
    failure_prefix("%s: field \"%s\": datapoint %ju: ", source_path(),
        fields[selections[slot].field].name, (uintmax_t)index);
    die();
}

/* Write a frame as an array or, with --out, as a PNG file. */
static void put_frame(uint64_t index, size_t slot, uint64_t i, bags_value *frame) {
    static bags_buffer scratch;
    bags_view blob;
    make_frame(frame);
    if (!directory) {
        array_show("npy", frame, lists, &line);
        return;
    }
    codec_check("png");
    must(bags_encode(registry_get(), "png", frame, &scratch, &blob, &failure));
    put_file(index, slot, temp_format("-%06ju", (uintmax_t)i), "png", blob);
}

static void show_frames(uint64_t index, size_t slot) {
    uint64_t start = 0, stop = 0, step = selections[slot].items.step;
    bags_value frame;
    bool good = open_frames(index, slot, &start, &stop);
    for (uint64_t i = start; i < stop && good; i += step) {
        good = frames_get(i, i + 1, 1, &frame);
        if (selections[slot].sequence)
            text_next(&line);
        if (good)
            put_frame(index, slot, i, &frame);
        if (stop - i <= step)
            break;
    }
    if (!good)
        fail_frames(index, slot);
}

static void show_datapoint(uint64_t index) {
    line.size = 0;
    text_puts(&line, "{");
    if (key)
        text_member_number(&line, "#", index);
    for (size_t i = 0; i < count; i++) {
        text_member(&line, fields[selections[i].field].name);
        text_puts(&line, selections[i].sequence ? "[" : "");
        if (selections[i].frames)
            show_frames(index, i);
        for (size_t j = 0; !selections[i].frames && j < source_items(i); j++) {
            if (selections[i].sequence)
                text_next(&line);
            put_blob(index, i, j);
        }
        text_puts(&line, selections[i].sequence ? "]" : "");
    }
    text_puts(&line, "}\n");
    text_output(&line);
}

/* --npy: return the decoded array or frames in .npy format. A blob of type npy already
 * has this format. */
static bags_view read_npy(uint64_t index) {
    static bags_buffer scratch;
    const bags_field *field = &fields[selections[0].field];
    const range_word *items = &selections[0].items;
    bags_view blob = source_bytes(0, 0);
    const char *kind = type_of_bytes(blob);
    bags_value value;
    uint64_t start, stop;
    if (selections[0].frames) {
        if (!open_frames(index, 0, &start, &stop) ||
            !frames_get(start, stop, items->step, &value))
            fail_frames(index, 0);
        if (items->one)
            make_frame(&value);
        return npy_encode(&value, &scratch);
    }
    if (!strncmp(field->type, "npy", 3) && kind && !strcmp(kind, "npy"))
        return blob;
    if (source_dataset())
        codec_check(field->type);
    if (!source_value(0, 0, field->type, &value))
        die();
    if (value.kind != BAGS_KIND_ARRAY)
        fail(BAGS_ERROR_TYPE, "%s: field \"%s\": type %s is not an array",
            source_path(), field->name, field->type);
    return npy_encode(&value, &scratch);
}

/* Read a datapoint, and print it; with --raw and --npy, only its single blob. */
static void get_one(uint64_t index) {
    for (size_t i = 0; i < count; i++)
        resolve(index, i);
    source_get(index, selects, count);
    check_items(index);
    if (!raw && !npy) {
        show_datapoint(index);
        return;
    }
    bags_view blob = npy ? read_npy(index) : source_bytes(0, 0);
    output(blob.data, blob.size);
}

/* Print the datapoints at these positions in an index. */
static void get_keys(uint64_t start, uint64_t stop) {
    if (directory)
        directory_make(directory);
    if (field_find(fields, fields_count, "#", 1) < fields_count)
        fail(BAGS_ERROR_FIELD,
            "%s: --key prints numbers as \"#\", but a field has this name",
            source_path());
    bool ahead = true;
    for (size_t i = 0; i < count; i++)
        ahead = ahead && (selections[i].whole || !is_negative(&selections[i].items));
    for (uint64_t i = start, part; i < stop; i += part) {
        uint64_t numbers[KEYS_AT_ONCE];
        part = stop - i < KEYS_AT_ONCE ? stop - i : KEYS_AT_ONCE;
        key_datapoints(i, (size_t)part, numbers);
        for (size_t j = 0; ahead && j < count; j++)
            resolve(0, j);
        if (ahead)
            source_prefetch(numbers, (size_t)part, selects, count);
        for (size_t j = 0; j < part; j++)
            get_one(numbers[j]);
    }
}

static void get_all(const range_word *all) {
    uint64_t length = source_length();
    const char *where =
        temp_format("%s: %s ", source_path(), source_dataset() ? "datapoint" : "blob");
    uint64_t all_count = indices_count(all, where, length);
    if (directory)
        directory_make(directory);
    for (uint64_t i = 0; i < all_count; i++)
        get_one(indices_at(all, length, i));
}

/* ---- the command ---- */

static int run(char **operands) {
    static range_word datapoints = {NULL, true, NULL, 0, 0, 0, 1};
    if (directory)
        path_must_be_outside(directory);
    uint64_t start = 0, stop = 1;
    char **words = operands + (key ? 1 : 2); /* the SELECT words */
    size_t words_count = 0;
    if (!key && !operands[1])
        usage("missing INDEX, or --key");
    if (!key)
        datapoints = indices_parse(operands[1]);
    source_open(operands[0]);
    fields = source_fields(&fields_count);
    while (words[words_count])
        words_count++;
    if (!source_dataset() && words_count)
        usage("%s is a Bag and has no fields", operands[0]);
    parse_selections(words, words_count);
    options_exclude("raw|npy|out|base64", NULL);
    if (key)
        key_find(key, &start, &stop);
    bool frames = count == 1 && selections[0].frames;
    bool any_frames = false;
    for (size_t i = 0; i < count; i++)
        any_frames = any_frames || selections[i].frames;
    if (base64 && any_frames)
        usage("--base64: a frame has no bytes of its own");
    if (raw && frames)
        usage("--raw: a frame has no bytes of its own; --npy writes its array, "
              "--out a PNG file");
    if ((raw || npy) && (!datapoints.one || stop - start != 1 || count != 1 ||
                            (selections[0].sequence && !frames)))
        usage("--%s needs one datapoint, and one FIELD or FIELD[i] that is one "
              "blob",
            raw ? "raw" : "npy");
    names = names_make(fields, fields_count, "");
    if (key)
        get_keys(start, stop);
    else
        get_all(&datapoints);
    if (key || !datapoints.one) /* the datapoints may be in several shards */
        source_check();
    if (errors_shown)
        fail(BAGS_ERROR_CORRUPT, "%s: %s not decoded: see \"error\"", source_path(),
            counted(errors_shown, "value"));
    return 0;
}

const command command_get = {"get", "datapoints as JSON, or a blob's bytes",
    "PATH INDEX [SELECT...]", {ARGUMENT_PATH, ARGUMENT_WORD}, 1, 0, options,
    reading_options,
    "Prints one JSON object per datapoint. INDEX is one index, START:STOP, "
    "START:STOP:STEP or a list, [3,1,4]; negative numbers count from the end. "
    "A STOP past the end means the end; START and STOP may be missing. SELECT "
    "is FIELD, FIELD[i] (that item itself), or FIELD[START:STOP:STEP] (a "
    "list); without one, all fields. For a Bag, INDEX is the blob. The items "
    "of a video are its frames.\n"
    "Numbers, text and msgpack are shown as JSON, arrays as their dtype, shape "
    "and first elements (without dimensions, as a number), other blobs as "
    "their type and number of bytes; of images and videos, also their size and "
    "the number of frames. A blob that does not decode is shown with its "
    "error, and the exit code is 1 at the end.\n",
    "  bags get pets 0:3 label 'words[0:2]'\n"
    "  bags get pets --key 'name=re*'\n"
    "  bags get pets -1 photo --raw >photo.jpg\n",
    run};
