/*
 * mcap.c - imports MCAP files, using json-c, zstd, lz4 and zlib's CRC-32 (Debian:
 * libjson-c-dev libzstd-dev liblz4-dev zlib1g-dev).
 *
 * Each message is a datapoint, in file order:
 *
 *     log_time      i64, nanoseconds
 *     publish_time  i64, nanoseconds
 *     sequence      u64
 *     TOPIC         bytes[]: for each topic, 1 item if the message belongs to it,
 *                   otherwise 0
 *
 * Messages are stored unchanged. With the option `decode`, TOPIC is replaced by
 *
 *     topic         utf8
 *     TOPIC.MEMBER  the members of messages: see message.h
 *
 * for messages of ROS 2 (CDR), protocol buffers and JSON. Channels and schemas become
 * members of info.json. Attachments and metadata records are left out and reported.
 * Checksums are verified where the file has them. If the file has no summary, or
 * messages are decoded, open reads all of it.
 *
 * Rejected: other compression methods, chunks above 1 GiB, 10,000 topics or more.
 */
#include "detect.h"
#include "lz4_frames.h"
#include "message_idl.h"
#include "message_json.h"
#include "message_protobuf.h"
#include "message_ros2.h"
#include "text.h"

#include <zlib.h>
#include <zstd.h>

#include <inttypes.h>

#define MC_PART ((uint64_t)1 << 20)  /* bytes checked at a time */
#define MC_MOST ((uint64_t)1 << 30)  /* maximum bytes of a record or chunk */
#define MC_RATIO ((uint64_t)1 << 16) /* no compression expands a byte to more */
#define MC_TOPICS 10000
#define MC_KEPT ((size_t)8 << 20) /* maximum bytes of schemas in info.json */

enum {
    MC_FOOTER = 2,
    MC_SCHEMA,
    MC_CHANNEL,
    MC_MESSAGE,
    MC_CHUNK,
    MC_ATTACHMENT = 9,
    MC_ATTACHMENT_INDEX,
    MC_STATISTICS,
    MC_METADATA,
    MC_METADATA_INDEX,
    MC_DATA_END = 15
};

/* Bytes that remain to be parsed; `bad` is set if there were too few. */
typedef struct mc_bytes {
    const unsigned char *data;
    uint64_t size;
    bool bad;
} mc_bytes;

typedef struct mc_schema {
    bags_view name, encoding, data;
} mc_schema;

typedef struct mc_channel {
    bags_import_column *topic;
    bags_view encoding, metadata;
    size_t schema; /* its number; 0: none */
} mc_channel;

typedef bags_code (*mc_decoder)(
    message_call *call, message_node *root, bags_view bytes, message_value *out);

/* The messages of a topic; see bags_import_column.kind. */
typedef struct mc_format {
    const mc_channel *channel; /* of the first message. NULL: there is no message */
    mc_decoder decoder;
    message_node *root;
} mc_format;

typedef struct mc_state {
    bags_buffer *chunk;
    uint64_t at;                 /* offset of the next record */
    uint64_t record;             /* offset of the current one, for errors */
    mc_bytes rest;               /* records of the current chunk */
    uint32_t crc;                /* CRC of the bytes before `at` */
    bool ended, known;           /* the data section has ended; all topics are known */
    bool learned;                /* all messages were decoded once */
    uint64_t next;               /* number of the next message */
    mc_channel *channels[65536]; /* indexed by their numbers, like */
    mc_schema *schemas[65536];
    mc_format *formats; /* of the topics, in the order of the file */
    size_t format_count;
    size_t node_count;
    bags_value **items; /* see message_sink */
} mc_state;

/* Take the next `size` bytes. */
static const unsigned char *mc_part(mc_bytes *from, uint64_t size) {
    const unsigned char *part = from->data;
    if (from->size < size) {
        from->bad = true;
        from->size = 0;
        return NULL;
    }
    from->data += size;
    from->size -= size;
    return part;
}

static uint64_t mc_number(mc_bytes *from, size_t size) {
    const unsigned char *part = mc_part(from, size);
    return part ? bags_load_bytes(part, size, false) : 0;
}

static bags_view mc_text(mc_bytes *from, size_t size_bytes) {
    uint64_t size = mc_number(from, size_bytes);
    bags_view text = {mc_part(from, size), 0};
    text.size = text.data ? (size_t)size : 0;
    return text;
}

/* Take the next record: its kind and content. */
static int mc_record(mc_bytes *from, mc_bytes *body) {
    int kind = (int)mc_number(from, 1);
    body->size = mc_number(from, 8);
    body->data = mc_part(from, body->size);
    body->bad = false;
    return kind;
}

static bags_code mc_bad(bags_source *s, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "record at %" PRIu64 ": %s",
        ((mc_state *)s->state)->record, what);
}

/* Get bytes of the file, valid until the next call. */
static bags_code mc_view(
    bags_source *s, uint64_t offset, uint64_t size, mc_bytes *out) {
    bags_view view = {NULL, 0};
    if (offset > s->file.size || size > s->file.size - offset)
        return mc_bad(s, "truncated");
    if (size > MC_MOST)
        return bags_source_fail(s, BAGS_ERROR_LIMIT,
            "record at %" PRIu64 ": too large (%" PRIu64 " bytes, maximum %" PRIu64 ")",
            ((mc_state *)s->state)->record, size, MC_MOST);
    bags_code code = bags_source_view(s, offset, size, &view);
    out->data = view.data;
    out->size = view.size;
    out->bad = false;
    return code;
}

static bags_code mc_check(
    bags_source *s, uint64_t stored, uint32_t computed, const char *of) {
    if (stored == 0 || stored == computed)
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "record at %" PRIu64 ": checksum mismatch of the %s (computed %08" PRIx32
        ", stored %08" PRIx64 ")",
        ((mc_state *)s->state)->record, of, computed, stored);
}

static uint32_t mc_crc(uint32_t crc, const void *data, uint64_t size) {
    return (uint32_t)crc32(crc, (const Bytef *)data, (uInt)size);
}

/* ---- records ---- */

/* Report a record as left out. */
static bags_code mc_leave_out(bags_source *s, int kind, mc_bytes body) {
    const char *what = kind == MC_ATTACHMENT || kind == MC_ATTACHMENT_INDEX
                           ? "attachment"
                           : "metadata record";
    if (kind != MC_METADATA)
        mc_part(&body, kind == MC_ATTACHMENT_INDEX ? 40 : 16);
    bags_view name = mc_text(&body, 4);
    if (body.bad)
        return mc_bad(s, "invalid record");
    bags_source_leave_out(s, what, 1, "%.*s", (int)(name.size < 200 ? name.size : 200),
        (const char *)name.data);
    return BAGS_OK;
}

static bool mc_same(bags_view left, bags_view right) {
    return left.size == right.size &&
           (left.size == 0 || memcmp(left.data, right.data, left.size) == 0);
}

/* Copy bytes of a record. */
static bags_view mc_keep(bags_source *s, bags_view part) {
    part.data = (const unsigned char *)bags_source_text(s, part.data, part.size);
    return part;
}

static bags_code mc_schema_record(bags_source *s, mc_bytes body) {
    mc_state *m = (mc_state *)s->state;
    size_t id = (size_t)mc_number(&body, 2);
    mc_schema schema;
    schema.name = mc_text(&body, 4);
    schema.encoding = mc_text(&body, 4);
    schema.data = mc_text(&body, 4);
    const mc_schema *known = m->schemas[id];
    if (body.bad || id == 0)
        return mc_bad(s, "invalid schema");
    if (known)
        return mc_same(known->name, schema.name) &&
                       mc_same(known->encoding, schema.encoding) &&
                       mc_same(known->data, schema.data)
                   ? BAGS_OK
                   : mc_bad(s, "a schema changes");
    mc_schema *made = (mc_schema *)bags_source_alloc(s, 1, sizeof *made);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->name = mc_keep(s, schema.name);
    made->encoding = mc_keep(s, schema.encoding);
    made->data = mc_keep(s, schema.data);
    if (!made->name.data || !made->encoding.data || !made->data.data)
        return BAGS_ERROR_MEMORY;
    m->schemas[id] = made;
    return BAGS_OK;
}

/* Find or add a topic. */
static bags_code mc_channel_record(bags_source *s, mc_bytes body) {
    mc_state *m = (mc_state *)s->state;
    size_t id = (size_t)mc_number(&body, 2);
    size_t schema = (size_t)mc_number(&body, 2);
    bags_view topic = mc_text(&body, 4), encoding = mc_text(&body, 4);
    bags_view metadata = mc_text(&body, 4);
    const mc_channel *known = m->channels[id];
    if (body.bad || memchr(topic.data, 0, topic.size))
        return mc_bad(s, "invalid channel");
    if (s->column_count == MC_TOPICS && !m->known)
        return bags_source_fail(s, BAGS_ERROR_LIMIT, "too many topics");
    bags_import_column *column =
        bags_source_column(s, topic.data, topic.size, !m->known);
    if (!column)
        return m->known ? mc_bad(s, "a topic that the summary lacks")
                        : BAGS_ERROR_MEMORY;
    if (known && known->topic != column)
        return mc_bad(s, "a channel changes its topic");
    if (known && (known->schema != schema || !mc_same(known->encoding, encoding)))
        return mc_bad(s, "a channel changes its schema or encoding");
    if (known)
        return BAGS_OK;
    if (s->opened)
        return mc_bad(s, "a channel that the summary lacks");
    mc_channel *made = (mc_channel *)bags_source_alloc(s, 1, sizeof *made);
    if (!made)
        return BAGS_ERROR_MEMORY;
    made->topic = column;
    made->schema = schema;
    made->encoding = mc_keep(s, encoding);
    made->metadata = mc_keep(s, metadata);
    if (!made->encoding.data || !made->metadata.data)
        return BAGS_ERROR_MEMORY;
    if (column->kind == 0) {
        m->formats = (mc_format *)bags_source_grow(
            s, m->formats, m->format_count, sizeof *m->formats);
        if (!m->formats)
            return BAGS_ERROR_MEMORY;
        column->kind = (unsigned)++m->format_count;
    }
    column->sequence = true;
    m->channels[id] = made;
    return BAGS_OK;
}

static bags_code mc_open_chunk(bags_source *s, mc_bytes body) {
    mc_state *m = (mc_state *)s->state;
    mc_part(&body, 16); /* first and last log time */
    uint64_t size = mc_number(&body, 8), crc = mc_number(&body, 4);
    bags_view how = mc_text(&body, 4), in = mc_text(&body, 8);
    bool good = false;
    if (body.bad)
        return mc_bad(s, "invalid chunk");
    if (size > MC_MOST || size / MC_RATIO > in.size)
        return mc_bad(s, "too large a chunk");
    FORMAT_TRY(bags_source_reserve(s, &m->chunk, (size_t)size));
    unsigned char *out = m->chunk->data;
    if (how.size == 4 && memcmp(how.data, "zstd", 4) == 0)
        good = ZSTD_decompress(out, (size_t)size, in.data, in.size) == size;
    else if (how.size == 3 && memcmp(how.data, "lz4", 3) == 0)
        good = bags_import_lz4(in, out, (size_t)size);
    else if (how.size > 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "record at %" PRIu64 ": compression not supported (%.*s)", m->record,
            (int)(how.size < 40 ? how.size : 40), (const char *)how.data);
    else if ((good = in.size == size) && size > 0)
        memcpy(out, in.data, in.size);
    if (!good)
        return mc_bad(s, "damaged chunk");
    m->rest.data = out;
    m->rest.size = size;
    m->rest.bad = false;
    return mc_check(s, crc, mc_crc(0, out, size), "chunk");
}

/* Read the record at `at` and move past it. *body receives the content if the record is
 * relevant. */
static bags_code mc_top(bags_source *s, int *kind, mc_bytes *body) {
    mc_state *m = (mc_state *)s->state;
    mc_bytes head;
    uint64_t start = m->record = m->at;
    FORMAT_TRY(mc_view(s, start, 9, &head));
    *kind = (int)mc_number(&head, 1);
    uint64_t size = mc_number(&head, 8);
    if (size > s->file.size - start - 9)
        return mc_bad(s, "truncated");
    m->at += size += 9;
    for (uint64_t done = 0; *kind != MC_DATA_END && done < size;) {
        uint64_t part = size - done < MC_PART ? size - done : MC_PART;
        FORMAT_TRY(mc_view(s, start + done, part, body));
        m->crc = mc_crc(m->crc, body->data, part);
        done += part;
    }
    body->size = 0;
    bool is_reported =
        *kind == MC_SCHEMA || *kind == MC_ATTACHMENT || *kind == MC_METADATA;
    uint64_t most = is_reported && *kind != MC_SCHEMA ? MC_PART : UINT64_MAX;
    if ((is_reported && !s->opened) || *kind == MC_CHANNEL || *kind == MC_MESSAGE ||
        *kind == MC_CHUNK || *kind == MC_DATA_END)
        FORMAT_TRY(mc_view(s, start + 9, size - 9 < most ? size - 9 : most, body));
    return BAGS_OK;
}

/* Read the next message; its data are NULL after the last one. */
static bags_code mc_next(bags_source *s, mc_bytes *message) {
    mc_state *m = (mc_state *)s->state;
    message->data = NULL;
    while (!m->ended) {
        mc_bytes body = {NULL, 0, false};
        int kind = 0;
        bool inside = m->rest.size > 0;
        if (inside) {
            kind = mc_record(&m->rest, &body);
            if (m->rest.bad)
                return mc_bad(s, "a record crosses the end of its chunk");
        } else {
            FORMAT_TRY(mc_top(s, &kind, &body));
        }
        if (kind == MC_MESSAGE) {
            *message = body;
            return BAGS_OK;
        }
        if (kind == MC_CHANNEL) {
            FORMAT_TRY(mc_channel_record(s, body));
        } else if (!s->opened && kind == MC_SCHEMA) {
            FORMAT_TRY(mc_schema_record(s, body));
        } else if (!s->opened && (kind == MC_ATTACHMENT || kind == MC_METADATA)) {
            FORMAT_TRY(mc_leave_out(s, kind, body));
        } else if (kind == MC_CHUNK && !inside) {
            FORMAT_TRY(mc_open_chunk(s, body));
        } else if (kind == MC_DATA_END && !inside) {
            m->ended = true;
            FORMAT_TRY(mc_check(s, mc_number(&body, 4), m->crc, "data section"));
        } else if (kind == MC_FOOTER) {
            return mc_bad(s, "the data section has no end");
        }
    }
    return BAGS_OK;
}

static void mc_rewind(mc_state *m) {
    m->at = sizeof BAGS_IMPORT_MCAP - 1;
    m->crc = mc_crc(0, BAGS_IMPORT_MCAP, sizeof BAGS_IMPORT_MCAP - 1);
    m->rest.size = 0;
    m->ended = false;
}

/* ---- the summary ---- */

/* Read the topics, the length and the ignored records from the summary; set `known` if
 * it has all of these. */
static bags_code mc_summary(bags_source *s) {
    mc_state *m = (mc_state *)s->state;
    const uint64_t tail = 9 + 20 + 8; /* footer, magic */
    /* Schemas, channels, attachments, metadata. */
    uint64_t found[4] = {0}, expected[4] = {UINT64_MAX, 0, 0, 0};
    uint64_t stop = s->file.size - tail;
    mc_bytes end, rest;
    m->record = stop;
    FORMAT_TRY(mc_view(s, stop, tail, &end));
    if (end.data[0] != MC_FOOTER ||
        memcmp(end.data + tail - 8, BAGS_IMPORT_MCAP, 8) != 0)
        return mc_bad(s, "no footer (truncated?)");
    mc_part(&end, 9);
    uint64_t start = mc_number(&end, 8);
    mc_part(&end, 8);
    uint64_t crc = mc_number(&end, 4);
    if (start == 0)
        return BAGS_OK;
    if (start > stop)
        return mc_bad(s, "invalid start of the summary");
    bags_code code = mc_view(s, start, stop + 25 - start, &rest);
    if (!code)
        code = mc_check(s, crc, mc_crc(0, rest.data, rest.size), "summary");
    rest.size = stop - start;
    while (!code && rest.size > 0) {
        mc_bytes body;
        int kind = mc_record(&rest, &body);
        if (rest.bad)
            return mc_bad(s, "invalid record in the summary");
        found[0] += kind == MC_SCHEMA;
        found[1] += kind == MC_CHANNEL;
        found[2] += kind == MC_ATTACHMENT_INDEX;
        found[3] += kind == MC_METADATA_INDEX;
        if (kind == MC_CHANNEL) {
            code = mc_channel_record(s, body);
        } else if (kind == MC_STATISTICS) {
            s->length = mc_number(&body, 8);
            expected[0] = mc_number(&body, 2);
            for (size_t i = 1; i < 4; i++)
                expected[i] = mc_number(&body, 4);
        } else if (kind == MC_SCHEMA) {
            code = mc_schema_record(s, body);
        } else if (kind == MC_ATTACHMENT_INDEX || kind == MC_METADATA_INDEX) {
            code = mc_leave_out(s, kind, body);
        }
    }
    m->known = !code && memcmp(found, expected, sizeof found) == 0;
    if (m->known)
        return BAGS_OK;
    /* The entire file will be read, and these will be reported again. */
    s->left_out_count = 0;
    memset(m->channels, 0, sizeof m->channels);
    memset(m->schemas, 0, sizeof m->schemas);
    return code;
}

/* ---- messages ---- */

typedef struct mc_message {
    const mc_channel *channel;
    uint64_t sequence, logged, published;
    bags_view bytes;
} mc_message;

static bags_code mc_parse(bags_source *s, mc_bytes from, mc_message *out) {
    const mc_state *m = (const mc_state *)s->state;
    out->channel = m->channels[mc_number(&from, 2)];
    out->sequence = mc_number(&from, 4);
    out->logged = mc_number(&from, 8);
    out->published = mc_number(&from, 8);
    out->bytes.data = from.data;
    out->bytes.size = (size_t)from.size;
    return from.bad || !out->channel
               ? mc_bad(s, "invalid message, or of an unknown channel")
               : BAGS_OK;
}

static bool mc_is(bags_view text, const char *word) {
    return text.size == strlen(word) && memcmp(text.data, word, text.size) == 0;
}

/* Choose the decoder of a topic, and build its nodes. */
static bags_code mc_prepare(
    const message_call *call, const mc_channel *channel, mc_format *format) {
    const mc_state *m = (const mc_state *)call->source->state;
    const mc_schema *schema = m->schemas[channel->schema];
    bags_view how = {(const unsigned char *)"", 0};
    bags_view encoding = channel->encoding;
    if (channel->schema && !schema)
        return message_fail(call, NULL, BAGS_ERROR_CORRUPT,
            "the file lacks its schema (number %" PRIu64 ")",
            (uint64_t)channel->schema);
    if (schema)
        how = schema->encoding;
    format->root = message_node_new(call, NULL, "", 0);
    if (!format->root)
        return call->source->err->code;
    if (mc_is(encoding, "json") && (!schema || mc_is(how, "jsonschema"))) {
        format->root->learned = true;
        format->decoder = json_decode;
        return BAGS_OK;
    }
    if (mc_is(encoding, "protobuf") && mc_is(how, "protobuf")) {
        format->decoder = protobuf_decode;
        return protobuf_nodes(call, schema->name, schema->data, format->root);
    }
    if (mc_is(encoding, "cdr") && mc_is(how, "ros2msg")) {
        format->decoder = ros2_decode;
        return ros2_nodes(call, schema->name, schema->data, format->root);
    }
    if (mc_is(encoding, "cdr") && mc_is(how, "ros2idl")) {
        format->decoder = ros2_decode;
        return idl_nodes(call, schema->name, schema->data, format->root);
    }
    return message_fail(call, NULL, BAGS_ERROR_TYPE,
        "cannot decode messages in \"%.*s\" with %s%.*s%s",
        (int)(encoding.size < 40 ? encoding.size : 40), (const char *)encoding.data,
        schema ? "a schema in \"" : "no schema", (int)(how.size < 40 ? how.size : 40),
        (const char *)how.data, schema ? "\"" : "");
}

/* Channels of one topic must agree. */
static bool mc_agree(
    const mc_state *m, const mc_channel *left, const mc_channel *right) {
    const mc_schema *a = m->schemas[left->schema], *b = m->schemas[right->schema];
    return mc_same(left->encoding, right->encoding) &&
           (a == b ||
               (a && b && mc_same(a->name, b->name) &&
                   mc_same(a->encoding, b->encoding) && mc_same(a->data, b->data)));
}

/* Decode a message. Its topic is prepared by the first one. */
static bags_code mc_decode(bags_source *s, const mc_message *message, uint64_t index,
    mc_format **out_format, message_value *out) {
    mc_state *m = (mc_state *)s->state;
    mc_format *format = *out_format = &m->formats[message->channel->topic->kind - 1];
    message_call call;
    memset(&call, 0, sizeof call);
    call.source = s;
    call.topic = message->channel->topic->name;
    call.index = index;
    call.learning = !m->learned;
    call.nodes = &m->node_count;
    if (!format->root && m->learned)
        return message_fail(
            &call, NULL, BAGS_ERROR_CORRUPT, "changed while the file was read");
    if (!format->root)
        FORMAT_TRY(mc_prepare(&call, message->channel, format));
    if (!format->channel)
        format->channel = message->channel;
    if (!mc_agree(m, format->channel, message->channel))
        return message_fail(&call, NULL, BAGS_ERROR_TYPE,
            "another channel of this topic has another schema or encoding");
    memset(out, 0, sizeof *out);
    return format->decoder(&call, format->root, message->bytes, out);
}

/* Learn what a message contains. */
static bags_code mc_learn(bags_source *s, mc_bytes bytes, uint64_t index) {
    mc_message message;
    mc_format *format = NULL;
    message_value value;
    FORMAT_TRY(mc_parse(s, bytes, &message));
    bags_source_scratch(s, true);
    bags_code code = mc_decode(s, &message, index, &format, &value);
    bags_source_scratch(s, false);
    if (!code)
        message_learn(format->root, &value, false);
    return code;
}

/* ---- the source ---- */

static const char *mc_type(const bags_import_column *column) {
    (void)column;
    return "bytes";
}

/* Read all messages. */
static bags_code mc_scan(bags_source *s) {
    mc_state *m = (mc_state *)s->state;
    mc_bytes message;
    uint64_t count = 0;
    while (true) {
        FORMAT_TRY(mc_next(s, &message));
        if (!message.data)
            break;
        if (s->options.decode)
            FORMAT_TRY(mc_learn(s, message, count));
        count++;
    }
    if (m->known && count != s->length)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "contains %" PRIu64 " messages (its summary states %" PRIu64 ")", count,
            s->length);
    s->length = count;
    m->known = m->learned = true;
    return BAGS_OK;
}

/* Add a member: text, or Base64 if it is binary or not UTF-8. */
static void mc_info_text(
    json_object *to, const char *name, bags_view text, bool binary) {
    char base64[300];
    if (!binary && bags_utf8_valid(text.data, text.size, NULL)) {
        json_object_object_add(to, name,
            json_object_new_string_len((const char *)text.data, (int)text.size));
        return;
    }
    char *coded = (char *)malloc(text.size / 3 * 4 + 5);
    size_t size = 0;
    for (size_t i = 0; coded && i < text.size; i += 3, size += 4)
        format_base64_encode(text.data + i, text.size - i, coded + size);
    snprintf(base64, sizeof base64, "%s_base64", name);
    if (coded)
        json_object_object_add(
            to, base64, json_object_new_string_len(coded, (int)size));
    free(coded);
}

static void mc_info_channel(json_object *to, size_t id, const mc_channel *channel) {
    json_object *metadata = json_object_new_object();
    bags_view topic = {
        (const unsigned char *)channel->topic->name, channel->topic->size};
    mc_bytes rest = {channel->metadata.data, channel->metadata.size, false};
    json_object_object_add(to, "id", json_object_new_int((int)id));
    mc_info_text(to, "topic", topic, false);
    mc_info_text(to, "message_encoding", channel->encoding, false);
    json_object_object_add(to, "schema_id", json_object_new_int((int)channel->schema));
    while (metadata && rest.size > 0 && !rest.bad) {
        char name[256];
        bags_view key = mc_text(&rest, 4), value = mc_text(&rest, 4);
        if (rest.bad || key.size >= sizeof name ||
            !bags_utf8_valid(key.data, key.size, NULL))
            continue;
        memcpy(name, key.data, key.size);
        name[key.size] = 0;
        mc_info_text(metadata, name, value, false);
    }
    json_object_object_add(to, "metadata", metadata);
}

/* Describe the channels and schemas as JSON. The caller frees the result. */
static json_object *mc_describe(bags_source *s) {
    const mc_state *m = (const mc_state *)s->state;
    size_t kept = 0;
    json_object *info = json_object_new_object(), *mcap = json_object_new_object();
    json_object *channels = json_object_new_array(), *schemas = json_object_new_array();
    json_object_object_add(mcap, "channels", channels);
    json_object_object_add(mcap, "schemas", schemas);
    json_object_object_add(info, "mcap", mcap);
    for (size_t i = 0; i < 65536; i++) {
        const mc_schema *schema = m->schemas[i];
        json_object *one = m->channels[i] ? json_object_new_object() : NULL;
        if (one) {
            mc_info_channel(one, i, m->channels[i]);
            json_object_array_add(channels, one);
        }
        if (!schema)
            continue;
        if (schema->data.size > MC_KEPT - kept) {
            bags_source_leave_out(s, "schema", 1, "%.*s",
                (int)(schema->name.size < 200 ? schema->name.size : 200),
                (const char *)schema->name.data);
            continue;
        }
        kept += schema->data.size;
        one = json_object_new_object();
        json_object_object_add(one, "id", json_object_new_int((int)i));
        mc_info_text(one, "name", schema->name, false);
        mc_info_text(one, "encoding", schema->encoding, false);
        mc_info_text(one, "data", schema->data, mc_is(schema->encoding, "protobuf"));
        json_object_array_add(schemas, one);
    }
    return info;
}

/* Set the source's metadata. */
static bags_code mc_set_metadata(bags_source *s) {
    json_object *info = mc_describe(s);
    s->metadata = bags_source_print_json(s, info);
    json_object_put(info);
    return s->metadata ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Add the fields of the topics that have messages. */
static void mc_add_topics(bags_source *s) {
    const mc_state *m = (const mc_state *)s->state;
    bags_source_field(s, "topic", "utf8");
    for (size_t i = 0; i < s->column_count; i++) {
        mc_format *format = &m->formats[s->columns[i]->kind - 1];
        if (!format->root) {
            bags_source_leave_out(
                s, "topic without messages", 1, "%s", s->columns[i]->name);
            continue;
        }
        message_settle(format->root);
        message_fields(s, format->root, false);
    }
}

static bags_code mc_open(bags_source *s) {
    mc_state *m = (mc_state *)s->state;
    bags_view magic;
    FORMAT_TRY(bags_source_open_file(s, s->path));
    FORMAT_TRY(bags_source_view(s, 0, s->file.size < 8 ? 0 : 8, &magic));
    if (magic.size < 8 || memcmp(magic.data, BAGS_IMPORT_MCAP, 8) != 0)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT, "not an MCAP file");
    if (s->file.size < 8 + 9 + 20 + 8)
        return mc_bad(s, "truncated");
    FORMAT_TRY(mc_summary(s));
    mc_rewind(m);
    if (!m->known || s->options.decode) {
        FORMAT_TRY(mc_scan(s));
        mc_rewind(m);
    }
    bags_source_field(s, "log_time", "i64");
    bags_source_field(s, "publish_time", "i64");
    bags_source_field(s, "sequence", "u64");
    if (s->options.decode)
        mc_add_topics(s);
    else
        bags_source_add_columns(s, mc_type);
    m->items = (bags_value **)bags_source_alloc(s, s->count, sizeof *m->items);
    return mc_set_metadata(s);
}

static bags_code mc_read(bags_source *s, uint64_t index) {
    mc_state *m = (mc_state *)s->state;
    mc_bytes bytes = {NULL, 0, false};
    mc_message message;
    mc_format *format = NULL;
    message_value value;
    for (bool more = true; more && m->next <= index; m->next += more) {
        FORMAT_TRY(mc_next(s, &bytes));
        more = bytes.data != NULL;
    }
    if (!bytes.data || m->next > s->length) {
        s->ended = true;
        return m->next == s->length ? BAGS_OK
                                    : bags_source_fail(s, BAGS_ERROR_CORRUPT,
                                          "contains %" PRIu64
                                          " messages (its summary states %" PRIu64 ")",
                                          m->next, s->length);
    }
    FORMAT_TRY(mc_parse(s, bytes, &message));
    if (message.logged > INT64_MAX || message.published > INT64_MAX)
        return bags_source_fail(s, BAGS_ERROR_VALUE,
            "datapoint %" PRIu64 ": time out of range for i64 (%" PRIu64 ")", index,
            message.logged > INT64_MAX ? message.logged : message.published);
    const bags_import_column *topic = message.channel->topic;
    s->values[0] = bags_int((int64_t)message.logged);
    s->values[1] = bags_int((int64_t)message.published);
    s->values[2] = bags_uint(message.sequence);
    for (size_t i = 3; i < s->count; i++)
        s->entries[i].count = 0;
    if (!s->options.decode) {
        s->values[topic->field] = bags_blob(message.bytes.data, message.bytes.size);
        s->entries[topic->field].count = 1;
        return BAGS_OK;
    }
    s->values[3] = bags_utf8_sized(topic->name, topic->size);
    s->entries[3].count = 1;
    FORMAT_TRY(mc_decode(s, &message, index, &format, &value));
    const message_sink to = {s, m->items};
    return message_fill(&to, format->root, &value, false);
}

const bags_importer bags_import_mcap = {
    "mcap", bags_import_is_mcap, sizeof(mc_state), mc_open, mc_read, NULL};
