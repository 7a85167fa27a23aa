/* See durability.h. */
#include "durability.h"

#include <errno.h>

/* ---- datapoints ---- */

const bags_field point_fields[POINT_FIELDS] = {
    {"text", "utf8"}, {"clip", "bytes[]"}, {"id", "int(8)"}};

#define MOST_TEXT 9000

/* Every seventh is longer than a buffer of 4 KiB; some are empty. */
static size_t text_size(uint64_t number) {
    return number % 7 == 3 ? 4500 + (size_t)number * 13 % 4000
                           : (size_t)(number * 37 % 160);
}

static size_t clip_count(uint64_t number) { return (size_t)(number % 4); }

static size_t clip_size(uint64_t number, size_t item) {
    return (size_t)((number * 5 + item * 11) % 90);
}

/* Letters that identify their datapoint, so that they are valid UTF-8. */
static const char *letters(uint64_t number, size_t item, size_t size) {
    static char text[MOST_TEXT];
    uint64_t state = number * 16 + item;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = next_random(&state);
        for (size_t j = 0; j < 8 && i + j < size; j++)
            text[i + j] = (char)('a' + (word >> (8 * j) & 15));
    }
    return text;
}

/* The number whose text and clip this datapoint has. */
static uint64_t content_of(const work *w, uint64_t number) {
    return w->share ? number - number % w->share : number;
}

/* Refer to the text and clip of a datapoint if this shard has them, and otherwise note
 * that it has them now. */
static bool refer(work *w, const bags_writer *writer, uint64_t content) {
    uint64_t shards = bags_writer_shards(writer);
    bool stored = w->share && w->shared == content + 1 && w->shared_shard == shards;
    if (!stored) {
        w->shared = content + 1;
        w->shared_shard = shards;
        w->text = bags_writer_next(writer, "text");
        w->clip = bags_writer_next(writer, "clip");
    }
    return stored;
}

static bags_code append_whole(
    work *w, bags_writer *writer, uint64_t id, bags_error *err) {
    char store[4][128], text[MOST_TEXT];
    uint64_t number = content_of(w, id);
    bool stored = refer(w, writer, number);
    bags_value clip[4], plain[2];
    bags_entry entries[POINT_FIELDS];
    memcpy(text, letters(number, 9, text_size(number)), text_size(number));
    for (size_t i = 0; i < clip_count(number); i++) {
        memcpy(store[i], letters(number, i, 128), sizeof store[i]);
        clip[i] = stored ? bags_stored(w->clip + i)
                         : bags_blob(store[i], clip_size(number, i));
    }
    plain[0] = stored ? bags_stored(w->text) : bags_utf8_sized(text, text_size(number));
    plain[1] = bags_uint(id);
    memset(entries, 0, sizeof entries);
    entries[0].field = "text";
    entries[0].values = &plain[0];
    entries[0].count = 1;
    entries[1].field = "clip";
    entries[1].values = clip;
    entries[1].count = clip_count(number);
    entries[2].field = "id";
    entries[2].values = &plain[1];
    entries[2].count = 1;
    return bags_writer_append(writer, entries, POINT_FIELDS, err);
}

/* Begin a datapoint, write more of it than a buffer holds, and cancel it. */
static bags_code drop_one(bags_writer *writer, uint64_t number, bags_error *err) {
    bags_value item = bags_blob(letters(number + 1, 0, 3000), 3000);
    bags_code code = bags_writer_begin(writer, err);
    for (int i = 0; i < 3 && !code; i++)
        code = bags_writer_push(writer, "clip", &item, err);
    bags_writer_cancel(writer);
    return code;
}

static bags_code append_streamed(
    work *w, bags_writer *writer, uint64_t id, bags_error *err) {
    uint64_t number = content_of(w, id);
    bags_code code = drop_one(writer, number, err);
    bool stored = refer(w, writer, number);
    bags_value value = bags_uint(id);
    if (!code)
        code = bags_writer_begin(writer, err);
    if (!code)
        code = bags_writer_set(writer, "id", &value, err);
    for (size_t i = 0; i < clip_count(number) && !code; i++) {
        value = stored ? bags_stored(w->clip + i)
                       : bags_blob(letters(number, i, 128), clip_size(number, i));
        code = bags_writer_push(writer, "clip", &value, err);
    }
    value = stored ? bags_stored(w->text)
                   : bags_utf8_sized(
                         letters(number, 9, text_size(number)), text_size(number));
    if (!code)
        code = bags_writer_set(writer, "text", &value, err);
    if (!code)
        code = bags_writer_end(writer, err);
    else
        bags_writer_cancel(writer);
    return code;
}

static bool blob_is_right(
    bags_view blob, const void *expected, size_t size, bool emptied) {
    if (emptied && blob.size == 0)
        return true;
    return blob.size == size && (size == 0 || memcmp(blob.data, expected, size) == 0);
}

static bool point_is_right(
    const work *w, const bags_row *row, bags_view text, uint64_t index, bool emptied) {
    uint64_t number = content_of(w, w->first + index);
    bytes id = {NULL, 0, 0};
    put_u64(&id, w->first + index);
    bool right = bags_row_length(row, 0) == clip_count(number) &&
                 blob_is_right(bags_row_bytes(row, 1, 0), id.data, 8, emptied) &&
                 blob_is_right(text, letters(number, 9, text_size(number)),
                     text_size(number), emptied);
    for (size_t i = 0; i < clip_count(number) && right; i++)
        right = blob_is_right(bags_row_bytes(row, 0, i), letters(number, i, 128),
            clip_size(number, i), emptied);
    bytes_free(&id);
    return right;
}

/* The text of a datapoint. Bytes that are none of the codec become one byte. */
static bags_code text_of(
    const work *w, bags_row *row, bags_view *out, bags_error *err) {
    bags_value value;
    *out = bags_row_bytes(row, 2, 0);
    if (!w->options.registry || !out->size)
        return BAGS_OK;
    bags_code code = bags_row_value(row, 2, 0, NULL, &value, err);
    out->data = code ? (const unsigned char *)"?" : (const unsigned char *)value.data;
    out->size = code ? 1 : value.size;
    return code == BAGS_ERROR_CORRUPT ? BAGS_OK : code;
}

/* ---- writers ---- */

work work_on(const char *path, uint64_t shard_length, const bags_io *io) {
    work w;
    memset(&w, 0, sizeof w);
    w.path = path;
    w.options.shard_length = shard_length;
    w.options.buffer_size = 4096;
    w.options.env.io = io;
    return w;
}

bags_writer *work_open(work *w, bool resume, bags_error *err) {
    w->options.existing = resume ? BAGS_EXISTING_RESUME : BAGS_EXISTING_REFUSE;
    bags_writer *writer =
        bags_writer_open(w->path, point_fields, POINT_FIELDS, &w->options, err);
    w->shared = 0;
    if (writer)
        w->appended = w->flushed = bags_writer_resumed(writer);
    return writer;
}

bags_code work_append(work *w, bags_writer *writer, bags_error *err) {
    uint64_t shards = bags_writer_shards(writer);
    uint64_t number = w->first + w->appended;
    /* It may have been written even if the call fails. */
    w->appended++;
    bags_code code = number % 3 == 2 ? append_streamed(w, writer, number, err)
                                     : append_whole(w, writer, number, err);
    if (!code && bags_writer_shards(writer) > shards)
        w->flushed = w->appended;
    return code;
}

bags_code work_append_to(work *w, bags_writer *writer, uint64_t stop, bags_error *err) {
    bags_code code = BAGS_OK;
    while (w->appended < stop && !code)
        code = work_append(w, writer, err);
    return code;
}

bags_code work_flush(work *w, bags_writer *writer, bags_error *err) {
    bags_code code = bags_writer_flush(writer, err);
    if (!code)
        w->flushed = w->appended;
    return code;
}

bags_code work_sync(work *w, bags_writer *writer, bags_error *err) {
    bags_code code = bags_writer_sync(writer, err);
    if (!code)
        w->flushed = w->appended;
    return code;
}

bags_code work_close(work *w, bags_writer *writer, bags_error *err) {
    bags_code code = bags_writer_close(writer, err);
    if (!code)
        w->flushed = w->appended;
    return code;
}

uint64_t work_blobs(const work *w, uint64_t length) {
    uint64_t blobs = 0;
    for (uint64_t i = 0; i < length; i++)
        blobs += 2 + clip_count(w->first + i);
    return blobs;
}

/* ---- readers ---- */

static bool is_sharded(const work *w) {
    return w->options.shard_length || w->options.shard_size || w->options.shard_stop;
}

bags_reader *work_read(
    const work *w, const bags_reader_options *options, bags_error *err) {
    bags_reader_options with = *options;
    with.registry = w->options.registry;
    if (is_sharded(w)) {
        with.shard_start = w->options.shard_start;
        with.shard_stop = w->options.shard_stop;
    }
    return bags_reader_open(w->path, &with, err);
}

finding work_check(const work *w, const bags_reader *reader) {
    finding f;
    bags_row row = {0};
    memset(&f, 0, sizeof f);
    f.opened = true;
    f.length = bags_reader_length(reader);
    f.verified = true;
    for (uint64_t i = 0; i < f.length; i++) {
        bags_view text;
        if (bags_reader_get(reader, i, NULL, 0, &row, &f.error) ||
            text_of(w, &row, &text, &f.error)) {
            f.verified = false;
            continue;
        }
        if (f.right == i && point_is_right(w, &row, text, i, false))
            f.right++;
        if (f.emptied == i && point_is_right(w, &row, text, i, true))
            f.emptied++;
    }
    bags_row_free(&row);
    return f;
}

static bags_code verify_work(
    const work *w, const bags_reader_options *reading, bags_error *err) {
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.allow_gaps = reading->allow_gaps;
    options.unfinished = BAGS_UNFINISHED_SKIP; /* a reader would refuse them */
    options.shard_start = w->options.shard_start;
    options.shard_stop = w->options.shard_stop;
    options.env = reading->env;
    return bags_verify(w->path, &options, NULL, err);
}

finding work_read_all(const work *w, const bags_reader_options *options) {
    finding f;
    memset(&f, 0, sizeof f);
    bags_reader *reader = work_read(w, options, &f.error);
    if (reader)
        f = work_check(w, reader);
    bags_reader_close(reader);
    return f;
}

finding work_find_with(const work *w, const bags_reader_options *options) {
    bags_error why;
    finding f = work_read_all(w, options);
    if (f.opened && verify_work(w, options, &why)) {
        f.verified = false;
        f.error = why;
    }
    return f;
}

finding work_find(const work *w, const bags_io *io, bool skip_unfinished) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.unfinished =
        skip_unfinished ? BAGS_UNFINISHED_SKIP : BAGS_UNFINISHED_REFUSE;
    return work_find_with(w, &options);
}

typedef struct listing {
    char names[64][64];
    size_t count;
} listing;

static int take_name(void *user, const char *name) {
    listing *l = (listing *)user;
    if (l->count < 64 && strlen(name) < sizeof l->names[0])
        strcpy(l->names[l->count++], name);
    return 0;
}

void drop_journals(const bags_io *io, const char *path) {
    listing *l = (listing *)calloc(1, sizeof *l);
    char inner[256];
    bags_path_kind kind = BAGS_PATH_NONE;
    snprintf(inner, sizeof inner, "%s/spec.json", path);
    io->kind(io->user, inner, &kind);
    bool finished = kind == BAGS_PATH_FILE;
    io->list(io->user, path, take_name, l);
    for (size_t i = 0; i < l->count; i++) {
        const char *ending = strrchr(l->names[i], '.');
        snprintf(inner, sizeof inner, "%s/%s", path, l->names[i]);
        io->kind(io->user, inner, &kind);
        if (kind == BAGS_PATH_DIRECTORY)
            drop_journals(io, inner);
        else if (finished && ending &&
                 (strcmp(ending, ".idx") == 0 || strcmp(ending, ".partial") == 0))
            io->remove(io->user, inner);
    }
    free(l);
}

/* ---- datapoints in pieces ---- */

static const bags_field pieces_fields[] = {{"id", "int(8)"}, {"clip", "bytes[]"}};

void pieces_start(
    in_pieces *p, const char *path, uint64_t shard_length, const bags_io *io) {
    memset(p, 0, sizeof *p);
    p->path = path;
    p->options.shard_length = shard_length;
    p->options.buffer_size = 4096;
    p->options.env.io = io;
}

/* An item of datapoint `index`; some are longer than half a buffer. */
static bags_view piece(uint64_t index, uint64_t begun, uint64_t item) {
    static unsigned char data[2400];
    bags_view out = {data, item % 3 == 1 ? sizeof data : 40};
    fill(data, out.size, 10000 * index + 1000 * begun + item);
    return out;
}

static void pieces_certain(in_pieces *p, uint64_t length, uint64_t items) {
    p->certain_length = length;
    p->certain_items = items;
    if (p->changed)
        p->changed(p);
}

static bags_code pieces_push(in_pieces *p, uint64_t count, bags_error *err) {
    uint64_t index = p->ended;
    bags_code code = BAGS_OK;
    for (uint64_t i = 0; i < count && !code; i++) {
        bags_view data = piece(index, p->begun[index], p->items[index]++);
        bags_value item = bags_blob(data.data, data.size);
        p->where = "bags_writer_push";
        code = bags_writer_push(p->writer, "clip", &item, err);
    }
    return code;
}

static bags_code pieces_begin(in_pieces *p, uint64_t count, bags_error *err) {
    bags_value id = bags_uint(p->ended);
    p->most = p->ended + 1;
    p->where = "bags_writer_begin";
    bags_code code = bags_writer_begin(p->writer, err);
    if (code)
        return code;
    p->begun[p->ended]++;
    p->items[p->ended] = 0;
    p->where = "bags_writer_set";
    code = bags_writer_set(p->writer, "id", &id, err);
    return code ? code : pieces_push(p, count, err);
}

static bags_code pieces_flush(in_pieces *p, bool begun, bool sync, bags_error *err) {
    p->where = sync ? "bags_writer_sync" : "bags_writer_flush";
    bags_code code =
        sync ? bags_writer_sync(p->writer, err) : bags_writer_flush(p->writer, err);
    if (!code && (sync || !p->syncs))
        pieces_certain(p, p->ended, begun ? p->items[p->ended] : 0);
    return code;
}

static bags_code pieces_end(in_pieces *p, bags_error *err) {
    uint64_t shards = bags_writer_shards(p->writer);
    p->where = "bags_writer_end";
    bags_code code = bags_writer_end(p->writer, err);
    if (!code)
        p->fewest[p->ended] = p->items[p->ended];
    p->ended += !code;
    if (!code && bags_writer_shards(p->writer) > shards)
        pieces_certain(p, p->ended, 0);
    return code;
}

static void pieces_cancel(in_pieces *p) {
    if (p->certain_items && p->certain_length == p->ended)
        pieces_certain(p, p->ended, 0);
    p->where = "bags_writer_cancel";
    bags_writer_cancel(p->writer);
}

static bags_code pieces_open(in_pieces *p, bool resume, bags_error *err) {
    p->options.existing = resume ? BAGS_EXISTING_RESUME : BAGS_EXISTING_REFUSE;
    p->where = "bags_writer_open";
    p->writer = bags_writer_open(p->path, pieces_fields, 2, &p->options, err);
    return p->writer ? BAGS_OK : err->code;
}

#define PIECE(call)                                                                    \
    do {                                                                               \
        bags_code code = (call);                                                       \
        if (code)                                                                      \
            return code;                                                               \
    } while (0)

bags_code pieces_write(in_pieces *p, bags_error *err) {
    PIECE(pieces_open(p, false, err));
    /* 0: never flushed; then flushed twice, ended and not flushed; then flushed. */
    PIECE(pieces_begin(p, 2, err));
    PIECE(pieces_end(p, err));
    PIECE(pieces_begin(p, 3, err));
    PIECE(pieces_flush(p, true, false, err));
    PIECE(pieces_push(p, 2, err));
    PIECE(pieces_flush(p, true, true, err));
    PIECE(pieces_push(p, 3, err));
    PIECE(pieces_end(p, err));
    PIECE(pieces_begin(p, 4, err));
    PIECE(pieces_flush(p, true, false, err));
    PIECE(pieces_end(p, err));
    PIECE(pieces_flush(p, false, false, err));
    /* 3: cancelled after a flush and after a sync; then others are in its place. */
    PIECE(pieces_begin(p, 5, err));
    PIECE(pieces_flush(p, true, false, err));
    pieces_cancel(p);
    PIECE(pieces_begin(p, 3, err));
    PIECE(pieces_flush(p, true, true, err));
    PIECE(pieces_push(p, 2, err));
    pieces_cancel(p);
    PIECE(pieces_begin(p, 6, err));
    PIECE(pieces_end(p, err));
    /* 4: synced, flushed, and more in a full buffer. */
    PIECE(pieces_begin(p, 2, err));
    PIECE(pieces_flush(p, true, true, err));
    PIECE(pieces_push(p, 1, err));
    PIECE(pieces_flush(p, true, false, err));
    return pieces_push(p, 7, err);
}

bags_code pieces_resume(in_pieces *p, bags_error *err) {
    PIECE(pieces_open(p, true, err));
    p->ended = bags_writer_resumed(p->writer);
    if (p->ended < p->certain_length + (p->certain_items > 0) || p->ended > p->most)
        return bags_fail(
            err, BAGS_ERROR_VALUE, "%d datapoints were resumed", (int)p->ended);
    if (p->certain_length < p->ended) /* it was not ended, or that was not flushed */
        p->fewest[p->certain_length] = p->certain_items;
    bags_code code = pieces_begin(p, 2, err);
    if (!code)
        code = pieces_flush(p, true, false, err);
    if (!code)
        code = pieces_end(p, err);
    bags_code closed = bags_writer_close(p->writer, code ? NULL : err);
    p->writer = NULL;
    return code ? code : closed;
}

static bool is_piece(
    const bags_row *row, uint64_t index, uint64_t begun, uint64_t item) {
    bags_view expected = piece(index, begun, item);
    bags_view found = bags_row_bytes(row, 0, item);
    return found.size == expected.size &&
           memcmp(found.data, expected.data, found.size) == 0;
}

const char *pieces_fault(const in_pieces *p, const bags_io *io) {
    static char text[250];
    bags_reader_options options;
    bags_error err;
    bags_row row = {0};
    const char *fault = NULL;
    uint64_t at_point = 0;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.unfinished = BAGS_UNFINISHED_SKIP;
    bags_reader *reader = bags_reader_open(p->path, &options, &err);
    uint64_t length = reader ? bags_reader_length(reader) : 0;
    if (length < p->certain_length + (p->certain_items > 0) || length > p->most)
        fault = "length";
    for (uint64_t i = 0; i < length && !fault; i++) {
        /* Recovery may have completed the last one. */
        uint64_t least = i == p->certain_length ? p->certain_items : 0;
        if (i < p->certain_length || i + 1 < length)
            least = p->fewest[i];
        if (p->only_certain && i >= p->certain_length + (p->certain_items > 0))
            break;
        if (bags_reader_get(reader, i, NULL, 0, &row, &err))
            fault = err.message;
        uint64_t items = fault ? 0 : bags_row_length(&row, 0);
        if (!fault && ((items > p->items[i] && !p->only_certain) || items < least))
            fault = "items";
        items = p->only_certain ? least : items;
        uint64_t most = p->begun[i] + (p->any_begun ? 3 : 0), begun = p->begun[i];
        while (begun < most && items && !is_piece(&row, i, begun, 0))
            begun++;
        for (uint64_t k = 0; k < items && !fault; k++)
            fault = is_piece(&row, i, begun, k) ? NULL : "an item";
        if (!fault && bags_row_bytes(&row, 1, 0).data[0] != i)
            fault = "an id";
        if (fault)
            at_point = i;
    }
    if (fault)
        snprintf(text, sizeof text,
            "datapoint %d: wrong %.90s; %d datapoints and %d items were certain, %d "
            "exist, at most %d",
            (int)at_point, fault, (int)p->certain_length, (int)p->certain_items,
            (int)length, (int)p->most);
    bags_row_free(&row);
    bags_reader_close(reader);
    return fault ? text : NULL;
}

/* ---- crashes ---- */

/* Counts as one call, like any other. */
static int crash_device_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    watch *w = (watch *)user;
    if (!w->stays || w->only || w->calls + 1 != w->fail_at)
        return w->io.write_at(user, file, offset, data, size, done);
    w->fail_at = 0;
    w->io.write_at(user, file, offset, data, size / 2, done);
    w->fail_at = w->calls;
    w->failed++;
    w->last = HOOK_WRITE;
    return w->fail_with;
}

void crash_device_start(crash_device *m, const bags_io *base) {
    watch_start(&m->files, base);
    m->io = m->files.io;
    m->io.write_at = crash_device_write;
}

void crash_at(crash_device *m, uint64_t n) {
    m->files.only = 0;
    m->files.fail_at = n;
    m->files.stays = true;
}

void crash_writer(crash_device *m, bags_writer *writer) {
    watch *w = &m->files;
    uint64_t calls = w->calls, fail_at = w->fail_at, failed = w->failed;
    unsigned only = w->only;
    int last = w->last, lost_bags = w->lost_bags;
    bool stays = w->stays;
    w->only = 0;
    w->fail_at = 1;
    w->stays = true;
    w->calls = 1;
    bags_writer_close(writer, NULL);
    w->calls = calls;
    w->fail_at = fail_at;
    w->failed = failed;
    w->only = only;
    w->last = last;
    w->lost_bags = lost_bags;
    w->stays = stays;
}

/* ---- memory ---- */

static void *ration_resize(void *user, void *data, size_t old_size, size_t new_size) {
    ration *r = (ration *)user;
    if (new_size == 0) {
        r->live -= data != NULL;
        free(data);
        return NULL;
    }
    if (new_size > old_size) {
        r->calls++;
        if (r->fail_at &&
            (r->stays ? r->calls >= r->fail_at : r->calls == r->fail_at)) {
            r->failed++;
            return NULL;
        }
    }
    void *moved = realloc(data, new_size);
    r->live += moved && !data;
    return moved;
}

void ration_start(ration *r) {
    memset(r, 0, sizeof *r);
    r->allocator.resize = ration_resize;
    r->allocator.user = r;
}
