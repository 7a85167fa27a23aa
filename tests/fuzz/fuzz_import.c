/*
 * Any bytes as the files of a source: open it, and read all datapoints. The first
 * byte chooses the importer; the rest, up to its first zero byte, is the file that
 * describes the source, what follows is its data.
 *
 *     t  a TFRecord file, as it is
 *     e  a TFRecord file of one record, with valid checksums
 *     w  a tar file, compressed or not
 *     g  a .gmeta and its .gulp
 *     m  index.json and the shard 0.mds
 *     z  a .zarray and its chunks
 *     Z  a Zarr group in a .zip
 *     b  a .bzna
 *     c  an MCAP file
 *     h  an HDF5 file
 *     a  an Arrow file or stream
 *     v  a CSV file
 */
#include "../../bags.h"
#include "../../formats/import/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[64];
static volatile unsigned sink; /* every byte was read */

static void remove_directory(void) {
    static const char *const names[] = {"x.tfrecord", "x.tar", "meta_0.gmeta",
        "data_0.gulp", "index.json", "0.mds", "0", "1", ".zarray", "x.zip", "x.bzna",
        "x.mcap", "x.h5", "x.arrow", "x.csv"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
}

static const char *save(const char *name, const void *data, size_t size) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file))
        abort();
    return path;
}

static void read_all(const bags_importer *importer, const char *path) {
    const bags_entry *entries;
    bags_error err;
    importer->detect(path);
    bags_source *source = bags_source_open(importer, path, NULL, &err);
    if (!source)
        return;
    for (uint64_t i = 0; i < 1000; i++) {
        if (bags_source_read(source, i, &entries, &err) || !entries)
            break;
        for (size_t f = 0; f < source->count; f++)
            for (size_t j = 0; j < entries[f].count; j++) {
                const bags_value *value = &entries[f].values[j];
                for (size_t k = 0; k < value->size; k++)
                    sink += ((const unsigned char *)value->data)[k];
            }
    }
    bags_source_close(source);
}

#ifdef BAGS_WITH_IMPORT_TFRECORD
static uint32_t masked(const void *data, size_t size) {
    uint32_t crc = bags_crc32c(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

static void read_record(const uint8_t *data, size_t size) {
    unsigned char *file = (unsigned char *)calloc(1, size + 16);
    uint32_t crc;
    if (!file || size >= 1 << 24)
        abort();
    for (unsigned i = 0; i < 3; i++)
        file[i] = (unsigned char)(size >> (8 * i));
    crc = masked(file, 8);
    memcpy(file + 8, &crc, 4);
    memcpy(file + 12, data, size);
    crc = masked(data, size);
    memcpy(file + 12 + size, &crc, 4);
    read_all(&bags_import_tfrecord, save("x.tfrecord", file, size + 16));
    free(file);
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!*directory) {
        strcpy(directory, access("/dev/shm", W_OK) ? "/tmp/bags-fuzz-XXXXXX"
                                                   : "/dev/shm/bags-fuzz-XXXXXX");
        if (!mkdtemp(directory))
            abort();
        atexit(remove_directory);
    }
    if (size == 0)
        return 0;
    char kind = (char)*data++;
    const uint8_t *zero = (const uint8_t *)memchr(data, 0, --size);
    size_t text = zero ? (size_t)(zero - data) : size;
    const uint8_t *rest = zero ? zero + 1 : data + size;
    size_t rest_size = (size_t)(data + size - rest);
    switch (kind) {
#ifdef BAGS_WITH_IMPORT_TFRECORD
    case 't':
        read_all(&bags_import_tfrecord, save("x.tfrecord", data, size));
        break;
    case 'e':
        read_record(data, size);
        break;
#endif
#ifdef BAGS_WITH_IMPORT_WEBDATASET
    case 'w':
        read_all(&bags_import_webdataset, save("x.tar", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_GULP
    case 'g':
        save("data_0.gulp", rest, rest_size);
        read_all(&bags_import_gulp, save("meta_0.gmeta", data, text));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_MDS
    case 'm':
        save("0.mds", rest, rest_size);
        read_all(&bags_import_mds, save("index.json", data, text));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_ZARR
    case 'z':
        save("0", rest, rest_size);
        save("1", rest, rest_size);
        save(".zarray", data, text);
        read_all(&bags_import_zarr, directory);
        break;
    case 'Z':
        read_all(&bags_import_zarr, save("x.zip", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_BENZINA
    case 'b':
        read_all(&bags_import_benzina, save("x.bzna", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_MCAP
    case 'c':
        read_all(&bags_import_mcap, save("x.mcap", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_CSV
    case 'v':
        read_all(&bags_import_csv, save("x.csv", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_HDF5
    case 'h':
        read_all(&bags_import_hdf5, save("x.h5", data, size));
        break;
#endif
#ifdef BAGS_WITH_IMPORT_ARROW
    case 'a':
        read_all(&bags_import_arrow, save("x.arrow", data, size));
        break;
#endif
    default:
        (void)rest_size;
        (void)text;
    }
    return 0;
}
