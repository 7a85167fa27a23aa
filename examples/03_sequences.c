/*
 * Sequences: a field whose type ends in [] has any number of items in each datapoint.
 * Items are pushed one at a time, so even a long recording needs little memory. Any
 * range of items takes a single contiguous read.
 *
 *     cc 03_sequences.c -o 03_sequences && ./03_sequences throws
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <stdio.h>

/* Write the states of a ball thrown upwards, until it reaches the ground. */
static void write_throw(bags_writer *writer, float speed) {
    const uint64_t shape[] = {2};
    float state[2] = {0, speed}; /* height, speed */
    bags_value caption = bags_utf8(speed > 3 ? "thrown high" : "thrown low");
    bags_value item = bags_array(BAGS_DTYPE_FLOAT32, 1, shape, state);

    bags_writer_begin(writer, NULL);
    bags_writer_set(writer, "caption", &caption, NULL);
    do {
        bags_writer_push(writer, "states", &item, NULL);
        state[0] += state[1] / 8;
        state[1] -= 1;
    } while (state[0] >= 0);
    bags_writer_end(writer, NULL); /* a datapoint is stored entirely, or not at all */
}

static bags_code write_throws(const char *path, bags_error *err) {
    const bags_field fields[] = {{"caption", "utf8"}, {"states", "array(float32,2)[]"}};
    bags_writer *writer = bags_writer_open(path, fields, 2, NULL, err);
    if (!writer)
        return err->code;
    write_throw(writer, 2);
    write_throw(writer, 8);
    return bags_writer_close(writer, err);
}

static bags_code print_throw(
    const bags_reader *reader, uint64_t index, bags_row *row, bags_error *err) {
    bags_select select = bags_select_slice(0, 3, 6, 1); /* items 3, 4 and 5 */
    bags_value item;
    uint64_t count;
    bags_code code = bags_reader_field(reader, "states", &select.field, err);
    if (!code)
        code = bags_reader_items(reader, index, select.field, row, &count, err);
    if (!code)
        code = bags_reader_get(reader, index, &select, 1, row, err);
    if (code)
        return code;
    printf("throw %d: %d states; from index 3:", (int)index, (int)count);
    for (size_t i = 0; i < bags_row_length(row, 0); i++) {
        code = bags_row_value(row, 0, i, NULL, &item, err);
        if (code)
            return code;
        printf(" %.3f", (double)((const float *)item.data)[0]);
    }
    printf("\n");
    return BAGS_OK;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "throws";
    bags_error err;
    bags_row row = {0};
    bags_reader *reader = NULL;
    bags_code code = write_throws(path, &err);
    if (!code && !(reader = bags_reader_open(path, NULL, &err)))
        code = err.code;
    for (uint64_t i = 0; reader && !code && i < bags_reader_length(reader); i++)
        code = print_throw(reader, i, &row, &err);
    if (code)
        fprintf(stderr, "%s\n", err.message);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code ? 1 : 0;
}

/* Output:
throw 0: 6 states; from index 3: 0.375 0.250 0.000
throw 1: 18 states; from index 3: 2.625 3.250 3.750
*/
