/*
 * bags.h - write and read machine-learning datasets in the Bag and Bags
 * formats of the Python package `bags` (now `granular`), in C or C++.
 *
 * COMPILE
 *     Copy this file into your project and include it wherever you like. In
 *     exactly one source file, before any system header, write
 *
 *         #define BAGS_IMPLEMENTATION
 *         #include "bags.h"
 *
 *     It needs libc and the operating system, nothing more:
 *     cc -O2 program.c. Images, video, msgpack and .npy files are optional,
 *     one file each, in formats/.
 *
 * A WHOLE PROGRAM
 *
 *     #define BAGS_IMPLEMENTATION
 *     #include "bags.h"
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         bags_error err;
 *         bags_field fields[] = {{"label", "int(4)"}, {"words", "utf8[]"}};
 *         bags_writer *writer = bags_writer_open("pets", fields, 2, NULL, &err);
 *         bags_value label = bags_int(7);
 *         bags_value words[] = {bags_utf8("a"), bags_utf8("cat")};
 *         bags_entry datapoint[] = {{"label", &label, 1}, {"words", words, 2}};
 *         if (writer)
 *             bags_writer_append(writer, datapoint, 2, NULL);
 *         if (!writer || bags_writer_close(writer, &err)) {
 *             fprintf(stderr, "%s\n", err.message);
 *             return 1;
 *         }
 *
 *         bags_row row = {0};
 *         bags_reader *reader = bags_reader_open("pets", NULL, &err);
 *         if (!reader || bags_reader_get(reader, 0, NULL, 0, &row, &err)) {
 *             fprintf(stderr, "%s\n", err.message);
 *             return 1;
 *         }
 *         bags_bytes word = bags_row_bytes(&row, 1, 1);
 *         printf("%.*s\n", (int)word.size, (const char *)word.data);
 *         bags_row_free(&row);
 *         bags_reader_close(reader);
 *         return 0;
 *     }
 *
 * CONTENTS (search for the tag)
 *     >>config   version, how functions are declared, includes
 *     >>errors   bags_code, bags_error
 *     >>views    bags_bytes, bags_range, bags_buffer
 *     >>hooks    bags_allocator, bags_io
 *     >>bag      one file: options, reader, writer
 *     >>types    type strings, dtypes, bags_value, codecs
 *     >>writer   datasets: fields, options, shards
 *     >>reader   datasets: options, selection, rows
 *     then the implementation, from the ground up:
 *     >>platform  >>fail  >>memory  >>bytes  >>files  >>json  >>refs
 *     >>bag-read  >>bag-write  >>type-text  >>codecs
 *     >>shards  >>dataset-write  >>dataset-read
 *
 * THE BYTES
 *     NAME.bag       blob 0 | blob 1 | ... | blob N-1 | table
 *                    table: 0, end of blob 0, ..., end of blob N-1; each an
 *                    unsigned 64-bit little-endian integer. The last entry is
 *                    also where the table begins: the last 8 bytes of a file
 *                    say all that is needed to find any blob.
 *     DATASET/       spec.json    {"label": "int(4)", "words": "utf8[]"}
 *                    refs.bag     a msgpack array a datapoint: which blobs
 *                    label.bag    one Bag a field
 *                    words.bag
 *     DATASET/       000000/ 000001/ ...   sharded: each a dataset as above
 *
 *     Three variants are read: v1 (as drawn, the one that is written), v2
 *     (granular 0.20 and 0.21: the table has no leading 0, an empty Bag has no
 *     bytes) and split (granular 0.22 and later: the ends stand in NAME.idx).
 *
 * IDEAS
 *     blob       some bytes: one encoded value.
 *     Bag        a file of blobs, found by index.
 *     field      a name and a type. A type names the codec that makes blobs of
 *                values ("jpeg", "int(4)"); with [] behind it each datapoint
 *                has a sequence of them.
 *     datapoint  one value, or one sequence, for every field.
 *     shard      a directory with some of the datapoints. Worker W of K writes
 *                the shards W, W+K, W+2K, ...
 *     row        what a reader gives of one datapoint.
 *
 * RULES THAT HOLD EVERYWHERE
 *     Errors     What opens returns the object or NULL. Everything else that
 *                can fail returns a bags_code, BAGS_OK being 0. The last
 *                parameter is the caller's bags_error, or NULL. Outputs are
 *                untouched on failure. Nothing is printed; nothing aborts.
 *     Ownership  A bags_bytes is a view of bytes that somebody else owns: each
 *                function says for how long. What the library allocates and
 *                hands out has a named function that frees it; those accept
 *                NULL. What you pass in is copied or used up before the call
 *                returns, unless a comment says otherwise.
 *     Scratch    A bags_buffer or a bags_row is memory of the caller's that
 *                calls reuse, so that a loop does not allocate. Start it as
 *                {0}, one a thread, and free it at the end.
 *     Threads    A reader does not change after it was opened: any number of
 *                threads may use it, each with its own scratch. A writer
 *                belongs to one thread at a time.
 *     Ranges     are half-open, start <= i < stop. A stop behind the end is
 *                moved to the end; a start at or behind it gives an empty
 *                range; start > stop is an error.
 *     Sizes      _length counts blobs or datapoints, _size counts bytes.
 *                uint64_t in files, size_t in memory.
 *     Options    are structs in which 0 means the default: {0} is right.
 *     Paths      are UTF-8 and end in a zero byte.
 *
 * UNTRUSTED FILES
 *     Every length and offset is checked before it is used: no bytes in a file
 *     make the library read outside that file, take memory that the file's
 *     size does not justify, or open a file whose name leaves the dataset's
 *     directory. Symbolic links inside a dataset are followed.
 *
 * MACROS YOU MAY DEFINE
 *     BAGS_IMPLEMENTATION  in one source file: compile the functions here.
 *     BAGS_STATIC          everything is static to this source file; implies
 *                          BAGS_IMPLEMENTATION.
 *     BAGS_API             before every public function, for example
 *                          __declspec(dllexport).
 *
 * LIMITS
 *     A file that is mapped must not be made shorter while a reader has it
 *     open: the operating system then ends the program with SIGBUS. Where that
 *     may happen, read with `positional`.
 *     spec.json: at most 1 MiB and 65,535 fields. A shard's number: below 10^18.
 *     Local files need a POSIX system; elsewhere give a bags_io of your own.
 *
 * The licence is at the end of this file.
 */
#if defined(BAGS_STATIC) && !defined(BAGS_IMPLEMENTATION)
#define BAGS_IMPLEMENTATION
#endif

/* The implementation calls POSIX functions and wants 64-bit file offsets. Both
 * must be asked for before the first system header. */
#if defined(BAGS_IMPLEMENTATION) && !defined(BAGI_IMPLEMENTED) && !defined(_WIN32)
#if !defined(_GNU_SOURCE) && !defined(_FEATURES_H)
#define _GNU_SOURCE 1
#endif
#if !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE 1
#endif
#if !defined(_FILE_OFFSET_BITS) && !defined(_FEATURES_H)
#define _FILE_OFFSET_BITS 64
#endif
#endif

#ifndef BAGS_H
#define BAGS_H

/* ========================================================================
 * >>config
 * ====================================================================== */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAGS_VERSION_MAJOR 0
#define BAGS_VERSION_MINOR 1
#define BAGS_VERSION_PATCH 0
#define BAGS_VERSION "0.1.0"

/* BAGI_UNUSED keeps a program that includes everything as static functions,
 * and calls a few, free of warnings. */
#if defined(__GNUC__) || defined(__clang__)
#define BAGI_UNUSED __attribute__((unused))
#define BAGI_PRINTF(string, first) \
    __attribute__((format(printf, string, first)))
#else
#define BAGI_UNUSED
#define BAGI_PRINTF(string, first)
#endif

#ifndef BAGS_API
#if defined(BAGS_STATIC)
#define BAGS_API static BAGI_UNUSED
#elif defined(__cplusplus)
#define BAGS_API extern "C"
#else
#define BAGS_API extern
#endif
#endif

/* The version of the implementation that was linked, like BAGS_VERSION. */
BAGS_API const char *bags_version(void);

/* ========================================================================
 * >>errors
 * A code says what a caller can do about it; the message says the rest.
 * ====================================================================== */

typedef enum bags_code {
    BAGS_OK = 0,
    BAGS_ERROR_ARGUMENT,   /* the call makes no sense: mend the program */
    BAGS_ERROR_STATE,      /* a call out of order, as end without begin */
    BAGS_ERROR_RANGE,      /* no such index; start > stop */
    BAGS_ERROR_FIELD,      /* a field is unknown, missing or given twice */
    BAGS_ERROR_TYPE,       /* a bad type string; no codec for this type */
    BAGS_ERROR_VALUE,      /* a value that its type cannot hold */
    BAGS_ERROR_MISSING,    /* no such file or directory */
    BAGS_ERROR_EXISTS,     /* what should be created exists already */
    BAGS_ERROR_LOCKED,     /* a living writer works on it */
    BAGS_ERROR_UNFINISHED, /* a writer has not finished it: recover */
    BAGS_ERROR_GAP,        /* shards are missing */
    BAGS_ERROR_CORRUPT,    /* the bytes contradict themselves */
    BAGS_ERROR_LIMIT,      /* right, but too large for this machine or type */
    BAGS_ERROR_IO,         /* the system refused; see bags_error.system */
    BAGS_ERROR_MEMORY      /* out of memory */
} bags_code;

#define BAGS_ERROR_SIZE 1024

/*
 * What went wrong. The caller's, of fixed size, and always written by a
 * function that fails, if given. A function that succeeds does not touch it.
 */
typedef struct bags_error {
    bags_code code;
    int system;                    /* errno where the system said no, else 0 */
    char message[BAGS_ERROR_SIZE]; /* one line of UTF-8, ended by 0: the file,
                                      the field, the index, the numbers */
} bags_error;

/* A code in words, as "out of memory". Never NULL; lives forever. */
BAGS_API const char *bags_code_name(bags_code code);

/*
 * Write an error, as a codec or an I/O hook of yours must before it fails.
 * format is printf's. err may be NULL. Returns code. A message that is too long
 * is cut.
 */
BAGS_API bags_code bags_fail(bags_error *err, bags_code code,
    const char *format, ...) BAGI_PRINTF(3, 4);

/* ========================================================================
 * >>views
 * Bytes that somebody else owns, and memory that a caller lends.
 * ====================================================================== */

struct bags_allocator;

/* A view of bytes. Not owned, not ended by 0, not aligned. */
typedef struct bags_bytes {
    const unsigned char *data; /* may be NULL if size is 0 */
    size_t size;
} bags_bytes;

/*
 * A view of consecutive blobs of a Bag: their bytes, which lie one behind the
 * other, and where each of them ends. Made by bag_reader_get_range, which has
 * checked every entry; read it with bags_range_get.
 */
typedef struct bags_range {
    const unsigned char *data; /* the first byte of the first blob */
    size_t size;               /* bytes of all blobs */
    size_t length;             /* number of blobs */
    const unsigned char *ends; /* `length` ends, as 8 little-endian bytes,
                                  unaligned, counted as `start` is */
    uint64_t start;            /* where the first blob starts in the file */
} bags_range;

/* The i-th blob of a range, 0 <= i < range->length (else an empty view).
 * Borrowed for as long as the range is valid. O(1). */
BAGS_API bags_bytes bags_range_get(const bags_range *range, size_t i);

/*
 * Memory that grows, by an allocator that it remembers. Start it as {0}; the
 * library then gives it the allocator of the object that first grows it, which
 * is malloc unless you said otherwise.
 */
typedef struct bags_buffer {
    unsigned char *data;
    size_t capacity;
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_buffer;

/*
 * Make a buffer at least `size` bytes large; its content is kept. It grows by
 * at least half, so that repeated calls cost O(n) in all. The data is aligned
 * for any type. Returns BAGS_OK or BAGS_ERROR_MEMORY, the buffer untouched.
 */
BAGS_API bags_code bags_buffer_reserve(bags_buffer *buffer, size_t size,
    bags_error *err);

/* Release a buffer's memory and make it {0} again. NULL is accepted. */
BAGS_API void bags_buffer_free(bags_buffer *buffer);

/* ========================================================================
 * >>hooks
 * Where memory comes from and where files live. Both are copied when an object
 * is opened; what `user` points to must live as long as the object.
 * ====================================================================== */

/*
 * resize works as realloc: data NULL allocates, new_size 0 releases (and
 * returns NULL), old_size is the size that was asked for before. NULL with
 * new_size > 0 means out of memory, data being untouched. Must be safe to call
 * from several threads if a reader is shared.
 */
typedef struct bags_allocator {
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_allocator;

#define BAGS_IO_READ 0   /* an existing file, to read */
#define BAGS_IO_CREATE 1 /* a new file, to read and write; EEXIST if there */
#define BAGS_IO_WRITE 2  /* an existing file, to read and write */

typedef enum bags_path_kind {
    BAGS_PATH_NONE, /* nothing has this name */
    BAGS_PATH_FILE,
    BAGS_PATH_DIRECTORY
} bags_path_kind;

/*
 * All access to files. Every hook returns 0, or an errno value that ends up in
 * bags_error.system. Reads and writes say where in the file; there is no
 * cursor. They may do less than they were asked for and are called again;
 * reading 0 bytes means that the file ends. Hooks of one reader are called from
 * several threads at once. Those marked optional may be NULL.
 */
typedef struct bags_io {
    void *user;
    int (*open)(void *user, const char *path, int mode, void **file);
    int (*close)(void *user, void *file);
    int (*size)(void *user, void *file, uint64_t *size);
    int (*read_at)(void *user, void *file, uint64_t offset, void *data,
        size_t size, size_t *done);
    int (*write_at)(void *user, void *file, uint64_t offset, const void *data,
        size_t size, size_t *done);
    int (*truncate)(void *user, void *file, uint64_t size);
    int (*sync)(void *user, void *file); /* until it survives a power loss */
    /* Lock the file against other open files, until it is closed, without
     * waiting: EWOULDBLOCK if somebody else has it. */
    int (*lock)(void *user, void *file);
    /* Optional. The first `size` bytes, at least 1, read-only, valid after the
     * file is closed, until unmap. A failure means: read instead. */
    int (*map)(void *user, void *file, size_t size, const void **data);
    int (*unmap)(void *user, const void *data, size_t size);
    /* What a path is; 0 with BAGS_PATH_NONE if there is nothing. */
    int (*kind)(void *user, const char *path, bags_path_kind *kind);
    int (*make_dir)(void *user, const char *path); /* EEXIST if there */
    int (*sync_dir)(void *user, const char *path);
    /* Call each() with every name in a directory but . and .., in any order,
     * until it returns other than 0, and return that. */
    int (*list)(void *user, const char *path,
        int (*each)(void *each_user, const char *name), void *each_user);
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path);     /* a file */
    int (*remove_dir)(void *user, const char *path); /* an empty directory */
} bags_io;

/*
 * The hooks for local files, to wrap them in hooks of your own. NULL on systems
 * for which there are none. Lives forever.
 */
BAGS_API const bags_io *bags_io_local(void);

/* ========================================================================
 * >>bag
 * One file. A dataset is made of these; alone they are a plain, fast list of
 * blobs.
 * ====================================================================== */

typedef struct bag_reader bag_reader;
typedef struct bag_writer bag_writer;

typedef struct bag_reader_options {
    bool positional; /* read by position; do not map the file */
    bool load_table; /* with positional: hold the table in memory, 8 bytes a
                        blob, so that a read is one system call, not two */
    bool allow_empty_file; /* 0 bytes is an empty Bag, as granular 0.20 and 0.21
                              write it; else an error, since it is also what
                              a crash leaves */
    const bags_allocator *allocator; /* NULL: malloc family */
    const bags_io *io;               /* NULL: local files */
} bag_reader_options;

/*
 * Open a Bag and check its shape.
 *
 * A file NAME.idx beside NAME.bag is looked for, as the split variant has one.
 * Local files are mapped; a file that cannot be mapped is read by position.
 *
 * Returns the reader, to be closed by bag_reader_close, or NULL:
 *   BAGS_ERROR_MISSING  no such file
 *   BAGS_ERROR_CORRUPT  not a Bag: too short, or its table cannot be right
 *   BAGS_ERROR_IO       the system refused; err->system is errno
 *   BAGS_ERROR_LIMIT    load_table, but the table is larger than memory
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Cost: O(1), some system calls; the table is not read (but with load_table).
 */
BAGS_API bag_reader *bag_reader_open(const char *path,
    const bag_reader_options *options, bags_error *err);

/*
 * The same for a Bag that stands in memory, v1 or v2. The bytes are borrowed:
 * they must stay as they are until the reader is closed. They need not be
 * aligned.
 */
BAGS_API bag_reader *bag_reader_open_memory(const void *data, size_t size,
    const bag_reader_options *options, bags_error *err);

/* Release a reader and every view that it gave. NULL is accepted. No thread may
 * be using it. */
BAGS_API void bag_reader_close(bag_reader *reader);

/* Number of blobs. */
BAGS_API uint64_t bag_reader_length(const bag_reader *reader);

/* Bytes of the Bag: the file's size (split: the blobs' and the index's). */
BAGS_API uint64_t bag_reader_size(const bag_reader *reader);

/*
 * Read one blob.
 *
 * *out borrows it: valid until the reader is closed or the scratch is used
 * again or freed, whichever is first. Not copied when mapped.
 *
 *   index    0 .. bag_reader_length(reader) - 1
 *   scratch  grown as needed; reuse it between calls
 *   out      the bytes; size may be 0
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    no such blob
 *   BAGS_ERROR_CORRUPT  the table places it outside the data
 *   BAGS_ERROR_IO       the read failed; err->system is errno
 *   BAGS_ERROR_MEMORY   scratch could not grow
 *
 * Threads: any, each with its own scratch.
 * Cost: O(1) mapped, without a system call; otherwise one read, two if the
 * table is not loaded.
 */
BAGS_API bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_bytes *out, bags_error *err);

/*
 * Read consecutive blobs, start <= i < stop, with one contiguous read.
 *
 * *out borrows them: valid until the reader is closed or the scratch is used
 * again or freed, whichever is first. Not copied when mapped. A stop behind
 * the last blob is moved to the end.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    start > stop
 *   BAGS_ERROR_CORRUPT  the table places one outside the data; err names it
 *   BAGS_ERROR_IO       the read failed
 *   BAGS_ERROR_LIMIT    larger than the address space
 *   BAGS_ERROR_MEMORY   scratch could not grow
 *
 * Threads: any, each with its own scratch.
 * Cost: O(stop - start) to check the table's entries; no copy when mapped,
 * otherwise one read, two if the table is not loaded.
 */
BAGS_API bags_code bag_reader_get_range(const bag_reader *reader,
    uint64_t start, uint64_t stop, bags_buffer *scratch, bags_range *out,
    bags_error *err);

/*
 * Check every entry of the table. Returns BAGS_OK, or BAGS_ERROR_CORRUPT with
 * the first blob that is wrong, or BAGS_ERROR_IO. Cost: reads the whole table,
 * with a small buffer of its own when it is not mapped.
 */
BAGS_API bags_code bag_reader_verify(const bag_reader *reader, bags_error *err);

typedef struct bag_writer_options {
    bool keep_idx;   /* leave the journal NAME.idx: granular 0.22 reads it */
    bool no_sync;    /* close without waiting for the disk */
    size_t buffer_size; /* bytes held back, rounded up to a power of two of at
                           least 4 KiB; 0: 2 MiB */
    const bags_allocator *allocator; /* NULL: malloc family */
    const bags_io *io;               /* NULL: local files */
} bag_writer_options;

/*
 * Create a Bag. It must not exist. While it is being written, the ends of its
 * blobs stand beside it in NAME.idx, so that what was flushed can be read even
 * if the program dies.
 *
 * Returns the writer, to be ended by bag_writer_close or bag_writer_abort, or
 * NULL: BAGS_ERROR_EXISTS, BAGS_ERROR_MISSING (no such directory),
 * BAGS_ERROR_IO, BAGS_ERROR_MEMORY.
 *
 * Threads: one at a time.
 */
BAGS_API bag_writer *bag_writer_open(const char *path,
    const bag_writer_options *options, bags_error *err);

/*
 * Add a blob; *index, which may be NULL, receives its number. The bytes are
 * copied. data may be NULL if size is 0.
 *
 * Returns BAGS_OK, BAGS_ERROR_IO or BAGS_ERROR_LIMIT (2^64 bytes). After a
 * failure the writer keeps it, and every later call repeats it.
 *
 * Cost: a copy; a system call when the buffer is full. No allocation.
 */
BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data,
    size_t size, uint64_t *index, bags_error *err);

/* Hand everything to the system: it then survives the end of this process.
 * Returns BAGS_OK or BAGS_ERROR_IO. */
BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err);

/* Number of blobs appended. */
BAGS_API uint64_t bag_writer_length(const bag_writer *writer);

/* Bytes that the file will have when it is closed now, table included. */
BAGS_API uint64_t bag_writer_size(const bag_writer *writer);

/*
 * Write the table, wait for the disk (but with no_sync), remove the journal and
 * release the writer, also on failure. Repeats the first failure; then what was
 * flushed stays beside its journal. NULL is accepted, and is BAGS_OK.
 */
BAGS_API bags_code bag_writer_close(bag_writer *writer, bags_error *err);

/* Remove what was written and release the writer. NULL is accepted. */
BAGS_API void bag_writer_abort(bag_writer *writer);

/* ========================================================================
 * >>types
 * What a field's type means, values in memory, and the codecs between values
 * and blobs.
 * ====================================================================== */

#define BAGS_MAX_DIMS 64

/* Elements of arrays, named as NumPy names them. */
typedef enum bags_dtype {
    BAGS_DTYPE_NONE = 0,
    BAGS_BOOL,
    BAGS_UINT8,
    BAGS_UINT16,
    BAGS_UINT32,
    BAGS_UINT64,
    BAGS_INT8,
    BAGS_INT16,
    BAGS_INT32,
    BAGS_INT64,
    BAGS_FLOAT16,
    BAGS_FLOAT32,
    BAGS_FLOAT64
} bags_dtype;

/* "float32"; "" for what is no dtype. Lives forever. */
BAGS_API const char *bags_dtype_name(bags_dtype dtype);

/* Bytes of one element; 0 for what is no dtype. */
BAGS_API size_t bags_dtype_size(bags_dtype dtype);

/*
 * The dtype that a text names in one of NumPy's spellings: "float32", "f4",
 * "<f4", "single". *big_endian, which may be NULL, says whether it asks for
 * big-endian elements (">f4"). BAGS_DTYPE_NONE if there is none.
 */
BAGS_API bags_dtype bags_dtype_parse(const char *text, size_t size,
    bool *big_endian);

/* A type string, taken apart. Its views point into the text it was made of. */
typedef struct bags_type {
    bags_bytes name;      /* "array" */
    bags_bytes arguments; /* "float32,64,128": without the parentheses */
    size_t count;         /* number of arguments; "q()" has one, the empty */
    bool sequence;        /* [] stands behind it */
} bags_type;

/*
 * Take a type string apart: name, name(arg,arg), each with an optional [].
 * *out borrows the text. BAGS_OK or BAGS_ERROR_TYPE.
 */
BAGS_API bags_code bags_type_parse(const char *text, bags_type *out,
    bags_error *err);

/* The i-th argument, i < type->count (else an empty view); borrowed as the
 * type is. Not ended by 0. */
BAGS_API bags_bytes bags_type_argument(const bags_type *type, size_t i);

/* The i-th argument as a decimal number. False if it is none, or above 2^64-1,
 * or absent; *out is then untouched. */
BAGS_API bool bags_type_number(const bags_type *type, size_t i, uint64_t *out);

typedef enum bags_kind {
    BAGS_NONE = 0, /* no value: refused by writers */
    BAGS_BLOB,     /* data, size: an encoded blob, stored as it is whatever the
                      field's type */
    BAGS_BYTES,    /* data, size: bytes, for a codec to encode */
    BAGS_UTF8,     /* data, size: text in UTF-8; may contain zero bytes */
    BAGS_UINT,     /* uint: a number from 0 */
    BAGS_INT,      /* sint: a number that may be negative */
    BAGS_ARRAY,    /* data, size, dtype, dims, shape: elements in C order */
    BAGS_OBJECT    /* object: what the codec's own header says */
} bags_kind;

/*
 * A value in memory. It owns nothing: what it points to is the caller's (when
 * written) or valid for as long as the function that decoded it says.
 *
 * Array data is C-contiguous, in this machine's byte order and, when decoded,
 * aligned for its dtype. shape has `dims` entries, the slowest first; an array
 * without dimensions is one element.
 */
typedef struct bags_value {
    bags_kind kind;
    bags_dtype dtype;
    uint64_t uint;
    int64_t sint;
    const void *data;
    size_t size; /* bytes of data */
    size_t dims;
    const uint64_t *shape;
    const void *object;
} bags_value;

/* Make values. What they point to must live until the value has been used. */
BAGS_API bags_value bags_int(int64_t number);
BAGS_API bags_value bags_uint(uint64_t number);
BAGS_API bags_value bags_utf8(const char *text); /* up to its zero byte */
BAGS_API bags_value bags_utf8_sized(const char *text, size_t size);
BAGS_API bags_value bags_blob(const void *data, size_t size);
/* `dims` numbers in `shape`; data holds their product of elements. */
BAGS_API bags_value bags_array(bags_dtype dtype, size_t dims,
    const uint64_t *shape, const void *data);

/*
 * How values of a type become blobs and back.
 *
 *   names   the types it serves: "jpeg", or several, "jpeg jpg"
 *   open    looks at the type's arguments; makes *state, which the other three
 *           receive. The type and its text are gone after the call. NULL: no
 *           arguments are accepted, and state is NULL.
 *   encode  makes a blob. *blob may view the value's own bytes, or `scratch`,
 *           which is the codec's to grow. NULL: only encoded blobs are taken.
 *   decode  makes a value, which may view the blob's bytes, `scratch` or the
 *           state. Several threads may call it with one state at the same time.
 *           NULL: only blobs are given.
 *   close   releases the state. May be NULL.
 *   user    yours
 *
 * On failure they return a code and write err (bags_fail); the library puts the
 * file, the field and the index before the message.
 */
typedef struct bags_codec {
    const char *names;
    bags_code (*open)(const struct bags_codec *codec, const bags_type *type,
        const bags_allocator *allocator, void **state, bags_error *err);
    bags_code (*encode)(void *state, const bags_value *value,
        bags_buffer *scratch, bags_bytes *blob, bags_error *err);
    bags_code (*decode)(void *state, bags_bytes blob, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void (*close)(void *state);
    void *user;
} bags_codec;

/*
 * The types that a program knows. Built in: bytes, utf8, int, int(N),
 * int(N,little), int(N,big), i64, u64, array(DTYPE,D0,D1,...) and array.
 *
 *   bytes   BAGS_BYTES; stored as given
 *   utf8    BAGS_UTF8; refused if it is not valid UTF-8
 *   int     BAGS_UINT; as few bytes as hold it, 0 being none
 *   int(N)  BAGS_UINT; N bytes, refused if it does not fit
 *   u64     BAGS_UINT; 8 bytes
 *   i64     BAGS_INT; 8 bytes, two's complement. All five take BAGS_UINT and
 *           BAGS_INT alike, if the number fits.
 *   array(float32,64,128)   BAGS_ARRAY of just this dtype and shape. One
 *           dimension may be -1: any.
 *   array   BAGS_ARRAY of any dtype and shape, which the blob holds too.
 */
typedef struct bags_codecs bags_codecs;

/* A registry with the built-in codecs. NULL if out of memory. */
BAGS_API bags_codecs *bags_codecs_create(const bags_allocator *allocator,
    bags_error *err);

/*
 * Add a codec; it is copied, its `names` must live on. One that was added later
 * comes before one of the same name. BAGS_OK, BAGS_ERROR_ARGUMENT,
 * BAGS_ERROR_MEMORY. Not while readers or writers use the registry.
 */
BAGS_API bags_code bags_codecs_add(bags_codecs *codecs, const bags_codec *codec,
    bags_error *err);

/* The codec for a type's name, or NULL. codecs may be NULL: the built-in ones.
 * Borrowed: valid until a codec is added or the registry is freed. */
BAGS_API const bags_codec *bags_codecs_find(const bags_codecs *codecs,
    bags_bytes name);

/* Release a registry; after the readers and writers that use it. */
BAGS_API void bags_codecs_free(bags_codecs *codecs);

/* ========================================================================
 * >>writer
 * Datasets, in one directory or in shards.
 * ====================================================================== */

typedef struct bags_writer bags_writer;

/* A field: its name, which becomes the file NAME.bag, and its type. */
typedef struct bags_field {
    const char *name;
    const char *type;
} bags_field;

typedef struct bags_writer_options {
    uint64_t shard_size;   /* bytes per shard; 0: no limit */
    uint64_t shard_length; /* datapoints per shard; 0: no limit */
    uint64_t shard_start;  /* this worker's index, from 0 */
    uint64_t shard_stop;   /* number of workers; 0: one */
    bool sharded;          /* shards even if all four are 0 */
    bool keep_idx;         /* leave the .idx files: granular 0.22 then reads a
                              dataset that has no sequences */
    bool no_sync;          /* do not wait for the disk when a shard is done */
    size_t buffer_size;    /* bytes held back for each field, rounded up to a
                              power of two of at least 4 KiB; 0: 2 MiB */
    const bags_codecs *codecs;       /* NULL: built-in types. Must live as long
                                        as the writer */
    const bags_allocator *allocator; /* NULL: malloc family */
    const bags_io *io;               /* NULL: local files */
} bags_writer_options;

/*
 * Begin a dataset, or this worker's shards of one.
 *
 * Unsharded: `path` is created and must not exist. Sharded (sharded, or any of
 * the four shard numbers not 0): the shard directories path/000000, ... are
 * created when their first datapoint comes; a worker that appends nothing
 * creates nothing. Directories above are created as needed.
 *
 * A shard ends after the datapoint with which the sum of its Bags' sizes
 * reaches shard_size, or its length shard_length.
 *
 * Fields may stand in any order; on disk they are sorted by name.
 *
 * Returns the writer, to be ended by bags_writer_close or bags_writer_abort, or
 * NULL:
 *   BAGS_ERROR_EXISTS    the dataset, or this worker's first shard, exists
 *   BAGS_ERROR_FIELD     a name is used twice, or cannot be a file's name
 *                        everywhere: refs, leading '.', control characters,
 *                        / \ : * ? " < > |, device names as "con"
 *   BAGS_ERROR_TYPE      a type string is wrong
 *   BAGS_ERROR_ARGUMENT  shard_start is not below shard_stop
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: one at a time.
 */
BAGS_API bags_writer *bags_writer_open(const char *path,
    const bags_field *fields, size_t count, const bags_writer_options *options,
    bags_error *err);

/* What one field gets in a datapoint. */
typedef struct bags_entry {
    const char *field;
    const bags_value *values; /* one; for a sequence its items */
    size_t count;             /* 1; for a sequence the number of items, or 0 */
} bags_entry;

/*
 * Append a datapoint: an entry for every field, in any order (fastest: the
 * order of bags_writer_open). It is written whole or leaves no trace.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD  a field is missing, unknown or given twice
 *   BAGS_ERROR_TYPE   no codec for a type (a bags_blob needs none)
 *   BAGS_ERROR_VALUE  a value that its type cannot hold, or not one value
 *   BAGS_ERROR_STATE  a streamed datapoint was begun and not ended
 *   BAGS_ERROR_EXISTS the next shard's directory exists already: two workers
 *                     have the same number
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * A datapoint that was refused does not stop the writer, but close reports it,
 * so that a loop may check once; see bags_writer_forgive. After a failure of
 * the system (EXISTS, IO, MEMORY while writing) every later call repeats it.
 *
 * Cost: what the codecs cost, and a copy of the blobs.
 */
BAGS_API bags_code bags_writer_append(bags_writer *writer,
    const bags_entry *entries, size_t count, bags_error *err);

/*
 * The same in pieces, so that a long sequence need not stand in memory:
 *
 *     bags_writer_begin(writer, err);
 *     bags_writer_set(writer, "caption", &caption, err);
 *     while (next_frame(&frame))
 *         bags_writer_push(writer, "frames", &frame, err);
 *     bags_writer_end(writer, err);
 *
 * set gives a plain field its value, push adds one item to a sequence, in any
 * order; a sequence without a push is empty. end appends the datapoint, cancel
 * drops it. If one call fails, the datapoint is lost: end says why, drops it,
 * and leaves no trace. Errors as for bags_writer_append.
 */
BAGS_API bags_code bags_writer_begin(bags_writer *writer, bags_error *err);
BAGS_API bags_code bags_writer_set(bags_writer *writer, const char *field,
    const bags_value *value, bags_error *err);
BAGS_API bags_code bags_writer_push(bags_writer *writer, const char *field,
    const bags_value *item, bags_error *err);
BAGS_API bags_code bags_writer_end(bags_writer *writer, bags_error *err);
BAGS_API void bags_writer_cancel(bags_writer *writer);

/*
 * Forget that a datapoint was refused, after the caller has dealt with it:
 * close then does not report it. A failure of the system is not forgotten.
 */
BAGS_API void bags_writer_forgive(bags_writer *writer);

/* Hand every whole datapoint to the system: it then survives the end of this
 * process. Returns BAGS_OK or BAGS_ERROR_IO. */
BAGS_API bags_code bags_writer_flush(bags_writer *writer, bags_error *err);

/* Number of datapoints appended, over all of this writer's shards. */
BAGS_API uint64_t bags_writer_length(const bags_writer *writer);

/* Number of shards that this writer has finished (of an unsharded dataset 0,
 * until it is closed). */
BAGS_API uint64_t bags_writer_shards(const bags_writer *writer);

/*
 * Finish the shard and release the writer, also on failure. On success the
 * dataset is complete and, but with no_sync, on disk. After a failure of the
 * system the unfinished shard stays, without its spec.json, so that no reader
 * takes it for whole. NULL is accepted, and is BAGS_OK.
 *
 * Returns the first failure. If that is a datapoint that was refused, all
 * others have been written and the dataset is complete.
 */
BAGS_API bags_code bags_writer_close(bags_writer *writer, bags_error *err);

/* Remove the unfinished shard and release the writer. Finished shards stay. NULL
 * is accepted. */
BAGS_API void bags_writer_abort(bags_writer *writer);

/*
 * Close the gaps in a sharded dataset's numbers by renaming shards to 000000,
 * 000001, ..., their order and content unchanged, as Python readers need it.
 * *renamed, which may be NULL, receives how many were.
 *
 * Nothing is written into any shard. If it is interrupted, the dataset is whole
 * with other gaps, and it can be called again. Only when all workers are done:
 * BAGS_ERROR_UNFINISHED or BAGS_ERROR_LOCKED if a shard is not, nothing having
 * been renamed. io NULL: local files.
 */
BAGS_API bags_code bags_finalize(const char *path,
    const bags_allocator *allocator, const bags_io *io, uint64_t *renamed,
    bags_error *err);

/* ========================================================================
 * >>reader
 * A dataset, or all shards of one, as one list of datapoints.
 * ====================================================================== */

typedef struct bags_reader bags_reader;

typedef struct bags_reader_options {
    uint64_t shard_start;  /* read the shards of worker shard_start ... */
    uint64_t shard_stop;   /* ... of shard_stop workers; 0: all */
    bool allow_gaps;       /* read on although shards are missing */
    bool skip_unfinished;  /* leave out shards that are being written, or whose
                              writer died; and of a split dataset whose fields
                              are of unequal length, read the shortest */
    bool positional;       /* read by position; do not map files */
    bool load_tables;      /* with positional: hold the tables of the files in
                              use in memory, 8 bytes a blob */
    size_t max_files;      /* files open at once, with positional; 0: 64 */
    size_t max_maps;       /* files mapped at once; those above are read by
                              position; 0: 16384 */
    const bags_codecs *codecs;       /* NULL: built-in types. Must live as long
                                        as the reader */
    const bags_allocator *allocator; /* NULL: malloc family */
    const bags_io *io;               /* NULL: local files */
} bags_reader_options;

/*
 * Open a dataset, or a directory of shards: it finds out by itself.
 *
 * Returns the reader, to be closed by bags_reader_close, or NULL:
 *   BAGS_ERROR_MISSING     no such directory, or no dataset in it
 *   BAGS_ERROR_UNFINISHED  a writer works on it, or died
 *   BAGS_ERROR_GAP         shards are missing; err names them
 *   BAGS_ERROR_CORRUPT     spec.json or a Bag cannot be right; shards of
 *                          different specs; two shards of one number
 *   BAGS_ERROR_FIELD       spec.json names a file outside the dataset
 *   BAGS_ERROR_ARGUMENT    shard_start is not below shard_stop
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Cost: a few system calls a shard; no table is read, no other file opened.
 */
BAGS_API bags_reader *bags_reader_open(const char *path,
    const bags_reader_options *options, bags_error *err);

/* Release a reader and every view that it gave. NULL is accepted. No thread may
 * be using it; rows stay the caller's to free. */
BAGS_API void bags_reader_close(bags_reader *reader);

/* Number of datapoints in all shards. */
BAGS_API uint64_t bags_reader_length(const bags_reader *reader);

/* Number of shards that are read; 1 for a dataset without shards. */
BAGS_API uint64_t bags_reader_shards(const bags_reader *reader);

/* Number of unfinished shards that were left out. */
BAGS_API uint64_t bags_reader_skipped(const bags_reader *reader);

/* Whether it is a directory of shards. */
BAGS_API bool bags_reader_sharded(const bags_reader *reader);

typedef struct bags_shard {
    uint64_t number; /* the shard's name as a number; 0 if not sharded */
    uint64_t start;  /* the index of its first datapoint */
    uint64_t length; /* its number of datapoints */
} bags_shard;

/* The i-th shard, 0 <= i < bags_reader_shards(reader); else all 0. */
BAGS_API bags_shard bags_reader_shard(const bags_reader *reader, uint64_t i);

/* Missing shard numbers: start, start + step, ... below stop. */
typedef struct bags_gap {
    uint64_t start, stop, step;
} bags_gap;

/* The gaps between the shards' numbers, in order; *count of them. Only with
 * allow_gaps is there one. Borrowed: valid until the reader is closed. */
BAGS_API const bags_gap *bags_reader_gaps(const bags_reader *reader,
    size_t *count);

/* Bytes of all Bags (refs included; for split the .idx files too), without
 * spec.json. Cost: opens every file. */
BAGS_API bags_code bags_reader_size(const bags_reader *reader, uint64_t *size,
    bags_error *err);

/* The fields, sorted by name; *count of them. Borrowed: valid until the reader
 * is closed. A field's number is its place here. */
BAGS_API const bags_field *bags_reader_fields(const bags_reader *reader,
    size_t *count);

/* The number of the field with this name. BAGS_ERROR_FIELD if there is none. */
BAGS_API bags_code bags_reader_find(const bags_reader *reader, const char *name,
    size_t *field, bags_error *err);

/* A field's type, taken apart. Borrowed: valid until the reader is closed. NULL
 * if there is no such field. */
BAGS_API const bags_type *bags_reader_type(const bags_reader *reader,
    size_t field);

typedef struct bags_stat {
    uint64_t blobs; /* blobs of the field, in all shards */
    uint64_t bytes; /* their sizes' sum */
} bags_stat;

/* How many blobs a field has, referred to or not. Cost: opens a file a shard. */
BAGS_API bags_code bags_reader_stat(const bags_reader *reader, size_t field,
    bags_stat *out, bags_error *err);

/*
 * What to read of a datapoint: a field, by its number; of a sequence the items
 * start, start + step, ... below stop. start, stop and step all 0, as in
 * {image}, mean the whole sequence; {frames, 0, 8} are the first eight items.
 * Ranges are as everywhere: see the top. For a plain field they must be 0.
 *
 * bags_slice(frames, start, stop) makes one whose numbers are taken as they
 * are, (0, 0) being empty: for numbers that a program computes.
 */
typedef struct bags_select {
    size_t field;
    uint64_t start;
    uint64_t stop;
    uint64_t step; /* 0: 1 */
} bags_select;

BAGS_API bags_select bags_slice(size_t field, uint64_t start, uint64_t stop);

/*
 * The scratch of a reader's calls, and their result. Start it as {0}; use one a
 * thread, with as many readers as you like; release it with bags_row_free. Its
 * members are private.
 */
typedef struct bags_row {
    const bags_reader *reader;
    uint64_t index;
    uint64_t shard;
    size_t length;
    size_t capacity;
    struct bagi_slot *slots;
    bags_buffer scratch;
} bags_row;

/*
 * Read a datapoint.
 *
 *   index     0 .. bags_reader_length(reader) - 1
 *   selects   which fields, `count` of them, each at most once. NULL: all,
 *             whole, in order
 *   row       receives what was selected, slot i for selects[i]
 *
 * The row borrows the blobs: valid until the reader is closed or the scratch is
 * used again or freed, whichever is first; the scratch is the row. Not copied
 * when mapped. If it fails, the row is empty.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    no such datapoint; start > stop; a range of a plain
 *                       field
 *   BAGS_ERROR_FIELD    no such field, or selected twice
 *   BAGS_ERROR_CORRUPT  refs.bag or a table cannot be right; err names the
 *                       file and the index
 *   BAGS_ERROR_IO       the read failed; err->system is errno
 *   BAGS_ERROR_MEMORY   the row could not grow
 *
 * Threads: any, each with its own row.
 * Cost: mapped, some nanoseconds a field and an item, no system call and, once
 * the row has grown, no allocation. A shard's file is opened when it is first
 * used. By position: one contiguous read a field, and one or two for the table.
 */
BAGS_API bags_code bags_reader_get(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err);

/*
 * Read a plain field of consecutive datapoints, start <= i < stop, with one
 * contiguous read a shard. The row then has one slot with an item a datapoint.
 * A stop behind the last datapoint is moved to the end. Lifetime, errors and
 * threads as for bags_reader_get. Cost: O(stop - start).
 */
BAGS_API bags_code bags_reader_get_range(const bags_reader *reader,
    size_t field, uint64_t start, uint64_t stop, bags_row *row,
    bags_error *err);

/*
 * How many items a sequence has in a datapoint, without reading them; 1 for a
 * plain field. The row is used as scratch. Errors and threads as for
 * bags_reader_get.
 */
BAGS_API bags_code bags_reader_count(const bags_reader *reader, uint64_t index,
    size_t field, bags_row *row, uint64_t *count, bags_error *err);

/* Number of items in a slot: 1 for a plain field. 0 if there is no such slot. */
BAGS_API size_t bags_row_length(const bags_row *row, size_t slot);

/* An item's blob, as it is encoded. A view of nothing if there is none. Valid as
 * bags_reader_get says. Cost: O(1). */
BAGS_API bags_bytes bags_row_bytes(const bags_row *row, size_t slot,
    size_t item);

/*
 * An item's value, decoded by the codec of its field's type.
 *
 * *out borrows it: valid until the reader is closed or the scratch is used
 * again or freed, whichever is first. The scratch is NULL for the slot's own,
 * which the next call of bags_row_value for the same slot uses again, as does
 * every other use of the row; or a buffer of the caller's, which only the
 * caller uses.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    no such slot or item
 *   BAGS_ERROR_TYPE     no codec for the type: bags_row_bytes has the blob
 *   BAGS_ERROR_CORRUPT, BAGS_ERROR_VALUE, BAGS_ERROR_LIMIT
 *                       not a blob of this type, or one too large to decode
 *   BAGS_ERROR_MEMORY   the scratch could not grow
 *
 * Cost: the codec's. Built-in codecs do not copy, but for arrays that are not
 * aligned for their dtype, or of the other byte order.
 */
BAGS_API bags_code bags_row_value(bags_row *row, size_t slot, size_t item,
    bags_buffer *scratch, bags_value *out, bags_error *err);

/* Release a row's memory and make it {0} again. NULL is accepted. */
BAGS_API void bags_row_free(bags_row *row);

/*
 * Check the structure of every file: every entry of every table, every row of
 * refs.bag, and that what it refers to is there. BAGS_OK, or the first fault.
 * Cost: reads all tables and refs, not the blobs.
 */
BAGS_API bags_code bags_reader_verify(const bags_reader *reader,
    bags_error *err);

#endif /* BAGS_H */

/* ========================================================================
 *
 *                 The API ends here; the implementation begins.
 *
 * ====================================================================== */
