/* Checksums next to Bags: their bytes, who writes them, who verifies them; and
 * every change to any byte is detected. */
// flavours: test: release; check: asan
#include "check.h"
#include "durability.h"

#include <errno.h>

/* ---- sidecars, by hand ---- */

static uint32_t crc(uint32_t sum, const void *data, size_t size) {
    const unsigned char *bytes_of = (const unsigned char *)data;
    sum = ~sum;
    for (size_t i = 0; i < size; i++) {
        sum ^= bytes_of[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0x82F63B78U : 0);
    }
    return ~sum;
}

static void put_u32(bytes *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        put_u8(to, value >> (8 * i) & 255);
}

#define SPEC "{\"clip\": \"bytes[]\", \"text\": \"utf8\"}"

/* The CRC of the CRCs of all blobs; *sums, unless NULL, receives the CRCs. */
static uint32_t crc_of_crcs(const hand_bag *bag, bytes *sums) {
    bytes own = {NULL, 0, 0};
    uint64_t start = 0;
    for (uint64_t i = 0; i < hand_length(bag); i++) {
        uint64_t end = load_u64(bag->ends.data + 8 * i);
        put_u32(&own, crc(0, bag->blobs.data + start, (size_t)(end - start)));
        start = end;
    }
    uint32_t all = crc(0, own.data, own.size);
    if (sums)
        *sums = own;
    else
        bytes_free(&own);
    return all;
}

/* The CRC that binds the Bags of a shard together, as THE BYTES describes it. */
static uint32_t bound(const hand_set *set, enum variant variant) {
    uint32_t sum = crc(0, SPEC, strlen(SPEC));
    for (size_t i = 0; i < set->count + (variant != SPLIT); i++) {
        bytes part = {NULL, 0, 0};
        put_text(&part, i < set->count ? set->names[i] : "refs");
        put_u32(&part, crc_of_crcs(i < set->count ? &set->bags[i] : &set->refs, NULL));
        sum = crc(sum, part.data, part.size);
        bytes_free(&part);
    }
    return sum;
}

/* The content of NAME.crc next to this Bag, of a dataset unless set is NULL. */
static bytes sidecar(
    const hand_bag *bag, enum variant variant, const char *name, const hand_set *set) {
    bytes out = {NULL, 0, 0}, file = hand_bytes(bag, variant);
    uint64_t length = hand_length(bag);
    uint32_t all = crc_of_crcs(bag, &out);
    size_t table = bag->blobs.size;
    put_u64(&out, length);
    put_u64(&out, file.size);
    put_u32(&out, variant == SPLIT ? crc(0, bag->ends.data, bag->ends.size)
                                   : crc(0, file.data + table, file.size - table));
    put_u32(&out, all);
    put_u32(&out, crc(0, name, strlen(name)));
    put_u32(&out, set ? bound(set, variant) : 0);
    put_text(&out, set ? "BAGSCRC2" : "BAGSCRC1");
    put_u32(&out, crc(0, out.data + out.size - 40, 40));
    bytes_free(&file);
    return out;
}

static void assert_sidecar(const char *path, const hand_bag *bag, enum variant variant,
    const char *name, const hand_set *set) {
    bytes expected = sidecar(bag, variant, name, set);
    assert_file(path, expected.data, expected.size);
    bytes_free(&expected);
}

static void add_texts(hand_bag *bag, int count) {
    char text[300];
    for (int i = 0; i < count; i++) {
        memset(text, 'a' + i % 26, sizeof text);
        hand_add(bag, text, (size_t)(i * 31 % 290 + 1));
    }
}

/* ---- one Bag ---- */

static bag_writer *open_writer(const char *path, size_t buffer_size) {
    bag_writer_options options;
    bag_writer *writer;
    memset(&options, 0, sizeof options);
    options.checksum = true;
    options.buffer_size = buffer_size;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(writer, bag_writer_open(path, &options, &said));
    return writer;
}

static void write_bag(const hand_bag *bag, const char *path) {
    bag_writer *writer = open_writer(path, 4096);
    uint64_t start = 0;
    for (uint64_t i = 0; i < hand_length(bag); i++) {
        uint64_t end = load_u64(bag->ends.data + 8 * i);
        assert_ok(bag_writer_append(
            writer, bag->blobs.data + start, (size_t)(end - start), NULL, &said));
        start = end;
    }
    assert_ok(bag_writer_close(writer, &said));
}

static void a_writer_stores_a_checksum_of_every_blob(void **state) {
    static const int counts[] = {0, 1, 2, 63, 64, 65, 128, 511, 512, 513, 3000};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hand_bag bag = {{0}, {0}};
        add_texts(&bag, counts[i]);
        if (counts[i] > 2)
            hand_add(&bag, "", 0);
        write_bag(&bag, at("%d.bag", counts[i]));
        bytes file = hand_bytes(&bag, V1);
        assert_file(at("%d.bag", counts[i]), file.data, file.size);
        assert_sidecar(at("%d.crc", counts[i]), &bag, V1, "", NULL);
        assert_false(exists(at("%d.idx", counts[i])));
        bytes_free(&file);
        hand_free(&bag);
    }
}

static void a_large_blob_has_a_checksum_too(void **state) {
    hand_bag bag = {{0}, {0}};
    unsigned char *block = (unsigned char *)malloc(5000000);
    (void)state;
    fill(block, 5000000, 4);
    hand_add(&bag, block, 5000000);
    hand_add(&bag, block, 1234567);
    write_bag(&bag, at("x.bag"));
    assert_sidecar(at("x.crc"), &bag, V1, "", NULL);
    free(block);
    hand_free(&bag);
}

static void an_abort_removes_the_checksums(void **state) {
    (void)state;
    bag_writer *writer = open_writer(at("x.bag"), 0);
    assert_ok(bag_writer_append(writer, "abc", 3, NULL, &said));
    assert_ok(bag_writer_flush(writer, &said));
    assert_true(exists(at("x.crc")));
    bag_writer_abort(writer);
    assert_names(at("."), "");
}

static void existing_checksums_are_not_overwritten(void **state) {
    (void)state;
    bag_writer_options options;
    memset(&options, 0, sizeof options);
    options.checksum = true;
    save_text(at("x.crc"), "mine");
    assert_refused(BAGS_ERROR_EXISTS, bag_writer_open(at("x.bag"), &options, &said));
    assert_names(at("."), "x.crc");
    assert_file(at("x.crc"), "mine", 4);
}

enum mode { MAPPED, RANDOM, NO_MMAP, CACHED_INDEX, MODES };

static bag_reader_options checking(int mode) {
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    options.verify_checksums = true;
    options.no_read_ahead = mode == RANDOM;
    options.no_mmap = mode >= NO_MMAP;
    options.cache_index = mode == CACHED_INDEX;
    options.allow_empty_file = true;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_code checksum(
    const char *path, bool replace, bags_checksum_report *report) {
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.replace = replace;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return bags_checksum(path, &options, report, &said);
}

static void checksums_are_verified_in_every_variant_and_mode(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        hand_bag bag = {{0}, {0}};
        bags_checksum_report report;
        add_texts(&bag, 1500);
        make_dir(at("%d", variant));
        hand_save(&bag, (enum variant)variant, at("%d", variant), "x");
        assert_ok(checksum(at("%d/x.bag", variant), false, &report));
        assert_int_equal(report.made, 1);
        assert_int_equal(report.blobs, 1500);
        assert_sidecar(at("%d/x.crc", variant), &bag, (enum variant)variant, "", NULL);
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader_options options = checking(mode);
            bag_reader *reader;
            bags_buffer scratch = {NULL, 0, NULL, NULL};
            bags_view blob;
            bag_blobs range;
            assert_opens(
                reader, bag_reader_open(at("%d/x.bag", variant), &options, &said));
            for (uint64_t i = 0; i < 1500; i += 7) {
                assert_ok(bag_reader_get(reader, i, &scratch, &blob, &said));
                assert_int_equal(blob.data[0], 'a' + i % 26);
            }
            assert_ok(bag_reader_get_range(reader, 3, 1400, &scratch, &range, &said));
            assert_int_equal(range.length, 1397);
            bags_buffer_free(&scratch);
            bag_reader_close(reader);
        }
        assert_ok(bags_verify(at("%d/x.bag", variant), NULL, NULL, &said));
        hand_free(&bag);
    }
}

static void checksums_and_sizes_are_found_without_reading_a_blob(void **state) {
    (void)state;
    for (int variant = V1; variant <= SPLIT; variant++) {
        hand_bag bag = {{0}, {0}};
        bytes made;
        char text[8];
        add_texts(&bag, 70);
        snprintf(text, sizeof text, "x%d", variant);
        char *path = strdup(at("%s.bag", text));
        hand_save(&bag, (enum variant)variant, at("%s", ""), text);
        made = sidecar(&bag, (enum variant)variant, text, NULL);
        save(at("%s.crc", text), made.data, made.size);
        for (int mode = 0; mode < MODES; mode++) {
            static const uint64_t ranges[][2] = {{0, 70}, {0, 1}, {1, 2}, {69, 99},
                {7, 7}, {90, 99}, {0, UINT64_MAX}, {5, 64}};
            bag_reader_options options = checking(mode);
            bags_buffer scratch = {0};
            bags_checksums found;
            bag_reader *reader;
            assert_opens(reader, bag_reader_open(path, &options, &said));
            for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
                uint64_t start = ranges[i][0],
                         stop = ranges[i][1] < 70 ? ranges[i][1] : 70;
                assert_ok(bag_reader_checksums(
                    reader, start, ranges[i][1], &scratch, &found, &said));
                assert_int_equal(found.length, start < stop ? stop - start : 0);
                for (size_t k = 0; k < found.length; k++) {
                    const unsigned char *end = bag.ends.data + 8 * (start + k);
                    assert_memory_equal(
                        found.crcs + 4 * k, made.data + 4 * (start + k), 4);
                    assert_memory_equal(found.ends + 8 * k, end, 8);
                    if (k == 0)
                        assert_int_equal(found.start, start ? load_u64(end - 8) : 0);
                }
            }
            assert_fails(BAGS_ERROR_RANGE,
                bag_reader_checksums(reader, 3, 2, &scratch, &found, &said));
            bag_reader_close(reader);
            options.verify_checksums = false;
            assert_opens(reader, bag_reader_open(path, &options, &said));
            assert_fails(BAGS_ERROR_ARGUMENT,
                bag_reader_checksums(reader, 0, 1, &scratch, &found, &said));
            assert_says("x*.bag: opened without verify_checksums");
            bag_reader_close(reader);
            bags_buffer_free(&scratch);
        }
        bytes_free(&made);
        free(path);
        hand_free(&bag);
    }
}

/* The entries of two blobs in the middle are exchanged. */
static void checksums_next_to_an_invalid_table_are_refused(void **state) {
    (void)state;
    hand_bag bag = {{0}, {0}};
    bags_buffer scratch = {0};
    bags_checksums found;
    add_texts(&bag, 9);
    hand_save(&bag, V1, at("%s", ""), "x");
    bytes made = sidecar(&bag, V1, "x", NULL), file = load(at("x.bag"));
    save(at("x.crc"), made.data, made.size);
    unsigned char *entry = file.data + bag.blobs.size + 8 * 4, kept[8];
    memcpy(kept, entry, 8);
    memcpy(entry, entry + 8, 8);
    memcpy(entry + 8, kept, 8);
    save(at("x.bag"), file.data, file.size);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader_options options = checking(mode);
        bag_reader *reader;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_fails(BAGS_ERROR_CORRUPT,
            bag_reader_checksums(reader, 0, 9, &scratch, &found, &said));
        assert_says("x.bag: blob 4: invalid range");
        assert_ok(bag_reader_checksums(reader, 6, 9, &scratch, &found, &said));
        bag_reader_close(reader);
    }
    bags_buffer_free(&scratch);
    bytes_free(&made);
    bytes_free(&file);
    hand_free(&bag);
}

static void an_empty_bag_of_no_bytes_can_have_checksums(void **state) {
    (void)state;
    save(at("x.bag"), "", 0);
    assert_ok(checksum(at("x.bag"), false, NULL));
    assert_int_equal(file_size(at("x.crc")), 44);
    for (int mode = 0; mode < MODES; mode++) {
        bag_reader_options options = checking(mode);
        bag_reader *reader;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_int_equal(bag_reader_length(reader), 0);
        bag_reader_close(reader);
    }
    assert_ok(verify_path(at("x.bag"), NULL, &said));
}

static void a_checksum_mismatch_names_the_blob(void **state) {
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        hand_bag bag = {{0}, {0}};
        bag_reader_options options = checking(mode);
        bag_reader *reader;
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        bags_view blob = {NULL, 77};
        bag_blobs range;
        make_dir(at("x"));
        hand_add(&bag, "first", 5);
        hand_add(&bag, "123456789", 9);
        hand_add(&bag, "third", 5);
        hand_save(&bag, V1, at("x"), "a");
        assert_ok(checksum(at("x/a.bag"), false, NULL));
        bytes file = load(at("x/a.bag"));
        file.data[6] ^= 4;
        save(at("x/a.bag"), file.data, file.size);
        assert_opens(reader, bag_reader_open(at("x/a.bag"), &options, &said));
        assert_fails(
            BAGS_ERROR_CORRUPT, bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_says("a.bag: blob 1*mismatch");
        assert_says("e3069283");
        char found[9];
        snprintf(found, sizeof found, "%08x", (unsigned)crc(0, file.data + 5, 9));
        assert_says(found);
        assert_true(blob.data == NULL && blob.size == 0);
        assert_fails(BAGS_ERROR_CORRUPT,
            bag_reader_get_range(reader, 0, 3, &scratch, &range, &said));
        assert_says("blob 1");
        static const uint64_t some[] = {2, 0, 2}, wrong[] = {2, 1, 0};
        bags_view many[3];
        assert_ok(bag_reader_get_many(reader, some, 3, &scratch, many, &said));
        assert_text(many[1], "first");
        assert_fails(BAGS_ERROR_CORRUPT,
            bag_reader_get_many(reader, wrong, 3, &scratch, many, &said));
        assert_says("a.bag: blob 1*mismatch");
        assert_ok(bag_reader_get(reader, 2, &scratch, &blob, &said));
        assert_text(blob, "third");
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
        options.verify_checksums = false;
        assert_opens(reader, bag_reader_open(at("x/a.bag"), &options, &said));
        assert_ok(bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_text(blob, "163456789");
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("x/a.bag"), NULL, NULL, &said));
        assert_says("a.bag: blob 1*mismatch");
        bytes_free(&file);
        hand_free(&bag);
        remove_tree(at("x"));
    }
}

static void a_checksum_mismatch_among_many_datapoints_names_the_blob(void **state) {
    static const uint64_t some[] = {0, 5, 2}, wrong[] = {5, 4, 0};
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        bags_writer_options how;
        bags_reader_options options;
        bags_reader *reader;
        bags_row row = {0};
        bags_field field = {"a", "int(8)"};
        memset(&how, 0, sizeof how);
        memset(&options, 0, sizeof options);
        how.checksum = true;
        how.shard_length = 3;
        bags_writer *writer = bags_writer_open(at("x"), &field, 1, &how, NULL);
        for (int i = 0; i < 6; i++) {
            bags_value value = bags_int(i);
            bags_entry one = {"a", &value, 1};
            assert_ok(bags_writer_append(writer, &one, 1, &said));
        }
        assert_ok(bags_writer_close(writer, &said));
        bytes file = load(at("x/000001/a.bag"));
        file.data[8] ^= 64; /* datapoint 4 */
        save(at("x/000001/a.bag"), file.data, file.size);
        options.verify_checksums = true;
        options.no_read_ahead = mode == RANDOM;
        options.no_mmap = mode >= NO_MMAP;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        bags_view blob;
        assert_ok(bags_reader_get(reader, 5, NULL, 0, &row, &said));
        assert_int_equal(bags_row_bytes(&row, 0, 0).data[0], 5);
        assert_ok(bags_reader_get_blob(reader, 3, 0, 0, &row, &blob, &said));
        assert_int_equal(blob.data[0], 3);
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get(reader, 4, NULL, 0, &row, &said));
        assert_says("x/000001/a.bag: blob 1*mismatch");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_fails(BAGS_ERROR_CORRUPT,
            bags_reader_get_blob(reader, 4, 0, 0, &row, &blob, &said));
        assert_says("x/000001/a.bag: blob 1*mismatch");
        assert_true(blob.data == NULL && blob.size == 0);
        assert_ok(bags_reader_get_many(reader, some, 3, 0, &row, &said));
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get_many(reader, wrong, 3, 0, &row, &said));
        assert_says("x/000001/a.bag: blob 1*mismatch");
        assert_int_equal(bags_row_length(&row, 0), 0);
        assert_ok(bags_reader_get_range(reader, 0, 4, 0, &row, &said));
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_reader_get_range(reader, 1, 6, 0, &row, &said));
        assert_says("x/000001/a.bag: blob 1*mismatch");
        assert_int_equal(
            BAGS_ERROR_CORRUPT, bags_reader_get_range(reader, 1, 6, 0, &row, NULL));
        bags_row_free(&row);
        bags_reader_close(reader);
        bytes_free(&file);
        remove_tree(at("x"));
    }
}

/* With checksums and without, in every mode. */
static void invalid_entries_are_found_before_their_blobs_are_compared(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_texts(&bag, 5);
    hand_save(&bag, V1, at("."), "x");
    assert_ok(checksum(at("x.bag"), false, NULL));
    bytes file = load(at("x.bag"));
    unsigned char *ends = file.data + bag.blobs.size + 8;
    memset(ends + 8, 0, 8);         /* blob 1 has start > end */
    memset(ends + 3 * 8 + 2, 1, 1); /* blob 3 ends after the data */
    save(at("x.bag"), file.data, file.size);
    for (int i = 0; i < 2 * MODES; i++) {
        bag_reader_options options = checking(i / 2);
        bag_reader *reader;
        bags_buffer scratch = {NULL, 0, NULL, NULL};
        bags_view blob;
        options.verify_checksums = i % 2;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        assert_ok(bag_reader_get(reader, 0, &scratch, &blob, &said));
        assert_int_equal(blob.data[0], 'a');
        assert_fails(
            BAGS_ERROR_CORRUPT, bag_reader_get(reader, 1, &scratch, &blob, &said));
        assert_says("x.bag: blob 1: invalid range*");
        assert_true(blob.data == NULL && blob.size == 0);
        assert_fails(
            BAGS_ERROR_CORRUPT, bag_reader_get(reader, 3, &scratch, &blob, &said));
        assert_says("x.bag: blob 3: end offset out of range*");
        assert_fails(
            BAGS_ERROR_RANGE, bag_reader_get(reader, 5, &scratch, &blob, &said));
        assert_says("x.bag: blob index 5 out of range (length 5)");
        assert_fails(BAGS_ERROR_RANGE,
            bag_reader_get(reader, UINT64_MAX, &scratch, &blob, &said));
        bags_buffer_free(&scratch);
        bag_reader_close(reader);
    }
    bytes_free(&file);
    hand_free(&bag);
}

static void truncated_checksums_are_refused_in_every_mode(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_texts(&bag, 5);
    hand_save(&bag, V1, at("."), "x");
    assert_ok(checksum(at("x.bag"), false, NULL));
    bytes file = load(at("x.crc"));
    for (size_t size = 0; size < file.size; size++) {
        save(at("x.crc"), file.data, size);
        for (int mode = 0; mode < MODES; mode++) {
            bag_reader_options options = checking(mode);
            assert_refused(
                BAGS_ERROR_CORRUPT, bag_reader_open(at("x.bag"), &options, &said));
        }
    }
    bytes_free(&file);
    hand_free(&bag);
}

static void verifying_missing_checksums_is_an_error_with_a_remedy(void **state) {
    hand_bag bag = {{0}, {0}};
    bag_reader_options options = checking(MAPPED);
    (void)state;
    hand_add(&bag, "abc", 3);
    hand_save(&bag, V1, at("."), "x");
    assert_refused(BAGS_ERROR_MISSING, bag_reader_open(at("x.bag"), &options, &said));
    assert_says("x.bag: no checksums*x.crc");
    assert_says("bags_checksum writes them");
    assert_refused(BAGS_ERROR_ARGUMENT,
        bag_reader_open_memory("\0\0\0\0\0\0\0\0", 8, &options, &said));
    hand_free(&bag);
}

/* ---- datasets ---- */

static hand_set some_set(int count) {
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "clip", "bytes[]");
    set_field(&set, "text", "utf8");
    for (int i = 0; i < count; i++) {
        char text[40];
        snprintf(text, sizeof text, "text %d of %d", i, count);
        set_begin(&set);
        set_items(&set, 0, "item", (size_t)(i % 3));
        set_text(&set, 1, text);
        set_end(&set);
    }
    return set;
}

static void checksums_are_added_to_datasets(void **state) {
    (void)state;
    for (int variant = V1; variant <= V2; variant++) {
        hand_set set = some_set(20);
        bags_checksum_report report;
        set_save(&set, (enum variant)variant, at("set"));
        assert_ok(checksum(at("set"), false, &report));
        assert_int_equal(report.made, 3);
        assert_int_equal(report.kept, 0);
        assert_sidecar(
            at("set/clip.crc"), &set.bags[0], (enum variant)variant, "clip", &set);
        assert_sidecar(
            at("set/text.crc"), &set.bags[1], (enum variant)variant, "text", &set);
        assert_sidecar(
            at("set/refs.crc"), &set.refs, (enum variant)variant, "refs", &set);
        assert_names(at("set"), "clip.bag clip.crc refs.bag refs.crc spec.json "
                                "text.bag text.crc");
        assert_ok(checksum(at("set"), false, &report));
        assert_int_equal(report.made, 0);
        assert_int_equal(report.kept, 3);
        set_free(&set);
        remove_tree(at("set"));
    }
}

/* Hooks need not be able to identify files. */
static void checksums_are_added_without_identities(void **state) {
    hand_set set = some_set(20);
    bags_io io = *bags_io_local();
    bags_checksum_options options;
    (void)state;
    io.identify = NULL;
    memset(&options, 0, sizeof options);
    options.env.io = &io;
    set_save(&set, V1, at("set"));
    assert_ok(bags_checksum(at("set"), &options, NULL, &said));
    assert_sidecar(at("set/clip.crc"), &set.bags[0], V1, "clip", &set);
    assert_ok(bags_verify(at("set"), NULL, NULL, &said));
    set_free(&set);
}

static void change_text(void) {
    bytes file = load(at("set/text.bag"));
    file.data[0] = 'T';
    save(at("set/text.bag"), file.data, file.size);
    bytes_free(&file);
}

/* Those of the other Bags bind them to the one that was there before. */
static void a_replaced_bag_gets_no_checksums_next_to_those_of_others(void **state) {
    hand_set set = some_set(4);
    (void)state;
    set_save(&set, V1, at("set"));
    assert_ok(checksum(at("set"), false, NULL));
    change_text();
    assert_int_equal(remove(at("set/text.crc")), 0);
    assert_fails(BAGS_ERROR_CORRUPT, checksum(at("set"), false, NULL));
    assert_says("clip.crc: *one of them is of another version");
    assert_false(exists(at("set/text.crc")));
    set_free(&set);
}

static void existing_checksums_are_replaced_only_on_request(void **state) {
    hand_set set = some_set(4);
    bags_checksum_report report;
    (void)state;
    set_save(&set, V1, at("set"));
    assert_ok(checksum(at("set"), false, NULL));
    change_text();
    assert_ok(checksum(at("set"), false, NULL));
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("set"), NULL, NULL, &said));
    assert_ok(checksum(at("set"), true, &report));
    assert_int_equal(report.made, 3);
    assert_ok(bags_verify(at("set"), NULL, NULL, &said));
    set_free(&set);
}

/* Their trailers are like those of standalone Bags, and bind nothing together. */
static void checksums_of_version_0_1_are_refused_until_they_are_replaced(void **state) {
    static const char *const names[] = {"clip", "text", "refs"};
    hand_set set = some_set(4);
    bags_reader_options options;
    bags_reader *reader;
    bag_reader *bag;
    bag_reader_options alone;
    (void)state;
    memset(&options, 0, sizeof options);
    memset(&alone, 0, sizeof alone);
    options.verify_checksums = alone.verify_checksums = true;
    set_save(&set, V1, at("set"));
    for (int i = 0; i < 3; i++) {
        const hand_bag *of = i < 2 ? &set.bags[i] : &set.refs;
        bytes old = sidecar(of, V1, names[i], NULL);
        save(at("set/%s.crc", names[i]), old.data, old.size);
        bytes_free(&old);
    }
    assert_refused(BAGS_ERROR_CORRUPT, bags_reader_open(at("set"), &options, &said));
    assert_says("refs.crc: checksums of version 0.1");
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify(at("set"), NULL, NULL, &said));
    assert_says("crc: checksums of version 0.1");
    assert_fails(BAGS_ERROR_CORRUPT, checksum(at("set"), false, NULL));
    assert_says("clip.crc: checksums of version 0.1");
    assert_opens(bag, bag_reader_open(at("set/clip.bag"), &alone, &said));
    bag_reader_close(bag);
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    bags_reader_close(reader);
    assert_ok(checksum(at("set"), true, NULL));
    assert_opens(reader, bags_reader_open(at("set"), &options, &said));
    bags_reader_close(reader);
    assert_ok(bags_verify(at("set"), NULL, NULL, &said));
    set_free(&set);
}

/* 0 bytes are an empty Bag only next to those of granular 0.20 and 0.21. */
static void a_field_of_0_bytes_is_neither_checksummed_nor_described(void **state) {
    hand_set set = some_set(4);
    bags_info info;
    (void)state;
    set_save(&set, V1, at("set"));
    save_text(at("set/text.bag"), "");
    assert_fails(BAGS_ERROR_CORRUPT, checksum(at("set"), false, NULL));
    assert_says("set/text.bag: *0 bytes");
    assert_false(exists(at("set/text.crc")));
    bags_reader *reader = NULL;
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_reader_info(reader, &info, NULL, &said));
    assert_says("set/text.bag: *0 bytes");
    bags_reader_close(reader);
    set_free(&set);
}

static void a_bag_of_a_dataset_can_be_read_alone_but_not_checksummed_alone(
    void **state) {
    hand_set set = some_set(4);
    bag_reader_options options = checking(MAPPED);
    bag_reader *reader;
    (void)state;
    set_save(&set, V1, at("set"));
    assert_fails(BAGS_ERROR_ARGUMENT, checksum(at("set/text.bag"), false, NULL));
    assert_says("belongs to the dataset");
    assert_ok(checksum(at("set"), false, NULL));
    assert_opens(reader, bag_reader_open(at("set/text.bag"), &options, &said));
    bag_reader_close(reader);
    /* A Bag of a dataset cannot be renamed. */
    assert_int_equal(rename(at("set/text.bag"), at("set/name.bag")), 0);
    assert_int_equal(rename(at("set/text.crc"), at("set/name.crc")), 0);
    assert_refused(
        BAGS_ERROR_CORRUPT, bag_reader_open(at("set/name.bag"), &options, &said));
    assert_says("set/name.crc*another Bag");
    set_free(&set);
}

static void unfinished_shards_are_refused(void **state) {
    bags_writer_options options;
    bags_field field = {"a", "bytes"};
    bags_value value = bags_blob("abc", 3);
    bags_entry entry = {"a", &value, 1};
    (void)state;
    memset(&options, 0, sizeof options);
    options.shard_length = 2;
    bags_writer *writer = bags_writer_open(at("set"), &field, 1, &options, &said);
    for (int i = 0; i < 3; i++)
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_fails(BAGS_ERROR_UNFINISHED, checksum(at("set"), false, NULL));
    assert_says("000001");
    assert_names(at("set/000000"), "a.bag refs.bag spec.json");
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_int_equal(reader_info(reader).checksums, 0);
    bags_reader_close(reader);
    assert_ok(checksum(at("set"), false, NULL));
    assert_opens(reader, bags_reader_open(at("set"), NULL, &said));
    assert_int_equal(reader_info(reader).checksums, 2);
    bags_reader_close(reader);
    assert_names(at("set/000001"), "a.bag a.crc refs.bag refs.crc spec.json");
    assert_fails(BAGS_ERROR_MISSING, checksum(at("nothing"), false, NULL));
}

/* They would be taken for those that the writer stores. */
static void the_bag_of_a_running_writer_gets_no_checksums(void **state) {
    bag_writer *writer;
    (void)state;
    assert_opens(writer, bag_writer_open(at("x.bag"), NULL, &said));
    for (int i = 0; i < 3; i++)
        assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_ok(bag_writer_flush(writer, &said));
    assert_fails(BAGS_ERROR_LOCKED, checksum(at("x.bag"), false, NULL));
    assert_says("x.bag");
    assert_names(at("."), "x.bag x.idx");
    assert_ok(bag_writer_append(writer, "abcdefgh", 8, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    assert_names(at("."), "x.bag");
    assert_ok(checksum(at("x.bag"), false, NULL));
    assert_names(at("."), "x.bag x.crc");
}

/* The writer of a dataset stores what bags_checksum would store later. */
static void the_writer_stores_the_same_checksums_as_bags_checksum(void **state) {
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        bags_checksum_report report;
        work w = work_on(at("%d", i), lengths[i], NULL);
        w.options.checksum = true;
        bags_writer *writer;
        assert_opens(writer, work_open(&w, false, &said));
        assert_ok(work_append_to(&w, writer, 14, &said));
        assert_ok(work_close(&w, writer, &said));
        copy_tree(at("%d", i), at("copy"));
        assert_ok(checksum(at("%d", i), true, &report));
        assert_int_equal(report.made, i ? 16 : 4);
        assert_same_tree(at("%d", i), at("copy"));
        remove_tree(at("copy"));
    }
}

/* After an interruption at any call, NAME.crc is missing or complete, and the
 * next run ends as if nothing had happened. */
static void an_interrupted_checksum_can_be_repeated(void **state) {
    uint64_t faults = 0;
    (void)state;
    for (uint64_t n = 1;; n++) {
        memory_disk m;
        watch over;
        hand_set set = some_set(6);
        bags_checksum_options options;
        memory_disk_start(&m);
        memory_disk_save_set(&m, &set, V1, "set");
        watch_start(&over, &m.io);
        over.fail_at = n;
        over.stays = true;
        over.fail_with = EIO;
        memset(&options, 0, sizeof options);
        options.env.allocator = &memory.allocator;
        options.env.io = &over.io;
        bags_code code = bags_checksum("set", &options, NULL, &said);
        uint64_t failed = over.failed;
        /* Do not fail calls whose failure loses nothing. */
        assert_true(code == BAGS_OK || (failed && code == BAGS_ERROR_IO));
        faults += code != BAGS_OK;
        static const char *const names[] = {"clip", "text", "refs"};
        const hand_bag *const bags[] = {&set.bags[0], &set.bags[1], &set.refs};
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 3; i++) {
                char path[40];
                bytes complete = sidecar(bags[i], V1, names[i], &set);
                snprintf(path, sizeof path, "set/%s.crc", names[i]);
                bags_view found = memory_disk_find(&m, path);
                if (round || found.data)
                    assert_bytes(found, complete.data, complete.size);
                bytes_free(&complete);
            }
            options.env.io = &m.io;
            assert_ok(bags_checksum("set", &options, NULL, &said));
        }
        assert_int_equal(memory_disk_files(&m), 4 + 3);
        assert_int_equal(over.files, 0);
        memory_disk_free(&m);
        set_free(&set);
        if (!failed)
            break;
    }
    print_message("checksums interrupted at %d calls\n", (int)faults);
    assert_true(faults > 30);
}

static void running_out_of_memory_is_an_error(void **state) {
    hand_set set = some_set(6);
    (void)state;
    set_save(&set, V1, at("set"));
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        tally t;
        bags_checksum_options options;
        bags_reader_options reading;
        tally_start(&t);
        t.fail_at = n;
        memset(&options, 0, sizeof options);
        memset(&reading, 0, sizeof reading);
        options.env.allocator = reading.env.allocator = &t.allocator;
        options.replace = reading.verify_checksums = true;
        bags_code code = bags_checksum(at("set"), &options, NULL, &said);
        bags_reader *reader =
            code ? NULL : bags_reader_open(at("set"), &reading, &said);
        if (!code && !reader)
            code = said.code;
        if (reader)
            code = verify_path(at("set"), &reading.env, &said);
        bags_reader_close(reader);
        assert_int_equal(code, t.failed ? BAGS_ERROR_MEMORY : BAGS_OK);
        assert_int_equal(t.live, 0);
        done = t.failed == 0;
    }
    set_free(&set);
}

static void a_disk_full_while_writing_checksums_is_an_error(void **state) {
    uint64_t n;
    (void)state;
    for (n = 1;; n++) {
        bag_writer *writer = open_writer(at("%d.bag", (int)n), 4096);
        bags_code code = BAGS_OK;
        disk.only = 1u << HOOK_WRITE;
        disk.calls = disk.failed = 0;
        disk.fail_with = ENOSPC;
        disk.fail_at = n;
        for (int i = 0; i < 3000 && !code; i++)
            code = bag_writer_append(writer, "abc", 3, NULL, &said);
        code = bag_writer_close(writer, &said);
        disk.fail_at = 0;
        assert_int_equal(code, disk.failed ? BAGS_ERROR_IO : BAGS_OK);
        if (!code)
            break;
    }
    assert_true(n > 10);
}

static void remember(void *user, const bags_checksummed *done) {
    bags_checksummed *last = (bags_checksummed *)user;
    *last = *done;
    last->path = NULL;
}

static void a_long_table_is_checksummed_in_pieces(void **state) {
    hand_bag bag = {{0}, {0}};
    bags_checksum_options options;
    bags_checksummed last = {"", true, 0, 0};
    (void)state;
    add_texts(&bag, 20000);
    hand_save(&bag, V1, at("."), "x");
    disk.only = 1u << HOOK_MAP;
    disk.fail_at = 1;
    disk.stays = true;
    disk.fail_with = ENODEV;
    memset(&options, 0, sizeof options);
    options.env.io = &disk.io;
    options.env.allocator = &memory.allocator;
    options.each = remember;
    options.user = &last;
    assert_ok(bags_checksum(at("x.bag"), &options, NULL, NULL));
    assert_true(last.length == 20000 && !last.kept);
    assert_sidecar(at("x.crc"), &bag, V1, "", NULL);
    hand_free(&bag);
}

static void an_invalid_table_gets_no_checksums(void **state) {
    hand_bag bag = {{0}, {0}};
    (void)state;
    add_texts(&bag, 9);
    bytes file = hand_bytes(&bag, V1);
    file.data[file.size - 8 * 4 + 6] = 0x7f;
    save(at("x.bag"), file.data, file.size);
    assert_fails(BAGS_ERROR_CORRUPT, bags_checksum(at("x.bag"), NULL, NULL, &said));
    assert_says("x.bag: blob 5");
    assert_false(exists(at("x.crc")));
    save(at("torn.bag"), "1234", 4);
    assert_fails(BAGS_ERROR_CORRUPT, bags_checksum(at("torn.bag"), NULL, NULL, &said));
    bytes_free(&file);
    hand_free(&bag);
}

/* ---- corruption ---- */

/* What a reader returns: a digest of each datapoint. */
#define MOST_ROWS 16

typedef struct contents {
    bool opened;
    uint64_t length;
    bool given[MOST_ROWS];
    uint32_t rows[MOST_ROWS];
} contents;

static uint32_t sum_row(const bags_reader *reader, const bags_row *row) {
    size_t count = 0;
    uint32_t sum = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    for (size_t i = 0; i < count; i++) {
        sum = crc(sum, fields[i].name, strlen(fields[i].name) + 1);
        sum = crc(sum, fields[i].type, strlen(fields[i].type) + 1);
        for (size_t k = 0; k < bags_row_length(row, i); k++) {
            bags_view blob = bags_row_bytes(row, i, k);
            uint64_t size = blob.size;
            sum = crc(sum, &size, sizeof size);
            sum = crc(sum, blob.data, blob.size);
        }
    }
    return sum;
}

static contents look(memory_disk *m, bool check, bool no_mmap, bool *verified) {
    contents out;
    bags_reader_options options;
    bags_row row = {0};
    memset(&out, 0, sizeof out);
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.verify_checksums = check;
    options.no_mmap = no_mmap;
    bags_reader *reader = bags_reader_open("set", &options, NULL);
    *verified = reader && verify_path("set", &options.env, NULL) == BAGS_OK;
    out.opened = reader != NULL;
    out.length = reader ? bags_reader_length(reader) : 0;
    for (uint64_t i = 0; i < out.length && i < MOST_ROWS; i++) {
        out.given[i] = bags_reader_get(reader, i, NULL, 0, &row, NULL) == BAGS_OK;
        if (out.given[i])
            out.rows[i] = sum_row(reader, &row);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return out;
}

typedef struct damage {
    memory_disk m;
    contents clean;
    uint64_t changes, silent;
    uint64_t flips; /* changes of one byte that verify reported */
} damage;

/* After a change: verify must report it, unless no reader can notice it (in
 * files that no reader of this variant uses); and what a reader with
 * verify_checksums returns is correct. */
static void check_change(damage *s, bool covered, const char *what, size_t n) {
    bool verified = false, also = false;
    contents open_eyes = look(&s->m, false, s->changes % 2, &verified);
    contents checked = look(&s->m, true, s->changes % 2, &also);
    s->changes++;
    s->silent += verified;
    if (verified && covered)
        fail_msg("%s %d: verify did not find it", what, (int)n);
    bags_verify_options all;
    memset(&all, 0, sizeof all);
    all.env.io = &s->m.io;
    if (covered && bags_verify("set", &all, NULL, NULL) == BAGS_OK)
        fail_msg("%s %d: it is not among the faults", what, (int)n);
    if (verified && memcmp(&open_eyes, &s->clean, sizeof open_eyes) != 0)
        fail_msg("%s %d: a reader gets something else", what, (int)n);
    if (checked.opened && checked.length != s->clean.length)
        fail_msg("%s %d: a checking reader has another length", what, (int)n);
    for (int i = 0; i < MOST_ROWS; i++)
        if (checked.given[i] && checked.rows[i] != s->clean.rows[i])
            fail_msg(
                "%s %d: a checking reader gave a wrong datapoint %d", what, (int)n, i);
}

static void put_file(damage *s, const char *path, const bytes *content) {
    bags_io *io = &s->m.io;
    if (memory_disk_find(&s->m, path).data)
        assert_int_equal(io->remove(io->user, path), 0);
    memory_disk_save(&s->m, path, content->data, content->size);
}

static bytes take_file(damage *s, const char *path) {
    bags_view found = memory_disk_find(&s->m, path);
    bytes copy = {NULL, 0, 0};
    put(&copy, found.data, found.size);
    return copy;
}

static bool is_idx(const char *path) {
    return strcmp(path + strlen(path) - 4, ".idx") == 0;
}

static bool is_spec(const char *path) {
    return strcmp(path + strlen(path) - 9, "spec.json") == 0;
}

/* The file in which a byte was changed, and whether verify named it. */
typedef struct changed {
    const char *path;
    bool named;
} changed;

/* Every fault is in the changed file's shard and Bag; or a row of refs refers
 * to blobs that the Bag does not have any more. */
static void check_related(void *user, const bags_fault *fault) {
    changed *c = (changed *)user;
    size_t shard = strlen(fault->path);
    const char *field = fault->field ? fault->field : "";
    const char *name = c->path + shard + 1;
    assert_true(strncmp(fault->path, c->path, shard) == 0);
    if (strncmp(name, field, strlen(field)) == 0 && name[strlen(field)] == '.')
        c->named = true;
    else
        CHECK(strcmp(field, "refs") == 0 && strstr(fault->message, "range"));
}

/* One byte has changed: it may be reported at several places, all of which are
 * in the same Bag. */
static void check_byte(damage *s, const char *path, bool covered, size_t at) {
    bags_verify_options options;
    changed c = {path, false};
    check_change(s, covered, path, at);
    if (!covered || is_spec(path))
        return;
    memset(&options, 0, sizeof options);
    options.env.io = &s->m.io;
    options.decode = true;
    options.each = check_related;
    options.user = &c;
    assert_int_not_equal(bags_verify("set", &options, NULL, NULL), BAGS_OK);
    assert_true(c.named);
    s->flips++;
}

static void check_file(damage *s, const char *path, bool covered) {
    bytes file = take_file(s, path);
    for (size_t i = 0; i < file.size; i++) {
        const unsigned char was = file.data[i];
        const unsigned char flips[] = {(unsigned char)(was ^ 1 << i % 8),
            (unsigned char)(was ^ 0xFF), was ? 0 : (unsigned char)0x80};
        for (int k = 0; k < 3; k++) {
            file.data[i] = flips[k];
            put_file(s, path, &file);
            check_byte(s, path, covered, i);
        }
        file.data[i] = was;
    }
    bytes part = file;
    for (part.size = 0; part.size < file.size; part.size++) {
        put_file(s, path, &part);
        check_change(s, covered, path, part.size);
    }
    bytes longer = {NULL, 0, 0};
    put(&longer, file.data, file.size);
    for (int i = 0; i < 20; i++) {
        put_u8(&longer, (unsigned)(i * 37 & 255));
        put_file(s, path, &longer);
        /* A truncated entry of an .idx is ignored. */
        check_change(
            s, covered && !(is_idx(path) && longer.size % 8), path, longer.size);
    }
    bytes_free(&longer);
    bags_io *io = &s->m.io;
    assert_int_equal(io->remove(io->user, path), 0);
    check_change(s, covered, path, 0);
    put_file(s, path, &file);
    bytes_free(&file);
}

static void check_swap(damage *s, const char *one, const char *two, bool covered) {
    bytes a = take_file(s, one), b = take_file(s, two);
    if (a.size != b.size || memcmp(a.data, b.data, a.size) != 0) {
        put_file(s, one, &b);
        put_file(s, two, &a);
        check_change(s, covered, one, b.size);
        put_file(s, one, &a);
        put_file(s, two, &b);
    }
    bytes_free(&a);
    bytes_free(&b);
}

static void check_dataset(damage *s, const char *const *paths, size_t count,
    bool idx_counts, const char *name) {
    bool verified = false;
    bags_checksum_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &s->m.io;
    assert_ok(bags_checksum("set", &options, NULL, &said));
    s->changes = s->silent = s->flips = 0;
    s->clean = look(&s->m, true, false, &verified);
    assert_true(s->clean.opened && verified);
    assert_int_equal(memory_disk_files(&s->m), count);
    for (size_t i = 0; i < count; i++)
        check_file(s, paths[i], idx_counts || !is_idx(paths[i]));
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++)
            check_swap(s, paths[i], paths[k],
                idx_counts || !is_idx(paths[i]) || !is_idx(paths[k]));
    print_message("%s: %d changes, %d of which no reader could tell\n", name,
        (int)s->changes, (int)s->silent);
    assert_true(s->flips > 500);
    contents after = look(&s->m, true, false, &verified);
    assert_memory_equal(&after, &s->clean, sizeof after);
    memory_disk_free(&s->m);
}

static void every_change_to_a_v1_or_v2_dataset_is_found(void **state) {
    static const char *const paths[] = {"set/spec.json", "set/refs.bag", "set/refs.crc",
        "set/clip.bag", "set/clip.crc", "set/text.bag", "set/text.crc"};
    (void)state;
    for (int variant = V1; variant <= V2; variant++) {
        damage s;
        hand_set set = some_set(5);
        memory_disk_start(&s.m);
        memory_disk_save_set(&s.m, &set, (enum variant)variant, "set");
        set_free(&set);
        check_dataset(&s, paths, 7, false, variant == V1 ? "v1" : "v2");
    }
}

static void every_change_to_a_split_dataset_is_found(void **state) {
    static const char *const paths[] = {"set/spec.json", "set/a.bag", "set/a.crc",
        "set/a.idx", "set/text.bag", "set/text.crc", "set/text.idx"};
    damage s;
    hand_set set;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_field(&set, "text", "utf8");
    for (int i = 0; i < 5; i++) {
        set_begin(&set);
        set_blob(&set, 0, "abcdefgh", (size_t)i + 1);
        set_text(&set, 1, i % 2 ? "odd" : "not");
        set_end(&set);
    }
    memory_disk_start(&s.m);
    memory_disk_save_set(&s.m, &set, SPLIT, "set");
    set_free(&set);
    check_dataset(&s, paths, 7, true, "split");
}

/* Equal blobs are the hardest case: an invalid table may yield correct bytes,
 * and files of the same size are swapped. */
static void every_change_to_shards_with_equal_blobs_is_found(void **state) {
    static const char *const paths[] = {"set/000000/spec.json", "set/000000/refs.bag",
        "set/000000/refs.crc", "set/000000/a.bag", "set/000000/a.crc",
        "set/000000/b.bag", "set/000000/b.crc", "set/000000/a.idx", "set/000000/b.idx",
        "set/000000/refs.idx", "set/000001/spec.json", "set/000001/refs.bag",
        "set/000001/refs.crc", "set/000001/a.bag", "set/000001/a.crc",
        "set/000001/b.bag", "set/000001/b.crc", "set/000001/a.idx", "set/000001/b.idx",
        "set/000001/refs.idx"};
    damage s;
    bags_writer_options options;
    bags_field fields[] = {{"a", "int(4)"}, {"b", "int(4)"}};
    (void)state;
    memory_disk_start(&s.m);
    memset(&options, 0, sizeof options);
    options.shard_length = 2;
    options.checksum = options.keep_idx = true;
    options.env.io = &s.m.io;
    bags_writer *writer = bags_writer_open("set", fields, 2, &options, &said);
    for (int i = 0; i < 4; i++) {
        bags_value a = bags_int(0), b = bags_int(i / 2);
        bags_entry entries[] = {{"a", &a, 1}, {"b", &b, 1}};
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    check_dataset(&s, paths, 20, false, "shards");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_writer_stores_a_checksum_of_every_blob),
        TEST(a_large_blob_has_a_checksum_too),
        TEST(an_abort_removes_the_checksums),
        TEST(existing_checksums_are_not_overwritten),
        TEST(checksums_are_verified_in_every_variant_and_mode),
        TEST(checksums_and_sizes_are_found_without_reading_a_blob),
        TEST(checksums_next_to_an_invalid_table_are_refused),
        TEST(an_empty_bag_of_no_bytes_can_have_checksums),
        TEST(a_checksum_mismatch_names_the_blob),
        TEST(a_checksum_mismatch_among_many_datapoints_names_the_blob),
        TEST(invalid_entries_are_found_before_their_blobs_are_compared),
        TEST(truncated_checksums_are_refused_in_every_mode),
        TEST(verifying_missing_checksums_is_an_error_with_a_remedy),
        TEST(checksums_are_added_to_datasets),
        TEST(checksums_are_added_without_identities),
        TEST(a_replaced_bag_gets_no_checksums_next_to_those_of_others),
        TEST(existing_checksums_are_replaced_only_on_request),
        TEST(checksums_of_version_0_1_are_refused_until_they_are_replaced),
        TEST(a_field_of_0_bytes_is_neither_checksummed_nor_described),
        TEST(a_bag_of_a_dataset_can_be_read_alone_but_not_checksummed_alone),
        TEST(unfinished_shards_are_refused),
        TEST(the_bag_of_a_running_writer_gets_no_checksums),
        TEST(the_writer_stores_the_same_checksums_as_bags_checksum),
        TEST(an_interrupted_checksum_can_be_repeated),
        TEST(running_out_of_memory_is_an_error),
        TEST(a_disk_full_while_writing_checksums_is_an_error),
        TEST(a_long_table_is_checksummed_in_pieces),
        TEST(an_invalid_table_gets_no_checksums),
        TEST(every_change_to_a_v1_or_v2_dataset_is_found),
        TEST(every_change_to_a_split_dataset_is_found),
        TEST(every_change_to_shards_with_equal_blobs_is_found),
    };
    return cmocka_run_group_tests_name("checksum", tests, NULL, NULL);
}
