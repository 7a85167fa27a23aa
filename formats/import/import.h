/*
 * import.h - read the formats that datasets come from, one datapoint at a time.
 *
 * Each format is one file on one library: compile the files that you need, and
 * import.c, with your program. They need bags.h and this header in the include
 * path. README.md in this directory states how each format becomes fields.
 *
 *     const bags_entry *entries;
 *     bags_source *source =
 *         bags_source_open(&bags_import_tfrecord, "train.tfrecord", NULL, &err);
 *     for (uint64_t i = 0;; i++) {
 *         bags_source_read(source, i, &entries, &err);
 *         if (!entries)
 *             break;
 *         bags_writer_append(writer, entries, source->count, &err);
 *     }
 *     bags_source_close(source);
 *
 * The rules of bags.h for errors, ownership and untrusted files hold here, too: sizes
 * are checked before memory is allocated, and messages name the source's file and the
 * place in it.
 */
#ifndef BAGS_IMPORT_H
#define BAGS_IMPORT_H

#ifdef BAGS_NO_WRITER
#error "an importer reads the entries of a writer: compile without BAGS_NO_WRITER"
#endif

#include "bags.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BAGS_SOURCE_UNKNOWN UINT64_MAX

typedef struct bags_source bags_source;

/*
 * A format that can be imported.
 *   name        its name on a command line: "tfrecord"
 *   detect      true if a file or directory seems to be of this format, by its name
 *               and first bytes. Reads little, never fails. NULL: never
 *   state_size  bytes of source->state, zeroed before open
 *   open        adds the fields (bags_source_field), and sets source->length.
 *               Returns BAGS_OK, BAGS_ERROR_MISSING, BAGS_ERROR_CORRUPT,
 *               BAGS_ERROR_TYPE (content without a counterpart),
 *               BAGS_ERROR_LIMIT, BAGS_ERROR_IO or BAGS_ERROR_MEMORY
 *   read        reads datapoint `index`: sets source->values, or the values and
 *               count of source->entries, or source->ended. Values are of the
 *               field's type, or blobs (BAGS_KIND_BLOB) that are stored unchanged.
 *               Returns the codes of open, or BAGS_ERROR_VALUE
 *   close       frees memory of the format's library, also after open failed.
 *               NULL: nothing
 */
typedef struct bags_importer {
    const char *name;
    bool (*detect)(const char *path);
    size_t state_size;
    bags_code (*open)(bags_source *source);
    bags_code (*read)(bags_source *source, uint64_t index);
    void (*close)(bags_source *source);
} bags_importer;

/* A regular file that is read at explicit offsets, or memory in its place. */
typedef struct bags_import_file {
    const char *path;
    uint64_t size;
    const unsigned char *data; /* it is in memory; otherwise NULL */
    /* Private: the open file, and what of it is in memory. */
    void *handle;
    bool mapped; /* `data` is a map of it */
    bags_buffer window;
    uint64_t window_start, window_size;
} bags_import_file;

/* Memory that is freed together. Private. */
typedef struct bags_import_arena {
    void *blocks;
    size_t used;
} bags_import_arena;

/* The meaning of groups of arrays, if the source does not determine it. */
typedef enum bags_source_layout {
    BAGS_LAYOUT_DETECT,   /* an ambiguous source is an error that names the readings */
    BAGS_LAYOUT_ROWS,     /* a datapoint is a row of every array */
    BAGS_LAYOUT_EPISODES, /* a datapoint is a group of arrays */
} bags_source_layout;

/* The first line of CSV after the comments. */
typedef enum bags_source_header {
    BAGS_HEADER_DETECT, /* an ambiguous line is an error that shows it */
    BAGS_HEADER_YES,    /* it has the names of the columns */
    BAGS_HEADER_NO,     /* it is data */
} bags_source_header;

/* The caller's conversion of the text of a field. */
typedef enum bags_source_want {
    BAGS_WANT_NOTHING, /* the importer decides on the type */
    BAGS_WANT_TEXT,    /* text, as it is in the source */
    BAGS_WANT_NUMBER,  /* numbers or Booleans: others are an error, "" is missing */
} bags_source_want;

/* Things of one kind that are left out of the dataset. */
#define BAGS_LEFT_OUT_NAMES 5
typedef struct bags_left_out {
    const char *what; /* the kind, in the singular: "attribute" */
    uint64_t count;
    uint64_t names_count; /* names that were reported; the first are in */
    const char *names[BAGS_LEFT_OUT_NAMES];
} bags_left_out;

typedef struct bags_source_options {
    const bags_allocator *allocator; /* NULL: malloc, realloc and free */
    /* Called from time to time while a source is opened, with the bytes of its files
     * that were read so far: where no list of the fields exists, open reads all of
     * them. May be NULL. */
    void (*progress)(void *user, uint64_t bytes);
    void *user;
    /* Of CSV, called for each field while a source is opened: unless it returns
     * BAGS_WANT_NOTHING, the field is utf8 with the text of its values. May be NULL. */
    bags_source_want (*want)(void *user, const char *field);
    bags_source_layout layout; /* of HDF5; other formats have one layout */
    bags_source_header header; /* of CSV */
    /* For raw tokens. Without a separator each document has `document` tokens; the last
     * may be shorter. */
    bags_dtype dtype;
    bool has_separator;
    uint64_t separator; /* the token that ends a document, as a part of it */
    uint64_t document;  /* 0: all of its file. Not with a separator */
    /* Images: the type of the field image, jpeg, jpeg(90), png or bytes. NULL: the type
     * that all files have. The registry has the codecs that convert files of the other
     * format; it should turn images upright, and expand palettes. */
    const char *image_type;
    const bags_registry *registry;
    bool class_numbers; /* a label is its number in images->classes, not its name */
    bool skip_damaged;  /* read leaves out a file that is damaged, or not converted: it
                           sets `damaged`, and *entries is NULL */
    /* Called for a file that is left out, "PATH: left out: REASON", but of files with the
     * wrong content only for the first five. May be NULL. */
    void (*note)(void *user, const char *message);
} bags_source_options;

/* Content of a folder of images, with counts of the images that were read so far. */
typedef struct bags_images {
    const char *type;     /* of the field image */
    const char **classes; /* `class_count` names, sorted */
    size_t class_count;
    uint64_t jpegs, pngs;       /* without damaged files */
    uint64_t converted, turned; /* ... and of them turned upright */
    uint64_t to_turn;           /* kept as they are, not upright by their EXIF data */
    uint64_t renamed;           /* paths that are not UTF-8 */
    /* Left out: images that are damaged or not converted, other files, hidden ones, and
     * links to directories within a class. */
    uint64_t damaged, others, hidden, links;
} bags_images;

/* A source that is open. A program reads path, fields, count, length and left_out: the
 * content of the source that no field has. */
struct bags_source {
    const bags_importer *importer;
    const char *path;   /* as it was passed */
    bags_field *fields; /* `count` of them */
    size_t count;
    uint64_t length;         /* number of datapoints, or BAGS_SOURCE_UNKNOWN */
    bags_left_out *left_out; /* `left_out_count` kinds */
    size_t left_out_count;
    const bags_images *images; /* images only; otherwise NULL */
    /* For each datapoint, the number that modulo K is the worker that imports it; it does
     * not depend on other datapoints. NULL: the datapoint's own. */
    uint64_t *shares;
    bool damaged; /* the file of the datapoint that was read last; see skip_damaged */

    /* For importers. */
    void *state;
    const char *where;     /* what messages begin with: a file of the source */
    bags_error *err;       /* of the call in progress; not NULL */
    bool ended;            /* set before read if index >= length; read may set it */
    bags_import_file file; /* see bags_source_open_file */
    char **paths; /* `path_count` of them, of bags_source_files; those before */
    size_t path_count, path_next; /* `path_next` were opened by bags_source_next_file */
    /* After open, for each field. If read sets nothing else, it has one value. */
    bags_entry *entries;
    bags_value *values;
    struct bags_import_column **columns; /* sorted by name; of bags_source_column */
    size_t column_count;

    /* Private. */
    bags_source_options options;
    bags_allocator allocator;
    uint64_t bytes; /* read */
    bags_import_arena arena, scratch;
    bags_error error; /* copied to the caller if open or read fails */
    bool opened, no_memory;
    void *buffers;
    bags_buffer loaded, where_buffer;
};

/* One per file in this directory, with the library that it needs. */
extern const bags_importer bags_import_gulp;       /* json-c, msgpack-c */
extern const bags_importer bags_import_zarr;       /* json-c, libblosc, libzip,
                                                      zlib, libzstd, liblz4 */
extern const bags_importer bags_import_benzina;    /* none */
extern const bags_importer bags_import_webdataset; /* libarchive, zlib */
extern const bags_importer bags_import_tfrecord;   /* none */
extern const bags_importer bags_import_mds;        /* json-c, libzstd,
                                                      libcrypto, libxxhash */
extern const bags_importer bags_import_hdf5;       /* libhdf5; versions before
                                                      1.14 crash on some damaged
                                                      files */
extern const bags_importer bags_import_mcap;       /* libzstd, liblz4, zlib */
extern const bags_importer bags_import_arrow;      /* libzstd, liblz4 */
extern const bags_importer bags_import_csv;        /* zlib */
extern const bags_importer bags_import_megatron;   /* none */
extern const bags_importer bags_import_tokens;     /* none; formats/numpy.c */
/* folder.c, with formats/numpy.c: none. */
extern const bags_importer bags_import_npy;
extern const bags_importer bags_import_video;
extern const bags_importer bags_import_images; /* none; formats/image.c */
/* duckdb.c: libduckdb, at run time. */
extern const bags_importer bags_import_parquet;
extern const bags_importer bags_import_sql;

/*
 * Open a source. Returns it, to be closed with bags_source_close, or NULL with the
 * error of the importer's open, or BAGS_ERROR_FIELD if two fields of the source
 * would have the same name.
 *
 *   options  NULL: the defaults
 *
 * Threads: one at a time per source; different sources, any.
 */
BAGS_EXPERIMENTAL bags_source *bags_source_open(const bags_importer *importer,
    const char *path, const bags_source_options *options, bags_error *err);

/* Read datapoint `index`: *entries becomes an array of source->count entries, in the
 * order of source->fields, or NULL if `index` is the number of datapoints or above.
 * Indices must increase, and may skip datapoints: a stream reads over them. The entries
 * are valid until the next call. After a failure *entries is NULL, and no more
 * datapoint can be read. Returns BAGS_OK or the error of the importer's read. Threads:
 * one at a time per source. Cost: the importer's. */
BAGS_EXPERIMENTAL bags_code bags_source_read(
    bags_source *source, uint64_t index, const bags_entry **entries, bags_error *err);

/* Free a source. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_source_close(bags_source *source);

/* ========================================================================
 * Functions for importers. Functions that can fail write *source->err. Memory that is
 * allocated during open is valid until the source is closed; during read, until the
 * next datapoint. If memory is short, open or read fails in any case: an importer only
 * must not use a NULL pointer.
 * ====================================================================== */

/* Fail with "WHERE: " and this text. Returns `code`. */
BAGS_EXPERIMENTAL bags_code bags_source_fail(
    bags_source *source, bags_code code, const char *format, ...) BAGI_PRINTF(3, 4);
BAGS_EXPERIMENTAL bags_code bags_source_no_memory(bags_source *source);

/* `count` elements of `size` bytes, zeroed, aligned for any type; NULL if out of
 * memory. */
BAGS_EXPERIMENTAL void *bags_source_alloc(
    bags_source *source, size_t count, size_t size);
/* Make space for another element, zeroed, after `count` elements of an array. Returns
 * `array` or a copy of it. NULL if out of memory. */
BAGS_EXPERIMENTAL void *bags_source_grow(
    bags_source *source, void *array, size_t count, size_t size);
/* A copy of text with a zero byte after it; text as printf makes it. NULL if out of
 * memory. */
BAGS_EXPERIMENTAL char *bags_source_text(
    bags_source *source, const void *text, size_t size);
BAGS_EXPERIMENTAL char *bags_source_format(bags_source *source, const char *format, ...)
    BAGI_PRINTF(2, 3);
/* Make *buffer have more than `size` bytes, and first make it if it is NULL. Its memory is
 * kept from one datapoint to the next, and freed with the source. */
BAGS_EXPERIMENTAL bags_code bags_source_reserve(
    bags_source *source, bags_buffer **buffer, size_t size);

/* Add a field, during open. Any name is allowed: bags_source_open replaces characters
 * that file names cannot have. Both texts must stay valid; either may be NULL if memory
 * was short. */
BAGS_EXPERIMENTAL void bags_source_field(
    bags_source *source, const char *name, const char *type);
/* The type of numbers: i64 or u64 of one integer, otherwise array(DTYPE,shape); with []
 * if it is a sequence. A dimension UINT64_MAX is -1: of any length. NULL if out of
 * memory. */
BAGS_EXPERIMENTAL char *bags_source_number_type(bags_source *source, bags_dtype dtype,
    size_t dims, const uint64_t *shape, bool sequence);

/* Report things that the fields lack, during open. Every importer reports everything
 * that it skips: `count` things of a kind, then their name as printf makes it. */
BAGS_EXPERIMENTAL void bags_source_leave_out(bags_source *source, const char *what,
    uint64_t count, const char *format, ...) BAGI_PRINTF(4, 5);
/* The name of a field of dates, times or durations, with their unit in NumPy's
 * notation: "time_ns" for "time" and "ns", "day_days" for "D", "t_25s" for "25s". NULL
 * if out of memory. */
BAGS_EXPERIMENTAL char *bags_source_unit(
    bags_source *source, const char *name, const char *unit);

/* Open a file of the source as source->file, in place of the previous file. Messages
 * then begin with its path (copied). */
BAGS_EXPERIMENTAL bags_code bags_source_open_file(
    bags_source *source, const char *path);
BAGS_EXPERIMENTAL void bags_source_close_file(bags_source *source);
/* Bytes of source->file, valid until the next view of it; a copy of them, valid until
 * the next datapoint. BAGS_ERROR_CORRUPT if the file ends before them. */
BAGS_EXPERIMENTAL bags_code bags_source_view(
    bags_source *source, uint64_t offset, uint64_t size, bags_view *out);
BAGS_EXPERIMENTAL bags_code bags_source_copy(
    bags_source *source, uint64_t offset, uint64_t size, bags_view *out);
/* All of source->file: a map of it, valid until it is closed, or else read into memory. */
BAGS_EXPERIMENTAL bags_code bags_source_map(bags_source *source, bags_view *out);
/* Read an entire file of at most `limit` bytes (otherwise BAGS_ERROR_LIMIT), with a
 * zero byte after it. Valid until the next call. */
BAGS_EXPERIMENTAL bags_code bags_source_load(
    bags_source *source, const char *path, uint64_t limit, bags_view *out);

/*
 * Find the files of source->path. If it is a directory, these are the files in it whose
 * names `accept` accepts, in the order of their names, with numbers in names by value.
 * The last part of a path may be a pattern with *, as in train-*.tar. Names that begin
 * with a dot are skipped. If a name has a part such as -00003-of-00010, the files must
 * be one complete set.
 *
 * Fails with BAGS_ERROR_MISSING if there is no file. Other files in the directory are
 * reported as left out. Sets source->paths.
 */
BAGS_EXPERIMENTAL bags_code bags_source_files(
    bags_source *source, bool (*accept)(const char *name));
/* Open the next of them as source->file. Sets `ended` instead if there
 * is none. */
BAGS_EXPERIMENTAL bags_code bags_source_next_file(bags_source *source);

/* A field of the source, as found by reading all datapoints. */
typedef struct bags_import_column {
    const char *name; /* as in the source */
    size_t size;      /* of the name */
    size_t field;     /* its number; set by bags_source_add_columns */
    uint64_t seen;    /* datapoints that have it */
    uint64_t last;    /* the last of them, from 1 */
    unsigned kind;    /* for the importer */
    bool not_one;     /* some datapoint has not exactly one value */
    bool sequence;    /* see bags_source_add_columns */
    /* Content of the values: the type that all begin like; text. */
    bool guessed, not_text;
    const char *magic;
} bags_import_column;

/* Find a column; if there is none, add it, or return NULL unless `add`. NULL also if
 * out of memory. */
BAGS_EXPERIMENTAL bags_import_column *bags_source_column(
    bags_source *source, const void *name, size_t size, bool add);
/* Add a value of a column, of which only the first `size` bytes, at least 8 if it has
 * as many, are passed unless `all`: then it is not text. */
BAGS_EXPERIMENTAL void bags_import_guess(
    bags_import_column *column, const void *data, size_t size, bool all);
/* "jpeg", "png", ... if every value begins so; "utf8", if all are UTF-8 without
 * control characters except tab, newline and carriage return; otherwise "bytes". */
BAGS_EXPERIMENTAL const char *bags_import_guessed(const bags_import_column *column);
/* Add the columns as fields, with the types that `type` returns. A column becomes a
 * sequence of 0 or 1 values if some datapoints lack it, or if `sequence` is set. */
BAGS_EXPERIMENTAL void bags_source_add_columns(
    bags_source *source, const char *(*type)(const bags_import_column *column));

/* The remedy if images or audio of Hugging Face's datasets are not in the source. */
#define BAGS_IMPORT_EMBED                                                              \
    "embed the files in the source: dataset.with_format(\"arrow\").map("               \
    "datasets.table.embed_table_storage, batched=True)"

/* ---- without a source ---- */

/* The first bytes of a file, at most `size`; returns their number, 0 if it cannot
 * be read. For detect, as are the next three. */
BAGS_EXPERIMENTAL size_t bags_import_peek(const char *path, void *data, size_t size);
/* True if the file begins with these bytes. */
BAGS_EXPERIMENTAL bool bags_import_starts(
    const char *path, const void *data, size_t size);
/* The kind of a path, or of a name in it. BAGS_PATH_NONE also if unknown. */
BAGS_EXPERIMENTAL bags_path_kind bags_import_kind(const char *path, const char *name);
/* True if the path names at least one such file: see bags_source_files. */
BAGS_EXPERIMENTAL bool bags_import_has_files(
    const char *path, bool (*accept)(const char *name));

/* The last part of a path. */
BAGS_EXPERIMENTAL const char *bags_import_base(const char *path);
/* For qsort of an array of names: numbers in them by value. */
BAGS_EXPERIMENTAL int bags_import_compare(const void *left, const void *right);
/* True if the name ends in one of these endings, separated by spaces, ignoring case. */
BAGS_EXPERIMENTAL bool bags_import_ends(const char *name, const char *endings);

/* Write the field name that a name in a source becomes, NUL-terminated, to `out`,
 * which has size + 2 bytes: bytes that file names cannot have on every system
 * (control characters, / \ : * ? " < > |, a first '.', bytes that are not UTF-8) are
 * replaced by '_'; an empty name becomes "_". */
BAGS_EXPERIMENTAL void bags_import_name(const void *name, size_t size, char *out);

/* The type of encoded files, by their first bytes: "jpeg", "png", "npy", "mp4" or
 * "webm"; NULL if unknown. Static. */
BAGS_EXPERIMENTAL const char *bags_import_magic(const void *data, size_t size);

/*
 * Find a symbol of a library that is opened when it is first needed, with dlopen: the
 * first of `libraries`, a list that ends with NULL, that the loader finds. It stays open.
 * Returns NULL with BAGS_ERROR_MISSING if there is no such library (the message names the
 * first, or the library that it lacks), or no such symbol in it. Threads: any.
 */
BAGS_EXPERIMENTAL void *bags_import_symbol(
    const char *const *libraries, const char *symbol, bags_error *err);

/* True for int8 to uint64; the integer of such a dtype that little-endian bytes are. */
BAGS_EXPERIMENTAL bool bags_import_is_integer(bags_dtype dtype);
BAGS_EXPERIMENTAL bags_value bags_import_integer(bags_dtype dtype, const void *data);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_IMPORT_H */
