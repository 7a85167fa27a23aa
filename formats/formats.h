/*
 * formats.h - codecs for bags.h on the libraries of their fields.
 *
 * Each format is one file, on one library, and stands alone: copy bags.h and
 * the directory formats/ beside it, and compile the files that you need with
 * your program. None needs another.
 *
 *     formats/jpeg.c     jpeg jpg          libjpeg-turbo    -ljpeg
 *     formats/png.c      png               libpng           -lpng
 *     formats/numpy.c    npy               none
 *     formats/msgpack.c  msgpack tree      msgpack-c        -lmsgpackc
 *
 * A codec serves its types once it is in the registry that a reader or a writer
 * was opened with:
 *
 *     bags_codecs *codecs = bags_codecs_create(NULL, &err);
 *     bags_codecs_add(codecs, &bags_codec_jpeg, &err);
 *     bags_reader_options options = {0};
 *     options.codecs = codecs;
 *     bags_reader *reader = bags_reader_open("pets", &options, &err);
 *
 * What bags.h says of errors, ownership, threads and untrusted files holds here
 * too. No function prints, ends the program or keeps anything between calls;
 * all may be called from several threads at once.
 */
#ifndef BAGS_FORMATS_H
#define BAGS_FORMATS_H

#include "../bags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ========================================================================
 * >>images
 * What JPEG and PNG share.
 * ====================================================================== */

/* ========================================================================
 * >>jpeg
 * ====================================================================== */

extern const bags_codec bags_codec_jpeg;

/* ========================================================================
 * >>png
 * ====================================================================== */

extern const bags_codec bags_codec_png;

/* end of >>png */

/* ========================================================================
 * >>numpy
 * NumPy's .npy files: the type npy, and arrays from and to them. No library.
 * ====================================================================== */

/*
 * A value is a BAGS_ARRAY for elements that bags_dtype names. For all others
 * (complex, long double, text, dates, structures) it is a BAGS_OBJECT, whose
 * `object` points to a bags_npy. Both are taken for writing.
 */
extern const bags_codec bags_codec_npy;

/*
 * What an element is made of. A structure has fields, which are such types too,
 * each with its place in the structure.
 */
typedef struct bags_npy_type {
    char kind;         /* NumPy's letter: b bool, i int, u unsigned, f float,
                          c complex, S bytes, U UTF-32 text, V raw bytes,
                          M date, m time span. A structure is V */
    bool structure;    /* it has fields (or might: they can be none) */
    bool big_endian;   /* always false if the order makes no difference */
    bags_dtype dtype;  /* what it is in bags.h, or BAGS_DTYPE_NONE */
    const char *unit;  /* of M and m: "ns"; "" for none, and for others */
    uint32_t step;     /* units that one step of M and m has, as 25 in
                          "25s"; else 0 */
    const char *name;  /* of a field, in UTF-8; else "" */
    const char *title; /* a field's second name, or NULL */
    size_t offset;     /* where it starts in the structure around it */
    size_t item_size;  /* bytes of one of it: for f 2, 4, 8, 12 or 16 */
    size_t dims;       /* a field can be an array, in C order: its shape, and */
    const uint64_t *shape;
    size_t size;       /* the bytes of all of it */
    size_t count;      /* fields of a structure, in the order of offsets, */
    const struct bags_npy_type *fields; /* which never overlap */
} bags_npy_type;

/*
 * An array of any dtype. Row i (the i-th element in C order) is at
 * rows + i * stride, and a field of it at its `offset` from there. The bytes
 * are as in the file: not aligned, so copy a number out with memcpy, and in the
 * byte order that the type says.
 */
typedef struct bags_npy {
    bags_npy_type type;
    size_t dims;
    const uint64_t *shape;
    uint64_t length; /* the number of rows: the product of shape */
    size_t stride;   /* bytes from one row to the next: type.item_size */
    const unsigned char *rows;
    size_t size; /* bytes of all rows */
} bags_npy;

/* A field by its name, or else by its title; NULL if there is none. */
const bags_npy_type *bags_npy_field(const bags_npy_type *type,
    const char *name);

/*
 * Decode a .npy file of version 1, 2 or 3, as the codec does.
 *
 * *value borrows the file and the scratch: valid until one of them is gone or
 * the scratch is used again. Elements are not copied, but for arrays that are
 * in Fortran order, not aligned for their dtype or of the other byte order. The
 * result is always in C order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not a .npy file, or one whose header and size disagree
 *   BAGS_ERROR_VALUE    an array of Python objects: only Python can read it
 *   BAGS_ERROR_LIMIT    a header above 1 MiB, above 4,096 fields, fields nested
 *                       above 32 levels, above BAGS_MAX_DIMS dimensions
 *   BAGS_ERROR_MEMORY
 */
bags_code bags_npy_read(bags_bytes file, bags_buffer *scratch,
    bags_value *value, bags_error *err);

/* The same for every dtype alike: the rows as they are in the file. Only an
 * array in Fortran order is copied. */
bags_code bags_npy_view(bags_bytes file, bags_buffer *scratch,
    const bags_npy **out, bags_error *err);

/*
 * Encode a value as numpy.save does, to the byte: a BAGS_ARRAY, or a
 * BAGS_OBJECT with a bags_npy. The header alone, behind which the elements
 * belong as they are (value->data, value->size; npy->rows, npy->size); or a
 * whole file, with a copy of the elements. Version 1, or 2 or 3 where the
 * fields' names need it. Numbers are in this machine's byte order.
 *
 * *out borrows `scratch`: valid until it is used again or freed. Returns
 * BAGS_OK, BAGS_ERROR_VALUE (not an array; a type that contradicts itself),
 * BAGS_ERROR_LIMIT (as above) or BAGS_ERROR_MEMORY.
 */
bags_code bags_npy_header(const bags_value *value, bags_buffer *scratch,
    bags_bytes *out, bags_error *err);
bags_code bags_npy_write(const bags_value *value, bags_buffer *scratch,
    bags_bytes *out, bags_error *err);

/* ========================================================================
 * >>msgpack
 * MessagePack: the types msgpack and tree. On msgpack-c; a program that looks
 * into values includes <msgpack.h> as well.
 * ====================================================================== */

struct msgpack_object;

/*
 * A value is a BAGS_OBJECT, whose `object` points to a msgpack_object. A tree,
 * as granular writes it, is the same with arrays as leaves: see
 * bags_tree_array.
 *
 * Decoded strings, binaries and extensions view the blob, the rest stands in
 * the scratch: there is nothing to free, and what bags.h says of a value's life
 * holds for all of it.
 */
extern const bags_codec bags_codec_msgpack;
extern const bags_codec bags_codec_tree;

/*
 * Decode one msgpack value, as the codec does. *out borrows the blob and the
 * scratch: valid until one of them is gone or the scratch is used again.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_CORRUPT  not msgpack, or something follows the value
 *   BAGS_ERROR_LIMIT    arrays and maps nested above 512 levels (Python's
 *                       package writes up to 511)
 *   BAGS_ERROR_MEMORY
 *
 * Cost: O(blob), one allocation at the most: a msgpack_object for each value in
 * it, which are counted before memory is taken.
 */
bags_code bags_msgpack_read(bags_bytes blob, bags_buffer *scratch,
    const struct msgpack_object **out, bags_error *err);

/*
 * Encode an object in the shortest form of every number, text and length, as
 * Python's package does by default. *out borrows `scratch`: valid until it is
 * used again or freed. BAGS_OK, BAGS_ERROR_VALUE (of no known type) or
 * BAGS_ERROR_MEMORY.
 */
bags_code bags_msgpack_write(const struct msgpack_object *object,
    bags_buffer *scratch, bags_bytes *out, bags_error *err);

/*
 * An object, or a blob, as JSON in UTF-8 on one line, with ", " and ": " as
 * Python writes it. What JSON does not have becomes an object:
 *
 *   bin                    {"base64": "AAEC"}
 *   ext                    {"ext": 5, "base64": "AAEC"}
 *   str that is no UTF-8   {"str": {"base64": "AAEC"}}
 *   NaN, infinities        {"float": "NaN"}, "Infinity", "-Infinity"
 *   a map with a key that is no text   {"map": [[key, value], ...]}
 *
 * Integers have all their digits, and a double as many as it takes to read back
 * the same. Keys that a map has twice stand there twice.
 *
 * *json borrows `scratch`: valid until it is used again or freed. It is not
 * ended by 0. Returns BAGS_OK, an error of bags_msgpack_read or
 * BAGS_ERROR_LIMIT or BAGS_ERROR_VALUE (an object nested above 512 levels, or
 * of no known type).
 */
bags_code bags_msgpack_print(const struct msgpack_object *object,
    bags_buffer *scratch, bags_bytes *json, bags_error *err);
bags_code bags_msgpack_to_json(bags_bytes blob, bags_buffer *scratch,
    bags_bytes *json, bags_error *err);

/* Is this an array in a tree: ["_", dtype, [dimensions], bin]? */
bool bags_tree_is_array(const struct msgpack_object *object);

/*
 * An array of a tree as a BAGS_ARRAY. *value borrows what the object does, and
 * the scratch: valid until one of them is gone or the scratch is used again.
 * Elements are not copied if they are aligned and in this machine's order.
 *
 * Returns BAGS_OK or
 *   BAGS_ERROR_VALUE    not an array
 *   BAGS_ERROR_LIMIT    a dtype that bags_dtype does not have; too many
 *                       dimensions
 *   BAGS_ERROR_CORRUPT  its shape does not give its size
 *   BAGS_ERROR_MEMORY
 */
bags_code bags_tree_array(const struct msgpack_object *object,
    bags_buffer *scratch, bags_value *value, bags_error *err);

/*
 * The reverse: make *object an array of a tree, to be put into one that is
 * written. It borrows the value's elements and the scratch. BAGS_OK,
 * BAGS_ERROR_VALUE (not an array; above 2^32-1 bytes) or BAGS_ERROR_MEMORY.
 */
bags_code bags_tree_leaf(const bags_value *value, bags_buffer *scratch,
    struct msgpack_object *object, bags_error *err);

#ifdef __cplusplus
}
#endif

#endif /* BAGS_FORMATS_H */
