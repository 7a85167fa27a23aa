/*
 * bags copy: a finished dataset, or a Bag, to another place: local, or an object store.
 *
 * All Bags are copied first, by several threads; then each spec.json, from the last
 * shard to the first. Until the end the copy is unfinished for every reader.
 */
#include "command.h"
#include "system.h"

#include <pthread.h>

#define MAX_THREADS 8               /* each may hold a part of 64 MiB */
#define COPY_SIZE ((size_t)8 << 20) /* bytes read at once */

/* A file to be copied, relative to the dataset; "" for a Bag's own. */
typedef struct entry {
    char *from, *to;
    uint64_t size;
    bool last;     /* a spec.json: after all others */
    bool finished; /* the directory to which it is copied has a spec.json */
} entry;

static entry *entries;
static size_t count;
static const bags_io *in, *out;
static bool to_url;

/* Of the threads. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t next_entry;
static uint64_t bytes_done, bytes_total, files_copied, files_kept;
static bags_error fault;

/* ---- what there is to copy ---- */

static void add(char *from, char *to, bool last, bool finished) {
    entries = (entry *)grow(entries, count, sizeof *entries);
    entries[count].from = from;
    entries[count].to = to;
    entries[count].last = last;
    entries[count++].finished = finished;
}

static const char *const suffixes[] = {".bag", ".idx", ".crc"};

/* The files of a Bag that exist, `most` of them. */
static void add_bag(
    const char *from, const char *to, bool finished, size_t most) {
    for (size_t i = 0; i < most; i++) {
        char *path = string_format("%s%s", from, suffixes[i]);
        if (path_kind(path) == BAGS_PATH_FILE)
            add(path, string_format("%s%s", to, suffixes[i]), false, finished);
        else
            free(path);
    }
}

/* All these files will be looked up. */
static void expect(const char *from, const bags_reader *reader) {
    size_t fields_count;
    const bags_field *fields = bags_reader_fields(reader, &fields_count);
    for (size_t i = 0; in->expect && i <= fields_count; i++)
        for (size_t k = 0; k < 3; k++) {
            char *path = string_format("%s/%s%s", from,
                i < fields_count ? fields[i].name : "refs", suffixes[k]);
            in->expect(in->user, path);
            free(path);
        }
}

/* One shard, or an unsharded dataset. The first shard may have the mark without which
 * a worker would resume what bags_finalize has renumbered. */
static void add_shard(
    const char *from, const char *to, const bags_reader *reader, bool first) {
    size_t fields_count;
    const bags_field *fields = bags_reader_fields(reader, &fields_count);
    char *spec = string_format("%s/spec.json", to);
    bool finished = path_kind(spec) == BAGS_PATH_FILE;
    expect(from, reader);
    for (size_t i = 0; i <= fields_count; i++) {
        const char *name = i < fields_count ? fields[i].name : "refs";
        char *bag = string_format("%s/%s", from, name);
        char *copy = string_format("%s/%s", to, name);
        add_bag(bag, copy, finished, 3);
        free(bag);
        free(copy);
    }
    char *mark = string_format("%s/finalized", from);
    if (first && path_kind(mark) == BAGS_PATH_FILE)
        add(mark, string_format("%s/finalized", to), false, finished);
    else
        free(mark);
    add(string_format("%s/spec.json", from), spec, true, finished);
}

/* Of two datasets in one directory, readers would see one, or a mixture. */
static void check_destination(
    const char *to, const bags_shard *shards, size_t shards_count) {
    size_t found_count;
    bags_shard *found = shards_list(to, &found_count);
    char *spec = string_format("%s/spec.json", to);
    if (shards->digits && path_kind(spec) == BAGS_PATH_FILE)
        fail(BAGS_ERROR_EXISTS, "%s: already has another, unsharded dataset",
            to);
    for (size_t i = 0, k = 0; i < found_count; i++) {
        while (k < shards_count && shards[k].number < found[i].number)
            k++;
        if (k == shards_count || shards[k].number != found[i].number ||
            shards[k].digits != found[i].digits)
            fail(BAGS_ERROR_EXISTS,
                "%s: already has another dataset (shard %0*ju is not in the "
                "one that is copied)",
                to, (int)found[i].digits, (uintmax_t)found[i].number);
    }
    free(spec);
    free(found);
}

static void plan_dataset(const char *from, const char *to) {
    bags_reader_options options = {0};
    size_t shards_count;
    options.env.io = in;
    options.no_mmap = true;
    bags_reader *reader = bags_reader_open(from, &options, &failure);
    if (!reader)
        die();
    const bags_shard *shards = bags_reader_shards(reader, &shards_count);
    check_destination(to, shards, shards_count);
    for (size_t i = 0; i < shards_count; i++) {
        char *a = shard_path(from, &shards[i]);
        char *b = shard_path(to, &shards[i]);
        add_shard(a, b, reader, i == 0 && shards[i].digits);
        free(a);
        free(b);
    }
    bags_reader_close(reader);
}

/* The checksums of a dataset's Bag have its name and what binds the dataset together:
 * they would not fit to a copy outside of it. */
static void plan_bag(const char *from, const char *to) {
    bag_reader_options options = {0};
    options.env.io = in;
    options.no_mmap = true;
    options.allow_empty_file = true;
    if (!has_ending(from, ".bag") || !has_ending(to, ".bag"))
        usage("the names of both Bags must end in .bag");
    bag_reader *bag = bag_reader_open(from, &options, &failure);
    if (!bag)
        die();
    bag_reader_close(bag);
    char *directory = path_parent(from);
    char *spec = string_format("%s/spec.json", directory);
    char *a = string_format("%.*s", (int)strlen(from) - 4, from);
    char *b = string_format("%.*s", (int)strlen(to) - 4, to);
    bool in_dataset = path_kind(spec) == BAGS_PATH_FILE;
    add_bag(a, b, path_kind(to) == BAGS_PATH_FILE, in_dataset ? 2 : 3);
    free(directory);
    free(spec);
    free(a);
    free(b);
}

/* ---- copying a file: what fails is written to the error ---- */

static void advance(void *user, uint64_t bytes) {
    (void)user;
    pthread_mutex_lock(&mutex);
    bytes_done += bytes;
    progress_show("copying", "MB", bytes_done, bytes_total, bytes_done >> 20);
    pthread_mutex_unlock(&mutex);
}

/* Read `size` bytes at most, fewer only at the end. */
static bags_code read_block(const bags_io *io, void *file, const char *path,
    uint64_t offset, unsigned char *data, size_t *size, bags_error *err) {
    size_t done = 0;
    while (done < *size) {
        size_t step = 0;
        int error = io->read_at(
            io->user, file, offset + done, data + done, *size - done, &step);
        if (error)
            return bags_fail_io(io, error, path, "read", err);
        if (!step)
            break;
        done += step;
    }
    *size = done;
    return BAGS_OK;
}

/* Copy the bytes to a new file, or with `compare` find out whether it has them. */
static bags_code pass_bytes(const entry *one, void *from, void *to,
    bool compare, bool *same, bags_error *err) {
    unsigned char *data = (unsigned char *)malloc(2 * COPY_SIZE);
    bags_code code = data ? BAGS_OK : BAGS_ERROR_MEMORY;
    *same = true;
    if (!data)
        bags_fail(err, code, "out of memory");
    for (uint64_t at = 0; at < one->size && *same && !code;) {
        size_t size = COPY_SIZE, other = COPY_SIZE;
        unsigned char *written = data + COPY_SIZE;
        code = read_block(in, from, one->from, at, data, &size, err);
        if (!code && (!size || at + size > one->size))
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%.320s: changed while it was copied", one->from);
        if (!code && compare) {
            code = read_block(out, to, one->to, at, written, &other, err);
            *same = !code && size == other && !memcmp(data, written, size);
        }
        for (size_t done = 0; !code && !compare && done < size;) {
            size_t step = 0;
            int error = out->write_at(
                out->user, to, at + done, data + done, size - done, &step);
            if (error)
                code = bags_fail_io(out, error, one->to, "write", err);
            done += step;
        }
        at += size;
        if (!code && !compare)
            advance(NULL, size);
    }
    free(data);
    return code;
}

/* Local files: compare them, unless the source is remote and its ETag is enough. */
static bags_code is_same(
    const entry *one, bool *exists, bool *same, bags_error *err) {
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
        return object_same(one->to, one->from, same, err);
    bags_code code = path_is_remote(one->from)
                         ? object_same(one->from, one->to, same, err)
                         : BAGS_OK;
    if (code || *same || (path_is_remote(one->from) && !one->finished))
        return code;
    error = out->open(out->user, one->to, BAGS_IO_READ, &to);
    if (!error)
        error = out->size(out->user, to, &size);
    if (error)
        code = bags_fail_io(out, error, one->to, "open", err);
    else if ((error = in->open(in->user, one->from, BAGS_IO_READ, &from)))
        code = bags_fail_io(in, error, one->from, "open", err);
    else if (size == one->size)
        code = pass_bytes(one, from, to, true, same, err);
    if (to)
        out->close(out->user, to);
    if (from)
        in->close(in->user, from);
    return code;
}

/* The name appears when the bytes are on stable storage. */
static bags_code write_file(const entry *one, bags_error *err) {
    char *partial = string_format("%s.copy", one->to);
    void *from = NULL, *to = NULL;
    bool same;
    bags_code code = BAGS_OK;
    int error = in->open(in->user, one->from, BAGS_IO_READ, &from);
    if (error)
        code = bags_fail_io(in, error, one->from, "open", err);
    (void)out->remove(out->user, partial); /* of an interrupted run */
    if (!code && (error = out->open(out->user, partial, BAGS_IO_CREATE, &to)))
        code = bags_fail_io(out, error, partial, "create", err);
    if (!code)
        code = pass_bytes(one, from, to, false, &same, err);
    if (!code && (error = out->sync(out->user, to)))
        code = bags_fail_io(out, error, partial, "sync", err);
    if (to && (error = out->close(out->user, to)) && !code)
        code = bags_fail_io(out, error, partial, "close", err);
    if (from)
        in->close(in->user, from);
    if (!code && (error = out->rename(out->user, partial, one->to)))
        code = bags_fail_io(out, error, one->to, "create", err);
    if (code)
        (void)out->remove(out->user, partial);
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
    if (!code && one->finished && exists)
        code = fail_different(one, err);
    if (!code)
        code = to_url ? object_upload(one->to, one->from, advance, NULL, err)
                      : write_file(one, err);
    pthread_mutex_lock(&mutex);
    files_copied += !code;
    pthread_mutex_unlock(&mutex);
    return code;
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
        while (next_entry < count && entries[next_entry].last)
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

static void copy_bags(size_t threads) {
    pthread_t others[MAX_THREADS];
    size_t started = 0;
    while (started + 1 < threads &&
           !pthread_create(&others[started], NULL, work, NULL))
        started++;
    work(NULL);
    while (started > 0)
        pthread_join(others[--started], NULL);
    if (fault.code) {
        failure = fault;
        if (failure.code != BAGS_ERROR_EXISTS)
            failure_suffix("; call it again to continue");
        progress_end();
        die();
    }
}

static void measure(entry *one) {
    void *file = NULL;
    int error = in->open(in->user, one->from, BAGS_IO_READ, &file);
    if (!error) {
        error = in->size(in->user, file, &one->size);
        in->close(in->user, file);
    }
    if (error)
        fail_system(error, one->from, "open");
    bytes_total += one->size;
}

static void make_directory(const char *path) {
    char *parent = path_parent(path);
    directory_make(parent);
    free(parent);
}

static int run(int operands_count, char **operands) {
    const char *from = path_without_secrets(operands[0]);
    const char *to = path_without_secrets(operands[1]);
    (void)operands_count;
    in = io_for_path(from);
    out = io_for_path(to);
    to_url = path_is_remote(to);
    if (to_url && strncmp(to, "s3://", 5) != 0)
        usage("%s: only local paths and s3:// can be written", to);
    bags_path_kind kind = path_kind(from);
    if (kind == BAGS_PATH_NONE)
        fail_system(ENOENT, from, "open");
    if (kind == BAGS_PATH_DIRECTORY)
        plan_dataset(from, to);
    else
        plan_bag(from, to);
    for (size_t i = 0; i < count; i++) {
        measure(&entries[i]);
        if (!to_url)
            make_directory(entries[i].to);
        else if (out->expect)
            out->expect(out->user, entries[i].to);
    }
    check_spec();
    copy_bags(to_url || path_is_remote(from) ? MAX_THREADS : 2);
    for (size_t i = count; i-- > 0;)
        if (entries[i].last)
            must(copy_entry(&entries[i], &failure));
    progress_end();
    printf("%s: %ju file%s copied, %ju already equal, %ju bytes\n", to,
        (uintmax_t)files_copied, plural(files_copied), (uintmax_t)files_kept,
        (uintmax_t)bytes_total);
    for (size_t i = 0; i < count; i++) {
        free(entries[i].from);
        free(entries[i].to);
    }
    return 0;
}

const command command_copy = {"copy", "to another place, or an object store",
    "FROM TO", 2, 2, NULL, NULL,
    "Copies a finished dataset, or a Bag: every Bag, its .crc and .idx files, "
    "then each spec.json, so that the copy is unfinished until it is complete. "
    "Of a Bag that belongs to a dataset, the checksums are left out: they are "
    "those of the dataset. FROM is a path, an http:// or https:// URL, or "
    "s3://BUCKET/PATH; TO is a "
    "path or s3://BUCKET/PATH. Other files are not copied.\n"
    "If it is interrupted, call it again: files that are equal are kept. Equal "
    "means the same bytes; for an object in a store, the same size and MD5, "
    "from its ETag. What is finished and differs is never replaced.\n",
    "  bags copy pets s3://datasets/pets\n"
    "  bags copy s3://datasets/pets pets\n",
    run};
