/* Blobs that are on the disk and not in memory: one by one, and 32 at a time.
 * The references are pread(), and 32 reads by io_uring, on a file without a
 * table. */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef BENCH_WITH_LIBURING
#include <liburing.h>
#endif

#define BATCH 32

static uint64_t singles, batches;

/* A peer's file without its blobs in memory, and a reader that knows already
 * where they are: the table of a Bag is small and stays. */
static void *open_cold(const peer *p, const workload *load) {
    const char *name = p->reads ? p->reads : p->name;
    if (make_cold(name, load->count * load->size))
        return p->open(place(name, "data.bag"), load);
    printf("skipped: cold reads, %s: the system kept the file in memory\n", p->name);
    return NULL;
}

static void time_single(const peer *p, const workload *load, const uint64_t *order) {
    void *reader = open_cold(p, load);
    if (!reader)
        return;
    double start = wall_time();
    for (uint64_t i = 0; i < singles; i++) {
        bags_view blob = p->get(reader, order[i]);
        sink += consume(blob.data, blob.size);
    }
    record("cold, single", p->name, NANOSECONDS,
        (wall_time() - start) * 1e9 / (double)singles);
    p->close(reader);
}

static void time_batch(const peer *p, const workload *load, const uint64_t *order) {
    void *reader = open_cold(p, load);
    if (!reader)
        return;
    double start = wall_time();
    for (uint64_t i = 0; i < batches * BATCH; i++) {
        if (i % BATCH == 0 && p->prefetch)
            p->prefetch(reader, order + i, BATCH);
        bags_view blob = p->get(reader, order[i]);
        sink += consume(blob.data, blob.size);
    }
    record("cold, batch of 32", p->name, NANOSECONDS,
        (wall_time() - start) * 1e9 / (double)(batches * BATCH));
    p->close(reader);
}

#ifdef BENCH_WITH_LIBURING
static void read_batch(struct io_uring *ring, int file, const workload *load,
    const uint64_t *order, unsigned char *room) {
    for (size_t i = 0; i < BATCH; i++)
        io_uring_prep_read(io_uring_get_sqe(ring), file, room + i * load->size,
            (unsigned)load->size, order[i] * load->size);
    if (io_uring_submit_and_wait(ring, BATCH) != BATCH)
        die("io_uring: submit");
    for (size_t i = 0; i < BATCH; i++) {
        struct io_uring_cqe *done;
        if (io_uring_wait_cqe(ring, &done) || done->res != (int)load->size)
            die("io_uring: read");
        io_uring_cqe_seen(ring, done);
    }
    for (size_t i = 0; i < BATCH; i++)
        sink += consume(room + i * load->size, load->size);
}

static void time_uring(const workload *load, const uint64_t *order) {
    struct io_uring ring;
    if (!make_cold(peer_raw.name, load->count * load->size))
        return;
    if (io_uring_queue_init(BATCH, &ring, 0)) {
        printf("skipped: io_uring: the system does not allow it\n");
        return;
    }
    int file = need_open(place(peer_raw.name, "data.bag"), O_RDONLY);
    unsigned char *room = (unsigned char *)need_memory(BATCH * load->size);
    memset(room, 0, BATCH * load->size);
    double start = wall_time();
    for (uint64_t i = 0; i < batches; i++)
        read_batch(&ring, file, load, order + i * BATCH, room);
    record("cold, batch of 32", "io_uring", NANOSECONDS,
        (wall_time() - start) * 1e9 / (double)(batches * BATCH));
    free(room);
    close(file);
    io_uring_queue_exit(&ring);
}
#else
static void time_uring(const workload *load, const uint64_t *order) {
    (void)load, (void)order;
    skip("io_uring", "liburing-dev");
}
#endif

static const peer *const cold_peers[] = {&peer_raw, &peer_ideal, &peer_bag,
    &peer_bag_random, &peer_bag_no_mmap, &peer_dataset, &peer_lmdb, &peer_sqlite};

void bench_cold(const workload *load) {
    size_t count = sizeof cold_peers / sizeof *cold_peers;
    if (load->size < 4096 || load->count < 4 * BATCH)
        return;
    const uint64_t *order = random_order(load->count);
    singles = set.small ? 4 : 256;
    batches = set.small ? 1 : 16;
    for (int round = 0; round < set.rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            const peer *p = cold_peers[(i + (size_t)round) % count];
            if (p->lacking || !wanted(load->name, p->name))
                continue;
            time_single(p, load, order);
            time_batch(p, load, order);
        }
        if (wanted(load->name, peer_raw.name))
            time_uring(load, order);
    }
}
