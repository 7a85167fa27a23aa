/* Files that @mcap/core wrote, and their damage: tests/data/import/make_mcap.mjs. */
// flavours: test: release; check: asan
#include "import_check.h"

#define MCAP &bags_import_mcap
#define FILES IMPORT_DATA "mcap/"

static const char *const files[] = {"plain", "chunks", "zstd", "lz4", "no-index"};

static void topics_are_fields_in_every_layout(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[256];
        snprintf(path, sizeof path, FILES "%s.mcap", files[i]);
        check_import(MCAP, path, IMPORT_DATA "mcap.expected");
    }
}

/* Every byte precedes a checksum: of a chunk, of the data or of the summary. What
 * follows them are numbers that no reader needs. */
static void damage_is_detected(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char path[256];
        snprintf(path, sizeof path, FILES "%s.mcap", files[2 * i]);
        bytes file = load(path);
        save(at("x.mcap"), file.data, file.size);
        bytes_free(&file);
        check_damage(MCAP, at("x.mcap"), at("x.mcap"), true, (uint64_t)16 << 20);
    }
}

static void a_file_without_end_is_an_error(void **state) {
    (void)state;
    bytes file = load(FILES "plain.mcap");
    save(at("x.mcap"), file.data, 0);
    check_import_fails(MCAP, BAGS_ERROR_CORRUPT, at("x.mcap"), "not an MCAP");
    save(at("x.mcap"), file.data, 20);
    check_import_fails(MCAP, BAGS_ERROR_CORRUPT, at("x.mcap"), "truncated");
    save(at("x.mcap"), file.data, file.size - 1);
    check_import_fails(MCAP, BAGS_ERROR_CORRUPT, at("x.mcap"), "truncated?");
    check_import_fails(MCAP, BAGS_ERROR_MISSING, at("none.mcap"), "No such");
    bytes_free(&file);
}

static void an_allocation_that_fails_is_an_error(void **state) {
    (void)state;
    check_out_of_memory(MCAP, FILES "zstd.mcap");
}

/* The fuzzer's corpus has a decoded file of each encoding, after a byte. */
static void an_allocation_that_fails_while_decoding_is_an_error(void **state) {
    static const char *const encodings[] = {
        "ros2", "ros2-nested", "ros2-idl", "protobuf2", "protobuf3", "json"};
    (void)state;
    import_decode = true;
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        char path[256];
        snprintf(path, sizeof path, "tests/fuzz/corpus/import/decode-%s", encodings[i]);
        bytes file = load(path);
        save(at("x.mcap"), file.data + 1, file.size - 1);
        bytes_free(&file);
        check_out_of_memory(MCAP, at("x.mcap"));
    }
    import_decode = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(topics_are_fields_in_every_layout),
        TEST(damage_is_detected),
        TEST(a_file_without_end_is_an_error),
        TEST(an_allocation_that_fails_is_an_error),
        TEST(an_allocation_that_fails_while_decoding_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
