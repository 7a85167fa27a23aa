/* Differences of datasets: random pairs compared with a comparison of the models from which
 * they were written; blobs whose checksums are equal by design; dictionaries; what is
 * refused; every failure. */
// flavours: test: release; check: asan
#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>

#define MOST 12 /* datapoints */
#define PAIRS 1000

/* A datapoint of a model: `grams` is a text, `words` a sequence of `words % 3` texts. */
typedef struct point {
    unsigned id, grams, words;
} point;

typedef struct model {
    point points[2 * MOST];
    size_t count;
    bool has_words;
    bool checksum;
    uint64_t shard_length;
} model;

static void write_model(const model *of, const char *path) {
    const bags_field fields[] = {
        {"grams", "utf8"}, {"id", "int(4)"}, {"words", "utf8[]"}};
    bags_writer_options options = {0};
    bags_writer *writer;
    options.checksum = of->checksum;
    options.shard_length = of->shard_length;
    options.no_sync = true;
    assert_opens(
        writer, bags_writer_open(path, fields, of->has_words ? 3 : 2, &options, &said));
    for (size_t i = 0; i < of->count; i++) {
        const point *p = &of->points[i];
        char grams[16], words[2][16];
        bags_value number = bags_uint(p->id), text, items[2];
        bags_entry entries[] = {
            {"id", &number, 1}, {"grams", &text, 1}, {"words", items, p->words % 3}};
        snprintf(grams, sizeof grams, "g%u", p->grams);
        text = bags_utf8(grams);
        for (unsigned k = 0; k < 2; k++) {
            snprintf(words[k], sizeof words[k], "w%u.%u", p->words / 3, k);
            items[k] = bags_utf8(words[k]);
        }
        assert_ok(bags_writer_append(writer, entries, of->has_words ? 3 : 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* ---- what bags_diff reports, as text ---- */

typedef struct listing {
    bytes text;
    bool has_keys;
} listing;

static void add_difference(void *user, const bags_difference *found) {
    static const char kinds[] = "ARMC+-t";
    listing *to = (listing *)user;
    put_format(&to->text, "%c", kinds[found->kind]);
    if (found->kind < BAGS_DIFFERENCE_FIELD_ADDED)
        put_format(&to->text, "%d,%d", (int)found->a, (int)found->b);
    if (found->key)
        put_format(&to->text, "=%d", (int)found->key->uint);
    assert_int_equal(
        found->key != NULL, to->has_keys && found->kind < BAGS_DIFFERENCE_FIELD_ADDED);
    for (size_t i = 0; i < found->fields_count; i++)
        put_format(&to->text, " %s", found->fields[i]);
    put_text(&to->text, "\n");
}

static bags_code diff(
    const char *key, bool exact, listing *to, bags_diff_report *report) {
    bags_diff_options options = {0};
    options.key = key;
    options.exact = exact;
    options.each = add_difference;
    options.user = to;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    to->has_keys = key != NULL;
    to->text.size = 0;
    poison();
    bags_code code = bags_diff(at("a"), at("b"), &options, report, &said);
    put_u8(&to->text, 0);
    return code;
}

/* ---- the same from the models ---- */

static size_t partner_of(const point *p, size_t i, const model *b, bool by_key) {
    size_t k = by_key ? 0 : i;
    while (by_key && k < b->count && b->points[k].id != p->id)
        k++;
    return k < b->count ? k : SIZE_MAX;
}

/* How many datapoints before number `i` have a partner. */
static size_t rank_of(const model *own, size_t i, const model *other) {
    size_t rank = 0;
    for (size_t k = 0; k < i; k++)
        rank += partner_of(&own->points[k], k, other, true) != SIZE_MAX;
    return rank;
}

static void put_expected(const model *a, const model *b, bool by_key, bytes *to) {
    bool words = a->has_words && b->has_words;
    if (a->has_words != b->has_words)
        put_format(to, "%c words\n", a->has_words ? '-' : '+');
    for (size_t i = 0; i < a->count; i++) {
        const point *p = &a->points[i];
        char key[16] = "";
        size_t k = partner_of(p, i, b, by_key);
        if (by_key)
            snprintf(key, sizeof key, "=%u", p->id);
        if (k == SIZE_MAX) {
            put_format(to, "R%d,-1%s\n", (int)i, key);
            continue;
        }
        const point *q = &b->points[k];
        if (by_key && rank_of(a, i, b) != rank_of(b, k, a))
            put_format(to, "M%d,%d%s\n", (int)i, (int)k, key);
        /* Sequences of no words are equal. */
        bool differ = p->words % 3 != q->words % 3 ||
                      (p->words % 3 && p->words / 3 != q->words / 3);
        if (p->grams == q->grams && p->id == q->id && !(words && differ))
            continue;
        put_format(to, "C%d,%d%s%s%s%s\n", (int)i, (int)k, key,
            p->grams != q->grams ? " grams" : "", p->id != q->id ? " id" : "",
            words && differ ? " words" : "");
    }
    for (size_t k = 0; k < b->count; k++) {
        if (partner_of(&b->points[k], k, a, by_key) != SIZE_MAX)
            continue;
        put_format(to, "A-1,%d", (int)k);
        if (by_key)
            put_format(to, "=%u", b->points[k].id);
        put_text(to, "\n");
    }
    put_u8(to, 0);
}

/* ---- random pairs ---- */

static uint64_t drawn;

static unsigned draw(unsigned below) {
    return (unsigned)(next_random(&drawn) >> 33) % below;
}

static void draw_model(model *of) {
    of->count = draw(MOST + 1);
    for (size_t i = 0; i < of->count; i++) {
        point p = {(unsigned)i * 3 + draw(3), draw(4), draw(9)};
        of->points[i] = p;
    }
}

/* Remove, exchange, change and insert some. */
static void edit_model(model *of) {
    for (unsigned edits = draw(4); edits > 0; edits--) {
        size_t i = of->count ? draw((unsigned)of->count) : 0;
        size_t k = of->count ? draw((unsigned)of->count) : 0;
        point was = of->points[i], fresh = {1000 + draw(1000), draw(4), draw(9)};
        unsigned what = of->count ? draw(4) : 3;
        if (what == 0) {
            memmove(
                &of->points[i], &of->points[i + 1], (--of->count - i) * sizeof(point));
        } else if (what == 1) {
            of->points[i] = of->points[k];
            of->points[k] = was;
        } else if (what == 2) {
            of->points[i].grams = draw(4);
            of->points[i].words = draw(9);
        } else if (partner_of(&fresh, 0, of, true) == SIZE_MAX) {
            memmove(
                &of->points[i + 1], &of->points[i], (of->count++ - i) * sizeof(point));
            of->points[i] = fresh;
        }
    }
}

static void draw_files(model *of) {
    of->has_words = draw(8) > 0;
    of->checksum = draw(4) > 0;
    of->shard_length = draw(3) ? draw(5) : 0;
}

static void compare_pair(const model *a, const model *b, int pair) {
    bags_diff_report report;
    listing found = {{0}, false};
    if (a->count + b->count == 0 || (!a->count && a->shard_length) ||
        (!b->count && b->shard_length))
        return; /* no dataset is written without datapoints to shards */
    write_model(a, at("a"));
    write_model(b, at("b"));
    for (int way = 0; way < 4; way++) {
        bytes expected = {0};
        bool by_key = way % 2, exact = way / 2;
        put_expected(a, b, by_key, &expected);
        assert_ok(diff(by_key ? "id" : NULL, exact, &found, &report));
        if (strcmp((char *)found.text.data, (char *)expected.data) != 0)
            fail_msg("pair %d, way %d:\n%s\nexpected:\n%s", pair, way,
                (char *)found.text.data, (char *)expected.data);
        assert_int_equal(report.probable, !exact && a->checksum && b->checksum);
        bytes_free(&expected);
    }
    bytes_free(&found.text);
    remove_tree(at("a"));
    remove_tree(at("b"));
}

static void random_pairs_are_as_their_models(void **state) {
    (void)state;
    drawn = 42;
    for (int pair = 0; pair < PAIRS; pair++) {
        model a = {0}, b;
        draw_model(&a);
        b = a;
        edit_model(&b);
        draw_files(&a);
        draw_files(&b);
        if (pair % (int)support_stride() == 0)
            compare_pair(&a, &b, pair);
    }
}

/* ---- what checksums cannot show ---- */

static const model three = {{{1, 1, 1}, {2, 2, 2}, {3, 3, 3}}, 3, true, true, 2};

static void write_blobs(
    const char *path, const char *type, bool checksum, const void *data, size_t size) {
    const bags_field field = {"x", type};
    bags_writer_options options = {0};
    bags_writer *writer;
    bags_value blob = bags_blob(data, size);
    bags_entry entry = {"x", &blob, 1};
    options.checksum = checksum;
    options.no_sync = options.any_type = true;
    assert_opens(writer, bags_writer_open(path, &field, 1, &options, &said));
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
}

/* The second is the first with the polynomial of the CRC added. */
static void blobs_that_share_a_crc_differ_only_exactly(void **state) {
    (void)state;
    bags_diff_report report;
    listing found = {{0}, false};
    unsigned char one[8] = "abcdefg", two[8];
    bags_store_bytes(two, 8, false,
        bags_load_bytes(one, 8, false) ^ (1 | (uint64_t)UINT32_C(0x82F63B78) << 1));
    assert_memory_not_equal(one, two, 8);
    assert_int_equal(bags_crc32c(0, one, 8), bags_crc32c(0, two, 8));
    write_blobs(at("a"), "bytes", true, one, 8);
    write_blobs(at("b"), "bytes", true, two, 8);
    assert_ok(diff(NULL, false, &found, &report));
    assert_true(report.probable);
    assert_string_equal((char *)found.text.data, "");
    assert_ok(diff(NULL, true, &found, &report));
    assert_false(report.probable);
    assert_string_equal((char *)found.text.data, "C0,0 x\n");
    bytes_free(&found.text);
}

static void equal_blobs_with_other_dictionaries_differ(void **state) {
    (void)state;
    bags_diff_report report;
    bags_checksum_options options = {0};
    listing found = {{0}, false};
    options.no_sync = true;
    for (int i = 0; i < 2; i++) {
        write_blobs(at(i ? "b" : "a"), "sealed", false, "text", 4);
        save_text(at(i ? "b/x.dict" : "a/x.dict"), i ? "two" : "one");
        assert_ok(bags_checksum(at(i ? "b" : "a"), &options, NULL, &said));
    }
    for (int exact = 0; exact < 2; exact++) {
        assert_ok(diff(NULL, exact, &found, &report));
        assert_string_equal((char *)found.text.data, "C0,0 x\n");
    }
    bytes_free(&found.text);
}

/* ---- what is refused ---- */

static void keys_must_exist_be_unique_and_comparable(void **state) {
    (void)state;
    bags_diff_report report;
    listing found = {{0}, false};
    model twice = three;
    write_model(&three, at("a"));
    twice.points[2].id = 1;
    write_model(&twice, at("b"));
    assert_fails(BAGS_ERROR_VALUE, diff("id", false, &found, &report));
    assert_says("b: field \"id\": datapoint 2: has the key of datapoint 0");
    assert_fails(BAGS_ERROR_TYPE, diff("words", false, &found, &report));
    assert_says("a: field \"words\"*utf8[] cannot be keys");
    assert_fails(BAGS_ERROR_FIELD, diff("no", false, &found, &report));
    assert_says("a: *\"no\"");
    remove_tree(at("b"));
    const bags_field id = {"id", "utf8"};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(at("b"), &id, 1, NULL, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_fails(BAGS_ERROR_TYPE, diff("id", false, &found, &report));
    assert_says(
        "b: field \"id\": keys of type utf8 cannot equal keys of type int(4)*a");
    assert_ok(diff(NULL, false, &found, &report));
    assert_string_equal(
        (char *)found.text.data, "- grams\nt id\n- words\nR0,-1\nR1,-1\nR2,-1\n");
    bytes_free(&found.text);
}

static void checksums_of_another_version_are_refused(void **state) {
    (void)state;
    bags_diff_report report;
    listing found = {{0}, false};
    model other = three;
    write_model(&three, at("a"));
    other.points[0].grams = 5;
    write_model(&other, at("b"));
    bytes crc = load(at("b/000000/grams.crc"));
    save(at("a/000000/grams.crc"), crc.data, crc.size);
    bytes_free(&crc);
    assert_fails(BAGS_ERROR_CORRUPT, diff(NULL, false, &found, &report));
    assert_says("a*000000*checksum mismatch");
    assert_ok(diff(NULL, true, &found, &report)); /* it does not read them */
    assert_string_equal((char *)found.text.data, "C0,0 grams\n");
    bytes_free(&found.text);
}

/* Every call of a hook and every allocation fails once: the result is an error, or is
 * correct. */
static void every_failure_is_an_error(void **state) {
    (void)state;
    listing found = {{0}, false};
    bags_diff_report report;
    model other = three;
    other.points[1].grams = 7;
    write_model(&three, at("a"));
    write_model(&other, at("b"));
    for (int way = 0; way < 8; way++) {
        const char *key = way % 2 ? "id" : NULL;
        bool exact = way / 2 % 2, failed = true;
        for (uint64_t n = 1; failed; n++) {
            disk.calls = disk.failed = memory.calls = memory.failed = 0;
            disk.fail_with = EIO;
            disk.fail_at = way < 4 ? n : 0;
            memory.fail_at = way < 4 ? 0 : n;
            bags_code code = diff(key, exact, &found, &report);
            failed = disk.failed + memory.failed > 0;
            disk.fail_at = memory.fail_at = 0;
            if (code)
                assert_true(failed && *said.message);
            else
                assert_string_equal(
                    (char *)found.text.data, key ? "C1,1=2 grams\n" : "C1,1 grams\n");
        }
    }
    bytes_free(&found.text);
    assert_fails(BAGS_ERROR_ARGUMENT, bags_diff(NULL, at("b"), NULL, NULL, &said));
    assert_ok(bags_diff(at("a"), at("b"), NULL, NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(random_pairs_are_as_their_models),
        TEST(blobs_that_share_a_crc_differ_only_exactly),
        TEST(equal_blobs_with_other_dictionaries_differ),
        TEST(keys_must_exist_be_unique_and_comparable),
        TEST(checksums_of_another_version_are_refused),
        TEST(every_failure_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
