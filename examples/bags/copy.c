/*
 * bags copy: a finished dataset, or a Bag, to another place: local, or an object store.
 *
 * All Bags are copied first, by several threads; then each spec.json, from the last
 * shard to the first. Until the end the copy is unfinished for every reader.
 *
 * A local copy is locked meanwhile, against other copies: the lock is on the file that
 * becomes spec.json or, of a Bag, NAME.bag at the end. A dataset in shards has one of
 * that name next to them, which is removed at the end. What a copy that was killed has
 * left is locked and used again.
 *
 * Until the end, each local copy has a record next to it, NAME.copied:
 *
 *     boot of the system | device, inode, time and size of the source | its path
 *
 * Of a server, these are its ETag, Last-Modified and size. If they still are those of
 * the source, a copy that is complete is kept, and a part of one, NAME.copy, continues
 * at its end; that only in the same boot, since it may not be on stable storage.
 * Otherwise, both are removed before the record is replaced.
 */
#include "command.h"
#include "system.h"

#include "../../formats/private.h"
#include "../../formats/storage.h"

#include <pthread.h>

#define MAX_THREADS 8               /* each may hold a part of 64 MiB */
#define COPY_SIZE ((size_t)8 << 20) /* bytes read at once */
/* From a server: what was not written yet is sent again after a kill. */
#define FAR_SIZE ((size_t)1 << 20)

typedef struct entry {
    char *from, *to;
    uint64_t size;
    bags_identity identity;
    bool last;     /* a spec.json, or the .bag of a Bag: after all others */
    bool finished; /* the place to which it is copied has the last one */
    bool missing;  /* it is not copied, and the copy must not have it */
    bool index;    /* it may be replaced */
} entry;

static entry *entries;
static size_t count;
static const char *source, *target; /* datasets, or Bags without their .bag */
static const bags_io *in, *out;
static bool to_url;
static char *lock_path;     /* of the file that is locked */
static void *lock_file;     /* NULL: none is */
static bool lock_continues; /* a part of a Bag is in it, which is kept */

/* Of the threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t next_entry;
static uint64_t bytes_done, bytes_total, files_copied, files_kept;
static bags_error fault;

/* ---- what there is to copy ---- */

/* Add a file of the dataset, which may be missing; the last one is not. With `omit` it
 * is not copied. */
static void add(
    const char *shard, const char *name, const char *suffix, bool last, bool omit) {
    entry one = {0};
    void *file = NULL;
    one.last = last;
    one.from = string_format("%s%s%s%s", source, shard, name, suffix);
    one.to = string_format("%s%s%s%s", target, shard, name, suffix);
    one.missing = omit || (!last && path_kind(one.from) != BAGS_PATH_FILE);
    int error = one.missing ? 0 : in->open(in->user, one.from, BAGS_IO_READ, &file);
    if (file) {
        error = in->size(in->user, file, &one.size);
        if (!error && in->identify)
            error = in->identify(in->user, file, one.from, &one.identity);
        in->close(in->user, file);
    }
    must(bags_fail_io(in, error, one.from, "open", &failure));
    bytes_total += one.size;
    entries = (entry *)grow(entries, count, sizeof *entries);
    entries[count++] = one;
}

static const char *const suffixes[] = {".bag", ".idx", ".crc"};

/* One shard, "/000001", or an unsharded dataset, "". The first shard may have the mark
 * without which a worker would resume what bags_finalize has renumbered. */
static void add_shard(const char *shard, const bags_reader *reader, bool first) {
    size_t fields_count;
    const bags_field *fields = bags_reader_fields(reader, &fields_count);
    /* All of them will be looked up: announce it first. */
    for (int round = in->expect ? 0 : 1; round < 2; round++)
        for (size_t i = 0; i < 3 * (fields_count + 1); i++) {
            const char *name = i < 3 ? "refs" : fields[i / 3 - 1].name;
            const char *bag = temp_format("/%s", name);
            const char *path =
                temp_format("%s%s%s%s", source, shard, bag, suffixes[i % 3]);
            if (round == 0)
                in->expect(in->user, path);
            else
                add(shard, bag, suffixes[i % 3], false, false);
        }
    if (first)
        add(shard, "/finalized", "", false, false);
    add(shard, "/spec", ".json", true, false);
}

/* Indexes belong to the first shard. */
static void add_indexes(void) {
    size_t length;
    char **names = index_files(source, &length);
    for (size_t i = 0; i < length; i++) {
        add("", temp_format("/%s", names[i]), "", false, false);
        entries[count - 1].index = true;
        free(names[i]);
    }
    free(names);
}

/* Each shard's last file follows its others. */
static void find_finished(void) {
    bool finished = false;
    for (size_t i = count; i-- > 0; entries[i].finished = finished)
        if (entries[i].last)
            finished = path_kind(entries[i].to) == BAGS_PATH_FILE;
}

/* ---- the lock ---- */

static bool same_file(const bags_identity *a, const bags_identity *b) {
    return a->device == b->device && a->inode == b->inode;
}

/* True if the path, of which the end may not exist, leads into a directory. */
static bool is_inside(const char *path, const char *directory) {
    const bags_io *io = bags_io_local();
    bags_identity top, at, below = {0};
    int error = io->identify(io->user, NULL, directory, &top);
    char *up = string_format("%s", path);
    while (!error && !path_exists(up)) {
        char *parent = string_format("%s", path_parent(up));
        free(up);
        up = parent;
    }
    for (;;) {
        if (!error)
            error = io->identify(io->user, NULL, up, &at);
        bool found = !error && same_file(&at, &top);
        char *parent = string_format("%s/..", up);
        free(up);
        up = parent;
        if (error || found || same_file(&at, &below)) { /* / is in itself */
            free(up);
            return found;
        }
        below = at;
    }
}

ENDS static void fail_locked(void) {
    fail(BAGS_ERROR_LOCKED, "%s: locked by another running copy", target);
}

/* Fail if a copy of a shard of the target, or of the dataset to which the target
 * belongs, is writing this directory. Both lock their own file before they check. */
static void check_not_locked(const char *directory) {
    void *file = NULL;
    const char *path = temp_format("%s/spec.json.copy", directory);
    if (out->open(out->user, path, BAGS_IO_WRITE, &file))
        return;
    int error = out->lock(out->user, file);
    out->close(out->user, file);
    if (error == EWOULDBLOCK)
        fail_locked();
}

static void unlock_target(void) {
    if (!lock_file)
        return;
    if (!lock_continues)
        (void)out->remove(out->user, lock_path);
    (void)out->close(out->user, lock_file);
    lock_file = NULL;
}

/* Between opening and locking the file, another copy may have finished with it. */
static void lock_target(const char *ending) {
    if (to_url)
        return;
    lock_path = string_format("%s%s.copy", target, ending);
    directory_make(path_parent(lock_path));
    while (!lock_file) {
        bags_identity opened, found;
        void *file = NULL;
        int error = out->open(out->user, lock_path, BAGS_IO_WRITE, &file);
        if (error == ENOENT)
            error = out->open(out->user, lock_path, BAGS_IO_CREATE, &file);
        if (error == EEXIST)
            continue;
        must(bags_fail_io(out, error, lock_path, "create", &failure));
        error = out->lock(out->user, file);
        if (error == EWOULDBLOCK)
            fail_locked();
        if (!error)
            error = out->identify(out->user, file, lock_path, &opened);
        must(bags_fail_io(out, error, lock_path, "lock", &failure));
        error = out->identify(out->user, NULL, lock_path, &found);
        must(bags_fail_io(
            out, error == ENOENT ? 0 : error, lock_path, "lock", &failure));
        if (!error && same_file(&opened, &found))
            lock_file = file;
        else
            out->close(out->user, file);
    }
    on_failure = unlock_target;
}

/* What a writer has left, or is writing, is never replaced: `bags recover` can still
 * finish it. */
static void check_not_begun(const char *directory) {
    char *path = string_format("%s", directory);
    if (path_has(path, "spec.json.partial") && !path_has(path, "spec.json"))
        fail(BAGS_ERROR_EXISTS,
            "%s: already has an unfinished dataset; if its writer crashed, "
            "`bags recover` finishes it",
            path);
    free(path);
}

/* Of two datasets in one directory, readers would see one, or a mixture. */
static void check_destination(const bags_shard *shards, size_t shards_count) {
    size_t found_count;
    static bags_shard *found;
    found = shards_list(target, &found_count);
    if (!to_url)
        check_not_begun(target);
    for (size_t i = 0; i < found_count && !to_url; i++)
        check_not_begun(shard_path(target, &found[i]));
    if (shards->digits && path_has(target, "spec.json"))
        fail(BAGS_ERROR_EXISTS, "%s: already has another, unsharded dataset", target);
    for (size_t i = 0, k = 0; i < found_count; i++) {
        while (k < shards_count && shards[k].number < found[i].number)
            k++;
        if (k == shards_count || shards[k].number != found[i].number ||
            shards[k].digits != found[i].digits)
            fail(BAGS_ERROR_EXISTS,
                "%s: already has another dataset (shard %0*ju is not in the "
                "one that is copied)",
                target, (int)found[i].digits, (uintmax_t)found[i].number);
    }
    free(found);
}

static void plan_dataset(void) {
    bags_reader_options options = {0};
    bags_info about;
    size_t shards_count;
    options.env.io = in;
    options.no_mmap = true;
    bags_reader *reader = bags_reader_open(source, &options, &failure);
    must_open(reader);
    const bags_shard *shards = bags_reader_shards(reader, &shards_count);
    bool local = !to_url && in == bags_io_local();
    if (local && is_inside(target, source))
        usage("%s: is in the dataset %s", target, source);
    if (local && is_inside(source, target))
        usage("%s: contains the dataset %s", target, source);
    /* Of a local copy, they recognize the dataset by the times of the former one. */
    if (to_url)
        add_indexes();
    for (size_t i = 0; i < shards_count; i++) {
        char *shard = string_format("%s", shard_path("", &shards[i]));
        add_shard(shard, reader, i == 0 && shards[i].digits);
        free(shard);
    }
    /* Opens every Bag. What was added is of the version that the reader has open. */
    must(bags_reader_info(reader, &about, NULL, &failure));
    lock_target("/spec.json");
    if (!to_url)
        check_not_locked(temp_format("%s/..", target));
    for (size_t i = 0; i < shards_count && !to_url && shards[i].digits; i++)
        check_not_locked(shard_path(target, &shards[i]));
    check_destination(shards, shards_count);
    bags_reader_close(reader);
}

/* The checksums of a dataset's Bag have its name and what binds the dataset together:
 * they would not fit to a copy outside of it. */
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
    for (size_t i = 3; i-- > 0;)
        add("", "", suffixes[i], i == 0, i == 2 && in_dataset);
    lock_target(".bag");
}

/* ---- records of the copies that are not finished ---- */

typedef enum left {
    LEFT_OTHER,    /* what is left is of another version, or unknown */
    LEFT_COMPLETE, /* a complete copy is of this version, */
    LEFT_PART      /* and a part of one too */
} left;

/* An identifier of this boot of the system; "" if there is none. */
static const char *boot_id(void) {
    static char id[64];
    const bags_io *io = bags_io_local();
    void *file = NULL;
    size_t size = sizeof id - 1;
    if (*id ||
        io->open(io->user, "/proc/sys/kernel/random/boot_id", BAGS_IO_READ, &file))
        return id;
    if (read_all(io, file, 0, id, &size))
        size = 0;
    id[size] = 0;
    id[strcspn(id, " \n")] = 0;
    io->close(io->user, file);
    return id;
}

/* The record of a file; NULL: its source has nothing that identifies a version. (Of a
 * server, inode and time are hashes, which are equal if it states neither an ETag nor a
 * Last-Modified.) */
static char *record_of(const entry *one) {
    const bags_identity *from = &one->identity;
    if (to_url || !in->identify || from->inode == from->time)
        return NULL;
    return string_format("%s %jx %jx %jx %ju %s\n", boot_id(), (uintmax_t)from->device,
        (uintmax_t)from->inode, (uintmax_t)from->time, (uintmax_t)from->size,
        one->from);
}

static left what_is_left(const entry *one) {
    char *record = record_of(one);
    char *path = string_format("%s.copied", one->to);
    size_t size = record ? strlen(record) + 1 : 0;
    char *found = record ? (char *)malloc(size + 1) : NULL;
    void *file = NULL;
    left result = LEFT_OTHER;
    if (found && !out->open(out->user, path, BAGS_IO_READ, &file)) {
        if (read_all(out, file, 0, found, &size))
            size = 0;
        found[size] = 0;
        const char *version = strchr(found, ' ');
        if (version && !strcmp(version, strchr(record, ' ')))
            result = *boot_id() && !strcmp(found, record) ? LEFT_PART : LEFT_COMPLETE;
        out->close(out->user, file);
    }
    free(found);
    free(path);
    free(record);
    return result;
}

/* Remove what is left of another version, then write the record of this one. */
static bags_code start_record(const entry *one, bags_error *err) {
    char *record = record_of(one), *path = string_format("%s.copied", one->to);
    char *directory = string_format("%s", one->to);
    void *file = NULL;
    int removed = out->remove(out->user, path), error = 0;
    if (!one->last)
        removed = out->remove(out->user, one->to) && removed;
    if (!removed) { /* also after a power failure, no record is of another file */
        size_t size = strlen(directory);
        while (size > 0 && !is_separator(directory[size - 1]))
            size--;
        directory[size] = 0;
        error = out->sync_dir(out->user, size ? directory : ".");
    }
    if (!error && record)
        error = out->open(out->user, path, BAGS_IO_CREATE, &file);
    if (file) {
        error = write_all(out, file, 0, record, strlen(record));
        int closed = out->close(out->user, file);
        error = error ? error : closed;
    }
    bags_code code = bags_fail_io(out, error, path, "create", err);
    free(directory);
    free(path);
    free(record);
    return code;
}

static void remove_records(void) {
    for (size_t i = 0; i < count && !to_url; i++)
        (void)out->remove(out->user, temp_format("%s.copied", entries[i].to));
}

/* ---- copying a file: what fails is written to the error ---- */

static void advance(void *user, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&mutex);
    bytes_done += bytes;
    progress_show("copying", "MB", bytes_done, bytes_total, bytes_done >> 20);
    pthread_mutex_unlock(&mutex);
}

/* Copy the bytes that follow `at` to a new file, or with `compare` find out whether it
 * has them. */
static bags_code pass_bytes(const entry *one, uint64_t at, void *from, void *to,
    bool compare, bool *same, bags_error *err) {
    unsigned char *data = (unsigned char *)malloc(2 * COPY_SIZE);
    bags_code code = data ? BAGS_OK : BAGS_ERROR_MEMORY;
    *same = true;
    if (!data)
        bags_fail(err, code, "out of memory");
    while (at < one->size && *same && !code) {
        size_t size = path_is_remote(one->from) ? FAR_SIZE : COPY_SIZE;
        size_t other = size;
        unsigned char *written = data + COPY_SIZE;
        int error = read_all(in, from, at, data, &size);
        code = bags_fail_io(in, error, one->from, "read", err);
        if (!code && (!size || at + size > one->size))
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%.320s: changed while it was copied", one->from);
        if (!code && compare) {
            error = read_all(out, to, at, written, &other);
            code = bags_fail_io(out, error, one->to, "read", err);
            *same = !code && size == other && !memcmp(data, written, size);
        }
        if (!code && !compare) {
            error = write_all(out, to, at, data, size);
            code = bags_fail_io(out, error, one->to, "write", err);
        }
        at += size;
        if (!code && !compare)
            advance(NULL, size);
    }
    free(data);
    return code ? code
                : format_check_identity(in, from, one->from, &one->identity, err);
}

/* Local files: compare them, unless there is a record, or the source is remote and its
 * ETag is enough. */
static bags_code is_same(const entry *one, bool *exists, bool *same, bags_error *err) {
    void *from = NULL, *to = NULL;
    uint64_t size = 0;
    *same = false;
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = out->kind(out->user, one->to, &kind);
    if (error)
        return bags_fail_io(out, error, one->to, "open", err);
    *exists = kind != BAGS_PATH_NONE;
    if (kind != BAGS_PATH_FILE)
        return BAGS_OK;
    if (path_is_remote(one->to))
        return object_same(one->to, in, one->from, same, err);
    error = out->open(out->user, one->to, BAGS_IO_READ, &to);
    if (!error)
        error = out->size(out->user, to, &size);
    if (to)
        out->close(out->user, to);
    to = NULL;
    if (error)
        return bags_fail_io(out, error, one->to, "open", err);
    *same = size == one->size && what_is_left(one) != LEFT_OTHER;
    if (*same)
        return BAGS_OK;
    bags_code code = path_is_remote(one->from)
                         ? object_same(one->from, out, one->to, same, err)
                         : BAGS_OK;
    if (code || *same || (path_is_remote(one->from) && !one->finished))
        return code;
    if ((error = out->open(out->user, one->to, BAGS_IO_READ, &to)))
        code = bags_fail_io(out, error, one->to, "open", err);
    else if ((error = in->open(in->user, one->from, BAGS_IO_READ, &from)))
        code = bags_fail_io(in, error, one->from, "open", err);
    else if (size == one->size)
        code = pass_bytes(one, 0, from, to, true, same, err);
    if (to)
        out->close(out->user, to);
    if (from)
        in->close(in->user, from);
    return code;
}

/* The name appears when the bytes are on stable storage; that of a last file, only if
 * nothing has it. The lock is held until then. */
static bags_code write_file(const entry *one, bags_error *err) {
    char *partial = string_format("%s.copy", one->to);
    bool same, locked = !strcmp(partial, lock_path);
    bool has_part = what_is_left(one) == LEFT_PART;
    void *from = NULL, *to = locked ? lock_file : NULL;
    uint64_t start = 0;
    bags_code code = BAGS_OK;
    int error = in->open(in->user, one->from, BAGS_IO_READ, &from);
    if (error)
        code = bags_fail_io(in, error, one->from, "open", err);
    if (!has_part && !locked) /* what an interrupted run has left */
        (void)out->remove(out->user, partial);
    if (!has_part && !code)
        code = start_record(one, err);
    if (!code) {
        error = locked     ? 0
                : has_part ? out->open(out->user, partial, BAGS_IO_WRITE, &to)
                           : ENOENT;
        if (error == ENOENT)
            error = out->open(out->user, partial, BAGS_IO_CREATE, &to);
        if (!error && has_part)
            error = out->size(out->user, to, &start);
        start = start > one->size ? 0 : start;
        if (!error)
            error = out->truncate(out->user, to, start);
        code = bags_fail_io(out, error, partial, "create", err);
    }
    if (!code) {
        advance(NULL, start);
        code = pass_bytes(one, start, from, to, false, &same, err);
    }
    if (!code && (error = out->sync(out->user, to)))
        code = bags_fail_io(out, error, partial, "sync", err);
    bool keep = code == BAGS_ERROR_IO && from && to &&
                !out->size(out->user, to, &start) && start > 0 &&
                what_is_left(one) == LEFT_PART;
    if (to && !locked && (error = out->close(out->user, to)) && !code)
        code = bags_fail_io(out, error, partial, "close", err);
    if (from)
        in->close(in->user, from);
    if (!code && one->last && publish_file(partial, one->to))
        code = bags_fail_io(out, errno, one->to, "create", err);
    else if (!code && !one->last)
        code = bags_fail_io(
            out, out->rename(out->user, partial, one->to), one->to, "create", err);
    if (code && !keep && !locked)
        (void)out->remove(out->user, partial);
    lock_continues = locked && code && keep;
    if (!code && locked) {
        (void)out->close(out->user, lock_file);
        lock_file = NULL;
    }
    free(partial);
    return code;
}

static bags_code fail_different(const entry *one, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%.320s: already exists and differs, and nothing that is finished is "
        "replaced; remove the old copy, or write to a new path",
        one->to);
}

static bags_code copy_entry(const entry *one, bags_error *err) {
    bool exists = false, same = false;
    bags_code code = is_same(one, &exists, &same, err);
    if (!code && same) {
        pthread_mutex_lock(&mutex);
        files_kept++;
        pthread_mutex_unlock(&mutex);
        advance(NULL, one->size);
        return BAGS_OK;
    }
    if (!code && one->finished && exists && !one->index)
        code = fail_different(one, err);
    if (!code)
        code = to_url ? object_upload(one->to, in, one->from, advance, err)
                      : write_file(one, err);
    pthread_mutex_lock(&mutex);
    files_copied += !code;
    pthread_mutex_unlock(&mutex);
    return code;
}

/* What an interrupted copy of another dataset has left would become a part of this one,
 * and readers would take it for damage. */
static void check_missing(void) {
    for (size_t i = 0; i < count; i++)
        if (entries[i].missing && !entries[i].finished &&
            path_kind(entries[i].to) != BAGS_PATH_NONE)
            fail(BAGS_ERROR_EXISTS,
                "%s: already exists, and what is copied has no such file; "
                "remove the old copy, or write to a new path",
                entries[i].to);
}

/* Nothing is added to a finished dataset with another spec: all shards have the same. */
static void check_spec(void) {
    bool exists = false, same = false;
    size_t i = 0;
    while (i < count && !(entries[i].last && entries[i].finished))
        i++;
    if (i == count)
        return;
    must(is_same(&entries[i], &exists, &same, &failure));
    if (!same)
        must(fail_different(&entries[i], &failure));
}

/* ---- the threads ---- */

static void *work(void *user) {
    bags_error err;
    (void)user;
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (next_entry < count &&
               (entries[next_entry].last || entries[next_entry].missing))
            next_entry++;
        size_t i = fault.code ? count : next_entry;
        next_entry += i < count;
        pthread_mutex_unlock(&mutex);
        if (i >= count)
            return NULL;
        if (copy_entry(&entries[i], &err)) {
            pthread_mutex_lock(&mutex);
            if (!fault.code)
                fault = err;
            pthread_mutex_unlock(&mutex);
        }
    }
}

static void must_copy(bags_code code) {
    if (code && code != BAGS_ERROR_EXISTS)
        failure_suffix("; call it again to continue");
    bar_hide();
    must(code);
}

static void copy_bags(size_t threads) {
    pthread_t others[MAX_THREADS];
    size_t started = 0;
    while (started + 1 < threads && !pthread_create(&others[started], NULL, work, NULL))
        started++;
    work(NULL);
    while (started > 0)
        pthread_join(others[--started], NULL);
    if (fault.code)
        failure = fault;
    must_copy(fault.code);
}

static int run(char **operands) {
    read_ahead = FAR_SIZE;
    (void)boot_id(); /* before the threads */
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
    interrupt_leaves("what was copied is kept", "continue with", NULL);
    bags_path_kind kind = path_kind(source);
    if (kind == BAGS_PATH_NONE)
        must(bags_fail_io(in, ENOENT, source, "open", &failure));
    bool remote = to_url || path_is_remote(source);
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
    find_finished();
    check_spec();
    check_missing();
    copy_bags(remote ? MAX_THREADS : 2);
    for (size_t i = 0; in->expect && i < count; i++)
        in->expect(in->user, entries[i].from);
    for (size_t i = 0; i < count; i++)
        if (!entries[i].missing)
            must(format_check_identity(
                in, NULL, entries[i].from, &entries[i].identity, &failure));
    for (size_t i = count; i-- > 0;)
        if (entries[i].last)
            must_copy(copy_entry(&entries[i], &failure));
    remove_records();
    unlock_target();
    progress_end();
    print("%s: %s copied, %ju already equal, %ju bytes\n", shown,
        counted(files_copied, "file"), (uintmax_t)files_kept, (uintmax_t)bytes_total);
    for (size_t i = 0; i < count; i++) {
        free(entries[i].from);
        free(entries[i].to);
    }
    return 0;
}

const command command_copy = {"copy", "to another place, or an object store", "FROM TO",
    {ARGUMENT_PATH, ARGUMENT_PATH}, 2, 2, NULL, NULL,
    "Copies a finished dataset, or a Bag: every Bag, its .crc and .idx files, "
    "then each spec.json, so that the copy is unfinished until it is complete. "
    "Of a Bag that belongs to a dataset, the checksums are left out: they are "
    "those of the dataset. An object store also receives the indexes that are "
    "not older than the dataset. FROM is a path, an http:// or https:// URL, "
    "or s3://BUCKET/PATH; TO is a path or s3://BUCKET/PATH. Other files are "
    "not copied.\n"
    "If it is interrupted, call it again: files that are equal are kept, and a "
    "local file that is not complete continues where it ended, if its source "
    "has not changed. Equal means the same bytes; for an object in a store, "
    "the same size and MD5, from its ETag. Until the end, NAME.copied states "
    "which version was copied. What is finished and differs is never replaced. "
    "A second copy to the same local place fails while the first is running; "
    "to an object store, run only one at a time.\n",
    "  bags copy pets s3://datasets/pets\n"
    "  bags copy s3://datasets/pets pets\n",
    run};
