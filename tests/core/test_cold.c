/* Mapped Bags that are not in memory. The pages of their maps are protected here, as if
 * they were on a disk: a page can be read once it has been requested. Touching it earlier
 * costs a fault, where a system would read much around it. */
// flavours: test: asan; check: release tsan
#include "check.h"

#ifdef __linux__
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT 3000                    /* datapoints; their table spans several pages */
#define MOST 2000                     /* bytes of an image */
#define WORDS 3                       /* most items of "words" */
#define SMALLEST ((size_t)256 * 1024) /* bytes of a Bag that may be cold */
#define MAPS 8
#define PAGES 4096
#define RESIDENT 4096 /* ranges in memory until a Bag is read as if it always was */

typedef struct map {
    unsigned char *data;
    size_t size;
    bool in_memory[PAGES];
} map;

static map maps[MAPS];
static int map_count;
static size_t page_size;
static volatile int faults; /* pages that were touched before they were requested */
static int requests, questions;

static map *map_of(const void *at) {
    for (int i = 0; i < map_count; i++)
        if ((const unsigned char *)at >= maps[i].data &&
            (const unsigned char *)at < maps[i].data + maps[i].size)
            return &maps[i];
    return NULL;
}

static void bring_in(map *to, size_t page) {
    size_t size = to->size - page * page_size;
    to->in_memory[page] = true;
    mprotect(
        to->data + page * page_size, size < page_size ? size : page_size, PROT_READ);
}

static void evict_all(void) {
    for (int i = 0; i < map_count; i++) {
        memset(maps[i].in_memory, 0, sizeof maps[i].in_memory);
        mprotect(maps[i].data, maps[i].size, PROT_NONE);
    }
    faults = requests = questions = 0;
}

static void on_fault(int number, siginfo_t *what, void *context) {
    map *touched = map_of(what->si_addr);
    (void)context;
    if (!touched) { /* a real one */
        signal(number, SIG_DFL);
        return;
    }
    faults++;
    bring_in(
        touched, (size_t)((unsigned char *)what->si_addr - touched->data) / page_size);
}

/* ---- a disk on which reads wait ----
 * A page that is requested is in flight until a read waits for any page: then all pages
 * in flight have arrived, as if the disk did everything at once. */

#define SLOW_FILES 16
#define SLOW_PAGES 128

enum { ON_DISK, IN_FLIGHT, IN_MEMORY };

typedef struct slow_file {
    char path[256];
    const void *map; /* while it is mapped */
    unsigned char pages[SLOW_PAGES];
} slow_file;

typedef struct slow_handle {
    slow_file *of;
    void *file;
} slow_handle;

static slow_file slow_files[SLOW_FILES];
static int slow_count, waits;

static int slow_open(void *user, const char *path, int mode, void **file) {
    slow_handle *handle = (slow_handle *)malloc(sizeof *handle);
    int i = 0, error = disk.io.open(user, path, mode, &handle->file);
    if (error) {
        free(handle);
        return error;
    }
    while (i < slow_count && strcmp(slow_files[i].path, path) != 0)
        i++;
    assert_true(i < SLOW_FILES && strlen(path) < sizeof slow_files->path);
    slow_count += i == slow_count;
    handle->of = &slow_files[i];
    strcpy(handle->of->path, path);
    *file = handle;
    return 0;
}

static int slow_close(void *user, void *file) {
    slow_handle *handle = (slow_handle *)file;
    int error = disk.io.close(user, handle->file);
    free(handle);
    return error;
}

static int slow_size(void *user, void *file, uint64_t *size) {
    return disk.io.size(user, ((slow_handle *)file)->file, size);
}

static int slow_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    return disk.io.identify(
        user, file ? ((slow_handle *)file)->file : NULL, path, identity);
}

static int slow_map(void *user, void *file, size_t size, const void **data) {
    slow_handle *handle = (slow_handle *)file;
    int error = disk.io.map(user, handle->file, size, data);
    if (!error)
        handle->of->map = *data;
    return error;
}

static int slow_unmap(void *user, const void *data, size_t size) {
    for (int i = 0; i < slow_count; i++)
        if (slow_files[i].map == data)
            slow_files[i].map = NULL;
    return disk.io.unmap(user, data, size);
}

/* False if the address is not in a map of the slow disk. */
static bool slow_mincore(const void *at, size_t size, unsigned char *states) {
    for (int i = 0; i < slow_count; i++) {
        uintptr_t offset = (uintptr_t)at - (uintptr_t)slow_files[i].map;
        if (!slow_files[i].map || offset >= SLOW_PAGES * page_size)
            continue;
        for (size_t k = 0; k < (size + page_size - 1) / page_size; k++)
            states[k] = slow_files[i].pages[offset / page_size + k] == IN_MEMORY;
        return true;
    }
    return false;
}

static int slow_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    slow_handle *handle = (slow_handle *)file;
    unsigned char *pages = handle->of->pages;
    size_t first = (size_t)offset / page_size;
    size_t last = (size_t)(offset + size - 1) / page_size;
    bool wait = false;
    assert_true(last < SLOW_PAGES);
    for (size_t page = first; page <= last; page++) {
        wait = wait || pages[page] != IN_MEMORY;
        pages[page] = IN_MEMORY;
    }
    for (int i = 0; i < slow_count && wait; i++)
        for (size_t page = 0; page < SLOW_PAGES; page++)
            if (slow_files[i].pages[page] == IN_FLIGHT)
                slow_files[i].pages[page] = IN_MEMORY;
    waits += wait;
    return disk.io.read_at(user, handle->file, offset, data, size, done);
}

static int slow_advise(void *user, void *file, const void *at, uint64_t offset,
    uint64_t size, bags_advice advice) {
    (void)user, (void)at;
    assert_true(file && (offset + size - 1) / page_size < SLOW_PAGES);
    unsigned char *pages = ((slow_handle *)file)->of->pages;
    for (size_t page = (size_t)offset / page_size;
         advice == BAGS_ADVICE_SOON && page <= (offset + size - 1) / page_size; page++)
        pages[page] = pages[page] == IN_MEMORY ? IN_MEMORY : IN_FLIGHT;
    return 0;
}

/* Its files are not mapped, so that every access is a call. */
static bags_reader *open_slow(const char *path) {
    static bags_io io;
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    io = disk.io;
    io.open = slow_open;
    io.close = slow_close;
    io.size = slow_size;
    io.identify = slow_identify;
    io.map = slow_map;
    io.unmap = slow_unmap;
    io.read_at = slow_read;
    io.advise = slow_advise;
    memset(slow_files, 0, sizeof slow_files);
    slow_count = waits = 0;
    options.env.io = &io;
    options.env.allocator = &memory.allocator;
    options.no_mmap = true;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

/* Called by bags.h in place of the system's. */
int mincore(void *at, size_t size, unsigned char *states) {
    const map *in = map_of(at);
    if (slow_mincore(at, size, states))
        return 0;
    __atomic_add_fetch(&questions, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < (size + page_size - 1) / page_size; i++)
        states[i] =
            !in ||
            in->in_memory[(size_t)((unsigned char *)at - in->data) / page_size + i];
    return 0;
}

static int map_on_disk(void *user, void *file, size_t size, const void **data) {
    int error = disk.io.map(user, file, size, data);
    if (!error && map_count < MAPS && size >= SMALLEST && size <= PAGES * page_size) {
        map *to = &maps[map_count++];
        to->data = (unsigned char *)(uintptr_t)*data;
        to->size = size;
        memset(to->in_memory, 0, sizeof to->in_memory);
        mprotect(to->data, size, PROT_NONE);
    }
    return error;
}

static int request(void *user, void *file, const void *at, uint64_t offset,
    uint64_t size, bags_advice advice) {
    map *in = map_of(at);
    (void)user, (void)file, (void)offset;
    if (advice != BAGS_ADVICE_SOON || !in)
        return 0;
    requests++;
    size_t first = (size_t)((const unsigned char *)at - in->data);
    for (size_t page = first / page_size; page <= (first + size - 1) / page_size;
         page++)
        bring_in(in, page);
    return 0;
}

static size_t image_of(uint64_t i, unsigned char image[MOST]) {
    size_t size = (size_t)(i * 61) % MOST;
    fill(image, MOST, i);
    return size;
}

static uint64_t words_of(uint64_t i) { return i % (WORDS + 1); }

static void save_points(const char *path, bool checksum) {
    const bags_field fields[] = {{"image", "bytes"}, {"words", "bytes[]"}};
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.checksum = checksum;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < COUNT; i++) {
        unsigned char image[MOST], word[WORDS][300];
        bags_value values[1 + WORDS];
        bags_entry entries[] = {
            {"image", values, 1}, {"words", values + 1, (size_t)words_of(i)}};
        values[0] = bags_bytes(image, image_of(i, image));
        for (uint64_t k = 0; k < WORDS; k++) {
            fill(word[k], sizeof word[k], i * WORDS + k);
            values[1 + k] = bags_bytes(word[k], sizeof word[k]);
        }
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bags_reader *open_points(const char *path, bool no_read_ahead, bool verify) {
    static bags_io io;
    bags_reader_options options;
    bags_reader *reader;
    struct sigaction action;
    memset(&options, 0, sizeof options);
    memset(&action, 0, sizeof action);
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    io = disk.io;
    io.map = map_on_disk;
    io.advise = request;
    map_count = 0;
    options.env.io = &io;
    options.env.allocator = &memory.allocator;
    options.no_read_ahead = no_read_ahead;
    options.verify_checksums = verify;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static void check_point(const bags_row *row, uint64_t i) {
    unsigned char image[MOST], word[300];
    assert_bytes(bags_row_bytes(row, 0, 0), image, image_of(i, image));
    assert_int_equal(bags_row_length(row, 1), words_of(i));
    for (uint64_t k = 0; k < words_of(i); k++) {
        fill(word, sizeof word, i * WORDS + k);
        assert_bytes(bags_row_bytes(row, 1, (size_t)k), word, sizeof word);
    }
}

static void read_point(bags_reader *reader, bags_row *row, uint64_t i) {
    assert_ok(bags_reader_get(reader, i, NULL, 0, row, &said));
    check_point(row, i);
}

static void close_points(bags_reader *reader, bags_row *row) {
    bags_row_free(row);
    bags_reader_close(reader);
    map_count = 0;
}

/* The first read opens both fields. */
static void opening_requests_exact_pages(void **state) {
    (void)state;
    save_points(at("x"), false);
    for (int random = 0; random < 2; random++) {
        bags_reader *reader = open_points(at("x"), random, false);
        bags_row row = {0};
        faults = requests = 0;
        read_point(reader, &row, 1500);
        assert_true(map_count >= 2 && requests > 0);
        assert_int_equal(faults, 0);
        close_points(reader, &row);
    }
}

/* The file of CRCs is small: its pages are touched. */
static void scattered_reads_request_exact_pages(void **state) {
    (void)state;
    save_points(at("x"), true);
    for (int kind = 0; kind < 3; kind++) {
        bags_reader *reader = open_points(at("x"), kind == 1, kind == 2);
        bags_row row = {0};
        read_point(reader, &row, 5);
        for (uint64_t n = 0; n < 200; n++) {
            evict_all();
            read_point(reader, &row, n * 1117 % COUNT);
            assert_true(requests > 0 && requests <= 4);
            assert_true(faults == 0 || (kind == 2 && faults <= 3));
        }
        close_points(reader, &row);
    }
}

static void a_read_in_order_is_left_to_the_system(void **state) {
    (void)state;
    save_points(at("x"), false);
    for (int random = 0; random < 2; random++) {
        bags_reader *reader = open_points(at("x"), random, false);
        bags_row row = {0};
        read_point(reader, &row, 99);
        evict_all();
        for (uint64_t i = 100; i < COUNT; i++)
            read_point(reader, &row, i);
        assert_true(random ? faults == 0 && requests > 0 : faults > 0 && requests == 0);
        close_points(reader, &row);
    }
}

static void ranges_and_lists_request_exact_pages(void **state) {
    static const uint64_t list[] = {2900, 17, 1500, 17, 1501};
    bags_row row = {0};
    (void)state;
    save_points(at("x"), false);
    bags_reader *reader = open_points(at("x"), false, false);
    read_point(reader, &row, 5);
    evict_all();
    assert_ok(bags_reader_get_many(reader, list, 5, 0, &row, &said));
    assert_int_equal(faults, 0);
    evict_all();
    assert_ok(bags_reader_get_range(reader, 1000, 1040, 0, &row, &said));
    assert_int_equal(faults, 0);
    evict_all();
    assert_ok(bags_reader_prefetch(reader, list, 5, NULL, 0, &row, &said));
    int before = requests;
    for (size_t i = 0; i < 5; i++)
        read_point(reader, &row, list[i]);
    assert_int_equal(requests, before);
    close_points(reader, &row);
}

/* Once all of it has been read, the system is no longer asked. A Bag whose checksums are
 * verified and one with no_read_ahead stay as they are. */
static void a_bag_in_memory_is_noticed(void **state) {
    (void)state;
    save_points(at("x"), true);
    for (int kind = 0; kind < 3; kind++) {
        bags_reader *reader = open_points(at("x"), kind == 1, kind == 2);
        bags_row row = {0};
        for (int epoch = 0; epoch < 6; epoch++) {
            questions = 0;
            for (uint64_t n = 0; n < COUNT; n++)
                read_point(reader, &row, n * 1117 % COUNT);
        }
        bool stays = kind || sizeof(void *) < 8;
        assert_true(stays ? questions > COUNT : questions == 0);
        close_points(reader, &row);
    }
}

/* A read that must wait begins the count again. */
static void one_page_on_the_disk_is_noticed(void **state) {
    (void)state;
    bags_row row = {0};
    save_points(at("x"), false);
    bags_reader *reader = open_points(at("x"), false, false);
    for (int turn = 0; turn < 10; turn++) {
        for (uint64_t n = 0; n < RESIDENT / 8; n++)
            read_point(reader, &row, n * 1117 % COUNT);
        evict_all();
    }
    read_point(reader, &row, 7);
    assert_true(requests > 0 && faults == 0);
    close_points(reader, &row);
}

/* A small Bag is read by two loads from the start. The only question is asked before it is
 * opened. */
static void a_small_bag_is_not_asked_about(void **state) {
    (void)state;
    bags_row row = {0};
    hand_set small;
    memset(&small, 0, sizeof small);
    set_field(&small, "image", "bytes");
    for (size_t i = 0; i < 10; i++) {
        set_begin(&small);
        set_blob(&small, 0, "image", i % 5 + 1);
        set_end(&small);
    }
    set_save(&small, V1, at("small"));
    set_free(&small);
    bags_reader *reader = open_points(at("small"), false, false);
    questions = 0;
    for (uint64_t i = 0; i < 10; i++)
        assert_ok(bags_reader_get(reader, 9 - i, NULL, 0, &row, &said));
    assert_int_equal(questions, 1);
    close_points(reader, &row);
}

/* Write a dataset of `count` images of 100 bytes; shard_length 0: without shards. */
static void save_images(const char *path, uint64_t count, uint64_t shard_length) {
    const bags_field fields[] = {{"image", "bytes"}, {"label", "int(4)"}};
    bags_writer_options options;
    bags_writer *writer;
    memset(&options, 0, sizeof options);
    options.shard_length = shard_length;
    assert_opens(writer, bags_writer_open(path, fields, 2, &options, &said));
    for (uint64_t i = 0; i < count; i++) {
        unsigned char image[100];
        bags_value values[2];
        bags_entry entries[] = {{"image", values, 1}, {"label", values + 1, 1}};
        fill(image, sizeof image, i);
        values[0] = bags_bytes(image, sizeof image);
        values[1] = bags_int((int64_t)i);
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

/* Read a datapoint and expect the values of another. */
static void check_image(bags_reader *reader, uint64_t index, uint64_t expected) {
    unsigned char image[100];
    bags_row row = {0};
    assert_ok(bags_reader_get(reader, index, NULL, 0, &row, &said));
    fill(image, sizeof image, expected);
    assert_bytes(bags_row_bytes(&row, 0, 0), image, sizeof image);
    assert_bytes(bags_row_bytes(&row, 1, 0),
        ((const unsigned char[]){
            (unsigned char)expected, (unsigned char)(expected >> 8), 0, 0}),
        4);
    bags_row_free(&row);
}

/* One wait each for the ends of all files, the start of the table of refs.bag, the
 * entries, and the blobs. */
static void the_first_read_waits_four_times(void **state) {
    (void)state;
    save_images(at("x"), 4000, 0);
    bags_reader *reader = open_slow(at("x"));
    assert_int_equal(waits, 2);
    check_image(reader, 1200, 1200);
    assert_int_equal(waits, 4);
    bags_reader_close(reader);
}

/* The table is in the requested end. */
static void the_first_read_of_a_small_table_waits_twice(void **state) {
    (void)state;
    save_images(at("x"), 1500, 0);
    bags_reader *reader = open_slow(at("x"));
    assert_int_equal(waits, 1);
    check_image(reader, 700, 700);
    assert_int_equal(waits, 2);
    bags_reader_close(reader);
}

/* The Bags of a shard are on the disk until its first read: ends, entries, blobs. */
static void the_first_read_of_a_shard_waits_three_times(void **state) {
    (void)state;
    save_images(at("x"), 8000, 4000);
    bags_reader *reader = open_slow(at("x"));
    for (uint64_t shard = 0; shard < 2; shard++) {
        waits = 0;
        check_image(reader, 4000 * shard + 1200, 4000 * shard + 1200);
        assert_int_equal(waits, 3);
    }
    bags_reader_close(reader);
}

/* Blob i belongs to datapoint 99 - i. */
static void a_wrong_guess_costs_a_wait(void **state) {
    bag_writer *writer;
    (void)state;
    save_images(at("x"), 100, 0);
    assert_int_equal(remove(at("x/refs.bag")), 0);
    assert_opens(writer, bag_writer_open(at("x/refs.bag"), NULL, &said));
    for (unsigned char i = 0; i < 100; i++) {
        unsigned char refs[] = {0x92, (unsigned char)(99 - i), (unsigned char)(99 - i)};
        assert_ok(bag_writer_append(writer, refs, sizeof refs, NULL, &said));
    }
    assert_ok(bag_writer_close(writer, &said));
    bags_reader *reader = open_slow(at("x"));
    check_image(reader, 20, 79);
    assert_in_range(waits, 1, 3);
    bags_reader_close(reader);
}

typedef struct job {
    const bags_reader *reader;
    uint64_t seed;
    bool failed;
} job;

static void *read_much(void *user) {
    job *j = (job *)user;
    bags_row row = {0};
    bags_error err;
    unsigned char image[MOST];
    for (int i = 0; i < 3 * RESIDENT && !j->failed; i++) {
        uint64_t index = next_random(&j->seed) % COUNT;
        bags_view found = {NULL, 0};
        j->failed = bags_reader_get(j->reader, index, NULL, 0, &row, &err) != BAGS_OK;
        if (!j->failed)
            found = bags_row_bytes(&row, 0, 0);
        j->failed = j->failed || found.size != image_of(index, image) ||
                    memcmp(found.data, image, found.size) != 0;
    }
    bags_row_free(&row);
    return NULL;
}

/* One of the threads makes the Bags warm while the others read. */
static void threads_read_a_bag_that_becomes_warm(void **state) {
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    job jobs[THREADS];
    bags_row row = {0};
    save_points(at("x"), false);
    bags_reader *reader = open_points(at("x"), false, false);
    for (uint64_t i = 0; i < COUNT; i += 2) /* out of order: every page comes in */
        read_point(reader, &row, (i * 7) % COUNT);
    for (int i = 0; i < map_count; i++)
        for (size_t page = 0; page * page_size < maps[i].size; page++)
            bring_in(&maps[i], page);
    for (int i = 0; i < THREADS; i++) {
        job one = {reader, (uint64_t)i + 1, false};
        jobs[i] = one;
        assert_int_equal(pthread_create(&threads[i], NULL, read_much, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        assert_false(jobs[i].failed);
    close_points(reader, &row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(opening_requests_exact_pages),
        TEST(scattered_reads_request_exact_pages),
        TEST(a_read_in_order_is_left_to_the_system),
        TEST(ranges_and_lists_request_exact_pages),
        TEST(a_bag_in_memory_is_noticed),
        TEST(one_page_on_the_disk_is_noticed),
        TEST(a_small_bag_is_not_asked_about),
        TEST(the_first_read_waits_four_times),
        TEST(the_first_read_of_a_small_table_waits_twice),
        TEST(the_first_read_of_a_shard_waits_three_times),
        TEST(a_wrong_guess_costs_a_wait),
        TEST(threads_read_a_bag_that_becomes_warm),
    };
    return cmocka_run_group_tests_name("cold", tests, NULL, NULL);
}

#else

static void only_linux_tells_what_is_in_memory(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(only_linux_tells_what_is_in_memory)};
    return cmocka_run_group_tests_name("cold", tests, NULL, NULL);
}
#endif
