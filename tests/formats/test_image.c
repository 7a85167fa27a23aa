/* formats/image.c: what image files state, valid or not. Nothing is decoded. */
// flavours: test: release; check: asan
#include "pictures.h"

static bags_view copy(bags_view file, size_t size) {
    unsigned char *data = (unsigned char *)malloc(size + !size);
    bags_view out = {data, size};
    memcpy(data, file.data, size);
    return out;
}

/* The orientation of a JPEG with these EXIF data. */
static uint32_t orientation_of(const void *exif, size_t size) {
    bags_view blob = jpeg_with_exif(load_part(IMAGES, "420", ".jpg"), 20, exif, size);
    uint32_t orientation = bags_image_orientation(blob);
    unload(blob);
    return orientation;
}

static void the_orientation_is_found_in_either_byte_order(void **unused) {
    (void)unused;
    for (unsigned o = 0; o <= 9; o++)
        for (int big = 0; big < 2; big++) {
            unsigned char exif[EXIF_SIZE];
            uint32_t valid = o < 1 || o > 8 ? 1 : o;
            exif_of(exif, o, big);
            assert_int_equal(orientation_of(exif, sizeof exif), valid);
            bags_view png =
                png_with_exif(load_part(IMAGES, "rgb", ".png"), 33, exif, sizeof exif);
            assert_int_equal(bags_image_orientation(png), valid);
            unload(png);
        }
}

static void a_segment_with_exif_need_not_be_the_first(void **unused) {
    (void)unused;
    static const char xmp[] = "\xFF\xE1\0\x24http://ns.adobe.com/xap/1.0/\0<x/>",
                      comment[] = "\xFF\xFE\0\x06text";
    unsigned char six[EXIF_SIZE], eight[EXIF_SIZE];
    exif_of(six, 6, true);
    exif_of(eight, 8, false);
    bags_view file = load_part(IMAGES, "420", ".jpg");
    file = jpeg_with_exif(file, 20, eight, sizeof eight);
    file = jpeg_with_exif(file, 20, six, sizeof six); /* this one counts */
    file = inserted(file, 20, xmp, 2 + 0x24);
    file = inserted(file, 2, comment, sizeof comment - 1);
    file = inserted(file, 2, "\xFF\xFF\xFF", 3); /* before a marker */
    assert_int_equal(bags_image_orientation(file), 6);
    unload(file);
    file = load_part(IMAGES, "exif", ".jpg");
    assert_int_equal(bags_image_orientation(file), 6);
    unload(file);
    file = load_part(IMAGES, "420", ".jpg");
    assert_int_equal(bags_image_orientation(file), 1);
    unload(file);
}

/* As in Pillow: the last before the pixels counts, otherwise the last after them. */
static void of_several_chunks_with_exif_one_counts(void **unused) {
    (void)unused;
    unsigned char six[EXIF_SIZE], eight[EXIF_SIZE];
    exif_of(six, 6, true);
    exif_of(eight, 8, false);
    bags_view file = load_part(IMAGES, "rgb", ".png");
    file = png_with_exif(file, file.size - 12, six, sizeof six);
    assert_int_equal(bags_image_orientation(file), 6);
    file = png_with_exif(file, file.size - 12, eight, sizeof eight);
    assert_int_equal(bags_image_orientation(file), 8);
    file = png_with_exif(file, 33, eight, sizeof eight);
    file = png_with_exif(file, 33, six, sizeof six);
    assert_int_equal(bags_image_orientation(file), 8);
    unload(file);
}

/* A big-endian block: its header, then the rest. */
#define BLOCK "MM\0\x2A\0\0\0\x08"
#define ENTRY(type, count, value) "\x01\x12\0" type "\0\0\0" count value
#define NEXT "\0\0\0\0"

static void entries_are_read_as_pillow_reads_them(void **unused) {
    (void)unused;
    static const struct {
        const char *exif;
        size_t size;
        uint32_t orientation;
    } cases[] = {
#define CASE(bytes, orientation) {bytes, sizeof bytes - 1, orientation}
        CASE(BLOCK "\0\x01" ENTRY("\3", "\1", "\0\6\0\0") NEXT, 6),
        CASE(BLOCK "\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 6),
        CASE(BLOCK "\0\x01" ENTRY("\4", "\1", "\0\0\0\6") NEXT, 6),
        CASE(BLOCK "\0\x01" ENTRY("\x09", "\1", "\0\0\0\3") NEXT, 3),
        CASE(BLOCK "\0\x01" ENTRY("\6", "\1", "\3\0\0\0") NEXT, 3),
        CASE(BLOCK "\0\x01" ENTRY("\3", "\2", "\0\6\0\1") NEXT, 6),
        CASE(BLOCK "\0\x01" ENTRY("\3", "\3", "\0\0\0\x1A") NEXT "\0\7\0\1\0\1", 7),
        /* The last of two; an invalid one counts, too. */
        CASE(BLOCK "\0\x02" ENTRY("\3", "\1", "\0\6\0\0") ENTRY("\3", "\1", "\0\3\0\0")
                 NEXT,
            3),
        CASE(BLOCK "\0\x02" ENTRY("\3", "\1", "\0\6\0\0")
                 ENTRY("\3", "\1", "\0\x0C\0\0") NEXT,
            1),
        /* Text, no number, an unknown type, too large. */
        CASE(BLOCK "\0\x01" ENTRY("\2", "\2", "6\0\0\0") NEXT, 1),
        CASE(BLOCK "\0\x01" ENTRY("\1", "\1", "\6\0\0\0") NEXT, 1),
        CASE(BLOCK "\0\x01" ENTRY("\3", "\0", "\0\6\0\0") NEXT, 1),
        CASE(BLOCK "\0\x01" ENTRY("\x0F", "\1", "\0\6\0\0") NEXT, 1),
        CASE(BLOCK "\0\x01" ENTRY("\x63", "\1", "\0\6\0\0") NEXT, 1),
        CASE(BLOCK "\0\x01" ENTRY("\4", "\1", "\0\1\0\6") NEXT, 1),
        /* Numbers outside the block end it: what came before counts. */
        CASE(BLOCK "\0\x01" ENTRY("\3", "\3", "\0\0\0\x1B") NEXT "\0\6\0\1\0\1", 1),
        CASE(BLOCK "\0\x01" ENTRY("\3", "\3", "\xFF\xFF\xFF\xFF") NEXT, 1),
        CASE(BLOCK "\0\x02" ENTRY("\3", "\1", "\0\6\0\0")
                 ENTRY("\5", "\1", "\xFF\xFF\xFF\xF0") NEXT,
            6),
        CASE(BLOCK "\0\x02" ENTRY("\5", "\1", "\xFF\xFF\xFF\xF0")
                 ENTRY("\3", "\1", "\0\6\0\0") NEXT,
            1),
        /* More entries than the block has, none, and an offset outside. */
        CASE(BLOCK "\xFF\xFF" ENTRY("\3", "\1", "\0\6\0\0"), 6),
        CASE(BLOCK "\0\0" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        CASE("MM\0\x2A\0\0\0\x09\0\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 6),
        CASE("MM\0\x2A\0\0\0\x18\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        CASE("MM\0\x2A\xFF\xFF\xFF\xFE\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        /* Other headers; BigTIFF. */
        CASE("MM\x2A\0\0\0\0\x08\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 6),
        CASE("MM\0\x2B\0\0\0\x08\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        CASE("MI\0\x2A\0\0\0\x08\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        CASE("XX\0\x2A\0\0\0\x08\0\x01" ENTRY("\3", "\1", "\0\6\0\0"), 1),
        CASE("MM", 1),
        CASE("", 1),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (orientation_of(cases[i].exif, cases[i].size) != cases[i].orientation)
            fail_msg("case %u: %u", (unsigned)i,
                (unsigned)orientation_of(cases[i].exif, cases[i].size));
}

/* Copies have just so many bytes: AddressSanitizer then sees one more read. */
static void truncated_and_changed_files_are_read_safely(void **unused) {
    (void)unused;
    unsigned char exif[EXIF_SIZE];
    exif_of(exif, 6, false);
    for (int png = 0; png < 2; png++) {
        bags_view file = png ? png_with_exif(load_part(IMAGES, "size-1x1", ".png"), 33,
                                   exif, sizeof exif)
                             : jpeg_with_exif(load_part(IMAGES, "size-1x1", ".jpg"), 2,
                                   exif, sizeof exif);
        for (size_t size = 0; size < file.size; size++) {
            bags_view part = copy(file, size);
            uint32_t found = bags_image_orientation(part);
            assert_true(found == 1 || found == 6);
            unload(part);
        }
        for (size_t i = 0; i < file.size; i++)
            for (int value = 0; value < 256; value += 15) {
                bags_view other = copy(file, file.size);
                ((unsigned char *)(uintptr_t)other.data)[i] = (unsigned char)value;
                assert_in_range(bags_image_orientation(other), 1, 8);
                unload(other);
            }
        unload(file);
    }
}

/* ---- complete files ---- */

static bags_error err;

static void assert_check(bags_view file, const char *says) {
    bags_code code = bags_image_check(file, &err);
    if (code != (says ? BAGS_ERROR_CORRUPT : BAGS_OK))
        fail_msg("%d: %s", code, code ? err.message : "accepted");
    if (says && !strstr(err.message, says))
        fail_msg("\"%s\" is not in \"%s\"", says, err.message);
    assert_int_equal(bags_image_check(file, NULL), code);
}

/* Every part is refused, and every continuation is accepted. */
static void check_parts(const char *name, const char *ending) {
    bags_view file = load_part(IMAGES, name, ending);
    assert_check(file, NULL);
    for (size_t size = 0; size < file.size; size += 1 + file.size / 3000) {
        bags_view part = copy(file, size);
        assert_check(part, size < 8 && size < 2 + 6 * (ending[1] == 'p')
                               ? "neither JPEG nor PNG"
                               : "truncated");
        unload(part);
    }
    file = inserted(file, file.size, "\xFF\xD8\xFF\0 more", 9);
    assert_check(file, NULL);
    unload(file);
}

static void check_jpeg(const char *name) { check_parts(name, ".jpg"); }
static void check_png(const char *name) { check_parts(name, ".png"); }

static void complete_files_are_accepted_and_parts_refused(void **unused) {
    (void)unused;
    each_picture(".jpg", NULL, check_jpeg);
    each_picture(".png", NULL, check_png);
    static const char *accepted[] = {"bad-cmyk.jpg", "bad-trailing.jpg",
        "bad-trailing.png", "bad-extra-checksum.png"};
    for (size_t i = 0; i < 4; i++) {
        bags_view file = load_part(IMAGES, accepted[i], "");
        assert_check(file, NULL);
        unload(file);
    }
    bags_view file = load_part(PHOTOS, "china", ".jpg");
    assert_check(file, NULL);
    unload(file);
}

/* The offset of the first place with these bytes. */
static size_t find(bags_view file, const char *bytes, size_t size) {
    for (size_t i = 0; i + size <= file.size; i++)
        if (!memcmp(file.data + i, bytes, size))
            return i;
    fail_msg("not found");
    return 0;
}

static bags_view changed(bags_view file, size_t at, int value) {
    ((unsigned char *)(uintptr_t)file.data)[at] = (unsigned char)value;
    return file;
}

static void faults_of_a_jpeg_are_named(void **unused) {
    (void)unused;
    bags_view files[8];
    static const char *says[8] = {"no marker where one must be (at byte 20)",
        "two frame headers", "states a height", "invalid frame header",
        "without all of its scans", "a second start", "before its frame",
        "without all of its scans"};
    for (int i = 0; i < 8; i++)
        files[i] = load_part(IMAGES, i == 4 ? "progressive" : "420", ".jpg");
    size_t frame = find(files[0], "\xFF\xC0", 2);
    files[0] = inserted(files[0], 20, "x", 1);
    files[1] = inserted(files[1], frame, "\xFF\xC0\0\x0B\x08\0\1\0\1\1\1\x11\0", 13);
    changed(changed(files[2], frame + 5, 0), frame + 6, 0);
    changed(files[3], frame + 9, 4);
    /* Now the first scan has no DC. */
    size_t scan = find(files[4], "\xFF\xDA\0\x0C\3", 5);
    changed(files[4], scan + 11, 1);
    files[5] = inserted(files[5], frame, "\xFF\xD8", 2);
    files[6] = inserted(files[6], 20, "\xFF\xDA\0\x08\1\1\0\0\x3F\0", 10);
    files[7] = inserted(files[7], frame, "\xFF\xD9", 2);
    for (int i = 0; i < 8; i++) {
        assert_check(files[i], says[i]);
        unload(files[i]);
    }
}

static void faults_of_a_png_are_named(void **unused) {
    (void)unused;
    bags_view file = load_part(IMAGES, "rgb", ".png");
    size_t pixels = find(file, "IDAT", 4) - 4;
    for (size_t i = 8; i < file.size; i++) {
        unsigned char old = file.data[i];
        changed(file, i, old ^ 1);
        bags_code code = bags_image_check(file, &err);
        assert_int_equal(code, BAGS_ERROR_CORRUPT);
        changed(file, i, old);
    }
    bags_view none = copy(file, pixels + 12);
    memcpy(
        (unsigned char *)(uintptr_t)none.data + pixels, file.data + file.size - 12, 12);
    assert_check(none, "ends without pixels");
    unload(none);
    file = inserted(file, 33, "\0\0\0\0IHDR\xA8\xA1\xAE\x0A", 12);
    assert_check(file, "one header");
    unload(file);
    file = load_part(IMAGES, "bad-checksum", ".png");
    assert_check(file, "checksum mismatch (at byte");
    unload(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_orientation_is_found_in_either_byte_order),
        TEST(a_segment_with_exif_need_not_be_the_first),
        TEST(of_several_chunks_with_exif_one_counts),
        TEST(entries_are_read_as_pillow_reads_them),
        TEST(truncated_and_changed_files_are_read_safely),
        TEST(complete_files_are_accepted_and_parts_refused),
        TEST(faults_of_a_jpeg_are_named),
        TEST(faults_of_a_png_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
