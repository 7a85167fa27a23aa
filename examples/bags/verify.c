/*
 * bags verify: find every fault in the files, using several threads.
 */
#include "command.h"
#include "system.h"

#include "formats.h"

static const char *path;
static uint64_t total; /* approximate number of bytes to read; 0: unknown */
static uint64_t bytes, shown;

/* A field that was not decoded because this build has no codec for its type. */
typedef struct skipped {
    char *name, *type;
    uint64_t blobs;
} skipped;
static skipped *skips;
static size_t skips_count;

static bool json;
static option_number jobs = {0, 1, 0, false};

static bags_verify_options given;
static bool skip_unfinished, live;

static const option options[] = {
    {"quick", OPTION_FLAG, &given.quick, NULL,
        "check only what costs the same for a file of any size: the shape of "
        "every file, its first and last entry"},
    {"decode", OPTION_FLAG, &given.decode, NULL, "decode every value too"},
    OPTION_MAX_PIXELS,
    {"jobs", OPTION_NUMBER, &jobs, "N",
        "threads; without it, the number of processors"},
    {"json", OPTION_FLAG, &json, NULL,
        "print an object per line; the last one is the summary"},
    {"allow-gaps", OPTION_FLAG, &given.allow_gaps, NULL,
        "missing shards are not a fault"},
    {"skip-unfinished", OPTION_FLAG, &skip_unfinished, NULL,
        "unfinished shards are not a fault"},
    {"live", OPTION_FLAG, &live, NULL,
        "of unfinished shards, check the datapoints that were flushed; missing shards "
        "are not a fault"},
    OPTIONS_END,
};

/* ---- output ---- */

static void json_fault(text *line, const bags_fault *fault) {
    text_puts(line, "{");
    text_member_string(line, "path", fault->path);
    text_member_string(line, "field", fault->field);
    if (fault->kind == BAGS_FAULT_BLOB)
        text_member_number(line, "blob", fault->index);
    if (fault->kind == BAGS_FAULT_DATAPOINT)
        text_member_number(line, "datapoint", fault->index);
    text_member_number(line, "offset", fault->offset);
    text_member_string(line, "error", bags_code_name(fault->code));
    text_member_string(
        line, "message", message_of_command(fault->message, fault->remedy));
    text_puts(line, "}\n");
}

/* Append the message of a fault (it already names the file, the field and the index)
 * and add the offset. */
static void text_fault(text *line, const bags_fault *fault) {
    text_clean(line, message_of_command(fault->message, fault->remedy));
    if (fault->kind != BAGS_FAULT_FILE || (fault->field && fault->offset))
        text_format(line, " (at byte %ju)", (uintmax_t)fault->offset);
    text_puts(line, "\n");
}

static void show_fault(void *user, const bags_fault *fault) {
    (void)user;
    text line = {0};
    bar_hide();
    if (json)
        json_fault(&line, fault);
    else
        text_fault(&line, fault);
    text_output(&line);
    shown++;
    bags_buffer_free(&line.buffer);
}

/* Called for each shard. */
static void add_skipped(void *user, const bags_field *field, uint64_t blobs) {
    (void)user;
    size_t i = 0;
    while (i < skips_count &&
           (strcmp(skips[i].name, field->name) || strcmp(skips[i].type, field->type)))
        i++;
    if (i == skips_count) {
        skips = (skipped *)grow(skips, skips_count++, sizeof *skips);
        skips[i].name = string_format("%s", field->name);
        skips[i].type = string_format("%s", field->type);
        skips[i].blobs = 0;
    }
    skips[i].blobs += blobs;
}

/* Print a line for each field that was not decoded. Returns false if another build
 * could decode one of their types: --decode then did not check everything. */
static bool show_skipped(text *line) {
    bool complete = true;
    for (size_t i = 0; i < skips_count; i++) {
        const skipped *one = &skips[i];
        const type_info *info = type_find(one->type);
        bool lacking = info && info->format;
        char *message = string_format(
            "%s: field \"%s\": %s not decoded: no codec for type \"%s\"%s%s%s", path,
            one->name, counted(one->blobs, "blob"), one->type,
            lacking ? " in this build of bags; " : "", lacking ? info->format : "",
            lacking ? " has one" : "");
        complete = complete && !lacking;
        if (json) {
            text_puts(line, "{");
            text_member_string(line, "path", path);
            text_member_string(line, "field", one->name);
            text_member_number(line, "undecoded", one->blobs);
            text_member_string(line, "message", message);
            text_puts(line, "}\n");
        } else {
            text_clean(line, message);
            text_puts(line, "\n");
        }
        free(message);
        free(one->name);
        free(one->type);
    }
    skips_count = 0;
    return complete;
}

static void show_progress(void *user, uint64_t read) {
    (void)user;
    bytes += read;
    progress_show(path, "MiB", bytes, total, bytes >> 20);
}

/* Write how much of the blobs' bytes was checked. */
static void put_extent(text *line, const bags_verify_report *sum) {
    bool bag = sum->shards + sum->unfinished == 0;
    const char *rest = bag && given.decode ? "the table compared and values decoded"
                       : bag               ? "only the table compared"
                       : given.decode
                           ? "tables and references compared and values decoded"
                           : "only tables and references compared";
    if (given.quick)
        text_puts(line, ", quick check");
    else if (sum->checksums == 0)
        text_format(line, ", %s, without checksums", rest);
    else if (sum->checksums == sum->bags)
        text_puts(line, ", with checksums");
    else
        text_format(line, ", %ju of %ju Bags with checksums", (uintmax_t)sum->checksums,
            (uintmax_t)sum->bags);
}

static void text_summary(text *line, const bags_verify_report *sum) {
    bool bag = sum->shards + sum->unfinished == 0;
    uint64_t length = bag ? sum->blobs : sum->datapoints;
    text_clean(line, path);
    if (sum->faults)
        text_format(line, ": %s%s; checked ", counted(sum->faults, "fault"),
            sum->faults > shown ? ", not all of them shown" : "");
    else
        text_puts(line, sum->undecoded ? ": no fault found; checked " : ": good: ");
    text_puts(line, counted(length, bag ? "blob" : "datapoint"));
    if (sum->shards > 1)
        text_format(line, " in %ju shards", (uintmax_t)sum->shards);
    if (sum->unfinished)
        text_format(line, live ? ", with the flushed data of %s" : ", %s left out",
            counted(sum->unfinished, "unfinished shard"));
    if (sum->undecoded)
        text_format(
            line, ", %s without a codec not decoded", counted(sum->undecoded, "blob"));
    if (!sum->faults)
        put_extent(line, sum);
    text_puts(line, "\n");
}

static void json_summary(text *line, const bags_verify_report *sum) {
    text_puts(line, "{");
    text_member_string(line, "path", path);
    text_member_number(line, "faults", sum->faults);
    text_member_number(line, "shown", shown);
    text_member_number(line, "shards", sum->shards);
    text_member_number(line, "unfinished", sum->unfinished);
    text_member_number(line, "files", sum->files);
    text_member_number(line, "blobs", sum->blobs);
    text_member_number(line, "datapoints", sum->datapoints);
    text_member_number(line, "bytes", sum->bytes);
    text_member_number(line, "undecoded", sum->undecoded);
    text_member_number(line, "bags", sum->bags);
    text_member_number(line, "checksums", sum->checksums);
    text_puts(line, "}\n");
}

/* ---- one path ---- */

/* Estimate the number of bytes to read, for a terminal: everything once if there are
 * checksums, and the blobs once more with --decode. Returns 0 (unknown) otherwise;
 * reading only tables and refs takes little time. */
static uint64_t estimate_total(void) {
    bags_reader_options reading = {0};
    bags_info info = {0};
    reading.allow_gaps = true;
    reading.unfinished = BAGS_UNFINISHED_SKIP;
    reading.env = given.env;
    if (given.quick || isatty(STDERR_FILENO) != 1)
        return 0;
    bags_reader *reader = bags_reader_open(path, &reading, NULL);
    bool known = reader && !bags_reader_info(reader, &info, NULL, NULL);
    bags_reader_close(reader);
    return known ? ((info.checksums ? 1u : 0u) + (given.decode ? 1u : 0u)) * info.size
                 : 0;
}

/* granular 0.20 and 0.21 write an empty Bag as an empty file. */
static void note_empty_file(void) {
    bag_reader_options reading = {0};
    bags_path_kind kind = BAGS_PATH_NONE;
    reading.allow_empty_file = true;
    reading.env = given.env;
    bag_reader *bag =
        !given.env.io->kind(given.env.io->user, path, &kind) && kind == BAGS_PATH_FILE
            ? bag_reader_open(path, &reading, NULL)
            : NULL;
    bag_note_empty(path, bag);
    bag_reader_close(bag);
}

/* Check one path. Returns false if there are faults or the path cannot be checked as
 * requested. */
static bool check(const char *operand) {
    bags_verify_report sum;
    bags_verify_all_options how = {.live = live};
    text line = {0};
    path = path_without_secrets(operand);
    given.env.io = io_find(path, &failure);
    if (!given.env.io) {
        note_failure();
        return false;
    }
    bytes = shown = 0;
    how.verify = given;
    how.threads = jobs.value < UINT32_MAX ? (uint32_t)jobs.value : UINT32_MAX;
    note_empty_file();
    total = estimate_total();
    bags_code code = bags_verify_all(path, &how, &sum, &failure);
    progress_end();
    if (code) {
        path_hint(path);
        note_failure();
        return false;
    }
    bool complete = show_skipped(&line);
    if (json)
        json_summary(&line, &sum);
    else
        text_summary(&line, &sum);
    text_output(&line);
    bags_buffer_free(&line.buffer);
    return sum.faults == 0 && complete;
}

static int run(char **operands) {
    options_exclude("quick|decode", NULL);
    interrupt_leaves("not everything was checked", "start again with", NULL);
    options_exclude("live|skip-unfinished|quick", NULL);
    if (skip_unfinished)
        given.unfinished = BAGS_UNFINISHED_SKIP;
    if (given.decode)
        registry_without_missing();
    given.registry = registry_get();
    given.allow_empty_file = true;
    given.each = show_fault;
    given.progress = show_progress;
    given.undecoded = add_skipped;
    no_catalogue = true; /* its numbers replace bytes that the server has */
    bool good = true;
    for (; *operands; operands++)
        good = check(*operands) && good;
    return good ? 0 : 1;
}

const command command_verify = {"verify", "find every fault", "PATH...",
    {ARGUMENT_PATH, ARGUMENT_PATH, ARGUMENT_PATH}, 1, 0, options, NULL,
    "Checks every file of datasets and Bags: spec.json, each entry of each "
    "table, each datapoint's references and that the blobs exist; that no "
    "shard is missing, unfinished, duplicate, or has another spec; and, if "
    "there are checksums, every byte. Continues after a fault. Prints a line for "
    "each fault with its shard, field, index and offset, then a summary of the "
    "comparisons. The exit code is 1 if there are faults. For each path, at most "
    "1000 faults per thread are printed.\n",
    "  bags verify pets --decode\n", run};
