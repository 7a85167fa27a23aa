/*
 * bags - the command that packs, shows and unpacks datasets.
 *
 * What its files share. Each subcommand is one file (info.c, get.c, ...) with
 * one exported `command`; the others serve them:
 *
 *     main.c      which subcommand, help, the end of standard output
 *     options.c   the words of the command line: options, numbers, sizes
 *     text.c      text that grows: JSON, base64
 *     json.c      reading JSON more strictly than json-c does
 *     files.c     whole files, names for files, directories
 *     codecs.c    the formats that were linked
 *     source.c    a Bag or a dataset, read alike
 *     value.c     a blob as JSON, and the ending of its file
 *     lists.c     arrays as nested lists, both ways
 *     writing.c   options of writers, when to flush, how to stop
 *     lines.c     the lines of a manifest, which may come slowly
 *     manifest.c  JSON as values of fields
 *     progress.c  the bar
 *     system.h    what differs between POSIX and Windows
 *
 * Functions return a bags_code and write a bags_error, as in bags.h; those that
 * are main programs return the exit code: 0, 1 for an error, 2 for a command
 * line that makes no sense.
 */
#ifndef BAGS_COMMAND_H
#define BAGS_COMMAND_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64
#endif

#include "../../bags.h"

#include <json-c/json.h>
#include <stdio.h>

/* ---- main.c ---- */

/* A subcommand. `help` is one screen and begins with how to call it. */
typedef struct command {
    const char *name;
    const char *summary;
    const char *help;
    int (*run)(int count, char **words);
} command;

extern const command command_checksum;
extern const command command_export;
extern const command command_finalize;
extern const command command_recover;
extern const command command_get;
extern const command command_images;
extern const command command_info;
extern const command command_pack;
extern const command command_sheet;
extern const command command_verify;

/* Print an error and return its exit code. */
int fail(const bags_error *err);

/* The same for a command line that makes no sense. */
int fail_usage(const command *about, const char *format, ...)
    BAGI_PRINTF(2, 3);

/* One line on stderr, control characters made visible. */
void note(const char *format, ...) BAGI_PRINTF(1, 2);

/* Write to standard output. */
bags_code output(const void *data, size_t size, bags_error *err);

/* ---- options.c ---- */

/* An option: a flag, or one with a value, which stays NULL if not given. */
typedef struct option {
    const char *name; /* without the -- */
    bool *flag;
    const char **value;
} option;

/*
 * Read options wherever they stand and leave the other words in words[0 ..
 * *count - 1]. True if the command goes on; else *exit_code says how it ends.
 */
bool options_parse(const command *about, int *count, char **words,
    const option *options, size_t options_count, int *exit_code);

typedef enum number_kind {
    NUMBER_GOOD,
    NUMBER_NEGATIVE,
    NUMBER_NONE /* no number at all */
} number_kind;

/* A decimal number; above 2^64-1 it becomes that, which no index reaches. */
number_kind number_parse(const char *string, size_t size, uint64_t *out);

/* A string, whole, as a number that must be right. */
bool number_option(const char *string, uint64_t *out);

/* 512, 10K, 512M, 10G, 2T, and the same with iB behind: powers of 1024. */
bool size_option(const char *string, uint64_t *out);

/* ---- text.c ---- */

/* Text that grows. Out of memory is remembered; text_check tells. */
typedef struct text {
    bags_buffer buffer;
    size_t size;
    bool failed;
} text;

void text_put(text *out, const void *data, size_t size);
void text_puts(text *out, const char *string);
void text_format(text *out, const char *format, ...) BAGI_PRINTF(2, 3);
/* A JSON string of text that is valid UTF-8; as ASCII alone if so wished. */
void text_json(text *out, const void *data, size_t size, bool ascii);
void text_base64(text *out, const void *data, size_t size);
bags_code text_check(const text *out, bags_error *err);
void text_free(text *out);

/* Standard base64 with padding, nothing else. VALUE if it is not. */
bags_code base64_decode(const char *from, size_t size, bags_buffer *out,
    size_t *out_size, bags_error *err);

/* How many of these bytes, from the first, are whole and valid UTF-8. */
size_t utf8_valid(const void *data, size_t size);

/* {"a": "int(4)", "b": "utf8[]"}, as Python's json.dumps writes it. */
void text_spec(text *out, const bags_field *fields, size_t count);

/* ---- json.c ---- */

/*
 * Read one JSON text. *out is owned (json_object_put) and NULL for null. The
 * text must be followed by a zero byte. Refused, all with VALUE: what RFC 8259
 * does not allow, a name twice in an object, integers outside -2^63 .. 2^64-1,
 * numbers above what a double holds, half surrogates, U+0000 in a name, more
 * than 2^30 bytes, more than 500 levels.
 */
bags_code json_read(const char *string, size_t size, json_object **out,
    bags_error *err);

/* ---- files.c ---- */

/* A whole regular file; *size of it in *buffer, with a zero byte behind. */
bags_code file_read(const char *path, bags_buffer *buffer, size_t *size,
    bags_error *err);

/* A new file. It must not exist; it is removed if it cannot be written. */
bags_code file_write(const char *path, const void *data, size_t size,
    bags_error *err);

/* A directory, which may exist, and those above it. */
bags_code directory_make(const char *path, bags_error *err);

/* Remove a directory with everything in it, following no link. */
void directory_remove(const char *path);

bool path_exists(const char *path);

/* "directory/name", to be freed. An absolute name stands alone. */
char *path_join(const char *directory, const char *name, bags_error *err);

/* The directory of a path: "." if it names none. To be freed. */
char *path_parent(const char *path, bags_error *err);

/* A printf into memory of its own, to be freed. */
char *string_format(bags_error *err, const char *format, ...)
    BAGI_PRINTF(2, 3);

/*
 * Names for the directories or files of fields that every file system takes
 * and tells apart: a field's own where it is short and plain, else one made of
 * it. An array of `count` strings, to be freed by names_free.
 */
char **names_make(const bags_field *fields, size_t count, bags_error *err);
void names_free(char **names, size_t count);

/* An errno as an error: "path: cannot open: No such file or directory". */
bags_code fail_system(bags_error *err, int error, const char *path,
    const char *doing);

bags_code fail_memory(bags_error *err);

/* Put words before a message that is written already. Returns its code. */
bags_code fail_prefix(bags_error *err, const char *format, ...)
    BAGI_PRINTF(2, 3);

/* ---- codecs.c ---- */

/* All built-in types, and those of the formats that were linked. */
bags_registry *codecs_make(bags_error *err);

/*
 * Encode or decode by the codec of a type string, without a dataset. What comes
 * out borrows the scratch and what went in. TYPE if there is no such codec.
 */
bags_code encode_as(const bags_registry *codecs, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob,
    bags_error *err);
bags_code decode_as(const bags_registry *codecs, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err);

/* A blob of type msgpack or tree as JSON; TYPE if it is not linked. */
bags_code msgpack_to_json(bags_view blob, text *out, bags_error *err);

/* JSON as msgpack; TYPE if it is not linked. */
bags_code msgpack_from_json(json_object *value, bags_buffer *out, size_t *size,
    bags_error *err);

/*
 * The value in a file of a known kind, told by its first bytes, else by its
 * name's ending: .npy, JPEG, PNG, MP4, WebM, .txt, .msgpack. *out borrows the
 * file's bytes and the scratch.
 */
bags_code value_from_file(const bags_registry *codecs, const char *path,
    bags_view file, bags_buffer *scratch, bags_value *out, bags_error *err);

/* The type whose files begin like this, or NULL: "jpeg", "png", "npy", ... */
const char *type_of_bytes(bags_view file);

/* ---- source.c ---- */

/* What info, get, export and verify read: a Bag or a dataset. A Bag is like a
 * dataset with one plain field, blob, of type bytes. */
typedef struct source {
    const char *path;
    bag_reader *bag;      /* one of these two */
    bags_reader *dataset;
    bags_registry *codecs;
    bags_row row;
    bags_buffer scratch;
    bags_view blob;
} source;

typedef struct source_options {
    bool allow_gaps, skip_unfinished, live;
    bool check; /* every blob against its checksum */
} source_options;

#define SOURCE_OPTIONS 4

/* Put their SOURCE_OPTIONS descriptions into `into`. */
void source_options_describe(source_options *given, option *into);

bags_code source_open(source *from, const char *path,
    const source_options *options, bags_error *err);
void source_close(source *from);
uint64_t source_length(const source *from);
const bags_field *source_fields(const source *from, size_t *count);
bool source_is_sequence(const source *from, size_t field);
bags_code source_get(source *from, uint64_t index, const bags_select *selects,
    size_t count, bags_error *err);
size_t source_items(const source *from, size_t slot);
bags_view source_bytes(const source *from, size_t slot, size_t item);
bags_code source_value(source *from, size_t slot, size_t item, bags_value *out,
    bags_error *err);

/* ---- value.c ---- */

/* What a type's blobs are shown as. */
typedef enum shown_as {
    SHOWN_BYTES, /* {"type", "bytes"} */
    SHOWN_NUMBER,
    SHOWN_TEXT,
    SHOWN_ARRAY,
    SHOWN_MSGPACK
} shown_as;

shown_as type_shown_as(const char *type);

/* Whether the type is one of images or video. */
bool type_is_picture(const char *type);

/* The ending of a file with a blob of this type: "jpg". Borrowed: the caller's
 * room, or for ever. */
const char *type_ending(const char *type, bags_view blob, char room[16]);

/* An item of a row as `bags get` shows it. */
bags_code value_show(source *from, size_t slot, size_t item, const char *type,
    text *out, bags_error *err);

/* A number or a text as plain JSON; *plain is false if it is neither, and
 * nothing was written. */
bags_code value_plain(source *from, size_t slot, size_t item, const char *type,
    text *out, bool *plain, bags_error *err);

/* An array as nested lists, as a manifest may have it; *done is false if it is
 * none or too large, and nothing was written. */
bags_code value_list(source *from, size_t slot, size_t item, const char *type,
    text *out, bool *done, bags_error *err);

/* ---- writing.c ---- */

/* The options that pack and images share. */
typedef struct write_options {
    const char *shard_size, *shard_length, *shard_start, *shard_stop;
    const char *sync_size;
    bool idx, no_sync, checksum;
    bags_writer_options options;
} write_options;

#define WRITE_OPTIONS 8

/* Put their WRITE_OPTIONS descriptions into `into`. */
void write_options_describe(write_options *given, option *into);

/* Understand them. True if they make sense; else *exit_code is set. */
bool write_options_understand(write_options *given, const command *about,
    int *exit_code);

/* A Bag or a dataset that is being written, flushed at least every second and
 * every MiB. */
typedef struct sink {
    const char *path;
    bag_writer *bag; /* one of these two */
    bags_writer *dataset;
    bool sharded;
    bool failed;        /* the writer did, not what it should write */
    uint64_t unflushed; /* about as many bytes */
    double flushed_at;
} sink;

/* Pass on what the writer returned, and remember a failure. */
bags_code sink_did(sink *to, bags_code code);
/* Note that a datapoint of about this size was appended. */
bags_code sink_added(sink *to, uint64_t size, bags_error *err);
/* Milliseconds until a flush is due; -1: there is nothing to flush. */
int sink_patience(const sink *to);
bags_code sink_flush(sink *to, bags_error *err);
uint64_t sink_length(const sink *to);
/* Finish, and say what was written. Returns the exit code. */
int sink_finish(sink *to);
/* Give up because of err and say what is left. Returns the exit code. */
int sink_give_up(sink *to, const bags_error *err);

/* ---- lines.c ---- */

typedef struct line_reader {
    const char *path; /* "-": standard input */
    int file;
    bool ended;
    bags_buffer buffer;
    size_t start, scanned, stop; /* the bytes that are not yet lines */
    uint64_t number;        /* of the last line, from 1 */
    uint64_t blank;         /* number of an empty line that was passed */
    uint64_t consumed, size; /* bytes; size 0: not known */
} line_reader;

typedef enum line_state {
    LINE_HERE,
    LINE_NONE,  /* the manifest has ended */
    LINE_LATER, /* not yet */
    LINE_BAD
} line_state;

bags_code lines_open(line_reader *from, const char *path, bags_error *err);
/* The next line, ended by 0, without its newline. LINE_LATER: none came within
 * `patience` milliseconds (-1: wait). It is valid until the next call. */
line_state lines_next(line_reader *from, int patience, char **line,
    size_t *size, bags_error *err);
void lines_close(line_reader *from);

/* ---- manifest.c ---- */

/* What the values of a manifest are read with. */
typedef struct value_reader {
    const char *directory; /* of the manifest */
    bags_registry *codecs;
    bags_buffer file;    /* bytes of a file, of base64, of msgpack, of a list */
    uint64_t shape[BAGS_MAX_DIMS]; /* of a list */
    bags_buffer scratch; /* what they decode to */
} value_reader;

/*
 * The value that JSON stands for in a field of this type (NULL: a blob of a
 * Bag). *out borrows the JSON and the buffers: valid until the next call.
 */
bags_code value_from_json(value_reader *with, const char *type,
    json_object *json, bags_value *out, bags_error *err);

void values_free(value_reader *with);

/* ---- lists.c ---- */

/* The i-th element of an array. */
void element_to_json(text *out, bags_dtype dtype, const void *data, size_t i);

/* An array of a field of this type as nested lists; false, and nothing written,
 * if it has too many elements, or none in a shape that lists cannot tell. */
bool list_from_array(text *out, const char *type, const bags_value *array);

/* The array that JSON stands for in a field of this type: nested lists, or one
 * number. *out borrows with's buffers. */
bags_code array_from_list(value_reader *with, const char *type,
    json_object *json, bags_value *out, bags_error *err);

/* ---- progress.c ---- */

/* A bar on stderr, if that is a terminal and the work takes more than a
 * second. Start it as {0} with a title. */
typedef struct progress {
    const char *title;
    const char *unit; /* what is counted: "datapoints" */
    double began, shown;
    bool started, terminal;
} progress;

/* `done` of `total` (0: not known) in the unit of the bar; `count` units. */
void progress_show(progress *bar, uint64_t done, uint64_t total,
    uint64_t count);
/* Take the bar away. */
void progress_end(progress *bar);

double seconds_now(void);

#endif /* BAGS_COMMAND_H */
