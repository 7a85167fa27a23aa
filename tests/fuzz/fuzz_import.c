/*
 * Any bytes as the files of a source: open it, and read all datapoints. The first
 * byte chooses the importer; the rest, up to its first zero byte, is the file that
 * describes the source, what follows is its data.
 *
 *     t  a TFRecord file, as it is
 *     e  a TFRecord file of one record, with valid checksums
 *     r  a features.json, and one record with valid checksums
 *     w  a tar file, compressed or not
 *     g  a .gmeta and its .gulp
 *     m  index.json and the shard 0.mds
 *     z  a .zarray and its chunks
 *     y  a zarr.json and its chunks or shards
 *     Z  a Zarr group in a .zip
 *     b  a .bzna
 *     c  an MCAP file
 *     h  an HDF5 file
 *     a  an Arrow file or stream
 *     v  a CSV file
 *     M  a Megatron .idx and its .bin; its size, 2 bytes, precedes the .idx
 *     n  a .npy file of raw tokens
 *     C  an MCAP file, decoded
 *     l  an LMDB file
 */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/import/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RECORD "x-t.tfrecord-00000-of-00001"

static char directory[64];
static volatile unsigned sink; /* every byte was read */

static void remove_directory(void) {
    static const char *const names[] = {"x.tfrecord", "x.tar", "meta_0.gmeta",
        "data_0.gulp", "index.json", "0.mds", "0", "1", ".zarray", "zarr.json", "x.zip",
        "x.bzna", "x.mcap", "x.h5", "data.mdb", "x.arrow", "x.csv", "x.idx", "x.bin",
        "x.npy", "features.json", "dataset_info.json", RECORD};
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

static void read_all(const bags_importer *importer, const char *path, bool decode) {
    const bags_entry *entries;
    bags_error err;
    bags_source_options options = {0};
    options.decode = decode;
    importer->detect(path);
    bags_source *source = bags_source_open(importer, path, &options, &err);
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

static uint32_t masked(const void *data, size_t size) {
    uint32_t crc = bags_crc32c(0, data, size);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

/* Save a file of one record. */
static const char *save_record(const char *name, const uint8_t *data, size_t size) {
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
    const char *path = save(name, file, size + 16);
    free(file);
    return path;
}

static void read_record(const uint8_t *data, size_t size) {
#ifdef BAGS_WITH_IMPORT_TFRECORD
    read_all(&bags_import_tfrecord, save_record("x.tfrecord", data, size), false);
#else
    (void)data;
    (void)size;
#endif
}

#ifdef BAGS_WITH_IMPORT_RLDS
static void read_features(
    const uint8_t *text, size_t text_size, const uint8_t *data, size_t size) {
    static const char info[] =
        "{\"name\":\"x\",\"splits\":[{\"name\":\"t\",\"shardLengths\":[\"1\"]}]}";
    save("dataset_info.json", info, sizeof info - 1);
    save("features.json", text, text_size);
    save_record(RECORD, data, size);
    read_all(&bags_import_rlds, directory, false);
}
#endif

/* The files of each kind: the first has all bytes or, if there is a second, those up to
 * the first zero byte; the second has the others. */
static const struct {
    char kind;
    const bags_importer *importer;
    const char *name, *rest_name;
} kinds[] = {
#ifdef BAGS_WITH_IMPORT_TFRECORD
    {'t', &bags_import_tfrecord, "x.tfrecord", NULL},
#endif
#ifdef BAGS_WITH_IMPORT_WEBDATASET
    {'w', &bags_import_webdataset, "x.tar", NULL},
#endif
#ifdef BAGS_WITH_IMPORT_GULP
    {'g', &bags_import_gulp, "meta_0.gmeta", "data_0.gulp"},
#endif
#ifdef BAGS_WITH_IMPORT_MDS
    {'m', &bags_import_mds, "index.json", "0.mds"},
#endif
#ifdef BAGS_WITH_IMPORT_ZARR
    {'z', &bags_import_zarr, ".zarray", "0"},
    {'y', &bags_import_zarr, "zarr.json", "0"},
    {'Z', &bags_import_zarr, "x.zip", NULL},
#endif
    {'b', &bags_import_benzina, "x.bzna", NULL},
#ifdef BAGS_WITH_IMPORT_MCAP
    {'c', &bags_import_mcap, "x.mcap", NULL},
    {'C', &bags_import_mcap, "x.mcap", NULL},
#endif
#ifdef BAGS_WITH_IMPORT_CSV
    {'v', &bags_import_csv, "x.csv", NULL},
#endif
#ifdef BAGS_WITH_IMPORT_HDF5
    {'h', &bags_import_hdf5, "x.h5", NULL},
#endif
#ifdef BAGS_WITH_IMPORT_ARROW
    {'a', &bags_import_arrow, "x.arrow", NULL},
#endif
    {'l', &bags_import_lmdb, "data.mdb", NULL},
    {'M', &bags_import_megatron, "x.idx", "x.bin"},
    {'n', &bags_import_tokens, "x.npy", NULL},
};

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
    if (kind == 'M' && size >= 2) {
        text = (size_t)bags_load_bytes(data, 2, false);
        data += 2;
        size -= 2;
        text = text < size ? text : size;
        rest = data + text;
    }
    size_t rest_size = (size_t)(data + size - rest);
    if (kind == 'e')
        read_record(data, size);
#ifdef BAGS_WITH_IMPORT_RLDS
    if (kind == 'r')
        read_features(data, text, rest, rest_size);
#endif
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].kind != kind)
            continue;
        if (kinds[i].rest_name)
            save(kinds[i].rest_name, rest, rest_size);
        if (kind == 'z' || kind == 'y') {
            remove_directory(); /* one version of Zarr */
            if (mkdir(directory, 0700))
                abort();
            save("0", rest, rest_size);
            save("1", rest, rest_size);
        }
        const char *path = save(kinds[i].name, data, kinds[i].rest_name ? text : size);
        read_all(kinds[i].importer, kind == 'z' || kind == 'y' ? directory : path,
            kind == 'C');
    }
    return 0;
}
