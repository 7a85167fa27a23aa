/*
 * What the tests of faults, of power loss and of recovery share: datapoints
 * that follow from their number, writers of them that die, and a check of what
 * a reader finds.
 */
#ifndef BAGS_TESTS_DURABILITY_H
#define BAGS_TESTS_DURABILITY_H

#include "support.h"

#define POINT_FIELDS 3

/* A sequence "clip", and the plain "id" and "text". */
extern const bags_field point_fields[POINT_FIELDS];

/* What one worker writes: datapoint i has the number first + i. */
typedef struct work {
    const char *path;
    bags_writer_options options;
    uint64_t first;
    uint64_t flushed;  /* at least so many are with the system */
    uint64_t appended; /* at most so many may be there */
} work;

/* Numbers 0, 1, ...; a buffer of 4 KiB; `io` may be NULL. */
work work_on(const char *path, uint64_t shard_length, const bags_io *io);

bags_writer *work_open(work *w, bool resume, bags_error *err);

/* Append the next datapoint; every third is streamed, and before it one is
 * streamed and dropped. Keeps the two counts. */
bags_code work_append(work *w, bags_writer *writer, bags_error *err);
/* Until `stop` are appended. */
bags_code work_append_to(
    work *w, bags_writer *writer, uint64_t stop, bags_error *err);
bags_code work_flush(work *w, bags_writer *writer, bags_error *err);
bags_code work_sync(work *w, bags_writer *writer, bags_error *err);
bags_code work_close(work *w, bags_writer *writer, bags_error *err);

/* How many blobs the first `length` datapoints have. */
uint64_t work_blobs(const work *w, uint64_t length);

/* What a reader found of one worker's datapoints. */
typedef struct finding {
    bool opened;
    bool verified; /* no datapoint failed; of work_find, bags_verify neither */
    uint64_t length;
    uint64_t right;   /* the first so many are as they were written */
    uint64_t emptied; /* the same, but empty blobs may stand for others */
    bags_error error; /* of the open, verify or read that failed */
} finding;

/* Read all that is there; unfinished shards are an error, or left out. The
 * shard numbers in the options are not looked at: the work's own count. */
finding work_find(const work *w, const bags_io *io, bool skip_unfinished);
finding work_find_with(const work *w, const bags_reader_options *options);
/* Only what a reader finds; bags_verify is not asked. */
finding work_look(const work *w, const bags_reader_options *options);
/* The same with a reader of the caller's. */
finding work_check(const work *w, const bags_reader *reader);
/* A reader of this worker's shards with these options. */
bags_reader *work_read(
    const work *w, const bags_reader_options *options, bags_error *err);

/* Remove the .idx files of finished shards, which a death between the commit
 * and their removal leaves behind. */
void drop_journals(const bags_io *io, const char *path);

/* A device below a watch: when the watch is to fail for good, the write at
 * which it does so is done by half. The library gets `io`. */
typedef struct mortal {
    bags_io io;
    watch files;
} mortal;

void mortal_start(mortal *m, const bags_io *base);
/* From the n-th call on nothing reaches the disk. */
void mortal_kill_at(mortal *m, uint64_t n);
/* What the process did is over: nothing that closing the writer does reaches
 * the disk. The counts and faults to come stay as they are. */
void mortal_bury(mortal *m, bags_writer *writer);

/* An allocator that counts and fails, and leaves the rest to malloc: quicker
 * than a tally where recovery takes its large buffers again and again. */
typedef struct ration {
    bags_allocator allocator;
    uint64_t calls, fail_at, failed, live;
    bool stays;
} ration;

void ration_start(ration *r);

#endif /* BAGS_TESTS_DURABILITY_H */
