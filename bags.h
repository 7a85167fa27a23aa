/*
 * bags.h - write and read machine-learning datasets in the Bag and Bags formats
 * of the Python package `bags` (now `granular`), in C or C++.
 *
 * COMPILE
 *     Copy this file into your project and include it anywhere. In exactly one
 *     source file, before any system header, write
 *
 *         #define BAGS_IMPLEMENTATION
 *         #include "bags.h"
 *
 *     It needs libc and the operating system, nothing more: cc -O2 program.c.
 *     (After a system header it also works, except with -std=c99, -std=c11 and
 *     the like, or on 32-bit CPUs; the compiler then reports an error.) Codecs
 *     for images, video, msgpack and .npy are optional, one file each, in
 *     formats/.
 *
 * A COMPLETE PROGRAM
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
 *         bags_value words[2] = {bags_utf8("a"), bags_utf8("cat")};
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
 *         // Fields are sorted by name, so slot 1 is "words". Its item 1:
 *         bags_view word = bags_row_bytes(&row, 1, 1);
 *         printf("%.*s\n", (int)word.size, (const char *)word.data);
 *         bags_row_free(&row);
 *         bags_reader_close(reader);
 *         return 0;
 *     }
 *
 * CONTENTS (search for the tag)
 *     >>config   version, how functions are declared
 *     >>errors   bags_code, bags_error
 *     >>views    bags_view, bags_range, bags_buffer
 *     >>hooks    bags_allocator, bags_io, bags_env
 *     >>bag      one file: options, reader, writer
 *     >>types    type strings, dtypes, bags_value, codecs, bags_registry
 *     >>writer   datasets: fields, options, shards, recovery
 *     >>reader   datasets: options, selection, rows
 *     >>faults   finding everything that is wrong
 *     then the implementation; each section calls only earlier ones:
 *     >>platform  >>bytes  >>crc  >>fail  >>memory  >>files  >>json  >>refs
 *     >>type-text  >>codecs  >>bag-read  >>bag-write  >>spec  >>shards
 *     >>dataset-write  >>recover  >>dataset-read  >>verify  >>checksum
 *
 * THE BYTES
 *     NAME.bag       blob 0 | blob 1 | ... | blob N-1 | table
 *                    The table is 0, end of blob 0, ..., end of blob N-1: N + 1
 *                    unsigned 64-bit little-endian integers. Its last entry is
 *                    also the offset at which it begins, so the last 8 bytes of
 *                    the file locate every blob.
 *     DATASET/       spec.json    {"label": "int(4)", "words": "utf8[]"}
 *                    refs.bag     one msgpack array per datapoint: its blobs
 *                    label.bag    one Bag per field
 *                    words.bag
 *     DATASET/       000000/ 000001/ ...   sharded: each a dataset as above
 *
 *     Three variants are read. v1 is drawn above and is the one that is written.
 *     v2 (granular 0.20 and 0.21): the table has no leading 0, and an empty Bag
 *     has 0 bytes. split (granular 0.22 and later): the table is in NAME.idx.
 *
 *     NAME.crc       optional, ignored by Python readers: checksums of NAME.bag.
 *                    CRC of blob 0 | ... | CRC of blob N-1 | trailer
 *                    Each is a CRC-32C (RFC 3720) in 4 little-endian bytes. The
 *                    trailer has 44 bytes:
 *                     0  8  N
 *                     8  8  size of NAME.bag
 *                    16  4  CRC of the table (split: of the entries of NAME.idx)
 *                    20  4  CRC of the N CRCs
 *                    24  4  CRC of the field's name, or of "refs"; 0 for a
 *                           standalone Bag
 *                    28  4  CRC of spec.json; 0 for a standalone Bag
 *                    32  8  "BAGSCRC1"
 *                    40  4  CRC of the 40 bytes before
 *
 * CONCEPTS
 *     blob       bytes: one encoded value.
 *     Bag        a file of blobs, found by index.
 *     field      a name and a type. The type names the codec between values and
 *                blobs ("jpeg", "int(4)"). With a trailing [] each datapoint has
 *                a sequence of values.
 *     datapoint  one value, or one sequence, for every field.
 *     shard      a directory with some of the datapoints. Worker W of K writes
 *                the shards W, W+K, W+2K, ...
 *     row        what a reader returns for one datapoint.
 *
 * RULES THAT HOLD EVERYWHERE
 *     Errors     A function that opens returns the object or NULL. Every other
 *                function that can fail returns a bags_code, with BAGS_OK being
 *                0. The last parameter is the caller's bags_error, or NULL; it
 *                is written on every failure. On failure, outputs are untouched
 *                unless the function states otherwise. Nothing is printed, and
 *                nothing aborts.
 *     Ownership  A bags_view is borrowed: each function states for how long it
 *                is valid. What the caller owns has a named function that frees
 *                it, which accepts NULL. What the caller passes in is copied or
 *                used up before the call returns, unless stated otherwise.
 *     Scratch    A bags_buffer or a bags_row is the caller's memory that calls
 *                reuse, so that a loop does not allocate. Start it as {0}, use
 *                one per thread, and free it at the end.
 *     Threads    A reader does not change after it is opened: any number of
 *                threads may share it, each with its own scratch. A writer is
 *                used by one thread at a time.
 *     Ranges     are half-open: start <= i < stop. A stop past the end is
 *                clamped to the end. start > stop is an error.
 *     Sizes      _length counts blobs or datapoints, _size counts bytes.
 *                uint64_t in files, size_t in memory.
 *     Options    are structs in which 0 is the default of every member: {0} is
 *                always right. NULL means {0}.
 *     Paths      are UTF-8 and NUL-terminated. On Windows they may be long, and
 *                / and \ both separate their parts.
 *
 * UNTRUSTED FILES
 *     Every length and offset is checked before it is used. No bytes in files and
 *     no names in directories make the library
 *       - read outside a file, or open a file outside the dataset's directory;
 *       - wait: a pipe, a device or a directory in place of a file is refused;
 *       - use more memory than their sizes justify. A dataset: 1 KiB per field,
 *         200 bytes per shard, and 600 bytes for each Bag that was used. A
 *         datapoint: 16 bytes per requested item, its row of refs.bag and,
 *         without mmap, the requested blobs, each at most once;
 *       - work longer than their sizes justify. Opening costs the same for a file
 *         of any size; bags_verify reads every file about twice.
 *     A sparse file counts with its holes. What other codecs need to decode a blob
 *     is theirs to bound. Symbolic links inside a dataset are followed for reading,
 *     wherever they lead, so that a blob of an untrusted dataset may be the content
 *     of any file that the process may read. Where that matters, accept no dataset
 *     with links in it. A link in place of a file is never written through;
 *     bags_recover and `resume` do follow one in place of a shard's directory.
 *
 * MACROS YOU MAY DEFINE
 *     BAGS_IMPLEMENTATION  in one source file: compile the functions there.
 *     BAGS_STATIC          everything is static to this source file; implies
 *                          BAGS_IMPLEMENTATION.
 *     BAGS_API             precedes every public function, for example
 *                          __declspec(dllexport).
 *     BAGS_NO_WRITER       leave out everything that writes: the writers,
 *                          bags_recover, bags_finalize and bags_checksum.
 *     BAGS_NO_VERIFY       leave out bags_verify.
 *                          Define both the same way wherever bags.h is included.
 *
 * KNOWN LIMITS
 *     - A mapped file must not be truncated while a reader has it open: an access
 *       past its new end terminates the process with SIGBUS, and up to the end of
 *       the last page it returns zeros. No check before an access can prevent it.
 *       (Windows refuses the truncation.) Where files may be rewritten, read with
 *       `no_mmap`: it is then an error that names the file. The library itself
 *       never truncates a finished file. The same holds for a disk that fails.
 *     - spec.json: at most 1 MiB and 65,535 fields. Shard numbers: below 10^18.
 *     - A writer keeps two files open per field; three with checksums.
 *     - OpenBSD, whose maps do not see later writes: files are not mapped.
 *     - Windows: a directory with open files in it cannot be renamed, nor an open
 *       file be replaced.
 *     - It runs on POSIX systems and on Windows 7 and later, on CPUs of either
 *       byte order, 32-bit and 64-bit. It is tested on Linux, and with MinGW-w64
 *       and Wine; macOS, the BSDs and MSVC are supported but not run in tests.
 *
 * The licence is at the end of this file.
 */
#if defined(BAGS_STATIC) && !defined(BAGS_IMPLEMENTATION)
#define BAGS_IMPLEMENTATION
#endif

/* The implementation calls POSIX functions and needs 64-bit file offsets. Both
 * must be requested before the first system header. */
#if defined(BAGS_IMPLEMENTATION) && !defined(BAGI_IMPLEMENTED) &&              \
    !defined(_WIN32)
#if !defined(_GNU_SOURCE) && !defined(_FEATURES_H)
#define _GNU_SOURCE 1
#endif
#if !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE 1
#endif
#if !defined(_NETBSD_SOURCE)
#define _NETBSD_SOURCE 1
#endif
#if !defined(_FILE_OFFSET_BITS) && !defined(_FEATURES_H)
#define _FILE_OFFSET_BITS 64
#endif
/* If a system header came first, glibc and musl hide these functions in strict
 * standard C (-std=c99), and on 32-bit CPUs glibc's off_t has 32 bits. Then this
 * error is the only one: nothing else is compiled. */
#if defined(_FEATURES_H) &&                                                    \
    (defined(__GLIBC__) ? !defined(__USE_XOPEN2K8)                             \
                        : !defined(_GNU_SOURCE) && !defined(_BSD_SOURCE))
#error                                                                         \
    "bags.h: a system header came first, and with this -std= it hides what \
bags.h needs: define BAGS_IMPLEMENTATION and include bags.h before any system \
header, or compile with -std=gnu99 or -D_GNU_SOURCE"
#define BAGI_IMPLEMENTED
#elif defined(_FEATURES_H) && defined(__GLIBC__) &&                            \
    !defined(__USE_FILE_OFFSET64) && !defined(__OFF_T_MATCHES_OFF64_T) &&      \
    __SIZEOF_POINTER__ == 4
#error "bags.h: a system header came first, and files of 2 GiB would be too \
large: define BAGS_IMPLEMENTATION and include bags.h before any system header, or \
compile with -D_FILE_OFFSET_BITS=64"
#define BAGI_IMPLEMENTED
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
#include <string.h>

#define BAGS_VERSION_MAJOR 0
#define BAGS_VERSION_MINOR 2
#define BAGS_VERSION_PATCH 0
#define BAGS_VERSION "0.2.0"

/* BAGI_UNUSED avoids warnings in a program that includes everything as static
 * functions and calls a few. */
#if defined(__GNUC__) || defined(__clang__)
#define BAGI_UNUSED __attribute__((unused))
#if defined(__MINGW32__) && defined(__GNUC__) && !defined(__clang__) &&        \
    __USE_MINGW_ANSI_STDIO
#define BAGI_PRINTF(string, first)                                             \
    __attribute__((format(gnu_printf, string, first)))
#else
#define BAGI_PRINTF(string, first)                                             \
    __attribute__((format(printf, string, first)))
#endif
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

/* For the few functions that are defined in the API because a call would cost
 * more than what they do. In C99 the implementation holds one copy of each for
 * callers that take its address. */
#if defined(__GNUC__) && !defined(__TINYC__)
#define BAGI_ALWAYS __attribute__((always_inline))
#else
#define BAGI_ALWAYS
#endif
#if defined(BAGS_STATIC) || defined(__TINYC__)
#define BAGI_INLINE static inline BAGI_UNUSED BAGI_ALWAYS
#elif defined(__cplusplus)
#define BAGI_INLINE extern "C" inline BAGI_ALWAYS
#else
#define BAGI_INLINE inline BAGI_ALWAYS
#endif

#if defined(__GNUC__) || defined(__clang__)
#define BAGI_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define BAGI_UNLIKELY(condition) (condition)
#endif

/* The version of the implementation that was linked, like BAGS_VERSION. */
BAGS_API const char *bags_version(void);

/* ========================================================================
 * >>errors
 * The code states what a caller can do about it, the message everything else.
 * ====================================================================== */

typedef enum bags_code {
    BAGS_OK = 0,
    BAGS_ERROR_ARGUMENT,   /* invalid argument: a bug in the caller */
    BAGS_ERROR_STATE,      /* a call out of order, such as end without begin */
    BAGS_ERROR_RANGE,      /* index out of range; start > stop */
    BAGS_ERROR_FIELD,      /* a field is unknown, missing or duplicate */
    BAGS_ERROR_TYPE,       /* invalid type string; no codec for this type */
    BAGS_ERROR_VALUE,      /* a value that its type cannot hold */
    BAGS_ERROR_MISSING,    /* no such file or directory */
    BAGS_ERROR_EXISTS,     /* what should be created already exists */
    BAGS_ERROR_LOCKED,     /* a running writer holds it */
    BAGS_ERROR_UNFINISHED, /* its writer has not finished it: recover */
    BAGS_ERROR_GAP,        /* shards are missing */
    BAGS_ERROR_CORRUPT,    /* the bytes contradict each other */
    BAGS_ERROR_LIMIT,      /* valid, but too large for this platform or type */
    BAGS_ERROR_IO,         /* a system call failed; see bags_error.system */
    BAGS_ERROR_MEMORY      /* out of memory */
} bags_code;

#define BAGS_ERROR_SIZE 1024

/* What went wrong. The caller owns it. A function that fails writes it; a
 * function that succeeds leaves it alone. */
typedef struct bags_error {
    bags_code code;
    int system;                    /* errno if a system call failed, else 0 */
    char message[BAGS_ERROR_SIZE]; /* one line of UTF-8, NUL-terminated: file,
                                      field, index, actual vs. allowed value */
} bags_error;

/* A code in words, such as "out of memory". Never NULL; static. */
BAGS_API const char *bags_code_name(bags_code code);

/* Write an error, as a codec or an I/O hook must before it fails. err may be
 * NULL. format is printf's; a message that is too long is truncated. Returns
 * code. Threads: any. */
BAGS_API bags_code bags_fail(
    bags_error *err, bags_code code, const char *format, ...) BAGI_PRINTF(3, 4);

/* ========================================================================
 * >>views
 * Borrowed bytes, and memory that the caller owns and calls reuse.
 * ====================================================================== */

struct bags_allocator;

/* Borrowed bytes, not NUL-terminated, not aligned. */
typedef struct bags_view {
    const unsigned char *data; /* may be NULL if size is 0 */
    size_t size;
} bags_view;

/* Consecutive blobs of a Bag: their contiguous bytes, and where each ends.
 * Returned by bag_reader_get_range, which has checked every entry; read it with
 * bags_range_get. */
typedef struct bags_range {
    const unsigned char *data; /* the first byte of the first blob */
    size_t size;               /* bytes of all blobs */
    size_t length;             /* number of blobs */
    const unsigned char *ends; /* `length` end offsets, 8 little-endian bytes
                                  each, unaligned, relative to the file */
    uint64_t start;            /* offset of the first blob in the file */
} bags_range;

/* On little-endian CPUs a load is one instruction; not every compiler finds that
 * from the other form. */
BAGI_INLINE uint64_t bagi_load_u64(const unsigned char *data) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t number;
    memcpy(&number, data, sizeof number);
    return number;
#else
    return (uint64_t)data[0] | (uint64_t)data[1] << 8 |
           (uint64_t)data[2] << 16 | (uint64_t)data[3] << 24 |
           (uint64_t)data[4] << 32 | (uint64_t)data[5] << 40 |
           (uint64_t)data[6] << 48 | (uint64_t)data[7] << 56;
#endif
}

/* Blob i of a range, 0 <= i < range->length; otherwise an empty view. Valid as
 * long as the range. Threads: any. Cost: O(1). */
BAGI_INLINE bags_view bags_range_get(const bags_range *range, size_t i) {
    bags_view blob = {NULL, 0};
    if (BAGI_UNLIKELY(i >= range->length))
        return blob;
    const unsigned char *end = range->ends + 8 * i;
    uint64_t start = i ? bagi_load_u64(end - 8) : range->start;
    blob.data = range->data + (start - range->start);
    blob.size = (size_t)(bagi_load_u64(end) - start);
    return blob;
}

/* Memory that grows, by an allocator that it remembers. Start it as {0}; it then
 * takes the allocator of the first object that grows it. */
typedef struct bags_buffer {
    unsigned char *data;
    size_t capacity;
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_buffer;

/* Make the capacity at least `size` bytes; the content is kept, and the data is
 * aligned for any type. It grows by at least half, so that repeated calls cost
 * O(n) in total. Returns BAGS_OK, or BAGS_ERROR_MEMORY with the buffer
 * untouched. */
BAGS_API bags_code bags_buffer_reserve(
    bags_buffer *buffer, size_t size, bags_error *err);

/* Free the buffer's memory and make it {0} again. NULL is accepted. */
BAGS_API void bags_buffer_free(bags_buffer *buffer);

/* True if the text is valid UTF-8 (no overlong forms, no surrogates, nothing
 * above U+10FFFF). Otherwise *bad, which may be NULL, receives the offset of the
 * first invalid byte. Threads: any. Cost: O(size). */
BAGS_API bool bags_utf8_valid(const void *text, size_t size, size_t *bad);

/* True if this platform is little-endian, as files are. */
BAGS_API bool bags_little_endian(void);

/* Copy elements of `element` bytes each, reversing the bytes of every element;
 * size is in bytes, a multiple of element. `to` may be equal to `from`. */
BAGS_API void bags_swap_bytes(
    void *to, const void *from, size_t size, size_t element);

/* ========================================================================
 * >>hooks
 * Where memory comes from and where files are. Both are copied when an object is
 * opened; what `user` points to must live as long as the object.
 * ====================================================================== */

/* resize works like realloc: data NULL allocates; new_size 0 frees and returns
 * NULL; old_size is the size requested before. NULL with new_size > 0 means out
 * of memory, with data untouched. It must be thread-safe if a reader is shared. */
typedef struct bags_allocator {
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_allocator;

#define BAGS_IO_READ 0   /* an existing file, for reading */
#define BAGS_IO_CREATE 1 /* a new file, for both; EEXIST if it exists */
#define BAGS_IO_WRITE 2  /* an existing file, for reading and writing */

typedef enum bags_path_kind {
    BAGS_PATH_NONE, /* nothing has this name */
    BAGS_PATH_FILE,
    BAGS_PATH_DIRECTORY
} bags_path_kind;

/* How bytes of a file will be read. */
typedef enum bags_advice {
    BAGS_ADVICE_RANDOM,     /* in any order: do not read ahead */
    BAGS_ADVICE_SEQUENTIAL, /* from front to back */
    BAGS_ADVICE_SOON        /* all of them, soon: start to read them now */
} bags_advice;

/*
 * All access to files. Every hook returns 0, or an errno value, which is copied
 * to bags_error.system. Reads and writes pass explicit offsets. They may do less
 * than requested and are then called again; a read of 0 bytes means the end of
 * the file. A reader calls its hooks from several threads at once. Hooks marked
 * optional may be NULL; a reader needs none of those that write. open must not
 * return a NULL *file.
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
    int (*sync)(void *user, void *file); /* until it is on stable storage */
    /* Lock the file against every other open file, until it is closed, without
     * waiting: EWOULDBLOCK if it is already locked. */
    int (*lock)(void *user, void *file);
    /* Optional. Map the first `size` bytes, at least 1, read-only, valid until
     * unmap, also after close. After a failure the file is read instead. */
    int (*map)(void *user, void *file, size_t size, const void **data);
    int (*unmap)(void *user, const void *data, size_t size);
    /* What a path is; 0 with BAGS_PATH_NONE if nothing exists there. */
    int (*kind)(void *user, const char *path, bags_path_kind *kind);
    int (*make_dir)(void *user, const char *path); /* EEXIST if it exists */
    int (*sync_dir)(void *user, const char *path);
    /* Call each() with every name in a directory except . and .., in any order,
     * until it returns nonzero, and return that. */
    int (*list)(void *user, const char *path,
        int (*each)(void *each_user, const char *name), void *each_user);
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path);     /* a file */
    int (*remove_dir)(void *user, const char *path); /* an empty directory */
    /* Optional. Allocate disk space up to `size` bytes of the file, whose size
     * does not change: it will be written soon, and the rest truncated. A failure
     * is ignored. */
    int (*reserve)(void *user, void *file, uint64_t size);
    /* Optional. Announce how bytes will be read: of a map starting at `map`, or
     * else of an open file starting at `offset`. A failure is ignored. */
    int (*advise)(void *user, void *file, const void *map, uint64_t offset,
        uint64_t size, bags_advice advice);
    /* Optional. Start to write these bytes of the file to the disk, without
     * waiting; it will be synced later. A failure is ignored: sync reports it. */
    int (*write_back)(void *user, void *file, uint64_t offset, uint64_t size);
} bags_io;

/* The hooks for local files, to be wrapped in your own. Static. */
BAGS_API const bags_io *bags_io_local(void);

/* The hooks that an object uses: a member of every options struct. */
typedef struct bags_env {
    const bags_allocator *allocator; /* NULL: malloc, realloc and free */
    const bags_io *io;               /* NULL: local files */
} bags_env;

/* ========================================================================
 * >>bag
 * One file. Datasets are made of Bags; a standalone Bag is a plain, fast list of
 * blobs.
 * ====================================================================== */

typedef struct bag_reader bag_reader;
typedef struct bag_writer bag_writer;

/* Private: the first members of a bag_reader, visible here so that bag_reader_get
 * needs no call. A v1 table that is mapped, and its blobs. */
typedef struct bagi_mapped {
    const unsigned char *data;
    const unsigned char
        *table;      /* length + 1 entries, starting at the leading 0 */
    uint64_t length; /* 0 if blobs are found in another way */
    uint64_t limit;  /* no blob ends after this offset */
} bagi_mapped;

/*
 * How data that is not in memory yet will be read.
 *
 * By default the system reads ahead of every access, which is right for a few
 * gigabytes, and for any order with prefetch. RANDOM is for data much larger than
 * memory of which little is read here and there: nothing is read ahead, and a blob
 * of several pages is requested at once; data already in memory is found slightly
 * slower. SEQUENTIAL reads far ahead and drops what was read.
 */
typedef enum bags_access {
    BAGS_ACCESS_DEFAULT = 0,
    BAGS_ACCESS_RANDOM,
    BAGS_ACCESS_SEQUENTIAL
} bags_access;

/* What to do about data that is being written, or whose writer crashed. */
typedef enum bags_unfinished {
    BAGS_UNFINISHED_REFUSE = 0, /* it is an error */
    BAGS_UNFINISHED_SKIP,       /* leave it out */
    BAGS_UNFINISHED_READ        /* read what has been flushed */
} bags_unfinished;

typedef struct bag_reader_options {
    bool no_mmap;     /* read with explicit offsets instead of mapping */
    bool cache_index; /* with no_mmap: keep the table in memory, 8 bytes per
                              blob, so that a read is one system call, not two */
    bool verify_checksums; /* compare every returned blob with its checksum in
                              NAME.crc, which must exist */
    bool allow_empty_file; /* 0 bytes is an empty Bag, as granular 0.20 and 0.21
                              write it; otherwise an error, since a crash leaves
                              the same */
    bags_unfinished unfinished; /* READ: of a Bag with a journal NAME.idx, the
                                   blobs that are complete, whatever a power
                                   failure left after them. Not SKIP */
    bags_access access;
    bags_env env;
} bag_reader_options;

/*
 * Open a Bag and check its shape. Local files are mapped; a file that cannot be
 * mapped is read.
 *
 * A Bag with a file NAME.idx next to it is a split one, or is being written, or
 * its writer crashed: the blobs flushed so far are read. Open it again to see
 * more; the writer is not affected. After a power failure the journal may list
 * more blobs than exist, which is an error unless `unfinished` is READ.
 *
 * Returns the reader, to be closed with bag_reader_close, or NULL:
 *   BAGS_ERROR_MISSING   no such file; with verify_checksums: no NAME.crc
 *   BAGS_ERROR_CORRUPT   not a Bag: too short, or its table is invalid; or it ends
 *                        in a table that contradicts NAME.idx; with
 *                        verify_checksums: NAME.crc is damaged or another Bag's
 *   BAGS_ERROR_ARGUMENT  an invalid option
 *   BAGS_ERROR_LIMIT     cache_index, and the table is too large for the address
 *                        space
 *   BAGS_ERROR_IO        a system call failed; err->system is errno
 *   BAGS_ERROR_MEMORY    out of memory
 *
 * Cost: O(1), a few system calls; the table is not read (unless cache_index, or
 * unfinished READ and there is a journal).
 */
BAGS_API bag_reader *bag_reader_open(
    const char *path, const bag_reader_options *options, bags_error *err);

/* Like bag_reader_open, but for a v1 or v2 Bag in memory. The bytes are borrowed:
 * they must not change until the reader is closed. They need no alignment. */
BAGS_API bag_reader *bag_reader_open_memory(const void *data, size_t size,
    const bag_reader_options *options, bags_error *err);

/* Free a reader and invalidate its views. NULL is accepted. No thread may be using
 * it. */
BAGS_API void bag_reader_close(bag_reader *reader);

/* Number of blobs. */
BAGS_API uint64_t bag_reader_length(const bag_reader *reader);

/* Size of the Bag in bytes: of the file; if split, of the blobs and the index. */
BAGS_API uint64_t bag_reader_size(const bag_reader *reader);

/*
 * Read one blob.
 *
 * *out is valid until the reader is closed (mapped or in memory), otherwise until
 * the scratch is reused or freed. It is not copied if mapped.
 *
 *   index    0 <= index < bag_reader_length(reader)
 *   scratch  grown as needed; reuse it between calls
 *   out      the bytes; size may be 0. Empty with data NULL on failure
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE    index out of range
 *   BAGS_ERROR_CORRUPT  the table places it outside the data; with
 *                       verify_checksums: a checksum mismatch
 *   BAGS_ERROR_IO       a read failed; err->system is errno
 *   BAGS_ERROR_LIMIT    the blob is too large for the address space
 *   BAGS_ERROR_MEMORY   scratch cannot grow
 *
 * Threads: any, each with its own scratch.
 * Cost: O(1) if mapped; otherwise one read, or two if the index is not cached.
 */
BAGI_INLINE bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err);

/* Private: bag_reader_get for what is not two loads from a map, or fails: then
 * data is NULL and size is the code. By value, so that a caller's *out can stay
 * in registers. */
BAGS_API bags_view bagi_bag_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_error *err);

/* Private: false if the blob is not found in this way, or its entries are
 * invalid. */
BAGI_INLINE bool bagi_mapped_get(
    const bagi_mapped *mapped, uint64_t index, bags_view *out) {
    if (BAGI_UNLIKELY(index >= mapped->length))
        return false;
    const unsigned char *entry = mapped->table + 8 * index;
    uint64_t start = bagi_load_u64(entry), stop = bagi_load_u64(entry + 8);
    if (BAGI_UNLIKELY(stop > mapped->limit || start > stop))
        return false;
    out->data = mapped->data + start;
    out->size = (size_t)(stop - start);
    return true;
}

BAGI_INLINE bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err) {
    if (bagi_mapped_get((const bagi_mapped *)(const void *)reader, index, out))
        return BAGS_OK;
    bags_view blob = bagi_bag_get(reader, index, scratch, err);
    bags_code code = blob.data ? BAGS_OK : (bags_code)blob.size;
    out->data = blob.data;
    out->size = code ? 0 : blob.size;
    return code;
}

/*
 * Read the consecutive blobs start <= i < stop with one contiguous read.
 *
 * *out is valid until the reader is closed (mapped or in memory), otherwise until
 * the scratch is reused or freed. It is not copied if mapped. A stop past the end
 * is clamped to the length.
 *
 * Returns BAGS_OK, BAGS_ERROR_RANGE (start > stop), or what bag_reader_get
 * returns; BAGS_ERROR_CORRUPT names the first invalid blob.
 *
 * Threads: any, each with its own scratch.
 * Cost: O(stop - start) to check the entries; no copy if mapped, otherwise one
 * read, or two if the index is not cached.
 */
BAGS_API bags_code bag_reader_get_range(const bag_reader *reader,
    uint64_t start, uint64_t stop, bags_buffer *scratch, bags_range *out,
    bags_error *err);

/*
 * Read many blobs: out[i] becomes blob indices[i], for 0 <= i < count.
 *
 * Lifetime, errors and threads as for bag_reader_get. Without mmap, blobs are
 * read in file order, neighbours with one read, and a blob that is requested
 * again is read once; the scratch also holds 64 bytes per index.
 */
BAGS_API bags_code bag_reader_get_many(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch, bags_view *out,
    bags_error *err);

/*
 * Start to read blobs from the disk, all at once, and return without waiting, so
 * that reading them soon afterwards finds them in memory. Sorted indices are
 * fastest: neighbours are requested together. Errors and threads as for
 * bag_reader_get. Cost: about a microsecond per blob that is already in memory.
 */
BAGS_API bags_code bag_reader_prefetch(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch,
    bags_error *err);

#ifndef BAGS_NO_WRITER

typedef struct bag_writer_options {
    bool keep_idx; /* keep the journal NAME.idx: granular 0.22 reads it */
    bool no_sync;  /* close without waiting for stable storage */
    bool checksum; /* write NAME.crc next to it: a checksum of every blob */
    size_t buffer_size; /* bytes buffered, rounded up to a power of two of at
                           least 4 KiB; 0: 2 MiB */
    bags_env env;
} bag_writer_options;

/*
 * Create a Bag, which must not exist. While it is being written it is locked, and
 * the end offsets of its blobs are in NAME.idx next to it, so that what was
 * flushed can be read even if the process dies, and bags_recover can finish it.
 * (If the path does not end in .bag, they are in PATH.idx, which no reader finds
 * automatically.)
 *
 * Returns the writer, to be ended with bag_writer_close or bag_writer_abort, or
 * NULL:
 *   BAGS_ERROR_EXISTS   it, NAME.idx or NAME.crc already exists
 *   BAGS_ERROR_MISSING  no such directory
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: one at a time.
 */
BAGS_API bag_writer *bag_writer_open(
    const char *path, const bag_writer_options *options, bags_error *err);

/*
 * Append a blob. The bytes are copied; data may be NULL if size is 0. *index,
 * which may be NULL, receives its index.
 *
 * Returns BAGS_OK, BAGS_ERROR_IO or BAGS_ERROR_LIMIT (2^63 bytes). The writer
 * keeps its first failure, and every later call returns it.
 *
 * Cost: a copy; a system call when the buffer is full. No allocation.
 */
BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data,
    size_t size, uint64_t *index, bags_error *err);

/* Pass all buffered data to the system: it then survives the end of this process.
 * Returns BAGS_OK or BAGS_ERROR_IO. */
BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err);

/* Flush, and wait until the data is on stable storage: it then also survives a
 * power failure, and a reader with BAGS_UNFINISHED_READ finds it. Returns BAGS_OK
 * or BAGS_ERROR_IO. A failed sync ends the writer; it is never tried again. Cost:
 * three or four syncs. */
BAGS_API bags_code bag_writer_sync(bag_writer *writer, bags_error *err);

/* Number of blobs appended. */
BAGS_API uint64_t bag_writer_length(const bag_writer *writer);

/* Size in bytes that the file would have if it were closed now. */
BAGS_API uint64_t bag_writer_size(const bag_writer *writer);

/* Write the table, wait for stable storage (unless no_sync), remove the journal,
 * and free the writer, also on failure. Returns the first failure; what was
 * flushed then stays, next to its journal. NULL is accepted: BAGS_OK. */
BAGS_API bags_code bag_writer_close(bag_writer *writer, bags_error *err);

/* Remove what was written, and free the writer. NULL is accepted. */
BAGS_API void bag_writer_abort(bag_writer *writer);

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>types
 * Type strings, values in memory, and the codecs between values and blobs.
 * ====================================================================== */

#define BAGS_MAX_DIMS 64

/* Element types of arrays, with NumPy's names. */
typedef enum bags_dtype {
    BAGS_DTYPE_NONE = 0,
    BAGS_DTYPE_BOOL,
    BAGS_DTYPE_UINT8,
    BAGS_DTYPE_UINT16,
    BAGS_DTYPE_UINT32,
    BAGS_DTYPE_UINT64,
    BAGS_DTYPE_INT8,
    BAGS_DTYPE_INT16,
    BAGS_DTYPE_INT32,
    BAGS_DTYPE_INT64,
    BAGS_DTYPE_FLOAT16,
    BAGS_DTYPE_FLOAT32,
    BAGS_DTYPE_FLOAT64,
    BAGS_DTYPE_COMPLEX64,
    BAGS_DTYPE_COMPLEX128
} bags_dtype;

/* The dtype's name, "float32", and its code in NumPy's dtype.str without the byte
 * order, "f4". "" if it is not a dtype. Static. */
BAGS_API const char *bags_dtype_name(bags_dtype dtype);
BAGS_API const char *bags_dtype_code(bags_dtype dtype);

/* Bytes per element; 0 if it is not a dtype. */
BAGS_API size_t bags_dtype_size(bags_dtype dtype);

/* The unit of bytes that a change of byte order reverses: the size, but half of
 * it for complex numbers. Pass it to bags_swap_bytes. */
BAGS_API size_t bags_dtype_swap(bags_dtype dtype);

/* Parse a dtype in any of NumPy's spellings: "float32", "f4", "<f4", "single".
 * *big_endian, which may be NULL, receives true for big-endian elements (">f4").
 * Returns BAGS_DTYPE_NONE if the text is not the name of a dtype listed above. */
BAGS_API bags_dtype bags_dtype_parse(
    const char *text, size_t size, bool *big_endian);

/* The size of an array in bytes. False if it does not fit in size_t, or dtype is
 * not a dtype; *size is then untouched. */
BAGS_API bool bags_array_size(
    bags_dtype dtype, size_t dims, const uint64_t *shape, size_t *size);

/* A parsed type string. Its views point into the string. */
typedef struct bags_type {
    bags_view name;      /* "array" */
    bags_view arguments; /* "float32,64,128": without the parentheses */
    size_t count;  /* number of arguments; "q()" has one, which is empty */
    bool sequence; /* it has a trailing [] */
} bags_type;

/* Parse a type string: name or name(arg,arg), each with an optional []. *out is
 * valid as long as the text. Returns BAGS_OK or BAGS_ERROR_TYPE. */
BAGS_API bags_code bags_type_parse(
    const char *text, bags_type *out, bags_error *err);

/* Argument i, 0 <= i < type->count; otherwise an empty view. Valid as long as the
 * type's text; not NUL-terminated. */
BAGS_API bags_view bags_type_argument(const bags_type *type, size_t i);

/* Argument i as a decimal number. False if it is missing, not a number, or above
 * 2^64-1; *out is then untouched. */
BAGS_API bool bags_type_number(const bags_type *type, size_t i, uint64_t *out);

typedef enum bags_kind {
    BAGS_KIND_NONE = 0, /* no value: refused by writers */
    BAGS_KIND_BLOB,  /* data, size: an encoded blob, stored as it is, whatever
                           the field's type */
    BAGS_KIND_BYTES, /* data, size: bytes, for a codec to encode */
    BAGS_KIND_UTF8,  /* data, size: UTF-8 text; may contain NUL */
    BAGS_KIND_UINT,  /* uint: a number from 0 to 2^64-1 */
    BAGS_KIND_INT,   /* sint: a number from -2^63 to 2^63-1 */
    BAGS_KIND_ARRAY, /* data, size, dtype, dims, shape: elements in C order */
    BAGS_KIND_OBJECT /* object: defined by the codec's own header */
} bags_kind;

/*
 * A value in memory. It owns nothing. When it is written, what it points to is the
 * caller's; when it was decoded, the decoding function states how long it is valid.
 *
 * Array data is C-contiguous, in native byte order and, when decoded, aligned for
 * its dtype. shape has `dims` entries, the slowest-varying first; an array with
 * dims 0 is one element. A number is in both uint and sint if it fits both.
 */
typedef struct bags_value {
    bags_kind kind;
    bags_dtype dtype;
    uint64_t uint;
    int64_t sint;
    const void *data;
    size_t size; /* of data, in bytes */
    size_t dims;
    const uint64_t *shape;
    const void *object;
} bags_value;

/* Make values. What they point to must stay valid until the value has been used.
 * bags_utf8 takes NUL-terminated text. For bags_array, `shape` has `dims` entries
 * and `data` as many elements as their product. */
BAGS_API bags_value bags_int(int64_t number);
BAGS_API bags_value bags_uint(uint64_t number);
BAGS_API bags_value bags_utf8(const char *text);
BAGS_API bags_value bags_utf8_sized(const char *text, size_t size);
BAGS_API bags_value bags_bytes(const void *data, size_t size);
BAGS_API bags_value bags_blob(const void *data, size_t size);
BAGS_API bags_value bags_array(
    bags_dtype dtype, size_t dims, const uint64_t *shape, const void *data);

/*
 * How values of a type become blobs and back.
 *
 *   names   the types it serves, separated by spaces: "jpeg jpg"
 *   open    checks the type's arguments and makes *state, which the other three
 *           receive. The type and its text are invalid after the call. allocator
 *           is never NULL. NULL: no arguments are accepted, and state is NULL
 *   encode  makes a blob. *blob may view the value's own bytes, or `scratch`,
 *           which the codec may grow. NULL: only encoded blobs are accepted
 *   decode  makes a value, which may view the blob's bytes or `scratch`, but not
 *           the state. Several threads may call it with one state at the same
 *           time. NULL: values cannot be decoded, only blobs read
 *   close   frees the state. May be NULL
 *   user    yours
 *
 * On failure they write err (see bags_fail) and return its code; the library adds
 * the file, the field and the index in front of the message.
 */
typedef struct bags_codec {
    const char *names;
    bags_code (*open)(const struct bags_codec *codec, const bags_type *type,
        const bags_allocator *allocator, void **state, bags_error *err);
    bags_code (*encode)(void *state, const bags_value *value,
        bags_buffer *scratch, bags_view *blob, bags_error *err);
    bags_code (*decode)(void *state, bags_view blob, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void (*close)(void *state);
    void *user;
} bags_codec;

/*
 * The codecs that a program uses. Always present:
 *
 *   bytes   BAGS_KIND_BYTES, stored as given
 *   utf8    BAGS_KIND_UTF8; invalid UTF-8 is refused
 *   int     BAGS_KIND_UINT; the fewest bytes that hold it; 0 has no bytes
 *   int(N), int(N,little), int(N,big)
 *           BAGS_KIND_UINT; N bytes; a number that does not fit is refused
 *   u64     BAGS_KIND_UINT; 8 bytes
 *   i64     BAGS_KIND_INT; 8 bytes, two's complement. All five accept
 *           BAGS_KIND_UINT and BAGS_KIND_INT alike, if the number fits
 *   array(float32,64,128)
 *           BAGS_KIND_ARRAY of exactly this dtype and shape. One dimension may be
 *           -1: any
 *   array   BAGS_KIND_ARRAY of any dtype and shape, which the blob contains
 */
typedef struct bags_registry bags_registry;

/* Create a registry with the built-in codecs; free it with bags_registry_free.
 * allocator NULL: malloc. Returns NULL if out of memory. */
BAGS_API bags_registry *bags_registry_create(
    const bags_allocator *allocator, bags_error *err);

/* Add a codec, which is copied; its `names` and `user` must stay valid. A codec
 * added later precedes earlier ones of the same name. Not while a reader or writer
 * uses the registry. Returns BAGS_OK, BAGS_ERROR_ARGUMENT or BAGS_ERROR_MEMORY. */
BAGS_API bags_code bags_registry_add(
    bags_registry *registry, const bags_codec *codec, bags_error *err);

/* The codec for a type's name, or NULL. registry NULL: the built-in codecs. Valid
 * until a codec is added or the registry is freed. Threads: any. */
BAGS_API const bags_codec *bags_registry_find(
    const bags_registry *registry, bags_view name);

/* Free a registry, after the readers and writers that use it. NULL is accepted. */
BAGS_API void bags_registry_free(bags_registry *registry);

/*
 * Encode or decode one value by its type string (of a sequence, one item), so
 * that any thread can do this work: encode with bags_encode, then let the thread
 * that owns the writer append the result as a bags_blob.
 *
 * The result is valid as long as the input, and until the scratch is reused or
 * freed. registry NULL: the built-in codecs.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_TYPE     invalid type string; no codec for it
 *   BAGS_ERROR_VALUE    bags_encode: the type cannot hold the value
 *   BAGS_ERROR_CORRUPT, BAGS_ERROR_LIMIT
 *                       bags_decode: not a blob of this type; too large to decode
 *   BAGS_ERROR_MEMORY   out of memory
 *
 * Threads: any, each with its own scratch.
 * Cost: the codec's, and opening it for its arguments.
 */
BAGS_API bags_code bags_encode(const bags_registry *registry, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob,
    bags_error *err);
BAGS_API bags_code bags_decode(const bags_registry *registry, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err);

/* ========================================================================
 * >>writer
 * Datasets, in one directory or in shards; finishing what crashed writers left.
 * ====================================================================== */

/* A field: its name, which becomes the file NAME.bag, and its type. */
typedef struct bags_field {
    const char *name;
    const char *type;
} bags_field;

#ifndef BAGS_NO_WRITER

typedef struct bags_writer bags_writer;

typedef struct bags_writer_options {
    uint64_t shard_size;   /* bytes per shard; 0: no limit */
    uint64_t shard_length; /* datapoints per shard; 0: no limit */
    uint64_t
        shard_start; /* this worker's index, 0 <= shard_start < shard_stop */
    uint64_t shard_stop; /* the number of workers; 0: one */
    bool sharded;        /* write shards even if all four are 0 */
    bool resume;   /* continue what this worker wrote before, if anything */
    bool checksum; /* write NAME.crc next to each Bag: 4 bytes per blob. A
                              resumed shard that was started with checksums keeps
                              them in any case; one that was started without gets
                              them when it is finished */
    bool keep_idx; /* keep the .idx files: granular 0.22 then reads a
                              dataset without sequences */
    bool no_sync;  /* finish shards without waiting for stable storage */
    size_t buffer_size; /* bytes buffered per field, rounded up to a power of
                              two of at least 4 KiB; 0: 2 MiB */
    const bags_registry *registry; /* NULL: built-in types. Must outlive the
                                      writer */
    bags_env env;
} bags_writer_options;

/*
 * Start a dataset, or this worker's shards of one.
 *
 * Unsharded: `path` is created and must not exist. Sharded (`sharded`, or any of
 * the four shard numbers nonzero): the directories path/000000, ... are created
 * when their first datapoint arrives; a worker that appends nothing creates
 * nothing. Parent directories are created as needed. A shard ends after the
 * datapoint with which its Bags reach shard_size bytes, or its length reaches
 * shard_length. Fields may be in any order; on disk they are sorted by name.
 *
 * With `resume`, which requires the fields, shard_start and shard_stop that were
 * used before, an unfinished shard of this worker is recovered, as by bags_recover,
 * and continued. Finished shards are never changed; the next shard number follows
 * this worker's last. A finished unsharded dataset cannot be resumed.
 *
 * Returns the writer, to be ended with bags_writer_close or bags_writer_abort, or
 * NULL:
 *   BAGS_ERROR_EXISTS    the dataset, or this worker's first shard, exists; with
 *                        resume: it is finished, or has other fields
 *   BAGS_ERROR_LOCKED    resume, and a running writer holds this worker's shard
 *   BAGS_ERROR_FIELD     a name is duplicate, or cannot be a file name on every
 *                        system: refs, a leading '.', control characters,
 *                        / \ : * ? " < > |, device names such as "con"
 *   BAGS_ERROR_TYPE      an invalid type string, or invalid arguments of a built-in
 *                        type, such as int(0) or array(float31,2); types without a
 *                        codec are accepted
 *   BAGS_ERROR_ARGUMENT  shard_start is not below shard_stop
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Threads: one at a time.
 */
BAGS_API bags_writer *bags_writer_open(const char *path,
    const bags_field *fields, size_t count, const bags_writer_options *options,
    bags_error *err);

/* The values of one field in a datapoint. */
typedef struct bags_entry {
    const char *field;
    const bags_value *values; /* one; of a sequence, its items */
    size_t count;             /* 1; of a sequence, the number of items, or 0 */
} bags_entry;

/*
 * Append a datapoint: one entry for every field, in any order (fastest: the order
 * of bags_writer_open). All of it is written, or nothing.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD     a field is missing, unknown or duplicate
 *   BAGS_ERROR_TYPE      no codec for a type (a bags_blob needs none)
 *   BAGS_ERROR_VALUE     a value that its type cannot hold; not exactly one value
 *   BAGS_ERROR_STATE     a datapoint was begun and not ended
 *   BAGS_ERROR_ARGUMENT  an entry without a field name
 *   BAGS_ERROR_EXISTS    the next shard's directory exists: two workers have the
 *                        same shard_start
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * A refused datapoint does not stop the writer. If err is NULL, close returns the
 * first such error, so that a loop may check once. After EXISTS, IO or MEMORY while
 * writing, every later call returns the same error.
 *
 * Cost: the codecs', and a copy of the blobs. No allocation.
 */
BAGS_API bags_code bags_writer_append(bags_writer *writer,
    const bags_entry *entries, size_t count, bags_error *err);

/*
 * Append a datapoint in pieces, so that a long sequence need not be in memory:
 *
 *     bags_writer_begin(writer, err);
 *     bags_writer_set(writer, "caption", &caption, err);
 *     while (next_frame(&frame))
 *         bags_writer_push(writer, "frames", &frame, err);
 *     bags_writer_end(writer, err);
 *
 * set gives a plain field its value, push adds an item to a sequence; a sequence
 * without a push is empty. end appends the datapoint, cancel drops it. After a
 * failed call the others fail too, and end drops the datapoint and returns the
 * failure. Errors as for bags_writer_append.
 */
BAGS_API bags_code bags_writer_begin(bags_writer *writer, bags_error *err);
BAGS_API bags_code bags_writer_set(bags_writer *writer, const char *field,
    const bags_value *value, bags_error *err);
BAGS_API bags_code bags_writer_push(bags_writer *writer, const char *field,
    const bags_value *item, bags_error *err);
BAGS_API bags_code bags_writer_end(bags_writer *writer, bags_error *err);
BAGS_API void bags_writer_cancel(bags_writer *writer);

/* Pass every complete datapoint to the system: it then survives the end of this
 * process. Returns BAGS_OK or BAGS_ERROR_IO. */
BAGS_API bags_code bags_writer_flush(bags_writer *writer, bags_error *err);

/* Flush, and wait until every complete datapoint of the unfinished shard is on
 * stable storage: it then also survives a power failure. (With no_sync, earlier
 * shards may not.) Returns BAGS_OK or BAGS_ERROR_IO. A failed sync ends the
 * writer; it is never tried again. Cost: about five syncs, and two per field. */
BAGS_API bags_code bags_writer_sync(bags_writer *writer, bags_error *err);

/* Number of datapoints appended, in all shards of this writer. */
BAGS_API uint64_t bags_writer_length(const bags_writer *writer);

/* Number of datapoints of this worker that existed when the writer was opened with
 * `resume`. */
BAGS_API uint64_t bags_writer_resumed(const bags_writer *writer);

/* Number of shards that this writer has finished since it was opened; 0 for an
 * unsharded dataset until it is closed. */
BAGS_API uint64_t bags_writer_shards(const bags_writer *writer);

/*
 * Finish the shard, and free the writer, also on failure. On success the dataset
 * is complete and, unless no_sync, on stable storage. After a failure of the
 * system the shard stays without its spec.json, so that no reader takes it for
 * finished, unless it was complete and only waiting for stable storage failed.
 * NULL is accepted: BAGS_OK.
 *
 * Returns the first failure; or the error of the first refused datapoint that was
 * not reported, with the number of those: then every other datapoint is written,
 * and the dataset is complete.
 */
BAGS_API bags_code bags_writer_close(bags_writer *writer, bags_error *err);

/* Remove the unfinished shard, and free the writer. Finished shards stay, and of a
 * resumed shard what was there before. NULL is accepted. */
BAGS_API void bags_writer_abort(bags_writer *writer);

/* What bags_recover did with a shard, or would do. */
typedef enum bags_recovery {
    BAGS_RECOVERY_NOTHING,  /* it is finished */
    BAGS_RECOVERY_FINISHED, /* what was flushed was made a complete shard */
    BAGS_RECOVERY_REMOVED,  /* it contained no datapoint */
    BAGS_RECOVERY_LOCKED,   /* a running writer holds it: unchanged */
    BAGS_RECOVERY_FAILED    /* unchanged; `reason` is the error */
} bags_recovery;

/* Its texts are valid during the call that receives it. */
typedef struct bags_recovered {
    const char *path; /* of the shard, or the standalone Bag */
    bags_recovery action;
    uint64_t length;    /* datapoints kept; of a standalone Bag, blobs */
    uint64_t truncated; /* bytes removed after them, in all files */
    const char *reason; /* why the datapoints end there, or the error; or "" */
} bags_recovered;

typedef struct bags_recover_options {
    bool dry_run;  /* report, but change nothing */
    bool keep_idx; /* as in bags_writer_options */
    bool no_sync;
    uint64_t shard_start, shard_stop; /* the shards of one worker; 0, 0: all */
    /* Called for every shard, in order. May be NULL. */
    void (*each)(void *user, const bags_recovered *shard);
    void *user;
    bags_env env;
} bags_recover_options;

/* Numbers of shards, by what was done with them. */
typedef struct bags_recover_report {
    uint64_t finished_before, finished_now, removed, locked, failed;
    uint64_t length; /* datapoints (of a standalone Bag, blobs) kept in shards
                           that were finished now */
    uint64_t truncated; /* bytes removed */
} bags_recover_report;

/*
 * Finish what crashed writers left: a dataset, all its unfinished shards, or a
 * standalone Bag.
 *
 * Of an unfinished shard, the datapoints up to the first one that is not complete
 * in every file are kept; the rest is truncated, and the shard is finished. A shard
 * without a datapoint is removed (only the files that a writer creates; anything
 * else stays, and so does its directory). Finished shards, shards locked by a
 * running writer, directories without a writer's record (spec.json.partial), and
 * shards whose damage a crash cannot explain are left unchanged. It may be
 * interrupted and repeated. After a failed sync, check the disk and restart the
 * machine first: until then the system may return bytes that the disk lost.
 *
 * A standalone Bag that has its journal NAME.idx and no table receives a table
 * after its complete blobs. (A split Bag looks the same and becomes v1.) One whose
 * table and journal contradict each other is left unchanged and is an error.
 *
 * Returns BAGS_OK, or the first failure, after all other shards were processed:
 *   BAGS_ERROR_MISSING   no such path, or not a dataset
 *   BAGS_ERROR_LOCKED    a running writer holds a shard
 *   BAGS_ERROR_CORRUPT   a shard cannot be recovered
 *   BAGS_ERROR_ARGUMENT  shard_start is not below shard_stop; a file that belongs
 *                        to a dataset, or whose name does not end in .bag
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 * *report, which may be NULL, is always written. Memory: about 256 KiB per field.
 */
BAGS_API bags_code bags_recover(const char *path,
    const bags_recover_options *options, bags_recover_report *report,
    bags_error *err);

typedef struct bags_finalize_options {
    bool no_sync; /* do not wait for stable storage */
    bags_env env;
} bags_finalize_options;

/*
 * Close the gaps in a sharded dataset's numbers by renaming shards to 000000,
 * 000001, ...; Python readers need that. Order and content do not change.
 * *renamed, which may be NULL, receives how many were renamed.
 *
 * If it is interrupted, the dataset is intact with other gaps; repeat it. Call it
 * when all workers are done and no reader has the dataset open.
 *
 * Returns BAGS_OK, BAGS_ERROR_UNFINISHED (a shard is unfinished; nothing was
 * renamed), BAGS_ERROR_MISSING (no shards), BAGS_ERROR_IO or BAGS_ERROR_MEMORY.
 */
BAGS_API bags_code bags_finalize(const char *path,
    const bags_finalize_options *options, uint64_t *renamed, bags_error *err);

/* What bags_checksum did with a Bag. */
typedef struct bags_checksummed {
    const char *path; /* of the Bag; valid during the call */
    bool kept;        /* it had checksums; they were not checked */
    uint64_t length;  /* blobs */
    uint64_t size;    /* bytes of the Bag */
} bags_checksummed;

typedef struct bags_checksum_options {
    bool replace; /* replace existing checksums: what the files contain now then
                     counts as correct */
    bool no_sync; /* do not wait for stable storage */
    uint64_t shard_start, shard_stop; /* the shards of one worker; 0, 0: all */
    /* Called for every Bag when it is done. May be NULL. */
    void (*each)(void *user, const bags_checksummed *bag);
    void *user;
    bags_env env;
} bags_checksum_options;

/* Numbers of Bags that received checksums, and that had them. */
typedef struct bags_checksum_report {
    uint64_t made, kept;
    uint64_t blobs, size; /* of those that received them; size in bytes */
} bags_checksum_report;

/*
 * Write checksums (NAME.crc) next to the Bags of a finished dataset, or next to a
 * standalone Bag, of any variant. No other file is changed. It may be interrupted
 * and repeated.
 *
 * Returns BAGS_OK, or the first failure, at which it stops:
 *   BAGS_ERROR_MISSING     no such file or dataset
 *   BAGS_ERROR_UNFINISHED  a shard is unfinished; nothing was written
 *   BAGS_ERROR_CORRUPT     a Bag's table, or spec.json, is invalid
 *   BAGS_ERROR_ARGUMENT    a file that belongs to a dataset; shard_start is not
 *                          below shard_stop
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 * *report, which may be NULL, is always written. Cost: reads every byte.
 */
BAGS_API bags_code bags_checksum(const char *path,
    const bags_checksum_options *options, bags_checksum_report *report,
    bags_error *err);

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>reader
 * A dataset, or all its shards, as one list of datapoints.
 * ====================================================================== */

typedef struct bags_reader bags_reader;

typedef struct bags_reader_options {
    uint64_t shard_start; /* read the shards of worker shard_start ... */
    uint64_t shard_stop;  /* ... of shard_stop workers; 0: all. An unsharded
                              dataset is shard 0 */
    bool allow_gaps;      /* read the others if shards are missing */
    bags_unfinished unfinished; /* of unfinished shards, and of a split dataset
                                   whose fields differ in length */
    bool no_mmap;     /* read with explicit offsets instead of mapping */
    bool cache_index; /* with no_mmap: keep the tables of used files in memory,
                              8 bytes per blob */
    bool
        verify_checksums; /* compare every returned blob, the refs and spec.json
                              with their checksums; every NAME.crc must exist */
    size_t max_files;     /* open files, with no_mmap; 0: 64 */
    size_t max_maps;      /* mapped files; those beyond are read; 0: 16384 */
    bags_access access;   /* how data that is not in memory will be read */
    const bags_registry *registry; /* NULL: built-in types. Must outlive the
                                      reader */
    bags_env env;
} bags_reader_options;

/*
 * Open a dataset, sharded or not.
 *
 * With unfinished READ, unfinished shards are included with the datapoints flushed
 * so far: those that bags_recover would keep (without verify_checksums, also
 * those whose checksums differ). The reader shows what there was at this call; open
 * again to see more. Writers are not affected, and the reader stays valid when they
 * finish. If a writer aborts, reading its shard fails. Shards that several workers
 * write have gaps most of the time: see allow_gaps.
 *
 * Returns the reader, to be closed with bags_reader_close, or NULL:
 *   BAGS_ERROR_MISSING     no such directory, or not a dataset
 *   BAGS_ERROR_UNFINISHED  a shard is unfinished; or a split dataset's fields
 *                          differ in length
 *   BAGS_ERROR_GAP         shards are missing; the message lists them
 *   BAGS_ERROR_CORRUPT     spec.json or a Bag is invalid; shards with different
 *                          specs; two shards with one number
 *   BAGS_ERROR_FIELD       spec.json names a file outside the dataset
 *   BAGS_ERROR_LIMIT       spec.json or a shard number is too large
 *   BAGS_ERROR_ARGUMENT    shard_start is not below shard_stop
 *   BAGS_ERROR_IO, BAGS_ERROR_MEMORY
 *
 * Cost: a few system calls per shard (split: per field). No table is read, and no
 * file stays open. Of an unfinished shard, journals and refs are read, 8 bytes per
 * blob stay in memory, and it is never mapped.
 */
BAGS_API bags_reader *bags_reader_open(
    const char *path, const bags_reader_options *options, bags_error *err);

/* Free a reader and invalidate its views; rows stay the caller's to free. NULL is
 * accepted. No thread may be using it. */
BAGS_API void bags_reader_close(bags_reader *reader);

/* Number of datapoints in all shards. */
BAGS_API uint64_t bags_reader_length(const bags_reader *reader);

/* The fields, sorted by name; *count of them. A field's index in this array is its
 * number in every other function. Valid until the reader is closed. */
BAGS_API const bags_field *bags_reader_fields(
    const bags_reader *reader, size_t *count);

/* The number of the field with this name, in *field. Returns BAGS_OK or
 * BAGS_ERROR_FIELD. */
BAGS_API bags_code bags_reader_field(const bags_reader *reader,
    const char *name, size_t *field, bags_error *err);

/* A field's parsed type, or NULL if there is no such field. Valid until the reader
 * is closed. */
BAGS_API const bags_type *bags_reader_type(
    const bags_reader *reader, size_t field);

typedef struct bags_shard {
    uint64_t number; /* the shard's name as a number; 0 if unsharded */
    uint64_t start;  /* the index of its first datapoint */
    uint64_t length; /* its number of datapoints */
    bool unfinished; /* only with BAGS_UNFINISHED_READ */
} bags_shard;

/* The shards that are read, in order; *count of them, 1 for an unsharded dataset.
 * Gaps show in their numbers. Valid until the reader is closed. */
BAGS_API const bags_shard *bags_reader_shards(
    const bags_reader *reader, size_t *count);

typedef struct bags_info {
    bool sharded;       /* a directory of shards */
    uint64_t skipped;   /* unfinished shards that are not read */
    uint64_t checksums; /* shards that have checksums */
    uint64_t size;      /* bytes of all Bags, refs (and .idx if split) included,
                             spec.json and checksums not */
} bags_info;

typedef struct bags_field_info {
    uint64_t blobs; /* blobs of the field in all shards, used or not */
    uint64_t size;  /* bytes of these blobs */
} bags_field_info;

/* Describe a dataset. fields: NULL, or an array with an element for each field,
 * to be filled. Returns BAGS_OK, BAGS_ERROR_CORRUPT, BAGS_ERROR_IO or
 * BAGS_ERROR_MEMORY. Threads: any. Cost: opens every file. */
BAGS_API bags_code bags_reader_info(const bags_reader *reader, bags_info *info,
    bags_field_info *fields, bags_error *err);

/*
 * What to read of a datapoint: a field by its number; of a sequence, if `slice` is
 * true, only the items start, start + step, ... below stop. If `slice` is false,
 * the other three must be 0. {image} selects all of the field.
 */
typedef struct bags_select {
    size_t field;
    bool slice;
    uint64_t start, stop; /* see "Ranges" at the top; stop may be UINT64_MAX */
    uint64_t step;        /* 0: 1 */
} bags_select;

/* Select all of a field; or a slice of a sequence, empty if start equals stop. */
BAGS_API bags_select bags_whole(size_t field);
BAGS_API bags_select bags_slice(
    size_t field, uint64_t start, uint64_t stop, uint64_t step);

/* Private: what a row holds of one selected field. */
struct bagi_slot {
    size_t field;
    size_t length;
    bags_view *items;
    bags_buffer value; /* of bags_row_value */
    size_t capacity;
    bags_buffer data;
    uint64_t budget;
};

/* The scratch of a reader's calls, and their result. Start it as {0}; use one per
 * thread, with any number of readers; free it with bags_row_free. It keeps the
 * allocator of the first reader that used it. Its members are private. */
typedef struct bags_row {
    const bags_reader *reader;
    uint64_t index;
    uint64_t shard;
    size_t length, capacity;
    struct bagi_slot *slots;
    bags_buffer items;   /* of all slots */
    bags_buffer data;    /* blobs that are not mapped */
    bags_buffer scratch; /* refs */
    bags_buffer spans;
    bags_buffer refs;
    bags_buffer list;
} bags_row;

/*
 * Read a datapoint.
 *
 * The row holds the result: slot i for selects[i]. Its views are valid until the
 * reader is closed (mapped), otherwise until the row is reused or freed. They are
 * not copied if mapped. On failure the row is empty.
 *
 *   index    0 <= index < bags_reader_length(reader)
 *   selects  `count` selections, each field at most once; NULL: all fields, whole,
 *            in order
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE     index out of range; start > stop; a slice of a plain field
 *   BAGS_ERROR_FIELD     no such field, or selected twice
 *   BAGS_ERROR_ARGUMENT  start, stop or step without slice
 *   BAGS_ERROR_CORRUPT   refs.bag or a table is invalid; the message names file and
 *                        index; with verify_checksums: a checksum mismatch
 *   BAGS_ERROR_IO        a read failed; err->system is errno
 *   BAGS_ERROR_LIMIT     too large for the address space
 *   BAGS_ERROR_MEMORY    the row cannot grow
 *
 * Threads: any, each with its own row.
 * Cost: if mapped, a few nanoseconds per field and item, no system call and, once
 * the row has grown, no allocation. A file is opened when it is first used.
 * Otherwise one contiguous read per field, and one or two for its table.
 */
BAGS_API bags_code bags_reader_get(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err);

/* Read one blob of a datapoint: of a plain field as item 0, or an item of a
 * sequence. *out has the lifetime of a row's views; on failure it is empty with
 * data NULL. The row is scratch and is empty afterwards. Errors and threads as for
 * bags_reader_get; BAGS_ERROR_RANGE also for the item. Cost: like bags_reader_get
 * of one item, but shorter. */
BAGS_API bags_code bags_reader_get_blob(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, bags_row *row, bags_view *out,
    bags_error *err);

/* Read a plain field of the datapoints start <= i < stop. The row then has one slot
 * with an item per datapoint. A stop past the end is clamped to the length.
 * Lifetime, errors and threads as for bags_reader_get. Cost: O(stop - start);
 * without mmap, one contiguous read per shard. */
BAGS_API bags_code bags_reader_get_range(const bags_reader *reader,
    uint64_t start, uint64_t stop, size_t field, bags_row *row,
    bags_error *err);

/* Read a plain field of many datapoints: the row then has one slot with item i for
 * indices[i], 0 <= i < count. Without mmap, blobs are read in file order, neighbours
 * with one read. Lifetime, errors and threads as for bags_reader_get. */
BAGS_API bags_code bags_reader_get_many(const bags_reader *reader,
    const uint64_t *indices, size_t count, size_t field, bags_row *row,
    bags_error *err);

/* Start to read datapoints from the disk, all at once, so that reading them soon
 * afterwards finds them in memory. It waits for the refs and tables on the way, not
 * for the blobs. selects as for bags_reader_get, `select_count` of them. The row is
 * scratch and is empty afterwards. Errors and threads as for bags_reader_get. Cost:
 * about a microsecond per blob that is already in memory. */
BAGS_API bags_code bags_reader_prefetch(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count, bags_row *row, bags_error *err);

/* How many items a sequence has in a datapoint, in *count; 1 for a plain field. No
 * blob is read. The row is scratch and is empty afterwards. Errors and threads as
 * for bags_reader_get. */
BAGS_API bags_code bags_reader_items(const bags_reader *reader, uint64_t index,
    size_t field, bags_row *row, uint64_t *count, bags_error *err);

/* A plain field of all datapoints of a shard as one array. */
typedef struct bags_column {
    const unsigned char *data; /* contiguous blobs */
    uint64_t length;           /* number of blobs */
    uint64_t size;             /* bytes of all */
    uint64_t item_size;      /* bytes of each, if all are equal; otherwise 0 */
    const uint64_t *offsets; /* length + 1: blob i is the bytes offsets[i] ..
                                  offsets[i + 1] of data, like Arrow's
                                  LargeBinary. NULL if item_size is not 0 */
} bags_column;

/*
 * View a plain field of shard i, 0 <= i < the count of bags_reader_shards, as a
 * column: an array [length, ...], without a copy, if all blobs have one size.
 *
 * *out has the lifetime of a row's views. The row is scratch and is empty
 * afterwards. If mapped, at most the offsets are copied, 8 bytes per blob;
 * otherwise everything is. The data has no alignment.
 *
 * Returns BAGS_OK, what bags_reader_get returns, or
 *   BAGS_ERROR_RANGE  no such shard; the field is a sequence; or its blobs are not
 *                     in the order of the datapoints: use bags_reader_get_range
 *
 * Threads: any, each with its own row. Cost: O(length) to check the table and,
 * the first time, the shard's refs; afterwards bags_reader_get of this field
 * alone does not read refs either.
 */
BAGS_API bags_code bags_reader_column(const bags_reader *reader, uint64_t shard,
    size_t field, bags_row *row, bags_column *out, bags_error *err);

/* Number of items in a slot: 1 for a plain field; 0 if there is no such slot. */
BAGI_INLINE size_t bags_row_length(const bags_row *row, size_t slot) {
    return slot < row->length ? row->slots[slot].length : 0;
}

/* An item's encoded blob; an empty view if there is no such item. Valid as
 * described for bags_reader_get. Cost: O(1). */
BAGI_INLINE bags_view bags_row_bytes(
    const bags_row *row, size_t slot, size_t item) {
    bags_view none = {NULL, 0};
    if (BAGI_UNLIKELY(item >= bags_row_length(row, slot)))
        return none;
    return row->slots[slot].items[item];
}

/*
 * Decode an item with the codec of its field's type. The reader must be open.
 *
 * *out is valid as long as the item's blob, and until the scratch is reused or
 * freed. scratch NULL: the slot's own, which is reused by the next bags_row_value
 * of the same slot and by every other use of the row.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_RANGE   no such slot or item
 *   BAGS_ERROR_TYPE    no codec for the type: use bags_row_bytes
 *   BAGS_ERROR_CORRUPT, BAGS_ERROR_VALUE, BAGS_ERROR_LIMIT
 *                      not a blob of this type, or too large to decode
 *   BAGS_ERROR_MEMORY  the scratch cannot grow
 *
 * Threads: any, each with its own row and scratch. Cost: the codec's. Built-in
 * codecs copy only arrays that are not aligned for their dtype, or not in native
 * byte order.
 */
BAGS_API bags_code bags_row_value(bags_row *row, size_t slot, size_t item,
    bags_buffer *scratch, bags_value *out, bags_error *err);

/* Free a row's memory and make it {0} again. NULL is accepted. */
BAGS_API void bags_row_free(bags_row *row);

#ifndef BAGS_NO_VERIFY

/* ========================================================================
 * >>faults
 * Everything that is wrong with a dataset, not only the first fault.
 * ====================================================================== */

/* What the index of a bags_fault counts. */
typedef enum bags_fault_kind {
    BAGS_FAULT_FILE,     /* nothing: the file, shard or dataset as a unit */
    BAGS_FAULT_BLOB,     /* blobs of the field */
    BAGS_FAULT_DATAPOINT /* datapoints of the shard */
} bags_fault_kind;

/* A fault found by bags_verify. Its texts are valid during the call that receives
 * it. */
typedef struct bags_fault {
    const char *path;  /* the shard's directory, or the dataset's; a standalone
                          Bag's file */
    const char *field; /* a field's name, or "refs"; NULL: not about one Bag */
    bags_fault_kind kind;
    uint64_t index; /* of the blob or datapoint in this shard */
    uint64_t item;  /* of a sequence, the item that does not decode; else 0 */
    uint64_t
        offset; /* of the invalid bytes in field.bag (of an entry of a split
                          table: in field.idx); 0 for the whole file */
    bags_code code;
    const char
        *message; /* all of the above in words, like bags_error.message */
} bags_fault;

typedef struct bags_verify_options {
    bool
        quick; /* only what costs O(1) per file: sizes, spec.json, and the first
                    and last entries of every table and of refs */
    bool
        decode; /* also decode every blob with its field's codec. Not with quick */
    bool allow_gaps;       /* missing shards are not a fault */
    bool allow_empty_file; /* see bag_reader_options */
    bags_unfinished
        unfinished; /* SKIP: unfinished shards, and fields of unequal
                                   length if split, are not a fault. Not READ */
    uint64_t shard_start, shard_stop; /* the shards of one worker; 0, 0: all */
    uint64_t part, parts; /* do only part `part` of `parts` of the work, so that
                             threads or machines can share it; a Bag is the
                             smallest unit. 0, 0: all */
    uint64_t max_faults;  /* how many faults `each` receives; more are only
                             counted. 0: 1000 */
    /* Called for every fault, by the thread that called bags_verify. May be
     * NULL. */
    void (*each)(void *user, const bags_fault *fault);
    /* Called from time to time with the bytes read since its last call. May be
     * NULL. */
    void (*progress)(void *user, uint64_t bytes);
    void *user;
    const bags_registry *registry; /* for decode. NULL: built-in types */
    bags_env env;
} bags_verify_options;

/* What was checked. The reports of all parts add up to that of the whole. */
typedef struct bags_verify_report {
    uint64_t shards;     /* finished shards; 1 for an unsharded dataset */
    uint64_t unfinished; /* unfinished shards, whether a fault or not */
    uint64_t files;
    uint64_t blobs; /* of the fields */
    uint64_t datapoints;
    uint64_t bytes;     /* read from the files */
    uint64_t undecoded; /* with decode: blobs of types without a codec */
    uint64_t bags; /* Bags whose bytes were to be compared with checksums */
    uint64_t checksums; /* those of them that have checksums */
    uint64_t faults;    /* found, whether passed to `each` or not */
} bags_verify_report;

/*
 * Find every fault in a dataset, or a standalone Bag: in every spec.json, every
 * entry of every table, every row of refs.bag and what it refers to, every byte
 * that has a checksum and, with `decode`, every value. Missing or duplicate shards,
 * unfinished ones and those with another spec than the first valid one are faults
 * too. It continues after a fault, also after a missing or unreadable file. One
 * damaged byte may be reported at several places where it shows.
 *
 * Returns BAGS_OK, or the code of the first fault, or of what ended the work:
 * BAGS_ERROR_MISSING (no such path, or not a dataset), BAGS_ERROR_ARGUMENT (an
 * invalid option), BAGS_ERROR_MEMORY, BAGS_ERROR_IO (the directory cannot be
 * listed). *report, which may be NULL, is always written.
 *
 * Files are read, not mapped. Memory: about 512 KiB, 16 bytes per shard, 64 per
 * field, and with decode one blob. Cost: reads all tables and refs; with checksums
 * or decode, the blobs too.
 */
BAGS_API bags_code bags_verify(const char *path,
    const bags_verify_options *options, bags_verify_report *report,
    bags_error *err);

#endif /* BAGS_NO_VERIFY */

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
 * pointer can be published to other threads without a lock), bagi_mutex,
 * BAGI_WINDOWS_PATHS (1: paths follow the rules of Windows), bagi_system_text,
 * and the functions that the local bags_io at its end is made of.
 * ====================================================================== */

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#endif
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#include <windows.h>
#define BAGI_WINDOWS_PATHS 1
#else
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#define BAGI_WINDOWS_PATHS 0
#endif

#if defined(__GNUC__) || defined(__clang__)
#define BAGI_ATOMIC 1
#define BAGI_LOAD(slot) __atomic_load_n(slot, __ATOMIC_ACQUIRE)
#define BAGI_STORE(slot, value) __atomic_store_n(slot, value, __ATOMIC_RELEASE)
#define BAGI_COLD __attribute__((cold, noinline))
#define BAGI_APART __attribute__((noinline)) /* keep a fast caller small */
#define BAGI_WITHIN BAGI_ALWAYS inline
#else
#if defined(_MSC_VER)
#define BAGI_ATOMIC 1
#define BAGI_LOAD(slot) ReadPointerAcquire((PVOID const volatile *)(slot))
#define BAGI_STORE(slot, value)                                                \
    WritePointerRelease((PVOID volatile *)(slot), (PVOID)(value))
#else
#define BAGI_ATOMIC 0
#define BAGI_LOAD(slot) (*(slot))
#define BAGI_STORE(slot, value) (*(slot) = (value))
#endif
#define BAGI_COLD
#define BAGI_APART
#define BAGI_WITHIN inline
#endif

/* The kernel moves at most 2 GiB a call; some systems refuse to try more. */
#define BAGI_LOCAL_MOST ((size_t)1 << 30)

#if defined(_WIN32)
/* ---- Windows ----
 * Paths become UTF-16 and absolute, and long ones get \\?\ before them. Every
 * file is opened so that others may read, write, rename and remove it. */

typedef SRWLOCK bagi_mutex;

static bool bagi_mutex_init(bagi_mutex *mutex) {
    InitializeSRWLock(mutex);
    return true;
}

static void bagi_mutex_free(bagi_mutex *mutex) { (void)mutex; }

static void bagi_lock(bagi_mutex *mutex) { AcquireSRWLockExclusive(mutex); }

static void bagi_unlock(bagi_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }

/* The C library has no words for the newer errno values. */
static const char *bagi_system_text(int error, char *room, size_t size) {
    switch (error) {
    case EWOULDBLOCK:
        return "Resource temporarily unavailable";
    case ELOOP:
        return "Too many levels of symbolic links";
    case EOVERFLOW:
        return "Value too large for defined data type";
    case ECANCELED:
        return "Operation canceled";
    default:
        return strerror_s(room, size, error) == 0 ? room : "unknown error";
    }
}

/* The errno value for what the last call said. */
static int bagi_windows_error(void) {
    static const struct {
        DWORD from;
        int to;
    } known[] = {{ERROR_FILE_NOT_FOUND, ENOENT}, {ERROR_PATH_NOT_FOUND, ENOENT},
        {ERROR_INVALID_DRIVE, ENOENT}, {ERROR_BAD_PATHNAME, ENOENT},
        {ERROR_BAD_NETPATH, ENOENT}, {ERROR_BAD_NET_NAME, ENOENT},
        {ERROR_DIRECTORY, ENOTDIR}, {ERROR_ACCESS_DENIED, EACCES},
        {ERROR_PRIVILEGE_NOT_HELD, EACCES}, {ERROR_WRITE_PROTECT, EROFS},
        {ERROR_CURRENT_DIRECTORY, EBUSY}, {ERROR_BUSY, EBUSY},
        {ERROR_SHARING_VIOLATION, EBUSY}, {ERROR_USER_MAPPED_FILE, EBUSY},
        {ERROR_DELETE_PENDING, EBUSY}, {ERROR_LOCK_VIOLATION, EWOULDBLOCK},
        {ERROR_IO_PENDING, EWOULDBLOCK}, {ERROR_FILE_EXISTS, EEXIST},
        {ERROR_ALREADY_EXISTS, EEXIST}, {ERROR_DIR_NOT_EMPTY, ENOTEMPTY},
        {ERROR_NOT_ENOUGH_MEMORY, ENOMEM}, {ERROR_OUTOFMEMORY, ENOMEM},
        {ERROR_COMMITMENT_LIMIT, ENOMEM}, {ERROR_DISK_FULL, ENOSPC},
        {ERROR_HANDLE_DISK_FULL, ENOSPC},
        {1295 /* ERROR_DISK_QUOTA_EXCEEDED */, ENOSPC},
        {ERROR_FILE_TOO_LARGE, EFBIG}, {ERROR_TOO_MANY_OPEN_FILES, EMFILE},
        {ERROR_NO_SYSTEM_RESOURCES, EMFILE}, {ERROR_NOT_SAME_DEVICE, EXDEV},
        {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
        {ERROR_BUFFER_OVERFLOW, ENAMETOOLONG}, {ERROR_INVALID_NAME, EINVAL},
        {ERROR_INVALID_PARAMETER, EINVAL}, {ERROR_INVALID_HANDLE, EBADF},
        {ERROR_NO_UNICODE_TRANSLATION, EILSEQ},
        {ERROR_CANT_RESOLVE_FILENAME, ELOOP}, {ERROR_NOT_SUPPORTED, ENOSYS},
        {ERROR_INVALID_FUNCTION, ENOSYS}};
    DWORD error = GetLastError();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].from == error)
            return known[i].to;
    return EIO;
}

#define BAGI_WIDE_LONG 240   /* less than MAX_PATH, as directories need */
#define BAGI_WIDE_MOST 32700 /* above, no call takes it */
#define BAGI_WIDE_PREFIX 8   /* room for \\?\UNC\ */
#define BAGI_WIDE_ENDING 2   /* room for \*, which lists a directory */

/* Put \\?\ before an absolute path, which lifts the limit on its length. */
static void bagi_wide_lengthen(wchar_t *path, size_t size) {
    static const wchar_t share[] = {'\\', '\\', '?', '\\', 'U', 'N', 'C', '\\'};
    bool network = path[0] == '\\' && path[1] == '\\';
    if (network && (path[2] == '?' || path[2] == '.'))
        return;
    size_t front = network ? 8 : 4, skip = network ? 2 : 0;
    memmove(path + front, path + skip, (size + 1 - skip) * sizeof *path);
    memcpy(path, share, front * sizeof *path);
}

/* A path for the system's calls; release it with free. */
static int bagi_wide(const char *path, wchar_t **out) {
    int size =
        MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    if (size <= 0)
        return bagi_windows_error();
    wchar_t *plain = (wchar_t *)malloc((size_t)size * sizeof *plain);
    if (!plain)
        return ENOMEM;
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, plain, size);
    DWORD room = GetFullPathNameW(plain, 0, NULL, NULL), used = 0;
    int error = room ? 0 : bagi_windows_error();
    wchar_t *full = NULL;
    if (!error) {
        full = (wchar_t *)malloc(
            ((size_t)room + BAGI_WIDE_PREFIX + BAGI_WIDE_ENDING) *
            sizeof *full);
        used = full ? GetFullPathNameW(plain, room, full, NULL) : 0;
        error = !full                       ? ENOMEM
                : used == 0 || used >= room ? EINVAL
                : used > BAGI_WIDE_MOST     ? ENAMETOOLONG
                                            : 0;
    }
    free(plain);
    if (error) {
        free(full);
        return error;
    }
    if (used >= BAGI_WIDE_LONG)
        bagi_wide_lengthen(full, used);
    *out = full;
    return 0;
}

/* CreateFileW, sharing everything. */
static int bagi_windows_open(const char *path, DWORD access, DWORD creation,
    DWORD flags, HANDLE *handle) {
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (error)
        return error;
    HANDLE opened = CreateFileW(wide, access,
        FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, creation,
        flags, NULL);
    if (opened == INVALID_HANDLE_VALUE) {
        error = bagi_windows_error();
        DWORD attributes = error == EACCES ? GetFileAttributesW(wide)
                                           : INVALID_FILE_ATTRIBUTES;
        if (attributes != INVALID_FILE_ATTRIBUTES &&
            (attributes & FILE_ATTRIBUTE_DIRECTORY))
            error = EISDIR;
    }
    free(wide);
    if (!error)
        *handle = opened;
    return error;
}

/* A stranger's link must not be written through: it is opened itself, and then
 * refused. */
static int bagi_local_open(
    void *user, const char *path, int mode, void **file) {
    (void)user;
    HANDLE handle = NULL;
    DWORD access =
        mode == BAGS_IO_READ ? GENERIC_READ : GENERIC_READ | GENERIC_WRITE;
    DWORD creation = mode == BAGS_IO_CREATE ? CREATE_NEW : OPEN_EXISTING;
    DWORD flags = FILE_ATTRIBUTE_NORMAL;
    if (mode == BAGS_IO_WRITE)
        flags |= FILE_FLAG_OPEN_REPARSE_POINT;
    int error = bagi_windows_open(path, access, creation, flags, &handle);
    if (error == EINVAL && mode != BAGS_IO_CREATE)
        return ENOENT; /* no file can have this name */
    if (error)
        return error;
    BY_HANDLE_FILE_INFORMATION info;
    if (GetFileType(handle) != FILE_TYPE_DISK)
        error = ENXIO;
    else if (mode != BAGS_IO_WRITE)
        error = 0;
    else if (!GetFileInformationByHandle(handle, &info))
        error = bagi_windows_error();
    else if (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)
        error = ELOOP;
    if (error) {
        CloseHandle(handle);
        return error;
    }
    *file = handle;
    return 0;
}

/* The byte that stands for the lock: far behind any data, for Windows keeps
 * others from reading what is locked. */
static OVERLAPPED bagi_windows_at(uint64_t offset) {
    OVERLAPPED at;
    memset(&at, 0, sizeof at);
    at.Offset = (DWORD)(offset & 0xFFFFFFFF);
    at.OffsetHigh = (DWORD)(offset >> 32);
    return at;
}

#define BAGI_LOCKED_BYTE ((uint64_t)INT64_MAX - 1)

/* Closing unlocks, but not always at once. */
static int bagi_local_close(void *user, void *file) {
    (void)user;
    OVERLAPPED at = bagi_windows_at(BAGI_LOCKED_BYTE);
    (void)UnlockFileEx(file, 0, 1, 0, &at);
    return CloseHandle(file) ? 0 : bagi_windows_error();
}

static int bagi_local_size(void *user, void *file, uint64_t *size) {
    (void)user;
    LARGE_INTEGER found;
    if (!GetFileSizeEx(file, &found))
        return bagi_windows_error();
    *size = (uint64_t)found.QuadPart;
    return 0;
}

static int bagi_local_read_at(void *user, void *file, uint64_t offset,
    void *data, size_t size, size_t *done) {
    (void)user;
    DWORD count = 0;
    OVERLAPPED at = bagi_windows_at(offset);
    if (offset > (uint64_t)INT64_MAX)
        return EOVERFLOW;
    if (size > BAGI_LOCAL_MOST)
        size = BAGI_LOCAL_MOST;
    if (!ReadFile(file, data, (DWORD)size, &count, &at) &&
        GetLastError() != ERROR_HANDLE_EOF)
        return bagi_windows_error();
    *done = count;
    return 0;
}

static int bagi_local_write_at(void *user, void *file, uint64_t offset,
    const void *data, size_t size, size_t *done) {
    (void)user;
    DWORD count = 0;
    OVERLAPPED at = bagi_windows_at(offset);
    if (offset > (uint64_t)INT64_MAX)
        return EFBIG;
    if (size > BAGI_LOCAL_MOST)
        size = BAGI_LOCAL_MOST;
    if (!WriteFile(file, data, (DWORD)size, &count, &at))
        return bagi_windows_error();
    *done = count;
    return 0;
}

static int bagi_local_truncate(void *user, void *file, uint64_t size) {
    (void)user;
    FILE_END_OF_FILE_INFO end;
    if (size > (uint64_t)INT64_MAX)
        return EFBIG;
    end.EndOfFile.QuadPart = (LONGLONG)size;
    return SetFileInformationByHandle(file, FileEndOfFileInfo, &end, sizeof end)
               ? 0
               : bagi_windows_error();
}

static int bagi_local_sync(void *user, void *file) {
    (void)user;
    return FlushFileBuffers(file) ? 0 : bagi_windows_error();
}

static int bagi_local_lock(void *user, void *file) {
    (void)user;
    OVERLAPPED at = bagi_windows_at(BAGI_LOCKED_BYTE);
    return LockFileEx(file, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY,
               0, 1, 0, &at)
               ? 0
               : bagi_windows_error();
}

/* A view keeps its file and the mapping object; both may be closed. */
static int bagi_local_map(
    void *user, void *file, size_t size, const void **data) {
    (void)user;
    HANDLE mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping)
        return bagi_windows_error();
    const void *map = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size);
    int error = map ? 0 : bagi_windows_error();
    CloseHandle(mapping);
    if (!error)
        *data = map;
    return error;
}

static int bagi_local_unmap(void *user, const void *data, size_t size) {
    (void)user;
    (void)size;
    return UnmapViewOfFile(data) ? 0 : bagi_windows_error();
}

/* The attributes of what a link leads to. */
static int bagi_windows_follow(const char *path, DWORD *attributes) {
    HANDLE handle = NULL;
    BY_HANDLE_FILE_INFORMATION info;
    int error = bagi_windows_open(
        path, 0, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, &handle);
    if (error)
        return error;
    if (GetFileInformationByHandle(handle, &info))
        *attributes = info.dwFileAttributes;
    else
        error = bagi_windows_error();
    CloseHandle(handle);
    return error;
}

/* A name that the system would not take is the name of nothing. */
static int bagi_local_kind(void *user, const char *path, bags_path_kind *kind) {
    (void)user;
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (error)
        return error;
    DWORD attributes = GetFileAttributesW(wide);
    if (attributes == INVALID_FILE_ATTRIBUTES)
        error = bagi_windows_error();
    else if (attributes & FILE_ATTRIBUTE_REPARSE_POINT)
        error = bagi_windows_follow(path, &attributes);
    free(wide);
    if (error && error != ENOENT && error != ENOTDIR && error != EINVAL)
        return error;
    *kind = error                                   ? BAGS_PATH_NONE
            : attributes & FILE_ATTRIBUTE_DIRECTORY ? BAGS_PATH_DIRECTORY
                                                    : BAGS_PATH_FILE;
    return 0;
}

static int bagi_local_make_dir(void *user, const char *path) {
    (void)user;
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (!error && !CreateDirectoryW(wide, NULL))
        error = bagi_windows_error();
    free(wide);
    return error;
}

/* Not every file system can do it, and not everybody may; then there is nothing
 * more that could be done. */
static int bagi_local_sync_dir(void *user, const char *path) {
    (void)user;
    HANDLE handle = NULL;
    int error = bagi_windows_open(path, GENERIC_WRITE, OPEN_EXISTING,
        FILE_FLAG_BACKUP_SEMANTICS, &handle);
    if (error)
        return error == ENOENT || error == ENOTDIR ? error : 0;
    error = FlushFileBuffers(handle) ? 0 : bagi_windows_error();
    CloseHandle(handle);
    return error == EIO ? error : 0;
}

/* Go through a directory's names; names that are not UTF-16 get marks where
 * they are wrong. */
static int bagi_windows_list(const wchar_t *pattern,
    int (*each)(void *each_user, const char *name), void *each_user) {
    WIN32_FIND_DATAW entry;
    char name[3 * MAX_PATH + 1];
    int error = 0;
    HANDLE search = FindFirstFileW(pattern, &entry);
    if (search == INVALID_HANDLE_VALUE)
        return GetLastError() == ERROR_FILE_NOT_FOUND ? 0
                                                      : bagi_windows_error();
    do {
        if (!WideCharToMultiByte(CP_UTF8, 0, entry.cFileName, -1, name,
                (int)sizeof name, NULL, NULL))
            error = bagi_windows_error();
        else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            error = each(each_user, name);
    } while (!error && FindNextFileW(search, &entry));
    if (!error && GetLastError() != ERROR_NO_MORE_FILES)
        error = bagi_windows_error();
    FindClose(search);
    return error;
}

static int bagi_local_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    (void)user;
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (error)
        return error;
    size_t size = wcslen(wide);
    if (wide[size - 1] != '\\')
        wide[size++] = '\\';
    wide[size] = '*';
    wide[size + 1] = 0;
    error = bagi_windows_list(wide, each, each_user);
    free(wide);
    return error;
}

static int bagi_local_rename(void *user, const char *from, const char *to) {
    (void)user;
    wchar_t *wide_from = NULL, *wide_to = NULL;
    int error = bagi_wide(from, &wide_from);
    if (!error)
        error = bagi_wide(to, &wide_to);
    if (!error && !MoveFileExW(wide_from, wide_to,
                      MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
        error = bagi_windows_error();
    free(wide_from);
    free(wide_to);
    return error;
}

static int bagi_local_remove(void *user, const char *path) {
    (void)user;
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (!error && !DeleteFileW(wide))
        error = bagi_windows_error();
    free(wide);
    return error;
}

static int bagi_local_remove_dir(void *user, const char *path) {
    (void)user;
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (!error && !RemoveDirectoryW(wide))
        error = bagi_windows_error();
    free(wide);
    return error;
}

/* What is set aside behind the end is free again when the file is closed. */
static int bagi_local_reserve(void *user, void *file, uint64_t size) {
    FILE_ALLOCATION_INFO room;
    uint64_t used = 0;
    int error = bagi_local_size(user, file, &used);
    if (error || size <= used || size > (uint64_t)INT64_MAX)
        return error;
    room.AllocationSize.QuadPart = (LONGLONG)size;
    return SetFileInformationByHandle(
               file, FileAllocationInfo, &room, sizeof room)
               ? 0
               : bagi_windows_error();
}
#define BAGI_LOCAL_MAP bagi_local_map
#define BAGI_LOCAL_RESERVE bagi_local_reserve
#define BAGI_LOCAL_ADVISE NULL
#define BAGI_LOCAL_WRITE_BACK NULL
#else
/* ---- POSIX ----
 * Linux, macOS, the BSDs. What they do differently stands in this block; below
 * it are calls that all of them have, flock among them, which POSIX lacks. */

/* Else compile with -D_FILE_OFFSET_BITS=64, or include bags.h first. */
typedef char bagi_off_t_must_have_64_bits[sizeof(off_t) == 8 ? 1 : -1];

/* strerror is not safe between threads, and strerror_r comes in two forms. */
static const char *bagi_system_text(int error, char *room, size_t size) {
#if defined(__CYGWIN__) ||                                                     \
    ((defined(__GLIBC__) || defined(__BIONIC__)) && defined(__USE_GNU))
    return strerror_r(error, room, size);
#else
    return strerror_r(error, room, size) == 0 ? room : "unknown error";
#endif
}

/* On macOS fsync leaves the data in the drive's cache; F_FULLFSYNC does not,
 * but not every file system knows it. Only then is fsync called: after a sync
 * that failed, the next one may succeed although the data is lost. */
static int bagi_sync_fd(int fd) {
#if defined(F_FULLFSYNC)
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
    if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY)
        return -1;
#endif
    return fsync(fd);
}

/* What this CPU of its kind can do. */
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#define BAGI_CPU_FEATURES getauxval(AT_HWCAP)
#endif

/* A file descriptor travels as a pointer; descriptor 0 must not become NULL. */
static void *bagi_local_wrap(int fd) { return (void *)((intptr_t)fd + 1); }

static int bagi_local_fd(void *file) { return (int)((intptr_t)file - 1); }

/* Where a file is given its blocks in large pieces before they are written,
 * writing is faster by up to a half. */
#if defined(__linux__) && defined(FALLOC_FL_KEEP_SIZE)
static int bagi_local_reserve(void *user, void *file, uint64_t size) {
    (void)user;
    int fd = bagi_local_fd(file);
    struct stat info;
    if (fstat(fd, &info) != 0)
        return errno;
    uint64_t from = (uint64_t)info.st_size;
    if (size <= from || size > (uint64_t)INT64_MAX)
        return 0;
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(size - from))
               ? errno
               : 0;
}
#define BAGI_LOCAL_RESERVE bagi_local_reserve
#else
#define BAGI_LOCAL_RESERVE NULL
#endif

/* The kernel waits long before it writes to the disk by itself: who syncs a large
 * file at its end alone waits for all of it then. */
#if defined(__linux__) && defined(SYNC_FILE_RANGE_WRITE)
static int bagi_local_write_back(
    void *user, void *file, uint64_t offset, uint64_t size) {
    (void)user;
    return sync_file_range(bagi_local_fd(file), (off_t)offset, (off_t)size,
               SYNC_FILE_RANGE_WRITE)
               ? errno
               : 0;
}
#define BAGI_LOCAL_WRITE_BACK bagi_local_write_back
#else
#define BAGI_LOCAL_WRITE_BACK NULL
#endif

/* Where a map does not see what is written after it was read, as on OpenBSD, all
 * is read by position. */
#if !defined(__OpenBSD__)
static int bagi_local_map(
    void *user, void *file, size_t size, const void **data) {
    (void)user;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, bagi_local_fd(file), 0);
    if (map == MAP_FAILED)
        return errno;
    *data = map;
    return 0;
}
#define BAGI_LOCAL_MAP bagi_local_map
#else
#define BAGI_LOCAL_MAP NULL
#endif

/* macOS has advice for maps alone: it is given none. */
#if defined(POSIX_MADV_WILLNEED) && defined(POSIX_FADV_WILLNEED)
/* The start of the page that an address is in. */
static unsigned char *bagi_local_page(const void *at, size_t *before) {
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    *before = (size_t)((uintptr_t)at & (size - 1));
    return (unsigned char *)(uintptr_t)at - *before;
}

static int bagi_local_advise(void *user, void *file, const void *map,
    uint64_t offset, uint64_t size, bags_advice advice) {
    static const int of_map[] = {
        POSIX_MADV_RANDOM, POSIX_MADV_SEQUENTIAL, POSIX_MADV_WILLNEED};
    static const int of_file[] = {
        POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED};
    (void)user;
    if (map) {
        size_t before = 0;
        unsigned char *page = bagi_local_page(map, &before);
        return posix_madvise(page, (size_t)size + before, of_map[advice]);
    }
    return posix_fadvise(
        bagi_local_fd(file), (off_t)offset, (off_t)size, of_file[advice]);
}
#define BAGI_LOCAL_ADVISE bagi_local_advise
#else
#define BAGI_LOCAL_ADVISE NULL
#endif

/* ---- all POSIX systems ---- */

typedef pthread_mutex_t bagi_mutex;

static bool bagi_mutex_init(bagi_mutex *mutex) {
    return pthread_mutex_init(mutex, NULL) == 0;
}

static void bagi_mutex_free(bagi_mutex *mutex) { pthread_mutex_destroy(mutex); }

static void bagi_lock(bagi_mutex *mutex) { pthread_mutex_lock(mutex); }

static void bagi_unlock(bagi_mutex *mutex) { pthread_mutex_unlock(mutex); }

/* O_NONBLOCK, so that a FIFO that a stranger put there does not wait for a
 * writer for ever; for regular files it means nothing. */
static int bagi_local_open(
    void *user, const char *path, int mode, void **file) {
    (void)user;
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    flags |= mode == BAGS_IO_READ ? O_RDONLY : O_RDWR;
    if (mode == BAGS_IO_CREATE)
        flags |= O_CREAT | O_EXCL;
    if (mode == BAGS_IO_WRITE)
        flags |= O_NOFOLLOW; /* a stranger's link must not be written through */
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

static int bagi_local_sync(void *user, void *file) {
    (void)user;
    int result;
    do {
        result = bagi_sync_fd(bagi_local_fd(file));
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

/* fcntl's locks belong to a process, not to an open file; two writers in one
 * process would both have them. */
static int bagi_local_lock(void *user, void *file) {
    (void)user;
    int result;
    do {
        result = flock(bagi_local_fd(file), LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
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

/* Some file systems cannot sync a directory, and say EINVAL, and one that may
 * not be listed cannot be opened: then there is nothing more that could be
 * done. */
static int bagi_local_sync_dir(void *user, const char *path) {
    int fd;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return errno == EACCES ? 0 : errno;
    int error = bagi_local_sync(user, bagi_local_wrap(fd));
    close(fd);
    return error == EINVAL ? 0 : error;
}

static int bagi_local_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    (void)user;
    DIR *dir;
    do {
        dir = opendir(path);
    } while (!dir && errno == EINTR);
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
#endif

BAGS_API const bags_io *bags_io_local(void) {
    static const bags_io io = {NULL, bagi_local_open, bagi_local_close,
        bagi_local_size, bagi_local_read_at, bagi_local_write_at,
        bagi_local_truncate, bagi_local_sync, bagi_local_lock, BAGI_LOCAL_MAP,
        bagi_local_unmap, bagi_local_kind, bagi_local_make_dir,
        bagi_local_sync_dir, bagi_local_list, bagi_local_rename,
        bagi_local_remove, bagi_local_remove_dir, BAGI_LOCAL_RESERVE,
        BAGI_LOCAL_ADVISE, BAGI_LOCAL_WRITE_BACK};
    return &io;
}

/* ========================================================================
 * >>bytes
 * Little-endian integers at any address, and UTF-8.
 * ====================================================================== */

/* The one copy of what is inline above that can be called. */
#if !defined(BAGS_STATIC) && !defined(__TINYC__) && !defined(__cplusplus)
BAGS_API uint64_t bagi_load_u64(const unsigned char *data);
BAGS_API bags_view bags_range_get(const bags_range *range, size_t i);
BAGS_API bool bagi_mapped_get(
    const bagi_mapped *view, uint64_t index, bags_view *out);
BAGS_API bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err);
BAGS_API size_t bags_row_length(const bags_row *row, size_t slot);
BAGS_API bags_view bags_row_bytes(
    const bags_row *row, size_t slot, size_t item);
#endif

static inline void bagi_store_u64(unsigned char *data, uint64_t number) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(data, &number, sizeof number);
#else
    for (int i = 0; i < 8; i++)
        data[i] = (unsigned char)(number >> (8 * i));
#endif
}

static inline uint64_t bagi_load_big(const unsigned char *data) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) &&                            \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(bagi_load_u64(data));
#else
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | data[i];
    return number;
#endif
}

BAGS_API bool bags_little_endian(void) {
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

BAGS_API bool bags_utf8_valid(const void *text, size_t size, size_t *bad) {
    size_t good = bagi_utf8_valid((const unsigned char *)text, size);
    if (good < size && bad)
        *bad = good;
    return good == size;
}

BAGS_API void bags_swap_bytes(
    void *to, const void *from, size_t size, size_t element) {
    unsigned char *out = (unsigned char *)to;
    const unsigned char *in = (const unsigned char *)from;
    for (size_t i = 0; element && i + element <= size; i += element)
        for (size_t j = 0; j < (element + 1) / 2; j++) {
            unsigned char first = in[i + j], last = in[i + element - 1 - j];
            out[i + j] = last;
            out[i + element - 1 - j] = first;
        }
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

static bool bagi_same(bags_view bytes, const char *text) {
    size_t size = strlen(text);
    return bytes.size == size && memcmp(bytes.data, text, size) == 0;
}

/* ========================================================================
 * >>crc
 * CRC-32C (Castagnoli), as iSCSI and SCTP have it. The CPU's own instruction
 * where there is one: it takes three cycles and one can be begun in each, so
 * that long texts are read in three lanes side by side. Else tables, which are
 * constants: nothing is computed when a program starts, and nothing is shared.
 * ====================================================================== */

#if defined(__x86_64__) && !defined(__TINYC__) &&                              \
    (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5))
#define BAGI_CRC_X86 1
#define BAGI_CRC_ARM 0
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__aarch64__) && defined(__AARCH64EL__) &&                        \
    (defined(__ARM_FEATURE_CRC32) || defined(BAGI_CPU_FEATURES))
#define BAGI_CRC_X86 0
#define BAGI_CRC_ARM 1
#else
#define BAGI_CRC_X86 0
#define BAGI_CRC_ARM 0
#endif

static uint32_t bagi_load_u32(const unsigned char *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 |
           (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

static void bagi_store_u32(unsigned char *data, uint32_t number) {
    for (int i = 0; i < 4; i++)
        data[i] = (unsigned char)(number >> (8 * i));
}

/* A table of 256 entries, from those of the bytes 1, 2, 4, ..., 128: the entry
 * of any byte is the sum of those of its bits. */
#define BAGI_CRC_2(x, a) (x), (x) ^ (a)
#define BAGI_CRC_4(x, a, b) BAGI_CRC_2(x, a), BAGI_CRC_2((x) ^ (b), a)
#define BAGI_CRC_8(x, a, b, c) BAGI_CRC_4(x, a, b), BAGI_CRC_4((x) ^ (c), a, b)
#define BAGI_CRC_16(x, a, b, c, d)                                             \
    BAGI_CRC_8(x, a, b, c), BAGI_CRC_8((x) ^ (d), a, b, c)
#define BAGI_CRC_32(x, a, b, c, d, e)                                          \
    BAGI_CRC_16(x, a, b, c, d), BAGI_CRC_16((x) ^ (e), a, b, c, d)
#define BAGI_CRC_64(x, a, b, c, d, e, f)                                       \
    BAGI_CRC_32(x, a, b, c, d, e), BAGI_CRC_32((x) ^ (f), a, b, c, d, e)
#define BAGI_CRC_128(x, a, b, c, d, e, f, g)                                   \
    BAGI_CRC_64(x, a, b, c, d, e, f), BAGI_CRC_64((x) ^ (g), a, b, c, d, e, f)
#define BAGI_CRC_256(a, b, c, d, e, f, g, h)                                   \
    {                                                                          \
        BAGI_CRC_128(0U, a, b, c, d, e, f, g),                                 \
            BAGI_CRC_128((uint32_t)(h), a, b, c, d, e, f, g)                   \
    }

/* Eight bytes a step; table k is for a byte that k others follow. */
static uint32_t bagi_crc_tables(
    uint32_t crc, const unsigned char *data, size_t size) {
    static const uint32_t tables[8][256] = {
        BAGI_CRC_256(0xF26B8303U, 0xE13B70F7U, 0xC79A971FU, 0x8AD958CFU,
            0x105EC76FU, 0x20BD8EDEU, 0x417B1DBCU, 0x82F63B78U),
        BAGI_CRC_256(0x13A29877U, 0x274530EEU, 0x4E8A61DCU, 0x9D14C3B8U,
            0x3FC5F181U, 0x7F8BE302U, 0xFF17C604U, 0xFBC3FAF9U),
        BAGI_CRC_256(0xA541927EU, 0x4F6F520DU, 0x9EDEA41AU, 0x38513EC5U,
            0x70A27D8AU, 0xE144FB14U, 0xC76580D9U, 0x8B277743U),
        BAGI_CRC_256(0xDD45AAB8U, 0xBF672381U, 0x7B2231F3U, 0xF64463E6U,
            0xE964B13DU, 0xD725148BU, 0xABA65FE7U, 0x52A0C93FU),
        BAGI_CRC_256(0x38116FACU, 0x7022DF58U, 0xE045BEB0U, 0xC5670B91U,
            0x8F2261D3U, 0x1BA8B557U, 0x37516AAEU, 0x6EA2D55CU),
        BAGI_CRC_256(0xEF306B19U, 0xDB8CA0C3U, 0xB2F53777U, 0x6006181FU,
            0xC00C303EU, 0x85F4168DU, 0x0E045BEBU, 0x1C08B7D6U),
        BAGI_CRC_256(0x68032CC8U, 0xD0065990U, 0xA5E0C5D1U, 0x4E2DFD53U,
            0x9C5BFAA6U, 0x3D5B83BDU, 0x7AB7077AU, 0xF56E0EF4U),
        BAGI_CRC_256(0x493C7D27U, 0x9278FA4EU, 0x211D826DU, 0x423B04DAU,
            0x847609B4U, 0x0D006599U, 0x1A00CB32U, 0x34019664U)};
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= bagi_load_u32(data);
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^
              tables[5][crc >> 16 & 255] ^ tables[4][crc >> 24] ^
              tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^
              tables[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
    return crc;
}

#if BAGI_CRC_X86 || BAGI_CRC_ARM

#if BAGI_CRC_X86
#define BAGI_CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#define BAGI_CRC_STEP8(crc, word) _mm_crc32_u64(crc, word)
#define BAGI_CRC_STEP1(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)

/* The CRC of what `crc` is of with so many zero bytes behind it: a product of
 * polynomials. `power` is x^(8 * bytes - 33). */
BAGI_CRC_TARGET static inline uint64_t bagi_crc_behind(
    uint64_t crc, uint32_t power) {
    __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int)power), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}
#else
#define BAGI_CRC_TARGET
#define BAGI_CRC_STEP8(crc, word) bagi_crc_word(crc, word)
#define BAGI_CRC_STEP1(crc, byte) bagi_crc_byte(crc, byte)

static inline uint64_t bagi_crc_word(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
            : "+r"(crc)
            : "r"(word));
    return crc;
}

static inline uint64_t bagi_crc_byte(uint64_t crc, unsigned char byte) {
    uint32_t word = byte;
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
            : "+r"(crc)
            : "r"(word));
    return crc;
}

static inline uint64_t bagi_crc_behind(uint64_t crc, uint32_t power) {
    uint64_t product = 0;
    for (int i = 0; i < 32; i++)
        product ^= (0 - (crc >> i & 1)) & (uint64_t)power << i;
    return bagi_crc_word(0, product);
}
#endif

/* Three lanes side by side, for as long as there is enough for them. */
BAGI_CRC_TARGET static inline uint64_t bagi_crc_lanes(uint64_t crc,
    const unsigned char **data, size_t *size, size_t lane, uint32_t one,
    uint32_t two) {
    const unsigned char *at = *data;
    for (; *size >= 3 * lane; *size -= 3 * lane) {
        uint64_t second = 0, third = 0;
        for (const unsigned char *stop = at + lane; at < stop; at += 8) {
            crc = BAGI_CRC_STEP8(crc, bagi_load_u64(at));
            second = BAGI_CRC_STEP8(second, bagi_load_u64(at + lane));
            third = BAGI_CRC_STEP8(third, bagi_load_u64(at + 2 * lane));
        }
        at += 2 * lane;
        crc = bagi_crc_behind(crc, two) ^ bagi_crc_behind(second, one) ^ third;
    }
    *data = at;
    return crc;
}

BAGI_CRC_TARGET static uint32_t bagi_crc_cpu(
    uint32_t start, const unsigned char *data, size_t size) {
    uint64_t crc = start;
    crc = bagi_crc_lanes(crc, &data, &size, 4096, 0x82F89C77U, 0x54A86326U);
    crc = bagi_crc_lanes(crc, &data, &size, 512, 0xDD7E3B0CU, 0x170076FAU);
#if BAGI_CRC_X86
    crc = bagi_crc_lanes(crc, &data, &size, 64, 0x9E4ADDF8U, 0x0D3B6092U);
#endif
    for (; size >= 8; data += 8, size -= 8)
        crc = BAGI_CRC_STEP8(crc, bagi_load_u64(data));
    for (; size > 0; data++, size--)
        crc = BAGI_CRC_STEP1(crc, *data);
    return (uint32_t)crc;
}

/* Whether the CPU has what bagi_crc_cpu needs. */
static bool bagi_crc_has_cpu(void) {
#if BAGI_CRC_X86
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#elif defined(__ARM_FEATURE_CRC32)
    return true;
#else
    return (BAGI_CPU_FEATURES & 1UL << 7) != 0; /* HWCAP_CRC32 */
#endif
}
#endif

/* The CRC of more bytes behind those that `crc` is of; 0 is that of none. */
static uint32_t bagi_crc(uint32_t crc, const unsigned char *data, size_t size) {
#if BAGI_CRC_X86 || BAGI_CRC_ARM
    if (bagi_crc_has_cpu())
        return ~bagi_crc_cpu(~crc, data, size);
#endif
    return ~bagi_crc_tables(~crc, data, size);
}

/* What stands behind the CRCs in a sidecar: see THE BYTES. */
typedef struct bagi_trailer {
    uint64_t length, size;
    uint32_t table, sums, name, spec;
} bagi_trailer;

#define BAGI_TRAILER_SIZE 44
#define BAGI_TRAILER_MAGIC "BAGSCRC1"

static void bagi_trailer_store(
    const bagi_trailer *trailer, unsigned char data[BAGI_TRAILER_SIZE]) {
    bagi_store_u64(data, trailer->length);
    bagi_store_u64(data + 8, trailer->size);
    bagi_store_u32(data + 16, trailer->table);
    bagi_store_u32(data + 20, trailer->sums);
    bagi_store_u32(data + 24, trailer->name);
    bagi_store_u32(data + 28, trailer->spec);
    memcpy(data + 32, BAGI_TRAILER_MAGIC, 8);
    bagi_store_u32(data + 40, bagi_crc(0, data, 40));
}

/* False if the bytes are no trailer, or are damaged. */
static bool bagi_trailer_load(
    const unsigned char data[BAGI_TRAILER_SIZE], bagi_trailer *trailer) {
    trailer->length = bagi_load_u64(data);
    trailer->size = bagi_load_u64(data + 8);
    trailer->table = bagi_load_u32(data + 16);
    trailer->sums = bagi_load_u32(data + 20);
    trailer->name = bagi_load_u32(data + 24);
    trailer->spec = bagi_load_u32(data + 28);
    return memcmp(data + 32, BAGI_TRAILER_MAGIC, 8) == 0 &&
           bagi_load_u32(data + 40) == bagi_crc(0, data, 40);
}

static uint32_t bagi_crc_text(const char *text) {
    return bagi_crc(0, (const unsigned char *)text, strlen(text));
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
        "corrupt data", "too large", "input or output failed", "out of memory"};
    size_t i = (size_t)code;
    return i < sizeof names / sizeof *names ? names[i] : "unknown error";
}

/* Keep a message one line of UTF-8, whatever a stranger put into a name, and
 * wherever it was cut. */
static void bagi_tidy(char *message) {
    unsigned char *text = (unsigned char *)message;
    size_t size = strlen(message);
    for (size_t i = 0, step; i < size; i += step) {
        step = bagi_utf8_sequence(text + i, size - i);
        if (step > 1)
            continue;
        if (step == 0 || text[i] < 0x20 || text[i] == 0x7F)
            text[i] = '?';
        step = 1;
    }
}

BAGS_API BAGI_COLD bags_code bags_fail(
    bags_error *err, bags_code code, const char *format, ...) {
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

static bags_code bagi_prefix(
    bags_error *err, bags_code code, const char *format, ...) BAGI_PRINTF(3, 4);

/* Put words before a message that is there. Returns the code, so that a caller
 * can end with it. */
BAGI_COLD static bags_code bagi_prefix(
    bags_error *err, bags_code code, const char *format, ...) {
    if (!err)
        return code;
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    if (size <= 0)
        return code;
    size_t front =
        (size_t)size < sizeof words ? (size_t)size : sizeof words - 1;
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
BAGI_COLD static bags_code bagi_fail_system(
    bags_error *err, int error, const char *path, const char *doing) {
    char room[128];
    const char *why = error == ENXIO
                          ? "not a regular file"
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

static void *bagi_malloc_resize(
    void *user, void *data, size_t old_size, size_t new_size) {
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
static void *bagi_alloc_raw(
    const bags_allocator *memory, size_t size, bags_error *err) {
    void *data = memory->resize(memory->user, NULL, 0, size ? size : 1);
    if (!data)
        bagi_fail_memory(err, size);
    return data;
}

/* The same, zeroed. */
static void *bagi_alloc(
    const bags_allocator *memory, size_t size, bags_error *err) {
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
    void *bigger =
        memory->resize(memory->user, *data, *capacity * size, more * size);
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

static char *bagi_print(
    const bags_allocator *memory, bags_error *err, const char *format, ...) {
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
    (void)vsnprintf(text, (size_t)size + 1, format, arguments);
    va_end(arguments);
    return text;
}

BAGS_API bags_code bags_buffer_reserve(
    bags_buffer *buffer, size_t size, bags_error *err) {
    if (size <= buffer->capacity)
        return BAGS_OK;
    if (!buffer->resize)
        buffer->resize = bagi_malloc_resize;
    size_t more = buffer->capacity + buffer->capacity / 2;
    if (more < size)
        more = size;
    if (more < 64)
        more = 64;
    void *data =
        buffer->resize(buffer->user, buffer->data, buffer->capacity, more);
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
static void bagi_buffer_adopt(
    bags_buffer *buffer, const bags_allocator *memory) {
    if (!buffer->resize) {
        buffer->resize = memory->resize;
        buffer->user = memory->user;
    }
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

static bagi_env bagi_env_of(
    const bags_allocator *allocator, const bags_io *io) {
    bagi_env env;
    env.memory = bagi_allocator_of(allocator);
    env.io = io ? *io : *bags_io_local();
    return env;
}

/* "" would put shards into the root directory. */
static bags_code bagi_check_path(const char *path, bags_error *err) {
    return *path ? BAGS_OK
                 : bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
}

static bags_code bagi_open(const bagi_env *env, const char *path, int mode,
    void **file, bags_error *err) {
    int error = env->io.open(env->io.user, path, mode, file);
    if (!error)
        return BAGS_OK;
    *file = NULL;
    return bagi_fail_system(
        err, error, path, mode == BAGS_IO_CREATE ? "create" : "open");
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
        int error =
            env->io.read_at(env->io.user, file, offset, out, size, &done);
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
        int error =
            env->io.write_at(env->io.user, file, offset, in, size, &done);
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

static bags_code bagi_sync_dir(
    const bagi_env *env, const char *path, bags_error *err) {
    int error = env->io.sync_dir(env->io.user, path);
    return error ? bagi_fail_system(err, error, path, "sync") : BAGS_OK;
}

/* What stands between the parts of a path. */
static bool bagi_is_slash(char c) {
    return c == '/' || (BAGI_WINDOWS_PATHS && c == '\\');
}

/* How much of a path is its root, which has no directory above it: "/", and on
 * Windows "C:/", "C:", "//server/share/" and "//?/C:/" too. */
static size_t bagi_root_size(const char *path) {
    size_t size = 0, names = 0;
    if (BAGI_WINDOWS_PATHS && bagi_is_slash(path[0]) && bagi_is_slash(path[1]))
        for (size = 2; path[size] && names < 2; size++)
            names += bagi_is_slash(path[size]);
    else if (BAGI_WINDOWS_PATHS && path[0] && path[1] == ':')
        size = 2;
    if (names < 2 && bagi_is_slash(path[size]))
        size++;
    return size;
}

/* The directory that a path stands in; "." for a bare name. Free it with
 * bagi_free_text. */
static char *bagi_parent(
    const bags_allocator *memory, const char *path, bags_error *err) {
    size_t size = strlen(path), root = bagi_root_size(path);
    while (size > root && bagi_is_slash(path[size - 1]))
        size--;
    while (size > root && !bagi_is_slash(path[size - 1]))
        size--;
    while (size > root + !root && bagi_is_slash(path[size - 1]))
        size--;
    return size ? bagi_copy_text(memory, path, size, err)
                : bagi_copy_text(memory, ".", 1, err);
}

/* Sync the directory above a path, and those further up that were made for
 * it. */
static bags_code bagi_sync_above(
    const bagi_env *env, const char *path, size_t levels, bags_error *err) {
    char *above = bagi_copy_text(&env->memory, path, strlen(path), err);
    bags_code code = above ? BAGS_OK : BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < levels && !code; i++) {
        char *next = bagi_parent(&env->memory, above, err);
        code = next ? bagi_sync_dir(env, next, err) : BAGS_ERROR_MEMORY;
        bagi_free_text(&env->memory, above);
        above = next;
    }
    bagi_free_text(&env->memory, above);
    return code;
}

/* Make every directory above the last part of the path that is not there, and
 * wait until the disk has it; without `sync`, count those that wait in *made. */
static bags_code bagi_make_parents(const bagi_env *env, const char *path,
    bool sync, size_t *made, bags_error *err) {
    char *copy = bagi_copy_text(&env->memory, path, strlen(path), err);
    if (!copy)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    size_t size = strlen(copy), root = bagi_root_size(copy);
    while (size > root && bagi_is_slash(copy[size - 1]))
        size--;
    for (size_t i = root + 1; i < size && !code; i++) {
        const char slash = copy[i];
        if (!bagi_is_slash(slash) || bagi_is_slash(copy[i - 1]))
            continue;
        copy[i] = '\0';
        bags_path_kind kind = BAGS_PATH_NONE;
        code = bagi_kind(env, copy, &kind, err);
        if (!code && kind == BAGS_PATH_NONE) {
            int error = env->io.make_dir(env->io.user, copy);
            *made += !error && !sync;
            if (error && error != EEXIST)
                code = bagi_fail_system(err, error, copy, "make the directory");
            else if (!error && sync)
                code = bagi_sync_above(env, copy, 1, err);
        }
        copy[i] = slash;
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
        code = room
                   ? bagi_read_at(env, file, path, 0, room, (size_t)length, err)
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
        *code = each(user, json->room, key, json->room + key, json->used - key);
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

static size_t bagi_msgpack_put(
    unsigned char *out, unsigned char tag, uint64_t number, int bytes) {
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
static bool bagi_msgpack_number(
    bags_view *blob, size_t bytes, uint64_t *number) {
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
static bool bagi_msgpack_uint(bags_view *blob, uint64_t *number) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_view rest = {blob->data + 1, blob->size - 1};
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
static bool bagi_msgpack_array(bags_view *blob, uint64_t *count) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_view rest = {blob->data + 1, blob->size - 1};
    if ((tag & 0xF0) == 0x90)
        *count = tag & 0x0F;
    else if ((tag != 0xDC && tag != 0xDD) ||
             !bagi_msgpack_number(&rest, tag == 0xDC ? 2 : 4, count))
        return false;
    *blob = rest;
    return true;
}

static bool bagi_refs_sequence(bags_view *blob, bagi_ref *ref) {
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
static const char *bagi_refs_parse(bags_view blob, const bags_type *types,
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
    bool listed;              /* it belongs to a set, open or not */
    bool grows;               /* a writer may go on with it: `size` is of what
                                 is read */
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

static void bagi_files_close(
    bagi_files *files, const bagi_env *env, bagi_file *file) {
    bagi_files_unlink(files, file);
    bagi_close_read(env, file->handle);
    file->handle = NULL;
}

/* Close the file that was not read for longest. False if all are being read. */
static bool bagi_files_evict(bagi_files *files, const bagi_env *env) {
    bagi_file *file = files->oldest;
    while (file && file->pins > 0)
        file = file->newer;
    if (file)
        bagi_files_close(files, env, file);
    return file != NULL;
}

/* Make room for one more open file. */
static void bagi_files_room(bagi_files *files, const bagi_env *env) {
    while (files->count >= files->limit && bagi_files_evict(files, env))
        ;
}

/* Open a file; where the system allows no more, close others. */
static bags_code bagi_files_open(bagi_files *files, const bagi_env *env,
    const char *path, bool locked, void **file, bags_error *err) {
    for (;;) {
        bags_error why;
        bool again = false;
        bags_code code = bagi_open(env, path, BAGS_IO_READ, file, &why);
        if (!code)
            return BAGS_OK;
        if (files && (why.system == EMFILE || why.system == ENFILE)) {
            if (!locked)
                bagi_lock(&files->mutex);
            again = bagi_files_evict(files, env);
            if (!locked)
                bagi_unlock(&files->mutex);
        }
        if (again)
            continue;
        if (err)
            *err = why;
        return code;
    }
}

/* Open a file again, and make sure that it is the one that was looked at. */
static bags_code bagi_files_reopen(
    bagi_files *files, const bagi_env *env, bagi_file *file, bags_error *err) {
    bagi_files_room(files, env);
    void *handle = NULL;
    uint64_t size = 0;
    bags_code code =
        bagi_files_open(files, env, file->path, true, &handle, err);
    if (code)
        return code;
    code = bagi_file_size(env, handle, file->path, &size, err);
    if (!code && size != file->size && (size < file->size || !file->grows))
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " bytes now and had %" PRIu64
            " when it was opened first",
            bagi_tail(file->path), size, file->size);
    if (code) {
        bagi_close_read(env, handle);
        return code;
    }
    file->handle = handle;
    bagi_files_link(files, file);
    return BAGS_OK;
}

/* The checksums beside a Bag. */
typedef struct bagi_sums {
    bagi_file file;            /* NAME.crc */
    const unsigned char *crcs; /* NULL: read by position */
    unsigned char *loaded;     /* they, in memory, if asked for */
    bagi_trailer trailer;
    bool whole; /* and of a Bag of this shape */
    bool other; /* whole, and of a Bag of another shape */
} bagi_sums;

struct bag_reader {
    bagi_mapped view;          /* must be the first member */
    const unsigned char *data; /* offset 0 of the blobs; NULL: read */
    const unsigned char *ends; /* the end of blob 0; NULL: read */
    uint64_t length;           /* blobs */
    bagi_sums *sums;           /* NULL: blobs are not checked */
    uint64_t limit;            /* no blob ends behind this offset */
    uint64_t table;            /* offset of the end of blob 0 in its file */
    const bagi_env *env;
    bagi_files *files; /* NULL: the files stay open */
    bagi_file file;
    bagi_file index;       /* NAME.idx, if split */
    unsigned char *loaded; /* the table in memory, if asked for */
    size_t loaded_size;
    bool split, v2;
    bool random;       /* mapped for BAGS_ACCESS_RANDOM */
    void *consecutive; /* not NULL: blob i is datapoint i's; see columns */
    bool in_memory;    /* no file: nothing stands beside it */
};

/* Hold a file open that may have to be opened again for it. */
static bags_code bagi_file_pin(const bag_reader *reader, const bagi_file *of,
    void **handle, bags_error *err) {
    bagi_files *files = reader->files;
    /* Only the members that the set's mutex guards change. */
    bagi_file *file = (bagi_file *)(uintptr_t)of;
    bags_code code = BAGS_OK;
    if (files)
        bagi_lock(&files->mutex);
    if (files && !file->handle) {
        code = bagi_files_reopen(files, reader->env, file, err);
    } else if (files && files->newest != file) {
        bagi_files_unlink(files, file);
        bagi_files_link(files, file);
    }
    *handle = file->handle;
    if (files) {
        file->pins += !code;
        bagi_unlock(&files->mutex);
    }
    return code;
}

static void bagi_file_unpin(const bag_reader *reader, const bagi_file *of) {
    bagi_files *files = reader->files;
    bagi_file *file = (bagi_file *)(uintptr_t)of;
    if (!files)
        return;
    bagi_lock(&files->mutex);
    if (--file->pins == 0 && files->count > files->limit)
        bagi_files_close(files, reader->env, file);
    bagi_unlock(&files->mutex);
}

static bags_code bagi_file_read(const bag_reader *reader, const bagi_file *file,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    void *handle = NULL;
    if (size == 0)
        return BAGS_OK;
    bags_code code = bagi_file_pin(reader, file, &handle, err);
    if (code)
        return code;
    code =
        bagi_read_at(reader->env, handle, file->path, offset, data, size, err);
    bagi_file_unpin(reader, file);
    return code;
}

/* Say how a part of a file will be read, if it is one and the system listens. */
static void bagi_file_advise(const bag_reader *reader, const bagi_file *file,
    uint64_t offset, uint64_t size, bags_advice advice) {
    const bags_io *io = &reader->env->io;
    void *handle = NULL;
    if (!io->advise || size == 0)
        return;
    if (file->map) {
        io->advise(io->user, NULL, file->map + offset, 0, size, advice);
    } else if ((file->listed || file->handle) && /* listed: handle is locked */
               !bagi_file_pin(reader, file, &handle, NULL)) {
        io->advise(io->user, handle, NULL, offset, size, advice);
        bagi_file_unpin(reader, file);
    }
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
static void bagi_file_map(bag_reader *reader, bagi_file *file, bool no_mmap) {
    static const unsigned char nothing[1] = {0};
    const bags_io *io = &reader->env->io;
    bagi_files *files = reader->files;
    const void *map = nothing;
    if (no_mmap || !io->map || file->size > SIZE_MAX / 2)
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

static bags_code bagi_file_open(
    bag_reader *reader, bagi_file *file, const char *path, bags_error *err) {
    const bagi_env *env = reader->env;
    file->path = bagi_copy_text(&env->memory, path, strlen(path), err);
    if (!file->path)
        return BAGS_ERROR_MEMORY;
    return bagi_files_open(reader->files, env, path, false, &file->handle, err);
}

/* See how large an open file is now. */
static bags_code bagi_file_measure(
    bag_reader *reader, bagi_file *file, bool no_mmap, bags_error *err) {
    bags_code code =
        bagi_file_size(reader->env, file->handle, file->path, &file->size, err);
    if (!code)
        bagi_file_map(reader, file, no_mmap);
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
        file->listed = true;
        bagi_unlock(&files->mutex);
    }
}

/* No thread may be reading the file; one that failed to open is in no set
 * yet. */
static void bagi_file_close(bag_reader *reader, bagi_file *file) {
    const bagi_env *env = reader->env;
    bagi_files *files = reader->files;
    if (file->map && file->size > 0) {
        env->io.unmap(env->io.user, file->map, (size_t)file->size);
        if (files)
            files->maps--;
    }
    if (file->handle) {
        if (files && file->listed)
            bagi_files_unlink(files, file);
        bagi_close_read(env, file->handle);
    }
    bagi_free_text(&env->memory, file->path);
    memset(file, 0, sizeof *file);
}

/* A Bag that ends in its own table: v1, or v2 without the leading 0. */
static bags_code bagi_bag_shape(
    bag_reader *reader, bool allow_empty, bags_error *err) {
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
            "%s: is not a Bag, or was cut short or never closed: its last 8 "
            "bytes "
            "place the table at %" PRIu64 " of %" PRIu64 " bytes",
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
 * table begins where the last blob of the index ends, and is as long. */
static bags_code bagi_bag_finished(bag_reader *reader, uint64_t length,
    uint64_t end, bool *finished, bags_error *err) {
    const bagi_file *file = &reader->file;
    uint64_t last = 0, first = 0;
    *finished = false;
    if (file->size < 8 || end > file->size - 8 || (file->size - end) % 8 != 0 ||
        (file->size - end) / 8 - 1 != length)
        return BAGS_OK;
    bags_code code = bagi_file_peek(reader, file, file->size - 8, &last, err);
    if (code || last != end)
        return code;
    code = bagi_file_peek(reader, file, last, &first, err);
    *finished = !code && first == 0;
    return code;
}

/* A Bag whose ends stand in NAME.idx; an entry that was cut is no entry. A Bag
 * alone that has a table of its own does not need the index; but a loss of power
 * may have torn the table, while the index is on disk. */
static bags_code bagi_bag_shape_split(
    bag_reader *reader, bool alone, bool unfinished, bags_error *err) {
    uint64_t length = reader->index.size / 8, end = 0;
    bool finished = false;
    bags_code code = BAGS_OK;
    if (length)
        code =
            bagi_file_peek(reader, &reader->index, length * 8 - 8, &end, err);
    if (!code && alone && !unfinished)
        code = bagi_bag_finished(reader, length, end, &finished, err);
    if (code)
        return code;
    if (finished) {
        bagi_file_close(reader, &reader->index);
        return bagi_bag_shape(reader, false, err);
    }
    if (end > reader->file.size && !unfinished)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64
            " bytes; its .idx places the end of blob %" PRIu64 " at %" PRIu64,
            bagi_tail(reader->file.path), reader->file.size, length - 1, end);
    reader->split = true;
    reader->limit = unfinished ? reader->file.size : end;
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
    reader->loaded_size = size;
    reader->ends = reader->loaded;
    return bagi_read_at(reader->env, file->handle, file->path, reader->table,
        reader->loaded, size, err);
}

typedef enum bagi_where {
    BAGI_ALONE,     /* a Bag by itself: the index is looked for */
    BAGI_WITH_REFS, /* in a dataset with refs.bag: the index is ignored */
    BAGI_SPLIT      /* in a dataset without: the index is needed */
} bagi_where;

typedef struct bagi_bag_options {
    bagi_where where;
    bool no_mmap, cache_index, allow_empty;
    bool grows;      /* a writer may be at work on it */
    bool unfinished; /* its index may say more than is true: who opens it finds
                        out how much, and trims it */
    bags_access access;
    bool check;       /* compare blobs with their checksums */
    const char *name; /* of the field, or refs; NULL if alone */
    uint32_t spec;    /* CRC of spec.json, if not alone */
    bool any_spec;    /* it could not be read */
} bagi_bag_options;

static bool bagi_is_bag_path(const char *path) {
    size_t size = strlen(path);
    return size >= 4 && memcmp(path + size - 4, ".bag", 4) == 0;
}

/* NAME.idx or NAME.crc for NAME.bag. */
static char *bagi_beside_path(const bags_allocator *memory, const char *path,
    const char *ending, bags_error *err) {
    size_t size = strlen(path) - (bagi_is_bag_path(path) ? 4 : 0);
    if (size > INT_MAX) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is too long");
        return NULL;
    }
    return bagi_print(memory, err, "%.*s%s", (int)size, path, ending);
}

/* ---- checksums beside a Bag ---- */

/* Check that the sidecar is whole, and of a Bag with as many blobs and bytes. */
static bags_code bagi_sums_shape(
    const bag_reader *reader, bagi_sums *sums, bags_error *err) {
    const bagi_file *file = &sums->file;
    const bagi_trailer *trailer = &sums->trailer;
    unsigned char room[BAGI_TRAILER_SIZE] = {0};
    const unsigned char *at = room;
    bags_code code = BAGS_OK;
    uint64_t offset = file->size - BAGI_TRAILER_SIZE;
    if (file->size >= BAGI_TRAILER_SIZE && file->map)
        at = file->map + offset;
    else if (file->size >= BAGI_TRAILER_SIZE)
        code = bagi_read_at(reader->env, file->handle, file->path, offset, room,
            sizeof room, err);
    if (code)
        return code;
    if (!bagi_trailer_load(at, &sums->trailer) || offset % 4 ||
        offset / 4 != trailer->length)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: is damaged, was cut short or never finished: it does not end "
            "as checksums do",
            bagi_tail(file->path));
    sums->other =
        trailer->length != reader->length || trailer->size != reader->file.size;
    if (sums->other)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64 " blobs and %" PRIu64
            " bytes; by its .crc it had "
            "%" PRIu64 " blobs and %" PRIu64 " bytes",
            bagi_tail(reader->file.path), reader->length, reader->file.size,
            trailer->length, trailer->size);
    sums->whole = true;
    return BAGS_OK;
}

/* The CRC of a lone Bag's name, as a field's Bag has it. */
static uint32_t bagi_sums_own_name(const char *path) {
    size_t stop = strlen(path) - (bagi_is_bag_path(path) ? 4 : 0);
    size_t start = stop;
    while (start > 0 && !bagi_is_slash(path[start - 1]))
        start--;
    return bagi_crc(0, (const unsigned char *)path + start, stop - start);
}

/* Check that the sidecar is of this Bag, and beside this spec.json. A Bag of a
 * dataset may be read alone; a lone one may be given another name. */
static bags_code bagi_sums_identity(const bag_reader *reader,
    const bagi_sums *sums, const bagi_bag_options *options, bags_error *err) {
    const bagi_trailer *trailer = &sums->trailer;
    bool alone = options->where == BAGI_ALONE;
    bool named =
        alone ? !trailer->name ||
                    trailer->name == bagi_sums_own_name(reader->file.path)
              : trailer->name == bagi_crc_text(options->name);
    if (!named)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has the checksums of a Bag of another name",
            bagi_tail(sums->file.path));
    if (!alone && !options->any_spec && trailer->spec != options->spec)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: spec.json had the CRC-32C %08" PRIx32
            "; now it has %08" PRIx32,
            bagi_tail(sums->file.path), trailer->spec, options->spec);
    return BAGS_OK;
}

static void bagi_sums_close(bag_reader *reader, bagi_sums *sums) {
    if (sums->loaded)
        bagi_free(&reader->env->memory, sums->loaded,
            (size_t)sums->trailer.length * 4);
    sums->loaded = NULL;
    bagi_file_close(reader, &sums->file);
}

/* Open NAME.crc beside a Bag. */
static bags_code bagi_sums_find(
    bag_reader *reader, bagi_sums *sums, bool no_mmap, bags_error *err) {
    const bags_allocator *memory = &reader->env->memory;
    bags_error why;
    char *path = bagi_beside_path(memory, reader->file.path, ".crc", err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_file_open(reader, &sums->file, path, &why);
    if (!code)
        code = bagi_file_measure(reader, &sums->file, no_mmap, &why);
    if (code == BAGS_ERROR_MISSING)
        bags_fail(err, code,
            "%s: there are no checksums: %s is not there; "
            "`bags checksum` makes it",
            bagi_tail(reader->file.path), bagi_tail(path));
    else if (code && err)
        *err = why;
    bagi_free_text(memory, path);
    return code;
}

/* Open what stands beside a Bag whose shape is known, into a struct of zeros,
 * and check all that can be had at O(1) cost. Close it also if that failed. */
static bags_code bagi_sums_open(bag_reader *reader, bagi_sums *sums,
    const bagi_bag_options *options, bags_error *err) {
    bags_code code = bagi_sums_find(reader, sums, options->no_mmap, err);
    if (!code)
        code = bagi_sums_shape(reader, sums, err);
    return code ? code : bagi_sums_identity(reader, sums, options, err);
}

/* Hold the CRCs in memory, where they are not mapped. */
static bags_code bagi_sums_load(
    bag_reader *reader, bagi_sums *sums, bags_error *err) {
    if (sums->crcs || reader->length == 0)
        return BAGS_OK;
    if (reader->length > SIZE_MAX / 4)
        return bags_fail(err, BAGS_ERROR_LIMIT, "%s: is larger than memory",
            bagi_tail(sums->file.path));
    size_t size = (size_t)reader->length * 4;
    sums->loaded =
        (unsigned char *)bagi_alloc_raw(&reader->env->memory, size, err);
    if (!sums->loaded)
        return BAGS_ERROR_MEMORY;
    sums->crcs = sums->loaded;
    return bagi_read_at(reader->env, sums->file.handle, sums->file.path, 0,
        sums->loaded, size, err);
}

/* From now on every blob is compared with its checksum. */
static bags_code bagi_sums_attach(
    bag_reader *reader, const bagi_bag_options *options, bags_error *err) {
    reader->sums = (bagi_sums *)bagi_alloc(
        &reader->env->memory, sizeof *reader->sums, err);
    if (!reader->sums)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_sums_open(reader, reader->sums, options, err);
    reader->sums->crcs = reader->sums->file.map;
    if (!code && options->cache_index)
        code = bagi_sums_load(reader, reader->sums, err);
    return code;
}

/* The same for a Bag that is being written, whose checksums have no end yet. They
 * are held in memory: as many as there are, if the power failed, and no blobs but
 * those. Their writer hands them over before the journal that was read. */
static bags_code bagi_sums_attach_live(bag_reader *reader, bags_error *err) {
    reader->sums = (bagi_sums *)bagi_alloc(
        &reader->env->memory, sizeof *reader->sums, err);
    if (!reader->sums)
        return BAGS_ERROR_MEMORY;
    bagi_sums *sums = reader->sums;
    bags_code code = bagi_sums_find(reader, sums, true, err);
    if (!code && reader->length > sums->file.size / 4)
        reader->length = sums->file.size / 4;
    sums->trailer.length = reader->length;
    if (!code)
        code = bagi_sums_load(reader, sums, err);
    bagi_file_close(reader, &sums->file);
    return code;
}

BAGI_COLD static bags_code bagi_sums_fail(const bag_reader *reader,
    uint64_t index, uint64_t start, uint64_t stop, uint32_t noted,
    uint32_t found, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: blob %" PRIu64 ", bytes %" PRIu64 " to %" PRIu64
        ": has the CRC-32C %08" PRIx32
        "; when it was written it had %08" PRIx32,
        bagi_tail(reader->file.path), index, start, stop, found, noted);
}

#define BAGI_SUMS_STEP 128 /* checksums read at once */

/* CRCs of blobs from `index` on, at most BAGI_SUMS_STEP of them: a view of them,
 * or of `room`. */
static bags_code bagi_sums_get(const bag_reader *reader, uint64_t index,
    uint64_t count, unsigned char *room, const unsigned char **crcs,
    bags_error *err) {
    const bagi_sums *sums = reader->sums;
    *crcs = sums->crcs ? sums->crcs + 4 * index : room;
    if (sums->crcs)
        return BAGS_OK;
    if (count > BAGI_SUMS_STEP)
        count = BAGI_SUMS_STEP;
    return bagi_file_read(
        reader, &sums->file, 4 * index, room, (size_t)count * 4, err);
}

/* Compare blobs with their checksums before they are handed out: `count` of
 * them from `index` on, whose bytes begin at `data`, and whose ends are given
 * and in order. */
BAGI_APART static bags_code bagi_sums_check(const bag_reader *reader,
    uint64_t index, uint64_t count, const unsigned char *ends,
    const unsigned char *data, bags_error *err) {
    unsigned char room[4 * BAGI_SUMS_STEP];
    const unsigned char *crcs = room;
    uint64_t start = index ? bagi_load_u64(ends - 8) : 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = i % BAGI_SUMS_STEP;
        bags_code code =
            at ? BAGS_OK
               : bagi_sums_get(reader, index + i, count - i, room, &crcs, err);
        if (code)
            return code;
        uint64_t stop = bagi_load_u64(ends + 8 * i);
        uint32_t noted = bagi_load_u32(crcs + 4 * at);
        uint32_t found = bagi_crc(0, data, (size_t)(stop - start));
        if (noted != found)
            return bagi_sums_fail(
                reader, index + i, start, stop, noted, found, err);
        data += stop - start;
        start = stop;
    }
    return BAGS_OK;
}

static void bagi_bag_release(bag_reader *reader) {
    const bags_allocator *memory = &reader->env->memory;
    if (reader->sums) {
        bagi_sums_close(reader, reader->sums);
        bagi_free(memory, reader->sums, sizeof *reader->sums);
        reader->sums = NULL;
    }
    bagi_file_close(reader, &reader->file);
    bagi_file_close(reader, &reader->index);
    bagi_free(memory, reader->loaded, reader->loaded_size);
    reader->loaded = NULL;
}

/* Open the index, and see how long it is. One that is looked for may be removed
 * meanwhile, by a writer that finishes the Bag. */
static bags_code bagi_bag_open_index(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bool *found, bags_error *err) {
    const bagi_env *env = reader->env;
    bool alone = options->where == BAGI_ALONE;
    bags_path_kind kind = BAGS_PATH_FILE;
    bags_error why;
    char *index = bagi_beside_path(&env->memory, path, ".idx", err);
    if (!index)
        return BAGS_ERROR_MEMORY;
    memset(&why, 0, sizeof why);
    bags_code code = alone ? bagi_kind(env, index, &kind, &why) : BAGS_OK;
    *found = kind == BAGS_PATH_FILE;
    if (!code && *found)
        code = bagi_file_open(reader, &reader->index, index, &why);
    if (code && alone && why.system == ENOENT) {
        bagi_file_close(reader, &reader->index);
        *found = false;
        code = BAGS_OK;
    }
    if (!code && *found)
        code =
            bagi_file_measure(reader, &reader->index, options->no_mmap, &why);
    bagi_free_text(&env->memory, index);
    if (code && err)
        *err = why;
    return code;
}

/* Look for the index of a Bag by itself. A writer makes it just behind the Bag,
 * and removes it when the Bag is finished: that there is none is believed when
 * the Bag has not changed around the look. */
static bags_code bagi_bag_find_index(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bool *found, bags_error *err) {
    const bagi_env *env = reader->env;
    void *file = reader->file.handle;
    uint64_t before = 0, after = 0;
    do {
        bags_code code = bagi_file_size(env, file, path, &before, err);
        if (!code)
            code = bagi_bag_open_index(reader, path, options, found, err);
        if (!code)
            code = bagi_file_size(env, file, path, &after, err);
        if (code)
            return code;
    } while (!*found && before != after);
    return BAGS_OK;
}

/* The files of a Bag. The blobs are measured behind the index, so that they
 * cover it while a writer is at work. */
static bags_code bagi_bag_files(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bool *split, bags_error *err) {
    *split = options->where == BAGI_SPLIT;
    reader->file.grows = reader->index.grows = options->grows;
    bags_code code = bagi_file_open(reader, &reader->file, path, err);
    if (!code && *split)
        code = bagi_bag_open_index(reader, path, options, split, err);
    else if (!code && options->where == BAGI_ALONE && bagi_is_bag_path(path))
        code = bagi_bag_find_index(reader, path, options, split, err);
    return code ? code
                : bagi_file_measure(
                      reader, &reader->file, options->no_mmap, err);
}

static bags_code bagi_bag_shapes(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bags_error *err) {
    bool split = false;
    bags_code code = bagi_bag_files(reader, path, options, &split, err);
    if (code)
        return code;
    code = split ? bagi_bag_shape_split(reader, options->where == BAGI_ALONE,
                       options->unfinished, err)
                 : bagi_bag_shape(reader, options->allow_empty, err);
    if (!code && options->cache_index)
        code = bagi_bag_load(reader, err);
    /* Those of an unfinished Bag are for who opens it. */
    if (!code && options->check && !(options->unfinished && reader->split))
        code = bagi_sums_attach(reader, options, err);
    return code;
}

/* Point at what is mapped. */
static void bagi_bag_point(bag_reader *reader) {
    const bagi_file *table = reader->split ? &reader->index : &reader->file;
    reader->data = reader->file.map;
    if (table->map)
        reader->ends = table->map + reader->table;
    /* Blobs that are compared with checksums take the longer way. */
    if (reader->data && reader->ends && !reader->split && !reader->v2 &&
        !reader->random && !reader->sums) {
        reader->view.data = reader->data;
        reader->view.table = reader->ends - 8;
        reader->view.length = reader->length;
        reader->view.limit = reader->limit;
    }
}

/* Open a Bag into a reader whose env and files are set and the rest 0. */
static bags_code bagi_bag_open(bag_reader *reader, const char *path,
    const bagi_bag_options *options, bags_error *err) {
    bags_code code = bagi_bag_shapes(reader, path, options, err);
    if (code) {
        bagi_bag_release(reader);
        return code == BAGS_ERROR_MEMORY
                   ? bagi_prefix(err, code, "%s: ", bagi_tail(path))
                   : code;
    }
    reader->random = options->access == BAGS_ACCESS_RANDOM &&
                     reader->env->io.advise && reader->file.map;
    if (reader->loaded && reader->split)
        bagi_file_close(reader, &reader->index); /* it is not needed again */
    bagi_bag_point(reader);
    bagi_file_settle(reader, &reader->file);
    bagi_file_settle(reader, &reader->index);
    if (reader->sums)
        bagi_file_settle(reader, &reader->sums->file);
    if (options->access) {
        bags_advice advice = options->access == BAGS_ACCESS_RANDOM
                                 ? BAGS_ADVICE_RANDOM
                                 : BAGS_ADVICE_SEQUENTIAL;
        bagi_file_advise(reader, &reader->file, 0, reader->file.size, advice);
        bagi_file_advise(reader, &reader->index, 0, reader->index.size, advice);
    }
    return BAGS_OK;
}

/* Of a Bag whose ends are at hand: how many blobs from the front lie one behind
 * the other and in the file. */
static uint64_t bagi_bag_whole(const bag_reader *reader) {
    uint64_t start = 0, i = 0;
    for (; i < reader->length; i++) {
        uint64_t stop = bagi_load_u64(reader->ends + 8 * i);
        if (stop < start || stop > reader->limit)
            break;
        start = stop;
    }
    return i;
}

/* Forget the blobs from `length` on, and the file's bytes behind the others. */
static void bagi_bag_trim(bag_reader *reader, uint64_t length) {
    reader->length = length;
    reader->limit = length ? bagi_load_u64(reader->ends + 8 * (length - 1)) : 0;
    if (!reader->file.map)
        reader->file.size = reader->limit;
}

/* A reader of one Bag, with an environment of its own. */
typedef struct bagi_lone {
    bag_reader reader;
    bagi_env env;
} bagi_lone;

static bagi_lone *bagi_lone_new(
    const bag_reader_options *options, bags_error *err) {
    bagi_env env = bagi_env_of(options->env.allocator, options->env.io);
    bagi_lone *lone = (bagi_lone *)bagi_alloc(&env.memory, sizeof *lone, err);
    if (!lone)
        return NULL;
    lone->env = env;
    lone->reader.env = &lone->env;
    return lone;
}

BAGS_API bag_reader *bag_reader_open(
    const char *path, const bag_reader_options *options, bags_error *err) {
    bag_reader_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    if (with.unfinished == BAGS_UNFINISHED_SKIP) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: a Bag has no shards to skip",
            bagi_tail(path));
        return NULL;
    }
    bool live = with.unfinished == BAGS_UNFINISHED_READ;
    bagi_bag_options how = {BAGI_ALONE, with.no_mmap, with.cache_index || live,
        with.allow_empty_file, live, live, with.access, with.verify_checksums,
        NULL, 0, false};
    bagi_lone *lone = bagi_lone_new(&with, err);
    if (!lone)
        return NULL;
    if (bagi_bag_open(&lone->reader, path, &how, err)) {
        bags_allocator memory = lone->env.memory;
        bagi_free(&memory, lone, sizeof *lone);
        return NULL;
    }
    if (live && lone->reader.split && with.verify_checksums &&
        bagi_sums_attach_live(&lone->reader, err)) {
        bag_reader_close(&lone->reader);
        return NULL;
    }
    if (live && lone->reader.split)
        bagi_bag_trim(&lone->reader, bagi_bag_whole(&lone->reader));
    return &lone->reader;
}

BAGS_API bag_reader *bag_reader_open_memory(const void *data, size_t size,
    const bag_reader_options *options, bags_error *err) {
    bag_reader_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    if (with.verify_checksums) {
        bags_fail(err, BAGS_ERROR_ARGUMENT,
            "(memory): a Bag in memory has no checksums beside it");
        return NULL;
    }
    bagi_lone *lone = bagi_lone_new(&with, err);
    if (!lone)
        return NULL;
    bag_reader *reader = &lone->reader;
    reader->in_memory = true;
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
static inline bool bagi_bag_bounds(const bag_reader *reader, uint64_t index,
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
        "%s: blob %" PRIu64 " starts at %" PRIu64
        " and ends before, at %" PRIu64,
        path, index, start, stop);
}

BAGI_COLD static bags_code bagi_bag_fail_index(
    const bag_reader *reader, uint64_t index, bags_error *err) {
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

/* With BAGS_ACCESS_RANDOM a blob of several pages would be read one page at a
 * time, each when it is touched: ask for all of it, unless it is there. */
BAGI_APART static void bagi_bag_wake(
    const bag_reader *reader, uint64_t start, uint64_t size) {
    if (size > 4096)
        bagi_file_advise(reader, &reader->file, start, size, BAGS_ADVICE_SOON);
}

static bags_code bagi_bag_read(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err) {
    unsigned char room[16];
    const unsigned char *ends = room + 8;
    uint64_t start = 0, stop = 0;
    bags_code code = BAGS_OK;
    if (index >= reader->length)
        return bagi_bag_fail_index(reader, index, err);
    if (reader->ends)
        ends = reader->ends + index * 8;
    else
        code = bagi_bag_entries(reader, index, 1, room, err);
    if (code)
        return code;
    if (!bagi_bag_bounds(reader, index, ends, &start, &stop))
        return bagi_bag_fail_bounds(reader, index, start, stop, err);
    if (reader->data) {
        if (reader->sums)
            code = bagi_sums_check(
                reader, index, 1, ends, reader->data + start, err);
        if (code)
            return code;
        out->data = reader->data + start;
        out->size = (size_t)(stop - start);
        if (reader->random)
            bagi_bag_wake(reader, start, stop - start);
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
    if (!code && reader->sums)
        code = bagi_sums_check(reader, index, 1, ends, scratch->data, err);
    if (code)
        return code;
    out->data = scratch->data;
    out->size = (size_t)(stop - start);
    return BAGS_OK;
}

BAGS_API BAGI_APART bags_view bagi_bag_get(const bag_reader *reader,
    uint64_t index, bags_buffer *scratch, bags_error *err) {
    bags_view blob = {NULL, 0};
    bags_code code = bagi_bag_read(reader, index, scratch, &blob, err);
    if (code) {
        blob.data = NULL;
        blob.size = (size_t)code;
    }
    return blob;
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
            code = bagi_bag_entries(
                reader, start, count, scratch->data + *used, err);
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
    bags_code code = bagi_bag_ends(
        reader, start, range.length, scratch, &used, &range.ends, err);
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
        if (reader->random)
            bagi_bag_wake(reader, range.start, range.size);
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
    if (reader->sums)
        code = bagi_sums_check(
            reader, start, range.length, range.ends, range.data, err);
    if (code)
        return code;
    *out = range;
    return BAGS_OK;
}

/* ---- many blobs at once ---- */

/* A blob that somebody asked for, as the place-th of many. */
typedef struct bagi_want {
    uint64_t index;
    uint64_t start; /* in the file; once it was read, in the buffer */
    size_t size, place;
    const unsigned char *data; /* NULL: it is in the buffer */
} bagi_want;

static int bagi_want_order(const void *a, const void *b) {
    uint64_t x = ((const bagi_want *)a)->index;
    uint64_t y = ((const bagi_want *)b)->index;
    return (x > y) - (x < y);
}

static void bagi_wants_sort(bagi_want *wants, size_t count) {
    size_t i = 1;
    while (i < count && wants[i - 1].index <= wants[i].index)
        i++;
    if (i < count)
        qsort(wants, count, sizeof *wants, bagi_want_order);
}

/* A sorted list of what is wanted. It stands at the front of a buffer, which may
 * be the one that blobs are read to, and move. */
typedef struct bagi_list {
    bags_buffer *buffer;
    size_t first, count; /* the wants that are meant */
} bagi_list;

static bagi_want *bagi_wants(const bagi_list *list) {
    return (bagi_want *)(void *)list->buffer->data + list->first;
}

static bags_code bagi_wants_make(
    const uint64_t *indices, size_t count, bagi_list *list, bags_error *err) {
    if (count > SIZE_MAX / 4 / sizeof(bagi_want))
        return bagi_fail_memory(err, SIZE_MAX);
    bags_code code =
        bags_buffer_reserve(list->buffer, count * sizeof(bagi_want) + 1, err);
    if (code)
        return code;
    list->first = 0;
    list->count = count;
    bagi_want *wants = bagi_wants(list);
    for (size_t i = 0; i < count; i++) {
        memset(&wants[i], 0, sizeof *wants);
        wants[i].index = indices[i];
        wants[i].place = i;
    }
    bagi_wants_sort(wants, count);
    return BAGS_OK;
}

/* How many from the i-th on are neighbours in the file, or the same blob. */
static size_t bagi_wants_run(const bagi_list *list, size_t i) {
    const bagi_want *wants = bagi_wants(list);
    size_t stop = i + 1;
    while (stop < list->count && wants[stop].index - wants[stop - 1].index <= 1)
        stop++;
    return stop - i;
}

/* Where the blobs of a run lie. */
static bags_code bagi_run_ends(const bag_reader *reader, const bagi_list *run,
    bags_buffer *buffer, size_t used, bags_error *err) {
    uint64_t first = bagi_wants(run)[0].index;
    uint64_t last = bagi_wants(run)[run->count - 1].index;
    const unsigned char *ends = NULL;
    bags_code code = bagi_bag_ends(
        reader, first, (size_t)(last - first) + 1, buffer, &used, &ends, err);
    if (code)
        return code;
    bagi_want *wants = bagi_wants(run);
    for (size_t i = 0; i < run->count; i++) {
        uint64_t start = 0, stop = 0;
        bagi_bag_bounds(reader, wants[i].index,
            ends + (wants[i].index - first) * 8, &start, &stop);
        if (stop - start > SIZE_MAX / 2)
            return bagi_fail_memory(err, SIZE_MAX);
        wants[i].start = start;
        wants[i].size = (size_t)(stop - start);
    }
    return BAGS_OK;
}

/* Compare the blobs of a run with their checksums, where they lie in the file
 * still being known; `data` is where the first one's bytes are. */
static bags_code bagi_run_check(const bag_reader *reader, const bagi_list *run,
    const unsigned char *data, bags_error *err) {
    const bagi_want *wants = bagi_wants(run);
    bags_code code = BAGS_OK;
    for (size_t i = 0; reader->sums && i < run->count && !code; i++) {
        unsigned char ends[16];
        bagi_store_u64(ends, wants[i].start);
        bagi_store_u64(ends + 8, wants[i].start + wants[i].size);
        code = bagi_sums_check(reader, wants[i].index, 1, ends + 8,
            data + (wants[i].start - wants[0].start), err);
    }
    return code;
}

/* Read a run whose ends are known behind what the buffer holds, unless it is
 * mapped, and only the table is not. */
static bags_code bagi_run_read(const bag_reader *reader, const bagi_list *run,
    bags_buffer *buffer, size_t *used, uint64_t *budget, bags_error *err) {
    bagi_want *wants = bagi_wants(run);
    for (size_t i = 0; reader->data && i < run->count; i++)
        wants[i].data = reader->data + wants[i].start;
    if (reader->data)
        return bagi_run_check(reader, run, wants[0].data, err);
    const bagi_want *last = &bagi_wants(run)[run->count - 1];
    uint64_t start = bagi_wants(run)[0].start;
    uint64_t size = last->start + last->size - start;
    if (size > *budget)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: the table places blobs over each other: those up to %" PRIu64
            " are together larger than the data",
            bagi_tail(reader->file.path), last->index);
    *budget -= size;
    if (size > SIZE_MAX / 2 - *used)
        return bagi_fail_memory(err, SIZE_MAX);
    bags_code code = bags_buffer_reserve(buffer, *used + (size_t)size + 1, err);
    if (!code)
        code = bagi_file_read(reader, &reader->file, start,
            buffer->data + *used, (size_t)size, err);
    if (!code)
        code = bagi_run_check(reader, run, buffer->data + *used, err);
    if (code)
        return code;
    wants = bagi_wants(run); /* it may have moved */
    for (size_t i = 0; i < run->count; i++)
        wants[i].start = wants[i].start - start + *used;
    *used += (size_t)size;
    return BAGS_OK;
}

static bags_code bagi_wants_map(const bag_reader *reader, bagi_want *want,
    bags_buffer *scratch, bags_error *err) {
    bags_view blob = {NULL, 0};
    bags_code code = bag_reader_get(reader, want->index, scratch, &blob, err);
    want->data = blob.data;
    want->size = blob.size;
    return code;
}

/*
 * Find the blobs of a sorted list: in the map, or read behind the *used bytes
 * of the buffer, neighbours with one read. What is wanted twice is read once, so
 * that no more is read than the file has; a table that places blobs over each
 * other is refused when that is spent.
 */
static bags_code bagi_wants_read(const bag_reader *reader,
    const bagi_list *list, bags_buffer *buffer, size_t *used, bags_error *err) {
    bags_code code = BAGS_OK;
    bagi_list run = {list->buffer, 0, 1};
    if (list->count == 0)
        return BAGS_OK;
    uint64_t budget = reader->limit;
    uint64_t last = bagi_wants(list)[list->count - 1].index;
    if (last >= reader->length)
        return bagi_bag_fail_index(reader, last, err);
    bagi_buffer_adopt(buffer, &reader->env->memory);
    for (size_t i = 0; i < list->count && !code; i += run.count) {
        if (reader->data && reader->ends) {
            code = bagi_wants_map(reader, &bagi_wants(list)[i], buffer, err);
            continue;
        }
        run.first = list->first + i;
        run.count = bagi_wants_run(list, i);
        code = bagi_run_ends(reader, &run, buffer, *used, err);
        if (!code)
            code = bagi_run_read(reader, &run, buffer, used, &budget, err);
    }
    return code;
}

/* Where a blob that was found is, once the buffer does not move any more. */
static bags_view bagi_want_view(
    const bagi_want *want, const bags_buffer *buffer) {
    bags_view blob = {want->data, want->size};
    if (!blob.data)
        blob.data = buffer->data + want->start;
    return blob;
}

BAGS_API bags_code bag_reader_get_many(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch, bags_view *out,
    bags_error *err) {
    bagi_list list = {scratch, 0, 0};
    bagi_buffer_adopt(scratch, &reader->env->memory);
    bags_code code = bagi_wants_make(indices, count, &list, err);
    size_t used = count * sizeof(bagi_want);
    if (!code)
        code = bagi_wants_read(reader, &list, scratch, &used, err);
    if (code)
        return code;
    const bagi_want *wants = bagi_wants(&list);
    for (size_t i = 0; i < count; i++)
        out[wants[i].place] = bagi_want_view(&wants[i], scratch);
    return BAGS_OK;
}

/* A part of a file that will be asked for, once it is known where it ends. */
typedef struct bagi_ahead {
    const bag_reader *reader;
    const bagi_file *file;
    uint64_t start, stop;
} bagi_ahead;

#define BAGI_AHEAD_GAP 8192 /* bytes between two parts that are read as one */

static void bagi_ahead_ask(bagi_ahead *ahead) {
    if (ahead->file)
        bagi_file_advise(ahead->reader, ahead->file, ahead->start,
            ahead->stop - ahead->start, BAGS_ADVICE_SOON);
    ahead->file = NULL;
}

static void bagi_ahead_add(bagi_ahead *ahead, const bag_reader *reader,
    const bagi_file *file, uint64_t start, uint64_t stop) {
    if (start >= stop)
        return;
    if (ahead->file == file && start >= ahead->start &&
        start <= ahead->stop + BAGI_AHEAD_GAP) {
        if (ahead->stop < stop)
            ahead->stop = stop;
        return;
    }
    bagi_ahead_ask(ahead);
    ahead->reader = reader;
    ahead->file = file;
    ahead->start = start;
    ahead->stop = stop;
}

/* The entries of `count` >= 1 blobs, and the one before. */
static void bagi_ahead_table(bagi_ahead *ahead, const bag_reader *reader,
    uint64_t first, uint64_t count) {
    uint64_t start = reader->table + 8 * first;
    if (!reader->loaded)
        bagi_ahead_add(ahead, reader,
            reader->split ? &reader->index : &reader->file,
            first ? start - 8 : start, start + 8 * count);
}

/* The blobs themselves. */
static bags_code bagi_ahead_blobs(bagi_ahead *ahead, const bag_reader *reader,
    uint64_t first, uint64_t count, bags_error *err) {
    uint64_t start[2], stop[2];
    for (int i = 0; i < 2; i++) {
        unsigned char room[16];
        uint64_t index = i ? first + count - 1 : first;
        const unsigned char *ends =
            reader->ends ? reader->ends + index * 8 : room + 8;
        bags_code code = reader->ends
                             ? BAGS_OK
                             : bagi_bag_entries(reader, index, 1, room, err);
        if (code)
            return code;
        if (!bagi_bag_bounds(reader, index, ends, &start[i], &stop[i]))
            return bagi_bag_fail_bounds(reader, index, start[i], stop[i], err);
    }
    bagi_ahead_add(ahead, reader, &reader->file, start[0], stop[1]);
    return BAGS_OK;
}

BAGS_API bags_code bag_reader_prefetch(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch,
    bags_error *err) {
    bagi_list list = {scratch, 0, 0};
    bagi_ahead ahead;
    memset(&ahead, 0, sizeof ahead);
    bagi_buffer_adopt(scratch, &reader->env->memory);
    bags_code code = bagi_wants_make(indices, count, &list, err);
    if (code)
        return code;
    const bagi_want *wants = bagi_wants(&list);
    if (count && wants[count - 1].index >= reader->length)
        return bagi_bag_fail_index(reader, wants[count - 1].index, err);
    for (size_t i = 0; i < count; i++)
        bagi_ahead_table(&ahead, reader, wants[i].index, 1);
    bagi_ahead_ask(&ahead);
    for (size_t i = 0; i < count && !code; i++)
        code = bagi_ahead_blobs(&ahead, reader, wants[i].index, 1, err);
    bagi_ahead_ask(&ahead);
    return code;
}

/* ---- a whole Bag and its checksums ---- */

#define BAGI_PASS_ENTRIES ((size_t)8192) /* entries a read */
#define BAGI_PASS_BYTES ((size_t)128 << 10)

/* All blobs of a Bag from the first to the last, with their CRCs; what is not
 * mapped passes through memory of a fixed size. */
typedef struct bagi_pass {
    const bag_reader *bag;
    unsigned char *entries, *bytes; /* NULL where the file is mapped */
    const unsigned char *ends;      /* of the blobs from `from` on */
    uint64_t from, until;
    uint64_t first, last; /* which bytes of the file `bytes` has */
    uint64_t length;      /* blobs that are behind it */
    uint64_t start, stop; /* of the blob it is at */
    uint32_t table;       /* CRC of the table, so far */
} bagi_pass;

static bags_code bagi_pass_begin(
    bagi_pass *pass, const bag_reader *bag, bags_error *err) {
    static const unsigned char zero[8] = {0};
    const bags_allocator *memory = &bag->env->memory;
    memset(pass, 0, sizeof *pass);
    pass->bag = bag;
    if (!bag->split && !bag->v2)
        pass->table = bagi_crc(0, zero, sizeof zero);
    if (bag->length && !bag->ends) {
        pass->entries = (unsigned char *)bagi_alloc_raw(
            memory, (BAGI_PASS_ENTRIES + 1) * 8, err);
        if (!pass->entries)
            return BAGS_ERROR_MEMORY;
    }
    return BAGS_OK;
}

static void bagi_pass_end(bagi_pass *pass) {
    const bags_allocator *memory = &pass->bag->env->memory;
    bagi_free(memory, pass->entries, (BAGI_PASS_ENTRIES + 1) * 8);
    bagi_free(memory, pass->bytes, BAGI_PASS_BYTES);
}

/* More entries of the table. */
static bags_code bagi_pass_entries(bagi_pass *pass, bags_error *err) {
    const bag_reader *bag = pass->bag;
    uint64_t count = bag->length - pass->length;
    if (count > BAGI_PASS_ENTRIES)
        count = BAGI_PASS_ENTRIES;
    pass->from = pass->length;
    pass->until = pass->length + count;
    if (bag->ends) {
        pass->ends = bag->ends + 8 * pass->from;
    } else {
        bags_code code = bagi_bag_entries(
            bag, pass->from, (size_t)count, pass->entries, err);
        if (code)
            return code;
        pass->ends = pass->entries + 8;
    }
    pass->table = bagi_crc(pass->table, pass->ends, (size_t)count * 8);
    return BAGS_OK;
}

/* Go to the next blob; there must be one. *right says whether it lies within the
 * data, behind the one before. */
static bags_code bagi_pass_next(bagi_pass *pass, bool *right, bags_error *err) {
    bags_code code =
        pass->length == pass->until ? bagi_pass_entries(pass, err) : BAGS_OK;
    if (code)
        return code;
    *right = bagi_bag_bounds(pass->bag, pass->length,
        pass->ends + 8 * (pass->length - pass->from), &pass->start,
        &pass->stop);
    pass->length++;
    return BAGS_OK;
}

/* Read on, where the file is not mapped. */
static bags_code bagi_pass_read(bagi_pass *pass, uint64_t at, bags_error *err) {
    const bag_reader *bag = pass->bag;
    uint64_t rest = bag->limit - at;
    size_t size = rest < BAGI_PASS_BYTES ? (size_t)rest : BAGI_PASS_BYTES;
    if (!pass->bytes)
        pass->bytes = (unsigned char *)bagi_alloc_raw(
            &bag->env->memory, BAGI_PASS_BYTES, err);
    if (!pass->bytes)
        return BAGS_ERROR_MEMORY;
    pass->first = at;
    pass->last = at + size;
    return bagi_file_read(bag, &bag->file, at, pass->bytes, size, err);
}

/* The CRC of the blob it is at, which is right. */
static bags_code bagi_pass_sum(
    bagi_pass *pass, uint32_t *sum, bags_error *err) {
    const bag_reader *bag = pass->bag;
    *sum = 0;
    if (bag->data) {
        *sum = bagi_crc(
            0, bag->data + pass->start, (size_t)(pass->stop - pass->start));
        return BAGS_OK;
    }
    for (uint64_t at = pass->start; at < pass->stop;) {
        bags_code code = BAGS_OK;
        if (at < pass->first || at >= pass->last)
            code = bagi_pass_read(pass, at, err);
        if (code)
            return code;
        uint64_t until = pass->stop < pass->last ? pass->stop : pass->last;
        *sum = bagi_crc(
            *sum, pass->bytes + (at - pass->first), (size_t)(until - at));
        at = until;
    }
    return BAGS_OK;
}

/* Whether there are checksums beside a Bag. */
static bags_code bagi_sums_exist(
    const bag_reader *bag, bool *exist, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    const bags_allocator *memory = &bag->env->memory;
    *exist = false;
    if (bag->in_memory)
        return BAGS_OK;
    char *path = bagi_beside_path(memory, bag->file.path, ".crc", err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_kind(bag->env, path, &kind, err);
    bagi_free_text(memory, path);
    *exist = kind != BAGS_PATH_NONE;
    return code;
}

BAGS_API bags_code bag_reader_summed(
    const bag_reader *reader, bool *summed, bags_error *err) {
    bool exist = false;
    bags_code code = bagi_sums_exist(reader, &exist, err);
    if (!code)
        *summed = exist;
    return code;
}

#define BAGI_NO_BLOB UINT64_MAX

/* Takes a fault: of a blob, or of BAGI_NO_BLOB, the table, the sidecar or
 * spec.json. changed: of a blob, that the table has changed too and may place it
 * wrong; else that a blob's fault may tell of the same. What it returns ends the
 * look, unless it is BAGS_OK. */
typedef bags_code (*bagi_take_fault)(void *user, uint64_t blob, uint64_t offset,
    bool changed, const bags_error *fault);

typedef struct bagi_sums_look {
    const bag_reader *bag;
    const bagi_sums *sums;
    bagi_pass pass;
    unsigned char room[4 * BAGI_SUMS_STEP];
    uint32_t all; /* CRC of the CRCs, so far */
    bool looked;  /* whether it is known: */
    bool changed; /* the table is not what it was */
    bagi_take_fault take;
    void *user;
} bagi_sums_look;

/* Whether the table is what it was, asked when the first blob is not. */
static bags_code bagi_sums_look_table(bagi_sums_look *look, bags_error *err) {
    bagi_pass pass;
    if (look->looked)
        return BAGS_OK;
    bags_code code = bagi_pass_begin(&pass, look->bag, err);
    while (!code && pass.length < look->bag->length) {
        code = bagi_pass_entries(&pass, err);
        pass.length = pass.until;
    }
    look->looked = !code;
    look->changed = !code && pass.table != look->sums->trailer.table;
    bagi_pass_end(&pass);
    return code;
}

/* Compare the next blob. One that lies nowhere has no CRC: the table's CRC tells
 * of it. */
static bags_code bagi_sums_look_next(bagi_sums_look *look, bags_error *err) {
    bagi_pass *pass = &look->pass;
    const bagi_file *file = &look->sums->file;
    uint64_t index = pass->length, at = index % BAGI_SUMS_STEP;
    uint64_t count = look->bag->length - index;
    bool right = false;
    uint32_t found = 0, noted;
    bags_error fault;
    bags_code code = BAGS_OK;
    if (count > BAGI_SUMS_STEP)
        count = BAGI_SUMS_STEP;
    if (at == 0) {
        code = bagi_read_at(look->bag->env, file->handle, file->path, 4 * index,
            look->room, (size_t)count * 4, err);
        if (!code)
            look->all = bagi_crc(look->all, look->room, (size_t)count * 4);
    }
    if (!code)
        code = bagi_pass_next(pass, &right, err);
    if (!code && right)
        code = bagi_pass_sum(pass, &found, err);
    noted = bagi_load_u32(look->room + 4 * at);
    if (code || !right || found == noted)
        return code;
    code = bagi_sums_look_table(look, err);
    if (code)
        return code;
    bagi_sums_fail(
        look->bag, index, pass->start, pass->stop, noted, found, &fault);
    return look->take(look->user, index, pass->start, look->changed, &fault);
}

static bags_code bagi_sums_look_at(bagi_sums_look *look, const char *path,
    const char *what, uint32_t noted, uint32_t found) {
    bags_error fault;
    if (noted == found)
        return BAGS_OK;
    bags_fail(&fault, BAGS_ERROR_CORRUPT,
        "%s: %s the CRC-32C %08" PRIx32
        "; when they were written they had %08" PRIx32,
        bagi_tail(path), what, found, noted);
    return look->take(look->user, BAGI_NO_BLOB, 0, true, &fault);
}

/*
 * Compare a whole Bag with the checksums beside it, which must be there. Every
 * fault goes to `take`. BAGS_OK, or what ended the look: `take`, or that a file
 * could not be read.
 */
static bags_code bagi_sums_verify(const bag_reader *bag,
    const bagi_bag_options *options, bagi_take_fault take, void *user,
    bags_error *err) {
    bagi_bag_options how = *options;
    bagi_sums sums;
    bagi_sums_look look;
    bags_error why;
    /* A file by position that no set knows: nothing of the Bag changes. */
    bag_reader *owner = (bag_reader *)(uintptr_t)bag;
    memset(&sums, 0, sizeof sums);
    how.no_mmap = true;
    look.bag = bag;
    look.sums = &sums;
    look.all = 0;
    look.looked = look.changed = false;
    look.take = take;
    look.user = user;
    bags_code code = bagi_sums_open(owner, &sums, &how, &why);
    if (code == BAGS_ERROR_CORRUPT || code == BAGS_ERROR_MISSING)
        code = take(user, BAGI_NO_BLOB, 0, false, &why);
    else if (code && err)
        *err = why;
    if (sums.whole && !code) {
        code = bagi_pass_begin(&look.pass, bag, err);
        while (!code && look.pass.length < bag->length)
            code = bagi_sums_look_next(&look, err);
        if (!code)
            code = bagi_sums_look_at(&look, bag->file.path,
                "the table's entries have", sums.trailer.table,
                look.pass.table);
        if (!code)
            code = bagi_sums_look_at(&look, sums.file.path,
                "the checksums have", sums.trailer.sums, look.all);
        bagi_pass_end(&look.pass);
    }
    bagi_sums_close(owner, &sums);
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
    size_t capacity;       /* of the buffer */
    uint64_t base;
    uint64_t end;      /* of what was put */
    uint64_t written;  /* of what the system has; what is behind in the buffer,
                         up to `end`, it has not */
    uint64_t high;     /* of what the file has held, cut off later */
    uint64_t reserved; /* bytes that disk space was asked for */
    uint64_t begun;    /* bytes that are on their way to the disk */
    bool moved;        /* base was not always 0: the buffer is not the file */
    bool synced;       /* it will be synced */
} bagi_out;

#define BAGI_RESERVE_LEAST ((uint64_t)1 << 20)
#define BAGI_RESERVE_MOST ((uint64_t)64 << 20)
#define BAGI_WRITE_BACK_LEAST ((uint64_t)16 << 20)

/* Ask for disk space ahead of what is written, as much again as the file has,
 * so that small files take none that they do not need. */
static void bagi_out_reserve(const bagi_env *env, bagi_out *out, size_t size) {
    uint64_t end = out->written + size;
    if (!env->io.reserve || end <= out->reserved || size < BAGI_RESERVE_LEAST)
        return;
    out->reserved = end + (end < BAGI_RESERVE_MOST ? end : BAGI_RESERVE_MOST);
    /* It is told about a full disk when it writes. */
    env->io.reserve(env->io.user, out->handle, out->reserved);
}

/* A sync at the end does not wait for what is on the disk by then. Who will not
 * sync does not wait for it at all. */
static void bagi_out_write_back(const bagi_env *env, bagi_out *out) {
    uint64_t size = out->written - out->begun;
    if (!env->io.write_back || !out->synced || size < BAGI_WRITE_BACK_LEAST)
        return;
    env->io.write_back(env->io.user, out->handle, out->begun, size);
    out->begun = out->written;
}

static bags_code bagi_out_write(const bagi_env *env, bagi_out *out,
    const unsigned char *data, size_t size, bags_error *err) {
    if (out->written > (uint64_t)INT64_MAX - size)
        return bags_fail(err, BAGS_ERROR_LIMIT, "%s: is larger than 2^63 bytes",
            bagi_tail(out->path));
    bagi_out_reserve(env, out, size);
    bags_code code = bagi_write_at(
        env, out->handle, out->path, out->written, data, size, err);
    if (code)
        return code;
    out->written += size;
    if (out->high < out->written)
        out->high = out->written;
    bagi_out_write_back(env, out);
    return BAGS_OK;
}

static bags_code bagi_out_flush(
    const bagi_env *env, bagi_out *out, bags_error *err) {
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
    if (out->begun > end)
        out->begun = end;
    out->end = end;
}

/* A file that has been closed already stays as it is. */
static bags_code bagi_out_cut(
    const bagi_env *env, bagi_out *out, bags_error *err) {
    if (!out->handle || (out->high <= out->end && out->reserved <= out->end))
        return BAGS_OK;
    int error = env->io.truncate(env->io.user, out->handle, out->end);
    if (error)
        return bagi_fail_system(err, error, out->path, "cut");
    out->high = out->reserved = out->end;
    return BAGS_OK;
}

static bags_code bagi_out_sync(
    const bagi_env *env, bagi_out *out, bags_error *err) {
    int error = env->io.sync(env->io.user, out->handle);
    return error ? bagi_fail_system(err, error, out->path, "sync") : BAGS_OK;
}

/* Start on a new file, which must not exist. The path is taken over; the buffer
 * stays from file to file. */
static bags_code bagi_out_create(
    const bagi_env *env, bagi_out *out, char *path, bags_error *err) {
    out->path = path;
    out->base = out->end = out->written = out->high = 0;
    out->reserved = out->begun = 0;
    out->moved = false;
    return path ? bagi_open(env, path, BAGS_IO_CREATE, &out->handle, err)
                : BAGS_ERROR_MEMORY;
}

/* Close the file and forget it. A failed close may have lost data. */
static bags_code bagi_out_close(
    const bagi_env *env, bagi_out *out, bags_error *err) {
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
    bagi_out sums; /* the CRCs of the blobs, if summed */
    bool summed;
    uint32_t name, spec; /* for the end of the sums: CRCs, 0 if alone */
    uint32_t table;      /* CRC of the table, when it has been put */
    uint64_t length;
    uint64_t kept_length, kept_end;   /* what whole datapoints use */
    uint64_t found_length, found_end; /* what was there when it was opened */
} bagi_column;

#define BAGI_BUFFER_DEFAULT ((size_t)2 << 20)
#define BAGI_BUFFER_LEAST ((size_t)4096)

static bags_code bagi_column_init(const bags_allocator *memory,
    bagi_column *column, size_t buffer_size, bool no_sync, bags_error *err) {
    size_t size = BAGI_BUFFER_LEAST;
    column->blobs.synced = !no_sync;
    if (buffer_size == 0)
        buffer_size = BAGI_BUFFER_DEFAULT;
    while (size < buffer_size && size <= SIZE_MAX / 4)
        size *= 2;
    column->blobs.capacity = size;
    column->ends.capacity = size / 2;
    column->blobs.buffer = (unsigned char *)bagi_alloc_raw(memory, size, err);
    column->ends.buffer =
        (unsigned char *)bagi_alloc_raw(memory, size / 2, err);
    return column->blobs.buffer && column->ends.buffer ? BAGS_OK
                                                       : BAGS_ERROR_MEMORY;
}

static void bagi_column_free(
    const bags_allocator *memory, bagi_column *column) {
    bagi_free(memory, column->blobs.buffer, column->blobs.capacity);
    bagi_free(memory, column->ends.buffer, column->ends.capacity);
    bagi_free(memory, column->sums.buffer, column->sums.capacity);
}

/* Have the column keep checksums, in a file that is there or will be. Their
 * buffer is full when that of the ends is. */
static bags_code bagi_column_sum(const bags_allocator *memory,
    bagi_column *column, uint32_t name, uint32_t spec, bags_error *err) {
    column->summed = true;
    column->name = name;
    column->spec = spec;
    if (column->sums.buffer)
        return BAGS_OK;
    column->sums.capacity = column->ends.capacity / 2;
    column->sums.buffer =
        (unsigned char *)bagi_alloc_raw(memory, column->sums.capacity, err);
    return column->sums.buffer ? BAGS_OK : BAGS_ERROR_MEMORY;
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

/* What an end speaks of: the blob, and its checksum if it has one. */
static bags_code bagi_column_flush_blobs(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_out_flush(env, &column->blobs, err);
    if (!code && column->summed)
        code = bagi_out_flush(env, &column->sums, err);
    return code;
}

/* Blobs before their ends, so that no end speaks of a blob that is not there. */
static bags_code bagi_column_flush(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_column_flush_blobs(env, column, err);
    return code ? code : bagi_out_flush(env, &column->ends, err);
}

static bags_code bagi_column_add_sum(const bagi_env *env, bagi_column *column,
    const unsigned char *data, size_t size, bags_error *err) {
    unsigned char sum[4];
    bagi_store_u32(sum, bagi_crc(0, data, size));
    return bagi_out_put(env, &column->sums, sum, sizeof sum, err);
}

/* Where the blob does not fit into the buffer, or its end would fill the
 * other. When a piece of blobs was handed over, so are the ends before: then it
 * is seldom they that fill up, and cut the next piece short. */
BAGI_APART static bags_code bagi_column_spill(const bagi_env *env,
    bagi_column *column, const unsigned char *data, size_t size,
    bags_error *err) {
    unsigned char end[8];
    uint64_t base = column->blobs.base;
    bags_code code = bagi_out_put(env, &column->blobs, data, size, err);
    if (!code && column->blobs.base != base) {
        if (column->summed)
            code = bagi_out_flush(env, &column->sums, err);
        if (!code)
            code = bagi_out_flush(env, &column->ends, err);
        bagi_out_advance(&column->ends);
    } else if (!code) {
        code = bagi_column_flush_blobs(env, column, err);
    }
    if (code)
        return code;
    bagi_store_u64(end, column->blobs.end);
    code = bagi_out_put(env, &column->ends, end, sizeof end, err);
    if (!code)
        column->length++;
    return code;
}

static inline bags_code bagi_column_add(const bagi_env *env,
    bagi_column *column, const unsigned char *data, size_t size,
    bags_error *err) {
    bagi_out *blobs = &column->blobs, *ends = &column->ends;
    if (BAGI_UNLIKELY(column->summed)) {
        bags_code code = bagi_column_add_sum(env, column, data, size, err);
        if (code)
            return code;
    }
    if (BAGI_UNLIKELY(size >= bagi_out_room(blobs) || bagi_out_room(ends) <= 8))
        return bagi_column_spill(env, column, data, size, err);
    if (size)
        memcpy(blobs->buffer + (blobs->end - blobs->base), data, size);
    blobs->end += size;
    bagi_store_u64(ends->buffer + (ends->end - ends->base), blobs->end);
    ends->end += 8;
    column->length++;
    return BAGS_OK;
}

static void bagi_column_keep(bagi_column *column) {
    column->kept_length = column->length;
    column->kept_end = column->blobs.end;
}

static void bagi_column_rewind(bagi_column *column) {
    bagi_out_rewind(&column->blobs, column->kept_end);
    bagi_out_rewind(&column->ends, column->kept_length * 8);
    if (column->summed)
        bagi_out_rewind(&column->sums, column->kept_length * 4);
    column->length = column->kept_length;
}

/* Bytes of the Bag when it is closed. */
static uint64_t bagi_column_size(const bagi_column *column) {
    return column->blobs.end + 8 * (column->length + 1);
}

/* Bytes of a flushed file from `at` on: a view of the buffer, which they fill
 * unless the file ends. */
static bags_code bagi_out_piece(const bagi_env *env, bagi_out *out, uint64_t at,
    bags_view *piece, bags_error *err) {
    piece->data = out->buffer;
    piece->size =
        out->end - at < out->capacity ? (size_t)(out->end - at) : out->capacity;
    if (!out->moved)
        return BAGS_OK; /* the buffer is the file */
    return bagi_read_at(
        env, out->handle, out->path, at, out->buffer, piece->size, err);
}

/* Put bytes of another file behind, read into the buffer; *crc, if it is wanted,
 * goes on over them. */
static bags_code bagi_out_copy(const bagi_env *env, bagi_out *out,
    const bagi_out *from, uint32_t *crc, bags_error *err) {
    bags_code code = BAGS_OK;
    for (uint64_t at = 0; at < from->end && !code;) {
        size_t step = bagi_out_room(out);
        if (from->end - at < step)
            step = (size_t)(from->end - at);
        code = bagi_read_at(env, from->handle, from->path, at,
            out->buffer + (out->end - out->base), step, err);
        if (code)
            return code;
        if (crc)
            *crc = bagi_crc(*crc, out->buffer + (out->end - out->base), step);
        at += step;
        out->end += step;
        if (bagi_out_room(out) == 0) {
            code = bagi_out_flush(env, out, err);
            bagi_out_advance(out);
        }
    }
    return code;
}

/* Put the table behind the blobs: a 0, and then the journal, which has been
 * flushed, as it is. */
static bags_code bagi_column_table(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    static const unsigned char zero[8] = {0};
    const bagi_out *ends = &column->ends;
    uint32_t *crc = column->summed ? &column->table : NULL;
    bags_code code = bagi_out_put(env, &column->blobs, zero, sizeof zero, err);
    if (code)
        return code;
    if (crc)
        *crc = bagi_crc(0, zero, sizeof zero);
    if (crc && !ends->moved)
        *crc = bagi_crc(*crc, ends->buffer, (size_t)ends->end);
    return ends->moved ? bagi_out_copy(env, &column->blobs, ends, crc, err)
                       : bagi_out_put(env, &column->blobs, ends->buffer,
                             (size_t)ends->end, err);
}

/* Put behind the checksums what makes them a sidecar, when the Bag has its
 * table. */
static bags_code bagi_column_seal(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bagi_trailer trailer = {column->length, column->blobs.end, column->table, 0,
        column->name, column->spec};
    unsigned char room[BAGI_TRAILER_SIZE];
    bagi_out *sums = &column->sums;
    bags_code code = BAGS_OK;
    bags_view piece;
    for (uint64_t at = 0; at < sums->end && !code; at += piece.size) {
        code = bagi_out_piece(env, sums, at, &piece, err);
        if (!code)
            trailer.sums = bagi_crc(trailer.sums, piece.data, piece.size);
    }
    if (code)
        return code;
    bagi_trailer_store(&trailer, room);
    code = bagi_out_put(env, sums, room, sizeof room, err);
    if (!code)
        code = bagi_out_flush(env, sums, err);
    return code ? code : bagi_out_cut(env, sums, err);
}

static bags_code bagi_column_sync(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_out_sync(env, &column->blobs, err);
    if (!code && column->summed)
        code = bagi_out_sync(env, &column->sums, err);
    return code ? code : bagi_out_sync(env, &column->ends, err);
}

/* Make the Bag whole; both files stay open. A journal that stays is on the disk
 * before there is a table, so that it never knows of fewer blobs. */
static bags_code bagi_column_finish(const bagi_env *env, bagi_column *column,
    bool keep_idx, bool no_sync, bags_error *err) {
    bags_code code = bagi_column_flush(env, column, err);
    if (!code && keep_idx)
        code = bagi_out_cut(env, &column->ends, err);
    if (!code && !no_sync && keep_idx)
        code = bagi_out_sync(env, &column->ends, err);
    if (!code)
        code = bagi_column_table(env, column, err);
    if (!code && column->summed)
        code = bagi_column_seal(env, column, err);
    if (!code)
        code = bagi_out_flush(env, &column->blobs, err);
    if (!code)
        code = bagi_out_cut(env, &column->blobs, err);
    if (!code && !no_sync)
        code = bagi_out_sync(env, &column->blobs, err);
    if (!code && !no_sync && column->summed)
        code = bagi_out_sync(env, &column->sums, err);
    return code;
}

/* Close the files that stay when the Bag is whole. */
static bags_code bagi_column_close_kept(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_out_close(env, &column->blobs, err);
    bags_code also = bagi_out_close(env, &column->sums, code ? NULL : err);
    return code ? code : also;
}

static bags_code bagi_column_close(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_column_close_kept(env, column, err);
    bags_code also = bagi_out_close(env, &column->ends, code ? NULL : err);
    column->summed = false;
    return code ? code : also;
}

static void bagi_column_remove(const bagi_env *env, bagi_column *column) {
    bagi_out_remove(env, &column->blobs);
    bagi_out_remove(env, &column->ends);
    bagi_out_remove(env, &column->sums);
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

BAGI_COLD static bags_code bagi_fail_no_writer(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "there is no writer");
}

static void bagi_bag_writer_free(bag_writer *writer) {
    bags_allocator memory = writer->env.memory;
    bagi_column_free(&memory, &writer->column);
    bagi_free(&memory, writer, sizeof *writer);
}

/* Create NAME.bag, locked for as long as the writer works, and NAME.idx: where
 * that is, recovery finds the lock. */
static bags_code bagi_bag_writer_create(
    bag_writer *writer, const char *path, bags_error *err) {
    const bagi_env *env = &writer->env;
    bagi_out *blobs = &writer->column.blobs;
    bags_code code = bagi_out_create(
        env, blobs, bagi_copy_text(&env->memory, path, strlen(path), err), err);
    int error = code ? 0 : env->io.lock(env->io.user, blobs->handle);
    if (error)
        code = bagi_fail_system(err, error, path, "lock");
    return code ? code
                : bagi_out_create(env, &writer->column.ends,
                      bagi_beside_path(&env->memory, path, ".idx", err), err);
}

static bags_code bagi_bag_writer_sum(
    bag_writer *writer, const char *path, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    bags_code code = bagi_column_sum(memory, &writer->column, 0, 0, err);
    return code ? code
                : bagi_out_create(&writer->env, &writer->column.sums,
                      bagi_beside_path(memory, path, ".crc", err), err);
}

/* A Bag that was removed may have left its checksums, which would be taken for
 * those of this one. */
static bags_code bagi_bag_writer_no_sums(
    bag_writer *writer, const char *path, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    char *sums = bagi_beside_path(&writer->env.memory, path, ".crc", err);
    bags_code code =
        sums ? bagi_kind(&writer->env, sums, &kind, err) : BAGS_ERROR_MEMORY;
    if (!code && kind != BAGS_PATH_NONE)
        code = bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: exists already: the checksums of another Bag",
            bagi_tail(sums));
    bagi_free_text(&writer->env.memory, sums);
    return code;
}

BAGS_API bag_writer *bag_writer_open(
    const char *path, const bag_writer_options *options, bags_error *err) {
    bag_writer_options with;
    memset(&with, 0, sizeof with);
    if (options)
        with = *options;
    bagi_env env = bagi_env_of(with.env.allocator, with.env.io);
    bag_writer *writer =
        (bag_writer *)bagi_alloc(&env.memory, sizeof *writer, err);
    if (!writer)
        return NULL;
    writer->env = env;
    writer->keep_idx = with.keep_idx;
    writer->no_sync = with.no_sync;
    bags_code code = bagi_column_init(
        &env.memory, &writer->column, with.buffer_size, with.no_sync, err);
    if (!code)
        code = bagi_bag_writer_create(writer, path, err);
    if (!code)
        code = with.checksum ? bagi_bag_writer_sum(writer, path, err)
                             : bagi_bag_writer_no_sums(writer, path, err);
    if (!code)
        return writer;
    bagi_column_remove(&env, &writer->column);
    bagi_bag_writer_free(writer);
    return NULL;
}

/* Flush, and wait for the disk: for the names of both files too. */
static bags_code bagi_bag_writer_sync(bag_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    bagi_column *column = &writer->column;
    bags_code code = bagi_column_flush(env, column, err);
    if (!code)
        code = bagi_column_sync(env, column, err);
    return code ? code : bagi_sync_above(env, column->blobs.path, 1, err);
}

BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data,
    size_t size, uint64_t *index, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (writer->failure.code)
        return bagi_keep_failure(&writer->failure, err);
    bags_code code = bagi_column_add(&writer->env, &writer->column,
        (const unsigned char *)data, size, &writer->failure);
    if (code)
        return bagi_keep_failure(&writer->failure, err);
    if (index)
        *index = writer->column.length - 1;
    return BAGS_OK;
}

BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (!writer->failure.code)
        bagi_column_flush(&writer->env, &writer->column, &writer->failure);
    return writer->failure.code ? bagi_keep_failure(&writer->failure, err)
                                : BAGS_OK;
}

BAGS_API bags_code bag_writer_sync(bag_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (!writer->failure.code)
        bagi_bag_writer_sync(writer, &writer->failure);
    return writer->failure.code ? bagi_keep_failure(&writer->failure, err)
                                : BAGS_OK;
}

BAGS_API uint64_t bag_writer_length(const bag_writer *writer) {
    return writer ? writer->column.length : 0;
}

BAGS_API uint64_t bag_writer_size(const bag_writer *writer) {
    return writer ? bagi_column_size(&writer->column) : 0;
}

BAGS_API bags_code bag_writer_close(bag_writer *writer, bags_error *err) {
    if (!writer)
        return BAGS_OK;
    bagi_column *column = &writer->column;
    bags_error *failure = &writer->failure;
    /* The journal must be as whole as the Bag: a loss of power may undo its
     * removal, and readers look at it. */
    if (!failure->code)
        bagi_column_finish(
            &writer->env, column, true, writer->no_sync, failure);
    if (!failure->code && !writer->no_sync)
        bagi_sync_above(&writer->env, column->blobs.path, 1, failure);
    if (!failure->code)
        bagi_column_close_kept(&writer->env, column, failure);
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

/* ---- checksums for a Bag that is there ---- */

/* Write the CRCs of all blobs of a Bag, and their end. */
static bags_code bagi_sums_fill(const bag_reader *bag, bagi_out *out,
    const bagi_bag_options *options, bags_error *err) {
    const bagi_env *env = bag->env;
    bagi_pass pass;
    unsigned char room[BAGI_TRAILER_SIZE];
    bagi_trailer trailer = {bag->length, bag->file.size, 0, 0, 0, 0};
    bags_code code = bagi_pass_begin(&pass, bag, err);
    while (!code && pass.length < bag->length) {
        uint32_t sum = 0;
        bool right = false;
        code = bagi_pass_next(&pass, &right, err);
        if (!code && !right)
            code = bagi_bag_fail_bounds(
                bag, pass.length - 1, pass.start, pass.stop, err);
        if (!code)
            code = bagi_pass_sum(&pass, &sum, err);
        bagi_store_u32(room, sum);
        trailer.sums = bagi_crc(trailer.sums, room, 4);
        if (!code)
            code = bagi_out_put(env, out, room, 4, err);
    }
    trailer.table = pass.table;
    if (options->where != BAGI_ALONE) {
        trailer.name = bagi_crc_text(options->name);
        trailer.spec = options->spec;
    }
    bagi_pass_end(&pass);
    bagi_trailer_store(&trailer, room);
    if (!code)
        code = bagi_out_put(env, out, room, sizeof room, err);
    return code ? code : bagi_out_flush(env, out, err);
}

/* From NAME.crc.partial to NAME.crc, so that there is never a part of it. */
static bags_code bagi_sums_publish(const bagi_env *env, bagi_out *out,
    const char *path, bool no_sync, bags_error *err) {
    bags_code code = no_sync ? BAGS_OK : bagi_out_sync(env, out, err);
    char *from = bagi_copy_text(
        &env->memory, out->path, strlen(out->path), code ? NULL : err);
    bool closed = !code && from;
    if (!code)
        code = closed ? bagi_out_close(env, out, err) : BAGS_ERROR_MEMORY;
    int error = code ? 0 : env->io.rename(env->io.user, from, path);
    if (error)
        code = bagi_fail_system(err, error, from, "rename");
    if (code && closed)
        env->io.remove(env->io.user, from);
    if (!code && !no_sync)
        code = bagi_sync_above(env, path, 1, err);
    bagi_free_text(&env->memory, from);
    return code;
}

/* Make NAME.crc beside a Bag, or make it again. */
static bags_code bagi_sums_write(const bag_reader *bag,
    const bagi_bag_options *options, bool no_sync, bags_error *err) {
    const bagi_env *env = bag->env;
    const bags_allocator *memory = &env->memory;
    bagi_out out;
    memset(&out, 0, sizeof out);
    out.capacity = BAGI_BUFFER_LEAST;
    out.buffer = (unsigned char *)bagi_alloc_raw(memory, out.capacity, err);
    char *path = bagi_beside_path(
        memory, bag->file.path, ".crc", out.buffer ? err : NULL);
    char *partial = path ? bagi_print(memory, err, "%s.partial", path) : NULL;
    bags_code code = out.buffer && partial ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code) {
        env->io.remove(env->io.user, partial); /* what was interrupted */
        code = bagi_out_create(env, &out, partial, err);
    } else {
        bagi_free_text(memory, partial);
    }
    if (!code)
        code = bagi_sums_fill(bag, &out, options, err);
    if (!code)
        code = bagi_sums_publish(env, &out, path, no_sync, err);
    if (code)
        bagi_out_remove(env, &out);
    bagi_free(memory, out.buffer, out.capacity);
    bagi_free_text(memory, path);
    return code;
}

/* ========================================================================
 * >>type-text
 * "array(float32,64,128)[]" taken apart, and the dtypes that stand in it.
 * ====================================================================== */

static bool bagi_type_char(char c, bool argument) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || (argument && (c == '.' || c == ','));
}

BAGS_API bags_code bags_type_parse(
    const char *text, bags_type *out, bags_error *err) {
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

BAGS_API bags_view bags_type_argument(const bags_type *type, size_t i) {
    bags_view out = {NULL, 0};
    const unsigned char *text = type->arguments.data;
    size_t size = type->arguments.size, at = 0;
    if (i >= type->count)
        return out;
    for (; i > 0; i--, at++)
        while (text[at] != ',')
            at++;
    out.data = text + at;
    while (at + out.size < size && out.data[out.size] != ',')
        out.size++;
    return out;
}

BAGS_API bool bags_type_number(const bags_type *type, size_t i, uint64_t *out) {
    bags_view text = bags_type_argument(type, i);
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
    {"float64", "f8", " d double float float_ ", 8},
    {"complex64", "c8", " F csingle ", 8},
    {"complex128", "c16", " D complex cdouble complex_ cfloat ", 16}};

#define BAGI_DTYPES (sizeof bagi_dtypes / sizeof *bagi_dtypes)

static const bagi_dtype *bagi_dtype_of(bags_dtype dtype) {
    size_t i = (size_t)dtype;
    return &bagi_dtypes[i < BAGI_DTYPES ? i : 0];
}

BAGS_API const char *bags_dtype_name(bags_dtype dtype) {
    return bagi_dtype_of(dtype)->name;
}

BAGS_API const char *bags_dtype_code(bags_dtype dtype) {
    return bagi_dtype_of(dtype)->code;
}

BAGS_API size_t bags_dtype_swap(bags_dtype dtype) {
    bool is_complex =
        dtype == BAGS_DTYPE_COMPLEX64 || dtype == BAGS_DTYPE_COMPLEX128;
    return bagi_dtype_of(dtype)->size / (is_complex ? 2U : 1U);
}

BAGS_API size_t bags_dtype_size(bags_dtype dtype) {
    return bagi_dtype_of(dtype)->size;
}

static bool bagi_dtype_is(const bagi_dtype *dtype, bags_view text) {
    if (bagi_same(text, dtype->name) || bagi_same(text, dtype->code))
        return true;
    for (const char *at = dtype->also; *at && at[1]; at = strchr(at + 1, ' ')) {
        bags_view word = {(const unsigned char *)at + 1,
            (size_t)(strchr(at + 1, ' ') - at) - 1};
        if (word.size == text.size &&
            memcmp(word.data, text.data, text.size) == 0)
            return true;
    }
    return false;
}

BAGS_API bags_dtype bags_dtype_parse(
    const char *text, size_t size, bool *big_endian) {
    bags_view rest = {(const unsigned char *)text, size};
    bool big = false;
    if (size > 0 && (strchr("<>|=", text[0]) && text[0])) {
        big = text[0] == '>' || (text[0] == '=' && !bags_little_endian());
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
    bags_value value = bagi_value(BAGS_KIND_INT, NULL, 0);
    value.sint = number;
    value.uint = number < 0 ? 0 : (uint64_t)number;
    return value;
}

BAGS_API bags_value bags_uint(uint64_t number) {
    bags_value value = bagi_value(BAGS_KIND_UINT, NULL, 0);
    value.uint = number;
    value.sint = number > (uint64_t)INT64_MAX ? 0 : (int64_t)number;
    return value;
}

BAGS_API bags_value bags_utf8(const char *text) {
    return bagi_value(BAGS_KIND_UTF8, text, strlen(text));
}

BAGS_API bags_value bags_utf8_sized(const char *text, size_t size) {
    return bagi_value(BAGS_KIND_UTF8, text, size);
}

BAGS_API bags_value bags_blob(const void *data, size_t size) {
    return bagi_value(BAGS_KIND_BLOB, data, size);
}

BAGS_API bags_value bags_bytes(const void *data, size_t size) {
    return bagi_value(BAGS_KIND_BYTES, data, size);
}

/* Bytes of an array. False if they are more than fit a size_t. */
BAGS_API bool bags_array_size(
    bags_dtype dtype, size_t dims, const uint64_t *shape, size_t *size) {
    size_t bytes = bags_dtype_size(dtype);
    bool empty = false;
    if (!bytes)
        return false;
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

BAGS_API bags_value bags_array(
    bags_dtype dtype, size_t dims, const uint64_t *shape, const void *data) {
    bags_value value = bagi_value(BAGS_KIND_ARRAY, data, 0);
    value.dtype = dtype;
    value.dims = dims;
    value.shape = shape;
    /* One that is too large keeps size 0, which no encoder takes for it. */
    if (bags_dtype_size(dtype))
        bags_array_size(dtype, dims, shape, &value.size);
    return value;
}

static const char *bagi_kind_name(bags_kind kind) {
    static const char *const names[] = {"no value", "a blob", "bytes", "text",
        "a number", "a number", "an array", "an object"};
    size_t i = (size_t)kind;
    return i < sizeof names / sizeof *names ? names[i] : "an unknown kind";
}

BAGI_COLD static bags_code bagi_fail_kind(
    bags_error *err, const char *wanted, const bags_value *value) {
    return bags_fail(err, BAGS_ERROR_VALUE, "takes %s, not %s", wanted,
        bagi_kind_name(value->kind));
}

/* bytes */

static bags_code bagi_bytes_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    (void)scratch;
    if (value->kind != BAGS_KIND_BYTES)
        return bagi_fail_kind(err, "bytes", value);
    blob->data = (const unsigned char *)value->data;
    blob->size = value->size;
    return BAGS_OK;
}

static bags_code bagi_bytes_decode(void *state, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)state;
    (void)scratch;
    (void)err;
    *value = bagi_value(BAGS_KIND_BYTES, blob.data, blob.size);
    return BAGS_OK;
}

/* utf8 */

static bags_code bagi_utf8_check(
    const unsigned char *text, size_t size, bags_code code, bags_error *err) {
    size_t good = bagi_utf8_valid(text, size);
    if (good == size)
        return BAGS_OK;
    return bags_fail(err, code, "is not UTF-8: byte 0x%02x at %" PRIu64,
        text[good], (uint64_t)good);
}

static bags_code bagi_utf8_encode_value(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    (void)scratch;
    if (value->kind != BAGS_KIND_UTF8)
        return bagi_fail_kind(err, "text", value);
    blob->data = (const unsigned char *)value->data;
    blob->size = value->size;
    return bagi_utf8_check(blob->data, blob->size, BAGS_ERROR_VALUE, err);
}

static bags_code bagi_utf8_decode_value(void *state, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)state;
    (void)scratch;
    bags_code code =
        bagi_utf8_check(blob.data, blob.size, BAGS_ERROR_CORRUPT, err);
    if (!code)
        *value = bagi_value(BAGS_KIND_UTF8, blob.data, blob.size);
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
    bool big =
        type->count == 2 && bagi_same(bags_type_argument(type, 1), "big");
    bool little =
        type->count == 2 && bagi_same(bags_type_argument(type, 1), "little");
    if (type->count > 0 &&
        (!plain || type->count > 2 || !bags_type_number(type, 0, &size) ||
            (type->count == 2 && !big && !little)))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "integers are int, int(N), int(N,little), int(N,big), i64 and u64; "
            "N is a number of bytes");
    if (size > BAGI_INT_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "integers of more than %d bytes are not built in", BAGI_INT_MOST);
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
    if (value->kind == BAGS_KIND_INT) {
        if (value->sint < 0 && !codec->is_signed) {
            bags_fail(err, BAGS_ERROR_VALUE, "cannot be negative: %" PRId64,
                value->sint);
            return false;
        }
        *bits = (uint64_t)value->sint;
        return true;
    }
    if (value->kind != BAGS_KIND_UINT) {
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
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
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
            "%" PRIu64 " does not fit in %" PRIu64 " byte%s", bits,
            (uint64_t)size, size == 1 ? "" : "s");
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

static bags_code bagi_int_decode(void *state, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const bagi_int *codec = (const bagi_int *)state;
    (void)scratch;
    if (!codec->shortest && blob.size != codec->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "has %" PRIu64 " bytes; its type says %" PRIu64,
            (uint64_t)blob.size, (uint64_t)codec->size);
    uint64_t bits = 0;
    for (size_t i = 0; i < blob.size; i++) {
        unsigned char octet = blob.data[codec->big ? blob.size - 1 - i : i];
        if (i < 8)
            bits |= (uint64_t)octet << (8 * i);
        else if (octet)
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

/* Dtypes that NumPy has and this header has not, as they can stand in a type;
 * those of its relatives, as bfloat16 and float8_e4m3fn, among them. */
static bool bagi_dtype_elsewhere(bags_view name) {
    static const bagi_dtype others = {"complex256", "c32",
        " clongdouble "
        "longcomplex longdouble longfloat g float80 float96 float128 f10 f12 "
        "f16 "
        "long ulong l p intp uintp int0 uint0 int128 uint128 datetime64 "
        "timedelta64 m8 object object0 str str0 bytes bytes0 void void0 "
        "unicode "
        "bfloat16 int1 int2 int4 uint1 uint2 uint4 ",
        0};
    return bagi_dtype_is(&others, name) ||
           (name.size && memchr(name.data, '_', name.size));
}

BAGI_COLD static bags_code bagi_array_no_dtype(
    bags_view name, bags_error *err) {
    int size = (int)(name.size < 80 ? name.size : 80);
    const char *text = (const char *)name.data;
    return bagi_dtype_elsewhere(name)
               ? bags_fail(err, BAGS_ERROR_LIMIT,
                     "the dtype \"%.*s\" is not built in", size, text)
               : bags_fail(err, BAGS_ERROR_TYPE,
                     "\"%.*s\" is no dtype: those are bool, uint8 to uint64, "
                     "int8 to int64, float16, float32, float64, complex64 and "
                     "complex128",
                     size, text);
}

static bags_code bagi_array_arguments(
    bagi_array *codec, const bags_type *type, bags_error *err) {
    bags_view name = bags_type_argument(type, 0);
    bool big = false;
    codec->dtype = bags_dtype_parse((const char *)name.data, name.size, &big);
    if (codec->dtype == BAGS_DTYPE_NONE)
        return bagi_array_no_dtype(name, err);
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
    if (!bags_array_size(
            codec->dtype, codec->dims, codec->shape, &codec->bytes))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "an array of this type is larger than memory");
    if (codec->bytes == 0 && codec->wild < codec->dims)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "an array without bytes cannot tell what its dimension -1 is");
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

/*
 * Make a value of an array's bytes: a view of them if they are aligned and in
 * this machine's order, else a copy behind the shape in scratch. shape is
 * copied to scratch if `keep`, else it lives as long as the codec.
 */
static bags_code bagi_array_value(bags_dtype dtype, bool big, size_t dims,
    const uint64_t *shape, bool keep, bags_view data, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    size_t element = bags_dtype_size(dtype);
    bool swap = element > 1 && big == bags_little_endian();
    bool copy = swap || (uintptr_t)data.data % bags_dtype_swap(dtype) != 0;
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
            bags_swap_bytes(room, data.data, data.size, bags_dtype_swap(dtype));
        else if (data.size)
            memcpy(room, data.data, data.size);
        elements = room;
    }
    *value = bags_array(dtype, dims,
        keep ? (const uint64_t *)(const void *)scratch->data : shape, elements);
    return BAGS_OK;
}

/* The dtype and shape of a value that is to be encoded, checked. */
static bags_code bagi_array_check(
    const bags_value *value, size_t *size, bags_error *err) {
    if (value->kind != BAGS_KIND_ARRAY)
        return bagi_fail_kind(err, "an array", value);
    if (!bags_dtype_size(value->dtype))
        return bags_fail(err, BAGS_ERROR_VALUE, "an array without a dtype");
    if (value->dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array has at most %d dimensions", BAGS_MAX_DIMS);
    if (!bags_array_size(value->dtype, value->dims, value->shape, size))
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
        (void)snprintf(out + used, size - (size_t)used, ")");
}

BAGI_COLD static bags_code bagi_array_mismatch(
    const bagi_array *codec, const bags_value *value, bags_error *err) {
    char wanted[160], given[160];
    bagi_array_text(codec->dtype, codec->dims, codec->shape, codec->wild,
        wanted, sizeof wanted);
    bagi_array_text(value->dtype, value->dims, value->shape, value->dims, given,
        sizeof given);
    return bags_fail(err, BAGS_ERROR_VALUE, "takes %s, not %s", wanted, given);
}

static bags_code bagi_array_match(
    const bagi_array *codec, const bags_value *value, bags_error *err) {
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
    if (bags_little_endian() || bags_dtype_size(value->dtype) == 1)
        return BAGS_OK;
    bags_code code = bags_buffer_reserve(scratch, front + size + 1, err);
    if (code)
        return code;
    bags_swap_bytes(
        scratch->data + front, *out, size, bags_dtype_swap(value->dtype));
    *out = scratch->data + front;
    return BAGS_OK;
}

static size_t bagi_self_head(
    const bags_value *value, size_t size, unsigned char *out) {
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
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
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
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
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
static bool bagi_msgpack_bytes(
    bags_view *blob, unsigned char first, bags_view *out) {
    if (blob->size == 0)
        return false;
    unsigned char tag = blob->data[0];
    bags_view rest = {blob->data + 1, blob->size - 1};
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

static bags_code bagi_self_decode(
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err) {
    uint64_t count = 0, dims = 0, shape[BAGS_MAX_DIMS];
    bags_view name = {NULL, 0}, data = {NULL, 0};
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
    if (!bags_array_size(dtype, (size_t)dims, shape, &size) ||
        size != data.size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "is an array whose shape does not give its %" PRIu64 " bytes",
            (uint64_t)data.size);
    return bagi_array_value(
        dtype, big, (size_t)dims, shape, true, data, scratch, value, err);
}

static bags_code bagi_array_decode(void *state, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const bagi_array *codec = (const bagi_array *)state;
    if (codec->dtype == BAGS_DTYPE_NONE)
        return bagi_self_decode(blob, scratch, value, err);
    bool wild = codec->wild < codec->dims;
    if (wild ? blob.size % codec->bytes != 0 : blob.size != codec->bytes)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "has %" PRIu64 " bytes; its type says %s%" PRIu64,
            (uint64_t)blob.size, wild ? "a multiple of " : "",
            (uint64_t)codec->bytes);
    if (!wild)
        return bagi_array_value(codec->dtype, false, codec->dims, codec->shape,
            true, blob, scratch, value, err);
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

#define BAGI_BUILT_IN                                                          \
    (sizeof bagi_codecs_built_in / sizeof *bagi_codecs_built_in)

struct bags_registry {
    bags_allocator memory;
    bags_codec *added;
    size_t count, capacity;
};

BAGS_API bags_registry *bags_registry_create(
    const bags_allocator *allocator, bags_error *err) {
    bags_allocator memory = bagi_allocator_of(allocator);
    bags_registry *codecs =
        (bags_registry *)bagi_alloc(&memory, sizeof *codecs, err);
    if (codecs)
        codecs->memory = memory;
    return codecs;
}

BAGS_API bags_code bags_registry_add(
    bags_registry *registry, const bags_codec *codec, bags_error *err) {
    if (!registry || !codec || !codec->names || !*codec->names)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "a codec needs a name");
    void *added = registry->added;
    bags_code code = bagi_grow(&registry->memory, &added, &registry->capacity,
        registry->count, sizeof *codec, err);
    registry->added = (bags_codec *)added;
    if (!code)
        registry->added[registry->count++] = *codec;
    return code;
}

static bool bagi_codec_serves(const bags_codec *codec, bags_view name) {
    const char *at = codec->names;
    while (*at) {
        size_t size = strcspn(at, " ");
        if (size > 0 && size == name.size && memcmp(at, name.data, size) == 0)
            return true;
        at += size + (at[size] == ' ');
    }
    return false;
}

BAGS_API const bags_codec *bags_registry_find(
    const bags_registry *registry, bags_view name) {
    for (size_t i = registry ? registry->count : 0; i > 0; i--)
        if (bagi_codec_serves(&registry->added[i - 1], name))
            return &registry->added[i - 1];
    for (size_t i = 0; i < BAGI_BUILT_IN; i++)
        if (bagi_codec_serves(&bagi_codecs_built_in[i], name))
            return &bagi_codecs_built_in[i];
    return NULL;
}

BAGS_API void bags_registry_free(bags_registry *registry) {
    if (!registry)
        return;
    bags_allocator memory = registry->memory;
    bagi_free(
        &memory, registry->added, registry->capacity * sizeof(bags_codec));
    bagi_free(&memory, registry, sizeof *registry);
}

/* ========================================================================
 * >>spec
 * The fields of a dataset, sorted by name as they are on disk, with their types
 * and codecs; and spec.json, which says what they are.
 * ====================================================================== */

#define BAGI_FIELDS_MOST 65535
#define BAGI_NAME_MOST 251 /* with .bag behind it, 255 */

typedef struct bagi_coder {
    const bags_codec *codec; /* NULL: none for this type */
    void *state;
    bool ready; /* false: the codec refused the type's arguments */
} bagi_coder;

typedef struct bagi_spec {
    bags_field *fields;
    size_t count, capacity;
    bags_type *types; /* NULL until sealed, as coders */
    bagi_coder *coders;
    uint64_t shape; /* of fewer than 64 fields: bit i says that field i is a
                       sequence, and the highest one how many fields there are;
                       else all bits, which no layout of refs has */
} bagi_spec;

static void bagi_spec_free(const bags_allocator *memory, bagi_spec *spec) {
    for (size_t i = 0; spec->coders && i < spec->count; i++)
        if (spec->coders[i].ready && spec->coders[i].codec->close)
            spec->coders[i].codec->close(spec->coders[i].state);
    for (size_t i = 0; i < spec->count; i++) {
        bagi_free_text(memory, (char *)(uintptr_t)spec->fields[i].name);
        bagi_free_text(memory, (char *)(uintptr_t)spec->fields[i].type);
    }
    bagi_free(memory, spec->coders, spec->count * sizeof *spec->coders);
    bagi_free(memory, spec->types, spec->count * sizeof *spec->types);
    bagi_free(memory, spec->fields, spec->capacity * sizeof *spec->fields);
    memset(spec, 0, sizeof *spec);
}

static bags_code bagi_spec_add(const bags_allocator *memory, bagi_spec *spec,
    const char *name, size_t name_size, const char *type, size_t type_size,
    bags_error *err) {
    if (spec->count == BAGI_FIELDS_MOST)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "has more than %d fields", BAGI_FIELDS_MOST);
    void *fields = spec->fields;
    bags_code code = bagi_grow(memory, &fields, &spec->capacity, spec->count,
        sizeof *spec->fields, err);
    spec->fields = (bags_field *)fields;
    if (code)
        return code;
    bags_field field;
    field.name = bagi_copy_text(memory, name, name_size, err);
    field.type = bagi_copy_text(memory, type, type_size, err);
    spec->fields[spec->count++] = field;
    return field.name && field.type ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* The place of a name among the sorted fields; `count` if it is not there. */
static size_t bagi_spec_find(const bagi_spec *spec, const char *name) {
    size_t low = 0, high = spec->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(spec->fields[middle].name, name);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return spec->count;
}

static bool bagi_spec_same(const bagi_spec *a, const bagi_spec *b) {
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = strcmp(a->fields[i].name, b->fields[i].name) == 0 &&
               strcmp(a->fields[i].type, b->fields[i].type) == 0;
    return same;
}

/* Let the codec look at the type's arguments. */
static bags_code bagi_coder_open(const bags_allocator *memory,
    bagi_coder *coder, const bags_type *type, bags_error *err) {
    if (!coder->codec)
        return bags_fail(err, BAGS_ERROR_TYPE, "no codec for this type");
    if (coder->codec->open)
        return coder->codec->open(
            coder->codec, type, memory, &coder->state, err);
    if (type->count)
        return bags_fail(err, BAGS_ERROR_TYPE, "its type takes no arguments");
    return BAGS_OK;
}

/*
 * Take the types apart and open their codecs. A type without a codec, or with
 * arguments that its codec refuses, is no failure here: its blobs can be read
 * and written all the same. The failure comes when a value is wanted.
 */
static bags_code bagi_spec_seal(const bags_allocator *memory, bagi_spec *spec,
    const bags_registry *codecs, bags_error *err) {
    spec->types =
        (bags_type *)bagi_alloc(memory, spec->count * sizeof *spec->types, err);
    if (!spec->types)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < spec->count; i++) {
        bags_code code =
            bags_type_parse(spec->fields[i].type, &spec->types[i], err);
        if (code)
            return bagi_prefix(
                err, code, "field \"%.200s\": ", spec->fields[i].name);
        if (spec->count < 64 && spec->types[i].sequence)
            spec->shape |= (uint64_t)1 << i;
    }
    spec->shape |= spec->count < 64 ? (uint64_t)1 << spec->count : UINT64_MAX;
    spec->coders = (bagi_coder *)bagi_alloc(
        memory, spec->count * sizeof *spec->coders, err);
    if (!spec->coders)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < spec->count; i++) {
        bagi_coder *coder = &spec->coders[i];
        coder->codec = bags_registry_find(codecs, spec->types[i].name);
        bags_code code = bagi_coder_open(memory, coder, &spec->types[i], NULL);
        coder->ready = !code;
        if (code == BAGS_ERROR_MEMORY)
            return bagi_fail_memory(err, sizeof *coder);
    }
    return BAGS_OK;
}

/* What a codec says of its failure, or that it said nothing. */
BAGI_COLD static bags_code bagi_codec_said(
    bags_code code, const bags_error *why, bags_error *err) {
    if (why->code != code)
        return bags_fail(err, code, "its codec failed and did not say why");
    if (err)
        *err = *why;
    return code;
}

/* Say why a field has no codec that works, by asking it again. */
BAGI_COLD static bags_code bagi_coder_fail(const bags_allocator *memory,
    const bagi_spec *spec, size_t field, bags_error *err) {
    bagi_coder coder = spec->coders[field];
    bags_error why;
    why.code = BAGS_OK;
    bags_code code = bagi_coder_open(memory, &coder, &spec->types[field], &why);
    if (!code) {
        if (coder.codec->close)
            coder.codec->close(coder.state);
        code = bags_fail(&why, BAGS_ERROR_TYPE, "its codec failed before");
    }
    bagi_codec_said(code, &why, err);
    return bagi_prefix(
        err, code, "type \"%.200s\": ", spec->fields[field].type);
}

/* Whether a codec is one of those that come with this header. */
static bool bagi_codec_is_built_in(const bags_codec *codec) {
    size_t i = 0;
    while (i < BAGI_BUILT_IN && codec != &bagi_codecs_built_in[i])
        i++;
    return i < BAGI_BUILT_IN;
}

/*
 * Refuse built-in types that cannot be meant: no value could ever be written.
 * Of types that other codecs serve, or none, the arguments are not ours to judge,
 * nor of those that are right and only too much for this program.
 */
static bags_code bagi_spec_check(
    const bags_allocator *memory, const bagi_spec *spec, bags_error *err) {
    bags_error why;
    for (size_t i = 0; i < spec->count; i++) {
        const bagi_coder *coder = &spec->coders[i];
        uint64_t bytes = 1;
        why.code = BAGS_OK;
        if (!coder->codec || !bagi_codec_is_built_in(coder->codec))
            continue;
        if (!coder->ready)
            bagi_coder_fail(memory, spec, i, &why);
        else if (bags_type_number(&spec->types[i], 0, &bytes) && bytes == 0)
            bags_fail(&why, BAGS_ERROR_TYPE,
                "type \"%.200s\": an integer of no bytes holds no number but 0",
                spec->fields[i].type);
        if (why.code != BAGS_ERROR_TYPE)
            continue;
        if (err)
            *err = why;
        return bagi_prefix(
            err, BAGS_ERROR_TYPE, "field \"%.200s\": ", spec->fields[i].name);
    }
    return BAGS_OK;
}

BAGI_COLD static bags_code bagi_coder_fail_way(
    bags_error *err, const char *way) {
    return bags_fail(err, BAGS_ERROR_TYPE, "its codec cannot %s", way);
}

static bags_code bagi_encode(const bags_allocator *memory,
    const bagi_spec *spec, size_t field, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    const bagi_coder *coder = &spec->coders[field];
    if (value->kind == BAGS_KIND_BLOB) {
        blob->data = (const unsigned char *)value->data;
        blob->size = value->size;
        return BAGS_OK;
    }
    if (value->kind == BAGS_KIND_NONE)
        return bags_fail(err, BAGS_ERROR_VALUE, "has no value");
    if (!coder->ready)
        return bagi_coder_fail(memory, spec, field, err);
    if (!coder->codec->encode)
        return bagi_coder_fail_way(err, "encode");
    bags_error why;
    why.code = BAGS_OK;
    bags_code code =
        coder->codec->encode(coder->state, value, scratch, blob, &why);
    return code ? bagi_codec_said(code, &why, err) : BAGS_OK;
}

static bags_code bagi_decode(const bags_allocator *memory,
    const bagi_spec *spec, size_t field, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    const bagi_coder *coder = &spec->coders[field];
    if (!coder->ready)
        return bagi_coder_fail(memory, spec, field, err);
    if (!coder->codec->decode)
        return bagi_coder_fail_way(err, "decode");
    bags_error why;
    why.code = BAGS_OK;
    bags_code code =
        coder->codec->decode(coder->state, blob, scratch, value, &why);
    return code ? bagi_codec_said(code, &why, err) : BAGS_OK;
}

/* A spec of one nameless field; the type's text is borrowed. */
static bags_code bagi_spec_of_type(bagi_spec *spec, bags_field *field,
    const bags_registry *registry, const char *type, bags_error *err) {
    bags_allocator memory = bagi_allocator_of(NULL);
    memset(spec, 0, sizeof *spec);
    field->name = "";
    field->type = type;
    spec->fields = field;
    spec->count = 1;
    return bagi_spec_seal(&memory, spec, registry, err);
}

static void bagi_spec_of_type_free(bagi_spec *spec) {
    bags_allocator memory = bagi_allocator_of(NULL);
    spec->fields = NULL;
    if (spec->coders && spec->coders->ready && spec->coders->codec->close)
        spec->coders->codec->close(spec->coders->state);
    bagi_free(&memory, spec->coders, sizeof *spec->coders);
    bagi_free(&memory, spec->types, sizeof *spec->types);
}

BAGS_API bags_code bags_encode(const bags_registry *registry, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob,
    bags_error *err) {
    bags_allocator memory = bagi_allocator_of(NULL);
    bagi_spec spec;
    bags_field field;
    bags_code code = bagi_spec_of_type(&spec, &field, registry, type, err);
    bagi_buffer_adopt(scratch, &memory);
    if (!code)
        code = bagi_encode(&memory, &spec, 0, value, scratch, blob, err);
    bagi_spec_of_type_free(&spec);
    return code;
}

BAGS_API bags_code bags_decode(const bags_registry *registry, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err) {
    bags_allocator memory = bagi_allocator_of(NULL);
    bagi_spec spec;
    bags_field field;
    bags_code code = bagi_spec_of_type(&spec, &field, registry, type, err);
    bagi_buffer_adopt(scratch, &memory);
    if (!code)
        code = bagi_decode(&memory, &spec, 0, blob, scratch, value, err);
    bagi_spec_of_type_free(&spec);
    return code;
}

/* A name that Windows gives to a device, whatever stands behind the first dot. */
static bool bagi_is_device(const char *name) {
    static const char *const devices[] = {"con", "prn", "aux", "nul"};
    char low[5] = {0};
    size_t size = strcspn(name, ".");
    while (size > 0 && name[size - 1] == ' ')
        size--;
    if (size < 3 || size > 4)
        return false;
    for (size_t i = 0; i < size; i++)
        low[i] =
            (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32 : name[i]);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(low, devices[i]) == 0)
            return true;
    return size == 4 && low[3] >= '1' && low[3] <= '9' &&
           (memcmp(low, "com", 3) == 0 || memcmp(low, "lpt", 3) == 0);
}

/* Why a name cannot be a field's in a dataset that is read; NULL if it can. */
static const char *bagi_name_fault_read(const char *name) {
    if (strcmp(name, "refs") == 0)
        return "is the name of the index of datapoints";
    if (strchr(name, '/') || (BAGI_WINDOWS_PATHS && strpbrk(name, "\\:")))
        return "would leave the dataset's directory";
    if (BAGI_WINDOWS_PATHS && bagi_is_device(name))
        return "is the name of a device";
    return NULL;
}

/* The same for one that is written, which all systems should be able to read. */
static const char *bagi_name_fault_write(const char *name) {
    size_t size = strlen(name);
    if (size == 0)
        return "is empty";
    if (size > BAGI_NAME_MOST)
        return "is too long to be a file's name";
    if (name[0] == '.')
        return "begins with a dot";
    if (bagi_utf8_valid((const unsigned char *)name, size) != size)
        return "is not UTF-8";
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return "has a control character";
    if (strpbrk(name, "\\:*?\"<>|"))
        return "has one of the characters \\ : * ? \" < > |, which not every "
               "system takes in a file's name";
    if (bagi_is_device(name))
        return "is the name of a device on Windows";
    return bagi_name_fault_read(name);
}

typedef struct bagi_spec_load {
    const bags_allocator *memory;
    bagi_spec *spec;
    bags_error *err;
} bagi_spec_load;

static bags_code bagi_spec_load_field(void *user, const char *key,
    size_t key_size, const char *value, size_t value_size) {
    bagi_spec_load *load = (bagi_spec_load *)user;
    bagi_spec *spec = load->spec;
    bags_code code = bagi_spec_add(
        load->memory, spec, key, key_size, value, value_size, load->err);
    if (code)
        return code;
    const char *name = spec->fields[spec->count - 1].name;
    const char *fault = bagi_name_fault_read(name);
    if (fault)
        return bags_fail(
            load->err, BAGS_ERROR_FIELD, "field \"%.200s\" %s", name, fault);
    if (spec->count < 2)
        return BAGS_OK;
    int order = strcmp(spec->fields[spec->count - 2].name, name);
    if (order == 0)
        return bags_fail(load->err, BAGS_ERROR_CORRUPT,
            "field \"%.200s\" stands there twice", name);
    if (order > 0)
        return bags_fail(load->err, BAGS_ERROR_CORRUPT,
            "field \"%.200s\" stands behind \"%.200s\": the fields are not "
            "sorted by name",
            name, spec->fields[spec->count - 2].name);
    return BAGS_OK;
}

/* Take the text of a spec.json apart into an empty spec, not sealed. */
static bags_code bagi_spec_parse(const bags_allocator *memory, bagi_spec *spec,
    const unsigned char *text, size_t size, bags_error *err) {
    bagi_spec_load load = {memory, spec, err};
    bagi_json json;
    memset(&json, 0, sizeof json);
    json.text = text;
    json.size = size;
    json.room = (char *)bagi_alloc_raw(memory, size, err);
    if (!json.room)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    if (!bagi_json_object(&json, bagi_spec_load_field, &load, &code) && !code)
        code = bags_fail(err, BAGS_ERROR_CORRUPT, "byte %" PRIu64 ": %s",
            (uint64_t)json.at, json.why);
    bagi_free(memory, json.room, size);
    return code;
}

/* The text of spec.json; *size bytes, freed with bagi_free. */
static char *bagi_spec_text(const bags_allocator *memory, const bagi_spec *spec,
    size_t *size, bags_error *err) {
    size_t used = 2;
    for (size_t i = 0; i < spec->count; i++)
        used += (i ? 4 : 2) + bagi_json_quote(spec->fields[i].name, NULL) +
                bagi_json_quote(spec->fields[i].type, NULL);
    if (used > BAGI_SPEC_MOST) {
        bags_fail(err, BAGS_ERROR_LIMIT,
            "the fields make a spec.json of %" PRIu64 " bytes; at most %" PRIu64
            " are read",
            (uint64_t)used, (uint64_t)BAGI_SPEC_MOST);
        return NULL;
    }
    char *text = (char *)bagi_alloc(memory, used, err);
    if (!text)
        return NULL;
    size_t at = 0;
    text[at++] = '{';
    for (size_t i = 0; i < spec->count; i++) {
        memcpy(text + at, ", ", i ? 2 : 0);
        at += i ? 2 : 0;
        at += bagi_json_quote(spec->fields[i].name, text + at);
        memcpy(text + at, ": ", 2);
        at += 2;
        at += bagi_json_quote(spec->fields[i].type, text + at);
    }
    text[at] = '}';
    *size = used;
    return text;
}

/* ========================================================================
 * >>shards
 * The numbered directories of a dataset: their names, finding them, and
 * closing the gaps between them.
 * ====================================================================== */

#define BAGI_SHARD_DIGITS 18 /* of the largest number */
#define BAGI_SHARD_LIMIT UINT64_C(1000000000000000000)

/* A shard that was found: its number, and how many digits its name has. */
typedef struct bagi_name {
    uint64_t number;
    unsigned digits;
} bagi_name;

typedef struct bagi_names {
    const bags_allocator *memory;
    bagi_name *names;
    size_t count, capacity;
    const char *path;
    bags_error *err;
    bags_code code;
    /* Told of a number that is too large; if it returns BAGS_OK, the list goes
     * on. NULL: the list ends. */
    bags_code (*refused)(void *user, const bags_error *why);
    void *user;
} bagi_names;

static char *bagi_shard_path(const bags_allocator *memory, const char *base,
    bagi_name name, bags_error *err) {
    return bagi_print(
        memory, err, "%s/%0*" PRIu64, base, (int)name.digits, name.number);
}

/* The number of a worker's next shard; too large rather than wrapped. */
static uint64_t bagi_shard_after(uint64_t number, uint64_t workers) {
    return workers > UINT64_MAX - number ? UINT64_MAX : number + workers;
}

static bagi_name bagi_shard_name(uint64_t number) {
    bagi_name name = {number, 6};
    return name;
}

/* For the list hook: take the names that are made of digits. */
static int bagi_names_take(void *user, const char *text) {
    bagi_names *names = (bagi_names *)user;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits])
        return 0;
    size_t zeros = strspn(text, "0");
    bagi_name name = {0, (unsigned)digits};
    if (digits - zeros > BAGI_SHARD_DIGITS) {
        bags_error why;
        names->code = bags_fail(&why, BAGS_ERROR_LIMIT,
            "%s: the shard number %.40s is too large", bagi_tail(names->path),
            text);
        if (names->err)
            *names->err = why;
        if (names->refused)
            names->code = names->refused(names->user, &why);
        return names->code ? EOVERFLOW : 0;
    }
    for (size_t i = zeros; i < digits; i++)
        name.number = name.number * 10 + (uint64_t)(text[i] - '0');
    void *array = names->names;
    names->code = bagi_grow(names->memory, &array, &names->capacity,
        names->count, sizeof *names->names, names->err);
    names->names = (bagi_name *)array;
    if (names->code)
        return ENOMEM;
    names->names[names->count++] = name;
    return 0;
}

static int bagi_names_order(const void *a, const void *b) {
    const bagi_name *left = (const bagi_name *)a;
    const bagi_name *right = (const bagi_name *)b;
    if (left->number != right->number)
        return left->number > right->number ? 1 : -1;
    return (left->digits > right->digits) - (left->digits < right->digits);
}

static void bagi_names_free(bagi_names *names) {
    bagi_free(
        names->memory, names->names, names->capacity * sizeof *names->names);
    names->names = NULL;
    names->count = names->capacity = 0;
}

/* Every shard of a directory, by number; two may have the same. Released with
 * bagi_names_free. */
static bags_code bagi_names_list_all(
    const bagi_env *env, const char *path, bagi_names *names, bags_error *err) {
    names->memory = &env->memory;
    names->path = path;
    names->err = err;
    int error = env->io.list(env->io.user, path, bagi_names_take, names);
    bags_code code = names->code;
    if (error && !code)
        code = bagi_fail_system(
            err, error, path, error == ENOENT ? "open" : "list");
    if (!code && names->count > 1)
        qsort(
            names->names, names->count, sizeof *names->names, bagi_names_order);
    if (code)
        bagi_names_free(names);
    return code;
}

/* Refuse two shards of one number; i is the later. */
static bags_code bagi_names_check(
    const bagi_names *names, size_t i, bags_error *err) {
    const bagi_name *name = &names->names[i];
    if (i == 0 || name->number != name[-1].number)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: has two shards of the number %" PRIu64 ": %0*" PRIu64
        " and %0*" PRIu64,
        bagi_tail(names->path), name->number, (int)name[-1].digits,
        name->number, (int)name->digits, name->number);
}

/* The same, where no two may have one number. */
static bags_code bagi_names_list(
    const bagi_env *env, const char *path, bagi_names *names, bags_error *err) {
    memset(names, 0, sizeof *names);
    bags_code code = bagi_names_list_all(env, path, names, err);
    for (size_t i = 1; i < names->count && !code; i++)
        code = bagi_names_check(names, i, err);
    if (code)
        bagi_names_free(names);
    return code;
}

/* Whether a directory has a file of this name. */
static bags_code bagi_has_file(const bagi_env *env, const char *path,
    const char *name, bool *has, bags_error *err) {
    char *file = bagi_print(&env->memory, err, "%s/%s", path, name);
    if (!file)
        return BAGS_ERROR_MEMORY;
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code = bagi_kind(env, file, &kind, err);
    *has = kind == BAGS_PATH_FILE;
    bagi_free_text(&env->memory, file);
    return code;
}

/* Whether a shard's commit record is there. */
static bags_code bagi_shard_finished(
    const bagi_env *env, const char *path, bool *finished, bags_error *err) {
    return bagi_has_file(env, path, "spec.json", finished, err);
}

/* Whether a directory has a finished shard's files and only its record is lost:
 * a writer's record is there before the first of them, and until it becomes
 * spec.json. */
static bags_code bagi_spec_is_lost(
    const bagi_env *env, const char *path, bool *lost, bags_error *err) {
    static const char *const names[] = {
        "refs.bag", "spec.json.partial", "spec.json"};
    bool has = true;
    bags_code code = BAGS_OK;
    *lost = true;
    for (size_t i = 0; i < 3 && *lost && !code; i++) {
        code = bagi_has_file(env, path, names[i], &has, err);
        *lost = !code && has == (i == 0);
    }
    return code;
}

BAGI_COLD static bags_code bagi_fail_lost(
    const char *path, bags_code code, bags_error *err) {
    return bags_fail(err, code,
        "%s: its spec.json is lost, which says the fields and their types: put "
        "it back from a copy or from another shard",
        bagi_tail(path));
}

/* Of a shard without spec.json. */
BAGI_COLD static bags_code bagi_fail_unfinished(
    const bagi_env *env, const char *path, bags_error *err) {
    bool lost = false;
    bags_code code = bagi_spec_is_lost(env, path, &lost, err);
    if (code || lost)
        return code ? code : bagi_fail_lost(path, BAGS_ERROR_UNFINISHED, err);
    return bags_fail(err, BAGS_ERROR_UNFINISHED,
        "%s: is not finished (it has no spec.json): a writer is at work on it, "
        "or died: then bags_recover (`bags recover`) finishes it",
        bagi_tail(path));
}

BAGI_COLD static bags_code bagi_fail_locked(const char *path, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_LOCKED,
        "%s: is not finished: a writer is at work on it", bagi_tail(path));
}

/* Of a directory that has neither spec.json nor shards. */
BAGI_COLD static bags_code bagi_fail_no_dataset(
    const bagi_env *env, const char *path, bags_error *err) {
    bool lost = false;
    bags_code code = bagi_spec_is_lost(env, path, &lost, err);
    if (code || lost)
        return code ? code : bagi_fail_lost(path, BAGS_ERROR_MISSING, err);
    return bags_fail(err, BAGS_ERROR_MISSING,
        "%s: is no dataset: it has neither spec.json nor shards",
        bagi_tail(path));
}

/* Whether a directory is a dataset of its own, finished or not. The record is
 * looked for before what it becomes, so that one of them is seen. */
static bags_code bagi_is_single(
    const bagi_env *env, const char *path, bool *single, bags_error *err) {
    bags_code code = bagi_has_file(env, path, "spec.json.partial", single, err);
    return code || *single ? code : bagi_shard_finished(env, path, single, err);
}

/* Refuse a file of a dataset, finished or not or without its record, where a lone
 * Bag is wanted. */
static bags_code bagi_check_lone(
    const bagi_env *env, const char *path, bags_error *err) {
    bool dataset = false;
    char *above = bagi_parent(&env->memory, path, err);
    bags_code code =
        above ? bagi_is_single(env, above, &dataset, err) : BAGS_ERROR_MEMORY;
    if (!code && !dataset)
        code = bagi_has_file(env, above, "refs.bag", &dataset, err);
    if (!code && dataset)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: belongs to the dataset %s: give that", bagi_tail(path), above);
    bagi_free_text(&env->memory, above);
    return code;
}

static bags_code bagi_finalize_check(
    const bagi_env *env, const bagi_names *names, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < names->count && !code; i++) {
        bool finished = false;
        char *path =
            bagi_shard_path(&env->memory, names->path, names->names[i], err);
        if (!path)
            return BAGS_ERROR_MEMORY;
        code = bagi_shard_finished(env, path, &finished, err);
        if (!code && !finished)
            code = bagi_fail_unfinished(env, path, err);
        bagi_free_text(&env->memory, path);
    }
    return code;
}

static bags_code bagi_finalize_one(const bagi_env *env, const char *base,
    bagi_name from, bagi_name to, bags_error *err) {
    char *old_path = bagi_shard_path(&env->memory, base, from, err);
    char *new_path = bagi_shard_path(&env->memory, base, to, err);
    bags_code code = old_path && new_path ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code) {
        int error = env->io.rename(env->io.user, old_path, new_path);
        if (error)
            code = bagi_fail_system(err, error, old_path, "rename");
    }
    bagi_free_text(&env->memory, old_path);
    bagi_free_text(&env->memory, new_path);
    return code;
}

/* In order of the numbers, so that the number a shard gets is free: those below
 * it have moved already, and it never moves up. */
BAGS_API bags_code bags_finalize(const char *path,
    const bags_finalize_options *options, uint64_t *renamed, bags_error *err) {
    bagi_env env = bagi_env_of(options ? options->env.allocator : NULL,
        options ? options->env.io : NULL);
    bagi_names names;
    uint64_t count = 0;
    bags_code code = bagi_check_path(path, err);
    if (!code)
        code = bagi_names_list(&env, path, &names, err);
    if (code)
        return code;
    if (names.count == 0)
        code = bags_fail(err, BAGS_ERROR_MISSING,
            "%s: there are no shards in it", bagi_tail(path));
    if (!code)
        code = bagi_finalize_check(&env, &names, err);
    for (size_t i = 0; i < names.count && !code; i++) {
        bagi_name to = bagi_shard_name(i);
        if (names.names[i].number == i && names.names[i].digits == 6)
            continue;
        if (i > 999999 && names.names[i].number == i)
            continue;
        code = bagi_finalize_one(&env, path, names.names[i], to, err);
        count += !code;
    }
    if (!code && count && !(options && options->no_sync))
        code = bagi_sync_dir(&env, path, err);
    if (!code && renamed)
        *renamed = count;
    bagi_names_free(&names);
    return code;
}

/* ========================================================================
 * >>dataset-write
 * A writer claims a shard by making its directory, writes the fields' columns
 * and the refs, and commits it by renaming spec.json.partial. What reaches the
 * system does so in one order: blobs of the fields, their journals, refs.bag,
 * refs.idx. A datapoint exists when its entry in refs.idx does.
 * ====================================================================== */

struct bags_writer {
    bagi_env env;
    bags_writer_options options;
    char *path;    /* of the dataset */
    char *shard;   /* of the shard being written; NULL: none */
    void *partial; /* its spec.json.partial, open and locked */
    char *text;    /* of spec.json */
    size_t text_size;
    bagi_spec spec;
    size_t *order;        /* the caller's i-th field, among the sorted */
    bagi_column *columns; /* one a field, then refs */
    bagi_ref *refs;       /* of the datapoint being made */
    bool *given;          /* which fields it has already */
    unsigned char *row;   /* its blob of refs.bag */
    bags_buffer scratch;  /* for codecs */
    uint64_t number;      /* of the next shard */
    uint64_t length, shards;
    uint64_t found;        /* datapoints that were there, with append */
    uint64_t shard_length; /* datapoints in the shard being written */
    uint64_t unsynced;     /* bytes of their blobs since the last sync */
    bool sharded, begun;
    bool made_path;     /* the directory of the shards was not there before */
    bool resumed;       /* the shard was begun by another writer */
    bool committed;     /* its spec.json is there */
    bool synced;        /* some of it must survive a power loss: no_sync does
                           not hold for the rest of it */
    size_t made;        /* directories above that were made and not synced */
    bags_error failure; /* of the system: final */
    bags_error refusal; /* of a datapoint: the first */
    uint64_t refused;   /* how many there were */
    bags_error pending; /* of the datapoint being streamed */
    bool reported;      /* the pending one, to a caller's err */
};

static bagi_column *bagi_refs_column(bags_writer *writer) {
    return &writer->columns[writer->spec.count];
}

static const char *bagi_writer_column_name(
    const bags_writer *writer, size_t column) {
    return column < writer->spec.count ? writer->spec.fields[column].name
                                       : "refs";
}

/* Have all columns of the shard keep checksums. */
static bags_code bagi_writer_sum(bags_writer *writer, bags_error *err) {
    const unsigned char *text = (const unsigned char *)writer->text;
    uint32_t spec = bagi_crc(0, text, writer->text_size);
    bags_code code = BAGS_OK;
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_column_sum(&writer->env.memory, &writer->columns[i],
            bagi_crc_text(bagi_writer_column_name(writer, i)), spec, err);
    return code;
}

static bags_code bagi_writer_create_sums(
    bags_writer *writer, size_t column, bags_error *err) {
    return bagi_out_create(&writer->env, &writer->columns[column].sums,
        bagi_print(&writer->env.memory, err, "%s/%s.crc", writer->shard,
            bagi_writer_column_name(writer, column)),
        err);
}

static bags_code bagi_writer_file(
    bags_writer *writer, size_t column, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    const char *name = bagi_writer_column_name(writer, column);
    char *blobs = bagi_print(memory, err, "%s/%s.bag", writer->shard, name);
    char *ends = bagi_print(memory, err, "%s/%s.idx", writer->shard, name);
    bags_code code = bagi_column_create(
        &writer->env, &writer->columns[column], blobs, ends, err);
    bool summed = column < writer->spec.count && writer->columns[column].summed;
    return code || !summed ? code
                           : bagi_writer_create_sums(writer, column, err);
}

static char *bagi_writer_partial_path(bags_writer *writer, bags_error *err) {
    return bagi_print(
        &writer->env.memory, err, "%s/spec.json.partial", writer->shard);
}

/* The record of the claim: created, locked for as long as the writer works, and
 * then filled. It is on disk before any other file is made, so that a shard
 * that has files without it was not left by a writer. Only refs.crc may be
 * there: its name gets to the disk with the record's, and with no_sync too, so
 * that recovery knows that blobs must be compared with checksums. */
static bags_code bagi_writer_record(bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    char *path = bagi_writer_partial_path(writer, err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code =
        bagi_open(env, path, BAGS_IO_CREATE, &writer->partial, err);
    if (!code) {
        int error = env->io.lock(env->io.user, writer->partial);
        if (error)
            code = bagi_fail_system(err, error, path, "lock");
    }
    if (!code)
        code = bagi_write_at(env, writer->partial, path, 0, writer->text,
            writer->text_size, err);
    if (!code && !writer->options.no_sync) {
        int error = env->io.sync(env->io.user, writer->partial);
        code = error ? bagi_fail_system(err, error, path, "sync") : BAGS_OK;
    }
    if (!code && writer->options.checksum)
        code = bagi_writer_sum(writer, err);
    if (!code && writer->options.checksum)
        code = bagi_writer_create_sums(writer, writer->spec.count, err);
    if (!code && (writer->options.checksum || !writer->options.no_sync))
        code = bagi_sync_dir(env, writer->shard, err);
    bagi_free_text(&env->memory, path);
    return code;
}

/* Close the files of a shard that could not be finished, and leave them. */
static void bagi_writer_leave(bags_writer *writer) {
    for (size_t i = 0; writer->columns && i <= writer->spec.count; i++)
        bagi_column_close(&writer->env, &writer->columns[i], NULL);
    bagi_close_read(&writer->env, writer->partial);
    writer->partial = NULL;
    bagi_free_text(&writer->env.memory, writer->shard);
    writer->shard = NULL;
    writer->resumed = writer->synced = writer->committed = false;
}

/* Remove a file of the shard by its name; one that is not there is no
 * failure. */
static bags_code bagi_writer_remove(const bags_writer *writer, const char *name,
    const char *ending, bags_error *err) {
    const bagi_env *env = &writer->env;
    char *path =
        bagi_print(&env->memory, err, "%s/%s%s", writer->shard, name, ending);
    if (!path)
        return BAGS_ERROR_MEMORY;
    int error = env->io.remove(env->io.user, path);
    bags_code code = error && error != ENOENT
                         ? bagi_fail_system(err, error, path, "remove")
                         : BAGS_OK;
    bagi_free_text(&env->memory, path);
    return code;
}

/* Remove a shard that is not finished: the files of the known columns, the
 * record and, if nothing *other is in it, the directory. refs.idx goes first:
 * where that is gone there are no datapoints, so that recovery can go on with a
 * removal that was interrupted. On Windows a file may stay there until it is
 * closed, so that comes before. */
static bags_code bagi_writer_discard(
    bags_writer *writer, bool known, bool *other, bags_error *err) {
    const bagi_env *env = &writer->env;
    bags_code code = BAGS_OK;
    for (size_t i = writer->spec.count + 1; known && i-- > 0 && !code;) {
        const char *name = bagi_writer_column_name(writer, i);
        bagi_column_close(env, &writer->columns[i], NULL);
        code = bagi_writer_remove(writer, name, ".idx", err);
        if (!code)
            code = bagi_writer_remove(writer, name, ".bag", err);
        if (!code && i < writer->spec.count)
            code = bagi_writer_remove(writer, name, ".crc", err);
    }
    if (!code)
        code = bagi_writer_remove(writer, "refs", ".crc", err);
    if (!code && writer->partial)
        code = bagi_writer_remove(writer, "spec.json", ".partial", err);
    bagi_close_read(env, writer->partial);
    writer->partial = NULL;
    int error = code ? 0 : env->io.remove_dir(env->io.user, writer->shard);
    *other = error == ENOTEMPTY || error == EEXIST;
    if (error && !*other)
        code = bagi_fail_system(err, error, writer->shard, "remove");
    bagi_writer_leave(writer);
    return code;
}

/* Drop the shard being written, unless it is whole already and only waiting for
 * the disk failed. */
static void bagi_writer_drop(bags_writer *writer, bags_error *err) {
    bool other = false;
    if (writer->shard && !writer->committed)
        bagi_writer_discard(writer, true, &other, err);
    if (writer->made_path && writer->shards == 0)
        writer->env.io.remove_dir(writer->env.io.user, writer->path);
    bagi_writer_leave(writer);
}

static char *bagi_writer_shard_path(bags_writer *writer, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    return writer->sharded ? bagi_shard_path(memory, writer->path,
                                 bagi_shard_name(writer->number), err)
                           : bagi_copy_text(memory, writer->path,
                                 strlen(writer->path), err);
}

BAGI_COLD static bags_code bagi_fail_claimed(
    const bags_writer *writer, const char *path, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_EXISTS, "%s: exists already%s",
        bagi_tail(path),
        writer->sharded
            ? ": another writer has the same worker number, or this dataset "
              "was written before"
            : ": remove it first, or write into a new path");
}

/* Make the next shard's directory, which claims it, and its files. */
static bags_code bagi_writer_claim_once(bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    if (writer->sharded && writer->number >= BAGI_SHARD_LIMIT)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: the next shard's number would be above 10^18",
            bagi_tail(writer->path));
    char *path = bagi_writer_shard_path(writer, err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code = bagi_kind(env, writer->path, &kind, err);
    if (!code)
        code = bagi_make_parents(
            env, path, !writer->options.no_sync, &writer->made, err);
    if (!code) {
        int error = env->io.make_dir(env->io.user, path);
        if (error == EEXIST)
            code = bagi_fail_claimed(writer, path, err);
        else if (error)
            code = bagi_fail_system(err, error, path, "make the directory");
    }
    if (code) {
        bagi_free_text(&env->memory, path);
        return code;
    }
    writer->shard = path;
    writer->shard_length = writer->unsynced = 0;
    writer->made_path =
        writer->sharded && (writer->made_path || kind == BAGS_PATH_NONE);
    code = bagi_writer_record(writer, err);
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_writer_file(writer, i, err);
    if (code)
        bagi_writer_drop(writer, NULL);
    return code;
}

/* A recovery that looks at the shard before its record is locked takes it for
 * one that was left, and removes it. Then the claim is made again. */
static bags_code bagi_writer_claim(bags_writer *writer, bags_error *err) {
    bags_error why;
    bags_code code = bagi_writer_claim_once(writer, &why);
    for (int tries = 0;
         tries < 8 && (code == BAGS_ERROR_MISSING || code == BAGS_ERROR_LOCKED);
         tries++)
        code = bagi_writer_claim_once(writer, &why);
    return code ? bagi_keep_failure(&why, err) : BAGS_OK;
}

/* Hand all blobs and journals of the fields to the system. */
static bags_code bagi_writer_flush_fields(
    bags_writer *writer, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < writer->spec.count && !code; i++)
        code = bagi_column_flush_blobs(&writer->env, &writer->columns[i], err);
    for (size_t i = 0; i < writer->spec.count && !code; i++)
        code = bagi_out_flush(&writer->env, &writer->columns[i].ends, err);
    return code;
}

static bags_code bagi_writer_flush_all(bags_writer *writer, bags_error *err) {
    bags_code code = bagi_writer_flush_fields(writer, err);
    return code
               ? code
               : bagi_column_flush(&writer->env, bagi_refs_column(writer), err);
}

/* Whether the shard must be on disk when it is finished. */
static bool bagi_writer_must_sync(const bags_writer *writer) {
    return !writer->options.no_sync || writer->synced;
}

/* spec.json.partial becomes spec.json: from here on the shard is one. */
static bags_code bagi_writer_commit_record(
    bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    char *from = bagi_writer_partial_path(writer, err);
    char *to = bagi_print(&env->memory, err, "%s/spec.json", writer->shard);
    bags_code code = from && to ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code && bagi_writer_must_sync(writer))
        code = bagi_sync_dir(env, writer->shard, err);
    if (!code) {
        int error = env->io.rename(env->io.user, from, to);
        if (error)
            code = bagi_fail_system(err, error, from, "rename");
        writer->committed = !error;
    }
    if (!code && bagi_writer_must_sync(writer))
        code = bagi_sync_dir(env, writer->shard, err);
    bagi_free_text(&env->memory, from);
    bagi_free_text(&env->memory, to);
    return code;
}

/* Make the names of the shard and of the dataset survive a power loss. Of a
 * sharded dataset, its own directory is among those made. */
static bags_code bagi_writer_sync_parents(
    bags_writer *writer, bags_error *err) {
    size_t levels = writer->made + !writer->sharded;
    bags_code code = writer->sharded
                         ? bagi_sync_dir(&writer->env, writer->path, err)
                         : BAGS_OK;
    if (code || writer->shards > 0)
        return code;
    return bagi_sync_above(
        &writer->env, writer->path, levels ? levels : 1, err);
}

/* A shard that was begun without checksums gets them before it is committed,
 * refs.crc last: where that is, recovery takes all of them for journals, which
 * they may serve as. */
static bags_code bagi_writer_add_sums(
    bags_writer *writer, bool no_sync, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    const unsigned char *text = (const unsigned char *)writer->text;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i <= writer->spec.count && !code; i++) {
        bag_reader bag;
        bagi_bag_options how;
        memset(&how, 0, sizeof how);
        memset(&bag, 0, sizeof bag);
        how.where = BAGI_WITH_REFS;
        how.name = bagi_writer_column_name(writer, i);
        how.spec = bagi_crc(0, text, writer->text_size);
        bag.env = &writer->env;
        char *path =
            bagi_print(memory, err, "%s/%s.bag", writer->shard, how.name);
        if (!path)
            return BAGS_ERROR_MEMORY;
        code = bagi_bag_open(&bag, path, &how, err);
        bagi_free_text(memory, path);
        if (!code)
            code = bagi_sums_write(&bag, &how, no_sync, err);
        if (bag.file.path)
            bagi_bag_release(&bag);
    }
    return code;
}

/* Finish the shard being written. */
static bags_code bagi_writer_finish(bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    bool keep_idx = writer->options.keep_idx;
    bool no_sync = !bagi_writer_must_sync(writer);
    bags_code code = bagi_writer_flush_all(writer, err);
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_column_finish(
            env, &writer->columns[i], keep_idx, no_sync, err);
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_column_close_kept(env, &writer->columns[i], err);
    if (!code && writer->options.checksum && !bagi_refs_column(writer)->summed)
        code = bagi_writer_add_sums(writer, no_sync, err);
    if (!code)
        code = bagi_writer_commit_record(writer, err);
    if (!code && !no_sync)
        code = bagi_writer_sync_parents(writer, err);
    if (code)
        return code;
    for (size_t i = 0; i <= writer->spec.count && !keep_idx; i++)
        bagi_out_remove(env, &writer->columns[i].ends);
    bagi_writer_leave(writer);
    writer->shards++;
    writer->number =
        bagi_shard_after(writer->number, writer->options.shard_stop);
    return BAGS_OK;
}

/* Flush, and wait until the disk has the shard being written. */
static bags_code bagi_writer_sync_all(bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->env;
    bags_code code = bagi_writer_flush_all(writer, err);
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_column_sync(env, &writer->columns[i], err);
    int error = code ? 0 : env->io.sync(env->io.user, writer->partial);
    if (error)
        code = bagi_fail_system(
            err, error, writer->shard, "sync the spec.json.partial of");
    if (!code)
        code = bagi_sync_dir(env, writer->shard, err);
    writer->synced = true;
    writer->unsynced = 0;
    return code ? code : bagi_writer_sync_parents(writer, err);
}

/* Whether the shard has reached one of its limits. */
static bool bagi_writer_full(const bags_writer *writer) {
    const bags_writer_options *options = &writer->options;
    if (!writer->sharded)
        return false;
    if (options->shard_length && writer->shard_length >= options->shard_length)
        return true;
    if (!options->shard_size)
        return false;
    uint64_t size = 0;
    for (size_t i = 0; i <= writer->spec.count; i++)
        size += bagi_column_size(&writer->columns[i]);
    return size >= options->shard_size;
}

/* A failure of the system ends the writer's work. */
static bags_code bagi_writer_broken(bags_writer *writer, bags_error *err) {
    return bagi_keep_failure(&writer->failure, err);
}

/* A refused datapoint is reported now and, if it is the first, by close. */
static bags_code bagi_writer_refuse(
    bags_writer *writer, const bags_error *why, bags_error *err) {
    if (!err && !writer->refusal.code)
        writer->refusal = *why;
    writer->refused += !err;
    if (err && err != why)
        *err = *why;
    return why->code;
}

#define BAGI_NOT_ENDED "a datapoint was begun and not ended"

/* A call out of order: a datapoint may be lost by it, so that close reports
 * it. */
BAGI_COLD static bags_code bagi_refuse_state(
    bags_writer *writer, const char *what, bags_error *err) {
    bags_error why;
    bags_fail(&why, BAGS_ERROR_STATE, "%s: %s", bagi_tail(writer->path), what);
    return bagi_writer_refuse(writer, &why, err);
}

/* Start a datapoint: the shard is there, nothing is given yet. */
static bags_code bagi_datapoint_begin(bags_writer *writer) {
    if (!writer->shard && bagi_writer_claim(writer, &writer->failure))
        return writer->failure.code;
    memset(writer->given, 0, writer->spec.count * sizeof *writer->given);
    memset(writer->refs, 0, writer->spec.count * sizeof *writer->refs);
    return BAGS_OK;
}

static void bagi_datapoint_drop(bags_writer *writer) {
    for (size_t i = 0; i < writer->spec.count; i++)
        bagi_column_rewind(&writer->columns[i]);
}

/* Encode a value and put its blob behind the field's. A failure to encode goes
 * to `why`, one to write to the writer. */
static bags_code bagi_datapoint_put(bags_writer *writer, size_t field,
    const bags_value *value, uint64_t item, bags_error *why) {
    bagi_column *column = &writer->columns[field];
    bags_view blob = {NULL, 0};
    bags_code code = bagi_encode(&writer->env.memory, &writer->spec, field,
        value, &writer->scratch, &blob, why);
    if (code) {
        if (writer->spec.types[field].sequence)
            bagi_prefix(why, code, "item %" PRIu64 ": ", item);
        return bagi_prefix(
            why, code, "field \"%.200s\": ", writer->spec.fields[field].name);
    }
    if (!writer->refs[field].count)
        writer->refs[field].first = column->length;
    code = bagi_column_add(
        &writer->env, column, blob.data, blob.size, &writer->failure);
    if (!code)
        writer->refs[field].count++;
    return code;
}

/* The datapoint is whole: write its refs, and keep it. What refs.bag says must
 * be in the fields' files before it is in refs.bag's. */
static bags_code bagi_datapoint_commit(bags_writer *writer) {
    bagi_column *refs = bagi_refs_column(writer);
    bags_error *err = &writer->failure;
    size_t size = bagi_refs_write(
        writer->spec.types, writer->spec.count, writer->refs, writer->row);
    bags_code code = BAGS_OK;
    if (bagi_out_room(&refs->blobs) <= size || bagi_out_room(&refs->ends) <= 8)
        code = bagi_writer_flush_fields(writer, err);
    if (!code)
        code = bagi_column_add(&writer->env, refs, writer->row, size, err);
    if (code)
        return code;
    for (size_t i = 0; i <= writer->spec.count; i++) {
        bagi_column *column = &writer->columns[i];
        writer->unsynced += column->blobs.end - column->kept_end;
        bagi_column_keep(column);
    }
    writer->shard_length++;
    writer->length++;
    if (bagi_writer_full(writer))
        return bagi_writer_finish(writer, err);
    return BAGS_OK;
}

/* The field that the i-th entry names: most often the caller's i-th. */
static size_t bagi_writer_field(
    const bags_writer *writer, const char *name, size_t i) {
    const bagi_spec *spec = &writer->spec;
    if (i < spec->count &&
        strcmp(spec->fields[writer->order[i]].name, name) == 0)
        return writer->order[i];
    return bagi_spec_find(spec, name);
}

static bags_code bagi_fail_field(
    bags_error *why, const char *name, const char *fault) {
    return bags_fail(why, BAGS_ERROR_FIELD, "field \"%.200s\" %s", name, fault);
}

static bags_code bagi_writer_entry(
    bags_writer *writer, const bags_entry *entry, size_t i, bags_error *why) {
    if (!entry->field)
        return bags_fail(why, BAGS_ERROR_ARGUMENT,
            "entry %" PRIu64 " names no field", (uint64_t)i);
    size_t field = bagi_writer_field(writer, entry->field, i);
    if (field == writer->spec.count)
        return bagi_fail_field(why, entry->field, "is not in the dataset");
    if (writer->given[field])
        return bagi_fail_field(why, entry->field, "is given twice");
    writer->given[field] = true;
    if (!writer->spec.types[field].sequence && entry->count != 1)
        return bags_fail(why, BAGS_ERROR_VALUE,
            "field \"%.200s\" takes one value, not %" PRIu64, entry->field,
            (uint64_t)entry->count);
    bags_code code = BAGS_OK;
    for (size_t item = 0; item < entry->count && !code; item++)
        code =
            bagi_datapoint_put(writer, field, &entry->values[item], item, why);
    return code;
}

/* The first field that nobody gave; `count` if there is none. A sequence that
 * was streamed may be empty. */
static size_t bagi_writer_absent(const bags_writer *writer, bool streamed) {
    size_t i = 0;
    while (i < writer->spec.count &&
           (writer->given[i] || (streamed && writer->spec.types[i].sequence)))
        i++;
    return i;
}

static bags_code bagi_writer_complete(
    bags_writer *writer, bool streamed, bags_error *why) {
    size_t absent = bagi_writer_absent(writer, streamed);
    if (absent < writer->spec.count)
        return bagi_fail_field(
            why, writer->spec.fields[absent].name, "is missing");
    return BAGS_OK;
}

/* A datapoint could not be made: drop it, and tell whose fault it was. */
static bags_code bagi_datapoint_failed(
    bags_writer *writer, bags_error *why, bags_error *err) {
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    bagi_datapoint_drop(writer);
    bagi_prefix(why, why->code, "%s: datapoint %" PRIu64 ": ",
        bagi_tail(writer->path), writer->length);
    return bagi_writer_refuse(writer, why, err);
}

BAGS_API bags_code bags_writer_append(bags_writer *writer,
    const bags_entry *entries, size_t count, bags_error *err) {
    bags_error why;
    if (!writer)
        return bagi_fail_no_writer(err);
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    if (writer->begun)
        return bagi_refuse_state(writer, BAGI_NOT_ENDED, err);
    if (bagi_datapoint_begin(writer))
        return bagi_writer_broken(writer, err);
    bags_code code = BAGS_OK;
    why.code = BAGS_OK;
    for (size_t i = 0; i < count && !code; i++)
        code = bagi_writer_entry(writer, &entries[i], i, &why);
    if (!code)
        code = bagi_writer_complete(writer, false, &why);
    if (code)
        return bagi_datapoint_failed(writer, &why, err);
    return bagi_datapoint_commit(writer) ? bagi_writer_broken(writer, err)
                                         : BAGS_OK;
}

BAGS_API bags_code bags_writer_begin(bags_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    if (writer->begun)
        return bagi_refuse_state(writer, BAGI_NOT_ENDED, err);
    if (bagi_datapoint_begin(writer))
        return bagi_writer_broken(writer, err);
    writer->begun = true;
    writer->pending.code = BAGS_OK;
    writer->reported = false;
    return BAGS_OK;
}

/* What set and push share. The first failure dooms the datapoint. */
static bags_code bagi_writer_stream(bags_writer *writer, const char *name,
    const bags_value *value, bool sequence, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    if (!writer->begun)
        return bagi_refuse_state(writer, "no datapoint was begun", err);
    bags_error *why = &writer->pending;
    writer->reported = writer->reported || (err && why->code);
    if (why->code)
        return bagi_keep_failure(why, err);
    size_t field =
        name ? bagi_spec_find(&writer->spec, name) : writer->spec.count;
    if (field == writer->spec.count)
        bagi_fail_field(why, name ? name : "", "is not in the dataset");
    else if (writer->spec.types[field].sequence != sequence)
        bags_fail(why, BAGS_ERROR_VALUE, "field \"%.200s\" is %s", name,
            sequence ? "not a sequence: set it, do not push"
                     : "a sequence: push its items, do not set it");
    else if (!sequence && writer->given[field])
        bagi_fail_field(why, name, "is given twice");
    else
        bagi_datapoint_put(
            writer, field, value, writer->refs[field].count, why);
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    writer->reported = err && why->code;
    if (why->code)
        return bagi_keep_failure(why, err);
    writer->given[field] = true;
    return BAGS_OK;
}

BAGS_API bags_code bags_writer_set(bags_writer *writer, const char *field,
    const bags_value *value, bags_error *err) {
    return bagi_writer_stream(writer, field, value, false, err);
}

BAGS_API bags_code bags_writer_push(bags_writer *writer, const char *field,
    const bags_value *item, bags_error *err) {
    return bagi_writer_stream(writer, field, item, true, err);
}

BAGS_API bags_code bags_writer_end(bags_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (writer->failure.code)
        return bagi_writer_broken(writer, err);
    if (!writer->begun)
        return bagi_refuse_state(writer, "no datapoint was begun", err);
    writer->begun = false;
    if (!writer->pending.code)
        bagi_writer_complete(writer, true, &writer->pending);
    if (writer->pending.code)
        return bagi_datapoint_failed(writer, &writer->pending,
            writer->reported && !err ? &writer->pending : err);
    return bagi_datapoint_commit(writer) ? bagi_writer_broken(writer, err)
                                         : BAGS_OK;
}

BAGS_API void bags_writer_cancel(bags_writer *writer) {
    if (!writer || !writer->begun)
        return;
    writer->begun = false;
    if (!writer->failure.code)
        bagi_datapoint_drop(writer);
}

BAGS_API bags_code bags_writer_flush(bags_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (!writer->failure.code && writer->shard)
        bagi_writer_flush_all(writer, &writer->failure);
    return writer->failure.code ? bagi_writer_broken(writer, err) : BAGS_OK;
}

BAGS_API bags_code bags_writer_sync(bags_writer *writer, bags_error *err) {
    if (!writer)
        return bagi_fail_no_writer(err);
    if (!writer->failure.code && writer->shard)
        bagi_writer_sync_all(writer, &writer->failure);
    return writer->failure.code ? bagi_writer_broken(writer, err) : BAGS_OK;
}

BAGS_API uint64_t bags_writer_length(const bags_writer *writer) {
    return writer ? writer->length : 0;
}

BAGS_API uint64_t bags_writer_resumed(const bags_writer *writer) {
    return writer ? writer->found : 0;
}

BAGS_API uint64_t bags_writer_shards(const bags_writer *writer) {
    return writer ? writer->shards : 0;
}

static void bagi_writer_free(bags_writer *writer) {
    bags_allocator memory = writer->env.memory;
    size_t count = writer->spec.count;
    bagi_writer_leave(writer);
    for (size_t i = 0; writer->columns && i <= count; i++)
        bagi_column_free(&memory, &writer->columns[i]);
    bagi_free(&memory, writer->columns, (count + 1) * sizeof *writer->columns);
    bagi_free(&memory, writer->order, count * sizeof *writer->order);
    bagi_free(&memory, writer->refs, count * sizeof *writer->refs);
    bagi_free(&memory, writer->given, count * sizeof *writer->given);
    bagi_free(&memory, writer->row, 5 + count * BAGI_REF_MOST);
    bagi_free(&memory, writer->text, writer->text_size);
    bagi_free_text(&memory, writer->path);
    bags_buffer_free(&writer->scratch);
    bagi_spec_free(&memory, &writer->spec);
    bagi_free(&memory, writer, sizeof *writer);
}

static int bagi_field_order(const void *a, const void *b) {
    return strcmp(((const bags_field *)a)->name, ((const bags_field *)b)->name);
}

/* Check the caller's fields, and sort copies of them. */
static bags_code bagi_writer_fields(bags_writer *writer,
    const bags_field *fields, size_t count, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    bagi_spec *spec = &writer->spec;
    for (size_t i = 0; i < count; i++) {
        if (!fields[i].name || !fields[i].type)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "field %" PRIu64 " has no name or no type", (uint64_t)i);
        const char *fault = bagi_name_fault_write(fields[i].name);
        if (fault)
            return bagi_fail_field(err, fields[i].name, fault);
        bags_code code =
            bagi_spec_add(memory, spec, fields[i].name, strlen(fields[i].name),
                fields[i].type, strlen(fields[i].type), err);
        if (code)
            return code;
    }
    if (count > 1)
        qsort(spec->fields, count, sizeof *spec->fields, bagi_field_order);
    for (size_t i = 1; i < count; i++)
        if (strcmp(spec->fields[i - 1].name, spec->fields[i].name) == 0)
            return bagi_fail_field(err, spec->fields[i].name, "is given twice");
    bags_code code =
        bagi_spec_seal(memory, spec, writer->options.registry, err);
    return code ? code : bagi_spec_check(memory, spec, err);
}

static bags_code bagi_writer_rooms(bags_writer *writer, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    size_t count = writer->spec.count;
    writer->columns = (bagi_column *)bagi_alloc(
        memory, (count + 1) * sizeof *writer->columns, err);
    writer->order =
        (size_t *)bagi_alloc(memory, count * sizeof *writer->order, err);
    writer->refs =
        (bagi_ref *)bagi_alloc(memory, count * sizeof *writer->refs, err);
    writer->given =
        (bool *)bagi_alloc(memory, count * sizeof *writer->given, err);
    writer->row =
        (unsigned char *)bagi_alloc(memory, 5 + count * BAGI_REF_MOST, err);
    if (!writer->columns || !writer->order || !writer->refs || !writer->given ||
        !writer->row)
        return BAGS_ERROR_MEMORY;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i <= count && !code; i++)
        code = bagi_column_init(memory, &writer->columns[i],
            writer->options.buffer_size, writer->options.no_sync, err);
    return code;
}

/* Shards do not go into the directory of a dataset that has none. */
static bags_code bagi_writer_no_single(bags_writer *writer, bags_error *err) {
    bool single = false;
    bags_code code = bagi_is_single(&writer->env, writer->path, &single, err);
    if (!code && single)
        code = bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: is a dataset without shards already", bagi_tail(writer->path));
    return code;
}

/* A dataset without shards is claimed at once; with shards this worker's first
 * one must be free. */
static bags_code bagi_writer_start(bags_writer *writer, bags_error *err) {
    if (!writer->sharded)
        return bagi_writer_claim(writer, err);
    bags_path_kind kind = BAGS_PATH_NONE;
    char *path = bagi_writer_shard_path(writer, err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_kind(&writer->env, path, &kind, err);
    if (!code && kind != BAGS_PATH_NONE)
        code = bagi_fail_claimed(writer, path, err);
    bagi_free_text(&writer->env.memory, path);
    return code ? code : bagi_writer_no_single(writer, err);
}

static bags_code bagi_writer_options(bags_writer *writer, bags_error *err) {
    bags_writer_options *options = &writer->options;
    writer->sharded = options->sharded || options->shard_size ||
                      options->shard_length || options->shard_start ||
                      options->shard_stop;
    if (!options->shard_stop)
        options->shard_stop = 1;
    writer->number = options->shard_start;
    if (options->shard_start >= options->shard_stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: shard_start is %" PRIu64 ", the worker's index; it must be "
            "below shard_stop, the number of workers, which is %" PRIu64,
            bagi_tail(writer->path), options->shard_start, options->shard_stop);
    return BAGS_OK;
}

/* ---- going on with what a writer has left ---- */

/* Open a file that a writer has left; *out then knows its size as `high`. How
 * much disk space was set aside for it nobody knows: it must be cut. */
static bags_code bagi_out_reopen(
    const bagi_env *env, bagi_out *out, char *path, int mode, bags_error *err) {
    out->path = path;
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_open(env, path, mode, &out->handle, err);
    if (code)
        return code;
    out->reserved = env->io.reserve ? UINT64_MAX : 0;
    return bagi_file_size(env, out->handle, path, &out->high, err);
}

/* A view of bytes of a file that is read from front to back, through the
 * buffer, of which base .. written is a window. */
static bags_code bagi_out_window(const bagi_env *env, bagi_out *out,
    uint64_t at, size_t size, const unsigned char **data, bags_error *err) {
    if (at < out->base || at + size > out->written) {
        uint64_t rest = out->high - at;
        size_t most = rest < out->capacity ? (size_t)rest : out->capacity;
        bags_code code = bagi_read_at(
            env, out->handle, out->path, at, out->buffer, most, err);
        if (code)
            return code;
        out->base = at;
        out->written = at + most;
    }
    *data = out->buffer + (at - out->base);
    return BAGS_OK;
}

/* Whether the next blob of a column has the checksum that was noted for it. */
static bags_code bagi_scan_sum(const bagi_env *env, bagi_column *column,
    uint64_t end, const char **why, bags_error *err) {
    const unsigned char *data = NULL;
    uint32_t found = 0;
    bags_code code = BAGS_OK;
    if (column->length >= column->sums.high / 4) {
        *why = "the checksums end before their blobs";
        return BAGS_OK;
    }
    for (uint64_t at = column->blobs.end; at < end && !code;) {
        size_t size = end - at < column->blobs.capacity
                          ? (size_t)(end - at)
                          : column->blobs.capacity;
        code = bagi_out_window(env, &column->blobs, at, size, &data, err);
        if (!code)
            found = bagi_crc(found, data, size);
        at += size;
    }
    if (!code)
        code = bagi_out_window(
            env, &column->sums, column->length * 4, 4, &data, err);
    if (!code && bagi_load_u32(data) != found)
        *why = "a blob does not have the checksum that was noted for it";
    return code;
}

/* Take `count` more entries of a column's journal, if they are there and their
 * blobs too; else *why says what is not. */
static bags_code bagi_scan_ends(const bagi_env *env, bagi_column *column,
    uint64_t count, const char **why, bags_error *err) {
    const unsigned char *entry = NULL;
    if (count > column->ends.high / 8 - column->length) {
        *why = "a journal ends before its blobs";
        return BAGS_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        bags_code code = bagi_out_window(
            env, &column->ends, column->length * 8, 8, &entry, err);
        if (code)
            return code;
        uint64_t end = bagi_load_u64(entry);
        if (end < column->blobs.end || end > column->blobs.high) {
            *why = end < column->blobs.end ? "a journal decreases"
                                           : "a blob is cut";
            return BAGS_OK;
        }
        if (column->summed)
            code = bagi_scan_sum(env, column, end, why, err);
        if (code || *why)
            return code;
        column->blobs.end = end;
        column->length++;
    }
    return BAGS_OK;
}

/* The refs of the next datapoint, into writer->refs. */
static bags_code bagi_scan_refs(
    bags_writer *writer, const char **why, bags_error *err) {
    bagi_column *refs = bagi_refs_column(writer);
    uint64_t start = refs->blobs.end;
    bags_code code = bagi_scan_ends(&writer->env, refs, 1, why, err);
    if (code || *why)
        return code;
    uint64_t size = refs->blobs.end - start;
    if (size > 5 + writer->spec.count * BAGI_REF_MOST) {
        *why = "a blob of refs.bag is too long";
        return BAGS_OK;
    }
    bags_view blob = {writer->row, (size_t)size};
    if (size > refs->blobs.capacity)
        code = bagi_read_at(&writer->env, refs->blobs.handle, refs->blobs.path,
            start, writer->row, blob.size, err);
    else
        code = bagi_out_window(
            &writer->env, &refs->blobs, start, blob.size, &blob.data, err);
    size_t field = 0;
    if (!code && bagi_refs_parse(blob, writer->spec.types, writer->spec.count,
                     writer->refs, &field))
        *why = "a blob of refs.bag is damaged";
    return code;
}

/* Take the next datapoint, if it is whole in all files. */
static bags_code bagi_scan_datapoint(
    bags_writer *writer, const char **why, bags_error *err) {
    bags_code code = bagi_scan_refs(writer, why, err);
    for (size_t i = 0; i < writer->spec.count && !code && !*why; i++) {
        const bagi_ref *ref = &writer->refs[i];
        bagi_column *column = &writer->columns[i];
        if (ref->count && ref->first != column->length)
            *why = "refs.bag and a journal disagree";
        else
            code = bagi_scan_ends(&writer->env, column, ref->count, why, err);
    }
    for (size_t i = 0; i <= writer->spec.count && !code; i++) {
        bagi_column *column = &writer->columns[i];
        if (!*why)
            bagi_column_keep(column);
        column->length = column->kept_length;
        column->blobs.end = column->kept_end;
    }
    return code;
}

/* After the scan: go on writing behind what is kept. */
static void bagi_out_settle(bagi_out *out, uint64_t end) {
    out->end = out->written = out->begun = end;
    out->base = end - end % out->capacity;
    out->moved = true;
}

/* The column ends with what is kept. How many bytes stand behind it. */
static uint64_t bagi_column_settle(bagi_column *column) {
    bagi_out_settle(&column->blobs, column->kept_end);
    bagi_out_settle(&column->ends, column->kept_length * 8);
    if (column->summed)
        bagi_out_settle(&column->sums, column->kept_length * 4);
    column->found_length = column->kept_length;
    column->found_end = column->kept_end;
    return column->blobs.high - column->blobs.end + column->ends.high -
           column->ends.end + column->sums.high - column->sums.end;
}

static bags_code bagi_column_cut(
    const bagi_env *env, bagi_column *column, bags_error *err) {
    bags_code code = bagi_out_cut(env, &column->blobs, err);
    if (!code)
        code = bagi_out_cut(env, &column->ends, err);
    return code || !column->summed ? code
                                   : bagi_out_cut(env, &column->sums, err);
}

/* What was found in a shard that no writer has finished. */
typedef struct bagi_found {
    uint64_t length, cut;
    const char *why;
} bagi_found;

/* A shard that was begun with checksums has a refs.crc. */
static bags_code bagi_scan_begun_with_sums(
    bags_writer *writer, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    char *path =
        bagi_print(&writer->env.memory, err, "%s/refs.crc", writer->shard);
    bags_code code =
        path ? bagi_kind(&writer->env, path, &kind, err) : BAGS_ERROR_MEMORY;
    bagi_free_text(&writer->env.memory, path);
    return code || kind == BAGS_PATH_NONE ? code : bagi_writer_sum(writer, err);
}

/* Open all files of the shard. One that is missing was not made yet. */
static bags_code bagi_scan_open(
    bags_writer *writer, int mode, bool *missing, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    bags_error why;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i <= writer->spec.count && !code; i++) {
        bagi_column *column = &writer->columns[i];
        const char *name = bagi_writer_column_name(writer, i);
        code = bagi_out_reopen(&writer->env, &column->blobs,
            bagi_print(memory, &why, "%s/%s.bag", writer->shard, name), mode,
            &why);
        if (!code)
            code = bagi_out_reopen(&writer->env, &column->ends,
                bagi_print(memory, &why, "%s/%s.idx", writer->shard, name),
                mode, &why);
        if (!code && column->summed)
            code = bagi_out_reopen(&writer->env, &column->sums,
                bagi_print(memory, &why, "%s/%s.crc", writer->shard, name),
                mode, &why);
    }
    *missing = code == BAGS_ERROR_MISSING;
    return code && !*missing ? bagi_keep_failure(&why, err) : BAGS_OK;
}

/* Whether a file of the shard has so many bytes, where not every file could be
 * opened. One that is not there has none. */
static bags_code bagi_scan_has(const bags_writer *writer, const char *name,
    uint64_t least, bool *has, bags_error *err) {
    const bagi_env *env = &writer->env;
    void *file = NULL;
    uint64_t size = 0;
    bags_error why;
    char *path = bagi_print(&env->memory, err, "%s/%s", writer->shard, name);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_open(env, path, BAGS_IO_READ, &file, &why);
    if (!code)
        code = bagi_file_size(env, file, path, &size, &why);
    bagi_close_read(env, file);
    bagi_free_text(&env->memory, path);
    *has = size >= least;
    return code && code != BAGS_ERROR_MISSING ? bagi_keep_failure(&why, err)
                                              : BAGS_OK;
}

static void bagi_out_reset(bagi_out *out) {
    out->base = out->end = out->written = out->high = 0;
    out->reserved = out->begun = 0;
}

static void bagi_scan_reset(bags_writer *writer) {
    for (size_t i = 0; i <= writer->spec.count; i++) {
        bagi_column *column = &writer->columns[i];
        column->length = column->kept_length = column->kept_end = 0;
        bagi_out_reset(&column->blobs);
        bagi_out_reset(&column->ends);
        bagi_out_reset(&column->sums);
    }
}

/* The columns end with the datapoints that are whole. */
static void bagi_scan_settle(bags_writer *writer, bagi_found *found) {
    for (size_t i = 0; i <= writer->spec.count; i++)
        found->cut += bagi_column_settle(&writer->columns[i]);
    writer->shard_length = found->length = bagi_refs_column(writer)->length;
}

/* Whether a field's journal is gone while refs.bag has rows. A writer writes these
 * when it has made all files, and removes them before any field's: so it is a
 * copy of a shard that was being finished, or somebody has removed journals. */
static bags_code bagi_scan_robbed(
    const bags_writer *writer, bool *robbed, bags_error *err) {
    const bagi_env *env = &writer->env;
    bool gone = false;
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < writer->spec.count && !code && !gone; i++) {
        char *path = bagi_print(&env->memory, err, "%s/%s.idx", writer->shard,
            bagi_writer_column_name(writer, i));
        code = path ? bagi_kind(env, path, &kind, err) : BAGS_ERROR_MEMORY;
        gone = !code && kind == BAGS_PATH_NONE;
        bagi_free_text(&env->memory, path);
    }
    *robbed = false;
    return code || !gone ? code
                         : bagi_scan_has(writer, "refs.bag", 1, robbed, err);
}

/*
 * Find the datapoints of the shard that are whole, and make the columns end
 * with them. That there are none is believed only if refs.idx says so too, and
 * the files do not contradict it: else something else than a writer's death has
 * been at work, and a person must look.
 */
static bags_code bagi_writer_scan(
    bags_writer *writer, int mode, bagi_found *found, bags_error *err) {
    const char *why = NULL;
    bool missing = false, has_rows = false, robbed = false;
    bagi_scan_reset(writer);
    bags_code code = bagi_scan_begun_with_sums(writer, err);
    if (!code)
        code = bagi_scan_open(writer, mode, &missing, err);
    bagi_column *refs = bagi_refs_column(writer);
    while (!code && !missing && !why && refs->length < refs->ends.high / 8)
        code = bagi_scan_datapoint(writer, &why, err);
    if (!code && missing)
        why = "not all files are there";
    if (!code && refs->kept_length == 0)
        code = bagi_scan_has(writer, "refs.idx", 8, &has_rows, err);
    if (!code && has_rows)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: refs.idx has datapoints, but none is whole: %s. If a loss of "
            "power came before anything in it was synced, remove the directory",
            bagi_tail(writer->shard), why);
    if (!code && missing)
        code = bagi_scan_robbed(writer, &robbed, err);
    if (!code && robbed)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: refs.bag has datapoints, but .idx files are missing, as in a "
            "copy "
            "that was made while it was being finished. If its Bags have their "
            "tables, rename spec.json.partial to spec.json and verify it",
            bagi_tail(writer->shard));
    if (code)
        return code;
    bagi_scan_settle(writer, found);
    found->why = why ? why : "";
    return BAGS_OK;
}

/* Of a shard that was begun without checksums: remove those that it was being
 * given when its end was interrupted, since its blobs may become others. refs.crc
 * goes first: where that is, recovery takes the rest for journals. */
static bags_code bagi_writer_clear_sums(
    const bags_writer *writer, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = writer->spec.count + 1; i-- > 0 && !code;) {
        const char *name = bagi_writer_column_name(writer, i);
        code = bagi_writer_remove(writer, name, ".crc", err);
        if (!code)
            code = bagi_writer_remove(writer, name, ".crc.partial", err);
    }
    return code;
}

static bags_code bagi_writer_cut(bags_writer *writer, bags_error *err) {
    bags_code code = bagi_refs_column(writer)->summed
                         ? BAGS_OK
                         : bagi_writer_clear_sums(writer, err);
    for (size_t i = 0; i <= writer->spec.count && !code; i++)
        code = bagi_column_cut(&writer->env, &writer->columns[i], err);
    return code;
}

/* Lock a file that a writer has had locked, of the shard or the Bag `what`. */
static bags_code bagi_lock_left(const bagi_env *env, void *file,
    const char *path, const char *what, bags_error *err) {
    int error = env->io.lock(env->io.user, file);
    if (error == EWOULDBLOCK)
        return bagi_fail_locked(what, err);
    return error ? bagi_fail_system(err, error, path, "lock") : BAGS_OK;
}

/* Lock the shard that was left, and read its spec.json.partial. *text is NULL
 * if there is none. */
static bags_code bagi_writer_relock(bags_writer *writer, int mode,
    unsigned char **text, size_t *size, bags_error *err) {
    const bagi_env *env = &writer->env;
    bags_path_kind kind = BAGS_PATH_NONE;
    char *path = bagi_writer_partial_path(writer, err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    *text = NULL;
    bags_code code = bagi_kind(env, path, &kind, err);
    if (!code && kind != BAGS_PATH_NONE) {
        code = bagi_open(env, path, mode, &writer->partial, err);
        if (!code)
            code =
                bagi_lock_left(env, writer->partial, path, writer->shard, err);
        if (!code)
            code = bagi_read_file(env, path, BAGI_SPEC_MOST, text, size, err);
    }
    bagi_free_text(&env->memory, path);
    return code;
}

static int bagi_left_other(void *user, const char *name) {
    *(bool *)user =
        strcmp(name, "spec.json.partial") != 0 && strcmp(name, "refs.crc") != 0;
    return *(bool *)user ? ECANCELED : 0;
}

BAGI_COLD static bags_code bagi_fail_left(const bags_writer *writer,
    bags_code code, const char *what, bags_error *err) {
    bool lost = false;
    bags_code why = bagi_spec_is_lost(&writer->env, writer->shard, &lost, err);
    if (why || lost)
        return why ? why : bagi_fail_lost(writer->shard, code, err);
    return bags_fail(err, code, "%s: %s", bagi_tail(writer->shard), what);
}

/* A shard whose fields nobody knows can only be one whose writer died before it
 * made them: `what` says why they are not known. */
static bags_code bagi_left_unknown(const bags_writer *writer, bags_code code,
    const char *what, bags_error *err) {
    const bagi_env *env = &writer->env;
    bool other = false;
    int error =
        env->io.list(env->io.user, writer->shard, bagi_left_other, &other);
    if (other)
        return bagi_fail_left(writer, code, what, err);
    return error ? bagi_fail_system(err, error, writer->shard, "list")
                 : BAGS_OK;
}

#define BAGI_LEFT_NO_RECORD                                                    \
    "has files but neither spec.json nor spec.json.partial: it is not a "      \
    "shard "                                                                   \
    "that a writer left"

/* Go on with a shard that was left, whose fields must be the writer's. On
 * success writer->shard is open; it may hold no datapoint. */
static bags_code bagi_writer_resume(
    bags_writer *writer, char *shard, bagi_found *found, bags_error *err) {
    unsigned char *text = NULL;
    size_t size = 0;
    writer->shard = shard;
    bags_code code =
        bagi_writer_relock(writer, BAGS_IO_WRITE, &text, &size, err);
    bool record = text != NULL;
    bool same = text && size == writer->text_size &&
                memcmp(text, writer->text, size) == 0;
    bagi_free(&writer->env.memory, text, size);
    if (code)
        return code;
    if (!record)
        return bagi_left_unknown(
            writer, BAGS_ERROR_EXISTS, BAGI_LEFT_NO_RECORD, err);
    if (!same)
        return bagi_left_unknown(
            writer, BAGS_ERROR_EXISTS, "was begun with other fields", err);
    code = bagi_writer_scan(writer, BAGS_IO_WRITE, found, err);
    if (!code)
        code = bagi_writer_cut(writer, err);
    writer->resumed = found->length > 0;
    return code;
}

/* The datapoints that finished shards of this worker hold, all of the writer's
 * fields. */
static bags_code bagi_writer_count_found(bags_writer *writer, bags_error *err) {
    bags_reader_options options;
    bags_error why;
    memset(&options, 0, sizeof options);
    options.shard_start = writer->options.shard_start;
    options.shard_stop = writer->options.shard_stop;
    options.allow_gaps = true;
    options.unfinished = BAGS_UNFINISHED_SKIP;
    options.env.allocator = &writer->env.memory;
    options.env.io = &writer->env.io;
    bags_reader *reader = bags_reader_open(writer->path, &options, &why);
    if (!reader && why.code == BAGS_ERROR_UNFINISHED)
        return BAGS_OK;
    if (!reader) {
        if (err)
            *err = why;
        return why.code;
    }
    bagi_spec spec;
    memset(&spec, 0, sizeof spec);
    const bags_field *fields = bags_reader_fields(reader, &spec.count);
    spec.fields = (bags_field *)(uintptr_t)fields;
    bool same = bagi_spec_same(&spec, &writer->spec);
    writer->found = bags_reader_length(reader);
    bags_reader_close(reader);
    return same ? BAGS_OK
                : bags_fail(err, BAGS_ERROR_EXISTS,
                      "%s: its shards have other fields",
                      bagi_tail(writer->path));
}

/* Take up one shard of this worker: leave it if it is finished, else go on with
 * it; if it is not the last, or is full, finish it. */
static bags_code bagi_writer_take_up(
    bags_writer *writer, bagi_name name, bool last, bags_error *err) {
    const bagi_env *env = &writer->env;
    bool finished = false, other = false;
    bagi_found found = {0, 0, NULL};
    char *shard = bagi_shard_path(&env->memory, writer->path, name, err);
    if (!shard)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_shard_finished(env, shard, &finished, err);
    if (code || finished) {
        bagi_free_text(&env->memory, shard);
        writer->number =
            bagi_shard_after(name.number, writer->options.shard_stop);
        return code;
    }
    code = bagi_writer_resume(writer, shard, &found, err);
    if (code)
        return code;
    writer->number = name.number;
    writer->found += found.length;
    if (found.length == 0)
        code = bagi_writer_discard(writer, true, &other, err);
    else if (!last || bagi_writer_full(writer))
        code = bagi_writer_finish(writer, err);
    return code;
}

/* The shards of this worker, in order. */
static bags_code bagi_writer_go_on_shards(
    bags_writer *writer, bags_error *err) {
    uint64_t start = writer->options.shard_start;
    uint64_t stop = writer->options.shard_stop;
    bagi_names names;
    bags_code code = bagi_writer_no_single(writer, err);
    if (!code)
        code = bagi_names_list(&writer->env, writer->path, &names, err);
    if (code)
        return code;
    if (names.count)
        code = bagi_writer_count_found(writer, err);
    size_t last = 0;
    for (size_t i = 0; i < names.count; i++)
        if (names.names[i].number % stop == start)
            last = i;
    for (size_t i = 0; i < names.count && !code; i++)
        if (names.names[i].number % stop == start)
            code = bagi_writer_take_up(writer, names.names[i], i == last, err);
    bagi_names_free(&names);
    writer->shards = 0;
    return code;
}

/* A dataset without shards does not go on in one that has them. */
static bags_code bagi_writer_no_shards(bags_writer *writer, bags_error *err) {
    bool single = false;
    bagi_names names;
    bags_code code = bagi_is_single(&writer->env, writer->path, &single, err);
    if (code || single)
        return code;
    code = bagi_names_list(&writer->env, writer->path, &names, err);
    if (!code && names.count)
        code = bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: is a dataset with shards: to append, give the shard options "
            "that "
            "it was begun with (sharded, shard_size, shard_length, "
            "shard_start, "
            "shard_stop)",
            bagi_tail(writer->path));
    bagi_names_free(&names);
    return code;
}

/* A dataset without shards that is there already. */
static bags_code bagi_writer_go_on_single(
    bags_writer *writer, bags_error *err) {
    bagi_found found = {0, 0, NULL};
    bool other = false;
    bags_code code = bagi_writer_no_shards(writer, err);
    char *shard = code ? NULL : bagi_writer_shard_path(writer, err);
    if (!code)
        code = shard ? bagi_writer_resume(writer, shard, &found, err)
                     : BAGS_ERROR_MEMORY;
    if (code)
        return code;
    writer->found = found.length;
    if (found.length)
        return BAGS_OK;
    code = bagi_writer_discard(writer, true, &other, err);
    return code ? code : bagi_writer_claim(writer, err);
}

/* Open for append. */
static bags_code bagi_writer_go_on(bags_writer *writer, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    bool finished = false;
    bags_code code = bagi_kind(&writer->env, writer->path, &kind, err);
    if (code || kind == BAGS_PATH_NONE)
        return code ? code : bagi_writer_start(writer, err);
    code = bagi_shard_finished(&writer->env, writer->path, &finished, err);
    if (!code && finished)
        code = bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: is finished, and has no shards: nothing can be appended to "
            "it. "
            "Write into a new path, or with shards",
            bagi_tail(writer->path));
    if (code)
        return code;
    return writer->sharded ? bagi_writer_go_on_shards(writer, err)
                           : bagi_writer_go_on_single(writer, err);
}

/* A writer that has a path and options, and no fields yet. */
static bags_writer *bagi_writer_new(
    const char *path, const bags_writer_options *options, bags_error *err) {
    bagi_env env = bagi_env_of(options ? options->env.allocator : NULL,
        options ? options->env.io : NULL);
    if (bagi_check_path(path, err))
        return NULL;
    bags_writer *writer =
        (bags_writer *)bagi_alloc(&env.memory, sizeof *writer, err);
    if (!writer)
        return NULL;
    writer->env = env;
    if (options)
        writer->options = *options;
    bagi_buffer_adopt(&writer->scratch, &env.memory);
    writer->path = bagi_copy_text(&env.memory, path, strlen(path), err);
    if (writer->path && !bagi_writer_options(writer, err))
        return writer;
    bagi_writer_free(writer);
    return NULL;
}

/* Make room for the fields that the writer has now. */
static bags_code bagi_writer_equip(bags_writer *writer, bags_error *err) {
    writer->text = bagi_spec_text(
        &writer->env.memory, &writer->spec, &writer->text_size, err);
    return writer->text ? bagi_writer_rooms(writer, err) : BAGS_ERROR_MEMORY;
}

BAGS_API bags_writer *bags_writer_open(const char *path,
    const bags_field *fields, size_t count, const bags_writer_options *options,
    bags_error *err) {
    bags_writer *writer = bagi_writer_new(path, options, err);
    if (!writer)
        return NULL;
    bags_code code = bagi_writer_fields(writer, fields, count, err);
    if (code && code != BAGS_ERROR_MEMORY)
        bagi_prefix(err, code, "%s: ", bagi_tail(path));
    if (!code)
        code = bagi_writer_equip(writer, err);
    for (size_t i = 0; i < count && !code; i++)
        writer->order[i] = bagi_spec_find(&writer->spec, fields[i].name);
    if (!code)
        code = writer->options.resume ? bagi_writer_go_on(writer, err)
                                      : bagi_writer_start(writer, err);
    if (!code)
        return writer;
    bagi_writer_free(writer);
    return NULL;
}

/* The end of a writer that has not failed. */
static void bagi_writer_conclude(bags_writer *writer) {
    if (writer->begun) {
        bagi_datapoint_drop(writer);
        bagi_refuse_state(writer, BAGI_NOT_ENDED, NULL);
    }
    if (!writer->shard)
        return;
    /* Readers would refuse a shard that stays though it is not finished. */
    if (writer->sharded && writer->shard_length == 0)
        bagi_writer_drop(writer, &writer->failure);
    else
        bagi_writer_finish(writer, &writer->failure);
}

/* What close says of the datapoints that were refused. */
static bags_code bagi_writer_refusals(bags_writer *writer, bags_error *err) {
    bags_error *first = &writer->refusal;
    if (writer->refused < 2)
        return bagi_keep_failure(first, err);
    return bags_fail(err, first->code,
        "%s (the first of %" PRIu64 " that were refused)", first->message,
        writer->refused);
}

BAGS_API bags_code bags_writer_close(bags_writer *writer, bags_error *err) {
    if (!writer)
        return BAGS_OK;
    if (!writer->failure.code)
        bagi_writer_conclude(writer);
    bags_code code = BAGS_OK;
    if (writer->failure.code)
        code = bagi_writer_broken(writer, err);
    else if (writer->refusal.code)
        code = bagi_writer_refusals(writer, err);
    bagi_writer_free(writer);
    return code;
}

/* What was there before this writer came stays, unfinished as it was; a shard that
 * is whole, and only waiting for the disk failed, stays too. */
static void bagi_writer_give_back(bags_writer *writer) {
    for (size_t i = 0; i <= writer->spec.count && !writer->committed; i++) {
        bagi_column *column = &writer->columns[i];
        column->kept_length = column->found_length;
        column->kept_end = column->found_end;
        bagi_column_rewind(column);
    }
    if (!writer->committed)
        bagi_writer_cut(writer, NULL);
    bagi_writer_leave(writer);
}

BAGS_API void bags_writer_abort(bags_writer *writer) {
    if (!writer)
        return;
    if (writer->resumed)
        bagi_writer_give_back(writer);
    else
        bagi_writer_drop(writer, NULL);
    bagi_writer_free(writer);
}

/* ========================================================================
 * >>recover
 * What bags_writer_open does with `append`, done for shards of any worker: the
 * fields come from spec.json.partial, and what is found is finished.
 * ====================================================================== */

/* A stranger's record says how many fields there are: each gets little. */
#define BAGI_RECOVER_BUFFER ((size_t)64 << 10)

typedef struct bagi_recovering {
    bagi_env env;
    bags_recover_options options;
    bags_recover_report report;
    bool lone;      /* a Bag, not shards */
    bags_code code; /* of the first failure */
    bags_error *err;
} bagi_recovering;

/* The fields of the shard that is being recovered, from its own record. If that
 * is missing or cut, nothing was written after it. */
static bags_code bagi_recover_spec(bags_writer *writer,
    const unsigned char *text, size_t size, bags_error *err) {
    const bags_allocator *memory = &writer->env.memory;
    if (!text)
        return BAGS_ERROR_MISSING;
    bags_code code = bagi_spec_parse(memory, &writer->spec, text, size, err);
    if (!code)
        code = bagi_spec_seal(memory, &writer->spec, NULL, err);
    return code ? code : bagi_writer_equip(writer, err);
}

static bags_code bagi_recover_empty(bagi_recovering *work, bags_writer *writer,
    bool known, bags_recovered *done, bags_error *err) {
    bool other = false;
    done->action = BAGS_RECOVERY_REMOVED;
    if (work->options.dry_run)
        return BAGS_OK;
    bags_code code = bagi_writer_discard(writer, known, &other, err);
    if (other)
        done->reason = "it held no datapoint; files that no writer makes stay";
    return code;
}

/* Finish the shard that writer->shard names, or remove it. */
static bags_code bagi_recover_with(bagi_recovering *work, bags_writer *writer,
    bags_recovered *done, bags_error *err) {
    int mode = work->options.dry_run ? BAGS_IO_READ : BAGS_IO_WRITE;
    bagi_found found = {0, 0, ""};
    unsigned char *text = NULL;
    size_t size = 0;
    bags_code code = bagi_writer_relock(writer, mode, &text, &size, err);
    if (code)
        return code;
    bool record = text != NULL;
    bags_code unknown = bagi_recover_spec(writer, text, size, err);
    bagi_free(&work->env.memory, text, size);
    if (unknown == BAGS_ERROR_MEMORY)
        return unknown;
    if (unknown)
        code = bagi_left_unknown(writer, BAGS_ERROR_CORRUPT,
            record ? "its spec.json.partial is damaged" : BAGI_LEFT_NO_RECORD,
            err);
    else
        code = bagi_writer_scan(writer, mode, &found, err);
    if (code)
        return code;
    done->length = found.length;
    done->truncated = found.cut;
    done->reason = found.why;
    if (found.length == 0)
        return bagi_recover_empty(work, writer, !unknown, done, err);
    done->action = BAGS_RECOVERY_FINISHED;
    if (work->options.dry_run)
        return BAGS_OK;
    code = bagi_writer_cut(writer, err);
    return code ? code : bagi_writer_finish(writer, err);
}

static bags_code bagi_recover_shard(bagi_recovering *work, const char *path,
    bags_recovered *done, bags_error *err) {
    bool finished = false;
    bags_code code = bagi_shard_finished(&work->env, path, &finished, err);
    if (code || finished)
        return code;
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = work->options.no_sync;
    options.keep_idx = work->options.keep_idx;
    options.buffer_size = BAGI_RECOVER_BUFFER;
    options.env.allocator = &work->env.memory;
    options.env.io = &work->env.io;
    bags_writer *writer = bagi_writer_new(path, &options, err);
    if (!writer)
        return BAGS_ERROR_MEMORY;
    writer->shard = bagi_copy_text(&work->env.memory, path, strlen(path), err);
    code = writer->shard ? bagi_recover_with(work, writer, done, err)
                         : BAGS_ERROR_MEMORY;
    bagi_writer_free(writer);
    /* Its writer may have finished it while it was looked at. */
    if (code && !bagi_shard_finished(&work->env, path, &finished, NULL) &&
        finished && done->action == BAGS_RECOVERY_NOTHING)
        code = BAGS_OK;
    return code;
}

/* ---- a lone Bag ---- */

typedef enum bagi_lone_state {
    BAGI_LONE_WHOLE,
    BAGI_LONE_LEFT, /* it has a journal, and no table */
    BAGI_LONE_TORN  /* it has both, and is not right: the power failed */
} bagi_lone_state;

#define BAGI_COMPARE_STEP 128

static bags_code bagi_bag_verify(const bag_reader *reader, bags_error *err);

/* Whether an entry of a table can be what a loss of power made of that of a
 * journal: the same bytes, or zeros. */
static bool bagi_recover_faded(
    const unsigned char *entry, const unsigned char *end) {
    size_t i = 0;
    while (i < 8 && (entry[i] == end[i] || entry[i] == 0))
        i++;
    return i == 8;
}

/*
 * Whether the entries `table` are what a loss of power makes of `journal`, which
 * was on the disk before: the first that is neither the same nor lost, else
 * `count`. Many at once are lost, all but part of the first and the last one: an
 * entry that differs among others that do not is of another Bag, or has rotted.
 * Behind `count` may be others of the table.
 */
static size_t bagi_recover_differ(const unsigned char *table,
    const unsigned char *journal, size_t count, bool *same) {
    for (size_t i = 0; i < count; i++) {
        const unsigned char *entry = table + 8 * i;
        if (memcmp(entry, journal + 8 * i, 8) == 0)
            continue;
        *same = false;
        bool lost = bagi_load_u64(entry) == 0 ||
                    (i > 0 && bagi_load_u64(entry - 8) == 0) ||
                    (i + 1 < count ? bagi_load_u64(entry + 8) == 0
                                   : count == BAGI_COMPARE_STEP);
        if (!lost || !bagi_recover_faded(entry, journal + 8 * i))
            return i;
    }
    return count;
}

/* Whether a Bag's table says what its journal does, which is as long. If they
 * contradict each other, nobody knows which of them is right. */
static bags_code bagi_recover_compare(
    const bag_reader *bag, const char *journal, bool *same, bags_error *err) {
    const bagi_env *env = bag->env;
    unsigned char entries[8 + 8 * BAGI_COMPARE_STEP];
    unsigned char ends[8 * BAGI_COMPARE_STEP];
    void *file = NULL;
    bags_code code = bagi_open(env, journal, BAGS_IO_READ, &file, err);
    for (uint64_t at = 0; at < bag->length && !code;) {
        uint64_t rest = bag->length - at;
        size_t count =
            rest < BAGI_COMPARE_STEP ? (size_t)rest : BAGI_COMPARE_STEP;
        code = bagi_bag_entries(bag, at, count, entries, err);
        if (!code)
            code =
                bagi_read_at(env, file, journal, 8 * at, ends, 8 * count, err);
        size_t differ =
            code ? count : bagi_recover_differ(entries + 8, ends, count, same);
        if (differ < count)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: its table and its .idx disagree about the end of blob "
                "%" PRIu64 "; if the table is right, remove the .idx",
                bagi_tail(bag->file.path), at + differ);
        at += count;
    }
    bagi_close_read(env, file);
    return code;
}

/* What a Bag beside a journal is. */
static bags_code bagi_recover_look_at(const bagi_env *env, const char *path,
    const char *journal, bagi_lone_state *state, bags_error *err) {
    bag_reader_options options;
    bags_path_kind kind = BAGS_PATH_NONE;
    bool same = true;
    bags_code code = bagi_kind(env, journal, &kind, err);
    if (code)
        return code;
    memset(&options, 0, sizeof options);
    options.no_mmap = true;
    options.env.allocator = &env->memory;
    options.env.io = &env->io;
    bag_reader *reader = bag_reader_open(path, &options, err);
    if (!reader && (err->code != BAGS_ERROR_CORRUPT || kind != BAGS_PATH_FILE))
        return err->code;
    if (reader && !reader->split && kind == BAGS_PATH_FILE) {
        code = bagi_recover_compare(reader, journal, &same, err);
        bags_code wrong = code ? BAGS_OK : bagi_bag_verify(reader, err);
        same = same && !wrong;
        if (code == BAGS_ERROR_MISSING)
            code = BAGS_OK; /* the journal went: its writer has finished */
        else if (wrong != BAGS_ERROR_CORRUPT)
            code = code ? code : wrong;
    }
    *state = !reader || reader->split ? BAGI_LONE_LEFT
             : same                   ? BAGI_LONE_WHOLE
                                      : BAGI_LONE_TORN;
    bag_reader_close(reader);
    return code;
}

static bags_code bagi_recover_look(const bagi_env *env, const char *path,
    bagi_lone_state *state, bags_error *err) {
    bags_error why;
    char *journal = bagi_beside_path(&env->memory, path, ".idx", err);
    if (!journal)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_recover_look_at(env, path, journal, state, &why);
    bagi_free_text(&env->memory, journal);
    return code ? bagi_keep_failure(&why, err) : BAGS_OK;
}

/* Open the Bag, lock it, and open what stands beside it. */
static bags_code bagi_recover_reopen(
    bag_writer *writer, const char *path, int mode, bags_error *err) {
    const bagi_env *env = &writer->env;
    const bags_allocator *memory = &env->memory;
    bagi_column *column = &writer->column;
    bags_path_kind sums = BAGS_PATH_NONE;
    bags_code code = bagi_out_reopen(env, &column->blobs,
        bagi_copy_text(memory, path, strlen(path), err), mode, err);
    if (!code)
        code = bagi_lock_left(env, column->blobs.handle, path, path, err);
    if (!code)
        code = bagi_out_reopen(env, &column->ends,
            bagi_beside_path(memory, path, ".idx", err), mode, err);
    char *crc = code ? NULL : bagi_beside_path(memory, path, ".crc", err);
    if (!code)
        code = crc ? bagi_kind(env, crc, &sums, err) : BAGS_ERROR_MEMORY;
    if (code || sums == BAGS_PATH_NONE) {
        bagi_free_text(memory, crc);
        return code;
    }
    code = bagi_out_reopen(env, &column->sums, crc, mode, err);
    return code ? code : bagi_column_sum(memory, column, 0, 0, err);
}

/* What the journal's first `count` entries end with. */
static bags_code bagi_recover_end(
    const bag_writer *writer, uint64_t count, uint64_t *end, bags_error *err) {
    const bagi_out *ends = &writer->column.ends;
    unsigned char room[8] = {0};
    bags_code code = count == 0 ? BAGS_OK
                                : bagi_read_at(&writer->env, ends->handle,
                                      ends->path, 8 * count - 8, room, 8, err);
    *end = bagi_load_u64(room);
    return code;
}

/* Whether what stands behind the blobs of the journal, all of which are there, is
 * the beginning of the table that their writer puts there: a 0, and ends. */
static bags_code bagi_recover_begun(const bag_writer *writer,
    const bag_reader *bag, bool *begun, bags_error *err) {
    const bagi_column *column = &writer->column;
    uint64_t behind = bag->file.size - column->blobs.end;
    uint64_t first = 0, end = 0;
    if (behind < 8 || behind % 8 || behind / 8 - 1 > column->length ||
        column->length != column->ends.high / 8)
        return BAGS_OK;
    bags_code code =
        bagi_file_peek(bag, &bag->file, column->blobs.end, &first, err);
    if (!code)
        code = bagi_recover_end(writer, behind / 8 - 1, &end, err);
    *begun = !code && first == 0 && end == bag->limit;
    return code;
}

/* Whether a Bag's table can be one: a v2 Bag has no empty blobs. */
static bags_code bagi_recover_ascends(
    const bag_reader *bag, bool *right, bags_error *err) {
    bagi_pass pass;
    bags_code code = bagi_pass_begin(&pass, bag, err);
    *right = true;
    while (!code && *right && pass.length < bag->length) {
        code = bagi_pass_next(&pass, right, err);
        *right = *right && !(bag->v2 && pass.start == pass.stop);
    }
    bagi_pass_end(&pass);
    return code;
}

/*
 * Refuse a Bag that has a table, though not that of the journal: this is another
 * Bag's, or was torn, and what it does not know would be lost. Blobs of zeros look
 * like a table of empty ones, which would hold nothing.
 */
static bags_code bagi_recover_table(const bag_writer *writer, bags_error *err) {
    const bagi_column *column = &writer->column;
    bagi_bag_options how;
    bag_reader bag;
    bags_error why;
    bool begun = false, right = false;
    memset(&how, 0, sizeof how);
    memset(&bag, 0, sizeof bag);
    how.where = BAGI_WITH_REFS;
    how.no_mmap = true;
    bag.env = &writer->env;
    bags_code code = bagi_bag_open(&bag, column->blobs.path, &how, &why);
    if (code)
        return code == BAGS_ERROR_CORRUPT ? BAGS_OK
                                          : bagi_keep_failure(&why, err);
    if (bag.limit || column->blobs.end == 0)
        code = bagi_recover_ascends(&bag, &right, err);
    if (!code && right)
        code = bagi_recover_begun(writer, &bag, &begun, err);
    if (!code && right && !begun)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: cannot be recovered: it has a table of %" PRIu64
            " blobs, which "
            "is not that of its .idx with %" PRIu64 "; if the table is right, "
            "remove the .idx",
            bagi_tail(column->blobs.path), bag.length, column->ends.high / 8);
    bagi_bag_release(&bag);
    return code;
}

/* Whether the Bag may have been finished, if it has a table, or, if it has none,
 * was whole as a split one: its checksums, if it has any, have their end, and
 * this is not what a writer that is about to put a table notes. */
static bags_code bagi_recover_sealed(const bag_writer *writer,
    bagi_lone_state state, bool *sealed, bags_error *err) {
    const bagi_column *column = &writer->column;
    const bagi_out *sums = &column->sums;
    unsigned char room[BAGI_TRAILER_SIZE];
    uint64_t length = column->ends.high / 8, end = 0;
    bagi_trailer trailer;
    *sealed = !column->summed && state == BAGI_LONE_TORN;
    if (!column->summed || sums->high < sizeof room)
        return BAGS_OK;
    bags_code code = bagi_read_at(&writer->env, sums->handle, sums->path,
        sums->high - sizeof room, room, sizeof room, err);
    if (!code)
        code = bagi_recover_end(writer, length, &end, err);
    *sealed = !code && bagi_trailer_load(room, &trailer) &&
              (state == BAGI_LONE_TORN || trailer.length != length ||
                  trailer.size - end != 8 * (length + 1));
    return code;
}

/* Find the blobs that are whole, and make the column end with them. That none
 * is, though the journal has some, or that one is not of a Bag that may have been
 * finished, is no writer's death. */
static bags_code bagi_recover_scan(bag_writer *writer, bagi_lone_state state,
    bags_recovered *done, bags_error *err) {
    bagi_column *column = &writer->column;
    const char *why = NULL;
    bool finished = false;
    bags_code code = bagi_recover_sealed(writer, state, &finished, err);
    while (!code && !why && column->length < column->ends.high / 8)
        code = bagi_scan_ends(&writer->env, column, 1, &why, err);
    if (!code && state == BAGI_LONE_LEFT &&
        (why || column->blobs.high > column->blobs.end))
        code = bagi_recover_table(writer, err);
    if (code)
        return code;
    if (why && (column->length == 0 || finished))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: cannot be recovered: blob %" PRIu64 " of its journal: %s",
            bagi_tail(column->blobs.path), column->length, why);
    bagi_column_keep(column);
    done->truncated = bagi_column_settle(column);
    done->length = column->length;
    done->reason = why ? why : "";
    done->action = BAGS_RECOVERY_FINISHED;
    return BAGS_OK;
}

static bags_code bagi_recover_bag_with(bagi_recovering *work,
    bag_writer *writer, const char *path, bags_recovered *done,
    bags_error *err) {
    int mode = work->options.dry_run ? BAGS_IO_READ : BAGS_IO_WRITE;
    bagi_lone_state state = BAGI_LONE_WHOLE;
    bags_code code = bagi_column_init(&work->env.memory, &writer->column,
        BAGI_RECOVER_BUFFER, work->options.no_sync, err);
    if (!code)
        code = bagi_recover_reopen(writer, path, mode, err);
    /* Its writer may have ended before it was locked. */
    if (!code)
        code = bagi_recover_look(&work->env, path, &state, err);
    if (!code && state != BAGI_LONE_WHOLE)
        code = bagi_recover_scan(writer, state, done, err);
    if (!code && done->action && !work->options.dry_run)
        code = bagi_column_cut(&work->env, &writer->column, err);
    return code;
}

static bags_code bagi_recover_bag(bagi_recovering *work, const char *path,
    bags_recovered *done, bags_error *err) {
    const bagi_env *env = &work->env;
    bagi_lone_state state = BAGI_LONE_WHOLE;
    bags_code code = bagi_check_lone(env, path, err);
    if (!code && !bagi_is_bag_path(path))
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: the name of a lone Bag ends in .bag", bagi_tail(path));
    if (!code)
        code = bagi_recover_look(env, path, &state, err);
    if (!code && state == BAGI_LONE_TORN)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: its table and its .idx contradict each other; if the table "
            "is right, remove the .idx",
            bagi_tail(path));
    if (code || state == BAGI_LONE_WHOLE)
        return code;
    bag_writer *writer =
        (bag_writer *)bagi_alloc(&env->memory, sizeof *writer, err);
    if (!writer)
        return BAGS_ERROR_MEMORY;
    writer->env = *env;
    writer->no_sync = work->options.no_sync;
    writer->keep_idx = work->options.keep_idx;
    code = bagi_recover_bag_with(work, writer, path, done, err);
    if (!code && done->action && !work->options.dry_run)
        return bag_writer_close(writer, err);
    bagi_column_close(env, &writer->column, NULL);
    bagi_bag_writer_free(writer);
    if (code && !bagi_recover_look(env, path, &state, NULL) &&
        state == BAGI_LONE_WHOLE)
        code = BAGS_OK; /* its writer has finished it meanwhile */
    return code;
}

static void bagi_recover_count(
    bags_recover_report *report, const bags_recovered *done) {
    report->finished_before += done->action == BAGS_RECOVERY_NOTHING;
    report->removed += done->action == BAGS_RECOVERY_REMOVED;
    report->locked += done->action == BAGS_RECOVERY_LOCKED;
    report->failed += done->action == BAGS_RECOVERY_FAILED;
    report->truncated += done->truncated;
    if (done->action == BAGS_RECOVERY_FINISHED) {
        report->finished_now++;
        report->length += done->length;
    }
}

/* Recover one shard, or the lone Bag, and report it. */
static void bagi_recover_one(bagi_recovering *work, const char *path) {
    bags_error why;
    bags_recovered done = {path, BAGS_RECOVERY_NOTHING, 0, 0, ""};
    why.message[0] = '\0';
    bags_code code = work->lone ? bagi_recover_bag(work, path, &done, &why)
                                : bagi_recover_shard(work, path, &done, &why);
    if (code) {
        done.action = code == BAGS_ERROR_LOCKED ? BAGS_RECOVERY_LOCKED
                                                : BAGS_RECOVERY_FAILED;
        done.length = done.truncated = 0;
        done.reason = why.message;
        if (!work->code) {
            work->code = code;
            if (work->err)
                *work->err = why;
        }
    }
    bagi_recover_count(&work->report, &done);
    if (work->options.each)
        work->options.each(work->options.user, &done);
}

static bags_code bagi_recover_shards(bagi_recovering *work, const char *path) {
    uint64_t stop = work->options.shard_stop;
    bagi_names names;
    bags_code code = bagi_names_list(&work->env, path, &names, work->err);
    if (code)
        return code;
    if (names.count == 0)
        code = bagi_fail_no_dataset(&work->env, path, work->err);
    for (size_t i = 0; i < names.count; i++) {
        if (names.names[i].number % stop != work->options.shard_start)
            continue;
        char *shard = bagi_shard_path(&work->env.memory, path, names.names[i],
            work->code ? NULL : work->err);
        if (!shard) {
            code = BAGS_ERROR_MEMORY;
            break;
        }
        bagi_recover_one(work, shard);
        bagi_free_text(&work->env.memory, shard);
    }
    bagi_names_free(&names);
    return code;
}

BAGS_API bags_code bags_recover(const char *path,
    const bags_recover_options *options, bags_recover_report *report,
    bags_error *err) {
    bagi_recovering work;
    bags_path_kind kind = BAGS_PATH_NONE;
    bool single = false;
    memset(&work, 0, sizeof work);
    if (options)
        work.options = *options;
    work.env = bagi_env_of(work.options.env.allocator, work.options.env.io);
    work.err = err;
    if (!work.options.shard_stop)
        work.options.shard_stop = 1;
    if (report)
        *report = work.report;
    if (work.options.shard_start >= work.options.shard_stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: shard_start is not below shard_stop", bagi_tail(path));
    bags_code code = bagi_check_path(path, err);
    if (!code)
        code = bagi_kind(&work.env, path, &kind, err);
    work.lone = kind == BAGS_PATH_FILE;
    if (!code && !work.lone)
        code = bagi_is_single(&work.env, path, &single, err);
    single = single || work.lone;
    if (!code && single)
        bagi_recover_one(&work, path);
    else if (!code)
        code = bagi_recover_shards(&work, path);
    if (!code && !single && work.report.finished_now && !work.options.no_sync &&
        !work.options.dry_run)
        code = bagi_sync_above(&work.env, path, 1, work.code ? NULL : err);
    if (report)
        *report = work.report;
    return work.code ? work.code : code;
}

/* ========================================================================
 * >>dataset-read
 * A reader knows of every shard its number and its first datapoint. The Bags of
 * a shard are opened when they are first used, under a lock, and published for
 * all threads; from then on they are found without one.
 * ====================================================================== */

typedef struct bagi_shard {
    bagi_name name;
    bool split;      /* no refs.bag */
    bool unfinished; /* its Bags were opened with the reader; without a
                        datapoint it has none */
    uint64_t start;  /* index of its first datapoint */
    uint32_t spec;   /* CRC of its spec.json */
    void **bags;     /* a bag_reader a field, then refs; NULL: not used yet */
} bagi_shard;

typedef struct bagi_gap {
    uint64_t start, stop, step;
} bagi_gap;

struct bags_reader {
    bagi_env env;
    bags_reader_options options;
    char *path;
    bool sharded;
    bagi_spec spec;
    bagi_shard *shards; /* count of them, and one more where the last ends */
    size_t count, capacity;
    uint64_t length, skipped;
    bags_shard *described; /* the shards, for bags_reader_shards */
    bool live, skips;
    bagi_gap *gaps;
    size_t gaps_count, gaps_capacity;
    bagi_files files;
    bagi_mutex mutex; /* of what is opened when it is first used */
    bool has_mutexes;
};

static bags_code bagi_reader_describe(bags_reader *reader, bags_error *err);

static char *bagi_reader_shard_path(
    const bags_reader *reader, const bagi_shard *shard, bags_error *err) {
    const bags_allocator *memory = &reader->env.memory;
    return reader->sharded
               ? bagi_shard_path(memory, reader->path, shard->name, err)
               : bagi_copy_text(
                     memory, reader->path, strlen(reader->path), err);
}

static const char *bagi_reader_field_name(
    const bags_reader *reader, size_t field) {
    return field < reader->spec.count ? reader->spec.fields[field].name
                                      : "refs";
}

static char *bagi_reader_bag_path(const bags_reader *reader,
    const bagi_shard *shard, size_t field, bags_error *err) {
    const char *name = bagi_reader_field_name(reader, field);
    const bags_allocator *memory = &reader->env.memory;
    if (!reader->sharded)
        return bagi_print(memory, err, "%s/%s.bag", reader->path, name);
    return bagi_print(memory, err, "%s/%0*" PRIu64 "/%s.bag", reader->path,
        (int)shard->name.digits, shard->name.number, name);
}

/* Of an unfinished shard without a datapoint nothing is shown; its Bags, which
 * grow, are not to be opened. */
static bool bagi_shard_blank(const bagi_shard *shard) {
    return shard->unfinished && !shard->bags;
}

/* How a shard's Bags are opened. 0 bytes are an empty Bag only beside those of
 * granular 0.20 and 0.21, which `refs` tells. */
static bagi_bag_options bagi_reader_bag_options(const bags_reader *reader,
    const bagi_shard *shard, const bag_reader *refs) {
    bagi_bag_options options;
    options.grows = reader->live;
    options.unfinished = false;
    options.where = shard->split ? BAGI_SPLIT : BAGI_WITH_REFS;
    options.no_mmap = reader->options.no_mmap;
    options.cache_index = reader->options.cache_index;
    options.access = reader->options.access;
    options.check = reader->options.verify_checksums;
    options.name = NULL; /* bagi_reader_bag_new knows */
    options.spec = shard->spec;
    options.any_spec = false;
    options.allow_empty = !refs || refs->v2 || refs->length == 0;
    return options;
}

static void bagi_reader_bag_free(const bags_reader *reader, bag_reader *bag) {
    if (!bag)
        return;
    bagi_bag_release(bag);
    bagi_free(&reader->env.memory, bag, sizeof *bag);
}

/*
 * Open a Bag of a shard. With `files` it may be kept and is found by position
 * through that set; without, it holds its file until it is released.
 */
static bags_code bagi_reader_bag_new(const bags_reader *reader,
    const bagi_shard *shard, size_t field, const bagi_bag_options *options,
    bagi_files *files, bag_reader **out, bags_error *err) {
    const bags_allocator *memory = &reader->env.memory;
    char *path = bagi_reader_bag_path(reader, shard, field, err);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bag_reader *bag = (bag_reader *)bagi_alloc(memory, sizeof *bag, err);
    bags_code code = bag ? BAGS_OK : BAGS_ERROR_MEMORY;
    bagi_bag_options how = *options;
    how.name = bagi_reader_field_name(reader, field);
    if (!code) {
        bag->env = &reader->env;
        bag->files = files;
        code = bagi_bag_open(bag, path, &how, err);
    }
    bagi_free_text(memory, path);
    if (code)
        bagi_free(memory, bag, sizeof *bag);
    else
        *out = bag;
    return code;
}

static bags_code bagi_reader_bag(const bags_reader *reader, size_t shard,
    size_t field, const bag_reader **out, bags_error *err);

/* The slow half of bagi_reader_bag; the mutex is held. */
static bags_code bagi_reader_bag_open(bags_reader *reader, bagi_shard *shard,
    size_t field, const bag_reader *refs, const bag_reader **out,
    bags_error *err) {
    const bags_allocator *memory = &reader->env.memory;
    void **bags = shard->bags;
    if (!bags) {
        bags = (void **)bagi_alloc(
            memory, (reader->spec.count + 1) * sizeof *bags, err);
        if (!bags)
            return BAGS_ERROR_MEMORY;
        BAGI_STORE(&shard->bags, bags);
    }
    bag_reader *bag = (bag_reader *)bags[field];
    if (!bag) {
        bagi_bag_options options = bagi_reader_bag_options(reader, shard, refs);
        bags_code code = bagi_reader_bag_new(
            reader, shard, field, &options, &reader->files, &bag, err);
        if (code)
            return code;
        BAGI_STORE(&bags[field], (void *)bag);
    }
    *out = bag;
    return BAGS_OK;
}

BAGI_COLD static bags_code bagi_reader_bag_first(const bags_reader *from,
    size_t number, size_t field, const bag_reader **out, bags_error *err) {
    /* Only what the mutex guards changes. */
    bags_reader *reader = (bags_reader *)(uintptr_t)from;
    bagi_shard *shard = &reader->shards[number];
    const bag_reader *refs = NULL;
    bags_code code = BAGS_OK;
    if (!shard->split && field < reader->spec.count)
        code = bagi_reader_bag(reader, number, reader->spec.count, &refs, err);
    if (code)
        return code;
    bagi_lock(&reader->mutex);
    code = bagi_reader_bag_open(reader, shard, field, refs, out, err);
    bagi_unlock(&reader->mutex);
    return code;
}

/* The Bag of a field (spec.count: refs) in a shard. */
static bags_code bagi_reader_bag(const bags_reader *reader, size_t shard,
    size_t field, const bag_reader **out, bags_error *err) {
    if (BAGI_ATOMIC) {
        void **bags = (void **)BAGI_LOAD(&reader->shards[shard].bags);
        void *bag = bags ? (void *)BAGI_LOAD(&bags[field]) : NULL;
        if (bag) {
            *out = (const bag_reader *)bag;
            return BAGS_OK;
        }
    }
    return bagi_reader_bag_first(reader, shard, field, out, err);
}

static void bagi_shard_close(const bags_reader *reader, bagi_shard *shard) {
    size_t count = reader->spec.count + 1;
    if (!shard->bags)
        return;
    for (size_t i = 0; i < count; i++)
        bagi_reader_bag_free(reader, (bag_reader *)shard->bags[i]);
    bagi_free(&reader->env.memory, shard->bags, count * sizeof *shard->bags);
    shard->bags = NULL;
}

/* ---- opening ---- */

static bags_code bagi_reader_read_spec(const bagi_env *env, const char *dir,
    const char *name, unsigned char **text, size_t *size, bags_error *err) {
    char *path = bagi_print(&env->memory, err, "%s/%s", dir, name);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_read_file(env, path, BAGI_SPEC_MOST, text, size, err);
    bagi_free_text(&env->memory, path);
    return code;
}

/* While shards are opened: the first one's spec.json, to compare the others
 * with. */
typedef struct bagi_opening {
    bags_reader *reader;
    unsigned char *text;
    size_t size;
    bool has_spec;
} bagi_opening;

/* Take over the first spec.json, or check that a later one says the same. */
static bags_code bagi_opening_spec(bagi_opening *opening, const char *dir,
    const char *name, unsigned char *text, size_t size, bags_error *err) {
    bags_reader *reader = opening->reader;
    const bags_allocator *memory = &reader->env.memory;
    bagi_spec other;
    memset(&other, 0, sizeof other);
    if (opening->has_spec && size == opening->size &&
        memcmp(text, opening->text, size) == 0)
        return BAGS_OK;
    bagi_spec *spec = opening->has_spec ? &other : &reader->spec;
    bags_code code = bagi_spec_parse(memory, spec, text, size, err);
    if (!code && !opening->has_spec)
        code = bagi_spec_seal(memory, spec, reader->options.registry, err);
    else if (!code && !bagi_spec_same(spec, &reader->spec))
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "does not say the same as that of the first shard");
    if (code)
        bagi_prefix(err, code, "%s/%s: ", bagi_tail(dir), name);
    bagi_spec_free(memory, &other);
    if (opening->has_spec || code)
        return code;
    opening->text = (unsigned char *)bagi_alloc_raw(memory, size, err);
    if (!opening->text)
        return BAGS_ERROR_MEMORY;
    memcpy(opening->text, text, size);
    opening->size = size;
    opening->has_spec = true;
    return BAGS_OK;
}

/* The number of datapoints where refs.bag has them. If it has 0 bytes, the
 * others must be of the kind that may. */
static bags_code bagi_opening_refs(const bags_reader *reader,
    const bagi_shard *shard, uint64_t *length, bags_error *err) {
    bagi_bag_options options = bagi_reader_bag_options(reader, shard, NULL);
    options.no_mmap = true;
    options.cache_index = false;
    size_t count = reader->spec.count;
    bag_reader *refs = NULL;
    bags_code code =
        bagi_reader_bag_new(reader, shard, count, &options, NULL, &refs, err);
    if (code)
        return code;
    *length = refs->length;
    bool doubtful = refs->file.size == 0;
    bagi_reader_bag_free(reader, refs);
    for (size_t i = 0; doubtful && i < count; i++) {
        bag_reader *bag = NULL;
        code = bagi_reader_bag_new(reader, shard, i, &options, NULL, &bag, err);
        if (code)
            return code;
        bool wrong = !bag->v2 && bag->length > 0;
        bagi_reader_bag_free(reader, bag);
        if (wrong) {
            char *path = bagi_reader_bag_path(reader, shard, count, NULL);
            bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: has 0 bytes beside a Bag that has blobs: it was never "
                "closed",
                path ? bagi_tail(path) : "refs.bag");
            bagi_free_text(&reader->env.memory, path);
            return BAGS_ERROR_CORRUPT;
        }
    }
    return BAGS_OK;
}

/* The number of datapoints where there is no refs.bag: that of every field. */
static bags_code bagi_opening_split(const bags_reader *reader,
    const bagi_shard *shard, const char *dir, uint64_t *length,
    bags_error *err) {
    bagi_bag_options options = bagi_reader_bag_options(reader, shard, NULL);
    options.no_mmap = true;
    options.cache_index = false;
    const bags_field *fields = reader->spec.fields;
    size_t least = 0, most = 0;
    uint64_t low = 0, high = 0;
    for (size_t i = 0; i < reader->spec.count; i++) {
        if (reader->spec.types[i].sequence)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: has no refs.bag, and the field \"%.200s\" is a sequence",
                bagi_tail(dir), fields[i].name);
        bag_reader *bag = NULL;
        bags_code code =
            bagi_reader_bag_new(reader, shard, i, &options, NULL, &bag, err);
        if (code && err->system == ENOENT && i == 0)
            return bags_fail(err, BAGS_ERROR_MISSING,
                "%s: refs.bag is missing, or else %.200s.bag or %.200s.idx, "
                "which a split dataset has",
                bagi_tail(dir), fields[i].name, fields[i].name);
        if (code)
            return code;
        uint64_t blobs = bag->length;
        bagi_reader_bag_free(reader, bag);
        if (i == 0 || blobs < low) {
            low = blobs;
            least = i;
        }
        if (i == 0 || blobs > high) {
            high = blobs;
            most = i;
        }
    }
    if (low != high && !reader->skips && !reader->live)
        return bags_fail(err, BAGS_ERROR_UNFINISHED,
            "%s: the fields are of unequal length: \"%.200s\" has %" PRIu64
            " blobs, \"%.200s\" has %" PRIu64,
            bagi_tail(dir), fields[least].name, low, fields[most].name, high);
    *length = low;
    return BAGS_OK;
}

static bags_code bagi_opening_length(const bags_reader *reader,
    bagi_shard *shard, const char *dir, uint64_t *length, bags_error *err) {
    char *path = bagi_print(&reader->env.memory, err, "%s/refs.bag", dir);
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code =
        path ? bagi_kind(&reader->env, path, &kind, err) : BAGS_ERROR_MEMORY;
    bagi_free_text(&reader->env.memory, path);
    if (code)
        return code;
    shard->split = kind == BAGS_PATH_NONE;
    return shard->split ? bagi_opening_split(reader, shard, dir, length, err)
                        : bagi_opening_refs(reader, shard, length, err);
}

/* Have room for one more shard than there are. */
static bags_code bagi_opening_room(bags_reader *reader, bags_error *err) {
    void *shards = reader->shards;
    bags_code code = bagi_grow(&reader->env.memory, &shards, &reader->capacity,
        reader->count, sizeof *reader->shards, err);
    reader->shards = (bagi_shard *)shards;
    return code;
}

static bags_code bagi_opening_add(bags_reader *reader, const bagi_shard *shard,
    const char *dir, uint64_t length, bags_error *err) {
    bags_code code = bagi_opening_room(reader, err);
    if (code)
        return code;
    if (length > UINT64_MAX - reader->length)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has more datapoints than can be counted", bagi_tail(dir));
    reader->shards[reader->count] = *shard;
    reader->shards[reader->count++].start = reader->length;
    reader->length += length;
    return BAGS_OK;
}

/* All shards are there: say where the last one ends. */
static bags_code bagi_opening_end(bags_reader *reader, bags_error *err) {
    bags_code code = bagi_opening_room(reader, err);
    if (!code) {
        memset(&reader->shards[reader->count], 0, sizeof *reader->shards);
        reader->shards[reader->count].start = reader->length;
    }
    return code;
}

/* Open a shard by its commit record, if that is there. */
static bags_code bagi_opening_finished(bagi_opening *opening, bagi_shard *shard,
    const char *dir, bool wanted, bool *found, bags_error *err) {
    bags_reader *reader = opening->reader;
    unsigned char *text = NULL;
    size_t size = 0;
    uint64_t length = 0;
    bags_code code = bagi_reader_read_spec(
        &reader->env, dir, "spec.json", &text, &size, err);
    *found = code != BAGS_ERROR_MISSING || err->system != ENOENT;
    if (!*found)
        return BAGS_OK;
    if (code)
        return code;
    shard->spec = bagi_crc(0, text, size);
    code = bagi_opening_spec(opening, dir, "spec.json", text, size, err);
    if (!code && wanted)
        code = bagi_opening_length(reader, shard, dir, &length, err);
    if (!code && wanted)
        code = bagi_opening_add(reader, shard, dir, length, err);
    bagi_free(&reader->env.memory, text, size);
    return code;
}

/* ---- opening a shard that is being written ----
 *
 * Nothing is locked, and the writer is never in the way: what refs.idx says is
 * whole does not change any more, whatever the writer does behind it; a file that
 * is not there any more means that the shard was finished or removed meanwhile,
 * and so the next try finds it so. After a loss of power the journals may say
 * more than is true: only the datapoints that recovery would keep are taken. The
 * journals are read into memory here, since they go when the shard is finished;
 * the Bags stay the same files, to which the writer adds a table. They are not
 * mapped: where a file that is mapped cannot be cut, the writer would fail, and
 * where it can, an abort would end the reader.
 */

#define BAGI_LIVE_TRIES 4
#define BAGI_LIVE_STEP 1024 /* datapoints */

/* Open a Bag of the shard as far as its journal goes. */
static bags_code bagi_live_bag(const bags_reader *reader, bagi_shard *shard,
    size_t field, bag_reader **out, bags_error *err) {
    bagi_bag_options options = bagi_reader_bag_options(reader, shard, NULL);
    options.where = BAGI_SPLIT;
    options.no_mmap = options.cache_index = options.unfinished = true;
    bags_code code = bagi_reader_bag_new(reader, shard, field, &options,
        (bagi_files *)(uintptr_t)&reader->files, out, err);
    shard->bags[field] = code ? NULL : *out;
    return code;
}

/* Open the Bags, refs first, so that the fields' cover what it says. *length is
 * how many datapoints it speaks of; if none, the fields are left alone. */
static bags_code bagi_live_bags(const bags_reader *reader, bagi_shard *shard,
    uint64_t *length, bags_error *err) {
    size_t count = reader->spec.count;
    shard->bags = (void **)bagi_alloc(
        &reader->env.memory, (count + 1) * sizeof *shard->bags, err);
    if (!shard->bags)
        return BAGS_ERROR_MEMORY;
    bag_reader *bag = NULL;
    bags_code code = bagi_live_bag(reader, shard, count, &bag, err);
    if (code)
        return code;
    *length = bag->length;
    for (size_t i = 0; *length && i < count && !code; i++)
        code = bagi_live_bag(reader, shard, i, &bag, err);
    return code;
}

/* From now on blobs are compared with their checksums. */
static bags_code bagi_live_sums(
    const bags_reader *reader, const bagi_shard *shard, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i <= reader->spec.count && !code; i++)
        code = bagi_sums_attach_live((bag_reader *)shard->bags[i], err);
    return code;
}

/* While the datapoints of such a shard are counted: the refs of one, and how
 * many blobs of each field they use. */
typedef struct bagi_live {
    const bags_reader *reader;
    void **bags;
    bagi_ref *refs;
    uint64_t *used;
    bags_buffer scratch;
} bagi_live;

/* Take the next datapoint, if it is whole: as bagi_scan_datapoint has it. */
static bool bagi_live_take(bagi_live *live, bags_view blob) {
    const bagi_spec *spec = &live->reader->spec;
    size_t field = 0;
    if (bagi_refs_parse(blob, spec->types, spec->count, live->refs, &field))
        return false;
    for (size_t i = 0; i < spec->count; i++) {
        const bagi_ref *ref = &live->refs[i];
        const bag_reader *bag = (const bag_reader *)live->bags[i];
        uint64_t used = live->used[i];
        if (ref->count &&
            (ref->first != used || ref->count > bag->length - used ||
                bagi_bag_check(
                    bag, used, ref->count, bag->ends + 8 * used, NULL)))
            return false;
    }
    for (size_t i = 0; i < spec->count; i++)
        live->used[i] += live->refs[i].count;
    return true;
}

/* Count the datapoints that are whole, up to the first that is not. */
static bags_code bagi_live_count(
    bagi_live *live, uint64_t *length, bags_error *err) {
    const bag_reader *refs =
        (const bag_reader *)live->bags[live->reader->spec.count];
    uint64_t most = bagi_bag_whole(refs), at = 0, step = BAGI_LIVE_STEP;
    bool whole = true;
    bags_code code = BAGS_OK;
    while (whole && at < most && !code) {
        bags_range range;
        uint64_t stop = most - at < step ? most : at + step;
        code =
            bag_reader_get_range(refs, at, stop, &live->scratch, &range, err);
        if (code == BAGS_ERROR_CORRUPT) {
            /* One of them has not its checksum: the first is looked for. */
            whole = step > 1;
            step = 1;
            code = BAGS_OK;
            continue;
        }
        for (size_t i = 0; !code && whole && i < range.length; i++) {
            whole = bagi_live_take(live, bags_range_get(&range, i));
            at += whole;
        }
    }
    *length = at;
    return code;
}

/* Find how many datapoints are whole, and make the Bags end with them. That none
 * of them is, is not what a writer's death leaves. */
static bags_code bagi_live_scan(const bags_reader *reader, bagi_shard *shard,
    const char *dir, uint64_t *length, bags_error *err) {
    const bags_allocator *memory = &reader->env.memory;
    size_t count = reader->spec.count;
    bagi_live live;
    memset(&live, 0, sizeof live);
    live.reader = reader;
    live.bags = shard->bags;
    live.refs = (bagi_ref *)bagi_alloc(memory, count * sizeof *live.refs, err);
    live.used = (uint64_t *)bagi_alloc(memory, count * sizeof *live.used, err);
    bags_code code = live.refs && live.used
                         ? bagi_live_count(&live, length, err)
                         : BAGS_ERROR_MEMORY;
    if (!code && *length == 0)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: refs.idx has datapoints, but none is whole", bagi_tail(dir));
    for (size_t i = 0; i <= count && !code; i++)
        bagi_bag_trim(
            (bag_reader *)shard->bags[i], i < count ? live.used[i] : *length);
    bagi_free(memory, live.refs, count * sizeof *live.refs);
    bagi_free(memory, live.used, count * sizeof *live.used);
    bags_buffer_free(&live.scratch);
    return code;
}

/* The datapoints that were flushed. *missing: a file is not there, not yet or not
 * any more. */
static bags_code bagi_live_open(bags_reader *reader, bagi_shard *shard,
    const char *dir, uint64_t *length, bool *missing, bags_error *err) {
    *length = 0;
    bags_code code = bagi_live_bags(reader, shard, length, err);
    *missing = code == BAGS_ERROR_MISSING;
    if (!code && *length && reader->options.verify_checksums)
        code = bagi_live_sums(reader, shard, err);
    if (!code && *length)
        code = bagi_live_scan(reader, shard, dir, length, err);
    if (code || *length == 0)
        bagi_shard_close(reader, shard);
    return code;
}

/* Whether a record is whole: its writer may have made it just now. */
static bool bagi_live_record(
    const bags_reader *reader, const unsigned char *text, size_t size) {
    bagi_spec spec;
    memset(&spec, 0, sizeof spec);
    bags_code code =
        bagi_spec_parse(&reader->env.memory, &spec, text, size, NULL);
    bagi_spec_free(&reader->env.memory, &spec);
    return code != BAGS_ERROR_CORRUPT;
}

/* Open a shard whose commit record was not there, by that of the claim. On the
 * last try, files that are missing were not made yet. */
static bags_code bagi_opening_unfinished(bagi_opening *opening,
    bagi_shard *shard, const char *dir, bool wanted, bool last, bool *found,
    bags_error *err) {
    bags_reader *reader = opening->reader;
    unsigned char *text = NULL;
    size_t size = 0;
    uint64_t length = 0;
    bool missing = false;
    bags_code code = bagi_reader_read_spec(
        &reader->env, dir, "spec.json.partial", &text, &size, err);
    if (code)
        return code == BAGS_ERROR_MISSING ? BAGS_OK : code;
    *found = bagi_live_record(reader, text, size);
    if (*found)
        code = bagi_opening_spec(
            opening, dir, "spec.json.partial", text, size, err);
    if (!code && *found && wanted) {
        shard->unfinished = true;
        code = bagi_live_open(reader, shard, dir, &length, &missing, err);
        if (missing && length == 0) {
            *found = last;
            code = BAGS_OK;
        }
        if (!code && *found)
            code = bagi_opening_add(reader, shard, dir, length, err);
        if (code)
            bagi_shard_close(reader, shard);
    }
    bagi_free(&reader->env.memory, text, size);
    return code;
}

/* A shard that is written, finished or removed while it is looked at is looked
 * at again. */
static bags_code bagi_opening_tries(bagi_opening *opening, bagi_shard *shard,
    const char *dir, bool wanted, bool *found, bags_error *err) {
    bool live = opening->reader->live, again = true;
    bags_code code = BAGS_OK;
    for (int tries = BAGI_LIVE_TRIES; again; tries--) {
        shard->unfinished = false;
        code = bagi_opening_finished(opening, shard, dir, wanted, found, err);
        if (!code && !*found && live)
            code = bagi_opening_unfinished(
                opening, shard, dir, wanted, tries == 1, found, err);
        again = live && tries > 1 && shard->unfinished &&
                (code == BAGS_ERROR_MISSING || code == BAGS_ERROR_CORRUPT);
        again = again || (live && tries > 1 && !code && !*found);
    }
    return code;
}

/* Open one shard, or, if it is none of this reader's, look at its spec only. */
static bags_code bagi_opening_shard(
    bagi_opening *opening, bagi_name name, bool wanted, bags_error *err) {
    bags_reader *reader = opening->reader;
    bagi_shard shard;
    bool found = false;
    memset(&shard, 0, sizeof shard);
    shard.name = name;
    char *dir = bagi_reader_shard_path(reader, &shard, err);
    if (!dir)
        return BAGS_ERROR_MEMORY;
    bags_error why; /* a try that failed may not be the last */
    bags_code code =
        bagi_opening_tries(opening, &shard, dir, wanted, &found, &why);
    if (code)
        *err = why;
    if (!code && !found && wanted) {
        reader->skipped++;
        if (!reader->skips && !reader->live)
            code = bagi_fail_unfinished(&reader->env, dir, err);
    }
    bagi_free_text(&reader->env.memory, dir);
    return code;
}

static bags_code bagi_opening_gap(bags_reader *reader, uint64_t start,
    uint64_t stop, uint64_t step, bags_error *err) {
    void *gaps = reader->gaps;
    bags_code code = bagi_grow(&reader->env.memory, &gaps,
        &reader->gaps_capacity, reader->gaps_count, sizeof *reader->gaps, err);
    reader->gaps = (bagi_gap *)gaps;
    if (code)
        return code;
    bagi_gap gap = {start, stop, step};
    reader->gaps[reader->gaps_count++] = gap;
    return BAGS_OK;
}

BAGI_COLD static bags_code bagi_fail_gaps(
    const bags_reader *reader, bags_error *err) {
    char list[512];
    size_t used = 0, named = 0, most = 20;
    for (size_t i = 0; i < reader->gaps_count; i++) {
        const bagi_gap *gap = &reader->gaps[i];
        for (uint64_t n = gap->start; n < gap->stop && named <= most;
             n += gap->step, named++)
            used += (size_t)snprintf(list + used, sizeof list - used,
                named == most ? ", ..." : "%s%06" PRIu64, named ? ", " : "", n);
    }
    return bags_fail(err, BAGS_ERROR_GAP,
        "%s: shards are missing: %s: lost, or their workers are not done. Read "
        "the rest with allow_gaps (--allow-gaps); if nothing is lost and all "
        "are "
        "done, close the gaps with bags_finalize (`bags finalize`)",
        bagi_tail(reader->path), list);
}

/* A gap next to a shard that is not finished is most likely one whose writer has
 * not come to it: say that first. */
BAGI_COLD static bags_code bagi_fail_gaps_or_unfinished(
    const bags_reader *reader, const bagi_names *names, bags_error *err) {
    const bagi_env *env = &reader->env;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < names->count && !code; i++) {
        bool finished = true;
        if (reader->skips || reader->live ||
            names->names[i].number % reader->options.shard_stop !=
                reader->options.shard_start)
            continue;
        char *path =
            bagi_shard_path(&env->memory, reader->path, names->names[i], err);
        if (!path)
            return BAGS_ERROR_MEMORY;
        code = bagi_shard_finished(env, path, &finished, err);
        if (!code && !finished)
            code = bagi_fail_unfinished(env, path, err);
        bagi_free_text(&env->memory, path);
    }
    return code ? code : bagi_fail_gaps(reader, err);
}

/* Find the gaps among the shards that this reader should have. */
static bags_code bagi_opening_gaps(
    bags_reader *reader, const bagi_names *names, bags_error *err) {
    uint64_t step = reader->options.shard_stop;
    uint64_t next = reader->options.shard_start;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < names->count && !code; i++) {
        uint64_t number = names->names[i].number;
        if (number % step != reader->options.shard_start)
            continue;
        if (number > next)
            code = bagi_opening_gap(reader, next, number, step, err);
        next = bagi_shard_after(number, step);
    }
    if (!code && reader->gaps_count && !reader->options.allow_gaps)
        code = bagi_fail_gaps_or_unfinished(reader, names, err);
    return code;
}

static bags_code bagi_opening_sharded(
    bagi_opening *opening, const bagi_names *names, bags_error *err) {
    bags_reader *reader = opening->reader;
    uint64_t start = reader->options.shard_start;
    uint64_t stop = reader->options.shard_stop;
    bags_code code = bagi_opening_gaps(reader, names, err);
    for (size_t i = 0; i < names->count && !code; i++)
        if (names->names[i].number % stop == start)
            code = bagi_opening_shard(opening, names->names[i], true, err);
    /* A worker for whom there is no shard learns the spec from another's. */
    for (size_t i = 0; i < names->count && !code && !opening->has_spec; i++)
        if (names->names[i].number % stop != start)
            code = bagi_opening_shard(opening, names->names[i], false, err);
    if (!code && !opening->has_spec)
        code = bags_fail(err, BAGS_ERROR_UNFINISHED,
            "%s: none of its shards %s", bagi_tail(reader->path),
            reader->live
                ? "can be read: their writers have only begun"
                : "is finished: writers are at work on them, or died: then "
                  "bags_recover (`bags recover`) finishes them");
    return code;
}

/* The shards of a directory. A listing is not of one moment: a writer may have
 * made a shard that it passed by, and then one that it came to, so that a reader
 * of what is being written looks again before it speaks of a gap. */
static bags_code bagi_opening_directory(
    bagi_opening *opening, bags_error *err) {
    bags_reader *reader = opening->reader;
    int tries = reader->live ? BAGI_LIVE_TRIES : 1;
    bags_code code = BAGS_ERROR_GAP;
    bagi_names names;
    reader->sharded = true;
    for (; tries > 0 && code == BAGS_ERROR_GAP; tries--) {
        reader->gaps_count = 0;
        code = bagi_names_list(&reader->env, reader->path, &names, err);
        if (code)
            return code;
        if (names.count > 0)
            code = bagi_opening_sharded(opening, &names, err);
        else
            code = bagi_fail_no_dataset(&reader->env, reader->path, err);
        bagi_names_free(&names);
    }
    return code;
}

/* A dataset without shards, finished or not. */
static bags_code bagi_opening_single(bagi_opening *opening, bags_error *err) {
    bagi_name none = {0, 0};
    bool wanted = opening->reader->options.shard_start == 0;
    bags_code code = bagi_opening_shard(opening, none, wanted, err);
    if (!code && !opening->has_spec)
        code = bagi_fail_unfinished(
            &opening->reader->env, opening->reader->path, err);
    return code;
}

static bags_code bagi_opening_any(bagi_opening *opening, bags_error *err) {
    bags_reader *reader = opening->reader;
    const bagi_env *env = &reader->env;
    bags_path_kind kind = BAGS_PATH_NONE;
    bool single = false;
    bags_code code = bagi_kind(env, reader->path, &kind, err);
    if (!code && kind == BAGS_PATH_NONE)
        code = bagi_fail_system(err, ENOENT, reader->path, "open");
    else if (!code && kind != BAGS_PATH_DIRECTORY)
        code = bags_fail(err, BAGS_ERROR_MISSING,
            "%s: is a file, not the directory of a dataset",
            bagi_tail(reader->path));
    if (!code)
        code = bagi_shard_finished(env, reader->path, &single, err);
    if (!code && !single)
        code = bagi_is_single(env, reader->path, &single, err);
    if (code)
        return code;
    return single ? bagi_opening_single(opening, err)
                  : bagi_opening_directory(opening, err);
}

static bags_code bagi_reader_init(
    bags_reader *reader, const char *path, bags_error *err) {
    bags_reader_options *options = &reader->options;
    reader->live = options->unfinished == BAGS_UNFINISHED_READ;
    reader->skips = options->unfinished == BAGS_UNFINISHED_SKIP;
    if (!options->shard_stop)
        options->shard_stop = 1;
    reader->files.limit = options->max_files ? options->max_files : 64;
    reader->files.maps_limit = options->max_maps ? options->max_maps : 16384;
    if (options->shard_start >= options->shard_stop)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: shard_start is %" PRIu64 ", the worker's index; it must be "
            "below shard_stop, the number of workers, which is %" PRIu64,
            bagi_tail(path), options->shard_start, options->shard_stop);
    reader->path = bagi_copy_text(&reader->env.memory, path, strlen(path), err);
    if (!reader->path)
        return BAGS_ERROR_MEMORY;
    reader->has_mutexes = bagi_mutex_init(&reader->mutex);
    if (reader->has_mutexes && !bagi_mutex_init(&reader->files.mutex)) {
        bagi_mutex_free(&reader->mutex);
        reader->has_mutexes = false;
    }
    return reader->has_mutexes ? BAGS_OK : bagi_fail_memory(err, 0);
}

BAGS_API bags_reader *bags_reader_open(
    const char *path, const bags_reader_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bagi_env env = bagi_env_of(options ? options->env.allocator : NULL,
        options ? options->env.io : NULL);
    bags_reader *reader =
        (bags_reader *)bagi_alloc(&env.memory, sizeof *reader, err);
    if (!reader)
        return NULL;
    reader->env = env;
    if (options)
        reader->options = *options;
    bagi_opening opening = {reader, NULL, 0, false};
    bags_code code = bagi_reader_init(reader, path, err);
    if (!code)
        code = bagi_opening_any(&opening, err);
    if (!code)
        code = bagi_opening_end(reader, err);
    if (!code)
        code = bagi_reader_describe(reader, err);
    bagi_free(&env.memory, opening.text, opening.size);
    if (!code)
        return reader;
    bags_reader_close(reader);
    return NULL;
}

BAGS_API void bags_reader_close(bags_reader *reader) {
    if (!reader)
        return;
    bags_allocator memory = reader->env.memory;
    for (size_t i = 0; i < reader->count; i++)
        bagi_shard_close(reader, &reader->shards[i]);
    bagi_free(
        &memory, reader->shards, reader->capacity * sizeof *reader->shards);
    bagi_free(&memory, reader->described,
        (reader->count + 1) * sizeof *reader->described);
    bagi_free(
        &memory, reader->gaps, reader->gaps_capacity * sizeof *reader->gaps);
    bagi_spec_free(&memory, &reader->spec);
    bagi_free_text(&memory, reader->path);
    if (reader->has_mutexes) {
        bagi_mutex_free(&reader->mutex);
        bagi_mutex_free(&reader->files.mutex);
    }
    bagi_free(&memory, reader, sizeof *reader);
}

/* ---- what there is ---- */

BAGS_API uint64_t bags_reader_length(const bags_reader *reader) {
    return reader->length;
}

/* The index behind a shard's last datapoint. */
static uint64_t bagi_shard_stop(const bags_reader *reader, size_t shard) {
    return reader->shards[shard + 1].start;
}

BAGS_API const bags_shard *bags_reader_shards(
    const bags_reader *reader, size_t *count) {
    *count = reader->count;
    return reader->described;
}

static bags_code bagi_reader_describe(bags_reader *reader, bags_error *err) {
    reader->described = (bags_shard *)bagi_alloc(&reader->env.memory,
        (reader->count + 1) * sizeof *reader->described, err);
    if (!reader->described)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < reader->count; i++) {
        const bagi_shard *shard = &reader->shards[i];
        bags_shard *out = &reader->described[i];
        out->number = shard->name.number;
        out->start = shard->start;
        out->unfinished = shard->unfinished;
        out->length = bagi_shard_stop(reader, i) - shard->start;
    }
    return BAGS_OK;
}

BAGS_API const bags_field *bags_reader_fields(
    const bags_reader *reader, size_t *count) {
    *count = reader->spec.count;
    return reader->spec.fields;
}

BAGI_COLD static bags_code bagi_fail_no_field(
    const bags_reader *reader, size_t field, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_FIELD,
        "%s: there is no field number %" PRIu64 "; it has %" PRIu64,
        bagi_tail(reader->path), (uint64_t)field, (uint64_t)reader->spec.count);
}

BAGS_API bags_code bags_reader_field(const bags_reader *reader,
    const char *name, size_t *field, bags_error *err) {
    size_t found = bagi_spec_find(&reader->spec, name);
    if (found == reader->spec.count)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%s: there is no field \"%.200s\"", bagi_tail(reader->path), name);
    *field = found;
    return BAGS_OK;
}

BAGS_API const bags_type *bags_reader_type(
    const bags_reader *reader, size_t field) {
    return field < reader->spec.count ? &reader->spec.types[field] : NULL;
}

/* Look at a Bag of a shard without keeping it. */
static bags_code bagi_reader_measure(const bags_reader *reader, size_t shard,
    size_t field, uint64_t *blobs, uint64_t *bytes, uint64_t *size,
    bags_error *err) {
    if (reader->shards[shard].unfinished) {
        void **bags = reader->shards[shard].bags;
        const bag_reader *live = bags ? (const bag_reader *)bags[field] : NULL;
        *blobs += live ? live->length : 0;
        *bytes += live ? live->limit : 0;
        *size += live ? bag_reader_size(live) : 0;
        return BAGS_OK;
    }
    bagi_bag_options options =
        bagi_reader_bag_options(reader, &reader->shards[shard], NULL);
    options.no_mmap = true;
    options.cache_index = false;
    bag_reader *bag = NULL;
    bags_code code = bagi_reader_bag_new(
        reader, &reader->shards[shard], field, &options, NULL, &bag, err);
    if (code)
        return code;
    *blobs += bag->length;
    *bytes += bag->limit;
    *size += bag_reader_size(bag);
    bagi_reader_bag_free(reader, bag);
    return BAGS_OK;
}

static bags_code bagi_reader_summed(
    const bags_reader *reader, uint64_t *shards, bags_error *err);

BAGS_API bags_code bags_reader_info(const bags_reader *reader, bags_info *info,
    bags_field_info *fields, bags_error *err) {
    bags_info out;
    memset(&out, 0, sizeof out);
    out.sharded = reader->sharded;
    out.skipped = reader->skipped;
    bags_code code = bagi_reader_summed(reader, &out.checksums, err);
    for (size_t field = 0; fields && field < reader->spec.count; field++)
        memset(&fields[field], 0, sizeof *fields);
    for (size_t i = 0; i < reader->count && !code; i++) {
        size_t bags = reader->spec.count + !reader->shards[i].split;
        for (size_t field = 0; field < bags && !code; field++) {
            bags_field_info refs = {0, 0};
            bags_field_info *to =
                fields && field < reader->spec.count ? &fields[field] : &refs;
            code = bagi_reader_measure(
                reader, i, field, &to->blobs, &to->size, &out.size, err);
        }
    }
    if (!code)
        *info = out;
    return code;
}

/* ---- rows ---- */

BAGS_API bags_select bags_whole(size_t field) {
    bags_select select = {field, false, 0, 0, 0};
    return select;
}

BAGS_API bags_select bags_slice(
    size_t field, uint64_t start, uint64_t stop, uint64_t step) {
    bags_select select = {field, true, start, stop, step};
    return select;
}

/* The shard of a datapoint. Most often it is the one the row was used for
 * last, or the next. */
static BAGI_WITHIN bool bagi_shard_has(
    const bags_reader *reader, uint64_t shard, uint64_t index) {
    return shard < reader->count && reader->shards[shard].start <= index &&
           index < reader->shards[shard + 1].start;
}

static inline size_t bagi_reader_shard_of(
    const bags_reader *reader, uint64_t index, uint64_t hint) {
    if (bagi_shard_has(reader, hint, index))
        return (size_t)hint;
    size_t low = 0, high = reader->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (reader->shards[middle].start <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bags_allocator bagi_row_memory(const bags_row *row) {
    bags_allocator memory = {row->scratch.resize, row->scratch.user};
    return memory;
}

/* Begin a call that uses the row: it is empty until the call has succeeded. */
static void bagi_row_start(const bags_reader *reader, bags_row *row) {
    bagi_buffer_adopt(&row->scratch, &reader->env.memory);
    bags_allocator memory = bagi_row_memory(row);
    bagi_buffer_adopt(&row->refs, &memory);
    bagi_buffer_adopt(&row->list, &memory);
    row->reader = reader;
    row->length = 0;
}

/* Have at least `count` slots. */
static bags_code bagi_row_slots(bags_row *row, size_t count, bags_error *err) {
    if (count <= row->capacity)
        return BAGS_OK;
    bags_allocator memory = bagi_row_memory(row);
    size_t size = sizeof(struct bagi_slot);
    if (count > SIZE_MAX / size)
        return bagi_fail_memory(err, SIZE_MAX);
    void *slots = memory.resize(
        memory.user, row->slots, row->capacity * size, count * size);
    if (!slots)
        return bagi_fail_memory(err, count * size);
    row->slots = (struct bagi_slot *)slots;
    memset(row->slots + row->capacity, 0, (count - row->capacity) * size);
    for (size_t i = row->capacity; i < count; i++) {
        bagi_buffer_adopt(&row->slots[i].data, &memory);
        bagi_buffer_adopt(&row->slots[i].value, &memory);
    }
    row->capacity = count;
    return BAGS_OK;
}

/* Have room for `count` items in a slot, keeping those that it has. */
static bags_code bagi_slot_items(const bags_row *row, struct bagi_slot *slot,
    size_t count, bags_error *err) {
    if (count <= slot->capacity)
        return BAGS_OK;
    bags_allocator memory = bagi_row_memory(row);
    size_t size = sizeof *slot->items;
    size_t more = slot->capacity + slot->capacity / 2;
    if (more < count)
        more = count;
    if (more > SIZE_MAX / size)
        return bagi_fail_memory(err, SIZE_MAX);
    void *items = memory.resize(
        memory.user, slot->items, slot->capacity * size, more * size);
    if (!items)
        return bagi_fail_memory(err, more * size);
    slot->items = (bags_view *)items;
    slot->capacity = more;
    return BAGS_OK;
}

BAGS_API void bags_row_free(bags_row *row) {
    if (!row)
        return;
    bags_allocator memory = bagi_row_memory(row);
    for (size_t i = 0; i < row->capacity; i++) {
        struct bagi_slot *slot = &row->slots[i];
        bagi_free(&memory, slot->items, slot->capacity * sizeof *slot->items);
        bags_buffer_free(&slot->data);
        bags_buffer_free(&slot->value);
    }
    bagi_free(&memory, row->slots, row->capacity * sizeof *row->slots);
    bags_buffer_free(&row->scratch);
    bags_buffer_free(&row->refs);
    bags_buffer_free(&row->list);
    memset(row, 0, sizeof *row);
}

/* ---- refs ---- */

/* field is spec->count if the row is wrong as a whole. */
BAGI_COLD static bags_code bagi_fail_refs_in(const char *dir,
    const bagi_spec *spec, uint64_t local, size_t field, const char *what,
    bags_error *err) {
    if (field < spec->count)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s/refs.bag: datapoint %" PRIu64 ", field \"%.200s\": %s",
            bagi_tail(dir), local, spec->fields[field].name, what);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s/refs.bag: datapoint %" PRIu64 " %s", bagi_tail(dir), local, what);
}

BAGI_COLD static bags_code bagi_fail_refs(const bags_reader *reader,
    size_t shard, uint64_t local, size_t field, const char *what,
    bags_error *err) {
    char *dir = bagi_reader_shard_path(reader, &reader->shards[shard], NULL);
    bags_code code = bagi_fail_refs_in(
        dir ? dir : "", &reader->spec, local, field, what, err);
    bagi_free_text(&reader->env.memory, dir);
    return code;
}

/* Take apart the refs of a datapoint of a shard that has them. */
static bags_code bagi_reader_parse(const bags_reader *reader, size_t shard,
    uint64_t local, bags_view blob, bagi_ref *refs, bags_error *err) {
    size_t field = 0;
    const char *fault = bagi_refs_parse(
        blob, reader->spec.types, reader->spec.count, refs, &field);
    return fault ? bagi_fail_refs(reader, shard, local, field, fault, err)
                 : BAGS_OK;
}

#define BAGI_QUICK_FIELDS 32
#define BAGI_LAYOUTS 8
#define BAGI_LAYOUT_WORDS 24

/* Where a number stands in the refs of a datapoint: of the eight bytes from `at`
 * on, read as big-endian, what is left after 1 + shift bits are dropped. */
typedef struct bagi_place {
    unsigned char at, shift;
} bagi_place;

/*
 * A layout of refs: how many bytes each number has. A dataset has few, so that
 * refs seldom have to be taken apart: if they have the bytes of a layout, but
 * for those of the numbers, the numbers stand where it says.
 */
typedef struct bagi_layout {
    uint64_t shape; /* the spec's; 0: nothing is known */
    size_t size;    /* of the refs in bytes */
    size_t words;   /* of eight bytes, the last one's rest without a mask */
    struct {
        uint64_t mask, tag;
    } word[BAGI_LAYOUT_WORDS];
    bagi_place first[BAGI_QUICK_FIELDS], count[BAGI_QUICK_FIELDS];
} bagi_layout;

/* In a row's `refs`: the layouts that were seen last, by their sizes; the refs
 * of one datapoint; a mark a field. */
static bagi_layout *bagi_row_layouts(const bags_row *row) {
    return (bagi_layout *)(void *)row->refs.data;
}

static bags_code bagi_row_refs(const bags_reader *reader, bags_row *row,
    bagi_ref **refs, unsigned char **marks, bags_error *err) {
    size_t count = reader->spec.count;
    size_t layouts = BAGI_LAYOUTS * sizeof(bagi_layout);
    bool fresh = row->refs.capacity == 0;
    bags_code code = bags_buffer_reserve(
        &row->refs, layouts + count * (sizeof(bagi_ref) + 1) + 1, err);
    if (code)
        return code;
    if (fresh)
        memset(row->refs.data, 0, layouts);
    *refs = (bagi_ref *)(void *)(row->refs.data + layouts);
    *marks = row->refs.data + layouts + count * sizeof(bagi_ref);
    return BAGS_OK;
}

/* The bytes of an integer by its first byte; 0 if it is none, or one of more
 * than 32 bits, or one that is written as a signed one. */
static size_t bagi_uint_size(unsigned char tag) {
    return tag < 0x80    ? 1
           : tag == 0xCC ? 2
           : tag == 0xCD ? 3
           : tag == 0xCE ? 5
                         : 0;
}

/* Note that refs of this layout have these bits of their byte `at`. */
static void bagi_layout_tag(
    bagi_layout *layout, size_t at, unsigned char value, unsigned char mask) {
    unsigned shift = 8 * (at % 8);
    layout->word[at / 8].mask |= (uint64_t)mask << shift;
    layout->word[at / 8].tag |= (uint64_t)(value & mask) << shift;
}

/* Take a number off the refs. False if it is none of those that are quick. */
static bool bagi_layout_number(
    bagi_layout *layout, bags_view refs, size_t *at, bagi_place *place) {
    if (*at >= refs.size)
        return false;
    unsigned char tag = refs.data[*at];
    size_t size = bagi_uint_size(tag), tags = size > 1;
    if (size == 0 || size > refs.size - *at)
        return false;
    bagi_layout_tag(layout, *at, tag, tags ? 0xFF : 0x80);
    place->at = (unsigned char)(*at + tags);
    place->shift = (unsigned char)(63 - 8 * (size - tags));
    *at += size;
    return true;
}

/* The same for [first, count] or []. */
static bool bagi_layout_sequence(
    bagi_layout *layout, bags_view refs, size_t *at, size_t field) {
    bagi_place none = {0, 63};
    if (*at >= refs.size)
        return false;
    unsigned char tag = refs.data[(*at)++];
    layout->first[field] = layout->count[field] = none;
    bagi_layout_tag(layout, *at - 1, tag, 0xFF);
    if (tag != 0x92)
        return tag == 0x90;
    return bagi_layout_number(layout, refs, at, &layout->first[field]) &&
           bagi_layout_number(layout, refs, at, &layout->count[field]);
}

/* The head of an array of so many elements. */
static bool bagi_layout_head(
    bagi_layout *layout, bags_view refs, size_t *at, size_t count) {
    unsigned char head[3] = {(unsigned char)(0x90 | count), 0, 0};
    size_t size = count < 16 ? 1 : 3;
    if (size == 3) {
        head[0] = 0xDC;
        head[2] = (unsigned char)count;
    }
    if (refs.size < size || memcmp(refs.data, head, size) != 0)
        return false;
    for (; *at < size; (*at)++)
        bagi_layout_tag(layout, *at, head[*at], 0xFF);
    return true;
}

static bool bagi_layout_fields(
    bagi_layout *layout, const bagi_spec *spec, bags_view refs) {
    size_t at = 0;
    if (!bagi_layout_head(layout, refs, &at, spec->count))
        return false;
    for (size_t i = 0; i < spec->count; i++) {
        bool known =
            spec->shape >> i & 1
                ? bagi_layout_sequence(layout, refs, &at, i)
                : bagi_layout_number(layout, refs, &at, &layout->first[i]);
        if (!known)
            return false;
    }
    return at == refs.size;
}

/* Remember the layout of a datapoint's refs, if it is one that is quick. */
static void bagi_row_learn(
    const bags_row *row, const bagi_spec *spec, bags_view refs) {
    bagi_layout *layout = &bagi_row_layouts(row)[refs.size % BAGI_LAYOUTS];
    if (spec->count > BAGI_QUICK_FIELDS ||
        refs.size > (size_t)8 * BAGI_LAYOUT_WORDS)
        return;
    memset(layout, 0, sizeof *layout);
    if (!bagi_layout_fields(layout, spec, refs))
        return;
    layout->size = refs.size;
    layout->words = (refs.size + 7) / 8;
    layout->shape = spec->shape;
}

/* The refs of a datapoint, `local` counted in its shard. */
static bags_code bagi_reader_refs(const bags_reader *reader, size_t shard,
    uint64_t local, bags_row *row, bagi_ref *refs, bags_error *err) {
    if (reader->shards[shard].split) {
        for (size_t i = 0; i < reader->spec.count; i++) {
            refs[i].first = local;
            refs[i].count = 1;
        }
        return BAGS_OK;
    }
    const bag_reader *bag = NULL;
    bags_view blob = {NULL, 0};
    bags_code code =
        bagi_reader_bag(reader, shard, reader->spec.count, &bag, err);
    if (!code)
        code = bag_reader_get(bag, local, &row->scratch, &blob, err);
    if (!code)
        code = bagi_reader_parse(reader, shard, local, blob, refs, err);
    if (!code && bag->view.length)
        bagi_row_learn(row, &reader->spec, blob);
    return code;
}

static bool bagi_ref_fits(const bagi_ref *ref, uint64_t length) {
    return ref->count == 0 ||
           (ref->first < length && ref->count <= length - ref->first);
}

#define BAGI_REF_FAULT                                                         \
    "refers to blob %" PRIu64 ", %" PRIu64 " of them; the Bag has %" PRIu64

/* Check that what a ref says is in the field's Bag. */
static bags_code bagi_reader_check_ref(const bags_reader *reader, size_t shard,
    uint64_t local, size_t field, const bagi_ref *ref, const bag_reader *bag,
    bags_error *err) {
    if (bagi_ref_fits(ref, bag->length))
        return BAGS_OK;
    if (reader->shards[shard].split)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has %" PRIu64
            " blobs and not those of the datapoints from %" PRIu64
            " on: it was made shorter while it was open",
            bagi_tail(bag->file.path), bag->length, local);
    char what[160];
    (void)snprintf(
        what, sizeof what, BAGI_REF_FAULT, ref->first, ref->count, bag->length);
    return bagi_fail_refs(reader, shard, local, field, what, err);
}

/* ---- blobs into slots ---- */

/* Which items of a sequence to take. */
typedef struct bagi_steps {
    uint64_t first, count, step; /* first, first + step, ...: count of them */
} bagi_steps;

/* How much one call copies of a shard's Bag. Datapoints may share blobs, but a
 * file must not make memory of a thousand times its size. */
static uint64_t bagi_slot_budget(const bag_reader *bag) {
    const uint64_t least = 64 << 10;
    return bag->limit > (UINT64_MAX - least) / 4 ? UINT64_MAX
                                                 : bag->limit * 4 + least;
}

/* Point at items that are mapped. */
static bags_code bagi_slot_view(const bag_reader *bag, const bagi_steps *steps,
    bags_view *items, bags_error *err) {
    uint64_t index = steps->first;
    for (uint64_t i = 0; i < steps->count; i++, index += steps->step) {
        uint64_t start, stop;
        if (BAGI_UNLIKELY(!bagi_bag_bounds(
                bag, index, bag->ends + index * 8, &start, &stop)))
            return bagi_bag_fail_bounds(bag, index, start, stop, err);
        items[i].data = bag->data + start;
        items[i].size = (size_t)(stop - start);
        if (BAGI_UNLIKELY(bag->sums)) {
            bags_code code = bagi_sums_check(
                bag, index, 1, bag->ends + index * 8, items[i].data, err);
            if (code)
                return code;
        }
    }
    return BAGS_OK;
}

/* The buffer of a slot grows while items view it: move the views along. */
static bags_code bagi_slot_reserve(
    struct bagi_slot *slot, size_t used, size_t more, bags_error *err) {
    uintptr_t before = (uintptr_t)slot->data.data;
    if (more > SIZE_MAX / 2 - used)
        return bagi_fail_memory(err, SIZE_MAX);
    bags_code code = bags_buffer_reserve(&slot->data, used + more + 1, err);
    if (code || (uintptr_t)slot->data.data == before)
        return code;
    for (size_t i = 0; i < slot->length; i++) {
        uintptr_t at = (uintptr_t)slot->items[i].data - before;
        if (before && at <= used)
            slot->items[i].data = slot->data.data + at;
    }
    return BAGS_OK;
}

/* Read neighbouring items behind what the slot's buffer holds, `*used` bytes:
 * their ends, unless the table is at hand, and then all blobs at once. */
static bags_code bagi_slot_read(const bag_reader *bag, uint64_t first,
    size_t count, struct bagi_slot *slot, size_t *used, bags_view *items,
    bags_error *err) {
    const unsigned char *ends = bag->ends ? bag->ends + first * 8 : NULL;
    size_t at = *used;
    bags_code code = BAGS_OK;
    if (!ends) {
        code = bagi_slot_reserve(slot, at, count * 8 + 8, err);
        if (!code)
            code =
                bagi_bag_entries(bag, first, count, slot->data.data + at, err);
        at += count * 8 + 8;
        ends = slot->data.data + *used + 8;
    }
    if (!code)
        code = bagi_bag_check(bag, first, count, ends, err);
    if (code)
        return code;
    uint64_t start = first ? bagi_load_u64(ends - 8) : 0;
    uint64_t size = bagi_load_u64(ends + 8 * (count - 1)) - start;
    const unsigned char *data = bag->data ? bag->data + start : NULL;
    if (!data) {
        if (size > SIZE_MAX / 2)
            return bagi_fail_memory(err, SIZE_MAX);
        if (size > slot->budget)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "%s: datapoints refer to the same blobs again and again: "
                "together they are far larger than the Bag",
                bagi_tail(bag->file.path));
        slot->budget -= size;
        code = bagi_slot_reserve(slot, at, (size_t)size, err);
        if (code)
            return code;
        if (!bag->ends)
            ends = slot->data.data + *used + 8;
        data = slot->data.data + at;
        code = bagi_file_read(
            bag, &bag->file, start, slot->data.data + at, (size_t)size, err);
        if (code)
            return code;
        at += (size_t)size;
    }
    if (bag->sums)
        code = bagi_sums_check(bag, first, count, ends, data, err);
    if (code)
        return code;
    for (size_t i = 0; i < count; i++) {
        uint64_t stop = bagi_load_u64(ends + 8 * i);
        items[i].data = data;
        items[i].size = (size_t)(stop - start);
        data += stop - start;
        start = stop;
    }
    *used = at;
    return BAGS_OK;
}

/* Put items behind those that the slot has. */
static bags_code bagi_slot_add(const bags_row *row, struct bagi_slot *slot,
    const bag_reader *bag, const bagi_steps *steps, size_t *used,
    bags_error *err) {
    if (steps->count == 0)
        return BAGS_OK;
    if (steps->count > SIZE_MAX / 32 - slot->length)
        return bagi_fail_memory(err, SIZE_MAX);
    size_t count = (size_t)steps->count;
    bags_code code = bagi_slot_items(row, slot, slot->length + count, err);
    if (code)
        return code;
    bags_view *items = slot->items + slot->length;
    if (bag->data && bag->ends) {
        code = bagi_slot_view(bag, steps, items, err);
        for (size_t i = 0; bag->random && i < count && !code; i++)
            bagi_bag_wake(
                bag, (uint64_t)(items[i].data - bag->data), items[i].size);
        slot->length += code ? 0 : count;
    } else if (steps->step == 1) {
        code = bagi_slot_read(bag, steps->first, count, slot, used, items, err);
        slot->length += code ? 0 : count;
    } else {
        for (size_t i = 0; i < count && !code; i++) {
            code = bagi_slot_read(bag, steps->first + i * steps->step, 1, slot,
                used, slot->items + slot->length, err);
            slot->length += !code;
        }
    }
    return code;
}

/* Which items a selection takes of a ref. */
static bags_code bagi_select_steps(const bags_reader *reader,
    const bags_select *select, const bagi_ref *ref, bagi_steps *steps,
    bags_error *err) {
    const char *name = reader->spec.fields[select->field].name;
    steps->first = ref->first;
    steps->count = ref->count;
    steps->step = 1;
    if (!select->slice && !select->start && !select->stop && !select->step)
        return BAGS_OK;
    if (!select->slice)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: field \"%.200s\": start, stop or step without slice",
            bagi_tail(reader->path), name);
    if (!reader->spec.types[select->field].sequence)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: field \"%.200s\" is no sequence to take a range of",
            bagi_tail(reader->path), name);
    if (select->start > select->stop)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: field \"%.200s\": a range from %" PRIu64 " to %" PRIu64
            " runs backwards",
            bagi_tail(reader->path), name, select->start, select->stop);
    uint64_t stop = select->stop < ref->count ? select->stop : ref->count;
    steps->step = select->step ? select->step : 1;
    steps->first = ref->first + select->start;
    steps->count =
        select->start < stop ? (stop - select->start - 1) / steps->step + 1 : 0;
    return BAGS_OK;
}

/* Put before a message which datapoint, and of which field, could not be
 * read. */
BAGI_COLD static bags_code bagi_prefix_datapoint(const bags_reader *reader,
    uint64_t index, size_t field, bags_code code, bags_error *err) {
    return bagi_prefix(err, code,
        "datapoint %" PRIu64 ", field \"%.200s\": ", index,
        bagi_reader_field_name(reader, field));
}

static bags_code bagi_row_fill(const bags_reader *reader, size_t shard,
    uint64_t local, const bags_select *select, const bagi_ref *ref,
    bags_row *row, struct bagi_slot *slot, bags_error *err) {
    const bag_reader *bag = NULL;
    bagi_steps steps;
    size_t used = 0;
    slot->field = select->field;
    slot->length = 0;
    uint64_t index = reader->shards[shard].start + local;
    bags_code code = bagi_select_steps(reader, select, ref, &steps, err);
    if (!code)
        code = bagi_reader_bag(reader, shard, select->field, &bag, err);
    if (code)
        return code;
    code = bagi_reader_check_ref(
        reader, shard, local, select->field, ref, bag, err);
    if (code) /* it says field and datapoint, counted in the shard */
        return reader->sharded
                   ? bagi_prefix(err, code, "datapoint %" PRIu64 ": ", index)
                   : code;
    slot->budget = bagi_slot_budget(bag);
    code = bagi_slot_add(row, slot, bag, &steps, &used, err);
    return code ? bagi_prefix_datapoint(reader, index, select->field, code, err)
                : BAGS_OK;
}

BAGI_COLD static bags_code bagi_fail_datapoint(
    const bags_reader *reader, uint64_t index, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_RANGE,
        "%s: there is no datapoint %" PRIu64 "; it has %" PRIu64,
        bagi_tail(reader->path), index, reader->length);
}

static bags_code bagi_row_select(const bags_reader *reader, size_t shard,
    uint64_t index, const bags_select *select, const bagi_ref *refs,
    unsigned char *marks, bags_row *row, size_t slot, bags_error *err) {
    size_t field = select->field;
    if (field >= reader->spec.count)
        return bagi_fail_no_field(reader, field, err);
    if (marks[field])
        return bags_fail(err, BAGS_ERROR_FIELD,
            "%s: field \"%.200s\" is selected twice", bagi_tail(reader->path),
            reader->spec.fields[field].name);
    marks[field] = 1;
    return bagi_row_fill(reader, shard, index - reader->shards[shard].start,
        select, &refs[field], row, &row->slots[slot], err);
}

/* ---- the quick way: everything is mapped, opened, and as it should be. False
 * if not so, or if anything is wrong: then the other way says what. ---- */

/* Behind the refs is a table of at least 16 bytes, so that to read eight from
 * any of theirs reads nothing behind the map. */
static BAGI_WITHIN bool bagi_layout_fits(
    const bagi_layout *layout, uint64_t shape, bags_view refs) {
    uint64_t other = layout->shape ^ shape;
    if (layout->size != refs.size)
        return false;
    for (size_t i = 0; i < layout->words; i++)
        other |= (bagi_load_u64(refs.data + 8 * i) & layout->word[i].mask) ^
                 layout->word[i].tag;
    return other == 0;
}

static BAGI_WITHIN uint64_t bagi_quick_number(
    const unsigned char *refs, bagi_place place) {
    return bagi_load_big(refs + place.at) >> 1 >> place.shift;
}

/* The refs of a datapoint and their layout, or NULL. */
static BAGI_WITHIN const bagi_layout *bagi_quick_refs(const bagi_spec *spec,
    const bagi_mapped *view, uint64_t local, const bags_row *row,
    const unsigned char **refs) {
    bags_view blob;
    const bagi_layout *layout = bagi_row_layouts(row);
    if (!layout || !bagi_mapped_get(view, local, &blob))
        return NULL;
    layout += blob.size % BAGI_LAYOUTS;
    *refs = blob.data;
    return bagi_layout_fits(layout, spec->shape, blob) ? layout : NULL;
}

/* Items of a sequence, all of them if the selection is NULL. */
static BAGI_WITHIN bool bagi_quick_items(const bagi_mapped *view,
    const bags_select *select, uint64_t first, uint64_t count,
    struct bagi_slot *slot) {
    uint64_t start = 0, stop = count;
    if (count > view->length || first > view->length - count)
        return false;
    if (select) {
        if (select->start > select->stop || select->step > 1)
            return false;
        stop = select->stop < stop ? select->stop : stop;
        start = select->start < stop ? select->start : stop;
    }
    if (stop - start > slot->capacity)
        return false;
    slot->length = (size_t)(stop - start);
    for (size_t i = 0; i < slot->length; i++)
        if (!bagi_mapped_get(view, first + start + i, &slot->items[i]))
            return false;
    return true;
}

/* `select` is NULL for all of the field. */
static BAGI_WITHIN bool bagi_quick_slot(const bags_reader *reader,
    const bag_reader *bag, size_t field, const bags_select *select,
    const bagi_layout *layout, const unsigned char *refs,
    struct bagi_slot *slot) {
    uint64_t first = bagi_quick_number(refs, layout->first[field]);
    if (select &&
        !(select->slice || (select->start | select->stop | select->step)))
        select = NULL;
    if (!bag || slot->capacity == 0)
        return false;
    slot->field = field;
    if (reader->spec.shape >> field & 1)
        return bagi_quick_items(&bag->view, select, first,
            bagi_quick_number(refs, layout->count[field]), slot);
    slot->length = 1;
    return !select && bagi_mapped_get(&bag->view, first, slot->items);
}

/* A plain field of a shard whose refs are known to be the indices of datapoints,
 * so that they need not be read. */
static BAGI_WITHIN bool bagi_quick_known(const bag_reader *bag, uint64_t local,
    const bags_select *select, struct bagi_slot *slot) {
    if (select->slice || select->start | select->stop | select->step ||
        slot->capacity == 0)
        return false;
    slot->field = select->field;
    slot->length = 1;
    return bagi_mapped_get(&bag->view, local, slot->items);
}

static BAGI_WITHIN bool bagi_quick_one(const bags_reader *reader, void **bags,
    uint64_t local, const bags_select *select, bags_row *row) {
    size_t field = select->field, fields = reader->spec.count;
    const unsigned char *refs;
    if (field >= fields || row->capacity == 0)
        return false;
    const bag_reader *index = (const bag_reader *)BAGI_LOAD(&bags[fields]);
    bag_reader *bag = (bag_reader *)BAGI_LOAD(&bags[field]);
    if (!index || !bag)
        return false;
    if (BAGI_LOAD(&bag->consecutive))
        return bagi_quick_known(bag, local, select, &row->slots[0]);
    const bagi_layout *layout =
        bagi_quick_refs(&reader->spec, &index->view, local, row, &refs);
    return layout && bagi_quick_slot(reader, bag, field, select, layout, refs,
                         &row->slots[0]);
}

static BAGI_WITHIN bool bagi_quick_blob(const bags_reader *reader, void **bags,
    uint64_t local, size_t field, uint64_t item, const bags_row *row,
    bags_view *out) {
    size_t fields = reader->spec.count;
    const unsigned char *refs;
    if (field >= fields)
        return false;
    const bag_reader *index = (const bag_reader *)BAGI_LOAD(&bags[fields]);
    bag_reader *bag = (bag_reader *)BAGI_LOAD(&bags[field]);
    if (!index || !bag)
        return false;
    if (BAGI_LOAD(&bag->consecutive))
        return item == 0 && bagi_mapped_get(&bag->view, local, out);
    const bagi_layout *layout =
        bagi_quick_refs(&reader->spec, &index->view, local, row, &refs);
    if (!layout)
        return false;
    uint64_t first = bagi_quick_number(refs, layout->first[field]), count = 1;
    if (reader->spec.shape >> field & 1)
        count = bagi_quick_number(refs, layout->count[field]);
    return item < count && count <= bag->view.length &&
           first <= bag->view.length - count &&
           bagi_mapped_get(&bag->view, first + item, out);
}

static BAGI_WITHIN bool bagi_quick_fields(const bags_reader *reader,
    void **bags, uint64_t local, const bags_select *selects, size_t count,
    bags_row *row) {
    size_t fields = reader->spec.count;
    uint64_t seen = 0;
    const unsigned char *refs;
    const bag_reader *bag = (const bag_reader *)BAGI_LOAD(&bags[fields]);
    if (!bag || count > row->capacity)
        return false;
    const bagi_layout *layout =
        bagi_quick_refs(&reader->spec, &bag->view, local, row, &refs);
    if (!layout)
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t field = selects ? selects[i].field : i;
        if (field >= fields || seen >> field & 1 ||
            !bagi_quick_slot(reader,
                (const bag_reader *)BAGI_LOAD(&bags[field]), field,
                selects ? &selects[i] : NULL, layout, refs, &row->slots[i]))
            return false;
        seen |= (uint64_t)1 << field;
    }
    return true;
}

BAGI_APART static bags_code bagi_reader_get(const bags_reader *reader,
    uint64_t index, const bags_select *selects, size_t count, bags_row *row,
    bags_error *err) {
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    bagi_row_start(reader, row);
    if (BAGI_UNLIKELY(index >= reader->length))
        return bagi_fail_datapoint(reader, index, err);
    size_t shard = bagi_reader_shard_of(reader, index, row->shard);
    if (!selects)
        count = reader->spec.count;
    bags_code code = bagi_row_slots(row, count, err);
    if (!code)
        code = bagi_row_refs(reader, row, &refs, &marks, err);
    if (!code)
        code = bagi_reader_refs(
            reader, shard, index - reader->shards[shard].start, row, refs, err);
    if (code)
        return code;
    memset(marks, 0, reader->spec.count);
    for (size_t i = 0; i < count && !code; i++) {
        bags_select whole = bags_whole(i);
        code = bagi_row_select(reader, shard, index,
            selects ? &selects[i] : &whole, refs, marks, row, i, err);
    }
    if (code)
        return code;
    row->index = index;
    row->shard = shard;
    row->length = count;
    return BAGS_OK;
}

/* Any number of fields of any shard. */
BAGI_APART static bags_code bagi_reader_get_some(const bags_reader *reader,
    uint64_t index, const bags_select *selects, size_t count, bags_row *row,
    bags_error *err) {
    if (BAGI_ATOMIC && index < reader->length) {
        size_t number = bagi_reader_shard_of(reader, index, row->shard);
        const bagi_shard *shard = &reader->shards[number];
        void **bags = (void **)BAGI_LOAD(&shard->bags);
        size_t most = selects ? count : reader->spec.count;
        if (bags && bagi_quick_fields(reader, bags, index - shard->start,
                        selects, most, row)) {
            row->reader = reader;
            row->index = index;
            row->shard = number;
            row->length = most;
            return BAGS_OK;
        }
    }
    return bagi_reader_get(reader, index, selects, count, row, err);
}

/* One field of the shard of the last read is what most reads are: the others are
 * in functions of their own, so that this one needs few registers. */
BAGS_API bags_code bags_reader_get(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err) {
    if (BAGI_ATOMIC && selects && count == 1 &&
        bagi_shard_has(reader, row->shard, index)) {
        const bagi_shard *shard = &reader->shards[row->shard];
        void **bags = (void **)BAGI_LOAD(&shard->bags);
        if (bags &&
            bagi_quick_one(reader, bags, index - shard->start, selects, row)) {
            row->reader = reader;
            row->index = index;
            row->length = 1;
            return BAGS_OK;
        }
    }
    return bagi_reader_get_some(reader, index, selects, count, row, err);
}

/* No such item: say how many there are. */
BAGI_COLD static bags_code bagi_fail_item(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, bags_row *row,
    bags_error *err) {
    uint64_t count = 0;
    bags_code code = bags_reader_items(reader, index, field, row, &count, err);
    if (code)
        return code;
    code = bags_fail(err, BAGS_ERROR_RANGE,
        "%s: there is no item %" PRIu64 "; it has %" PRIu64,
        bagi_tail(reader->path), item, count);
    return bagi_prefix_datapoint(reader, index, field, code, err);
}

BAGI_APART static bags_code bagi_reader_get_blob(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, bags_row *row, bags_view *out,
    bags_error *err) {
    bags_select select = bags_whole(field);
    if (field < reader->spec.count && reader->spec.types[field].sequence)
        select = bags_slice(field, item, item + (item < UINT64_MAX), 1);
    out->data = NULL;
    out->size = 0;
    bags_code code = bagi_reader_get_some(reader, index, &select, 1, row, err);
    bool there = bags_row_length(row, 0) > (select.step ? 0 : item);
    if (!code && !there)
        code = bagi_fail_item(reader, index, field, item, row, err);
    if (!code)
        *out = bags_row_bytes(row, 0, 0);
    row->length = 0;
    return code;
}

BAGS_API bags_code bags_reader_get_blob(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, bags_row *row, bags_view *out,
    bags_error *err) {
    if (BAGI_ATOMIC && bagi_shard_has(reader, row->shard, index)) {
        const bagi_shard *shard = &reader->shards[row->shard];
        void **bags = (void **)BAGI_LOAD(&shard->bags);
        if (bags && bagi_quick_blob(reader, bags, index - shard->start, field,
                        item, row, out)) {
            row->length = 0;
            return BAGS_OK;
        }
    }
    return bagi_reader_get_blob(reader, index, field, item, row, out, err);
}

BAGS_API bags_code bags_reader_items(const bags_reader *reader, uint64_t index,
    size_t field, bags_row *row, uint64_t *count, bags_error *err) {
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    const bag_reader *bag = NULL;
    bagi_row_start(reader, row);
    if (field >= reader->spec.count)
        return bagi_fail_no_field(reader, field, err);
    if (index >= reader->length)
        return bagi_fail_datapoint(reader, index, err);
    size_t shard = bagi_reader_shard_of(reader, index, row->shard);
    uint64_t local = index - reader->shards[shard].start;
    bags_code code = bagi_row_refs(reader, row, &refs, &marks, err);
    if (!code)
        code = bagi_reader_refs(reader, shard, local, row, refs, err);
    if (!code)
        code = bagi_reader_bag(reader, shard, field, &bag, err);
    if (!code)
        code = bagi_reader_check_ref(
            reader, shard, local, field, &refs[field], bag, err);
    if (code)
        return code;
    row->shard = shard;
    *count = refs[field].count;
    return BAGS_OK;
}

/* ---- ranges of datapoints ---- */

static bags_code bagi_fail_sequence(
    const bags_reader *reader, size_t field, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_RANGE,
        "%s: field \"%.200s\" is a sequence; ranges, lists and columns of "
        "datapoints are of plain fields",
        bagi_tail(reader->path), reader->spec.fields[field].name);
}

static bags_code bagi_many_check(
    const bags_reader *reader, size_t field, bags_error *err) {
    if (field >= reader->spec.count)
        return bagi_fail_no_field(reader, field, err);
    if (reader->spec.types[field].sequence)
        return bagi_fail_sequence(reader, field, err);
    return BAGS_OK;
}

/*
 * Many blobs were read at once and one of them is wrong: say of which datapoint,
 * by reading them again one by one. indices NULL: start, start + 1, ... If none
 * of them alone is wrong, what `err` says stays, with `field` before it.
 */
BAGI_COLD static bags_code bagi_many_blame(const bags_reader *reader,
    size_t field, const uint64_t *indices, uint64_t start, uint64_t count,
    bags_row *row, bags_code code, bags_error *err) {
    bags_select select = bags_whole(field);
    bags_error why;
    for (uint64_t i = 0; err && code == BAGS_ERROR_CORRUPT && i < count; i++) {
        uint64_t index = indices ? indices[i] : start + i;
        if (bagi_reader_get(reader, index, &select, 1, row, &why) != code)
            continue;
        *err = why;
        row->length = 0;
        return code;
    }
    row->length = 0;
    if (indices)
        return bagi_prefix(
            err, code, "field \"%.200s\": ", reader->spec.fields[field].name);
    return bagi_prefix(err, code,
        "datapoints %" PRIu64 " to %" PRIu64 ", field \"%.200s\": ", start,
        start + count, reader->spec.fields[field].name);
}

/* A run of a field's blobs that lie one behind the other. */
typedef struct bagi_run {
    const bags_reader *reader;
    size_t shard, field;
    const bag_reader *bag;
    bags_row *row;
    size_t used; /* of the slot's buffer */
    bagi_steps steps;
} bagi_run;

static bags_code bagi_run_flush(bagi_run *run, bags_error *err) {
    bags_code code = bagi_slot_add(
        run->row, &run->row->slots[0], run->bag, &run->steps, &run->used, err);
    run->steps.count = 0;
    return code;
}

static bags_code bagi_run_add(
    bagi_run *run, uint64_t local, const bagi_ref *ref, bags_error *err) {
    bagi_steps *steps = &run->steps;
    bags_code code = bagi_reader_check_ref(
        run->reader, run->shard, local, run->field, ref, run->bag, err);
    if (!code && steps->count && ref->first != steps->first + steps->count)
        code = bagi_run_flush(run, err);
    if (code)
        return code;
    if (steps->count == 0)
        steps->first = ref->first;
    steps->count++;
    return BAGS_OK;
}

/* The datapoints start .. stop of one shard, counted in it. */
static bags_code bagi_run_shard(
    bagi_run *run, uint64_t start, uint64_t stop, bags_error *err) {
    const bags_reader *reader = run->reader;
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    bags_range range = {NULL, 0, 0, NULL, 0};
    const bag_reader *bag = NULL;
    bags_code code = bagi_row_refs(reader, run->row, &refs, &marks, err);
    if (code)
        return code;
    run->row->slots[0].budget = bagi_slot_budget(run->bag);
    if (reader->shards[run->shard].split) {
        bagi_ref all = {start, stop - start};
        code = bagi_reader_check_ref(
            reader, run->shard, start, run->field, &all, run->bag, err);
        run->steps.first = start;
        run->steps.count = stop - start;
        return code ? code : bagi_run_flush(run, err);
    }
    code = bagi_reader_bag(reader, run->shard, reader->spec.count, &bag, err);
    if (!code)
        code = bag_reader_get_range(
            bag, start, stop, &run->row->scratch, &range, err);
    for (size_t i = 0; !code && i < range.length; i++) {
        code = bagi_reader_parse(reader, run->shard, start + i,
            bags_range_get(&range, i), refs, err);
        if (!code)
            code = bagi_run_add(run, start + i, &refs[run->field], err);
    }
    return code ? code : bagi_run_flush(run, err);
}

static bags_code bagi_run_all(
    bagi_run *run, uint64_t start, uint64_t stop, bags_error *err) {
    const bags_reader *reader = run->reader;
    bags_code code = BAGS_OK;
    while (start < stop && !code) {
        run->shard = bagi_reader_shard_of(reader, start, run->row->shard);
        run->row->shard = run->shard;
        uint64_t base = reader->shards[run->shard].start;
        uint64_t end = bagi_shard_stop(reader, run->shard);
        if (end > stop)
            end = stop;
        code = bagi_reader_bag(reader, run->shard, run->field, &run->bag, err);
        if (!code)
            code = bagi_run_shard(run, start - base, end - base, err);
        start = end;
    }
    return code;
}

BAGS_API bags_code bags_reader_get_range(const bags_reader *reader,
    uint64_t start, uint64_t stop, size_t field, bags_row *row,
    bags_error *err) {
    bagi_row_start(reader, row);
    bags_code code = bagi_many_check(reader, field, err);
    if (code)
        return code;
    if (start > stop)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "%s: a range from %" PRIu64 " to %" PRIu64 " runs backwards",
            bagi_tail(reader->path), start, stop);
    if (stop > reader->length)
        stop = reader->length;
    code = bagi_row_slots(row, 1, err);
    if (code)
        return code;
    bagi_run run;
    memset(&run, 0, sizeof run);
    run.reader = reader;
    run.field = field;
    run.row = row;
    run.steps.step = 1;
    row->slots[0].field = field;
    row->slots[0].length = 0;
    code = bagi_run_all(&run, start, stop, err);
    if (code)
        return bagi_many_blame(
            reader, field, NULL, start, stop - start, row, code, err);
    row->index = start;
    row->length = 1;
    return BAGS_OK;
}

/* ---- many datapoints ---- */

/* A sorted list of datapoints, in row->list. */
static bags_code bagi_many_list(const bags_reader *reader,
    const uint64_t *indices, size_t count, bags_row *row, bagi_list *list,
    bags_error *err) {
    list->buffer = &row->list;
    bags_code code = bagi_wants_make(indices, count, list, err);
    if (!code && count && bagi_wants(list)[count - 1].index >= reader->length)
        code =
            bagi_fail_datapoint(reader, bagi_wants(list)[count - 1].index, err);
    return code;
}

/* The part of a list from the i-th on that is in one shard. */
static bagi_list bagi_many_shard(
    const bags_reader *reader, const bagi_list *list, size_t i, bags_row *row) {
    const bagi_want *wants = bagi_wants(list);
    bagi_list part = {list->buffer, list->first + i, 0};
    size_t shard = bagi_reader_shard_of(reader, wants[i].index, row->shard);
    uint64_t stop = bagi_shard_stop(reader, shard);
    row->shard = shard;
    while (i + part.count < list->count && wants[i + part.count].index < stop)
        part.count++;
    return part;
}

/* Make blobs of `field` of datapoints, counted in their shard. */
static bags_code bagi_many_refs(const bags_reader *reader, size_t shard,
    size_t field, const bagi_list *part, const bag_reader *bag, bags_row *row,
    bags_error *err) {
    const bag_reader *from = NULL;
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    size_t used = 0;
    if (reader->shards[shard].split)
        return BAGS_OK;
    bags_code code = bagi_row_refs(reader, row, &refs, &marks, err);
    if (!code)
        code = bagi_reader_bag(reader, shard, reader->spec.count, &from, err);
    if (!code)
        code = bagi_wants_read(from, part, &row->scratch, &used, err);
    for (size_t i = 0; i < part->count && !code; i++) {
        bagi_want *want = &bagi_wants(part)[i];
        uint64_t local = want->index;
        code = bagi_reader_parse(reader, shard, local,
            bagi_want_view(want, &row->scratch), refs, err);
        if (!code)
            code = bagi_reader_check_ref(
                reader, shard, local, field, &refs[field], bag, err);
        if (code)
            return code;
        want->index = refs[field].first;
        want->data = NULL;
    }
    if (!code)
        bagi_wants_sort(bagi_wants(part), part->count);
    return code;
}

static bags_code bagi_many_part(const bags_reader *reader, size_t field,
    const bagi_list *part, bags_row *row, size_t *used, bags_error *err) {
    const bag_reader *bag = NULL;
    size_t shard = (size_t)row->shard;
    bagi_want *wants = bagi_wants(part);
    for (size_t i = 0; i < part->count; i++)
        wants[i].index -= reader->shards[shard].start;
    bags_code code = bagi_reader_bag(reader, shard, field, &bag, err);
    if (!code)
        code = bagi_many_refs(reader, shard, field, part, bag, row, err);
    return code ? code
                : bagi_wants_read(bag, part, &row->slots[0].data, used, err);
}

BAGS_API bags_code bags_reader_get_many(const bags_reader *reader,
    const uint64_t *indices, size_t count, size_t field, bags_row *row,
    bags_error *err) {
    bagi_list list = {NULL, 0, 0}, part;
    size_t used = 0;
    bagi_row_start(reader, row);
    bags_code code = bagi_many_check(reader, field, err);
    if (!code)
        code = bagi_many_list(reader, indices, count, row, &list, err);
    if (!code)
        code = bagi_row_slots(row, 1, err);
    if (code)
        return code;
    struct bagi_slot *slot = &row->slots[0];
    slot->length = 0;
    code = bagi_slot_items(row, slot, count, err);
    for (size_t i = 0; i < count && !code; i += part.count) {
        part = bagi_many_shard(reader, &list, i, row);
        code = bagi_many_part(reader, field, &part, row, &used, err);
    }
    if (code)
        return bagi_many_blame(
            reader, field, indices, 0, count, row, code, err);
    const bagi_want *wants = bagi_wants(&list);
    for (size_t i = 0; i < count; i++)
        slot->items[wants[i].place] = bagi_want_view(&wants[i], &slot->data);
    slot->field = field;
    slot->length = count;
    row->index = count ? indices[0] : 0;
    row->length = 1;
    return BAGS_OK;
}

/* ---- reading ahead ---- */

/* What must be read of a shard before what: each step waits for the one before,
 * for all datapoints. */
typedef enum bagi_step {
    BAGI_STEP_REFS_TABLE,
    BAGI_STEP_REFS,
    BAGI_STEP_TABLES,
    BAGI_STEP_BLOBS,
    BAGI_STEPS
} bagi_step;

/* One step for one field of a datapoint. */
static bags_code bagi_ahead_field(const bags_reader *reader, size_t shard,
    uint64_t local, const bags_select *select, const bagi_ref *ref,
    bagi_step step, bagi_ahead *ahead, bags_error *err) {
    const bag_reader *bag = NULL;
    bagi_steps steps;
    bags_code code = bagi_select_steps(reader, select, ref, &steps, err);
    if (!code)
        code = bagi_reader_bag(reader, shard, select->field, &bag, err);
    if (!code)
        code = bagi_reader_check_ref(
            reader, shard, local, select->field, ref, bag, err);
    /* Steps of more than one are read as one range, if they are short. */
    uint64_t each = steps.step < 8 || steps.count < 2
                        ? (steps.count - 1) * steps.step + 1
                        : 1;
    for (uint64_t i = 0; i < steps.count && !code;
         i += each > 1 ? steps.count : 1) {
        uint64_t first = steps.first + i * steps.step;
        if (step == BAGI_STEP_TABLES)
            bagi_ahead_table(ahead, bag, first, each);
        else
            code = bagi_ahead_blobs(ahead, bag, first, each, err);
    }
    return code;
}

/* One step for one datapoint: of its refs, or of one of its fields. */
static bags_code bagi_ahead_datapoint(const bags_reader *reader, uint64_t index,
    const bags_select *select, bagi_step step, bags_row *row, bagi_ahead *ahead,
    bags_error *err) {
    const bag_reader *from = NULL;
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    size_t shard = bagi_reader_shard_of(reader, index, row->shard);
    uint64_t local = index - reader->shards[shard].start;
    row->shard = shard;
    if (step >= BAGI_STEP_TABLES) {
        bags_code code = bagi_row_refs(reader, row, &refs, &marks, err);
        if (!code)
            code = bagi_reader_refs(reader, shard, local, row, refs, err);
        return code ? code
                    : bagi_ahead_field(reader, shard, local, select,
                          &refs[select->field], step, ahead, err);
    }
    if (reader->shards[shard].split)
        return BAGS_OK;
    bags_code code =
        bagi_reader_bag(reader, shard, reader->spec.count, &from, err);
    if (code || step == BAGI_STEP_REFS)
        return code ? code : bagi_ahead_blobs(ahead, from, local, 1, err);
    bagi_ahead_table(ahead, from, local, 1);
    return BAGS_OK;
}

static bags_code bagi_ahead_step(const bags_reader *reader,
    const bagi_list *list, const bags_select *select, bagi_step step,
    bags_row *row, bags_error *err) {
    bagi_ahead ahead;
    bags_code code = BAGS_OK;
    memset(&ahead, 0, sizeof ahead);
    for (size_t i = 0; i < list->count && !code; i++) {
        uint64_t index = bagi_wants(list)[i].index;
        code =
            bagi_ahead_datapoint(reader, index, select, step, row, &ahead, err);
        if (code)
            bagi_prefix(err, code, "datapoint %" PRIu64 ": ", index);
    }
    bagi_ahead_ask(&ahead);
    return code;
}

BAGS_API bags_code bags_reader_prefetch(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count, bags_row *row, bags_error *err) {
    bagi_list list = {NULL, 0, 0};
    bagi_row_start(reader, row);
    bags_code code = bagi_many_list(reader, indices, count, row, &list, err);
    if (!selects)
        select_count = reader->spec.count;
    for (int step = BAGI_STEP_REFS_TABLE; step < BAGI_STEPS && !code; step++) {
        size_t times = step < BAGI_STEP_TABLES ? 1 : select_count;
        for (size_t i = 0; i < times && !code; i++) {
            bags_select select = bags_whole(i);
            if (selects && step >= BAGI_STEP_TABLES)
                select = selects[i];
            code =
                step >= BAGI_STEP_TABLES && select.field >= reader->spec.count
                    ? bagi_fail_no_field(reader, select.field, err)
                    : bagi_ahead_step(
                          reader, &list, &select, (bagi_step)step, row, err);
        }
    }
    return code;
}

/* ---- columns ---- */

#define BAGI_COLUMN_STEP 4096 /* rows of refs a read */

BAGI_COLD static bags_code bagi_fail_column(const bags_reader *reader,
    size_t shard, uint64_t local, uint64_t first, bags_error *err) {
    char *dir = bagi_reader_shard_path(reader, &reader->shards[shard], NULL);
    bags_fail(err, BAGS_ERROR_RANGE,
        "%s: datapoint %" PRIu64 " has blob %" PRIu64
        ": they do not lie in the "
        "order of the datapoints, and are no column",
        dir ? bagi_tail(dir) : "", local, first);
    bagi_free_text(&reader->env.memory, dir);
    return BAGS_ERROR_RANGE;
}

/* Check that blob i of the field is datapoint i's, for `length` datapoints. What
 * was found out once is remembered for all threads. */
static bags_code bagi_column_check(const bags_reader *reader, size_t shard,
    size_t field, uint64_t length, const bag_reader *bag, bags_row *row,
    bags_error *err) {
    const bag_reader *from = NULL;
    bagi_ref *refs = NULL;
    unsigned char *marks = NULL;
    bags_range range;
    bagi_ref all = {0, length};
    if (BAGI_ATOMIC && BAGI_LOAD(&((bag_reader *)(uintptr_t)bag)->consecutive))
        return BAGS_OK;
    bags_code code = BAGS_OK;
    if (reader->shards[shard].split)
        return bagi_reader_check_ref(reader, shard, 0, field, &all, bag, err);
    code = bagi_row_refs(reader, row, &refs, &marks, err);
    if (!code)
        code = bagi_reader_bag(reader, shard, reader->spec.count, &from, err);
    for (uint64_t i = 0; i < length && !code; i++) {
        uint64_t at = i % BAGI_COLUMN_STEP;
        if (at == 0)
            code = bag_reader_get_range(
                from, i, i + BAGI_COLUMN_STEP, &row->scratch, &range, err);
        if (!code)
            code = bagi_reader_parse(reader, shard, i,
                bags_range_get(&range, (size_t)at), refs, err);
        if (!code)
            code = bagi_reader_check_ref(
                reader, shard, i, field, &refs[field], bag, err);
        if (!code && refs[field].first != i)
            code = bagi_fail_column(reader, shard, i, refs[field].first, err);
    }
    if (!code && BAGI_ATOMIC)
        BAGI_STORE(&((bag_reader *)(uintptr_t)bag)->consecutive,
            (void *)(uintptr_t)bag);
    return code;
}

/* The size of every blob of a range; 0 if they differ. */
static uint64_t bagi_range_item(const bags_range *range) {
    uint64_t last = range->start, first = 0;
    bool same = true;
    for (size_t i = 0; i < range->length; i++) {
        uint64_t end = bagi_load_u64(range->ends + 8 * i);
        if (i == 0)
            first = end - last;
        same &= end - last == first;
        last = end;
    }
    return same ? first : 0;
}

/* A range's ends as the program's own integers, from 0 on: where they lie, if
 * that is what lies there. */
static bags_code bagi_column_offsets(const bag_reader *bag,
    const bags_range *range, bags_row *row, const uint64_t **out,
    bags_error *err) {
    const unsigned char *table = bag->view.table;
    if (table && bags_little_endian() && (uintptr_t)table % 8 == 0) {
        *out = (const uint64_t *)(const void *)table;
        return BAGS_OK;
    }
    if (range->length > SIZE_MAX / 16)
        return bagi_fail_memory(err, SIZE_MAX);
    bags_code code =
        bags_buffer_reserve(&row->list, 8 * range->length + 8, err);
    if (code)
        return code;
    uint64_t *offsets = (uint64_t *)(void *)row->list.data;
    offsets[0] = 0;
    for (size_t i = 0; i < range->length; i++)
        offsets[i + 1] = bagi_load_u64(range->ends + 8 * i) - range->start;
    *out = offsets;
    return BAGS_OK;
}

static bags_code bagi_column_view(const bags_reader *reader, size_t shard,
    size_t field, bags_row *row, bags_column *out, bags_error *err) {
    const bag_reader *bag = NULL;
    static const uint64_t none[1] = {0};
    bags_range range;
    bags_column column;
    uint64_t length =
        bagi_shard_stop(reader, shard) - reader->shards[shard].start;
    memset(&column, 0, sizeof column);
    if (bagi_shard_blank(&reader->shards[shard])) {
        column.offsets = none;
        *out = column;
        return BAGS_OK;
    }
    bags_code code = bagi_reader_bag(reader, shard, field, &bag, err);
    if (!code)
        code = bagi_column_check(reader, shard, field, length, bag, row, err);
    if (!code)
        code = bag_reader_get_range(bag, 0, length, &row->scratch, &range, err);
    if (code)
        return code;
    column.data = range.data;
    column.length = length;
    column.size = range.size;
    column.item_size = bagi_range_item(&range);
    if (!column.item_size)
        code = bagi_column_offsets(bag, &range, row, &column.offsets, err);
    if (!code)
        *out = column;
    return code;
}

BAGS_API bags_code bags_reader_column(const bags_reader *reader, uint64_t shard,
    size_t field, bags_row *row, bags_column *out, bags_error *err) {
    bagi_row_start(reader, row);
    bags_code code = bagi_many_check(reader, field, err);
    if (!code && shard >= reader->count)
        code = bags_fail(err, BAGS_ERROR_RANGE,
            "%s: there is no shard %" PRIu64 "; it has %" PRIu64,
            bagi_tail(reader->path), shard, (uint64_t)reader->count);
    if (code)
        return code;
    code = bagi_column_view(reader, (size_t)shard, field, row, out, err);
    return code ? bagi_prefix(err, code,
                      "field \"%.200s\": ", reader->spec.fields[field].name)
                : BAGS_OK;
}

/* ---- what a row gives ---- */

BAGS_API bags_code bags_row_value(bags_row *row, size_t slot, size_t item,
    bags_buffer *scratch, bags_value *out, bags_error *err) {
    if (item >= bags_row_length(row, slot))
        return bags_fail(err, BAGS_ERROR_RANGE,
            "the row has no item %" PRIu64 " in slot %" PRIu64, (uint64_t)item,
            (uint64_t)slot);
    const bags_reader *reader = row->reader;
    struct bagi_slot *from = &row->slots[slot];
    if (!scratch)
        scratch = &from->value;
    bagi_buffer_adopt(scratch, &reader->env.memory);
    bags_code code = bagi_decode(&reader->env.memory, &reader->spec,
        from->field, from->items[item], scratch, out, err);
    if (!code)
        return BAGS_OK;
    /* Of a plain field the items of a row are datapoints. */
    uint64_t index = row->index;
    if (reader->spec.types[from->field].sequence)
        bagi_prefix(err, code, "item %" PRIu64 ": ", (uint64_t)item);
    else
        index += item;
    bagi_prefix_datapoint(reader, index, from->field, code, err);
    return bagi_prefix(err, code, "%s: ", bagi_tail(reader->path));
}

/* ========================================================================
 * >>verify
 * Checks that go on behind a fault, in blocks, so that memory does not grow with
 * the files. A Bag's table and a shard's refs are checked here for
 * bag_reader_verify and bags_reader_verify too, which end at the first fault.
 * ====================================================================== */

#define BAGI_VERIFY_STEP ((size_t)8192)       /* entries read at once */
#define BAGI_VERIFY_WINDOW ((size_t)64 << 10) /* bytes of refs read at once */
#define BAGI_VERIFY_FAULTS 1000               /* passed on if not said else */
#define BAGI_VERIFY_UNKNOWN UINT64_MAX        /* length of a Bag not opened */
#define BAGI_VERIFY_TOLD ((size_t)4096)       /* blobs of a Bag remembered */

typedef struct bagi_verifying {
    const bagi_env *env;
    bags_verify_options options;
    bags_verify_report report;
    const char *path, *field; /* what is being looked at, for bags_fault */
    bool first_only;          /* end at the first fault */
    bool broken;              /* the file could not be read on */
    bool summed;              /* the shard has checksums: every Bag must */
    bool any_spec;            /* its spec.json could not be read */
    bool moved;               /* the Bag's table is known to be wrong */
    uint64_t *told;           /* the Bag's blobs that a fault was told of, in
                                 order; NULL: none of any Bag yet */
    size_t told_count;
    uint32_t spec;          /* CRC of it */
    unsigned char *entries; /* a block of a table; NULL: not needed yet */
    bags_buffer window;     /* some bytes of refs.bag, or a blob */
    bags_buffer scratch;    /* of codecs */
    bags_code code;         /* of the first fault */
    bags_error *err;        /* which is written there */
    bags_error why;
} bagi_verifying;

static void bagi_verify_start(bagi_verifying *v, const bagi_env *env,
    const bags_verify_options *options, bags_error *err) {
    memset(v, 0, sizeof *v);
    v->env = env;
    v->err = err;
    if (options)
        v->options = *options;
    if (!v->options.parts)
        v->options.parts = 1;
    if (!v->options.shard_stop)
        v->options.shard_stop = 1;
    if (!v->options.max_faults)
        v->options.max_faults = BAGI_VERIFY_FAULTS;
    bagi_buffer_adopt(&v->window, &env->memory);
    bagi_buffer_adopt(&v->scratch, &env->memory);
}

static void bagi_verify_end(bagi_verifying *v) {
    bagi_free(&v->env->memory, v->entries, (BAGI_VERIFY_STEP + 1) * 8);
    bagi_free(&v->env->memory, v->told, BAGI_VERIFY_TOLD * sizeof *v->told);
    bags_buffer_free(&v->window);
    bags_buffer_free(&v->scratch);
}

/* Where a fault's message is to be written: nowhere, if there were so many that
 * nobody will see it. */
static bags_error *bagi_verify_why(bagi_verifying *v) {
    return v->report.faults < v->options.max_faults ? &v->why : NULL;
}

/* Pass a fault on whose message is written. BAGS_OK: go on. */
static bags_code bagi_verify_tell(bagi_verifying *v, bags_code code,
    bags_fault_kind kind, uint64_t index, uint64_t item, uint64_t offset) {
    bool heard = bagi_verify_why(v) != NULL;
    v->report.faults++;
    if (!v->code) {
        v->code = code;
        if (v->err)
            *v->err = v->why;
    }
    if (heard && v->options.each) {
        bags_fault fault = {
            v->path, v->field, kind, index, item, offset, code, v->why.message};
        v->options.each(v->options.user, &fault);
    }
    return v->first_only ? code : BAGS_OK;
}

/* The same for a file, or a part of it that cannot be read. Without memory
 * nothing can be said of it: that ends the work. */
static bags_code bagi_verify_fail(
    bagi_verifying *v, bags_code code, uint64_t offset) {
    v->broken = true;
    if (code != BAGS_ERROR_MEMORY)
        return bagi_verify_tell(v, code, BAGS_FAULT_FILE, 0, 0, offset);
    if (v->err)
        *v->err = v->why;
    return code;
}

static void bagi_verify_read(bagi_verifying *v, uint64_t bytes) {
    v->report.bytes += bytes;
    if (v->options.progress)
        v->options.progress(v->options.user, bytes);
}

/* ---- a Bag ----
 *
 * One thing that is wrong can be seen at several places: a blob that has changed,
 * by its checksum and by its codec; a wrong entry of a table, at the two blobs
 * beside it. It is told where it is seen first. */

static void bagi_verify_begin_bag(bagi_verifying *v) {
    v->broken = v->moved = false;
    v->told_count = 0;
}

/* How many blobs below this one a fault was told of. */
static size_t bagi_verify_told_below(const bagi_verifying *v, uint64_t blob) {
    size_t low = 0, high = v->told_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->told[middle] < blob)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether what is wrong with a blob has been told. */
static bool bagi_verify_is_told(const bagi_verifying *v, uint64_t blob) {
    uint64_t around = v->moved ? 1 : 0;
    size_t at = bagi_verify_told_below(v, blob < around ? 0 : blob - around);
    return at < v->told_count && v->told[at] <= blob + around;
}

/* Remember it. Of very many, the first: the others may be told twice. */
static bags_code bagi_verify_note(bagi_verifying *v, uint64_t blob) {
    if (!v->told)
        v->told = (uint64_t *)bagi_alloc_raw(
            &v->env->memory, BAGI_VERIFY_TOLD * sizeof *v->told, &v->why);
    if (!v->told)
        return bagi_verify_fail(v, BAGS_ERROR_MEMORY, 0);
    size_t at = bagi_verify_told_below(v, blob);
    if (v->told_count == BAGI_VERIFY_TOLD ||
        (at < v->told_count && v->told[at] == blob))
        return BAGS_OK;
    memmove(v->told + at + 1, v->told + at,
        (v->told_count++ - at) * sizeof *v->told);
    v->told[at] = blob;
    return BAGS_OK;
}

/* Tell of a blob of the Bag, by itself or by the datapoint that it is. */
static bags_code bagi_verify_tell_blob(bagi_verifying *v, bags_code code,
    uint64_t blob, bags_fault_kind kind, uint64_t index, uint64_t item,
    uint64_t offset) {
    code = bagi_verify_tell(v, code, kind, index, item, offset);
    return code ? code : bagi_verify_note(v, blob);
}

/* A walk along a Bag's table, a blob a step. */
typedef struct bagi_walk {
    const bag_reader *bag;
    uint64_t next, stop;       /* blobs to come */
    uint64_t block, loaded;    /* the entries that are at hand */
    const unsigned char *ends; /* the end of blob `block` */
    bool lost;                 /* the entry before lies outside the data */
    /* The blob of this step. */
    uint64_t index, from, to;
    bool wrong;  /* its end cannot be right */
    bool usable; /* neither its end nor its start is wrong */
} bagi_walk;

static bagi_walk bagi_walk_along(
    const bag_reader *bag, uint64_t start, uint64_t stop) {
    bagi_walk walk;
    memset(&walk, 0, sizeof walk);
    walk.bag = bag;
    walk.next = walk.block = walk.loaded = start;
    walk.stop = stop;
    return walk;
}

/* Have the next entries at hand. */
static bags_code bagi_walk_load(bagi_verifying *v, bagi_walk *walk) {
    const bag_reader *bag = walk->bag;
    uint64_t count = walk->stop - walk->next;
    bags_code code = BAGS_OK;
    if (count > BAGI_VERIFY_STEP)
        count = BAGI_VERIFY_STEP;
    if (bag->ends) {
        walk->ends = bag->ends + walk->next * 8;
    } else {
        if (!v->entries)
            v->entries = (unsigned char *)bagi_alloc_raw(
                &v->env->memory, (BAGI_VERIFY_STEP + 1) * 8, &v->why);
        if (!v->entries)
            return BAGS_ERROR_MEMORY;
        walk->ends = v->entries + 8;
        code = bagi_bag_entries(
            bag, walk->next, (size_t)count, v->entries, &v->why);
        bagi_verify_read(v, code ? 0 : count * 8);
    }
    if (code)
        return code;
    if (walk->next == walk->loaded && walk->next == walk->block)
        walk->to = walk->next ? bagi_load_u64(walk->ends - 8) : 0;
    walk->block = walk->next;
    walk->loaded = walk->next + count;
    return BAGS_OK;
}

/*
 * One step. A wrong entry is one fault: the blob behind it is just not usable.
 * If it lies outside the data, the next is measured from the last inside; if it
 * is smaller than the one before, which of the two is wrong cannot be told, and
 * the next is measured from it.
 */
static bags_code bagi_walk_step(bagi_verifying *v, bagi_walk *walk) {
    uint64_t limit = walk->bag->limit;
    if (walk->next == walk->loaded) {
        bags_code code = bagi_walk_load(v, walk);
        if (code)
            return code;
    }
    if (!walk->lost)
        walk->from = walk->to;
    walk->index = walk->next++;
    walk->to = bagi_load_u64(walk->ends + 8 * (walk->index - walk->block));
    walk->usable = !walk->wrong;
    walk->wrong = walk->from > walk->to || walk->to > limit;
    walk->usable = walk->usable && !walk->wrong;
    walk->lost = walk->to > limit;
    return BAGS_OK;
}

/* What is read when the walk cannot go on. */
static bags_code bagi_walk_fail(
    bagi_verifying *v, const bagi_walk *walk, bags_code code) {
    return bagi_verify_fail(v, code, walk->bag->table + 8 * walk->next);
}

static bags_code bagi_verify_entries(
    bagi_verifying *v, const bag_reader *bag, uint64_t start, uint64_t stop) {
    bagi_walk walk = bagi_walk_along(bag, start, stop);
    while (walk.next < stop) {
        bags_code code = bagi_walk_step(v, &walk);
        if (code)
            return bagi_walk_fail(v, &walk, code);
        if (BAGI_UNLIKELY(walk.wrong)) {
            v->moved = true;
            code = bagi_bag_fail_bounds(
                bag, walk.index, walk.from, walk.to, bagi_verify_why(v));
            code = bagi_verify_tell_blob(v, code, walk.index, BAGS_FAULT_BLOB,
                walk.index, 0, bag->table + 8 * walk.index);
            if (code)
                return code;
        }
    }
    return BAGS_OK;
}

static bags_code bagi_verify_table(bagi_verifying *v, const bag_reader *bag) {
    uint64_t length = bag->length;
    bagi_verify_begin_bag(v);
    if (!v->options.quick || length < 3)
        return bagi_verify_entries(v, bag, 0, length);
    bags_code code = bagi_verify_entries(v, bag, 0, 1);
    return code || v->broken ? code
                             : bagi_verify_entries(v, bag, length - 1, length);
}

/* Entries that lie over each other can make every byte that of many blobs: what
 * is looked into is bounded, as when rows are read. */
static bool bagi_verify_spend(
    bagi_verifying *v, const bag_reader *bag, uint64_t *budget, uint64_t size) {
    if (size <= *budget) {
        *budget -= size;
        return true;
    }
    bags_fail(bagi_verify_why(v), BAGS_ERROR_CORRUPT,
        "%s: its blobs lie over each other; not all were looked into",
        bagi_tail(bag->file.path));
    return false;
}

/* For bagi_sums_verify. That all entries or all checksums together are not what
 * they were needs no word where a blob has told it. */
static bags_code bagi_verify_take(void *user, uint64_t blob, uint64_t offset,
    bool changed, const bags_error *fault) {
    bagi_verifying *v = (bagi_verifying *)user;
    bool whole = blob == BAGI_NO_BLOB;
    v->moved = v->moved || (changed && !whole);
    if (whole ? changed && v->told_count : bagi_verify_is_told(v, blob))
        return BAGS_OK;
    v->why = *fault;
    return whole
               ? bagi_verify_tell(v, fault->code, BAGS_FAULT_FILE, 0, 0, offset)
               : bagi_verify_tell_blob(
                     v, fault->code, blob, BAGS_FAULT_BLOB, blob, 0, offset);
}

static bagi_bag_options bagi_verify_sums_options(
    const bagi_verifying *v, const bag_reader *bag) {
    bagi_bag_options how;
    memset(&how, 0, sizeof how);
    how.where = !v->field    ? BAGI_ALONE
                : bag->split ? BAGI_SPLIT
                             : BAGI_WITH_REFS;
    how.name = v->field;
    how.spec = v->spec;
    how.any_spec = v->any_spec;
    how.no_mmap = true;
    return how;
}

/* A Bag that, by its checksums, had more blobs or bytes, or fewer: its table is
 * read from the wrong place, and what it says is nothing to go on from. */
static bags_code bagi_verify_shape(bagi_verifying *v, const bag_reader *bag) {
    bagi_bag_options how = bagi_verify_sums_options(v, bag);
    bag_reader *owner =
        (bag_reader *)(uintptr_t)bag; /* by position: unchanged */
    bool exist = false;
    bagi_sums sums;
    memset(&sums, 0, sizeof sums);
    bags_code code = bagi_sums_exist(bag, &exist, &v->why);
    if (!code && exist)
        code = bagi_sums_open(owner, &sums, &how, &v->why);
    bagi_sums_close(owner, &sums);
    if (!sums.other) /* other failures are told when the blobs are compared */
        return code == BAGS_ERROR_MEMORY ? bagi_verify_fail(v, code, 0)
                                         : BAGS_OK;
    v->report.bags++;
    v->report.checksums++;
    v->report.files++;
    return bagi_verify_fail(v, code, 0);
}

/* Compare a Bag with its checksums, if it has or must have any. */
static bags_code bagi_verify_bag_sums(
    bagi_verifying *v, const bag_reader *bag) {
    uint64_t faults = v->report.faults;
    bool exist = false;
    bagi_bag_options how = bagi_verify_sums_options(v, bag);
    bags_code code = bagi_sums_exist(bag, &exist, &v->why);
    v->report.bags++;
    v->report.checksums += exist;
    if (!code && !exist && !(v->field && v->summed))
        return BAGS_OK;
    if (!code)
        code = bagi_sums_verify(bag, &how, bagi_verify_take, v, &v->why);
    if (code && v->report.faults == faults)
        return bagi_verify_fail(v, code, 0);
    v->report.files += exist;
    bagi_verify_read(v, bag->limit);
    return code;
}

static bags_code bagi_bag_verify(const bag_reader *reader, bags_error *err) {
    bagi_verifying v;
    bagi_verify_start(&v, reader->env, NULL, err);
    v.first_only = true;
    bags_code code = bagi_verify_table(&v, reader);
    if (!code)
        code = bagi_verify_bag_sums(&v, reader);
    bagi_verify_end(&v);
    return code;
}

/* ---- refs ---- */

/* A shard's rows of refs, and what they are measured by. */
typedef struct bagi_rows {
    const bagi_spec *spec;
    const bag_reader *bag;
    uint64_t *lengths; /* blobs of every field */
    bagi_ref *refs;    /* of one row */
    size_t most;       /* no right row is longer */
    uint64_t budget;   /* bytes that may still be looked into */
    uint64_t at;       /* what the window holds: `held` bytes from here */
    size_t held;
} bagi_rows;

static bags_code bagi_rows_start(bagi_verifying *v, bagi_rows *rows,
    const bagi_spec *spec, const bag_reader *bag) {
    const bags_allocator *memory = &v->env->memory;
    memset(rows, 0, sizeof *rows);
    rows->spec = spec;
    rows->bag = bag;
    rows->most = 5 + 23 * spec->count;
    rows->lengths = (uint64_t *)bagi_alloc(
        memory, spec->count * sizeof *rows->lengths, v->err);
    rows->refs = (bagi_ref *)bagi_alloc(
        memory, spec->count * sizeof *rows->refs, v->err);
    return rows->lengths && rows->refs ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static void bagi_rows_end(bagi_verifying *v, bagi_rows *rows) {
    size_t count = rows->spec->count;
    bagi_free(&v->env->memory, rows->lengths, count * sizeof *rows->lengths);
    bagi_free(&v->env->memory, rows->refs, count * sizeof *rows->refs);
}

/* The bytes of a row; of one that is too long, one more than a right one has,
 * which shows it. They are read many rows at a time. */
static bags_code bagi_rows_bytes(
    bagi_verifying *v, bagi_rows *rows, const bagi_walk *walk, bags_view *row) {
    const bag_reader *bag = rows->bag;
    uint64_t size = walk->to - walk->from;
    row->size = size > rows->most ? rows->most + 1 : (size_t)size;
    if (!bagi_verify_spend(v, bag, &rows->budget, row->size + 1))
        return BAGS_ERROR_CORRUPT;
    if (bag->data) {
        row->data = bag->data + walk->from;
        return BAGS_OK;
    }
    if (!v->window.data || walk->from < rows->at ||
        walk->from + row->size > rows->at + rows->held) {
        uint64_t more = bag->limit - walk->from;
        size_t wish =
            row->size > BAGI_VERIFY_WINDOW ? row->size : BAGI_VERIFY_WINDOW;
        rows->held = 0;
        wish = more < wish ? (size_t)more : wish;
        if (!bagi_verify_spend(v, bag, &rows->budget, wish))
            return BAGS_ERROR_CORRUPT;
        bags_code code = bags_buffer_reserve(&v->window, wish + 1, &v->why);
        if (!code)
            code = bagi_file_read(
                bag, &bag->file, walk->from, v->window.data, wish, &v->why);
        if (code)
            return code;
        bagi_verify_read(v, wish);
        rows->at = walk->from;
        rows->held = wish;
    }
    row->data = v->window.data + (walk->from - rows->at);
    return BAGS_OK;
}

static bags_code bagi_rows_tell(bagi_verifying *v, const bagi_rows *rows,
    const bagi_walk *walk, size_t field, const char *what) {
    bags_code code = bagi_fail_refs_in(
        v->path, rows->spec, walk->index, field, what, bagi_verify_why(v));
    return bagi_verify_tell_blob(
        v, code, walk->index, BAGS_FAULT_DATAPOINT, walk->index, 0, walk->from);
}

/* Check that the blobs that a row names are there. */
static bags_code bagi_rows_fit(
    bagi_verifying *v, const bagi_rows *rows, const bagi_walk *walk) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < rows->spec->count && !code; i++) {
        char what[160];
        const bagi_ref *ref = &rows->refs[i];
        if (rows->lengths[i] == BAGI_VERIFY_UNKNOWN ||
            bagi_ref_fits(ref, rows->lengths[i]))
            continue;
        if (bagi_verify_why(v))
            (void)snprintf(what, sizeof what, BAGI_REF_FAULT, ref->first,
                ref->count, rows->lengths[i]);
        code = bagi_rows_tell(v, rows, walk, i, what);
    }
    return code;
}

static bags_code bagi_rows_one(
    bagi_verifying *v, bagi_rows *rows, const bagi_walk *walk) {
    bags_view row = {NULL, 0};
    size_t field = 0;
    bags_code code = bagi_rows_bytes(v, rows, walk, &row);
    if (code)
        return bagi_verify_fail(v, code, walk->from);
    const char *fault = bagi_refs_parse(
        row, rows->spec->types, rows->spec->count, rows->refs, &field);
    return fault ? bagi_rows_tell(v, rows, walk, field, fault)
                 : bagi_rows_fit(v, rows, walk);
}

static bags_code bagi_rows_some(
    bagi_verifying *v, bagi_rows *rows, uint64_t start, uint64_t stop) {
    bagi_walk walk = bagi_walk_along(rows->bag, start, stop);
    bags_code code = BAGS_OK;
    while (walk.next < stop && !code && !v->broken) {
        code = bagi_walk_step(v, &walk);
        if (code)
            return bagi_walk_fail(v, &walk, code);
        if (walk.usable && !bagi_verify_is_told(v, walk.index))
            code = bagi_rows_one(v, rows, &walk);
    }
    return code;
}

/* A byte more for every row, so that empty ones count too. */
static uint64_t bagi_rows_budget(const bag_reader *bag) {
    uint64_t budget = bagi_slot_budget(bag);
    return budget > UINT64_MAX - bag->length ? UINT64_MAX
                                             : budget + bag->length;
}

/* Rows whose place the table does not tell are passed over: it has been said. */
static bags_code bagi_verify_rows(bagi_verifying *v, bagi_rows *rows) {
    uint64_t length = rows->bag->length;
    v->broken = false;
    rows->budget = bagi_rows_budget(rows->bag);
    if (!v->options.quick || length < 3)
        return bagi_rows_some(v, rows, 0, length);
    bags_code code = bagi_rows_some(v, rows, 0, 1);
    return code || v->broken ? code
                             : bagi_rows_some(v, rows, length - 1, length);
}

/* ---- an open dataset ---- */

/* How a Bag of a shard is compared with its checksums. */
static bagi_bag_options bagi_verify_how(
    const bags_reader *reader, size_t shard, size_t field) {
    bagi_bag_options how =
        bagi_reader_bag_options(reader, &reader->shards[shard], NULL);
    how.name = bagi_reader_field_name(reader, field);
    return how;
}

/* Whether a Bag of a shard has checksums. */
static bags_code bagi_shard_summed(
    const bags_reader *reader, size_t shard, bool *summed, bags_error *err) {
    size_t bags = reader->spec.count + !reader->shards[shard].split;
    const bag_reader *bag = NULL;
    bags_code code = BAGS_OK;
    *summed = false;
    if (bagi_shard_blank(&reader->shards[shard]))
        return BAGS_OK;
    for (size_t field = 0; field < bags && !code && !*summed; field++) {
        code = bagi_reader_bag(reader, shard, field, &bag, err);
        if (!code)
            code = bagi_sums_exist(bag, summed, err);
    }
    return code;
}

static bags_code bagi_reader_summed(
    const bags_reader *reader, uint64_t *shards, bags_error *err) {
    uint64_t count = 0;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < reader->count && !code; i++) {
        bool summed = false;
        code = bagi_shard_summed(reader, i, &summed, err);
        count += summed;
    }
    if (!code)
        *shards = count;
    return code;
}

/* ---- a shard ---- */

/* A shard that is being checked. Its work is in units: 0 the shard itself, then
 * a field each, then refs. */
typedef struct bagi_verify_shard {
    bagi_verifying *v;
    const char *dir;
    const bagi_spec *spec; /* NULL: not known */
    uint64_t place;        /* among the dataset's shards */
    bool split, no_refs;
} bagi_verify_shard;

/* Units of one shard go to different parts, and so do those of one field. */
static bool bagi_verify_mine(
    const bagi_verifying *v, uint64_t place, uint64_t unit) {
    uint64_t parts = v->options.parts;
    return (place % parts + unit % parts) % parts == v->options.part;
}

/* Open a Bag of the shard by position, into *bag, to be released. */
static bags_code bagi_verify_open(const bagi_verify_shard *s, const char *name,
    bool allow_empty, bag_reader *bag, bags_error *err) {
    const bagi_env *env = s->v->env;
    bagi_bag_options options = {s->split ? BAGI_SPLIT : BAGI_WITH_REFS, true,
        false, allow_empty, false, false, BAGS_ACCESS_DEFAULT, false, NULL, 0,
        false};
    memset(bag, 0, sizeof *bag);
    bag->env = env;
    char *path = bagi_print(&env->memory, err, "%s/%s.bag", s->dir, name);
    if (!path)
        return BAGS_ERROR_MEMORY;
    bags_code code = bagi_bag_open(bag, path, &options, err);
    bagi_free_text(&env->memory, path);
    return code;
}

/* Open refs, to name datapoints and to know whether Bags of 0 bytes may be
 * beside it. Whether it can be opened is asked by its own unit; here only a lack
 * of memory is a failure. */
static bags_code bagi_verify_open_refs(const bagi_verify_shard *s,
    bag_reader *refs, bool *opened, bool *allow_empty) {
    *opened = *allow_empty = false;
    memset(refs, 0, sizeof *refs);
    refs->env = s->v->env;
    if (s->split || s->no_refs)
        return BAGS_OK;
    bags_code code = bagi_verify_open(s, "refs", true, refs, &s->v->why);
    if (code == BAGS_ERROR_MEMORY)
        return bagi_verify_fail(s->v, code, 0);
    *opened = !code;
    *allow_empty = !code && (refs->v2 || refs->length == 0);
    return BAGS_OK;
}

/* ---- values ---- */

/* The blobs of a field that are decoded, and the datapoint that was found last
 * to have one of them. */
typedef struct bagi_values {
    const bagi_verify_shard *shard;
    const bag_reader *bag;
    const bag_reader *refs; /* NULL: there are none to be had */
    bagi_rows rows;         /* of refs, when the first is needed */
    size_t field;
    uint64_t datapoint;
    uint64_t budget;
} bagi_values;

/* What a datapoint has of the field; nothing if its row is not whole. */
static bagi_ref bagi_values_ref(bagi_values *values, uint64_t datapoint) {
    bagi_rows *rows = &values->rows;
    bagi_walk walk = bagi_walk_along(rows->bag, datapoint, datapoint + 1);
    unsigned char room[16];
    size_t field = 0;
    bags_view row = {NULL, 0};
    bagi_ref none = {0, 0};
    if (bagi_bag_entries(rows->bag, datapoint, 1, room, NULL) ||
        !bagi_bag_bounds(rows->bag, datapoint, room + 8, &walk.from, &walk.to))
        return none;
    if (bagi_rows_bytes(values->shard->v, rows, &walk, &row) ||
        bagi_refs_parse(
            row, rows->spec->types, rows->spec->count, rows->refs, &field))
        return none;
    return rows->refs[values->field];
}

/* The datapoint and item that a blob is. It looks forward only, so that all
 * blobs together cost one walk along refs. */
static bool bagi_values_owner(
    bagi_values *values, uint64_t blob, uint64_t *item) {
    values->rows.held = 0; /* the window has had a blob since */
    for (; values->datapoint < values->refs->length; values->datapoint++) {
        bagi_ref ref = bagi_values_ref(values, values->datapoint);
        if (ref.count == 0 || !bagi_ref_fits(&ref, values->bag->length) ||
            (ref.first <= blob && blob - ref.first >= ref.count))
            continue;
        *item = blob - ref.first;
        return ref.first <= blob;
    }
    return false;
}

/* Which datapoint's a blob is, as far as that can be told. */
static bags_code bagi_values_place(bagi_values *values, uint64_t blob,
    bags_fault_kind *kind, uint64_t *index, uint64_t *item) {
    bool found = values->shard->split;
    *index = blob;
    *item = 0;
    if (values->refs && !values->rows.bag) {
        bags_code code = bagi_rows_start(
            values->shard->v, &values->rows, values->shard->spec, values->refs);
        if (code)
            return code;
        values->rows.budget = bagi_rows_budget(values->refs);
    }
    if (values->refs) {
        found = bagi_values_owner(values, blob, item);
        *index = found ? values->datapoint : blob;
        *item = found ? *item : 0;
    }
    *kind = found ? BAGS_FAULT_DATAPOINT : BAGS_FAULT_BLOB;
    return BAGS_OK;
}

/* Tell of a blob that does not decode; v->why has the codec's words. */
static bags_code bagi_values_tell(
    bagi_values *values, const bagi_walk *walk, bags_code code) {
    bagi_verifying *v = values->shard->v;
    const char *path = bagi_tail(values->bag->file.path);
    bags_error why = v->why;
    bags_fault_kind kind = BAGS_FAULT_BLOB;
    uint64_t index = 0, item = 0;
    if (!bagi_verify_why(v))
        return bagi_verify_tell_blob(v, code, walk->index, kind, 0, 0, 0);
    if (bagi_values_place(values, walk->index, &kind, &index, &item))
        return BAGS_ERROR_MEMORY;
    v->why = why;
    if (kind == BAGS_FAULT_BLOB)
        bagi_prefix(&v->why, code, "%s: blob %" PRIu64 ": ", path, index);
    else if (values->shard->spec->types[values->field].sequence)
        bagi_prefix(&v->why, code,
            "%s: datapoint %" PRIu64 ", item %" PRIu64 ": ", path, index, item);
    else
        bagi_prefix(&v->why, code, "%s: datapoint %" PRIu64 ": ", path, index);
    return bagi_verify_tell_blob(
        v, code, walk->index, kind, index, item, walk->from);
}

/* One that is too large for memory is that blob's fault, not the end. */
static bags_code bagi_values_one(bagi_values *values, const bagi_walk *walk) {
    const bagi_verify_shard *s = values->shard;
    bagi_verifying *v = s->v;
    uint64_t size = walk->to - walk->from;
    bags_view blob = {NULL, 0};
    bags_value value;
    if (!bagi_verify_spend(v, values->bag, &values->budget, size))
        return bagi_verify_fail(v, BAGS_ERROR_CORRUPT, walk->from);
    bags_code code = size > SIZE_MAX / 2 ? bagi_fail_memory(&v->why, SIZE_MAX)
                                         : bags_buffer_reserve(&v->window,
                                               (size_t)size + 1, &v->why);
    if (code)
        return bagi_values_tell(values, walk, code);
    code = bagi_file_read(values->bag, &values->bag->file, walk->from,
        v->window.data, (size_t)size, &v->why);
    if (code)
        return bagi_verify_fail(v, code, walk->from);
    bagi_verify_read(v, size);
    blob.data = v->window.data;
    blob.size = (size_t)size;
    code = bagi_decode(&v->env->memory, s->spec, values->field, blob,
        &v->scratch, &value, &v->why);
    return code ? bagi_values_tell(values, walk, code) : BAGS_OK;
}

/* Whether the field's blobs can be decoded. Its codec may be missing, which is
 * no fault of the files; or refuse the type's arguments, which is one. */
static bags_code bagi_values_ready(const bagi_values *values, bool *ready) {
    bagi_verifying *v = values->shard->v;
    const bagi_spec *spec = values->shard->spec;
    const bagi_coder *coder = &spec->coders[values->field];
    *ready = coder->ready && coder->codec->decode;
    if (*ready || !coder->codec || coder->ready) {
        v->report.undecoded += *ready ? 0 : values->bag->length;
        return BAGS_OK;
    }
    bags_code code =
        bagi_coder_fail(&v->env->memory, spec, values->field, &v->why);
    bagi_prefix(&v->why, code, "%s: ", bagi_tail(values->bag->file.path));
    return bagi_verify_fail(v, code, 0);
}

static bags_code bagi_values_all(bagi_values *values) {
    bagi_verifying *v = values->shard->v;
    bagi_walk walk = bagi_walk_along(values->bag, 0, values->bag->length);
    bool ready = false;
    bags_code code = bagi_values_ready(values, &ready);
    while (ready && walk.next < walk.stop && !code && !v->broken) {
        code = bagi_walk_step(v, &walk);
        if (code)
            return bagi_walk_fail(v, &walk, code);
        if (walk.usable && !bagi_verify_is_told(v, walk.index))
            code = bagi_values_one(values, &walk);
    }
    return code;
}

static bags_code bagi_verify_values(const bagi_verify_shard *s, size_t field,
    const bag_reader *bag, const bag_reader *refs) {
    bagi_values values;
    memset(&values, 0, sizeof values);
    values.shard = s;
    values.bag = bag;
    values.refs = refs;
    values.field = field;
    values.budget = bagi_slot_budget(bag);
    bags_code code = bagi_values_all(&values);
    if (values.rows.bag)
        bagi_rows_end(s->v, &values.rows);
    return code;
}

/* ---- the units of a shard ---- */

/* What is checked of every Bag that opens. */
static bags_code bagi_verify_bag(bagi_verifying *v, const bag_reader *bag) {
    v->report.files += 1 + bag->split;
    bagi_verify_begin_bag(v);
    bags_code code = v->options.quick ? BAGS_OK : bagi_verify_shape(v, bag);
    if (code || v->broken)
        return code;
    code = bagi_verify_table(v, bag);
    return code || v->broken || v->options.quick ? code
                                                 : bagi_verify_bag_sums(v, bag);
}

static bags_code bagi_verify_field(const bagi_verify_shard *s, size_t field) {
    bagi_verifying *v = s->v;
    bag_reader refs, bag;
    bool opened = false, allow_empty = false;
    v->field = s->spec->fields[field].name;
    bags_code code = bagi_verify_open_refs(s, &refs, &opened, &allow_empty);
    if (code)
        return code;
    code = bagi_verify_open(s, v->field, allow_empty, &bag, &v->why);
    if (code) {
        code = bagi_verify_fail(v, code, 0);
    } else {
        v->report.blobs += bag.length;
        code = bagi_verify_bag(v, &bag);
        if (!code && !v->broken && v->options.decode && !v->options.quick)
            code = bagi_verify_values(s, field, &bag, opened ? &refs : NULL);
        bagi_bag_release(&bag);
    }
    bagi_bag_release(&refs);
    return code;
}

/* How many blobs every field has; what cannot be opened is named by its own
 * unit, unless it was for this once: so it is tried again. *filled: one of them
 * has blobs in a Bag that no 0 bytes stand for. */
static bags_code bagi_verify_measure(const bagi_verify_shard *s,
    bagi_rows *rows, bool allow_empty, bool *filled) {
    bags_code code = BAGS_OK;
    *filled = false;
    for (size_t i = 0; i < s->spec->count && code != BAGS_ERROR_MEMORY; i++) {
        bag_reader bag;
        const char *name = s->spec->fields[i].name;
        code = bagi_verify_open(s, name, allow_empty, &bag, &s->v->why);
        if (code && s->v->why.system && code != BAGS_ERROR_MEMORY)
            code = bagi_verify_open(s, name, allow_empty, &bag, &s->v->why);
        rows->lengths[i] = code ? BAGI_VERIFY_UNKNOWN : bag.length;
        *filled = *filled || (!code && !bag.v2 && bag.length > 0);
        bagi_bag_release(&bag);
    }
    return code == BAGS_ERROR_MEMORY ? bagi_verify_fail(s->v, code, 0)
                                     : BAGS_OK;
}

/* Without refs, all fields must have as many blobs. */
static bags_code bagi_verify_split(
    const bagi_verify_shard *s, bagi_rows *rows) {
    bagi_verifying *v = s->v;
    bool filled = false;
    size_t least = 0, most = 0;
    bags_code code = bagi_verify_measure(s, rows, false, &filled);
    for (size_t i = 0; i < s->spec->count && !code; i++) {
        if (rows->lengths[i] == BAGI_VERIFY_UNKNOWN)
            return BAGS_OK;
        least = rows->lengths[i] < rows->lengths[least] ? i : least;
        most = rows->lengths[i] > rows->lengths[most] ? i : most;
    }
    if (code || s->spec->count == 0)
        return code;
    v->report.datapoints += rows->lengths[least];
    if (least == most || v->options.unfinished == BAGS_UNFINISHED_SKIP)
        return BAGS_OK;
    bags_fail(bagi_verify_why(v), BAGS_ERROR_UNFINISHED,
        "%s: the fields are of unequal length: \"%.200s\" has %" PRIu64
        " blobs, \"%.200s\" has %" PRIu64,
        bagi_tail(s->dir), s->spec->fields[least].name, rows->lengths[least],
        s->spec->fields[most].name, rows->lengths[most]);
    v->field = NULL;
    return bagi_verify_tell(v, BAGS_ERROR_UNFINISHED, BAGS_FAULT_FILE, 0, 0, 0);
}

static bags_code bagi_verify_opened_bag(
    const bagi_verify_shard *s, bagi_rows *rows) {
    bagi_verifying *v = s->v;
    const bag_reader *refs = rows->bag;
    bool filled = false;
    bags_code code =
        bagi_verify_measure(s, rows, refs->v2 || !refs->length, &filled);
    if (code)
        return code;
    v->report.datapoints += refs->length;
    if (refs->file.size == 0 && filled) {
        code = bags_fail(bagi_verify_why(v), BAGS_ERROR_CORRUPT,
            "%s: has 0 bytes beside a Bag that has blobs: it was never closed",
            bagi_tail(refs->file.path));
        return bagi_verify_fail(v, code, 0);
    }
    code = bagi_verify_bag(v, refs);
    return code || v->broken || !s->spec->types ? code
                                                : bagi_verify_rows(v, rows);
}

static bags_code bagi_verify_refs_with(
    const bagi_verify_shard *s, bagi_rows *rows, bag_reader *refs) {
    bagi_verifying *v = s->v;
    if (s->split)
        return bagi_verify_split(s, rows);
    if (s->no_refs && !s->spec->types)
        return BAGS_OK; /* it may be split: who knows */
    bags_code code = s->no_refs
                         ? bags_fail(bagi_verify_why(v), BAGS_ERROR_MISSING,
                               "%s/refs.bag: is missing", bagi_tail(s->dir))
                         : bagi_verify_open(s, "refs", true, refs, &v->why);
    return code ? bagi_verify_fail(v, code, 0)
                : bagi_verify_opened_bag(s, rows);
}

static bags_code bagi_verify_refs(const bagi_verify_shard *s) {
    bagi_verifying *v = s->v;
    bagi_rows rows;
    bag_reader refs;
    memset(&refs, 0, sizeof refs);
    refs.env = v->env;
    v->field = "refs";
    bags_code code = bagi_rows_start(v, &rows, s->spec, &refs);
    if (!code)
        code = bagi_verify_refs_with(s, &rows, &refs);
    bagi_rows_end(v, &rows);
    bagi_bag_release(&refs);
    return code;
}

/* Whether the shard has refs.bag; and if not, whether it is one that needs none:
 * it has no sequences and a NAME.idx. */
static bags_code bagi_verify_variant(bagi_verify_shard *s) {
    const bagi_env *env = s->v->env;
    bags_error *err = &s->v->why;
    bags_path_kind kind = BAGS_PATH_NONE;
    char *path = bagi_print(&env->memory, err, "%s/refs.bag", s->dir);
    bags_code code =
        path ? bagi_kind(env, path, &kind, err) : BAGS_ERROR_MEMORY;
    bagi_free_text(&env->memory, path);
    s->no_refs = !code && kind == BAGS_PATH_NONE;
    s->split = s->no_refs && s->spec->types && s->spec->count == 0;
    for (size_t i = 0; s->no_refs && s->spec->types && i < s->spec->count; i++)
        if (s->spec->types[i].sequence)
            return BAGS_OK;
    for (size_t i = 0; s->no_refs && !s->split && i < s->spec->count && !code;
         i++) {
        path = bagi_print(
            &env->memory, err, "%s/%s.idx", s->dir, s->spec->fields[i].name);
        code = path ? bagi_kind(env, path, &kind, err) : BAGS_ERROR_MEMORY;
        bagi_free_text(&env->memory, path);
        s->split = !code && kind == BAGS_PATH_FILE;
    }
    return code == BAGS_ERROR_MEMORY ? bagi_verify_fail(s->v, code, 0)
                                     : BAGS_OK;
}

/* Whether one of the shard's Bags has checksums. */
static bags_code bagi_verify_summed(const bagi_verify_shard *s) {
    bagi_verifying *v = s->v;
    const bagi_env *env = v->env;
    bags_code code = BAGS_OK;
    v->summed = false;
    for (size_t i = 0; i <= s->spec->count && !code && !v->summed; i++) {
        bags_path_kind kind = BAGS_PATH_NONE;
        size_t last = s->spec->count;
        char *path = bagi_print(&env->memory, &v->why, "%s/%s.crc", s->dir,
            i ? s->spec->fields[last - i].name : "refs");
        code = path ? bagi_kind(env, path, &kind, &v->why) : BAGS_ERROR_MEMORY;
        bagi_free_text(&env->memory, path);
        v->summed = kind == BAGS_PATH_FILE;
    }
    return code ? bagi_verify_fail(v, code, 0) : BAGS_OK;
}

static bags_code bagi_verify_units(bagi_verify_shard *s) {
    bagi_verifying *v = s->v;
    v->field = NULL;
    bags_code code = bagi_verify_variant(s);
    if (!code && !v->options.quick)
        code = bagi_verify_summed(s);
    for (size_t i = 0; i < s->spec->count && !code; i++)
        if (bagi_verify_mine(v, s->place, i + 1))
            code = bagi_verify_field(s, i);
    if (!code && bagi_verify_mine(v, s->place, s->spec->count + 1))
        code = bagi_verify_refs(s);
    return code;
}

/* ---- the shards of a dataset ---- */

/* The first good spec.json, which those of other shards are compared with. */
typedef struct bagi_verify_set {
    bagi_verifying *v;
    bagi_spec spec;
    unsigned char *text; /* NULL: there is none */
    size_t size;
    bagi_spec unknown; /* that of a shard, if there is none: no fields */
} bagi_verify_set;

/* Read a shard's spec.json and take it apart. *text is freed with bagi_free. */
static bags_code bagi_verify_spec(bagi_verifying *v, const char *dir,
    bagi_spec *spec, unsigned char **text, size_t *size, bags_error *err) {
    const bags_allocator *memory = &v->env->memory;
    bags_code code =
        bagi_reader_read_spec(v->env, dir, "spec.json", text, size, err);
    if (code)
        return code;
    code = bagi_spec_parse(memory, spec, *text, *size, err);
    if (!code)
        code = bagi_spec_seal(memory, spec, v->options.registry, err);
    if (!code)
        return BAGS_OK;
    bagi_spec_free(memory, spec);
    bagi_free(memory, *text, *size);
    *text = NULL;
    return bagi_prefix(err, code, "%s/spec.json: ", bagi_tail(dir));
}

/* What a shard without spec.json is: `LOCKED` or `UNFINISHED`; BAGS_OK if it
 * was finished just now. */
static bags_code bagi_verify_unfinished(
    bagi_verifying *v, const char *dir, bags_error *err) {
    const bagi_env *env = v->env;
    void *file = NULL;
    bool finished = false, locked = false;
    char *path = bagi_print(&env->memory, err, "%s/spec.json.partial", dir);
    if (!path)
        return BAGS_ERROR_MEMORY;
    if (!bagi_open(env, path, BAGS_IO_READ, &file, NULL) && env->io.lock)
        locked = env->io.lock(env->io.user, file) == EWOULDBLOCK;
    bagi_close_read(env, file);
    bagi_free_text(&env->memory, path);
    bags_code code = bagi_shard_finished(env, dir, &finished, err);
    if (code || finished)
        return code;
    return locked ? bagi_fail_locked(dir, err)
                  : bagi_fail_unfinished(env, dir, err);
}

/* Tell what is wrong with a shard's spec.json, if that is this part's to do. */
static bags_code bagi_verify_spec_fault(bagi_verify_shard *s, bags_code code) {
    bagi_verifying *v = s->v;
    v->field = NULL;
    if (code == BAGS_ERROR_MEMORY)
        return bagi_verify_fail(v, code, 0);
    return bagi_verify_mine(v, s->place, 0)
               ? bagi_verify_tell(v, code, BAGS_FAULT_FILE, 0, 0, 0)
               : BAGS_OK;
}

static bool bagi_verify_is_unfinished(bags_code code) {
    return code == BAGS_ERROR_UNFINISHED || code == BAGS_ERROR_LOCKED;
}

/* Check a shard whose spec was read with this result; `own` is its spec if it
 * differs in its bytes from the dataset's. */
static bags_code bagi_verify_known(bagi_verify_set *set, bagi_verify_shard *s,
    bagi_spec *own, bags_code code) {
    bagi_verifying *v = set->v;
    bool mine = bagi_verify_mine(v, s->place, 0);
    if (bagi_verify_is_unfinished(code)) {
        v->report.unfinished += mine;
        return v->options.unfinished == BAGS_UNFINISHED_SKIP
                   ? BAGS_OK
                   : bagi_verify_spec_fault(s, code);
    }
    v->report.shards += mine;
    v->report.files += mine && !code;
    s->spec = code ? (set->text ? &set->spec : &set->unknown) : own;
    if (!code && set->text && !bagi_spec_same(own, &set->spec))
        code = bags_fail(bagi_verify_why(v), BAGS_ERROR_CORRUPT,
            "%s/spec.json: does not say the same as that of the first shard",
            bagi_tail(s->dir));
    if (code)
        code = bagi_verify_spec_fault(s, code);
    return code ? code : bagi_verify_units(s);
}

static bags_code bagi_verify_one(
    bagi_verify_set *set, const char *dir, uint64_t place) {
    bagi_verifying *v = set->v;
    const bags_allocator *memory = &v->env->memory;
    bagi_verify_shard s = {v, dir, NULL, place, false, false};
    bagi_spec own;
    unsigned char *text = NULL;
    size_t size = 0;
    memset(&own, 0, sizeof own);
    v->path = dir;
    bags_code code = BAGS_OK;
    for (bool again = false;; again = true) {
        code = bagi_verify_spec(v, dir, &own, &text, &size, &v->why);
        if (again || code != BAGS_ERROR_MISSING || v->why.system != ENOENT)
            break;
        code = bagi_verify_unfinished(v, dir, &v->why);
        if (code)
            break;
    }
    v->any_spec = text == NULL;
    v->spec = text ? bagi_crc(0, text, size) : 0;
    code = bagi_verify_known(set, &s, &own, code);
    bagi_spec_free(memory, &own);
    bagi_free(memory, text, size);
    return code;
}

/* Look for the first good spec.json. */
static bags_code bagi_verify_find_spec(
    bagi_verify_set *set, const bagi_names *names) {
    bagi_verifying *v = set->v;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < names->count && !set->text; i++) {
        char *dir = bagi_shard_path(
            &v->env->memory, names->path, names->names[i], v->err);
        if (!dir)
            return BAGS_ERROR_MEMORY;
        code = bagi_verify_spec(
            v, dir, &set->spec, &set->text, &set->size, &v->why);
        bagi_free_text(&v->env->memory, dir);
        if (code == BAGS_ERROR_MEMORY)
            return bagi_verify_fail(v, code, 0);
    }
    return BAGS_OK;
}

/* Tell of the numbers between two shards, if they are missing. */
static bags_code bagi_verify_gap(
    bagi_verifying *v, const char *path, uint64_t start, uint64_t stop) {
    uint64_t step = v->options.shard_stop;
    uint64_t last = stop - 1 - (stop - 1 - start) % step;
    char every[48] = "";
    if (step > 1)
        (void)snprintf(every, sizeof every, ", every %" PRIu64 "th", step);
    bags_code code =
        start == last
            ? bags_fail(bagi_verify_why(v), BAGS_ERROR_GAP,
                  "%s: shard %06" PRIu64 " is missing", bagi_tail(path), start)
            : bags_fail(bagi_verify_why(v), BAGS_ERROR_GAP,
                  "%s: shards %06" PRIu64 " to %06" PRIu64 "%s are missing",
                  bagi_tail(path), start, last, every);
    return bagi_verify_tell(v, code, BAGS_FAULT_FILE, 0, 0, 0);
}

/* What is wrong with the shards' numbers. */
static bags_code bagi_verify_numbers(
    bagi_verifying *v, const bagi_names *names) {
    uint64_t step = v->options.shard_stop, next = v->options.shard_start;
    bags_code code = BAGS_OK;
    v->path = names->path;
    v->field = NULL;
    for (size_t i = 0; i < names->count && !code; i++) {
        uint64_t number = names->names[i].number;
        if (number % step != v->options.shard_start)
            continue;
        if (bagi_names_check(names, i, bagi_verify_why(v)))
            code = bagi_verify_tell(
                v, BAGS_ERROR_CORRUPT, BAGS_FAULT_FILE, 0, 0, 0);
        if (!code && number > next && !v->options.allow_gaps)
            code = bagi_verify_gap(v, names->path, next, number);
        next = bagi_shard_after(number, step);
    }
    return code;
}

static bags_code bagi_verify_shards(
    bagi_verify_set *set, const bagi_names *names) {
    bagi_verifying *v = set->v;
    bags_code code = bagi_verify_find_spec(set, names);
    if (!code && v->options.part == 0)
        code = bagi_verify_numbers(v, names);
    for (size_t i = 0; i < names->count && !code; i++) {
        if (names->names[i].number % v->options.shard_stop !=
            v->options.shard_start)
            continue;
        char *dir = bagi_shard_path(
            &v->env->memory, names->path, names->names[i], v->err);
        code = dir ? bagi_verify_one(set, dir, i) : BAGS_ERROR_MEMORY;
        bagi_free_text(&v->env->memory, dir);
    }
    return code;
}

/* For bagi_names_list_all. */
static bags_code bagi_verify_too_large(void *user, const bags_error *why) {
    bagi_verifying *v = (bagi_verifying *)user;
    if (v->options.part)
        return BAGS_OK;
    if (bagi_verify_why(v))
        v->why = *why;
    return bagi_verify_tell(v, why->code, BAGS_FAULT_FILE, 0, 0, 0);
}

static bags_code bagi_verify_sharded(bagi_verify_set *set, const char *path) {
    bagi_verifying *v = set->v;
    bagi_names names;
    bags_error why;
    memset(&names, 0, sizeof names);
    names.refused = bagi_verify_too_large;
    names.user = v;
    bags_code code = bagi_names_list_all(v->env, path, &names, &why);
    if (code) {
        if (v->err)
            *v->err = why;
        return code;
    }
    if (names.count == 0 && !v->code)
        return bagi_fail_no_dataset(v->env, path, v->err);
    code = bagi_verify_shards(set, &names);
    bagi_names_free(&names);
    return code;
}

static bags_code bagi_verify_lone(bagi_verifying *v, const char *path) {
    bagi_bag_options options = {BAGI_ALONE, true, false,
        v->options.allow_empty_file, false, false, BAGS_ACCESS_DEFAULT, false,
        NULL, 0, false};
    bag_reader bag;
    if (v->options.part)
        return BAGS_OK;
    memset(&bag, 0, sizeof bag);
    bag.env = v->env;
    bags_code code = bagi_bag_open(&bag, path, &options, &v->why);
    if (code)
        return bagi_verify_fail(v, code, 0);
    v->report.blobs += bag.length;
    code = bagi_verify_bag(v, &bag);
    bagi_bag_release(&bag);
    return code;
}

static bags_code bagi_verify_dataset(bagi_verifying *v, const char *path) {
    const bags_allocator *memory = &v->env->memory;
    bool single = false;
    bagi_verify_set set;
    memset(&set, 0, sizeof set);
    set.v = v;
    bags_code code = bagi_is_single(v->env, path, &single, v->err);
    if (code)
        return code;
    if (single) {
        code =
            bagi_verify_spec(v, path, &set.spec, &set.text, &set.size, &v->why);
        code = code == BAGS_ERROR_MEMORY ? bagi_verify_fail(v, code, 0)
                                         : bagi_verify_one(&set, path, 0);
    } else {
        code = bagi_verify_sharded(&set, path);
    }
    bagi_spec_free(memory, &set.spec);
    bagi_free(memory, set.text, set.size);
    return code;
}

static bags_code bagi_verify_check(
    const bags_verify_options *options, const char *path, bags_error *err) {
    const char *fault = NULL;
    if (options->part >= options->parts)
        fault = "part is not below parts";
    else if (options->shard_start >= options->shard_stop)
        fault = "shard_start is not below shard_stop";
    else if (options->unfinished == BAGS_UNFINISHED_READ)
        fault = "unfinished may not be READ";
    else if (options->quick && options->decode)
        fault = "nothing is decoded when it shall be quick";
    return fault ? bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: %s",
                       bagi_tail(path), fault)
                 : bagi_check_path(path, err);
}

static bags_code bagi_verify_any(bagi_verifying *v, const char *path) {
    bags_path_kind kind = BAGS_PATH_NONE;
    bags_code code = bagi_verify_check(&v->options, path, v->err);
    if (!code)
        code = bagi_kind(v->env, path, &kind, v->err);
    if (code)
        return code;
    v->path = path;
    if (kind == BAGS_PATH_NONE)
        return bagi_fail_system(v->err, ENOENT, path, "open");
    return kind == BAGS_PATH_FILE ? bagi_verify_lone(v, path)
                                  : bagi_verify_dataset(v, path);
}

BAGS_API bags_code bags_verify(const char *path,
    const bags_verify_options *options, bags_verify_report *report,
    bags_error *err) {
    bagi_verifying v;
    bagi_env env = bagi_env_of(options ? options->env.allocator : NULL,
        options ? options->env.io : NULL);
    bagi_verify_start(&v, &env, options, err);
    bags_code code = bagi_verify_any(&v, path);
    bagi_verify_end(&v);
    if (report)
        *report = v.report;
    return code ? code : v.code;
}

/* ========================================================================
 * >>checksum
 * Sidecars for Bags that are there already, by what a reader finds.
 * ====================================================================== */

typedef struct bagi_checksumming {
    bags_checksum_options options;
    bags_checksum_report report;
} bagi_checksumming;

static bags_code bagi_checksum_bag(bagi_checksumming *work,
    const bag_reader *bag, const bagi_bag_options *how, bags_error *err) {
    bags_checksummed done = {
        bag->file.path, false, bag->length, bag_reader_size(bag)};
    bags_code code = bagi_sums_exist(bag, &done.kept, err);
    done.kept = done.kept && !work->options.replace;
    if (!code && !done.kept)
        code = bagi_sums_write(bag, how, work->options.no_sync, err);
    if (code)
        return code;
    work->report.kept += done.kept;
    if (!done.kept) {
        work->report.made++;
        work->report.blobs += done.length;
        work->report.size += done.size;
    }
    if (work->options.each)
        work->options.each(work->options.user, &done);
    return BAGS_OK;
}

/* The Bags of a shard; each is open for no longer than it is read. */
static bags_code bagi_checksum_shard(bagi_checksumming *work,
    const bags_reader *reader, size_t shard, bags_error *err) {
    size_t bags = reader->spec.count + !reader->shards[shard].split;
    bags_code code = BAGS_OK;
    for (size_t field = 0; field < bags && !code; field++) {
        bagi_bag_options how = bagi_verify_how(reader, shard, field);
        bag_reader *bag = NULL;
        code = bagi_reader_bag_new(
            reader, &reader->shards[shard], field, &how, NULL, &bag, err);
        if (!code)
            code = bagi_checksum_bag(work, bag, &how, err);
        bagi_reader_bag_free(reader, bag);
    }
    return code;
}

static bags_code bagi_checksum_dataset(
    bagi_checksumming *work, const char *path, bags_error *err) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.shard_start = work->options.shard_start;
    options.shard_stop = work->options.shard_stop;
    options.allow_gaps = true;
    options.env.allocator = work->options.env.allocator;
    options.env.io = work->options.env.io;
    bags_reader *reader = bags_reader_open(path, &options, err);
    if (!reader)
        return err->code;
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < reader->count && !code; i++)
        code = bagi_checksum_shard(work, reader, i, err);
    bags_reader_close(reader);
    return code;
}

/* A lone Bag's checksums know of no spec.json: beside one they would be wrong. */
static bags_code bagi_checksum_lone(bagi_checksumming *work,
    const bagi_env *env, const char *path, bags_error *err) {
    bag_reader_options options;
    bags_code code = bagi_check_lone(env, path, err);
    if (code)
        return code;
    memset(&options, 0, sizeof options);
    options.allow_empty_file = true;
    options.env.allocator = work->options.env.allocator;
    options.env.io = work->options.env.io;
    bag_reader *bag = bag_reader_open(path, &options, err);
    if (!bag)
        return err->code;
    bagi_bag_options how;
    memset(&how, 0, sizeof how);
    how.where = BAGI_ALONE;
    code = bagi_checksum_bag(work, bag, &how, err);
    bag_reader_close(bag);
    return code;
}

BAGS_API bags_code bags_checksum(const char *path,
    const bags_checksum_options *options, bags_checksum_report *report,
    bags_error *err) {
    bags_error local;
    bagi_checksumming work;
    bags_path_kind kind = BAGS_PATH_NONE;
    memset(&work, 0, sizeof work);
    if (!err)
        err = &local;
    if (options)
        work.options = *options;
    bagi_env env = bagi_env_of(work.options.env.allocator, work.options.env.io);
    bags_code code = bagi_check_path(path, err);
    if (!code)
        code = bagi_kind(&env, path, &kind, err);
    if (!code)
        code = kind == BAGS_PATH_FILE
                   ? bagi_checksum_lone(&work, &env, path, err)
                   : bagi_checksum_dataset(&work, path, err);
    if (report)
        *report = work.report;
    return code;
}

#endif /* BAGS_IMPLEMENTATION */

/*
 * This software is available under two licences. Choose the one you prefer.
 *
 * ------------------------------------------------------------------------------
 * ALTERNATIVE A - MIT License
 *
 * Copyright (c) 2026 the authors of bags.h
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of
 * this software and associated documentation files (the "Software"), to deal in
 * the Software without restriction, including without limitation the rights to
 * use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of
 * the Software, and to permit persons to whom the Software is furnished to do so,
 * subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS
 * FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER
 * IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
 * CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 *
 * ------------------------------------------------------------------------------
 * ALTERNATIVE B - Public Domain (www.unlicense.org)
 *
 * This is free and unencumbered software released into the public domain.
 *
 * Anyone is free to copy, modify, publish, use, compile, sell, or distribute this
 * software, either in source code form or as a compiled binary, for any purpose,
 * commercial or non-commercial, and by any means.
 *
 * In jurisdictions that recognize copyright laws, the author or authors of this
 * software dedicate any and all copyright interest in the software to the public
 * domain. We make this dedication for the benefit of the public at large and to
 * the detriment of our heirs and successors. We intend this dedication to be an
 * overt act of relinquishment in perpetuity of all present and future rights to
 * this software under copyright law.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS
 * FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE
 * LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
 * CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
 * SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
