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
 *     It needs only libc and the operating system: cc -O2 program.c. Optional codecs
 *     for images, video, msgpack and .npy are in formats/, one file each.
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
 * CONTENTS (search for the tag; the numbers are lengths in lines)
 *     >>config    100  version, how functions are declared
 *     >>errors     60  bags_code, bags_error
 *     >>views     120  bags_view, bag_blobs, bags_buffer
 *     >>hooks     150  bags_allocator, bags_io, bags_env
 *     >>bag       240  one file: options, reader, writer
 *     >>types     290  type strings, dtypes, bags_value, codecs, bags_registry
 *     >>writer    400  datasets: fields, options, shards, recovery
 *     >>reader    470  datasets: options, selection, rows
 *     >>faults     95  finding everything that is wrong
 *     then the implementation; each section calls only earlier ones:
 *     >>platform 1040      >>bytes 140          >>crc 230            >>fail 180
 *     >>memory 180         >>files 500          >>json 110           >>refs 200
 *     >>type-text 190      >>codecs 600         >>coder 530          >>set 330
 *     >>open 650           >>fetch 540          >>cursor 330         >>bag-read 120
 *     >>bag-write 680      >>spec 390           >>shards 550       >>dataset-write 1940
 *     >>dataset-read 1800  >>recover 140        >>finalize 130       >>verify 500
 *     >>checksum 300       >>complete 180
 *
 * THE BYTES
 *     NAME.bag       blob 0 | blob 1 | ... | blob N-1 | table
 *                    The table holds N + 1 64-bit little-endian integers: 0, the end of
 *                    blob 0, ..., the end of blob N-1. The last entry is also the
 *                    table's offset, so the last 8 bytes of the file locate every blob.
 *     NAME.idx       the table without its leading 0, while NAME.bag is being written
 *     refs.partial   while the dataset is being written: the flushed part of a
 *                    datapoint that has not ended yet; drawn in >>dataset-write
 *     DATASET/       spec.json    {"label": "int(4)", "words": "utf8[]"}
 *                    label.bag    one Bag per field
 *                    words.bag
 *                    refs.bag     one msgpack array per datapoint. For each field,
 *                                 sorted by name: the index of its blob; for a
 *                                 sequence [first index, count], or []
 *     DATASET/       000000/ 000001/ ...   sharded: each is a dataset as above
 *     NAME.crc       optional, ignored by Python readers: checksums of NAME.bag.
 *                    CRC of blob 0 | ... | CRC of blob N-1 | trailer
 *                    Each is a CRC-32C (RFC 3720) in 4 little-endian bytes. The
 *                    trailer, drawn in >>crc, binds them to NAME.bag and its shard.
 *     NAME.dict      optional: bytes shared by all blobs of NAME.bag that the codec
 *                    needs to decode them: see bags_codec_dictionary.
 *
 *     Writers write v1, drawn above. Readers also read two other variants. In v2
 *     (granular 0.20 and 0.21), tables have no leading 0, and an empty Bag is an empty
 *     file. In the split variant (granular 0.22 and later), the table stays in
 *     NAME.idx, and there is no refs.bag: blob i of every field belongs to datapoint i.
 *
 * CONCEPTS
 *     blob       bytes: one encoded value.
 *     Bag        a file of blobs, accessed by index.
 *     field      a name and a type. The type names the codec that converts between
 *                values and blobs ("jpeg", "int(4)"). With a trailing [], each
 *                datapoint has a sequence of values; without it, the field is plain and
 *                has one.
 *     datapoint  one value or one sequence for each field. Datapoints in a shard may
 *                share blobs.
 *     shard      a directory that holds some of the datapoints. Worker W of K writes
 *                shards W, W + K, W + 2K, ... An unsharded dataset is its own shard 0.
 *     row        the result of reading one datapoint.
 *     partial    a datapoint that was begun and flushed before its writer crashed, so
 *                only some items of its sequences exist. Readers do not show it;
 *                bags_recover and BAGS_EXISTING_RESUME keep it.
 *     journal    the NAME.idx of a Bag that is being written or whose writer crashed.
 *                It lists the flushed blobs.
 *
 * RULES THAT HOLD EVERYWHERE
 *     Errors     Open functions return the object or NULL. Other functions that can
 *                fail return a bags_code; BAGS_OK is 0. On failure, the last parameter
 *                (a bags_error or NULL) receives the error, and outputs are untouched
 *                unless the function states otherwise. The library never prints and
 *                never aborts. A code listed without a comment has the meaning given in
 *                >>errors. A read that failed in a hook may be retried. Any function
 *                may also return BAGS_ERROR_ARGUMENT (NULL where it is not allowed),
 *                BAGS_ERROR_MEMORY and, if it uses files, BAGS_ERROR_IO.
 *     Ownership  A bags_view is borrowed. Every object the caller owns has a free or
 *                close function, and it accepts NULL. Unless stated otherwise,
 *                arguments are copied or consumed before the call returns.
 *     Lifetime   A mapped or in-memory blob is not copied and stays valid until the
 *                reader is closed. Any other blob stays valid until the scratch is
 *                reused or freed. A reader's fields, shards and path stay valid until
 *                it is closed.
 *     Scratch    A bags_buffer or bags_row is caller-owned memory that calls reuse, so
 *                that a loop does not allocate. Initialize it to {0}, use one per
 *                thread, and free it at the end. A row that a call does not fill serves
 *                as its scratch and is empty afterwards.
 *     Threads    A reader does not change once opened, so any number of threads may
 *                share it, each with its own scratch. Only one thread at a time may use
 *                a writer. Do not close an object that another thread is using. Any
 *                thread may call a function that takes neither a reader nor a writer.
 *     Ranges     are half-open: start <= i < stop. A stop past the end is clamped to
 *                the end; a start past the end leaves nothing. start > stop is
 *                BAGS_ERROR_RANGE.
 *     Sizes      _length counts blobs or datapoints, _size counts bytes. Quantities in
 *                files are uint64_t, in memory size_t. A NULL reader or writer has
 *                length 0.
 *     Options    are structs whose members all default to 0; {0} is always valid, and
 *                NULL means {0}. shard_start and shard_stop are not a range: they
 *                select the shards that belong to worker shard_start out of shard_stop
 *                workers; 0 and 0 select all shards. Callbacks may be NULL. They run on
 *                the calling thread; text passed to them is valid until they return.
 *     Reports    may be NULL. They are filled in on failure too.
 *     Paths      are UTF-8 and NUL-terminated. On Windows, long paths work, and both /
 *                and \ are separators. Opening a reader or writer makes a relative
 *                local path absolute, so chdir() may be called later. Messages show the
 *                path as it was passed.
 *     fork()     In a child process, the parent's writers write nothing: append fails
 *                with BAGS_ERROR_STATE when its buffer is full or earlier, and close
 *                always fails. close and abort only free memory. Readers remain usable,
 *                even if other threads used them during fork(). But if a reader has
 *                custom hooks and a thread did not return from one within 100 ms, its
 *                functions fail with BAGS_ERROR_STATE, and close frees nothing.
 *
 * VERSIONS
 *     A program that compiles with version 1.0 will compile with every later 1.x and
 *     behave the same. Files written by any version stay readable. Before 1.0,
 *     tests/README.md lists each change and how to adapt a program to it. The promise
 *     does not cover
 *       - declarations marked BAGS_EXPERIMENTAL, and structs and members whose comment
 *         says "Experimental". In formats/, all functions in load/, storage/, data/,
 *         import/ and export/ are experimental;
 *       - names that start with bagi_ or BAGI_, and private members;
 *       - the text of messages.
 *     Structs grow between versions, so bindings for other languages must compile this
 *     header. There is no libbags.so: option structs carry no size, and inline
 *     functions access private members. Compile the header, or link the static library.
 *
 * UNTRUSTED FILES
 *     Every length and offset is checked before it is used. Whatever bytes are in files
 *     and whatever names in directories, the library does not
 *       - read outside a file, or open a file outside the dataset's directory;
 *       - block: a pipe, device or directory where a file belongs is refused;
 *       - use more memory than their sizes justify. A dataset takes 1 KiB per field,
 *         200 bytes per shard, 600 bytes per Bag used, and each NAME.dict that values
 *         needed (identical ones once) plus its codec's memory. A datapoint takes 16
 *         bytes per requested item (24 if not mapped, and 200 where a slice skips
 *         items), its row of refs.bag and, without mmap, each requested blob at most
 *         once;
 *       - run longer than their sizes justify. Opening costs the same for a file of any
 *         size; bags_verify reads every file about twice.
 *     Holes in a sparse file count toward its size. Codecs you add must bound their own
 *     memory and time. Reading follows symbolic links inside a dataset, so a blob may
 *     expose the content of any file the process can read. Where that matters, reject
 *     datasets that contain links. No call writes to a file through a link.
 *     bags_recover and RESUME do follow a link that replaces a shard's directory;
 *     bags_checksum follows no links inside a dataset.
 *
 * MACROS YOU MAY DEFINE
 *     BAGS_IMPLEMENTATION  define it in one source file; the functions are compiled
 *                          there.
 *     BAGS_STATIC          make everything static; implies BAGS_IMPLEMENTATION.
 *     BAGS_API             precedes every public function, e.g. __declspec(dllexport).
 *     BAGS_EXPERIMENTAL    part of each experimental declaration, usually empty.
 *                          -DBAGS_EXPERIMENTAL='__attribute__((deprecated))' shows
 *                          where a program uses one.
 *     BAGS_DEBUG           check the library's invariants with assert(), for developers
 *                          of the library. No input can make an assert fail.
 *     BAGS_NO_WRITER       omit the writers, encoders, bags_recover, bags_finalize and
 *                          bags_checksum: everything that writes.
 *     BAGS_NO_VERIFY       omit bags_verify.
 *     BAGS_NO_CHECKSUM     omit bags_checksum and all use of NAME.crc. Writing or
 *                          comparing checksums, or resuming a shard that has them, is
 *                          BAGS_ERROR_ARGUMENT; bags_verify compares none.
 *     BAGS_NO_LOCAL        omit local files and thread locks, for WebAssembly and small
 *                          devices: only ISO C is needed. Only one thread at a time may
 *                          use an object. Opening requires hooks (env.io) and otherwise
 *                          fails with BAGS_ERROR_IO.
 *     Define the NO macros the same way wherever bags.h is included.
 *
 * KNOWN LIMITS
 *     - If a mapped file is truncated or its disk fails while a reader has it open, an
 *       access past the new end terminates the process with SIGBUS (up to the end of
 *       the last page it returns zeros). No check can prevent this. Where files may be
 *       truncated, read with `no_mmap`: truncation is then an error that names the
 *       file. (Windows refuses the truncation. The library never truncates a finished
 *       file.)
 *     - spec.json: at most 1 MiB and 65,535 fields, with names up to 1,024 bytes long.
 *       Shard numbers: below 10^18.
 *     - After a power failure, unsynced empty blobs cannot be told from a sector of
 *       zeros.
 *     - A writer keeps two files open per field, or three with checksums.
 *     - Where locks are visible to one machine only, as on some network file systems,
 *       two machines can write the same shard. Creating a shard needs no lock. A writer
 *       that lost its shard to another one detects this and fails, but not immediately.
 *       Where locks have no effect at all, RESUME and bags_recover fail.
 *     - A reader detects a replaced shard by the identity of its spec.json. If a Bag is
 *       replaced without its spec.json (as rsync may do), or rewritten in place with
 *       the same size, the reader detects it only when it reopens the Bag, or with
 *       checksums. Otherwise it may return a mix of old and new bytes, with or without
 *       `no_mmap`.
 *     - OpenBSD: files are not mapped, because maps there do not see later writes.
 *     - Windows: a directory with open files cannot be renamed, and an open file cannot
 *       be replaced.
 *     - It runs on POSIX systems and Windows 7 and later, on 32-bit and 64-bit CPUs of
 *       either byte order. Tests run on Linux, and with MinGW-w64 and Wine; macOS, the
 *       BSDs and MSVC are supported but not tested.
 *
 * The licence is at the end of this file.
 */
#if defined(BAGS_STATIC) && !defined(BAGS_IMPLEMENTATION)
#define BAGS_IMPLEMENTATION
#endif

/* The implementation calls POSIX functions and needs 64-bit file offsets. Both must be
 * requested before the first system header. */
#if defined(BAGS_IMPLEMENTATION) && !defined(BAGI_IMPLEMENTED) && !defined(_WIN32) &&  \
    !defined(BAGS_NO_LOCAL)
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
/* If a system header came first, glibc and musl hide these functions in strict standard
 * C (-std=c99), and glibc's off_t has 32 bits on 32-bit CPUs. In that case, compile
 * nothing else, so that this is the only error. */
#if defined(_FEATURES_H) &&                                                            \
    (defined(__GLIBC__) ? !defined(__USE_XOPEN2K8)                                     \
                        : !defined(_GNU_SOURCE) && !defined(_BSD_SOURCE))
#error "bags.h: a system header came first, and with this -std= it hides what \
bags.h needs: define BAGS_IMPLEMENTATION and include bags.h before any system \
header, or compile with -std=gnu99 or -D_GNU_SOURCE"
#define BAGI_IMPLEMENTED
#elif defined(_FEATURES_H) && defined(__GLIBC__) && !defined(__USE_FILE_OFFSET64) &&   \
    !defined(__OFF_T_MATCHES_OFF64_T) && __SIZEOF_POINTER__ == 4
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

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BAGS_VERSION_MAJOR 0
#define BAGS_VERSION_MINOR 9
#define BAGS_VERSION_PATCH 0
#define BAGS_VERSION "0.9.0"
/* For #if: 10000 * major + 100 * minor + patch. */
#define BAGS_VERSION_NUMBER                                                            \
    (10000 * BAGS_VERSION_MAJOR + 100 * BAGS_VERSION_MINOR + BAGS_VERSION_PATCH)

/* Marks a declaration that may still change: see VERSIONS at the top. */
#ifndef BAGS_EXPERIMENTAL
#define BAGS_EXPERIMENTAL
#endif

/* BAGI_UNUSED avoids warnings in a program that includes everything as static functions
 * but calls only a few. */
#if defined(__GNUC__) || defined(__clang__)
#define BAGI_UNUSED __attribute__((unused))
#if defined(__MINGW32__) && defined(__GNUC__) && !defined(__clang__) &&                \
    __USE_MINGW_ANSI_STDIO
#define BAGI_PRINTF(string, first) __attribute__((format(gnu_printf, string, first)))
#else
#define BAGI_PRINTF(string, first) __attribute__((format(printf, string, first)))
#endif
#else
#define BAGI_UNUSED
#define BAGI_PRINTF(string, first)
#endif

/* Marks results that a caller would only ignore by mistake. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define BAGI_NODISCARD [[nodiscard]]
#elif !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L
#define BAGI_NODISCARD [[nodiscard]]
#else
#define BAGI_NODISCARD
#endif

/* BAGI_CHECKED is BAGS_API with this attribute, placed as C or C++ requires. */
#if defined(BAGS_API)
#define BAGI_CHECKED BAGS_API
#elif defined(BAGS_STATIC)
#define BAGS_API static BAGI_UNUSED
#define BAGI_CHECKED BAGI_NODISCARD BAGS_API
#elif defined(__cplusplus)
#define BAGS_API extern "C"
#define BAGI_CHECKED BAGS_API BAGI_NODISCARD
#else
#define BAGS_API extern
#define BAGI_CHECKED BAGI_NODISCARD BAGS_API
#endif

/* For the few functions defined in the API because a call would cost more than their
 * work. In C99, the implementation holds one copy of each for callers that take its
 * address. */
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

/* Casts and NULL for the API's inline functions that do not warn in C++. */
#ifdef __cplusplus
#define BAGI_CAST(type, value) static_cast<type>(value)
#define BAGI_ADDRESS(pointer) reinterpret_cast<uintptr_t>(pointer)
#define BAGI_NULL nullptr
#else
#define BAGI_CAST(type, value) ((type)(value))
#define BAGI_ADDRESS(pointer) ((uintptr_t)(pointer))
#define BAGI_NULL NULL
#endif
#if SIZE_MAX == UINT64_MAX
#define BAGI_SIZE(number) (number)
#else
#define BAGI_SIZE(number) BAGI_CAST(size_t, number)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define BAGI_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#else
#define BAGI_UNLIKELY(condition) (condition)
#endif

/* The version of the linked implementation, in the form of BAGS_VERSION. */
BAGS_API const char *bags_version(void);

/* ========================================================================
 * >>errors
 * The code tells a caller how to react; the message says everything else.
 * ====================================================================== */

typedef enum bags_code {
    BAGS_OK = 0,
    BAGS_ERROR_ARGUMENT = 1,    /* a bug in the caller: NULL that is not allowed, an
                                   invalid option, shard_start >= shard_stop */
    BAGS_ERROR_STATE = 2,       /* a call out of order, such as end without begin */
    BAGS_ERROR_RANGE = 3,       /* index out of range; start > stop */
    BAGS_ERROR_FIELD = 4,       /* a field is unknown, missing or duplicate */
    BAGS_ERROR_TYPE = 5,        /* invalid type string; no codec for this type; a
                                   sequence where a plain field is needed, or vice
                                   versa */
    BAGS_ERROR_VALUE = 6,       /* a value its type cannot hold; a request that
                                   contradicts existing fields or files */
    BAGS_ERROR_MISSING = 7,     /* no such file or directory, or not a dataset */
    BAGS_ERROR_EXISTS = 8,      /* the file or dataset to create already exists */
    BAGS_ERROR_LOCKED = 9,      /* a running writer holds the lock */
    BAGS_ERROR_UNFINISHED = 10, /* its writer did not finish it: recover it */
    BAGS_ERROR_GAP = 11,        /* shards are missing */
    BAGS_ERROR_CORRUPT = 12,    /* the bytes contradict each other */
    BAGS_ERROR_LIMIT = 13,      /* valid, but too large for this platform or type */
    BAGS_ERROR_IO = 14,         /* a system call failed; see bags_error.system */
    BAGS_ERROR_MEMORY = 15,     /* out of memory */
    BAGS_ERROR_CHANGED = 16     /* another process replaced or removed files in use:
                                   open again */
} bags_code;

#define BAGS_ERROR_SIZE 1024

/* An error and its message, owned by the caller; only functions that fail write it. */
typedef struct bags_error {
    bags_code code;
    int system;                    /* errno if a system call failed, else 0. For logs;
                                      base decisions on the code */
    char message[BAGS_ERROR_SIZE]; /* one line of UTF-8, NUL-terminated: file,
                                      field, index, actual vs. allowed value */
    size_t remedy; /* offset in the message of the text, after a semicolon, that says
                      what to do; 0 if none */
} bags_error;

/* Describe a code, e.g. "out of memory". Never NULL; static. */
BAGS_API const char *bags_code_name(bags_code code);

/* Write an error, as a codec must before it fails; err may be NULL. `format` is as for
 * printf; long messages are truncated. Returns code. */
BAGS_API bags_code bags_fail(bags_error *err, bags_code code, const char *format, ...)
    BAGI_PRINTF(3, 4);
BAGS_API bags_code bags_vfail(bags_error *err, bags_code code, const char *format,
    va_list arguments) BAGI_PRINTF(3, 0);

/* Insert text before an error's message, or append text to it. Pass on another error's
 * message only in this way, because it keeps track of the remedy. Text appended as
 * "; do this" becomes the remedy of an error that has none. If the result does not fit,
 * its end is lost. err may be NULL. Return code, or err->code. */
BAGS_API bags_code bags_prefix(bags_error *err, bags_code code, const char *format, ...)
    BAGI_PRINTF(3, 4);
BAGS_API bags_code bags_suffix(bags_error *err, const char *format, ...)
    BAGI_PRINTF(2, 3);

/* ========================================================================
 * >>views
 * Borrowed bytes, and caller-owned memory that calls reuse.
 * ====================================================================== */

struct bags_allocator;

/* Borrowed bytes, neither NUL-terminated nor aligned. */
typedef struct bags_view {
    const unsigned char *data; /* may be NULL if size is 0 */
    size_t size;
} bags_view;

/* Consecutive blobs of a Bag: their contiguous bytes and end offsets.
 * bag_reader_get_range has checked every entry before it returns this; read it with
 * bag_blobs_get. */
typedef struct bag_blobs {
    const unsigned char *data; /* the first byte of the first blob */
    size_t size;               /* bytes of all blobs */
    size_t length;             /* number of blobs */
    const unsigned char *ends; /* `length` end offsets in the file, 8 little-endian
                                  bytes each, unaligned */
    uint64_t start;            /* offset of the first blob in the file */
} bag_blobs;

/* On little-endian CPUs this is a single load; not every compiler reduces the loop to
 * that. */
BAGI_INLINE uint64_t bagi_load_u64(const unsigned char *data) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t number;
    memcpy(&number, data, sizeof number);
    return number;
#else
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--)
        number = number << 8 | data[i];
    return number;
#endif
}

/* Load a number of `size` bytes, 0 to 8. */
BAGI_INLINE uint64_t bags_load_bytes(const void *data, size_t size, bool big_endian) {
    const unsigned char *bytes = BAGI_CAST(const unsigned char *, data);
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++)
        number = number << 8 | bytes[big_endian ? i : size - 1 - i];
    return number;
}

/* Write the low `size` bytes, 0 to 8, of a number. */
BAGI_INLINE void bags_store_bytes(
    void *data, size_t size, bool big_endian, uint64_t number) {
    unsigned char *bytes = BAGI_CAST(unsigned char *, data);
    for (size_t i = 0; i < size; i++, number >>= 8)
        bytes[big_endian ? size - 1 - i : i] = BAGI_CAST(unsigned char, number);
}

/* True if a view contains exactly this text. */
BAGS_API bool bags_view_is(bags_view view, const char *text);

/* Blob i of a range, 0 <= i < range->length, or an empty view if there is none. Valid
 * as long as the range. Cost: O(1). */
BAGI_INLINE bags_view bag_blobs_get(const bag_blobs *range, size_t i) {
    bags_view blob = {BAGI_NULL, 0};
    if (BAGI_UNLIKELY(!range || i >= range->length))
        return blob;
    const unsigned char *end = range->ends + 8 * i;
    uint64_t start = i ? bagi_load_u64(end - 8) : range->start;
    blob.data = range->data + (start - range->start);
    blob.size = BAGI_SIZE(bagi_load_u64(end) - start);
    return blob;
}

/* Growable memory that remembers its allocator. If initialized to {0}, it takes the
 * allocator of the first object that grows it. */
typedef struct bags_buffer {
    unsigned char *data;
    size_t capacity;
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_buffer;

/* Make the capacity at least `size` bytes. The content is kept, and the data is aligned
 * for any type. A buffer grows by at least half, so repeated calls cost O(n) in total.
 * Returns BAGS_OK, or BAGS_ERROR_MEMORY with the buffer untouched. */
BAGI_CHECKED bags_code bags_buffer_reserve(
    bags_buffer *buffer, size_t size, bags_error *err);

/* True if `data` points into the buffer's memory: a result there is valid until the
 * buffer is reused or freed. Otherwise the result is mapped or in memory. */
BAGI_INLINE bool bags_buffer_contains(const bags_buffer *buffer, const void *data) {
    uintptr_t start = BAGI_ADDRESS(buffer->data), at = BAGI_ADDRESS(data);
    return at >= start && at - start < buffer->capacity;
}

/* An empty buffer that uses this allocator; NULL: malloc. */
BAGS_API bags_buffer bags_buffer_of(const struct bags_allocator *allocator);

/* Free the buffer's memory and reset it to {0}. */
BAGS_API void bags_buffer_free(bags_buffer *buffer);

/* True if the text is valid UTF-8: no overlong forms, no surrogates, nothing above
 * U+10FFFF. Otherwise *bad (may be NULL) receives the offset of the first invalid byte.
 * Cost: O(size). */
BAGS_API bool bags_utf8_valid(const void *text, size_t size, size_t *bad);

/* True if this platform is little-endian, as files are. */
BAGS_API bool bags_little_endian(void);

/* Copy elements of `element` bytes each, reversing the bytes of each; `size` is in
 * bytes, a multiple of `element`. `to` may equal `from`. */
BAGS_API void bags_swap_bytes(void *to, const void *from, size_t size, size_t element);

/* Extend a CRC-32C (RFC 3720) by `size` bytes; `crc` is the CRC so far, 0 at the start.
 * Cost: O(size); uses the CPU's CRC instructions if available. */
BAGS_API uint32_t bags_crc32c(uint32_t crc, const void *data, size_t size);

/* ========================================================================
 * >>hooks
 * Where memory comes from and how files are accessed. Both structs are copied when an
 * object is opened; whatever `user` points to must outlive the object.
 * ====================================================================== */

/* resize works like realloc: data NULL allocates; new_size 0 frees and returns NULL;
 * old_size is the previously requested size. Returning NULL for new_size > 0 means out
 * of memory, with data untouched. It must be thread-safe if a reader is shared. */
typedef struct bags_allocator {
    void *(*resize)(void *user, void *data, size_t old_size, size_t new_size);
    void *user;
} bags_allocator;

/* The allocator, or malloc, realloc and free for NULL. */
BAGS_API bags_allocator bags_allocator_of(const bags_allocator *allocator);

#define BAGS_IO_READ 0   /* an existing file, for reading */
#define BAGS_IO_CREATE 1 /* a new file, for both; EEXIST if the path exists */
#define BAGS_IO_WRITE 2  /* an existing file, for reading and writing */

typedef enum bags_path_kind {
    BAGS_PATH_NONE, /* nothing has this name */
    BAGS_PATH_FILE,
    BAGS_PATH_DIRECTORY
} bags_path_kind;

/* How a part of a file will be read. */
typedef enum bags_advice {
    BAGS_ADVICE_RANDOM, /* in any order: do not read ahead */
    BAGS_ADVICE_SOON    /* all of it, soon: start reading it now */
} bags_advice;

/* Experimental. The identity of a file. If two identities are equal apart from `link`,
 * file and content are the same. */
typedef struct bags_identity {
    uint64_t device, inode;
    /* Modification time in nanoseconds; on Windows, where inodes are never reused, the
     * creation time. */
    uint64_t time;
    uint64_t size; /* in bytes */
    bool link;     /* the path's last component was a symbolic link, and was followed */
} bags_identity;

/* Experimental. A range to read: `size` bytes of an open file, starting at `offset`.
 * data NULL: start reading, but do not wait. */
typedef struct bags_io_read {
    void *file;
    uint64_t offset;
    void *data;
    size_t size;
    size_t done; /* set by the hook: bytes read, from the front */
} bags_io_read;

/*
 * All file access goes through these hooks. Each returns 0, or an errno value for
 * bags_error.system. Reads and writes use explicit offsets. They may transfer less than
 * requested and are then called again; a read of 0 bytes means end of file. A reader
 * calls its hooks from several threads at once. Hooks marked optional may be NULL, and
 * their failures are ignored, except for identify. A reader needs none of the hooks
 * that write; without make_dir, nothing is written (EROFS). open must not return a NULL
 * *file.
 */
typedef struct bags_io {
    void *user;
    int (*open)(void *user, const char *path, int mode, void **file);
    int (*close)(void *user, void *file);
    int (*size)(void *user, void *file, uint64_t *size);
    int (*read_at)(
        void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done);
    int (*write_at)(void *user, void *file, uint64_t offset, const void *data,
        size_t size, size_t *done);
    int (*truncate)(void *user, void *file, uint64_t size);
    int (*sync)(void *user, void *file); /* until it is on stable storage */
    /* Lock the file until it is closed, against every other open of it. Do not wait:
     * EWOULDBLOCK if it is already locked. */
    int (*lock)(void *user, void *file);
    /* Optional. Map the first `size` bytes (at least 1) read-only. The map is valid
     * until unmap, even after close. If this fails, the file is read instead. */
    int (*map)(void *user, void *file, size_t size, const void **data);
    int (*unmap)(void *user, const void *data, size_t size);
    /* Classify a path; BAGS_PATH_NONE, returning 0, if nothing exists there. */
    int (*kind)(void *user, const char *path, bags_path_kind *kind);
    int (*make_dir)(void *user, const char *path); /* EEXIST if it exists */
    int (*sync_dir)(void *user, const char *path);
    /* Call each() with every name in a directory except . and .., in any order, until
     * it returns nonzero, and return that value. If this returns ENOSYS or is NULL,
     * only unsharded datasets can be read. */
    int (*list)(void *user, const char *path,
        int (*each)(void *each_user, const char *name), void *each_user);
    int (*rename)(void *user, const char *from, const char *to);
    int (*remove)(void *user, const char *path);     /* a file */
    int (*remove_dir)(void *user, const char *path); /* an empty directory */
    /* Optional. Allocate disk space for the first `size` bytes without changing the
     * file's size: they will be written soon, and unused space will be truncated. */
    int (*reserve)(void *user, void *file, uint64_t size);
    /* Optional. Announce how bytes will be read: those at `map` in a map or, if that is
     * NULL, those at `offset` in an open file. */
    int (*advise)(void *user, void *file, const void *map, uint64_t offset,
        uint64_t size, bags_advice advice);
    /* Optional. Start writing these bytes to disk, without waiting. */
    int (*write_back)(void *user, void *file, uint64_t offset, uint64_t size);
    /* Optional. Experimental. Identify an open file or, if `file` is NULL, the file at
     * a path, without opening it; ENOENT if nothing exists there. If NULL, no function
     * can detect that another process replaced, renamed or removed a file in use. */
    int (*identify)(void *user, void *file, const char *path, bags_identity *identity);
    /* Optional. Experimental. For remote files, as are the next two. Read many ranges
     * of several files at once. Each `done` is 0 before the call. Afterwards read_at is
     * called for missing bytes, and returns any failure. */
    void (*read_many)(void *user, bags_io_read *reads, size_t count);
    /* Optional. Experimental. Start looking up a file that may soon be opened, or
     * identified by its path, if it exists. Do not wait. */
    void (*expect)(void *user, const char *path);
    /* Optional. Experimental. Write why a hook just failed with `error` for a path:
     * NUL-terminated, at most `size` bytes. Unless empty, this text replaces errno's
     * own in the message. */
    void (*explain)(void *user, const char *path, int error, char *text, size_t size);
    /* Optional. Experimental. Create a hard link to a file; EEXIST if `to` exists.
     * Symbolic links are followed. */
    int (*link)(void *user, const char *from, const char *to);
} bags_io;

/* The hooks for local files, for your own hooks to wrap. Static. With BAGS_NO_LOCAL,
 * only open, kind and explain are set, and the first two fail with ENOSYS. */
BAGS_API const bags_io *bags_io_local(void);

/* The hooks that an object uses: a member of every options struct. */
typedef struct bags_env {
    const bags_allocator *allocator; /* NULL: malloc, realloc and free */
    const bags_io *io;               /* NULL: local files */
} bags_env;

/* Write the error of a hook that returned `error` for a path, such as "pets/id.bag:
 * cannot open: No such file or directory", or with the hook's own reason (explain).
 * `doing` is the operation that failed, such as "open". io and err may be NULL. Returns
 * the code: BAGS_ERROR_MISSING, _EXISTS, _LOCKED, _MEMORY, _CHANGED (ESTALE) or _IO;
 * BAGS_OK for 0. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_fail_io(
    const bags_io *io, int error, const char *path, const char *doing, bags_error *err);

/* Read exactly `size` bytes of an open file. Returns BAGS_OK, BAGS_ERROR_CORRUPT (the
 * file ends too early) or a code of bags_fail_io. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_read(const bags_io *io, void *file,
    const char *path, uint64_t offset, void *data, size_t size, bags_error *err);

/* The last 320 bytes of a path (a pointer into `path`), so that a message also has room
 * for the reason. */
BAGS_API BAGS_EXPERIMENTAL const char *bags_path_tail(const char *path);

/* ========================================================================
 * >>bag
 * A single file. Datasets consist of Bags; a standalone Bag is a plain, fast list of
 * blobs.
 * ====================================================================== */

typedef struct bag_reader bag_reader;
typedef struct bag_writer bag_writer;

/* Private: the first members of a bag_reader, exposed so that bag_reader_get needs no
 * call. They describe a mapped v1 table and its blobs. */
typedef struct bagi_mapped {
    const unsigned char *data;
    const unsigned char *table; /* length + 1 entries, the first is 0 */
    uint64_t length;            /* 0 if bag_reader_get needs a call */
    uint64_t limit;             /* no blob ends after this offset */
} bagi_mapped;

/* How to treat data that is still being written or whose writer crashed. */
typedef enum bags_unfinished {
    BAGS_UNFINISHED_REFUSE = 0, /* fail */
    BAGS_UNFINISHED_SKIP,       /* leave it out */
    BAGS_UNFINISHED_READ        /* read what has been flushed */
} bags_unfinished;

typedef struct bag_reader_options {
    bool no_mmap; /* read with explicit offsets instead of mapping */
    /* With no_mmap: keep the table in memory, at 8 bytes per blob (12 with
     * verify_checksums), so that a read costs one system call instead of two (or
     * three). */
    bool cache_index;
    /* Compare every returned blob with its checksum. NAME.crc must exist. */
    bool verify_checksums;
    /* Accept an empty file as an empty Bag, as granular 0.20 and 0.21 write it. By
     * default this is an error, because a crash can leave an empty file, too. */
    bool allow_empty_file;
    /* READ: if a Bag has a journal, read its complete blobs, whatever a power failure
     * left after them; implies no_mmap and cache_index. SKIP is invalid. */
    bags_unfinished unfinished;
    /* Never let the system read ahead in a map. By default it does if blobs are read in
     * order; for other reads of a Bag that was not in memory when it was opened, only
     * the pages that they need are read. The option helps with scattered reads if the
     * default cannot tell what is in memory: if the process neither owns the file nor
     * may write to it, and on systems other than Linux. Access to data already in
     * memory becomes slightly slower. */
    bool no_read_ahead;
    bags_env env;
} bag_reader_options;

/*
 * Open a Bag and check its structure. Local files are mapped; a file that cannot be
 * mapped is read. If NAME.idx exists, the Bag is split, is still being written, or its
 * writer crashed: the reader has the blobs flushed so far. Open the Bag again to see
 * more. After a power failure the journal may list more blobs than exist; this is an
 * error unless `unfinished` is READ.
 * Returns the reader, to be closed with bag_reader_close, or NULL:
 *   BAGS_ERROR_MISSING   no such file; with verify_checksums: no NAME.crc
 *   BAGS_ERROR_CORRUPT   not a Bag (too short, or its table is invalid); or its own
 *                        table contradicts NAME.idx; with verify_checksums: NAME.crc is
 *                        damaged or belongs to another Bag
 *   BAGS_ERROR_ARGUMENT, BAGS_ERROR_LIMIT (a table is too large to keep in memory)
 *
 * Cost: O(1), a few system calls. The table is read only with cache_index, with
 * unfinished READ, or if it seems to contradict NAME.idx. READ with verify_checksums
 * also reads the blobs that a journal lists.
 */
BAGI_CHECKED bag_reader *bag_reader_open(
    const char *path, const bag_reader_options *options, bags_error *err);

/* Like bag_reader_open, but for a v1 or v2 Bag in memory. The bytes are borrowed, must
 * not change until the reader is closed, and need not be aligned. Only the options
 * allow_empty_file and env have an effect; verify_checksums is an error. Returns the
 * reader, or NULL with BAGS_ERROR_CORRUPT, BAGS_ERROR_ARGUMENT or BAGS_ERROR_MEMORY.
 * Cost: O(1). */
BAGI_CHECKED bag_reader *bag_reader_open_memory(
    const void *data, size_t size, const bag_reader_options *options, bags_error *err);

/* Free a reader. */
BAGS_API void bag_reader_close(bag_reader *reader);

/* Number of blobs. */
BAGS_API uint64_t bag_reader_length(const bag_reader *reader);

/* Size of the Bag's file in bytes; if split, of the blobs and the index. */
BAGS_API uint64_t bag_reader_size(const bag_reader *reader);

/* Read one blob. *out is empty with data NULL on failure; otherwise see "Lifetime" at
 * the top. Returns BAGS_OK, BAGS_ERROR_RANGE, BAGS_ERROR_LIMIT (the blob is too large
 * for the address space), or BAGS_ERROR_CORRUPT: the table places the blob outside the
 * data; the file was truncated (if not mapped); with verify_checksums: checksum
 * mismatch. Cost: O(1) if mapped; otherwise one read, or two if the index is not
 * cached. verify_checksums adds a CRC-32C of the blob and, if the index is neither
 * mapped nor cached, a read of the stored CRC. */
BAGI_INLINE bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err);

/* Private: the cases of bag_reader_get that take more than two loads from a map. On
 * failure, data is NULL and size is the code. Returned by value so that a caller's *out
 * can stay in registers. */
BAGS_API bags_view bagi_bag_get(
    const bag_reader *reader, uint64_t index, bags_buffer *scratch, bags_error *err);

/* Private: get a blob whose index is in range. False if its table entries are
 * invalid. */
BAGI_INLINE bool bagi_mapped_blob(
    const bagi_mapped *mapped, uint64_t index, bags_view *out) {
    uint64_t start = bagi_load_u64(mapped->table + 8 * index);
    uint64_t stop = bagi_load_u64(mapped->table + 8 * (index + 1));
    if (BAGI_UNLIKELY(stop > mapped->limit))
        return false;
    /* If start > stop, the difference wraps around to more than stop. One instruction
     * subtracts and compares. */
    uint64_t size = stop - start;
    if (BAGI_UNLIKELY(size > stop))
        return false;
    out->data = mapped->data + start;
    out->size = BAGI_SIZE(size);
    return true;
}

/* Private: load a length that another thread may set. */
#if defined(__GNUC__) && __SIZEOF_POINTER__ == 8
#define BAGI_LENGTH(length) __atomic_load_n(&(length), __ATOMIC_RELAXED)
#else
#define BAGI_LENGTH(length) (length)
#endif

/* Private: also false if the blob must be read another way. */
BAGI_INLINE bool bagi_mapped_get(
    const bagi_mapped *mapped, uint64_t index, bags_view *out) {
    return !BAGI_UNLIKELY(index >= BAGI_LENGTH(mapped->length)) &&
           bagi_mapped_blob(mapped, index, out);
}

BAGI_INLINE bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err) {
    const void *mapped = reader;
    if (reader && out &&
        bagi_mapped_get(BAGI_CAST(const bagi_mapped *, mapped), index, out))
        return BAGS_OK;
    bags_view blob = bagi_bag_get(out ? reader : BAGI_NULL, index, scratch, err);
    bags_code code = blob.data ? BAGS_OK : BAGI_CAST(bags_code, blob.size);
    if (!out)
        return code;
    out->data = blob.data;
    out->size = code ? 0 : blob.size;
    return code;
}

/* Read the consecutive blobs start <= i < stop with one contiguous read. Lifetime and
 * errors as for bag_reader_get; BAGS_ERROR_RANGE means start > stop, and
 * BAGS_ERROR_CORRUPT names the first invalid blob. Cost: O(stop - start) to check the
 * entries; no copy if mapped, otherwise as many reads as one bag_reader_get. */
BAGI_CHECKED bags_code bag_reader_get_range(const bag_reader *reader, uint64_t start,
    uint64_t stop, bags_buffer *scratch, bag_blobs *out, bags_error *err);

/* Read many blobs: out[i] becomes blob indices[i], for 0 <= i < count. Lifetime and
 * errors as for bag_reader_get. Cost: O(count), plus a sort if the indices are
 * unsorted, and about 120 bytes of temporary memory per index. Without mmap, blobs are
 * read in file order, each once, neighbours in one read. */
BAGI_CHECKED bags_code bag_reader_get_many(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch, bags_view *out,
    bags_error *err);

/* The checksums and end offsets of consecutive blobs. */
typedef struct bags_checksums {
    size_t length;
    const unsigned char *crcs; /* `length` CRC-32C, 4 little-endian bytes each */
    const unsigned char *ends; /* as in bag_blobs */
    uint64_t start;            /* offset of the first blob in the file */
} bags_checksums;

/* Find the checksums and sizes of the blobs start <= i < stop without reading the
 * blobs. Requires a reader opened with verify_checksums (BAGS_ERROR_ARGUMENT
 * otherwise). Lifetime and errors as for bag_reader_get. Cost: O(stop - start); no copy
 * if mapped, otherwise 12 bytes of scratch per blob and two reads. */
BAGS_API BAGS_EXPERIMENTAL bags_code bag_reader_checksums(const bag_reader *reader,
    uint64_t start, uint64_t stop, bags_buffer *scratch, bags_checksums *out,
    bags_error *err);

#define BAGS_TRAILER_SIZE 44 /* bytes */

/* Experimental. The last bytes of NAME.crc; >>crc draws them. */
typedef struct bags_trailer {
    uint64_t length; /* number of blobs */
    uint64_t size;   /* of NAME.bag */
    /* CRC-32C of the table, of the CRCs, of the name, and of all Bags of the shard and
     * its spec.json: `shard` is the same in all trailers of a shard. */
    uint32_t table, crcs, name, shard;
    bool binds_shard; /* false: a standalone Bag; `shard` is 0 */
} bags_trailer;

/* Parse the last BAGS_TRAILER_SIZE bytes of a NAME.crc. Returns false if they are not a
 * trailer, or are damaged. */
BAGS_API BAGS_EXPERIMENTAL bool bags_trailer_load(
    const void *data, size_t size, bags_trailer *trailer);

#ifndef BAGS_NO_WRITER

typedef struct bag_writer_options {
    bool keep_idx;      /* keep the journal NAME.idx, for granular 0.22 */
    bool no_sync;       /* do not wait for stable storage on close */
    bool checksum;      /* write NAME.crc next to the Bag: a checksum per blob */
    size_t buffer_size; /* in bytes, rounded up to a power of two, at least 4 KiB; 0: 2
                           MiB */
    bags_env env;
} bag_writer_options;

/*
 * Create a new Bag. It stays locked until closed; flushed data can be read with
 * `unfinished`, even if the process dies. (If the path does not end in .bag, the
 * journal is PATH.idx, and readers do not find it automatically.)
 *
 * Returns the writer, to be ended with bag_writer_close or bag_writer_abort, or NULL:
 * BAGS_ERROR_EXISTS (also for NAME.idx or NAME.crc), BAGS_ERROR_MISSING (no such
 * directory), BAGS_ERROR_LOCKED, BAGS_ERROR_CHANGED. Memory: 1.5 times the buffer size,
 * or 1.75 times with checksums, whatever the Bag's length.
 */
BAGI_CHECKED bag_writer *bag_writer_open(
    const char *path, const bag_writer_options *options, bags_error *err);

/* Append a blob; data may be NULL if size is 0. *index (may be NULL) receives its
 * index. Returns BAGS_OK, BAGS_ERROR_IO, BAGS_ERROR_LIMIT (2^63 bytes) or
 * BAGS_ERROR_STATE (in a child process). The writer keeps its first failure, and every
 * later call returns it. A refused blob (BAGS_ERROR_ARGUMENT) does not stop the writer,
 * but close returns that failure again. Cost: a copy; system calls when a buffer is
 * full. */
BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data, size_t size,
    uint64_t *index, bags_error *err);

/* Forget refused blobs, much like clearerr, if the program has dealt with them: close
 * then succeeds without them. A failure that stopped the writer stays. NULL is
 * accepted. */
BAGS_API void bag_writer_clear(bag_writer *writer);

/* Pass all buffered data to the system, so that it survives the end of this process.
 * Errors as for bag_writer_append, or BAGS_ERROR_CHANGED if another process replaced or
 * removed one of the files. Cost: a write per file, and two stats. */
BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err);

/* Flush, and wait until the data is on stable storage. It then survives a power
 * failure: a reader with BAGS_UNFINISHED_READ finds it. Errors as for bag_writer_flush.
 * A failed sync stops the writer. Cost: three syncs, or four with checksums. */
BAGS_API bags_code bag_writer_sync(bag_writer *writer, bags_error *err);

/* Number of blobs appended. */
BAGS_API uint64_t bag_writer_length(const bag_writer *writer);

/* Size in bytes that the file would have if closed now. */
BAGS_API uint64_t bag_writer_size(const bag_writer *writer);

/* Write the table, wait for stable storage (unless no_sync), and remove the journal.
 * The writer is freed even on failure; NULL returns BAGS_OK. Returns the first failure,
 * with errors as for bag_writer_flush; flushed data and its journal then remain. If the
 * only failure is a refused blob, that is returned, but the Bag is complete. Cost:
 * copies the table from the journal; syncs as above. */
BAGS_API bags_code bag_writer_close(bag_writer *writer, bags_error *err);

/* Remove everything written, and free the writer. */
BAGS_API void bag_writer_abort(bag_writer *writer);

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>types
 * Type strings, values in memory, and the codecs that convert between values and blobs.
 * Any thread may call these functions; those before the registry allocate nothing.
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

/* The dtype's name ("float32"), and its code in NumPy's dtype.str without the byte
 * order ("f4"); "" if it is not a dtype. Static. */
BAGS_API const char *bags_dtype_name(bags_dtype dtype);
BAGS_API const char *bags_dtype_code(bags_dtype dtype);

/* Bytes per element; 0 if it is not a dtype. */
BAGS_API size_t bags_dtype_size(bags_dtype dtype);

/* The number of bytes that are reversed together when the byte order changes: the
 * element size, or half of it for complex numbers. Pass it to bags_swap_bytes. */
BAGS_API size_t bags_dtype_swap(bags_dtype dtype);

/* Parse a dtype in any of NumPy's spellings: "float32", "f4", "<f4", "single".
 * *big_endian (may be NULL) is set to true for big-endian elements (">f4"). Returns
 * BAGS_DTYPE_NONE if the text names no dtype listed above. */
BAGS_API bags_dtype bags_dtype_parse(const char *text, size_t size, bool *big_endian);

/* Compute an array's size in bytes. Returns false, with *size untouched, if it does not
 * fit in size_t or dtype is not a dtype. */
BAGS_API bool bags_array_size(
    bags_dtype dtype, size_t dims, const uint64_t *shape, size_t *size);

/* A parsed type string. Its views point into the string. */
typedef struct bags_type {
    bags_view name;      /* "array" */
    bags_view arguments; /* "float32,64,128", without parentheses */
    size_t count;        /* number of arguments; "q()" has an empty one */
    bool sequence;       /* it has a trailing [] */
} bags_type;

/* Parse a type string: name or name(arg,arg), optionally followed by []. *out is valid
 * as long as the text. Returns BAGS_OK or BAGS_ERROR_TYPE. Cost: O(length). */
BAGI_CHECKED bags_code bags_type_parse(
    const char *text, bags_type *out, bags_error *err);

/* Argument i, 0 <= i < type->count, or an empty view if there is none. Valid as long as
 * the type's text; not NUL-terminated. */
BAGS_API bags_view bags_type_argument(const bags_type *type, size_t i);

/* Parse argument i as a decimal number. Returns false, with *out untouched, if it is
 * missing, not a number, or above 2^64-1. */
BAGS_API bool bags_type_number(const bags_type *type, size_t i, uint64_t *out);

typedef enum bags_kind {
    BAGS_KIND_NONE = 0, /* no value; writers refuse it */
    BAGS_KIND_BLOB,     /* data, size: an encoded blob, stored as is, whatever the
                           field's type */
    BAGS_KIND_BYTES,    /* data, size: bytes, for a codec to encode */
    BAGS_KIND_UTF8,     /* data, size: UTF-8 text; may contain NUL */
    BAGS_KIND_UINT,     /* uint: a number from 0 to 2^64-1 */
    BAGS_KIND_INT,      /* sint: a number from -2^63 to 2^63-1 */
    BAGS_KIND_ARRAY,    /* data, size, dtype, dims, shape: elements in C order */
    BAGS_KIND_OBJECT,   /* object: defined by the codec's own header */
    BAGS_KIND_STORED,   /* uint: an already stored blob; see bags_stored */
    BAGS_KIND_REAL,     /* real: a number, for types such as float32 */
    BAGS_KIND_BOOL      /* uint: 0 or 1, for the type bool */
} bags_kind;

/*
 * A value in memory. It owns nothing. A value to write points to the caller's memory;
 * for a decoded value, the decoding function states how long it is valid.
 *
 * Array data is C-contiguous, in native byte order and, when decoded, aligned for
 * its dtype. shape has `dims` entries, slowest-varying first; an array with dims 0 is a
 * single element. data may be NULL if size is 0. A number is in both uint and sint if
 * it fits both; `kind` says which one counts, and the other may be 0. A decoded value
 * is never BAGS_KIND_REAL or BAGS_KIND_BOOL: a decoded float32 is an array.
 */
typedef struct bags_value {
    bags_kind kind;
    bags_dtype dtype;
    uint64_t uint;
    int64_t sint;
    double real;
    const void *data;
    size_t size; /* of data, in bytes */
    size_t dims;
    const uint64_t *shape;
    const void *object;
} bags_value;

/* Make values. The bytes passed must stay valid until the value has been used.
 * bags_utf8 takes NUL-terminated text. For bags_array, `shape` has `dims` entries, and
 * `data` has as many elements as their product. */
BAGS_API bags_value bags_int(int64_t number);
BAGS_API bags_value bags_uint(uint64_t number);
BAGS_API bags_value bags_real(double number);
BAGS_API bags_value bags_bool(bool yes);
BAGS_API bags_value bags_utf8(const char *text);
BAGS_API bags_value bags_utf8_sized(const char *text, size_t size);
BAGS_API bags_value bags_bytes(const void *data, size_t size);
BAGS_API bags_value bags_blob(const void *data, size_t size);
BAGS_API bags_value bags_array(
    bags_dtype dtype, size_t dims, const uint64_t *shape, const void *data);

/* For a bags_writer: refer to an earlier blob of the same field and shard instead of
 * passing new bytes. `blob` is the number that bags_writer_next returned before that
 * blob was appended. */
BAGS_API bags_value bags_stored(uint64_t blob);

/*
 * Converts values of a type to blobs and back.
 *
 *   names   the types it handles, separated by spaces: "jpeg jpg"
 *   open    checks the type's arguments and creates *state for the other three. The
 *           type and its text are invalid after the call. allocator is never NULL. If
 *           open is NULL, no arguments are accepted, and state is NULL
 *   encode  makes a blob. *blob, empty at the start, may point to the value's own bytes
 *           or into `scratch` (the codec may grow it). If NULL, only encoded blobs are
 *           accepted
 *   decode  makes a value, BAGS_KIND_NONE at the start. It may point to the blob's
 *           bytes or into `scratch`, but not into the state. Several threads may call
 *           it with one state at the same time. If NULL, blobs can be read but not
 *           decoded
 *   close   frees the state. May be NULL
 *   user    yours
 *
 * On failure the functions write err (see bags_fail) and return its code; the library
 * prefixes the message with the file, field and index.
 */
typedef struct bags_codec {
    const char *names;
    bags_code (*open)(const struct bags_codec *codec, const bags_type *type,
        const bags_allocator *allocator, void **state, bags_error *err);
    bags_code (*encode)(void *state, const bags_value *value, bags_buffer *scratch,
        bags_view *blob, bags_error *err);
    bags_code (*decode)(void *state, bags_view blob, bags_buffer *scratch,
        bags_value *value, bags_error *err);
    void (*close)(void *state);
    void *user;
    /* Experimental. NULL: the blobs need no dictionary. */
    const struct bags_codec_dictionary *dictionary;
} bags_codec;

/*
 * Experimental. Functions of a codec whose blobs may need a dictionary: 1 byte to 16
 * MiB that all blobs of a field share, stored in each shard's NAME.dict. Only the codec
 * interprets these bytes. The last three members are NULL if the codec never holds
 * blobs. `state` is the codec's state.
 *
 *   needed   true if a blob cannot be decoded without a dictionary. Any thread
 *   start    announces that a writer will encode with this state. `bytes` is the
 *            dictionary of the shard being continued or of the worker's previous shard;
 *            blobs may not need any other. If its size is 0 there is none, and the
 *            codec may make one from the first values, in encode or, if it holds blobs,
 *            in `make`. Called once, before encode; if not called (bags_encode), blobs
 *            must not need a dictionary
 *   find     finds the dictionary that a blob needs: one just encoded, or a caller's
 *            bags_blob. It fails if the blob needs another dictionary. The bytes are
 *            the same for all blobs of a state, and valid until close. The writer
 *            stores them in the shard before the blob
 *   prepare  makes *prepared from the content of NAME.dict, valid until discard. A
 *            reader calls it once for all shards with the same content
 *   discard  frees what prepare made
 *   decode   decodes a blob that needs a dictionary, like bags_codec.decode; several
 *            threads may share `prepared`. It must detect a blob that needs another
 *            dictionary
 *   holds    true while the codec collects values for a dictionary. The writer then
 *            holds encoded blobs in the field's buffer instead of passing them to the
 *            system. NULL: blobs are not held
 *   make     ends the hold: makes the dictionary from the collected values if it saves
 *            more space than it takes. Otherwise *made is false, and the codec may
 *            collect more values. Called when `holds` has become false, the buffer is
 *            full, the field is flushed, or its shard ends
 *   recode   re-encodes a held blob with the dictionary; a smaller result, in
 *            `scratch`, replaces the blob. Without a dictionary, *out is the blob
 *            itself
 */
typedef struct bags_codec_dictionary {
    bool (*needed)(void *state, bags_view blob);
    bags_code (*start)(void *state, bags_view bytes, bags_error *err);
    bags_code (*find)(void *state, bags_view blob, bags_view *bytes, bags_error *err);
    bags_code (*prepare)(
        void *state, bags_view bytes, void **prepared, bags_error *err);
    void (*discard)(void *state, void *prepared);
    bags_code (*decode)(void *state, const void *prepared, bags_view blob,
        bags_buffer *scratch, bags_value *value, bags_error *err);
    bool (*holds)(void *state);
    bags_code (*make)(void *state, bool *made, bags_error *err);
    bags_code (*recode)(void *state, bags_view blob, bags_buffer *scratch,
        bags_view *out, bags_error *err);
} bags_codec_dictionary;

/*
 * The codecs that a program uses. A registry must outlive its readers and writers. NULL
 * means the built-in codecs only. Every registry includes these:
 *
 *   bytes   BAGS_KIND_BYTES, stored as given
 *   utf8    BAGS_KIND_UTF8; invalid UTF-8 is refused
 *   int     BAGS_KIND_UINT; little-endian, in as few bytes as possible; 0 takes no
 *           bytes. If the top bit would be set (128 to 255, 2^15 to 2^16-1, ...), a
 *           zero byte is added, because granular 0.17.1 and later reads the bytes as
 *           signed. Blobs are read as unsigned, with or without that byte (bags 0.5
 *           does not write it)
 *   int(N), int(N,little), int(N,big)
 *           BAGS_KIND_UINT; N bytes; a number that does not fit is refused
 *   u64     BAGS_KIND_UINT; 8 bytes
 *   i64     BAGS_KIND_INT; 8 bytes, two's complement. All five accept both
 *           BAGS_KIND_UINT and BAGS_KIND_INT if the number fits
 *   array(float32,64,128)
 *           BAGS_KIND_ARRAY of exactly this dtype and shape. One dimension may be -1,
 *           for any size. Without dimensions it is a single element: array(float32)
 *           then also accepts BAGS_KIND_REAL, rounded to the dtype; array(bool) accepts
 *           BAGS_KIND_BOOL; array(int16) accepts BAGS_KIND_UINT and BAGS_KIND_INT. A
 *           number outside the dtype's range is refused
 *   float32, float32(64,128), and likewise for the other dtypes
 *           short for array(float32) and array(float32,64,128); writers store the long
 *           form: see bags_type_complete
 *   array   BAGS_KIND_ARRAY of any dtype and shape; the blob contains both
 */
typedef struct bags_registry bags_registry;

/* Create a registry with the built-in codecs; free it with bags_registry_free.
 * allocator NULL: malloc. Returns NULL if out of memory. */
BAGI_CHECKED bags_registry *bags_registry_create(
    const bags_allocator *allocator, bags_error *err);

/* Add a copy of a codec; its `names` and `user` must stay valid. A codec added later
 * takes precedence over earlier ones with the same name. Returns BAGS_OK or
 * BAGS_ERROR_ARGUMENT (no names). Threads: one, and only while no reader or writer uses
 * the registry. */
BAGS_API bags_code bags_registry_add(
    bags_registry *registry, const bags_codec *codec, bags_error *err);

/* The codec for a type's name, or NULL. registry NULL: the built-in codecs. Valid
 * until a codec is added or the registry is freed. Cost: O(codecs). */
BAGS_API const bags_codec *bags_registry_find(
    const bags_registry *registry, bags_view name);

/*
 * Complete a type whose name is a dtype: "float32" is short for "array(float32)",
 * "float32(2,3)[]" for "array(float32,2,3)[]", and "zstd(float32,2)" for
 * "zstd(array,float32,2)", unless a codec of the registry (may be NULL) has that
 * name. Other types are unchanged. The NUL-terminated result is written to `out`,
 * growing it. Returns BAGS_OK, BAGS_ERROR_TYPE (invalid) or BAGS_ERROR_MEMORY.
 */
BAGI_CHECKED bags_code bags_type_complete(
    const bags_registry *registry, const char *type, bags_buffer *out, bags_error *err);

#ifndef BAGS_NO_WRITER
/* Check a type's name as writers do: it must belong to a codec in the registry (may be
 * NULL), a dtype, or a codec in formats/. Returns BAGS_OK or BAGS_ERROR_TYPE; the
 * message suggests the name that was probably meant. Cost: O(codecs). */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_type_check(
    const bags_registry *registry, const char *type, bags_error *err);

/* The edit distance from a word to a name, ignoring case: the number of letters to
 * insert, delete, replace or swap with the next one. `also` lists synonyms of the name,
 * separated by spaces; if it contains the word, the distance is 0. SIZE_MAX if the word
 * probably does not mean this name. */
BAGS_API BAGS_EXPERIMENTAL size_t bags_word_distance(
    bags_view word, bags_view name, const char *also);
#endif

/* Free a registry, after the readers and writers that use it. */
BAGS_API void bags_registry_free(bags_registry *registry);

/*
 * Encode or decode one value (or one item of a sequence) by its type string. Any thread
 * can do this: encode with bags_encode, then let the thread that owns the writer append
 * the result as a bags_blob.
 *
 * The result is valid as long as the input, and until the scratch is reused or
 * freed. registry NULL: the built-in codecs. Neither function knows a shard's
 * dictionary: bags_decode fails on a blob that needs it; use bags_row_value for those.
 *
 * Returns BAGS_OK, BAGS_ERROR_TYPE, BAGS_ERROR_LIMIT or a code of a codec you added;
 * bags_encode also BAGS_ERROR_VALUE and BAGS_ERROR_ARGUMENT (nonzero size with NULL
 * data), bags_decode also BAGS_ERROR_CORRUPT (not a blob of this type). Cost: the
 * codec's, plus opening it for the type's arguments.
 */
#ifndef BAGS_NO_WRITER
BAGI_CHECKED bags_code bags_encode(const bags_registry *registry, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob, bags_error *err);
#endif
BAGI_CHECKED bags_code bags_decode(const bags_registry *registry, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err);

/* ========================================================================
 * >>writer
 * Writing datasets, in one directory or in shards, and finishing what crashed writers
 * left.
 * ====================================================================== */

/* A field: its name (the file is NAME.bag) and its type. */
typedef struct bags_field {
    const char *name;
    const char *type;
} bags_field;

/* Compare the fields of two datasets, both sorted by name as bags_reader_fields returns
 * them. Returns BAGS_OK, or BAGS_ERROR_FIELD with the first field whose name or type
 * differs; `where` names the source of `others` in the message: field "x": type
 * mismatch (u64, i64 in pets/000000). Cost: O(fields). */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_fields_compare(const bags_field *fields,
    size_t count, const bags_field *others, size_t others_count, const char *where,
    bags_error *err);

#ifndef BAGS_NO_WRITER

/* Write the content of spec.json to `out`, growing it as needed, as a writer with
 * any_type does. Fields may be in any order; *size receives the size in bytes. Returns
 * BAGS_OK or the errors of bags_writer_open for fields and types: BAGS_ERROR_FIELD,
 * BAGS_ERROR_TYPE, BAGS_ERROR_LIMIT. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_spec_text(const bags_field *fields,
    size_t count, const bags_registry *registry, bags_buffer *out, size_t *size,
    bags_error *err);

typedef struct bags_writer bags_writer;

/* How to treat an existing dataset, or existing shards of this worker. */
typedef enum bags_existing {
    BAGS_EXISTING_REFUSE = 0, /* fail */
    BAGS_EXISTING_RESUME,     /* continue after the last datapoint, or start anew */
    BAGS_EXISTING_APPEND      /* add shards for new inputs */
} bags_existing;

typedef struct bags_writer_options {
    uint64_t shard_size;    /* bytes per shard; 0: no limit */
    uint64_t shard_length;  /* datapoints per shard; 0: no limit */
    uint64_t shard_start;   /* this worker's index, below shard_stop */
    uint64_t shard_stop;    /* the number of workers. 0: one worker, unsharded unless
                               another of these is nonzero */
    bags_existing existing; /* how to treat shards this worker wrote before */
    /* Write NAME.crc next to each Bag, 4 bytes per blob. With RESUME and APPEND,
     * existing shards determine this and keep_idx: see bags_writer_open. */
    bool checksum;
    bool keep_idx;      /* keep the journals, so that granular 0.22 can read a dataset
                           without sequences. A shard with shared blobs (bags_stored)
                           keeps none, because granular takes blob i as the value of
                           datapoint i. If that is the first shard, RESUME and APPEND
                           with keep_idx are refused */
    bool no_sync;       /* finish shards without waiting for stable storage, except once
                           per shard for a dictionary */
    size_t buffer_size; /* per field; as in bag_writer_options. With a smaller buffer,
                           dictionaries are made from fewer values */
    /* Flush when a datapoint is appended at least this many seconds after the previous
     * flush, so that a crash loses little. 0: only full buffers are written. */
    double flush_seconds;
    bool any_type; /* accept unknown types, for bags_blob values, and store every type
                      as given: float32 stays float32 */
    const bags_registry *registry;
    bags_env env;
} bags_writer_options;

/*
 * Start a dataset, or this worker's shards of one. Fields may be in any order; on disk
 * they are sorted by name, and their types are complete: see bags_type_complete. Parent
 * directories are created as needed.
 *
 * Unsharded: `path` is created and must not exist. Sharded (any of the four shard
 * numbers is nonzero): path/000000, ... are created when their first datapoint arrives.
 * A shard ends after the datapoint that brings its Bags to shard_size bytes or its
 * length to shard_length. If only shard_stop is set, to 1, there is one shard.
 *
 * RESUME: pass the fields, shard_start and shard_stop of the first run, and skip this
 * worker's first bags_writer_resumed inputs. The worker's unfinished shard is
 * recovered, as bags_recover does, and continued; if there is none, writing continues
 * with a new shard. A partial datapoint is completed and counts as one. If it lacks a
 * value for a plain field, it is refused: run bags_recover with `values` or
 * `drop_partial`. Different worker numbers are detected only if they leave a gap; the
 * message then gives the smallest shard_stop that fits. A finished unsharded dataset
 * cannot be resumed.
 *
 * APPEND: pass only new inputs. New shards are numbered after this worker's last one,
 * or, after bags_finalize (when only APPEND is accepted), after all existing shards. An
 * unfinished shard of this worker is refused unless it is an empty directory, or it is
 * the worker's first shard and has no datapoint.
 *
 * RESUME and APPEND: new shards use the dictionaries of this worker's last shard. They
 * have checksums and .idx files if the first finished shard has them; requesting either
 * when it lacks them is an error. If no shard is finished, `checksum` and `keep_idx`
 * decide. An unfinished shard without checksums is refused if checksums are requested
 * or other shards have them.
 *
 * Returns the writer, to be ended with bags_writer_close or bags_writer_abort, or NULL:
 *   BAGS_ERROR_EXISTS    the dataset, or this worker's first shard, exists; with
 *                        RESUME: it is finished; without APPEND: bags_finalize
 *                        renumbered it
 *   BAGS_ERROR_VALUE     RESUME or APPEND: the fields differ, or existing shards lack
 *                        requested checksums or .idx files; another worker's shard has
 *                        different fields; a codec requests another dictionary
 *   BAGS_ERROR_GAP       a shard of this worker is missing, but a later one exists
 *   BAGS_ERROR_CORRUPT   the path has both spec.json and shards, or two shards with the
 *                        same number; a shard cannot be recovered
 *   BAGS_ERROR_LOCKED    RESUME or APPEND: another process holds the shard
 *   BAGS_ERROR_UNFINISHED  APPEND: this worker's shard is unfinished; RESUME: a partial
 *                          datapoint lacks a value for a plain field
 *   BAGS_ERROR_FIELD     a name is duplicate or reserved ("refs"), or cannot be a file
 *                        name on every system: empty, a leading '.', control
 *                        characters, / \ : * ? " < > |, device names such as "con",
 *                        invalid UTF-8, more than 251 bytes
 *   BAGS_ERROR_TYPE      an invalid type string, or an unknown type without any_type
 *                        (see bags_type_check). A codec that refuses its arguments, as
 *                        for int(0), returns its own code. Types from formats/ need no
 *                        codec (bags_blob)
 *   BAGS_ERROR_ARGUMENT  an invalid option, such as flush_seconds below 0
 *   BAGS_ERROR_LIMIT     too many fields; a shard number or spec.json is too large
 *   BAGS_ERROR_CHANGED
 *
 * Memory: as for a bag_writer, for each field and refs. Cost: RESUME and APPEND make a
 * few system calls per shard of this worker, and read an unfinished shard's journals
 * and refs (with checksums, also its blobs).
 */
BAGI_CHECKED bags_writer *bags_writer_open(const char *path, const bags_field *fields,
    size_t count, const bags_writer_options *options, bags_error *err);

/* The values of one field in a datapoint. */
typedef struct bags_entry {
    const char *field;
    const bags_value *values; /* one value, or a sequence's items */
    size_t count;             /* 1, or a sequence's number of items (0 or more) */
} bags_entry;

/*
 * Append a datapoint: one entry per field, in any order (the order passed to
 * bags_writer_open is fastest). It is written completely or not at all.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_FIELD     a field is missing, unknown or duplicate
 *   BAGS_ERROR_TYPE      no codec for a type (a bags_blob needs none)
 *   BAGS_ERROR_VALUE     a value its type cannot hold; not exactly one value; a
 *                        bags_blob that needs a different dictionary than the field
 *                        has; another worker's shard has different fields (compared
 *                        before a shard is finished)
 *   BAGS_ERROR_RANGE     a bags_stored that is not a blob of this shard: see
 *                        bags_writer_next
 *   BAGS_ERROR_ARGUMENT  an entry without a field name; a value whose data is NULL
 *   BAGS_ERROR_STATE     a datapoint was begun and not ended; a child process after
 *                        fork()
 *   BAGS_ERROR_CHANGED   another process replaced or removed files of the shard
 *   BAGS_ERROR_EXISTS    the next shard exists because two workers have the same
 *                        shard_start; the path became an unsharded dataset;
 *                        bags_finalize is renumbering the shards
 *   BAGS_ERROR_LOCKED    a recovery took the next shard before this writer locked it
 *   BAGS_ERROR_LIMIT     a file reached 2^63 bytes, or a shard number 10^18
 *   the codes of the codecs
 *
 * A refused datapoint (because of its fields, a value, or a call out of order) does not
 * stop the writer: the next one may be appended. Any other failure does, and every
 * later call returns it. Even if errors were ignored, close finishes the appended data
 * and returns the first failure, so a loop may check once at the end. A program that
 * handles a refusal itself calls bags_writer_clear. Codecs and hooks must return
 * normally, not by an exception or longjmp.
 *
 * Cost: the codecs', and a copy of the blobs. When a buffer is full, or a shard starts
 * or ends, it also makes system calls and may allocate. A dictionary is written and
 * synced before the first blob that needs it. A codec that makes one (zstd: see
 * formats/codecs.h) holds its field's first blobs in the buffer until it has enough. A
 * flush, a full buffer or the shard's end makes the dictionary from the held blobs,
 * within that call.
 */
BAGS_API bags_code bags_writer_append(
    bags_writer *writer, const bags_entry *entries, size_t count, bags_error *err);

/*
 * Append a datapoint in pieces, so that a long sequence need not be in memory:
 *
 *     bags_writer_begin(writer, err);
 *     bags_writer_set(writer, "caption", &caption, err);
 *     while (next_frame(&frame))
 *         bags_writer_push(writer, "frames", &frame, err);
 *     bags_writer_end(writer, err);
 *
 * A sequence without a push is empty. end appends the datapoint; cancel drops it,
 * including its flushed items. After a call fails, later ones fail too, and end drops
 * the datapoint and returns the failure. But if part of it was flushed, end stops the
 * writer instead, and bags_recover keeps that part. Flush a long recording now and
 * then, so that items survive a crash: see bags_writer_flush. Errors and cost as for
 * bags_writer_append; also BAGS_ERROR_STATE without begin, and BAGS_ERROR_VALUE for
 * setting a sequence or pushing to a plain field.
 */
BAGS_API bags_code bags_writer_begin(bags_writer *writer, bags_error *err);
BAGS_API bags_code bags_writer_set(
    bags_writer *writer, const char *field, const bags_value *value, bags_error *err);
BAGS_API bags_code bags_writer_push(
    bags_writer *writer, const char *field, const bags_value *item, bags_error *err);
BAGS_API bags_code bags_writer_end(bags_writer *writer, bags_error *err);
BAGS_API void bags_writer_cancel(bags_writer *writer);

/* Forget refused datapoints, much like clearerr, if the program has dealt with them:
 * close then succeeds without them. First end or cancel a datapoint that was begun. A
 * failure that stopped the writer stays. NULL is accepted. */
BAGS_API void bags_writer_clear(bags_writer *writer);

/* Pass every complete datapoint to the system, so that it survives the end of this
 * process. The values of a datapoint that was begun survive, too: bags_recover keeps
 * them. Fields with held blobs make their dictionaries from these and use them for the
 * rest of this writer's datapoints. Returns BAGS_OK, BAGS_ERROR_LIMIT,
 * BAGS_ERROR_STATE, BAGS_ERROR_CHANGED, or an earlier failure. Cost: a write per file,
 * and two stats. A flush within a datapoint also takes 12 bytes plus 16 per field until
 * the shard is finished, and a sync if the datapoint is cancelled. */
BAGS_API bags_code bags_writer_flush(bags_writer *writer, bags_error *err);

/* Flush, and wait until the unfinished shard's data is on stable storage, where it
 * survives a power failure. (With no_sync, earlier shards may not.) Errors as for
 * bags_writer_flush. A failed sync stops the writer. Cost: about five syncs plus two
 * per field; with checksums, six plus three per field. */
BAGS_API bags_code bags_writer_sync(bags_writer *writer, bags_error *err);

/*
 * The number that a field's next blob will have. UINT64_MAX if the field does not exist
 * or an argument is NULL; no value can refer to this number. Datapoints with the same
 * value can share one stored blob:
 *
 *     uint64_t photo = bags_writer_next(writer, "image");
 *     value = bags_bytes(jpeg, size);   // appended with the first question
 *     value = bags_stored(photo);        // with the others
 *
 * Numbers count the field's blobs in all of this writer's shards since it was opened
 * (with RESUME, from the first blob of the shard it continues). The numbers of a
 * refused datapoint are reused. A number from a shard no longer being written is
 * BAGS_ERROR_RANGE: in that case append the value itself, and call bags_writer_clear. A
 * sequence's items must have successive numbers (first, first + 1, ...), and new items
 * can only follow the field's last blob; otherwise BAGS_ERROR_VALUE.
 */
BAGS_API uint64_t bags_writer_next(const bags_writer *writer, const char *field);

/* Number of datapoints appended since the writer was opened, in all its shards. */
BAGS_API uint64_t bags_writer_length(const bags_writer *writer);

/* With RESUME, the number of this worker's datapoints that existed when the writer was
 * opened; with APPEND, 0. A partial datapoint that RESUME completed counts, although a
 * reader with BAGS_UNFINISHED_READ did not show it. Refused datapoints do not count: a
 * worker that skips inputs must store input numbers in a field. */
BAGS_API uint64_t bags_writer_resumed(const bags_writer *writer);

/* Size in bytes that the Bags, including refs, would have if the writer were closed
 * now, over all shards that it finished, began or resumed. Held blobs count with their
 * size without a dictionary, so the size may shrink when they are released. */
BAGS_API uint64_t bags_writer_size(const bags_writer *writer);

/* Number of shards finished since the writer was opened; 0 for an unsharded dataset. */
BAGS_API uint64_t bags_writer_shards(const bags_writer *writer);

/*
 * Finish the shard. The writer is freed even on failure; NULL returns BAGS_OK. On
 * success the dataset is complete and, unless no_sync, on stable storage. If the writer
 * was stopped (see bags_writer_append), a datapoint was begun but not ended, or
 * finishing fails, the shard stays unfinished: resume or recover it. (If only waiting
 * for stable storage failed, it is complete.) Returns the first of these failures. If
 * there is none, returns the first refusal since the writer was opened or
 * bags_writer_clear was called; the dataset is then complete without the refused data,
 * such as a datapoint whose bags_writer_push failed, ended or not. Cost: copies the
 * tables from the journals; unless no_sync, one sync per remaining file, and about
 * three more.
 */
BAGS_API bags_code bags_writer_close(bags_writer *writer, bags_error *err);

/* Remove the unfinished shard, and free the writer. Finished shards stay; so does the
 * part of a resumed shard that existed before. */
BAGS_API void bags_writer_abort(bags_writer *writer);

/* The outcome of bags_recover for a shard (with dry_run, the outcome it would have). */
typedef enum bags_recovery {
    BAGS_RECOVERY_NOTHING,  /* it was already finished */
    BAGS_RECOVERY_FINISHED, /* its flushed data is now a complete shard */
    BAGS_RECOVERY_REMOVED,  /* it contained no datapoint */
    BAGS_RECOVERY_LOCKED,   /* a running writer holds it: unchanged */
    BAGS_RECOVERY_FAILED    /* unchanged; `reason` is the error */
} bags_recovery;

typedef struct bags_recovered {
    const char *path; /* of the shard */
    bags_recovery action;
    uint64_t length;    /* datapoints kept */
    uint64_t truncated; /* bytes removed after them, in all Bags and journals */
    const char *reason; /* why the datapoints end there, or the error; or "" */
    bool partial;       /* the last datapoint is partial: it was not ended */
    uint64_t items;     /* items in that datapoint's sequences */
    size_t remedy;      /* offset in `reason`, like bags_error.remedy */
} bags_recovered;

typedef struct bags_recover_options {
    bool dry_run;           /* report, but change nothing, and keep nothing locked */
    bool keep_idx, no_sync; /* as in bags_writer_options */
    uint64_t shard_start, shard_stop;
    void (*each)(void *user, const bags_recovered *shard); /* in order */
    void *user;
    bags_env env;
    bool drop_partial; /* remove partial datapoints */
    /* Values for plain fields that lack one in a partial datapoint, the same in every
     * shard. A field that has a value keeps it. */
    const bags_entry *values;
    size_t values_count;
    const bags_registry *registry; /* encodes the values */
} bags_recover_options;

/* Shard counts by outcome. */
typedef struct bags_recover_report {
    uint64_t finished_before, finished_now, removed, locked, failed;
    uint64_t length;    /* datapoints kept in the shards finished now */
    uint64_t truncated; /* bytes removed */
} bags_recover_report;

/*
 * Finish a crashed writer's dataset, or all unfinished shards of a dataset. (For a
 * standalone Bag, read the blobs with `unfinished`, and copy them to a new one.)
 *
 * An unfinished shard keeps the datapoints up to the first incomplete one in any file;
 * the rest is truncated, and the shard is finished. A partial datapoint after them is
 * kept with the items its last flush confirmed, and ended. If it lacks a value for a
 * plain field, the shard is left unchanged until `values` has one or drop_partial is
 * set. If a shard has no datapoint, the files a writer creates are removed, and so is
 * the directory if it is then empty. Finished shards, shards locked by a running
 * writer, directories without a writer's record (spec.json.partial), and shards whose
 * damage a crash cannot explain are left unchanged. Recovery may be interrupted and
 * repeated. After a failed sync, check the disk and restart the machine first: until
 * then the system may return bytes that the disk lost.
 *
 * Returns BAGS_OK or, after processing all other shards, the first failure:
 *   BAGS_ERROR_MISSING, BAGS_ERROR_LOCKED, BAGS_ERROR_CHANGED, BAGS_ERROR_LIMIT
 *   BAGS_ERROR_CORRUPT     a shard cannot be recovered; the path has both spec.json and
 *                          shards
 *   BAGS_ERROR_UNFINISHED  a partial datapoint lacks a value for a plain field
 *   BAGS_ERROR_FIELD       an entry in `values` is not a single value for a plain field
 *   BAGS_ERROR_ARGUMENT    the path is a file
 *   the codes of the codecs for `values`
 *
 * Memory: about 256 KiB per field. Cost: a few system calls per shard; reads the
 * journals and refs (with checksums, also the blobs) of unfinished shards.
 */
BAGS_API bags_code bags_recover(const char *path, const bags_recover_options *options,
    bags_recover_report *report, bags_error *err);

typedef struct bags_finalize_options {
    bool no_sync; /* do not wait for stable storage */
    bags_env env;
} bags_finalize_options;

/*
 * Close the gaps in a sharded dataset's numbers, as Python readers require, by renaming
 * shards to 000000, 000001, ... On success *renamed (may be NULL) receives the number
 * of renamed shards. Call it when all workers are done and no reader has the dataset
 * open. If it is interrupted, the dataset is intact but still has gaps: repeat it.
 *
 * If there were gaps, a mark is left in the first shard: the file `finalized`. Readers
 * ignore it. From then on, workers may only open the dataset or start another shard
 * with APPEND, because the numbers no longer show which worker wrote a shard. A failure
 * before the first shard is renamed removes the mark.
 *
 * Returns BAGS_OK, BAGS_ERROR_MISSING (no shards), BAGS_ERROR_LOCKED (another process
 * is writing a shard's checksums), BAGS_ERROR_EXISTS (a writer started a shard
 * meanwhile), BAGS_ERROR_CORRUPT (there is also a spec.json; two shards with the same
 * number), BAGS_ERROR_CHANGED, BAGS_ERROR_LIMIT, or BAGS_ERROR_UNFINISHED: a shard is
 * unfinished, and nothing was renamed; or a worker claimed it in between, and only the
 * first shard was renamed. Cost: a few system calls per shard.
 */
BAGS_API bags_code bags_finalize(const char *path, const bags_finalize_options *options,
    uint64_t *renamed, bags_error *err);

#ifndef BAGS_NO_CHECKSUM
/* The outcome of bags_checksum for a Bag. */
typedef struct bags_checksummed {
    const char *path; /* of the Bag */
    bool kept;        /* it already had checksums; its blobs were not compared */
    uint64_t length;  /* blobs */
    uint64_t size;    /* bytes of the Bag */
} bags_checksummed;

typedef struct bags_checksum_options {
    bool replace; /* replace existing checksums, accepting the files' current content as
                     correct */
    bool no_sync; /* do not wait for stable storage */
    uint64_t shard_start, shard_stop;
    void (*each)(void *user, const bags_checksummed *bag); /* after each Bag */
    void *user;
    bags_env env;
} bags_checksum_options;

/* Numbers of Bags that received checksums, and that already had them. */
typedef struct bags_checksum_report {
    uint64_t made, kept;
    uint64_t blobs, size; /* of the Bags that received them; size in bytes */
} bags_checksum_report;

/*
 * Write checksums (NAME.crc) for the Bags of a finished dataset, or for a standalone
 * Bag, of any variant. No other file is changed. The call may be interrupted and
 * repeated. It locks each shard in turn; readers need not be closed.
 *
 * Stops at the first failure. Returns BAGS_OK, BAGS_ERROR_MISSING, the errors of
 * bags_reader_open, or
 *   BAGS_ERROR_UNFINISHED  a shard is unfinished; nothing was written
 *   BAGS_ERROR_CORRUPT     a Bag's table or spec.json is invalid; existing checksums
 *                          are damaged or belong to another version of their shard: see
 *                          `replace`
 *   BAGS_ERROR_LOCKED      another process is writing the shard or its checksums
 *   BAGS_ERROR_ARGUMENT    a file that belongs to a dataset
 *   BAGS_ERROR_IO          also if a file or shard is a symbolic link (ELOOP)
 * Cost: reads every byte of the Bags that receive checksums.
 */
BAGS_API bags_code bags_checksum(const char *path, const bags_checksum_options *options,
    bags_checksum_report *report, bags_error *err);

#endif /* BAGS_NO_CHECKSUM */
#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>reader
 * Reading a dataset, with all of its shards, as one list of datapoints.
 * ====================================================================== */

typedef struct bags_reader bags_reader;

typedef struct bags_reader_options {
    uint64_t shard_start, shard_stop;
    bool allow_gaps; /* if shards are missing, read the others */
    /* For unfinished shards, and split datasets whose fields differ in length. */
    bags_unfinished unfinished;
    bool no_mmap, cache_index; /* as in bag_reader_options */
    /* As in bag_reader_options, but also for refs.bag and spec.json; every NAME.crc
     * must exist. */
    bool verify_checksums;
    size_t max_files;   /* with no_mmap: limit on open files; 0: 64, or 4,096 if env.io
                           has `expect`: remote files need no descriptors */
    bool no_read_ahead; /* as in bag_reader_options */
    const bags_registry *registry;
    bags_env env;
} bags_reader_options;

/*
 * Open a dataset, sharded or not.
 *
 * With unfinished READ, unfinished shards are included, with the datapoints ended and
 * flushed so far. bags_recover would keep the same datapoints, with two exceptions:
 *   - A datapoint that was flushed before its end (see bags_writer_begin) is not shown.
 *     bags_recover and RESUME keep and count it. A program that counts datapoints to
 *     find where its input continues must use bags_writer_resumed.
 *   - Without verify_checksums, datapoints with wrong checksums are shown.
 * Open again to see more. The reader stays valid when writers finish. If one aborts,
 * reading its shard fails or still returns the discarded data. While several workers
 * are writing, shard numbers usually have gaps: see allow_gaps.
 *
 * If a shard is replaced, renamed or removed later, opening one of its files fails, so
 * that rows never mix two versions. Open the dataset again in that case.
 *
 * Returns the reader, to be closed with bags_reader_close, or NULL:
 *   BAGS_ERROR_MISSING     no such directory, or not a dataset; with
 *                          verify_checksums: no NAME.crc
 *   BAGS_ERROR_UNFINISHED  a shard is unfinished; or a split dataset's fields
 *                          differ in length
 *   BAGS_ERROR_GAP         shards are missing; the message lists them. Shards missing
 *                          at the end leave no gap and are not detected. Or a shard was
 *                          removed or renamed meanwhile
 *   BAGS_ERROR_CORRUPT     spec.json or a Bag is invalid; shards have different specs
 *                          or the same number; the path has both spec.json and shards;
 *                          with verify_checksums: checksums do not belong together
 *   BAGS_ERROR_FIELD       spec.json names a file outside the dataset
 *   BAGS_ERROR_TYPE        spec.json has an invalid type string
 *   BAGS_ERROR_LIMIT       spec.json or a shard number is too large
 *   BAGS_ERROR_ARGUMENT, BAGS_ERROR_CHANGED
 *
 * Cost: a few system calls per shard (split, or with verify_checksums: per field). No
 * table is read, and no file stays open. Unfinished shards are never mapped: their
 * journals and refs (with verify_checksums, also blobs) are read, 8 bytes (12) per blob
 * stay in memory, and up to max_files files stay open.
 */
BAGI_CHECKED bags_reader *bags_reader_open(
    const char *path, const bags_reader_options *options, bags_error *err);

/* Free a reader. The caller still has to free its rows. */
BAGS_API void bags_reader_close(bags_reader *reader);

/* Number of datapoints in all shards. */
BAGS_API uint64_t bags_reader_length(const bags_reader *reader);

/* The path that the reader was opened with, for messages; "" for NULL. */
BAGS_API const char *bags_reader_path(const bags_reader *reader);

/* A hash of the identity, number and length of every shard: two readers of the same
 * path with equal versions read the same datapoints. 0 if the hooks have no
 * `identify`. */
BAGS_API BAGS_EXPERIMENTAL uint64_t bags_reader_version(const bags_reader *reader);

/* The fields, sorted by name; *count receives their number. Other functions identify a
 * field by its index in this array. */
BAGS_API const bags_field *bags_reader_fields(const bags_reader *reader, size_t *count);

/* Find a field's index by name and store it in *field. Returns BAGS_OK or
 * BAGS_ERROR_FIELD. Cost: O(log n) for n fields. */
BAGI_CHECKED bags_code bags_reader_field(
    const bags_reader *reader, const char *name, size_t *field, bags_error *err);

/* A field's parsed type; NULL if the field does not exist. */
BAGS_API const bags_type *bags_reader_type(const bags_reader *reader, size_t field);

typedef struct bags_shard {
    uint64_t number; /* the shard's name as a number; 0 if unsharded */
    uint64_t start;  /* the index of its first datapoint */
    uint64_t length; /* its number of datapoints */
    unsigned digits; /* in its name, including leading zeros; 0 if unsharded */
    bool unfinished; /* only with BAGS_UNFINISHED_READ */
} bags_shard;

/* The shards being read, in order; *count receives their number. Gaps show in the shard
 * numbers. */
BAGS_API const bags_shard *bags_reader_shards(const bags_reader *reader, size_t *count);

/* Write the path of a shard's directory to `out`, NUL-terminated: PATH/000003, or PATH
 * if the dataset is not sharded. Returns BAGS_OK, or BAGS_ERROR_LIMIT if it does not
 * fit in `size` bytes. */
BAGI_CHECKED bags_code bags_shard_path(
    const char *path, const bags_shard *shard, char *out, size_t size, bags_error *err);

typedef struct bags_info {
    bool sharded;       /* a directory of shards */
    uint64_t skipped;   /* unfinished shards that were skipped */
    uint64_t checksums; /* shards that have checksums */
    uint64_t size;      /* bytes in all Bags, including refs (and .idx if split),
                           without spec.json, checksums and dictionaries */
} bags_info;

typedef struct bags_field_info {
    uint64_t blobs; /* the field's blobs in all shards, used or not */
    uint64_t size;  /* bytes of these blobs */
} bags_field_info;

/* Describe a dataset. `fields` is NULL or an array with one element per field to fill.
 * On failure, both outputs are unspecified. File errors as for bags_reader_get. Cost:
 * opens every Bag. */
BAGI_CHECKED bags_code bags_reader_info(const bags_reader *reader, bags_info *info,
    bags_field_info *fields, bags_error *err);

/*
 * Check that everything the reader returned comes from one version of the dataset. If
 * hooks look files up in advance (expect), a shard may have been replaced after the
 * lookup, so call this after the last read. Otherwise shards are identified when a Bag
 * is opened. The first read of a datapoint also performs this check, so that all shard
 * lengths, and thus all indices, come from one version.
 *
 * Returns BAGS_OK, file errors as for bags_reader_get, or BAGS_ERROR_CHANGED if a shard
 * was replaced; the message names it. Cost: none for local files; otherwise one round
 * trip if Bags were opened since the last call.
 */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_check(
    const bags_reader *reader, bags_error *err);

/* Check that a shard (an index into bags_reader_shards) was not replaced since it was
 * opened. For programs that open or link the shard's files by path, as bags_derive
 * does: call it afterwards. Errors as for bags_reader_check. Cost: one stat. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_check_shard(
    const bags_reader *reader, size_t shard, bags_error *err);

/*
 * Selects a field of a datapoint or, if `slice` is true, only the items start, start +
 * step, ... below stop of a sequence. If `slice` is false, start, stop and step must be
 * 0. bags_select_all and bags_select_slice make selections.
 */
typedef struct bags_select {
    size_t field;
    bool slice;
    uint64_t start, stop; /* see "Ranges" at the top; UINT64_MAX: to the end */
    uint64_t step;        /* 0: 1 */
} bags_select;

/* Select an entire field, or a slice of a sequence (empty if start equals stop). */
BAGS_API bags_select bags_select_all(size_t field);
BAGS_API bags_select bags_select_slice(
    size_t field, uint64_t start, uint64_t stop, uint64_t step);

/* Private: a row's data for one selection. */
struct bagi_slot {
    size_t field;
    size_t length;
    bags_view *items;
};

/* Holds scratch memory and results of reader calls: see "Scratch" at the top. A row may
 * be used with any number of readers; it keeps the first one's allocator. Free it with
 * bags_row_free. The members are private. */
typedef struct bags_row {
    const bags_reader *reader;
    uint64_t index;
    uint64_t shard;
    size_t length;
    bags_buffer slots;   /* struct bagi_slot */
    bags_buffer items;   /* of all slots */
    bags_buffer data;    /* blobs that are not mapped */
    bags_buffer scratch; /* blobs of refs.bag */
    bags_buffer refs;    /* the same, parsed */
    bags_buffer spans, ref_spans;
    struct bagi_block *values; /* memory of decoded values */
    bool stale;                /* `values` is from an earlier use */
} bags_row;

/*
 * Read a datapoint.
 *
 * The row holds the result: slot i for selects[i]. Views of mapped data are not copied
 * and stay valid until the reader is closed, others until the row is reused or freed.
 * On failure the row is empty.
 *
 * `selects` has `count` selections, in any order; a field may occur more than once.
 * NULL selects all fields in full, in order.
 *
 * Returns BAGS_OK, BAGS_ERROR_RANGE, BAGS_ERROR_FIELD, or
 *   BAGS_ERROR_TYPE      a slice of a plain field
 *   BAGS_ERROR_ARGUMENT  start, stop or step without slice
 *   BAGS_ERROR_CORRUPT   refs.bag or a table is invalid; the message names the file and
 *                        index; with verify_checksums: checksum mismatch
 *   BAGS_ERROR_CHANGED   the shard was replaced since the reader was opened
 *   BAGS_ERROR_MISSING   the shard was removed or renamed before its files were opened
 *   BAGS_ERROR_LIMIT     too large for the address space
 *
 * Cost: if mapped, a few nanoseconds per item and per field of the dataset; no system
 * calls and, once the row has grown, no allocations, except that a file is opened on
 * first use. Otherwise one contiguous read of refs.bag and of each selected field
 * (several for a slice with a large step), plus the same for its table if the index is
 * not cached.
 */
BAGI_CHECKED bags_code bags_reader_get(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err);

/* Read one blob of a datapoint: an item of a sequence, or item 0 of a plain field. *out
 * is valid like a row's views; on failure it is empty with data NULL. Errors as for
 * bags_reader_get, including BAGS_ERROR_RANGE for the item. Costs less than
 * bags_reader_get. */
BAGI_CHECKED bags_code bags_reader_get_blob(const bags_reader *reader, uint64_t index,
    size_t field, uint64_t item, bags_row *row, bags_view *out, bags_error *err);

/*
 * Like bags_reader_get_blob, but read only `size` bytes starting at `offset`. The part
 * is clamped to the blob, as ranges are: compare out->size with `size`. A size of
 * UINT64_MAX reads to the end.
 *
 * With verify_checksums, a part that is not the entire blob is BAGS_ERROR_ARGUMENT,
 * because the checksum covers all bytes. Cost: no copy if mapped, otherwise one read.
 */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_get_part(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, uint64_t offset, uint64_t size,
    bags_row *row, bags_view *out, bags_error *err);

/* Read a plain field of the datapoints start <= i < stop. The row then has one slot
 * with an item per datapoint. Lifetime and errors as for bags_reader_get;
 * BAGS_ERROR_TYPE for a sequence. Cost: O(stop - start); without mmap, neighbouring
 * blobs take one read. */
BAGI_CHECKED bags_code bags_reader_get_range(const bags_reader *reader, uint64_t start,
    uint64_t stop, size_t field, bags_row *row, bags_error *err);

/* Read a plain field of many datapoints. The row then has one slot, with item i for
 * indices[i], 0 <= i < count. For several fields, use one row each. Lifetime and errors
 * as for bags_reader_get_range. Cost: O(count), plus a sort unless the blobs are in
 * file order; without mmap, neighbouring blobs take one read. */
BAGI_CHECKED bags_code bags_reader_get_many(const bags_reader *reader,
    const uint64_t *indices, size_t count, size_t field, bags_row *row,
    bags_error *err);

/* Start reading datapoints from disk, all at once, so that reads soon afterwards find
 * them in memory. Waits for the refs and tables involved, but not for the blobs.
 * selects and errors as for bags_reader_get. Cost: about a microsecond per blob already
 * in memory. */
BAGS_API bags_code bags_reader_prefetch(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count, bags_row *row, bags_error *err);

/* Like bags_reader_prefetch, but with separate selections per datapoint: those for
 * indices[i] start at selects[i * select_count]. Errors as for bags_reader_get. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_prefetch_each(
    const bags_reader *reader, const uint64_t *indices, size_t count,
    const bags_select *selects, size_t select_count, bags_row *row, bags_error *err);

/* A part of a blob: `size` bytes from byte `offset`, clamped to the blob. */
typedef struct bags_extent {
    uint64_t offset, size;
} bags_extent;

/* Like bags_reader_prefetch_each with one selection per index, each of a single blob: a
 * plain field, or a slice of one item. Only parts[i] of the blob is requested, for
 * bags_reader_get_part. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_prefetch_parts(
    const bags_reader *reader, const uint64_t *indices, size_t count,
    const bags_select *selects, const bags_extent *parts, bags_row *row,
    bags_error *err);

/* Tell the CPU that mapped datapoints will be read next, so that their cache misses
 * overlap. Meant for about 64 small datapoints in random order. It affects only plain
 * fields in files that were used before. This is only a hint: it returns nothing and
 * never fails; indices may be out of range. selects as for bags_reader_get. Cost: a few
 * nanoseconds per field and datapoint. */
BAGS_API BAGS_EXPERIMENTAL void bags_reader_touch(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count);

/* Count a sequence's items in a datapoint without reading blobs; *count is 1 for a
 * plain field. Errors as for bags_reader_get. Cost: reads refs, and opens the field's
 * Bag. */
BAGI_CHECKED bags_code bags_reader_items(const bags_reader *reader, uint64_t index,
    size_t field, bags_row *row, uint64_t *count, bags_error *err);

/* Experimental. The blobs that belong to a datapoint in the shard's Bag of a field:
 * `count` blobs starting at number `first`. A plain field has one. */
typedef struct bags_ref {
    uint64_t first, count;
} bags_ref;

/* Find the blobs that belong to a datapoint, without reading them: refs[i] for each
 * field i. A ref that exceeds its Bag is BAGS_ERROR_CORRUPT. Errors as for
 * bags_reader_get; on failure, refs is unspecified. Cost: reads refs, and opens every
 * field's Bag. */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_refs(const bags_reader *reader,
    uint64_t index, bags_row *row, bags_ref *refs, bags_error *err);

#ifndef BAGS_NO_WRITER
/* Experimental, like the report. */
typedef struct bags_complete_options {
    /* For each field, the path of the original Bag that the shard's Bag is a link to or
     * a copy of: the CRCs in the original's NAME.crc are copied. NULL: no checksums are
     * written; bags_checksum can compute them once spec.json exists. */
    const char *const *checksums;
    bool no_sync; /* do not wait for stable storage */
    void *user;   /* of `refs` */
    bags_env env;
} bags_complete_options;

/* Sizes in bytes of the existing Bags, and of the files written. */
typedef struct bags_complete_report {
    uint64_t existing, written;
} bags_complete_report;

/*
 * Complete a shard whose field Bags exist: write refs.bag, in the same layout as these
 * Bags (v1 or v2), and every NAME.crc. No blob is read. bags_derive uses this to make
 * shards from hard links; a program may also rename fields or move Bags. Store
 * spec.json last: it makes readers accept the shard.
 *
 *   directory  has a complete FIELD.bag for every field, and FIELD.dict where blobs
 *              need one; has no refs.bag or NAME.crc
 *   spec       the content of its spec.json: see bags_spec_text
 *   length     datapoints
 *   refs       sets refs[i] for each field i, in the order of `spec`. It is called for
 *              datapoints 0, 1, ..., length - 1; a plain field's count is ignored. Its
 *              failure is returned
 *
 * An empty file is an empty v2 Bag. Next to v1 Bags it would be invalid, so an empty v1
 * Bag replaces it. After a failure, remove the files.
 *
 * Returns BAGS_OK, what `refs` returned, or
 *   BAGS_ERROR_MISSING   no FIELD.bag, or no NAME.crc to copy
 *   BAGS_ERROR_EXISTS    refs.bag already exists
 *   BAGS_ERROR_RANGE     a ref exceeds its Bag
 *   BAGS_ERROR_CORRUPT   a Bag or `spec` is invalid; NAME.crc is damaged, or belongs to
 *                        a Bag with a different length, size, name or dictionary
 *   BAGS_ERROR_FIELD, BAGS_ERROR_TYPE  an invalid name or type in `spec`
 *   BAGS_ERROR_ARGUMENT  a path in `checksums` does not end in .bag; or `checksums`
 *                        with BAGS_NO_CHECKSUM
 *   BAGS_ERROR_IO        also, with `checksums`, if a Bag is a symbolic link
 *
 * Memory: 1 MiB, and 50 bytes per field. Cost: a few system calls per field; with
 * `checksums`, the tables are read and the CRCs copied.
 */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_shard_complete(const char *directory,
    bags_view spec, uint64_t length,
    bags_code (*refs)(void *user, uint64_t datapoint, bags_ref *refs, bags_error *err),
    const bags_complete_options *options, bags_complete_report *report,
    bags_error *err);
#endif

/*
 * View a plain field's mapped blobs in a shard (an index into bags_reader_shards) as
 * they are stored, without a copy. If all have the same size, they form an array
 * [length, ...].
 *
 *   in_order  true: succeed only if blob n belongs to datapoint n for every datapoint,
 *             and every table entry is valid. false: blobs may belong to any datapoint
 *             or none, and the caller must check that ends[n - 1] <= ends[n] <= size
 *   out       valid until the reader is closed; unaligned. If the shard is empty, is
 *             not mapped, or is verified on reading, it has 0 blobs, and data and ends
 *             are NULL: use bags_reader_get_range
 *
 * The row is scratch and is empty afterwards. Returns BAGS_OK, the errors of
 * bags_reader_get, or
 *   BAGS_ERROR_RANGE  no such shard; or the blobs are not in datapoint order
 *   BAGS_ERROR_TYPE   the field is a sequence
 *
 * Cost: O(1); the first time with in_order, O(length) to check the table and refs.
 */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_reader_blobs(const bags_reader *reader,
    uint64_t shard, size_t field, bool in_order, bags_row *row, bag_blobs *out,
    bags_error *err);

/* Private. */
BAGI_INLINE struct bagi_slot *bagi_row_slots(const bags_row *row) {
    void *slots = row->slots.data;
    return BAGI_CAST(struct bagi_slot *, slots);
}

/* Number of items in a slot: 1 for a plain field of one datapoint; 0 if the slot
 * does not exist. */
BAGI_INLINE size_t bags_row_length(const bags_row *row, size_t slot) {
    return row && slot < row->length ? bagi_row_slots(row)[slot].length : 0;
}

/* An item's encoded blob, or an empty view if there is no such item. Valid as described
 * for bags_reader_get. Cost: O(1). */
BAGI_INLINE bags_view bags_row_bytes(const bags_row *row, size_t slot, size_t item) {
    bags_view none = {BAGI_NULL, 0};
    if (BAGI_UNLIKELY(item >= bags_row_length(row, slot)))
        return none;
    return bagi_row_slots(row)[slot].items[item];
}

/* True if an item's blob, at `data`, is in the row's own memory, and valid until the
 * row is reused or freed. Otherwise it is valid until the reader is closed. */
BAGI_INLINE bool bags_row_owns(const bags_row *row, const void *data) {
    return bags_buffer_contains(&row->data, data);
}

/*
 * Decode an item with the codec of its field's type. The reader must be open.
 *
 * *out is valid as long as the item's blob, and until the scratch is reused or freed.
 * If scratch is NULL, all decoded values are kept until the row is reused or freed;
 * pass a scratch to decode many large values one by one.
 *
 * Returns BAGS_OK, BAGS_ERROR_RANGE (no such slot or item), BAGS_ERROR_TYPE (no codec
 * for the type: use bags_row_bytes), or a code of a codec you added.
 * BAGS_ERROR_CORRUPT, BAGS_ERROR_VALUE and BAGS_ERROR_LIMIT mean that it is not a blob
 * of this type or too large to decode, or that the required NAME.dict is damaged or
 * larger than 16 MiB; BAGS_ERROR_MISSING that NAME.dict is missing; BAGS_ERROR_CHANGED
 * that the shard was replaced. Cost: the codec's. Built-in codecs copy only arrays that
 * are misaligned for their dtype or not in native byte order. The first blob in a shard
 * that needs a dictionary reads NAME.dict under a lock; later ones take no lock.
 */
BAGI_CHECKED bags_code bags_row_value(bags_row *row, size_t slot, size_t item,
    bags_buffer *scratch, bags_value *out, bags_error *err);

/*
 * Return all items of a slot as one array of shape [n, ...item shape]. The item type
 * must have a fixed size: array(DTYPE,D0,...) without -1, i64 (elements are int64), or
 * u64 or int(N) of 1, 2, 4 or 8 bytes (elements are unsigned).
 *
 * If the items are contiguous in memory, aligned for the dtype and in native byte
 * order, *out is a view of them: out->data is item 0's data, valid as long as its blob.
 * Otherwise the data is a copy, valid until the scratch is reused or freed. Items are
 * contiguous if bags_reader_get read an entire sequence or a slice with step 1.
 * out->shape is always in the scratch. scratch NULL: the row's memory, as for
 * bags_row_value.
 *
 * Returns BAGS_OK, BAGS_ERROR_RANGE (no such slot), BAGS_ERROR_TYPE (another item
 * type), BAGS_ERROR_LIMIT (an item has BAGS_MAX_DIMS dimensions), or
 * BAGS_ERROR_CORRUPT, which names an item of the wrong size. Cost: O(n) comparisons,
 * and the copy.
 */
BAGS_API BAGS_EXPERIMENTAL bags_code bags_row_array(
    bags_row *row, size_t slot, bags_buffer *scratch, bags_value *out, bags_error *err);

/* Free a row's memory and reset it to {0}. */
BAGS_API void bags_row_free(bags_row *row);

#ifndef BAGS_NO_VERIFY

/* ========================================================================
 * >>faults
 * Finding everything that is wrong with a dataset, not only the first fault.
 * ====================================================================== */

/* The kind of thing that a bags_fault's index counts. */
typedef enum bags_fault_kind {
    BAGS_FAULT_FILE,     /* nothing: the fault concerns a file, shard or dataset */
    BAGS_FAULT_BLOB,     /* a blob of the field */
    BAGS_FAULT_DATAPOINT /* a datapoint of the shard */
} bags_fault_kind;

/* A fault found by bags_verify. */
typedef struct bags_fault {
    const char *path;  /* of the shard or dataset directory, or of a standalone Bag */
    const char *field; /* a field's name, or "refs"; NULL: not about a single Bag */
    bags_fault_kind kind;
    uint64_t index; /* of the blob or datapoint in this shard */
    /* Offset of the invalid bytes in field.bag (in field.idx for an entry of a split
     * table); 0 for the entire file. */
    uint64_t offset;
    bags_code code;
    const char *message; /* describes all of this, like bags_error.message */
    size_t remedy;       /* like bags_error.remedy */
} bags_fault;

typedef struct bags_verify_options {
    /* Check only what costs O(1) per file: sizes, spec.json, and the first and last
     * entries of every table and of refs. */
    bool quick;
    /* Decode every blob with its field's codec. Cannot be combined with quick. Without
     * either, only the last blob of a Bag is decoded, if it needs a dictionary. */
    bool decode;
    bool allow_gaps;       /* missing shards are not a fault */
    bool allow_empty_file; /* see bag_reader_options */
    /* SKIP: unfinished shards, and fields of unequal length if split, are not a fault.
     * READ is invalid. */
    bags_unfinished unfinished;
    uint64_t shard_start, shard_stop;
    /* Do only part number `part` of `parts`, so that threads or machines can share the
     * work; a Bag is the smallest unit. 0 and 0: all of it. */
    uint64_t part, parts;
    uint64_t max_faults; /* limit on faults passed to `each`; more are only counted. 0:
                            1000 */
    void (*each)(void *user, const bags_fault *fault);
    /* Called from time to time with the bytes read since the last call. */
    void (*progress)(void *user, uint64_t bytes);
    void *user;
    const bags_registry *registry; /* the codecs */
    bags_env env;
    /* With decode: a field's blobs in one shard were not decoded because there is no
     * codec for its type. This is not a fault. */
    void (*undecoded)(void *user, const bags_field *field, uint64_t blobs);
} bags_verify_options;

/* Counts of a verification. The reports of all parts add up to one report. */
typedef struct bags_verify_report {
    uint64_t shards;     /* finished shards; 1 for an unsharded dataset */
    uint64_t unfinished; /* unfinished shards, whether they are faults or not */
    uint64_t files;
    uint64_t blobs; /* in the fields' Bags */
    uint64_t datapoints;
    uint64_t bytes;     /* read from the files */
    uint64_t undecoded; /* with decode: blobs of types without a codec */
    uint64_t bags;      /* Bags whose checksums were to be verified */
    uint64_t checksums; /* the number of these that have checksums */
    uint64_t faults;    /* found, whether passed to `each` or not */
} bags_verify_report;

/*
 * Find every fault in a dataset or a standalone Bag. Checks every spec.json, every
 * table entry, every row of refs.bag and the blobs it refers to, every byte that has a
 * checksum and, with `decode`, every value. Also reports missing, duplicate or
 * unfinished shards; shards whose spec differs from the first valid one; checksums that
 * do not belong together, or that some shards lack; and a path with both spec.json and
 * shards. One damaged byte may be reported in several places.
 *
 * Returns BAGS_OK, the code of the first fault, or the error that ended the
 * verification: BAGS_ERROR_MISSING (no such path, or not a dataset),
 * BAGS_ERROR_ARGUMENT (an invalid option), BAGS_ERROR_MEMORY, BAGS_ERROR_IO (the
 * directory cannot be listed).
 *
 * Files are read, not mapped. Memory: about 512 KiB, plus 16 bytes per shard, 1 KiB per
 * field, and one blob with decode. Cost: reads all tables and refs; with checksums or
 * decode, also the blobs.
 */
BAGS_API bags_code bags_verify(const char *path, const bags_verify_options *options,
    bags_verify_report *report, bags_error *err);

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
 * The only section that tests for operating systems. It defines bagi_mutex,
 * bagi_system_text and the hooks for local files, and it sets feature macros to 0 or 1:
 *
 *     BAGI_WINDOWS_PATHS  paths follow the rules of Windows
 *     BAGI_HWCAP          bagi_hwcap returns the features of an ARM CPU
 *
 * A hook for local files is one system call, or a substitute on systems without that
 * call. It returns 0 or an errno value, writes its output only if it returns 0, and
 * keeps no state, so any thread may call it. Other sections reach the hooks through the
 * caller's bags_io, filled in by bags_io_local.
 * ====================================================================== */

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(ESTALE) /* Windows has none */
#define BAGI_STALE ESTALE
#else
#define BAGI_STALE (-1)
#endif

#if defined(BAGS_NO_LOCAL)
#include <time.h>
#define BAGI_WINDOWS_PATHS 0
#elif defined(_WIN32)
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
#include <time.h>
#include <unistd.h>
#define BAGI_WINDOWS_PATHS 0
#endif

/* BAGI_LOAD and BAGI_STORE publish a pointer to other threads without a lock; with a
 * compiler that lacks them, loads return NULL, and the lock is taken. BAGI_ADD adds to
 * a long. BAGI_COLD marks functions that are called rarely, not per blob or datapoint:
 * they write a message; open, close, finish, repair, describe or verify a dataset,
 * shard or codec; or wait for the system. They are compiled for size. */
#if defined(__GNUC__) || defined(__clang__)
#define BAGI_LOAD(slot) __atomic_load_n(slot, __ATOMIC_ACQUIRE)
#define BAGI_STORE(slot, value) __atomic_store_n(slot, value, __ATOMIC_RELEASE)
#define BAGI_ADD(number, more) __atomic_add_fetch(number, more, __ATOMIC_RELAXED)
/* For BAGI_LENGTH. A CPU of 32 bits may need a library for it. */
#if __SIZEOF_POINTER__ == 8
#define BAGI_SET_LENGTH(length, to) __atomic_store_n(&(length), to, __ATOMIC_RELAXED)
#endif
#define BAGI_COLD __attribute__((cold, noinline))
/* BAGI_NOINLINE is for the slow path of a fast function, so that the function saves no
 * registers for it. BAGI_HOT is for the parts of a fast function: they must not become
 * calls. */
#define BAGI_NOINLINE __attribute__((noinline))
#define BAGI_HOT BAGI_ALWAYS inline
#define BAGI_TOUCH(data) __builtin_prefetch(data)
#else
#define BAGI_TOUCH(data) ((void)(data))
#if defined(_MSC_VER) && !defined(BAGS_NO_LOCAL)
#define BAGI_LOAD(slot) ReadPointerAcquire((PVOID const volatile *)(slot))
#define BAGI_STORE(slot, value)                                                        \
    WritePointerRelease((PVOID volatile *)(slot), (PVOID)(value))
#define BAGI_ADD(number, more) (InterlockedExchangeAdd(number, more) + (more))
#else
#define BAGI_LOAD(slot) NULL
#define BAGI_STORE(slot, value) (*(slot) = (value))
#define BAGI_ADD(number, more) (*(number) += (more))
#endif
#define BAGI_COLD
#define BAGI_NOINLINE
#define BAGI_HOT inline
#endif

/* A struct with all members 0, if the first one is not an enum. */
#if defined(__cplusplus)
#define BAGI_ZERO                                                                      \
    {}
#else
#define BAGI_ZERO                                                                      \
    { 0 }
#endif

#define BAGI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define BAGI_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Linux transfers at most 2 GiB per call; some systems refuse larger sizes. */
#define BAGI_LOCAL_MAX ((size_t)1 << 30)

/* The first parameter of every hook. The hooks for local files ignore it. */
#define BAGI_USER void *user BAGI_UNUSED

#if defined(BAGS_NO_LOCAL)
typedef char bagi_mutex;
#elif defined(_WIN32)
typedef SRWLOCK bagi_mutex;
#else
typedef pthread_mutex_t bagi_mutex;
#endif

/* Two locks of an object that may be used in a child process after fork(). They exist
 * from bagi_guard_open to bagi_guard_close. The second is taken inside the first. */
typedef struct bagi_guard {
    bagi_mutex *first, *second;
    /* fork() waits for the locks, because their holders wait only for the system.
     * Otherwise it waits at most 100 ms, because a holder may be waiting for the
     * forking thread. */
    bool waits;
    bool held; /* by fork() */
    bool lost; /* in a child: held by a thread that exists only in the parent */
    struct bagi_guard *next, *previous;
} bagi_guard;

#if defined(BAGS_NO_LOCAL)
/* ---- no system: hooks that fail, and locks that do nothing ---- */

static bool bagi_mutex_init(bagi_mutex *mutex) {
    *mutex = 0;
    return true;
}

static void bagi_mutex_free(bagi_mutex *mutex) { (void)mutex; }

static void bagi_lock(bagi_mutex *mutex) { (void)mutex; }

static void bagi_unlock(bagi_mutex *mutex) { (void)mutex; }

/* Nothing here forks. */
static bool bagi_guard_open(bagi_guard *guard) {
    return bagi_mutex_init(guard->first) && bagi_mutex_init(guard->second);
}

static void bagi_guard_close(bagi_guard *guard) {
    bagi_mutex_free(guard->first);
    bagi_mutex_free(guard->second);
}

static const char *bagi_system_text(int error, char *buffer, size_t size) {
    (void)buffer, (void)size;
    return strerror(error);
}

BAGI_COLD static int bagi_local_open(
    BAGI_USER, const char *path, int mode, void **file) {
    (void)path, (void)mode, (void)file;
    return ENOSYS;
}

BAGI_COLD static int bagi_local_kind(
    BAGI_USER, const char *path, bags_path_kind *kind) {
    (void)path, (void)kind;
    return ENOSYS;
}

static void bagi_local_explain(
    BAGI_USER, const char *path, int error, char *text, size_t size) {
    (void)path, (void)error;
    (void)snprintf(text, size, "no local files (BAGS_NO_LOCAL); set env.io");
}

static bool bagi_local_directory(char *out, size_t size) {
    (void)out, (void)size;
    return false;
}

#ifndef BAGS_NO_WRITER
static uint64_t bagi_process(void) { return 0; }

static void bagi_pause(void) {}

/* A clock, in seconds since an arbitrary moment. This one may be set back. */
static double bagi_seconds(void) { return (double)time(NULL); }
#endif
#define BAGI_HWCAP 0
#elif defined(_WIN32)
/* ---- Windows ----
 * Paths are converted to UTF-16 and made absolute, and long ones are prefixed with
 * \\?\, because calls otherwise accept only 260 characters. Every file is opened so
 * that other handles may read, write, rename and remove it, as on POSIX systems. */

/* Needs no memory, so there is nothing to free. */
static bool bagi_mutex_init(bagi_mutex *mutex) {
    InitializeSRWLock(mutex);
    return true;
}

static void bagi_mutex_free(bagi_mutex *mutex) { (void)mutex; }

static void bagi_lock(bagi_mutex *mutex) { AcquireSRWLockExclusive(mutex); }

static void bagi_unlock(bagi_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }

/* Nothing here forks. */
static bool bagi_guard_open(bagi_guard *guard) {
    return bagi_mutex_init(guard->first) && bagi_mutex_init(guard->second);
}

static void bagi_guard_close(bagi_guard *guard) {
    bagi_mutex_free(guard->first);
    bagi_mutex_free(guard->second);
}

static const char *bagi_system_text(int error, char *buffer, size_t size) {
    return strerror_s(buffer, size, error) == 0 ? buffer : "unknown error";
}

/* 0 if a call succeeded, otherwise an errno value for its error. Callers test for a few
 * of these, and bags_error.system promises errno values on every system. */
static int bagi_result(BOOL succeeded) {
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
        {1295 /* ERROR_DISK_QUOTA_EXCEEDED */, ENOSPC}, {ERROR_FILE_TOO_LARGE, EFBIG},
        {ERROR_TOO_MANY_OPEN_FILES, EMFILE}, {ERROR_NO_SYSTEM_RESOURCES, EMFILE},
        {ERROR_NOT_SAME_DEVICE, EXDEV}, {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
        {ERROR_BUFFER_OVERFLOW, ENAMETOOLONG},
        {ERROR_INSUFFICIENT_BUFFER, ENAMETOOLONG}, {ERROR_INVALID_NAME, EINVAL},
        {ERROR_INVALID_PARAMETER, EINVAL}, {ERROR_INVALID_HANDLE, EBADF},
        {ERROR_NO_UNICODE_TRANSLATION, EILSEQ}, {ERROR_CANT_RESOLVE_FILENAME, ELOOP},
        {ERROR_NOT_SUPPORTED, ENOSYS}, {ERROR_INVALID_FUNCTION, ENOSYS}};
    if (succeeded)
        return 0;
    DWORD error = GetLastError();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].from == error)
            return known[i].to;
    return EIO; /* as for a hardware fault: a caller can do nothing about it */
}

/* No call accepts longer paths; with \\?\UNC\, or \* to list. */
enum { BAGI_WIDE_MAX = 32700, BAGI_WIDE_SIZE = BAGI_WIDE_MAX + 10 };

/* A path as Windows calls expect it: absolute and, if long, prefixed with \\?\ to lift
 * the length limit. A path is long above MAX_PATH minus the 12 characters that
 * CreateDirectoryW reserves for a file name and 8 spare ones. Free it with free(). */
static int bagi_wide(const char *path, wchar_t **out) {
    const DWORD most = 240;
    static const wchar_t share[] = {'\\', '\\', '?', '\\', 'U', 'N', 'C', '\\'};
    wchar_t *full = (wchar_t *)malloc(2 * BAGI_WIDE_SIZE * sizeof *full);
    if (!full)
        return ENOMEM;
    wchar_t *plain = full + BAGI_WIDE_SIZE;
    DWORD size = 0;
    if (MultiByteToWideChar(
            CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, plain, BAGI_WIDE_SIZE) > 0)
        size = GetFullPathNameW(plain, BAGI_WIDE_MAX, full, NULL);
    int error = size < BAGI_WIDE_MAX ? bagi_result(size > 0) : ENAMETOOLONG;
    if (error) {
        free(full);
        return error;
    }
    bool network = full[0] == '\\' && full[1] == '\\';
    bool prefixed = network && (full[2] == '?' || full[2] == '.');
    if (size >= most && !prefixed) {
        size_t front = network ? 8 : 4;
        size_t skip = network ? 2 : 0; /* \\server becomes \\?\UNC\server */
        memmove(full + front, full + skip, (size + 1 - skip) * sizeof *full);
        memcpy(full, share, front * sizeof *full);
    }
    *out = full;
    return 0;
}

/* Report a directory as a directory: opening it as a file fails with EACCES, as if
 * permissions were missing. */
static int bagi_windows_open(
    const char *path, DWORD access, DWORD creation, DWORD flags, HANDLE *handle) {
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (error)
        return error;
    HANDLE opened = CreateFileW(wide, access,
        FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, creation, flags,
        NULL);
    error = bagi_result(opened != INVALID_HANDLE_VALUE);
    if (error == EACCES) {
        DWORD found = GetFileAttributesW(wide);
        if (found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_DIRECTORY))
            error = EISDIR;
    }
    free(wide);
    if (!error)
        *handle = opened;
    return error;
}

/* Never write through a link: another user may have made it. Windows cannot refuse to
 * follow links, so open the link itself, then refuse it. */
static int bagi_local_open(BAGI_USER, const char *path, int mode, void **file) {
    HANDLE handle = NULL;
    DWORD access = mode == BAGS_IO_READ ? GENERIC_READ : GENERIC_READ | GENERIC_WRITE;
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
    /* A pipe or a device, such as NUL, opens like a file. */
    if (GetFileType(handle) != FILE_TYPE_DISK)
        error = ENXIO;
    else if (mode == BAGS_IO_WRITE)
        error = bagi_result(GetFileInformationByHandle(handle, &info));
    if (!error && mode == BAGS_IO_WRITE &&
        (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT))
        error = ELOOP;
    if (error) {
        CloseHandle(handle);
        return error;
    }
    *file = handle;
    return 0;
}

/* Windows calls receive an offset this way; there is no pread. */
static OVERLAPPED bagi_windows_at(uint64_t offset) {
    OVERLAPPED at = BAGI_ZERO;
    at.Offset = (DWORD)(offset & 0xFFFFFFFF);
    at.OffsetHigh = (DWORD)(offset >> 32);
    return at;
}

/* Locking this byte stands for locking the file. It is past any data, because Windows
 * does not let other handles read locked bytes. */
#define BAGI_LOCKED_BYTE ((uint64_t)INT64_MAX - 1)

/* Closing also unlocks, but not always before it returns. */
static int bagi_local_close(BAGI_USER, void *file) {
    OVERLAPPED at = bagi_windows_at(BAGI_LOCKED_BYTE);
    (void)UnlockFileEx(file, 0, 1, 0, &at);
    return bagi_result(CloseHandle(file));
}

BAGI_COLD static int bagi_local_size(BAGI_USER, void *file, uint64_t *size) {
    LARGE_INTEGER found;
    int error = bagi_result(GetFileSizeEx(file, &found));
    if (!error)
        *size = (uint64_t)found.QuadPart;
    return error;
}

BAGI_COLD static int bagi_local_read_at(
    BAGI_USER, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    DWORD count = 0;
    OVERLAPPED at = bagi_windows_at(offset);
    if (offset > (uint64_t)INT64_MAX)
        return EOVERFLOW;
    /* Reading past the end is an error on Windows, not 0 bytes. */
    int error = bagi_result(
        ReadFile(file, data, (DWORD)BAGI_MIN(size, BAGI_LOCAL_MAX), &count, &at) ||
        GetLastError() == ERROR_HANDLE_EOF);
    if (!error)
        *done = count;
    return error;
}

BAGI_COLD static int bagi_local_write_at(BAGI_USER, void *file, uint64_t offset,
    const void *data, size_t size, size_t *done) {
    DWORD count = 0;
    OVERLAPPED at = bagi_windows_at(offset);
    if (offset > (uint64_t)INT64_MAX)
        return EFBIG;
    int error = bagi_result(
        WriteFile(file, data, (DWORD)BAGI_MIN(size, BAGI_LOCAL_MAX), &count, &at));
    if (!error)
        *done = count;
    return error;
}

/* SetEndOfFile would need a file position. */
BAGI_COLD static int bagi_local_truncate(BAGI_USER, void *file, uint64_t size) {
    FILE_END_OF_FILE_INFO end;
    if (size > (uint64_t)INT64_MAX)
        return EFBIG;
    end.EndOfFile.QuadPart = (LONGLONG)size;
    return bagi_result(
        SetFileInformationByHandle(file, FileEndOfFileInfo, &end, sizeof end));
}

static int bagi_local_sync(BAGI_USER, void *file) {
    return bagi_result(FlushFileBuffers(file));
}

BAGI_COLD static int bagi_local_lock(BAGI_USER, void *file) {
    OVERLAPPED at = bagi_windows_at(BAGI_LOCKED_BYTE);
    return bagi_result(LockFileEx(
        file, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at));
}

/* The view keeps the file and the mapping object alive; both may be closed. */
BAGI_COLD static int bagi_local_map(
    BAGI_USER, void *file, size_t size, const void **data) {
    HANDLE mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping)
        return bagi_result(FALSE);
    const void *map = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size);
    int error = bagi_result(map != NULL);
    CloseHandle(mapping);
    if (!error)
        *data = map;
    return error;
}

static int bagi_local_unmap(BAGI_USER, const void *data, size_t size) {
    (void)size;
    return bagi_result(UnmapViewOfFile(data));
}

/* Get information about a path. Links are followed unless `flags` say otherwise
 * (GetFileAttributesW would describe the link itself). A name that the system does not
 * accept is reported as missing. */
static int bagi_windows_info(
    const char *path, DWORD flags, BY_HANDLE_FILE_INFORMATION *info) {
    HANDLE handle = NULL;
    int error = bagi_windows_open(
        path, 0, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | flags, &handle);
    if (!error) {
        error = bagi_result(GetFileInformationByHandle(handle, info));
        CloseHandle(handle);
    }
    return error == ENOTDIR || error == EINVAL ? ENOENT : error;
}

static int bagi_local_kind(BAGI_USER, const char *path, bags_path_kind *kind) {
    BY_HANDLE_FILE_INFORMATION info;
    int error = bagi_windows_info(path, 0, &info);
    if (error && error != ENOENT)
        return error;
    *kind = error ? BAGS_PATH_NONE
            : info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY ? BAGS_PATH_DIRECTORY
                                                               : BAGS_PATH_FILE;
    return 0;
}

/* Call a Windows function that needs only a path, such as DeleteFileW. */
static int bagi_windows_call(const char *path, BOOL(WINAPI *call)(LPCWSTR)) {
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (!error)
        error = bagi_result(call(wide));
    free(wide);
    return error;
}

static int bagi_local_remove(BAGI_USER, const char *path) {
    return bagi_windows_call(path, DeleteFileW);
}

static int bagi_local_remove_dir(BAGI_USER, const char *path) {
    return bagi_windows_call(path, RemoveDirectoryW);
}

static BOOL WINAPI bagi_windows_make_dir(LPCWSTR path) {
    return CreateDirectoryW(path, NULL);
}

static int bagi_local_make_dir(BAGI_USER, const char *path) {
    return bagi_windows_call(path, bagi_windows_make_dir);
}

/* Some file systems cannot sync a directory, and some users may not. This is not
 * a failure, because there is no alternative; a failing disk (EIO) is one. */
BAGI_COLD static int bagi_local_sync_dir(BAGI_USER, const char *path) {
    HANDLE handle = NULL;
    int error = bagi_windows_open(
        path, GENERIC_WRITE, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, &handle);
    if (error)
        return error == ENOENT || error == ENOTDIR ? error : 0;
    error = bagi_result(FlushFileBuffers(handle));
    CloseHandle(handle);
    return error == EIO ? error : 0;
}

/* List names that are not valid UTF-16 with U+FFFD, so that no file is overlooked;
 * opening such a name fails. */
BAGI_COLD static int bagi_local_list(BAGI_USER, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    wchar_t *wide = NULL;
    int error = bagi_wide(path, &wide);
    if (error)
        return error;
    size_t size = wcslen(wide);
    memcpy(wide + size, L"\\*", 3 * sizeof *wide);
    if (wide[size - 1] == '\\')
        memcpy(wide + size, L"*", 2 * sizeof *wide);
    WIN32_FIND_DATAW entry;
    char name[3 * MAX_PATH + 1];
    HANDLE search = FindFirstFileW(wide, &entry);
    /* A drive's root may be empty; other directories contain at least ".". */
    error = bagi_result(
        search != INVALID_HANDLE_VALUE || GetLastError() == ERROR_FILE_NOT_FOUND);
    free(wide);
    if (search == INVALID_HANDLE_VALUE)
        return error;
    do {
        error = bagi_result(WideCharToMultiByte(CP_UTF8, 0, entry.cFileName, -1, name,
                                (int)sizeof name, NULL, NULL) > 0);
        if (!error && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            error = each(each_user, name);
    } while (!error && FindNextFileW(search, &entry));
    if (!error)
        error = bagi_result(GetLastError() == ERROR_NO_MORE_FILES);
    FindClose(search);
    return error;
}

/* Give a file another name, or a second one. */
static int bagi_windows_name(const char *from, const char *to, bool second) {
    wchar_t *wide_from = NULL, *wide_to = NULL;
    int error = bagi_wide(from, &wide_from);
    if (!error)
        error = bagi_wide(to, &wide_to);
    if (!error && second)
        error = bagi_result(CreateHardLinkW(wide_to, wide_from, NULL));
    else if (!error)
        error = bagi_result(MoveFileExW(
            wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH));
    free(wide_from);
    free(wide_to);
    return error;
}

/* Replace an existing file, as POSIX systems do. */
static int bagi_local_rename(BAGI_USER, const char *from, const char *to) {
    return bagi_windows_name(from, to, false);
}

BAGI_COLD static int bagi_local_link(BAGI_USER, const char *from, const char *to) {
    return bagi_windows_name(from, to, true);
}

/* Use the creation time: the last write time may change until the last writer has
 * closed the file. */
BAGI_COLD static int bagi_local_identify(
    BAGI_USER, void *file, const char *path, bags_identity *identity) {
    BY_HANDLE_FILE_INFORMATION info;
    int error = file ? bagi_result(GetFileInformationByHandle(file, &info))
                     : bagi_windows_info(path, FILE_FLAG_OPEN_REPARSE_POINT, &info);
    bool link =
        !file && !error && (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT);
    if (link)
        error = bagi_windows_info(path, 0, &info);
    if (error)
        return error;
    identity->device = info.dwVolumeSerialNumber;
    identity->inode = (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow;
    identity->time = (uint64_t)info.ftCreationTime.dwHighDateTime << 32 |
                     info.ftCreationTime.dwLowDateTime;
    identity->size = (uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow;
    identity->link = link;
    return 0;
}

/* Get the current directory, at most `size` bytes. False if it has no name. */
static bool bagi_local_directory(char *out, size_t size) {
    wchar_t *wide = (wchar_t *)malloc(BAGI_WIDE_SIZE * sizeof *wide);
    DWORD length = wide ? GetCurrentDirectoryW(BAGI_WIDE_MAX, wide) : 0;
    bool known =
        length > 0 && length < BAGI_WIDE_MAX &&
        WideCharToMultiByte(CP_UTF8, 0, wide, -1, out, (int)size, NULL, NULL) > 0;
    free(wide);
    return known;
}

#ifndef BAGS_NO_WRITER
static uint64_t bagi_process(void) { return GetCurrentProcessId(); }

static void bagi_pause(void) { Sleep(1); }

static double bagi_seconds(void) { return (double)GetTickCount64() / 1000; }
#endif

#define BAGI_HWCAP 0
#define BAGI_LOCAL_MAP bagi_local_map
#define BAGI_LOCAL_RESERVE NULL
#define BAGI_LOCAL_ADVISE NULL
#define BAGI_LOCAL_WRITE_BACK NULL
#else
/* ---- POSIX systems: where Linux, macOS and the BSDs differ ---- */

/* If this fails, compile with -D_FILE_OFFSET_BITS=64 or include bags.h first. */
typedef char bagi_off_t_must_have_64_bits[sizeof(off_t) == 8 ? 1 : -1];

/* 0 if a call succeeded, otherwise its errno value. */
static int bagi_result(int result) { return result < 0 ? errno : 0; }

/* strerror is not thread-safe, and strerror_r has two incompatible forms. */
static const char *bagi_system_text(int error, char *buffer, size_t size) {
#if defined(__CYGWIN__) ||                                                             \
    ((defined(__GLIBC__) || defined(__BIONIC__)) && defined(__USE_GNU))
    return strerror_r(error, buffer, size);
#else
    return strerror_r(error, buffer, size) == 0 ? buffer : "unknown error";
#endif
}

#if defined(__linux__) && defined(__aarch64__) && !defined(__ARM_FEATURE_CRC32)
#include <sys/auxv.h>
#define BAGI_HWCAP 1
static unsigned long bagi_hwcap(void) { return getauxval(AT_HWCAP); }
#else
#define BAGI_HWCAP 0
#endif

#if defined(__APPLE__) || defined(__NetBSD__)
#define BAGI_STAT_TIME st_mtimespec
#else
#define BAGI_STAT_TIME st_mtim
#endif

/* A file descriptor is passed as a pointer; descriptor 0 must not become NULL. */
static void *bagi_local_wrap(int fd) { return (void *)((intptr_t)fd + 1); }

static int bagi_local_fd(void *file) { return (int)((intptr_t)file - 1); }

/* Allocating disk space in large pieces ahead of writes makes writing up to 1.5 times
 * as fast. */
#if defined(__linux__) && defined(FALLOC_FL_KEEP_SIZE)
static int bagi_local_reserve(BAGI_USER, void *file, uint64_t size) {
    struct stat info;
    int fd = bagi_local_fd(file), error = bagi_result(fstat(fd, &info));
    if (error || size <= (uint64_t)info.st_size || size > (uint64_t)INT64_MAX)
        return error;
    return bagi_result(
        fallocate(fd, FALLOC_FL_KEEP_SIZE, info.st_size, (off_t)size - info.st_size));
}
#define BAGI_LOCAL_RESERVE bagi_local_reserve
#else
#define BAGI_LOCAL_RESERVE NULL
#endif

/* Linux starts writing data to disk only after half a minute. A caller that syncs a
 * large file once, at its end, would have to wait for all of it. */
#if defined(__linux__) && defined(SYNC_FILE_RANGE_WRITE)
static int bagi_local_write_back(
    BAGI_USER, void *file, uint64_t offset, uint64_t size) {
    return bagi_result(sync_file_range(
        bagi_local_fd(file), (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE));
}
#define BAGI_LOCAL_WRITE_BACK bagi_local_write_back
#else
#define BAGI_LOCAL_WRITE_BACK NULL
#endif

/* On OpenBSD a map does not see data written after the map was read, so nothing is
 * mapped. Maps are private: if users of a language binding write to them by mistake,
 * its hooks can make maps writable, and such a write changes no file. */
#if !defined(__OpenBSD__)
static int bagi_local_map(BAGI_USER, void *file, size_t size, const void **data) {
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, bagi_local_fd(file), 0);
    if (map == MAP_FAILED)
        return errno;
    *data = map;
    return 0;
}
#define BAGI_LOCAL_MAP bagi_local_map
#else
#define BAGI_LOCAL_MAP NULL
#endif

/* macOS supports advice for maps only, so it gets none. */
#if defined(POSIX_MADV_WILLNEED) && defined(POSIX_FADV_WILLNEED)
BAGI_COLD static int bagi_local_advise(BAGI_USER, void *file, const void *map,
    uint64_t offset, uint64_t size, bags_advice advice) {
    bool soon = advice == BAGS_ADVICE_SOON;
    if (map) {
        /* Advice must start at a page boundary. */
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        size_t before = (size_t)((uintptr_t)map & (page - 1));
        return posix_madvise((unsigned char *)(uintptr_t)map - before,
            (size_t)size + before, soon ? POSIX_MADV_WILLNEED : POSIX_MADV_RANDOM);
    }
    return posix_fadvise(bagi_local_fd(file), (off_t)offset, (off_t)size,
        soon ? POSIX_FADV_WILLNEED : POSIX_FADV_RANDOM);
}
#define BAGI_LOCAL_ADVISE bagi_local_advise
#else
#define BAGI_LOCAL_ADVISE NULL
#endif

/* ---- POSIX systems: calls that all of them have ----
 * flock is one, although POSIX lacks it. */

/* Repeat a call that a signal interrupted. */
#define BAGI_RETRY(result, call)                                                       \
    do {                                                                               \
        (result) = (call);                                                             \
    } while ((result) < 0 && errno == EINTR)

/* An uncontended lock needs no system call. False if the system lacks memory or another
 * resource. */
static bool bagi_mutex_init(bagi_mutex *mutex) {
    return pthread_mutex_init(mutex, NULL) == 0;
}

static void bagi_mutex_free(bagi_mutex *mutex) { pthread_mutex_destroy(mutex); }

static void bagi_lock(bagi_mutex *mutex) { pthread_mutex_lock(mutex); }

static void bagi_unlock(bagi_mutex *mutex) { pthread_mutex_unlock(mutex); }

/* ---- fork ----
 * A child has one thread, and inherits locks in their current state. So fork() takes
 * the locks of all guards and of their list, and both processes release them:
 *
 *     bagi_guards_take        before, in the thread that forks
 *     bagi_guards_release     after, in the parent
 *     bagi_guards_inherit     after, in the child: guards not taken are lost
 */

static pthread_mutex_t bagi_guards_lock = PTHREAD_MUTEX_INITIALIZER;
static bagi_guard *bagi_guards;

/* Lock a mutex, or give up when the attempts shared by all locks are used up. Each
 * takes a millisecond. */
BAGI_COLD static bool bagi_guards_try(pthread_mutex_t *mutex, int *tries) {
    const struct timespec moment = {0, 1000000};
    while (pthread_mutex_trylock(mutex)) {
        if (*tries == 0)
            return false;
        (*tries)--;
        (void)nanosleep(&moment, NULL);
    }
    return true;
}

BAGI_COLD static void bagi_guards_take(void) {
    int tries = 100;
    pthread_mutex_lock(&bagi_guards_lock);
    for (bagi_guard *guard = bagi_guards; guard; guard = guard->next) {
        if (guard->lost)
            continue;
        guard->held = true;
        if (guard->waits) {
            pthread_mutex_lock(guard->first);
            pthread_mutex_lock(guard->second);
        } else if (!bagi_guards_try(guard->first, &tries)) {
            guard->held = false;
        } else if (!bagi_guards_try(guard->second, &tries)) {
            pthread_mutex_unlock(guard->first);
            guard->held = false;
        }
    }
}

BAGI_COLD static void bagi_guards_release(void) {
    for (bagi_guard *guard = bagi_guards; guard; guard = guard->next) {
        if (guard->held) {
            pthread_mutex_unlock(guard->second);
            pthread_mutex_unlock(guard->first);
        }
        guard->held = false;
    }
    pthread_mutex_unlock(&bagi_guards_lock);
}

BAGI_COLD static void bagi_guards_inherit(void) {
    for (bagi_guard *guard = bagi_guards; guard; guard = guard->next)
        guard->lost = !guard->held;
    bagi_guards_release();
}

/* False if the system lacks memory. */
BAGI_COLD static bool bagi_guard_open(bagi_guard *guard) {
    static bool watched;
    bool first = bagi_mutex_init(guard->first);
    bool second = first && bagi_mutex_init(guard->second);
    pthread_mutex_lock(&bagi_guards_lock);
    watched = watched || !pthread_atfork(bagi_guards_take, bagi_guards_release,
                             bagi_guards_inherit);
    bool done = watched && second;
    if (done) {
        guard->next = bagi_guards;
        if (bagi_guards)
            bagi_guards->previous = guard;
        bagi_guards = guard;
    }
    pthread_mutex_unlock(&bagi_guards_lock);
    if (!done && second)
        bagi_mutex_free(guard->second);
    if (!done && first)
        bagi_mutex_free(guard->first);
    return done;
}

BAGI_COLD static void bagi_guard_close(bagi_guard *guard) {
    pthread_mutex_lock(&bagi_guards_lock);
    if (guard->next)
        guard->next->previous = guard->previous;
    *(guard->previous ? &guard->previous->next : &bagi_guards) = guard->next;
    pthread_mutex_unlock(&bagi_guards_lock);
    if (guard->lost) /* a thread that does not exist in this process holds a lock */
        return;
    bagi_mutex_free(guard->first);
    bagi_mutex_free(guard->second);
}

/* O_NONBLOCK, so that opening a FIFO does not wait forever for a writer; it has no
 * effect on regular files. O_NOFOLLOW, so that nothing is written through a link,
 * perhaps made by another user. */
static int bagi_local_open(BAGI_USER, const char *path, int mode, void **file) {
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    flags |= mode == BAGS_IO_READ ? O_RDONLY : O_RDWR;
    if (mode == BAGS_IO_CREATE)
        flags |= O_CREAT | O_EXCL;
    if (mode == BAGS_IO_WRITE)
        flags |= O_NOFOLLOW;
    int fd;
    BAGI_RETRY(fd, open(path, flags, 0666));
    if (fd < 0)
        return errno;
    struct stat info;
    /* Check after opening: a file checked earlier could have been replaced. A new file
     * is always a regular one. */
    int error = 0;
    info.st_mode = S_IFREG;
    if (mode != BAGS_IO_CREATE)
        error = bagi_result(fstat(fd, &info));
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

/* Never repeat close: an interrupted one has closed the descriptor, and another thread
 * may have reopened it since. */
static int bagi_local_close(BAGI_USER, void *file) {
    int error = bagi_result(close(bagi_local_fd(file)));
    return error == EINTR ? 0 : error;
}

static int bagi_local_size(BAGI_USER, void *file, uint64_t *size) {
    struct stat info;
    int error = bagi_result(fstat(bagi_local_fd(file), &info));
    if (!error)
        *size = (uint64_t)info.st_size;
    return error;
}

BAGI_COLD static int bagi_local_read_at(
    BAGI_USER, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    ssize_t count;
    BAGI_RETRY(count, pread(bagi_local_fd(file), data, BAGI_MIN(size, BAGI_LOCAL_MAX),
                          (off_t)offset));
    if (count < 0)
        return errno;
    *done = (size_t)count;
    return 0;
}

static int bagi_local_write_at(BAGI_USER, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    ssize_t count;
    BAGI_RETRY(count, pwrite(bagi_local_fd(file), data, BAGI_MIN(size, BAGI_LOCAL_MAX),
                          (off_t)offset));
    if (count < 0)
        return errno;
    *done = (size_t)count;
    return 0;
}

static int bagi_local_truncate(BAGI_USER, void *file, uint64_t size) {
    int result;
    BAGI_RETRY(result, ftruncate(bagi_local_fd(file), (off_t)size));
    return bagi_result(result);
}

/* On macOS, fsync leaves the data in the drive's cache. F_FULLFSYNC does not, but not
 * every file system supports it. Fall back to fsync only if it is unsupported: after a
 * failed sync, the next one may succeed although data was lost. */
static int bagi_local_sync(BAGI_USER, void *file) {
    int fd = bagi_local_fd(file), result;
#if defined(F_FULLFSYNC)
    BAGI_RETRY(result, fcntl(fd, F_FULLFSYNC));
    if (result == 0 || (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY))
        return bagi_result(result);
#endif
    BAGI_RETRY(result, fsync(fd));
    return bagi_result(result);
}

/* Not fcntl: its locks belong to the process, so two writers in one process could both
 * hold one. */
static int bagi_local_lock(BAGI_USER, void *file) {
    int result;
    BAGI_RETRY(result, flock(bagi_local_fd(file), LOCK_EX | LOCK_NB));
    return bagi_result(result);
}

/* POSIX systems require the mapped size. */
static int bagi_local_unmap(BAGI_USER, const void *data, size_t size) {
    return bagi_result(munmap((void *)(uintptr_t)data, size));
}

/* ENOTDIR: a component of the path is a file, so nothing can exist below it. */
static int bagi_local_kind(BAGI_USER, const char *path, bags_path_kind *kind) {
    struct stat info;
    int error = bagi_result(stat(path, &info));
    if (error && error != ENOENT && error != ENOTDIR)
        return error;
    *kind = error                   ? BAGS_PATH_NONE
            : S_ISDIR(info.st_mode) ? BAGS_PATH_DIRECTORY
                                    : BAGS_PATH_FILE;
    return 0;
}

static int bagi_local_make_dir(BAGI_USER, const char *path) {
    return bagi_result(mkdir(path, 0777));
}

/* Some file systems cannot sync a directory (EINVAL), and a directory without read
 * permission cannot be opened (EACCES). This is not a failure, because there is no
 * alternative. */
static int bagi_local_sync_dir(void *user, const char *path) {
    int fd;
    BAGI_RETRY(fd, open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return errno == EACCES ? 0 : errno;
    int error = bagi_local_sync(user, bagi_local_wrap(fd));
    close(fd);
    return error == EINVAL ? 0 : error;
}

/* Errors of closedir do not matter: nothing was written. */
static int bagi_local_list(BAGI_USER, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    DIR *dir;
    do {
        dir = opendir(path);
    } while (!dir && errno == EINTR);
    if (!dir)
        return errno;
    int error = 0;
    while (!error) {
        errno = 0; /* readdir returns NULL at the end and on failure */
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

static int bagi_local_rename(BAGI_USER, const char *from, const char *to) {
    return bagi_result(rename(from, to));
}

static int bagi_local_link(BAGI_USER, const char *from, const char *to) {
    return bagi_result(linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW));
}

/* unlink, because remove() would also remove an empty directory. */
static int bagi_local_remove(BAGI_USER, const char *path) {
    return bagi_result(unlink(path));
}

static int bagi_local_remove_dir(BAGI_USER, const char *path) {
    return bagi_result(rmdir(path));
}

/* Follow a link, and report it. stat does not show the link, and lstat does not show
 * the file. */
static int bagi_local_identify(
    BAGI_USER, void *file, const char *path, bags_identity *identity) {
    struct stat info;
    int error =
        bagi_result(file ? fstat(bagi_local_fd(file), &info) : lstat(path, &info));
    identity->link = !error && S_ISLNK(info.st_mode);
    if (identity->link)
        error = bagi_result(stat(path, &info));
    if (error)
        return error == ENOTDIR ? ENOENT : error;
    identity->device = (uint64_t)info.st_dev;
    identity->inode = (uint64_t)info.st_ino;
    identity->time = (uint64_t)info.BAGI_STAT_TIME.tv_sec * 1000000000 +
                     (uint64_t)info.BAGI_STAT_TIME.tv_nsec;
    identity->size = (uint64_t)info.st_size;
    return 0;
}

/* Get the current directory, at most `size` bytes. False if it has no name, or this
 * process may not reach it by its name. */
static bool bagi_local_directory(char *out, size_t size) {
    struct stat by_name, here;
    return getcwd(out, size) && stat(out, &by_name) == 0 && stat(".", &here) == 0 &&
           by_name.st_dev == here.st_dev && by_name.st_ino == here.st_ino;
}

#ifndef BAGS_NO_WRITER
/* Distinguishes a writer from its copy in a child process. */
static uint64_t bagi_process(void) { return (uint64_t)getpid(); }

/* Wait a millisecond, between two attempts to lock. */
static void bagi_pause(void) {
    struct timespec moment = {0, 1000000};
    (void)nanosleep(&moment, NULL);
}

/* A clock that costs a few nanoseconds and may lag by some milliseconds. */
static double bagi_seconds(void) {
#if defined(CLOCK_MONOTONIC_COARSE)
    const clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
    const clockid_t clock = CLOCK_MONOTONIC;
#endif
    struct timespec now = {0, 0};
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}
#endif
#endif

BAGS_API const bags_io *bags_io_local(void) {
#if defined(BAGS_NO_LOCAL)
    static const bags_io io = {NULL, bagi_local_open, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, bagi_local_kind, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, bagi_local_explain, NULL};
#else
    static const bags_io io = {NULL, bagi_local_open, bagi_local_close, bagi_local_size,
        bagi_local_read_at, bagi_local_write_at, bagi_local_truncate, bagi_local_sync,
        bagi_local_lock, BAGI_LOCAL_MAP, bagi_local_unmap, bagi_local_kind,
        bagi_local_make_dir, bagi_local_sync_dir, bagi_local_list, bagi_local_rename,
        bagi_local_remove, bagi_local_remove_dir, BAGI_LOCAL_RESERVE, BAGI_LOCAL_ADVISE,
        BAGI_LOCAL_WRITE_BACK, bagi_local_identify, NULL, NULL, NULL, bagi_local_link};
#endif
    return &io;
}

/* ========================================================================
 * >>bytes
 * Little-endian integers at any address, byte order, UTF-8, and checks of sizes read
 * from files. No function allocates or writes a message; every section calls them.
 * ====================================================================== */

/* In C99 an inline definition emits no function. These declarations emit one for
 * callers that do not inline it or that take its address. */
#if !defined(BAGS_STATIC) && !defined(__TINYC__) && !defined(__cplusplus)
BAGS_API uint64_t bagi_load_u64(const unsigned char *data);
BAGS_API uint64_t bags_load_bytes(const void *data, size_t size, bool big_endian);
BAGS_API void bags_store_bytes(
    void *data, size_t size, bool big_endian, uint64_t number);
BAGS_API bags_view bag_blobs_get(const bag_blobs *range, size_t i);
BAGS_API bool bagi_mapped_blob(
    const bagi_mapped *mapped, uint64_t index, bags_view *out);
BAGS_API bool bagi_mapped_get(
    const bagi_mapped *mapped, uint64_t index, bags_view *out);
BAGS_API bags_code bag_reader_get(const bag_reader *reader, uint64_t index,
    bags_buffer *scratch, bags_view *out, bags_error *err);
BAGS_API struct bagi_slot *bagi_row_slots(const bags_row *row);
BAGS_API size_t bags_row_length(const bags_row *row, size_t slot);
BAGS_API bags_view bags_row_bytes(const bags_row *row, size_t slot, size_t item);
#endif

static inline void bagi_store_u64(unsigned char *data, uint64_t number) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(data, &number, sizeof number);
#else
    for (int i = 0; i < 8; i++)
        data[i] = (unsigned char)(number >> (8 * i));
#endif
}

static inline uint32_t bagi_load_u32(const unsigned char *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static inline void bagi_store_u32(unsigned char *data, uint32_t number) {
    for (int i = 0; i < 4; i++)
        data[i] = (unsigned char)(number >> (8 * i));
}

/* Convert a size or count from a file to size_t. False above SIZE_MAX / 2: no object is
 * larger, and the sum of two results cannot overflow. */
static inline bool bagi_size(uint64_t value, size_t *out) {
    if (value > SIZE_MAX / 2)
        return false;
    *out = (size_t)value;
    return true;
}

BAGS_API bool bags_little_endian(void) {
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

BAGS_API void bags_swap_bytes(void *to, const void *from, size_t size, size_t element) {
    unsigned char *out = (unsigned char *)to;
    const unsigned char *in = (const unsigned char *)from;
    if (!to || !from || element == 0)
        return;
    for (size_t i = 0; i < size; i += element)
        /* Read both ends before writing either: `to` may be `from`. */
        for (size_t low = i, high = i + element; low < high; low++) {
            unsigned char first = in[low], last = in[--high];
            out[low] = last;
            out[high] = first;
        }
}

/* Decode the UTF-8 sequence at the start of the text, and return its size, or 0 if it
 * is invalid: truncated, overlong, a surrogate or above U+10FFFF. */
static inline size_t bagi_utf8_sequence(
    const unsigned char *text, size_t size, uint32_t *point) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t first = text[0];
    *point = first;
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || size < length)
        return 0;
    uint32_t sum = first & (0x7FU >> length);
    for (size_t i = 1; i < length; i++) {
        /* All bytes but the first are 10xxxxxx. */
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        sum = sum << 6 | (text[i] & 0x3F);
    }
    *point = sum;
    /* The surrogates, D800 to DFFF, are for UTF-16 only. */
    bool valid = sum >= least[length] && sum <= 0x10FFFF && sum >> 11 != 0x1B;
    return valid ? length : 0;
}

BAGS_API bool bags_utf8_valid(const void *text, size_t size, size_t *bad) {
    const unsigned char *in = (const unsigned char *)text;
    uint32_t point;
    if (!text && size > 0 && bad)
        *bad = 0;
    if (!text)
        return size == 0;
    for (size_t i = 0; i < size;) {
        /* Most text is ASCII: none of eight bytes has its highest bit set. */
        if (size - i >= 8 && !(bagi_load_u64(in + i) & UINT64_C(0x8080808080808080))) {
            i += 8;
            continue;
        }
        size_t length = bagi_utf8_sequence(in + i, size - i, &point);
        if (length == 0) {
            if (bad)
                *bad = i;
            return false;
        }
        i += length;
    }
    return true;
}

/* Write a code point, and return the size of its sequence. */
static size_t bagi_utf8_encode(uint32_t point, char out[4]) {
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t length = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, point >>= 6)
        out[i] = (char)(0x80 | (point & 0x3F));
    out[0] = (char)(marks[length] | point);
    return length;
}

BAGS_API bool bags_view_is(bags_view view, const char *text) {
    size_t size = strlen(text);
    return view.size == size && (size == 0 || memcmp(view.data, text, size) == 0);
}

/* ========================================================================
 * >>crc
 * CRC-32C (Castagnoli), as in iSCSI and SCTP, and the trailer of NAME.crc.
 * bagi_output_seal writes it. x86-64 and ARM64 use the CPU's CRC instruction if it has
 * one. The instruction takes three cycles, but one can start in every cycle, so long
 * inputs are processed in three lanes at the same time. Other CPUs use constant tables:
 * nothing is initialised at run time or shared by threads. Writers compute a blob's CRC
 * when they buffer it, readers when they return it, and verify when it passes over it.
 * ====================================================================== */

#if defined(__x86_64__) && !defined(__TINYC__) &&                                      \
    (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5))
#include <nmmintrin.h>
#include <wmmintrin.h>
#define BAGI_CRC_CPU                                                                   \
    (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
#elif defined(__aarch64__) && defined(__AARCH64EL__) &&                                \
    (defined(__ARM_FEATURE_CRC32) || BAGI_HWCAP)
#if defined(__ARM_FEATURE_CRC32)
#define BAGI_CRC_CPU true
#else
#define BAGI_CRC_CPU (bagi_hwcap() & 1UL << 7) /* HWCAP_CRC32 */
#endif
#endif

/* A table of 16 entries, derived from entries 1, 2, 4 and 8: a CRC is linear, so the
 * entry for a number is the exclusive or of the entries for its bits. */
#define BAGI_CRC_4(x, a, b) (x), (x) ^ (a), (x) ^ (b), (x) ^ (a) ^ (b)
#define BAGI_CRC_16(a, b, c, d)                                                        \
    {                                                                                  \
        BAGI_CRC_4(0U, a, b), BAGI_CRC_4((uint32_t)(c), a, b),                         \
            BAGI_CRC_4((uint32_t)(d), a, b), BAGI_CRC_4((c) ^ (d), a, b)               \
    }

/* Process eight bytes per step, with a table for each of the 16 half-bytes. The last
 * two tables serve single bytes. */
static uint32_t bagi_crc_tables(uint32_t crc, const unsigned char *data, size_t size) {
    static const uint32_t tables[16][16] = {
        BAGI_CRC_16(0x493C7D27U, 0x9278FA4EU, 0x211D826DU, 0x423B04DAU),
        BAGI_CRC_16(0x847609B4U, 0x0D006599U, 0x1A00CB32U, 0x34019664U),
        BAGI_CRC_16(0x68032CC8U, 0xD0065990U, 0xA5E0C5D1U, 0x4E2DFD53U),
        BAGI_CRC_16(0x9C5BFAA6U, 0x3D5B83BDU, 0x7AB7077AU, 0xF56E0EF4U),
        BAGI_CRC_16(0xEF306B19U, 0xDB8CA0C3U, 0xB2F53777U, 0x6006181FU),
        BAGI_CRC_16(0xC00C303EU, 0x85F4168DU, 0x0E045BEBU, 0x1C08B7D6U),
        BAGI_CRC_16(0x38116FACU, 0x7022DF58U, 0xE045BEB0U, 0xC5670B91U),
        BAGI_CRC_16(0x8F2261D3U, 0x1BA8B557U, 0x37516AAEU, 0x6EA2D55CU),
        BAGI_CRC_16(0xDD45AAB8U, 0xBF672381U, 0x7B2231F3U, 0xF64463E6U),
        BAGI_CRC_16(0xE964B13DU, 0xD725148BU, 0xABA65FE7U, 0x52A0C93FU),
        BAGI_CRC_16(0xA541927EU, 0x4F6F520DU, 0x9EDEA41AU, 0x38513EC5U),
        BAGI_CRC_16(0x70A27D8AU, 0xE144FB14U, 0xC76580D9U, 0x8B277743U),
        BAGI_CRC_16(0x13A29877U, 0x274530EEU, 0x4E8A61DCU, 0x9D14C3B8U),
        BAGI_CRC_16(0x3FC5F181U, 0x7F8BE302U, 0xFF17C604U, 0xFBC3FAF9U),
        BAGI_CRC_16(0xF26B8303U, 0xE13B70F7U, 0xC79A971FU, 0x8AD958CFU),
        BAGI_CRC_16(0x105EC76FU, 0x20BD8EDEU, 0x417B1DBCU, 0x82F63B78U)};
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = bagi_load_u64(data) ^ crc;
        crc = 0;
        for (int i = 0; i < 16; i++, word >>= 4)
            crc ^= tables[i][word & 15];
    }
    for (; size > 0; data++, size--) {
        crc ^= *data;
        crc = crc >> 8 ^ tables[14][crc & 15] ^ tables[15][crc >> 4 & 15];
    }
    return crc;
}

#if defined(BAGI_CRC_CPU)

#if defined(__x86_64__)
#define BAGI_CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#define BAGI_CRC_STEP8(crc, word) _mm_crc32_u64(crc, word)
#define BAGI_CRC_STEP1(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)

/* Shift a CRC past the next lane, that is, append as many zero bytes as the lane has: a
 * product of polynomials. `power` is x^(8 * bytes - 33). */
BAGI_CRC_TARGET static inline uint64_t bagi_crc_shift(uint64_t crc, uint32_t power) {
    __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int)power), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}
#else
#define BAGI_CRC_TARGET
#define BAGI_CRC_STEP8(crc, word) bagi_crc_word(crc, word)
#define BAGI_CRC_STEP1(crc, byte) bagi_crc_byte(crc, byte)

/* Assembly, because the intrinsics require compiling with these instructions enabled
 * everywhere. */

static inline uint64_t bagi_crc_word(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint64_t bagi_crc_byte(uint64_t crc, unsigned char byte) {
    uint32_t word = byte;
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(word));
    return crc;
}

/* As on x86, but one bit at a time: not every CPU multiplies polynomials. */
static inline uint64_t bagi_crc_shift(uint64_t crc, uint32_t power) {
    uint64_t product = 0;
    for (int i = 0; i < 32; i++)
        product ^= (0 - (crc >> i & 1)) & (uint64_t)power << i;
    return bagi_crc_word(0, product);
}
#endif

/* Three lanes at the same time, while the data is long enough. `one` and `two`
 * shift a CRC past one lane and two lanes. */
BAGI_CRC_TARGET static inline uint64_t bagi_crc_lanes(uint64_t crc,
    const unsigned char **data, size_t *size, size_t lane, uint32_t one, uint32_t two) {
    const unsigned char *at = *data;
    for (; *size >= 3 * lane; *size -= 3 * lane) {
        uint64_t second = 0, third = 0;
        for (const unsigned char *stop = at + lane; at < stop; at += 8) {
            crc = BAGI_CRC_STEP8(crc, bagi_load_u64(at));
            second = BAGI_CRC_STEP8(second, bagi_load_u64(at + lane));
            third = BAGI_CRC_STEP8(third, bagi_load_u64(at + 2 * lane));
        }
        at += 2 * lane;
        crc = bagi_crc_shift(crc, two) ^ bagi_crc_shift(second, one) ^ third;
    }
    *data = at;
    return crc;
}

/* Lanes of 4 KiB, then shorter ones, then words, then bytes. */
BAGI_CRC_TARGET static uint32_t bagi_crc_cpu(
    uint32_t start, const unsigned char *data, size_t size) {
    uint64_t crc = start;
    crc = bagi_crc_lanes(crc, &data, &size, 4096, 0x82F89C77U, 0x54A86326U);
    crc = bagi_crc_lanes(crc, &data, &size, 512, 0xDD7E3B0CU, 0x170076FAU);
#if defined(__x86_64__)
    crc = bagi_crc_lanes(crc, &data, &size, 64, 0x9E4ADDF8U, 0x0D3B6092U);
#endif
    for (; size >= 8; data += 8, size -= 8)
        crc = BAGI_CRC_STEP8(crc, bagi_load_u64(data));
    for (; size > 0; data++, size--)
        crc = BAGI_CRC_STEP1(crc, *data);
    return (uint32_t)crc;
}

#endif

BAGS_API uint32_t bags_crc32c(uint32_t crc, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
#if defined(BAGI_CRC_CPU)
    /* The test is a single load, so caching its result would gain nothing. */
    if (BAGI_CRC_CPU)
        return ~bagi_crc_cpu(~crc, bytes, size);
#endif
    return ~bagi_crc_tables(~crc, bytes, size);
}

/*
 * The trailer of NAME.crc, after the CRCs of the N blobs. It binds them to one Bag of
 * one dataset, so that a file copied from elsewhere is detected. It has 44 bytes
 * (offset, size, content), with little-endian integers:
 *
 *      0  8  N
 *      8  8  size of NAME.bag
 *     16  4  CRC of the table (split: of the entries of NAME.idx)
 *     20  4  CRC of the N CRCs
 *     24  4  CRC of the field's name, or of "refs"; with a NAME.dict, computed over the
 *            name followed by the 4-byte CRC of that file. Standalone: 0
 *     28  4  CRC that binds the shard together; standalone: 0
 *     32  8  "BAGSCRC2"; standalone: "BAGSCRC1"
 *     40  4  CRC of the 40 bytes before
 *
 * The CRC at offset 28 is the same in all trailers of a shard: see bagi_bind. Datasets
 * written by version 0.1 of this library have BAGSCRC1 and are refused, because that
 * CRC covered only spec.json.
 */
/* Constant, so that the compiler drops code used only with checksums. */
#ifdef BAGS_NO_CHECKSUM
#define BAGI_CHECKSUMS false
#else
#define BAGI_CHECKSUMS true
#endif
#define BAGI_TRAILER_ALONE "BAGSCRC1"
#define BAGI_TRAILER_SHARD "BAGSCRC2"

/* Extend the CRC that binds a shard's Bags together. It starts as the CRC of spec.json.
 * Every Bag then adds its name, without .bag, and the CRC of its CRCs: the fields in
 * the order of spec.json, then refs unless the shard is split. */
static uint32_t bagi_bind(uint32_t crc, const char *name, uint32_t crcs) {
    unsigned char bytes[4];
    bagi_store_u32(bytes, crcs);
    crc = bags_crc32c(crc, name, strlen(name));
    return bags_crc32c(crc, bytes, sizeof bytes);
}

#ifndef BAGS_NO_WRITER
/* The last four bytes are the CRC of the others. */
static void bagi_trailer_store(
    const bags_trailer *trailer, unsigned char data[BAGS_TRAILER_SIZE]) {
    bagi_store_u64(data, trailer->length);
    bagi_store_u64(data + 8, trailer->size);
    bagi_store_u32(data + 16, trailer->table);
    bagi_store_u32(data + 20, trailer->crcs);
    bagi_store_u32(data + 24, trailer->name);
    bagi_store_u32(data + 28, trailer->shard);
    memcpy(
        data + 32, trailer->binds_shard ? BAGI_TRAILER_SHARD : BAGI_TRAILER_ALONE, 8);
    bagi_store_u32(data + 40, bags_crc32c(0, data, 40));
}
#endif

/* False if the bytes are not a trailer, or are damaged. */
static bool bagi_trailer_load(
    const unsigned char data[BAGS_TRAILER_SIZE], bags_trailer *trailer) {
    trailer->length = bagi_load_u64(data);
    trailer->size = bagi_load_u64(data + 8);
    trailer->table = bagi_load_u32(data + 16);
    trailer->crcs = bagi_load_u32(data + 20);
    trailer->name = bagi_load_u32(data + 24);
    trailer->shard = bagi_load_u32(data + 28);
    trailer->binds_shard = memcmp(data + 32, BAGI_TRAILER_SHARD, 8) == 0;
    return (trailer->binds_shard || memcmp(data + 32, BAGI_TRAILER_ALONE, 8) == 0) &&
           bagi_load_u32(data + 40) == bags_crc32c(0, data, 40);
}

BAGS_API bool bags_trailer_load(const void *data, size_t size, bags_trailer *trailer) {
    return data && trailer && size == BAGS_TRAILER_SIZE &&
           bagi_trailer_load((const unsigned char *)data, trailer);
}

/* ========================================================================
 * >>fail
 * A message is written where the fault is found; callers that know more about the
 * location (the file, field or index) prefix it on the way up. Private functions are
 * never called with err NULL. A message is always one line of valid UTF-8, so it can be
 * printed whatever an untrusted file contains.
 * ====================================================================== */

/* The first statement of a public function whose err may be NULL and is passed to
 * private functions. */
#define BAGI_ERR(err)                                                                  \
    bags_error bagi_local_err;                                                         \
    (err) = (err) ? (err) : &bagi_local_err

/* Return from a public function if a caller passed NULL where it is not allowed. */
#define BAGI_NEED(condition, err)                                                      \
    do {                                                                               \
        if (BAGI_UNLIKELY(!(condition)))                                               \
            return bagi_fail_null(err);                                                \
    } while (0)

/* Return a step's failure from a function that has nothing to clean up. */
#define BAGI_TRY(step)                                                                 \
    do {                                                                               \
        bags_code bagi_failed = (step);                                                \
        if (BAGI_UNLIKELY(bagi_failed))                                                \
            return bagi_failed;                                                        \
    } while (0)

/* Call a function that consists of asserts and exists only with BAGS_DEBUG. */
#ifdef BAGS_DEBUG
#include <assert.h>
#define BAGI_CHECK(call) call
#else
#define BAGI_CHECK(call) ((void)0)
#endif

/* BAGI_ERR and BAGI_NEED. */
#define BAGI_BEGIN(condition, err)                                                     \
    BAGI_ERR(err);                                                                     \
    BAGI_NEED(condition, err)

/* For a public function whose options may be NULL, meaning all 0. */
#define BAGI_OPTIONS(type, options)                                                    \
    type bagi_default_options = BAGI_ZERO;                                             \
    (options) = (options) ? (options) : &bagi_default_options

BAGS_API const char *bags_version(void) { return BAGS_VERSION; }

BAGS_API const char *bags_code_name(bags_code code) {
    static const char *const names[] = {"ok", "invalid argument", "call out of order",
        "index or range out of bounds", "invalid field", "invalid type",
        "invalid value", "missing", "already exists", "locked by a writer",
        "unfinished", "missing shards", "corrupt data", "too large",
        "input or output failed", "out of memory", "changed by another process"};
    size_t i = (size_t)code;
    return i < sizeof names / sizeof *names ? names[i] : "unknown error";
}

/* Find the remedy in a message: the text that the format has after a semicolon and
 * after the last argument (arguments may be names that contain semicolons). */
BAGI_COLD static size_t bagi_remedy(const char *format, const char *message) {
    const char *last = strrchr(format, '%');
    const char *found = strstr(last ? last : format, "; ");
    if (!found)
        return 0;
    size_t size = strlen(message), tail = strlen(found + 2);
    bool complete = tail < size && memcmp(message + size - tail, found + 2, tail) == 0;
    return complete ? size - tail : 0;
}

/* Make a message one line of valid UTF-8: names in it may come from untrusted files,
 * and it may have been truncated inside a character. Returns its size. */
BAGI_COLD static size_t bagi_clean_message(char *message) {
    unsigned char *text = (unsigned char *)message;
    size_t all = strlen(message);
    for (size_t size = all, step; size > 0;) {
        uint32_t point;
        step = bagi_utf8_sequence(text, size, &point);
        if (step == 0 || point < 0x20 || point == 0x7F) {
            *text = '?';
            step = 1;
        }
        text += step;
        size -= step;
    }
    return all;
}

BAGS_API BAGI_COLD bags_code bags_vfail(
    bags_error *err, bags_code code, const char *format, va_list arguments) {
    if (!err)
        return code;
    err->code = code;
    err->system = 0;
    if (!format)
        format = "";
    if (vsnprintf(err->message, sizeof err->message, format, arguments) < 0)
        err->message[0] = '\0';
    (void)bagi_clean_message(err->message);
    err->remedy = bagi_remedy(format, err->message);
    return code;
}

BAGS_API BAGI_COLD bags_code bags_fail(
    bags_error *err, bags_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)bags_vfail(err, code, format, arguments);
    va_end(arguments);
    return code;
}

BAGS_API BAGI_COLD bags_code bags_prefix(
    bags_error *err, bags_code code, const char *format, ...) {
    char old[BAGS_ERROR_SIZE];
    va_list arguments;
    if (!err)
        return code;
    err->code = code;
    memcpy(old, err->message, sizeof old);
    va_start(arguments, format);
    if (vsnprintf(err->message, sizeof err->message * 3 / 4, format, arguments) < 0)
        err->message[0] = '\0';
    va_end(arguments);
    size_t front = strlen(err->message);
    (void)snprintf(err->message + front, sizeof err->message - front, "%s", old);
    size_t size = bagi_clean_message(err->message);
    if (err->remedy)
        err->remedy = front + err->remedy < size ? front + err->remedy : 0;
    return code;
}

BAGS_API BAGI_COLD bags_code bags_suffix(bags_error *err, const char *format, ...) {
    va_list arguments;
    if (!err)
        return BAGS_OK;
    size_t size = strlen(err->message);
    va_start(arguments, format);
    if (vsnprintf(err->message + size, sizeof err->message - size, format, arguments) <
        0)
        err->message[size] = '\0';
    va_end(arguments);
    bool appended = strncmp(err->message + size, "; ", 2) == 0;
    if (bagi_clean_message(err->message) > size + 2 && appended && !err->remedy)
        err->remedy = size + 2;
    return err->code;
}

BAGI_COLD static bags_code bagi_fail_null(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "invalid argument: a pointer is NULL");
}

/* Fail for an index out of range: "blob index 2 out of range (length 2)". The caller
 * prefixes it with the object that has this length. */
BAGI_COLD static bags_code bagi_fail_index(
    const char *what, uint64_t index, uint64_t length, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_RANGE,
        "%s index %" PRIu64 " out of range (length %" PRIu64 ")", what, index, length);
}

/* Fail for start > stop. The caller prefixes the message with the location. */
BAGI_COLD static bags_code bagi_fail_range(
    uint64_t start, uint64_t stop, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_RANGE,
        "invalid range (start %" PRIu64 " > stop %" PRIu64 ")", start, stop);
}

/* The end of a path, so that a long path leaves space for the reason. */
BAGS_API const char *bags_path_tail(const char *path) {
    const size_t most = 320;
    size_t size = strlen(path);
    if (size <= most)
        return path;
    path += size - most;
    while (((unsigned char)*path & 0xC0) == 0x80) /* not inside a character */
        path++;
    return path;
}

/* err may be NULL, for bags_buffer_reserve. */
BAGI_COLD static bags_code bagi_fail_memory(bags_error *err, size_t size) {
    return bags_fail(err, BAGS_ERROR_MEMORY,
        "out of memory (requested %" PRIu64 " bytes)", (uint64_t)size);
}

/* ========================================================================
 * >>memory
 * Caller-owned buffers, and allocation through the caller's hook, passing it the size
 * of the memory it frees. Nothing else in the library calls malloc, except >>platform
 * on Windows. Callers check sizes read from files first.
 * ====================================================================== */

/* An object's copy of its hooks, with the defaults filled in. */
typedef struct bagi_env {
    bags_allocator memory;
    bags_io io;
    size_t here; /* bytes that bagi_absolute prepended to the object's paths */
} bagi_env;

/* The default allocator. It calls free for a size of 0, because realloc's behavior for
 * 0 depends on the system. */
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

BAGS_API bags_allocator bags_allocator_of(const bags_allocator *allocator) {
    bags_allocator memory = {bagi_malloc_resize, NULL};
    return allocator ? *allocator : memory;
}

#ifndef BAGS_NO_WRITER

static int bagi_refuse(void *user, const char *path) {
    (void)user;
    (void)path;
    return EROFS;
}

static int bagi_refuse_rename(void *user, const char *from, const char *to) {
    (void)to;
    return bagi_refuse(user, from);
}

#endif

/* env may be NULL, because the options that contain it may be. */
BAGI_COLD static bagi_env bagi_env_of(const bags_env *env) {
    bagi_env made;
    made.memory = bags_allocator_of(env ? env->allocator : NULL);
    made.io = env && env->io ? *env->io : *bags_io_local();
#ifndef BAGS_NO_WRITER
    if (!made.io.make_dir) { /* hooks that only read */
        made.io.make_dir = made.io.sync_dir = bagi_refuse;
        made.io.remove = made.io.remove_dir = bagi_refuse;
        made.io.rename = bagi_refuse_rename;
    }
#endif
    made.here = 0;
    return made;
}

/* Uninitialised memory, or NULL with err written. The system assigns no pages to memory
 * that is never touched, so a generous size costs nothing. At least 1 byte is
 * requested, because a hook treats 0 as a request to free. */
static void *bagi_alloc_raw(
    const bags_allocator *memory, size_t size, bags_error *err) {
    void *data = memory->resize(memory->user, NULL, 0, size ? size : 1);
    if (!data)
        bagi_fail_memory(err, size);
    return data;
}

/* Zeroed memory, or NULL with err written. */
static void *bagi_alloc(const bags_allocator *memory, size_t size, bags_error *err) {
    void *data = bagi_alloc_raw(memory, size, err);
    if (data)
        memset(data, 0, size);
    return data;
}

/* `size` is the size requested from bagi_alloc. data may be NULL. */
static void bagi_free(const bags_allocator *memory, void *data, size_t size) {
    if (data)
        memory->resize(memory->user, data, size ? size : 1, 0);
}

/* Remove const. A reader is const to its users, and changes only under a mutex or
 * atomically; text being freed is const to its owner. */
static void *bagi_mutable(const void *object) { return (void *)(uintptr_t)object; }

/* The text must contain no NUL: its length determines the size freed. */
static void bagi_free_text(const bags_allocator *memory, const char *text) {
    if (text)
        bagi_free(memory, bagi_mutable(text), strlen(text) + 1);
}

/* Format text as printf does, NUL-terminated; free it with bagi_free_text. */
BAGI_COLD BAGI_PRINTF(3, 4) static char *bagi_print(
    const bags_allocator *memory, bags_error *err, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (size < 0) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "text cannot be formatted");
        return NULL;
    }
    size_t needed = (size_t)size + 1;
    char *text = (char *)memory->resize(memory->user, NULL, 0, needed);
    if (!text) {
        bagi_fail_memory(err, needed);
        return NULL;
    }
    va_start(arguments, format);
    (void)vsnprintf(text, needed, format, arguments);
    va_end(arguments);
    return text;
}

/* Free it with bagi_free_text. */
static char *bagi_copy_text(
    const bags_allocator *memory, const char *text, bags_error *err) {
    size_t size = strlen(text) + 1;
    char *copy = (char *)bagi_alloc_raw(memory, size, err);
    if (copy)
        memcpy(copy, text, size);
    return copy;
}

BAGS_API bags_code bags_buffer_reserve(
    bags_buffer *buffer, size_t size, bags_error *err) {
    if (!buffer)
        return bagi_fail_null(err);
    if (size <= buffer->capacity)
        return BAGS_OK;
    if (!buffer->resize)
        buffer->resize = bagi_malloc_resize;
    /* If this overflows, `more` is small, and `size` is used. */
    size_t more = buffer->capacity + buffer->capacity / 2;
    if (more < size)
        more = size;
    if (more < 64)
        more = 64;
    void *data = buffer->resize(buffer->user, buffer->data, buffer->capacity, more);
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

/* A buffer without an allocator takes the allocator of the object that uses it. */
static void bagi_buffer_adopt(bags_buffer *buffer, const bags_allocator *memory) {
    if (!buffer->resize) {
        buffer->resize = memory->resize;
        buffer->user = memory->user;
    }
}

BAGS_API bags_buffer bags_buffer_of(const bags_allocator *allocator) {
    bags_buffer buffer = BAGI_ZERO;
    if (allocator)
        bagi_buffer_adopt(&buffer, allocator);
    return buffer;
}

/* Append an item to an array of *count items. */
static bags_code bagi_push(bags_buffer *array, const bags_allocator *memory,
    size_t *count, const void *item, size_t size, bags_error *err) {
    bagi_buffer_adopt(array, memory);
    bags_code code = bags_buffer_reserve(array, (*count + 1) * size, err);
    if (!code)
        memcpy(array->data + (*count)++ * size, item, size);
    return code;
}

/* ========================================================================
 * >>files
 * Wrappers around the hooks: reads that are complete or fail with a message, paths,
 * file identities, and directories whose files have a name and a suffix. A message
 * begins with the path as the caller passed it, although the hooks receive absolute
 * paths. The set of open files is in >>set; writes pass through the streams of
 * >>bag-write.
 * ====================================================================== */

/* Refuse a NULL or empty path. */
static bags_code bagi_check_path(const char *path, bags_error *err) {
    if (path && *path) /* "" would put shards in the root directory */
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
}

/* An object's path as the caller passed it. A parent directory may be shorter than the
 * prepended part. */
static const char *bagi_passed(const bagi_env *env, const char *path) {
    return strlen(path) > env->here ? path + env->here : path;
}

/* The same, shortened for a message. */
static const char *bagi_shown(const bagi_env *env, const char *path) {
    return bags_path_tail(bagi_passed(env, path));
}

BAGI_COLD static bags_code bagi_fail_io(const bagi_env *env, int error,
    const char *path, const char *doing, bags_error *err) {
    char why[512], buffer[128];
    if (!error)
        return BAGS_OK;
    why[0] = '\0';
    path = bagi_passed(env, path);
    if (env->io.explain)
        env->io.explain(env->io.user, path, error, why, sizeof why);
    /* bags_io_local refuses a pipe or device with ENXIO; its own text would mislead, as
     * would the text of ENOMEM on Windows ("Not enough space"). */
    const char *text = *why             ? why
                       : error == ENXIO ? "not a regular file"
                       : error == ENOMEM
                           ? "out of memory"
                           : bagi_system_text(error, buffer, sizeof buffer);
    bags_code code = error == ENOENT || error == ENOTDIR ? BAGS_ERROR_MISSING
                     : error == EEXIST                   ? BAGS_ERROR_EXISTS
                     : error == EWOULDBLOCK              ? BAGS_ERROR_LOCKED
                     : error == ENOMEM                   ? BAGS_ERROR_MEMORY
                     : error == BAGI_STALE               ? BAGS_ERROR_CHANGED
                                                         : BAGS_ERROR_IO;
    bags_fail(err, code, "%s: cannot %s: %s", bags_path_tail(path), doing, text);
    err->system = error;
    return code;
}

/* An environment for public functions that take only hooks. `io` may be NULL. */
BAGI_COLD static bagi_env bagi_env_for(const bags_io *io) {
    bagi_env env;
    memset(&env, 0, sizeof env);
    if (io)
        env.io = *io;
    return env;
}

BAGS_API BAGI_COLD bags_code bags_fail_io(const bags_io *io, int error,
    const char *path, const char *doing, bags_error *err) {
    BAGI_ERR(err);
    const bagi_env env = bagi_env_for(io);
    return bagi_fail_io(&env, error, path, doing, err);
}

/* *file is NULL after a failure. */
static bags_code bagi_open(
    const bagi_env *env, const char *path, int mode, void **file, bags_error *err) {
    int error = env->io.open(env->io.user, path, mode, file);
    if (error)
        *file = NULL;
    return bagi_fail_io(
        env, error, path, mode == BAGS_IO_CREATE ? "create" : "open", err);
}

/* Close a file that was only read, so nothing can be lost. */
static void bagi_close_read(const bagi_env *env, void *file) {
    if (file)
        env->io.close(env->io.user, file);
}

static bags_code bagi_file_size(const bagi_env *env, void *file, const char *path,
    uint64_t *size, bags_error *err) {
    return bagi_fail_io(
        env, env->io.size(env->io.user, file, size), path, "get the size of", err);
}

/* Read exactly `size` bytes of an open file. */
static bags_code bagi_read(const bagi_env *env, void *file, const char *path,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    unsigned char *out = (unsigned char *)data;
    while (size > 0) {
        size_t done = 0;
        int error = env->io.read_at(env->io.user, file, offset, out, size, &done);
        if (error)
            return bagi_fail_io(env, error, path, "read", err);
        if (done == 0 || done > size)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: truncated while open (ends at offset %" PRIu64 ", %" PRIu64
                " bytes missing)",
                bagi_shown(env, path), offset, (uint64_t)size);
        out += done;
        offset += done;
        size -= done;
    }
    return BAGS_OK;
}

BAGS_API bags_code bags_read(const bags_io *io, void *file, const char *path,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    BAGI_ERR(err);
    const bagi_env env = bagi_env_for(io);
    return bagi_read(&env, file, path, offset, data, size, err);
}

/* Classify a path. If *code is an error, do nothing and return NONE. */
static bags_path_kind bagi_kind(
    const bagi_env *env, const char *path, bags_code *code, bags_error *err) {
    bags_path_kind kind = BAGS_PATH_NONE;
    if (!*code)
        *code = bagi_fail_io(
            env, env->io.kind(env->io.user, path, &kind), path, "stat", err);
    return *code ? BAGS_PATH_NONE : kind;
}

/* ---- paths ----
 * Paths are UTF-8; on Windows both slashes separate names. */

/* True for a separator between the names in a path. */
static bool bagi_is_slash(char c) {
    return c == '/' || (BAGI_WINDOWS_PATHS && c == '\\');
}

#ifndef BAGS_NO_WRITER
/* The size of a path's root (the part without a parent): "/", and on Windows also
 * "C:/", "C:", "//server/share/" and "//?/C:/". */
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

/* The parent directory of a path; "." for a bare name. Free it with bagi_free_text. */
static char *bagi_parent(
    const bags_allocator *memory, const char *path, bags_error *err) {
    size_t size = strlen(path), root = bagi_root_size(path);
    while (size > root && bagi_is_slash(path[size - 1]))
        size--;
    while (size > root && !bagi_is_slash(path[size - 1]))
        size--;
    while (size > root + !root && bagi_is_slash(path[size - 1]))
        size--;
    return bagi_print(memory, err, "%.*s", (int)(size ? size : 1), size ? path : ".");
}

/* Wait until the names in a directory are on stable storage. */
static bags_code bagi_sync_dir(const bagi_env *env, const char *path, bags_error *err) {
    return bagi_fail_io(env, env->io.sync_dir(env->io.user, path), path, "sync", err);
}

/* Sync the directory that contains a path. */
BAGI_COLD static bags_code bagi_sync_parent(
    const bagi_env *env, const char *path, bags_error *err) {
    char *parent = bagi_parent(&env->memory, path, err);
    bags_code code = parent ? bagi_sync_dir(env, parent, err) : BAGS_ERROR_MEMORY;
    bagi_free_text(&env->memory, parent);
    return code;
}

/* Create missing parent directories of a path. Sync the parent of each directory
 * created here, because recovery does not. */
BAGI_COLD static bags_code bagi_make_parents(
    const bagi_env *env, const char *path, bags_error *err) {
    char *parent = bagi_parent(&env->memory, path, err);
    bags_code code = parent ? BAGS_OK : BAGS_ERROR_MEMORY;
    bags_path_kind kind = bagi_kind(env, parent, &code, err);
    /* A root is its own parent. */
    if (!code && kind == BAGS_PATH_NONE && strcmp(parent, path) != 0) {
        code = bagi_make_parents(env, parent, err);
        int error = code ? 0 : env->io.make_dir(env->io.user, parent);
        if (error && error != EEXIST)
            code = bagi_fail_io(env, error, parent, "create directory", err);
        else if (!code && !error)
            code = bagi_sync_parent(env, parent, err);
    }
    bagi_free_text(&env->memory, parent);
    return code;
}
#endif

/* Copy a path for the object with this env, making it absolute if files are local, so
 * that a later chdir() has no effect. Free it with bagi_free_text. */
BAGI_COLD static char *bagi_absolute(
    bagi_env *env, const char *path, size_t size, bags_error *err) {
    const size_t most = 4096;
    bool absolute =
        bagi_is_slash(path[0]) || (BAGI_WINDOWS_PATHS && path[0] && path[1] == ':');
    if (absolute || env->io.open != bagi_local_open)
        return bagi_print(&env->memory, err, "%.*s", (int)size, path);
    char *here = (char *)bagi_alloc(&env->memory, most, err);
    if (!here)
        return NULL;
    if (bagi_local_directory(here, most))
        env->here = strlen(here);
    bool slash = env->here && !bagi_is_slash(here[env->here - 1]);
    char *out = bagi_print(&env->memory, err, "%.*s%s%.*s", (int)env->here, here,
        slash ? "/" : "", (int)size, path);
    env->here += slash;
    bagi_free(&env->memory, here, most);
    return out;
}

/* ---- identity ----
 * Other processes may rename, replace or remove a file by its path while we have it
 * open. */

#ifndef BAGS_NO_WRITER
/* Check that a path still leads to the open file, before it is renamed or removed, or
 * the data it vouches for is changed. */
BAGI_COLD static bags_code bagi_check_same(
    const bagi_env *env, void *file, const char *path, bags_error *err) {
    bags_identity opened, found;
    if (!env->io.identify)
        return BAGS_OK;
    int error = env->io.identify(env->io.user, file, path, &opened);
    if (!error)
        error = env->io.identify(env->io.user, NULL, path, &found);
    if (error && error != ENOENT)
        return bagi_fail_io(env, error, path, "identify", err);
    if (!error && opened.device == found.device && opened.inode == found.inode)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CHANGED,
        "%s: another process replaced, renamed or removed it while it was "
        "open; nothing was changed",
        bagi_shown(env, path));
}
#endif

/* Add a number to a hash. */
static uint64_t bagi_mix(uint64_t hash, uint64_t number) {
    hash = (hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* The identity of an open file or a path in 8 bytes; 0 without the hook. */
BAGI_COLD static int bagi_identify(
    const bagi_env *env, void *file, const char *path, uint64_t *identity) {
    bags_identity found;
    *identity = 0;
    if (!env->io.identify)
        return 0;
    int error = env->io.identify(env->io.user, file, path, &found);
    if (error)
        return error;
    uint64_t words[] = {found.device, found.inode, found.time, found.size};
    uint64_t mix = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        mix = bagi_mix(mix, words[i]);
    *identity = mix ? mix : 1;
    return 0;
}

/* Check that a shard's record still has the identity it had when the shard was opened;
 * 0: unknown. The record is spec.json; until the shard is finished, perhaps in the
 * meantime, the same file is named spec.json.partial. With `expect`, only announce the
 * check. */
BAGI_COLD static bags_code bagi_check_record(const bagi_env *env, const char *path,
    uint64_t identity, bool expect, bags_error *err) {
    static const char *const names[] = {"spec.json", "spec.json.partial", "spec.json"};
    uint64_t found = 0;
    int error = 0;
    if (!identity)
        return BAGS_OK;
    size_t size = strlen(path), most = size + sizeof "spec.json.partial";
    while (size > 0 && !bagi_is_slash(path[size - 1]))
        size--;
    /* Use the stack unless the list is long: advice cannot report a lack of memory. */
    const bags_allocator *memory = &env->memory;
    char space[1024], *record = space;
    if (most > sizeof space)
        record = (char *)memory->resize(memory->user, NULL, 0, most);
    if (!record)
        return bagi_fail_memory(err, most);
    for (int i = 0; i < 3 && !error && found != identity; i++) {
        memcpy(record, path, size);
        strcpy(record + size, names[i]);
        if (expect) {
            if (env->io.expect)
                env->io.expect(env->io.user, record);
            found = identity;
            continue;
        }
        error = bagi_identify(env, NULL, record, &found);
        if (error == ENOENT || error == ENOTDIR) /* missing is not a failure */
            error = 0;
    }
    bags_code code = bagi_fail_io(env, error, record, "identify", err);
    if (record != space)
        bagi_free(memory, record, most);
    if (code || found == identity)
        return code;
    return bags_fail(err, BAGS_ERROR_CHANGED,
        "%s: its shard was replaced, renamed or removed since it was opened; "
        "open the dataset again",
        bagi_shown(env, path));
}

/* The same after reading a file of the shard, given the result of that read.
 * Contradictory data may come from two versions of the shard, so on a server spec.json
 * is looked up again. */
BAGI_COLD static bags_code bagi_check_found(const bagi_env *env, const char *path,
    uint64_t identity, bags_code code, bags_error *err) {
    bags_error why;
    if (code && code != BAGS_ERROR_CORRUPT)
        return code;
    if (code)
        (void)bagi_check_record(env, path, identity, true, &why);
    bags_code same = bagi_check_record(env, path, identity, false, &why);
    if (same)
        *err = why;
    return same ? same : code;
}

/* ---- directories ---- */

/* The files of a Bag, in the order in which they must reach the system. */
enum { BAGI_BLOBS, BAGI_CRCS, BAGI_ENDS, BAGI_FILES };

#define BAGI_DRAFTS ".partial" /* of refs: see >>dataset-write */
#define BAGI_DICTIONARY ".dict"
#define BAGI_DICTIONARY_NEW ".dict.partial" /* until the dictionary is complete */
#define BAGI_DICTIONARY_MAX ((size_t)16 << 20)

/* The suffixes of these files, in the same order, and of the dictionary. */
static const char *const bagi_suffix[] = {
    ".bag", ".crc", ".idx", BAGI_DICTIONARY, BAGI_DICTIONARY_NEW};

/* Bytes of a Bag's longest name in any file system, and of the longest path below a
 * dataset: a shard name, a Bag name, and a suffix. */
enum { BAGI_NAME_LONGEST = 1024, BAGI_NAME_SPACE = 1536 };

/* A directory of Bags. A standalone Bag is treated as a directory with one nameless
 * field; `path` is then the Bag's path without .bag. Only one thread at a time may use
 * it, because it holds the memory for its files' paths. */
typedef struct bagi_dir {
    const bagi_env *env;
    char *path;
    const char *shown; /* the path in messages */
    char *file;        /* the path of the last file named */
    char *renamed;     /* its new path */
    size_t size;       /* of each of the three texts, allocated as one block */
    bool standalone;
    bool bare; /* standalone, and the Bag's name does not end in .bag */
} bagi_dir;

static void bagi_dir_free(bagi_dir *dir) {
    if (dir->path)
        bagi_free(&dir->env->memory, dir->path, 3 * dir->size);
    dir->path = NULL;
}

/* Set up the directory at a path with `name`, at most a shard name, appended. If `name`
 * is NULL, the path names a standalone Bag. Free it with bagi_dir_free, even after a
 * failure. */
BAGI_COLD static bags_code bagi_dir_open(bagi_dir *dir, const bagi_env *env,
    const char *path, const char *name, bags_error *err) {
    memset(dir, 0, sizeof *dir);
    dir->env = env;
    dir->standalone = !name;
    dir->size = strlen(path) + (name ? (size_t)BAGI_NAME_SPACE : sizeof ".crc.partial");
    dir->path = (char *)bagi_alloc_raw(&env->memory, 3 * dir->size, err);
    if (!dir->path)
        return BAGS_ERROR_MEMORY;
    dir->file = dir->path + dir->size;
    dir->renamed = dir->file + dir->size;
    (void)snprintf(dir->path, dir->size, "%s%s", path, name ? name : "");
    dir->shown = bagi_shown(env, dir->path);
    return BAGS_OK;
}

/* The path of a file in a directory, valid until the next call. */
static const char *bagi_dir_path(
    const bagi_dir *dir, const char *name, const char *suffix) {
    if (dir->bare && strcmp(suffix, ".bag") == 0)
        suffix = "";
    /* snprintf would account for a sixth of the time to open a dataset. */
    const char *const parts[] = {dir->path, dir->standalone ? "" : "/", name, suffix};
    char *to = dir->file, *last = to + dir->size - 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const char *from = parts[i]; *from && to < last; from++)
            *to++ = *from;
    *to = '\0';
    return dir->file;
}

/* Set up the directory of a standalone Bag's files; free it with bagi_dir_free, even
 * after a failure. */
BAGI_COLD static bags_code bagi_dir_standalone(
    bagi_env *env, const char *path, bagi_dir *dir, bags_error *err) {
    memset(dir, 0, sizeof *dir);
    BAGI_TRY(bagi_check_path(path, err));
    size_t size = strlen(path);
    bool bare = size < 4 || memcmp(path + size - 4, ".bag", 4) != 0;
    char *text = bagi_absolute(env, path, size - (bare ? 0 : 4), err);
    bags_code code =
        text ? bagi_dir_open(dir, env, text, NULL, err) : BAGS_ERROR_MEMORY;
    bagi_free_text(&env->memory, text);
    dir->bare = bare;
    return code;
}

/* Announce that a file of a directory may be opened soon. */
static void bagi_dir_expect(const bagi_dir *dir, const char *name, const char *suffix) {
    const bagi_env *env = dir->env;
    if (env->io.expect)
        env->io.expect(env->io.user, bagi_dir_path(dir, name, suffix));
}

/* True if a file with this name exists. See bagi_kind. */
static bool bagi_dir_has(const bagi_dir *dir, const char *name, const char *suffix,
    bags_code *code, bags_error *err) {
    return !*code && bagi_kind(dir->env, bagi_dir_path(dir, name, suffix), code, err) ==
                         BAGS_PATH_FILE;
}

#ifndef BAGS_NO_WRITER
/* A copy of the path of a file; free it with bagi_free_text. */
static char *bagi_dir_copy(
    const bagi_dir *dir, const char *name, const char *suffix, bags_error *err) {
    return bagi_copy_text(&dir->env->memory, bagi_dir_path(dir, name, suffix), err);
}

/* Remove a file; a missing one is not a failure. */
BAGI_COLD static bags_code bagi_dir_remove(
    const bagi_dir *dir, const char *name, const char *suffix, bags_error *err) {
    const char *path = bagi_dir_path(dir, name, suffix);
    int error = dir->env->io.remove(dir->env->io.user, path);
    return bagi_fail_io(dir->env, error == ENOENT ? 0 : error, path, "remove", err);
}

/* Rename a file to the same name with another suffix. */
BAGI_COLD static bags_code bagi_dir_rename(const bagi_dir *dir, const char *name,
    const char *from_suffix, const char *to_suffix, bags_error *err) {
    const bags_io *io = &dir->env->io;
    strcpy(dir->renamed, bagi_dir_path(dir, name, to_suffix));
    const char *path = bagi_dir_path(dir, name, from_suffix);
    int error = io->rename(io->user, path, dir->renamed);
    return bagi_fail_io(dir->env, error, path, "rename", err);
}
#endif

/* Read an entire small file into an empty buffer: *size bytes. The buffer has memory
 * only on success. *identity (may be NULL) receives the file's identity. */
BAGI_COLD static bags_code bagi_dir_read(const bagi_dir *dir, const char *name,
    const char *suffix, size_t most, bags_buffer *data, size_t *size,
    uint64_t *identity, bags_error *err) {
    const bagi_env *env = dir->env;
    void *file = NULL;
    uint64_t length = 0;
    const char *path = bagi_dir_path(dir, name, suffix);
    bagi_buffer_adopt(data, &env->memory);
    bags_code code = bagi_open(env, path, BAGS_IO_READ, &file, err);
    if (!code)
        code = bagi_file_size(env, file, path, &length, err);
    if (!code && length > most)
        code = bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            bagi_shown(env, path), length, (uint64_t)most);
    if (!code)
        code = bags_buffer_reserve(data, (size_t)length + 1, err);
    if (!code)
        code = bagi_read(env, file, path, 0, data->data, (size_t)length, err);
    if (!code && identity)
        code = bagi_fail_io(
            env, bagi_identify(env, file, path, identity), path, "identify", err);
    bagi_close_read(env, file);
    if (code)
        bags_buffer_free(data);
    else
        *size = (size_t)length;
    return code;
}

/* ========================================================================
 * >>json
 * The JSON of spec.json: one object whose keys and values are strings. It may contain
 * any whitespace and escapes, and is written in the format of Python's json.dumps. On
 * the first fault, a parser returns false, 0 or NULL and leaves `at` there for the
 * message. Only >>spec calls this section.
 * ====================================================================== */

typedef struct bagi_json {
    const unsigned char *text;
    size_t size, at;
    /* Where to put the next decoded string. A string is never longer than its JSON
     * text, so a buffer as large as the text is enough. */
    char *out;
} bagi_json;

/* The next byte, or 0 at the end: a NUL in the text is invalid everywhere. */
static unsigned char bagi_json_peek(const bagi_json *json) {
    return json->at < json->size ? json->text[json->at] : 0;
}

/* Skip whitespace and a mark that follows it. */
static bool bagi_json_mark(bagi_json *json, char mark) {
    while (bagi_json_peek(json) && strchr(" \t\r\n", bagi_json_peek(json)))
        json->at++;
    bool found = bagi_json_peek(json) == (unsigned char)mark;
    json->at += found;
    return found;
}

/* Decode the escape after a backslash: one letter, or u and four digits. 0 if invalid;
 * NUL is invalid, because names and types are NUL-terminated in memory. */
BAGI_COLD static uint32_t bagi_json_escape(bagi_json *json) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    static const char digits[] = "0123456789abcdefABCDEF";
    unsigned char next = bagi_json_peek(json);
    const char *found = next ? strchr(from, next) : NULL;
    uint32_t number = 0;
    if (!found && next != 'u')
        return 0;
    json->at++;
    for (int i = 0; i < 4 && !found; i++, json->at++) {
        next = bagi_json_peek(json);
        const char *digit = next ? strchr(digits, next) : NULL;
        if (!digit)
            return 0;
        number =
            number << 4 | (uint32_t)(digit - digits - (digit - digits < 16 ? 0 : 6));
    }
    return found ? (unsigned char)to[found - from] : number;
}

/* Parse a string, and copy it to json->out, NUL-terminated. */
BAGI_COLD static const char *bagi_json_string(bagi_json *json) {
    const char *string = json->out;
    if (!bagi_json_mark(json, '"'))
        return NULL;
    while (json->at < json->size) {
        uint32_t point;
        size_t length =
            bagi_utf8_sequence(json->text + json->at, json->size - json->at, &point);
        if (length == 0 || point < 0x20)
            return NULL;
        json->at += length;
        if (point == '"') {
            *json->out++ = '\0';
            return string;
        }
        if (point == '\\') {
            point = bagi_json_escape(json);
            /* This is the first surrogate of a pair. */
            if (point >= 0xD800 && point < 0xDC00 && bagi_json_peek(json) == '\\') {
                json->at++;
                uint32_t low = bagi_json_escape(json);
                if (low >= 0xDC00 && low < 0xE000)
                    point = 0x10000 + ((point - 0xD800) << 10) + low - 0xDC00;
            }
            if (point == 0 || (point >= 0xD800 && point < 0xE000))
                return NULL;
        }
        json->out += bagi_utf8_encode(point, json->out);
    }
    return NULL;
}

#ifndef BAGS_NO_WRITER
/* Write valid UTF-8 text as an ASCII JSON string, at most 6 bytes per input byte plus
 * 2. Returns its size. */
BAGI_COLD static size_t bagi_json_quote(const char *text, char *out) {
    const unsigned char *in = (const unsigned char *)text;
    size_t used = 1; /* the quote */
    char piece[16];
    for (size_t size = strlen(text), step; size > 0; in += step, size -= step) {
        uint32_t point;
        step = bagi_utf8_sequence(in, size, &point);
        int length = 1;
        piece[0] = (char)point;
        if (point >= 0x10000) /* two surrogates */
            length = snprintf(piece, sizeof piece, "\\u%04" PRIx32 "\\u%04" PRIx32,
                0xD7C0 + (point >> 10), 0xDC00 | (point & 0x3FF));
        else if (point < 0x20 || point > 0x7E || strchr("\"\\", (int)point))
            length = snprintf(piece, sizeof piece, "\\u%04" PRIx32, point);
        memcpy(out + used, piece, (size_t)length);
        used += (size_t)length;
    }
    out[0] = out[used] = '"';
    return used + 1;
}
#endif

/* ========================================================================
 * >>refs
 * A blob of refs.bag: a msgpack array with one element per field, either an
 * unsigned integer (plain field), or [] or [first, count] (sequence). Every read of a
 * datapoint parses one. The array codec uses the same integer format.
 *
 *     92                array of 2 fields
 *        cd 01 02       "label": blob 258
 *        92 05 03       "words": blobs 5, 6 and 7
 *
 * A parser takes a position `at` and returns the position after the parsed bytes. For
 * invalid bytes it returns a position past the blob, where nothing is parsed, so a
 * caller checks only the final position.
 * ====================================================================== */

/* Size of the longest possible blob for `count` fields: an array head, and per field
 * another head and two numbers. Other writers may not use the shortest forms. */
static size_t bagi_refs_most(size_t count) {
    const size_t head = 5, number = 9;
    return head + count * (head + 2 * number);
}

#ifndef BAGS_NO_WRITER
/* Write a tag and a number of 2^width bytes, at least the given width. Tags of a kind
 * differ by the width: uint8 is 0xCC, uint64 is 0xCF. */
static size_t bagi_msgpack_put(
    unsigned char *out, int tag, uint64_t number, int width) {
    while (width < 3 && number >> (8 << width))
        width++;
    size_t bytes = (size_t)1 << width;
    out[0] = (unsigned char)(tag + width);
    for (size_t i = bytes; i > 0; i--, number >>= 8)
        out[i] = (unsigned char)number;
    return bytes + 1;
}

BAGI_NOINLINE static size_t bagi_msgpack_put_uint(unsigned char *out, uint64_t number) {
    out[0] = (unsigned char)number;
    return number < 0x80 ? 1 : bagi_msgpack_put(out, 0xCC, number, 0);
}

/* An array of at most 2^32-1 elements. */
static size_t bagi_msgpack_put_array(unsigned char *out, uint64_t count) {
    out[0] = (unsigned char)(0x90 | count);
    return count < 16 ? 1 : bagi_msgpack_put(out, 0xDB, count, 1);
}
#endif

/* A big-endian integer. */
static size_t bagi_msgpack_number(
    bags_view blob, size_t at, size_t bytes, uint64_t *number) {
    uint64_t sum = 0;
    if (at > blob.size || blob.size - at < bytes)
        return SIZE_MAX;
    for (; bytes > 0; bytes--)
        sum = sum << 8 | blob.data[at++];
    *number = sum;
    return at;
}

/* A non-negative integer in any msgpack form: other writers may use signed forms, or
 * longer ones than needed. */
BAGI_NOINLINE static size_t bagi_msgpack_uint(
    bags_view blob, size_t at, uint64_t *number) {
    unsigned char tag = at < blob.size ? blob.data[at] : 0xFF;
    if (tag < 0x80)
        return bagi_msgpack_number(blob, at, 1, number);
    if (tag < 0xCC || tag > 0xD3)
        return SIZE_MAX;
    size_t bytes = (size_t)1 << (tag & 3);
    at = bagi_msgpack_number(blob, at + 1, bytes, number);
    bool negative = tag >= 0xD0 && at <= blob.size && blob.data[at - bytes] >> 7;
    return negative ? SIZE_MAX : at;
}

/* Parse the head of an array. */
BAGI_NOINLINE static size_t bagi_msgpack_array(
    bags_view blob, size_t at, uint64_t *count) {
    unsigned char tag = at < blob.size ? blob.data[at] : 0xFF;
    if (tag == 0xDC || tag == 0xDD)
        return bagi_msgpack_number(blob, at + 1, tag == 0xDC ? 2 : 4, count);
    if ((tag & 0xF0) != 0x90)
        return SIZE_MAX;
    *count = tag & 0x0F;
    return at + 1;
}

/* Parse a datapoint's refs, one per type, in any msgpack form. Returns false if they
 * are invalid: *field is then the field with the invalid element, or `count` if the
 * blob as a whole is invalid. `refs` and `field` may be NULL. */
BAGI_COLD static bool bagi_refs_parse_any(bags_view blob, const bags_type *types,
    size_t count, bags_ref *refs, size_t *field) {
    uint64_t length = 0;
    size_t at = bagi_msgpack_array(blob, 0, &length), i = 0;
    for (; length == count && i < count; i++) {
        bags_ref ref = {0, 1};
        uint64_t numbers = 1;
        if (types[i].sequence) {
            at = bagi_msgpack_array(blob, at, &numbers);
            ref.count = 0;
        }
        if (numbers > 0)
            at = bagi_msgpack_uint(blob, at, &ref.first);
        if (numbers > 1)
            at = bagi_msgpack_uint(blob, at, &ref.count);
        if (at > blob.size || numbers > 2 || (numbers == 1 && types[i].sequence))
            break;
        if (refs)
            refs[i] = ref;
    }
    if (field)
        *field = length == count ? i : count;
    return length == count && i == count && at == blob.size;
}

/* Every read parses refs, so there is no bounds check per byte: 8 bytes can be loaded
 * at any position up to the blob's end, because every blob of refs.bag is followed by a
 * table or by BAGI_SLACK bytes of a buffer. */
enum { BAGI_SLACK = 8 };

/* Parse a number in a form that is written for indices below 2^32; NULL for other
 * forms. */
static BAGI_HOT const unsigned char *bagi_refs_uint(
    const unsigned char *at, uint64_t *number) {
    if (at[0] == 0xCD) {
        *number = (unsigned)at[1] << 8 | at[2];
        return at + 3;
    }
    if (at[0] < 0x80) {
        *number = at[0];
        return at + 1;
    }
    if (at[0] == 0xCE) {
        *number = (uint32_t)at[1] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 8 |
                  at[4];
        return at + 5;
    }
    *number = at[1];
    return at[0] == 0xCC ? at + 2 : NULL;
}

/* bagi_refs_parse_any for the common case that all numbers have these forms. Otherwise
 * returns false. The first bytes are loaded even if the blob is empty. */
BAGI_NOINLINE static bool bagi_refs_parse_usual(
    bags_view blob, const bags_type *types, size_t count, bags_ref *refs) {
    const unsigned char *at = blob.data, *stop = at + blob.size;
    if (count < 16 ? at[0] != (0x90 | count)
                   : at[0] != 0xDC || ((size_t)at[1] << 8 | at[2]) != count)
        return false;
    at += count < 16 ? 1 : 3;
    for (; count > 0; types++, refs++, count--) {
        refs->count = 1;
        if (at >= stop)
            return false;
        if (!types->sequence) {
            at = bagi_refs_uint(at, &refs->first);
        } else if (*at == 0x92) {
            at = bagi_refs_uint(at + 1, &refs->first);
            at = at && at <= stop ? bagi_refs_uint(at, &refs->count) : NULL;
        } else {
            refs->first = refs->count = 0;
            at = *at == 0x90 ? at + 1 : NULL;
        }
        if (!at)
            return false;
    }
    return at == stop;
}

/* Parse a datapoint's refs. Returns false if they are invalid: see bagi_fail_row. */
static bool bagi_refs_parse(
    bags_view blob, const bags_type *types, size_t count, bags_ref *refs) {
    return bagi_refs_parse_usual(blob, types, count, refs) ||
           bagi_refs_parse_any(blob, types, count, refs, NULL);
}

#ifndef BAGS_NO_WRITER
/* Write the blob for `refs` to `out`, whose capacity is bagi_refs_most. Returns its
 * size. */
static size_t bagi_refs_write(
    const bags_type *types, size_t count, const bags_ref *refs, unsigned char *out) {
    size_t used = bagi_msgpack_put_array(out, count);
    for (size_t i = 0; i < count; i++) {
        bool sequence = types[i].sequence, empty = sequence && !refs[i].count;
        if (sequence)
            used += bagi_msgpack_put_array(out + used, empty ? 0 : 2);
        if (!empty)
            used += bagi_msgpack_put_uint(out + used, refs[i].first);
        if (sequence && !empty)
            used += bagi_msgpack_put_uint(out + used, refs[i].count);
    }
    return used;
}
#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>type-text
 * Type strings such as "array(float32,64,128)[]", and the dtypes in them:
 *
 *     type       name or name(argument,...), optionally followed by []
 *     name       one or more of a-z 0-9 - _
 *     argument   zero or more of these characters or dots
 *
 * Only a type's syntax is checked here; its codec checks the arguments. Nothing is
 * copied: the views of a parsed type point into its text. A dataset's spec keeps that
 * text.
 * ====================================================================== */

/* True if the character may occur in a name, or in the arguments, including the commas
 * between them. */
static bool bagi_type_char(char c, bool argument) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           (argument && (c == '.' || c == ','));
}

BAGS_API BAGI_COLD bags_code bags_type_parse(
    const char *text, bags_type *out, bags_error *err) {
    BAGI_NEED(text && out, err);
    size_t size = strlen(text), name = 0;
    bags_type type = BAGI_ZERO;
    if (size >= 2 && memcmp(text + size - 2, "[]", 2) == 0) {
        type.sequence = true;
        size -= 2;
    }
    while (name < size && bagi_type_char(text[name], false))
        name++;
    type.name.data = (const unsigned char *)text;
    type.name.size = name;
    bool valid = name > 0;
    if (valid && name < size) {
        size_t at = name + 1;
        type.count = 1;
        while (at < size && bagi_type_char(text[at], true))
            type.count += text[at++] == ',';
        valid = text[name] == '(' && at + 1 == size && text[at] == ')';
        type.arguments.data = (const unsigned char *)text + name + 1;
        type.arguments.size = at - name - 1;
    }
    if (!valid)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "invalid type (\"%.80s\", expected name or name(argument,...) of "
            "a-z 0-9 - _ and, in arguments, a dot; [] may follow)",
            text);
    *out = type;
    return BAGS_OK;
}

/* Each call searches the arguments: there are few, and a list would need memory that
 * the caller would have to free. */
BAGS_API bags_view bags_type_argument(const bags_type *type, size_t i) {
    bags_view out = {NULL, 0};
    if (!type || i >= type->count)
        return out;
    const unsigned char *text = type->arguments.data;
    size_t size = type->arguments.size, at = 0;
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
        if (c < '0' || c > '9' || number > (UINT64_MAX - (uint64_t)(c - '0')) / 10)
            return false;
        number = number * 10 + (uint64_t)(c - '0');
    }
    if (text.size == 0 || !out)
        return false;
    *out = number;
    return true;
}

/* True if a space-separated list of words contains this one. */
BAGI_COLD static bool bagi_has_word(const char *words, bags_view word) {
    while (*words) {
        size_t size = strcspn(words, " ");
        if (size > 0 && size == word.size && memcmp(words, word.data, size) == 0)
            return true;
        words += size + (words[size] == ' ');
    }
    return false;
}

typedef struct bagi_dtype {
    const char *name;   /* as NumPy prints it */
    const char *code;   /* of dtype.str, without the byte order */
    const char *also;   /* other spellings */
    unsigned char size; /* of an element */
    unsigned char swap; /* see bags_dtype_swap */
} bagi_dtype;

/* Indexed by bags_dtype; the first is BAGS_DTYPE_NONE. Omits NumPy's other dtypes, and
 * spellings whose size depends on the platform, such as "long". */
static const bagi_dtype bagi_dtypes[] = {{"", "", "", 0, 0},
    {"bool", "b1", "? bool_ bool8", 1, 1}, {"uint8", "u1", "B ubyte", 1, 1},
    {"uint16", "u2", "H ushort", 2, 2}, {"uint32", "u4", "I uintc", 4, 4},
    {"uint64", "u8", "Q uint ulonglong", 8, 8}, {"int8", "i1", "b byte", 1, 1},
    {"int16", "i2", "h short", 2, 2}, {"int32", "i4", "i intc", 4, 4},
    {"int64", "i8", "q int int_ longlong", 8, 8}, {"float16", "f2", "e half", 2, 2},
    {"float32", "f4", "f single", 4, 4},
    {"float64", "f8", "d double float float_", 8, 8},
    {"complex64", "c8", "F csingle singlecomplex", 8, 4},
    {"complex128", "c16", "D cdouble complex complex_ cfloat", 16, 8}};

#define BAGI_DTYPES (sizeof bagi_dtypes / sizeof *bagi_dtypes)

/* A number that is not a dtype gets the row of BAGS_DTYPE_NONE. */
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

BAGS_API size_t bags_dtype_size(bags_dtype dtype) { return bagi_dtype_of(dtype)->size; }

BAGS_API size_t bags_dtype_swap(bags_dtype dtype) { return bagi_dtype_of(dtype)->swap; }

/* A code may be prefixed with the byte order: < little, > big, = native, |
 * irrelevant. */
BAGS_API BAGI_COLD bags_dtype bags_dtype_parse(
    const char *text, size_t size, bool *big_endian) {
    bags_view rest = {(const unsigned char *)text, size};
    bool big = false;
    if (!text)
        return BAGS_DTYPE_NONE;
    if (size > 0 && text[0] && strchr("<>|=", text[0])) {
        big = text[0] == '>' || (text[0] == '=' && !bags_little_endian());
        rest.data++;
        rest.size--;
    }
    for (size_t i = 1; i < BAGI_DTYPES && rest.size > 0; i++) {
        const bagi_dtype *dtype = &bagi_dtypes[i];
        if (!bags_view_is(rest, dtype->name) && !bags_view_is(rest, dtype->code) &&
            !bagi_has_word(dtype->also, rest))
            continue;
        if (big_endian)
            *big_endian = big;
        return (bags_dtype)i;
    }
    return BAGS_DTYPE_NONE;
}

/* NumPy has more dtypes, so a refused one may be valid there. */
BAGI_COLD static bags_code bagi_fail_dtype(
    bags_error *err, bags_code code, bags_view text) {
    return bags_fail(err, code,
        "unsupported dtype (\"%.*s\", expected bool, uint8 to uint64, int8 to "
        "int64, float16 to float64, complex64 or complex128)",
        (int)(text.size < 80 ? text.size : 80), (const char *)text.data);
}

BAGS_API bool bags_array_size(
    bags_dtype dtype, size_t dims, const uint64_t *shape, size_t *size) {
    size_t bytes = bags_dtype_size(dtype);
    bool empty = false;
    if (!bytes || !size || (dims && !shape))
        return false;
    /* With a dimension of 0, any other dimensions are valid, even if their product
     * overflows. */
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

/* ========================================================================
 * >>codecs
 * Values and the built-in codecs. The blobs of these:
 *
 *     bytes, utf8    the bytes of the value
 *     int            little-endian, as few bytes as possible; 0 has none
 *     int(N)         N bytes, little-endian unless int(N,big)
 *     u64, i64       8 bytes, little-endian; i64 in two's complement
 *     array(D,...)   the elements, little-endian, in C order
 *     array          msgpack: 93 | str dtype | array of dimensions | bin elements
 *
 * Encoders and decoders receive the state that `open` made from the type.
 * ====================================================================== */

/* A value with only these members set; the others are 0. */
static bags_value bagi_value(bags_kind kind, const void *data, size_t size) {
    bags_value value;
    memset(&value, 0, sizeof value);
    value.kind = kind;
    value.data = data;
    value.size = size;
    return value;
}

/* Set both members if the number fits both; otherwise the other one is 0. */
BAGS_API bags_value bags_int(int64_t number) {
    bags_value value = bagi_value(BAGS_KIND_INT, NULL, 0);
    value.sint = number;
    value.uint = number > 0 ? (uint64_t)number : 0;
    return value;
}

BAGS_API bags_value bags_uint(uint64_t number) {
    bags_value value = bagi_value(BAGS_KIND_UINT, NULL, 0);
    value.uint = number;
    value.sint = number <= (uint64_t)INT64_MAX ? (int64_t)number : 0;
    return value;
}

BAGS_API bags_value bags_real(double number) {
    bags_value value = bagi_value(BAGS_KIND_REAL, NULL, 0);
    value.real = number;
    return value;
}

BAGS_API bags_value bags_bool(bool yes) {
    bags_value value = bagi_value(BAGS_KIND_BOOL, NULL, 0);
    value.uint = yes;
    return value;
}

BAGS_API bags_value bags_utf8(const char *text) {
    return bagi_value(
        text ? BAGS_KIND_UTF8 : BAGS_KIND_NONE, text, text ? strlen(text) : 0);
}

BAGS_API bags_value bags_utf8_sized(const char *text, size_t size) {
    return bagi_value(BAGS_KIND_UTF8, text, size);
}

BAGS_API bags_value bags_bytes(const void *data, size_t size) {
    return bagi_value(BAGS_KIND_BYTES, data, size);
}

BAGS_API bags_value bags_blob(const void *data, size_t size) {
    return bagi_value(BAGS_KIND_BLOB, data, size);
}

BAGS_API bags_value bags_stored(uint64_t blob) {
    bags_value value = bagi_value(BAGS_KIND_STORED, NULL, 0);
    value.uint = blob;
    return value;
}

BAGS_API bags_value bags_array(
    bags_dtype dtype, size_t dims, const uint64_t *shape, const void *data) {
    bags_value value = bagi_value(BAGS_KIND_ARRAY, data, 0);
    value.dtype = dtype;
    value.dims = dims;
    value.shape = shape;
    /* If this fails, size stays 0; an encoder will report the cause. */
    (void)bags_array_size(dtype, dims, shape, &value.size);
    return value;
}

#ifndef BAGS_NO_WRITER
/* The codec does not accept this kind of value. */
BAGI_COLD static bags_code bagi_fail_kind(
    bags_error *err, const bags_value *value, const char *expected) {
    static const char *const names[] = {"no value", "encoded blob", "bytes", "text",
        "number", "number", "array", "object", "earlier blob", "real number", "bool"};
    size_t i = (size_t)value->kind;
    return bags_fail(err, BAGS_ERROR_VALUE, "kind mismatch (%s, expected %s)",
        i < sizeof names / sizeof *names ? names[i] : "invalid kind", expected);
}
#endif

BAGI_COLD static bags_code bagi_fail_arguments(bags_error *err) {
    return bags_fail(err, BAGS_ERROR_TYPE, "this type accepts no arguments");
}

/* The first member of every codec state, used to free it. */
typedef struct bagi_state {
    bags_allocator memory;
    size_t size;
} bagi_state;

/* Copy a state of `size` bytes, filled in by `open`, to *out. */
static bags_code bagi_state_open(const bags_allocator *memory, bagi_state *state,
    size_t size, void **out, bags_error *err) {
    void *copy = bagi_alloc_raw(memory, size, err);
    if (!copy)
        return BAGS_ERROR_MEMORY;
    state->memory = *memory;
    state->size = size;
    *out = memcpy(copy, state, size);
    return BAGS_OK;
}

/* The allocator is stored in the memory that it frees. */
BAGI_COLD static void bagi_state_close(void *state) {
    bagi_state own = *(bagi_state *)state;
    bagi_free(&own.memory, state, own.size);
}

/* ---- bytes, utf8 ----
 * The blob is a view of the value's bytes, and a decoded value is a view of the blob's
 * bytes. Text is checked in both directions: Python fails to decode a blob that is not
 * UTF-8, and callers rely on decoded text being valid. */

/* The state of bytes is NULL, the state of utf8 is not. */
static bags_code bagi_bytes_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    static char is_utf8;
    (void)codec;
    (void)allocator;
    if (type->count)
        return bagi_fail_arguments(err);
    *state = bags_view_is(type->name, "utf8") ? &is_utf8 : NULL;
    return BAGS_OK;
}

/* Report the first byte that is not UTF-8. */
static bags_code bagi_bytes_check(
    bool is_utf8, bags_view text, bags_code code, bags_error *err) {
    size_t bad = 0;
    if (!is_utf8 || bags_utf8_valid(text.data, text.size, &bad))
        return BAGS_OK;
    return bags_fail(err, code, "invalid UTF-8 (byte 0x%02x at offset %" PRIu64 ")",
        text.data[bad], (uint64_t)bad);
}

#ifndef BAGS_NO_WRITER
static bags_code bagi_bytes_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)scratch;
    if (value->kind != (state ? BAGS_KIND_UTF8 : BAGS_KIND_BYTES))
        return bagi_fail_kind(err, value, state ? "text" : "bytes");
    bags_view bytes = {(const unsigned char *)value->data, value->size};
    bags_code code = bagi_bytes_check(state != NULL, bytes, BAGS_ERROR_VALUE, err);
    if (!code)
        *blob = bytes;
    return code;
}
#endif

static bags_code bagi_bytes_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)scratch;
    bags_code code = bagi_bytes_check(state != NULL, blob, BAGS_ERROR_CORRUPT, err);
    if (!code)
        *value =
            bagi_value(state ? BAGS_KIND_UTF8 : BAGS_KIND_BYTES, blob.data, blob.size);
    return code;
}

/* ---- int, int(N), i64, u64 ----
 * Like Python's integers, these types have no size limit, but a value has 64 bits. A
 * longer blob is accepted if the number fits. The numbers 300 and -2 in these types
 * (int adds a zero byte if the top bit would be set: 200 is c8 00):
 *
 *     int          2c 01
 *     int(3)       2c 01 00
 *     int(3,big)   00 01 2c
 *     u64          2c 01 00 00 00 00 00 00
 *     i64          fe ff ff ff ff ff ff ff
 */

typedef struct bagi_int {
    bagi_state own;
    size_t size; /* bytes; unused if `shortest` */
    bool shortest, is_signed, big;
    char text[24]; /* the type, for messages */
} bagi_int;

/* Limits how much memory a few bytes of a spec can make the library allocate per
 * value. */
enum { BAGI_INT_MAX = 1024 };

/* Compile int, int(N), int(N,little), int(N,big), i64 and u64. Without arguments, int
 * takes as many bytes as a number needs, plus one if its top bit is set. */
BAGI_COLD static bags_code bagi_int_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    uint64_t size = 8;
    bool plain = bags_view_is(type->name, "int");
    bags_view order = bags_type_argument(type, 1);
    bool big = bags_view_is(order, "big");
    if (type->count > 0 &&
        (!plain || type->count > 2 || !bags_type_number(type, 0, &size) ||
            (type->count == 2 && !big && !bags_view_is(order, "little"))))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "invalid arguments (expected int, int(N), int(N,little), "
            "int(N,big), i64 or u64; N is a number of bytes)");
    if (size > BAGI_INT_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "integer too large (%" PRIu64 " bytes, maximum %d)", size, BAGI_INT_MAX);
    bagi_int made = BAGI_ZERO;
    made.size = (size_t)size;
    made.shortest = plain && type->count == 0;
    made.is_signed = bags_view_is(type->name, "i64");
    made.big = big;
    size_t length = type->name.size;
    if (type->count)
        length += type->arguments.size + 2;
    (void)snprintf(made.text, sizeof made.text, "%.*s", (int)length,
        (const char *)type->name.data);
    return bagi_state_open(allocator, &made.own, sizeof made, state, err);
}

#ifndef BAGS_NO_WRITER
/* The number must fit the bytes of the type: 0 to 2^(8N)-1, or for i64 -2^63 to
 * 2^63-1. `most` is the largest number. */
static bags_code bagi_int_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    const bagi_int *codec = (const bagi_int *)state;
    bool negative = value->kind == BAGS_KIND_INT && value->sint < 0;
    if (value->kind != BAGS_KIND_INT && value->kind != BAGS_KIND_UINT)
        return bagi_fail_kind(err, value, "number");
    if (negative && !codec->is_signed)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "value out of range for %s (%" PRId64 ", minimum 0)", codec->text,
            value->sint);
    uint64_t bits = value->kind == BAGS_KIND_INT ? (uint64_t)value->sint : value->uint;
    size_t least = 0; /* bytes that the number needs */
    while (least < 8 && bits >> (8 * least))
        least++;
    bool top = least > 0 && bits >> (8 * least - 1);
    size_t size = codec->shortest ? least + top : codec->size;
    uint64_t most = size < 8           ? ((uint64_t)1 << (8 * size)) - 1
                    : codec->is_signed ? (uint64_t)INT64_MAX
                                       : UINT64_MAX;
    if (bits > most && !negative)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "value out of range for %s (%" PRIu64 ", maximum %" PRIu64 ")", codec->text,
            bits, most);
    /* bagi_store_u64 writes 8 bytes, even if fewer are used. */
    BAGI_TRY(bags_buffer_reserve(scratch, size + 8, err));
    memset(scratch->data, 0, size);
    bagi_store_u64(scratch->data, bits);
    if (codec->big)
        bags_swap_bytes(scratch->data, scratch->data, size, size);
    blob->data = scratch->data;
    blob->size = size;
    return BAGS_OK;
}
#endif

/* Bytes after the eighth must be 0. */
static bags_code bagi_int_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    const bagi_int *codec = (const bagi_int *)state;
    (void)scratch;
    if (!codec->shortest && blob.size != codec->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "size mismatch (%" PRIu64 " bytes, expected %" PRIu64 ")",
            (uint64_t)blob.size, (uint64_t)codec->size);
    uint64_t bits = 0;
    for (size_t i = 0; i < blob.size; i++) {
        unsigned char octet = blob.data[codec->big ? blob.size - 1 - i : i];
        if (i < 8)
            bits |= (uint64_t)octet << (8 * i);
        else if (octet)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "number too large (%" PRIu64 " bytes, maximum 2^64-1)",
                (uint64_t)blob.size);
    }
    int64_t number; /* casting a large number would not be portable */
    memcpy(&number, &bits, sizeof number);
    *value = codec->is_signed ? bags_int(number) : bags_uint(bits);
    return BAGS_OK;
}

/* ---- array(DTYPE,D0,...), and array, whose blobs contain dtype and shape ----
 * The first type's blob contains only the elements. The second type's blob, for a
 * uint16 array of shape 2 x 3:
 *
 *     93                       array of 3
 *        a3 3c 75 32           str "<u2": dtype
 *        92 02 03              array of 2: shape
 *        c4 0c 01 00 02 00...  bin of 12 bytes: elements
 *
 * No copy is made where possible: an encoded blob is a view of the value's elements,
 * and a decoded value is a view of the blob. */

typedef struct bagi_array {
    bagi_state own;
    bags_dtype dtype; /* BAGS_DTYPE_NONE: the blob contains it */
    size_t dims;
    size_t wild;  /* the dimension that is -1; dims: none */
    size_t bytes; /* per array; if a dimension is -1, per step along it */
    uint64_t shape[BAGS_MAX_DIMS];
} bagi_array;

/* Parse DTYPE,D0,...; one dimension may be -1. Without arguments, everything is 0. */
BAGI_COLD static bags_code bagi_array_open(const bags_codec *codec,
    const bags_type *type, const bags_allocator *allocator, void **state,
    bags_error *err) {
    (void)codec;
    bagi_array made = BAGI_ZERO;
    if (!type->count)
        return bagi_state_open(allocator, &made.own, sizeof made, state, err);
    bags_view name = bags_type_argument(type, 0);
    made.dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    if (made.dtype == BAGS_DTYPE_NONE)
        return bagi_fail_dtype(err, BAGS_ERROR_TYPE, name);
    made.wild = made.dims = type->count - 1;
    if (made.dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "too many dimensions (%" PRIu64 ", maximum %d)", (uint64_t)made.dims,
            BAGS_MAX_DIMS);
    for (size_t i = 0; i < made.dims; i++) {
        if (made.wild == made.dims &&
            bags_view_is(bags_type_argument(type, i + 1), "-1")) {
            made.wild = i;
            made.shape[i] = 1; /* `bytes` is then the size of one step */
        } else if (!bags_type_number(type, i + 1, &made.shape[i])) {
            return bags_fail(err, BAGS_ERROR_TYPE,
                "invalid dimension %" PRIu64 " (expected a number; one may be -1)",
                (uint64_t)i);
        }
    }
    if (!bags_array_size(made.dtype, made.dims, made.shape, &made.bytes)) {
        uint64_t bytes = bags_dtype_size(made.dtype);
        for (size_t i = 0; i < made.dims; bytes *= made.shape[i++])
            if (made.shape[i] > UINT64_MAX / bytes)
                return bags_fail(err, BAGS_ERROR_TYPE,
                    "invalid dimensions (an array above 2^64 bytes)");
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "array too large for the address space");
    }
    if (made.bytes == 0 && made.wild < made.dims)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "invalid dimensions (-1 next to 0 cannot be derived from a size)");
    return bagi_state_open(allocator, &made.own, sizeof made, state, err);
}

/* Copy elements between native and little-endian byte order. */
static void bagi_array_copy(
    void *to, const void *from, size_t size, bags_dtype dtype, bool swap) {
    if (swap)
        bags_swap_bytes(to, from, size, bags_dtype_swap(dtype));
    else if (size)
        memcpy(to, from, size);
}

/* Limits the size of the head, before the elements, of a blob that contains dtype and
 * shape. */
enum { BAGI_HEAD_MAX = 16 + 9 * BAGS_MAX_DIMS };

#ifndef BAGS_NO_WRITER
/* Convert a number to float16 bits, rounding to nearest, ties to even. The number is
 * below 65520 or infinite. A normal double has 52 bits after the leading one; float16
 * has 10, and fewer below 2^-14. */
static uint64_t bagi_half_bits(uint64_t bits) {
    const uint64_t one = 1;
    uint64_t sign = bits >> 48 & 0x8000, fraction = bits & ((one << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
    if (exponent == 1024)
        return sign | 0x7C00 | (fraction ? 0x200 : 0);
    if (exponent < -25)
        return sign;
    int shift = exponent < -14 ? 28 - exponent : 42;
    uint64_t number = fraction | one << 52, rest = number & ((one << shift) - 1);
    uint64_t half = number >> shift, middle = one << (shift - 1);
    half += rest > middle || (rest == middle && half % 2);
    return sign | (half + (exponent < -14 ? 0 : (uint64_t)(exponent + 14) << 10));
}

/* Convert a number to the bits of an element of a floating-point dtype. */
static uint64_t bagi_real_bits(double number, bags_dtype dtype) {
    uint64_t bits;
    float single = dtype == BAGS_DTYPE_FLOAT32 ? (float)number : 0;
    uint32_t few;
    memcpy(&bits, &number, sizeof bits);
    memcpy(&few, &single, sizeof few);
    return dtype == BAGS_DTYPE_FLOAT32   ? few
           : dtype == BAGS_DTYPE_FLOAT16 ? bagi_half_bits(bits)
                                         : bits;
}

/* True if a single element of this dtype may be passed as a value of this kind. */
static bool bagi_is_scalar(bags_kind kind, bags_dtype dtype) {
    if (kind == BAGS_KIND_BOOL)
        return dtype == BAGS_DTYPE_BOOL;
    if (kind == BAGS_KIND_REAL)
        return dtype >= BAGS_DTYPE_FLOAT16 && dtype <= BAGS_DTYPE_FLOAT64;
    return (kind == BAGS_KIND_INT || kind == BAGS_KIND_UINT) &&
           dtype >= BAGS_DTYPE_UINT8 && dtype <= BAGS_DTYPE_INT64;
}

/* Encode a number as an array without dimensions. */
static bags_code bagi_scalar_encode(bags_dtype dtype, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    const char *name = bags_dtype_name(dtype);
    size_t size = bags_dtype_size(dtype);
    uint64_t bits = value->uint;
    if (value->kind == BAGS_KIND_REAL) {
        /* From here on, numbers would round to infinity: out of range. */
        double most = dtype == BAGS_DTYPE_FLOAT16 ? 65520 : 3.4028235677973366e38;
        double number = value->real, magnitude = number < 0 ? -number : number;
        if (dtype != BAGS_DTYPE_FLOAT64 && magnitude >= most &&
            magnitude - magnitude >= 0)
            return bags_fail(err, BAGS_ERROR_VALUE, "value out of range for %s (%.9g)",
                name, number);
        bits = bagi_real_bits(number, dtype);
    } else if (value->kind == BAGS_KIND_BOOL) {
        bits = bits != 0;
    } else {
        bool negative = value->kind == BAGS_KIND_INT && value->sint < 0;
        bool is_signed = dtype >= BAGS_DTYPE_INT8;
        uint64_t most = UINT64_MAX >> (64 - 8 * size) >> is_signed;
        bits = value->kind == BAGS_KIND_INT ? (uint64_t)value->sint : bits;
        if (negative && (!is_signed || ~bits > most))
            return bags_fail(err, BAGS_ERROR_VALUE,
                "value out of range for %s (%" PRId64 ")", name, value->sint);
        if (!negative && bits > most)
            return bags_fail(err, BAGS_ERROR_VALUE,
                "value out of range for %s (%" PRIu64 ", maximum %" PRIu64 ")", name,
                bits, most);
    }
    BAGI_TRY(bags_buffer_reserve(scratch, 8, err));
    bags_store_bytes(scratch->data, size, false, bits);
    blob->data = scratch->data;
    blob->size = size;
    return BAGS_OK;
}

/* The value must be consistent, and match the type's dtype and shape, if any. The blob
 * is a view of the value's elements unless it needs a head or another byte order. */
static bags_code bagi_array_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    const bagi_array *codec = (const bagi_array *)state;
    bool self = codec->dtype == BAGS_DTYPE_NONE;
    bool swap = !bags_little_endian() && bags_dtype_swap(value->dtype) > 1;
    size_t size = 0, used = 0;
    if (codec->dims == 0 && bagi_is_scalar(value->kind, codec->dtype))
        return bagi_scalar_encode(codec->dtype, value, scratch, blob, err);
    if (value->kind != BAGS_KIND_ARRAY)
        return bagi_fail_kind(err, value, "array");
    if (value->dims > BAGS_MAX_DIMS ||
        !bags_array_size(value->dtype, value->dims, value->shape, &size) ||
        size > SIZE_MAX - BAGI_HEAD_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "invalid array: no dtype, too many dimensions (%" PRIu64
            ", maximum %d), or too large for the address space",
            (uint64_t)value->dims, BAGS_MAX_DIMS);
    if (value->size != size)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "size differs from that of the dtype and shape (%" PRIu64
            " bytes, expected %" PRIu64 ")",
            (uint64_t)value->size, (uint64_t)size);
    if (!self && value->dtype != codec->dtype)
        return bags_fail(err, BAGS_ERROR_VALUE, "dtype mismatch (%s, expected %s)",
            bags_dtype_name(value->dtype), bags_dtype_name(codec->dtype));
    if (!self && value->dims != codec->dims)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "shape mismatch (%" PRIu64 " dimensions, expected %" PRIu64 ")",
            (uint64_t)value->dims, (uint64_t)codec->dims);
    for (size_t i = 0; !self && i < codec->dims; i++)
        if (i != codec->wild && value->shape[i] != codec->shape[i])
            return bags_fail(err, BAGS_ERROR_VALUE,
                "shape mismatch (%" PRIu64 ", expected %" PRIu64
                " for dimension %" PRIu64 ")",
                value->shape[i], codec->shape[i], (uint64_t)i);
    /* A msgpack bin holds at most 2^32-1 bytes. */
    if (self && size > UINT32_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "array too large for its type (%" PRIu64 " bytes, maximum 2^32-1)",
            (uint64_t)size);
    if (!self && !swap) {
        blob->data = (const unsigned char *)value->data;
        blob->size = size;
        return BAGS_OK;
    }
    BAGI_TRY(bags_buffer_reserve(scratch, BAGI_HEAD_MAX + size, err));
    unsigned char *out = scratch->data;
    if (self) { /* the head: see above */
        const char *code = bags_dtype_code(value->dtype);
        size_t length = strlen(code);
        used = bagi_msgpack_put_array(out, 3);
        out[used++] = (unsigned char)(0xA0 | (length + 1));
        out[used++] = bags_dtype_size(value->dtype) == 1 ? '|' : '<';
        memcpy(out + used, code, length);
        used += length;
        used += bagi_msgpack_put_array(out + used, value->dims);
        for (size_t i = 0; i < value->dims; i++)
            used += bagi_msgpack_put_uint(out + used, value->shape[i]);
        used += bagi_msgpack_put(out + used, 0xC4, size, 0);
    }
    bagi_array_copy(out + used, value->data, size, value->dtype, swap);
    blob->data = out;
    blob->size = used + size;
    return BAGS_OK;
}
#endif

/* Parse a msgpack str (`tag` 0xD9) or bin (0xC4), like the parsers in >>refs. */
static size_t bagi_msgpack_bytes(
    bags_view blob, size_t at, unsigned char tag, bags_view *out) {
    uint64_t size = 0;
    unsigned char first = at < blob.size ? blob.data[at] : 0;
    if (tag == 0xD9 && (first & 0xE0) == 0xA0) {
        size = first & 0x1F;
        at++;
    } else if (first >= tag && first <= tag + 2) {
        at = bagi_msgpack_number(blob, at + 1, (size_t)1 << (first - tag), &size);
    } else {
        return SIZE_MAX;
    }
    if (at > blob.size || size > blob.size - at)
        return SIZE_MAX;
    out->data = blob.data + at;
    out->size = (size_t)size;
    return at + out->size;
}

/* Get the dtype, shape and elements from the blob or the type. The value is a view of
 * the elements if they are aligned and in native byte order, otherwise a copy. The
 * shape is copied to scratch, because the codec may be closed before the value is
 * used. */
static bags_code bagi_array_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    const bagi_array *codec = (const bagi_array *)state;
    bags_dtype dtype = codec->dtype;
    uint64_t dims = codec->dims, shape[BAGS_MAX_DIMS];
    bool big = false, wild = codec->wild < codec->dims;
    bags_view data = blob;
    if (dtype == BAGS_DTYPE_NONE) {
        uint64_t count = 0;
        bags_view name = {NULL, 0};
        size_t size = 0, at = bagi_msgpack_array(blob, 0, &count);
        at = bagi_msgpack_bytes(blob, at, 0xD9, &name);
        at = bagi_msgpack_array(blob, at, &dims);
        for (uint64_t i = 0; i < dims && dims <= BAGS_MAX_DIMS; i++)
            at = bagi_msgpack_uint(blob, at, &shape[i]);
        at = bagi_msgpack_bytes(blob, at, 0xC4, &data);
        if (count != 3 || dims > BAGS_MAX_DIMS || at != blob.size)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "not a msgpack array of dtype, shape and elements");
        dtype = bags_dtype_parse((const char *)name.data, name.size, &big);
        if (dtype == BAGS_DTYPE_NONE)
            return bagi_fail_dtype(err, BAGS_ERROR_LIMIT, name);
        if (!bags_array_size(dtype, (size_t)dims, shape, &size) || size != data.size)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "size differs from that of the dtype and shape (%" PRIu64 " bytes)",
                (uint64_t)data.size);
    } else {
        if (wild ? blob.size % codec->bytes != 0 : blob.size != codec->bytes)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "size mismatch (%" PRIu64 " bytes, expected %s%" PRIu64 ")",
                (uint64_t)blob.size, wild ? "a multiple of " : "",
                (uint64_t)codec->bytes);
        memcpy(shape, codec->shape, codec->dims * sizeof *shape);
        if (wild)
            shape[codec->wild] = blob.size / codec->bytes;
    }
    size_t unit = bags_dtype_swap(dtype); /* its alignment, too */
    bool swap = unit > 1 && big == bags_little_endian();
    bool copy = swap || (uintptr_t)data.data % unit != 0;
    size_t front = (size_t)dims * sizeof *shape;
    /* Add 1 byte so that scratch, where the value's data points, is not NULL. */
    if (data.size > SIZE_MAX - front - 1)
        return bagi_fail_memory(err, data.size);
    BAGI_TRY(bags_buffer_reserve(scratch, front + (copy ? data.size : 0) + 1, err));
    memcpy(scratch->data, shape, front);
    if (copy) {
        bagi_array_copy(scratch->data + front, data.data, data.size, dtype, swap);
        data.data = scratch->data + front;
    }
    *value = bagi_value(BAGS_KIND_ARRAY, data.data, data.size);
    value->dtype = dtype;
    value->dims = (size_t)dims;
    value->shape = (const uint64_t *)(const void *)scratch->data;
    return BAGS_OK;
}

#ifdef BAGS_NO_WRITER
#define bagi_bytes_encode NULL
#define bagi_int_encode NULL
#define bagi_array_encode NULL
#endif

/* ========================================================================
 * >>coder
 * The registry; the coder (all other sections use codecs through it); and NAME.dict,
 * the dictionary shared by a Bag's blobs. The way to a codec:
 *
 *     bags_type_parse -> bags_registry_find -> open -> encode or decode -> close
 *                        '------------ bagi_coder --------------------------'
 * ====================================================================== */

/* ---- the registry ----
 * A list searched from the end, so that codecs added later take precedence over earlier
 * and built-in ones. Opening a dataset searches it once per field, so a list is fast
 * enough. */

static const bags_codec bagi_codecs_built_in[] = {
    {"bytes utf8", bagi_bytes_open, bagi_bytes_encode, bagi_bytes_decode, NULL, NULL,
        NULL},
    {"int i64 u64", bagi_int_open, bagi_int_encode, bagi_int_decode, bagi_state_close,
        NULL, NULL},
    {"array", bagi_array_open, bagi_array_encode, bagi_array_decode, bagi_state_close,
        NULL, NULL}};

/* Codecs added by the program, in the order added. */
struct bags_registry {
    bags_allocator memory;
    bags_buffer added;
    size_t count;
};

BAGS_API BAGI_COLD bags_registry *bags_registry_create(
    const bags_allocator *allocator, bags_error *err) {
    BAGI_ERR(err);
    bags_allocator memory = bags_allocator_of(allocator);
    bags_registry *registry =
        (bags_registry *)bagi_alloc(&memory, sizeof *registry, err);
    if (registry)
        registry->memory = memory;
    return registry;
}

BAGS_API BAGI_COLD bags_code bags_registry_add(
    bags_registry *registry, const bags_codec *codec, bags_error *err) {
    BAGI_ERR(err);
    if (!registry || !codec || !codec->names || !*codec->names)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "invalid codec (it needs a registry and at least one name)");
    return bagi_push(&registry->added, &registry->memory, &registry->count, codec,
        sizeof *codec, err);
}

BAGS_API BAGI_COLD const bags_codec *bags_registry_find(
    const bags_registry *registry, bags_view name) {
    const void *data = registry ? registry->added.data : NULL;
    const bags_codec *added = (const bags_codec *)data;
    for (size_t i = registry ? registry->count : 0; i > 0; i--)
        if (bagi_has_word(added[i - 1].names, name))
            return &added[i - 1];
    for (size_t i = 0; i < sizeof bagi_codecs_built_in / sizeof *bagi_codecs_built_in;
         i++)
        if (bagi_has_word(bagi_codecs_built_in[i].names, name))
            return &bagi_codecs_built_in[i];
    return NULL;
}

/* True if a dtype, as NumPy prints it, has this name and no codec does. */
static bool bagi_is_dtype_name(const bags_registry *registry, bags_view name) {
    bags_dtype dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    return dtype && bags_view_is(name, bags_dtype_name(dtype)) &&
           !bags_registry_find(registry, name);
}

BAGS_API BAGI_COLD bags_code bags_type_complete(const bags_registry *registry,
    const char *type, bags_buffer *out, bags_error *err) {
    BAGI_BEGIN(type && out, err);
    bags_type parsed;
    BAGI_TRY(bags_type_parse(type, &parsed, err));
    size_t size = strlen(type) + sizeof "array()";
    BAGI_TRY(bags_buffer_reserve(out, size, err));
    char *text = (char *)out->data;
    const char *arguments = (const char *)parsed.arguments.data;
    if (bagi_is_dtype_name(registry, parsed.name))
        (void)snprintf(text, size, "array(%.*s%s%.*s)%s", (int)parsed.name.size, type,
            parsed.count ? "," : "", (int)parsed.arguments.size,
            parsed.count ? arguments : "", parsed.sequence ? "[]" : "");
    else if (bags_view_is(parsed.name, "zstd") &&
             bagi_is_dtype_name(registry, bags_type_argument(&parsed, 0)))
        (void)snprintf(text, size, "zstd(array,%s", arguments);
    else
        memcpy(text, type, strlen(type) + 1);
    return BAGS_OK;
}

#ifndef BAGS_NO_WRITER
static unsigned char bagi_lower(unsigned char c) {
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

enum { BAGI_WORD_MAX = 32 };

/* The distance between two words of at most BAGI_WORD_MAX letters, computed row by row
 * from the distances between their prefixes. */
BAGI_COLD static size_t bagi_word_edits(bags_view one, bags_view two) {
    size_t rows[3][BAGI_WORD_MAX + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t k = 0; k <= two.size; k++)
        row[k] = k;
    for (size_t i = 1; i <= one.size; i++) {
        size_t *unused = before;
        before = above;
        above = row;
        row = unused;
        row[0] = i;
        for (size_t k = 1; k <= two.size; k++) {
            unsigned char a = bagi_lower(one.data[i - 1]);
            unsigned char b = bagi_lower(two.data[k - 1]);
            size_t least = above[k - 1] + (a != b);
            least = BAGI_MIN(least, BAGI_MIN(above[k], row[k - 1]) + 1);
            if (i > 1 && k > 1 && a != b && a == bagi_lower(two.data[k - 2]) &&
                b == bagi_lower(one.data[i - 2]))
                least = BAGI_MIN(least, before[k - 2] + 1);
            row[k] = least;
        }
    }
    return row[two.size];
}

/* Short words need to be closer: one of three letters may differ. A prefix of the name
 * counts as close, such as "verb" for "verbose". */
BAGS_API BAGI_COLD size_t bags_word_distance(
    bags_view word, bags_view name, const char *also) {
    unsigned char low[BAGI_WORD_MAX];
    size_t size = word.size, most = size < 3 ? 0 : size < 6 ? 1 : 2;
    if (size > BAGI_WORD_MAX || name.size > BAGI_WORD_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i < size; i++)
        low[i] = bagi_lower(word.data[i]);
    bags_view lower = {low, size};
    if (also && bagi_has_word(also, lower))
        return 0;
    size_t distance = bagi_word_edits(word, name), same = 0;
    while (same < size && same < name.size && low[same] == bagi_lower(name.data[same]))
        same++;
    if (distance > 1 && size >= 3 && same == size)
        distance = 1;
    return distance <= most ? distance : SIZE_MAX;
}

/* The types of the Python packages and of formats/, with common synonyms. Dtypes are
 * types, too. */
static const struct bagi_known {
    const char *name, *also;
} bagi_known[] = {{"bytes", "binary blob raw"}, {"utf8", "str string text"},
    {"int", "integer number uint"}, {"u64", ""}, {"i64", "long"},
    {"array", "ndarray tensor"}, {"npy", "numpy"}, {"msgpack", "json dict object"},
    {"tree", ""}, {"jpeg", "image img picture"}, {"jpg", ""}, {"png", ""}, {"webp", ""},
    {"mp4", "video"}, {"webm", ""}, {"zstd", ""}, {"float16", "half"},
    {"float32", "float"}, {"float64", "double"}, {"bool", "boolean"}};

/* Make a name the best match if it is closer than the previous best. */
static void bagi_closer(bags_view word, bags_view name, const char *also,
    bags_view *closest, size_t *distance) {
    size_t edits = bags_word_distance(word, name, also);
    if (edits < *distance) {
        *distance = edits;
        *closest = name;
    }
}

/* The name that was probably meant by an unknown one; empty if none is close. */
BAGI_COLD static bags_view bagi_type_similar(
    const bags_registry *registry, bags_view word) {
    const void *data = registry ? registry->added.data : NULL;
    const bags_codec *added = (const bags_codec *)data;
    bags_view closest = {NULL, 0}, name;
    size_t distance = SIZE_MAX;
    for (size_t i = 0; i < sizeof bagi_known / sizeof *bagi_known; i++) {
        name.data = (const unsigned char *)bagi_known[i].name;
        name.size = strlen(bagi_known[i].name);
        bagi_closer(word, name, bagi_known[i].also, &closest, &distance);
    }
    for (size_t i = 1; i < BAGI_DTYPES; i++) {
        name.data = (const unsigned char *)bagi_dtypes[i].name;
        name.size = strlen(bagi_dtypes[i].name);
        bagi_closer(word, name, NULL, &closest, &distance);
    }
    for (size_t i = registry ? registry->count : 0; i > 0; i--)
        for (const char *at = added[i - 1].names; *at; at += strspn(at, " ")) {
            name.data = (const unsigned char *)at;
            name.size = strcspn(at, " ");
            at += name.size;
            bagi_closer(word, name, NULL, &closest, &distance);
        }
    return closest;
}

BAGS_API BAGI_COLD bags_code bags_type_check(
    const bags_registry *registry, const char *type, bags_error *err) {
    BAGI_BEGIN(type, err);
    bags_type parsed;
    bags_code code = bags_type_parse(type, &parsed, err);
    bags_view word = {(const unsigned char *)type, strcspn(type, "([")};
    if (!code) {
        bool known = bags_registry_find(registry, word) != NULL ||
                     bagi_is_dtype_name(registry, word);
        for (size_t i = 0; i < sizeof bagi_known / sizeof *bagi_known && !known; i++)
            known = bags_view_is(word, bagi_known[i].name);
        if (known)
            return BAGS_OK;
        bags_fail(err, BAGS_ERROR_TYPE, "unknown type \"%.160s\"", type);
    }
    bags_view meant = bagi_type_similar(registry, word);
    /* If the name is right, the text after it is wrong. */
    if (!meant.size ||
        (meant.size == word.size && !memcmp(meant.data, word.data, word.size)))
        return BAGS_ERROR_TYPE;
    return bags_suffix(err, "; did you mean \"%.*s%.160s\"?", (int)meant.size,
        (const char *)meant.data, type + word.size);
}
#endif

BAGS_API BAGI_COLD void bags_registry_free(bags_registry *registry) {
    if (!registry)
        return;
    bags_allocator memory = registry->memory;
    bags_buffer_free(&registry->added);
    bagi_free(&memory, registry, sizeof *registry);
}

/* ---- the coder ----
 * A codec with the state for one type. If a type has no codec, or its codec refuses the
 * arguments, opening a dataset does not fail, because blobs can still be read and
 * written. The failure is kept in `fault` and returned when a value is needed.
 */

typedef struct bagi_coder {
    const bags_codec *codec; /* NULL: none exists for this type */
    void *state;
    char *fault;    /* why the codec is not open; NULL: it is open */
    size_t remedy;  /* in it, as in a bags_error */
    bags_code code; /* of the fault */
    bags_allocator memory;
} bagi_coder;

/* Pass on a codec's result. The codec writes to a separate error, `why`, initially
 * BAGS_OK, so that a failure without a message is detected. */
static bags_code bagi_codec_result(
    bags_code code, const bags_error *why, bags_error *err) {
    if (code && why->code != code)
        return bags_fail(err, code, "the codec failed without a message");
    if (code)
        *err = *why;
    return code;
}

/* Fails only if out of memory; any other failure becomes the coder's `fault`. Close it
 * even after a failure. */
BAGI_COLD static bags_code bagi_coder_open(bagi_coder *coder,
    const bags_registry *registry, const bags_type *type, const bags_allocator *memory,
    bags_error *err) {
    const bags_codec *codec = bags_registry_find(registry, type->name);
    bags_error why, fault;
    bags_code code = BAGS_OK;
    bags_type complete = *type; /* for float32: array(float32) */
    bags_buffer text = bags_buffer_of(memory);
    memset(coder, 0, sizeof *coder);
    if (!codec && bagi_is_dtype_name(registry, type->name)) {
        BAGI_TRY(
            bags_type_complete(registry, (const char *)type->name.data, &text, err));
        (void)bags_type_parse((const char *)text.data, &complete, NULL);
        codec = bags_registry_find(registry, complete.name);
    }
    coder->codec = codec;
    coder->memory = *memory;
    why.code = BAGS_OK;
    if (!codec)
        code = bags_fail(&why, BAGS_ERROR_TYPE,
            "no codec for this type; add one to the registry, or use bytes (bags_blob, "
            "bags_row_bytes)");
    else if (codec->open)
        code = codec->open(codec, &complete, &coder->memory, &coder->state, &why);
    else if (complete.count)
        code = bagi_fail_arguments(&why);
    bags_buffer_free(&text);
    if (!code)
        return BAGS_OK;
    coder->code = bagi_codec_result(code, &why, &fault);
    if (code != BAGS_ERROR_MEMORY) {
        bags_prefix(&fault, code, "type \"%.200s\": ", (const char *)type->name.data);
        coder->remedy = fault.remedy;
        coder->fault = bagi_copy_text(memory, fault.message, &fault);
    }
    if (coder->fault)
        return BAGS_OK;
    coder->codec = NULL;
    *err = fault;
    return BAGS_ERROR_MEMORY;
}

BAGI_COLD static void bagi_coder_close(bagi_coder *coder) {
    if (coder->codec && !coder->fault && coder->codec->close)
        coder->codec->close(coder->state);
    bagi_free_text(&coder->memory, coder->fault);
    memset(coder, 0, sizeof *coder);
}

static bags_code bagi_coder_fail(const bagi_coder *coder, bags_error *err) {
    bags_fail(err, coder->code, "%s", coder->fault);
    err->remedy = coder->remedy;
    return coder->code;
}

/* A codec succeeded but produced nothing usable: a bug in the codec. */
BAGI_COLD static bags_code bagi_coder_fail_result(
    const bagi_coder *coder, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "the codec of \"%.200s\" returned %s",
        coder->codec->names, what);
}

#ifndef BAGS_NO_WRITER
/* An encoded blob passes through without a codec. The codec writes to a local view, so
 * that *blob is untouched if it fails. */
static bags_code bagi_coder_encode(const bagi_coder *coder, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    bags_view made = {NULL, 0};
    bags_error why;
    if (value->kind == BAGS_KIND_NONE)
        return bags_fail(err, BAGS_ERROR_VALUE, "no value");
    if (BAGI_UNLIKELY(!value->data) && value->size > 0 &&
        value->kind != BAGS_KIND_OBJECT)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "the data is NULL (%" PRIu64 " bytes)", (uint64_t)value->size);
    if (value->kind == BAGS_KIND_BLOB) {
        blob->data = (const unsigned char *)value->data;
        blob->size = value->size;
        return BAGS_OK;
    }
    if (value->kind == BAGS_KIND_STORED)
        return bagi_fail_kind(err, value, "a value");
    if (coder->fault)
        return bagi_coder_fail(coder, err);
    if (!coder->codec->encode)
        return bags_fail(err, BAGS_ERROR_TYPE, "the codec cannot encode values");
    why.code = BAGS_OK;
    bags_code code = coder->codec->encode(coder->state, value, scratch, &made, &why);
    if (code)
        return bagi_codec_result(code, &why, err);
    if (BAGI_UNLIKELY(!made.data) && made.size > 0)
        return bagi_coder_fail_result(coder, "a blob whose data is NULL", err);
    *blob = made;
    return BAGS_OK;
}
#endif

/* NULL: blobs of this type need no dictionary. */
static const bags_codec_dictionary *bagi_coder_dictionary(const bagi_coder *coder) {
    return coder->codec && !coder->fault ? coder->codec->dictionary : NULL;
}

/* True if a blob cannot be decoded without a dictionary. */
static bool bagi_coder_needs(const bagi_coder *coder, bags_view blob) {
    const bags_codec_dictionary *with = bagi_coder_dictionary(coder);
    return BAGI_UNLIKELY(with != NULL) && with->needed(coder->state, blob);
}

/* The content of NAME.dict, prepared by a coder. Readers keep a list of these. */
typedef struct bagi_dictionary {
    struct bagi_dictionary *older;
    const bagi_coder *coder;
    bags_buffer data;
    size_t size; /* of its content */
    void *prepared;
} bagi_dictionary;

/* As in encoding, *value is untouched on failure. The dictionary may be NULL. */
static bags_code bagi_coder_decode(const bagi_coder *coder,
    const bagi_dictionary *dictionary, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    if (coder->fault)
        return bagi_coder_fail(coder, err);
    if (!coder->codec->decode)
        return bags_fail(err, BAGS_ERROR_TYPE, "the codec cannot decode blobs");
    bags_value made = bagi_value(BAGS_KIND_NONE, NULL, 0);
    bags_error why;
    why.code = BAGS_OK;
    bags_code code =
        dictionary ? coder->codec->dictionary->decode(
                         coder->state, dictionary->prepared, blob, scratch, &made, &why)
                   : coder->codec->decode(coder->state, blob, scratch, &made, &why);
    if (code)
        return bagi_codec_result(code, &why, err);
    if (BAGI_UNLIKELY(made.kind == BAGS_KIND_NONE))
        return bagi_coder_fail_result(coder, "no value", err);
    *value = made;
    return BAGS_OK;
}

/* Open a coder for one call; close it even after a failure. */
BAGI_COLD static bags_code bagi_coder_for(bagi_coder *coder,
    const bags_registry *registry, const char *type_text, bags_buffer *scratch,
    bags_error *err) {
    bags_type type;
    bags_allocator memory = bags_allocator_of(registry ? &registry->memory : NULL);
    bagi_buffer_adopt(scratch, &memory);
    memset(coder, 0, sizeof *coder);
    bags_code code = bags_type_parse(type_text, &type, err);
    return code ? code : bagi_coder_open(coder, registry, &type, &memory, err);
}

#ifndef BAGS_NO_WRITER
BAGS_API bags_code bags_encode(const bags_registry *registry, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob, bags_error *err) {
    BAGI_BEGIN(type && value && scratch && blob, err);
    bagi_coder coder;
    bags_code code = bagi_coder_for(&coder, registry, type, scratch, err);
    if (!code)
        code = bagi_coder_encode(&coder, value, scratch, blob, err);
    bagi_coder_close(&coder);
    return code;
}
#endif

BAGS_API bags_code bags_decode(const bags_registry *registry, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err) {
    BAGI_BEGIN(type && value && scratch && (blob.data || !blob.size), err);
    bagi_coder coder;
    bags_code code = bagi_coder_for(&coder, registry, type, scratch, err);
    if (!code)
        code = bagi_coder_decode(&coder, NULL, blob, scratch, value, err);
    bagi_coder_close(&coder);
    return code;
}

/* ---- dictionaries ---- */

/* Size and checksum of NAME.dict, if it exists. */
typedef struct bagi_dictionary_sum {
    bool exists;
    size_t size;
    uint32_t crc;
} bagi_dictionary_sum;

/* Read NAME.dict, if it exists, into an empty buffer unless that is NULL. A file that
 * is empty or too large is BAGS_ERROR_CORRUPT. */
BAGI_COLD static bags_code bagi_dictionary_read(const bagi_dir *dir, const char *name,
    bagi_dictionary_sum *sum, bags_buffer *data, bags_error *err) {
    bags_buffer content = BAGI_ZERO;
    bags_error why;
    memset(sum, 0, sizeof *sum);
    bags_code code = bagi_dir_read(dir, name, BAGI_DICTIONARY, BAGI_DICTIONARY_MAX,
        &content, &sum->size, NULL, &why);
    if (code == BAGS_ERROR_MISSING)
        return BAGS_OK;
    if (!code && !sum->size)
        code = bags_fail(&why, BAGS_ERROR_CORRUPT, "%s: empty, not a dictionary",
            bagi_shown(dir->env, bagi_dir_path(dir, name, BAGI_DICTIONARY)));
    sum->exists = !code;
    sum->crc = code ? 0 : bags_crc32c(0, content.data, sum->size);
    if (data && !code)
        *data = content;
    else
        bags_buffer_free(&content);
    if (!code)
        return BAGS_OK;
    *err = why;
    return err->code = code == BAGS_ERROR_LIMIT ? BAGS_ERROR_CORRUPT : code;
}

/* The trailer's CRC of a Bag's name and dictionary. */
static uint32_t bagi_name_crc(const char *name, const bagi_dictionary_sum *sum) {
    unsigned char bytes[4];
    bagi_store_u32(bytes, sum->crc);
    uint32_t crc = bags_crc32c(0, name, strlen(name));
    return bags_crc32c(crc, bytes, sum->exists ? sizeof bytes : 0);
}

/* Find a Bag's dictionary in a list, adding it if missing. It is compared with the
 * trailer, if that was read, and must belong to the shard whose record has this
 * identity. Messages contain the path of NAME.dict. */
BAGI_COLD static bags_code bagi_dictionary_open(bagi_dictionary **list, uint64_t record,
    const bags_trailer *trailer, const bagi_dir *dir, const char *name,
    const bagi_coder *coder, const bagi_dictionary **out, bags_error *err) {
    const bags_allocator *memory = &dir->env->memory;
    bagi_dictionary made = {*list, coder, {NULL, 0, NULL, NULL}, 0, NULL};
    bagi_dictionary *found = *list;
    bags_error why;
    bagi_dictionary_sum sum;
    BAGI_TRY(bagi_dictionary_read(dir, name, &sum, &made.data, err));
    made.size = sum.size;
    const char *path = bagi_dir_path(dir, name, BAGI_DICTIONARY);
    const char *shown = bagi_shown(dir->env, path);
    bags_view bytes = {made.data.data, made.size};
    bags_code code = bagi_fail_io(dir->env, sum.exists ? 0 : ENOENT, path, "open", err);
    if (!code)
        code = bagi_check_record(dir->env, path, record, false, err);
    if (!code && trailer->binds_shard && trailer->name != bagi_name_crc(name, &sum))
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: checksum mismatch: it is not the one that %s.crc was made with", shown,
            name);
    while (found && (found->coder != coder || found->size != made.size ||
                        memcmp(found->data.data, bytes.data, bytes.size) != 0))
        found = found->older;
    if (code || found) {
        bags_buffer_free(&made.data);
        *out = code ? NULL : found;
        return code;
    }
    found = (bagi_dictionary *)bagi_alloc(memory, sizeof *found, err);
    why.code = BAGS_OK;
    code = found ? coder->codec->dictionary->prepare(
                       coder->state, bytes, &made.prepared, &why)
                 : BAGS_ERROR_MEMORY;
    if (!code) {
        *out = *list = (bagi_dictionary *)memcpy(found, &made, sizeof made);
        return BAGS_OK;
    }
    if (found && bagi_codec_result(code, &why, err))
        bags_prefix(err, code, "%s: ", shown);
    bagi_free(memory, found, sizeof *found);
    bags_buffer_free(&made.data);
    return code;
}

static void bagi_dictionaries_free(
    const bags_allocator *memory, bagi_dictionary **list) {
    while (*list) {
        bagi_dictionary *dictionary = *list;
        const bagi_coder *coder = dictionary->coder;
        *list = dictionary->older;
        coder->codec->dictionary->discard(coder->state, dictionary->prepared);
        bags_buffer_free(&dictionary->data);
        bagi_free(memory, dictionary, sizeof *dictionary);
    }
}

/* ========================================================================
 * >>set
 * The files of Bags being read. A Bag is accessed through two pointers, to its blobs'
 * bytes and to their end offsets. Each points into a map or a copy, or is NULL, meaning
 * that the file is read. A file may belong to a set that limits the number of open
 * files.
 *
 *     bagi_file_attach --> bagi_file_map --> mapped: closed by bagi_bag_open
 *                                |
 *                                +---------> open until bagi_file_close
 *                                |
 *                                '---------> listed in a set by bagi_bag_open
 *
 *     listed: bagi_file_pin opens it if it is closed, and keeps it open until
 *     bagi_file_unpin; in between others may close it: bagi_files_evict
 *
 * These invariants hold while a Bag is open:
 *
 *   1. `length`, `limit` and `table` fit the file sizes. The entries in between are not
 *   checked: every read checks the entries it uses. 2. Any number of threads may read.
 *   Nothing changes except a set's files, guarded by its mutex, and `order_checked` and
 *   `checked`, set atomically. 3. A mapped file is not open. A set may close and reopen
 *   a file; it must then be the same file, in the same shard.
 * ====================================================================== */

typedef struct bagi_file {
    char *path;        /* NULL: the Bag does not have this file */
    const char *shown; /* the path in messages */
    uint64_t size;
    const unsigned char *map; /* NULL: not mapped */
    void *handle;             /* NULL: mapped, in memory, or closed for now */
    unsigned pins;            /* threads that are reading it */
    bool listed;              /* it belongs to a set, whether open or not; constant once
                                 the Bag is open */
    bool grows;               /* a writer may append to it: `size` is a minimum */
    uint64_t identity;        /* set if it is listed and does not grow */
    struct bagi_file *newer, *older;
} bagi_file;

/*
 * Files that share a limit. The list holds the open ones, by last use.
 *
 * The mutex guards the list and its files' handle, pins, newer and older. A thread pins
 * a file to read it, and holds no lock while reading. A pinned file is never closed, so
 * the limit is exceeded when more threads than it allows read at once.
 */
typedef struct bagi_files {
    bagi_mutex mutex;
    bagi_guard guard; /* of a reader: its first mutex is taken before this one */
    size_t limit, count;
    bagi_file *newest, *oldest;
} bagi_files;

/* Remove an open file from the list. */
static void bagi_files_unlink(bagi_files *files, bagi_file *file) {
    *(file->newer ? &file->newer->older : &files->newest) = file->older;
    *(file->older ? &file->older->newer : &files->oldest) = file->newer;
    file->newer = file->older = NULL;
    files->count--;
}

/* Add an open file as the most recently used. */
static void bagi_files_link(bagi_files *files, bagi_file *file) {
    file->newer = NULL;
    file->older = files->newest;
    *(files->newest ? &files->newest->newer : &files->oldest) = file;
    files->newest = file;
    files->count++;
}

/* Close the least recently used file. False if all are being read. */
BAGI_COLD static bool bagi_files_evict(bagi_files *files, const bagi_env *env) {
    bagi_file *file = files->oldest;
    while (file && file->pins > 0)
        file = file->newer;
    if (!file)
        return false;
    bagi_files_unlink(files, file);
    bagi_close_read(env, file->handle);
    file->handle = NULL;
    return true;
}

/* Fail if the files belong to a reader whose locks were lost in fork(). */
static bags_code bagi_files_check(
    const bagi_files *files, const char *shown, bags_error *err) {
    if (!files->guard.lost)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_STATE,
        "%s: another thread was reading it during fork(); open it in the child", shown);
}

/* The location of the ends of a Bag's blobs:
 *
 *     BAGI_V1       NAME.bag    blobs | 0 | ends
 *     BAGI_V2       NAME.bag    blobs | ends
 *     BAGI_SPLIT    NAME.bag    blobs             NAME.idx    ends
 *
 * bagi_bag_shape and bagi_bag_shape_split determine the layout. Everything else uses
 * `table`, `limit` and `length`, and the two functions below, except for files that
 * only granular 0.20 writes: see bagi_refs_allow_empty.
 */
typedef enum bagi_layout { BAGI_V1, BAGI_V2, BAGI_SPLIT } bagi_layout;

/* Blobs, table and checksum sidecar are all read in the same way. */
struct bag_reader {
    bagi_mapped mapped;     /* must be the first member */
    uint64_t mapped_length; /* the same length, even where mapped.length is 0 */
    uint64_t touch_length;  /* the same for plain fields and refs: see bagi_touch */
    /* Blobs, CRCs and ends in memory, starting with blob 0; NULL: read them. */
    const unsigned char *in_memory[BAGI_FILES];
    uint64_t length; /* blobs */
    uint64_t limit;  /* no blob ends after this offset */
    bagi_layout layout;
    uint64_t table; /* offset of the end of blob 0 in its file */
    const bagi_env *env;
    bagi_files *files; /* NULL: the files stay open */
    bagi_file file[BAGI_FILES];
    bags_buffer cached[BAGI_FILES]; /* copies of the table and the CRCs */
    bags_trailer trailer;           /* set if checksums were opened */
    uint64_t record;                /* identity of its shard's record; 0: not checked */
    bool verify;                    /* compare returned blobs with their checksums */
    bool cold;                      /* mapped, and not in memory when it was opened */
    bool random;                    /* cold, and stays so: no_read_ahead */
    bool touch;                     /* see bagi_touch */
    /* If cold: the blob after the last one, and the ranges that were in memory since
     * the last one that was not. Atomic. */
    void *next;
    long resident;
    bool is_refs;        /* refs.bag */
    void *order_checked; /* non-NULL: blob i belongs to datapoint i; set atomically */
    /* Non-NULL: the record was compared after the files were opened. Set atomically,
     * when blobs of remote files are read. */
    void *checked;
    void *dictionary; /* a bagi_dictionary, once a value needed it; set atomically */
};

static bool bagi_is_split(const bag_reader *bag) { return bag->layout == BAGI_SPLIT; }

/* True if a 0 precedes the ends, so that blob 0 is found like any other. The table's
 * checksum includes this 0. */
static bool bagi_has_zero(const bag_reader *bag) { return bag->layout == BAGI_V1; }

/* The file that contains the blobs, their CRCs or their ends. */
static const bagi_file *bagi_bag_file(const bag_reader *bag, int which) {
    bool table = which == BAGI_ENDS && !bagi_is_split(bag);
    return &bag->file[table ? BAGI_BLOBS : which];
}

/* Bytes per blob in each file of a Bag; 0 for the blobs themselves, because they vary
 * in size. */
static const size_t bagi_entry_size[] = {0, 4, 8};

/* The offset in that file of a blob's CRC or end. */
static uint64_t bagi_bag_offset(const bag_reader *bag, int which, uint64_t index) {
    return (which == BAGI_ENDS ? bag->table : 0) + bagi_entry_size[which] * index;
}

/* Open a file of a Bag. If the system refuses to open more, close others of the set.
 * The caller holds the set's mutex. */
BAGI_COLD static bags_code bagi_file_open(
    const bag_reader *bag, bagi_file *file, bags_error *err) {
    const bagi_env *env = bag->env;
    bagi_files *files = bag->files;
    int error = 0;
    while (file->listed && files->count >= files->limit && bagi_files_evict(files, env))
        ;
    do {
        error = env->io.open(env->io.user, file->path, BAGS_IO_READ, &file->handle);
    } while (
        (error == EMFILE || error == ENFILE) && files && bagi_files_evict(files, env));
    if (error)
        file->handle = NULL;
    return bagi_fail_io(env, error, file->path, "open", err);
}

/* Keep a file open while it is read. A listed file may have to be reopened; it must
 * then still be the same, in the same shard. */
BAGI_COLD static bags_code bagi_file_pin(
    const bag_reader *bag, const bagi_file *of, void **handle, bags_error *err) {
    const bagi_env *env = bag->env;
    bagi_files *files = bag->files;
    bagi_file *file = (bagi_file *)bagi_mutable(of);
    bags_code code = BAGS_OK;
    uint64_t size = file->size, identity = file->identity;
    if (!file->listed) {
        *handle = file->handle;
        return BAGS_OK;
    }
    BAGI_TRY(bagi_files_check(files, file->shown, err));
    bagi_lock(&files->mutex);
    if (file->handle) {
        bagi_files_unlink(files, file);
    } else {
        code = bagi_file_open(bag, file, err);
        if (!code)
            code = bagi_check_record(env, file->path, bag->record, false, err);
        if (!code)
            code = bagi_file_size(env, file->handle, file->path, &size, err);
        if (!code && identity)
            code = bagi_fail_io(env,
                bagi_identify(env, file->handle, file->path, &identity), file->path,
                "identify", err);
    }
    if (!code && (file->grows ? size < file->size : size != file->size))
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: changed while open (%" PRIu64 " bytes, was %" PRIu64 ")", file->shown,
            size, file->size);
    else if (!code && identity != file->identity)
        code = bags_fail(err, BAGS_ERROR_CHANGED,
            "%s: changed while open: another process replaced or wrote it",
            file->shown);
    if (code) {
        bagi_close_read(env, file->handle);
        file->handle = NULL;
    } else {
        bagi_files_link(files, file);
        file->pins++;
    }
    *handle = file->handle;
    bagi_unlock(&files->mutex);
    return code;
}

/* If more files than the limit were being read at once, close one now. */
BAGI_COLD static void bagi_file_unpin(const bag_reader *bag, const bagi_file *of) {
    bagi_files *files = bag->files;
    bagi_file *file = (bagi_file *)bagi_mutable(of);
    if (!file->listed)
        return;
    bagi_lock(&files->mutex);
    if (--file->pins == 0 && files->count > files->limit)
        bagi_files_evict(files, bag->env);
    bagi_unlock(&files->mutex);
}

/* Read from a file, wherever its bytes are. */
BAGI_COLD static bags_code bagi_file_read(const bag_reader *bag, const bagi_file *file,
    uint64_t offset, void *data, size_t size, bags_error *err) {
    void *handle = NULL;
    if (size == 0)
        return BAGS_OK;
    if (file->map) {
        memcpy(data, file->map + offset, size);
        return BAGS_OK;
    }
    BAGI_TRY(bagi_file_pin(bag, file, &handle, err));
    bags_code code = bagi_read(bag->env, handle, file->path, offset, data, size, err);
    bagi_file_unpin(bag, file);
    return code;
}

/* Announce how a part of a file will be read, if the system can use the advice: a map
 * is given by its address, a file only while it is open. Failures do not matter,
 * because the later read will report them. */
BAGI_COLD static void bagi_file_advise(const bag_reader *bag, const bagi_file *file,
    uint64_t offset, uint64_t size, bags_advice advice) {
    const bags_io *io = &bag->env->io;
    void *handle = NULL;
    bags_error ignored;
    if (!io->advise || size == 0 || !file->path)
        return;
    if (file->map) {
        io->advise(io->user, NULL, file->map + offset, 0, size, advice);
    } else if ((file->listed || file->handle) && /* the set owns `handle` */
               !bagi_file_pin(bag, file, &handle, &ignored)) {
        io->advise(io->user, handle, NULL, offset, size, advice);
        bagi_file_unpin(bag, file);
    }
}

/* Open a file of a Bag for the first time. It is not listed yet, so that no other
 * thread closes it while the Bag is being opened. */
BAGI_COLD static bags_code bagi_file_attach(bag_reader *bag, const bagi_dir *dir,
    const char *name, int which, bags_error *err) {
    bagi_file *file = &bag->file[which];
    file->path = bagi_copy_text(
        &bag->env->memory, bagi_dir_path(dir, name, bagi_suffix[which]), err);
    if (!file->path)
        return BAGS_ERROR_MEMORY;
    file->shown = bagi_shown(bag->env, file->path);
    if (bag->files)
        bagi_lock(&bag->files->mutex);
    bags_code code = bagi_file_open(bag, file, err);
    if (bag->files)
        bagi_unlock(&bag->files->mutex);
    return code;
}

/* The number of files mapped by all datasets of this process. Maps are a resource that
 * malloc needs, too: beyond a quarter of the number that Linux allows, files are read
 * instead. */
static volatile long bagi_maps;
enum { BAGI_MAPS_LIMIT = 16384 };

/* Get the size of an open file and map it, if possible and allowed. An unmapped file is
 * identified, because it may be closed and reopened. An empty file needs no map:
 * nothing is read from it. */
BAGI_COLD static bags_code bagi_file_map(
    bag_reader *bag, bagi_file *file, bool no_mmap, bags_error *err) {
    static const unsigned char nothing[1] = {0};
    const bags_io *io = &bag->env->io;
    bagi_files *files = bag->files;
    const void *map = nothing;
    size_t size = 0;
    bags_code code =
        bagi_file_size(bag->env, file->handle, file->path, &file->size, err);
    bool mapped = !code && !no_mmap && io->map && bagi_size(file->size, &size);
    if (mapped && size > 0) {
        mapped = (BAGI_ADD(&bagi_maps, 1) <= BAGI_MAPS_LIMIT || !files) &&
                 io->map(io->user, file->handle, size, &map) == 0;
        if (!mapped)
            (void)BAGI_ADD(&bagi_maps, -1);
    }
    if (mapped)
        file->map = (const unsigned char *)map;
    else if (!code && files && !file->grows)
        code = bagi_fail_io(bag->env,
            bagi_identify(bag->env, file->handle, file->path, &file->identity),
            file->path, "identify", err);
    return code;
}

/* No thread may be reading the file. */
BAGI_COLD static void bagi_file_close(bag_reader *bag, bagi_file *file) {
    const bagi_env *env = bag->env;
    bagi_files *files = bag->files;
    if (file->map && file->size > 0) {
        env->io.unmap(env->io.user, file->map, (size_t)file->size);
        (void)BAGI_ADD(&bagi_maps, -1);
    }
    if (file->handle && file->listed)
        bagi_files_unlink(files, file);
    bagi_close_read(env, file->handle);
    bagi_free_text(&env->memory, file->path);
    memset(file, 0, sizeof *file);
}

/* ========================================================================
 * >>open
 * Opens a Bag's files, determines its variant, and checks its structure and its
 * checksum trailer, in O(1). In a dataset, the shard determines the variant; for a
 * standalone Bag, its files do:
 *
 *     no NAME.idx                                      v1 or v2, by its first entry
 *     NAME.idx; NAME.bag ends in the table it lists    v1
 *     NAME.idx; a valid table elsewhere in NAME.bag    an error: bagi_bag_shape_split
 *     NAME.idx otherwise                               split, or still being written
 * ====================================================================== */

/* Values that a shard's files must match. */
typedef struct bagi_record {
    uint64_t identity; /* of spec.json, or spec.json.partial; 0: unknown */
    uint32_t spec;     /* CRC of the same */
    uint32_t bound;    /* the CRC that all its checksum trailers contain, ... */
    bool is_bound;     /* ... if known */
    bool missing;      /* spec.json does not exist */
} bagi_record;

/* How a Bag is opened. */
typedef struct bagi_bag_options {
    bool split;       /* in a dataset: NAME.idx is required; otherwise ignored */
    const char *name; /* of the field, or "refs"; "" if standalone */
    bool no_mmap, cache_index, verify_checksums, allow_empty;
    bool grows;      /* a writer may still be appending */
    bool unfinished; /* the index is a journal that may list more blobs than exist: the
                        caller checks, and trims */
    bool no_read_ahead;
    bagi_record record; /* of its shard, unless standalone */
} bagi_bag_options;

/* Options for a finished, mapped Bag that is not split; standalone unless given a
 * name. */
static bagi_bag_options bagi_bag_options_new(void) {
    bagi_bag_options bag_options = BAGI_ZERO;
    bag_options.name = "";
    return bag_options;
}

/* True if these bytes of a map are in memory, or if the system does not tell: Linux
 * does if the process owns the file or may write to it. */
static bool bagi_is_resident(const unsigned char *at, uint64_t size) {
#if defined(__linux__) && !defined(BAGS_NO_LOCAL)
    unsigned char states[256];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)at & (page - 1);
    size_t pages = ((size_t)size + before + page - 1) / page, count = 0;
    unsigned char *next = (unsigned char *)(uintptr_t)at - before;
    for (; pages > 0; pages -= count, next += count * page) {
        count = BAGI_MIN(pages, sizeof states);
        if (mincore(next, count * page, states))
            return true;
        for (size_t i = 0; i < count; i++)
            if (!(states[i] & 1))
                return false;
    }
#else
    (void)at, (void)size;
#endif
    return true;
}

/* Bytes of the smallest Bag that may be cold. The system may read a smaller one ahead
 * as a whole. */
#define BAGI_SMALLEST_COLD ((uint64_t)256 * 1024)

/* Read 8 bytes of a Bag's file while the Bag is opened. Request their page first: if a
 * page of a map is touched, the system reads many pages around it. */
BAGI_COLD static bags_code bagi_bag_read_number(
    const bag_reader *bag, uint64_t offset, unsigned char *number, bags_error *err) {
    const bagi_file *file = &bag->file[BAGI_BLOBS];
    if (file->map && file->size >= BAGI_SMALLEST_COLD && bag->env->io.advise &&
        !bagi_is_resident(file->map + offset, 8))
        bagi_file_advise(bag, file, offset, 8, BAGS_ADVICE_SOON);
    return bagi_file_read(bag, file, offset, number, 8, err);
}

/* Determine the structure of a Bag that ends in its own table: v1, or v2 without the
 * 0. */
BAGI_COLD static bags_code bagi_bag_shape(
    bag_reader *bag, bool allow_empty, bags_error *err) {
    const bagi_file *file = &bag->file[BAGI_BLOBS];
    unsigned char number[8];
    if (file->size == 0 && allow_empty) {
        bag->layout = BAGI_V2;
        return BAGS_OK;
    }
    if (file->size < 8)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: not a Bag (%" PRIu64 " bytes, minimum 8)", file->shown, file->size);
    BAGI_TRY(bagi_bag_read_number(bag, file->size - 8, number, err));
    uint64_t table = bagi_load_u64(number);
    bool is_table = table <= file->size - 8 && (file->size - table) % 8 == 0;
    if (is_table)
        BAGI_TRY(bagi_bag_read_number(bag, table, number, err));
    /* Many files that are not Bags end in 8 zeros, as if the table began at their first
     * byte. */
    uint64_t first = bagi_load_u64(number);
    if (!is_table || first > table)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: not a Bag, truncated, or never closed (the last 8 bytes are "
            "not the offset of a table)",
            file->shown);
    bag->layout = first ? BAGI_V2 : BAGI_V1;
    bag->limit = table;
    bag->table = bag->layout == BAGI_V1 ? table + 8 : table;
    bag->length = (file->size - bag->table) / 8;
    return BAGS_OK;
}

/* Determine the structure of a Bag with an index file; a torn last entry is ignored. A
 * standalone Bag may also end in a table. If the index lists the same ends, the index
 * is not needed. A valid v1 table that differs is an error, because either may be
 * right. Anything else at the end is taken for blob bytes. */
BAGI_COLD static bags_code bagi_bag_shape_split(
    bag_reader *bag, const bagi_bag_options *bag_options, bags_error *err) {
    const bagi_file *file = &bag->file[BAGI_BLOBS];
    unsigned char entries[512] = {0};
    uint64_t length = bag->file[BAGI_ENDS].size / 8, last = 0;
    bool table = bag->layout == BAGI_V1 && bag->limit > 0;
    if (length)
        BAGI_TRY(bagi_file_read(
            bag, &bag->file[BAGI_ENDS], length * 8 - 8, entries, 8, err));
    uint64_t end = bagi_load_u64(entries);
    if (bag->layout == BAGI_V1 && bag->limit == end && bag->length == length) {
        bagi_file_close(bag, &bag->file[BAGI_ENDS]);
        return BAGS_OK;
    }
    for (uint64_t i = 0; i < bag->length && table; i++) {
        size_t at = (size_t)(8 * i % sizeof entries);
        if (at == 0)
            BAGI_TRY(bagi_file_read(bag, file, bag->table + 8 * i, entries,
                (size_t)BAGI_MIN(8 * (bag->length - i), sizeof entries), err));
        uint64_t stop = bagi_load_u64(entries + at);
        table = last <= stop && stop <= bag->limit;
        last = stop;
    }
    if (table)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: its table (%" PRIu64 " blobs, %" PRIu64
            " bytes) and its .idx (%" PRIu64 " blobs, %" PRIu64
            " bytes) differ; remove the .idx only if the table is right",
            file->shown, bag->length, bag->limit, length, end);
    if (end > file->size && !bag_options->unfinished)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: blob %" PRIu64 ": end offset out of range (%" PRIu64
            " in its .idx, the file has %" PRIu64 " bytes)",
            file->shown, length - 1, end, file->size);
    bag->layout = BAGI_SPLIT;
    bag->table = 0;
    bag->limit = bag_options->unfinished ? file->size : end;
    bag->length = length;
    return BAGS_OK;
}

/* Set the pointer to a Bag's entries, its end offsets or CRCs, if they are mapped. With
 * `cache`, read them now and keep them in memory. */
BAGI_COLD static bags_code bagi_bag_entries(
    bag_reader *bag, int which, bool cache, bags_error *err) {
    const bagi_file *file = bagi_bag_file(bag, which);
    uint64_t offset = bagi_bag_offset(bag, which, 0);
    uint64_t count = which == BAGI_ENDS ? bag->length : bag->trailer.length;
    bags_buffer *copy = &bag->cached[which];
    size_t size = 0;
    bag->in_memory[which] = file->map ? file->map + offset : NULL;
    if (file->map || !cache || count == 0)
        return BAGS_OK;
    if (!bagi_size(count * bagi_entry_size[which], &size))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: the table is too large for the address space", file->shown);
    bagi_buffer_adopt(copy, &bag->env->memory);
    bags_code code = bags_buffer_reserve(copy, size, err);
    bag->in_memory[which] = copy->data;
    return code ? code : bagi_file_read(bag, file, offset, copy->data, size, err);
}

/* ---- checksums next to a Bag ---- */

/* Refuse a request that needs checksums in a build without them. */
BAGI_COLD static bags_code bagi_check_checksums(
    const char *path, bool needed, bags_error *err) {
    if (BAGI_CHECKSUMS || !needed)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_ARGUMENT,
        "%s: needs checksums, but this program was built without "
        "them (BAGS_NO_CHECKSUM)",
        bags_path_tail(path));
}

/* Open NAME.crc, and read its trailer. While a Bag is being written, NAME.crc is a
 * journal without a trailer; after a power failure it may have fewer CRCs than there
 * are ends. */
BAGI_COLD static bags_code bagi_crcs_open(bag_reader *bag, const bagi_dir *dir,
    const bagi_bag_options *bag_options, bags_error *err) {
    bagi_file *file = &bag->file[BAGI_CRCS];
    unsigned char bytes[BAGS_TRAILER_SIZE];
    bags_code code = bagi_file_attach(bag, dir, bag_options->name, BAGI_CRCS, err);
    if (code == BAGS_ERROR_MISSING) {
        const char *path = file->shown;
        return bags_fail(err, code,
            "%.*s%s: no checksums (%s is missing); bags_checksum writes them",
            (int)(strlen(path) - 4), path, dir->bare ? "" : ".bag", path);
    }
    BAGI_TRY(code);
    BAGI_TRY(bagi_file_map(bag, file, bag_options->no_mmap, err));
    if (bag_options->unfinished && bagi_is_split(bag)) {
        bag->trailer.length = file->size / 4;
        return BAGS_OK;
    }
    if (file->size >= sizeof bytes) {
        uint64_t offset = file->size - sizeof bytes;
        BAGI_TRY(bagi_file_read(bag, file, offset, bytes, sizeof bytes, err));
        if (bagi_trailer_load(bytes, &bag->trailer) && offset % 4 == 0 &&
            offset / 4 == bag->trailer.length) {
            if (dir->standalone || bag->trailer.binds_shard)
                return BAGS_OK;
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: checksums of version 0.1 or of a standalone Bag; make them again "
                "with bags_checksum and replace",
                file->shown);
        }
    }
    memset(&bag->trailer, 0, sizeof bag->trailer);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: damaged, truncated, or never finished (no valid trailer)", file->shown);
}

/* Read the trailer of a shard's NAME.crc. */
BAGI_COLD static bags_code bagi_crcs_read_trailer(
    const bagi_dir *dir, const char *name, bags_trailer *trailer, bags_error *err) {
    bag_reader bag = BAGI_ZERO;
    bagi_bag_options bag_options = bagi_bag_options_new();
    bag.env = dir->env;
    bag_options.name = name;
    bag_options.no_mmap = true;
    bags_code code = bagi_crcs_open(&bag, dir, &bag_options, err);
    *trailer = bag.trailer;
    bagi_file_close(&bag, &bag.file[BAGI_CRCS]);
    return code;
}

/* Do the O(1) checks on the sidecar of a Bag whose structure is known: it is complete,
 * and belongs to a Bag with this structure and name. A dataset's Bag may be read as a
 * standalone one, and a standalone one may be renamed. */
BAGI_COLD static bags_code bagi_crcs_check(const bag_reader *bag, const bagi_dir *dir,
    const bagi_bag_options *bag_options, bags_error *err) {
    const bagi_file *blobs = &bag->file[BAGI_BLOBS];
    const bags_trailer *trailer = &bag->trailer;
    if (bag_options->unfinished && bagi_is_split(bag))
        return BAGS_OK;
    if (trailer->length != bag->length || trailer->size != blobs->size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: changed since its checksums were written (%" PRIu64
            " blobs and %" PRIu64 " bytes, were %" PRIu64 " and %" PRIu64 ")",
            blobs->shown, bag->length, blobs->size, trailer->length, trailer->size);
    /* A standalone Bag's name is the last part of its path. */
    const char *name = dir->standalone ? dir->path : bag_options->name;
    for (const char *at = name; dir->standalone && *at; at++)
        if (bagi_is_slash(*at))
            name = at + 1;
    bagi_dictionary_sum sum = {false, 0, 0};
    if ((!trailer->name && dir->standalone) ||
        trailer->name == bagi_name_crc(name, &sum))
        return BAGS_OK;
    bags_code code = bagi_dictionary_read(dir, bag_options->name, &sum, NULL, err);
    if (code || (sum.exists && trailer->name == bagi_name_crc(name, &sum)))
        return code;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: has the checksums of another Bag, or %s.dict %s",
        bag->file[BAGI_CRCS].shown, name, sum.exists ? "has changed" : "is missing");
}

/* Check that a sidecar with this trailer belongs to its shard (to spec.json and to the
 * other Bags), if the shard is known. */
BAGI_COLD static bags_code bagi_crcs_check_shard(const char *path,
    const bags_trailer *trailer, const bagi_record *record, bags_error *err) {
    if (!record->is_bound || trailer->shard == record->bound)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: spec.json and the shard's Bags: checksum mismatch (computed %08" PRIx32
        ", stored %08" PRIx32 "): one of them is of another version",
        path, record->bound, trailer->shard);
}

BAGI_COLD static bags_code bagi_crcs_fail(const bag_reader *bag, uint64_t index,
    uint32_t computed, uint32_t stored, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: blob %" PRIu64 ": checksum mismatch (computed %08" PRIx32
        ", stored %08" PRIx32 ")",
        bag->file[BAGI_BLOBS].shown, index, computed, stored);
}

/* ---- a Bag ---- */

/* Close a Bag's files and free its copies. The Bag may be partly open, or NULL. */
static void bagi_bag_free(bag_reader *bag) {
    if (!bag)
        return;
    for (int i = 0; i < BAGI_FILES; i++) {
        bagi_file_close(bag, &bag->file[i]);
        bags_buffer_free(&bag->cached[i]);
    }
    bagi_free(&bag->env->memory, bag, sizeof *bag);
}

/* True for a standalone Bag that may have an index because it is called NAME.bag. */
static bool bagi_dir_may_have_index(const bagi_dir *dir) {
    return dir->standalone && !dir->bare;
}

/* Announce that a Bag's files may be opened soon. */
BAGI_COLD static void bagi_bag_expect(
    const bagi_dir *dir, const bagi_bag_options *bag_options) {
    bagi_dir_expect(dir, bag_options->name, bagi_suffix[BAGI_BLOBS]);
    if (bag_options->split || bagi_dir_may_have_index(dir))
        bagi_dir_expect(dir, bag_options->name, bagi_suffix[BAGI_ENDS]);
    if (bag_options->verify_checksums)
        bagi_dir_expect(dir, bag_options->name, bagi_suffix[BAGI_CRCS]);
}

#ifdef BAGS_DEBUG
/*
 * Invariants of an open Bag, in addition to the list in >>set.
 *
 *   - without .idx, the blobs, the 0 if present, and the ends fill the file; with .idx,
 *     the blobs are at its start
 *   - the fields that find a mapped blob find either all blobs or none
 *   - a mapped file is not open; a listed file belongs to a set
 *   - a Bag read by offsets has its files, or their content in memory
 */
static void bagi_bag_assert(const bag_reader *bag) {
    const bagi_mapped *mapped = &bag->mapped;
    uint64_t size = bag->file[BAGI_BLOBS].size;
    if (bagi_is_split(bag))
        assert(bag->table == 0 && bag->limit <= size);
    else
        assert(bag->limit + (bagi_has_zero(bag) ? 8 : 0) == bag->table &&
               bag->table + 8 * bag->length == size);
    assert(bag->mapped_length == 0 || bag->mapped_length == bag->length);
    assert(mapped->length == 0 ||
           (mapped->length == bag->mapped_length && !bag->verify && !bag->cold));
    assert(!bag->mapped_length || (mapped->data && mapped->limit == bag->limit &&
                                      bagi_load_u64(mapped->table) == 0));
    for (int i = 0; i < BAGI_FILES; i++) {
        const bagi_file *file = &bag->file[i];
        /* A listed file's handle belongs to its set, and may be closed meanwhile. */
        assert(!file->listed || (bag->files && file->path && !file->map));
        assert(file->listed || !file->handle || (file->path && !file->map));
    }
    assert(bag->length == 0 || bag->in_memory[BAGI_ENDS] ||
           bagi_bag_file(bag, BAGI_ENDS)->path);
}
#endif

/* True if one of a few pages of a mapped Bag is not in memory. */
BAGI_COLD static bool bagi_bag_is_cold(const bag_reader *bag) {
    const bagi_file *file = &bag->file[BAGI_BLOBS];
    const uint64_t samples = 8;
    for (uint64_t i = 0; i < samples && file->size >= BAGI_SMALLEST_COLD; i++)
        if (!bagi_is_resident(
                file->map + (2 * i + 1) * (file->size / (2 * samples)), 1))
            return true;
    return false;
}

/* Called when a Bag's structure is known and its in-memory parts are loaded; nothing
 * can fail any more. Set the fields that find a mapped blob, and leave the files to
 * their set. A mapped refs.bag has BAGI_SLACK: it is never split, so its table
 * follows. */
BAGI_COLD static void bagi_bag_ready(
    bag_reader *bag, const bagi_bag_options *bag_options) {
    const bagi_env *env = bag->env;
    bagi_files *files = bag->files;
    const unsigned char *data = bag->file[BAGI_BLOBS].map;
    const unsigned char *ends = bag->in_memory[BAGI_ENDS];
    bag->record = bag_options->record.identity;
    bag->is_refs = !bag_options->split && strcmp(bag_options->name, "refs") == 0;
    bag->verify = bag_options->verify_checksums;
    bag->random = bag_options->no_read_ahead && env->io.advise && data;
    bag->cold = bag->random || (env->io.advise && data && bagi_bag_is_cold(bag));
    bag->in_memory[BAGI_BLOBS] = data;
    bool crcs = !bag->verify || bag->in_memory[BAGI_CRCS];
    if (data && ends && crcs && bagi_has_zero(bag)) {
        bag->mapped.data = data;
        bag->mapped.table = ends - 8;
        bag->mapped.limit = bag->limit;
        bag->mapped_length = bag->length;
        /* Blobs to be requested or verified need more than two loads. */
        if (!bag->cold && !bag->verify)
            bag->mapped.length = bag->length;
    }
    if (bag->cached[BAGI_ENDS].data && bagi_is_split(bag))
        bagi_file_close(bag, &bag->file[BAGI_ENDS]); /* no longer needed */
    for (int i = 0; i < BAGI_FILES; i++) {
        bagi_file *file = &bag->file[i];
        if (file->handle && file->map) { /* a map needs no open file */
            bagi_close_read(env, file->handle);
            file->handle = NULL;
        } else if (file->handle && files) {
            bagi_lock(&files->mutex);
            while (files->count >= files->limit && bagi_files_evict(files, env))
                ;
            bagi_files_link(files, file);
            file->listed = true;
            bagi_unlock(&files->mutex);
        }
        if (bag_options->no_read_ahead)
            bagi_file_advise(bag, file, 0, file->size, BAGS_ADVICE_RANDOM);
    }
    BAGI_CHECK(bagi_bag_assert(bag));
}

/* Open a Bag's blobs and its index, if there is one (*split). *moved is set if a
 * standalone Bag without an index changed meanwhile: a writer creates the index just
 * after the Bag. */
BAGI_COLD static bags_code bagi_bag_attach(bag_reader *bag, const bagi_dir *dir,
    const bagi_bag_options *bag_options, bool *split, bool *moved, bags_error *err) {
    bagi_file *blobs = &bag->file[BAGI_BLOBS], *index = &bag->file[BAGI_ENDS];
    const char *name = bag_options->name;
    uint64_t before = 0;
    bool search = bagi_dir_may_have_index(dir);
    bags_code code = BAGS_OK;
    BAGI_TRY(bagi_file_attach(bag, dir, name, BAGI_BLOBS, err));
    if (search)
        BAGI_TRY(bagi_file_size(bag->env, blobs->handle, blobs->path, &before, err));
    *split = search || bag_options->split;
    if (*split)
        code = bagi_file_attach(bag, dir, name, BAGI_ENDS, err);
    if (search && code == BAGS_ERROR_MISSING) {
        bagi_file_close(bag, index);
        *split = false;
        code = BAGS_OK;
    }
    BAGI_TRY(code);
    /* Measure the blobs after the index, so that they cover it while a writer
     * appends. */
    if (*split)
        BAGI_TRY(bagi_file_map(bag, index, bag_options->no_mmap, err));
    BAGI_TRY(bagi_file_map(bag, blobs, bag_options->no_mmap, err));
    *moved = search && !*split && blobs->size != before;
    return BAGS_OK;
}

/* Determine a Bag's structure, and open its checksums if they are to be verified. */
BAGI_COLD static bags_code bagi_bag_try_open(bag_reader *bag, const bagi_dir *dir,
    const bagi_bag_options *bag_options, bool *moved, bags_error *err) {
    bool split = false, cache = bag_options->cache_index;
    BAGI_TRY(bagi_bag_attach(bag, dir, bag_options, &split, moved, err));
    if (*moved)
        return BAGS_OK;
    if (!split) {
        BAGI_TRY(bagi_bag_shape(bag, bag_options->allow_empty, err));
    } else {
        bags_code code = BAGS_OK;
        if (dir->standalone && !bag_options->unfinished)
            code = bagi_bag_shape(bag, false, err);
        if (code != BAGS_ERROR_CORRUPT) /* no table */
            BAGI_TRY(code);
        BAGI_TRY(bagi_bag_shape_split(bag, bag_options, err));
    }
    BAGI_TRY(bagi_bag_entries(bag, BAGI_ENDS, cache, err));
    if (!BAGI_CHECKSUMS || !bag_options->verify_checksums)
        return BAGS_OK;
    BAGI_TRY(bagi_crcs_open(bag, dir, bag_options, err));
    BAGI_TRY(bagi_crcs_check(bag, dir, bag_options, err));
    BAGI_TRY(bagi_bag_entries(bag, BAGI_CRCS, cache, err));
    return bagi_crcs_check_shard(
        bag->file[BAGI_CRCS].shown, &bag->trailer, &bag_options->record, err);
}

/*
 * Open a Bag; free it with bagi_bag_free. Without `files`, its files stay open. A
 * standalone Bag may change while being opened, because its writer removes the index on
 * finishing. In that case everything is opened again.
 */
BAGI_COLD static bags_code bagi_bag_open(const bagi_dir *dir,
    const bagi_bag_options *bag_options, bagi_files *files, bag_reader **out,
    bags_error *err) {
    const bagi_env *env = dir->env;
    bool moved;
    bags_error why;
    bags_code code;
    bagi_bag_expect(dir, bag_options);
    do {
        moved = false;
        bag_reader *bag = (bag_reader *)bagi_alloc(&env->memory, sizeof *bag, err);
        if (!bag)
            return BAGS_ERROR_MEMORY;
        bagi_file *blobs = &bag->file[BAGI_BLOBS], *index = &bag->file[BAGI_ENDS];
        bag->env = env;
        bag->files = files;
        bag->layout = BAGI_SPLIT;
        blobs->grows = index->grows = bag_options->grows;
        code = bagi_bag_try_open(bag, dir, bag_options, &moved, &why);
        if (blobs->path)
            code = bagi_check_found(
                env, blobs->path, bag_options->record.identity, code, &why);
        /* If data contradicts the index, it may have changed since it was measured. */
        uint64_t now = index->size;
        if (code == BAGS_ERROR_CORRUPT && dir->standalone && index->handle)
            moved = env->io.size(env->io.user, index->handle, &now) == 0 &&
                    now != index->size;
        if (code || moved) {
            bagi_bag_free(bag);
        } else {
            bagi_bag_ready(bag, bag_options);
            *out = bag;
        }
    } while (moved);
    if (code)
        *err = why;
    return code;
}

/* ---- prefetches ahead of opening ----
 *
 * To open a Bag on the disk and to read a blob is a chain of reads that wait for each
 * other: the end of the file, its table, the blob. A prefetch requests these bytes of
 * several Bags together:
 *
 *     open all     files        the system reads inodes
 *     request all  ends         bagi_prefetch_end
 *     request all  tables       bagi_prefetch_entries, when the ends are known
 *     request all  blobs        bagi_prefetch_blob, when the entries are known
 *
 * The Bags are opened and read afterwards, as always, and find most bytes in memory. A
 * request or a read that fails is ignored, and a wrong guess costs a request. */

enum { BAGI_PREFETCHES = 16 };                  /* most files that are open together */
#define BAGI_PREFETCH_END ((uint64_t)16 * 1024) /* bytes requested of a file's end */

/* A file of a directory. */
typedef struct bagi_prefetch {
    const bags_io *io;
    void *handle; /* NULL: not open */
    uint64_t size;
    uint64_t table; /* its offset; the size if unknown */
    uint64_t blob;  /* will be read; UINT64_MAX: unknown */
} bagi_prefetch;

/* Open a file on a disk. It stays closed if it is missing or too many files are open.
 * To be closed, even after a failure. */
BAGI_COLD static bags_code bagi_prefetch_open(const bagi_dir *dir, const char *name,
    const char *suffix, bagi_prefetch *file, bags_error *err) {
    const bagi_env *env = dir->env;
    const char *path = bagi_dir_path(dir, name, suffix);
    memset(file, 0, sizeof *file);
    file->io = &env->io;
    file->blob = UINT64_MAX;
    if (env->io.expect || !env->io.advise || !env->io.map)
        return BAGS_OK;
    int error = env->io.open(env->io.user, path, BAGS_IO_READ, &file->handle);
    if (error)
        file->handle = NULL;
    if (error == ENOENT || error == EMFILE || error == ENFILE)
        return BAGS_OK;
    BAGI_TRY(bagi_fail_io(env, error, path, "open", err));
    BAGI_TRY(bagi_file_size(env, file->handle, path, &file->size, err));
    file->table = file->size;
    return BAGS_OK;
}

BAGI_COLD static void bagi_prefetch_close(const bagi_prefetch *file) {
    if (file->handle)
        (void)file->io->close(file->io->user, file->handle);
}

/* True if the last page of the file is on the disk. */
BAGI_COLD static bool bagi_prefetch_is_cold(const bagi_prefetch *file) {
    const bags_io *io = file->io;
    const void *map = NULL;
    size_t size = 0;
    if (file->size == 0 || !bagi_size(file->size, &size) ||
        io->map(io->user, file->handle, size, &map))
        return false;
    bool cold = !bagi_is_resident((const unsigned char *)map + size - 1, 1);
    (void)io->unmap(io->user, map, size);
    return cold;
}

/* Request bytes, as far as the file has them. */
BAGI_COLD static void bagi_prefetch_request(
    const bagi_prefetch *file, uint64_t start, uint64_t size) {
    size = BAGI_MIN(size, file->size - BAGI_MIN(start, file->size));
    if (size > 0)
        (void)file->io->advise(
            file->io->user, file->handle, NULL, start, size, BAGS_ADVICE_SOON);
}

/* Request the end of the file. */
BAGI_COLD static void bagi_prefetch_end(const bagi_prefetch *file) {
    uint64_t size = BAGI_MIN(file->size, BAGI_PREFETCH_END);
    bagi_prefetch_request(file, file->size - size, size);
}

/* Read one or two numbers. */
BAGI_COLD static bool bagi_prefetch_read(
    const bagi_prefetch *file, uint64_t offset, uint64_t *numbers, size_t count) {
    const bags_io *io = file->io;
    unsigned char bytes[16];
    size_t done = 0;
    if (offset > file->size || file->size - offset < 8 * count ||
        io->read_at(io->user, file->handle, offset, bytes, 8 * count, &done) ||
        done < 8 * count)
        return false;
    for (size_t i = 0; i < count; i++)
        numbers[i] = bagi_load_u64(bytes + 8 * i);
    return true;
}

/* Request the first entry of the table, needed for opening, and the blob's entries. */
BAGI_COLD static void bagi_prefetch_entries(bagi_prefetch *file) {
    if (file->size < 8 || !bagi_prefetch_read(file, file->size - 8, &file->table, 1) ||
        file->table > file->size - 8)
        file->table = file->size;
    bagi_prefetch_request(file, file->table, 8);
    if (file->blob < file->size / 8)
        bagi_prefetch_request(file, file->table + 8 * file->blob, 16);
}

/* Request the blob. */
BAGI_COLD static void bagi_prefetch_blob(const bagi_prefetch *file) {
    uint64_t ends[2];
    if (file->blob < file->size / 8 &&
        bagi_prefetch_read(file, file->table + 8 * file->blob, ends, 2) &&
        ends[0] < ends[1] && ends[1] <= file->table)
        bagi_prefetch_request(file, ends[0], ends[1] - ends[0]);
}

/* A prefix of a Bag's blobs: their number, and the end of the last one. */
typedef struct bagi_extent {
    uint64_t length, end;
} bagi_extent;

/* The size that a Bag's file has with only these blobs. */
static uint64_t bagi_extent_size(bagi_extent extent, int which) {
    return which == BAGI_BLOBS ? extent.end : extent.length * bagi_entry_size[which];
}

/* Forget the blobs after this prefix. Returns the number of bytes that follow it in the
 * files. */
static uint64_t bagi_bag_trim(bag_reader *bag, bagi_extent extent) {
    uint64_t trailing = 0;
    for (int i = 0; i < BAGI_FILES; i++)
        if (bag->file[i].path)
            trailing += bag->file[i].size - bagi_extent_size(extent, i);
    bag->length = extent.length;
    bag->limit = extent.end;
    if (!bag->file[BAGI_BLOBS].map)
        bag->file[BAGI_BLOBS].size = extent.end;
    return trailing;
}

/* ========================================================================
 * >>fetch
 * Reads the blobs that a caller requests, in any order. If a Bag is v1 and mapped,
 * bagi_mapped_get finds a blob with two loads. Every other read is a list of spans;
 * each span is a run of consecutive blobs of one Bag, with the position of the first
 * among the results. First, all table entries not in memory are read, and CRCs to be
 * compared; then the entries are checked; then the blobs are read in the same way. The
 * buffer is sized once per step. To prefetch, the same list is passed to the system as
 * advice. A hook that reads many ranges at once receives all ranges of a step in one
 * call.
 * ====================================================================== */

/* Describe an invalid blob entry. */
BAGI_COLD static bags_code bagi_bag_fail_bounds(const bag_reader *bag, uint64_t index,
    uint64_t start, uint64_t stop, bags_error *err) {
    const char *path = bag->file[BAGI_BLOBS].shown;
    if (stop > bag->limit)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: blob %" PRIu64 ": end offset out of range (%" PRIu64 ", %s %" PRIu64
            ")",
            path, index, stop, bagi_is_split(bag) ? "data ends at" : "table starts at",
            bag->limit);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: blob %" PRIu64 ": invalid range (start %" PRIu64 " > end %" PRIu64 ")",
        path, index, start, stop);
}

/* Compare consecutive blobs, with bytes starting at `data` and ends in order, with
 * their checksums. */
BAGI_NOINLINE static bags_code bagi_crcs_compare(const bag_reader *bag, uint64_t index,
    uint64_t count, const unsigned char *ends, const unsigned char *crcs,
    const unsigned char *data, bags_error *err) {
    uint64_t start = index ? bagi_load_u64(ends - 8) : 0;
    for (uint64_t i = 0; i < count; i++) {
        size_t size = (size_t)(bagi_load_u64(ends + 8 * i) - start);
        uint32_t stored = bagi_load_u32(crcs + 4 * i);
        uint32_t computed = bags_crc32c(0, data, size);
        if (stored != computed)
            return bagi_crcs_fail(bag, index + i, computed, stored, err);
        data += size;
        start += size;
    }
    return BAGS_OK;
}

/* ---- blobs on the disk ----
 *
 * If a page of a map is touched, the system reads many pages around it. This helps only
 * if blobs are read in order. Every other read of a cold Bag therefore requests its
 * exact bytes before it touches them: first table entries, then blobs. */

/* True if a read of a Bag requests its bytes. */
static bool bagi_bag_requests(const bag_reader *bag, uint64_t index) {
    void *expected = (void *)(uintptr_t)index;
    return bag->cold && BAGI_LENGTH(bag->mapped.length) == 0 &&
           (bag->random || BAGI_LOAD(&bag->next) != expected);
}

/* Called when the blobs before this one have been read. */
static void bagi_bag_follow(const bag_reader *bag, uint64_t index) {
    if (bag->cold)
        BAGI_STORE(&((bag_reader *)bagi_mutable(bag))->next, (void *)(uintptr_t)index);
}

/* Request bytes of a map, unless they are in memory. If they were 4,096 times in
 * succession, bagi_mapped_get reads the Bag from now on. */
BAGI_NOINLINE static void bagi_bag_request(
    const bag_reader *of, const bagi_file *file, uint64_t start, uint64_t size) {
    bag_reader *bag = (bag_reader *)bagi_mutable(of);
    const unsigned char *data = file->map + start;
    if (size == 0)
        return;
    if (!bagi_is_resident(data, size)) {
        bagi_file_advise(bag, file, start, size, BAGS_ADVICE_SOON);
        (void)BAGI_ADD(&bag->resident, -BAGI_ADD(&bag->resident, 0));
    } else if (BAGI_ADD(&bag->resident, 1) == 4096 && !bag->random && !bag->verify) {
#ifdef BAGI_SET_LENGTH
        BAGI_SET_LENGTH(bag->mapped.length, bag->mapped_length);
        if (bag->touch)
            BAGI_SET_LENGTH(bag->touch_length, bag->mapped_length);
#endif
    }
}

typedef struct bagi_span {
    const bag_reader *bag;
    uint64_t first, count; /* blobs; count > 0 */
    size_t place;
    uint64_t offset, size; /* the part of its only blob; otherwise 0, UINT64_MAX */
    uint64_t start, stop;  /* byte range in the file being read */
    size_t at[BAGI_FILES]; /* offset in the buffer of the bytes read from each file */
} bagi_span;

/* The list's bytes per span: after the spans come the ranges to read, at most one per
 * span, and then these ranges' Bags. */
#define BAGI_SPAN_SIZE (sizeof(bagi_span) + sizeof(bags_io_read) + sizeof(bag_reader *))

typedef struct bagi_fetch {
    bags_buffer *list; /* the spans; it does not grow once all are added */
    size_t count;
    bags_buffer *data; /* the bytes read so far, `used` of them; it may move */
    size_t used;
    bool advise; /* request the blobs and return without waiting */
    bool apart;  /* each blob has a span */
} bagi_fetch;

static bagi_span *bagi_fetch_spans(const bagi_fetch *fetch) {
    return (bagi_span *)(void *)fetch->list->data;
}

/* Add a span, or extend the last one. */
static bags_code bagi_fetch_add(bagi_fetch *fetch, const bag_reader *bag,
    uint64_t first, uint64_t count, size_t place, bags_error *err) {
    if (count == 0)
        return BAGS_OK;
    if (fetch->count && !fetch->apart) {
        bagi_span *last = &bagi_fetch_spans(fetch)[fetch->count - 1];
        if (last->bag == bag && first == last->first + last->count &&
            place == last->place + last->count) {
            last->count += count;
            return BAGS_OK;
        }
    }
    BAGI_TRY(
        bags_buffer_reserve(fetch->list, (fetch->count + 1) * BAGI_SPAN_SIZE, err));
    bagi_span *span = &bagi_fetch_spans(fetch)[fetch->count++];
    memset(span, 0, sizeof *span);
    span->bag = bag;
    span->first = first;
    span->count = count;
    span->place = place;
    span->size = UINT64_MAX;
    return BAGS_OK;
}

/* Sort by position in the files, so that neighbours are read at once. */
static int bagi_span_order(const void *a, const void *b) {
    const bagi_span *x = (const bagi_span *)a, *y = (const bagi_span *)b;
    if (x->bag != y->bag)
        return (uintptr_t)x->bag < (uintptr_t)y->bag ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* A remote read is valid only if the shard is checked afterwards: announce the check,
 * read or request, then check what was read. Refs are checked together with the blobs
 * they refer to. */
BAGI_COLD static bags_code bagi_fetch_check(
    const bag_reader **bags, size_t count, bool announce, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < count && !code; i++) {
        const bag_reader *bag = bags[i];
        if (!bag->record || bag->is_refs || BAGI_LOAD(&bag->checked))
            continue;
        code = bagi_check_record(
            bag->env, bag->file[BAGI_BLOBS].path, bag->record, announce, err);
        if (!code && !announce)
            BAGI_STORE(&((bag_reader *)bagi_mutable(bag))->checked, bagi_mutable(bag));
    }
    return code;
}

/* One step of a fetch: ranges to read or request from one kind of file of the Bags. */
typedef struct bagi_step {
    int which;
    bool request;
    bags_io_read *reads; /* `count` ranges, and their Bags: see BAGI_SPAN_SIZE */
    const bag_reader **bags;
    size_t count;
    const bag_reader *any; /* a Bag that is not in memory; NULL: nothing to read */
    uint64_t total;        /* bytes */
} bagi_step;

/* Collect the ranges start .. stop of all spans that are not in memory. Adjacent ranges
 * are merged; so are requests for ranges of a map with a small gap between them. If a
 * batch needs a part of most blocks of a table or of refs.bag, it requests whole
 * blocks: fewer requests, and the next batch finds more in memory. */
static void bagi_fetch_collect(const bagi_fetch *fetch, bagi_step *step) {
    const uint64_t block_size = 65536;
    const uint64_t gap = 8192; /* most bytes between parts that are requested as one */
    int which = step->which;
    bool batch = fetch->count >= 16; /* fewer spans rarely share a block */
    bagi_span *span = bagi_fetch_spans(fetch);
    uint64_t end = 0;
    for (size_t i = 0; i < fetch->count; i++, span++) {
        const bag_reader *bag = span->bag;
        const bagi_file *file = bagi_bag_file(bag, which);
        uint64_t first = span->first, start = span->start, stop = span->stop;
        if (bag->in_memory[which]) {
            uint64_t all = which == BAGI_ENDS ? 8 * bag->length : bag->limit;
            bool dense = batch && (which == BAGI_ENDS || bag->is_refs) &&
                         all / fetch->count < block_size;
            uint64_t block = dense ? block_size : 1;
            start -= start % block;
            for (;; i++, span++) {
                stop = BAGI_MIN(stop + (block - 1 - (stop - 1) % block), file->size);
                if (i + 1 == fetch->count || span[1].bag != bag ||
                    span[1].start > stop + gap)
                    break;
                stop = BAGI_MAX(stop, span[1].stop);
            }
            if (fetch->advise && file->map)
                bagi_file_advise(bag, file, start, stop - start, BAGS_ADVICE_SOON);
            else if (file->map && bagi_bag_requests(bag, first))
                bagi_bag_request(bag, file, start, stop - start);
            continue;
        }
        step->any = bag;
        span->at[which] = fetch->used + (size_t)step->total;
        if (start == stop)
            continue;
        size_t last = step->count - 1;
        if (step->count == 0 || step->bags[last] != bag || start > end ||
            start < step->reads[last].offset) {
            last = step->count++;
            memset(&step->reads[last], 0, sizeof *step->reads);
            step->reads[last].offset = end = start;
            step->bags[last] = bag;
        }
        span->at[which] -= (size_t)(end - start);
        if (stop > end) {
            uint64_t more = stop - end, most = UINT64_MAX - step->total;
            step->total += BAGI_MIN(more, most);
            step->reads[last].size += (size_t)more;
            end = stop;
        }
    }
}

/* Read the ranges, or request them. Files passed to read_many are pinned; the caller
 * unpins them. That hook reports no failure, so missing bytes are read again. */
static bags_code bagi_fetch_read(const bagi_step *step, bags_error *err) {
    const bags_io *io = &step->any->env->io;
    bool check = io->expect && step->which == BAGI_BLOBS;
    for (size_t i = 0; i < step->count; i++) {
        const bag_reader *bag = step->bags[i];
        const bagi_file *file = bagi_bag_file(bag, step->which);
        bags_io_read *read = &step->reads[i];
        if (io->read_many)
            BAGI_TRY(bagi_file_pin(bag, file, &read->file, err));
        else if (step->request)
            bagi_file_advise(bag, file, read->offset, read->size, BAGS_ADVICE_SOON);
    }
    if (check)
        BAGI_TRY(bagi_fetch_check(step->bags, step->count, true, err));
    if (io->read_many)
        io->read_many(io->user, step->reads, step->count);
    for (size_t i = 0; i < step->count && !step->request; i++) {
        const bag_reader *bag = step->bags[i];
        const bags_io_read *read = &step->reads[i];
        size_t done = BAGI_MIN(read->done, read->size);
        BAGI_TRY(
            bagi_file_read(bag, bagi_bag_file(bag, step->which), read->offset + done,
                (unsigned char *)read->data + done, read->size - done, err));
    }
    if (!check || step->request)
        return BAGS_OK;
    return bagi_fetch_check(step->bags, step->count, false, err);
}

/* One step of a fetch: read the ranges start .. stop of all spans, or request them. */
static bags_code bagi_fetch_transfer(bagi_fetch *fetch, int which, bags_error *err) {
    bagi_span *spans = bagi_fetch_spans(fetch);
    if (fetch->count == 0)
        return BAGS_OK;
    bags_io_read *reads = (bags_io_read *)(void *)(spans + fetch->count);
    const bag_reader **bags = (const bag_reader **)(void *)(reads + fetch->count);
    bagi_step step = {
        which, fetch->advise && which == BAGI_BLOBS, reads, bags, 0, NULL, 0};
    size_t size = 0;
    bagi_fetch_collect(fetch, &step);
    if (!step.any)
        return BAGS_OK;
    if (!step.request) {
        if (!bagi_size(step.total, &size) || size > SIZE_MAX / 2 - fetch->used)
            return bags_fail(err, BAGS_ERROR_LIMIT,
                "%s: blob %" PRIu64
                " and those requested with it are too large for the address "
                "space (%" PRIu64 " bytes)",
                step.any->file[BAGI_BLOBS].shown, spans->first, step.total);
        BAGI_TRY(
            bags_buffer_reserve(fetch->data, fetch->used + size + BAGI_SLACK, err));
    }
    for (size_t i = 0; i < step.count && !step.request; i++) {
        reads[i].data = fetch->data->data + fetch->used;
        fetch->used += reads[i].size;
    }
    bags_code code = bagi_fetch_read(&step, err);
    for (size_t i = 0; i < step.count; i++)
        if (reads[i].file)
            bagi_file_unpin(bags[i], bagi_bag_file(bags[i], which));
    return code;
}

/* The result of a fetch for a span. */
static const unsigned char *bagi_fetch_result(
    const bagi_fetch *fetch, const bagi_span *span, int which) {
    const unsigned char *in_memory = span->bag->in_memory[which];
    if (!in_memory)
        return fetch->data->data + span->at[which];
    return in_memory +
           (which == BAGI_BLOBS ? span->start : span->first * bagi_entry_size[which]);
}

/* Reduce a span, once its byte range in the file is known, to the requested part. A
 * blob's checksum covers all its bytes. */
static bags_code bagi_span_cut(bagi_span *span, bool verify, bags_error *err) {
    uint64_t all = span->stop - span->start, offset = BAGI_MIN(span->offset, all);
    uint64_t left = all - offset, size = BAGI_MIN(span->size, left);
    if (verify && size < all)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: blob %" PRIu64 ": a part (%" PRIu64 " bytes from byte %" PRIu64
            " of %" PRIu64
            ") cannot be verified; read the blob, or open without verify_checksums",
            span->bag->file[BAGI_BLOBS].shown, span->first, size, offset, all);
    span->start += offset;
    span->stop = span->start + size;
    return BAGS_OK;
}

/*
 * Run the fetch. Blob i of a span becomes items[place + i]. If items is NULL, get the
 * result with bagi_fetch_result. The steps: sort the spans; read their table entries
 * and CRCs; check the entries; read the blobs and compare them with the CRCs; set the
 * results.
 */
static bags_code bagi_fetch_run_all(
    bagi_fetch *fetch, bags_view *items, bags_error *err) {
    bagi_span *spans = bagi_fetch_spans(fetch), *span;
    size_t count = fetch->count, i = 1;
    bool verify = BAGI_CHECKSUMS && count && spans->bag->verify && !fetch->advise;
    while (i < count && bagi_span_order(&spans[i - 1], &spans[i]) <= 0)
        i++;
    if (i < count)
        qsort(spans, count, sizeof *spans, bagi_span_order);
    for (span = spans, i = 0; i < count; i++, span++) {
        const bag_reader *bag = span->bag;
        if (span->first >= bag->length || span->count > bag->length - span->first)
            return bags_prefix(err,
                bagi_fail_index(
                    "blob", BAGI_MAX(span->first, bag->length), bag->length, err),
                "%s: ", bag->file[BAGI_BLOBS].shown);
        span->start = bagi_bag_offset(bag, BAGI_ENDS, span->first);
        span->start -= span->first ? 8 : 0; /* include the preceding end */
        span->stop = bagi_bag_offset(bag, BAGI_ENDS, span->first + span->count);
    }
    BAGI_TRY(bagi_fetch_transfer(fetch, BAGI_ENDS, err));
    for (span = spans, i = 0; i < count; i++, span++) {
        span->at[BAGI_ENDS] += span->first ? 8 : 0;
        span->start = bagi_bag_offset(span->bag, BAGI_CRCS, span->first);
        span->stop = span->start + 4 * span->count;
    }
    if (verify)
        BAGI_TRY(bagi_fetch_transfer(fetch, BAGI_CRCS, err));
    /* Blobs of a valid table do not overlap. Checking this limits reads to the file
     * size. */
    uint64_t last_blob = 0, last_byte = 0; /* of a Bag's spans so far */
    for (span = spans, i = 0; i < count; i++, span++) {
        const bag_reader *bag = span->bag;
        const unsigned char *ends = bagi_fetch_result(fetch, span, BAGI_ENDS);
        uint64_t stop = span->first ? bagi_load_u64(ends - 8) : 0;
        span->start = stop;
        for (uint64_t k = 0; k < span->count; k++) {
            uint64_t start = stop;
            stop = bagi_load_u64(ends + 8 * k);
            if (BAGI_UNLIKELY(start > stop || stop > bag->limit))
                return bagi_bag_fail_bounds(bag, span->first + k, start, stop, err);
        }
        span->stop = stop;
        if (i == 0 || span[-1].bag != bag)
            last_blob = last_byte = 0;
        if (span->first >= last_blob && span->start < last_byte)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: blob %" PRIu64 ": overlaps earlier blobs (starts at %" PRIu64
                ", they end at %" PRIu64 ")",
                bag->file[BAGI_BLOBS].shown, span->first, span->start, last_byte);
        last_blob = BAGI_MAX(last_blob, span->first + span->count);
        last_byte = BAGI_MAX(last_byte, span->stop);
        BAGI_TRY(bagi_span_cut(span, verify, err));
    }
    BAGI_TRY(bagi_fetch_transfer(fetch, BAGI_BLOBS, err));
    if (fetch->advise)
        return BAGS_OK;
    for (span = spans, i = 0; i < count; i++, span++) {
        bagi_bag_follow(span->bag, span->first + span->count);
        if (verify)
            BAGI_TRY(bagi_crcs_compare(span->bag, span->first, span->count,
                bagi_fetch_result(fetch, span, BAGI_ENDS),
                bagi_fetch_result(fetch, span, BAGI_CRCS),
                bagi_fetch_result(fetch, span, BAGI_BLOBS), err));
    }
    for (span = spans, i = 0; i < count && items; i++, span++) {
        const unsigned char *ends = bagi_fetch_result(fetch, span, BAGI_ENDS);
        const unsigned char *data = bagi_fetch_result(fetch, span, BAGI_BLOBS);
        uint64_t start = span->start;
        for (uint64_t k = 0; k < span->count; k++) {
            uint64_t end = bagi_load_u64(ends + 8 * k),
                     stop = BAGI_MIN(end, span->stop);
            items[span->place + k].data = data + (start - span->start);
            items[span->place + k].size = (size_t)(stop - start);
            start = stop;
        }
    }
    return BAGS_OK;
}

/* Fetch consecutive blobs, at least one. */
static bags_code bagi_fetch_one(const bag_reader *bag, uint64_t first, uint64_t count,
    bags_buffer *scratch, bag_blobs *out, bags_error *err) {
    uint64_t list[(BAGI_SPAN_SIZE + 7) / 8];
    bags_buffer one = {(unsigned char *)list, sizeof list, NULL, NULL};
    bagi_fetch fetch = {&one, 0, scratch, 0, false, false};
    bagi_buffer_adopt(scratch, &bag->env->memory);
    BAGI_TRY(bagi_fetch_add(&fetch, bag, first, count, 0, err));
    BAGI_TRY(bagi_fetch_run_all(&fetch, NULL, err));
    const bagi_span *span = bagi_fetch_spans(&fetch);
    out->data = bagi_fetch_result(&fetch, span, BAGI_BLOBS);
    out->size = (size_t)(span->stop - span->start);
    out->length = (size_t)count;
    out->ends = bagi_fetch_result(&fetch, span, BAGI_ENDS);
    out->start = span->start;
    return BAGS_OK;
}

/* Not inline, and without an output parameter: see >>bag. The fetch repeats the checks
 * of the mapped read, because the fast path does not report the cause of a failure. */
BAGS_API BAGI_NOINLINE bags_view bagi_bag_get(
    const bag_reader *reader, uint64_t index, bags_buffer *scratch, bags_error *err) {
    BAGI_ERR(err);
    bag_blobs range = BAGI_ZERO;
    bags_view blob = {NULL, 0};
    bags_code code = BAGS_OK;
    bool mapped = reader && index < reader->mapped_length;
    bool request = mapped && bagi_bag_requests(reader, index);
    const bagi_file *file = reader ? &reader->file[BAGI_BLOBS] : NULL;
    if (request)
        bagi_bag_request(
            reader, file, bagi_bag_offset(reader, BAGI_ENDS, index) - 8, 16);
    if (!reader || !scratch) {
        code = bagi_fail_null(err);
    } else if (mapped && bagi_mapped_blob(&reader->mapped, index, &blob)) {
        if (request)
            bagi_bag_request(
                reader, file, (uint64_t)(blob.data - file->map), blob.size);
        bagi_bag_follow(reader, index + 1);
        if (BAGI_CHECKSUMS && reader->verify)
            code = bagi_crcs_compare(reader, index, 1,
                reader->mapped.table + 8 * (index + 1),
                reader->in_memory[BAGI_CRCS] + 4 * index, blob.data, err);
    } else {
        code = bagi_fetch_one(reader, index, 1, scratch, &range, err);
        blob.data = range.data;
        blob.size = range.size;
    }
    if (code) {
        blob.data = NULL;
        blob.size = (size_t)code;
    }
    return blob;
}

BAGS_API bags_code bag_reader_get_range(const bag_reader *reader, uint64_t start,
    uint64_t stop, bags_buffer *scratch, bag_blobs *out, bags_error *err) {
    BAGI_BEGIN(reader && scratch && out, err);
    if (start > stop)
        return bags_prefix(err, bagi_fail_range(start, stop, err),
            "%s: ", reader->file[BAGI_BLOBS].shown);
    stop = BAGI_MIN(stop, reader->length);
    if (start < stop)
        return bagi_fetch_one(reader, start, stop - start, scratch, out, err);
    memset(out, 0, sizeof *out);
    return BAGS_OK;
}

/* Every index starts a new span unless it follows the previous index. */
BAGS_API bags_code bag_reader_get_many(const bag_reader *reader,
    const uint64_t *indices, size_t count, bags_buffer *scratch, bags_view *out,
    bags_error *err) {
    BAGI_BEGIN(reader && scratch && ((indices && out) || !count), err);
    bags_buffer list = bags_buffer_of(&reader->env->memory);
    bagi_fetch fetch = {&list, 0, scratch, 0, false, false};
    bags_code code = BAGS_OK;
    bagi_buffer_adopt(scratch, &reader->env->memory);
    for (size_t i = 0; i < count && !code; i++)
        code = bagi_fetch_add(&fetch, reader, indices[i], 1, i, err);
    if (!code)
        code = bagi_fetch_run_all(&fetch, out, err);
    bags_buffer_free(&list);
    return code;
}

/* Read the CRCs or the ends of blobs to `data`, or find them in memory. */
static bags_code bagi_bag_read_entries(const bag_reader *bag, int which, uint64_t start,
    uint64_t count, unsigned char *data, const unsigned char **out, bags_error *err) {
    const size_t size = bagi_entry_size[which];
    const bagi_file *file = bagi_bag_file(bag, which);
    *out = data;
    if (bag->in_memory[which]) {
        *out = bag->in_memory[which] + start * size;
        return BAGS_OK;
    }
    return bagi_file_read(
        bag, file, bagi_bag_offset(bag, which, start), data, (size_t)count * size, err);
}

BAGS_API bags_code bag_reader_checksums(const bag_reader *reader, uint64_t start,
    uint64_t stop, bags_buffer *scratch, bags_checksums *out, bags_error *err) {
    BAGI_BEGIN(reader && scratch && out, err);
    bags_checksums found = BAGI_ZERO;
    size_t size = 0;
    if (!BAGI_CHECKSUMS || !reader->verify)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: opened without verify_checksums", reader->file[BAGI_BLOBS].shown);
    if (start > stop)
        return bags_prefix(err, bagi_fail_range(start, stop, err),
            "%s: ", reader->file[BAGI_BLOBS].shown);
    stop = BAGI_MIN(stop, reader->length);
    uint64_t count = start < stop ? stop - start : 0, last = start ? 1 : 0;
    if (!bagi_size(12 * count + 8, &size))
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: %" PRIu64 " checksums are too large for the address space",
            reader->file[BAGI_BLOBS].shown, count);
    memset(out, 0, sizeof *out);
    if (count == 0)
        return BAGS_OK;
    bagi_buffer_adopt(scratch, &reader->env->memory);
    if (!reader->in_memory[BAGI_ENDS] || !reader->in_memory[BAGI_CRCS])
        BAGI_TRY(bags_buffer_reserve(scratch, size, err));
    BAGI_TRY(bagi_bag_read_entries(reader, BAGI_ENDS, start - last, count + last,
        scratch->data, &found.ends, err));
    BAGI_TRY(bagi_bag_read_entries(reader, BAGI_CRCS, start, count,
        scratch->data ? scratch->data + 8 * (count + last) : NULL, &found.crcs, err));
    found.start = last ? bagi_load_u64(found.ends) : 0;
    found.ends += 8 * last;
    found.length = (size_t)count;
    uint64_t end = found.start;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t next = bagi_load_u64(found.ends + 8 * i);
        if (BAGI_UNLIKELY(end > next || next > reader->limit))
            return bagi_bag_fail_bounds(reader, start + i, end, next, err);
        end = next;
    }
    *out = found;
    return BAGS_OK;
}

/* ========================================================================
 * >>cursor
 * A cursor reads a Bag's blobs from front to back in a fixed amount of memory, for
 * recovery, verify and checksum. Data that is not mapped or cached passes through
 * windows of a fixed size. An invalid entry is reported once. If it is outside the
 * data, the next blob is measured from the last valid end. If it is smaller than the
 * previous entry, either may be wrong, and the next blob is measured from it. The bytes
 * of a blob next to an invalid entry are unusable, as are overlapping blobs once they
 * exceed twice the data's size.
 * ====================================================================== */

#define BAGI_CURSOR_ENTRIES ((size_t)4096)
#define BAGI_CURSOR_WINDOW (8 * (BAGI_CURSOR_ENTRIES + 1) + 4 * BAGI_CURSOR_ENTRIES)
#define BAGI_CURSOR_BYTES ((size_t)64 << 10)

typedef struct bagi_cursor {
    const bag_reader *bag;
    uint64_t next, last;  /* the remaining blobs: next <= i < last */
    uint64_t index;       /* the current blob: */
    uint64_t start, stop; /* its byte range */
    bool valid;           /* the current blob's end is in order */
    bool usable;          /* so is its start: its bytes can be read */
    bool overlap;         /* blobs overlap, and not all are usable */
    bool outside;         /* the previous entry is outside the data */
    uint64_t budget;      /* bytes that may still be usable */
    uint64_t block;       /* the window's first entry */
    uint64_t loaded;      /* the window has the next entry if next < loaded */
    const unsigned char *ends, *crcs;
    unsigned char *window; /* holds ends and CRCs if they are read */
    bags_buffer bytes;     /* the window of bytes, at .. at + held */
    uint64_t at;
    size_t held;
    uint32_t table_crc, crcs_crc; /* running CRCs of the table and of the CRCs */
    uint64_t read;                /* bytes read so far */
} bagi_cursor;

/* Walk over the blobs start <= i < stop. Close it with bagi_cursor_close. */
static void bagi_cursor_open(
    bagi_cursor *cursor, const bag_reader *bag, uint64_t start, uint64_t stop) {
    static const unsigned char zero[8] = {0};
    memset(cursor, 0, sizeof *cursor);
    cursor->bag = bag;
    cursor->next = cursor->loaded = start;
    cursor->last = stop;
    cursor->usable = cursor->valid = true;
    cursor->budget = bag->limit > UINT64_MAX / 2 ? UINT64_MAX : 2 * bag->limit;
    if (bagi_has_zero(bag))
        cursor->table_crc = bags_crc32c(0, zero, sizeof zero);
    bagi_buffer_adopt(&cursor->bytes, &bag->env->memory);
}

/* A cursor of zeros (never opened) is accepted. */
static void bagi_cursor_close(bagi_cursor *cursor) {
    if (!cursor->bag)
        return;
    bagi_free(&cursor->bag->env->memory, cursor->window, BAGI_CURSOR_WINDOW);
    bags_buffer_free(&cursor->bytes);
}

/* Get the Bag's next entries; they are read to an offset in the window, together with
 * the end before them. */
static bags_code bagi_cursor_load(const bagi_cursor *cursor, int which, size_t at,
    uint64_t count, const unsigned char **out, bags_error *err) {
    const bag_reader *bag = cursor->bag;
    size_t size = bagi_entry_size[which];
    size_t before = which == BAGI_ENDS && cursor->next ? 8 : 0;
    if (bag->in_memory[which]) {
        *out = bag->in_memory[which] + size * cursor->next;
        return BAGS_OK;
    }
    if (!cursor->window)
        return BAGS_ERROR_MEMORY;
    *out = cursor->window + at;
    return bagi_file_read(bag, bagi_bag_file(bag, which),
        bagi_bag_offset(bag, which, cursor->next) - before,
        cursor->window + at - before, (size_t)count * size + before, err);
}

/* Advance to the next blob; there must be one. If its entry is not in the window, read
 * the next window of entries first. */
static bags_code bagi_cursor_next(bagi_cursor *cursor, bags_error *err) {
    const bag_reader *bag = cursor->bag;
    if (cursor->next == cursor->loaded) {
        uint64_t count = BAGI_MIN(cursor->last - cursor->next, BAGI_CURSOR_ENTRIES);
        /* A journal may have fewer CRCs. */
        uint64_t crcs = BAGI_CHECKSUMS ? bag->trailer.length : 0;
        crcs = crcs > cursor->next ? BAGI_MIN(crcs - cursor->next, count) : 0;
        if (!cursor->window &&
            !(bag->in_memory[BAGI_ENDS] && (!crcs || bag->in_memory[BAGI_CRCS])))
            cursor->window = (unsigned char *)bagi_alloc_raw(
                &bag->env->memory, BAGI_CURSOR_WINDOW, err);
        BAGI_TRY(bagi_cursor_load(cursor, BAGI_ENDS, 8, count, &cursor->ends, err));
        if (crcs)
            BAGI_TRY(bagi_cursor_load(cursor, BAGI_CRCS, 8 + 8 * BAGI_CURSOR_ENTRIES,
                crcs, &cursor->crcs, err));
        cursor->crcs_crc =
            bags_crc32c(cursor->crcs_crc, cursor->crcs, (size_t)crcs * 4);
        if (!cursor->block && cursor->next) /* it does not start at blob 0 */
            cursor->stop = bagi_load_u64(cursor->ends - 8);
        cursor->read += count * 8;
        cursor->table_crc =
            bags_crc32c(cursor->table_crc, cursor->ends, (size_t)count * 8);
        cursor->block = cursor->next;
        cursor->loaded = cursor->next + count;
    }
    bool before = cursor->valid;
    if (!cursor->outside)
        cursor->start = cursor->stop;
    cursor->index = cursor->next++;
    cursor->stop = bagi_load_u64(cursor->ends + 8 * (cursor->index - cursor->block));
    cursor->outside = cursor->stop > bag->limit;
    cursor->valid = !cursor->outside && cursor->start <= cursor->stop;
    cursor->usable = before && cursor->valid;
    if (cursor->usable && cursor->stop - cursor->start > cursor->budget) {
        cursor->usable = false;
        cursor->overlap = true;
    } else if (cursor->usable) {
        cursor->budget -= cursor->stop - cursor->start;
    }
    return BAGS_OK;
}

/* A view of bytes of the current blob, valid until the next call. */
static bags_code bagi_cursor_bytes(bagi_cursor *cursor, uint64_t at, size_t size,
    const unsigned char **data, bags_error *err) {
    const bag_reader *bag = cursor->bag;
    if (bag->in_memory[BAGI_BLOBS]) {
        *data = bag->in_memory[BAGI_BLOBS] + at;
        return BAGS_OK;
    }
    if (!cursor->bytes.data || at < cursor->at ||
        at + size > cursor->at + cursor->held) {
        uint64_t rest = bag->limit - at;
        size_t window = BAGI_MAX(size, BAGI_CURSOR_BYTES);
        if (at < cursor->at || at > cursor->at + cursor->held)
            window = size; /* reading more only pays off if blobs are in order */
        window = (size_t)BAGI_MIN(rest, window);
        cursor->held = 0;
        BAGI_TRY(bags_buffer_reserve(&cursor->bytes, window + BAGI_SLACK, err));
        BAGI_TRY(bagi_file_read(
            bag, &bag->file[BAGI_BLOBS], at, cursor->bytes.data, window, err));
        cursor->read += window;
        cursor->at = at;
        cursor->held = window;
    }
    *data = cursor->bytes.data + (at - cursor->at);
    return BAGS_OK;
}

/* The CRC of the current blob. It must be usable. */
static bags_code bagi_cursor_crc(bagi_cursor *cursor, uint32_t *crc, bags_error *err) {
    const unsigned char *data = NULL;
    *crc = 0;
    for (uint64_t at = cursor->start; at < cursor->stop;) {
        size_t size = (size_t)BAGI_MIN(cursor->stop - at, BAGI_CURSOR_BYTES);
        BAGI_TRY(bagi_cursor_bytes(cursor, at, size, &data, err));
        *crc = bags_crc32c(*crc, data, size);
        at += size;
    }
    return BAGS_OK;
}

/* The stored CRC of the current blob. */
static uint32_t bagi_cursor_stored(const bagi_cursor *cursor) {
    return bagi_load_u32(cursor->crcs + 4 * (cursor->index - cursor->block));
}

/* Parse the current blob of refs.bag, if usable, into *row. Read at most one byte more
 * than the largest valid row. */
static bags_code bagi_cursor_refs(bagi_cursor *cursor, const bags_type *types,
    size_t count, bags_ref *refs, bags_view *row, bool *valid, bags_error *err) {
    uint64_t most = bagi_refs_most(count) + 1;
    row->size = (size_t)BAGI_MIN(cursor->stop - cursor->start, most);
    bags_code code =
        bagi_cursor_bytes(cursor, cursor->start, row->size, &row->data, err);
    *valid = !code && bagi_refs_parse(*row, types, count, refs);
    return code;
}

/* Advance over `count` blobs of a journal if they are complete: present in the file
 * and, if checksums were opened, matching them. Otherwise *reason states why not. */
static bags_code bagi_cursor_complete(
    bagi_cursor *cursor, uint64_t count, const char **reason, bags_error *err) {
    const bag_reader *bag = cursor->bag;
    if (count > cursor->last - cursor->next) {
        *reason = "the journal ends before its blobs";
        return BAGS_OK;
    }
    for (uint64_t i = 0; i < count && !*reason; i++) {
        uint32_t computed = 0;
        BAGI_TRY(bagi_cursor_next(cursor, err));
        bool crc = BAGI_CHECKSUMS && bag->file[BAGI_CRCS].path != NULL;
        if (!cursor->valid) {
            *reason = cursor->outside ? "a blob is truncated" : "the journal decreases";
        } else if (crc && cursor->index >= bag->trailer.length) {
            *reason = "the checksums end before their blobs";
        } else if (crc) {
            BAGI_TRY(bagi_cursor_crc(cursor, &computed, err));
            if (bagi_cursor_stored(cursor) != computed)
                *reason = "a blob does not match its checksum";
        }
    }
    return BAGS_OK;
}

/* ---- the complete prefix of a journal ---- */

/* The result of a scan. */
typedef struct bagi_scan {
    uint64_t length;    /* complete datapoints, or blobs of a standalone Bag */
    uint64_t trailing;  /* bytes after them in all files */
    const char *reason; /* why the next one is incomplete; NULL: there is none */
    bool drafted;       /* the datapoint after the last one in refs has a draft */
    bool partial;       /* the draft is complete: the last datapoint of `length` */
    uint64_t items;     /* in that datapoint's sequences */
} bagi_scan;

/* A Bag being scanned, and its blobs that belong to complete datapoints. */
typedef struct bagi_scan_cursor {
    bagi_cursor cursor;
    bagi_extent complete;
} bagi_scan_cursor;

/* A scan of Bags: one per field (of these types), then refs. For a standalone Bag,
 * without fields, types is NULL, and its blobs count as the datapoints. */
typedef struct bagi_scanning {
    bag_reader **readers;
    const bags_type *types;
    size_t count;
    bagi_scan_cursor *bags; /* one per reader */
    bags_ref *refs;         /* of the row being examined */
} bagi_scanning;

/* Trim the Bags to the complete part, and count the bytes after it. */
static void bagi_scan_close(bagi_scanning *scan, bool trim, bagi_scan *found) {
    const bags_allocator *memory = &scan->readers[0]->env->memory;
    size_t count = scan->count;
    for (size_t i = 0; scan->bags && i <= count; i++) {
        if (trim)
            found->trailing += bagi_bag_trim(scan->readers[i], scan->bags[i].complete);
        bagi_cursor_close(&scan->bags[i].cursor);
    }
    bagi_free(memory, scan->bags, (count + 1) * sizeof *scan->bags);
    bagi_free(memory, scan->refs, count * sizeof *scan->refs);
}

/* Advance over the blobs of `refs` if they are in the files and match their checksums.
 * Otherwise *reason states why not. */
static bags_code bagi_scan_refs(
    bagi_scanning *scan, const char **reason, bags_error *err) {
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < scan->count && !code && !*reason; i++) {
        bagi_cursor *cursor = &scan->bags[i].cursor;
        bags_ref ref = scan->refs[i];
        /* Blobs before `next` were found complete: datapoints may share them. */
        uint64_t before = ref.count ? cursor->next - ref.first : 0;
        if (before > cursor->next)
            *reason = "refs.bag and a journal disagree";
        else if (before < ref.count)
            code = bagi_cursor_complete(cursor, ref.count - before, reason, err);
    }
    return code;
}

/* Record that the blobs passed by the cursors belong to complete datapoints. */
static void bagi_scan_keep(bagi_scanning *scan) {
    for (size_t i = 0; i <= scan->count; i++) {
        bagi_scan_cursor *bag = &scan->bags[i];
        if (bag->cursor.next > bag->complete.length) {
            bag->complete.length = bag->cursor.next;
            bag->complete.end = bag->cursor.stop;
        }
    }
}

/* Find the longest prefix of complete datapoints: their refs are valid, and their blobs
 * are in the files and match their checksums. End the scan with bagi_scan_close, even
 * after a failure. */
static bags_code bagi_scan_rows(bagi_scanning *scan, bag_reader **readers,
    const bags_type *types, size_t count, bagi_scan *found, bags_error *err) {
    const bags_allocator *memory = &readers[0]->env->memory;
    memset(found, 0, sizeof *found);
    scan->readers = readers;
    scan->types = types;
    scan->count = count;
    scan->bags = (bagi_scan_cursor *)bagi_alloc(
        memory, (count + 1) * sizeof(bagi_scan_cursor), err);
    scan->refs = (bags_ref *)bagi_alloc(memory, count * sizeof(bags_ref), err);
    if (!scan->bags || !scan->refs)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i <= count; i++)
        bagi_cursor_open(&scan->bags[i].cursor, readers[i], 0, readers[i]->length);
    bagi_cursor *refs = &scan->bags[count].cursor;
    for (; found->length < readers[count]->length; found->length++) {
        bags_view row;
        bool valid = true;
        BAGI_TRY(bagi_cursor_complete(refs, 1, &found->reason, err));
        if (!found->reason && types)
            BAGI_TRY(
                bagi_cursor_refs(refs, types, count, scan->refs, &row, &valid, err));
        if (!valid)
            found->reason = "a blob of refs.bag is damaged";
        if (!found->reason)
            BAGI_TRY(bagi_scan_refs(scan, &found->reason, err));
        if (found->reason)
            break;
        bagi_scan_keep(scan);
    }
    return BAGS_OK;
}

/* ========================================================================
 * >>bag-read
 * Standalone Bags: bag_reader_*, except the functions that read blobs (at the end of
 * >>fetch).
 * ====================================================================== */

/* Refuse a value that is not in the enum, or that the call never accepts. */
static bags_code bagi_check_unfinished(
    const char *path, bags_unfinished unfinished, int never, bags_error *err) {
    if ((unsigned)unfinished <= BAGS_UNFINISHED_READ && (int)unfinished != never)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: invalid option (unfinished %d)",
        bags_path_tail(path), (int)unfinished);
}

/* The environment of a standalone Bag. Its reader frees it. */
static bagi_env *bagi_env_new(const bags_env *from, bags_error *err) {
    bagi_env env = bagi_env_of(from);
    bagi_env *copy = (bagi_env *)bagi_alloc_raw(&env.memory, sizeof env, err);
    if (copy)
        *copy = env;
    return copy;
}

static void bagi_standalone_free(bagi_env *env, bag_reader *reader) {
    bags_allocator memory = env->memory;
    bagi_bag_free(reader);
    bagi_free(&memory, env, sizeof *env);
}

BAGS_API BAGI_COLD bag_reader *bag_reader_open(
    const char *path, const bag_reader_options *options, bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bag_reader_options, options);
    bool journal = options->unfinished == BAGS_UNFINISHED_READ;
    bagi_bag_options bag_options = bagi_bag_options_new();
    bagi_dir dir;
    bagi_scanning scan;
    bagi_scan found;
    bag_reader *reader = NULL;
    bagi_env *env = bagi_env_new(&options->env, err);
    if (!env)
        return NULL;
    bags_code code = bagi_dir_standalone(env, path, &dir, err);
    bag_options.no_mmap = options->no_mmap || journal; /* its writer may truncate it */
    bag_options.cache_index = options->cache_index || journal;
    bag_options.verify_checksums = options->verify_checksums;
    bag_options.allow_empty = options->allow_empty_file;
    bag_options.grows = bag_options.unfinished = journal;
    bag_options.no_read_ahead = options->no_read_ahead;
    if (!code)
        code =
            bagi_check_unfinished(path, options->unfinished, BAGS_UNFINISHED_SKIP, err);
    if (!code)
        code = bagi_check_checksums(path, options->verify_checksums, err);
    if (!code)
        code = bagi_bag_open(&dir, &bag_options, NULL, &reader, err);
    bagi_dir_free(&dir);
    if (!code && journal && bagi_is_split(reader)) {
        code = bagi_scan_rows(&scan, &reader, NULL, 0, &found, err);
        bagi_scan_close(&scan, !code, &found);
    }
    if (!code)
        return reader;
    bagi_standalone_free(env, reader);
    return NULL;
}

BAGS_API BAGI_COLD bag_reader *bag_reader_open_memory(
    const void *data, size_t size, const bag_reader_options *options, bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bag_reader_options, options);
    const bagi_bag_options bag_options = bagi_bag_options_new();
    if (!data && size > 0) {
        bagi_fail_null(err);
        return NULL;
    }
    if (options->verify_checksums) {
        bags_fail(err, BAGS_ERROR_ARGUMENT,
            "(memory): a Bag in memory has no checksums next to it");
        return NULL;
    }
    bagi_env *env = bagi_env_new(&options->env, err);
    if (!env)
        return NULL;
    bag_reader *reader = (bag_reader *)bagi_alloc(&env->memory, sizeof *reader, err);
    if (!reader) {
        bagi_standalone_free(env, NULL);
        return NULL;
    }
    bagi_file *file = &reader->file[BAGI_BLOBS];
    reader->env = env;
    file->path = bagi_print(&env->memory, err, "(memory)");
    file->shown = file->path;
    file->size = size;
    file->map = (const unsigned char *)data;
    bags_code code = file->path ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code)
        code = bagi_bag_shape(reader, options->allow_empty_file, err);
    if (!code)
        code = bagi_bag_entries(reader, BAGI_ENDS, false, err);
    if (!code)
        bagi_bag_ready(reader, &bag_options);
    file->map = NULL; /* the caller's memory: do not unmap it */
    if (!code)
        return reader;
    bagi_standalone_free(env, reader);
    return NULL;
}

BAGS_API BAGI_COLD void bag_reader_close(bag_reader *reader) {
    if (reader)
        bagi_standalone_free((bagi_env *)bagi_mutable(reader->env), reader);
}

BAGS_API uint64_t bag_reader_length(const bag_reader *reader) {
    return reader ? reader->length : 0;
}

BAGS_API uint64_t bag_reader_size(const bag_reader *reader) {
    if (!reader)
        return 0;
    return bagi_is_split(reader) ? reader->limit + reader->table + 8 * reader->length
                                 : reader->file[BAGI_BLOBS].size;
}

#ifndef BAGS_NO_WRITER
/* ========================================================================
 * >>bag-write
 * A Bag being written is an array of three streams: its blobs, their CRCs (optional),
 * and the journal of their ends. The journal becomes the table when the Bag is
 * finished. This section owns the buffers and the order in which they reach the system;
 * bag_writer_*, at the end of this section, and >>dataset-write call it.
 *
 *   - A bagi_writing keeps its streams' first failure; after it they do nothing, so
 *     callers need to check only once.
 *   - A journal entry reaches the system after its blob and the blob's CRC, so any
 *     prefix of the journal is valid.
 *   - Bytes in a file after `end` are leftovers: they are overwritten, or truncated
 *     before the Bag is finished.
 *   - bagi_output_seal writes the trailer of NAME.crc, for all sections.
 *   - Memory use does not grow with the Bag.
 * ====================================================================== */

/* State shared by a writer's streams. */
typedef struct bagi_writing {
    bagi_env env;
    bool no_sync;       /* cleared when a sync is requested, so that the rest is
                           synced */
    uint64_t process;   /* which opened it */
    bags_error failure; /* the first failure; its code is BAGS_OK if there is none */
} bagi_writing;

static void bagi_writing_init(
    bagi_writing *writing, const bagi_env *env, bool no_sync) {
    memset(writing, 0, sizeof *writing);
    writing->env = *env;
    writing->no_sync = no_sync;
    writing->process = bagi_process();
}

/* True in the process that opened the writer. In a child after fork(), the writer has
 * failed, because the files and the lock belong to the parent. */
static bool bagi_writing_is_ours(bagi_writing *writing, const char *path) {
    bool ours = writing->process == bagi_process();
    if (BAGI_UNLIKELY(!ours) && !writing->failure.code)
        bags_fail(&writing->failure, BAGS_ERROR_STATE,
            "%s: its writer belongs to the process that opened it, not to a "
            "child made by fork()",
            path ? bagi_shown(&writing->env, path) : "");
    return ours;
}

/* Return the first failure, and copy it to err. */
static bags_code bagi_writing_end(const bagi_writing *writing, bags_error *err) {
    if (writing->failure.code)
        *err = writing->failure;
    return writing->failure.code;
}

/* Refuse a call that has changed nothing, and keep the first refusal for close. */
BAGI_COLD static bags_code bagi_refuse_call(
    bags_error *first, const bags_error *why, bags_error *err) {
    if (!first->code)
        *first = *why;
    *err = *why;
    return why->code;
}

/* The result of close. A failure takes precedence over a refusal, because it leaves
 * files unfinished. */
static bags_code bagi_writing_close(
    const bagi_writing *writing, const bags_error *refusal, bags_error *err) {
    if (writing->failure.code || !refusal->code)
        return bagi_writing_end(writing, err);
    *err = *refusal;
    return err->code;
}

#define BAGI_LOCKED_BY_WRITER "unfinished, locked by a running writer"

/* Lock an open file, and check that its path still leads to it. The message names
 * `path` and says why another process has locked it. */
BAGI_COLD static bags_code bagi_lock_file(const bagi_env *env, void *file,
    const char *file_path, const char *path, const char *why, bags_error *err) {
    int error = env->io.lock ? env->io.lock(env->io.user, file)
                             : EROFS; /* hooks that only read */
    if (error == EWOULDBLOCK)
        return bags_fail(err, BAGS_ERROR_LOCKED, "%s: %s", bagi_shown(env, path), why);
    bags_code code = bagi_fail_io(env, error, file_path, "lock", err);
    return code ? code : bagi_check_same(env, file, file_path, err);
}

/*
 * A file written through a buffer, in pieces that begin at multiples of the buffer's
 * capacity, because large, aligned writes are fastest in the kernel.
 *
 *     0          base      written      end      high
 *     | written to file    |  in buffer |        | once part of the file
 *                |<----------- capacity -------------->|
 */
typedef struct bagi_stream {
    bagi_writing *writing;
    char *path;
    void *handle;          /* NULL: there is no file, and all calls do nothing */
    unsigned char *buffer; /* the bytes of the file starting at `base` */
    size_t capacity;       /* of the buffer; allocated for the first file */
    uint64_t base;
    uint64_t end;     /* bytes appended */
    uint64_t written; /* bytes passed to the system */
    uint64_t high;    /* the file may have this size or disk space: truncate it */
    uint64_t started; /* bytes that the system was told to start writing to disk */
} bagi_stream;

static bool bagi_stream_idle(const bagi_stream *stream) {
    return !stream->handle || stream->writing->failure.code;
}

static void bagi_stream_fail(const bagi_stream *stream, int error, const char *doing) {
    bagi_fail_io(
        &stream->writing->env, error, stream->path, doing, &stream->writing->failure);
}

/* Open a new file or, with BAGS_IO_WRITE, an earlier writer's file, to continue at its
 * end or, after bagi_stream_rewind, before its end. The buffer is kept for the next
 * file. */
BAGI_COLD static void bagi_stream_open(bagi_stream *stream, const bagi_dir *dir,
    const char *name, const char *suffix, int mode) {
    bags_error *err = &stream->writing->failure;
    const bags_io *io = &stream->writing->env.io;
    if (err->code)
        return;
    stream->base = stream->end = stream->written = stream->high = 0;
    stream->started = 0;
    if (stream->capacity && !stream->buffer)
        stream->buffer =
            (unsigned char *)bagi_alloc_raw(&dir->env->memory, stream->capacity, err);
    if (!err->code)
        stream->path = bagi_dir_copy(dir, name, suffix, err);
    if (err->code || bagi_open(dir->env, stream->path, mode, &stream->handle, err) ||
        mode == BAGS_IO_CREATE)
        return;
    bagi_file_size(dir->env, stream->handle, stream->path, &stream->end, err);
    stream->base =
        stream->end - (stream->capacity ? stream->end % stream->capacity : 0);
    stream->written = stream->started = stream->end;
    /* It is unknown how much disk space was reserved for it. */
    stream->high = io->reserve ? UINT64_MAX : stream->end;
}

/* Write to the file at `written`, bypassing the buffer: the caller advances `end`. A
 * child of the process that opened the stream writes nothing, because the files belong
 * to the parent. Short writes are allowed, as in the system. A write of 0 bytes is a
 * failure; otherwise this loop would never end. */
static void bagi_stream_write(
    bagi_stream *stream, const unsigned char *data, size_t size) {
    const uint64_t mebibyte = (uint64_t)1 << 20;
    const bags_io *io = &stream->writing->env.io;
    if (bagi_stream_idle(stream) ||
        !bagi_writing_is_ours(stream->writing, stream->path))
        return;
    if (stream->written > (uint64_t)INT64_MAX - size) {
        bags_fail(&stream->writing->failure, BAGS_ERROR_LIMIT,
            "%s: larger than 2^63 bytes",
            bagi_shown(&stream->writing->env, stream->path));
        return;
    }
    /* Request disk space ahead: as much again as the file has, so that small files use
     * no more than they need. The write itself will report a full disk. */
    uint64_t end = stream->written + size;
    if (io->reserve && end > stream->high && size >= mebibyte) {
        stream->high = end + BAGI_MIN(end, 64 * mebibyte);
        io->reserve(io->user, stream->handle, stream->high);
    }
    while (size > 0) {
        size_t done = 0;
        int error =
            io->write_at(io->user, stream->handle, stream->written, data, size, &done);
        if (!error && (done == 0 || done > size))
            error = EIO;
        bagi_stream_fail(stream, error, "write");
        if (error)
            return;
        data += done;
        size -= done;
        stream->written += done;
        if (stream->high < stream->written)
            stream->high = stream->written;
    }
    /* Start writing to disk early, so that the final sync waits less. */
    uint64_t waiting = stream->written - stream->started;
    if (io->write_back && !stream->writing->no_sync && waiting >= 16 * mebibyte) {
        io->write_back(io->user, stream->handle, stream->started, waiting);
        stream->started = stream->written;
    }
}

/* Write the buffered bytes that are not in the file yet. */
static void bagi_stream_flush(bagi_stream *stream) {
    if (stream->written < stream->end)
        bagi_stream_write(stream, stream->buffer + (stream->written - stream->base),
            (size_t)(stream->end - stream->written));
}

/* The number of bytes that still fit into the buffer. */
static size_t bagi_stream_space(const bagi_stream *stream) {
    return stream->capacity - (size_t)(stream->end - stream->base);
}

/* Flush, so that the buffer is empty. */
static void bagi_stream_empty(bagi_stream *stream) {
    bagi_stream_flush(stream);
    if (stream->written == stream->end)
        stream->base = stream->end;
}

/* Append bytes. After a failure nothing is appended, and `end` stays; the stored
 * failure tells the caller. */
static void bagi_stream_append(
    bagi_stream *stream, const unsigned char *data, size_t size) {
    while (size > 0 && !bagi_stream_idle(stream)) {
        size_t step = bagi_stream_space(stream);
        if (step == stream->capacity && size >= step) {
            /* Full pieces bypass the buffer. */
            step = size - size % step;
            bagi_stream_write(stream, data, step);
            stream->end = stream->written;
            bagi_stream_empty(stream);
        } else {
            step = step < size ? step : size;
            memcpy(stream->buffer + (stream->end - stream->base), data, step);
            stream->end += step;
            if (bagi_stream_space(stream) == 0)
                bagi_stream_empty(stream);
        }
        data += step;
        size -= step;
    }
}

/* Drop everything appended after `end`. Bytes already in the file are overwritten, or
 * truncated when the file is finished. */
static void bagi_stream_rewind(bagi_stream *stream, uint64_t end) {
    if (end < stream->base)
        stream->base = end - end % stream->capacity;
    if (stream->written > end)
        stream->written = end;
    if (stream->started > end)
        stream->started = end;
    stream->end = end;
}

/* Cut off everything after the end: bytes dropped by a rewind, and reserved disk
 * space. */
static void bagi_stream_truncate(bagi_stream *stream) {
    const bags_io *io = &stream->writing->env.io;
    if (bagi_stream_idle(stream) || stream->high <= stream->end)
        return;
    bagi_stream_fail(
        stream, io->truncate(io->user, stream->handle, stream->end), "truncate");
    stream->high = stream->end;
}

/* Fail if the path no longer leads to the open file. */
static void bagi_stream_check(bagi_stream *stream) {
    if (!bagi_stream_idle(stream))
        bagi_check_same(&stream->writing->env, stream->handle, stream->path,
            &stream->writing->failure);
}

static void bagi_stream_sync(bagi_stream *stream) {
    const bags_io *io = &stream->writing->env.io;
    if (!bagi_stream_idle(stream))
        bagi_stream_fail(stream, io->sync(io->user, stream->handle), "sync");
}

/* Close the file, even after a failure. A failed close may have lost data. */
static void bagi_stream_close(bagi_stream *stream) {
    if (stream->handle) {
        const bags_io *io = &stream->writing->env.io;
        int error = io->close(io->user, stream->handle);
        if (!stream->writing->failure.code)
            bagi_stream_fail(stream, error, "close");
    }
    bagi_free_text(&stream->writing->env.memory, stream->path);
    stream->handle = NULL;
    stream->path = NULL;
}

/* Close a file whose content no longer matters. */
static void bagi_stream_forget(bagi_stream *stream) {
    if (stream->handle)
        bagi_close_read(&stream->writing->env, stream->handle);
    stream->handle = NULL;
    bagi_stream_close(stream);
}

/* Remove a file that this writer created or resumed, unless its path now leads to
 * another file. */
static void bagi_stream_remove(bagi_stream *stream) {
    bags_error ignored;
    if (stream->handle && bagi_writing_is_ours(stream->writing, stream->path) &&
        !bagi_check_same(&stream->writing->env, stream->handle, stream->path, &ignored))
        stream->writing->env.io.remove(stream->writing->env.io.user, stream->path);
    bagi_stream_forget(stream);
}

/* Read a flushed stream's file through its buffer: extend *crc, and append the bytes to
 * another stream unless that is NULL. */
static void bagi_stream_copy(bagi_stream *from, bagi_stream *to, uint32_t *crc) {
    size_t step = 0;
    for (uint64_t at = 0; at < from->end && !bagi_stream_idle(from); at += step) {
        step = (size_t)BAGI_MIN(from->end - at, from->capacity);
        if (bagi_read(&from->writing->env, from->handle, from->path, at, from->buffer,
                step, &from->writing->failure))
            return;
        *crc = bags_crc32c(*crc, from->buffer, step);
        if (to)
            bagi_stream_append(to, from->buffer, step);
    }
}

/* ---- a Bag being written ---- */

typedef struct bagi_output {
    bagi_stream stream[BAGI_FILES];
    bool checksums;       /* there is a stream of CRCs */
    bool v2;              /* the table has no leading 0: see bagi_layout */
    bags_trailer trailer; /* of a finished Bag with checksums */
    uint64_t length;
    uint64_t before;                /* blobs of earlier shards' files */
    bagi_extent kept;               /* blobs used by complete datapoints */
    bagi_extent resumed;            /* the blobs that existed when it was opened */
    bagi_extent held;               /* if `holds`: the blobs after these are held */
    bagi_dictionary_sum dictionary; /* NAME.dict of the shard */
    bool stored;                    /* the dictionary is known to be the codec's */
    bool holds; /* it holds blobs for a dictionary: see bags_codec_dictionary */
} bagi_output;

#ifdef BAGS_DEBUG
/*
 * Invariants of an open Bag between calls, unless the writing has failed. For each
 * stream:
 *   - base <= written <= end, and end - base is less than the buffer's capacity: a full
 *     buffer was written
 *   - written <= high, so that a truncation is never forgotten; started <= written
 * For the streams together:
 *   - each has an entry for every blob, so that all are rewound to the same blob
 *   - if the last entry was passed to the system, so were all blobs and CRCs
 *   - resumed <= kept <= length
 *   - no byte of a held blob was passed to the system
 */
static void bagi_output_assert(const bagi_output *output) {
    const bagi_stream *blobs = &output->stream[BAGI_BLOBS];
    const bagi_stream *ends = &output->stream[BAGI_ENDS];
    const bagi_stream *crcs = &output->stream[BAGI_CRCS];
    if (bagi_stream_idle(blobs))
        return;
    for (int i = 0; i < BAGI_FILES; i++) {
        const bagi_stream *stream = &output->stream[i];
        assert(stream->writing == blobs->writing);
        if (!stream->handle) {
            assert(i == BAGI_CRCS && !output->checksums);
            continue;
        }
        assert(stream->path && stream->buffer);
        assert(stream->base <= stream->written && stream->written <= stream->end);
        assert(stream->end - stream->base < stream->capacity);
        assert(stream->written <= stream->high && stream->started <= stream->written);
        assert(!output->holds || (stream->base == bagi_extent_size(output->held, i) &&
                                     stream->written == stream->base));
    }
    assert(!output->holds || output->held.length <= output->length);
    assert(ends->end == 8 * output->length);
    assert(!output->checksums || crcs->end == 4 * output->length);
    assert(ends->written < ends->end ||
           (blobs->written == blobs->end && crcs->written == crcs->end));
    assert(output->kept.length <= output->length && output->kept.end <= blobs->end);
    assert(output->resumed.length <= output->kept.length &&
           output->resumed.end <= output->kept.end);
}
#endif

/* Set up the streams, with buffers of the size given in the options. The buffers for
 * ends and CRCs are full after the same number of blobs. */
BAGI_COLD static void bagi_output_init(
    bagi_output *output, bagi_writing *writing, size_t buffer_size) {
    size_t size = 4096;
    if (buffer_size == 0)
        buffer_size = (size_t)2 << 20;
    while (size < buffer_size && size <= SIZE_MAX / 4)
        size *= 2;
    for (int i = 0; i < BAGI_FILES; i++)
        output->stream[i].writing = writing;
    output->stream[BAGI_BLOBS].capacity = size;
    output->stream[BAGI_ENDS].capacity = size / 2;
    output->stream[BAGI_CRCS].capacity = size / 4;
}

/* Free the buffers. */
static void bagi_output_free(bagi_output *output) {
    for (int i = 0; i < BAGI_FILES; i++)
        bagi_free(&output->stream[i].writing->env.memory, output->stream[i].buffer,
            output->stream[i].capacity);
}

/* Open the files, either new ones or an earlier writer's, unless they are open. */
static void bagi_output_open(
    bagi_output *output, const bagi_dir *dir, const char *name, int mode) {
    static const bagi_extent none = {0, 0};
    output->before += output->length;
    output->length = 0;
    output->kept = output->resumed = none;
    output->dictionary.exists = output->stored = output->holds = false;
    for (int i = 0; i < BAGI_FILES; i++)
        if (!output->stream[i].handle && (i != BAGI_CRCS || output->checksums))
            bagi_stream_open(&output->stream[i], dir, name, bagi_suffix[i], mode);
}

/* Sets of a Bag's streams: those with content that the journal's entries refer to
 * (written before the journal, and kept when the Bag is finished), and the journal. */
#define BAGI_CONTENT (1U << BAGI_BLOBS | 1U << BAGI_CRCS)
#define BAGI_JOURNAL (1U << BAGI_ENDS)
#define BAGI_STREAMS (BAGI_CONTENT | BAGI_JOURNAL)

/* Call a function for these streams of several Bags. */
static void bagi_outputs_each(bagi_output *outputs, size_t count, unsigned streams,
    void (*each)(bagi_stream *stream)) {
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < BAGI_FILES; k++)
            if (streams >> k & 1)
                each(&outputs[i].stream[k]);
}

static void bagi_output_flush(bagi_output *output) {
    bagi_outputs_each(output, 1, BAGI_STREAMS, bagi_stream_flush);
}

/* The blob does not fit in its buffer, or its entry would fill the entry buffer.
 * Writing a piece of blobs also writes their entries; otherwise a full entry buffer
 * would often interrupt a piece of blobs. */
BAGI_NOINLINE static void bagi_output_spill(
    bagi_output *output, const unsigned char *data, size_t size) {
    bagi_stream *blobs = &output->stream[BAGI_BLOBS];
    bagi_stream *ends = &output->stream[BAGI_ENDS];
    unsigned char entry[8];
    uint64_t base = blobs->base;
    bagi_stream_append(blobs, data, size);
    if (blobs->base != base) {
        bagi_stream_flush(&output->stream[BAGI_CRCS]);
        bagi_stream_empty(ends);
    } else {
        bagi_outputs_each(output, 1, BAGI_CONTENT, bagi_stream_flush);
    }
    bagi_store_u64(entry, blobs->end);
    bagi_stream_append(ends, entry, sizeof entry);
    output->length++;
}

/* Append a blob. */
static inline void bagi_output_append(
    bagi_output *output, const unsigned char *data, size_t size) {
    bagi_stream *blobs = &output->stream[BAGI_BLOBS];
    bagi_stream *ends = &output->stream[BAGI_ENDS];
    if (BAGI_CHECKSUMS && BAGI_UNLIKELY(output->checksums)) {
        unsigned char crc[4];
        bagi_store_u32(crc, bags_crc32c(0, data, size));
        bagi_stream_append(&output->stream[BAGI_CRCS], crc, sizeof crc);
    }
    if (BAGI_UNLIKELY(
            size >= bagi_stream_space(blobs) || bagi_stream_space(ends) <= 8)) {
        bagi_output_spill(output, data, size);
        return;
    }
    if (size)
        memcpy(blobs->buffer + (blobs->end - blobs->base), data, size);
    blobs->end += size;
    bagi_store_u64(ends->buffer + (ends->end - ends->base), blobs->end);
    ends->end += 8;
    output->length++;
}

/* Forget the blobs after `extent`. All files are rewound together, so that they agree
 * on the number of blobs. */
static void bagi_output_rewind(bagi_output *output, bagi_extent extent) {
    for (int i = 0; i < BAGI_FILES; i++)
        if (output->stream[i].handle)
            bagi_stream_rewind(&output->stream[i], bagi_extent_size(extent, i));
    output->length = extent.length;
    output->holds = output->holds && extent.length > output->held.length;
}

/* True if another blob of this size fits without a spill. */
static bool bagi_output_fits(const bagi_output *output, size_t size) {
    return size < bagi_stream_space(&output->stream[BAGI_BLOBS]) &&
           bagi_stream_space(&output->stream[BAGI_ENDS]) > 8;
}

/* Hold the blobs that follow. They are placed at the start of the buffers. */
BAGI_COLD static void bagi_output_hold(bagi_output *output) {
    bagi_outputs_each(output, 1, BAGI_CONTENT, bagi_stream_empty);
    bagi_outputs_each(output, 1, BAGI_JOURNAL, bagi_stream_empty);
    output->held.length = output->length;
    output->held.end = output->stream[BAGI_BLOBS].end;
    output->holds = true;
}

/* Continue a Bag left by another writer, after these blobs. */
static void bagi_output_continue(
    bagi_output *output, const bagi_dir *dir, const char *name, bagi_extent extent) {
    bagi_output_open(output, dir, name, BAGS_IO_WRITE);
    bagi_output_rewind(output, extent);
    output->before = 0;
    bagi_outputs_each(output, 1, BAGI_STREAMS, bagi_stream_truncate);
    output->kept = output->resumed = extent;
}

/* The Bag's size if it were closed now. */
static uint64_t bagi_output_size(const bagi_output *output) {
    return output->stream[BAGI_BLOBS].end + 8 * (output->length + 1);
}

/* Complete the Bag, except for its checksum trailer; the files stay open. A journal
 * that is kept is synced before the table is written, so that it never lists fewer
 * blobs. */
BAGI_COLD static void bagi_output_finish(bagi_output *output, bool keep_idx) {
    static const unsigned char zero[8] = {0};
    bagi_stream *blobs = &output->stream[BAGI_BLOBS];
    bagi_stream *ends = &output->stream[BAGI_ENDS];
    size_t leading = output->v2 ? 0 : sizeof zero;
    uint32_t table = bags_crc32c(0, zero, leading);
    bagi_output_flush(output);
    if (keep_idx) {
        bagi_stream_truncate(ends);
        if (!ends->writing->no_sync)
            bagi_stream_sync(ends);
    }
    bagi_stream_append(blobs, zero, leading);
    bagi_stream_copy(ends, blobs, &table);
    bagi_stream_flush(blobs);
    bagi_stream_truncate(blobs);
    if (!BAGI_CHECKSUMS || !output->checksums)
        return;
    bags_trailer trailer = {output->length, blobs->end, table, 0, 0, 0, false};
    bagi_stream_copy(&output->stream[BAGI_CRCS], NULL, &trailer.crcs);
    output->trailer = trailer;
}

/* Write the trailer, if there are checksums, and sync the files that remain. */
BAGI_COLD static void bagi_output_seal(bagi_output *output) {
    bagi_stream *crcs = &output->stream[BAGI_CRCS];
    unsigned char bytes[BAGS_TRAILER_SIZE];
    if (BAGI_CHECKSUMS && output->checksums) {
        bagi_trailer_store(&output->trailer, bytes);
        bagi_stream_write(crcs, bytes, sizeof bytes);
        crcs->end = crcs->written;
        bagi_stream_truncate(crcs);
    }
    if (!crcs->writing->no_sync)
        bagi_outputs_each(output, 1, BAGI_CONTENT, bagi_stream_sync);
}

/* ---- standalone Bags ---- */

struct bag_writer {
    bagi_writing writing;
    bagi_output output;
    bagi_dir dir; /* it owns its path */
    bool keep_idx;
    bags_error refusal; /* the first refused call */
};

static void bagi_bag_writer_free(bag_writer *writer) {
    bags_allocator memory = writer->writing.env.memory;
    bagi_output_free(&writer->output);
    bagi_dir_free(&writer->dir);
    bagi_free(&memory, writer, sizeof *writer);
}

/* Fail if the paths no longer lead to the Bag's files, or in a child of the process
 * that opened it. */
static void bagi_bag_writer_check(bag_writer *writer) {
    if (bagi_writing_is_ours(&writer->writing, writer->output.stream[BAGI_BLOBS].path))
        bagi_outputs_each(&writer->output, 1, BAGI_STREAMS, bagi_stream_check);
}

BAGS_API BAGI_COLD bag_writer *bag_writer_open(
    const char *path, const bag_writer_options *options, bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bag_writer_options, options);
    bagi_env env = bagi_env_of(&options->env);
    bag_writer *writer = (bag_writer *)bagi_alloc(&env.memory, sizeof *writer, err);
    if (!writer)
        return NULL;
    bags_error *failure = &writer->writing.failure;
    bagi_stream *blobs = &writer->output.stream[BAGI_BLOBS];
    bagi_writing_init(&writer->writing, &env, options->no_sync);
    bagi_output_init(&writer->output, &writer->writing, options->buffer_size);
    writer->output.checksums = options->checksum;
    writer->keep_idx = options->keep_idx;
    if (!bagi_dir_standalone(&writer->writing.env, path, &writer->dir, failure))
        bagi_check_checksums(path, options->checksum, failure);
    /* Lock the Bag before its journal exists, so that a journal is always covered by
     * the lock. */
    bagi_stream_open(blobs, &writer->dir, "", ".bag", BAGS_IO_CREATE);
    if (!failure->code)
        bagi_lock_file(&writer->writing.env, blobs->handle, blobs->path, blobs->path,
            BAGI_LOCKED_BY_WRITER, failure);
    bagi_output_open(&writer->output, &writer->dir, "", BAGS_IO_CREATE);
    /* Checksums left over from another Bag would be taken for this one's. */
    if (!options->checksum &&
        bagi_dir_has(&writer->dir, "", ".crc", &failure->code, failure))
        bags_fail(failure, BAGS_ERROR_EXISTS,
            "%s.crc: already exists: the checksums of another Bag", writer->dir.shown);
    if (!bagi_writing_end(&writer->writing, err))
        return writer;
    bag_writer_abort(writer);
    return NULL;
}

BAGI_COLD static bags_code bagi_bag_writer_refuse(
    bag_writer *writer, size_t size, bags_error *err) {
    BAGI_ERR(err);
    bags_error why;
    BAGI_TRY(bagi_writing_end(&writer->writing, err));
    bags_fail(&why, BAGS_ERROR_ARGUMENT,
        "%s: blob %" PRIu64 ": the data is NULL (%" PRIu64 " bytes)",
        bagi_shown(&writer->writing.env, writer->output.stream[BAGI_BLOBS].path),
        writer->output.length, (uint64_t)size);
    return bagi_refuse_call(&writer->refusal, &why, err);
}

BAGS_API bags_code bag_writer_append(bag_writer *writer, const void *data, size_t size,
    uint64_t *index, bags_error *err) {
    BAGI_NEED(writer, err);
    BAGI_CHECK(bagi_output_assert(&writer->output));
    if (BAGI_UNLIKELY(!data) && size)
        return bagi_bag_writer_refuse(writer, size, err);
    if (!writer->writing.failure.code)
        bagi_output_append(&writer->output, (const unsigned char *)data, size);
    if (BAGI_UNLIKELY(writer->writing.failure.code)) {
        BAGI_ERR(err);
        return bagi_writing_end(&writer->writing, err);
    }
    if (index)
        *index = writer->output.length - 1;
    return BAGS_OK;
}

BAGS_API void bag_writer_clear(bag_writer *writer) {
    if (writer)
        writer->refusal.code = BAGS_OK;
}

BAGS_API bags_code bag_writer_flush(bag_writer *writer, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_output_assert(&writer->output));
    bagi_bag_writer_check(writer);
    bagi_output_flush(&writer->output);
    BAGI_CHECK(bagi_output_assert(&writer->output));
    return bagi_writing_end(&writer->writing, err);
}

/* The file names must be on disk, too. */
BAGS_API BAGI_COLD bags_code bag_writer_sync(bag_writer *writer, bags_error *err) {
    BAGI_ERR(err);
    BAGI_TRY(bag_writer_flush(writer, err));
    bagi_writing *writing = &writer->writing;
    bagi_outputs_each(&writer->output, 1, BAGI_STREAMS, bagi_stream_sync);
    if (!writing->failure.code)
        bagi_sync_parent(
            &writing->env, writer->output.stream[BAGI_BLOBS].path, &writing->failure);
    writing->no_sync = false; /* nor for the rest */
    return bagi_writing_end(writing, err);
}

BAGS_API uint64_t bag_writer_length(const bag_writer *writer) {
    return writer ? writer->output.length : 0;
}

BAGS_API uint64_t bag_writer_size(const bag_writer *writer) {
    return writer ? bagi_output_size(&writer->output) : 0;
}

/* The journal must be as complete as the Bag, although it is removed: a power failure
 * may undo the removal, and readers look at it. */
BAGS_API BAGI_COLD bags_code bag_writer_close(bag_writer *writer, bags_error *err) {
    BAGI_ERR(err);
    if (!writer)
        return BAGS_OK;
    bagi_writing *writing = &writer->writing;
    bagi_bag_writer_check(writer);
    bagi_output_finish(&writer->output, true);
    bagi_output_seal(&writer->output);
    if (!writing->failure.code && !writing->no_sync)
        bagi_sync_parent(
            &writing->env, writer->output.stream[BAGI_BLOBS].path, &writing->failure);
    if (!writing->failure.code)
        bagi_outputs_each(&writer->output, 1, BAGI_CONTENT, bagi_stream_close);
    if (!writing->failure.code && !writer->keep_idx)
        bagi_stream_remove(&writer->output.stream[BAGI_ENDS]);
    bagi_outputs_each(&writer->output, 1, BAGI_STREAMS, bagi_stream_close);
    bags_code code = bagi_writing_close(writing, &writer->refusal, err);
    bagi_bag_writer_free(writer);
    return code;
}

BAGS_API BAGI_COLD void bag_writer_abort(bag_writer *writer) {
    if (!writer)
        return;
    /* In a child process, only close them. */
    bagi_outputs_each(&writer->output, 1, BAGI_STREAMS, bagi_stream_remove);
    bagi_bag_writer_free(writer);
}

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>spec
 * A dataset's fields, sorted by name as on disk, with their types and codecs; and their
 * list, spec.json. This section owns the rules for field names: writers refuse names
 * that some system cannot read, readers refuse names that lead outside the dataset. A
 * spec is filled, then sealed, and does not change after that. All shards of a dataset
 * have the same spec: see bagi_common. Called by readers, writers, recovery and verify.
 * ====================================================================== */

#define BAGI_SPEC_MAX ((size_t)1 << 20)
enum { BAGI_FIELDS_MAX = 65535, BAGI_NAME_MAX = 251 /* 255 with .bag */ };

typedef struct bagi_spec {
    bags_buffer array;
    bags_field *fields; /* its content */
    size_t count;
    bags_type *types; /* NULL until sealed, like `coders` */
    bagi_coder *coders;
    bags_buffer text; /* of spec.json, */
    size_t text_size; /* set if the spec was read or written */
} bagi_spec;

/* A spec may be incomplete: `types` and `coders` are NULL until it is sealed. */
BAGI_COLD static void bagi_spec_free(const bags_allocator *memory, bagi_spec *spec) {
    for (size_t i = 0; spec->coders && i < spec->count; i++)
        bagi_coder_close(&spec->coders[i]);
    for (size_t i = 0; i < spec->count; i++) {
        bagi_free_text(memory, spec->fields[i].name);
        bagi_free_text(memory, spec->fields[i].type);
    }
    bagi_free(memory, spec->coders, spec->count * sizeof *spec->coders);
    bagi_free(memory, spec->types, spec->count * sizeof *spec->types);
    bags_buffer_free(&spec->array);
    bags_buffer_free(&spec->text);
    memset(spec, 0, sizeof *spec);
}

/* Append a field. If one of its texts cannot be allocated, the field is counted anyway,
 * with NULL for that text, so that bagi_spec_free frees the other one. */
BAGI_COLD static bags_code bagi_spec_add(const bags_allocator *memory, bagi_spec *spec,
    const char *name, const char *type, bags_error *err) {
    if (spec->count == BAGI_FIELDS_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT, "more than %d fields", BAGI_FIELDS_MAX);
    bags_field field = {NULL, NULL};
    BAGI_TRY(bagi_push(&spec->array, memory, &spec->count, &field, sizeof field, err));
    spec->fields = (bags_field *)(void *)spec->array.data;
    bags_field *added = &spec->fields[spec->count - 1];
    added->name = bagi_copy_text(memory, name, err);
    added->type = bagi_copy_text(memory, type, err);
    return added->name && added->type ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static int bagi_field_order(const void *a, const void *b) {
    return strcmp(((const bags_field *)a)->name, ((const bags_field *)b)->name);
}

/* The index of a name among the sorted fields, or `count` if it is missing. */
static size_t bagi_spec_find(const bagi_spec *spec, const char *name) {
    bags_field key = {name, NULL};
    const bags_field *found = spec->count
                                  ? (const bags_field *)bsearch(&key, spec->fields,
                                        spec->count, sizeof key, bagi_field_order)
                                  : NULL;
    return found ? (size_t)(found - spec->fields) : spec->count;
}

BAGS_API BAGI_COLD bags_code bags_fields_compare(const bags_field *fields, size_t count,
    const bags_field *others, size_t others_count, const char *where, bags_error *err) {
    BAGI_NEED((fields || !count) && (others || !others_count) && where, err);
    size_t i = 0;
    while (i < count && i < others_count &&
           strcmp(fields[i].name, others[i].name) == 0 &&
           strcmp(fields[i].type, others[i].type) == 0)
        i++;
    if (i == count && i == others_count)
        return BAGS_OK;
    int order = i == count          ? 1
                : i == others_count ? -1
                                    : strcmp(fields[i].name, others[i].name);
    if (order > 0)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "field \"%.200s\": missing (%.100s in %.320s)", others[i].name,
            others[i].type, where);
    if (order < 0)
        return bags_fail(err, BAGS_ERROR_FIELD,
            "field \"%.200s\": missing in %.320s (%.100s)", fields[i].name, where,
            fields[i].type);
    return bags_fail(err, BAGS_ERROR_FIELD,
        "field \"%.200s\": type mismatch (%.100s, %.100s in %.320s)", fields[i].name,
        fields[i].type, others[i].type, where);
}

BAGI_COLD static bags_code bagi_spec_compare(
    const bagi_spec *spec, const bagi_spec *other, const char *where, bags_error *err) {
    return bags_fields_compare(
        spec->fields, spec->count, other->fields, other->count, where, err);
}

/* True if both specs have the same text, so that one need not be parsed. */
static bool bagi_spec_same_text(const bagi_spec *a, const bagi_spec *b) {
    return a->text_size > 0 && a->text_size == b->text_size &&
           memcmp(a->text.data, b->text.data, a->text_size) == 0;
}

/* A Bag's name: the name of a field or, for index `count`, "refs". A standalone Bag has
 * no spec and no name. */
static const char *bagi_spec_name(const bagi_spec *spec, size_t field) {
    return !spec ? "" : field < spec->count ? spec->fields[field].name : "refs";
}

/* Parse the types and open their codecs. A type without a codec, or with arguments that
 * its codec refuses, is not a failure here, because its blobs can be read and written.
 * The failure comes when a value is needed. */
BAGI_COLD static bags_code bagi_spec_seal(const bags_allocator *memory, bagi_spec *spec,
    const bags_registry *registry, bags_error *err) {
    bags_code code = BAGS_OK;
    spec->types =
        (bags_type *)bagi_alloc(memory, spec->count * sizeof *spec->types, err);
    spec->coders =
        (bagi_coder *)bagi_alloc(memory, spec->count * sizeof *spec->coders, err);
    if (!spec->types || !spec->coders)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < spec->count && !code; i++) {
        code = bags_type_parse(spec->fields[i].type, &spec->types[i], err);
        if (code)
            bags_prefix(err, code, "field \"%.200s\": ", spec->fields[i].name);
        else
            code = bagi_coder_open(
                &spec->coders[i], registry, &spec->types[i], memory, err);
    }
    return code;
}

/* ---- names ---- */

/* True for a name that Windows reserves for a device, whatever follows its first
 * dot. */
BAGI_COLD static bool bagi_is_device(const char *name) {
    static const char *const devices[] = {"con", "prn", "aux", "nul"};
    char low[5] = {0};
    size_t size = strcspn(name, ".");
    while (size > 0 && name[size - 1] == ' ')
        size--;
    if (size < 3 || size > 4)
        return false;
    for (size_t i = 0; i < size; i++)
        low[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32 : name[i]);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(low, devices[i]) == 0)
            return true;
    return size == 4 && low[3] >= '1' && low[3] <= '9' &&
           (memcmp(low, "com", 3) == 0 || memcmp(low, "lpt", 3) == 0);
}

/* Why readers refuse a field's name; NULL if they do not. */
BAGI_COLD static const char *bagi_name_fault_read(const char *name) {
    if (strcmp(name, "refs") == 0)
        return "reserved for the index of datapoints";
    if (strlen(name) > BAGI_NAME_LONGEST)
        return "too long for a file name";
    if (strchr(name, '/') || (BAGI_WINDOWS_PATHS && strpbrk(name, "\\:")))
        return "names a file outside the dataset's directory";
    if (BAGI_WINDOWS_PATHS && bagi_is_device(name))
        return "names a device";
    return NULL;
}

#ifndef BAGS_NO_WRITER
/* Why writers refuse a field's name: every system must be able to read what they
 * write. */
BAGI_COLD static const char *bagi_name_fault_write(const char *name) {
    size_t size = strlen(name);
    if (size == 0)
        return "an empty name";
    if (size > BAGI_NAME_MAX)
        return "too long for a file name";
    if (name[0] == '.')
        return "begins with a dot";
    if (!bags_utf8_valid(name, size, NULL))
        return "not UTF-8";
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return "contains a control character";
    if (strpbrk(name, "\\:*?\"<>|"))
        return "contains one of \\ : * ? \" < > |, which not every system "
               "accepts in a file name";
    if (bagi_is_device(name))
        return "names a device on Windows";
    return bagi_name_fault_read(name);
}
#endif

static bags_code bagi_fail_field(
    bags_error *err, bags_code code, const char *name, const char *fault) {
    bags_fail(err, code, "field \"%.200s\": %s", name, fault);
    err->remedy = bagi_remedy(fault, err->message);
    return code;
}

/* ---- spec.json ---- */

/* Add a field read from spec.json. */
BAGI_COLD static bags_code bagi_spec_add_read(const bags_allocator *memory,
    bagi_spec *spec, const char *name, const char *type, bags_error *err) {
    BAGI_TRY(bagi_spec_add(memory, spec, name, type, err));
    const char *fault = bagi_name_fault_read(name);
    if (fault)
        return bagi_fail_field(err, BAGS_ERROR_FIELD, name, fault);
    int order = spec->count > 1 ? strcmp(spec->fields[spec->count - 2].name, name) : -1;
    if (order < 0)
        return BAGS_OK;
    return bagi_fail_field(err, BAGS_ERROR_CORRUPT, name,
        order ? "follows a greater name; fields must be sorted by name" : "duplicate");
}

/* Parse the text of a spec that has only its text and is not sealed. */
BAGI_COLD static bags_code bagi_spec_parse(
    const bags_allocator *memory, bagi_spec *spec, bags_error *err) {
    size_t size = spec->text_size;
    bagi_json json = {spec->text.data, size, 0, NULL};
    char *strings = (char *)bagi_alloc_raw(memory, size, err);
    if (!strings)
        return BAGS_ERROR_MEMORY;
    json.out = strings;
    bags_code code = BAGS_OK;
    bool valid = bagi_json_mark(&json, '{');
    bool more = valid && !bagi_json_mark(&json, '}');
    while (valid && more && !code) {
        const char *name = bagi_json_string(&json);
        valid = name && bagi_json_mark(&json, ':');
        const char *type = valid ? bagi_json_string(&json) : NULL;
        more = type && bagi_json_mark(&json, ',');
        valid = type && (more || bagi_json_mark(&json, '}'));
        if (type)
            code = bagi_spec_add_read(memory, spec, name, type, err);
    }
    bool ended = valid && bagi_json_mark(&json, '\0') && json.at > size;
    if (!code && !ended)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "not a JSON object of strings (offset %" PRIu64 ")", (uint64_t)json.at);
    bagi_free(memory, strings, size);
    return code;
}

/*
 * The spec that all shards of a dataset share: the first one read.
 */
typedef struct bagi_common {
    const bags_registry *registry;
    bagi_spec spec; /* its `types` are NULL until one is read */
} bagi_common;

/*
 * Read a shard's spec.json (or spec.json.partial). The first valid one becomes the
 * common spec; later ones must be equal. A different one is an error, and *own (may be
 * NULL) receives that shard's spec. *record describes the file, if it could be read.
 */
BAGI_COLD static bags_code bagi_common_read(bagi_common *common, const bagi_dir *dir,
    const char *suffix, bagi_spec *own, bagi_record *record, bags_error *err) {
    const bags_allocator *memory = &dir->env->memory;
    bagi_spec spec = BAGI_ZERO;
    memset(record, 0, sizeof *record);
    bags_code code = bagi_dir_read(dir, "spec.json", suffix, BAGI_SPEC_MAX, &spec.text,
        &spec.text_size, &record->identity, err);
    record->missing = code == BAGS_ERROR_MISSING && err->system == ENOENT;
    if (code)
        return code;
    record->spec = bags_crc32c(0, spec.text.data, spec.text_size);
    bool first = !common->spec.types;
    bool same = !first && bagi_spec_same_text(&spec, &common->spec);
    if (!same)
        code = bagi_spec_parse(memory, &spec, err);
    bool differs = !code && !first && !same &&
                   bagi_spec_compare(&spec, &common->spec, "the first shard", err);
    if (!code && (first || (differs && own)))
        code = bagi_spec_seal(memory, &spec, common->registry, err);
    bagi_spec *out = code ? NULL : first ? &common->spec : differs ? own : NULL;
    if (!code && differs)
        code = BAGS_ERROR_CORRUPT; /* err names the field */
    if (code && code != BAGS_ERROR_MEMORY)
        bags_prefix(err, code, "%s/spec.json%s: ", dir->shown, suffix);
    if (out)
        *out = spec;
    else
        bagi_spec_free(memory, &spec);
    return code;
}

#ifndef BAGS_NO_WRITER
/* Make the text of spec.json, *size bytes. */
BAGI_COLD static bags_code bagi_spec_text(
    const bagi_spec *spec, bags_buffer *out, size_t *size, bags_error *err) {
    size_t at = 0, i = 0, texts = 2 * spec->count;
    for (; i < texts && at <= BAGI_SPEC_MAX; i++) {
        const bags_field *field = &spec->fields[i / 2];
        const char *text = i % 2 ? field->type : field->name;
        const char *before = i % 2 ? ": " : i ? ", " : "{";
        if (strlen(text) > BAGI_SPEC_MAX)
            break;
        BAGI_TRY(bags_buffer_reserve(out, at + 6 * strlen(text) + 8, err));
        memcpy(out->data + at, before, strlen(before));
        at += strlen(before);
        at += bagi_json_quote(text, (char *)out->data + at);
    }
    BAGI_TRY(bags_buffer_reserve(out, at + 2, err));
    if (at == 0)
        out->data[at++] = '{';
    out->data[at++] = '}';
    if (i < texts || at > BAGI_SPEC_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "spec.json: too large (maximum %" PRIu64 " bytes)",
            (uint64_t)BAGI_SPEC_MAX);
    *size = at;
    return BAGS_OK;
}

/* Check the caller's fields, and make sorted copies of them. */
BAGI_COLD static bags_code bagi_spec_from_caller(const bags_allocator *memory,
    bagi_spec *spec, const bags_registry *registry, const bags_field *fields,
    size_t count, bool any_type, bags_error *err) {
    BAGI_NEED(fields || !count, err);
    bags_buffer complete = bags_buffer_of(memory);
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < count && !code; i++) {
        const char *name = fields[i].name, *type = fields[i].type;
        bags_type parsed;
        if (!name || !type) {
            code = bags_fail(err, BAGS_ERROR_ARGUMENT,
                "field %" PRIu64 ": name or type is NULL", (uint64_t)i);
            break;
        }
        const char *fault = bagi_name_fault_write(name);
        if (fault)
            code = bagi_fail_field(err, BAGS_ERROR_FIELD, name, fault);
        else if (!any_type && bags_type_check(registry, type, err)) {
            code = bags_prefix(err, BAGS_ERROR_TYPE, "field \"%.200s\": ", name);
            if (!bags_type_parse(type, &parsed, NULL))
                bags_suffix(err, "; set any_type to store its blobs");
        } else if (!any_type)
            code = bags_type_complete(registry, type, &complete, err);
        if (!code)
            code = bagi_spec_add(
                memory, spec, name, any_type ? type : (const char *)complete.data, err);
    }
    bags_buffer_free(&complete);
    BAGI_TRY(code);
    if (count > 1)
        qsort(spec->fields, count, sizeof *spec->fields, bagi_field_order);
    for (size_t i = 1; i < count; i++)
        if (strcmp(spec->fields[i - 1].name, spec->fields[i].name) == 0)
            return bagi_fail_field(
                err, BAGS_ERROR_FIELD, spec->fields[i].name, "duplicate");
    code = bagi_spec_seal(memory, spec, registry, err);

    /* Refuse types that no value can satisfy: arguments that the type's codec refuses,
     * unless they are merely too large for this platform, and integers of 0 bytes. */
    for (size_t i = 0; i < count && !code; i++) {
        const bagi_coder *coder = &spec->coders[i];
        const bags_type *type = &spec->types[i];
        const char *name = spec->fields[i].name;
        uint64_t bytes = 1;
        if (!coder->codec)
            continue;
        if (coder->fault && coder->code != BAGS_ERROR_LIMIT)
            code = bags_prefix(
                err, bagi_coder_fail(coder, err), "field \"%.200s\": ", name);
        else if (coder->codec == bags_registry_find(NULL, type->name) &&
                 bags_view_is(type->name, "int") && bags_type_number(type, 0, &bytes) &&
                 bytes == 0)
            code = bags_fail(err, BAGS_ERROR_TYPE,
                "field \"%.200s\": type \"%.200s\": an integer of 0 bytes "
                "holds only 0",
                name, spec->fields[i].type);
    }
    return code;
}

BAGS_API bags_code bags_spec_text(const bags_field *fields, size_t count,
    const bags_registry *registry, bags_buffer *out, size_t *size, bags_error *err) {
    BAGI_BEGIN(out && size, err);
    const bags_allocator memory = bags_allocator_of(NULL);
    bagi_spec spec = BAGI_ZERO;
    bags_code code =
        bagi_spec_from_caller(&memory, &spec, registry, fields, count, true, err);
    if (!code)
        code = bagi_spec_text(&spec, out, size, err);
    bagi_spec_free(&memory, &spec);
    return code;
}
#endif

/* ========================================================================
 * >>shards
 * A dataset's numbered directories and their content: which names are shards, whether a
 * directory is a finished shard, an unfinished one or neither, how to open their Bags,
 * and which of their datapoints are complete. Called by the dataset reader, verify,
 * checksum, the writer and recovery; nothing here changes a shard.
 *
 *   - spec.json makes a directory a finished shard. spec.json.partial (later
 *     spec.json) makes it an unfinished one. With neither, no writer created it.
 *   - Shards are ordered by number; leading zeros do not change a number.
 *
 * A shard's life cycle on disk, and its locks, are described in >>dataset-write.
 * ====================================================================== */

/* ---- names ---- */

#define BAGI_SHARD_LIMIT UINT64_C(1000000000000000000)
/* The most digits of a shard number, without and with leading zeros. */
enum { BAGI_SHARD_DIGITS = 18, BAGI_DIGITS_MAX = 255 };

/* A shard's number, and the number of digits in its name. */
typedef struct bagi_shard_id {
    uint64_t number;
    unsigned digits;
} bagi_shard_id;

typedef struct bagi_shard_list {
    const bagi_env *env;
    const char *path; /* of the dataset */
    bags_buffer array;
    bagi_shard_id *ids; /* its content, sorted by number */
    size_t count;
    bool single;           /* not sharded: the only name, the dataset's, has no
                              digits */
    size_t checked;        /* the number of names that bagi_shard_list_check has
                              passed */
    bags_error *err;       /* while names are collected */
    bags_code code;        /* if a number was too large */
    const bagi_spec *spec; /* non-NULL: all Bags of its fields will be opened */
} bagi_shard_list;

/* Set up the directory of a shard or, for a name without digits, of an unsharded
 * dataset. Free it with bagi_dir_free, even after a failure. */
BAGI_COLD static bags_code bagi_shard_dir(bagi_dir *dir, const bagi_env *env,
    const char *path, bagi_shard_id name, bags_error *err) {
    char text[BAGI_DIGITS_MAX + 2] = "";
    if (name.digits)
        (void)snprintf(text, sizeof text, "/%0*" PRIu64, (int)name.digits, name.number);
    return bagi_dir_open(dir, env, path, text, err);
}

#ifndef BAGS_NO_WRITER
static bagi_shard_id bagi_shard_name(uint64_t number) {
    bagi_shard_id name = {number, 6};
    return name;
}
#endif

/* The number of a worker's next shard; too large rather than wrapped around. */
static uint64_t bagi_shard_after(uint64_t number, uint64_t workers) {
    return workers > UINT64_MAX - number ? UINT64_MAX : number + workers;
}

/* True for the shards of worker number `start` of `stop` workers. */
static bool bagi_is_of_worker(bagi_shard_id name, uint64_t start, uint64_t stop) {
    return name.number % stop == start;
}

BAGI_COLD static bags_code bagi_shard_list_push(
    bagi_shard_list *list, bagi_shard_id name, bags_error *err) {
    bags_code code = bagi_push(
        &list->array, &list->env->memory, &list->count, &name, sizeof name, err);
    list->ids = (bagi_shard_id *)(void *)list->array.data;
    return code;
}

/* For the list hook: collect the names made of digits. */
BAGI_COLD static int bagi_shard_list_collect(void *user, const char *text) {
    bagi_shard_list *list = (bagi_shard_list *)user;
    size_t digits = strspn(text, "0123456789"), zeros = strspn(text, "0");
    bagi_shard_id name = {0, (unsigned)digits};
    if (digits == 0 || text[digits])
        return 0;
    if (digits - zeros > BAGI_SHARD_DIGITS || digits > BAGI_DIGITS_MAX) {
        list->code = bags_fail(list->err, BAGS_ERROR_LIMIT,
            "%s: shard number too large (%.40s, maximum 10^18 - 1)",
            bagi_shown(list->env, list->path), text);
        return 0;
    }
    for (size_t i = zeros; i < digits; i++)
        name.number = name.number * 10 + (uint64_t)(text[i] - '0');
    return bagi_shard_list_push(list, name, list->err) ? ENOMEM : 0;
}

/* By number. Two names with the same number (refused later) are ordered by their
 * digits, so that the message does not depend on the order in which the system lists
 * them. */
static int bagi_shard_list_order(const void *a, const void *b) {
    const bagi_shard_id *x = (const bagi_shard_id *)a, *y = (const bagi_shard_id *)b;
    if (x->number != y->number)
        return x->number > y->number ? 1 : -1;
    return (x->digits > y->digits) - (x->digits < y->digits);
}

/* Find the next fault in the names: first a number that is too large, then a duplicate
 * number. */
BAGI_COLD static bags_code bagi_shard_list_check(
    bagi_shard_list *list, bags_error *err) {
    bags_code code = list->code;
    list->code = BAGS_OK;
    while (!code && ++list->checked < list->count) {
        const bagi_shard_id *name = &list->ids[list->checked];
        if (name->number == name[-1].number)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: two shards with number %" PRIu64 ": %0*" PRIu64 " and %0*" PRIu64,
                bagi_shown(list->env, list->path), name->number, (int)name[-1].digits,
                name->number, (int)name->digits, name->number);
    }
    return code;
}

/* List a dataset's shards; free list->array, even after a failure. If only the names
 * are at fault, the list is complete. */
BAGI_COLD static bags_code bagi_shard_list_read(
    const bagi_env *env, const char *path, bagi_shard_list *list, bags_error *err) {
    memset(list, 0, sizeof *list);
    list->env = env;
    list->path = path;
    list->err = err;
    int error = env->io.list
                    ? env->io.list(env->io.user, path, bagi_shard_list_collect, list)
                    : ENOSYS;
    if (error)
        return bagi_fail_io(env, error, path, error == ENOENT ? "open" : "list", err);
    if (list->count > 1)
        qsort(list->ids, list->count, sizeof *list->ids, bagi_shard_list_order);
    return bagi_shard_list_check(list, err);
}

/* Check a pair of worker numbers; shard_stop 0 becomes 1. */
BAGI_COLD static bags_code bagi_check_worker(
    const char *path, uint64_t start, uint64_t *stop, bags_error *err) {
    if (*stop == 0)
        *stop = 1;
    if (start < *stop)
        return bagi_check_path(path, err);
    return bags_fail(err, BAGS_ERROR_ARGUMENT,
        "%s: shard_start out of range (%" PRIu64 ", shard_stop is %" PRIu64 ")",
        path ? bags_path_tail(path) : "", start, *stop);
}

/* Refuse missing numbers among a worker's shards; the message lists the first 20. `why`
 * states the possible cause and the remedy. */
BAGI_COLD static bags_code bagi_check_gaps(const bagi_shard_list *list, uint64_t start,
    uint64_t step, const char *why, bags_error *err) {
    uint64_t next = start, found = 0, missing = 0;
    char numbers[512] = "";
    size_t used = 0, listed = 0;
    for (size_t i = 0; i < list->count; i++) {
        uint64_t number = list->ids[i].number;
        if (!bagi_is_of_worker(list->ids[i], start, step))
            continue;
        found += number >= next; /* counts two shards with the same number once */
        if (number > next)
            missing += (number - next) / step;
        for (; next < number && listed < 20; next += step) {
            int size = snprintf(numbers + used, sizeof numbers - used, "%s%" PRIu64,
                listed++ ? ", " : "", next);
            used += size > 0 ? (size_t)size : 0;
        }
        next = bagi_shard_after(number, step);
    }
    if (!missing)
        return BAGS_OK;
    bags_fail(err, BAGS_ERROR_GAP,
        "%s: missing shards %s%s (found %" PRIu64 " of %" PRIu64 "): %s",
        bagi_shown(list->env, list->path), numbers, missing > listed ? ", ..." : "",
        found, found + missing, why);
    err->remedy = bagi_remedy(why, err->message);
    return BAGS_ERROR_GAP;
}

/* Why a reader refuses gaps. */
#define BAGI_GAPS_READ                                                                 \
    "lost, or their workers are not done; set allow_gaps to read the others, or "      \
    "close gaps with bags_finalize"

#define BAGI_SHARDS_AHEAD 512 /* shards that are looked up at once, ... */
#define BAGI_BAGS_AHEAD 64    /* ... if all of their Bags are, too */

/* Announce that all Bags of a shard may be opened soon, with their checksums. */
static void bagi_shard_expect(const bagi_dir *dir, const bagi_spec *spec) {
    bagi_bag_options bag_options = bagi_bag_options_new();
    bag_options.verify_checksums = true;
    for (size_t i = 0; i <= spec->count; i++) {
        bag_options.name = bagi_spec_name(spec, i);
        bagi_bag_expect(dir, &bag_options);
    }
}

/* Call each() with the directory of every shard of a worker, and its index among the
 * names, until it fails. Announce that the following shards may be opened soon. */
BAGI_COLD static bags_code bagi_each_shard(const bagi_shard_list *list, uint64_t start,
    uint64_t stop, bags_code (*each)(void *user, const bagi_dir *dir, size_t index),
    void *user, bags_error *err) {
    const bagi_env *env = list->env;
    bags_code code = BAGS_OK;
    size_t ahead = env->io.expect ? 0 : SIZE_MAX;
    for (size_t i = 0; i < list->count && !code; i++) {
        if (!bagi_is_of_worker(list->ids[i], start, stop))
            continue;
        const bagi_spec *spec = list->spec;
        size_t step = !spec ? BAGI_SHARDS_AHEAD : spec->count ? BAGI_BAGS_AHEAD : 1;
        for (; ahead < list->count && ahead < i + step; ahead++) {
            bags_error ignored;
            bagi_dir dir;
            if (!bagi_is_of_worker(list->ids[ahead], start, stop))
                continue;
            if (!bagi_shard_dir(&dir, env, list->path, list->ids[ahead], &ignored)) {
                bagi_dir_expect(&dir, "spec.json", "");
                bagi_dir_expect(&dir, "refs", ".bag");
                if (spec)
                    bagi_shard_expect(&dir, spec);
            }
            bagi_dir_free(&dir);
        }
        bagi_dir dir;
        code = bagi_shard_dir(&dir, env, list->path, list->ids[i], err);
        if (!code)
            code = each(user, &dir, i);
        bagi_dir_free(&dir);
    }
    return code;
}

/* ---- classifying directories ---- */

static bool bagi_is_finished(const bagi_dir *dir, bags_code *code, bags_error *err) {
    return bagi_dir_has(dir, "spec.json", "", code, err);
}

typedef struct bagi_prefetch_list {
    const bagi_dir *dir;
    bagi_prefetch files[BAGI_PREFETCHES];
    size_t count;
} bagi_prefetch_list;

/* For the list hook: open a Bag. */
BAGI_COLD static int bagi_prefetch_found(void *user, const char *name) {
    bagi_prefetch_list *list = (bagi_prefetch_list *)user;
    const char *end = strrchr(name, '.');
    bagi_prefetch *file = &list->files[list->count];
    bags_error ignored;
    if (list->count < BAGI_PREFETCHES && end && strcmp(end, ".bag") == 0) {
        if (bagi_prefetch_open(list->dir, name, "", file, &ignored) || !file->handle)
            bagi_prefetch_close(file);
        else
            list->count++;
    }
    return list->count < BAGI_PREFETCHES ? 0 : ECANCELED;
}

/* If the spec.json of an unsharded dataset is on the disk, request it and the ends of
 * the Bags, and set *cold. */
BAGI_COLD static bags_code bagi_prefetch_dataset(
    const bagi_dir *dir, bool *cold, bags_error *err) {
    const bags_io *io = &dir->env->io;
    bagi_prefetch_list list;
    list.dir = dir;
    list.count = 1;
    bags_code code = bagi_prefetch_open(dir, "spec.json", "", &list.files[0], err);
    *cold = !code && io->list && bagi_prefetch_is_cold(&list.files[0]);
    if (*cold)
        (void)io->list(io->user, dir->path, bagi_prefetch_found, &list);
    for (size_t i = 0; i < list.count && *cold; i++)
        bagi_prefetch_end(&list.files[i]);
    for (size_t i = 0; i < list.count; i++)
        bagi_prefetch_close(&list.files[i]);
    return code;
}

/* True for an unsharded dataset or a shard, finished or not. spec.json.partial is
 * checked before spec.json, so that a rename in between cannot hide both. */
static bool bagi_is_single(const bagi_dir *dir, bags_code *code, bags_error *err) {
    return bagi_dir_has(dir, "spec.json", ".partial", code, err) ||
           bagi_is_finished(dir, code, err);
}

/* Refuse shards in a directory that is bagi_is_single: it is unclear which of the two
 * datasets is meant. */
BAGI_COLD static bags_code bagi_check_mixed(const bagi_dir *dir, bags_error *err) {
    const bagi_env *env = dir->env;
    bags_error why;
    bagi_shard_list list;
    bags_code code = bagi_shard_list_read(env, dir->path, &list, &why);
    if (code && why.system == ENOSYS) /* an unsharded dataset needs no list */
        code = BAGS_OK;
    else if (code)
        *err = why;
    for (size_t i = 0; i < list.count && !code; i++) {
        bagi_dir shard;
        code = bagi_shard_dir(&shard, env, dir->path, list.ids[i], err);
        bags_path_kind kind = bagi_kind(env, shard.path, &code, err);
        bagi_dir_free(&shard);
        if (kind == BAGS_PATH_DIRECTORY)
            code = bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: has both spec.json and shards (%0*" PRIu64
                "): two datasets were written to one path; move one of them "
                "away",
                dir->shown, (int)list.ids[i].digits, list.ids[i].number);
    }
    bags_buffer_free(&list.array);
    return code;
}

/* For the list hook: *left becomes 0 if one of the first names is a shard's file. */
BAGI_COLD static int bagi_find_shard_file(void *left, const char *name) {
    const char *end = strrchr(name, '.');
    bool found =
        strncmp(name, "spec.json", 9) == 0 || (end && !strcmp(end, ".partial"));
    for (size_t i = 0; end && i < sizeof bagi_suffix / sizeof *bagi_suffix; i++)
        found = found || strcmp(end, bagi_suffix[i]) == 0;
    *(int *)left = found ? 0 : *(int *)left - 1;
    return *(int *)left ? 0 : ECANCELED;
}

/* Test the lock of a shard's record: EWOULDBLOCK if its writer is running, 0 if no
 * writer holds it, or another value if this is unknown because locks are unavailable or
 * have no effect. The lock is released at once. */
BAGI_COLD static int bagi_test_lock(const bagi_dir *dir) {
    const bagi_env *env = dir->env;
    const bags_io *io = &env->io;
    const char *path = bagi_dir_path(dir, "spec.json", ".partial");
    void *file = NULL, *second = NULL;
    bags_error ignored;
    int error = ENOLCK;
    if (io->lock && !bagi_open(env, path, BAGS_IO_READ, &file, &ignored))
        error = io->lock(io->user, file);
    if (!error && (bagi_open(env, path, BAGS_IO_READ, &second, &ignored) ||
                      io->lock(io->user, second) != EWOULDBLOCK))
        error = ENOLCK;
    bagi_close_read(env, second);
    bagi_close_read(env, file);
    return error;
}

/* Other directories may have numeric names, too, as in /proc. */
BAGI_COLD static bags_code bagi_fail_unfinished(const bagi_dir *dir, bags_error *err) {
    const bags_io *io = &dir->env->io;
    const int most = 100;
    int left = most;
    if (io->list)
        (void)io->list(io->user, dir->path, bagi_find_shard_file, &left);
    int lock = bagi_test_lock(dir);
    if (left > 0 && left < most)
        return bags_fail(err, BAGS_ERROR_UNFINISHED,
            "%s: not a shard (it has no file of one)", dir->shown);
    if (lock == EWOULDBLOCK)
        return bags_fail(err, BAGS_ERROR_UNFINISHED,
            "%s: unfinished (no spec.json): its writer is running", dir->shown);
    if (lock == 0)
        return bags_fail(err, BAGS_ERROR_UNFINISHED,
            "%s: unfinished (no spec.json), and no writer has locked it; run "
            "bags_recover",
            dir->shown);
    return bags_fail(err, BAGS_ERROR_UNFINISHED,
        "%s: unfinished (no spec.json); if its writer crashed, run bags_recover",
        dir->shown);
}

/* For bagi_each_shard, with a bags_error as `user`: refuse an unfinished shard. */
BAGI_COLD static bags_code bagi_check_finished(
    void *user, const bagi_dir *dir, size_t index) {
    bags_error *err = (bags_error *)user;
    bags_code code = BAGS_OK;
    (void)index;
    bool finished = bagi_is_finished(dir, &code, err);
    return code || finished ? code : bagi_fail_unfinished(dir, err);
}

/* Find the dataset at a path and list its shards, after checking that there are not two
 * datasets. Free list->array, even after a failure. If only the names are at fault, the
 * list is complete. */
BAGI_COLD static bags_code bagi_shard_list_find(
    const bagi_dir *dir, bagi_shard_list *list, bags_error *err) {
    const bagi_env *env = dir->env;
    const bagi_shard_id dataset = {0, 0};
    bags_code code = BAGS_OK;
    bags_path_kind kind = bagi_kind(env, dir->path, &code, err);
    memset(list, 0, sizeof *list);
    if (!code && kind == BAGS_PATH_NONE)
        code = bagi_fail_io(env, ENOENT, dir->path, "open", err);
    else if (!code && kind != BAGS_PATH_DIRECTORY)
        code = bags_fail(err, BAGS_ERROR_MISSING,
            "%s: a file, not the directory of a dataset", dir->shown);
    list->single = bagi_is_single(dir, &code, err);
    if (list->single) {
        list->env = env;
        list->path = dir->path;
        code = bagi_shard_list_push(list, dataset, err);
        return code ? code : bagi_check_mixed(dir, err);
    }
    if (!code)
        code = bagi_shard_list_read(env, dir->path, list, err);
    if (!code && list->count == 0)
        code = bags_fail(err, BAGS_ERROR_MISSING,
            "%s: not a dataset (no spec.json, no shards)", dir->shown);
    return code;
}

/* ---- a finished shard ---- */

/* Determine whether a shard is split. Without refs.bag it must be: no field is a
 * sequence, and there is an index. */
BAGI_COLD static bags_code bagi_shard_variant(
    const bagi_dir *dir, const bagi_spec *spec, bool *split, bags_error *err) {
    bool sequence = false;
    bags_code code = BAGS_OK;
    bool found = bagi_dir_has(dir, "refs", ".bag", &code, err);
    *split = !code && !found;
    if (!*split || spec->count == 0)
        return code;
    for (size_t i = 0; i < spec->count && !found && !code; i++)
        found = bagi_dir_has(dir, spec->fields[i].name, ".idx", &code, err);
    for (size_t i = 0; i < spec->count; i++)
        sequence = sequence || spec->types[i].sequence;
    *split = found && !sequence;
    if (code || *split)
        return code;
    return bags_fail(err, BAGS_ERROR_MISSING,
        "%s/refs.bag: missing, and not a split dataset (those have .idx files "
        "and no sequences)",
        dir->shown);
}

/* Count a shard's datapoints: refs.bag has one blob per datapoint; if the shard is
 * split, all fields have the same length. *bag_options states how to open the Bags,
 * except for their names. */
BAGI_COLD static bags_code bagi_shard_measure(const bagi_dir *dir,
    const bagi_spec *spec, const bagi_bag_options *bag_options, const bag_reader *refs,
    bool allow_unequal, uint64_t *length, bags_error *err) {
    bool split = bag_options->split;
    bool empty = !split && refs->file[BAGI_BLOBS].size == 0;
    bagi_bag_options opening = *bag_options;
    size_t least = 0, most = 0;
    uint64_t low = UINT64_MAX, high = 0;
    *length = split ? 0 : refs->length;
    for (size_t i = 0; i < spec->count && (split || empty); i++) {
        bag_reader *bag = NULL;
        opening.name = spec->fields[i].name;
        BAGI_TRY(bagi_bag_open(dir, &opening, NULL, &bag, err));
        uint64_t blobs = bag->length;
        bool filled = bag->layout == BAGI_V1 && blobs > 0;
        bagi_bag_free(bag);
        if (blobs < low) {
            low = blobs;
            least = i;
        }
        if (blobs > high) {
            high = blobs;
            most = i;
        }
        if (empty && filled)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s/refs.bag: never closed (0 bytes, but %s.bag has blobs)", dir->shown,
                opening.name);
    }
    if (!split || spec->count == 0)
        return BAGS_OK;
    *length = low;
    if (low == high || allow_unequal)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_UNFINISHED,
        "%s: fields of unequal length (\"%.200s\" has %" PRIu64
        " blobs, \"%.200s\" has %" PRIu64 ")",
        dir->shown, spec->fields[least].name, low, spec->fields[most].name, high);
}

/* True if Bags may be empty files: only granular 0.20 and 0.21 write these, and
 * refs.bag shows whether they wrote the shard. */
static bool bagi_refs_allow_empty(const bag_reader *refs) {
    return refs && (refs->layout == BAGI_V2 || refs->length == 0);
}

/* Find the CRC that all checksum trailers of a shard contain unless one of its files
 * was replaced. All trailers must exist. `refs` is the trailer of refs.crc, if already
 * read. */
BAGI_COLD static bags_code bagi_shard_bind(const bagi_dir *dir, const bagi_spec *spec,
    bool split, const bags_trailer *refs, bagi_record *record, bags_error *err) {
    record->bound = record->spec;
    for (size_t i = 0; i < spec->count + !split; i++) {
        const char *name = bagi_spec_name(spec, i);
        bags_trailer trailer;
        if (refs && i == spec->count)
            trailer = *refs;
        else
            BAGI_TRY(bagi_crcs_read_trailer(dir, name, &trailer, err));
        record->bound = bagi_bind(record->bound, name, trailer.crcs);
    }
    record->is_bound = true;
    return BAGS_OK;
}

/*
 * Open a finished shard by its spec.json, as *bag_options states except for names.
 * Returns its number of datapoints and, in *bag_options, its variant, the values its
 * files must match, and whether Bags may be empty files.
 */
BAGI_COLD static bags_code bagi_shard_open(bagi_common *common, const bagi_dir *dir,
    bool allow_unequal, bagi_bag_options *bag_options, uint64_t *length,
    bags_error *err) {
    const bagi_spec *spec = &common->spec;
    bagi_record *record = &bag_options->record;
    bag_reader *refs = NULL;
    bool verify = BAGI_CHECKSUMS && bag_options->verify_checksums;
    BAGI_TRY(bagi_common_read(common, dir, "", NULL, record, err));
    bagi_bag_options opening = *bag_options;
    opening.name = "refs";
    opening.no_mmap = opening.allow_empty = true;
    opening.cache_index = false;
    bags_code code = bagi_bag_open(dir, &opening, NULL, &refs, err);
    if (code == BAGS_ERROR_MISSING) {
        BAGI_TRY(bagi_shard_variant(dir, spec, &opening.split, err));
        code = opening.split ? BAGS_OK : code; /* refs.bag exists */
    }
    if (!code && verify)
        code = bagi_shard_bind(
            dir, spec, opening.split, refs ? &refs->trailer : NULL, record, err);
    if (!code && verify && refs)
        code = bagi_crcs_check_shard(
            refs->file[BAGI_CRCS].shown, &refs->trailer, record, err);
    if (verify && refs)
        code = bagi_check_found(
            dir->env, refs->file[BAGI_BLOBS].path, record->identity, code, err);
    opening.record = *record;
    bag_options->split = opening.split;
    if (!code)
        code =
            bagi_shard_measure(dir, spec, &opening, refs, allow_unequal, length, err);
    bag_options->allow_empty = bagi_refs_allow_empty(refs);
    bagi_bag_free(refs);
    return code;
}

/* ---- an unfinished shard ---- */

/* `bags` may be NULL, and so may each of its elements. */
static void bagi_bags_free(const bagi_env *env, bag_reader **bags, size_t count) {
    for (size_t i = 0; bags && i < count; i++)
        bagi_bag_free(bags[i]);
    if (bags)
        bagi_free(&env->memory, bags, count * sizeof *bags);
}

/* Open an unfinished shard's Bags for bagi_scan_rows: one per field, then refs. Refs is
 * opened first, so that the fields cover everything it refers to. *listed is set, even
 * after a failure, if it lists a datapoint; otherwise the other Bags stay NULL, unless
 * *listed was true on entry. Free the Bags with bagi_bags_free, even after a
 * failure. */
BAGI_COLD static bags_code bagi_unfinished_open(const bagi_dir *dir,
    const bagi_spec *spec, const bagi_bag_options *bag_options, bagi_files *files,
    bag_reader ***out, bool *listed, bags_error *err) {
    size_t count = spec->count + 1;
    bagi_bag_options opening = *bag_options;
    bag_reader **bags =
        (bag_reader **)bagi_alloc(&dir->env->memory, count * sizeof *bags, err);
    bags_code code = bags ? BAGS_OK : BAGS_ERROR_MEMORY;
    *out = bags;
    opening.split = true;
    opening.no_mmap = opening.unfinished = opening.grows = true;
    for (size_t i = count; i-- > 0 && !code;) {
        opening.name = bagi_spec_name(spec, i);
        if (i + 1 == count || *listed)
            code = bagi_bag_open(dir, &opening, files, &bags[i], err);
        if (i + 1 == count)
            *listed = !code && (*listed || bags[i]->length > 0);
    }
    return code;
}

#ifndef BAGS_NO_WRITER
/* ---- the mark of a finalized dataset ---- */

/* A dataset whose shards were renumbered is marked by an empty file in its first shard
 * that every reader ignores. It exists before a shard is renamed, and moves with the
 * shard to 000000. */
#define BAGI_MARK "finalized"

/* True if a shard has the mark. */
BAGI_COLD static bool bagi_has_mark(const bagi_env *env, const char *path,
    bagi_shard_id name, bags_code *code, bags_error *err) {
    bagi_dir dir;
    if (bagi_shard_dir(&dir, env, path, name, err))
        *code = BAGS_ERROR_MEMORY;
    bool marked = bagi_dir_has(&dir, BAGI_MARK, "", code, err);
    bagi_dir_free(&dir);
    return marked;
}

/* ========================================================================
 * >>dataset-write
 * Owns every change to an unfinished shard: claiming, writing, finishing, resuming,
 * recovering and removing it. Called by bags_writer_*, and by bags_recover in
 * >>recover. Invariants at every moment, even after a kill:
 *
 *   - A shard is finished if it has spec.json; after that, this section only removes
 *     its journals. Until its directory is synced, a power failure may undo the rename.
 *     The shard is then unfinished again, with all its data on stable storage unless
 *     no_sync is set.
 *   - A datapoint exists once its entry in refs.idx does; the data it refers to reached
 *     the system earlier. A partial datapoint exists once its draft does.
 *   - Files are changed only while the record is held: it is locked, and was then found
 *     at its path (bagi_writer_check).
 *
 * A shard's life cycle, with the function that makes each transition:
 *
 *     (nothing) <-----------------------------------------------------+
 *         | bagi_writer_claim: mkdir, then                            |
 *         v spec.json.partial, locked, written, synced                |
 *     CLAIMED    the fields' .bag, .idx and .crc are created          |
 *         | bags_writer_append, _end                                  |
 *         v                                                           |
 *     WRITTEN    in buffers that spill when full. A blob's            |
 *                NAME.dict is synced before the blob is written. The  |
 *                first blobs of a field may be held to make it        |
 *         | bags_writer_flush: blobs and .crc of the fields,          |
 *         | their .idx, refs.bag and refs.crc, refs.idx; within a     |
 *         v datapoint a draft of it, in refs.partial                  |
 *     FLUSHED    survives the end of the process                      |
 *         | bags_writer_sync                                          |
 *         v                                                           |
 *     SYNCED     survives a power failure                             |
 *         | bagi_writer_finish: tables, trailers, sync, directory,    |
 *         v rename spec.json.partial to spec.json, directory          |
 *     COMMITTED  the .idx are removed, or kept if requested           |
 *                                                                     |
 *     A crash anywhere above COMMITTED leaves the same files without  |
 *     a lock. bagi_writer_find (resume, recover): lock, scan; _take:  |
 *       no datapoint: bagi_writer_discard ----------------------------+
 *       otherwise: truncate the bytes after the last one. The shard is RECOVERED,
 *       that is, WRITTEN again. (append refuses it: its input must not be appended
 *       again)
 *
 * refs.partial is a list of drafts, all of the same size. Each flush within a datapoint
 * appends one. The first such flush creates the file, and it is removed together with
 * the journals; no reader opens it, and older versions ignore it.
 *
 *     row            8 bytes: the number of the datapoint in the shard
 *     first, count   8 and 8 bytes for each field, sorted by name: its blobs so far;
 *                    count is 0 for a plain field without a value
 *     CRC            4 bytes: the CRC-32C of the draft up to here
 *
 * All integers are little-endian. Only drafts for the datapoint after the last one in
 * refs.idx count, and only the last of these with complete blobs; so a draft becomes
 * void once its datapoint is flushed. A draft with all counts 0 voids the earlier
 * drafts of this datapoint and of later ones, because the datapoint was cancelled or is
 * being rewritten. It is on disk before their blobs are overwritten.
 *
 * Locks are system locks on an open file, so they end with the process. Each operation
 * takes its locks in this order, and never waits for one while holding another:
 *
 *     who                  locks               if another process holds it
 *     writer, claiming     spec.json.partial,  waits 0.2 s, since a dry run locks it
 *                          which it created    for a moment; if a recovery took it,
 *                                              claims again once that removed it
 *     resuming writer,     spec.json.partial,  fails with BAGS_ERROR_LOCKED; all except
 *     append, bags_recover created if missing  bags_recover wait 0.02 s first
 *     dry run              spec.json.partial,  reports BAGS_ERROR_LOCKED
 *                          for a moment
 *     readers that refuse  the same            report that the writer is running
 *     an unfinished shard
 *     bags_checksum        spec.json           fails with BAGS_ERROR_LOCKED
 *     bags_finalize        spec.json of each   fails with BAGS_ERROR_LOCKED
 *                          shard it renames
 *     bag_writer, and      NAME.bag            fails with BAGS_ERROR_LOCKED
 *     bags_checksum of a
 *     standalone Bag
 *     live readers         nothing             read up to the journals' ends
 *
 * The lock on spec.json.partial covers everything in its directory; it survives the
 * rename to spec.json until the writer closes the file. mkdir, not a lock, decides
 * between two writers that claim the same number. If bags_finalize and a claim run at
 * the same time, at least one sees the other: bags_finalize makes its mark and then
 * lists the shards; a claim creates its directory and then looks for the mark.
 * ====================================================================== */

/* A writer's field, apart from its type. */
typedef struct bagi_slot_state {
    size_t order; /* in slot i: the sorted index of the caller's field i */
    bool given;   /* the current datapoint already has this field */
} bagi_slot_state;

struct bags_writer {
    bagi_writing writing;
    bags_writer_options options;
    bool sharded;
    char *path;             /* of the dataset */
    const char *shown;      /* the same in messages */
    bagi_spec spec;         /* includes its text if the fields are known */
    bagi_slot_state *slots; /* one per field */
    bagi_output *outputs;   /* one per field, then refs */
    uint64_t number;        /* of the next shard */
    uint64_t length, shards;
    uint64_t size;    /* of the Bags in finished shards */
    uint64_t resumed; /* datapoints that existed, with RESUME */
    double flushed;   /* time of the last flush for flush_seconds */

    /* The shard being written. */
    bagi_dir dir;       /* owns its path; NULL: no shard */
    bagi_stream record; /* its spec.json.partial */
    bagi_stream drafts; /* its refs.partial, if it has one */

    /* The dataset's directories. */
    void *last;        /* the previous shard's spec.json, open; NULL: none */
    char *last_path;   /* of it */
    bool created_path; /* this writer created the directory of the shards */
    bool compared;     /* the fields were compared with another worker's shard */

    /* The current datapoint. */
    bags_ref *refs;
    unsigned char *row;  /* its row of refs.bag, or its draft */
    bags_buffer scratch; /* for codecs */
    bags_buffer recoded; /* a held blob, encoded again */
    bool begun;          /* started by bags_writer_begin */
    bool partial;        /* some of its blobs may have been appended */
    bool drafted;        /* it has a draft */
    bags_error pending;  /* why it is refused */
    bags_error refusal;  /* the first refused call */

    const bags_recover_options *recovering; /* NULL: the shard is being written or
                                               resumed */
};

#ifdef BAGS_DEBUG
/*
 * Invariants of a writer between calls, in each state.
 *
 *   no shard (dir.path is NULL): nothing is open, and no datapoint was begun
 *   writing:   the record and the Bags are open, as bagi_output_assert states; refs has
 *              a blob for every datapoint of the shard
 *   a datapoint is being written (partial): only then may a field, but not refs, have
 *   more blobs than it keeps. bags_writer_begin also sets partial
 *   failed:    files may be closed; any open files belong to a shard
 *   always:    a worker's next number is its own; this shard's datapoints are included
 *              in the total
 */
static void bagi_writer_assert(const bags_writer *writer) {
    const bagi_output *refs = &writer->outputs[writer->spec.count];
    bool failed = writer->writing.failure.code != BAGS_OK;
    assert(writer->options.shard_start < writer->options.shard_stop);
    assert(!writer->sharded || writer->number >= BAGI_SHARD_LIMIT ||
           writer->number % writer->options.shard_stop == writer->options.shard_start);
    if (!writer->dir.path) {
        assert(!writer->record.handle && !refs->stream[BAGI_BLOBS].handle);
        assert(failed || (!writer->begun && !writer->partial));
        return;
    }
    assert(failed || writer->partial || !writer->begun);
    if (failed)
        return;
    assert(writer->record.handle && refs->stream[BAGI_BLOBS].handle);
    assert(refs->length - refs->resumed.length <= writer->length);
    for (size_t i = 0; i <= writer->spec.count; i++) {
        const bagi_output *output = &writer->outputs[i];
        bool more = writer->partial && i < writer->spec.count;
        assert(output->checksums == refs->checksums);
        assert(more || output->length == output->kept.length);
        bagi_output_assert(output);
    }
}
#endif

/* Call a function for these streams of all Bags in the shard. */
static void bagi_writer_each(
    bags_writer *writer, unsigned streams, void (*each)(bagi_stream *stream)) {
    if (writer->outputs)
        bagi_outputs_each(writer->outputs, writer->spec.count + 1, streams, each);
}

/* ---- claiming a shard ---- */

/* Enable checksums for all Bags of the shard. */
static void bagi_writer_add_checksums(bags_writer *writer) {
    for (size_t i = 0; i <= writer->spec.count; i++)
        writer->outputs[i].checksums = true;
}

/* Fail unless the shard is still this writer's: its record, spec.json.partial, is the
 * file that the writer holds open and locked; no other process has finished it; and its
 * Bags' paths lead to the files being written. Called before anything that changes
 * files by path or reports them as written. */
static bags_code bagi_writer_check(bags_writer *writer) {
    bags_error *failure = &writer->writing.failure;
    if (!bagi_writing_is_ours(&writer->writing, writer->path) || failure->code)
        return failure->code;
    bagi_stream_check(&writer->record);
    bagi_stream_check(&writer->drafts);
    if (bagi_is_finished(&writer->dir, &failure->code, failure))
        bags_fail(failure, BAGS_ERROR_CHANGED,
            "%s: has a spec.json that another process wrote; nothing was "
            "changed",
            writer->dir.shown);
    bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_check);
    return failure->code;
}

enum { BAGI_LOCK_TRIES = 200, BAGI_RESUME_TRIES = 20 }; /* a millisecond each */

/* Lock the open record. If it was replaced or removed in between, another process has
 * the shard. */
BAGI_COLD static bags_code bagi_writer_lock(
    bags_writer *writer, int tries, bags_error *err) {
    const bagi_stream *record = &writer->record;
    bags_code code = BAGS_ERROR_LOCKED;
    for (int i = 0; i < tries && code == BAGS_ERROR_LOCKED; i++) {
        if (i)
            bagi_pause();
        code = bagi_lock_file(&writer->writing.env, record->handle, record->path,
            writer->dir.path, BAGI_LOCKED_BY_WRITER, err);
    }
    if (code == BAGS_ERROR_CHANGED)
        code = bags_fail(err, BAGS_ERROR_LOCKED,
            "%s: unfinished; another process is finishing or removing it",
            writer->dir.shown);
    return code;
}

/* Open and lock spec.json.partial of a shard left by another writer, or create it if
 * that writer crashed before it could. Fail if locks have no effect, as on some network
 * file systems, because another open file could lock the record, too. (Claiming a shard
 * is safe without locks.) With BAGS_IO_READ, only test the lock. */
BAGI_COLD static bags_code bagi_writer_open_record(
    bags_writer *writer, int mode, bags_error *err) {
    const bagi_env *env = &writer->writing.env;
    bagi_stream *record = &writer->record;
    void *second = NULL;
    record->path = bagi_dir_copy(&writer->dir, "spec.json", ".partial", err);
    bags_code code = record->path
                         ? bagi_open(env, record->path, mode, &record->handle, err)
                         : BAGS_ERROR_MEMORY;
    if (code == BAGS_ERROR_EXISTS) /* its writer just created it */
        code = bags_fail(
            err, BAGS_ERROR_LOCKED, "%s: " BAGI_LOCKED_BY_WRITER, writer->dir.shown);
    if (!code)
        code =
            bagi_writer_lock(writer, writer->recovering ? 1 : BAGI_RESUME_TRIES, err);
    if (!code)
        code = bagi_open(env, record->path, BAGS_IO_READ, &second, err);
    if (!code) {
        int error = env->io.lock(env->io.user, second);
        bagi_close_read(env, second);
        if (!error)
            code = bags_fail(err, BAGS_ERROR_IO,
                "%s: locks have no effect in this file system, and its "
                "writer may still be running; copy the dataset to a local "
                "disk to resume or recover it",
                bagi_shown(env, record->path));
        else if (error != EWOULDBLOCK)
            code = bagi_fail_io(env, error, record->path, "lock", err);
    }
    if (mode == BAGS_IO_READ) /* a writer that is just starting must not fail */
        bagi_stream_forget(record);
    return code;
}

/* Forget the shard; leave its files as they are. */
BAGI_COLD static void bagi_writer_leave(bags_writer *writer) {
    for (size_t i = 0; writer->outputs && i <= writer->spec.count; i++)
        writer->outputs[i].checksums = false;
    bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_close);
    bagi_stream_close(&writer->drafts);
    writer->drafted = false;
    bagi_stream_forget(&writer->record);
    bagi_dir_free(&writer->dir);
    writer->writing.no_sync = writer->options.no_sync;
}

/* After bags_finalize, a worker's numbers no longer follow from shard_start and
 * shard_stop: it would continue another worker's shards. */
BAGI_COLD static bags_code bagi_fail_finalized(
    const bags_writer *writer, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: finalized: its shards were renumbered, so that no worker can resume; "
        "set BAGS_EXISTING_APPEND to add shards",
        writer->shown);
}

/* Fail if another dataset replaced this writer's, or with BAGS_ERROR_EXISTS if
 * bags_finalize is renumbering it. */
BAGI_COLD static bags_code bagi_writer_check_last(
    const bags_writer *writer, bags_error *err) {
    const bagi_env *env = &writer->writing.env;
    bags_code code = BAGS_OK;
    if (writer->sharded && writer->options.existing != BAGS_EXISTING_APPEND &&
        bagi_has_mark(env, writer->path, bagi_shard_name(0), &code, err))
        code = bagi_fail_finalized(writer, err);
    if (!code && writer->last)
        code = bagi_check_same(env, writer->last, writer->last_path, err);
    return code;
}

/* Between two shards, a call that reports the finished shard must check that it still
 * exists. */
BAGI_COLD static void bagi_writer_check_idle(bags_writer *writer) {
    bags_error why;
    if (!writer->writing.failure.code && !writer->dir.path && writer->last &&
        bagi_writer_check_last(writer, &why) && why.code != BAGS_ERROR_EXISTS)
        writer->writing.failure = why;
}

/* Remove an unfinished shard whose record is held: the Bags' files, unless they are
 * next to another process's spec.json; the record; and the directory, unless it
 * contains something else (*other). Drafts are removed first, and the removal is
 * synced, because otherwise the blobs they refer to could be missing. The files of refs
 * are next: without refs.idx no datapoint exists, and without refs.crc recovery expects
 * no checksums, so an interrupted removal can be continued. Files are closed first, for
 * Windows. */
BAGI_COLD static bags_code bagi_writer_discard(
    bags_writer *writer, bool *other, bags_error *err) {
    const bagi_dir *dir = &writer->dir;
    const bags_io *io = &writer->writing.env.io;
    const bagi_stream *record = &writer->record;
    bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_close);
    bagi_stream_close(&writer->drafts);
    bags_code code = bagi_check_same(dir->env, record->handle, record->path, err);
    bool remove = !bagi_is_finished(dir, &code, err);
    if (remove && bagi_dir_has(dir, "refs", BAGI_DRAFTS, &code, err)) {
        code = bagi_dir_remove(dir, "refs", BAGI_DRAFTS, err);
        if (!code)
            code = bagi_sync_dir(dir->env, dir->path, err);
    }
    for (size_t i = writer->spec.count + 1; i-- > 0 && remove;)
        for (size_t k = sizeof bagi_suffix / sizeof *bagi_suffix; k-- > 0 && !code;)
            code = bagi_dir_remove(
                dir, bagi_spec_name(&writer->spec, i), bagi_suffix[k], err);
    if (!code)
        code = bagi_check_same(dir->env, record->handle, record->path, err);
    if (!code)
        code = bagi_dir_remove(dir, "spec.json", ".partial", err);
    bagi_stream_forget(&writer->record);
    int error = code ? 0 : io->remove_dir(io->user, dir->path);
    *other = error == ENOTEMPTY || error == EEXIST;
    if (error && !*other)
        code = bagi_fail_io(dir->env, error, dir->path, "remove", err);
    bagi_writer_leave(writer);
    return code;
}

/* Remove the shard being written, unless it is complete and only syncing failed. Also
 * remove the dataset's directory if this writer created it and it is empty. */
BAGI_COLD static void bagi_writer_drop(bags_writer *writer, bags_error *err) {
    const bags_io *io = &writer->writing.env.io;
    bool other = false;
    if (writer->dir.path)
        bagi_writer_discard(writer, &other, err);
    if (writer->created_path && writer->shards == 0)
        io->remove_dir(io->user, writer->path);
}

/* Refuse to write shards into the directory of an unsharded dataset. */
BAGI_COLD static bags_code bagi_writer_check_single(bags_writer *writer) {
    bagi_dir dir;
    bags_error *err = &writer->writing.failure;
    bagi_dir_open(&dir, &writer->writing.env, writer->path, "", err);
    bool single = bagi_is_single(&dir, &err->code, err);
    bagi_dir_free(&dir);
    if (!single)
        return err->code;
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: not sharded: cannot append, and cannot resume with shard options",
        writer->shown);
}

/* The catalogue of a dataset (formats/storage/catalogue.h) is a file in the first
 * shard. It describes all shards, so it is removed before they change. */
BAGI_COLD static bags_code bagi_drop_catalogue(
    const bagi_env *env, const char *path, bagi_shard_id first, bags_error *err) {
    bagi_dir dir;
    bags_code code = bagi_shard_dir(&dir, env, path, first, err);
    if (!code)
        code = bagi_dir_remove(&dir, "catalogue", "", err);
    bagi_dir_free(&dir);
    return code;
}

/* The path to create already exists. In a sharded dataset it is this worker's next
 * shard, created by another worker with the same number or by an earlier run. */
BAGI_COLD static bags_code bagi_fail_claimed(
    const bags_writer *writer, bags_error *err) {
    const bags_writer_options *options = &writer->options;
    bags_error ignored = {BAGS_OK, 0, "", 0};
    const char *path = writer->dir.shown;
    if (options->existing != BAGS_EXISTING_APPEND &&
        bagi_dir_has(&writer->dir, "spec.json", ".partial", &ignored.code, &ignored))
        return options->existing == BAGS_EXISTING_RESUME
                   ? bags_fail(err, BAGS_ERROR_EXISTS,
                         "%s: already exists, unfinished; another writer has "
                         "just started it",
                         path)
                   : bags_fail(err, BAGS_ERROR_EXISTS,
                         "%s: already exists, unfinished; set "
                         "BAGS_EXISTING_RESUME to continue it",
                         path);
    if (writer->sharded)
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: already exists; another writer has the same shard_start, or the "
            "dataset was written before: set BAGS_EXISTING_RESUME to continue it, "
            "set BAGS_EXISTING_APPEND to add to it",
            path);
    if (options->existing)
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: already exists; it is finished, so that it cannot be resumed", path);
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: already exists; remove it, or write to a new path", path);
}

/* Enter a shard; if the dataset is sharded, the one with this name. */
BAGI_COLD static bags_code bagi_writer_enter(bags_writer *writer, bagi_shard_id name) {
    bags_error *failure = &writer->writing.failure;
    if (!writer->sharded)
        name.digits = 0;
    bagi_shard_dir(&writer->dir, &writer->writing.env, writer->path, name, failure);
    return failure->code;
}

/* Claim the next shard: create its directory. */
BAGI_COLD static bags_code bagi_writer_claim_dir(bags_writer *writer) {
    const bagi_env *env = &writer->writing.env;
    bags_error *err = &writer->writing.failure;
    if (writer->sharded && writer->number >= BAGI_SHARD_LIMIT)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: shard number too large (%" PRIu64 ", maximum 10^18 - 1)",
            writer->shown, writer->number);
    if (!bagi_writing_is_ours(&writer->writing, writer->path))
        return err->code;
    BAGI_TRY(bagi_writer_enter(writer, bagi_shard_name(writer->number)));
    bags_path_kind kind = bagi_kind(env, writer->path, &err->code, err);
    BAGI_TRY(err->code);
    BAGI_TRY(bagi_make_parents(env, writer->dir.path, err));
    int error = env->io.make_dir(env->io.user, writer->dir.path);
    if (error == EEXIST)
        return bagi_fail_claimed(writer, err);
    BAGI_TRY(bagi_fail_io(env, error, writer->dir.path, "create directory", err));
    writer->created_path =
        writer->sharded && (writer->created_path || kind == BAGS_PATH_NONE);
    return BAGS_OK;
}

/* Create the record and files of a shard whose directory was created. The record stays
 * locked as long as the writer lives. It is synced before any other file is created, so
 * a shard that has files but no record was not left by a writer. */
BAGI_COLD static bags_code bagi_writer_claim_files(bags_writer *writer) {
    const bagi_dir *dir = &writer->dir;
    const bagi_spec *spec = &writer->spec;
    bags_error *err = &writer->writing.failure, why;
    bagi_stream *record = &writer->record;
    bool checksum = writer->options.checksum, no_sync = writer->writing.no_sync;
    bagi_stream_open(record, dir, "spec.json", ".partial", BAGS_IO_CREATE);
    if (err->code == BAGS_ERROR_EXISTS) /* a recovery created it */
        err->code = BAGS_ERROR_LOCKED;
    BAGI_TRY(err->code);
    if (bagi_writer_lock(writer, BAGI_LOCK_TRIES, &why)) {
        *err = why;
        return why.code;
    }
    BAGI_TRY(bagi_writer_check(writer));
    bagi_stream_write(record, spec->text.data, spec->text_size);
    if (!no_sync)
        bagi_stream_sync(record);
    BAGI_TRY(err->code);
    BAGI_TRY(bagi_writer_check_last(writer, err)); /* too late for this shard */

    /* Only refs.crc is synced together with the record, even with no_sync, so that
     * recovery knows that there are checksums. */
    if (checksum) {
        bagi_writer_add_checksums(writer);
        bagi_stream_open(&writer->outputs[spec->count].stream[BAGI_CRCS], dir, "refs",
            ".crc", BAGS_IO_CREATE);
    }
    if (!err->code && (checksum || !no_sync))
        bagi_sync_dir(dir->env, dir->path, err);
    for (size_t i = 0; i <= spec->count; i++)
        bagi_output_open(
            &writer->outputs[i], dir, bagi_spec_name(spec, i), BAGS_IO_CREATE);
    if (!err->code && writer->sharded)
        bagi_writer_check_single(writer);
    if (!err->code && writer->sharded)
        bagi_drop_catalogue(dir->env, writer->path, bagi_shard_name(0), err);
    return err->code;
}

/* Claim the next shard, or leave no trace of it. If another process created a file or
 * locked the record, only files opened here are removed. */
BAGI_COLD static bags_code bagi_writer_claim_once(bags_writer *writer) {
    const bags_io *io = &writer->writing.env.io;
    bags_error ignored;
    bags_code code = bagi_writer_claim_dir(writer);
    if (code) {
        bagi_writer_leave(writer);
        return code;
    }
    code = bagi_writer_claim_files(writer);
    if (!code)
        return BAGS_OK;
    if (code == BAGS_ERROR_LOCKED)
        bagi_stream_forget(&writer->record);
    if (code == BAGS_ERROR_EXISTS || !writer->record.handle) {
        bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_remove);
        bagi_stream_remove(&writer->record);
        io->remove_dir(io->user, writer->dir.path);
        bagi_writer_leave(writer);
    }
    bagi_writer_drop(writer, &ignored);
    return code;
}

/* A recovery that sees the shard before its record is locked takes it for a crashed
 * writer's and removes it. In that case wait until it is gone, and claim it again. */
BAGI_COLD static bags_code bagi_writer_claim(bags_writer *writer) {
    bags_error *failure = &writer->writing.failure;
    bool taken = false; /* by a recovery */
    for (int tries = 1;; tries++) {
        failure->code = BAGS_OK;
        bags_code code = bagi_writer_claim_once(writer);
        taken = taken || code == BAGS_ERROR_LOCKED;
        bool again = code == BAGS_ERROR_LOCKED ||
                     (code == BAGS_ERROR_EXISTS && taken) ||
                     (code == BAGS_ERROR_MISSING && tries < 10);
        if (!again || tries == BAGI_LOCK_TRIES)
            return code;
        bagi_pause();
    }
}

/* ---- dictionaries ----
 * If a codec makes a dictionary from a field's first values, their blobs are held: they
 * are appended and counted like all others, but stay in the field's buffers. Flushing
 * the field releases them: the codec makes the dictionary, the writer stores it, and
 * the codec encodes the blobs again. */

/* Find the dictionary that a blob needs and, if the shard lacks it, store it. It is
 * synced before the blob is appended, because without it that blob and all later ones
 * would be lost. A failed write stops the writer. */
static bags_code bagi_writer_use(
    bags_writer *writer, size_t field, bags_view blob, bags_error *err) {
    const bagi_coder *coder = &writer->spec.coders[field];
    bagi_output *output = &writer->outputs[field];
    const bagi_dir *dir = &writer->dir;
    const char *name = bagi_spec_name(&writer->spec, field);
    bags_error *failure = &writer->writing.failure, why;
    bags_view bytes = {NULL, 0};
    why.code = BAGS_OK;
    BAGI_TRY(bagi_codec_result(
        coder->codec->dictionary->find(coder->state, blob, &bytes, &why), &why, err));
    if (output->stored)
        return BAGS_OK;
    if (bytes.size == 0 || bytes.size > BAGI_DICTIONARY_MAX)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "invalid dictionary size (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            (uint64_t)bytes.size, (uint64_t)BAGI_DICTIONARY_MAX);
    bagi_dictionary_sum sum = {
        true, bytes.size, bags_crc32c(0, bytes.data, bytes.size)};
    if (output->dictionary.exists && output->dictionary.crc != sum.crc)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "needs another dictionary than %s.dict of this shard", name);
    output->stored = true;
    if (output->dictionary.exists)
        return BAGS_OK;
    bagi_stream stream = BAGI_ZERO;
    stream.writing = &writer->writing;
    bagi_writer_check(writer);
    if (!failure->code && !bagi_dir_remove(dir, name, BAGI_DICTIONARY_NEW, failure))
        bagi_stream_open(&stream, dir, name, BAGI_DICTIONARY_NEW, BAGS_IO_CREATE);
    bagi_stream_write(&stream, bytes.data, bytes.size);
    bagi_stream_sync(&stream);
    bagi_stream_close(&stream);
    if (!failure->code)
        bagi_dir_rename(dir, name, BAGI_DICTIONARY_NEW, BAGI_DICTIONARY, failure);
    if (!failure->code)
        bagi_sync_dir(dir->env, dir->path, failure);
    output->dictionary = sum;
    return BAGS_OK;
}

/* Encode a blob again, with the dictionary. Replace it only if it becomes smaller. */
BAGI_COLD static bags_code bagi_writer_recode(
    bags_writer *writer, size_t field, bags_view *blob, bags_error *err) {
    const bagi_coder *coder = &writer->spec.coders[field];
    bags_view made = *blob;
    bags_error why;
    why.code = BAGS_OK;
    bags_code code = coder->codec->dictionary->recode(
        coder->state, *blob, &writer->recoded, &made, &why);
    if (code)
        return bagi_codec_result(code, &why, err);
    if (made.size < blob->size)
        *blob = made;
    return BAGS_OK;
}

/* Encode a field's held blobs again. Blobs never grow, so each overwrites only bytes
 * that were already read. */
BAGI_COLD static bags_code bagi_writer_replace(
    bags_writer *writer, size_t field, bags_error *err) {
    const bagi_coder *coder = &writer->spec.coders[field];
    bagi_output *output = &writer->outputs[field];
    bagi_stream *blobs = &output->stream[BAGI_BLOBS];
    const bagi_stream *crcs = &output->stream[BAGI_CRCS];
    const bagi_stream *ends = &output->stream[BAGI_ENDS];
    uint64_t first = output->held.length, from = output->held.end, to = from;
    for (uint64_t i = first; i < output->length; i++) {
        unsigned char *entry = ends->buffer + 8 * (i - first);
        uint64_t end = bagi_load_u64(entry);
        bags_view blob = {blobs->buffer + (from - blobs->base), (size_t)(end - from)};
        from = end;
        BAGI_TRY(bagi_writer_recode(writer, field, &blob, err));
        if (bagi_coder_needs(coder, blob))
            BAGI_TRY(bagi_writer_use(writer, field, blob, err));
        BAGI_TRY(writer->writing.failure.code);
        if (blob.size)
            memmove(blobs->buffer + (to - blobs->base), blob.data, blob.size);
        to += blob.size;
        bagi_store_u64(entry, to);
        if (BAGI_CHECKSUMS && output->checksums)
            bagi_store_u32(crcs->buffer + 4 * (i - first),
                bags_crc32c(
                    0, blobs->buffer + (to - blob.size - blobs->base), blob.size));
        if (i + 1 == output->kept.length)
            output->kept.end = to;
    }
    blobs->end = to;
    return BAGS_OK;
}

/* Release the held blobs of fields, so that they may pass to the system. A failure
 * stops the writer. */
BAGI_COLD static void bagi_writer_release(
    bags_writer *writer, size_t field, size_t stop) {
    bags_error *failure = &writer->writing.failure;
    for (; field < stop && !failure->code; field++) {
        const bagi_coder *coder = &writer->spec.coders[field];
        bagi_output *output = &writer->outputs[field];
        bags_error why, err;
        bool made = false;
        if (!output->holds)
            continue;
        output->holds = false;
        why.code = err.code = BAGS_OK;
        bags_code code = coder->codec->dictionary->make(coder->state, &made, &why);
        if (code)
            code = bagi_codec_result(code, &why, &err);
        else if (made)
            code = bagi_writer_replace(writer, field, &err);
        if (!code || failure->code)
            continue;
        *failure = err;
        bags_prefix(failure, code, "%s: field \"%.200s\": ", writer->shown,
            writer->spec.fields[field].name);
    }
}

/* ---- flushing and finishing ---- */

static void bagi_writer_flush_fields(bags_writer *writer) {
    size_t count = writer->spec.count;
    bagi_writer_release(writer, 0, count);
    bagi_outputs_each(writer->outputs, count, BAGI_CONTENT, bagi_stream_flush);
    bagi_outputs_each(writer->outputs, count, BAGI_JOURNAL, bagi_stream_flush);
}

/* Flush the shard if it is still this writer's. */
static void bagi_writer_flush_ours(bags_writer *writer) {
    if (!writer->dir.path || bagi_writer_check(writer))
        return;
    bagi_writer_flush_fields(writer);
    bagi_output_flush(&writer->outputs[writer->spec.count]);
}

/* The size of a draft for a datapoint with `count` fields. It is less than
 * bagi_refs_most for one more field. */
static size_t bagi_draft_size(size_t count) { return 8 + 16 * count + 4; }

/* Append a draft of datapoint `row` in the shard with its refs so far. If `refs` is
 * NULL, the draft voids the earlier drafts of this datapoint and of later ones. */
BAGI_COLD static void bagi_writer_draft(
    bags_writer *writer, uint64_t row, const bags_ref *refs) {
    bagi_stream *drafts = &writer->drafts;
    unsigned char *draft = writer->row;
    size_t count = writer->spec.count, size = bagi_draft_size(count);
    bagi_store_u64(draft, row);
    for (size_t i = 0; i < count; i++) {
        bagi_store_u64(draft + 8 + 16 * i, refs ? refs[i].first : 0);
        bagi_store_u64(draft + 16 + 16 * i, refs ? refs[i].count : 0);
    }
    bagi_store_u32(draft + size - 4, bags_crc32c(0, draft, size - 4));
    if (!drafts->handle)
        bagi_stream_open(drafts, &writer->dir, "refs", BAGI_DRAFTS, BAGS_IO_CREATE);
    bagi_stream_write(drafts, draft, size);
    drafts->end = drafts->written;
}

/* Void the drafts of datapoint `row`, and sync this before its blobs are
 * overwritten. */
BAGI_COLD static void bagi_writer_end_drafts(bags_writer *writer, uint64_t row) {
    bagi_writer_draft(writer, row, NULL);
    bagi_stream_sync(&writer->drafts);
    writer->drafted = false;
}

/* After a flush, add a draft of the current datapoint if it has a value. */
BAGI_COLD static void bagi_writer_draft_begun(bags_writer *writer) {
    bool has_value = false;
    for (size_t i = 0; i < writer->spec.count; i++)
        has_value = has_value || writer->refs[i].count;
    if (!has_value || writer->writing.failure.code)
        return;
    bagi_writer_draft(writer, writer->outputs[writer->spec.count].length, writer->refs);
    writer->drafted = true;
}

/* The names of the shard and of the dataset must survive a power failure. */
BAGI_COLD static void bagi_writer_sync_parents(bags_writer *writer) {
    bags_error *failure = &writer->writing.failure;
    const bagi_env *env = &writer->writing.env;
    if (!failure->code && writer->sharded)
        bagi_sync_dir(env, writer->path, failure);
    if (!failure->code)
        bagi_sync_parent(env, writer->path, failure);
}

/* Set the trailer fields that bind a Bag to its shard (`bound`), name and dictionary. A
 * standalone Bag has no spec. */
static void bagi_trailer_bind(bags_trailer *trailer, const bagi_spec *spec,
    size_t field, const bagi_dictionary_sum *dictionary, uint32_t bound) {
    trailer->binds_shard = spec != NULL;
    trailer->name = bagi_name_crc(bagi_spec_name(spec, field), dictionary);
    trailer->shard = spec ? bound : 0;
}

/* Total size of the shard's Bags if it were finished now. */
static uint64_t bagi_writer_shard_size(const bags_writer *writer) {
    uint64_t size = 0;
    for (size_t i = 0; i <= writer->spec.count; i++)
        size += bagi_output_size(&writer->outputs[i]);
    return size;
}

/* True if datapoints of the shard share a blob. Otherwise each added one blob to every
 * plain field. */
static bool bagi_writer_shares(const bags_writer *writer) {
    const bagi_output *outputs = writer->outputs;
    size_t count = writer->spec.count;
    bool shares = false;
    for (size_t i = 0; i < count; i++)
        shares = shares || (!writer->spec.types[i].sequence &&
                               outputs[i].length < outputs[count].length);
    return shares;
}

/* Fail if another worker's shard has different fields: no reader could open both.
 * Comparing one shard is enough: other workers also compare when they finish a shard,
 * and until then each has a record that the others find. `where` names the location of
 * this writer's fields. */
BAGI_COLD static bags_code bagi_writer_compare(
    bags_writer *writer, const bagi_shard_list *list, const char *where) {
    static const char *const suffixes[] = {
        ".partial", ""}; /* a rename may come in between */
    const bags_writer_options *options = &writer->options;
    bags_error *err = &writer->writing.failure, why;
    for (size_t i = 0; i < list->count && !writer->compared && !err->code; i++) {
        bagi_dir dir;
        bagi_spec found = BAGI_ZERO;
        if (bagi_is_of_worker(list->ids[i], options->shard_start, options->shard_stop))
            continue;
        bags_code code =
            bagi_shard_dir(&dir, list->env, list->path, list->ids[i], &why);
        for (size_t k = 0; k < 2 && !found.text_size && !code; k++) {
            code = bagi_dir_read(&dir, "spec.json", suffixes[k], BAGI_SPEC_MAX,
                &found.text, &found.text_size, NULL, &why);
            code = code == BAGS_ERROR_MISSING ? BAGS_OK : code;
        }
        /* A record that is being written is still incomplete. */
        writer->compared = !code && bagi_spec_same_text(&found, &writer->spec);
        if (!code && !writer->compared && found.text_size)
            code = bagi_spec_parse(&list->env->memory, &found, &why);
        if (!code && !writer->compared && found.text_size) {
            writer->compared = true;
            if (bagi_spec_compare(&writer->spec, &found, dir.shown, err)) {
                bags_prefix(err, BAGS_ERROR_VALUE, "%s: ", where);
                bags_suffix(err, "; all workers must have the same fields");
            }
        }
        if (code == BAGS_ERROR_IO || code == BAGS_ERROR_MEMORY)
            *err = why;
        bagi_spec_free(&list->env->memory, &found);
        bagi_dir_free(&dir);
    }
    return err->code;
}

/* Compare before a shard is finished, unless another worker's shard was already
 * compared. */
BAGI_COLD static void bagi_writer_compare_first(bags_writer *writer) {
    const bagi_env *env = &writer->writing.env;
    bags_error *failure = &writer->writing.failure, why;
    bagi_shard_list list = BAGI_ZERO;
    if (!writer->sharded || writer->options.shard_stop == 1 || writer->compared ||
        failure->code)
        return;
    bags_code code = bagi_shard_list_read(env, writer->path, &list, &why);
    if (code == BAGS_ERROR_MEMORY || (code == BAGS_ERROR_IO && why.system != ENOSYS))
        *failure = why;
    else
        bagi_writer_compare(writer, &list, writer->dir.shown);
    bags_buffer_free(&list.array);
}

/* Finish the shard being written, from writing its tables to renaming its record. On
 * failure, the shard stays unfinished and can be recovered. */
BAGI_COLD static bags_code bagi_writer_finish(bags_writer *writer) {
    const bagi_env *env = &writer->writing.env;
    bags_error *failure = &writer->writing.failure;
    bagi_dir *dir = &writer->dir;
    size_t count = writer->spec.count + 1;
    bool keep_idx = writer->options.keep_idx && !bagi_writer_shares(writer);
    bool no_sync = writer->writing.no_sync;
    uint32_t bound = bags_crc32c(0, writer->spec.text.data, writer->spec.text_size);
    bagi_writer_flush_ours(writer);
    uint64_t size = bagi_writer_shard_size(writer);
    bagi_writer_compare_first(writer);

    /* Checksums can be bound together only when all Bags are complete. */
    for (size_t i = 0; i < count; i++) {
        bagi_output *output = &writer->outputs[i];
        bagi_output_finish(output, keep_idx);
        bound =
            bagi_bind(bound, bagi_spec_name(&writer->spec, i), output->trailer.crcs);
    }
    for (size_t i = 0; i < count; i++) {
        bagi_output *output = &writer->outputs[i];
        bagi_trailer_bind(
            &output->trailer, &writer->spec, i, &output->dictionary, bound);
        bagi_output_seal(output);
    }
    bagi_writer_each(writer, BAGI_CONTENT, bagi_stream_close);

    /* Keep the record open, without a lock: while it is at its path, the dataset was
     * not replaced. */
    if (writer->sharded && !failure->code) {
        bagi_close_read(env, writer->last);
        bagi_free_text(&env->memory, writer->last_path);
        writer->last = NULL;
        writer->last_path = bagi_dir_copy(dir, "spec.json", "", failure);
        if (writer->last_path)
            bagi_open(env, writer->record.path, BAGS_IO_READ, &writer->last, failure);
    }

    /* Commit: spec.json.partial becomes spec.json. */
    if (!failure->code && !no_sync)
        bagi_sync_dir(env, dir->path, failure);
    if (!failure->code && !writer->sharded)
        bagi_check_mixed(dir, failure);
    if (!failure->code && !bagi_writer_check(writer))
        bagi_dir_rename(dir, "spec.json", ".partial", "", failure);
    if (!failure->code && !no_sync)
        bagi_sync_dir(env, dir->path, failure);
    if (!no_sync)
        bagi_writer_sync_parents(writer);
    if (failure->code)
        return failure->code;
    if (!keep_idx)
        bagi_writer_each(writer, BAGI_JOURNAL, bagi_stream_remove);
    bagi_stream_remove(&writer->drafts);
    bagi_writer_leave(writer);
    writer->shards++;
    writer->size += size;
    writer->number = bagi_shard_after(writer->number, writer->options.shard_stop);
    return BAGS_OK;
}

/* Flush if the last flush was flush_seconds ago. */
static void bagi_writer_flush_in_time(bags_writer *writer) {
    double now = bagi_seconds(), since = now - writer->flushed;
    if (since >= 0 && since < writer->options.flush_seconds)
        return;
    writer->flushed = now;
    bagi_writer_flush_ours(writer);
}

/* True if the shard has reached one of its limits. Held blobs are released first,
 * because they may become smaller. */
static bool bagi_writer_full(bags_writer *writer) {
    const bags_writer_options *options = &writer->options;
    if (!writer->sharded)
        return false;
    if (options->shard_length &&
        writer->outputs[writer->spec.count].length >= options->shard_length)
        return true;
    if (!options->shard_size || bagi_writer_shard_size(writer) < options->shard_size)
        return false;
    bagi_writer_release(writer, 0, writer->spec.count);
    return bagi_writer_shard_size(writer) >= options->shard_size;
}

/* ---- datapoints ----
 * bagi_datapoint_begin, then _field and _add for every value, then _end, to keep or
 * drop the datapoint. A datapoint's refusal is kept in `pending`; a failed write stops
 * the writer. */

/* Refuse a call out of order, such as begin within a datapoint. */
BAGI_COLD static bags_code bagi_writer_refuse_state(
    bags_writer *writer, const char *what, bags_error *err) {
    bags_error why;
    bags_fail(&why, BAGS_ERROR_STATE, "%s: datapoint %" PRIu64 ": %s", writer->shown,
        writer->length, what);
    return bagi_refuse_call(&writer->refusal, &why, err);
}

/* Record that all blobs of all Bags belong to complete datapoints. */
static void bagi_datapoint_keep(bags_writer *writer) {
    for (size_t i = 0; i <= writer->spec.count; i++) {
        bagi_output *output = &writer->outputs[i];
        output->kept.length = output->length;
        output->kept.end = output->stream[BAGI_BLOBS].end;
    }
    writer->partial = writer->drafted = false;
}

/* Drop the current datapoint: in every Bag, the blobs after the last complete
 * datapoint. */
static void bagi_datapoint_rewind(bags_writer *writer) {
    if (BAGI_UNLIKELY(writer->drafted))
        bagi_writer_end_drafts(writer, writer->outputs[writer->spec.count].length);
    for (size_t i = 0; i <= writer->spec.count; i++)
        bagi_output_rewind(&writer->outputs[i], writer->outputs[i].kept);
    writer->partial = false;
}

static bags_code bagi_datapoint_begin(bags_writer *writer, bags_error *err) {
    BAGI_TRY(bagi_writing_end(&writer->writing, err));
    if (writer->begun)
        return bagi_writer_refuse_state(writer, "begun and not ended", err);
    if (!writer->dir.path && bagi_writer_claim(writer))
        return bagi_writing_end(&writer->writing, err);
    for (size_t i = 0; i < writer->spec.count; i++)
        writer->slots[i].given = false;
    memset(writer->refs, 0, writer->spec.count * sizeof *writer->refs);
    writer->pending.code = BAGS_OK;
    writer->partial = true;
    return BAGS_OK;
}

/* Refuse the current datapoint because of `field` (may be NULL or unknown to the
 * dataset). */
BAGI_COLD static bags_code bagi_datapoint_fail(
    bags_writer *writer, bags_code code, const char *field, const char *what) {
    bags_error *err = &writer->pending;
    bags_fail(err, code, "%s: %s%.200s%sdatapoint %" PRIu64 ": %s", writer->shown,
        field ? "field \"" : "", field ? field : "", field ? "\": " : "",
        writer->length, what);
    err->remedy = bagi_remedy(what, err->message);
    return code;
}

/* Find the blob in the shard that a value refers to. */
static bags_code bagi_datapoint_again(const bags_writer *writer, size_t field,
    const bags_value *value, uint64_t *blob, bags_error *err) {
    uint64_t first = writer->outputs[field].before;
    uint64_t length = writer->outputs[field].length;
    *blob = value->uint - first;
    if (*blob < length)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_RANGE,
        "blob number out of range (%" PRIu64 ", this shard has %" PRIu64
        " blobs from number %" PRIu64 "); append the value itself",
        value->uint, length, first);
}

/* Before a blob is appended, store the dictionary it needs, or hold the blob. Held
 * blobs are released first if the new one cannot follow them: the codec has enough
 * values, the caller encoded the blob, or it does not fit in the buffer. */
BAGI_NOINLINE static bags_code bagi_datapoint_dictionary(bags_writer *writer,
    size_t field, const bags_value *value, bags_view *blob, bags_error *err) {
    const bagi_coder *coder = &writer->spec.coders[field];
    const bags_codec_dictionary *with = coder->codec->dictionary;
    bagi_output *output = &writer->outputs[field];
    bool needs = with->needed(coder->state, *blob);
    if (needs && !output->holds)
        return bagi_writer_use(writer, field, *blob, err);
    bool encoded = value->kind != BAGS_KIND_BLOB && !needs && with->holds;
    bool holds = encoded && with->holds(coder->state);
    if (output->holds && !(holds && bagi_output_fits(output, blob->size))) {
        bagi_writer_release(writer, field, field + 1);
        if (encoded)
            BAGI_TRY(bagi_writer_recode(writer, field, blob, err));
        if (encoded && bagi_coder_needs(coder, *blob))
            BAGI_TRY(bagi_writer_use(writer, field, *blob, err));
        holds = encoded && with->holds(coder->state);
    }
    if (holds && !output->holds && blob->size < output->stream[BAGI_BLOBS].capacity)
        bagi_output_hold(output);
    return needs ? bagi_writer_use(writer, field, *blob, err) : BAGS_OK;
}

/* Encode a value and append it to its field, or refer to an earlier blob. An encoding
 * failure goes to `pending`; a failed write stops the writer. */
static bags_code bagi_datapoint_add(
    bags_writer *writer, size_t field, const bags_value *value) {
    const bagi_coder *coder = &writer->spec.coders[field];
    bagi_output *output = &writer->outputs[field];
    bags_ref *ref = &writer->refs[field];
    const char *name = writer->spec.fields[field].name;
    bags_error *why = &writer->pending;
    bags_view blob = {NULL, 0};
    if (!value)
        return bagi_datapoint_fail(
            writer, BAGS_ERROR_ARGUMENT, name, "the value is NULL");
    uint64_t index = output->length;
    bool again = value->kind == BAGS_KIND_STORED;
    bags_code code =
        again ? bagi_datapoint_again(writer, field, value, &index, why)
              : bagi_coder_encode(coder, value, &writer->scratch, &blob, why);
    if (!code && !again && BAGI_UNLIKELY(bagi_coder_dictionary(coder) != NULL))
        code = bagi_datapoint_dictionary(writer, field, value, &blob, why);
    if (!code && ref->count && index != ref->first + ref->count)
        code = bags_fail(why, BAGS_ERROR_VALUE,
            "its blob would not follow that of the item before (number %" PRIu64
            ", expected %" PRIu64 ")",
            output->before + index, output->before + ref->first + ref->count);
    if (code) {
        if (writer->spec.types[field].sequence)
            bags_prefix(why, code, "item %" PRIu64 ": ", ref->count);
        return bags_prefix(why, code, "%s: field \"%.200s\": datapoint %" PRIu64 ": ",
            writer->shown, name, writer->length);
    }
    if (!ref->count)
        ref->first = index;
    ref->count++;
    if (!again)
        bagi_output_append(output, blob.data, blob.size);
    return writer->writing.failure.code;
}

/* Find the field of an entry or a call, and note that it is given. `guess` is a
 * position among the caller's fields. Returns the number of fields on failure. */
static size_t bagi_datapoint_field(
    bags_writer *writer, const char *name, size_t guess, bool again) {
    const bagi_spec *spec = &writer->spec;
    size_t field = guess < spec->count ? writer->slots[guess].order : 0;
    if (!name) {
        bagi_datapoint_fail(writer, BAGS_ERROR_ARGUMENT, NULL, "a field name is NULL");
        return spec->count;
    }
    if (guess >= spec->count || strcmp(spec->fields[field].name, name) != 0)
        field = bagi_spec_find(spec, name);
    if (field == spec->count) {
        bagi_datapoint_fail(writer, BAGS_ERROR_FIELD, name, "unknown field");
    } else if (writer->slots[field].given && !again) {
        bagi_datapoint_fail(writer, BAGS_ERROR_FIELD, name, "duplicate");
        field = spec->count;
    } else {
        writer->slots[field].given = true;
    }
    return field;
}

/* End a datapoint: write its refs and keep it, or drop it and report why. A sequence
 * may be missing when streaming: it is empty. */
static bags_code bagi_datapoint_end(
    bags_writer *writer, bool streamed, bags_error *err) {
    const bagi_spec *spec = &writer->spec;
    bagi_output *refs = &writer->outputs[spec->count];
    bags_error *why = &writer->pending;
    bags_error *failure = &writer->writing.failure;
    for (size_t i = 0; i < spec->count && !why->code; i++)
        if (!writer->slots[i].given && !(streamed && spec->types[i].sequence))
            bagi_datapoint_fail(
                writer, BAGS_ERROR_FIELD, spec->fields[i].name, "missing");
    if (why->code && !failure->code) {
        bagi_datapoint_rewind(writer);
        return bagi_refuse_call(&writer->refusal, why, err);
    }
    if (!failure->code) {
        /* Blobs must be in the fields' files before the refs to them are in the refs
         * file. */
        size_t size =
            bagi_refs_write(spec->types, spec->count, writer->refs, writer->row);
        if (bagi_stream_space(&refs->stream[BAGI_BLOBS]) <= size ||
            bagi_stream_space(&refs->stream[BAGI_ENDS]) <= 8)
            bagi_writer_flush_fields(writer);
        bagi_output_append(refs, writer->row, size);
    }
    if (!failure->code) {
        bagi_datapoint_keep(writer);
        writer->length++;
        BAGI_CHECK(bagi_writer_assert(writer));
        if (bagi_writer_full(writer))
            bagi_writer_finish(writer);
        else if (writer->options.flush_seconds > 0)
            bagi_writer_flush_in_time(writer);
    }
    return bagi_writing_end(&writer->writing, err);
}

BAGS_API bags_code bags_writer_append(
    bags_writer *writer, const bags_entry *entries, size_t count, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_writer_assert(writer));
    BAGI_TRY(bagi_datapoint_begin(writer, err));
    bags_code code = BAGS_OK;
    if (!entries && count > 0)
        code = bagi_datapoint_fail(
            writer, BAGS_ERROR_ARGUMENT, NULL, "the entries are NULL");
    for (size_t i = 0; i < count && !code; i++) {
        const bags_entry *entry = &entries[i];
        size_t field = bagi_datapoint_field(writer, entry->field, i, false);
        if (field == writer->spec.count)
            break;
        if (!writer->spec.types[field].sequence && entry->count != 1)
            code = bagi_datapoint_fail(
                writer, BAGS_ERROR_VALUE, entry->field, "exactly one value expected");
        for (size_t k = 0; k < entry->count && !code; k++)
            code = bagi_datapoint_add(writer, field, &entry->values[k]);
    }
    return bagi_datapoint_end(writer, false, err);
}

BAGS_API bags_code bags_writer_begin(bags_writer *writer, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_writer_assert(writer));
    bags_code code = bagi_datapoint_begin(writer, err);
    if (!code)
        writer->begun = true;
    else if (writer->begun) /* later calls concern another datapoint */
        bagi_datapoint_fail(
            writer, BAGS_ERROR_STATE, NULL, "begun again before it was ended");
    return code;
}

/* The common part of set and push. The first failure refuses the datapoint. */
static bags_code bagi_writer_stream(bags_writer *writer, const char *name,
    const bags_value *value, bool sequence, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_writer_assert(writer));
    BAGI_TRY(bagi_writing_end(&writer->writing, err));
    if (!writer->begun)
        return bagi_writer_refuse_state(writer, "not begun", err);
    bags_error *why = &writer->pending;
    if (!why->code) {
        size_t field = bagi_datapoint_field(writer, name, writer->spec.count, sequence);
        if (field == writer->spec.count)
            ; /* reported below */
        else if (writer->spec.types[field].sequence != sequence)
            bagi_datapoint_fail(writer, BAGS_ERROR_VALUE, name,
                sequence ? "not a sequence; use bags_writer_set"
                         : "a sequence; use bags_writer_push");
        else
            bagi_datapoint_add(writer, field, value);
    }
    if (!writer->writing.failure.code && why->code)
        return bagi_refuse_call(&writer->refusal, why, err);
    return bagi_writing_end(&writer->writing, err);
}

BAGS_API bags_code bags_writer_set(
    bags_writer *writer, const char *field, const bags_value *value, bags_error *err) {
    return bagi_writer_stream(writer, field, value, false, err);
}

BAGS_API bags_code bags_writer_push(
    bags_writer *writer, const char *field, const bags_value *item, bags_error *err) {
    return bagi_writer_stream(writer, field, item, true, err);
}

/* A refused datapoint that was partly flushed stops the writer, so that recovery keeps
 * the flushed part. */
static void bagi_writer_stop_refused(bags_writer *writer) {
    if (!writer->pending.code || !writer->drafted)
        return;
    writer->writing.failure = writer->pending;
    writer->drafted = false;
}

BAGS_API bags_code bags_writer_end(bags_writer *writer, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_writer_assert(writer));
    BAGI_TRY(bagi_writing_end(&writer->writing, err));
    if (!writer->begun)
        return bagi_writer_refuse_state(writer, "not begun", err);
    writer->begun = false;
    bagi_writer_stop_refused(writer);
    BAGI_TRY(bagi_writing_end(&writer->writing, err));
    return bagi_datapoint_end(writer, true, err);
}

BAGS_API void bags_writer_cancel(bags_writer *writer) {
    if (!writer || !writer->begun)
        return;
    BAGI_CHECK(bagi_writer_assert(writer));
    writer->begun = false;
    bagi_datapoint_rewind(writer);
    BAGI_CHECK(bagi_writer_assert(writer));
}

BAGS_API void bags_writer_clear(bags_writer *writer) {
    if (writer)
        writer->refusal.code = BAGS_OK;
}

BAGS_API bags_code bags_writer_flush(bags_writer *writer, bags_error *err) {
    BAGI_BEGIN(writer, err);
    BAGI_CHECK(bagi_writer_assert(writer));
    bagi_writer_check_idle(writer);
    bagi_writer_flush_ours(writer);
    if (writer->begun)
        bagi_writer_draft_begun(writer);
    BAGI_CHECK(bagi_writer_assert(writer));
    return bagi_writing_end(&writer->writing, err);
}

BAGS_API BAGI_COLD bags_code bags_writer_sync(bags_writer *writer, bags_error *err) {
    BAGI_ERR(err);
    BAGI_TRY(bags_writer_flush(writer, err));
    if (!writer->dir.path)
        return BAGS_OK;
    bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_sync);
    bagi_stream_sync(&writer->drafts);
    bagi_stream_sync(&writer->record);
    if (!writer->writing.failure.code)
        bagi_sync_dir(&writer->writing.env, writer->dir.path, &writer->writing.failure);
    bagi_writer_sync_parents(writer);
    writer->writing.no_sync = false; /* from now on, for the entire shard */
    return bagi_writing_end(&writer->writing, err);
}

BAGS_API uint64_t bags_writer_length(const bags_writer *writer) {
    return writer ? writer->length : 0;
}

BAGS_API uint64_t bags_writer_resumed(const bags_writer *writer) {
    return writer ? writer->resumed : 0;
}

BAGS_API uint64_t bags_writer_size(const bags_writer *writer) {
    if (!writer)
        return 0;
    return writer->size + (writer->dir.path ? bagi_writer_shard_size(writer) : 0);
}

BAGS_API uint64_t bags_writer_next(const bags_writer *writer, const char *field) {
    size_t slot = writer && field ? bagi_spec_find(&writer->spec, field) : 0;
    if (!writer || !field || slot == writer->spec.count)
        return UINT64_MAX;
    return writer->outputs[slot].before + writer->outputs[slot].length;
}

BAGS_API uint64_t bags_writer_shards(const bags_writer *writer) {
    return writer ? writer->shards : 0;
}

/* ---- a writer ---- */

/* Free a writer, even a partly open one, and leave its shard on disk as it is. The
 * allocator is copied because it is part of the memory being freed. */
BAGI_COLD static void bagi_writer_free(bags_writer *writer) {
    bags_allocator memory = writer->writing.env.memory;
    size_t count = writer->spec.count;
    bagi_writer_leave(writer);
    bagi_close_read(&writer->writing.env, writer->last);
    bagi_free_text(&memory, writer->last_path);
    for (size_t i = 0; writer->outputs && i <= count; i++)
        bagi_output_free(&writer->outputs[i]);
    bagi_free(&memory, writer->outputs, (count + 1) * sizeof *writer->outputs);
    bagi_free(&memory, writer->slots, count * sizeof *writer->slots);
    bagi_free(&memory, writer->refs, count * sizeof *writer->refs);
    bagi_free(&memory, writer->row, bagi_refs_most(count + 1));
    bagi_free_text(&memory, writer->path);
    bags_buffer_free(&writer->scratch);
    bags_buffer_free(&writer->recoded);
    bagi_spec_free(&memory, &writer->spec);
    bagi_free(&memory, writer, sizeof *writer);
}

/* Create a writer that has a path and options, but no fields yet. */
BAGI_COLD static bags_writer *bagi_writer_new(
    const char *path, const bags_writer_options *options, bags_error *err) {
    bagi_env env = bagi_env_of(&options->env);
    bags_writer_options with = *options;
    if (bagi_check_worker(path, with.shard_start, &with.shard_stop, err) ||
        bagi_check_checksums(path, with.checksum, err))
        return NULL;
    if ((unsigned)with.existing > BAGS_EXISTING_APPEND) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: invalid option (existing %d)",
            bags_path_tail(path), (int)with.existing);
        return NULL;
    }
    if (!(with.flush_seconds >= 0)) {
        bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: flush_seconds out of range (%g, minimum 0)", bags_path_tail(path),
            with.flush_seconds);
        return NULL;
    }
    bags_writer *writer = (bags_writer *)bagi_alloc(&env.memory, sizeof *writer, err);
    if (!writer)
        return NULL;
    bagi_writing_init(&writer->writing, &env, with.no_sync);
    writer->record.writing = writer->drafts.writing = &writer->writing;
    writer->dir.env = &writer->writing.env;
    writer->options = with;
    writer->sharded = with.shard_size || with.shard_length || options->shard_stop;
    writer->number = with.shard_start;
    writer->flushed = bagi_seconds();
    writer->scratch = writer->recoded = bags_buffer_of(&env.memory);
    writer->spec.text = writer->scratch;
    writer->path = bagi_absolute(&writer->writing.env, path, strlen(path), err);
    if (writer->path) {
        writer->shown = bagi_shown(&writer->writing.env, writer->path);
        return writer;
    }
    bagi_writer_free(writer);
    return NULL;
}

/* Allocate the memory that a writer needs for its fields. */
BAGI_COLD static bags_code bagi_writer_prepare(
    bags_writer *writer, size_t buffer_size, bags_error *err) {
    const bags_allocator *memory = &writer->writing.env.memory;
    size_t count = writer->spec.count;
    writer->outputs =
        (bagi_output *)bagi_alloc(memory, (count + 1) * sizeof *writer->outputs, err);
    for (size_t i = 0; writer->outputs && i <= count; i++)
        bagi_output_init(&writer->outputs[i], &writer->writing, buffer_size);
    writer->slots =
        (bagi_slot_state *)bagi_alloc(memory, count * sizeof *writer->slots, err);
    writer->refs = (bags_ref *)bagi_alloc(memory, count * sizeof *writer->refs, err);
    writer->row = (unsigned char *)bagi_alloc(memory, bagi_refs_most(count + 1), err);
    if (!writer->outputs || !writer->slots || !writer->refs || !writer->row)
        return BAGS_ERROR_MEMORY;
    return BAGS_OK;
}

/* ---- files left by a crashed writer ---- */

static int bagi_has_foreign_files(void *user, const char *name) {
    *(bool *)user =
        strcmp(name, "spec.json.partial") != 0 && strcmp(name, "refs.crc") != 0;
    return *(bool *)user ? ECANCELED : 0;
}

/* True if a file of refs has more than `most` (few) bytes; a missing one counts as
 * empty. */
BAGI_COLD static bool bagi_refs_exceed(const bagi_dir *dir, const char *suffix,
    size_t most, bags_code *code, bags_error *err) {
    bags_buffer content = BAGI_ZERO;
    size_t size = 0;
    bags_code found =
        bagi_dir_read(dir, "refs", suffix, most, &content, &size, NULL, err);
    bags_buffer_free(&content);
    if (found != BAGS_ERROR_LIMIT && found != BAGS_ERROR_MISSING)
        *code = found;
    return found == BAGS_ERROR_LIMIT;
}

/* Read draft number `index`. *valid is set unless it is damaged. */
BAGI_COLD static bags_code bagi_draft_read(const bagi_scanning *scan,
    const bagi_dir *dir, void *file, uint64_t index, unsigned char *draft,
    uint64_t *row, bool *valid, bags_error *err) {
    size_t size = bagi_draft_size(scan->count);
    BAGI_TRY(bagi_read(dir->env, file, bagi_dir_path(dir, "refs", BAGI_DRAFTS),
        index * size, draft, size, err));
    *row = bagi_load_u64(draft);
    *valid = bagi_load_u32(draft + size - 4) == bags_crc32c(0, draft, size - 4);
    for (size_t i = 0; i < scan->count; i++) {
        scan->refs[i].first = bagi_load_u64(draft + 8 + 16 * i);
        scan->refs[i].count = bagi_load_u64(draft + 16 + 16 * i);
        if (!scan->types[i].sequence && scan->refs[i].count > 1)
            *valid = false;
    }
    return BAGS_OK;
}

/* True for a draft that voids earlier ones: its datapoint was dropped. */
static bool bagi_draft_ends(const bagi_scanning *scan) {
    uint64_t used = 0;
    for (size_t i = 0; i < scan->count; i++)
        used |= scan->refs[i].count;
    return used == 0;
}

/* Find the last complete draft of the datapoint after the complete ones and, unless
 * `drop`, keep its refs as one more datapoint. Drafts follow each other like rows of
 * refs.bag, each including the blobs of the previous one. This datapoint's drafts begin
 * after the last draft that voids them or belongs to an earlier datapoint. Damaged
 * drafts had not reached the disk. New cursors are needed, because those used for an
 * incomplete row may be past its drafts' blobs. `draft` is memory for one draft. */
BAGI_COLD static bags_code bagi_scan_drafts(bagi_scanning *scan, const bagi_dir *dir,
    void *file, unsigned char *draft, bool drop, bags_ref *refs, bagi_scan *found,
    bags_error *err) {
    const char *reason = NULL;
    uint64_t size = 0, row = 0;
    bool valid = false;
    for (size_t i = 0; i <= scan->count; i++) {
        bagi_scan_cursor *bag = &scan->bags[i];
        bagi_cursor_close(&bag->cursor);
        bagi_cursor_open(&bag->cursor, scan->readers[i], bag->complete.length,
            scan->readers[i]->length);
    }
    BAGI_TRY(bagi_file_size(
        dir->env, file, bagi_dir_path(dir, "refs", BAGI_DRAFTS), &size, err));
    uint64_t stop = size / bagi_draft_size(scan->count), index = stop;
    for (; index > 0; index--) {
        BAGI_TRY(bagi_draft_read(scan, dir, file, index - 1, draft, &row, &valid, err));
        if (valid &&
            (row < found->length || (row == found->length && bagi_draft_ends(scan))))
            break;
    }
    for (; index < stop; index++) {
        BAGI_TRY(bagi_draft_read(scan, dir, file, index, draft, &row, &valid, err));
        if (!valid || row != found->length || bagi_draft_ends(scan))
            continue;
        found->drafted = true;
        if (drop)
            break;
        BAGI_TRY(bagi_scan_refs(scan, &reason, err));
        if (reason)
            break;
        bagi_scan_keep(scan);
        found->partial = true;
        memcpy(refs, scan->refs, scan->count * sizeof *refs);
    }
    if (found->drafted && drop)
        found->reason = "the last datapoint was not ended, and is removed";
    else if (!found->partial && !found->reason)
        found->reason = reason;
    for (size_t i = 0; i < scan->count && found->partial; i++)
        found->items += scan->types[i].sequence ? refs[i].count : 0;
    found->length += found->partial;
    return BAGS_OK;
}

/* The value that the caller of bags_recover passed for a field; NULL if none. */
static const bags_value *bagi_writer_given(
    const bags_writer *writer, const char *field) {
    const bags_recover_options *with = writer->recovering;
    for (size_t i = 0; with && i < with->values_count; i++)
        if (with->values[i].field && !strcmp(with->values[i].field, field))
            return with->values[i].values;
    return NULL;
}

/* Check that the partial datapoint has, or is given, a value for every plain field, and
 * that values are given only for plain fields. */
BAGI_COLD static bags_code bagi_writer_check_partial(
    const bags_writer *writer, const bagi_scan *found, bags_error *err) {
    const bags_recover_options *with = writer->recovering;
    const bagi_spec *spec = &writer->spec;
    for (size_t i = 0; with && i < with->values_count; i++) {
        const bags_entry *entry = &with->values[i];
        size_t field = entry->field ? bagi_spec_find(spec, entry->field) : spec->count;
        const char *fault = field == spec->count          ? "unknown field"
                            : spec->types[field].sequence ? "a sequence needs no value"
                            : entry->count != 1 || !entry->values
                                ? "exactly one value expected"
                                : NULL;
        if (fault)
            return bags_fail(err, BAGS_ERROR_FIELD, "%s: field \"%.200s\": %s",
                writer->dir.shown, entry->field ? entry->field : "", fault);
    }
    for (size_t i = 0; i < spec->count; i++) {
        const char *name = spec->fields[i].name;
        if (!spec->types[i].sequence && !writer->refs[i].count &&
            !bagi_writer_given(writer, name))
            return bags_fail(err, BAGS_ERROR_UNFINISHED,
                "%s: field \"%.200s\": datapoint %" PRIu64
                ": no value, since it was flushed and not ended; run bags_recover with "
                "values for it, or with drop_partial to remove the datapoint",
                writer->dir.shown, name, found->length - 1);
    }
    return BAGS_OK;
}

/* Find the complete datapoints of a shard with known fields. A shard without any must
 * look like its writer crashed early. Otherwise a crash does not explain the damage: do
 * not guess. */
BAGI_COLD static bags_code bagi_writer_scan(
    bags_writer *writer, bagi_scan *found, bags_error *err) {
    const bagi_dir *dir = &writer->dir;
    const bagi_spec *spec = &writer->spec;
    size_t count = spec->count + 1;
    bag_reader **bags = NULL;
    bagi_bag_options bag_options = bagi_bag_options_new();
    bagi_scanning scan;
    bool drop = writer->recovering && writer->recovering->drop_partial;
    bool exists = true;
    void *file = NULL; /* of drafts */
    bags_code code = BAGS_OK;
    bool drafts = bagi_dir_has(dir, "refs", BAGI_DRAFTS, &code, err);
    bool listed = drafts; /* otherwise refs.idx decides */
    bag_options.verify_checksums = bagi_dir_has(dir, "refs", ".crc", &code, err);
    BAGI_TRY(code);
    BAGI_TRY(bagi_check_checksums(dir->shown, bag_options.verify_checksums, err));
    if (bag_options.verify_checksums) {
        bagi_writer_add_checksums(writer);
        writer->options.checksum = true; /* also for later shards */
    }
    code = bagi_unfinished_open(dir, spec, &bag_options, NULL, &bags, &listed, err);
    if (!code && listed) {
        code = bagi_scan_rows(&scan, bags, spec->types, spec->count, found, err);
        if (!code && drafts)
            code = bagi_open(dir->env, bagi_dir_path(dir, "refs", BAGI_DRAFTS),
                BAGS_IO_READ, &file, err);
        if (!code && drafts)
            code = bagi_scan_drafts(
                &scan, dir, file, writer->row, drop, writer->refs, found, err);
        bagi_scan_close(&scan, !code, found);
    }
    bagi_close_read(dir->env, file);
    if (!code && found->partial)
        code = bagi_writer_check_partial(writer, found, err);
    for (size_t i = 0; i < count && !code && found->length; i++) {
        writer->outputs[i].resumed.length = bags[i]->length;
        writer->outputs[i].resumed.end = bags[i]->limit;
    }
    bagi_bags_free(dir->env, bags, count);
    if ((code && code != BAGS_ERROR_MISSING) || found->length)
        return code;
    if (code) {
        found->reason = "not all files exist";
        found->drafted = drafts;
    }
    if (found->drafted && !drop)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: a datapoint was flushed and not ended, and is not complete (%s); run "
            "bags_recover with drop_partial to remove it",
            dir->shown, found->reason);

    code = BAGS_OK;
    bool left = bagi_refs_exceed(dir, ".idx", 7, &code, err);
    for (size_t i = 0; i < spec->count && exists; i++)
        exists = bagi_dir_has(dir, spec->fields[i].name, ".idx", &code, err);
    if (!code && !left && !exists)
        left = bagi_refs_exceed(dir, ".bag", 0, &code, err);
    if (code || !left)
        return code;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: refs.bag or refs.idx has datapoints, but none is complete (%s); "
        "if a power failure came before anything was synced, remove the "
        "directory; if every Bag has its table, rename spec.json.partial to "
        "spec.json and verify it",
        dir->shown, found->reason ? found->reason : "files are missing");
}

/* The state of a shard, by the files that exist. */
typedef enum bagi_left {
    BAGI_LEFT_FINISHED,  /* spec.json */
    BAGI_LEFT_CLAIMED,   /* a directory, without a record yet */
    BAGI_LEFT_STARTED,   /* a record, but no datapoint */
    BAGI_LEFT_DATAPOINTS /* datapoints, unfinished */
} bagi_left;

/* Read the record. *known is set if its fields are the writer's; a writer without
 * fields gets them. Otherwise *fault describes the problem. */
BAGI_COLD static bags_code bagi_writer_read_record(
    bags_writer *writer, bool *known, bags_error *fault, bags_error *err) {
    const bags_allocator *memory = &writer->writing.env.memory;
    bagi_spec *spec = &writer->spec, found = BAGI_ZERO;
    bags_code code = bagi_dir_read(&writer->dir, "spec.json", ".partial", BAGI_SPEC_MAX,
        &found.text, &found.text_size, NULL, err);
    bags_fail(fault, BAGS_ERROR_CORRUPT, "spec.json.partial is damaged");
    if (!code && spec->text_size) {
        *known = bagi_spec_same_text(&found, spec);
        if (!*known)
            code = bagi_spec_parse(memory, &found, err);
        if (!*known && !code &&
            bagi_spec_compare(spec, &found, "its spec.json.partial", fault)) {
            bags_suffix(fault,
                "; pass the fields that it was started with, or write to a new path");
        }
        code = code == BAGS_ERROR_MEMORY ? code : BAGS_OK;
        bagi_spec_free(memory, &found);
    } else if (!code) {
        *spec = found;
        code = bagi_spec_parse(memory, spec, err);
        if (!code)
            code = bagi_spec_seal(memory, spec, writer->options.registry, err);
        /* The number of fields comes from an untrusted file, so each gets a small
         * buffer. */
        if (!code)
            code = bagi_writer_prepare(writer, (size_t)64 << 10, err);
        *known = !code;
        if (code && code != BAGS_ERROR_MEMORY) {
            bagi_spec_free(memory, spec);
            code = BAGS_OK;
        }
    }
    return code;
}

/*
 * Find out which parts of a shard exist (in a sharded dataset, the shard with this
 * name). Unless it is finished, lock its record and find its complete datapoints. A dry
 * run changes nothing and keeps no lock.
 */
BAGI_COLD static bags_code bagi_writer_find(bags_writer *writer, bagi_shard_id name,
    bool dry_run, bagi_left *left, bagi_scan *found) {
    const bagi_dir *dir = &writer->dir;
    const bags_io *io = &writer->writing.env.io;
    bags_error *failure = &writer->writing.failure, ignored;
    bags_error why; /* a missing file does not fail the writer */
    bags_error fault;
    bool known = false, other = false;
    bags_fail(&fault, BAGS_ERROR_CORRUPT,
        "has files but neither spec.json nor spec.json.partial, so that no writer left "
        "it; restore spec.json from a copy or another shard");
    memset(found, 0, sizeof *found);
    *left = BAGI_LEFT_FINISHED;
    bags_code code = bagi_writer_enter(writer, name);
    if (bagi_is_finished(dir, &code, failure) || code)
        return code;

    /* Lock the record before reading it. Without a record, nothing was written. */
    bool record = bagi_dir_has(dir, "spec.json", ".partial", &code, &why);
    if (!code && record)
        code = bagi_writer_open_record(
            writer, dry_run ? BAGS_IO_READ : BAGS_IO_WRITE, &why);
    if (!code && record)
        code = bagi_writer_read_record(writer, &known, &fault, &why);

    /* If the fields are unknown, the shard's writer must have crashed before it created
     * their files. */
    if (!code && known) {
        code = bagi_writer_scan(writer, found, &why);
    } else if (!code) {
        int error = io->list
                        ? io->list(io->user, dir->path, bagi_has_foreign_files, &other)
                        : ENOSYS;
        if (other)
            why = fault;
        code = other
                   ? bags_prefix(&why,
                         writer->spec.text_size ? BAGS_ERROR_VALUE : BAGS_ERROR_CORRUPT,
                         "%s: ", dir->shown)
                   : bagi_fail_io(dir->env, error, dir->path, "list", &why);
    }
    if (!code && !record && !dry_run)
        code = bagi_writer_open_record(writer, BAGS_IO_CREATE, &why);
    ignored.code = BAGS_OK;
    if (code && bagi_is_finished(dir, &ignored.code, &ignored))
        return BAGS_OK; /* finished meanwhile by its writer or a recovery */
    *left = found->length ? BAGI_LEFT_DATAPOINTS
            : record      ? BAGI_LEFT_STARTED
                          : BAGI_LEFT_CLAIMED;
    if (code)
        *failure = why;
    return code;
}

/* Start the codecs, with the dictionaries of the continued shard or else of the
 * previous one (none if its name has no digits). A field whose name is too long for a
 * dictionary file has none. */
BAGI_COLD static bags_code bagi_writer_start(
    bags_writer *writer, bagi_shard_id before) {
    const bagi_env *env = &writer->writing.env;
    const bagi_spec *spec = &writer->spec;
    bags_error *err = &writer->writing.failure, why;
    bagi_dir dir = BAGI_ZERO;
    bags_code code = BAGS_OK;
    if (before.digits)
        code = bagi_shard_dir(&dir, env, writer->path, before, err);
    for (size_t i = 0; i < spec->count && !code; i++) {
        const bagi_coder *coder = &spec->coders[i];
        const bags_codec_dictionary *with = bagi_coder_dictionary(coder);
        const char *name = bagi_spec_name(spec, i);
        bool own = writer->dir.path && writer->outputs[i].dictionary.exists;
        const bagi_dir *from = own ? &writer->dir : &dir;
        bags_buffer data = BAGI_ZERO;
        bagi_dictionary_sum sum = {false, 0, 0};
        if (!with || strlen(name) + sizeof BAGI_DICTIONARY_NEW > 256)
            continue;
        if (from->path)
            code = bagi_dictionary_read(from, name, &sum, &data, &why);
        if (!code) {
            bags_view bytes = {data.data, sum.size};
            why.code = BAGS_OK;
            code = with->start(coder->state, bytes, &why);
        }
        if (bagi_codec_result(code, &why, err))
            bags_prefix(err, code, "%s: field \"%.200s\": ", writer->shown, name);
        bags_buffer_free(&data);
    }
    bagi_dir_free(&dir);
    return code;
}

/* End the datapoint whose draft was found: append the values given for it, then its
 * row. */
BAGI_COLD static bags_code bagi_writer_complete(
    bags_writer *writer, const bagi_scan *found) {
    const bagi_shard_id none = {0, 0};
    const bagi_spec *spec = &writer->spec;
    bagi_output *refs = &writer->outputs[spec->count];
    bags_error *failure = &writer->writing.failure;
    bool started = false;
    if (writer->recovering)
        writer->length = found->length - 1; /* for messages */
    writer->pending.code = BAGS_OK;
    for (size_t i = 0; i < spec->count && !failure->code; i++) {
        if (spec->types[i].sequence || writer->refs[i].count)
            continue;
        if (!started)
            bagi_writer_start(writer, none);
        started = true;
        if (!failure->code &&
            bagi_datapoint_add(
                writer, i, bagi_writer_given(writer, spec->fields[i].name)) &&
            !failure->code)
            *failure = writer->pending;
    }
    if (failure->code)
        return failure->code;
    bagi_writer_flush_fields(writer);
    bagi_output_append(refs, writer->row,
        bagi_refs_write(spec->types, spec->count, writer->refs, writer->row));
    bagi_output_flush(refs);
    bagi_datapoint_keep(writer);
    for (size_t i = 0; i <= spec->count; i++)
        writer->outputs[i].resumed = writer->outputs[i].kept;
    return failure->code;
}

/* Take over the shard found: continue after its datapoints (refused with APPEND), or
 * remove it if it has none. */
BAGI_COLD static bags_code bagi_writer_take(
    bags_writer *writer, bagi_left left, bagi_scan *found) {
    const bags_writer_options *options = &writer->options;
    const bagi_dir *dir = &writer->dir;
    bags_error *failure = &writer->writing.failure;
    bool other = false;
    /* Even without datapoints: earlier shards may contain some of its input. */
    if (options->existing == BAGS_EXISTING_APPEND &&
        (left == BAGI_LEFT_DATAPOINTS ||
            (left == BAGI_LEFT_STARTED && writer->number >= options->shard_stop)))
        return bags_fail(failure, BAGS_ERROR_UNFINISHED,
            "%s: unfinished (datapoints: %" PRIu64 "), its input was interrupted; run "
            "bags_recover, then append the rest of the input, after the stored "
            "datapoints (bags_reader_length)",
            dir->shown, found->length);
    if (left == BAGI_LEFT_CLAIMED || left == BAGI_LEFT_STARTED) {
        bags_code code = bagi_writer_discard(writer, &other, failure);
        if (other)
            found->reason = "no datapoint; files that no writer creates stay";
        return code;
    }
    if (left == BAGI_LEFT_FINISHED)
        return BAGS_OK;
    if (options->checksum && !writer->outputs[0].checksums)
        return bags_fail(failure, BAGS_ERROR_VALUE,
            "%s: was started without checksums, which are requested or which other "
            "shards have; resume it without, or use bags_recover and bags_checksum",
            dir->shown);
    bagi_writer_check(writer);

    /* Unless drafts are kept, their blobs are truncated or overwritten. */
    if (bagi_dir_has(dir, "refs", BAGI_DRAFTS, &failure->code, failure)) {
        bagi_stream_open(&writer->drafts, dir, "refs", BAGI_DRAFTS, BAGS_IO_WRITE);
        writer->drafts.written -=
            writer->drafts.written % bagi_draft_size(writer->spec.count);
        bagi_writer_end_drafts(writer, found->length);
    }
    for (size_t i = 0; i <= writer->spec.count; i++)
        bagi_output_continue(&writer->outputs[i], dir, bagi_spec_name(&writer->spec, i),
            writer->outputs[i].resumed);
    for (size_t i = 0; i < writer->spec.count && !failure->code; i++) {
        const char *name = bagi_spec_name(&writer->spec, i);
        if (!bagi_dir_remove(dir, name, BAGI_DICTIONARY_NEW, failure))
            bagi_dictionary_read(
                dir, name, &writer->outputs[i].dictionary, NULL, failure);
    }
    return found->partial && !failure->code ? bagi_writer_complete(writer, found)
                                            : failure->code;
}

/* ---- opening ---- */

#define BAGI_WORKERS_TRIED 4096

/* The smallest number of workers with which no worker lacks a shard before its last
 * one; 0 if no number fits. */
BAGI_COLD static uint64_t bagi_fitting_workers(const bagi_shard_list *list) {
    uint64_t last = list->count ? list->ids[list->count - 1].number : 0;
    for (uint64_t workers = 1; workers <= last && workers <= BAGI_WORKERS_TRIED;
         workers++) {
        bool fits = true;
        for (size_t i = 0, before = 0; i < list->count && fits; i++) {
            uint64_t number = list->ids[i].number;
            while (number >= workers && list->ids[before].number < number - workers)
                before++;
            fits = number < workers || list->ids[before].number == number - workers;
        }
        if (fits)
            return workers;
    }
    return 0;
}

/* Check that existing shards match this worker's numbering: none was renumbered; the
 * worker's first shard does not exist unless `existing` is set; none of its shards is
 * missing. */
BAGI_COLD static bags_code bagi_writer_check_names(
    bags_writer *writer, const bagi_shard_list *list, bool *finalized) {
    bags_error *err = &writer->writing.failure;
    uint64_t start = writer->options.shard_start;
    if (list->count)
        *finalized =
            bagi_has_mark(list->env, list->path, list->ids[0], &err->code, err);
    if (*finalized && writer->options.existing != BAGS_EXISTING_APPEND)
        bagi_fail_finalized(writer, err);
    for (size_t i = 0; i < list->count && !writer->options.existing; i++)
        if (!err->code && list->ids[i].number == start &&
            !bagi_writer_enter(writer, list->ids[i]))
            bagi_fail_claimed(writer, err);
    if (err->code || *finalized)
        return err->code;
    char why[160] = "lost, or the shards were written with other worker numbers";
    size_t size = strlen(why);
    uint64_t stop = writer->options.shard_stop, fitting = bagi_fitting_workers(list);
    if (fitting)
        (void)snprintf(why + size, sizeof why - size,
            ": shard_stop %" PRIu64 " would fit, not %" PRIu64, fitting, stop);
    return bagi_check_gaps(list, start, stop, why, err);
}

/* True if a finished shard has files with this suffix next to its Bags. A split shard
 * has no refs. */
static bool bagi_shard_has(const bagi_dir *dir, const bagi_spec *spec,
    const char *suffix, bags_code *code, bags_error *err) {
    return bagi_dir_has(dir, "refs", suffix, code, err) ||
           bagi_dir_has(dir, bagi_spec_name(spec, 0), suffix, code, err);
}

/* Give new shards checksums and journals if the first finished shard has them. */
BAGI_COLD static bags_code bagi_writer_follow(
    bags_writer *writer, const bagi_shard_list *list) {
    const bagi_env *env = &writer->writing.env;
    const bagi_spec *spec = &writer->spec;
    bags_writer_options *options = &writer->options;
    bags_error *err = &writer->writing.failure;
    bool found = false;
    for (size_t i = 0; i < list->count && !found && !err->code; i++) {
        bagi_dir dir;
        bagi_shard_dir(&dir, env, list->path, list->ids[i], err);
        found = bagi_is_finished(&dir, &err->code, err);
        if (found) {
            bool crc = bagi_shard_has(&dir, spec, ".crc", &err->code, err);
            bool idx = bagi_shard_has(&dir, spec, ".idx", &err->code, err);
            const char *missing = options->checksum && !crc   ? "checksums"
                                  : options->keep_idx && !idx ? ".idx files"
                                                              : NULL;
            if (missing && !err->code)
                bags_fail(err, BAGS_ERROR_VALUE,
                    "%s: has no %s, which are requested for the shards after "
                    "it; request what exists, or none",
                    dir.shown, missing);
            options->checksum = crc;
            options->keep_idx = idx;
            if (!err->code)
                bagi_check_checksums(dir.shown, crc, err);
        }
        bagi_dir_free(&dir);
    }
    return err->code;
}

/* Check the existing shards. With RESUME, count this worker's finished shards and take
 * over the unfinished ones: continue the last unless it is full, and finish the others.
 * *before is the last finished shard. */
BAGI_COLD static bags_code bagi_writer_resume(
    bags_writer *writer, const bagi_shard_list *list, bagi_shard_id *before) {
    bags_error *err = &writer->writing.failure;
    uint64_t start = writer->options.shard_start;
    uint64_t stop = writer->options.shard_stop;
    uint64_t next = 0; /* the number after the last shard that counts and stays */
    bagi_common common = BAGI_ZERO;
    bool finalized = false;
    bagi_shard_id last = {0, 0}; /* the last shard that has datapoints */
    BAGI_TRY(bagi_writer_check_names(writer, list, &finalized));
    BAGI_TRY(bagi_writer_compare(writer, list, writer->shown));
    if (!writer->options.existing)
        return BAGS_OK;
    BAGI_TRY(bagi_writer_follow(writer, list));
    for (size_t i = 0; i < list->count && !err->code; i++) {
        uint64_t number = list->ids[i].number, length = 0;
        bagi_left left;
        bagi_scan found;
        if (!bagi_is_of_worker(list->ids[i], start, stop)) {
            next = finalized ? number + 1 : next;
            last = finalized ? list->ids[i] : last;
            continue;
        }
        if (writer->dir.path && bagi_writer_finish(writer))
            break;
        *before = last;
        writer->number = number;
        bags_code code = bagi_writer_find(writer, list->ids[i], false, &left, &found);
        bool finished = left == BAGI_LEFT_FINISHED;
        if (!code)
            code = bagi_writer_take(writer, left, &found);
        if (!code && finished) {
            bagi_bag_options bag_options = bagi_bag_options_new();
            code = bagi_shard_open(
                &common, &writer->dir, false, &bag_options, &length, err);
            if (!code &&
                bagi_spec_compare(&writer->spec, &common.spec, writer->dir.shown, err))
                bags_prefix(err, BAGS_ERROR_VALUE, "%s: ", writer->shown);
            bagi_writer_leave(writer);
        }
        if (finished || found.length) {
            next = number + 1;
            last = list->ids[i];
        }
        if (writer->options.existing == BAGS_EXISTING_RESUME)
            writer->resumed += finished ? length : found.length;
    }
    if (!err->code && writer->dir.path && bagi_writer_full(writer))
        bagi_writer_finish(writer);
    if (!err->code && !writer->dir.path) {
        *before = last;
        writer->number = next - next % stop + start;
        if (writer->number < next)
            writer->number = bagi_shard_after(writer->number, stop);
    }
    bagi_spec_free(&writer->writing.env.memory, &common.spec);
    writer->shards = 0;
    return err->code;
}

/* Continue an unsharded dataset, or claim it again if it has no datapoints. */
BAGI_COLD static bags_code bagi_writer_resume_single(bags_writer *writer) {
    bags_error *err = &writer->writing.failure;
    bagi_left left;
    bagi_scan found;
    bags_code code = bagi_writer_find(writer, bagi_shard_name(0), false, &left, &found);
    if (!code)
        code = bagi_writer_take(writer, left, &found);
    writer->resumed = found.length;
    if (!code && left == BAGI_LEFT_FINISHED)
        return bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: finished and not sharded, cannot be continued; write to a "
            "new path, or with shards",
            writer->shown);
    return code || found.length ? code : bagi_writer_claim(writer);
}

/* The kind of dataset at the path of a writer. */
typedef enum bagi_existing {
    BAGI_NOTHING, /* or something that makes the claim fail */
    BAGI_SINGLE,  /* an unsharded dataset, to be resumed */
    BAGI_SHARDS   /* shards of this worker or of others */
} bagi_existing;

/* Find out what exists at the path, but only if it may be continued or other workers
 * may have written it. Free list->array, even after a failure. */
BAGI_COLD static bags_code bagi_writer_look(
    bags_writer *writer, bagi_existing *existing, bagi_shard_list *list) {
    const bagi_env *env = &writer->writing.env;
    bags_error *err = &writer->writing.failure;
    bool resume = writer->options.existing != BAGS_EXISTING_REFUSE;
    bool sharded = writer->sharded;
    bagi_dir dir;
    bags_code code = BAGS_OK;
    bags_path_kind kind = bagi_kind(env, writer->path, &code, err);
    *existing = BAGI_NOTHING;
    if (kind == BAGS_PATH_NONE || !(resume || sharded))
        return code;
    *existing = sharded ? BAGI_SHARDS : BAGI_SINGLE;
    code = bagi_dir_open(&dir, env, writer->path, "", err);
    bool single = bagi_is_single(&dir, &code, err);
    if (single && resume)
        code = bagi_check_mixed(&dir, err);
    bagi_dir_free(&dir);
    BAGI_TRY(code);
    if (sharded)
        BAGI_TRY(bagi_writer_check_single(writer));
    if (!single)
        BAGI_TRY(bagi_shard_list_read(env, writer->path, list, err));
    if (sharded || !list->count)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_EXISTS,
        "%s: is a sharded dataset; resume it with the shard options that "
        "it was started with",
        writer->shown);
}

/* Give a new writer its fields. */
BAGI_COLD static bags_code bagi_writer_set_fields(
    bags_writer *writer, const bags_field *fields, size_t count) {
    const bags_writer_options *options = &writer->options;
    bagi_spec *spec = &writer->spec;
    bags_error *err = &writer->writing.failure;
    bags_code code = bagi_spec_from_caller(&writer->writing.env.memory, spec,
        options->registry, fields, count, options->any_type, err);
    if (code && code != BAGS_ERROR_MEMORY)
        bags_prefix(err, code, "%s: ", writer->shown);
    BAGI_TRY(code);
    BAGI_TRY(bagi_spec_text(spec, &spec->text, &spec->text_size, err));
    BAGI_TRY(bagi_writer_prepare(writer, options->buffer_size, err));
    for (size_t i = 0; i < count; i++)
        writer->slots[i].order = bagi_spec_find(spec, fields[i].name);
    return BAGS_OK;
}

/* Claim an unsharded dataset at once, but a shard only when its first datapoint
 * arrives. */
BAGS_API BAGI_COLD bags_writer *bags_writer_open(const char *path,
    const bags_field *fields, size_t count, const bags_writer_options *options,
    bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bags_writer_options, options);
    bagi_existing existing = BAGI_NOTHING;
    bagi_shard_id before = {0, 0}; /* the last finished shard */
    bagi_shard_list list = BAGI_ZERO;
    bags_writer *writer = bagi_writer_new(path, options, err);
    if (!writer)
        return NULL;
    bags_code code = bagi_writer_set_fields(writer, fields, count);
    if (!code)
        code = bagi_writer_look(writer, &existing, &list);
    if (!code) {
        switch (existing) {
        case BAGI_NOTHING:
            code = writer->sharded ? BAGS_OK : bagi_writer_claim(writer);
            break;
        case BAGI_SINGLE:
            code = bagi_writer_resume_single(writer);
            break;
        case BAGI_SHARDS:
            code = bagi_writer_resume(writer, &list, &before);
            break;
        }
    }
    /* Remove a shard that was claimed before a codec failed to start. */
    if (!code && bagi_writer_start(writer, before) &&
        !writer->outputs[writer->spec.count].resumed.length) {
        bags_error ignored;
        bagi_writer_drop(writer, &ignored);
    }
    bags_buffer_free(&list.array);
    if (!bagi_writing_end(&writer->writing, err)) {
        BAGI_CHECK(bagi_writer_assert(writer));
        return writer;
    }
    bagi_writer_free(writer);
    return NULL;
}

BAGS_API BAGI_COLD bags_code bags_writer_close(bags_writer *writer, bags_error *err) {
    BAGI_ERR(err);
    if (!writer)
        return BAGS_OK;
    bags_error *failure = &writer->writing.failure;
    BAGI_CHECK(bagi_writer_assert(writer));
    if (!failure->code && writer->begun)
        bagi_writer_stop_refused(writer);
    if (bagi_writing_is_ours(&writer->writing, writer->path) && !failure->code &&
        writer->partial) {
        writer->drafted = false; /* keep its draft for recovery */
        bagi_datapoint_rewind(writer);
    }
    if (!failure->code && writer->begun && !writer->pending.code) {
        bagi_writer_flush_ours(writer);
        if (!failure->code)
            bagi_writer_refuse_state(writer, "begun and not ended", failure);
    }
    bagi_writer_check_idle(writer);
    /* Readers would refuse an unfinished shard without datapoints. */
    if (!failure->code && writer->dir.path && writer->sharded &&
        writer->outputs[writer->spec.count].length == 0)
        bagi_writer_drop(writer, failure);
    else if (!failure->code && writer->dir.path)
        bagi_writer_finish(writer);
    bags_code code = bagi_writing_close(&writer->writing, &writer->refusal, err);
    bagi_writer_free(writer);
    return code;
}

/* Data from before this writer stays, as unfinished as it was. So does a complete shard
 * if only syncing failed. */
BAGS_API BAGI_COLD void bags_writer_abort(bags_writer *writer) {
    bags_error ignored;
    if (!writer)
        return;
    BAGI_CHECK(bagi_writer_assert(writer));
    bool ours = bagi_writing_is_ours(&writer->writing, writer->path);
    bool resumed = writer->outputs[writer->spec.count].resumed.length > 0;
    if (ours && resumed) {
        writer->writing.failure.code = BAGS_OK; /* truncate even after a failure */
        if (writer->drafts.handle)
            bagi_writer_end_drafts(
                writer, writer->outputs[writer->spec.count].resumed.length);
        for (size_t i = 0; i <= writer->spec.count; i++)
            bagi_output_rewind(&writer->outputs[i], writer->outputs[i].resumed);
        bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_truncate);
    } else if (ours) {
        bagi_writer_drop(writer, &ignored);
    }
    bagi_writer_free(writer);
}

#endif /* BAGS_NO_WRITER */

/* ========================================================================
 * >>dataset-read
 * Owns open datasets and rows. A reader knows every shard's number, first datapoint and
 * length. A shard's Bags are opened on first use, under a lock, and published to all
 * threads; after that, no lock is needed to find them. The Bags of an unfinished shard
 * are opened with the reader.
 *
 *     reader->mutex        held while a Bag or its NAME.dict is opened: shard->bags,
 *                          bag->dictionary, reader->dictionaries
 *     reader->files.mutex  held while a file is opened or closed: see bagi_files; taken
 *                          inside reader->mutex, never the other way round
 *     (nothing)            nothing else changes after bags_reader_open
 *
 * Every read goes from a datapoint to its refs, to the selected fields' Bags, to spans
 * of their blobs. bags_reader_get does this for one datapoint, and finds mapped blobs
 * without a span; bags_reader_get_blob is its short form for one blob; bagi_read_many
 * does all other reads, and prefetches. Called by users and by bags_checksum.
 * ====================================================================== */

/* A reader's data about a shard, in addition to bags_shard. */
typedef struct bagi_shard {
    bagi_bag_options bag_options; /* except for names; of a finished shard */
    void **bags; /* one bag_reader per field, then refs; NULL: not used yet. For an
                    unfinished shard, all are opened with the reader, or none if it has
                    no datapoint */
} bagi_shard;

struct bags_reader {
    bagi_env env;
    bags_reader_options options;
    char *path;
    const char *shown; /* the path in messages */
    bool sharded;
    bagi_spec spec;
    bags_shard *shards; /* parallel arrays, of `count` shards, ... */
    bagi_shard *parts;
    bags_buffer arrays[2]; /* ... in this memory */
    size_t count;
    uint64_t length, skipped;
    bagi_files files;
    bagi_mutex mutex;
    bool has_mutexes;
    bool checked;                  /* all shard lengths were found to be of one
                                      version */
    bool cold;                     /* unsharded, and on the disk when it was opened */
    bagi_dictionary *dictionaries; /* used by values */
};

/* Set up a shard's directory; free it with bagi_dir_free, even after a failure. */
static bags_code bagi_reader_dir(
    const bags_reader *reader, size_t shard, bagi_dir *dir, bags_error *err) {
    bagi_shard_id name = {reader->shards[shard].number, reader->shards[shard].digits};
    return bagi_shard_dir(dir, &reader->env, reader->path, name, err);
}

/* Open a Bag and publish it, unless another thread does so first. */
BAGI_NOINLINE static bags_code bagi_reader_first_bag(const bags_reader *from,
    const bagi_shard *of, size_t field, const bag_reader **out, bags_error *err) {
    bags_reader *reader = (bags_reader *)bagi_mutable(from);
    bagi_shard *part = (bagi_shard *)bagi_mutable(of);
    bag_reader *bag = NULL;
    bagi_dir dir;
    bags_code code = bagi_files_check(&reader->files, reader->shown, err);
    *out = NULL;
    if (code)
        return code;
    bagi_lock(&reader->mutex);
    if (!reader->checked && reader->count > 1)
        code = bags_reader_check(reader, err);
    reader->checked = !code;
    if (!code && !part->bags) {
        void **bags = (void **)bagi_alloc(
            &reader->env.memory, (reader->spec.count + 1) * sizeof *bags, err);
        code = bags ? BAGS_OK : BAGS_ERROR_MEMORY;
        if (bags)
            BAGI_STORE(&part->bags, bags);
    }
    if (!code && part->bags[field]) {
        bag = (bag_reader *)part->bags[field];
    } else if (!code) {
        bagi_bag_options bag_options = part->bag_options;
        bag_options.name = bagi_spec_name(&reader->spec, field);
        code = bagi_reader_dir(reader, (size_t)(part - reader->parts), &dir, err);
        if (!code)
            code = bagi_bag_open(&dir, &bag_options, &reader->files, &bag, err);
        bagi_dir_free(&dir);
        bool plain = field == reader->spec.count || !reader->spec.types[field].sequence;
        if (!code && plain) {
            bag->touch = true;
            bag->touch_length = bag->cold ? 0 : bag->mapped_length;
        }
        if (!code)
            BAGI_STORE(&part->bags[field], (void *)bag);
    }
    bagi_unlock(&reader->mutex);
    *out = bag;
    return code;
}

/* The Bag of a field (index spec.count: of refs) in a shard, opened if necessary. */
static BAGI_HOT bags_code bagi_reader_bag(const bags_reader *reader,
    const bagi_shard *part, size_t field, const bag_reader **out, bags_error *err) {
    void **bags = (void **)BAGI_LOAD(&part->bags);
    void *bag = bags ? (void *)BAGI_LOAD(&bags[field]) : NULL;
    *out = (const bag_reader *)bag;
    return bag ? BAGS_OK : bagi_reader_first_bag(reader, part, field, out, err);
}

/* A Bag's dictionary, read if necessary, and published. */
BAGI_NOINLINE static bags_code bagi_reader_dictionary(const bags_reader *from,
    size_t shard, size_t field, const bagi_dictionary **out, bags_error *err) {
    bags_reader *reader = (bags_reader *)bagi_mutable(from);
    const bag_reader *opened = NULL;
    bagi_dir dir;
    bags_code code = bagi_reader_bag(from, &from->parts[shard], field, &opened, err);
    BAGI_TRY(code);
    bag_reader *bag = (bag_reader *)bagi_mutable(opened);
    *out = (const bagi_dictionary *)BAGI_LOAD(&bag->dictionary);
    if (*out)
        return BAGS_OK;
    BAGI_TRY(bagi_files_check(&reader->files, reader->shown, err));
    bagi_lock(&reader->mutex);
    *out = (const bagi_dictionary *)bag->dictionary;
    if (!*out) {
        const char *name = bagi_spec_name(&reader->spec, field);
        bags_trailer trailer = bag->trailer;
        bags_error why;
        code = bagi_reader_dir(reader, shard, &dir, err);
        /* With a truncated dictionary, frames would decode to wrong bytes, so its
         * checksum is compared even if blobs are not verified. NAME.crc may be missing
         * or incomplete. */
        if (BAGI_CHECKSUMS && !code && !bag->verify) {
            bags_code read = bagi_crcs_read_trailer(&dir, name, &trailer, &why);
            if (read && read != BAGS_ERROR_MISSING && read != BAGS_ERROR_CORRUPT) {
                *err = why;
                code = read;
            }
        }
        if (!code)
            code = bagi_dictionary_open(&reader->dictionaries, bag->record, &trailer,
                &dir, name, &reader->spec.coders[field], out, err);
        bagi_dir_free(&dir);
        if (!code)
            BAGI_STORE(&bag->dictionary, bagi_mutable(*out));
    }
    bagi_unlock(&reader->mutex);
    return code;
}

/* The field of selection i; if selects is NULL, all fields are selected in full. */
static BAGI_HOT size_t bagi_select_field(const bags_select *selects, size_t i) {
    return selects ? selects[i].field : i;
}

/* Announce that the Bags of these fields (NULL: all) in a shard may be opened soon. */
BAGI_COLD static void bagi_reader_expect(
    const bags_reader *reader, size_t shard, const bags_select *selects, size_t count) {
    void **bags = (void **)BAGI_LOAD(&reader->parts[shard].bags);
    bagi_bag_options bag_options = reader->parts[shard].bag_options;
    size_t fields = reader->spec.count;
    bagi_dir dir;
    bags_error ignored;
    if (!reader->env.io.expect || bagi_reader_dir(reader, shard, &dir, &ignored))
        return;
    for (size_t i = 0; i < (selects ? count : fields); i++) {
        size_t field = bagi_select_field(selects, i);
        if (field >= fields || (bags && BAGI_LOAD(&bags[field]) != NULL))
            continue;
        bag_options.name = bagi_spec_name(&reader->spec, field);
        bagi_bag_expect(&dir, &bag_options);
        if (bagi_coder_dictionary(&reader->spec.coders[field])) {
            bagi_dir_expect(&dir, bag_options.name, BAGI_DICTIONARY);
            if (BAGI_CHECKSUMS && !bag_options.verify_checksums)
                bagi_dir_expect(&dir, bag_options.name, ".crc"); /* of both */
        }
    }
    bagi_dir_free(&dir);
}

/* Request what reading needs of refs.bag and of the Bags of `count` fields. Blob i of a
 * plain field that is as long as refs.bag probably belongs to datapoint i. If `whole`,
 * request it. */
BAGI_COLD static void bagi_prefetch_run(
    bagi_prefetch *files, size_t count, bool whole) {
    const bagi_prefetch *refs = files;
    for (size_t i = 0; i <= count; i++)
        bagi_prefetch_end(&files[i]);
    for (size_t i = 0; i <= count; i++)
        bagi_prefetch_entries(&files[i]);
    for (size_t i = 0; i <= count; i++) {
        uint64_t size = files[i].size - files[i].table;
        if (i == 0 || (whole && size == refs->size - refs->table))
            bagi_prefetch_blob(&files[i]);
    }
}

/* If the first Bag of these fields (NULL: all) that is not open is on the disk, request
 * the bytes that reading this datapoint of the shard needs from all such Bags and from
 * refs.bag. The mutex is held: no other thread opens them meanwhile. */
BAGI_COLD static bags_code bagi_reader_prefetch_bags(const bags_reader *reader,
    size_t shard, uint64_t local, const bags_select *selects, size_t count, bool whole,
    bags_error *err) {
    const bagi_spec *spec = &reader->spec;
    void **bags = (void **)BAGI_LOAD(&reader->parts[shard].bags);
    bagi_prefetch files[BAGI_PREFETCHES];
    size_t used = 0; /* after files[0], of refs.bag */
    bool cold = true;
    bagi_dir dir;
    bags_code code = bagi_reader_dir(reader, shard, &dir, err);
    for (size_t i = 0; i < count && used + 1 < BAGI_PREFETCHES && cold && !code; i++) {
        size_t field = bagi_select_field(selects, i);
        if (bags && BAGI_LOAD(&bags[field]))
            continue;
        bagi_prefetch *file = &files[++used];
        code = bagi_prefetch_open(&dir, spec->fields[field].name, ".bag", file, err);
        cold = !code && file->handle &&
               (used > 1 || reader->cold || bagi_prefetch_is_cold(file));
        if (!spec->types[field].sequence)
            file->blob = local;
    }
    if (used > 0 && cold) {
        code = bagi_prefetch_open(&dir, "refs", ".bag", files, err);
        files->blob = local;
        if (!code && files->handle)
            bagi_prefetch_run(files, used, whole);
        bagi_prefetch_close(files);
    }
    for (size_t i = 1; i <= used; i++)
        bagi_prefetch_close(&files[i]);
    bagi_dir_free(&dir);
    return code;
}

/* Prefetch what reading a datapoint needs of its Bags that are not open. */
static bags_code bagi_reader_prefetch(const bags_reader *from, size_t shard,
    uint64_t local, const bags_select *selects, size_t count, bool whole,
    bags_error *err) {
    bags_reader *reader = (bags_reader *)bagi_mutable(from);
    void **bags = (void **)BAGI_LOAD(&reader->parts[shard].bags);
    size_t open = 0;
    while (bags && open < count && BAGI_LOAD(&bags[bagi_select_field(selects, open)]))
        open++;
    if (open == count)
        return BAGS_OK;
    BAGI_TRY(bagi_files_check(&reader->files, reader->shown, err));
    bagi_lock(&reader->mutex);
    bags_code code =
        bagi_reader_prefetch_bags(reader, shard, local, selects, count, whole, err);
    bagi_unlock(&reader->mutex);
    return code;
}

/* ---- opening ---- */

typedef struct bagi_opening {
    bags_reader *reader;
    bagi_common common;
    bagi_bag_options bag_options; /* for a shard, before it is opened */
    const bagi_shard_list *list;
    bags_error *err; /* not the caller's, because a failed try may be repeated */
} bagi_opening;

/* Limit on tries to read a dataset that another process is changing. A few are enough
 * unless the dataset changes as fast as it is read. */
enum { BAGI_TRIES = 8 };

/*
 * Open a shard without spec.json, by its record. Nothing is locked: data that refs.idx
 * lists no longer changes, whatever the writer appends. The journals are read into
 * memory, because they are removed when the shard is finished. The Bags stay the same
 * files, to which the writer adds a table; they are not mapped, because an abort
 * truncates them. *found is set if there is a record.
 */
BAGI_COLD static bags_code bagi_opening_unfinished(bagi_opening *opening,
    const bagi_dir *dir, bags_shard *shard, bagi_shard *part, bool *found) {
    bags_reader *reader = opening->reader;
    bags_error *err = opening->err;
    bag_reader **bags = NULL;
    bagi_spec own = BAGI_ZERO;
    bool listed = false;
    bagi_scanning scan;
    bagi_scan prefix = BAGI_ZERO;
    bags_code code = bagi_common_read(
        &opening->common, dir, ".partial", &own, &part->bag_options.record, err);
    bool differs = own.types != NULL;
    bagi_spec_free(&reader->env.memory, &own);
    if (code == BAGS_ERROR_MISSING || (code == BAGS_ERROR_CORRUPT && !differs))
        return BAGS_OK; /* the record is not yet written, or no longer there */
    if (code)
        return code;
    *found = shard->unfinished = true;
    const bagi_spec *spec = &opening->common.spec;
    bagi_bag_options bag_options = part->bag_options;
    bag_options.cache_index = true;
    code = bagi_unfinished_open(
        dir, spec, &bag_options, &reader->files, &bags, &listed, err);
    if (!code && listed) {
        code = bagi_scan_rows(&scan, bags, spec->types, spec->count, &prefix, err);
        bagi_scan_close(&scan, !code, &prefix);
    }
    if (!code && prefix.reason && !prefix.length)
        code = bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: refs.idx lists datapoints, but none is complete (%s)", dir->shown,
            prefix.reason);
    if (code || !prefix.length) {
        bagi_bags_free(&reader->env, bags, spec->count + 1);
        return code && err->system == ENOENT && !listed ? BAGS_OK : code;
    }
    shard->length = prefix.length;
    part->bags = (void **)bags;
    part->bag_options.split = false;
    return BAGS_OK;
}

/* Open one shard. Without spec.json it is unfinished. If spec.json was read, a missing
 * file is a fault of a finished shard. On the last try, missing files are taken as not
 * yet existing. */
BAGI_COLD static bags_code bagi_opening_shard(
    void *user, const bagi_dir *dir, size_t index) {
    bagi_opening *opening = (bagi_opening *)user;
    bags_reader *reader = opening->reader;
    bags_unfinished unfinished = reader->options.unfinished;
    bags_error *err = opening->err;
    bags_shard *shard = &reader->shards[reader->count];
    bagi_shard *part = &reader->parts[reader->count];
    bags_path_kind kind = BAGS_PATH_DIRECTORY;
    bool found = false, again = true;
    bags_code code = BAGS_OK;
    for (unsigned tries = 0; again && tries < BAGI_TRIES; tries++) {
        memset(shard, 0, sizeof *shard);
        memset(part, 0, sizeof *part);
        part->bag_options = opening->bag_options;
        code =
            bagi_shard_open(&opening->common, dir, unfinished != BAGS_UNFINISHED_REFUSE,
                &part->bag_options, &shard->length, err);
        found = !part->bag_options.record.missing;
        if (!found)
            code = BAGS_OK;
        if (found || unfinished != BAGS_UNFINISHED_READ)
            break;
        /* If its files contradict each other, or no datapoint is complete and it is now
         * finished, its writer is running. */
        code = bagi_opening_unfinished(opening, dir, shard, part, &found);
        again = code == BAGS_ERROR_MISSING || code == BAGS_ERROR_CORRUPT ||
                code == BAGS_ERROR_CHANGED;
        if (!code && !shard->length)
            again = bagi_is_finished(dir, &code, err);
    }
    if (!code && !found && !opening->list->single)
        kind = bagi_kind(&reader->env, dir->path, &code, err);
    BAGI_TRY(code);
    /* A listed directory that is gone was not unfinished: bags_finalize may have
     * renamed it, and the list is outdated. */
    if (kind == BAGS_PATH_NONE)
        return bags_fail(err, BAGS_ERROR_GAP,
            "%s: removed or renamed while the dataset was being opened", dir->shown);
    if (!found) {
        reader->skipped++;
        return unfinished == BAGS_UNFINISHED_REFUSE ? bagi_fail_unfinished(dir, err)
                                                    : BAGS_OK;
    }
    shard->number = opening->list->ids[index].number;
    shard->digits = opening->list->ids[index].digits;
    shard->start = reader->length;
    reader->count++; /* owned by the reader from here on, even after a failure */
    if (shard->length > UINT64_MAX - reader->length)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "%s: more than 2^64 datapoints", reader->shown);
    reader->length += shard->length;
    return BAGS_OK;
}

/* Get the spec from a shard that will not be read. */
BAGI_COLD static bags_code bagi_opening_spec(
    void *user, const bagi_dir *dir, size_t index) {
    bagi_opening *opening = (bagi_opening *)user;
    bagi_record record;
    bool live = opening->reader->options.unfinished == BAGS_UNFINISHED_READ;
    (void)index;
    if (opening->common.spec.types)
        return BAGS_OK;
    bags_code code =
        bagi_common_read(&opening->common, dir, "", NULL, &record, opening->err);
    if (code == BAGS_ERROR_MISSING && live) {
        code = bagi_common_read(
            &opening->common, dir, ".partial", NULL, &record, opening->err);
        if (code == BAGS_ERROR_CORRUPT) /* it is not written yet */
            code = BAGS_ERROR_MISSING;
    }
    return code == BAGS_ERROR_MISSING ? BAGS_OK : code;
}

/* Reserve memory for a list's shards. */
BAGI_COLD static bags_code bagi_reader_reserve(
    bags_reader *reader, size_t count, bags_error *err) {
    bags_buffer *arrays = reader->arrays;
    bags_code code =
        bags_buffer_reserve(&arrays[0], count * sizeof *reader->shards, err);
    if (!code)
        code = bags_buffer_reserve(&arrays[1], count * sizeof *reader->parts, err);
    reader->shards = (bags_shard *)(void *)arrays[0].data;
    reader->parts = (bagi_shard *)(void *)arrays[1].data;
    return code;
}

/* Forget all shards. */
BAGI_COLD static void bagi_reader_drop(bags_reader *reader, const bagi_spec *spec) {
    for (size_t i = 0; i < reader->count; i++)
        bagi_bags_free(
            &reader->env, (bag_reader **)reader->parts[i].bags, spec->count + 1);
    reader->count = 0;
    reader->length = reader->skipped = 0;
}

#ifdef BAGS_DEBUG
/* Invariants of an open reader: its datapoints are those in its shards, ordered by
 * shard number. A Bag is open before its first use only if its shard is unfinished and
 * has a datapoint. */
static void bagi_reader_assert(const bags_reader *reader) {
    uint64_t length = 0;
    assert(reader->spec.types && reader->spec.coders && reader->has_mutexes);
    assert(reader->sharded || reader->count <= 1);
    for (size_t i = 0; i < reader->count; i++) {
        const bags_shard *shard = &reader->shards[i];
        assert(shard->start == length && (shard->digits > 0) == reader->sharded);
        assert(i == 0 || shard->number > shard[-1].number);
        assert(!reader->parts[i].bags || (shard->unfinished && shard->length));
        length += shard->length;
    }
    assert(reader->length == length);
}
#endif

/* Create a reader that has a path and options, but no shards yet. */
BAGI_COLD static bags_reader *bagi_reader_new(
    const char *path, const bags_reader_options *options, bags_error *err) {
    bagi_env env = bagi_env_of(&options->env);
    bags_reader *reader = (bags_reader *)bagi_alloc(&env.memory, sizeof *reader, err);
    if (!reader)
        return NULL;
    reader->env = env;
    reader->arrays[0] = reader->arrays[1] = bags_buffer_of(&env.memory);
    reader->options = *options;
    reader->files.limit = options->max_files ? options->max_files
                          : env.io.expect    ? 4096 /* of remote files */
                                             : 64;
    bags_code code =
        bagi_check_worker(path, options->shard_start, &reader->options.shard_stop, err);
    if (!code)
        code = bagi_check_unfinished(path, options->unfinished, -1, err);
    if (!code)
        code = bagi_check_checksums(path, options->verify_checksums, err);
    if (!code) {
        reader->path = bagi_absolute(&reader->env, path, strlen(path), err);
        code = reader->path ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    if (!code) {
        reader->shown = bagi_shown(&reader->env, reader->path);
        bagi_guard *guard = &reader->files.guard;
        guard->first = &reader->mutex;
        guard->second = &reader->files.mutex;
        guard->waits = reader->env.io.open == bagi_local_open;
        reader->has_mutexes = bagi_guard_open(guard);
        code = reader->has_mutexes ? BAGS_OK : bagi_fail_memory(err, 0);
    }
    if (!code)
        return reader;
    bags_reader_close(reader);
    return NULL;
}

/* A listing is not atomic: a writer may create a shard at a position already passed,
 * and then another at a position still to come; a shard may be renamed or removed
 * before it is opened. A reader that accepts unfinished shards lists again before it
 * reports a gap. */
BAGS_API BAGI_COLD bags_reader *bags_reader_open(
    const char *path, const bags_reader_options *options, bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bags_reader_options, options);
    bags_error why; /* error of a try that may be repeated; *err is written once */
    bagi_opening opening = BAGI_ZERO;
    bagi_shard_list list;
    bagi_dir dir;
    unsigned tries = 0;
    bags_reader *reader = bagi_reader_new(path, options, err);
    if (!reader)
        return NULL;
    opening.reader = reader;
    opening.common.registry = options->registry;
    opening.list = &list;
    opening.err = &why;
    opening.bag_options = bagi_bag_options_new();
    opening.bag_options.grows = options->unfinished == BAGS_UNFINISHED_READ;
    opening.bag_options.no_mmap = options->no_mmap;
    opening.bag_options.cache_index = options->cache_index;
    opening.bag_options.verify_checksums = options->verify_checksums;
    opening.bag_options.no_read_ahead = options->no_read_ahead;
    bool live = options->unfinished != BAGS_UNFINISHED_REFUSE;
    uint64_t start = options->shard_start, stop = reader->options.shard_stop;
    const bagi_spec *spec = &opening.common.spec;
    bags_code code = bagi_dir_open(&dir, &reader->env, reader->path, "", &why);
    if (!code) {
        bagi_dir_expect(&dir, "spec.json", ".partial");
        bagi_dir_expect(&dir, "spec.json", "");
        bagi_dir_expect(&dir, "refs", ".bag");
    }
    bool again = !code;
    while (again) {
        bagi_reader_drop(reader, spec);
        code = bagi_shard_list_find(&dir, &list, &why);
        reader->sharded = !list.single;
        if (!code && list.single)
            code = bagi_prefetch_dataset(&dir, &reader->cold, &why);
        if (!code && !options->allow_gaps)
            code = bagi_check_gaps(&list, start, stop, BAGI_GAPS_READ, &why);
        /* Next to an unfinished shard, a gap is most likely a shard not yet reached by
         * its writer: report the unfinished shard first. */
        if (code == BAGS_ERROR_GAP && !live) {
            bags_code other =
                bagi_each_shard(&list, start, stop, bagi_check_finished, &why, &why);
            code = other ? other : code;
        }
        if (!code)
            code = bagi_reader_reserve(reader, list.count, &why);
        if (!code)
            code =
                bagi_each_shard(&list, start, stop, bagi_opening_shard, &opening, &why);
        /* None of this worker's shards has the spec; another worker's shard may. */
        if (!code && !spec->types)
            code = bagi_each_shard(&list, 0, 1, bagi_opening_spec, &opening, &why);
        if (!code && !spec->types && list.single)
            code = bagi_fail_unfinished(&dir, &why);
        else if (!code && !spec->types)
            code = bags_fail(&why, BAGS_ERROR_UNFINISHED,
                "%s: no shard is finished; run bags_recover when their writers have "
                "ended",
                reader->shown);
        bags_buffer_free(&list.array);
        again = code == BAGS_ERROR_GAP && live && ++tries < BAGI_TRIES;
    }
    bagi_dir_free(&dir);
    reader->spec = *spec; /* owned by the reader from here on */
    if (!code) {
        BAGI_CHECK(bagi_reader_assert(reader));
        return reader;
    }
    *err = why;
    bags_reader_close(reader);
    return NULL;
}

BAGS_API BAGI_COLD void bags_reader_close(bags_reader *reader) {
    if (!reader)
        return;
    bags_allocator memory = reader->env.memory;
    if (reader->has_mutexes)
        bagi_guard_close(&reader->files.guard);
    if (reader->files.guard.lost) /* another thread was changing it */
        return;
    bagi_dictionaries_free(&memory, &reader->dictionaries);
    bagi_reader_drop(reader, &reader->spec);
    bags_buffer_free(&reader->arrays[0]);
    bags_buffer_free(&reader->arrays[1]);
    bagi_spec_free(&memory, &reader->spec);
    bagi_free_text(&memory, reader->path);
    bagi_free(&memory, reader, sizeof *reader);
}

/* ---- description ---- */

BAGS_API uint64_t bags_reader_length(const bags_reader *reader) {
    return reader ? reader->length : 0;
}

BAGS_API const char *bags_reader_path(const bags_reader *reader) {
    return reader ? bagi_passed(&reader->env, reader->path) : "";
}

BAGS_API uint64_t bags_reader_version(const bags_reader *reader) {
    uint64_t hash = reader ? reader->length : 0;
    for (size_t i = 0; reader && i < reader->count; i++) {
        uint64_t identity = reader->parts[i].bag_options.record.identity;
        uint64_t words[] = {
            identity, reader->shards[i].number, reader->shards[i].length};
        if (!identity)
            return 0;
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            hash = bagi_mix(hash, words[k]);
    }
    return reader && reader->count && !hash ? 1 : hash;
}

BAGS_API BAGI_COLD bags_code bags_shard_path(const char *path, const bags_shard *shard,
    char *out, size_t size, bags_error *err) {
    int length = shard->digits ? snprintf(out, size, "%s/%0*" PRIu64, path,
                                     (int)shard->digits, shard->number)
                               : snprintf(out, size, "%s", path);
    if (length >= 0 && (size_t)length < size)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_LIMIT, "%s: path too long (maximum %" PRIu64 ")",
        bags_path_tail(path), (uint64_t)size - 1);
}

BAGS_API const bags_shard *bags_reader_shards(
    const bags_reader *reader, size_t *count) {
    if (count)
        *count = reader ? reader->count : 0;
    return reader ? reader->shards : NULL;
}

BAGS_API const bags_field *bags_reader_fields(
    const bags_reader *reader, size_t *count) {
    if (count)
        *count = reader ? reader->spec.count : 0;
    return reader ? reader->spec.fields : NULL;
}

BAGI_COLD static bags_code bagi_fail_field_index(
    const bags_reader *reader, size_t field, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_FIELD,
        "%s: field index %" PRIu64 " out of range (%" PRIu64 " fields)", reader->shown,
        (uint64_t)field, (uint64_t)reader->spec.count);
}

BAGS_API BAGI_COLD bags_code bags_reader_field(
    const bags_reader *reader, const char *name, size_t *field, bags_error *err) {
    BAGI_BEGIN(reader && name && field, err);
    size_t found = bagi_spec_find(&reader->spec, name);
    if (found == reader->spec.count)
        return bags_fail(err, BAGS_ERROR_FIELD, "%s: field \"%.200s\": unknown",
            reader->shown, name);
    *field = found;
    return BAGS_OK;
}

BAGS_API const bags_type *bags_reader_type(const bags_reader *reader, size_t field) {
    return reader && field < reader->spec.count ? &reader->spec.types[field] : NULL;
}

/* Add a shard's Bags. For a finished shard, they are opened but not kept. */
BAGI_COLD static bags_code bagi_info_shard(bags_reader *reader, size_t shard,
    const bagi_dir *dir, bags_info *info, bags_field_info *fields, bags_error *err) {
    const bagi_shard *part = &reader->parts[shard];
    size_t count = reader->spec.count;
    bool checksums = false, unfinished = reader->shards[shard].unfinished;
    bagi_bag_options bag_options = part->bag_options;
    bag_options.no_mmap = true;
    bag_options.cache_index = bag_options.verify_checksums = false;
    for (size_t k = 0; k < count + !part->bag_options.split; k++) {
        bags_code code = BAGS_OK;
        bag_reader *bag = unfinished && part->bags ? (bag_reader *)part->bags[k] : NULL;
        bag_options.name = bagi_spec_name(&reader->spec, k);
        if (!unfinished)
            BAGI_TRY(bagi_bag_open(dir, &bag_options, &reader->files, &bag, err));
        if (bag && !checksums)
            checksums = bagi_dir_has(dir, bag_options.name, ".crc", &code, err);
        info->size += bag_reader_size(bag);
        if (bag && fields && k < count) {
            fields[k].blobs += bag->length;
            fields[k].size += bag->limit;
        }
        bagi_lock(&reader->files.mutex);
        bagi_bag_free(unfinished ? NULL : bag);
        bagi_unlock(&reader->files.mutex);
        BAGI_TRY(code);
    }
    info->checksums += checksums;
    return BAGS_OK;
}

BAGS_API BAGI_COLD bags_code bags_reader_info(const bags_reader *from, bags_info *info,
    bags_field_info *fields, bags_error *err) {
    BAGI_BEGIN(from && info, err);
    bags_reader *reader = (bags_reader *)bagi_mutable(from);
    bags_code code = BAGS_OK;
    size_t ahead = reader->env.io.expect ? 0 : SIZE_MAX;
    memset(info, 0, sizeof *info);
    if (fields)
        memset(fields, 0, reader->spec.count * sizeof *fields);
    BAGI_TRY(bagi_files_check(&reader->files, reader->shown, err));
    info->sharded = reader->sharded;
    info->skipped = reader->skipped;
    for (size_t i = 0; i < reader->count && !code; i++) {
        bagi_dir dir;
        for (; ahead < reader->count && ahead < i + BAGI_BAGS_AHEAD; ahead++) {
            bags_error ignored;
            if (!bagi_reader_dir(reader, ahead, &dir, &ignored))
                bagi_shard_expect(&dir, &reader->spec);
            bagi_dir_free(&dir);
        }
        code = bagi_reader_dir(reader, i, &dir, err);
        if (!code)
            code = bagi_info_shard(reader, i, &dir, info, fields, err);
        bagi_dir_free(&dir);
    }
    return code ? code : bags_reader_check(reader, err);
}

/* Compare a shard's record with the one it was opened with, or announce the
 * comparison. */
BAGI_COLD static bags_code bagi_reader_check_shard(
    const bags_reader *reader, size_t shard, bool announce, bags_error *err) {
    bagi_dir dir;
    bags_code code = bagi_reader_dir(reader, shard, &dir, err);
    if (!code)
        code = bagi_check_record(&reader->env, bagi_dir_path(&dir, "spec.json", ""),
            reader->parts[shard].bag_options.record.identity, announce, err);
    bagi_dir_free(&dir);
    return code;
}

BAGS_API BAGI_COLD bags_code bags_reader_check(
    const bags_reader *reader, bags_error *err) {
    BAGI_BEGIN(reader, err);
    size_t count = reader->env.io.expect ? reader->count : 0;
    for (size_t i = 0; i < 2 * count; i++) /* first announce all, then compare */
        BAGI_TRY(bagi_reader_check_shard(reader, i % count, i < count, err));
    return BAGS_OK;
}

BAGS_API BAGI_COLD bags_code bags_reader_check_shard(
    const bags_reader *reader, size_t shard, bags_error *err) {
    BAGI_BEGIN(reader, err);
    if (shard >= reader->count)
        return bagi_fail_index("shard", shard, reader->count, err);
    return bagi_reader_check_shard(reader, shard, false, err);
}

/* ---- rows ---- */

BAGS_API bags_select bags_select_all(size_t field) {
    bags_select select = {field, false, 0, 0, 0};
    return select;
}

BAGS_API bags_select bags_select_slice(
    size_t field, uint64_t start, uint64_t stop, uint64_t step) {
    bags_select select = {field, true, start, stop, step};
    return select;
}

/* Stands for a datapoint index: the row has many datapoints, without their indices. If
 * the field's values may need a dictionary, their shard numbers follow the slot. */
#define BAGI_ROW_MANY UINT64_MAX

/* A row takes the allocator of the first reader that uses it. */
BAGI_COLD static void bagi_row_adopt(const bags_reader *reader, bags_row *row) {
    bags_buffer *buffers[] = {&row->slots, &row->items, &row->data, &row->scratch,
        &row->spans, &row->ref_spans, &row->refs};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        bagi_buffer_adopt(buffers[i], &reader->env.memory);
}

/* Start a call that uses the row. The row is empty until the call succeeds. */
static BAGI_HOT void bagi_row_begin(const bags_reader *reader, bags_row *row) {
    row->reader = reader;
    row->length = 0;
    row->stale = true;
    if (BAGI_UNLIKELY(!row->items.resize))
        bagi_row_adopt(reader, row);
}

static bags_allocator bagi_row_memory(const bags_row *row) {
    bags_allocator memory = {row->items.resize, row->items.user};
    return memory;
}

static bags_view *bagi_row_items(const bags_row *row) {
    return (bags_view *)(void *)row->items.data;
}

/* bags_buffer_reserve, without a call if the buffer is large enough. */
static BAGI_HOT bags_code bagi_reserve(
    bags_buffer *buffer, size_t size, bags_error *err) {
    return size <= buffer->capacity ? BAGS_OK : bags_buffer_reserve(buffer, size, err);
}

/* Reserve space for `count` items in all slots together. Existing items are kept. The
 * array is never NULL. */
static BAGI_HOT bags_code bagi_row_reserve(
    bags_row *row, uint64_t count, bags_error *err) {
    if (BAGI_UNLIKELY(count > SIZE_MAX / 2 / sizeof(bags_view)))
        return bagi_fail_memory(err, SIZE_MAX);
    return bagi_reserve(&row->items, (size_t)(count + 1) * sizeof(bags_view), err);
}

/* ---- memory of decoded values ---- */

/* Memory that does not move while values point into it. The bytes follow. */
struct bagi_block {
    struct bagi_block *older;
    size_t capacity, used;
    void *last; /* the last piece allocated; it can grow */
};

#define BAGI_VALUE_ALIGN ((size_t)16)
#define BAGI_BLOCK_SIZE                                                                \
    ((sizeof(struct bagi_block) + BAGI_VALUE_ALIGN - 1) & ~(BAGI_VALUE_ALIGN - 1))

/* Free these blocks. */
static void bagi_values_free(bags_row *row, struct bagi_block **blocks) {
    bags_allocator memory = bagi_row_memory(row);
    while (*blocks) {
        struct bagi_block *block = *blocks;
        *blocks = block->older;
        bagi_free(&memory, block, BAGI_BLOCK_SIZE + block->capacity);
    }
}

/* The resize function of a bags_buffer whose memory is a piece of the row's blocks. Old
 * memory stays valid when the buffer grows or is freed. The last piece grows in
 * place. */
static void *bagi_values_resize(
    void *user, void *data, size_t old_size, size_t new_size) {
    bags_row *row = (bags_row *)user;
    struct bagi_block *block = row->values;
    size_t size = (new_size + BAGI_VALUE_ALIGN - 1) & ~(BAGI_VALUE_ALIGN - 1);
    size_t used = block ? block->used : 0;
    if (new_size == 0 || size < new_size || size > SIZE_MAX / 2)
        return NULL;
    if (data && block && block->last == data)
        used = (size_t)((char *)data - (char *)block) - BAGI_BLOCK_SIZE;
    if (!block || size > block->capacity - used) {
        bags_allocator memory = bagi_row_memory(row);
        bool doubles = block && block->capacity <= SIZE_MAX / 4;
        size_t least = doubles ? 2 * block->capacity : 4096;
        size_t capacity = BAGI_MAX(size, least);
        block = (struct bagi_block *)memory.resize(
            memory.user, NULL, 0, BAGI_BLOCK_SIZE + capacity);
        if (!block)
            return NULL;
        block->older = row->values;
        block->capacity = capacity;
        row->values = block;
        used = 0;
    }
    void *piece = (char *)block + BAGI_BLOCK_SIZE + used;
    if (data && piece != data)
        memcpy(piece, data, old_size < new_size ? old_size : new_size);
    block->used = used + size;
    block->last = piece;
    return piece;
}

BAGS_API BAGI_COLD void bags_row_free(bags_row *row) {
    if (!row)
        return;
    bagi_values_free(row, &row->values);
    bags_buffer_free(&row->slots);
    bags_buffer_free(&row->items);
    bags_buffer_free(&row->data);
    bags_buffer_free(&row->scratch);
    bags_buffer_free(&row->spans);
    bags_buffer_free(&row->ref_spans);
    bags_buffer_free(&row->refs);
    memset(row, 0, sizeof *row);
}

/* ---- refs of datapoints ---- */

/* Find a datapoint's shard, and keep it in the row; returns the number of shards if the
 * index is out of range. */
BAGI_NOINLINE static size_t bagi_reader_find_shard(
    const bags_reader *reader, uint64_t index, bags_row *row) {
    size_t low = 0, high = reader->count;
    if (index >= reader->length)
        return high;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (reader->shards[middle].start <= index)
            low = middle;
        else
            high = middle;
    }
    row->shard = low;
    return low;
}

/* The same, plus the datapoint's index within the shard; NULL if out of range. Usually
 * it is the shard that the row was last used for. */
static BAGI_HOT const bagi_shard *bagi_row_shard(
    const bags_reader *reader, uint64_t index, bags_row *row, uint64_t *local) {
    if (row->shard < reader->count) {
        const bags_shard *shard = &reader->shards[row->shard];
        *local = index - shard->start;
        if (*local < shard->length)
            return &reader->parts[row->shard];
    }
    if (bagi_reader_find_shard(reader, index, row) == reader->count)
        return NULL;
    *local = index - reader->shards[row->shard].start;
    return &reader->parts[row->shard];
}

BAGI_COLD static bags_code bagi_fail_datapoint(
    const bags_reader *reader, uint64_t index, bags_error *err) {
    return bags_prefix(err, bagi_fail_index("datapoint", index, reader->length, err),
        "%s: ", reader->shown);
}

/* A fault in refs.bag; field is spec->count if it concerns the entire row. */
BAGI_COLD static bags_code bagi_fail_refs(const char *path, const bagi_spec *spec,
    uint64_t index, size_t field, const char *what, bags_error *err) {
    if (field < spec->count)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: field \"%.200s\": datapoint %" PRIu64 ": refs.bag: %s", path,
            spec->fields[field].name, index, what);
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: datapoint %" PRIu64 ": refs.bag: %s",
        path, index, what);
}

/* Refs that cannot be parsed. */
BAGI_COLD static bags_code bagi_fail_row(const char *path, const bagi_spec *spec,
    uint64_t index, bags_view row, bags_error *err) {
    size_t field = spec->count;
    (void)bagi_refs_parse_any(row, spec->types, spec->count, NULL, &field);
    const char *fault = field == spec->count
                            ? "not a msgpack array with one element per field"
                        : spec->types[field].sequence ? "not [] or [first, count]"
                                                      : "not a blob index";
    return bagi_fail_refs(path, spec, index, field, fault, err);
}

static bool bagi_ref_fits(bags_ref ref, uint64_t length) {
    return (ref.count <= length && ref.first <= length - ref.count) || ref.count == 0;
}

/* Describe a ref that does not fit. */
BAGI_COLD static bags_code bagi_fail_ref(const char *path, const bagi_spec *spec,
    uint64_t index, size_t field, bags_ref ref, uint64_t length, bags_error *err) {
    char what[128];
    if (spec->types[field].sequence)
        (void)snprintf(what, sizeof what,
            "blobs [%" PRIu64 ", %" PRIu64 "] (first, count) out of range "
            "(length %" PRIu64 ")",
            ref.first, ref.count, length);
    else
        (void)snprintf(what, sizeof what,
            "blob index %" PRIu64 " out of range (length %" PRIu64 ")", ref.first,
            length);
    return bagi_fail_refs(path, spec, index, field, what, err);
}

/* Like bagi_fail_ref, unless the shard was replaced after refs.bag was opened. */
BAGI_COLD static bags_code bagi_fail_ref_read(const bags_reader *reader, uint64_t index,
    size_t field, bags_ref ref, const bag_reader *bag, bags_error *err) {
    bags_code code = bagi_fetch_check(&bag, 1, true, err);
    if (!code)
        code = bagi_fetch_check(&bag, 1, false, err);
    return code ? code
                : bagi_fail_ref(reader->shown, &reader->spec, index, field, ref,
                      bag->length, err);
}

/* The row's array of refs, one per field. */
static bags_ref *bagi_row_refs(const bags_row *row) {
    return (bags_ref *)(void *)row->refs.data;
}

static bags_code bagi_row_reserve_refs(
    const bags_reader *reader, bags_row *row, bags_error *err) {
    return bagi_reserve(&row->refs, (reader->spec.count + 1) * sizeof(bags_ref), err);
}

/* Parse the refs of datapoint `index` from its blob of refs.bag. A split shard has no
 * refs.bag: blob n of every field belongs to datapoint n. */
static BAGI_HOT bags_code bagi_refs_of(const bags_reader *reader,
    const bagi_shard *part, uint64_t index, bags_view blob, bags_ref *refs,
    bags_error *err) {
    const bagi_spec *spec = &reader->spec;
    if (BAGI_UNLIKELY(part->bag_options.split)) {
        for (size_t i = 0; i < spec->count; i++) {
            refs[i].first = index - reader->shards[part - reader->parts].start;
            refs[i].count = 1;
        }
        return BAGS_OK;
    }
    if (bagi_refs_parse(blob, spec->types, spec->count, refs))
        return BAGS_OK;
    return bagi_fail_row(reader->shown, spec, index, blob, err);
}

/* Usually blob i of a plain field belongs to datapoint i: request the table entry, or
 * the blob, before the refs are read and confirm this. Otherwise the request is useless
 * but harmless: it cannot fault, wherever an invalid table leads. */
static BAGI_HOT void bagi_touch(const bag_reader *bag, uint64_t local, bool is_blob) {
    if (!bag || local >= BAGI_LENGTH(bag->touch_length))
        return;
    const unsigned char *entry = bag->mapped.table + 8 * local;
    if (!is_blob) {
        BAGI_TOUCH(entry);
    } else {
        uintptr_t at = (uintptr_t)bag->mapped.data + (uintptr_t)bagi_load_u64(entry);
        BAGI_TOUCH((const void *)at);
        BAGI_TOUCH((const void *)(at + 64));
    }
}

/* Read the refs of datapoint `local` of the shard with these Bags into bagi_row_refs,
 * if nothing must be opened, read or reserved for this. Returns false otherwise, or if
 * the refs are invalid. */
static BAGI_HOT bool bagi_row_find_refs(
    const bags_reader *reader, void *const *bags, uint64_t local, const bags_row *row) {
    size_t count = reader->spec.count;
    const bag_reader *bag = (const bag_reader *)BAGI_LOAD(&bags[count]);
    bags_view blob;
    return bag && row->refs.capacity > count * sizeof(bags_ref) &&
           bagi_mapped_get(&bag->mapped, local, &blob) &&
           bagi_refs_parse_usual(blob, reader->spec.types, count, bagi_row_refs(row));
}

/* The same, in the general case. */
BAGI_NOINLINE static bags_code bagi_row_read_refs(const bags_reader *reader,
    const bagi_shard *part, uint64_t local, bags_row *row, bags_error *err) {
    void *const *bags = (void **)BAGI_LOAD(&part->bags);
    const bag_reader *bag = NULL;
    bags_view blob = {NULL, 0};
    if (bags && bagi_row_find_refs(reader, bags, local, row))
        return BAGS_OK;
    bags_code code = bagi_row_reserve_refs(reader, row, err);
    if (!code && !part->bag_options.split)
        code = bagi_reader_bag(reader, part, reader->spec.count, &bag, err);
    if (bag)
        code = bag_reader_get(bag, local, &row->scratch, &blob, err);
    uint64_t index = local + reader->shards[part - reader->parts].start;
    return code ? code
                : bagi_refs_of(reader, part, index, blob, bagi_row_refs(row), err);
}

#define BAGI_REFS_STEP 4096 /* consecutive datapoints whose refs are read at once */

/* Read the refs of the datapoints start <= i < start + count or, if not NULL,
 * `indices`: the row's item i becomes the blob of refs.bag. With `advise`, only request
 * them. */
static bags_code bagi_row_fetch_refs(const bags_reader *reader, const uint64_t *indices,
    uint64_t start, size_t count, bags_row *row, bool advise, bags_error *err) {
    bagi_fetch fetch = {&row->ref_spans, 0, &row->scratch, 0, advise, false};
    if (!advise)
        BAGI_TRY(bagi_row_reserve(row, count, err));
    for (size_t i = 0, run = 1; i < count; i += run) {
        uint64_t index = indices ? indices[i] : start + i;
        const bag_reader *bag = NULL;
        size_t shard = bagi_reader_find_shard(reader, index, row);
        if (shard == reader->count)
            return bagi_fail_datapoint(reader, index, err);
        const bagi_shard *part = &reader->parts[shard];
        uint64_t local = index - reader->shards[shard].start;
        if (!indices) /* the rest of the shard */
            run = (size_t)BAGI_MIN(count - i, reader->shards[shard].length - local);
        if (part->bag_options.split)
            continue;
        BAGI_TRY(bagi_reader_bag(reader, part, reader->spec.count, &bag, err));
        BAGI_TRY(bagi_fetch_add(&fetch, bag, local, run, i, err));
    }
    return bagi_fetch_run_all(&fetch, bagi_row_items(row), err);
}

/* ---- selections ---- */

/* The blobs of a field covered by a selection: first, first + step, ... */
typedef struct bagi_steps {
    uint64_t first, count, step;
} bagi_steps;

/* Passed by value, so that a selection can stay in registers. */
BAGI_COLD static bags_code bagi_fail_select(
    const bags_reader *reader, bags_select select, bags_error *err) {
    bags_code code;
    if (!select.slice)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT, "start, stop or step without slice");
    else if (select.start > select.stop)
        code = bagi_fail_range(select.start, select.stop, err);
    else
        code = bags_fail(
            err, BAGS_ERROR_TYPE, "a slice of a field that is not a sequence");
    return bags_prefix(err, code, "%s: field \"%.200s\": ", reader->shown,
        reader->spec.fields[select.field].name);
}

/* Apply a selection (NULL: everything) to a datapoint's ref. False if the selection is
 * invalid. */
static BAGI_HOT bool bagi_select_apply(
    const bags_reader *reader, const bags_select *select, bagi_steps *steps) {
    if (!select)
        return true;
    if (!select->slice)
        return !(select->start | select->stop | select->step);
    if (BAGI_UNLIKELY(select->start > select->stop ||
                      !reader->spec.types[select->field].sequence))
        return false;
    uint64_t stop = BAGI_MIN(select->stop, steps->count);
    uint64_t start = BAGI_MIN(select->start, stop);
    steps->first += start;
    steps->count = stop - start;
    if (select->step > 1 && steps->count) {
        steps->step = select->step;
        steps->count = (steps->count - 1) / select->step + 1;
    }
    return true;
}

/* Find the blobs of a datapoint covered by a selection (NULL: all) of an existing
 * field, and their Bag. */
static BAGI_HOT bags_code bagi_select_find(const bags_reader *reader,
    const bagi_shard *part, uint64_t index, size_t field, const bags_select *select,
    const bags_ref *refs, const bag_reader **bag, bagi_steps *steps, bags_error *err) {
    bags_ref ref = refs[field];
    steps->first = ref.first;
    steps->count = ref.count;
    steps->step = 1;
    if (!bagi_select_apply(reader, select, steps))
        return bagi_fail_select(reader, *select, err);
    BAGI_TRY(bagi_reader_bag(reader, part, field, bag, err));
    if (!bagi_ref_fits(ref, (*bag)->length))
        return bagi_fail_ref_read(reader, index, field, ref, *bag, err);
    return BAGS_OK;
}

/* Add a selection's blobs to a fetch. */
static bags_code bagi_fetch_add_steps(bagi_fetch *fetch, const bag_reader *bag,
    const bagi_steps *steps, size_t place, bags_error *err) {
    if (steps->step == 1)
        return bagi_fetch_add(fetch, bag, steps->first, steps->count, place, err);
    for (uint64_t i = 0; i < steps->count; i++)
        BAGI_TRY(bagi_fetch_add(
            fetch, bag, steps->first + i * steps->step, 1, place + (size_t)i, err));
    return BAGS_OK;
}

/* ---- reading datapoints ----
 *
 * Usually everything needed is mapped and open, and the row is large enough. In that
 * case bagi_row_find and bagi_row_find_blob succeed without a call, a failure or a
 * span. Otherwise, or if anything is invalid, they return false, and bagi_row_load
 * reads the data or finds out what is wrong.
 */

static BAGI_HOT bool bagi_row_find(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row) {
    uint64_t local = 0;
    const bagi_shard *part = bagi_row_shard(reader, index, row, &local);
    void *const *bags = part ? (void **)BAGI_LOAD(&part->bags) : NULL;
    if (BAGI_UNLIKELY(!bags || row->slots.capacity < count * sizeof(struct bagi_slot)))
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t field = bagi_select_field(selects, i);
        if (BAGI_UNLIKELY(field >= reader->spec.count))
            return false;
        const bag_reader *bag = (const bag_reader *)BAGI_LOAD(&bags[field]);
        if (BAGI_UNLIKELY(!bag))
            return false;
        bagi_touch(bag, local, true);
    }
    if (BAGI_UNLIKELY(!bagi_row_find_refs(reader, bags, local, row)))
        return false;
    struct bagi_slot *slot = bagi_row_slots(row);
    bags_view *items = bagi_row_items(row);
    size_t space = row->items.capacity / sizeof *items;
    for (size_t i = 0; i < count; i++, slot++) {
        const bags_select *select = selects ? &selects[i] : NULL;
        size_t field = select ? select->field : i;
        const bag_reader *bag = (const bag_reader *)BAGI_LOAD(&bags[field]);
        bags_ref ref = bagi_row_refs(row)[field];
        bagi_steps steps = {ref.first, ref.count, 1};
        if (BAGI_UNLIKELY(!bagi_ref_fits(ref, bag->length)) ||
            !bagi_select_apply(reader, select, &steps))
            return false;
        slot->field = field;
        slot->length = (size_t)steps.count;
        slot->items = items;
        if (steps.count == 0)
            continue;
        if (BAGI_UNLIKELY(steps.count > space || BAGI_LENGTH(bag->mapped.length) == 0))
            return false;
        space -= slot->length;
        for (uint64_t at = steps.first; steps.count > 0; steps.count--) {
            if (BAGI_UNLIKELY(!bagi_mapped_blob(&bag->mapped, at, items)))
                return false;
            at += steps.step;
            items++;
        }
    }
    row->index = index;
    row->length = count;
    return true;
}

/* part_of_blob: offset and size within the only blob read; NULL: read entire blobs. */
static bags_code bagi_row_load_part(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, const uint64_t *part_of_blob,
    bags_row *row, bags_error *err) {
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, false, false};
    uint64_t local = 0;
    size_t total = 0;
    const bagi_shard *part = bagi_row_shard(reader, index, row, &local);
    if (!part)
        return bagi_fail_datapoint(reader, index, err);
    for (size_t i = 0; i < count; i++)
        if (bagi_select_field(selects, i) >= reader->spec.count)
            return bagi_fail_field_index(reader, selects[i].field, err);
    if (reader->env.io.expect) /* before refs are opened and all shards checked */
        bagi_reader_expect(reader, (size_t)row->shard, selects, count);
    else
        BAGI_TRY(bagi_reader_prefetch(
            reader, (size_t)row->shard, local, selects, count, !part_of_blob, err));
    BAGI_TRY(bagi_row_read_refs(reader, part, local, row, err));
    BAGI_TRY(bagi_reserve(&row->slots, count * sizeof(struct bagi_slot), err));
    struct bagi_slot *slots = bagi_row_slots(row);
    for (size_t i = 0; i < count; i++) {
        const bag_reader *bag = NULL;
        bagi_steps steps = {0, 0, 1};
        slots[i].field = bagi_select_field(selects, i);
        BAGI_TRY(bagi_select_find(reader, part, index, slots[i].field,
            selects ? &selects[i] : NULL, bagi_row_refs(row), &bag, &steps, err));
        BAGI_TRY(bagi_row_reserve(row, total + steps.count, err));
        if (bag->mapped_length && steps.count == 1 && !part_of_blob)
            BAGI_TRY(bag_reader_get(
                bag, steps.first, &row->data, bagi_row_items(row) + total, err));
        else
            BAGI_TRY(bagi_fetch_add_steps(&fetch, bag, &steps, total, err));
        slots[i].length = (size_t)steps.count;
        total += slots[i].length;
    }
    if (part_of_blob && fetch.count) {
        bagi_fetch_spans(&fetch)->offset = part_of_blob[0];
        bagi_fetch_spans(&fetch)->size = part_of_blob[1];
    }
    bags_view *items = bagi_row_items(row); /* they no longer move */
    BAGI_TRY(bagi_fetch_run_all(&fetch, items, err));
    for (size_t i = 0; i < count; i++) {
        slots[i].items = items;
        items += slots[i].length;
    }
    row->index = index;
    row->length = count;
    return BAGS_OK;
}

/* Six parameters fit in registers: this call is on the hot path. */
BAGI_NOINLINE static bags_code bagi_row_load(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err) {
    BAGI_BEGIN(reader && row, err);
    return bagi_row_load_part(reader, index, selects, count, NULL, row, err);
}

BAGS_API bags_code bags_reader_get(const bags_reader *reader, uint64_t index,
    const bags_select *selects, size_t count, bags_row *row, bags_error *err) {
    if (BAGI_UNLIKELY(!reader || !row))
        return bagi_row_load(reader, index, selects, count, row, err);
    bagi_row_begin(reader, row);
    if (!selects)
        count = reader->spec.count;
    return bagi_row_find(reader, index, selects, count, row)
               ? BAGS_OK
               : bagi_row_load(reader, index, selects, count, row, err);
}

static BAGI_HOT bool bagi_row_find_blob(const bags_reader *reader, uint64_t index,
    size_t field, uint64_t item, bags_row *row, bags_view *out) {
    uint64_t local = 0;
    const bagi_shard *part = bagi_row_shard(reader, index, row, &local);
    void *const *bags = part ? (void **)BAGI_LOAD(&part->bags) : NULL;
    if (BAGI_UNLIKELY(!bags || field >= reader->spec.count))
        return false;
    const bag_reader *bag = (const bag_reader *)BAGI_LOAD(&bags[field]);
    if (BAGI_UNLIKELY(!bag))
        return false;
    bagi_touch(bag, local, true);
    if (BAGI_UNLIKELY(!bagi_row_find_refs(reader, bags, local, row)))
        return false;
    bags_ref ref = bagi_row_refs(row)[field];
    return bagi_ref_fits(ref, bag->length) && item < ref.count &&
           bagi_mapped_get(&bag->mapped, ref.first + item, out);
}

/* Read a blob, or a part of one, in the general case. */
BAGI_NOINLINE static bags_code bagi_row_load_blob(const bags_reader *reader,
    uint64_t index, size_t field, uint64_t item, const uint64_t *part_of_blob,
    bags_row *row, bags_view *out, bags_error *err) {
    BAGI_ERR(err);
    out->data = NULL;
    out->size = 0;
    bags_select select = bags_select_all(field);
    if (field < reader->spec.count && reader->spec.types[field].sequence)
        select = bags_select_slice(field, item, item < UINT64_MAX ? item + 1 : item, 1);
    else if (item > 0)
        part_of_blob = NULL; /* out of range; not a fault of the part */
    bags_code code =
        bagi_row_load_part(reader, index, &select, 1, part_of_blob, row, err);
    row->length = 0;
    BAGI_TRY(code);
    uint64_t count = bagi_row_refs(row)[field].count;
    if (item >= count)
        return bags_prefix(err, bagi_fail_index("item", item, count, err),
            "%s: field \"%.200s\": datapoint %" PRIu64 ": ", reader->shown,
            reader->spec.fields[field].name, index);
    *out = bagi_row_items(row)[0];
    return BAGS_OK;
}

BAGS_API bags_code bags_reader_get_blob(const bags_reader *reader, uint64_t index,
    size_t field, uint64_t item, bags_row *row, bags_view *out, bags_error *err) {
    BAGI_NEED(reader && row, err);
    BAGI_NEED(out, err);
    bagi_row_begin(reader, row);
    if (!BAGI_UNLIKELY(!bagi_row_find_blob(reader, index, field, item, row, out)))
        return BAGS_OK;
    return bagi_row_load_blob(reader, index, field, item, NULL, row, out, err);
}

BAGS_API bags_code bags_reader_get_part(const bags_reader *reader, uint64_t index,
    size_t field, uint64_t item, uint64_t offset, uint64_t size, bags_row *row,
    bags_view *out, bags_error *err) {
    BAGI_NEED(reader && row, err);
    BAGI_NEED(out, err);
    const uint64_t part_of_blob[] = {offset, size};
    bagi_row_begin(reader, row);
    if (!bagi_row_find_blob(reader, index, field, item, row, out))
        return bagi_row_load_blob(
            reader, index, field, item, part_of_blob, row, out, err);
    offset = BAGI_MIN(offset, out->size);
    out->data += offset;
    out->size = (size_t)BAGI_MIN(size, out->size - offset);
    return BAGS_OK;
}

/* One by one, we would wait for every table entry and every blob. Instead, request all
 * entries first, then all blobs. */
BAGS_API void bags_reader_touch(const bags_reader *reader, const uint64_t *indices,
    size_t count, const bags_select *selects, size_t select_count) {
    if (!reader || !indices)
        return;
    size_t fields = reader->spec.count;
    if (!selects)
        select_count = fields;
    for (int blobs = 0; blobs < 2; blobs++) {
        bags_row row = BAGI_ZERO;
        for (size_t i = 0; i < count; i++) {
            uint64_t local = 0;
            const bagi_shard *part = bagi_row_shard(reader, indices[i], &row, &local);
            void *const *bags = part ? (void **)BAGI_LOAD(&part->bags) : NULL;
            for (size_t k = 0; bags && k <= select_count; k++) {
                size_t field =
                    k < select_count ? bagi_select_field(selects, k) : fields;
                if (field <= fields)
                    bagi_touch(
                        (const bag_reader *)BAGI_LOAD(&bags[field]), local, blobs);
            }
        }
    }
}

BAGS_API bags_code bags_reader_refs(const bags_reader *reader, uint64_t index,
    bags_row *row, bags_ref *refs, bags_error *err) {
    BAGI_BEGIN(reader && row && refs, err);
    uint64_t local = 0;
    const bag_reader *bag = NULL;
    bagi_steps all = {0, 0, 1};
    bagi_row_begin(reader, row);
    const bagi_shard *part = bagi_row_shard(reader, index, row, &local);
    if (!part)
        return bagi_fail_datapoint(reader, index, err);
    BAGI_TRY(bagi_row_read_refs(reader, part, local, row, err));
    for (size_t i = 0; i < reader->spec.count; i++) {
        refs[i] = bagi_row_refs(row)[i];
        BAGI_TRY(bagi_select_find(
            reader, part, index, i, NULL, bagi_row_refs(row), &bag, &all, err));
    }
    return BAGS_OK;
}

/* ---- many datapoints ---- */

/* Refuse a sequence: only a plain field has one blob per datapoint. */
static bags_code bagi_check_plain(
    const bags_reader *reader, size_t field, bags_error *err) {
    if (field >= reader->spec.count)
        return bagi_fail_field_index(reader, field, err);
    if (reader->spec.types[field].sequence)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: field \"%.200s\": a sequence; only plain fields have ranges of "
            "datapoints",
            reader->shown, reader->spec.fields[field].name);
    return BAGS_OK;
}

/*
 * Plan to read selections (NULL: all fields) of the datapoints start <= i < start +
 * count or, if not NULL, `indices`: read their refs, and add the blobs they refer to to
 * the fetch. The first blob of datapoint i has place i. Its selections start at
 * selects[i * stride].
 */
static bags_code bagi_plan_many(const bags_reader *reader, const uint64_t *indices,
    uint64_t start, size_t count, const bags_select *selects, size_t select_count,
    size_t stride, bags_row *row, bagi_fetch *fetch, bags_error *err) {
    size_t last = SIZE_MAX, step = indices ? count : BAGI_REFS_STEP;
    /* Look up the files of every shard used before opening the first one: hooks for
     * remote files do these lookups concurrently. */
    for (size_t i = 0; reader->env.io.expect && i < count; i++) {
        size_t shard =
            bagi_reader_find_shard(reader, indices ? indices[i] : start + i, row);
        if (shard != last && shard < reader->count)
            bagi_reader_expect(
                reader, shard, selects ? selects + i * stride : NULL, select_count);
        last = shard;
    }
    size_t all = stride ? stride * count : select_count;
    for (size_t k = 0; k < all && count; k++)
        if (bagi_select_field(selects, k) >= reader->spec.count)
            return bagi_fail_field_index(reader, selects[k].field, err);
    if (fetch->advise)
        BAGI_TRY(bagi_row_fetch_refs(reader, indices, start, count, row, true, err));
    BAGI_TRY(bagi_row_reserve_refs(reader, row, err));
    bags_ref *refs = bagi_row_refs(row);
    for (size_t i = 0, at = 0; i < count; i++, at++) {
        uint64_t index = indices ? indices[i] : start + i, local = 0;
        if (at == step || i == 0) {
            at = 0;
            BAGI_TRY(bagi_row_fetch_refs(
                reader, indices, index, BAGI_MIN(step, count - i), row, false, err));
        }
        (void)bagi_row_shard(reader, index, row, &local); /* its refs were read */
        const bagi_shard *part = &reader->parts[row->shard];
        BAGI_TRY(bagi_refs_of(reader, part, index, bagi_row_items(row)[at], refs, err));
        for (size_t k = 0; k < select_count; k++) {
            const bag_reader *bag = NULL;
            const bags_select *select = selects ? selects + i * stride + k : NULL;
            bagi_steps steps = {0, 0, 1};
            BAGI_TRY(bagi_select_find(reader, part, index, select ? select->field : k,
                select, refs, &bag, &steps, err));
            BAGI_TRY(bagi_fetch_add_steps(fetch, bag, &steps, i, err));
        }
    }
    return BAGS_OK;
}

/* Plan a read of the field: its only span has one blob per item. */
BAGS_API bags_code bags_reader_items(const bags_reader *reader, uint64_t index,
    size_t field, bags_row *row, uint64_t *count, bags_error *err) {
    BAGI_BEGIN(reader && row && count, err);
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, false, false};
    bags_select whole = bags_select_all(field);
    bagi_row_begin(reader, row);
    BAGI_TRY(bagi_plan_many(reader, NULL, index, 1, &whole, 1, 0, row, &fetch, err));
    *count = fetch.count ? bagi_fetch_spans(&fetch)->count : 0;
    return BAGS_OK;
}

/* Read a plain field of many datapoints: the blobs become the items of the row's only
 * slot. */
BAGI_COLD static bags_code bagi_read_many(const bags_reader *reader,
    const uint64_t *indices, uint64_t start, size_t count, size_t field, bags_row *row,
    bags_error *err) {
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, false, false};
    bags_select whole = bags_select_all(field);
    BAGI_TRY(bagi_check_plain(reader, field, err));
    BAGI_TRY(bagi_row_reserve(row, count, err));
    BAGI_TRY(
        bagi_plan_many(reader, indices, start, count, &whole, 1, 0, row, &fetch, err));
    bool keep = indices && bagi_coder_dictionary(&reader->spec.coders[field]);
    BAGI_TRY(bagi_reserve(&row->slots,
        sizeof(struct bagi_slot) + (keep ? count * sizeof(size_t) : 0), err));
    BAGI_TRY(bagi_fetch_run_all(&fetch, bagi_row_items(row), err));
    struct bagi_slot *slot = bagi_row_slots(row);
    size_t *shards = (size_t *)(void *)(slot + 1);
    for (size_t i = 0; keep && i < count; i++)
        shards[i] = bagi_reader_find_shard(reader, indices[i], row);
    slot->field = field;
    slot->length = count;
    slot->items = bagi_row_items(row);
    row->index = indices ? BAGI_ROW_MANY : start;
    row->length = 1;
    return BAGS_OK;
}

BAGS_API bags_code bags_reader_get_range(const bags_reader *reader, uint64_t start,
    uint64_t stop, size_t field, bags_row *row, bags_error *err) {
    BAGI_BEGIN(reader && row, err);
    size_t count = 0;
    bagi_row_begin(reader, row);
    if (start > stop)
        return bags_prefix(
            err, bagi_fail_range(start, stop, err), "%s: ", reader->shown);
    stop = BAGI_MIN(stop, reader->length);
    start = BAGI_MIN(start, stop);
    if (!bagi_size(stop - start, &count))
        return bagi_fail_memory(err, SIZE_MAX);
    return bagi_read_many(reader, NULL, start, count, field, row, err);
}

BAGS_API bags_code bags_reader_get_many(const bags_reader *reader,
    const uint64_t *indices, size_t count, size_t field, bags_row *row,
    bags_error *err) {
    BAGI_BEGIN(reader && row && (indices || !count), err);
    bagi_row_begin(reader, row);
    return bagi_read_many(reader, indices, 0, count, field, row, err);
}

BAGS_API bags_code bags_reader_prefetch(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count, bags_row *row, bags_error *err) {
    BAGI_BEGIN(reader && row && (indices || !count), err);
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, true, false};
    bagi_row_begin(reader, row);
    BAGI_TRY(bagi_plan_many(reader, indices, 0, count, selects,
        selects ? select_count : reader->spec.count, 0, row, &fetch, err));
    return bagi_fetch_run_all(&fetch, NULL, err);
}

BAGS_API bags_code bags_reader_prefetch_each(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    size_t select_count, bags_row *row, bags_error *err) {
    BAGI_BEGIN(reader && row && (indices || !count) && (selects || !count), err);
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, true, false};
    bagi_row_begin(reader, row);
    BAGI_TRY(bagi_plan_many(reader, indices, 0, count, selects, select_count,
        select_count, row, &fetch, err));
    return bagi_fetch_run_all(&fetch, NULL, err);
}

BAGS_API bags_code bags_reader_prefetch_parts(const bags_reader *reader,
    const uint64_t *indices, size_t count, const bags_select *selects,
    const bags_extent *parts, bags_row *row, bags_error *err) {
    BAGI_BEGIN(reader && row && ((indices && selects && parts) || !count), err);
    bagi_fetch fetch = {&row->spans, 0, &row->data, 0, true, true};
    bagi_row_begin(reader, row);
    BAGI_TRY(
        bagi_plan_many(reader, indices, 0, count, selects, 1, 1, row, &fetch, err));
    for (size_t i = 0; i < fetch.count; i++) {
        bagi_span *span = &bagi_fetch_spans(&fetch)[i];
        if (span->place < count) {
            span->offset = parts[span->place].offset;
            span->size = parts[span->place].size;
        }
    }
    return bagi_fetch_run_all(&fetch, NULL, err);
}

/* ---- blobs in datapoint order ---- */

/* Skip rows of refs.bag, starting at `first`, in which every field is plain and its ref
 * is the row's own index, encoded as numbers from 2^16 to 2^32 are. Such rows are
 * compared, not parsed. Returns the first row that differs, or `stop`. */
static uint64_t bagi_refs_skip(
    const bagi_mapped *refs, size_t count, uint64_t first, uint64_t stop) {
    uint64_t i = first, end = bagi_load_u64(refs->table + 8 * first);
    bool fits = count <= 15 && end <= refs->limit;
    for (; fits && i < BAGI_MIN(stop, UINT32_MAX); i++) {
        uint32_t n = (uint32_t)i;
        uint64_t big_endian =
            n >> 24 | (n >> 8 & 0xFF00) | (n << 8 & 0xFF0000) | n << 24;
        const unsigned char *at = refs->data + end;
        end += 5 * count + 1;
        if (end != bagi_load_u64(refs->table + 8 * (i + 1)) || end > refs->limit ||
            *at++ != (0x90 | count))
            break;
        for (size_t k = 0; k < count; k++, at += 5) /* 5 of 8 bytes: see BAGI_SLACK */
            fits = fits && !((bagi_load_u64(at) ^ (big_endian << 8 | 0xCE)) << 24);
        if (!fits)
            break;
    }
    return i;
}

/* Check that blob n in the Bag of a plain field belongs to datapoint n of the shard,
 * and check the table if it is mapped. Once checked, this is remembered for all
 * threads. */
static bags_code bagi_check_order(const bags_reader *reader, size_t shard, size_t field,
    const bag_reader *bag, bags_row *row, bags_error *err) {
    void **order_checked = &((bag_reader *)bagi_mutable(bag))->order_checked;
    const bagi_shard *part = &reader->parts[shard];
    const bags_shard *of = &reader->shards[shard];
    bool split = part->bag_options.split;
    bags_ref next = {bag->length, 1};
    bag_blobs range;
    if (BAGI_LOAD(order_checked))
        return BAGS_OK;
    if (split && of->length > bag->length)
        return bagi_fail_ref(reader->shown, &reader->spec, of->start + bag->length,
            field, next, bag->length, err);
    bags_select whole = bags_select_all(field);
    if (reader->env.io.expect)
        bagi_reader_expect(reader, shard, &whole, 1);
    const bag_reader *from = NULL;
    BAGI_TRY(bagi_row_reserve_refs(reader, row, err));
    if (!split)
        BAGI_TRY(bagi_reader_bag(reader, part, reader->spec.count, &from, err));
    bags_ref *refs = bagi_row_refs(row);
    for (uint64_t i = 0; i < of->length && from; i++) {
        if (BAGI_LENGTH(from->mapped.length) && i >= 65536)
            i = bagi_refs_skip(&from->mapped, reader->spec.count, i,
                BAGI_MIN(of->length, bag->length));
        uint64_t index = of->start + i, at = i % BAGI_REFS_STEP;
        bags_view blob = {NULL, 0};
        if (i == of->length)
            break;
        if (BAGI_LENGTH(from->mapped.length)) {
            BAGI_TRY(bag_reader_get(from, i, &row->scratch, &blob, err));
        } else {
            if (at == 0)
                BAGI_TRY(bagi_row_fetch_refs(reader, NULL, index,
                    (size_t)BAGI_MIN(of->length - i, BAGI_REFS_STEP), row, false, err));
            blob = bagi_row_items(row)[at];
        }
        BAGI_TRY(bagi_refs_of(reader, part, index, blob, refs, err));
        if (BAGI_UNLIKELY(!bagi_ref_fits(refs[field], bag->length)))
            return bagi_fail_ref_read(reader, index, field, refs[field], bag, err);
        if (BAGI_UNLIKELY(refs[field].first != i))
            return bags_fail(err, BAGS_ERROR_RANGE,
                "%s: blobs are not in the order of the datapoints (datapoint %" PRIu64
                " has blob %" PRIu64 "); use bags_reader_get_range",
                bag->file[BAGI_BLOBS].shown, index, refs[field].first);
    }
    if (!bag->verify && bag->in_memory[BAGI_BLOBS] && bag->in_memory[BAGI_ENDS])
        BAGI_TRY(bag_reader_get_range(bag, 0, of->length, &row->data, &range, err));
    BAGI_STORE(order_checked, bagi_mutable(bag));
    return BAGS_OK;
}

BAGS_API BAGI_COLD bags_code bags_reader_blobs(const bags_reader *reader,
    uint64_t shard, size_t field, bool in_order, bags_row *row, bag_blobs *out,
    bags_error *err) {
    BAGI_BEGIN(reader && row && out, err);
    const bag_reader *bag = NULL;
    memset(out, 0, sizeof *out);
    bagi_row_begin(reader, row);
    BAGI_TRY(bagi_check_plain(reader, field, err));
    if (shard >= reader->count)
        return bags_prefix(err, bagi_fail_index("shard", shard, reader->count, err),
            "%s: ", reader->shown);
    uint64_t length = reader->shards[shard].length;
    if (length == 0)
        return BAGS_OK;
    BAGI_TRY(bagi_reader_bag(reader, &reader->parts[shard], field, &bag, err));
    if (in_order)
        BAGI_TRY(bagi_check_order(reader, (size_t)shard, field, bag, row, err));
    else
        length = bag->length;
    const unsigned char *data = bag->in_memory[BAGI_BLOBS];
    const unsigned char *ends = bag->in_memory[BAGI_ENDS];
    if (bag->verify || !data || !ends || length == 0)
        return BAGS_OK;
    uint64_t size = bagi_load_u64(ends + 8 * (length - 1));
    if (size > bag->limit) /* reading the blob will give the message */
        return bag_reader_get_range(bag, length - 1, length, &row->data, out, err);
    out->data = data;
    out->size = (size_t)size;
    out->length = (size_t)length;
    out->ends = ends;
    return BAGS_OK;
}

/* ---- values ---- */

/* The memory for decoded values: the caller's scratch or, if that is NULL, `own`,
 * allocating from the row. */
static bags_buffer *bagi_row_scratch(
    bags_row *row, bags_buffer *scratch, bags_buffer *own) {
    own->resize = bagi_values_resize;
    own->user = row;
    /* Values from an earlier use of the row are no longer needed. Keep the largest of
     * their blocks: the next values will probably need about as much. */
    if (!scratch && row->stale && row->values) {
        bagi_values_free(row, &row->values->older);
        row->values->used = 0;
        row->values->last = NULL;
    }
    if (!scratch) {
        row->stale = false;
        scratch = own;
    }
    bagi_buffer_adopt(scratch, &row->reader->env.memory);
    return scratch;
}

/* Name the faulty item of a slot. A plain field's items are datapoints. */
BAGI_COLD static bags_code bagi_row_fail_item(
    const bags_row *row, size_t slot, size_t item, bags_code code, bags_error *err) {
    const bags_reader *reader = row->reader;
    size_t field = bagi_row_slots(row)[slot].field;
    bool many = row->index == BAGI_ROW_MANY;
    bool sequence = reader->spec.types[field].sequence;
    if (sequence)
        bags_prefix(err, code, "item %" PRIu64 ": ", (uint64_t)item);
    return bags_prefix(err, code, "%s: field \"%.200s\": %s %" PRIu64 ": ",
        reader->shown, reader->spec.fields[field].name,
        many ? "item of bags_reader_get_many" : "datapoint",
        (many ? 0 : row->index) + (sequence ? 0 : item));
}

BAGS_API bags_code bags_row_value(bags_row *row, size_t slot, size_t item,
    bags_buffer *scratch, bags_value *out, bags_error *err) {
    BAGI_BEGIN(row && out, err);
    if (item >= bags_row_length(row, slot))
        return bags_prefix(err,
            bagi_fail_index("item", item, bags_row_length(row, slot), err),
            "slot %" PRIu64 " of the row: ", (uint64_t)slot);
    const bags_reader *reader = row->reader;
    struct bagi_slot *from = &bagi_row_slots(row)[slot];
    bool sequence = reader->spec.types[from->field].sequence;
    bags_buffer own = {NULL, 0, NULL, NULL};
    scratch = bagi_row_scratch(row, scratch, &own);
    bool many = row->index == BAGI_ROW_MANY;
    uint64_t index = (many ? 0 : row->index) + (sequence ? 0 : item);
    const bagi_coder *coder = &reader->spec.coders[from->field];
    const bagi_dictionary *dictionary = NULL;
    bags_code code = BAGS_OK;
    if (bagi_coder_needs(coder, from->items[item])) {
        const size_t *shards = (const size_t *)(const void *)(from + 1);
        code = bagi_reader_dictionary(reader,
            many ? shards[item] : bagi_reader_find_shard(reader, index, row),
            from->field, &dictionary, err);
    }
    if (!code)
        code =
            bagi_coder_decode(coder, dictionary, from->items[item], scratch, out, err);
    return code ? bagi_row_fail_item(row, slot, item, code, err) : BAGS_OK;
}

/* The dtype and shape that a type gives each of its blobs: shape receives `*dims`
 * numbers. False if the type does not determine them. */
static bool bagi_type_array(const bags_type *type, bags_dtype *dtype, uint64_t *shape,
    size_t *dims, bool *big) {
    static const bags_dtype by_size[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_UINT8,
        BAGS_DTYPE_UINT16, BAGS_DTYPE_NONE, BAGS_DTYPE_UINT32, BAGS_DTYPE_NONE,
        BAGS_DTYPE_NONE, BAGS_DTYPE_NONE, BAGS_DTYPE_UINT64};
    uint64_t size = 0;
    bags_view name = bags_type_argument(type, 0);
    *dims = 0;
    *big = bags_view_is(bags_type_argument(type, 1), "big");
    *dtype = bags_view_is(type->name, "i64")   ? BAGS_DTYPE_INT64
             : bags_view_is(type->name, "u64") ? BAGS_DTYPE_UINT64
                                               : BAGS_DTYPE_NONE;
    if (bags_view_is(type->name, "int") && bags_type_number(type, 0, &size) &&
        size <= 8)
        *dtype = by_size[size];
    if (*dtype != BAGS_DTYPE_NONE || !bags_view_is(type->name, "array"))
        return *dtype != BAGS_DTYPE_NONE;
    *big = false;
    *dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    for (size_t i = 1; i < type->count; i++)
        if (*dims == BAGS_MAX_DIMS || !bags_type_number(type, i, &shape[(*dims)++]))
            return false;
    return *dtype != BAGS_DTYPE_NONE;
}

BAGS_API bags_code bags_row_array(bags_row *row, size_t slot, bags_buffer *scratch,
    bags_value *out, bags_error *err) {
    BAGI_BEGIN(row && out, err);
    if (slot >= row->length)
        return bags_prefix(
            err, bagi_fail_index("slot", slot, row->length, err), "row: ");
    const bags_reader *reader = row->reader;
    const struct bagi_slot *from = &bagi_row_slots(row)[slot];
    const bags_view *items = from->items;
    const bags_field *field = &reader->spec.fields[from->field];
    bags_buffer own = {NULL, 0, NULL, NULL};
    bags_dtype dtype;
    uint64_t shape[BAGS_MAX_DIMS + 1] = {from->length};
    size_t dims = 0, each = 0, size = 0, unit, front;
    bool big = false, copy = false;
    if (!bagi_type_array(
            &reader->spec.types[from->field], &dtype, shape + 1, &dims, &big))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: field \"%.200s\": values of type %.200s have no size in common; read "
            "them one by one",
            reader->shown, field->name, field->type);
    if (dims == BAGS_MAX_DIMS || !bags_array_size(dtype, dims, shape + 1, &each) ||
        !bags_array_size(dtype, dims + 1, shape, &size) || size > SIZE_MAX / 2)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: field \"%.200s\": %" PRIu64
            " items do not form an array (more than %d dimensions, or too large)",
            reader->shown, field->name, shape[0], BAGS_MAX_DIMS);
    for (size_t i = 0; i < from->length; i++) {
        if (items[i].size != each)
            return bagi_row_fail_item(row, slot, i,
                bags_fail(err, BAGS_ERROR_CORRUPT,
                    "size mismatch (%" PRIu64 " bytes, expected %" PRIu64 ")",
                    (uint64_t)items[i].size, (uint64_t)each),
                err);
        copy = copy || items[i].data != items[0].data + i * each;
    }
    unit = bags_dtype_swap(dtype); /* its alignment, too */
    bool swap = unit > 1 && big == bags_little_endian();
    copy = copy || swap || size == 0 || (uintptr_t)items[0].data % unit != 0;
    dims++;
    front = (dims * sizeof *shape + 15) / 16 * 16; /* the elements are aligned */
    scratch = bagi_row_scratch(row, scratch, &own);
    BAGI_TRY(bags_buffer_reserve(scratch, front + (copy ? size : 0) + 1, err));
    memcpy(scratch->data, shape, dims * sizeof *shape);
    unsigned char *to = scratch->data + front;
    for (size_t i = 0; copy && i < from->length; i++)
        bagi_array_copy(to + i * each, items[i].data, each, dtype, swap);
    *out = bagi_value(BAGS_KIND_ARRAY, copy ? to : items[0].data, size);
    out->dtype = dtype;
    out->dims = dims;
    out->shape = (const uint64_t *)(const void *)scratch->data;
    return BAGS_OK;
}

#ifndef BAGS_NO_WRITER
/* ========================================================================
 * >>recover
 * Like bags_writer_open with RESUME, but for any worker's shards: the fields come from
 * spec.json.partial, and the shard is finished. bags_recover processes all shards; a
 * failure of one does not stop the others. A dry run takes the same steps up to the
 * first that changes a file, and holds no lock meanwhile.
 * ====================================================================== */

typedef struct bagi_recovering {
    bagi_env env;
    bags_recover_options options;
    bags_recover_report report;
    bags_error first; /* first failure of a shard; it does not stop the others */
} bagi_recovering;

/* Count the bytes of Bags that have no datapoint. */
BAGI_COLD static bags_code bagi_writer_measure(bags_writer *writer, uint64_t *total) {
    const bagi_dir *dir = &writer->dir;
    bags_error *failure = &writer->writing.failure, why;
    *total = 0;
    for (size_t i = 0; i <= writer->spec.count && writer->spec.types; i++)
        for (int k = 0; k < BAGI_FILES; k++) {
            const char *path =
                bagi_dir_path(dir, bagi_spec_name(&writer->spec, i), bagi_suffix[k]);
            uint64_t size = 0;
            void *file = NULL;
            bags_code code = bagi_open(dir->env, path, BAGS_IO_READ, &file, &why);
            if (!code)
                code = bagi_file_size(dir->env, file, path, &size, &why);
            bagi_close_read(dir->env, file);
            if (code && code != BAGS_ERROR_MISSING) {
                *failure = why;
                return code;
            }
            *total += size;
        }
    return BAGS_OK;
}

/* Finish or remove one shard, and report this. */
BAGI_COLD static bags_code bagi_recover_shard(
    void *user, const bagi_dir *dir, size_t index) {
    bagi_recovering *work = (bagi_recovering *)user;
    bags_recover_report *report = &work->report;
    bool dry_run = work->options.dry_run;
    bags_recovered done = {dir->path, BAGS_RECOVERY_NOTHING, 0, 0, "", false, 0, 0};
    bags_writer_options options = BAGI_ZERO;
    bags_error why;
    bagi_left left = BAGI_LEFT_FINISHED;
    bagi_scan found;
    (void)index;
    options.no_sync = work->options.no_sync;
    options.keep_idx = work->options.keep_idx;
    options.registry = work->options.registry;
    options.env = work->options.env;
    bags_writer *writer = bagi_writer_new(dir->path, &options, &why);
    bags_code code = writer ? BAGS_OK : why.code;
    if (writer)
        writer->recovering = &work->options;
    if (!code)
        code = bagi_writer_find(writer, bagi_shard_name(0), dry_run, &left, &found);
    if (!code && !found.length)
        code = bagi_writer_measure(writer, &found.trailing);
    if (!code && !dry_run)
        code = bagi_writer_take(writer, left, &found);
    if (!code && left != BAGI_LEFT_FINISHED) {
        done.length = found.length;
        done.truncated = found.trailing;
        done.reason = found.reason ? found.reason : "";
        done.partial = found.partial;
        done.items = found.items;
        done.action = found.length ? BAGS_RECOVERY_FINISHED : BAGS_RECOVERY_REMOVED;
        if (found.length && !dry_run)
            bagi_writer_finish(writer);
    }
    if (writer) {
        code = bagi_writing_end(&writer->writing, &why);
        bagi_writer_free(writer);
    }
    if (code) {
        done.action =
            code == BAGS_ERROR_LOCKED ? BAGS_RECOVERY_LOCKED : BAGS_RECOVERY_FAILED;
        done.length = done.truncated = done.items = 0;
        done.partial = false;
        done.reason = why.message;
        done.remedy = why.remedy;
        if (!work->first.code)
            work->first = why;
    }
    report->finished_before += done.action == BAGS_RECOVERY_NOTHING;
    report->finished_now += done.action == BAGS_RECOVERY_FINISHED;
    report->removed += done.action == BAGS_RECOVERY_REMOVED;
    report->locked += done.action == BAGS_RECOVERY_LOCKED;
    report->failed += done.action == BAGS_RECOVERY_FAILED;
    report->truncated += done.truncated;
    if (done.action == BAGS_RECOVERY_FINISHED)
        report->length += done.length;
    if (work->options.each)
        work->options.each(work->options.user, &done);
    return BAGS_OK;
}

BAGS_API BAGI_COLD bags_code bags_recover(const char *path,
    const bags_recover_options *options, bags_recover_report *report, bags_error *err) {
    BAGI_ERR(err);
    bagi_recovering work = BAGI_ZERO;
    bagi_shard_list list = BAGI_ZERO;
    if (options)
        work.options = *options;
    work.env = bagi_env_of(&work.options.env);
    uint64_t start = work.options.shard_start, *stop = &work.options.shard_stop;
    bags_code code = bagi_check_worker(path, start, stop, err);
    bagi_dir dir = BAGI_ZERO;
    if (!code)
        code = bagi_dir_open(&dir, &work.env, path, "", err);
    if (bagi_kind(&work.env, path, &code, err) == BAGS_PATH_FILE)
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: is a file, not a dataset; read a standalone Bag with `unfinished`, "
            "and copy its blobs",
            bags_path_tail(path));
    if (!code)
        code = bagi_shard_list_find(&dir, &list, err);
    if (!code)
        code = bagi_each_shard(&list, start, *stop, bagi_recover_shard, &work, err);
    if (!code && work.report.finished_now && !work.options.no_sync &&
        !work.options.dry_run && !list.single)
        code = bagi_sync_parent(&work.env, path, err);
    bags_buffer_free(&list.array);
    bagi_dir_free(&dir);
    if (report)
        *report = work.report;
    if (work.first.code)
        *err = work.first;
    return work.first.code ? work.first.code : code;
}

/* ========================================================================
 * >>finalize
 * Owns one run of bags_finalize, to close gaps between the shards of several workers.
 * It only renames finished shards, and holds a shard's lock while renaming it.
 * ====================================================================== */

/* The file to lock while a finished shard or standalone Bag is changed. Its identity
 * also shows that it is still the same shard or Bag. */
static const char *bagi_lock_path(const bagi_dir *dir) {
    return dir->standalone ? bagi_dir_path(dir, "", ".bag")
                           : bagi_dir_path(dir, "spec.json", "");
}

/* Open and lock this file, against other processes that change the shard or Bag. The
 * caller closes *file. */
BAGI_COLD static bags_code bagi_lock_dir(
    const bagi_dir *dir, void **file, bags_error *err) {
    const char *path = bagi_lock_path(dir);
    BAGI_TRY(bagi_open(dir->env, path, BAGS_IO_READ, file, err));
    return bagi_lock_file(dir->env, *file, path, dir->standalone ? path : dir->path,
        "locked by another process that writes it or its checksums", err);
}

/* True if shard `index` of a dataset without gaps has this name. */
static bool bagi_is_numbered(bagi_shard_id name, uint64_t index) {
    return name.number == index && (name.digits == 6 || index > 999999);
}

/* Give a shard another number, if no other process has locked its spec.json. An
 * existing directory with the new name, even an empty one, belongs to a writer and must
 * not be replaced. */
BAGI_COLD static bags_code bagi_finalize_rename(const bagi_env *env, const char *path,
    bagi_shard_id name, uint64_t number, bags_error *err) {
    void *file = NULL;
    bagi_dir from, to = BAGI_ZERO;
    bags_code code = bagi_shard_dir(&from, env, path, name, err);
    if (!code)
        code = bagi_shard_dir(&to, env, path, bagi_shard_name(number), err);
    if (!code)
        code = bagi_lock_dir(&from, &file, err);
    if (bagi_kind(env, to.path, &code, err) != BAGS_PATH_NONE)
        code = bags_fail(err, BAGS_ERROR_EXISTS,
            "%s: already exists: a writer has started it", to.shown);
    if (!code)
        code = bagi_check_same(env, file, bagi_lock_path(&from), err);
    bagi_close_read(env, file); /* before the rename, for Windows */
    if (!code)
        code = bagi_fail_io(env, env->io.rename(env->io.user, from.path, to.path),
            from.path, "rename", err);
    bagi_dir_free(&from);
    bagi_dir_free(&to);
    return code;
}

/* Create the mark. *made is true even if writing it failed. */
BAGI_COLD static bags_code bagi_finalize_mark(
    const bagi_dir *dir, bool no_sync, bool *made, bags_error *err) {
    bagi_writing writing;
    bagi_stream stream = BAGI_ZERO;
    bagi_writing_init(&writing, dir->env, no_sync);
    stream.writing = &writing;
    bagi_stream_open(&stream, dir, BAGI_MARK, "", BAGS_IO_CREATE);
    *made = stream.handle != NULL;
    if (!no_sync)
        bagi_stream_sync(&stream);
    bagi_stream_close(&stream);
    if (!writing.failure.code && !no_sync)
        bagi_sync_dir(dir->env, dir->path, &writing.failure);
    return bagi_writing_end(&writing, err);
}

/* Rename in numeric order. A shard's new number is always free, because shards never
 * move up and lower ones have already moved. There are two rounds. First, the first
 * shard is marked and renamed, so that claims find the mark. Then the shards are listed
 * again, so that a worker that claimed a shard before the mark existed is seen. A
 * dataset without gaps keeps its numbers, and gets no mark. */
BAGS_API BAGI_COLD bags_code bags_finalize(const char *path,
    const bags_finalize_options *options, uint64_t *renamed, bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bags_finalize_options, options);
    bagi_env env = bagi_env_of(&options->env);
    bagi_dir dataset = BAGI_ZERO, first = BAGI_ZERO;
    bagi_shard_list list;
    uint64_t count = 0;
    bool made = false, gaps = true, no_sync = options->no_sync;
    bags_code code = bagi_check_path(path, err);
    if (!code)
        code = bagi_dir_open(&dataset, &env, path, "", err);
    for (int round = 0; round < 2 && gaps && !code; round++) {
        code = bagi_shard_list_find(&dataset, &list, err);
        if (!code && list.single)
            code = bags_fail(
                err, BAGS_ERROR_MISSING, "%s: no shards", bags_path_tail(path));
        if (!code)
            code = bagi_each_shard(&list, 0, 1, bagi_check_finished, err, err);
        gaps = false;
        for (size_t i = 0; i < list.count && !code; i++)
            gaps = gaps || !bagi_is_numbered(list.ids[i], i);
        if (gaps && round == 0) {
            code = bagi_shard_dir(&first, &env, path, list.ids[0], err);
            if (!bagi_dir_has(&first, BAGI_MARK, "", &code, err) && !code)
                code = bagi_finalize_mark(&first, no_sync, &made, err);
        }
        if (gaps && !code)
            code = bagi_drop_catalogue(&env, path, list.ids[0], err);
        for (size_t i = 0; i < (round ? list.count : 1) && gaps && !code; i++)
            if (!bagi_is_numbered(list.ids[i], i)) {
                code = bagi_finalize_rename(&env, path, list.ids[i], i, err);
                count += !code;
            }
        bags_buffer_free(&list.array);
    }
    if (!code && count && !no_sync)
        code = bagi_sync_dir(&env, path, err);
    if (code && made && !count) {
        bags_error ignored;
        bagi_dir_remove(&first, BAGI_MARK, "", &ignored);
    }
    bagi_dir_free(&dataset);
    bagi_dir_free(&first);
    if (!code && renamed)
        *renamed = count;
    return code;
}
#endif /* BAGS_NO_WRITER */

#ifndef BAGS_NO_VERIFY
/* ========================================================================
 * >>verify
 * Owns one run of bags_verify, its only entry. A shard's Bags are opened once; then a
 * cursor passes over each of them, so that memory does not grow with the files.
 *
 *     bags_verify -> bagi_verify_shard -> bagi_verify_bag -> bagi_verify_range
 *         -> bagi_verify_row (refs), bagi_verify_value
 *
 * Work is shared in units: unit 0 of a shard is the shard itself, 1 .. count are its
 * fields, count + 1 is refs. All functions return BAGS_OK after reporting a fault;
 * another code (out of memory) ends the work. A fault is first written to run->why. It
 * concerns the Bag run->name or, if that is NULL, run->path.
 * ====================================================================== */

typedef struct bagi_verifying {
    bagi_env env;
    bags_verify_options options;
    bags_verify_report report;
    bagi_common common;
    bagi_files files;
    bags_code code;      /* of the first fault */
    bags_error *err;     /* receives the first fault */
    bags_error why;      /* the fault that is being reported */
    bags_buffer scratch; /* for codecs */
    bool any_checksums;  /* a finished shard has checksums, so all must have them */
    /* The shard, or standalone Bag: */
    const char *path;
    const bagi_dir *dir;
    const bagi_spec *spec;
    bool known;        /* the spec is known; otherwise it has no fields */
    uint64_t place;    /* its index among the dataset's shards */
    bags_ref *row;     /* the refs of a datapoint */
    bag_reader **bags; /* one per field, then refs; NULL: cannot be opened */
    bagi_bag_options bag_options;
    /* The Bag: */
    const char *name;            /* of the field, or "refs" */
    size_t field;                /* the number of the field */
    bool parse;                  /* the blobs are rows of refs */
    uint64_t decode;             /* the first blob to decode; UINT64_MAX: none */
    bagi_dictionary *dictionary; /* of the Bag, set once a value needs it */
} bagi_verifying;

/* Report the fault in run->why. Only running out of memory ends the work, and not if a
 * codec does: a blob that needs too much memory is a fault of that blob. */
BAGI_COLD static bags_code bagi_verify_fault(bagi_verifying *run, bags_code code,
    bags_fault_kind kind, uint64_t index, uint64_t offset) {
    bool ends = code == BAGS_ERROR_MEMORY && kind == BAGS_FAULT_FILE;
    if (code == BAGS_ERROR_CORRUPT && run->name && run->env.io.expect)
        code = bagi_check_found(&run->env, bagi_dir_path(run->dir, run->name, ".bag"),
            run->bag_options.record.identity, code, &run->why);
    if (ends || !run->code)
        *run->err = run->why;
    if (ends)
        return code;
    if (!run->code)
        run->code = code;
    if (run->report.faults++ < run->options.max_faults && run->options.each) {
        bags_fault fault = {run->path, run->name, kind, index, offset, code,
            run->why.message, run->why.remedy};
        run->options.each(run->options.user, &fault);
    }
    return BAGS_OK;
}

/* Report a failure that concerns an entire file; does nothing for BAGS_OK. */
static bags_code bagi_verify_file(bagi_verifying *run, bags_code code) {
    return code ? bagi_verify_fault(run, code, BAGS_FAULT_FILE, 0, 0) : BAGS_OK;
}

/* True if a unit belongs to this part of the work. The units of a shard are spread over
 * different parts, and so are the units of a field. */
static bool bagi_verify_mine(const bagi_verifying *run, uint64_t unit) {
    uint64_t parts = run->options.parts;
    return (run->place % parts + unit % parts) % parts == run->options.part;
}

/* Report a unit's failure, unless another part does so. */
static bags_code bagi_verify_unit_file(
    bagi_verifying *run, uint64_t unit, bags_code code) {
    bool mine = code == BAGS_ERROR_MEMORY || bagi_verify_mine(run, unit);
    return mine ? bagi_verify_file(run, code) : BAGS_OK;
}

/* ---- a Bag ---- */

/* Check a row of refs, and check that its blobs exist. */
static bags_code bagi_verify_row(bagi_verifying *run, bagi_cursor *cursor) {
    const bagi_spec *spec = run->spec;
    bags_view row = {NULL, 0};
    bool valid = false;
    bags_code code = bagi_cursor_refs(
        cursor, spec->types, spec->count, run->row, &row, &valid, &run->why);
    if (code)
        return bagi_verify_fault(run, code, BAGS_FAULT_FILE, 0, cursor->start);
    if (!valid) {
        code = bagi_fail_row(run->dir->shown, spec, cursor->index, row, &run->why);
        return bagi_verify_fault(
            run, code, BAGS_FAULT_DATAPOINT, cursor->index, cursor->start);
    }
    for (size_t i = 0; i < spec->count && !code; i++) {
        const bag_reader *bag = run->bags[i];
        if (!bag || bagi_ref_fits(run->row[i], bag->length))
            continue;
        code = bagi_fail_ref(run->dir->shown, spec, cursor->index, i, run->row[i],
            bag->length, &run->why);
        code = bagi_verify_fault(
            run, code, BAGS_FAULT_DATAPOINT, cursor->index, cursor->start);
    }
    return code;
}

/* Decode the current blob; without `decode`, only if it needs a dictionary. A blob too
 * large for memory is a fault. */
static bags_code bagi_verify_value(bagi_verifying *run, bagi_cursor *cursor) {
    bags_view blob = {NULL, 0};
    bags_value value;
    bags_code code = BAGS_OK;
    if (!bagi_size(cursor->stop - cursor->start, &blob.size))
        code =
            bags_fail(&run->why, BAGS_ERROR_LIMIT, "too large for the address space");
    else
        code =
            bagi_cursor_bytes(cursor, cursor->start, blob.size, &blob.data, &run->why);
    if (code && blob.size <= BAGI_CURSOR_BYTES)
        return code;
    const bagi_coder *coder = &run->spec->coders[run->field];
    bool needed = !code && bagi_coder_needs(coder, blob);
    if (!code && !needed && !run->options.decode)
        return BAGS_OK;
    if (needed && !run->dictionary) {
        const bagi_dictionary *opened = NULL;
        code = bagi_dictionary_open(&run->dictionary, cursor->bag->record,
            &cursor->bag->trailer, run->dir, run->name, coder, &opened, &run->why);
        run->report.files += !code;
        run->decode = code ? UINT64_MAX : run->decode; /* one fault is enough */
        if (code == BAGS_ERROR_MEMORY)
            return bagi_verify_file(run, code);
    }
    if (!code)
        code = bagi_coder_decode(coder, needed ? run->dictionary : NULL, blob,
            &run->scratch, &value, &run->why);
    if (!code)
        return BAGS_OK;
    bags_prefix(&run->why, code, "%s: blob %" PRIu64 ": ",
        cursor->bag->file[BAGI_BLOBS].shown, cursor->index);
    return bagi_verify_fault(run, code, BAGS_FAULT_BLOB, cursor->index, cursor->start);
}

static void bagi_verify_progress(bagi_verifying *run, uint64_t bytes) {
    run->report.bytes += bytes;
    if (bytes && run->options.progress)
        run->options.progress(run->options.user, bytes);
}

/* Check the blobs start .. stop of a Bag and, with crcs (for all of them), their
 * checksums. */
static bags_code bagi_verify_range(bagi_verifying *run, const bag_reader *bag,
    uint64_t start, uint64_t stop, bool crcs) {
    bagi_cursor cursor;
    uint64_t seen = 0;
    bool ended = false; /* the rest of this Bag cannot be read */
    bags_code code = BAGS_OK;
    bagi_cursor_open(&cursor, bag, start, stop);
    while (!code && !ended && cursor.next < cursor.last) {
        uint64_t offset = bag->table + 8 * cursor.next;
        uint32_t computed = 0, stored = 0;
        code = bagi_cursor_next(&cursor, &run->why);
        if (!code && !cursor.valid) {
            code = bagi_bag_fail_bounds(
                bag, cursor.index, cursor.start, cursor.stop, &run->why);
            code = bagi_verify_fault(run, code, BAGS_FAULT_BLOB, cursor.index, offset);
        } else if (!code) {
            offset = cursor.start;
        }
        if (BAGI_CHECKSUMS && !code && crcs && cursor.usable) {
            stored = bagi_cursor_stored(&cursor);
            code = bagi_cursor_crc(&cursor, &computed, &run->why);
        }
        if (!code && cursor.usable && stored != computed) {
            code = bagi_crcs_fail(bag, cursor.index, computed, stored, &run->why);
            code = bagi_verify_fault(run, code, BAGS_FAULT_BLOB, cursor.index, offset);
        } else if (!code && cursor.usable && run->parse) {
            code = bagi_verify_row(run, &cursor);
        } else if (!code && cursor.usable && cursor.index >= run->decode) {
            code = bagi_verify_value(run, &cursor);
        }
        if (code) {
            ended = true;
            code = bagi_verify_fault(run, code, BAGS_FAULT_FILE, 0, offset);
        }
        if (cursor.read - seen >= (uint64_t)1 << 20) {
            bagi_verify_progress(run, cursor.read - seen);
            seen = cursor.read;
        }
    }
    if (!code && cursor.overlap)
        code = bagi_verify_file(run, bags_fail(&run->why, BAGS_ERROR_CORRUPT,
                                         "%s: overlapping blobs; not all were checked",
                                         bag->file[BAGI_BLOBS].shown));
    /* The running CRCs of the table and of the CRCs must equal the trailer's. */
    for (int i = 0; BAGI_CHECKSUMS && i < 2 && crcs && !ended && !code; i++) {
        uint32_t computed = i ? cursor.crcs_crc : cursor.table_crc;
        uint32_t stored = i ? bag->trailer.crcs : bag->trailer.table;
        if (computed != stored)
            code = bagi_verify_file(
                run, bags_fail(&run->why, BAGS_ERROR_CORRUPT,
                         "%s: %s: checksum mismatch (computed %08" PRIx32
                         ", stored %08" PRIx32 ")",
                         bag->file[i ? BAGI_CRCS : BAGI_BLOBS].shown,
                         i ? "checksums" : "table", computed, stored));
    }
    bagi_verify_progress(run, cursor.read - seen);
    bagi_cursor_close(&cursor);
    return code;
}

/* Check an open Bag (of a field or, for field spec->count, refs.bag) and its checksums.
 * If the checksums belong to a Bag with more or fewer blobs, the table is in the wrong
 * place, and its content is meaningless. A missing codec is not a fault of the files,
 * but a codec that refuses the type's arguments indicates one. A standalone Bag has no
 * spec. */
BAGI_COLD static bags_code bagi_verify_bag(
    bagi_verifying *run, bag_reader *bag, size_t field) {
    const bagi_spec *spec = run->spec;
    const bags_trailer *trailer = &bag->trailer;
    bool is_refs = spec && field == spec->count;
    uint64_t length = bag->length;
    bags_code code = BAGS_OK;
    run->field = field;
    run->bag_options.name = bagi_spec_name(spec, field);
    run->name = spec ? run->bag_options.name : NULL;
    run->parse = is_refs && run->known;
    run->decode = UINT64_MAX;
    run->report.blobs += is_refs ? 0 : length;
    run->report.files += 1 + bagi_is_split(bag);
    if (spec && !is_refs && run->options.decode) {
        const bagi_coder *coder = &spec->coders[field];
        if (coder->codec && coder->fault) {
            code = bagi_coder_fail(coder, &run->why);
            bags_prefix(&run->why, code, "%s: ", bag->file[BAGI_BLOBS].shown);
            code = bagi_verify_file(run, code);
        } else if (coder->fault || !coder->codec->decode) {
            run->report.undecoded += length;
            if (length && run->options.undecoded)
                run->options.undecoded(run->options.user, &spec->fields[field], length);
        } else {
            run->decode = 0;
        }
    } else if (spec && !is_refs && !run->options.quick && length &&
               bagi_coder_dictionary(&spec->coders[field])) {
        run->decode = length - 1; /* a writer with a dictionary used it for this blob */
    }
    if (code)
        return code;
    if (run->options.quick) {
        code = bagi_verify_range(run, bag, 0, length ? 1 : 0, false);
        return code || length < 2
                   ? code
                   : bagi_verify_range(run, bag, length - 1, length, false);
    }
    if (!BAGI_CHECKSUMS)
        return bagi_verify_range(run, bag, 0, length, false);
    code = bagi_crcs_open(bag, run->dir, &run->bag_options, &run->why);
    if (!code)
        code = bagi_crcs_check(bag, run->dir, &run->bag_options, &run->why);
    bool exists = code != BAGS_ERROR_MISSING, crcs = !code;
    bool other = trailer->size && (trailer->length != length ||
                                      trailer->size != bag->file[BAGI_BLOBS].size);
    run->report.bags++;
    run->report.checksums += exists;
    run->report.files += exists;
    if (crcs)
        code = bagi_crcs_check_shard(
            bag->file[BAGI_CRCS].shown, trailer, &run->bag_options.record, &run->why);
    code = exists || run->any_checksums ? bagi_verify_file(run, code) : BAGS_OK;
    if (!code && !other)
        code = bagi_verify_range(run, bag, 0, length, crcs);
    bagi_file_close(bag, &bag->file[BAGI_CRCS]);
    return code;
}

/* ---- a shard ---- */

/* Open a shard's Bags, refs first: see bagi_shard_open. *all is set if none is
 * missing. */
BAGI_COLD static bags_code bagi_verify_open(
    bagi_verifying *run, bool has_refs, bool *all) {
    size_t count = run->spec->count;
    bags_code code = BAGS_OK;
    *all = true;
    for (size_t i = count + has_refs; i-- > 0 && !code;) {
        run->name = run->bag_options.name = bagi_spec_name(run->spec, i);
        run->bag_options.allow_empty =
            i == count || bagi_refs_allow_empty(run->bags[count]);
        code = bagi_bag_open(
            run->dir, &run->bag_options, &run->files, &run->bags[i], &run->why);
        *all = *all && !code;
        code = bagi_verify_unit_file(run, i + 1, code);
    }
    return code;
}

/* Check one shard. If its spec.json is invalid, the common spec determines which Bags
 * should exist; without a common spec, only the table of refs.bag is checked. */
BAGI_COLD static bags_code bagi_verify_shard(
    void *user, const bagi_dir *dir, size_t place) {
    bagi_verifying *run = (bagi_verifying *)user;
    const bags_allocator *memory = &run->env.memory;
    bool split = false, all = false;
    uint64_t length = 0;
    bagi_spec own = BAGI_ZERO;
    bags_code wrong = BAGS_OK;
    run->bag_options = bagi_bag_options_new();
    run->bag_options.no_mmap = true;
    run->path = dir->path;
    run->dir = dir;
    run->place = place;
    run->name = NULL;
    bags_code code = bagi_common_read(
        &run->common, dir, "", &own, &run->bag_options.record, &run->why);
    if (run->bag_options.record.missing)
        code = bagi_fail_unfinished(dir, &run->why);
    bool mine = bagi_verify_mine(run, 0);
    bool unfinished = code == BAGS_ERROR_UNFINISHED;
    bool readable = !code || own.types;
    run->known = own.types || run->common.spec.types;
    run->spec = own.types ? &own : &run->common.spec;
    run->report.unfinished += mine && unfinished;
    run->report.shards += mine && !unfinished;
    run->report.files += mine && !code;
    if (unfinished && run->options.unfinished == BAGS_UNFINISHED_SKIP)
        code = BAGS_OK;
    code = bagi_verify_unit_file(run, 0, code);
    if (code || unfinished)
        return code; /* it has no valid spec.json */
    size_t count = run->spec->count;
    run->row =
        (bags_ref *)bagi_alloc(memory, (count + 1) * sizeof *run->row, &run->why);
    run->bags =
        (bag_reader **)bagi_alloc(memory, (count + 1) * sizeof *run->bags, &run->why);
    if (!run->row || !run->bags)
        code = bagi_verify_file(run, BAGS_ERROR_MEMORY);
    run->name = "refs";
    if (!code && run->known)
        wrong = bagi_shard_variant(dir, run->spec, &split, &run->why);
    code = code ? code : bagi_verify_unit_file(run, count + 1, wrong);
    run->bag_options.split = split;
    if (!code)
        code = bagi_verify_open(run, !split && !wrong, &all);
    /* Unreadable trailers are reported with their Bag. */
    if (BAGI_CHECKSUMS && !code && run->any_checksums && run->known && readable &&
        bagi_shard_bind(dir, run->spec, split, NULL, &run->bag_options.record,
            &run->why) == BAGS_ERROR_MEMORY)
        code = bagi_verify_file(run, BAGS_ERROR_MEMORY);
    run->name = split ? NULL : "refs";
    if (!code && run->bags[count])
        length = run->bags[count]->length;
    if (!code && !wrong && run->known && all) {
        wrong = bagi_shard_measure(dir, run->spec, &run->bag_options, run->bags[count],
            run->options.unfinished == BAGS_UNFINISHED_SKIP, &length, &run->why);
        code = bagi_verify_unit_file(run, count + 1, wrong);
    }
    run->report.datapoints += bagi_verify_mine(run, count + 1) ? length : 0;
    /* If all rows must be wrong, do not report them one by one. */
    for (size_t i = 0; i < count + !wrong && !code; i++)
        if (run->bags[i] && bagi_verify_mine(run, i + 1)) {
            code = bagi_verify_bag(run, run->bags[i], i);
            bagi_dictionaries_free(memory, &run->dictionary);
        }
    run->name = NULL;
    bagi_bags_free(&run->env, run->bags, count + 1);
    bagi_free(memory, run->row, (count + 1) * sizeof *run->row);
    bagi_spec_free(memory, &own);
    return code;
}

/* ---- a dataset ---- */

/* Before any shard is checked, look for the first valid spec.json, to compare all
 * others with it, and for a finished shard with checksums, because then all must have
 * them. Faults found on the way are reported when their shard is checked. */
BAGI_COLD static bags_code bagi_verify_find(
    void *user, const bagi_dir *dir, size_t index) {
    bagi_verifying *run = (bagi_verifying *)user;
    const bagi_spec *spec = &run->common.spec;
    bagi_record record;
    (void)index;
    bags_code code = run->common.spec.types ? BAGS_OK
                                            : bagi_common_read(&run->common, dir, "",
                                                  NULL, &record, &run->why);
    bool search = BAGI_CHECKSUMS && !run->options.quick;
    for (size_t i = spec->count + 1;
         i-- > 0 && search && code != BAGS_ERROR_MEMORY && !run->any_checksums;) {
        code = BAGS_OK;
        run->any_checksums =
            bagi_dir_has(dir, bagi_spec_name(spec, i), ".crc", &code, &run->why) &&
            bagi_is_finished(dir, &code, &run->why);
    }
    return bagi_verify_file(run, code == BAGS_ERROR_MEMORY ? code : BAGS_OK);
}

/* Check all shards of a worker. If the work is divided into parts, each lists the
 * shards and looks for the common spec, but only part 0 reports faults of the dataset
 * as a whole, such as bad names and gaps. */
BAGI_COLD static bags_code bagi_verify_dataset(
    bagi_verifying *run, const bagi_dir *dir) {
    uint64_t start = run->options.shard_start, stop = run->options.shard_stop;
    bool mine = run->options.part == 0;
    bagi_shard_list list;
    bags_code code = bagi_shard_list_find(dir, &list, &run->why);
    while (code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_CORRUPT) {
        code = mine ? bagi_verify_file(run, code) : BAGS_OK;
        if (!code)
            code = bagi_shard_list_check(&list, &run->why);
    }
    if (code)
        *run->err = run->why;
    list.spec = &run->common.spec;
    if (!code)
        code = bagi_each_shard(&list, 0, 1, bagi_verify_find, run, run->err);
    if (!code && mine && !run->options.allow_gaps)
        code = bagi_verify_file(
            run, bagi_check_gaps(&list, start, stop, BAGI_GAPS_READ, &run->why));
    if (!code)
        code = bagi_each_shard(&list, start, stop, bagi_verify_shard, run, run->err);
    bags_buffer_free(&list.array);
    return code;
}

/* A standalone Bag has no spec: its blobs are compared with their checksums only. */
BAGI_COLD static bags_code bagi_verify_standalone(
    bagi_verifying *run, const char *path) {
    bagi_dir dir;
    bag_reader *bag = NULL;
    if (run->options.part)
        return BAGS_OK;
    BAGI_TRY(bagi_dir_standalone(&run->env, path, &dir, run->err));
    run->dir = &dir;
    run->bag_options = bagi_bag_options_new();
    run->bag_options.no_mmap = true;
    run->bag_options.allow_empty = run->options.allow_empty_file;
    bags_code code = bagi_verify_file(
        run, bagi_bag_open(&dir, &run->bag_options, NULL, &bag, &run->why));
    if (bag)
        code = bagi_verify_bag(run, bag, 0);
    bagi_bag_free(bag);
    bagi_dir_free(&dir);
    return code;
}

BAGS_API BAGI_COLD bags_code bags_verify(const char *path,
    const bags_verify_options *options, bags_verify_report *report, bags_error *err) {
    BAGI_ERR(err);
    const char *fault = NULL;
    bagi_verifying run = BAGI_ZERO;
    if (options)
        run.options = *options;
    run.options.parts += !run.options.parts;
    if (!run.options.max_faults)
        run.options.max_faults = 1000;
    run.env = bagi_env_of(&run.options.env);
    run.path = path;
    bagi_dir dir = BAGI_ZERO;
    run.files.limit = 64;
    run.common.registry = run.options.registry;
    run.err = err;
    if (run.options.part >= run.options.parts)
        fault = "part is not below parts";
    else if (run.options.quick && run.options.decode)
        fault = "quick and decode are mutually exclusive";
    bagi_buffer_adopt(&run.scratch, &run.env.memory);
    bool mutex = bagi_mutex_init(&run.files.mutex);
    bags_code code = mutex ? bagi_check_worker(path, run.options.shard_start,
                                 &run.options.shard_stop, err)
                           : bagi_fail_memory(err, 0);
    if (!code && fault)
        code =
            bags_fail(err, BAGS_ERROR_ARGUMENT, "%s: %s", bags_path_tail(path), fault);
    if (!code)
        code = bagi_check_unfinished(
            path, run.options.unfinished, BAGS_UNFINISHED_READ, err);
    if (!code)
        code = bagi_dir_open(&dir, &run.env, path, "", err);
    bags_path_kind kind = bagi_kind(&run.env, path, &code, err);
    if (!code)
        code = kind == BAGS_PATH_FILE ? bagi_verify_standalone(&run, path)
                                      : bagi_verify_dataset(&run, &dir);
    if (mutex)
        bagi_mutex_free(&run.files.mutex);
    bagi_dir_free(&dir);
    bagi_spec_free(&run.env.memory, &run.common.spec);
    bags_buffer_free(&run.scratch);
    if (report)
        *report = run.report;
    return code ? code : run.code;
}
#endif /* BAGS_NO_VERIFY */

#if !defined(BAGS_NO_WRITER) && !defined(BAGS_NO_CHECKSUM)
/* ========================================================================
 * >>checksum
 * Owns one run of bags_checksum, to write NAME.crc next to existing Bags. A reader
 * finds the Bags. A shard's spec.json stays locked meanwhile, so that its files do not
 * change.
 * ====================================================================== */

/* A Bag's state while its shard's checksums are being made. */
typedef struct bagi_bag_checksums {
    bags_trailer trailer;
    uint64_t length, size; /* of the Bag */
    bool kept;             /* it had checksums */
    bagi_dictionary_sum dictionary;
} bagi_bag_checksums;

/* State while the checksums of a directory are being made. */
typedef struct bagi_checksumming {
    const bags_checksum_options *options;
    bags_checksum_report *report;
    const bagi_dir *dir;
    const bagi_spec *spec;        /* NULL: a standalone Bag */
    bagi_bag_options bag_options; /* for its Bags, except for their names */
    /* Paths of Bags whose CRCs are copied, one per field: see >>complete. NULL: the
     * CRCs are computed. */
    const char *const *sources;
    bool sharded;
    void *file; /* bagi_lock_path, open and locked; NULL with `sources` */
    size_t count;
    bagi_bag_checksums *bags;
    bagi_writing writing;
    bagi_output output; /* of one Bag after another, with CRCs only */
} bagi_checksumming;

/* Open the checksums of the Bag at `path`, with the same blobs as this one, and do the
 * O(1) checks. */
static bags_code bagi_crcs_open_other(
    bag_reader *bag, const bagi_env *env, const char *path, bags_error *err) {
    bagi_bag_options opening = bagi_bag_options_new();
    bagi_dir dir;
    size_t size = path ? strlen(path) : 0;
    if (size < 4 || strcmp(path + size - 4, ".bag") != 0)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: the path of the Bag with its checksums does not end in .bag",
            bag->file[BAGI_BLOBS].shown);
    BAGI_TRY(bagi_dir_open(&dir, env, path, NULL, err));
    dir.path[size - 4] = '\0';
    opening.no_mmap = true;
    bags_code code = bagi_crcs_open(bag, &dir, &opening, err);
    if (!code)
        code = bagi_crcs_check(bag, &dir, &opening, err);
    bagi_dir_free(&dir);
    return code;
}

/* Write a Bag's checksums to NAME.crc.partial, without the trailer, and determine the
 * trailer's content. If checksums are open, copy their CRCs. */
static bags_code bagi_crcs_write(const bag_reader *bag, const bagi_dir *dir,
    const char *name, bagi_stream *stream, bags_trailer *trailer) {
    bagi_cursor cursor;
    unsigned char bytes[4];
    const char *copied = bag->file[BAGI_CRCS].shown;
    bags_error *failure = &stream->writing->failure;
    bagi_cursor_open(&cursor, bag, 0, bag->length);
    if (!bagi_dir_remove(dir, name, ".crc.partial", failure))
        bagi_stream_open(stream, dir, name, ".crc.partial", BAGS_IO_CREATE);
    while (!failure->code && cursor.next < cursor.last) {
        uint32_t crc = 0;
        if (!bagi_cursor_next(&cursor, failure) && !cursor.valid)
            bagi_bag_fail_bounds(bag, cursor.index, cursor.start, cursor.stop, failure);
        if (!failure->code && copied)
            crc = bagi_cursor_stored(&cursor);
        else if (!failure->code)
            bagi_cursor_crc(&cursor, &crc, failure);
        bagi_store_u32(bytes, crc);
        trailer->crcs = bags_crc32c(trailer->crcs, bytes, 4);
        bagi_stream_append(stream, bytes, 4);
    }
    trailer->length = bag->length;
    trailer->size = bag->file[BAGI_BLOBS].size;
    trailer->table = cursor.table_crc;
    if (copied && !failure->code &&
        (trailer->crcs != bag->trailer.crcs || trailer->table != bag->trailer.table))
        bags_fail(failure, BAGS_ERROR_CORRUPT,
            "%s: damaged, or not of the Bag next to it; bags_checksum with `replace` "
            "makes it again",
            copied);
    bagi_cursor_close(&cursor);
    bagi_stream_flush(stream);
    if (failure->code)
        bagi_stream_remove(stream);
    bagi_stream_close(stream);
    return failure->code;
}

/* Refuse a link: it leads out of the dataset. */
static bags_code bagi_check_no_link(
    const bagi_env *env, const char *path, bags_error *err) {
    bags_identity found;
    if (!env->io.identify)
        return BAGS_OK;
    int error = env->io.identify(env->io.user, NULL, path, &found);
    if (!error && found.link)
        error = ELOOP;
    return bagi_fail_io(env, error, path, "open", err);
}

/* Write a Bag's CRCs to NAME.crc.partial, or keep its checksums. */
BAGI_COLD static bags_code bagi_checksum_bag(bagi_checksumming *work, size_t field) {
    const bagi_dir *dir = work->dir;
    bagi_bag_checksums *known = &work->bags[field];
    bags_error *err = &work->writing.failure;
    bag_reader *bag = NULL;
    const char *name = work->bag_options.name = bagi_spec_name(work->spec, field);
    bags_code code = bagi_bag_open(dir, &work->bag_options, NULL, &bag, err);
    for (int i = 0; i < BAGI_FILES && !code; i++)
        if (bag->file[i].path)
            code = bagi_check_no_link(dir->env, bag->file[i].path, err);
    if (!code && work->sources && field < work->spec->count && bag->length)
        code = bagi_crcs_open_other(bag, dir->env, work->sources[field], err);
    known->kept =
        bagi_dir_has(dir, name, ".crc", &code, err) && !work->options->replace;
    known->length = bag_reader_length(bag);
    known->size = bag_reader_size(bag);
    if (!code && work->spec)
        code = bagi_dictionary_read(dir, name, &known->dictionary, NULL, err);
    if (!code && known->kept)
        code = bagi_crcs_read_trailer(dir, name, &known->trailer, err);
    else if (!code)
        code = bagi_crcs_write(
            bag, dir, name, &work->output.stream[BAGI_CRCS], &known->trailer);
    bagi_bag_free(bag);
    return code;
}

/* Add the trailer with `bound` to a Bag's new CRCs, and rename the file. */
BAGI_COLD static bags_code bagi_checksum_seal(
    bagi_checksumming *work, size_t field, uint32_t bound) {
    const bagi_dir *dir = work->dir;
    bagi_stream *stream = &work->output.stream[BAGI_CRCS];
    bags_error *err = &work->writing.failure;
    const char *name = bagi_spec_name(work->spec, field);
    if (work->file && bagi_check_same(dir->env, work->file, bagi_lock_path(dir), err))
        return err->code;
    work->output.trailer = work->bags[field].trailer;
    bagi_trailer_bind(
        &work->output.trailer, work->spec, field, &work->bags[field].dictionary, bound);
    bagi_stream_open(stream, dir, name, ".crc.partial", BAGS_IO_WRITE);
    bagi_output_seal(&work->output);
    bagi_stream_close(stream);
    return err->code ? err->code
                     : bagi_dir_rename(dir, name, ".crc.partial", ".crc", err);
}

/*
 * First write the CRCs of all Bags. Once these are known, write the trailers that bind
 * the Bags together, and rename the files: refs.crc last, because recovery expects the
 * others if that exists.
 */
BAGI_COLD static bags_code bagi_checksum_bags(bagi_checksumming *work) {
    const bagi_dir *dir = work->dir;
    const bagi_env *env = dir->env;
    bags_error *err = &work->writing.failure;
    bagi_record record = work->bag_options.record;
    record.bound = record.spec;
    record.is_bound = work->spec != NULL;
    for (size_t i = 0; i < work->count; i++) {
        if (bagi_checksum_bag(work, i))
            return err->code;
        record.bound = bagi_bind(
            record.bound, bagi_spec_name(work->spec, i), work->bags[i].trailer.crcs);
    }
    for (size_t i = 0; i < work->count; i++) {
        const char *path = bagi_dir_path(dir, bagi_spec_name(work->spec, i), ".crc");
        if (work->bags[i].kept && bagi_crcs_check_shard(bagi_shown(env, path),
                                      &work->bags[i].trailer, &record, err))
            return err->code;
    }
    for (size_t i = 0; i < work->count; i++) {
        const bagi_bag_checksums *known = &work->bags[i];
        if (!known->kept && bagi_checksum_seal(work, i, record.bound))
            return err->code;
        const char *path = bagi_dir_path(dir, bagi_spec_name(work->spec, i), ".bag");
        bags_checksummed done = {
            bagi_passed(env, path), known->kept, known->length, known->size};
        work->report->kept += known->kept;
        work->report->made += !known->kept;
        work->report->blobs += known->kept ? 0 : known->length;
        work->report->size += known->kept ? 0 : known->size;
        if (work->options->each)
            work->options->each(work->options->user, &done);
    }
    if (work->options->no_sync || work->sources) /* >>complete syncs */
        return BAGS_OK;
    return dir->standalone ? bagi_sync_parent(env, dir->path, err)
                           : bagi_sync_dir(env, dir->path, err);
}

/* Write the checksums of all Bags in a locked directory. Remove incomplete ones. */
BAGI_COLD static bags_code bagi_checksum_dir(
    bagi_checksumming *work, const bagi_dir *dir, bags_error *err) {
    const bagi_env *env = dir->env;
    bags_error ignored;
    work->dir = dir;
    work->file = NULL;
    work->count = work->spec ? work->spec->count + !work->bag_options.split : 1;
    size_t size = work->count * sizeof *work->bags;
    bagi_writing_init(&work->writing, env, work->options->no_sync);
    memset(&work->output, 0, sizeof work->output);
    bagi_output_init(&work->output, &work->writing, 16384);
    work->output.checksums = true;
    work->bags = (bagi_bag_checksums *)bagi_alloc(&env->memory, size, err);
    bags_code code = work->bags ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (!code && !work->sources)
        code = bagi_lock_dir(dir, &work->file, err);
    if (!code && work->sharded)
        code = bagi_check_no_link(env, dir->path, err);
    if (!code && bagi_checksum_bags(work)) {
        *err = work->writing.failure;
        code = err->code;
        for (size_t i = 0; i < work->count; i++)
            if (work->sources ||
                !bagi_check_same(env, work->file, bagi_lock_path(dir), &ignored))
                bagi_dir_remove(
                    dir, bagi_spec_name(work->spec, i), ".crc.partial", &ignored);
    }
    bagi_close_read(env, work->file);
    bagi_output_free(&work->output);
    bagi_free(&env->memory, work->bags, size);
    return code;
}

/* Refuse a file of a dataset where a standalone Bag is expected. */
BAGI_COLD static bags_code bagi_check_standalone(
    const bagi_env *env, const char *path, bags_error *err) {
    bagi_dir dir = BAGI_ZERO;
    char *parent = bagi_parent(&env->memory, path, err);
    bags_code code =
        parent ? bagi_dir_open(&dir, env, parent, "", err) : BAGS_ERROR_MEMORY;
    if (bagi_is_single(&dir, &code, err) ||
        bagi_dir_has(&dir, "refs", ".bag", &code, err))
        code = bags_fail(err, BAGS_ERROR_ARGUMENT,
            "%s: belongs to the dataset %s; pass the dataset", bags_path_tail(path),
            parent);
    bagi_dir_free(&dir);
    bagi_free_text(&env->memory, parent);
    return code;
}

/* A standalone Bag's checksums contain no CRC of spec.json, so they would be wrong next
 * to one. Checksums of a Bag that is still growing would be wrong, too. */
BAGI_COLD static bags_code bagi_checksum_standalone(
    bagi_checksumming *work, bagi_env *env, const char *path, bags_error *err) {
    bagi_dir dir;
    work->bag_options = bagi_bag_options_new();
    work->bag_options.allow_empty = true;
    BAGI_TRY(bagi_check_standalone(env, path, err));
    bags_code code = bagi_dir_standalone(env, path, &dir, err);
    if (!code)
        code = bagi_checksum_dir(work, &dir, err);
    bagi_dir_free(&dir);
    return code;
}

BAGS_API BAGI_COLD bags_code bags_checksum(const char *path,
    const bags_checksum_options *options, bags_checksum_report *report,
    bags_error *err) {
    BAGI_ERR(err);
    BAGI_OPTIONS(bags_checksum_options, options);
    bags_checksum_report done = {0, 0, 0, 0};
    bags_reader_options reading = BAGI_ZERO;
    bags_reader *reader = NULL;
    bagi_checksumming work = BAGI_ZERO;
    bagi_env env = bagi_env_of(&options->env);
    work.options = options;
    work.report = &done;
    reading.shard_start = options->shard_start;
    reading.shard_stop = options->shard_stop;
    reading.allow_gaps = true;
    reading.env = options->env;
    bags_code code = bagi_check_path(path, err);
    if (bagi_kind(&env, path, &code, err) == BAGS_PATH_FILE) {
        code = bagi_checksum_standalone(&work, &env, path, err);
    } else if (!code) {
        reader = bags_reader_open(path, &reading, err);
        code = reader ? BAGS_OK : err->code;
    }
    for (size_t i = 0; reader && i < reader->count && !code; i++) {
        bagi_dir dir;
        work.bag_options = reader->parts[i].bag_options;
        work.spec = &reader->spec;
        work.sharded = reader->sharded;
        code = bagi_reader_dir(reader, i, &dir, err);
        if (!code)
            code = bagi_checksum_dir(&work, &dir, err);
        bagi_dir_free(&dir);
    }
    bags_reader_close(reader);
    if (report)
        *report = done;
    return code;
}
#endif /* BAGS_NO_CHECKSUM */

#ifndef BAGS_NO_WRITER
/* ========================================================================
 * >>complete
 * Owns one run of bags_shard_complete, to write the files that a shard has besides its
 * fields' Bags. No reader accepts the shard before the caller stores spec.json.
 * ====================================================================== */

/* A field's Bag. */
typedef struct bagi_completed {
    uint64_t length, size;
} bagi_completed;

typedef struct bagi_completing {
    const bags_complete_options *options;
    bags_code (*refs)(void *user, uint64_t datapoint, bags_ref *refs, bags_error *err);
    bags_complete_report report;
    bagi_dir dir;
    bagi_spec spec;
    bagi_completed *bags; /* one per field */
    bool v1, v2;          /* their layouts */
    bags_ref *row;        /* refs of a datapoint, */
    unsigned char *bytes; /* and as they are stored */
    bagi_writing writing;
    bagi_output output; /* of one Bag after another */
#ifndef BAGS_NO_CHECKSUM
    bags_checksum_options sum_options;
    bags_checksum_report summed;
    bagi_checksumming sums;
#endif
} bagi_completing;

/* Read the spec, and allocate the memory that depends on its fields. */
BAGI_COLD static bags_code bagi_complete_start(
    bagi_completing *work, const char *directory, bags_view text, bags_error *err) {
    const bagi_env *env = &work->writing.env;
    const bags_allocator *memory = &env->memory;
    bagi_spec *spec = &work->spec;
    BAGI_TRY(bagi_check_path(directory, err));
    BAGI_TRY(bagi_check_checksums(directory, work->options->checksums != NULL, err));
    BAGI_TRY(bagi_dir_open(&work->dir, env, directory, "", err));
    bagi_buffer_adopt(&spec->text, memory);
    BAGI_TRY(bags_buffer_reserve(&spec->text, text.size + 1, err));
    memcpy(spec->text.data, text.data, text.size);
    spec->text_size = text.size;
    bags_code code = bagi_spec_parse(memory, spec, err);
    if (!code)
        code = bagi_spec_seal(memory, spec, NULL, err);
    if (code)
        return bags_prefix(err, code, "%s/spec.json: ", work->dir.shown);
    work->bags =
        (bagi_completed *)bagi_alloc(memory, spec->count * sizeof *work->bags, err);
    work->row = (bags_ref *)bagi_alloc(memory, spec->count * sizeof *work->row, err);
    work->bytes =
        (unsigned char *)bagi_alloc_raw(memory, bagi_refs_most(spec->count), err);
    return work->bags && work->row && work->bytes ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Make the stored refs of a datapoint: *size bytes. */
static bags_code bagi_complete_row(
    bagi_completing *work, uint64_t datapoint, size_t *size, bags_error *err) {
    const bagi_spec *spec = &work->spec;
    BAGI_TRY(work->refs(work->options->user, datapoint, work->row, err));
    for (size_t i = 0; i < spec->count; i++) {
        bags_ref *ref = &work->row[i];
        if (!spec->types[i].sequence)
            ref->count = 1;
        if (bagi_ref_fits(*ref, work->bags[i].length))
            continue;
        bagi_fail_ref(
            work->dir.shown, spec, datapoint, i, *ref, work->bags[i].length, err);
        return err->code = BAGS_ERROR_RANGE;
    }
    *size = bagi_refs_write(spec->types, spec->count, work->row, work->bytes);
    return BAGS_OK;
}

/* Write a Bag: refs, or an empty v1 Bag. */
BAGI_COLD static bags_code bagi_complete_bag(
    bagi_completing *work, const char *name, uint64_t length, bags_error *err) {
    bagi_output *output = &work->output;
    bags_error *failure = &work->writing.failure;
    output->v2 = work->v2 && !work->v1;
    bagi_output_open(output, &work->dir, name, BAGS_IO_CREATE);
    for (uint64_t i = 0; i < length && !failure->code; i++) {
        size_t size = 0;
        failure->code = bagi_complete_row(work, i, &size, failure);
        if (!failure->code)
            bagi_output_append(output, work->bytes, size);
    }
    bagi_output_finish(output, false);
    bagi_output_seal(output);
    work->report.written += output->stream[BAGI_BLOBS].end;
    bagi_outputs_each(output, 1, BAGI_CONTENT, bagi_stream_close);
    bagi_outputs_each(output, 1, BAGI_JOURNAL, bagi_stream_remove);
    return bagi_writing_end(&work->writing, err);
}

/* Open the fields' Bags, and replace empty files next to v1 Bags. */
BAGI_COLD static bags_code bagi_complete_fields(
    bagi_completing *work, bags_error *err) {
    const bagi_spec *spec = &work->spec;
    bagi_bag_options opening = bagi_bag_options_new();
    opening.no_mmap = opening.allow_empty = true;
    for (size_t i = 0; i < spec->count; i++) {
        bag_reader *bag = NULL;
        opening.name = spec->fields[i].name;
        BAGI_TRY(bagi_bag_open(&work->dir, &opening, NULL, &bag, err));
        *(bag->layout == BAGI_V1 ? &work->v1 : &work->v2) = true;
        work->bags[i].length = bag->length;
        work->bags[i].size = bag->file[BAGI_BLOBS].size;
        work->report.existing += work->bags[i].size;
        bagi_bag_free(bag);
    }
    for (size_t i = 0; i < spec->count && work->v1; i++) {
        if (work->bags[i].size)
            continue;
        BAGI_TRY(bagi_dir_remove(&work->dir, spec->fields[i].name, ".bag", err));
        BAGI_TRY(bagi_complete_bag(work, spec->fields[i].name, 0, err));
    }
    return BAGS_OK;
}

/* Copy the fields' checksums, and compute the checksums of refs. */
static bags_code bagi_complete_checksums(bagi_completing *work, bags_error *err) {
#ifndef BAGS_NO_CHECKSUM
    bagi_checksumming *sums = &work->sums;
    sums->options = &work->sum_options;
    sums->report = &work->summed;
    work->sum_options.no_sync = work->writing.no_sync;
    sums->spec = &work->spec;
    sums->sources = work->options->checksums;
    sums->bag_options = bagi_bag_options_new();
    sums->bag_options.no_mmap = sums->bag_options.allow_empty = true;
    sums->bag_options.record.spec =
        bags_crc32c(0, work->spec.text.data, work->spec.text_size);
    BAGI_TRY(bagi_checksum_dir(sums, &work->dir, err));
    work->report.written +=
        4 * work->summed.blobs + BAGS_TRAILER_SIZE * work->summed.made;
#endif
    (void)work;
    (void)err;
    return BAGS_OK;
}

BAGS_API BAGI_COLD bags_code bags_shard_complete(const char *directory, bags_view spec,
    uint64_t length,
    bags_code (*refs)(void *user, uint64_t datapoint, bags_ref *refs, bags_error *err),
    const bags_complete_options *options, bags_complete_report *report,
    bags_error *err) {
    static const bags_complete_report nothing = {0, 0};
    if (report)
        *report = nothing;
    BAGI_BEGIN(refs && spec.data, err);
    BAGI_OPTIONS(bags_complete_options, options);
    bagi_env env = bagi_env_of(&options->env);
    const bags_allocator *memory = &env.memory;
    bagi_completing *work = (bagi_completing *)bagi_alloc(memory, sizeof *work, err);
    if (!work)
        return BAGS_ERROR_MEMORY;
    bagi_writing_init(&work->writing, &env, options->no_sync);
    bagi_output_init(&work->output, &work->writing, (size_t)256 << 10);
    work->options = options;
    work->refs = refs;
    bags_code code = bagi_complete_start(work, directory, spec, err);
    if (!code)
        code = bagi_complete_fields(work, err);
    if (!code)
        code = bagi_complete_bag(work, "refs", length, err);
    if (!code && options->checksums)
        code = bagi_complete_checksums(work, err);
    if (!code && !options->no_sync)
        code = bagi_sync_dir(&env, work->dir.path, err);
    size_t count = work->spec.count;
    bagi_output_free(&work->output);
    bagi_free(memory, work->bytes, bagi_refs_most(count));
    bagi_free(memory, work->row, count * sizeof *work->row);
    bagi_free(memory, work->bags, count * sizeof *work->bags);
    bagi_spec_free(memory, &work->spec);
    bagi_dir_free(&work->dir);
    if (report)
        *report = work->report;
    bagi_free(memory, work, sizeof *work);
    return code;
}
#endif /* BAGS_NO_WRITER */

/* Undefine everything except the mark that the implementation was compiled. */
#undef BAGI_ADD
#undef BAGI_BAGS_AHEAD
#undef BAGI_BEGIN
#undef BAGI_BLOCK_SIZE
#undef BAGI_CHECK
#undef BAGI_CHECKSUMS
#undef BAGI_COLD
#undef BAGI_CONTENT
#undef BAGI_CRC_16
#undef BAGI_CRC_4
#undef BAGI_CRC_CPU
#undef BAGI_CRC_STEP1
#undef BAGI_CRC_STEP8
#undef BAGI_CRC_TARGET
#undef BAGI_CURSOR_BYTES
#undef BAGI_CURSOR_ENTRIES
#undef BAGI_CURSOR_WINDOW
#undef BAGI_DRAFTS
#undef BAGI_DICTIONARY
#undef BAGI_DICTIONARY_MAX
#undef BAGI_DICTIONARY_NEW
#undef BAGI_DTYPES
#undef BAGI_ERR
#undef BAGI_GAPS_READ
#undef BAGI_HOT
#undef BAGI_HWCAP
#undef BAGI_JOURNAL
#undef BAGI_LOAD
#undef BAGI_LOCAL_ADVISE
#undef BAGI_LOCAL_MAP
#undef BAGI_LOCAL_MAX
#undef BAGI_LOCAL_RESERVE
#undef BAGI_LOCAL_WRITE_BACK
#undef BAGI_LOCKED_BYTE
#undef BAGI_LOCKED_BY_WRITER
#undef BAGI_MARK
#undef BAGI_MAX
#undef BAGI_MIN
#undef BAGI_NEED
#undef BAGI_NOINLINE
#undef BAGI_OPTIONS
#undef BAGI_PREFETCH_END
#undef BAGI_REFS_STEP
#undef BAGI_RETRY
#undef BAGI_ROW_MANY
#undef BAGI_SET_LENGTH
#undef BAGI_SHARDS_AHEAD
#undef BAGI_SHARD_LIMIT
#undef BAGI_SMALLEST_COLD
#undef BAGI_SPAN_SIZE
#undef BAGI_SPEC_MAX
#undef BAGI_STALE
#undef BAGI_STAT_TIME
#undef BAGI_STORE
#undef BAGI_STREAMS
#undef BAGI_TOUCH
#undef BAGI_TRAILER_ALONE
#undef BAGI_TRAILER_SHARD
#undef BAGI_TRY
#undef BAGI_USER
#undef BAGI_VALUE_ALIGN
#undef BAGI_WINDOWS_PATHS
#undef BAGI_WORKERS_TRIED
#undef BAGI_ZERO
#ifdef BAGS_NO_WRITER
#undef bagi_bytes_encode
#undef bagi_int_encode
#undef bagi_array_encode
#endif

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
