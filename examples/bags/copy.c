/*
 * bags copy: copy a finished dataset or a Bag to a local directory or an object store.
 */
#include "command.h"

#include "formats.h"

static const char *source, *target;

/* ---- servers ---- */

static bags_code upload(void *user, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *progress_user, uint64_t bytes),
    void *progress_user, bags_error *err) {
    (void)user;
    return object_upload(url, io, path, progress, progress_user, err);
}

static bags_code same(void *user, const char *url, const bags_io *io, const char *path,
    bool *out, bags_error *err) {
    (void)user;
    return object_same(url, io, path, out, err);
}

static const bags_copy_objects objects = {NULL, upload, same};

/* ---- copying ---- */

static bool show_progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    progress_show("copying", "MB", done, total, done >> 20);
    return true;
}

/* Copy the referenced blobs to a new dataset. An interrupted copy cannot be
 * continued. */
static int copy_compact(bags_path_kind kind) {
    bags_derive_report made;
    if (kind != BAGS_PATH_DIRECTORY)
        usage("--compact: %s is a Bag, without datapoints", source);
    if (path_is_remote(target))
        usage("--compact: %s must be a local path; copy the result to the URL", target);
    interrupt_leaves("nothing is kept", "start again with", NULL);
    dataset_compact(source, target, false, &made);
    print("%s: copied %s in %s, %s\n", target, counted(made.length, "datapoint"),
        counted(made.shards, "shard"), counted(made.made, "byte"));
    return 0;
}

static int run(char **operands) {
    static char **volatile indexes; /* until the program ends */
    bags_copy_options how = {0};
    bags_copy_report made;
    no_read_ahead = !write_compact; /* bags_copy requests what it needs */
    options_exclude("compact|whole", NULL);
    target = path_without_secrets(operands[1]);
    source = path_without_secrets(operands[0]);
    how.whole = write_whole;
    how.from = io_for_path(source);
    how.to = io_for_path(target);
    how.from_objects = path_is_remote(source) ? &objects : NULL;
    how.to_objects = path_is_remote(target) ? &objects : NULL;
    how.progress = show_progress;
    if (!*target)
        usage("the name of the copy is empty");
    if (how.to_objects && strncmp(target, "s3://", 5) != 0)
        usage("%s: only local paths and s3:// can be written", target);
    interrupt_leaves("what was copied is kept", "continue with", NULL);
    bags_path_kind kind = path_kind(source);
    bool archived = path_is_archived(source);
    if (kind == BAGS_PATH_DIRECTORY &&
        (has_ending(target, ".zip") || has_ending(target, ".tar")))
        usage("%s: the copy of a dataset is a directory; %s", target,
            archived ? "copy the archive itself, as any file"
                     : "`bags zip` makes a zip file of it");
    if (write_compact && kind != BAGS_PATH_NONE)
        return copy_compact(kind);
    if (how.to_objects && kind == BAGS_PATH_DIRECTORY)
        indexes = index_files(source, &how.files_count);
    how.files = (const char *const *)indexes;
    bags_code code = bags_copy(source, target, &how, &made, &failure);
    bar_hide();
    if (code)
        path_hint(source);
    must(code);
    if (kind == BAGS_PATH_DIRECTORY)
        catalogue_add(source, target);
    progress_end();
    print("%s: %s copied%s, %ju already equal, %ju bytes\n", target,
        counted(made.copied, "file"), archived ? " out of the archive" : "",
        (uintmax_t)made.kept, (uintmax_t)made.size);
    return 0;
}

static const option options[] = {
    WHOLE_OPTIONS,
    {"part-size", OPTION_SIZE, &part_size, "N",
        "upload larger files in parts of N bytes (64M)"},
    OPTIONS_END,
};

const command command_copy = {"copy", "to another place, or an object store", "FROM TO",
    {ARGUMENT_PATH, ARGUMENT_PATH}, 2, 2, options, NULL,
    "Copies a finished dataset, or a Bag: every Bag, its .crc, .idx and .dict "
    "files, info.json, then each spec.json, so that the copy is unfinished until it is "
    "complete. "
    "A single Bag of a dataset is copied without its checksums: they belong to the "
    "dataset. An object store also receives the indexes that are "
    "not older than the dataset. A sharded copy with checksums receives a catalogue: "
    "see `bags help catalogue`. FROM is a path, an http:// or https:// URL, "
    "or s3://BUCKET/PATH; TO is a path or s3://BUCKET/PATH. Other files are "
    "not copied. FROM.zip or FROM.tar is unpacked: TO is a directory. A dataset with "
    "blobs that no datapoint refers to, such as a selection by `bags derive`, needs "
    "--compact or --whole.\n"
    "After an interruption, run the command again. If the source has not changed, "
    "complete files are kept, and an incomplete local file continues at its end. An "
    "object in a store is kept if its size and its MD5, from its ETag, are equal; an "
    "ETag depends on the size of the parts. In a complete copy, other objects are "
    "compared. Finished files that differ are never replaced. "
    "A second copy to the same local place fails while the first is running; "
    "to an object store, run only one at a time.\n",
    "  bags copy pets s3://datasets/pets\n"
    "  bags copy s3://datasets/pets pets\n",
    run};
