/*
 * Runs a fuzzer without libFuzzer: over every file in the directories, or over
 * the files, that the command line names.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int passed, failed;

/* The file's bytes in a block of just their size, so that ASan sees a read past
 * the end. NULL if it cannot be read. */
static uint8_t *read_file(const char *path, size_t *size) {
    uint8_t *data = NULL;
    FILE *file = fopen(path, "rb");
    long end;
    if (!file)
        return NULL;
    if (!fseek(file, 0, SEEK_END) && (end = ftell(file)) >= 0 &&
        !fseek(file, 0, SEEK_SET)) {
        *size = (size_t)end;
        data = (uint8_t *)malloc(*size ? *size : 1);
        if (data && fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

static void run_file(const char *path) {
    size_t size;
    uint8_t *data = read_file(path, &size);
    if (!data) {
        fprintf(stderr, "%s cannot be read\n", path);
        failed++;
        return;
    }
    printf("%s\n", path);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    passed++;
}

static void run_directory(const char *path, DIR *directory) {
    struct dirent *entry;
    char name[4096];
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        run_file(name);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (!directory) {
            run_file(argv[i]);
            continue;
        }
        run_directory(argv[i], directory);
        closedir(directory);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
