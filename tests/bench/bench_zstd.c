/*
 * What compressed fields save and cost: the same values as a type, and as zstd of it
 * without and with a dictionary, in build/. The first half of the values has those that
 * train the dictionary. Of the second half, a blob is read in random order and decoded, in
 * turns; times are the processor's. LMDB has the same blobs without compression;
 * peer_zstd.py writes them to zarr and to Parquet.
 */
#define _GNU_SOURCE 1
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <zdict.h>

#ifdef BENCH_WITH_LMDB
#include <lmdb.h>
#endif

#define MOST 20000
#define READS 2000 /* per call */

#define FOLDER "build/bench-zstd/"

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
        "\"country\": \"%s\", \"score\": 0.%06ju, \"seen\": %s, \"ms\": %ju}",
        (uintmax_t)(100000 + i), people[r % 10], (uintmax_t)(r / 10 % 1000),
        (int)(r % 12 + 1), (int)(r / 12 % 28 + 1), (int)(r / 300 % 24),
        (int)(r / 7000 % 60), (int)(r / 77777 % 60), r % 3 ? "click" : "purchase",
        (double)(r % 100000) / 100, people[r / 3 % 10], people[r / 5 % 10],
        r % 2 ? "DE" : "FR", (uintmax_t)(r % 1000000), r % 5 ? "true" : "false",
        (uintmax_t)(scramble(r) % 100000000));
}

static bags_value json_200(uint64_t i) {
    static char text[512];
    return bags_utf8_sized(text, json_of(i, text, sizeof text));
}

static bags_value json_2000(uint64_t i) {
    static char text[8192];
    size_t size = 0;
    for (uint64_t j = 0; j < 10; j++) {
        text[size++] = j ? ',' : '[';
        size += json_of(10 * i + j, text + size, sizeof text - size);
    }
    text[size++] = ']';
    return bags_utf8_sized(text, size);
}

/* English: the sentences of this repository's documents and comments, each once. */
static bags_value sentence(uint64_t i) {
    static char text[1 << 20];
    static bags_view lines[MOST];
    static size_t count;
    if (!count) {
        FILE *pipe = popen("/usr/bin/python3 tests/bench/peer_zstd.py sentences", "r");
        size_t size = pipe ? fread(text, 1, sizeof text, pipe) : 0;
        must(size && !pclose(pipe), "peer_zstd.py");
        for (char *at = text, *end = at;
             count < MOST &&
             (end = (char *)memchr(at, '\n', size - (size_t)(at - text)));
             at = end + 1, count++) {
            lines[count].data = (unsigned char *)at;
            lines[count].size = (size_t)(end - at);
        }
    }
    return i < count ? bags_utf8_sized((const char *)lines[i].data, lines[i].size)
                     : bags_bytes(NULL, 0);
}

/* Agents of L5Kit: the 38 of its golden data, many times, each of which moves. */
static bags_value agents(uint64_t i) {
    static unsigned char records[38 * 116], moved[116];
    if (!records[0] && !records[1]) {
        FILE *file =
            fopen("tests/data/golden/l5kit-zarr/chunked-dataset/agents.npy", "rb");
        must(file && !fseek(file, 256, SEEK_SET) &&
                 fread(records, 1, sizeof records, file) == sizeof records,
            "agents.npy");
        fclose(file);
    }
    memcpy(moved, records + i % 38 * 116, 116);
    for (size_t k = 0; k < 2; k++) {
        double centroid;
        float velocity;
        memcpy(&centroid, moved + 8 * k, 8);
        memcpy(&velocity, moved + 32 + 4 * k, 4);
        velocity += (float)(scramble(2 * i + k) % 1000) * 1e-3f;
        centroid += (double)velocity * (double)(i / 38) * 0.1;
        memcpy(moved + 8 * k, &centroid, 8);
        memcpy(moved + 32 + 4 * k, &velocity, 4);
    }
    bags_store_bytes(
        moved + 40, 8, false, bags_load_bytes(moved + 40, 8, false) + i / 3800);
    return bags_bytes(moved, sizeof moved);
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
    const char *name, *plain, *compressed, *peer;
    bags_value (*make)(uint64_t i);
} samples[] = {
    {"JSON of 200 bytes", "utf8", "zstd(utf8)", "utf8 0", json_200},
    {"JSON of 2,000 bytes", "utf8", "zstd(utf8)", "utf8 0", json_2000},
    {"English sentences", "utf8", "zstd(utf8)", "utf8 0", sentence},
    {"agents of L5Kit", "bytes", "zstd(bytes)", "agents 0", agents},
    {"poses, 64 float32", "array(float32,64)", "zstd(array,float32,64)", "float32 64",
        poses},
    {"tokens, 512 uint16", "array(uint16,512)", "zstd(array,uint16,512)", "uint16 512",
        tokens},
};

#define SAMPLES (sizeof samples / sizeof *samples)

/* ---- reading ---- */

typedef struct job {
    uint64_t count;
    bags_reader *alone, *together; /* without and with a dictionary */
    bags_row row;
    bags_buffer scratch;
    uint64_t at;
    volatile uint64_t sink;
} job;

/* Of the second half. */
static uint64_t next(job *j) {
    return j->count / 2 + scramble(j->at++) % (j->count - j->count / 2);
}

static void read_values(job *j, const bags_reader *reader, size_t field) {
    bags_select whole = bags_select_all(field);
    for (int i = 0; i < READS; i++) {
        bags_value value;
        must(!bags_reader_get(reader, next(j), &whole, 1, &j->row, NULL), "get");
        must(!bags_row_value(&j->row, 0, 0, &j->scratch, &value, NULL), "value");
        j->sink += *(const unsigned char *)value.data + value.size;
    }
}

static void read_plain(void *user) {
    read_values((job *)user, ((job *)user)->alone, 1);
}

static void read_alone(void *user) {
    read_values((job *)user, ((job *)user)->alone, 0);
}

static void read_together(void *user) {
    read_values((job *)user, ((job *)user)->together, 0);
}

/* All ways have the same values. */
static void check(job *j) {
    for (uint64_t i = 0; i < j->count; i++) {
        const bags_reader *readers[] = {j->alone, j->alone, j->together};
        bags_buffer first = {0};
        bags_value values[3];
        for (size_t k = 0; k < 3; k++) {
            bags_select whole = bags_select_all(k == 0);
            must(!bags_reader_get(readers[k], i, &whole, 1, &j->row, NULL) &&
                     !bags_row_value(&j->row, 0, 0, &j->scratch, &values[k], NULL),
                "value");
            if (!k)
                must(!bags_buffer_reserve(&first, values[0].size + 1, NULL), "memory");
            if (!k)
                memcpy(first.data, values[0].data, values[0].size);
            must(values[k].size == values[0].size &&
                     !memcmp(values[k].data, first.data, values[0].size),
                "comparison");
        }
        bags_buffer_free(&first);
    }
}

/* Bytes per blob of a field in the second half, without those of the dictionary. */
static double size_of(job *j, const bags_reader *reader, size_t field) {
    bags_select whole = bags_select_all(field);
    uint64_t sum = 0;
    for (uint64_t i = j->count / 2; i < j->count; i++) {
        must(!bags_reader_get(reader, i, &whole, 1, &j->row, NULL), "get");
        sum += bags_row_bytes(&j->row, 0, 0).size;
    }
    return (double)sum / (double)(j->count - j->count / 2);
}

#ifdef BENCH_WITH_LMDB
static MDB_dbi dbi;
static MDB_txn *txn;

static void fill_lmdb(const struct sample *of, job *j, const bags_registry *registry) {
    static MDB_env *env;
    bags_buffer scratch = {0};
    (void)mkdir(FOLDER "lmdb", 0777);
    (void)remove(FOLDER "lmdb/data.mdb");
    if (env)
        mdb_txn_abort(txn);
    if (env)
        mdb_env_close(env);
    must(!mdb_env_create(&env) && !mdb_env_set_mapsize(env, (size_t)1 << 30) &&
             !mdb_env_open(env, FOLDER "lmdb", MDB_NOSYNC, 0666) &&
             !mdb_txn_begin(env, NULL, 0, &txn) &&
             !mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi),
        "lmdb");
    for (uint64_t i = 0; i < j->count; i++) {
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
        uint64_t index = next(j);
        MDB_val key = {sizeof index, &index}, data;
        must(!mdb_get(txn, dbi, &key, &data), "get");
        j->sink += *(const unsigned char *)data.mv_data + data.mv_size;
    }
}
#endif

/* ---- writing ---- */

static bags_reader *write_set(const char *path, const struct sample *of, const job *j,
    const bags_registry *registry) {
    bags_field fields[] = {{"a", of->compressed}, {"b", of->plain}};
    bags_writer_options writing = {0};
    bags_reader_options reading = {0};
    bags_error err;
    writing.registry = reading.registry = registry;
    writing.no_sync = true;
    bags_writer *writer = bags_writer_open(path, fields, 2, &writing, &err);
    must(writer != NULL, "open");
    for (uint64_t i = 0; i < j->count; i++) {
        bags_value value = of->make(i);
        bags_entry entries[] = {{"a", &value, 1}, {"b", &value, 1}};
        must(!bags_writer_append(writer, entries, 2, &err), err.message);
    }
    must(!bags_writer_close(writer, &err), "close");
    bags_reader *reader = bags_reader_open(path, &reading, &err);
    must(reader != NULL, "reader");
    return reader;
}

/* A dictionary of the first half, of values that are too few for a writer to train one. */
static bags_view train(const struct sample *of, const job *j) {
    static unsigned char contents[1 << 20], dictionary[28 << 10];
    static size_t sizes[MOST];
    size_t used = 0, count = 0;
    for (; count < j->count / 2; count++) {
        bags_value value = of->make(count);
        must(value.size <= sizeof contents - used, "training");
        memcpy(contents + used, value.data, value.size);
        used += sizes[count] = value.size;
    }
    bags_view made = {dictionary, 0};
    made.size = ZDICT_trainFromBuffer(
        dictionary, sizeof dictionary, contents, sizes, (unsigned)count);
    must(!ZDICT_isError(made.size), "training");
    return made;
}

#define ROUNDS 25

/* The ways to read take turns. */
static void measure(job *j, double *each) {
    static void (*const ways[])(void *) = {read_plain, read_alone, read_together,
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

/* Bytes per blob, and microseconds: of zarr, and of Parquet. */
static void measure_peers(const struct sample *of, double *each) {
    char line[256];
    (void)snprintf(line, sizeof line,
        "/usr/bin/python3 tests/bench/peer_zstd.py " FOLDER "alone/b.bag %s", of->peer);
    FILE *pipe = popen(line, "r");
    must(pipe && fgets(line, sizeof line, pipe) && !pclose(pipe) &&
             sscanf(line, "%lf %lf %lf %lf", each, each + 1, each + 2, each + 3) == 4,
        "peer_zstd.py");
}

typedef struct result {
    double sizes[3], dictionary, times[4], peers[4];
} result;

static result run(const struct sample *of, bags_zstd_options *options) {
    static const bags_view none = {NULL, 0};
    struct stat dictionary;
    result found;
    job j;
    memset(&j, 0, sizeof j);
    while (j.count < MOST && of->make(j.count).data)
        j.count++;
    must(!system("rm -rf " FOLDER " && mkdir -p " FOLDER), "mkdir");
    options->dictionary = none;
    options->no_dictionary = true;
    j.alone = write_set(FOLDER "alone", of, &j, options->registry);
    options->no_dictionary = false;
    if (j.count < MOST)
        options->dictionary = train(of, &j);
    j.together = write_set(FOLDER "together", of, &j, options->registry);
    check(&j);
    found.dictionary =
        stat(FOLDER "together/a.dict", &dictionary) ? 0 : (double)dictionary.st_size;
#ifdef BENCH_WITH_LMDB
    fill_lmdb(of, &j, options->registry);
#endif
    measure(&j, found.times);
    measure_peers(of, found.peers);
    found.sizes[0] = size_of(&j, j.alone, 1);
    found.sizes[1] = size_of(&j, j.alone, 0);
    found.sizes[2] = size_of(&j, j.together, 0);
    bags_reader_close(j.alone);
    bags_reader_close(j.together);
    bags_row_free(&j.row);
    bags_buffer_free(&j.scratch);
    return found;
}

int main(void) {
    bags_zstd_options options = {0};
    bags_codec codec = bags_codec_zstd;
    bags_registry *registry = bags_registry_create(NULL, NULL);
    result found[SAMPLES];
    options.registry = registry;
    codec.user = &options;
    must(registry && !bags_registry_add(registry, &codec, NULL), "registry");
    printf(
        "| times smaller | bytes | zstd | with dictionary | its KiB | zarr | Parquet "
        "|\n");
    for (size_t i = 0; i < SAMPLES; i++) {
        found[i] = run(&samples[i], &options);
        const double *size = found[i].sizes, *peers = found[i].peers;
        printf("| %s | %.0f | %.2f | %.2f | %.0f | %.2f | %.2f |\n", samples[i].name,
            size[0], size[0] / size[1], size[0] / size[2], found[i].dictionary / 1024,
            size[0] / peers[0], size[0] / peers[2]);
        fflush(stdout);
    }
    printf("\n| us per random read | type | zstd | with dictionary | LMDB | zarr | "
           "Parquet |\n");
    for (size_t i = 0; i < SAMPLES; i++)
        printf("| %s | %.2f | %.2f | %.2f | %.2f | %.0f | %.0f |\n", samples[i].name,
            found[i].times[0], found[i].times[1], found[i].times[2], found[i].times[3],
            found[i].peers[1], found[i].peers[3]);
    bags_registry_free(registry);
    /* Of JSON of 200 bytes. */
    must(found[0].times[2] <= found[0].times[0] + 2, "reading within 2 us of the type");
    return 0;
}
