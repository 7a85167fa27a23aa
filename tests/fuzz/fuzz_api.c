/*
 * A sequence of calls of writers, readers and recoveries, on a disk in memory
 * where a call or an allocation may fail or a writer may crash. A model of what
 * was appended, flushed and finished states what must be readable at any time.
 *
 * The input: two bytes of options of the dataset; then one byte per step, followed
 * by the bytes that it needs. Two workers write to a sharded dataset, or one to an
 * unsharded one.
 */
// flavours: test: asan
#include "durability.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WORKERS 2
#define POINTS 400
#define STEPS 200
#define ITEMS 5

/* The content of a datapoint follows from these. */
typedef struct point {
    uint64_t seed;
    size_t size;  /* of "a" */
    size_t items; /* of "s" */
} point;

typedef struct worker {
    crash_device device;
    bags_writer *writer;
    point points[POINTS];
    bool
        maybe; /* one more may exist: its append failed by a fault, and it is the next to be appended again */
    size_t least;  /* at least this many exist */
    size_t shut;   /* this many of them in finished shards */
    size_t length; /* this many were appended */
    bool finished; /* everything is, sharded or not */
    bool doubt;    /* after a fault it is unknown what is finished */
    bool begun;    /* it has written to the disk */
    bool streams;  /* between begin and end */
    bool failed;   /* a fault occurred since the writer was opened */
    bool refused;  /* a datapoint was refused since then, and that was not cleared */
} worker;

typedef struct program {
    const uint8_t *at, *end;
    memory_disk drive;
    tally blocks;
    worker workers[WORKERS];
    size_t count;
    bags_writer_options options;
    bool sharded;
    bool finalized; /* the shards' numbers do not identify workers any more */
    uint64_t clock;
} program;

static const bags_field fields[3] = {{"s", "bytes[]"}, {"a", "bytes"}, {"n", "int(8)"}};

static void demand(bool holds, const char *what, const char *detail) {
    if (holds)
        return;
    fprintf(stderr, "%s (%s)\n", what, detail);
    abort();
}

static unsigned take(program *p) { return p->at < p->end ? *p->at++ : 0u; }

/* ---- datapoints ---- */

static void content(uint64_t seed, size_t item, unsigned char *out, size_t size) {
    fill(out, size, seed * 8 + item);
}

static size_t item_size(const point *pt, size_t item) {
    return (size_t)(pt->seed * 7 + item * 3) % 40;
}

static point next_point(program *p, const worker *w) {
    static const size_t sizes[8] = {0, 1, 7, 8, 100, 600, 4095, 5000};
    unsigned shape = take(p);
    point pt = {++p->clock, sizes[shape % 8], (shape >> 3) % (ITEMS + 1)};
    return w->maybe ? w->points[w->length] : pt;
}

/* The values of a datapoint, and the bytes that they view. */
typedef struct values {
    unsigned char a[5000], s[ITEMS][40];
    bags_value plain[2], items[ITEMS];
    bags_entry entries[3];
} values;

static void make_values(const point *pt, values *v) {
    content(pt->seed, 7, v->a, pt->size);
    v->plain[0] = bags_bytes(v->a, pt->size);
    v->plain[1] = bags_uint(pt->seed);
    for (size_t i = 0; i < pt->items; i++) {
        content(pt->seed, i, v->s[i], item_size(pt, i));
        v->items[i] = bags_bytes(v->s[i], item_size(pt, i));
    }
    v->entries[0].field = "s";
    v->entries[0].values = v->items;
    v->entries[0].count = pt->items;
    v->entries[1].field = "a";
    v->entries[1].values = &v->plain[0];
    v->entries[1].count = 1;
    v->entries[2].field = "n";
    v->entries[2].values = &v->plain[1];
    v->entries[2].count = 1;
}

static bool is_point(bags_row *row, const point *pt) {
    values *v = (values *)malloc(sizeof *v);
    bags_value number;
    make_values(pt, v);
    bags_view a = bags_row_bytes(row, 0, 0);
    bool same = bags_row_length(row, 2) == pt->items && a.size == pt->size &&
                (!a.size || memcmp(a.data, v->a, a.size) == 0) &&
                !bags_row_value(row, 1, 0, NULL, &number, NULL) &&
                number.uint == pt->seed;
    for (size_t i = 0; same && i < pt->items; i++) {
        bags_view item = bags_row_bytes(row, 2, i);
        same = item.size == item_size(pt, i) &&
               (!item.size || memcmp(item.data, v->s[i], item.size) == 0);
    }
    free(v);
    return same;
}

/* The last item of the sequence, without a row. */
static bool has_last_item(
    const bags_reader *reader, uint64_t index, const point *pt, bags_row *row) {
    bags_view item;
    if (pt->items == 0)
        return bags_reader_get_blob(reader, index, 2, 0, row, &item, NULL) ==
               BAGS_ERROR_RANGE;
    values *v = (values *)malloc(sizeof *v);
    size_t last = pt->items - 1, size = item_size(pt, last);
    make_values(pt, v);
    bool same = !bags_reader_get_blob(reader, index, 2, last, row, &item, NULL) &&
                item.size == size && (!size || !memcmp(item.data, v->s[last], size));
    free(v);
    return same;
}

/* ---- reading ---- */

static size_t most(const worker *w) { return w->length + w->maybe; }

static bags_reader *open_reader(
    program *p, size_t which, unsigned how, bags_error *err) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &p->drive.io;
    options.env.allocator = &p->blocks.allocator;
    options.allow_gaps = true;
    options.unfinished = BAGS_UNFINISHED_SKIP;
    options.no_mmap = how & 1;
    options.cache_index = how & 2;
    options.max_files = how & 4 ? 1 : 0;
    p->drive.most_maps = how & 8 ? 1 : 0;
    if (p->sharded && !p->finalized) {
        options.shard_start = which;
        options.shard_stop = p->count;
    }
    return bags_reader_open("x", &options, err);
}

/* The finished datapoints of a worker are the first ones that it appended.
 * Returns their number. */
static size_t read_worker(program *p, size_t which, unsigned how) {
    const worker *w = &p->workers[which];
    bags_error err;
    bags_row row = {0};
    p->blocks.fail_at = 0;
    bags_reader *reader = open_reader(p, which, how, &err);
    if (!reader) {
        demand(err.code == BAGS_ERROR_MISSING || err.code == BAGS_ERROR_UNFINISHED,
            "it does not open", err.message);
        return 0;
    }
    uint64_t length = bags_reader_length(reader);
    demand(length <= most(w), "more datapoints than were appended", "");
    bags_env env = {NULL, &p->drive.io};
    demand(!verify_path("x", &env, &err), "what was written is wrong", err.message);
    for (uint64_t i = 0; i < length; i++) {
        err.message[0] = 0;
        demand(!bags_reader_get(reader, i, NULL, 0, &row, &err) &&
                   is_point(&row, &w->points[i]),
            "another datapoint", err.message);
        demand(has_last_item(reader, i, &w->points[i], &row), "another item", "");
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return (size_t)length;
}

static void step_read(program *p) {
    unsigned how = take(p);
    if (p->finalized)
        return;
    for (size_t i = 0; i < p->count; i++) {
        const worker *w = &p->workers[i];
        size_t length = read_worker(p, i, how);
        demand(length >= (w->finished ? w->least : w->shut),
            "finished datapoints are not there", "");
    }
}

/* ---- writing ---- */

static uint64_t faults(const program *p, const worker *w) {
    return w->device.files.failed + p->blocks.failed;
}

/* Cancel a fault that did not occur. */
static void no_faults(program *p) {
    p->blocks.fail_at = 0;
    for (size_t i = 0; i < p->count; i++) {
        p->workers[i].device.files.fail_at = 0;
        p->workers[i].device.files.stays = false;
    }
}

/* The writer is closed, and its shard perhaps not finished. */
static void left(worker *w) {
    w->writer = NULL;
    w->streams = false;
    w->finished = false;
}

/* A failure that a fault explains is expected. */
static bool explained(const program *p, worker *w, uint64_t before) {
    bool met = faults(p, w) > before;
    w->failed = w->failed || met;
    return w->failed;
}

static void step_open(program *p, worker *w) {
    unsigned how = take(p);
    bags_writer_options options = p->options;
    bags_error err;
    uint64_t before = faults(p, w);
    if (w->writer || p->finalized)
        return;
    w->failed = w->refused = false;
    options.existing = how & 1 ? BAGS_EXISTING_RESUME : BAGS_EXISTING_REFUSE;
    options.keep_idx = how & 2;
    options.no_sync = how & 4;
    options.buffer_size = how & 8 ? 1 << 14 : 0;
    options.buffer_size += 4096;
    options.shard_start = (size_t)(w - p->workers);
    options.env.io = &w->device.io;
    if (!p->sharded)
        options.shard_start = 0;
    bool fresh = !w->begun;
    w->writer = bags_writer_open("x", fields, 3, &options, &err);
    if (!w->writer) {
        if (explained(p, w, before)) {
            w->begun = w->doubt = true;
            return;
        }
        demand(!fresh, "nothing is there and yet it fails", err.message);
        bool contradicts = options.existing && options.keep_idx && p->sharded &&
                           strstr(err.message, "has no .idx files");
        demand(err.code == (contradicts ? BAGS_ERROR_VALUE : BAGS_ERROR_EXISTS),
            "another code", err.message);
        demand(!options.existing || contradicts ||
                   (!p->sharded && (w->finished || w->doubt)),
            "append is refused", err.message);
        return;
    }
    /* A fault that lasts ends with the writer; what it flushed must be
     * found. */
    size_t found = (size_t)bags_writer_resumed(w->writer);
    if (options.existing) {
        demand(found >= w->least && found <= most(w),
            "append finds another number of datapoints", "");
        w->length = w->least = found;
    } else {
        demand(w->least == 0, "a dataset begins where there was one", "");
        w->length = 0;
    }
    w->maybe = false;
    w->begun = true;
    w->finished = w->doubt = false;
}

/* A datapoint was appended, or was not. */
static void appended(program *p, worker *w, const point *pt, bags_code code,
    uint64_t shards, uint64_t before, const char *why) {
    w->points[w->length] = *pt;
    if (code) {
        demand(explained(p, w, before), "an append fails", why);
        w->maybe = true;
        return;
    }
    w->maybe = false;
    w->length++;
    if (bags_writer_shards(w->writer) > shards)
        w->least = w->shut = w->length;
}

/* A datapoint was refused; some programs deal with that. */
static void refused(program *p, worker *w, bool clears, uint64_t before) {
    explained(p, w, before);
    w->refused = true;
    if (!clears)
        return;
    bags_writer_clear(w->writer);
    w->refused = false;
}

static bool can_append(const worker *w) {
    return w->writer && !w->streams && w->length + 1 < POINTS;
}

static void step_append(program *p, worker *w) {
    if (!can_append(w))
        return;
    point pt = next_point(p, w);
    values *v = (values *)malloc(sizeof *v);
    bags_error err;
    uint64_t shards = bags_writer_shards(w->writer), before = faults(p, w);
    make_values(&pt, v);
    bags_code code = bags_writer_append(w->writer, v->entries, 3, &err);
    appended(p, w, &pt, code, shards, before, err.message);
    free(v);
}

/* Set, push and end in pieces; invalid ones too, which must leave no trace. */
static void step_stream(program *p, worker *w) {
    if (!can_append(w))
        return;
    point pt = next_point(p, w);
    unsigned how = take(p);
    values *v = (values *)malloc(sizeof *v);
    bags_error err;
    uint64_t shards = bags_writer_shards(w->writer), before = faults(p, w);
    bags_value wrong = bags_utf8("text");
    bool lacks = how & 1, twice = how & 2, another = how & 4;
    make_values(&pt, v);
    bags_writer_begin(w->writer, &err);
    for (size_t i = 0; i < pt.items; i++)
        bags_writer_push(w->writer, "s", &v->items[i], &err);
    bags_writer_set(w->writer, "a", &v->plain[0], &err);
    if (!lacks)
        bags_writer_set(w->writer, "n", &v->plain[1], &err);
    if (twice)
        bags_writer_set(w->writer, "a", &v->plain[0], &err);
    if (another)
        bags_writer_push(w->writer, "s", &wrong, &err);
    bags_code code = bags_writer_end(w->writer, &err);
    if (lacks || twice || another) {
        demand(code != BAGS_OK, "a wrong datapoint is taken", "");
        refused(p, w, how & 8, before);
    } else {
        appended(p, w, &pt, code, shards, before, err.message);
    }
    free(v);
}

/* A datapoint that is cancelled, or left open for the next call. */
static void step_begin(program *p, worker *w) {
    unsigned how = take(p);
    if (!w->writer || w->streams)
        return;
    point pt = next_point(p, w);
    values *v = (values *)malloc(sizeof *v);
    bags_error err;
    uint64_t before = faults(p, w);
    make_values(&pt, v);
    w->streams = !bags_writer_begin(w->writer, &err);
    for (size_t i = 0; i < pt.items; i++)
        bags_writer_push(w->writer, "s", &v->items[i], &err);
    bags_writer_set(w->writer, "a", &v->plain[0], &err);
    if (how & 1) {
        bags_writer_cancel(w->writer);
        w->streams = false;
    }
    explained(p, w, before);
    free(v);
}

static void step_refused(program *p, worker *w) {
    if (!can_append(w))
        return;
    bags_value text = bags_utf8("x");
    bags_entry entries[3] = {{"s", NULL, 0}, {"a", &text, 1}, {"n", &text, 1}};
    uint64_t before = faults(p, w);
    bags_error err;
    unsigned how = take(p);
    entries[2].field = how & 1 ? "a" : "unknown";
    demand(bags_writer_append(w->writer, entries, 3, how & 2 ? &err : NULL) != BAGS_OK,
        "a wrong datapoint is taken", "");
    refused(p, w, how & 4, before);
}

/* Not inside of a datapoint: test_recover and test_faults do that. */
static void step_flush(program *p, worker *w, bool sync) {
    bags_error err;
    uint64_t before = faults(p, w);
    if (!w->writer || w->streams)
        return;
    bags_code code =
        sync ? bags_writer_sync(w->writer, &err) : bags_writer_flush(w->writer, &err);
    if (!code)
        w->least = w->length;
    else
        demand(explained(p, w, before), "a flush fails", err.message);
}

static void step_close(program *p, worker *w) {
    bags_error err;
    uint64_t before = faults(p, w);
    if (!w->writer)
        return;
    bool streams = w->streams;
    demand(bags_writer_length(w->writer) <= most(w), "another length", "");
    bags_code code = bags_writer_close(w->writer, &err);
    bool met = explained(p, w, before);
    left(w);
    demand(!code || met || streams || w->refused, "close fails", err.message);
    demand(code || !w->refused, "a refusal is not returned", "");
    w->doubt = code && met;
    if (w->doubt)
        return;
    w->least = w->length; /* also flushed if a datapoint was not ended */
    if (streams)
        return;
    w->shut = w->length;
    w->maybe = false;
    w->finished = true;
}

/* Only finished shards, and what another writer flushed before, remain. */
static void step_abort(worker *w) {
    if (!w->writer)
        return;
    size_t found = (size_t)bags_writer_resumed(w->writer);
    bags_writer_abort(w->writer);
    left(w);
    w->doubt = w->failed;
    w->least = found > w->shut ? found : w->shut;
}

static void step_crash(worker *w) {
    if (!w->writer)
        return;
    crash_writer(&w->device, w->writer);
    left(w);
}

/* ---- recovery ---- */

static void step_recover(program *p) {
    unsigned how = take(p);
    bags_recover_options options;
    bags_recover_report report;
    bags_error err;
    worker *first = &p->workers[0];
    uint64_t before = faults(p, first);
    bool running = false;
    for (size_t i = 0; i < p->count; i++)
        running = running || p->workers[i].writer;
    memset(&options, 0, sizeof options);
    options.env.io = &first->device.io;
    options.env.allocator = &p->blocks.allocator;
    options.dry_run = how & 1;
    options.keep_idx = how & 2;
    options.no_sync = how & 4;
    err.message[0] = 0;
    bags_code code = bags_recover("x", &options, &report, &err);
    if (options.dry_run || running || p->finalized)
        return;
    if (code == BAGS_ERROR_MISSING) {
        for (size_t i = 0; i < p->count; i++)
            demand(p->workers[i].least == 0 || faults(p, first) > before,
                "recovery finds nothing", err.message);
        return;
    }
    if (faults(p, first) > before) {
        for (size_t i = 0; i < p->count; i++)
            p->workers[i].doubt = true;
        return;
    }
    demand(code == BAGS_OK, "recovery fails", err.message);
    demand(report.failed == 0 && report.locked == 0, "a shard is left", "");
    for (size_t i = 0; i < p->count; i++) {
        worker *w = &p->workers[i];
        size_t length = read_worker(p, i, how >> 4);
        demand(length >= w->least, "what was flushed is not recovered", "");
        w->least = w->shut = w->length = length;
        w->maybe = false;
        w->finished = p->sharded || report.finished_before + report.finished_now > 0;
        w->doubt = false;
    }
}

/* Ends the program of calls, since afterwards no worker may append. */
static void step_finalize(program *p) {
    bags_error err;
    uint64_t renamed = 0, total = 0;
    bags_finalize_options closing;
    for (size_t i = 0; i < p->count; i++) {
        const worker *w = &p->workers[i];
        if (w->writer || w->doubt || (w->begun && !w->finished))
            return;
        total += w->length;
    }
    if (!p->sharded || p->finalized || total == 0)
        return;
    no_faults(p);
    memset(&closing, 0, sizeof closing);
    closing.env.io = &p->drive.io;
    demand(
        !bags_finalize("x", &closing, &renamed, &err), "finalize fails", err.message);
    p->finalized = true;
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &p->drive.io;
    bags_reader *reader = bags_reader_open("x", &options, &err);
    demand(reader && bags_reader_length(reader) == total &&
               !verify_path("x", &options.env, &err),
        "finalize loses datapoints", err.message);
    bags_reader_close(reader);
}

/* ---- the program ---- */

static void start(program *p) {
    unsigned shape = take(p), limits = take(p);
    memory_disk_start(&p->drive);
    tally_start(&p->blocks);
    p->sharded = shape & 1;
    p->count = p->sharded && shape & 2 ? WORKERS : 1;
    if (p->sharded) {
        p->options.shard_stop = p->count;
        p->options.shard_length = limits & 7;
        p->options.shard_size = limits & 8 ? (limits >> 4) * 500u : 0;
    }
    p->options.env.allocator = &p->blocks.allocator;
    for (size_t i = 0; i < p->count; i++)
        crash_device_start(&p->workers[i].device, &p->drive.io);
}

/* A fault to come: of an allocation, of a call, or of all later calls. */
static void step_fault(program *p, worker *w) {
    unsigned which = take(p), after = take(p) % 64;
    watch *files = &w->device.files;
    if (which & 1) {
        p->blocks.fail_at = p->blocks.calls + 1 + after;
        return;
    }
    files->fail_with = which & 2 ? ENOSPC : EIO;
    files->stays = which & 4;
    files->only = which & 8 ? 1u << (which >> 4) : 0;
    files->fail_at = files->calls + 1 + after;
}

static void step(program *p) {
    unsigned op = take(p);
    worker *w = &p->workers[(op >> 7) % p->count];
    switch (op % 16) {
    case 0:
    case 1:
        step_open(p, w);
        break;
    case 2:
    case 3:
    case 4:
        step_append(p, w);
        break;
    case 5:
        step_stream(p, w);
        break;
    case 6:
        step_begin(p, w);
        break;
    case 7:
        step_refused(p, w);
        break;
    case 8:
        step_flush(p, w, op & 16);
        break;
    case 9:
        step_close(p, w);
        break;
    case 10:
        step_abort(w);
        break;
    case 11:
        step_crash(w);
        break;
    case 12:
        step_recover(p);
        break;
    case 13:
        step_read(p);
        break;
    case 14:
        step_fault(p, w);
        break;
    default:
        if (op & 64)
            step_finalize(p);
        else
            no_faults(p);
        break;
    }
}

/* Whatever happened: without faults everything can be recovered and read. */
static void finish(program *p) {
    no_faults(p);
    for (size_t i = 0; i < p->count; i++)
        step_crash(&p->workers[i]);
    p->at = p->end;
    step_recover(p);
    step_read(p);
    for (size_t i = 0; i < p->count; i++)
        demand(p->workers[i].device.files.files == 0 &&
                   p->workers[i].device.files.maps == 0,
            "a file stays open", "");
    demand(p->blocks.live == 0, "memory is not released", "");
    memory_disk_free(&p->drive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    program *p = (program *)calloc(1, sizeof *p);
    p->at = data;
    p->end = data + size;
    start(p);
    for (int i = 0; i < STEPS && p->at < p->end; i++)
        step(p);
    finish(p);
    free(p);
    return 0;
}
