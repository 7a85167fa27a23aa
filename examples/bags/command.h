/*
 * bags - the command that packs, shows and unpacks datasets.
 *
 * main.c lists the subcommands and runs one. Each is one file (info.c, get.c, ...) that
 * exports a `command`; import.c exports `images`, too. The other files serve them; each
 * calls only files that are on lower floors than itself:
 *
 *     main.c
 *     info.c get.c export.c pack.c import.c sql.c ...        the subcommands
 *     manual.c      all of the help; the man page
 *     completion.c  completion for bash and zsh
 *     target.c      the formats of `bags export --to`
 *     select.c      --rows, --where (formats/data/sql.c runs its SQL), --exclude,
 *                   --range, --shuffle; ranges
 *     index.c       indexes and keys
 *     live.c        a dataset that is being written, for `bags view --live`
 *     compact.c     copies of datasets without unreferenced blobs
 *     sink.c        writes a Bag or a dataset
 *     existing.c    --resume and --append: what exists of the dataset
 *     writing.c     the options of the commands that write
 *     source.c      reads a Bag or a dataset; lists shards
 *     parse.c       JSON as values
 *     show.c        values as JSON
 *     msgpack.c     msgpack to JSON and back
 *     codecs.c      the codecs, linked or in modules; sizes of images and videos
 *     types.c       the table of types
 *     worker.c      the number of a worker of a cluster
 *     options.c     the words of a command line; the help made from their tables
 *     storage.c     where paths are: local files, URLs, archives
 *     modules.c     opens the libraries of formats when they are needed
 *     lines.c       the lines of a manifest
 *     files.c       files, directories, names for files
 *     sha256.c      SHA-256 of a file
 *     interrupt.c   Ctrl-C and SIGTERM
 *     progress.c    the progress of long work
 *     json.c        reads JSON
 *     text.c        text that grows: JSON strings, base64; misspelt words
 *     failure.c     failures, standard output, memory
 *     clean.c       text that controls a terminal
 *     system.h      differences between POSIX and Windows
 * A failure is printed and ends the program. The exit code is 2 for an invalid command
 * line (BAGS_ERROR_ARGUMENT), otherwise 1. So no function here returns an error. Memory
 * that lives as long as the program is not freed.
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
#include "datasets.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#define ENDS __attribute__((noreturn))

/* ---- clean.c: text that controls a terminal ---- */

/* The size of the character at the start of valid UTF-8, and its code, if it controls a
 * terminal or changes the order in which it shows others; otherwise 0. */
size_t control_size(const unsigned char *at, size_t size, unsigned *code);
/* Copy text with \x1b or \u202e in place of such characters, and \x9b in place of
 * bytes that are not UTF-8, truncated to the capacity. A signal handler may call it. */
void clean_copy(char *out, size_t capacity, const char *string);
/* True if that changes nothing. */
bool is_clean(const char *string);

/* ---- failure.c ---- */

/* The error that library calls write. */
extern bags_error failure;

/* The mapped Bag or dataset, for the message about a truncated file. NULL: none, or
 * several. */
extern const char *mapped_path;

/* Called once when the program fails, before it prints the message. May extend the
 * message, and clean up. */
extern void (*on_failure)(void);

/* Called after the message was printed. If a signal interrupted the program, ends the
 * program by this signal. */
extern void (*failure_ends)(void);

/* The exit code after a failure: 1, unless a command has another meaning for that. */
extern int failure_exit;

/* The subcommand. Messages about an invalid command line name its help. */
extern const char *failed_command;

ENDS void die(void); /* with the message in `failure` */
ENDS void fail(bags_code code, const char *format, ...) BAGI_PRINTF(2, 3);
/* For an invalid command line. */
#define usage(...) fail(BAGS_ERROR_ARGUMENT, __VA_ARGS__)
ENDS void fail_system(int error, const char *path, const char *doing);
/* For signal handlers: print one line, and end with exit code 1. The path may be
 * NULL. */
ENDS void fail_in_signal(const char *path, const char *what);
void must(bags_code code);          /* be BAGS_OK, otherwise die */
void must_open(const void *opened); /* not be NULL, otherwise die */

/* Add words before or after the message in `failure`. */
#define failure_prefix(...) bags_prefix(&failure, failure.code, __VA_ARGS__)
void failure_suffix(const char *format, ...) BAGI_PRINTF(1, 2);
/* Translate the remedy in a message of the library from C functions and options to the
 * command's: "run `bags recover`". remedy: its offset, as in a bags_error. `die` and
 * `failure_suffix` call it. Valid until the next call. */
const char *message_of_command(const char *message, size_t remedy);
void note_failure(void); /* print it, and continue */

/* From now on, truncating a mapped file ends the program with a message. */
void expect_truncation(void);

/* Remove the bar that progress.c has drawn in the last line of stderr, before anything
 * else is printed. A signal handler may call it. */
extern volatile bool bar_is_shown;
void bar_hide(void);

/* Print a remark: one line on stderr, as by text_clean. It removes the bar. */
void note(const char *format, ...) BAGI_PRINTF(1, 2);

/* Write to standard output. A full disk is a failure; if the program that reads the
 * output has closed it, this ends the program silently, as `bags get ... | head`
 * needs. */
void output(const void *data, size_t size);
/* Call it last: false, and a message is printed, unless all of it has arrived. */
bool output_is_complete(void);
/* Memory, zeroed. `grow` makes an array of elements of this size longer by one,
 * if it is full: its capacity is a power of two. */
void *allocate(size_t count, size_t size);
void *grow(void *array, size_t count, size_t size);

/* Like asprintf; and the same, valid until the sixteenth call after it, for the main
 * thread. */
char *string_format(const char *format, ...) BAGI_PRINTF(1, 2);
const char *temp_format(const char *format, ...) BAGI_PRINTF(1, 2);

/* ---- text.c ---- */

typedef struct text {
    bags_buffer buffer;
    size_t size;
} text;

void text_put(text *out, const void *data, size_t size);
void text_puts(text *out, const char *string);
void text_format(text *out, const char *format, ...) BAGI_PRINTF(2, 3);
/* A JSON string; invalid UTF-8 becomes U+FFFD. */
void text_json(text *out, const void *data, size_t size);
void text_json_string(text *out, const char *string);
/* JSON made elsewhere, with the same characters escaped as by text_json. */
void text_json_clean(text *out, bags_view json);
/* Between the elements of a list, and the members of an object: ", ", but not before
 * the first. */
void text_next(text *out);
/* Start a member of an object; or write one, where NULL is null. */
void text_member(text *out, const char *name);
void text_member_string(text *out, const char *name, const char *value);
void text_member_number(text *out, const char *name, uint64_t value);
/* {"a": "int(4)", "b": "utf8[]"} */
void text_spec(text *out, const bags_field *fields, size_t count);
void text_base64(text *out, const void *data, size_t size);
void text_output(const text *out);
/* The text, NUL-terminated, until it grows. */
const char *text_string(text *out);

/* As by clean_copy; JSON has its own escapes. */
void text_clean(text *out, const char *string);
/* Like printf, with the values as by text_clean. Only the last character of the format
 * may be a newline. Lines that are no JSON are printed by it. */
void print(const char *format, ...) BAGI_PRINTF(1, 2);

/* Add a cell to the table, row by row, as by text_clean; it is to the right, or left. Then
 * write the table, whose columns are as wide as the widest cell, up to 60 characters. */
void table_add(const char *words, bool right);
void table_put(text *out, size_t columns);

/* "1 blob", "2 blobs"; by temp_format. */
const char *counted(uint64_t count, const char *unit);
bool has_ending(const char *word, const char *ending); /* ignores case */

/* The best guess for an unknown word. Start with {word, size, NULL, 0}, and try each
 * existing name. */
typedef struct guess {
    const char *word;
    size_t size;
    const char *name; /* NULL: none is similar */
    size_t distance;
} guess;

void guess_name(guess *from, const char *name);
/* "; did you mean "X"?", where X is the name, with these words before and after it; or
 * "". By temp_format. */
const char *guess_words(const guess *from, const char *before, const char *after);

/* Parse a decimal integer of 64 bits that is all of these bytes: bags_uint, or bags_int
 * if it begins with "-". False if it is none. */
bool number_parse(const char *word, size_t size, bags_value *out);

/* ---- json.c ---- */

/*
 * Read one JSON text. A zero byte must follow it. The result is owned (json_object_put)
 * and NULL for null. NaN, Infinity and -Infinity are numbers, as in Python. Fails for
 * invalid JSON, and for text that json-c would change silently: duplicate names,
 * integers outside -2^63 .. 2^64-1, numbers above the range of a double, unpaired
 * surrogates, U+0000 in a name.
 */
json_object *json_read(const char *string, size_t size);

/* ---- progress.c ---- */

/* Call it before the first of the others: BAGS_PROGRESS_SECONDS is checked. */
void progress_prepare(void);
/* A bar on stderr, if that is a terminal and the work takes more than a second;
 * otherwise a line a minute, or every BAGS_PROGRESS_SECONDS. `done` of `total` (0:
 * unknown) parts of the work; `count` units. */
void progress_show(
    const char *title, const char *unit, uint64_t done, uint64_t total, uint64_t count);
/* Remove the bar, at the end of the work. */
void progress_end(void);

double seconds_now(void);
/* A number of seconds above 0 in the environment; 0: none. */
double seconds_of(const char *variable);

/* ---- interrupt.c: Ctrl-C and SIGTERM end the program at once, with a message, unless
 * they are deferred ---- */

/* Call it first, with the words of the command line as they may be shown. */
void interrupt_expect(char **line);
/* Set the message of an interruption: the kept data ("" for none), then `next`, such as
 * "continue with", and the same command with the option `with` added. next and with may
 * be NULL. */
void interrupt_leaves(const char *kept, const char *next, const char *with);
/* Remove this incomplete file on an interruption. NULL: none. The path must stay
 * valid. */
void interrupt_removes(const char *path);
/* From now on, the first signal only makes interrupt_check fail. The program then ends
 * like after any failure, and on_failure states what is kept. The second signal still
 * ends it at once. */
void interrupt_defer(void);
void interrupt_check(void);
bool interrupt_pending(void);

/* ---- files.c ---- */

/* Read *size bytes of an open file at an offset, fewer only at its end. Returns 0 or an
 * errno value. */
int read_all(const bags_io *io, void *file, uint64_t at, void *data, size_t *size);
/* Read a regular file into the buffer, followed by a zero byte. */
bags_view file_read(const char *path, bags_buffer *buffer);
/* Write a new file. It must not exist; it is removed if writing fails. */
void file_write(const char *path, const void *data, size_t size);
/* sha256.c: the SHA-256 of a local file in hexadecimal digits; its size. `progress`
 * receives the number of the bytes that were read since its last call. */
uint64_t file_sha256(const char *path, void (*progress)(uint64_t bytes), char hex[65]);
/* Create a directory and its parents, if missing. */
void directory_make(const char *path);
/* Remove a directory with everything in it, following no link. */
void directory_remove(const char *path);
/* False if it is not a directory, or cannot be read. */
bool directory_is_empty(const char *path);
bool path_exists(const char *path);
/* "directory/name". An absolute name stays as it is. */
char *path_join(const char *directory, const char *name);
/* The directory of a path, "." if it names none; by temp_format. */
const char *path_parent(const char *path);
/* Fail if a local path, existing or not, is in the directory of a dataset, also through
 * links. */
void path_must_be_outside(const char *path);
/* File names for fields, after a prefix, valid and distinct on every file system: the
 * field's own name if it is short and plain. */
char **names_make(const bags_field *fields, size_t count, const char *prefix);

/* ---- storage.c: where paths are ---- */

/* The hooks that read a path: of local files, of the server of a URL, or of the archive
 * (x.zip, x.tar) with which it begins. Fails if that is invalid. Valid until the
 * program ends. */
const bags_io *io_for_path(const char *path);
/* The same, but NULL if the archive is invalid. */
const bags_io *io_find(const char *path, bags_error *err);
bags_path_kind path_kind(const char *path);
/* True if there is a file of this name in a directory. */
bool path_has(const char *directory, const char *name);
bool path_is_remote(const char *path);
/* True of an archive, and of a path in it. */
bool path_is_archived(const char *path);
/* Fail if the path is a URL. The message calls it `what`, and does not show its
 * password. */
void path_must_be_local(const char *what, const char *path);
/* Fail if the local path is in an archive. */
void path_must_be_writable(const char *path);
/* If the failure is that a path is not a dataset, append those below it. */
void path_hint(const char *path);
/* The path for messages: a URL without query and user. Both are remembered for it. */
const char *path_without_secrets(const char *path);
/* The same for a word that may be one; nothing is remembered. To be freed. */
char *path_shown(const char *word);
/* For the URLs that are opened after it is set: how much of a file is read ahead. */
extern bool no_read_ahead;
/* See bags_http_upload and bags_http_same. Any thread, once the URL was passed to
 * io_for_path. */
bags_code object_upload(const char *url, const bags_io *io, const char *path,
    void (*progress)(void *user, uint64_t bytes), bags_error *err);
bags_code object_same(
    const char *url, const bags_io *io, const char *path, bool *same, bags_error *err);

/* ---- options.c ---- */

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char *, NULL if not given */
    OPTION_PATH,   /* the same, of a local file or directory */
    OPTION_LIST,   /* option_list: it may come again */
    OPTION_CHOICE, /* option_choice */
    OPTION_NUMBER, /* option_number */
    OPTION_SIZE    /* option_number, given as 512, 10K, 512M, 10G or 2T */
} option_kind;

typedef struct option_choice {
    const char *(*name)(size_t i); /* of a choice; NULL after the last */
    size_t value;                  /* the number of that which was given */
    bool given;
} option_choice;

typedef struct option_list {
    const char **words;
    size_t count;
} option_list;

typedef struct option_number {
    uint64_t value;       /* its default, until it is given */
    uint64_t least, most; /* most 0: no limit */
    bool given;
} option_number;

/* A row of a table of options. The last row has no name. The tables drive parsing,
 * `bags help` and the man page. */
typedef struct option {
    const char *name; /* without the -- */
    option_kind kind;
    void *to;          /* where the value goes, as the kind states */
    const char *value; /* what the help calls the value; NULL: a flag */
    const char *help;
} option;

#define OPTIONS_END                                                                    \
    { NULL, OPTION_FLAG, NULL, NULL, NULL }

typedef enum argument_kind {
    ARGUMENT_WORD,
    ARGUMENT_PATH, /* a path, also of a server or in an archive */
    ARGUMENT_LOCAL /* of a local file or directory: a URL is refused */
} argument_kind;

typedef struct command {
    const char *name;
    const char *summary;         /* half a line */
    const char *operands;        /* as in "PATH INDEX [SELECT...]" */
    argument_kind kinds[3];      /* of the operands; of all others, the last */
    int least, most;             /* number of operands; most 0: no limit */
    const option *options;       /* its own; may be NULL */
    const option *shared;        /* reading_options, writing_options or NULL */
    const char *about;           /* paragraphs, each ended by a newline */
    const char *examples;        /* lines */
    int (*run)(char **operands); /* up to NULL; returns the exit code */
} command;

/* Parse the options, wherever they are, and check the number and kinds of the operands,
 * which are moved to words[0], words[1], ..., NULL. False after printing the help. */
bool options_parse(const command *about, int count, char **words);
void options_help(text *out, const command *about);
/* options_exclude: fail if an option of the list "a|b" is given together with another
 * of "c|d" (NULL: of the same list). options_need: fail if one is given without any
 * that it needs. */
void options_exclude(const char *some, const char *others);
void options_need(const char *some, const char *others);
/* The first of "a|b|c" that is given, or NULL. */
const char *options_given(const char *names);
/* Option `i` of a command; NULL after the last. Includes its shared options and, if it
 * reads paths, the options of the cache. */
const option *options_get(const command *about, size_t i);
extern const option cache_options[]; /* of storage.c */
extern option_number part_size;      /* the same: of uploads */

/* The next part of 'a=int(8), b=utf8[]', up to a comma outside parentheses: what
 * precedes and follows its last "=" (without one, value is NULL), without spaces at
 * both ends. A name may contain "=", a type does not. False after the last part,
 * where *at is NULL. Changes the text. */
bool list_next(char **at, char **name, char **value);

/* Text that wraps at the width of the help. The first line continues at column `at`,
 * the others are indented. */
void text_wrapped(text *out, const char *words, size_t at, size_t indent);

/* ---- worker.c ---- */

/* --worker auto: to find the number of this worker. */
extern option_choice worker_auto;
/* If --worker was given: set the number of this worker and the count of workers. The
 * option number_name must not be given as well; the option count_name must agree. */
void worker_find(const char *number_name, option_number *number, const char *count_name,
    option_number *count);

/* The options of commands whose workers make shards of one dataset. Such a command
 * calls worker_check. `start` and `stop` are of type option_number. */
#define WORKER_OPTIONS(start, stop)                                                    \
    {"shard-stop", OPTION_NUMBER, &(stop), "K",                                        \
        "the number of workers that share the input"},                                 \
        {"shard-start", OPTION_NUMBER, &(start), "W",                                  \
            "this worker, from 0: makes shards W, W+K, ..."},                          \
    {                                                                                  \
        "worker", OPTION_CHOICE, &worker_auto, "auto",                                 \
            "find W and K in the variables of Slurm, MPI or others; Kubernetes and "   \
            "PBS need K"                                                               \
    }
void worker_check(option_number *start, option_number *stop);

/* ---- manual.c ---- */

/* `bags help`, and the man page; the list of commands ends with NULL. */
void commands_help(text *out, const command *const *commands);
void manual_help(text *out, const command *const *commands);

/* ---- completion.c ---- */

/* The scripts for shells, and the function that they call to complete the last word. */
void completion_bash(text *out, const command *const *commands);
void completion_zsh(text *out, const command *const *commands);
void completion_words(
    text *out, const command *const *commands, int count, char **words);

/* ---- types.c ---- */

typedef enum type_class {
    TYPE_OTHER,   /* shown as {"type", "bytes"} */
    TYPE_NUMBER,  /* a whole number */
    TYPE_TEXT,    /* text */
    TYPE_ARRAY,   /* an array */
    TYPE_MSGPACK, /* any JSON */
    TYPE_IMAGE,   /* an image file */
    TYPE_VIDEO    /* a video file */
} type_class;

#define PYTHON_VERSIONS 4

/* A version of the Python packages, and the types it reads. */
typedef struct python_version {
    const char *name; /* of --for */
    bool sequences;
    bool idx; /* it needs .idx files */
} python_version;

extern const python_version python_versions[PYTHON_VERSIONS];

/* A type of the command's table. */
typedef struct type_info {
    const char *name;
    const char *forms; /* as in a spec, with arguments */
    const char *value;
    const char *format; /* the file in formats/ with its codec; NULL: built in */
    /* For each version of the Python packages the type by which it reads the same
     * values: with an asterisk, and the same arguments. NULL: it reads none. */
    const char *python[PYTHON_VERSIONS];
    const char *ending; /* of files; NULL: by their first bytes */
    type_class kind;
} type_info;

/* The row of a type, or NULL if the type is unknown. */
const type_info *type_find(const char *type);
/* The class of a type's values; for a compressed type, of the inner type. */
type_class type_kind(const char *type);
/* utf8[] of zstd(utf8)[]; NULL of other types. Free it. */
char *type_inside(const char *type);
bool type_is_compressed(const char *type);
/* The type (perhaps the same) under which a version reads the values of a type. NULL if
 * there is none. Free it. Images and video keep their bytes, other values do not. */
char *type_for_python(const char *type, size_t version);
/* The dtype that a type states, as array(float32,2) does; BAGS_DTYPE_NONE: none. */
bags_dtype type_dtype(const char *type);
/* The ending of a file with a blob of this type: "jpg". Valid as long as
 * `buffer`. */
const char *type_ending(const char *type, bags_view blob, char buffer[16]);
/* The type whose files begin like this, or NULL: "jpeg", "png", "npy", ... */
const char *type_of_bytes(bags_view file);
/* A hint on the syntax of types inside others, for an invalid type; or "". */
const char *type_hint(const char *type);
void types_help(text *out);

/* ---- codecs.c ---- */

/* False if the type's codec does not accept its arguments; `failure` states why. */
bool type_is_valid(const char *type);
/* As the format has it, such as array(float32) for float32. Free it. */
char *type_complete(const char *type);
/* Images with more pixels are not decoded. */
extern option_number max_pixels;
#define OPTION_MAX_PIXELS                                                              \
    {                                                                                  \
        "max-pixels", OPTION_NUMBER, &max_pixels, "N",                                 \
            "decode images of up to N pixels (268435456)"                              \
    }

/* All built-in types, and the formats that were linked. */
const bags_registry *registry_get(void);
/* The same, but values of zstd(TYPE) are the blobs of TYPE. */
const bags_registry *registry_blobs(void);
/* Call it first where writers have the dictionary of zstd in a file, or "none". */
void registry_dictionary(const char *path);
/* From now on, decode palettes as colours, with transparency as alpha, or (the default)
 * as indices. */
void registry_expand_palettes(bool expand);
/* Call it first where images are to be turned upright, as their EXIF orientation
 * states. */
void registry_orient(void);
/* Fail with the file that has the codec, if none was linked for this type. */
void codec_check(const char *type);
bool codec_exists(const char *type);
/* Append the size of an image, or the frames of a video and their size, to an object.
 * Other types have none. `failure` has the error; BAGS_OK if there is none. */
void media_members(const char *type, bags_view blob, text *out);
/* Open a video, to read some of its frames: T x H x W x 3, valid until the next call.
 * False: `failure` states why. */
bool frames_open(bags_view blob, uint64_t *count);
bool frames_get(uint64_t start, uint64_t stop, uint64_t step, bags_value *value);
void formats_print(void);

/* ---- msgpack.c: both fail if msgpack was not linked ---- */

/* Print a msgpack_object. False if it is not valid. */
bool msgpack_to_json(const void *object, text *out);
bags_view msgpack_from_json(json_object *value, bags_buffer *out);

/* ---- show.c ---- */

#define MAX_LIST 1024 /* elements of the arrays that --lists writes as lists */

/* Write a value exactly, as a manifest may contain it: numbers and text; arrays
 * without dimensions, and others of at most `most` elements as nested lists, unless
 * that is 0. False, and nothing is written, if it is anything else. */
bool value_write(text *out, const char *type, const bags_value *value, size_t most);
/* The bytes of a value that are in memory. */
static inline bags_view value_bytes(const bags_value *value) {
    bags_view out = {(const unsigned char *)value->data, value->size};
    return out;
}

/* True if `bags get` shows a value of this type, not only its size: decode it first. */
bool value_is_shown(const char *type);
/* Write a blob of this type as `bags get` shows it; value NULL: it is not shown, or not
 * decoded, and `failure` has the error. Or an array that was decoded. How many had an
 * error. */
extern uint64_t errors_shown;
void value_show(
    const char *type, bags_view blob, const bags_value *value, bool lists, text *out);
void array_show(const char *type, const bags_value *array, bool lists, text *out);
/* True if a float32 is shown as this number. */
bool single_is_shown(double value);
/* Write {"KEY": NAME}, in place of a blob that is a file. */
void value_file(text *line, const char *key, const char *name);
/* Encode an array as a .npy file. */
bags_view npy_encode(const bags_value *array, bags_buffer *scratch);

/* ---- parse.c ---- */

/* How values of a manifest are read. */
typedef struct value_reader {
    const char *directory; /* of the manifest */
    bool unchecked;        /* do not decode encoded values to check them */
    bags_buffer file, scratch;
    uint64_t shape[BAGS_MAX_DIMS];
} value_reader;

/* The value that JSON means in a field of this type, valid as long as the JSON,
 * and until the next call. */
bags_value value_parse(value_reader *with, const char *type, json_object *json);
/* Store a number as an element of an integer dtype. False if it is out of range. */
bool integer_store(bags_dtype dtype, const bags_value *number, void *out);
/* The element that text is: a number without a loss, except that float64 rounds; true or
 * false. For a type of arrays without dimensions; valid until the next call. */
bags_value element_from_text(const char *type, const bags_value *value);
/* A blob of a type or, of zstd(utf8), the value of a blob of utf8, to be compressed. The
 * value is valid as long as the blob's bytes and the scratch. */
bags_value value_from_blob(const char *type, bags_view blob, bags_buffer *scratch);

/* ---- source.c: the Bag or dataset that is read. A Bag is like a dataset with
 * one plain field "blob" of type bytes. ---- */

extern const option reading_options[];

void source_open(const char *path);
/* Open a dataset with the reading_options; never NULL. */
bags_reader *dataset_open(const char *path, const bags_registry *registry);
/* Open it again, with another registry: fail unless it is of the same version. */
bags_reader *dataset_again(
    const bags_reader *as, const char *path, const bags_registry *registry);
/* Remark that a Bag is an empty file. NULL: do nothing. */
void bag_note_empty(const char *path, const bag_reader *opened);
/* The dataset, or NULL: it is a Bag. */
const bags_reader *source_dataset(void);
const char *source_path(void);
/* Fail unless all that was read is of one version of the dataset. */
void source_check(void);
/* The number of a field; count: none has this name. */
size_t field_find(
    const bags_field *fields, size_t count, const char *name, size_t size);
/* Text after "no such field": a similar name, if any, and the first 20 fields. Valid as
 * long as a text of temp_format. */
const char *field_guess(const char *word, const bags_field *fields, size_t count);
/* Fail because the Bag or dataset at `path` has no such field. The message lists the
 * existing fields. */
ENDS void fail_field(
    const char *path, const char *word, const bags_field *fields, size_t count);
/* The number of an existing field; otherwise fail. */
size_t field_require(
    const char *path, const char *name, const bags_field *fields, size_t count);
/* The next field of an option's "FIELD,...", or "OLD=NEW,..." if `value` is not NULL; see
 * list_next. */
bool fields_next(char **at, const char *which, const char *path,
    const bags_field *fields, size_t count, size_t *field, char **value);
uint64_t source_length(void);
uint64_t source_size(void);
const bags_field *source_fields(size_t *count);
bool source_is_sequence(size_t field);
/* Read a datapoint; NULL, 0: all fields. */
void source_get(uint64_t index, const bags_select *selects, size_t count);
/* Start to read datapoints of a remote dataset. */
void source_prefetch(const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count);
/* The number of items of a sequence; forgets what source_get read. */
uint64_t source_count(uint64_t index, size_t field);
size_t source_items(size_t slot);
bags_view source_bytes(size_t slot, size_t item);
/* An item's blob to be stored elsewhere, where its dictionary is not. The datapoint was
 * read to slot `slot`; `at` is the item's number in the sequence. */
bags_view source_alone(
    uint64_t index, size_t field, size_t slot, size_t item, uint64_t at);
/* Decode an item. False if its type has no codec or it does not decode; then
 * `failure` has the error. */
bool source_value(size_t slot, size_t item, const char *type, bags_value *out);

/* The shards of a copy: as long as the longest of a dataset, if any that was passed is
 * sharded. */
void shards_follow(const bags_reader *reader, bags_writer_options *writing);
/* The shards in a directory in the order of their numbers, including shards that no
 * reader accepts. Only `number` and `digits` are set. *count is 0 if it is not a
 * directory. */
bags_shard *shards_list(const char *path, size_t *count);
/* The directory of a shard of the dataset at `path`; by temp_format. */
const char *shard_path(const char *path, const bags_shard *shard);
/* The missing numbers before shard i of a list: *start <= number < the result. */
uint64_t shards_missing(const bags_shard *shards, size_t i, uint64_t *start);
/* Write all that are missing: "000002, 000004 to 000006". False if none is. */
bool text_missing(text *out, const bags_shard *shards, size_t count);

/* ---- compact.c: derived datasets, and blobs that no datapoint refers to ---- */

/* The options --compact and --whole of commands that pass a dataset on. */
extern bool write_compact, write_whole;
#define WHOLE_OPTIONS                                                                  \
    {"compact", OPTION_FLAG, &write_compact, NULL,                                     \
        "write only the blobs that datapoints refer to, as `bags derive --copy`"},     \
    {                                                                                  \
        "whole", OPTION_FLAG, &write_whole, NULL,                                      \
            "also write blobs that no datapoint refers to, such as blobs that "        \
            "`bags derive` did not select"                                             \
    }

/* Derive a dataset, with the registry, progress and interruptions of the command. */
bags_code dataset_derive(char *title, const char *from, const char *to,
    bags_derive_options *how, bags_derive_report *report);
/* True if all shards have checksums. */
bool dataset_has_checksums(const bags_reader *reader);
/* Write the referenced blobs of a dataset to a new local directory. */
void dataset_compact(
    const char *from, const char *to, bool no_sync, bags_derive_report *report);

/* ---- pair.c ---- */

/* Write the documents of a field of the source as X.idx, X.bin. */
void export_pair(const char *index, const char *name);

/* ---- target.c: the formats of `bags export --to` ---- */

typedef struct export_options {
    option_choice to, layout;
    const char *fields, *key, *label;
    option_number shard_size, shard_length, start, stop;
} export_options;

extern export_options exporting;
const char *exporter_name(size_t i);
/* True if --to or OUT's ending states a format other than JSON lines. Fails for an unknown
 * ending, unless --to is given, and for X.csv with another format. */
bool export_is_to_format(const char *out);
/* Export the source. */
void export_to_format(const char *out, bool resume);

/* ---- index.c ---- */

/* The indexes of a dataset will be opened: start to look them up, on a server. */
void indexes_expect(const char *path, const bags_reader *reader);

/* The numbers of the fields that have an index. Remarks state why an index cannot be
 * used. */
size_t *indexes_find(const char *path, const bags_reader *reader, size_t *count);
/* The names of their files in the dataset's directory, "index/id.bag". */
char **index_files(const char *path, size_t *count);
/* Find the datapoints with the keys of a word such as "id=7", "time=100:200", "id=a*"
 * or "time<=7": the positions start <= i < stop of an index. Fails if the one key does
 * not exist. */
void key_find(const char *word, uint64_t *start, uint64_t *stop);
/* The datapoints at `count` positions. */
void key_datapoints(uint64_t start, size_t count, uint64_t *datapoints);

/* ---- live.c: the datapoints of a dataset that is being written, by numbers that stay.
 * One thread at a time. If a function returns false, `failure` has the reason; views are
 * valid until the next call. ---- */

/* Open a dataset. The path must stay valid. Ends the program if it is not a dataset. */
void live_open(const char *path);
/* Look for more datapoints, and write the state as JSON. */
void live_state(text *out, const char *name);
/* The number of items, of a plain field 1. */
bool live_items(uint64_t datapoint, size_t field, uint64_t *count);
/* A blob; of a compressed field, the blob of the type inside. */
bool live_blob(uint64_t datapoint, size_t field, uint64_t item, bags_view *blob);
/* Items of a sequence of numbers or vectors: see curve_read. */
bool live_curve(uint64_t datapoint, size_t field, uint64_t start, uint64_t stop,
    uint64_t step, bags_view *numbers);

/* ---- pack.c: lines as datapoints ---- */

/* Open a manifest. Its lines have the fields of a --spec, `count` of them. */
const bags_field *lines_spec(const char *manifest, const char *with, size_t *count);
/* Read up to `most` lines and put this worker's lines into the open sink. Returns their
 * number; less than `most` at the end. */
uint64_t lines_put(uint64_t most);
/* After a failure: where it was. */
void lines_explain(void);

/* ---- writing.c: the options of the commands that write ---- */

extern const option writing_options[];
extern const char *dictionary_given; /* an option of pack: a file, or "none" */

/* Check writing_options, and the path to which a Bag or dataset is written; NULL:
 * nothing is. */
void writing_check(const char *path, bool is_bag);
/* Like --no-sync. */
void writing_no_sync(bool no_sync);
/* True if input number `i` is this worker's; a hash may take the place of the
 * number. */
bool writing_is_mine(uint64_t i);

/* ---- existing.c ---- */

/* With --append: the spec.json of the dataset that is appended to, to be freed. NULL if
 * none is finished. */
char *existing_spec(const char *path);

/* ---- sink.c: the Bag or dataset that is written. With --resume the input must repeat
 * the existing datapoints first: they are compared.
 *
 *     for each datapoint of the input
 *         if (sink_next()): sink_begin, sink_put for every value, sink_end
 * ---- */

/* Start to write, or to resume. path, input (which messages name) and fields must
 * stay valid. A Bag has one plain field. */
void sink_open(const char *path, const char *input, const bags_field *fields,
    size_t count, bool is_bag);
bool sink_is_sequence(size_t field);
/* Start the next datapoint of the input. False if it exists and need not be
 * compared. */
bool sink_next(void);
void sink_begin(void);
void sink_put(size_t field, size_t item, const bags_value *value);
void sink_end(void);
void sink_flush(void);
/* Milliseconds after which to call it, if the input makes the caller wait. */
int sink_patience(void);
/* Number of datapoints appended. */
uint64_t sink_length(void);
/* Finish, and print a summary. */
void sink_finish(void);
/* Close it without a message. */
bags_code sink_close(void);
/* To be called by on_failure: keep what was written, and append to the message
 * how to continue. */
void sink_failed(void);

/* ---- dedup.c: equal blobs ---- */

/* The number of a blob of this field and shard with the same bytes. If none is known,
 * `next`: the caller must store the blob under this number. */
uint64_t dedup_find(uint64_t shard, size_t field, bags_view blob, uint64_t next);

/* ---- lines.c: the lines of the manifest ---- */

typedef enum line_state {
    LINE_READY,
    LINE_END,  /* the manifest has ended */
    LINE_LATER /* not yet */
} line_state;

/* "-" is standard input. */
void lines_open(const char *path);
/* The next line, NUL-terminated, without its newline, valid until the next call.
 * LINE_LATER: none came within `patience` milliseconds. */
line_state lines_next(int patience, char **line, size_t *size);
/* The path, the number of the last line from 1, and the bytes read and in all (0:
 * unknown). */
const char *lines_path(void);
uint64_t lines_number(void);
void lines_progress(uint64_t *done, uint64_t *total);

/* ---- select.c: selection of datapoints ---- */

/* Options that select datapoints, in the order in which they apply. */
typedef struct select_options {
    const char *rows, *where, *exclude, *range;
    option_number shuffle;
} select_options;

extern select_options selecting;
#define SELECT_OPTIONS                                                                 \
    {"rows", OPTION_PATH, &selecting.rows, "FILE",                                     \
        "only the datapoints whose numbers are in FILE or, with -, standard input: "   \
        "one per line or a JSON list, in their order"},                                \
    {                                                                                  \
        "where", OPTION_TEXT, &selecting.where, "EXPRESSION",                          \
            "keep only those for which this SQL is true: 'label = 3 AND "              \
            "score > 0.5'"                                                             \
    }
#define SELECT_MORE_OPTIONS                                                            \
    {"exclude", OPTION_PATH, &selecting.exclude, "FILE",                               \
        "skip the datapoints whose numbers are in FILE"},                              \
        {"range", OPTION_TEXT, &selecting.range, "RANGE",                              \
            "keep START:STOP, START:STOP:STEP or [i,j,...]; negative numbers "         \
            "count from the end"},                                                     \
    {                                                                                  \
        "shuffle", OPTION_NUMBER, &selecting.shuffle, "SEED", "in a random order"      \
    }

/* The selected datapoints in their order: *count numbers, to be freed. NULL: all. The
 * datasets are as one, whose numbers continue. `length` is the number of datapoints, or of
 * windows if --rows selects windows. */
uint64_t *select_datapoints(const bags_reader *const *readers, size_t readers_count,
    uint64_t length, size_t *count);
/* 0, 1, 2, ...; to be freed. */
uint64_t *select_all(uint64_t length);

/* If the failure is SQLite's, append suggestions for the words of the query. */
void sql_hint(const bags_reader *reader);
/* Fail: this build has no SQL. */
ENDS void sql_missing(void);

/* One index, start:stop:step, or a list. Negative numbers count from the end. */
typedef struct range_word {
    const char *word; /* as given */
    bool one;
    const char **list; /* where its numbers start in the word; NULL: not a list */
    size_t count;
    int64_t start, stop;
    uint64_t step;
} range_word;

/* i, start:stop, start:stop:step or [i,j,k]; each part of a range may be missing. */
range_word indices_parse(const char *word);
/* For words that are not lists: start <= i < stop; empty if there is no such index. */
void indices_range(
    const range_word *items, uint64_t length, uint64_t *start, uint64_t *stop);
/* The number of all; and each. An index that is not below `length` is an error, whose
 * message begins with `where`; a range is clamped. */
uint64_t indices_count(const range_word *all, const char *where, uint64_t length);
uint64_t indices_at(const range_word *all, uint64_t length, uint64_t i);

/* ---- import.c ---- */

void importers_print(void);

#endif /* BAGS_COMMAND_H */
