/*
 * bags get: datapoints, or single blobs, by index.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

/* What a word such as frames[0:8:2] asks for. */
typedef struct wish {
    bags_select select;
    bool one; /* FIELD[i]: the item itself, not a list */
    bool list;
} wish;

typedef struct getting {
    source from;
    const bags_field *fields;
    size_t fields_count;
    wish *wishes;
    bags_select *selects;
    size_t count;
    bool raw, npy, lists;
    const char *directory;
    char **names;
    text line;
} getting;

/* ---- numbers and ranges ---- */

/* What stands between two colons; an empty one is `otherwise`. */
static bags_code parse_part(const char *at, size_t size, uint64_t otherwise,
    uint64_t *out, bags_error *err) {
    if (size == 0) {
        *out = otherwise;
        return BAGS_OK;
    }
    switch (number_parse(at, size, out)) {
    case NUMBER_GOOD:
        return BAGS_OK;
    case NUMBER_NEGATIVE:
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%.*s: numbers count from 0 and are never negative", (int)size, at);
    case NUMBER_NONE:
        break;
    }
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "\"%.*s\" is no number",
        (int)size, at);
}

/* i, start:stop or, where steps are allowed, start:stop:step. parts is how many
 * there are. */
static bags_code parse_range(const char *at, size_t size, bool steps,
    uint64_t range[3], size_t *parts, bags_error *err) {
    const uint64_t defaults[3] = {0, UINT64_MAX, 1};
    memcpy(range, defaults, sizeof defaults);
    size_t part = 0;
    for (;; part++) {
        const char *colon = (const char *)memchr(at, ':', size);
        size_t here = colon ? (size_t)(colon - at) : size;
        if (part == (steps ? 3u : 2u))
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "too many colons");
        if (part == 0 && !colon && size == 0)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "an index is missing");
        bags_code code =
            parse_part(at, here, defaults[part], &range[part], err);
        if (code)
            return code;
        if (!colon)
            break;
        at = colon + 1;
        size -= here + 1;
    }
    *parts = part + 1;
    if (range[2] == 0)
        return bags_fail(err, BAGS_ERROR_RANGE, "a step of 0");
    if (part > 0 && range[0] > range[1])
        return bags_fail(err, BAGS_ERROR_RANGE,
            "the range starts at %ju, behind its stop %ju", (uintmax_t)range[0],
            (uintmax_t)range[1]);
    return BAGS_OK;
}

/* ---- which fields ---- */

static bool find_field(const getting *get, const char *name, size_t size,
    size_t *out) {
    for (size_t i = 0; i < get->fields_count; i++) {
        if (strlen(get->fields[i].name) == size &&
            !memcmp(get->fields[i].name, name, size)) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* FIELD[...]: `open` is the bracket. */
static bags_code parse_items(const getting *get, const char *word,
    const char *open, wish *out, bags_error *err) {
    uint64_t range[3];
    size_t parts;
    bags_code code =
        parse_range(open + 1, strlen(open) - 2, true, range, &parts, err);
    if (code)
        return fail_prefix(err, "%s: ", word);
    if (!source_is_sequence(&get->from, out->select.field))
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: the field \"%s\" is no sequence: it has no items", word,
            get->fields[out->select.field].name);
    out->one = parts == 1;
    uint64_t stop = out->one ? range[0] + (range[0] < UINT64_MAX) : range[1];
    out->select = bags_slice(out->select.field, range[0], stop);
    if (!out->one)
        out->select.step = range[2];
    return BAGS_OK;
}

/* What there is instead, as far as it fits a line. */
static bags_code fail_field(const getting *get, const char *word,
    bags_error *err) {
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < get->fields_count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.60s",
            i ? ", " : "", get->fields[i].name);
    return bags_fail(err, BAGS_ERROR_FIELD, "%s: no field \"%.300s\": it has %s%s",
        get->from.path, word, names, used < sizeof names ? "" : " ...");
}

static bags_code parse_wish(const getting *get, const char *word, wish *out,
    bags_error *err) {
    size_t size = strlen(word);
    const char *open = strrchr(word, '[');
    memset(out, 0, sizeof *out);
    /* A field's name may itself end in brackets. */
    bool whole = find_field(get, word, size, &out->select.field);
    if (!whole && (!open || word[size - 1] != ']' ||
                      !find_field(get, word, (size_t)(open - word),
                          &out->select.field)))
        return fail_field(get, word, err);
    bags_code code = whole ? BAGS_OK : parse_items(get, word, open, out, err);
    out->list = !out->one &&
                source_is_sequence(&get->from, out->select.field);
    return code;
}

/* Understand the SELECT words; without one, all fields. Returns 0, or the exit
 * code of an error. */
static int parse_wishes(getting *get, char **words, size_t count) {
    bags_error err;
    size_t room = count ? count : get->fields_count;
    get->wishes = (wish *)calloc(room + 1, sizeof *get->wishes);
    get->selects = (bags_select *)calloc(room + 1, sizeof *get->selects);
    if (!get->wishes || !get->selects)
        return fail_memory(&err), fail(&err);
    for (size_t i = 0; i < count; i++) {
        bags_code code = parse_wish(get, words[i], &get->wishes[i], &err);
        if (code == BAGS_ERROR_ARGUMENT)
            return fail_usage(&command_get, "%s", err.message);
        if (code)
            return fail(&err);
        for (size_t j = 0; j < i; j++)
            if (get->wishes[j].select.field == get->wishes[i].select.field)
                return fail_usage(&command_get, "the field \"%s\" is given "
                    "twice", get->fields[get->wishes[i].select.field].name);
    }
    for (size_t i = 0; i < room && count == 0; i++) {
        get->wishes[i].select.field = i;
        get->wishes[i].list = source_is_sequence(&get->from, i);
    }
    get->count = room;
    for (size_t i = 0; i < room; i++)
        get->selects[i] = get->wishes[i].select;
    return 0;
}

/* ---- what is written ---- */

/* FIELD[i] must exist. */
static bags_code check_items(getting *get, uint64_t index, bags_error *err) {
    for (size_t i = 0; i < get->count; i++) {
        const wish *one = &get->wishes[i];
        uint64_t items = 0;
        if (!one->one || source_items(&get->from, i) == 1)
            continue;
        bags_code code = bags_reader_items(get->from.dataset, index,
            one->select.field, &get->from.row, &items, err);
        if (code)
            return code;
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: datapoint %ju: field \"%s\" has %ju items: there is no item "
            "%ju", get->from.path, (uintmax_t)index,
            get->fields[one->select.field].name, (uintmax_t)items,
            (uintmax_t)one->select.start);
    }
    return BAGS_OK;
}

/* The number of an item within its sequence. */
static uint64_t item_number(const wish *asked, size_t item) {
    uint64_t step = asked->select.step ? asked->select.step : 1;
    return asked->select.start + item * step;
}

/* Write a blob to its own file, whose name becomes the value that is shown. */
static bags_code put_file(getting *get, uint64_t index, size_t slot,
    size_t item, bags_error *err) {
    const wish *asked = &get->wishes[slot];
    size_t field = asked->select.field;
    bags_view blob = source_bytes(&get->from, slot, item);
    char room[16], number[32] = "";
    if (asked->one || asked->list)
        snprintf(number, sizeof number, "-%06ju",
            (uintmax_t)item_number(asked, item));
    char *name = string_format(err, "%06ju-%s%s.%s", (uintmax_t)index,
        get->names[field], number,
        type_ending(get->fields[field].type, blob, room));
    char *path = name ? path_join(get->directory, name, err) : NULL;
    bags_code code = path ? file_write(path, blob.data, blob.size, err)
                          : BAGS_ERROR_MEMORY;
    if (!code) {
        text_puts(&get->line, "{\"file\": ");
        text_json(&get->line, path, strlen(path), false);
        text_puts(&get->line, "}");
    }
    free(name);
    free(path);
    return code;
}

static bags_code put_item(getting *get, uint64_t index, size_t slot,
    size_t item, bags_error *err) {
    const char *type = get->fields[get->wishes[slot].select.field].type;
    bool done = false;
    if (get->directory)
        return put_file(get, index, slot, item, err);
    bags_code code = get->lists ? value_list(&get->from, slot, item, type,
                                      &get->line, &done, err)
                                : BAGS_OK;
    return code || done
               ? code
               : value_show(&get->from, slot, item, type, &get->line, err);
}

static bags_code show_datapoint(getting *get, uint64_t index,
    bags_error *err) {
    bags_code code = BAGS_OK;
    get->line.size = 0;
    text_puts(&get->line, "{");
    for (size_t i = 0; i < get->count && !code; i++) {
        const char *name = get->fields[get->wishes[i].select.field].name;
        size_t items = source_items(&get->from, i);
        text_puts(&get->line, i ? ", " : "");
        text_json(&get->line, name, strlen(name), false);
        text_puts(&get->line, get->wishes[i].list ? ": [" : ": ");
        for (size_t j = 0; j < items && !code; j++) {
            text_puts(&get->line, j ? ", " : "");
            code = put_item(get, index, i, j, err);
        }
        text_puts(&get->line, get->wishes[i].list ? "]" : "");
    }
    text_puts(&get->line, "}\n");
    if (!code)
        code = text_check(&get->line, err);
    return code ? code : output(get->line.buffer.data, get->line.size, err);
}

/* --npy: the decoded array as a file; a blob that is one goes as it is. */
static bags_code put_npy(getting *get, bags_error *err) {
    const bags_field *field = &get->fields[get->wishes[0].select.field];
    bags_view blob = source_bytes(&get->from, 0, 0);
    const char *kind = type_of_bytes(blob);
    bags_buffer scratch = {0};
    bags_value value;
    if (!strncmp(field->type, "npy", 3) && kind && !strcmp(kind, "npy"))
        return output(blob.data, blob.size, err);
    bags_code code = source_value(&get->from, 0, 0, &value, err);
    if (code)
        return code;
    if (value.kind != BAGS_KIND_ARRAY)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: field \"%s\" of type %s is no array", get->from.path,
            field->name, field->type);
    code = encode_as(get->from.codecs, "npy", &value, &scratch, &blob, err);
    if (!code)
        code = output(blob.data, blob.size, err);
    bags_buffer_free(&scratch);
    return code;
}

static bags_code get_one(getting *get, uint64_t index, bags_error *err) {
    bags_code code =
        source_get(&get->from, index, get->selects, get->count, err);
    if (!code)
        code = check_items(get, index, err);
    if (code)
        return code;
    if (get->npy)
        return put_npy(get, err);
    if (!get->raw)
        return show_datapoint(get, index, err);
    bags_view blob = source_bytes(&get->from, 0, 0);
    return output(blob.data, blob.size, err);
}

static bags_code get_all(getting *get, const uint64_t range[3], bool one,
    bags_error *err) {
    uint64_t length = source_length(&get->from);
    uint64_t stop = one ? range[0] + 1 : range[1];
    if (one && range[0] >= length)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: no %s %ju: there are %ju", get->from.path,
            get->from.bag ? "blob" : "datapoint", (uintmax_t)range[0],
            (uintmax_t)length);
    bags_code code = BAGS_OK;
    if (get->directory)
        code = directory_make(get->directory, err);
    for (uint64_t i = range[0]; i < stop && i < length && !code; i++)
        code = get_one(get, i, err);
    return code;
}

/* ---- the command ---- */

static int check_single(const getting *get, bool one) {
    const char *name = get->raw ? "--raw" : "--npy";
    if ((get->raw && get->npy) ||
        ((get->raw || get->npy) && get->directory))
        return fail_usage(&command_get,
            "--raw, --npy and --out exclude each other");
    if ((get->raw || get->npy) &&
        (!one || get->count != 1 || get->wishes[0].list))
        return fail_usage(&command_get,
            "%s needs one INDEX and one FIELD or FIELD[i] that names one blob",
            name);
    return 0;
}

static int get_from(getting *get, int count, char **words) {
    uint64_t range[3];
    size_t parts;
    bags_error err;
    bags_code code = parse_range(words[1], strlen(words[1]), false, range,
        &parts, &err);
    if (code == BAGS_ERROR_ARGUMENT)
        return fail_usage(&command_get, "%s", err.message);
    if (code)
        return fail(&err);
    get->fields = source_fields(&get->from, &get->fields_count);
    if (get->from.bag && count > 2)
        return fail_usage(&command_get, "%s is a Bag: it has no fields",
            words[0]);
    int exit_code = parse_wishes(get, words + 2, (size_t)count - 2);
    if (!exit_code)
        exit_code = check_single(get, parts == 1);
    if (exit_code)
        return exit_code;
    get->names = names_make(get->fields, get->fields_count, &err);
    if (!get->names || get_all(get, range, parts == 1, &err))
        return fail(&err);
    return 0;
}

static int run(int count, char **words) {
    getting get;
    memset(&get, 0, sizeof get);
    source_options reading = {0};
    option options[SOURCE_OPTIONS + 4] = {{"raw", &get.raw, NULL},
        {"npy", &get.npy, NULL}, {"lists", &get.lists, NULL},
        {"out", NULL, &get.directory}};
    source_options_describe(&reading, options + 4);
    int exit_code;
    if (!options_parse(&command_get, &count, words, options,
            SOURCE_OPTIONS + 4, &exit_code))
        return exit_code;
    if (count < 2)
        return fail_usage(&command_get, "takes PATH and INDEX or START:STOP");
    bags_error err;
    if (source_open(&get.from, words[0], &reading, &err))
        return fail(&err);
    exit_code = get_from(&get, count, words);
    names_free(get.names, get.fields_count);
    source_close(&get.from);
    text_free(&get.line);
    free(get.wishes);
    free(get.selects);
    return exit_code;
}

const command command_get = {"get", "datapoints as JSON, or a blob's bytes",
    "usage: bags get PATH INDEX|START:STOP [SELECT...]\n"
    "                [--raw | --npy | --out DIR] [--lists]\n"
    "                [--check] [--allow-gaps] [--skip-unfinished] [--live]\n"
    "\n"
    "Prints one JSON object a datapoint. SELECT is FIELD, FIELD[i] (that item\n"
    "itself), FIELD[start:stop] or FIELD[start:stop:step] (a list); without\n"
    "one, all fields. A stop behind the end is the end; start and stop may be\n"
    "left out. Of a Bag, INDEX is the blob.\n"
    "\n"
    "Numbers, text and msgpack are shown as JSON, arrays as their dtype,\n"
    "shape and first elements, other blobs as their type and number of bytes.\n"
    "\n"
    "  --lists    arrays of up to 1024 elements whole, as nested lists\n"
    "  --raw      write the bytes of the one blob that is selected\n"
    "  --npy      decode it and write the array as a .npy file\n"
    "  --out DIR  write every blob to a file of its own in DIR, and print the\n"
    "             files' names\n"
    "  --check    compare every blob with its checksum: bags help checksum\n"
    "  --allow-gaps, --skip-unfinished, --live  as in bags help info\n"
    "\n"
    "example:\n"
    "  bags get pets 0:3 label 'words[0:2]'\n"
    "  bags get pets 7 photo --raw >photo.jpg\n",
    run};
