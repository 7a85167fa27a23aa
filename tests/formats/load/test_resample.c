/* formats/load/resample.c against what Pillow made of the same images, which pillow.py has
 * written; and calls that must be rejected. pillow.py compares many more. */
// flavours: test: asan; check: release
#include "../../../formats/formats.h"

/* The code for processors without AVX2, under another name. */
#define RESAMPLE_NARROW
#define bags_resample narrow_resample
#include "../../../formats/load/resample.c"
#undef bags_resample

#include "check.h"

#include <float.h>
#include <math.h>

#include "random.h"

static const bags_image rgb = {5, 4, 3, 8, BAGS_DTYPE_UINT8};
static unsigned char pixels[5 * 4 * 3];

static bags_buffer new_scratch(void) {
    bags_buffer out = {NULL, 0, memory.allocator.resize, memory.allocator.user};
    return out;
}

/* An exact copy, so that the address sanitizer sees every access outside. */
static unsigned char *bytes_like(size_t size) {
    unsigned char *out = (unsigned char *)malloc(size);
    assert_non_null(out);
    return out;
}

/* ------------------------------------------------ what Pillow made */

typedef struct resizing {
    unsigned long long seed;
    bags_image image;
    unsigned filter;
    bags_box box;
    unsigned width, height;
    char digest[65];
} resizing;

static bool parse(const char *line, resizing *out) {
    unsigned channels, width, height;
    bool complete = sscanf(line, "%llu %u %u %u %u %lf %lf %lf %lf %u %u %64[0-9a-f]",
                        &out->seed, &channels, &width, &height, &out->filter,
                        &out->box.left, &out->box.top, &out->box.right,
                        &out->box.bottom, &out->width, &out->height, out->digest) == 12;
    out->image = rgb;
    out->image.channels = channels;
    out->image.width = width;
    out->image.height = height;
    return complete;
}

/* The image of a line, as pillow.py makes it. */
static unsigned char *draw(const resizing *r) {
    size_t size = (size_t)r->image.width * r->image.height * r->image.channels;
    unsigned char *out = bytes_like(size);
    uint64_t state = r->seed;
    for (size_t i = 0; i < size; i++) {
        unsigned byte = (unsigned)(next_random(&state) >> 56);
        out[i] = (unsigned char)(r->seed % 2 ? byte / 128 * 255 : byte);
    }
    return out;
}

static void check_line(const resizing *r) {
    char digest[65];
    sha256 hash;
    bags_buffer scratch = new_scratch();
    size_t size = (size_t)r->width * r->height * r->image.channels;
    unsigned char *from = draw(r), *to = bytes_like(size);
    assert_ok(bags_resample(&r->image, from, 0, &r->box, (bags_filter)r->filter,
        r->width, r->height, &scratch, to, 0, &said));
    sha256_start(&hash);
    sha256_add(&hash, to, size);
    sha256_hex(&hash, digest);
    if (strcmp(digest, r->digest) != 0)
        fail_msg("image %llu is not as Pillow resizes it", r->seed);
    bags_buffer_free(&scratch);
    free(from);
    free(to);
}

static void images_are_resized_as_pillow_resizes_them(void **state) {
    (void)state;
    int count = 0;
    char line[512];
    if (FLT_EVAL_METHOD == 2) {
        print_message("skipped %s: doubles have more precision\n", __func__);
        skip();
    }
    FILE *file = fopen("tests/data/resample.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        resizing r;
        if (line[0] == '#')
            continue;
        if (!parse(line, &r))
            fail_msg("invalid line: %s", line);
        check_line(&r);
        count++;
    }
    fclose(file);
    assert_int_equal(count, 300);
}

static void check_widths(uint64_t *random) {
    bags_image image = {1 + (uint32_t)format_below(random, 90),
        1 + (uint32_t)format_below(random, 60), 1 + (uint32_t)format_below(random, 3),
        8, BAGS_DTYPE_UINT8};
    uint32_t width = 1 + (uint32_t)format_below(random, 120);
    uint32_t height = 1 + (uint32_t)format_below(random, 60);
    bags_filter filter =
        format_below(random, 1) ? BAGS_FILTER_BICUBIC : BAGS_FILTER_BILINEAR;
    size_t row = (size_t)image.width * image.channels;
    size_t stride = row + (size_t)format_below(random, 3);
    size_t from_size = stride * (image.height - 1) + row;
    size_t size = (size_t)width * height * image.channels;
    bags_buffer scratch = new_scratch();
    unsigned char *from = bytes_like(from_size), *to = bytes_like(size);
    unsigned char *narrow = bytes_like(size);
    fill(from, from_size, *random);
    assert_ok(bags_resample(
        &image, from, stride, NULL, filter, width, height, &scratch, to, 0, &said));
    assert_ok(narrow_resample(
        &image, from, stride, NULL, filter, width, height, &scratch, narrow, 0, &said));
    if (memcmp(to, narrow, size) != 0)
        fail_msg("%u x %u x %u to %u x %u: not the same bytes", image.height,
            image.width, image.channels, height, width);
    bags_buffer_free(&scratch);
    free(from);
    free(to);
    free(narrow);
}

static void every_processor_makes_the_same_bytes(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 400; i++)
        check_widths(&random);
}

/* ------------------------------------------------ memory */

static void rows_go_where_the_strides_say_and_nowhere_else(void **state) {
    (void)state;
    enum { WIDE = 40, ROW = 7 * 3, GAP = 11 };
    unsigned char wide[4 * WIDE], plain[6 * ROW], apart[6 * (ROW + GAP)];
    bags_buffer scratch = new_scratch();
    fill(wide, sizeof wide, 1);
    memset(apart, 0xaa, sizeof apart);
    for (size_t y = 0; y < 4; y++)
        memcpy(pixels + y * 15, wide + y * WIDE, 15);
    assert_ok(bags_resample(
        &rgb, pixels, 0, NULL, BAGS_FILTER_BICUBIC, 7, 6, &scratch, plain, 0, &said));
    assert_ok(bags_resample(&rgb, wide, WIDE, NULL, BAGS_FILTER_BICUBIC, 7, 6, &scratch,
        apart, ROW + GAP, &said));
    for (size_t y = 0; y < 6; y++) {
        assert_memory_equal(apart + y * (ROW + GAP), plain + y * ROW, ROW);
        for (size_t i = ROW; i < ROW + GAP; i++)
            assert_int_equal(apart[y * (ROW + GAP) + i], 0xaa);
    }
    bags_buffer_free(&scratch);
}

static void the_same_scratch_serves_every_call(void **state) {
    (void)state;
    unsigned char out[30 * 30 * 3];
    bags_buffer scratch = new_scratch();
    assert_ok(bags_resample(
        &rgb, pixels, 0, NULL, BAGS_FILTER_BICUBIC, 30, 30, &scratch, out, 0, &said));
    uint64_t calls = memory.calls;
    for (uint32_t side = 1; side <= 30; side++)
        assert_ok(bags_resample(&rgb, pixels, 0, NULL, BAGS_FILTER_BILINEAR, side,
            31 - side, &scratch, out, 0, &said));
    assert_int_equal(memory.calls, calls);
    bags_buffer_free(&scratch);
}

static void memory_that_fails_is_an_error(void **state) {
    (void)state;
    unsigned char out[2 * 2 * 3];
    bags_buffer scratch = new_scratch();
    memory.fail_at = memory.calls + 1;
    assert_fails(
        BAGS_ERROR_MEMORY, bags_resample(&rgb, pixels, 0, NULL, BAGS_FILTER_BILINEAR, 2,
                               2, &scratch, out, 0, &said));
    bags_buffer_free(&scratch);
}

/* Thousands of pixels become one, and one becomes thousands. */
static void long_images_keep_their_colour(void **state) {
    (void)state;
    enum { LENGTH = 5000 };
    static unsigned char from[LENGTH], to[LENGTH];
    bags_image tall = {1, LENGTH, 1, 8, BAGS_DTYPE_UINT8};
    bags_image wide = {LENGTH, 1, 1, 8, BAGS_DTYPE_UINT8};
    bags_image dot = {1, 1, 1, 8, BAGS_DTYPE_UINT8};
    bags_buffer scratch = new_scratch();
    memset(from, 77, sizeof from);
    for (int filter = 0; filter < 2; filter++) {
        bags_filter with = (bags_filter)filter;
        memset(to, 0, sizeof to);
        assert_ok(
            bags_resample(&tall, from, 0, NULL, with, 1, 1, &scratch, to, 0, &said));
        assert_ok(bags_resample(
            &wide, from, 0, NULL, with, 1, 1, &scratch, to + 1, 0, &said));
        assert_memory_equal(to, from, 2);
        assert_ok(bags_resample(
            &dot, from, 0, NULL, with, 1, LENGTH, &scratch, to, 0, &said));
        assert_memory_equal(to, from, LENGTH);
        memset(to, 0, sizeof to);
        assert_ok(bags_resample(
            &dot, from, 0, NULL, with, LENGTH, 1, &scratch, to, 0, &said));
        assert_memory_equal(to, from, LENGTH);
    }
    bags_buffer_free(&scratch);
}

/* ------------------------------------------------ what is rejected */

static void refuse(bags_code code, const bags_image *image, size_t stride,
    const bags_box *box, int filter, uint32_t width, uint32_t height, size_t out_stride,
    const char *why) {
    unsigned char out[3 * 3 * 4];
    bags_buffer scratch = new_scratch();
    memset(out, 0x55, sizeof out);
    assert_fails(code, bags_resample(image, pixels, stride, box, (bags_filter)filter,
                           width, height, &scratch, out, out_stride, &said));
    assert_says(why);
    assert_int_equal(scratch.capacity, 0);
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], 0x55);
}

static void boxes_that_are_empty_or_outside_are_range_errors(void **state) {
    (void)state;
    const double nan_ = (double)NAN, far = (double)INFINITY;
    const bags_box boxes[] = {{0, 0, 6, 4}, {0, 0, 5, 4.001}, {-1, 0, 5, 4},
        {0, -0.1, 5, 4}, {2, 1, 2, 3}, {2, 3, 4, 3}, {3, 0, 2, 4}, {nan_, 0, 5, 4},
        {0, nan_, 5, 4}, {0, 0, nan_, 4}, {0, 0, 5, nan_}, {0, 0, far, 4},
        {-far, 0, 5, 4}, {1e300, 0, 2e300, 4}, {1, 1, 1 + 1e-12, 2}};
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++)
        refuse(BAGS_ERROR_RANGE, &rgb, 0, &boxes[i], 0, 3, 3, 0,
            "box empty or out of range*image 4 x 5");
}

static void other_images_and_options_are_argument_errors(void **state) {
    (void)state;
    bags_image odd = rgb;
    odd.dtype = BAGS_DTYPE_UINT16;
    refuse(BAGS_ERROR_ARGUMENT, &odd, 0, NULL, 0, 3, 3, 0,
        "not an image of uint8 with 1 to 4 channels (uint16, 3 channels");
    odd = rgb;
    for (odd.channels = 0; odd.channels < 6; odd.channels += 5)
        refuse(BAGS_ERROR_ARGUMENT, &odd, 0, NULL, 0, 3, 3, 0,
            "not an image of uint8 with 1 to 4 channels (uint8, ");
    odd = rgb;
    odd.height = 0;
    refuse(BAGS_ERROR_ARGUMENT, &odd, 0, NULL, 0, 3, 3, 0, "image without pixels (");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, 0, NULL, 0, 0, 3, 0, "image without pixels (");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, 0, NULL, 0, 3, 0, 0, "image without pixels (");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, 0, NULL, 2, 3, 3, 0, "filter (2)");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, 14, NULL, 0, 3, 3, 0,
        "stride too small (14 bytes, row 15)");
    refuse(BAGS_ERROR_ARGUMENT, &rgb, 0, NULL, 0, 3, 3, 8,
        "stride too small (8 bytes, row 9)");
}

static void sizes_above_the_limits_are_rejected(void **state) {
    (void)state;
    const uint32_t sides[] = {(1u << 23) + 1, UINT32_MAX};
    for (size_t i = 0; i < 2; i++) {
        bags_image odd = rgb;
        odd.width = sides[i];
        refuse(BAGS_ERROR_LIMIT, &odd, 0, NULL, 0, 3, 3, 0, "maximum*8388608");
        odd = rgb;
        odd.height = sides[i];
        refuse(BAGS_ERROR_LIMIT, &odd, 0, NULL, 0, 3, 3, 0, "maximum*8388608");
        refuse(BAGS_ERROR_LIMIT, &rgb, 0, NULL, 0, sides[i], 3, 0, "8388608");
        refuse(BAGS_ERROR_LIMIT, &rgb, 0, NULL, 0, 3, sides[i], 0, "8388608");
    }
    refuse(BAGS_ERROR_LIMIT, &rgb, SIZE_MAX / 2, NULL, 0, 3, 3, 0, "address space");
    refuse(BAGS_ERROR_LIMIT, &rgb, 0, NULL, 0, 3, 3, SIZE_MAX / 2, "address space");
}

/* The memory for the weights of the largest image is refused here, not the size. */
static void the_largest_image_needs_only_memory(void **state) {
    (void)state;
    unsigned char out[3 * 3 * 3];
    bags_image tall = {1, 1u << 23, 3, 8, BAGS_DTYPE_UINT8};
    bags_buffer scratch = new_scratch();
    memory.limit = 1 << 20;
    assert_fails(
        BAGS_ERROR_MEMORY, bags_resample(&tall, pixels, 0, NULL, BAGS_FILTER_BICUBIC, 3,
                               3, &scratch, out, 0, &said));
    bags_buffer_free(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(images_are_resized_as_pillow_resizes_them),
        TEST(every_processor_makes_the_same_bytes),
        TEST(rows_go_where_the_strides_say_and_nowhere_else),
        TEST(the_same_scratch_serves_every_call),
        TEST(memory_that_fails_is_an_error),
        TEST(long_images_keep_their_colour),
        TEST(boxes_that_are_empty_or_outside_are_range_errors),
        TEST(other_images_and_options_are_argument_errors),
        TEST(sizes_above_the_limits_are_rejected),
        TEST(the_largest_image_needs_only_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
