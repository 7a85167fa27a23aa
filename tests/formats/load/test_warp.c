/* formats/load/warp.c against what Pillow and torchvision made of the same images, which
 * pillow.py has written; and calls that must be rejected. pillow.py compares many more. */
// flavours: test: asan; check: release
#include "check.h"

#include <float.h>
#include <math.h>

#include "../../../formats/formats.h"

static const bags_image rgb = {5, 4, 3, 8, BAGS_DTYPE_UINT8};
static const double identity[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
static const bags_jitter no_jitter = {1, 1, 1, 0, {0, 1, 2, 3}};

/* An exact copy, so that the address sanitizer sees every access outside. */
static unsigned char *bytes_like(size_t size) {
    unsigned char *out = (unsigned char *)malloc(size);
    assert_non_null(out);
    return out;
}

static unsigned char *draw(const bags_image *image, uint64_t seed) {
    size_t size = (size_t)image->width * image->height * image->channels;
    unsigned char *out = bytes_like(size);
    uint64_t state = seed;
    for (size_t i = 0; i < size; i++) {
        unsigned byte = (unsigned)(next_random(&state) >> 56);
        out[i] = (unsigned char)(seed % 2 ? byte / 128 * 255 : byte);
    }
    return out;
}

/* ------------------------------------------------ what Pillow and torchvision made */

/* The next number of a line. */
static double number(char **at) {
    char *end;
    double out = strtod(*at, &end);
    assert_true(end > *at);
    *at = end;
    return out;
}

static void check_line(char *line) {
    static const unsigned char fill[3] = {200, 200, 200};
    char *at = line, digest[65];
    double matrix[9];
    sha256 hash;
    uint64_t seed = (uint64_t)number(&at);
    bags_image image = rgb, made;
    image.channels = (uint32_t)number(&at);
    image.width = (uint32_t)number(&at);
    image.height = (uint32_t)number(&at);
    bags_filter filter = (bags_filter)number(&at);
    made = image;
    made.width = (uint32_t)number(&at);
    made.height = (uint32_t)number(&at);
    for (int i = 0; i < 9; i++)
        matrix[i] = number(&at);
    bags_jitter jitter = no_jitter;
    jitter.brightness = number(&at);
    jitter.contrast = number(&at);
    jitter.saturation = number(&at);
    jitter.hue = number(&at);
    for (int i = 0; i < 4; i++)
        jitter.order[i] = (unsigned char)(at[1 + i] - '0');
    size_t size = (size_t)made.width * made.height * made.channels;
    unsigned char *from = draw(&image, seed), *to = bytes_like(size);
    assert_ok(bags_warp(&image, NULL, from, 0, matrix, filter, fill, made.width,
        made.height, to, 0, &said));
    assert_ok(bags_jitter_apply(&made, to, 0, &jitter, &said));
    sha256_start(&hash);
    sha256_add(&hash, to, size);
    sha256_hex(&hash, digest);
    if (strncmp(digest, at + 6, 64) != 0)
        fail_msg("image %d is not as Pillow makes it", (int)seed);
    free(from);
    free(to);
}

static void images_are_as_pillow_and_torchvision_make_them(void **state) {
    (void)state;
    int count = 0;
    char line[1024];
    if (FLT_EVAL_METHOD != 0) {
        print_message("skipped %s: numbers have more precision\n", __func__);
        skip();
    }
    FILE *file = fopen("tests/data/warp.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (line[0] != '#') {
            check_line(line);
            count++;
        }
    fclose(file);
    assert_int_equal(count, 300);
}

/* ------------------------------------------------ memory */

/* Every filter and number of channels, of parts that are all that is needed: memory has
 * exactly their size. */
static void a_part_is_enough_and_rows_go_where_the_strides_say(void **state) {
    (void)state;
    enum { GAP = 5, SIDE = 9 };
    uint64_t random = 3;
    for (uint32_t i = 0; i < 600; i++) {
        bags_image image = {1 + i % 29, 1 + i % 31, i % 4 + 1, 8, BAGS_DTYPE_UINT8};
        bags_filter filter = (bags_filter)(i / 4 % 3);
        double matrix[9];
        for (int k = 0; k < 9; k++)
            matrix[k] =
                (double)(int64_t)next_random(&random) / 9.3e18 * (k < 6 ? 3 : 0.1);
        matrix[8] = i % 5 ? 1 : matrix[8];
        if (i % 3)
            matrix[6] = matrix[7] = 0;
        size_t channels = image.channels, row = SIDE * channels;
        unsigned char *all = draw(&image, i), *plain = bytes_like(SIDE * row);
        unsigned char *apart = bytes_like(SIDE * (row + GAP));
        memset(apart, 0xaa, SIDE * (row + GAP));
        bags_part part = bags_warp_part(&image, matrix, SIDE, SIDE);
        size_t part_row = part.width * channels;
        unsigned char *some = bytes_like(part_row * part.height);
        for (uint32_t y = 0; y < part.height; y++)
            memcpy(some + y * part_row,
                all + ((part.top + y) * image.width + part.left) * channels, part_row);
        assert_ok(bags_warp(
            &image, NULL, all, 0, matrix, filter, NULL, SIDE, SIDE, plain, 0, &said));
        assert_ok(bags_warp(&image, &part, some, 0, matrix, filter, NULL, SIDE, SIDE,
            apart, row + GAP, &said));
        for (size_t y = 0; y < SIDE; y++) {
            assert_memory_equal(apart + y * (row + GAP), plain + y * row, row);
            for (size_t k = row; k < row + GAP; k++)
                assert_int_equal(apart[y * (row + GAP) + k], 0xaa);
        }
        free(all);
        free(plain);
        free(apart);
        free(some);
    }
}

/* Numbers of any bits, among them huge and tiny ones: points at infinity and beyond are
 * the fill colour. */
static void no_matrix_reads_outside(void **state) {
    (void)state;
    static const unsigned char fill[3] = {7, 8, 9};
    unsigned char out[8 * 8 * 3], *pixels = draw(&rgb, 2);
    uint64_t random = 11;
    size_t warped = 0;
    for (int i = 0; i < 20000; i++) {
        double matrix[9];
        for (int k = 0; k < 9; k++) {
            uint64_t bits = next_random(&random);
            matrix[k] = (double)(bits % 7) - 3;
            if (bits >> 62 == 0)
                memcpy(&matrix[k], &bits, sizeof bits);
            if (bits >> 61 == 7)
                matrix[k] *= 1e9;
        }
        (void)bags_warp_part(&rgb, matrix, 8, 8);
        bags_code code = bags_warp(&rgb, NULL, pixels, 0, matrix, (bags_filter)(i % 3),
            fill, 8, 8, out, 0, &said);
        assert_true(code == BAGS_OK || code == BAGS_ERROR_ARGUMENT);
        warped += code == BAGS_OK;
    }
    assert_true(warped > 1000);
    const double nowhere[9] = {0, 0, 0, 0, 0, 0, 1, 1, -1}; /* 0 / 0 in a corner */
    for (int filter = 0; filter < 3; filter++) {
        memset(out, 0, sizeof out);
        assert_ok(bags_warp(&rgb, NULL, pixels, 0, nowhere, (bags_filter)filter, fill,
            1, 1, out, 0, &said));
        assert_memory_equal(out, fill, 3);
    }
    free(pixels);
}

/* ------------------------------------------------ what is drawn */

static void draws_depend_on_the_random_number_alone(void **state) {
    (void)state;
    bags_warp_options options;
    bags_jitter_options colours;
    bags_jitter jitter, again;
    double matrix[9], other[9];
    size_t first[4] = {0, 0, 0, 0};
    memset(&options, 0, sizeof options);
    memset(&colours, 0, sizeof colours);
    bags_warp_draw(&options, 5, 40, 30, matrix);
    for (int i = 0; i < 9; i++)
        assert_true(matrix[i] >= identity[i] && matrix[i] <= identity[i]);
    options.translate_x.low = options.translate_x.high = 0.25;
    options.translate_y.low = options.translate_y.high = -0.5;
    bags_warp_draw(&options, 5, 40, 30, matrix);
    assert_true(
        matrix[2] >= -10 && matrix[2] <= -10 && matrix[5] >= 15 && matrix[5] <= 15);
    /* The middle of the image stays inside, and its corners are moved inwards. */
    memset(&options, 0, sizeof options);
    options.perspective = 0.65;
    for (uint64_t random = 0; random < 500; random++) {
        bags_warp_draw(&options, random, 40, 30, matrix);
        double w = matrix[6] * 20 + matrix[7] * 15 + matrix[8];
        double u = (matrix[0] * 20 + matrix[1] * 15 + matrix[2]) / w;
        double v = (matrix[3] * 20 + matrix[4] * 15 + matrix[5]) / w;
        assert_true(u > 0 && u < 40 && v > 0 && v < 30);
        for (int i = 0; i < 4; i++) {
            double x = i % 2 ? 40 : 0, y = i / 2 ? 30 : 0;
            w = matrix[6] * x + matrix[7] * y + matrix[8];
            u = (matrix[0] * x + matrix[1] * y + matrix[2]) / w;
            v = (matrix[3] * x + matrix[4] * y + matrix[5]) / w;
            assert_true(u < 1e-9 || u > 40 - 1e-9 || v < 1e-9 || v > 30 - 1e-9);
        }
    }
    options.degrees.high = 90;
    bags_warp_draw(&options, 5, 40, 30, matrix);
    bags_warp_draw(&options, 5, 40, 30, other);
    assert_memory_equal(matrix, other, sizeof matrix);
    bags_warp_draw(&options, 6, 40, 30, other);
    assert_true(memcmp(matrix, other, sizeof matrix) != 0);
    colours.hue.low = -0.25;
    for (uint64_t random = 0; random < 4000; random++) {
        bags_jitter_draw(&colours, random, &jitter);
        bags_jitter_draw(&colours, random, &again);
        assert_true(jitter.hue >= -0.25 && jitter.hue <= 0 && jitter.contrast >= 1 &&
                    jitter.contrast <= 1 && !memcmp(jitter.order, again.order, 4));
        first[jitter.order[0]]++;
    }
    for (int i = 0; i < 4; i++)
        assert_true(first[i] > 850 && first[i] < 1150);
}

/* ------------------------------------------------ what is rejected */

static void refuse(bags_code code, const bags_image *image, const bags_part *part,
    const double *matrix, int filter, uint32_t width, size_t out_stride,
    const char *why) {
    unsigned char out[3 * 3 * 4], pixels[5 * 4 * 3] = {0};
    memset(out, 0x55, sizeof out);
    assert_fails(code, bags_warp(image, part, pixels, 0, matrix, (bags_filter)filter,
                           NULL, width, 3, out, out_stride, &said));
    assert_says(why);
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], 0x55);
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    static const bags_part parts[] = {{1, 0, 5, 4}, {0, 1, 5, 4}, {UINT32_MAX, 0, 2, 2},
        {0, UINT32_MAX, 2, 2}, {0, 0, 6, 4}, {0, 0, 5, 5}};
    bags_image odd = rgb;
    double bad[9];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        refuse(BAGS_ERROR_RANGE, &rgb, &parts[i], identity, 0, 3, 0,
            "part out of range*image 5 x 4");
    odd.dtype = BAGS_DTYPE_UINT16;
    refuse(BAGS_ERROR_ARGUMENT, &odd, NULL, identity, 0, 3, 0, "uint16, 3 channels");
    odd = rgb;
    for (odd.channels = 0; odd.channels < 6; odd.channels += 5)
        refuse(BAGS_ERROR_ARGUMENT, &odd, NULL, identity, 0, 3, 0, "1 to 4");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, NULL, identity, 3, 3, 0, "filter (3)");
    refuse(
        BAGS_ERROR_ARGUMENT, &rgb, NULL, identity, 0, 0, 0, "without pixels (0 x 3)");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, NULL, identity, 0, 3, 8, "stride too small");
    refuse(
        BAGS_ERROR_LIMIT, &rgb, NULL, identity, 0, 1u << 31, 0, "maximum 1073741824");
    for (int i = 0; i < 9; i++) {
        memcpy(bad, identity, sizeof bad);
        bad[i] = i % 2 ? (double)NAN : (double)INFINITY;
        refuse(BAGS_ERROR_ARGUMENT, &rgb, NULL, bad, 0, 3, 0, "not finite");
    }
    memcpy(bad, identity, sizeof bad);
    bad[8] = 0;
    refuse(BAGS_ERROR_ARGUMENT, &rgb, NULL, bad, 0, 3, 0, "last row of 0");
    unsigned char pixels[5 * 4 * 3] = {0};
    for (int i = 0; i < 9; i++) {
        bags_jitter jitter = no_jitter;
        jitter.brightness = i == 0 ? -0.1 : i == 1 ? (double)NAN : 1;
        jitter.contrast = i == 2 ? 1001 : 1;
        jitter.saturation = i == 3 ? (double)INFINITY : 1;
        jitter.hue = i == 4 ? 0.51 : i == 5 ? (double)NAN : 0;
        jitter.order[2] = i == 6 ? 1 : i == 7 ? 4 : 2;
        odd.channels = i == 8 ? 4 : 3;
        assert_fails(
            BAGS_ERROR_ARGUMENT, bags_jitter_apply(&odd, pixels, 0, &jitter, &said));
        assert_says(i < 6 ? "jitter out of range" : i < 8 ? "order" : "4 channels");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(images_are_as_pillow_and_torchvision_make_them),
        TEST(a_part_is_enough_and_rows_go_where_the_strides_say),
        TEST(no_matrix_reads_outside),
        TEST(draws_depend_on_the_random_number_alone),
        TEST(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("warp", tests, NULL, NULL);
}
