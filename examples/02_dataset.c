/*
 * A dataset: a directory with one Bag per field. Each datapoint is written completely
 * or not at all, and is read by its index. A reader selects the fields it needs.
 *
 *     cc 02_dataset.c -o 02_dataset && ./02_dataset digits
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <stdio.h>

static const char *const names[] = {"zero", "one", "two", "three"};

static bags_code write_digits(const char *path, bags_error *err) {
    const bags_field fields[] = {
        {"label", "int(1)"}, {"name", "utf8"}, {"image", "array(uint8,2,3)"}};
    const uint64_t shape[] = {2, 3};
    bags_writer *writer = bags_writer_open(path, fields, 3, NULL, err);
    if (!writer)
        return err->code;
    for (int i = 0; i < 4; i++) {
        unsigned char pixels[6] = {0};
        pixels[i] = 255;
        bags_value label = bags_int(i);
        bags_value name = bags_utf8(names[i]);
        bags_value image = bags_array(BAGS_DTYPE_UINT8, 2, shape, pixels);
        bags_entry datapoint[] = {
            {"label", &label, 1}, {"name", &name, 1}, {"image", &image, 1}};
        bags_writer_append(writer, datapoint, 3, NULL);
    }
    /* Returns the first failure of append, even if its last argument was NULL. */
    return bags_writer_close(writer, err);
}

/* Read a datapoint's image and label, but not its name. */
static bags_code print_digit(
    const bags_reader *reader, uint64_t index, bags_row *row, bags_error *err) {
    bags_select selects[2] = {bags_select_all(0), bags_select_all(0)};
    bags_value image, label;
    bags_code code = bags_reader_field(reader, "image", &selects[0].field, err);
    if (!code)
        code = bags_reader_field(reader, "label", &selects[1].field, err);
    if (!code)
        code = bags_reader_get(reader, index, selects, 2, row, err);
    if (!code)
        code = bags_row_value(row, 0, 0, NULL, &image, err);
    if (!code)
        code = bags_row_value(row, 1, 0, NULL, &label, err);
    if (code)
        return code;
    printf("label %d, image %d x %d of %s:", (int)label.uint, (int)image.shape[0],
        (int)image.shape[1], bags_dtype_name(image.dtype));
    for (size_t i = 0; i < image.size; i++)
        printf(" %d", ((const unsigned char *)image.data)[i]);
    printf("\n");
    return BAGS_OK;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "digits";
    bags_error err;
    bags_row row = {0}; /* every read reuses it, so the loop does not allocate */
    bags_reader *reader = NULL;
    bags_code code = write_digits(path, &err);
    if (!code && !(reader = bags_reader_open(path, NULL, &err)))
        code = err.code;
    for (uint64_t i = 0; reader && !code && i < bags_reader_length(reader); i++)
        code = print_digit(reader, i, &row, &err);
    if (code)
        fprintf(stderr, "%s\n", err.message);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code ? 1 : 0;
}

/* Output:
label 0, image 2 x 3 of uint8: 255 0 0 0 0 0
label 1, image 2 x 3 of uint8: 0 255 0 0 0 0
label 2, image 2 x 3 of uint8: 0 0 255 0 0 0
label 3, image 2 x 3 of uint8: 0 0 0 255 0 0
*/
