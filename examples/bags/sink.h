/*
 * Shared by sink.c, writing.c and existing.c. Commands include command.h instead, with
 * the functions that they call.
 */
#ifndef BAGS_COMMAND_SINK_H
#define BAGS_COMMAND_SINK_H

#include "command.h"

/* ---- writing.c: the options ---- */

typedef struct writing_choices {
    bags_writer_options options;
    bool resuming, appending, with_checksums, without_checksums;
    option_number shard_size, shard_length, shard_start, shard_stop;
    option_number sync_size, flush_seconds;
    option_choice version; /* for --for: a version of the Python packages */
    const char *dedup;
} writing_choices;

extern writing_choices writing;
extern uint64_t writing_offered; /* datapoints in the input, for all workers */

/* ---- sink.c: the output ---- */

typedef struct sink_field {
    /* The type of the input. With --for, the stored type may be different. */
    const char *type;
    char *inside; /* for zstd(TYPE): TYPE, whose blobs are compared; otherwise NULL */
    bool sequence;
    bool dedup;
    size_t before; /* its index in the reader of the existing datapoints */
    size_t items;  /* items in the datapoint being compared */
    bool image;
} sink_field;

typedef struct sink_target {
    const char *path, *input;
    const bags_field *fields; /* the fields as stored */
    size_t count;
    sink_field *states; /* one per field */
    bool sharded;
} sink_target;

/* ---- writing.c ---- */

/* Choose the stored fields as --for requires. */
void writing_for_python(sink_target *to);
/* Note which fields share blobs. */
void writing_dedup(sink_target *to);
/* Pass the dictionary to the codec. */
void writing_dictionary(const sink_target *to);

/* ---- existing.c: existing datapoints ---- */

/* Write checksums if the finished shard has them, and refuse options that do not match
 * it. */
void existing_follow(const sink_target *to);
/* Open a reader for comparing the existing datapoints: of a finished dataset or, with a
 * writer, of the datapoints that it resumed. */
void existing_open(sink_target *to, const bags_writer *resumed);
uint64_t existing_length(void);
/* Count a datapoint of the input. False if it already exists and need not be
 * compared. */
bool existing_next(void);
/* True while an existing datapoint is being compared. */
bool existing_is_compared(void);
/* Read that datapoint, compare an item's blob, and compare the numbers of items. */
void existing_begin(void);
void existing_compare(size_t field, size_t item, bags_view blob);
void existing_end(void);
/* Fail if the input had fewer datapoints than already exist. */
void existing_check_all(void);
void existing_close(void);

#endif /* BAGS_COMMAND_SINK_H */
