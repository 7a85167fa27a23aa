/*
 * numpy.c - the type npy: arrays as NumPy's .npy files. Needs no library.
 *
 * Arguments: none. A value is a BAGS_KIND_ARRAY, or a BAGS_KIND_OBJECT with a bags_npy
 * (formats.h) for elements that bags_dtype cannot name.
 *
 * A .npy file:
 *
 *     93 N U M P Y | version: 2 bytes | size of the header: 2 bytes in version
 *     1, else 4, little-endian | header | elements
 *
 * The header is a Python dictionary in text (Latin-1; from version 3 UTF-8),
 * filled up with spaces so that the elements begin at a multiple of 64:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *     {'descr': [('pos', '<f4', (3,)), ('', '|V4'), (('title', 'id'), '<i8')],
 *      'fortran_order': False, 'shape': (10,), }
 *
 * Read: versions 1 to 3, in any order of bytes and of axes, and every dtype
 * but that of Python objects. Written: what numpy.save of NumPy 1.24 writes.
 */
#include "formats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NPY_MAX_HEADER ((size_t)1 << 20)
#define NPY_MAX_FIELDS ((size_t)4096)
#define NPY_MAX_DEPTH 32
#define NPY_ALIGN 64  /* elements begin at a multiple of this in the file */
#define NPY_GROWTH 21 /* numpy.save has room for so many digits of shape[0] */

static const unsigned char npy_magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

static bool npy_machine_big(void) {
    const uint16_t one = 1;
    unsigned char first = 0;
    memcpy(&first, &one, 1);
    return first == 0;
}

/* *product *= factor, if it fits. */
static bool npy_multiply(size_t *product, uint64_t factor) {
    if (factor > SIZE_MAX || (factor && *product > SIZE_MAX / (size_t)factor))
        return false;
    *product *= (size_t)factor;
    return true;
}

static void npy_clear(bags_npy_type *type) {
    memset(type, 0, sizeof *type);
    type->unit = type->name = "";
}

/* ---- the header's text: a few forms of Python's literals ---- */

/*
 * A header is parsed twice by the same functions: first to check it and to
 * count what it holds, with all rooms NULL, and then to fill the rooms. So
 * memory is taken once, exactly, and only for a header that is right.
 */
typedef struct npy_parser {
    const unsigned char *start, *at, *end;
    int version;
    bags_npy_type *types; /* fields of structures, each structure's together */
    uint64_t *numbers;    /* dimensions */
    char *text;           /* names, each ended by 0 */
    size_t types_used, numbers_used, text_used;
    bags_error *err;
} npy_parser;

static bags_code npy_fail(npy_parser *parser, const char *problem) {
    return bags_fail(parser->err, BAGS_ERROR_CORRUPT,
        "is a .npy file whose header is wrong at character %" PRIu64 ": %s",
        (uint64_t)(parser->at - parser->start), problem);
}

static bags_code npy_fail_dims(npy_parser *parser) {
    return bags_fail(parser->err, BAGS_ERROR_LIMIT,
        "is a .npy file with more than %d dimensions", BAGS_MAX_DIMS);
}

static bags_code npy_fail_size(npy_parser *parser) {
    return bags_fail(parser->err, BAGS_ERROR_LIMIT,
        "is a .npy file whose shape is larger than memory");
}

static void npy_space(npy_parser *parser) {
    while (parser->at < parser->end &&
           (*parser->at == ' ' || (*parser->at >= '\t' && *parser->at <= '\r')))
        parser->at++;
}

/* Is this the next character that is no space? Then it is taken. */
static bool npy_take(npy_parser *parser, char wanted) {
    npy_space(parser);
    if (parser->at == parser->end || *parser->at != (unsigned char)wanted)
        return false;
    parser->at++;
    return true;
}

static bool npy_digit(const npy_parser *parser) {
    return parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9';
}

static bool npy_word(npy_parser *parser, const char *word) {
    size_t size = strlen(word);
    npy_space(parser);
    if ((size_t)(parser->end - parser->at) < size ||
        memcmp(parser->at, word, size) != 0)
        return false;
    parser->at += size;
    return true;
}

static bags_code npy_number(npy_parser *parser, uint64_t *out) {
    npy_space(parser);
    if (!npy_digit(parser))
        return npy_fail(parser, "a number from 0 belongs here");
    bool zero = *parser->at == '0';
    uint64_t number = 0;
    size_t digits = 0;
    for (; npy_digit(parser); parser->at++, digits++) {
        uint64_t digit = (uint64_t)(*parser->at - '0');
        if (number > (UINT64_MAX - digit) / 10)
            return npy_fail(parser, "a number is above 2^64-1");
        number = number * 10 + digit;
    }
    if (zero && digits > 1)
        return npy_fail(parser, "a number begins with 0");
    /* Python 2 wrote its long integers with an L. */
    if (parser->version < 3 && parser->at < parser->end && *parser->at == 'L')
        parser->at++;
    *out = number;
    return BAGS_OK;
}

static void npy_put(npy_parser *parser, uint32_t byte) {
    if (parser->text)
        parser->text[parser->text_used] = (char)(unsigned char)byte;
    parser->text_used++;
}

static void npy_put_rune(npy_parser *parser, uint32_t rune) {
    if (rune < 0x80) {
        npy_put(parser, rune);
        return;
    }
    if (rune < 0x800) {
        npy_put(parser, 0xC0 | rune >> 6);
    } else if (rune < 0x10000) {
        npy_put(parser, 0xE0 | rune >> 12);
        npy_put(parser, 0x80 | (rune >> 6 & 0x3F));
    } else {
        npy_put(parser, 0xF0 | rune >> 18);
        npy_put(parser, 0x80 | (rune >> 12 & 0x3F));
        npy_put(parser, 0x80 | (rune >> 6 & 0x3F));
    }
    npy_put(parser, 0x80 | (rune & 0x3F));
}

/* The `digits` hexadecimal digits of an escape. */
static bags_code npy_hex(npy_parser *parser, int digits, uint32_t *rune) {
    *rune = 0;
    for (; digits > 0; digits--) {
        int c = parser->at < parser->end ? *parser->at++ : 0;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;
        if (digit == 16)
            return npy_fail(parser, "a wrong hexadecimal digit");
        *rune = *rune << 4 | digit;
    }
    if (*rune > 0x10FFFF || (*rune >= 0xD800 && *rune < 0xE000))
        return npy_fail(parser, "an escape that is no character");
    return BAGS_OK;
}

static bags_code npy_escape(npy_parser *parser) {
    int c = parser->at < parser->end ? *parser->at++ : 0;
    uint32_t rune = (uint32_t)c;
    bags_code code = BAGS_OK;
    if (c == 'x' || c == 'u' || c == 'U')
        code = npy_hex(parser, c == 'x' ? 2 : c == 'u' ? 4 : 8, &rune);
    else if (c == 'n' || c == 'r' || c == 't')
        rune = c == 'n' ? '\n' : c == 'r' ? '\r' : '\t';
    else if (c != '\\' && c != '\'' && c != '"')
        return npy_fail(parser, "an unknown escape in a string");
    if (!code && rune == 0)
        return npy_fail(parser, "a zero in a string");
    if (!code)
        npy_put_rune(parser, rune);
    return code;
}

/* Is the text between two quotes UTF-8? The built-in type knows. */
static bool npy_is_utf8(const unsigned char *data, size_t size) {
    const bags_view name = {(const unsigned char *)"utf8", 4};
    bags_view text;
    bags_value value;
    text.data = data;
    text.size = size;
    return bags_registry_find(NULL, name)->decode(NULL, text, NULL, &value,
               NULL) == BAGS_OK;
}

/* A string in quotes. It is put into the text, ended by 0; *out is NULL while
 * the header is only measured. */
static bags_code npy_string(npy_parser *parser, const char **out) {
    npy_space(parser);
    if (parser->at < parser->end && (*parser->at == 'u' || *parser->at == 'U'))
        parser->at++;
    if (parser->at == parser->end ||
        (*parser->at != '\'' && *parser->at != '"'))
        return npy_fail(parser, "a string belongs here");
    unsigned char quote = *parser->at++;
    const unsigned char *first = parser->at;
    *out = parser->text ? parser->text + parser->text_used : NULL;
    while (parser->at < parser->end && *parser->at != quote) {
        unsigned char c = *parser->at++;
        if (c == '\\') {
            bags_code code = npy_escape(parser);
            if (code)
                return code;
        } else if (c == 0 || c == '\n' || c == '\r') {
            return npy_fail(parser, "a string with a line's end or a zero");
        } else if (parser->version < 3) {
            npy_put_rune(parser, c);
        } else {
            npy_put(parser, c);
        }
    }
    if (parser->at == parser->end)
        return npy_fail(parser, "a string does not end");
    if (parser->version >= 3 &&
        !npy_is_utf8(first, (size_t)(parser->at - first)))
        return npy_fail(parser, "a string is not valid UTF-8");
    npy_put(parser, 0);
    parser->at++;
    return BAGS_OK;
}

/*
 * A tuple of numbers: (), (3,), (3, 4). They are put behind the other numbers;
 * *length is their product. As NumPy does, refuse what would be too large if
 * dimensions of 0 were not there.
 */
static bags_code npy_tuple(npy_parser *parser, size_t *dims, uint64_t *length) {
    if (!npy_take(parser, '('))
        return npy_fail(parser, "a tuple of numbers belongs here");
    uint64_t product = 1;
    bool comma = true, empty = false;
    for (*dims = 0; !npy_take(parser, ')'); ++*dims) {
        uint64_t number = 0;
        if (!comma)
            return npy_fail(parser, "a comma or ) belongs here");
        bags_code code = npy_number(parser, &number);
        if (code)
            return code;
        if (*dims == BAGS_MAX_DIMS)
            return npy_fail_dims(parser);
        if (number > UINT64_MAX / product)
            return npy_fail_size(parser);
        if (number == 0)
            empty = true;
        else
            product *= number;
        if (parser->numbers)
            parser->numbers[parser->numbers_used] = number;
        parser->numbers_used++;
        comma = npy_take(parser, ',');
    }
    if (*dims == 1 && !comma)
        return npy_fail(parser, "a shape of one number ends in a comma");
    *length = empty ? 0 : product;
    return BAGS_OK;
}

/* ---- dtypes ---- */

static const char *const npy_units[] = {"Y", "M", "W", "D", "h", "m", "s", "ms",
    "us", "ns", "ps", "fs", "as"};

/* The unit of a date: nothing, or "[ns]", "[25s]". */
static bool npy_unit(const char *text, bags_npy_type *type) {
    if (!*text)
        return true;
    if (*text++ != '[')
        return false;
    uint64_t step = 0;
    bool counted = *text >= '1' && *text <= '9';
    for (; step <= INT32_MAX && *text >= '0' && *text <= '9'; text++)
        step = step * 10 + (uint64_t)(*text - '0');
    size_t size = strcspn(text, "]");
    if (strcmp(text + size, "]") != 0 || step > INT32_MAX || (step && !counted))
        return false;
    for (size_t i = 0; i < sizeof npy_units / sizeof *npy_units; i++)
        if (strlen(npy_units[i]) == size &&
            memcmp(npy_units[i], text, size) == 0) {
            type->unit = npy_units[i];
            type->step = counted ? (uint32_t)step : 1;
            return true;
        }
    return false;
}

/* The number in a dtype, as 4 in "<f4"; *text is left behind it. */
static bool npy_item_size(const char **text, size_t *size) {
    const char *at = *text;
    uint64_t number = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > INT32_MAX / 10)
            return false;
        number = number * 10 + (uint64_t)(*at - '0');
    }
    *size = (size_t)number;
    bool some = at > *text;
    *text = at;
    return some && number <= INT32_MAX;
}

/* Does NumPy have elements of this kind and size? */
static bool npy_size_known(char kind, size_t size) {
    switch (kind) {
    case 'b':
        return size == 1;
    case 'i':
    case 'u':
        return size == 1 || size == 2 || size == 4 || size == 8;
    case 'f':
        return size == 2 || size == 4 || size == 8 || size == 12 || size == 16;
    case 'c':
        return size == 8 || size == 16 || size == 24 || size == 32;
    case 'M':
    case 'm':
        return size == 8;
    default:
        return kind == 'S' || kind == 'V' || kind == 'U';
    }
}

/* A dtype that has no fields, as "<f4", "|S5", "<M8[ns]". */
static bool npy_simple(const char *text, bags_npy_type *type) {
    bool big = *text == '>';
    bool native = *text != '<' && *text != '>';
    if (*text && strchr("<>|=", *text))
        text++;
    type->kind = *text;
    if (*text)
        text++;
    if (!npy_item_size(&text, &type->item_size) ||
        !npy_size_known(type->kind, type->item_size))
        return false;
    bool date = type->kind == 'M' || type->kind == 'm';
    if (date ? !npy_unit(text, type) : *text != 0)
        return false;
    size_t number = type->item_size; /* what the byte order is about */
    if (type->kind == 'U' && !npy_multiply(&type->item_size, 4))
        return false;
    bool ordered = number > 1 && type->kind != 'S' && type->kind != 'V';
    if (type->kind == 'U')
        ordered = number > 0;
    type->big_endian = ordered && (native ? npy_machine_big() : big);
    return true;
}

static bool npy_is_object(const char *text) {
    if (*text && strchr("<>|=", *text))
        text++;
    return *text == 'O';
}

/* A dtype's text, which has no escapes, copied to `room`. */
static bool npy_type_text(npy_parser *parser, char *room, size_t size) {
    npy_space(parser);
    if (parser->at < parser->end && (*parser->at == 'u' || *parser->at == 'U'))
        parser->at++;
    if (parser->at == parser->end ||
        (*parser->at != '\'' && *parser->at != '"'))
        return false;
    unsigned char quote = *parser->at++;
    for (size_t i = 0; i < size && parser->at < parser->end; i++) {
        unsigned char c = *parser->at++;
        room[i] = (char)(c == quote ? 0 : c);
        if (c == quote)
            return true;
    }
    return false;
}

static bags_code npy_simple_type(npy_parser *parser, bags_npy_type *type) {
    char text[32];
    if (!npy_type_text(parser, text, sizeof text))
        return npy_fail(parser, "this is no dtype");
    if (npy_is_object(text))
        return bags_fail(parser->err, BAGS_ERROR_VALUE,
            "is a .npy file of Python objects, which only Python can read");
    type->dtype = bags_dtype_parse(text, strlen(text), &type->big_endian);
    if (type->dtype) { /* other spellings too, as "float32" */
        type->kind = bags_dtype_name(type->dtype)[0];
        type->item_size = bags_dtype_size(type->dtype);
        type->big_endian = type->big_endian && type->item_size > 1;
    } else if (!npy_simple(text, type)) {
        return npy_fail(parser, "this is no dtype");
    }
    type->size = type->item_size;
    return BAGS_OK;
}

/*
 * A type becomes an array of it, or an array of an array. The shape is parsed
 * right behind the type's own, if it has one, and belongs before it.
 */
static bags_code npy_extend(npy_parser *parser, bags_npy_type *type) {
    size_t dims = 0;
    uint64_t length = 0, outer[BAGS_MAX_DIMS];
    bags_code code = npy_tuple(parser, &dims, &length);
    if (code)
        return code;
    if (dims + type->dims > BAGS_MAX_DIMS)
        return npy_fail_dims(parser);
    if (!npy_multiply(&type->size, length))
        return npy_fail_size(parser);
    if (parser->numbers) {
        uint64_t *all =
            parser->numbers + parser->numbers_used - dims - type->dims;
        memcpy(outer, all + type->dims, dims * sizeof *all);
        memmove(all + dims, all, type->dims * sizeof *all);
        memcpy(all, outer, dims * sizeof *all);
        type->shape = all;
    }
    type->dims += dims;
    return BAGS_OK;
}

static bags_code npy_structure(npy_parser *parser, bags_npy_type *type,
    int depth);

/* "<f4", a list of fields, or a tuple of such a type and a shape. */
static bags_code npy_type(npy_parser *parser, bags_npy_type *type, int depth) {
    if (depth > NPY_MAX_DEPTH)
        return bags_fail(parser->err, BAGS_ERROR_LIMIT,
            "is a .npy file with types nested above %d levels", NPY_MAX_DEPTH);
    if (npy_take(parser, '['))
        return npy_structure(parser, type, depth);
    if (!npy_take(parser, '('))
        return npy_simple_type(parser, type);
    bags_code code = npy_type(parser, type, depth + 1);
    if (code)
        return code;
    if (!npy_take(parser, ','))
        return npy_fail(parser, "a comma belongs here");
    code = npy_extend(parser, type);
    npy_take(parser, ',');
    if (!code && !npy_take(parser, ')'))
        return npy_fail(parser, "a ) belongs here");
    return code;
}

/* 'name', or ('title', 'name'). */
static bags_code npy_names(npy_parser *parser, bags_npy_type *field,
    bool *nameless) {
    bool titled = npy_take(parser, '(');
    bags_code code = BAGS_OK;
    if (titled) {
        code = npy_string(parser, &field->title);
        if (!code && !npy_take(parser, ','))
            return npy_fail(parser, "a comma and a name belong here");
    }
    size_t before = parser->text_used;
    if (!code)
        code = npy_string(parser, &field->name);
    *nameless = !titled && parser->text_used == before + 1;
    if (titled)
        npy_take(parser, ',');
    if (!code && titled && !npy_take(parser, ')'))
        return npy_fail(parser, "a ) belongs here");
    return code;
}

/* (name, type) or (name, type, shape). Raw bytes without a name are no field:
 * they fill the room between fields. */
static bags_code npy_field(npy_parser *parser, bags_npy_type *field,
    bool *filling, int depth) {
    if (!npy_take(parser, '('))
        return npy_fail(parser, "a ( belongs here");
    bool nameless = false;
    bags_code code = npy_names(parser, field, &nameless);
    if (!code && !npy_take(parser, ','))
        return npy_fail(parser, "a comma and a type belong here");
    if (!code)
        code = npy_type(parser, field, depth);
    npy_space(parser);
    if (!code && npy_take(parser, ',')) {
        npy_space(parser);
        if (parser->at < parser->end && *parser->at != ')')
            code = npy_extend(parser, field);
        npy_take(parser, ',');
    }
    if (!code && !npy_take(parser, ')'))
        return npy_fail(parser, "a ) belongs here");
    *filling = nameless && field->kind == 'V' && !field->structure;
    return code;
}

/* How many items a list has, at the most: commas outside of other brackets. */
static size_t npy_count(const npy_parser *parser) {
    size_t depth = 0, count = 1;
    for (const unsigned char *at = parser->at; at < parser->end; at++) {
        if (*at == '\'' || *at == '"') {
            unsigned char quote = *at++;
            for (; at < parser->end && *at != quote; at++)
                at += *at == '\\' && at + 1 < parser->end;
            if (at >= parser->end)
                break;
        } else if (*at == '[' || *at == '(') {
            depth++;
        } else if (*at == ']' || *at == ')') {
            if (depth-- == 0)
                break;
        } else if (*at == ',' && depth == 0) {
            count++;
        }
    }
    return count;
}

/* Append a field, unless its names are taken. Nothing is kept while the header
 * is only measured. */
static bags_code npy_add(npy_parser *parser, bags_npy_type *type,
    bags_npy_type *fields, const bags_npy_type *field) {
    if (fields) {
        type->fields = fields;
        if (bags_npy_field(type, field->name) ||
            (field->title && (bags_npy_field(type, field->title) ||
                                 strcmp(field->name, field->title) == 0)))
            return npy_fail(parser, "two fields have the same name");
        fields[type->count] = *field;
    }
    type->count++;
    return BAGS_OK;
}

/* A list of fields, behind its bracket. */
static bags_code npy_structure(npy_parser *parser, bags_npy_type *type,
    int depth) {
    size_t room = npy_count(parser);
    if (room > NPY_MAX_FIELDS - parser->types_used)
        return bags_fail(parser->err, BAGS_ERROR_LIMIT,
            "is a .npy file with more than %" PRIu64 " fields",
            (uint64_t)NPY_MAX_FIELDS);
    bags_npy_type *fields =
        parser->types ? parser->types + parser->types_used : NULL;
    parser->types_used += room;
    type->kind = 'V';
    type->structure = true;
    bool comma = true;
    for (size_t i = 0; !npy_take(parser, ']'); i++) {
        bags_npy_type field;
        bool filling = false;
        npy_clear(&field);
        field.offset = type->item_size;
        if (!comma || i == room)
            return npy_fail(parser, "a comma or ] belongs here");
        bags_code code = npy_field(parser, &field, &filling, depth + 1);
        if (!code && field.size > (size_t)PTRDIFF_MAX - type->item_size)
            return npy_fail_size(parser);
        if (!code && !filling)
            code = npy_add(parser, type, fields, &field);
        if (code)
            return code;
        type->item_size += field.size;
        comma = npy_take(parser, ',');
    }
    type->size = type->item_size;
    return BAGS_OK;
}

const bags_npy_type *bags_npy_field(const bags_npy_type *type,
    const char *name) {
    for (size_t i = 0; i < type->count; i++)
        if (strcmp(type->fields[i].name, name) == 0)
            return &type->fields[i];
    for (size_t i = 0; i < type->count; i++)
        if (type->fields[i].title &&
            strcmp(type->fields[i].title, name) == 0)
            return &type->fields[i];
    return NULL;
}

/* ---- the file ---- */

/* What a header says. */
typedef struct npy_header {
    bags_npy npy;
    bool fortran;
    size_t types, numbers, text; /* rooms that the parser needs */
} npy_header;

static bags_code npy_entry(npy_parser *parser, npy_header *header,
    unsigned *seen) {
    static const char *const keys[] = {"'descr'", "\"descr\"",
        "'fortran_order'", "\"fortran_order\"", "'shape'", "\"shape\""};
    unsigned key = 0;
    while (key < 6 && !npy_word(parser, keys[key]))
        key++;
    key /= 2;
    if (key == 3 || (*seen & 1u << key))
        return npy_fail(parser,
            "'descr', 'fortran_order' and 'shape' belong here, each once");
    *seen |= 1u << key;
    if (!npy_take(parser, ':'))
        return npy_fail(parser, "a colon belongs here");
    if (key == 0)
        return npy_type(parser, &header->npy.type, 0);
    if (key == 2) {
        header->npy.shape = parser->numbers
                                ? parser->numbers + parser->numbers_used
                                : NULL;
        return npy_tuple(parser, &header->npy.dims, &header->npy.length);
    }
    header->fortran = npy_word(parser, "True");
    if (!header->fortran && !npy_word(parser, "False"))
        return npy_fail(parser, "True or False belongs here");
    return BAGS_OK;
}

static bags_code npy_dictionary(npy_parser *parser, npy_header *header) {
    memset(header, 0, sizeof *header);
    npy_clear(&header->npy.type);
    if (!npy_take(parser, '{'))
        return npy_fail(parser, "a { belongs here");
    unsigned seen = 0;
    bool comma = true;
    while (!npy_take(parser, '}')) {
        if (!comma)
            return npy_fail(parser, "a comma or } belongs here");
        bags_code code = npy_entry(parser, header, &seen);
        if (code)
            return code;
        comma = npy_take(parser, ',');
    }
    npy_space(parser);
    if (seen != 7 || parser->at != parser->end)
        return npy_fail(parser, seen != 7 ? "it is not complete"
                                          : "something follows it");
    if (header->npy.type.dims)
        return npy_fail(parser, "its dtype is an array");
    return BAGS_OK;
}

/* Where a file's parts are. */
typedef struct npy_parts {
    int version;
    bags_view header, elements;
} npy_parts;

static bags_code npy_split(bags_view file, npy_parts *parts,
    bags_error *err) {
    if (file.size < 10 || memcmp(file.data, npy_magic, sizeof npy_magic) != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "is not a .npy file");
    parts->version = file.data[6];
    if (parts->version < 1 || parts->version > 3 || file.data[7] != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "is a .npy file of version %d.%d, which is unknown",
            parts->version, file.data[7]);
    size_t front = parts->version == 1 ? 10 : 12;
    uint32_t size = (uint32_t)file.data[8] | (uint32_t)file.data[9] << 8;
    if (front == 12 && file.size >= 12)
        size |= (uint32_t)file.data[10] << 16 | (uint32_t)file.data[11] << 24;
    if (file.size < front || size > file.size - front)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "is a .npy file that ends within its header");
    if (size > NPY_MAX_HEADER)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "is a .npy file with a header of %" PRIu32 " bytes, above %" PRIu64,
            size, (uint64_t)NPY_MAX_HEADER);
    parts->header.data = file.data + front;
    parts->header.size = size;
    parts->elements.data = file.data + front + size;
    parts->elements.size = file.size - front - size;
    return BAGS_OK;
}

/* Parse the header: to measure it if `rooms` is NULL, else to fill what that
 * measured. */
static bags_code npy_parse(const npy_parts *parts, unsigned char *rooms,
    const npy_header *measured, npy_header *header, bags_error *err) {
    npy_parser parser;
    memset(&parser, 0, sizeof parser);
    parser.version = parts->version;
    parser.start = parser.at = parts->header.data;
    parser.end = parser.start + parts->header.size;
    parser.err = err;
    if (rooms) {
        parser.numbers = (uint64_t *)(void *)rooms;
        rooms += measured->numbers * sizeof *parser.numbers;
        parser.types = (bags_npy_type *)(void *)rooms;
        rooms += measured->types * sizeof *parser.types;
        parser.text = (char *)rooms;
    }
    bags_code code = npy_dictionary(&parser, header);
    header->types = parser.types_used;
    header->numbers = parser.numbers_used;
    header->text = parser.text_used;
    return code;
}

/* The shape, the dtype and the elements must give the same size. */
static bags_code npy_check_size(npy_header *header, size_t given,
    bags_error *err) {
    bags_npy *npy = &header->npy;
    npy->stride = npy->type.item_size;
    npy->size = npy->stride;
    if (npy_multiply(&npy->size, npy->length) && npy->size == given)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "is a .npy file with %" PRIu64
        " bytes of elements; its header says %" PRIu64 " of %" PRIu64 " bytes",
        (uint64_t)given, npy->length, (uint64_t)npy->stride);
}

static void npy_copy_row(unsigned char *to, const unsigned char *from,
    uint64_t count, size_t stride, size_t size) {
    for (; count > 0; count--, to += size, from += stride)
        memcpy(to, from, size);
}

/* The same with sizes that the compiler knows, which it copies by register. */
static void npy_gather(unsigned char *to, const unsigned char *from,
    uint64_t count, size_t stride, size_t size) {
    switch (size) {
    case 1:
        npy_copy_row(to, from, count, stride, 1);
        break;
    case 2:
        npy_copy_row(to, from, count, stride, 2);
        break;
    case 4:
        npy_copy_row(to, from, count, stride, 4);
        break;
    case 8:
        npy_copy_row(to, from, count, stride, 8);
        break;
    default:
        npy_copy_row(to, from, count, stride, size);
    }
}

/* Copy elements from Fortran order, the first axis fastest, to C order: row by
 * row of the last axis, `place` counting the other axes. */
static void npy_transpose(unsigned char *to, const unsigned char *from,
    const bags_npy *npy) {
    uint64_t place[BAGS_MAX_DIMS] = {0};
    size_t strides[BAGS_MAX_DIMS];
    size_t last = npy->dims - 1, step = npy->stride;
    for (size_t i = 0; i < npy->dims; i++) {
        strides[i] = step;
        step *= (size_t)npy->shape[i];
    }
    for (size_t done = 0; done < npy->size;) {
        npy_gather(to + done, from, npy->shape[last], strides[last],
            npy->stride);
        done += (size_t)npy->shape[last] * npy->stride;
        for (size_t i = last; i-- > 0;) {
            from += strides[i];
            if (++place[i] < npy->shape[i])
                break;
            from -= strides[i] * (size_t)npy->shape[i];
            place[i] = 0;
        }
    }
}

/* Turn the bytes of every element around. */
static void npy_swap(unsigned char *data, size_t size, size_t element) {
    for (size_t at = 0; at < size; at += element)
        for (size_t i = 0, j = element - 1; i < j; i++, j--) {
            unsigned char byte = data[at + i];
            data[at + i] = data[at + j];
            data[at + j] = byte;
        }
}

static size_t npy_round_up(size_t size) {
    return (size + 15) / 16 * 16;
}

static bool npy_must_swap(const bags_npy *npy) {
    return npy->type.dtype && npy->stride > 1 &&
           npy->type.big_endian != npy_machine_big();
}

/* What is to be done with the elements before they can be handed out. */
typedef struct npy_plan {
    bool transpose, swap, copy;
} npy_plan;

static npy_plan npy_decide(const npy_header *header, bags_view elements,
    bool convert) {
    npy_plan plan;
    const bags_npy *npy = &header->npy;
    convert = convert && npy->type.dtype;
    plan.transpose = header->fortran && npy->dims > 1 && npy->size > 0;
    plan.swap = convert && npy_must_swap(npy);
    plan.copy = plan.transpose || plan.swap ||
                (convert && (uintptr_t)elements.data % npy->stride != 0);
    return plan;
}

static const unsigned char *npy_carry_out(npy_plan plan, const bags_npy *npy,
    bags_view elements, unsigned char *room) {
    if (!plan.copy)
        return elements.data;
    if (plan.transpose)
        npy_transpose(room, elements.data, npy);
    else if (elements.size)
        memcpy(room, elements.data, elements.size);
    if (plan.swap)
        npy_swap(room, elements.size, npy->stride);
    return room;
}

/*
 * Decode a file. In scratch stand the bags_npy, its numbers, types and names,
 * and behind them a copy of the elements if they cannot stay as they are. If
 * `convert`, elements of a bags_dtype will be aligned and in the order of this
 * machine.
 */
static bags_code npy_open(bags_view file, bool convert, bags_buffer *scratch,
    bags_npy **out, bags_error *err) {
    npy_parts parts;
    npy_header measured, header;
    memset(&parts, 0, sizeof parts);
    bags_code code = npy_split(file, &parts, err);
    if (!code)
        code = npy_parse(&parts, NULL, NULL, &measured, err);
    if (!code)
        code = npy_check_size(&measured, parts.elements.size, err);
    if (code)
        return code;
    npy_plan plan = npy_decide(&measured, parts.elements, convert);
    size_t first = npy_round_up(sizeof(bags_npy));
    size_t front = npy_round_up(first + measured.numbers * sizeof(uint64_t) +
                                measured.types * sizeof(bags_npy_type) +
                                measured.text);
    if (parts.elements.size > SIZE_MAX - front)
        return bags_fail(err, BAGS_ERROR_LIMIT, "is larger than memory");
    code = bags_buffer_reserve(scratch,
        front + (plan.copy ? parts.elements.size : 0), err);
    if (!code)
        code = npy_parse(&parts, scratch->data + first, &measured, &header,
            err);
    if (code)
        return code;
    header.npy.stride = measured.npy.stride;
    header.npy.size = measured.npy.size;
    header.npy.rows = npy_carry_out(plan, &header.npy, parts.elements,
        scratch->data + front);
    *out = (bags_npy *)(void *)scratch->data;
    **out = header.npy;
    return BAGS_OK;
}

bags_code bags_npy_view(bags_view file, bags_buffer *scratch,
    const bags_npy **out, bags_error *err) {
    bags_npy *npy = NULL;
    bags_code code = npy_open(file, false, scratch, &npy, err);
    if (!code)
        *out = npy;
    return code;
}

bags_code bags_npy_read(bags_view file, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    bags_npy *npy = NULL;
    bags_code code = npy_open(file, true, scratch, &npy, err);
    if (code)
        return code;
    if (npy->type.dtype) {
        *value = bags_array(npy->type.dtype, npy->dims, npy->shape, npy->rows);
        return BAGS_OK;
    }
    memset(value, 0, sizeof *value);
    value->kind = BAGS_KIND_OBJECT;
    value->object = npy;
    return BAGS_OK;
}

/* ---- writing ---- */

/* Text of a header, in UTF-8, behind room for what comes before it. */
typedef struct npy_writer {
    bags_buffer *out;
    size_t size;
    uint32_t highest; /* code point */
    bags_code code;   /* the first failure */
    bags_error *err;
} npy_writer;

static void npy_write(npy_writer *writer, const char *data, size_t size) {
    if (!writer->code)
        writer->code =
            bags_buffer_reserve(writer->out, writer->size + size, writer->err);
    if (writer->code || size == 0)
        return;
    memcpy(writer->out->data + writer->size, data, size);
    writer->size += size;
}

static void npy_write_text(npy_writer *writer, const char *text) {
    npy_write(writer, text, strlen(text));
}

static void npy_write_number(npy_writer *writer, uint64_t number) {
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    npy_write_text(writer, text);
}

static void npy_refuse(npy_writer *writer, const char *problem) {
    if (!writer->code)
        writer->code = bags_fail(writer->err, BAGS_ERROR_VALUE,
            "an array that cannot be a .npy file: %s", problem);
}

/* The code point that a valid UTF-8 text starts with. */
static uint32_t npy_rune(const char *text, size_t *size) {
    const unsigned char *at = (const unsigned char *)text;
    *size = at[0] < 0x80 ? 1 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
    uint32_t rune = *size == 1 ? at[0] : at[0] & (0xFFu >> (*size + 1));
    for (size_t i = 1; i < *size; i++)
        rune = rune << 6 | (at[i] & 0x3Fu);
    return rune;
}

static bool npy_printable(uint32_t rune) {
    return rune >= 0x20 && (rune < 0x7F || rune > 0xA0) && rune != 0xAD;
}

/* A character of a name as Python's repr shows it. (Above U+00FF all count as
 * printable, which Python reads as well.) */
static void npy_write_rune(npy_writer *writer, const char *text, char quote,
    size_t *size) {
    uint32_t rune = npy_rune(text, size);
    char escape[8];
    if (rune == (unsigned char)quote || rune == '\\')
        (void)snprintf(escape, sizeof escape, "\\%c", (char)rune);
    else if (rune == '\n' || rune == '\r' || rune == '\t')
        (void)snprintf(escape, sizeof escape, "\\%c",
            rune == '\n' ? 'n' : rune == '\r' ? 'r' : 't');
    else if (!npy_printable(rune))
        (void)snprintf(escape, sizeof escape, "\\x%02x", (unsigned)rune & 0xFF);
    else {
        if (rune > writer->highest)
            writer->highest = rune;
        npy_write(writer, text, *size);
        return;
    }
    npy_write_text(writer, escape);
}

static void npy_write_string(npy_writer *writer, const char *text) {
    if (!npy_is_utf8((const unsigned char *)text, strlen(text))) {
        npy_refuse(writer, "a field's name is not valid UTF-8");
        return;
    }
    char quote = strchr(text, '\'') && !strchr(text, '"') ? '"' : '\'';
    npy_write(writer, &quote, 1);
    for (size_t size = 0; *text; text += size)
        npy_write_rune(writer, text, quote, &size);
    npy_write(writer, &quote, 1);
}

static void npy_write_tuple(npy_writer *writer, size_t dims,
    const uint64_t *shape) {
    npy_write_text(writer, "(");
    for (size_t i = 0; i < dims; i++) {
        if (i)
            npy_write_text(writer, ", ");
        npy_write_number(writer, shape[i]);
    }
    npy_write_text(writer, dims == 1 ? ",)" : ")");
}

/* '<f4' */
static void npy_write_simple(npy_writer *writer, const bags_npy_type *type) {
    bool text = type->kind == 'U';
    bool ordered = text ? type->item_size > 0
                        : type->item_size > 1 && !strchr("SV", type->kind);
    if (!type->kind || !strchr("biufcSUVMm", type->kind) ||
        !npy_size_known(type->kind, type->item_size) ||
        (text && type->item_size % 4)) {
        npy_refuse(writer, "it has no such dtype");
        return;
    }
    char start[3] = {'\'', '|', type->kind};
    if (ordered || text)
        start[1] = type->big_endian ? '>' : '<';
    npy_write(writer, start, 3);
    npy_write_number(writer, type->item_size / (text ? 4 : 1));
    if (*type->unit) {
        npy_write_text(writer, "[");
        if (type->step > 1)
            npy_write_number(writer, type->step);
        npy_write_text(writer, type->unit);
        npy_write_text(writer, "]");
    }
    npy_write_text(writer, "'");
}

static void npy_write_filling(npy_writer *writer, size_t size) {
    npy_write_text(writer, "('', '|V");
    npy_write_number(writer, size);
    npy_write_text(writer, "')");
}

static void npy_write_type(npy_writer *writer, const bags_npy_type *type,
    int depth);

static void npy_write_field(npy_writer *writer, const bags_npy_type *field,
    int depth) {
    npy_write_text(writer, "(");
    if (field->title) {
        npy_write_text(writer, "(");
        npy_write_string(writer, field->title);
        npy_write_text(writer, ", ");
    }
    npy_write_string(writer, field->name);
    npy_write_text(writer, field->title ? "), " : ", ");
    npy_write_type(writer, field, depth);
    if (field->dims) {
        npy_write_text(writer, ", ");
        npy_write_tuple(writer, field->dims, field->shape);
    }
    npy_write_text(writer, ")");
}

static void npy_write_structure(npy_writer *writer, const bags_npy_type *type,
    int depth) {
    size_t end = 0;
    const char *comma = "";
    npy_write_text(writer, "[");
    for (size_t i = 0; i <= type->count && !writer->code; i++) {
        const bags_npy_type *field = i < type->count ? &type->fields[i] : NULL;
        size_t next = field ? field->offset : type->item_size;
        if (next < end) {
            npy_refuse(writer, "its fields overlap");
            return;
        }
        npy_write_text(writer, next > end || field ? comma : "");
        if (next > end)
            npy_write_filling(writer, next - end);
        npy_write_text(writer, next > end && field ? ", " : "");
        if (field)
            npy_write_field(writer, field, depth);
        end = next + (field ? field->size : 0);
        comma = ", ";
    }
    npy_write_text(writer, "]");
}

static void npy_write_type(npy_writer *writer, const bags_npy_type *type,
    int depth) {
    if (depth > NPY_MAX_DEPTH)
        npy_refuse(writer, "its fields are nested too deeply");
    else if (type->structure)
        npy_write_structure(writer, type, depth + 1);
    else
        npy_write_simple(writer, type);
}

/* The text up to the filling: what numpy.save makes of its dictionary, and the
 * room for a first dimension that grows. */
static void npy_write_dictionary(npy_writer *writer, const bags_npy *npy) {
    npy_write_text(writer, "{'descr': ");
    npy_write_type(writer, &npy->type, 0);
    npy_write_text(writer, ", 'fortran_order': False, 'shape': ");
    npy_write_tuple(writer, npy->dims, npy->shape);
    npy_write_text(writer, ", }");
    char digits[24];
    if (npy->dims) {
        int count =
            snprintf(digits, sizeof digits, "%" PRIu64, npy->shape[0]);
        for (; count < NPY_GROWTH; count++)
            npy_write_text(writer, " ");
    }
}

/* UTF-8 without code points above U+00FF to Latin-1, in place. */
static size_t npy_latin1(char *text, size_t size) {
    size_t used = 0;
    for (size_t at = 0, step = 0; at < size; at += step)
        text[used++] = (char)(unsigned char)npy_rune(text + at, &step);
    return used;
}

static size_t npy_filling(size_t front, size_t size) {
    return NPY_ALIGN - (front + size + 1) % NPY_ALIGN;
}

/* Put version and size before the text, and spaces behind it. The text begins
 * at NPY_FRONT. */
#define NPY_FRONT ((size_t)12)

static bags_code npy_finish_header(npy_writer *writer, bags_view *header) {
    size_t size = writer->size - NPY_FRONT, front = 10;
    int version = writer->highest > 0xFF ? 3 : 1;
    unsigned char *data = writer->out->data;
    if (version == 1)
        size = npy_latin1((char *)data + NPY_FRONT, size);
    if (version == 1 && size + 1 + npy_filling(front, size) > UINT16_MAX)
        version = 2;
    if (version > 1)
        front = NPY_FRONT;
    size_t filling = npy_filling(front, size), all = size + filling + 1;
    if (all > NPY_MAX_HEADER)
        return bags_fail(writer->err, BAGS_ERROR_LIMIT,
            "an array whose .npy header has %" PRIu64 " bytes", (uint64_t)all);
    writer->size = NPY_FRONT + size;
    bags_code code =
        bags_buffer_reserve(writer->out, writer->size + filling + 1,
            writer->err);
    if (code)
        return code;
    unsigned char *start = writer->out->data + NPY_FRONT - front;
    memset(writer->out->data + writer->size, ' ', filling);
    writer->out->data[writer->size + filling] = '\n';
    memcpy(start, npy_magic, sizeof npy_magic);
    start[6] = (unsigned char)version;
    start[7] = 0;
    for (size_t i = 8; i < front; i++)
        start[i] = (unsigned char)(all >> (8 * (i - 8)) & 0xFF);
    header->data = start;
    header->size = front + all;
    return BAGS_OK;
}

/* A BAGS_KIND_ARRAY as a bags_npy. */
static void npy_of_array(const bags_value *value, bags_npy *npy) {
    memset(npy, 0, sizeof *npy);
    npy_clear(&npy->type);
    npy->type.kind = bags_dtype_name(value->dtype)[0];
    npy->type.dtype = value->dtype;
    npy->type.item_size = npy->stride = bags_dtype_size(value->dtype);
    npy->type.big_endian = npy->stride > 1 && npy_machine_big();
    npy->dims = value->dims;
    npy->shape = value->shape;
    npy->rows = (const unsigned char *)value->data;
}

/* Fill in the size of what is to be written, checked. */
static bags_code npy_measure(bags_npy *npy, bags_error *err) {
    bool empty = false, fits = true;
    if (npy->dims > BAGS_MAX_DIMS)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array of more than %d dimensions", BAGS_MAX_DIMS);
    npy->stride = npy->size = npy->type.item_size;
    for (size_t i = 0; i < npy->dims; i++) {
        empty = empty || npy->shape[i] == 0;
        fits = fits && npy_multiply(&npy->size,
                           npy->shape[i] ? npy->shape[i] : 1);
    }
    if (!fits)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array whose shape is larger than memory");
    if (empty)
        npy->size = 0;
    return BAGS_OK;
}

/* The array that a value is, and its header. */
static bags_code npy_start(const bags_value *value, bags_buffer *scratch,
    bags_npy *npy, bags_view *header, bags_error *err) {
    if (value->kind == BAGS_KIND_ARRAY && bags_dtype_size(value->dtype))
        npy_of_array(value, npy);
    else if (value->kind == BAGS_KIND_OBJECT && value->object)
        *npy = *(const bags_npy *)value->object;
    else
        return bags_fail(err, BAGS_ERROR_VALUE, "takes an array");
    bags_code code = npy_measure(npy, err);
    if (code)
        return code;
    npy_writer writer;
    memset(&writer, 0, sizeof writer);
    writer.out = scratch;
    writer.size = NPY_FRONT;
    writer.err = err;
    writer.code = bags_buffer_reserve(scratch, 128, err);
    npy_write_dictionary(&writer, npy);
    return writer.code ? writer.code : npy_finish_header(&writer, header);
}

bags_code bags_npy_header(const bags_value *value, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    bags_npy npy;
    return npy_start(value, scratch, &npy, out, err);
}

bags_code bags_npy_write(const bags_value *value, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    bags_npy npy;
    bags_view header;
    bags_code code = npy_start(value, scratch, &npy, &header, err);
    if (code)
        return code;
    size_t front = (size_t)(header.data - scratch->data);
    size_t end = front + header.size;
    if (npy.size > SIZE_MAX - end)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "an array whose shape is larger than memory");
    code = bags_buffer_reserve(scratch, end + npy.size, err);
    if (code)
        return code;
    if (npy.size)
        memcpy(scratch->data + end, npy.rows, npy.size);
    out->data = scratch->data + front;
    out->size = header.size + npy.size;
    return BAGS_OK;
}

/* ---- the codec ---- */

static bags_code npy_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    return bags_npy_write(value, scratch, blob, err);
}

static bags_code npy_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    return bags_npy_read(blob, scratch, value, err);
}

const bags_codec bags_codec_npy = {"npy", NULL, npy_encode, npy_decode, NULL,
    NULL};
