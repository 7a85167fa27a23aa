/*
 * What passes a dataset on, as a copy or a zip file, refuses blobs that no datapoint refers
 * to: they may be what a selection was to leave out.
 */
#include "command.h"

bool write_compact, write_whole;

void compact_hint(void) {
    if (failure.code == BAGS_ERROR_VALUE && strstr(failure.message, "no datapoint"))
        failure_suffix(
            "; --compact writes only what is referred to, --whole all of it");
}

static bool show_progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    progress_show("compact", "datapoints", done, total, done);
    return !interrupt_pending();
}

void dataset_compact(
    const char *from, const char *to, bool no_sync, bags_derive_report *report) {
    bags_derive_options how = {0};
    bags_writer_options writing = {0};
    bags_info about;
    size_t shards;
    bags_reader *reader = dataset_open(from, registry_blobs());
    must(bags_reader_info(reader, &about, NULL, &failure));
    (void)bags_reader_shards(reader, &shards);
    shards_follow(reader, &writing);
    if (!writing.sharded)
        writing.shard_length = 0;
    writing.checksum = about.checksums == shards;
    how.copy = &writing;
    how.from = io_for_path(from);
    how.version = bags_reader_version(reader);
    how.registry = registry_blobs();
    how.no_sync = no_sync;
    how.progress = show_progress;
    bags_reader_close(reader);
    interrupt_defer();
    bags_code code = bags_derive(from, to, &how, report, &failure);
    progress_end();
    must(code);
}
