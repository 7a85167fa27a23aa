/*
 * message_idl.h - schemas of ROS 2 in OMG IDL, as rosidl writes them. Private.
 *
 * A schema consists of .idl files, each after a line of = and a line
 * `IDL: package/msg/Type`. Modules, structures, enums (32-bit numbers), typedefs, arrays,
 * sequences and bounded text are supported. Annotations and constants are skipped.
 */
#ifndef BAGS_IMPORT_MESSAGE_IDL_H
#define BAGS_IMPORT_MESSAGE_IDL_H

#include "message_ros2.h"

typedef enum idl_kind { IDL_STRUCT, IDL_ENUM, IDL_TYPEDEF } idl_kind;

/* A definition. */
typedef struct idl_type {
    const char *name; /* a::b::Type */
    const char *scope;
    idl_kind kind;
    ros2_text text; /* members of a structure; a typedef after its first word */
    bool in_progress;
} idl_type;

typedef struct idl_schema {
    const message_call *call;
    idl_type *types;
    size_t count;
} idl_schema;

static inline bags_code idl_bad(const idl_schema *schema, ros2_text token) {
    return message_fail(schema->call, NULL, BAGS_ERROR_CORRUPT,
        "the schema is not supported or invalid (at \"%.*s\")", ros2_length(token),
        token.at);
}

/* ---- tokens ---- */

static inline void idl_skip_line(ros2_text *from) { (void)ros2_line(from); }

static inline bool idl_starts(const ros2_text *from, const char *word) {
    size_t size = strlen(word);
    return (size_t)(from->end - from->at) >= size && !memcmp(from->at, word, size);
}

/* Skip spaces, comments, lines of the preprocessor, and lines between files. */
static inline void idl_skip(ros2_text *from) {
    while (from->at < from->end) {
        if (strchr(" \t\r\n", *from->at) && *from->at) {
            from->at++;
        } else if (*from->at == '#' || idl_starts(from, "//")) {
            idl_skip_line(from);
        } else if (idl_starts(from, "===")) {
            idl_skip_line(from);
            if (idl_starts(from, "IDL: "))
                idl_skip_line(from);
        } else if (idl_starts(from, "/*")) {
            from->at += 2;
            while (from->at < from->end && !idl_starts(from, "*/"))
                from->at++;
            from->at += from->at < from->end ? 2 : 0;
        } else {
            return;
        }
    }
}

/* Take the next token: a name such as a::b, a number, a string, or a character. Empty at
 * the end. */
static inline ros2_text idl_token(ros2_text *from) {
    idl_skip(from);
    ros2_text token = ros2_word(from, ROS2_NAME ":");
    if (token.at < token.end || from->at == from->end)
        return token;
    char quote = *from->at++;
    while (quote == '"' && from->at < from->end && *from->at != '"')
        from->at += *from->at == '\\' && from->end - from->at > 1 ? 2 : 1;
    from->at += quote == '"' && from->at < from->end;
    token.end = from->at;
    return token;
}

static inline bool idl_take(ros2_text *from, const char *word) {
    ros2_text rest = *from, token = idl_token(&rest);
    if (!ros2_is(token, word))
        return false;
    *from = rest;
    return true;
}

/* Skip tokens up to the `close` of an `open` already taken. *body (may be NULL) gets the
 * text between them. */
static inline bool idl_balance(
    ros2_text *from, const char *open, const char *close, ros2_text *body) {
    ros2_text inside = *from;
    for (size_t depth = 1; from->at < from->end;) {
        inside.end = from->at;
        ros2_text token = idl_token(from);
        depth += ros2_is(token, open);
        depth -= ros2_is(token, close);
        if (depth == 0) {
            if (body)
                *body = inside;
            return true;
        }
    }
    return false;
}

static inline bool idl_skip_annotations(ros2_text *from) {
    while (idl_take(from, "@")) {
        (void)idl_token(from);
        if (idl_take(from, "(") && !idl_balance(from, "(", ")", NULL))
            return false;
    }
    return true;
}

/* Skip a type. */
static inline bool idl_skip_type(ros2_text *from) {
    ros2_text token = idl_token(from);
    if (ros2_is(token, "unsigned"))
        token = idl_token(from);
    if (ros2_is(token, "long") && !idl_take(from, "long"))
        (void)idl_take(from, "double");
    return token.at < token.end &&
           (!idl_take(from, "<") || idl_balance(from, "<", ">", NULL));
}

/* ---- definitions ---- */

static inline bags_code idl_add(idl_schema *schema, const char *scope, ros2_text name,
    idl_kind kind, ros2_text text) {
    bags_source *s = schema->call->source;
    idl_type type = {NULL, scope, kind, text, false};
    type.name = bags_source_format(
        s, "%s%s%.*s", scope, *scope ? "::" : "", (int)(name.end - name.at), name.at);
    schema->types = (idl_type *)bags_source_grow(
        s, schema->types, schema->count, sizeof *schema->types);
    if (!type.name || !schema->types)
        return BAGS_ERROR_MEMORY;
    schema->types[schema->count++] = type;
    return BAGS_OK;
}

/* Add a typedef: TYPE NAME[N]; */
static inline bags_code idl_add_typedef(
    idl_schema *schema, const char *scope, ros2_text *from) {
    ros2_text text = *from;
    if (!idl_skip_type(from))
        return idl_bad(schema, *from);
    ros2_text name = idl_token(from);
    while (from->at < from->end && !idl_take(from, ";"))
        (void)idl_token(from);
    text.end = from->at;
    return idl_add(schema, scope, name, IDL_TYPEDEF, text);
}

/* Add the definitions of a module, up to its closing brace. */
static inline bags_code idl_collect(
    idl_schema *schema, const char *scope, ros2_text *from, unsigned depth) {
    while (true) {
        ros2_text body = {NULL, NULL};
        if (!idl_skip_annotations(from) || depth > MESSAGE_DEPTH)
            return idl_bad(schema, *from);
        ros2_text token = idl_token(from);
        bool is_struct = ros2_is(token, "struct");
        if (token.at == token.end || ros2_is(token, "}"))
            return BAGS_OK;
        if (ros2_is(token, ";"))
            continue;
        if (ros2_is(token, "const")) {
            while (from->at < from->end && !idl_take(from, ";"))
                (void)idl_token(from);
        } else if (ros2_is(token, "typedef")) {
            FORMAT_TRY(idl_add_typedef(schema, scope, from));
        } else if (ros2_is(token, "module")) {
            ros2_text name = idl_token(from);
            const char *inner = bags_source_format(schema->call->source, "%s%s%.*s",
                scope, *scope ? "::" : "", (int)(name.end - name.at), name.at);
            if (!inner)
                return BAGS_ERROR_MEMORY;
            if (!idl_take(from, "{"))
                return idl_bad(schema, *from);
            FORMAT_TRY(idl_collect(schema, inner, from, depth + 1));
        } else if (is_struct || ros2_is(token, "enum")) {
            ros2_text name = idl_token(from);
            if (!idl_take(from, "{") || !idl_balance(from, "{", "}", &body))
                return idl_bad(schema, *from);
            FORMAT_TRY(
                idl_add(schema, scope, name, is_struct ? IDL_STRUCT : IDL_ENUM, body));
        } else {
            return idl_bad(schema, token);
        }
    }
}

static inline bool idl_is(
    const char *name, const char *scope, size_t scope_size, ros2_text word) {
    size_t size = (size_t)(word.end - word.at), colons = scope_size ? 2 : 0;
    return strlen(name) == scope_size + colons + size &&
           !memcmp(name, scope, scope_size) &&
           !memcmp(name + scope_size, "::", colons) &&
           !memcmp(name + scope_size + colons, word.at, size);
}

/* Find a name in a scope or in those around it. */
static inline idl_type *idl_find(
    const idl_schema *schema, const char *scope, ros2_text word) {
    for (size_t size = strlen(scope);;) {
        for (size_t i = 0; i < schema->count; i++)
            if (idl_is(schema->types[i].name, scope, size, word))
                return &schema->types[i];
        if (size == 0)
            return NULL;
        while (size > 0 && scope[size - 1] != ':')
            size--;
        size -= size ? 2 : 0;
    }
}

/* ---- nodes ---- */

static const struct idl_builtin {
    const char *name;
    bags_dtype dtype;
} idl_builtins[] = {
    {"boolean", BAGS_DTYPE_BOOL},
    {"octet", BAGS_DTYPE_UINT8},
    {"char", BAGS_DTYPE_UINT8},
    {"uint8", BAGS_DTYPE_UINT8},
    {"int8", BAGS_DTYPE_INT8},
    {"uint16", BAGS_DTYPE_UINT16},
    {"int16", BAGS_DTYPE_INT16},
    {"short", BAGS_DTYPE_INT16},
    {"uint32", BAGS_DTYPE_UINT32},
    {"int32", BAGS_DTYPE_INT32},
    {"uint64", BAGS_DTYPE_UINT64},
    {"int64", BAGS_DTYPE_INT64},
    {"float", BAGS_DTYPE_FLOAT32},
    {"double", BAGS_DTYPE_FLOAT64},
};

static inline bags_code idl_members(
    idl_schema *schema, message_node *node, idl_type *type, unsigned depth);
static inline bags_code idl_declare(idl_schema *schema, message_node *node,
    ros2_text *from, ros2_text dimensions, const char *scope, unsigned depth);

static inline bags_code idl_number(
    const idl_schema *schema, ros2_text *from, const char *end, uint64_t *out) {
    idl_skip(from);
    return format_decimal(&from->at, from->end, out) && idl_take(from, end)
               ? BAGS_OK
               : idl_bad(schema, *from);
}

static inline bags_code idl_list(
    idl_schema *schema, message_node *node, message_node **item) {
    node->kind = MESSAGE_LIST;
    *item = node->item = message_node_new(schema->call, node, NULL, 0);
    return *item ? BAGS_OK : schema->call->source->err->code;
}

/* Set a named type. */
static inline bags_code idl_named(idl_schema *schema, message_node *node,
    ros2_text name, const char *scope, unsigned depth) {
    idl_type *type = idl_find(schema, scope, name);
    if (!type)
        return message_fail(schema->call, node, BAGS_ERROR_CORRUPT,
            "the schema lacks the type \"%.*s\"", ros2_length(name), name.at);
    if (type->in_progress || depth > MESSAGE_DEPTH)
        return message_fail(schema->call, node, BAGS_ERROR_TYPE,
            type->in_progress ? "the schema is recursive (%.100s)"
                              : "the schema is too deep (%.100s)",
            type->name);
    if (type->kind == IDL_ENUM) {
        node->kind = MESSAGE_NUMBER;
        node->dtype = BAGS_DTYPE_UINT32;
        return BAGS_OK;
    }
    if (type->kind == IDL_STRUCT)
        return idl_members(schema, node, type, depth + 1);
    ros2_text text = type->text, dimensions = text;
    (void)idl_skip_type(&dimensions);
    (void)idl_token(&dimensions);
    type->in_progress = true;
    FORMAT_TRY(idl_declare(schema, node, &text, dimensions, type->scope, depth + 1));
    type->in_progress = false;
    return BAGS_OK;
}

/* Parse a type. */
static inline bags_code idl_resolve(idl_schema *schema, message_node *node,
    ros2_text *from, const char *scope, unsigned depth) {
    ros2_text token = idl_token(from);
    message_node *item;
    bool is_unsigned = ros2_is(token, "unsigned");
    if (depth > MESSAGE_DEPTH)
        return idl_bad(schema, token);
    if (is_unsigned)
        token = idl_token(from);
    node->kind = MESSAGE_NUMBER;
    if (ros2_is(token, "long") && !idl_take(from, "double")) {
        bool is_long = idl_take(from, "long");
        node->dtype = is_unsigned ? (is_long ? BAGS_DTYPE_UINT64 : BAGS_DTYPE_UINT32)
                      : is_long   ? BAGS_DTYPE_INT64
                                  : BAGS_DTYPE_INT32;
        return BAGS_OK;
    }
    for (size_t i = 0; i < sizeof idl_builtins / sizeof *idl_builtins; i++) {
        if (!ros2_is(token, idl_builtins[i].name))
            continue;
        node->dtype = is_unsigned ? BAGS_DTYPE_UINT16 : idl_builtins[i].dtype;
        return is_unsigned && !ros2_is(token, "short") ? idl_bad(schema, token)
                                                       : BAGS_OK;
    }
    if (ros2_is(token, "wstring") || ros2_is(token, "wchar") ||
        ros2_is(token, "long") || is_unsigned)
        return message_fail(schema->call, node, BAGS_ERROR_TYPE,
            "%.*s is not supported", ros2_length(token), token.at);
    if (ros2_is(token, "string")) {
        node->kind = MESSAGE_TEXT;
        return idl_take(from, "<") ? idl_number(schema, from, ">", &node->most)
                                   : BAGS_OK;
    }
    if (!ros2_is(token, "sequence"))
        return idl_named(schema, node, token, scope, depth);
    FORMAT_TRY(idl_list(schema, node, &item));
    if (!idl_take(from, "<"))
        return idl_bad(schema, *from);
    FORMAT_TRY(idl_resolve(schema, item, from, scope, depth + 1));
    if (idl_take(from, ","))
        return idl_number(schema, from, ">", &node->most);
    return idl_take(from, ">") ? BAGS_OK : idl_bad(schema, *from);
}

/* Set a type with dimensions: [N][M], up to ; */
static inline bags_code idl_declare(idl_schema *schema, message_node *node,
    ros2_text *from, ros2_text dimensions, const char *scope, unsigned depth) {
    while (idl_take(&dimensions, "[")) {
        uint64_t length = 0;
        message_node *item;
        FORMAT_TRY(idl_number(schema, &dimensions, "]", &length));
        FORMAT_TRY(idl_list(schema, node, &item));
        node->length = length;
        node = item;
    }
    if (!idl_take(&dimensions, ";"))
        return idl_bad(schema, dimensions);
    return idl_resolve(schema, node, from, scope, depth);
}

static inline bags_code idl_members(
    idl_schema *schema, message_node *node, idl_type *type, unsigned depth) {
    ros2_text rest = type->text;
    node->kind = MESSAGE_STRUCT;
    type->in_progress = true;
    while (true) {
        if (!idl_skip_annotations(&rest))
            return idl_bad(schema, rest);
        idl_skip(&rest);
        if (rest.at == rest.end)
            break;
        ros2_text text = rest;
        if (!idl_skip_type(&rest))
            return idl_bad(schema, text);
        ros2_text name = idl_token(&rest), dimensions = rest;
        while (rest.at < rest.end && !idl_take(&rest, ";"))
            (void)idl_token(&rest);
        message_node *member =
            message_node_new(schema->call, node, name.at, (size_t)(name.end - name.at));
        FORMAT_TRY(message_add(schema->call, node, member));
        FORMAT_TRY(idl_declare(schema, member, &text, dimensions, type->scope, depth));
    }
    type->in_progress = false;
    return BAGS_OK;
}

/* Build the nodes of a schema. `name` is package/msg/Type. */
static inline bags_code idl_nodes(
    const message_call *call, bags_view name, bags_view text, message_node *root) {
    idl_schema schema = {call, NULL, 0};
    ros2_text rest = {(const char *)text.data, (const char *)text.data + text.size};
    char *full = (char *)bags_source_alloc(call->source, name.size + 1, 2);
    char *to = full;
    if (!full)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < name.size; i++) {
        *to++ = name.data[i] == '/' ? ':' : (char)name.data[i];
        if (name.data[i] == '/')
            *to++ = ':';
    }
    ros2_text word = {full, to};
    FORMAT_TRY(idl_collect(&schema, "", &rest, 0));
    return idl_named(&schema, root, word, "", 0);
}

#endif /* BAGS_IMPORT_MESSAGE_IDL_H */
