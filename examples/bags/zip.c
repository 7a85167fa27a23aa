/*
 * bags zip: write a dataset as one file.
 */
#include "command.h"

#include <errno.h>

#include "formats.h"
#include "place.h"

static bags_zip_options given;
static const char *dataset, *partial;
static char *compacted; /* a directory to zip instead; NULL: zip the dataset itself */

static const option options[] = {
    WHOLE_OPTIONS,
    {"no-sync", OPTION_FLAG, &given.no_sync, NULL, "do not wait for stable storage"},
    OPTIONS_END,
};

static void show_progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    interrupt_removes(partial); /* the file exists and is locked */
    progress_show(dataset, "MiB", done, total, done >> 20);
}

static void remove_compacted(void) { directory_remove(compacted); }

/* Write the referenced blobs to a directory next to the zip file. */
static const char *make_compacted(const char *to) {
    char *made = string_format("%s.compact", to);
    if (path_exists(made))
        must(format_fail_exists(bags_io_local(), made, true, &failure));
    dataset_compact(dataset, made, given.no_sync, NULL);
    compacted = made;
    on_failure = remove_compacted;
    return made;
}

static int run(char **operands) {
    dataset = path_without_secrets(operands[0]);
    if (!has_ending(operands[1], ".zip"))
        usage("%s: the name of the zip file must end in .zip", operands[1]);
    if (path_kind(dataset) == BAGS_PATH_FILE)
        fail(BAGS_ERROR_MISSING, "%s: not a dataset, but a file", dataset);
    path_must_be_writable(path_parent(operands[1]));
    path_must_be_outside(operands[1]);
    options_exclude("compact|whole", NULL);
    if (path_exists(operands[1]))
        fail_system(EEXIST, operands[1], "create");
    const char *from = write_compact ? make_compacted(operands[1]) : dataset;
    given.from = io_for_path(from);
    given.whole = write_whole;
    if (!write_compact)
        given.files = (const char *const *)index_files(dataset, &given.files_count);
    given.progress = show_progress;
    partial = string_format("%s.partial", operands[1]);
    interrupt_leaves("nothing is kept", "start again with", NULL);
    bags_code code = bags_zip(from, operands[1], &given, &failure);
    interrupt_removes(NULL);
    must(code);
    progress_end();
    if (compacted)
        remove_compacted();
    on_failure = NULL;
    bags_identity identity;
    uint64_t size = 0;
    must(format_measure(bags_io_local(), operands[1], &size, &identity, &failure));
    print("%s: wrote %s in %s\n", operands[1], dataset, counted(size, "byte"));
    return 0;
}

const command command_zip = {"zip", "write a dataset as one file", "DATASET X.zip",
    {ARGUMENT_PATH, ARGUMENT_LOCAL}, 2, 2, options, NULL,
    "Writes a finished dataset as a zip file. The other commands read it like the "
    "directory, and any unzip tool unpacks it. Nothing is compressed, and every Bag "
    "starts at a multiple of 4096 bytes, so that it is read in place. Indexes that "
    "are not older than the dataset are included, except with --compact. A dataset "
    "with blobs that no datapoint refers to, such as a selection by `bags derive`, "
    "needs --compact or --whole. X.zip must not exist. Until it is complete, it is "
    "X.zip.partial.\n",
    "  bags zip pets pets.zip && bags get pets.zip 0\n", run};
