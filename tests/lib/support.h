/*
 * What the test programs share: a scratch directory for every test, allocators
 * and file hooks that count and can fail, and files made by hand, so that the
 * library is not tested against itself. The fuzzers use it too, so cmocka is
 * needed only in check.h. A helper that cannot do its work ends the program.
 */
#ifndef BAGS_TESTS_SUPPORT_H
#define BAGS_TESTS_SUPPORT_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bags.h"

#ifdef _WIN32
#include "mingw.h"
#define ON_WINDOWS 1
#else
#define ON_WINDOWS 0
#endif

/* ---- checks ---- */

/* The error that the calls under test write to. */
extern bags_error said;

/* Fill `said` with a pattern, so that a function that fails without writing it,
 * or succeeds and writes it, is detected. */
void poison(void);

/* Each prints what is wrong and returns false; see check.h. */
bool is_code(int expected, int code, const char *call);
bool is_open(bool opened, const char *call);
bool is_refused(int expected, const void *object, const char *call);
bool is_said(const char *pattern);
bool is_bytes(bags_view view, const void *expected, size_t size);
bool is_file(const char *path, const void *expected, size_t size);
bool is_names(const char *path, const char *names);
bool is_same_tree(const char *a, const char *b);

/* True if the text contains the parts of the pattern between its asterisks, in
 * this order: "a.bag*blob 1" is in "x/a.bag: blob 1: checksum mismatch". */
bool contains(const char *text, const char *pattern);

/* ---- bytes ---- */

/* Bytes that grow. Start as {0}. */
typedef struct bytes {
    unsigned char *data;
    size_t size;
    size_t capacity;
} bytes;

void put(bytes *to, const void *data, size_t size);
void put_u8(bytes *to, unsigned value);
void put_u64(bytes *to, uint64_t value); /* little-endian */
void put_text(bytes *to, const char *text);
void put_format(bytes *to, const char *format, ...) BAGI_PRINTF(2, 3);
void bytes_free(bytes *b);
uint64_t load_u64(const unsigned char *data);

bool little_endian(void);
/* Convert elements from the byte order of files to that of this platform, or
 * back. */
void turn_elements(void *data, size_t size, size_t element);

/* msgpack by hand, in its shortest form. */
void put_array(bytes *to, size_t length);
void put_uint(bytes *to, uint64_t value);
/* An integer after the given tag: 0xcc .. 0xcf, 0xd0 .. 0xd3. */
void put_tagged(bytes *to, unsigned tag, uint64_t value);

/* Bytes that depend only on the seed and the position. */
void fill(void *data, size_t size, uint64_t seed);
uint64_t next_random(uint64_t *state);

typedef struct sha256 {
    uint32_t state[8];
    uint64_t size;
    unsigned char block[64];
} sha256;

void sha256_start(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t size);
void sha256_hex(sha256 *s, char hex[65]);

/* ---- files ---- */

/* A path below this test's scratch directory. Valid for 32 more calls. */
const char *at(const char *format, ...) BAGI_PRINTF(1, 2);

bool exists(const char *path);
void make_dir(const char *path);
void save(const char *path, const void *data, size_t size);
void save_text(const char *path, const char *text);
bytes load(const char *path); /* free with bytes_free */
uint64_t file_size(const char *path);
void resize_file(const char *path, uint64_t size);
void remove_tree(const char *path);
void copy_tree(const char *from, const char *to);
/* The names in a directory, sorted and separated by spaces. Free with
 * free(). */
char *names_in(const char *path);

/* ---- Bags and datasets by hand ---- */

enum variant { V1, V2, SPLIT };

/* A Bag that is built by hand. Start it as {0}. */
typedef struct hand_bag {
    bytes blobs;
    bytes ends;
} hand_bag;

void hand_add(hand_bag *bag, const void *data, size_t size);
uint64_t hand_length(const hand_bag *bag);
/* The bytes of the .bag file. Free with bytes_free. */
bytes hand_bytes(const hand_bag *bag, enum variant variant);
/* Writes directory/name.bag, and name.idx if split. */
void hand_save(
    const hand_bag *bag, enum variant variant, const char *directory, const char *name);
void hand_free(hand_bag *bag);

#define HAND_FIELDS 80

/* A dataset that is built by hand: its fields, sorted by name. */
typedef struct hand_set {
    size_t count;
    const char *names[HAND_FIELDS];
    const char *types[HAND_FIELDS];
    hand_bag bags[HAND_FIELDS];
    hand_bag refs;
    bytes row;
} hand_set;

void set_field(hand_set *set, const char *name, const char *type);
/* A datapoint: begin, one of these for each field in order, end. */
void set_begin(hand_set *set);
void set_blob(hand_set *set, size_t field, const void *data, size_t size);
void set_text(hand_set *set, size_t field, const char *text);
/* `count` items: "PREFIX0", "PREFIX1", ... */
void set_items(hand_set *set, size_t field, const char *prefix, size_t count);
void set_end(hand_set *set);
/* Create the directory and write everything; a split dataset has no
 * refs.bag. */
void set_save(const hand_set *set, enum variant variant, const char *path);
void set_free(hand_set *set);

/* ---- readers ---- */

/* bags_verify, which accepts what a reader accepts with every option set: gaps,
 * unfinished shards, a standalone Bag of 0 bytes. env NULL: {0}. */
bags_code verify_path(const char *path, const bags_env *env, bags_error *err);
/* Opens and verifies a dataset and reads every datapoint. Returns the first error, which
 * `said` has, or BAGS_OK. */
bags_code read_dataset(const char *path, const bags_reader_options *options);

/* Copy the complete blobs of a Bag that a crashed writer left, *length of them, to a
 * new one. */
bags_code copy_flushed(const char *from, const char *to, bool checksums,
    const bags_io *io, uint64_t *length, bags_error *err);

/* bags_recover with default options. env NULL: {0}; report may be NULL. */
bags_code recover_path(const char *path, const bags_env *env,
    bags_recover_report *report, bags_error *err);

/* Each ends the program if it fails. */
bags_info reader_info(const bags_reader *reader);
bags_field_info field_info(const bags_reader *reader, size_t field);
size_t shard_count(const bags_reader *reader);
bags_shard shard_at(const bags_reader *reader, size_t i);

/* ---- memory ---- */

/* An allocator that counts, checks the old sizes it receives, and can fail. */
typedef struct tally {
    bags_allocator allocator;
    pthread_mutex_t lock;
    uint64_t calls;   /* that allocate or grow */
    uint64_t fail_at; /* the call that fails, from 1; 0: none */
    bool stays;       /* later ones fail too */
    uint64_t failed;
    uint64_t limit; /* bytes per allocation; more fails; 0: no limit */
    uint64_t live;  /* blocks that were not released */
    uint64_t used;  /* bytes of them */
    uint64_t peak;
} tally;

void tally_start(tally *t);

/* ---- io ---- */

enum hook {
    HOOK_OPEN,
    HOOK_CLOSE,
    HOOK_SIZE,
    HOOK_READ,
    HOOK_WRITE,
    HOOK_TRUNCATE,
    HOOK_SYNC,
    HOOK_LOCK,
    HOOK_MAP,
    HOOK_UNMAP,
    HOOK_KIND,
    HOOK_MAKE_DIR,
    HOOK_SYNC_DIR,
    HOOK_LIST,
    HOOK_RENAME,
    HOOK_REMOVE,
    HOOK_REMOVE_DIR,
    HOOK_RESERVE,
    HOOK_ADVISE,
    HOOK_WRITE_BACK,
    HOOK_IDENTIFY,
    HOOK_LINK,
    HOOKS
};

extern const char *const hook_names[HOOKS];

/* Hooks that count, track what is open, and can fail. */
typedef struct watch {
    bags_io io;
    const bags_io *base;
    pthread_mutex_t lock;
    uint64_t counts[HOOKS];
    uint64_t calls;   /* of the hooks in `only` */
    unsigned only;    /* bits of enum hook; 0: all */
    uint64_t fail_at; /* the call that fails, from 1; 0: none */
    bool stays;       /* later ones fail too */
    int fail_with;    /* the errno */
    uint64_t failed;
    int last;         /* the hook that failed last */
    int lost_bags;    /* .bag files that were written and whose close failed */
    size_t chunk;     /* at most this many bytes per read or write; 0: any */
    size_t most_read; /* the largest read requested */
    void (*before)(void *user); /* called before every call; may be NULL */
    enum hook now;              /* for which it is called */
    void *user;
    int most_maps;   /* one more fails; 0: any number */
    int files, maps; /* open now */
    int peak_files, peak_maps;
} watch;

void watch_start(watch *w, const bags_io *base);

/* bags_verify with `decode`, of intact data on files that may fail. If it
 * succeeds although a call failed, verify repeated that call or did not need
 * its result: everything must have been checked, otherwise the program ends;
 * *repeated is then set. */
bags_code verify_watched(const char *path, const bags_registry *registry,
    const bags_env *env, const watch *w, uint64_t datapoints, uint64_t blobs,
    bool *repeated, bags_error *err);

/* A disk in memory: fast, and each map is a block of its own, so that the
 * address sanitizer sees every access outside. One thread at a time. */
typedef struct memory_disk {
    bags_io io;
    struct memory_node **nodes;
    size_t count;
    size_t capacity;
    uint64_t clock;         /* counts changes */
    size_t maps, most_maps; /* open now; one more fails; 0: any number */
} memory_disk;

void memory_disk_start(memory_disk *m);
void memory_disk_free(memory_disk *m);
/* Both create the parent directories. */
void memory_disk_save(memory_disk *m, const char *path, const void *data, size_t size);
void memory_disk_make_dir(memory_disk *m, const char *path);
/* Like set_save, but on this disk. */
void memory_disk_save_set(
    memory_disk *m, const hand_set *set, enum variant variant, const char *path);
/* The same directories and files with the same bytes. */
bool is_same_disk(const memory_disk *a, const memory_disk *b);
size_t memory_disk_files(const memory_disk *m);
/* A file's bytes; borrowed. size 0 and data NULL if there is none. */
bags_view memory_disk_find(const memory_disk *m, const char *path);

/* ---- tests ---- */

/* New for every test. When it ends, all memory must be freed, and all files and
 * maps closed. */
extern tally memory;
extern watch disk;

int support_setup(void **state);
int support_teardown(void **state);

/* The distance between the points that a test tries: BAGS_QUICK, or 1 without it. */
uint64_t support_stride(void);

#endif /* BAGS_TESTS_SUPPORT_H */
