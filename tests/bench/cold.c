/* Blobs that are on the disk and not in memory: the first blob after opening, random blobs
 * one by one and 32 at a time, and blobs in order. The references are pread() of the bytes that a blob needs,
 * and 32 reads by io_uring that need no table.
 *
 * The read-ahead of the disk decides how much a touched page of a map costs. It is 128
 * KiB on most disks, and thousands on network disks and RAID. If the system allows it,
 * both are measured. */
#define _DEFAULT_SOURCE 1 /* makedev */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifdef BENCH_WITH_LIBURING
#include <liburing.h>
#endif

#define FIRSTS 5
#define SINGLES 96
#define BATCH 32
#define BATCHES 8
#define IN_ORDER ((uint64_t)32 << 20) /* bytes */

#define LOADS 3

static const workload full[LOADS] = {
    {"cold, 1 kB x 1,000,000", 1000000, 1000, 0},
    {"cold, 30 kB x 40,000", 40000, 30000, 0},
    {"cold, 1 MB x 1,000", 1000, 1000000, 0},
};

static const workload little[LOADS] = {
    {"cold, 1 kB x 1,000,000", 2000, 1000, 0},
    {"cold, 30 kB x 40,000", 400, 30000, 0},
    {"cold, 1 MB x 1,000", 20, 1000000, 0},
};

static const peer *const cold_peers[] = {&peer_pread_bag, &peer_bag, &peer_bag_random,
    &peer_bag_no_mmap, &peer_pread_dataset, &peer_dataset, &peer_dataset_random,
    &peer_dataset_no_mmap, &peer_lmdb, &peer_sqlite, &peer_sqlite_no_mmap, &peer_files};

#define PEERS (sizeof cold_peers / sizeof *cold_peers)

/* --------------------------------------------------------------- read-ahead */

/* The read-ahead of the disk that holds the files, in KiB. */
static char setting_path[64];
static long before; /* restored at the end; 0: unknown */

static long read_setting(void) {
    long value = 0;
    FILE *file = setting_path[0] ? fopen(setting_path, "r") : NULL;
    if (file && fscanf(file, "%ld", &value) != 1)
        value = 0;
    if (file)
        fclose(file);
    return value;
}

/* Also called by a signal handler. */
static bool write_setting(long value) {
    char digits[24];
    size_t at = sizeof digits;
    int file = open(setting_path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    do
        digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    size_t length = sizeof digits - at;
    bool good = write(file, digits + at, length) == (ssize_t)length;
    return close(file) == 0 && good;
}

static void restore_setting(void) {
    if (before)
        write_setting(before);
}

static void on_signal(int number) {
    restore_setting();
    signal(number, SIG_DFL);
    raise(number);
}

/* A partition has the queue of its disk. */
static void find_setting(void) {
    static const char *const forms[] = {"/sys/dev/block/%u:%u/queue/read_ahead_kb",
        "/sys/dev/block/%u:%u/../queue/read_ahead_kb"};
    struct stat info;
    if (stat(set.folder, &info))
        die("%s", set.folder);
    for (int i = 0; i < 2 && !before; i++) {
        snprintf(setting_path, sizeof setting_path, forms[i], major(info.st_dev),
            minor(info.st_dev));
        before = read_setting();
    }
}

/* The settings to measure. Tests change nothing of the machine. */
static int choose_settings(long *sizes) {
    static const int endings[] = {SIGINT, SIGTERM, SIGHUP, SIGABRT, SIGSEGV};
    find_setting();
    sizes[0] = before;
    printf("cold reads: %s, read_ahead_kb is %ld\n", setting_path, before);
    if (set.small || !before || !write_setting(before)) {
        before = 0;
        return 1;
    }
    atexit(restore_setting);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        signal(endings[i], on_signal);
    sizes[0] = 128;
    sizes[1] = 8192;
    return 2;
}

/* Drop the page cache, directories and inodes. If this returns false, it is not allowed,
 * and make_cold evicts the contents of the files. */
static bool drop_caches(void) {
    int file = set.small ? -1 : open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    static bool said;
    bool dropped = file >= 0 && write(file, "3", 1) == 1;
    if (file >= 0)
        close(file);
    if (!said && !set.small)
        printf("cold reads: %s\n",
            dropped ? "the page cache, directories and inodes are dropped"
                    : "files are evicted by posix_fadvise, directories stay");
    said = true;
    return dropped;
}

/* -------------------------------------------------------------------- turns */

/* No turn reads the blobs of another: the disk may hold them in a cache. */
static uint64_t turn;

typedef struct operation_names {
    char first[32], single[32], batch[32], in_order[32];
} operation_names;

/* A peer's file without its contents in memory, and a reader. */
static void *open_cold(const peer *p, const workload *load) {
    const char *name = p->reads ? p->reads : p->name;
    turn++;
    if (p == &peer_files || make_cold(name, load->count * load->size))
        return p->open(place(name, "data.bag"), load);
    printf("skipped: cold reads, %s: the system kept the file in memory\n", p->name);
    return NULL;
}

static uint64_t place_of(const workload *load, uint64_t i) {
    static uint64_t of;
    static const uint64_t *order;
    if (of != load->count) {
        of = load->count;
        order = random_order(of);
    }
    return order[(turn * (SINGLES + BATCH * BATCHES) + i) % of];
}

/* Opening, and the first blob. The files of peer_files are one more program that reads
 * the same bytes, such as cat. */
static void time_first(
    const peer *p, const workload *load, const operation_names *names) {
    double times[FIRSTS];
    for (uint64_t i = 0; i < FIRSTS; i++) {
        const char *name = p->reads ? p->reads : p->name;
        uint64_t index = place_of(load, i);
        turn++;
        if (!drop_caches() &&
            (p == &peer_files || !make_cold(name, load->count * load->size)))
            return;
        double start = wall_time();
        void *reader = p->open(place(name, "data.bag"), load);
        bags_view blob = p->get(reader, index);
        uint64_t sum = consume(blob.data, blob.size);
        times[i] = wall_time() - start;
        p->close(reader);
        check(sum == blob_sum(index, index + 1, load->size), p->name, names->first);
    }
    record(names->first, p->name, NANOSECONDS, median(times, FIRSTS) * 1e9);
}

static void time_single(
    const peer *p, const workload *load, const operation_names *names) {
    double times[SINGLES];
    uint64_t sum = 0, expected = 0;
    void *reader = open_cold(p, load);
    if (!reader)
        return;
    for (uint64_t i = 0; i < SINGLES; i++) {
        uint64_t index = place_of(load, i);
        double start = wall_time();
        bags_view blob = p->get(reader, index);
        sum += consume(blob.data, blob.size);
        times[i] = wall_time() - start;
        expected += blob_sum(index, index + 1, load->size);
    }
    p->close(reader);
    check(sum == expected, p->name, names->single);
    record(names->single, p->name, NANOSECONDS, median(times, SINGLES) * 1e9);
}

static void time_batch(
    const peer *p, const workload *load, const operation_names *names) {
    uint64_t indices[BATCH], sum = 0, expected = 0;
    double took = 0;
    void *reader = open_cold(p, load);
    if (!reader)
        return;
    for (uint64_t i = 0; i < BATCHES; i++) {
        for (uint64_t j = 0; j < BATCH; j++) {
            indices[j] = place_of(load, SINGLES + i * BATCH + j);
            expected += blob_sum(indices[j], indices[j] + 1, load->size);
        }
        double start = wall_time();
        p->prefetch(reader, indices, BATCH);
        for (uint64_t j = 0; j < BATCH; j++) {
            bags_view blob = p->get(reader, indices[j]);
            sum += consume(blob.data, blob.size);
        }
        took += wall_time() - start;
    }
    p->close(reader);
    check(sum == expected, p->name, names->batch);
    record(names->batch, p->name, NANOSECONDS, took * 1e9 / (BATCHES * BATCH));
}

static void time_in_order(
    const peer *p, const workload *load, const operation_names *names) {
    uint64_t count = IN_ORDER / load->size, sum = 0;
    void *reader = open_cold(p, load);
    if (!reader)
        return;
    if (count > load->count / 4)
        count = load->count / 4;
    uint64_t first = turn * count % (load->count - count);
    double start = wall_time();
    for (uint64_t i = first; i < first + count; i++) {
        bags_view blob = p->get(reader, i);
        sum += consume(blob.data, blob.size);
    }
    record(names->in_order, p->name, NANOSECONDS,
        (wall_time() - start) * 1e9 / (double)count);
    p->close(reader);
    check(sum == blob_sum(first, first + count, load->size), p->name, names->in_order);
}

#ifdef BENCH_WITH_LIBURING
/* The blobs of a Bag have one size and start at 0: 32 reads need no table. */
static void time_uring(const workload *load, const operation_names *names) {
    struct io_uring ring;
    double took = 0;
    turn++;
    if (!make_cold(peer_bag.name, load->count * load->size))
        return;
    if (io_uring_queue_init(BATCH, &ring, 0)) {
        printf("skipped: io_uring: the system does not allow it\n");
        return;
    }
    int file = need_open(place(peer_bag.name, "data.bag"), O_RDONLY);
    unsigned char *room = (unsigned char *)need_memory(BATCH * load->size);
    memset(room, 0, BATCH * load->size);
    for (uint64_t i = 0; i < BATCHES; i++) {
        double start = wall_time();
        for (size_t j = 0; j < BATCH; j++)
            io_uring_prep_read(io_uring_get_sqe(&ring), file, room + j * load->size,
                (unsigned)load->size,
                place_of(load, SINGLES + i * BATCH + j) * load->size);
        if (io_uring_submit_and_wait(&ring, BATCH) != BATCH)
            die("io_uring: submit");
        for (size_t j = 0; j < BATCH; j++) {
            struct io_uring_cqe *done;
            if (io_uring_wait_cqe(&ring, &done) || done->res != (int)load->size)
                die("io_uring: read");
            io_uring_cqe_seen(&ring, done);
        }
        for (size_t j = 0; j < BATCH; j++)
            sink += consume(room + j * load->size, load->size);
        took += wall_time() - start;
    }
    record(names->batch, "io_uring", NANOSECONDS, took * 1e9 / (BATCHES * BATCH));
    free(room);
    close(file);
    io_uring_queue_exit(&ring);
}
#else
static void time_uring(const workload *load, const operation_names *names) {
    (void)load, (void)names;
    skip("io_uring", "liburing-dev");
}
#endif

/* -------------------------------------------------------------------- parts */

static workload part_of(const workload *load, const peer *p) {
    workload part = *load;
    uint64_t most = set.small ? p->most / 50 : p->most;
    if (most && part.count > most)
        part.count = most;
    return part;
}

/* Readers of files that another peer writes need that peer. */
static void write_files(const workload *load, const bool *at_work) {
    for (size_t i = 0; i < PEERS; i++) {
        const peer *p = cold_peers[i];
        bool needed = at_work[i];
        for (size_t j = 0; j < PEERS && !needed; j++)
            needed = at_work[j] && cold_peers[j]->reads &&
                     strcmp(cold_peers[j]->reads, p->name) == 0;
        if (!needed || p->reads)
            continue;
        workload part = part_of(load, p);
        remove_place(p->name);
        void *writer = p->create(place(p->name, "data.bag"), &part, true);
        for (uint64_t b = 0; b < part.count; b++)
            p->append(writer, blob_data(b), part.size);
        p->finish(writer);
    }
}

static void time_round(const workload *load, const bool *at_work, int round,
    const operation_names *names) {
    drop_caches();
    for (size_t i = 0; i < PEERS; i++) {
        size_t who = (i + (size_t)round) % PEERS;
        const peer *p = cold_peers[who];
        if (!at_work[who])
            continue;
        workload part = part_of(load, p);
        time_first(p, &part, names);
        time_single(p, &part, names);
        if (p->prefetch)
            time_batch(p, &part, names);
        time_in_order(p, &part, names);
    }
    if (wanted(load->name, peer_bag.name))
        time_uring(load, names);
}

static void measure_part(const workload *load, const long *sizes, int count) {
    static operation_names names[2];
    bool at_work[PEERS], any = false;
    for (size_t i = 0; i < PEERS; i++) {
        const peer *p = cold_peers[i];
        at_work[i] = wanted(load->name, p->name) && !p->lacking;
        any = any || at_work[i];
    }
    if (!any)
        return;
    begin_part(load->name);
    write_files(load, at_work);
    for (int s = 0; s < count; s++) {
        snprintf(names[s].first, 32, "first, %ld KiB", sizes[s]);
        snprintf(names[s].single, 32, "single, %ld KiB", sizes[s]);
        snprintf(names[s].batch, 32, "batch of 32, %ld KiB", sizes[s]);
        snprintf(names[s].in_order, 32, "in order, %ld KiB", sizes[s]);
    }
    for (int round = 0; round < set.rounds; round++)
        for (int s = 0; s < count; s++) {
            if (count > 1 && !write_setting(sizes[s]))
                die("%s", setting_path);
            time_round(load, at_work, round, &names[s]);
        }
    restore_setting();
    for (size_t i = 0; i < PEERS; i++)
        if (!cold_peers[i]->reads)
            remove_place(cold_peers[i]->name);
}

void bench_cold(void) {
    const workload *loads = set.small ? little : full;
    long sizes[2];
    int count = 0;
    for (size_t i = 0; i < LOADS; i++) {
        if (set.part && !strstr(loads[i].name, set.part))
            continue;
        if (!count)
            count = choose_settings(sizes);
        measure_part(&loads[i], sizes, count);
    }
}
