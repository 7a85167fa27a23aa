/*
 * mcap.c - imports MCAP files, on zstd, lz4 and zlib's CRC-32 (Debian: libzstd-dev
 * liblz4-dev zlib1g-dev).
 *
 * A datapoint is a message, in the order of the file:
 *
 *     log_time      i64, nanoseconds
 *     publish_time  i64, nanoseconds
 *     sequence      u64
 *     TOPIC         bytes[]: for each topic, 1 item if the message is of it, or 0
 *
 * Messages are stored as they are; their encodings and schemas, attachments and
 * metadata are left out. Checksums are compared where the file has them. If the file
 * has no summary, open reads all of it to find the topics.
 *
 * Rejected: other compressions, chunks of more than 1 GiB, 10,000 topics.
 */
#include "import.h"

#include <lz4frame.h>
#include <zlib.h>
#include <zstd.h>

#include <inttypes.h>

#define MC_MAGIC "\x89MCAP0\r\n"
#define MC_WINDOW ((uint64_t)1 << 20) /* bytes that are read at a time */
#define MC_MOST ((uint64_t)1 << 30)   /* of a record in memory, or a chunk */
#define MC_RATIO ((uint64_t)1 << 16)  /* no compression makes more of a byte */
#define MC_TOPICS 10000
#define MC_FIXED 3 /* fields before the topics */

enum {
    MC_FOOTER = 2,
    MC_CHANNEL = 4,
    MC_MESSAGE = 5,
    MC_CHUNK = 6,
    MC_STATISTICS = 11,
    MC_DATA_END = 15
};

/* Bytes that remain to be parsed; bad is set if there were too few. */
typedef struct mc_bytes {
    const unsigned char *data;
    uint64_t size;
    bool bad;
} mc_bytes;

typedef struct mc_source {
    bags_import_arena arena;
    bags_import_file file;
    bags_buffer window, chunk, list;
    uint64_t window_start, window_size; /* what the window has */
    uint64_t at;                        /* offset of the next record */
    uint64_t record;        /* and of the current one, for messages */
    mc_bytes rest;          /* records of the current chunk */
    uint32_t crc;           /* of what precedes `at` */
    bool ended, known;      /* the data have ended; all topics are known */
    uint32_t topics[65536]; /* by channel: a field's number, or 0 */
    bags_field *fields;
    bags_entry *entries;
    size_t count;
    size_t topic;  /* the field that the last message is of */
    uint64_t next; /* number of the next message */
    uint64_t length;
    bags_value values[MC_FIXED + 1];
} mc_source;

static uint64_t mc_number(mc_bytes *from, size_t size) {
    uint64_t number = 0;
    if (from->size < size) {
        from->bad = true;
        from->size = 0;
        return 0;
    }
    for (size_t i = size; i-- > 0;)
        number = number << 8 | from->data[i];
    from->data += size;
    from->size -= size;
    return number;
}

/* The next `size` bytes. */
static bags_view mc_part(mc_bytes *from, uint64_t size) {
    bags_view part = {from->data, 0};
    if (from->size < size) {
        from->bad = true;
        from->size = 0;
        return part;
    }
    part.size = (size_t)size;
    from->data += size;
    from->size -= size;
    return part;
}

static bags_view mc_text(mc_bytes *from) {
    uint64_t size = mc_number(from, 4);
    return mc_part(from, size);
}

static bags_code mc_bad(const mc_source *s, const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: record at %" PRIu64 ": %s",
        s->file.path, s->record, what);
}

/* Bytes of the file, valid until the next call. */
static bags_code mc_view(mc_source *s, uint64_t offset, uint64_t size,
    mc_bytes *out, bags_error *err) {
    if (offset > s->file.size || size > s->file.size - offset)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: record at %" PRIu64 ": truncated (%" PRIu64
            " bytes at %" PRIu64 ", size of the file %" PRIu64 ")",
            s->file.path, s->record, size, offset, s->file.size);
    if (size > MC_MOST)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: record at %" PRIu64 ": too large (%" PRIu64
            " bytes, maximum %" PRIu64 ")",
            s->file.path, s->record, size, MC_MOST);
    if (offset < s->window_start ||
        offset + size > s->window_start + s->window_size) {
        uint64_t more = size < MC_WINDOW ? MC_WINDOW : size;
        if (more > s->file.size - offset)
            more = s->file.size - offset;
        s->window_size = 0;
        bags_code code = bags_buffer_reserve(&s->window, (size_t)more, err);
        if (!code)
            code = bags_import_file_read(
                &s->file, offset, s->window.data, (size_t)more, err);
        if (code)
            return code;
        s->window_start = offset;
        s->window_size = more;
    }
    out->data = s->window.data + (offset - s->window_start);
    out->size = size;
    out->bad = false;
    return BAGS_OK;
}

static bags_code mc_check(const mc_source *s, uint64_t stored,
    uint32_t computed, const char *of, bags_error *err) {
    if (stored == 0 || stored == computed)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: record at %" PRIu64
        ": checksum mismatch of the %s (computed %08" PRIx32
        ", stored %08" PRIx64 ")",
        s->file.path, s->record, of, computed, stored);
}

/* ---- records ---- */

/* Find or add the field of a topic. */
static bags_code mc_channel(mc_source *s, mc_bytes body, bags_error *err) {
    size_t id = (size_t)mc_number(&body, 2), field = MC_FIXED;
    mc_number(&body, 2);
    bags_view topic = mc_text(&body);
    if (body.bad || memchr(topic.data, 0, topic.size))
        return mc_bad(s, "invalid channel", err);
    bags_field *fields = (bags_field *)(void *)s->list.data;
    while (field < s->count &&
           (strlen(fields[field].name) != topic.size ||
               (topic.size &&
                   memcmp(fields[field].name, topic.data, topic.size) != 0)))
        field++;
    if (s->topics[id] && s->topics[id] != field)
        return mc_bad(s, "a channel changes its topic", err);
    if (field == s->count) {
        if (s->known)
            return mc_bad(s, "a topic that the summary lacks", err);
        if (s->count == MC_TOPICS)
            return bags_fail(
                err, BAGS_ERROR_LIMIT, "%s: too many topics", s->file.path);
        bags_code code =
            bags_buffer_reserve(&s->list, (s->count + 1) * sizeof *fields, err);
        char *name =
            code ? NULL
                 : bags_import_text(&s->arena, topic.data, topic.size, err);
        if (!name)
            return BAGS_ERROR_MEMORY;
        fields = (bags_field *)(void *)s->list.data;
        fields[s->count].name = name;
        fields[s->count++].type = "bytes[]";
    }
    s->topics[id] = (uint32_t)field;
    return BAGS_OK;
}

static bool mc_lz4(bags_view in, unsigned char *out, size_t size) {
    LZ4F_dctx *context = NULL;
    size_t done = 0, used = 0, more = 1;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)))
        return false;
    while (more && !LZ4F_isError(more) && used < in.size) {
        size_t made = size - done, taken = in.size - used;
        more = LZ4F_decompress(
            context, out + done, &made, in.data + used, &taken, NULL);
        if (made == 0 && taken == 0)
            break;
        done += made;
        used += taken;
    }
    LZ4F_freeDecompressionContext(context);
    return more == 0 && used == in.size && done == size;
}

static bags_code mc_open_chunk(mc_source *s, mc_bytes body, bags_error *err) {
    mc_part(&body, 16); /* first and last log time */
    uint64_t size = mc_number(&body, 8), crc = mc_number(&body, 4);
    bags_view how = mc_text(&body);
    uint64_t stored = mc_number(&body, 8);
    bags_view in = mc_part(&body, stored);
    bool good = false;
    if (body.bad)
        return mc_bad(s, "invalid chunk", err);
    if (size > MC_MOST || size / MC_RATIO > in.size)
        return mc_bad(s, "too large a chunk", err);
    bags_code code = bags_buffer_reserve(&s->chunk, (size_t)size + 1, err);
    if (code)
        return code;
    if (how.size == 4 && memcmp(how.data, "zstd", 4) == 0)
        good = ZSTD_decompress(s->chunk.data, (size_t)size, in.data, in.size) ==
               size;
    else if (how.size == 3 && memcmp(how.data, "lz4", 3) == 0)
        good = mc_lz4(in, s->chunk.data, (size_t)size);
    else if (how.size > 0)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: record at %" PRIu64 ": compression not supported (%.*s)",
            s->file.path, s->record, (int)(how.size < 40 ? how.size : 40),
            (const char *)how.data);
    else if ((good = in.size == size) && size > 0)
        memcpy(s->chunk.data, in.data, in.size);
    if (!good)
        return mc_bad(s, "damaged chunk", err);
    s->rest.data = s->chunk.data;
    s->rest.size = size;
    s->rest.bad = false;
    return mc_check(s, crc,
        (uint32_t)crc32(crc32(0, NULL, 0), s->chunk.data, (uInt)size), "chunk",
        err);
}

/* Read the record at `at` and move past it: the content of those that matter. */
static bags_code mc_top(
    mc_source *s, int *kind, mc_bytes *body, bags_error *err) {
    mc_bytes head;
    s->record = s->at;
    bags_code code = mc_view(s, s->at, 9, &head, err);
    if (code)
        return code;
    *kind = (int)mc_number(&head, 1);
    uint64_t size = mc_number(&head, 8), start = s->at, done = 0;
    if (size > s->file.size - s->at - 9)
        return mc_bad(s, "truncated", err);
    size += 9;
    while (*kind != MC_DATA_END && done < size) {
        uint64_t part = size - done < MC_WINDOW ? size - done : MC_WINDOW;
        code = mc_view(s, start + done, part, body, err);
        if (code)
            return code;
        s->crc = (uint32_t)crc32(s->crc, body->data, (uInt)part);
        done += part;
    }
    s->at += size;
    body->size = 0;
    if (*kind == MC_CHANNEL || *kind == MC_MESSAGE || *kind == MC_CHUNK ||
        *kind == MC_DATA_END)
        code = mc_view(s, start + 9, size - 9, body, err);
    return code;
}

/* The next message; data NULL after the last. */
static bags_code mc_next(mc_source *s, mc_bytes *message, bags_error *err) {
    bags_code code = BAGS_OK;
    message->data = NULL;
    while (!code && !s->ended) {
        mc_bytes body = {NULL, 0, false};
        int kind = 0;
        bool inside = s->rest.size > 0;
        if (inside) {
            kind = (int)mc_number(&s->rest, 1);
            body.size = mc_number(&s->rest, 8);
            body.data = mc_part(&s->rest, body.size).data;
            if (s->rest.bad)
                return mc_bad(s, "a record crosses the end of its chunk", err);
        } else {
            code = mc_top(s, &kind, &body, err);
        }
        if (code)
            return code;
        if (kind == MC_MESSAGE) {
            *message = body;
            return BAGS_OK;
        }
        if (kind == MC_CHANNEL) {
            code = mc_channel(s, body, err);
        } else if (kind == MC_CHUNK && !inside) {
            code = mc_open_chunk(s, body, err);
        } else if (kind == MC_DATA_END && !inside) {
            s->ended = true;
            code =
                mc_check(s, mc_number(&body, 4), s->crc, "data section", err);
        } else if (kind == MC_FOOTER) {
            code = mc_bad(s, "the data section has no end", err);
        }
    }
    return code;
}

static void mc_rewind(mc_source *s) {
    s->at = sizeof MC_MAGIC - 1;
    s->crc = (uint32_t)crc32(crc32(0, NULL, 0), (const unsigned char *)MC_MAGIC,
        sizeof MC_MAGIC - 1);
    s->rest.size = 0;
    s->ended = false;
}

/* ---- open ---- */

/* Read the topics and the length from the summary; `known` is set if it has
 * them. */
static bags_code mc_summary(mc_source *s, bags_error *err) {
    const uint64_t tail = 9 + 20 + 8; /* footer, magic */
    uint64_t channels = 0, expected = UINT64_MAX;
    mc_bytes end, rest;
    s->record = s->file.size - tail;
    bags_code code = mc_view(s, s->file.size - tail, tail, &end, err);
    if (code)
        return code;
    if (end.data[0] != MC_FOOTER ||
        memcmp(end.data + tail - 8, MC_MAGIC, 8) != 0)
        return mc_bad(s, "no footer (truncated?)", err);
    mc_part(&end, 9);
    uint64_t start = mc_number(&end, 8), stop = s->record;
    mc_number(&end, 8);
    uint64_t crc = mc_number(&end, 4);
    if (start == 0)
        return BAGS_OK;
    if (start > stop)
        return mc_bad(s, "invalid start of the summary", err);
    code = mc_view(s, start, stop + 25 - start, &rest, err);
    if (!code)
        code = mc_check(s, crc,
            (uint32_t)crc32(crc32(0, NULL, 0), rest.data, (uInt)rest.size),
            "summary", err);
    rest.size = stop - start;
    while (!code && rest.size > 0) {
        int kind = (int)mc_number(&rest, 1);
        uint64_t size = mc_number(&rest, 8);
        mc_bytes body = rest;
        mc_part(&rest, size);
        body.size = size;
        if (rest.bad)
            return mc_bad(s, "invalid record in the summary", err);
        if (kind == MC_CHANNEL) {
            code = mc_channel(s, body, err);
            channels++;
        } else if (kind == MC_STATISTICS) {
            s->length = mc_number(&body, 8);
            mc_number(&body, 2);
            expected = mc_number(&body, 4);
        }
    }
    s->known = !code && channels == expected;
    return code;
}

static bags_code mc_open(mc_source *s, bags_error *err) {
    static const bags_field fixed[MC_FIXED] = {
        {"log_time", "i64"}, {"publish_time", "i64"}, {"sequence", "u64"}};
    unsigned char magic[8];
    mc_bytes message;
    bags_code code = BAGS_OK;
    if (s->file.size >= 8)
        code = bags_import_file_read(&s->file, 0, magic, 8, err);
    if (!code && (s->file.size < 8 || memcmp(magic, MC_MAGIC, 8) != 0))
        code = bags_fail(
            err, BAGS_ERROR_CORRUPT, "%s: not an MCAP file", s->file.path);
    if (!code && s->file.size < 8 + 9 + 20 + 8)
        code = mc_bad(s, "truncated", err);
    if (!code)
        code = bags_buffer_reserve(&s->list, sizeof fixed, err);
    if (code)
        return code;
    memcpy(s->list.data, fixed, sizeof fixed);
    s->count = MC_FIXED;
    code = mc_summary(s, err);
    if (!code && !s->known) {
        mc_rewind(s);
        for (s->length = 0;
             !(code = mc_next(s, &message, err)) && message.data;)
            s->length++;
        s->known = true;
    }
    if (code)
        return code;
    s->fields = (bags_field *)bags_import_alloc(
        &s->arena, s->count, sizeof *s->fields, err);
    s->entries = (bags_entry *)bags_import_alloc(
        &s->arena, s->count, sizeof *s->entries, err);
    if (!s->fields || !s->entries)
        return BAGS_ERROR_MEMORY;
    memcpy(s->fields, s->list.data, s->count * sizeof *s->fields);
    code = bags_import_names(s->fields, s->count, s->file.path, &s->arena, err);
    for (size_t i = 0; !code && i < s->count; i++) {
        s->entries[i].field = s->fields[i].name;
        s->entries[i].values = &s->values[i < MC_FIXED ? i : MC_FIXED];
        s->entries[i].count = i < MC_FIXED;
    }
    s->topic = MC_FIXED;
    mc_rewind(s);
    return code;
}

static void mcap_close(void *source) {
    mc_source *s = (mc_source *)source;
    if (!s)
        return;
    bags_buffer_free(&s->window);
    bags_buffer_free(&s->chunk);
    bags_buffer_free(&s->list);
    bags_import_file_close(&s->file);
    bags_import_arena arena = s->arena;
    bags_import_free(&arena);
}

static bags_code mcap_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    mc_source *s = (mc_source *)bags_import_alloc(&arena, 1, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    s->arena = arena;
    s->window = s->chunk = s->list = bags_import_buffer_start(allocator);
    path = bags_import_text(&s->arena, path, strlen(path), err);
    bags_code code =
        path ? bags_import_file_open(&s->file, path, err) : BAGS_ERROR_MEMORY;
    if (!code)
        code = mc_open(s, err);
    if (code) {
        mcap_close(s);
        return code;
    }
    info->fields = s->fields;
    info->count = s->count;
    info->length = s->length;
    *source = s;
    return BAGS_OK;
}

static bags_code mcap_read(
    void *source, uint64_t index, const bags_entry **entries, bags_error *err) {
    mc_source *s = (mc_source *)source;
    mc_bytes message = {NULL, 0, false};
    bags_code code = BAGS_OK;
    *entries = NULL;
    while (!code && s->next <= index) {
        code = mc_next(s, &message, err);
        if (code || !message.data)
            break;
        s->next++;
    }
    if (code)
        return code;
    if (!message.data || s->next > s->length)
        return s->next == s->length
                   ? BAGS_OK
                   : bags_fail(err, BAGS_ERROR_CORRUPT,
                         "%s: contains %" PRIu64
                         " messages (its summary states %" PRIu64 ")",
                         s->file.path, s->next, s->length);
    uint32_t topic = s->topics[mc_number(&message, 2)];
    uint64_t sequence = mc_number(&message, 4), logged = mc_number(&message, 8);
    uint64_t published = mc_number(&message, 8);
    if (message.bad || topic == 0)
        return mc_bad(s, "invalid message, or of an unknown channel", err);
    if (logged > INT64_MAX || published > INT64_MAX)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: datapoint %" PRIu64 ": time out of range for i64 (%" PRIu64
            ")",
            s->file.path, index, logged > INT64_MAX ? logged : published);
    s->values[0] = bags_int((int64_t)logged);
    s->values[1] = bags_int((int64_t)published);
    s->values[2] = bags_uint(sequence);
    s->values[MC_FIXED] = bags_blob(message.data, (size_t)message.size);
    if (s->topic < s->count)
        s->entries[s->topic].count = 0;
    s->topic = topic;
    s->entries[topic].count = 1;
    *entries = s->entries;
    return BAGS_OK;
}

static bool mcap_detect(const char *path) {
    unsigned char start[8];
    return bags_import_peek(path, start, 8) == 8 &&
           memcmp(start, MC_MAGIC, 8) == 0;
}

const bags_importer bags_import_mcap = {
    "mcap", mcap_detect, mcap_open, mcap_read, mcap_close};
