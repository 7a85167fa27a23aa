/* Files written by the original Python programs are compared with their
 * manifests; written again, they are compared with themselves. See
 * tests/data/golden/README.md. */
// flavours: test: asan; check: release
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define _FILE_OFFSET_BITS 64 /* ext4 numbers a directory's entries with 64 bits */
#include "check.h"

#include <dirent.h>

#define GOLDEN "tests/data/golden"

enum mode { MAPPED, NO_MMAP, CACHED_INDEX, ONE_FILE, ONE_MAP, MODES };

static const char *const writers[] = {
    "bags-0.5.1", "granular-0.16.1", "granular-0.21.0", "granular-0.22.0a1"};

/* ---- manifests ---- */

/* A file that is split into lines, one by one. */
typedef struct manifest {
    bytes text;
    char *next;
    char *fields[32];
    size_t count;
} manifest;

static manifest manifest_open(const char *fixture) {
    char path[512];
    manifest m;
    memset(&m, 0, sizeof m);
    snprintf(path, sizeof path, "%s/manifest.txt", fixture);
    m.text = load(path);
    put_u8(&m.text, 0);
    m.next = (char *)m.text.data;
    return m;
}

/* The next line, split at tabs; the key of a col line may contain tabs. */
static bool manifest_next(manifest *m) {
    char *end = strchr(m->next, '\n');
    if (!end)
        return false;
    *end = 0;
    m->count = 0;
    char *at_field = m->next;
    m->next = end + 1;
    for (;;) {
        m->fields[m->count++] = at_field;
        char *tab = strchr(at_field, '\t');
        bool is_key = m->count == 7 && strcmp(m->fields[0], "col") == 0;
        if (!tab || is_key || m->count == 32)
            return true;
        *tab = 0;
        at_field = tab + 1;
    }
}

static bool manifest_is(const manifest *m, const char *what) {
    return strcmp(m->fields[0], what) == 0;
}

static uint64_t manifest_number(const manifest *m, size_t i) {
    assert_true(i < m->count);
    return strtoull(m->fields[i], NULL, 10);
}

/* The first lines: the kind, and whether it must be refused. */
static bool manifest_kind(const char *fixture, char *kind, size_t size) {
    manifest m = manifest_open(fixture);
    bool refused = false;
    while (manifest_next(&m)) {
        if (manifest_is(&m, "kind"))
            snprintf(kind, size, "%s", m.fields[1]);
        refused = refused || manifest_is(&m, "error");
    }
    bytes_free(&m.text);
    return refused;
}

/* Calls each() for every fixture of a kind that must, or must not, be
 * refused. */
static size_t for_each_fixture(const char *kind, bool refused, size_t first_writer,
    size_t last_writer, void (*each)(const char *fixture)) {
    size_t count = 0;
    for (size_t w = first_writer; w <= last_writer; w++) {
        struct dirent **found;
        char directory[256];
        snprintf(directory, sizeof directory, "%s/%s", GOLDEN, writers[w]);
        int entries = scandir(directory, &found, NULL, alphasort);
        if (entries < 0)
            fail_msg("%s is missing", directory);
        for (int i = 0; i < entries; i++) {
            char fixture[600], its_kind[32] = "";
            snprintf(fixture, sizeof fixture, "%s/%s", directory, found[i]->d_name);
            bool is_fixture = found[i]->d_name[0] != '.';
            free(found[i]);
            if (!is_fixture ||
                manifest_kind(fixture, its_kind, sizeof its_kind) != refused ||
                strcmp(its_kind, kind) != 0)
                continue;
            each(fixture);
            count++;
        }
        free(found);
    }
    return count;
}

static const char *inside(const char *fixture, const char *name) {
    static char path[4][700];
    static unsigned next;
    char *made = path[next++ % 4];
    snprintf(made, 700, "%s/%s", fixture, name);
    return made;
}

static void digest_blob(sha256 *s, bags_view blob) {
    unsigned char size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)blob.size >> (8 * i));
    sha256_add(s, size, 8);
    sha256_add(s, blob.data, blob.size);
}

static void check_hash(bags_view blob, uint64_t size, const char *expected) {
    sha256 s;
    char hex[65];
    assert_true(blob.size == size);
    sha256_start(&s);
    sha256_add(&s, blob.data, blob.size);
    sha256_hex(&s, hex);
    assert_string_equal(hex, expected);
}

static void sha256_matches_the_standard(void **state) {
    static const struct {
        const char *text, *hex;
        size_t times;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 1},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 1},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1", 1},
        {"aaaaaaaaaa",
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", 100000},
    };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        sha256 s;
        char hex[65];
        sha256_start(&s);
        for (size_t k = 0; k < rows[i].times; k++)
            sha256_add(&s, rows[i].text, strlen(rows[i].text));
        sha256_hex(&s, hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

/* ---- Bags ---- */

static void check_bag_reader(const bag_reader *reader, const char *fixture) {
    manifest m = manifest_open(fixture);
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob;
    uint64_t listed = 0;
    while (manifest_next(&m)) {
        if (manifest_is(&m, "count")) {
            assert_true(bag_reader_length(reader) == manifest_number(&m, 1));
        } else if (manifest_is(&m, "size")) {
            assert_true(bag_reader_size(reader) == manifest_number(&m, 1));
        } else if (manifest_is(&m, "b")) {
            assert_ok(
                bag_reader_get(reader, manifest_number(&m, 1), &scratch, &blob, &said));
            check_hash(blob, manifest_number(&m, 2), m.fields[3]);
            listed++;
        } else if (manifest_is(&m, "digest")) {
            sha256 s;
            char hex[65];
            bag_blobs range;
            sha256_start(&s);
            assert_ok(
                bag_reader_get_range(reader, 0, UINT64_MAX, &scratch, &range, &said));
            assert_true(range.length == manifest_number(&m, 1));
            assert_true(range.size == manifest_number(&m, 2));
            for (size_t i = 0; i < range.length; i++)
                digest_blob(&s, bag_blobs_get(&range, i));
            sha256_hex(&s, hex);
            assert_string_equal(hex, m.fields[3]);
        }
    }
    if (bag_reader_length(reader) <= 400)
        assert_true(listed == bag_reader_length(reader));
    bags_buffer_free(&scratch);
    bytes_free(&m.text);
}

static void check_bag(const char *fixture) {
    for (int mode = MAPPED; mode <= CACHED_INDEX; mode++) {
        bag_reader_options options;
        bag_reader *reader;
        memset(&options, 0, sizeof options);
        options.no_mmap = mode != MAPPED;
        options.cache_index = mode == CACHED_INDEX;
        options.allow_empty_file = strstr(fixture, "granular-0.21.0/bag-empty") != NULL;
        options.env.allocator = &memory.allocator;
        options.env.io = &disk.io;
        assert_opens(
            reader, bag_reader_open(inside(fixture, "data.bag"), &options, &said));
        check_bag_reader(reader, fixture);
        bag_reader_close(reader);
        if (exists(inside(fixture, "data.idx")))
            continue;
        bytes file = load(inside(fixture, "data.bag"));
        assert_opens(
            reader, bag_reader_open_memory(file.data, file.size, &options, &said));
        check_bag_reader(reader, fixture);
        bag_reader_close(reader);
        bytes_free(&file);
    }
}

static void bags_written_by_python_are_read(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("bag", false, 0, 3, check_bag), 30);
}

static void rewrite_bag(const char *fixture) {
    bag_reader *reader;
    bag_writer *writer;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    assert_opens(reader, bag_reader_open(inside(fixture, "data.bag"), NULL, &said));
    assert_opens(writer, bag_writer_open(at("x.bag"), NULL, &said));
    for (uint64_t i = 0; i < bag_reader_length(reader); i++) {
        bags_view blob;
        assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
        assert_ok(bag_writer_append(writer, blob.data, blob.size, NULL, &said));
    }
    assert_ok(bag_writer_close(writer, &said));
    assert_same_tree(inside(fixture, "data.bag"), at("x.bag"));
    remove_tree(at("x.bag"));
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void v1_bags_are_written_byte_for_byte_like_python(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("bag", false, 0, 1, rewrite_bag), 18);
}

/* ---- datasets ---- */

static bags_reader *open_dataset(
    const char *path, enum mode mode, uint64_t start, uint64_t stop) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.no_mmap = mode == NO_MMAP || mode == CACHED_INDEX || mode == ONE_FILE;
    options.cache_index = mode == CACHED_INDEX;
    options.max_files = mode == ONE_FILE ? 1 : 0;
    disk.most_maps = mode == ONE_MAP ? 1 : 0;
    options.shard_start = start;
    options.shard_stop = stop;
    options.allow_gaps = strstr(path, "err-shard-gap") != NULL;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

/* A column of all datapoints, as the manifest describes it. */
static void check_column(const bags_reader *reader, const manifest *m, bags_row *row) {
    size_t column = (size_t)manifest_number(m, 1), count = 0, found = 99;
    const bags_field *fields = bags_reader_fields(reader, &count);
    bags_select select = bags_select_all(column);
    uint64_t blobs = 0, sizes = 0;
    sha256 s;
    char hex[65];
    assert_true(column < count);
    assert_string_equal(fields[column].type, m->fields[2]);
    assert_string_equal(fields[column].name, m->fields[6]);
    assert_ok(bags_reader_field(reader, m->fields[6], &found, &said));
    assert_int_equal(found, column);
    sha256_start(&s);
    for (uint64_t i = 0; i < bags_reader_length(reader); i++) {
        assert_ok(bags_reader_get(reader, i, &select, 1, row, &said));
        size_t items = bags_row_length(row, 0);
        if (bags_reader_type(reader, column)->sequence) {
            unsigned char number[8];
            for (int k = 0; k < 8; k++)
                number[k] = (unsigned char)((uint64_t)items >> (8 * k));
            sha256_add(&s, number, 8);
        }
        for (size_t k = 0; k < items; k++) {
            digest_blob(&s, bags_row_bytes(row, 0, k));
            sizes += bags_row_bytes(row, 0, k).size;
        }
        blobs += items;
    }
    sha256_hex(&s, hex);
    assert_true(blobs == manifest_number(m, 3));
    assert_true(sizes == manifest_number(m, 4));
    assert_string_equal(hex, m->fields[5]);
}

static void check_list(const bags_reader *reader, const manifest *m, bags_row *row) {
    size_t column = (size_t)manifest_number(m, 2);
    uint64_t index = manifest_number(m, 1), items = 99, sizes = 0;
    bags_select select = bags_select_all(column);
    sha256 s;
    char hex[65];
    assert_ok(bags_reader_items(reader, index, column, row, &items, &said));
    assert_true(items == manifest_number(m, 3));
    assert_ok(bags_reader_get(reader, index, &select, 1, row, &said));
    assert_true(bags_row_length(row, 0) == items);
    sha256_start(&s);
    for (size_t k = 0; k < items; k++) {
        digest_blob(&s, bags_row_bytes(row, 0, k));
        sizes += bags_row_bytes(row, 0, k).size;
    }
    sha256_hex(&s, hex);
    assert_true(sizes == manifest_number(m, 4));
    assert_string_equal(hex, m->fields[5]);
}

static void check_item(const bags_reader *reader, const manifest *m, bags_row *row) {
    uint64_t item = manifest_number(m, 3);
    bags_select select =
        bags_select_slice((size_t)manifest_number(m, 2), item, item + 1, 1);
    assert_ok(bags_reader_get(reader, manifest_number(m, 1), &select, 1, row, &said));
    assert_int_equal(bags_row_length(row, 0), 1);
    check_hash(bags_row_bytes(row, 0, 0), manifest_number(m, 4), m->fields[5]);
}

static void check_value(const bags_reader *reader, const manifest *m, bags_row *row) {
    uint64_t index = manifest_number(m, 1);
    size_t column = (size_t)manifest_number(m, 2);
    assert_ok(bags_reader_get(reader, index, NULL, 0, row, &said));
    assert_int_equal(bags_row_length(row, column), 1);
    check_hash(bags_row_bytes(row, column, 0), manifest_number(m, 3), m->fields[4]);
    assert_ok(bags_reader_get_range(reader, index, index + 3, column, row, &said));
    check_hash(bags_row_bytes(row, 0, 0), manifest_number(m, 3), m->fields[4]);
}

static void check_shards(const bags_reader *reader, const manifest *m) {
    uint64_t start = 0;
    assert_true(shard_count(reader) == m->count - 1);
    for (size_t i = 1; i < m->count; i++) {
        bags_shard shard = shard_at(reader, i - 1);
        assert_true(shard.number == i - 1 && shard.start == start);
        assert_true(shard.length == manifest_number(m, i));
        start += shard.length;
    }
}

static void check_dataset(const char *fixture) {
    for (int mode = 0; mode < MODES; mode++) {
        manifest m = manifest_open(fixture);
        bags_row row = {0};
        bags_reader *reader =
            open_dataset(inside(fixture, "data"), (enum mode)mode, 0, 0);
        while (manifest_next(&m)) {
            if (manifest_is(&m, "kind")) {
                assert_int_equal(
                    reader_info(reader).sharded, strcmp(m.fields[1], "sharded") == 0);
            } else if (manifest_is(&m, "count")) {
                assert_true(bags_reader_length(reader) == manifest_number(&m, 1));
            } else if (manifest_is(&m, "size")) {
                assert_true(reader_info(reader).size == manifest_number(&m, 1));
            } else if (manifest_is(&m, "shards")) {
                check_shards(reader, &m);
            } else if (manifest_is(&m, "col")) {
                check_column(reader, &m, &row);
            } else if (manifest_is(&m, "v")) {
                check_value(reader, &m, &row);
            } else if (manifest_is(&m, "l")) {
                check_list(reader, &m, &row);
            } else if (manifest_is(&m, "i")) {
                check_item(reader, &m, &row);
            } else {
                assert_true(manifest_is(&m, "bag-manifest"));
            }
        }
        bags_row_free(&row);
        bags_reader_close(reader);
        bytes_free(&m.text);
    }
    assert_ok(bags_verify(inside(fixture, "data"), NULL, NULL, &said));
}

static void datasets_written_by_python_are_read(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("dataset", false, 0, 3, check_dataset), 26);
}

static void shards_written_by_python_are_read(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("sharded", false, 0, 3, check_dataset), 25);
}

/* A number of manifest.json's options, or 0. */
static uint64_t option_of(const char *fixture, const char *name) {
    char key[64];
    bytes json = load(inside(fixture, "manifest.json"));
    put_u8(&json, 0);
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *found = strstr((char *)json.data, key);
    uint64_t number = found ? strtoull(found + strlen(key), NULL, 10) : 0;
    bytes_free(&json);
    return number;
}

/* Numbers of type int whose top bit is set are the exception to writing the same
 * bytes again: a zero byte follows them, so that newer Python packages do not read
 * them as negative. Checks that, and keeps the blob of bags 0.5. */
static void keep_top_bit(
    const char *type, bags_view blob, bags_buffer *scratch, bags_value *value) {
    bags_view again;
    if ((strcmp(type, "int") && strcmp(type, "int[]")) || blob.size == 0 ||
        blob.data[blob.size - 1] < 0x80)
        return;
    assert_ok(bags_encode(NULL, "int", value, scratch, &again, &said));
    assert_true(again.size == blob.size + 1 && again.data[blob.size] == 0);
    assert_memory_equal(again.data, blob.data, blob.size);
    *value = bags_blob(blob.data, blob.size);
}

/* Append a datapoint of one dataset to another: its blobs, or the decoded
 * values of built-in types. */
static void copy_datapoint(bags_writer *writer, const bags_reader *reader,
    uint64_t index, bags_row *row, bool decoded) {
    size_t count = 0, total = 0, used = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    assert_ok(bags_reader_get(reader, index, NULL, 0, row, &said));
    for (size_t f = 0; f < count; f++)
        total += bags_row_length(row, f);
    bags_value *values = (bags_value *)calloc(total + 1, sizeof *values);
    bags_buffer *rooms = (bags_buffer *)calloc(total + 1, sizeof *rooms);
    bags_entry *entries = (bags_entry *)calloc(count + 1, sizeof *entries);
    for (size_t f = 0; f < count; f++) {
        entries[f].field = fields[f].name;
        entries[f].values = values + used;
        entries[f].count = bags_row_length(row, f);
        for (size_t i = 0; i < entries[f].count; i++, used++) {
            bags_view blob = bags_row_bytes(row, f, i);
            values[used] = bags_blob(blob.data, blob.size);
            if (!decoded)
                continue;
            bags_code code =
                bags_row_value(row, f, i, &rooms[used], &values[used], &said);
            assert_true(code == BAGS_OK || code == BAGS_ERROR_TYPE);
            keep_top_bit(fields[f].type, blob, &rooms[used], &values[used]);
        }
    }
    assert_ok(bags_writer_append(writer, entries, count, &said));
    for (size_t i = 0; i < total; i++)
        bags_buffer_free(&rooms[i]);
    free(entries);
    free(rooms);
    free(values);
}

static void rewrite_as(const char *fixture, bool decoded) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.buffer_size = decoded ? 4096 : 0;
    options.shard_size = option_of(fixture, "shard_size");
    options.shard_length =
        option_of(fixture, "shard_length") + option_of(fixture, "shardlen");
    uint64_t workers = option_of(fixture, "workers");
    for (uint64_t worker = 0; worker < (workers ? workers : 1); worker++) {
        bags_writer *writer;
        bags_row row = {0};
        size_t count = 0;
        bags_reader *reader =
            open_dataset(inside(fixture, "data"), MAPPED, worker, workers);
        const bags_field *fields = bags_reader_fields(reader, &count);
        options.shard_start = worker;
        options.shard_stop = reader_info(reader).sharded ? workers : 0;
        assert_opens(writer, bags_writer_open(at("x"), fields, count, &options, &said));
        for (uint64_t i = 0; i < bags_reader_length(reader); i++)
            copy_datapoint(writer, reader, i, &row, decoded);
        assert_ok(bags_writer_close(writer, &said));
        bags_row_free(&row);
        bags_reader_close(reader);
    }
    assert_same_tree(inside(fixture, "data"), at("x"));
    remove_tree(at("x"));
}

static void rewrite(const char *fixture) {
    if (ON_WINDOWS && strstr(fixture, "ds-keys"))
        return; /* there b.bag and B.bag are the same file */
    rewrite_as(fixture, false);
    rewrite_as(fixture, true);
}

static void v1_datasets_are_written_byte_for_byte_like_python(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("dataset", false, 0, 1, rewrite), 15);
}

static void v1_shards_are_written_byte_for_byte_like_python(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("sharded", false, 0, 1, rewrite), 15);
    /* The same with gaps. */
    rewrite(GOLDEN "/bags-0.5.1/err-shard-gap");
    rewrite(GOLDEN "/granular-0.16.1/err-shard-gap");
}

/* ---- refused ---- */

static void refuse_bag(const char *fixture) {
    for (int mode = MAPPED; mode <= CACHED_INDEX; mode++) {
        bag_reader_options options;
        memset(&options, 0, sizeof options);
        options.no_mmap = mode != MAPPED;
        options.cache_index = mode == CACHED_INDEX;
        assert_refused(BAGS_ERROR_CORRUPT,
            bag_reader_open(inside(fixture, "data.bag"), &options, &said));
        assert_says("data.bag");
        options.allow_empty_file = true;
        poison();
        bag_reader *reader =
            bag_reader_open(inside(fixture, "data.bag"), &options, &said);
        assert_int_equal(reader != NULL, strstr(fixture, "0-bytes") != NULL);
        bag_reader_close(reader);
    }
}

static void refuse_dataset(const char *fixture) {
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader_options options;
        memset(&options, 0, sizeof options);
        options.no_mmap = mode == NO_MMAP;
        poison();
        bags_reader *reader =
            bags_reader_open(inside(fixture, "data"), &options, &said);
        bags_row row = {0};
        bags_code code = said.code;
        if (reader)
            code = verify_path(inside(fixture, "data"), NULL, &said);
        uint64_t length = reader ? bags_reader_length(reader) : 0;
        for (uint64_t i = 0; i < length; i++)
            assert_int_not_equal(
                bags_reader_get(reader, i, NULL, 0, &row, NULL), BAGS_OK);
        assert_int_not_equal(code, BAGS_OK);
        assert_int_equal(said.code, code);
        assert_says("data");
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

static void refuse_gap(const char *fixture) {
    assert_refused(
        BAGS_ERROR_GAP, bags_reader_open(inside(fixture, "data"), NULL, &said));
    assert_says("5");
    assert_says("7");
    assert_says("8");
    for (int mode = 0; mode < MODES; mode++) {
        bags_reader *reader =
            open_dataset(inside(fixture, "data"), (enum mode)mode, 0, 0);
        bags_row row = {0};
        assert_true(shard_count(reader) == 7);
        for (uint64_t i = 0; i < bags_reader_length(reader); i++)
            assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_true(shard_at(reader, 4).number == 4);
        assert_true(shard_at(reader, 5).number == 6);
        assert_true(shard_at(reader, 6).number == 9);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
    assert_ok(verify_path(inside(fixture, "data"), NULL, &said));
    copy_tree(inside(fixture, "data"), at("x"));
    uint64_t renamed = 0;
    assert_ok(bags_finalize(at("x"), NULL, &renamed, &said));
    assert_true(renamed == 2);
    assert_same_tree(inside(fixture, "data/000006"), at("x/000005"));
    assert_same_tree(inside(fixture, "data/000009"), at("x/000006"));
    remove_tree(at("x"));
}

static void damaged_fixtures_are_refused(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("bag", true, 0, 3, refuse_bag), 3);
    assert_int_equal(for_each_fixture("dataset", true, 0, 3, refuse_dataset), 3);
}

static void gaps_are_refused_unless_allowed(void **state) {
    (void)state;
    assert_int_equal(for_each_fixture("sharded", true, 0, 3, refuse_gap), 4);
}

static void an_empty_standalone_v2_bag_needs_allow_empty_file(void **state) {
    (void)state;
    assert_refused(BAGS_ERROR_CORRUPT,
        bag_reader_open(GOLDEN "/granular-0.21.0/bag-empty/data.bag", NULL, &said));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(sha256_matches_the_standard),
        TEST(bags_written_by_python_are_read),
        TEST(v1_bags_are_written_byte_for_byte_like_python),
        TEST(datasets_written_by_python_are_read),
        TEST(shards_written_by_python_are_read),
        TEST(v1_datasets_are_written_byte_for_byte_like_python),
        TEST(v1_shards_are_written_byte_for_byte_like_python),
        TEST(damaged_fixtures_are_refused),
        TEST(gaps_are_refused_unless_allowed),
        TEST(an_empty_standalone_v2_bag_needs_allow_empty_file),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
