/*
 * Small datasets in which every byte is changed in three ways, and every file is
 * truncated at every length, extended, removed, and swapped with every other one.
 * Reading and verifying never crash (each file is in a block of its own, so that
 * the address sanitizer sees every access outside). What contradicts the format
 * is reported, and nothing else; and what verify accepts can be read, with mmap
 * and without.
 *
 * A second reader in this file, which shares nothing with the library, decides
 * what contradicts the format. Without checksums a change within a blob is legal;
 * with them, no change to what a reader returns goes undetected.
 */
// flavours: test: release; check: asan
#include "check.h"

/* ---- datasets ---- */

#define MOST_FILES 16

typedef struct file {
    char path[64];
    bytes content;
} file;

/* The files of a dataset in the directory "set". */
typedef struct files {
    file each[MOST_FILES];
    size_t count;
} files;

typedef struct listing {
    const bags_io *io;
    const char *path;
    files *into;
} listing;

static int collect(void *user, const char *name);

static void collect_all(const bags_io *io, const char *path, files *into) {
    listing l = {io, path, into};
    assert_int_equal(io->list(io->user, path, collect, &l), 0);
}

static int collect(void *user, const char *name) {
    listing *l = (listing *)user;
    char path[64];
    bags_path_kind kind = BAGS_PATH_NONE;
    snprintf(path, sizeof path, "%s/%s", l->path, name);
    l->io->kind(l->io->user, path, &kind);
    if (kind == BAGS_PATH_DIRECTORY) {
        collect_all(l->io, path, l->into);
        return 0;
    }
    assert_true(l->into->count < MOST_FILES);
    file *to = &l->into->each[l->into->count++];
    bags_view view = memory_disk_find((memory_disk *)l->io->user, path);
    memcpy(to->path, path, sizeof path);
    put(&to->content, view.data, view.size);
    return 0;
}

static void files_free(files *f) {
    for (size_t i = 0; i < f->count; i++)
        bytes_free(&f->each[i].content);
}

static const bags_field fields[] = {{"clip", "bytes[]"}, {"id", "int(4)"},
    {"text", "utf8"}, {"wave", "array(int16,-1)"}};

#define FIELDS (sizeof fields / sizeof fields[0])
#define LENGTH 5

static bags_code append_one(bags_writer *writer, uint64_t i) {
    static const int16_t wave[] = {1, -2, 3, 400};
    uint64_t shape = i % 3;
    bags_value clip[] = {bags_bytes("ab", 2), bags_bytes("", 0), bags_bytes("cde", 3)};
    bags_value id = bags_uint(7 * i), text = bags_utf8(i % 2 ? "odd" : "");
    bags_value samples = bags_array(BAGS_DTYPE_INT16, 1, &shape, wave);
    bags_entry entries[] = {{"clip", clip, i % 4}, {"id", &id, 1}, {"text", &text, 1},
        {"wave", &samples, 1}};
    return bags_writer_append(writer, entries, FIELDS, &said);
}

/* As this library writes it. */
static void write_set(files *into, const bags_writer_options *how) {
    memory_disk drive;
    bags_writer_options options = *how;
    bags_writer *writer;
    memory_disk_start(&drive);
    options.env.io = &drive.io;
    options.buffer_size = 4096;
    assert_opens(writer, bags_writer_open("set", fields, FIELDS, &options, &said));
    for (uint64_t i = 0; i < LENGTH; i++)
        assert_ok(append_one(writer, i));
    assert_ok(bags_writer_close(writer, &said));
    memset(into, 0, sizeof *into);
    collect_all(&drive.io, "set", into);
    memory_disk_free(&drive);
}

/* As earlier and later versions of the Python package write it. */
static void write_by_hand(files *into, enum variant variant) {
    memory_disk drive;
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "id", "int");
    set_field(&set, "text", "utf8");
    for (int i = 0; i < LENGTH; i++) {
        set_begin(&set);
        set_blob(&set, 0, "\1\2", 1 + (size_t)i % 2);
        set_text(&set, 1, &"some words"[i]);
        set_end(&set);
    }
    memory_disk_start(&drive);
    memory_disk_save_set(&drive, &set, variant, "set");
    memset(into, 0, sizeof *into);
    collect_all(&drive.io, "set", into);
    memory_disk_free(&drive);
    set_free(&set);
}

/* ---- what contradicts the format ---- */

/* A Bag's table. */
typedef struct table {
    const unsigned char *entries;
    uint64_t length; /* blobs */
    uint64_t lead;   /* 1: a leading 0; 0: v2, without it */
} table;

static uint64_t blob_start(const table *t, uint64_t i) {
    return i + t->lead ? load_u64(t->entries + 8 * (i + t->lead - 1)) : 0;
}

static uint64_t blob_stop(const table *t, uint64_t i) {
    return load_u64(t->entries + 8 * (i + t->lead));
}

static bool read_table(const bytes *bag, table *t) {
    if (bag->size < 8)
        return false;
    uint64_t start = load_u64(bag->data + bag->size - 8);
    if (start > bag->size - 8 || (bag->size - start) % 8)
        return false;
    t->entries = bag->data + start;
    t->lead = load_u64(t->entries) == 0;
    t->length = (bag->size - start) / 8 - t->lead;
    for (uint64_t i = 0; i < t->length; i++)
        if (blob_stop(t, i) < blob_start(t, i))
            return false;
    return true;
}

/* A position in a row of refs. */
typedef struct cursor {
    const unsigned char *at, *end;
    bool bad;
} cursor;

static uint64_t big_endian(cursor *c, size_t size) {
    uint64_t value = 0;
    if ((size_t)(c->end - c->at) < size) {
        c->bad = true;
        return 0;
    }
    for (size_t i = 0; i < size; i++)
        value = value << 8 | *c->at++;
    return value;
}

/* A non-negative msgpack integer in any form. */
static uint64_t read_uint(cursor *c) {
    uint64_t tag = big_endian(c, 1);
    if (tag < 0x80)
        return tag;
    uint64_t size = UINT64_C(1) << (tag & 3);
    bool sign = tag >= 0xd0 && tag <= 0xd3;
    if (!sign && (tag < 0xcc || tag > 0xcf))
        c->bad = true;
    uint64_t value = c->bad ? 0 : big_endian(c, (size_t)size);
    if (sign && value >> (8 * size - 1))
        c->bad = true;
    return value;
}

static uint64_t read_array(cursor *c) {
    uint64_t tag = big_endian(c, 1);
    if (tag >> 4 == 9)
        return tag & 15;
    if (tag != 0xdc && tag != 0xdd)
        c->bad = true;
    return c->bad ? 0 : big_endian(c, tag == 0xdc ? 2 : 4);
}

static bool ref_fits(cursor *c, bool sequence, uint64_t blobs) {
    if (!sequence)
        return read_uint(c) < blobs && !c->bad;
    uint64_t parts = read_array(c);
    if (c->bad || parts == 0)
        return !c->bad;
    uint64_t first = read_uint(c), count = read_uint(c);
    return parts == 2 && !c->bad && first <= blobs && count <= blobs - first;
}

static const bytes *find(const files *f, const char *directory, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->each[i].path, path) == 0)
            return &f->each[i].content;
    return NULL;
}

/* True if spec.json still names the same fields; their types may be any. */
static bool spec_is_right(const bytes *spec) {
    bytes copy = {NULL, 0, 0};
    put(&copy, spec->data, spec->size);
    put_u8(&copy, 0);
    char *at = (char *)copy.data;
    bool right = strlen(at) == spec->size;
    for (size_t i = 0; i < FIELDS && right; i++) {
        char before[64];
        bags_type type;
        int size = snprintf(
            before, sizeof before, "%s\"%s\": \"", i ? ", " : "{", fields[i].name);
        char *text = at + size;
        right = strncmp(at, before, (size_t)size) == 0;
        at = right ? strchr(text, '"') : at;
        right = right && at != NULL;
        if (!right)
            break;
        *at++ = 0;
        right = bags_type_parse(text, &type, NULL) == BAGS_OK;
    }
    right = right && *at == '}' && strspn(at + 1, " \n\t\r") == strlen(at + 1);
    bytes_free(&copy);
    return right;
}

/* If a field changed between plain and sequence, its refs are invalid. */
static bool is_sequence(const bytes *spec, size_t field) {
    char name[64];
    bytes copy = {NULL, 0, 0};
    put(&copy, spec->data, spec->size);
    put_u8(&copy, 0);
    snprintf(name, sizeof name, "\"%s\": \"", fields[field].name);
    const char *type = strstr((char *)copy.data, name) + strlen(name);
    bool sequence = strchr(type, '"')[-1] == ']';
    bytes_free(&copy);
    return sequence;
}

static bool row_is_right(
    const files *f, const char *directory, const table *bags, cursor *c) {
    const bytes *spec = find(f, directory, "spec.json");
    if (read_array(c) != FIELDS || c->bad)
        return false;
    for (size_t i = 0; i < FIELDS; i++)
        if (!ref_fits(c, is_sequence(spec, i), bags[i].length))
            return false;
    return c->at == c->end;
}

static bool shard_is_right(const files *f, const char *directory) {
    table bags[FIELDS], refs;
    const bytes *spec = find(f, directory, "spec.json");
    const bytes *rows = find(f, directory, "refs.bag");
    if (!spec || !spec_is_right(spec) || !rows || !read_table(rows, &refs))
        return false;
    for (size_t i = 0; i < FIELDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.bag", fields[i].name);
        const bytes *bag = find(f, directory, name);
        if (!bag || !read_table(bag, &bags[i]))
            return false;
    }
    for (uint64_t i = 0; i < refs.length; i++) {
        cursor c = {
            rows->data + blob_start(&refs, i), rows->data + blob_stop(&refs, i), false};
        if (!row_is_right(f, directory, bags, &c))
            return false;
    }
    return true;
}

/* ---- what is read ---- */

typedef struct outcome {
    bool verified; /* opened, and found valid */
    bool read;     /* everything was read */
    sha256 hash;   /* of what a reader returns */
    char hex[65];
} outcome;

static void add_number(sha256 *to, uint64_t number) {
    sha256_add(to, &number, sizeof number);
}

static void add_row(sha256 *to, bags_row *row, size_t count) {
    for (size_t slot = 0; slot < count; slot++) {
        size_t items = bags_row_length(row, slot);
        add_number(to, items);
        for (size_t i = 0; i < items; i++) {
            bags_value value;
            bags_view blob = bags_row_bytes(row, slot, i);
            add_number(to, blob.size);
            sha256_add(to, blob.data, blob.size);
            bags_row_value(row, slot, i, NULL, &value, NULL);
        }
    }
}

static void read_all(const bags_reader *reader, outcome *out) {
    bags_row row = {0};
    size_t count;
    const bags_field *spec = bags_reader_fields(reader, &count);
    for (size_t i = 0; i < count; i++) {
        sha256_add(&out->hash, spec[i].name, strlen(spec[i].name) + 1);
        sha256_add(&out->hash, spec[i].type, strlen(spec[i].type) + 1);
    }
    add_number(&out->hash, bags_reader_length(reader));
    out->read = true;
    for (uint64_t i = 0; i < bags_reader_length(reader) && out->read; i++) {
        out->read = !bags_reader_get(reader, i, NULL, 0, &row, NULL);
        add_row(&out->hash, &row, out->read ? count : 0);
    }
    bags_row_free(&row);
}

static void look(const memory_disk *drive, bool no_mmap, outcome *out) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    memset(out, 0, sizeof *out);
    sha256_start(&out->hash);
    options.env.io = &drive->io;
    options.no_mmap = no_mmap;
    bags_reader *reader = bags_reader_open("set", &options, NULL);
    if (reader) {
        out->verified = verify_path("set", &options.env, NULL) == BAGS_OK;
        read_all(reader, out);
    }
    bags_reader_close(reader);
    sha256_hex(&out->hash, out->hex);
}

/* ---- changes ---- */

/* A dataset, how much of its damage can be detected, and the counts of
 * changes. */
typedef struct trial {
    const char *name;
    bool checksums; /* then no change to what a reader returns may go undetected */
    const char *const *shards; /* directories, ended by NULL; NULL: a variant
                                  that the reader here does not know */
    files complete;
    char hex[65];
    uint64_t tried, found, same, altered;
} trial;

/* Up to its closing brace: whitespace may follow. */
static size_t spec_size(const bytes *spec) {
    size_t size = spec->size;
    while (size > 0 && spec->data[size - 1] != '}')
        size--;
    return size;
}

static bool is_right(const trial *t, const files *f) {
    const bytes *first = NULL;
    for (size_t i = 0; t->shards[i]; i++) {
        if (!shard_is_right(f, t->shards[i]))
            return false;
        const bytes *spec = find(f, t->shards[i], "spec.json");
        first = first ? first : spec;
        if (spec_size(spec) != spec_size(first) ||
            memcmp(spec->data, first->data, spec_size(spec)) != 0)
            return false;
    }
    return true;
}

static void judge(trial *t, const files *f, const outcome *got, const char *what) {
    bool altered = strcmp(got->hex, t->hex) != 0;
    t->tried++;
    t->found += !got->verified;
    t->same += got->verified && !altered;
    t->altered += got->verified && altered;
    if (got->verified && !got->read)
        fail_msg("%s: %s: verified, but cannot be read", t->name, what);
    if (t->checksums && got->verified && altered)
        fail_msg("%s: %s: altered, but verified", t->name, what);
    if (!t->checksums && t->shards && got->verified != is_right(t, f))
        fail_msg("%s: %s: %s", t->name, what,
            got->verified ? "contradicts the format, but verified"
                          : "does not contradict the format, but not verified");
}

static void check_call(const files *f, outcome *mapped, outcome *no_mmap) {
    memory_disk drive;
    memory_disk_start(&drive);
    for (size_t i = 0; i < f->count; i++)
        memory_disk_save(
            &drive, f->each[i].path, f->each[i].content.data, f->each[i].content.size);
    look(&drive, false, mapped);
    look(&drive, true, no_mmap);
    memory_disk_free(&drive);
}

static void check(trial *t, const files *f, const char *format, ...) BAGI_PRINTF(3, 4);

static void check(trial *t, const files *f, const char *format, ...) {
    char what[256];
    outcome mapped, no_mmap;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    check_call(f, &mapped, &no_mmap);
    if (mapped.verified != no_mmap.verified || mapped.read != no_mmap.read ||
        (mapped.read && strcmp(mapped.hex, no_mmap.hex) != 0))
        fail_msg("%s: %s: read without mmap it differs", t->name, what);
    judge(t, f, &mapped, what);
}

static void flip_all(trial *t) {
    static const unsigned char flips[] = {0x01, 0x80, 0xFF};
    for (size_t i = 0; i < t->complete.count; i++) {
        bytes *content = &t->complete.each[i].content;
        for (size_t at = 0; at < content->size; at++)
            for (size_t k = 0; k < sizeof flips; k++) {
                content->data[at] ^= flips[k];
                check(t, &t->complete, "%s: byte %d ^ 0x%02x", t->complete.each[i].path,
                    (int)at, flips[k]);
                content->data[at] ^= flips[k];
            }
    }
}

static void cut_all(trial *t) {
    for (size_t i = 0; i < t->complete.count; i++) {
        bytes *content = &t->complete.each[i].content;
        size_t size = content->size;
        for (content->size = 0; content->size < size; content->size++)
            check(t, &t->complete, "%s: cut to %d bytes", t->complete.each[i].path,
                (int)content->size);
    }
}

static void add_to_all(trial *t) {
    for (size_t i = 0; i < t->complete.count; i++)
        for (size_t more = 1; more <= 17; more++)
            for (int fill = 0; fill < 256; fill += 51) {
                bytes *content = &t->complete.each[i].content;
                size_t size = content->size;
                for (size_t k = 0; k < more; k++)
                    put_u8(content, (unsigned)fill);
                check(t, &t->complete, "%s: %d bytes 0x%02x more",
                    t->complete.each[i].path, (int)more, fill);
                content->size = size;
            }
}

static void remove_each(trial *t) {
    for (size_t i = 0; i < t->complete.count; i++) {
        files fewer = t->complete;
        fewer.each[i] = fewer.each[--fewer.count];
        check(t, &fewer, "%s: removed", t->complete.each[i].path);
    }
}

/* Two files are swapped; and one replaces the other. */
static void swap_all(trial *t) {
    for (size_t i = 0; i < t->complete.count; i++)
        for (size_t k = 0; k < t->complete.count; k++) {
            files other = t->complete;
            if (i == k)
                continue;
            other.each[i].content = t->complete.each[k].content;
            check(t, &other, "%s: is now %s", t->complete.each[i].path,
                t->complete.each[k].path);
            other.each[k].content = t->complete.each[i].content;
            if (i < k)
                check(t, &other, "%s and %s: swapped", t->complete.each[i].path,
                    t->complete.each[k].path);
        }
}

static void change_all(trial *t) {
    outcome complete, no_mmap;
    check_call(&t->complete, &complete, &no_mmap);
    assert_true(complete.verified && complete.read);
    memcpy(t->hex, complete.hex, sizeof t->hex);
    check(t, &t->complete, "nothing changed");
    assert_int_equal(t->same, 1);
    flip_all(t);
    cut_all(t);
    add_to_all(t);
    remove_each(t);
    swap_all(t);
    print_message("%-20s %6d changes: %d found, %d alter nothing that is read, "
                  "%d are legal\n",
        t->name, (int)t->tried, (int)t->found, (int)t->same, (int)t->altered);
    files_free(&t->complete);
}

/* ---- tests ---- */

static void damage_to_a_dataset_is_found(void **state) {
    static const char *const shards[] = {"set", NULL};
    bags_writer_options options;
    trial t = {0};
    (void)state;
    memset(&options, 0, sizeof options);
    t.name = "one directory";
    t.shards = shards;
    write_set(&t.complete, &options);
    assert_int_equal(t.complete.count, FIELDS + 2);
    change_all(&t);
}

static void damage_to_shards_is_found(void **state) {
    static const char *const shards[] = {"set/000000", "set/000001", NULL};
    bags_writer_options options;
    trial t = {0};
    (void)state;
    memset(&options, 0, sizeof options);
    options.shard_length = 3;
    t.name = "two shards";
    t.shards = shards;
    write_set(&t.complete, &options);
    assert_int_equal(t.complete.count, 2 * (FIELDS + 2));
    change_all(&t);
}

static void damage_to_v2_and_split_datasets_does_no_harm(void **state) {
    trial second = {0}, split = {0};
    (void)state;
    second.name = "v2";
    write_by_hand(&second.complete, V2);
    change_all(&second);
    split.name = "split";
    write_by_hand(&split.complete, SPLIT);
    change_all(&split);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(damage_to_a_dataset_is_found),
        TEST(damage_to_shards_is_found),
        TEST(damage_to_v2_and_split_datasets_does_no_harm),
    };
    return cmocka_run_group_tests_name("corruption", tests, NULL, NULL);
}
