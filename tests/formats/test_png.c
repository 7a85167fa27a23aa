/* formats/png.c against what Pillow reads from the same files, and against files
 * and calls that must be rejected. */
// flavours: test: release; check: asan
#include "picture_check.h"

static bags_error err;

static bags_code decode(const bags_png_options *options, bags_view blob, picture *out) {
    bags_code code = bags_png_probe(blob, options, &out->image, &err);
    if (code)
        return code;
    size_t size = picture_size(&out->image);
    unsigned char *pixels = (unsigned char *)malloc(size);
    out->samples = pixels;
    out->file.data = pixels;
    out->file.size = size;
    code = bags_png_decode(blob, options, pixels, size, 0, &err);
    if (code)
        free(pixels);
    return code;
}

static picture decoded_with(const bags_png_options *options, bags_view blob) {
    picture out;
    if (decode(options, blob, &out))
        fail_msg("%s", err.message);
    return out;
}

static picture decoded(bags_view blob) { return decoded_with(NULL, blob); }

static bool little_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 1;
}

/* Returns true if samples are those of a file of make.py, which is little-endian. */
static void assert_samples(const picture *got, const picture *wanted) {
    assert_image(&got->image, &wanted->image);
    bool swapped = got->image.depth == 16 && !little_endian();
    for (size_t i = 0; i < picture_size(&got->image); i++)
        assert_int_equal(got->samples[i], wanted->samples[swapped ? i ^ 1 : i]);
}

/* -------------------------------------------------------- what is read */

/* What Pillow returns, which make.py stores where it is not NAME.raw. */
static picture load_pillow(const char *name) {
    char path[512];
    snprintf(path, sizeof path, IMAGES "%s.pillow.raw", name);
    return load_raw(IMAGES, name, access(path, R_OK) == 0 ? ".pillow.raw" : ".raw");
}

static void decodes_as_pillow(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".png");
    picture wanted = load_pillow(name);
    picture got = decoded(blob);
    bool flat = strcmp(name, "gray-1-bit") == 0;
    assert_samples(&got, &wanted);
    void *state = opened(&bags_codec_png, "png");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        bags_codec_png.decode(state, blob, &scratch, &value, &err), BAGS_OK);
    assert_int_equal(value.dtype == BAGS_DTYPE_BOOL, flat);
    if (flat)
        value.dtype = BAGS_DTYPE_UINT8;
    assert_shape(&value, &wanted.image);
    assert_memory_equal(value.data, got.samples, got.file.size);
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
    unload(wanted.file);
    unload(got.file);
}

static void every_png_decodes_to_the_array_that_pillow_returns(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".png", NULL, decodes_as_pillow), 25, 100);
}

static void decodes_to_colours(const char *name) {
    bags_png_options options = {0};
    options.expand = true;
    bags_view blob = load_part(IMAGES, name, ".png");
    picture wanted = load_raw(IMAGES, name, ".raw");
    picture got = decoded_with(&options, blob);
    assert_samples(&got, &wanted);
    unload(blob);
    unload(wanted.file);
    unload(got.file);
}

static void palettes_and_transparency_can_be_expanded_to_colours(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".png", NULL, decodes_to_colours), 25, 100);
}

/* Every kind of pixel for every orientation, which the file states before or after its
 * pixels. */
static void an_image_is_turned_upright_on_request(void **unused) {
    (void)unused;
    static const char *names[] = {"gray", "gray-1-bit", "gray-alpha", "rgb", "rgba",
        "rgba-interlaced", "gray-16", "rgba-16", "palette-alpha", "size-7x1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (unsigned o = 1; o <= 8; o++) {
            unsigned char exif[EXIF_SIZE];
            exif_of(exif, o, o % 2);
            bags_view blob = load_part(IMAGES, names[i], ".png");
            blob = png_with_exif(blob, i % 2 ? blob.size - 12 : 33, exif, sizeof exif);
            bags_png_options options = {0};
            options.expand = i % 3 == 0;
            picture stored = decoded_with(&options, blob);
            picture wanted = turned(&stored, o);
            options.orient = true;
            picture got = decoded_with(&options, blob);
            assert_image(&got.image, &wanted.image);
            assert_memory_equal(got.samples, wanted.samples, got.file.size);
            unload(stored.file);
            unload(wanted.file);
            unload(got.file);
            unload(blob);
        }
}

static void a_codec_opens_without_an_allocator(void **unused) {
    (void)unused;
    bags_type type;
    void *state = NULL;
    assert_int_equal(bags_type_parse("png(1)", &type, &err), BAGS_OK);
    assert_int_equal(
        bags_codec_png.open(&bags_codec_png, &type, NULL, &state, &err), BAGS_OK);
    bags_codec_png.close(state);
}

/* -------------------------------------------------------- memory */

static void rows_go_where_the_stride_says_and_nowhere_else(void **unused) {
    (void)unused;
    static const char *names[] = {"rgb", "rgb-interlaced"};
    static unsigned char room[23 * 128];
    for (size_t n = 0; n < 2; n++) {
        bags_view blob = load_part(IMAGES, names[n], ".png");
        picture wanted = load_raw(IMAGES, names[n], ".raw");
        size_t row = row_size(&wanted.image);
        memset(room, 0xA5, sizeof room);
        assert_int_equal(
            bags_png_decode(blob, NULL, room, 22 * 128 + row, 128, &err), BAGS_OK);
        for (size_t i = 0; i < 23; i++) {
            assert_memory_equal(room + i * 128, wanted.samples + i * row, row);
            for (size_t j = row; j < 128; j++)
                assert_int_equal(room[i * 128 + j], 0xA5);
        }
        unload(blob);
        unload(wanted.file);
    }
}

static void too_little_memory_is_an_argument_error(void **unused) {
    (void)unused;
    unsigned char *room = (unsigned char *)malloc(37 * 23 * 3);
    bags_view blob = load_part(IMAGES, "rgb", ".png");
    assert_int_equal(bags_png_decode(blob, NULL, room, 37 * 23 * 3 - 1, 0, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(
        bags_png_decode(blob, NULL, room, 37 * 23 * 3, 110, &err), BAGS_ERROR_ARGUMENT);
    assert_int_equal(bags_png_decode(blob, NULL, room, 37 * 23 * 3, SIZE_MAX, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(
        bags_png_decode(blob, NULL, NULL, 0, 0, &err), BAGS_ERROR_ARGUMENT);
    free(room);
    unload(blob);
}

static void memory_that_fails_is_an_error_and_no_leak(void **unused) {
    (void)unused;
    check_memory(&bags_codec_png, "png(1)", 30);
}

/* -------------------------------------------------------- what is rejected */

static void is_refused(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".png");
    void *state = opened(&bags_codec_png, "png");
    bags_buffer scratch = {0};
    bags_value value;
    bags_code wanted =
        strcmp(name, "bad-bomb") == 0 ? BAGS_ERROR_LIMIT : BAGS_ERROR_CORRUPT;
    bags_code code = bags_codec_png.decode(state, blob, &scratch, &value, &err);
    if (code != wanted || err.code != wanted || !err.message[0])
        fail_msg("%s: %d, %s", name, code, err.message);
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
}

static void every_bad_png_is_rejected(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".png", "bad-", is_refused), 8, 100);
}

static void bytes_after_the_end_are_an_error_unless_allowed(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "bad-trailing", ".png");
    bags_png_options options = {0};
    unsigned char room[37 * 23 * 3];
    assert_int_equal(bags_png_decode(blob, &options, room, sizeof room, 0, &err),
        BAGS_ERROR_CORRUPT);
    assert_non_null(strstr(err.message, "14 bytes"));
    options.allow_trailing = true;
    assert_int_equal(
        bags_png_decode(blob, &options, room, sizeof room, 0, &err), BAGS_OK);
    unload(blob);
}

static void a_bomb_is_rejected_before_memory_is_allocated(void **unused) {
    (void)unused;
    static const char *names[] = {"bad-bomb", "bad-too-short"};
    static const bags_code codes[] = {BAGS_ERROR_LIMIT, BAGS_ERROR_CORRUPT};
    for (size_t i = 0; i < 2; i++) {
        bags_view blob = load_part(IMAGES, names[i], ".png");
        void *state = opened(&bags_codec_png, "png");
        memory m = {-1, 0, 0};
        bags_buffer scratch = buffer_of(&m);
        bags_value value;
        bags_image image;
        assert_int_equal(
            bags_codec_png.decode(state, blob, &scratch, &value, &err), codes[i]);
        assert_int_equal(m.calls, 0);
        assert_int_equal(bags_png_probe(blob, NULL, &image, &err), codes[i]);
        bags_codec_png.close(state);
        unload(blob);
    }
}

static void the_limit_of_pixels_is_an_option(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "rgb", ".png");
    bags_png_options options = {0};
    bags_image image;
    options.max_pixels = 37 * 23;
    assert_int_equal(bags_png_probe(blob, &options, &image, &err), BAGS_OK);
    options.max_pixels--;
    assert_int_equal(bags_png_probe(blob, &options, &image, &err), BAGS_ERROR_LIMIT);
    bags_codec codec = bags_codec_png;
    codec.user = &options;
    void *state = opened(&codec, "png");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        codec.decode(state, blob, &scratch, &value, &err), BAGS_ERROR_LIMIT);
    codec.close(state);
    unload(blob);
}

static void a_file_truncated_anywhere_is_corrupt(void **unused) {
    (void)unused;
    static const char *names[] = {
        "rgb", "gray-16", "palette-alpha", "rgba-interlaced", "chunks", "size-1x1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_truncated(&bags_codec_png, "png", names[i], ".png");
}

/* Every byte is under a checksum, but for the lengths and checksums. */
static void a_byte_changed_anywhere_is_corrupt(void **unused) {
    (void)unused;
    static const char *names[] = {"gray", "palette-alpha", "chunks"};
    unsigned char room[37 * 23 * 8];
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        bags_view blob = load_part(IMAGES, names[n], ".png");
        unsigned char *bytes = (unsigned char *)blob.data;
        for (size_t i = 0; i < blob.size; i++) {
            bytes[i] ^= 0x10;
            if (bags_png_decode(blob, NULL, room, sizeof room, 0, &err) !=
                BAGS_ERROR_CORRUPT)
                fail_msg("%s, byte %u changed", names[n], (unsigned)i);
            bytes[i] ^= 0x10;
        }
        unload(blob);
    }
}

static void what_is_not_a_png_is_corrupt(void **unused) {
    (void)unused;
    static const char *texts[] = {
        "\x89PNG\r\n\x1a\n", "", "\x89", "x", "GIF89a...", "\xff\xd8\xff\xe0 JFIF"};
    bags_image image = {1, 2, 3, 4, BAGS_DTYPE_NONE};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bags_view blob = {(const unsigned char *)texts[i], strlen(texts[i])};
        assert_int_equal(bags_png_probe(blob, NULL, &image, &err), BAGS_ERROR_CORRUPT);
        assert_string_equal(err.message, i ? "not a PNG" : "truncated PNG (8 bytes)");
        assert_int_equal(bags_png_probe(blob, NULL, &image, NULL), BAGS_ERROR_CORRUPT);
    }
    assert_int_equal(image.depth, 4);
}

/* -------------------------------------------------------- what is written */

static void arguments_are_a_level_or_nothing(void **unused) {
    (void)unused;
    static const char *wrong[] = {"png(10)", "png(x)", "png()", "png(1,2)", "png(-1)",
        "png(6.5)", "png(99999999999999999999)"};
    static const char *right[] = {"png", "png(0)", "png(9)", "png(6)[]"};
    void *state = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            open_type(&bags_codec_png, wrong[i], &state, &err), BAGS_ERROR_TYPE);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        bags_codec_png.close(opened(&bags_codec_png, right[i]));
}

static void values_other_than_images_are_rejected(void **unused) {
    (void)unused;
    static const unsigned char pixels[64] = {0};
    static const uint64_t none[] = {0, 4, 3}, thin[] = {4, 0},
                          wide[] = {1, (uint64_t)1 << 31}, zero[] = {4, 4, 0},
                          five[] = {4, 4, 5}, rgb[] = {2, 2, 3},
                          four_dims[] = {1, 4, 4, 3}, full[] = {4, 4, 3};
    bags_value wrong[] = {bags_int(1), bags_utf8("x"),
        bags_array(BAGS_DTYPE_UINT8, 3, none, pixels),
        bags_array(BAGS_DTYPE_UINT8, 2, thin, pixels),
        bags_array(BAGS_DTYPE_UINT8, 2, wide, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, zero, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, five, pixels),
        bags_array(BAGS_DTYPE_UINT8, 4, four_dims, pixels),
        bags_array(BAGS_DTYPE_UINT8, 1, five, pixels),
        bags_array(BAGS_DTYPE_UINT8, 0, NULL, pixels),
        bags_array(BAGS_DTYPE_BOOL, 3, rgb, pixels),
        bags_array(BAGS_DTYPE_INT16, 2, five, pixels),
        bags_array(BAGS_DTYPE_FLOAT32, 2, five, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, full, pixels)};
    wrong[sizeof wrong / sizeof *wrong - 1].size = 10;
    void *state = opened(&bags_codec_png, "png");
    bags_buffer scratch = {0};
    bags_view blob;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(bags_codec_png.encode(state, &wrong[i], &scratch, &blob, &err),
            BAGS_ERROR_VALUE);
    assert_non_null(strstr(err.message, "(10 bytes, expected 48)"));
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
}

static bags_view encoded(const char *type, const picture *input, bags_buffer *scratch) {
    void *state = opened(&bags_codec_png, type);
    uint64_t shape[3];
    bags_value value = value_of(&input->image, input->samples, shape);
    bags_view blob = {NULL, 0};
    if (bags_codec_png.encode(state, &value, scratch, &blob, &err))
        fail_msg("%s", err.message);
    bags_codec_png.close(state);
    return blob;
}

/* Noise is what compresses worst: the blob is larger than the samples. */
static void images_of_all_kinds_come_back_exactly(void **unused) {
    (void)unused;
    static const char *types[] = {"png", "png(0)", "png(1)", "png(9)"};
    uint16_t samples[19 * 9 * 4];
    for (size_t i = 0; i < 19 * 9 * 4; i++)
        samples[i] = (uint16_t)(i * i * 40503U >> 7);
    bags_buffer scratch = {0};
    for (size_t type = 0; type < 4; type++)
        for (uint32_t width = 1; width <= 19; width += 6)
            for (uint32_t height = 1; height <= 9; height += 4)
                for (uint32_t channels = 1; channels <= 4; channels++)
                    for (uint32_t depth = 8; depth <= 16; depth += 8) {
                        picture input = {
                            {width, height, channels, depth, BAGS_DTYPE_NONE},
                            {NULL, 0}, (const unsigned char *)samples};
                        picture back = decoded(encoded(types[type], &input, &scratch));
                        assert_image(&back.image, &input.image);
                        assert_memory_equal(back.samples, samples, back.file.size);
                        unload(back.file);
                    }
    bags_buffer_free(&scratch);
}

static void an_array_of_bool_is_stored_with_1_bit_per_pixel(void **unused) {
    (void)unused;
    static const uint64_t shape[] = {3, 11};
    static const unsigned char pixels[33] = {
        1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1};
    void *state = opened(&bags_codec_png, "png");
    bags_value value = bags_array(BAGS_DTYPE_BOOL, 2, shape, pixels);
    bags_buffer scratch = {0}, decoded_buffer = {0};
    bags_view blob;
    assert_int_equal(
        bags_codec_png.encode(state, &value, &scratch, &blob, &err), BAGS_OK);
    assert_int_equal(blob.data[24], 1); /* bit depth */
    assert_int_equal(
        bags_codec_png.decode(state, blob, &decoded_buffer, &value, &err), BAGS_OK);
    assert_int_equal(value.dtype, BAGS_DTYPE_BOOL);
    assert_int_equal(value.dims, 2);
    assert_int_equal(value.size, 33);
    assert_memory_equal(value.data, pixels, 33);
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded_buffer);
}

static void a_gray_image_may_have_a_third_dimension(void **unused) {
    (void)unused;
    static const uint64_t shape[] = {2, 3, 1};
    static const unsigned char pixels[] = {1, 2, 3, 4, 5, 6};
    void *state = opened(&bags_codec_png, "png");
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels);
    bags_buffer scratch = {0}, room = {0};
    bags_view blob;
    assert_int_equal(
        bags_codec_png.encode(state, &value, &scratch, &blob, &err), BAGS_OK);
    assert_int_equal(bags_codec_png.decode(state, blob, &room, &value, &err), BAGS_OK);
    assert_int_equal(value.dims, 2);
    assert_memory_equal(value.data, pixels, 6);
    bags_codec_png.close(state);
    bags_buffer_free(&scratch);
    bags_buffer_free(&room);
}

static void the_level_in_the_type_is_used(void **unused) {
    (void)unused;
    static const char *types[] = {"png(0)", "png(1)", "png", "png(9)"};
    picture input = load_ppm(IMAGES, "input", ".ppm");
    bags_buffer scratch = {0};
    size_t size = SIZE_MAX;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bags_view blob = encoded(types[i], &input, &scratch);
        assert_true(blob.size < size);
        size = blob.size;
    }
    unload(input.file);
    bags_buffer_free(&scratch);
}

/* What is written, in the words of pngcheck: "(75x53, 24-bit RGB, ...". */
static void pngcheck_opens_what_is_written(void **unused) {
    (void)unused;
    if (!have_tool("pngcheck"))
        skip();
    static const char *kinds[] = {"8-bit grayscale", "16-bit grayscale+alpha",
        "24-bit RGB", "32-bit RGB+alpha", "16-bit grayscale", "32-bit grayscale+alpha",
        "48-bit RGB", "64-bit RGB+alpha"};
    picture input = load_ppm(IMAGES, "input", ".ppm");
    bags_buffer scratch = {0};
    for (uint32_t i = 0; i < 8; i++) {
        picture some = input;
        bags_image image = {31, 15, i % 4 + 1, i < 4 ? 8 : 16, BAGS_DTYPE_NONE};
        some.image = image;
        bags_view blob = encoded("png", &some, &scratch);
        char path[64], command[128], line[256] = "", wanted[64];
        store(path, blob);
        snprintf(command, sizeof command, "pngcheck %s", path);
        FILE *output = popen(command, "r");
        assert_non_null(fgets(line, sizeof line, output));
        assert_int_equal(pclose(output), 0);
        snprintf(wanted, sizeof wanted, "(31x15, %s, non-interlaced", kinds[i]);
        if (!strstr(line, wanted))
            fail_msg("%s, not %s", line, wanted);
        unlink(path);
    }
    unload(input.file);
    bags_buffer_free(&scratch);
}

/* -------------------------------------------------------- threads, files */

static void threads_decode_with_one_state_at_once(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "rgba-interlaced", ".png");
    picture wanted = decoded(blob);
    check_threads(&bags_codec_png, "png", blob, &wanted);
    unload(blob);
    unload(wanted.file);
}

static void the_golden_images_are_as_pillow_shows_them(void **unused) {
    (void)unused;
    static const char *const fields[] = {"gray", "rgb", "rgba", NULL};
    check_golden(&bags_codec_png, "png", fields, "pngs", 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_png_decodes_to_the_array_that_pillow_returns),
        TEST(palettes_and_transparency_can_be_expanded_to_colours),
        TEST(an_image_is_turned_upright_on_request),
        TEST(a_codec_opens_without_an_allocator),
        TEST(rows_go_where_the_stride_says_and_nowhere_else),
        TEST(too_little_memory_is_an_argument_error),
        TEST(memory_that_fails_is_an_error_and_no_leak),
        TEST(every_bad_png_is_rejected),
        TEST(bytes_after_the_end_are_an_error_unless_allowed),
        TEST(a_bomb_is_rejected_before_memory_is_allocated),
        TEST(the_limit_of_pixels_is_an_option),
        TEST(a_file_truncated_anywhere_is_corrupt),
        TEST(a_byte_changed_anywhere_is_corrupt),
        TEST(what_is_not_a_png_is_corrupt),
        TEST(arguments_are_a_level_or_nothing),
        TEST(values_other_than_images_are_rejected),
        TEST(images_of_all_kinds_come_back_exactly),
        TEST(an_array_of_bool_is_stored_with_1_bit_per_pixel),
        TEST(a_gray_image_may_have_a_third_dimension),
        TEST(the_level_in_the_type_is_used),
        TEST(pngcheck_opens_what_is_written),
        TEST(threads_decode_with_one_state_at_once),
        TEST(the_golden_images_are_as_pillow_shows_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
