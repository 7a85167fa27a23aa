/*
 * message_ros2.h - messages of ROS 2: schemas in the .msg syntax, CDR. Private.
 *
 * A schema is the text of a message's definition. The definitions of the types that it
 * uses follow, each after a line of = and a line `MSG: package/Type`. Constants have no
 * bytes in a message, and default values no effect.
 *
 * A message has 4 bytes (the second states the byte order), then the members, aligned to
 * their size from there. Text and lists begin with a length of 4 bytes. Text ends in a
 * zero byte. A structure without members has one byte.
 */
#ifndef BAGS_IMPORT_MESSAGE_ROS2_H
#define BAGS_IMPORT_MESSAGE_ROS2_H

#include "message.h"

#include "text.h"

/* Text that remains to be parsed. */
typedef struct ros2_text {
    const char *at, *end;
} ros2_text;

/* A definition. `name` is package/Type. */
typedef struct ros2_type {
    ros2_text name, text;
    bool in_progress; /* its members are being added */
} ros2_type;

typedef struct ros2_schema {
    const message_call *call;
    ros2_type *types;
    size_t count;
} ros2_schema;

#define ROS2_NAME "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

static inline int ros2_length(ros2_text text) {
    size_t size = (size_t)(text.end - text.at);
    return (int)(size < 100 ? size : 100);
}

static inline bool ros2_is(ros2_text text, const char *word) {
    size_t size = (size_t)(text.end - text.at);
    return size == strlen(word) && !memcmp(text.at, word, size);
}

/* Split off the next line, without its end. */
static inline ros2_text ros2_line(ros2_text *from) {
    ros2_text line = *from;
    const char *end =
        (const char *)memchr(from->at, '\n', (size_t)(from->end - from->at));
    line.end = end ? end : from->end;
    from->at = end ? end + 1 : from->end;
    while (line.end > line.at && (line.end[-1] == '\r' || line.end[-1] == ' '))
        line.end--;
    return line;
}

static inline void ros2_skip_spaces(ros2_text *from) {
    while (from->at < from->end && (*from->at == ' ' || *from->at == '\t'))
        from->at++;
}

/* Split off the characters that are in `set`, or up to a space if it is NULL. */
static inline ros2_text ros2_word(ros2_text *from, const char *set) {
    ros2_text word = {from->at, from->at};
    while (from->at < from->end && *from->at &&
           (set ? strchr(set, *from->at) != NULL : !strchr(" \t", *from->at)))
        from->at++;
    word.end = from->at;
    return word;
}

/* ---- schemas ---- */

/* The part of a type's name before its last /, and without a package's "/msg". */
static inline ros2_text ros2_package(ros2_text name) {
    ros2_text package = name;
    while (package.end > package.at && package.end[-1] != '/')
        package.end--;
    package.end -= package.end > package.at;
    if (package.end - package.at > 4 && !memcmp(package.end - 4, "/msg", 4))
        package.end -= 4;
    return package;
}

static inline ros2_text ros2_base(ros2_text name) {
    ros2_text base = name;
    for (const char *at = name.at; at < name.end; at++)
        if (*at == '/')
            base.at = at + 1;
    return base;
}

static inline bool ros2_same(ros2_text left, ros2_text right) {
    size_t size = (size_t)(left.end - left.at);
    return size == (size_t)(right.end - right.at) && !memcmp(left.at, right.at, size);
}

/* Find the definition of a type. Without a package, it is in `package`. */
static inline ros2_type *ros2_find(
    const ros2_schema *schema, ros2_text name, ros2_text package) {
    ros2_text own = ros2_package(name);
    for (size_t i = 0; i < schema->count; i++)
        if (ros2_same(ros2_base(schema->types[i].name), ros2_base(name)) &&
            ros2_same(
                ros2_package(schema->types[i].name), own.at < own.end ? own : package))
            return &schema->types[i];
    return NULL;
}

/* Split a schema into definitions. */
static inline bags_code ros2_split(
    ros2_schema *schema, bags_view name, bags_view text) {
    ros2_text rest = {(const char *)text.data, (const char *)text.data + text.size};
    ros2_type type;
    memset(&type, 0, sizeof type);
    type.name.at = (const char *)name.data;
    type.name.end = type.name.at + name.size;
    type.text = rest;
    while (true) {
        ros2_text before = rest, line = ros2_line(&rest);
        bool is_rule = line.end - line.at >= 3;
        for (const char *at = line.at; at < line.end; at++)
            is_rule = is_rule && *at == '=';
        bool ended = before.at == before.end;
        if (!ended && !is_rule)
            continue;
        type.text.end = before.at;
        schema->types = (ros2_type *)bags_source_grow(
            schema->call->source, schema->types, schema->count, sizeof type);
        if (!schema->types)
            return BAGS_ERROR_MEMORY;
        schema->types[schema->count++] = type;
        if (ended)
            return BAGS_OK;
        line = ros2_line(&rest);
        if (line.end - line.at < 5 || memcmp(line.at, "MSG: ", 5) != 0)
            return message_fail(schema->call, NULL, BAGS_ERROR_CORRUPT,
                "invalid schema: a line of = is not followed by \"MSG: \"");
        line.at += 5;
        ros2_skip_spaces(&line);
        type.name = line;
        type.text = rest;
    }
}

static const struct ros2_builtin {
    const char *name;
    message_kind kind;
    bags_dtype dtype;
} ros2_builtins[] = {
    {"bool", MESSAGE_NUMBER, BAGS_DTYPE_BOOL},
    {"byte", MESSAGE_NUMBER, BAGS_DTYPE_UINT8},
    {"char", MESSAGE_NUMBER, BAGS_DTYPE_UINT8},
    {"uint8", MESSAGE_NUMBER, BAGS_DTYPE_UINT8},
    {"int8", MESSAGE_NUMBER, BAGS_DTYPE_INT8},
    {"uint16", MESSAGE_NUMBER, BAGS_DTYPE_UINT16},
    {"int16", MESSAGE_NUMBER, BAGS_DTYPE_INT16},
    {"uint32", MESSAGE_NUMBER, BAGS_DTYPE_UINT32},
    {"int32", MESSAGE_NUMBER, BAGS_DTYPE_INT32},
    {"uint64", MESSAGE_NUMBER, BAGS_DTYPE_UINT64},
    {"int64", MESSAGE_NUMBER, BAGS_DTYPE_INT64},
    {"float32", MESSAGE_NUMBER, BAGS_DTYPE_FLOAT32},
    {"float64", MESSAGE_NUMBER, BAGS_DTYPE_FLOAT64},
    {"string", MESSAGE_TEXT, BAGS_DTYPE_NONE},
};

/* The types that every schema may use without a definition. */
static inline bool ros2_is_time(ros2_text name) {
    return ros2_is(name, "time") || ros2_is(name, "builtin_interfaces/Time") ||
           ros2_is(name, "builtin_interfaces/msg/Time");
}

static inline bool ros2_is_duration(ros2_text name) {
    return ros2_is(name, "duration") || ros2_is(name, "builtin_interfaces/Duration") ||
           ros2_is(name, "builtin_interfaces/msg/Duration");
}

static inline bags_code ros2_members(
    ros2_schema *schema, message_node *node, ros2_type *type, unsigned depth);

static inline bags_code ros2_add_times(const message_call *call, message_node *node) {
    message_node *seconds = message_node_new(call, node, "sec", 3);
    FORMAT_TRY(message_add(call, node, seconds));
    message_node *parts = message_node_new(call, node, "nanosec", 7);
    FORMAT_TRY(message_add(call, node, parts));
    node->kind = MESSAGE_STRUCT;
    seconds->kind = parts->kind = MESSAGE_NUMBER;
    seconds->dtype = BAGS_DTYPE_INT32;
    parts->dtype = BAGS_DTYPE_UINT32;
    return BAGS_OK;
}

/* Set the type of a node that is no list. */
static inline bags_code ros2_resolve(ros2_schema *schema, message_node *node,
    ros2_text name, ros2_text package, unsigned depth) {
    for (size_t i = 0; i < sizeof ros2_builtins / sizeof *ros2_builtins; i++) {
        if (!ros2_is(name, ros2_builtins[i].name))
            continue;
        node->kind = ros2_builtins[i].kind;
        node->dtype = ros2_builtins[i].dtype;
        return BAGS_OK;
    }
    if (ros2_is(name, "wstring"))
        return message_fail(
            schema->call, node, BAGS_ERROR_TYPE, "wstring is not supported");
    ros2_type *type = ros2_find(schema, name, package);
    if (!type && (ros2_is_time(name) || ros2_is_duration(name)))
        return ros2_add_times(schema->call, node);
    if (!type)
        return message_fail(schema->call, node, BAGS_ERROR_CORRUPT,
            "the schema lacks the type \"%.*s\"", ros2_length(name), name.at);
    return ros2_members(schema, node, type, depth + 1);
}

/* Parse the number after < or [, and the character after it. */
static inline bool ros2_number(ros2_text *from, char end, uint64_t *out) {
    return format_decimal(&from->at, from->end, out) && from->at < from->end &&
           *from->at++ == end;
}

static inline bags_code ros2_bad_line(
    const message_call *call, const message_node *node, ros2_text line) {
    return message_fail(call, node, BAGS_ERROR_CORRUPT,
        "invalid line in the schema (%.*s)", ros2_length(line), line.at);
}

/* Add the member that a line defines: TYPE NAME DEFAULT. A constant is NAME=VALUE. */
static inline bags_code ros2_member(ros2_schema *schema, message_node *node,
    ros2_text line, ros2_text package, unsigned depth) {
    ros2_text whole = line;
    ros2_text type = ros2_word(&line, ROS2_NAME "/");
    uint64_t most = UINT64_MAX, length = UINT64_MAX, bound = UINT64_MAX;
    bool good = type.at < type.end, list = false;
    if (line.end - line.at > 2 && !memcmp(line.at, "<=", 2)) {
        line.at += 2;
        good = good && (ros2_is(type, "string") || ros2_is(type, "wstring"));
        /* A number ends at [ or at a space. */
        good = format_decimal(&line.at, line.end, &most) && good;
    }
    if (line.at < line.end && *line.at == '[') {
        list = true;
        line.at++;
        if (line.at < line.end && *line.at == ']')
            line.at++;
        else if (line.end - line.at > 2 && !memcmp(line.at, "<=", 2) && (line.at += 2))
            good = ros2_number(&line, ']', &bound) && good;
        else
            good = ros2_number(&line, ']', &length) && good;
    }
    good = good && line.at < line.end && strchr(" \t", *line.at);
    ros2_skip_spaces(&line);
    ros2_text name = ros2_word(&line, ROS2_NAME);
    ros2_skip_spaces(&line);
    if (!good || name.at == name.end)
        return ros2_bad_line(schema->call, node, whole);
    if (line.at < line.end && *line.at == '=')
        return BAGS_OK;
    message_node *member =
        message_node_new(schema->call, node, name.at, (size_t)(name.end - name.at));
    FORMAT_TRY(message_add(schema->call, node, member));
    if (list) {
        member->kind = MESSAGE_LIST;
        member->length = length;
        member->most = bound;
        member->item = message_node_new(schema->call, member, NULL, 0);
        if (!member->item)
            return schema->call->source->err->code;
        member = member->item;
    }
    member->most = list && most == UINT64_MAX ? member->most : most;
    return ros2_resolve(schema, member, type, package, depth);
}

static inline bags_code ros2_members(
    ros2_schema *schema, message_node *node, ros2_type *type, unsigned depth) {
    ros2_text rest = type->text;
    node->kind = MESSAGE_STRUCT;
    if (type->in_progress || depth > MESSAGE_DEPTH)
        return message_fail(schema->call, node, BAGS_ERROR_TYPE,
            type->in_progress ? "the schema is recursive (%.*s)"
                              : "the schema is too deep (%.*s)",
            ros2_length(type->name), type->name.at);
    type->in_progress = true;
    while (rest.at < rest.end) {
        ros2_text line = ros2_line(&rest);
        ros2_skip_spaces(&line);
        if (line.at < line.end && *line.at != '#')
            FORMAT_TRY(
                ros2_member(schema, node, line, ros2_package(type->name), depth));
    }
    type->in_progress = false;
    return BAGS_OK;
}

/* Build the nodes of a schema. */
static inline bags_code ros2_nodes(
    const message_call *call, bags_view name, bags_view text, message_node *root) {
    ros2_schema schema = {call, NULL, 0};
    FORMAT_TRY(ros2_split(&schema, name, text));
    return ros2_members(&schema, root, &schema.types[0], 0);
}

/* ---- CDR ---- */

typedef struct ros2_cdr {
    message_call *call;
    const unsigned char *data;
    size_t size, at;
    bool swap; /* the byte order is not the native one */
} ros2_cdr;

/* Take `count` numbers. They are aligned if there are any. */
static inline const void *ros2_take(ros2_cdr *from, size_t size, uint64_t count) {
    size_t at = count ? (from->at + size - 1) / size * size : from->at;
    if (at > from->size || count > (from->size - at) / size)
        return NULL;
    from->at = at + size * (size_t)count;
    return from->data + at;
}

static inline bags_code ros2_take_length(
    ros2_cdr *from, const message_node *node, uint64_t *out) {
    uint32_t length;
    const void *bytes = ros2_take(from, 4, 1);
    if (!bytes)
        return message_truncated(from->call, node);
    bags_swap_bytes(&length, bytes, 4, from->swap ? 4 : 1);
    *out = length;
    return BAGS_OK;
}

static inline bags_code ros2_too_long(
    ros2_cdr *from, const message_node *node, uint64_t length) {
    return message_fail(from->call, node, BAGS_ERROR_CORRUPT,
        "longer than its bound (%" PRIu64 ", maximum %" PRIu64 ")", length, node->most);
}

static inline bags_code ros2_read_numbers(ros2_cdr *from, const message_node *node,
    bags_dtype dtype, uint64_t count, void *to, const void **out) {
    size_t size = bags_dtype_size(dtype);
    const void *bytes = ros2_take(from, size, count);
    if (!bytes)
        return message_truncated(from->call, node);
    if (!to)
        to = bags_source_alloc(from->call->source, (size_t)count + 1, size);
    if (!to)
        return BAGS_ERROR_MEMORY;
    bags_swap_bytes(to, bytes, size * (size_t)count, from->swap ? size : 1);
    for (size_t i = 0; dtype == BAGS_DTYPE_BOOL && i < count; i++)
        if (((const unsigned char *)bytes)[i] > 1)
            return message_fail(from->call, node, BAGS_ERROR_CORRUPT,
                "a bool is neither 0 nor 1 (%u)", ((const unsigned char *)bytes)[i]);
    *out = to;
    return BAGS_OK;
}

static inline bags_code ros2_read_text(
    ros2_cdr *from, const message_node *node, message_value *out) {
    uint64_t size = 0;
    FORMAT_TRY(ros2_take_length(from, node, &size));
    const char *text = (const char *)ros2_take(from, 1, size);
    if (!text)
        return message_truncated(from->call, node);
    if (size && text[size - 1])
        return message_fail(from->call, node, BAGS_ERROR_CORRUPT,
            "text without a zero byte at its end");
    size -= size > 0; /* some writers omit the zero byte of empty text */
    if (size > node->most)
        return ros2_too_long(from, node, size);
    return message_text(from->call, node, text, (size_t)size, out);
}

static inline bags_code ros2_read(
    ros2_cdr *from, const message_node *node, message_value *out);

static inline bags_code ros2_read_list(
    ros2_cdr *from, const message_node *node, message_value *out) {
    uint64_t count = node->length;
    if (count == UINT64_MAX)
        FORMAT_TRY(ros2_take_length(from, node, &count));
    if (count > node->most)
        return ros2_too_long(from, node, count);
    if (node->item->kind == MESSAGE_NUMBER) {
        out->kind = MESSAGE_NUMBERS;
        out->dtype = (unsigned char)node->item->dtype;
        out->size = (size_t)count;
        return ros2_read_numbers(
            from, node, node->item->dtype, count, NULL, &out->is.data);
    }
    /* Each item has at least one byte. */
    if (count > from->size - from->at)
        return message_truncated(from->call, node);
    FORMAT_TRY(message_items(from->call, node, MESSAGE_LIST, count, out));
    for (size_t i = 0; i < count; i++)
        FORMAT_TRY(ros2_read(from, node->item, &out->is.items[i]));
    return BAGS_OK;
}

static inline bags_code ros2_read(
    ros2_cdr *from, const message_node *node, message_value *out) {
    const void *ignored;
    if (node->kind == MESSAGE_LIST)
        return ros2_read_list(from, node, out);
    if (node->kind == MESSAGE_TEXT)
        return ros2_read_text(from, node, out);
    if (node->kind == MESSAGE_NUMBER) {
        out->kind = MESSAGE_NUMBER;
        out->dtype = (unsigned char)node->dtype;
        return ros2_read_numbers(from, node, node->dtype, 1, out->is.number, &ignored);
    }
    if (node->member_count == 0 && !ros2_take(from, 1, 1))
        return message_truncated(from->call, node);
    FORMAT_TRY(
        message_items(from->call, node, MESSAGE_STRUCT, node->member_count, out));
    for (size_t i = 0; i < node->member_count; i++)
        FORMAT_TRY(ros2_read(from, node->members[i], &out->is.items[i]));
    return BAGS_OK;
}

/* Writers may pad a message with zeros to a multiple of 4 bytes. */
static inline bool ros2_is_padding(const ros2_cdr *from) {
    size_t left = from->size - from->at;
    bool zero = left < 4 && (left == 0 || from->size % 4 == 0);
    for (size_t i = from->at; zero && i < from->size; i++)
        zero = from->data[i] == 0;
    return zero;
}

static inline bags_code ros2_decode(
    message_call *call, message_node *root, bags_view bytes, message_value *out) {
    ros2_cdr from = {call, bytes.data, bytes.size, 0, false};
    if (bytes.size < 4)
        return message_truncated(call, root);
    if (bytes.data[0] != 0 || bytes.data[1] > 1)
        return message_fail(call, root, BAGS_ERROR_TYPE,
            "representation of CDR not supported (%02X%02X, expected 0000 or 0001)",
            bytes.data[0], bytes.data[1]);
    from.data += 4;
    from.size -= 4;
    from.swap = (bytes.data[1] == 1) != bags_little_endian();
    FORMAT_TRY(ros2_read(&from, root, out));
    if (ros2_is_padding(&from))
        return BAGS_OK;
    return message_fail(call, root, BAGS_ERROR_CORRUPT,
        "the message is longer than its schema (%" PRIu64 " bytes remain)",
        (uint64_t)(from.size - from.at));
}

#endif /* BAGS_IMPORT_MESSAGE_ROS2_H */
