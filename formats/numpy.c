/*
 * numpy.c - the type npy: NumPy's .npy files. No library needed.
 *
 * Arguments: none. A value is a BAGS_KIND_ARRAY if bags_dtype has the elements'
 * dtype. For all other dtypes (long double, text, dates, structures) it is a
 * BAGS_KIND_OBJECT whose `object` points to a bags_npy (codecs.h).
 *
 * A .npy file:
 *
 *     93 N U M P Y | version: 2 bytes | header size: 2 bytes in version 1,
 *     4 in versions 2 and 3, little-endian | header | elements
 *
 * The header is a Python dictionary as text (Latin-1, in version 3 UTF-8),
 * padded with spaces so that the elements begin at a multiple of 64:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *     {'descr': [('pos', '<f4', (3,)), ('', '|V4'), (('title', 'id'), '<i8')],
 *      'fortran_order': False, 'shape': (10,), }
 *
 * This codec reads versions 1 to 3 in any byte order and axis order, and writes the
 * same bytes as numpy.save in NumPy 1.24. It rejects arrays of Python objects, headers
 * above 1 MiB, and a file size that contradicts the header.
 */
#include "codecs.h"
#include "text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NPY_MAX_HEADER ((size_t)1 << 20)
#define NPY_MAX_FIELDS ((size_t)4096)
#define NPY_MAX_DEPTH 32
#define NPY_ALIGN 64           /* elements begin at a multiple of this */
#define NPY_GROWTH 21          /* numpy.save reserves this many digits for shape[0] */
#define NPY_FRONT ((size_t)12) /* maximum size of magic, version and header size */

static const unsigned char npy_magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* *product *= factor. Returns false on overflow. */
static bool npy_multiply(size_t *product, uint64_t factor) {
    if (factor > SIZE_MAX || (factor && *product > SIZE_MAX / (size_t)factor))
        return false;
    *product *= (size_t)factor;
    return true;
}

/* ---- parse the header: a few forms of Python's literals ---- */

/*
 * The text is UTF-8, NUL-terminated and modified: strings are unescaped and terminated
 * in place. After the first failure, `at` points to the end, so that every function
 * returns immediately.
 *
 * `types` holds fields. The fields of open structures form a stack at the front; when a
 * structure ends, its fields move to the back:
 *
 *     | open fields --> |      unused      | <-- fields of closed structures |
 *                       ^ open             ^ closed
 */
typedef struct npy_parser {
    char *start, *at, *end;
    bags_npy_type *types;
    size_t open, closed;
    uint64_t *numbers; /* the next free slot for a dimension */
    bags_code code;
    bags_error *err;
} npy_parser;

static void npy_stop(npy_parser *p, bags_code code, const char *problem) {
    if (!p->code)
        p->code =
            bags_fail(p->err, code, "invalid .npy header: %s (character %" PRIu64 ")",
                problem, (uint64_t)(p->at - p->start));
    p->at = p->end;
}

/* Refuse a valid header that is not supported. */
static void npy_refuse(npy_parser *p, const char *problem) {
    if (!p->code)
        p->code = bags_fail(p->err, BAGS_ERROR_VALUE, "%s", problem);
    p->at = p->end;
}

static void npy_fail(npy_parser *p, const char *problem) {
    npy_stop(p, BAGS_ERROR_CORRUPT, problem);
}

static void npy_limit(npy_parser *p, const char *problem) {
    npy_stop(p, BAGS_ERROR_LIMIT, problem);
}

/* Skip spaces, and consume the next word if it is this one. */
static bool npy_take(npy_parser *p, const char *word) {
    size_t size = strlen(word);
    p->at += strspn(p->at, " \t\n\v\f\r");
    if (strncmp(p->at, word, size) != 0)
        return false;
    p->at += size;
    return true;
}

static void npy_expect(npy_parser *p, const char *word) {
    char problem[] = "expected '?'";
    problem[10] = *word;
    if (!npy_take(p, word))
        npy_fail(p, problem);
}

/* Unescape the sequence after a backslash; the result is shorter. Returns its end. */
static char *npy_escape(npy_parser *p, char *to) {
    static const char plain[] = "\\'\"nrt", value[] = "\\'\"\n\r\t";
    char c = *p->at;
    const char *found = c ? strchr(plain, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t point = 0;
    if (found) {
        *to = value[found - plain];
        p->at++;
        return to + 1;
    }
    if (!digits)
        npy_fail(p, "unknown escape in a string");
    else
        p->at++;
    for (; digits > 0 && isxdigit((unsigned char)*p->at); digits--) {
        c = *p->at++;
        point = point << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (digits > 0 || point == 0 || point > 0x10FFFF ||
        (point >= 0xD800 && point < 0xE000))
        npy_fail(p, "invalid escape in a string");
    return p->code ? to : (char *)format_utf8((unsigned char *)to, point);
}

static const char *npy_string(npy_parser *p) {
    if (!npy_take(p, "u'") && !npy_take(p, "u\"") && !npy_take(p, "'") &&
        !npy_take(p, "\"")) {
        npy_fail(p, "expected a string");
        return "";
    }
    char quote = p->at[-1], *text = p->at, *to = text;
    while (*p->at && *p->at != quote) {
        char c = *p->at++;
        if (c == '\\')
            to = npy_escape(p, to);
        else if (c == '\n' || c == '\r')
            npy_fail(p, "line break in a string");
        else
            *to++ = c;
    }
    if (!*p->at) {
        npy_fail(p, "unterminated string");
        return "";
    }
    p->at++;
    *to = 0;
    return text;
}

/*
 * Parse a tuple of numbers: (), (3,), (3, 4). Returns their product. As in NumPy, the
 * product of the nonzero dimensions must fit as well.
 */
static uint64_t npy_tuple(npy_parser *p, size_t *dims, const uint64_t **shape) {
    uint64_t product = 1, number = 0;
    bool comma = true, empty = false;
    *dims = 0;
    *shape = p->numbers;
    npy_expect(p, "(");
    while (!p->code && !npy_take(p, ")")) {
        const char *digits = p->at;
        bool zero = *digits == '0';
        if (!comma)
            npy_fail(p, "expected ',' or ')'");
        if (!format_decimal(&digits, NULL, &number) || (zero && digits > p->at + 1))
            npy_fail(p, "expected a decimal number below 2^64");
        else
            p->at += digits - p->at;
        if (*dims == BAGS_MAX_DIMS)
            npy_limit(p, "more than 64 dimensions");
        if (number > UINT64_MAX / product)
            npy_limit(p, "shape too large for the address space");
        if (p->code)
            return 0;
        empty = empty || number == 0;
        product *= number ? number : 1;
        *p->numbers++ = number;
        ++*dims;
        npy_take(p, "L"); /* appended by Python 2 */
        comma = npy_take(p, ",");
    }
    if (*dims == 1 && !comma)
        npy_fail(p, "expected ',' in a tuple of one number");
    return empty ? 0 : product;
}

/* ---- parse dtypes ---- */

/* Returns true if byte order matters for such elements. */
static bool npy_ordered(const bags_npy_type *type) {
    return type->item_size > 1 && type->kind != 'S' && type->kind != 'V';
}

/* Parse the unit of a date or time span: nothing, "[ns]", "[25s]". */
static bool npy_unit(const char *text, bags_npy_type *type) {
    static const char *const units[] = {
        "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"};
    uint64_t step = 1;
    if (!*text)
        return true;
    if (*text++ != '[' ||
        (isdigit((unsigned char)*text) && !format_decimal(&text, NULL, &step)))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t size = strlen(units[i]);
        if (strncmp(text, units[i], size) == 0 && !strcmp(text + size, "]"))
            type->unit = units[i];
    }
    type->step = (uint32_t)step;
    return *type->unit && step > 0 && step <= INT32_MAX;
}

/* Parse a dtype without fields that is missing from bags_dtype: "|S5", "<M8[ns]". */
static bool npy_simple(const char *text, bags_npy_type *type) {
    static const char sizes[] = " f12 f16 c24 c32 M8 m8 ";
    char code[16];
    uint64_t number = 0;
    bool big = *text == '>' || (*text != '<' && !bags_little_endian());
    text += *text && strchr("<>|=", *text);
    type->kind = *text;
    if (!*text++ || !format_decimal(&text, NULL, &number) || number > INT32_MAX)
        return false;
    type->item_size = (size_t)number;
    (void)snprintf(code, sizeof code, " %c%u ", type->kind, (unsigned)number);
    if (!strchr("SUV", type->kind) && !strstr(sizes, code))
        return false;
    if (type->kind == 'U' && !npy_multiply(&type->item_size, 4))
        return false;
    type->big_endian = big && npy_ordered(type);
    if (type->kind == 'M' || type->kind == 'm')
        return npy_unit(text, type);
    return *text == 0;
}

/*
 * Turn a type into an array of it, or into an array of arrays. The parser stores the
 * new shape right after the type's own shape, if any, but the new shape belongs in
 * front.
 */
static void npy_extend(npy_parser *p, bags_npy_type *type) {
    size_t dims = 0;
    const uint64_t *shape = NULL;
    uint64_t outer[BAGS_MAX_DIMS], length = npy_tuple(p, &dims, &shape);
    if (dims + type->dims > BAGS_MAX_DIMS)
        npy_limit(p, "more than 64 dimensions");
    if (!npy_multiply(&type->size, length))
        npy_limit(p, "shape too large for the address space");
    if (p->code)
        return;
    uint64_t *all = p->numbers - dims - type->dims;
    memcpy(outer, shape, dims * sizeof *all);
    memmove(all + dims, all, type->dims * sizeof *all);
    memcpy(all, outer, dims * sizeof *all);
    type->shape = all;
    type->dims += dims;
}

static void npy_structure(npy_parser *p, bags_npy_type *type, int depth);

/* Parse a type: a string that names a dtype, a list of fields, or a tuple of a type and
 * a shape. */
static void npy_type(npy_parser *p, bags_npy_type *type, int depth) {
    char problem[80];
    if (depth > NPY_MAX_DEPTH)
        npy_limit(p, "types nested above 32 levels");
    if (npy_take(p, "[")) {
        npy_structure(p, type, depth);
        return;
    }
    if (npy_take(p, "(")) {
        npy_type(p, type, depth + 1);
        npy_expect(p, ",");
        npy_extend(p, type);
        npy_take(p, ",");
        npy_expect(p, ")");
        return;
    }
    const char *text = npy_string(p);
    type->dtype = bags_dtype_parse(text, strlen(text), &type->big_endian);
    if (text[strspn(text, "<>|=")] == 'O' || !strcmp(text, "object")) {
        npy_refuse(p, "array of Python objects (dtype object); only numpy.load with "
                      "allow_pickle=True reads it");
    } else if (type->dtype) {
        type->kind = bags_dtype_code(type->dtype)[0];
        type->item_size = bags_dtype_size(type->dtype);
        type->big_endian = type->big_endian && npy_ordered(type);
    } else if (!npy_simple(text, type)) {
        (void)snprintf(problem, sizeof problem, "unknown dtype \"%.40s\"", text);
        npy_fail(p, problem);
    }
    type->size = type->item_size;
}

/* Parse a field: (name, type), (name, type, shape) or ((title, name), type, ...) */
static void npy_field(npy_parser *p, bags_npy_type *field, int depth) {
    npy_expect(p, "(");
    bool titled = npy_take(p, "(");
    if (titled) {
        field->title = npy_string(p);
        npy_expect(p, ",");
    }
    field->name = npy_string(p);
    if (titled) {
        npy_take(p, ",");
        npy_expect(p, ")");
    }
    npy_expect(p, ",");
    npy_type(p, field, depth);
    if (npy_take(p, ",") && *p->at != ')') {
        npy_extend(p, field);
        npy_take(p, ",");
    }
    npy_expect(p, ")");
}

/* True if a field of a structure has this name or title. */
static bool npy_has_field(const bags_npy_type *type, const char *name) {
    for (size_t i = 0; i < type->count; i++) {
        const bags_npy_type *field = &type->fields[i];
        if (!strcmp(field->name, name) || (field->title && !strcmp(field->title, name)))
            return true;
    }
    return false;
}

/* Append a field to the innermost open structure. */
static void npy_add(npy_parser *p, bags_npy_type *type, const bags_npy_type *field) {
    type->fields = p->types + (p->open - type->count);
    if (p->open == p->closed) /* full: every field has a "(", so this is the limit */
        npy_limit(p, "more than 4096 fields");
    else if (npy_has_field(type, field->name) ||
             (field->title && (npy_has_field(type, field->title) ||
                                  !strcmp(field->name, field->title))))
        npy_fail(p, "two fields have the same name");
    if (p->code)
        return;
    p->types[p->open++] = *field;
    type->count++;
}

/* Parse a list of fields after its opening bracket. Raw bytes without a name are
 * padding between fields. */
static void npy_structure(npy_parser *p, bags_npy_type *type, int depth) {
    bool comma = true;
    type->kind = 'V';
    type->structure = true;
    while (!p->code && !npy_take(p, "]")) {
        bags_npy_type field;
        memset(&field, 0, sizeof field);
        field.unit = "";
        field.offset = type->item_size;
        if (!comma)
            npy_fail(p, "expected ',' or ']'");
        npy_field(p, &field, depth + 1);
        if (field.size > (size_t)PTRDIFF_MAX - type->item_size)
            npy_limit(p, "structure too large for the address space");
        if (p->code)
            return;
        if (*field.name || field.title || field.kind != 'V' || field.structure)
            npy_add(p, type, &field);
        type->item_size += field.size;
        comma = npy_take(p, ",");
    }
    type->size = type->item_size;
    p->open -= type->count;
    p->closed -= type->count;
    type->fields = p->types + p->closed;
    memmove(p->types + p->closed, p->types + p->open, type->count * sizeof *p->types);
}

/* ---- read a file ---- */

/* The parts of a file. */
typedef struct npy_parts {
    int version;
    bool fortran;
    bags_view header, elements;
} npy_parts;

static bags_code npy_split(bags_view file, npy_parts *parts, bags_error *err) {
    if (file.size < 10 || memcmp(file.data, npy_magic, sizeof npy_magic) != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not a .npy file");
    parts->version = file.data[6];
    if (parts->version < 1 || parts->version > 3 || file.data[7] != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "unknown .npy version (%d.%d, maximum 3.0)", parts->version, file.data[7]);
    size_t front = parts->version == 1 ? 10 : NPY_FRONT;
    uint32_t size = file.size < front
                        ? 0
                        : (uint32_t)bags_load_bytes(file.data + 8, front - 8, false);
    if (file.size < front || size > file.size - front)
        return bags_fail(err, BAGS_ERROR_CORRUPT, ".npy file truncated in its header");
    if (size > NPY_MAX_HEADER)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            ".npy header too large (%" PRIu32 " bytes, maximum %" PRIu64 ")", size,
            (uint64_t)NPY_MAX_HEADER);
    parts->header.data = file.data + front;
    parts->header.size = size;
    parts->elements.data = file.data + front + size;
    parts->elements.size = file.size - front - size;
    return BAGS_OK;
}

/* Parse the header's dictionary. `copy` is its text, left unmodified. */
static void npy_dictionary(npy_parser *p, char *copy, bags_npy *npy, bool *fortran) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    unsigned seen = 0;
    bool comma = true;
    *fortran = false;
    npy_expect(p, "{");
    while (!p->code && !npy_take(p, "}")) {
        if (!comma)
            npy_fail(p, "expected ',' or '}'");
        const char *name = npy_string(p);
        unsigned key = 0;
        while (key < 3 && strcmp(name, keys[key]) != 0)
            key++;
        if (key == 3 || (seen & 1U << key))
            npy_fail(p, "expected descr, fortran_order and shape, each once");
        seen |= 1U << key;
        npy_expect(p, ":");
        npy_take(p, "");
        if (key == 0) {
            npy->descr = copy + (p->at - p->start);
            npy_type(p, &npy->type, 0);
            copy[p->at - p->start] = 0;
        } else if (key == 2) {
            npy->length = npy_tuple(p, &npy->dims, &npy->shape);
        } else if (npy_take(p, "True")) {
            *fortran = true;
        } else if (!npy_take(p, "False")) {
            npy_fail(p, "expected True or False");
        }
        comma = npy_take(p, ",");
    }
    npy_take(p, "");
    if (p->at != p->end)
        npy_fail(p, "trailing text");
    if (npy->type.dims)
        npy_fail(p, "the dtype of the elements is an array");
    if (seen != 7)
        npy_fail(p, "descr, fortran_order or shape is missing");
}

/*
 * Parse the header into the scratch: a bags_npy, numbers, types, two copies of the
 * text, then `more` bytes at *front. A field takes at least 8 characters and a number
 * 2, and a Latin-1 character becomes at most 2 bytes of UTF-8, so the header's size
 * limits the memory.
 */
static bags_code npy_parse(npy_parts *parts, size_t more, bags_buffer *scratch,
    size_t *front, bags_error *err) {
    const unsigned char *header = parts->header.data;
    size_t size = parts->header.size, numbers = size / 2 + 1;
    size_t types = size / 8 < NPY_MAX_FIELDS ? size / 8 + 1 : NPY_MAX_FIELDS;
    *front = sizeof(bags_npy) + numbers * sizeof(uint64_t) +
             types * sizeof(bags_npy_type) + 4 * size + 2;
    *front = (*front + 15) / 16 * 16;
    bags_code code = bags_buffer_reserve(scratch, *front + more, err);
    if (code)
        return code;
    bags_npy *npy = (bags_npy *)(void *)scratch->data;
    memset(npy, 0, sizeof *npy);
    npy->type.name = npy->type.unit = "";
    npy_parser p;
    memset(&p, 0, sizeof p);
    p.numbers = (uint64_t *)(void *)(npy + 1);
    p.types = (bags_npy_type *)(void *)(p.numbers + numbers);
    p.closed = types;
    p.start = p.at = p.end = (char *)(void *)(p.types + types);
    p.err = err;
    for (size_t i = 0; i < size; i++)
        if (parts->version < 3)
            p.end = (char *)format_utf8((unsigned char *)p.end, header[i]);
        else
            *p.end++ = (char)header[i];
    *p.end = 0;
    size_t used = (size_t)(p.end - p.start);
    char *copy = p.end + 1;
    memcpy(copy, p.start, used + 1);
    if (strlen(copy) != used || !bags_utf8_valid(copy, used, NULL))
        npy_fail(&p, "NUL or invalid UTF-8");
    npy_dictionary(&p, copy, npy, &parts->fortran);
    if (p.code)
        return p.code;
    npy->stride = npy->size = npy->type.item_size;
    npy->rows = parts->elements.data;
    if (npy_multiply(&npy->size, npy->length) && npy->size == parts->elements.size)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "size of .npy elements contradicts the header (%" PRIu64
        " bytes, expected %" PRIu64 " of %" PRIu64 " bytes)",
        (uint64_t)parts->elements.size, npy->length, (uint64_t)npy->stride);
}

/* Copy the elements of one axis and all following axes from Fortran order, where the
 * first axis varies fastest, to C order. Returns the end of `to`. */
static unsigned char *npy_transpose(unsigned char *to, const unsigned char *from,
    const bags_npy *npy, size_t axis, size_t step) {
    for (uint64_t i = 0; i < npy->shape[axis]; i++, from += step)
        if (axis + 1 < npy->dims) {
            to =
                npy_transpose(to, from, npy, axis + 1, step * (size_t)npy->shape[axis]);
        } else {
            memcpy(to, from, npy->stride);
            to += npy->stride;
        }
    return to;
}

/*
 * If elements must be copied, the header is parsed a second time, since the scratch may
 * move when it grows.
 */
bags_code bags_npy_read(
    bags_view file, bags_buffer *scratch, bags_value *value, bags_error *err) {
    npy_parts parts;
    size_t front = 0;
    memset(&parts, 0, sizeof parts);
    bags_code code = npy_split(file, &parts, err);
    if (code)
        return code;
    code = npy_parse(&parts, 0, scratch, &front, err);
    if (code)
        return code;
    bags_npy *npy = (bags_npy *)(void *)scratch->data;
    bool is_array = npy->type.dtype != BAGS_DTYPE_NONE;
    bool transpose = parts.fortran && npy->dims > 1 && npy->size > 0;
    bool swap = is_array && npy_ordered(&npy->type) &&
                npy->type.big_endian == bags_little_endian();
    bool move = is_array && (uintptr_t)npy->rows % npy->stride != 0;
    if (transpose || swap || move) {
        code = npy_parse(&parts, npy->size, scratch, &front, err);
        if (code)
            return code;
        npy = (bags_npy *)(void *)scratch->data;
        unsigned char *rows = scratch->data + front;
        if (transpose)
            npy_transpose(rows, npy->rows, npy, 0, npy->stride);
        else if (npy->size)
            memcpy(rows, npy->rows, npy->size);
        if (swap)
            bags_swap_bytes(rows, rows, npy->size, bags_dtype_swap(npy->type.dtype));
        npy->rows = rows;
    }
    if (is_array) {
        *value = bags_array(npy->type.dtype, npy->dims, npy->shape, npy->rows);
        return BAGS_OK;
    }
    memset(value, 0, sizeof *value);
    value->kind = BAGS_KIND_OBJECT;
    value->object = npy;
    return BAGS_OK;
}

/* ---- write ---- */

/* Get the array from a value. `descr` receives the dtype of a BAGS_KIND_ARRAY. */
static bags_code npy_from_value(
    const bags_value *value, char descr[16], bags_npy *npy, bags_error *err) {
    size_t item = bags_dtype_size(value->dtype);
    if (value->kind == BAGS_KIND_OBJECT && value->object) {
        *npy = *(const bags_npy *)value->object;
    } else if (value->kind == BAGS_KIND_ARRAY && item) {
        const char *order = bags_little_endian() ? "<" : ">";
        memset(npy, 0, sizeof *npy);
        (void)snprintf(descr, 16, "'%s%s'", item == 1 ? "|" : order,
            bags_dtype_code(value->dtype));
        npy->descr = descr;
        npy->dims = value->dims;
        npy->shape = value->shape;
        npy->rows = (const unsigned char *)value->data;
        npy->size = value->size;
    } else {
        return bags_fail(err, BAGS_ERROR_VALUE, "expected an array");
    }
    if (!npy->descr)
        return bags_fail(err, BAGS_ERROR_VALUE, "dtype is missing");
    if (npy->dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_VALUE, "more than 64 dimensions");
    if (npy->size > PTRDIFF_MAX)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "array too large for the address space");
    return npy->descr == descr ? format_array_check(value, err) : BAGS_OK;
}

/* Write version, size and padding around a header's text, `size` bytes of UTF-8 at
 * offset NPY_FRONT. The caller has reserved the memory. */
static bags_code npy_finish(
    unsigned char *data, size_t size, npy_parts *parts, bags_error *err) {
    unsigned char *text = data + NPY_FRONT, *to = text;
    bool latin1 = true;
    for (size_t i = 0; i < size; i++)
        latin1 = latin1 && text[i] < 0xC4; /* such bytes start characters above
                                            * U+00FF */
    for (size_t i = 0; i < size && latin1; i++) {
        bool pair = text[i] > 0x7F;
        *to++ = (unsigned char)(pair ? text[i] << 6 | (text[i + 1] & 0x3F) : text[i]);
        i += pair;
    }
    if (latin1)
        size = (size_t)(to - text);
    parts->version = !latin1 ? 3 : size + 11 > UINT16_MAX ? 2 : 1;
    size_t front = parts->version == 1 ? 10 : NPY_FRONT;
    size_t padding = NPY_ALIGN - (front + size + 1) % NPY_ALIGN;
    memset(text + size, ' ', padding);
    text[size + padding] = '\n';
    parts->header.data = text;
    parts->header.size = size += padding + 1;
    if (size > NPY_MAX_HEADER)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            ".npy header too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            (uint64_t)size, (uint64_t)NPY_MAX_HEADER);
    unsigned char *start = text - front;
    memcpy(start, npy_magic, sizeof npy_magic);
    start[6] = (unsigned char)parts->version;
    start[7] = 0;
    for (size_t i = 8; i < front; i++, size >>= 8)
        start[i] = (unsigned char)(size & 0xFF);
    return BAGS_OK;
}

/* Check that a dtype given as text by the caller is readable. */
static bags_code npy_check(
    npy_parts *parts, const bags_buffer *scratch, bags_error *err) {
    bags_buffer parsed;
    size_t front = 0;
    memset(&parsed, 0, sizeof parsed);
    parsed.resize = scratch->resize;
    parsed.user = scratch->user;
    bags_code code = npy_parse(parts, 0, &parsed, &front, err);
    bags_buffer_free(&parsed);
    if (code == BAGS_ERROR_CORRUPT)
        code = BAGS_ERROR_VALUE;
    if (code && err)
        err->code = code;
    return code;
}

/* Write the header's dictionary. Returns its size. */
static size_t npy_print(const bags_npy *npy, char *text, size_t size) {
    size_t at = (size_t)snprintf(
        text, size, "{'descr': %s, 'fortran_order': False, 'shape': (", npy->descr);
    for (size_t i = 0; i < npy->dims; i++)
        at += (size_t)snprintf(
            text + at, size - at, "%s%" PRIu64, i ? ", " : "", npy->shape[i]);
    int width = npy->dims ? snprintf(NULL, 0, "%" PRIu64, npy->shape[0]) : NPY_GROWTH;
    return at + (size_t)snprintf(text + at, size - at, "%s), }%*s",
                    npy->dims == 1 ? "," : "", NPY_GROWTH - width, "");
}

bags_code bags_npy_write(
    const bags_value *value, bags_buffer *scratch, bags_view *out, bags_error *err) {
    bags_npy npy;
    npy_parts parts;
    char descr[16];
    bags_code code = npy_from_value(value, descr, &npy, err);
    if (code)
        return code;
    size_t size = strlen(npy.descr) + 96 + 24 * npy.dims;
    if (!bags_utf8_valid(npy.descr, strlen(npy.descr), NULL))
        return bags_fail(err, BAGS_ERROR_VALUE, "dtype is not valid UTF-8");
    code = bags_buffer_reserve(scratch, NPY_FRONT + size + NPY_ALIGN, err);
    if (code)
        return code;
    size = npy_print(&npy, (char *)scratch->data + NPY_FRONT, size);
    memset(&parts, 0, sizeof parts);
    code = npy_finish(scratch->data, size, &parts, err);
    parts.elements.data = npy.rows;
    parts.elements.size = npy.size;
    if (!code && npy.descr != descr)
        code = npy_check(&parts, scratch, err);
    size_t end = NPY_FRONT + parts.header.size;
    if (!code)
        code = bags_buffer_reserve(scratch, end + npy.size, err);
    if (code)
        return code;
    if (npy.size)
        memcpy(scratch->data + end, npy.rows, npy.size);
    size_t start = parts.version == 1 ? 2 : 0;
    out->data = scratch->data + start;
    out->size = end - start + npy.size;
    return BAGS_OK;
}

/* ---- table ---- */

static bags_code npy_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    (void)state;
    return bags_npy_write(value, scratch, blob, err);
}

static bags_code npy_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    return bags_npy_read(blob, scratch, value, err);
}

const bags_codec bags_codec_npy = {
    "npy", NULL, npy_encode, npy_decode, NULL, NULL, NULL};
