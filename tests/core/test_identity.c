/* Two processes, two runs or two versions of a dataset at one path: whatever is
 * renamed, replaced or removed under a writer or reader, nothing is lost, doubled or
 * mixed. */
// flavours: test: release; check: asan
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif
#include <unistd.h>

static const bags_field fields[] = {{"label", "int(4)"}, {"text", "utf8"}};

static bags_writer_options writing(uint64_t shard_length) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.shard_length = shard_length;
    options.no_sync = true;
    options.buffer_size = 4096;
    options.env.allocator = &memory.allocator;
    return options;
}

static bags_writer *open_writer(const char *path, const bags_writer_options *options) {
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 2, options, &said));
    return writer;
}

/* Datapoint `number` is that number, and a text made of it. */
static bags_code append(bags_writer *writer, int64_t number) {
    char text[32];
    snprintf(text, sizeof text, "text of %06d", (int)number);
    bags_value values[] = {bags_int(number), bags_utf8(text)};
    bags_entry entries[] = {{"label", &values[0], 1}, {"text", &values[1], 1}};
    return bags_writer_append(writer, entries, 2, &said);
}

static void append_all(bags_writer *writer, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        assert_ok(append(writer, first + i));
}

static void write_set(const char *path, uint64_t shard_length, int64_t first,
    int64_t count, bool checksum) {
    bags_writer_options options = writing(shard_length);
    options.checksum = checksum;
    bags_writer *writer = open_writer(path, &options);
    append_all(writer, first, count);
    assert_ok(bags_writer_close(writer, &said));
}

/* The dataset must consist of these datapoints. */
static void assert_set(const char *path, int64_t first, int64_t count) {
    bags_reader *reader;
    bags_row row = {0};
    char text[32];
    assert_ok(bags_verify(path, NULL, NULL, &said));
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    assert_int_equal(bags_reader_length(reader), count);
    for (int64_t i = 0; i < count; i++) {
        bags_value value;
        assert_ok(bags_reader_get(reader, (uint64_t)i, NULL, 0, &row, &said));
        assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
        assert_true(value.sint == first + i);
        snprintf(text, sizeof text, "text of %06d", (int)(first + i));
        assert_text(bags_row_bytes(&row, 1, 0), text);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void rename_path(const char *from, const char *to) {
    assert_int_equal(rename(from, to), 0);
}

/* ---- writers ---- */

/* A new job replaces the directory of an old one, which is still running. */
static void a_writer_does_not_touch_what_replaced_its_shard(void **state) {
    (void)state;
    skip_on_windows("a directory with open files cannot be renamed");
    for (int way = 0; way < 10; way++) {
        bool sharded = way % 2;
        bags_writer_options options = writing(sharded ? 100 : 0);
        options.checksum = way > 4;
        bags_writer *old = open_writer(at("x"), &options);
        append_all(old, 0, 3);
        assert_ok(bags_writer_flush(old, &said));
        rename_path(at("x"), at("old"));
        bags_writer *young = open_writer(at("x"), &options);
        append_all(young, 50, 4);
        assert_ok(bags_writer_flush(young, &said));
        copy_tree(at("x"), at("copy"));
        if (way / 2 == 0) {
            bags_writer_abort(old);
        } else {
            assert_fails(
                BAGS_ERROR_CHANGED, way / 2 == 1   ? bags_writer_close(old, &said)
                                    : way / 2 == 2 ? bags_writer_flush(old, &said)
                                                   : bags_writer_sync(old, &said));
            assert_says(sharded ? "x/000000/spec.json.partial: *another"
                                : "x/spec.json.partial: *another");
            if (way / 2 == 2 || way / 2 == 3) /* it is at its end */
                assert_fails(BAGS_ERROR_CHANGED, bags_writer_close(old, &said));
            if (way / 2 == 4)
                bags_writer_abort(old);
        }
        assert_same_tree(at("x"), at("copy"));
        assert_false(exists(at(sharded ? "x/000000/spec.json" : "x/spec.json")));
        assert_ok(bags_writer_close(young, &said));
        assert_set(at("x"), 50, 4);
        assert_true(exists(at(sharded ? "old/000000/text.idx" : "old/text.idx")));
        remove_tree(at("x"));
        remove_tree(at("old"));
        remove_tree(at("copy"));
    }
}

static void a_bag_writer_does_not_touch_what_replaced_its_bag(void **state) {
    (void)state;
    skip_on_windows("an open file cannot be replaced");
    for (int way = 0; way < 4; way++) {
        bag_writer *writer;
        assert_opens(writer, bag_writer_open(at("a.bag"), NULL, &said));
        assert_ok(bag_writer_append(writer, "abc", 3, NULL, &said));
        assert_ok(bag_writer_flush(writer, &said));
        rename_path(at("a.bag"), at("b.bag"));
        rename_path(at("a.idx"), at("b.idx"));
        save_text(at("a.bag"), "another");
        save_text(at("a.idx"), "one");
        if (way == 0) {
            bag_writer_abort(writer);
        } else {
            assert_fails(BAGS_ERROR_CHANGED, way == 1 ? bag_writer_close(writer, &said)
                                             : way == 2
                                                 ? bag_writer_flush(writer, &said)
                                                 : bag_writer_sync(writer, &said));
            assert_says("a.bag: *another");
            if (way > 1)
                bag_writer_abort(writer);
        }
        assert_file(at("a.bag"), "another", 7);
        assert_file(at("a.idx"), "one", 3);
        assert_int_equal(file_size(at("b.bag")), 3);
        for (const char *c = "ab"; *c; c++) {
            remove(at("%c.bag", *c));
            remove(at("%c.idx", *c));
        }
    }
}

/* Remove a file, or replace it by another one. */
static void lose(const char *path, bool replace) {
    if (!replace) {
        assert_int_equal(remove(path), 0);
        return;
    }
    save_text(at("another"), "another");
    rename_path(at("another"), path);
}

static void assert_lost(const char *path, bool replaced) {
    if (replaced)
        assert_file(path, "another", 7);
    else
        assert_false(exists(path));
}

static void a_writer_notices_that_a_file_of_its_shard_is_lost(void **state) {
    static const char *const names[] = {
        "label.bag", "text.idx", "text.crc", "refs.bag", "refs.crc"};
    enum { FLUSH, SYNC, CLOSE, END, WAYS };
    (void)state;
    skip_on_windows("an open file cannot be replaced");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int way = 0; way < 2 * WAYS; way++) {
            bool replace = way % 2;
            bags_writer_options options = writing(4);
            options.checksum = true;
            bags_writer *writer = open_writer(at("x"), &options);
            append_all(writer, 0, 3);
            assert_ok(bags_writer_flush(writer, &said));
            lose(at("x/000000/%s", names[i]), replace);
            if (way / 2 == FLUSH)
                assert_fails(BAGS_ERROR_CHANGED, bags_writer_flush(writer, &said));
            else if (way / 2 == SYNC)
                assert_fails(BAGS_ERROR_CHANGED, bags_writer_sync(writer, &said));
            else if (way / 2 == END)
                assert_fails(BAGS_ERROR_CHANGED, append(writer, 3));
            assert_fails(BAGS_ERROR_CHANGED, bags_writer_close(writer, &said));
            assert_says(names[i]);
            assert_says("another process");
            assert_lost(at("x/000000/%s", names[i]), replace);
            assert_false(exists(at("x/000000/spec.json")));
            remove_tree(at("x"));
        }
}

static void a_bag_writer_notices_that_a_file_next_to_it_is_lost(void **state) {
    (void)state;
    skip_on_windows("an open file cannot be replaced");
    for (int way = 0; way < 8; way++) {
        const char *lost = way < 4 ? "a.idx" : "a.crc";
        bag_writer_options options;
        bag_writer *writer;
        memset(&options, 0, sizeof options);
        options.checksum = true;
        assert_opens(writer, bag_writer_open(at("a.bag"), &options, &said));
        assert_ok(bag_writer_append(writer, "abc", 3, NULL, &said));
        assert_ok(bag_writer_flush(writer, &said));
        lose(at("%s", lost), way & 1);
        if (way & 2)
            assert_fails(BAGS_ERROR_CHANGED, bag_writer_flush(writer, &said));
        assert_fails(BAGS_ERROR_CHANGED, bag_writer_close(writer, &said));
        assert_says(lost);
        assert_lost(at("%s", lost), way & 1);
        remove(at("a.bag"));
        remove(at("a.idx"));
        remove(at("a.crc"));
    }
}

static void (*in_between)(void);
static const char *in_front_of; /* the end of a path that is opened or removed */
static int only_mode;

static void come_in_front(const char *path, int mode) {
    size_t size = strlen(path), end = in_front_of ? strlen(in_front_of) : 0;
    if (!in_front_of || size < end || mode != only_mode ||
        strcmp(path + size - end, in_front_of) != 0)
        return;
    in_front_of = NULL;
    in_between();
}

static int open_after(void *user, const char *path, int mode, void **file) {
    come_in_front(path, mode);
    return bags_io_local()->open(user, path, mode, file);
}

static int lock_after(void *user, void *file) {
    come_in_front("lock", 0);
    return bags_io_local()->lock(user, file);
}

static bags_io disturbed(const char *path, int mode, void (*act)(void)) {
    bags_io io = *bags_io_local();
    io.open = open_after;
    io.lock = lock_after;
    in_front_of = path;
    only_mode = mode;
    in_between = act;
    return io;
}

/* What bags_finalize does in the moment after a writer has claimed the number. */
static void close_the_gap(void) { rename_path(at("x/000002"), at("x/000001")); }

static void a_claim_does_not_destroy_a_shard_that_was_renamed_over_it(void **state) {
    (void)state;
    skip_on_windows("a rename does not replace directories");
    for (int checksum = 0; checksum < 2; checksum++) {
        bags_writer_options options = writing(2);
        write_set(at("x"), 2, 0, 6, checksum);
        remove_tree(at("x/000001"));
        copy_tree(at("x/000002"), at("copy"));
        bags_io io = disturbed("/spec.json.partial", BAGS_IO_CREATE, close_the_gap);
        options.env.io = &io;
        options.shard_start = 1;
        options.shard_stop = 2;
        bags_writer *writer = open_writer(at("x"), &options);
        assert_fails(BAGS_ERROR_CHANGED, append(writer, 1));
        assert_says("x/000001: has a spec.json that another process wrote");
        assert_fails(BAGS_ERROR_CHANGED, bags_writer_close(writer, &said));
        assert_same_tree(at("x/000001"), at("copy"));
        remove_tree(at("x"));
        remove_tree(at("copy"));
    }
}

/* What a writer does that claimed the number before and was slow. */
static void finish_the_claim(void) {
    remove_tree(at("x/000002"));
    copy_tree(at("x/000001"), at("x/000002"));
}

static void recovery_leaves_a_shard_that_is_finished_just_before(void **state) {
    bags_recover_options options;
    (void)state;
    memset(&options, 0, sizeof options);
    write_set(at("x"), 2, 0, 4, false);
    make_dir(at("x/000002"));
    bags_io io = disturbed("/spec.json.partial", BAGS_IO_CREATE, finish_the_claim);
    options.env.io = &io;
    assert_ok(bags_recover(at("x"), &options, NULL, &said));
    assert_true(in_front_of == NULL);
    assert_same_tree(at("x/000002"), at("x/000001"));
}

static void claim_the_gap(void) { make_dir(at("x/000001")); }

static void finalize_does_not_replace_what_a_writer_has_claimed(void **state) {
    bags_finalize_options options;
    (void)state;
    memset(&options, 0, sizeof options);
    write_set(at("x"), 2, 0, 6, false);
    remove_tree(at("x/000001"));
    bags_io io = disturbed("lock", 0, claim_the_gap);
    options.env.io = &io;
    assert_fails(BAGS_ERROR_EXISTS, bags_finalize(at("x"), &options, NULL, &said));
    assert_says("x/000001: already exists");
    assert_names(at("x"), "000000 000001 000002");
    remove_tree(at("x/000001"));
    assert_ok(bags_finalize(at("x"), &options, NULL, &said));
    assert_names(at("x"), "000000 000001");
}

static void replace_the_record(void) {
    rename_path(at("x"), at("old"));
    bags_writer_options options = writing(0);
    bags_writer *writer = open_writer(at("x"), &options);
    append_all(writer, 10, 2);
    assert_ok(bags_writer_flush(writer, &said));
    bags_writer_abort(writer); /* as if it were removed again */
    copy_tree(at("old"), at("x"));
}

static void a_record_that_was_replaced_before_it_was_locked_is_noticed(void **state) {
    (void)state;
    skip_on_windows("a directory with open files cannot be renamed");
    for (int resume = 0; resume < 2; resume++) {
        bags_writer_options options = writing(0);
        bags_recover_options recovering;
        memset(&recovering, 0, sizeof recovering);
        write_set(at("y"), 0, 0, 3, false);
        /* A crashed writer leaves this. */
        bags_writer *writer = open_writer(at("x"), &options);
        append_all(writer, 0, 3);
        assert_ok(bags_writer_flush(writer, &said));
        copy_tree(at("x"), at("left"));
        bags_writer_abort(writer);
        rename_path(at("left"), at("x"));
        copy_tree(at("x"), at("copy"));
        bags_io io = disturbed("lock", 0, replace_the_record);
        options.env.io = recovering.env.io = &io;
        options.existing = BAGS_EXISTING_RESUME;
        if (resume)
            assert_refused(BAGS_ERROR_LOCKED,
                bags_writer_open(at("x"), fields, 2, &options, &said));
        else
            assert_fails(
                BAGS_ERROR_LOCKED, bags_recover(at("x"), &recovering, NULL, &said));
        assert_says("x: unfinished; another process");
        assert_same_tree(at("x"), at("copy"));
        assert_same_tree(at("old"), at("copy"));
        if (resume) {
            writer = open_writer(at("x"), &options);
            assert_int_equal(bags_writer_resumed(writer), 3);
            append_all(writer, 3, 1);
            assert_ok(bags_writer_close(writer, &said));
        } else {
            assert_ok(bags_recover(at("x"), &recovering, NULL, &said));
        }
        assert_set(at("x"), 0, 3 + resume);
        remove_tree(at("x"));
        remove_tree(at("y"));
        remove_tree(at("old"));
        remove_tree(at("copy"));
    }
}

static void a_sharded_and_an_unsharded_dataset_do_not_share_a_path(void **state) {
    bags_writer_options sharded = writing(2), single = writing(0);
    (void)state;
    for (int closed = 0; closed < 2; closed++) {
        bags_writer *many = open_writer(at("x"), &sharded);
        bags_writer *one = open_writer(at("x"), &single);
        append_all(one, 5, 2);
        if (closed)
            assert_ok(bags_writer_close(one, &said));
        assert_fails(BAGS_ERROR_EXISTS, append(many, 1));
        assert_says("x: not sharded: cannot append");
        assert_fails(BAGS_ERROR_EXISTS, bags_writer_close(many, &said));
        if (!closed)
            assert_ok(bags_writer_close(one, &said));
        assert_set(at("x"), 5, 2);
        remove_tree(at("x"));
    }
    /* The shard came later than the check. */
    bags_writer *one = open_writer(at("x"), &single);
    append_all(one, 5, 2);
    make_dir(at("x/000000"));
    assert_fails(BAGS_ERROR_CORRUPT, bags_writer_close(one, &said));
    assert_says("x: has both spec.json and shards (000000)");
    assert_false(exists(at("x/spec.json")));
}

/* ---- recovery beside a writer that resumes ---- */

static uint64_t calls, act_at;

static void count_call(void *user) {
    void (*act)(void) = *(void (**)(void))user;
    if (++calls == act_at)
        act();
}

static void leave_shards(void) {
    bags_writer_options options = writing(3);
    bags_writer *writer = open_writer(at("set"), &options);
    append_all(writer, 0, 5);
    assert_ok(bags_writer_flush(writer, &said));
    copy_tree(at("set"), at("x"));
    bags_writer_abort(writer);
    remove_tree(at("set"));
}

static void recover_all(void) {
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    bags_recover(at("x"), &options, NULL, NULL);
}

static bool resume_was_refused;

static void resume_all(void) {
    bags_writer_options options = writing(3);
    options.existing = BAGS_EXISTING_RESUME;
    bags_writer *writer = bags_writer_open(at("x"), fields, 2, &options, NULL);
    resume_was_refused = !writer;
    if (!writer)
        return;
    assert_int_equal(bags_writer_resumed(writer), 5);
    append_all(writer, 5, 2);
    assert_ok(bags_writer_close(writer, &said));
}

/* At every call of the one, all of the other. */
static void recovery_next_to_a_resuming_writer_counts_every_shard_once(void **state) {
    bool reached = true;
    (void)state;
    for (act_at = 1; reached; act_at++) {
        for (int resume = 0; resume < 2; resume++) {
            watch eyes;
            void (*act)(void) = resume ? recover_all : resume_all;
            leave_shards();
            watch_start(&eyes, bags_io_local());
            eyes.before = count_call;
            eyes.user = &act;
            calls = 0;
            resume_was_refused = true;
            if (resume) {
                bags_writer_options options = writing(3);
                options.existing = BAGS_EXISTING_RESUME;
                options.env.io = &eyes.io;
                bags_writer *writer =
                    bags_writer_open(at("x"), fields, 2, &options, &said);
                if (!writer) {
                    assert_int_equal(said.code, BAGS_ERROR_LOCKED);
                } else {
                    assert_int_equal(bags_writer_resumed(writer), 5);
                    append_all(writer, 5, 2);
                    assert_ok(bags_writer_close(writer, &said));
                    resume_was_refused = false;
                }
            } else {
                bags_recover_options options;
                bags_recover_report report;
                memset(&options, 0, sizeof options);
                options.no_sync = true;
                options.env.io = &eyes.io;
                bags_code code = bags_recover(at("x"), &options, &report, &said);
                assert_true(code == BAGS_OK || code == BAGS_ERROR_LOCKED);
                assert_true(report.failed == 0);
                /* Either counts the unfinished shard. */
                assert_true(report.finished_now <= 1);
            }
            reached = resume ? reached || calls >= act_at : calls >= act_at;
            if (resume_was_refused)
                resume_all();
            assert_set(at("x"), 0, 7);
            remove_tree(at("x"));
        }
    }
    print_message("%d calls\n", (int)act_at);
    assert_true(act_at > 60);
}

/* ---- locks without effect ---- */

static int lock_nothing(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

static void locks_without_effect_are_noticed(void **state) {
    bags_writer_options options = writing(3);
    bags_recover_options recovering;
    bags_io io = *bags_io_local();
    (void)state;
    memset(&recovering, 0, sizeof recovering);
    io.lock = lock_nothing;
    recovering.env.io = options.env.io = &io;
    bags_writer *writer = open_writer(at("x"), &options);
    append_all(writer, 0, 2);
    assert_ok(bags_writer_flush(writer, &said));
    copy_tree(at("x"), at("copy"));
    assert_fails(BAGS_ERROR_IO, bags_recover(at("x"), &recovering, NULL, &said));
    assert_says("x/000000/spec.json.partial: locks have no effect");
    options.existing = BAGS_EXISTING_RESUME;
    assert_refused(
        BAGS_ERROR_IO, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("locks have no effect");
    assert_same_tree(at("x"), at("copy"));
    append_all(writer, 2, 2);
    assert_ok(bags_writer_close(writer, &said));
    assert_set(at("x"), 0, 4);
}

/* ---- where and who ---- */

static void a_later_chdir_changes_nothing(void **state) {
    char here[4096];
    bags_writer_options options = writing(2);
    bag_writer *bag;
    bags_row row = {0};
    bags_reader *reader;
    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    make_dir(at("a"));
    make_dir(at("b"));
    assert_int_equal(chdir(at("a")), 0);
    bags_writer *writer = open_writer("x", &options);
    assert_opens(bag, bag_writer_open("one.bag", NULL, &said));
    append_all(writer, 0, 3);
    assert_int_equal(chdir(at("b")), 0);
    append_all(writer, 3, 2);
    assert_ok(bags_writer_close(writer, &said));
    assert_ok(bag_writer_append(bag, "abc", 3, NULL, &said));
    assert_ok(bag_writer_close(bag, &said));
    assert_names(at("b"), "");
    assert_names(at("a"), "one.bag x");
    assert_set(at("a/x"), 0, 5);
    assert_int_equal(chdir(at("a")), 0);
    bags_reader_options reading;
    memset(&reading, 0, sizeof reading);
    reading.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open("x", &reading, &said));
    assert_int_equal(chdir(at("b")), 0);
    write_set("x", 2, 100, 5, false);
    bags_value value;
    assert_ok(bags_reader_get(reader, 4, NULL, 0, &row, &said));
    assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
    assert_int_equal(value.sint, 4);
    /* Messages show the path as it was passed. */
    assert_fails(BAGS_ERROR_RANGE, bags_reader_get(reader, 5, NULL, 0, &row, &said));
    assert_int_equal(strncmp(said.message, "x: datapoint index 5", 20), 0);
    remove(at("a/x/000000/refs.bag"));
    assert_fails(BAGS_ERROR_MISSING, bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_int_equal(strncmp(said.message, "x/000000/refs.bag: ", 19), 0);
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_int_equal(chdir(here), 0);
}

#ifndef _WIN32
static void a_forked_child_leaves_the_writer_of_its_parent_alone(void **state) {
    (void)state;
    for (int way = 0; way < 8; way++) {
        int status = 0;
        bags_writer_options options = writing(way % 2 ? 10 : 0);
        bag_writer *bag;
        bags_writer *writer = open_writer(at("x"), &options);
        assert_opens(bag, bag_writer_open(at("y.bag"), NULL, &said));
        append_all(writer, 0, 3);
        assert_ok(bag_writer_append(bag, "abc", 3, NULL, &said));
        if (way / 4)
            assert_ok(bags_writer_flush(writer, &said));
        pid_t child = fork();
        if (child == 0) {
            bool right = true;
            if (way / 2 % 2) {
                bags_writer_abort(writer);
                bag_writer_abort(bag);
            } else {
                right = bags_writer_flush(writer, &said) == BAGS_ERROR_STATE &&
                        contains(said.message, "fork()") &&
                        bags_writer_sync(writer, NULL) == BAGS_ERROR_STATE &&
                        append(writer, 9) == BAGS_ERROR_STATE &&
                        bags_writer_close(writer, NULL) == BAGS_ERROR_STATE &&
                        bag_writer_flush(bag, NULL) == BAGS_ERROR_STATE &&
                        bag_writer_sync(bag, NULL) == BAGS_ERROR_STATE &&
                        bag_writer_close(bag, NULL) == BAGS_ERROR_STATE;
            }
            _exit(right ? 0 : 1);
        }
        assert_true(waitpid(child, &status, 0) == child && status == 0);
        assert_fails(BAGS_ERROR_LOCKED, bags_recover(at("x"), NULL, NULL, &said));
        append_all(writer, 3, 2);
        assert_ok(bags_writer_close(writer, &said));
        assert_set(at("x"), 0, 5);
        assert_ok(bag_writer_close(bag, &said));
        assert_int_equal(file_size(at("y.bag")), 3 + 16);
        remove_tree(at("x"));
        remove(at("y.bag"));
    }
}

/* Without a call in between: the child finds out when its buffer is full. */
static void a_forked_child_writes_nothing(void **state) {
    int status = 0;
    bags_writer_options options = writing(0);
    (void)state;
    bags_writer *writer = open_writer(at("x"), &options);
    append_all(writer, 0, 3);
    pid_t child = fork();
    if (child == 0) {
        bags_code code = BAGS_OK;
        for (int i = 0; i < 100000 && !code; i++)
            code = append(writer, 1000 + i);
        _exit(code == BAGS_ERROR_STATE ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    append_all(writer, 3, 2);
    assert_ok(bags_writer_close(writer, &said));
    assert_set(at("x"), 0, 5);
}
#endif

/* ---- readers ---- */

enum { MAPPED, READ_ONE_FILE, READ_CHECKED, MAPPED_CHECKED, READ_LIVE, WAYS };

static bags_reader_options reading(int way) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.no_mmap = way == READ_ONE_FILE || way == READ_CHECKED;
    options.max_files = 1;
    options.verify_checksums = way == READ_CHECKED || way == MAPPED_CHECKED;
    if (way == READ_LIVE)
        options.unfinished = BAGS_UNFINISHED_READ;
    options.allow_gaps = true;
    options.env.allocator = &memory.allocator;
    return options;
}

/* Everything that opens a file fails, and names the shard. */
static void assert_replaced(
    const bags_reader *reader, uint64_t index, uint64_t place, const char *shard) {
    bags_row row = {0};
    bags_view blob;
    bag_blobs all;
    bags_info info;
    for (int i = 0; i < 4; i++) {
        poison();
        bags_code code =
            i == 0   ? bags_reader_get(reader, index, NULL, 0, &row, &said)
            : i == 1 ? bags_reader_get_blob(reader, index, 1, 0, &row, &blob, &said)
            : i == 2 ? bags_reader_blobs(reader, place, 1, true, &row, &all, &said)
                     : bags_reader_info(reader, &info, NULL, &said);
        assert_true(code == BAGS_ERROR_CHANGED || code == BAGS_ERROR_MISSING);
        assert_says(shard);
    }
    bags_row_free(&row);
}

static void a_replaced_shard_is_an_error_for_its_readers(void **state) {
    (void)state;
    skip_on_windows("a directory with open files cannot be renamed");
    for (int way = 0; way < WAYS; way++) {
        for (int sharded = 0; sharded < 2; sharded++) {
            bags_reader_options options = reading(way);
            bags_select label = bags_select_all(0);
            bags_reader *reader;
            bags_row row = {0};
            bags_value value;
            write_set(at("x"), 2, 0, 4, true);
            write_set(at("y"), 2, 10, 4, true);
            if (!sharded) { /* each as an unsharded dataset */
                rename_path(at("x/000001"), at("z"));
                remove_tree(at("x"));
                rename_path(at("z"), at("x"));
            }
            assert_opens(reader, bags_reader_open(at("x"), &options, &said));
            uint64_t index = sharded ? 2 : 0;
            assert_ok(bags_reader_get(reader, index, &label, 1, &row, &said));
            assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
            assert_int_equal(value.sint, 2);
            if (sharded) {
                rename_path(at("x/000001"), at("old"));
                rename_path(at("y/000001"), at("x/000001"));
            } else {
                rename_path(at("x"), at("old"));
                rename_path(at("y/000001"), at("x"));
            }
            if (sharded || way == MAPPED)
                assert_replaced(
                    reader, index, (uint64_t)sharded, sharded ? "x/000001" : "x/");
            else
                assert_fails(BAGS_ERROR_CHANGED,
                    bags_reader_get(reader, index, NULL, 0, &row, &said));
            if (sharded) /* the other shard is the same */
                assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
            bags_row_free(&row);
            bags_reader_close(reader);
            remove_tree(at("x"));
            remove_tree(at("y"));
            remove_tree(at("old"));
        }
    }
}

/* Not replaced, but rewritten, with inodes that were used before. */
static void a_dataset_that_was_written_again_is_an_error_for_its_readers(void **state) {
    (void)state;
    for (int round = 0; round < 4; round++) {
        bags_reader_options options = reading(MAPPED);
        bags_reader *reader;
        bags_row row = {0};
        write_set(at("x"), 0, 0, 3, false);
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        remove_tree(at("x"));
        usleep(20000); /* times of files are this coarse */
        write_set(at("x"), 0, 10, 3, false);
        assert_fails(
            BAGS_ERROR_CHANGED, bags_reader_get(reader, 0, NULL, 0, &row, &said));
        assert_says("x/refs.bag: *open the dataset again");
        bags_row_free(&row);
        bags_reader_close(reader);
        remove_tree(at("x"));
    }
}

static void finalizing_under_a_reader_is_an_error_for_it(void **state) {
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        bags_reader_options options = reading(way);
        bags_reader *reader;
        bags_row row = {0};
        write_set(at("x"), 2, 0, 6, true);
        remove_tree(at("x/000000"));
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        assert_ok(bags_finalize(at("x"), NULL, NULL, &said));
        for (uint64_t i = 0; i < 4; i++) {
            poison();
            bags_code code = bags_reader_get(reader, i, NULL, 0, &row, &said);
            assert_true(code == BAGS_ERROR_CHANGED || code == BAGS_ERROR_MISSING);
            assert_says(i < 2 ? "x/000001/" : "x/000002/");
        }
        bags_row_free(&row);
        bags_reader_close(reader);
        remove_tree(at("x"));
    }
}

static void a_replaced_bag_is_an_error_when_it_is_opened_again(void **state) {
    static const uint64_t both[] = {0, 3};
    bags_reader_options options = reading(READ_ONE_FILE);
    bags_reader *reader;
    bags_row row = {0};
    (void)state;
    write_set(at("x"), 2, 0, 4, false);
    write_set(at("y"), 2, 10, 4, false);
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    for (int i = 0; i < 2; i++)
        assert_ok(bags_reader_get(reader, both[i], NULL, 0, &row, &said));
    rename_path(at("y/000000/text.bag"), at("x/000000/text.bag"));
    assert_fails(BAGS_ERROR_CHANGED, bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_says("x/000000/text.bag: changed while open");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_shard_that_is_finished_stays_readable_for_its_reader(void **state) {
    bags_writer_options writes = writing(3);
    bags_reader_options options = reading(READ_LIVE);
    bags_reader *reader;
    bags_row row = {0};
    (void)state;
    bags_writer *writer = open_writer(at("x"), &writes);
    append_all(writer, 0, 5);
    assert_ok(bags_writer_flush(writer, &said));
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 5; i++) {
            bags_value value;
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
            assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
            assert_true(value.uint == i);
        }
        if (round == 0)
            assert_ok(bags_writer_close(writer, &said));
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- checksums ---- */

static bags_code checksum_with(const char *path, const bags_io *io) {
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.replace = options.no_sync = true;
    options.env.io = io;
    return bags_checksum(path, &options, NULL, &said);
}

static void checksum_again(void) {
    bags_error ignored;
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.replace = options.no_sync = true;
    bags_code code = bags_checksum(at("x"), &options, NULL, &ignored);
    assert_true(code == BAGS_OK || code == BAGS_ERROR_LOCKED);
    resume_was_refused = code == BAGS_ERROR_LOCKED;
}

static void two_checksums_at_once_do_not_mix(void **state) {
    bool reached = true;
    int refused = 0;
    void (*act)(void) = checksum_again;
    (void)state;
    write_set(at("x"), 2, 0, 4, true);
    copy_tree(at("x"), at("copy"));
    for (act_at = 1; reached; act_at++) {
        watch eyes;
        watch_start(&eyes, bags_io_local());
        eyes.before = count_call;
        eyes.user = &act;
        calls = 0;
        resume_was_refused = false;
        assert_ok(checksum_with(at("x"), &eyes.io));
        reached = calls >= act_at;
        refused += resume_was_refused;
        assert_same_tree(at("x"), at("copy"));
    }
    assert_true(refused > 20 && refused < (int)act_at);
}

static void checksums_of_a_running_writer_are_refused(void **state) {
    bags_writer_options options = writing(0);
    void *file;
    const bags_io *io = bags_io_local();
    (void)state;
    bags_writer *writer = open_writer(at("x"), &options);
    append_all(writer, 0, 2);
    assert_ok(bags_writer_close(writer, &said));
    /* It still holds its lock when it removes the journals. */
    assert_int_equal(io->open(NULL, at("x/spec.json"), BAGS_IO_READ, &file), 0);
    assert_int_equal(io->lock(NULL, file), 0);
    assert_fails(BAGS_ERROR_LOCKED, checksum_with(at("x"), NULL));
    assert_says("x: locked by another process");
    assert_int_equal(io->close(NULL, file), 0);
    assert_ok(checksum_with(at("x"), NULL));
}

static void checksum_follows_no_links(void **state) {
    (void)state;
    skip_on_windows("symbolic links need a privilege");
    for (int way = 0; way < 2; way++) {
        const char *link = at(way ? "x/000001" : "x/000001/text.bag");
        write_set(at("x"), 2, 0, 4, false);
        rename_path(link, at("elsewhere"));
        assert_int_equal(symlink(at("elsewhere"), link), 0);
        assert_fails(BAGS_ERROR_IO, checksum_with(at("x"), NULL));
        assert_says(way ? "x/000001: " : "x/000001/text.bag: ");
        assert_int_equal(said.system, ELOOP);
        assert_false(exists(at("x/000001/refs.crc")));
        if (way)
            assert_names(at("elsewhere"), "label.bag refs.bag spec.json text.bag");
        remove_tree(at("x"));
        remove_tree(at("elsewhere"));
    }
}

static void columns_of_two_versions_are_a_fault(void **state) {
    static const char *const swapped[] = {"text", "label", "refs"};
    (void)state;
    for (int way = 0; way < 2 * 3; way++) {
        bags_reader_options options = reading(MAPPED_CHECKED);
        bool existing = way / 3;
        write_set(at("x"), 0, 0, 3, !existing);
        write_set(at("y"), 0, way % 3 == 2 ? 50 : 10, 3, !existing);
        if (existing) {
            assert_ok(checksum_with(at("x"), NULL));
            assert_ok(checksum_with(at("y"), NULL));
        }
        assert_set(at("x"), 0, 3);
        const char *name = swapped[way % 3];
        rename_path(at("y/%s.bag", name), at("x/%s.bag", name));
        rename_path(at("y/%s.crc", name), at("x/%s.crc", name));
        if (way % 3 == 2) { /* refs are the same: so is the Bag */
            assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
        } else {
            assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x"), NULL, NULL, &said));
            assert_says("x/*.crc: *one of them is of another version");
        }
        assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("x"), &options, &said));
        assert_says("version");
        assert_ok(checksum_with(at("x"), NULL)); /* this is correct, then */
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        remove_tree(at("x"));
        remove_tree(at("y"));
    }
}

static void lost_checksums_are_a_fault(void **state) {
    static const char *const names[] = {"label", "text", "refs"};
    (void)state;
    for (int lost = 1; lost < 8; lost++) {
        bags_reader_options options = reading(MAPPED_CHECKED);
        write_set(at("x"), 2, 0, 6, true);
        for (int i = 0; i < 3; i++)
            if (lost >> i & 1)
                assert_int_equal(remove(at("x/000001/%s.crc", names[i])), 0);
        assert_fails(BAGS_ERROR_MISSING, bags_verify(at("x"), NULL, NULL, &said));
        assert_says("x/000001/*no checksums");
        assert_refused(BAGS_ERROR_MISSING, bags_reader_open(at("x"), &options, &said));
        assert_says("x/000001/*no checksums");
        remove_tree(at("x"));
    }
    write_set(at("x"), 2, 0, 6, false); /* none has any */
    assert_ok(bags_verify(at("x"), NULL, NULL, &said));
}

/* ---- decoded values ---- */

static void values_of_a_row_stay_until_it_is_used_again(void **state) {
    static const bags_field some[] = {
        {"a", "array(float64,-1)[]"}, {"b", "array(uint32,3)"}};
    static double numbers[40][40];
    static uint32_t three[3] = {7, 8, 9};
    bags_writer_options options = writing(0);
    bags_reader_options reads = reading(READ_ONE_FILE);
    bags_reader *reader;
    bags_row row = {0};
    bags_value values[40];
    reads.max_files = 0;
    (void)state;
    bags_writer *writer = bags_writer_open(at("x"), some, 2, &options, NULL);
    for (int i = 0; i < 40; i++) {
        uint64_t shape[] = {(uint64_t)i};
        for (int k = 0; k < i; k++)
            numbers[i][k] = i * 100 + k;
        values[i] = bags_array(BAGS_DTYPE_FLOAT64, 1, shape, numbers[i]);
        assert_int_equal(values[i].size, 8 * i);
    }
    uint64_t shapes[40], shape[] = {3};
    for (int i = 0; i < 40; i++) {
        shapes[i] = (uint64_t)i;
        values[i].shape = &shapes[i];
    }
    bags_value single = bags_array(BAGS_DTYPE_UINT32, 1, shape, three);
    bags_entry entries[] = {{"a", values, 40}, {"b", &single, 1}};
    for (int i = 0; i < 2; i++)
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(at("x"), &reads, &said));
    uint64_t before = 0;
    for (int round = 0; round < 6; round++) {
        assert_ok(bags_reader_get(reader, (uint64_t)round % 2, NULL, 0, &row, &said));
        for (size_t i = 0; i < 40; i++)
            assert_ok(bags_row_value(&row, 0, i, NULL, &values[i], &said));
        assert_ok(bags_row_value(&row, 1, 0, NULL, &single, &said));
        for (int i = 0; i < 40; i++) {
            assert_int_equal(values[i].dims, 1);
            assert_int_equal(values[i].shape[0], i);
            assert_int_equal(values[i].size, 8 * i);
            assert_true((uintptr_t)values[i].data % sizeof(double) == 0 || !i);
            if (i)
                assert_memory_equal(values[i].data, numbers[i], 8 * (size_t)i);
        }
        assert_memory_equal(single.data, three, sizeof three);
        if (round == 3)
            before = memory.calls;
    }
    assert_true(before > 0 && memory.calls == before); /* no allocation */
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- maps ---- */

static void all_readers_leave_most_maps_to_the_process(void **state) {
    enum { SHARDS = 3000 };
    bags_reader_options options = reading(MAPPED);
    bags_reader *readers[2];
    bags_row row = {0};
    (void)state;
    skip_on_windows("it has no such limit");
    make_dir(at("x"));
    for (int i = 0; i < SHARDS; i++) {
        hand_set set;
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "utf8");
        set_field(&set, "b", "utf8");
        set_begin(&set);
        set_text(&set, 0, "some");
        set_text(&set, 1, "text");
        set_end(&set);
        set_save(&set, V1, at("x/%06d", i));
        set_free(&set);
    }
    options.env.io = &disk.io;
    for (int i = 0; i < 2; i++) {
        assert_opens(readers[i], bags_reader_open(at("x"), &options, &said));
        for (uint64_t k = 0; k < SHARDS; k++)
            assert_ok(bags_reader_get(readers[i], k, NULL, 0, &row, &said));
        assert_int_equal(disk.maps, i ? 16384 : 3 * SHARDS);
    }
    bags_row_free(&row);
    for (int i = 0; i < 2; i++)
        bags_reader_close(readers[i]);
    assert_int_equal(disk.maps, 0);
}

/* ---- NULL ---- */

#define assert_null_is_refused(call)                                                   \
    do {                                                                               \
        assert_fails(BAGS_ERROR_ARGUMENT, call);                                       \
    } while (0)

static void null_is_an_invalid_argument(void **state) {
    bags_reader *reader;
    bag_reader *bag, *in_memory;
    bags_row row = {0};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view view = {NULL, 0}, views[2];
    bag_blobs range;
    bags_value value = bags_int(1);
    bags_info info;
    bags_type type;
    size_t size = 0;
    uint64_t items = 0;
    static const uint64_t first[] = {0, 1};
    (void)state;
    write_set(at("x"), 0, 0, 3, false);
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_opens(bag, bag_reader_open(at("x/text.bag"), NULL, &said));
    /* readers */
    assert_refused(BAGS_ERROR_ARGUMENT, bags_reader_open(NULL, NULL, &said));
    assert_refused(BAGS_ERROR_ARGUMENT, bag_reader_open(NULL, NULL, &said));
    assert_refused(BAGS_ERROR_ARGUMENT, bag_reader_open_memory(NULL, 8, NULL, &said));
    assert_int_equal(bag_reader_length(NULL), 0);
    assert_int_equal(bag_reader_size(NULL), 0);
    assert_int_equal(bags_reader_length(NULL), 0);
    assert_null(bags_reader_fields(NULL, &size));
    assert_null(bags_reader_shards(NULL, &size));
    assert_int_equal(size, 0);
    bags_reader_touch(NULL, first, 2, NULL, 0);
    bags_reader_touch(reader, NULL, 2, NULL, 0);
    bags_reader_touch(reader, first, 2, NULL, 3);
    assert_non_null(bags_reader_fields(reader, NULL));
    assert_non_null(bags_reader_shards(reader, NULL));
    assert_null(bags_reader_type(NULL, 0));
    assert_null_is_refused(bag_reader_get(NULL, 0, &scratch, &view, &said));
    assert_null_is_refused(bag_reader_get(bag, 0, &scratch, NULL, &said));
    assert_ok(bag_reader_get(bag, 0, NULL, &view, &said)); /* mapped */
    /* A v2 Bag, whose blobs are found in another way: "abc". */
    assert_opens(
        in_memory, bag_reader_open_memory("abc\3\0\0\0\0\0\0", 11, NULL, &said));
    assert_null_is_refused(bag_reader_get(in_memory, 0, NULL, &view, &said));
    assert_null_is_refused(bag_reader_get_range(in_memory, 0, 1, NULL, &range, &said));
    bag_reader_close(in_memory);
    assert_null_is_refused(bag_reader_get_range(NULL, 0, 1, &scratch, &range, &said));
    assert_null_is_refused(bag_reader_get_range(bag, 0, 1, &scratch, NULL, &said));
    assert_null_is_refused(bag_reader_get_many(NULL, first, 2, &scratch, views, &said));
    assert_null_is_refused(bag_reader_get_many(bag, NULL, 2, &scratch, views, &said));
    assert_null_is_refused(bag_reader_get_many(bag, first, 2, NULL, views, &said));
    assert_null_is_refused(bag_reader_get_many(bag, first, 2, &scratch, NULL, &said));
    assert_null_is_refused(bags_reader_field(NULL, "text", &size, &said));
    assert_null_is_refused(bags_reader_field(reader, NULL, &size, &said));
    assert_null_is_refused(bags_reader_field(reader, "text", NULL, &said));
    assert_null_is_refused(bags_reader_info(NULL, &info, NULL, &said));
    assert_null_is_refused(bags_reader_info(reader, NULL, NULL, &said));
    assert_null_is_refused(bags_reader_get(NULL, 0, NULL, 0, &row, &said));
    assert_null_is_refused(bags_reader_get(reader, 0, NULL, 0, NULL, &said));
    assert_null_is_refused(bags_reader_get_blob(NULL, 0, 0, 0, &row, &view, &said));
    assert_null_is_refused(bags_reader_get_blob(reader, 0, 0, 0, NULL, &view, &said));
    assert_null_is_refused(bags_reader_get_blob(reader, 0, 0, 0, &row, NULL, &said));
    assert_null_is_refused(bags_reader_get_range(NULL, 0, 1, 0, &row, &said));
    assert_null_is_refused(bags_reader_get_range(reader, 0, 1, 0, NULL, &said));
    assert_null_is_refused(bags_reader_get_many(NULL, first, 2, 0, &row, &said));
    assert_null_is_refused(bags_reader_get_many(reader, NULL, 2, 0, &row, &said));
    assert_null_is_refused(bags_reader_get_many(reader, first, 2, 0, NULL, &said));
    assert_null_is_refused(bags_reader_prefetch(NULL, first, 2, NULL, 0, &row, &said));
    assert_null_is_refused(bags_reader_prefetch(reader, NULL, 2, NULL, 0, &row, &said));
    assert_null_is_refused(
        bags_reader_prefetch(reader, first, 2, NULL, 0, NULL, &said));
    assert_null_is_refused(
        bags_reader_prefetch_each(reader, first, 2, NULL, 1, &row, &said));
    assert_null_is_refused(bags_reader_items(NULL, 0, 0, &row, &items, &said));
    assert_null_is_refused(bags_reader_items(reader, 0, 0, NULL, &items, &said));
    assert_null_is_refused(bags_reader_items(reader, 0, 0, &row, NULL, &said));
    bag_blobs all;
    assert_null_is_refused(bags_reader_blobs(NULL, 0, 0, true, &row, &all, &said));
    assert_null_is_refused(bags_reader_blobs(reader, 0, 0, true, NULL, &all, &said));
    assert_null_is_refused(bags_reader_blobs(reader, 0, 0, true, &row, NULL, &said));
    assert_null_is_refused(bags_row_value(NULL, 0, 0, NULL, &value, &said));
    assert_null_is_refused(bags_row_value(&row, 0, 0, NULL, NULL, &said));
    assert_int_equal(bags_row_length(NULL, 0), 0);
    assert_null(bags_row_bytes(NULL, 0, 0).data);
    assert_null(bag_blobs_get(NULL, 0).data);
    /* writers */
    assert_refused(BAGS_ERROR_ARGUMENT, bag_writer_open(NULL, NULL, &said));
    assert_refused(BAGS_ERROR_ARGUMENT, bags_writer_open(NULL, fields, 2, NULL, &said));
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open(at("y"), NULL, 2, NULL, &said));
    bags_writer *writer = bags_writer_open(at("y"), fields, 2, NULL, NULL);
    assert_null_is_refused(bags_writer_append(writer, NULL, 2, &said));
    assert_null_is_refused(bags_writer_append(NULL, NULL, 0, &said));
    assert_ok(bags_writer_begin(writer, &said));
    assert_null_is_refused(bags_writer_set(writer, NULL, &value, &said));
    bags_writer_cancel(writer);
    assert_ok(bags_writer_begin(writer, &said));
    assert_null_is_refused(bags_writer_set(writer, "label", NULL, &said));
    bags_writer_abort(writer);
    bag_writer *one = bag_writer_open(at("z.bag"), NULL, NULL);
    assert_null_is_refused(bag_writer_append(one, NULL, 1, NULL, &said));
    assert_ok(bag_writer_append(one, NULL, 0, NULL, &said));
    bag_writer_abort(one);
    assert_null_is_refused(bag_writer_append(NULL, "", 0, NULL, &said));
    assert_null_is_refused(bag_writer_flush(NULL, &said));
    assert_null_is_refused(bag_writer_sync(NULL, &said));
    assert_null_is_refused(bags_writer_begin(NULL, &said));
    assert_null_is_refused(bags_writer_set(NULL, "a", &value, &said));
    assert_null_is_refused(bags_writer_push(NULL, "a", &value, &said));
    assert_null_is_refused(bags_writer_end(NULL, &said));
    assert_null_is_refused(bags_writer_flush(NULL, &said));
    assert_null_is_refused(bags_writer_sync(NULL, &said));
    bags_writer_cancel(NULL);
    /* the rest */
    assert_null_is_refused(bags_recover(NULL, NULL, NULL, &said));
    assert_null_is_refused(bags_finalize(NULL, NULL, NULL, &said));
    assert_null_is_refused(bags_checksum(NULL, NULL, NULL, &said));
    assert_null_is_refused(bags_verify(NULL, NULL, NULL, &said));
    assert_null_is_refused(bags_type_parse(NULL, &type, &said));
    assert_null_is_refused(bags_type_parse("int", NULL, &said));
    assert_null(bags_type_argument(NULL, 0).data);
    assert_false(bags_type_number(NULL, 0, &items));
    assert_int_equal(bags_dtype_parse(NULL, 3, NULL), BAGS_DTYPE_NONE);
    assert_false(bags_array_size(BAGS_DTYPE_INT8, 2, NULL, &size));
    assert_false(bags_array_size(BAGS_DTYPE_INT8, 1, first, NULL));
    assert_false(bags_utf8_valid(NULL, 1, &size));
    assert_true(bags_utf8_valid(NULL, 0, NULL));
    bags_swap_bytes(NULL, first, 8, 8);
    assert_int_equal(bags_utf8(NULL).kind, BAGS_KIND_NONE);
    assert_null_is_refused(bags_buffer_reserve(NULL, 1, &said));
    assert_null_is_refused(bags_encode(NULL, NULL, &value, &scratch, &view, &said));
    assert_null_is_refused(bags_encode(NULL, "int", NULL, &scratch, &view, &said));
    assert_null_is_refused(bags_encode(NULL, "int", &value, NULL, &view, &said));
    assert_null_is_refused(bags_encode(NULL, "int", &value, &scratch, NULL, &said));
    assert_null_is_refused(bags_decode(NULL, NULL, view, &scratch, &value, &said));
    assert_null_is_refused(bags_decode(NULL, "int", view, NULL, &value, &said));
    assert_null_is_refused(bags_decode(NULL, "int", view, &scratch, NULL, &said));
    assert_null_is_refused(bags_registry_add(NULL, NULL, &said));
    bag_reader_close(bag);
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
    bags_row_free(&row);
}

static uint64_t version_of(const char *path, const bags_io *io) {
    bags_reader *reader;
    bags_reader_options options = {0};
    options.env.io = io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    uint64_t version = bags_reader_version(reader);
    bags_reader_close(reader);
    return version;
}

static void readers_of_one_version_know_it(void **state) {
    (void)state;
    bags_io blind = *bags_io_local();
    uint64_t versions[6];
    blind.identify = NULL;
    assert_int_equal(bags_reader_version(NULL), 0);
    write_set(at("x"), 2, 0, 5, false);
    versions[0] = version_of(at("x"), NULL);
    assert_int_equal(version_of(at("x"), NULL), versions[0]);
    assert_int_equal(version_of(at("x"), &blind), 0);
    write_set(at("y"), 2, 0, 5, false);
    rename_path(at("x/000001"), at("was"));
    rename_path(at("y/000001"), at("x/000001"));
    versions[1] = version_of(at("x"), NULL); /* another shard, of the same bytes */
    remove_tree(at("x/000002"));
    versions[2] = version_of(at("x"), NULL);
    rename_path(at("x/000001"), at("x/000009"));
    rename_path(at("x/000000"), at("x/000001"));
    rename_path(at("x/000009"), at("x/000000"));
    versions[3] = version_of(at("x"), NULL); /* the same ones, in another order */
    remove_tree(at("x"));
    write_set(at("x"), 0, 0, 5, false);
    versions[4] = version_of(at("x"), NULL);
    remove_tree(at("x"));
    write_set(at("x"), 0, 0, 0, false);
    versions[5] = version_of(at("x"), NULL);
    for (int i = 0; i < 6; i++) {
        assert_int_not_equal(versions[i], 0);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(versions[i], versions[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_writer_does_not_touch_what_replaced_its_shard),
        TEST(a_bag_writer_does_not_touch_what_replaced_its_bag),
        TEST(a_writer_notices_that_a_file_of_its_shard_is_lost),
        TEST(a_bag_writer_notices_that_a_file_next_to_it_is_lost),
        TEST(a_claim_does_not_destroy_a_shard_that_was_renamed_over_it),
        TEST(recovery_leaves_a_shard_that_is_finished_just_before),
        TEST(finalize_does_not_replace_what_a_writer_has_claimed),
        TEST(a_record_that_was_replaced_before_it_was_locked_is_noticed),
        TEST(a_sharded_and_an_unsharded_dataset_do_not_share_a_path),
        TEST(recovery_next_to_a_resuming_writer_counts_every_shard_once),
        TEST(locks_without_effect_are_noticed),
        TEST(a_later_chdir_changes_nothing),
#ifndef _WIN32
        TEST(a_forked_child_leaves_the_writer_of_its_parent_alone),
        TEST(a_forked_child_writes_nothing),
#endif
        TEST(a_replaced_shard_is_an_error_for_its_readers),
        TEST(a_dataset_that_was_written_again_is_an_error_for_its_readers),
        TEST(finalizing_under_a_reader_is_an_error_for_it),
        TEST(a_replaced_bag_is_an_error_when_it_is_opened_again),
        TEST(a_shard_that_is_finished_stays_readable_for_its_reader),
        TEST(readers_of_one_version_know_it),
        TEST(two_checksums_at_once_do_not_mix),
        TEST(checksums_of_a_running_writer_are_refused),
        TEST(checksum_follows_no_links),
        TEST(columns_of_two_versions_are_a_fault),
        TEST(lost_checksums_are_a_fault),
        TEST(values_of_a_row_stay_until_it_is_used_again),
        TEST(all_readers_leave_most_maps_to_the_process),
        TEST(null_is_an_invalid_argument),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
