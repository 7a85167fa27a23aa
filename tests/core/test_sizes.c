/* Files larger than 4 GiB and counts above 2^32, also on 32-bit CPUs. The files
 * are mostly holes: this needs a file system with sparse files. */
// flavours: check: release asan
#define _FILE_OFFSET_BITS 64
#include "check.h"

#include <errno.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <windows.h>
#endif

#define GIB ((uint64_t)1 << 30)
#define TWO_TO_32 ((uint64_t)1 << 32)

/* ---- sparse files ---- */

/* The bytes that a file occupies on the disk. */
static uint64_t disk_usage(const char *path) {
#ifdef _WIN32
    FILE_STANDARD_INFO info;
    HANDLE file = CreateFileA(path, GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    CHECK(GetFileInformationByHandleEx(file, FileStandardInfo, &info, sizeof info));
    CloseHandle(file);
    return (uint64_t)info.AllocationSize.QuadPart;
#else
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_blocks * 512 : UINT64_MAX;
#endif
}

/* True if a hole of 1 GiB occupies less than 1 MiB on the disk. */
static bool has_holes(void) {
    const bags_io *io = bags_io_local();
    void *file = NULL;
    CHECK(io->open(io->user, at("hole"), BAGS_IO_CREATE, &file) == 0);
    CHECK(io->truncate(io->user, file, GIB) == 0);
    CHECK(io->close(io->user, file) == 0);
    bool holes = disk_usage(at("hole")) < ((uint64_t)1 << 20);
    CHECK(remove(at("hole")) == 0);
    return holes;
}

#define NEED_HOLES()                                                                   \
    do {                                                                               \
        if (!has_holes()) {                                                            \
            print_message("skipped: this file system has no sparse files\n");          \
            skip();                                                                    \
        }                                                                              \
    } while (0)

/* Write into an existing file, which grows if needed. */
static void patch(const char *path, uint64_t offset, const void *data, size_t size) {
    const bags_io *io = bags_io_local();
    void *file = NULL;
    size_t done = 0;
    CHECK(io->open(io->user, path, BAGS_IO_WRITE, &file) == 0);
    CHECK(io->write_at(io->user, file, offset, data, size, &done) == 0);
    CHECK(done == size);
    CHECK(io->close(io->user, file) == 0);
}

static void patch_u64(const char *path, uint64_t offset, uint64_t value) {
    bytes number = {0};
    put_u64(&number, value);
    patch(path, offset, number.data, number.size);
    bytes_free(&number);
}

/* Local files, but large writes, which are zeros here, leave holes. */
static bags_io hole_io;

static int hole_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    if (size < 65536)
        return bags_io_local()->write_at(user, file, offset, data, size, done);
    uint64_t end = 0;
    int error = bags_io_local()->size(user, file, &end);
    if (!error && end < offset + size)
        error = bags_io_local()->truncate(user, file, offset + size);
    *done = size;
    return error;
}

static const bags_io *holes(void) {
    hole_io = *bags_io_local();
    hole_io.write_at = hole_write;
    watch_start(&disk, &hole_io);
    return &disk.io;
}

/* ---- one Bag ---- */

static bag_reader *open_bag(const char *path, bool no_mmap) {
    bag_reader_options options;
    bag_reader *reader;
    memset(&options, 0, sizeof options);
    options.no_mmap = no_mmap;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(reader, bag_reader_open(path, &options, &said));
    return reader;
}

/* The blobs "first", a hole of `size` bytes, and "last". */
static void save_large_bag(const char *path, uint64_t size) {
    uint64_t table = 5 + size + 4;
    save(path, "first", 5);
    patch(path, 5 + size, "last", 4);
    patch_u64(path, table, 0);
    patch_u64(path, table + 8, 5);
    patch_u64(path, table + 16, 5 + size);
    patch_u64(path, table + 24, table);
}

static void check_large_bag(bool no_mmap) {
    bags_buffer scratch = {0};
    bags_view blob;
    bag_blobs range;
    bag_reader *reader = open_bag(at("x.bag"), no_mmap);
    bool mapped = disk.maps > 0;
    assert_true(mapped == (!no_mmap && sizeof(size_t) > 4));
    assert_int_equal(bag_reader_length(reader), 3);
    assert_int_equal(bag_reader_size(reader), 5 * GIB + 9 + 32);
    assert_ok(bag_reader_get(reader, 0, &scratch, &blob, &said));
    assert_text(blob, "first");
    assert_ok(bag_reader_get(reader, 2, &scratch, &blob, &said));
    assert_text(blob, "last");
    assert_ok(bag_reader_get_range(reader, 2, 3, &scratch, &range, &said));
    assert_text(bag_blobs_get(&range, 0), "last");
    assert_ok(verify_path(at("x.bag"), NULL, &said));
    if (mapped) {
        assert_ok(bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_true(blob.size == 5 * GIB);
        assert_int_equal(blob.data[blob.size - 1], 0);
    } else if (sizeof(size_t) == 4) {
        assert_fails(
            BAGS_ERROR_LIMIT, bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_says("blob 1");
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void a_bag_larger_than_4_gib_is_read_at_both_ends(void **state) {
    (void)state;
    NEED_HOLES();
    save_large_bag(at("x.bag"), 5 * GIB);
    check_large_bag(false);
    check_large_bag(true);
}

/* Each fits alone; together they exceed 32 bits. */
static void bags_too_large_to_map_are_read_without_mmap(void **state) {
    enum { BAGS = 4 };
    bag_reader *readers[BAGS];
    bags_buffer scratch = {0};
    bags_view blob;
    (void)state;
    NEED_HOLES();
    save_large_bag(at("x.bag"), 3 * GIB / 2);
    for (int i = 0; i < BAGS; i++)
        readers[i] = open_bag(at("x.bag"), false);
    assert_true((disk.maps == BAGS) == (sizeof(size_t) > 4));
    for (int i = 0; i < BAGS; i++) {
        assert_ok(bag_reader_get(readers[i], 2, &scratch, &blob, &said));
        assert_text(blob, "last");
        bag_reader_close(readers[i]);
    }
    bags_buffer_free(&scratch);
}

/* 2^32 empty blobs, and a last one, "z". */
static void check_many_blobs(bool no_mmap) {
    bags_buffer scratch = {0};
    bags_view blob;
    bag_blobs range;
    bag_reader *reader = open_bag(at("x.bag"), no_mmap);
    assert_true(bag_reader_length(reader) == TWO_TO_32 + 1);
    assert_ok(bag_reader_get(reader, 0, &scratch, &blob, &said));
    assert_int_equal(blob.size, 0);
    assert_ok(bag_reader_get(reader, TWO_TO_32 - 1, &scratch, &blob, &said));
    assert_int_equal(blob.size, 0);
    assert_ok(bag_reader_get(reader, TWO_TO_32, &scratch, &blob, &said));
    assert_text(blob, "z");
    assert_fails(BAGS_ERROR_RANGE,
        bag_reader_get(reader, TWO_TO_32 + 1, &scratch, &blob, &said));
    assert_says("x.bag*4294967297*length 4294967297");
    assert_ok(bag_reader_get_range(
        reader, TWO_TO_32 - 2, UINT64_MAX, &scratch, &range, &said));
    assert_int_equal(range.length, 3);
    assert_text(bag_blobs_get(&range, 2), "z");
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void more_than_2_to_the_32_blobs_are_read_at_both_ends(void **state) {
    (void)state;
    NEED_HOLES();
    save(at("x.bag"), "z", 1);
    patch_u64(at("x.bag"), 1 + (TWO_TO_32 + 1) * 8, 1);
    check_many_blobs(false);
    check_many_blobs(true);
}

static void a_table_too_large_for_the_address_space_is_a_limit_error(void **state) {
    bag_reader_options options;
    (void)state;
    NEED_HOLES();
    save(at("x.bag"), "z", 1);
    patch_u64(at("x.bag"), 1 + (TWO_TO_32 + 1) * 8, 1);
    memset(&options, 0, sizeof options);
    options.no_mmap = options.cache_index = true;
    options.env.allocator = &memory.allocator;
    memory.limit = GIB; /* few machines have 32 GiB to spare */
    assert_refused(sizeof(size_t) == 4 ? BAGS_ERROR_LIMIT : BAGS_ERROR_MEMORY,
        bag_reader_open(at("x.bag"), &options, &said));
    memory.limit = 0;
}

/* ---- datasets ---- */

static bags_reader *open_set(const char *path, const bags_io *io) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static void a_split_dataset_of_2_to_the_32_datapoints_is_read(void **state) {
    bags_row row = {0};
    (void)state;
    NEED_HOLES();
    make_dir(at("x"));
    save_text(at("x/spec.json"), "{\"a\": \"bytes\"}");
    save(at("x/a.bag"), "z", 1);
    save(at("x/a.idx"), "", 0);
    patch_u64(at("x/a.idx"), TWO_TO_32 * 8, 1);
    bags_reader *reader = open_set(at("x"), &disk.io);
    assert_true(bags_reader_length(reader) == TWO_TO_32 + 1);
    assert_ok(bags_reader_get(reader, TWO_TO_32, NULL, 0, &row, &said));
    assert_text(bags_row_bytes(&row, 0, 0), "z");
    assert_ok(bags_reader_get(reader, TWO_TO_32 - 1, NULL, 0, &row, &said));
    assert_int_equal(bags_row_bytes(&row, 0, 0).size, 0);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* 20 datapoints of 256 MiB of zeros in a, and their number in n. */
static void write_large_set(const char *path) {
    const size_t size = GIB / 4;
    bags_field fields[] = {{"a", "bytes"}, {"n", "int"}};
    bags_writer_options options;
    bags_writer *writer;
    void *zeros = calloc(size, 1);
    assert_non_null(zeros);
    memset(&options, 0, sizeof options);
    options.shard_size = 9 * GIB / 2;
    options.env.io = holes();
    options.env.allocator = &memory.allocator;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < 20; i++) {
        bags_value number = bags_uint(i);
        bags_value value = bags_blob(zeros, size);
        bags_entry datapoint[] = {{"a", &value, 1}, {"n", &number, 1}};
        assert_ok(bags_writer_append(writer, datapoint, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    free(zeros);
}

static void a_dataset_larger_than_4_gib_is_written_and_read(void **state) {
    bags_row row = {0};
    bags_select select = bags_select_all(0);
    bags_value value;
    (void)state;
    NEED_HOLES();
    write_large_set(at("x"));
    assert_names(at("x"), "000000 000001");
    /* 18 of them, their ends and the leading 0 */
    assert_true(file_size(at("x/000000/a.bag")) == 9 * GIB / 2 + 19 * 8);
    bags_reader *reader = open_set(at("x"), &disk.io);
    assert_int_equal(bags_reader_length(reader), 20);
    assert_ok(bags_verify(at("x"), NULL, NULL, &said));
    assert_ok(bags_reader_field(reader, "n", &select.field, &said));
    for (uint64_t i = 0; i < 20; i++) {
        assert_ok(bags_reader_get(reader, i, &select, 1, &row, &said));
        assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
        assert_int_equal(value.uint, i);
    }
    assert_ok(bags_reader_field(reader, "a", &select.field, &said));
    assert_ok(bags_reader_get(reader, 17, &select, 1, &row, &said));
    assert_int_equal(bags_row_bytes(&row, 0, 0).size, GIB / 4);
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- a million shards ---- */

enum { SHARDS = 1000010 };

/* A directory x with the shards 0 .. SHARDS - 1, each of which is the dataset
 * `shard` with one datapoint. */
static int many_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    if (strcmp(path, "x") != 0)
        return bags_io_local()->list(user, at("shard"), each, each_user);
    for (int i = SHARDS; i-- > 0;) {
        char name[16];
        snprintf(name, sizeof name, "%06d", i);
        int code = each(each_user, name);
        if (code)
            return code;
    }
    return 0;
}

/* x/NUMBER/FILE is shard/FILE, except that n.bag is number.NUMBER. */
static const char *many_path(const char *path) {
    const char *slash = strncmp(path, "x/", 2) == 0 ? strchr(path + 2, '/') : NULL;
    if (slash && strcmp(slash, "/n.bag") == 0)
        return at("number.%d", atoi(path + 2));
    return slash ? at("shard%s", slash) : at("shard");
}

static int many_open(void *user, const char *path, int mode, void **file) {
    if (strcmp(path, "x/spec.json") == 0)
        return ENOENT;
    return bags_io_local()->open(user, many_path(path), mode, file);
}

static int many_kind(void *user, const char *path, bags_path_kind *kind) {
    *kind = BAGS_PATH_NONE;
    if (strcmp(path, "x/spec.json") == 0 || strcmp(path, "x/refs.bag") == 0)
        return 0;
    return bags_io_local()->kind(user, many_path(path), kind);
}

static void save_many_shards(void) {
    static const int numbers[] = {5, 500005, 1000005};
    hand_set set = {0};
    set_field(&set, "n", "utf8");
    set_begin(&set);
    set_text(&set, 0, "0");
    set_end(&set);
    set_save(&set, V1, at("shard"));
    set_free(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", numbers[i]);
        hand_bag bag = {{0}, {0}};
        hand_add(&bag, text, strlen(text));
        bytes file = hand_bytes(&bag, V1);
        save(at("number.%d", numbers[i]), file.data, file.size);
        bytes_free(&file);
        hand_free(&bag);
    }
}

static void shard_one_million_has_seven_digits(void **state) {
    static const char *const texts[] = {"5", "500005", "1000005"};
    bags_reader_options options;
    bags_reader *reader;
    bags_row row = {0};
    bags_io io = *bags_io_local();
    (void)state;
    save_many_shards();
    io.list = many_list;
    io.open = many_open;
    io.kind = many_kind;
    io.identify = NULL; /* one file is many */
    memset(&options, 0, sizeof options);
    options.shard_start = 5;
    options.shard_stop = 500000;
    options.env.allocator = &memory.allocator;
    options.env.io = &io;
    assert_opens(reader, bags_reader_open("x", &options, &said));
    assert_int_equal(shard_count(reader), 3);
    assert_int_equal(bags_reader_length(reader), 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_text(bags_row_bytes(&row, 0, 0), texts[i]);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_bag_larger_than_4_gib_is_read_at_both_ends),
        TEST(bags_too_large_to_map_are_read_without_mmap),
        TEST(more_than_2_to_the_32_blobs_are_read_at_both_ends),
        TEST(a_table_too_large_for_the_address_space_is_a_limit_error),
        TEST(a_split_dataset_of_2_to_the_32_datapoints_is_read),
        TEST(a_dataset_larger_than_4_gib_is_written_and_read),
        TEST(shard_one_million_has_seven_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
