/* SQLite, as fast as it goes: one transaction without a journal, prepared
 * statements, the rowid as the key, the file mapped for reading; pages of 16
 * KiB where blobs are large. */
#include "peers.h"

#ifndef BENCH_WITH_SQLITE3
const peer peer_sqlite = {.name = "SQLite", .lacking = "libsqlite3-dev"};
const peer peer_sqlite_no_mmap = {
    .name = "SQLite, no mmap", .lacking = "libsqlite3-dev"};
#else

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct store {
    sqlite3 *base;
    sqlite3_stmt *one, *many;
    sqlite3_int64 key;
    uint64_t count;
    bool sync;
    char path[4096];
} store;

static void must(const store *s, bool good, const char *what) {
    if (!good)
        die("SQLite: %s: %s", what, sqlite3_errmsg(s->base));
}

static void run(store *s, const char *sql) {
    must(s, sqlite3_exec(s->base, sql, NULL, NULL, NULL) == SQLITE_OK, sql);
}

static sqlite3_stmt *prepare(store *s, const char *sql) {
    sqlite3_stmt *statement = NULL;
    must(s, sqlite3_prepare_v2(s->base, sql, -1, &statement, NULL) == SQLITE_OK, sql);
    return statement;
}

static store *open_store(const char *path, int flags) {
    store *s = (store *)need_memory(sizeof *s);
    memset(s, 0, sizeof *s);
    snprintf(s->path, sizeof s->path, "%s", path);
    must(s, sqlite3_open_v2(path, &s->base, flags, NULL) == SQLITE_OK, "open");
    return s;
}

static void *create(const char *path, const workload *load, bool sync) {
    store *s = open_store(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    s->sync = sync;
    run(s, load->size < 4000 ? "PRAGMA page_size = 4096" : "PRAGMA page_size = 16384");
    run(s, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
           "CREATE TABLE blobs (id INTEGER PRIMARY KEY, data BLOB NOT NULL);"
           "BEGIN");
    s->one = prepare(s, "INSERT INTO blobs VALUES (?, ?)");
    return s;
}

static void append(void *writer, const void *data, size_t size) {
    store *s = (store *)writer;
    sqlite3_bind_int64(s->one, 1, s->key++);
    sqlite3_bind_blob64(s->one, 2, data, size, SQLITE_STATIC);
    must(s, sqlite3_step(s->one) == SQLITE_DONE, "insert");
    sqlite3_reset(s->one);
}

static void release(void *reader) {
    store *s = (store *)reader;
    sqlite3_finalize(s->one);
    sqlite3_finalize(s->many);
    must(s, sqlite3_close(s->base) == SQLITE_OK, "close");
    free(s);
}

static void finish(void *writer) {
    store *s = (store *)writer;
    run(s, "COMMIT");
    int file = s->sync ? need_open(s->path, O_RDWR) : -1;
    release(s);
    if (file >= 0 && fsync(file))
        die("fsync");
    if (file >= 0)
        close(file);
}

static void *open_reader(const char *path, const workload *load) {
    store *s = open_store(path, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX);
    s->count = load->count;
    run(s, "PRAGMA mmap_size = 68719476736; PRAGMA locking_mode = EXCLUSIVE");
    s->one = prepare(s, "SELECT data FROM blobs WHERE id = ?");
    s->many = prepare(s, "SELECT data FROM blobs WHERE id >= ? AND id < ?");
    return s;
}

static void *open_no_mmap(const char *path, const workload *load) {
    store *s = (store *)open_reader(path, load);
    run(s, "PRAGMA mmap_size = 0");
    return s;
}

static bags_view column(sqlite3_stmt *statement) {
    bags_view blob;
    blob.data = (const unsigned char *)sqlite3_column_blob(statement, 0);
    blob.size = (size_t)sqlite3_column_bytes(statement, 0);
    return blob;
}

static bags_view get(void *reader, uint64_t index) {
    const store *s = (const store *)reader;
    sqlite3_reset(s->one);
    sqlite3_bind_int64(s->one, 1, (sqlite3_int64)index);
    must(s, sqlite3_step(s->one) == SQLITE_ROW, "select");
    return column(s->one);
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    const store *s = (const store *)reader;
    uint64_t sum = 0;
    sqlite3_reset(s->many);
    sqlite3_bind_int64(s->many, 1, (sqlite3_int64)start);
    sqlite3_bind_int64(s->many, 2, (sqlite3_int64)stop);
    for (uint64_t i = start; i < stop; i++) {
        must(s, sqlite3_step(s->many) == SQLITE_ROW, "select");
        bags_view blob = column(s->many);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

static uint64_t scan(void *reader) {
    return range(reader, 0, ((const store *)reader)->count);
}

const peer peer_sqlite = {"SQLite", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, get, NULL, range, scan, NULL, NULL, NULL, release};

const peer peer_sqlite_no_mmap = {.name = "SQLite, no mmap",
    .reads = "SQLite",
    .open = open_no_mmap,
    .get = get,
    .close = release};
#endif
