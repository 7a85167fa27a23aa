/* Many threads: on one reader, each with its own row; and each with a writer,
 * as workers of one dataset. Only the main thread asserts. */
// flavours: check: release asan tsan
#include "check.h"
#include <time.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#define THREADS 8
#define SHARDS 12
#define EACH 25
#define TOTAL (SHARDS * EACH)
#define FILES (SHARDS * 5) /* three fields, refs, spec.json */

static size_t text_of(uint64_t index, size_t item, char *text) {
    size_t size = (size_t)snprintf(text, 64, "%d/%d ", (int)index, (int)item);
    size_t more = (size_t)(index * 13 + item * 7) % 90;
    fill(text + size, more, index * 100 + item);
    return size + more;
}

static size_t items_of(uint64_t index) { return (size_t)(index % 6); }

/* Fields: a, plain; b, a sequence; n, numbers that are copied when decoded. */
static void save_shards(const char *path) {
    make_dir(path);
    for (uint64_t s = 0; s < SHARDS; s++) {
        hand_set set;
        char text[200], shard[4096];
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "bytes");
        set_field(&set, "b", "bytes[]");
        set_field(&set, "n", "array(uint64,2)");
        for (uint64_t i = s * EACH; i < (s + 1) * EACH; i++) {
            bytes numbers = {NULL, 0, 0};
            size_t items = items_of(i);
            put_u64(&numbers, i);
            put_u64(&numbers, i * i);
            set_begin(&set);
            set_blob(&set, 0, text, text_of(i, 0, text));
            put_array(&set.row, items ? 2 : 0);
            if (items) {
                put_uint(&set.row, hand_length(&set.bags[1]));
                put_uint(&set.row, items);
            }
            for (size_t k = 0; k < items; k++)
                hand_add(&set.bags[1], text, text_of(i, k, text));
            set_blob(&set, 2, numbers.data, 16);
            hand_add(&set.bags[2], "orphan", i % 7);
            set_end(&set);
            bytes_free(&numbers);
        }
        snprintf(shard, sizeof shard, "%s/%06d", path, (int)s);
        set_save(&set, V1, shard);
        set_free(&set);
    }
}

typedef struct job {
    const bags_reader *reader;
    const bag_reader *bag;
    const char *path;
    uint64_t seed;
    int reads;
    char fault[256]; /* empty: no fault */
} job;

static bool same(bags_view blob, const char *text, size_t size) {
    return blob.size == size && (!size || memcmp(blob.data, text, size) == 0);
}

/* The fields a and b of datapoint `index`. Returns NULL, or what is wrong. */
static const char *read_texts(
    const bags_reader *reader, uint64_t index, bags_row *row, bags_error *err) {
    char text[200];
    if (bags_reader_get(reader, index, NULL, 0, row, err))
        return err->message;
    if (!same(bags_row_bytes(row, 0, 0), text, text_of(index, 0, text)))
        return "other bytes in a";
    if (bags_row_length(row, 1) != items_of(index))
        return "another length of b";
    for (size_t k = 0; k < items_of(index); k++)
        if (!same(bags_row_bytes(row, 1, k), text, text_of(index, k, text)))
            return "other bytes in b";
    return NULL;
}

static const char *read_point(job *j, uint64_t index, bags_row *row, bags_error *err) {
    uint64_t count = 99;
    bags_value value;
    const char *wrong = read_texts(j->reader, index, row, err);
    if (wrong)
        return wrong;
    if (bags_row_value(row, 2, 0, NULL, &value, err))
        return err->message;
    if (((const uint64_t *)value.data)[1] != index * index)
        return "another number in n";
    if (bags_reader_items(j->reader, index, 1, row, &count, err))
        return err->message;
    return count == items_of(index) ? NULL : "another count of b";
}

static const char *read_part(job *j, uint64_t start, bags_row *row, bags_error *err) {
    char text[200];
    uint64_t stop = start + 40;
    if (bags_reader_get_range(j->reader, start, stop, 0, row, err))
        return err->message;
    stop = stop < TOTAL ? stop : TOTAL;
    if (bags_row_length(row, 0) != stop - start)
        return "another length of the range";
    for (uint64_t i = start; i < stop; i++)
        if (!same(
                bags_row_bytes(row, 0, (size_t)(i - start)), text, text_of(i, 0, text)))
            return "other bytes in the range";
    return NULL;
}

/* Some datapoints that were prefetched. */
static const char *read_list(job *j, uint64_t index, bags_row *row, bags_error *err) {
    char text[200];
    uint64_t list[4];
    for (size_t i = 0; i < 4; i++)
        list[i] = (index + i * 97) % TOTAL;
    if (bags_reader_prefetch(j->reader, list, 4, NULL, 0, row, err))
        return err->message;
    if (bags_reader_get_many(j->reader, list, 4, 0, row, err))
        return err->message;
    for (size_t i = 0; i < 4; i++)
        if (!same(bags_row_bytes(row, 0, i), text, text_of(list[i], 0, text)))
            return "other bytes in the list";
    return NULL;
}

static void *read_much(void *user) {
    job *j = (job *)user;
    bags_row row = {0};
    bags_error err;
    uint64_t random = j->seed;
    for (int i = 0; i < j->reads && !*j->fault; i++) {
        uint64_t index = next_random(&random) % TOTAL;
        const char *fault = i % 5 == 0   ? read_part(j, index, &row, &err)
                            : i % 5 == 1 ? read_list(j, index, &row, &err)
                                         : read_point(j, index, &row, &err);
        if (!fault && i % 50 == 7 &&
            bags_reader_get(j->reader, TOTAL, NULL, 0, &row, &err) != BAGS_ERROR_RANGE)
            fault = "a datapoint past the end";
        if (!fault && j->seed == 1 && i % 100 == 3 &&
            bags_verify(j->path, NULL, NULL, &err))
            fault = err.message;
        if (fault)
            snprintf(j->fault, sizeof j->fault, "%.200s", fault);
    }
    bags_row_free(&row);
    return NULL;
}

static void run_jobs(job *jobs, void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++)
        if (*jobs[i].fault)
            fail_msg("thread %d: %s", (int)i, jobs[i].fault);
}

/* Local files, counted without a lock, which would hide a lock that the library
 * lacks, and with relaxed ordering. */
static uint64_t opens, closes;

static int count_open(void *user, const char *path, int mode, void **file) {
    __atomic_fetch_add(&opens, 1, __ATOMIC_RELAXED);
    return bags_io_local()->open(user, path, mode, file);
}

static int count_close(void *user, void *file) {
    __atomic_fetch_add(&closes, 1, __ATOMIC_RELAXED);
    return bags_io_local()->close(user, file);
}

/* With a watch or without. */
static void read_by_threads(bags_reader_options *options, int reads, bool watched) {
    bags_reader *reader;
    job jobs[THREADS];
    bags_io counted = *bags_io_local();
    counted.open = count_open;
    counted.close = count_close;
    options->env.allocator = watched ? &memory.allocator : NULL;
    options->env.io = watched ? &disk.io : &counted;
    const char *path = at("x");
    assert_opens(reader, bags_reader_open(path, options, &said));
    assert_true(bags_reader_length(reader) == TOTAL);
    memset(jobs, 0, sizeof jobs);
    for (size_t i = 0; i < THREADS; i++) {
        jobs[i].reader = reader;
        jobs[i].path = path;
        jobs[i].seed = i + 1;
        jobs[i].reads = reads;
    }
    run_jobs(jobs, read_much);
    bags_reader_close(reader);
}

static void check_readers(bags_reader_options *options, int reads) {
    read_by_threads(options, reads, true);
    read_by_threads(options, reads, false);
}

static void threads_share_a_mapped_reader(void **state) {
    bags_reader_options options;
    (void)state;
    save_shards(at("x"));
    memset(&options, 0, sizeof options);
    /* Repeated, so that threads compete for the first use of the files. */
    for (int round = 0; round < 20; round++)
        check_readers(&options, 30);
    check_readers(&options, 2000);
}

static void threads_share_a_few_maps(void **state) {
    bags_reader_options options;
    (void)state;
    save_shards(at("x"));
    for (size_t maps = 1; maps < 40; maps = maps * 3) {
        memset(&options, 0, sizeof options);
        disk.most_maps = (int)maps;
        options.max_files = 5;
        read_by_threads(&options, 300, true);
        assert_true(disk.peak_maps <= (int)maps);
        disk.peak_maps = 0;
    }
}

static void threads_share_a_few_open_files(void **state) {
    bags_reader_options options;
    (void)state;
    save_shards(at("x"));
    for (size_t files = 1; files <= 16; files *= 4)
        for (int load = 0; load < 2; load++) {
            memset(&options, 0, sizeof options);
            options.no_mmap = true;
            options.cache_index = load == 1;
            options.max_files = files;
            disk.peak_files = 0;
            opens = closes = 0;
            check_readers(&options, 300);
            print_message("at most %d open%s: %d files opened again\n", (int)files,
                load ? ", index cached" : "", (int)opens - FILES);
            /* Most reads close one file and open another. */
            assert_true(closes > 300 * THREADS);
            assert_true(opens == closes);
            /* Each thread may hold the files it is reading. */
            assert_true(disk.peak_files <= (int)files + THREADS + 1);
        }
}

static void threads_share_a_reader_that_cannot_map(void **state) {
    bags_reader_options options;
    (void)state;
    save_shards(at("x"));
    memset(&options, 0, sizeof options);
    disk.only = 1u << HOOK_MAP;
    disk.fail_at = 20; /* some are mapped, and then no more */
    disk.stays = true;
    check_readers(&options, 300);
}

/* Some shards cannot be opened: only their datapoints fail. */
static void *read_damaged(void *user) {
    job *j = (job *)user;
    bags_row row = {0};
    bags_error err;
    uint64_t random = j->seed;
    for (int i = 0; i < j->reads && !*j->fault; i++) {
        uint64_t index = next_random(&random) % TOTAL;
        bool damaged = index / EACH % 3 == 1;
        const char *fault = NULL;
        bags_code code = bags_reader_get(j->reader, index, NULL, 0, &row, &err);
        if (damaged)
            fault = code == BAGS_ERROR_CORRUPT ? NULL : "a damaged shard is read";
        else
            fault = read_point(j, index, &row, &err);
        if (fault)
            snprintf(j->fault, sizeof j->fault, "%.200s", fault);
    }
    bags_row_free(&row);
    return NULL;
}

static void threads_get_errors_for_shards_that_cannot_be_opened(void **state) {
    (void)state;
    save_shards(at("x"));
    for (int s = 1; s < SHARDS; s += 3)
        save_text(at("x/%06d/n.bag", s), "no Bag");
    for (int mode = 0; mode < 6; mode++) {
        bags_reader_options options;
        bags_reader *reader;
        job jobs[THREADS];
        memset(&options, 0, sizeof options);
        options.no_mmap = mode % 3 > 0;
        options.cache_index = mode % 3 > 1;
        options.max_files = mode < 3 ? 0 : 1;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        memset(jobs, 0, sizeof jobs);
        for (size_t i = 0; i < THREADS; i++) {
            jobs[i].reader = reader;
            jobs[i].seed = i + 7;
            jobs[i].reads = 300;
        }
        run_jobs(jobs, read_damaged);
        bags_reader_close(reader);
    }
}

/* ---- one Bag ---- */

static void *read_bag(void *user) {
    job *j = (job *)user;
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    uint64_t random = j->seed;
    for (int i = 0; i < 2000 && !*j->fault; i++) {
        char text[200];
        uint64_t index = next_random(&random) % 500;
        bags_view blob;
        bag_blobs range;
        bags_error err;
        if (bag_reader_get(j->bag, index, &scratch, &blob, &err) ||
            !same(blob, text, text_of(index, 0, text)) ||
            bag_reader_get_range(j->bag, index, index + 9, &scratch, &range, &err) ||
            !same(bag_blobs_get(&range, 0), text, text_of(index, 0, text)))
            snprintf(j->fault, sizeof j->fault, "blob %d is wrong", (int)index);
    }
    bags_buffer_free(&scratch);
    return NULL;
}

static void threads_share_a_bag(void **state) {
    hand_bag bag = {{0}, {0}};
    char text[200];
    (void)state;
    for (uint64_t i = 0; i < 500; i++)
        hand_add(&bag, text, text_of(i, 0, text));
    hand_save(&bag, V1, at("."), "x");
    hand_free(&bag);
    for (int mode = 0; mode < 3; mode++) {
        bag_reader_options options;
        job jobs[THREADS];
        bag_reader *reader;
        memset(&options, 0, sizeof options);
        options.no_mmap = mode > 0;
        options.cache_index = mode > 1;
        options.env.io = &disk.io;
        assert_opens(reader, bag_reader_open(at("x.bag"), &options, &said));
        memset(jobs, 0, sizeof jobs);
        for (size_t i = 0; i < THREADS; i++) {
            jobs[i].bag = reader;
            jobs[i].seed = i;
        }
        run_jobs(jobs, read_bag);
        bag_reader_close(reader);
    }
}

/* ---- workers ---- */

static void *write_shards(void *user) {
    static const bags_field fields[] = {{"a", "utf8"}, {"n", "int(4)"}};
    job *j = (job *)user;
    bags_writer_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.shard_length = 7;
    options.shard_start = j->seed;
    options.shard_stop = THREADS;
    options.buffer_size = 4096;
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(j->fault + 1, fields, 2, &options, &err);
    /* Until here, fault contains the path after its first byte. */
    memset(j->fault, 0, sizeof j->fault);
    bags_code code = writer ? BAGS_OK : err.code;
    for (int i = 0; i < j->reads && !code; i++) {
        char text[64];
        bags_value values[2];
        bags_entry entries[2] = {{"a", &values[0], 1}, {"n", &values[1], 1}};
        snprintf(text, sizeof text, "worker %d, %d", (int)j->seed, i);
        values[0] = bags_utf8(text);
        values[1] = bags_int(i);
        code = bags_writer_append(writer, entries, 2, &err);
    }
    bags_code closed = bags_writer_close(writer, code ? NULL : &err);
    if (code || closed)
        snprintf(j->fault, sizeof j->fault, "%.200s", err.message);
    return NULL;
}

static void workers_write_one_dataset(void **state) {
    job jobs[THREADS];
    (void)state;
    memset(jobs, 0, sizeof jobs);
    for (size_t i = 0; i < THREADS; i++) {
        jobs[i].seed = i;
        jobs[i].reads = 14 + (int)i % 2 * 7;
        snprintf(jobs[i].fault + 1, sizeof jobs[i].fault - 1, "%.200s", at("p/x"));
    }
    run_jobs(jobs, write_shards);
    /* Odd workers wrote one shard more. */
    assert_refused(BAGS_ERROR_GAP, bags_reader_open(at("p/x"), NULL, &said));
    bags_reader_options options;
    bags_reader *reader;
    bags_row row = {0};
    memset(&options, 0, sizeof options);
    options.allow_gaps = true;
    assert_opens(reader, bags_reader_open(at("p/x"), &options, &said));
    assert_true(shard_count(reader) == 20);
    assert_true(bags_reader_length(reader) == 140);
    assert_ok(verify_path(at("p/x"), NULL, &said));
    for (uint64_t s = 0; s < 20; s++) {
        bags_shard shard = shard_at(reader, s);
        for (uint64_t i = 0; i < 7; i++) {
            char text[64];
            snprintf(text, sizeof text, "worker %d, %d", (int)(shard.number % THREADS),
                (int)(shard.number / THREADS * 7 + i));
            assert_ok(bags_reader_get(reader, shard.start + i, NULL, 0, &row, &said));
            assert_text(bags_row_bytes(&row, 0, 0), text);
        }
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    uint64_t renamed = 0;
    assert_ok(bags_finalize(at("p/x"), NULL, &renamed, &said));
    assert_opens(reader, bags_reader_open(at("p/x"), NULL, &said));
    assert_true(bags_reader_length(reader) == 140);
    bags_reader_close(reader);
}

/* ---- readers while another thread writes ---- */

#define NUMBERED_TOTAL 2000

static bags_code append_numbered(bags_writer *writer, uint64_t index, bags_error *err) {
    char text[200], items[6][200];
    bags_value value, values[6];
    bags_entry entries[2] = {{"a", &value, 1}, {"b", values, 0}};
    value = bags_blob(text, text_of(index, 0, text));
    for (size_t k = 0; k < items_of(index); k++)
        values[k] = bags_blob(items[k], text_of(index, k, items[k]));
    entries[1].count = items_of(index);
    return bags_writer_append(writer, entries, 2, err);
}

static void *write_numbered(job *j) {
    static const bags_field fields[] = {{"a", "bytes"}, {"b", "bytes[]"}};
    bags_writer_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.shard_length = 90;
    options.buffer_size = 4096;
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(j->path, fields, 2, &options, &err);
    bags_code code = writer ? BAGS_OK : err.code;
    for (uint64_t i = 0; i < NUMBERED_TOTAL && !code; i++) {
        code = append_numbered(writer, i, &err);
        if (i % 5 == 3 && !code)
            code = bags_writer_flush(writer, &err);
    }
    bags_code closed = bags_writer_close(writer, code ? NULL : &err);
    if (code || closed)
        snprintf(j->fault, sizeof j->fault, "%.200s", err.message);
    return NULL;
}

/* Thread 0 writes; the others open the dataset until everything is in it. */
static void *watch_numbered(void *user) {
    job *j = (job *)user;
    bags_reader_options options;
    bags_row row = {0};
    bags_error err;
    uint64_t seen = 0;
    const char *fault = NULL;
    if (j->seed == 0)
        return write_numbered(j);
    memset(&options, 0, sizeof options);
    options.unfinished = BAGS_UNFINISHED_READ;
    options.no_mmap = j->seed % 2;
    options.max_files = j->seed % 3;
    while (seen < NUMBERED_TOTAL && !fault) {
        bags_reader *reader = bags_reader_open(j->path, &options, &err);
        if (!reader && !seen &&
            (err.code == BAGS_ERROR_MISSING || err.code == BAGS_ERROR_UNFINISHED))
            continue;
        fault = reader ? NULL : err.message;
        uint64_t length = reader ? bags_reader_length(reader) : seen;
        if (length < seen)
            fault = "fewer datapoints than before";
        for (uint64_t i = length > 20 ? length - 20 : 0; i < length && !fault; i++)
            fault = read_texts(reader, i, &row, &err);
        if (length && !fault)
            fault = read_texts(reader, (seen * 7 + j->seed) % length, &row, &err);
        seen = length;
        bags_reader_close(reader);
    }
    if (fault)
        snprintf(j->fault, sizeof j->fault, "%.200s", fault);
    bags_row_free(&row);
    return NULL;
}

static void threads_read_while_another_writes(void **state) {
    job jobs[THREADS];
    (void)state;
    memset(jobs, 0, sizeof jobs);
    for (size_t i = 0; i < THREADS; i++) {
        jobs[i].path = at("live");
        jobs[i].seed = i;
    }
    run_jobs(jobs, watch_numbered);
}

/* One reader of unfinished shards, with few open files, while its writer
 * continues. */
static void *share_unfinished(void *user) {
    job *j = (job *)user;
    bags_row row = {0};
    bags_error err;
    uint64_t length = bags_reader_length(j->reader), random = j->seed;
    const char *fault = NULL;
    for (int i = 0; i < 1500 && !fault; i++)
        fault = read_texts(j->reader, next_random(&random) % length, &row, &err);
    if (fault)
        snprintf(j->fault, sizeof j->fault, "%.200s", fault);
    bags_row_free(&row);
    return NULL;
}

static void threads_share_a_reader_of_unfinished_shards(void **state) {
    static const bags_field fields[] = {{"a", "bytes"}, {"b", "bytes[]"}};
    (void)state;
    for (int way = 0; way < 3; way++) {
        bags_reader_options options;
        bags_reader *reader;
        bags_writer *writer;
        job jobs[THREADS];
        bags_writer_options with;
        memset(&with, 0, sizeof with);
        with.no_sync = true;
        assert_opens(
            writer, bags_writer_open(at("live%d", way), fields, 2, &with, &said));
        for (uint64_t i = 0; i < 300; i++)
            assert_ok(append_numbered(writer, i, &said));
        assert_ok(bags_writer_flush(writer, &said));
        memset(&options, 0, sizeof options);
        options.unfinished = BAGS_UNFINISHED_READ;
        options.no_mmap = way > 0;
        options.max_files = way > 1;
        assert_opens(reader, bags_reader_open(at("live%d", way), &options, &said));
        assert_true(bags_reader_length(reader) == 300);
        assert_ok(append_numbered(writer, 300, &said));
        assert_ok(bags_writer_close(writer, &said));
        memset(jobs, 0, sizeof jobs);
        for (size_t i = 0; i < THREADS; i++) {
            jobs[i].reader = reader;
            jobs[i].seed = i;
        }
        run_jobs(jobs, share_unfinished);
        bags_reader_close(reader);
    }
}

/* ---- encoding ---- */

#define VALUES 800

/* Values that several threads encode, and one thread appends in order. */
typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    bags_registry *codecs;
    bags_writer *writer;
    bytes blobs[VALUES][2]; /* of "numbers" and "text" */
    bool encoded[VALUES];
} queue;

static queue line;

static const bags_field encoded_fields[] = {
    {"numbers", "array(float64,-1)"}, {"text", "utf8"}};

/* Its blob must not depend on what other threads encode at the same time. */
static const char *encode_value(uint64_t i, bags_buffer *to, bags_buffer *from) {
    double numbers[40];
    uint64_t shape[1] = {i % 40};
    char text[200];
    size_t size = text_of(i, 3, text);
    bags_value values[2], back;
    bags_error err;
    for (size_t k = 0; k < 40; k++)
        numbers[k] = (double)i + (double)k / 8;
    for (size_t k = 0; k < size; k++)
        text[k] &= 127;
    values[0] = bags_array(BAGS_DTYPE_FLOAT64, 1, shape, numbers);
    values[1] = bags_utf8_sized(text, size);
    for (int f = 0; f < 2; f++) {
        const char *type = encoded_fields[f].type;
        bags_view blob;
        if (bags_encode(line.codecs, type, &values[f], to, &blob, &err) ||
            bags_decode(line.codecs, type, blob, from, &back, &err))
            return "a value is refused";
        if (back.size != values[f].size ||
            (back.size && memcmp(back.data, values[f].data, back.size) != 0))
            return "a value does not come back";
        put(&line.blobs[i][f], blob.data, blob.size);
    }
    return NULL;
}

static void *encode_many(void *user) {
    job *j = (job *)user;
    bags_buffer to = {0}, from = {0};
    for (uint64_t i = j->seed - 1; i < VALUES; i += THREADS - 1) {
        const char *fault = encode_value(i, &to, &from);
        if (fault)
            snprintf(j->fault, sizeof j->fault, "%s", fault);
        pthread_mutex_lock(&line.lock);
        line.encoded[i] = true;
        pthread_cond_signal(&line.ready);
        pthread_mutex_unlock(&line.lock);
    }
    bags_buffer_free(&to);
    bags_buffer_free(&from);
    return NULL;
}

static void *append_encoded(void *user) {
    job *j = (job *)user;
    bags_error err;
    for (uint64_t i = 0; i < VALUES && !*j->fault; i++) {
        bags_value values[2];
        bags_entry entries[2];
        pthread_mutex_lock(&line.lock);
        while (!line.encoded[i])
            pthread_cond_wait(&line.ready, &line.lock);
        pthread_mutex_unlock(&line.lock);
        for (size_t f = 0; f < 2; f++) {
            values[f] = bags_blob(line.blobs[i][f].data, line.blobs[i][f].size);
            entries[f].field = encoded_fields[f].name;
            entries[f].values = &values[f];
            entries[f].count = 1;
        }
        if (bags_writer_append(line.writer, entries, 2, &err))
            snprintf(j->fault, sizeof j->fault, "%.200s", err.message);
    }
    return NULL;
}

static void *encode_or_append(void *user) {
    return ((job *)user)->seed ? encode_many(user) : append_encoded(user);
}

static void threads_encode_while_one_appends(void **state) {
    job jobs[THREADS];
    bags_writer_options options;
    bags_reader *reader;
    bags_row row = {0};
    (void)state;
    memset(jobs, 0, sizeof jobs);
    memset(&line, 0, sizeof line);
    memset(&options, 0, sizeof options);
    pthread_mutex_init(&line.lock, NULL);
    pthread_cond_init(&line.ready, NULL);
    options.no_sync = true;
    options.env.io = &disk.io;
    assert_opens(line.codecs, bags_registry_create(NULL, &said));
    assert_opens(
        line.writer, bags_writer_open(at("x"), encoded_fields, 2, &options, &said));
    for (size_t i = 0; i < THREADS; i++)
        jobs[i].seed = i; /* 0 appends */
    run_jobs(jobs, encode_or_append);
    assert_ok(bags_writer_close(line.writer, &said));
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_true(bags_reader_length(reader) == VALUES);
    for (uint64_t i = 0; i < VALUES; i++) {
        bags_value value;
        assert_ok(bags_reader_get(reader, i, NULL, 0, &row, &said));
        assert_ok(bags_row_value(&row, 0, 0, NULL, &value, &said));
        assert_true(value.dims == 1 && value.shape[0] == i % 40);
        if (value.size)
            assert_true(*(const double *)value.data == (double)i);
        assert_bytes(
            bags_row_bytes(&row, 1, 0), line.blobs[i][1].data, line.blobs[i][1].size);
        bytes_free(&line.blobs[i][0]);
        bytes_free(&line.blobs[i][1]);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_registry_free(line.codecs);
    pthread_cond_destroy(&line.ready);
    pthread_mutex_destroy(&line.lock);
}

#ifndef _WIN32
/* ---- children that fork() made while threads read ---- */

typedef struct reading_on {
    job work;
    int stop;
} reading_on;

static void *read_on(void *user) {
    reading_on *on = (reading_on *)user;
    bags_row row = {0};
    bags_error err;
    for (uint64_t i = 0;
         !__atomic_load_n(&on->stop, __ATOMIC_ACQUIRE) && !*on->work.fault; i++) {
        const char *wrong = read_texts(on->work.reader, i * 37 % TOTAL, &row, &err);
        if (wrong)
            snprintf(on->work.fault, sizeof on->work.fault, "%.200s", wrong);
    }
    bags_row_free(&row);
    return NULL;
}

/* The exit status of a child that reads all datapoints. */
static int read_in_child(const bags_reader *reader) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        bags_row row = {0};
        bags_error err;
        alarm(300); /* it hangs */
        const char *wrong = NULL;
        for (uint64_t i = 0; i < TOTAL && !wrong; i += 5)
            wrong = read_texts(reader, i, &row, &err);
        _exit(wrong != NULL);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return status;
}

static void children_read_while_a_thread_reads(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its allocator may be locked in a child, since a thread allocates meanwhile */
#endif
    save_shards(at("x"));
    for (int i = 0; i < 60; i++) {
        const struct timespec moment = {0, i * 7919L % 300000};
        reading_on on;
        bags_reader_options options;
        bags_reader *reader;
        pthread_t thread;
        memset(&on, 0, sizeof on);
        memset(&options, 0, sizeof options);
        options.no_mmap = i % 2 == 1;
        options.max_files = 2;
        assert_opens(reader, bags_reader_open(at("x"), &options, &said));
        on.work.reader = reader;
        assert_true(!pthread_create(&thread, NULL, read_on, &on));
        nanosleep(&moment, NULL);
        for (int k = 0; k < 3; k++)
            assert_int_equal(read_in_child(reader), 0);
        __atomic_store_n(&on.stop, 1, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
        assert_string_equal(on.work.fault, "");
        bags_reader_close(reader);
    }
}

/* Hooks that wait, as those that need a lock of the thread that forks. */
static struct { int inside, go; } gate;

static int open_at_the_gate(void *user, const char *path, int mode, void **file) {
    const struct timespec moment = {0, 1000000};
    __atomic_store_n(&gate.inside, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&gate.go, __ATOMIC_SEQ_CST))
        nanosleep(&moment, NULL);
    return bags_io_local()->open(user, path, mode, file);
}

static void a_child_refuses_a_reader_whose_hook_a_thread_was_in(void **state) {
    const struct timespec moment = {0, 1000000};
    bags_io io = *bags_io_local();
    bags_reader_options options;
    bags_reader *readers[2];
    reading_on on;
    pthread_t thread;
    int status = 0;
    (void)state;
    save_shards(at("x"));
    memset(&on, 0, sizeof on);
    memset(&options, 0, sizeof options);
    memset(&gate, 0, sizeof gate);
    options.env.io = &io;
    gate.go = 1;
    io.open = open_at_the_gate;
    for (int i = 0; i < 2; i++)
        assert_opens(readers[i], bags_reader_open(at("x"), &options, &said));
    gate.go = gate.inside = 0;
    on.work.reader = readers[0];
    assert_true(!pthread_create(&thread, NULL, read_on, &on));
    while (!__atomic_load_n(&gate.inside, __ATOMIC_SEQ_CST))
        nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0) {
        bags_row row = {0};
        bags_info info;
        bool right =
            bags_reader_get(readers[0], 0, NULL, 0, &row, &said) == BAGS_ERROR_STATE &&
            strstr(said.message, "fork()") &&
            bags_reader_info(readers[0], &info, NULL, NULL) == BAGS_ERROR_STATE;
        alarm(300);
        bags_reader_close(readers[0]);
        gate.go = 1;
        right = right && !read_texts(readers[1], 7, &row, &said);
        bags_reader_close(readers[1]);
        _exit(!right);
    }
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    __atomic_store_n(&on.stop, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&gate.go, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    assert_string_equal(on.work.fault, "");
    for (int i = 0; i < 2; i++)
        bags_reader_close(readers[i]);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef _WIN32
        TEST(children_read_while_a_thread_reads),
        TEST(a_child_refuses_a_reader_whose_hook_a_thread_was_in),
#endif
        TEST(threads_share_a_mapped_reader),
        TEST(threads_share_a_few_maps),
        TEST(threads_share_a_few_open_files),
        TEST(threads_share_a_reader_that_cannot_map),
        TEST(threads_get_errors_for_shards_that_cannot_be_opened),
        TEST(threads_share_a_bag),
        TEST(workers_write_one_dataset),
        TEST(threads_read_while_another_writes),
        TEST(threads_share_a_reader_of_unfinished_shards),
        TEST(threads_encode_while_one_appends),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
