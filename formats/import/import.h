/*
 * import.h - read other dataset formats, one datapoint at a time.
 *
 * Each format is one file using one library. Compile the files you need, and import.c,
 * with your program. They need bags.h and this header in the include path. README.md in
 * this directory describes how each format maps to fields.
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
 * The rules of bags.h for errors, ownership and untrusted files also apply here: sizes
 * are checked before memory is allocated, and messages name the source's file and the
 * position in it.
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
 *   name        its name on the command line: "tfrecord"
 *   detect      true if a file or directory appears to have this format, judging by its
 *               name and first bytes. Reads little, never fails. NULL: the format is
 *               never detected
 *   state_size  bytes of source->state, zeroed before open
 *   open        adds the fields (bags_source_field), and sets source->length.
 *               Returns BAGS_OK, BAGS_ERROR_MISSING, BAGS_ERROR_CORRUPT,
 *               BAGS_ERROR_TYPE (content without a counterpart),
 *               BAGS_ERROR_LIMIT, BAGS_ERROR_IO or BAGS_ERROR_MEMORY
 *   read        reads datapoint `index`: sets source->values, or the values and count
 *               of source->entries, or source->ended. Values have the field's type, or
 *               are blobs (BAGS_KIND_BLOB) stored unchanged. Returns the codes of open,
 *               or BAGS_ERROR_VALUE
 *   close       frees memory of the format's library; also called after open failed.
 *               NULL: nothing to free
 */
typedef struct bags_importer {
    const char *name;
    bool (*detect)(const char *path);
    size_t state_size;
    bags_code (*open)(bags_source *source);
    bags_code (*read)(bags_source *source, uint64_t index);
    void (*close)(bags_source *source);
} bags_importer;

/* A regular file read at explicit offsets, or memory used instead of a file. */
typedef struct bags_import_file {
    const char *path;
    uint64_t size;
    const unsigned char *data; /* the content, if it is in memory; otherwise NULL */
    /* Private: the open file, and the part of it in memory. */
    void *handle;
    bool mapped; /* `data` maps the file */
    bags_buffer window;
    uint64_t window_start, window_size;
} bags_import_file;

/* Memory freed as a whole. Private. */
typedef struct bags_import_arena {
    void *blocks;
    size_t used;
} bags_import_arena;

/* How to interpret groups of arrays if the source is ambiguous. */
typedef enum bags_source_layout {
    BAGS_LAYOUT_DETECT,   /* an ambiguous source fails; the error names the possible
                           * layouts */
    BAGS_LAYOUT_ROWS,     /* each datapoint is a row of every array */
    BAGS_LAYOUT_EPISODES, /* each datapoint is a group of arrays */
} bags_source_layout;

/* How to interpret the first line of CSV after the comments. */
typedef enum bags_source_header {
    BAGS_HEADER_DETECT, /* an ambiguous line fails; the error shows it */
    BAGS_HEADER_YES,    /* it contains the column names */
    BAGS_HEADER_NO,     /* the line is data */
} bags_source_header;

/* The caller's conversion of a field's text. */
typedef enum bags_source_want {
    BAGS_WANT_NOTHING, /* the importer decides on the type */
    BAGS_WANT_TEXT,    /* text, unchanged from the source */
    BAGS_WANT_NUMBER,  /* numbers or Booleans: other text is an error, "" is a missing
                        * value */
} bags_source_want;

/* Things of one kind left out of the dataset. */
#define BAGS_LEFT_OUT_NAMES 5
typedef struct bags_left_out {
    const char *what; /* the kind, in the singular: "attribute" */
    uint64_t count;
    uint64_t names_count; /* number of names reported; the first ones are in */
    const char *names[BAGS_LEFT_OUT_NAMES];
} bags_left_out;

typedef struct bags_source_options {
    const bags_allocator *allocator; /* NULL: malloc, realloc and free */
    /* Called from time to time while a source is opened, with the number of bytes read
     * so far: if the format has no list of its fields, open reads all files. Returns
     * false to end the call with BAGS_ERROR_IO. May be NULL. */
    bool (*progress)(void *user, uint64_t bytes);
    void *user;
    /* For CSV: called for each field while a source is opened. Unless it returns
     * BAGS_WANT_NOTHING, the field is utf8 and has the text of its values. May be
     * NULL. */
    bags_source_want (*want)(void *user, const char *field);
    bags_source_layout layout; /* for HDF5; other formats have only one layout */
    bags_source_header header; /* for CSV */
    bool decode; /* for MCAP: fields are members of messages, not messages */
    /* For raw tokens. Without a separator, each document has `document` tokens, and the
     * last one may be shorter. */
    bags_dtype dtype;
    bool has_separator;
    uint64_t separator; /* the token that ends a document, and belongs to it */
    uint64_t document;  /* 0: all of the file. Not allowed with a separator */
    /* For images: the type of the field `image`: jpeg, jpeg(90), png, webp or bytes. NULL:
     * the common type of all files. The registry provides the codecs to convert files
     * in other formats; these should turn images upright and expand palettes. */
    const char *image_type;
    const bags_registry *registry;
    bool class_numbers; /* store a label as its index in images->classes, not as its
                         * name */
    bool skip_damaged;  /* read leaves out files that are damaged or not converted: it
                         * sets `damaged`, and *entries to NULL */
    /* Called with sentences about the source. Images: each file left out, with "PATH: left
     * out: REASON", but files with the wrong content only for the first five. LMDB: values
     * that are pickles or msgpack. WebDataset, TFRecord, CSV: a source without datapoints,
     * which does not state its fields or types. May be NULL. */
    void (*note)(void *user, const char *message);
} bags_source_options;

/* The content of a folder of images, with counts of the images read so far. */
typedef struct bags_images {
    const char *type;     /* type of the field `image` */
    const char **classes; /* `class_count` names, sorted */
    size_t class_count;
    uint64_t jpegs, pngs, webps; /* not counting damaged files */
    uint64_t converted, turned;  /* images converted; of these, turned upright */
    uint64_t to_turn;            /* stored unchanged although not upright according to
                                 * EXIF */
    uint64_t renamed;            /* number of paths that are not UTF-8 */
    /* Left out: images damaged or not converted, other files, hidden files, and links
     * to directories within a class. */
    uint64_t damaged, others, hidden, links;
} bags_images;

/* An open source. Programs read path, fields, count, length, metadata, and left_out,
 * the list of the source's content not stored in any field. */
struct bags_source {
    const bags_importer *importer;
    const char *path;   /* as passed to bags_source_open */
    bags_field *fields; /* `count` of them */
    size_t count;
    uint64_t length;         /* number of datapoints, or BAGS_SOURCE_UNKNOWN */
    bags_left_out *left_out; /* `left_out_count` kinds */
    size_t left_out_count;
    const bags_images *images; /* images only; otherwise NULL */
    /* Facts about the source that are no fields: a JSON object, for the dataset's
     * info.json. NULL: none. */
    const char *metadata;
    /* For each datapoint, a number that assigns it to worker `number modulo K`,
     * independently of other datapoints. NULL: use the datapoint's own number. */
    uint64_t *shares;
    bool damaged; /* the file of the last datapoint read is damaged; see skip_damaged */

    /* For importers. */
    void *state;
    const char *where;     /* prefix of messages: a file of the source */
    bags_error *err;       /* the error of the call in progress; not NULL */
    bool ended;            /* set before read if index >= length; read may set it */
    bags_import_file file; /* see bags_source_open_file */
    char **paths; /* `path_count` paths found by bags_source_files; those before */
    size_t path_count, path_next; /* `path_next` were opened by bags_source_next_file */
    /* Set after open, for each field. An entry has one value unless read sets its
     * count. */
    bags_entry *entries;
    bags_value *values;
    struct bags_import_column **columns; /* sorted by name; made by
                                          * bags_source_column */
    size_t column_count;

    /* Private. */
    bags_source_options options;
    bags_allocator allocator;
    uint64_t bytes; /* bytes read */
    bags_import_arena arena, scratch;
    bags_error error; /* copied to the caller if open or read fails */
    bool opened, no_memory;
    void *buffers;
    bags_buffer loaded, where_buffer;
};

/* One importer per file in this directory, with the library it needs. */
extern const bags_importer bags_import_gulp;       /* json-c, msgpack-c */
extern const bags_importer bags_import_zarr;       /* json-c, libblosc, libzip,
                                                      zlib, libzstd, liblz4 */
extern const bags_importer bags_import_benzina;    /* none */
extern const bags_importer bags_import_webdataset; /* libarchive, zlib */
extern const bags_importer bags_import_tfrecord;   /* zlib */
extern const bags_importer bags_import_rlds;       /* json-c, zlib */
extern const bags_importer bags_import_mds;        /* json-c, libzstd,
                                                      libcrypto, libxxhash */
extern const bags_importer bags_import_hdf5;       /* libhdf5; versions before
                                                      1.14 crash on some damaged
                                                      files */
extern const bags_importer bags_import_lerobot;    /* json-c; duckdb.c */
extern const bags_importer bags_import_mcap;       /* json-c, libzstd, liblz4,
                                                      zlib */
extern const bags_importer bags_import_arrow;      /* libzstd, liblz4 */
extern const bags_importer bags_import_csv;        /* zlib */
extern const bags_importer bags_import_lmdb;       /* none */
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
 * error of the importer's open, or with BAGS_ERROR_FIELD if two fields of the source
 * would get the same name.
 *
 *   options  NULL: the defaults
 *
 * Threads: one at a time per source; different sources are independent.
 */
BAGS_EXPERIMENTAL bags_source *bags_source_open(const bags_importer *importer,
    const char *path, const bags_source_options *options, bags_error *err);

/* Find the format of a path: the only importer in a list, ended by NULL, whose `detect`
 * accepts the path. Only the members `name` and `detect` are used. Returns BAGS_OK
 * with the importer's index in *found, or
 *   BAGS_ERROR_ARGUMENT  two of them accept it
 *   BAGS_ERROR_MISSING   the path does not exist
 *   BAGS_ERROR_TYPE      none accepts it
 * Threads: any. Cost: a few reads of the first bytes of a file, or a listing. */
BAGS_EXPERIMENTAL bags_code bags_import_recognize(const bags_importer *const *importers,
    const char *path, size_t *found, bags_error *err);

/* Read datapoint `index`: *entries becomes an array of source->count entries, in the
 * order of source->fields, or NULL if there are only `index` datapoints or fewer.
 * Indices must increase, and may skip datapoints; a stream reads past those. The
 * entries are valid until the next call. After a failure, *entries is NULL, and no
 * further datapoint can be read. Returns BAGS_OK or the error of the importer's read.
 * Threads: one at a time per source. Cost: depends on the importer. */
BAGS_EXPERIMENTAL bags_code bags_source_read(
    bags_source *source, uint64_t index, const bags_entry **entries, bags_error *err);

/* Free a source. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_source_close(bags_source *source);

/* ========================================================================
 * Values of a source as values of other types. In conversion.c.
 * ====================================================================== */

typedef struct bags_conversion bags_conversion;

typedef struct bags_conversion_options {
    /* The codecs of both types. A blob whose type has no codec here is not checked. */
    const bags_registry *registry;
    /* Convert JSON text to msgpack, in the memory of `scratch`. NULL: a conversion of
     * text to msgpack is a BAGS_ERROR_TYPE. */
    bags_code (*pack)(
        bags_view json, bags_buffer *scratch, bags_view *msgpack, bags_error *err);
} bags_conversion_options;

/*
 * Prepare to convert the values of a source's field to another type.
 *
 *     from                     to                 stored
 *     utf8                     int, u64, i64      the number
 *     utf8                     array(DTYPE)       true, false or a number: DTYPE must hold
 *                                                 it exactly, but float64 may round
 *     utf8                     msgpack, tree      the value of the JSON
 *     integers in an array     array(DTYPE,...)   the same integers
 *     an array of one integer  int, u64, i64      the integer
 *     a sequence of int, ...   array(DTYPE,-1)    one array of the integers
 *     others                   TYPE               the bytes: a blob of TYPE
 *     others                   zstd(TYPE)         the bytes, a blob of TYPE, compressed
 *
 * Values outside this table are unchanged. A writer refuses values that do not fit.
 *
 *   from     type of the source's field
 *   to       type of the dataset's field; NULL: values are unchanged
 *   options  NULL: no codecs but the built-in ones
 *
 * Returns the conversion, to be closed with bags_conversion_close, or NULL with
 * BAGS_ERROR_TYPE (a type is invalid), BAGS_ERROR_ARGUMENT or BAGS_ERROR_MEMORY.
 *
 * Threads: one at a time per conversion.
 */
BAGS_EXPERIMENTAL bags_conversion *bags_conversion_open(const char *from,
    const char *to, const bags_conversion_options *options, bags_error *err);

/* Free a conversion. NULL is accepted. */
BAGS_EXPERIMENTAL void bags_conversion_close(bags_conversion *conversion);

/* Get the number of values for the dataset's field. Returns BAGS_OK or, unless the type
 * is a sequence or the number is 1, BAGS_ERROR_VALUE. */
BAGS_EXPERIMENTAL bags_code bags_conversion_count(const bags_conversion *conversion,
    const bags_entry *entry, size_t *count, bags_error *err);

/* Convert value `item` of an entry of the source. *out is valid until the next call, and
 * as long as the entry. Returns BAGS_OK, BAGS_ERROR_VALUE (a value that the type cannot
 * hold), BAGS_ERROR_TYPE, BAGS_ERROR_MEMORY, or the code of a codec that refuses a
 * blob. Cost: decodes blobs of types with a codec. */
BAGS_EXPERIMENTAL bags_code bags_conversion_get(bags_conversion *conversion,
    const bags_entry *entry, size_t item, bags_value *out, bags_error *err);

/* The value of options->want for a field that a conversion to `type` needs. */
BAGS_EXPERIMENTAL bags_source_want bags_conversion_want(const char *type);

/* ========================================================================
 * Functions for importers. Functions that can fail write *source->err. Memory allocated
 * during open is valid until the source is closed; memory allocated during read, until
 * the next datapoint. After an allocation failure, open or read fails regardless of the
 * importer's result: an importer only needs to avoid using a NULL pointer.
 * ====================================================================== */

/* Fail with "WHERE: " and this text. Returns `code`. */
BAGS_EXPERIMENTAL bags_code bags_source_fail(
    bags_source *source, bags_code code, const char *format, ...) BAGI_PRINTF(3, 4);
BAGS_EXPERIMENTAL bags_code bags_source_no_memory(bags_source *source);

/* During open, allocate like read from now on: until the next call, or the first
 * datapoint. With `on` false, memory is again valid until the source is closed. */
BAGS_EXPERIMENTAL void bags_source_scratch(bags_source *source, bool on);
/* Allocate `count` elements of `size` bytes, zeroed and aligned for any type. NULL if
 * out of memory. */
BAGS_EXPERIMENTAL void *bags_source_alloc(
    bags_source *source, size_t count, size_t size);
/* Make room for another zeroed element after `count` elements of an array. Returns
 * `array` or a larger copy. NULL if out of memory. */
BAGS_EXPERIMENTAL void *bags_source_grow(
    bags_source *source, void *array, size_t count, size_t size);
/* bags_source_text copies text and adds a zero byte; bags_source_format formats text
 * like printf. NULL if out of memory. */
BAGS_EXPERIMENTAL char *bags_source_text(
    bags_source *source, const void *text, size_t size);
BAGS_EXPERIMENTAL char *bags_source_format(bags_source *source, const char *format, ...)
    BAGI_PRINTF(2, 3);
/* Ensure that *buffer has more than `size` bytes, creating it if it is NULL. Its memory
 * is kept between datapoints, and freed with the source. */
BAGS_EXPERIMENTAL bags_code bags_source_reserve(
    bags_source *source, bags_buffer **buffer, size_t size);

/* Add a field, during open. Any name is allowed: bags_source_open replaces characters
 * not allowed in file names. Both strings must stay valid; either may be NULL after
 * running out of memory. */
BAGS_EXPERIMENTAL void bags_source_field(
    bags_source *source, const char *name, const char *type);
/* The type for numbers: i64 or u64 for one integer, otherwise array(DTYPE,shape); with
 * [] for a sequence. A dimension UINT64_MAX is written -1: any length. NULL if out of
 * memory. */
BAGS_EXPERIMENTAL char *bags_source_number_type(bags_source *source, bags_dtype dtype,
    size_t dims, const uint64_t *shape, bool sequence);

/* Report, during open, things missing from the fields. Every importer reports
 * everything it skips: `count` things of a kind, then their name as printf
 * arguments. */
BAGS_EXPERIMENTAL void bags_source_leave_out(bags_source *source, const char *what,
    uint64_t count, const char *format, ...) BAGI_PRINTF(4, 5);
/* Call the note of the options with "PATH: " and this text. */
BAGS_EXPERIMENTAL void bags_source_note(
    bags_source *source, const char *path, const char *format, ...) BAGI_PRINTF(3, 4);
/* Set the metadata, during open, if the text is a JSON object. Other text is left out, and
 * reported with its name in the source. */
BAGS_EXPERIMENTAL void bags_source_metadata(
    bags_source *source, const void *data, size_t size, const char *name);
/* The same for the file info.json in a directory, if it exists. */
BAGS_EXPERIMENTAL bags_code bags_source_metadata_file(
    bags_source *source, const char *directory);
/* The field name for dates, times or durations, with the unit in NumPy's notation:
 * "time_ns" for "time" and "ns", "day_days" for "D", "t_25s" for "25s". NULL if out of
 * memory. */
BAGS_EXPERIMENTAL char *bags_source_unit(
    bags_source *source, const char *name, const char *unit);

/* Open a file of the source as source->file, replacing the previous file. Messages then
 * begin with its path. `path` is copied. */
BAGS_EXPERIMENTAL bags_code bags_source_open_file(
    bags_source *source, const char *path);
BAGS_EXPERIMENTAL void bags_source_close_file(bags_source *source);
/* Get bytes of source->file: bags_source_view returns a view valid until the next view;
 * bags_source_copy returns a copy valid until the next datapoint. BAGS_ERROR_CORRUPT if
 * the file is too short. */
BAGS_EXPERIMENTAL bags_code bags_source_view(
    bags_source *source, uint64_t offset, uint64_t size, bags_view *out);
BAGS_EXPERIMENTAL bags_code bags_source_copy(
    bags_source *source, uint64_t offset, uint64_t size, bags_view *out);
/* Get all of source->file: mapped, and valid until it is closed, or else read into
 * memory. */
BAGS_EXPERIMENTAL bags_code bags_source_map(bags_source *source, bags_view *out);
/* Read an entire file of at most `limit` bytes (otherwise BAGS_ERROR_LIMIT), and append
 * a zero byte. Valid until the next call. */
BAGS_EXPERIMENTAL bags_code bags_source_load(
    bags_source *source, const char *path, uint64_t limit, bags_view *out);

/*
 * Find the files of source->path. For a directory, these are the files in it whose
 * names `accept` accepts, sorted by name, with numbers in names compared by value. The
 * last part of a path may be a pattern with *, as in train-*.tar. Names that begin with
 * a dot are skipped. If a name has a part such as -00003-of-00010, the files must be
 * one complete set.
 *
 * Fails with BAGS_ERROR_MISSING if no file is found. Other files in the directory are
 * reported as left out. Sets source->paths.
 */
BAGS_EXPERIMENTAL bags_code bags_source_files(
    bags_source *source, bool (*accept)(const char *name));
/* Open the next of these files as source->file, or set `ended` if there are no more. */
BAGS_EXPERIMENTAL bags_code bags_source_next_file(bags_source *source);

/* A field of the source, found by reading all datapoints. */
typedef struct bags_import_column {
    const char *name; /* as in the source */
    size_t size;      /* size of the name */
    size_t field;     /* number of the field; set by bags_source_add_columns */
    uint64_t seen;    /* number of datapoints with a value */
    uint64_t last;    /* the last such datapoint, from 1 */
    unsigned kind;    /* for the importer's use */
    bool not_one;     /* some datapoint does not have exactly one value */
    bool sequence;    /* see bags_source_add_columns */
    /* The values seen: the file type that all values begin like; whether they are
     * text. */
    bool guessed, not_text;
    const char *magic;
} bags_import_column;

/* Find a column. If there is none, add it if `add` is set, otherwise return NULL. Also
 * NULL if out of memory. */
BAGS_EXPERIMENTAL bags_import_column *bags_source_column(
    bags_source *source, const void *name, size_t size, bool add);
/* Examine a value of a column. Unless `all` is set, only its first `size` bytes are
 * passed (at least 8 if it has that many), and the column is not text. */
BAGS_EXPERIMENTAL void bags_import_guess(
    bags_import_column *column, const void *data, size_t size, bool all);
/* "jpeg", "png", ... if every value begins like such a file; "utf8" if all values are
 * UTF-8 without control characters except tab, newline and carriage return; otherwise
 * "bytes". */
BAGS_EXPERIMENTAL const char *bags_import_guessed(const bags_import_column *column);
/* Add the columns as fields, with the types that `type` returns. A column becomes a
 * sequence of 0 or 1 values if some datapoints lack it, or if `sequence` is set. */
BAGS_EXPERIMENTAL void bags_source_add_columns(
    bags_source *source, const char *(*type)(const bags_import_column *column));

/* Advice for Hugging Face datasets whose images or audio are not in the source. */
#define BAGS_IMPORT_EMBED                                                              \
    "embed the files in the source: dataset.with_format(\"arrow\").map("               \
    "datasets.table.embed_table_storage, batched=True)"

/* ---- without a source ---- */

/* Read the first bytes of a file, at most `size`; returns their number, or 0 if the
 * file cannot be read. This and the next three functions are for detect. */
BAGS_EXPERIMENTAL size_t bags_import_peek(const char *path, void *data, size_t size);
/* True if the file begins with these bytes. */
BAGS_EXPERIMENTAL bool bags_import_starts(
    const char *path, const void *data, size_t size);
/* The kind of a path, or of a name in it. Also BAGS_PATH_NONE if it cannot be
 * determined. */
BAGS_EXPERIMENTAL bags_path_kind bags_import_kind(const char *path, const char *name);
/* True if the path refers to at least one accepted file: see bags_source_files. */
BAGS_EXPERIMENTAL bool bags_import_has_files(
    const char *path, bool (*accept)(const char *name));

/* The last part of a path. */
BAGS_EXPERIMENTAL const char *bags_import_base(const char *path);
/* Compare names for qsort, with numbers in them by value. */
BAGS_EXPERIMENTAL int bags_import_compare(const void *left, const void *right);
/* True if the name ends in one of these space-separated endings, ignoring case. */
BAGS_EXPERIMENTAL bool bags_import_ends(const char *name, const char *endings);

/* Convert a name in a source to a field name, NUL-terminated, in `out` of size + 2
 * bytes: bytes that are not allowed in file names on all systems (control characters, /
 * \ : * ? " < > |, a first '.', bytes that are not UTF-8) are replaced by '_'; an empty
 * name becomes "_". */
BAGS_EXPERIMENTAL void bags_import_name(const void *name, size_t size, char *out);

/* The type of an encoded file, from its first bytes (12 or more): "jpeg", "png", "webp",
 * "npy", "mp4" or "webm"; NULL if unknown. Static. */
BAGS_EXPERIMENTAL const char *bags_import_magic(const void *data, size_t size);

/*
 * Find a symbol in a library opened on first use with dlopen: the first one in
 * `libraries`, a NULL-terminated list, that the loader finds. It stays open. Returns
 * NULL with BAGS_ERROR_MISSING if there is no such library (the message names the first
 * one, or a missing dependency) or the symbol is missing. Threads: any.
 */
BAGS_EXPERIMENTAL void *bags_import_symbol(
    const char *const *libraries, const char *symbol, bags_error *err);

/* bags_import_is_integer is true for int8 to uint64; bags_import_integer reads an
 * integer of such a dtype from little-endian bytes. */
BAGS_EXPERIMENTAL bool bags_import_is_integer(bags_dtype dtype);
BAGS_EXPERIMENTAL bags_value bags_import_integer(bags_dtype dtype, const void *data);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_IMPORT_H */
