/*
 * bags diff: show the differences between two datasets.
 */
#include "command.h"

#include "values.h"

static bags_diff_options given;
static bool json;

static const option options[] = {
    {"key", OPTION_TEXT, &given.key, "FIELD",
        "datapoints correspond by the value of FIELD, not by their numbers"},
    {"exact", OPTION_FLAG, &given.exact, NULL,
        "compare bytes, also where both datasets have checksums"},
    {"allow-gaps", OPTION_FLAG, &given.allow_gaps, NULL,
        "read the other shards if some are missing"},
    {"json", OPTION_FLAG, &json, NULL,
        "print one JSON object: added, removed and moved (lists of numbers or, with "
        "--key, of keys), changed (such a list for each field that has one), fields "
        "(added, removed, and type: other types), and exact (bytes were compared). "
        "Added datapoints have the numbers of B, others of A"},
    OPTIONS_END,
};

enum { ADDED, REMOVED, MOVED, FIELD_ADDED, FIELD_REMOVED, FIELD_TYPE, LISTS };

static text line, lists[LISTS];

/* A field with changed datapoints. Sorted by name. */
typedef struct changed_field {
    char *name;
    text list;
} changed_field;

static changed_field *changed;
static size_t changed_count;

/* The list of a field, inserted in sorted order if it is new. */
static text *changed_list(const char *name) {
    size_t i = changed_count;
    while (i > 0 && strcmp(changed[i - 1].name, name) >= 0)
        i--;
    if (i < changed_count && !strcmp(changed[i].name, name))
        return &changed[i].list;
    changed = (changed_field *)grow(changed, changed_count, sizeof *changed);
    memmove(changed + i + 1, changed + i, (changed_count++ - i) * sizeof *changed);
    memset(&changed[i], 0, sizeof *changed);
    changed[i].name = string_format("%s", name);
    return &changed[i].list;
}

/* Write the number or the key of a datapoint. */
static void put_datapoint(text *out, const bags_difference *found) {
    const bags_value *key = found->key;
    if (!key) {
        uint64_t number = found->a == UINT64_MAX ? found->b : found->a;
        text_format(out, "%ju", (uintmax_t)number);
    } else if (!value_write(out, found->key_type, key, 1)) {
        text_puts(out, "{\"base64\": \"");
        text_base64(out, key->data, key->size);
        text_puts(out, "\"}");
    }
}

static void collect(const bags_difference *found) {
    static const struct {
        bags_difference_kind kind;
        int list;
    } kinds[] = {{BAGS_DIFFERENCE_ADDED, ADDED}, {BAGS_DIFFERENCE_REMOVED, REMOVED},
        {BAGS_DIFFERENCE_MOVED, MOVED}, {BAGS_DIFFERENCE_FIELD_ADDED, FIELD_ADDED},
        {BAGS_DIFFERENCE_FIELD_REMOVED, FIELD_REMOVED},
        {BAGS_DIFFERENCE_FIELD_TYPE, FIELD_TYPE}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        text *list = &lists[kinds[i].list];
        if (kinds[i].kind != found->kind)
            continue;
        text_puts(list, list->size ? ", " : "");
        if (kinds[i].list < FIELD_ADDED)
            put_datapoint(list, found);
        else
            text_json_string(list, found->fields[0]);
    }
    for (size_t i = 0;
         found->kind == BAGS_DIFFERENCE_CHANGED && i < found->fields_count; i++) {
        text *list = changed_list(found->fields[i]);
        text_puts(list, list->size ? ", " : "");
        put_datapoint(list, found);
    }
}

/* Write a name, quoted if a reader of the line could take it for several names. */
static void put_name(text *out, const char *name) {
    if (*name && strcspn(name, " ,:\"") == strlen(name) && is_clean(name))
        text_puts(out, name);
    else
        text_json_string(out, name);
}

static void print_line(const bags_difference *found) {
    static const char *const words[] = {"added ", "removed ", "moved ", "changed ",
        "field added: ", "field removed: ", "field type: "};
    bool of_field = found->kind >= BAGS_DIFFERENCE_FIELD_ADDED;
    line.size = 0;
    text_puts(&line, words[found->kind]);
    if (!of_field)
        put_datapoint(&line, found);
    if (found->kind == BAGS_DIFFERENCE_MOVED)
        text_format(&line, ": %ju -> %ju", (uintmax_t)found->a, (uintmax_t)found->b);
    if (found->kind == BAGS_DIFFERENCE_CHANGED)
        text_puts(&line, ": ");
    for (size_t i = 0; i < found->fields_count; i++) {
        text_puts(&line, i ? ", " : "");
        put_name(&line, found->fields[i]);
    }
    text_puts(&line, "\n");
    text_output(&line);
}

static void show(void *user, const bags_difference *found) {
    (void)user;
    if (json)
        collect(found);
    else
        print_line(found);
}

static void put_list(text *out, const char *name, text *list) {
    text_member(out, name);
    text_format(out, "[%s]", list->size ? text_string(list) : "");
}

static void print_json(const bags_diff_report *report) {
    line.size = 0;
    text_puts(&line, "{");
    put_list(&line, "added", &lists[ADDED]);
    put_list(&line, "removed", &lists[REMOVED]);
    text_member(&line, "changed");
    text_puts(&line, "{");
    for (size_t i = 0; i < changed_count; i++)
        put_list(&line, changed[i].name, &changed[i].list);
    text_puts(&line, "}");
    put_list(&line, "moved", &lists[MOVED]);
    text_member(&line, "fields");
    text_puts(&line, "{");
    put_list(&line, "added", &lists[FIELD_ADDED]);
    put_list(&line, "removed", &lists[FIELD_REMOVED]);
    put_list(&line, "type", &lists[FIELD_TYPE]);
    text_puts(&line, "}");
    text_member(&line, "exact");
    text_format(&line, "%s}\n", report->probable ? "false" : "true");
    text_output(&line);
}

static int run(char **operands) {
    static char title[] = "comparing";
    bags_diff_report report;
    failure_exit = 2;
    for (int i = 0; i < 2; i++)
        operands[i] = string_format("%s", path_without_secrets(operands[i]));
    given.a = io_for_path(operands[0]);
    given.b = io_for_path(operands[1]);
    given.registry = registry_get();
    given.each = show;
    given.progress = progress_datapoints;
    given.user = title;
    interrupt_defer();
    bags_code code = bags_diff(operands[0], operands[1], &given, &report, &failure);
    progress_end();
    must(code);
    bool same = !report.added && !report.removed && !report.moved && !report.changed &&
                !report.fields;
    if (json)
        print_json(&report);
    else if (same && report.probable)
        note("compared by checksums and sizes: equal with high probability; "
             "--exact compares bytes");
    return same ? 0 : 1;
}

const command command_diff = {"diff", "compare two datasets", "A B", {ARGUMENT_PATH}, 2,
    2, options, NULL,
    "Prints a line for each datapoint that was added, removed, moved or changed from A "
    "to B, with the fields that differ, and for each field that only one of both has. "
    "The exit code is 0 if there is no difference, 1 if there is one, 2 after an "
    "error.\n"
    "Blobs are compared as they are stored. Where both datasets have checksums, no "
    "blob is read: two blobs with the same size and CRC-32C count as equal. Equality "
    "is "
    "then probable.\n"
    "With --key, a datapoint has moved if its place among the datapoints of both "
    "differs: an added or removed one does not move the others.\n",
    "  bags diff pets pets2 --key id\n", run};
