/*
 * formats/storage/cache.c, over hooks of this test: whatever fails, is damaged or killed, what is
 * read is what the other hooks have. Each file call fails in turn, or the process is
 * killed there. A part of the points is tested; with BAGS_SOAK set, every one.
 *
 * tests/command/caching.py tests it with servers and processes.
 */
// flavours: test: release; check: asan tsan
#define _GNU_SOURCE 1
#include "check.h"
#include "system/shim.h"

#include "../../../formats/formats.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what is far away: two files, of which each version has other bytes ---- */

#define SIZE ((uint64_t)200001)

typedef struct far_away {
    bags_io io;
    uint64_t version;
    pthread_mutex_t lock;
    uint64_t bytes; /* that were read */
    bool anonymous; /* nothing identifies a version */
    unsigned waits; /* ms, for each read */
} far_away;

static unsigned char byte_at(uint64_t file, uint64_t version, uint64_t offset) {
    uint64_t x = (offset >> 3) * UINT64_C(0x9E3779B97F4A7C15) + 31 * file + version;
    return (unsigned char)((x ^ x >> 29) >> 8 * (offset & 7));
}

/* "a" is file 1, "b" is file 2. */
static int far_open(void *user, const char *path, int mode, void **file) {
    (void)user, (void)mode;
    *file = (void *)(uintptr_t)(path[0] == 'a' ? 1 : 2);
    return 0;
}

static int far_close(void *user, void *file) {
    (void)user, (void)file;
    return 0;
}

static int far_size(void *user, void *file, uint64_t *size) {
    (void)user, (void)file;
    *size = SIZE;
    return 0;
}

/* A part of what is requested. */
static int far_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    far_away *far = (far_away *)user;
    size = size > 70000 ? 70000 : size;
    size = offset < SIZE && size > SIZE - offset ? (size_t)(SIZE - offset) : size;
    *done = offset < SIZE ? size : 0;
    for (size_t i = 0; i < *done; i++)
        ((unsigned char *)data)[i] = byte_at((uintptr_t)file, far->version, offset + i);
    if (far->waits)
        usleep(1000 * far->waits);
    pthread_mutex_lock(&far->lock);
    far->bytes += *done;
    pthread_mutex_unlock(&far->lock);
    return 0;
}

static int far_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    const far_away *far = (const far_away *)user;
    (void)file, (void)path;
    memset(identity, 0, sizeof *identity);
    identity->inode = far->anonymous ? 7 : far->version;
    identity->time = 7;
    identity->size = SIZE;
    return 0;
}

static void far_start(far_away *far, uint64_t version) {
    memset(far, 0, sizeof *far);
    pthread_mutex_init(&far->lock, NULL);
    far->version = version;
    far->io.user = far;
    far->io.open = far_open;
    far->io.close = far_close;
    far->io.size = far_size;
    far->io.read_at = far_read;
    far->io.identify = far_identify;
}

/* ---- the program that reads ---- */

static unsigned warnings;
static char warned[512];

static void note_warning(void *user, const char *message) {
    (void)user;
    warnings++;
    snprintf(warned, sizeof warned, "%s", message);
}

static bags_cache *open_cache(uint64_t size, bags_error *err) {
    bags_cache_options options;
    memset(&options, 0, sizeof options);
    options.size = size;
    options.warn = note_warning;
    return bags_cache_open(at("cache"), &options, err);
}

static void check_bytes(
    uint64_t file, uint64_t version, uint64_t offset, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)data)[i] != byte_at(file, version, offset + i)) {
            fprintf(stderr, "file %u: byte %u is wrong\n", (unsigned)file,
                (unsigned)(offset + i));
            abort(); /* also in a thread, or a child */
        }
}

/* Read `size` bytes, or up to the end. */
static void read_range(const bags_io *io, void *file, uint64_t number, uint64_t version,
    uint64_t offset, size_t size) {
    static __thread unsigned char data[SIZE];
    size_t used = 0;
    while (used < size && offset + used < SIZE) {
        size_t done = 0;
        if (io->read_at(
                io->user, file, offset + used, data + used, size - used, &done) ||
            !done)
            abort(); /* what is far away does not fail */
        used += done;
    }
    check_bytes(number, version, offset, data, used);
}

/* Which starts threads; the shim is not for them. */
#if defined(__SANITIZE_THREAD__)
static bool announces = false;
#else
static bool announces = true;
#endif

/* Announce some of what is read, read ranges together, and the rest one by one. */
static void read_files(bags_cache *cache, far_away *far) {
    static unsigned char data[4][40000];
    bags_io_read reads[5];
    void *files[2];
    const bags_io *io = bags_cache_io(cache, &far->io, NULL);
    if (!io)
        abort();
    for (int i = 0; i < 2; i++)
        if (io->open(io->user, i ? "b" : "a", BAGS_IO_READ, &files[i]))
            abort();
    memset(reads, 0, sizeof reads);
    for (size_t i = 0; i < 5; i++) {
        reads[i].file = files[i % 2];
        reads[i].offset = i == 4 ? 150000 : i * 15000 + 5;
        reads[i].size = i == 4 ? 30000 : sizeof data[0];
        reads[i].data = i == 4 ? NULL : data[i];
    }
    io->read_many(io->user, reads, announces ? 5 : 4);
    for (size_t i = 0; i < 4; i++)
        check_bytes(
            1 + i % 2, far->version, reads[i].offset, reads[i].data, reads[i].done);
    for (int i = 0; i < 2; i++)
        for (uint64_t from = 0; from < SIZE; from += 33333)
            read_range(io, files[i], 1 + (uint64_t)i, far->version, from, 33333);
    for (int i = 0; i < 2; i++)
        io->close(io->user, files[i]);
}

/* All of it, if the directory can be opened. */
static bool run(uint64_t size, uint64_t version) {
    far_away far;
    bags_error err;
    far_start(&far, version);
    bags_cache *cache = open_cache(size, &err);
    if (cache)
        read_files(cache, &far);
    bags_cache_close(cache);
    return cache != NULL;
}

#define LARGE ((uint64_t)1 << 24)

static uint64_t bytes_of(uint64_t size, uint64_t version) {
    far_away far;
    bags_cache *cache;
    far_start(&far, version);
    assert_opens(cache, open_cache(size, &said));
    read_files(cache, &far);
    bags_cache_close(cache);
    return far.bytes;
}

/* ---- what is kept ---- */

static void each_byte_is_read_once(void **state) {
    (void)state;
    assert_int_equal(bytes_of(LARGE, 1), 2 * SIZE);
    assert_int_equal(bytes_of(LARGE, 1), 0);
}

static void versions_are_kept_side_by_side(void **state) {
    (void)state;
    assert_int_equal(bytes_of(LARGE, 1), 2 * SIZE);
    assert_int_equal(bytes_of(LARGE, 2), 2 * SIZE);
    assert_int_equal(bytes_of(LARGE, 1), 0);
    assert_int_equal(bytes_of(LARGE, 2), 0);
}

static void what_nothing_identifies_is_not_kept(void **state) {
    far_away far;
    bags_cache *cache;
    (void)state;
    far_start(&far, 1);
    far.anonymous = true;
    assert_opens(cache, open_cache(LARGE, &said));
    read_files(cache, &far);
    uint64_t first = far.bytes;
    far.version = 2;
    read_files(cache, &far);
    assert_int_equal(far.bytes, 2 * first);
    bags_cache_close(cache);
}

/* ---- faults ---- */

static uint64_t step(void) {
    static uint64_t random = 1;
    return getenv("BAGS_SOAK")
               ? 1
               : 1 + next_random(&random) % (support_stride() > 1 ? 39 : 13);
}

static void remove_cache(void) {
    if (exists(at("cache")))
        remove_tree(at("cache"));
}

/* The calls of a first run, or of one that finds everything. */
static uint64_t count_calls(shim *calls, bool again) {
    remove_cache();
    if (again)
        assert_true(run(LARGE, 1));
    memset(calls, 0, sizeof *calls);
    shim_in_use = calls;
    calls->armed = true;
    assert_true(run(LARGE, 1));
    calls->armed = false;
    assert_int_equal(calls->files, 0);
    assert_int_equal(calls->dirs, 0);
    return calls->calls;
}

static void any_file_call_may_fail(void **state) {
    static const int errors[] = {EIO, ENOSPC, ENOENT, EINTR, 0};
    shim calls;
    (void)state;
    for (int again = 0; again < 2; again++)
        for (size_t kind = 0; kind < 10; kind++) {
            uint64_t count = count_calls(&calls, again), n = 0;
            assert_true(count > 20);
            while ((n += step()) <= count) {
                bool stays = kind % 2;
                remove_cache();
                if (again)
                    assert_true(run(LARGE, 1));
                memset(&calls, 0, sizeof calls);
                calls.error = errors[kind / 2] ? errors[kind / 2] : EIO;
                calls.effect = errors[kind / 2] ? EFFECT_FAIL : EFFECT_SHORT;
                /* A call that is always interrupted never ends. */
                calls.stays = stays && calls.error != EINTR;
                calls.fail_at = n;
                calls.armed = true;
                warnings = 0;
                bool opened = run(LARGE, 1);
                calls.armed = false;
                assert_int_equal(calls.files, 0);
                assert_int_equal(calls.dirs, 0);
                assert_in_range(warnings, 0, 1);
                if (warnings)
                    assert_true(contains(warned, "cache: the cache cannot be written"));
                if (calls.effect == EFFECT_SHORT)
                    assert_true(opened && !warnings);
                /* What it left is right, and the directory is of use again. */
                assert_true(bytes_of(LARGE, 1) <= 2 * SIZE);
                if (opened || calls.error != EIO)
                    assert_int_equal(bytes_of(LARGE, 1), 0);
            }
        }
    shim_in_use = NULL;
}

static void a_file_system_without_large_files_is_warned_of(void **state) {
    shim calls;
    (void)state;
    remove_cache();
    memset(&calls, 0, sizeof calls);
    calls.error = EFBIG;
    calls.only = ONLY(CALL_WRITE);
    calls.stays = calls.armed = true;
    calls.fail_at = 5;
    warnings = 0;
    shim_in_use = &calls;
    assert_true(run(LARGE, 1));
    shim_in_use = NULL;
    assert_int_equal(warnings, 1);
    assert_true(contains(warned, strerror(EFBIG)));
}

static void a_process_may_be_killed_at_any_file_call(void **state) {
    static const enum effect effects[] = {
        EFFECT_DIE_BEFORE, EFFECT_DIE_HALFWAY, EFFECT_DIE_AFTER};
    shim calls;
    uint64_t kills = 0;
    (void)state;
    for (size_t kind = 0; kind < 3; kind++) {
        uint64_t count = count_calls(&calls, false), n = 0;
        while ((n += step()) <= count) {
            if (n % 3 == 0)
                remove_cache();
            memset(&calls, 0, sizeof calls);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                calls.fail_at = n;
                calls.effect = effects[kind];
                calls.armed = true;
                run(LARGE, 1 + n % 2);
                _exit(0);
            }
            int status = 0;
            assert_true(waitpid(child, &status, 0) == child);
            assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : !status);
            kills += WIFSIGNALED(status);
            assert_true(run(LARGE, 1 + n % 2));
        }
    }
    shim_in_use = NULL;
    assert_true(kills > 6);
}

/* ---- damage ---- */

static void check_damaged(const char *path, const void *data, size_t size) {
    save(path, data, size);
    assert_true(run(LARGE, 1));
}

/* Every bit of the header of a segment, some of its data, of the answers and of the
 * count of bytes; every length. */
static void damage_is_read_again(void **state) {
    uint64_t random = 5;
    (void)state;
    bags_http_answer answer;
    memset(&answer, 0, sizeof answer);
    answer.size = 5000;
    strcpy(answer.tag, "\"tag\"");
    strcpy(answer.modified, "then");
    bags_cache *cache;
    assert_opens(cache, open_cache(LARGE, &said));
    bags_cache_remember(cache, "a", &answer);
    bags_cache_close(cache);
    assert_true(run(LARGE, 1));
    bool announced = announces;
    announces = false;
    char *names = names_in(at("cache/bags-cache-1"));
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " ")) {
        char path[600];
        snprintf(path, sizeof path, "%s", at("cache/bags-cache-1/%s", name));
        bytes all = load(path);
        for (int i = 0; i < (support_stride() > 1 ? 24 : 100); i++) {
            uint64_t bits = 8 * all.size;
            uint64_t bit = next_random(&random) % (i % 2 && bits > 32768 ? 32768
                                                      : bits             ? bits
                                                                         : 1);
            all.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            check_damaged(path, all.data, all.size);
            if (contains(name, "answer")) {
                bags_http_answer found;
                memset(&found, 0, sizeof found);
                assert_opens(cache, open_cache(LARGE, &said));
                assert_false(bags_cache_recall(cache, "a", &found));
                bags_cache_close(cache);
            }
            all.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            if (i % 4 == 0)
                check_damaged(path, all.data, next_random(&random) % (all.size + 1));
        }
        check_damaged(path, all.data, all.size);
        bytes_free(&all);
    }
    free(names);
    announces = announced;
}

/* ---- threads, and a small directory ---- */

typedef struct sharer {
    pthread_t thread;
    bags_cache *cache;
    far_away *far;
    uint64_t seed;
    bool once; /* all of "a" from a start of its own, in place of random ranges */
} sharer;

static void *share(void *user) {
    sharer *s = (sharer *)user;
    uint64_t random = s->seed;
    void *files[2];
    const bags_io *io = bags_cache_io(s->cache, &s->far->io, NULL);
    if (!io || io->open(io->user, "a", BAGS_IO_READ, &files[0]) ||
        io->open(io->user, "b", BAGS_IO_READ, &files[1]))
        abort();
    for (uint64_t i = 0; i < (s->once ? 10 : 150); i++) {
        uint64_t offset = s->once ? (s->seed * 60000 + i * 20000) % 200000
                                  : next_random(&random) % SIZE;
        uint64_t number = s->once ? 0 : next_random(&random) % 2;
        bags_io_read ahead = {files[number], offset, NULL, 60000, 0};
        if (!s->once && i % 4 == 0)
            io->read_many(io->user, &ahead, 1);
        read_range(io, files[number], 1 + number, s->far->version, offset, 20001);
    }
    io->close(io->user, files[0]);
    io->close(io->user, files[1]);
    return NULL;
}

static void share_all(sharer *sharers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        sharers[i].seed = i;
        assert_int_equal(
            pthread_create(&sharers[i].thread, NULL, share, &sharers[i]), 0);
    }
    for (size_t i = 0; i < count; i++)
        pthread_join(sharers[i].thread, NULL);
}

/* Two versions, two openings of the directory, and less space than either needs. */
static void threads_share_a_small_directory(void **state) {
    far_away far[2];
    sharer sharers[8];
    bags_cache *caches[2];
    (void)state;
    memset(sharers, 0, sizeof sharers);
    for (uint64_t i = 0; i < 2; i++) {
        far_start(&far[i], 1 + i);
        assert_opens(caches[i], open_cache(BAGS_CACHE_LEAST, &said));
    }
    for (size_t i = 0; i < 8; i++) {
        sharers[i].cache = caches[i % 2];
        sharers[i].far = &far[i / 2 % 2];
    }
    share_all(sharers, 8);
    for (int i = 0; i < 2; i++)
        bags_cache_close(caches[i]);
}

/* Also by several openings, as processes have: each block is read by one, and the
 * others wait for it. */
static void sharers_read_each_byte_once(void **state) {
    far_away far;
    sharer sharers[4];
    bags_cache *caches[2];
    (void)state;
    memset(sharers, 0, sizeof sharers);
    far_start(&far, 1);
    far.waits = 5;
    for (int i = 0; i < 2; i++)
        assert_opens(caches[i], open_cache(LARGE, &said));
    for (size_t i = 0; i < 4; i++) {
        sharers[i].cache = caches[i % 2];
        sharers[i].far = &far;
        sharers[i].once = true;
    }
    share_all(sharers, 4);
    assert_int_equal(far.bytes, SIZE);
    for (int i = 0; i < 2; i++)
        bags_cache_close(caches[i]);
}

static void a_size_that_is_too_small_is_refused(void **state) {
    (void)state;
    assert_refused(BAGS_ERROR_ARGUMENT, open_cache(BAGS_CACHE_LEAST - 1, &said));
    assert_says("at least");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(each_byte_is_read_once),
        TEST(versions_are_kept_side_by_side),
        TEST(what_nothing_identifies_is_not_kept),
        TEST(any_file_call_may_fail),
        TEST(a_file_system_without_large_files_is_warned_of),
        TEST(a_process_may_be_killed_at_any_file_call),
        TEST(damage_is_read_again),
        TEST(threads_share_a_small_directory),
        TEST(sharers_read_each_byte_once),
        TEST(a_size_that_is_too_small_is_refused),
    };
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
