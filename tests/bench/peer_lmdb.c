/* LMDB, as fast as it goes: integer keys, appended in order, in transactions of
 * some 16 MiB, into a writable map whose size is known before. */
#include "peers.h"

#ifndef BENCH_WITH_LMDB
const peer peer_lmdb = {.name = "LMDB", .lacking = "liblmdb-dev"};
#else

#include <lmdb.h>
#include <stdlib.h>
#include <sys/stat.h>

#define BATCH ((size_t)16 << 20)

typedef struct store {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_cursor *cursor;
    bool sync;
    size_t key, pending;
    uint64_t count;
} store;

static void must(int code, const char *what) {
    if (code)
        die("LMDB: %s: %s", what, mdb_strerror(code));
}

static store *open_store(const char *path, size_t map, unsigned flags) {
    store *s = (store *)need_memory(sizeof *s);
    memset(s, 0, sizeof *s);
    must(mdb_env_create(&s->env), "create");
    must(mdb_env_set_mapsize(s->env, map), "map size");
    must(mdb_env_open(s->env, path, MDB_NOSUBDIR | MDB_NOTLS | flags, 0644), "open");
    return s;
}

static void begin(store *s, unsigned flags, unsigned database) {
    must(mdb_txn_begin(s->env, NULL, flags, &s->txn), "begin");
    must(mdb_dbi_open(s->txn, NULL, MDB_INTEGERKEY | database, &s->dbi), "database");
    must(mdb_cursor_open(s->txn, s->dbi, &s->cursor), "cursor");
}

static void commit(store *s) {
    mdb_cursor_close(s->cursor);
    must(mdb_txn_commit(s->txn), "commit");
    s->pending = 0;
}

/* A leaf holds some overhead a blob, a large blob whole pages. */
static size_t map_size(const workload *load) {
    size_t each = load->size < 2000 ? load->size * 3 / 2 + 64
                                    : (load->size + 16) / 4096 * 4096 + 8192;
    return (each * (size_t)load->count + ((size_t)64 << 20)) / 4096 * 4096;
}

static void *create(const char *path, const workload *load, bool sync) {
    store *s =
        open_store(path, map_size(load), MDB_WRITEMAP | MDB_NOSYNC | MDB_NOMEMINIT);
    s->sync = sync;
    begin(s, 0, MDB_CREATE);
    return s;
}

static void append(void *writer, const void *data, size_t size) {
    store *s = (store *)writer;
    MDB_val key = {sizeof s->key, &s->key};
    MDB_val value = {size, (void *)(uintptr_t)data};
    must(mdb_cursor_put(s->cursor, &key, &value, MDB_APPEND), "put");
    s->key++;
    s->pending += size;
    if (s->pending >= BATCH) {
        commit(s);
        begin(s, 0, 0);
    }
}

static void finish(void *writer) {
    store *s = (store *)writer;
    commit(s);
    if (s->sync)
        must(mdb_env_sync(s->env, 1), "sync");
    mdb_env_close(s->env);
    free(s);
}

static void *open_reader(const char *path, const workload *load) {
    store *s =
        open_store(path, map_size(load), MDB_RDONLY | MDB_NORDAHEAD | MDB_NOLOCK);
    s->count = load->count;
    begin(s, MDB_RDONLY, 0);
    return s;
}

static bags_view get(void *reader, uint64_t index) {
    const store *s = (const store *)reader;
    size_t number = (size_t)index;
    MDB_val key = {sizeof number, &number}, value;
    must(mdb_get(s->txn, s->dbi, &key, &value), "get");
    bags_view blob = {(const unsigned char *)value.mv_data, value.mv_size};
    return blob;
}

static uint64_t range(void *reader, uint64_t start, uint64_t stop) {
    const store *s = (const store *)reader;
    size_t number = (size_t)start;
    MDB_val key = {sizeof number, &number}, value;
    uint64_t sum = 0;
    MDB_cursor_op where = MDB_SET;
    for (uint64_t i = start; i < stop; i++, where = MDB_NEXT) {
        must(mdb_cursor_get(s->cursor, &key, &value, where), "next");
        sum += consume((const unsigned char *)value.mv_data, value.mv_size);
    }
    return sum;
}

static uint64_t scan(void *reader) {
    return range(reader, 0, ((const store *)reader)->count);
}

/* The same environment, and a transaction of its own. */
static void *share(void *reader) {
    store *s = (store *)need_memory(sizeof *s);
    *s = *(const store *)reader;
    begin(s, MDB_RDONLY, 0);
    return s;
}

static void unshare(void *shared) {
    store *s = (store *)shared;
    mdb_cursor_close(s->cursor);
    mdb_txn_abort(s->txn);
    free(s);
}

static void release(void *reader) {
    MDB_env *env = ((store *)reader)->env;
    unshare(reader);
    mdb_env_close(env);
}

const peer peer_lmdb = {"LMDB", NULL, NULL, NULL, 0, create, append, finish,
    open_reader, get, NULL, range, scan, NULL, share, unshare, release};
#endif
