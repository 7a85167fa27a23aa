/* Parts of blobs: every range of a blob, in every mode of access, equals that range of the
 * blob; hooks read no byte more. */
// flavours: test: asan; check: release
#include "check.h"

#define LENGTH 12
#define MOST 700 /* bytes of a blob */

enum mode { MAPPED, NO_MMAP, CACHED_INDEX, NO_READ_AHEAD, UNFINISHED, MODES };

/* The blob of datapoint i; of item k of a sequence. */
static size_t blob_of(uint64_t i, uint64_t k, unsigned char blob[MOST]) {
    size_t size = (size_t)(i * 61 + k * 7) % MOST;
    fill(blob, MOST, i * 100 + k);
    return size;
}

/* Append datapoints to a writer: "data", and i % 4 "items". */
static void append(bags_writer *writer) {
    for (uint64_t i = 0; i < LENGTH; i++) {
        unsigned char blobs[4][MOST];
        bags_value values[4];
        bags_entry entries[] = {{"data", values, 1}, {"items", values + 1, i % 4}};
        for (uint64_t k = 0; k < 4; k++) {
            size_t size = blob_of(i, k, blobs[k]);
            values[k] = bags_bytes(blobs[k], size);
        }
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
}

static bags_writer *start(const char *path, uint64_t shard_length, bool checksum) {
    const bags_field fields[] = {{"data", "bytes"}, {"items", "bytes[]"}};
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.shard_length = shard_length;
    options.checksum = checksum;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    append(writer);
    return writer;
}

static bags_reader *open_with(
    const char *path, enum mode mode, bool verify, const bags_io *io) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.no_mmap = mode == NO_MMAP || mode == CACHED_INDEX;
    options.cache_index = mode == CACHED_INDEX;
    options.no_read_ahead = mode == NO_READ_AHEAD;
    options.verify_checksums = verify;
    if (mode == UNFINISHED)
        options.unfinished = BAGS_UNFINISHED_READ;
    options.env.io = io;
    options.env.allocator = &memory.allocator;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static size_t least(uint64_t a, size_t b) { return a < b ? (size_t)a : b; }

/* Read this part, and compare it. */
static void check_part(const bags_reader *reader, uint64_t i, size_t field, uint64_t k,
    uint64_t offset, uint64_t size, bags_row *row) {
    unsigned char blob[MOST];
    size_t all = blob_of(i, field ? k + 1 : 0, blob), from = least(offset, all);
    bags_view part;
    assert_ok(
        bags_reader_get_part(reader, i, field, k, offset, size, row, &part, &said));
    assert_bytes(part, blob + from, least(size, all - from));
    assert_int_equal(bags_row_length(row, 0), 0);
}

static void check_blob(
    const bags_reader *reader, uint64_t i, size_t field, uint64_t k, bags_row *row) {
    unsigned char blob[MOST];
    uint64_t all = blob_of(i, field ? k + 1 : 0, blob);
    const uint64_t numbers[] = {
        0, 1, all / 3, all / 2, all ? all - 1 : 0, all, all + 1, UINT64_MAX};
    for (size_t a = 0; a < 8; a++)
        for (size_t b = 0; b < 8; b++)
            check_part(reader, i, field, k, numbers[a], numbers[b], row);
}

static void every_part_is_read_in_every_mode(void **state) {
    bags_row row = {0};
    (void)state;
    for (int sharded = 0; sharded < 2; sharded++)
        for (int mode = 0; mode < MODES; mode++) {
            bags_writer *writer = start(at("ds"), sharded ? 5 : 0, false);
            if (mode == UNFINISHED)
                assert_ok(bags_writer_flush(writer, &said));
            else
                assert_ok(bags_writer_close(writer, &said));
            bags_reader *reader = open_with(at("ds"), (enum mode)mode, false, NULL);
            assert_int_equal(bags_reader_length(reader), LENGTH);
            for (uint64_t i = 0; i < LENGTH; i++) {
                uint64_t at = i * 7 % LENGTH;
                check_blob(reader, at, 0, 0, &row);
                for (uint64_t k = 0; k < at % 4; k++)
                    check_blob(reader, at, 1, k, &row);
            }
            bags_reader_close(reader);
            if (mode == UNFINISHED)
                bags_writer_abort(writer);
            if (exists(at("ds")))
                remove_tree(at("ds"));
        }
    bags_row_free(&row);
}

static void a_mapped_part_is_not_copied(void **state) {
    bags_row row = {0};
    bags_view blob, part;
    (void)state;
    skip_on_windows("maps");
    assert_ok(bags_writer_close(start(at("ds"), 0, false), &said));
    bags_reader *reader = open_with(at("ds"), MAPPED, false, NULL);
    for (int turn = 0; turn < 2; turn++) { /* the first one opens the Bag */
        assert_ok(bags_reader_get_part(reader, 5, 0, 0, 20, 30, &row, &part, &said));
        assert_false(bags_row_owns(&row, part.data));
        assert_ok(bags_reader_get_blob(reader, 5, 0, 0, &row, &blob, &said));
        assert_true(part.data == blob.data + 20);
    }
    bags_reader_close(reader);
    bags_row_free(&row);
}

static void check_refused(const bags_reader *reader, bags_code code, uint64_t i,
    size_t field, uint64_t item, bags_row *row) {
    static const unsigned char other[1] = {0};
    bags_view part = {other, 1};
    assert_fails(
        code, bags_reader_get_part(reader, i, field, item, 1, 2, row, &part, &said));
    assert_null(part.data);
    assert_int_equal(part.size, 0);
    assert_int_equal(
        bags_reader_get_part(reader, i, field, item, 1, 2, row, &part, NULL), code);
}

static void what_does_not_exist_is_named(void **state) {
    bags_row row = {0};
    bags_view part;
    (void)state;
    assert_ok(bags_writer_close(start(at("ds"), 5, false), &said));
    for (int mode = 0; mode < UNFINISHED; mode++) {
        bags_reader *reader = open_with(at("ds"), (enum mode)mode, false, NULL);
        check_refused(reader, BAGS_ERROR_RANGE, LENGTH, 0, 0, &row);
        check_refused(reader, BAGS_ERROR_RANGE, UINT64_MAX, 0, 0, &row);
        check_refused(reader, BAGS_ERROR_FIELD, 0, 2, 0, &row);
        check_refused(reader, BAGS_ERROR_RANGE, 4, 1, 0, &row);
        check_refused(reader, BAGS_ERROR_RANGE, 7, 1, UINT64_MAX, &row);
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_get_part(reader, 7, 1, 3, 0, 9, &row, &part, &said));
        assert_says("ds: field \"items\": datapoint 7*item*3*length 3");
        bags_reader_close(reader);
    }
    assert_int_equal(bags_reader_get_part(NULL, 0, 0, 0, 0, 1, &row, &part, &said),
        BAGS_ERROR_ARGUMENT);
    bags_row_free(&row);
}

static void only_all_of_a_blob_can_be_verified(void **state) {
    bags_row row = {0};
    (void)state;
    assert_ok(bags_writer_close(start(at("ds"), 5, true), &said));
    for (int mode = 0; mode < UNFINISHED; mode++) {
        bags_reader *reader = open_with(at("ds"), (enum mode)mode, true, NULL);
        unsigned char blob[MOST];
        uint64_t all = blob_of(3, 0, blob);
        static const uint64_t parts[][2] = {
            {0, 0}, {0, 1}, {1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
        check_part(reader, 3, 0, 0, 0, all, &row);
        check_part(reader, 3, 0, 0, 0, all + 1, &row);
        check_part(reader, 3, 0, 0, 0, UINT64_MAX, &row);
        check_part(reader, 0, 0, 0, 5, 7, &row); /* the blob is empty */
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            bags_view part;
            assert_fails(
                BAGS_ERROR_ARGUMENT, bags_reader_get_part(reader, 3, 0, 0, parts[i][0],
                                         parts[i][1], &row, &part, &said));
            assert_says("data.bag: blob 3: a part (*of 183*verify_checksums");
        }
        bags_view past; /* its only item is item 0: the part is not the fault */
        assert_fails(BAGS_ERROR_RANGE,
            bags_reader_get_part(reader, 3, 0, 1, 1, 1, &row, &past, &said));
        check_blob(reader, 0, 0, 0, &row);
        bags_reader_close(reader);
    }
    /* The checksum of all of a blob is compared. */
    bags_view part;
    bags_reader *reader = open_with(at("ds"), NO_MMAP, true, NULL);
    bags_reader_close(reader);
    FILE *file = fopen(at("ds/000000/data.bag"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 100, SEEK_SET), 0);
    assert_int_equal(fputc('?', file), '?');
    assert_int_equal(fclose(file), 0);
    reader = open_with(at("ds"), NO_MMAP, true, NULL);
    assert_fails(BAGS_ERROR_CORRUPT,
        bags_reader_get_part(reader, 2, 0, 0, 0, UINT64_MAX, &row, &part, &said));
    assert_says("checksum mismatch");
    bags_reader_close(reader);
    bags_row_free(&row);
}

/* ---- hooks ---- */

static bags_io far;
static size_t calls, ranges, requests;
static uint64_t received, requested;

static void far_read_many(void *user, bags_io_read *reads, size_t count) {
    calls++;
    for (size_t i = 0; i < count; i++) {
        if (!reads[i].data) {
            requests++;
            requested += reads[i].size;
            continue;
        }
        ranges++;
        received += reads[i].size;
        bags_io_local()->read_at(user, reads[i].file, reads[i].offset, reads[i].data,
            reads[i].size, &reads[i].done);
    }
}

static void a_far_part_is_one_range_without_a_byte_more(void **state) {
    bags_row row = {0};
    (void)state;
    assert_ok(bags_writer_close(start(at("ds"), 5, false), &said));
    far = *bags_io_local();
    far.map = NULL;
    far.read_many = far_read_many;
    for (int cached = 0; cached < 2; cached++) {
        bags_reader *reader =
            open_with(at("ds"), cached ? CACHED_INDEX : NO_MMAP, false, &far);
        check_part(reader, 9, 0, 0, 100, 200, &row);
        calls = ranges = 0;
        received = 0;
        check_part(reader, 9, 0, 0, 100, 200, &row);
        /* The table's entry and blob of refs; of the field; and the part. */
        size_t steps = cached ? 2 : 4;
        uint64_t refs = 5, entries = cached ? 0 : 32;
        assert_int_equal(calls, steps);
        assert_int_equal(ranges, steps);
        assert_true(received >= 200 && received <= 200 + refs + entries);
        calls = 0;
        check_part(reader, 9, 0, 0, 100, 0, &row); /* nothing is read for nothing */
        assert_int_equal(calls, steps);
        bags_reader_close(reader);
    }
    bags_row_free(&row);
}

/* Parts of several blobs, two of them of one blob, are requested in one call. */
static void parts_are_requested_at_once(void **state) {
    static const uint64_t indices[] = {11, 3, 4, 5, 11, 0};
    static const bags_extent parts[] = {
        {10, 40}, {0, 50}, {7, 60}, {1, UINT64_MAX}, {200, 30}, {0, 9}};
    bags_select selects[6];
    bags_row row = {0};
    (void)state;
    assert_ok(bags_writer_close(start(at("ds"), 5, false), &said));
    far = *bags_io_local();
    far.map = NULL;
    far.read_many = far_read_many;
    bags_reader *reader = open_with(at("ds"), CACHED_INDEX, false, &far);
    for (size_t i = 0; i < 6; i++)
        selects[i] = bags_select_all(0);
    selects[2] = bags_select_slice(1, 0, 1, 1); /* of no items */
    assert_ok(bags_reader_prefetch_parts(
        reader, indices, 6, selects, parts, &row, &said)); /* files are opened */
    requests = 0;
    requested = 0;
    assert_ok(
        bags_reader_prefetch_parts(reader, indices, 6, selects, parts, &row, &said));
    unsigned char blob[MOST];
    uint64_t rest = blob_of(5, 0, blob) - 1, refs = 5 * 5;
    assert_true(requested >= 120 + rest && requested <= 120 + rest + refs);
    assert_int_equal(requests, 4 + 4); /* refs of neighbours are one range */
    check_part(reader, 11, 0, 0, 200, 30, &row);
    bags_select wrong = bags_select_all(2);
    assert_fails(BAGS_ERROR_FIELD,
        bags_reader_prefetch_parts(reader, indices, 1, &wrong, parts, &row, &said));
    assert_ok(bags_reader_prefetch_parts(reader, NULL, 0, NULL, NULL, &row, &said));
    assert_int_equal(
        bags_reader_prefetch_parts(reader, indices, 1, selects, NULL, &row, &said),
        BAGS_ERROR_ARGUMENT);
    bags_reader_close(reader);
    bags_row_free(&row);
}

static void the_failure_of_every_allocation_is_an_error(void **state) {
    (void)state;
    assert_ok(bags_writer_close(start(at("ds"), 5, false), &said));
    bool succeeded = false;
    for (uint64_t n = 1; !succeeded; n++) {
        bags_row row = {0};
        bags_view part;
        bags_reader *reader = open_with(at("ds"), NO_MMAP, false, NULL);
        memory.calls = 0;
        memory.fail_at = n;
        bags_code code =
            bags_reader_get_part(reader, 9, 1, 0, 3, 40, &row, &part, &said);
        memory.fail_at = 0;
        succeeded = !code;
        if (code)
            assert_int_equal(code, BAGS_ERROR_MEMORY);
        else
            assert_true(n > 3);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_part_is_read_in_every_mode),
        TEST(a_mapped_part_is_not_copied),
        TEST(what_does_not_exist_is_named),
        TEST(only_all_of_a_blob_can_be_verified),
        TEST(a_far_part_is_one_range_without_a_byte_more),
        TEST(parts_are_requested_at_once),
        TEST(the_failure_of_every_allocation_is_an_error),
    };
    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
