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
#if defined(BAGS_IMPLEMENTATION) && !defined(BAGI_IMPLEMENTED)
#define BAGI_IMPLEMENTED

/* ========================================================================
 * >>platform
 * The only place that asks which system this is. It gives: BAGI_ATOMIC (1: a
 * pointer can be published to other threads without a lock), bagi_mutex, and
 * the functions that the local bags_io below is made of.
 * ====================================================================== */

#if defined(_WIN32)
#error "bags.h: local files and locks are not written for Windows yet"
#endif

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(__USE_XOPEN2K8)
#error "bags.h: a system header came first; define BAGS_IMPLEMENTATION and \
include bags.h before it, or compile with -D_GNU_SOURCE or -std=gnu99"
#endif

/* Else compile with -D_FILE_OFFSET_BITS=64, or include bags.h first. */
typedef char bagi_off_t_must_have_64_bits[sizeof(off_t) == 8 ? 1 : -1];

#if defined(__GNUC__) || defined(__clang__)
#define BAGI_ATOMIC 1
#define BAGI_LOAD(slot) __atomic_load_n(slot, __ATOMIC_ACQUIRE)
#define BAGI_STORE(slot, value) __atomic_store_n(slot, value, __ATOMIC_RELEASE)
#define BAGI_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define BAGI_COLD __attribute__((cold, noinline))
#else
#define BAGI_ATOMIC 0
#define BAGI_LOAD(slot) (*(slot))
#define BAGI_STORE(slot, value) (*(slot) = (value))
#define BAGI_UNLIKELY(condition) (condition)
#define BAGI_COLD
#endif

typedef pthread_mutex_t bagi_mutex;

static bool bagi_mutex_init(bagi_mutex *mutex) {
    return pthread_mutex_init(mutex, NULL) == 0;
}

static void bagi_mutex_free(bagi_mutex *mutex) { pthread_mutex_destroy(mutex); }

static void bagi_lock(bagi_mutex *mutex) { pthread_mutex_lock(mutex); }

static void bagi_unlock(bagi_mutex *mutex) { pthread_mutex_unlock(mutex); }

/* strerror is not safe between threads, and strerror_r comes in two forms. */
static const char *bagi_system_text(int error, char *room, size_t size) {
#if defined(__GLIBC__) && defined(__USE_GNU)
    return strerror_r(error, room, size);
#else
    return strerror_r(error, room, size) == 0 ? room : "unknown error";
#endif
}

/* A file descriptor travels as a pointer; descriptor 0 must not become NULL. */
static void *bagi_local_wrap(int fd) { return (void *)((intptr_t)fd + 1); }

static int bagi_local_fd(void *file) { return (int)((intptr_t)file - 1); }

/* O_NONBLOCK, so that a FIFO that a stranger put there does not wait for a
 * writer for ever; for regular files it means nothing. */
static int bagi_local_open(void *user, const char *path, int mode,
    void **file) {
    (void)user;
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    flags |= mode == BAGS_IO_READ ? O_RDONLY : O_RDWR;
    if (mode == BAGS_IO_CREATE)
        flags |= O_CREAT | O_EXCL;
    int fd;
    do {
        fd = open(path, flags, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return errno;
    struct stat info;
    int error = fstat(fd, &info) != 0 ? errno : 0;
    if (!error && S_ISDIR(info.st_mode))
        error = EISDIR;
    else if (!error && !S_ISREG(info.st_mode))
        error = ENXIO;
    if (error) {
        close(fd);
        return error;
    }
    *file = bagi_local_wrap(fd);
    return 0;
}

/* A close that was interrupted has closed: never try it twice. */
static int bagi_local_close(void *user, void *file) {
    (void)user;
    return close(bagi_local_fd(file)) != 0 && errno != EINTR ? errno : 0;
}

static int bagi_local_size(void *user, void *file, uint64_t *size) {
    (void)user;
    struct stat info;
    if (fstat(bagi_local_fd(file), &info) != 0)
        return errno;
    *size = (uint64_t)info.st_size;
    return 0;
}

/* The kernel moves at most 2 GiB a call; some systems refuse to try more. */
#define BAGI_LOCAL_MOST ((size_t)1 << 30)

static int bagi_local_read_at(void *user, void *file, uint64_t offset,
    void *data, size_t size, size_t *done) {
    (void)user;
    if (offset > (uint64_t)INT64_MAX)
        return EOVERFLOW;
    if (size > BAGI_LOCAL_MOST)
        size = BAGI_LOCAL_MOST;
    ssize_t count;
    do {
        count = pread(bagi_local_fd(file), data, size, (off_t)offset);
    } while (count < 0 && errno == EINTR);
    if (count < 0)
        return errno;
    *done = (size_t)count;
    return 0;
}

static int bagi_local_write_at(void *user, void *file, uint64_t offset,
    const void *data, size_t size, size_t *done) {
    (void)user;
    if (offset > (uint64_t)INT64_MAX)
        return EFBIG;
    if (size > BAGI_LOCAL_MOST)
        size = BAGI_LOCAL_MOST;
    ssize_t count;
    do {
        count = pwrite(bagi_local_fd(file), data, size, (off_t)offset);
    } while (count < 0 && errno == EINTR);
    if (count < 0)
        return errno;
    *done = (size_t)count;
    return 0;
}

static int bagi_local_truncate(void *user, void *file, uint64_t size) {
    (void)user;
    if (size > (uint64_t)INT64_MAX)
        return EFBIG;
    int result;
    do {
        result = ftruncate(bagi_local_fd(file), (off_t)size);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

/* On macOS fsync leaves the data in the drive's cache; F_FULLFSYNC does not,
 * but not every file system knows it. */
static int bagi_local_sync(void *user, void *file) {
    (void)user;
#if defined(F_FULLFSYNC)
    if (fcntl(bagi_local_fd(file), F_FULLFSYNC) == 0)
        return 0;
#endif
    int result;
    do {
        result = fsync(bagi_local_fd(file));
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

static int bagi_local_lock(void *user, void *file) {
    (void)user;
    int result;
    do {
        result = flock(bagi_local_fd(file), LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

static int bagi_local_map(void *user, void *file, size_t size,
    const void **data) {
    (void)user;
    void *map =
        mmap(NULL, size, PROT_READ, MAP_SHARED, bagi_local_fd(file), 0);
    if (map == MAP_FAILED)
        return errno;
    *data = map;
    return 0;
}

static int bagi_local_unmap(void *user, const void *data, size_t size) {
    (void)user;
    return munmap((void *)(uintptr_t)data, size) != 0 ? errno : 0;
}

static int bagi_local_kind(void *user, const char *path, bags_path_kind *kind) {
    (void)user;
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            return errno;
        *kind = BAGS_PATH_NONE;
        return 0;
    }
    *kind = S_ISDIR(info.st_mode) ? BAGS_PATH_DIRECTORY : BAGS_PATH_FILE;
    return 0;
}

static int bagi_local_make_dir(void *user, const char *path) {
    (void)user;
    return mkdir(path, 0777) != 0 ? errno : 0;
}

/* Some file systems cannot sync a directory, and say EINVAL: then there is
 * nothing more that could be done. */
static int bagi_local_sync_dir(void *user, const char *path) {
    (void)user;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return error;
}

static int bagi_local_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    (void)user;
    DIR *dir = opendir(path);
    if (!dir)
        return errno;
    int error = 0;
    while (!error) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            error = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = each(each_user, entry->d_name);
    }
    closedir(dir);
    return error;
}

static int bagi_local_rename(void *user, const char *from, const char *to) {
    (void)user;
    return rename(from, to) != 0 ? errno : 0;
}

static int bagi_local_remove(void *user, const char *path) {
    (void)user;
    return unlink(path) != 0 ? errno : 0;
}

static int bagi_local_remove_dir(void *user, const char *path) {
    (void)user;
    return rmdir(path) != 0 ? errno : 0;
}

BAGS_API const bags_io *bags_io_local(void) {
    static const bags_io io = {NULL, bagi_local_open, bagi_local_close,
        bagi_local_size, bagi_local_read_at, bagi_local_write_at,
        bagi_local_truncate, bagi_local_sync, bagi_local_lock, bagi_local_map,
        bagi_local_unmap, bagi_local_kind, bagi_local_make_dir,
        bagi_local_sync_dir, bagi_local_list, bagi_local_rename,
        bagi_local_remove, bagi_local_remove_dir};
    return &io;
}

/* ========================================================================
 * >>fail
 * Messages are written where the fault is seen; whoever knows more about where
 * it is (the file, the field, the index) puts that in front on the way up.
 * ====================================================================== */

BAGS_API const char *bags_version(void) { return BAGS_VERSION; }

BAGS_API const char *bags_code_name(bags_code code) {
    static const char *const names[] = {"ok", "wrong use of the library",
        "call out of order", "index or range out of bounds", "wrong field",
        "wrong type", "wrong value", "missing", "exists already",
        "locked by a writer", "unfinished", "shards are missing",
        "corrupt data", "too large", "input or output failed",
        "out of memory"};
    size_t i = (size_t)code;
    return i < sizeof names / sizeof *names ? names[i] : "unknown error";
}

/* Keep a message one line of whole characters, whatever names a stranger put
 * into it. */
static void bagi_tidy(char *message) {
    size_t size = strlen(message), back = 0;
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)message[i] < 0x20 || message[i] == 0x7F)
            message[i] = '?';
    if (size + 1 < BAGS_ERROR_SIZE)
        return;
    while (back < 3 && back < size &&
           ((unsigned char)message[size - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back < size && (unsigned char)message[size - 1 - back] >= 0xC0)
        message[size - 1 - back] = '\0';
}

BAGS_API BAGI_COLD bags_code bags_fail(bags_error *err, bags_code code,
    const char *format, ...) {
    if (!err)
        return code;
    err->code = code;
    err->system = 0;
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(err->message, sizeof err->message, format, arguments) < 0)
        err->message[0] = '\0';
    va_end(arguments);
    bagi_tidy(err->message);
    return code;
}

static bags_code bagi_prefix(bags_error *err, bags_code code,
    const char *format, ...) BAGI_PRINTF(3, 4);

/* Put words before a message that is there. Returns the code, so that a caller
 * can end with it. */
BAGI_COLD static bags_code bagi_prefix(bags_error *err, bags_code code,
    const char *format, ...) {
    if (!err)
        return code;
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    if (size <= 0)
        return code;
    size_t front = (size_t)size < sizeof words ? (size_t)size : sizeof words - 1;
    size_t room = sizeof err->message - 1 - front;
    size_t back = strlen(err->message);
    if (back > room)
        back = room;
    memmove(err->message + front, err->message, back);
    memcpy(err->message, words, front);
    err->message[front + back] = '\0';
    bagi_tidy(err->message);
    return code;
}

/* The end of a path, so that a long one does not push the reason out. */
static const char *bagi_tail(const char *path) {
    const size_t most = 320;
    size_t size = strlen(path);
    if (size <= most)
        return path;
    path += size - most;
    while (((unsigned char)*path & 0xC0) == 0x80)
        path++;
    return path;
}

static bags_code bagi_system_code(int error) {
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return BAGS_ERROR_MISSING;
    case EEXIST:
        return BAGS_ERROR_EXISTS;
    case EWOULDBLOCK:
        return BAGS_ERROR_LOCKED;
    case ENOMEM:
        return BAGS_ERROR_MEMORY;
    default:
        return BAGS_ERROR_IO;
    }
}

/* "path: cannot open: No such file or directory" */
BAGI_COLD static bags_code bagi_fail_system(bags_error *err, int error,
    const char *path, const char *doing) {
    char room[128];
    const char *why = error == ENXIO ? "not a regular file"
                                     : bagi_system_text(error, room, sizeof room);
    bags_code code = bagi_system_code(error);
    bags_fail(err, code, "%s: cannot %s: %s", bagi_tail(path), doing, why);
    if (err)
        err->system = error;
    return code;
}

/* ========================================================================
 * >>memory
 * Allocation through the caller's hook, which wants to know sizes, and checked
 * arithmetic.
 * ====================================================================== */

static void *bagi_malloc_resize(void *user, void *data, size_t old_size,
    size_t new_size) {
    (void)user;
    (void)old_size;
    if (new_size == 0) {
        free(data);
        return NULL;
    }
    return realloc(data, new_size);
}

static bags_allocator bagi_allocator_of(const bags_allocator *allocator) {
    bags_allocator memory = {bagi_malloc_resize, NULL};
    return allocator ? *allocator : memory;
}

BAGI_COLD static bags_code bagi_fail_memory(bags_error *err, size_t size) {
    return bags_fail(err, BAGS_ERROR_MEMORY,
        "out of memory: cannot get %" PRIu64 " bytes", (uint64_t)size);
}

/* Memory, or NULL with err written. Pages of it that are never touched cost
 * nothing. */
static void *bagi_alloc_raw(const bags_allocator *memory, size_t size,
    bags_error *err) {
    void *data = memory->resize(memory->user, NULL, 0, size ? size : 1);
    if (!data)
        bagi_fail_memory(err, size);
    return data;
}

/* The same, zeroed. */
static void *bagi_alloc(const bags_allocator *memory, size_t size,
    bags_error *err) {
    void *data = bagi_alloc_raw(memory, size, err);
    if (data)
        memset(data, 0, size);
    return data;
}

static void bagi_free(const bags_allocator *memory, void *data, size_t size) {
    if (data)
        memory->resize(memory->user, data, size ? size : 1, 0);
}

/* Make room for one more entry of `size` bytes in an array that doubles. */
static bags_code bagi_grow(const bags_allocator *memory, void **data,
    size_t *capacity, size_t count, size_t size, bags_error *err) {
    if (count < *capacity)
        return BAGS_OK;
    size_t more = *capacity ? *capacity * 2 : 8;
    if (more < *capacity || more > SIZE_MAX / size)
        return bagi_fail_memory(err, SIZE_MAX);
    void *bigger = memory->resize(memory->user, *data, *capacity * size,
        more * size);
    if (!bigger)
        return bagi_fail_memory(err, more * size);
    *data = bigger;
    *capacity = more;
    return BAGS_OK;
}

/* A copy of a text, ended by 0; free it with bagi_free_text. */
static char *bagi_copy_text(const bags_allocator *memory, const char *text,
    size_t size, bags_error *err) {
    char *copy = (char *)bagi_alloc(memory, size + 1, err);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

static void bagi_free_text(const bags_allocator *memory, char *text) {
    if (text)
        bagi_free(memory, text, strlen(text) + 1);
}

/* A text made by printf's rules, ended by 0; free it with bagi_free_text. */
static char *bagi_print(const bags_allocator *memory, bags_error *err,
    const char *format, ...) BAGI_PRINTF(3, 4);

static char *bagi_print(const bags_allocator *memory, bags_error *err,
    const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (size < 0) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "text cannot be formatted");
        return NULL;
    }
    char *text = (char *)bagi_alloc(memory, (size_t)size + 1, err);
    if (!text)
        return NULL;
    va_start(arguments, format);
    vsnprintf(text, (size_t)size + 1, format, arguments);
    va_end(arguments);
    return text;
}

BAGS_API bags_code bags_buffer_reserve(bags_buffer *buffer, size_t size,
    bags_error *err) {
    if (size <= buffer->capacity)
        return BAGS_OK;
    if (!buffer->resize)
        buffer->resize = bagi_malloc_resize;
    size_t more = buffer->capacity + buffer->capacity / 2;
    if (more < size)
        more = size;
    if (more < 64)
        more = 64;
    void *data = buffer->resize(buffer->user, buffer->data, buffer->capacity,
        more);
    if (!data)
        return bagi_fail_memory(err, more);
    buffer->data = (unsigned char *)data;
    buffer->capacity = more;
    return BAGS_OK;
}

BAGS_API void bags_buffer_free(bags_buffer *buffer) {
    if (!buffer)
        return;
    if (buffer->data)
        buffer->resize(buffer->user, buffer->data, buffer->capacity, 0);
    memset(buffer, 0, sizeof *buffer);
}

/* A buffer that has no allocator yet takes that of the object it serves. */
static void bagi_buffer_adopt(bags_buffer *buffer,
    const bags_allocator *memory) {
    if (!buffer->resize) {
        buffer->resize = memory->resize;
        buffer->user = memory->user;
    }
}

/* ========================================================================
 * >>bytes
 * Little-endian integers at any address, and UTF-8. Compilers turn the loads
 * into one instruction.
 * ====================================================================== */

static uint64_t bagi_load_u64(const unsigned char *data) {
    return (uint64_t)data[0] | (uint64_t)data[1] << 8 |
           (uint64_t)data[2] << 16 | (uint64_t)data[3] << 24 |
           (uint64_t)data[4] << 32 | (uint64_t)data[5] << 40 |
           (uint64_t)data[6] << 48 | (uint64_t)data[7] << 56;
}

static void bagi_store_u64(unsigned char *data, uint64_t number) {
    for (int i = 0; i < 8; i++)
        data[i] = (unsigned char)(number >> (8 * i));
}

static bool bagi_little_endian(void) {
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

/*
 * The size of the UTF-8 sequence at the start of the text, or 0 if it is not
 * one: overlong forms, surrogates and what is above U+10FFFF are not.
 */
static size_t bagi_utf8_sequence(const unsigned char *text, size_t size) {
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || size < length)
        return 0;
    unsigned char low = 0x80, high = 0xBF; /* bounds of the second byte */
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

/* Where the text stops being UTF-8; its size if it is all UTF-8. Eight ASCII
 * bytes are passed at a time. */
static size_t bagi_utf8_valid(const unsigned char *text, size_t size) {
    size_t i = 0;
    while (i < size) {
        if (size - i >= 8 &&
            !(bagi_load_u64(text + i) & UINT64_C(0x8080808080808080))) {
            i += 8;
            continue;
        }
        size_t length = bagi_utf8_sequence(text + i, size - i);
        if (length == 0)
            return i;
        i += length;
    }
    return size;
}

static size_t bagi_utf8_encode(uint32_t point, unsigned char out[4]) {
    if (point < 0x80) {
        out[0] = (unsigned char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (unsigned char)(0xC0 | point >> 6);
        out[1] = (unsigned char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (unsigned char)(0xE0 | point >> 12);
        out[1] = (unsigned char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (unsigned char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (unsigned char)(0xF0 | point >> 18);
    out[1] = (unsigned char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (unsigned char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (unsigned char)(0x80 | (point & 0x3F));
    return 4;
}

/* The code point of a sequence that bagi_utf8_sequence has accepted. */
static uint32_t bagi_utf8_point(const unsigned char *text, size_t length) {
    static const unsigned char masks[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t point = text[0] & masks[length];
    for (size_t i = 1; i < length; i++)
        point = point << 6 | (text[i] & 0x3F);
    return point;
}

static bool bagi_same(bags_bytes bytes, const char *text) {
    size_t size = strlen(text);
    return bytes.size == size && memcmp(bytes.data, text, size) == 0;
}

/* ========================================================================
 * >>files
 * What the rest calls instead of hooks: they read and write all that was asked
 * for, or fail with a message that has the path.
 * ====================================================================== */

typedef struct bagi_env {
    bags_allocator memory;
    bags_io io;
} bagi_env;

static bagi_env bagi_env_of(const bags_allocator *allocator,
    const bags_io *io) {
    bagi_env env;
    env.memory = bagi_allocator_of(allocator);
    env.io = io ? *io : *bags_io_local();
    return env;
}

static bags_code bagi_open(const bagi_env *env, const char *path, int mode,
    void **file, bags_error *err) {
    int error = env->io.open(env->io.user, path, mode, file);
    if (!error)
        return BAGS_OK;
    *file = NULL;
    return bagi_fail_system(err, error, path,
        mode == BAGS_IO_CREATE ? "create" : "open");
}

/* Close what was only read; nothing can be lost. */
static void bagi_close_read(const bagi_env *env, void *file) {
    if (file)
        env->io.close(env->io.user, file);
}

static bags_code bagi_file_size(const bagi_env *env, void *file,
    const char *path, uint64_t *size, bags_error *err) {
    int error = env->io.size(env->io.user, file, size);
    return error ? bagi_fail_system(err, error, path, "get the size") : BAGS_OK;
}

static bags_code bagi_read_at(const bagi_env *env, void *file, const char *path,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    unsigned char *out = (unsigned char *)data;
    while (size > 0) {
        size_t done = 0;
        int error = env->io.read_at(env->io.user, file, offset, out, size,
            &done);
        if (error)
            return bagi_fail_system(err, error, path, "read");
        if (done == 0 || done > size)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: ends at %" PRIu64 ", where %" PRIu64
                " more bytes should be: it was made shorter while it was open",
                bagi_tail(path), offset, (uint64_t)size);
        out += done;
        offset += done;
        size -= done;
    }
    return BAGS_OK;
}

static bags_code bagi_write_at(const bagi_env *env, void *file,
    const char *path, uint64_t offset, const void *data, size_t size,
    bags_error *err) {
    const unsigned char *in = (const unsigned char *)data;
    while (size > 0) {
        size_t done = 0;
        int error = env->io.write_at(env->io.user, file, offset, in, size,
            &done);
        if (!error && (done == 0 || done > size))
            error = EIO;
        if (error)
            return bagi_fail_system(err, error, path, "write");
        in += done;
        offset += done;
        size -= done;
    }
    return BAGS_OK;
}

static bags_code bagi_kind(const bagi_env *env, const char *path,
    bags_path_kind *kind, bags_error *err) {
    int error = env->io.kind(env->io.user, path, kind);
    return error ? bagi_fail_system(err, error, path, "look at") : BAGS_OK;
}

static bags_code bagi_sync_dir(const bagi_env *env, const char *path,
    bags_error *err) {
    int error = env->io.sync_dir(env->io.user, path);
    return error ? bagi_fail_system(err, error, path, "sync") : BAGS_OK;
}

/* The directory that a path stands in; "." for a bare name. Free it with
 * bagi_free_text. */
static char *bagi_parent(const bags_allocator *memory, const char *path,
    bags_error *err) {
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] == '/')
        size--;
    while (size > 0 && path[size - 1] != '/')
        size--;
    while (size > 1 && path[size - 1] == '/')
        size--;
    return size ? bagi_copy_text(memory, path, size, err)
                : bagi_copy_text(memory, ".", 1, err);
}

/* Make every directory above the last part of the path that is not there. */
static bags_code bagi_make_parents(const bagi_env *env, const char *path,
    bags_error *err) {
    char *copy = bagi_copy_text(&env->memory, path, strlen(path), err);
    if (!copy)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    size_t size = strlen(copy);
    while (size > 1 && copy[size - 1] == '/')
        size--;
    for (size_t i = 1; i < size && !code; i++) {
        if (copy[i] != '/' || copy[i - 1] == '/')
            continue;
        copy[i] = '\0';
        bags_path_kind kind = BAGS_PATH_NONE;
        code = bagi_kind(env, copy, &kind, err);
        if (!code && kind == BAGS_PATH_NONE) {
            int error = env->io.make_dir(env->io.user, copy);
            if (error && error != EEXIST)
                code = bagi_fail_system(err, error, copy, "make the directory");
        }
        copy[i] = '/';
    }
    bagi_free_text(&env->memory, copy);
    return code;
}

/* A whole small file. *data has *size bytes and is freed with bagi_free. */
static bags_code bagi_read_file(const bagi_env *env, const char *path,
    size_t most, unsigned char **data, size_t *size, bags_error *err) {
    void *file = NULL;
    uint64_t length = 0;
    bags_code code = bagi_open(env, path, BAGS_IO_READ, &file, err);
    if (code)
        return code;
    code = bagi_file_size(env, file, path, &length, err);
    if (!code && length > most)
        code = bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: has %" PRIu64 " bytes; at most %" PRIu64 " are read",
            bagi_tail(path), length, (uint64_t)most);
    unsigned char *room = NULL;
    if (!code) {
        room = (unsigned char *)bagi_alloc(&env->memory, (size_t)length, err);
        code = room ? bagi_read_at(env, file, path, 0, room, (size_t)length, err)
                    : BAGS_ERROR_MEMORY;
    }
    bagi_close_read(env, file);
    if (code) {
        bagi_free(&env->memory, room, (size_t)length);
        return code;
    }
    *data = room;
    *size = (size_t)length;
    return BAGS_OK;
}

/* ========================================================================
 * >>json
 * As much of JSON as spec.json is: one object whose keys and values are
 * strings. Read with any white space; written as Python's json.dumps writes it.
 * ====================================================================== */

#define BAGI_SPEC_MOST ((size_t)1 << 20)

typedef struct bagi_json {
    const unsigned char *text;
    size_t size, at;
    char *room; /* a decoded string; no longer than the text it stands in */
    size_t used;
    const char *why; /* what is wrong at `at` */
} bagi_json;

static bool bagi_json_wrong(bagi_json *json, const char *why) {
    json->why = why;
    return false;
}

static void bagi_json_space(bagi_json *json) {
    while (json->at < json->size && strchr(" \t\r\n", json->text[json->at]) &&
           json->text[json->at])
        json->at++;
}

static bool bagi_json_mark(bagi_json *json, char mark, const char *why) {
    bagi_json_space(json);
    if (json->at >= json->size || json->text[json->at] != (unsigned char)mark)
        return bagi_json_wrong(json, why);
    json->at++;
    return true;
}

/* The four digits behind \u; above 0xFFFF if they are none. */
static uint32_t bagi_json_hex(bagi_json *json) {
    uint32_t number = 0;
    if (json->size - json->at < 4)
        return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        unsigned char c = json->text[json->at++];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : UINT32_MAX;
        if (digit == UINT32_MAX)
            return UINT32_MAX;
        number = number << 4 | digit;
    }
    return number;
}

/* A code point behind \u, of two halves if it is a surrogate pair. */
static bool bagi_json_unicode(bagi_json *json) {
    uint32_t point = bagi_json_hex(json);
    if (point > 0xFFFF)
        return bagi_json_wrong(json, "\\u without four hexadecimal digits");
    if (point >= 0xD800 && point < 0xDC00) {
        uint32_t low = UINT32_MAX;
        if (json->size - json->at >= 2 && json->text[json->at] == '\\' &&
            json->text[json->at + 1] == 'u') {
            json->at += 2;
            low = bagi_json_hex(json);
        }
        if (low < 0xDC00 || low > 0xDFFF)
            return bagi_json_wrong(json, "half of a surrogate pair");
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    } else if (point >= 0xDC00 && point < 0xE000) {
        return bagi_json_wrong(json, "half of a surrogate pair");
    }
    if (point == 0)
        return bagi_json_wrong(json, "a zero character in a string");
    unsigned char bytes[4];
    size_t length = bagi_utf8_encode(point, bytes);
    memcpy(json->room + json->used, bytes, length);
    json->used += length;
    return true;
}

static bool bagi_json_escape(bagi_json *json) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (json->at >= json->size)
        return bagi_json_wrong(json, "a string without end");
    unsigned char c = json->text[json->at++];
    if (c == 'u')
        return bagi_json_unicode(json);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return bagi_json_wrong(json, "an escape that JSON does not have");
    json->room[json->used++] = to[found - from];
    return true;
}

/* A string, decoded to the end of `room`. */
static bool bagi_json_string(bagi_json *json, const char *why) {
    if (!bagi_json_mark(json, '"', why))
        return false;
    while (json->at < json->size) {
        unsigned char c = json->text[json->at];
        if (c == '"') {
            json->at++;
            return true;
        }
        if (c < 0x20)
            return bagi_json_wrong(json, "a control character in a string");
        if (c == '\\') {
            json->at++;
            if (!bagi_json_escape(json))
                return false;
            continue;
        }
        size_t length =
            bagi_utf8_sequence(json->text + json->at, json->size - json->at);
        if (length == 0)
            return bagi_json_wrong(json, "text that is not UTF-8");
        memcpy(json->room + json->used, json->text + json->at, length);
        json->used += length;
        json->at += length;
    }
    return bagi_json_wrong(json, "a string without end");
}

/*
 * Read an object of strings, giving each pair to `each`, which may fail. `room`
 * has the text's size. False with json->why, or with `each`'s code in *code.
 */
static bool bagi_json_object(bagi_json *json,
    bags_code (*each)(void *user, const char *key, size_t key_size,
        const char *value, size_t value_size),
    void *user, bags_code *code) {
    if (!bagi_json_mark(json, '{', "no JSON object"))
        return false;
    bagi_json_space(json);
    bool more = json->at >= json->size || json->text[json->at] != '}';
    while (more) {
        json->used = 0;
        if (!bagi_json_string(json, "no string where a name should be"))
            return false;
        size_t key = json->used;
        if (!bagi_json_mark(json, ':', "no : behind a name") ||
            !bagi_json_string(json, "a type that is not a string"))
            return false;
        *code = each(user, json->room, key, json->room + key,
            json->used - key);
        if (*code)
            return false;
        bagi_json_space(json);
        more = json->at < json->size && json->text[json->at] == ',';
        if (more)
            json->at++;
    }
    if (!bagi_json_mark(json, '}', "no , or } behind a type"))
        return false;
    bagi_json_space(json);
    return json->at == json->size ||
           bagi_json_wrong(json, "something behind the object");
}

/* The size of a text as a JSON string in ASCII, which is written to `out`
 * unless that is NULL. The text is valid UTF-8. */
static size_t bagi_json_quote(const char *text, char *out) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const unsigned char *in = (const unsigned char *)text;
    size_t size = strlen(text), used = 0;
    char piece[16];
    for (size_t i = 0, step; i < size; i += step) {
        step = bagi_utf8_sequence(in + i, size - i);
        uint32_t point = bagi_utf8_point(in + i, step);
        const char *found = point < 0x80 ? strchr(from, (int)point) : NULL;
        int length;
        if (found)
            length = snprintf(piece, sizeof piece, "\\%c", to[found - from]);
        else if (point >= 0x20 && point < 0x80)
            length = snprintf(piece, sizeof piece, "%c", (int)point);
        else if (point < 0x10000)
            length = snprintf(piece, sizeof piece, "\\u%04x", (unsigned)point);
        else
            length = snprintf(piece, sizeof piece, "\\u%04x\\u%04x",
                (unsigned)(0xD800 + ((point - 0x10000) >> 10)),
                (unsigned)(0xDC00 + ((point - 0x10000) & 0x3FF)));
        if (out)
            memcpy(out + 1 + used, piece, (size_t)length);
        used += (size_t)length;
    }
    if (out)
        out[0] = out[used + 1] = '"';
    return used + 2;
}

/* ========================================================================
 * >>refs
 * A blob of refs.bag: a msgpack array with one element a field, an unsigned
 * integer for a plain field, [] or [first, count] for a sequence. The
 * self-describing arrays of >>codecs use the same integers.
 * ====================================================================== */

#define BAGI_REF_MOST 19 /* bytes of [first, count] at its longest */

/* Which blobs of a field belong to a datapoint. */
typedef struct bagi_ref {
    uint64_t first, count;
} bagi_ref;

static size_t bagi_msgpack_put(unsigned char *out, unsigned char tag,
    uint64_t number, int bytes) {
    out[0] = tag;
    for (int i = 0; i < bytes; i++)
        out[1 + i] = (unsigned char)(number >> (8 * (bytes - 1 - i)));
    return (size_t)bytes + 1;
}

static size_t bagi_msgpack_put_uint(unsigned char *out, uint64_t number) {
    if (number < 0x80)
        return bagi_msgpack_put(out, (unsigned char)number, 0, 0);
    if (number <= UINT8_MAX)
        return bagi_msgpack_put(out, 0xCC, number, 1);
    if (number <= UINT16_MAX)
        return bagi_msgpack_put(out, 0xCD, number, 2);
    if (number <= UINT32_MAX)
        return bagi_msgpack_put(out, 0xCE, number, 4);
    return bagi_msgpack_put(out, 0xCF, number, 8);
}

static size_t bagi_msgpack_put_array(unsigned char *out, uint64_t count) {
    if (count < 16)
        return bagi_msgpack_put(out, (unsigned char)(0x90 | count), 0, 0);
    if (count <= UINT16_MAX)
        return bagi_msgpack_put(out, 0xDC, count, 2);
    return bagi_msgpack_put(out, 0xDD, count, 4);
}

/* The big-endian integer behind a tag. False if the blob ends before. */
static bool bagi_msgpack_number(bags_bytes *blob, size_t bytes,
    uint64_t *number) {
    if (blob->size < bytes)
        return false;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum << 8 | blob->data[i];
    blob->data += bytes;
    blob->size -= bytes;
    *number = sum;
    return true;
}

/* Take a non-negative integer, in any of msgpack's forms, off the front. */
static bool bagi_msgpack_uint(bags_bytes *blob, uint64_t *number) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_bytes rest = {blob->data + 1, blob->size - 1};
    if (tag < 0x80) {
        *number = tag;
    } else if (tag >= 0xCC && tag <= 0xCF) {
        if (!bagi_msgpack_number(&rest, (size_t)1 << (tag - 0xCC), number))
            return false;
    } else if (tag >= 0xD0 && tag <= 0xD3) {
        size_t bytes = (size_t)1 << (tag - 0xD0);
        if (!bagi_msgpack_number(&rest, bytes, number) ||
            *number >> (8 * bytes - 1))
            return false;
    } else {
        return false;
    }
    *blob = rest;
    return true;
}

/* Take the head of an array off the front. */
static bool bagi_msgpack_array(bags_bytes *blob, uint64_t *count) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_bytes rest = {blob->data + 1, blob->size - 1};
    if ((tag & 0xF0) == 0x90)
        *count = tag & 0x0F;
    else if ((tag != 0xDC && tag != 0xDD) ||
             !bagi_msgpack_number(&rest, tag == 0xDC ? 2 : 4, count))
        return false;
    *blob = rest;
    return true;
}

static bool bagi_refs_sequence(bags_bytes *blob, bagi_ref *ref) {
    uint64_t length = 0;
    ref->first = ref->count = 0;
    if (!bagi_msgpack_array(blob, &length))
        return false;
    if (length == 0)
        return true;
    return length == 2 && bagi_msgpack_uint(blob, &ref->first) &&
           bagi_msgpack_uint(blob, &ref->count);
}

/*
 * Take a datapoint's blob of refs.bag apart into `refs`, one for each type.
 * Returns NULL, or what is wrong, with the field it is wrong for in *field
 * (`count` if it is wrong as a whole).
 */
static const char *bagi_refs_parse(bags_bytes blob, const bags_type *types,
    size_t count, bagi_ref *refs, size_t *field) {
    uint64_t length = 0;
    *field = count;
    if (!bagi_msgpack_array(&blob, &length))
        return "is not a msgpack array";
    if (length != count)
        return "has another number of elements than spec.json has fields";
    for (size_t i = 0; i < count; i++) {
        *field = i;
        if (types[i].sequence) {
            if (!bagi_refs_sequence(&blob, &refs[i]))
                return "is not [] or [first, count]";
        } else {
            refs[i].count = 1;
            if (!bagi_msgpack_uint(&blob, &refs[i].first))
                return "is not an index";
        }
    }
    *field = count;
    return blob.size ? "has bytes behind the array" : NULL;
}

/* The blob for `refs`, into `out`, which has room for 5 + BAGI_REF_MOST bytes a
 * field. Returns its size. */
static size_t bagi_refs_write(const bags_type *types, size_t count,
    const bagi_ref *refs, unsigned char *out) {
    size_t used = bagi_msgpack_put_array(out, count);
    for (size_t i = 0; i < count; i++) {
        if (types[i].sequence) {
            bool empty = refs[i].count == 0;
            used += bagi_msgpack_put_array(out + used, empty ? 0 : 2);
            if (empty)
                continue;
        }
        used += bagi_msgpack_put_uint(out + used, refs[i].first);
        if (types[i].sequence)
            used += bagi_msgpack_put_uint(out + used, refs[i].count);
    }
    return used;
}

/* ========================================================================
 * >>bag-read
 * A Bag is seen through two pointers: the bytes of its blobs and the ends of
 * them, both of which may point into a map, a copy, or nowhere: then the file
 * is read by position. Files that are read by position may belong to a set that
 * keeps a bounded number of them open.
 * ====================================================================== */

typedef struct bagi_file {
    char *path;
    uint64_t size;
    const unsigned char *map; /* NULL: not mapped */
    void *handle;             /* NULL: mapped, in memory, or not open now */
    unsigned pins;            /* threads that read it just now */
    struct bagi_file *newer, *older;
} bagi_file;

/* Files by last use. What the lists hold is open; `limit` may be passed only
 * while more threads than that read at once. */
typedef struct bagi_files {
    bagi_mutex mutex;
    size_t limit, count;
    size_t maps, maps_limit;
    bagi_file *newest, *oldest;
} bagi_files;

static void bagi_files_unlink(bagi_files *files, bagi_file *file) {
    *(file->newer ? &file->newer->older : &files->newest) = file->older;
    *(file->older ? &file->older->newer : &files->oldest) = file->newer;
    file->newer = file->older = NULL;
    files->count--;
}

static void bagi_files_link(bagi_files *files, bagi_file *file) {
    file->newer = NULL;
    file->older = files->newest;
    *(files->newest ? &files->newest->newer : &files->oldest) = file;
    files->newest = file;
    files->count++;
}

static void bagi_files_close(bagi_files *files, const bagi_env *env,
    bagi_file *file) {
    bagi_files_unlink(files, file);
    bagi_close_read(env, file->handle);
    file->handle = NULL;
}

/* Make room for one more open file, if there are any that nobody reads. */
static void bagi_files_room(bagi_files *files, const bagi_env *env) {
    bagi_file *file = files->oldest;
    while (file && files->count >= files->limit) {
        bagi_file *newer = file->newer;
        if (file->pins == 0)
            bagi_files_close(files, env, file);
        file = newer;
    }
}

/* Open a file again, and make sure that it is the one that was looked at. */
static bags_code bagi_files_reopen(bagi_files *files, const bagi_env *env,
    bagi_file *file, bags_error *err) {
    bagi_files_room(files, env);
    void *handle = NULL;
    uint64_t size = 0;
    bags_code code = bagi_open(env, file->path, BAGS_IO_READ, &handle, err);
    if (code)
        return code;
    code = bagi_file_size(env, handle, file->path, &size, err);
    if (!code && size != file->size)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " bytes now and had %" PRIu64
            " when it was opened first", bagi_tail(file->path), size,
            file->size);
    if (code) {
        bagi_close_read(env, handle);
        return code;
    }
    file->handle = handle;
    bagi_files_link(files, file);
    return BAGS_OK;
}

struct bag_reader {
    const unsigned char *data; /* offset 0 of the blobs; NULL: read */
    const unsigned char *ends; /* the end of blob 0; NULL: read */
    uint64_t length;           /* blobs */
    uint64_t limit;            /* no blob ends behind this offset */
    uint64_t table;            /* offset of the end of blob 0 in its file */
    const bagi_env *env;
    bagi_files *files; /* NULL: the files stay open */
    bagi_file file;
    bagi_file index;       /* NAME.idx, if split */
    unsigned char *loaded; /* the table in memory, if asked for */
    bool split, v2;
};

/* Read from a file that may have to be opened again for it. */
static bags_code bagi_file_read(const bag_reader *reader, const bagi_file *of,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    bagi_files *files = reader->files;
    /* Only the members that the set's mutex guards change. */
    bagi_file *file = (bagi_file *)(uintptr_t)of;
    if (size == 0)
        return BAGS_OK;
    if (!files)
        return bagi_read_at(reader->env, file->handle, file->path, offset, data,
            size, err);
    bagi_lock(&files->mutex);
    bags_code code = BAGS_OK;
    if (!file->handle) {
        code = bagi_files_reopen(files, reader->env, file, err);
    } else if (files->newest != file) {
        bagi_files_unlink(files, file);
        bagi_files_link(files, file);
    }
    void *handle = file->handle;
    file->pins += !code;
    bagi_unlock(&files->mutex);
    if (code)
        return code;
    code = bagi_read_at(reader->env, handle, file->path, offset, data, size,
        err);
    bagi_lock(&files->mutex);
    if (--file->pins == 0 && files->count > files->limit)
        bagi_files_close(files, reader->env, file);
    bagi_unlock(&files->mutex);
    return code;
}

/* Where a file's bytes can be had while it is being opened: its map, or a
 * read. */
static bags_code bagi_file_peek(const bag_reader *reader, const bagi_file *file,
    uint64_t offset, uint64_t *number, bags_error *err) {
    unsigned char room[8];
    const unsigned char *at = room;
    bags_code code = BAGS_OK;
    if (file->map)
        at = file->map + offset;
    else
        code = bagi_read_at(reader->env, file->handle, file->path, offset, room,
            sizeof room, err);
    if (!code)
        *number = bagi_load_u64(at);
    return code;
}

/* Map an open file, if that is wanted and can be done. An empty file needs no
 * map: nothing is read from it. */
static void bagi_file_map(bag_reader *reader, bagi_file *file,
    bool positional) {
    static const unsigned char nothing[1] = {0};
    const bags_io *io = &reader->env->io;
    bagi_files *files = reader->files;
    const void *map = nothing;
    if (positional || !io->map || file->size > SIZE_MAX / 2)
        return;
    if (file->size > 0) {
        if (files && files->maps >= files->maps_limit)
            return;
        if (io->map(io->user, file->handle, (size_t)file->size, &map) != 0)
            return;
        if (files)
            files->maps++;
    }
    file->map = (const unsigned char *)map;
}

static bags_code bagi_file_open(bag_reader *reader, bagi_file *file,
    const char *path, bool positional, bags_error *err) {
    const bagi_env *env = reader->env;
    file->path = bagi_copy_text(&env->memory, path, strlen(path), err);
    if (!file->path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_open(env, path, BAGS_IO_READ, &file->handle, err);
    if (!code)
        code = bagi_file_size(env, file->handle, path, &file->size, err);
    if (!code)
        bagi_file_map(reader, file, positional);
    return code;
}

/* After a file was looked at: a mapped one need not stay open; one that is read
 * by position joins the set. */
static void bagi_file_settle(bag_reader *reader, bagi_file *file) {
    bagi_files *files = reader->files;
    if (!file->handle)
        return;
    if (file->map) {
        bagi_close_read(reader->env, file->handle);
        file->handle = NULL;
    } else if (files) {
        bagi_lock(&files->mutex);
        bagi_files_room(files, reader->env);
        bagi_files_link(files, file);
        bagi_unlock(&files->mutex);
    }
}

/* A file of a reader that failed to open is in no set yet: it has a handle, and
 * neither neighbours nor a place at the end. */
static void bagi_file_close(bag_reader *reader, bagi_file *file) {
    const bagi_env *env = reader->env;
    bagi_files *files = reader->files;
    if (file->map && file->size > 0) {
        env->io.unmap(env->io.user, file->map, (size_t)file->size);
        if (files)
            files->maps--;
    }
    if (file->handle) {
        if (files && (files->newest == file || file->newer))
            bagi_files_unlink(files, file);
        bagi_close_read(env, file->handle);
    }
    bagi_free_text(&env->memory, file->path);
    memset(file, 0, sizeof *file);
}

/* A Bag that ends in its own table: v1, or v2 without the leading 0. */
static bags_code bagi_bag_shape(bag_reader *reader, bool allow_empty,
    bags_error *err) {
    const bagi_file *file = &reader->file;
    const char *path = bagi_tail(file->path);
    uint64_t last = 0, first = 0;
    if (file->size == 0 && allow_empty) {
        reader->v2 = true;
        return BAGS_OK;
    }
    if (file->size < 8)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " bytes; a Bag has at least 8", path,
            file->size);
    bags_code code = bagi_file_peek(reader, file, file->size - 8, &last, err);
    if (code)
        return code;
    if (last > file->size - 8 || (file->size - last) % 8 != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: its end places the table at %" PRIu64 " of %" PRIu64
            " bytes: it was cut short, was never closed, or is no Bag",
            path, last, file->size);
    code = bagi_file_peek(reader, file, last, &first, err);
    if (code)
        return code;
    reader->v2 = first != 0;
    reader->limit = last;
    reader->table = reader->v2 ? last : last + 8;
    reader->length = (file->size - reader->table) / 8;
    return BAGS_OK;
}

/* Whether a Bag beside an index is a finished one nevertheless: if its own
 * table begins where the last blob of the index ends. */
static bags_code bagi_bag_finished(bag_reader *reader, uint64_t end,
    bool *finished, bags_error *err) {
    const bagi_file *file = &reader->file;
    uint64_t last = 0, first = 0;
    *finished = false;
    if (file->size < 8)
        return BAGS_OK;
    bags_code code = bagi_file_peek(reader, file, file->size - 8, &last, err);
    if (code || last != end || last > file->size - 8 ||
        (file->size - last) % 8 != 0)
        return code;
    code = bagi_file_peek(reader, file, last, &first, err);
    *finished = !code && first == 0;
    return code;
}

/* A Bag whose ends stand in NAME.idx; an entry that was cut is no entry. A Bag
 * alone that has a table of its own does not need the index. */
static bags_code bagi_bag_shape_split(bag_reader *reader, bool alone,
    bags_error *err) {
    uint64_t length = reader->index.size / 8, end = 0;
    bool finished = false;
    bags_code code = BAGS_OK;
    if (length)
        code = bagi_file_peek(reader, &reader->index, length * 8 - 8, &end,
            err);
    if (!code && alone)
        code = bagi_bag_finished(reader, end, &finished, err);
    if (code)
        return code;
    if (finished) {
        bagi_file_close(reader, &reader->index);
        return bagi_bag_shape(reader, false, err);
    }
    if (end > reader->file.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " bytes; its .idx places the end of blob %"
            PRIu64 " at %" PRIu64, bagi_tail(reader->file.path),
            reader->file.size, length - 1, end);
    reader->split = true;
    reader->limit = end;
    reader->length = length;
    return BAGS_OK;
}

/* Hold the table in memory, where the file is not mapped. */
static bags_code bagi_bag_load(bag_reader *reader, bags_error *err) {
    const bagi_file *file = reader->split ? &reader->index : &reader->file;
    if (file->map || reader->length == 0)
        return BAGS_OK;
    if (reader->length > SIZE_MAX / 8)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: its table is larger than memory", bagi_tail(file->path));
    size_t size = (size_t)reader->length * 8;
    reader->loaded =
        (unsigned char *)bagi_alloc_raw(&reader->env->memory, size, err);
    if (!reader->loaded)
        return BAGS_ERROR_MEMORY;
    reader->ends = reader->loaded;
    return bagi_read_at(reader->env, file->handle, file->path, reader->table,
        reader->loaded, size, err);
}

typedef enum bagi_where {
    BAGI_ALONE,    /* a Bag by itself: the index is looked for */
    BAGI_WITH_REFS, /* in a dataset with refs.bag: the index is ignored */
    BAGI_SPLIT     /* in a dataset without: the index is needed */
} bagi_where;

typedef struct bagi_bag_options {
    bagi_where where;
    bool positional, load_table, allow_empty;
} bagi_bag_options;

static void bagi_bag_release(bag_reader *reader) {
    const bags_allocator *memory = &reader->env->memory;
    bagi_file_close(reader, &reader->file);
    bagi_file_close(reader, &reader->index);
    if (reader->loaded)
        bagi_free(memory, reader->loaded, (size_t)reader->length * 8);
    reader->loaded = NULL;
}

static bool bagi_is_bag_path(const char *path) {
    size_t size = strlen(path);
    return size >= 4 && memcmp(path + size - 4, ".bag", 4) == 0;
}

/* NAME.idx for NAME.bag. */
static char *bagi_index_path(const bags_allocator *memory, const char *path,
    bags_error *err) {
    size_t size = strlen(path) - (bagi_is_bag_path(path) ? 4 : 0);
    if (size > INT_MAX) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is too long");
        return NULL;
    }
    return bagi_print(memory, err, "%.*s.idx", (int)size, path);
}

static bags_code bagi_bag_open_index(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bool *found, bags_error *err) {
    const bagi_env *env = reader->env;
    char *index = bagi_index_path(&env->memory, path, err);
    if (!index)
        return BAGS_ERROR_MEMORY;
    bags_path_kind kind = BAGS_PATH_FILE;
    bags_code code = options->where == BAGI_ALONE
                         ? bagi_kind(env, index, &kind, err)
                         : BAGS_OK;
    *found = kind == BAGS_PATH_FILE;
    if (!code && *found)
        code = bagi_file_open(reader, &reader->index, index,
            options->positional, err);
    bagi_free_text(&env->memory, index);
    return code;
}

static bags_code bagi_bag_shapes(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bags_error *err) {
    bool split = options->where == BAGI_SPLIT;
    bool alone = options->where == BAGI_ALONE;
    bags_code code =
        bagi_file_open(reader, &reader->file, path, options->positional, err);
    if (!code && (split || (alone && bagi_is_bag_path(path))))
        code = bagi_bag_open_index(reader, path, options, &split, err);
    if (code)
        return code;
    code = split ? bagi_bag_shape_split(reader, alone, err)
                 : bagi_bag_shape(reader, options->allow_empty, err);
    if (!code && options->load_table)
        code = bagi_bag_load(reader, err);
    return code;
}

/* Point at what is mapped. */
static void bagi_bag_point(bag_reader *reader) {
    const bagi_file *table = reader->split ? &reader->index : &reader->file;
    reader->data = reader->file.map;
    if (table->map)
        reader->ends = table->map + reader->table;
}

/* Open a Bag into a reader whose env and files are set and the rest 0. */
static bags_code bagi_bag_open(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bags_error *err) {
    bags_code code = bagi_bag_shapes(reader, path, options, err);
    if (code) {
        bagi_bag_release(reader);
        return code;
    }
    bagi_bag_point(reader);
    bagi_file_settle(reader, &reader->file);
    bagi_file_settle(reader, &reader->index);
    return BAGS_OK;
}

/* A reader of one Bag, with an environment of its own. */
typedef struct bagi_lone {
    bag_reader reader;
    bagi_env env;
} bagi_lone;

static bagi_lone *bagi_lone_new(const bag_reader_options *options,
    bags_error *err) {
    bagi_env env = bagi_env_of(options->allocator, options->io);
    bagi_lone *lone = (bagi_lone *)bagi_alloc(&env.memory, sizeof *lone, err);
    if (!lone)
        return NULL;
    lone->env = env;
    lone->reader.env = &lone->env;
    return lone;
}

BAGS_API bag_reader *bag_reader_open(const char *path,
    const bag_reader_options *options, bags_error *err) {
    bag_reader_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    bagi_bag_options how = {BAGI_ALONE, with.positional, with.load_table,
        with.allow_empty_file};
    bagi_lone *lone = bagi_lone_new(&with, err);
    if (!lone)
        return NULL;
    if (bagi_bag_open(&lone->reader, path, &how, err)) {
        bags_allocator memory = lone->env.memory;
        bagi_free(&memory, lone, sizeof *lone);
        return NULL;
    }
    return &lone->reader;
}

BAGS_API bag_reader *bag_reader_open_memory(const void *data, size_t size,
    const bag_reader_options *options, bags_error *err) {
    bag_reader_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    bagi_lone *lone = bagi_lone_new(&with, err);
    if (!lone)
        return NULL;
    bag_reader *reader = &lone->reader;
    const bags_allocator *memory = &lone->env.memory;
    reader->file.path = bagi_copy_text(memory, "(memory)", 8, err);
    reader->file.size = size;
    reader->file.map = (const unsigned char *)data;
    bags_code code = reader->file.path ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code)
        code = bagi_bag_shape(reader, with.allow_empty_file, err);
    bagi_bag_point(reader);
    reader->file.map = NULL; /* the caller's: not to be unmapped */
    if (!code)
        return reader;
    bag_reader_close(reader);
    return NULL;
}

BAGS_API void bag_reader_close(bag_reader *reader) {
    if (!reader)
        return;
    bagi_lone *lone = (bagi_lone *)reader; /* its first member */
    bags_allocator memory = lone->env.memory;
    bagi_bag_release(reader);
    bagi_free(&memory, lone, sizeof *lone);
}

BAGS_API uint64_t bag_reader_length(const bag_reader *reader) {
    return reader->length;
}

BAGS_API uint64_t bag_reader_size(const bag_reader *reader) {
    return reader->split ? reader->limit + 8 * reader->length
                         : reader->file.size;
}

/* Where a blob lies, by two neighbouring entries. `ends` points at its end. */
static bool bagi_bag_bounds(const bag_reader *reader, uint64_t index,
    const unsigned char *ends, uint64_t *start, uint64_t *stop) {
    *start = index ? bagi_load_u64(ends - 8) : 0;
    *stop = bagi_load_u64(ends);
    return *start <= *stop && *stop <= reader->limit;
}

BAGI_COLD static bags_code bagi_bag_fail_bounds(const bag_reader *reader,
    uint64_t index, uint64_t start, uint64_t stop, bags_error *err) {
    const char *path = bagi_tail(reader->file.path);
    if (stop > reader->limit)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: blob %" PRIu64 " ends at %" PRIu64 ", the data at %" PRIu64,
            path, index, stop, reader->limit);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: blob %" PRIu64 " starts at %" PRIu64 " and ends before, at %"
        PRIu64, path, index, start, stop);
}

BAGI_COLD static bags_code bagi_bag_fail_index(const bag_reader *reader,
    uint64_t index, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_RANGE,
        "%s: there is no blob %" PRIu64 "; it has %" PRIu64,
        bagi_tail(reader->file.path), index, reader->length);
}

/* The entries of the blobs from `start`, `count` >= 1 of them, and the one
 * before if there is one, into `room`: count * 8 + 8 bytes. */
static bags_code bagi_bag_entries(const bag_reader *reader, uint64_t start,
    size_t count, unsigned char *room, bags_error *err) {
    const bagi_file *file = reader->split ? &reader->index : &reader->file;
    size_t before = start ? 8 : 0;
    return bagi_file_read(reader, file, reader->table + start * 8 - before,
        room + 8 - before, count * 8 + before, err);
}

/* A blob that is not mapped. */
static bags_code bagi_bag_get_read(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_bytes *out, bags_error *err) {
    unsigned char room[16];
    const unsigned char *ends = room + 8;
    uint64_t start = 0, stop = 0;
    bags_code code = BAGS_OK;
    if (reader->ends)
        ends = reader->ends + index * 8;
    else
        code = bagi_bag_entries(reader, index, 1, room, err);
    if (code)
        return code;
    if (!bagi_bag_bounds(reader, index, ends, &start, &stop))
        return bagi_bag_fail_bounds(reader, index, start, stop, err);
    if (reader->data) {
        out->data = reader->data + start;
        out->size = (size_t)(stop - start);
        return BAGS_OK;
    }
    if (stop - start > SIZE_MAX / 2)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: blob %" PRIu64 " has %" PRIu64 " bytes, more than memory",
            bagi_tail(reader->file.path), index, stop - start);
    bagi_buffer_adopt(scratch, &reader->env->memory);
    code = bags_buffer_reserve(scratch, (size_t)(stop - start) + 1, err);
    if (!code)
        code = bagi_file_read(reader, &reader->file, start, scratch->data,
            (size_t)(stop - start), err);
    if (code)
        return code;
    out->data = scratch->data;
    out->size = (size_t)(stop - start);
    return BAGS_OK;
}

BAGS_API bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_bytes *out, bags_error *err) {
    if (BAGI_UNLIKELY(index >= reader->length))
        return bagi_bag_fail_index(reader, index, err);
    if (BAGI_UNLIKELY(!reader->data || !reader->ends))
        return bagi_bag_get_read(reader, index, scratch, out, err);
    uint64_t start, stop;
    if (BAGI_UNLIKELY(!bagi_bag_bounds(reader, index, reader->ends + index * 8,
            &start, &stop)))
        return bagi_bag_fail_bounds(reader, index, start, stop, err);
    out->data = reader->data + start;
    out->size = (size_t)(stop - start);
    return BAGS_OK;
}

/* Check that the blobs from `index` on, whose ends are given, lie one behind
 * the other. */
static bags_code bagi_bag_check(const bag_reader *reader, uint64_t index,
    uint64_t count, const unsigned char *ends, bags_error *err) {
    uint64_t start = index ? bagi_load_u64(ends - 8) : 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t stop = bagi_load_u64(ends + 8 * i);
        if (BAGI_UNLIKELY(start > stop || stop > reader->limit))
            return bagi_bag_fail_bounds(reader, index + i, start, stop, err);
        start = stop;
    }
    return BAGS_OK;
}

/*
 * The entries of `count` blobs from `start`, checked: *ends views them, in the
 * table or in scratch from `used` on. *size is how much of scratch is used now.
 */
static bags_code bagi_bag_ends(const bag_reader *reader, uint64_t start,
    size_t count, bags_buffer *scratch, size_t *used,
    const unsigned char **ends, bags_error *err) {
    *ends = reader->ends ? reader->ends + start * 8 : NULL;
    if (!*ends) {
        bagi_buffer_adopt(scratch, &reader->env->memory);
        if (count > (SIZE_MAX / 2 - *used) / 8)
            return bagi_fail_memory(err, SIZE_MAX);
        size_t size = count * 8 + 8;
        bags_code code = bags_buffer_reserve(scratch, *used + size, err);
        if (!code)
            code = bagi_bag_entries(reader, start, count,
                scratch->data + *used, err);
        if (code)
            return code;
        *ends = scratch->data + *used + 8;
        *used += size;
    }
    return bagi_bag_check(reader, start, count, *ends, err);
}

BAGS_API bags_code bag_reader_get_range(const bag_reader *reader,
    uint64_t start, uint64_t stop, bags_buffer *scratch, bags_range *out,
    bags_error *err) {
    if (start > stop)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: a range from %" PRIu64 " to %" PRIu64 " runs backwards",
            bagi_tail(reader->file.path), start, stop);
    if (stop > reader->length)
        stop = reader->length;
    bags_range range;
    memset(&range, 0, sizeof range);
    if (start >= stop) {
        *out = range;
        return BAGS_OK;
    }
    if (stop - start > SIZE_MAX / 16)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: %" PRIu64 " blobs are more than memory holds",
            bagi_tail(reader->file.path), stop - start);
    size_t used = 0;
    range.length = (size_t)(stop - start);
    bags_code code = bagi_bag_ends(reader, start, range.length, scratch, &used,
        &range.ends, err);
    if (code)
        return code;
    range.start = start ? bagi_load_u64(range.ends - 8) : 0;
    uint64_t end = bagi_load_u64(range.ends + 8 * (range.length - 1));
    if (end - range.start > SIZE_MAX / 2 - used)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: %" PRIu64 " bytes are more than memory holds",
            bagi_tail(reader->file.path), end - range.start);
    range.size = (size_t)(end - range.start);
    if (reader->data) {
        range.data = reader->data + range.start;
    } else {
        bagi_buffer_adopt(scratch, &reader->env->memory);
        code = bags_buffer_reserve(scratch, used + range.size + 1, err);
        if (!code)
            code = bagi_file_read(reader, &reader->file, range.start,
                scratch->data + used, range.size, err);
        if (code)
            return code;
        range.data = scratch->data + used;
        if (used)
            range.ends = scratch->data + 8;
    }
    *out = range;
    return BAGS_OK;
}

BAGS_API bags_bytes bags_range_get(const bags_range *range, size_t i) {
    bags_bytes blob = {NULL, 0};
    if (i >= range->length)
        return blob;
    uint64_t start =
        i ? bagi_load_u64(range->ends + 8 * (i - 1)) : range->start;
    blob.data = range->data + (start - range->start);
    blob.size = (size_t)(bagi_load_u64(range->ends + 8 * i) - start);
    return blob;
}

#define BAGI_VERIFY_STEP 8192 /* entries a read */

BAGS_API bags_code bag_reader_verify(const bag_reader *reader,
    bags_error *err) {
    if (reader->ends || reader->length == 0)
        return bagi_bag_check(reader, 0, reader->length, reader->ends, err);
    const bags_allocator *memory = &reader->env->memory;
    const size_t size = (BAGI_VERIFY_STEP + 1) * 8;
    unsigned char *room = (unsigned char *)bagi_alloc_raw(memory, size, err);
    if (!room)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    for (uint64_t at = 0; at < reader->length && !code;
         at += BAGI_VERIFY_STEP) {
        uint64_t count = reader->length - at;
        if (count > BAGI_VERIFY_STEP)
            count = BAGI_VERIFY_STEP;
        code = bagi_bag_entries(reader, at, (size_t)count, room, err);
        if (!code)
            code = bagi_bag_check(reader, at, count, room + 8, err);
    }
    bagi_free(memory, room, size);
    return code;
}

/* ========================================================================
 * >>bag-write
 * A Bag that is being written is a column: blobs, and beside them the journal
 * of their ends, from which the table is made when it is finished. Each file is
 * written through a buffer in pieces that start at multiples of the buffer's
 * size, since the kernel remembers the size of each write and maps large,
 * aligned ones fastest.
 * ====================================================================== */

typedef struct bagi_out {
    char *path;
    void *handle;
    unsigned char *buffer; /* the file's bytes from `base` */
    size_t capacity;       /* of the buffer; base is a multiple of it */
    uint64_t base;
    uint64_t end;     /* of what was put */
    uint64_t written; /* of what the system has; what is behind in the buffer,
                         up to `end`, it has not */
    uint64_t high;    /* of what the file has held, cut off later */
    bool moved;       /* base was not always 0: the buffer is not the file */
} bagi_out;

static bags_code bagi_out_write(const bagi_env *env, bagi_out *out,
    const unsigned char *data, size_t size, bags_error *err) {
    if (out->written > (uint64_t)INT64_MAX - size)
        return bags_fail(err, BAGS_ERROR_LIMIT, "%s: is larger than 2^63 bytes",
            bagi_tail(out->path));
    bags_code code = bagi_write_at(env, out->handle, out->path, out->written,
        data, size, err);
    if (code)
        return code;
    out->written += size;
    if (out->high < out->written)
        out->high = out->written;
    return BAGS_OK;
}

static bags_code bagi_out_flush(const bagi_env *env, bagi_out *out,
    bags_error *err) {
    if (out->written == out->end)
        return BAGS_OK;
    return bagi_out_write(env, out, out->buffer + (out->written - out->base),
        (size_t)(out->end - out->written), err);
}

/* Bytes that can be put before the buffer is handed to the system. */
static size_t bagi_out_room(const bagi_out *out) {
    return out->capacity - (size_t)(out->end - out->base);
}

static void bagi_out_advance(bagi_out *out) {
    out->base = out->end;
    out->moved = true;
}

static bags_code bagi_out_put(const bagi_env *env, bagi_out *out,
    const unsigned char *data, size_t size, bags_error *err) {
    while (size > 0) {
        size_t step = bagi_out_room(out);
        bags_code code = BAGS_OK;
        if (step == out->capacity && size >= step) {
            /* Whole pieces need not pass through the buffer. */
            step = size - size % step;
            code = bagi_out_write(env, out, data, step, err);
            if (code)
                return code;
            out->end += step;
            bagi_out_advance(out);
        } else {
            step = step < size ? step : size;
            memcpy(out->buffer + (out->end - out->base), data, step);
            out->end += step;
            if (bagi_out_room(out) == 0) {
                code = bagi_out_flush(env, out, err);
                if (code)
                    return code;
                bagi_out_advance(out);
            }
        }
        data += step;
        size -= step;
    }
    return BAGS_OK;
}

/* Take back what was put behind `end`. What the file already holds of it is
 * written over, or cut off when the file is finished. */
static void bagi_out_rewind(bagi_out *out, uint64_t end) {
    if (end < out->base)
        out->base = end - end % out->capacity;
    if (out->written > end)
        out->written = end;
    out->end = end;
}

static bags_code bagi_out_cut(const bagi_env *env, bagi_out *out,
    bags_error *err) {
    if (out->high <= out->end)
        return BAGS_OK;
    int error = env->io.truncate(env->io.user, out->handle, out->end);
    if (error)
        return bagi_fail_system(err, error, out->path, "cut");
    out->high = out->end;
    return BAGS_OK;
}

static bags_code bagi_out_sync(const bagi_env *env, bagi_out *out,
    bags_error *err) {
    int error = env->io.sync(env->io.user, out->handle);
    return error ? bagi_fail_system(err, error, out->path, "sync") : BAGS_OK;
}

/* Start on a new file, which must not exist. The path is taken over; the buffer
 * stays from file to file. */
static bags_code bagi_out_create(const bagi_env *env, bagi_out *out, char *path,
    bags_error *err) {
    out->path = path;
    out->base = out->end = out->written = out->high = 0;
    out->moved = false;
    return path ? bagi_open(env, path, BAGS_IO_CREATE, &out->handle, err)
                : BAGS_ERROR_MEMORY;
}

/* Close the file and forget it. A failed close may have lost data. */
static bags_code bagi_out_close(const bagi_env *env, bagi_out *out,
    bags_error *err) {
    bags_code code = BAGS_OK;
    if (out->handle) {
        int error = env->io.close(env->io.user, out->handle);
        if (error)
            code = bagi_fail_system(err, error, out->path, "close");
    }
    bagi_free_text(&env->memory, out->path);
    out->handle = NULL;
    out->path = NULL;
    return code;
}

static void bagi_out_remove(const bagi_env *env, bagi_out *out) {
    if (out->handle)
        env->io.remove(env->io.user, out->path);
    bagi_out_close(env, out, NULL);
}

typedef struct bagi_column {
    bagi_out blobs, ends;
    uint64_t length;
    uint64_t kept_length, kept_end; /* what whole datapoints use */
} bagi_column;

#define BAGI_BUFFER_DEFAULT ((size_t)2 << 20)
#define BAGI_BUFFER_LEAST ((size_t)4096)

static bags_code bagi_column_init(const bags_allocator *memory,
    bagi_column *column, size_t buffer_size, bags_error *err) {
    size_t size = BAGI_BUFFER_LEAST;
    if (buffer_size == 0)
        buffer_size = BAGI_BUFFER_DEFAULT;
    while (size < buffer_size && size <= SIZE_MAX / 4)
        size *= 2;
    column->blobs.capacity = size;
    column->ends.capacity = size / 8;
    column->blobs.buffer = (unsigned char *)bagi_alloc_raw(memory, size, err);
    column->ends.buffer =
        (unsigned char *)bagi_alloc_raw(memory, size / 8, err);
    return column->blobs.buffer && column->ends.buffer ? BAGS_OK
                                                       : BAGS_ERROR_MEMORY;
}

static void bagi_column_free(const bags_allocator *memory,
    bagi_column *column) {
    bagi_free(memory, column->blobs.buffer, column->blobs.capacity);
    bagi_free(memory, column->ends.buffer, column->ends.capacity);
}

/* Create NAME.bag and NAME.idx. Both paths are taken over. */
static bags_code bagi_column_create(const bagi_env *env, bagi_column *column,
    char *blobs, char *ends, bags_error *err) {
    column->length = column->kept_length = column->kept_end = 0;
    bags_code code = bagi_out_create(env, &column->blobs, blobs, err);
    bags_code also = BAGS_OK;
    if (code)
        column->ends.path = ends;
    else
        also = bagi_out_create(env, &column->ends, ends, err);
    return code ? code : also;
}

/* Blobs before their ends, so that no end speaks of a blob that is not there. */
static bags_code bagi_column_flush(const bagi_env *env, bagi_column *column,
    bags_error *err) {
    bags_code code = bagi_out_flush(env, &column->blobs, err);
    return code ? code : bagi_out_flush(env, &column->ends, err);
}

static bags_code bagi_column_add(const bagi_env *env, bagi_column *column,
    const unsigned char *data, size_t size, bags_error *err) {
    bags_code code = bagi_out_put(env, &column->blobs, data, size, err);
    if (!code && bagi_out_room(&column->ends) == 8)
        code = bagi_out_flush(env, &column->blobs, err);
    if (code)
        return code;
    unsigned char end[8];
    bagi_store_u64(end, column->blobs.end);
    code = bagi_out_put(env, &column->ends, end, sizeof end, err);
    if (!code)
        column->length++;
    return code;
}

static void bagi_column_keep(bagi_column *column) {
    column->kept_length = column->length;
    column->kept_end = column->blobs.end;
}

static void bagi_column_rewind(bagi_column *column) {
    bagi_out_rewind(&column->blobs, column->kept_end);
    bagi_out_rewind(&column->ends, column->kept_length * 8);
    column->length = column->kept_length;
}

/* Bytes of the Bag when it is closed. */
static uint64_t bagi_column_size(const bagi_column *column) {
    return column->blobs.end + 8 * (column->length + 1);
}

/* Put the table behind the blobs: a 0, and then the journal as it is. */
static bags_code bagi_column_table(const bagi_env *env, bagi_column *column,
    bags_error *err) {
    static const unsigned char zero[8] = {0};
    bagi_out *ends = &column->ends;
    bags_code code = bagi_out_put(env, &column->blobs, zero, sizeof zero, err);
    if (!ends->moved)
        return code ? code
                    : bagi_out_put(env, &column->blobs, ends->buffer,
                          (size_t)ends->end, err);
    /* The buffer's content has been flushed: it serves to carry the rest. */
    for (uint64_t at = 0; at < ends->end && !code; at += ends->capacity) {
        size_t size = ends->end - at < ends->capacity ? (size_t)(ends->end - at)
                                                      : ends->capacity;
        code = bagi_read_at(env, ends->handle, ends->path, at, ends->buffer,
            size, err);
        if (!code)
            code = bagi_out_put(env, &column->blobs, ends->buffer, size, err);
    }
    return code;
}

/* Make the Bag whole; both files stay open. */
static bags_code bagi_column_finish(const bagi_env *env, bagi_column *column,
    bool keep_idx, bool no_sync, bags_error *err) {
    bags_code code = bagi_column_flush(env, column, err);
    if (!code)
        code = bagi_column_table(env, column, err);
    if (!code)
        code = bagi_out_flush(env, &column->blobs, err);
    if (!code)
        code = bagi_out_cut(env, &column->blobs, err);
    if (!code && keep_idx)
        code = bagi_out_cut(env, &column->ends, err);
    if (!code && !no_sync)
        code = bagi_out_sync(env, &column->blobs, err);
    if (!code && !no_sync && keep_idx)
        code = bagi_out_sync(env, &column->ends, err);
    return code;
}

static bags_code bagi_column_close(const bagi_env *env, bagi_column *column,
    bags_error *err) {
    bags_code code = bagi_out_close(env, &column->blobs, err);
    bags_code also = bagi_out_close(env, &column->ends, code ? NULL : err);
    return code ? code : also;
}

static void bagi_column_remove(const bagi_env *env, bagi_column *column) {
    bagi_out_remove(env, &column->blobs);
    bagi_out_remove(env, &column->ends);
}

struct bag_writer {
    bagi_env env;
    bagi_column column;
    bool keep_idx, no_sync;
    bags_error failure; /* code BAGS_OK: none */
};

/* Remember the first failure, and give it to whoever asks. */
static bags_code bagi_keep_failure(bags_error *failure, bags_error *err) {
    if (err && err != failure)
        *err = *failure;
    return failure->code;
}

static void bagi_bag_writer_free(bag_writer *writer) {
    bags_allocator memory = writer->env.memory;
    bagi_column_free(&memory, &writer->column);
    bagi_free(&memory, writer, sizeof *writer);
}

BAGS_API bag_writer *bag_writer_open(const char *path,
    const bag_writer_options *options, bags_error *err) {
    bag_writer_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    bagi_env env = bagi_env_of(with.allocator, with.io);
    bag_writer *writer =
        (bag_writer *)bagi_alloc(&env.memory, sizeof *writer, err);
    if (!writer)
        return NULL;
    writer->env = env;
    writer->keep_idx = with.keep_idx;
    writer->no_sync = with.no_sync;
    bags_code code = bagi_column_init(&env.memory, &writer->column,
        with.buffer_size, err);
    if (!code) {
        char *blobs = bagi_copy_text(&env.memory, path, strlen(path), err);
        char *ends = bagi_index_path(&env.memory, path, err);
        code = bagi_column_create(&env, &writer->column, blobs, ends, err);
    }
    if (!code)
        return writer;
    bagi_column_remove(&env, &writer->column);
    bagi_bag_writer_free(writer);
    return NULL;
}

BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data,
    size_t size, uint64_t *index, bags_error *err) {
    if (writer->failure.code)
        return bagi_keep_failure(&writer->failure, err);
    if (bagi_column_add(&writer->env, &writer->column,
            (const unsigned char *)data, size, &writer->failure))
        return bagi_keep_failure(&writer->failure, err);
    if (index)
        *index = writer->column.length - 1;
    return BAGS_OK;
}

BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err) {
    if (!writer->failure.code)
        bagi_column_flush(&writer->env, &writer->column, &writer->failure);
    return writer->failure.code ? bagi_keep_failure(&writer->failure, err)
                                : BAGS_OK;
}

BAGS_API uint64_t bag_writer_length(const bag_writer *writer) {
    return writer->column.length;
}

BAGS_API uint64_t bag_writer_size(const bag_writer *writer) {
    return bagi_column_size(&writer->column);
}

/* Make a finished Bag's name survive a power loss. */
static bags_code bagi_bag_writer_settle(bag_writer *writer, bags_error *err) {
    char *parent =
        bagi_parent(&writer->env.memory, writer->column.blobs.path, err);
    if (!parent)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_sync_dir(&writer->env, parent, err);
    bagi_free_text(&writer->env.memory, parent);
    return code;
}

BAGS_API bags_code bag_writer_close(bag_writer *writer, bags_error *err) {
    if (!writer)
        return BAGS_OK;
    bagi_column *column = &writer->column;
    bags_error *failure = &writer->failure;
    if (!failure->code)
        bagi_column_finish(&writer->env, column, writer->keep_idx,
            writer->no_sync, failure);
    if (!failure->code && !writer->no_sync)
        bagi_bag_writer_settle(writer, failure);
    if (!failure->code)
        bagi_out_close(&writer->env, &column->blobs, failure);
    if (!failure->code && !writer->keep_idx)
        bagi_out_remove(&writer->env, &column->ends);
    bagi_column_close(&writer->env, column, failure->code ? NULL : failure);
    bags_code code = bagi_keep_failure(failure, failure->code ? err : NULL);
    bagi_bag_writer_free(writer);
    return code;
}

BAGS_API void bag_writer_abort(bag_writer *writer) {
    if (!writer)
        return;
    bagi_column_remove(&writer->env, &writer->column);
    bagi_bag_writer_free(writer);
}

/* ========================================================================
 * >>type-text
 * "array(float32,64,128)[]" taken apart, and the dtypes that stand in it.
 * ====================================================================== */

static bool bagi_type_char(char c, bool argument) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || (argument && (c == '.' || c == ','));
}

BAGS_API bags_code bags_type_parse(const char *text, bags_type *out,
    bags_error *err) {
    size_t size = strlen(text), name = 0;
    bags_type type;
    memset(&type, 0, sizeof type);
    if (size >= 2 && memcmp(text + size - 2, "[]", 2) == 0) {
        type.sequence = true;
        size -= 2;
    }
    while (name < size && bagi_type_char(text[name], false))
        name++;
    type.name.data = (const unsigned char *)text;
    type.name.size = name;
    bool right = name > 0;
    if (right && name < size) {
        size_t at = name + 1;
        type.count = 1;
        while (at < size && bagi_type_char(text[at], true))
            type.count += text[at++] == ',';
        right = text[name] == '(' && at + 1 == size && text[at] == ')';
        type.arguments.data = (const unsigned char *)text + name + 1;
        type.arguments.size = at - name - 1;
    }
    if (!right)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "type \"%.80s\" is not name or name(arguments), of a-z 0-9 - _ and "
            "in arguments . and a comma, with or without [] behind it",
            text);
    *out = type;
    return BAGS_OK;
}

BAGS_API bags_bytes bags_type_argument(const bags_type *type, size_t i) {
    bags_bytes rest = type->arguments;
    bags_bytes none = {NULL, 0};
    if (i >= type->count)
        return none;
    for (;; i--) {
        const unsigned char *comma =
            rest.size ? (const unsigned char *)memchr(rest.data, ',', rest.size)
                      : NULL;
        size_t size = comma ? (size_t)(comma - rest.data) : rest.size;
        if (i == 0) {
            rest.size = size;
            return rest;
        }
        rest.data += size + 1;
        rest.size -= size + 1;
    }
}

BAGS_API bool bags_type_number(const bags_type *type, size_t i,
    uint64_t *out) {
    bags_bytes text = bags_type_argument(type, i);
    uint64_t number = 0;
    for (size_t at = 0; at < text.size; at++) {
        unsigned char c = text.data[at];
        if (c < '0' || c > '9' || number > UINT64_MAX / 10)
            return false;
        uint64_t digit = (uint64_t)(c - '0');
        if (number * 10 > UINT64_MAX - digit)
            return false;
        number = number * 10 + digit;
    }
    if (text.size == 0)
        return false;
    *out = number;
    return true;
}

typedef struct bagi_dtype {
    const char *name; /* what NumPy prints */
    const char *code; /* kind and bytes, as behind the < of dtype.str */
    const char *also; /* other spellings, each between spaces */
    unsigned char size;
} bagi_dtype;

/* In the order of bags_dtype. */
static const bagi_dtype bagi_dtypes[] = {{"", "", "", 0},
    {"bool", "b1", " ? bool_ bool8 ", 1}, {"uint8", "u1", " B ubyte ", 1},
    {"uint16", "u2", " H ushort ", 2}, {"uint32", "u4", " I uintc ", 4},
    {"uint64", "u8", " Q uint ulonglong ", 8}, {"int8", "i1", " b byte ", 1},
    {"int16", "i2", " h short ", 2}, {"int32", "i4", " i intc ", 4},
    {"int64", "i8", " q int int_ longlong ", 8},
    {"float16", "f2", " e half ", 2}, {"float32", "f4", " f single ", 4},
    {"float64", "f8", " d double float float_ ", 8}};

#define BAGI_DTYPES (sizeof bagi_dtypes / sizeof *bagi_dtypes)

static const bagi_dtype *bagi_dtype_of(bags_dtype dtype) {
    size_t i = (size_t)dtype;
    return &bagi_dtypes[i < BAGI_DTYPES ? i : 0];
}

BAGS_API const char *bags_dtype_name(bags_dtype dtype) {
    return bagi_dtype_of(dtype)->name;
}

BAGS_API size_t bags_dtype_size(bags_dtype dtype) {
    return bagi_dtype_of(dtype)->size;
}

static bool bagi_dtype_is(const bagi_dtype *dtype, bags_bytes text) {
    if (bagi_same(text, dtype->name) || bagi_same(text, dtype->code))
        return true;
    for (const char *at = dtype->also; *at && at[1]; at = strchr(at + 1, ' ')) {
        bags_bytes word = {(const unsigned char *)at + 1,
            (size_t)(strchr(at + 1, ' ') - at) - 1};
        if (word.size == text.size &&
            memcmp(word.data, text.data, text.size) == 0)
            return true;
    }
    return false;
}

BAGS_API bags_dtype bags_dtype_parse(const char *text, size_t size,
    bool *big_endian) {
    bags_bytes rest = {(const unsigned char *)text, size};
    bool big = false;
    if (size > 0 && (strchr("<>|=", text[0]) && text[0])) {
        big = text[0] == '>' || (text[0] == '=' && !bagi_little_endian());
        rest.data++;
        rest.size--;
    }
    for (size_t i = 1; i < BAGI_DTYPES && rest.size > 0; i++) {
        if (!bagi_dtype_is(&bagi_dtypes[i], rest))
            continue;
        if (big_endian)
            *big_endian = big;
        return (bags_dtype)i;
    }
    return BAGS_DTYPE_NONE;
}

/* ========================================================================
 * >>codecs
 * Values, the built-in codecs, and the registry.
 * ====================================================================== */

static bags_value bagi_value(bags_kind kind, const void *data, size_t size) {
    bags_value value;
    memset(&value, 0, sizeof value);
    value.kind = kind;
    value.data = data;
    value.size = size;
    return value;
}

BAGS_API bags_value bags_int(int64_t number) {
    bags_value value = bagi_value(BAGS_INT, NULL, 0);
    value.sint = number;
    return value;
}

BAGS_API bags_value bags_uint(uint64_t number) {
    bags_value value = bagi_value(BAGS_UINT, NULL, 0);
    value.uint = number;
    return value;
}

BAGS_API bags_value bags_utf8(const char *text) {
    return bagi_value(BAGS_UTF8, text, strlen(text));
}

BAGS_API bags_value bags_utf8_sized(const char *text, size_t size) {
    return bagi_value(BAGS_UTF8, text, size);
}

BAGS_API bags_value bags_blob(const void *data, size_t size) {
    return bagi_value(BAGS_BLOB, data, size);
}

/* Bytes of an array. False if they are more than fit a size_t. */
static bool bagi_array_size(bags_dtype dtype, size_t dims,
    const uint64_t *shape, size_t *size) {
    size_t bytes = bags_dtype_size(dtype);
    bool empty = false;
    for (size_t i = 0; i < dims; i++)
        empty = empty || shape[i] == 0;
    for (size_t i = 0; i < dims && !empty; i++) {
        if (shape[i] > SIZE_MAX / bytes)
            return false;
        bytes *= (size_t)shape[i];
    }
    *size = empty ? 0 : bytes;
    return true;
}

BAGS_API bags_value bags_array(bags_dtype dtype, size_t dims,
    const uint64_t *shape, const void *data) {
    bags_value value = bagi_value(BAGS_ARRAY, data, 0);
    value.dtype = dtype;
    value.dims = dims;
    value.shape = shape;
    /* One that is too large keeps size 0, which no encoder takes for it. */
    if (bags_dtype_size(dtype))
        bagi_array_size(dtype, dims, shape, &value.size);
    return value;
}

static const char *bagi_kind_name(bags_kind kind) {
    static const char *const names[] = {"no value", "a blob", "bytes", "text",
        "a number", "a number", "an array", "an object"};
    size_t i = (size_t)kind;
    return i < sizeof names / sizeof *names ? names[i] : "an unknown kind";
}

BAGI_COLD static bags_code bagi_fail_kind(bags_error *err, const char *wanted,
    const bags_value *value) {
    return bags_fail(err, BAGS_ERROR_VALUE, "takes %s, not %s", wanted,
        bagi_kind_name(value->kind));
}

/* bytes */

static bags_code bagi_bytes_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_bytes *blob, bags_error *err) {
    (void)state;
    (void)scratch;
    if (value->kind != BAGS_BYTES)
        return bagi_fail_kind(err, "bytes", value);
    blob->data = (const unsigned char *)value->data;
    blob->size = value->size;
    return BAGS_OK;
}

static bags_code bagi_bytes_decode(void *state, bags_bytes blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)state;
    (void)scratch;
    (void)err;
    *value = bagi_value(BAGS_BYTES, blob.data, blob.size);
    return BAGS_OK;
}

/* utf8 */

static bags_code bagi_utf8_check(const unsigned char *text, size_t size,
    bags_code code, bags_error *err) {
    size_t good = bagi_utf8_valid(text, size);
    if (good == size)
        return BAGS_OK;
    return bags_fail(err, code, "is not UTF-8: byte 0x%02x at %" PRIu64,
        text[good], (uint64_t)good);
}

static bags_code bagi_utf8_encode_value(void *state, const bags_value *value,
    bags_buffer *scratch, bags_bytes *blob, bags_error *err) {
    (void)state;
    (void)scratch;
    if (value->kind != BAGS_UTF8)
        return bagi_fail_kind(err, "text", value);
    blob->data = (const unsigned char *)value->data;
    blob->size = value->size;
    return bagi_utf8_check(blob->data, blob->size, BAGS_ERROR_VALUE, err);
}

static bags_code bagi_utf8_decode_value(void *state, bags_bytes blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)state;
    (void)scratch;
    bags_code code =
        bagi_utf8_check(blob.data, blob.size, BAGS_ERROR_CORRUPT, err);
    if (!code)
        *value = bagi_value(BAGS_UTF8, blob.data, blob.size);
    return code;
}

/* int, int(N), i64, u64 */

typedef struct bagi_int {
    bags_allocator memory;
    size_t size; /* bytes; 0 with `shortest` */
    bool shortest, is_signed, big;
} bagi_int;

#define BAGI_INT_MOST 1024

static bags_code bagi_int_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    uint64_t size = 8;
    bool plain = bagi_same(type->name, "int");
    bool big = type->count == 2 && bagi_same(bags_type_argument(type, 1), "big");
    bool little = type->count == 2 &&
                  bagi_same(bags_type_argument(type, 1), "little");
    if (type->count > 0 &&
        (!plain || type->count > 2 || !bags_type_number(type, 0, &size) ||
            size > BAGI_INT_MOST || (type->count == 2 && !big && !little)))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "integers are int, int(N), int(N,little), int(N,big), i64 and u64; "
            "N is a number of bytes up to %d", BAGI_INT_MOST);
    bagi_int *made = (bagi_int *)bagi_alloc(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->memory = *allocator;
    made->size = (size_t)size;
    made->shortest = plain && type->count == 0;
    made->is_signed = bagi_same(type->name, "i64");
    made->big = big;
    *state = made;
    return BAGS_OK;
}

static void bagi_int_close(void *state) {
    bagi_int *codec = (bagi_int *)state;
    bags_allocator memory = codec->memory;
    bagi_free(&memory, codec, sizeof *codec);
}

static bool bagi_int_bits(const bagi_int *codec, const bags_value *value,
    uint64_t *bits, bags_error *err) {
    if (value->kind == BAGS_INT) {
        if (value->sint < 0 && !codec->is_signed) {
            bags_fail(err, BAGS_ERROR_VALUE,
                "holds no negative number such as %" PRId64, value->sint);
            return false;
        }
        *bits = (uint64_t)value->sint;
        return true;
    }
    if (value->kind != BAGS_UINT) {
        bagi_fail_kind(err, "a number", value);
        return false;
    }
    if (codec->is_signed && value->uint > (uint64_t)INT64_MAX) {
        bags_fail(err, BAGS_ERROR_VALUE,
            "%" PRIu64 " is above 2^63-1 and does not fit i64", value->uint);
        return false;
    }
    *bits = value->uint;
    return true;
}

static bags_code bagi_int_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_bytes *blob, bags_error *err) {
    const bagi_int *codec = (const bagi_int *)state;
    uint64_t bits = 0;
    if (!bagi_int_bits(codec, value, &bits, err))
        return BAGS_ERROR_VALUE;
    size_t least = 0;
    while (least < 8 && bits >> (8 * least))
        least++;
    size_t size = codec->shortest ? least : codec->size;
    if (size < least)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%" PRIu64 " does not fit %" PRIu64 " bytes", bits, (uint64_t)size);
    bags_code code = bags_buffer_reserve(scratch, size + 8, err);
    if (code)
        return code;
    memset(scratch->data, 0, size);
    for (size_t i = 0; i < least || (i < size && i < 8); i++)
        scratch->data[codec->big ? size - 1 - i : i] =
            (unsigned char)(bits >> (8 * i));
    blob->data = scratch->data;
    blob->size = size;
    return BAGS_OK;
}

static bags_code bagi_int_decode(void *state, bags_bytes blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const bagi_int *codec = (const bagi_int *)state;
    (void)scratch;
    if (!codec->shortest && blob.size != codec->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "has %" PRIu64 " bytes; its type says %" PRIu64,
            (uint64_t)blob.size, (uint64_t)codec->size);
    uint64_t bits = 0;
    for (size_t i = 0; i < blob.size; i++) {
        unsigned char byte = blob.data[codec->big ? blob.size - 1 - i : i];
        if (i < 8)
            bits |= (uint64_t)byte << (8 * i);
        else if (byte)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "is a number of %" PRIu64 " bytes, above 2^64-1",
                (uint64_t)blob.size);
    }
    if (codec->is_signed)
        *value = bags_int(bits <= (uint64_t)INT64_MAX
                              ? (int64_t)bits
                              : -(int64_t)(UINT64_MAX - bits) - 1);
    else
        *value = bags_uint(bits);
    return BAGS_OK;
}

/* array(DTYPE,D0,...) and the self-describing array */

typedef struct bagi_array {
    bags_allocator memory;
    bags_dtype dtype; /* BAGS_DTYPE_NONE: self-describing */
    size_t dims;
    size_t wild;  /* the dimension that may be anything; dims: none */
    size_t bytes; /* of an array, or with `wild` of one step along it */
    uint64_t shape[BAGS_MAX_DIMS];
} bagi_array;

static bags_code bagi_array_arguments(bagi_array *codec, const bags_type *type,
    bags_error *err) {
    bags_bytes name = bags_type_argument(type, 0);
    bool big = false;
    codec->dtype =
        bags_dtype_parse((const char *)name.data, name.size, &big);
    if (codec->dtype == BAGS_DTYPE_NONE)
        return bags_fail(err, BAGS_ERROR_TYPE, "\"%.*s\" is no dtype",
            (int)(name.size < 80 ? name.size : 80), (const char *)name.data);
    codec->dims = type->count - 1;
    if (codec->dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "an array has at most %d dimensions", BAGS_MAX_DIMS);
    codec->wild = codec->dims;
    for (size_t i = 0; i < codec->dims; i++) {
        if (codec->wild == codec->dims &&
            bagi_same(bags_type_argument(type, i + 1), "-1")) {
            codec->wild = i;
            codec->shape[i] = 1;
        } else if (!bags_type_number(type, i + 1, &codec->shape[i])) {
            return bags_fail(err, BAGS_ERROR_TYPE,
                "a dimension of an array is a number; one of them may be -1");
        }
    }
    if (!bagi_array_size(codec->dtype, codec->dims, codec->shape,
            &codec->bytes))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "an array of this type is larger than memory");
    return BAGS_OK;
}

static void bagi_array_close(void *state) {
    bagi_array *codec = (bagi_array *)state;
    bags_allocator memory = codec->memory;
    bagi_free(&memory, codec, sizeof *codec);
}

static bags_code bagi_array_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    bagi_array *made = (bagi_array *)bagi_alloc(allocator, sizeof *made, err);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->memory = *allocator;
    bags_code code =
        type->count ? bagi_array_arguments(made, type, err) : BAGS_OK;
    if (code)
        bagi_array_close(made);
    else
        *state = made;
    return code;
}

/* Copy elements with their bytes in reverse. */
static void bagi_swap_copy(unsigned char *to, const unsigned char *from,
    size_t size, size_t element) {
    for (size_t i = 0; i + element <= size; i += element)
        for (size_t j = 0; j < element; j++)
            to[i + j] = from[i + element - 1 - j];
}

/*
 * Make a value of an array's bytes: a view of them if they are aligned and in
 * this machine's order, else a copy behind the shape in scratch. shape is
 * copied to scratch if `keep`, else it lives as long as the codec.
 */
static bags_code bagi_array_value(bags_dtype dtype, bool big, size_t dims,
    const uint64_t *shape, bool keep, bags_bytes data, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    size_t element = bags_dtype_size(dtype);
    bool swap = element > 1 && big == bagi_little_endian();
    bool copy = swap || (uintptr_t)data.data % element != 0;
    size_t front = keep ? dims * sizeof *shape : 0;
    if (data.size > SIZE_MAX - front)
        return bagi_fail_memory(err, data.size);
    bags_code code =
        bags_buffer_reserve(scratch, front + (copy ? data.size : 0) + 1, err);
    if (code)
        return code;
    if (keep && dims)
        memcpy(scratch->data, shape, front);
    const unsigned char *elements = data.data;
    if (copy) {
        unsigned char *room = scratch->data + front;
        if (swap)
            bagi_swap_copy(room, data.data, data.size, element);
        else if (data.size)
            memcpy(room, data.data, data.size);
        elements = room;
    }
    *value = bags_array(dtype, dims,
        keep ? (const uint64_t *)(const void *)scratch->data : shape, elements);
    return BAGS_OK;
}

/* The dtype and shape of a value that is to be encoded, checked. */
static bags_code bagi_array_check(const bags_value *value, size_t *size,
    bags_error *err) {
    if (value->kind != BAGS_ARRAY)
        return bagi_fail_kind(err, "an array", value);
    if (!bags_dtype_size(value->dtype))
        return bags_fail(err, BAGS_ERROR_VALUE, "an array without a dtype");
    if (value->dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array has at most %d dimensions", BAGS_MAX_DIMS);
    if (!bagi_array_size(value->dtype, value->dims, value->shape, size))
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array whose shape is larger than memory");
    return BAGS_OK;
}

/* "float32 (64, 128)" */
static void bagi_array_text(bags_dtype dtype, size_t dims,
    const uint64_t *shape, size_t wild, char *out, size_t size) {
    int used = snprintf(out, size, "%s (", bags_dtype_name(dtype));
    for (size_t i = 0; i < dims && used > 0 && (size_t)used < size; i++) {
        size_t at = (size_t)used;
        used += i == wild
                    ? snprintf(out + at, size - at, "%sany", i ? ", " : "")
                    : snprintf(out + at, size - at, "%s%" PRIu64, i ? ", " : "",
                          shape[i]);
    }
    if (used > 0 && (size_t)used < size)
        snprintf(out + used, size - (size_t)used, ")");
}

BAGI_COLD static bags_code bagi_array_mismatch(const bagi_array *codec,
    const bags_value *value, bags_error *err) {
    char wanted[160], given[160];
    bagi_array_text(codec->dtype, codec->dims, codec->shape, codec->wild,
        wanted, sizeof wanted);
    bagi_array_text(value->dtype, value->dims, value->shape, value->dims, given,
        sizeof given);
    return bags_fail(err, BAGS_ERROR_VALUE, "takes %s, not %s", wanted, given);
}

static bags_code bagi_array_match(const bagi_array *codec,
    const bags_value *value, bags_error *err) {
    bool same = value->dtype == codec->dtype && value->dims == codec->dims;
    for (size_t i = 0; same && i < codec->dims; i++)
        same = i == codec->wild || value->shape[i] == codec->shape[i];
    return same ? BAGS_OK : bagi_array_mismatch(codec, value, err);
}

/* Elements in little-endian order: the value's own bytes, or a swapped copy
 * behind `front` bytes of scratch. */
static bags_code bagi_array_elements(const bags_value *value, size_t size,
    size_t front, bags_buffer *scratch, const unsigned char **out,
    bags_error *err) {
    *out = (const unsigned char *)value->data;
    if (bagi_little_endian() || bags_dtype_size(value->dtype) == 1)
        return BAGS_OK;
    bags_code code = bags_buffer_reserve(scratch, front + size + 1, err);
    if (code)
        return code;
    bagi_swap_copy(scratch->data + front, *out, size,
        bags_dtype_size(value->dtype));
    *out = scratch->data + front;
    return BAGS_OK;
}

static size_t bagi_self_head(const bags_value *value, size_t size,
    unsigned char *out) {
    size_t used = 0;
    char code[8];
    int length = snprintf(code, sizeof code, "%c%s",
        bags_dtype_size(value->dtype) == 1 ? '|' : '<',
        bagi_dtype_of(value->dtype)->code);
    out[used++] = 0x93;
    out[used++] = (unsigned char)(0xA0 | length);
    memcpy(out + used, code, (size_t)length);
    used += (size_t)length;
    used += bagi_msgpack_put_array(out + used, value->dims);
    for (size_t i = 0; i < value->dims; i++)
        used += bagi_msgpack_put_uint(out + used, value->shape[i]);
    int bytes = size <= UINT8_MAX ? 1 : size <= UINT16_MAX ? 2 : 4;
    unsigned char tag = bytes == 1 ? 0xC4 : bytes == 2 ? 0xC5 : 0xC6;
    return used + bagi_msgpack_put(out + used, tag, size, bytes);
}

/* [dtype, shape, data] in msgpack, as granular writes it. */
static bags_code bagi_self_encode(const bags_value *value, size_t size,
    bags_buffer *scratch, bags_bytes *blob, bags_error *err) {
    const size_t most = 16 + 9 * BAGS_MAX_DIMS;
    if (size > UINT32_MAX || size > SIZE_MAX - most)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array of %" PRIu64 " bytes; this type holds 2^32-1",
            (uint64_t)size);
    bags_code code = bags_buffer_reserve(scratch, most + size, err);
    if (code)
        return code;
    size_t head = bagi_self_head(value, size, scratch->data);
    const unsigned char *elements = NULL;
    code = bagi_array_elements(value, size, head, scratch, &elements, err);
    if (code)
        return code;
    if (size && elements != scratch->data + head)
        memcpy(scratch->data + head, elements, size);
    blob->data = scratch->data;
    blob->size = head + size;
    return BAGS_OK;
}

static bags_code bagi_array_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_bytes *blob, bags_error *err) {
    const bagi_array *codec = (const bagi_array *)state;
    size_t size = 0;
    bags_code code = bagi_array_check(value, &size, err);
    if (code)
        return code;
    if (codec->dtype == BAGS_DTYPE_NONE)
        return bagi_self_encode(value, size, scratch, blob, err);
    code = bagi_array_match(codec, value, err);
    if (!code)
        code = bagi_array_elements(value, size, 0, scratch, &blob->data, err);
    blob->size = size;
    return code;
}

/* A str or bin of msgpack, off the front; `first` is the tag of its 8-bit
 * form. */
static bool bagi_msgpack_bytes(bags_bytes *blob, unsigned char first,
    bags_bytes *out) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_bytes rest = {blob->data + 1, blob->size - 1};
    uint64_t size = 0;
    if (first == 0xD9 && (tag & 0xE0) == 0xA0)
        size = tag & 0x1F;
    else if (tag < first || tag > first + 2 ||
             !bagi_msgpack_number(&rest, (size_t)1 << (tag - first), &size))
        return false;
    if (size > rest.size)
        return false;
    out->data = rest.data;
    out->size = (size_t)size;
    blob->data = rest.data + size;
    blob->size = rest.size - (size_t)size;
    return true;
}

static bags_code bagi_self_decode(bags_bytes blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    uint64_t count = 0, dims = 0, shape[BAGS_MAX_DIMS];
    bags_bytes name = {NULL, 0}, data = {NULL, 0};
    bool right = bagi_msgpack_array(&blob, &count) && count == 3 &&
                 bagi_msgpack_bytes(&blob, 0xD9, &name) &&
                 bagi_msgpack_array(&blob, &dims) && dims <= BAGS_MAX_DIMS;
    for (uint64_t i = 0; right && i < dims; i++)
        right = bagi_msgpack_uint(&blob, &shape[i]);
    right = right && bagi_msgpack_bytes(&blob, 0xC4, &data) && blob.size == 0;
    if (!right)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "is not a msgpack array of dtype, shape and data");
    bool big = false;
    bags_dtype dtype =
        bags_dtype_parse((const char *)name.data, name.size, &big);
    if (dtype == BAGS_DTYPE_NONE)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "is an array of a dtype that is not built in: \"%.*s\"",
            (int)(name.size < 80 ? name.size : 80), (const char *)name.data);
    size_t size = 0;
    if (!bagi_array_size(dtype, (size_t)dims, shape, &size) ||
        size != data.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "is an array whose shape does not give its %" PRIu64 " bytes",
            (uint64_t)data.size);
    return bagi_array_value(dtype, big, (size_t)dims, shape, true, data,
        scratch, value, err);
}

static bags_code bagi_array_decode(void *state, bags_bytes blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const bagi_array *codec = (const bagi_array *)state;
    if (codec->dtype == BAGS_DTYPE_NONE)
        return bagi_self_decode(blob, scratch, value, err);
    bool wild = codec->wild < codec->dims;
    if (wild ? codec->bytes == 0 || blob.size % codec->bytes != 0
             : blob.size != codec->bytes)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "has %" PRIu64 " bytes; its type says %s%" PRIu64,
            (uint64_t)blob.size, wild ? "a multiple of " : "",
            (uint64_t)codec->bytes);
    if (!wild)
        return bagi_array_value(codec->dtype, false, codec->dims, codec->shape,
            false, blob, scratch, value, err);
    uint64_t shape[BAGS_MAX_DIMS];
    memcpy(shape, codec->shape, sizeof shape);
    shape[codec->wild] = blob.size / codec->bytes;
    return bagi_array_value(codec->dtype, false, codec->dims, shape, true, blob,
        scratch, value, err);
}

static const bags_codec bagi_codecs_built_in[] = {
    {"bytes", NULL, bagi_bytes_encode, bagi_bytes_decode, NULL, NULL},
    {"utf8", NULL, bagi_utf8_encode_value, bagi_utf8_decode_value, NULL, NULL},
    {"int i64 u64", bagi_int_open, bagi_int_encode, bagi_int_decode,
        bagi_int_close, NULL},
    {"array", bagi_array_open, bagi_array_encode, bagi_array_decode,
        bagi_array_close, NULL}};

#define BAGI_BUILT_IN \
    (sizeof bagi_codecs_built_in / sizeof *bagi_codecs_built_in)

struct bags_codecs {
    bags_allocator memory;
    bags_codec *added;
    size_t count, capacity;
};

BAGS_API bags_codecs *bags_codecs_create(const bags_allocator *allocator,
    bags_error *err) {
    bags_allocator memory = bagi_allocator_of(allocator);
    bags_codecs *codecs =
        (bags_codecs *)bagi_alloc(&memory, sizeof *codecs, err);
    if (codecs)
        codecs->memory = memory;
    return codecs;
}

BAGS_API bags_code bags_codecs_add(bags_codecs *codecs, const bags_codec *codec,
    bags_error *err) {
    if (!codecs || !codec || !codec->names || !*codec->names)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a codec needs a name");
    void *added = codecs->added;
    bags_code code = bagi_grow(&codecs->memory, &added, &codecs->capacity,
        codecs->count, sizeof *codec, err);
    codecs->added = (bags_codec *)added;
    if (!code)
        codecs->added[codecs->count++] = *codec;
    return code;
}

static bool bagi_codec_serves(const bags_codec *codec, bags_bytes name) {
    const char *at = codec->names;
    while (*at) {
        size_t size = strcspn(at, " ");
        if (size > 0 && size == name.size && memcmp(at, name.data, size) == 0)
            return true;
        at += size + (at[size] == ' ');
    }
    return false;
}

BAGS_API const bags_codec *bags_codecs_find(const bags_codecs *codecs,
    bags_bytes name) {
    for (size_t i = codecs ? codecs->count : 0; i > 0; i--)
        if (bagi_codec_serves(&codecs->added[i - 1], name))
            return &codecs->added[i - 1];
    for (size_t i = 0; i < BAGI_BUILT_IN; i++)
        if (bagi_codec_serves(&bagi_codecs_built_in[i], name))
            return &bagi_codecs_built_in[i];
    return NULL;
}

BAGS_API void bags_codecs_free(bags_codecs *codecs) {
    if (!codecs)
        return;
    bags_allocator memory = codecs->memory;
    bagi_free(&memory, codecs->added, codecs->capacity * sizeof(bags_codec));
    bagi_free(&memory, codecs, sizeof *codecs);
}

#endif /* BAGS_IMPLEMENTATION */
