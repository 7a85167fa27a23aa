/*
 * What the tests of faults, power failures and recovery share: datapoints
 * computed from their numbers, writers that crash, and a check of what a reader
 * finds.
 */
#ifndef BAGS_TESTS_DURABILITY_H
#define BAGS_TESTS_DURABILITY_H

#include "support.h"

#define POINT_FIELDS 3

/* A sequence "clip", and the plain fields "id" and "text". */
extern const bags_field point_fields[POINT_FIELDS];

/* What one worker writes: datapoint i has the number first + i. If the options have a
 * registry, "text" is compared when it is decoded, otherwise as it is stored. */
typedef struct work {
    const char *path;
    bags_writer_options options;
    uint64_t first;
    /* This many datapoints after each other have the same text and clip, which are stored
     * once per shard and writer; 0: each has its own. */
    uint64_t share;
    uint64_t shared, shared_shard, text, clip; /* which one is stored, and its blobs */
    uint64_t flushed;  /* at least this many were passed to the system */
    uint64_t appended; /* at most this many may exist */
} work;

/* Numbers 0, 1, ...; a buffer of 4 KiB; `io` may be NULL. */
work work_on(const char *path, uint64_t shard_length, const bags_io *io);

bags_writer *work_open(work *w, bool resume, bags_error *err);

/* Append the next datapoint. Every third is appended in pieces, after another
 * one that is cancelled. Updates both counts. */
bags_code work_append(work *w, bags_writer *writer, bags_error *err);
/* Until `stop` datapoints are appended. */
bags_code work_append_to(work *w, bags_writer *writer, uint64_t stop, bags_error *err);
bags_code work_flush(work *w, bags_writer *writer, bags_error *err);
bags_code work_sync(work *w, bags_writer *writer, bags_error *err);
bags_code work_close(work *w, bags_writer *writer, bags_error *err);

/* How many blobs the first `length` datapoints have. */
uint64_t work_blobs(const work *w, uint64_t length);

/* What a reader found of one worker's datapoints. */
typedef struct finding {
    bool opened;
    bool verified; /* no read failed; of work_find, nor did bags_verify */
    uint64_t length;
    uint64_t right;   /* this many, from the first, are as they were written */
    uint64_t emptied; /* like `right`, but empty blobs may replace others */
    bags_error error; /* of the open, verify or read that failed */
} finding;

/* Open, verify and read everything; unfinished shards are an error, or skipped.
 * The shard numbers in the options are ignored: those of the work count. */
finding work_find(const work *w, const bags_io *io, bool skip_unfinished);
finding work_find_with(const work *w, const bags_reader_options *options);
/* Only what a reader finds, without bags_verify. */
finding work_read_all(const work *w, const bags_reader_options *options);
/* Like work_read_all, but with the caller's reader. */
finding work_check(const work *w, const bags_reader *reader);
/* A reader of this worker's shards with these options. */
bags_reader *work_read(
    const work *w, const bags_reader_options *options, bags_error *err);

/* Remove the .idx files and refs.partial of finished shards, which a crash between the
 * commit and their removal leaves. */
void drop_journals(const bags_io *io, const char *path);

/*
 * A program that flushes, or syncs, inside of datapoints. Datapoint i has the plain field
 * "id", i, and the sequence "clip"; an item of it states i, its number, and how often
 * datapoint i was begun.
 */
enum { PIECES_MOST = 8 };
typedef struct in_pieces {
    const char *path;
    bags_writer_options options;
    bool syncs; /* certain is only what was synced, not what was flushed */
    void (*changed)(struct in_pieces *p); /* what is certain has changed; or NULL */
    void *user;
    bags_writer *writer;
    const char *where;            /* the step that failed */
    uint64_t ended;               /* datapoints */
    uint64_t most;                /* datapoints that may exist */
    uint64_t begun[PIECES_MOST];  /* how often */
    uint64_t items[PIECES_MOST];  /* that may exist, */
    uint64_t fewest[PIECES_MOST]; /* and of those that ended, must exist */
    bool only_certain;            /* for pieces_fault: other bytes may be wrong */
    bool any_begun;               /* and items may be of an earlier time */
    uint64_t certain_length;      /* datapoints that must exist, */
    uint64_t certain_items;       /* and items of the next; 0: it need not exist */
} in_pieces;

void pieces_start(
    in_pieces *p, const char *path, uint64_t shard_length, const bags_io *io);
/* Datapoints that are flushed, synced, cancelled and ended in all orders; the last one is
 * not ended. The writer stays open. */
bags_code pieces_write(in_pieces *p, bags_error *err);
/* Resume, append one more and close. */
bags_code pieces_resume(in_pieces *p, bags_error *err);
/* Compare what a reader finds; unfinished shards are skipped. NULL, or what is wrong. */
const char *pieces_fault(const in_pieces *p, const bags_io *io);

/* A device that a crash stops, above a watch: if the watch fails for good at a
 * write, half of that write is done. Pass `io` to the library. */
typedef struct crash_device {
    bags_io io;
    watch files;
} crash_device;

void crash_device_start(crash_device *m, const bags_io *base);
/* Starting at the n-th call, nothing reaches the disk. */
void crash_at(crash_device *m, uint64_t n);
/* The process has ended: nothing that closing the writer does reaches the disk.
 * The counts and the pending fault stay as they are. */
void crash_writer(crash_device *m, bags_writer *writer);

/* An allocator that counts and can fail, and otherwise calls malloc: faster
 * than a tally where recovery allocates large buffers many times. */
typedef struct ration {
    bags_allocator allocator;
    uint64_t calls, fail_at, failed, live;
    bool stays;
} ration;

void ration_start(ration *r);

#endif /* BAGS_TESTS_DURABILITY_H */
