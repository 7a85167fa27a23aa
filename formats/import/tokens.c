/*
 * tokens.c - imports raw token files: .bin (only numbers) and .npy. No library;
 * formats/numpy.c reads .npy.
 *
 *     .bin             little-endian, with the dtype stated in the options
 *     .npy, 1-D        any integer dtype
 *     .npy, 2-D        each row is a document
 *
 * Each document is a datapoint with the field `tokens`: array(DTYPE,-1). A document
 * ends after the separator (and includes it) or at the end of its file, so tokens after
 * the last separator also form a document. Without a separator, a document has the
 * number of tokens stated in the options, or all tokens of its file. Together, the
 * documents contain all tokens of the files in order. An empty file has no document.
 *
 * Files are mapped: memory does not grow with their size.
 */
#include "import.h"

#include "codecs.h"
#include "try.h"

#include <inttypes.h>

typedef struct to_state {
    bags_dtype dtype;
    bags_buffer *scratch, *swapped; /* for reading .npy */
    bags_view tokens;               /* the tokens of the open file */
    size_t at;                      /* bytes of the file before the next document */
    uint64_t row;                   /* elements of a row, if the file is 2-D */
    uint64_t next;                  /* number of the next document */
} to_state;

static bool to_is_bin(const char *name) { return bags_import_ends(name, ".bin"); }

static bool to_is_file(const char *name) { return bags_import_ends(name, ".bin .npy"); }

static bags_code to_open_array(bags_source *s) {
    to_state *t = (to_state *)s->state;
    const bags_source_options *o = &s->options;
    bags_value array;
    FORMAT_TRY(bags_source_reserve(s, &t->scratch, 0));
    bags_code code = bags_npy_read(t->tokens, t->scratch, &array, s->err);
    if (code)
        return bags_prefix(s->err, code, "%s: ", s->where);
    bags_dtype dtype = array.kind == BAGS_KIND_ARRAY ? array.dtype : BAGS_DTYPE_NONE;
    if (dtype < BAGS_DTYPE_UINT8 || dtype > BAGS_DTYPE_INT64)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "its elements are not integers, as tokens are");
    if (array.dims != 1 && array.dims != 2)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "%" PRIu64 " dimensions (allowed: 1, or 2: each row is a document)",
            (uint64_t)array.dims);
    if (o->dtype && o->dtype != dtype)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "dtype mismatch (%s, expected %s); pass --type 'tokens=array(%s,-1)' to "
            "convert it",
            bags_dtype_name(dtype), bags_dtype_name(o->dtype),
            bags_dtype_name(o->dtype));
    if (t->dtype && t->dtype != dtype)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "dtype mismatch (%s, expected %s as in the first file)",
            bags_dtype_name(dtype), bags_dtype_name(t->dtype));
    t->dtype = dtype;
    if (array.dims == 2 && (o->has_separator || o->document))
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "2 dimensions: its rows are the documents; --separator and --document are "
            "of 1 dimension");
    t->row = array.dims == 2 ? array.shape[1] : 0;
    if (array.dims == 2 && !t->row && array.shape[0])
        return bags_source_fail(s, BAGS_ERROR_TYPE, "rows without elements");
    t->tokens.data = (const unsigned char *)array.data;
    t->tokens.size = array.size;
    if (!bags_little_endian()) { /* the value's elements are in native byte order */
        FORMAT_TRY(bags_source_reserve(s, &t->swapped, array.size));
        bags_swap_bytes(
            t->swapped->data, array.data, array.size, bags_dtype_swap(dtype));
        t->tokens.data = t->swapped->data;
    }
    return BAGS_OK;
}

/* Open the next file. Sets `ended` if there are no more. */
static bags_code to_open_next(bags_source *s) {
    to_state *t = (to_state *)s->state;
    bags_code code = bags_source_next_file(s);
    if (code || s->ended)
        return code;
    code = bags_source_map(s, &t->tokens);
    t->at = 0;
    t->row = 0;
    if (code || !to_is_bin(s->where))
        return code ? code : to_open_array(s);
    t->dtype = s->options.dtype;
    if (!t->dtype)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "the dtype of its tokens is unknown; pass --dtype, such as uint16");
    size_t element = bags_dtype_size(t->dtype);
    if (t->tokens.size % element)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes, not a multiple of %d as %s needs",
            (uint64_t)t->tokens.size, (int)element, bags_dtype_name(t->dtype));
    return BAGS_OK;
}

static bags_code to_open(bags_source *s) {
    to_state *t = (to_state *)s->state;
    const bags_source_options *o = &s->options;
    uint64_t any = UINT64_MAX;
    bags_code code = bags_source_files(s, to_is_file);
    const char *first = code ? "" : s->paths[0];
    size_t size = strlen(first);
    char *index = to_is_bin(first)
                      ? bags_source_format(s, "%.*s.idx", (int)size - 4, first)
                      : NULL;
    if (index && bags_import_kind(index, NULL) == BAGS_PATH_FILE)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "has an index of its documents; import %s", index);
    if (!code)
        code = to_open_next(s);
    if (code)
        return code;
    size_t bits = 8 * bags_dtype_size(t->dtype) - (t->dtype >= BAGS_DTYPE_INT8);
    if (o->has_separator && bits < 64 && o->separator >> bits)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "separator out of range for %s (%" PRIu64 ", maximum %" PRIu64 ")",
            bags_dtype_name(t->dtype), o->separator, (UINT64_C(1) << bits) - 1);
    s->length = BAGS_SOURCE_UNKNOWN;
    bags_source_field(
        s, "tokens", bags_source_number_type(s, t->dtype, 1, &any, false));
    return BAGS_OK;
}

/* The number of bytes up to the end of the first separator, or of all bytes if there is
 * none. */
static size_t to_find(bags_view in, size_t element, uint64_t separator) {
    for (size_t at = 0; at < in.size; at += element)
        if (separator == (element == 2 ? bags_load_bytes(in.data + at, 2, false)
                             : element == 4
                                 ? bags_load_bytes(in.data + at, 4, false)
                                 : bags_load_bytes(in.data + at, element, false)))
            return at + element;
    return in.size;
}

static bags_code to_read(bags_source *s, uint64_t index) {
    to_state *t = (to_state *)s->state;
    const bags_source_options *o = &s->options;
    size_t element = bags_dtype_size(t->dtype);
    bags_view left = {NULL, 0};
    for (; t->next <= index; t->next++) {
        t->at += left.size;
        for (s->ended = false; t->at == t->tokens.size;) {
            bags_code code = to_open_next(s);
            if (code || s->ended)
                return code;
        }
        left.data = t->tokens.data + t->at;
        left.size = t->tokens.size - t->at;
        uint64_t most = t->row ? t->row : o->document;
        if (o->has_separator)
            left.size = to_find(left, element, o->separator);
        else if (most && left.size / element > most)
            left.size = (size_t)most * element;
        if (left.size / element > INT32_MAX)
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "a document of %" PRIu64 " tokens (maximum %" PRId32
                "); pass --separator, or --document N",
                (uint64_t)(left.size / element), INT32_MAX);
    }
    t->at += left.size;
    s->values[0] = bags_blob(left.data, left.size);
    return BAGS_OK;
}

/* Never detected: many formats have .bin files in their directories, and a .npy file is
 * a single datapoint unless this importer is named. */
static bool to_detect(const char *path) {
    return bags_import_kind(path, NULL) != BAGS_PATH_DIRECTORY &&
           bags_import_has_files(path, to_is_bin);
}

const bags_importer bags_import_tokens = {
    "tokens", to_detect, sizeof(to_state), to_open, to_read, NULL};
