/*
 * detect.h - detect files and directories whose format needs a library. Used by the
 * importers, and by the command so that it opens only one importer. Private.
 */
#ifndef BAGS_IMPORT_DETECT_H
#define BAGS_IMPORT_DETECT_H

#include "import.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

#define BAGS_IMPORT_MCAP "\x89MCAP0\r\n"

/* ---- files of a set, by name ---- */

static inline bool bags_import_is_arrow_name(const char *name) {
    return bags_import_ends(name, ".arrow .arrows .feather .ipc");
}

static inline bool bags_import_is_csv_name(const char *name) {
    return bags_import_ends(name, ".csv .tsv .csv.gz .tsv.gz");
}

static inline bool bags_import_is_gulp_name(const char *name) {
    return bags_import_ends(name, ".gmeta .gulp");
}

static inline bool bags_import_is_webdataset_name(const char *name) {
    return bags_import_ends(name, ".tar .tar.gz .tgz .tar.zst .tzst .tar.xz .txz "
                                  ".tar.bz2 .tbz2 .tbz .tar.lz4");
}

/* ---- sources: see bags_importer.detect ---- */

static inline bool bags_import_is_arrow(const char *path) {
    return bags_import_starts(path, "ARROW1", 6) ||
           bags_import_has_files(path, bags_import_is_arrow_name);
}

static inline bool bags_import_is_csv(const char *path) {
    return bags_import_has_files(path, bags_import_is_csv_name);
}

static inline bool bags_import_is_gulp(const char *path) {
    return bags_import_has_files(path, bags_import_is_gulp_name);
}

/* Truncate FILE/GROUP to FILE. False if there is no such file. */
static inline bool bags_import_hdf5_file(char *path) {
    while (bags_import_kind(path, NULL) != BAGS_PATH_FILE) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    return true;
}

static inline bool bags_import_is_hdf5(const char *path) {
    char *file = (char *)malloc(strlen(path) + 1);
    if (!file)
        return false;
    memcpy(file, path, strlen(path) + 1);
    bool found =
        bags_import_hdf5_file(file) && bags_import_starts(file, "\x89HDF\r\n\x1A\n", 8);
    free(file);
    return found;
}

static inline bool bags_import_is_lerobot(const char *path) {
    return bags_import_kind(path, "meta/info.json") == BAGS_PATH_FILE;
}

static inline bool bags_import_is_mcap(const char *path) {
    return bags_import_starts(path, BAGS_IMPORT_MCAP, sizeof BAGS_IMPORT_MCAP - 1);
}

static inline bool bags_import_is_mds(const char *path) {
    return bags_import_kind(path, "index.json") == BAGS_PATH_FILE ||
           (!strcmp(bags_import_base(path), "index.json") &&
               bags_import_kind(path, NULL) == BAGS_PATH_FILE);
}

/* A directory that TensorFlow Datasets wrote, or a split of it: DIR/SPLIT. */
static inline bool bags_import_is_rlds(const char *path) {
    bool found = bags_import_kind(path, "features.json") == BAGS_PATH_FILE &&
                 bags_import_kind(path, "dataset_info.json") == BAGS_PATH_FILE;
    const char *base = bags_import_base(path);
    char *parent = NULL;
    if (found || base == path || bags_import_kind(path, NULL) != BAGS_PATH_NONE)
        return found;
    parent = (char *)malloc((size_t)(base - path) + 1);
    if (!parent)
        return false;
    memcpy(parent, path, (size_t)(base - path));
    parent[base - path] = 0;
    found = !strchr(base, '*') && *base && bags_import_is_rlds(parent);
    free(parent);
    return found;
}

static inline bool bags_import_is_tfrecord_name(const char *name) {
    return strstr(name, "tfrecord") != NULL;
}

/* The first 8 bytes of a record have a checksum of their own. */
static inline bool bags_import_is_tfrecord(const char *path) {
    unsigned char head[12];
    if (bags_import_has_files(path, bags_import_is_tfrecord_name))
        return !bags_import_is_rlds(path);
    return bags_import_peek(path, head, sizeof head) == sizeof head &&
           format_masked_crc(head, 8) == bags_load_bytes(head + 8, 4, false);
}

static inline bool bags_import_is_webdataset(const char *path) {
    char head[262];
    return bags_import_has_files(path, bags_import_is_webdataset_name) ||
           (bags_import_peek(path, head, sizeof head) == sizeof head &&
               memcmp(head + 257, "ustar", 5) == 0);
}

static inline bool bags_import_is_zarr(const char *path) {
    return (bags_import_ends(path, ".zip") && bags_import_starts(path, "PK", 2)) ||
           bags_import_kind(path, ".zgroup") == BAGS_PATH_FILE ||
           bags_import_kind(path, ".zarray") == BAGS_PATH_FILE ||
           bags_import_kind(path, "zarr.json") == BAGS_PATH_FILE;
}

#endif /* BAGS_IMPORT_DETECT_H */
