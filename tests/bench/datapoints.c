/*
 * Datapoints of three fields: label int(8), caption utf8[] of five, and an
 * image of 2 kB. bags.h beside a reader by hand of the very same files, which
 * checks nothing, and beside SQLite with a table for each of the two shapes.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef BENCH_WITH_SQLITE3
#include <sqlite3.h>
#endif

#define CAPTIONS 5
#define IMAGE 2000

typedef struct contender {
    const char *name;
    void (*write)(const char *path, uint64_t count); /* NULL: reads bags.h's */
    void *(*open)(const char *path);
    uint64_t (*label)(void *reader, uint64_t index);
    /* The same where it is known that label i is datapoint i's; NULL: it is not
     * another way. */
    uint64_t (*known)(void *reader, uint64_t index);
    bags_view (*caption)(void *reader, uint64_t index, uint64_t item);
    /* consume() of the image, the label, the captions' first bytes: summed */
    uint64_t (*all)(void *reader, uint64_t index);
    /* The sum of all labels, in order, by the fastest way that there is; and
     * what must be done once before, or NULL. */
    uint64_t (*column)(void *reader, uint64_t count);
    void (*view)(void *reader, uint64_t count);
    void (*close)(void *reader);
} contender;

/* ----------------------------------------------------------------- the data */

static uint64_t label_of(uint64_t index) { return index * 2654435761u; }

/* A text of 20 to 43 letters. */
static bags_view caption_of(uint64_t index, uint64_t item, char *room) {
    bags_view text = {
        (const unsigned char *)room, 20 + (size_t)((index * 5 + item) % 24)};
    memset(room, 'a' + (int)((index + item) % 26), text.size);
    return text;
}

static uint64_t sum_of(uint64_t label, bags_view image, const bags_view *captions) {
    uint64_t sum = label + consume(image.data, image.size);
    for (size_t i = 0; i < CAPTIONS; i++)
        sum += captions[i].data[0] + captions[i].size;
    return sum;
}

/* ------------------------------------------------------------------- bags.h */

/* A reader that has seen a column goes past the refs from then on: so there are
 * two. */
typedef struct ours {
    bags_reader *reader, *columns;
    bags_row row, of_column;
    bag_blobs labels;
} ours;

enum { CAPTION, PICTURE, LABEL }; /* the fields, sorted by name */

static bags_error err;

static void write_ours(const char *path, uint64_t count) {
    bags_field fields[] = {
        {"caption", "utf8[]"}, {"image", "bytes"}, {"label", "int(8)"}};
    bags_writer_options options = {0};
    options.no_sync = true;
    bags_writer *writer = bags_writer_open(path, fields, 3, &options, &err);
    if (!writer)
        die("%s", err.message);
    for (uint64_t i = 0; i < count; i++) {
        char room[CAPTIONS][64];
        bags_value captions[CAPTIONS];
        for (size_t k = 0; k < CAPTIONS; k++) {
            bags_view text = caption_of(i, k, room[k]);
            captions[k] = bags_utf8_sized(room[k], text.size);
        }
        bags_value image = bags_bytes(blob_data(i), IMAGE);
        bags_value label = bags_uint(label_of(i));
        bags_entry entries[] = {{"caption", captions, CAPTIONS}, {"image", &image, 1},
            {"label", &label, 1}};
        bags_writer_append(writer, entries, 3, NULL);
    }
    if (bags_writer_close(writer, &err))
        die("%s", err.message);
}

static void *open_ours(const char *path) {
    ours *o = (ours *)need_memory(sizeof *o);
    memset(o, 0, sizeof *o);
    o->reader = bags_reader_open(path, NULL, &err);
    o->columns = bags_reader_open(path, NULL, &err);
    if (!o->reader || !o->columns)
        die("%s", err.message);
    return o;
}

static bags_view blob_ours(
    ours *o, const bags_reader *reader, uint64_t index, size_t field, uint64_t item) {
    bags_view blob;
    if (bags_reader_get_blob(reader, index, field, item, &o->row, &blob, &err))
        die("%s", err.message);
    return blob;
}

static uint64_t label_ours(void *reader, uint64_t index) {
    ours *o = (ours *)reader;
    return load_word(blob_ours(o, o->reader, index, LABEL, 0).data);
}

static uint64_t known_ours(void *reader, uint64_t index) {
    ours *o = (ours *)reader;
    return load_word(blob_ours(o, o->columns, index, LABEL, 0).data);
}

static bags_view caption_ours(void *reader, uint64_t index, uint64_t item) {
    ours *o = (ours *)reader;
    return blob_ours(o, o->reader, index, CAPTION, item);
}

static uint64_t all_ours(void *reader, uint64_t index) {
    ours *o = (ours *)reader;
    bags_view captions[CAPTIONS];
    if (bags_reader_get(o->reader, index, NULL, 0, &o->row, &err))
        die("%s", err.message);
    for (size_t k = 0; k < CAPTIONS; k++)
        captions[k] = bags_row_bytes(&o->row, CAPTION, k);
    return sum_of(load_word(bags_row_bytes(&o->row, LABEL, 0).data),
        bags_row_bytes(&o->row, PICTURE, 0), captions);
}

static void view_ours(void *reader, uint64_t count) {
    ours *o = (ours *)reader;
    if (bags_reader_blobs(o->columns, 0, LABEL, true, &o->of_column, &o->labels, &err))
        die("%s", err.message);
    if (o->labels.length != count || o->labels.size != 8 * count)
        die("a column of other labels");
}

static uint64_t column_ours(void *reader, uint64_t count) {
    ours *o = (ours *)reader;
    const unsigned char *labels = o->labels.data;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += load_word(labels + i * 8);
    return sum;
}

static void close_ours(void *reader) {
    ours *o = (ours *)reader;
    bags_row_free(&o->row);
    bags_row_free(&o->of_column);
    bags_reader_close(o->reader);
    bags_reader_close(o->columns);
    free(o);
}

/* ------------------------------------------------------------------ by hand */

typedef struct column {
    bags_view map;
    const unsigned char *table;
} column;

typedef struct by_hand {
    column refs, captions, images, labels;
} by_hand;

static column open_column(const char *path, const char *file) {
    char name[8192];
    column c;
    snprintf(name, sizeof name, "%s/%s", path, file);
    c.map = map_file(name);
    c.table = c.map.data + load_word(c.map.data + c.map.size - 8);
    return c;
}

static void *open_hand(const char *path) {
    by_hand *h = (by_hand *)need_memory(sizeof *h);
    h->refs = open_column(path, "refs.bag");
    h->captions = open_column(path, "caption.bag");
    h->images = open_column(path, "image.bag");
    h->labels = open_column(path, "label.bag");
    return h;
}

static inline bags_view blob_of(const column *c, uint64_t index) {
    uint64_t start = load_word(c->table + index * 8);
    bags_view blob = {
        c->map.data + start, (size_t)(load_word(c->table + index * 8 + 8) - start)};
    return blob;
}

/* An unsigned integer of msgpack, below 2^32. */
static inline uint64_t number(const unsigned char **at) {
    const unsigned char *p = *at;
    int bytes = *p < 0x80 ? 0 : 1 << (*p - 0xcc);
    uint64_t value = *p < 0x80 ? *p : 0;
    for (int i = 1; i <= bytes; i++)
        value = value << 8 | p[i];
    *at = p + 1 + bytes;
    return value;
}

typedef struct refs {
    uint64_t caption, image, label;
} refs;

/* [[first caption, how many], image, label] */
static inline refs refs_of(const by_hand *h, uint64_t index) {
    const unsigned char *at = blob_of(&h->refs, index).data + 2;
    refs r;
    r.caption = number(&at);
    at++;
    r.image = number(&at);
    r.label = number(&at);
    return r;
}

static uint64_t label_hand(void *reader, uint64_t index) {
    const by_hand *h = (const by_hand *)reader;
    return load_word(blob_of(&h->labels, refs_of(h, index).label).data);
}

static uint64_t known_hand(void *reader, uint64_t index) {
    return load_word(blob_of(&((const by_hand *)reader)->labels, index).data);
}

static bags_view caption_hand(void *reader, uint64_t index, uint64_t item) {
    const by_hand *h = (const by_hand *)reader;
    const unsigned char *at = blob_of(&h->refs, index).data + 2;
    return blob_of(&h->captions, number(&at) + item);
}

static uint64_t all_hand(void *reader, uint64_t index) {
    const by_hand *h = (const by_hand *)reader;
    refs r = refs_of(h, index);
    bags_view captions[CAPTIONS];
    for (size_t k = 0; k < CAPTIONS; k++)
        captions[k] = blob_of(&h->captions, r.caption + k);
    return sum_of(load_word(blob_of(&h->labels, r.label).data),
        blob_of(&h->images, r.image), captions);
}

static uint64_t column_hand(void *reader, uint64_t count) {
    const by_hand *h = (const by_hand *)reader;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += load_word(h->labels.map.data + i * 8);
    return sum;
}

static void close_hand(void *reader) {
    by_hand *h = (by_hand *)reader;
    unmap_file(h->refs.map);
    unmap_file(h->captions.map);
    unmap_file(h->images.map);
    unmap_file(h->labels.map);
    free(h);
}

/* ------------------------------------------------------------------- SQLite */

#ifdef BENCH_WITH_SQLITE3
typedef struct base {
    sqlite3 *base;
    sqlite3_stmt *label, *caption, *captions, *all, *labels;
} base;

static void must(const base *b, bool good) {
    if (!good)
        die("SQLite: %s", sqlite3_errmsg(b->base));
}

static void run(const base *b, const char *sql) {
    must(b, sqlite3_exec(b->base, sql, NULL, NULL, NULL) == SQLITE_OK);
}

static sqlite3_stmt *prepare(const base *b, const char *sql) {
    sqlite3_stmt *statement = NULL;
    must(b, sqlite3_prepare_v2(b->base, sql, -1, &statement, NULL) == SQLITE_OK);
    return statement;
}

static void step(const base *b, sqlite3_stmt *statement, int expected) {
    must(b, sqlite3_step(statement) == expected);
}

static bags_view cell(sqlite3_stmt *statement, int at) {
    bags_view blob;
    blob.data = (const unsigned char *)sqlite3_column_blob(statement, at);
    blob.size = (size_t)sqlite3_column_bytes(statement, at);
    return blob;
}

/* The captions of datapoint i are the rows from 8 i on. */
static void insert_captions(const base *b, sqlite3_stmt *statement, uint64_t index) {
    for (uint64_t k = 0; k < CAPTIONS; k++) {
        char room[64];
        bags_view text = caption_of(index, k, room);
        sqlite3_bind_int64(statement, 1, (sqlite3_int64)(index * 8 + k));
        sqlite3_bind_text(statement, 2, room, (int)text.size, SQLITE_STATIC);
        step(b, statement, SQLITE_DONE);
        sqlite3_reset(statement);
    }
}

static void write_base(const char *path, uint64_t count) {
    base b;
    must(&b, sqlite3_open(path, &b.base) == SQLITE_OK);
    run(&b, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE datapoints (id INTEGER PRIMARY KEY, label INTEGER,"
            " image BLOB);"
            "CREATE TABLE captions (id INTEGER PRIMARY KEY, text TEXT); BEGIN");
    sqlite3_stmt *one = prepare(&b, "INSERT INTO datapoints VALUES (?, ?, ?)");
    sqlite3_stmt *many = prepare(&b, "INSERT INTO captions VALUES (?, ?)");
    for (uint64_t i = 0; i < count; i++) {
        sqlite3_bind_int64(one, 1, (sqlite3_int64)i);
        sqlite3_bind_int64(one, 2, (sqlite3_int64)label_of(i));
        sqlite3_bind_blob(one, 3, blob_data(i), IMAGE, SQLITE_STATIC);
        step(&b, one, SQLITE_DONE);
        sqlite3_reset(one);
        insert_captions(&b, many, i);
    }
    sqlite3_finalize(one);
    sqlite3_finalize(many);
    run(&b, "COMMIT");
    sqlite3_close(b.base);
}

static void *open_base(const char *path) {
    base *b = (base *)need_memory(sizeof *b);
    must(b, sqlite3_open_v2(path, &b->base, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX,
                NULL) == SQLITE_OK);
    run(b, "PRAGMA mmap_size = 68719476736; PRAGMA locking_mode = EXCLUSIVE");
    b->label = prepare(b, "SELECT label FROM datapoints WHERE id = ?");
    b->caption = prepare(b, "SELECT text FROM captions WHERE id = ?");
    b->captions = prepare(b, "SELECT text FROM captions WHERE id >= ? AND id < ?");
    b->all = prepare(b, "SELECT label, image FROM datapoints WHERE id = ?");
    b->labels = prepare(b, "SELECT label FROM datapoints ORDER BY id");
    return b;
}

static uint64_t label_base(void *reader, uint64_t index) {
    const base *b = (const base *)reader;
    sqlite3_reset(b->label);
    sqlite3_bind_int64(b->label, 1, (sqlite3_int64)index);
    step(b, b->label, SQLITE_ROW);
    return (uint64_t)sqlite3_column_int64(b->label, 0);
}

static bags_view caption_base(void *reader, uint64_t index, uint64_t item) {
    const base *b = (const base *)reader;
    sqlite3_reset(b->caption);
    sqlite3_bind_int64(b->caption, 1, (sqlite3_int64)(index * 8 + item));
    step(b, b->caption, SQLITE_ROW);
    return cell(b->caption, 0);
}

static uint64_t all_base(void *reader, uint64_t index) {
    const base *b = (const base *)reader;
    static const bags_view none = {(const unsigned char *)"", 0};
    bags_view captions[CAPTIONS] = {none, none, none, none, none};
    uint64_t sum = 0;
    sqlite3_reset(b->all);
    sqlite3_bind_int64(b->all, 1, (sqlite3_int64)index);
    step(b, b->all, SQLITE_ROW);
    sum = sum_of((uint64_t)sqlite3_column_int64(b->all, 0), cell(b->all, 1), captions);
    sqlite3_reset(b->captions);
    sqlite3_bind_int64(b->captions, 1, (sqlite3_int64)(index * 8));
    sqlite3_bind_int64(b->captions, 2, (sqlite3_int64)(index * 8 + 8));
    while (sqlite3_step(b->captions) == SQLITE_ROW) {
        bags_view text = cell(b->captions, 0);
        sum += text.data[0] + text.size;
    }
    return sum;
}

static uint64_t column_base(void *reader, uint64_t count) {
    const base *b = (const base *)reader;
    uint64_t sum = 0;
    sqlite3_reset(b->labels);
    for (uint64_t i = 0; i < count; i++) {
        step(b, b->labels, SQLITE_ROW);
        sum += (uint64_t)sqlite3_column_int64(b->labels, 0);
    }
    return sum;
}

static void close_base(void *reader) {
    base *b = (base *)reader;
    sqlite3_finalize(b->label);
    sqlite3_finalize(b->caption);
    sqlite3_finalize(b->captions);
    sqlite3_finalize(b->all);
    sqlite3_finalize(b->labels);
    sqlite3_close(b->base);
    free(b);
}
#endif

/* ---------------------------------------------------------------- measuring */

static const contender contenders[] = {
    {"by hand", NULL, open_hand, label_hand, known_hand, caption_hand, all_hand,
        column_hand, NULL, close_hand},
    {"bags.h dataset", write_ours, open_ours, label_ours, known_ours, caption_ours,
        all_ours, column_ours, view_ours, close_ours},
#ifdef BENCH_WITH_SQLITE3
    {"SQLite", write_base, open_base, label_base, NULL, caption_base, all_base,
        column_base, NULL, close_base},
#endif
};

#define CONTENDERS (sizeof contenders / sizeof *contenders)

static const char *path_of(const contender *c) {
    return place(c->write ? c->name : "bags.h dataset", "data.bag");
}

static uint64_t labels_random(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += c->label(reader, order[i]);
    return sum;
}

static uint64_t labels_in_order(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    uint64_t sum = 0;
    (void)order;
    for (uint64_t i = 0; i < count; i++)
        sum += c->label(reader, i);
    return sum;
}

static uint64_t labels_known(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += c->known(reader, order[i]);
    return sum;
}

static uint64_t labels_column(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    (void)order;
    return c->column(reader, count);
}

static uint64_t view_column(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    (void)order;
    c->view(reader, count);
    return 0;
}

static uint64_t one_caption(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        bags_view text = c->caption(reader, order[i], order[i] % CAPTIONS);
        sum += text.data[0] + text.size;
    }
    return sum;
}

static uint64_t all_fields(
    const contender *c, void *reader, uint64_t count, const uint64_t *order) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += c->all(reader, order[i]);
    return sum;
}

static const struct {
    const char *name;
    uint64_t (*run)(
        const contender *c, void *reader, uint64_t count, const uint64_t *order);
} tasks[] = {
    {"label, random", labels_random},
    {"label, in order", labels_in_order},
    {"view of column", view_column},
    {"label column", labels_column},
    {"label, refs known", labels_known},
    {"one caption", one_caption},
    {"all fields", all_fields},
};

#define TASKS (sizeof tasks / sizeof *tasks)

/* Everybody must find the same; and what bags.h finds is right. */
static void check_all(void **readers, uint64_t count) {
    for (size_t i = 0; i < CONTENDERS; i++) {
        const contender *c = &contenders[i];
        if (c->view)
            c->view(readers[i], count);
        bool labels = true, captions = true, all = true;
        uint64_t sum = 0;
        for (uint64_t d = 0; d < count; d += 1 + count / 2000) {
            char room[CAPTIONS][64];
            bags_view image = {blob_data(d), IMAGE}, texts[CAPTIONS];
            for (uint64_t k = 0; k < CAPTIONS; k++) {
                texts[k] = caption_of(d, k, room[k]);
                bags_view got = c->caption(readers[i], d, k);
                captions = captions && got.size == texts[k].size &&
                           memcmp(got.data, texts[k].data, got.size) == 0;
            }
            labels = labels && c->label(readers[i], d) == label_of(d);
            labels = labels && (!c->known || c->known(readers[i], d) == label_of(d));
            all = all && c->all(readers[i], d) == sum_of(label_of(d), image, texts);
        }
        for (uint64_t d = 0; d < count; d++)
            sum += label_of(d);
        check(labels, c->name, "labels");
        check(captions, c->name, "captions");
        check(all, c->name, "all fields");
        check(c->column(readers[i], count) == sum, c->name, "the column");
    }
}

static void time_task(size_t task, size_t i, void **readers, uint64_t count) {
    const uint64_t *order = random_order(count);
    if ((tasks[task].run == labels_known && !contenders[i].known) ||
        (tasks[task].run == view_column && !contenders[i].view))
        return;
    double start = cpu_time();
    sink += tasks[task].run(&contenders[i], readers[i], count, order);
    record(tasks[task].name, contenders[i].name, NANOSECONDS,
        (cpu_time() - start) * 1e9 / (double)count);
}

static void write_contenders(uint64_t count) {
    for (size_t i = 0; i < CONTENDERS; i++) {
        const contender *c = &contenders[i];
        if (!c->write)
            continue;
        remove_place(c->name);
        warm_memory(count * (IMAGE + 400));
        double start = wall_time();
        c->write(path_of(c), count);
        record(
            "write", c->name, NANOSECONDS, (wall_time() - start) * 1e9 / (double)count);
    }
}

void bench_datapoints(void) {
    static const char part[] = "200,000 datapoints";
    uint64_t count = set.small ? 2000 : 200000;
    void *readers[CONTENDERS];
    if (!wanted(part, "bags.h dataset"))
        return;
    begin_part(part);
    for (int round = 0; round < set.rounds; round++)
        write_contenders(count);
    for (size_t i = 0; i < CONTENDERS; i++)
        readers[i] = contenders[i].open(path_of(&contenders[i]));
    check_all(readers, count);
    for (int round = 0; round < set.rounds; round++)
        for (size_t task = 0; task < TASKS; task++)
            for (size_t i = 0; i < CONTENDERS; i++)
                time_task(task, (i + (size_t)round) % CONTENDERS, readers, count);
    for (size_t i = 0; i < CONTENDERS; i++) {
        contenders[i].close(readers[i]);
        if (contenders[i].write)
            remove_place(contenders[i].name);
    }
}
