/*
 * Commands that pass on a dataset as a copy or a zip file refuse unreferenced blobs,
 * since a selection may have removed them on purpose.
 */
#include "command.h"

bool write_compact, write_whole;

bags_code dataset_derive(char *title, const char *from, const char *to,
    bags_derive_options *how, bags_derive_report *report) {
    how->registry = registry_blobs();
    how->progress = progress_datapoints;
    how->user = title;
    interrupt_defer();
    bags_code code = bags_derive(from, to, how, report, &failure);
    progress_end();
    return code;
}

bool dataset_has_checksums(const bags_reader *reader) {
    bags_info about;
    size_t shards;
    must(bags_reader_info(reader, &about, NULL, &failure));
    (void)bags_reader_shards(reader, &shards);
    return about.checksums == shards;
}

void dataset_compact(
    const char *from, const char *to, bool no_sync, bags_derive_report *report) {
    static char title[] = "compact";
    bags_derive_options how = {0};
    bags_writer_options writing = {0};
    bags_reader *reader = dataset_open(from, registry_blobs());
    shards_follow(reader, &writing);
    if (!writing.shard_stop)
        writing.shard_length = 0;
    writing.checksum = dataset_has_checksums(reader);
    how.copy = &writing;
    how.from = io_for_path(from);
    how.version = bags_reader_version(reader);
    how.no_sync = no_sync;
    bags_reader_close(reader);
    must(dataset_derive(title, from, to, &how, report));
}
