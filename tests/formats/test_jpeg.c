/* formats/jpeg.c against what libjpeg-turbo's own djpeg makes of the same
 * files, and against files and calls that must be rejected. */
// flavours: test: release; check: asan
#include "picture_check.h"

#include <sys/stat.h>

static bags_error err;

static bags_code decode(
    const bags_jpeg_options *options, bags_view blob, picture *out) {
    bags_code code = bags_jpeg_probe(blob, options, &out->image, &err);
    if (code)
        return code;
    size_t size = picture_size(&out->image);
    unsigned char *pixels = (unsigned char *)malloc(size);
    out->samples = pixels;
    out->file.data = pixels;
    out->file.size = size;
    code = bags_jpeg_decode(blob, options, pixels, size, 0, &err);
    if (code)
        free(pixels);
    return code;
}

static picture decoded(const bags_jpeg_options *options, bags_view blob) {
    picture out;
    if (decode(options, blob, &out))
        fail_msg("%s", err.message);
    return out;
}

static void assert_pictures(const picture *a, const picture *b) {
    assert_image(&a->image, &b->image);
    assert_in_range(distance(a->samples, b->samples, picture_size(&a->image)), 0, 1);
}

/* -------------------------------------------------------- what is read */

static void decodes_as_djpeg(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".jpg");
    picture wanted = load_ppm(IMAGES, name, ".ppm");
    picture got = decoded(NULL, blob);
    assert_pictures(&got, &wanted);
    void *state = opened(&bags_codec_jpeg, "jpeg");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        bags_codec_jpeg.decode(state, blob, &scratch, &value, &err), BAGS_OK);
    assert_shape(&value, &wanted.image);
    assert_memory_equal(value.data, got.samples, got.file.size);
    bags_codec_jpeg.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
    unload(wanted.file);
    unload(got.file);
}

static void a_codec_opens_without_an_allocator(void **unused) {
    (void)unused;
    bags_type type;
    void *state = NULL;
    assert_int_equal(bags_type_parse("jpeg(90)", &type, &err), BAGS_OK);
    assert_int_equal(
        bags_codec_jpeg.open(&bags_codec_jpeg, &type, NULL, &state, &err), BAGS_OK);
    bags_codec_jpeg.close(state);
}

static void every_jpeg_decodes_as_djpeg_decodes_it(void **unused) {
    (void)unused;
    assert_in_range(each_picture(".jpg", NULL, decodes_as_djpeg), 20, 100);
}

static void a_scaled_image_is_what_djpeg_scales_it_to(void **unused) {
    (void)unused;
    static const char *names[] = {"420", "422", "progressive", "gray"};
    for (size_t i = 0; i < 4; i++)
        for (uint32_t scale = 2; scale <= 8; scale *= 2) {
            char ending[16];
            snprintf(ending, sizeof ending, ".%u.ppm", scale);
            bags_view blob = load_part(IMAGES, names[i], ".jpg");
            picture wanted = load_ppm(IMAGES, names[i], ending);
            bags_jpeg_options options = {0};
            options.scale = scale;
            picture got = decoded(&options, blob);
            assert_pictures(&got, &wanted);
            unload(blob);
            unload(wanted.file);
            unload(got.file);
        }
}

static void colour_can_come_out_as_gray(void **unused) {
    (void)unused;
    static const char *names[] = {"420", "rgb"};
    for (size_t i = 0; i < 2; i++) {
        bags_view blob = load_part(IMAGES, names[i], ".jpg");
        picture wanted = load_ppm(IMAGES, names[i], ".gray.ppm");
        bags_jpeg_options options = {0};
        options.channels = 1;
        picture got = decoded(&options, blob);
        assert_pictures(&got, &wanted);
        unload(blob);
        unload(wanted.file);
        unload(got.file);
    }
}

static void gray_can_come_out_as_colour(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "gray", ".jpg");
    bags_jpeg_options options = {0};
    picture gray = decoded(&options, blob);
    options.channels = 3;
    picture colour = decoded(&options, blob);
    assert_int_equal(colour.image.channels, 3);
    for (size_t i = 0; i < colour.file.size; i++)
        assert_int_equal(colour.samples[i], gray.samples[i / 3]);
    unload(blob);
    unload(gray.file);
    unload(colour.file);
}

static void the_orientation_of_a_camera_is_left_alone(void **unused) {
    (void)unused;
    bags_image image;
    bags_view blob = load_part(IMAGES, "exif", ".jpg");
    assert_int_equal(bags_jpeg_probe(blob, NULL, &image, &err), BAGS_OK);
    assert_int_equal(image.width, 75);
    assert_int_equal(image.height, 53);
    unload(blob);
}

/* -------------------------------------------------------- rectangles */

static void assert_rectangle(
    bags_view blob, const picture *whole, const bags_jpeg_options *options) {
    picture part = decoded(options, blob);
    assert_int_equal(part.image.width, options->width);
    assert_int_equal(part.image.height, options->height);
    size_t row = row_size(&part.image), stride = row_size(&whole->image);
    const unsigned char *from =
        whole->samples + options->top * stride + options->left * whole->image.channels;
    for (size_t i = 0; i < options->height; i++)
        if (memcmp(part.samples + i * row, from + i * stride, row) != 0)
            fail_msg("scale %u, %u x %u at %u, %u: row %u differs", options->scale,
                options->width, options->height, options->left, options->top,
                (unsigned)i);
    unload(part.file);
}

static uint32_t any(uint32_t below) {
    static uint32_t seed = 1;
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)(seed >> 8) * below) >> 24);
}

static void assert_rectangles(bags_view blob, int times) {
    for (uint32_t scale = 1; scale <= 8; scale *= 2)
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            bags_jpeg_options options = {0};
            options.scale = scale;
            options.channels = channels;
            picture whole = decoded(&options, blob);
            for (int i = 0; i < times; i++) {
                options.left = any(whole.image.width);
                options.top = any(whole.image.height);
                options.width = 1 + any(whole.image.width - options.left);
                options.height = 1 + any(whole.image.height - options.top);
                if (i % 4 == 1)
                    options.left = 0, options.width = whole.image.width;
                if (i % 4 == 2)
                    options.top = 0, options.height = whole.image.height;
                if (i % 4 == 3)
                    options.width = options.height = 1;
                assert_rectangle(blob, &whole, &options);
            }
            unload(whole.file);
        }
}

static void rectangles_of_it(const char *name) {
    bags_view blob = load_part(IMAGES, name, ".jpg");
    assert_rectangles(blob, 60);
    unload(blob);
}

static void a_rectangle_equals_that_part_of_the_image(void **unused) {
    (void)unused;
    each_picture(".jpg", NULL, rectangles_of_it);
}

static void a_rectangle_of_a_photograph_is_exact_too(void **unused) {
    (void)unused;
    static const char *names[] = {"china", "flower"};
    for (size_t i = 0; i < 2; i++) {
        bags_view blob = load_part(PHOTOS, names[i], ".jpg");
        assert_rectangles(blob, 12);
        unload(blob);
    }
}

static void a_rectangle_without_sides_goes_to_the_edges(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    bags_jpeg_options options = {0};
    options.left = 70;
    options.top = 50;
    bags_image image;
    assert_int_equal(bags_jpeg_probe(blob, &options, &image, &err), BAGS_OK);
    assert_int_equal(image.width, 5);
    assert_int_equal(image.height, 3);
    unload(blob);
}

static void a_rectangle_outside_is_a_range_error(void **unused) {
    (void)unused;
    static const uint32_t wrong[][4] = {{75, 0, 1, 1}, {0, 53, 1, 1}, {70, 0, 6, 1},
        {0, 50, 1, 4}, {75, 0, 0, 0}, {0, UINT32_MAX, 0, 0}, {1, 1, UINT32_MAX, 1},
        {1, 1, 1, UINT32_MAX}};
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bags_jpeg_options options = {0};
        options.left = wrong[i][0];
        options.top = wrong[i][1];
        options.width = wrong[i][2];
        options.height = wrong[i][3];
        bags_image image;
        assert_int_equal(
            bags_jpeg_probe(blob, &options, &image, &err), BAGS_ERROR_RANGE);
    }
    unload(blob);
}

/* For every orientation: the image, also scaled, and rectangles of it. */
static void an_image_is_turned_upright_on_request(void **unused) {
    (void)unused;
    static const char *names[] = {"420", "gray", "progressive", "rgb", "size-1x17"};
    for (size_t i = 0; i < 10; i++)
        for (unsigned o = 1; o <= 8; o++) {
            unsigned char exif[EXIF_SIZE];
            exif_of(exif, o, o % 2);
            bags_view blob = jpeg_with_exif(
                load_part(IMAGES, names[i / 2], ".jpg"), 2, exif, sizeof exif);
            bags_jpeg_options options = {0};
            options.scale = 1 + i % 2;
            picture stored = decoded(&options, blob);
            picture wanted = turned(&stored, o);
            options.orient = true;
            picture got = decoded(&options, blob);
            assert_image(&got.image, &wanted.image);
            assert_memory_equal(got.samples, wanted.samples, got.file.size);
            for (int j = 0; j < 20; j++) {
                options.left = any(got.image.width);
                options.top = any(got.image.height);
                options.width = 1 + any(got.image.width - options.left);
                options.height = 1 + any(got.image.height - options.top);
                assert_rectangle(blob, &got, &options);
            }
            unload(stored.file);
            unload(wanted.file);
            unload(got.file);
            unload(blob);
        }
}

/* -------------------------------------------------------- memory */

static void rows_go_where_the_stride_says_and_nowhere_else(void **unused) {
    (void)unused;
    static unsigned char room[53 * 256];
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    picture wanted = load_ppm(IMAGES, "420", ".ppm");
    size_t row = row_size(&wanted.image);
    memset(room, 0xA5, sizeof room);
    assert_int_equal(
        bags_jpeg_decode(blob, NULL, room, 52 * 256 + row, 256, &err), BAGS_OK);
    for (size_t i = 0; i < 53; i++) {
        assert_in_range(distance(room + i * 256, wanted.samples + i * row, row), 0, 1);
        for (size_t j = row; j < 256; j++)
            assert_int_equal(room[i * 256 + j], 0xA5);
    }
    unload(blob);
    unload(wanted.file);
}

static void too_little_memory_is_an_argument_error(void **unused) {
    (void)unused;
    unsigned char *room = (unsigned char *)malloc(75 * 53 * 3);
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    assert_int_equal(bags_jpeg_decode(blob, NULL, room, 75 * 53 * 3 - 1, 0, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(bags_jpeg_decode(blob, NULL, room, 75 * 53 * 3, 224, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(bags_jpeg_decode(blob, NULL, room, 75 * 53 * 3, SIZE_MAX, &err),
        BAGS_ERROR_ARGUMENT);
    assert_int_equal(
        bags_jpeg_decode(blob, NULL, NULL, 0, 0, &err), BAGS_ERROR_ARGUMENT);
    free(room);
    unload(blob);
}

static void invalid_options_are_argument_errors(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    bags_image image;
    bags_jpeg_options options = {0};
    options.scale = 3;
    assert_int_equal(
        bags_jpeg_probe(blob, &options, &image, &err), BAGS_ERROR_ARGUMENT);
    options.scale = 16;
    assert_int_equal(
        bags_jpeg_probe(blob, &options, &image, &err), BAGS_ERROR_ARGUMENT);
    options.scale = 0;
    options.channels = 2;
    assert_int_equal(
        bags_jpeg_probe(blob, &options, &image, &err), BAGS_ERROR_ARGUMENT);
    unload(blob);
}

static void memory_that_fails_is_an_error_and_no_leak(void **unused) {
    (void)unused;
    check_memory(&bags_codec_jpeg, "jpeg", 10);
}

/* -------------------------------------------------------- what is rejected */

static void assert_refused(const char *name, bags_code wanted, const char *message) {
    bags_view blob = load_part(IMAGES, name, ".jpg");
    void *state = opened(&bags_codec_jpeg, "jpeg");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        bags_codec_jpeg.decode(state, blob, &scratch, &value, &err), wanted);
    assert_int_equal(err.code, wanted);
    if (!strstr(err.message, message))
        fail_msg("%s: %s", name, err.message);
    bags_codec_jpeg.close(state);
    bags_buffer_free(&scratch);
    unload(blob);
}

static void cmyk_is_rejected_by_name(void **unused) {
    (void)unused;
    assert_refused("bad-cmyk", BAGS_ERROR_LIMIT, "CMYK");
}

static void damaged_data_are_an_error_not_a_warning(void **unused) {
    (void)unused;
    assert_refused("bad-entropy", BAGS_ERROR_CORRUPT, "libjpeg:");
}

static void bytes_after_the_end_are_an_error_unless_allowed(void **unused) {
    (void)unused;
    assert_refused("bad-trailing", BAGS_ERROR_CORRUPT, "14 bytes");
    bags_view blob = load_part(IMAGES, "bad-trailing", ".jpg");
    bags_jpeg_options options = {0};
    options.allow_trailing = true;
    picture got = decoded(&options, blob);
    assert_int_equal(got.image.width, 75);
    unload(got.file);
    unload(blob);
}

static void a_bomb_is_rejected_before_memory_is_allocated(void **unused) {
    (void)unused;
    static const char *names[] = {"bad-bomb", "bad-too-short"};
    static const bags_code codes[] = {BAGS_ERROR_LIMIT, BAGS_ERROR_CORRUPT};
    for (size_t i = 0; i < 2; i++) {
        bags_view blob = load_part(IMAGES, names[i], ".jpg");
        void *state = opened(&bags_codec_jpeg, "jpeg");
        memory m = {-1, 0, 0};
        bags_buffer scratch = buffer_of(&m);
        bags_value value;
        bags_image image;
        assert_int_equal(
            bags_codec_jpeg.decode(state, blob, &scratch, &value, &err), codes[i]);
        assert_int_equal(m.calls, 0);
        assert_int_equal(bags_jpeg_probe(blob, NULL, &image, &err), codes[i]);
        bags_codec_jpeg.close(state);
        unload(blob);
    }
}

static void the_limit_of_pixels_is_an_option(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "420", ".jpg");
    bags_jpeg_options options = {0};
    bags_image image;
    options.max_pixels = 75 * 53;
    assert_int_equal(bags_jpeg_probe(blob, &options, &image, &err), BAGS_OK);
    options.max_pixels--;
    assert_int_equal(bags_jpeg_probe(blob, &options, &image, &err), BAGS_ERROR_LIMIT);
    bags_codec codec = bags_codec_jpeg;
    codec.user = &options;
    void *state = opened(&codec, "jpeg");
    bags_buffer scratch = {0};
    bags_value value;
    assert_int_equal(
        codec.decode(state, blob, &scratch, &value, &err), BAGS_ERROR_LIMIT);
    codec.close(state);
    unload(blob);
}

static void the_limit_of_scans_is_an_option(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "scans-64", ".jpg");
    bags_jpeg_options options = {0};
    options.max_scans = 64;
    picture got = decoded(&options, blob);
    unload(got.file);
    options.max_scans = 63;
    unsigned char room[256];
    assert_int_equal(
        bags_jpeg_decode(blob, &options, room, sizeof room, 0, &err), BAGS_ERROR_LIMIT);
    options.max_scans = UINT32_MAX;
    assert_int_equal(
        bags_jpeg_decode(blob, &options, room, sizeof room, 0, &err), BAGS_OK);
    unload(blob);
}

static void a_file_truncated_anywhere_is_corrupt(void **unused) {
    (void)unused;
    static const char *names[] = {
        "420", "progressive", "restart", "gray", "arithmetic", "exif", "size-1x1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_truncated(&bags_codec_jpeg, "jpeg", names[i], ".jpg");
}

static void what_is_not_a_jpeg_is_corrupt(void **unused) {
    (void)unused;
    static const char *texts[] = {"\xff\xd8", "", "\xff", "x", "GIF89a", "\x89PNG"};
    bags_image image = {1, 2, 3, 4, BAGS_DTYPE_NONE};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bags_view blob = {(const unsigned char *)texts[i], strlen(texts[i])};
        assert_int_equal(bags_jpeg_probe(blob, NULL, &image, &err), BAGS_ERROR_CORRUPT);
        assert_string_equal(err.message, i ? "not a JPEG" : "truncated JPEG (2 bytes)");
        assert_int_equal(bags_jpeg_probe(blob, NULL, &image, NULL), BAGS_ERROR_CORRUPT);
    }
    assert_int_equal(image.depth, 4);
}

/* -------------------------------------------------------- what is written */

static void arguments_are_a_quality_or_nothing(void **unused) {
    (void)unused;
    static const char *wrong[] = {"jpeg(0)", "jpeg(101)", "jpeg(x)", "jpeg()",
        "jpeg(1,2)", "jpeg(-1)", "jpeg(75.5)", "jpg(99999999999999999999)"};
    static const char *right[] = {"jpeg", "jpg", "jpeg(1)", "jpg(100)", "jpeg(75)[]"};
    void *state = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            open_type(&bags_codec_jpeg, wrong[i], &state, &err), BAGS_ERROR_TYPE);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        bags_codec_jpeg.close(opened(&bags_codec_jpeg, right[i]));
}

static void values_other_than_images_are_rejected(void **unused) {
    (void)unused;
    static const unsigned char pixels[64] = {0};
    static const uint64_t none[] = {0, 4, 3}, thin[] = {4, 0}, wide[] = {1, 65501},
                          two[] = {4, 4, 2}, four[] = {4, 4, 4},
                          four_dims[] = {1, 4, 4, 3}, full[] = {4, 4, 3};
    bags_value wrong[] = {bags_int(1), bags_utf8("x"),
        bags_array(BAGS_DTYPE_UINT8, 3, none, pixels),
        bags_array(BAGS_DTYPE_UINT8, 2, thin, pixels),
        bags_array(BAGS_DTYPE_UINT8, 2, wide, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, two, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, four, pixels),
        bags_array(BAGS_DTYPE_UINT8, 4, four_dims, pixels),
        bags_array(BAGS_DTYPE_UINT8, 1, four, pixels),
        bags_array(BAGS_DTYPE_UINT8, 0, NULL, pixels),
        bags_array(BAGS_DTYPE_UINT16, 2, four, pixels),
        bags_array(BAGS_DTYPE_FLOAT32, 2, four, pixels),
        bags_array(BAGS_DTYPE_UINT8, 3, full, pixels)};
    wrong[sizeof wrong / sizeof *wrong - 1].size = 10;
    void *state = opened(&bags_codec_jpeg, "jpeg");
    bags_buffer scratch = {0};
    bags_view blob;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            bags_codec_jpeg.encode(state, &wrong[i], &scratch, &blob, &err),
            BAGS_ERROR_VALUE);
    assert_non_null(strstr(err.message, "(10 bytes, expected 48)"));
    bags_codec_jpeg.close(state);
    bags_buffer_free(&scratch);
}

static bags_view encoded(const char *type, const picture *input, bags_buffer *scratch) {
    void *state = opened(&bags_codec_jpeg, type);
    uint64_t shape[3];
    bags_value value = value_of(&input->image, input->samples, shape);
    bags_view blob = {NULL, 0};
    if (bags_codec_jpeg.encode(state, &value, scratch, &blob, &err))
        fail_msg("%s", err.message);
    bags_codec_jpeg.close(state);
    return blob;
}

static void the_default_is_what_pillow_writes(void **unused) {
    (void)unused;
    picture input = load_ppm(IMAGES, "input", ".ppm");
    bags_view pillow = load_part(IMAGES, "input.pillow", ".jpg");
    bags_buffer scratch = {0};
    bags_view blob = encoded("jpeg", &input, &scratch);
    picture ours = decoded(NULL, blob), theirs = decoded(NULL, pillow);
    assert_in_range(blob.size, pillow.size - 32, pillow.size + 32);
    assert_pictures(&ours, &theirs);
    unload(ours.file);
    unload(theirs.file);
    unload(input.file);
    unload(pillow);
    bags_buffer_free(&scratch);
}

static void the_quality_in_the_type_is_used(void **unused) {
    (void)unused;
    static const char *types[] = {"jpeg(5)", "jpeg(40)", "jpg", "jpeg(90)", "jpg(100)"};
    bags_view photo = load_part(PHOTOS, "flower", ".jpg");
    picture input = decoded(NULL, photo);
    bags_buffer scratch = {0};
    size_t size = 0;
    double error = 1e9;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bags_view blob = encoded(types[i], &input, &scratch);
        picture back = decoded(NULL, blob);
        assert_image(&back.image, &input.image);
        double now = squares(back.samples, input.samples, back.file.size);
        assert_true(blob.size > size && now < error);
        size = blob.size;
        error = now;
        unload(back.file);
    }
    assert_true(error < 10); /* 38 dB: what 4:2:0 costs remains */
    unload(photo);
    unload(input.file);
    bags_buffer_free(&scratch);
}

static void images_of_all_small_sizes_come_back(void **unused) {
    (void)unused;
    unsigned char pixels[33 * 33 * 3];
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (unsigned char)(100 + i / 99 + i % 99 / 3);
    bags_buffer scratch = {0};
    for (uint32_t width = 1; width <= 33; width += width < 18 ? 1 : 5)
        for (uint32_t height = 1; height <= 33; height += 4)
            for (uint32_t channels = 1; channels <= 3; channels += 2) {
                picture input = {
                    {width, height, channels, 8, BAGS_DTYPE_UINT8}, {NULL, 0}, pixels};
                picture back = decoded(NULL, encoded("jpeg(95)", &input, &scratch));
                assert_image(&back.image, &input.image);
                assert_true(squares(back.samples, pixels, back.file.size) < 99);
                unload(back.file);
            }
    bags_buffer_free(&scratch);
}

static void a_gray_image_may_have_a_third_dimension(void **unused) {
    (void)unused;
    static const uint64_t shape[] = {2, 3, 1};
    static const unsigned char pixels[] = {1, 2, 3, 4, 5, 6};
    void *state = opened(&bags_codec_jpeg, "jpeg");
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 3, shape, pixels);
    bags_buffer scratch = {0}, room = {0};
    bags_view blob;
    assert_int_equal(
        bags_codec_jpeg.encode(state, &value, &scratch, &blob, &err), BAGS_OK);
    assert_int_equal(bags_codec_jpeg.decode(state, blob, &room, &value, &err), BAGS_OK);
    assert_int_equal(value.dims, 2);
    bags_codec_jpeg.close(state);
    bags_buffer_free(&scratch);
    bags_buffer_free(&room);
}

static void assert_djpeg_opens(bags_view blob) {
    char from[64], to[80], command[256];
    store(from, blob);
    snprintf(to, sizeof to, "%s.ppm", from);
    snprintf(command, sizeof command, "djpeg -strict -dct int -pnm -outfile %s %s", to,
        from);
    assert_int_equal(system(command), 0);
    picture wanted = load_ppm("", to, ""), got = decoded(NULL, blob);
    assert_pictures(&got, &wanted);
    unlink(from);
    unlink(to);
    unload(wanted.file);
    unload(got.file);
}

static void djpeg_opens_what_is_written(void **unused) {
    (void)unused;
    if (!have_tool("djpeg"))
        skip();
    static const char *names[] = {"china", "flower"};
    static const char *types[] = {"jpeg", "jpg(95)"};
    bags_buffer scratch = {0};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            bags_view photo = load_part(PHOTOS, names[i], ".jpg");
            assert_djpeg_opens(photo);
            bags_jpeg_options options = {0};
            options.channels = channels;
            picture input = decoded(&options, photo);
            assert_djpeg_opens(encoded(types[i], &input, &scratch));
            unload(input.file);
            unload(photo);
        }
    bags_buffer_free(&scratch);
}

/* -------------------------------------------------------- threads, files */

static void threads_decode_with_one_state_at_once(void **unused) {
    (void)unused;
    bags_view blob = load_part(IMAGES, "progressive", ".jpg");
    picture wanted = decoded(NULL, blob);
    check_threads(&bags_codec_jpeg, "jpeg", blob, &wanted);
    unload(blob);
    unload(wanted.file);
}

static void the_golden_images_are_as_djpeg_shows_them(void **unused) {
    (void)unused;
    static const char *const fields[] = {"photo", "grayjpeg", NULL};
    check_golden(&bags_codec_jpeg, "jpeg", fields, "jpegs", 1);
}

/* -------------------------------------------------------- the loader */

#ifdef BAGS_WITH_PNG

static bags_view upright_png(
    bags_view file, bool png, unsigned orientation, bags_buffer *scratch) {
    static unsigned char pixels[75 * 53 * 3];
    picture stored;
    bags_view blob;
    uint64_t shape[3];
    stored.samples = pixels;
    stored.file = file;
    assert_int_equal(png ? bags_png_probe(file, NULL, &stored.image, &err)
                         : bags_jpeg_probe(file, NULL, &stored.image, &err),
        BAGS_OK);
    assert_int_equal(png ? bags_png_decode(file, NULL, pixels, sizeof pixels, 0, &err)
                         : bags_jpeg_decode(file, NULL, pixels, sizeof pixels, 0, &err),
        BAGS_OK);
    picture upright = turned(&stored, orientation);
    void *codec = opened(&bags_codec_png, "png");
    bags_value value = value_of(&upright.image, upright.samples, shape);
    assert_int_equal(
        bags_codec_png.encode(codec, &value, scratch, &blob, &err), BAGS_OK);
    bags_codec_png.close(codec);
    unload(upright.file);
    return blob;
}

/* A dataset of an image in all orientations: files that state them, or PNG files of the
 * upright images. */
static bags_reader *open_turned(const char *path, bool png, bool upright) {
    bags_field field = {"image", upright || png ? "png" : "jpeg"};
    bags_buffer scratch = {0};
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, &err);
    assert_non_null(writer);
    for (unsigned o = 1; o <= 8; o++) {
        unsigned char exif[EXIF_SIZE];
        exif_of(exif, o, o % 2);
        bags_view file =
            load_part(IMAGES, png ? "rgba-interlaced" : "422", png ? ".png" : ".jpg");
        file = png ? png_with_exif(file, 33, exif, sizeof exif)
                   : jpeg_with_exif(file, 2, exif, sizeof exif);
        bags_view blob = upright ? upright_png(file, png, o, &scratch) : file;
        bags_value value = bags_blob(blob.data, blob.size);
        bags_entry entry = {"image", &value, 1};
        assert_int_equal(bags_writer_append(writer, &entry, 1, &err), BAGS_OK);
        unload(file);
    }
    assert_int_equal(bags_writer_close(writer, &err), BAGS_OK);
    bags_buffer_free(&scratch);
    bags_reader *reader = bags_reader_open(path, NULL, &err);
    assert_non_null(reader);
    return reader;
}

static bags_loader *open_loader(const bags_reader *reader, unsigned i, bool orient) {
    static const bags_loader_images images = {bags_resample, bags_jpeg_probe,
        bags_jpeg_decode, bags_png_probe, bags_png_decode};
    bags_loader_options options = {0};
    bags_load_field field = {0};
    options.batch = 8;
    options.order.seed = i;
    options.images = &images;
    options.fields = &field;
    options.field_count = 1;
    field.name = "image";
    field.width = 16;
    field.height = 11;
    field.crop = (bags_crop)(i % 3);
    field.flip_x = 0.5;
    field.nchw = true;
    field.orient = orient;
    bags_loader *loader = bags_loader_open(&reader, 1, &options, &err);
    assert_non_null(loader);
    return loader;
}

static void the_loader_crops_and_resizes_upright_images(void **unused) {
    (void)unused;
    for (int png = 0; png < 2; png++) {
        char folder[64], path[80], command[80];
        const bags_reader *readers[2];
        const bags_view nothing = {NULL, 0};
        store(folder, nothing);
        unlink(folder);
        assert_int_equal(mkdir(folder, 0700), 0);
        for (int upright = 0; upright < 2; upright++) {
            snprintf(path, sizeof path, "%s/%d", folder, upright);
            readers[upright] = open_turned(path, png, upright);
        }
        for (unsigned i = 0; i < 24; i++) {
            bags_loader *loaders[2];
            const bags_batch *batches[2];
            for (int k = 0; k < 2; k++) {
                loaders[k] = open_loader(readers[k], i, k == 0);
                assert_int_equal(
                    bags_loader_next(loaders[k], &batches[k], &err), BAGS_OK);
            }
            const bags_tensor *got = batches[0]->tensors;
            assert_int_equal(got->size, 8 * 16 * 11 * 3);
            assert_memory_equal(got->data, batches[1]->tensors->data, got->size);
            bags_loader_close(loaders[0]);
            bags_loader_close(loaders[1]);
        }
        bags_reader_close((bags_reader *)(uintptr_t)readers[0]);
        bags_reader_close((bags_reader *)(uintptr_t)readers[1]);
        snprintf(command, sizeof command, "rm -rf %s", folder);
        assert_int_equal(system(command), 0);
    }
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_codec_opens_without_an_allocator),
        TEST(every_jpeg_decodes_as_djpeg_decodes_it),
        TEST(a_scaled_image_is_what_djpeg_scales_it_to),
        TEST(colour_can_come_out_as_gray),
        TEST(gray_can_come_out_as_colour),
        TEST(the_orientation_of_a_camera_is_left_alone),
        TEST(a_rectangle_equals_that_part_of_the_image),
        TEST(a_rectangle_of_a_photograph_is_exact_too),
        TEST(a_rectangle_without_sides_goes_to_the_edges),
        TEST(a_rectangle_outside_is_a_range_error),
        TEST(an_image_is_turned_upright_on_request),
        TEST(rows_go_where_the_stride_says_and_nowhere_else),
        TEST(too_little_memory_is_an_argument_error),
        TEST(invalid_options_are_argument_errors),
        TEST(memory_that_fails_is_an_error_and_no_leak),
        TEST(cmyk_is_rejected_by_name),
        TEST(damaged_data_are_an_error_not_a_warning),
        TEST(bytes_after_the_end_are_an_error_unless_allowed),
        TEST(a_bomb_is_rejected_before_memory_is_allocated),
        TEST(the_limit_of_pixels_is_an_option),
        TEST(the_limit_of_scans_is_an_option),
        TEST(a_file_truncated_anywhere_is_corrupt),
        TEST(what_is_not_a_jpeg_is_corrupt),
        TEST(arguments_are_a_quality_or_nothing),
        TEST(values_other_than_images_are_rejected),
        TEST(the_default_is_what_pillow_writes),
        TEST(the_quality_in_the_type_is_used),
        TEST(images_of_all_small_sizes_come_back),
        TEST(a_gray_image_may_have_a_third_dimension),
        TEST(djpeg_opens_what_is_written),
        TEST(threads_decode_with_one_state_at_once),
        TEST(the_golden_images_are_as_djpeg_shows_them),
#ifdef BAGS_WITH_PNG
        TEST(the_loader_crops_and_resizes_upright_images),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
