/* Importers on sources that the formats' own writers made (tests/data/import): what
 * is damaged, what memory fails, and in which order datapoints are read. */
#include "check.h"

#include "../formats/import/import.h"

#define DATA "tests/data/import/"

typedef struct source {
    const bags_importer *importer;
    const char *path; /* in DATA, */
    const char *file; /* and of a file in it that is damaged; "" for itself */
    uint64_t length;
    bool checked; /* every byte has a checksum */
    bool counted; /* a file that was cut is found in any case */
} source;

static const source sources[] = {
#ifdef BAGS_WITH_IMPORT_TFRECORD
    {&bags_import_tfrecord, "tfrecord/examples.tfrecord", "", 5, true, false},
#endif
#ifdef BAGS_WITH_IMPORT_WEBDATASET
    {&bags_import_webdataset, "webdataset/samples.tar", "", 5, false, true},
    {&bags_import_webdataset, "webdataset/samples.tar.gz", "", 5, true, true},
#endif
#ifdef BAGS_WITH_IMPORT_MDS
    {&bags_import_mds, "mds/raw", "shard.00001.mds", 7, true, true},
    {&bags_import_mds, "mds/zstd", "shard.00001.mds.zstd", 7, true, true},
    {&bags_import_mds, "mds/zstd", "index.json", 7, false, true},
#endif
#ifdef BAGS_WITH_IMPORT_GULP
    {&bags_import_gulp, "gulp", "meta_1.gmeta", 5, false, true},
    {&bags_import_gulp, "gulp", "data_1.gulp", 5, false, false},
#endif
    {NULL, NULL, NULL, 0, false, false},
};

static void add_value(sha256 *sum, const bags_value *value) {
    sha256_add(sum, &value->kind, sizeof value->kind);
    sha256_add(sum, &value->uint, sizeof value->uint);
    sha256_add(sum, &value->sint, sizeof value->sint);
    sha256_add(sum, value->shape, value->dims * sizeof *value->shape);
    sha256_add(sum, &value->size, sizeof value->size);
    sha256_add(sum, value->data, value->size);
}

/* Read the datapoints first, first + step, ... and what they contain in `hex`,
 * which is of those before a failure. */
static bags_code read_source(const bags_importer *importer, const char *path,
    uint64_t first, uint64_t step, uint64_t *length, char hex[65]) {
    void *state = NULL;
    bags_source_info info;
    sha256 sum;
    sha256_start(&sum);
    *length = 0;
    bags_code code =
        importer->open(path, &memory.allocator, &state, &info, &said);
    for (uint64_t i = first; !code; i += step) {
        const bags_entry *entries;
        code = importer->read(state, i, &entries, &said);
        if (code || !entries)
            break;
        ++*length;
        for (size_t f = 0; f < info.count; f++) {
            assert_string_equal(entries[f].field, info.fields[f].name);
            sha256_add(&sum, entries[f].field, strlen(entries[f].field) + 1);
            sha256_add(&sum, &entries[f].count, sizeof entries[f].count);
            for (size_t j = 0; j < entries[f].count; j++)
                add_value(&sum, &entries[f].values[j]);
        }
    }
    importer->close(state);
    sha256_hex(&sum, hex);
    return code;
}

static void datapoints_are_read_in_steps_and_detected_by_one_importer(
    void **state) {
    (void)state;
    char hex[65];
    uint64_t length;
    for (const source *s = sources; s->importer; s++) {
        char path[256];
        snprintf(path, sizeof path, DATA "%s", s->path);
        for (uint64_t step = 1; step < 4; step++)
            for (uint64_t first = 0; first < 3; first++) {
                assert_ok(
                    read_source(s->importer, path, first, step, &length, hex));
                assert_int_equal(length, (s->length - first + step - 1) / step);
            }
        for (const source *other = sources; other->importer; other++)
            assert_int_equal(
                other->importer->detect(path), other->importer == s->importer);
        assert_fails(BAGS_ERROR_MISSING,
            read_source(s->importer, at("none"), 0, 1, &length, hex));
        assert_says("none*cannot open");
        s->importer->close(NULL);
    }
}

/* Read a damaged source: the same as before, or an error that names a file of it,
 * or, where the format cannot know, anything. */
static void check_damaged(const source *s, const char *path, const char *good,
    bool must_know, const char *what, size_t at_byte) {
    char hex[65];
    uint64_t length;
    poison();
    bags_code code = read_source(s->importer, path, 0, 1, &length, hex);
    if (code ? !strstr(said.message, path)
             : must_know && strcmp(hex, good) != 0)
        fail_msg("%s/%s: %s byte %zu: %s", s->path, s->file, what, at_byte,
            code ? said.message : "another content");
    if (code && said.code != code)
        fail_msg("%s: code %d, in the error %d", s->path, code, said.code);
}

static void every_byte_flipped_and_every_length_is_found_or_harmless(
    void **state) {
    (void)state;
    for (const source *s = sources; s->importer; s++) {
        char from[256], path[256], file[600], good[65];
        uint64_t length;
        snprintf(from, sizeof from, DATA "%s", s->path);
        snprintf(path, sizeof path, "%s", at("%s", strrchr(from, '/') + 1));
        snprintf(
            file, sizeof file, "%s%s%s", path, *s->file ? "/" : "", s->file);
        if (*s->file) {
            copy_tree(from, path);
        } else {
            bytes whole = load(from);
            save(path, whole.data, whole.size);
            bytes_free(&whole);
        }
        assert_ok(read_source(s->importer, path, 0, 1, &length, good));
        bytes data = load(file);
        size_t most = getenv("BAGS_QUICK") ? 700 : 8192;
        size_t step = data.size > most ? data.size / most + 1 : 1;
        for (size_t i = 0; i < data.size; i += step) {
            data.data[i] ^= (unsigned char)(1U << i % 8);
            remove_tree(file);
            save(file, data.data, data.size);
            check_damaged(s, path, good, s->checked, "flipped", i);
            data.data[i] ^= (unsigned char)(1U << i % 8);
        }
        for (size_t i = 0; i < data.size; i += step) {
            remove_tree(file);
            save(file, data.data, i);
            check_damaged(s, path, good, s->counted, "cut at", i);
        }
        remove_tree(path);
        bytes_free(&data);
    }
}

static void the_failure_of_every_allocation_is_an_error(void **state) {
    (void)state;
    for (const source *s = sources; s->importer; s++) {
        char path[256], good[65], hex[65];
        uint64_t length, failures = 0;
        snprintf(path, sizeof path, DATA "%s", s->path);
        memory.fail_at = 0;
        assert_ok(read_source(s->importer, path, 0, 1, &length, good));
        for (uint64_t i = 1;; i++) {
            memory.calls = memory.failed = 0;
            memory.fail_at = i;
            bags_code code = read_source(s->importer, path, 0, 1, &length, hex);
            memory.fail_at = 0;
            if (!memory.failed)
                break;
            assert_int_equal(code, BAGS_ERROR_MEMORY);
            assert_int_equal(memory.live, 0);
            failures++;
        }
        assert_true(failures > 2);
    }
}

static void names_become_names_of_files(void **state) {
    static const char *const names[][2] = {{"image/encoded", "image_encoded"},
        {"", "_"}, {".x", "_x"}, {"a.b", "a.b"},
        {"\xFF\xC3\xA9\xC3", "_\xC3\xA9_"},
        {"a\\b:c*d?e\"f<g>h|i\nj\x7F", "a_b_c_d_e_f_g_h_i_j_"}};
    (void)state;
    bags_import_arena arena = bags_import_arena_start(&memory.allocator);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_string_equal(
            bags_import_name(&arena, names[i][0], strlen(names[i][0]), &said),
            names[i][1]);
    bags_field fields[] = {{"a/b", "utf8"}, {"c", "utf8"}, {"a:b", "utf8"}};
    assert_ok(bags_import_names(fields, 2, "x", &arena, &said));
    assert_string_equal(fields[0].name, "a_b");
    assert_fails(
        BAGS_ERROR_FIELD, bags_import_names(fields, 3, "x.tar", &arena, &said));
    assert_says("x.tar: fields*a_b*a:b*a_b");
    bags_import_free(&arena);
}

static bool accept_all(const char *name) { return name[0] != 'x'; }

static void files_are_in_the_order_of_their_numbers_and_complete(void **state) {
    (void)state;
    static const char *const sorted[] = {
        "a", "a1", "a2", "a02", "a10", "a10b", "b"};
    bags_import_arena arena = bags_import_arena_start(&memory.allocator);
    char **paths;
    size_t count, length = sizeof sorted / sizeof *sorted;
    make_dir(at("in"));
    assert_fails(BAGS_ERROR_MISSING,
        bags_import_files(at("in"), accept_all, &arena, &paths, &count, &said));
    for (size_t i = length; i-- > 0;)
        save_text(at("in/%s", sorted[i]), "");
    save_text(at("in/x"), "");
    save_text(at("in/.a"), "");
    assert_ok(
        bags_import_files(at("in"), accept_all, &arena, &paths, &count, &said));
    assert_int_equal(count, length);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(strrchr(paths[i], '/') + 1, i == 2   ? "a02"
                                                        : i == 3 ? "a2"
                                                                 : sorted[i]);
    assert_ok(bags_import_files(
        at("in/a1*b*"), accept_all, &arena, &paths, &count, &said));
    assert_int_equal(count, 1);
    save_text(at("in/s-00000-of-00003"), "");
    save_text(at("in/s-00002-of-00003"), "");
    assert_fails(BAGS_ERROR_CORRUPT,
        bags_import_files(at("in"), accept_all, &arena, &paths, &count, &said));
    assert_fails(BAGS_ERROR_GAP, bags_import_files(at("in/s-*"), accept_all,
                                     &arena, &paths, &count, &said));
    save_text(at("in/s-00001-of-00003"), "");
    assert_ok(bags_import_files(
        at("in/s-*"), accept_all, &arena, &paths, &count, &said));
    assert_int_equal(count, 3);
    bags_import_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datapoints_are_read_in_steps_and_detected_by_one_importer),
        TEST(every_byte_flipped_and_every_length_is_found_or_harmless),
        TEST(the_failure_of_every_allocation_is_an_error),
        TEST(names_become_names_of_files),
        TEST(files_are_in_the_order_of_their_numbers_and_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
