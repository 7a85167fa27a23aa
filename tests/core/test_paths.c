/* Paths of local files: long ones, in any script, those of Windows; and open
 * files that others rename, remove or lock. */
// flavours: test: asan; check: release
#include "check.h"

#include <errno.h>
#include <unistd.h>
#ifdef _WIN32
#include <process.h>
#endif

static const bags_field field = {"a", "utf8"};

static void write_set(const char *path, const char *text) {
    bags_value value = bags_utf8(text);
    bags_entry entry = {"a", &value, 1};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, &field, 1, NULL, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
}

static void check_set(const char *path, const char *text) {
    bags_reader *reader;
    bags_row row = {0};
    assert_opens(reader, bags_reader_open(path, NULL, &said));
    assert_int_equal(bags_reader_length(reader), 1);
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_text(bags_row_bytes(&row, 0, 0), text);
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void remove_set(const char *path) {
    static const char *const names[] = {"spec.json", "refs.bag", "a.bag"};
    const bags_io *io = bags_io_local();
    char file[4096];
    for (size_t i = 0; i < 3; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        assert_int_equal(io->remove(NULL, file), 0);
    }
    assert_int_equal(io->remove_dir(NULL, path), 0);
}

/* Every directory and every path is longer than 260 characters, the limit of
 * Windows. */
static void paths_may_be_long(void **state) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind;
    char path[2048];
    (void)state;
    for (size_t parts = 1; parts < 16; parts += 7) {
        size_t used = (size_t)snprintf(path, sizeof path, "%s", at("long"));
        for (size_t i = 0; i < parts; i++)
            used +=
                (size_t)snprintf(path + used, sizeof path - used, "/%0100d", (int)i);
        write_set(path, "far away");
        check_set(path, "far away");
        assert_int_equal(io->kind(NULL, path, &kind), 0);
        assert_int_equal(kind, BAGS_PATH_DIRECTORY);
        remove_set(path);
        while (parts > 1 && strlen(path) > strlen(at("long"))) {
            *strrchr(path, '/') = 0;
            io->remove_dir(NULL, path);
        }
    }
}

static void paths_of_every_script_are_utf8(void **state) {
    static const char *const names[] = {"\xc3\xa9", "\xce\xa9m\xc3\xa9ga",
        "\xe6\x97\xa5\xe6\x9c\xac", "\xf0\x9f\x98\x80 smile"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        write_set(at("%s/%s", names[i], names[3 - i]), names[i]);
        check_set(at("%s/%s", names[i], names[3 - i]), names[i]);
        assert_names(at("%s", names[i]), names[3 - i]);
    }
}

/* A shard's number comes from listing a directory. */
static void shards_below_a_name_in_another_script_are_found(void **state) {
    bags_writer_options options;
    bags_value value = bags_utf8("x");
    bags_entry entry = {"a", &value, 1};
    bags_writer *writer;
    bags_reader *reader;
    (void)state;
    memset(&options, 0, sizeof options);
    options.shard_length = 2;
    assert_opens(writer,
        bags_writer_open(at("\xe6\x97\xa5/\xce\xa9"), &field, 1, &options, &said));
    for (int i = 0; i < 5; i++)
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("\xe6\x97\xa5/\xce\xa9"), "000000 000001 000002");
    assert_opens(reader, bags_reader_open(at("\xe6\x97\xa5/\xce\xa9"), NULL, &said));
    assert_int_equal(bags_reader_length(reader), 5);
    bags_reader_close(reader);
}

static void a_file_that_is_read_can_be_renamed_and_removed(void **state) {
    const bags_io *io = bags_io_local();
    bag_reader_options options;
    bags_buffer space = {0};
    bags_view blob;
    (void)state;
    memset(&options, 0, sizeof options);
    options.no_mmap = true;
    bag_writer *writer;
    assert_opens(writer, bag_writer_open(at("x.bag"), NULL, &said));
    assert_ok(bag_writer_append(writer, "text", 4, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    bag_reader *reader;
    assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
    assert_int_equal(io->rename(NULL, at("x.bag"), at("y.bag")), 0);
    assert_names(at("."), "y.bag");
    assert_ok(bag_reader_get(reader, 0, &space, &blob, &said));
    assert_text(blob, "text");
    assert_int_equal(io->remove(NULL, at("y.bag")), 0);
    assert_ok(bag_reader_get(reader, 0, &space, &blob, &said));
    assert_text(blob, "text");
    bag_reader_close(reader);
    bags_buffer_free(&space);
    assert_names(at("."), "");
}

static void a_mapped_file_can_be_renamed(void **state) {
    bags_view blob;
    bag_writer *writer;
    bag_reader *reader;
    (void)state;
    assert_opens(writer, bag_writer_open(at("x.bag"), NULL, &said));
    assert_ok(bag_writer_append(writer, "text", 4, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    assert_opens(reader, bag_reader_open(at("x.bag"), NULL, &said));
    assert_int_equal(bags_io_local()->rename(NULL, at("x.bag"), at("y.bag")), 0);
    assert_ok(bag_reader_get(reader, 0, NULL, &blob, &said));
    assert_text(blob, "text");
    bag_reader_close(reader);
}

static void a_rename_replaces_a_file(void **state) {
    const bags_io *io = bags_io_local();
    (void)state;
    save_text(at("new"), "new");
    save_text(at("old"), "the old one");
    assert_int_equal(io->rename(NULL, at("new"), at("old")), 0);
    assert_file(at("old"), "new", 3);
    assert_names(at("."), "old");
    assert_int_equal(io->rename(NULL, at("new"), at("old")), ENOENT);
}

static void a_lock_does_not_prevent_reading(void **state) {
    const bags_io *io = bags_io_local();
    void *one = NULL, *two = NULL;
    char text[8];
    size_t done = 0;
    (void)state;
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_CREATE, &one), 0);
    assert_int_equal(io->lock(NULL, one), 0);
    assert_int_equal(io->write_at(NULL, one, 0, "text", 4, &done), 0);
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_READ, &two), 0);
    assert_int_equal(io->read_at(NULL, two, 0, text, 8, &done), 0);
    assert_int_equal(done, 4);
    assert_memory_equal(text, "text", 4);
    assert_int_equal(io->read_at(NULL, two, 4, text, 8, &done), 0);
    assert_int_equal(done, 0);
    assert_int_equal(io->lock(NULL, two), EWOULDBLOCK);
    assert_int_equal(io->close(NULL, one), 0);
    assert_int_equal(io->lock(NULL, two), 0);
    assert_int_equal(io->close(NULL, two), 0);
}

/* Data beyond 4 GiB, in a file with a hole. */
static void offsets_have_64_bits(void **state) {
    const bags_io *io = bags_io_local();
    const uint64_t far_away = ((uint64_t)5 << 30) + 3;
    void *file = NULL;
    uint64_t size = 0;
    char text[8];
    size_t done = 0;
    (void)state;
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_CREATE, &file), 0);
    assert_int_equal(io->truncate(NULL, file, far_away), 0);
    assert_int_equal(io->write_at(NULL, file, far_away, "text", 4, &done), 0);
    assert_int_equal(done, 4);
    assert_int_equal(io->size(NULL, file, &size), 0);
    assert_true(size == far_away + 4);
    assert_int_equal(io->read_at(NULL, file, far_away - 1, text, 8, &done), 0);
    assert_int_equal(done, 5);
    assert_memory_equal(text, "\0text", 5);
    assert_int_equal(io->read_at(NULL, file, 3, text, 4, &done), 0);
    assert_memory_equal(text, "\0\0\0\0", 4);
    assert_int_equal(io->truncate(NULL, file, 2), 0);
    assert_int_equal(io->close(NULL, file), 0);
    assert_int_equal(file_size(at("x")), 2);
}

static void a_line_break_is_written_unchanged(void **state) {
    (void)state;
    write_set(at("x"), "a\nb\r\nc\x1a d");
    check_set(at("x"), "a\nb\r\nc\x1a d");
    assert_int_equal(file_size(at("x/a.bag")), 9 + 16);
}

static void both_path_separators_of_windows_work(void **state) {
    char path[4096];
    (void)state;
    if (!ON_WINDOWS)
        skip();
    write_set(at("a\\b/c\\d"), "text");
    check_set(at("a/b\\c/d"), "text");
    assert_names(at("a/b/c"), "d");
    snprintf(path, sizeof path, "Z:%s", at("drive/x"));
    write_set(path, "text");
    check_set(path, "text");
    snprintf(path, sizeof path, "\\\\?\\Z:%s", at("plain/x"));
    for (char *c = path; *c; c++)
        *c = *c == '/' ? '\\' : *c;
    write_set(path, "text");
    check_set(path, "text");
    assert_names(at("plain/x"), "a.bag refs.bag spec.json");
    assert_null(bag_reader_open("NUL", NULL, &said));
    assert_null(bag_reader_open(at("x:y"), NULL, &said));
}

/* ---- another process of Windows ---- */

static const char *program;

/* The other process: it crashes with a partly written dataset. */
static int crash_writing(const char *path) {
    bags_value value = bags_utf8("flushed");
    bags_entry entry = {"a", &value, 1};
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, &said);
    if (!writer || bags_writer_append(writer, &entry, 1, &said) ||
        bags_writer_flush(writer, &said))
        return 1;
    fputs("r", stdout);
    fflush(stdout);
    getchar();
    _exit(0);
}

static void a_writer_in_another_process_holds_its_lock(void **state) {
    (void)state;
#ifdef _WIN32
    int in[2], out[2];
    char byte = 0;
    assert_int_equal(_pipe(in, 64, _O_BINARY), 0);
    assert_int_equal(_pipe(out, 64, _O_BINARY), 0);
    int keep_in = _dup(0), keep_out = _dup(1);
    _dup2(in[0], 0);
    _dup2(out[1], 1);
    intptr_t child = _spawnl(_P_NOWAIT, program, program, at("x"), NULL);
    _dup2(keep_in, 0);
    _dup2(keep_out, 1);
    assert_true(child != -1);
    assert_int_equal(_read(out[0], &byte, 1), 1);
    poison();
    assert_fails(BAGS_ERROR_LOCKED, bags_recover(at("x"), NULL, NULL, &said));
    assert_int_equal(_write(in[1], "g", 1), 1);
    int status = 1;
    assert_int_equal(_cwait(&status, child, 0), child);
    assert_int_equal(status, 0);
    assert_ok(bags_recover(at("x"), NULL, NULL, &said));
    check_set(at("x"), "flushed");
#else
    skip(); /* test_recover.c does it with fork */
#endif
}

int main(int count, char **arguments) {
    program = arguments[0];
    if (count == 2)
        return crash_writing(arguments[1]);
    const struct CMUnitTest tests[] = {
        TEST(paths_may_be_long),
        TEST(paths_of_every_script_are_utf8),
        TEST(shards_below_a_name_in_another_script_are_found),
        TEST(a_file_that_is_read_can_be_renamed_and_removed),
        TEST(a_mapped_file_can_be_renamed),
        TEST(a_rename_replaces_a_file),
        TEST(a_lock_does_not_prevent_reading),
        TEST(offsets_have_64_bits),
        TEST(a_line_break_is_written_unchanged),
        TEST(both_path_separators_of_windows_work),
        TEST(a_writer_in_another_process_holds_its_lock),
    };
    return cmocka_run_group_tests_name("paths", tests, NULL, NULL);
}
