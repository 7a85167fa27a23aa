/*
 * bags - the command that packs, shows and unpacks datasets.
 *
 * main.c lists the subcommands and runs one. Each is one file (info.c, get.c, ...) that
 * exports a `command`; import.c exports `images`, too. The other files serve them; each
 * calls only files listed below it:
 *
 *     main.c
 *     info.c get.c export.c pack.c import.c sql.c ...        the subcommands
 *     manual.c      all of the help; the man page
 *     completion.c  completion for bash and zsh
 *     target.c      the formats of `bags export --to`
 *     select.c      --rows, --where (formats/data/sql.c runs its SQL), --exclude,
 *                   --range, --shuffle; ranges
 *     index.c       indexes and keys
 *     catalogue.c   catalogues
 *     serve.c       the server of `bags view`, also of the Python package
 *     live.c        a dataset that is being written, for serve.c
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
 *     text.c        tables, base64; misspelt words
 *     failure.c     failures, standard output, memory
 *     clean.c       text that controls a terminal
 *     growing.c     text that grows: JSON strings
 *     system.h      differences between POSIX and Windows
 * Any failure prints a message and ends the program, with exit code 2 for an invalid
 * command line (BAGS_ERROR_ARGUMENT) and 1 otherwise, so no function here returns an
 * error. Memory that is needed until the program ends is never freed.
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
#include "growing.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#define ENDS __attribute__((noreturn))

/* ---- clean.c: text that controls a terminal ---- */

/* Copy a string, truncated to the capacity. Each such character is replaced by an
 * escape like \x1b or \u202e, and each byte that is not UTF-8 by one like \x9b. May be
 * called from a signal handler. */
void clean_copy(char *out, size_t capacity, const char *string);
/* True if clean_copy would change nothing. */
bool is_clean(const char *string);

/* ---- failure.c ---- */

/* Library calls write their errors here. */
extern bags_error failure;

/* The path of the mapped Bag or dataset, for the message about a truncated file. NULL
 * if there is none, or more than one. */
extern const char *mapped_path;

/* Called once when the program fails, before the message is printed. It may clean up
 * and extend the message. */
extern void (*on_failure)(void);

/* Called after the message was printed. If a signal interrupted the program, it ends
 * the program with the same signal. */
extern void (*failure_ends)(void);

/* The exit code after a failure: 1, unless that has another meaning for the command. */
extern int failure_exit;

/* The current subcommand. Messages about an invalid command line point to its help. */
extern const char *failed_command;

ENDS void die(void); /* prints `failure`, and exits */
ENDS void fail(bags_code code, const char *format, ...) BAGI_PRINTF(2, 3);
/* For an invalid command line. */
#define usage(...) fail(BAGS_ERROR_ARGUMENT, __VA_ARGS__)
ENDS void fail_system(int error, const char *path, const char *doing);
/* For signal handlers: print one line, then exit with code 1. The path may be NULL. */
ENDS void fail_in_signal(const char *path, const char *what);
void must(bags_code code);          /* dies unless `code` is BAGS_OK */
void must_open(const void *opened); /* dies if `opened` is NULL */

/* Add words before or after the message in `failure`. */
#define failure_prefix(...) bags_prefix(&failure, failure.code, __VA_ARGS__)
void failure_suffix(const char *format, ...) BAGI_PRINTF(1, 2);
/* Library messages suggest C functions and options as remedies. Translate them to the
 * command's, such as "run `bags recover`". `remedy` is the offset of the remedy in the
 * message, as in bags_error. `die` and `failure_suffix` call this. The result is valid
 * until the next call. */
const char *message_of_command(const char *message, size_t remedy);
void note_failure(void); /* prints `failure`, and continues */

/* From now on, if a mapped file is truncated, the program ends with a message. */
void expect_truncation(void);

/* Erase the progress bar from the last line of stderr. Called before anything else is
 * printed. May be called from a signal handler. */
extern volatile bool bar_is_shown;
void bar_hide(void);

/* Print a one-line note on stderr, cleaned like text_clean does. Erases the progress
 * bar first. */
void note(const char *format, ...) BAGI_PRINTF(1, 2);

/* Write to standard output. A full disk is a failure. If the program that reads the
 * output has closed it, the program ends silently, as in `bags get ... | head`. */
void output(const void *data, size_t size);
/* Call this last. If not all output has arrived, prints a message and returns false. */
bool output_is_complete(void);
/* Return zeroed memory. `grow` enlarges a full array, so that one more element of this
 * size fits. The capacity is always a power of two. */
void *allocate(size_t count, size_t size);
void *grow(void *array, size_t count, size_t size);

/* string_format is like asprintf. The result of temp_format is valid until the
 * sixteenth call after it; only the main thread may call it. */
char *string_format(const char *format, ...) BAGI_PRINTF(1, 2);
const char *temp_format(const char *format, ...) BAGI_PRINTF(1, 2);

/* ---- text.c ---- */

/* {"a": "int(4)", "b": "utf8[]"} */
void text_spec(text *out, const bags_field *fields, size_t count);
void text_base64(text *out, const void *data, size_t size);
void text_output(const text *out);

/* Append a string cleaned like clean_copy does. JSON has its own escapes. */
void text_clean(text *out, const char *string);
/* Like printf, but cleans the values like text_clean does. A newline may only be the
 * last character of the format. All output lines that are not JSON are printed with
 * it. */
void print(const char *format, ...) BAGI_PRINTF(1, 2);

/* Add a cell to the table, row by row, cleaned like text_clean does, and aligned right
 * or left. table_put writes the table; each column is as wide as its widest cell, up to
 * 60 characters. */
void table_add(const char *words, bool right);
void table_put(text *out, size_t columns);

/* "1 blob", "2 blobs"; the string comes from temp_format. */
const char *counted(uint64_t count, const char *unit);

/* The best suggestion for an unknown word. Start with {word, size, NULL, 0}, then try
 * each existing name. */
typedef struct guess {
    const char *word;
    size_t size;
    const char *name; /* NULL: no name is similar */
    size_t distance;
} guess;

void guess_name(guess *from, const char *name);
/* Returns "; did you mean "X"?", where X is the suggested name with the given words
 * before and after it; or "" without a suggestion. The string comes from
 * temp_format. */
const char *guess_words(const guess *from, const char *before, const char *after);

/* ---- json.c ---- */

/*
 * Read one JSON text. It must be followed by a zero byte. The caller owns the result
 * (json_object_put); it is NULL for null. NaN, Infinity and -Infinity are numbers, as
 * in Python. Fails for invalid JSON, and for text that json-c would change silently:
 * duplicate names, integers outside -2^63 .. 2^64-1, numbers beyond the range of a
 * double, unpaired surrogates, U+0000 in a name.
 */
json_object *json_read(const char *string, size_t size);
/* Read the object in a dataset's info.json. NULL: there is none. On failure, the message
 * is in `failure`. */
bags_code metadata_read(const char *path, const bags_reader *reader, json_object **out);

/* ---- progress.c ---- */

/* Call it before the other functions. It checks BAGS_PROGRESS_SECONDS. */
void progress_prepare(void);
/* Show progress on stderr: a bar if stderr is a terminal and the work takes more than a
 * second, otherwise one line per minute or per BAGS_PROGRESS_SECONDS. `done` of `total`
 * (0 if unknown) measures the work; `count` is the number of units processed. */
void progress_show(
    const char *title, const char *unit, uint64_t done, uint64_t total, uint64_t count);
/* Remove the bar when the work ends. */
/* The same as a callback, with the title as its `user`. False to stop: the command was
 * interrupted. */
bool progress_datapoints(void *title, uint64_t done, uint64_t total);
void progress_end(void);

double seconds_now(void);
/* Read a positive number from an environment variable; 0 if it is not set. `what` names
 * it in the error: "number of seconds". */
double number_of(const char *variable, const char *what);

/* ---- interrupt.c: Ctrl-C and SIGTERM end the program at once, with a message, unless
 * they are deferred ---- */

/* Call this first, with the command-line words in the form that may be displayed. */
void interrupt_expect(char **line);
/* Set the message that an interruption prints: the kept data ("" if none), then `next`,
 * such as "continue with", and the same command line with the option `with` added.
 * `next` and `with` may be NULL. */
void interrupt_leaves(const char *kept, const char *next, const char *with);
/* Remove this incomplete file on an interruption. NULL: remove none. The path must stay
 * valid. */
void interrupt_removes(const char *path);
/* From now on, the first signal only makes interrupt_check fail. The program then ends
 * as after any other failure, and on_failure states what is kept. A second signal still
 * ends it at once. */
void interrupt_defer(void);
void interrupt_check(void);
bool interrupt_pending(void);

/* ---- files.c ---- */

/* Read a regular file into the buffer, and append a zero byte. */
bags_view file_read(const char *path, bags_buffer *buffer);
/* Write a new file. It must not exist yet, and is removed again if writing fails. */
void file_write(const char *path, const void *data, size_t size);
/* sha256.c: compute the SHA-256 of a local file as hexadecimal digits. Returns the
 * file's size. `progress` receives the number of bytes read since its last call. */
uint64_t file_sha256(const char *path, void (*progress)(uint64_t bytes), char hex[65]);
/* Create a directory and any missing parents. */
void directory_make(const char *path);
/* Remove a directory and everything in it, without following links. */
void directory_remove(const char *path);
/* False also if it is not a directory, or cannot be read. */
bool directory_is_empty(const char *path);
bool path_exists(const char *path);
/* "directory/name". An absolute name stays as it is. */
char *path_join(const char *directory, const char *name);
/* The parent directory of a path, or "." if the path names none. The string comes from
 * temp_format. */
const char *path_parent(const char *path);
/* Fail if a local path, existing or not, is inside a dataset's directory. Links are
 * resolved. */
void path_must_be_outside(const char *path);
/* File names for fields, each starting with a prefix, valid and distinct on every file
 * system. A short and plain field name is used unchanged. */
char **names_make(const bags_field *fields, size_t count, const char *prefix);

/* ---- storage.c: where paths are ---- */

/* Find the hooks for reading a path: for local files, for the server of a URL, or for
 * the archive (x.zip, x.tar) with which the path begins. Fails if the archive is
 * invalid. The result is valid until the program ends. */
const bags_io *io_for_path(const char *path);
/* Like io_for_path, but returns NULL if the archive is invalid. */
const bags_io *io_find(const char *path, bags_error *err);
bags_path_kind path_kind(const char *path);
/* True if the directory contains a file with this name. */
bool path_has(const char *directory, const char *name);
bool path_is_remote(const char *path);
/* True for an archive, and for a path inside an archive. */
bool path_is_archived(const char *path);
/* Fail if the path is a URL. The message calls it `what` and omits its password. */
void path_must_be_local(const char *what, const char *path);
/* Fail if the local path is in an archive. */
void path_must_be_writable(const char *path);
/* If the failure is that a path is not a dataset, append the datasets below it to the
 * message. */
void path_hint(const char *path);
/* The path for messages: the query and the user are removed from a URL, and remembered
 * for it. */
const char *path_without_secrets(const char *path);
/* The same for any word that may be a URL, without remembering anything. Free the
 * result. */
char *path_shown(const char *word);
/* Options of bags_http. They apply to URLs opened after they are set. */
extern bool no_read_ahead, no_catalogue;
/* See bags_http_upload and bags_http_same. Any thread may call them after the URL was
 * passed to io_for_path. */
bags_code object_upload(const char *url, const bags_io *io, const char *path,
    void (*progress)(void *user, uint64_t bytes), void *user, bags_error *err);
bags_code object_same(
    const char *url, const bags_io *io, const char *path, bool *same, bags_error *err);

/* ---- catalogue.c ---- */

/* Write the catalogue of the complete dataset `to`, a copy of `from` (or the same path),
 * unless it is unsharded, has gaps or no checksums, or is one of granular 0.20 or
 * later. Any other failure ends the program. */
void catalogue_add(const char *from, const char *to);

/* ---- options.c ---- */

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char *, NULL if not given */
    OPTION_PATH,   /* like OPTION_TEXT, but a local file or directory */
    OPTION_LIST,   /* option_list: may be repeated */
    OPTION_CHOICE, /* option_choice */
    OPTION_NUMBER, /* option_number */
    OPTION_SIZE    /* option_number, given as 512, 10K, 512M, 10G or 2T */
} option_kind;

typedef struct option_choice {
    const char *const *names; /* of the first choice; NULL after the last, */
    size_t step;              /* this many bytes from each to the next */
    size_t value;             /* the index of the given choice */
    bool given;
} option_choice;

/* The initial value, for an array of names, or of structs that begin with them. */
#define CHOICE(table)                                                                  \
    { (const char *const *)(const void *)(table), sizeof *(table), 0, false }

/* The name of choice i; NULL after the last. */
const char *choice_name(const option_choice *of, size_t i);

typedef struct option_list {
    const char **words;
    size_t count;
} option_list;

typedef struct option_number {
    uint64_t value;       /* the default until it is given */
    uint64_t least, most; /* most 0: no limit */
    bool given;
} option_number;

/* A row in a table of options. The last row has no name. Parsing, `bags help` and the
 * man page all use these tables. */
typedef struct option {
    const char *name; /* without the -- */
    option_kind kind;
    void *to;          /* where to store the value; the kind determines the type */
    const char *value; /* the placeholder in the help; NULL: a flag */
    const char *help;
} option;

#define OPTIONS_END                                                                    \
    { NULL, OPTION_FLAG, NULL, NULL, NULL }

typedef enum argument_kind {
    ARGUMENT_WORD,
    ARGUMENT_PATH, /* a path; may be on a server or in an archive */
    ARGUMENT_LOCAL /* a local file or directory; URLs are refused */
} argument_kind;

typedef struct command {
    const char *name;
    const char *summary;         /* half a line */
    const char *operands;        /* as in "PATH INDEX [SELECT...]" */
    argument_kind kinds[3];      /* of the operands; the last applies to all others */
    int least, most;             /* number of operands; most 0: no limit */
    const option *options;       /* its own; may be NULL */
    const option *shared;        /* reading_options, writing_options or NULL */
    const char *about;           /* paragraphs, each ending with a newline */
    const char *examples;        /* lines */
    int (*run)(char **operands); /* operands end with NULL; returns the exit code */
} command;

/* Parse the options, wherever they are, and check the number and kinds of operands. The
 * operands are moved to words[0], words[1], ..., NULL. Returns false after printing the
 * help. */
bool options_parse(const command *about, int count, char **words);
void options_help(text *out, const command *about);
/* options_exclude fails if an option in the list "a|b" is given together with another
 * one from "c|d" (NULL: from the same list). options_need fails if one is given without
 * any of the options that it needs. */
void options_exclude(const char *some, const char *others);
void options_need(const char *some, const char *others);
/* The first of "a|b|c" that is given, or NULL. */
const char *options_given(const char *names);
/* Option `i` of a command; NULL after the last. Also covers its shared options and, if
 * the command reads paths, the cache options. */
const option *options_get(const command *about, size_t i);
extern const option cache_options[]; /* in storage.c */
extern option_number part_size;      /* in storage.c; for uploads */

/* Get the next part of 'a=int(8), b=utf8[]'. Parts end at a comma outside parentheses.
 * Stores the text before and after the part's last "=", trimmed; value is NULL if there
 * is no "=". (Names may contain "=", types never do.) Returns false, with *at set to
 * NULL, after the last part. Modifies the text. */
bool list_next(char **at, char **name, char **value);

/* Append text wrapped at the width of the help. The first line continues at column
 * `at`; the others are indented. */
void text_wrapped(text *out, const char *words, size_t at, size_t indent);

/* ---- worker.c ---- */

/* --worker auto: find out the number of this worker. */
extern option_choice worker_auto;
/* If --worker was given, set the number of this worker and the count of workers. The
 * option number_name must not be given too; the option count_name must agree. */
void worker_find(const char *number_name, option_number *number, const char *count_name,
    option_number *count);

/* The options of commands whose workers each write shards of one dataset. Such a
 * command must call worker_check. `start` and `stop` are option_number variables. */
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

/* `bags help` and the man page. The list of commands ends with NULL. */
void commands_help(text *out, const command *const *commands);
void manual_help(text *out, const command *const *commands);

/* ---- completion.c ---- */

/* The shell scripts, and the function they call to complete the last word. */
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

/* A version of the Python packages, and the types that it can read. */
typedef struct python_version {
    const char *name; /* as given to --for */
    bool sequences;
    bool idx; /* needs .idx files */
} python_version;

extern const python_version python_versions[PYTHON_VERSIONS + 1]; /* ends with NULL */

/* A row in the command's table of types. */
typedef struct type_info {
    const char *name;
    const char *forms; /* as written in a spec, with arguments */
    const char *value;
    const char *format; /* the file in formats/ that has the codec; NULL: built in */
    /* For each version of the Python packages, the type under which it reads the same
     * values. An asterisk stands for the same arguments. NULL: it cannot read them. */
    const char *python[PYTHON_VERSIONS];
    const char *ending; /* the file name extension; NULL: depends on the first bytes */
    type_class kind;
} type_info;

/* The row of a type, or NULL if the type is unknown. */
const type_info *type_find(const char *type);
/* The class of a type's values. For a compressed type, the class of the inner type. */
type_class type_kind(const char *type);
/* utf8[] for zstd(utf8)[]; NULL for types that are not compressed. Free the result. */
char *type_inside(const char *type);
bool type_is_compressed(const char *type);
/* The type (possibly the same one) under which a version reads the values of a type.
 * NULL if there is none. Free the result. Images and videos keep their bytes; other
 * values do not. */
char *type_for_python(const char *type, size_t version);
/* The dtype stated in a type, such as array(float32,2); BAGS_DTYPE_NONE if it states
 * none. */
bags_dtype type_dtype(const char *type);
/* The file name extension for a blob of this type, such as "jpg". Valid as long as
 * `buffer`. */
const char *type_ending(const char *type, bags_view blob, char buffer[16]);
/* The type of files that begin like this ("jpeg", "png", "npy", ...), or NULL. */
const char *type_of_bytes(bags_view file);
/* For an invalid type, a hint about the syntax of nested types; otherwise "". */
const char *type_hint(const char *type);
void types_help(text *out);

/* ---- codecs.c ---- */

/* False if the type's codec rejects the arguments; `failure` then states why. */
bool type_is_valid(const char *type);
/* The type as the format spells it, such as array(float32) for float32. Free the
 * result. */
char *type_complete(const char *type);
/* Images with more pixels than this are not decoded. */
extern option_number max_pixels;
#define OPTION_MAX_PIXELS                                                              \
    {                                                                                  \
        "max-pixels", OPTION_NUMBER, &max_pixels, "N",                                 \
            "decode images of up to N pixels (268435456)"                              \
    }

/* The registry of all built-in types and all linked formats. */
const bags_registry *registry_get(void);
/* Before registry_get: formats whose library is missing are not in the registry. This opens
 * all libraries. */
void registry_without_missing(void);
/* The same, except that a value of type zstd(TYPE) is the inner blob of type TYPE. */
const bags_registry *registry_blobs(void);
/* The functions of this build for a loader of images. Opens the modules. */
const struct bags_loader_images *images_linked(void);
/* Writers call this first. `path` is the file that contains the zstd dictionary, or
 * "none". */
void registry_dictionary(const char *path);
/* From now on, decode palette images to colours, with transparency as alpha. By default
 * they are decoded to indices. */
void registry_expand_palettes(bool expand);
/* Call this first to turn images upright, following their EXIF orientation. */
void registry_orient(void);
/* If no codec was linked for this type, fail with a message that names the missing
 * file. */
void codec_check(const char *type);
bool codec_exists(const char *type);
/* Append members to an object: the size of an image, or the size and number of frames
 * of a video. Nothing for other types. `failure` contains the error, or BAGS_OK. */
void media_members(const char *type, bags_view blob, text *out);
/* Open a video to read some of its frames, as T x H x W x 3. They are valid until the
 * next call. Returns false, with the reason in `failure`, if that fails. */
bool frames_open(bags_view blob, uint64_t *count);
bool frames_get(uint64_t start, uint64_t stop, uint64_t step, bags_value *value);
void formats_print(void);

/* ---- msgpack.c: both fail if msgpack was not linked ---- */

/* Append a msgpack_object as JSON. False if it is not valid. */
bool msgpack_to_json(const void *object, text *out);
bags_view msgpack_from_json(json_object *value, bags_buffer *out);
/* bags_import_pack_json if this build has msgpack, otherwise NULL. */
extern bags_code (*const msgpack_pack)(
    bags_view json, bags_buffer *scratch, bags_view *msgpack, bags_error *err);

/* ---- show.c ---- */

#define MAX_LIST 1024 /* elements of the arrays that --lists writes as lists */

/* Write a value exactly, as a manifest may contain it: numbers, text, arrays without
 * dimensions, and other arrays of up to `most` elements as nested lists (`most` 0:
 * never). For anything else, writes nothing and returns false. */
bool value_write(text *out, const char *type, const bags_value *value, size_t most);
/* The bytes of a value in memory. */
static inline bags_view value_bytes(const bags_value *value) {
    bags_view out = {(const unsigned char *)value->data, value->size};
    return out;
}

/* True if `bags get` shows the values of this type and not only their sizes; such blobs
 * must be decoded first. */
bool value_is_shown(const char *type);
/* value_show writes a blob of this type as `bags get` shows it. `value` is NULL if it
 * is not shown or was not decoded, with the error in `failure`. array_show writes a
 * decoded array. errors_shown counts the values with errors. */
extern uint64_t errors_shown;
void value_show(
    const char *type, bags_view blob, const bags_value *value, bool lists, text *out);
void array_show(const char *type, const bags_value *array, bool lists, text *out);
/* True if some float32 is shown as exactly this number. */
bool single_is_shown(double value);
/* Write {"KEY": NAME} instead of the value of a blob that was written to a file. */
void value_file(text *line, const char *key, const char *name);
/* Encode an array as a .npy file. */
bags_view npy_encode(const bags_value *array, bags_buffer *scratch);

/* ---- parse.c ---- */

/* How to read the values of a manifest. */
typedef struct value_reader {
    const char *directory; /* of the manifest */
    bool unchecked;        /* do not decode encoded values to check them */
    bags_buffer file, scratch;
    uint64_t shape[BAGS_MAX_DIMS];
} value_reader;

/* Interpret JSON as a value of a field of this type. The result is valid until the next
 * call, and as long as the JSON. */
bags_value value_parse(value_reader *with, const char *type, json_object *json);
/* The value that encodes as this blob of a type. For zstd(utf8), the blob is of type
 * utf8 and encoding compresses it. The value is valid as long as the blob's bytes and
 * the scratch buffer. */
bags_value value_from_blob(const char *type, bags_view blob, bags_buffer *scratch);

/* ---- source.c: the Bag or dataset being read. A Bag is treated like a dataset with
 * one plain field "blob" of type bytes. ---- */

extern const option reading_options[];

void source_open(const char *path);
/* Open a dataset with the reading_options; never NULL. */
bags_reader *dataset_open(const char *path, const bags_registry *registry);
/* Open it again with another registry. Fails if the version of the dataset has
 * changed. */
bags_reader *dataset_again(
    const bags_reader *as, const char *path, const bags_registry *registry);
/* Print a note if a Bag is an empty file. NULL: do nothing. */
void bag_note_empty(const char *path, const bag_reader *opened);
/* The dataset, or NULL if the source is a Bag. */
const bags_reader *source_dataset(void);
const char *source_path(void);
/* Fail unless everything read so far came from one version of the dataset. */
void source_check(void);
/* The index of a field, or `count` if no field has this name. */
size_t field_find(
    const bags_field *fields, size_t count, const char *name, size_t size);
/* Text to follow "no such field": a similar name, if any, and the first 20 fields. The
 * string comes from temp_format. */
const char *field_guess(const char *word, const bags_field *fields, size_t count);
/* Fail because the Bag or dataset at `path` has no such field. The message lists the
 * existing fields. */
ENDS void fail_field(
    const char *path, const char *word, const bags_field *fields, size_t count);
/* The index of a field; fails if it does not exist. */
size_t field_require(
    const char *path, const char *name, const bags_field *fields, size_t count);
/* Get the next field from an option's "FIELD,...", or from "OLD=NEW,..." if `value` is
 * not NULL; see list_next. */
bool fields_next(char **at, const char *which, const char *path,
    const bags_field *fields, size_t count, size_t *field, char **value);
uint64_t source_length(void);
uint64_t source_size(void);
const bags_field *source_fields(size_t *count);
bool source_is_sequence(size_t field);
/* Read a datapoint. Pass NULL, 0 for all fields. */
void source_get(uint64_t index, const bags_select *selects, size_t count);
/* Start reading datapoints of a remote dataset. */
void source_prefetch(const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count);
/* The number of items in a sequence. Discards the datapoint that source_get read. */
uint64_t source_count(uint64_t index, size_t field);
size_t source_items(size_t slot);
bags_view source_bytes(size_t slot, size_t item);
/* An item's blob in a form that does not depend on a dictionary, so that it can be
 * stored elsewhere. `slot` identifies the field as it was read, `at` the item in the
 * sequence. */
bags_view source_alone(
    uint64_t index, size_t field, size_t slot, size_t item, uint64_t at);
/* Decode an item. Returns false, with the error in `failure`, if its type has no codec
 * or decoding fails. */
bool source_value(size_t slot, size_t item, const char *type, bags_value *out);

/* Make the shards of a copy as long as the longest shard of the datasets passed so far,
 * if any of them is sharded. */
void shards_follow(const bags_reader *reader, bags_writer_options *writing);
/* List the shards in a directory in numerical order, including any that no reader
 * accepts. Only sets `number` and `digits`. *count is 0 if it is not a directory. */
bags_shard *shards_list(const char *path, size_t *count);
/* The directory of a shard of the dataset at `path`. The string comes from
 * temp_format. */
const char *shard_path(const char *path, const bags_shard *shard);
/* The numbers missing before shard i in a list: from *start up to, but excluding, the
 * result. */
uint64_t shards_missing(const bags_shard *shards, size_t i, uint64_t *start);
/* Append all missing numbers, like "000002, 000004 to 000006". False if none is
 * missing. */
bool text_missing(text *out, const bags_shard *shards, size_t count);

/* ---- compact.c: derived datasets, and blobs that no datapoint refers to ---- */

/* The options --compact and --whole, shared by the commands that pass a dataset on. */
extern bool write_compact, write_whole;
#define WHOLE_OPTIONS                                                                  \
    {"compact", OPTION_FLAG, &write_compact, NULL,                                     \
        "write only the blobs that datapoints refer to, as `bags derive --copy`"},     \
    {                                                                                  \
        "whole", OPTION_FLAG, &write_whole, NULL,                                      \
            "also write blobs that no datapoint refers to, such as blobs that "        \
            "`bags derive` did not select"                                             \
    }

/* Derive a dataset using the command's registry, progress display and interrupt
 * handling. */
bags_code dataset_derive(char *title, const char *from, const char *to,
    bags_derive_options *how, bags_derive_report *report);
/* True if all shards have checksums. */
bool dataset_has_checksums(const bags_reader *reader);
/* Write the referenced blobs of a dataset to a new local directory. */
void dataset_compact(
    const char *from, const char *to, bool no_sync, bags_derive_report *report);

/* ---- pair.c ---- */

/* Write the documents in a field of the source as X.idx and X.bin. */
void export_pair(const char *index, const char *name);

/* ---- target.c: the formats of `bags export --to` ---- */

typedef struct export_options {
    option_choice to, layout;
    const char *fields, *key, *label, *fps;
    option_number shard_size, shard_length, start, stop;
} export_options;

extern export_options exporting;
extern const char *const layout_names[3]; /* of HDF5 */
/* True if --to or OUT's ending selects a format that is not JSON lines. Fails for an
 * unknown ending, unless --to is given, and for X.csv with a different format. */
bool export_is_to_format(const char *out);
/* Read info.json of the source, whose reader this is; data NULL: it has none. */
bags_view export_metadata(const bags_reader *reader);
/* Export the source. */
void export_to_format(const char *out, bool resume);

/* ---- index.c ---- */

/* Start looking up the indexes on a server, because they will be opened soon. */
void indexes_expect(const char *path, const bags_reader *reader);

/* The numbers of all fields with an index. Prints a note if an index cannot be used. */
size_t *indexes_find(const char *path, const bags_reader *reader, size_t *count);
/* The file names of the indexes relative to the dataset, such as "index/id.bag". */
char **index_files(const char *path, size_t *count);
/* Find the datapoints that match a word such as "id=7", "time=100:200", "id=a*" or
 * "time<=7". They are at positions start <= i < stop of the index. Fails if a single
 * key does not exist. */
void key_find(const char *word, uint64_t *start, uint64_t *stop);
/* Get the datapoints at `count` positions. */
void key_datapoints(uint64_t start, size_t count, uint64_t *datapoints);

/* ---- pack.c: lines as datapoints ---- */

/* Open a manifest whose lines have the `count` fields of a --spec. */
const bags_field *lines_spec(const char *manifest, const char *with, size_t *count);
/* Read up to `most` lines, and write this worker's lines to the open sink. Returns how
 * many were read; fewer than `most` only at the end. */
uint64_t lines_put(uint64_t most);
/* Add the position in the manifest to a failure message. */
void lines_explain(void);

/* ---- writing.c: the options of the commands that write ---- */

extern const option writing_options[];
extern const char *dictionary_given; /* for pack: a file, or "none" */

/* Check writing_options, and the output path of the Bag or dataset (NULL: nothing is
 * written). */
void writing_check(const char *path, bool is_bag);
/* Like --no-sync. */
void writing_no_sync(bool no_sync);
/* True if this worker should process input `i`. A hash may be used instead of a
 * number. */
bool writing_is_mine(uint64_t i);

/* ---- existing.c ---- */

/* With --append, the spec.json of the existing dataset. Free the result. NULL if no
 * dataset or shard is finished. */
char *existing_spec(const char *path);

/* ---- sink.c: the Bag or dataset being written. With --resume, the input must first
 * repeat the existing datapoints so that they can be compared.
 *
 *     for each datapoint of the input
 *         if (sink_next()): sink_begin, sink_put for every value, sink_end
 * ---- */

/* Start to write, or to resume. The path, the input's name (for messages) and the
 * fields must stay valid. A Bag has one plain field. */
void sink_open(const char *path, const char *input, const bags_field *fields,
    size_t count, bool is_bag);
bool sink_is_sequence(size_t field);
/* Start the next datapoint of the input. False if it already exists and need not be
 * compared. */
bool sink_next(void);
void sink_begin(void);
void sink_put(size_t field, size_t item, const bags_value *value);
void sink_end(void);
void sink_flush(void);
/* If the caller waits for input, it must call sink_flush after this many
 * milliseconds. */
int sink_patience(void);
/* The number of appended datapoints. */
uint64_t sink_length(void);
/* Finish, and print a summary. */
void sink_finish(void);
/* After sink_finish: write metadata of the input to info.json, if this worker writes the first
 * shard. An info.json that exists is kept. */
void sink_describe(const char *metadata);
/* Close it without a message. */
bags_code sink_close(void);
/* For on_failure: keep what was written, and append to the message how to continue. */
void sink_failed(void);

/* ---- dedup.c: equal blobs ---- */

/* The number of the blob with the same bytes in this field and shard. If none is known,
 * returns `next`, and the caller must store the blob under this number. */
uint64_t dedup_find(uint64_t shard, size_t field, bags_view blob, uint64_t next);

/* ---- lines.c: the lines of the manifest ---- */

typedef enum line_state {
    LINE_READY,
    LINE_END,  /* the manifest has ended */
    LINE_LATER /* not yet */
} line_state;

/* "-" is standard input. */
void lines_open(const char *path);
/* The next line without its newline, NUL-terminated and valid until the next call.
 * LINE_LATER if no line arrived within `patience` milliseconds. */
line_state lines_next(int patience, char **line, size_t *size);
/* The path, the number of the last line (starting at 1), the number of bytes read, and
 * the total (0 if unknown). */
const char *lines_path(void);
uint64_t lines_number(void);
void lines_progress(uint64_t *done, uint64_t *total);

/* ---- select.c: selection of datapoints ---- */

/* The options that select datapoints, listed in the order in which they are applied. */
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

/* The numbers of the *count selected datapoints in order, to be freed; NULL: all.
 * Numbers continue from one dataset to the next. `length` is the number of datapoints,
 * or of windows if --rows selects windows. */
uint64_t *select_datapoints(const bags_reader *const *readers, size_t readers_count,
    uint64_t length, size_t *count);
/* 0, 1, 2, ...; to be freed. */
uint64_t *select_all(uint64_t length);

/* If the failure comes from SQLite, suggest corrections for words in the query. */
void sql_hint(const bags_reader *reader);
/* Fail because this build has no SQL. */
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

/* Parse i, start:stop, start:stop:step or [i,j,k]. Each part of a range may be
 * omitted. */
range_word indices_parse(const char *word);
/* For words that are not lists: the range start <= i < stop, empty if there is no such
 * index. */
void indices_range(
    const range_word *items, uint64_t length, uint64_t *start, uint64_t *stop);
/* indices_count returns how many indices a word selects, indices_at returns index i of
 * them. An index not below `length` is an error whose message begins with `where`; a
 * range is clamped. */
uint64_t indices_count(const range_word *all, const char *where, uint64_t length);
uint64_t indices_at(const range_word *all, uint64_t length, uint64_t i);

/* ---- import.c ---- */

void importers_print(void);

#endif /* BAGS_COMMAND_H */
