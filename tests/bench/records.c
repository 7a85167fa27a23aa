/* Workloads of blobs: every peer writes them and reads them back. The peers
 * take turns, and who begins changes from round to round. */
#include "bench.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* peers[] without those that are not wanted or cannot be. */
static const peer *at_work[32];
static size_t at_work_count;

static const peer *peer_of(const char *name) {
    for (size_t i = 0; peers[i]; i++)
        if (strcmp(peers[i]->name, name) == 0)
            return peers[i];
    return NULL;
}

static bool is_at_work(const char *name) {
    for (size_t i = 0; i < at_work_count; i++)
        if (strcmp(at_work[i]->name, name) == 0)
            return true;
    return false;
}

static void choose(const workload *load) {
    at_work_count = 0;
    for (size_t i = 0; peers[i]; i++) {
        const peer *p = peers[i];
        if (!wanted(load->name, p->name))
            continue;
        if (p->lacking)
            skip(p->name, p->lacking);
        else if (!p->reads || is_at_work(p->reads))
            at_work[at_work_count++] = p;
    }
}

/* All files of a workload must stay in memory, or it is the disk that is
 * measured: so many blobs at most. */
static uint64_t fitting;

static void fit(const workload *load) {
    uint64_t files = 1, memory = memory_available() / 10 * 7;
    for (size_t i = 0; i < at_work_count; i++)
        files += !at_work[i]->reads && !at_work[i]->most;
    fitting = memory / files / load->size;
    if (fitting < load->count)
        printf("%s: %llu blobs only, for want of memory\n", load->name,
            (unsigned long long)fitting);
}

/* As many blobs as a peer can do in reasonable time. */
static workload part_of(const workload *load, const peer *p) {
    workload part = *load;
    uint64_t most = set.small ? p->most / 50 : p->most;
    if (fitting && part.count > fitting)
        part.count = fitting;
    if (most && part.count > most)
        part.count = most;
    if (part.steps > part.count)
        part.steps = part.count;
    return part;
}

static const char *file_of(const peer *p) {
    return place(p->reads ? p->reads : p->name, "data.bag");
}

/* A peer that times itself; the small version leaves that to its check. */
static double run_script(
    const peer *p, const char *operation, const char *path, const workload *load) {
    char command[8192], line[64] = "";
    snprintf(command, sizeof command, "/usr/bin/python3 %s '%s' '%s' %llu %zu %llu",
        p->script, operation, path, (unsigned long long)load->count, load->size,
        (unsigned long long)load->steps);
    FILE *out = popen(command, "r");
    bool read = out && fgets(line, sizeof line, out);
    if (!out || pclose(out) || !read)
        die("%s failed", command);
    return strtod(line, NULL);
}

/* ------------------------------------------------------------------ writing */

static void write_all(const peer *p, const workload *load, bool sync) {
    void *writer = p->create(place(p->name, "data.bag"), load, sync);
    for (uint64_t i = 0; i < load->count; i++)
        p->append(writer, blob_data(i), load->size);
    p->finish(writer);
}

static void time_script_writing(const peer *p, const workload *part, bool sync) {
    static const char *const operations[] = {"write", CPU_TIME, "write, synced"};
    for (size_t i = sync ? 2 : 0; i < (sync ? 3 : 2); i++) {
        record(operations[i], p->name, NANOSECONDS,
            run_script(p, operations[i], place(p->name, "data.bag"), part));
        remove_place(p->name);
    }
}

static void time_writing(const peer *p, const workload *load, bool sync) {
    const char *operation = sync ? "write, synced" : "write";
    workload part = part_of(load, p);
    remove_place(p->name);
    warm_memory(part.count * part.size);
    if (p->script) {
        time_script_writing(p, &part, sync);
        return;
    }
    double start = wall_time(), cpu = cpu_time();
    write_all(p, &part, sync);
    record(operation, p->name, NANOSECONDS,
        (wall_time() - start) * 1e9 / (double)part.count);
    if (!sync)
        record(CPU_TIME, p->name, NANOSECONDS,
            (cpu_time() - cpu) * 1e9 / (double)part.count);
}

/* What the files take beside the blobs, for each blob; for a Bag exactly, for
 * the whole file. */
static void record_size(const peer *p, const workload *load) {
    if (p->reads)
        return;
    workload part = part_of(load, p);
    tree_size size = measure_place(p->name);
    uint64_t blobs = part.count * part.size;
    record("disk beside blobs", p->name, BYTES,
        ((double)size.allocated - (double)blobs) / (double)part.count);
    record("bytes beside blobs", p->name, BYTES, (double)size.bytes - (double)blobs);
}

static uint64_t memory_alone(const peer *p, const workload *load) {
    char program[4096], command[8192], line[64] = "0";
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    snprintf(command, sizeof command, "'%s' %s --folder '%s' --write '%s' '%s'",
        program, set.small ? "--small" : "", set.folder, load->name, p->name);
    FILE *out = popen(command, "r");
    bool read = out && fgets(line, sizeof line, out);
    if (!out || pclose(out) || !read)
        die("%s failed", command);
    return strtoull(line, NULL, 10);
}

static void record_memory(const peer *p, const workload *load) {
    if (p->reads)
        return;
    remove_place(p->name);
    record("writer's memory", p->name, BYTES, (double)memory_alone(p, load));
    remove_place(p->name);
}

int write_alone(const char *part_name, const char *who) {
    const peer *p = peer_of(who);
    for (size_t i = 0; i < WORKLOADS && p; i++) {
        if (strcmp(workloads[i].name, part_name) != 0)
            continue;
        workload part = part_of(&workloads[i], p);
        blob_data(0);
        uint64_t before = memory_used("VmRSS");
        write_all(p, &part, false);
        printf("%llu\n", (unsigned long long)(memory_used("VmHWM") - before));
        return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------ reading */

static void time_open(const peer *p, const workload *load) {
    double times[9];
    for (size_t i = 0; i < 9; i++) {
        double start = wall_time();
        void *reader = p->open(file_of(p), load);
        bags_view blob = p->get(reader, 0);
        sink += consume(blob.data, blob.size);
        times[i] = wall_time() - start;
        p->close(reader);
    }
    record("open, first get", p->name, NANOSECONDS, median(times, 9) * 1e9);
}

/* What is timed: `steps` times something, and how much of it is a step. */
typedef uint64_t steps_function(
    const peer *p, void *reader, const workload *load, const uint64_t *order);

static uint64_t get_steps(
    const peer *p, void *reader, const workload *load, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < load->steps; i++)
        sum += p->get(reader, order[i]).size;
    return sum;
}

static uint64_t touch_steps(
    const peer *p, void *reader, const workload *load, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < load->steps; i++) {
        bags_view blob = p->get(reader, order[i]);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

/* As one fills a batch: the size is known, and checked. (A copy whose size
 * comes from the table takes four times as long on some processors, since they
 * do not go on before they know where it ends.) */
static void copy_one(
    const peer *p, void *reader, uint64_t index, unsigned char *to, size_t size) {
    if (p->copy) {
        p->copy(reader, index, to);
        return;
    }
    bags_view blob = p->get(reader, index);
    if (blob.size != size)
        die("%s: a blob of %zu bytes", p->name, blob.size);
    memcpy(to, blob.data, size);
}

static uint64_t copy_steps(
    const peer *p, void *reader, const workload *load, const uint64_t *order) {
    unsigned char *to = (unsigned char *)need_memory(load->size);
    memset(to, 0, load->size);
    for (uint64_t i = 0; i < load->steps; i++)
        copy_one(p, reader, order[i], to, load->size);
    uint64_t last = to[0];
    free(to);
    return last;
}

static uint64_t range_of(const peer *p, void *reader, uint64_t start, uint64_t stop) {
    if (p->range)
        return p->range(reader, start, stop);
    uint64_t sum = 0;
    for (uint64_t i = start; i < stop; i++) {
        bags_view blob = p->get(reader, i);
        sum += consume(blob.data, blob.size);
    }
    return sum;
}

#define WIDTH 16

static uint64_t range_steps(
    const peer *p, void *reader, const workload *load, const uint64_t *order) {
    uint64_t places = load->count < WIDTH ? 1 : load->count - WIDTH + 1;
    uint64_t width = load->count < WIDTH ? load->count : WIDTH, sum = 0;
    for (uint64_t i = 0; i < load->steps; i += WIDTH)
        sum += range_of(p, reader, order[i] % places, order[i] % places + width);
    return sum;
}

static uint64_t scan_steps(
    const peer *p, void *reader, const workload *load, const uint64_t *order) {
    (void)load, (void)order;
    return p->scan(reader);
}

typedef struct operation {
    const char *name;
    steps_function *run;
    bool fresh; /* the reader was opened just now: no page is mapped */
    bool by_index;
    uint64_t width; /* blobs a step; 0: all of them, each a step */
} operation;

static const operation operations[] = {
    {"first touch", touch_steps, true, true, 1},
    {"pointer", get_steps, false, true, 1},
    {"touch", touch_steps, false, true, 1},
    {"copy", copy_steps, false, true, 1},
    {"range of 16", range_steps, false, true, WIDTH},
    {"scan", scan_steps, false, false, 0},
};

static double steps_of(const operation *o, const workload *load) {
    if (o->width == 0)
        return (double)load->count;
    return (double)((load->steps + o->width - 1) / o->width);
}

/* All readers stay open, and their pages mapped, but where a fresh one is asked
 * for. The first pass over a file is not timed. */
static void time_reading(
    const peer *p, void **reader, const workload *load, const operation *o) {
    if (p->script) {
        if (set.small)
            return;
        if (o->run == copy_steps || o->run == range_steps || o->run == scan_steps)
            record(o->name, p->name, NANOSECONDS,
                run_script(p, o->name, file_of(p), load));
        return;
    }
    if (o->by_index && !p->get)
        return;
    const uint64_t *order = random_order(load->count);
    if (o->fresh) {
        p->close(*reader);
        *reader = p->open(file_of(p), load);
    }
    double start = cpu_time();
    sink += o->run(p, *reader, load, order);
    record(
        o->name, p->name, NANOSECONDS, (cpu_time() - start) * 1e9 / steps_of(o, load));
}

/* ------------------------------------------------------------------ threads */

typedef struct worker {
    const peer *p;
    void *reader;
    workload load;
    const uint64_t *order;
    uint64_t sum;
} worker;

static void *work(void *argument) {
    worker *w = (worker *)argument;
    w->sum = copy_steps(w->p, w->reader, &w->load, w->order);
    return NULL;
}

static double time_threads(
    const peer *p, void *reader, const workload *load, size_t count) {
    pthread_t threads[2];
    worker workers[2];
    const uint64_t *order = random_order(load->count);
    for (size_t i = 0; i < count; i++) {
        worker w = {p, p->share(reader), *load, order, 0};
        w.load.steps = load->steps / count;
        w.order += i * w.load.steps;
        workers[i] = w;
    }
    double start = wall_time();
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            die("pthread_create");
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    double time = wall_time() - start;
    for (size_t i = 0; i < count; i++) {
        sink += workers[i].sum;
        p->unshare(workers[i].reader);
    }
    return time * 1e9 / (double)(workers[0].load.steps * count);
}

static void time_sharing(const peer *p, void *reader, const workload *load) {
    if (!p->share || load->steps < 2)
        return;
    record("copy, 1 thread", p->name, NANOSECONDS, time_threads(p, reader, load, 1));
    record("copy, 2 threads", p->name, NANOSECONDS, time_threads(p, reader, load, 2));
}

/* ----------------------------------------------------------------- checking */

static void check_script(const peer *p, const workload *load) {
    char expected[32], command[8192], line[64] = "";
    snprintf(expected, sizeof expected, "%llu\n",
        (unsigned long long)blob_sum(0, load->count, load->size));
    snprintf(command, sizeof command, "/usr/bin/python3 %s check '%s' 0 0 0", p->script,
        file_of(p));
    FILE *out = popen(command, "r");
    bool read = out && fgets(line, sizeof line, out);
    check(out && pclose(out) == 0 && read && strcmp(line, expected) == 0, p->name,
        "the blobs that it reads");
}

/* Whatever the peer reads is what was written: of many blobs some thousand. */
static void check_reading(const peer *p, void *reader, const workload *load) {
    uint64_t step = 1 + load->count / 2000;
    unsigned char *to = (unsigned char *)need_memory(load->size);
    bool gets = true, copies = true, ranges = true;
    for (uint64_t i = 0; i < load->count && p->get; i += step) {
        uint64_t stop = i + 3 < load->count ? i + 3 : load->count;
        bags_view blob = p->get(reader, i);
        gets = gets && blob.size == load->size &&
               memcmp(blob.data, blob_data(i), load->size) == 0;
        memset(to, 0, load->size);
        copy_one(p, reader, i, to, load->size);
        copies = copies && memcmp(to, blob_data(i), load->size) == 0;
        ranges =
            ranges && range_of(p, reader, i, stop) == blob_sum(i, stop, load->size);
    }
    free(to);
    if (p->get) {
        check(gets, p->name, "get");
        check(copies, p->name, "copy");
        check(ranges, p->name, "a range");
    }
    check(p->scan(reader) == blob_sum(0, load->count, load->size), p->name, "scan");
}

/* A Bag is the blobs, N + 1 entries, and nothing else. */
static void check_size(const peer *p, const workload *load) {
    if (p == &peer_bag || p == &peer_ideal)
        check(result_of(load->name, "bytes beside blobs", p->name) ==
                  8 * (double)(load->count + 1),
            p->name, "the size of the file");
}

/* -------------------------------------------------------------------- turns */

static const peer *turn_of(int round, size_t i) {
    return at_work[(i + (size_t)round) % at_work_count];
}

/* Synced writing waits for whatever the machine writes: the small version does
 * it with its smallest workload alone. */
static void write_round(const workload *load, int round) {
    bool syncs = !set.small || load->count <= 4;
    for (int sync = 0; sync < (syncs ? 2 : 1); sync++)
        for (size_t i = 0; i < at_work_count; i++) {
            const peer *p = turn_of(round, i);
            if (p->script ? !set.small : !p->reads)
                time_writing(p, load, sync);
        }
}

static void read_round(const workload *load, int round, void **readers) {
    size_t count = sizeof operations / sizeof *operations;
    for (size_t o = 0; o < count; o++)
        for (size_t i = 0; i < at_work_count; i++) {
            const peer *p = turn_of(round, i);
            workload part = part_of(load, p);
            time_reading(p, &readers[(i + (size_t)round) % at_work_count], &part,
                &operations[o]);
        }
    for (size_t i = 0; i < at_work_count; i++) {
        const peer *p = turn_of(round, i);
        workload part = part_of(load, p);
        void *reader = readers[(i + (size_t)round) % at_work_count];
        if (!p->script) {
            time_sharing(p, reader, &part);
            if (p->get)
                time_open(p, &part);
        } else if (!set.small) {
            record("open, first get", p->name, NANOSECONDS,
                run_script(p, "open, first get", file_of(p), &part));
        }
    }
}

static void open_readers(const workload *load, void **readers) {
    for (size_t i = 0; i < at_work_count; i++) {
        const peer *p = at_work[i];
        workload part = part_of(load, p);
        readers[i] = NULL;
        if (p->script) {
            if (set.small)
                check_script(p, &part);
            continue;
        }
        readers[i] = p->open(file_of(p), &part);
        check_reading(p, readers[i], &part);
        check_size(p, &part);
    }
}

static void close_readers(void **readers) {
    for (size_t i = 0; i < at_work_count; i++)
        if (readers[i])
            at_work[i]->close(readers[i]);
}

void bench_records(const workload *load) {
    void *readers[32];
    choose(load);
    if (at_work_count == 0)
        return;
    begin_part(load->name);
    fit(load);
    for (size_t i = 0; i < at_work_count; i++)
        record_memory(at_work[i], load);
    for (int round = 0; round < set.rounds; round++)
        write_round(load, round);
    for (size_t i = 0; i < at_work_count; i++)
        record_size(at_work[i], load);
    open_readers(load, readers);
    for (int round = 0; round < set.rounds; round++)
        read_round(load, round, readers);
    close_readers(readers);
    for (size_t i = 0; i < at_work_count; i++)
        if (!at_work[i]->reads)
            remove_place(at_work[i]->name);
}
