/*
 * bags copy: copy a finished dataset or a Bag to a local directory or an object store.
 *
 * Several threads copy all Bags first, then each spec.json, beginning with the last
 * shard, so every reader sees an unfinished dataset until the end.
 *
 * While it is made, a local copy has a record, spec.json.copied or, for a Bag,
 * NAME.bag.copied. It is locked to keep other copies out, and contains:
 *
 *     boot of the system | hash of the identities of all source files
 *
 * After an interruption, the record tells which version the existing files are. If the
 * source still has this version, complete files are kept. A partial file, NAME.copy, is
 * continued at its end, but only within the same boot, since after a reboot it may lack
 * bytes that never reached stable storage. All other files are removed before the
 * record is replaced.
 *
 * A complete file records its own version: the nanoseconds of its modification time are
 * a hash of the identity of the server's file. Changing the file changes the time.
 */
#include "command.h"
#include "system.h"

#include "blocks.h"
#include "files.h"
#include "formats.h"
#include "publish.h"
#include "random.h"
#include "text.h"

#include <pthread.h>

#define MAX_THREADS 32
#define UPLOAD_THREADS 8 /* each may hold a part of 64 MiB */
/* Bytes read at once, and bytes requested in advance for all files together. After a
 * kill, requested bytes that were not written yet are requested again. */
#define COPY_SIZE ((size_t)1 << 20)
#define COPY_AHEAD ((size_t)16 << 20)
#define COPY_LEAST ((size_t)256 << 10) /* per file */
#define EXPECTED 64                    /* shards that are looked up at once */

/* The phase in which a file is copied. */
enum { PHASE_BAGS, PHASE_SPECS, PHASE_LAST, PHASES };

typedef struct entry {
    char *from, *to;
    uint64_t size;
    bags_identity identity;
    int phase;
    bool last;     /* a spec.json, or the .bag of a Bag */
    bool finished; /* the last file of its shard exists at the destination */
    bool missing;  /* not copied; the copy must not have it */
    bool index;    /* an existing copy may be replaced */
} entry;

static entry *entries;
static size_t count;
static const char *source, *target; /* paths of datasets, or of Bags without .bag */
static const bags_io *in, *out;
static bool to_url;
static char *record_path;
static void *record_file; /* NULL: not locked */

/* State shared by the threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int now;
static size_t next_entry, files_left, thread_count;
static uint64_t bytes_done, bytes_total, files_copied, files_kept;
static bags_error fault;

/* ---- collecting the files ---- */

/* Add a file of the dataset. Any file but the last may be missing. With `omit`, it is
 * not copied. */
static void add(const char *name, bool last, bool omit) {
    entry one = {0};
    one.last = last;
    one.phase = !last ? PHASE_BAGS : count ? PHASE_SPECS : PHASE_LAST; /* it is first */
    one.from = string_format("%s%s", source, name);
    one.to = string_format("%s%s", target, name);
    one.missing = omit || (!last && path_kind(one.from) != BAGS_PATH_FILE);
    if (!one.missing)
        must(format_measure(in, one.from, &one.size, &one.identity, &failure));
    bytes_total += one.size;
    entries = (entry *)grow(entries, count, sizeof *entries);
    entries[count++] = one;
}

static void expect_shard(const bags_reader *reader, size_t shard) {
    char name[600];
    for (size_t i = 0; in->expect && format_file_name(reader, shard, &i, name);)
        in->expect(in->user, temp_format("%s/%s", source, name));
}

static void add_shard(const bags_reader *reader, size_t shard) {
    char name[600];
    for (size_t i = 0, next = 0; format_file_name(reader, shard, &next, name); i = next)
        add(temp_format("/%s", name), i == 0, false);
}

/* The first shard has the indexes. */
static void add_indexes(void) {
    size_t length;
    char **names = index_files(source, &length);
    for (size_t i = 0; i < length; i++) {
        add(temp_format("/%s", names[i]), false, false);
        entries[count - 1].index = true;
        free(names[i]);
    }
    free(names);
}

/* ---- the destination ---- */

static void unlock_target(void) {
    if (record_file)
        (void)out->remove(out->user, record_path);
    if (record_file)
        (void)out->close(out->user, record_file);
    record_file = NULL;
}

static void lock_target(const char *name) {
    if (to_url)
        return;
    record_path = string_format("%s%s.copied", target, name);
    directory_make(path_parent(record_path));
    must(format_open_locked(out, record_path, target, "copy", &record_file, &failure));
    on_failure = unlock_target;
}

/* Never replace the files of a crashed or running writer: `bags recover` can still
 * finish them. The reader's error states whether the writer is running. */
static void check_not_begun(const char *directory) {
    char *path = string_format("%s", directory);
    if (path_has(path, "spec.json.partial") && !path_has(path, "spec.json")) {
        bags_reader *finished = bags_reader_open(path, NULL, &failure);
        if (!finished) {
            failure_prefix("%s: already has an unfinished dataset: ", target);
            die();
        }
        bags_reader_close(finished);
    }
    free(path);
}

/* If one directory contained two datasets, readers would see only one, or a mixture. */
static void check_destination(const bags_shard *shards, size_t shards_count) {
    static bags_shard *found; /* still reachable after a failure */
    size_t found_count;
    found = shards_list(target, &found_count);
    if (!to_url)
        check_not_begun(target);
    if (shards->digits && path_has(target, "spec.json"))
        fail(BAGS_ERROR_EXISTS, "%s: already has another, unsharded dataset", target);
    for (size_t i = 0, k = 0; i < found_count; i++) {
        if (!to_url)
            check_not_begun(shard_path(target, &found[i]));
        while (k < shards_count && shards[k].number < found[i].number)
            k++;
        if (k == shards_count || shards[k].number != found[i].number ||
            shards[k].digits != found[i].digits)
            fail(BAGS_ERROR_EXISTS,
                "%s: already has another dataset (shard %0*ju is not in the "
                "source)",
                target, (int)found[i].digits, (uintmax_t)found[i].number);
    }
    free(found);
}

/* ---- sources and destinations ---- */

static void plan_dataset(void) {
    bags_reader_options options = {0};
    bags_info about;
    size_t shards_count, length = strlen(source);
    options.env.io = in;
    if (!strncmp(target, source, length) && is_separator(target[length]))
        usage("%s: is in the directory of the dataset %s", target, source);
    bags_reader *reader = bags_reader_open(source, &options, &failure);
    if (!reader)
        path_hint(source);
    must_open(reader);
    const bags_shard *shards = bags_reader_shards(reader, &shards_count);
    for (size_t i = 0, expected = 0; i < shards_count; i++) {
        for (; expected < shards_count && expected < i + EXPECTED; expected++)
            expect_shard(reader, expected);
        add_shard(reader, i);
        /* Indexes contain the times of the source's files, so they would not match a
         * local copy. */
        if (i == 0 && to_url)
            add_indexes();
    }
    /* Opens every Bag. All files added here must have the version that the reader
     * opened. */
    must(bags_reader_info(reader, &about, NULL, &failure));
    if (!write_whole)
        must(format_check_referenced(reader, &options.env, &failure));
    lock_target("/spec.json");
    check_destination(shards, shards_count);
    bags_reader_close(reader);
}

/* If the Bag belongs to a dataset, its checksums are omitted: they cover its name and
 * what ties the dataset together, so they would not match a copy outside the
 * dataset. */
static void plan_bag(void) {
    bag_reader_options options = {0};
    options.env.io = in;
    options.no_mmap = true;
    options.allow_empty_file = true;
    if (!has_ending(source, ".bag") || !has_ending(target, ".bag"))
        usage("the names of both Bags must end in .bag");
    bag_reader *bag = bag_reader_open(source, &options, &failure);
    must_open(bag);
    bag_reader_close(bag);
    bool in_dataset = path_has(path_parent(source), "spec.json");
    source = string_format("%.*s", (int)strlen(source) - 4, source);
    target = string_format("%.*s", (int)strlen(target) - 4, target);
    add(".bag", true, false);
    add(".idx", false, false);
    add(".dict", false, false);
    add(".crc", false, in_dataset);
    lock_target(".bag");
}

/* Find out which shards are finished: a shard's last file comes before its other files.
 * True if all are. */
static bool find_finished(void) {
    bool finished = false, all = true;
    for (size_t i = 0; i < count; i++) {
        if (entries[i].last)
            finished = path_kind(entries[i].to) == BAGS_PATH_FILE;
        entries[i].finished = finished;
        all = all && finished;
    }
    return all;
}

/* ---- versions ---- */

/* False if nothing identifies a file's version. (For a server, the inode and time are
 * hashes. They are equal if it sends neither an ETag nor a Last-Modified.) */
static bool has_version(const entry *one) {
    return in->identify && one->identity.inode != one->identity.time;
}

/* Continue a hash with a source file and its version. */
static uint64_t hash_version(uint64_t hash, const entry *one) {
    const bags_identity *from = &one->identity;
    uint64_t numbers[] = {from->device, from->inode, from->time, from->size};
    hash = format_hash(hash, one->from, strlen(one->from) + 1);
    return format_hash(hash, numbers, sizeof numbers);
}

#define NANOSECONDS 1000000000

/* Mark a complete file with the version of the server's file. If that fails, the next
 * copy compares the file. */
static void mark_version(const entry *one, const char *path) {
    bags_identity found;
    if (path_is_remote(one->from) && has_version(one) &&
        !out->identify(out->user, NULL, path, &found))
        (void)set_file_time(path, found.time - found.time % NANOSECONDS +
                                      format_mix(hash_version(0, one)) % NANOSECONDS);
}

/* True if a file is marked with this version. */
static bool is_marked(const entry *one) {
    bags_identity found;
    return !to_url && has_version(one) &&
           !out->identify(out->user, NULL, one->to, &found) &&
           found.size == one->size &&
           found.time % NANOSECONDS == format_mix(hash_version(0, one)) % NANOSECONDS;
}

/* ---- the record ---- */

static bool keep_parts; /* partial files have this version */
static bool keep_files; /* complete files have this version */

/* The record for the source, or "" if nothing identifies its version. */
static const char *make_record(void) {
    static const char boot_path[] = "/proc/sys/kernel/random/boot_id";
    static bags_buffer boot;
    uint64_t hash = 0;
    for (size_t i = 0; i < count; i++) {
        if (!entries[i].missing && !has_version(&entries[i]))
            return "";
        hash = hash_version(hash, &entries[i]);
    }
    const char *id = "";
    if (path_exists(boot_path))
        id = (const char *)file_read(boot_path, &boot).data;
    return temp_format("%.*s %016jx\n", (int)strcspn(id, " \n"), id, (uintmax_t)hash);
}

/* Decide which existing files have this version, and remove all others before the
 * record is written. Even after a power failure, a record never describes other
 * files. */
static void start_record(void) {
    char *record = string_format("%s", make_record());
    char *found = (char *)allocate(strlen(record) + 1, 1);
    size_t size = strlen(record) + 1;
    int error = read_all(out, record_file, 0, found, &size);
    const char *version = strchr(found, ' ');
    keep_parts = *record && *record != ' ' && !strcmp(found, record);
    keep_files = *record && version && !strcmp(version, strchr(record, ' '));
    for (size_t i = 0; i < count; i++) {
        const entry *one = &entries[i];
        if (!keep_parts)
            (void)out->remove(out->user, temp_format("%s.copy", one->to));
        if (!keep_files && !one->last && !one->finished)
            (void)out->remove(out->user, one->to);
    }
    for (size_t i = 0; i < count && !error && !keep_files; i++)
        if (entries[i].last)
            error = out->sync_dir(out->user, path_parent(entries[i].to));
    if (!error && !keep_parts)
        error = out->truncate(out->user, record_file, 0);
    if (!error && !keep_parts)
        error = format_write_all(out, record_file, 0, record, strlen(record));
    must(bags_fail_io(out, error, record_path, "write", &failure));
    on_failure = NULL;
    free(record);
    free(found);
}

/* ---- copying a file; failures are returned as errors ---- */

static void advance(void *user, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&mutex);
    bytes_done += bytes;
    progress_show("copying", "MB", bytes_done, bytes_total, bytes_done >> 20);
    pthread_mutex_unlock(&mutex);
}

/* Request the bytes that follow `from` (or `*requested`) in a remote file. The fewer
 * files are being copied, the more is requested for each. Files that have not started
 * also count, to keep the total within the limit. Returns how many bytes to read at
 * once. */
static size_t request_ahead(
    const entry *one, void *file, uint64_t from, uint64_t *requested) {
    pthread_mutex_lock(&mutex);
    size_t files = files_left < thread_count ? files_left : thread_count;
    pthread_mutex_unlock(&mutex);
    size_t window = files ? COPY_AHEAD / files : COPY_AHEAD;
    if (window > bytes_total / 16) /* a kill then loses only a small part */
        window = (size_t)(bytes_total / 16);
    window = window > COPY_LEAST ? window : COPY_LEAST;
    size_t size = window < COPY_SIZE ? window : COPY_SIZE;
    while (in->read_many && *requested < one->size && *requested < from + window) {
        bags_io_read read = {file, *requested, NULL, size, 0};
        in->read_many(in->user, &read, 1);
        *requested += size;
    }
    return size;
}

/* Copy the bytes that follow `at` to a new file, or, with `compare`, check that it
 * already contains them. `data` has room for 2 * COPY_SIZE bytes. */
static bags_code pass_bytes_in(unsigned char *data, const entry *one, uint64_t at,
    void *from, void *to, bool compare, bool *same, bags_error *err) {
    unsigned char *written = data + COPY_SIZE;
    uint64_t requested = at;
    *same = true;
    while (at < one->size && *same) {
        size_t size = request_ahead(one, from, at, &requested);
        size = one->size - at < size ? (size_t)(one->size - at) : size;
        size_t other = size;
        FORMAT_TRY(bags_read(in, from, one->from, at, data, size, err));
        int error = compare ? read_all(out, to, at, written, &other)
                            : format_write_all(out, to, at, data, size);
        *same = !compare || (size == other && !memcmp(data, written, size));
        FORMAT_TRY(bags_fail_io(out, error, one->to, compare ? "read" : "write", err));
        at += size;
        if (!compare)
            advance(NULL, size);
    }
    return format_check_identity(in, from, one->from, &one->identity, err);
}

static bags_code pass_bytes(const entry *one, uint64_t at, void *from, void *to,
    bool compare, bool *same, bags_error *err) {
    unsigned char *data = (unsigned char *)malloc(2 * COPY_SIZE);
    if (!data)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = pass_bytes_in(data, one, at, from, to, compare, same, err);
    free(data);
    return code;
}

/* Compare finished files with the source. A server's ETag or the copied version is
 * compared if that suffices; otherwise every byte. */
static bags_code compare_file(const entry *one, bool *same, bags_error *err) {
    void *from = NULL, *to = NULL;
    uint64_t size = 0;
    if (path_is_remote(one->from)) {
        bags_code code = object_same(one->from, out, one->to, same, err);
        *same = *same || (!code && is_marked(one));
        if (code || *same)
            return code;
    }
    int error = out->open(out->user, one->to, BAGS_IO_READ, &to);
    if (!error)
        error = out->size(out->user, to, &size);
    bags_code code = bags_fail_io(out, error, one->to, "open", err);
    if (!code && size == one->size) {
        error = in->open(in->user, one->from, BAGS_IO_READ, &from);
        code = error ? bags_fail_io(in, error, one->from, "open", err)
                     : pass_bytes(one, 0, from, to, true, same, err);
    }
    if (to)
        out->close(out->user, to);
    if (from)
        in->close(in->user, from);
    return code;
}

static bags_code is_same(const entry *one, bool *exists, bool *same, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = out->kind(out->user, one->to, &kind);
    *same = false;
    *exists = kind != BAGS_PATH_NONE;
    if (error)
        return bags_fail_io(out, error, one->to, "open", err);
    if (kind != BAGS_PATH_FILE)
        return BAGS_OK;
    if (to_url) {
        bags_code code = object_same(one->to, in, one->from, same, err);
        if (code || *same || !one->finished)
            return code;
    }
    if (one->finished)
        return compare_file(one, same, err);
    *same = true; /* start_record kept it */
    return BAGS_OK;
}

/* Append to NAME.copy, and sync it to stable storage. The caller closes both files. */
static bags_code write_partial(
    const entry *one, const char *partial, void **from, void **to, bags_error *err) {
    uint64_t start = 0;
    bool same;
    int error = in->open(in->user, one->from, BAGS_IO_READ, from);
    FORMAT_TRY(bags_fail_io(in, error, one->from, "open", err));
    error = out->open(out->user, partial, BAGS_IO_WRITE, to);
    if (error == ENOENT)
        error = out->open(out->user, partial, BAGS_IO_CREATE, to);
    if (!error)
        error = out->size(out->user, *to, &start);
    FORMAT_TRY(bags_fail_io(out, error, partial, "create", err));
    advance(NULL, start);
    FORMAT_TRY(pass_bytes(one, start, *from, *to, false, &same, err));
    mark_version(one, partial);
    return bags_fail_io(out, out->sync(out->user, *to), partial, "sync", err);
}

/* Give the file its name once its bytes are on stable storage. A last file never
 * replaces an existing one. */
static bags_code write_file(const entry *one, bags_error *err) {
    char *partial = string_format("%s.copy", one->to);
    void *from = NULL, *to = NULL;
    int error = 0;
    bags_code code = write_partial(one, partial, &from, &to, err);
    if (to && (error = out->close(out->user, to)) && !code)
        code = bags_fail_io(out, error, partial, "close", err);
    if (from)
        in->close(in->user, from);
    if (!code && one->last && publish_file(partial, one->to))
        code = bags_fail_io(out, errno, one->to, "create", err);
    else if (!code && !one->last)
        code = bags_fail_io(
            out, out->rename(out->user, partial, one->to), one->to, "create", err);
    if (code && code != BAGS_ERROR_IO)
        (void)out->remove(out->user, partial);
    free(partial);
    return code;
}

static bags_code fail_different(const entry *one, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: already exists with different content; remove the old copy, or write to "
        "a new path",
        bags_path_tail(one->to));
}

/* If a process was killed in publish_file, the last file still has a second name.
 * Remove it. Any other file with this name, such as the user's own copy, stays. */
static void remove_other_name(const entry *one) {
    char *partial = string_format("%s.copy", one->to);
    bags_identity to, other;
    if (out->identify && !out->identify(out->user, NULL, one->to, &to) &&
        !out->identify(out->user, NULL, partial, &other) && !to.link && !other.link &&
        format_is_same(&to, &other))
        (void)out->remove(out->user, partial);
    free(partial);
}

static bags_code copy_entry(const entry *one, bags_error *err) {
    bool exists = false, same = false;
    FORMAT_TRY(is_same(one, &exists, &same, err));
    if (!same && one->finished && exists && !one->index)
        return fail_different(one, err);
    if (!same)
        FORMAT_TRY(to_url ? object_upload(one->to, in, one->from, advance, err)
                          : write_file(one, err));
    if (same)
        advance(NULL, one->size);
    if (same && one->last && !to_url)
        remove_other_name(one);
    pthread_mutex_lock(&mutex);
    files_kept += same;
    files_copied += !same;
    pthread_mutex_unlock(&mutex);
    return BAGS_OK;
}

/* Check two things before anything is written. Nothing may be added to a finished
 * dataset with a different spec, since all shards must have the same one. And files
 * left by an interrupted copy of another dataset would become part of this one, and
 * readers would report them as damage. */
static void check_entries(void) {
    for (size_t i = 0; i < count; i++) {
        const entry *one = &entries[i];
        bool exists = false, same = true;
        if (one->last && one->finished)
            must(is_same(one, &exists, &same, &failure));
        if (!same)
            must(fail_different(one, &failure));
        if (one->missing && !one->finished && path_kind(one->to) != BAGS_PATH_NONE)
            fail(BAGS_ERROR_EXISTS,
                "%s: already exists, but the source has no such file; "
                "remove the old copy, or write to a new path",
                one->to);
    }
}

/* ---- the threads ---- */

static void *work(void *user) {
    bags_error err;
    (void)user;
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (next_entry < count &&
               (entries[next_entry].phase != now || entries[next_entry].missing))
            next_entry++;
        size_t i = fault.code ? count : next_entry;
        next_entry += i < count;
        pthread_mutex_unlock(&mutex);
        if (i >= count)
            return NULL;
        bags_code code = copy_entry(&entries[i], &err);
        pthread_mutex_lock(&mutex);
        files_left--;
        if (code && !fault.code)
            fault = err;
        pthread_mutex_unlock(&mutex);
    }
}

static void copy_phase(int next, size_t threads) {
    pthread_t others[MAX_THREADS];
    size_t started = 0;
    now = next;
    next_entry = 0;
    thread_count = threads;
    for (size_t i = 0; i < count; i++)
        files_left += entries[i].phase == now && !entries[i].missing;
    if (threads > files_left)
        threads = files_left;
    while (started + 1 < threads && !pthread_create(&others[started], NULL, work, NULL))
        started++;
    work(NULL);
    while (started > 0)
        pthread_join(others[--started], NULL);
    if (!fault.code)
        return;
    failure = fault;
    if (fault.code != BAGS_ERROR_EXISTS && fault.system != ENAMETOOLONG)
        failure_suffix("; call it again to continue");
    bar_hide();
    die();
}

/* All files must have the version that was opened. */
static void check_source(void) {
    for (size_t i = 0; in->expect && i < count; i++)
        in->expect(in->user, entries[i].from);
    for (size_t i = 0; i < count; i++)
        if (!entries[i].missing)
            must(format_check_identity(
                in, NULL, entries[i].from, &entries[i].identity, &failure));
}

/* Copy the referenced blobs to a new dataset. An interrupted copy cannot be
 * continued. */
static int copy_compact(bags_path_kind kind) {
    bags_derive_report made;
    if (kind != BAGS_PATH_DIRECTORY)
        usage("--compact: %s is a Bag, without datapoints", source);
    if (to_url)
        usage("--compact: %s must be a local path; copy the result to the URL", target);
    interrupt_leaves("nothing is kept", "start again with", NULL);
    dataset_compact(source, target, false, &made);
    print("%s: copied %s in %s, %s\n", target, counted(made.length, "datapoint"),
        counted(made.shards, "shard"), counted(made.made, "byte"));
    return 0;
}

static int run(char **operands) {
    no_read_ahead = !write_compact; /* request_ahead does it */
    options_exclude("compact|whole", NULL);
    const char *shown = path_without_secrets(operands[1]);
    source = path_without_secrets(operands[0]);
    target = shown;
    in = io_for_path(source);
    out = io_for_path(target);
    to_url = path_is_remote(target);
    if (!*target)
        usage("the name of the copy is empty");
    if (to_url && strncmp(target, "s3://", 5) != 0)
        usage("%s: only local paths and s3:// can be written", target);
    if (!to_url)
        path_must_be_outside(target);
    interrupt_leaves("what was copied is kept", "continue with", NULL);
    bags_path_kind kind = path_kind(source);
    if (kind == BAGS_PATH_NONE)
        must(bags_fail_io(in, ENOENT, source, "open", &failure));
    bool remote = to_url || path_is_remote(source);
    bool archived = path_is_archived(source);
    if (kind == BAGS_PATH_DIRECTORY &&
        (has_ending(target, ".zip") || has_ending(target, ".tar")))
        usage("%s: the copy of a dataset is a directory; %s", target,
            archived ? "copy the archive itself, as any file"
                     : "`bags zip` makes a zip file of it");
    if (write_compact)
        return copy_compact(kind);
    if (kind == BAGS_PATH_DIRECTORY)
        plan_dataset();
    else
        plan_bag();
    for (size_t i = 0; i < count; i++) {
        if (!to_url)
            directory_make(path_parent(entries[i].to));
        else if (out->expect)
            out->expect(out->user, entries[i].to);
    }
    bool finished = find_finished();
    check_entries();
    if (!to_url && !finished)
        start_record();
    for (int next = PHASE_BAGS; next < PHASES; next++) {
        copy_phase(next, to_url ? UPLOAD_THREADS : remote ? MAX_THREADS : 2);
        if (next == PHASE_BAGS)
            check_source();
    }
    unlock_target();
    progress_end();
    print("%s: %s copied%s, %ju already equal, %ju bytes\n", shown,
        counted(files_copied, "file"), archived ? " out of the archive" : "",
        (uintmax_t)files_kept, (uintmax_t)bytes_total);
    for (size_t i = 0; i < count; i++) {
        free(entries[i].from);
        free(entries[i].to);
    }
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
    "not older than the dataset. FROM is a path, an http:// or https:// URL, "
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
