/*
 * instructions - the paths that must be short, each many times, for callgrind
 * to count the instructions: see instructions.sh.
 *
 *     instructions                     list the operations
 *     instructions compiler            what this was compiled with
 *     instructions prepare FOLDER      write what is read
 *     instructions OPERATION FOLDER
 *
 * Each operation is a function of its own whose name begins with count_, so
 * that callgrind can be told to count in it alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bags.h"

#define TIMES 1000
#define NOINLINE __attribute__((noinline))

static bags_error err;
static bag_reader *bag;
static bag_writer *adding;
static bags_reader *dataset;
static bags_row row;

/* What the loops need is used, so that they stay. */
static volatile uint64_t sink;

static void must(int code) {
    if (code) {
        fprintf(stderr, "instructions: %s\n", err.message);
        exit(1);
    }
}

static uint64_t jump(uint64_t i) { return i * 7 % TIMES; }

NOINLINE static void count_bag_get(void) {
    bags_buffer scratch = {0};
    bags_view blob;
    for (uint64_t i = 0; i < TIMES; i++) {
        must(bag_reader_get(bag, jump(i), &scratch, &blob, &err));
        sink += blob.size;
    }
}

NOINLINE static void count_bag_append(void) {
    static const char blob[100] = {0};
    for (uint64_t i = 0; i < TIMES; i++)
        must(bag_writer_append(adding, blob, sizeof blob, NULL, &err));
}

static void get_each(const bags_select *selects, size_t count) {
    for (uint64_t i = 0; i < TIMES; i++)
        must(bags_reader_get(dataset, jump(i), selects, count, &row, &err));
}

/* caption, image, label: fields are sorted by name. */
NOINLINE static void count_get_plain(void) {
    bags_select label = bags_select_all(2);
    get_each(&label, 1);
}

NOINLINE static void count_get_sequence(void) {
    bags_select captions = bags_select_all(0);
    get_each(&captions, 1);
}

NOINLINE static void count_get_item(void) {
    bags_select caption = bags_select_slice(0, 2, 3, 1);
    get_each(&caption, 1);
}

NOINLINE static void count_get_all(void) { get_each(NULL, 0); }

static void get_blobs(size_t field, uint64_t item) {
    bags_view blob;
    for (uint64_t i = 0; i < TIMES; i++)
        must(bags_reader_get_blob(dataset, jump(i), field, item, &row, &blob, &err));
}

NOINLINE static void count_get_blob(void) { get_blobs(2, 0); }

NOINLINE static void count_get_blob_item(void) { get_blobs(0, 2); }

NOINLINE static void count_row_bytes(void) {
    for (uint64_t i = 0; i < TIMES; i++)
        sink += bags_row_bytes(&row, 2, 0).size;
}

/* 100 bytes each; and datapoints {caption utf8[] of 5, image, label}. */
static void write_bag(const char *path) {
    bag_writer *writer = bag_writer_open(path, NULL, &err);
    must(!writer);
    for (int i = 0; i < TIMES; i++) {
        char blob[100];
        memset(blob, i, sizeof blob);
        must(bag_writer_append(writer, blob, sizeof blob, NULL, &err));
    }
    must(bag_writer_close(writer, &err));
}

static void write_dataset(const char *path) {
    bags_field fields[] = {
        {"caption", "utf8[]"}, {"image", "bytes"}, {"label", "int(8)"}};
    bags_writer *writer = bags_writer_open(path, fields, 3, NULL, &err);
    must(!writer);
    for (uint64_t i = 0; i < TIMES; i++) {
        char pixels[2000] = {0};
        bags_value captions[5], label = bags_uint(i);
        bags_value image = bags_bytes(pixels, sizeof pixels);
        for (size_t k = 0; k < 5; k++)
            captions[k] = bags_utf8("a text");
        bags_entry entries[] = {
            {"caption", captions, 5}, {"image", &image, 1}, {"label", &label, 1}};
        must(bags_writer_append(writer, entries, 3, &err));
    }
    must(bags_writer_close(writer, &err));
}

static const struct {
    const char *name;
    void (*run)(void);
} operations[] = {
    {"bag_get", count_bag_get},
    {"bag_append", count_bag_append},
    {"get_plain", count_get_plain},
    {"get_sequence", count_get_sequence},
    {"get_item", count_get_item},
    {"get_all", count_get_all},
    {"get_blob", count_get_blob},
    {"get_blob_item", count_get_blob_item},
    {"row_bytes", count_row_bytes},
};

#define OPERATIONS (sizeof operations / sizeof *operations)

static const char *in(const char *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* With everything open and read once, which is not counted. */
static void run(size_t operation, const char *folder) {
    bag = bag_reader_open(in(folder, "read.bag"), NULL, &err);
    must(!bag);
    dataset = bags_reader_open(in(folder, "set"), NULL, &err);
    must(!dataset);
    adding = bag_writer_open(in(folder, "written.bag"), NULL, &err);
    must(!adding);
    must(bags_reader_get(dataset, 0, NULL, 0, &row, &err));
    operations[operation].run();
    bag_writer_abort(adding);
    bags_row_free(&row);
    bags_reader_close(dataset);
    bag_reader_close(bag);
}

static void say_compiler(void) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                 \
    defined(__OPTIMIZE__)
    printf("gcc %d, optimized, x86-64\n", __GNUC__);
#else
    printf("another compiler, machine or level\n");
#endif
}

static int list(void) {
    for (size_t i = 0; i < OPERATIONS; i++)
        printf("%s\n", operations[i].name);
    return 0;
}

int main(int count, char **words) {
    if (count == 1)
        return list();
    if (count == 2 && strcmp(words[1], "compiler") == 0) {
        say_compiler();
        return 0;
    }
    if (count == 3 && strcmp(words[1], "prepare") == 0) {
        write_bag(in(words[2], "read.bag"));
        write_dataset(in(words[2], "set"));
        return 0;
    }
    for (size_t i = 0; i < OPERATIONS && count == 3; i++)
        if (strcmp(words[1], operations[i].name) == 0) {
            run(i, words[2]);
            return 0;
        }
    fprintf(stderr, "usage: see the top of instructions.c\n");
    return 2;
}
