/*
 * A Bag: a single file of blobs, each found by its index.
 *
 *     cc 01_bag.c -o 01_bag && ./01_bag words.bag
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <stdio.h>
#include <string.h>

static bags_code write_words(const char *path, bags_error *err) {
    const char *words[] = {"one", "file", "of", "", "blobs"};
    bag_writer *writer = bag_writer_open(path, NULL, err);
    if (!writer)
        return err->code;
    for (size_t i = 0; i < 5; i++)
        bag_writer_append(writer, words[i], strlen(words[i]), NULL, NULL);
    /* A writer remembers its first failure, and close reports it: one check is
     * enough. */
    return bag_writer_close(writer, err);
}

static bags_code read_words(const char *path, bags_error *err) {
    bags_buffer scratch = {0}; /* not used if the file is mapped */
    bags_view word;
    bag_blobs range;
    bag_reader *reader = bag_reader_open(path, NULL, err);
    if (!reader)
        return err->code;
    printf("%d blobs in %d bytes\n", (int)bag_reader_length(reader),
        (int)bag_reader_size(reader));

    bags_code code = bag_reader_get(reader, 4, &scratch, &word, err);
    if (!code)
        printf("blob 4: %.*s\n", (int)word.size, (const char *)word.data);

    /* Consecutive blobs are contiguous, so one read fetches all of them. */
    if (!code)
        code = bag_reader_get_range(reader, 0, 3, &scratch, &range, err);
    for (size_t i = 0; !code && i < range.length; i++) {
        word = bag_blobs_get(&range, i);
        printf("blob %d: %.*s\n", (int)i, (int)word.size, (const char *)word.data);
    }
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
    return code;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "words.bag";
    bags_error err;
    if (write_words(path, &err) || read_words(path, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    return 0;
}

/* Output:
5 blobs in 62 bytes
blob 4: blobs
blob 0: one
blob 1: file
blob 2: of
*/
