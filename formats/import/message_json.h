/*
 * message_json.h - messages of JSON, using json-c. Their members are learned from the
 * messages themselves. Private.
 */
#ifndef BAGS_IMPORT_MESSAGE_JSON_H
#define BAGS_IMPORT_MESSAGE_JSON_H

#include "json.h"
#include "message.h"

/* Find the member with this name, or add it. The search starts after the last member
 * found. NULL with an error. */
static inline message_node *json_member(
    message_call *call, message_node *node, const char *name, size_t *next) {
    for (size_t i = 0; i < node->member_count; i++) {
        size_t k = (*next + i) % node->member_count;
        if (strcmp(node->members[k]->name, name) == 0) {
            *next = k + 1;
            return node->members[k];
        }
    }
    if (!call->learning) {
        message_fail(call, node, BAGS_ERROR_CORRUPT, "changed while the file was read");
        return NULL;
    }
    message_node *member = message_node_new(call, node, name, strlen(name));
    if (message_add(call, node, member))
        return NULL;
    member->learned = true;
    /* Earlier structures lack it. */
    member->absent = node->count > 0;
    *next = node->member_count;
    return member;
}

static inline bags_code json_read(
    message_call *call, message_node *node, json_object *json, message_value *out);

static inline bags_code json_read_object(
    message_call *call, message_node *node, json_object *json, message_value *out) {
    size_t next = 0;
    json_object_object_foreach(json, name, unused) {
        (void)unused;
        if (!json_member(call, node, name, &next))
            return call->source->err->code;
    }
    node->count += call->learning;
    FORMAT_TRY(message_items(call, node, MESSAGE_STRUCT, node->member_count, out));
    for (size_t i = 0; i < node->member_count; i++) {
        json_object *member = NULL;
        if (json_object_object_get_ex(json, node->members[i]->name, &member))
            FORMAT_TRY(json_read(call, node->members[i], member, &out->is.items[i]));
    }
    return BAGS_OK;
}

static inline bags_code json_read_array(
    message_call *call, message_node *node, json_object *json, message_value *out) {
    size_t count = json_object_array_length(json);
    if (!node->item && call->learning) {
        node->item = message_node_new(call, node, NULL, 0);
        if (!node->item)
            return call->source->err->code;
        node->item->learned = true;
    }
    if (!node->item)
        return message_fail(
            call, node, BAGS_ERROR_CORRUPT, "changed while the file was read");
    FORMAT_TRY(message_items(call, node, MESSAGE_LIST, count, out));
    for (size_t i = 0; i < count; i++)
        FORMAT_TRY(json_read(
            call, node->item, json_object_array_get_idx(json, i), &out->is.items[i]));
    return BAGS_OK;
}

static inline bags_code json_read_text(const message_call *call,
    const message_node *node, json_object *json, message_value *out) {
    size_t size = (size_t)json_object_get_string_len(json);
    char *copy = bags_source_text(call->source, json_object_get_string(json), size);
    return copy ? message_text(call, node, copy, size, out) : BAGS_ERROR_MEMORY;
}

static inline bags_code json_read(
    message_call *call, message_node *node, json_object *json, message_value *out) {
    unsigned char yes;
    double real;
    int64_t sint;
    uint64_t whole;
    bags_code code = BAGS_OK;
    switch (json_object_get_type(json)) {
    case json_type_null:
        return BAGS_OK;
    case json_type_boolean:
        yes = json_object_get_boolean(json) != 0;
        message_number(BAGS_DTYPE_BOOL, &yes, out);
        break;
    case json_type_double:
        real = json_object_get_double(json);
        message_number(BAGS_DTYPE_FLOAT64, &real, out);
        break;
    case json_type_int:
        sint = json_object_get_int64(json);
        whole = json_object_get_uint64(json);
        if (whole > INT64_MAX)
            message_number(BAGS_DTYPE_UINT64, &whole, out);
        else
            message_number(BAGS_DTYPE_INT64, &sint, out);
        break;
    case json_type_string:
        code = json_read_text(call, node, json, out);
        break;
    case json_type_array:
        code = json_read_array(call, node, json, out);
        break;
    case json_type_object:
    default:
        code = json_read_object(call, node, json, out);
        break;
    }
    if (!code && !call->learning && message_seen(out) & ~node->seen)
        return message_fail(
            call, node, BAGS_ERROR_CORRUPT, "changed while the file was read");
    return code;
}

static inline bags_code json_decode(
    message_call *call, message_node *root, bags_view bytes, message_value *out) {
    const char *what = NULL;
    size_t at = 0;
    json_object *json = NULL;
    if (bytes.size > INT32_MAX - 1)
        return message_fail(call, root, BAGS_ERROR_LIMIT, "too large");
    /* The parser expects a zero byte. */
    char *text = bags_source_text(call->source, bytes.data, bytes.size);
    if (!text)
        return BAGS_ERROR_MEMORY;
    bags_view copy = {(const unsigned char *)text, bytes.size};
    bags_code code = bags_import_json(copy, &json, &what, &at);
    if (code == BAGS_ERROR_MEMORY)
        return bags_source_no_memory(call->source);
    if (code)
        return message_fail(call, root, BAGS_ERROR_CORRUPT,
            "invalid JSON before byte %" PRIu64 ": %s", (uint64_t)at, what);
    code = json_read(call, root, json, out);
    json_object_put(json);
    return code;
}

#endif /* BAGS_IMPORT_MESSAGE_JSON_H */
