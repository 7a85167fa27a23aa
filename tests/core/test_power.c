/*
 * Simulated power failures. A writer's calls are recorded on a disk in memory.
 * For every point of the record the test builds disk images that may exist when
 * the power returns. On each, recovery must keep every datapoint that was certain
 * (bags_writer_sync had returned, or its shard was finished), and must not crash
 * or create anything that a reader refuses.
 *
 * The simulated disk behaves as POSIX and a journalling file system in ordered
 * mode (ext4) allow, and somewhat worse:
 *   - The content of a file at its last sync exists. Of each later write, every
 *     sector (512 bytes or 4 KiB, depending on the image) exists or not,
 *     independently of other sectors and files; missing parts of a file that has
 *     grown read as zeros. The size is that after any of the calls since the
 *     sync. A file that was truncated and has grown again may show old bytes.
 *   - A directory's entries are on the disk when sync_dir of that directory has
 *     returned; a sync of a file does not save its name. Of later changes, any
 *     prefix exists ("ordered", as with a journal), or any subset ("loose"). A
 *     rename is atomic. Directories are independent of each other.
 *
 * The library promises, and the test checks: the datapoints that were certain
 * exist, complete, in order, before all others. They are followed by as many as
 * their journals show as complete. Without checksums the library cannot know
 * whether a blob reached the disk before its journal entry did, so a datapoint
 * that was not certain may contain wrong bytes. With checksums, for which
 * everything is repeated, it may not (but see check_image). A shard without a
 * certain datapoint may also stay as it is, with an error.
 */
// flavours: soak: asan
#include "check.h"
#include "durability.h"
#include "toy.h"

#include <errno.h>

/* ---- the record of a disk ---- */

enum op_kind {
    OP_WRITE,
    OP_TRUNCATE,
    OP_SYNC,
    OP_LINK,
    OP_UNLINK,
    OP_RENAME,
    OP_SYNC_DIR
};

#define MOST_NAME 40
#define MOST_NODES 400
#define MOST_OPS 6000
#define MOST_ENTRIES 64
#define MOST_MARKS 200

typedef struct op {
    enum op_kind kind;
    int node;   /* the file; for changes to a directory, the directory */
    int target; /* what is linked */
    uint64_t offset, size;
    unsigned char *data;
    char name[MOST_NAME], to[MOST_NAME];
} op;

typedef struct entry {
    char name[MOST_NAME];
    int node;
} entry;

typedef struct folder {
    entry entries[MOST_ENTRIES];
    int count;
} folder;

typedef struct node {
    bool directory;
    int owner; /* who holds its lock; 0: no handle */
    bytes content;
    folder inside;
} node;

typedef struct recorder {
    bags_io io;
    node *nodes[MOST_NODES];
    int count, handles;
    op *ops;
    int length;
    /* Other events of a trace: before which op, and its name. */
    struct {
        int point;
        const char *name;
    } marks[MOST_MARKS];
    int marks_count;
    /* After op i, this many datapoints were certain. */
    uint64_t certain[MOST_OPS + 1], appended[MOST_OPS + 1];
} recorder;

typedef struct handle {
    int node, number;
} handle;

static void need(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "the recorder is too small: %s\n", what);
    abort();
}

static op *note(recorder *r, enum op_kind kind, int at_node) {
    need(r->length < MOST_OPS, "ops");
    op *o = &r->ops[r->length++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    o->node = at_node;
    r->certain[r->length] = r->certain[r->length - 1];
    r->appended[r->length] = r->appended[r->length - 1];
    return o;
}

static int folder_find(const folder *f, const char *name) {
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->entries[i].name, name) == 0)
            return i;
    return -1;
}

static void folder_put(folder *f, const char *name, int at_node) {
    int i = folder_find(f, name);
    if (i < 0) {
        need(f->count < MOST_ENTRIES && strlen(name) < MOST_NAME, "entries");
        i = f->count++;
        strcpy(f->entries[i].name, name);
    }
    f->entries[i].node = at_node;
}

static void folder_drop(folder *f, const char *name) {
    int i = folder_find(f, name);
    if (i >= 0)
        f->entries[i] = f->entries[--f->count];
}

/* The directory that holds a path's last name; -1 if there is none. */
static int walk(const recorder *r, const char *path, const char **name) {
    int at_node = 0;
    const char *slash;
    while ((slash = strchr(path, '/'))) {
        char part[MOST_NAME];
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        int i = folder_find(&r->nodes[at_node]->inside, part);
        if (i < 0)
            return -1;
        at_node = r->nodes[at_node]->inside.entries[i].node;
        path = slash + 1;
    }
    *name = path;
    return at_node;
}

static int look_up(const recorder *r, const char *path) {
    const char *name;
    if (strcmp(path, ".") == 0)
        return 0;
    int directory = walk(r, path, &name);
    if (directory < 0)
        return -1;
    int i = folder_find(&r->nodes[directory]->inside, name);
    return i < 0 ? -1 : r->nodes[directory]->inside.entries[i].node;
}

static int make_node(recorder *r, const char *path, bool directory) {
    const char *name;
    int parent = walk(r, path, &name);
    if (parent < 0)
        return -1;
    need(r->count < MOST_NODES, "nodes");
    int at_node = r->count++;
    r->nodes[at_node] = (node *)calloc(1, sizeof(node));
    r->nodes[at_node]->directory = directory;
    folder_put(&r->nodes[parent]->inside, name, at_node);
    op *o = note(r, OP_LINK, parent);
    strcpy(o->name, name);
    o->target = at_node;
    return at_node;
}

static int record_open(void *user, const char *path, int mode, void **file) {
    recorder *r = (recorder *)user;
    int at_node = look_up(r, path);
    if (mode == BAGS_IO_CREATE && at_node >= 0)
        return EEXIST;
    if (mode == BAGS_IO_CREATE)
        at_node = make_node(r, path, false);
    if (at_node < 0)
        return ENOENT;
    handle *h = (handle *)malloc(sizeof *h);
    h->node = at_node;
    h->number = ++r->handles;
    *file = h;
    return 0;
}

static int record_close(void *user, void *file) {
    recorder *r = (recorder *)user;
    handle *h = (handle *)file;
    if (r->nodes[h->node]->owner == h->number)
        r->nodes[h->node]->owner = 0;
    free(h);
    return 0;
}

static bytes *content_of(void *user, void *file) {
    return &((recorder *)user)->nodes[((handle *)file)->node]->content;
}

static int record_size(void *user, void *file, uint64_t *size) {
    *size = content_of(user, file)->size;
    return 0;
}

static int record_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const bytes *content = content_of(user, file);
    *done = offset < content->size ? content->size - (size_t)offset : 0;
    *done = *done < size ? *done : size;
    if (*done)
        memcpy(data, content->data + offset, *done);
    return 0;
}

static void resize_bytes(bytes *content, uint64_t size) {
    while (content->size < size)
        put_u8(content, 0);
    content->size = (size_t)size;
}

static int record_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    bytes *content = content_of(user, file);
    op *o = note((recorder *)user, OP_WRITE, ((handle *)file)->node);
    o->offset = offset;
    o->size = size;
    o->data = (unsigned char *)malloc(size ? size : 1);
    memcpy(o->data, data, size);
    if (content->size < offset + size)
        resize_bytes(content, offset + size);
    memcpy(content->data + offset, data, size);
    *done = size;
    return 0;
}

static int record_truncate(void *user, void *file, uint64_t size) {
    note((recorder *)user, OP_TRUNCATE, ((handle *)file)->node)->size = size;
    resize_bytes(content_of(user, file), size);
    return 0;
}

static int record_sync(void *user, void *file) {
    note((recorder *)user, OP_SYNC, ((handle *)file)->node);
    return 0;
}

static int record_lock(void *user, void *file) {
    handle *h = (handle *)file;
    node *n = ((recorder *)user)->nodes[h->node];
    if (n->owner && n->owner != h->number)
        return EWOULDBLOCK;
    n->owner = h->number;
    return 0;
}

static int record_kind(void *user, const char *path, bags_path_kind *kind) {
    recorder *r = (recorder *)user;
    int at_node = look_up(r, path);
    *kind = at_node < 0                    ? BAGS_PATH_NONE
            : r->nodes[at_node]->directory ? BAGS_PATH_DIRECTORY
                                           : BAGS_PATH_FILE;
    return 0;
}

static int record_make_dir(void *user, const char *path) {
    recorder *r = (recorder *)user;
    if (look_up(r, path) >= 0)
        return EEXIST;
    return make_node(r, path, true) < 0 ? ENOENT : 0;
}

static int record_sync_dir(void *user, const char *path) {
    recorder *r = (recorder *)user;
    int at_node = look_up(r, path);
    if (at_node < 0)
        return ENOENT;
    note(r, OP_SYNC_DIR, at_node);
    return 0;
}

static int record_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    recorder *r = (recorder *)user;
    int code = 0, at_node = look_up(r, path);
    if (at_node < 0)
        return ENOENT;
    folder copy = r->nodes[at_node]->inside;
    for (int i = 0; i < copy.count && !code; i++)
        code = each(each_user, copy.entries[i].name);
    return code;
}

/* Only within a directory, as writers do. */
static int record_rename(void *user, const char *from, const char *to) {
    recorder *r = (recorder *)user;
    const char *name, *new_name;
    int parent = walk(r, from, &name), at_node = look_up(r, from);
    need(walk(r, to, &new_name) == parent, "renames");
    if (at_node < 0)
        return ENOENT;
    op *o = note(r, OP_RENAME, parent);
    strcpy(o->name, name);
    strcpy(o->to, new_name);
    folder_drop(&r->nodes[parent]->inside, name);
    folder_put(&r->nodes[parent]->inside, new_name, at_node);
    return 0;
}

static int record_unlink(recorder *r, const char *path) {
    const char *name;
    int parent = walk(r, path, &name);
    if (look_up(r, path) < 0)
        return ENOENT;
    strcpy(note(r, OP_UNLINK, parent)->name, name);
    folder_drop(&r->nodes[parent]->inside, name);
    return 0;
}

static int record_remove(void *user, const char *path) {
    return record_unlink((recorder *)user, path);
}

static int record_remove_dir(void *user, const char *path) {
    recorder *r = (recorder *)user;
    int at_node = look_up(r, path);
    if (at_node >= 0 && r->nodes[at_node]->inside.count)
        return ENOTEMPTY;
    return record_unlink(r, path);
}

static recorder *recorder_start(void) {
    recorder *r = (recorder *)calloc(1, sizeof *r);
    r->ops = (op *)calloc(MOST_OPS, sizeof *r->ops);
    r->nodes[r->count++] = (node *)calloc(1, sizeof(node));
    r->nodes[0]->directory = true;
    r->io.user = r;
    r->io.open = record_open;
    r->io.close = record_close;
    r->io.size = record_size;
    r->io.read_at = record_read;
    r->io.write_at = record_write;
    r->io.truncate = record_truncate;
    r->io.sync = record_sync;
    r->io.lock = record_lock;
    r->io.kind = record_kind;
    r->io.make_dir = record_make_dir;
    r->io.sync_dir = record_sync_dir;
    r->io.list = record_list;
    r->io.rename = record_rename;
    r->io.remove = record_remove;
    r->io.remove_dir = record_remove_dir;
    return r;
}

static void recorder_free(recorder *r) {
    for (int i = 0; i < r->length; i++)
        free(r->ops[i].data);
    for (int i = 0; i < r->count; i++) {
        bytes_free(&r->nodes[i]->content);
        free(r->nodes[i]);
    }
    free(r->ops);
    free(r);
}

/* ---- traces: tests/model/check.py compares them with the model ---- */

/* Add what is no call of a hook: a call of the library that returned, or a crash. */
static void mark(recorder *r, const char *name) {
    need(r->marks_count < MOST_MARKS, "marks");
    r->marks[r->marks_count].point = r->length;
    r->marks[r->marks_count++].name = name;
}

/* The path of a node when it was linked first; "" is the top. */
static void node_path(const recorder *r, int at_node, char *path, size_t size) {
    char name[256];
    *path = 0;
    while (at_node != 0) {
        int i = 0;
        while (r->ops[i].kind != OP_LINK || r->ops[i].target != at_node)
            i++;
        snprintf(name, sizeof name, "%s%s%s", r->ops[i].name, *path ? "/" : "", path);
        snprintf(path, size, "%s", name);
        at_node = r->ops[i].node;
    }
}

/* Write a line for each event: the call, its file or directory, a name in it. */
static void write_trace(const recorder *r, FILE *to) {
    static const char *const kinds[] = {
        "write", "truncate", "sync", "link", "unlink", "rename", "sync_dir"};
    int marks = 0;
    for (int i = 0; i <= r->length; i++) {
        char path[256];
        const op *o = &r->ops[i];
        for (; marks < r->marks_count && r->marks[marks].point == i; marks++)
            fprintf(to, "%s\n", r->marks[marks].name);
        if (i == r->length)
            break;
        node_path(r, o->node, path, sizeof path);
        fprintf(to, "%s %s%s%s%s%s%s\n", kinds[o->kind], *path ? path : ".",
            *o->name ? " " : "", o->name, *o->to ? " " : "", o->to,
            o->kind == OP_LINK && r->nodes[o->target]->directory ? " directory" : "");
    }
}

/* If BAGS_TRACES is set, it is a directory that receives the trace of each stage. True then:
 * no image is checked. */
static bool save_trace(const recorder *r) {
    static int number;
    const char *directory = getenv("BAGS_TRACES");
    char path[4096];
    if (!directory)
        return false;
    snprintf(path, sizeof path, "%s/%03d.trace", directory, number++);
    FILE *to = fopen(path, "w");
    need(to != NULL, path);
    write_trace(r, to);
    fclose(to);
    return true;
}

/* ---- images ---- */

/* How an image is drawn: with this probability what is not certain is kept. */
typedef struct style {
    const char *name;
    unsigned keep; /* of 256 */
    uint64_t sector;
    bool loose; /* any subset of directory changes, not only the first ones */
} style;

/* One way to decide everything that is not certain, to enumerate them all. */
typedef struct choices {
    bool taken[4096];
    int used, known;
} choices;

typedef struct image {
    const recorder *record;
    int point; /* operations done so far */
    const style *how;
    uint64_t state;
    choices *all; /* NULL: at random */
} image;

static bool drawn(image *im) {
    choices *c = im->all;
    if (!c)
        return (next_random(&im->state) & 255) < im->how->keep;
    need(c->used < 4096, "choices");
    if (c->used == c->known)
        c->taken[c->known++] = false;
    return c->taken[c->used++];
}

/* The next way; false after the last one. */
static bool choose_next(choices *c) {
    c->known = c->used;
    while (c->known > 0 && c->taken[c->known - 1])
        c->known--;
    c->used = 0;
    if (c->known == 0)
        return false;
    c->taken[c->known - 1] = true;
    return true;
}

/* The operation after the last one that made this node certain. */
static int certain_until(const image *im, int at_node, enum op_kind sync) {
    for (int i = im->point - 1; i >= 0; i--)
        if (im->record->ops[i].kind == sync && im->record->ops[i].node == at_node)
            return i + 1;
    return 0;
}

static void write_sectors(image *im, bytes *to, const op *o, bool certain) {
    uint64_t sector = im->how->sector, end = o->offset + o->size;
    for (uint64_t at_byte = o->offset; at_byte < end;) {
        uint64_t next = (at_byte / sector + 1) * sector;
        next = next < end ? next : end;
        if (certain || drawn(im)) {
            if (to->size < next)
                resize_bytes(to, next);
            memcpy(to->data + at_byte, o->data + (at_byte - o->offset),
                (size_t)(next - at_byte));
        }
        at_byte = next;
    }
}

/* A file: everything up to its last sync; sectors of what follows; a size that
 * it had since. */
static bytes draw_file(image *im, int at_node) {
    int sure = certain_until(im, at_node, OP_SYNC);
    bytes file = {NULL, 0, 0};
    uint64_t size = 0, now = 0;
    bool take = true;
    for (int i = 0; i < im->point; i++) {
        const op *o = &im->record->ops[i];
        if (o->node != at_node || (o->kind != OP_WRITE && o->kind != OP_TRUNCATE))
            continue;
        bool certain = i < sure;
        if (o->kind == OP_WRITE)
            write_sectors(im, &file, o, certain);
        else if (certain)
            resize_bytes(&file, o->size);
        if (o->kind == OP_TRUNCATE)
            now = o->size;
        else if (now < o->offset + o->size)
            now = o->offset + o->size;
        take = certain || (take && drawn(im));
        if (take)
            size = now;
    }
    resize_bytes(&file, size);
    return file;
}

static void apply(folder *f, const op *o) {
    int i = folder_find(f, o->name);
    if (o->kind == OP_LINK) {
        folder_put(f, o->name, o->target);
    } else if (i >= 0 && o->kind == OP_UNLINK) {
        folder_drop(f, o->name);
    } else if (i >= 0) {
        int moved = f->entries[i].node;
        folder_drop(f, o->name);
        folder_put(f, o->to, moved);
    }
}

static void draw_folder(image *im, int at_node, folder *f) {
    int sure = certain_until(im, at_node, OP_SYNC_DIR);
    bool take = true;
    memset(f, 0, sizeof *f);
    for (int i = 0; i < im->point; i++) {
        const op *o = &im->record->ops[i];
        bool change =
            o->kind == OP_LINK || o->kind == OP_UNLINK || o->kind == OP_RENAME;
        if (!change || o->node != at_node)
            continue;
        bool one = i < sure || drawn(im);
        take = i < sure || (take && one);
        if (im->how->loose ? one : take)
            apply(f, o);
    }
}

static void draw(image *im, int at_node, const char *path, memory_disk *to) {
    folder *f = (folder *)malloc(sizeof *f);
    draw_folder(im, at_node, f);
    for (int i = 0; i < f->count; i++) {
        char inner[256];
        int child = f->entries[i].node;
        snprintf(
            inner, sizeof inner, "%s%s%s", path, *path ? "/" : "", f->entries[i].name);
        if (im->record->nodes[child]->directory) {
            memory_disk_make_dir(to, inner);
            draw(im, child, inner, to);
        } else {
            bytes file = draw_file(im, child);
            memory_disk_save(to, inner, file.data, file.size);
            bytes_free(&file);
        }
    }
    free(f);
}

/* ---- checks ---- */

typedef struct tally_of_images {
    uint64_t images, more, wrong, left;
} tally_of_images;

static bool recover_image(const work *w, memory_disk *m, bags_error *err) {
    bags_env env = {NULL, &m->io};
    err->code = BAGS_OK;
    bags_code code = recover_path(w->path, &env, NULL, err);
    return code == BAGS_OK || code == BAGS_ERROR_MISSING;
}

static bool with_checksums; /* everything is written with checksums */
static int share = 1;       /* of a dataset's images, one in `share` is checked */
static int checked_images;  /* in total */

/* What was certain exists as it was written. With checksums, datapoints after
 * it contain no other bytes than were written; but a sector of zeros in a
 * journal and in its checksums makes empty blobs: the CRC of nothing is 0. */
static void check_image(const work *w, image *im, tally_of_images *sum) {
    memory_disk m;
    bags_error err;
    uint64_t seed = im->state;
    uint64_t certain = im->record->certain[im->point];
    memory_disk_start(&m);
    draw(im, 0, "", &m);
    bool done = recover_image(w, &m, &err);
    finding f = work_find(w, &m.io, !done);
    if (f.right < certain || f.length > im->record->appended[im->point] ||
        (f.opened && !f.verified) || (with_checksums && f.emptied < f.length))
        fail_msg("%s, call %d of %d, seed %llu: %d datapoints, the first %d "
                 "right; %d were certain, %d appended. recover: %s; reader: %s",
            im->how->name, im->point, im->record->length, (unsigned long long)seed,
            (int)f.length, (int)f.right, (int)certain,
            (int)im->record->appended[im->point], err.code ? err.message : "OK",
            f.error.code ? f.error.message : "OK");
    checked_images++;
    sum->images++;
    sum->more += f.length > certain;
    sum->wrong += f.right < f.length;
    sum->left += !done;
    if (done && f.opened)
        assert_true(recover_image(w, &m, &err));
    memory_disk_free(&m);
}

static const style styles[] = {
    {"all of it", 256, 4096, false},
    {"nothing more", 0, 4096, false},
    {"ordered, sectors of 512", 128, 512, false},
    {"ordered, pages of 4096", 128, 4096, false},
    {"ordered, most of it", 230, 512, false},
    {"ordered, little of it", 40, 4096, false},
    {"loose, sectors of 512", 128, 512, true},
    {"loose, pages of 4096", 200, 4096, true},
};

#define FEW 64

/* Every image of those points that have few. */
static void check_every(recorder *r, const work *w, const char *what) {
    static const style every = {"every choice", 0, 512, true};
    tally_of_images sum = {0, 0, 0, 0};
    choices *c = (choices *)malloc(sizeof *c);
    int complete = 0;
    for (int point = 0; point <= r->length; point++) {
        int images = 0;
        bool more = true;
        memset(c, 0, sizeof *c);
        for (; more && images < (with_checksums ? FEW / 4 : FEW) / share; images++) {
            image im = {r, point, &every, (uint64_t)images, c};
            check_image(w, &im, &sum);
            more = choose_next(c);
        }
        complete += !more;
    }
    free(c);
    print_message("%s: every image of %d of %d points, %d in all\n", what, complete,
        r->length + 1, (int)sum.images);
    assert_true(complete > 0);
}

/* Images of every point: the two that are not random once, the others `each`
 * times. */
static void check_all(recorder *r, const work *w, int each, const char *what) {
    tally_of_images sum = {0, 0, 0, 0};
    if (with_checksums)
        each = (each + 2) / 3; /* it makes a third more calls, and takes longer */
    for (int point = 0; point <= r->length; point += share)
        for (size_t s = 0; s < sizeof styles / sizeof *styles; s++)
            for (int i = 0; i < (s < 2 ? 1 : each); i++) {
                image im = {r, point, &styles[s],
                    (uint64_t)point * 1000 + s * 100 + (uint64_t)i, NULL};
                check_image(w, &im, &sum);
            }
    print_message("%s: %d calls, %d images; %d held more than was certain, %d "
                  "of them not as written; %d were left alone\n",
        what, r->length, (int)sum.images, (int)sum.more, (int)sum.wrong, (int)sum.left);
}

/* ---- writing ---- */

static void now_certain(recorder *r, const work *w) {
    r->certain[r->length] = w->flushed;
}

/* A datapoint may exist as soon as its append begins. */
static void append_recorded(recorder *r, work *w, bags_writer *writer, uint64_t stop) {
    while (w->appended < stop) {
        uint64_t shards = bags_writer_shards(writer);
        if (r->appended[r->length] < w->appended + 1)
            r->appended[r->length] = w->appended + 1;
        assert_ok(work_append(w, writer, &said));
        if (bags_writer_shards(writer) > shards && !w->options.no_sync)
            now_certain(r, w);
    }
}

static void sync_recorded(recorder *r, work *w, bags_writer *writer) {
    assert_ok(work_sync(w, writer, &said));
    mark(r, "synced");
    now_certain(r, w);
}

static void close_recorded(recorder *r, work *w, bags_writer *writer) {
    assert_ok(work_close(w, writer, &said));
    mark(r, w->options.no_sync ? "closed_no_sync" : "closed");
    if (!w->options.no_sync)
        now_certain(r, w);
}

/* A record, and the device above it that may crash. */
typedef struct stage {
    recorder *record;
    crash_device device;
    work job;
} stage;

static void stage_start(stage *s, const char *path, uint64_t shard_length) {
    s->record = recorder_start();
    crash_device_start(&s->device, &s->record->io);
    s->job = work_on(path, shard_length, &s->device.io);
    s->job.options.checksum = with_checksums;
}

static void stage_end(stage *s, int each, const char *what) {
    if (!save_trace(s->record)) {
        check_all(s->record, &s->job, each, what);
        check_every(s->record, &s->job, what);
    }
    recorder_free(s->record);
}

static void stage_crash(stage *s, bags_writer *writer) {
    mark(s->record, "crash");
    crash_writer(&s->device, writer);
}

static bags_writer *stage_open(stage *s, bool append) {
    bags_writer *writer;
    mark(s->record, s->job.options.no_sync ? "open_no_sync" : "open");
    assert_opens(writer, work_open(&s->job, append, &said));
    return writer;
}

static void recover_recorded(stage *s) {
    bags_env env = {NULL, &s->device.io};
    bags_recover_report report;
    assert_ok(recover_path(s->job.path, &env, &report, &said));
    mark(s->record, "recovered");
    finding f = work_find(&s->job, &s->record->io, false);
    assert_int_equal(f.right, f.length);
    s->job.flushed = f.length;
    now_certain(s->record, &s->job);
}

/* ---- tests ---- */

static void write_and_sync(stage *s, bags_writer *writer, uint64_t total) {
    work *w = &s->job;
    append_recorded(s->record, w, writer, w->appended + 2);
    assert_ok(bags_writer_flush(writer, &said));
    append_recorded(s->record, w, writer, w->appended + 3);
    sync_recorded(s->record, w, writer);
    append_recorded(s->record, w, writer, w->appended + 2);
    assert_ok(bags_writer_flush(writer, &said));
    append_recorded(s->record, w, writer, total);
}

static void synced_datapoints_survive_a_power_failure(void **state) {
    stage s;
    (void)state;
    stage_start(&s, "set", 0);
    bags_writer *writer = stage_open(&s, false);
    write_and_sync(&s, writer, 9);
    close_recorded(s.record, &s.job, writer);
    stage_end(&s, 12, "unsharded");
}

/* After every value, and after several. */
static void repeatedly_synced_datapoints_survive_a_power_failure(void **state) {
    static const uint64_t lengths[] = {0, 5};
    (void)state;
    for (int i = 0; i < 4; i++) {
        stage s;
        uint64_t total = i < 2 ? 13 : 7, every = i < 2 ? 4 : 1;
        stage_start(&s, "set", lengths[i % 2]);
        bags_writer *writer = stage_open(&s, false);
        for (uint64_t n = 1; n <= total; n++) {
            append_recorded(s.record, &s.job, writer, n);
            if (n % every == 0)
                sync_recorded(s.record, &s.job, writer);
        }
        if (i % 2)
            stage_crash(&s, writer);
        else
            close_recorded(s.record, &s.job, writer);
        stage_end(&s, i < 2 ? 4 : 2, "synced again and again");
    }
}

/* ---- one Bag ---- */

static size_t blob_of(uint64_t number, unsigned char *data) {
    size_t size = (size_t)(number * 37 % 900);
    fill(data, size, number);
    return size;
}

/* The blobs that were certain are read from every image. With checksums every other
 * blob is correct, or empty: a sector of zeros is the end and the checksum of empty
 * blobs. */
static void check_bag(
    image *im, memory_disk *m, uint64_t seed, bool sums, tally_of_images *sum) {
    bags_error err;
    bag_reader_options options;
    bags_buffer scratch = {0};
    uint64_t right = 0, certain = im->record->certain[im->point];
    bool wrong = false;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.unfinished = BAGS_UNFINISHED_READ;
    options.verify_checksums = sums;
    bag_reader *reader = bag_reader_open("x.bag", &options, &err);
    uint64_t length = reader ? bag_reader_length(reader) : 0;
    for (bool same = true; right < length && same; right += same) {
        unsigned char data[900];
        bags_view blob = {NULL, 1};
        size_t size = blob_of(right, data);
        same = bag_reader_get(reader, right, &scratch, &blob, &err) == BAGS_OK &&
               blob.size == size && (!size || memcmp(blob.data, data, size) == 0);
        wrong = wrong || (!same && blob.size > 0);
    }
    if (right < certain || (sums && wrong))
        fail_msg("%s, call %d, seed %llu: %d blobs, the first %d right; %d were "
                 "certain: %s",
            im->how->name, im->point, (unsigned long long)seed, (int)length, (int)right,
            (int)certain, reader ? "" : err.message);
    sum->more += length > certain;
    bags_buffer_free(&scratch);
    bag_reader_close(reader);
}

static void check_bag_image(image *im, tally_of_images *sum) {
    memory_disk m;
    uint64_t seed = im->state;
    memory_disk_start(&m);
    draw(im, 0, "", &m);
    bags_path_kind sums = BAGS_PATH_NONE;
    m.io.kind(m.io.user, "x.crc", &sums);
    check_bag(im, &m, seed, false, sum);
    if (sums == BAGS_PATH_FILE)
        check_bag(im, &m, seed, true, sum);
    checked_images++;
    sum->images++;
    memory_disk_free(&m);
}

static void check_all_bags(recorder *r) {
    tally_of_images sum = {0, 0, 0, 0};
    for (int point = 0; point <= r->length; point++)
        for (size_t s = 0; s < sizeof styles / sizeof *styles; s++)
            for (int i = 0; i < (s < 2 ? 1 : 8); i++) {
                image im = {r, point, &styles[s],
                    (uint64_t)point * 1000 + s * 100 + (uint64_t)i, NULL};
                check_bag_image(&im, &sum);
            }
    print_message("a Bag: %d calls, %d images; %d held more than was certain\n",
        r->length, (int)sum.images, (int)sum.more);
}

/* Synced now and then, more often, and by closing, which removes the journal: a
 * power failure may undo that. */
static void synced_blobs_of_a_bag_survive_a_power_failure(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        recorder *r = recorder_start();
        bag_writer_options options;
        bag_writer *writer;
        memset(&options, 0, sizeof options);
        options.env.io = &r->io;
        options.buffer_size = 4096;
        options.checksum = with_checksums;
        options.keep_idx = i == 2;
        assert_opens(writer, bag_writer_open("x.bag", &options, &said));
        for (uint64_t n = 0; n < 24; n++) {
            unsigned char data[900];
            assert_ok(bag_writer_append(writer, data, blob_of(n, data), NULL, &said));
            if (i == 1 ? n % 5 == 4 : n % 9 == 4) {
                assert_ok(bag_writer_sync(writer, &said));
                r->certain[r->length] = n + 1;
            }
            if (i != 1 && n % 9 == 6)
                assert_ok(bag_writer_flush(writer, &said));
        }
        assert_true(r->certain[r->length] > 9);
        assert_ok(bag_writer_close(writer, &said));
        r->certain[r->length] = 24;
        check_all_bags(r);
        recorder_free(r);
    }
}

static void finished_shards_survive_a_power_failure(void **state) {
    stage s;
    (void)state;
    stage_start(&s, "set", 3);
    bags_writer *writer = stage_open(&s, false);
    write_and_sync(&s, writer, 10);
    close_recorded(s.record, &s.job, writer);
    stage_end(&s, 4, "shards");
    stage_start(&s, "set", 4);
    s.job.options.keep_idx = true;
    writer = stage_open(&s, false);
    write_and_sync(&s, writer, 9);
    close_recorded(s.record, &s.job, writer);
    stage_end(&s, 4, "shards that keep their journals");
}

static void the_power_may_fail_during_recovery(void **state) {
    stage s;
    (void)state;
    stage_start(&s, "set", 0);
    bags_writer *writer = stage_open(&s, false);
    write_and_sync(&s, writer, 9);
    stage_crash(&s, writer);
    recover_recorded(&s);
    stage_end(&s, 8, "recovery, unsharded");
    stage_start(&s, "set", 4);
    writer = stage_open(&s, false);
    write_and_sync(&s, writer, 11);
    stage_crash(&s, writer);
    recover_recorded(&s);
    stage_end(&s, 4, "recovery of shards");
    stage_start(&s, "set", 40);
    writer = stage_open(&s, false);
    append_recorded(s.record, &s.job, writer, 5);
    assert_ok(work_flush(&s.job, writer, &said));
    stage_crash(&s, writer);
    recover_recorded(&s);
    stage_end(&s, 6, "recovery of what was never synced");
}

static void the_power_may_fail_after_resuming(void **state) {
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        stage s;
        stage_start(&s, "set", lengths[i]);
        bags_writer *writer = stage_open(&s, false);
        write_and_sync(&s, writer, 9);
        stage_crash(&s, writer);
        writer = stage_open(&s, true);
        write_and_sync(&s, writer, bags_writer_resumed(writer) + 7);
        stage_crash(&s, writer);
        writer = stage_open(&s, true);
        write_and_sync(&s, writer, bags_writer_resumed(writer) + 7);
        close_recorded(s.record, &s.job, writer);
        stage_end(&s, 3, i ? "append, shards" : "append, unsharded");
    }
}

/* A datapoint may refer to blobs of datapoints that were synced long before it. */
static void datapoints_that_share_blobs_survive_a_power_failure(void **state) {
    (void)state;
    for (uint64_t length = 0; length < 10; length += 5) {
        stage s;
        stage_start(&s, "set", length);
        s.job.share = 4;
        bags_writer *writer = stage_open(&s, false);
        write_and_sync(&s, writer, 9);
        stage_crash(&s, writer);
        writer = stage_open(&s, true);
        write_and_sync(&s, writer, bags_writer_resumed(writer) + 9);
        close_recorded(s.record, &s.job, writer);
        stage_end(&s, 3, length ? "shared blobs, shards" : "shared blobs, unsharded");
    }
}

/* The blobs after the third need the dictionary, or all if the first are held: where they
 * are, it is. */
static void dictionaries_survive_a_power_failure(void **state) {
    static const uint64_t lengths[] = {0, 4, 0, 40};
    toy made = {2, 0, false, false, 0, 0, 0, 0, 0, false};
    bags_registry *registry = toy_registry(&made);
    (void)state;
    for (int i = 0; i < 8; i++) {
        made.holds = (uint64_t)i / 4 * 2;
        made.after = i / 4 ? 1000 : 2;
        stage s; /* with no_sync, one shard: the earlier ones are not certain */
        stage_start(&s, "set", lengths[i % 4]);
        s.job.options.registry = registry;
        s.job.options.no_sync = i % 4 >= 2;
        bags_writer *writer = stage_open(&s, false);
        write_and_sync(&s, writer, 9);
        stage_crash(&s, writer);
        writer = stage_open(&s, true);
        write_and_sync(&s, writer, bags_writer_resumed(writer) + 7);
        close_recorded(s.record, &s.job, writer);
        stage_end(&s, 3, i % 2 ? "dictionaries, shards" : "a dictionary");
    }
    assert_true(made.prepared > 100 || getenv("BAGS_TRACES"));
    bags_registry_free(registry);
}

/* A sync keeps its promise even if nothing is synced automatically. */
static void an_explicit_sync_holds_with_no_sync(void **state) {
    static const uint64_t lengths[] = {0, 40};
    (void)state;
    for (int i = 0; i < 2; i++) {
        stage s;
        stage_start(&s, "set", lengths[i]);
        s.job.options.no_sync = true;
        bags_writer *writer = stage_open(&s, false);
        write_and_sync(&s, writer, 9);
        stage_crash(&s, writer);
        stage_end(&s, 6, i ? "no_sync, shards" : "no_sync, unsharded");
    }
}

/* A shard that was synced is finished with syncs; otherwise finishing it could
 * lose what was certain. */
static void finishing_a_shard_loses_nothing_that_was_synced(void **state) {
    static const uint64_t lengths[] = {0, 4};
    (void)state;
    for (int i = 0; i < 4; i++) {
        stage s;
        stage_start(&s, "set", lengths[i / 2]);
        s.job.options.no_sync = true;
        s.job.options.keep_idx = i % 2;
        bags_writer *writer = stage_open(&s, false);
        append_recorded(s.record, &s.job, writer, 2);
        sync_recorded(s.record, &s.job, writer);
        append_recorded(s.record, &s.job, writer, 5);
        sync_recorded(s.record, &s.job, writer);
        append_recorded(s.record, &s.job, writer, 6);
        close_recorded(s.record, &s.job, writer);
        stage_end(&s, 4, "no_sync, finished after a sync");
    }
}

static void new_directories_survive_a_power_failure(void **state) {
    stage s;
    (void)state;
    stage_start(&s, "new/newer/set", 0);
    bags_writer *writer = stage_open(&s, false);
    write_and_sync(&s, writer, 8);
    close_recorded(s.record, &s.job, writer);
    stage_end(&s, 3, "new directories above");
    stage_start(&s, "new/set", 40);
    writer = stage_open(&s, false);
    write_and_sync(&s, writer, 8);
    close_recorded(s.record, &s.job, writer);
    stage_end(&s, 3, "a new directory above shards");
}

/* Directories created by a writer that crashed before it synced anything. */
static void directories_of_a_crashed_writer_survive_a_power_failure(void **state) {
    static const uint64_t lengths[] = {0, 40};
    (void)state;
    for (int i = 0; i < 4; i++) {
        stage s;
        stage_start(&s, "new/newer/set", lengths[i % 2]);
        bags_writer *writer = stage_open(&s, false);
        append_recorded(s.record, &s.job, writer, 4);
        assert_ok(work_flush(&s.job, writer, &said));
        stage_crash(&s, writer);
        if (i < 2) {
            recover_recorded(&s);
        } else {
            writer = stage_open(&s, true);
            append_recorded(s.record, &s.job, writer, 6);
            sync_recorded(s.record, &s.job, writer);
            close_recorded(s.record, &s.job, writer);
        }
        stage_end(
            &s, 2, i < 2 ? "recovery in new directories" : "append in new directories");
    }
}

/* ---- datapoints in pieces ---- */

/* What was certain of the pieces after each call. */
static in_pieces piece_states[MOST_OPS + 1];

static void note_pieces(in_pieces *p) {
    const recorder *r = (const recorder *)p->user;
    piece_states[r->length] = *p;
}

/* What was synced of the last datapoint exists, unless it was cancelled; with checksums,
 * nothing else than what was written. */
static void check_pieces_image(image *im, const in_pieces *last, tally_of_images *sum) {
    memory_disk m;
    bags_error err;
    bags_env env = {NULL, &m.io};
    in_pieces then = piece_states[im->point];
    uint64_t seed = im->state;
    memory_disk_start(&m);
    draw(im, 0, "", &m);
    err.message[0] = 0;
    bags_code code = recover_path(last->path, &env, NULL, &err);
    then.only_certain = !with_checksums;
    then.most = last->most;
    for (uint64_t i = 0; i < PIECES_MOST && with_checksums; i++) {
        then.items[i] = last->items[i];
        then.any_begun = true;
    }
    const char *wrong = pieces_fault(&then, &m.io);
    if (wrong)
        fail_msg("%s, call %d of %d, seed %llu: %s; recover: %s", im->how->name,
            im->point, im->record->length, (unsigned long long)seed, wrong,
            code ? err.message : "OK");
    checked_images++;
    sum->images++;
    sum->left += code != BAGS_OK;
    memory_disk_free(&m);
}

static void check_pieces(recorder *r, const in_pieces *p, int each, const char *what) {
    tally_of_images sum = {0, 0, 0, 0};
    if (save_trace(r))
        return;
    for (int point = 1; point <= r->length; point++)
        if (!piece_states[point].path)
            piece_states[point] = piece_states[point - 1];
    for (int point = 0; point <= r->length; point += share)
        for (size_t s = 0; s < sizeof styles / sizeof *styles; s++)
            for (int i = 0; i < (s < 2 ? 1 : each); i++) {
                image im = {r, point, &styles[s],
                    (uint64_t)point * 1000 + s * 100 + (uint64_t)i, NULL};
                check_pieces_image(&im, p, &sum);
            }
    print_message("%s: %d calls, %d images; %d were left alone\n", what, r->length,
        (int)sum.images, (int)sum.left);
}

static void what_was_synced_inside_a_datapoint_survives_a_power_failure(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        recorder *r = recorder_start();
        crash_device device;
        in_pieces p;
        crash_device_start(&device, &r->io);
        pieces_start(&p, "set", i % 2 ? 3 : 0, &device.io);
        p.options.checksum = with_checksums;
        p.options.no_sync = i / 2 % 2;
        p.syncs = true;
        p.changed = note_pieces;
        p.user = r;
        memset(piece_states, 0, sizeof piece_states);
        piece_states[0] = p;
        mark(r, p.options.no_sync ? "open_no_sync" : "open");
        assert_ok(pieces_write(&p, &said));
        mark(r, "crash");
        crash_writer(&device, p.writer);
        p.options.no_sync = false; /* it does not know what was synced before */
        mark(r, "open");
        if (i / 4)
            assert_ok(pieces_resume(&p, &said));
        mark(r, i / 4 ? "closed" : "end");
        check_pieces(r, &p, 4, i / 4 ? "pieces, resumed" : "pieces");
        recorder_free(r);
    }
}

/* test_power [SHARE] */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(synced_datapoints_survive_a_power_failure),
        TEST(repeatedly_synced_datapoints_survive_a_power_failure),
        TEST(synced_blobs_of_a_bag_survive_a_power_failure),
        TEST(finished_shards_survive_a_power_failure),
        TEST(the_power_may_fail_during_recovery),
        TEST(the_power_may_fail_after_resuming),
        TEST(datapoints_that_share_blobs_survive_a_power_failure),
        TEST(dictionaries_survive_a_power_failure),
        TEST(an_explicit_sync_holds_with_no_sync),
        TEST(finishing_a_shard_loses_nothing_that_was_synced),
        TEST(new_directories_survive_a_power_failure),
        TEST(directories_of_a_crashed_writer_survive_a_power_failure),
        TEST(what_was_synced_inside_a_datapoint_survives_a_power_failure),
    };
    if (argc > 1 && atoi(argv[1]) > 1)
        share = atoi(argv[1]);
    int failed = cmocka_run_group_tests_name("power", tests, NULL, NULL);
    with_checksums = true;
    failed += cmocka_run_group_tests_name("power, with checksums", tests, NULL, NULL);
    if (share > 1)
        print_message("in part: test_power %d, %d images\n", share, checked_images);
    return failed;
}
