/*
 * What compressed fields save and cost: the same values as a type and as zstd of it, in
 * one dataset in build/. A row is read in random order and decoded, one field of it, in
 * turns; times are the processor's. LMDB has the same blobs without compression, and zstd
 * is the library alone, with one context, on the same frames.
 */
#define _GNU_SOURCE 1
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#ifdef BENCH_WITH_LMDB
#include <lmdb.h>
#endif

#define COUNT 20000
#define READS 2000 /* per call */

static const char *const set = "build/bench-zstd";

static void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

static uint64_t scramble(uint64_t i) {
    i = (i ^ i >> 31) * UINT64_C(0x9E3779B97F4A7C15);
    return (i ^ i >> 29) * UINT64_C(0xBF58476D1CE4E5B9) >> 11;
}

/* ---- values ---- */

static const char *const people[] = {"ada", "grace", "edsger", "barbara", "donald",
    "leslie", "tony", "frances", "john", "margaret"};

static size_t json_of(uint64_t i, char *out, size_t size) {
    uint64_t r = scramble(i);
    return (size_t)snprintf(out, size,
        "{\"id\": %ju, \"user\": \"%s%ju\", \"time\": "
        "\"2026-%02d-%02dT%02d:%02d:%02dZ\", "
        "\"event\": \"%s\", \"price\": %.2f, \"tags\": [\"%s\", \"%s\"], "
        "\"country\": \"%s\", \"score\": 0.%06ju, \"seen\": %s}",
        (uintmax_t)(100000 + i), people[r % 10], (uintmax_t)(r / 10 % 1000),
        (int)(r % 12 + 1), (int)(r / 12 % 28 + 1), (int)(r / 300 % 24),
        (int)(r / 7000 % 60), (int)(r / 77777 % 60), r % 3 ? "click" : "purchase",
        (double)(r % 100000) / 100, people[r / 3 % 10], people[r / 5 % 10],
        r % 2 ? "DE" : "FR", (uintmax_t)(r % 1000000), r % 5 ? "true" : "false");
}

static bags_value json_200(uint64_t i) {
    static char text[512];
    return bags_utf8_sized(text, json_of(i, text, sizeof text));
}

static bags_value json_2000(uint64_t i) {
    static char text[8192];
    size_t size = 0;
    for (uint64_t j = 0; j < 8; j++) {
        text[size++] = j ? ',' : '[';
        size += json_of(8 * i + j, text + size, sizeof text - size);
    }
    text[size++] = ']';
    return bags_utf8_sized(text, size);
}

/* Words with the frequencies of natural language. */
static bags_value sentence(uint64_t i) {
    static const char *const words[] = {"the", "of", "and", "to", "in", "a", "is",
        "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he", "his",
        "but", "at", "are", "this", "have", "which", "from", "dataset", "reader",
        "little", "river", "mountain", "yesterday", "because", "language", "through",
        "together", "question", "morning", "children", "important"};
    static char text[2048];
    size_t size = 0, count = 12 + scramble(i) % 20;
    for (size_t j = 0; j < count; j++) {
        double u = (double)(scramble(i * 64 + j + 7) % 10000 + 1) / 10001;
        size_t word = (size_t)(pow(40, u) - 1);
        size += (size_t)snprintf(
            text + size, sizeof text - size, "%s%s", j ? " " : "", words[word % 40]);
    }
    return bags_utf8_sized(text, size);
}

static bags_value poses(uint64_t i) {
    static float numbers[64];
    static const uint64_t shape[] = {64};
    for (int j = 0; j < 64; j++)
        numbers[j] = (float)(sin((double)i * 0.01 + j) * 2 +
                             (double)(scramble(i * 64 + (uint64_t)j) % 1000) * 1e-5);
    return bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers);
}

static bags_value tokens(uint64_t i) {
    static uint16_t numbers[512];
    static const uint64_t shape[] = {512};
    for (uint64_t j = 0; j < 512; j++)
        numbers[j] =
            (uint16_t)(pow(50000, (double)(scramble(i * 512 + j) % 100000) / 100000) -
                       1);
    return bags_array(BAGS_DTYPE_UINT16, 1, shape, numbers);
}

static const struct sample {
    const char *title, *plain, *compressed;
    bags_value (*make)(uint64_t i);
} samples[] = {
    {"JSON, 180 bytes", "utf8", "zstd(utf8)", json_200},
    {"JSON, 1,460 bytes", "utf8", "zstd(utf8)", json_2000},
    {"sentences", "utf8", "zstd(utf8)", sentence},
    {"poses, 64 float32", "array(float32,64)", "zstd(array,float32,64)", poses},
    {"tokens, 512 uint16", "array(uint16,512)", "zstd(array,uint16,512)", tokens},
};

#define SAMPLES (sizeof samples / sizeof *samples)

/* ---- reading ---- */

typedef struct job {
    bags_reader *reader;
    bags_row row;
    bags_buffer scratch;
    size_t field;
    uint64_t at;
    ZSTD_DCtx *context;
    volatile uint64_t sink;
} job;

static bags_view read_blob(job *j) {
    bags_select whole = bags_whole(j->field);
    must(!bags_reader_get(
             j->reader, scramble(j->at++) % COUNT, &whole, 1, &j->row, NULL),
        "get");
    return bags_row_bytes(&j->row, 0, 0);
}

static void read_values(void *user) {
    job *j = (job *)user;
    for (int i = 0; i < READS; i++) {
        bags_value value;
        (void)read_blob(j);
        must(!bags_row_value(&j->row, 0, 0, &j->scratch, &value, NULL), "value");
        j->sink += *(const unsigned char *)value.data + value.size;
    }
}

static void read_compressed(void *user) {
    ((job *)user)->field = 0;
    read_values(user);
}

static void read_plain(void *user) {
    ((job *)user)->field = 1;
    read_values(user);
}

static void read_directly(void *user) {
    job *j = (job *)user;
    j->field = 0;
    for (int i = 0; i < READS; i++) {
        bags_view blob = read_blob(j);
        size_t size = (size_t)ZSTD_getFrameContentSize(blob.data, blob.size);
        must(!bags_buffer_reserve(&j->scratch, size, NULL), "memory");
        must(ZSTD_decompressDCtx(j->context, j->scratch.data, j->scratch.capacity,
                 blob.data, blob.size) == size,
            "zstd");
        j->sink += j->scratch.data[0] + size;
    }
}

#ifdef BENCH_WITH_LMDB
static MDB_dbi dbi;
static MDB_txn *txn;

static void fill_lmdb(const struct sample *of, const bags_registry *registry) {
    static MDB_env *env;
    bags_buffer scratch = {0};
    mkdir("build/bench-zstd-lmdb", 0777);
    (void)remove("build/bench-zstd-lmdb/data.mdb");
    if (env)
        mdb_txn_abort(txn);
    if (env)
        mdb_env_close(env);
    must(!mdb_env_create(&env) && !mdb_env_set_mapsize(env, (size_t)1 << 30) &&
             !mdb_env_open(env, "build/bench-zstd-lmdb", MDB_NOSYNC, 0666) &&
             !mdb_txn_begin(env, NULL, 0, &txn) &&
             !mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi),
        "lmdb");
    for (uint64_t i = 0; i < COUNT; i++) {
        bags_value value = of->make(i);
        bags_view blob;
        must(
            !bags_encode(registry, of->plain, &value, &scratch, &blob, NULL), "encode");
        MDB_val key = {sizeof i, &i}, data = {blob.size, (void *)(uintptr_t)blob.data};
        must(!mdb_put(txn, dbi, &key, &data, MDB_APPEND), "put");
    }
    must(!mdb_txn_commit(txn) && !mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "commit");
    bags_buffer_free(&scratch);
}

static void read_lmdb(void *user) {
    job *j = (job *)user;
    for (int i = 0; i < READS; i++) {
        uint64_t index = scramble(j->at++) % COUNT;
        MDB_val key = {sizeof index, &index}, data;
        must(!mdb_get(txn, dbi, &key, &data), "get");
        j->sink += *(const unsigned char *)data.mv_data + data.mv_size;
    }
}
#endif

/* ---- writing ---- */

static void write_set(const struct sample *of, const bags_registry *registry) {
    bags_field fields[] = {{"a", of->compressed}, {"b", of->plain}};
    bags_writer_options writing = {0};
    bags_error err;
    writing.registry = registry;
    writing.no_sync = true;
    (void)!system("rm -rf build/bench-zstd");
    bags_writer *writer = bags_writer_open(set, fields, 2, &writing, &err);
    must(writer != NULL, "open");
    for (uint64_t i = 0; i < COUNT; i++) {
        bags_value value = of->make(i);
        bags_entry entries[] = {{"a", &value, 1}, {"b", &value, 1}};
        must(!bags_writer_append(writer, entries, 2, &err), err.message);
    }
    must(!bags_writer_close(writer, &err), "close");
}

#define ROUNDS 25

/* The ways to read take turns. */
static void measure(job *j, double *each) {
    static void (*const ways[])(void *) = {read_plain, read_compressed, read_directly,
#ifdef BENCH_WITH_LMDB
        read_lmdb
#endif
    };
    double times[4][ROUNDS] = {{0}};
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            times[i][round] = turn(ways[i], j, 1) / READS;
    for (size_t i = 0; i < 4; i++)
        each[i] = median(times[i], ROUNDS) * 1e6;
}

int main(void) {
    bags_zstd_options options = {0};
    bags_codec codec = bags_codec_zstd;
    bags_registry *registry = bags_registry_create(NULL, NULL);
    options.registry = registry;
    codec.user = &options;
    must(registry && !bags_registry_add(registry, &codec, NULL), "registry");
    (void)mkdir("build", 0777);
    printf("%-20s %8s %6s %9s %9s %9s %9s  us per random read\n", "", "bytes", "ratio",
        "type", "zstd(..)", "library", "LMDB");
    for (size_t i = 0; i < SAMPLES; i++) {
        bags_reader_options reading = {0};
        bags_field_info sizes[2];
        bags_info info;
        job j;
        memset(&j, 0, sizeof j);
        write_set(&samples[i], registry);
        reading.registry = registry;
        j.reader = bags_reader_open(set, &reading, NULL);
        j.context = ZSTD_createDCtx();
        must(j.reader && !bags_reader_info(j.reader, &info, sizes, NULL), "reader");
        double times[4];
#ifdef BENCH_WITH_LMDB
        fill_lmdb(&samples[i], registry);
#endif
        measure(&j, times);
        printf("%-20s %8.0f %6.2f %9.2f %9.2f %9.2f %9.2f\n", samples[i].title,
            (double)sizes[1].size / COUNT,
            (double)sizes[1].size / (double)sizes[0].size, times[0], times[1], times[2],
            times[3]);
        bags_reader_close(j.reader);
        bags_row_free(&j.row);
        bags_buffer_free(&j.scratch);
        ZSTD_freeDCtx(j.context);
    }
    bags_registry_free(registry);
    return 0;
}
