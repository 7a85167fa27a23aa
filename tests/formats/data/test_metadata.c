/* The metadata of datasets: formats/data/metadata.c. Derived datasets carry them:
 * test_derive.c, and the tests of the command. */
// flavours: test: release; check: asan
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT "{\"classes\": [\"a\", \"b\"]}"

static bags_view view_of(const char *text) {
    bags_view view = {(const unsigned char *)text, strlen(text)};
    return view;
}

static bags_writer *begin(uint64_t shard_length) {
    static const bags_field field = {"n", "u64"};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.shard_length = shard_length;
    options.no_sync = true;
    assert_opens(writer, bags_writer_open(at("d"), &field, 1, &options, &said));
    bags_value n = bags_uint(7);
    bags_entry entry = {"n", &n, 1};
    for (int i = 0; i < 5; i++)
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    return writer;
}

/* Read the metadata; NULL: there must be none. */
static void assert_metadata(const char *expected, const char *file) {
    bags_buffer scratch = {0};
    bags_view json;
    bags_reader *reader;
    bags_env env = {&memory.allocator, &disk.io};
    char path[4096];
    assert_opens(reader, bags_reader_open(at("d"), NULL, &said));
    assert_ok(bags_metadata_read(at("d"), reader, &env, &scratch, &json, &said));
    if (expected) {
        assert_bytes(json, expected, strlen(expected));
        assert_int_equal(json.data[json.size], 0);
    } else {
        assert_null(json.data);
    }
    bags_buffer_free(&scratch);
    assert_ok(bags_metadata_path(at("d"), reader, path, sizeof path, &said));
    assert_string_equal(path, at("d/%s", file));
    assert_fails(BAGS_ERROR_LIMIT,
        bags_metadata_path(at("d"), reader, path, strlen(path), &said));
    bags_reader_close(reader);
    assert_int_equal(disk.files, 0);
}

static void metadata_are_in_the_first_shard(void **state) {
    (void)state;
    for (uint64_t length = 0; length < 3; length += 2) {
        const char *file = length ? "000000/info.json" : "info.json";
        bags_writer *writer = begin(length);
        assert_ok(bags_metadata_write(at("d"), view_of("{}"), false, NULL, &said));
        assert_file(at("d/%s", file), "{}", 2);
        assert_ok(bags_writer_close(writer, &said));
        assert_metadata("{}", file);
        save_text(at("d/%s.partial", file), "of a killed process");
        assert_ok(bags_metadata_write(at("d"), view_of(TEXT), true, NULL, &said));
        assert_metadata(TEXT, file);
        assert_false(exists(at("d/%s.partial", file)));
        assert_int_equal(unlink(at("d/%s", file)), 0);
        assert_metadata(NULL, file);
        remove_tree(at("d"));
    }
}

static void a_failure_leaves_one_version_of_the_metadata(void **state) {
    (void)state;
    bags_env env = {&memory.allocator, &disk.io};
    assert_ok(bags_writer_close(begin(2), &said));
    assert_ok(bags_metadata_write(at("d"), view_of("{}"), false, NULL, &said));
    for (uint64_t n = 1;; n++) {
        disk.calls = disk.failed = 0;
        disk.only = 1u << HOOK_OPEN | 1u << HOOK_WRITE | 1u << HOOK_SYNC |
                    1u << HOOK_RENAME | 1u << HOOK_CLOSE;
        disk.fail_with = ENOSPC;
        disk.fail_at = n;
        bags_code code =
            bags_metadata_write(at("d"), view_of(TEXT), false, &env, &said);
        disk.fail_at = 0;
        disk.only = 0;
        assert_false(exists(at("d/000000/info.json.partial")));
        if (!disk.failed)
            break;
        if (!code) /* closing a file of a reader failed */
            continue;
        struct stat file;
        assert_int_equal(stat(at("d/000000/info.json"), &file), 0);
        assert_metadata(file.st_size == 2 ? "{}" : TEXT, "000000/info.json");
        assert_ok(bags_metadata_write(at("d"), view_of("{}"), false, NULL, &said));
    }
    assert_metadata(TEXT, "000000/info.json");
    remove_tree(at("d"));
}

static void metadata_that_are_too_large_or_no_file_are_refused(void **state) {
    (void)state;
    bags_buffer scratch = {0};
    bags_view json, large = {(const unsigned char *)TEXT, BAGS_METADATA_MOST + 1};
    bags_reader *reader;
    assert_fails(BAGS_ERROR_MISSING,
        bags_metadata_write(at("d"), view_of("{}"), true, NULL, &said));
    assert_ok(bags_writer_close(begin(0), &said));
    assert_fails(
        BAGS_ERROR_LIMIT, bags_metadata_write(at("d"), large, true, NULL, &said));
    assert_says("d/info.json: too large (16777217 bytes, maximum 16777216)");
    assert_opens(reader, bags_reader_open(at("d"), NULL, &said));
    save_text(at("d/info.json"), "{}");
    assert_int_equal(truncate(at("d/info.json"), BAGS_METADATA_MOST + 1), 0);
    assert_fails(BAGS_ERROR_LIMIT,
        bags_metadata_read(at("d"), reader, NULL, &scratch, &json, &said));
    assert_fails(BAGS_ERROR_LIMIT, bags_derive(at("d"), at("e"), NULL, NULL, &said));
    assert_false(exists(at("e")));
    assert_int_equal(unlink(at("d/info.json")), 0);
    make_dir(at("d/info.json"));
    assert_fails(BAGS_ERROR_IO,
        bags_metadata_read(at("d"), reader, NULL, &scratch, &json, &said));
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_metadata_read(at("d"), NULL, NULL, &scratch, &json, &said));
    bags_reader_close(reader);
    bags_buffer_free(&scratch);
    remove_tree(at("d"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(metadata_are_in_the_first_shard),
        TEST(a_failure_leaves_one_version_of_the_metadata),
        TEST(metadata_that_are_too_large_or_no_file_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
