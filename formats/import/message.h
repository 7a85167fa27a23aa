/*
 * message.h - decoded messages as fields, for mcap.c. Private.
 *
 * The members of a topic's messages form a tree of nodes. It is built from the schema,
 * or from all messages if these describe themselves (JSON). A decoder makes a tree of
 * values with the same shape. Each message is decoded twice: while the source is
 * opened, to learn what messages contain; and when it is read.
 *
 *     a member                        field, named TOPIC.MEMBER.MEMBER
 *     number                          i64[], u64[], array(DTYPE)[]
 *     text; bytes                     utf8[]; bytes[], jpeg[], ...: bags_import_guess
 *     list of numbers                 array(DTYPE,N)[], array(DTYPE,-1)[]
 *     list of text or bytes           utf8[], bytes[]: an item per element
 *     structure                       a field per member of it
 *     list of structures              a field per member, with an item per element
 *     list of lists of numbers        array(DTYPE,-1)[]: an item per inner list
 *     other lists in lists; a member  msgpack[]: an item per element of the outer list
 *     missing from an element;
 *     values of several kinds
 *
 * Datapoints of other topics have no items.
 */
#ifndef BAGS_IMPORT_MESSAGE_H
#define BAGS_IMPORT_MESSAGE_H

#include "import.h"
#include "try.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define MESSAGE_NODES 10000                /* maximum number of nodes of a source */
#define MESSAGE_VALUES ((uint64_t)1 << 24) /* maximum number of values of a message */
#define MESSAGE_DEPTH 64                   /* of a schema */
#define MESSAGE_EXACT ((uint64_t)1 << 53)  /* integers up to it are exact in float64 */

typedef enum message_kind {
    MESSAGE_ABSENT = 0, /* a value is missing; a node has no or several kinds */
    MESSAGE_NUMBER,
    MESSAGE_TEXT,
    MESSAGE_BYTES,
    MESSAGE_NUMBERS, /* of a value only: a list of numbers, contiguous */
    MESSAGE_LIST,
    MESSAGE_STRUCT
} message_kind;

/* Things that the values of a learned node were. */
enum {
    MESSAGE_SAW_BOOL = 1,
    MESSAGE_SAW_NEGATIVE = 2,
    MESSAGE_SAW_INTEGER = 4,
    MESSAGE_SAW_LONG = 8,  /* an integer above 2^53 in size */
    MESSAGE_SAW_HUGE = 16, /* an integer above 2^63-1 */
    MESSAGE_SAW_FLOAT = 32,
    MESSAGE_SAW_TEXT = 64,
    MESSAGE_SAW_LIST = 128,
    MESSAGE_SAW_STRUCT = 256
};

typedef enum message_plan {
    MESSAGE_PARTS, /* its members or items have fields */
    MESSAGE_WHOLE, /* one field, an item per value */
    MESSAGE_PACKED /* one field of msgpack */
} message_plan;

typedef struct message_node {
    const char *name, *path;
    message_kind kind;
    bags_dtype dtype;              /* of a number */
    struct message_node **members; /* of a structure: `member_count` */
    size_t member_count;
    struct message_node *item; /* of a list */
    uint64_t length;           /* of a list: its fixed length, or UINT64_MAX */
    uint64_t most; /* of a list or text: its maximum length, or UINT64_MAX */
    /* Learned from the messages. */
    bool learned; /* the kind is learned, too */
    bool absent;  /* some element of a list lacks this member */
    unsigned seen;
    uint64_t count;           /* number of structures */
    bags_import_column guess; /* of bytes */
    /* How it is stored. */
    message_plan plan;
    size_t field;
    /* Protocol buffers. */
    uint64_t number; /* field number */
    unsigned type;   /* FieldDescriptorProto.Type */
    bool optional;   /* a missing value differs from the default */
    bool required;
    size_t one_of; /* of a oneof: number of its first member, from 1; otherwise 0 */
    uint64_t in_one_of; /* number of the oneof in the schema, from 1, or 0 */
} message_node;

typedef struct message_value {
    unsigned char kind, dtype;
    size_t size; /* of text and bytes; number of numbers, items or members */
    union {
        unsigned char number[8]; /* in native byte order */
        const void *data;
        struct message_value *items;
    } is;
} message_value;

/* A message that is decoded. */
typedef struct message_call {
    bags_source *source;
    const char *topic;
    uint64_t index;
    uint64_t values; /* number of values made so far */
    bool learning;   /* the source is being opened */
    size_t *nodes;   /* number of nodes of the source */
} message_call;

/* ---- errors ---- */

/* Fail with "FILE: topic "T": message I: member "M": " and this text. `node` may be
 * NULL. */
static inline bags_code message_fail(const message_call *call, const message_node *node,
    bags_code code, const char *format, ...) BAGI_PRINTF(4, 5);

static inline bags_code message_fail(const message_call *call, const message_node *node,
    bags_code code, const char *format, ...) {
    bags_error *err = call->source->err;
    const char *member = node && node->path ? node->path + strlen(call->topic) : "";
    va_list arguments;
    va_start(arguments, format);
    bags_vfail(err, code, format, arguments);
    va_end(arguments);
    if (*member)
        bags_prefix(err, code, "member \"%.200s\": ", member + 1);
    return bags_prefix(err, code, "%s: topic \"%.200s\": message %" PRIu64 ": ",
        call->source->where, call->topic, call->index);
}

static inline bags_code message_truncated(
    const message_call *call, const message_node *node) {
    return message_fail(
        call, node, BAGS_ERROR_CORRUPT, "the message is shorter than its schema");
}

/* ---- nodes ---- */

/* Make a node that is valid until the source is closed, also while it reads a
 * message. `parent` is NULL for the root; `name` of `size` bytes is NULL for the item
 * of a list. NULL with an error if there are too many. */
static inline message_node *message_node_new(const message_call *call,
    const message_node *parent, const char *name, size_t size) {
    bags_source *s = call->source;
    bool opened = s->opened;
    if (++*call->nodes > MESSAGE_NODES) {
        message_fail(call, parent, BAGS_ERROR_LIMIT, "too many members (maximum %d)",
            MESSAGE_NODES);
        return NULL;
    }
    s->opened = false; /* the memory of the source */
    message_node *node = (message_node *)bags_source_alloc(s, 1, sizeof *node);
    if (node) {
        node->length = node->most = UINT64_MAX;
        node->name = name ? bags_source_text(s, name, size) : "";
        node->path = !parent ? call->topic
                     : name  ? bags_source_format(s, "%s.%s", parent->path,
                                  node->name ? node->name : "")
                             : parent->path;
    }
    s->opened = opened;
    if (node && node->name && node->path)
        return node;
    bags_source_no_memory(s);
    return NULL;
}

static inline bags_code message_add(
    const message_call *call, message_node *parent, message_node *member) {
    bags_source *s = call->source;
    bool opened = s->opened;
    if (!member)
        return s->err->code ? s->err->code : BAGS_ERROR_MEMORY;
    s->opened = false;
    message_node **grown = (message_node **)bags_source_grow(
        s, parent->members, parent->member_count, sizeof *grown);
    s->opened = opened;
    if (!grown)
        return BAGS_ERROR_MEMORY;
    parent->members = grown;
    grown[parent->member_count++] = member;
    return BAGS_OK;
}

/* ---- values ---- */

static inline bags_code message_count(
    message_call *call, const message_node *node, uint64_t more) {
    if (more <= MESSAGE_VALUES - call->values) {
        call->values += more;
        return BAGS_OK;
    }
    return message_fail(call, node, BAGS_ERROR_LIMIT,
        "too many values in a message (maximum %" PRIu64 ")", MESSAGE_VALUES);
}

/* Make the items of a list or structure, all absent. */
static inline bags_code message_items(message_call *call, const message_node *node,
    message_kind kind, uint64_t count, message_value *out) {
    FORMAT_TRY(message_count(call, node, count));
    out->kind = (unsigned char)kind;
    out->size = (size_t)count;
    out->is.items = (message_value *)bags_source_alloc(
        call->source, (size_t)count + 1, sizeof *out);
    return out->is.items ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static inline bags_code message_text(const message_call *call, const message_node *node,
    const void *data, size_t size, message_value *out) {
    size_t bad = 0;
    if (!bags_utf8_valid(data, size, &bad))
        return message_fail(call, node, BAGS_ERROR_CORRUPT,
            "invalid UTF-8 at byte %" PRIu64 " of a text", (uint64_t)bad);
    out->kind = MESSAGE_TEXT;
    out->size = size;
    out->is.data = size ? data : "";
    return BAGS_OK;
}

static inline void message_number(
    bags_dtype dtype, const void *element, message_value *out) {
    out->kind = MESSAGE_NUMBER;
    out->dtype = (unsigned char)dtype;
    memcpy(out->is.number, element, bags_dtype_size(dtype));
}

/* An integer or Boolean in native byte order. */
static inline bags_value message_integer(bags_dtype dtype, const void *element) {
    unsigned char bytes[8];
    size_t size = bags_dtype_size(dtype);
    bags_swap_bytes(bytes, element, size, bags_little_endian() ? 1 : size);
    return dtype == BAGS_DTYPE_BOOL ? bags_bool(bytes[0] != 0)
                                    : bags_import_integer(dtype, bytes);
}

static inline double message_real(bags_dtype dtype, const void *element) {
    float single;
    double number;
    if (dtype == BAGS_DTYPE_FLOAT32) {
        memcpy(&single, element, sizeof single);
        return (double)single;
    }
    if (dtype == BAGS_DTYPE_FLOAT64) {
        memcpy(&number, element, sizeof number);
        return number;
    }
    bags_value value = message_integer(dtype, element);
    return value.kind == BAGS_KIND_INT ? (double)value.sint : (double)value.uint;
}

/* ---- learning ---- */

static inline unsigned message_seen(const message_value *value) {
    if (value->kind == MESSAGE_TEXT)
        return MESSAGE_SAW_TEXT;
    if (value->kind != MESSAGE_NUMBER)
        return value->kind == MESSAGE_LIST ? MESSAGE_SAW_LIST : MESSAGE_SAW_STRUCT;
    if (value->dtype == BAGS_DTYPE_BOOL)
        return MESSAGE_SAW_BOOL;
    if (value->dtype == BAGS_DTYPE_FLOAT64)
        return MESSAGE_SAW_FLOAT;
    bags_value number = message_integer((bags_dtype)value->dtype, value->is.number);
    bool negative = number.kind == BAGS_KIND_INT && number.sint < 0;
    uint64_t size = negative ? -(uint64_t)number.sint : number.uint;
    unsigned seen = MESSAGE_SAW_INTEGER;
    if (negative)
        seen |= MESSAGE_SAW_NEGATIVE;
    else if (size > INT64_MAX)
        seen |= MESSAGE_SAW_HUGE;
    return size > MESSAGE_EXACT ? seen | MESSAGE_SAW_LONG : seen;
}

/* Note what a message contains. */
static inline void message_learn(
    message_node *node, const message_value *value, bool in_list) {
    if (value->kind == MESSAGE_ABSENT) {
        node->absent = node->absent || in_list;
        return;
    }
    if (node->learned)
        node->seen |= message_seen(value);
    if (value->kind == MESSAGE_BYTES ||
        (value->kind == MESSAGE_NUMBERS && value->dtype == BAGS_DTYPE_UINT8))
        bags_import_guess(&node->guess, value->is.data, value->size, false);
    for (size_t i = 0; value->kind == MESSAGE_LIST && i < value->size; i++)
        message_learn(node->item, &value->is.items[i], true);
    for (size_t i = 0; value->kind == MESSAGE_STRUCT && i < value->size; i++)
        message_learn(node->members[i], &value->is.items[i], in_list);
}

/* Decide on the kind of a learned node, and on those below it. */
static inline void message_settle(message_node *node) {
    const unsigned integers = MESSAGE_SAW_INTEGER | MESSAGE_SAW_NEGATIVE |
                              MESSAGE_SAW_LONG | MESSAGE_SAW_HUGE;
    const unsigned seen = node->seen;
    const unsigned mixed = MESSAGE_SAW_HUGE | MESSAGE_SAW_NEGATIVE;
    if (node->item)
        message_settle(node->item);
    for (size_t i = 0; i < node->member_count; i++)
        message_settle(node->members[i]);
    if (!node->learned)
        return;
    if (seen == MESSAGE_SAW_BOOL) {
        node->kind = MESSAGE_NUMBER;
        node->dtype = BAGS_DTYPE_BOOL;
    } else if (seen == MESSAGE_SAW_TEXT) {
        node->kind = MESSAGE_TEXT;
    } else if (seen == MESSAGE_SAW_LIST) {
        node->kind = MESSAGE_LIST;
    } else if (seen == MESSAGE_SAW_STRUCT) {
        node->kind = MESSAGE_STRUCT;
    } else if (seen && !(seen & ~integers) && (seen & mixed) != mixed) {
        node->kind = MESSAGE_NUMBER;
        node->dtype = seen & MESSAGE_SAW_HUGE ? BAGS_DTYPE_UINT64 : BAGS_DTYPE_INT64;
    } else if (seen & MESSAGE_SAW_FLOAT && !(seen & ~(integers | MESSAGE_SAW_FLOAT)) &&
               !(seen & MESSAGE_SAW_LONG)) {
        node->kind = MESSAGE_NUMBER;
        node->dtype = BAGS_DTYPE_FLOAT64;
    }
}

/* ---- fields ---- */

static inline void message_field(
    bags_source *s, message_node *node, message_plan plan, const char *type) {
    node->plan = plan;
    node->field = s->count;
    bags_source_field(s, node->path, type);
}

/* Add the fields of a node and the nodes below it. */
static inline void message_fields(bags_source *s, message_node *node, bool in_list) {
    const message_node *item = node->item;
    uint64_t length = node->length;
    node->plan = MESSAGE_PARTS;
    if (node->kind == MESSAGE_ABSENT || (in_list && node->absent)) {
        message_field(s, node, MESSAGE_PACKED, "msgpack[]");
    } else if (node->kind == MESSAGE_NUMBER) {
        message_field(s, node, MESSAGE_WHOLE,
            bags_source_number_type(s, node->dtype, 0, NULL, true));
    } else if (node->kind == MESSAGE_TEXT) {
        message_field(s, node, MESSAGE_WHOLE, "utf8[]");
    } else if (node->kind == MESSAGE_BYTES) {
        message_field(s, node, MESSAGE_WHOLE,
            bags_source_format(s, "%s[]", bags_import_guessed(&node->guess)));
    } else if (node->kind == MESSAGE_STRUCT) {
        for (size_t i = 0; i < node->member_count; i++)
            message_fields(s, node->members[i], in_list);
    } else if (item->kind == MESSAGE_NUMBER && !item->absent) {
        bool file = length == UINT64_MAX && node->guess.magic;
        message_field(s, node, MESSAGE_WHOLE,
            file ? bags_source_format(s, "%s[]", node->guess.magic)
                 : bags_source_number_type(s, item->dtype, 1, &length, true));
    } else if (in_list) {
        message_field(s, node, MESSAGE_PACKED, "msgpack[]");
    } else {
        message_fields(s, node->item, true);
    }
}

/* ---- msgpack ---- */

typedef struct message_packer {
    unsigned char *data; /* NULL: only the size is counted */
    size_t size;
} message_packer;

static inline void message_pack_byte(message_packer *to, unsigned byte) {
    if (to->data)
        to->data[to->size] = (unsigned char)byte;
    to->size++;
}

static inline void message_pack_bytes(
    message_packer *to, const void *data, size_t size) {
    if (to->data && size)
        memcpy(to->data + to->size, data, size);
    to->size += size;
}

/* A byte that states a size of `bytes` bytes, and a big-endian number. */
static inline void message_pack_number(
    message_packer *to, unsigned head, uint64_t number, unsigned bytes) {
    message_pack_byte(to, head);
    while (bytes-- > 0)
        message_pack_byte(to, (unsigned)(number >> (8 * bytes) & 255));
}

/* The head of text, bytes, a list or a map, in the shortest form. `heads` are for sizes
 * in the byte itself (up to `most`), in 1 byte, 2 and 4; 0: there is none. */
static inline void message_pack_head(
    message_packer *to, const unsigned char heads[4], uint64_t most, uint64_t size) {
    if (heads[0] && size <= most)
        message_pack_byte(to, heads[0] | (unsigned)size);
    else if (heads[1] && size < 256)
        message_pack_number(to, heads[1], size, 1);
    else if (size < 65536)
        message_pack_number(to, heads[2], size, 2);
    else
        message_pack_number(to, heads[3], size, 4);
}

static inline void message_pack_negative(message_packer *to, int64_t number) {
    uint64_t bits = (uint64_t)number;
    if (number >= -32)
        message_pack_byte(to, (unsigned)(bits & 255));
    else if (number >= INT8_MIN)
        message_pack_number(to, 0xD0, bits, 1);
    else if (number >= INT16_MIN)
        message_pack_number(to, 0xD1, bits, 2);
    else if (number >= INT32_MIN)
        message_pack_number(to, 0xD2, bits, 4);
    else
        message_pack_number(to, 0xD3, bits, 8);
}

static inline void message_pack_element(
    message_packer *to, bags_dtype dtype, const void *element) {
    if (dtype == BAGS_DTYPE_FLOAT32 || dtype == BAGS_DTYPE_FLOAT64) {
        double real = message_real(dtype, element);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        message_pack_number(to, 0xCB, bits, 8);
        return;
    }
    bags_value number = message_integer(dtype, element);
    uint64_t size = number.uint;
    if (number.kind == BAGS_KIND_BOOL)
        message_pack_byte(to, size ? 0xC3 : 0xC2);
    else if (number.kind == BAGS_KIND_INT && number.sint < 0)
        message_pack_negative(to, number.sint);
    else if (size < 128)
        message_pack_byte(to, (unsigned)size);
    else
        message_pack_number(to,
            size < 256           ? 0xCC
            : size < 65536       ? 0xCD
            : size <= UINT32_MAX ? 0xCE
                                 : 0xCF,
            size,
            size < 256           ? 1
            : size < 65536       ? 2
            : size <= UINT32_MAX ? 4
                                 : 8);
}

static inline void message_pack_text(
    message_packer *to, const void *text, size_t size) {
    static const unsigned char heads[4] = {0xA0, 0xD9, 0xDA, 0xDB};
    message_pack_head(to, heads, 31, size);
    message_pack_bytes(to, text, size);
}

static inline void message_pack(
    message_packer *to, const message_node *node, const message_value *value) {
    static const unsigned char list[4] = {0x90, 0, 0xDC, 0xDD};
    static const unsigned char map[4] = {0x80, 0, 0xDE, 0xDF};
    static const unsigned char bin[4] = {0, 0xC4, 0xC5, 0xC6};
    size_t members = 0;
    switch ((message_kind)value->kind) {
    case MESSAGE_NUMBER:
        message_pack_element(to, (bags_dtype)value->dtype, value->is.number);
        return;
    case MESSAGE_TEXT:
        message_pack_text(to, value->is.data, value->size);
        return;
    case MESSAGE_BYTES:
        message_pack_head(to, bin, 0, value->size);
        message_pack_bytes(to, value->is.data, value->size);
        return;
    case MESSAGE_NUMBERS:
        message_pack_head(to, list, 15, value->size);
        for (size_t i = 0; i < value->size; i++)
            message_pack_element(to, (bags_dtype)value->dtype,
                (const char *)value->is.data +
                    i * bags_dtype_size((bags_dtype)value->dtype));
        return;
    case MESSAGE_LIST:
        message_pack_head(to, list, 15, value->size);
        for (size_t i = 0; i < value->size; i++)
            message_pack(to, node->item, &value->is.items[i]);
        return;
    case MESSAGE_STRUCT:
        for (size_t i = 0; i < value->size; i++)
            members += value->is.items[i].kind != MESSAGE_ABSENT;
        message_pack_head(to, map, 15, members);
        for (size_t i = 0; i < value->size; i++) {
            if (value->is.items[i].kind == MESSAGE_ABSENT)
                continue;
            message_pack_text(
                to, node->members[i]->name, strlen(node->members[i]->name));
            message_pack(to, node->members[i], &value->is.items[i]);
        }
        return;
    case MESSAGE_ABSENT:
    default:
        message_pack_byte(to, 0xC0);
    }
}

/* ---- reading ---- */

/* The entries of a message. items[i] are the values of field i. */
typedef struct message_sink {
    bags_source *source;
    bags_value **items;
} message_sink;

static inline bags_code message_emit(
    const message_sink *to, size_t field, bags_value value) {
    bags_entry *entry = &to->source->entries[field];
    bags_value *grown = (bags_value *)bags_source_grow(
        to->source, to->items[field], entry->count, sizeof *grown);
    if (!grown)
        return BAGS_ERROR_MEMORY;
    grown[entry->count++] = value;
    entry->values = to->items[field] = grown;
    return BAGS_OK;
}

/* Convert a number to the dtype of its node. The dtype can represent it. */
static inline void message_convert(
    const message_value *value, bags_dtype dtype, void *element) {
    double real;
    if (dtype == (bags_dtype)value->dtype) {
        memcpy(element, value->is.number, bags_dtype_size(dtype));
    } else if (dtype == BAGS_DTYPE_FLOAT64) {
        real = message_real((bags_dtype)value->dtype, value->is.number);
        memcpy(element, &real, sizeof real);
    } else { /* from int64 to uint64 */
        memcpy(element, value->is.number, 8);
    }
}

static inline bags_code message_emit_number(
    const message_sink *to, const message_node *node, const message_value *value) {
    unsigned char *element = (unsigned char *)bags_source_alloc(to->source, 1, 8);
    if (!element)
        return BAGS_ERROR_MEMORY;
    message_convert(value, node->dtype, element);
    if (bags_import_is_integer(node->dtype))
        return message_emit(to, node->field, message_integer(node->dtype, element));
    return message_emit(to, node->field, bags_array(node->dtype, 0, NULL, element));
}

static inline bags_code message_emit_numbers(
    const message_sink *to, const message_node *node, const message_value *value) {
    bags_dtype dtype = node->item->dtype;
    size_t size = bags_dtype_size(dtype);
    uint64_t *shape = (uint64_t *)bags_source_alloc(to->source, 1, sizeof *shape);
    const void *data = value->is.data;
    if (!shape)
        return BAGS_ERROR_MEMORY;
    *shape = value->size;
    if (value->kind == MESSAGE_LIST) {
        unsigned char *made =
            (unsigned char *)bags_source_alloc(to->source, value->size + 1, size);
        for (size_t i = 0; made && i < value->size; i++)
            message_convert(&value->is.items[i], dtype, made + i * size);
        data = made;
    }
    if (!data)
        return BAGS_ERROR_MEMORY;
    return message_emit(to, node->field,
        node->length == UINT64_MAX && node->guess.magic
            ? bags_blob(data, value->size)
            : bags_array(dtype, 1, shape, data));
}

static inline bags_code message_emit_packed(
    const message_sink *to, const message_node *node, const message_value *value) {
    message_packer packer = {NULL, 0};
    message_pack(&packer, node, value);
    packer.data = (unsigned char *)bags_source_alloc(to->source, packer.size, 1);
    if (!packer.data)
        return BAGS_ERROR_MEMORY;
    packer.size = 0;
    message_pack(&packer, node, value);
    return message_emit(to, node->field, bags_blob(packer.data, packer.size));
}

/* Set the entries of a message's fields. */
static inline bags_code message_fill(const message_sink *to, const message_node *node,
    const message_value *value, bool in_list) {
    if (node->plan == MESSAGE_PACKED)
        return value->kind == MESSAGE_ABSENT && !in_list
                   ? BAGS_OK
                   : message_emit_packed(to, node, value);
    for (size_t i = 0;
         node->plan == MESSAGE_PARTS && value->kind == MESSAGE_LIST && i < value->size;
         i++)
        FORMAT_TRY(message_fill(to, node->item, &value->is.items[i], true));
    for (size_t i = 0; value->kind == MESSAGE_STRUCT && i < value->size; i++)
        FORMAT_TRY(message_fill(to, node->members[i], &value->is.items[i], in_list));
    if (node->plan == MESSAGE_PARTS || value->kind == MESSAGE_ABSENT)
        return BAGS_OK;
    if (value->kind == MESSAGE_NUMBER)
        return message_emit_number(to, node, value);
    if (value->kind == MESSAGE_TEXT)
        return message_emit(to, node->field,
            bags_utf8_sized((const char *)value->is.data, value->size));
    if (value->kind == MESSAGE_BYTES)
        return message_emit(to, node->field, bags_blob(value->is.data, value->size));
    return message_emit_numbers(to, node, value);
}

#endif /* BAGS_IMPORT_MESSAGE_H */
