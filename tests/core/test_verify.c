/* Faults of every kind, planted in a dataset: bags_verify reports each one
 * where it is, alone and together. */
// flavours: test: release; check: asan
#include "check.h"

#include <errno.h>

/* ---- what is checked ---- */

/*
 * A shard has four datapoints: a is "one", b is "it0", "it1". So a.bag has blobs
 * of 3 bytes and its table at 12, b.bag eight blobs and its table at 24, and
 * refs.bag rows of 5 bytes and its table at 20.
 */
#define SHARD_BYTES (8 * (4 + 8 + 4) + 12 + 24 + 20)
#define SPEC "{\"a\": \"utf8\", \"b\": \"utf8[]\"}"

static void save_shard(memory_disk *m, enum variant variant, const char *path) {
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "utf8");
    set_field(&set, "b", variant == SPLIT ? "utf8" : "utf8[]");
    for (int i = 0; i < 4; i++) {
        set_begin(&set);
        set_text(&set, 0, "one");
        if (variant == SPLIT)
            set_text(&set, 1, "two");
        else
            set_items(&set, 1, "it", 2);
        set_end(&set);
    }
    memory_disk_save_set(m, &set, variant, path);
    set_free(&set);
}

typedef struct fault {
    const char *path, *field;
    bags_fault_kind kind;
    uint64_t index, offset;
    bags_code code;
    const char *says;
} fault;

#define FAULTS 64

/* What `each` was called with. */
typedef struct findings {
    size_t count;
    fault list[FAULTS];
    char texts[FAULTS][3][256];
} findings;

static void collect(void *user, const bags_fault *found) {
    findings *f = (findings *)user;
    if (f->count == FAULTS)
        return;
    fault *to = &f->list[f->count];
    char(*text)[256] = f->texts[f->count++];
    snprintf(text[0], 256, "%s", found->path);
    snprintf(text[1], 256, "%s", found->field ? found->field : "");
    snprintf(text[2], 256, "%s", found->message);
    to->path = text[0];
    to->field = found->field ? text[1] : NULL;
    to->kind = found->kind;
    to->index = found->index;
    to->offset = found->offset;
    to->code = found->code;
    to->says = text[2];
}

static bool is_same(const fault *expected, const fault *found) {
    bool fields = expected->field && found->field
                      ? strcmp(expected->field, found->field) == 0
                      : expected->field == found->field;
    return fields && strcmp(expected->path, found->path) == 0 &&
           expected->kind == found->kind && expected->index == found->index &&
           expected->offset == found->offset && expected->code == found->code &&
           contains(found->says, expected->says);
}

static void show(const char *what, const fault *f) {
    print_error("%s: %s, %s, kind %d, index %d, offset %d, %s: %s\n", what, f->path,
        f->field ? f->field : "-", (int)f->kind, (int)f->index, (int)f->offset,
        bags_code_name(f->code), f->says);
}

/* Every expected fault was reported, and nothing else. */
static void compare(const fault *expected, size_t count, findings *f) {
    bool used[FAULTS] = {false};
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < f->count && (used[k] || !is_same(&expected[i], &f->list[k])))
            k++;
        if (k < f->count)
            used[k] = true;
        else
            show("not found", &expected[i]);
        wrong += k == f->count;
    }
    for (size_t k = 0; k < f->count; k++)
        if (!used[k]) {
            show("too much", &f->list[k]);
            wrong++;
        }
    assert_int_equal(wrong, 0);
}

static bags_verify_options options_for(const bags_io *io, findings *f) {
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = io;
    options.each = f ? collect : NULL;
    options.user = f;
    return options;
}

/* Verify in this many parts, and expect these faults. */
static void expect(memory_disk *m, const char *path, const fault *expected,
    size_t count, bags_verify_options options, uint64_t parts) {
    findings f;
    uint64_t faults = 0;
    f.count = 0;
    options.user = &f;
    options.each = collect;
    options.env.io = &m->io;
    options.parts = parts;
    for (options.part = 0; options.part < parts; options.part++) {
        bags_verify_report report;
        size_t before = f.count;
        poison();
        bags_code code = bags_verify(path, &options, &report, &said);
        bags_code first = f.count > before ? f.list[before].code : BAGS_OK;
        CHECK(is_code((int)first, (int)code, "bags_verify"));
        if (code)
            assert_string_equal(said.message, f.list[before].says);
        assert_true(report.faults == f.count - before);
        faults += report.faults;
    }
    assert_true(faults == f.count);
    compare(expected, count, &f);
}

/* ---- planted faults ---- */

static void patch(
    memory_disk *m, const char *path, size_t offset, const void *data, size_t size) {
    bags_view file = memory_disk_find(m, path);
    bytes copy = {NULL, 0, 0};
    put(&copy, file.data, file.size);
    assert_true(offset + size <= copy.size);
    memcpy(copy.data + offset, data, size);
    memory_disk_save(m, path, copy.data, copy.size);
    bytes_free(&copy);
}

static void patch_entry(
    memory_disk *m, const char *path, size_t offset, uint64_t value) {
    bytes entry = {NULL, 0, 0};
    put_u64(&entry, value);
    patch(m, path, offset, entry.data, 8);
    bytes_free(&entry);
}

static void cut(memory_disk *m, const char *path, size_t size) {
    bags_view file = memory_disk_find(m, path);
    bytes copy = {NULL, 0, 0};
    put(&copy, file.data, size);
    assert_true(size < file.size);
    memory_disk_save(m, path, copy.data, copy.size);
    bytes_free(&copy);
}

typedef enum act {
    SAVE,
    TRUNCATE,
    PATCH,
    ENTRY,
    REMOVE,
    UNFINISH,
    LOCK,
    MISS,
    TWICE,
    LARGE,
    HUGE_SPEC
} act;

typedef struct plant {
    act what;
    const char *file;
    const char *data; /* SAVE, PATCH */
    size_t offset;    /* PATCH, ENTRY; TRUNCATE: the size */
    uint64_t value;   /* ENTRY */
    bool decode;      /* only found with `decode` */
    fault named;      /* path NULL: the shard's; "x": the dataset's */
} plant;

#define FAR ((uint64_t)1 << 40)
#define FILE_FAULT(code, says) BAGS_FAULT_FILE, 0, 0, code, says

/* Plant i goes into shard i + 1. */
static const plant plants[] = {
    {SAVE, "spec.json", "{", 0, 0, false,
        {NULL, NULL, FILE_FAULT(BAGS_ERROR_CORRUPT, "spec.json")}},
    {SAVE, "spec.json", "{\"a\": \"bytes\", \"b\": \"utf8[]\"}", 0, 0, false,
        {NULL, NULL,
            FILE_FAULT(BAGS_ERROR_CORRUPT,
                "spec.json: field \"a\": type mismatch (bytes, utf8 in the first")}},
    {SAVE, "spec.json", "{\"../a\": \"utf8\"}", 0, 0, false,
        {NULL, NULL, FILE_FAULT(BAGS_ERROR_FIELD, "directory")}},
    {SAVE, "spec.json", "{\"a\": \"utf8[][]\", \"b\": \"x\"}", 0, 0, false,
        {NULL, NULL, FILE_FAULT(BAGS_ERROR_TYPE, "spec.json")}},
    {HUGE_SPEC, "spec.json", NULL, 0, 0, false,
        {NULL, NULL, FILE_FAULT(BAGS_ERROR_LIMIT, "spec.json")}},
    {REMOVE, "a.bag", NULL, 0, 0, false,
        {NULL, "a", FILE_FAULT(BAGS_ERROR_MISSING, "a.bag")}},
    {TRUNCATE, "b.bag", NULL, 93, 0, false,
        {NULL, "b", FILE_FAULT(BAGS_ERROR_CORRUPT, "b.bag")}},
    {SAVE, "a.bag", "", 0, 0, false,
        {NULL, "a", FILE_FAULT(BAGS_ERROR_CORRUPT, "0 bytes")}},
    {ENTRY, "a.bag", NULL, 36, 1, false,
        {NULL, "a", BAGS_FAULT_BLOB, 2, 36, BAGS_ERROR_CORRUPT, "a.bag: blob 2"}},
    {ENTRY, "b.bag", NULL, 40, FAR, false,
        {NULL, "b", BAGS_FAULT_BLOB, 1, 40, BAGS_ERROR_CORRUPT, "b.bag: blob 1"}},
    {PATCH, "refs.bag", "\xc0", 5, 0, false,
        {NULL, "refs", BAGS_FAULT_DATAPOINT, 1, 5, BAGS_ERROR_CORRUPT,
            "datapoint 1: refs.bag*not a msgpack array"}},
    {PATCH, "refs.bag", "\x07", 13, 0, false,
        {NULL, "refs", BAGS_FAULT_DATAPOINT, 2, 10, BAGS_ERROR_CORRUPT,
            "field \"b\": datapoint 2: refs.bag*[7, 2]*length 8"}},
    {PATCH, "refs.bag", "\x04", 16, 0, false,
        {NULL, "refs", BAGS_FAULT_DATAPOINT, 3, 15, BAGS_ERROR_CORRUPT,
            "field \"a\": datapoint 3: refs.bag*4*length 4"}},
    {ENTRY, "refs.bag", NULL, 28, FAR, false,
        {NULL, "refs", BAGS_FAULT_BLOB, 0, 28, BAGS_ERROR_CORRUPT, "refs.bag: blob 0"}},
    {REMOVE, "refs.bag", NULL, 0, 0, false,
        {NULL, "refs", FILE_FAULT(BAGS_ERROR_MISSING, "refs.bag")}},
    {TRUNCATE, "refs.bag", NULL, 59, 0, false,
        {NULL, "refs", FILE_FAULT(BAGS_ERROR_CORRUPT, "refs.bag")}},
    {SAVE, "refs.bag", "", 0, 0, false,
        {NULL, "refs", FILE_FAULT(BAGS_ERROR_CORRUPT, "refs.bag*0 bytes*a.bag")}},
    {UNFINISH, "spec.json", NULL, 0, 0, false,
        {NULL, NULL,
            FILE_FAULT(
                BAGS_ERROR_UNFINISHED, "unfinished*no writer*run bags_recover")}},
    {LOCK, "spec.json", NULL, 0, 0, false,
        {NULL, NULL, FILE_FAULT(BAGS_ERROR_UNFINISHED, "unfinished*is running")}},
    {MISS, NULL, NULL, 0, 0, false,
        {"x", NULL, FILE_FAULT(BAGS_ERROR_GAP, "missing shards 20 ")}},
    {TWICE, NULL, NULL, 0, 0, false,
        {"x", NULL, FILE_FAULT(BAGS_ERROR_CORRUPT, "two shards*21*000021*0000021")}},
    {LARGE, NULL, NULL, 0, 0, false,
        {"x", NULL, FILE_FAULT(BAGS_ERROR_LIMIT, "2222222222222222222")}},
    {PATCH, "a.bag", "\xff", 6, 0, true,
        {NULL, "a", BAGS_FAULT_BLOB, 2, 6, BAGS_ERROR_CORRUPT, "a.bag: blob 2: "}},
    {PATCH, "b.bag", "\xff", 16, 0, true,
        {NULL, "b", BAGS_FAULT_BLOB, 5, 15, BAGS_ERROR_CORRUPT, "b.bag: blob 5: "}},
};

#define PLANTS (sizeof plants / sizeof plants[0])

/* A dataset with some planted faults, one per bit of `which`. */
typedef struct planted {
    memory_disk m;
    fault expected[PLANTS];
    char paths[PLANTS][32];
    size_t count;
    void *locked;
} planted;

static void plant_fault(planted *g, size_t i) {
    const plant *p = &plants[i];
    memory_disk *m = &g->m;
    char dir[32], path[64], other[64];
    sprintf(dir, "x/%06d", (int)i + 1);
    sprintf(path, "%s/%s", dir, p->file ? p->file : "");
    sprintf(other, "%s/spec.json.partial", dir);
    bytes big = {NULL, 0, 0};
    switch (p->what) {
    case SAVE:
        memory_disk_save(m, path, p->data, strlen(p->data));
        break;
    case HUGE_SPEC:
        put_text(&big, SPEC);
        while (big.size <= 1 << 20)
            put_text(&big, "                                ");
        memory_disk_save(m, path, big.data, big.size);
        bytes_free(&big);
        break;
    case TRUNCATE:
        cut(m, path, p->offset);
        break;
    case PATCH:
        patch(m, path, p->offset, p->data, strlen(p->data));
        break;
    case ENTRY:
        patch_entry(m, path, p->offset, p->value);
        break;
    case REMOVE:
        assert_int_equal(m->io.remove(m->io.user, path), 0);
        break;
    case LOCK:
    case UNFINISH:
        assert_int_equal(m->io.rename(m->io.user, path, other), 0);
        if (p->what == UNFINISH)
            break;
        assert_int_equal(m->io.open(m->io.user, other, BAGS_IO_READ, &g->locked), 0);
        assert_int_equal(m->io.lock(m->io.user, g->locked), 0);
        break;
    case MISS:
        assert_int_equal(m->io.rename(m->io.user, dir, "lost"), 0);
        break;
    case TWICE:
        save_shard(m, V1, "x/0000021");
        break;
    case LARGE:
        memory_disk_make_dir(m, "x/2222222222222222222");
        break;
    }
    g->expected[g->count] = p->named;
    strcpy(g->paths[g->count], dir);
    if (!p->named.path)
        g->expected[g->count].path = g->paths[g->count];
    g->count++;
}

static void planted_start(planted *g, uint64_t which, bool decode) {
    memset(g, 0, sizeof *g);
    memory_disk_start(&g->m);
    for (size_t i = 0; i < PLANTS + 2; i++) {
        char path[32];
        sprintf(path, "x/%06d", (int)i);
        save_shard(&g->m, V1, path);
    }
    for (size_t i = 0; i < PLANTS; i++) {
        if (!(which >> i & 1))
            continue;
        plant_fault(g, i);
        if (plants[i].decode && !decode)
            g->count--;
    }
}

static void planted_end(planted *g) {
    if (g->locked)
        g->m.io.close(g->m.io.user, g->locked);
    memory_disk_free(&g->m);
}

static void try_planted(uint64_t which, bool decode) {
    planted g;
    bags_verify_options options = options_for(NULL, NULL);
    planted_start(&g, which, decode);
    options.decode = decode;
    for (uint64_t parts = 1; parts < 8; parts = parts * 2 + 1)
        expect(&g.m, "x", g.expected, g.count, options, parts);
    planted_end(&g);
}

static void each_single_fault_is_reported_where_it_is(void **state) {
    (void)state;
    for (size_t i = 0; i < PLANTS; i++)
        for (int decode = 0; decode < 2; decode++)
            try_planted((uint64_t)1 << i, decode == 1);
}

static void all_faults_together_are_reported(void **state) {
    (void)state;
    try_planted(~(uint64_t)0, true);
    try_planted(~(uint64_t)0, false);
}

static void any_combination_of_faults_is_reported(void **state) {
    uint64_t random = 5;
    (void)state;
    for (int round = 0; round < 60; round++)
        try_planted(next_random(&random), round % 2 == 1);
}

static void an_intact_dataset_is_counted(void **state) {
    planted g;
    findings f = {0};
    bags_verify_report sum = {0};
    (void)state;
    planted_start(&g, 0, false);
    bags_verify_options options = options_for(&g.m.io, &f);
    options.decode = true;
    assert_ok(bags_verify("x", &options, &sum, &said));
    uint64_t shards = PLANTS + 2;
    assert_true(sum.shards == shards && sum.files == 4 * shards);
    assert_true(sum.datapoints == 4 * shards && sum.blobs == 12 * shards);
    /* Entries of tables, rows and blobs, each once. */
    assert_true(sum.bytes == shards * SHARD_BYTES);
    assert_true(sum.unfinished + sum.undecoded + sum.faults + f.count == 0);
    assert_ok(bags_verify("x", &options, NULL, NULL));
    planted_end(&g);
}

/* Faults in one shard do not hide each other. */
static void many_faults_in_one_shard_are_all_reported(void **state) {
    static const fault expected[] = {
        {"s", "a", BAGS_FAULT_BLOB, 0, 20, BAGS_ERROR_CORRUPT, "blob 0"},
        {"s", "a", BAGS_FAULT_BLOB, 3, 9, BAGS_ERROR_CORRUPT, "UTF-8"},
        {"s", "b", BAGS_FAULT_BLOB, 2, 48, BAGS_ERROR_CORRUPT, "blob 2"},
        {"s", "b", BAGS_FAULT_BLOB, 5, 72, BAGS_ERROR_CORRUPT, "blob 5"},
        {"s", "b", BAGS_FAULT_BLOB, 7, 21, BAGS_ERROR_CORRUPT, "UTF-8"},
        {"s", "refs", BAGS_FAULT_DATAPOINT, 0, 0, BAGS_ERROR_CORRUPT,
            "field \"a\": datapoint 0: refs.bag*9*length 4"},
        {"s", "refs", BAGS_FAULT_DATAPOINT, 0, 0, BAGS_ERROR_CORRUPT,
            "field \"b\": datapoint 0: refs.bag*[0, 9]*length 8"},
        {"s", "refs", BAGS_FAULT_DATAPOINT, 2, 10, BAGS_ERROR_CORRUPT,
            "one element per field"},
    };
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    patch_entry(&m, "s/a.bag", 20, FAR);
    patch(&m, "s/a.bag", 9, "\xff", 1);
    patch_entry(&m, "s/b.bag", 48, 2);
    patch_entry(&m, "s/b.bag", 72, FAR);
    patch(&m, "s/b.bag", 22, "\xff", 1);
    patch(&m, "s/refs.bag", 1, "\x09", 1);
    patch(&m, "s/refs.bag", 4, "\x09", 1);
    patch(&m, "s/refs.bag", 10, "\x93", 1);
    options.decode = true;
    for (uint64_t parts = 1; parts < 6; parts++)
        expect(&m, "s", expected, 8, options, parts);
    memory_disk_free(&m);
}

/* ---- the options ---- */

static void gaps_and_unfinished_shards_can_be_allowed(void **state) {
    planted g;
    bags_verify_options options = options_for(NULL, NULL);
    bags_verify_report report;
    (void)state;
    planted_start(&g, 7u << 17, false); /* UNFINISH, LOCK, MISS */
    options.unfinished = BAGS_UNFINISHED_SKIP;
    expect(&g.m, "x", g.expected + 2, 1, options, 1);
    options.allow_gaps = true;
    expect(&g.m, "x", NULL, 0, options, 3);
    options.env.io = &g.m.io;
    assert_ok(bags_verify("x", &options, &report, &said));
    assert_true(report.unfinished == 2 && report.shards == PLANTS + 2 - 3);
    planted_end(&g);
}

static void only_the_shards_of_a_worker_are_checked(void **state) {
    planted g;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    planted_start(&g, 3u << 5, false); /* shards 6 and 7 */
    options.shard_stop = 2;
    expect(&g.m, "x", g.expected, 1, options, 1);
    options.shard_start = 1;
    expect(&g.m, "x", g.expected + 1, 1, options, 2);
    planted_end(&g);
    planted_start(&g, 1u << 19, false); /* 20 is missing: of 2, 4, 8, 16 not */
    options.shard_start = 0;
    options.shard_stop = 4;
    expect(&g.m, "x", g.expected, 1, options, 1);
    options.shard_stop = 8;
    expect(&g.m, "x", NULL, 0, options, 1);
    planted_end(&g);
}

static void invalid_arguments_of_verify_are_errors(void **state) {
    memory_disk m;
    findings f = {0};
    (void)state;
    memory_disk_start(&m);
    memory_disk_make_dir(&m, "empty");
    bags_verify_options options = options_for(&m.io, &f);
    assert_fails(BAGS_ERROR_MISSING, bags_verify("no", &options, NULL, &said));
    assert_fails(BAGS_ERROR_MISSING, bags_verify("empty", &options, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify("", &options, NULL, &said));
    options.part = options.parts = 2;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify("empty", &options, NULL, &said));
    options.part = 0;
    options.shard_start = options.shard_stop = 2;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify("empty", &options, NULL, &said));
    options.shard_start = 0;
    options.quick = options.decode = true;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify("empty", &options, NULL, &said));
    options.quick = options.decode = false;
    options.unfinished = BAGS_UNFINISHED_READ;
    assert_fails(BAGS_ERROR_ARGUMENT, bags_verify("empty", &options, NULL, &said));
    assert_int_equal(f.count, 0);
    memory_disk_free(&m);
}

/* ---- other datasets and Bags ---- */

static void a_standalone_bag_is_verified(void **state) {
    static const fault entry = {
        "s/a.bag", NULL, BAGS_FAULT_BLOB, 1, 28, BAGS_ERROR_CORRUPT, "s/a.bag: blob 1"};
    static const fault shape = {
        "s/a.bag", NULL, FILE_FAULT(BAGS_ERROR_CORRUPT, "s/a.bag*0 bytes")};
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    bags_verify_report report;
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    expect(&m, "s/a.bag", NULL, 0, options, 2);
    options.env.io = &m.io;
    assert_ok(bags_verify("s/a.bag", &options, &report, &said));
    assert_true(report.files == 1 && report.blobs == 4 && !report.shards);
    patch_entry(&m, "s/a.bag", 28, FAR);
    expect(&m, "s/a.bag", &entry, 1, options, 2);
    memory_disk_save(&m, "s/a.bag", "", 0);
    expect(&m, "s/a.bag", &shape, 1, options, 1);
    options.allow_empty_file = true;
    expect(&m, "s/a.bag", NULL, 0, options, 1);
    memory_disk_free(&m);
}

static void a_split_dataset_is_verified(void **state) {
    static const fault shorter = {
        "s", NULL, FILE_FAULT(BAGS_ERROR_UNFINISHED, "\"b\" has 3 blobs, \"a\" has 4")};
    static const fault entry = {
        "s", "a", BAGS_FAULT_BLOB, 1, 8, BAGS_ERROR_CORRUPT, "a.bag: blob 1"};
    static const fault value = {
        "s", "b", BAGS_FAULT_BLOB, 2, 6, BAGS_ERROR_CORRUPT, "b.bag: blob 2: "};
    static const fault missing = {"s", "b", FILE_FAULT(BAGS_ERROR_MISSING, "b.idx")};
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, SPLIT, "s");
    options.decode = true;
    expect(&m, "s", NULL, 0, options, 3);
    patch(&m, "s/b.bag", 6, "\xff", 1);
    expect(&m, "s", &value, 1, options, 3);
    options.decode = false;
    cut(&m, "s/b.idx", 29); /* a torn entry is ignored */
    expect(&m, "s", &shorter, 1, options, 2);
    options.unfinished = BAGS_UNFINISHED_SKIP;
    expect(&m, "s", NULL, 0, options, 1);
    patch_entry(&m, "s/a.idx", 8, FAR);
    expect(&m, "s", &entry, 1, options, 1);
    save_shard(&m, SPLIT, "s");
    assert_int_equal(m.io.remove(m.io.user, "s/b.idx"), 0);
    expect(&m, "s", &missing, 1, options, 2);
    memory_disk_free(&m);
}

static void empty_v2_datasets_are_valid(void **state) {
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    memory_disk_start(&m);
    memory_disk_save(&m, "s/spec.json", SPEC, strlen(SPEC));
    memory_disk_save(&m, "s/refs.bag", "", 0);
    memory_disk_save(&m, "s/a.bag", "", 0);
    memory_disk_save(&m, "s/b.bag", "", 0);
    expect(&m, "s", NULL, 0, options, 1);
    save_shard(&m, V2, "t");
    options.decode = true;
    expect(&m, "t", NULL, 0, options, 2);
    memory_disk_free(&m);
}

/* Without any valid spec.json the fields are unknown, but refs.bag can be
 * checked. */
static void refs_are_checked_without_a_valid_spec(void **state) {
    static const fault expected[] = {
        {"s", NULL, FILE_FAULT(BAGS_ERROR_CORRUPT, "spec.json")},
        {"s", "refs", BAGS_FAULT_BLOB, 0, 28, BAGS_ERROR_CORRUPT, "blob 0"},
    };
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    memory_disk_save(&m, "s/spec.json", "[]", 2);
    patch_entry(&m, "s/refs.bag", 28, FAR);
    expect(&m, "s", expected, 2, options, 1);
    memory_disk_free(&m);
}

/* A blob that no datapoint refers to, or whose rows are not in order. */
static void a_blob_without_a_datapoint_is_reported_by_its_index(void **state) {
    static const fault orphan = {
        "s", "a", BAGS_FAULT_BLOB, 2, 6, BAGS_ERROR_CORRUPT, "a.bag: blob 2: "};
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    patch(&m, "s/a.bag", 6, "\xff", 1);
    patch(&m, "s/refs.bag", 11, "\x01", 1); /* datapoint 2 refers to blob 1 too */
    options.decode = true;
    expect(&m, "s", &orphan, 1, options, 1);
    memory_disk_free(&m);
}

/* The blobs of field a, whose type is strange. */
static void count_strange(void *user, const bags_field *field, uint64_t blobs) {
    assert_string_equal(field->name, "a");
    assert_string_equal(field->type, "strange");
    *(uint64_t *)user += blobs;
}

static void types_without_a_codec_are_not_a_fault(void **state) {
    static const fault refused = {
        "s", "a", FILE_FAULT(BAGS_ERROR_TYPE, "s/a.bag: type \"int(4,5,6)\"")};
    static const char strange[] = "{\"a\": \"strange\", \"b\": \"utf8[]\"}";
    static const char wrong[] = "{\"a\": \"int(4,5,6)\", \"b\": \"utf8[]\"}";
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    bags_verify_report report;
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    memory_disk_save(&m, "s/spec.json", strange, sizeof strange - 1);
    options.env.io = &m.io;
    uint64_t strangers = 0;
    options.user = &strangers;
    options.undecoded = count_strange;
    assert_ok(bags_verify("s", &options, &report, &said));
    assert_true(report.undecoded == 0 && strangers == 0);
    options.decode = true;
    assert_ok(bags_verify("s", &options, &report, &said));
    assert_true(report.undecoded == 4 && strangers == 4);
    options.undecoded = NULL;
    options.user = NULL;
    assert_ok(bags_verify("s", &options, &report, &said));
    assert_true(report.undecoded == 4);
    memory_disk_save(&m, "s/spec.json", wrong, sizeof wrong - 1);
    expect(&m, "s", &refused, 1, options, 1);
    memory_disk_free(&m);
}

/* ---- bounds ---- */

static const uint64_t many = 100000;

/* A Bag in whose table every second entry is invalid. */
static void save_zigzag(memory_disk *m, const char *path) {
    bytes b = {NULL, 0, 0};
    put_text(&b, "x");
    put_u64(&b, 0);
    for (uint64_t i = 1; i < many; i++)
        put_u64(&b, i % 2 ? FAR : 0);
    put_u64(&b, 1);
    memory_disk_save(m, path, b.data, b.size);
    bytes_free(&b);
}

static void all_faults_are_counted_but_only_max_faults_reported(void **state) {
    memory_disk m;
    findings f = {0};
    bags_verify_report report;
    (void)state;
    memory_disk_start(&m);
    save_zigzag(&m, "z.bag");
    bags_verify_options options = options_for(&m.io, &f);
    options.max_faults = 7;
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify("z.bag", &options, &report, &said));
    assert_says("z.bag: blob 0*");
    assert_true(f.count == 7 && report.faults == many / 2);
    assert_true(memory.peak < 200000);
    memory_disk_free(&m);
}

static void quick_reads_as_much_of_a_large_file_as_of_a_small_one(void **state) {
    static const fault last = {"z.bag", NULL, BAGS_FAULT_BLOB, 99999, 800001,
        BAGS_ERROR_CORRUPT, "z.bag: blob 99999"};
    static const fault first = {
        "z.bag", NULL, BAGS_FAULT_BLOB, 0, 9, BAGS_ERROR_CORRUPT, "z.bag: blob 0"};
    fault both[2];
    memory_disk m;
    bags_verify_options options = options_for(NULL, NULL);
    bags_verify_report report;
    (void)state;
    memory_disk_start(&m);
    save_zigzag(&m, "z.bag");
    options.quick = true;
    both[0] = first;
    both[1] = last;
    expect(&m, "z.bag", both, 2, options, 1);
    options.env.io = &m.io;
    assert_int_equal(bags_verify("z.bag", &options, &report, NULL), BAGS_ERROR_CORRUPT);
    assert_true(report.bytes == 16);
    /* Of refs, the first and the last row. */
    static const fault row = {
        "s", "refs", BAGS_FAULT_DATAPOINT, 3, 15, BAGS_ERROR_CORRUPT, "datapoint 3"};
    save_shard(&m, V1, "s");
    expect(&m, "s", NULL, 0, options, 1);
    patch(&m, "s/refs.bag", 5, "\xc0", 1);
    expect(&m, "s", NULL, 0, options, 1);
    patch(&m, "s/refs.bag", 16, "\x09", 1);
    expect(&m, "s", &row, 1, options, 1);
    memory_disk_free(&m);
}

/* Looks for the fault about overlapping blobs. */
static void find_overlap(void *user, const bags_fault *found) {
    *(bool *)user |= strstr(found->message, "overlap") != NULL;
}

/* Each blob alone is valid, but after a step back they overlap earlier ones:
 * from one offset again and again, and from two that are far apart. */
static void cyclic_tables_are_read_a_bounded_number_of_times(void **state) {
    static const uint64_t cycles[2][4] = {{1, 2, 300000, 1}, {1, 2, 200000, 300000}};
    (void)state;
    for (size_t cycle = 0; cycle < 2; cycle++) {
        memory_disk m;
        bags_verify_report report;
        bytes b = {NULL, 0, 0};
        bool overlap = false;
        memory_disk_start(&m);
        save_shard(&m, V1, "s");
        while (b.size < 300000)
            put_u8(&b, 'x');
        put_u64(&b, 0);
        for (uint64_t i = 1; i < many; i++)
            put_u64(&b, cycles[cycle][(i - 1) % (3 + cycle)]);
        put_u64(&b, 300000);
        bags_verify_options options = options_for(&m.io, NULL);
        options.each = find_overlap;
        options.user = &overlap;
        options.max_faults = many;
        for (int refs = 0; refs < 2; refs++) {
            memory_disk_save(&m, refs ? "s/refs.bag" : "s/a.bag", b.data, b.size);
            options.decode = !refs;
            overlap = false;
            assert_fails(
                BAGS_ERROR_CORRUPT, bags_verify("s", &options, &report, &said));
            assert_true(overlap);
            assert_true(report.bytes < 6000000);
        }
        bytes_free(&b);
        memory_disk_free(&m);
    }
}

static void undecodable_blobs_are_counted_beyond_max_faults(void **state) {
    memory_disk m;
    findings f = {0};
    bags_verify_report report;
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    patch(&m, "s/a.bag", 0, "\xff", 1);
    patch(&m, "s/a.bag", 3, "\xff", 1);
    patch(&m, "s/a.bag", 6, "\xff", 1);
    bags_verify_options options = options_for(&m.io, &f);
    options.decode = true;
    options.max_faults = 2;
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify("s", &options, &report, &said));
    assert_true(f.count == 2 && report.faults == 3);
    memory_disk_free(&m);
}

/* Finding the datapoint of a blob needs memory too. */
static void running_out_of_memory_while_reporting_a_fault_is_an_error(void **state) {
    uint64_t n;
    (void)state;
    for (n = 1;; n++) {
        memory_disk m;
        tally blocks;
        memory_disk_start(&m);
        save_shard(&m, V1, "s");
        patch(&m, "s/a.bag", 3, "\xff", 1);
        tally_start(&blocks);
        blocks.fail_at = n;
        bags_verify_options options = options_for(&m.io, NULL);
        options.decode = true;
        options.env.allocator = &blocks.allocator;
        bags_code code = bags_verify("s", &options, NULL, &said);
        assert_int_equal(
            (int)code, blocks.failed ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT);
        assert_true(blocks.live == 0);
        memory_disk_free(&m);
        if (!blocks.failed)
            break;
    }
    assert_true(n > 30);
}

static void overlapping_blobs_are_read_a_bounded_number_of_times(void **state) {
    memory_disk m;
    findings f = {0};
    bags_verify_report report;
    bytes b = {NULL, 0, 0};
    (void)state;
    memory_disk_start(&m);
    save_shard(&m, V1, "s");
    while (b.size < 100000)
        put_u8(&b, 'x');
    put_u64(&b, 0);
    for (uint64_t i = 1; i < many; i++)
        put_u64(&b, i % 2 ? 99999 : 1);
    put_u64(&b, 100000);
    memory_disk_save(&m, "s/a.bag", b.data, b.size);
    bags_verify_options options = options_for(&m.io, &f);
    options.decode = true;
    options.max_faults = many;
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify("s", &options, &report, &said));
    assert_true(report.bytes < 3000000);
    memory_disk_save(&m, "s/refs.bag", b.data, b.size);
    options.decode = false;
    assert_fails(BAGS_ERROR_CORRUPT, bags_verify("s", &options, &report, &said));
    assert_true(report.bytes < 6000000);
    assert_true(memory.peak < 600000);
    bytes_free(&b);
    memory_disk_free(&m);
}

static const bags_io *counted;
static uint64_t bytes_read;

static int read_and_count(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    int error = counted->read_at(user, file, offset, data, size, done);
    bytes_read += *done;
    return error;
}

/* Two blobs at the end and two at the start, in turn. */
static void tables_that_jump_back_and_forth_are_read_a_bounded_number_of_times(
    void **state) {
    static const char *const names[] = {"s/refs.bag", "s/a.bag"};
    const uint64_t size = 1 << 20;
    bytes b = {NULL, 0, 0};
    (void)state;
    unsigned char *zeros = (unsigned char *)calloc(1, (size_t)size);
    assert_non_null(zeros);
    put(&b, zeros, (size_t)size);
    put_u64(&b, 0);
    for (int i = 0; i < 2000; i++) {
        const uint64_t far_end = size - 65536;
        const uint64_t ends[] = {far_end, far_end + 1, 1, 2, 3, 1};
        for (size_t k = 0; k < 6; k++)
            put_u64(&b, ends[k]);
    }
    put_u64(&b, size);
    for (int i = 0; i < 2; i++) {
        memory_disk m;
        findings f = {0};
        memory_disk_start(&m);
        save_shard(&m, V1, "s");
        memory_disk_save(&m, names[i], b.data, b.size);
        bags_io io = m.io;
        counted = &m.io;
        bytes_read = 0;
        io.read_at = read_and_count;
        io.map = NULL;
        bags_verify_options options = options_for(&io, &f);
        options.decode = true;
        assert_fails(BAGS_ERROR_CORRUPT, bags_verify("s", &options, NULL, &said));
        if (bytes_read >= 20 * b.size)
            fail_msg("%s: %.1f times its size was read", names[i],
                (double)bytes_read / (double)b.size);
        memory_disk_free(&m);
    }
    bytes_free(&b);
    free(zeros);
}

static void memory_does_not_grow_with_the_dataset(void **state) {
    memory_disk m;
    bytes b = {NULL, 0, 0}, refs = {NULL, 0, 0};
    (void)state;
    memory_disk_start(&m);
    memory_disk_save(&m, "s/spec.json", "{\"a\": \"bytes\"}", 14);
    for (uint64_t i = 0; i < many; i++)
        put(&refs, "\x91\xce\0\0\0\0", 6);
    for (uint64_t i = 0; i <= many; i++) {
        put_u64(&b, 0);
        put_u64(&refs, 6 * i);
    }
    memory_disk_save(&m, "s/a.bag", b.data, b.size);
    memory_disk_save(&m, "s/refs.bag", refs.data, refs.size);
    bags_verify_options options = options_for(&m.io, NULL);
    bags_verify_report report;
    options.decode = true;
    memory.peak = 0;
    assert_ok(bags_verify("s", &options, &report, &said));
    assert_true(report.datapoints == many && report.blobs == many);
    assert_true(memory.peak < 140000);
    bytes_free(&b);
    bytes_free(&refs);
    memory_disk_free(&m);
}

/* ---- failures ---- */

/* Every single call fails: then verify does not report success, unless it did
 * not need the call. */
static void try_calls(unsigned only, int error, bool stays) {
    uint64_t n, points = 0;
    for (n = 1;; n++) {
        memory_disk m;
        watch files;
        tally blocks;
        bags_verify_report report;
        memory_disk_start(&m);
        save_shard(&m, V1, "x/000000");
        save_shard(&m, V1, "x/000001");
        watch_start(&files, &m.io);
        tally_start(&blocks);
        files.only = only;
        files.fail_at = n;
        files.fail_with = error;
        files.stays = stays;
        bags_verify_options options = options_for(&files.io, NULL);
        options.decode = true;
        options.env.allocator = &blocks.allocator;
        poison();
        bags_code code = bags_verify("x", &options, &report, &said);
        CHECK(is_code((int)code, (int)code, "bags_verify"));
        /* What was repeated and then succeeded has been checked; refs is also
         * opened to name datapoints, of which none had to be named. */
        bool again = !stays && (files.last == HOOK_OPEN || files.last == HOOK_SIZE ||
                                   files.last == HOOK_READ || files.last == HOOK_KIND ||
                                   files.last == HOOK_IDENTIFY);
        bool harmless = files.last == HOOK_CLOSE || again;
        if (files.failed && !code && !harmless)
            fail_msg("call %d, %s, was passed over", (int)n, hook_names[files.last]);
        if (!code)
            assert_true(report.datapoints == 8 && report.blobs == 24 &&
                        report.files == 8 && report.bytes == 2 * SHARD_BYTES);
        points += files.failed > 0;
        if (blocks.live || files.files)
            fail_msg("call %d leaves %d blocks, %d files", (int)n, (int)blocks.live,
                files.files);
        memory_disk_free(&m);
        if (!files.failed)
            break;
    }
    print_message(
        "%s %s at %d calls\n", strerror(error), stays ? "stayed" : "came", (int)points);
    assert_true(points > 10);
}

static void a_failing_call_is_never_reported_as_success(void **state) {
    (void)state;
    try_calls(0, EIO, false);
    try_calls(0, EIO, true);
    try_calls(1u << HOOK_READ, EIO, false);
    try_calls(0, ENOMEM, false);
    try_calls(0, EACCES, true);
}

static void running_out_of_memory_is_never_reported_as_success(void **state) {
    uint64_t n;
    (void)state;
    for (n = 1;; n++) {
        memory_disk m;
        tally blocks;
        memory_disk_start(&m);
        save_shard(&m, V1, "x/000000");
        save_shard(&m, SPLIT, "x/000001");
        memory_disk_save(&m, "x/000002/spec.json.partial", SPEC, sizeof SPEC - 1);
        tally_start(&blocks);
        blocks.fail_at = n;
        bags_verify_options options = options_for(&m.io, NULL);
        options.decode = true;
        options.unfinished = BAGS_UNFINISHED_SKIP;
        options.env.allocator = &blocks.allocator;
        poison();
        bags_code code = bags_verify("x", &options, NULL, &said);
        if (blocks.failed)
            CHECK(is_code(BAGS_ERROR_MEMORY, (int)code, "bags_verify"));
        if (blocks.live)
            fail_msg("allocation %d leaves %d blocks", (int)n, (int)blocks.live);
        memory_disk_free(&m);
        if (!blocks.failed)
            break;
    }
    print_message("memory ran out at %d points\n", (int)n - 1);
    assert_true(n > 60);
}

/* A reader that reads everything finds no fault that verify does not find. */
static void everything_that_a_reader_refuses_is_a_fault(void **state) {
    (void)state;
    for (size_t i = 0; i < PLANTS; i++) {
        planted g;
        findings f = {0};
        bags_reader_options read;
        planted_start(&g, (uint64_t)1 << i, false);
        bags_verify_options options = options_for(&g.m.io, &f);
        memset(&read, 0, sizeof read);
        read.env = options.env;
        bool wrong = bags_verify("x", &options, NULL, NULL) != BAGS_OK;
        for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
            bags_row row = {0};
            read.no_mmap = no_mmap == 1;
            poison();
            bags_reader *reader = bags_reader_open("x", &read, &said);
            bags_code code = reader ? BAGS_OK : said.code;
            uint64_t length = reader ? bags_reader_length(reader) : 0;
            for (uint64_t k = 0; k < length && !code; k++)
                code = bags_reader_get(reader, k, NULL, 0, &row, &said);
            bags_row_free(&row);
            bags_reader_close(reader);
            if (code != BAGS_OK && !wrong)
                fail_msg("plant %d: %s", (int)i, said.message);
        }
        planted_end(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(each_single_fault_is_reported_where_it_is),
        TEST(all_faults_together_are_reported),
        TEST(any_combination_of_faults_is_reported),
        TEST(an_intact_dataset_is_counted),
        TEST(many_faults_in_one_shard_are_all_reported),
        TEST(gaps_and_unfinished_shards_can_be_allowed),
        TEST(only_the_shards_of_a_worker_are_checked),
        TEST(invalid_arguments_of_verify_are_errors),
        TEST(a_standalone_bag_is_verified),
        TEST(a_split_dataset_is_verified),
        TEST(empty_v2_datasets_are_valid),
        TEST(refs_are_checked_without_a_valid_spec),
        TEST(a_blob_without_a_datapoint_is_reported_by_its_index),
        TEST(types_without_a_codec_are_not_a_fault),
        TEST(all_faults_are_counted_but_only_max_faults_reported),
        TEST(quick_reads_as_much_of_a_large_file_as_of_a_small_one),
        TEST(overlapping_blobs_are_read_a_bounded_number_of_times),
        TEST(cyclic_tables_are_read_a_bounded_number_of_times),
        TEST(tables_that_jump_back_and_forth_are_read_a_bounded_number_of_times),
        TEST(undecodable_blobs_are_counted_beyond_max_faults),
        TEST(memory_does_not_grow_with_the_dataset),
        TEST(a_failing_call_is_never_reported_as_success),
        TEST(running_out_of_memory_is_never_reported_as_success),
        TEST(running_out_of_memory_while_reporting_a_fault_is_an_error),
        TEST(everything_that_a_reader_refuses_is_a_fault),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
