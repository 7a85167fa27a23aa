/* Derived datasets, and blobs that they do not refer to: formats/data/derive.c where the system
 * fails, and where other processes change the source or the destination meanwhile. What is
 * selected and renamed is tested with the command. */
// flavours: test: release; check: asan
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH 5

/* Datapoint i has the id "V7" and the words "Vw0", ..., where V is the version. Of a type
 * that no codec of this test has, ids may have a dictionary, which is written later. */
static void write_fields(const char *path, char version, uint64_t shard_length,
    bool checksum, const char *type) {
    const bags_field fields[] = {{"id", type}, {"words", "utf8[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.shard_length = shard_length;
    options.checksum = checksum;
    options.no_sync = true;
    options.any_type = true;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < LENGTH; i++) {
        char id[16], words[2][16];
        bags_value name, items[2];
        bags_entry entries[] = {{"id", &name, 1}, {"words", items, i % 3}};
        snprintf(id, sizeof id, "%c%d", version, (int)i);
        for (int k = 0; k < 2; k++) {
            snprintf(words[k], sizeof words[k], "%cw%d", version, k);
            items[k] = bags_utf8(words[k]);
        }
        name = bags_blob(id, strlen(id));
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static void write_version(
    const char *path, char version, uint64_t shard_length, bool checksum) {
    write_fields(path, version, shard_length, checksum, "utf8");
}

static void remove_all(void) {
    static const char *const names[] = {"from", "next", "other", "was", "saved", "out"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (exists(at("%s", names[i])))
            remove_tree(at("%s", names[i]));
}

static const uint64_t chosen[] = {2, 0, 0, 4};
#define CHOSEN (sizeof chosen / sizeof *chosen)

typedef struct way {
    const char *name;
    uint64_t shard_length; /* of the source */
    bool checksum, copy, joined, dictionaries;
} way;

static const way ways[] = {{"shards", 3, false, false, false, false},
    {"joined", 3, true, false, true, false},
    {"unsharded", 0, true, false, false, false}, {"copy", 3, true, true, false, false},
    {"unsharded copy", 0, false, true, false, false},
    {"dictionaries", 3, true, false, false, true}};
#define WAYS (sizeof ways / sizeof *ways)

/* A dictionary is "Vd0", of the shard 0. The metadata are {"V": 0}. */
static void write_source(const char *path, char version, const way *how) {
    bags_checksum_options options = {0};
    options.no_sync = true;
    char *to = strdup(path); /* at() reuses its memory */
    if (!how->dictionaries) {
        write_version(to, version, how->shard_length, how->checksum);
    } else {
        write_fields(to, version, how->shard_length, false, "sealed");
        for (int i = 0; i < 2; i++) {
            char file[4200], text[8];
            snprintf(file, sizeof file, "%s/%06d/id.dict", to, i);
            snprintf(text, sizeof text, "%cd%d", version, i);
            save_text(file, text);
        }
        if (how->checksum)
            assert_ok(bags_checksum(to, &options, NULL, &said));
    }
    char info[16];
    bags_view json = {(const unsigned char *)info,
        (size_t)snprintf(info, 16, "{\"%c\": 0}", version)};
    assert_ok(bags_metadata_write(to, json, true, NULL, &said));
    free(to);
}

/* The version of a dataset, as a caller has it who selects datapoints of it. */
static uint64_t version_number(const char *path) {
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    uint64_t version = bags_reader_version(reader);
    bags_reader_close(reader);
    assert_int_not_equal(version, 0);
    return version;
}

static uint64_t selected, joined_version; /* 0: any */

static bags_code derive(
    const way *how, const char *from, const char *to, const bags_io *io) {
    bags_derive_options options = {0};
    bags_writer_options writing = {0};
    const bags_derived_field joined[] = {{"id", NULL, NULL, NULL, 0},
        {"words", NULL, at("other"), NULL, joined_version}};
    options.version = selected;
    writing.shard_length = how->shard_length;
    writing.checksum = how->checksum;
    options.copy = how->copy ? &writing : NULL;
    options.fields = how->joined ? joined : NULL;
    options.fields_count = 2;
    options.rows = chosen;
    options.rows_count = CHOSEN;
    options.no_sync = disk.before != NULL; /* which takes long on a disk */
    options.env.io = io;
    options.env.allocator = &memory.allocator;
    return bags_derive(from, to, &options, NULL, &said);
}

/* The version of what was derived: all of it is of one, unless it is `mixed`; then all of
 * each datapoint. What is joined is of version a. */
static char version_of(const char *path, const way *how, bool mixed) {
    bags_row row = {0};
    bags_reader *reader;
    bags_reader_options options = {0};
    char version = 0, versions[2]; /* of the shards, which have three each */
    assert_int_equal(read_dataset(path, &options), BAGS_OK);
    assert_opens(reader, bags_reader_open(path, &options, &said));
    assert_int_equal(bags_reader_length(reader), CHOSEN);
    for (size_t i = 0; i < CHOSEN; i++) {
        char expected[16];
        int number = (int)chosen[i];
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        bags_view id = bags_row_bytes(&row, 0, 0);
        version = version && !mixed ? version : (char)*id.data;
        versions[number / 3] = version;
        int size = snprintf(expected, sizeof expected, "%c%d", version, number);
        assert_bytes(id, expected, (size_t)size);
        assert_int_equal(bags_row_length(&row, 1), number % 3);
        for (int k = 0; k < number % 3; k++) {
            size = snprintf(
                expected, sizeof expected, "%cw%d", how->joined ? 'a' : version, k);
            assert_bytes(bags_row_bytes(&row, 1, (size_t)k), expected, (size_t)size);
        }
        bags_view part;
        assert_ok(bags_reader_get_part(reader, i, 0, 0, 1, 9, &row, &part, &said));
        assert_int_equal(part.size, 1);
        assert_int_equal(*part.data, '0' + number);
    }
    if (!mixed) {
        char info[16], file[4200];
        int size = snprintf(info, sizeof info, "{\"%c\": 0}", version);
        snprintf(file, sizeof file, "%s%s/info.json", path,
            how->shard_length ? "/000000" : "");
        assert_file(file, info, (size_t)size);
    }
    for (int i = 0; i < 2 && how->dictionaries; i++) {
        char text[8];
        snprintf(text, sizeof text, "%cd%d", versions[i], i);
        assert_file(at("out/%06d/id.dict", i), text, strlen(text));
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return version;
}

/* After a failure nothing is left, after success everything exists. */
static void check_outcome(bags_code code, const way *how, bool mixed) {
    if (code) {
        assert_false(exists(at("out")));
        assert_false(exists(at("out.derived")));
    } else {
        version_of(at("out"), how, mixed);
        remove_tree(at("out"));
    }
    assert_int_equal(disk.files, 0);
}

/* ---- a system that fails ---- */

static void a_failure_of_any_call_leaves_nothing(void **state) {
    (void)state;
    static const struct {
        unsigned hooks;
        int error;
    } calls[] = {{1u << HOOK_WRITE | 1u << HOOK_MAKE_DIR | 1u << HOOK_LINK, ENOSPC},
        {~(1u << HOOK_REMOVE | 1u << HOOK_REMOVE_DIR | 1u << HOOK_ADVISE |
             1u << HOOK_RESERVE | 1u << HOOK_WRITE_BACK | 1u << HOOK_MAP |
             1u << HOOK_UNMAP | 1u << HOOK_CLOSE),
            EIO}};
    for (size_t i = 0; i < WAYS; i++) {
        write_source(at("from"), 'a', &ways[i]);
        if (ways[i].joined)
            write_source(at("other"), 'a', &ways[i]);
        copy_tree(at("from"), at("saved"));
        for (size_t k = 0; k < 2; k++)
            for (uint64_t n = 1;; n += support_stride()) {
                disk.calls = disk.failed = 0;
                disk.only = calls[k].hooks;
                disk.fail_with = calls[k].error;
                disk.fail_at = n;
                bags_code code = derive(&ways[i], at("from"), at("out"), &disk.io);
                disk.fail_at = 0;
                disk.only = 0;
                check_outcome(code, &ways[i], false);
                if (code && k == 0)
                    assert_says("No space left");
                if (!disk.failed)
                    break;
            }
        assert_same_tree(at("from"), at("saved"));
        remove_all();
    }
}

static void a_failure_to_allocate_leaves_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        write_source(at("from"), 'a', &ways[i]);
        if (ways[i].joined)
            write_source(at("other"), 'a', &ways[i]);
        for (uint64_t n = 1;; n += support_stride()) {
            memory.calls = memory.failed = 0;
            memory.fail_at = n;
            bags_code code = derive(&ways[i], at("from"), at("out"), &disk.io);
            memory.fail_at = 0;
            assert_int_equal(code, memory.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
            check_outcome(code, &ways[i], false);
            if (!memory.failed)
                break;
        }
        remove_all();
    }
}

static void files_that_cannot_be_linked_need_a_copy(void **state) {
    (void)state;
    static const struct {
        int error;
        const char *says;
    } faults[] = {{EXDEV, "on another file system"}, {EMLINK, "as many links as"},
        {EPERM, "has no links"}, {ENOSYS, "has no links"},
        {EOPNOTSUPP, "has no links"}};
    write_version(at("from"), 'a', 3, true);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (uint64_t n = 1; n <= 4; n++) {
            bags_derive_options options = {0};
            bags_derive_report report;
            options.env.io = &disk.io;
            disk.calls = 0;
            disk.only = 1u << HOOK_LINK;
            disk.fail_with = faults[i].error;
            disk.fail_at = n;
            assert_fails(BAGS_ERROR_LIMIT,
                bags_derive(at("from"), at("out"), &options, &report, &said));
            disk.fail_at = 0;
            assert_says(faults[i].says);
            assert_says(n <= 2 ? "from/000000/*a copy of the data needs about"
                               : "from/000001/*a copy of the data needs about");
            /* 28 bytes of texts, and 8 for the end of each blob. */
            assert_in_range(report.copy, 100, 400);
            check_outcome(BAGS_ERROR_LIMIT, NULL, false);
            bags_writer_options writing = {0};
            writing.shard_length = 2;
            options.copy = &writing;
            assert_ok(bags_derive(at("from"), at("out"), &options, &report, &said));
            assert_int_equal(report.copy, 0);
            remove_tree(at("out"));
        }
}

/* ---- other processes ---- */

/* What another process does before a call of these hooks. */
static struct {
    uint64_t calls, when;
    unsigned hooks;
    void (*what)(void);
    bool done;
    const way *how;
    bags_code code;
} other;

static void before_a_call(void *user) {
    (void)user;
    if ((other.hooks >> disk.now & 1) && ++other.calls == other.when) {
        other.done = true;
        other.what();
    }
}

/* What is renamed, removed and replaced is noticed only where a path is used: before another
 * call it is the same as before the next one that uses one. */
#define HOOKS_OF_PATHS                                                                 \
    (1u << HOOK_OPEN | 1u << HOOK_KIND | 1u << HOOK_LIST | 1u << HOOK_IDENTIFY |       \
        1u << HOOK_LINK)

static void let_another(
    void (*what)(void), unsigned hooks, uint64_t when, const way *how) {
    memset(&other, 0, sizeof other);
    other.hooks = hooks;
    other.what = what;
    other.when = when;
    other.how = how;
    disk.before = before_a_call;
}

static void replace_source(void) {
    assert_int_equal(rename(at("from"), at("was")), 0);
    assert_int_equal(rename(at("next"), at("from")), 0);
}

static void replace_shard(void) {
    assert_int_equal(rename(at("from/000001"), at("was")), 0);
    assert_int_equal(rename(at("next/000001"), at("from/000001")), 0);
}

/* Another file of the same version: removed, and written again. */
static void write_source_again(void) {
    remove_tree(at("from"));
    write_source(at("from"), 'b', other.how);
}

static void remove_source(void) { remove_tree(at("from")); }

/* As finalize does, which renumbers shards: another one has the name. */
static void move_shards(void) {
    assert_int_equal(rename(at("from/000000"), at("was")), 0);
    assert_int_equal(rename(at("from/000001"), at("from/000000")), 0);
}

static void a_source_that_changes_is_never_mixed(void **state) {
    (void)state;
    static void (*const changes[])(void) = {
        replace_source, write_source_again, remove_source, replace_shard, move_shards};
    for (size_t i = 0; i < WAYS; i++)
        for (size_t k = 0; k < sizeof changes / sizeof *changes; k++)
            for (uint64_t n = 1 + i + k;; n += support_stride() * support_stride()) {
                if (k > 2 && !ways[i].shard_length)
                    break;
                write_source(at("from"), 'a', &ways[i]);
                if (changes[k] == replace_source || changes[k] == replace_shard)
                    write_source(at("next"), 'b', &ways[i]);
                if (ways[i].joined)
                    copy_tree(at("from"), at("other"));
                selected = n % 2 ? version_number(at("from")) : 0;
                bool mixed = changes[k] == replace_shard && !selected;
                let_another(changes[k], HOOKS_OF_PATHS, n, &ways[i]);
                bags_code code = derive(&ways[i], at("from"), at("out"), &disk.io);
                disk.before = NULL;
                /* What was selected in version a is never of another one. */
                if (!code && selected)
                    assert_int_equal(version_of(at("out"), &ways[i], false), 'a');
                selected = 0;
                assert_int_not_equal(code, BAGS_ERROR_MEMORY);
                /* Nor is it reported as a fault of the source, whatever was found. */
                assert_int_not_equal(code, BAGS_ERROR_CORRUPT);
                if (code && !ways[i].copy) {
                    assert_int_not_equal(code, BAGS_ERROR_LIMIT);
                    assert_null(strstr(said.message, "bags_checksum"));
                }
                check_outcome(code, &ways[i], mixed);
                remove_all();
                if (!other.done)
                    break;
            }
}

static void what_was_selected_in_another_version_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        write_source(at("from"), 'a', &ways[i]);
        write_source(at("next"), 'b', &ways[i]);
        if (ways[i].joined)
            copy_tree(at("from"), at("other"));
        selected = version_number(at("from"));
        assert_int_equal(selected, version_number(at("from")));
        assert_ok(derive(&ways[i], at("from"), at("out"), &disk.io));
        assert_int_equal(version_of(at("out"), &ways[i], false), 'a');
        remove_tree(at("out"));
        replace_source();
        assert_fails(
            BAGS_ERROR_CHANGED, derive(&ways[i], at("from"), at("out"), &disk.io));
        assert_says("from: another process replaced it*since its datapoints");
        check_outcome(BAGS_ERROR_CHANGED, &ways[i], false);
        selected = 0;
        remove_all();
    }
}

static void so_is_a_dataset_whose_fields_or_datapoints_are_added(void **state) {
    (void)state;
    bags_derive_options options = {0};
    bags_derive_more more = {at("other"), NULL, 0};
    bags_writer_options writing = {0};
    write_source(at("from"), 'a', &ways[1]);
    copy_tree(at("from"), at("other"));
    selected = version_number(at("from"));
    joined_version = more.version = version_number(at("other"));
    options.version = selected;
    options.copy = &writing;
    options.more = &more;
    options.more_count = 1;
    for (int replaced = 0; replaced < 2; replaced++) {
        bags_code expected = replaced ? BAGS_ERROR_CHANGED : BAGS_OK;
        assert_int_equal(derive(&ways[1], at("from"), at("out"), &disk.io), expected);
        if (replaced)
            assert_says("other: another process replaced it");
        check_outcome(expected, &ways[1], false);
        assert_int_equal(
            bags_derive(at("from"), at("out"), &options, NULL, &said), expected);
        if (replaced)
            assert_says("other: another process replaced it");
        else
            remove_tree(at("out"));
        remove_tree(at("other"));
        write_source(at("other"), 'b', &ways[1]);
    }
    selected = joined_version = 0;
    remove_all();
}

/* ---- nothing is selected ---- */

static void without_datapoints_it_is_an_empty_dataset(void **state) {
    (void)state;
    static const uint64_t none[1] = {0};
    for (size_t i = 0; i < WAYS; i++)
        for (uint64_t worker = 0; worker < 3; worker++) {
            bags_derive_options options = {0};
            bags_derive_report report;
            bags_writer_options writing = {0};
            bags_verify_options verifying = {0};
            bags_verify_report found;
            bags_reader *reader;
            size_t shards = 0;
            write_source(at("from"), 'a', &ways[i]);
            writing.shard_length = ways[i].shard_length;
            writing.checksum = ways[i].checksum;
            writing.keep_idx = true;
            options.copy = ways[i].copy ? &writing : NULL;
            options.rows = none;
            options.shard_start = worker;
            options.shard_stop = worker ? 2 : 0;
            options.env.io = &disk.io;
            if (worker == 2)
                options.shard_start = 0;
            if (ways[i].copy && worker && !writing.shard_length)
                writing.shard_length = 1;
            assert_ok(bags_derive(at("from"), at("out"), &options, &report, &said));
            assert_int_equal(report.shards, worker != 1);
            assert_int_equal(report.length, 0);
            assert_int_equal(report.linked, 0);
            if (worker == 1) {
                assert_false(exists(at("out/000000")));
            } else {
                assert_opens(reader, bags_reader_open(at("out"), NULL, &said));
                const bags_shard *shard = bags_reader_shards(reader, &shards);
                bool sharded = ways[i].shard_length || (ways[i].copy && worker);
                assert_int_equal(shards, 1);
                assert_int_equal(shard->digits, sharded ? 6 : 0);
                assert_int_equal(bags_reader_length(reader), 0);
                bags_reader_close(reader);
                assert_ok(bags_verify(at("out"), &verifying, &found, &said));
                assert_int_equal(found.checksums, ways[i].checksum ? 3 : 0);
                assert_file(at(sharded ? "out/000000/id.bag" : "out/id.bag"),
                    "\0\0\0\0\0\0\0\0", 8);
                assert_int_equal(
                    exists(at(sharded ? "out/000000/refs.idx" : "out/refs.idx")),
                    ways[i].copy);
            }
            if (exists(at("out")))
                remove_tree(at("out"));
            remove_all();
        }
}

static void derive_too(void) {
    other.code = derive(other.how, at("next"), at("out"), bags_io_local());
}

static void of_two_derivations_to_one_path_one_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < WAYS; i++)
        for (size_t k = 0; k < WAYS; k++) {
            /* The second one is complete: what it has besides Bags does not matter. */
            if (ways[i].joined || ways[k].joined || ways[k].dictionaries)
                continue;
            write_source(at("from"), 'a', &ways[i]);
            write_source(at("next"), 'b', &ways[k]);
            for (uint64_t n = 1 + i + k;; n += support_stride() * support_stride()) {
                let_another(derive_too, ~0u, n, &ways[k]);
                bags_code code = derive(&ways[i], at("from"), at("out"), &disk.io);
                disk.before = NULL;
                if (other.done) {
                    assert_true(!code != !other.code);
                    assert_int_equal(code ? code : other.code, BAGS_ERROR_EXISTS);
                }
                assert_int_equal(
                    version_of(at("out"), code ? &ways[k] : &ways[i], false),
                    code ? 'b' : 'a');
                assert_false(exists(at("out.derived")));
                remove_tree(at("out"));
                if (!other.done)
                    break;
            }
            remove_all();
        }
}

static void nothing_is_made_in_the_directory_of_a_dataset(void **state) {
    (void)state;
    static const char *const paths[] = {"from/000003", "from/9", "from/9/x",
        "from/new/sub/x", "from//9//x/", "link/9/x", "from/000000/../9/x",
        "from/000000/x", "inner/x", "inner/y/", "other/x", "other/new/x"};
    write_version(at("from"), 'a', 3, false);
    write_version(at("other"), 'a', 0, false);
    make_dir(at("from/000001/inner"));
    copy_tree(at("from"), at("saved"));
    assert_int_equal(symlink(at("from"), at("link")), 0);
    assert_int_equal(symlink(at("from/000001/inner"), at("inner")), 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (int copy = 0; copy < 4; copy++) {
            way how = {"", 3, false, copy % 2 != 0, false, false};
            assert_fails(
                BAGS_ERROR_ARGUMENT, derive(&how, at(copy < 2 ? "from" : "other"),
                                         at("%s", paths[i]), &disk.io));
            assert_says("is in the directory of the dataset");
            assert_same_tree(at("from"), at("saved"));
        }
    assert_int_equal(remove(at("link")), 0);
    assert_int_equal(remove(at("inner")), 0);
    remove_all();
}

/* Hooks that fail for one path; of a directory, if it is listed. */
static struct {
    char path[4200];
    int error;
    bool listed;
} odd;

static bool is_odd(const char *path) { return !strcmp(path, odd.path); }

static int odd_kind(void *user, const char *path, bags_path_kind *kind) {
    return is_odd(path) && !odd.listed ? odd.error : disk.io.kind(user, path, kind);
}

static int odd_list(void *user, const char *path,
    int (*each)(void *data, const char *name), void *data) {
    return is_odd(path) ? odd.error : disk.io.list(user, path, each, data);
}

static int odd_identify(void *user, void *file, const char *path, bags_identity *out) {
    return is_odd(path) ? odd.error : disk.io.identify(user, file, path, out);
}

static void where_a_dataset_may_be_an_error_is_not_passed_over(void **state) {
    (void)state;
    static const char *const paths[] = {"sub/spec.json", "sub/spec.json.derived",
        "sub/000000/spec.json", "sub", "sub/.."};
    static const int errors[] = {EIO, ENOMEM, EACCES};
    way how = {"", 3, false, false, false, false};
    bags_io io = disk.io;
    io.kind = odd_kind;
    io.list = odd_list;
    io.identify = odd_identify;
    write_version(at("from"), 'a', 3, false);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (size_t k = 0; k < sizeof errors / sizeof *errors; k++) {
            make_dir(at("sub"));
            odd.listed = i == 3;
            if (odd.listed) /* only a directory with such a file is */
                save_text(at("sub/spec.json"), "{}");
            snprintf(odd.path, sizeof odd.path, "%s", at("%s", paths[i]));
            odd.error = errors[k];
            if (errors[k] == EACCES) {
                assert_ok(derive(&how, at("from"), at("sub/out"), &io));
            } else {
                assert_fails(errors[k] == EIO ? BAGS_ERROR_IO : BAGS_ERROR_MEMORY,
                    derive(&how, at("from"), at("sub/out"), &io));
                assert_says("cannot search for a dataset in");
                assert_false(exists(at("sub/out")));
            }
            remove_tree(at("sub"));
        }
    remove_all();
}

/* ---- blobs that no datapoint refers to ---- */

#define MOST_BLOBS 200

/* What is expected of all shards, of the fields `many` and `one`. */
static bags_field_info expected[2];

/* Write a shard whose refs are random: in order, overlapping, repeated, with gaps. */
static void write_random_shard(const char *path, enum variant variant, uint64_t *seed) {
    hand_bag bags[2] = {{{0}, {0}}, {{0}, {0}}}, refs = {{0}, {0}};
    uint64_t lengths[2], next[2] = {0, 0}, kind = next_random(seed) % 4;
    bool used[2][MOST_BLOBS] = {{false}, {false}};
    char *to = strdup(path);
    uint64_t rows = next_random(seed) % 100;
    make_dir(to);
    for (int k = 0; k < 2; k++) {
        lengths[k] = 1 + next_random(seed) % MOST_BLOBS;
        if (kind == 0 && k == 1 && rows > 0) /* all are referred to */
            lengths[k] = rows;
        for (uint64_t i = 0; i < lengths[k]; i++)
            hand_add(&bags[k], "0123456789", 1 + (size_t)(i * 7 + (uint64_t)k) % 10);
    }
    for (uint64_t i = rows; i > 0; i--) {
        bytes row = {0};
        put_array(&row, 2);
        for (int k = 0; k < 2; k++) {
            uint64_t first = kind < 2 ? next[k] : next_random(seed) % lengths[k];
            uint64_t count = k ? 1 : next_random(seed) % 5;
            if (kind == 1) /* sometimes a gap, or some again */
                first += next_random(seed) % 3 - (first > 0);
            if (kind == 0 && i == 1 && k == 0)
                count = lengths[k];
            first = first < lengths[k] ? first : lengths[k] - 1;
            count = count < lengths[k] - first ? count : lengths[k] - first;
            next[k] = first + count;
            for (uint64_t j = 0; j < count; j++)
                used[k][first + j] = true;
            if (k == 0)
                put_array(&row, count ? 2 : 0);
            if (k == 1 || count)
                put_uint(&row, first);
            if (k == 0 && count)
                put_uint(&row, count);
        }
        hand_add(&refs, row.data, row.size);
        bytes_free(&row);
    }
    for (int k = 0; k < 2; k++) {
        for (uint64_t i = 0; i < lengths[k]; i++) {
            expected[k].blobs += !used[k][i];
            expected[k].size += used[k][i] ? 0 : 1 + (i * 7 + (uint64_t)k) % 10;
        }
        hand_save(&bags[k], variant, to, k ? "one" : "many");
        hand_free(&bags[k]);
    }
    hand_save(&refs, variant, to, "refs");
    hand_free(&refs);
    char *spec = strdup(to);
    spec = (char *)realloc(spec, strlen(to) + 16);
    strcat(spec, "/spec.json");
    save_text(spec, "{\"many\": \"utf8[]\", \"one\": \"utf8\"}");
    free(spec);
    free(to);
}

static void blobs_that_no_datapoint_refers_to_are_counted(void **state) {
    (void)state;
    uint64_t any = 0;
    for (uint64_t n = 1; n <= 100; n++) {
        uint64_t seed = n, shards = n % 4;
        bags_reader *reader;
        bags_zip_options zipping;
        bags_field_info found[2];
        enum variant variant = n % 2 ? V1 : V2;
        memset(expected, 0, sizeof expected);
        memset(&zipping, 0, sizeof zipping);
        if (shards)
            make_dir(at("from"));
        for (uint64_t i = 0; i < (shards ? shards : 1); i++)
            write_random_shard(
                shards ? at("from/%06d", (int)i) : at("from"), variant, &seed);
        assert_opens(reader, bags_reader_open(at("from"), NULL, &said));
        for (int sizes = 0; sizes < 2; sizes++) {
            memset(found, 255, sizeof found);
            assert_ok(bags_unreferenced(reader, NULL, sizes != 0, found, &said));
            for (int k = 0; k < 2; k++) {
                assert_int_equal(found[k].blobs, expected[k].blobs);
                assert_int_equal(found[k].size, sizes ? expected[k].size : 0);
            }
        }
        bags_reader_close(reader);
        bool all = !expected[0].blobs && !expected[1].blobs;
        any += all;
        zipping.no_sync = true;
        if (all)
            assert_ok(bags_zip(at("from"), at("out"), &zipping, &said));
        else
            assert_fails(
                BAGS_ERROR_VALUE, bags_zip(at("from"), at("out"), &zipping, &said));
        if (!all) {
            assert_says("blob*that no datapoint refers to");
            assert_false(exists(at("out")));
            zipping.whole = true;
            assert_ok(bags_zip(at("from"), at("out"), &zipping, &said));
        }
        assert_int_equal(remove(at("out")), 0);
        remove_all();
    }
    assert_in_range(any, 1, 99);
}

static void a_bag_of_many_blobs_needs_no_more_memory(void **state) {
    (void)state;
    static const bags_ref refs[] = {
        {200000000, 5}, {10, 3}, {(1u << 27) - 8, 20}, {12, 4}, {299999999, 1}};
    const uint64_t length = 300000000; /* empty ones, in a sparse file */
    uint64_t used = 5 + 3 + 20 + 3 + 1;
    hand_bag rows = {{0}, {0}};
    bags_reader *reader;
    bags_field_info found;
    bags_env env = {&memory.allocator, &disk.io};
    skip_on_windows("a sparse file");
    make_dir(at("from"));
    save_text(at("from/spec.json"), "{\"x\": \"utf8[]\"}");
    save_text(at("from/x.bag"), "");
    resize_file(at("from/x.bag"), 8 * (length + 1));
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        bytes row = {0};
        put_array(&row, 1);
        put_array(&row, 2);
        put_uint(&row, refs[i].first);
        put_uint(&row, refs[i].count);
        hand_add(&rows, row.data, row.size);
        bytes_free(&row);
    }
    hand_save(&rows, V1, at("from"), "refs");
    hand_free(&rows);
    assert_opens(reader, bags_reader_open(at("from"), NULL, &said));
    memory.peak = memory.used;
    assert_ok(bags_unreferenced(reader, &env, false, &found, &said));
    assert_in_range(memory.peak, 0, memory.used + ((size_t)17 << 20));
    assert_int_equal(found.blobs, length - used);
    for (uint64_t n = 1;; n++) { /* or fails */
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bags_code code = bags_unreferenced(reader, &env, n % 2, &found, &said);
        memory.fail_at = 0;
        assert_int_equal(code, memory.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        if (!memory.failed)
            break;
    }
    bags_reader_close(reader);
    remove_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_failure_of_any_call_leaves_nothing),
        TEST(a_failure_to_allocate_leaves_nothing),
        TEST(files_that_cannot_be_linked_need_a_copy),
        TEST(a_source_that_changes_is_never_mixed),
        TEST(what_was_selected_in_another_version_is_refused),
        TEST(so_is_a_dataset_whose_fields_or_datapoints_are_added),
        TEST(without_datapoints_it_is_an_empty_dataset),
        TEST(of_two_derivations_to_one_path_one_is_refused),
        TEST(blobs_that_no_datapoint_refers_to_are_counted),
        TEST(a_bag_of_many_blobs_needs_no_more_memory),
        TEST(nothing_is_made_in_the_directory_of_a_dataset),
        TEST(where_a_dataset_may_be_an_error_is_not_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
