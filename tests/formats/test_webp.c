/* formats/webp.c against the arrays that Pillow reads from the same files, and against
 * files and calls that must be rejected. */
// flavours: test: release; check: asan
#include "picture_check.h"

static bags_error err;

static picture decoded_with(const bags_webp_options *options, bags_view blob) {
    picture out;
    memset(&out, 0, sizeof out);
    if (bags_webp_probe(blob, options, &out.image, &err))
        fail_msg("%s", err.message);
    size_t size = picture_size(&out.image);
    unsigned char *pixels = (unsigned char *)malloc(size);
    out.samples = pixels;
    out.file.data = pixels;
    out.file.size = size;
    if (bags_webp_decode(blob, options, pixels, size, 0, &err))
        fail_msg("%s", err.message);
    return out;
}

/* -------------------------------------------------------- what is read */

static void decodes_as_pillow(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".webp");
    picture wanted = load_raw(IMAGES, name, ".raw");
    picture got = decoded_with(NULL, blob);
    assert_image(&got.image, &wanted.image);
    assert_memory_equal(got.samples, wanted.samples, got.file.size);
    void *state = opened(&bags_codec_webp, "webp");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        bags_codec_webp.decode(state, blob, &scratch, &value, &err), BAGS_OK);
    assert_shape(&value, &wanted.image);
    assert_memory_equal(value.data, got.samples, got.file.size);
    assert_int_equal(bags_image_check(blob, &err), BAGS_OK);
    bags_codec_webp.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
    unload(wanted.file);
    unload(got.file);
}

static void every_webp_decodes_to_the_array_that_pillow_returns(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".webp", NULL, decodes_as_pillow), 7, 100);
}

/* A file with its last chunk replaced by EXIF data of another orientation. */
static bags_view with_orientation(bags_view file, unsigned orientation) {
    for (size_t at = 12; at + 8 < file.size; at++)
        if (!memcmp(file.data + at, "EXIF", 4)) {
            unsigned char *exif = (unsigned char *)file.data + at + 8;
            bool prefix = !memcmp(exif, "Exif", 5);
            /* Pillow writes one entry, big-endian. */
            exif[(prefix ? 6 : 0) + 19] = (unsigned char)orientation;
            return file;
        }
    fail_msg("no EXIF chunk");
    return file;
}

static void an_image_is_turned_upright_on_request(void **unused) {
    (void)unused;
    bags_webp_options options = {0};
    bags_view blob = load_part(IMAGES, "webp-exif", ".webp");
    assert_int_equal(bags_image_orientation(blob), 6);
    picture stored = decoded_with(&options, blob);
    options.orient = true;
    for (unsigned o = 1; o <= 8; o++) {
        blob = with_orientation(blob, o);
        assert_int_equal(bags_image_orientation(blob), o);
        picture wanted = turned(&stored, o);
        picture got = decoded_with(&options, blob);
        assert_image(&got.image, &wanted.image);
        assert_memory_equal(got.samples, wanted.samples, got.file.size);
        unload(wanted.file);
        unload(got.file);
    }
    unload(stored.file);
    unload(blob);
}

/* -------------------------------------------------------- memory */

static void rows_go_where_the_stride_says_and_nowhere_else(void **unused) {
    (void)unused;
    static unsigned char room[23 * 128];
    bags_view blob = load_part(IMAGES, "webp-lossy", ".webp");
    picture wanted = load_raw(IMAGES, "webp-lossy", ".raw");
    size_t row = row_size(&wanted.image);
    memset(room, 0xA5, sizeof room);
    assert_int_equal(
        bags_webp_decode(blob, NULL, room, 22 * 128 + row, 128, &err), BAGS_OK);
    for (size_t i = 0; i < 23; i++) {
        assert_memory_equal(room + i * 128, wanted.samples + i * row, row);
        for (size_t j = row; j < 128; j++)
            assert_int_equal(room[i * 128 + j], 0xA5);
    }
    unload(blob);
    unload(wanted.file);
}

static void too_little_memory_is_an_argument_error(void **unused) {
    (void)unused;
    unsigned char *room = (unsigned char *)malloc(37 * 23 * 3);
    bags_view blob = load_part(IMAGES, "webp-lossless", ".webp");
    const struct {
        size_t size, stride;
    } wrong[] = {{37 * 23 * 3 - 1, 0}, {37 * 23 * 3, 110}, {37 * 23 * 3, SIZE_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            bags_webp_decode(blob, NULL, room, wrong[i].size, wrong[i].stride, &err),
            BAGS_ERROR_ARGUMENT);
    unload(blob);
    blob = load_part(IMAGES, "webp-size-1x1", ".webp");
    assert_int_equal(bags_webp_decode(blob, NULL, room, 3, (size_t)INT32_MAX + 1, &err),
        BAGS_ERROR_ARGUMENT);
    unload(blob);
    free(room);
}

static void memory_that_fails_is_an_error_and_no_leak(void **unused) {
    (void)unused;
    check_memory(&bags_codec_webp, "webp(1)", 30);
}

/* -------------------------------------------------------- what is rejected */

static void is_refused(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".webp");
    void *state = opened(&bags_codec_webp, "webp");
    bags_buffer scratch = {0};
    bags_value value;
    bool animated = strcmp(name, "bad-webp-animated") == 0;
    bags_code wanted = animated ? BAGS_ERROR_LIMIT : BAGS_ERROR_CORRUPT;
    bags_code code = bags_codec_webp.decode(state, blob, &scratch, &value, &err);
    if (code != wanted || err.code != wanted || !err.message[0])
        fail_msg("%s: %d, %s", name, code, err.message);
    if (animated)
        assert_non_null(strstr(err.message, "animated WebP"));
    bags_codec_webp.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
}

static void every_bad_webp_is_rejected(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".webp", "bad-", is_refused), 8, 100);
}

static void bytes_after_the_end_are_an_error_unless_allowed(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "bad-webp-trailing", ".webp");
    bags_webp_options options = {0};
    unsigned char room[37 * 23 * 3];
    assert_int_equal(bags_webp_decode(blob, &options, room, sizeof room, 0, &err),
        BAGS_ERROR_CORRUPT);
    assert_non_null(strstr(err.message, "14 bytes"));
    options.allow_trailing = true;
    assert_int_equal(
        bags_webp_decode(blob, &options, room, sizeof room, 0, &err), BAGS_OK);
    unload(blob);
}

static void the_limit_of_pixels_is_an_option(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "webp-lossless", ".webp");
    bags_webp_options options = {0};
    bags_image image;
    options.max_pixels = 37 * 23;
    assert_int_equal(bags_webp_probe(blob, &options, &image, &err), BAGS_OK);
    options.max_pixels--;
    assert_int_equal(bags_webp_probe(blob, &options, &image, &err), BAGS_ERROR_LIMIT);
    bags_codec codec = bags_codec_webp;
    codec.user = &options;
    void *state = opened(&codec, "webp");
    memory m = {-1, 0, 0};
    bags_buffer scratch = buffer_of(&m);
    bags_value value;
    assert_int_equal(
        codec.decode(state, blob, &scratch, &value, &err), BAGS_ERROR_LIMIT);
    assert_int_equal(m.calls, 0);
    codec.close(state);
    unload(blob);
}

static void a_file_truncated_anywhere_is_corrupt(void **unused) {
    (void)unused;
    static const char *names[] = {"webp-lossy", "webp-lossy-alpha", "webp-lossless",
        "webp-exif", "webp-size-1x1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_truncated(&bags_codec_webp, "webp", names[i], ".webp");
}

/* The header then states the shorter size, so that only libwebp can notice. */
static void truncated_pixels_are_corrupt(void **unused) {
    (void)unused;
    static const char *names[] = {"webp-lossy", "webp-lossless"};
    unsigned char room[37 * 23 * 3];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bags_view blob = load_part(IMAGES, names[i], ".webp");
        unsigned char *bytes = (unsigned char *)blob.data;
        for (size_t size = 20; size < blob.size - 16; size += 2) {
            bags_view part = {bytes, size};
            for (size_t k = 0; k < 4; k++) {
                bytes[4 + k] = (unsigned char)((size - 8) >> 8 * k);
                bytes[16 + k] = (unsigned char)((size - 20) >> 8 * k);
            }
            if (bags_webp_decode(part, NULL, room, sizeof room, 0, &err) !=
                BAGS_ERROR_CORRUPT)
                fail_msg("%s, %u bytes", names[i], (unsigned)size);
        }
        unload(blob);
    }
}

static void other_files_are_corrupt(void **unused) {
    (void)unused;
    static const char *texts[] = {
        "", "RIFF", "x", "GIF89a......", "\xff\xd8\xff\xe0 JFIF", "RIFF0000WAVEfmt "};
    bags_image image = {1, 2, 3, 4, BAGS_DTYPE_NONE};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bags_view blob = {(const unsigned char *)texts[i], strlen(texts[i])};
        assert_int_equal(bags_webp_probe(blob, NULL, &image, &err), BAGS_ERROR_CORRUPT);
        assert_string_equal(err.message, "not a WebP");
        assert_int_equal(bags_webp_probe(blob, NULL, &image, NULL), BAGS_ERROR_CORRUPT);
    }
    assert_int_equal(image.depth, 4);
}

/* -------------------------------------------------------- what is written */

static void arguments_are_a_level_or_nothing(void **unused) {
    (void)unused;
    static const char *wrong[] = {
        "webp(10)", "webp(x)", "webp()", "webp(1,2)", "webp(-1)", "webp(90)"};
    static const char *right[] = {"webp", "webp(0)", "webp(9)", "webp(6)[]"};
    void *state = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            open_type(&bags_codec_webp, wrong[i], &state, &err), BAGS_ERROR_TYPE);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        bags_codec_webp.close(opened(&bags_codec_webp, right[i]));
}

static void values_other_than_colour_images_are_rejected(void **unused) {
    (void)unused;
    static const unsigned char pixels[64] = {0};
    static const uint64_t none[] = {0, 4, 3}, gray[] = {4, 4}, wide[] = {1, 16384, 3},
                          one[] = {4, 4, 1}, two[] = {4, 4, 2}, five[] = {4, 4, 5},
                          four_dims[] = {1, 4, 4, 3}, full[] = {4, 4, 3};
    bags_value wrong[] = {bags_int(1), bags_utf8("x"),
        bags_array(BAGS_DTYPE_UINT8, 3, none, pixels),
        bags_array(BAGS_DTYPE_UINT8, 2, gray, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, wide, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, one, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, two, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, five, pixels),
        bags_array(BAGS_DTYPE_UINT8, 4, four_dims, pixels),
        bags_array(BAGS_DTYPE_UINT16, 3, full, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, full, pixels)};
    wrong[sizeof wrong / sizeof *wrong - 1].size = 10;
    void *state = opened(&bags_codec_webp, "webp");
    bags_buffer scratch = {0};
    bags_view blob;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            bags_codec_webp.encode(state, &wrong[i], &scratch, &blob, &err),
            BAGS_ERROR_VALUE);
    assert_non_null(strstr(err.message, "(10 bytes, expected 48)"));
    bags_codec_webp.close(state);
    bags_buffer_free(&scratch);
}

static bags_view encoded(const char *type, const picture *input, bags_buffer *scratch) {
    void *state = opened(&bags_codec_webp, type);
    uint64_t shape[3];
    bags_value value = value_of(&input->image, input->samples, shape);
    bags_view blob = {NULL, 0};
    if (bags_codec_webp.encode(state, &value, scratch, &blob, &err))
        fail_msg("%s", err.message);
    bags_codec_webp.close(state);
    return blob;
}

/* Noise, flat colours, and RGBA whose pixels are all transparent or all opaque. */
static void images_of_all_kinds_come_back_exactly(void **unused) {
    (void)unused;
    static const char *types[] = {"webp", "webp(0)", "webp(3)", "webp(9)"};
    unsigned char samples[19 * 9 * 4];
    bags_buffer scratch = {0};
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < sizeof samples; i++) {
            samples[i] = (unsigned char)(kind == 1 ? 7 : i * i * 40503U >> 9);
            if (kind >= 2 && i % 4 == 3)
                samples[i] = kind == 2 ? 255 : 0;
        }
        for (size_t type = 0; type < 4; type++)
            for (uint32_t width = 1; width <= 19; width += 6)
                for (uint32_t height = 1; height <= 9; height += 4)
                    for (uint32_t channels = 3; channels <= 4; channels++) {
                        picture input = {{width, height, channels, 8, BAGS_DTYPE_NONE},
                            {NULL, 0}, samples};
                        bags_view blob = encoded(types[type], &input, &scratch);
                        picture back = decoded_with(NULL, blob);
                        assert_image(&back.image, &input.image);
                        assert_memory_equal(back.samples, samples, back.file.size);
                        unload(back.file);
                    }
    }
    bags_buffer_free(&scratch);
}

static void the_level_in_the_type_is_used(void **unused) {
    (void)unused;
    static const char *types[] = {"webp(0)", "webp(3)", "webp(9)"};
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

static void threads_decode_with_one_state_at_once(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "webp-lossy-alpha", ".webp");
    picture wanted = decoded_with(NULL, blob);
    check_threads(&bags_codec_webp, "webp", blob, &wanted);
    unload(blob);
    unload(wanted.file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_webp_decodes_to_the_array_that_pillow_returns),
        TEST(an_image_is_turned_upright_on_request),
        TEST(rows_go_where_the_stride_says_and_nowhere_else),
        TEST(too_little_memory_is_an_argument_error),
        TEST(memory_that_fails_is_an_error_and_no_leak),
        TEST(every_bad_webp_is_rejected),
        TEST(bytes_after_the_end_are_an_error_unless_allowed),
        TEST(the_limit_of_pixels_is_an_option),
        TEST(a_file_truncated_anywhere_is_corrupt),
        TEST(truncated_pixels_are_corrupt),
        TEST(other_files_are_corrupt),
        TEST(arguments_are_a_level_or_nothing),
        TEST(values_other_than_colour_images_are_rejected),
        TEST(images_of_all_kinds_come_back_exactly),
        TEST(the_level_in_the_type_is_used),
        TEST(threads_decode_with_one_state_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
