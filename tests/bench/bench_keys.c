/* Finding datapoints by an id: index.c next to LMDB and SQLite, one million ids, in
 * the page cache, in random order. */
#define _GNU_SOURCE 1
#include "../../bags.h"
#include "../../formats/formats.h"
#include "ratio.h"

#include <string.h>
#include <sys/stat.h>

#ifdef BENCH_WITH_LMDB
#include <lmdb.h>
#endif
#ifdef BENCH_WITH_SQLITE3
#include <sqlite3.h>
#endif

#define COUNT 1000000
#define LOOKUPS 200000
#define ROUNDS 5

static const char *folder = "build/bench-keys";

static void must(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

static uint64_t scramble(uint64_t i) { return i * UINT64_C(0x9E3779B97F4A7C15) >> 16; }

static size_t id_of(uint64_t i, char id[32]) {
    return (size_t)snprintf(id, 32, "%012jx", (uintmax_t)scramble(i));
}

static const char *path(const char *name) {
    static char out[256];
    snprintf(out, sizeof out, "%s/%s", folder, name);
    return out;
}

/* The datapoint of lookup i. */
static uint64_t wanted(uint64_t i) { return scramble(i + 12345) % COUNT; }

static void report(const char *name, double *times, double base) {
    printf("%-28s %8.0f ns   %.2f\n", name, median(times, ROUNDS) * 1e9,
        median(times, ROUNDS) / base);
}

static double bags_base;

static void measure_bags(void) {
    bags_error err;
    char id[32];
    const bags_field field = {"id", "utf8"};
    bags_writer_options writing = {0};
    double times[ROUNDS];
    writing.no_sync = true;
    bags_writer *writer = bags_writer_open(path("set"), &field, 1, &writing, &err);
    must(writer != NULL, "open");
    for (uint64_t i = 0; i < COUNT; i++) {
        bags_value value = bags_utf8_sized(id, id_of(i, id));
        bags_entry entry = {"id", &value, 1};
        must(!bags_writer_append(writer, &entry, 1, &err), "append");
    }
    must(!bags_writer_close(writer, &err), "close");
    double start = now();
    must(!bags_index_build(path("set"), "id", NULL, &err), "index");
    printf("index.c: built in %.2f s\n", now() - start);
    bags_reader *reader = bags_reader_open(path("set"), NULL, &err);
    bags_index *index = bags_index_open(path("set"), reader, 0, NULL, &err);
    must(index != NULL, "open");
    bags_buffer scratch = {0};
    bags_row row = {0};
    for (int round = 0; round < ROUNDS; round++) {
        start = now();
        for (uint64_t i = 0; i < LOOKUPS; i++) {
            uint64_t first, last, found;
            bags_value key = bags_utf8_sized(id, id_of(wanted(i), id));
            must(!bags_index_find(index, &key, &scratch, &first, &last, &err) &&
                     !bags_index_get(index, first, &scratch, &row, &found, &err) &&
                     found == wanted(i),
                "find");
        }
        times[round] = (now() - start) / LOOKUPS;
    }
    bags_base = median(times, ROUNDS);
    report("index.c, datapoint checked", times, bags_base);
    bags_row_free(&row);
    bags_buffer_free(&scratch);
    bags_index_close(index);
    bags_reader_close(reader);
}

#ifdef BENCH_WITH_LMDB
static void measure_lmdb(void) {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    char id[32];
    double times[ROUNDS];
    must(!mdb_env_create(&env) && !mdb_env_set_mapsize(env, 1 << 30) &&
             !mdb_env_open(
                 env, path("lmdb"), MDB_NOSUBDIR | MDB_NOSYNC | MDB_WRITEMAP, 0644) &&
             !mdb_txn_begin(env, NULL, 0, &txn) && !mdb_dbi_open(txn, NULL, 0, &dbi),
        "LMDB");
    double start = now();
    for (uint64_t i = 0; i < COUNT; i++) {
        MDB_val key = {id_of(i, id), id}, value = {sizeof i, &i};
        must(!mdb_put(txn, dbi, &key, &value, 0), "put");
    }
    must(!mdb_txn_commit(txn), "commit");
    printf("LMDB: built in %.2f s\n", now() - start);
    must(!mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    for (int round = 0; round < ROUNDS; round++) {
        start = now();
        for (uint64_t i = 0; i < LOOKUPS; i++) {
            MDB_val key = {id_of(wanted(i), id), id}, value;
            uint64_t found = 0;
            must(!mdb_get(txn, dbi, &key, &value), "get");
            memcpy(&found, value.mv_data, sizeof found);
            must(found == wanted(i), "find");
        }
        times[round] = (now() - start) / LOOKUPS;
    }
    report("LMDB", times, bags_base);
    mdb_txn_abort(txn);
    mdb_env_close(env);
}
#endif

#ifdef BENCH_WITH_SQLITE3
static void measure_sqlite(void) {
    sqlite3 *base;
    sqlite3_stmt *one;
    char id[32];
    double times[ROUNDS];
    must(!sqlite3_open(path("sqlite"), &base) &&
             !sqlite3_exec(base,
                 "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
                 "PRAGMA mmap_size = 1073741824;"
                 "CREATE TABLE ids (id TEXT PRIMARY KEY, i INTEGER) WITHOUT "
                 "ROWID; BEGIN",
                 NULL, NULL, NULL) &&
             !sqlite3_prepare_v2(base, "INSERT INTO ids VALUES (?, ?)", -1, &one, NULL),
        "SQLite");
    double start = now();
    for (uint64_t i = 0; i < COUNT; i++) {
        sqlite3_bind_text(one, 1, id, (int)id_of(i, id), SQLITE_STATIC);
        sqlite3_bind_int64(one, 2, (sqlite3_int64)i);
        must(sqlite3_step(one) == SQLITE_DONE, "insert");
        sqlite3_reset(one);
    }
    sqlite3_finalize(one);
    must(
        !sqlite3_exec(base, "COMMIT", NULL, NULL, NULL) &&
            !sqlite3_prepare_v2(base, "SELECT i FROM ids WHERE id = ?", -1, &one, NULL),
        "commit");
    printf("SQLite: built in %.2f s\n", now() - start);
    for (int round = 0; round < ROUNDS; round++) {
        start = now();
        for (uint64_t i = 0; i < LOOKUPS; i++) {
            sqlite3_bind_text(one, 1, id, (int)id_of(wanted(i), id), SQLITE_STATIC);
            must(sqlite3_step(one) == SQLITE_ROW &&
                     (uint64_t)sqlite3_column_int64(one, 0) == wanted(i),
                "find");
            sqlite3_reset(one);
        }
        times[round] = (now() - start) / LOOKUPS;
    }
    report("SQLite", times, bags_base);
    sqlite3_finalize(one);
    sqlite3_close(base);
}
#endif

int main(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s && mkdir -p %s", folder, folder);
    must(system(command) == 0, command);
    measure_bags();
#ifdef BENCH_WITH_LMDB
    measure_lmdb();
#endif
#ifdef BENCH_WITH_SQLITE3
    measure_sqlite();
#endif
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0;
}
