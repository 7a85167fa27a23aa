/* Extremes: files of 2^63 bytes, numbers above 2^32, NULL arguments, local
 * files whose calls fail, messages that are too long. */
// flavours: test: asan; check: release
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

/* ---- files of 2^63 bytes ---- */

/* A disk in memory on which the files of one name have `hole` zero bytes before
 * their content. */
typedef struct tall_disk {
    memory_disk drive;
    bags_io io;
    const char *name;
    uint64_t hole;
    void *tall[8]; /* the handles of those files */
    size_t count;
} tall_disk;

static uint64_t tall_hole(const tall_disk *t, const void *file) {
    for (size_t i = 0; i < t->count; i++)
        if (t->tall[i] == file)
            return t->hole;
    return 0;
}

static int tall_open(void *user, const char *path, int mode, void **file) {
    tall_disk *t = (tall_disk *)user;
    int code = t->drive.io.open(&t->drive, path, mode, file);
    if (!code && strstr(path, t->name)) {
        assert_true(t->count < 8);
        t->tall[t->count++] = *file;
    }
    return code;
}

static int tall_close(void *user, void *file) {
    tall_disk *t = (tall_disk *)user;
    for (size_t i = 0; i < t->count; i++)
        if (t->tall[i] == file)
            t->tall[i--] = t->tall[--t->count];
    return t->drive.io.close(&t->drive, file);
}

static int tall_size(void *user, void *file, uint64_t *size) {
    tall_disk *t = (tall_disk *)user;
    int code = t->drive.io.size(&t->drive, file, size);
    *size += tall_hole(t, file);
    return code;
}

static int tall_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    tall_disk *t = (tall_disk *)user;
    uint64_t hole = tall_hole(t, file);
    if (offset >= hole)
        return t->drive.io.read_at(&t->drive, file, offset - hole, data, size, done);
    *done = size < hole - offset ? size : (size_t)(hole - offset);
    memset(data, 0, *done);
    return 0;
}

static int tall_kind(void *user, const char *path, bags_path_kind *kind) {
    tall_disk *t = (tall_disk *)user;
    return t->drive.io.kind(&t->drive, path, kind);
}

static int tall_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    tall_disk *t = (tall_disk *)user;
    return t->drive.io.list(&t->drive, path, each, each_user);
}

static void tall_start(tall_disk *t, uint64_t hole) {
    memset(t, 0, sizeof *t);
    memory_disk_start(&t->drive);
    t->name = "tall.bag";
    t->hole = hole;
    t->io.user = t;
    t->io.open = tall_open;
    t->io.close = tall_close;
    t->io.size = tall_size;
    t->io.read_at = tall_read;
    t->io.kind = tall_kind;
    t->io.list = tall_list;
}

/* The table of a Bag whose first blob has `hole` bytes and whose second is
 * empty. */
static void save_tall(tall_disk *t, const char *path) {
    bytes table = {NULL, 0, 0};
    put_u64(&table, 0);
    put_u64(&table, t->hole);
    put_u64(&table, t->hole);
    memory_disk_save(&t->drive, path, table.data, table.size);
    bytes_free(&table);
}

static bag_reader *open_tall(tall_disk *t, const char *path) {
    bag_reader_options options;
    bag_reader *reader;
    memset(&options, 0, sizeof options);
    options.env.io = &t->io;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bag_reader_open(path, &options, &said));
    return reader;
}

static void blobs_too_large_for_the_address_space_are_a_limit_error(void **state) {
    tall_disk t;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 7};
    bag_blobs range;
    (void)state;
    tall_start(&t, (uint64_t)1 << 63);
    save_tall(&t, "tall.bag");
    bag_reader *reader = open_tall(&t, "tall.bag");
    assert_true(bag_reader_size(reader) == ((uint64_t)1 << 63) + 24);
    assert_fails(BAGS_ERROR_LIMIT, bag_reader_get(reader, 0, &scratch, &blob, &said));
    assert_says("tall.bag*too large*9223372036854775808 bytes");
    assert_fails(
        BAGS_ERROR_LIMIT, bag_reader_get_range(reader, 0, 2, &scratch, &range, &said));
    assert_says("tall.bag*too large*9223372036854775808 bytes");
    assert_ok(bag_reader_get(reader, 1, &scratch, &blob, &said));
    assert_int_equal(blob.size, 0);
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    bags_env env = {NULL, &t.io};
    assert_ok(verify_path("tall.bag", &env, &said));
    memory_disk_free(&t.drive);
}

static void more_blobs_than_fit_the_address_space_are_a_limit_error(void **state) {
    tall_disk t;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 7};
    bag_blobs range;
    uint64_t zeros[1] = {0};
    (void)state;
    /* A table of 2^60 + 1 zeros: 2^60 empty blobs. */
    tall_start(&t, (uint64_t)1 << 63);
    memory_disk_save(&t.drive, "tall.bag", zeros, 8);
    bag_reader *reader = open_tall(&t, "tall.bag");
    assert_true(bag_reader_length(reader) == (uint64_t)1 << 60);
    assert_fails(BAGS_ERROR_LIMIT,
        bag_reader_get_range(reader, 0, UINT64_MAX, &scratch, &range, &said));
    assert_says("tall.bag*too large*9223372036854775808 bytes");
    assert_ok(bag_reader_get(reader, (uint64_t)1 << 59, &scratch, &blob, &said));
    assert_int_equal(blob.size, 0);
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    memory_disk_free(&t.drive);
}

static void fields_too_large_for_the_address_space_are_a_limit_error(void **state) {
    static const char refs[] = "\x91\x00\x91\x01";
    tall_disk t;
    hand_bag rows = {{0}, {0}};
    bags_reader_options options;
    bags_reader *reader;
    bags_row row = {0};
    (void)state;
    tall_start(&t, (uint64_t)1 << 63);
    save_tall(&t, "x/tall.bag");
    memory_disk_save(&t.drive, "x/spec.json", "{\"tall\": \"bytes\"}", 17);
    hand_add(&rows, refs, 2);
    hand_add(&rows, refs + 2, 2);
    bytes bag = hand_bytes(&rows, V1);
    memory_disk_save(&t.drive, "x/refs.bag", bag.data, bag.size);
    memset(&options, 0, sizeof options);
    options.env.io = &t.io;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open("x", &options, &said));
    assert_fails(BAGS_ERROR_LIMIT, bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_says("x/tall.bag*too large*9223372036854775808 bytes");
    assert_int_equal(bags_row_length(&row, 0), 0);
    assert_ok(bags_reader_get(reader, 1, NULL, 0, &row, &said));
    assert_ok(verify_path("x", &options.env, &said));
    bags_row_free(&row);
    bags_reader_close(reader);
    bytes_free(&bag);
    hand_free(&rows);
    memory_disk_free(&t.drive);
}

static void datapoints_are_counted_up_to_2_to_the_64(void **state) {
    tall_disk t;
    bags_reader_options options;
    uint64_t zeros[1] = {0};
    (void)state;
    /* 16 shards of 2^60 datapoints are one too many. */
    tall_start(&t, (uint64_t)1 << 63);
    t.name = "refs.bag";
    for (int i = 0; i < 16; i++) {
        char path[64];
        snprintf(path, sizeof path, "x/%06d/spec.json", i);
        memory_disk_save(&t.drive, path, "{}", 2);
        snprintf(path, sizeof path, "x/%06d/refs.bag", i);
        memory_disk_save(&t.drive, path, zeros, 8);
    }
    memset(&options, 0, sizeof options);
    options.env.io = &t.io;
    options.env.allocator = &memory.allocator;
    assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open("x", &options, &said));
    assert_says("x*2^64 datapoints");
    memory_disk_free(&t.drive);
}

/* ---- writing 2^63 bytes ---- */

static int sink_open(void *user, const char *path, int mode, void **file) {
    (void)path;
    (void)mode;
    *file = user;
    return 0;
}

static int sink_close(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

/* Accepts everything and stores nothing. */
static int sink_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    (void)user;
    (void)file;
    (void)offset;
    (void)data;
    *done = size;
    return 0;
}

static int sink_lock(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

static int sink_kind(void *user, const char *path, bags_path_kind *kind) {
    (void)user;
    (void)path;
    *kind = BAGS_PATH_NONE;
    return 0;
}

static int sink_remove(void *user, const char *path) {
    (void)user;
    (void)path;
    return 0;
}

static void a_bag_ends_below_2_to_the_63_bytes(void **state) {
    bag_writer_options options;
    bag_writer *writer;
    bags_io io;
    const uint64_t half = (uint64_t)1 << 62;
    (void)state;
    if (half > SIZE_MAX)
        skip(); /* no single append is this large */
    memset(&io, 0, sizeof io);
    io.user = &io;
    io.open = sink_open;
    io.close = sink_close;
    io.write_at = sink_write;
    io.lock = sink_lock;
    io.kind = sink_kind;
    io.remove = sink_remove;
    memset(&options, 0, sizeof options);
    options.env.io = &io;
    options.buffer_size = 4096;
    options.env.allocator = &memory.allocator;
    assert_opens(writer, bag_writer_open("x.bag", &options, &said));
    assert_ok(bag_writer_append(writer, options.env.io, (size_t)half, NULL, &said));
    assert_true(bag_writer_size(writer) == half + 16);
    assert_fails(BAGS_ERROR_LIMIT,
        bag_writer_append(writer, options.env.io, (size_t)half, NULL, &said));
    assert_says("x.bag*2^63 bytes");
    assert_fails(BAGS_ERROR_LIMIT, bag_writer_append(writer, "more", 4, NULL, &said));
    bag_writer_abort(writer);
}

/* ---- NULL arguments ---- */

static void a_null_bag_writer_is_an_argument_error(void **state) {
    (void)state;
    assert_fails(BAGS_ERROR_ARGUMENT, bag_writer_append(NULL, "x", 1, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bag_writer_flush(NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_writer_sync(NULL, &said));
    assert_true(bag_writer_length(NULL) == 0);
    assert_true(bag_writer_size(NULL) == 0);
    assert_true(bags_writer_resumed(NULL) == 0);
}

static void fields_and_entries_without_names_are_argument_errors(void **state) {
    static const bags_field right[] = {{"a", "bytes"}};
    static const bags_field nameless[] = {{NULL, "bytes"}};
    static const bags_field typeless[] = {{"a", NULL}};
    bags_writer_options options;
    bags_value value = bags_bytes("x", 1);
    bags_entry entry = {NULL, &value, 1};
    bags_writer *writer;
    (void)state;
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open(at("x"), nameless, 1, &options, &said));
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open(at("x"), typeless, 1, &options, &said));
    assert_opens(writer, bags_writer_open(at("x"), right, 1, &options, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_writer_append(writer, &entry, 1, &said));
    assert_says("x: datapoint 0*field name*NULL");
    assert_ok(bags_writer_begin(writer, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_writer_set(writer, NULL, &value, &said));
    bags_writer_cancel(writer);
    entry.field = right[0].name;
    entry.values = NULL;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_writer_append(writer, &entry, 1, &said));
    assert_says("datapoint 0*value*NULL");
    assert_ok(bags_writer_begin(writer, &said));
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_writer_set(writer, right[0].name, NULL, &said));
    bags_writer_cancel(writer);
    bags_writer_abort(writer);
}

/* ---- local files ---- */

/* A handle that was closed. */
static void *closed_file(const bags_io *io) {
    void *file = NULL;
    save_text(at("closed"), "text");
    assert_int_equal(io->open(NULL, at("closed"), BAGS_IO_WRITE, &file), 0);
    assert_int_equal(io->close(NULL, file), 0);
    return file;
}

static void local_hooks_return_the_errno_of_the_system(void **state) {
    const bags_io *io = bags_io_local();
    void *file = closed_file(io);
    const void *data = NULL;
    uint64_t size = 0;
    size_t done = 0;
    char space[4] = "";
    (void)state;
    assert_int_equal(io->size(NULL, file, &size), EBADF);
    assert_int_equal(io->read_at(NULL, file, 0, space, 4, &done), EBADF);
    assert_int_equal(io->write_at(NULL, file, 0, space, 4, &done), EBADF);
    assert_int_equal(io->truncate(NULL, file, 0), EBADF);
    assert_int_equal(io->sync(NULL, file), EBADF);
    assert_int_equal(io->lock(NULL, file), EBADF);
    assert_int_equal(io->map(NULL, file, 4, &data), EBADF);
    assert_int_equal(io->unmap(NULL, space + 1, 4), EINVAL);
    assert_int_equal(io->close(NULL, file), EBADF);
    assert_int_equal(io->sync_dir(NULL, at("none")), ENOENT);
    assert_int_equal(io->rename(NULL, at("none"), at("other")), ENOENT);
    assert_int_equal(io->make_dir(NULL, at("closed")), EEXIST);
}

static void starting_to_write_to_the_disk_does_not_wait(void **state) {
    const bags_io *io = bags_io_local();
    void *file = NULL;
    (void)state;
    if (!io->write_back)
        skip();
    assert_int_equal(io->write_back(NULL, closed_file(io), 0, 1), EBADF);
    save_text(at("w"), "text");
    assert_int_equal(io->open(NULL, at("w"), BAGS_IO_WRITE, &file), 0);
    assert_int_equal(io->write_back(NULL, file, 0, 4), 0);
    assert_int_equal(io->close(NULL, file), 0);
}

static void disk_space_is_reserved_only_after_the_end(void **state) {
    const bags_io *io = bags_io_local();
    struct stat info;
    void *file = NULL;
    (void)state;
    if (!io->reserve)
        skip();
    assert_int_equal(io->reserve(NULL, closed_file(io), 100), EBADF);
    save_text(at("x"), "text");
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_READ, &file), 0);
    assert_int_equal(io->reserve(NULL, file, 4), 0);
    assert_int_equal(io->reserve(NULL, file, UINT64_MAX), 0);
    assert_int_equal(io->reserve(NULL, file, 5), EBADF);
    assert_int_equal(io->close(NULL, file), 0);
    assert_int_equal(stat(at("x"), &info), 0);
    assert_int_equal(info.st_size, 4);
}

static void local_offsets_above_2_to_the_63_are_refused(void **state) {
    const bags_io *io = bags_io_local();
    const uint64_t far = (uint64_t)1 << 63;
    void *file = NULL;
    size_t done = 0;
    char space[4] = "";
    (void)state;
    save_text(at("x"), "text");
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_WRITE, &file), 0);
    assert_int_not_equal(io->read_at(NULL, file, far, space, 4, &done), 0);
    assert_int_not_equal(io->write_at(NULL, file, far, space, 4, &done), 0);
    assert_int_not_equal(io->truncate(NULL, file, far), 0);
    assert_int_equal(io->close(NULL, file), 0);
    assert_file(at("x"), "text", 4);
}

/* More than the system transfers at once; at the end of the file, less is
 * transferred. */
static void local_transfers_of_any_size_are_started(void **state) {
    const bags_io *io = bags_io_local();
    const size_t much = ((size_t)1 << 30) + 4096;
    struct rlimit before, small = {100, 100};
    void *file = NULL;
    size_t done = 0;
    static char space[200]; /* not at the end of the address space */
    (void)state;
    memset(space, 'x', sizeof space);
    save_text(at("x"), "text");
    assert_int_equal(io->open(NULL, at("x"), BAGS_IO_WRITE, &file), 0);
    int code = io->read_at(NULL, file, 0, space, much, &done);
    if (code == EFAULT) { /* QEMU checks the entire buffer first */
        assert_int_equal(io->close(NULL, file), 0);
        skip();
    }
    assert_int_equal(code, 0);
    assert_int_equal(done, 4);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(io->write_at(NULL, file, 0, space, much, &done), 0);
    assert_int_equal(done, 100);
    assert_int_equal(io->write_at(NULL, file, 100, space, much, &done), EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(io->close(NULL, file), 0);
    assert_int_equal(file_size(at("x")), 100);
}

static void circular_links_are_an_io_error(void **state) {
    (void)state;
    assert_int_equal(symlink("circle", at("circle")), 0);
    assert_refused(BAGS_ERROR_IO, bags_reader_open(at("circle"), NULL, &said));
    assert_int_equal(said.system, ELOOP);
}

/* ---- messages ---- */

static void a_message_that_cannot_be_formatted_is_empty(void **state) {
    static const wchar_t none[] = {(wchar_t)0xD800, 0};
    (void)state;
    poison();
    assert_int_equal(bags_fail(&said, BAGS_ERROR_VALUE, "%ls", none), BAGS_ERROR_VALUE);
    assert_int_equal(said.code, BAGS_ERROR_VALUE);
    assert_string_equal(said.message, "");
}

/* Fills the message up to its end. */
static bags_code fail_long(void *codec, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    char text[BAGS_ERROR_SIZE];
    (void)codec;
    (void)value;
    (void)scratch;
    (void)blob;
    memset(text, 'm', sizeof text - 1);
    text[sizeof text - 1] = 0;
    return bags_fail(err, BAGS_ERROR_VALUE, "%s", text);
}

static void a_message_that_becomes_too_long_is_truncated(void **state) {
    static const bags_codec codec = {"long", NULL, fail_long, NULL, NULL, NULL, NULL};
    static const bags_field field = {"a", "long"};
    bags_registry *codecs = bags_registry_create(&memory.allocator, &said);
    bags_writer_options options;
    bags_value value = bags_int(1);
    bags_entry entry = {"a", &value, 1};
    bags_writer *writer;
    (void)state;
    assert_ok(bags_registry_add(codecs, &codec, &said));
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    options.registry = codecs;
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, &options, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &entry, 1, &said));
    assert_int_equal(strlen(said.message), BAGS_ERROR_SIZE - 1);
    assert_says("field \"a\"");
    assert_says("mmmmm");
    bags_writer_abort(writer);
    bags_registry_free(codecs);
}

/* ---- arrays ---- */

static bags_code encode_array(size_t dims, const uint64_t *shape, bags_dtype dtype,
    bags_buffer *scratch, bags_view *blob) {
    bags_type type;
    void *codec_state = NULL;
    bags_value value = bags_array(dtype, dims, shape, NULL);
    if (bags_type_parse("array", &type, &said))
        return said.code;
    const bags_codec *codec = bags_registry_find(NULL, type.name);
    if (codec->open(codec, &type, &memory.allocator, &codec_state, &said))
        return said.code;
    bags_code code = codec->encode(codec_state, &value, scratch, blob, &said);
    codec->close(codec_state);
    return code;
}

static void arrays_with_huge_dimensions_and_no_elements_are_encoded(void **state) {
    static const unsigned char expected[] = {
        0x93, 0xA3, '|', 'u', '1', 0x92, 0xCF, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0xC4, 0};
    const uint64_t shape[] = {(uint64_t)1 << 33, 0};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 0};
    (void)state;
    assert_ok(encode_array(2, shape, BAGS_DTYPE_UINT8, &scratch, &blob));
    assert_bytes(blob, expected, sizeof expected);
    bags_buffer_free(&scratch);
}

static void arrays_that_exceed_their_type_are_refused(void **state) {
    const uint64_t large[] = {(uint64_t)5 << 30};
    uint64_t many[BAGS_MAX_DIMS + 1];
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 0};
    (void)state;
    assert_fails(
        BAGS_ERROR_VALUE, encode_array(1, large, BAGS_DTYPE_UINT8, &scratch, &blob));
    if (SIZE_MAX > UINT32_MAX)
        assert_says("5368709120 bytes");
    for (size_t i = 0; i <= BAGS_MAX_DIMS; i++)
        many[i] = 1;
    assert_fails(BAGS_ERROR_VALUE,
        encode_array(BAGS_MAX_DIMS + 1, many, BAGS_DTYPE_UINT8, &scratch, &blob));
    assert_says("dimensions*65, maximum 64");
    assert_int_equal(blob.size, 0);
    bags_buffer_free(&scratch);
}

static void plain_bytes_are_a_value(void **state) {
    bags_value value = bags_bytes("abc", 3);
    (void)state;
    assert_int_equal(value.kind, BAGS_KIND_BYTES);
    assert_int_equal(value.size, 3);
    assert_memory_equal(value.data, "abc", 3);
}

/* ---- files that change size ---- */

/* A file that was closed because of max_files, and is another one when it is
 * opened again. */
static void a_file_that_changed_while_it_was_closed_is_an_error(void **state) {
    bags_reader_options options;
    bags_reader *reader;
    bags_row row = {0};
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_field(&set, "b", "bytes");
    set_begin(&set);
    set_blob(&set, 0, "one", 3);
    set_blob(&set, 1, "two", 3);
    set_end(&set);
    set_save(&set, V1, at("x"));
    memset(&options, 0, sizeof options);
    options.no_mmap = true;
    options.max_files = 1;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open(at("x"), &options, &said));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    bytes old = load(at("x/a.bag"));
    put_u8(&old, 0);
    save(at("x/a.bag"), old.data, old.size);
    assert_fails(BAGS_ERROR_CORRUPT, bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_says("a.bag*20 bytes*19");
    bytes_free(&old);
    bags_row_free(&row);
    bags_reader_close(reader);
    set_free(&set);
}

static void reading_the_journal_of_a_bag_may_fail(void **state) {
    bag_reader_options options;
    hand_bag bag = {{0}, {0}};
    (void)state;
    hand_add(&bag, "abc", 3);
    hand_save(&bag, SPLIT, at("."), "x");
    memset(&options, 0, sizeof options);
    options.no_mmap = true;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    disk.only = 1u << HOOK_READ;
    disk.fail_at = 1;
    assert_refused(BAGS_ERROR_IO, bag_reader_open(at("x.bag"), &options, &said));
    assert_says("x.idx");
    hand_free(&bag);
}

/* A blob that spans a page is requested as a unit; nothing is requested for no
 * blobs. */
static void large_blobs_may_be_read_at_random_and_ahead(void **state) {
    static char large[50000];
    const uint64_t indices[] = {2, 0, 1};
    bag_reader_options options;
    bag_reader *reader;
    hand_bag bag = {{0}, {0}};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blobs[3];
    (void)state;
    fill(large, sizeof large, 1);
    hand_add(&bag, large, sizeof large);
    hand_add(&bag, "", 0);
    hand_add(&bag, large, 5000);
    hand_save(&bag, V1, at("."), "x");
    for (int i = 0; i < 4; i++) {
        memset(&options, 0, sizeof options);
        options.no_read_ahead = i % 2;
        options.no_mmap = i > 1;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_ok(bag_reader_get_many(reader, NULL, 0, &scratch, blobs, &said));
        assert_ok(bag_reader_get_many(reader, indices, 3, &scratch, blobs, &said));
        assert_bytes(blobs[0], large, 5000);
        assert_bytes(blobs[1], large, sizeof large);
        assert_int_equal(blobs[2].size, 0);
        assert_ok(bag_reader_get(reader, 0, &scratch, blobs, &said));
        assert_bytes(blobs[0], large, sizeof large);
        bag_reader_close(reader);
    }
    bags_buffer_free(&scratch);
    hand_free(&bag);
}

static void opening_a_bag_in_memory_may_run_out_of_memory(void **state) {
    static const unsigned char empty[8] = {0};
    bag_reader_options options;
    (void)state;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    for (uint64_t n = 1; n < 3; n++) {
        memory.fail_at = memory.calls + n;
        assert_refused(
            BAGS_ERROR_MEMORY, bag_reader_open_memory(empty, 8, &options, &said));
    }
}

/* ---- every call may fail ---- */

/* The n-th allocation of opening and reading a range fails. False if there were
 * fewer. */
static bool open_short_of_memory(
    const char *path, bool allow_gaps, uint64_t n, bags_code without) {
    bags_reader_options options;
    bags_row row = {0};
    memset(&options, 0, sizeof options);
    options.allow_gaps = allow_gaps;
    options.unfinished = allow_gaps ? BAGS_UNFINISHED_SKIP : BAGS_UNFINISHED_REFUSE;
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    memory.failed = 0;
    memory.fail_at = memory.calls + n;
    poison();
    bags_reader *reader = bags_reader_open(path, &options, &said);
    bags_code code = reader ? BAGS_OK : said.code;
    if (reader)
        code = bags_reader_get_range(reader, 0, 9, 0, &row, &said);
    bool met = memory.failed > 0;
    assert_int_equal(code, met ? BAGS_ERROR_MEMORY : without);
    bags_row_free(&row);
    bags_reader_close(reader);
    memory.fail_at = 0;
    return met;
}

/* Shards 1 and 3 exist, and 5 is unfinished. */
static void opening_shards_with_gaps_may_run_out_of_memory(void **state) {
    (void)state;
    make_dir(at("x"));
    for (int i = 1; i < 4; i += 2) {
        hand_set set;
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "bytes");
        set_begin(&set);
        set_blob(&set, 0, "blob", 4);
        set_end(&set);
        set_save(&set, i == 1 ? V1 : SPLIT, at("x/%06d", i));
        set_free(&set);
    }
    make_dir(at("x/000005"));
    save_text(at("x/000005/spec.json.partial"), "{\"a\": \"bytes\"}");
    uint64_t n = 1;
    while (open_short_of_memory(at("x"), true, n, BAGS_OK))
        n++;
    assert_true(n > 20);
    n = 1;
    while (open_short_of_memory(at("x"), false, n, BAGS_ERROR_UNFINISHED))
        n++;
    assert_true(n > 5);
}

/* A shard of many small datapoints whose n-th write fails. Later calls repeat
 * the failure. False if there were fewer writes. */
static bool write_and_fail(uint64_t n) {
    static const bags_field fields[] = {{"a", "bytes"}, {"s", "bytes[]"}};
    bags_writer_options options;
    bags_value value = bags_bytes("x", 1);
    bags_entry entries[] = {{"a", &value, 1}, {"s", NULL, 0}};
    memory_disk drive;
    watch files;
    memory_disk_start(&drive);
    watch_start(&files, &drive.io);
    memset(&options, 0, sizeof options);
    options.env.io = &files.io;
    options.env.allocator = &memory.allocator;
    options.buffer_size = 4096;
    bags_writer *writer;
    assert_opens(writer, bags_writer_open("x", fields, 2, &options, &said));
    files.only = 1u << HOOK_WRITE;
    files.fail_at = files.calls + n;
    bags_code code = BAGS_OK;
    for (int i = 0; i < 300 && !code; i++) {
        entries[0].values = &value;
        poison();
        code = bags_writer_append(writer, entries, 2, &said);
    }
    if (code) {
        assert_int_equal(code, BAGS_ERROR_IO);
        assert_fails(BAGS_ERROR_IO, bags_writer_begin(writer, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_set(writer, "a", &value, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_push(writer, "s", &value, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_end(writer, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_sync(writer, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_close(writer, &said));
    } else {
        bags_writer_abort(writer);
    }
    bool met = files.failed > 0;
    assert_true(met == (code != BAGS_OK));
    memory_disk_free(&drive);
    return met;
}

static void a_writer_repeats_its_failure_at_every_call(void **state) {
    uint64_t n = 1;
    (void)state;
    while (write_and_fail(n))
        n++;
    assert_true(n > 3);
}

/* Readers would refuse the dataset. */
static void close_reports_that_an_empty_shard_cannot_be_removed(void **state) {
    static const bags_field fields[] = {{"a", "bytes"}};
    bags_value number = bags_int(1);
    bags_entry wrong = {"a", &number, 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        bags_writer_options options;
        bags_writer *writer;
        memset(&options, 0, sizeof options);
        options.shard_stop = 1;
        options.env.io = &disk.io;
        options.env.allocator = &memory.allocator;
        assert_opens(writer, bags_writer_open(at("x"), fields, 1, &options, &said));
        assert_ok(bags_writer_begin(writer, &said));
        assert_fails(BAGS_ERROR_VALUE, bags_writer_set(writer, "a", &number, &said));
        bags_writer_cancel(writer);
        assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &wrong, 1, &said));
        disk.only = 1u << (i ? HOOK_REMOVE : HOOK_REMOVE_DIR);
        disk.calls = 0;
        disk.fail_at = 1;
        assert_fails(BAGS_ERROR_IO, bags_writer_close(writer, &said));
        assert_says("cannot remove");
        disk.fail_at = 0;
        remove_tree(at("x"));
    }
}

static void a_directory_that_cannot_be_listed_is_not_recovered(void **state) {
    bags_recover_options options;
    uint64_t failures = 0;
    (void)state;
    make_dir(at("x"));
    make_dir(at("x/000000"));
    save_text(at("x/000000/spec.json.partial"), "{\"a\"");
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    for (uint64_t n = 1; n < 5; n++) {
        disk.failed = 0;
        disk.only = 1u << HOOK_LIST;
        disk.calls = 0;
        disk.fail_at = n;
        options.dry_run = true;
        poison();
        bags_code code = bags_recover(at("x"), &options, NULL, &said);
        assert_int_equal(code == BAGS_ERROR_IO, disk.failed > 0);
        failures += disk.failed;
    }
    assert_true(failures >= 2);
}

/* The n-th allocation fails while a shard without one of its files is
 * recovered. False if there were fewer. */
static bool recover_short_of_memory(const char *path, uint64_t n, int *refused) {
    bags_env env = {&memory.allocator, &disk.io};
    memory.failed = 0;
    memory.fail_at = memory.calls + n;
    poison();
    bags_code code = recover_path(path, &env, NULL, &said);
    bool met = memory.failed > 0;
    memory.fail_at = 0;
    /* A failure after the damage was found does not hide it. */
    if (code != BAGS_ERROR_MEMORY)
        assert_int_equal(code, BAGS_ERROR_CORRUPT);
    assert_true(met || code == BAGS_ERROR_CORRUPT);
    *refused += code == BAGS_ERROR_MEMORY;
    return met;
}

static void a_failing_recovery_may_also_run_out_of_memory(void **state) {
    static const char ends[8] = {1};
    uint64_t n = 1;
    int refused = 0;
    (void)state;
    make_dir(at("x"));
    save_text(at("x/spec.json.partial"), "{\"a\": \"bytes\"}");
    save(at("x/refs.idx"), ends, 8);
    save_text(at("x/refs.bag"), "x");
    while (recover_short_of_memory(at("x"), n, &refused))
        n++;
    assert_true(refused > 20);
    assert_names(at("x"), "refs.bag refs.idx spec.json.partial");
}

static void a_row_of_refs_that_is_too_long_ends_the_datapoints(void **state) {
    static const bags_field fields[] = {{"a", "bytes"}};
    bags_env env = {&memory.allocator, &disk.io};
    bags_recover_report report;
    bags_value value = bags_bytes("x", 1);
    bags_entry entry = {"a", &value, 1};
    unsigned char zeros[100] = {0};
    bags_writer *writer;
    (void)state;
    assert_opens(writer, bags_writer_open(at("x"), fields, 1, NULL, &said));
    for (int i = 0; i < 3; i++)
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_flush(writer, &said));
    copy_tree(at("x"), at("y"));
    bags_writer_abort(writer);
    bytes refs = load(at("y/refs.bag")), ends = load(at("y/refs.idx"));
    assert_int_equal(ends.size, 24);
    put(&refs, zeros, sizeof zeros);
    ends.data[16] = 99;
    save(at("y/refs.bag"), refs.data, refs.size);
    save(at("y/refs.idx"), ends.data, ends.size);
    assert_ok(recover_path(at("y"), &env, &report, &said));
    assert_int_equal(report.length, 2);
    bytes_free(&refs);
    bytes_free(&ends);
}

static void an_empty_refs_file_next_to_blobs_was_never_closed(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    make_dir(at("x"));
    hand_add(&bag, "abc", 3);
    hand_save(&bag, V1, at("x"), "a");
    hand_free(&bag);
    save_text(at("x/refs.bag"), "");
    save_text(at("x/spec.json"), "{\"a\": \"bytes\"}");
    assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("x"), NULL, &said));
    assert_says("x/refs.bag*0 bytes*a.bag");
}

/* ---- unusual codecs ---- */

static int times_opened, times_closed;

static bags_code open_later(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **codec_state, bags_error *err) {
    (void)codec;
    (void)type;
    (void)allocator;
    *codec_state = NULL;
    times_opened++;
    return bags_fail(err, BAGS_ERROR_TYPE, "not today");
}

static void close_later(void *codec_state) {
    (void)codec_state;
    times_closed++;
}

/* Values of its type could never be written or read, blobs never be decoded. */
static void a_codec_that_cannot_be_opened_refuses_its_type(void **state) {
    static const bags_codec later = {
        "later", open_later, fail_long, NULL, close_later, NULL, NULL};
    static const bags_codec reads = {"reads", NULL, NULL, NULL, NULL, NULL, NULL};
    static const bags_field fields[] = {{"b", "reads"}, {"a", "later[]"}};
    static const bags_field given = {"b", "reads(1)"};
    bags_registry *codecs = bags_registry_create(&memory.allocator, &said);
    bags_writer_options options;
    bags_buffer scratch = {0};
    bags_value value = bags_int(1);
    bags_entry entry = {"b", &value, 1};
    bags_view blob;
    bags_writer *writer;
    (void)state;
    times_opened = times_closed = 0;
    assert_ok(bags_registry_add(codecs, &later, &said));
    assert_ok(bags_registry_add(codecs, &reads, &said));
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    options.registry = codecs;
    assert_refused(
        BAGS_ERROR_TYPE, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_says("x: field \"a\": type \"later[]\": not today");
    assert_refused(
        BAGS_ERROR_TYPE, bags_writer_open(at("x"), &given, 1, &options, &said));
    assert_says("x: field \"b\": type \"reads(1)\": this type accepts no arg");
    assert_fails(
        BAGS_ERROR_TYPE, bags_encode(codecs, "later", &value, &scratch, &blob, &said));
    assert_says("type \"later\": not today");
    assert_opens(writer, bags_writer_open(at("x"), fields, 1, &options, &said));
    assert_fails(BAGS_ERROR_TYPE, bags_writer_append(writer, &entry, 1, &said));
    assert_says("x: field \"b\": datapoint 0*cannot encode");
    bags_writer_abort(writer);
    bags_buffer_free(&scratch);
    bags_registry_free(codecs);
    assert_int_equal(times_opened, 2);
    assert_int_equal(times_closed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(blobs_too_large_for_the_address_space_are_a_limit_error),
        TEST(more_blobs_than_fit_the_address_space_are_a_limit_error),
        TEST(fields_too_large_for_the_address_space_are_a_limit_error),
        TEST(datapoints_are_counted_up_to_2_to_the_64),
        TEST(a_bag_ends_below_2_to_the_63_bytes),
        TEST(a_null_bag_writer_is_an_argument_error),
        TEST(fields_and_entries_without_names_are_argument_errors),
        TEST(local_hooks_return_the_errno_of_the_system),
        TEST(starting_to_write_to_the_disk_does_not_wait),
        TEST(disk_space_is_reserved_only_after_the_end),
        TEST(local_offsets_above_2_to_the_63_are_refused),
        TEST(local_transfers_of_any_size_are_started),
        TEST(circular_links_are_an_io_error),
        TEST(a_message_that_cannot_be_formatted_is_empty),
        TEST(a_message_that_becomes_too_long_is_truncated),
        TEST(arrays_with_huge_dimensions_and_no_elements_are_encoded),
        TEST(arrays_that_exceed_their_type_are_refused),
        TEST(plain_bytes_are_a_value),
        TEST(a_file_that_changed_while_it_was_closed_is_an_error),
        TEST(reading_the_journal_of_a_bag_may_fail),
        TEST(large_blobs_may_be_read_at_random_and_ahead),
        TEST(opening_a_bag_in_memory_may_run_out_of_memory),
        TEST(opening_shards_with_gaps_may_run_out_of_memory),
        TEST(a_writer_repeats_its_failure_at_every_call),
        TEST(close_reports_that_an_empty_shard_cannot_be_removed),
        TEST(a_directory_that_cannot_be_listed_is_not_recovered),
        TEST(a_failing_recovery_may_also_run_out_of_memory),
        TEST(a_row_of_refs_that_is_too_long_ends_the_datapoints),
        TEST(an_empty_refs_file_next_to_blobs_was_never_closed),
        TEST(a_codec_that_cannot_be_opened_refuses_its_type),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
