/* Importers on sources that the formats' own writers made (tests/data/import): what
 * is damaged, what memory fails, and in which order datapoints are read. */
// flavours: test: release; check: asan
#include "check.h"

#include "../../../formats/import/import.h"

#define DATA "tests/data/import/"

typedef struct sample {
    const bags_importer *importer;
    const char *path; /* in DATA, */
    const char *file; /* and of a file in it that is damaged; "" for itself */
    uint64_t length;
    bool checked; /* every byte has a checksum */
    bool counted; /* a file that was cut is found in any case */
} sample;

static const sample sources[] = {
#ifdef BAGS_WITH_IMPORT_TFRECORD
    {&bags_import_tfrecord, "tfrecord/examples.tfrecord", "", 5, true, false},
#endif
#ifdef BAGS_WITH_IMPORT_RLDS
    {&bags_import_rlds, "rlds", "robot-train.tfrecord-00000-of-00001", 2, true, true},
    {&bags_import_rlds, "rlds", "features.json", 2, false, false},
    {&bags_import_rlds, "rlds", "dataset_info.json", 2, false, false},
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
    sha256 sum;
    sha256_start(&sum);
    *length = 0;
    bags_source_options options = {0};
    options.allocator = &memory.allocator;
    bags_source *source = bags_source_open(importer, path, &options, &said);
    bags_code code = source ? BAGS_OK : said.code;
    for (uint64_t i = first; !code; i += step) {
        const bags_entry *entries;
        code = bags_source_read(source, i, &entries, &said);
        if (code || !entries)
            break;
        ++*length;
        for (size_t f = 0; f < source->count; f++) {
            assert_string_equal(entries[f].field, source->fields[f].name);
            sha256_add(&sum, entries[f].field, strlen(entries[f].field) + 1);
            sha256_add(&sum, &entries[f].count, sizeof entries[f].count);
            for (size_t j = 0; j < entries[f].count; j++)
                add_value(&sum, &entries[f].values[j]);
        }
    }
    bags_source_close(source);
    sha256_hex(&sum, hex);
    return code;
}

static void datapoints_are_read_in_steps_and_detected_by_one_importer(void **state) {
    (void)state;
    char hex[65];
    uint64_t length;
    for (const sample *s = sources; s->importer; s++) {
        char path[256];
        snprintf(path, sizeof path, DATA "%s", s->path);
        for (uint64_t step = 1; step < 4; step++)
            for (uint64_t first = 0; first < 3; first++) {
                assert_ok(read_source(s->importer, path, first, step, &length, hex));
                assert_int_equal(length, (s->length - first + step - 1) / step);
            }
        for (const sample *other = sources; other->importer; other++)
            assert_int_equal(
                other->importer->detect(path), other->importer == s->importer);
        assert_fails(BAGS_ERROR_MISSING,
            read_source(s->importer, at("none"), 0, 1, &length, hex));
        assert_says("none*cannot open");
        bags_source_close(NULL);
    }
}

static bool count_bytes(void *user, uint64_t read) {
    uint64_t *counted = (uint64_t *)user;
    assert_true(read > *counted);
    *counted = read;
    return true;
}

static bool stop_at_once(void *user, uint64_t read) {
    (void)user;
    return read == 0;
}

static void a_first_pass_reports_its_progress(void **state) {
    (void)state;
#ifdef BAGS_WITH_IMPORT_TFRECORD
    uint64_t counted = 0;
    const bags_entry *entries;
    bags_source_options options = {0};
    options.progress = count_bytes;
    options.user = &counted;
    bytes file = load(DATA "tfrecord/examples.tfrecord");
    bags_source *source = bags_source_open(
        &bags_import_tfrecord, DATA "tfrecord/examples.tfrecord", &options, &said);
    assert_non_null(source);
    assert_int_equal(counted, file.size);
    assert_ok(bags_source_read(source, 0, &entries, &said));
    assert_int_equal(counted, file.size);
    bags_source_close(source);
    bytes_free(&file);
    options.progress = stop_at_once;
    assert_null(bags_source_open(
        &bags_import_tfrecord, DATA "tfrecord/examples.tfrecord", &options, &said));
    assert_int_equal(said.code, BAGS_ERROR_IO);
    assert_says("*examples.tfrecord: stopped");
#endif
}

/* Read a damaged source: the same as before, or an error that names a file of it,
 * or, where the format cannot know, anything. */
static void check_damaged(const sample *s, const char *path, const char *good,
    bool must_know, const char *what, size_t at_byte) {
    char hex[65];
    uint64_t length;
    poison();
    bags_code code = read_source(s->importer, path, 0, 1, &length, hex);
    if (code ? !strstr(said.message, path) : must_know && strcmp(hex, good) != 0)
        fail_msg("%s/%s: %s byte %zu: %s", s->path, s->file, what, at_byte,
            code ? said.message : "another content");
    if (code && said.code != code)
        fail_msg("%s: code %d, in the error %d", s->path, code, said.code);
}

static void every_byte_flipped_and_every_length_is_found_or_harmless(void **state) {
    (void)state;
    for (const sample *s = sources; s->importer; s++) {
        char from[256], path[256], file[600], good[65];
        uint64_t length;
        snprintf(from, sizeof from, DATA "%s", s->path);
        snprintf(path, sizeof path, "%s", at("%s", strrchr(from, '/') + 1));
        snprintf(file, sizeof file, "%s%s%s", path, *s->file ? "/" : "", s->file);
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
    for (const sample *s = sources; s->importer; s++) {
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
        {"", "_"}, {".x", "_x"}, {"a.b", "a.b"}, {"\xFF\xC3\xA9\xC3", "_\xC3\xA9_"},
        {"a\\b:c*d?e\"f<g>h|i\nj\x7F", "a_b_c_d_e_f_g_h_i_j_"}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char made[64];
        bags_import_name(names[i][0], strlen(names[i][0]), made);
        assert_string_equal(made, names[i][1]);
    }
}

/* An importer whose fields are these, or the files that the path means. */
static const char *const *field_names;

static bool accept_all(const char *name) { return name[0] != 'x'; }

static bags_code open_names(bags_source *source) {
    bags_code code = BAGS_OK;
    if (!field_names)
        code = bags_source_files(source, accept_all);
    for (size_t i = 0; !code && i < source->path_count; i++)
        bags_source_field(source, bags_import_base(source->paths[i]), "utf8");
    for (size_t i = 0; field_names && field_names[i]; i++)
        bags_source_field(source, field_names[i], "utf8");
    return code;
}

static const bags_importer names_importer = {"names", NULL, 0, open_names, NULL, NULL};

static bags_source *open_path(const char *path) {
    bags_source_options options = {0};
    options.allocator = &memory.allocator;
    return bags_source_open(&names_importer, path, &options, &said);
}

static void fields_that_become_equal_are_an_error(void **state) {
    static const char *const good[] = {"a/b", "c", NULL};
    static const char *const bad[] = {"a/b", "c", "a:b", NULL};
    (void)state;
    field_names = good;
    bags_source *source = open_path("x.tar");
    assert_non_null(source);
    assert_string_equal(source->fields[0].name, "a_b");
    bags_source_close(source);
    field_names = bad;
    assert_null(open_path("x.tar"));
    assert_int_equal(said.code, BAGS_ERROR_FIELD);
    assert_says("x.tar: fields*a/b*a:b*a_b");
    field_names = NULL;
}

static void check_files(const char *path, size_t count) {
    bags_source *source = open_path(path);
    assert_non_null(source);
    assert_int_equal(source->count, count);
    bags_source_close(source);
}

static void check_no_files(const char *path, bags_code code) {
    poison();
    assert_null(open_path(path));
    assert_int_equal(said.code, code);
}

static void files_are_in_the_order_of_their_numbers_and_complete(void **state) {
    (void)state;
    static const char *const sorted[] = {"a", "a1", "a02", "a2", "a10", "a10b", "b"};
    size_t length = sizeof sorted / sizeof *sorted;
    make_dir(at("in"));
    check_no_files(at("in"), BAGS_ERROR_MISSING);
    for (size_t i = length; i-- > 0;)
        save_text(at("in/%s", sorted[i]), "");
    save_text(at("in/x"), "");
    save_text(at("in/.a"), "");
    bags_source *source = open_path(at("in"));
    assert_non_null(source);
    assert_int_equal(source->count, length);
    for (size_t i = 0; i < length; i++)
        assert_string_equal(source->fields[i].name, sorted[i]);
    bags_source_close(source);
    check_files(at("in/a1*b*"), 1);
    save_text(at("in/s-00000-of-00003"), "");
    save_text(at("in/s-00002-of-00003"), "");
    check_no_files(at("in"), BAGS_ERROR_CORRUPT);
    check_no_files(at("in/s-*"), BAGS_ERROR_GAP);
    save_text(at("in/s-00001-of-00003"), "");
    check_files(at("in/s-*"), 3);
}

/* A complete JPEG of 1 x 1, which is not decoded. */
#define JPEG                                                                           \
    "\xFF\xD8\xFF\xC0\0\x0B\x08\0\1\0\1\1\1\x11\0"                                     \
    "\xFF\xDA\0\x08\1\1\0\0\x3F\0x\xFF\xD9"

static uint64_t notes;

static void count_note(void *user, const char *message) {
    (void)user;
    assert_non_null(strstr(message, ": left out: "));
    notes++;
}

/* Read all images; *length of them, and the number of those that are left out. */
static bags_code read_images(
    const bags_source_options *options, uint64_t *length, uint64_t *damaged) {
    const bags_entry *entries;
    *length = *damaged = 0;
    bags_source *source =
        bags_source_open(&bags_import_images, at("photos"), options, &said);
    bags_code code = source ? BAGS_OK : said.code;
    for (uint64_t i = 0; !code; i++) {
        code = bags_source_read(source, i, &entries, &said);
        if (code || (!entries && !source->damaged))
            break;
        *damaged += source->damaged;
        if (!entries)
            continue;
        assert_string_equal(entries[1].field, "label");
        bags_value label = entries[1].values[0];
        assert_int_equal(
            label.kind, options->class_numbers ? BAGS_KIND_UINT : BAGS_KIND_UTF8);
        if (options->class_numbers)
            assert_int_equal(label.uint, i > 0);
        ++*length;
    }
    if (!code) {
        assert_int_equal(source->images->class_count, 2);
        assert_string_equal(source->images->classes[0], "");
        assert_string_equal(source->images->classes[1], "cat");
        assert_int_equal(source->images->jpegs, *length);
        assert_int_equal(source->images->damaged, *damaged);
        assert_true(source->shares[0] != source->shares[1]);
    }
    bags_source_close(source);
    return code;
}

static void images_of_folders_are_datapoints_or_left_out(void **state) {
    bags_source_options options = {0};
    uint64_t length, damaged, failures = 0;
    (void)state;
    make_dir(at("photos"));
    make_dir(at("photos/cat"));
    make_dir(at("photos/cat/deep"));
    save(at("photos/top"), JPEG, sizeof JPEG - 1);
    save(at("photos/cat/1.png"), JPEG, sizeof JPEG - 1);
    save(at("photos/cat/deep/2.jpg"), JPEG, sizeof JPEG - 1);
    save_text(at("photos/cat/3.jpg"), "text");
    save_text(at("photos/cat/.4.jpg"), "hidden");
    options.allocator = &memory.allocator;
    options.note = count_note;
    memory.fail_at = 0;
    assert_ok(read_images(&options, &length, &damaged));
    assert_int_equal(length, 3);
    assert_int_equal(notes, 1);
    options.class_numbers = true;
    for (uint64_t i = 1;; i++) {
        memory.calls = memory.failed = 0;
        memory.fail_at = i;
        bags_code code = read_images(&options, &length, &damaged);
        memory.fail_at = 0;
        if (!memory.failed)
            break;
        assert_int_equal(code, BAGS_ERROR_MEMORY);
        assert_int_equal(memory.live, 0);
        failures++;
    }
    assert_true(failures > 2);
    save(at("photos/cat/5.jpg"), JPEG, sizeof JPEG - 3);
    assert_int_equal(read_images(&options, &length, &damaged), BAGS_ERROR_CORRUPT);
    assert_says("*photos/cat/5.jpg: truncated JPEG*");
    options.skip_damaged = true;
    assert_ok(read_images(&options, &length, &damaged));
    assert_int_equal(length, 3);
    assert_int_equal(damaged, 1);
}

static bool accepts_tests(const char *path) { return strstr(path, "tests") != NULL; }

static void the_only_importer_that_accepts_a_path_is_found(void **state) {
    static const bags_importer always = {"tests", accepts_tests, 0, NULL, NULL, NULL};
    const bags_importer *list[] = {
        &bags_import_benzina, &bags_import_npy, &always, NULL, NULL};
    const struct {
        const char *path;
        bags_code code;
        const char *message;
    } others[] = {
        {"missing", BAGS_ERROR_MISSING, "missing: cannot open: No such file"},
        {"missing/*.tar", BAGS_ERROR_MISSING, "missing/*.tar: no file has such a name"},
        {"Makefile", BAGS_ERROR_TYPE,
            "Makefile: unknown format; pass --from KIND if it is one of: benzina npy "
            "tests"},
    };
    size_t found = 9;
    (void)state;
    assert_int_equal(bags_import_recognize(list, "tests", &found, &said), BAGS_OK);
    assert_int_equal(found, 2);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(
            bags_import_recognize(list, others[i].path, &found, &said), others[i].code);
        assert_ptr_equal(strstr(said.message, others[i].message), said.message);
        assert_int_equal(
            bags_import_recognize(list, others[i].path, &found, NULL), others[i].code);
    }
    assert_int_equal(found, 2);
    list[3] = list[2];
    assert_int_equal(
        bags_import_recognize(list, "tests", &found, &said), BAGS_ERROR_ARGUMENT);
    assert_string_equal(
        said.message, "tests: is it of format tests or tests? pass --from KIND");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(datapoints_are_read_in_steps_and_detected_by_one_importer),
        TEST(the_only_importer_that_accepts_a_path_is_found),
        TEST(a_first_pass_reports_its_progress),
        TEST(every_byte_flipped_and_every_length_is_found_or_harmless),
        TEST(the_failure_of_every_allocation_is_an_error),
        TEST(names_become_names_of_files),
        TEST(fields_that_become_equal_are_an_error),
        TEST(files_are_in_the_order_of_their_numbers_and_complete),
        TEST(images_of_folders_are_datapoints_or_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
