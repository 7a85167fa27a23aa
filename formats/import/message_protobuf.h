/*
 * message_protobuf.h - messages of protocol buffers, with a FileDescriptorSet as their
 * schema: proto2 and proto3. Private.
 *
 * A member without presence that is missing has its default value, 0 or empty. Other
 * members that are missing have no value. Enums are their numbers. Groups and editions
 * are rejected, and messages with fields that their schema lacks.
 */
#ifndef BAGS_IMPORT_MESSAGE_PROTOBUF_H
#define BAGS_IMPORT_MESSAGE_PROTOBUF_H

#include "message.h"

#include "wire.h"

#include <stdlib.h>

/* FieldDescriptorProto.Type */
enum {
    PROTOBUF_DOUBLE = 1,
    PROTOBUF_FLOAT,
    PROTOBUF_INT64,
    PROTOBUF_UINT64,
    PROTOBUF_INT32,
    PROTOBUF_FIXED64,
    PROTOBUF_FIXED32,
    PROTOBUF_BOOL,
    PROTOBUF_STRING,
    PROTOBUF_GROUP,
    PROTOBUF_MESSAGE,
    PROTOBUF_BYTES,
    PROTOBUF_UINT32,
    PROTOBUF_ENUM,
    PROTOBUF_SFIXED32,
    PROTOBUF_SFIXED64,
    PROTOBUF_SINT32,
    PROTOBUF_SINT64,
    PROTOBUF_TYPES
};

static const struct protobuf_scalar {
    bags_dtype dtype;
    unsigned wire;
} protobuf_scalars[PROTOBUF_TYPES] = {
    {BAGS_DTYPE_NONE, 0},
    {BAGS_DTYPE_FLOAT64, WIRE_8},
    {BAGS_DTYPE_FLOAT32, WIRE_4},
    {BAGS_DTYPE_INT64, WIRE_VARINT},
    {BAGS_DTYPE_UINT64, WIRE_VARINT},
    {BAGS_DTYPE_INT32, WIRE_VARINT},
    {BAGS_DTYPE_UINT64, WIRE_8},
    {BAGS_DTYPE_UINT32, WIRE_4},
    {BAGS_DTYPE_BOOL, WIRE_VARINT},
    {BAGS_DTYPE_NONE, WIRE_BYTES},
    {BAGS_DTYPE_NONE, 0},
    {BAGS_DTYPE_NONE, WIRE_BYTES},
    {BAGS_DTYPE_NONE, WIRE_BYTES},
    {BAGS_DTYPE_UINT32, WIRE_VARINT},
    {BAGS_DTYPE_INT32, WIRE_VARINT},
    {BAGS_DTYPE_INT32, WIRE_4},
    {BAGS_DTYPE_INT64, WIRE_8},
    {BAGS_DTYPE_INT32, WIRE_VARINT},
    {BAGS_DTYPE_INT64, WIRE_VARINT},
};

/* A message type of the schema. */
typedef struct protobuf_type {
    const char *name;     /* with its package and outer types */
    bags_view descriptor; /* DescriptorProto */
    bool proto3, in_progress;
} protobuf_type;

typedef struct protobuf_schema {
    const message_call *call;
    protobuf_type *types;
    size_t count;
} protobuf_schema;

/* ---- schemas ---- */

static inline bags_code protobuf_bad_schema(
    const message_call *call, const char *what) {
    return message_fail(call, NULL, BAGS_ERROR_CORRUPT, "invalid schema: %s", what);
}

/* Get the last part with this number: bytes or a number. False if the message is
 * invalid; *found reports whether there is one. */
static inline bool protobuf_get(
    bags_view from, uint64_t number, wire_part *out, bool *found) {
    wire_part part;
    *found = false;
    while (from.size > 0) {
        if (!wire_split(&from, &part))
            return false;
        if (part.number == number) {
            *out = part;
            *found = true;
        }
    }
    return true;
}

static inline uint64_t protobuf_number(bags_view from, uint64_t number) {
    wire_part part = {0, 0, 0, {NULL, 0}};
    bool found;
    return protobuf_get(from, number, &part, &found) && found &&
                   part.wire == WIRE_VARINT
               ? part.varint
               : 0;
}

static inline bags_view protobuf_bytes(bags_view from, uint64_t number) {
    wire_part part;
    bags_view bytes = {(const unsigned char *)"", 0};
    bool found;
    if (protobuf_get(from, number, &part, &found) && found && part.wire == WIRE_BYTES)
        bytes = part.bytes;
    return bytes;
}

/* Add a message type and those in it. */
static inline bags_code protobuf_add_types(protobuf_schema *schema, bags_view message,
    const char *outer, bool proto3, unsigned depth) {
    bags_source *s = schema->call->source;
    bags_view name = protobuf_bytes(message, 1);
    wire_part part;
    bool unused;
    if (!protobuf_get(message, 1, &part, &unused) || depth > MESSAGE_DEPTH ||
        memchr(name.data, 0, name.size))
        return protobuf_bad_schema(schema->call, "not a descriptor of a message");
    schema->types = (protobuf_type *)bags_source_grow(
        s, schema->types, schema->count, sizeof *schema->types);
    char *full = bags_source_format(s, "%s%s%.*s", outer, *outer ? "." : "",
        (int)name.size, (const char *)name.data);
    if (!schema->types || !full)
        return BAGS_ERROR_MEMORY;
    protobuf_type *type = &schema->types[schema->count++];
    type->name = full;
    type->descriptor = message;
    type->proto3 = proto3;
    while (message.size > 0 && wire_split(&message, &part))
        if (part.number == 3 && part.wire == WIRE_BYTES)
            FORMAT_TRY(protobuf_add_types(schema, part.bytes, full, proto3, depth + 1));
    return BAGS_OK;
}

static inline bags_code protobuf_add_file(protobuf_schema *schema, bags_view file) {
    bags_view syntax = protobuf_bytes(file, 12), package = protobuf_bytes(file, 2);
    bool proto3 = syntax.size == 6 && !memcmp(syntax.data, "proto3", 6);
    bool proto2 =
        syntax.size == 0 || (syntax.size == 6 && !memcmp(syntax.data, "proto2", 6));
    wire_part part;
    bool unused;
    if (!protobuf_get(file, 1, &part, &unused) || memchr(package.data, 0, package.size))
        return protobuf_bad_schema(schema->call, "not a FileDescriptorSet");
    if (!proto2 && !proto3)
        return message_fail(schema->call, NULL, BAGS_ERROR_TYPE,
            "syntax of the schema not supported (%.*s)",
            (int)(syntax.size < 40 ? syntax.size : 40), (const char *)syntax.data);
    char *outer = bags_source_text(schema->call->source, package.data, package.size);
    if (!outer)
        return BAGS_ERROR_MEMORY;
    while (file.size > 0 && wire_split(&file, &part))
        if (part.number == 4 && part.wire == WIRE_BYTES)
            FORMAT_TRY(protobuf_add_types(schema, part.bytes, outer, proto3, 0));
    return BAGS_OK;
}

static inline int protobuf_compare(const void *left, const void *right) {
    const message_node *a = *(const message_node *const *)left;
    const message_node *b = *(const message_node *const *)right;
    return a->number < b->number ? -1 : a->number > b->number;
}

static inline bags_code protobuf_members(
    protobuf_schema *schema, message_node *node, protobuf_type *type, unsigned depth);

/* Set the type of a node that is no list. */
static inline bags_code protobuf_resolve(
    protobuf_schema *schema, message_node *node, bags_view field, unsigned depth) {
    bags_view name = protobuf_bytes(field, 6);
    node->kind = MESSAGE_NUMBER;
    node->dtype = protobuf_scalars[node->type].dtype;
    if (node->type == PROTOBUF_STRING || node->type == PROTOBUF_BYTES)
        node->kind = node->type == PROTOBUF_STRING ? MESSAGE_TEXT : MESSAGE_BYTES;
    if (node->type != PROTOBUF_MESSAGE)
        return BAGS_OK;
    if (name.size && name.data[0] == '.') {
        name.data++;
        name.size--;
    }
    for (size_t i = 0; i < schema->count; i++)
        if (strlen(schema->types[i].name) == name.size &&
            !memcmp(schema->types[i].name, name.data, name.size))
            return protobuf_members(schema, node, &schema->types[i], depth + 1);
    return message_fail(schema->call, node, BAGS_ERROR_CORRUPT,
        "the schema lacks the type \"%.*s\"", (int)(name.size < 100 ? name.size : 100),
        (const char *)name.data);
}

/* Add the member that a FieldDescriptorProto defines. */
static inline bags_code protobuf_member(protobuf_schema *schema, message_node *node,
    bags_view field, const protobuf_type *type, bool is_map, unsigned depth) {
    const message_call *call = schema->call;
    bags_view name = protobuf_bytes(field, 1);
    uint64_t label = protobuf_number(field, 4), kind = protobuf_number(field, 5);
    wire_part part = {0, 0, 0, {NULL, 0}};
    bool in_one_of = false;
    if (!protobuf_get(field, 9, &part, &in_one_of) || name.size == 0 ||
        memchr(name.data, 0, name.size))
        return protobuf_bad_schema(call, "not a descriptor of a field");
    message_node *member =
        message_node_new(call, node, (const char *)name.data, name.size);
    FORMAT_TRY(message_add(call, node, member));
    member->number = protobuf_number(field, 3);
    member->required = label == 2;
    member->one_of = in_one_of;
    member->in_one_of = in_one_of ? part.varint + 1 : 0;
    member->optional =
        !is_map && (in_one_of || kind == PROTOBUF_MESSAGE || !type->proto3);
    if (kind == 0 || kind >= PROTOBUF_TYPES || kind == PROTOBUF_GROUP)
        return message_fail(call, member, BAGS_ERROR_TYPE,
            kind == PROTOBUF_GROUP ? "groups are not supported"
                                   : "type not supported (%" PRIu64 ")",
            kind);
    member->type = (unsigned)kind;
    if (label == 3) {
        member->kind = MESSAGE_LIST;
        member->item = message_node_new(call, member, NULL, 0);
        if (!member->item)
            return call->source->err->code;
        member->item->type = (unsigned)kind;
        member = member->item;
    }
    return protobuf_resolve(schema, member, field, depth);
}

static inline bags_code protobuf_members(
    protobuf_schema *schema, message_node *node, protobuf_type *type, unsigned depth) {
    bags_view rest = type->descriptor;
    bool is_map = protobuf_number(protobuf_bytes(rest, 7), 7) != 0;
    wire_part part;
    node->kind = MESSAGE_STRUCT;
    if (type->in_progress || depth > MESSAGE_DEPTH)
        return message_fail(schema->call, node, BAGS_ERROR_TYPE,
            type->in_progress ? "the schema is recursive (%.100s)"
                              : "the schema is too deep (%.100s)",
            type->name);
    type->in_progress = true;
    while (rest.size > 0 && wire_split(&rest, &part))
        if (part.number == 2 && part.wire == WIRE_BYTES)
            FORMAT_TRY(protobuf_member(schema, node, part.bytes, type, is_map, depth));
    type->in_progress = false;
    if (node->member_count)
        qsort(
            node->members, node->member_count, sizeof *node->members, protobuf_compare);
    for (size_t i = 1; i < node->member_count; i++)
        if (node->members[i - 1]->number == node->members[i]->number)
            return protobuf_bad_schema(schema->call, "two fields have one number");
    /* Refer to each oneof by its first member. */
    for (size_t i = node->member_count; i-- > 0;)
        for (size_t k = 0; k <= i && node->members[i]->one_of; k++)
            if (node->members[k]->in_one_of == node->members[i]->in_one_of) {
                node->members[i]->one_of = k + 1;
                break;
            }
    return BAGS_OK;
}

/* Build the nodes of a schema. The types' memory may move while types are added, and
 * not afterwards. */
static inline bags_code protobuf_nodes(
    const message_call *call, bags_view name, bags_view set, message_node *root) {
    protobuf_schema schema = {call, NULL, 0};
    wire_part part;
    while (set.size > 0) {
        if (!wire_split(&set, &part))
            return protobuf_bad_schema(call, "not a FileDescriptorSet");
        if (part.number == 1 && part.wire == WIRE_BYTES)
            FORMAT_TRY(protobuf_add_file(&schema, part.bytes));
    }
    for (size_t i = 0; i < schema.count; i++)
        if (strlen(schema.types[i].name) == name.size &&
            !memcmp(schema.types[i].name, name.data, name.size))
            return protobuf_members(&schema, root, &schema.types[i], 0);
    return message_fail(call, NULL, BAGS_ERROR_CORRUPT,
        "the schema lacks the type \"%.*s\"", (int)(name.size < 100 ? name.size : 100),
        (const char *)name.data);
}

/* ---- messages ---- */

/* The parts of a member, in the order of the message. */
typedef struct protobuf_part {
    wire_part part;
    struct protobuf_part *next;
} protobuf_part;

typedef struct protobuf_parts {
    protobuf_part *first, *last;
    size_t count;
    size_t chosen; /* of a oneof's first member: the current member from 1, or 0 */
} protobuf_parts;

static inline bags_code protobuf_read_message(
    message_call *call, const message_node *node, bags_view bytes, message_value *out);

static inline bags_code protobuf_wrong_wire(
    const message_call *call, const message_node *node, unsigned wire) {
    return message_fail(call, node, BAGS_ERROR_CORRUPT,
        "not encoded as in the schema (wire type %u)", wire);
}

/* Convert a number to an element of the node's dtype. False if it is out of range. */
static inline bool protobuf_element(
    const message_node *node, uint64_t number, void *element) {
    int64_t zigzag = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
    int64_t sint = node->type == PROTOBUF_SINT32 || node->type == PROTOBUF_SINT64
                       ? zigzag
                       : (int64_t)number;
    unsigned wire = protobuf_scalars[node->type].wire;
    bool four = bags_dtype_size(node->dtype) == 4;
    uint32_t word = four ? (uint32_t)(uint64_t)sint : 0;
    if (node->dtype == BAGS_DTYPE_BOOL) {
        *(unsigned char *)element = number != 0;
        return true;
    }
    if (four)
        memcpy(element, &word, sizeof word);
    else
        memcpy(element, &sint, sizeof sint);
    if (wire != WIRE_VARINT || !four)
        return true;
    return node->dtype == BAGS_DTYPE_UINT32 ? number <= UINT32_MAX
                                            : sint >= INT32_MIN && sint <= INT32_MAX;
}

/* Take the next number of a part: its only one, or of packed ones. */
static inline bags_code protobuf_take(const message_call *call,
    const message_node *node, wire_part *part, bool packed, void *element) {
    unsigned wire = protobuf_scalars[node->type].wire;
    uint64_t number = part->varint;
    size_t size = wire == WIRE_8 ? 8 : 4;
    if (!packed && part->wire != wire)
        return protobuf_wrong_wire(call, node, part->wire);
    if (wire == WIRE_VARINT) {
        if (packed && !wire_varint(&part->bytes, &number))
            return message_truncated(call, node);
    } else {
        if (part->bytes.size < size)
            return message_truncated(call, node);
        number = bags_load_bytes(part->bytes.data, size, false);
        part->bytes.data += size;
        part->bytes.size -= size;
    }
    if (!protobuf_element(node, number, element))
        return message_fail(call, node, BAGS_ERROR_CORRUPT,
            "number out of range for %s (%" PRId64 ")", bags_dtype_name(node->dtype),
            (int64_t)number);
    return BAGS_OK;
}

/* The number of numbers in the parts of a list. The last byte of a varint is below
 * 128. */
static inline uint64_t protobuf_count(
    const message_node *item, const protobuf_parts *parts) {
    unsigned wire = protobuf_scalars[item->type].wire;
    uint64_t count = 0;
    for (const protobuf_part *at = parts->first; at; at = at->next) {
        bags_view bytes = at->part.bytes;
        if (at->part.wire != WIRE_BYTES)
            count++;
        else if (wire != WIRE_VARINT)
            count += bytes.size / (wire == WIRE_8 ? 8 : 4);
        for (size_t i = 0;
             at->part.wire == WIRE_BYTES && wire == WIRE_VARINT && i < bytes.size; i++)
            count += bytes.data[i] < 128;
    }
    return count;
}

static inline bags_code protobuf_read_numbers(message_call *call,
    const message_node *node, const protobuf_parts *parts, message_value *out) {
    const message_node *item = node->item;
    size_t size = bags_dtype_size(item->dtype);
    uint64_t count = protobuf_count(item, parts);
    unsigned char *to =
        (unsigned char *)bags_source_alloc(call->source, (size_t)count + 1, size);
    if (!to)
        return BAGS_ERROR_MEMORY;
    out->kind = MESSAGE_NUMBERS;
    out->dtype = (unsigned char)item->dtype;
    out->size = 0;
    out->is.data = to;
    for (protobuf_part *at = parts->first; at; at = at->next) {
        wire_part part = at->part;
        bool packed = part.wire == WIRE_BYTES;
        while (!packed || part.bytes.size > 0) {
            FORMAT_TRY(protobuf_take(call, item, &part, packed, to + size * out->size));
            out->size++;
            if (!packed)
                break;
        }
    }
    return BAGS_OK;
}

/* Merge the parts of a message: joined, their bytes are one message. */
static inline bags_code protobuf_join(
    message_call *call, const protobuf_parts *parts, bags_view *out) {
    size_t size = 0;
    if (parts->count == 1) {
        *out = parts->first->part.bytes;
        return BAGS_OK;
    }
    for (const protobuf_part *at = parts->first; at; at = at->next)
        size += at->part.bytes.size;
    unsigned char *to = (unsigned char *)bags_source_alloc(call->source, size + 1, 1);
    if (!to)
        return BAGS_ERROR_MEMORY;
    out->data = to;
    out->size = size;
    for (const protobuf_part *at = parts->first; at; at = at->next) {
        if (at->part.bytes.size)
            memcpy(to, at->part.bytes.data, at->part.bytes.size);
        to += at->part.bytes.size;
    }
    return BAGS_OK;
}

/* Read a value that is no number of a list. */
static inline bags_code protobuf_read_one(
    message_call *call, const message_node *node, wire_part part, message_value *out) {
    unsigned char element[8];
    if (node->kind == MESSAGE_NUMBER) {
        FORMAT_TRY(protobuf_take(call, node, &part, false, element));
        message_number(node->dtype, element, out);
        return BAGS_OK;
    }
    if (part.wire != WIRE_BYTES)
        return protobuf_wrong_wire(call, node, part.wire);
    if (node->kind == MESSAGE_STRUCT)
        return protobuf_read_message(call, node, part.bytes, out);
    if (node->kind == MESSAGE_TEXT)
        return message_text(call, node, part.bytes.data, part.bytes.size, out);
    out->kind = MESSAGE_BYTES;
    out->size = part.bytes.size;
    out->is.data = part.bytes.data;
    return BAGS_OK;
}

static inline bags_code protobuf_read_member(message_call *call,
    const message_node *node, const protobuf_parts *parts, message_value *out) {
    wire_part none;
    memset(&none, 0, sizeof none);
    none.bytes.data = (const unsigned char *)"\0\0\0\0\0\0\0";
    if (node->kind == MESSAGE_LIST && node->item->kind == MESSAGE_NUMBER)
        return protobuf_read_numbers(call, node, parts, out);
    if (node->kind == MESSAGE_LIST) {
        size_t i = 0;
        FORMAT_TRY(message_items(call, node, MESSAGE_LIST, parts->count, out));
        for (const protobuf_part *at = parts->first; at; at = at->next)
            FORMAT_TRY(
                protobuf_read_one(call, node->item, at->part, &out->is.items[i++]));
        return BAGS_OK;
    }
    if (parts->count > 0) {
        wire_part part = parts->last->part;
        if (node->kind == MESSAGE_STRUCT) {
            for (const protobuf_part *at = parts->first; at; at = at->next)
                if (at->part.wire != WIRE_BYTES)
                    return protobuf_wrong_wire(call, node, at->part.wire);
            FORMAT_TRY(protobuf_join(call, parts, &part.bytes));
        }
        return protobuf_read_one(call, node, part, out);
    }
    if (node->required)
        return message_fail(call, node, BAGS_ERROR_CORRUPT,
            "the message is shorter than its schema (a required field is missing)");
    if (node->optional)
        return BAGS_OK;
    none.wire = protobuf_scalars[node->type].wire;
    none.bytes.size = none.wire == WIRE_8 ? 8 : none.wire == WIRE_4 ? 4 : 0;
    return protobuf_read_one(call, node, none, out);
}

static inline size_t protobuf_find(const message_node *node, uint64_t number) {
    size_t low = 0, high = node->member_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (node->members[middle]->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < node->member_count && node->members[low]->number == number
               ? low
               : node->member_count;
}

static inline bags_code protobuf_read_message(
    message_call *call, const message_node *node, bags_view bytes, message_value *out) {
    FORMAT_TRY(message_items(call, node, MESSAGE_STRUCT, node->member_count, out));
    protobuf_parts *parts = (protobuf_parts *)bags_source_alloc(
        call->source, node->member_count + 1, sizeof *parts);
    if (!parts)
        return BAGS_ERROR_MEMORY;
    while (bytes.size > 0) {
        protobuf_part *part =
            (protobuf_part *)bags_source_alloc(call->source, 1, sizeof *part);
        FORMAT_TRY(message_count(call, node, 1));
        if (!part)
            return BAGS_ERROR_MEMORY;
        if (!wire_split(&bytes, &part->part))
            return message_fail(call, node, BAGS_ERROR_CORRUPT,
                "not a message of protocol buffers, or shorter than its schema");
        size_t i = protobuf_find(node, part->part.number);
        if (i == node->member_count)
            return message_fail(call, node, BAGS_ERROR_CORRUPT,
                "the message is longer than its schema (field %" PRIu64 ")",
                part->part.number);
        /* The last member of a oneof replaces another one. */
        if (node->members[i]->one_of) {
            size_t *chosen = &parts[node->members[i]->one_of - 1].chosen;
            if (*chosen && *chosen != i + 1)
                parts[*chosen - 1].first = parts[*chosen - 1].last = NULL;
            if (*chosen && *chosen != i + 1)
                parts[*chosen - 1].count = 0;
            *chosen = i + 1;
        }
        if (parts[i].last)
            parts[i].last->next = part;
        else
            parts[i].first = part;
        parts[i].last = part;
        parts[i].count++;
    }
    for (size_t i = 0; i < node->member_count; i++)
        FORMAT_TRY(
            protobuf_read_member(call, node->members[i], &parts[i], &out->is.items[i]));
    return BAGS_OK;
}

static inline bags_code protobuf_decode(
    message_call *call, message_node *root, bags_view bytes, message_value *out) {
    return protobuf_read_message(call, root, bytes, out);
}

#endif /* BAGS_IMPORT_MESSAGE_PROTOBUF_H */
