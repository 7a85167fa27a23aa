/*
 * copy.c - copies a finished dataset or a Bag to a local directory or an object store.
 * No library except the system's threads.
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
#include "gate.h"

#include "blocks.h"
#include "files.h"
#include "place.h"
#include "publish.h"
#include "random.h"
#include "storage.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef _WIN32
#include <fcntl.h>
#include <sys/stat.h>
#endif

#define COPY_THREADS 32
#define COPY_UPLOADS 8 /* each may hold a part of 64 MiB */
/* Bytes read at once, and bytes requested in advance for all files together. After a
 * kill, requested bytes that were not written yet are requested again. */
#define COPY_SIZE ((size_t)1 << 20)
#define COPY_AHEAD ((size_t)16 << 20)
#define COPY_LEAST ((size_t)256 << 10) /* per file */
#define COPY_EXPECTED 64               /* shards that are looked up at once */
#define COPY_PAUSE 0.1                 /* seconds between calls of `progress` */
#define COPY_RECORD 128                /* most bytes of a record */

/* The phase in which a file is copied. */
enum { COPY_BAGS, COPY_SPECS, COPY_LAST, COPY_PHASES };

typedef struct copy_entry {
    const char *from, *to;
    uint64_t size;
    bags_identity identity;
    int phase;
    bool last;     /* a spec.json, or the .bag of a Bag */
    bool finished; /* the last file of its shard exists at the destination */
    bool missing;  /* not copied; the copy must not have it */
    bool index;    /* an existing copy may be replaced */
} copy_entry;

typedef struct copying {
    const bags_copy_options *options;
    const char *source, *target; /* paths of datasets, or of Bags without .bag */
    const bags_io *in, *out;
    bool to_url;
    format_block *blocks;
    bags_buffer memory, found; /* the entries, and shards of the destination */
    copy_entry *entries;
    size_t count;
    const char *record_path;
    void *record; /* the open record; NULL: not locked */
    bool recorded;
    bool keep_parts; /* partial files have this version */
    bool keep_files; /* complete files have this version */
    uint64_t total;
    /* Shared by the threads: */
    gate lock;
    int now;
    size_t next, files_left, threads, running;
    bool stopped; /* by `progress` */
    uint64_t done, copied, kept;
    bags_error fault;
} copying;

/* ---- paths ---- */

/* Join texts. The result is freed with the copying. NULL: out of memory. */
static char *copy_join(copying *c, const char *a, const char *b, bags_error *err) {
    size_t size = strlen(a) + strlen(b) + 1;
    char *out =
        (char *)format_block_add(&c->blocks, c->options->env.allocator, size, 1, err);
    if (out)
        (void)snprintf(out, size, "%s%s", a, b);
    return out;
}

static bool copy_is_separator(char c) {
#ifdef _WIN32
    return c == '/' || c == '\\';
#else
    return c == '/';
#endif
}

/* Write the parent directory of a path to `out`. */
static bags_code copy_parent(const char *path, char out[FORMAT_PATH], bags_error *err) {
    size_t size = strlen(path);
    if (size >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(path));
    memcpy(out, path, size + 1);
    while (size > 0 && !copy_is_separator(out[size - 1]))
        size--;
    out[size > 1 ? size - 1 : size] = 0;
    if (!size)
        memcpy(out, ".", 2);
    return BAGS_OK;
}

/* Create the parent directories of a local path. */
static bags_code copy_make_parents(copying *c, const char *path, bags_error *err) {
    char parent[FORMAT_PATH];
    FORMAT_TRY(copy_parent(path, parent, err));
    for (size_t i = 1, size = strlen(parent); i <= size; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        char end = parent[i];
        if (end && !copy_is_separator(end))
            continue;
        parent[i] = 0;
        int error = c->out->make_dir(c->out->user, parent);
        if (error &&
            (c->out->kind(c->out->user, parent, &kind) || kind != BAGS_PATH_DIRECTORY))
            return bags_fail_io(c->out, error == EEXIST ? ENOTDIR : error, parent,
                "create the directory", err);
        parent[i] = end;
    }
    return BAGS_OK;
}

static bags_code copy_kind(
    const bags_io *io, const char *path, bags_path_kind *kind, bags_error *err) {
    *kind = BAGS_PATH_NONE;
    return bags_fail_io(io, io->kind(io->user, path, kind), path, "open", err);
}

/* *found: a file of the destination exists. */
static bags_code copy_has(
    copying *c, const char *directory, const char *name, bool *found, bags_error *err) {
    char *path = copy_join(c, directory, name, err);
    bags_path_kind kind;
    if (!path)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(copy_kind(c->out, path, &kind, err));
    *found = kind == BAGS_PATH_FILE;
    return BAGS_OK;
}

/* ---- collecting the files ---- */

/* Add a file of the dataset. Any file but the last may be missing. With `omit`, it is
 * not copied. */
static bags_code copy_add(
    copying *c, const char *name, bool last, bool omit, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_FILE;
    copy_entry one;
    memset(&one, 0, sizeof one);
    one.last = last;
    one.phase = !last ? COPY_BAGS : c->count ? COPY_SPECS : COPY_LAST; /* the first */
    one.from = copy_join(c, c->source, name, err);
    one.to = one.from ? copy_join(c, c->target, name, err) : NULL;
    if (!one.to)
        return BAGS_ERROR_MEMORY;
    if (!last && !omit)
        FORMAT_TRY(copy_kind(c->in, one.from, &kind, err));
    one.missing = omit || kind != BAGS_PATH_FILE;
    if (!one.missing)
        FORMAT_TRY(format_measure(c->in, one.from, &one.size, &one.identity, err));
    FORMAT_TRY(bags_buffer_reserve(&c->memory, (c->count + 1) * sizeof one, err));
    c->entries = (copy_entry *)(void *)c->memory.data;
    c->entries[c->count++] = one;
    c->total += one.size;
    return BAGS_OK;
}

static void copy_expect_shard(copying *c, const bags_reader *reader, size_t shard) {
    char name[600], path[FORMAT_PATH];
    for (size_t i = 0; c->in->expect && format_file_name(reader, shard, &i, name);)
        if (!format_path(path, c->source, name, "", NULL))
            c->in->expect(c->in->user, path);
}

static bags_code copy_add_shard(
    copying *c, const bags_reader *reader, size_t shard, bags_error *err) {
    char name[1 + 600] = "/";
    for (size_t i = 0, next = 0; format_file_name(reader, shard, &next, name + 1);
         i = next)
        FORMAT_TRY(copy_add(c, name, i == 0, false, err));
    return BAGS_OK;
}

/* The first shard has the indexes. Indexes contain the times of the source's files, so
 * they would not match a local copy. */
static bags_code copy_add_indexes(copying *c, bags_error *err) {
    for (size_t i = 0; i < c->options->files_count; i++) {
        const char *name = copy_join(c, "/", c->options->files[i], err);
        if (!name)
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(copy_add(c, name, false, false, err));
        c->entries[c->count - 1].index = true;
    }
    return BAGS_OK;
}

/* ---- the destination ---- */

static void copy_unlock(copying *c, bool remove_record) {
    if (c->record && remove_record)
        (void)c->out->remove(c->out->user, c->record_path);
    if (c->record)
        (void)c->out->close(c->out->user, c->record);
    c->record = NULL;
}

static bags_code copy_lock(copying *c, const char *name, bags_error *err) {
    if (c->to_url)
        return BAGS_OK;
    const char *record = copy_join(c, name, ".copied", err);
    c->record_path = record ? copy_join(c, c->target, record, err) : NULL;
    if (!c->record_path)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(copy_make_parents(c, c->record_path, err));
    return format_open_locked(
        c->out, c->record_path, c->target, "copy", &c->record, err);
}

/* Never replace the files of a crashed or running writer: bags_recover can still finish
 * them. The reader's error states whether the writer is running. */
static bags_code copy_check_not_begun(
    copying *c, const char *directory, bags_error *err) {
    bool partial = false, finished = false;
    bags_reader_options options;
    FORMAT_TRY(copy_has(c, directory, "/spec.json.partial", &partial, err));
    if (partial)
        FORMAT_TRY(copy_has(c, directory, "/spec.json", &finished, err));
    if (!partial || finished)
        return BAGS_OK;
    memset(&options, 0, sizeof options);
    options.env.io = c->out;
    bags_reader *reader = bags_reader_open(directory, &options, err);
    bags_reader_close(reader);
    return reader ? BAGS_OK
                  : bags_prefix(err, err->code,
                        "%s: already has an unfinished dataset: ", c->target);
}

typedef struct copy_shards {
    copying *c;
    bags_error *err;
    size_t count;
} copy_shards;

/* Called for each entry of a directory. A shard's name is a number. */
static int copy_see_shard(void *user, const char *name) {
    copy_shards *list = (copy_shards *)user;
    bags_buffer *found = &list->c->found;
    size_t digits = strlen(name);
    bags_shard shard;
    if (!digits || name[strspn(name, "0123456789")])
        return 0;
    memset(&shard, 0, sizeof shard);
    shard.number = strtoull(name, NULL, 10);
    shard.digits = (unsigned)digits;
    if (bags_buffer_reserve(found, (list->count + 1) * sizeof shard, list->err))
        return ENOMEM;
    ((bags_shard *)(void *)found->data)[list->count++] = shard;
    return 0;
}

static int copy_compare_shards(const void *a, const void *b) {
    uint64_t one = ((const bags_shard *)a)->number;
    uint64_t two = ((const bags_shard *)b)->number;
    return one < two ? -1 : one > two;
}

/* List all shards of the destination, also shards that no reader accepts. */
static bags_code copy_list_shards(copying *c, size_t *count, bags_error *err) {
    copy_shards list = {c, err, 0};
    bags_path_kind kind;
    FORMAT_TRY(copy_kind(c->out, c->target, &kind, err));
    int error = kind == BAGS_PATH_DIRECTORY
                    ? c->out->list(c->out->user, c->target, copy_see_shard, &list)
                    : 0;
    if (error && error != ENOENT)
        return bags_fail_io(c->out, error, c->target, "list", err);
    if (list.count)
        qsort(c->found.data, list.count, sizeof(bags_shard), copy_compare_shards);
    *count = list.count;
    return BAGS_OK;
}

/* If one directory contained two datasets, readers would see only one, or a mixture. */
static bags_code copy_check_destination(
    copying *c, const bags_shard *shards, size_t shards_count, bags_error *err) {
    char directory[FORMAT_PATH];
    size_t count = 0;
    bool unsharded = false;
    FORMAT_TRY(copy_list_shards(c, &count, err));
    const bags_shard *found = (const bags_shard *)(const void *)c->found.data;
    if (!c->to_url)
        FORMAT_TRY(copy_check_not_begun(c, c->target, err));
    if (shards->digits)
        FORMAT_TRY(copy_has(c, c->target, "/spec.json", &unsharded, err));
    if (unsharded)
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: already has another, unsharded dataset", c->target);
    for (size_t i = 0, k = 0; i < count; i++) {
        FORMAT_TRY(bags_shard_path(c->target, &found[i], directory, FORMAT_PATH, err));
        if (!c->to_url)
            FORMAT_TRY(copy_check_not_begun(c, directory, err));
        while (k < shards_count && shards[k].number < found[i].number)
            k++;
        if (k == shards_count || shards[k].number != found[i].number ||
            shards[k].digits != found[i].digits)
            return bags_fail(err, BAGS_ERROR_EXISTS,
                "%s: already has another dataset (shard %0*" PRIu64 " is not in the "
                "source)",
                c->target, (int)found[i].digits, found[i].number);
    }
    return BAGS_OK;
}

/* ---- sources ---- */

static bags_code copy_plan_shards(
    copying *c, const bags_reader *reader, bags_error *err) {
    bags_env env = c->options->env;
    bags_info about;
    size_t count;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    env.io = c->in;
    for (size_t i = 0, expected = 0; i < count; i++) {
        for (; expected < count && expected < i + COPY_EXPECTED; expected++)
            copy_expect_shard(c, reader, expected);
        FORMAT_TRY(copy_add_shard(c, reader, i, err));
        if (i == 0 && c->to_url)
            FORMAT_TRY(copy_add_indexes(c, err));
    }
    /* Opens every Bag. All files added here must have the version that the reader
     * opened. */
    FORMAT_TRY(bags_reader_info(reader, &about, NULL, err));
    if (!c->options->whole)
        FORMAT_TRY(format_check_referenced(reader, &env, err));
    FORMAT_TRY(copy_lock(c, "/spec.json", err));
    return copy_check_destination(c, shards, count, err);
}

static bags_code copy_plan_dataset(copying *c, bags_error *err) {
    bags_reader_options options;
    size_t size = strlen(c->source);
    if (!strncmp(c->target, c->source, size) && copy_is_separator(c->target[size]))
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: is in the directory of the dataset %s", c->target, c->source);
    memset(&options, 0, sizeof options);
    options.env = c->options->env;
    options.env.io = c->in;
    bags_reader *reader = bags_reader_open(c->source, &options, err);
    if (!reader)
        return err->code;
    bags_code code = copy_plan_shards(c, reader, err);
    bags_reader_close(reader);
    return code;
}

/* If the Bag belongs to a dataset, its checksums are omitted: they cover its name and
 * the dataset's other Bags, so they would not match a copy outside the dataset. */
static bags_code copy_plan_bag(copying *c, bags_error *err) {
    char parent[FORMAT_PATH];
    bag_reader_options options;
    bags_path_kind kind;
    size_t from = strlen(c->source), to = strlen(c->target);
    memset(&options, 0, sizeof options);
    options.env = c->options->env;
    options.env.io = c->in;
    options.no_mmap = true;
    options.allow_empty_file = true;
    if (!format_ends(c->source, from, ".bag") || !format_ends(c->target, to, ".bag"))
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "the names of both Bags must end in .bag");
    bag_reader *bag = bag_reader_open(c->source, &options, err);
    if (!bag)
        return err->code;
    bag_reader_close(bag);
    FORMAT_TRY(copy_parent(c->source, parent, err));
    char *spec = copy_join(c, parent, "/spec.json", err);
    if (!spec)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(copy_kind(c->in, spec, &kind, err));
    char *source = copy_join(c, c->source, "", err);
    char *target = source ? copy_join(c, c->target, "", err) : NULL;
    if (!target)
        return BAGS_ERROR_MEMORY;
    source[from - 4] = target[to - 4] = 0;
    c->source = source;
    c->target = target;
    FORMAT_TRY(copy_add(c, ".bag", true, false, err));
    FORMAT_TRY(copy_add(c, ".idx", false, false, err));
    FORMAT_TRY(copy_add(c, ".dict", false, false, err));
    FORMAT_TRY(copy_add(c, ".crc", false, kind == BAGS_PATH_FILE, err));
    return copy_lock(c, ".bag", err);
}

/* Find out which shards are finished: a shard's last file comes before its other files.
 * *all: all of them are. */
static bags_code copy_find_finished(copying *c, bool *all, bags_error *err) {
    bool finished = false;
    *all = true;
    for (size_t i = 0; i < c->count; i++) {
        bags_path_kind kind;
        if (c->entries[i].last) {
            FORMAT_TRY(copy_kind(c->out, c->entries[i].to, &kind, err));
            finished = kind == BAGS_PATH_FILE;
        }
        c->entries[i].finished = finished;
        *all = *all && finished;
    }
    return BAGS_OK;
}

/* ---- versions ---- */

/* False if nothing identifies a file's version. (For a server, the inode and time are
 * hashes. They are equal if it sends neither an ETag nor a Last-Modified.) */
static bool copy_has_version(const copying *c, const copy_entry *one) {
    return c->in->identify && one->identity.inode != one->identity.time;
}

/* Continue a hash with a source file and its version. */
static uint64_t copy_hash(uint64_t hash, const copy_entry *one) {
    const bags_identity *from = &one->identity;
    uint64_t numbers[4];
    numbers[0] = from->device;
    numbers[1] = from->inode;
    numbers[2] = from->time;
    numbers[3] = from->size;
    hash = format_hash(hash, one->from, strlen(one->from) + 1);
    return format_hash(hash, numbers, sizeof numbers);
}

#define COPY_SECOND 1000000000

/* The nanoseconds that mark a file as a copy of this version. */
static uint64_t copy_mark(const copy_entry *one) {
    return format_mix(copy_hash(0, one)) % COPY_SECOND;
}

/* Set the modification time of a file. Windows's identity of a file has the time of its
 * creation instead. */
static void copy_set_time(const char *path, uint64_t nanoseconds) {
#ifdef _WIN32
    (void)path, (void)nanoseconds;
#else
    struct timespec times[2];
    memset(times, 0, sizeof times);
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_sec = (time_t)(nanoseconds / COPY_SECOND);
    times[1].tv_nsec = (long)(nanoseconds % COPY_SECOND);
    (void)utimensat(AT_FDCWD, path, times, 0);
#endif
}

/* Mark a complete file with the version of the server's file. If that fails, the next
 * copy compares the file. */
static void copy_mark_version(
    const copying *c, const copy_entry *one, const char *path) {
    bags_identity found;
    if (c->options->from_objects && copy_has_version(c, one) && c->out->identify &&
        !c->out->identify(c->out->user, NULL, path, &found))
        copy_set_time(path, found.time - found.time % COPY_SECOND + copy_mark(one));
}

/* True if a file is marked with this version. */
static bool copy_is_marked(const copying *c, const copy_entry *one) {
    bags_identity found;
    return !c->to_url && copy_has_version(c, one) && c->out->identify &&
           !c->out->identify(c->out->user, NULL, one->to, &found) &&
           found.size == one->size && found.time % COPY_SECOND == copy_mark(one);
}

/* ---- the record ---- */

/* Get the identity of the system's boot; "" if it is unknown. */
static void copy_boot(char out[COPY_RECORD / 2]) {
    const bags_io *io = bags_io_local();
    void *file = NULL;
    size_t size = COPY_RECORD / 2 - 1;
    out[0] = 0;
    if (io->open(io->user, "/proc/sys/kernel/random/boot_id", BAGS_IO_READ, &file))
        return;
    if (format_read_some(io, file, 0, out, &size))
        size = 0;
    (void)io->close(io->user, file);
    out[size] = 0;
    out[strcspn(out, " \n")] = 0;
}

/* Write the record for the source, or "" if nothing identifies its version. */
static void copy_make_record(const copying *c, char out[COPY_RECORD]) {
    char boot[COPY_RECORD / 2];
    uint64_t hash = 0;
    out[0] = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (!c->entries[i].missing && !copy_has_version(c, &c->entries[i]))
            return;
        hash = copy_hash(hash, &c->entries[i]);
    }
    copy_boot(boot);
    (void)snprintf(out, COPY_RECORD, "%s %016" PRIx64 "\n", boot, hash);
}

/* Synchronize the directories of all shards. Returns 0, or an errno value. */
static int copy_sync_directories(const copying *c) {
    char parent[FORMAT_PATH];
    int error = 0;
    for (size_t i = 0; i < c->count && !error; i++)
        if (c->entries[i].last && !copy_parent(c->entries[i].to, parent, NULL))
            error = c->out->sync_dir(c->out->user, parent);
    return error;
}

/* Decide which existing files have this version, and remove all others before the
 * record is written. Even after a power failure, a record never describes other
 * files. */
static bags_code copy_start_record(copying *c, bags_error *err) {
    char record[COPY_RECORD], found[COPY_RECORD];
    memset(found, 0, sizeof found);
    copy_make_record(c, record);
    size_t size = strlen(record) + 1;
    int error = format_read_some(c->out, c->record, 0, found, &size);
    const char *version = strchr(found, ' ');
    c->keep_parts = *record && *record != ' ' && !strcmp(found, record);
    c->keep_files = *record && version && !strcmp(version, strchr(record, ' '));
    for (size_t i = 0; i < c->count; i++) {
        const copy_entry *one = &c->entries[i];
        char partial[FORMAT_PATH];
        int length = snprintf(partial, sizeof partial, "%s.copy", one->to);
        if (!c->keep_parts && length > 0 && length < FORMAT_PATH)
            (void)c->out->remove(c->out->user, partial);
        if (!c->keep_files && !one->last && !one->finished)
            (void)c->out->remove(c->out->user, one->to);
    }
    if (!error && !c->keep_files)
        error = copy_sync_directories(c);
    if (!error && !c->keep_parts)
        error = c->out->truncate(c->out->user, c->record, 0);
    if (!error && !c->keep_parts)
        error = format_write_all(c->out, c->record, 0, record, strlen(record));
    FORMAT_TRY(bags_fail_io(c->out, error, c->record_path, "write", err));
    c->recorded = true;
    return BAGS_OK;
}

/* ---- copying a file ---- */

static void copy_advance(void *user, uint64_t bytes) {
    copying *c = (copying *)user;
    gate_lock(&c->lock);
    c->done += bytes;
    gate_unlock(&c->lock);
}

/* Request the bytes that follow `from` (or `*requested`) in a remote file. The fewer
 * files are being copied, the more is requested for each. Files that have not started
 * also count, to keep the total within the limit. Returns how many bytes to read at
 * once; 0 if the copy was stopped. */
static size_t copy_request(
    copying *c, const copy_entry *one, void *file, uint64_t from, uint64_t *requested) {
    gate_lock(&c->lock);
    size_t files = c->files_left < c->threads ? c->files_left : c->threads;
    bool stopped = c->stopped;
    gate_unlock(&c->lock);
    size_t window = files ? COPY_AHEAD / files : COPY_AHEAD;
    if (window > c->total / 16) /* a kill then loses only a small part */
        window = (size_t)(c->total / 16);
    window = window > COPY_LEAST ? window : COPY_LEAST;
    size_t size = window < COPY_SIZE ? window : COPY_SIZE;
    while (!stopped && c->in->read_many && *requested < one->size &&
           *requested < from + window) {
        bags_io_read read = {file, *requested, NULL, size, 0};
        c->in->read_many(c->in->user, &read, 1);
        *requested += size;
    }
    return stopped ? 0 : size;
}

static bags_code copy_interrupted(const copying *c, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_IO, "%s: interrupted", bags_path_tail(c->target));
}

/* Copy the bytes that follow `at` to a new file, or, with `compare`, check that it
 * already contains them. `data` has room for 2 * COPY_SIZE bytes. */
static bags_code copy_pass_in(copying *c, unsigned char *data, const copy_entry *one,
    uint64_t at, void *from, void *to, bool compare, bool *same, bags_error *err) {
    unsigned char *written = data + COPY_SIZE;
    uint64_t requested = at;
    *same = true;
    while (at < one->size && *same) {
        size_t size = copy_request(c, one, from, at, &requested);
        if (!size)
            return copy_interrupted(c, err);
        size = one->size - at < size ? (size_t)(one->size - at) : size;
        size_t other = size;
        FORMAT_TRY(bags_read(c->in, from, one->from, at, data, size, err));
        int error = compare ? format_read_some(c->out, to, at, written, &other)
                            : format_write_all(c->out, to, at, data, size);
        *same = !compare || (size == other && !memcmp(data, written, size));
        FORMAT_TRY(
            bags_fail_io(c->out, error, one->to, compare ? "read" : "write", err));
        at += size;
        if (!compare)
            copy_advance(c, size);
    }
    return format_check_identity(c->in, from, one->from, &one->identity, err);
}

static bags_code copy_pass(copying *c, const copy_entry *one, uint64_t at, void *from,
    void *to, bool compare, bool *same, bags_error *err) {
    unsigned char *data = (unsigned char *)malloc(2 * COPY_SIZE);
    if (!data)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = copy_pass_in(c, data, one, at, from, to, compare, same, err);
    free(data);
    return code;
}

/* Compare finished files with the source. A server's ETag or the copied version is
 * compared if that suffices; otherwise every byte. */
static bags_code copy_compare(
    copying *c, const copy_entry *one, bool *same, bags_error *err) {
    const bags_copy_objects *objects = c->options->from_objects;
    void *from = NULL, *to = NULL;
    uint64_t size = 0;
    if (objects) {
        bags_code code =
            objects->same(objects->user, one->from, c->out, one->to, same, err);
        *same = *same || (!code && copy_is_marked(c, one));
        if (code || *same)
            return code;
    }
    int error = c->out->open(c->out->user, one->to, BAGS_IO_READ, &to);
    if (!error)
        error = c->out->size(c->out->user, to, &size);
    bags_code code = bags_fail_io(c->out, error, one->to, "open", err);
    if (!code && size == one->size) {
        error = c->in->open(c->in->user, one->from, BAGS_IO_READ, &from);
        code = error ? bags_fail_io(c->in, error, one->from, "open", err)
                     : copy_pass(c, one, 0, from, to, true, same, err);
    }
    if (to)
        c->out->close(c->out->user, to);
    if (from)
        c->in->close(c->in->user, from);
    return code;
}

static bags_code copy_is_same(
    copying *c, const copy_entry *one, bool *exists, bool *same, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    const bags_copy_objects *objects = c->options->to_objects;
    *same = false;
    FORMAT_TRY(copy_kind(c->out, one->to, &kind, err));
    *exists = kind != BAGS_PATH_NONE;
    if (kind != BAGS_PATH_FILE)
        return BAGS_OK;
    if (objects) {
        bags_code code =
            objects->same(objects->user, one->to, c->in, one->from, same, err);
        if (code || *same || !one->finished)
            return code;
    }
    if (one->finished)
        return copy_compare(c, one, same, err);
    *same = true; /* copy_start_record kept it */
    return BAGS_OK;
}

/* Append to NAME.copy, and sync it to stable storage. The caller closes both files. */
static bags_code copy_write_partial(copying *c, const copy_entry *one,
    const char *partial, void **from, void **to, bags_error *err) {
    uint64_t start = 0;
    bool same;
    int error = c->in->open(c->in->user, one->from, BAGS_IO_READ, from);
    FORMAT_TRY(bags_fail_io(c->in, error, one->from, "open", err));
    error = c->out->open(c->out->user, partial, BAGS_IO_WRITE, to);
    if (error == ENOENT)
        error = c->out->open(c->out->user, partial, BAGS_IO_CREATE, to);
    if (!error)
        error = c->out->size(c->out->user, *to, &start);
    FORMAT_TRY(bags_fail_io(c->out, error, partial, "create", err));
    copy_advance(c, start);
    FORMAT_TRY(copy_pass(c, one, start, *from, *to, false, &same, err));
    copy_mark_version(c, one, partial);
    return bags_fail_io(c->out, c->out->sync(c->out->user, *to), partial, "sync", err);
}

/* Give a complete new file its name; EEXIST if the name is taken. If the file system
 * has no links, the file is renamed instead. */
static int copy_publish(const bags_io *io, const char *from, const char *to) {
    int error = io->link ? io->link(io->user, from, to) : ENOSYS;
    if (error == EPERM || error == ENOTSUP || error == ENOSYS)
        return io->rename(io->user, from, to);
    (void)io->remove(io->user, from);
    return error;
}

/* Give the file its name once its bytes are on stable storage. A last file never
 * replaces an existing one. */
static bags_code copy_write(copying *c, const copy_entry *one, bags_error *err) {
    char partial[FORMAT_PATH];
    void *from = NULL, *to = NULL;
    int error = 0, size = snprintf(partial, sizeof partial, "%s.copy", one->to);
    if (size < 0 || size >= FORMAT_PATH)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(one->to));
    bags_code code = copy_write_partial(c, one, partial, &from, &to, err);
    if (to && (error = c->out->close(c->out->user, to)) && !code)
        code = bags_fail_io(c->out, error, partial, "close", err);
    if (from)
        c->in->close(c->in->user, from);
    if (!code) {
        error = one->last ? copy_publish(c->out, partial, one->to)
                          : c->out->rename(c->out->user, partial, one->to);
        code = bags_fail_io(c->out, error, one->to, "create", err);
    }
    if (code && code != BAGS_ERROR_IO)
        (void)c->out->remove(c->out->user, partial);
    return code;
}

static bags_code copy_fail_different(const copy_entry *one, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: already exists with different content; remove the old copy, or write to "
        "a new path",
        bags_path_tail(one->to));
}

/* If a process was killed in copy_publish, the last file still has a second name.
 * Remove it. Any other file with this name, such as the user's own copy, stays. */
static void copy_remove_other_name(const copying *c, const copy_entry *one) {
    char partial[FORMAT_PATH];
    bags_identity to, other;
    int size = snprintf(partial, sizeof partial, "%s.copy", one->to);
    if (size > 0 && size < FORMAT_PATH && c->out->identify &&
        !c->out->identify(c->out->user, NULL, one->to, &to) &&
        !c->out->identify(c->out->user, NULL, partial, &other) && !to.link &&
        !other.link && format_is_same(&to, &other))
        (void)c->out->remove(c->out->user, partial);
}

static bags_code copy_file(copying *c, const copy_entry *one, bags_error *err) {
    const bags_copy_objects *objects = c->options->to_objects;
    bool exists = false, same = false;
    FORMAT_TRY(copy_is_same(c, one, &exists, &same, err));
    if (!same && one->finished && exists && !one->index)
        return copy_fail_different(one, err);
    if (!same)
        FORMAT_TRY(objects ? objects->upload(objects->user, one->to, c->in, one->from,
                                 copy_advance, c, err)
                           : copy_write(c, one, err));
    if (same)
        copy_advance(c, one->size);
    if (same && one->last && !c->to_url)
        copy_remove_other_name(c, one);
    gate_lock(&c->lock);
    c->kept += same;
    c->copied += !same;
    gate_unlock(&c->lock);
    return BAGS_OK;
}

/* Check two things before anything is written. Nothing may be added to a finished
 * dataset with a different spec, since all shards must have the same one. And files
 * left by an interrupted copy of another dataset would become part of this one, and
 * readers would report them as damage. */
static bags_code copy_check_entries(copying *c, bags_error *err) {
    for (size_t i = 0; i < c->count; i++) {
        const copy_entry *one = &c->entries[i];
        bool exists = false, same = true;
        bags_path_kind kind = BAGS_PATH_NONE;
        if (one->last && one->finished)
            FORMAT_TRY(copy_is_same(c, one, &exists, &same, err));
        if (!same)
            return copy_fail_different(one, err);
        if (one->missing && !one->finished)
            FORMAT_TRY(copy_kind(c->out, one->to, &kind, err));
        if (kind != BAGS_PATH_NONE)
            return bags_fail(err, BAGS_ERROR_EXISTS,
                "%s: already exists, but the source has no such file; "
                "remove the old copy, or write to a new path",
                one->to);
    }
    return BAGS_OK;
}

/* ---- the threads ---- */

static gate_result GATE_CALL copy_work(void *user) {
    copying *c = (copying *)user;
    bags_error err;
    for (;;) {
        gate_lock(&c->lock);
        while (c->next < c->count &&
               (c->entries[c->next].phase != c->now || c->entries[c->next].missing))
            c->next++;
        size_t i = c->fault.code || c->stopped ? c->count : c->next;
        c->next += i < c->count;
        c->running -= i == c->count;
        if (i == c->count)
            gate_wake(&c->lock);
        gate_unlock(&c->lock);
        if (i == c->count)
            return 0;
        bags_code code = copy_file(c, &c->entries[i], &err);
        gate_lock(&c->lock);
        c->files_left--;
        if (code && !c->fault.code)
            c->fault = err;
        gate_unlock(&c->lock);
    }
}

/* Report the progress. Returns false if the copy was stopped. */
static bool copy_report(copying *c, uint64_t done) {
    if (!c->stopped && c->options->progress &&
        !c->options->progress(c->options->user, done, c->total)) {
        gate_lock(&c->lock);
        c->stopped = true;
        gate_unlock(&c->lock);
    }
    return !c->stopped;
}

/* Wait until all threads have ended. Meanwhile, the caller's thread reports the
 * progress. */
static void copy_wait(copying *c) {
    gate_lock(&c->lock);
    while (c->running) {
        gate_wait_seconds(&c->lock, COPY_PAUSE);
        uint64_t done = c->done;
        gate_unlock(&c->lock);
        (void)copy_report(c, done);
        gate_lock(&c->lock);
    }
    gate_unlock(&c->lock);
}

/* If the system cannot start a thread, the caller's thread does the work. */
static bags_code copy_phase(copying *c, int phase, size_t threads, bags_error *err) {
    gate_thread others[COPY_THREADS];
    size_t started = 0;
    c->now = phase;
    c->next = 0;
    c->threads = threads;
    c->files_left = 0;
    for (size_t i = 0; i < c->count; i++)
        c->files_left += c->entries[i].phase == phase && !c->entries[i].missing;
    if (threads > c->files_left)
        threads = c->files_left;
    c->running = threads;
    while (started < threads && gate_thread_start(&others[started], copy_work, c))
        started++;
    gate_lock(&c->lock);
    c->running -= threads - started;
    c->running += threads && !started;
    gate_unlock(&c->lock);
    if (threads && !started)
        (void)copy_work(c);
    copy_wait(c);
    while (started > 0)
        gate_thread_join(others[--started]);
    if (!c->fault.code)
        return c->stopped ? copy_interrupted(c, err) : BAGS_OK;
    *err = c->fault;
    if (!c->stopped && err->code != BAGS_ERROR_EXISTS && err->system != ENAMETOOLONG)
        (void)bags_suffix(err, "; call it again to continue");
    return err->code;
}

/* All files must have the version that was opened. */
static bags_code copy_check_source(const copying *c, bags_error *err) {
    for (size_t i = 0; c->in->expect && i < c->count; i++)
        c->in->expect(c->in->user, c->entries[i].from);
    for (size_t i = 0; i < c->count; i++)
        if (!c->entries[i].missing)
            FORMAT_TRY(format_check_identity(
                c->in, NULL, c->entries[i].from, &c->entries[i].identity, err));
    return BAGS_OK;
}

static bags_code copy_run(copying *c, bags_error *err) {
    bags_path_kind kind;
    bool finished = false;
    size_t threads = c->to_url                  ? COPY_UPLOADS
                     : c->options->from_objects ? COPY_THREADS
                                                : 2;
    if (!c->to_url)
        FORMAT_TRY(format_check_outside(c->out, c->target, err));
    FORMAT_TRY(copy_kind(c->in, c->source, &kind, err));
    if (kind == BAGS_PATH_NONE)
        return bags_fail_io(c->in, ENOENT, c->source, "open", err);
    FORMAT_TRY(kind == BAGS_PATH_DIRECTORY ? copy_plan_dataset(c, err)
                                           : copy_plan_bag(c, err));
    if (!copy_report(c, 0))
        return copy_interrupted(c, err);
    for (size_t i = 0; i < c->count; i++) {
        if (!c->to_url)
            FORMAT_TRY(copy_make_parents(c, c->entries[i].to, err));
        else if (c->out->expect)
            c->out->expect(c->out->user, c->entries[i].to);
    }
    FORMAT_TRY(copy_find_finished(c, &finished, err));
    FORMAT_TRY(copy_check_entries(c, err));
    if (!c->to_url && !finished)
        FORMAT_TRY(copy_start_record(c, err));
    for (int phase = COPY_BAGS; phase < COPY_PHASES; phase++) {
        FORMAT_TRY(copy_phase(c, phase, threads, err));
        if (phase == COPY_BAGS)
            FORMAT_TRY(copy_check_source(c, err));
    }
    return BAGS_OK;
}

bags_code bags_copy(const char *from, const char *to, const bags_copy_options *options,
    bags_copy_report *report, bags_error *err) {
    bags_copy_options none;
    bags_error ignored;
    copying c;
    err = err ? err : &ignored;
    memset(&none, 0, sizeof none);
    memset(&c, 0, sizeof c);
    if (report)
        memset(report, 0, sizeof *report);
    if (!from || !to || !*to)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a path is NULL or empty");
    c.options = options ? options : &none;
    c.source = from;
    c.target = to;
    const bags_io *io = c.options->env.io ? c.options->env.io : bags_io_local();
    c.in = c.options->from ? c.options->from : io;
    c.out = c.options->to ? c.options->to : io;
    c.to_url = c.options->to_objects != NULL;
    if (!gate_start(&c.lock))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_code code = copy_run(&c, err);
    if (!code && report) {
        report->copied = c.copied;
        report->kept = c.kept;
        report->size = c.total;
    }
    copy_unlock(&c, !code || !c.recorded);
    gate_end(&c.lock);
    bags_buffer_free(&c.memory);
    bags_buffer_free(&c.found);
    format_blocks_free(c.blocks);
    return code;
}
