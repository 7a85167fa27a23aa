/* Memory that runs out and files that fail, at every point of a program that
 * writes, reads and verifies. */
// flavours: test: release; check: asan
#include "check.h"

#include <errno.h>

/* ---- the program ---- */

typedef struct world {
    tally blocks;
    memory_disk drive;
    watch files;
    bool no_mmap;
    bool repeated;     /* see verify_watched */
    const char *where; /* the step that failed */
} world;

#define OPEN(object, call) OPEN_STEP(object, call, said)

static const char big[9000] = {1, 2, 3};

static bags_code write_bag(world *w) {
    bag_writer_options options;
    bag_writer *writer = NULL;
    bags_code code;
    memset(&options, 0, sizeof options);
    options.buffer_size = 4096;
    options.checksum = true;
    options.env.allocator = &w->blocks.allocator;
    options.env.io = &w->files.io;
    OPEN(writer, bag_writer_open("x.bag", &options, &said));
    for (size_t i = 0; i < 20; i++)
        STEP(bag_writer_append(writer, big, i * 40, NULL, &said));
    STEP(bag_writer_flush(writer, &said));
    STEP(bag_writer_append(writer, big, sizeof big, NULL, &said));
    STEP(bag_writer_append(writer, "end", 3, NULL, &said));
done:
    if (code) {
        bag_writer_close(writer, NULL);
        return code;
    }
    poison();
    w->where = "bag_writer_close";
    return bag_writer_close(writer, &said);
}

static bags_code verify(
    world *w, const char *path, uint64_t datapoints, uint64_t blobs) {
    bags_env env = {&w->blocks.allocator, &w->files.io};
    bags_code code;
    STEP(verify_watched(
        path, NULL, &env, &w->files, datapoints, blobs, &w->repeated, &said));
done:
    return code;
}

static bags_code read_bag(world *w, bool cache_index) {
    bag_reader_options options;
    bag_reader *reader = NULL;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    bag_blobs range;
    bags_code code;
    memset(&options, 0, sizeof options);
    options.no_mmap = options.verify_checksums = w->no_mmap;
    options.cache_index = cache_index;
    options.env.allocator = &w->blocks.allocator;
    options.env.io = &w->files.io;
    OPEN(reader, bag_reader_open("x.bag", &options, &said));
    assert_true(bag_reader_length(reader) == 22);
    STEP(bag_reader_get(reader, 20, &scratch, &blob, &said));
    assert_bytes(blob, big, sizeof big);
    STEP(bag_reader_get_range(reader, 5, 22, &scratch, &range, &said));
    assert_text(bag_blobs_get(&range, 16), "end");
    if (cache_index)
        STEP(verify(w, "x.bag", 0, 22));
done:
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return code;
}

static const bags_field fields[] = {{"words", "utf8[]"}, {"label", "int(4)"},
    {"points", "array(float64,2)"}, {"self", "array"}, {"other", "shout"}};

static bags_code shout_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    (void)type;
    bags_allocator *copy =
        (bags_allocator *)allocator->resize(allocator->user, NULL, 0, 99);
    if (!copy)
        return bags_fail(err, BAGS_ERROR_MEMORY, "no memory to shout");
    *copy = *allocator;
    *state = copy;
    return BAGS_OK;
}

static bags_code shout_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    bags_code code = bags_buffer_reserve(scratch, value->size + 1, err);
    if (code)
        return code;
    memset(scratch->data, '!', value->size);
    blob->data = scratch->data;
    blob->size = value->size;
    return BAGS_OK;
}

static void shout_close(void *state) {
    bags_allocator copy = *(bags_allocator *)state;
    copy.resize(copy.user, state, 99, 0);
}

static const bags_codec shout = {
    "shout", shout_open, shout_encode, NULL, shout_close, NULL, NULL};

static const char *text_of(uint64_t index) {
    static char text[64];
    snprintf(text, sizeof text, "datapoint %d", (int)index);
    return text;
}

static bags_code append_point(world *w, bags_writer *writer, uint64_t index) {
    static const uint64_t shape[1] = {2};
    double numbers[2] = {(double)index, 0.5};
    bags_value words[2], values[4];
    bags_entry entries[5];
    (void)w;
    words[0] = bags_utf8(text_of(index));
    words[1] = bags_utf8_sized(big, index % 3 * 3000);
    values[0] = bags_uint(index);
    values[1] = bags_array(BAGS_DTYPE_FLOAT64, 1, shape, numbers);
    values[2] = values[1];
    values[3] = bags_utf8("shout");
    for (size_t i = 0; i < 5; i++) {
        entries[i].field = fields[i].name;
        entries[i].values = i ? &values[i - 1] : words;
        entries[i].count = i ? 1 : 2;
    }
    return bags_writer_append(writer, entries, 5, &said);
}

/* A datapoint that is cancelled after much of it was written. */
static bags_code drop_point(world *w, bags_writer *writer) {
    bags_value word = bags_utf8_sized(big, 3000);
    bags_code code;
    STEP(bags_writer_begin(writer, &said));
    for (int i = 0; i < 4; i++)
        STEP(bags_writer_push(writer, "words", &word, &said));
done:
    bags_writer_cancel(writer);
    return code;
}

static bags_code write_set(world *w, const char *path, bool sharded, uint64_t points) {
    bags_writer_options options;
    bags_writer *writer = NULL;
    bags_registry *codecs = NULL;
    bags_code code;
    memset(&options, 0, sizeof options);
    OPEN(codecs, bags_registry_create(&w->blocks.allocator, &said));
    STEP(bags_registry_add(codecs, &shout, &said));
    options.buffer_size = 4096;
    options.shard_length = sharded ? 2 : 0;
    options.checksum = !sharded;
    options.registry = codecs;
    options.env.allocator = &w->blocks.allocator;
    options.env.io = &w->files.io;
    OPEN(writer, bags_writer_open(path, fields, 5, &options, &said));
    for (uint64_t i = 0; i < points; i++) {
        STEP(append_point(w, writer, i));
        if (i % 3 == 1)
            STEP(drop_point(w, writer));
        if (i == 2)
            STEP(bags_writer_flush(writer, &said));
    }
done:
    if (!code) {
        poison();
        w->where = "bags_writer_close";
        code = bags_writer_close(writer, &said);
    } else if (writer) {
        bags_error again;
        bags_code closed = bags_writer_close(writer, &again);
        /* Out of memory in a codec refuses the datapoint, which was
         * reported. */
        if (closed || code != BAGS_ERROR_MEMORY) {
            assert_int_equal(closed, code);
            assert_int_equal(again.system, said.system);
        }
    }
    bags_registry_free(codecs);
    return code;
}

static void check_point(const bags_row *row, uint64_t index) {
    assert_int_equal(bags_row_bytes(row, 0, 0).data[0], index & 255);
    assert_bytes(bags_row_bytes(row, 1, 0), "!!!!!", 5);
    assert_int_equal(bags_row_length(row, 4), 2);
    assert_text(bags_row_bytes(row, 4, 0), text_of(index));
    assert_bytes(bags_row_bytes(row, 4, 1), big, index % 3 * 3000);
}

static bags_code read_set(
    world *w, const char *path, uint64_t points, bool cache_index) {
    bags_reader_options options;
    bags_reader *reader = NULL;
    bags_row row = {0};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    uint64_t count = 0;
    bags_info info;
    bags_field_info infos[5];
    bags_value value;
    bags_code code;
    memset(&options, 0, sizeof options);
    options.no_mmap = w->no_mmap;
    options.cache_index = options.verify_checksums = cache_index;
    options.max_files = 3;
    w->files.most_maps = 8;
    options.env.allocator = &w->blocks.allocator;
    options.env.io = &w->files.io;
    OPEN(reader, bags_reader_open(path, &options, &said));
    assert_true(bags_reader_length(reader) == points);
    for (uint64_t i = 0; i < points; i++) {
        STEP(bags_reader_get(reader, i, NULL, 0, &row, &said));
        check_point(&row, i);
        STEP(bags_row_value(&row, 2, 0, NULL, &value, &said));
        assert_true(value.size == 16 && (uintptr_t)value.data % 8 == 0);
        STEP(bags_row_value(&row, 3, 0, &scratch, &value, &said));
        assert_true(value.size == 16 && (uintptr_t)value.data % 8 == 0);
        STEP(bags_reader_items(reader, i, 4, &row, &count, &said));
        assert_true(count == 2);
    }
    STEP(bags_reader_get_range(reader, 0, points, 0, &row, &said));
    assert_int_equal(bags_row_length(&row, 0), points);
    STEP(bags_reader_info(reader, &info, infos, &said));
    assert_true(infos[4].blobs == 2 * points);
    if (w->no_mmap)
        STEP(verify(w, path, points, 6 * points));
done:
    bags_buffer_free(&scratch);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

static bags_code finalize(world *w) {
    bags_code code;
    bags_finalize_options options;
    memset(&options, 0, sizeof options);
    options.env.allocator = &w->blocks.allocator;
    options.env.io = &w->files.io;
    poison();
    w->where = "rename";
    /* Make a gap; no fault is injected here. */
    if (w->drive.io.rename(w->drive.io.user, "shards/000001", "shards/000007"))
        return BAGS_OK;
    if (w->drive.io.rename(w->drive.io.user, "shards/000002", "shards/000009"))
        return BAGS_OK;
    STEP(bags_finalize("shards", &options, NULL, &said));
done:
    return code;
}

static bags_code run(world *w) {
    bags_code code;
    if ((code = write_bag(w)) != BAGS_OK)
        return code;
    for (int i = 0; i < 3; i++) {
        w->no_mmap = i > 0;
        if ((code = read_bag(w, i == 2)) != BAGS_OK)
            return code;
    }
    if ((code = write_set(w, "set", false, 4)) != BAGS_OK)
        return code;
    for (int i = 0; i < 3; i++) {
        w->no_mmap = i > 0;
        if ((code = read_set(w, "set", 4, i == 2)) != BAGS_OK)
            return code;
    }
    if ((code = write_set(w, "shards", true, 5)) != BAGS_OK)
        return code;
    if ((code = finalize(w)) != BAGS_OK)
        return code;
    for (int i = 0; i < 2; i++) {
        w->no_mmap = i > 0;
        if ((code = read_set(w, "shards", 5, false)) != BAGS_OK)
            return code;
    }
    return BAGS_OK;
}

static void world_start(world *w) {
    memset(w, 0, sizeof *w);
    tally_start(&w->blocks);
    memory_disk_start(&w->drive);
    watch_start(&w->files, &w->drive.io);
}

/* Nothing stays open or allocated. */
static void world_end(world *w, uint64_t n) {
    if (w->blocks.live || w->files.files || w->files.maps)
        fail_msg("fault %d in %s leaves %d blocks, %d files, %d mappings", (int)n,
            w->where, (int)w->blocks.live, w->files.files, w->files.maps);
    memory_disk_free(&w->drive);
}

/* What a reader finds, without faults, must be correct as far as it goes. */
static void check_remains(world *w, const char *path) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_SKIP;
    options.allow_gaps = true;
    options.env.io = &w->drive.io;
    bags_reader *reader = bags_reader_open(path, &options, NULL);
    bags_row row = {0};
    if (!reader)
        return;
    assert_int_equal(verify_path(path, &options.env, &said), BAGS_OK);
    for (uint64_t i = 0; i < bags_reader_length(reader); i++) {
        assert_int_equal(bags_reader_get(reader, i, NULL, 0, &row, &said), 0);
        check_point(&row, i);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* A writer that did not open leaves nothing, unless cleaning up fails too. */
static void check_nothing_left(world *w) {
    if (strncmp(w->where, "bag_writer_open", 15) == 0)
        assert_int_equal(memory_disk_files(&w->drive), 0);
    if (strncmp(w->where, "bags_writer_open", 16) == 0)
        for (size_t i = 0; i < HOOKS; i++) {
            bags_path_kind kind;
            w->drive.io.kind(w->drive.io.user, "set", &kind);
            if (memory_disk_find(&w->drive, "set/spec.json").data)
                return; /* the sharded one: the other is complete */
            assert_int_equal(kind, BAGS_PATH_NONE);
        }
}

static void the_program_works_without_faults(void **state) {
    world w;
    (void)state;
    world_start(&w);
    assert_int_equal(run(&w), BAGS_OK);
    /* Every hook is called, except for one that cleans up after failures, those that
     * only make large files faster, and that which only derived datasets need. */
    for (int h = 0; h < HOOKS; h++)
        if (h != HOOK_REMOVE_DIR && h != HOOK_RESERVE && h != HOOK_ADVISE &&
            h != HOOK_WRITE_BACK && h != HOOK_LINK && w.files.counts[h] == 0)
            fail_msg("%s was never called", hook_names[h]);
    world_end(&w, 0);
}

/* ---- memory ---- */

static void fail_allocations(bool stays, bool map_too) {
    uint64_t n, points = 0;
    for (n = 1;; n += support_stride()) {
        world w;
        world_start(&w);
        w.blocks.fail_at = n;
        w.blocks.stays = stays;
        if (!map_too)
            w.files.io.map = NULL;
        bags_code code = run(&w);
        bool reached = w.blocks.failed > 0;
        if (reached && code != BAGS_ERROR_MEMORY)
            fail_msg("allocation %d, in %s, gives %s", (int)n, w.where,
                bags_code_name(code));
        if (reached)
            CHECK(is_code(BAGS_ERROR_MEMORY, (int)code, w.where));
        points += reached;
        w.blocks.fail_at = 0;
        if (code && !stays)
            check_nothing_left(&w);
        check_remains(&w, "set");
        check_remains(&w, "shards");
        world_end(&w, n);
        if (!reached) {
            assert_int_equal(code, BAGS_OK);
            break;
        }
    }
    print_message("memory ran out at %d points\n", (int)points);
    assert_true(points > 30);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fail_allocations(false, true);
}

static void memory_may_run_out_for_good_at_every_allocation(void **state) {
    (void)state;
    fail_allocations(true, false);
}

/* ---- files ---- */

/* Faults that need not be reported: a file that cannot be mapped is read;
 * closing a file that was only read may fail; if too many files are open, one
 * may be closed. */
static bool may_be_passed_over(const world *w) {
    return w->files.fail_with == EMFILE || w->files.last == HOOK_MAP ||
           w->files.last == HOOK_UNMAP ||
           (w->files.last == HOOK_CLOSE && !w->files.lost_bags);
}

static bool is_code_for(bags_code code, int error) {
    switch (error) {
    case ENOENT:
        return code == BAGS_ERROR_MISSING || code == BAGS_ERROR_UNFINISHED ||
               code == BAGS_ERROR_IO || code == BAGS_ERROR_CORRUPT;
    case ENOMEM:
        return code == BAGS_ERROR_MEMORY;
    default:
        return code == BAGS_ERROR_IO;
    }
}

static void fail_calls(unsigned only, int error, bool stays, bool journals) {
    uint64_t n, points = 0, passed_over = 0;
    for (n = 1;; n += support_stride()) {
        world w;
        world_start(&w);
        w.files.only = only;
        w.files.fail_at = n;
        w.files.stays = stays;
        w.files.fail_with = error;
        bags_code code = run(&w);
        bool reached = w.files.failed > 0;
        if (reached && !code) {
            /* Too many open files: others are closed, and the call is
             * repeated. */
            bool retried = error == EMFILE && w.files.last == HOOK_OPEN;
            if (!stays && !retried && !w.repeated && !may_be_passed_over(&w) &&
                (journals ||
                    (w.files.last != HOOK_REMOVE && w.files.last != HOOK_IDENTIFY)))
                fail_msg(
                    "call %d, %s, was passed over", (int)n, hook_names[w.files.last]);
            passed_over++;
        } else if (reached) {
            if (!is_code_for(code, error))
                fail_msg("call %d, %s in %s, gives %s: %s", (int)n,
                    hook_names[w.files.last], w.where, bags_code_name(code),
                    said.message);
            CHECK(is_code((int)code, (int)code, w.where));
            if (code == BAGS_ERROR_IO || code == BAGS_ERROR_MEMORY)
                assert_int_equal(said.system, error);
        }
        points += reached;
        w.files.fail_at = 0;
        if (code && !stays)
            check_nothing_left(&w);
        check_remains(&w, "set");
        check_remains(&w, "shards");
        world_end(&w, n);
        if (!reached) {
            assert_int_equal(code, BAGS_OK);
            break;
        }
    }
    print_message("%s %s at %d points, passed over at %d\n", strerror(error),
        stays ? "stayed" : "came", (int)points, (int)passed_over);
    assert_true(points > 0);
}

static void every_call_may_fail(void **state) {
    (void)state;
    fail_calls(0, EIO, false, false);
}

static void files_may_fail_for_good_at_every_call(void **state) {
    (void)state;
    fail_calls(0, EIO, true, false);
}

static void the_disk_may_be_full_at_every_write(void **state) {
    const unsigned writes = 1u << HOOK_WRITE | 1u << HOOK_SYNC | 1u << HOOK_TRUNCATE |
                            1u << HOOK_MAKE_DIR | 1u << HOOK_OPEN | 1u << HOOK_RENAME |
                            1u << HOOK_CLOSE;
    (void)state;
    fail_calls(writes, ENOSPC, false, false);
    fail_calls(writes, ENOSPC, true, false);
}

static void calls_may_be_interrupted_or_exceed_the_limit_of_open_files(void **state) {
    (void)state;
    fail_calls(0, EINTR, false, false);
    fail_calls(1u << HOOK_OPEN | 1u << HOOK_LIST, EMFILE, false, false);
    fail_calls(1u << HOOK_READ | 1u << HOOK_MAP, ENOMEM, false, false);
}

/* Each hook alone fails for good. */
static void each_hook_may_fail_for_good(void **state) {
    (void)state;
    for (int h = 0; h < HOOKS; h++) {
        world w;
        world_start(&w);
        w.files.only = 1u << h;
        w.files.fail_at = 1;
        w.files.stays = true;
        bags_code code = run(&w);
        bool harmless = h == HOOK_MAP || h == HOOK_UNMAP || h == HOOK_REMOVE ||
                        h == HOOK_REMOVE_DIR || h == HOOK_CLOSE;
        if (w.files.failed && !code && !harmless)
            fail_msg("%s may fail for good", hook_names[h]);
        w.files.fail_at = 0;
        world_end(&w, (uint64_t)h);
    }
}

static void short_transfers_of_any_size_work(void **state) {
    (void)state;
    for (size_t chunk = 1; chunk < 5000; chunk = chunk * 5 / 3 + 1) {
        world w;
        world_start(&w);
        w.files.chunk = chunk;
        if (run(&w))
            fail_msg(
                "with %d bytes at once, %s: %s", (int)chunk, w.where, said.message);
        world_end(&w, chunk);
    }
}

static int write_nothing(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    (void)user;
    (void)file;
    (void)offset;
    (void)data;
    (void)size;
    *done = 0;
    return 0;
}

/* A hook that never makes progress must not hang the program. */
static void a_write_without_progress_is_an_error(void **state) {
    world w;
    (void)state;
    world_start(&w);
    w.files.io.write_at = write_nothing;
    assert_int_equal(write_bag(&w), BAGS_ERROR_IO);
    CHECK(is_code(BAGS_ERROR_IO, BAGS_ERROR_IO, w.where));
    assert_int_equal(write_set(&w, "set", false, 4), BAGS_ERROR_IO);
    world_end(&w, 0);
}

/* The optional hooks. */
static void without_map_files_are_read(void **state) {
    world w;
    (void)state;
    world_start(&w);
    w.files.io.map = NULL;
    w.files.io.unmap = NULL;
    assert_int_equal(run(&w), BAGS_OK);
    assert_int_equal(w.files.peak_maps, 0);
    world_end(&w, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_program_works_without_faults),
        TEST(every_allocation_may_fail),
        TEST(memory_may_run_out_for_good_at_every_allocation),
        TEST(every_call_may_fail),
        TEST(files_may_fail_for_good_at_every_call),
        TEST(the_disk_may_be_full_at_every_write),
        TEST(calls_may_be_interrupted_or_exceed_the_limit_of_open_files),
        TEST(each_hook_may_fail_for_good),
        TEST(short_transfers_of_any_size_work),
        TEST(a_write_without_progress_is_an_error),
        TEST(without_map_files_are_read),
    };
    return cmocka_run_group_tests_name("hooks", tests, NULL, NULL);
}
