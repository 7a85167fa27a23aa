/*
 * The formats of `bags export --to`: their names, the options for an export, and its
 * progress. formats/export/ writes the files.
 */
#include "command.h"

#include "export.h"
#include "modules.h"

#include <string.h>

/* The exporters of this build. */
#define EXPORTER(name) {#name, NULL, &bags_export_##name, NULL},
#define EXPORTER_WITH(name, endings) {#name, LINKED(bags_export_##name), endings},
static const struct built {
    const char *name, *symbol;
    const bags_exporter *exporter; /* NULL: in a module, under this symbol */
    const char *endings;           /* of an exporter in a module */
} exporters[] = {
    {"lines", NULL, NULL, ".lines"}, /* export.c */
#include "exporters.h"
    {"arrow", NULL, NULL, ".arrow .feather"}, /* refused: see refuse_arrow */
    {NULL, NULL, NULL, NULL},
};

const char *const layout_names[] = {"rows", "episodes", NULL};
export_options exporting = {.to = CHOICE(exporters), .layout = CHOICE(layout_names)};

static const char *exporters_names(void) {
    static text names;
    names.size = 0;
    for (size_t i = 0; exporters[i].name && strcmp(exporters[i].name, "arrow"); i++)
        text_format(&names, "%s%s", i ? " " : "", exporters[i].name);
    return text_string(&names);
}

static const bags_exporter *exporter_open(const struct built *one) {
    if (one->exporter)
        return one->exporter;
    char *format = string_format("export/%s", one->name);
    const bags_exporter *opened =
        (const bags_exporter *)module_find(format, one->symbol, &failure);
    must_open(opened);
    free(format);
    return opened;
}

static bool accepts_ending(const struct built *one, const char *ending) {
    const char *at = one->endings ? one->endings : one->exporter->endings;
    for (; *at; at += strcspn(at, " "), at += *at == ' ') {
        size_t size = strcspn(at, " ");
        if (strlen(ending) == size && !strncasecmp(ending, at, size))
            return true;
    }
    return false;
}

/* The ending of the last component of OUT, or "". A leading dot does not start an
 * ending. */
static const char *ending_of(const char *out) {
    size_t size = strlen(out);
    while (size > 0 && out[size - 1] == '/')
        size--;
    size_t start = size;
    while (start > 0 && out[start - 1] != '/')
        start--;
    const char *base = temp_format("%.*s", (int)(size - start), out + start);
    while (*base == '.')
        base++;
    const char *dot = strrchr(base, '.');
    return dot ? dot : "";
}

ENDS static void refuse_arrow(const char *out) {
    usage("%s: Arrow files are not written: export to Parquet (--to parquet), or use "
          "bags.sql(path, query).arrow() in Python",
        out);
}

bool export_is_to_format(const char *out) {
    const char *ending = ending_of(out);
    size_t by_ending = 0, i = exporting.to.value;
    if (!strcasecmp(ending, ".idx") && !exporting.to.given)
        return false;
    while (exporters[by_ending].name && !accepts_ending(&exporters[by_ending], ending))
        by_ending++;
    bool known = *ending && exporters[by_ending].name;
    if (!exporting.to.given && *ending && !known)
        usage("%s: unknown ending %s; pass --to FORMAT, one of: %s (lines makes a "
              "directory of JSON lines)",
            out, ending, exporters_names());
    if (exporting.to.given && known && by_ending != i)
        usage("%s: ends like %s, but --to is %s", out, exporters[by_ending].name,
            exporters[i].name);
    if (!exporting.to.given)
        i = known ? by_ending : 0;
    exporting.to.value = i;
    if (!strcmp(exporters[i].name, "arrow"))
        refuse_arrow(out);
    return i > 0;
}

static void check_options(const char *name) {
    const char *others = options_given("raw|npy|lists|tokens");
    if (others)
        usage("--%s: only of JSON lines (this is %s)", others, name);
    if (exporting.key && strcmp(name, "webdataset") != 0 && strcmp(name, "images") != 0)
        usage("--key: only of webdataset and images (this is %s)", name);
    if (exporting.label && strcmp(name, "images") != 0)
        usage("--label: only of images (this is %s)", name);
    if (exporting.layout.given && strcmp(name, "hdf5") != 0)
        usage("--layout: only of hdf5 (this is %s)", name);
    if (exporting.fps && strcmp(name, "lerobot") != 0)
        usage("--fps: only of lerobot (this is %s)", name);
    options_exclude("shard-size", "shard-start|shard-stop|worker");
}

/* Parse --fps; 0 without it. */
static double choose_rate(void) {
    char *end = NULL;
    double rate = exporting.fps ? strtod(exporting.fps, &end) : 0;
    if (exporting.fps && (*end || end == exporting.fps || !(rate > 0 && rate <= 1e6)))
        usage(
            "--fps: \"%s\" is not a number above 0, and up to 1000000", exporting.fps);
    return rate;
}

/* Parse --fields F,OLD=NEW into the names in the dataset and in the export. */
static bags_field *choose_fields(const bags_reader *reader, size_t *count) {
    static char *words; /* stays reachable on failure: not a leak */
    static bags_field *chosen;
    words = exporting.fields ? string_format("%s", exporting.fields) : NULL;
    char *at = words, *name, *renamed;
    size_t all;
    const bags_field *fields = bags_reader_fields(reader, &all);
    *count = 0;
    while (list_next(&at, &name, &renamed)) {
        size_t i = field_require(source_path(), name, fields, all);
        for (size_t k = 0; k < *count; k++)
            if (!strcmp(chosen[k].name, fields[i].name))
                usage("--fields: duplicate field \"%s\"", name);
        if (renamed && !*renamed)
            usage("--fields: no new name for \"%s\"", name);
        chosen = (bags_field *)grow(chosen, *count, sizeof *chosen);
        chosen[*count].name = fields[i].name;
        chosen[(*count)++].type = renamed;
    }
    if (exporting.fields && !*count)
        usage("--fields: no field is named");
    return chosen;
}

bags_view export_metadata(const bags_reader *reader) {
    static bags_buffer buffer;
    const bags_env env = {NULL, io_for_path(source_path())};
    bags_view found;
    must(bags_metadata_read(source_path(), reader, &env, &buffer, &found, &failure));
    return found;
}

static const char *out_path;

static void say_kept(void) {
    const char *marker = temp_format("%s.unfinished", out_path);
    progress_end();
    if (exporting.stop.value > 1)
        marker = temp_format("%s-%ju", marker, (uintmax_t)exporting.start.value);
    if (path_exists(marker) && failure.code != BAGS_ERROR_EXISTS &&
        failure.code != BAGS_ERROR_LOCKED && failure.code != BAGS_ERROR_VALUE)
        failure_suffix("; %s: what was exported is kept, --resume continues", out_path);
}

void export_to_format(const char *out, bool resume) {
    const struct built *one = &exporters[exporting.to.value];
    const bags_reader *given = source_dataset();
    bags_export_options how = {0};
    bags_export_report report;
    size_t count = 0;
    check_options(one->name);
    how.fps = choose_rate();
    worker_check(&exporting.start, &exporting.stop);
    if (!given)
        fail(BAGS_ERROR_TYPE, "%s: a Bag has no fields; --to %s exports datasets",
            source_path(), one->name);
    out_path = out;
    bags_reader *reader = dataset_again(given, source_path(), registry_blobs());
    if (selecting.rows || selecting.where) {
        how.rows = select_datapoints(&given, 1, bags_reader_length(given), &count);
        how.rows_count = count;
    }
    how.fields = choose_fields(reader, &how.fields_count);
    how.metadata = export_metadata(reader);
    const bags_exporter *exporter = exporter_open(one);
    if (how.metadata.data && !exporter->has_metadata)
        note("%s: its info.json is not exported: %s has no place for it", source_path(),
            one->name);
    how.key = exporting.key;
    how.label = exporting.label;
    how.shard_size = exporting.shard_size.value;
    how.shard_length = exporting.shard_length.value;
    how.shard_start = exporting.start.value;
    how.shard_stop = exporting.stop.value;
    how.layout = exporting.layout.given && exporting.layout.value ? BAGS_EXPORT_EPISODES
                                                                  : BAGS_EXPORT_ROWS;
    how.resume = resume;
    how.prefetch = io_for_path(source_path())->read_many != NULL;
    static char title[] = "export";
    how.progress = progress_datapoints;
    how.user = title;
    on_failure = say_kept;
    interrupt_leaves(
        temp_format("%s: what was exported is kept", out), "continue with", "--resume");
    must(bags_export(reader, exporter, out, &how, &report, &failure));
    progress_end();
    on_failure = NULL;
    print("%s: %s %s of %s, in %s\n", out,
        resume && report.existed ? "already has" : "wrote",
        counted(report.datapoints, "datapoint"), source_path(),
        counted(report.files, "file"));
    bags_reader_close(reader);
}
