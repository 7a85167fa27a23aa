/* Datasets in zip and tar files: archives made by hand, and those of bags_zip. */
// flavours: test: release; check: asan
#include "check.h"

#include "../../../formats/formats.h"

#include <errno.h>

/* ---- archives by hand ---- */

enum { MAX_MEMBERS = 12 };

typedef struct hand_member {
    const char *name;
    const void *data;
    size_t size;
    size_t start; /* of the bytes in the archive; set by the makers */
} hand_member;

/* How a zip file differs from the usual one. */
typedef struct zip_habits {
    bool wide;  /* zip64 fields, though nothing needs them */
    bool later; /* sizes after the bytes */
    size_t leading;
    const char *comment;
} zip_habits;

static void put_number(bytes *to, uint64_t number, int size) {
    for (int i = 0; i < size; i++)
        put_u8(to, i < 8 ? (unsigned)(number >> (8 * i)) & 255 : 0);
}

/* Version, flags, method and time; the CRC is not checked by readers. */
static void put_common(bytes *to, const zip_habits *how) {
    put_number(to, how->wide ? 45 : 20, 2);
    put_number(to, how->later ? 8 : 0, 2);
    put_number(to, 0, 10);
}

static bytes make_zip(hand_member *members, size_t count, const zip_habits *how) {
    static const zip_habits usual = {false, false, 0, ""};
    bytes zip = {NULL, 0, 0};
    size_t offsets[MAX_MEMBERS];
    how = how ? how : &usual;
    for (size_t i = 0; i < how->leading; i++)
        put_u8(&zip, 'P');
    for (size_t i = 0; i < count; i++) {
        hand_member *m = &members[i];
        uint64_t size = how->later ? 0 : how->wide ? UINT32_MAX : m->size;
        offsets[i] = zip.size - how->leading;
        put_text(&zip, "PK\3\4");
        put_common(&zip, how);
        put_number(&zip, size, 4);
        put_number(&zip, size, 4);
        put_number(&zip, strlen(m->name), 2);
        put_number(&zip, how->wide ? 20 : 0, 2);
        put_text(&zip, m->name);
        if (how->wide) {
            put_number(&zip, 1 | 16 << 16, 4);
            put_number(&zip, m->size, 8);
            put_number(&zip, m->size, 8);
        }
        m->start = zip.size;
        put(&zip, m->data, m->size);
        if (how->later) {
            put_text(&zip, "PK\7\10");
            put_number(&zip, 0, 4);
            put_number(&zip, m->size, 4);
            put_number(&zip, m->size, 4);
        }
    }
    size_t start = zip.size;
    for (size_t i = 0; i < count; i++) {
        const hand_member *m = &members[i];
        put_text(&zip, "PK\1\2");
        put_number(&zip, 20, 2);
        put_common(&zip, how);
        put_number(&zip, how->wide ? UINT32_MAX : m->size, 4);
        put_number(&zip, how->wide ? UINT32_MAX : m->size, 4);
        put_number(&zip, strlen(m->name), 2);
        put_number(&zip, how->wide ? 28 : 0, 2);
        put_number(&zip, 0, 10);
        put_number(&zip, how->wide ? UINT32_MAX : offsets[i], 4);
        put_text(&zip, m->name);
        if (how->wide) {
            put_number(&zip, 1 | 24 << 16, 4);
            put_number(&zip, m->size, 8);
            put_number(&zip, m->size, 8);
            put_number(&zip, offsets[i], 8);
        }
    }
    size_t stop = zip.size;
    if (how->wide) {
        put_text(&zip, "PK\6\6");
        put_number(&zip, 44, 8);
        put_number(&zip, 45 | 45 << 16, 4);
        put_number(&zip, 0, 8);
        put_number(&zip, count, 8);
        put_number(&zip, count, 8);
        put_number(&zip, stop - start, 8);
        put_number(&zip, start - how->leading, 8);
        put_text(&zip, "PK\6\7");
        put_number(&zip, 0, 4);
        put_number(&zip, stop - how->leading, 8);
        put_number(&zip, 1, 4);
    }
    put_text(&zip, "PK\5\6");
    put_number(&zip, 0, 4);
    put_number(&zip, how->wide ? 0xFFFF : count, 2);
    put_number(&zip, how->wide ? 0xFFFF : count, 2);
    put_number(&zip, how->wide ? UINT32_MAX : stop - start, 4);
    put_number(&zip, how->wide ? UINT32_MAX : start - how->leading, 4);
    put_number(&zip, strlen(how->comment), 2);
    put_text(&zip, how->comment);
    return zip;
}

static void put_zeros(bytes *to, size_t count) {
    while (count--)
        put_u8(to, 0);
}

static void tar_sum(unsigned char *header) {
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (size_t i = 0; i < 512; i++)
        sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
}

/* A member with a header of this type. Returns where its bytes start. */
static size_t put_tar(bytes *tar, const char *name, char type, const void *data,
    size_t size, bool posix) {
    char header[513] = "";
    snprintf(header, 101, "%s", name);
    snprintf(header + 100, 8, "0000644");
    snprintf(header + 124, 12, "%011o", (unsigned)size);
    header[156] = type;
    memcpy(header + 257, posix ? "ustar\00000" : "ustar  ", 8);
    tar_sum((unsigned char *)header);
    put(tar, header, 512);
    size_t start = tar->size;
    put(tar, data, size);
    put_zeros(tar, (512 - size % 512) % 512);
    return start;
}

static bytes make_tar(hand_member *members, size_t count) {
    bytes tar = {NULL, 0, 0};
    for (size_t i = 0; i < count; i++)
        members[i].start =
            put_tar(&tar, members[i].name, '0', members[i].data, members[i].size, true);
    put_zeros(&tar, 1024);
    return tar;
}

/* ---- what is in them ---- */

/* A dataset on a disk in memory, and its files as members. */
typedef struct sample {
    memory_disk drive;
    bags_io remote; /* the same without maps */
    hand_member members[MAX_MEMBERS];
    size_t count;
} sample;

static void sample_start(sample *s) {
    hand_set set;
    memset(s, 0, sizeof *s);
    memory_disk_start(&s->drive);
    s->remote = s->drive.io;
    s->remote.map = NULL;
    memset(&set, 0, sizeof set);
    set_field(&set, "label", "utf8");
    set_field(&set, "words", "utf8[]");
    for (size_t i = 0; i < 4; i++) {
        char text[16];
        snprintf(text, sizeof text, "label %d", (int)i);
        set_begin(&set);
        set_text(&set, 0, text);
        set_items(&set, 1, "word ", i);
        set_end(&set);
    }
    memory_disk_save_set(&s->drive, &set, V1, "pets");
    set_free(&set);
    static const char *const names[] = {
        "label.bag", "words.bag", "refs.bag", "spec.json"};
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "pets/%s", names[i]);
        bags_view file = memory_disk_find(&s->drive, path);
        hand_member member = {names[i], file.data, file.size, 0};
        s->members[s->count++] = member;
    }
}

static void sample_end(sample *s) { memory_disk_free(&s->drive); }

static bags_archive *open_on(const bags_io *io, const char *path) {
    bags_archive_options options;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.env.allocator = &memory.allocator;
    return bags_archive_open(path, &options, &said);
}

static bags_archive *open_bytes(sample *s, const bags_io *io, const bytes *content) {
    memory_disk_save(&s->drive, "a", content->data, content->size);
    return open_on(io, "a");
}

static bags_reader *read_from(const bags_io *io, const char *path) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.env.allocator = &memory.allocator;
    return bags_reader_open(path, &options, &said);
}

/* All rows are those of the sample, or there is an error, which is in `said`. */
static bags_code read_sample(const bags_io *io, const char *path) {
    bags_row row = {0};
    bags_reader *reader = read_from(io, path);
    if (!reader)
        return said.code;
    bags_code code = BAGS_OK;
    assert_int_equal(bags_reader_length(reader), 4);
    for (size_t i = 0; i < 4 && !code; i++) {
        char text[16];
        code = bags_reader_get(reader, i, NULL, 0, &row, &said);
        if (code)
            break;
        snprintf(text, sizeof text, "label %d", (int)i);
        assert_text(bags_row_bytes(&row, 0, 0), text);
        assert_int_equal(bags_row_length(&row, 1), i);
        for (size_t k = 0; k < i; k++) {
            snprintf(text, sizeof text, "word %d", (int)k);
            assert_text(bags_row_bytes(&row, 1, k), text);
        }
        bags_view part;
        code = bags_reader_get_part(reader, i, 0, 0, 2, 4, &row, &part, &said);
        if (!code)
            assert_text(part, "bel ");
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

/* The archive is accepted, with and without maps, and contains the sample. */
static void assert_reads(sample *s, const bytes *content, const char *path) {
    const bags_io *bases[2] = {&s->drive.io, &s->remote};
    for (size_t i = 0; i < 2; i++) {
        bags_archive *archive;
        bags_env env;
        memory_disk_save(&s->drive, "a", content->data, content->size);
        assert_opens(archive, open_on(bases[i], "a"));
        env.io = bags_archive_io(archive);
        env.allocator = &memory.allocator;
        assert_ok(read_sample(env.io, path));
        assert_ok(verify_path(path, &env, &said));
        bags_archive_close(archive);
    }
}

/* It is refused with and without maps. */
static void assert_refuses(
    sample *s, bytes content, bags_code code, const char *pattern) {
    const bags_io *bases[2] = {&s->drive.io, &s->remote};
    for (size_t i = 0; i < 2; i++) {
        assert_refused(code, open_bytes(s, bases[i], &content));
        assert_says("a: ");
        assert_says(pattern);
    }
    bytes_free(&content);
}

/* ---- reading ---- */

static void a_dataset_in_a_zip_is_read_in_place(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    bytes zip = make_zip(s.members, s.count, NULL);
    assert_reads(&s, &zip, "a");
    bags_archive *archive;
    assert_opens(archive, open_bytes(&s, &s.drive.io, &zip));
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = bags_archive_io(archive);
    bag_reader *one, *two;
    bags_view first, second;
    assert_opens(one, bag_reader_open("a/label.bag", &options, &said));
    assert_opens(two, bag_reader_open("a/label.bag", &options, &said));
    assert_ok(bag_reader_get(one, 1, NULL, &first, &said));
    bag_reader_close(one);
    assert_ok(bag_reader_get(two, 1, NULL, &second, &said));
    assert_true(first.data == second.data); /* of the one map */
    assert_text(first, "label 1");
    bag_reader_close(two);
    bags_archive_close(archive);
    bytes_free(&zip);
    sample_end(&s);
}

static void a_dataset_in_a_tar_is_read_in_place(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    bytes tar = make_tar(s.members, s.count);
    assert_reads(&s, &tar, "a");
    bytes_free(&tar);
    sample_end(&s);
}

static void zip_files_of_every_kind_are_read(void **state) {
    static const zip_habits habits[] = {{true, false, 0, ""}, {false, true, 0, ""},
        {false, false, 700, ""}, {true, false, 3, "all of the words"},
        {false, false, 0, "PK\5\6"}};
    sample s;
    (void)state;
    sample_start(&s);
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++) {
        bytes zip = make_zip(s.members, s.count, &habits[i]);
        assert_reads(&s, &zip, "a");
        bytes_free(&zip);
    }
    sample_end(&s);
}

static void names_may_have_dots_slashes_and_directories(void **state) {
    static const char *const names[] = {"./in//./side/label.bag", "in/side/words.bag",
        "./in/side/refs.bag", "in/./side/spec.json"};
    static const char *const paths[] = {"a/in/side", "a//in/./side/", "a/./in/side//"};
    sample s;
    (void)state;
    sample_start(&s);
    for (size_t i = 0; i < s.count; i++)
        s.members[i].name = names[i];
    hand_member directories[] = {
        {"./", "", 0, 0}, {"in/", "", 0, 0}, {"in/side/", "", 0, 0}};
    memcpy(s.members + s.count, directories, sizeof directories);
    bytes zip = make_zip(s.members, s.count + 3, NULL);
    bytes tar = make_tar(s.members, s.count + 3);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_reads(&s, &zip, paths[i]);
        assert_reads(&s, &tar, paths[i]);
    }
    bytes_free(&zip);
    bytes_free(&tar);
    sample_end(&s);
}

/* Collects names, and stops at the one that `stop_at` is. */
typedef struct listing {
    char names[256];
    const char *stop_at;
} listing;

static int add_name(void *user, const char *name) {
    listing *l = (listing *)user;
    size_t used = strlen(l->names);
    snprintf(l->names + used, sizeof l->names - used, "%s ", name);
    return l->stop_at && strcmp(name, l->stop_at) == 0 ? 77 : 0;
}

static void the_members_are_a_tree_of_files(void **state) {
    static const struct {
        const char *path;
        bags_path_kind kind;
        const char *names; /* of a directory */
    } expected[] = {{"a", BAGS_PATH_DIRECTORY, "b-c b d empty "},
        {"a/", BAGS_PATH_DIRECTORY, "b-c b d empty "},
        {"a/b", BAGS_PATH_DIRECTORY, "0 c e "}, {"a/b-c", BAGS_PATH_FILE, ""},
        {"a/b/c", BAGS_PATH_FILE, ""}, {"a/b/e", BAGS_PATH_DIRECTORY, "f g "},
        {"a/d", BAGS_PATH_DIRECTORY, "e "}, {"a/empty", BAGS_PATH_DIRECTORY, ""},
        {"a/b/", BAGS_PATH_DIRECTORY, "0 c e "}, {"a/d/e/x", BAGS_PATH_NONE, ""},
        {"a/bb", BAGS_PATH_NONE, ""}, {"a/", BAGS_PATH_DIRECTORY, NULL},
        {"ab", BAGS_PATH_NONE, ""}, {"b", BAGS_PATH_NONE, ""},
        {"a/../a/b", BAGS_PATH_NONE, ""}, {"a/b/c/d", BAGS_PATH_NONE, ""}};
    hand_member members[] = {{"d/e/f", "1", 1, 0}, {"b/e/g", "2", 1, 0},
        {"b/c", "34", 2, 0}, {"b-c", "5", 1, 0}, {"b/e/f", "", 0, 0},
        {"empty/", "", 0, 0}, {"b/0", "6", 1, 0}};
    sample s;
    (void)state;
    sample_start(&s);
    bytes zip = make_zip(members, 7, NULL);
    bags_archive *archive;
    assert_opens(archive, open_bytes(&s, &s.drive.io, &zip));
    const bags_io *io = bags_archive_io(archive);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        bags_path_kind kind = (bags_path_kind)99;
        listing found = {"", NULL};
        void *file;
        assert_int_equal(io->kind(io->user, expected[i].path, &kind), 0);
        assert_int_equal(kind, expected[i].kind);
        int listed = io->list(io->user, expected[i].path, add_name, &found);
        int opened = io->open(io->user, expected[i].path, BAGS_IO_READ, &file);
        if (kind == BAGS_PATH_DIRECTORY) {
            assert_int_equal(listed, 0);
            assert_int_equal(opened, EISDIR);
            if (expected[i].names)
                assert_string_equal(found.names, expected[i].names);
        } else if (kind == BAGS_PATH_FILE) {
            assert_int_equal(listed, ENOTDIR);
            assert_int_equal(opened, 0);
            assert_int_equal(io->close(io->user, file), 0);
        } else {
            assert_int_equal(listed, ENOENT);
            assert_int_equal(opened, ENOENT);
        }
    }
    listing found = {"", "b"};
    assert_int_equal(io->list(io->user, "a", add_name, &found), 77);
    assert_string_equal(found.names, "b-c b ");
    bags_archive_close(archive);
    bags_archive_close(NULL);
    bytes_free(&zip);
    sample_end(&s);
}

static void nothing_is_written_to_an_archive(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    bytes zip = make_zip(s.members, s.count, NULL);
    bags_archive *archive;
    assert_opens(archive, open_bytes(&s, &s.drive.io, &zip));
    bags_writer_options writing;
    bags_finalize_options finalizing;
    memset(&writing, 0, sizeof writing);
    memset(&finalizing, 0, sizeof finalizing);
    writing.env.io = finalizing.env.io = bags_archive_io(archive);
    bags_field field = {"f", "utf8"};
    assert_refused(
        BAGS_ERROR_IO, bags_writer_open("a/new", &field, 1, &writing, &said));
    assert_int_equal(said.system, EROFS);
    void *file;
    const bags_io *io = bags_archive_io(archive);
    assert_int_equal(io->open(io->user, "a/spec.json", BAGS_IO_WRITE, &file), EROFS);
    bags_archive_close(archive);
    bytes_free(&zip);
    sample_end(&s);
}

static void tar_headers_of_every_kind_are_read(void **state) {
    char name[300], record[500];
    sample s;
    bytes tar = {NULL, 0, 0};
    (void)state;
    sample_start(&s);
    memset(name, 'd', sizeof name);
    memcpy(name + 200, "/", 2);
    const char *directory = name;
    char path[400], full[400];
    hand_member *m;
    size_t start;
    unsigned char *header;
    /* POSIX: a prefix; then also a size of base 256. */
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < s.count; i++) {
            start = put_tar(&tar, s.members[i].name, step && i == 1 ? 0 : '0',
                s.members[i].data, s.members[i].size, true);
            header = tar.data + start - 512;
            memcpy(header + 345, directory, step ? 155 : 60);
            if (step) {
                memset(header + 124, 0, 12);
                header[124] = 0x80;
                header[135] = (unsigned char)s.members[i].size;
                assert_true(s.members[i].size < 256);
            }
            tar_sum(header);
        }
        put_zeros(&tar, 1024);
        snprintf(path, sizeof path, "a/%.*s", step ? 155 : 60, directory);
        assert_reads(&s, &tar, path);
        bytes_free(&tar);
    }
    /* The same dataset with GNU's long names and with pax records. */
    for (int pax = 0; pax < 2; pax++) {
        for (size_t i = 0; i < s.count; i++) {
            m = &s.members[i];
            snprintf(full, sizeof full, "%s%s", directory, m->name);
            int length = snprintf(record, sizeof record,
                "%d path=%s\n13 size=%04d\n15 mtime=1.500\n", (int)strlen(full) + 10,
                full, (int)m->size);
            if (pax)
                put_tar(&tar, "g", 'g', "13 comment=x\n", 13, true);
            if (pax)
                put_tar(&tar, "x", 'x', record, (size_t)length, true);
            else
                put_tar(&tar, "././@LongLink", 'L', full, strlen(full) + 1, false);
            start =
                put_tar(&tar, "cut off", pax ? '0' : '7', m->data, m->size, pax != 0);
            if (pax)
                memset(tar.data + start - 512 + 124, '0', 11);
            tar_sum(tar.data + start - 512);
        }
        put_zeros(&tar, 10240);
        snprintf(path, sizeof path, "a/%s", directory);
        assert_reads(&s, &tar, path);
        bytes_free(&tar);
    }
    sample_end(&s);
}

/* ---- what is refused ---- */

static void zip_with(sample *s, const char *name, const char *pattern) {
    hand_member members[2] = {{"good", "1", 1, 0}, {name, "2", 1, 0}};
    assert_refuses(s, make_zip(members, 2, NULL), BAGS_ERROR_CORRUPT, pattern);
    assert_refuses(s, make_tar(members, 2), BAGS_ERROR_CORRUPT, pattern);
}

static void members_outside_the_archive_are_refused(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    zip_with(&s, "../x.bag", "member \"../x.bag\": outside*..");
    zip_with(&s, "b/../../x.bag", "member \"b/../../x.bag\": outside");
    zip_with(&s, "b/..", "outside");
    zip_with(&s, "/etc/passwd", "\"/etc/passwd\": outside*absolute");
    zip_with(&s, "good", "member \"good\": duplicate");
    zip_with(&s, "./good", "member \"good\": duplicate");
    zip_with(&s, "good/x", "member \"good\": both a file and a directory");
    zip_with(&s, "dir/", "a directory with bytes");
    sample_end(&s);
}

/* The sample's zip file with other numbers in it, at an offset after the start of
 * the local header (-1: of the entry in the directory; -2: of the end) of member
 * i. */
static bytes changed_zip(sample *s, int part, size_t i, size_t at, uint64_t to,
    int size, const zip_habits *how) {
    bytes zip = make_zip(s->members, s->count, how);
    size_t start = 0, seen = 0;
    const char *mark = part == 0 ? "PK\3\4" : part == -1 ? "PK\1\2" : "PK\5\6";
    for (size_t k = 0; k + 4 <= zip.size; k++)
        if (!memcmp(zip.data + k, mark, 4) && seen++ == i)
            start = k;
    for (int k = 0; k < size; k++)
        zip.data[start + at + (size_t)k] = (unsigned char)(to >> (8 * k));
    return zip;
}

#define ENTRY(at, to, size) changed_zip(&s, -1, 1, at, to, size, NULL)
#define LOCAL(at, to, size) changed_zip(&s, 0, 1, at, to, size, NULL)
#define END(at, to, size) changed_zip(&s, -2, 0, at, to, size, NULL)

static void what_cannot_be_read_in_place_is_refused_by_name(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    assert_refuses(&s, ENTRY(10, 8, 2), BAGS_ERROR_VALUE,
        "member \"words.bag\": compressed*zip -0");
    assert_refuses(
        &s, ENTRY(8, 1, 2), BAGS_ERROR_VALUE, "member \"words.bag\": encrypted");
    bytes zip = ENTRY(38, (uint64_t)0120777 << 16, 4);
    for (size_t i = 0; i + 4 < zip.size; i++)
        if (!memcmp(zip.data + i, "PK\1\2", 4))
            zip.data[i + 5] = 3; /* made on a POSIX system */
    assert_refuses(&s, zip, BAGS_ERROR_VALUE, "member \"words.bag\": a link");
    sample_end(&s);
}

static void a_zip_that_contradicts_itself_is_refused(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    assert_refuses(&s, ENTRY(20, 9, 4), BAGS_ERROR_CORRUPT,
        "member \"words.bag\": stored with two different sizes");
    assert_refuses(&s, ENTRY(42, 1 << 20, 4), BAGS_ERROR_CORRUPT,
        "member \"words.bag\": past the end");
    assert_refuses(&s, ENTRY(42, 0, 4), BAGS_ERROR_CORRUPT, "overlaps");
    assert_refuses(&s, ENTRY(42, UINT32_MAX, 4), BAGS_ERROR_CORRUPT, "no zip64");
    assert_refuses(&s, ENTRY(34, 1, 2), BAGS_ERROR_CORRUPT, "another disk");
    assert_refuses(&s, ENTRY(0, 0, 1), BAGS_ERROR_CORRUPT, "invalid entry");
    assert_refuses(&s, ENTRY(28, 60000, 2), BAGS_ERROR_CORRUPT, "truncated");
    assert_refuses(&s, END(4, 1, 2), BAGS_ERROR_VALUE, "several disks");
    assert_refuses(&s, END(8, 3, 2), BAGS_ERROR_VALUE, "several disks");
    assert_refuses(&s, END(8, 3 | 3 << 16, 4), BAGS_ERROR_CORRUPT, "after");
    assert_refuses(&s, END(8, 5 | 5 << 16, 4), BAGS_ERROR_CORRUPT, "");
    assert_refuses(&s, END(8, UINT32_MAX, 4), BAGS_ERROR_CORRUPT, "members");
    assert_refuses(&s, END(12, 1 << 30, 4), BAGS_ERROR_CORRUPT, "outside");
    assert_refuses(&s, END(16, 1 << 30, 4), BAGS_ERROR_CORRUPT, "outside");
    assert_refuses(&s, END(20, 1, 2), BAGS_ERROR_CORRUPT, "neither");
    sample_end(&s);
}

/* Found when the member is opened. */
static void a_local_header_must_agree_with_the_directory(void **state) {
    static const struct {
        size_t at;
        unsigned to;
        const char *says;
    } cases[] = {{0, 0, "no local header"}, {6, 1, "contradicts"},
        {8, 8, "contradicts"}, {18, 1, "contradicts"}, {22, 1, "contradicts"},
        {26, 8, "another name"}, {27, 255, "overlaps"}, {29, 255, "overlaps"},
        {30, 'W', "another name"}};
    sample s;
    (void)state;
    sample_start(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bags_io *bases[2] = {&s.drive.io, &s.remote};
        bytes zip = LOCAL(cases[i].at, cases[i].to, 1);
        for (size_t k = 0; k < 2; k++) {
            bags_archive *archive;
            assert_opens(archive, open_bytes(&s, bases[k], &zip));
            assert_fails(BAGS_ERROR_IO, read_sample(bags_archive_io(archive), "a"));
            assert_says("a/words.bag: cannot open: a: member \"words.bag\": ");
            assert_says(cases[i].says);
            bags_archive_close(archive);
        }
        bytes_free(&zip);
    }
    sample_end(&s);
}

static bytes tar_with(char type, const char *data, size_t size) {
    bytes tar = {NULL, 0, 0};
    put_tar(&tar, "x.bag", type, data, size, true);
    put_tar(&tar, "y", '0', "1", 1, true);
    put_zeros(&tar, 1024);
    return tar;
}

static void tar_members_that_are_not_files_are_refused(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    assert_refuses(&s, tar_with('1', "", 0), BAGS_ERROR_VALUE,
        "a hard link*tar --hard-dereference");
    assert_refuses(&s, tar_with('2', "", 0), BAGS_ERROR_VALUE, "a link*tar -h");
    assert_refuses(&s, tar_with('3', "", 0), BAGS_ERROR_VALUE, "not a regular");
    assert_refuses(&s, tar_with('6', "", 0), BAGS_ERROR_VALUE, "not a regular");
    assert_refuses(&s, tar_with('2', "1", 1), BAGS_ERROR_CORRUPT, "with bytes");
    assert_refuses(&s, tar_with('5', "1", 1), BAGS_ERROR_CORRUPT, "directory");
    assert_refuses(&s, tar_with('S', "1", 1), BAGS_ERROR_VALUE, "sparse");
    assert_refuses(&s, tar_with('M', "1", 1), BAGS_ERROR_VALUE, "unknown type");
    assert_refuses(
        &s, tar_with('x', "22 GNU.sparse.major=1\n", 22), BAGS_ERROR_VALUE, "sparse");
    assert_refuses(&s, tar_with('x', "22 path", 7), BAGS_ERROR_CORRUPT, "pax header");
    assert_refuses(
        &s, tar_with('x', "9 size=x\n", 9), BAGS_ERROR_CORRUPT, "pax header");
    assert_refuses(
        &s, tar_with('x', "13 size=99999\n", 14), BAGS_ERROR_CORRUPT, "pax header");
    assert_refuses(&s, tar_with('x', "14 size=99999\n", 14), BAGS_ERROR_CORRUPT,
        "member \"y\": past the end");
    assert_refuses(&s, tar_with('x', "32 size=99999999999999999999999\n", 32),
        BAGS_ERROR_CORRUPT, "pax header");
    assert_refuses(
        &s, tar_with('x', "12 path=../\n", 12), BAGS_ERROR_CORRUPT, "outside");
    assert_refuses(&s, tar_with('g', "9 path=z\n", 9), BAGS_ERROR_CORRUPT, "global");
    bytes tar = tar_with('x', "9 path=z\n", 9);
    memmove(tar.data + 1024, tar.data + 2048, tar.size - 2048);
    tar.size -= 1024;
    assert_refuses(&s, tar, BAGS_ERROR_CORRUPT, "without its member");
    tar = tar_with('0', "1", 1);
    put_text(&tar, "more");
    assert_refuses(&s, tar, BAGS_ERROR_CORRUPT, "after its end");
    tar = tar_with('0', "1", 1);
    put_zeros(&tar, 2 << 20);
    assert_refuses(&s, tar, BAGS_ERROR_CORRUPT, "after its end");
    tar = tar_with('0', "1", 1);
    tar.size -= 1024;
    assert_refuses(&s, tar, BAGS_ERROR_CORRUPT, "truncated");
    tar = tar_with('0', "1", 1);
    memset(tar.data + 124, '9', 11);
    tar_sum(tar.data);
    assert_refuses(&s, tar, BAGS_ERROR_CORRUPT, "invalid size");
    sample_end(&s);
}

static void other_files_are_refused(void **state) {
    static const struct {
        const char *content, *says;
        bags_code code;
    } cases[] = {{"", "neither", BAGS_ERROR_CORRUPT},
        {"\x1f\x8b\x08\1\1\1\1\1\1", "decompress it", BAGS_ERROR_CORRUPT},
        {"BZh91AY&SY", "decompress it", BAGS_ERROR_CORRUPT},
        {"\xfd"
         "7zXZ\1\1\1",
            "decompress it", BAGS_ERROR_CORRUPT},
        {"\x28\xb5\x2f\xfd\4\1\1\1", "decompress it", BAGS_ERROR_CORRUPT},
        {"PK\3\4 and then it was cut", "truncated", BAGS_ERROR_CORRUPT}};
    sample s;
    (void)state;
    sample_start(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t more = 0; more <= 1000; more += 1000) {
            bytes content = {NULL, 0, 0};
            put_text(&content, cases[i].content);
            put_zeros(&content, cases[i].content[0] ? more : 0);
            assert_refuses(&s, content, cases[i].code, cases[i].says);
        }
    assert_refused(BAGS_ERROR_MISSING, open_on(&s.drive.io, "nothing"));
    assert_refused(BAGS_ERROR_IO, open_on(&s.drive.io, "pets"));
    assert_refused(BAGS_ERROR_ARGUMENT, open_on(&s.drive.io, ""));
    sample_end(&s);
}

static void the_number_of_members_is_limited(void **state) {
    sample s;
    bags_archive_options options;
    (void)state;
    sample_start(&s);
    bytes zip = make_zip(s.members, s.count, NULL);
    memory_disk_save(&s.drive, "a", zip.data, zip.size);
    memset(&options, 0, sizeof options);
    options.env.io = &s.drive.io;
    options.max_members = 3;
    assert_refused(BAGS_ERROR_LIMIT, bags_archive_open("a", &options, &said));
    assert_says("a: too many members*3");
    options.max_members = 4;
    bags_archive *archive;
    assert_opens(archive, bags_archive_open("a", &options, &said));
    bags_archive_close(archive);
    bytes_free(&zip);
    sample_end(&s);
}

/* True if byte i of an archive is in the bytes of a member. */
static bool is_content(const sample *s, size_t i) {
    for (size_t k = 0; k < s->count; k++)
        if (i >= s->members[k].start && i < s->members[k].start + s->members[k].size)
            return true;
    return false;
}

/* Read the sample from what may be damaged: unchanged, or an error that names the
 * archive. */
static void read_damaged(sample *s, const bytes *content) {
    const bags_io *bases[2] = {&s->drive.io, &s->remote};
    for (size_t i = 0; i < 2; i++) {
        poison();
        bags_archive *archive = open_bytes(s, bases[i], content);
        bags_code code = archive ? BAGS_OK : said.code;
        if (archive)
            code = read_sample(bags_archive_io(archive), "a");
        if (code)
            assert_says("a");
        bags_archive_close(archive);
    }
}

static void damage(sample *s, bytes *content) {
    size_t size = content->size;
    for (size_t i = 0; i < size; i++) {
        if (is_content(s, i))
            continue;
        for (unsigned bits = 1; bits < 256; bits = bits * 3 + 13) {
            content->data[i] ^= (unsigned char)bits;
            read_damaged(s, content);
            content->data[i] ^= (unsigned char)bits;
        }
    }
    for (content->size = 0; content->size < size; content->size++)
        read_damaged(s, content);
}

static void every_byte_and_length_of_a_zip_may_be_damaged(void **state) {
    static const zip_habits wide = {true, false, 5, "x"};
    sample s;
    (void)state;
    sample_start(&s);
    bytes zip = make_zip(s.members, s.count, NULL);
    damage(&s, &zip);
    bytes_free(&zip);
    zip = make_zip(s.members, s.count, &wide);
    damage(&s, &zip);
    bytes_free(&zip);
    sample_end(&s);
}

static void every_byte_and_length_of_a_tar_may_be_damaged(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    bytes tar = make_tar(s.members, s.count);
    damage(&s, &tar);
    bytes_free(&tar);
    sample_end(&s);
}

/* ---- writing ---- */

static bags_code zip_to(const bags_io *io, const char *from, const char *to) {
    bags_zip_options options;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    options.env.allocator = &memory.allocator;
    return bags_zip(from, to, &options, &said);
}

static unsigned load_u16(const unsigned char *data) {
    return data[0] | (unsigned)data[1] << 8;
}

static void a_zip_that_was_written_is_aligned_and_ends_with_the_spec(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    assert_ok(zip_to(&s.drive.io, "pets", "x.zip"));
    assert_ok(zip_to(&s.drive.io, "pets/", "y.zip"));
    bags_view one = memory_disk_find(&s.drive, "x.zip");
    bags_view two = memory_disk_find(&s.drive, "y.zip");
    assert_bytes(one, two.data, two.size);
    size_t bags = 0;
    char last[32] = "";
    for (size_t i = 0; i + 4 <= one.size; i++) {
        const unsigned char *p = one.data + i;
        if (memcmp(p, "PK\3\4", 4) != 0)
            continue;
        size_t name = load_u16(p + 26), extra = load_u16(p + 28);
        assert_true(name < sizeof last);
        memcpy(last, p + 30, name);
        last[name] = 0;
        if (strstr(last, ".bag")) {
            assert_int_equal((i + 30 + name + extra) % 4096, 0);
            bags++;
        }
    }
    assert_int_equal(bags, 3);
    assert_string_equal(last, "spec.json");
    bytes copy = {NULL, 0, 0};
    put(&copy, one.data, one.size);
    assert_reads(&s, &copy, "a");
    bytes_free(&copy);
    assert_fails(BAGS_ERROR_EXISTS, zip_to(&s.drive.io, "pets", "x.zip"));
    assert_fails(BAGS_ERROR_MISSING, zip_to(&s.drive.io, "cats", "z.zip"));
    assert_fails(BAGS_ERROR_MISSING, zip_to(&s.drive.io, "pets", "no/z.zip"));
    assert_fails(BAGS_ERROR_ARGUMENT, zip_to(&s.drive.io, "pets", ""));
    memory_disk_make_dir(&s.drive, "shards");
    memory_disk_save(&s.drive, "shards/000000/spec.json.partial", "{}", 2);
    assert_fails(BAGS_ERROR_UNFINISHED, zip_to(&s.drive.io, "shards", "z.zip"));
    sample_end(&s);
}

/* A hook that is called before every call of another: once the zip file is started,
 * a file of the dataset becomes longer. */
static void grow_label(void *user) {
    sample *s = (sample *)user;
    static const char longer[200] = "";
    if (disk.counts[HOOK_WRITE] == 1)
        memory_disk_save(&s->drive, "pets/label.bag", longer, sizeof longer);
}

static void a_dataset_that_changes_is_refused(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    watch_start(&disk, &s.drive.io);
    disk.before = grow_label;
    disk.user = &s;
    assert_fails(BAGS_ERROR_CORRUPT, zip_to(&disk.io, "pets", "x.zip"));
    assert_says("pets/label.bag: changed while it was read (200*was 6");
    assert_null(memory_disk_find(&s.drive, "x.zip").data);
    assert_null(memory_disk_find(&s.drive, "x.zip.partial").data);
    sample_end(&s);
}

/* A hook that replaces the dataset before call `at`. */
typedef struct replacing {
    sample *s;
    uint64_t calls, at;
} replacing;

static void replace_pets(void *user) {
    replacing *r = (replacing *)user;
    const bags_io *io = &r->s->drive.io;
    if (++r->calls != r->at)
        return;
    assert_int_equal(io->rename(io->user, "pets", "old"), 0);
    assert_int_equal(io->rename(io->user, "cats", "pets"), 0);
}

/* Whenever one of the same shape replaces it, the zip file is of one of them. */
static void a_dataset_that_is_replaced_is_not_mixed(void **state) {
    (void)state;
    uint64_t refused = 0;
    replacing r = {NULL, 0, 1};
    for (; r.calls + 1 >= r.at; r.at++) {
        sample s;
        hand_set set;
        sample_start(&s);
        memset(&set, 0, sizeof set);
        set_field(&set, "label", "utf8");
        set_field(&set, "words", "utf8[]");
        for (size_t i = 0; i < 4; i++) {
            set_begin(&set);
            set_text(&set, 0, "another");
            set_items(&set, 1, "WORD ", i);
            set_end(&set);
        }
        memory_disk_save_set(&s.drive, &set, V1, "cats");
        set_free(&set);
        assert_ok(zip_to(&s.drive.io, "pets", "old.zip"));
        assert_ok(zip_to(&s.drive.io, "cats", "new.zip"));
        r.s = &s;
        r.calls = 0;
        watch_start(&disk, &s.drive.io);
        disk.before = replace_pets;
        disk.user = &r;
        bags_code code = zip_to(&disk.io, "pets", "x.zip");
        bags_view zip = memory_disk_find(&s.drive, "x.zip");
        bags_view a = memory_disk_find(&s.drive, "old.zip");
        bags_view b = memory_disk_find(&s.drive, "new.zip");
        assert_true(a.size == b.size);
        assert_true(!code == (zip.data != NULL));
        assert_true(
            code || (zip.size == a.size && (!memcmp(zip.data, a.data, a.size) ||
                                               !memcmp(zip.data, b.data, b.size))));
        assert_null(memory_disk_find(&s.drive, "x.zip.partial").data);
        refused += code == BAGS_ERROR_CORRUPT &&
                   strstr(said.message, "changed while it was read");
        sample_end(&s);
    }
    assert_true(refused > 20);
}

/* Write, open and read with a call of the allocator or of a hook that fails. */
static bags_code write_and_read(sample *s, const bags_io *io, bool local) {
    bags_code code = zip_to(io, "pets", "x.zip");
    bags_io far = *io;
    far.map = local ? far.map : NULL;
    bags_archive *archive = code ? NULL : open_on(&far, "x.zip");
    if (!code)
        code = archive ? read_sample(bags_archive_io(archive), "x.zip") : said.code;
    bags_archive_close(archive);
    bool left = memory_disk_find(&s->drive, "x.zip.partial").data != NULL;
    assert_true(!left || disk.failed);
    disk.fail_at = 0;
    s->drive.io.remove(&s->drive, "x.zip");
    s->drive.io.remove(&s->drive, "x.zip.partial");
    return code;
}

static void whatever_fails_is_reported(void **state) {
    sample s;
    (void)state;
    sample_start(&s);
    for (int what = 0; what < 4; what++) {
        bags_code code = BAGS_ERROR_IO;
        uint64_t failures = 0;
        for (uint64_t n = 1; code; n++) {
            watch_start(&disk, &s.drive.io);
            tally_start(&memory);
            if (what & 1)
                memory.fail_at = n;
            else
                disk.fail_at = n;
            poison();
            code = write_and_read(&s, &disk.io, what < 2);
            uint64_t failed = what & 1 ? memory.failed : disk.failed;
            failures += failed;
            /* A map that fails is not needed; nor is a file's close. */
            if (failed && !code) {
                assert_false(what & 1);
                code = BAGS_ERROR_IO;
            } else if (!failed) {
                assert_int_equal(code, BAGS_OK);
            }
            assert_int_equal(memory.live, 0);
            assert_int_equal(disk.files, 0);
            assert_int_equal(disk.maps, 0);
        }
        assert_true(failures > 20);
    }
    sample_end(&s);
}

/* ---- far away ---- */

/* Files far away: what was read or announced is kept, in blocks, as http.c does; what
 * is not yet there takes a request. */
enum { FAR_BLOCK = 64 << 10, FAR_BLOCKS = 64 };

typedef struct far_disk {
    bags_io io;
    const bags_io *base;
    bool kept[FAR_BLOCKS];
    int requests;
} far_disk;

static void far_request(far_disk *far, uint64_t offset, size_t size) {
    bool missing = false;
    for (uint64_t i = offset / FAR_BLOCK; i * FAR_BLOCK < offset + size; i++) {
        assert_true(i < FAR_BLOCKS);
        missing = missing || !far->kept[i];
        far->kept[i] = true;
    }
    far->requests += missing;
}

static int far_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    far_disk *far = (far_disk *)user;
    far_request(far, offset, size);
    return far->base->read_at(far->base->user, file, offset, data, size, done);
}

static void far_read_many(void *user, bags_io_read *reads, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!reads[i].data)
            far_request((far_disk *)user, reads[i].offset, reads[i].size);
}

static int far_open(void *user, const char *path, int mode, void **file) {
    const far_disk *far = (const far_disk *)user;
    return far->base->open(far->base->user, path, mode, file);
}

static int far_close(void *user, void *file) {
    const far_disk *far = (const far_disk *)user;
    return far->base->close(far->base->user, file);
}

static int far_size(void *user, void *file, uint64_t *size) {
    far_disk *far = (far_disk *)user;
    far->requests++;
    return far->base->size(far->base->user, file, size);
}

static void the_first_datapoint_takes_four_requests(void **state) {
    hand_set set;
    memory_disk drive;
    far_disk far;
    (void)state;
    memset(&set, 0, sizeof set);
    memory_disk_start(&drive);
    set_field(&set, "image", "bytes");
    set_field(&set, "label", "utf8");
    static unsigned char image[30000];
    fill(image, sizeof image, 1);
    for (size_t i = 0; i < 100; i++) {
        set_begin(&set);
        set_blob(&set, 0, image, sizeof image);
        set_text(&set, 1, "cat");
        set_end(&set);
    }
    memory_disk_save_set(&drive, &set, V1, "pets");
    set_free(&set);
    assert_ok(zip_to(&drive.io, "pets", "x.zip"));
    memset(&far, 0, sizeof far);
    far.base = &drive.io;
    far.io.user = &far;
    far.io.open = far_open;
    far.io.close = far_close;
    far.io.size = far_size;
    far.io.read_at = far_read_at;
    far.io.read_many = far_read_many;
    bags_archive *archive;
    bags_row row = {0};
    assert_opens(archive, open_on(&far.io, "x.zip"));
    bags_reader *reader;
    assert_opens(reader, read_from(bags_archive_io(archive), "x.zip"));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_bytes(bags_row_bytes(&row, 0, 0), image, sizeof image);
    assert_text(bags_row_bytes(&row, 1, 0), "cat");
    assert_true(far.requests <= 4);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_archive_close(archive);
    memory_disk_free(&drive);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_dataset_in_a_zip_is_read_in_place),
        TEST(a_dataset_in_a_tar_is_read_in_place),
        TEST(zip_files_of_every_kind_are_read),
        TEST(names_may_have_dots_slashes_and_directories),
        TEST(the_members_are_a_tree_of_files),
        TEST(nothing_is_written_to_an_archive),
        TEST(tar_headers_of_every_kind_are_read),
        TEST(members_outside_the_archive_are_refused),
        TEST(what_cannot_be_read_in_place_is_refused_by_name),
        TEST(a_zip_that_contradicts_itself_is_refused),
        TEST(a_local_header_must_agree_with_the_directory),
        TEST(tar_members_that_are_not_files_are_refused),
        TEST(other_files_are_refused),
        TEST(the_number_of_members_is_limited),
        TEST(every_byte_and_length_of_a_zip_may_be_damaged),
        TEST(every_byte_and_length_of_a_tar_may_be_damaged),
        TEST(a_zip_that_was_written_is_aligned_and_ends_with_the_spec),
        TEST(a_dataset_that_changes_is_refused),
        TEST(a_dataset_that_is_replaced_is_not_mixed),
        TEST(whatever_fails_is_reported),
        TEST(the_first_datapoint_takes_four_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
